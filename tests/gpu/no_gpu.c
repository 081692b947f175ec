/* no_gpu.c: a program that would like a GPU. Where there is none it says so in one line, and trains on the CPU. */
#include "dt_cuda.h"
#include "dt_nn.h"

#include <stdio.h>

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_maxpool2d(dt_conv2d(m, "conv", x, .out = 4, .kernel = 3, .pad = 1, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 3);
}
int main(void)
{
    dt_device *dev = dt_cuda(0);
    if (!dev) {
        printf("%s; training on the CPU\n", dt_error());
        dt_error_clear();
    }
    dt_set_default_device(dev);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    int64_t       label[6] = { 0, 1, 2, 0, 1, 2 };
    double        first = 0, last = 0;
    for (int i = 0; i < 30; i++) {
        dt_rng r;
        dt_rng_seed(&r, 1);
        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(6, 1, 8, 8), .rng = &r),
                  *y = dt_from(label, DT_SHAPE(6), .dtype = DT_I64);
        dt_tensor *loss = dt_cross_entropy(net(m, x), y);
        last = dt_item(loss);
        if (i == 0) first = last;
        dt_backward(loss);
        dt_step(opt);
    }
    printf("%s: loss %.4f to %.4f\n", dt_device_name(dt_default_device()), first, last);
    dt_optimizer_free(opt);
    dt_model_free(m);
    return dt_check("no_gpu") || !(last < first / 4);
}
