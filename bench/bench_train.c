/* Training and inference beside PyTorch, in one run: make bench-train

       bench_train [--threads 1,2] [--rounds N] [--models mlp,convnet,...] [--work train,infer] [--python PATH]

   For each model this program, PyTorch as its users run it ("default") and in its fastest setting ("best") are three
   processes that do the same steps on the same data. First all say the losses of five steps, which must agree. Then
   they take turns of half a second each; the figure is the median of the ratios of the turns. */
#define DT_IMPLEMENTATION
#include "dt_nn.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "bench.h"

enum { MAX_ROUNDS = 64, LOSSES = 5 };

/* ---- the nets, with PyTorch's order of creation */
static dt_tensor *mlp(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "0", x, .out = 512, .act = DT_ACT_RELU);
    x = dt_linear(m, "2", x, .out = 512, .act = DT_ACT_RELU);
    return dt_linear(m, "4", x, .out = 10);
}
static dt_tensor *convnet(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "0", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "1", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_conv2d(m, "4", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "5", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "9", dt_flatten(x), .out = 10);
}
static dt_tensor *block(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1 || dt_dim(x, 1) != out) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = dt_batchnorm2d(m, "downsample.1", skip);
    }
    return dt_batchnorm2d(m, "bn2", y, .add = skip, .act = DT_ACT_RELU);
}
static dt_tensor *resnet(dt_model *m, dt_tensor *x, int stages, int blocks, int width)
{
    x = dt_conv2d(m, "conv1", x, .out = width, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int i = 0; i < stages * blocks; i++) {
        dt_scope(m, "layers.%d", i);
        x = block(m, x, width << i / blocks, i && i % blocks == 0 ? 2 : 1);
        dt_scope_end(m);
    }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
}
static dt_tensor *resnet20(dt_model *m, dt_tensor *x) { return resnet(m, x, 3, 3, 16); }
static dt_tensor *resnet18(dt_model *m, dt_tensor *x) { return resnet(m, x, 4, 2, 64); }
static dt_tensor *heads(dt_tensor *x, int64_t n)
{
    dt_shape s = dt_shape_of(x);
    return dt_transpose(dt_reshape(x, DT_SHAPE(s.dim[0], s.dim[1], n, s.dim[2] / n)), 1, 2);
}
static dt_tensor *gpt(dt_model *m, dt_tensor *tokens)
{
    int64_t    t = dt_dim(tokens, 1), d = 256;
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = 512, .dim = d);
    x = dt_add(x, dt_embedding(m, "wpe", dt_arange(0, (double)t, 1, .dtype = DT_I64), .num = t, .dim = d));
    for (int i = 0; i < 4; i++) {
        dt_scope(m, "h.%d", i);
        dt_tensor *a = dt_linear(m, "attn.qkv", dt_layernorm(m, "ln_1", x), .out = 3 * d);
        a = dt_attention(heads(dt_narrow(a, 2, 0, d), 4), heads(dt_narrow(a, 2, d, d), 4),
                         heads(dt_narrow(a, 2, 2 * d, d), 4), .causal = true);
        a = dt_reshape(dt_transpose(a, 1, 2), dt_shape_of(x));
        x = dt_add(x, dt_linear(m, "attn.proj", a, .out = d));
        a = dt_gelu_tanh(dt_linear(m, "fc", dt_layernorm(m, "ln_2", x), .out = 4 * d));
        x = dt_add(x, dt_linear(m, "proj", a, .out = d));
        dt_scope_end(m);
    }
    x = dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = 512, .no_bias = true);
    return dt_reshape(x, DT_SHAPE(-1, 512));
}

typedef struct work {
    const char *name, *unit;
    dt_tensor *(*net)(dt_model *, dt_tensor *);
    dt_shape    shape; /* of x */
    int64_t     items;
    const char *mode;          /* of the first peer: default, or bf16 */
    double      least[2];      /* ratios asked for: over default, over best */
} work;

/* ---- our side: the same protocol as peer_train.py */
typedef struct worker {
    const work   *w;
    dt_model     *m;
    dt_optimizer *opt;
    dt_amp       *amp;
    dt_tensor    *x, *y;
    int           infer;
} worker;
static void make_data(worker *k)
{
    dt_rng  r;
    int64_t n = k->w->items, label[4096], token[8 * 129];
    float   u[8 * 129];
    dt_rng_seed(&r, 2);
    for (int64_t i = 0; i < n; i++) label[i] = i % 10;
    if (!strcmp(k->w->name, "gpt")) {
        int64_t x[1024];
        dt_rng_uniform(&r, u, 8 * 129, 0, 1);
        for (int i = 0; i < 8 * 129; i++) token[i] = (int64_t)(u[i] * 512);
        for (int i = 0; i < 1024; i++) {
            x[i] = token[i / 128 * 129 + i % 128];
            label[i] = token[i / 128 * 129 + i % 128 + 1];
        }
        k->x = dt_keep(dt_from(x, k->w->shape, .dtype = DT_I64));
    } else {
        k->x = dt_keep(dt_normal(0, 1, k->w->shape, .rng = &r));
    }
    k->y = dt_keep(dt_from(label, DT_SHAPE(n), .dtype = DT_I64));
}
static double one_step(worker *k)
{
    double value;
    if (k->infer) {
        dt_tensor *y = k->w->net(k->m, k->x);
        value = dt_item(dt_select(dt_select(y, 0, 0), 0, 0));
        dt_end();
        return value;
    }
    dt_tensor *l = dt_cross_entropy(k->w->net(k->m, k->x), k->y);
    if (k->amp)
        dt_amp_backward(k->amp, l);
    else
        dt_backward(l);
    value = dt_item(l);
    dt_step(k->opt);
    return value;
}
static int run_worker(const work *w, int threads, int infer)
{
    worker k = { w, dt_model_new(.seed = 1), NULL, NULL, NULL, NULL, infer };
    char   line[64];
    dt_set_threads(threads);
    k.opt = strcmp(w->name, "gpt") ? dt_sgd(k.m, .lr = 0.01, .momentum = 0.9) : dt_adamw(k.m, .lr = 3e-4);
    if (!strcmp(w->mode, "bf16")) k.amp = dt_amp_new(k.m, .level = "O2", .dtype = DT_BF16);
    make_data(&k);
    if (infer) {
        dt_eval(k.m);
        dt_no_grad_begin();
    }
    for (int i = 0; i < LOSSES; i++) {
        double value = 0;
        if (infer) {
            dt_tensor *y = w->net(k.m, k.x);
            value = sqrt(dt_item(dt_sum(dt_mul(y, y))));
            dt_end();
        } else {
            value = one_step(&k);
        }
        printf("loss %.9g\n", value);
        fflush(stdout);
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double t = now();
        int    n = 0;
        while (now() - t < 0.5) one_step(&k), n++;
        printf("rate %.9g\n", (double)n * (double)w->items / (now() - t));
        fflush(stdout);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("memory %.3f\n", (double)u.ru_maxrss / 1024);
    return dt_check("bench_train");
}

/* ---- the driver */
typedef struct side {
    pid_t pid;
    FILE *in, *out;
    double first; /* seconds from its start to its first step's end */
    double loss[LOSSES], rate[MAX_ROUNDS], memory;
} side;
static int start(side *s, char **argv, int keep_pages)
{
    int    to[2], from[2];
    double t = now();
    if (pipe(to) || pipe(from)) return -1;
    s->pid = fork();
    if (s->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        for (int i = 3; i < 64; i++) close(i);
        if (keep_pages) {
            setenv("MALLOC_TRIM_THRESHOLD_", "4294967296", 1);
            setenv("MALLOC_MMAP_THRESHOLD_", "4294967296", 1);
        }
        execvp(argv[0], argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    s->in = fdopen(to[1], "w");
    s->out = fdopen(from[0], "r");
    char line[128];
    for (int i = 0; i < LOSSES; i++) {
        if (!s->in || !s->out || !fgets(line, sizeof line, s->out) || sscanf(line, "loss %lf", &s->loss[i]) != 1)
            return -1;
        if (i == 0) s->first = now() - t;
    }
    return fgets(line, sizeof line, s->out) && !strcmp(line, "ready\n") ? 0 : -1;
}
static int turn(side *s, int round)
{
    char line[128];
    fputs("go\n", s->in);
    fflush(s->in);
    return fgets(line, sizeof line, s->out) && sscanf(line, "rate %lf", &s->rate[round]) == 1 ? 0 : -1;
}
static void finish(side *s)
{
    char line[128];
    int  status;
    if (s->in) fclose(s->in);
    if (s->out && fgets(line, sizeof line, s->out)) sscanf(line, "memory %lf", &s->memory);
    if (s->out) fclose(s->out);
    if (s->pid > 0) waitpid(s->pid, &status, 0);
}
static double middle(const double *v, int n) /* leaves v as it is */
{
    double s[MAX_ROUNDS];
    memcpy(s, v, (size_t)n * sizeof *s);
    return median(s, n);
}
static double ratio_of(const side *a, const side *b, int n)
{
    double r[MAX_ROUNDS];
    for (int i = 0; i < n; i++) r[i] = a->rate[i] / b->rate[i];
    return median(r, n);
}
static int compare(const work *w, int threads, int infer, int rounds, const char *self, const char *python)
{
    char         count[16], mode[3][16], peer[512];
    const char  *what = infer ? "infer" : "train";
    static side  side3[3];
    int          bad = 0, bf16 = !strcmp(w->mode, "bf16"), nsides = bf16 ? 2 : 3;
    snprintf(count, sizeof count, "%d", threads);
    snprintf(peer, sizeof peer, "bench/peer_train.py");
    snprintf(mode[1], sizeof mode[1], "%s", bf16 ? "bf16" : "default");
    snprintf(mode[2], sizeof mode[2], "best");
    memset(side3, 0, sizeof side3);
    for (int i = 0; i < nsides && !bad; i++) {
        char *ours[] = {
            (char *)self, (char *)"--worker", (char *)w->name, (char *)w->mode, count, (char *)what, NULL
        };
        char *theirs[] = { (char *)python, peer, (char *)w->name, count, mode[i], (char *)what, NULL };
        bad = start(&side3[i], i ? theirs : ours, i == 2);
        if (bad) fprintf(stderr, "bench_train: %s: side %d did not start\n", w->name, i);
    }
    for (int k = 0; k < LOSSES && !bad; k++)
        for (int i = 1; i < nsides && !bad; i++)
            if (!(fabs(side3[0].loss[k] - side3[i].loss[k]) <= (bf16 ? 3e-2 : 2e-4) * (1 + fabs(side3[i].loss[k])))) {
                fprintf(stderr, "bench_train: %s: step %d: dt %.9g, PyTorch %.9g: not the same work\n", w->name, k,
                        side3[0].loss[k], side3[i].loss[k]);
                bad = 1;
            }
    for (int r = 0; r < rounds + 1 && !bad; r++) /* the first round warms up */
        for (int i = 0; i < nsides && !bad; i++) {
            struct timespec pause = { 0, 200000000 }; /* the other side's threads go to sleep */
            nanosleep(&pause, NULL);
            bad = turn(&side3[(i + r) % nsides], r ? r - 1 : 0);
        }
    for (int i = 0; i < nsides; i++) finish(&side3[i]);
    if (bad) return 1;
    for (int i = 1; i < nsides; i++)
        printf("%s%s-%s-%dt: dt %.0f %s, PyTorch %s %.0f %s, ratio %.2f%s\n", w->name, bf16 ? "-bf16" : "", what,
               threads, middle(side3[0].rate, rounds), w->unit, mode[i], middle(side3[i].rate, rounds), w->unit,
               ratio_of(&side3[0], &side3[i], rounds),
               ratio_of(&side3[0], &side3[i], rounds) < w->least[i - 1] ? "  (below what is asked for)" : "");
    printf("%s%s-%s-%dt: peak memory dt %.0f MiB, PyTorch %.0f MiB, ratio %.2f; first step after %.0f ms, PyTorch %.0f "
           "ms\n",
           w->name, bf16 ? "-bf16" : "", what, threads, side3[0].memory, side3[1].memory,
           side3[0].memory / side3[1].memory, 1e3 * side3[0].first, 1e3 * side3[1].first);
    fflush(stdout);
    return 0;
}

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}
int main(int argc, char **argv)
{
    const work all[] = {
        { "mlp", "images/s", mlp, DT_SHAPE(128, 784), 128, "default", { 1.3, 1.2 } },
        { "convnet", "images/s", convnet, DT_SHAPE(100, 1, 28, 28), 100, "default", { 2.0, 1.3 } },
        { "resnet20", "images/s", resnet20, DT_SHAPE(128, 3, 32, 32), 128, "default", { 1.6, 1.3 } },
        { "resnet18", "images/s", resnet18, DT_SHAPE(32, 3, 32, 32), 32, "default", { 1.15, 1.1 } },
        { "gpt", "tokens/s", gpt, DT_SHAPE(8, 128), 1024, "default", { 1.4, 1.2 } },
        { "convnet", "images/s", convnet, DT_SHAPE(100, 1, 28, 28), 100, "bf16", { 5, 0 } },
    };
    const int n = (int)(sizeof all / sizeof *all);
    if (argc == 6 && !strcmp(argv[1], "--worker")) {
        for (int i = 0; i < n; i++)
            if (!strcmp(all[i].name, argv[2]) && !strcmp(all[i].mode, argv[3]))
                return run_worker(&all[i], atoi(argv[4]), !strcmp(argv[5], "infer"));
        return 1;
    }
    const char *threads = option(argc, argv, "--threads", "1,2"), *models = option(argc, argv, "--models", NULL);
    const char *works = option(argc, argv, "--work", "train,infer");
    int         rounds = atoi(option(argc, argv, "--rounds", "7")), failed = 0;
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 7;
    signal(SIGPIPE, SIG_IGN);
    for (int t = 1; t <= 2; t++)
        for (int infer = 0; infer < 2; infer++)
            for (int i = 0; i < n; i++) {
                char name[32];
                snprintf(name, sizeof name, "%s%s", all[i].name, strcmp(all[i].mode, "bf16") ? "" : "-bf16");
                if (!strchr(threads, '0' + t) || !strstr(works, infer ? "infer" : "train")) continue;
                if (models && !strstr(models, name)) continue;
                if (infer && !strcmp(all[i].mode, "bf16")) continue;
                failed |= compare(&all[i], t, infer, rounds, argv[0], option(argc, argv, "--python", "python3"));
            }
    return failed;
}
