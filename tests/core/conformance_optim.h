/* conformance_optim.h: the optimisers' kernels, called through the backend table as dt_nn.h calls them, against the
   formulas in double. Each case runs in every dtype it takes, with 1, 2 and 3 threads, on the thread's default device;
   the bits must be those of the CPU with one thread.

   Contents: >>operands >>updates >>norms >>unscale */
#ifndef CONFORMANCE_OPTIM_H
#define CONFORMANCE_OPTIM_H

#include "conformance.h"
#include "harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------- >>operands */
typedef struct co_operand { /* 1-d; n < 0: absent */
    int64_t  n;
    dt_dtype dtype;
    double  *v;     /* exact in the dtype */
    char    *bytes; /* after a run */
} co_operand;

typedef struct co_call {
    co_operand out[DT_MAX_OUT], in[DT_MAX_IN];
    int        nout, nin;
    dt_call    c;
} co_call;

static void co_set(co_operand *o, dt_dtype d, int64_t n, double lo, double hi, uint64_t *seed)
{
    o->n = n;
    o->dtype = d;
    o->v = (double *)malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < n; i++) o->v[i] = cf_round(d, lo + (hi - lo) * cf_rand01(seed));
}
static void co_values(co_operand *o, dt_dtype d, int64_t n, const double *v)
{
    o->n = n;
    o->dtype = d;
    o->v = (double *)malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t i = 0; i < n; i++) o->v[i] = cf_round(d, v[i]);
}
static void co_begin(co_call *q, int op, int nout, int nin)
{
    memset(q, 0, sizeof *q);
    q->c.op = op;
    q->nout = q->c.nout = nout;
    q->nin = q->c.nin = nin;
    for (int i = 0; i < DT_MAX_OUT; i++) q->out[i].n = -1;
    for (int i = 0; i < DT_MAX_IN; i++) q->in[i].n = -1;
}
static void co_end(co_call *q)
{
    for (int i = 0; i < DT_MAX_OUT; i++) free(q->out[i].v), free(q->out[i].bytes);
    for (int i = 0; i < DT_MAX_IN; i++) free(q->in[i].v), free(q->in[i].bytes);
}
static double co_got(const co_operand *o, int64_t i)
{
    return cf_decode(o->dtype, o->bytes + (size_t)i * dt_dtype_nbytes(o->dtype));
}
/* The call on a device: operands uploaded, the kernel run, outputs downloaded into bytes. in_place: output 0 is
   input 0. 0 if all went well. */
static int co_run(co_call *q, dt_device *dev, bool in_place)
{
    const dt_backend *be = dt_device_backend(dev);
    void             *mem[DT_MAX_OUT + DT_MAX_IN] = { NULL };
    size_t            len[DT_MAX_OUT + DT_MAX_IN] = { 0 };
    int               rc = 0;
    for (int k = 0; k < q->nout + q->nin; k++) {
        co_operand *o = k < q->nout ? &q->out[k] : &q->in[k - q->nout];
        dt_view    *v = k < q->nout ? &q->c.out[k] : &q->c.in[k - q->nout];
        memset(v, 0, sizeof *v);
        v->ndim = -1;
        if (o->n < 0) continue;
        size_t size = dt_dtype_nbytes(o->dtype);
        len[k] = (size_t)o->n * size + (o->n == 0);
        free(o->bytes);
        o->bytes = (char *)calloc(1, len[k]);
        for (int64_t i = 0; i < o->n; i++) cf_encode(o->dtype, o->v[i], o->bytes + (size_t)i * size);
        mem[k] = be->alloc(dev, len[k]);
        if (!mem[k]) return 1;
        rc |= be->upload(dev, NULL, mem[k], o->bytes, len[k]);
        v->ndim = 1;
        v->dtype = o->dtype;
        v->shape[0] = o->n;
        v->stride[0] = 1;
        v->data = mem[k];
    }
    if (in_place) q->c.out[0].data = q->c.in[0].data;
    rc |= be->kernel[q->c.op](dev, &q->c);
    for (int k = 0; k < q->nout; k++)
        if (q->out[k].n > 0) rc |= be->download(dev, NULL, q->out[k].bytes, q->c.out[k].data, len[k]);
    rc |= be->wait(dev, NULL);
    for (int k = 0; k < q->nout + q->nin; k++)
        if (mem[k]) be->free(dev, mem[k], len[k]);
    return rc;
}
/* With 1, 2 and 3 threads on the default device: the bits of the CPU with one, but for a GPU, whose own stay the same.
   They stay in q. */
static void co_run_all(int *utest_result, co_call *q, bool in_place, const char *what)
{
    char  *first[DT_MAX_OUT] = { NULL };
    size_t len[DT_MAX_OUT] = { 0 };
    const char *device = getenv("DT_TEST_DEVICE");
    int         from = device && strcmp(device, "cuda") == 0;
    for (int t = from; t <= 3; t++) {
        dt_set_num_threads(t ? t : 1);
        EXPECT_EQ_MSG(0, co_run(q, t ? dt_default_device() : dt_cpu(), in_place), what);
        for (int k = 0; k < q->nout; k++) {
            if (q->out[k].n <= 0) continue;
            len[k] = (size_t)q->out[k].n * dt_dtype_nbytes(q->out[k].dtype);
            if (t == from) {
                first[k] = (char *)malloc(len[k]);
                memcpy(first[k], q->out[k].bytes, len[k]);
            } else {
                EXPECT_EQ_MSG(0, memcmp(first[k], q->out[k].bytes, len[k]), what);
            }
        }
    }
    dt_set_num_threads(0);
    for (int k = 0; k < q->nout; k++) free(first[k]);
}

/* ---------------------------------------------------------------------------------------------------- >>updates */
typedef struct co_case {
    const char *name;
    int         op;
    double      lr, wd, b1, b2, eps, c1, c2, trust;
    int         nesterov, first, maximize, decoupled;
    int         buf, third; /* the optional states: sgd buf, rmsprop buf; adam vmax, rmsprop gavg */
    int         segments;
    double      gscale; /* 0: absent */
} co_case;

static const co_case co_cases[] = {
    { .name = "sgd", .op = DT_K_sgd, .lr = 0.1 },
    { .name = "sgd decay, clipped", .op = DT_K_sgd, .lr = 0.1, .wd = 0.02, .gscale = 0.3 },
    { .name = "sgd momentum", .op = DT_K_sgd, .lr = 0.1, .b1 = 0.9, .buf = 1 },
    { .name = "sgd first", .op = DT_K_sgd, .lr = 0.1, .b1 = 0.9, .b2 = 0.3, .buf = 1, .first = 1, .wd = 0.01 },
    { .name = "sgd damped", .op = DT_K_sgd, .lr = 0.1, .b1 = 0.8, .b2 = 0.3, .buf = 1, .maximize = 1 },
    { .name = "sgd nesterov", .op = DT_K_sgd, .lr = 0.1, .b1 = 0.9, .buf = 1, .nesterov = 1, .wd = 0.1, .gscale = 2 },
    { .name = "lars", .op = DT_K_sgd, .lr = 0.5, .b1 = 0.9, .buf = 1, .wd = 0.1, .trust = 0.3, .eps = 0.01,
      .segments = 1 },
    { .name = "lars nesterov, clipped", .op = DT_K_sgd, .lr = 0.5, .b1 = 0.9, .buf = 1, .trust = 0.3, .eps = 0.01,
      .segments = 1, .nesterov = 1, .gscale = 0.4, .maximize = 1 },
    { .name = "adam", .op = DT_K_adam, .lr = 0.1, .b1 = 0.9, .b2 = 0.99, .eps = 1e-3, .c1 = 0.19, .c2 = 0.05 },
    { .name = "adam decay", .op = DT_K_adam, .lr = 0.1, .b1 = 0.3, .b2 = 0.9, .eps = 1e-3, .c1 = 0.7, .c2 = 0.1,
      .wd = 0.1, .gscale = 0.7 },
    { .name = "adamw", .op = DT_K_adam, .lr = 0.1, .b1 = 0.9, .b2 = 0.99, .eps = 1e-3, .c1 = 0.19, .c2 = 0.05,
      .wd = 0.3, .decoupled = 1, .maximize = 1 },
    { .name = "amsgrad", .op = DT_K_adam, .lr = 0.1, .b1 = 0.9, .b2 = 0.7, .eps = 1e-3, .c1 = 0.9, .c2 = 0.9,
      .third = 1 },
    { .name = "rmsprop", .op = DT_K_rmsprop, .lr = 0.1, .b2 = 0.9, .eps = 1e-2 },
    { .name = "rmsprop centred", .op = DT_K_rmsprop, .lr = 0.1, .b2 = 0.9, .eps = 1e-2, .third = 1, .wd = 0.1 },
    { .name = "rmsprop momentum", .op = DT_K_rmsprop, .lr = 0.1, .b2 = 0.8, .b1 = 0.7, .eps = 1e-2, .buf = 1,
      .gscale = 0.5 },
    { .name = "rmsprop centred, momentum", .op = DT_K_rmsprop, .lr = 0.1, .b2 = 0.9, .b1 = 0.7, .eps = 1e-2, .buf = 1,
      .third = 1, .maximize = 1 },
    { .name = "lion", .op = DT_K_lion, .lr = 0.1, .b1 = 0.9, .b2 = 0.99, .decoupled = 1 },
    { .name = "lion decay", .op = DT_K_lion, .lr = 0.1, .b1 = 0.3, .b2 = 0.4, .wd = 0.2, .gscale = 0.5, .maximize = 1, .decoupled = 1 },
    { .name = "adagrad", .op = DT_K_adagrad, .lr = 0.1, .eps = 1e-3 },
    { .name = "adagrad decay", .op = DT_K_adagrad, .lr = 0.1, .eps = 1e-3, .wd = 0.2, .gscale = 0.5, .maximize = 1 },
    { .name = "lamb", .op = DT_K_lamb, .b1 = 0.9, .b2 = 0.99, .eps = 1e-3, .c1 = 0.19, .c2 = 0.05 },
    { .name = "lamb decay", .op = DT_K_lamb, .b1 = 0.9, .b2 = 0.99, .eps = 1e-3, .c1 = 0.5, .c2 = 0.5, .wd = 0.1,
      .gscale = 0.5, .maximize = 1 },
    { .name = "lamb_apply", .op = DT_K_lamb_apply, .lr = 0.1 },
    { .name = "lamb_apply by segments", .op = DT_K_lamb_apply, .lr = 0.1, .segments = 1 },
};

enum { CO_SEGMENTS = 5 }; /* of n elements: two whose norms say ratio 1, one empty */
static const double co_wnorm[CO_SEGMENTS] = { 3, 0, 2, 4, 1.5 }, co_unorm[CO_SEGMENTS] = { 1.25, 2, 7, 0, 0.5 };
static void co_segments(double *seg, int64_t n)
{
    seg[0] = 0;
    seg[1] = seg[2] = (double)(n / 3); /* the second is empty */
    seg[3] = (double)(n / 2);
    seg[4] = (double)(n - n / 7);
    seg[5] = (double)n;
}

static void co_build(co_call *q, const co_case *k, int64_t n, dt_dtype p, dt_dtype g, int copy)
{
    uint64_t seed = 99;
    double   seg[CO_SEGMENTS + 1], scale = k->gscale;
    int      lamb = k->op == DT_K_lamb, apply = k->op == DT_K_lamb_apply;
    int      norms = k->op == DT_K_sgd ? 2 : apply ? 1 : -1;
    int      copy_at = k->op == DT_K_sgd || k->op == DT_K_adagrad || k->op == DT_K_lion ? 2 : apply ? 1 : 4;
    co_begin(q, k->op, lamb ? 3 : copy_at + 1, norms >= 0 ? norms + 3 : lamb ? 3 : 2);
    q->c.u.opt.lr = k->lr, q->c.u.opt.wd = k->wd, q->c.u.opt.b1 = k->b1, q->c.u.opt.b2 = k->b2;
    q->c.u.opt.eps = k->eps, q->c.u.opt.c1 = k->c1, q->c.u.opt.c2 = k->c2, q->c.u.opt.trust = k->trust;
    q->c.u.opt.nesterov = k->nesterov, q->c.u.opt.first = k->first;
    q->c.u.opt.maximize = k->maximize, q->c.u.opt.decoupled = k->decoupled;
    co_set(&q->out[0], lamb ? DT_F32 : p, n, -2, 2, &seed);
    if (k->op == DT_K_sgd && k->buf) co_set(&q->out[1], DT_F32, n, -1, 1, &seed);
    if (k->op == DT_K_adam || k->op == DT_K_lion || lamb) co_set(&q->out[1], DT_F32, n, -1, 1, &seed);
    if (k->op == DT_K_adam || lamb) co_set(&q->out[2], DT_F32, n, 0.01, 1, &seed);
    if (k->op == DT_K_adam && k->third) co_set(&q->out[3], DT_F32, n, 0.01, 1, &seed);
    if (k->op == DT_K_rmsprop || k->op == DT_K_adagrad) co_set(&q->out[1], DT_F32, n, 0.1, 1, &seed);
    if (k->op == DT_K_rmsprop && k->third) co_set(&q->out[2], DT_F32, n, -0.1, 0.1, &seed);
    if (k->op == DT_K_rmsprop && k->buf) co_set(&q->out[3], DT_F32, n, -1, 1, &seed);
    if (copy && !lamb) co_set(&q->out[copy_at], (dt_dtype)copy, n, 0, 0, &seed);
    if (lamb) co_set(&q->in[0], p, n, -2, 2, &seed);
    co_set(&q->in[lamb], apply ? DT_F32 : g, n, -1, 1, &seed);
    if (scale != 0) co_values(&q->in[lamb + 1], DT_F32, 1, &scale);
    if (!k->segments) return;
    co_segments(seg, n);
    co_values(&q->in[norms], DT_F32, CO_SEGMENTS, co_wnorm);
    co_values(&q->in[norms + 1], DT_F32, CO_SEGMENTS, co_unorm);
    co_values(&q->in[norms + 2], DT_I64, CO_SEGMENTS + 1, seg);
}

static double co_ratio(const co_case *k, int64_t i, int64_t n)
{
    double seg[CO_SEGMENTS + 1];
    int    s = 0;
    if (!k->segments) return 1;
    co_segments(seg, n);
    while ((double)i >= seg[s + 1]) s++;
    double w = co_wnorm[s], u = co_unorm[s] * (k->op == DT_K_sgd && k->gscale != 0 ? k->gscale : 1);
    if (w == 0 || u == 0) return 1;
    return k->op == DT_K_sgd ? k->trust * w / (u + k->wd * w + k->eps) : w / u;
}
/* What the outputs of element i become. */
static void co_reference(const co_case *k, const co_call *q, int64_t i, int64_t n, double *want)
{
    int    lamb = k->op == DT_K_lamb;
    double s[4] = { 0 }, g = q->in[lamb].v[i] * (k->gscale != 0 ? (double)(float)k->gscale : 1), step = 0;
    for (int j = 0; j < 4; j++)
        if (q->out[j].n >= 0) s[j] = q->out[j].v[i];
    if (k->maximize) g = -g;
    if (!lamb && !k->decoupled) g += k->wd * s[0];
    if (k->op == DT_K_sgd) {
        g *= co_ratio(k, i, n);
        step = k->lr * g;
        if (k->buf) {
            s[1] = k->first ? g : k->b1 * s[1] + (1 - k->b2) * g;
            step = k->lr * (k->nesterov ? g + k->b1 * s[1] : s[1]);
        }
    } else if (k->op == DT_K_adam || lamb) {
        s[1] = k->b1 * s[1] + (1 - k->b1) * g;
        s[2] = k->b2 * s[2] + (1 - k->b2) * g * g;
        double v = s[2];
        if (k->third) v = s[3] = fmax(s[3], s[2]);
        step = s[1] / k->c1 / (sqrt(v / k->c2) + k->eps);
        if (lamb) s[0] = step + k->wd * q->in[0].v[i], step = 0;
        else step *= k->lr;
        if (k->decoupled) s[0] *= 1 - k->lr * k->wd;
    } else if (k->op == DT_K_rmsprop) {
        s[1] = k->b2 * s[1] + (1 - k->b2) * g * g;
        if (k->third) s[2] = k->b2 * s[2] + (1 - k->b2) * g;
        double q1 = g / (sqrt(s[1] - s[2] * s[2]) + k->eps);
        if (k->buf) s[3] = k->b1 * s[3] + q1;
        step = k->lr * (k->buf ? s[3] : q1);
    } else if (k->op == DT_K_lion) {
        double u = k->b1 * s[1] + (1 - k->b1) * g;
        s[0] *= 1 - k->lr * k->wd;
        s[1] = k->b2 * s[1] + (1 - k->b2) * g;
        step = u > 0 ? k->lr : u < 0 ? -k->lr : 0;
    } else if (k->op == DT_K_adagrad) {
        s[1] += g * g;
        step = k->lr * g / (sqrt(s[1]) + k->eps);
    } else {
        step = k->lr * co_ratio(k, i, n) * g;
    }
    s[0] -= step;
    memcpy(want, s, sizeof s);
}
static void co_check(int *utest_result, const co_case *k, int64_t n, dt_dtype p, dt_dtype g, int copy)
{
    co_call q;
    char    what[160];
    int64_t wrong = 0;
    snprintf(what, sizeof what, "%s, %d elements, p %s, g %s, copy %s", k->name, (int)n, dt_dtype_name(p),
             dt_dtype_name(g), copy ? dt_dtype_name((dt_dtype)copy) : "none");
    co_build(&q, k, n, p, g, copy);
    co_run_all(utest_result, &q, false, what);
    int copy_at = q.nout - 1;
    for (int64_t i = 0; i < n; i++) {
        double want[4];
        co_reference(k, &q, i, n, want);
        for (int j = 0; j < 4; j++) {
            const co_operand *o = &q.out[j];
            if (o->n < 0 || (copy && j == copy_at)) continue;
            double got = co_got(o, i), tol = 0x1p-24 * 16 * (1 + fabs(want[j]));
            if (o->dtype != DT_F32) tol += cf_eps(o->dtype) * 1.01 * fabs(want[j]) + 0x1p-25;
            if (fabs(got - want[j]) <= tol || wrong++) continue;
            char text[320];
            snprintf(text, sizeof text, "%s: output %d [%d] is %.9g, not %.9g", what, j, (int)i, got, want[j]);
            EXPECT_TRUE_MSG(false, text);
        }
        if (copy && q.out[copy_at].n >= 0 && p == DT_F32) /* what was stored, rounded once */
            wrong += co_got(&q.out[copy_at], i) != cf_round((dt_dtype)copy, co_got(&q.out[0], i));
    }
    EXPECT_EQ_MSG(0, (int)wrong, what);
    co_end(&q);
}

/* ---------------------------------------------------------------------------------------------------- >>norms */
static void co_check_norms(int *utest_result, dt_dtype d, int64_t n, double size, bool segments)
{
    co_call  q;
    uint64_t seed = 5;
    double   seg[CO_SEGMENTS + 1] = { 0 };
    int      ny = segments ? CO_SEGMENTS : 1;
    co_begin(&q, DT_K_norms, 1, 2);
    co_set(&q.out[0], DT_F32, ny, 9, 10, &seed);
    co_set(&q.in[0], d, n, -size, size, &seed);
    co_segments(seg, n);
    if (segments) co_values(&q.in[1], DT_I64, CO_SEGMENTS + 1, seg);
    else seg[1] = (double)n;
    co_run_all(utest_result, &q, false, "norms");
    for (int s = 0; s < ny; s++) {
        double sum = 0;
        for (int64_t i = (int64_t)seg[s]; i < (int64_t)seg[s + 1]; i++)
            sum += (q.in[0].v[i] / size) * (q.in[0].v[i] / size);
        double want = (double)(float)(sqrt(sum) * size), got = co_got(&q.out[0], s);
        EXPECT_TRUE_MSG(fabs(got - want) <= 0x1p-23 * fabs(want), "norms: more than a step of f32 off");
    }
    co_end(&q);
}

/* ---------------------------------------------------------------------------------------------------- >>unscale */
static void co_check_unscale(int *utest_result, dt_dtype d, int64_t n, int mode, double flag, int64_t bad_at,
                             double bad)
{
    enum { PLAIN, ADD, IN_PLACE, CHECK }; /* modes */
    co_call  q;
    uint64_t seed = 6;
    co_begin(&q, DT_K_unscale, 2, 1);
    if (mode != CHECK) co_set(&q.out[0], DT_F32, n, -1, 1, &seed);
    co_values(&q.out[1], DT_F32, 1, &flag);
    co_set(&q.in[0], d, n, -8, 8, &seed);
    if (bad_at >= 0) q.in[0].v[bad_at] = bad;
    q.c.u.ew.a = 0.375;
    q.c.acc = mode == ADD ? 1 : 0;
    co_run_all(utest_result, &q, mode == IN_PLACE, "unscale");
    EXPECT_NEAR_MSG(bad_at >= 0 ? 1.0 : flag, co_got(&q.out[1], 0), 0.0, "the flag of unscale");
    for (int64_t i = 0; i < n && mode != CHECK; i++) {
        double want = 0.375 * q.in[0].v[i] + (mode == ADD ? q.out[0].v[i] : 0), got = co_got(&q.out[0], i);
        if (isnan(want) ? isnan(got) : got == want || fabs(got - want) <= 0x1p-23 * 4) continue;
        EXPECT_NEAR_MSG(want, got, 0.0, "unscale");
        break;
    }
    co_end(&q);
}

void cf_test_optim(int *utest_result)
{
    static const int64_t sizes[] = { 1, 3, 8, 37, 1037, 40003 };
    for (size_t k = 0; k < sizeof co_cases / sizeof co_cases[0]; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            int64_t n = sizes[s];
            if (n > 5000 && dt_test_quick()) continue;
            for (int p = DT_F32; p <= DT_BF16; p++)
                for (int g = DT_F32; g <= DT_BF16; g++)
                    if (n < 2000 || (p == DT_F32 && g == DT_F32))
                        co_check(utest_result, &co_cases[k], n, (dt_dtype)p, (dt_dtype)g, 0);
            for (int copy = DT_F16; copy <= DT_BF16 && co_cases[k].op != DT_K_lamb; copy++)
                co_check(utest_result, &co_cases[k], n, DT_F32, (dt_dtype)copy, copy);
        }
    for (int d = DT_F32; d <= DT_BF16; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int segments = 0; segments < 2; segments++) {
                co_check_norms(utest_result, (dt_dtype)d, sizes[s], 1, segments);
                if (d == DT_F32) co_check_norms(utest_result, DT_F32, sizes[s], 1e30, segments); /* squares overflow */
                if (d == DT_F32) co_check_norms(utest_result, DT_F32, sizes[s], 1e-30, segments); /* squares vanish */
            }
    for (int d = DT_F32; d <= DT_BF16; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int mode = 0; mode < 4; mode++) {
                int64_t n = sizes[s];
                if (mode == 2 && d != DT_F32) continue;
                co_check_unscale(utest_result, (dt_dtype)d, n, mode, 0, -1, 0);
                co_check_unscale(utest_result, (dt_dtype)d, n, mode, 1, -1, 0); /* what an earlier call found stays */
                co_check_unscale(utest_result, (dt_dtype)d, n, mode, 0, 0, INFINITY);
                co_check_unscale(utest_result, (dt_dtype)d, n, mode, 0, n - 1, NAN);
                co_check_unscale(utest_result, (dt_dtype)d, n, mode, 0, n / 2, -INFINITY);
            }
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
}

#endif /* CONFORMANCE_OPTIM_H */
