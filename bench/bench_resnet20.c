/* One forward and backward of CIFAR ResNet-20 (batch 128) with dt.h only: images in the device's layout; batch norm,
   activation and residual fused. Prints images/s for 1 and 2 threads, and the time of each kernel.
   bench/peer_resnet20.py measures PyTorch on the same network. */
#define DT_IMPLEMENTATION
#include "dt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PARAMS = 128 };
typedef struct layer {
    dt_tensor *w, *gamma, *beta, *mean, *var;
} layer;
static layer      net_layer[32];
static int        nlayers, at;
static dt_tensor *param[MAX_PARAMS];
static int        nparams;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* a backend whose kernels call those of the CPU backend and measure their time */
static dt_backend timed;
static dt_kernel  real_kernel[DT_K_COUNT];
static double     spent[DT_K_COUNT];
static int        calls[DT_K_COUNT];
static int        timed_kernel(dt_device *dev, const dt_call *c)
{
    double t = now();
    int    rc = real_kernel[c->op](dev, c);
    spent[c->op] += now() - t;
    calls[c->op]++;
    return rc;
}

static layer *make_layer(int64_t out, int64_t in, int64_t k)
{
    layer *l = &net_layer[nlayers++];
    double bound = 1 / __builtin_sqrt((double)(in * k * k));
    param[nparams++] = l->w = dt_set_requires_grad(dt_uniform(-bound, bound, DT_SHAPE(out, in, k, k)));
    param[nparams++] = l->gamma = dt_set_requires_grad(dt_ones(DT_SHAPE(out)));
    param[nparams++] = l->beta = dt_set_requires_grad(dt_zeros(DT_SHAPE(out)));
    l->mean = dt_keep(dt_zeros(DT_SHAPE(out)));
    l->var = dt_keep(dt_ones(DT_SHAPE(out)));
    return l;
}
static dt_tensor *conv_bn(dt_tensor *x, int64_t out, int k, int stride, bool relu, dt_tensor *add)
{
    layer *l = at < nlayers ? &net_layer[at] : make_layer(out, dt_size(x, 1), k);
    at++;
    x = dt_op_conv2d(x, l->w, NULL, .stride = stride, .pad = k / 2);
    return dt_op_batch_norm(x, l->gamma, l->beta, l->mean, l->var, .act = relu ? DT_ACT_RELU
                            : DT_ACT_NONE,
                            .add = add);
}
static dt_tensor *fc_w, *fc_b;
static dt_tensor *net(dt_tensor *x)
{
    at = 0;
    x = conv_bn(x, 16, 3, 1, true, NULL);
    for (int stage = 0; stage < 3; stage++)
        for (int block = 0; block < 3; block++) {
            int        stride = stage && !block ? 2 : 1, out = 16 << stage;
            dt_tensor *skip = stride == 2 ? conv_bn(x, out, 1, 2, false, NULL) : x;
            dt_tensor *h = conv_bn(x, out, 3, stride, true, NULL);
            x = conv_bn(h, out, 3, 1, true, skip);
        }
    return dt_op_linear(dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), fc_w, fc_b);
}

int main(int argc, char **argv)
{
    int        steps = argc > 1 ? atoi(argv[1]) : 8;
    dt_device *dev = dt_cpu();
    timed = *dt_device_backend(dev);
    for (int i = 0; i < DT_K_COUNT; i++) {
        real_kernel[i] = timed.kernel[i];
        timed.kernel[i] = timed_kernel;
    }
    dev = dt_device_new(&timed, -1, NULL);
    dt_set_default_device(dev);
    dt_manual_seed(1);
    param[nparams++] = fc_w = dt_set_requires_grad(dt_uniform(-0.125, 0.125, DT_SHAPE(10, 64)));
    param[nparams++] = fc_b = dt_set_requires_grad(dt_zeros(DT_SHAPE(10)));
    dt_tensor *x = dt_keep(dt_normal(0, 1, DT_SHAPE(128, 3, 32, 32)));
    int64_t    label[128];
    for (int i = 0; i < 128; i++) label[i] = i % 10;
    dt_tensor *y = dt_keep(dt_from(label, DT_SHAPE(128), .dtype = DT_I64));
    dt_no_grad_begin();
    net(x);
    dt_no_grad_end();
    dt_block all;
    dt_pack(&all, param, nparams);
    dt_end();
    for (int threads = 1; threads <= 2; threads++) {
        double best = 1e9, loss = 0;
        dt_set_num_threads(threads);
        for (int s = 0; s < steps && !dt_error(); s++) {
            if (s == 1) memset(spent, 0, sizeof spent), memset(calls, 0, sizeof calls);
            double     t = now();
            dt_tensor *l = dt_cross_entropy(net(x), y);
            dt_backward(l);
            dt_add_to(all.value, all.grad, -0.01);
            dt_block_zero_grad(&all);
            loss = dt_item(l);
            dt_end();
            t = now() - t;
            if (t < best) best = t;
        }
        printf("resnet20-%dt: dt %.0f images/s (best step %.0f ms, loss %.4f)\n", threads, 128 / best, 1e3 * best,
               loss);
        for (int i = 0; i < DT_K_COUNT; i++)
            if (spent[i] > 0) printf("    %-18s %4d calls %8.2f ms a step\n", dt_kernel_name(i),
                                     calls[i] / (steps - 1), 1e3 * spent[i] / (steps - 1));
    }
    return dt_check("bench_resnet20");
}
