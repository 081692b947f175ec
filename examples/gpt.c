/* A small GPT: learns to predict the next byte of a text, and generates a sample at the end. The last tenth of the data is held
   out: the loss on it is printed at the end.

   Build: cc -O2 -I.. gpt.c -o gpt -lm -lpthread            Run: ./gpt --text file.txt --steps 500 */
#define DT_IMPLEMENTATION
#include "dt_cuda.h"
#include "dt_data.h"
#include "dt_pipe.h"
#include "dt_plot.h"
#include "example_data.h"

static const char *const gpt_help =
    "gpt [options]: a small GPT learns a text byte by byte, and then writes\n"
    "    --text FILE   default dt.h: the manual and source of the toolkit\n"
    "    --tokens FILE instead of a text: 16-bit tokens below --vocab N (50257); may be a pattern, 'train-*.bin'\n"
    "    --steps N     500         --layers N   4        --dim N   128       --heads N   4       --context N   64\n"
    "    --batch N     16          --lr X       0.003    --workers N  1      --sample N   400 bytes at the end\n"
    "    --opt-level LEVEL   O0 to O3: mixed precision   --checkpoint DIR    save at SIGTERM or Ctrl-C, resume\n"
    "    --csv FILE    a log of every step               --svg FILE          the loss curve\n"
    "    --device D    cpu; cuda or cuda:N: a GPU (docs/gpu.md)\n"
    "    --data N --pipe N --tensor N   on this many processes (dt_pipe.h): --data batches at a time, the blocks on --pipe of them one\n"
    "                  behind the other, with as many micro-batches, each layer divided between --tensor; then without a sample\n";

typedef struct config {
    int layers, heads, data, pipe, tensor;
    int64_t dim, vocab, context;
} config;

static dt_tensor *gpt(dt_model *m, dt_tensor *tokens, const config *c)
{
    int64_t    t = dt_size(tokens, 1);
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = c->vocab, .dim = c->dim, .split = DT_SPLIT_IN);
    dt_tensor *position = dt_arange(0, (double)t, 1, .dtype = DT_I64, .device = dt_device_of(tokens));
    x = dt_add(x, dt_embedding(m, "wpe", position, .num = c->context, .dim = c->dim));
    for (int i = 0; i < c->layers; i++) {
        if (c->pipe > 1 && i && i * c->pipe / c->layers != (i - 1) * c->pipe / c->layers) {
            char name[16];
            snprintf(name, sizeof name, "h.%d", i);
            x = dt_stage(m, name, x);
        }
        dt_scope_begin(m, "h.%d", i);
        dt_tensor *a = dt_layernorm(m, "ln_1", x);
        x = dt_add(x, dt_multihead_attention(m, "attn", a, .heads = c->heads, .causal = true, .split = DT_SPLIT_HEADS));
        a = dt_linear(m, "mlp.fc", dt_layernorm(m, "ln_2", x), .out = 4 * c->dim, .split = DT_SPLIT_OUT);
        x = dt_add(x, dt_linear(m, "mlp.proj", dt_gelu_tanh(a), .out = c->dim, .split = DT_SPLIT_IN));
        dt_scope_end(m);
    }
    return dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = c->vocab, .no_bias = true, .split = DT_SPLIT_OUT);
}

static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* y is x shifted by one token */
{
    const config *c = (const config *)user;
    int64_t       n = dt_size(x, 0) * c->context;
    return dt_cross_entropy_parts(m, dt_reshape(gpt(m, x, c), DT_SHAPE(n, c->vocab / c->tensor)), dt_reshape(y, DT_SHAPE(n)));
}
static double held_out(dt_model *m, dt_pipeline *line, dt_loader *in, config *c)
{
    double sum = 0, n = 0, loss = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        if (line) dt_pipeline_forward(line, loss_of, c, b.x, b.y, &loss);
        else loss = dt_item(loss_of(m, b.x, b.y, c));
        sum += (double)b.n * loss;
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_model_train(m);
    return sum / n;
}

/* Generates n tokens, starting from the first token of a dataset. Prints bytes as characters, tokens as numbers. */
static void sample(dt_model *m, const dt_dataset *from, const config *c, int n, bool bytes)
{
    int64_t window[1024], len = 1;
    float  *p = (float *)malloc((size_t)c->vocab * sizeof *p), u;
    if (!p || dt_dataset_get(from, 0, window, NULL)) n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (int i = 0; i < n && !dt_error(); i++) {
        dt_tensor *y = gpt(m, dt_from(window, DT_SHAPE(1, len), .dtype = DT_I64, .device = dt_model_device(m)), c);
        y = dt_softmax(dt_cast(dt_select(dt_select(y, 0, 0), 0, len - 1), DT_F32), 0);
        dt_copy_out(y, p, (size_t)c->vocab * sizeof *p);
        dt_end();
        int next = 0;
        dt_rng_uniform(NULL, &u, 1, 0, 1);
        while (next < c->vocab - 1 && (u -= p[next]) > 0) next++;
        if (bytes)
            putchar(next);
        else
            printf("%d ", next);
        if (len == c->context) memmove(window, window + 1, (size_t)--len * sizeof *window);
        window[len++] = next;
    }
    dt_no_grad_end();
    dt_model_train(m);
    putchar('\n');
    free(p);
}

static int learn(void *args)
{
    int         argc = ((example_args *)args)->argc;
    char      **argv = ((example_args *)args)->argv;
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL),
               *tokens = example_option(argc, argv, "--tokens", NULL),
               *text = example_option(argc, argv, "--text", "dt.h");
    int64_t     steps = atoi(example_option(argc, argv, "--steps", "500")),
            size = atoi(example_option(argc, argv, "--batch", "16")), epoch = 0, step = 0;
    int         workers = atoi(example_option(argc, argv, "--workers", "1")), stop = 0;
    config      c;
    c.layers = atoi(example_option(argc, argv, "--layers", "4"));
    c.heads = atoi(example_option(argc, argv, "--heads", "4"));
    c.dim = atoi(example_option(argc, argv, "--dim", "128"));
    c.data = atoi(example_option(argc, argv, "--data", "1"));
    c.pipe = atoi(example_option(argc, argv, "--pipe", "1"));
    c.tensor = atoi(example_option(argc, argv, "--tensor", "1"));
    c.context = atoi(example_option(argc, argv, "--context", "64"));
    c.vocab = tokens ? atoi(example_option(argc, argv, "--vocab", "50257")) : 256;
    if (c.context < 2 || c.context > 1024 || c.vocab < 2 || size < 1) {
        fprintf(stderr, "gpt: --context must be 2 to 1024, --vocab 2 or more, --batch 1 or more\n");
        return 1;
    }
    if (c.pipe > 1 && (c.layers < c.pipe || size % c.pipe)) {
        fprintf(stderr, "gpt: --pipe %d needs as many --layers, and a --batch that is a multiple of it\n", c.pipe);
        return 1;
    }
    bool     many = c.data * c.pipe * c.tensor > 1;
    dt_comm *comm = many ? example_comm(argc, argv) : NULL;
    int      rank = comm ? dt_comm_rank(comm) : 0;
    if (many && !comm) return 1;
    dt_grid *grid = comm ? dt_grid_new(comm, .data = c.data, .pipe = c.pipe, .tensor = c.tensor) : NULL;
    /* an item is a window of --context tokens; windows do not overlap */
    dt_dataset *all = tokens ? dt_tokens_open(tokens, .length = c.context, .nbytes = 2, .vocab = c.vocab)
                             : dt_tokens_open(text, .length = c.context, .nbytes = 1);
    int64_t     n = dt_dataset_len(all), last = (n + 9) / 10;
    if (n == 1)
        dt_fail(DT_ERR_ARG, "the text has one window of %lld tokens, expected two or more; use a longer text or a smaller "
                            "--context", (long long)c.context);
    dt_dataset *train = dt_dataset_range(all, 0, n - last), *held = dt_dataset_range(all, n - last, last);
    dt_device  *dev = example_device(argc, argv, rank, rank);
    dt_loader  *in =
        dt_loader_new(train, .batch = size, .shuffle = true, .drop_last = many, .seed = 1, .rank = dt_grid_rank(grid, DT_AXIS_DATA),
                      .world = dt_grid_size(grid, DT_AXIS_DATA), .workers = workers, .device = dev);
    dt_loader  *exam = dt_loader_new(held, .batch = size, .drop_last = many, .rank = dt_grid_rank(grid, DT_AXIS_DATA),
                                     .world = dt_grid_size(grid, DT_AXIS_DATA), .workers = workers, .device = dev);

    dt_model     *m = dt_model_new(.seed = 1, .device = dev);
    dt_optimizer *opt =
        dt_adamw(m, .lr = atof(example_option(argc, argv, "--lr", "0.003")), .weight_decay = 0.1, .clip_norm = 1);
    dt_optimizer_add_group(opt, "*bias|*ln_*|wte.*|wpe.*", .weight_decay = DT_ZERO);
    dt_amp        *amp = level ? dt_amp_new(m, .level = level) : NULL;
    dt_pipeline   *line = grid ? dt_hybrid_new(m, grid, .amp = amp) : NULL;
    dt_scheduler   *s = dt_cosine_annealing_lr(opt, .t_max = steps > 50 ? steps - 50 : 1);
    dt_warmup(s, .steps = 50, .start = 0.02);
    dt_checkpoint *k = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .scheduler = s, .amp = amp,
                                               .every_steps = 100, .signals = true) : NULL;
    if (k) dt_loader_checkpoint(in, k);
    if (k && dt_checkpoint_resume(k, &epoch, &step) > 0 && !rank)
        fprintf(stderr, "resuming from step %lld in %s\n", (long long)step, dir);
    dt_progress *p = dt_progress_new(.epochs = 1, .steps = steps, .unit = "tokens", .quiet = rank > 0,
                                     .csv = rank ? NULL : example_option(argc, argv, "--csv", NULL),
                                     .svg = rank ? NULL : example_option(argc, argv, "--svg", NULL), .start_step = step);

    while (step < steps && !stop && !dt_error()) /* as many epochs as --steps needs */
        for (dt_batch b; step < steps && !stop && dt_loader_next(in, &b); ) {
            dt_tensor *loss = line ? NULL : loss_of(m, b.x, b.y, &c);
            double     value = 0;
            if (line)
                dt_pipeline_backward(line, loss_of, &c, b.x, b.y, &value);
            else if (amp)
                dt_amp_backward(amp, loss);
            else
                dt_backward(loss);
            dt_progress_step(p, line ? value : dt_item(loss), .items = (double)(b.n * c.context * c.data), .lr = dt_optimizer_lr(opt, 0),
                             .scale = amp ? dt_amp_scale(amp, 0) : 0);
            dt_step(opt);
            dt_scheduler_step(s);
            step++;
            if (k) stop = dt_checkpoint_tick(k, dt_loader_epoch(in), step);
        }
    if (k) dt_checkpoint_finish(k, dt_loader_epoch(in), step);
    dt_progress_free(p);
    char report[256];
    if (!dt_error() && !rank && dt_loader_report(in, 0, report, sizeof report)) fprintf(stderr, "%s\n", report);
    double rest = held_out(m, line, exam, &c);
    if (!dt_error() && line && !rank)
        printf("%lld parameters, data %d x pipe %d x tensor %d, loss %.4f on the held-out data\n",
               (long long)dt_model_numel(m, false), c.data, c.pipe, c.tensor, rest);
    if (!dt_error() && !line) {
        printf("%lld parameters, loss %.4f on the held-out data. Sample:\n",
               (long long)dt_model_numel(m, false), rest);
        sample(m, held, &c, atoi(example_option(argc, argv, "--sample", "400")), !tokens);
    }

    dt_checkpoint_free(k);
    dt_pipeline_free(line);
    dt_scheduler_free(s);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(held);
    dt_dataset_free(all);
    dt_grid_free(grid);
    if (comm) dt_comm_free(comm);
    return dt_check("gpt");
}
int main(int argc, char **argv)
{
    example_args a = { argc, argv, NULL };
    int          done = example_options(argc, argv, gpt_help);
    if (done >= 0) return done;
    int          n = atoi(example_option(argc, argv, "--data", "1")) * atoi(example_option(argc, argv, "--pipe", "1")) *
            atoi(example_option(argc, argv, "--tensor", "1"));
    int          rc = n > 1 ? dt_spawn(n, learn, &a) : learn(&a);
    if (rc < 0) fprintf(stderr, "gpt: %s\n", dt_comm_error(NULL));
    return rc != 0;
}
