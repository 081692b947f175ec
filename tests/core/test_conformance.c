/* test_conformance.c: every op of conformance.h's table, in every dtype it takes, on the CPU and on the fake device.

   A row is built from dtype-rounded inputs and compared with its double reference; its gradients are compared with
   central differences of that reference, taken in double. Tolerances follow from the dtype: eps*|value| for storing,
   and eps_f32*sqrt(terms)*size for sums. The same row must then give the same bits with 1, 2 and 3 threads and on the
   fake device, whose memory the host cannot touch and whose work runs late (fake_device.h).

   DT_TEST_DEVICE=cpu|fake|both|cuda (both), DT_TEST_QUICK=1: no large cases, DT_TEST_VERBOSE=1: how near each row
   came to its tolerance. Contents: >>compare >>run >>rows >>special >>making >>kernels >>devices >>trainer
   run: long, ubsan, portable, -O1 */
#define _GNU_SOURCE
#include "dt_test.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DT_USE_CUDA
#include "dt_cuda.h"
#endif
#include "conformance.h"
#include "conformance_optim.h"
#include "fake_device.h"
#include "golden/ops.h"

#include <sys/wait.h>
#include <unistd.h>

UTEST_MAIN()

/* The fake device all tests share, or NULL. */
static fake_device *the_fake(void)
{
    static fake_device *f;
    if (!f) f = fake_device_new(0);
    return f;
}

/* Devices to run on: the CPU (NULL) first. */
static int devices(dt_device **dev)
{
    const char *s = getenv("DT_TEST_DEVICE");
    int         n = 0;
#ifdef DT_USE_CUDA
    if (s && strcmp(s, "cuda") == 0) {
        dt_cuda_opts o;
        memset((void *)&o, 0, sizeof o);
        o.deterministic = DT_YES; /* some tests compare bits of two runs */
        dev[0] = dt_cuda(0);
        if (dev[0] && dt_cuda_set_with(dev[0], o) == DT_OK) return 1;
        fprintf(stderr, "%s\n", dt_error()); /* the tests must not go on elsewhere */
        exit(1);
    }
#endif
    if (!s || strcmp(s, "fake") != 0) dev[n++] = dt_cpu();
    if (!s || strcmp(s, "cpu") != 0) dev[n++] = the_fake()->dev;
    return n;
}

static bool on_cuda(void)
{
    const char *s = getenv("DT_TEST_DEVICE");
    return s && strcmp(s, "cuda") == 0;
}

/* ==================================================================================================== >>compare */
typedef struct verdict {
    double worst;     /* error / tolerance of the worst element */
    char   text[640]; /* what is wrong, or "" */
} verdict;

static void blame(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void blame(verdict *v, const char *format, ...)
{
    va_list a;
    if (v->text[0]) return; /* the first one is told */
    va_start(a, format);
    vsnprintf(v->text, sizeof v->text, format, a);
    va_end(a);
}

/* Error over tolerance: above 1 is wrong. */
static double excess(double got, double want, double tol)
{
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (got == want) return 0;
    double e = fabs(got - want);
    return isfinite(e) && tol > 0 ? e / tol : INFINITY;
}

/* What one rounding to d plus a sum of 'terms' f32 terms of the row's size may cost. back: halves also round values
   that backward reads again, and gradients of broadcast operands before they are summed. */
static double tolerance(const cf_row *r, dt_dtype d, double want, double terms, bool back)
{
    double scale = r->scale > 0 ? r->scale : 1, root = terms > 1 ? sqrt(terms) : 0.5;
    double tol = 0x1p-24 * ((4 + root) * fabs(want) + 6 * scale * root);
    if (!cf_is_float(d)) return 0;
    if (d != DT_F32) tol += cf_eps(d) * (1.05 * fabs(want) + (back ? 3 * fabs(want) + 2 * scale : 0));
    if (d != DT_F32 && back && r->f2 && terms > 1) tol += cf_eps(d) * scale * root;
    if (d == DT_F16) tol += 0x1p-25; /* half a step of its subnormals */
    return tol;
}

/* ==================================================================================================== >>run */
typedef struct result { /* what dt made of a row: bytes, row-major */
    dt_shape shape;
    dt_dtype dtype;
    char    *out, *grad[CF_MAX_IN];
    size_t   out_nbytes, grad_nbytes[CF_MAX_IN];
} result;

static void result_free(result *r)
{
    free(r->out);
    for (int i = 0; i < CF_MAX_IN; i++) free(r->grad[i]);
    memset(r, 0, sizeof *r);
}

static char *bytes_of(dt_tensor *t, size_t *nbytes)
{
    *nbytes = dt_nbytes(t);
    char *p = (char *)malloc(*nbytes + 1);
    if (dt_copy_out(t, p, *nbytes) != DT_OK) {
        free(p);
        return NULL;
    }
    return p;
}

static bool wants_grad(const cf_ctx *x)
{
    for (int i = 0; i < x->nin; i++)
        if (cf_has_grad(x, i)) return true;
    return false;
}

enum { SEEN = 16 }; /* with 'times': operands and result are looked at through a view before backward */

/* Backward of sum(y * w), 'times' times over the same tape. */
static void run_backward(dt_tensor *y, const double *w, int times)
{
    if (times & SEEN) y = dt_reshape(y, DT_SHAPE(-1));
    times &= ~SEEN;
    dt_dtype d = dt_dtype_of(y);
    size_t   size = dt_dtype_nbytes(d);
    int64_t  n = dt_numel(y);
    char    *buf = (char *)malloc((size_t)n * size + 1);
    for (int64_t e = 0; e < n; e++) cf_encode(d, w[e], buf + (size_t)e * size);
    dt_tensor *wt = dt_from(buf, dt_shape_of(y), .dtype = d);
    free(buf);
    dt_tensor *root = d == DT_F32 ? dt_sum(dt_mul(y, wt)) : NULL; /* both ways to start */
    for (int k = 1; k <= times; k++) {
        if (root) dt_backward(root, .retain_graph = k < times);
        else dt_backward(y, .grad = wt, .retain_graph = k < times);
    }
}

/* Builds and runs the row on the thread's default device. w: weights of the outputs, exact in every dtype. */
static void run(const cf_ctx *x, const double *w, int times, result *r, verdict *v)
{
    dt_tensor *leaf[CF_MAX_IN] = { NULL }, *in[CF_MAX_IN] = { NULL };
    memset(r, 0, sizeof *r);
    for (int i = 0; i < x->nin; i++)
        if (x->input[i].present) in[i] = cf_tensor(x, i, &leaf[i]);
    dt_tensor *y = x->row->build(in, x->c);
    if (y) {
        r->shape = dt_shape_of(y);
        r->dtype = dt_dtype_of(y);
        for (int i = 0; i < x->nin && times & SEEN; i++)
            if (in[i] && dt_numel(in[i])) dt_reshape(in[i], DT_SHAPE(-1));
        if (wants_grad(x) && w) run_backward(y, w, times);
        r->out = bytes_of(y, &r->out_nbytes);
        for (int i = 0; i < x->nin && w; i++)
            if (leaf[i] && cf_has_grad(x, i) && dt_grad(leaf[i]))
                r->grad[i] = bytes_of(dt_grad(leaf[i]), &r->grad_nbytes[i]);
    }
    if (dt_error() || !y) blame(v, "%s", dt_error() ? dt_error() : "NULL without an error");
    dt_error_clear();
    dt_end();
    for (int i = 0; i < x->nin; i++)
        if (cf_has_grad(x, i)) dt_free(leaf[i]);
}

/* ------------------------------------------------------------------------------------------ against the reference */
static dt_dtype expected_dtype(const cf_ctx *x)
{
    if (x->row->out_dtype) return (dt_dtype)(x->row->out_dtype - 1);
    if (x->row == &cf_row_cast) return (dt_dtype)x->c->i[0];
    if (x->row == &cf_row_linear && x->input[1].dtype == DT_F32) return DT_F32; /* promoted */
    if (x->row == &cf_row_sum && !cf_is_float(x->dtype)) return DT_I64;         /* as PyTorch */
    return x->dtype;
}

static void check_forward(const cf_ctx *x, const cf_arr *ref, const result *r, verdict *v)
{
    size_t size = dt_dtype_nbytes(r->dtype);
    if (r->dtype != expected_dtype(x))
        blame(v, "dtype %s, not %s", dt_dtype_name(r->dtype), dt_dtype_name(expected_dtype(x)));
    bool same = r->shape.ndim == ref->ndim;
    for (int i = 0; same && i < ref->ndim; i++) same = r->shape.dim[i] == ref->dim[i];
    if (!same || !r->out) {
        blame(v, "wrong shape: %d dims, not %d, or of other sizes", r->shape.ndim, ref->ndim);
        return;
    }
    for (int64_t e = 0; e < ref->n; e++) {
        double got = cf_decode(r->dtype, r->out + (size_t)e * size);
        double over = excess(got, ref->v[e], tolerance(x->row, r->dtype, ref->v[e], ref->terms, false));
        if (over > 1)
            blame(v, "forward[%lld]: %.9g, not %.9g: %.3g times the tolerance", (long long)e, got, ref->v[e], over);
        if (over > v->worst) v->worst = over;
    }
}

/* Sum of w * (reference at base + h*dir - reference at base - h*dir) / 2h for input i; dir NULL: element j only. */
static double difference(cf_ctx *x, int i, int64_t j, const double *dir, double h, const double *w, cf_arr *lo,
                         cf_arr *hi)
{
    cf_input *in = &x->input[i];
    double   *kept = (double *)malloc((size_t)(in->nbase + 1) * sizeof(double)), s = 0;
    memcpy(kept, in->base, (size_t)in->nbase * sizeof(double));
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t e = 0; dir && e < in->nbase; e++) in->base[e] = kept[e] + side * h * dir[e];
        if (!dir) in->base[j] = kept[j] + side * h;
        cf_gather_base(x, i);
        x->row->ref(x, side < 0 ? lo : hi);
    }
    memcpy(in->base, kept, (size_t)in->nbase * sizeof(double));
    cf_gather_base(x, i);
    free(kept);
    for (int64_t e = 0; e < lo->n; e++) s += w[e] * (hi->v[e] - lo->v[e]);
    return s / (2 * h);
}

static void check_gradient(cf_ctx *x, int i, const cf_arr *ref, const result *r, const double *w, double times,
                           verdict *v)
{
    cf_input *in = &x->input[i];
    size_t    size = dt_dtype_nbytes(in->dtype);
    double    work = ref->terms * (double)ref->n + (double)in->nbase + 100, budget = dt_test_quick()      ? 1e5
                                                                                     : x->dtype == DT_F32 ? 1e6
                                                                                                          : 3e5;
    double    terms = ref->terms * (double)ref->n / (double)(in->nbase > 0 ? in->nbase : 1);
    int64_t   count = (int64_t)(budget / work), step;
    cf_arr    lo, hi;
    uint64_t  seed = 77;
    if (x->row->gen[i] == CF_DISTINCT && in->nbase > 257 && in->dtype != DT_F32) return; /* halves have ties then */
    if (!r->grad[i]) {
        if (in->nbase > 0 && ref->n > 0) blame(v, "no gradient of input %d", i);
        return;
    }
    if (r->grad_nbytes[i] != (size_t)in->nbase * size) {
        blame(v, "gradient of input %d has %zu bytes", i, r->grad_nbytes[i]);
        return;
    }
    memset(&lo, 0, sizeof lo);
    memset(&hi, 0, sizeof hi);
    if (count < 3) count = 3;
    step = in->nbase > count ? in->nbase / count + 1 : 1;
    for (int64_t j = in->nbase > count ? (int64_t)(cf_rand(&seed) % (uint64_t)step) : 0; j < in->nbase; j += step) {
        double got = cf_decode(in->dtype, r->grad[i] + (size_t)j * size);
        double want = times * difference(x, i, j, NULL, 1e-5, w, &lo, &hi);
        double over = excess(got, want, times * tolerance(x->row, in->dtype, want / times, terms, true) + 1e-9);
        if (x->dtype != DT_F32 && in->dtype == DT_F32) /* values in between were halves */
            over = excess(
                got, want,
                times * (tolerance(x->row, x->dtype, want / times, terms, true) + cf_eps(x->dtype) * sqrt(terms)));
        if (over > 1)
            blame(v, "gradient of input %d [%lld]: %.9g, not %.9g: %.3g times the tolerance", i, (long long)j, got,
                  want, over);
        if (over > v->worst) v->worst = over;
    }
    if (step > 1 && x->row->gen[i] != CF_DISTINCT) { /* all elements at once; not where a step could change a maximum */
        double *dir = (double *)calloc((size_t)in->nbase, sizeof(double)), got = 0, tol = 0;
        for (int64_t j = 0; j < in->nbase; j++) {
            double g = cf_decode(in->dtype, r->grad[i] + (size_t)j * size);
            double t = times * tolerance(x->row, cf_eps(x->dtype) > cf_eps(in->dtype) ? x->dtype : in->dtype, g / times,
                                         terms, true);
            dir[j] = cf_rand01(&seed) < 0.5 ? -1 : 1;
            got += dir[j] * g;
            tol += t * t;
        }
        double want = times * difference(x, i, 0, dir, 1e-6, w, &lo, &hi),
               over = excess(got, want, 4 * sqrt(tol) + 1e-7);
        if (over > 1)
            blame(v, "gradient of input %d along a direction: %.9g, not %.9g: %.3g times the tolerance", i, got, want,
                  over);
        if (over > v->worst) v->worst = over;
        free(dir);
    }
    free(lo.v);
    free(hi.v);
}

static void check_same(const result *a, const result *b, const char *what, verdict *v)
{
    if (a->out_nbytes != b->out_nbytes || (a->out && b->out && memcmp(a->out, b->out, a->out_nbytes) != 0))
        blame(v, "forward differs with %s", what);
    for (int i = 0; i < CF_MAX_IN; i++)
        if (!a->grad[i] != !b->grad[i] || (a->grad[i] && memcmp(a->grad[i], b->grad[i], a->grad_nbytes[i]) != 0))
            blame(v, "gradient of input %d differs with %s", i, what);
}

/* Weights exact in every dtype, so that the reference can use the same. */
static double *make_weights(int64_t n)
{
    uint64_t seed = 5;
    double  *w = (double *)malloc((size_t)(n + 1) * sizeof(double));
    for (int64_t e = 0; e < n; e++) w[e] = ((double)(int64_t)(cf_rand(&seed) % 127) - 63) / 64;
    return w;
}

static bool is_large(const cf_ctx *x)
{
    for (int i = 0; i < x->nin; i++)
        if (x->in[i].ndim >= 0 && x->in[i].n > 5000) return true;
    return false;
}

/* One case in one dtype: the first device with one thread against the reference, everything else against that. */
static void check_case(const cf_row *row, const cf_case *c, dt_dtype dtype, verdict *v)
{
    cf_ctx     x;
    cf_arr     ref;
    result     first, other;
    dt_device *dev[2];
    int        ndev = devices(dev);
    memset(&ref, 0, sizeof ref);
    cf_ctx_init(&x, row, c, dtype);
    if (dt_test_quick() && is_large(&x)) {
        cf_ctx_free(&x);
        return;
    }
    cf_ctx_random(&x);
    row->ref(&x, &ref);
    double *w = make_weights(ref.n);
    for (int threads = 1; threads <= (on_cuda() ? 1 : 3); threads++)
        for (int d = 0; d < ndev; d++) {
            char what[64];
            dt_set_num_threads(threads);
            dt_set_default_device(dev[d]);
            run(&x, w, 1, &other, v);
            dt_set_default_device(NULL);
            snprintf(what, sizeof what, "%d threads on %s", threads, d ? "the fake device" : "the first device");
            if (threads == 1 && d == 0) {
                first = other;
                check_forward(&x, &ref, &first, v);
                for (int i = 0; i < x.nin; i++)
                    if (cf_has_grad(&x, i)) check_gradient(&x, i, &ref, &first, w, 1, v);
                continue;
            }
            check_same(&first, &other, what, v);
            result_free(&other);
        }
    dt_set_default_device(dev[0]);
    if (dtype == DT_F32 && wants_grad(&x) && !is_large(&x)) { /* a second backward adds */
        run(&x, w, 2, &other, v);
        for (int i = 0; i < x.nin; i++)
            if (cf_has_grad(&x, i)) check_gradient(&x, i, &ref, &other, w, 2, v);
        result_free(&other);
    }
    if (dtype == DT_F32 && wants_grad(&x) && ref.n > 0 &&
        !is_large(&x)) { /* a look at a value does not change what backward finds */
        run(&x, w, 1 | SEEN, &other, v);
        verdict seen = { 0, "" };
        for (int i = 0; i < x.nin; i++)
            if (cf_has_grad(&x, i)) check_gradient(&x, i, &ref, &other, w, 1, &seen);
        if (seen.text[0]) blame(v, "after a view was made of operands and result: %s", seen.text);
        result_free(&other);
    }
    dt_set_default_device(NULL);
    result_free(&first);
    free(w);
    free(ref.v);
    cf_ctx_free(&x);
}

/* ==================================================================================================== >>rows */
static void check_row(int *utest_result, const cf_row *row)
{
    double          worst = 0;
    int             told = 0, bad = 0, cases = 0;
    dt_memory_stats before = dt_stats();
    for (int d = 0; d < DT_DTYPE_COUNT; d++)
        for (const cf_case *c = row->cases; c->spec && (row->dtypes >> d & 1); c++) {
            verdict v = { 0, "" };
            int     live = (int)(dt_stats().live_tensors - before.live_tensors);
            check_case(row, c, (dt_dtype)d, &v);
            cases++;
            if (dt_stats().live_tensors - before.live_tensors != live)
                blame(&v, "%d tensors left over", (int)(dt_stats().live_tensors - before.live_tensors) - live);
            if (v.worst > worst) worst = v.worst;
            bad += v.text[0] != 0;
            if (v.text[0] && told < (getenv("DT_TEST_VERBOSE") ? 1000 : 6)) {
                char text[1024];
                snprintf(text, sizeof text, "%s \"%s\" {%d %d %d %d} %s: %s", row->name, c->spec, (int)c->i[0],
                         (int)c->i[1], (int)c->i[2], (int)c->i[3], dt_dtype_name((dt_dtype)d), v.text);
                EXPECT_STREQ_MSG("", v.text, text);
                told++;
            }
        }
    dt_set_num_threads(0);
    if (bad > told) printf("%s: %d of %d cases failed\n", row->name, bad, cases);
    if (getenv("DT_TEST_VERBOSE")) printf("%s: %d cases, worst %.3g of the tolerance\n", row->name, cases, worst);
}

#define ROW_TEST(n) \
    UTEST(conformance, n) { check_row(utest_result, &cf_row_##n); }
CF_ROWS(ROW_TEST)

/* The comparison can fail: a result off by a little is refused, in every row. */
UTEST(conformance, small_errors_are_refused)
{
    for (int k = 0; k < CF_NROWS; k++)
        for (int d = 0; d < DT_DTYPE_COUNT; d++) {
            const cf_row *row = cf_rows[k];
            cf_ctx        x;
            cf_arr        ref = { 0 };
            result        r;
            verdict       v = { 0, "" }, forward = { 0, "" }, backward = { 0, "" };
            double        off = cf_is_float((dt_dtype)d) ? (d == DT_F32 ? 1e-4 : 0.1) : 1;
            if (!(row->dtypes >> d & 1)) continue;
            const cf_case *c = row->cases;
            while (strpbrk(c->spec, "0s")) c++; /* not an empty one */
            cf_ctx_init(&x, row, c, (dt_dtype)d);
            cf_ctx_random(&x);
            row->ref(&x, &ref);
            double *w = make_weights(ref.n);
            run(&x, w, 1, &r, &v);
            EXPECT_STREQ_MSG("", v.text, row->name);
            if (r.out && r.out_nbytes) {
                double first = cf_decode(r.dtype, r.out);
                cf_encode(r.dtype,
                          r.dtype == DT_U8 ? 1 - first : first + (r.dtype == DT_I64 ? 1 : off) * fmax(1, fabs(first)),
                          r.out);
                check_forward(&x, &ref, &r, &forward);
                EXPECT_TRUE_MSG(forward.text[0] != 0, row->name);
            }
            for (int i = 0; i < x.nin; i++)
                if (r.grad[i] && r.grad_nbytes[i]) {
                    double much = x.input[i].dtype == DT_F32 ? off : 0.1;
                    for (char *p = r.grad[i]; p < r.grad[i] + r.grad_nbytes[i];
                         p += dt_dtype_nbytes(x.input[i].dtype)) {
                        double was = cf_decode(x.input[i].dtype, p);
                        cf_encode(x.input[i].dtype, was + much * fmax(1, fabs(was)), p);
                    }
                    check_gradient(&x, i, &ref, &r, w, 1, &backward);
                    EXPECT_TRUE_MSG(backward.text[0] != 0, row->name);
                    backward.text[0] = 0;
                }
            result_free(&r);
            free(w);
            free(ref.v);
            cf_ctx_free(&x);
        }
}

/* exp, log, tanh, sigmoid and gelu within a few units in the last place over their whole range (2 for exp and tanh). */
static double ulps(float got, double want)
{
    float  w = (float)want;
    double step = isinf(w) ? 0x1p104 : fmax(ldexp(1, ilogbf(w == 0 ? 0x1p-126f : w) - 23), 0x1p-149);
    return isnan(want) ? (isnan(got) ? 0 : INFINITY) : got == w ? 0 : fabs((double)got - want) / step;
}
static void check_ulps(int *utest_result, const cf_row *row, double lo, double hi, double bound)
{
    enum { N = 200003 };
    cf_case c = CF_S("");
    float  *x = (float *)malloc(N * sizeof(float)), *y = (float *)malloc(N * sizeof(float));
    double  worst = 0;
    float   at = 0, got = 0;
    for (int i = 0; i < N; i++) x[i] = (float)(lo + (hi - lo) * i / (N - 1));
    dt_tensor *in[1] = { dt_from(x, DT_SHAPE(N)) };
    dt_copy_out(row->build(in, &c), y, N * sizeof(float));
    for (int i = 0; i < N; i++) {
        double u = ulps(y[i], row->f1((double)x[i], &c));
        if (u > worst) worst = u, at = x[i], got = y[i];
    }
    if (worst > bound)
        printf("%s: %.3g ulp at x = %.9g: %.9g, not %.17g\n", row->name, worst, (double)at, (double)got,
               row->f1((double)at, &c));
    if (getenv("DT_TEST_VERBOSE")) printf("%s: %.3g ulp\n", row->name, worst);
    EXPECT_LE_MSG(worst, bound, row->name);
    EXPECT_TRUE(dt_error() == NULL);
    dt_end();
    free(x);
    free(y);
}
UTEST(conformance, exp_is_within_2_ulp)
{
    check_ulps(utest_result, &cf_row_exp, -104, 89, 2);
    check_ulps(utest_result, &cf_row_exp, -1, 1, 2);
}
UTEST(conformance, tanh_is_within_2_ulp)
{
    check_ulps(utest_result, &cf_row_tanh, -10, 10, 2);
    check_ulps(utest_result, &cf_row_tanh, -0.01, 0.01, 2);
}
UTEST(conformance, log_and_sigmoid_are_within_4_ulp)
{
    check_ulps(utest_result, &cf_row_log, 0.5, 2, 4);
    check_ulps(utest_result, &cf_row_log, 1e-30, 1e30, 4);
    check_ulps(utest_result, &cf_row_sigmoid, -80, 80, 4);
    check_ulps(utest_result, &cf_row_gelu, 0, 10, 4); /* erf; for x < 0 the sum 1 + erf cancels */
    check_ulps(utest_result, &cf_row_gelu_tanh, 0, 10, 4);
    check_ulps(utest_result, &cf_row_gelu_tanh, -3, 0, 16); /* of the exponent -2u's rounding, e to the 4th and more */
    check_ulps(utest_result, &cf_row_silu, -80, 80, 4);
}

/* ==================================================================================================== >>special
   NaN, infinities, zeros, subnormals and the ends of the range, as PyTorch has them (golden/ops.h). */
static float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* The kind of value: NaN, an infinity, zero or too small to tell, finite and close (PyTorch's gelu is good to 1e-6). */
static bool same_special(float got, float want)
{
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want;
    if (fabsf(want) < 0x1p-126f) return fabsf(got) < 0x1p-126f;
    return fabsf(got - want) <= 2e-6f * fmaxf(1, fabsf(want));
}

UTEST(special, values_as_pytorch)
{
    dt_device *dev[2];
    int        ndev = devices(dev);
    for (int d = 0; d < ndev; d++)
        for (size_t s = 0; s < sizeof golden_specials / sizeof golden_specials[0]; s++) {
            const golden_special *g = &golden_specials[s];
            const cf_row         *row = NULL;
            for (int k = 0; k < CF_NROWS; k++)
                if (strcmp(cf_rows[k]->name, g->op) == 0) row = cf_rows[k];
            ASSERT_TRUE_MSG(row != NULL, g->op);
            enum { M = GOLDEN_NSPECIAL2, N = M * M > GOLDEN_NSPECIAL1 ? M * M : GOLDEN_NSPECIAL1 };
            int        n = g->nin == 2 ? M * M : GOLDEN_NSPECIAL1;
            float      a[N], b[N], y[N];
            cf_case    c = { "", { 0 }, { g->d[0], g->d[1] } };
            dt_tensor *in[CF_MAX_IN] = { NULL };
            for (int i = 0; i < n; i++) {
                a[i] = bits_float(g->nin == 2 ? golden_special2[i / M] : golden_special1[i]);
                b[i] = bits_float(golden_special2[i % M]);
            }
            dt_set_default_device(dev[d]);
            in[0] = dt_set_requires_grad(dt_from(a, DT_SHAPE(n)));
            if (g->nin == 2) in[1] = dt_set_requires_grad(dt_from(b, DT_SHAPE(n)));
            dt_tensor *t = row->build(in, &c);
            if (dt_dtype_of(t) != DT_F32) t = dt_cast(t, DT_F32);
            EXPECT_EQ(DT_OK, dt_copy_out(t, y, sizeof(float) * (size_t)n));
            for (int i = 0; i < n; i++)
                if (!same_special(y[i], bits_float(g->out[i]))) {
                    char text[160];
                    snprintf(text, sizeof text, "%s(%.9g, %.9g) = %.9g, PyTorch: %.9g", g->op, (double)a[i],
                             g->nin == 2 ? (double)b[i] : g->d[0], (double)y[i], (double)bits_float(g->out[i]));
                    EXPECT_TRUE_MSG(same_special(y[i], bits_float(g->out[i])), text);
                }
            if (g->grad[0]) EXPECT_EQ(DT_OK, dt_backward(dt_sum(t)));
            for (int k = 0; k < g->nin && g->grad[k]; k++) {
                EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(in[k]), y, sizeof(float) * (size_t)n));
                for (int i = 0; i < n; i++)
                    if (!same_special(y[i], bits_float(g->grad[k][i]))) {
                        char text[160];
                        snprintf(text, sizeof text, "d%d %s(%.9g, %.9g) = %.9g, PyTorch: %.9g", k, g->op, (double)a[i],
                                 g->nin == 2 ? (double)b[i] : g->d[0], (double)y[i], (double)bits_float(g->grad[k][i]));
                        EXPECT_TRUE_MSG(same_special(y[i], bits_float(g->grad[k][i])), text);
                    }
            }
            EXPECT_STREQ("", dt_error() ? dt_error() : "");
            dt_error_clear();
            dt_end();
            dt_free(in[0]);
            dt_free(in[1]);
            dt_set_default_device(NULL);
        }
}

UTEST(special, reductions_as_pytorch)
{
    for (size_t s = 0; s < sizeof golden_reductions / sizeof golden_reductions[0]; s++) {
        const golden_reduction *g = &golden_reductions[s];
        float                   v[8];
        char                    text[160];
        for (int i = 0; i < g->n; i++) v[i] = bits_float(g->in[i]);
        dt_tensor         *a = dt_from(v, DT_SHAPE(g->n));
        double             got[6] = { dt_item(dt_sum(a)), dt_item(dt_mean(a)),   dt_item(dt_amax(a)),
                                      dt_item(dt_amin(a)), dt_item(dt_argmax(a)), dt_item(dt_var(a)) };
        static const char *name[6] = { "sum", "mean", "max", "min", "argmax", "var" };
        for (int k = 0; k < 6; k++) {
            bool same = same_special((float)got[k], bits_float(g->out[k]));
            snprintf(text, sizeof text, "%s of reduction %d: %.9g, PyTorch: %.9g", name[k], (int)s, got[k],
                     (double)bits_float(g->out[k]));
            EXPECT_TRUE_MSG(same, text);
        }
        float y[2][8];
        EXPECT_EQ(DT_OK, dt_copy_out(dt_softmax(a, 0), y[0], 4 * (size_t)g->n));
        EXPECT_EQ(DT_OK, dt_copy_out(dt_log_softmax(a, 0), y[1], 4 * (size_t)g->n));
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < g->n; i++) {
                float want = bits_float(k ? g->log_softmax[i] : g->softmax[i]);
                snprintf(text, sizeof text, "%s[%d] of reduction %d: %.9g, PyTorch: %.9g",
                         k ? "log_softmax" : "softmax", i, (int)s, (double)y[k][i], (double)want);
                EXPECT_TRUE_MSG(same_special(y[k][i], want), text);
            }
        EXPECT_TRUE(dt_error() == NULL);
        dt_end();
    }
}

/* NaN anywhere in a long row reaches the result, whichever lane or thread it falls to. */
UTEST(special, nan_reaches_the_result_from_anywhere)
{
    enum { N = 70001 };
    float *v = (float *)calloc(N, sizeof(float));
    for (int at = 0; at < N; at += at < 70 ? 1 : 4999) {
        v[at] = NAN;
        dt_tensor *a = dt_from(v, DT_SHAPE(N));
        EXPECT_TRUE(isnan(dt_item(dt_sum(a))));
        EXPECT_TRUE(isnan(dt_item(dt_amax(a))));
        EXPECT_TRUE(isnan(dt_item(dt_amin(a))));
        EXPECT_EQ(at, (int)dt_item(dt_argmax(a)));
        EXPECT_TRUE(isnan(dt_item(dt_var(a))));
        dt_end();
        v[at] = 0;
    }
    free(v);
}

/* ==================================================================================================== >>making */
static void expect_all(int *utest_result, dt_tensor *t, dt_dtype d, double first, double step)
{
    size_t nbytes;
    char  *p = t ? bytes_of(t, &nbytes) : NULL;
    EXPECT_TRUE(p != NULL);
    EXPECT_EQ((int)d, (int)dt_dtype_of(t));
    for (int64_t e = 0; p && e < dt_numel(t); e++)
        if (cf_decode(d, p + (size_t)e * dt_dtype_nbytes(d)) != cf_round(d, first + step * (double)e)) {
            EXPECT_NEAR(cf_round(d, first + step * (double)e), cf_decode(d, p + (size_t)e * dt_dtype_nbytes(d)), 0.0);
            break;
        }
    free(p);
}

void cf_test_making(int *utest_result)
{
    for (int k = 0; k < DT_DTYPE_COUNT; k++) {
        dt_dtype d = (dt_dtype)k;
        expect_all(utest_result, dt_zeros(DT_SHAPE(3, 5), .dtype = d), d, 0, 0);
        expect_all(utest_result, dt_ones(DT_SHAPE(3, 5), .dtype = d), d, 1, 0);
        expect_all(utest_result, dt_full(7, DT_SCALAR, .dtype = d), d, 7, 0);
        expect_all(utest_result, dt_full(3, DT_SHAPE(300, 401), .dtype = d), d, 3, 0);
        expect_all(utest_result, dt_full(3, DT_SHAPE(0, 4), .dtype = d), d, 3, 0);
        expect_all(utest_result, dt_arange(0, 100, 1, .dtype = d), d, 0, 1);
        expect_all(utest_result, dt_arange(2, 9.5, 3, .dtype = d), d, 2, 3);
        expect_all(utest_result, dt_arange(5, 5, 1, .dtype = d), d, 0, 0);
        if (d != DT_U8) expect_all(utest_result, dt_arange(5, -7, -2, .dtype = d), d, 5, -2);
        dt_tensor *t = dt_zeros(DT_SHAPE(4, 6), .dtype = d);
        EXPECT_EQ(DT_OK, dt_fill(dt_transpose(dt_narrow(t, 1, 2, 3), 0, 1), 9)); /* a view: the rest stays */
        EXPECT_NEAR(9.0 * 12, dt_item(dt_cast(dt_sum(dt_cast(t, DT_F32)), DT_F32)), 0.0);
        expect_all(utest_result, dt_narrow(t, 1, 2, 3), d, 9, 0);
        expect_all(utest_result, dt_narrow(t, 1, 0, 2), d, 0, 0);
        expect_all(utest_result, dt_narrow(t, 1, 5, 1), d, 0, 0);
        EXPECT_NEAR(9.0, dt_item(dt_select(dt_select(t, 0, 1), 0, 3)), 0.0);
    }
    expect_all(utest_result, dt_full(0.1, DT_SHAPE(9)), DT_F32, 0.1, 0);
    expect_all(utest_result, dt_full(1e30, DT_SHAPE(9), .dtype = DT_F16), DT_F16, INFINITY, 0);
    expect_all(utest_result, dt_full(16777217, DT_SHAPE(2), .dtype = DT_I32), DT_I32, 16777217,
               0); /* not through f32 */
    expect_all(utest_result, dt_full(9007199254740991.0, DT_SHAPE(2), .dtype = DT_I64), DT_I64, 9007199254740991.0, 0);
    EXPECT_EQ(11, (int)dt_numel(dt_arange(0, 1.05, 0.1)));
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_end();
}
static void on_all_devices(int *utest_result, void (*test)(int *))
{
    dt_device *dev[2];
    int        ndev = devices(dev);
    for (int d = 0; d < ndev; d++) {
        dt_set_default_device(dev[d]);
        test(utest_result);
        dt_set_default_device(NULL);
    }
}
UTEST(making, fill_and_arange) { on_all_devices(utest_result, cf_test_making); }

/* The gradient of cross entropy is as exact for logits of 10,000 as for small ones. */
static void test_large_logits(int *utest_result)
{
    static const float   x3[6] = { 10000, 10001, 10002, -30000, -29999, -29998 };
    static const int64_t t2[2] = { 0, 2 };
    /* softmax of {0, 1, 2}: the gradient is p - [target], over 2 rows */
    static const double p[3] = { 0.09003057317038046, 0.24472847105479767, 0.6652409557748219 };
    static const float  one3[3] = { 1, 2, 0.5f };
    for (int kind = 0; kind < 4; kind++) {
        dt_tensor *x = dt_set_requires_grad(dt_from(x3, DT_SHAPE(2, 3))), *t = dt_from(t2, DT_SHAPE(2), .dtype = DT_I64);
        dt_tensor *w = kind == 2 ? dt_from(one3, DT_SHAPE(3)) : NULL;
        double     s = kind == 1 ? 0.25 : 0, g[6], total = kind == 2 ? 1 + 0.5 : kind == 3 ? 1 : 2;
        dt_backward(dt_cross_entropy(x, t, .label_smoothing = s, .ignore_index = kind == 3 ? 2 : 0, .weight = w));
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 3; k++) {
                double wt = kind == 2 ? (double)one3[t2[r]] : kind == 3 && r == 1 ? 0 : 1;
                g[3 * r + k] = wt * (p[k] - s / 3 - (k == t2[r] ? 1 - s : 0)) / total;
            }
        float got[6] = { 0 };
        EXPECT_EQ(dt_copy_out(dt_grad(x), got, sizeof got), DT_OK);
        for (int i = 0; i < 6; i++) EXPECT_NEAR((double)got[i], g[i], 2e-7);
        dt_free(x);
        dt_end();
    }
}
UTEST(special, cross_entropy_of_large_logits) { on_all_devices(utest_result, test_large_logits); }

/* Every dtype to every other, also broadcast, strided and added. */
static void test_copies(int *utest_result)
{
    double v[15], w[15];
    for (int i = 0; i < 15; i++) v[i] = i * 5 + (i % 4) * 0.25, w[i] = (i % 5) * 5 + (i % 5 % 4) * 0.25;
    for (int s = 0; s < DT_DTYPE_COUNT; s++)
        for (int d = 0; d < DT_DTYPE_COUNT; d++) {
            size_t ss = dt_dtype_nbytes((dt_dtype)s), ds = dt_dtype_nbytes((dt_dtype)d);
            char   buf[15 * 8], out[15 * 8];
            for (int i = 0; i < 15; i++) cf_encode((dt_dtype)s, v[i], buf + (size_t)i * ss);
            dt_tensor *src = dt_from(buf, DT_SHAPE(3, 5), .dtype = (dt_dtype)s);
            dt_tensor *dst = dt_zeros(DT_SHAPE(5, 3), .dtype = (dt_dtype)d);
            EXPECT_EQ(DT_OK, dt_copy(dt_transpose(dst, 0, 1), src));
            EXPECT_EQ(DT_OK, dt_copy_out(dst, out, 15 * ds));
            for (int i = 0; i < 15; i++)
                EXPECT_NEAR(cf_round((dt_dtype)d, cf_round((dt_dtype)s, v[i])),
                            cf_decode((dt_dtype)d, out + (size_t)(i % 5 * 3 + i / 5) * ds), 0.0);
            EXPECT_EQ(DT_OK, dt_copy(dst = dt_zeros(DT_SHAPE(3, 5), .dtype = (dt_dtype)d), dt_select(src, 0, 0)));
            EXPECT_EQ(DT_OK, dt_copy_out(dst, out, 15 * ds));
            for (int i = 0; i < 15; i++)
                EXPECT_NEAR(cf_round((dt_dtype)d, cf_round((dt_dtype)s, w[i])),
                            cf_decode((dt_dtype)d, out + (size_t)i * ds), 0.0);
            EXPECT_STREQ("", dt_error() ? dt_error() : "");
            dt_error_clear();
            dt_end();
        }
}
UTEST(making, copies_between_all_dtypes) { on_all_devices(utest_result, test_copies); }

static void test_in_place(int *utest_result)
{
    float      v[6] = { 1, 2, 3, 4, 5, 6 }, out[6];
    dt_tensor *t = dt_from(v, DT_SHAPE(2, 3)), *u = dt_from(v, DT_SHAPE(3));
    EXPECT_EQ(DT_OK, dt_add_to(t, t, 1));
    EXPECT_EQ(DT_OK, dt_add_to(t, u, -0.5)); /* broadcasts */
    EXPECT_EQ(DT_OK, dt_copy_out(t, out, sizeof out));
    for (int i = 0; i < 6; i++) EXPECT_NEAR(2.0 * v[i] - 0.5 * v[i % 3], (double)out[i], 0.0);
    EXPECT_EQ(DT_OK, dt_copy_in(dt_transpose(t, 0, 1), v, sizeof v)); /* row-major order of the view */
    EXPECT_EQ(DT_OK, dt_copy_out(t, out, sizeof out));
    for (int i = 0; i < 6; i++) EXPECT_NEAR((double)v[i % 3 * 2 + i / 3], (double)out[i], 0.0);
    dt_tensor *cpu = dt_to(t, dt_cpu());
    EXPECT_TRUE(dt_device_of(cpu) == dt_cpu());
    EXPECT_EQ(DT_OK, dt_copy(u, dt_select(cpu, 0, 1))); /* across devices */
    EXPECT_NEAR((double)v[1] + v[3] + v[5], dt_item(dt_sum(u)), 0.0);
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_end();
}
UTEST(making, in_place_and_across_devices) { on_all_devices(utest_result, test_in_place); }

/* ==================================================================================================== >>kernels
   Ops whose results are not a function of their inputs alone, or that change a tensor. */
void cf_test_dropout(int *utest_result)
{
    enum { N = 120007 };
    float *x = (float *)malloc(N * sizeof(float)), *y = (float *)malloc(N * sizeof(float)),
          *g = (float *)malloc(N * sizeof(float));
    float *again = (float *)malloc(N * sizeof(float));
    for (int i = 0; i < N; i++) x[i] = 1 + (float)(i % 7);
    for (int threads = 1; threads <= 3; threads++) {
        dt_set_num_threads(threads);
        dt_manual_seed(42);
        dt_tensor *in = dt_set_requires_grad(dt_from(x, DT_SHAPE(N))), *out = dt_op_dropout(in, 0.3);
        EXPECT_EQ(DT_OK, dt_backward(dt_sum(out)));
        EXPECT_EQ(DT_OK, dt_copy_out(out, y, N * sizeof(float)));
        EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(in), g, N * sizeof(float)));
        int kept = 0, wrong = 0;
        for (int i = 0; i < N; i++) {
            kept += y[i] != 0;
            wrong += y[i] != 0 ? fabsf(y[i] - x[i] / 0.7f) > 1e-6f * x[i] || fabsf(g[i] - 1 / 0.7f) > 1e-6f : g[i] != 0;
        }
        EXPECT_EQ(0, wrong);
        EXPECT_NEAR(0.7, (double)kept / N, 5 * sqrt(0.21 / N)); /* five standard deviations */
        if (threads == 1) memcpy(again, y, N * sizeof(float));
        EXPECT_EQ_MSG(0, memcmp(again, y, N * sizeof(float)), "the mask depends on the number of threads");
        out = dt_op_dropout(in, 0.3); /* the generator goes on: another mask, independent of the first */
        EXPECT_EQ(DT_OK, dt_copy_out(out, y, N * sizeof(float)));
        int both = 0;
        for (int i = 0; i < N; i++) both += y[i] != 0 && again[i] != 0;
        EXPECT_NEAR(0.49, (double)both / N, 5 * sqrt(0.25 / N));
        EXPECT_TRUE(dt_op_dropout(in, 0.3, .eval = true) == in);
        dt_end();
        dt_free(in);
    }
    dt_set_num_threads(0);
    /* the mask is the documented one: draw i%4 of counter offset + i/4 */
    dt_rng rng;
    dt_rng_seed(&rng, 9);
    rng.philox_offset = 5;
    dt_tensor *ones = dt_ones(DT_SHAPE(103)), *out = dt_op_dropout(ones, 0.5, .rng = &rng);
    EXPECT_EQ(DT_OK, dt_copy_out(out, y, 103 * sizeof(float)));
    for (int i = 0; i < 103; i++) {
        uint32_t draw[4];
        dt_philox(9, 5 + (uint64_t)i / 4, draw);
        EXPECT_NEAR((double)draw[i % 4] >= 0.5 * 4294967296.0 ? 2.0 : 0.0, (double)y[i], 0.0);
    }
    EXPECT_EQ(5 + 26, (int)rng.philox_offset);
    float z[5];
    EXPECT_EQ(DT_OK, dt_copy_out(dt_op_dropout(dt_ones(DT_SHAPE(5)), 0), z, sizeof z)); /* p = 0 keeps all */
    for (int i = 0; i < 5; i++) EXPECT_NEAR(1.0, (double)z[i], 0.0);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_op_dropout(dt_ones(DT_SHAPE(5)), 1), z, sizeof z)); /* p = 1 keeps none, without NaN */
    for (int i = 0; i < 5; i++) EXPECT_NEAR(0.0, (double)z[i], 0.0);
    for (int d = DT_F16; d <= DT_BF16; d++)
        EXPECT_EQ(101, (int)dt_numel(dt_op_dropout(dt_ones(DT_SHAPE(101), .dtype = (dt_dtype)d), 0.5)));
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_end();
    free(x);
    free(y);
    free(g);
    free(again);
}
UTEST(kernels, dropout) { on_all_devices(utest_result, cf_test_dropout); }

UTEST(kernels, optimisers) { on_all_devices(utest_result, cf_test_optim); }

static void test_running_stats(int *utest_result)
{
    enum { N = 5, C = 3, L = 7 };
    float x[N * C * L], mean[C] = { 0.5f, -1, 2 }, var[C] = { 1, 2, 0.5f };
    float got_mean[C], got_var[C];
    for (int i = 0; i < N * C * L; i++) x[i] = (float)((i * 37 % 101) - 50) / 25;
    dt_tensor *rm = dt_keep(dt_from(mean, DT_SHAPE(C))), *rv = dt_keep(dt_from(var, DT_SHAPE(C)));
    for (int step = 0; step < 2; step++) { /* default momentum, then 0.3 */
        double m = step ? 0.3 : 0.1;
        dt_op_batch_norm(dt_from(x, DT_SHAPE(N, C, L)), NULL, NULL, rm, rv, .momentum = step ? 0.3 : 0);
        EXPECT_EQ(DT_OK, dt_copy_out(rm, got_mean, sizeof got_mean));
        EXPECT_EQ(DT_OK, dt_copy_out(rv, got_var, sizeof got_var));
        for (int c = 0; c < C; c++) {
            double s = 0, q = 0;
            for (int k = 0; k < N * L; k++) s += (double)x[(k / L * C + c) * L + k % L] / (N * L);
            for (int k = 0; k < N * L; k++) q += pow((double)x[(k / L * C + c) * L + k % L] - s, 2) / (N * L - 1);
            EXPECT_NEAR((1 - m) * mean[c] + m * s, (double)got_mean[c], 1e-6);
            EXPECT_NEAR((1 - m) * var[c] + m * q, (double)got_var[c], 1e-6);
            mean[c] = got_mean[c];
            var[c] = got_var[c];
        }
        dt_op_batch_norm(dt_from(x, DT_SHAPE(N, C, L)), NULL, NULL, rm, rv, .eval = true); /* evaluation changes nothing */
        EXPECT_EQ(DT_OK, dt_copy_out(rm, got_mean, sizeof got_mean));
        EXPECT_EQ(0, memcmp(got_mean, mean, sizeof mean));
        dt_end();
    }
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_free(rm);
    dt_free(rv);
}
UTEST(kernels, batch_norm_updates_its_running_statistics) { on_all_devices(utest_result, test_running_stats); }

/* Ties of max share the gradient; ties of maximum halve it; max pooling gives it to the first. */
static void test_ties(int *utest_result)
{
    float      v[6] = { 1, 3, 3, 0, 3, 2 }, w[6] = { 1, 2, 3, 0, 4, 1 }, g[6];
    dt_tensor *a = dt_set_requires_grad(dt_from(v, DT_SHAPE(6))), *b = dt_set_requires_grad(dt_from(w, DT_SHAPE(6)));
    EXPECT_EQ(DT_OK, dt_backward(dt_amax(a)));
    EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(a), g, sizeof g));
    for (int i = 0; i < 6; i++) EXPECT_NEAR(v[i] == 3 ? 1.0 / 3 : 0, (double)g[i], 1e-7);
    dt_zero_grad(a);
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_maximum(a, b))));
    EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(a), g, sizeof g));
    for (int i = 0; i < 6; i++) EXPECT_NEAR(v[i] > w[i] ? 1 : v[i] == w[i] ? 0.5 : 0, (double)g[i], 0.0);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(b), g, sizeof g));
    for (int i = 0; i < 6; i++) EXPECT_NEAR(v[i] < w[i] ? 1 : v[i] == w[i] ? 0.5 : 0, (double)g[i], 0.0);
    dt_zero_grad(a);
    EXPECT_EQ(DT_OK,
              dt_backward(dt_sum(dt_maxpool2d(dt_reshape(a, DT_SHAPE(1, 1, 1, 6)), .kernel = 1, .kernel_w = 3))));
    EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(a), g, sizeof g));
    for (int i = 0; i < 6; i++) EXPECT_NEAR(i == 1 || i == 4 ? 1 : 0, (double)g[i], 0.0);
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_end();
    dt_free(a);
    dt_free(b);
}
UTEST(kernels, ties) { on_all_devices(utest_result, test_ties); }

/* ------------------------------------------------------------------------------------------ convolutions */
typedef struct conv_case {
    int64_t n, c, h, w, out;
} conv_case;
static const conv_case conv_cases[] = {
    { 2, 3, 6, 5, 4 }, { 3, 16, 5, 4, 32 }, { 1, 17, 7, 6, 24 }, { 2, 32, 8, 8, 16 }
};

static dt_tensor *conv_param(dt_rng *r, dt_shape s, dt_dtype d)
{
    return dt_set_requires_grad(dt_cast(dt_normal(0, 1, s, .rng = r), d));
}
/* An operand that is used twice gets its gradients added in place: exactly twice those of one use. */
static void test_conv_adds(int *utest_result)
{
    static const dt_dtype types[3] = { DT_F32, DT_F16, DT_BF16 };
    for (int k = 0; k < (int)(sizeof conv_cases / sizeof *conv_cases) * 3; k++) {
        const conv_case *s = &conv_cases[k / 3];
        dt_dtype         d = types[k % 3];
        dt_rng           rng;
        result           r[2];
        dt_rng_seed(&rng, 3);
        dt_tensor *p[3] = { conv_param(&rng, DT_SHAPE(s->n, s->c, s->h, s->w), d),
                            conv_param(&rng, DT_SHAPE(s->out, s->c, 3, 3), d), conv_param(&rng, DT_SHAPE(s->out), d) };
        for (int uses = 1; uses <= 2; uses++) {
            dt_tensor *x = dt_maxpool2d(p[0], .kernel = 1), *loss = NULL; /* an image of the device's layout */
            for (int u = 0; u < uses; u++) {
                dt_tensor *y = dt_sum(dt_cast(dt_op_conv2d(x, p[1], p[2], .pad = 1), DT_F32));
                loss = u ? dt_add(loss, y) : y;
            }
            EXPECT_EQ(DT_OK, dt_backward(loss));
            memset(&r[uses - 1], 0, sizeof r[0]);
            for (int i = 0; i < 3; i++) {
                r[uses - 1].grad[i] = bytes_of(dt_grad(p[i]), &r[uses - 1].grad_nbytes[i]);
                dt_zero_grad(p[i]);
            }
            dt_end();
        }
        for (int i = 0; i < 3; i++) {
            int64_t size = (int64_t)dt_dtype_nbytes(d), wrong = 0;
            for (int64_t e = 0; e < dt_numel(p[i]); e++) { /* cuDNN adds to a half what it has not rounded yet */
                double one = cf_decode(d, r[0].grad[i] + e * size), two = cf_decode(d, r[1].grad[i] + e * size);
                wrong += fabs(2 * one - two) > (on_cuda() && d != DT_F32 ? 1.5 * cf_eps(d) * fabs(two) : 0);
            }
            EXPECT_EQ(0, (int)wrong);
            dt_free(p[i]);
        }
        result_free(&r[0]);
        result_free(&r[1]);
    }
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
}
UTEST(kernels, convolutions_add_where_an_operand_is_used_twice) { on_all_devices(utest_result, test_conv_adds); }

/* The same image many times over: the same result many times over, wherever blocks and tasks begin. */
UTEST(kernels, convolutions_of_equal_images_are_equal)
{
    enum { N = 57, C = 16, H = 31, W = 32, ONE = C * H * W };
    static float y[N * ONE], dx[N * ONE];
    dt_rng       rng;
    dt_rng_seed(&rng, 5);
    dt_tensor *one = dt_normal(0, 1, DT_SHAPE(1, C, H, W), .rng = &rng);
    dt_tensor *w = dt_normal(0, 1, DT_SHAPE(C, C, 3, 3), .rng = &rng);
    dt_tensor *x = dt_set_requires_grad(dt_clone(dt_expand(one, DT_SHAPE(N, C, H, W)))), *out = dt_op_conv2d(x, w, NULL, .pad = 1);
    dt_tensor *alone = dt_op_conv2d(one, w, NULL, .pad = 1);
    EXPECT_EQ(DT_OK, dt_backward(out, .grad = x));
    EXPECT_EQ(DT_OK, dt_copy_out(out, y, sizeof y));
    EXPECT_EQ(DT_OK, dt_copy_out(dt_grad(x), dx, sizeof dx));
    for (int n = 1; n < N; n++) {
        EXPECT_EQ(0, memcmp(y, y + n * ONE, ONE * sizeof(float)));
        EXPECT_EQ(0, memcmp(dx, dx + n * ONE, ONE * sizeof(float)));
    }
    EXPECT_EQ(DT_OK, dt_copy_out(alone, dx, ONE * sizeof(float)));
    EXPECT_EQ(0, memcmp(y, dx, ONE * sizeof(float)));
    dt_end();
    dt_free(x);
    EXPECT_EQ(0, dt_check("test"));
}

/* What is not finite reaches every output that sees it, and none that is two or more pixels further off. */
UTEST(special, convolutions_show_what_is_not_finite)
{
    enum { C = 16, H = 9, N = C * H * H };
    float x[N], y[N], bad[2] = { NAN, INFINITY };
    for (int k = 0; k < 2; k++)
        for (int at = 0; at < H * H; at += 7) {
            for (int i = 0; i < N; i++) x[i] = (float)(i % 13) - 6;
            x[5 * H * H + at] = bad[k];
            dt_tensor *t = dt_from(x, DT_SHAPE(1, C, H, H)), *w = dt_ones(DT_SHAPE(C, C, 3, 3));
            EXPECT_EQ(DT_OK, dt_copy_out(dt_op_conv2d(t, w, NULL, .pad = 1), y, sizeof y));
            for (int i = 0; i < N; i++) {
                int dy = abs(i % (H * H) / H - at / H), dx = abs(i % H - at % H), far = dy > dx ? dy : dx;
                if (far <= 1) EXPECT_FALSE(isfinite(y[i]));
                if (far > 2) EXPECT_TRUE(isfinite(y[i]));
            }
            dt_end();
        }
}

/* The lists of conformance.h say what covers what; here each entry is seen to be called. */
UTEST(kernels, every_entry_is_called)
{
    fake_device *f = fake_device_new(0);
    verdict      v = { 0, "" };
    ASSERT_TRUE(f != NULL);
    ASSERT_EQ(sizeof cf_covered / sizeof cf_covered[0], (size_t)(DT_K_COUNT + DT_U_COUNT + DT_B_COUNT + DT_R_COUNT));
    dt_set_default_device(f->dev);
    for (int k = 0; k < CF_NROWS; k++)
        for (const cf_case *c = cf_rows[k]->cases; c->spec; c++) {
            cf_ctx x;
            cf_arr ref = { 0 };
            result r;
            cf_ctx_init(&x, cf_rows[k], c, DT_F32);
            if (is_large(&x)) {
                cf_ctx_free(&x);
                continue;
            }
            cf_ctx_random(&x);
            cf_rows[k]->ref(&x, &ref);
            double *w = make_weights(ref.n);
            run(&x, w, 1, &r, &v);
            result_free(&r);
            free(w);
            free(ref.v);
            cf_ctx_free(&x);
        }
    cf_test_making(utest_result);
    cf_test_dropout(utest_result);
    cf_test_optim(utest_result);
    dt_set_default_device(NULL);
#define CALLED_KERNEL(n) EXPECT_GT_MSG(f->kernels[DT_K_##n], 0, "kernel " #n);
#define CALLED_UNARY(n, ...)                           \
    EXPECT_GT_MSG(f->unary[DT_U_##n], 0, "unary " #n); \
    EXPECT_GT_MSG(f->unary_bwd[DT_U_##n] + (DT_U_##n == DT_U_AFFINE), 0, "unary_bwd " #n); /* AFFINE: a*dy is AFFINE */
#define CALLED_BINARY(n, ...) EXPECT_GT_MSG(f->binary[DT_B_##n], 0, "binary " #n);
#define CALLED_REDUCE(n) EXPECT_GT_MSG(f->reduce[DT_R_##n], 0, "reduce " #n);
    DT_KERNELS(CALLED_KERNEL)
    DT_UNARY_FNS(CALLED_UNARY)
    DT_BINARY_FNS(CALLED_BINARY)
    DT_REDUCE_FNS(CALLED_REDUCE)
    dt_empty_cache();
    EXPECT_EQ(0, (int)fake_live_blocks(f));
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

/* ==================================================================================================== >>devices */
UTEST(devices, host_cannot_touch_the_fake_device)
{
    fake_device *f = the_fake();
    float       *p = (float *)f->table.alloc(f->dev, 64);
    ASSERT_TRUE(p != NULL);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile float *)p = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    f->table.free(f->dev, p, 64);
}

UTEST(devices, nothing_runs_before_a_wait)
{
    fake_device *f = the_fake();
    float        v[3] = { 1, 2, 3 };
    EXPECT_EQ(DT_OK, dt_synchronize(f->dev));
    int64_t late = f->late;
    dt_set_default_device(f->dev);
    dt_tensor *t = dt_from(v, DT_SHAPE(3));
    v[0] = v[1] = v[2] = 99; /* the upload has its own copy */
    dt_tensor *y = dt_sum(dt_mul(t, t));
    EXPECT_EQ(late, f->late);
    EXPECT_NEAR(14.0, dt_item(y), 0.0);
    EXPECT_GT(f->late, late);
    dt_set_default_device(NULL);
    dt_end();
}

UTEST(devices, streams_run_in_the_order_asked_for)
{
    fake_device *f = the_fake();
    float        v[4] = { 1, 2, 3, 4 }, out[4];
    dt_set_default_device(f->dev);
    void *s = f->table.stream_new(f->dev), *q = f->table.stream_new(f->dev);
    EXPECT_TRUE(s && q && s != q);
    void      *old = dt_device_set_stream(f->dev, s);
    dt_tensor *t = dt_add_scalar(dt_from(v, DT_SHAPE(4)), 1);
    EXPECT_TRUE(dt_device_set_stream(f->dev, q) == s);
    EXPECT_EQ(0, f->table.order(f->dev, q, s)); /* without this line q would read memory that is still NaN */
    dt_tensor *u = dt_mul_scalar(t, 10);
    EXPECT_EQ(DT_OK, dt_copy_out(u, out, sizeof out));
    for (int i = 0; i < 4; i++) EXPECT_NEAR(10.0 * (v[i] + 1), (double)out[i], 0.0);
    dt_device_set_stream(f->dev, old);
    EXPECT_EQ(DT_OK, dt_synchronize(f->dev));
    dt_end();
    dt_empty_cache();
    f->table.stream_free(f->dev, s);
    f->table.stream_free(f->dev, q);
    dt_set_default_device(NULL);
}

UTEST(devices, unordered_streams_see_memory_that_is_not_written_yet)
{
    fake_device *f = the_fake(); /* the fake device can show the mistake that the test above avoids */
    float        v[4] = { 1, 2, 3, 4 }, out[4] = { 0 };
    dt_set_default_device(f->dev);
    dt_empty_cache();
    void      *s = f->table.stream_new(f->dev), *old = dt_device_set_stream(f->dev, s);
    dt_tensor *t = dt_from(v, DT_SHAPE(4));
    dt_device_set_stream(f->dev, old);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_mul_scalar(t, 10), out, sizeof out));
    EXPECT_TRUE(isnan(out[0]));
    EXPECT_EQ(DT_OK, dt_synchronize(f->dev));
    dt_end();
    dt_empty_cache();
    f->table.stream_free(f->dev, s);
    dt_set_default_device(NULL);
}

UTEST(devices, a_missing_entry_is_an_error_that_names_op_and_device)
{
    fake_device *f = fake_device_new((uint64_t)1 << DT_K_softmax | (uint64_t)1 << DT_K_gemm);
    float        v[6] = { 1, 2, 3, 4, 5, 6 }, out[6], want[6];
    ASSERT_TRUE(f != NULL);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_softmax(dt_from(v, DT_SHAPE(2, 3)), 1), want, sizeof want));
    dt_set_default_device(f->dev);
    EXPECT_TRUE(dt_softmax(dt_from(v, DT_SHAPE(2, 3)), 1) == NULL);
    EXPECT_EQ(DT_ERR_DEVICE, dt_error_code());
    EXPECT_TRUE_MSG(dt_error() && strstr(dt_error(), "softmax") && strstr(dt_error(), "fake"),
                    dt_error() ? dt_error() : "");
    dt_error_clear();
    EXPECT_TRUE(dt_matmul(dt_ones(DT_SHAPE(2, 2)), dt_ones(DT_SHAPE(2, 2))) == NULL);
    EXPECT_TRUE_MSG(dt_error() && strstr(dt_error(), "gemm") && strstr(dt_error(), "fake"),
                    dt_error() ? dt_error() : "");
    dt_error_clear();
    int64_t before = dt_stats().fallbacks; /* allowed, it runs on the CPU and is counted; backward too */
    dt_device_allow_fallback(f->dev, true);
    dt_tensor *x = dt_set_requires_grad(dt_from(v, DT_SHAPE(2, 3)));
    dt_tensor *y = dt_softmax(x, 1);
    EXPECT_TRUE(y && dt_device_of(y) == f->dev);
    EXPECT_EQ(before + 1, dt_stats().fallbacks);
    EXPECT_EQ(DT_OK, dt_copy_out(y, out, sizeof out));
    EXPECT_EQ(0, memcmp(out, want, sizeof out));
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(y, y))));
    EXPECT_TRUE(dt_grad(x) && dt_device_of(dt_grad(x)) == f->dev);
    dt_device_allow_fallback(f->dev, false);
    EXPECT_TRUE(dt_softmax(x, 1) == NULL);
    dt_error_clear();
    dt_set_default_device(NULL);
    dt_end();
    EXPECT_EQ(DT_ERR_STATE, dt_device_free(f->dev)); /* x lives on it */
    dt_error_clear();
    dt_free(x);
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

/* A kernel that fails late is reported by the next call that waits, and once. */
UTEST(devices, late_errors_are_reported_at_the_next_wait)
{
    fake_device *f = the_fake();
    int64_t      index[3] = { 0, 9, 1 };
    float        out[6];
    dt_set_default_device(f->dev);
    dt_tensor *w = dt_ones(DT_SHAPE(4, 2)), *y = dt_op_embedding(dt_from(index, DT_SHAPE(3), .dtype = DT_I64), w);
    EXPECT_TRUE(y != NULL && dt_error() == NULL); /* not known yet */
    EXPECT_NE(DT_OK, dt_copy_out(y, out, sizeof out));
    EXPECT_TRUE_MSG(dt_error() && strstr(dt_error(), "embedding") && strstr(dt_error(), "9"),
                    dt_error() ? dt_error() : "no error");
    dt_error_clear();
    EXPECT_EQ(DT_OK, dt_synchronize(f->dev));
    EXPECT_NEAR(8.0, dt_item(dt_sum(w)), 0.0); /* the device goes on */
    f->fail_kernel = 1;
    dt_tensor *z = dt_exp(w);
    EXPECT_TRUE(z != NULL);
    EXPECT_NE(DT_OK, dt_synchronize(f->dev));
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "unary"));
    dt_error_clear();
    dt_set_default_device(NULL);
    dt_end();
}

UTEST(devices, operands_on_two_devices_are_refused)
{
    dt_tensor *a = dt_ones(DT_SHAPE(3)), *b = dt_ones(DT_SHAPE(3), .device = the_fake()->dev);
    EXPECT_TRUE(dt_add(a, b) == NULL);
    EXPECT_EQ(DT_ERR_DEVICE, dt_error_code());
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "fake") && strstr(dt_error(), "cpu"));
    dt_error_clear();
    EXPECT_NEAR(6.0, dt_item(dt_sum(dt_add(dt_to(a, the_fake()->dev), b))), 0.0);
    dt_end();
}

/* ==================================================================================================== >>trainer
   A small convolutional net with norms, dropout and attention, trained for some steps by plain descent: equal bits on
   both devices and with every number of threads. */
typedef struct net {
    dt_tensor *conv1, *bn_w, *bn_b, *bn_m, *bn_v, *conv2, *qkv, *ln_w, *ln_b, *fc_w, *fc_b;
} net;

static dt_tensor *net_param(dt_rng *r, dt_shape s, double bound)
{
    return dt_set_requires_grad(dt_uniform(-bound, bound, s, .rng = r));
}

static void net_make(net *m, dt_rng *r)
{
    m->conv1 = net_param(r, DT_SHAPE(8, 3, 3, 3), 0.2);
    m->bn_w = dt_set_requires_grad(dt_ones(DT_SHAPE(8)));
    m->bn_b = dt_set_requires_grad(dt_zeros(DT_SHAPE(8)));
    m->bn_m = dt_keep(dt_zeros(DT_SHAPE(8)));
    m->bn_v = dt_keep(dt_ones(DT_SHAPE(8)));
    m->conv2 = net_param(r, DT_SHAPE(8, 8, 3, 3), 0.12);
    m->qkv = net_param(r, DT_SHAPE(24, 8), 0.35);
    m->ln_w = dt_set_requires_grad(dt_ones(DT_SHAPE(8)));
    m->ln_b = dt_set_requires_grad(dt_zeros(DT_SHAPE(8)));
    m->fc_w = net_param(r, DT_SHAPE(5, 8), 0.35);
    m->fc_b = dt_set_requires_grad(dt_zeros(DT_SHAPE(5)));
}

static dt_tensor *net_forward(net *m, dt_tensor *x, dt_rng *r)
{
    int64_t n = dt_size(x, 0);
    x = dt_op_conv2d(x, m->conv1, NULL, .pad = 1);
    x = dt_op_batch_norm(x, m->bn_w, m->bn_b, m->bn_m, m->bn_v, .act = DT_ACT_RELU);
    x = dt_maxpool2d(x, .kernel = 2);
    x = dt_add(x, dt_relu(dt_op_conv2d(x, m->conv2, NULL, .pad = 1)));
    dt_tensor *t = dt_transpose(dt_reshape(x, DT_SHAPE(n, 8, -1)), 1, 2); /* (n, pixels, 8) */
    t = dt_op_layer_norm(t, m->ln_w, m->ln_b);
    dt_tensor *part[3], *a = dt_op_linear(t, m->qkv, NULL);
    if (dt_split(a, 8, 2, part, 3) < 0) return NULL;
    for (int i = 0; i < 3; i++) part[i] = dt_unsqueeze(part[i], 1);
    a = dt_squeeze(dt_attention(part[0], part[1], part[2], .causal = true), 1);
    a = dt_mean(dt_op_dropout(dt_add(a, t), 0.1, .rng = r), .dims = DT_DIM(1));
    return dt_op_linear(a, m->fc_w, m->fc_b);
}

enum { NET_PARAMS = 9, NET_STEPS = 10 };
static void net_train(int *utest_result, float *loss, float *weight, dt_dtype dtype)
{
    net     m;
    dt_rng  r;
    int64_t label[6] = { 0, 1, 2, 3, 4, 1 };
    dt_rng_seed(&r, 3);
    net_make(&m, &r);
    dt_tensor *p[NET_PARAMS] = { m.conv1, m.bn_w, m.bn_b, m.conv2, m.qkv, m.ln_w, m.ln_b, m.fc_w, m.fc_b };
    dt_tensor *x = dt_keep(dt_cast(dt_normal(0, 1, DT_SHAPE(6, 3, 12, 12), .rng = &r), dtype));
    dt_tensor *y = dt_keep(dt_from(label, DT_SHAPE(6), .dtype = DT_I64));
    for (int step = 0; step < NET_STEPS; step++) {
        dt_tensor *l = dt_cross_entropy(net_forward(&m, x, &r), y, .label_smoothing = 0.1);
        EXPECT_EQ(DT_OK, dt_backward(l));
        loss[step] = (float)dt_item(l);
        dt_no_grad_begin();
        for (int i = 0; i < NET_PARAMS; i++) {
            EXPECT_EQ(DT_OK, dt_add_to(p[i], dt_grad(p[i]), -0.3));
            dt_zero_grad(p[i]);
        }
        dt_no_grad_end();
        dt_end();
    }
    EXPECT_EQ(DT_OK, dt_copy_out(m.conv1, weight, 8 * 27 * sizeof(float)));
    EXPECT_EQ(DT_OK, dt_copy_out(m.fc_w, weight + 8 * 27, 40 * sizeof(float)));
    EXPECT_EQ(DT_OK, dt_copy_out(m.bn_v, weight + 8 * 27 + 40, 8 * sizeof(float)));
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    for (int i = 0; i < NET_PARAMS; i++) dt_free(p[i]);
    dt_free(m.bn_m);
    dt_free(m.bn_v);
    dt_free(x);
    dt_free(y);
    dt_end();
}

UTEST(trainer, equal_bits_on_both_devices_and_with_every_number_of_threads)
{
    float   loss[NET_STEPS], weight[8 * 27 + 48], first_loss[NET_STEPS], first_weight[8 * 27 + 48];
    int64_t live = dt_stats().live_tensors;
    for (int threads = 1; threads <= 3; threads++)
        for (int d = 0; d < 2; d++) {
            dt_set_num_threads(threads);
            dt_set_default_device(d ? the_fake()->dev : NULL);
            net_train(utest_result, loss, weight, DT_F32);
            dt_set_default_device(NULL);
            if (threads == 1 && d == 0) {
                memcpy(first_loss, loss, sizeof loss);
                memcpy(first_weight, weight, sizeof weight);
                EXPECT_LT(loss[NET_STEPS - 1], 0.9f * loss[0]); /* it learns */
            }
            EXPECT_EQ(0, memcmp(first_loss, loss, sizeof loss));
            EXPECT_EQ(0, memcmp(first_weight, weight, sizeof weight));
        }
    dt_set_num_threads(0);
    EXPECT_EQ(live, dt_stats().live_tensors);
}
