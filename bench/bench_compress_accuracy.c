/* Trains with each method of .compress and without, and compares the accuracy: make bench-compress-accuracy

       bench_compress_accuracy [--data data/digits] [--seeds 5] [--steps 348] [--batch 25] [--methods none,f16,...] [--lr 0.01]

   The conv net of examples/mnist.c, two ranks that are processes, the same seeds, data and number of steps for each method. It is
   no timing. A row: test accuracy in percent, mean of the seeds and its standard error; the difference to dense, mean and standard
   error of the seeds' differences; and a verdict: whether the difference is within one standard error and 1 %. The optimiser is SGD with momentum
   0.9; with dgc it has none, since that has the momentum inside. topk sends 1 %, randomk 10 %, dgc 1 % after a third of the steps of warm-up, qsgd 8 bits,
   powersgd rank 2 from step 10 on. (With a tenth of that randomk and dgc keep what they have for longer than the few hundred steps on the digits.)

   A verdict is given under the conditions for which a method was published. Error feedback is analysed for SGD without momentum (Stich et
   al. 2018, Karimireddy et al. 2019). The rows -plain are that, with ten times the rate: what momentum 0.9 adds up to. A rate that falls,
   lr / (1 + t/1000), is theirs, too. With momentum an update goes on for about ten steps after its gradient, which the residual may have
   delayed for longer already: topk, randomk, sign and onebit with momentum have no verdict. Deep gradient compression is for trainings of
   many epochs, the first of which are warm-up (Lin et al. 2018): dgc has a verdict from three epochs on. With --data data/fashion
   (make data): Fashion-MNIST. */
#define DT_IMPLEMENTATION
#include "../dt_dist.h"
#include "../examples/example_data.h"

#include "bench.h"

#include <math.h>
#include <sys/mman.h>

enum { SEEDS = 20, ROWS = 15, NEVER = 1 << 30 };
#define with_momentum "its paper has no momentum: see its row -plain"
static const struct row {
    const char *name, *kind;
    bool        plain;  /* no momentum, a falling rate */
    double      epochs; /* from so many on there is a verdict; else ... */
    const char *why;    /* there is none */
} rows[ROWS] = { { "none", "none", false, 0, NULL },
                 { "f16", "f16", false, 0, NULL },
                 { "bf16", "bf16", false, 0, NULL },
                 { "topk", "topk", false, NEVER, with_momentum },
                 { "randomk", "randomk", false, NEVER, with_momentum },
                 { "dgc", "dgc", false, 3, "its paper trains for more epochs, the first of which are warm-up" },
                 { "sign", "sign", false, NEVER, with_momentum },
                 { "onebit", "onebit", false, NEVER, with_momentum },
                 { "qsgd", "qsgd", false, 0, NULL },
                 { "powersgd", "powersgd", false, 0, NULL },
                 { "none-plain", "none", true, 0, NULL },
                 { "topk-plain", "topk", true, 0, NULL },
                 { "randomk-plain", "randomk", true, 0, NULL },
                 { "sign-plain", "sign", true, 0, NULL },
                 { "onebit-plain", "onebit", true, 0, NULL } };
typedef struct run {
    const char *data, *method;
    int         seed, batch;
    bool        plain;
    double      lr, right, ratio; /* right: of the test images; ratio: bytes without and with the method */
    double      epochs;
    int64_t     steps;
} run;

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_conv2d(m, "conv2", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn2", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}
static double test(dt_model *m, dt_ddp *d, dt_loader *in)
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        dt_tensor *hit = dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y);
        right += dt_item(dt_sum(dt_cast(hit, DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    return dt_ddp_mean(d, n > 0 ? right / n : 0, n);
}
static int train(void *arg)
{
    run        *r = (run *)arg;
    dt_comm    *c = dt_comm_init();
    int         rank = dt_comm_rank(c), world = dt_comm_size(c);
    dt_dataset *learn = NULL, *exam = NULL;
    double      mean = 0, std = 1;
    dt_compress z;
    memset((void *)&z, 0, sizeof z);
    z.kind = r->method;
    dt_set_num_threads(1);
    if (example_has_digits(r->data)) example_digits(r->data, 1, 28, 3, &learn, &exam);
    else learn = dt_mnist_open(r->data, DT_TRAIN), exam = dt_mnist_open(r->data, DT_TEST);
    dt_dataset_mean_std(learn, &mean, &std, 1);
    dt_loader *in = dt_loader_new(learn, .batch = r->batch, .shuffle = true, .seed = (uint64_t)r->seed, .rank = rank,
                                  .world = world, .mean = { mean }, .std = { std });
    dt_loader *out = dt_loader_new(exam, .batch = 500, .rank = rank, .world = world, .no_pad = true, .mean = { mean },
                                   .std = { std });
    bool       dgc = !strcmp(r->method, "dgc");
    z.warmup = dgc ? r->steps / 3 : 0;
    z.ratio = !strcmp(r->method, "randomk") ? 0.1 : 0.01;
    z.rank = 2;
    z.start = !strcmp(r->method, "powersgd") ? 10 : 0;
    dt_model     *m = dt_model_new(.seed = (uint64_t)r->seed);
    dt_optimizer *opt = dt_sgd(m, .lr = r->lr, .momentum = dgc || r->plain ? 0 : 0.9);
    dt_ddp       *d = dt_ddp_new(m, c, .compress = z);
    int64_t       steps = 0;
    while (steps < r->steps && !dt_error())
        for (dt_batch b; steps < r->steps && dt_loader_next(in, &b); steps++) {
            if (r->plain) dt_optimizer_set_lr(opt, -1, 10 * r->lr / (1 + (double)steps / 1000));
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            dt_step(opt);
        }
    double       right = test(m, d, out);
    dt_ddp_stats s = dt_ddp_get_stats(d);
    if (rank == 0) {
        r->right = 100 * right;
        r->epochs = (double)r->steps * world * r->batch / (double)dt_dataset_len(learn);
        r->ratio = s.sent > 0 ? (double)s.bytes / (double)s.sent : 1;
    }
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(out);
    dt_dataset_free(learn);
    dt_dataset_free(exam);
    int bad = dt_check("bench_compress_accuracy");
    dt_comm_free(c);
    return bad;
}
static double mean_of(const double *x, int n, double *error) /* error: of the mean */
{
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += x[i] / n;
    for (int i = 0; i < n; i++) square += (x[i] - sum) * (x[i] - sum);
    *error = n > 1 ? sqrt(square / (n - 1) / n) : 0;
    return sum;
}
static bool listed(const char *list, const char *name) /* between commas */
{
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (!at[n] || at[n] == ',')) return true;
    return false;
}
int main(int argc, char **argv)
{
    static double right[ROWS][SEEDS], off[SEEDS];
    const char   *which = option(argc, argv, "--methods", "");
    int           seeds = atoi(option(argc, argv, "--seeds", "5")), failed = 0;
    run          *r = (run *)mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r == MAP_FAILED || seeds < 1 || seeds > SEEDS)
        return fprintf(stderr, "bench_compress_accuracy: --seeds must be 1 to %d\n", SEEDS), 2;
    r->data = option(argc, argv, "--data", "data/digits");
    r->steps = atoll(option(argc, argv, "--steps", "348"));
    r->batch = atoi(option(argc, argv, "--batch", "25"));
    r->lr = atof(option(argc, argv, "--lr", "0.01"));
    printf("%s, conv net, 2 ranks, batch 2 x %d, %lld steps, %d seeds\n", r->data, r->batch, (long long)r->steps,
           seeds);
    for (int i = 0, dense = 0; i < ROWS; i++) {
        double error, miss, mean, less, ratio = 0;
        bool   is_dense = !strcmp(rows[i].kind, "none");
        if (is_dense) dense = i;
        if (*which && !listed(which, rows[i].name)) continue;
        if (*which && !listed(which, rows[dense].name))
            return fprintf(stderr, "bench_compress_accuracy: --methods has %s, but not %s to compare it with\n",
                           rows[i].name, rows[dense].name),
                   2;
        for (int s = 0; s < seeds; s++) {
            r->method = rows[i].kind;
            r->plain = rows[i].plain;
            r->seed = s + 1;
            if (dt_spawn(2, train, r)) return fprintf(stderr, "bench_compress_accuracy: %s failed\n", rows[i].name), 1;
            right[i][s] = r->right;
            off[s] = right[i][s] - right[dense][s];
            ratio += r->ratio / seeds;
        }
        mean = mean_of(right[i], seeds, &error);
        less = mean_of(off, seeds, &miss);
        bool below = less<-(miss + 1), judged = r->epochs> rows[i].epochs - 0.01; /* a last batch may be short */
        printf("compress-accuracy-%s: %.2f +- %.2f %%, difference %+.2f +- %.2f %%, bytes %.1f times fewer",
               rows[i].name, mean, error, less, miss, ratio);
        if (is_dense) printf("\n");
        else if (!judged) printf("  (no verdict: %s)\n", rows[i].why);
        else printf("  (%s dense)\n", below ? "below" : "as");
        fflush(stdout);
        failed |= below && judged;
    }
    return failed;
}
