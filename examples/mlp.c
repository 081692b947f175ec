/* A multilayer perceptron that reads handwritten digits: loader, training, test.

   Build: cc -O2 -I.. mlp.c -o mlp -lm -lpthread
   Run:   ./mlp --data ../data/digits */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "dt_data.h"
#include "example_data.h"

static const char *const mlp_help = "mlp [options]: a multilayer perceptron on the digits\n"
                                    "    --data DIR      data/digits\n"
                                    "    --epochs N      10\n"
                                    "    --hidden N      64\n"
                                    "    --lr X          0.003\n";

static dt_tensor *net(dt_model *m, dt_tensor *x, int hidden)
{
    x = dt_linear(m, "fc1", dt_flatten(x), .out = hidden, .act = DT_ACT_RELU);
    x = dt_linear(m, "fc2", x, .out = hidden, .act = DT_ACT_RELU);
    return dt_linear(m, "fc3", x, .out = 10);
}
static double accuracy(dt_model *m, dt_loader *in, int hidden)
{
    double right = 0, n = 0;
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) { /* dt_end: the step ends without an update */
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x, hidden), .dims = DT_DIM(1)), b.y), DT_F32)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    return n > 0 ? right / n : 0;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, mlp_help);
    if (done >= 0) return done;
    dt_dataset *train, *test;
    int         hidden = atoi(example_option(argc, argv, "--hidden", "64")), epochs = atoi(example_option(argc, argv, "--epochs", "10"));
    example_digits(example_option(argc, argv, "--data", "data/digits"), 1, 8, 1, &train, &test);
    dt_loader    *in = dt_loader_new(train, .batch = 32, .shuffle = true, .seed = 1), *exam = dt_loader_new(test, .batch = 100);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adam(m, .lr = atof(example_option(argc, argv, "--lr", "0.003")));
    dt_progress  *p = dt_progress_new(.epochs = epochs, .steps = dt_loader_batches(in), .unit = "images");
    while (dt_loader_epoch(in) < epochs && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_tensor *loss = dt_cross_entropy(net(m, b.x, hidden), b.y);
            dt_backward(loss);
            dt_progress_step(p, dt_item(loss), .items = (double)b.n);
            dt_step(opt);
        }
    dt_progress_free(p);
    printf("test accuracy %.2f %% with %lld parameters\n", 100 * accuracy(m, exam, hidden), (long long)dt_model_numel(m, true));
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    return dt_check("mlp");
}
