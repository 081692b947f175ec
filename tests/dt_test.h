/* dt_test.h - what dt's tests share: utest.h's macros, comparisons of tensors, errors, forked ranks

       EXPECT_SHAPE(t, DT_SHAPE(2, 3))             the shape
       EXPECT_CLOSE(t, want, n, atol, rtol)        each |t - want| <= atol + rtol*|want|; want: const float *
       EXPECT_CLOSE_D(t, want, n, atol, rtol)      the same; want: const double *
       EXPECT_CLOSE_TO(a, b, atol, rtol)           the same for two tensors of one shape, b is wanted
       EXPECT_INTS(t, want, n)                     integers, exactly; want: const int64_t *
       EXPECT_SAME_BITS(a, b)                      shape, dtype and every bit
       EXPECT_OK(expr)                             expr does not fail and no error is pending
       EXPECT_ERROR(expr, "part of the message")   expr fails, the message has the part; clears the error
   and ASSERT_ of each. NaN equals NaN here, an infinity equals itself. A failure names the worst element, and prints
   and clears the pending error of dt, so that the rest of the test runs.

       dt_test_rtol(dtype, k), dt_test_eps(dtype)  tolerance of a sum of k products, the step of a dtype at 1
       dt_test_budget b; dt_test_budget_set(&b, n)   dt's allocator counts, and its n-th call from now fails (-1: none)
       dt_test_ranks(n, seconds, fn, arg)          n forked processes with a deadline: ranks.h
       dt_test_ns(), dt_test_slow(), dt_test_quick()   time, factor on deadlines, fewer sizes: harness.h */
#ifndef DT_TEST_H_INCLUDED
#define DT_TEST_H_INCLUDED

#include "ranks.h"

#include "dt.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ==================================================================================================== >>tolerance */
/* The distance from 1 to the next value of the dtype; 0 for integers. */
static DT_TEST_UNUSED double dt_test_eps(dt_dtype d)
{
    return d == DT_F32 ? 0x1p-23 : d == DT_F16 ? 0x1p-10 : d == DT_BF16 ? 0x1p-7 : 0;
}

/* For results stored as d of sums of k terms in f32: the step of d for storing, sqrt(k) steps of f32 for the sum. As an
   absolute tolerance multiply it by the size of what is summed (sums cancel). */
static DT_TEST_UNUSED double dt_test_rtol(dt_dtype d, double k)
{
    if (dt_test_eps(d) == 0) return 0;
    return (d == DT_F32 ? 0 : dt_test_eps(d)) + 4 * dt_test_eps(DT_F32) * sqrt(k > 1 ? k : 1);
}

/* ==================================================================================================== >>budget
   An allocator that counts and fails on request; for several threads. dt_set_allocator(NULL) ends it. */
typedef struct dt_test_budget {
    int64_t left;              /* calls that succeed before one fails; below 0: all do */
    int64_t calls, live, peak; /* calls; bytes in use, and the most there were */
} dt_test_budget;
static DT_TEST_UNUSED void *dt_test_budget_alloc(void *user, size_t n)
{
    dt_test_budget *b = (dt_test_budget *)user;
    __atomic_add_fetch(&b->calls, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&b->left, __ATOMIC_RELAXED) >= 0 && __atomic_fetch_sub(&b->left, 1, __ATOMIC_RELAXED) == 0)
        return NULL;
    void *p = malloc(n);
    if (!p) return NULL;
    int64_t live = __atomic_add_fetch(&b->live, (int64_t)n, __ATOMIC_RELAXED);
    int64_t peak = __atomic_load_n(&b->peak, __ATOMIC_RELAXED);
    while (live > peak &&
           !__atomic_compare_exchange_n(&b->peak, &peak, live, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return p;
}
static DT_TEST_UNUSED void dt_test_budget_free(void *user, void *p, size_t n)
{
    __atomic_sub_fetch(&((dt_test_budget *)user)->live, (int64_t)n, __ATOMIC_RELAXED);
    free(p);
}
static DT_TEST_UNUSED dt_status dt_test_budget_set(dt_test_budget *b, int64_t left)
{
    dt_allocator a = { dt_test_budget_alloc, dt_test_budget_free, b };
    memset(b, 0, sizeof *b);
    b->left = left;
    return dt_set_allocator(&a);
}

/* ==================================================================================================== >>compare
   Values are read by dt_copy_out and converted here: what is tested does not check itself. */
static DT_TEST_UNUSED double dt_test_half(uint16_t h)
{
    int    e = (h >> 10) & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static DT_TEST_UNUSED double dt_test_element(const void *p, dt_dtype d, int64_t i)
{
    uint32_t bits;
    float    f;
    switch (d) {
    case DT_F32: return (double)((const float *)p)[i];
    case DT_F16: return dt_test_half(((const uint16_t *)p)[i]);
    case DT_BF16:
        bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    case DT_I32: return ((const int32_t *)p)[i];
    case DT_I64: return (double)((const int64_t *)p)[i];
    case DT_U8: return ((const uint8_t *)p)[i];
    default: return NAN;
    }
}

/* Reports what is wrong, adds and clears dt's pending error; returns 1. */
static DT_TEST_UNUSED __attribute__((format(printf, 5, 6))) int
dt_test_fail(int *result, const char *file, int line, const char *expected, const char *format, ...)
{
    char    text[1024];
    va_list a;
    va_start(a, format);
    vsnprintf(text, sizeof text, format, a);
    va_end(a);
    dt_test_failure(result, file, line, expected, text, dt_error());
    dt_error_clear();
    return 1;
}

/* The bytes of t (freed by the caller), or NULL after a reported failure. Never NULL for an empty tensor. */
static DT_TEST_UNUSED void *dt_test_bytes(int *result, const char *file, int line, const char *text, dt_tensor *t)
{
    void *p;
    if (!t) {
        dt_test_fail(result, file, line, text, "the tensor is NULL");
        return NULL;
    }
    p = malloc(dt_nbytes(t) + 1);
    if (p && dt_copy_out(t, p, dt_nbytes(t)) == DT_OK) return p;
    dt_test_fail(result, file, line, text, "the tensor cannot be read");
    free(p);
    return NULL;
}

/* "[1, 2] (element 5 of 12)" */
static DT_TEST_UNUSED const char *dt_test_where(char *buf, size_t nbytes, dt_tensor *t, int64_t flat)
{
    dt_shape s = dt_shape_of(t);
    int64_t  index[DT_MAX_DIMS] = { 0 }, rest = flat;
    size_t   used = 0;
    for (int i = s.ndim - 1; i >= 0; i--) {
        index[i] = rest % s.dim[i];
        rest /= s.dim[i];
    }
    used += (size_t)snprintf(buf, nbytes, "[");
    for (int i = 0; i < s.ndim && used < nbytes; i++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%" PRId64, i ? ", " : "", index[i]);
    if (used < nbytes)
        snprintf(buf + used, nbytes - used, "] (element %" PRId64 " of %" PRId64 ")", flat, dt_numel(t));
    return buf;
}

/* How far apart, as a multiple of the tolerance: above 1 is too far. */
static DT_TEST_UNUSED double dt_test_excess(double got, double want, double atol, double rtol)
{
    double tol = atol + rtol * fabs(want), diff = fabs(got - want);
    if (got == want || (isnan(got) && isnan(want))) return 0;
    if (isnan(diff) || isinf(diff) || tol <= 0) return INFINITY;
    return diff / tol;
}

/* want is const float * or const double * (is_double). */
static DT_TEST_UNUSED int dt_test_close(int *result, const char *file, int line, const char *text, dt_tensor *t,
                                      const void *want, int is_double, int64_t n, double atol, double rtol)
{
    void   *p = dt_test_bytes(result, file, line, text, t);
    double  worst = 0;
    int64_t at = -1, wrong = 0;
    int     failed = 0;
    char    where[256];
    if (!p) return 1;
    if (dt_numel(t) != n) {
        free(p);
        return dt_test_fail(result, file, line, text, "%" PRId64 " elements, not %" PRId64, dt_numel(t), n);
    }
    for (int64_t i = 0; i < n; i++) {
        double w = is_double ? ((const double *)want)[i] : (double)((const float *)want)[i];
        double e = dt_test_excess(dt_test_element(p, dt_dtype_of(t), i), w, atol, rtol);
        wrong += e > 1;
        if (e > 1 && e > worst) {
            worst = e;
            at = i;
        }
    }
    if (at >= 0) {
        double g = dt_test_element(p, dt_dtype_of(t), at);
        double w = is_double ? ((const double *)want)[at] : (double)((const float *)want)[at];
        failed = dt_test_fail(result, file, line, text,
                              "worst at %s: got %.9g, want %.9g, apart by %.3g, allowed %.3g; %" PRId64 " wrong",
                              dt_test_where(where, sizeof where, t, at), g, w, fabs(g - w), atol + rtol * fabs(w),
                              wrong);
    }
    free(p);
    return failed;
}

static DT_TEST_UNUSED void dt_test_shape_text(char *buf, size_t nbytes, dt_shape s)
{
    size_t used = (size_t)snprintf(buf, nbytes, "(");
    for (int i = 0; i < s.ndim && i < DT_MAX_DIMS && used < nbytes; i++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%" PRId64, i ? ", " : "", s.dim[i]);
    if (used < nbytes) snprintf(buf + used, nbytes - used, ")");
}

static DT_TEST_UNUSED int dt_test_shape(int *result, const char *file, int line, const char *text, dt_tensor *t,
                                      dt_shape want)
{
    dt_shape s = dt_shape_of(t);
    char     a[256], b[256];
    int      same = s.ndim == want.ndim;
    if (!t) return dt_test_fail(result, file, line, text, "the tensor is NULL");
    for (int i = 0; same && i < s.ndim; i++) same = s.dim[i] == want.dim[i];
    if (same) return 0;
    dt_test_shape_text(a, sizeof a, s);
    dt_test_shape_text(b, sizeof b, want);
    return dt_test_fail(result, file, line, text, "shape %s, not %s", a, b);
}

static DT_TEST_UNUSED int dt_test_close_to(int *result, const char *file, int line, const char *text, dt_tensor *a,
                                         dt_tensor *b, double atol, double rtol)
{
    void   *p = dt_test_bytes(result, file, line, text, b);
    int64_t n = dt_numel(b);
    if (!p) return 1;
    double *want = (double *)malloc(((size_t)n + 1) * sizeof *want);
    for (int64_t i = 0; want && i < n; i++) want[i] = dt_test_element(p, dt_dtype_of(b), i);
    free(p);
    int failed = !want || dt_test_shape(result, file, line, text, a, dt_shape_of(b)) ||
                 dt_test_close(result, file, line, text, a, want, 1, n, atol, rtol);
    free(want);
    return failed;
}

static DT_TEST_UNUSED int64_t dt_test_integer(const void *p, dt_dtype d, int64_t i)
{
    return d == DT_I64 ? ((const int64_t *)p)[i] : d == DT_I32 ? ((const int32_t *)p)[i] : ((const uint8_t *)p)[i];
}

static DT_TEST_UNUSED int dt_test_ints(int *result, const char *file, int line, const char *text, dt_tensor *t,
                                     const int64_t *want, int64_t n)
{
    void    *p = dt_test_bytes(result, file, line, text, t);
    dt_dtype d = dt_dtype_of(t);
    char     where[256];
    int      failed = 0;
    if (!p) return 1;
    if (dt_test_eps(d) != 0)
        failed = dt_test_fail(result, file, line, text, "the tensor holds %s, not integers", dt_dtype_name(d));
    else if (dt_numel(t) != n)
        failed = dt_test_fail(result, file, line, text, "%" PRId64 " elements, not %" PRId64, dt_numel(t), n);
    for (int64_t i = 0; !failed && i < n; i++)
        if (dt_test_integer(p, d, i) != want[i])
            failed = dt_test_fail(result, file, line, text, "first at %s: got %" PRId64 ", want %" PRId64,
                                  dt_test_where(where, sizeof where, t, i), dt_test_integer(p, d, i), want[i]);
    free(p);
    return failed;
}

static DT_TEST_UNUSED int dt_test_same_bits(int *result, const char *file, int line, const char *text, dt_tensor *a,
                                          dt_tensor *b)
{
    void  *pa = dt_test_bytes(result, file, line, text, a);
    void  *pb = pa ? dt_test_bytes(result, file, line, text, b) : NULL;
    size_t each = dt_dtype_nbytes(dt_dtype_of(a));
    int    failed = !pa || !pb;
    if (!failed) failed = dt_test_shape(result, file, line, text, a, dt_shape_of(b));
    if (!failed && dt_dtype_of(a) != dt_dtype_of(b))
        failed = dt_test_fail(result, file, line, text, "dtypes %s and %s", dt_dtype_name(dt_dtype_of(a)),
                              dt_dtype_name(dt_dtype_of(b)));
    if (!failed && memcmp(pa, pb, dt_nbytes(a)) != 0) {
        int64_t first = -1, wrong = 0;
        char    where[256];
        for (int64_t i = 0; i < dt_numel(a); i++)
            if (memcmp((char *)pa + (size_t)i * each, (char *)pb + (size_t)i * each, each) != 0) {
                if (wrong++ == 0) first = i;
            }
        failed = dt_test_fail(result, file, line, text, "first at %s: %.9g and %.9g; %" PRId64 " differ",
                              dt_test_where(where, sizeof where, a, first), dt_test_element(pa, dt_dtype_of(a), first),
                              dt_test_element(pb, dt_dtype_of(a), first), wrong);
    }
    free(pa);
    free(pb);
    return failed;
}

/* the compiler sees that want has the right type */
static DT_TEST_UNUSED const float  *dt_test_floats(const float *p) { return p; }
static DT_TEST_UNUSED const double *dt_test_doubles(const double *p) { return p; }

/* leave is one of these: an EXPECT_ goes on when it fails, an ASSERT_ leaves the test */
#define DT_TEST_EXPECT_
#define DT_TEST_ASSERT_ return

#define DT_TEST_RUN_(call, leave) \
    do {                          \
        if (call) { leave; }      \
    } while (0)
#define DT_TEST_HERE_(text) utest_result, __FILE__, __LINE__, text

#define DT_TEST_SHAPE_(t, shape, leave) \
    DT_TEST_RUN_(dt_test_shape(DT_TEST_HERE_("shape of " #t " is " #shape), t, shape), leave)
#define DT_TEST_CLOSE_(t, text, want, dbl, n, atol, rtol, leave) \
    DT_TEST_RUN_(dt_test_close(DT_TEST_HERE_(#t " close to " text), t, want, dbl, n, atol, rtol), leave)
#define DT_TEST_CLOSE_TO_(a, b, atol, rtol, leave) \
    DT_TEST_RUN_(dt_test_close_to(DT_TEST_HERE_(#a " close to " #b), a, b, atol, rtol), leave)
#define DT_TEST_INTS_(t, want, n, leave) \
    DT_TEST_RUN_(dt_test_ints(DT_TEST_HERE_(#t " equals " #want), t, want, n), leave)
#define DT_TEST_SAME_BITS_(a, b, leave) \
    DT_TEST_RUN_(dt_test_same_bits(DT_TEST_HERE_(#a " has the bits of " #b), a, b), leave)

#define EXPECT_SHAPE(t, shape) DT_TEST_SHAPE_(t, shape, DT_TEST_EXPECT_)
#define ASSERT_SHAPE(t, shape) DT_TEST_SHAPE_(t, shape, DT_TEST_ASSERT_)
#define EXPECT_CLOSE(t, want, n, atol, rtol) \
    DT_TEST_CLOSE_(t, #want, dt_test_floats(want), 0, n, atol, rtol, DT_TEST_EXPECT_)
#define ASSERT_CLOSE(t, want, n, atol, rtol) \
    DT_TEST_CLOSE_(t, #want, dt_test_floats(want), 0, n, atol, rtol, DT_TEST_ASSERT_)
#define EXPECT_CLOSE_D(t, want, n, atol, rtol) \
    DT_TEST_CLOSE_(t, #want, dt_test_doubles(want), 1, n, atol, rtol, DT_TEST_EXPECT_)
#define ASSERT_CLOSE_D(t, want, n, atol, rtol) \
    DT_TEST_CLOSE_(t, #want, dt_test_doubles(want), 1, n, atol, rtol, DT_TEST_ASSERT_)
#define EXPECT_CLOSE_TO(a, b, atol, rtol) DT_TEST_CLOSE_TO_(a, b, atol, rtol, DT_TEST_EXPECT_)
#define ASSERT_CLOSE_TO(a, b, atol, rtol) DT_TEST_CLOSE_TO_(a, b, atol, rtol, DT_TEST_ASSERT_)
#define EXPECT_INTS(t, want, n) DT_TEST_INTS_(t, want, n, DT_TEST_EXPECT_)
#define ASSERT_INTS(t, want, n) DT_TEST_INTS_(t, want, n, DT_TEST_ASSERT_)
#define EXPECT_SAME_BITS(a, b) DT_TEST_SAME_BITS_(a, b, DT_TEST_EXPECT_)
#define ASSERT_SAME_BITS(a, b) DT_TEST_SAME_BITS_(a, b, DT_TEST_ASSERT_)

/* ==================================================================================================== >>errors
   A call fails by NULL, a negative status, or NaN. */
static DT_TEST_UNUSED int dt_test_bad_i(long long v) { return v < 0; }
static DT_TEST_UNUSED int dt_test_bad_d(double v) { return isnan(v); }
static DT_TEST_UNUSED int dt_test_bad_p(const void *v) { return v == NULL; }
#ifdef __cplusplus
static DT_TEST_UNUSED int dt_test_bad(int v) { return dt_test_bad_i(v); }
static DT_TEST_UNUSED int dt_test_bad(long v) { return dt_test_bad_i(v); }
static DT_TEST_UNUSED int dt_test_bad(long long v) { return dt_test_bad_i(v); }
static DT_TEST_UNUSED int dt_test_bad(float v) { return dt_test_bad_d((double)v); }
static DT_TEST_UNUSED int dt_test_bad(double v) { return dt_test_bad_d(v); }
static DT_TEST_UNUSED int dt_test_bad(const void *v) { return dt_test_bad_p(v); }
#define DT_TEST_BAD_(v) dt_test_bad(v)
#else
#define DT_TEST_BAD_(v)                                                                                   \
    (__extension__ _Generic((v), int: dt_test_bad_i, long: dt_test_bad_i, long long: dt_test_bad_i,       \
                            float: dt_test_bad_d, double: dt_test_bad_d, default: dt_test_bad_p)(v))
#endif

static DT_TEST_UNUSED int dt_test_pending(int *result, const char *file, int line, const char *text)
{
    return dt_error() ? dt_test_fail(result, file, line, text, "an error was pending before") : 0;
}

static DT_TEST_UNUSED int dt_test_error(int *result, const char *file, int line, const char *text, int bad,
                                      const char *part)
{
    const char *e = dt_error();
    int         failed = 1;
    if (!e) dt_test_fail(result, file, line, text, "%s", bad ? "it failed without a message" : "no error");
    else if (!bad) dt_test_fail(result, file, line, text, "an error is pending, but the call did not fail");
    else if (!strstr(e, part)) dt_test_fail(result, file, line, text, "the message lacks \"%s\"", part);
    else failed = 0;
    dt_error_clear();
    return failed;
}

#define DT_TEST_ERROR_(expr, part, leave)                                                        \
    do {                                                                                         \
        int dt_failed_ = dt_test_pending(DT_TEST_HERE_("an error from " #expr));                 \
        int dt_bad_ = DT_TEST_BAD_(expr);                                                        \
        dt_failed_ |= dt_test_error(DT_TEST_HERE_("an error from " #expr), dt_bad_, part);       \
        if (dt_failed_) { leave; }                                                               \
    } while (0)
#define EXPECT_ERROR(expr, part) DT_TEST_ERROR_(expr, part, DT_TEST_EXPECT_)
#define ASSERT_ERROR(expr, part) DT_TEST_ERROR_(expr, part, DT_TEST_ASSERT_)

#define DT_TEST_OK_(expr, leave)                                                                                \
    do {                                                                                                        \
        int dt_failed_ = dt_test_pending(DT_TEST_HERE_("no error from " #expr));                                \
        if (DT_TEST_BAD_(expr) || dt_error())                                                                   \
            dt_failed_ |= dt_test_fail(DT_TEST_HERE_("no error from " #expr), "it failed");                     \
        if (dt_failed_) { leave; }                                                                              \
    } while (0)
#define EXPECT_OK(expr) DT_TEST_OK_(expr, DT_TEST_EXPECT_)
#define ASSERT_OK(expr) DT_TEST_OK_(expr, DT_TEST_ASSERT_)

#endif /* DT_TEST_H_INCLUDED */
