/* test_gpu_devices.c: one model on two GPUs gives the numbers of one: the two halves of AlexNet, with momentum, AdamW and mixed
   precision; branches run side by side; copies are ordered on the devices. Runs on the emulated libraries (DT_EMU: lazy or
   random streams; three devices of 64 MiB unless the environment says otherwise), and on real GPUs, of which it needs two. */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_cuda.h"
#include "dt_dist.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_STATE();
int main(int argc, char *argv[])
{
    setenv("DT_EMU_DEVICES", "3", 0);
    setenv("DT_EMU_MEMORY", "67108864", 0);
    return utest_main(argc, (const char *const *)argv);
}
static bool emulated(void) { return dlsym(RTLD_DEFAULT, "emu_progress") != NULL; }
#define NEED(k) \
    if (dt_cuda_count() < (k)) UTEST_SKIP("fewer GPUs than " #k)

enum { N = 2, SIDE = 4, STEPS = 10, ROOM = 4096 };
static dt_tensor *both(dt_tensor *mine, dt_tensor *other, dt_device *dev)
{
    dt_tensor *two[2] = { mine, dt_to(other, dev) };
    return dt_cat(two, 2, 1);
}
static dt_tensor *alexnet(dt_model *m, dt_tensor *x, dt_device *const *dev)
{
    dt_tensor *h[2], *t[2];
    for (int i = 0; i < 2; i++) {
        dt_device_begin(m, dev[i]);
        dt_scope_begin(m, "half%d", i);
        h[i] = dt_conv2d(m, "conv1", dt_to(x, dev[i]), .out = 2, .kernel = 3, .pad = 1);
        h[i] = dt_maxpool2d(dt_batchnorm2d(m, "bn", h[i], .act = DT_ACT_RELU), .kernel = 2);
        h[i] = dt_conv2d(m, "conv2", h[i], .out = 2, .kernel = 1, .act = DT_ACT_RELU);
        dt_scope_end(m);
        dt_device_end(m);
    }
    for (int i = 0; i < 2; i++) {
        dt_device_begin(m, dev[i]);
        dt_scope_begin(m, "half%d", i);
        t[i] = dt_conv2d(m, "conv3", both(h[i], h[!i], dev[i]), .out = 2, .kernel = 1, .act = DT_ACT_RELU);
        t[i] = dt_dropout(m, t[i], 0.2);
        dt_scope_end(m);
        dt_device_end(m);
    }
    dt_device_begin(m, dev[0]);
    x = dt_linear(m, "fc", dt_flatten(both(t[0], t[1], dev[0])), .out = 3);
    dt_device_end(m);
    return x;
}
static dt_tensor *images(dt_device *dev, int step, dt_tensor **y)
{
    float   x[N * SIDE * SIDE];
    int64_t label[N];
    for (int i = 0; i < N * SIDE * SIDE; i++) {
        uint32_t r[4];
        dt_philox(9, (uint64_t)(step * N * SIDE * SIDE + i), r);
        x[i] = (float)r[0] / 2147483648.0f - 1;
        label[i / (SIDE * SIDE)] = (int64_t)(r[1] % 3);
    }
    *y = dt_from(label, DT_SHAPE(N), .dtype = DT_I64, .device = dev);
    return dt_from(x, DT_SHAPE(N, 1, SIDE, SIDE), .device = dev);
}
typedef struct run {
    double loss[STEPS];
    float  value[ROOM];
    int    n;
} run;
static void train(run *r, dt_device *a, dt_device *b, bool adamw, double clip, const char *level, dt_dtype half)
{
    dt_device *dev[2] = { a, b };
    dt_model  *m = dt_model_new(.seed = 3, .device = a);
    dt_amp    *amp = level ? dt_amp_new(m, .level = level, .dtype = half, .init_scale = 1024) : NULL;
    dt_optimizer *opt = adamw ? dt_adamw(m, .lr = 0.01, .clip_norm = clip)
                              : dt_sgd(m, .lr = 0.1, .momentum = 0.9, .clip_norm = clip);
    for (int s = 0; s < STEPS; s++) {
        dt_tensor *y, *x = images(a, s, &y), *loss = dt_cross_entropy(alexnet(m, x, dev), y);
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        r->loss[s] = dt_item(loss);
        dt_step(opt);
    }
    r->n = 0;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        if (dt_dtype_of(p.value) == DT_I64) continue;
        dt_tensor *t = dt_cast(p.value, DT_F32);
        dt_copy_out(t, r->value + r->n, dt_nbytes(t));
        r->n += (int)dt_numel(t);
    }
    dt_end();
    dt_optimizer_free(opt);
    dt_amp_free(amp);
    dt_model_free(m);
}
static double far(const run *a, const run *b)
{
    double worst = a->n == b->n && a->n ? 0 : INFINITY;
    for (int i = 0; i < a->n; i++) {
        double d = fabs((double)a->value[i] - b->value[i]) / (1e-2 + fabs((double)b->value[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}
static void deterministic(bool yes)
{
    for (int i = 0; i < dt_cuda_count(); i++) dt_cuda_set(dt_cuda(i), .deterministic = yes ? DT_YES : DT_NO);
}
static run one, two;
UTEST(halves, have_the_bits_of_one_gpu)
{
    NEED(2);
    bool quick = getenv("DT_TEST_QUICK") != NULL;
    deterministic(true);
    for (int k = 0; k < 4; k++) {
        const char *level = k == 2 ? "O1" : k == 3 ? "O2" : NULL;
        dt_dtype    half = k == 2 ? DT_BF16 : DT_F16;
        if (quick && k == 2) continue;
        train(&one, dt_cuda(0), dt_cuda(0), k == 1, 0, level, half);
        train(&two, dt_cuda(0), dt_cuda(1), k == 1, 0, level, half);
        EXPECT_EQ(DT_OK, dt_error_code());
        ASSERT_EQ(one.n, two.n);
        EXPECT_TRUE(!memcmp(one.value, two.value, (size_t)one.n * sizeof *one.value));
        EXPECT_TRUE(!memcmp(one.loss, two.loss, sizeof one.loss));
    }
    deterministic(false);
}
UTEST(halves, have_the_numbers_of_the_cpu)
{
    NEED(2);
    train(&one, dt_cpu(), dt_cpu(), false, 0.5, NULL, DT_F32);
    train(&two, dt_cuda(1), dt_cuda(0), false, 0.5, NULL, DT_F32);
    EXPECT_TRUE(far(&one, &two) < 1e-3);
    train(&two, dt_cpu(), dt_cuda(1), false, 0.5, NULL, DT_F32); /* between backends */
    EXPECT_TRUE(far(&one, &two) < 1e-3);
}
/* A chain of copies whose sources are freed at once, on every dtype, with offsets and strides. */
UTEST(copies, are_ordered_on_the_devices)
{
    NEED(2);
    for (int d = 0; d < DT_DTYPE_COUNT; d++)
        for (int i = 0; i < 6; i++) {
            dt_device *a = dt_cuda(i % 2), *b = dt_cuda((i + 1) % 2);
            dt_tensor *x = dt_full(i + 1, DT_SHAPE(40, 10), .device = a, .dtype = (dt_dtype)d);
            dt_tensor *part = dt_transpose(dt_narrow(x, 0, 3, 20), 0, 1), *y = dt_to(i % 2 ? part : dt_narrow(x, 0, 3, 20), b);
            dt_free(x);
            dt_free(part);
            for (int k = 0; k < 3; k++) dt_fill(dt_empty(DT_SHAPE(40, 10), .device = a, .dtype = (dt_dtype)d), 99);
            dt_tensor *z = dt_to(dt_cast(y, DT_F32), a);
            dt_free(y);
            for (int k = 0; k < 3; k++) dt_fill(dt_empty(DT_SHAPE(20, 10), .device = b, .dtype = (dt_dtype)d), 99);
            EXPECT_NEAR(200.0 * (i + 1), dt_item(dt_sum(z)), 0.0);
            dt_end();
        }
    EXPECT_EQ(DT_OK, dt_error_code());
}
/* Neither a copy nor its gradient makes the host wait: with lazy streams nothing has run when the last call returns. */
UTEST(copies, do_not_make_the_host_wait)
{
    NEED(2);
    dt_device        *a = dt_cuda(0), *b = dt_cuda(1);
    const dt_backend *be = dt_device_backend(a);
    dt_tensor        *x = dt_set_requires_grad(dt_ones(DT_SHAPE(100), .device = a));
    void             *mark[2] = { NULL, NULL }; /* before the copies, on each device */
    bool              passed = true;
    dt_synchronize(a);
    dt_synchronize(b);
    dt_tensor *h = dt_mul_scalar(x, 3), *other = dt_ones(DT_SHAPE(100), .device = b);
    ASSERT_EQ(0, be->mark(a, NULL, &mark[0]) || be->mark(b, NULL, &mark[1]));
    dt_tensor *y = dt_to(dt_mul(dt_mul_scalar(dt_to(h, b), 2), other), a), *loss = dt_sum(dt_mul(y, h));
    ASSERT_EQ(DT_OK, dt_backward(loss));
    const char *mode = getenv("DT_EMU");
    for (int i = 0; i < 2 && emulated() && (!mode || !strcmp(mode, "lazy")); i++) {
        ASSERT_EQ(0, be->passed(i ? b : a, mark[i], false, &passed));
        EXPECT_TRUE(!passed);
    }
    EXPECT_NEAR(100 * 36.0, dt_item(dt_sum(dt_grad(x))), 1e-3);
    for (int i = 0; i < 2; i++) be->mark_free(i ? b : a, mark[i]);
    dt_end();
    dt_free(x);
}
UTEST(copies, use_peer_access_where_there_is_some)
{
    NEED(2);
    dt_tensor *x = dt_ones(DT_SHAPE(8), .device = dt_cuda(0));
    EXPECT_NEAR(8.0, dt_item(dt_sum(dt_to(x, dt_cuda(1)))), 0.0);
    int can = 0;
    ASSERT_EQ(0, (int)cudaDeviceCanAccessPeer(&can, 1, 0));
    ASSERT_EQ(0, (int)cudaSetDevice(1));
    EXPECT_TRUE(cudaDeviceEnablePeerAccess(0, 0) == (can ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessUnsupported));
    (void)cudaGetLastError();
    dt_end();
}
UTEST(errors, name_the_device)
{
    NEED(2);
    dt_tensor *x = dt_ones(DT_SHAPE(2, 4), .device = dt_cuda(0));
    dt_model  *m = dt_model_new(.device = dt_cuda(0));
    EXPECT_ERROR(dt_device_begin(m, dt_cuda(99)), "dt_cuda: device 99");
    EXPECT_OK(dt_device_begin(m, dt_cuda(1)));
    EXPECT_ERROR(dt_linear(m, "fc", x, .out = 2),
                 "dt_linear 'fc': x is on cuda:0, the device scope on cuda:1; copy x with dt_to()");
    dt_device_end(m);
    if (emulated()) { /* 64 MiB; the first half stays on the first device */
        dt_tensor *big = dt_zeros(DT_SHAPE(10 << 20), .device = dt_cuda(0));
        dt_tensor *full = dt_zeros(DT_SHAPE(10 << 20), .device = dt_cuda(1));
        EXPECT_OK(big && full);
        EXPECT_ERROR(dt_to(big, dt_cuda(1)), "out of memory: 41943040 bytes on cuda:1");
    }
    dt_end();
    dt_model_free(m);
}
UTEST(errors, a_world_of_one_rank_takes_every_model_and_dt_parallel_does_not)
{
    NEED(2);
    dt_model *m = dt_model_new(.device = dt_cuda(0));
    dt_ddp   *d = dt_ddp_new(m, NULL);
    dt_device *dev[2] = { dt_cuda(0), dt_cuda(1) };
    dt_tensor *y, *x = images(dev[0], 0, &y);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    EXPECT_OK(dt_backward(dt_cross_entropy(alexnet(m, x, dev), y)));
    EXPECT_OK(dt_step(opt));
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2) ? 0 : -1, "dt_parallel_new: the model is on several devices");
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
