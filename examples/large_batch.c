/* Large batches and the learning rate: epochs to a given accuracy with one rate, with the rate that grows with the batch and a
   warm-up, with a cyclical rate, and with one cycle. The claim that is tested: a rate that rises far and falls again ("super
   convergence", Smith and Topin) needs fewer epochs. The length of one cycle is chosen beforehand, so it is tried with 1, 2, 3 ...
   epochs, until its end reaches the accuracy.

   Build: cc -O2 -I.. large_batch.c -o large_batch -lm -lpthread
   Run:   ./large_batch --data ../data/digits --batch 256 */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "dt_data.h"
#include "example_data.h"

static const char *const large_help = "large_batch [options]: epochs to an accuracy, by the schedule of the learning rate\n"
                                      "    --data DIR      data/digits\n"
                                      "    --batch N       256\n"
                                      "    --target X      95: test accuracy in percent\n"
                                      "    --epochs N      40 at most\n"
                                      "    --lr X          0.02: of a batch of 32\n"
                                      "    --seeds N       3: runs of each, the median counts\n";
enum { PLAIN, SCALED, CYCLIC, ONE_CYCLE, WAYS };
static const char *const ways[WAYS] = { "one rate", "rate x batch/32, warm-up of 2 epochs", "cyclical, up to 2 x that rate", "one cycle, up to 4 x that rate" };

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_maxpool2d(dt_relu(dt_batchnorm2d(m, "bn1", dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1))), .kernel = 2);
    x = dt_maxpool2d(dt_relu(dt_batchnorm2d(m, "bn2", dt_conv2d(m, "conv2", x, .out = 32, .kernel = 3, .pad = 1))), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}
static double accuracy(dt_model *m, dt_loader *in)
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y), DT_F32)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_model_train(m);
    return n > 0 ? 100 * right / n : 0;
}
/* Epochs until the accuracy is reached, or epochs + 1. One cycle has so many epochs, and counts at its end. */
static int train(int way, dt_dataset *set, dt_dataset *test, int64_t batch, double lr, double target, int epochs, uint64_t seed)
{
    dt_loader    *in = dt_loader_new(set, .batch = batch, .shuffle = true, .drop_last = true, .seed = seed), *exam = dt_loader_new(test, .batch = 100);
    dt_model     *m = dt_model_new(.seed = seed);
    int64_t       steps = dt_loader_batches(in);
    double        scaled = dt_scale_lr(lr, (double)batch, 32);
    dt_optimizer *opt = dt_sgd(m, .lr = way == PLAIN ? lr : scaled, .momentum = 0.9);
    dt_scheduler *s = NULL;
    int           reached = epochs + 1;
    if (way == SCALED) dt_warmup(s = dt_constant_lr(opt, .factor = 1), .steps = 2 * steps);
    if (way == CYCLIC) s = dt_cyclic_lr(opt, .base_lr = scaled / 4, .max_lr = 2 * scaled, .step_size_up = 2 * steps);
    if (way == ONE_CYCLE) s = dt_one_cycle_lr(opt, .max_lr = 4 * scaled, .total_steps = epochs * steps);
    for (int epoch = 1; epoch <= epochs && reached > epochs && !dt_error(); epoch++) {
        for (dt_batch b; dt_loader_epoch(in) < epoch && dt_loader_next(in, &b);) {
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            dt_step(opt);
            if (s && dt_scheduler_steps(s) + 1 < epochs * steps) dt_scheduler_step(s);
        }
        if ((way != ONE_CYCLE || epoch == epochs) && accuracy(m, exam) >= target) reached = epoch;
    }
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    return reached;
}
static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, large_help);
    if (done >= 0) return done;
    int     epochs = atoi(example_option(argc, argv, "--epochs", "40")), seeds = atoi(example_option(argc, argv, "--seeds", "3")), took[99];
    int64_t batch = atoi(example_option(argc, argv, "--batch", "256"));
    double  target = atof(example_option(argc, argv, "--target", "95")), lr = atof(example_option(argc, argv, "--lr", "0.02"));
    if (epochs < 1 || seeds < 1 || seeds > 99 || batch < 1 || !(lr > 0) || !(target > 0 && target <= 100))
        return fprintf(stderr, "large_batch: --epochs, --batch and --lr take more than 0, --seeds 1 to 99, --target 0 to 100\n"), 2;
    dt_dataset *train_set, *test;
    example_digits(example_option(argc, argv, "--data", "data/digits"), 1, 8, 1, &train_set, &test);
    printf("epochs to %g %% of the test images, batch %lld, median of %d\n", target, (long long)batch, seeds);
    for (int way = 0; way < WAYS && !dt_error(); way++) {
        for (int i = 0; i < seeds; i++) {
            int length = way == ONE_CYCLE ? 1 : epochs;
            do took[i] = train(way, train_set, test, batch, lr, target, length, (uint64_t)i + 1);
            while (took[i] > length && ++length <= epochs && !dt_error());
            if (took[i] > length) took[i] = epochs + 1;
        }
        qsort(took, (size_t)seeds, sizeof *took, by_value);
        if (dt_error()) break;
        if (took[seeds / 2] > epochs) printf("%-40s not within %d\n", ways[way], epochs);
        else printf("%-40s %d\n", ways[way], took[seeds / 2]);
        fflush(stdout);
    }
    dt_dataset_free(train_set);
    dt_dataset_free(test);
    return dt_check("large_batch");
}
