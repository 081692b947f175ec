/* test_parallel.c: several devices in one process give the numbers of one: unequal and missing parts, accumulation,
   parameters that some parts reach, mixed precision, batch norm, dropout, errors of devices */
#include "dt_test.h"

#include "dt_dist.h"
#include "fake_device.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

UTEST_MAIN()

enum { IN = 6, OUT = 3, ROOM = 4096 };
static dt_tensor *batch(int first, int n, dt_tensor **y)
{
    float   x[64 * IN];
    int64_t label[64];
    for (int i = 0; i < n; i++) {
        uint32_t r[4] = { 0, 0, 0, 0 };
        for (int k = 0; k < IN; k++) {
            dt_philox(7, (uint64_t)(first + i) * IN + (uint64_t)k, r);
            x[i * IN + k] = (float)r[0] / 4294967296.0f * 2 - 1;
        }
        label[i] = (int64_t)(r[1] % OUT);
    }
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
    return dt_from(x, DT_SHAPE(n, IN));
}
/* what the parts do, by bits of *user */
enum { DROP = 1, NORM = 2, RARE = 4, NEVER = 8, WRONG = 16, NOTHING = 32, NO_SCALAR = 64 };
static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    int        what = user ? *(int *)user : 0;
    int64_t    label = 0;
    dt_tensor *rare = NULL;
    if (what & (RARE | NEVER)) rare = dt_parameter(m, "rare", DT_SHAPE(3), .init = DT_INIT_CONST, .a = 1);
    dt_scope_begin(m, "net");
    dt_tensor *h = dt_linear(m, "a", x, .out = 16, .act = DT_ACT_RELU), *out;
    if (what & NORM) h = dt_batchnorm1d(m, "bn", h);
    if (what & DROP) h = dt_op_dropout(dt_dropout(m, h, 0.2), 0.2);
    out = dt_linear(m, "b", h, .out = OUT);
    dt_scope_end(m);
    dt_copy_out(dt_narrow(y, 0, 0, 1), &label, sizeof label);
    if (what & WRONG && label == 1) out = dt_matmul(out, out);
    if (what & NOTHING && label == 1) return NULL;
    if (what & NO_SCALAR) return out;
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
/* devices 0: plain dt_backward of the whole batch */
static int train(int devices, int size, int steps, int what, float *out, double *last)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_parallel  *p = devices ? dt_parallel_new(m, .devices = devices) : NULL;
    dt_manual_seed(5);
    for (int s = 0; s < steps; s++) {
        dt_tensor *y, *x = batch(s * size, size, &y);
        if (p) {
            dt_parallel_backward(p, loss_of, &what, x, y, last);
        } else {
            dt_tensor *loss = loss_of(m, x, y, &what);
            *last = dt_item(loss);
            dt_backward(loss);
        }
        dt_step(opt);
    }
    int n = values(m, false, false, out);
    dt_optimizer_free(opt);
    dt_parallel_free(p);
    dt_model_free(m);
    return n;
}

/* ---------------------------------------------------------------------------------------------------- numbers */
UTEST(parallel, equals_one_device)
{
    static float want[ROOM], got[ROOM], again[ROOM];
    int          size[] = { 24, 10, 5, 3, 1 };
    for (int k = 0; k < 5; k++) {
        double one, many = 0, more = 0;
        int    n = train(0, size[k], 20, 0, want, &one);
        for (int devices = 1; devices <= 4; devices++) {
            ASSERT_EQ(n, train(devices, size[k], 20, 0, got, &many));
            ASSERT_EQ(n, train(devices, size[k], 20, 0, again, &more));
            EXPECT_TRUE(dt_error() == NULL);
            EXPECT_LT(far(got, want, n), 1e-3);
            EXPECT_NEAR(one, many, 1e-4);
            EXPECT_TRUE(!memcmp(got, again, (size_t)n * sizeof *got) && many == more);
            if (devices == 1) EXPECT_TRUE(!memcmp(got, want, (size_t)n * sizeof *got));
        }
    }
}
UTEST(parallel, random_numbers_are_the_same_in_every_run_and_differ_between_devices)
{
    static float one[ROOM], got[ROOM], again[ROOM];
    double       last;
    int          n = train(1, 12, 6, DROP, one, &last);
    for (int devices = 2; devices <= 3; devices++) {
        ASSERT_EQ(n, train(devices, 12, 6, DROP, got, &last));
        ASSERT_EQ(n, train(devices, 12, 6, DROP, again, &last));
        EXPECT_TRUE(!memcmp(got, again, (size_t)n * sizeof *got));
        EXPECT_TRUE(memcmp(got, one, (size_t)n * sizeof *got) != 0);
    }
}
static dt_tensor *drawn(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* a number of each device's generators */
{
    float v[2];
    dt_copy_out(dt_mean(dt_dropout(m, dt_ones(DT_SHAPE(64)), 0.5)), &v[0], 4);
    dt_copy_out(dt_normal(0, 1, DT_SCALAR), &v[1], 4);
    int64_t part;
    dt_copy_out(y, &part, sizeof part);
    memcpy((float *)user + 2 * part, v, sizeof v);
    return dt_mean(dt_linear(m, "a", x, .out = 2));
}
UTEST(parallel, every_device_and_call_draws_its_own_numbers)
{
    dt_model    *m = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = 3);
    float        v[2][3][2];
    int64_t      label[3] = { 0, 1, 2 };
    for (int s = 0; s < 2; s++) {
        dt_tensor *x = dt_ones(DT_SHAPE(3, 4)), *y = dt_from(label, DT_SHAPE(3), .dtype = DT_I64);
        EXPECT_OK(dt_parallel_backward(p, drawn, v[s], x, y, NULL));
        dt_end();
    }
    EXPECT_TRUE(v[0][0][1] != v[0][1][1] && v[0][1][1] != v[0][2][1] && v[0][1][1] != v[1][1][1]);
    EXPECT_TRUE(v[1][1][1] != v[1][2][1] && v[0][2][1] != v[1][2][1]);
    dt_parallel_free(p);
    dt_model_free(m);
}
UTEST(parallel, gradients_add_up_and_reach_what_any_part_reaches)
{
    static float want[ROOM], got[ROOM];
    dt_model    *m = dt_model_new(.seed = 3), *ref = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = 3);
    int          never = NEVER, rare = RARE;
    dt_tensor   *y, *x;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) { /* twice: the second call adds */
            x = batch(100 * i, 12, &y);
            EXPECT_OK(dt_parallel_backward(p, loss_of, &never, x, y, NULL));
            EXPECT_OK(dt_backward(loss_of(ref, x, y, &never)));
        }
        EXPECT_TRUE(dt_model_find(m, "rare") != NULL);
        int n = values(m, true, false, got);
        EXPECT_EQ(n, values(ref, true, false, want));
        EXPECT_LT(far(got, want, n), 1e-4);
        for (int i = 0; i < dt_model_count(m); i++) {
            dt_parameter_info a, b;
            dt_model_get(m, i, &a);
            dt_model_get(ref, i, &b);
            dt_zero_grad(a.value);
            dt_zero_grad(b.value);
        }
        dt_end();
        dt_model_freeze(m, "net.a.*"); /* the replicas are made anew */
        dt_model_freeze(ref, "net.a.*");
    }
    /* the part whose first label is 1; a new optimiser packs the model anew */
    dt_optimizer *opt = dt_sgd(m, .lr = 0.3);
    int64_t label[6] = { 0, 2, 1, 0, 2, 2 };
    float   g[3] = { 0, 0, 0 };
    x = dt_ones(DT_SHAPE(6, IN));
    y = dt_from(label, DT_SHAPE(6), .dtype = DT_I64);
    EXPECT_OK(dt_parallel_backward(p, loss_of, &rare, x, y, NULL));
    EXPECT_OK(dt_copy_out(dt_grad(dt_model_find(m, "rare")), g, sizeof g));
    EXPECT_NEAR(1.0 / 3, g[0], 1e-6);
    EXPECT_OK(dt_step(opt));
    EXPECT_OK(dt_copy_out(dt_model_find(m, "rare"), g, sizeof g));
    EXPECT_NEAR(0.9, g[0], 1e-6);
    dt_optimizer_free(opt);
    dt_parallel_free(p);
    dt_model_free(m);
    dt_model_free(ref);
}
UTEST(parallel, running_statistics_are_the_first_devices)
{
    dt_model    *m = dt_model_new(.seed = 3), *first = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = 3);
    int          what = NORM;
    float        a[64], b[64];
    for (int s = 0; s < 4; s++) {
        dt_tensor *y, *x = batch(12 * s, 12, &y), *some;
        EXPECT_OK(dt_parallel_backward(p, loss_of, &what, x, y, NULL));
        x = batch(12 * s, 4, &some);
        EXPECT_OK(dt_backward(loss_of(first, x, some, &what)));
        dt_end();
    }
    EXPECT_EQ(32, values(m, false, true, a));
    EXPECT_EQ(32, values(first, false, true, b));
    EXPECT_TRUE(!memcmp(a, b, 32 * sizeof *a));
    EXPECT_EQ(4.0, dt_item(dt_model_find(m, "net.bn.num_batches_tracked")));
    dt_model_eval(m); /* all devices use them */
    dt_model_eval(first);
    dt_tensor *y, *x = batch(100, 12, &y);
    double     loss = 0;
    EXPECT_OK(dt_parallel_backward(p, loss_of, &what, x, y, &loss));
    EXPECT_NEAR(dt_item(loss_of(first, x, y, &what)), loss, 1e-5);
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
    dt_model_free(first);
}
UTEST(parallel, takes_mixed_precision)
{
    const char  *level[] = { "O0", "O1", "O2", "O3" };
    static float want[ROOM], got[ROOM];
    for (int k = 0; k < 4; k++) {
        for (int side = 0; side < 2; side++) {
            dt_model     *m = dt_model_new(.seed = 3);
            dt_amp       *amp = dt_amp_new(m, .level = level[k], .loss_scale = DT_DYNAMIC, .init_scale = 1024);
            dt_optimizer *opt = dt_sgd(m, .lr = 0.05);
            dt_parallel  *p = dt_parallel_new(m, .devices = 3);
            for (int s = 0; s < 6; s++) {
                dt_tensor *y, *x = batch(12 * s, 12, &y);
                if (s == 3) x = dt_mul_scalar(x, INFINITY); /* an overflow, which is skipped */
                if (side) EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, x, y, NULL));
                else EXPECT_OK(dt_amp_backward(amp, loss_of(m, x, y, NULL)));
                dt_step(opt);
            }
            int n = values(m, false, false, side ? got : want);
            EXPECT_EQ(1, dt_amp_overflows(amp));
            EXPECT_EQ(512.0, dt_amp_scale(amp, 0));
            if (side) EXPECT_LT(far(got, want, n), k ? 0.1 : 1e-3);
            dt_end();
            dt_parallel_free(p);
            dt_optimizer_free(opt);
            dt_amp_free(amp);
            dt_model_free(m);
            EXPECT_TRUE(dt_error() == NULL);
            dt_error_clear();
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- devices */
/* Devices with memory of their own, whose backend has nothing for several of them: all goes through the host. */
UTEST(devices, with_memory_of_their_own_give_the_same_bits)
{
    static float want[ROOM], got[ROOM];
    fake_device *f[3] = { fake_device_new(0), fake_device_new(0), fake_device_new(0) };
    dt_device   *on[3] = { f[0]->dev, f[1]->dev, f[2]->dev };
    int          kind[] = { 0, NORM, RARE, DROP }, size[] = { 12, 7, 4, 1 }; /* 4: two parts, one device is idle */
    fake_device_use_all();
    for (int k = 0; k < 4; k++) {
        double loss[2][6];
        int    n[2] = { 0, 0 };
        for (int side = 0; side < 2; side++) {
            if (side) dt_set_default_device(on[0]);
            dt_manual_seed(5);
            dt_model     *m = dt_model_new(.seed = 3);
            dt_optimizer *opt = dt_adam(m, .lr = 0.01);
            dt_parallel  *p = side ? dt_parallel_new(m, .devices = 3, .on = on) : dt_parallel_new(m, .devices = 3);
            for (int s = 0; s < 6; s++) {
                int first = k == 2 ? 40 : 12 * s, count = k % 2 ? 12 : size[s % 4];
                if (side && s == 4) dt_set_default_device(NULL); /* batches may be on the CPU */
                dt_tensor *y, *x = batch(first, count, &y);
                dt_set_default_device(side ? on[0] : NULL);
                EXPECT_OK(dt_parallel_backward(p, loss_of, &kind[k], x, y, &loss[side][s]));
                EXPECT_OK(dt_step(opt));
            }
            n[side] = values(m, false, false, side ? got : want);
            n[side] += values(m, false, true, (side ? got : want) + n[side]);
            dt_parallel_free(p);
            dt_optimizer_free(opt);
            dt_model_free(m);
            dt_end();
            dt_set_default_device(NULL);
        }
        ASSERT_EQ(n[0], n[1]);
        EXPECT_TRUE(!memcmp(want, got, (size_t)n[0] * sizeof *want));
        for (int s = 0; s < 6; s++) EXPECT_NEAR(loss[0][s], loss[1][s], 1e-6);
    }
    dt_empty_cache();
    for (int i = 0; i < 3; i++) EXPECT_EQ(DT_OK, fake_device_free(f[i]));
}
/* A model that is on several devices already cannot be copied to each device. */
static dt_tensor *in_two_parts(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    dt_device *dev = (dt_device *)user, *first = dt_device_of(x);
    x = dt_linear(m, "a", x, .out = 4);
    dt_device_begin(m, dev);
    x = dt_linear(m, "b", dt_to(x, dev), .out = OUT);
    dt_device_end(m);
    return dt_cross_entropy(dt_to(x, first), y);
}
UTEST(devices, of_one_model_are_refused)
{
    fake_device *f = fake_device_new(0);
    for (int late = 0; late < 2; late++) {
        dt_model    *m = dt_model_new(.seed = 3);
        dt_tensor   *y, *x = batch(0, 8, &y);
        dt_parallel *p = late ? dt_parallel_new(m, .devices = 2) : NULL;
        dt_no_grad_begin();
        EXPECT_OK(in_two_parts(m, x, y, f->dev));
        dt_no_grad_end();
        if (!late)
            EXPECT_ERROR(dt_parallel_new(m, .devices = 2) ? 0 : -1,
                         "dt_parallel_new: the model is on several devices ('a.weight' on cpu, 'b.weight' on fake:0)");
        if (late) {
            dt_end();
            x = batch(0, 8, &y);
            EXPECT_ERROR(dt_parallel_backward(p, in_two_parts, f->dev, x, y, NULL), "copies the whole model to each device");
        }
        dt_end();
        dt_parallel_free(p);
        p = dt_parallel_new(m, .devices = 1); /* one part takes any model */
        x = batch(0, 8, &y);
        EXPECT_OK(dt_parallel_backward(p, in_two_parts, f->dev, x, y, NULL));
        dt_parallel_free(p);
        dt_end();
        dt_model_free(m);
    }
    /* the first forward of all is that of the parts */
    dt_model    *m = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = 2);
    dt_tensor   *y, *x = batch(0, 8, &y);
    EXPECT_ERROR(dt_parallel_backward(p, in_two_parts, f->dev, x, y, NULL), "copies the whole model to each device");
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
}
UTEST(devices, are_named_where_the_backend_has_no_list)
{
    fake_device *f[2] = { fake_device_new(0), fake_device_new(0) };
    dt_device   *on[2] = { f[0]->dev, f[1]->dev }, *kinds[2] = { f[0]->dev, dt_cpu() };
    dt_model    *m = dt_model_new(.seed = 3, .device = on[0]);
    dt_tensor   *y, *x = batch(0, 8, &y);
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2) ? 0 : -1, "from fake:0 on; name them in .on");
    EXPECT_ERROR(dt_parallel_new(m, .devices = 2, .on = kinds) ? 0 : -1, ".on has fake:0 and cpu");
    EXPECT_ERROR(dt_parallel_new(m, .on = on) ? 0 : -1, ".devices is 0");
    dt_parallel *p = dt_parallel_new(m);
    EXPECT_EQ(1, dt_parallel_devices(p)); /* the model's own */
    dt_parallel_free(p);
    p = dt_parallel_new(m, .devices = 2, .on = on);
    f[1]->fail_alloc = 3; /* the cache is given back, and it is tried once more */
    EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, x, y, NULL));
    f[1]->fail_kernel = 5;
    EXPECT_TRUE(dt_parallel_backward(p, loss_of, NULL, x, y, NULL) != DT_OK); /* it shows when something waits */
    EXPECT_TRUE(dt_error() != NULL);
    dt_error_clear();
    EXPECT_TRUE(dt_grad(dt_model_find(m, "net.a.weight")) == NULL);
    EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, x, y, NULL));
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
    dt_empty_cache();
    for (int i = 0; i < 2; i++) EXPECT_EQ(DT_OK, fake_device_free(f[i]));
}
/* Every allocation fails once: an error, or all is well; nothing stays behind. */
UTEST(devices, without_memory_are_an_error)
{
    int failed = 0, good = 0, what = NORM;
    for (int n = 0; good < 3 && n < 4000; n += n < 300 ? 1 : 7) {
        dt_test_budget b;
        ASSERT_EQ(DT_OK, dt_test_budget_set(&b, -1));
        fake_device *f[2] = { fake_device_new(0), fake_device_new(0) };
        dt_device   *on[2] = { f[0]->dev, f[1]->dev };
        dt_tensor   *y, *x = batch(0, 8, &y);
        __atomic_store_n(&b.left, n, __ATOMIC_RELAXED);
        dt_model    *m = dt_model_new(.seed = 3, .device = on[0]);
        dt_parallel *p = dt_parallel_new(m, .devices = 2, .on = on);
        double       loss = 0;
        for (int s = 0; s < 2; s++)
            if (dt_parallel_backward(p, loss_of, &what, x, y, &loss)) break;
        bool ok = !dt_error() && isfinite(loss);
        EXPECT_TRUE(ok || dt_error_code() == DT_ERR_MEMORY);
        good += ok && __atomic_load_n(&b.left, __ATOMIC_RELAXED) >= 0;
        failed += !ok;
        dt_error_clear();
        dt_end();
        dt_parallel_free(p);
        dt_model_free(m);
        dt_empty_cache();
        for (int i = 0; i < 2; i++) EXPECT_EQ(DT_OK, fake_device_free(f[i]));
        ASSERT_EQ(DT_OK, dt_set_allocator(NULL));
        EXPECT_EQ(0, b.live);
    }
    EXPECT_GT(failed, 50);
    EXPECT_EQ(3, good);
}

/* ---------------------------------------------------------------------------------------------------- mistakes */
UTEST(mistakes, of_a_device_are_the_callers)
{
    int64_t      label[6] = { 0, 0, 0, 0, 1, 1 }, mine[6] = { 1, 1, 0, 0, 0, 0 };
    dt_model    *m = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = 3);
    dt_tensor   *y, *x = batch(0, 6, &y);
    int          good = 0, kind[] = { WRONG, NOTHING };
    double       loss;
    for (int first = 1; first >= 0; first--) { /* in the first call, then in later ones */
        for (int i = 0; i < 4; i++) {
            int worker = i % 2;
            x = batch(0, 6, &y);
            if (!first) EXPECT_OK(dt_parallel_backward(p, loss_of, &good, x, y, &loss));
            dt_tensor *z = dt_from(worker ? label : mine, DT_SHAPE(6), .dtype = DT_I64);
            EXPECT_TRUE(dt_parallel_backward(p, loss_of, &kind[i / 2], x, z, &loss) != DT_OK);
            EXPECT_TRUE(isnan(loss));
            EXPECT_TRUE(dt_error() && strstr(dt_error(), i / 2 ? "fn returned NULL" : "dt_matmul"));
            EXPECT_TRUE(worker == (dt_error() && strstr(dt_error(), "device 2: ") != NULL));
            dt_error_clear();
            EXPECT_TRUE(dt_grad(dt_model_find(m, "net.a.weight")) == NULL);
            dt_end();
            if (first && worker) { /* the first part has made the model */
                EXPECT_TRUE(dt_model_is_sealed(m));
            }
        }
    }
    int no_scalar = NO_SCALAR;
    x = batch(0, 6, &y);
    EXPECT_ERROR(dt_parallel_backward(p, loss_of, &no_scalar, x, y, NULL), "is its mean, one element");
    EXPECT_ERROR(dt_parallel_backward(p, loss_of, &good, x, batch(0, 5, &y), NULL), "dimension 0");
    EXPECT_ERROR(dt_parallel_backward(p, NULL, NULL, x, x, NULL), "fn is NULL");
    EXPECT_ERROR(dt_parallel_backward(NULL, loss_of, NULL, x, x, NULL), "the dt_parallel is NULL");
    EXPECT_ERROR(dt_parallel_backward(p, loss_of, NULL, dt_model_find(m, "net.a.weight"), NULL, NULL), "dt_detach");
    dt_end();
    x = batch(0, 6, &y);
    EXPECT_OK(dt_parallel_backward(p, loss_of, &good, x, y, &loss)); /* and it goes on */
    dt_end();
    dt_ddp *d = dt_ddp_new(m, NULL);
    x = batch(0, 6, &y);
    EXPECT_ERROR(dt_parallel_backward(p, loss_of, &good, x, y, &loss), "the model has a ddp");
    dt_ddp_free(d);
    dt_end();
    dt_model_free(m); /* the model first */
    dt_parallel_free(p);
    dt_parallel_free(NULL);
    m = dt_model_new();
    EXPECT_ERROR(dt_parallel_new(m, .devices = -1) ? 0 : -1, ".devices is -1");
    dt_model_free(m);
}
static dt_tensor *inside(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    dt_parallel_backward((dt_parallel *)user, loss_of, NULL, x, y, NULL);
    return loss_of(m, x, y, NULL);
}
UTEST(mistakes, a_call_inside_itself_and_a_new_layer_are_refused)
{
    dt_model    *m = dt_model_new(.seed = 3);
    dt_parallel *p = dt_parallel_new(m, .devices = 2);
    dt_tensor   *y, *x = batch(0, 6, &y);
    int          good = 0, norm = NORM;
    EXPECT_OK(dt_parallel_backward(p, loss_of, &good, x, y, NULL));
    EXPECT_ERROR(dt_parallel_backward(p, inside, p, x, y, NULL), "called inside itself");
    dt_end();
    x = batch(0, 6, &y);
    EXPECT_ERROR(dt_parallel_backward(p, loss_of, &norm, x, y, NULL), "a new name after the seal");
    dt_end();
    dt_parallel_free(p);
    dt_model_free(m);
}
UTEST(parallel, a_loss_that_is_not_finite_stops_the_step)
{
    static float  before[ROOM], after[ROOM];
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m);
    dt_parallel  *p = dt_parallel_new(m, .devices = 2);
    dt_tensor    *y, *x = batch(0, 6, &y);
    EXPECT_OK(dt_parallel_backward(p, loss_of, NULL, x, y, NULL));
    dt_step(opt);
    int   n = values(m, false, false, before);
    float data[6 * IN] = { 0 };
    data[6 * IN - 1] = NAN; /* of the second device */
    x = dt_from(data, DT_SHAPE(6, IN));
    batch(0, 6, &y);
    dt_parallel_backward(p, loss_of, NULL, x, y, NULL);
    EXPECT_ERROR(dt_step(opt), "not finite");
    EXPECT_EQ(n, values(m, false, false, after));
    EXPECT_TRUE(!memcmp(before, after, (size_t)n * sizeof *before));
    dt_parallel_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(parallel, a_step_makes_no_malloc_after_the_first_ones)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    dt_parallel  *p = dt_parallel_new(m, .devices = 3);
    int64_t       before = 0;
    int           what = NORM | DROP;
    for (int s = 0; s < 80; s++) {
        dt_tensor *y, *x = batch(0, 12, &y);
        if (s == 20) before = dt_stats().host_allocs;
        dt_parallel_backward(p, loss_of, &what, x, y, NULL);
        dt_step(opt);
    }
    EXPECT_LT(dt_stats().host_allocs - before, 60); /* what the devices use at the same time varies a little */
    EXPECT_EQ(3, dt_parallel_devices(p));
    dt_parallel_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
