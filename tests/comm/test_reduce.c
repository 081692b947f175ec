/* test_reduce.c: the reductions of dt_comm.h, every dtype and op, beside a plain loop over single elements with halves
   of its own. Results are compared bit for bit; that not a number has all bits set is part of it.
   Contents: >>reference >>two >>many >>scale >>special
   run: -O1 */
#undef DT_NO_AVX2 /* both instruction sets are looked at here */
#define DT_COMM_IMPLEMENTATION
#include "dt_comm.h"

#include "harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== >>reference */
static uint64_t state = 1;
static uint32_t draw(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545F4914F6CDD1Du) >> 32);
}
static bool   is_float(int d) { return d == DT_COMM_F32 || d == DT_COMM_F64 || d == DT_COMM_F16 || d == DT_COMM_BF16; }
static bool   is_half(int d) { return d == DT_COMM_F16 || d == DT_COMM_BF16; }
static double value_of(int d, uint64_t bits)
{
    float    f;
    double   v;
    uint32_t u = (uint32_t)bits;
    if (d == DT_COMM_F64) {
        memcpy(&v, &bits, 8);
        return v;
    }
    if (d == DT_COMM_F16) {
        int e = (int)(bits >> 10) & 31, m = (int)bits & 1023;
        v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        return bits & 0x8000 ? -v : v;
    }
    if (d == DT_COMM_BF16) u <<= 16;
    memcpy(&f, &u, 4);
    return (double)f;
}
/* To the nearest, ties to even, by search over the magnitudes of a half; v is a float's value. */
static uint64_t half_bits(int d, double v)
{
    uint64_t sign = signbit(v) ? 0x8000 : 0, low = 0, high = d == DT_COMM_F16 ? 0x7c00 : 0x7f80;
    double   a = fabs(v), top = d == DT_COMM_F16 ? 65520.0 : ldexp(511, 119); /* half a step above the largest */
    if (isnan(v)) return 0xffff;
    if (a >= top) return sign | high;
    for (high--; low < high;) { /* the largest that is not above a */
        uint64_t mid = (low + high + 1) / 2;
        if (value_of(d, mid) <= a) low = mid;
        else high = mid - 1;
    }
    bool   last = low + 1 == (d == DT_COMM_F16 ? 0x7c00u : 0x7f80u);
    double below = a - value_of(d, low), above = (last ? 2 * top - value_of(d, low) : value_of(d, low + 1)) - a;
    if (above < below || (above == below && (low & 1))) low++;
    return sign | low;
}
static uint64_t float_bits(int d, double v)
{
    uint64_t u = 0;
    float    f = (float)v;
    if (is_half(d)) return half_bits(d, v);
    if (isnan(v)) return d == DT_COMM_F64 ? UINT64_MAX : UINT32_MAX;
    if (d == DT_COMM_F64) memcpy(&u, &v, 8);
    else memcpy(&u, &f, 4);
    return u;
}
static double float_op(int d, int op, double a, double b)
{
    switch (op) {
    case DT_COMM_SUM:
    case DT_COMM_MEAN: return d == DT_COMM_F64 ? a + b : (double)((float)a + (float)b);
    case DT_COMM_PROD: return d == DT_COMM_F64 ? a * b : (double)((float)a * (float)b);
    case DT_COMM_MIN: return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
    default: return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    }
}
static uint64_t int_op(int d, int op, uint64_t a, uint64_t b)
{
    int64_t x = d == DT_COMM_I32 ? (int32_t)(uint32_t)a : (int64_t)a;
    int64_t y = d == DT_COMM_I32 ? (int32_t)(uint32_t)b : (int64_t)b;
    switch (op) {
    case DT_COMM_SUM:
    case DT_COMM_MEAN: return a + b;
    case DT_COMM_PROD: return a * b;
    case DT_COMM_MIN: return x < y ? a : b;
    case DT_COMM_MAX: return x > y ? a : b;
    default: return a | b;
    }
}
static uint64_t get(int d, const void *p, int64_t i)
{
    uint64_t u = 0;
    memcpy(&u, (const char *)p + (size_t)i * dt__elem_nbytes(d), dt__elem_nbytes(d));
    return u;
}
static void put(int d, void *p, int64_t i, uint64_t u)
{
    memcpy((char *)p + (size_t)i * dt__elem_nbytes(d), &u, dt__elem_nbytes(d));
}
/* element i of src[0] op src[1] op ... */
static uint64_t want_of(int d, int op, const void *const *src, int nsrc, int64_t i)
{
    uint64_t u = get(d, src[0], i);
    double   v = 0;
    if (is_float(d)) v = value_of(d, u);
    for (int k = 1; k < nsrc; k++)
        if (is_float(d)) v = float_op(d, op, v, value_of(d, get(d, src[k], i)));
        else u = int_op(d, op, u, get(d, src[k], i));
    if (is_float(d)) u = float_bits(d, v);
    return u & (dt__elem_nbytes(d) == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * dt__elem_nbytes(d)) - 1);
}
/* Elements with all the odd ones among them: zeros, subnormals, infinities, NaN, the ends of ints. */
static uint64_t element(int d)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 65504.0f, -65504.0f, 65519.0f,
                                 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1p-14f, 0x1.ff8p-15f, 0x1p-126f, 0x1p-140f,
                                 3.3895314e38f };
    uint64_t           all = ((uint64_t)draw() << 32) | draw();
    size_t             nbits = 8 * dt__elem_nbytes(d);
    double             v = (double)odd[draw() % (sizeof odd / sizeof *odd)];
    if (!is_float(d)) return nbits == 64 ? all : all & (((uint64_t)1 << nbits) - 1);
    if (draw() % 4) v = ((double)draw() - 2147483648.0) * ldexp(1, -31 + (int)(draw() % 12)); /* sums of them round */
    else if (draw() % 2) { /* any bits that are not NaN */
        uint64_t u = nbits == 64 ? all : all & (((uint64_t)1 << nbits) - 1);
        if (!isnan(value_of(d, u))) return u;
    }
    return float_bits(d, is_half(d) ? (double)(float)v : v);
}
static void fill(int d, void *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) put(d, p, i, element(d));
}

static const dt__reduce_table *tables[2];
static int tables_here(void) /* the portable one, and what this machine has */
{
    tables[0] = &dt__reduce_sse;
    tables[1] = dt__reduce_best();
    return tables[1] == tables[0] ? 1 : 2;
}
/* The first element that differs, or -1. */
static int64_t differs(int d, int op, const void *got, const void *const *src, int nsrc, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (get(d, got, i) != want_of(d, op, src, nsrc, i)) return i;
    return -1;
}

UTEST(reference, halves_round_as_they_must)
{
    EXPECT_EQ(0x3c00u, half_bits(DT_COMM_F16, 1 + 0x1p-11));      /* a tie goes to even */
    EXPECT_EQ(0x3c02u, half_bits(DT_COMM_F16, 1 + 0x3p-11));
    EXPECT_EQ(0x7bffu, half_bits(DT_COMM_F16, 65519));
    EXPECT_EQ(0x7c00u, half_bits(DT_COMM_F16, 65520));
    EXPECT_EQ(0x0000u, half_bits(DT_COMM_F16, 0x1p-25));
    EXPECT_EQ(0x8001u, half_bits(DT_COMM_F16, -0x1.8p-25));
    EXPECT_EQ(0x3f80u, half_bits(DT_COMM_BF16, 1 + 0x1p-8));
    EXPECT_EQ(0x7f80u, half_bits(DT_COMM_BF16, (double)3.3999e38f));
}

/* ==================================================================================================== >>two */
UTEST(two, sizes_and_which_exist)
{
    static const size_t nbytes[] = { 4, 2, 2, 4, 8, 1, 8 };
    for (int d = 0; d < DT_COMM_DTYPES; d++) EXPECT_EQ(nbytes[d], dt__elem_nbytes(d));
    EXPECT_EQ((size_t)0, dt__elem_nbytes(-1));
    EXPECT_EQ((size_t)0, dt__elem_nbytes(DT_COMM_DTYPES));
    for (int d = 0; d < DT_COMM_DTYPES; d++)
        for (int op = 0; op < DT_COMM_OPS; op++) EXPECT_EQ(!is_float(d) || op != DT_COMM_OR, dt__reduce_can(d, op));
    EXPECT_FALSE(dt__reduce_can(DT_COMM_DTYPES, 0));
    EXPECT_FALSE(dt__reduce_can(0, DT_COMM_OPS));
    EXPECT_FALSE(dt__reduce_can(-1, -1));
}

/* Sources at any byte; nothing before or behind the destination is written. */
static void lengths(int *utest_result, int d, int64_t n)
{
    size_t nb = dt__elem_nbytes(d), bytes = (size_t)n * nb;
    char  *a = (char *)malloc(bytes + 64), *b = (char *)malloc(bytes + 64), *got = (char *)malloc(bytes + 64);
    for (int op = 0; op < DT_COMM_OPS; op++)
        for (int left = 0; left < 2 && dt__reduce_can(d, op); left++) {
            size_t      off = draw() % 8, dst_off = 16 + draw() % 2 * (draw() % 16);
            const void *src[2], *flipped[2];
            fill(d, a + off, n);
            fill(d, b + off, n);
            src[0] = flipped[1] = a + off;
            src[1] = flipped[0] = b + off;
            memset(got, 0x5a, bytes + 64);
            memcpy(got + dst_off, a + off, bytes);
            dt__fold(d, op, got + dst_off, b + off, n, left);
            EXPECT_EQ_MSG(-1, differs(d, op, got + dst_off, left ? flipped : src, 2, n), "element");
            for (size_t i = 0; i < dst_off; i++) ASSERT_EQ(0x5a, got[i]);
            for (size_t i = dst_off + bytes; i < bytes + 64; i++) ASSERT_EQ(0x5a, got[i]);
            for (int t = 0; t < tables_here(); t++) { /* both instruction sets, in place over the other operand */
                void *dst = got + dst_off;
                memcpy(got + dst_off, b + off, bytes);
                flipped[0] = got + dst_off;
                tables[t]->many[d](op, &dst, 1, flipped, 2, 0, (size_t)n * dt__elem_nbytes(d));
                flipped[0] = b + off;
                EXPECT_EQ_MSG(-1, differs(d, op, got + dst_off, flipped, 2, n), tables[t]->name);
            }
        }
    free(a);
    free(b);
    free(got);
}
#define OF_DTYPE(NAME, D)                                                          \
    UTEST(two, NAME)                                                               \
    {                                                                              \
        for (int64_t n = 0; n <= 67; n++) lengths(utest_result, D, n);             \
        lengths(utest_result, D, 4099);                                            \
    }
OF_DTYPE(f32, DT_COMM_F32)
OF_DTYPE(f64, DT_COMM_F64)
OF_DTYPE(f16, DT_COMM_F16)
OF_DTYPE(bf16, DT_COMM_BF16)
OF_DTYPE(i32, DT_COMM_I32)
OF_DTYPE(i64, DT_COMM_I64)
OF_DTYPE(u8, DT_COMM_U8)

UTEST(two, what_does_not_exist_changes_nothing)
{
    float a = 1, b = 2;
    dt__fold(DT_COMM_F32, DT_COMM_OR, &a, &b, 1, false);
    dt__fold(DT_COMM_DTYPES, DT_COMM_SUM, &a, &b, 1, false);
    dt__fold(DT_COMM_F32, DT_COMM_SUM, &a, &b, -1, false);
    EXPECT_EQ(1.0f, a);
}

/* Every f16 and every bf16 comes through unchanged, but for NaN; a sum with 0 rounds nothing. */
UTEST(two, all_halves)
{
    uint16_t *a = (uint16_t *)malloc(65536 * 2), *b = (uint16_t *)malloc(65536 * 2);
    for (int d = DT_COMM_F16; d <= DT_COMM_BF16; d++)
        for (int t = 0; t < tables_here(); t++) {
            const void *src[2];
            void       *dst = b;
            for (int i = 0; i < 65536; i++) a[i] = (uint16_t)i;
            memset(b, 0, 65536 * 2);
            src[0] = a;
            src[1] = a;
            tables[t]->many[d](DT_COMM_MAX, &dst, 1, src, 2, 0, 65536 * dt__elem_nbytes(d));
            for (int i = 0; i < 65536; i++) {
                uint16_t want = isnan(value_of(d, (uint64_t)i)) ? 0xffff : (uint16_t)i;
                ASSERT_EQ_MSG(want, b[i], tables[t]->name);
            }
        }
    free(a);
    free(b);
}

/* ==================================================================================================== >>many */
UTEST(many, in_order_and_to_all_places)
{
    enum { N = 777, K = 9 };
    for (int d = 0; d < DT_COMM_DTYPES; d++) {
        size_t      bytes = N * dt__elem_nbytes(d);
        char       *mem = (char *)malloc((K + 2) * (bytes + 3)), *keep = (char *)malloc(K * bytes);
        const void *src[K], *kept[K];
        void       *dst[3];
        for (int k = 0; k < K; k++) {
            src[k] = mem + (size_t)k * (bytes + 3);
            kept[k] = keep + (size_t)k * bytes;
        }
        for (int op = 0; op < DT_COMM_OPS; op++)
            for (int nsrc = 1; nsrc <= K && dt__reduce_can(d, op); nsrc++)
                for (int t = 0; t < tables_here(); t++) {
                    int place = (int)(draw() % (uint32_t)nsrc), ndst = 1 + (int)(draw() % 3);
                    for (int k = 0; k < nsrc; k++) {
                        fill(d, (void *)src[k], N);
                        memcpy((void *)kept[k], src[k], bytes);
                    }
                    dst[0] = (void *)src[place]; /* one of the sources */
                    dst[1] = mem + K * (bytes + 3);
                    dst[2] = mem + (K + 1) * (bytes + 3);
                    tables[t]->many[d](op, dst, ndst, src, nsrc, 0, (size_t)N * dt__elem_nbytes(d));
                    if (nsrc == 1) { /* nothing to reduce: as it was, but for the bits of NaN */
                        EXPECT_EQ(-1, differs(d, op, dst[0], kept, 1, N));
                        continue;
                    }
                    for (int k = 0; k < ndst; k++)
                        EXPECT_EQ_MSG(-1, differs(d, op, dst[k], kept, nsrc, N), tables[t]->name);
                    for (int k = 0; k < nsrc; k++)
                        if (k != place) EXPECT_EQ(0, memcmp(kept[k], src[k], bytes));
                }
        free(mem);
        free(keep);
    }
}

/* 1 and 63 times 2^-11 in f16: rounding after each would leave 1. */
UTEST(many, halves_round_once)
{
    enum { K = 64 };
    uint16_t    x[K], r = 0;
    const void *src[K];
    void       *dst = &r;
    for (int k = 0; k < K; k++) {
        x[k] = (uint16_t)half_bits(DT_COMM_F16, k ? 0x1p-11 : 1);
        src[k] = &x[k];
    }
    dt__reduce_many(DT_COMM_F16, DT_COMM_SUM, &dst, 1, src, K, 1);
    EXPECT_EQ((uint16_t)half_bits(DT_COMM_F16, 1 + 63 * 0x1p-11), r);
}

UTEST(many, large)
{
    enum { N = 300001 };
    static float a[N], b[N], c[N];
    const void  *src[3];
    void        *dst[3];
    fill(DT_COMM_F32, a, N);
    fill(DT_COMM_F32, b, N);
    for (int64_t i = 0; i < N; i++) c[i] = (float)i;
    float *keep = (float *)malloc(3 * sizeof a);
    memcpy(keep, a, sizeof a);
    memcpy(keep + N, b, sizeof a);
    memcpy(keep + 2 * N, c, sizeof a);
    for (int k = 0; k < 3; k++) src[k] = keep + k * N;
    dst[0] = a;
    dst[1] = b;
    dst[2] = c;
    const void *from[3];
    from[0] = a;
    from[1] = b;
    from[2] = c;
    dt__reduce_many(DT_COMM_F32, DT_COMM_SUM, dst, 3, from, 3, N);
    EXPECT_EQ(-1, differs(DT_COMM_F32, DT_COMM_SUM, a, src, 3, N));
    EXPECT_EQ(0, memcmp(a, b, sizeof a));
    EXPECT_EQ(0, memcmp(a, c, sizeof a));
    free(keep);
}

/* ==================================================================================================== >>scale */
UTEST(scale, divides)
{
    for (int d = 0; d < DT_COMM_DTYPES; d++)
        for (int64_t n = 0; n <= 35; n++)
            for (int world = 1; world <= 7; world++) {
                char   a[35 * 8 + 8], got[35 * 8 + 8];
                size_t off = draw() % 8, bytes = (size_t)n * dt__elem_nbytes(d);
                fill(d, a + off, n);
                for (int t = 0; t < tables_here(); t++) {
                    memset(got, 0x5a, sizeof got);
                    memcpy(got + off, a + off, bytes);
                    if (t) dt__reduce_scale(d, got + off, n, world);
                    else if (world > 1) tables[0]->scale[d](got + off, n, world);
                    for (int64_t i = 0; i < n; i++) {
                        uint64_t u = get(d, a + off, i), want = u;
                        if (world == 1) want = u;
                        else if (d == DT_COMM_F64) want = float_bits(d, value_of(d, u) / world);
                        else if (is_float(d)) want = float_bits(d, (double)((float)value_of(d, u) / (float)world));
                        else if (d == DT_COMM_I32) want = (uint32_t)((int32_t)(uint32_t)u / world);
                        else want = (uint64_t)((int64_t)u / world);
                        ASSERT_EQ(want, get(d, got + off, i));
                    }
                    for (size_t i = 0; i < sizeof got; i++)
                        if (i < off || i >= off + bytes) ASSERT_EQ(0x5a, got[i]);
                }
            }
}

/* ==================================================================================================== >>special */
UTEST(special, nan_wins_on_either_side_and_zeros_go_by_order)
{
    float x[4], y[4];
    for (int left = 0; left < 2; left++)
        for (int op = DT_COMM_MIN; op <= DT_COMM_MAX; op++) {
            x[0] = NAN, y[0] = 1;
            x[1] = 1, y[1] = NAN;
            x[2] = 0.0f, y[2] = -0.0f;
            x[3] = -INFINITY, y[3] = INFINITY;
            dt__fold(DT_COMM_F32, op, x, y, 4, left);
            EXPECT_TRUE(isnan(x[0]));
            EXPECT_TRUE(isnan(x[1]));
            EXPECT_EQ(!left, !!signbit(x[2])); /* the right operand */
            EXPECT_EQ(op == DT_COMM_MIN, x[3] < 0);
        }
}

/* Two ranks that reduce the same pair, one with left, hold the same bits, also of NaN with other payloads. */
UTEST(special, both_sides_get_the_same_bits)
{
    for (int d = 0; d < DT_COMM_DTYPES; d++)
        for (int op = 0; op < DT_COMM_OPS; op++) {
            uint8_t a[512], b[512], r0[512], r1[512];
            int64_t n = (int64_t)(sizeof a / dt__elem_nbytes(d));
            if (!dt__reduce_can(d, op)) continue;
            for (int round = 0; round < 50; round++) {
                for (size_t i = 0; i < sizeof a; i++) { /* many NaN, of all kinds */
                    a[i] = (uint8_t)(draw() % 3 ? 0xff : draw());
                    b[i] = (uint8_t)(draw() % 3 ? 0x7f : draw());
                }
                memcpy(r0, a, sizeof a);
                memcpy(r1, b, sizeof b);
                dt__fold(d, op, r0, b, n, false);
                dt__fold(d, op, r1, a, n, true);
                ASSERT_EQ(0, memcmp(r0, r1, sizeof r0));
            }
        }
}
