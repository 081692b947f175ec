/* An LSTM that learns a text byte by byte, and then writes some. Its state passes from chunk to chunk (truncated backpropagation).

   Build: cc -O2 -I.. lstm.c -o lstm -lm -lpthread            Run: ./lstm --text file.txt --steps 1000 */
#define DT_IMPLEMENTATION
#include "dt_layers.h"
#include "options.h"

static const char *const lstm_help =
    "lstm [options]: an LSTM learns a text byte by byte, and then writes\n"
    "    --text FILE   README.md   --steps N   300        --hidden N  128       --layers N  1\n"
    "    --gru         a GRU       --batch N   16         --chunk N   32        --lr X      0.005\n"
    "    --sample N    200 bytes at the end\n";

enum { VOCAB = 256, MOST = 1 << 20 };

typedef struct config {
    int64_t hidden, layers;
    bool    gru;
} config;
typedef struct state { /* of the last chunk; NULL: zero */
    dt_tensor *h, *c;
} state;

static void state_set(state *s, dt_tensor *h, dt_tensor *c) /* keeps the values, without their tape */
{
    dt_free(s->h);
    dt_free(s->c);
    s->h = h ? dt_keep(dt_detach(h)) : NULL;
    s->c = c ? dt_keep(dt_detach(c)) : NULL;
}
/* tokens (b, t) -> scores (b t, VOCAB) */
static dt_tensor *net(dt_model *m, dt_tensor *tokens, const config *c, state *s, state *last)
{
    dt_tensor *x = dt_embedding(m, "bytes", tokens, .num = VOCAB, .dim = 64);
    last->c = NULL;
    if (c->gru) x = dt_gru(m, "rnn", x, .hidden = c->hidden, .layers = (int)c->layers, .batch_first = true, .h = s->h, .h_out = &last->h);
    else x = dt_lstm(m, "rnn", x, .hidden = c->hidden, .layers = (int)c->layers, .batch_first = true, .h = s->h, .c = s->c,
                     .h_out = &last->h, .c_out = &last->c);
    return dt_linear(m, "out", dt_reshape(x, DT_SHAPE(-1, c->hidden)), .out = VOCAB);
}
static void sample(dt_model *m, const config *c, int64_t first, int n)
{
    state s = { NULL, NULL }, last;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (int i = 0; i < n; i++) {
        float      p[VOCAB], u;
        dt_tensor *y = dt_softmax(net(m, dt_from(&first, DT_SHAPE(1, 1), .dtype = DT_I64), c, &s, &last), 1);
        if (dt_copy_out(y, p, sizeof p) != DT_OK) break;
        state_set(&s, last.h, last.c);
        dt_rng_uniform(dt_rng_default(), &u, 1, 0, 1);
        for (first = 0; first < VOCAB - 1 && (u -= p[first]) > 0; first++) continue;
        putchar(first == '\n' || (first >= ' ' && first < 127) ? (int)first : '?');
        dt_end();
    }
    putchar('\n');
    dt_no_grad_end();
    state_set(&s, NULL, NULL);
}
static int64_t number(int argc, char **argv, const char *name, const char *otherwise, int64_t most)
{
    int64_t n = strtoll(example_option(argc, argv, name, otherwise), NULL, 10);
    if (n >= 1 && n <= most) return n;
    fprintf(stderr, "lstm: %s must be 1 to %lld\n", name, (long long)most);
    exit(2);
}
int main(int argc, char **argv)
{
    static unsigned char text[MOST];
    int         done = example_options(argc, argv, lstm_help);
    if (done >= 0) return done;
    const char *path = example_option(argc, argv, "--text", "README.md");
    FILE       *f = fopen(path, "rb");
    int64_t     n = f ? (int64_t)fread(text, 1, sizeof text, f) : 0;
    if (f) fclose(f);
    config  c = { number(argc, argv, "--hidden", "128", 4096), number(argc, argv, "--layers", "1", 16), example_flag(argc, argv, "--gru") };
    int64_t steps = number(argc, argv, "--steps", "300", 1 << 30), batch = number(argc, argv, "--batch", "16", 1024);
    int64_t chunk = number(argc, argv, "--chunk", "32", 1024), part = n / batch; /* each sequence reads its part of the text */
    if (part <= chunk) {
        fprintf(stderr, "lstm: %s has %lld bytes; it needs more than --batch times --chunk, %lld\n", path, (long long)n,
                (long long)(batch * chunk));
        return 2;
    }
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adam(m, .lr = atof(example_option(argc, argv, "--lr", "0.005")), .clip_norm = 1);
    state         s = { NULL, NULL }, last;
    int64_t      *x = (int64_t *)malloc((size_t)(batch * chunk) * sizeof *x), *y = (int64_t *)malloc((size_t)(batch * chunk) * sizeof *y);
    double        first = 0, loss = 0;
    int64_t       at = 0;
    for (int64_t step = 0; step < steps && x && y; step++, at += chunk) {
        if (at + chunk >= part) { /* from the beginning again */
            at = 0;
            state_set(&s, NULL, NULL);
        }
        for (int64_t b = 0; b < batch; b++)
            for (int64_t i = 0; i < chunk; i++) {
                x[b * chunk + i] = text[b * part + at + i];
                y[b * chunk + i] = text[b * part + at + i + 1];
            }
        dt_tensor *l = dt_cross_entropy(net(m, dt_from(x, DT_SHAPE(batch, chunk), .dtype = DT_I64), &c, &s, &last),
                                        dt_from(y, DT_SHAPE(batch * chunk), .dtype = DT_I64));
        dt_backward(l);
        loss = dt_item(l);
        if (step == 0) first = loss;
        if (step % 50 == 0) printf("step %lld: loss %.3f\n", (long long)step, loss);
        state_set(&s, last.h, last.c);
        dt_step(opt);
    }
    printf("loss %.3f, at the start %.3f\n", loss, first);
    sample(m, &c, text[0], (int)number(argc, argv, "--sample", "200", 100000));
    state_set(&s, NULL, NULL);
    free(x);
    free(y);
    dt_optimizer_free(opt);
    dt_model_free(m);
    return dt_check("lstm") || !(loss < first);
}
