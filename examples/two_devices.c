/* AlexNet on two devices, as it was trained (Krizhevsky et al. 2012), at the size of the digits: each half of the network
   has its own kernels and its own device. Layers 1, 2, 4 and 5 read their own half, layer 3 and the linear layers read both.

   Build: cc -O2 -I.. two_devices.c -o two_devices -lm -lpthread     Run: ./two_devices --devices cuda:0,cuda:1 */
#define DT_IMPLEMENTATION
#include "dt_cuda.h"
#include "dt_data.h"
#include "dt_nn.h"
#include "example_data.h"

static const char *const two_devices_help =
    "two_devices [options]: AlexNet's two halves on two devices\n"
    "    --devices A,B  cpu, cpu:1 (another device in the memory of the host: it copies as between GPUs) or cuda:N;\n"
    "                   default: cuda:0,cuda:1 if there are two GPUs, otherwise cpu,cpu:1\n"
    "    --epochs N     8       --batch N   64      --steps N   stop after N steps\n"
    "    --lr X         0.05    --seed N    1       --opt-level LEVEL   O0 to O3: mixed precision; default: f32 only\n"
    "    --data DIR     the digits, default data/digits, enlarged to 16 x 16\n";

/* x[i], the result of half i, becomes the results of both halves on dev[i]. All copies are queued first, so that neither
   device waits for more than the tensor that it needs. */
static void exchange(dt_tensor **x, dt_device *const *dev)
{
    dt_tensor *on[2][2] = { { x[0], dt_to(x[1], dev[0]) }, { dt_to(x[0], dev[1]), x[1] } };
    for (int i = 0; i < 2; i++) x[i] = dt_cat(on[i], 2, 1);
}
static dt_tensor *conv(dt_model *m, const char *name, dt_tensor *x, int out, int kernel)
{
    return dt_conv2d(m, name, x, .out = out, .kernel = kernel, .pad = kernel / 2, .act = DT_ACT_RELU);
}
static dt_tensor *alexnet(dt_model *m, dt_tensor *images, dt_device *const *dev)
{
    dt_tensor *x[2] = { dt_to(images, dev[0]), dt_to(images, dev[1]) };
    for (int part = 0; part < 3; part++) { /* between two parts the halves exchange what they have */
        if (part) exchange(x, dev);
        for (int i = 0; i < 2; i++) {
            dt_device_begin(m, dev[i]);
            dt_scope_begin(m, "half%d", i);
            if (part == 0) {
                x[i] = dt_maxpool2d(conv(m, "conv1", x[i], 12, 5), .kernel = 2);
                x[i] = dt_maxpool2d(conv(m, "conv2", x[i], 24, 5), .kernel = 2);
            } else if (part == 1) {
                x[i] = conv(m, "conv4", conv(m, "conv3", x[i], 32, 3), 32, 3);
                x[i] = dt_flatten(dt_maxpool2d(conv(m, "conv5", x[i], 24, 3), .kernel = 2));
            } else {
                x[i] = dt_dropout(m, dt_linear(m, "fc6", x[i], .out = 64, .act = DT_ACT_RELU), 0.5);
                if (i == 1) x[1] = dt_to(x[1], dev[0]);
            }
            dt_scope_end(m);
            dt_device_end(m);
        }
    }
    dt_device_begin(m, dev[0]);
    dt_tensor *y = dt_linear(m, "fc8", dt_cat(x, 2, 1), .out = 10);
    dt_device_end(m);
    return y;
}
static double accuracy(dt_model *m, dt_loader *in, dt_device *const *dev)
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end(), n += (double)b.n)
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(alexnet(m, b.x, dev), .dims = DT_DIM(1)), b.y), DT_I64)));
    dt_no_grad_end();
    dt_model_train(m);
    return n > 0 ? right / n : 0;
}
static dt_device *device_named(const char *name)
{
    int  i = 0;
    char end = 0;
    if (!strcmp(name, "cpu")) return dt_cpu();
    if (sscanf(name, "cuda:%d%c", &i, &end) == 1) return dt_cuda(i);
    if (sscanf(name, "cpu:%d%c", &i, &end) == 1) return dt_device_new(dt_device_backend(dt_cpu()), i, NULL);
    dt_fail(DT_ERR_ARG, "--devices: '%s', expected cpu, cpu:1 or cuda:N", name);
    return NULL;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, two_devices_help);
    if (done >= 0) return done;
    char        names[64], *second;
    const char *given = example_option(argc, argv, "--devices", dt_cuda_count() > 1 ? "cuda:0,cuda:1" : "cpu,cpu:1"),
               *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_has_digits("../data/digits") ? "../data/digits" : "data/digits";
    int         epochs = atoi(example_option(argc, argv, "--epochs", "8")), step = 0,
                steps = atoi(example_option(argc, argv, "--steps", "0")),
                batch = atoi(example_option(argc, argv, "--batch", "64"));
    uint64_t    seed = (uint64_t)atoi(example_option(argc, argv, "--seed", "1"));
    snprintf(names, sizeof names, "%s", given);
    if ((second = strchr(names, ',')) != NULL) *second++ = 0;
    dt_device *first = device_named(names), *dev[2] = { first, second && strcmp(second, names) ? device_named(second) : first };

    double        mean = 0, std = 1, loss = 0;
    dt_dataset   *train = NULL, *test = NULL;
    example_digits(example_option(argc, argv, "--data", dir), 1, 16, 2, &train, &test);
    dt_dataset_mean_std(train, &mean, &std, 1);
    dt_loader    *in = dt_loader_new(train, .batch = batch, .shuffle = true, .seed = seed, .mean = { mean }, .std = { std },
                                        .device = dev[0]);
    dt_loader    *exam = dt_loader_new(test, .batch = 120, .mean = { mean }, .std = { std }, .device = dev[0]);
    dt_model     *m = dt_model_new(.seed = seed, .device = dev[0]);
    dt_optimizer *opt = dt_sgd(m, .lr = atof(example_option(argc, argv, "--lr", "0.05")), .momentum = 0.9);
    dt_amp       *amp = level ? dt_amp_new(m, .level = level) : NULL;
    while (dt_loader_epoch(in) < epochs && !dt_error() && (!steps || step < steps))
        for (dt_batch b; (!steps || step < steps) && dt_loader_next(in, &b); step++) {
            dt_tensor *l = dt_cross_entropy(alexnet(m, b.x, dev), b.y);
            if (amp) dt_amp_backward(amp, l);
            else dt_backward(l);
            loss = dt_item(l);
            dt_step(opt);
        }
    double right = accuracy(m, exam, dev);
    if (!dt_error()) {
        for (int i = 0; i < (dev[0] == dev[1] ? 1 : 2); i++)
            printf("%s: %.2f MiB of parameters, gradients and momentum, at most %.2f MiB\n", dt_device_name(dev[i]),
                   (double)dt_device_stats(dev[i]).live_bytes / 1048576, (double)dt_device_stats(dev[i]).peak_bytes / 1048576);
        printf("loss %.6f, test accuracy %.2f %% after %d steps on %s and %s\n", loss, 100 * right, step,
               dt_device_name(dev[0]), dt_device_name(dev[1]));
    }
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    return dt_check("two_devices");
}
