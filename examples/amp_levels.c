/* The levels of mixed precision beside each other: speed, memory of tensors, accuracy, of the same conv net.

   O0 is f32. O1 casts the inputs of ops. O2 has half weights with f32 masters. O3 has half weights alone.

   Build: cc -O2 -I.. amp_levels.c -o amp_levels -lm -lpthread
   Run:   ./amp_levels --data ../data/digits --dtype bf16 */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "dt_data.h"
#include "example_data.h"
#include <time.h>

static const char *const levels_help = "amp_levels [options]: O0 to O3 on the digits\n"
                                       "    --data DIR      data/digits\n"
                                       "    --dtype T       f16, or bf16\n"
                                       "    --epochs N      4\n";

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_maxpool2d(dt_relu(dt_batchnorm2d(m, "bn1", dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1))), .kernel = 2);
    x = dt_maxpool2d(dt_relu(dt_batchnorm2d(m, "bn2", dt_conv2d(m, "conv2", x, .out = 32, .kernel = 3, .pad = 1))), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int run(const char *level, dt_dtype dtype, dt_dataset *train, dt_dataset *test, int epochs)
{
    dt_loader    *in = dt_loader_new(train, .batch = 50, .shuffle = true, .seed = 1), *exam = dt_loader_new(test, .batch = 100);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9);
    dt_amp       *amp = dt_amp_new(m, .level = level, .dtype = dtype);
    double        images = 0, right = 0, n = 0, began = seconds();
    dt_stats_reset();
    while (dt_loader_epoch(in) < epochs && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_amp_backward(amp, dt_cross_entropy(net(m, b.x), b.y));
            dt_step(opt);
            images += (double)b.n;
        }
    double took = seconds() - began, peak = (double)dt_stats().peak_bytes;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(exam, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y), DT_F32)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    printf("%-6s %10.0f images/s %8.2f MB at most   test accuracy %.2f %%   %lld steps skipped\n", level, images / took, peak / 1e6,
           100 * right / n, (long long)dt_amp_overflows(amp));
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    return dt_check(level);
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, levels_help);
    if (done >= 0) return done;
    static const char *const levels[] = { "O0", "O1", "O2", "O3" };
    const char *type = example_option(argc, argv, "--dtype", "f16");
    if (strcmp(type, "f16") && strcmp(type, "bf16")) return fprintf(stderr, "amp_levels: --dtype %s, expected f16 or bf16\n", type), 2;
    dt_dataset *train, *test;
    int         bad = example_digits(example_option(argc, argv, "--data", "data/digits"), 1, 8, 1, &train, &test) != DT_OK;
    for (int i = 0; i < 4 && !bad; i++)
        bad = run(levels[i], strcmp(type, "f16") ? DT_BF16 : DT_F16, train, test, atoi(example_option(argc, argv, "--epochs", "4")));
    dt_dataset_free(train);
    dt_dataset_free(test);
    return dt_check("amp_levels") || bad;
}
