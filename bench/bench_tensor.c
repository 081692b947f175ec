/* Layers divided between two ranks beside two processes that do not communicate: make bench-tensor

       bench_tensor [--rounds N] [--batch N]

   The net is a GPT of 4 layers, width 256, 4 heads, 128 tokens, vocabulary 512, AdamW; a rank has one thread.
     tensor 2     two ranks, each with a half of every layer, one batch
     apart        two processes, each with the whole net and a batch of its own: what both cores reach together is the bound
     data 2 x tensor 2, pipe 2 x tensor 2   four ranks on the same cores
   First the losses of five steps are compared: all near those of the whole net. Target: tensor 2 reaches 0.8 of the two apart. The
   sides take turns; a ratio is the median of the rounds' ratios. */
#define _GNU_SOURCE
#include "dt_pipe.h"

#include <math.h>
#include <signal.h>

#include "sides.h"

enum { LAYERS = 4, DIM = 256, HEADS = 4, LENGTH = 128, VOCAB = 512, MOST_BATCH = 64 };
typedef struct kind {
    const char *name;
    int         data, pipe, tensor; /* data 0: two processes apart */
} kind;
static const kind kinds[] = { { "tensor 2", 1, 1, 2 }, { "apart", 0, 1, 1 }, { "data 2 x tensor 2", 2, 1, 2 }, { "pipe 2 x tensor 2", 1, 2, 2 } };
enum { KINDS = sizeof kinds / sizeof *kinds };

static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    const kind *k = (const kind *)user;
    dt_tensor  *h = dt_embedding(m, "wte", x, .num = VOCAB, .dim = DIM, .split = DT_SPLIT_IN);
    h = dt_add(h, dt_embedding(m, "wpe", dt_arange(0, LENGTH, 1, .dtype = DT_I64), .num = LENGTH, .dim = DIM));
    for (int i = 0; i < LAYERS; i++) {
        if (i == LAYERS / 2 && k->pipe > 1) h = dt_stage(m, "second", h);
        dt_scope_begin(m, "h.%d", i);
        dt_tensor *a = dt_layernorm(m, "ln_1", h);
        h = dt_add(h, dt_multihead_attention(m, "attn", a, .heads = HEADS, .causal = true, .split = DT_SPLIT_HEADS));
        a = dt_linear(m, "fc", dt_layernorm(m, "ln_2", h), .out = 4 * DIM, .split = DT_SPLIT_OUT);
        h = dt_add(h, dt_linear(m, "proj", dt_gelu_tanh(a), .out = DIM, .split = DT_SPLIT_IN));
        dt_scope_end(m);
    }
    h = dt_linear(m, "head", dt_layernorm(m, "ln_f", h), .out = VOCAB, .no_bias = true, .split = DT_SPLIT_OUT);
    return dt_cross_entropy_parts(m, dt_reshape(h, DT_SHAPE(-1, dt_size(h, 2))), dt_reshape(y, DT_SHAPE(-1)));
}
static int batch = 8; /* sequences */
static dt_tensor *tokens(int shift, int first, int n)
{
    static int64_t t[MOST_BATCH * LENGTH];
    for (int i = 0, at = first * LENGTH + shift; i < n * LENGTH; i++, at++) t[i] = ((int64_t)at * 7919 + at % 13) % VOCAB;
    return dt_keep(dt_from(t, DT_SHAPE(n, LENGTH), .dtype = DT_I64));
}
static int serve(void *arg)
{
    const kind   *k = (const kind *)arg;
    dt_comm      *c = dt_comm_init();
    int           rank = dt_comm_rank(c), data = k->data ? k->data : 1, n = batch / data;
    char          line[64];
    dt_set_num_threads(1);
    dt_grid      *g = k->data ? dt_grid_new(c, .data = k->data, .pipe = k->pipe, .tensor = k->tensor) : NULL;
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adamw(m, .lr = 3e-4);
    dt_pipeline  *p = g ? dt_hybrid_new(m, g, .micro = k->pipe > 1 ? 4 : 1) : NULL;
    int           first = g ? dt_grid_rank(g, DT_AXIS_DATA) * n : 0;
    dt_tensor    *x = tokens(0, first, n), *y = tokens(1, first, n);
    double        each = 0, loss = 0;
    if (rank == 0) printf("begin\n"), fflush(stdout);
    for (int64_t i = -LOSSES, until = 0;; i++) {
        if (i == 0) {
            if (rank == 0 && until == 0) printf("ready\n"), fflush(stdout);
            until = 0;
            if (rank == 0 && fgets(line, sizeof line, stdin)) until = (int64_t)(1.0 / each) + 2;
            dt_comm_broadcast(c, &until, 1, DT_COMM_I64, 0);
            if (!until || dt_error()) break;
            dt_comm_barrier(c);
            each = now();
        }
        double t = now();
        if (p) dt_pipeline_backward(p, loss_of, (void *)(uintptr_t)k, x, y, &loss);
        else {
            dt_tensor *l = loss_of(m, x, y, (void *)(uintptr_t)k);
            loss = dt_item(l);
            dt_backward(l);
        }
        dt_step(opt);
        if (i < 0) {
            each = now() - t;
            if (rank == 0) printf("loss %.17g\n", loss), fflush(stdout);
            continue;
        }
        if (i + 1 < until) continue;
        dt_comm_barrier(c);
        each = (now() - each) / (double)until;
        double rate = (double)(batch * LENGTH * (k->data ? 1 : 2)) / each;
        if (rank == 0) printf("rate %.9g\n", rate), fflush(stdout);
        i = -1;
    }
    if (rank == 0) printf("memory 0\n");
    dt_free(x), dt_free(y);
    dt_pipeline_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_grid_free(g);
    dt_comm_free(c);
    return dt_check("bench_tensor");
}
int main(int argc, char **argv)
{
    static side s[KINDS];
    int         rounds = atoi(option(argc, argv, "--rounds", "11")), bad = 0;
    batch = atoi(option(argc, argv, "--batch", "8"));
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 11;
    if (batch < 4 || batch > MOST_BATCH || batch % 4) batch = 8;
    signal(SIGPIPE, SIG_IGN);
    if (argc == 5 && !strcmp(argv[1], "--side")) {
        const kind *k = &kinds[atoi(argv[2]) % KINDS];
        return dt_spawn(k->data ? k->data * k->pipe * k->tensor : 2, serve, (void *)(uintptr_t)k);
    }
    for (int i = 0; i < KINDS && !bad; i++) {
        char which[16], n[16];
        snprintf(which, sizeof which, "%d", i);
        snprintf(n, sizeof n, "%d", batch);
        char *own[] = { argv[0], (char *)"--side", which, (char *)"--batch", n, NULL };
        bad = start(&s[i], own, 0);
        if (bad) fprintf(stderr, "bench_tensor: %s did not start\n", kinds[i].name);
    }
    for (int i = 0; i < KINDS && !bad; i++)
        for (int k = 0; k < LOSSES; k++) /* AdamW enlarges rounding */
            if (!(fabs(s[i].loss[k] - s[1].loss[k]) <= 2e-3 * (1 + fabs(s[1].loss[k])))) {
                fprintf(stderr, "bench_tensor: step %d: %s %.9g, the whole net %.9g: expected nearly the same loss\n", k, kinds[i].name,
                        s[i].loss[k], s[1].loss[k]);
                bad = 1;
            }
    for (int r = 0; r < rounds + 1 && !bad; r++) { /* the first round is a warm-up */
        struct timespec pause = { 0, 100 * NS_PER_MS };
        for (int i = 0; i < KINDS && !bad; i++) {
            nanosleep(&pause, NULL);
            bad = turn(&s[(i + r) % KINDS], r ? r - 1 : 0);
        }
    }
    for (int i = 0; i < KINDS; i++) finish(&s[i]);
    if (bad) return fprintf(stderr, "bench_tensor: a side failed\n"), 1;
    for (int i = 0; i < KINDS; i++) {
        double ratio = ratio_of(&s[i], &s[1], rounds);
        if (i != 1)
            printf("gpt %s: dt %.0f tokens/s, two processes apart %.0f tokens/s, ratio %.3f%s\n", kinds[i].name, middle(s[i].rate, rounds),
                   middle(s[1].rate, rounds), ratio, i == 0 && ratio < 0.8 ? "  (below the target)" : "");
    }
    return 0;
}
