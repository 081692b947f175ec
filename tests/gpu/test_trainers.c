/* test_trainers.c: whole trainers on the CUDA backend and on the CPU: the same losses, within the rounding of the
   formats. Runs on the emulated libraries (DT_EMU: lazy or random streams) and on a real GPU alike. */
#include "dt_test.h"

#include "dt_cuda.h"
#include "dt_nn.h"
#include "counted.h"
#include "nets.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

UTEST_MAIN()

/* Losses of a few steps, and of one in evaluation; false: an error, which is told. */
static bool train(const trainer *t, dt_device *dev, const char *level, dt_dtype dtype, int kind, double *loss)
{
    dt_set_default_device(dev);
    dt_manual_seed(7);
    dt_model     *m = dt_model_new(.seed = 1, .device = dev);
    dt_optimizer *opt = kind == 0   ? dt_sgd(m, .lr = 0.05, .momentum = 0.9)
                        : kind == 1 ? dt_adamw(m, .lr = 3e-3)
                        : kind == 2 ? dt_rmsprop(m, .lr = 1e-3)
                        : kind == 3 ? dt_lars(m, .lr = 0.1, .momentum = 0.9)
                                    : dt_lamb(m, .lr = 1e-2);
    dt_amp       *amp = strcmp(level, "none") ? dt_amp_new(m, .level = level, .dtype = dtype) : NULL;
    int64_t       label[16];
    for (int64_t i = 0; i < t->x.dim[0]; i++) label[i] = i % CLASSES;
    for (int i = 0; i <= STEPS; i++) {
        if (i == STEPS) dt_model_eval(m);
        dt_tensor *y = dt_from(label, DT_SHAPE(t->x.dim[0]), .dtype = DT_I64);
        dt_tensor *l = dt_cross_entropy(t->net(m, data_of(t, i)), y, .label_smoothing = 0.1);
        loss[i] = dt_item(l);
        if (i < STEPS) {
            if (amp) dt_amp_backward(amp, l);
            else dt_backward(l);
            dt_clip_grad_norm(opt, 5);
            dt_step(opt);
        }
        dt_end();
    }
    bool ok = !dt_error();
    if (!ok) printf("    %s on %s, %s %s: %s\n", t->name, dt_device_name(dev), level, dt_dtype_name(dtype), dt_error());
    dt_error_clear();
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_set_default_device(NULL);
    return ok;
}
static void compare(int *utest_result, const trainer *t, const char *level, dt_dtype dtype, int kind)
{
    double     a[STEPS + 1], b[STEPS + 1], worst = 0;
    dt_device *gpu = dt_cuda(0);
    ASSERT_TRUE(gpu != NULL);
    ASSERT_TRUE(train(t, dt_cpu(), level, dtype, kind, a));
    uint64_t crooked = counted(EMU_UNALIGNED), operands = counted(EMU_OPERANDS);
    ASSERT_TRUE(train(t, gpu, level, dtype, kind, b));
    EXPECT_EQ_MSG((uint64_t)0, counted(EMU_UNALIGNED) - crooked, "operands that are not aligned to 16 bytes");
    if (dlsym(RTLD_DEFAULT, "emu_counted")) EXPECT_GT(counted(EMU_OPERANDS), operands);
    /* a few roundings of the format, which the steps in between make larger */
    double eps = !strcmp(level, "none") || !strcmp(level, "O0") ? 0x1p-23 : dtype == DT_F16 ? 0x1p-10 : 0x1p-7;
    for (int i = 0; i <= STEPS; i++) {
        double e = fabs(a[i] - b[i]) / (eps * (1 + fabs(a[i])));
        if (!(e <= worst)) worst = e;
    }
    printf("    %s, %s %s: loss %.5f to %.5f, %.1f steps of the format apart\n", t->name, level,
           strcmp(level, "none") ? dt_dtype_name(dtype) : "", a[0], a[STEPS - 1], worst);
    EXPECT_LT(worst, 40.0 * (kind ? 8 : 1)); /* Adam and its kin divide by small numbers */
}

UTEST(trainers, f32)
{
    for (int i = 0; i < 3; i++) compare(utest_result, &trainers[i], "none", DT_F32, i == 2);
}
UTEST(trainers, optimisers)
{
    for (int k = 1; k < 5; k++) /* the net that has no gradient which is only noise */
        compare(utest_result, &trainers[2], "none", DT_F32, k);
}
UTEST(trainers, mixed_precision_of_a_conv_net)
{
    static const char *const level[] = { "O0", "O1", "O2", "O3" };
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++) compare(utest_result, &trainers[0], level[i], h ? DT_BF16 : DT_F16, 0);
}
UTEST(trainers, mixed_precision_of_the_others)
{
    for (int i = 1; i < 3; i++)
        for (int h = 0; h < 2; h++) compare(utest_result, &trainers[i], h ? "O2" : "O1", h ? DT_BF16 : DT_F16, i == 2);
}
/* The default is f32 with channels first and halves with channels last: here the others */
UTEST(trainers, images_with_channels_last)
{
    dt_device   *gpu = dt_cuda(0);
    dt_cuda_opts o;
    ASSERT_TRUE(gpu != NULL);
    memset((void *)&o, 0, sizeof o);
    o.layout = DT_LAYOUT_NHWC;
    ASSERT_EQ(DT_OK, dt_cuda_set_with(gpu, o));
    compare(utest_result, &trainers[0], "none", DT_F32, 0);
    o.layout = DT_ZERO;
    ASSERT_EQ(DT_OK, dt_cuda_set_with(gpu, o));
    compare(utest_result, &trainers[1], "O2", DT_BF16, 0);
}

UTEST(products, of_halves_are_summed_in_f32)
{
    dt_set_default_device(dt_cuda(0));
    for (int h = 0; h < 2; h++) { /* sums of halves would stay at 256 or 1024, where adding 1 changes nothing */
        dt_dtype   dtype = h ? DT_BF16 : DT_F16;
        dt_tensor *a = dt_ones(DT_SHAPE(8, 8192), .dtype = dtype), *b = dt_full(0.25, DT_SHAPE(8192, 8), .dtype = dtype);
        EXPECT_EQ(2048.0 * 64, dt_item(dt_sum(dt_cast(dt_matmul(a, b), DT_F32))));
        EXPECT_OK(dt_error_code());
        dt_end();
    }
    dt_set_default_device(NULL);
}

/* ---- bad input */
UTEST(refused, devices_that_are_not_there)
{
    EXPECT_TRUE(dt_cuda(99) == NULL && dt_error_code() == DT_ERR_DEVICE);
    EXPECT_TRUE(strstr(dt_error(), "device 99; there ") != NULL);
    dt_error_clear();
    EXPECT_TRUE(dt_cuda(-1) == NULL && strstr(dt_error(), "device -1") != NULL);
    dt_error_clear();
    dt_tensor *a = dt_ones(DT_SHAPE(3)), *b = dt_ones(DT_SHAPE(3), .device = dt_cuda(0));
    EXPECT_TRUE(dt_add(a, b) == NULL && dt_error_code() == DT_ERR_DEVICE);
    dt_error_clear();
    dt_end();
}
UTEST(refused, more_memory_than_there_is)
{
    dt_device *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    dt_tensor *a = dt_empty(DT_SHAPE((int64_t)1 << 46));
    EXPECT_TRUE(!a && dt_error_code() == DT_ERR_MEMORY);
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "out of memory") && strstr(dt_error(), "cuda:0"));
    dt_error_clear();
    EXPECT_EQ(6.0, dt_item(dt_sum(dt_full(2, DT_SHAPE(3))))); /* and it goes on */
    dt_end();
    dt_set_default_device(NULL);
}
UTEST(allocator, gives_back_what_it_took)
{
    dt_device *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    for (int i = 0; i < 20; i++) {
        dt_zeros(DT_SHAPE(1000 + i * 100000));
        dt_end();
    }
    dt_set_default_device(NULL);
    dt_cuda_stats s = dt_cuda_get_stats(gpu);
    EXPECT_GT(s.reserved, 0u);
    EXPECT_GE(s.reserved, s.used);
    EXPECT_GE(s.peak, s.used);
    dt_empty_cache();
    dt_cuda_stats t = dt_cuda_get_stats(gpu);
    EXPECT_LT(t.used, s.used);
    EXPECT_LE(t.segments, s.segments);
}
UTEST(streams, what_is_ordered_behind_another_sees_its_work)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = dt_device_backend(gpu);
    void             *own = be->stream_new(gpu), *s[3] = { own, dt_cuda_copy_stream(gpu), dt_cuda_comm_stream(gpu) };
    ASSERT_TRUE(own != NULL);
    for (int k = 0; k < 3; k++) {
        float x[256], y[256];
        void *p = be->alloc(gpu, sizeof x);
        for (int i = 0; i < 256; i++) x[i] = (float)(i + k), y[i] = -1;
        ASSERT_TRUE(p != NULL);
        EXPECT_EQ(0, be->upload(gpu, s[k], p, x, sizeof x));
        EXPECT_EQ(0, be->order(gpu, NULL, s[k]));
        EXPECT_EQ(0, be->download(gpu, NULL, y, p, sizeof y));
        EXPECT_EQ(0, memcmp(x, y, sizeof x));
        be->free(gpu, p, sizeof x);
    }
    be->stream_free(gpu, own);
}
