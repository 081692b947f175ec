/* Training that heals: an MLP on the digits of data/digits. Kill a process and watch the others go on; a new one takes its place.

   Build: cc -O2 -I.. elastic.c -o elastic -lm -lpthread        Run: dtrun --min 2 --max 4 -n 4 ./elastic --epochs 500
   Then:  kill -9 one of the processes that it prints, or two of them, or the first one */
#define DT_IMPLEMENTATION
#include "dt_elastic.h"
#include "example_data.h"
#include <unistd.h>

static const char *const elastic_help = "elastic [options]: trains on the processes that dtrun --min, --max starts\n"
                                        "    --epochs N     50\n"
                                        "    --batch N      16 images for each process\n"
                                        "    --slots N      0; others: N batches a step, whoever computes them, so the "
                                        "weights do not depend on who dies when\n";

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", dt_flatten(x), .out = 64, .act = DT_ACT_RELU);
    return dt_linear(m, "fc2", x, .out = 10);
}
static double accuracy(dt_model *m, dt_loader *exam) /* of this member, alone */
{
    double right = 0, n = 0;
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(exam, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y), DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    return n > 0 ? right / n : 0;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, elastic_help);
    if (done >= 0) return done;
    dt_dataset *train, *test;
    int64_t     epochs = atoi(example_option(argc, argv, "--epochs", "50")),
            size = atoi(example_option(argc, argv, "--batch", "16"));
    int slots = atoi(example_option(argc, argv, "--slots", "0"));
    example_digits(example_has_digits("../data/digits") ? "../data/digits" : "data/digits", 1, 8, 1, &train, &test);
    dt_loader    *in = dt_loader_new(train, .batch = size, .shuffle = true);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9);
    dt_elastic   *e = dt_elastic_new(m, opt, in, .ddp = { .slots = slots });
    printf("process %d is there\n", (int)getpid());
    fflush(stdout);
    double  sum = 0;
    int64_t n = 0, said = 0;
    while (dt_elastic_epoch(e) < epochs)
        for (dt_batch b; dt_elastic_next(e, &b);) {
            dt_tensor *loss = dt_cross_entropy(net(m, b.x), b.y);
            double     value = dt_item(loss);
            dt_backward(loss);
            if (!dt_elastic_step(e)) continue; /* a death: the step is repeated without it */
            sum += value, n++;
            if (dt_elastic_rank(e) || dt_elastic_steps(e) < said + 100) continue;
            said = dt_elastic_steps(e);
            printf("step %5d: %d members, loss %.4f\n", (int)said, dt_elastic_size(e), sum / (double)n);
            fflush(stdout);
            sum = 0, n = 0;
        }
    dt_elastic_stats s = dt_elastic_get_stats(e);
    dt_loader       *exam = dt_loader_new(test, .batch = 100);
    if (!dt_error() && dt_elastic_rank(e) == 0)
        printf("test accuracy %.2f %% after %d steps, %d deaths, %d newcomers, the longest pause %.0f ms\n", 100 * accuracy(m, exam),
               (int)dt_elastic_steps(e), (int)s.deaths, (int)s.joins, 1e3 * s.longest);
    dt_loader_free(exam);
    dt_elastic_free(e);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(train);
    dt_dataset_free(test);
    return dt_check("elastic");
}
