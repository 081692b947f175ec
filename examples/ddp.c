/* Data parallel training in four more lines: two processes learn what one learns with twice the batch.

   Build: cc -O2 -I.. ddp.c -o ddp -lm -lpthread
   Run:   ./ddp --data ../data/digits            starts two processes, then trains with one for comparison
          dtrun -n 4 ./ddp --launched            also under mpirun, srun, torchrun --no-python */
#define DT_IMPLEMENTATION
#include "dt_dist.h"
#include "example_data.h"

static const char *const ddp_help = "ddp [options]: data parallel training on two processes, beside one\n"
                                    "    --data DIR      data/digits\n"
                                    "    --epochs N      5\n"
                                    "    --launched      a launcher has started the processes: only train\n";

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", dt_flatten(x), .out = 64, .act = DT_ACT_RELU);
    return dt_linear(m, "fc2", x, .out = 10);
}
static int trainer(void *args)
{
    const example_args *a = (const example_args *)args;
    int                 epochs = atoi(example_option(a->argc, a->argv, "--epochs", "5"));
    dt_dataset         *train, *test;
    dt_comm            *c = example_comm(a->argc, a->argv);                        /* 1: who am I? */
    if (!c) return 1;
    example_digits(example_option(a->argc, a->argv, "--data", "data/digits"), 1, 8, 1, &train, &test);
    dt_loader *in = dt_loader_new(train, .batch = 64 / dt_comm_size(c), .shuffle = true, .drop_last = true, .seed = 1,
                                  .rank = dt_comm_rank(c), .world = dt_comm_size(c)); /* 2: my part of each batch */
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_ddp       *ddp = dt_ddp_new(m, c);                                          /* 3: gradients are the mean of all ranks' */
    double        first = 0, loss = 0;
    while (dt_loader_epoch(in) < epochs && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_tensor *l = dt_cross_entropy(net(m, b.x), b.y);
            dt_backward(l);
            loss = dt_ddp_mean(ddp, dt_item(l), (double)b.n);
            if (first == 0) first = loss;
            dt_step(opt);
        }
    if (dt_comm_rank(c) == 0 && !dt_error()) {
        char line[300];
        dt_ddp_report(ddp, line, sizeof line);
        printf("%d process%s: loss %.4f -> %.4f; %s\n", dt_comm_size(c), dt_comm_size(c) > 1 ? "es" : "", first, loss, line);
        fflush(stdout);
    }
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(c);                                                               /* 4: waits for the others */
    return dt_check("ddp") || !(loss < first);
}
int main(int argc, char **argv)
{
    int          done = example_options(argc, argv, ddp_help);
    example_args a = { argc, argv, NULL };
    if (done >= 0) return done;
    if (example_flag(argc, argv, "--launched")) return trainer(&a);
    int rc = dt_spawn(2, trainer, &a);
    return rc ? rc : dt_spawn(1, trainer, &a);
}
