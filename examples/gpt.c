/* A character GPT: learns to go on with a text, and writes some at the end.

   Build: cc -O2 -I.. gpt.c -o gpt -lm -lpthread            Run: ./gpt --text file.txt --steps 500

       --text FILE   default dt.h: the toolkit reads its own manual and source
       --steps N     500         --layers N   4        --dim N   128       --heads N   4       --context N   64
       --batch N     16          --lr X       0.003    --sample N   400 characters at the end
       --opt-level O0..O3        --checkpoint DIR      --svg FILE                                            */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "example_data.h"

typedef struct config {
    int layers, heads;
    int64_t dim, vocab, context;
} config;

static dt_tensor *gpt(dt_model *m, dt_tensor *tokens, const config *c)
{
    int64_t    t = dt_dim(tokens, 1);
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = c->vocab, .dim = c->dim);
    x = dt_add(x,
               dt_embedding(m, "wpe", dt_arange(0, (double)t, 1, .dtype = DT_I64), .num = c->context, .dim = c->dim));
    for (int i = 0; i < c->layers; i++) {
        dt_scope(m, "h.%d", i);
        dt_tensor *a = dt_layernorm(m, "ln_1", x);
        x = dt_add(x, dt_multihead_attention(m, "attn", a, .heads = c->heads, .causal = true));
        a = dt_linear(m, "mlp.fc", dt_layernorm(m, "ln_2", x), .out = 4 * c->dim);
        x = dt_add(x, dt_linear(m, "mlp.proj", dt_gelu_tanh(a), .out = c->dim));
        dt_scope_end(m);
    }
    return dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = c->vocab, .no_bias = true);
}

/* ---- the text as numbers of its characters */
typedef struct text {
    int64_t        n;
    unsigned char *token;
    int            vocab;
    unsigned char  character[256];
} text;
static int read_text(text *t, const char *path)
{
    FILE   *f = fopen(path, "rb");
    int     number[256];
    size_t  got = 0, cap = 1 << 20;
    t->token = (unsigned char *)malloc(cap);
    if (!f || !t->token) {
        if (f) fclose(f);
        return dt_fail(DT_ERR_ARG, "gpt: cannot read %s", path);
    }
    for (size_t n; (n = fread(t->token + got, 1, cap - got, f)) > 0; ) {
        got += n;
        unsigned char *more = got == cap ? (unsigned char *)realloc(t->token, cap *= 2) : t->token;
        if (!more) break;
        t->token = more;
    }
    fclose(f);
    for (int i = 0; i < 256; i++) number[i] = -1;
    for (size_t i = 0; i < got; i++) number[t->token[i]] = 0;
    for (int i = 0; i < 256; i++)
        if (number[i] == 0) t->character[number[i] = t->vocab++] = (unsigned char)i;
    for (size_t i = 0; i < got; i++) t->token[i] = (unsigned char)number[t->token[i]];
    t->n = (int64_t)got;
    return 0;
}

static void sample(dt_model *m, const config *c, const text *t, int n)
{
    int64_t window[1024], len = 1;
    float   p[256];
    window[0] = t->token[0];
    dt_eval(m);
    dt_no_grad_begin();
    for (int i = 0; i < n && !dt_error(); i++) {
        dt_tensor *y = gpt(m, dt_from(window, DT_SHAPE(1, len), .dtype = DT_I64), c);
        y = dt_softmax(dt_cast(dt_select(dt_select(y, 0, 0), 0, len - 1), DT_F32), 0);
        dt_copy_out(y, p, (size_t)c->vocab * sizeof *p);
        dt_end();
        float u;
        int   next = 0;
        dt_rng_uniform(NULL, &u, 1, 0, 1);
        while (next < c->vocab - 1 && (u -= p[next]) > 0) next++;
        putchar(t->character[next]);
        if (len == c->context) memmove(window, window + 1, (size_t)--len * sizeof *window);
        window[len++] = next;
    }
    dt_no_grad_end();
    dt_train(m);
    putchar('\n');
}
int main(int argc, char **argv)
{
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL);
    const char *path = example_option(argc, argv, "--text", "dt.h");
    int64_t     steps = atoi(example_option(argc, argv, "--steps", "500")),
            size = atoi(example_option(argc, argv, "--batch", "16"));
    int64_t     epoch = 0, step = 0;
    text        t;
    config      c;
    memset(&t, 0, sizeof t);
    c.layers = atoi(example_option(argc, argv, "--layers", "4"));
    c.heads = atoi(example_option(argc, argv, "--heads", "4"));
    c.dim = atoi(example_option(argc, argv, "--dim", "128"));
    c.context = atoi(example_option(argc, argv, "--context", "64"));
    if (c.context < 2 || c.context > 1024 || size < 1 || read_text(&t, path) || t.n < c.context + 2) {
        fprintf(stderr, "gpt: needs --context 2..1024, --batch >= 1 and a text longer than the context\n");
        free(t.token);
        return 1;
    }
    c.vocab = t.vocab;

    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt =
        dt_adamw(m, .lr = atof(example_option(argc, argv, "--lr", "0.003")), .weight_decay = 0.1, .clip_norm = 1);
    dt_optim_group(opt, "*bias|*ln_*|wte.*|wpe.*", .weight_decay = DT_ZERO);
    dt_amp        *amp = level ? dt_amp_new(m, .level = level) : NULL;
    dt_schedule   *s = dt_cosine_lr(opt, .t_max = steps > 50 ? steps - 50 : 1);
    dt_warmup(s, .steps = 50, .start = 0.02);
    dt_checkpoint *k = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .schedule = s, .amp = amp,
                                               .every_steps = 100, .signals = true) : NULL;
    if (k && dt_checkpoint_resume(k, &epoch, &step) > 0)
        fprintf(stderr, "going on from step %lld in %s\n", (long long)step, dir);
    dt_progress *p = dt_progress_new(.epochs = 1, .steps = steps, .unit = "tokens", .start_step = step,
                                     .svg = example_option(argc, argv, "--svg", NULL));
    int64_t     *x = (int64_t *)malloc((size_t)(size * c.context) * 2 * sizeof *x), *y = x + size * c.context;

    for (int stop = 0; step < steps && !stop && !dt_error(); step++) {
        for (int64_t i = 0; i < size; i++) { /* the text at random places; targets are one character further */
            int64_t at = (int64_t)(dt_rng_u64(NULL) % (uint64_t)(t.n - c.context));
            for (int64_t j = 0; j < c.context; j++) {
                x[i * c.context + j] = t.token[at + j];
                y[i * c.context + j] = t.token[at + j + 1];
            }
        }
        dt_tensor *logits = gpt(m, dt_from(x, DT_SHAPE(size, c.context), .dtype = DT_I64), &c);
        dt_tensor *loss = dt_cross_entropy(dt_reshape(logits, DT_SHAPE(size * c.context, c.vocab)),
                                           dt_from(y, DT_SHAPE(size * c.context), .dtype = DT_I64));
        if (amp)
            dt_amp_backward(amp, loss);
        else
            dt_backward(loss);
        dt_progress_step(p, dt_item(loss), .items = size * c.context, .lr = dt_lr(opt, 0),
                         .scale = amp ? dt_amp_scale(amp, 0) : 0);
        dt_step(opt);
        dt_schedule_step(s);
        if (k) stop = dt_checkpoint_tick(k, 0, step + 1);
    }
    if (k) dt_checkpoint_finish(k, 0, step);
    dt_progress_free(p);
    if (!dt_error()) {
        printf("%lld parameters, %d characters. It writes:\n", (long long)dt_model_numel(m, false), t.vocab);
        sample(m, &c, &t, atoi(example_option(argc, argv, "--sample", "400")));
    }

    dt_checkpoint_free(k);
    dt_schedule_free(s);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(t.token);
    free(x);
    return dt_check("gpt");
}
