/* Overhead of a training step: the number of host allocations per step after warm-up, which must be 0. Measured for a
   conv net and an MLP: forward, backward, update. */
#define DT_IMPLEMENTATION
#include "dt.h"
#include <stdio.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static dt_tensor *weight(int64_t a, int64_t b, int64_t k)
{
    return dt_set_requires_grad(k ? dt_uniform(-0.1, 0.1, DT_SHAPE(a, b, k, k)) : b ? dt_uniform(-0.1, 0.1, DT_SHAPE(a, b))
                    : dt_ones(DT_SHAPE(a)));
}
static dt_tensor *conv_net(dt_tensor **p, dt_tensor *x)
{
    x = dt_op_conv2d(x, p[0], NULL, .pad = 2);
    x = dt_maxpool2d(dt_relu(dt_op_batch_norm(x, p[1], p[2], NULL, NULL)), .kernel = 2);
    x = dt_maxpool2d(dt_op_conv2d(x, p[3], p[4], .pad = 2, .act = DT_ACT_RELU), .kernel = 2);
    return dt_op_linear(dt_flatten(dt_op_dropout(x, 0.1)), p[5], p[6]);
}
static dt_tensor *mlp(dt_tensor **p, dt_tensor *x)
{
    x = dt_gelu(dt_op_linear(dt_flatten(x), p[0], p[1]));
    return dt_op_linear(dt_op_layer_norm(x, p[2], p[3]), p[4], p[5]);
}
static int measure(const char *name, dt_tensor *(*net)(dt_tensor **, dt_tensor *), dt_tensor **p, int n)
{
    int64_t label[32];
    for (int i = 0; i < 32; i++) label[i] = i % 10;
    dt_tensor *x = dt_keep(dt_normal(0, 1, DT_SHAPE(32, 1, 28, 28)));
    dt_tensor *y = dt_keep(dt_from(label, DT_SHAPE(32), .dtype = DT_I64));
    dt_block   all;
    dt_pack(&all, p, n);
    int64_t before = 0;
    double  start = 0, first = 0, last = 0;
    int     steps = 60, warm = 10;
    for (int s = 0; s < steps; s++) {
        if (s == warm) before = dt_stats().host_allocs, start = now();
        dt_tensor *l = dt_cross_entropy(net(p, x), y);
        dt_backward(l);
        last = dt_item(l);
        if (!s) first = last;
        dt_add_to(all.value, all.grad, -0.05);
        dt_block_zero_grad(&all);
        dt_end();
    }
    double  us = 1e6 * (now() - start) / (steps - warm);
    int64_t mallocs = dt_stats().host_allocs - before;
    printf("step-%s: %lld mallocs in %d steps, %.0f us a step, loss %.4f to %.4f, peak %.1f MB\n", name,
           (long long)mallocs,
           steps - warm, us, first, last, 1e-6 * (double)dt_stats().peak_bytes);
    for (int i = 0; i < n; i++) dt_free(p[i]);
    dt_block_free(&all);
    dt_free(x);
    dt_free(y);
    return mallocs != 0 || !(last < first);
}
int main(void)
{
    dt_manual_seed(3);
    dt_tensor *a[] = { weight(16, 1, 5), weight(16, 0, 0), weight(16, 0, 0), weight(32, 16, 5), weight(32, 0, 0),
                       weight(10, 1568, 0), weight(10, 0, 0) };
    dt_tensor *b[] = { weight(128, 784, 0), weight(128, 0, 0), weight(128, 0, 0), weight(128, 0, 0), weight(10, 128,
            0), weight(10, 0, 0) };
    dt_end();
    int bad = measure("convnet", conv_net, a, 7);
    bad |= measure("mlp", mlp, b, 6);
    return dt_check("bench_step") || bad;
}
