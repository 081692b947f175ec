/* test_gpu_parallel.c: several GPUs in one process give the numbers of one, and those of as many CPU devices: nets with
   and without batch norm, unequal and missing parts, mixed precision, parameters that some parts reach, errors of
   devices. Runs on the emulated libraries (DT_EMU: lazy or random streams; four devices of 64 MiB unless the environment
   says otherwise), with dt_nccl.h and without (test_gpu_parallel-copies), and on real GPUs, of which it needs two. */
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
    setenv("DT_EMU_DEVICES", "4", 0);
    setenv("DT_EMU_MEMORY", "67108864", 0);
    return utest_main(argc, (const char *const *)argv);
}

enum { SIDE = 6, IN = SIDE * SIDE, OUT = 3, ROOM = 8192, STEPS = 4 };
static dt_tensor *batch(int first, int n, dt_tensor **y)
{
    float   x[16 * IN];
    int64_t label[16];
    for (int i = 0; i < n; i++) {
        uint32_t r[4] = { 0, 0, 0, 0 };
        for (int k = 0; k < IN; k++) {
            dt_philox(7, (uint64_t)(first + i) * IN + (uint64_t)k, r);
            x[i * IN + k] = (float)r[0] / 4294967296.0f * 2 - 1;
        }
        label[i] = (int64_t)(r[1] % OUT);
    }
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
    return dt_from(x, DT_SHAPE(n, 1, SIDE, SIDE));
}
/* what the parts do, by bits of *user */
enum { CONV = 1, NORM = 2, DROP = 4, RARE = 8, NEVER = 16, WRONG = 32, NOTHING = 64, ELSEWHERE = 128, HUGE_ = 256 };
static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    int        what = user ? *(int *)user : 0;
    int64_t    label = 0;
    dt_tensor *rare = NULL;
    if (what & (RARE | NEVER)) rare = dt_parameter(m, "rare", DT_SHAPE(3), .init = DT_INIT_CONST, .a = 1);
    dt_scope_begin(m, "net");
    if (what & CONV) {
        x = dt_conv2d(m, "conv", x, .out = 4, .kernel = 3, .pad = 1);
        x = what & NORM ? dt_batchnorm2d(m, "bn", x, .act = DT_ACT_RELU) : dt_relu(x);
        x = dt_maxpool2d(x, .kernel = 2);
    }
    dt_tensor *h = dt_linear(m, "a", dt_flatten(x), .out = 8, .act = DT_ACT_RELU);
    if (what & DROP) h = dt_op_dropout(dt_dropout(m, h, 0.2), 0.2);
    dt_tensor *out = dt_linear(m, "b", h, .out = OUT);
    dt_scope_end(m);
    if (what & (RARE | WRONG | NOTHING | ELSEWHERE | HUGE_)) dt_copy_out(dt_narrow(y, 0, 0, 1), &label, sizeof label);
    if (what & WRONG && label == 1) out = dt_matmul(out, out);
    if (what & NOTHING && label == 1) return NULL;
    if (what & ELSEWHERE && label == 1) return dt_mean(dt_to(out, dt_cpu()));
    if (what & HUGE_ && label == 1) dt_empty(DT_SHAPE((int64_t)1 << 40));
    dt_tensor *loss = dt_cross_entropy(out, y);
    if (what & RARE && label == 1) loss = dt_add(loss, dt_sum(rare));
    return loss;
}
static int values(dt_model *m, bool grads, bool buffers, float *out)
{
    int           n = 0;
    dt_parameter_info p;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        dt_tensor *t = grads ? dt_grad(p.value) : p.value;
        if (p.buffer != buffers || !t || dt_dtype_of(t) == DT_I64) continue;
        t = dt_cast(t, DT_F32);
        dt_copy_out(t, out + n, dt_nbytes(t));
        n += (int)dt_numel(t);
    }
    return n;
}
static double far(const float *a, const float *b, int n)
{
    double worst = n ? 0 : INFINITY;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]) / (1e-2 + fabs((double)b[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}
typedef struct run {
    const char *level; /* of mixed precision; NULL: none */
    dt_dtype    dtype;
    int         what, size, n; /* n: values */
    int         overflow;      /* a step whose batch is not finite */
    double      loss[STEPS + 2];
    float       value[ROOM], buffer[ROOM];
    int         buffers;
    int64_t     overflows;
} run;
/* devices 0: plain backwards of the whole batch */
static void train(dt_device *dev, int devices, run *r)
{
    dt_set_default_device(dev);
    dt_manual_seed(5);
    dt_model *m = dt_model_new(.seed = 3, .device = dev);
    dt_amp   *amp =
        r->level ? dt_amp_new(m, .level = r->level, .dtype = r->dtype, .loss_scale = DT_DYNAMIC, .init_scale = 1024)
                   : NULL;
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_parallel  *p = devices ? dt_parallel_new(m, .devices = devices) : NULL;
    for (int s = 0; s <= STEPS; s++) {
        dt_tensor *y, *x = batch(s * r->size, r->size, &y);
        if (s == STEPS) dt_model_eval(m);
        if (r->overflow && s == r->overflow) x = dt_mul_scalar(x, INFINITY);
        if (p) {
            dt_parallel_backward(p, loss_of, &r->what, x, y, &r->loss[s]);
        } else {
            dt_tensor *loss = loss_of(m, x, y, &r->what);
            r->loss[s] = dt_item(loss);
            if (amp) dt_amp_backward(amp, loss);
            else dt_backward(loss);
        }
        if (s < STEPS) dt_step(opt);
        else dt_end();
    }
    r->n = values(m, false, false, r->value);
    r->buffers = values(m, false, true, r->buffer);
    r->overflows = dt_amp_overflows(amp);
    dt_end();
    dt_parallel_free(p);
    dt_optimizer_free(opt);
    dt_amp_free(amp);
    dt_model_free(m);
    dt_set_default_device(NULL);
}
static bool same_losses(const run *a, const run *b, double tolerance)
{
    for (int s = 0; s <= STEPS; s++)
        if (!(fabs(a->loss[s] - b->loss[s]) <= tolerance) && isfinite(b->loss[s])) return false;
    return true;
}
static bool emulated(void) { return dlsym(RTLD_DEFAULT, "emu_progress") != NULL; }
static bool lazy(void)
{
    const char *mode = getenv("DT_EMU");
    return emulated() && (!mode || !strcmp(mode, "lazy"));
}
static void deterministic(bool on)
{
    for (int i = 0; i < dt_cuda_count(); i++) dt_cuda_set(dt_cuda(i), .deterministic = on ? DT_YES : DT_NO);
}
#define NEED(k) \
    if (dt_cuda_count() < (k)) UTEST_SKIP("fewer GPUs than " #k)

/* ---------------------------------------------------------------------------------------------------- numbers */
static run one, many, again, cpu;
UTEST(gpus, equal_one_and_those_of_the_cpu)
{
    static const int net[] = { 0, CONV }, size[] = { 9, 8, 5, 2, 1 };
    NEED(2);
    deterministic(true);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 5; k++) {
            one.what = many.what = again.what = cpu.what = net[i];
            one.size = many.size = again.size = cpu.size = size[k];
            train(dt_cuda(0), 0, &one);
            for (int n = 2; n <= dt_cuda_count() && n <= 4; n += 2) {
                train(dt_cuda(0), n, &many);
                train(dt_cuda(0), n, &again);
                train(dt_cpu(), n, &cpu);
                EXPECT_TRUE(dt_error() == NULL);
                dt_error_clear();
                ASSERT_EQ(one.n, many.n);
                EXPECT_LT(far(many.value, one.value, one.n), 1e-4);
                EXPECT_LT(far(many.value, cpu.value, one.n), 1e-4);
                EXPECT_TRUE(same_losses(&many, &one, 1e-5) && same_losses(&many, &cpu, 1e-5));
                EXPECT_TRUE(!memcmp(many.value, again.value, (size_t)many.n * sizeof(float)));
                EXPECT_TRUE(!memcmp(many.loss, again.loss, sizeof many.loss));
            }
        }
    }
    deterministic(false);
}
UTEST(gpus, have_batch_statistics_of_their_parts_and_the_first_ones_are_kept)
{
    NEED(2);
    for (int n = 2; n <= dt_cuda_count() && n <= 4; n += 2) {
        many.what = cpu.what = CONV | NORM;
        many.size = cpu.size = 8;
        train(dt_cuda(0), n, &many);
        train(dt_cpu(), n, &cpu);
        EXPECT_TRUE(dt_error() == NULL);
        ASSERT_EQ(8, many.buffers);
        EXPECT_LT(far(many.value, cpu.value, cpu.n), 1e-3);
        EXPECT_LT(far(many.buffer, cpu.buffer, cpu.buffers), 1e-4);
        EXPECT_TRUE(same_losses(&many, &cpu, 1e-4)); /* the last is of an evaluation: all use the first one's */
    }
}
UTEST(gpus, take_mixed_precision)
{
    static const char *const level[] = { "O0", "O1", "O2", "O2", "O3" };
    static const dt_dtype    dtype[] = { DT_F16, DT_F16, DT_F16, DT_BF16, DT_F16 };
    NEED(2);
    for (int k = 0; k < 5; k++) {
        many.level = cpu.level = level[k];
        many.dtype = cpu.dtype = dtype[k];
        many.what = cpu.what = CONV | NORM;
        many.size = cpu.size = 8;
        many.overflow = cpu.overflow = 2;
        train(dt_cuda(0), 2, &many);
        train(dt_cpu(), 2, &cpu);
        EXPECT_TRUE(dt_error() == NULL);
        dt_error_clear();
        ASSERT_EQ(cpu.n, many.n);
        double eps = k == 0 ? 0x1p-17 : dtype[k] == DT_F16 ? 0x1p-10 : 0x1p-7, worst = 0;
        for (int i = 0; i < cpu.n; i++) {
            double e = fabs((double)many.value[i] - cpu.value[i]);
            if (!(e <= worst)) worst = e;
        }
        EXPECT_LT(worst, 4 * eps);
        EXPECT_TRUE(same_losses(&many, &cpu, 8 * eps));
        EXPECT_TRUE(!isfinite(many.loss[2]));
        EXPECT_EQ(1, many.overflows);
    }
    many.level = cpu.level = NULL;
    many.overflow = cpu.overflow = 0;
}
UTEST(gpus, draw_the_same_numbers_in_every_run)
{
    NEED(2);
    one.what = many.what = again.what = DROP;
    one.size = many.size = again.size = 8;
    deterministic(true);
    train(dt_cuda(0), 1, &one);
    train(dt_cuda(0), 2, &many);
    train(dt_cuda(0), 2, &again);
    EXPECT_TRUE(!memcmp(many.value, again.value, (size_t)many.n * sizeof(float)));
    EXPECT_TRUE(memcmp(many.value, one.value, (size_t)many.n * sizeof(float)) != 0);
    EXPECT_TRUE(dt_error() == NULL);
    deterministic(false);
}
UTEST(gpus, gradients_add_up_and_reach_what_any_part_reaches)
{
    static float want[ROOM], got[ROOM];
    NEED(2);
    int         n = dt_cuda_count() < 3 ? 2 : 3, never = NEVER, rare = RARE;
    const float bias[OUT] = { 1, -2, 0.5f };
    dt_set_default_device(dt_cuda(0));
    dt_model    *m = dt_model_new(.seed = 3), *ref = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = n);
    dt_tensor   *y, *x;
    dt_model_freeze(m, "net.b.bias"); /* in no block */
    dt_model_freeze(ref, "net.b.bias");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) { /* twice: the second call adds */
            x = batch(100 * i, 12, &y);
            EXPECT_OK(dt_parallel_backward(p, loss_of, &never, x, y, NULL));
            EXPECT_OK(dt_backward(loss_of(ref, x, y, &never)));
        }
        int k = values(m, true, false, got);
        EXPECT_EQ(k, values(ref, true, false, want));
        EXPECT_LT(far(got, want, k), 1e-4);
        for (int i = 0; i < dt_model_count(m); i++) {
            dt_parameter_info a, b;
            dt_model_get(m, i, &a);
            dt_model_get(ref, i, &b);
            dt_zero_grad(a.value);
            dt_zero_grad(b.value);
            if (round == 0 && strstr(a.name, "net.b.bias")) { /* changed by hand, it reaches the replicas, too */
                dt_copy_in(a.value, bias, sizeof bias);
                dt_copy_in(b.value, bias, sizeof bias);
            }
        }
        dt_end();
        dt_model_freeze(m, "net.a.*"); /* the replicas are made anew */
        dt_model_freeze(ref, "net.a.*");
    }
    int64_t label[6] = { 0, 2, 2, 1, 1, 2 };
    float   g[3] = { 0, 0, 0 };
    x = dt_ones(DT_SHAPE(6, 1, SIDE, SIDE));
    y = dt_from(label, DT_SHAPE(6), .dtype = DT_I64); /* the last part begins with a 1 */
    EXPECT_OK(dt_parallel_backward(p, loss_of, &rare, x, y, NULL));
    EXPECT_OK(dt_copy_out(dt_grad(dt_model_find(m, "rare")), g, sizeof g));
    EXPECT_NEAR(1.0 / n, g[0], 1e-6);
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
    dt_model_free(ref);
    dt_set_default_device(NULL);
}
UTEST(gpus, take_batches_from_anywhere_and_any_list_of_devices)
{
    NEED(3);
    dt_device   *on[3] = { dt_cuda(2), dt_cuda(0), dt_cuda(1) };
    dt_model    *m = dt_model_new(.seed = 3, .device = on[0]);
    dt_parallel *p = dt_parallel_new(m, .devices = 3, .on = on);
    double       want = 0, loss = 0;
    dt_tensor   *y, *x = batch(0, 7, &y);
    EXPECT_EQ(3, dt_parallel_devices(p));
    for (int i = -1; i < 3; i++) {
        dt_device *dev = i < 0 ? dt_cpu() : dt_cuda(i);
        EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, dt_to(x, dev), dt_to(y, dev), &loss));
        if (i < 0) want = loss;
        EXPECT_EQ(want, loss);
    }
    dt_tensor *t = dt_transpose(dt_to(dt_contiguous(dt_transpose(x, 0, 3)), on[0]), 0, 3); /* not dense */
    EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, t, dt_to(y, on[1]), &loss));
    EXPECT_EQ(want, loss);
    EXPECT_TRUE(dt_default_device() == dt_cpu());
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
}
UTEST(gpus, compute_in_the_callers_streams)
{
    NEED(2);
    dt_device        *dev[2] = { dt_cuda(0), dt_cuda(1) };
    const dt_backend *be = dt_device_backend(dev[0]);
    one.what = many.what = CONV;
    one.size = many.size = 8;
    deterministic(true);
    train(dev[0], 2, &one);
    for (int i = 0; i < 2; i++) ASSERT_EQ(0, be->order(dev[i], dt_cuda_comm_stream(dev[i]), NULL));
    for (int i = 0; i < 2; i++) dt_device_set_stream(dev[i], dt_cuda_comm_stream(dev[i]));
    train(dev[0], 2, &many);
    for (int i = 0; i < 2; i++) dt_device_set_stream(dev[i], NULL);
    for (int i = 0; i < 2; i++) ASSERT_EQ(0, be->order(dev[i], NULL, dt_cuda_comm_stream(dev[i])));
    EXPECT_TRUE(!memcmp(many.value, one.value, (size_t)one.n * sizeof(float)));
    EXPECT_TRUE(dt_error() == NULL);
    deterministic(false);
}
static void CUDART_CB it_ran(void *flag) { *(int *)flag = 1; }
UTEST(gpus, wait_for_nothing_unless_the_loss_is_asked_for)
{
    if (!lazy()) UTEST_SKIP("only with lazy streams nothing runs by itself");
    int           n = dt_cuda_count(), what = CONV | NORM, ran[16] = { 0 };
    dt_model     *m = dt_model_new(.seed = 3, .device = dt_cuda(0));
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_parallel  *p = dt_parallel_new(m);
    double        loss = 0;
    EXPECT_EQ(n, dt_parallel_devices(p)); /* all there are */
    dt_set_default_device(dt_cuda(0));
    for (int s = 0; s < 4; s++) {
        dt_tensor *y, *x = batch(0, 8, &y);
        for (int i = 0; i < n; i++) { /* what is queued first runs when anything of the stream is waited for */
            ran[i] = 0;
            dt_synchronize(dt_cuda(i));
            cudaStream_t stream = (cudaStream_t)dt__cuda_stream(dt_cuda(i), NULL);
            ASSERT_EQ(cudaSuccess, (int)cudaLaunchHostFunc(stream, it_ran, &ran[i]));
        }
        EXPECT_OK(dt_parallel_backward(p, loss_of, &what, x, y, s == 2 ? NULL : &loss));
        for (int i = 0; i < n && s >= 2; i++) EXPECT_EQ(s == 3, ran[i]); /* that of the loss needs all of them */
        EXPECT_OK(dt_step(opt));
    }
    for (int i = 0; i < n; i++) dt_synchronize(dt_cuda(i));
    dt_parallel_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_set_default_device(NULL);
}

/* ---------------------------------------------------------------------------------------------------- the entries
   of the table: what is queued before is seen, and what is queued behind does not disturb. The first device that waits
   makes its stream run before the others. */
enum { MOST = 4, COUNT = 300 };
typedef struct blocks { /* on each device: COUNT floats, COUNT halves, a number of 8 bytes */
    int        n;
    dt_device *dev[MOST];
    dt_tensor *t[3][MOST];
    dt_view    view[3 * MOST];
    void      *stream[MOST];
} blocks;
static void blocks_make(blocks *b, int n)
{
    const int64_t  size[3] = { COUNT, COUNT, 1 };
    const dt_dtype dtype[3] = { DT_F32, DT_F16, DT_I64 };
    memset(b, 0, sizeof *b);
    b->n = n;
    for (int i = 0; i < n; i++) b->dev[i] = dt_cuda(i);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) {
            dt_view *v = &b->view[k * n + i];
            v->data = dt_device_backend(b->dev[i])->alloc(b->dev[i], COUNT * sizeof(float));
            b->t[k][i] = dt_from_blob(v->data, DT_SHAPE(size[k]), .dtype = dtype[k], .device = b->dev[i]);
            dt_fill(b->t[k][i], i + 1);
            v->dtype = dtype[k];
            v->ndim = 1;
            v->shape[0] = size[k];
            v->stride[0] = 1;
        }
}
static void blocks_free(blocks *b)
{
    dt_end();
    for (int k = 0; k < 3 * b->n; k++) {
        dt_device *dev = b->dev[k % b->n];
        dt_device_backend(dev)->free(dev, b->view[k].data, COUNT * sizeof(float));
    }
}
static bool all_are(dt_tensor *t, double want)
{
    float v[COUNT];
    t = dt_cast(t, DT_F32);
    if (dt_copy_out(t, v, dt_nbytes(t))) return false;
    for (int64_t i = 0; i < dt_numel(t); i++)
        if (v[i] != (float)want) return false;
    return true;
}
UTEST(entries, a_copy_between_devices)
{
    NEED(2);
    blocks b;
    blocks_make(&b, 2);
    const dt_backend *be = dt_device_backend(b.dev[0]);
    for (int i = 0; i < 2; i++) { /* there and back */
        dt_tensor *from = b.t[0][i], *to = b.t[0][!i];
        EXPECT_OK(dt_fill(from, 7 + i));
        EXPECT_EQ(0, be->peer(b.dev[!i], NULL, b.view[!i].data, b.dev[i], NULL, b.view[i].data, COUNT * sizeof(float)));
        EXPECT_EQ(0, be->peer(b.dev[!i], NULL, b.view[!i].data, b.dev[i], NULL, b.view[i].data, 0));
        EXPECT_OK(dt_fill(from, 100));
        EXPECT_TRUE(all_are(from, 100) && all_are(to, 7 + i));
    }
    blocks_free(&b);
}
UTEST(entries, broadcasts_and_sums)
{
    NEED(2);
    for (int n = 2; n <= dt_cuda_count() && n <= MOST; n++) {
        blocks b;
        blocks_make(&b, n);
        const dt_backend *be = dt_device_backend(b.dev[0]);
        void             *g = be->group_new(b.dev, n);
        ASSERT_TRUE(g != NULL);
        EXPECT_EQ(0, be->group_sum(g, b.stream, b.view, 2));
        for (int k = 0; k < 2; k++)
            for (int i = 1; i < n; i++) EXPECT_OK(dt_fill(b.t[k][i], 50));
        for (int i = 1; i < n; i++) EXPECT_TRUE(all_are(b.t[0][i], 50));
        for (int k = 0; k < 2; k++) EXPECT_TRUE(all_are(b.t[k][0], n * (n + 1) / 2));
        for (int k = 0; k < 3; k++) EXPECT_OK(dt_fill(b.t[k][0], 1000 + k));
        EXPECT_EQ(0, be->group_broadcast(g, b.stream, b.view, 3));
        for (int k = 0; k < 3; k++) EXPECT_OK(dt_fill(b.t[k][0], 3));
        EXPECT_TRUE(all_are(b.t[0][0], 3));
        for (int k = 0; k < 3; k++)
            for (int i = 1; i < n; i++) EXPECT_TRUE(all_are(b.t[k][i], 1000 + k));
        be->group_free(g);
        blocks_free(&b);
    }
}

/* ---------------------------------------------------------------------------------------------------- mistakes */
UTEST(mistakes, in_the_list_of_devices)
{
    NEED(2);
    dt_device *twice[2] = { dt_cuda(0), dt_cuda(0) }, *kinds[2] = { dt_cuda(0), dt_cpu() };
    dt_device *other[2] = { dt_cuda(1), dt_cuda(0) }, *hole[2] = { dt_cuda(0), NULL };
    dt_device *threads[2] = { dt_cpu(), dt_cpu() };
    dt_model  *m = dt_model_new(.device = dt_cuda(0)), *host = dt_model_new();
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2, .on = twice) ? 0 : -1, ".on has cuda:0 twice");
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2, .on = kinds) ? 0 : -1, ".on has cuda:0 and cpu, expected devices of one backend");
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2, .on = other) ? 0 : -1, "is on cuda:0 and .on begins with cuda:1");
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2, .on = hole) ? 0 : -1, "device 1 of 2 in .on is NULL");
    EXPECT_ERROR(dt_parallel_new(m, .on = other) ? 0 : -1, ".devices is 0");
    EXPECT_ERROR(dt_parallel_new(m, .devices = 17) ? 0 : -1, ".devices is 17, from cuda:0 on; there are fewer");
    EXPECT_ERROR(dt_parallel_new(host, .devices = 2, .on = other) ? 0 : -1, "expected devices of one backend");
    EXPECT_ERROR(dt_parallel_new(host, .devices = 2, .on = threads) ? 0 : -1, "cpu twice; on the CPU .devices is en");
    dt_parallel *p = dt_parallel_new(m, .devices = 2);
    dt_tensor   *y, *x = batch(0, 6, &y);
    EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, x, y, NULL));
    dt_end();
    EXPECT_OK(dt_model_to(m, dt_cpu()));
    x = batch(0, 6, &y);
    EXPECT_ERROR(dt_parallel_backward(p, loss_of, NULL, x, y, NULL),
                 "the model is on cpu; at dt_parallel_new it was on");
    dt_end();
    dt_model_free(m); /* the model first */
    dt_parallel_free(p);
    dt_model_free(host);
}
UTEST(mistakes, of_a_device_are_the_callers)
{
    static const struct {
        int         what;
        const char *says;
    } kind[] = { { WRONG, "dt_matmul" },
                 { NOTHING, "fn returned NULL" },
                 { ELSEWHERE, "fn returned a loss on cpu; this part is computed on cuda:1" },
                 { HUGE_, "out of memory: 4398046511104 bytes on cuda:1" } };
    int64_t label[8] = { 0, 0, 0, 0, 1, 1, 1, 1 };
    int     good = 0;
    double  loss;
    NEED(2);
    dt_model    *m = dt_model_new(.seed = 3, .device = dt_cuda(0));
    dt_parallel *p = dt_parallel_new(m, .devices = 2);
    for (int i = 0; i < 4; i++) {
        int        what = kind[i].what;
        dt_tensor *y, *x = batch(0, 8, &y);
        if (i) EXPECT_OK(dt_parallel_backward(p, loss_of, &good, x, y, &loss));
        dt_tensor *z = dt_from(label, DT_SHAPE(8), .dtype = DT_I64);
        EXPECT_TRUE(dt_parallel_backward(p, loss_of, &what, x, z, &loss) != DT_OK);
        EXPECT_TRUE(isnan(loss));
        EXPECT_TRUE(dt_error() && strstr(dt_error(), "device 1 (cuda:1): ") && strstr(dt_error(), kind[i].says));
        dt_error_clear();
        EXPECT_TRUE(dt_grad(dt_model_find(m, "net.a.weight")) == NULL);
        dt_end();
    }
    dt_tensor *y, *x = batch(0, 8, &y);
    EXPECT_OK(dt_parallel_backward(p, loss_of, &good, x, y, &loss)); /* and it goes on */
    EXPECT_TRUE(dt_grad(dt_model_find(m, "net.a.weight")) != NULL);
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
}
static dt_tensor *wide(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user, (void)y;
    return dt_mean(dt_linear(m, "wide", dt_flatten(x), .out = 9000)); /* 1.3 MB */
}
UTEST(mistakes, no_memory_for_a_replica)
{
    NEED(2);
    if (!emulated()) UTEST_SKIP("fills a device's memory; only with the small ones of the emulation");
    dt_tensor   *most[65];
    int          n = 0;
    while (n < 65 && (most[n] = dt_empty(DT_SHAPE(1 << 20), .dtype = DT_U8, .device = dt_cuda(1))) != NULL) dt_keep(most[n++]);
    ASSERT_TRUE(n > 20 && n < 65);
    dt_error_clear();
    dt_model    *m = dt_model_new(.seed = 3, .device = dt_cuda(0));
    dt_parallel *p = dt_parallel_new(m, .devices = 2);
    double       loss = 0;
    dt_tensor   *y, *x = batch(0, 4, &y);
    EXPECT_ERROR(dt_parallel_backward(p, wide, NULL, x, y, &loss), "bytes on cuda:1");
    EXPECT_TRUE(dt_grad(dt_model_find(m, "wide.weight")) == NULL);
    dt_end();
    while (n > 0) dt_free(most[--n]);
    dt_empty_cache();
    x = batch(0, 4, &y);
    EXPECT_OK(dt_parallel_backward(p, wide, NULL, x, y, &loss));
    EXPECT_TRUE(isfinite(loss));
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
}
static int mappings(void) /* of memory that processes share: what the emulated communicators have */
{
    char  line[512];
    int   n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) n += strstr(line, "/dev/shm/") != NULL;
    if (f) fclose(f);
    return n;
}
UTEST(gpus, give_back_what_they_took)
{
    NEED(2);
    size_t used[4] = { 0, 0, 0, 0 };
    int    maps = 0, what = CONV | NORM;
    for (int round = 0; round < 3; round++) {
        dt_model    *m = dt_model_new(.seed = 3, .device = dt_cuda(0));
        dt_parallel *p = dt_parallel_new(m, .devices = 2);
        double       loss;
        dt_tensor   *y, *x = batch(0, 8, &y);
        EXPECT_OK(dt_parallel_backward(p, loss_of, &what, x, y, &loss));
        dt_end();
        dt_parallel_free(p);
        dt_model_free(m);
        dt_empty_cache();
        for (int i = 0; i < 2; i++) {
            size_t now = dt_cuda_get_stats(dt_cuda(i)).used;
            if (round) EXPECT_EQ(used[i], now);
            used[i] = now;
        }
        if (round) EXPECT_EQ(maps, mappings());
        maps = mappings();
    }
}
/* dt_nccl.h registers itself; the program "-copies" is linked without it. */
UTEST(gpus, exchange_by_nccl_if_it_is_in_the_program)
{
    NEED(2);
    bool         copies = strstr(program_invocation_name, "-copies") != NULL;
    dt_model    *m = dt_model_new(.seed = 3, .device = dt_cuda(0));
    dt_parallel *p = dt_parallel_new(m, .devices = 2);
    double       loss;
    dt_tensor   *y, *x = batch(0, 8, &y);
    EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, x, y, &loss));
    if (emulated()) EXPECT_EQ(copies, mappings() == 0);
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
    dt_comm *c = dt_comm_init(.backend = DT_NCCL);
    if (copies) {
        EXPECT_TRUE(c == NULL);
        EXPECT_STREQ("dt_comm_init: .backend is 1; NCCL is not in this program: include dt_nccl.h and compile with "
                     "-DDT_USE_CUDA -DDT_USE_NCCL",
                     dt_comm_error(NULL));
    } else EXPECT_TRUE(c != NULL);
    if (c) EXPECT_EQ(0, dt_comm_free(c));
}
