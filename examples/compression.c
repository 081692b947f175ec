/* Gradients in fewer bytes: the same training on two processes and a slow network, with several methods beside each other.

   Build: cc -O2 -I.. compression.c -o compression -lm -lpthread
   Run:   ./compression --data ../data/digits --mbit 100 */
#define DT_IMPLEMENTATION
#include "dt_dist.h"
#include "example_data.h"
#include <time.h>

static const char *const compression_help = "compression [options]: what compressed gradients save, and cost\n"
                                            "    --data DIR      data/digits\n"
                                            "    --epochs N      4\n"
                                            "    --mbit X        50: the network between the processes, in Mbit/s\n";
static const char *const kinds[] = { "none", "f16", "topk", "qsgd", "powersgd", "auto" };

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", dt_flatten(x), .out = 256, .act = DT_ACT_RELU);
    x = dt_linear(m, "fc2", x, .out = 256, .act = DT_ACT_RELU);
    return dt_linear(m, "fc3", x, .out = 10);
}
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int trainer(void *args)
{
    const example_args *a = (const example_args *)args;
    const char         *kind = (const char *)a->user;
    int                 epochs = atoi(example_option(a->argc, a->argv, "--epochs", "4"));
    double              mbit = atof(example_option(a->argc, a->argv, "--mbit", "50"));
    dt_dataset         *train, *test;
    dt_comm            *c = dt_comm_init(.transport = "tcp", .bandwidth = mbit * 1e6 / 8);
    if (!c) return fprintf(stderr, "compression: %s\n", dt_comm_error(NULL)), 1;
    int rank = dt_comm_rank(c), world = dt_comm_size(c);
    example_digits(example_option(a->argc, a->argv, "--data", "data/digits"), 1, 8, 1, &train, &test);
    dt_loader    *in = dt_loader_new(train, .batch = 32, .shuffle = true, .drop_last = true, .seed = 1, .rank = rank, .world = world);
    dt_loader    *exam = dt_loader_new(test, .batch = 100);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.2);
    dt_compress   how = { .kind = kind, .ratio = 0.05, .rank = 4, .start = -1 }; /* ratio of topk, rank of powersgd; from the first step on */
    dt_ddp *ddp = dt_ddp_new(m, c, .compress = how);
    double  began = now(), right = 0, n = 0;
    int64_t steps = 0;
    while (dt_loader_epoch(in) < epochs && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b); steps++) {
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            dt_step(opt);
        }
    double took = now() - began;
    dt_ddp_stats stats = dt_ddp_get_stats(ddp);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(exam, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y), DT_F32)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    if (rank == 0 && !dt_error()) {
        printf("%-10s %9.2f ms a step %10.1f KB a step   test accuracy %.2f %%\n", kind, 1e3 * took / (double)steps, 1e-3 * (double)stats.sent / (double)stats.steps,
               100 * right / n);
        fflush(stdout);
    }
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(c);
    return dt_check("compression");
}
int main(int argc, char **argv)
{
    int          done = example_options(argc, argv, compression_help), rc = 0;
    example_args a = { argc, argv, NULL };
    if (done >= 0) return done;
    if (!(atof(example_option(argc, argv, "--mbit", "50")) > 0)) return fprintf(stderr, "compression: --mbit takes more than 0\n"), 2;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !rc; i++) {
        a.user = (void *)kinds[i];
        rc = dt_spawn(2, trainer, &a);
    }
    return rc;
}
