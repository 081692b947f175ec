/* test_codecs.c: the codecs of dt_comm.h: what they send, what stays in the residual, what they refuse.
   Contents: >>tools >>golden >>feedback >>choosing >>random >>refusing >>hostile >>kernels
   run: long, -O1 */
#undef DT_NO_AVX2 /* both instruction sets are looked at here */
#define DT_COMM_IMPLEMENTATION
#include "dt_comm.h"

#include "harness.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== >>tools */
static dt_codec codec_of(int kind)
{
    dt_codec c = { 0 };
    c.kind = kind;
    c.ratio = 0.1;
    c.seed = 7;
    return c;
}
static bool exact(int kind) { return kind != DT_CODEC_SIGN && kind != DT_CODEC_ONEBIT && kind != DT_CODEC_QSGD; }
/* Encodes to memory of exactly the bound, from a copy of exactly n: AddressSanitizer sees one byte more. Free *wire. */
static int64_t encode(const dt_codec *c, const float *in, int64_t n, float *residual, float scale, uint64_t step, char **wire)
{
    int64_t bound = dt_codec_bound(c, n), got;
    float  *copy = (float *)malloc((size_t)n * 4 + !n);
    if (n) memcpy(copy, in, (size_t)n * 4);
    *wire = bound < 0 ? NULL : (char *)malloc((size_t)bound);
    got = bound < 0 ? bound : dt_codec_encode(c, copy, n, residual, scale, step, *wire, bound);
    free(copy);
    return got == bound || got < 0 ? got : -1000;
}
/* There and back; 0, or the status. */
static int trip(const dt_codec *c, const float *in, int64_t n, float *residual, float scale, uint64_t step, float *out)
{
    char   *wire;
    int64_t got = encode(c, in, n, residual, scale, step, &wire);
    int     bad = got < 0 ? (int)got : dt_codec_decode(c, wire, got, out, n, false);
    free(wire);
    return bad;
}
static uint32_t bits_of(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return u;
}
static float float_of(uint32_t u)
{
    float v;
    memcpy(&v, &u, 4);
    return v;
}
enum { NORMAL, HUGE_ONES, TINY, ZEROS, SUBNORMAL, MIXED, TIES, CLASSES };
static void fill(float *p, int64_t n, int what, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = dt_test_random(state);
        float    unit = (float)(r >> 40) * 0x1p-23f - 1.0f; /* [-1, 1) */
        switch (what) {
        case NORMAL: p[i] = unit; break;
        case HUGE_ONES: p[i] = unit * 1e37f; break;
        case TINY: p[i] = unit * 1e-37f; break;
        case ZEROS: p[i] = r & 1 ? 0.0f : -0.0f; break;
        case SUBNORMAL: p[i] = float_of((uint32_t)(r & 0x807fffffu)); break;
        case TIES: p[i] = (float)((int)(r % 7) - 3); break;
        default: p[i] = ldexpf(unit, (int)(r % 154) - 140); /* many magnitudes at a time */
        }
    }
}

/* ==================================================================================================== >>golden */
UTEST(golden, names_and_bounds)
{
    static const char *const name[] = { "none", "f16", "bf16", "topk", "randomk", "sign", "onebit", "qsgd" };
    static const int64_t     bytes[] = { 4000, 2000, 2000, 800, 400, 125, 125, 8 + 1000 };
    EXPECT_EQ(8, (int)DT_CODECS);
    for (int k = 0; k < DT_CODECS; k++) {
        dt_codec c = codec_of(k);
        EXPECT_STREQ(name[k], dt_codec_name(k));
        EXPECT_EQ(DT_CODEC_HEADER + bytes[k], dt_codec_bound(&c, 1000));
        EXPECT_EQ((int64_t)DT_CODEC_HEADER, dt_codec_bound(&c, 0));
    }
    EXPECT_STREQ("?", dt_codec_name(DT_CODECS));
    EXPECT_STREQ("?", dt_codec_name(-1));
    dt_codec c = codec_of(DT_CODEC_TOPK);
    c.ratio = 0; /* 0.01 */
    EXPECT_EQ((int64_t)DT_CODEC_HEADER + 80, dt_codec_bound(&c, 1000));
    EXPECT_EQ((int64_t)DT_CODEC_HEADER + 8, dt_codec_bound(&c, 3)); /* at least one */
    c.ratio = 0.29;                                                 /* 0.29 * 100 is less than 29 in f64 */
    EXPECT_EQ((int64_t)DT_CODEC_HEADER + 8 * 29, dt_codec_bound(&c, 100));
    c = codec_of(DT_CODEC_QSGD);
    c.levels = 1; /* 2 bits */
    c.bucket = 3;
    EXPECT_EQ((int64_t)DT_CODEC_HEADER + 4 * 4 + 3, dt_codec_bound(&c, 10));
    c.levels = 4; /* 4 bits */
    EXPECT_EQ((int64_t)DT_CODEC_HEADER + 4 * 4 + 5, dt_codec_bound(&c, 10));
}
typedef struct golden {
    int   kind;
    float in[6], sent[6]; /* the residual is zero before */
} golden;
UTEST(golden, small_vectors)
{
    static const golden g[] = {
        { DT_CODEC_NONE, { 1, -2, 3.5f, 0, 1e-40f, 3e38f }, { 1, -2, 3.5f, 0, 1e-40f, 3e38f } },
        /* a tie goes to even; f16 of 1e-8 is 0 */
        { DT_CODEC_F16,
          { 1 + 0x1p-11f, 1 + 0x3p-11f, 65519, 1e-8f, 0x1.8p-24f, -1.0f / 3 },
          { 1, 1 + 0x4p-11f, 65504, 0, 0x1p-23f, -0x1.554p-2f } },
        { DT_CODEC_BF16,
          { 1 + 0x1p-8f, 1 + 0x3p-8f, 65519, 1e-40f, 3e38f, -1.0f / 3 },
          { 1, 1 + 0x4p-8f, 65536, 0x1p-133f, 0x1.c4p127f, -0x1.56p-2f } },
        /* torch.topk of the magnitudes, k = 3; of the three with 2 the first two */
        { DT_CODEC_TOPK, { 1, -2, 0.5f, 2, 3, -2 }, { 0, -2, 0, 2, 3, 0 } },
        { DT_CODEC_TOPK, { 0, 0, 0, 0, 0, -1e-45f }, { 0, 0, 0, 0, 0, -1e-45f } },
        /* p.abs().mean() * where(p < 0, -1, 1) */
        { DT_CODEC_SIGN, { 1, -3, 0, 2, -0.0f, 6 }, { 2, -2, 2, 2, 2, 2 } },
        /* means of p[p >= 0] and p[p < 0] */
        { DT_CODEC_ONEBIT, { 1, -3, 0, 2, -1, 5 }, { 2, -2, 2, 2, -2, 2 } },
        { DT_CODEC_ONEBIT, { -1, -3, -2, -2, -1, -3 }, { -2, -2, -2, -2, -2, -2 } },
        /* norm 13 and 13 levels, then norm 5: all are multiples, so nothing is left to chance */
        { DT_CODEC_QSGD, { 3, -4, 12, 0, -5, 0 }, { 3, -4, 12, 0, -5, 0 } },
    };
    for (size_t t = 0; t < sizeof g / sizeof *g; t++) {
        dt_codec c = codec_of(g[t].kind);
        float    out[6], residual[6] = { 0 };
        c.ratio = 0.5;
        c.levels = 13;
        c.bucket = 4;
        ASSERT_EQ(0, trip(&c, g[t].in, 6, residual, 1, t, out));
        for (int i = 0; i < 6; i++) {
            EXPECT_EQ_MSG(bits_of(g[t].sent[i]), bits_of(out[i]), dt_codec_name(g[t].kind));
            EXPECT_EQ_MSG(bits_of(g[t].in[i] - g[t].sent[i]), bits_of(residual[i]), dt_codec_name(g[t].kind));
        }
    }
}
UTEST(golden, the_wire)
{
    static const float in[9] = { 1, -3, 0, 2, -0.0f, 6, 1, 1, -4 };
    dt_codec           c = codec_of(DT_CODEC_SIGN);
    char              *w;
    ASSERT_EQ((int64_t)DT_CODEC_HEADER + 2, encode(&c, in, 9, NULL, 1, 0x0102030405060708u, &w));
    static const uint8_t head[] = {
        'D', 'T', 'C', '1', 5, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0x40, 0, 0, 0, 0xc0, 0x02, 0x01
    }; /* values 2 and -2; elements 1 and 8 are negative */
    EXPECT_EQ(0, memcmp(w, head, sizeof head));
    free(w);
    c = codec_of(DT_CODEC_TOPK);
    c.ratio = 0.25;
    ASSERT_EQ((int64_t)DT_CODEC_HEADER + 16, encode(&c, in, 9, NULL, 2, 0, &w));
    static const uint8_t pairs[] = { 5, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0x40, 0x41, 0, 0, 0, 0xc1 }; /* 12 and -8 */
    EXPECT_EQ(0, memcmp(w + DT_CODEC_HEADER, pairs, sizeof pairs));
    free(w);
    c = codec_of(DT_CODEC_QSGD);
    c.levels = 4;
    ASSERT_EQ((int64_t)DT_CODEC_HEADER + 4 + 2, encode(&c, (const float[3]){ 0, -4, 0 }, 3, NULL, 1, 0, &w));
    static const uint8_t norm[] = { 0, 0, 0x80, 0x40, 0x90, 0 }; /* 4; levels 0, 4 (negative), 0 in 4 bits each */
    EXPECT_EQ(0, memcmp(w + DT_CODEC_HEADER, norm, sizeof norm));
    free(w);
}
UTEST(golden, adding_and_scaling)
{
    for (int k = 0; k < DT_CODECS; k++) {
        dt_codec c = codec_of(k);
        float    in[4] = { 4, 4, 4, 4 }, residual[4] = { 0.5f, 0.5f, 0.5f, 0.5f }, out[4] = { 1, 2, 3, 4 };
        char    *w;
        c.ratio = 1;
        c.levels = 2; /* the norm of four equal ones is twice as large as one of them */
        int64_t n = encode(&c, in, 4, residual, 0.25f, 3, &w);
        ASSERT_EQ_MSG(0, dt_codec_decode(&c, w, n, out, 4, true), dt_codec_name(k));
        for (int i = 0; i < 4; i++) {
            EXPECT_EQ_MSG((float)(i + 1) + 1.5f, out[i], dt_codec_name(k));
            EXPECT_EQ_MSG(0.0f, residual[i], dt_codec_name(k));
        }
        free(w);
    }
}
/* What follows the header can be summed where it is. */
UTEST(golden, arrays_behind_the_header_are_summed)
{
    static const struct {
        int     kind, dtype;
        int64_t n;
    } of[] = { { DT_CODEC_NONE, DT_COMM_F32, 100 },
               { DT_CODEC_F16, DT_COMM_F16, 100 },
               { DT_CODEC_BF16, DT_COMM_BF16, 100 },
               { DT_CODEC_RANDOMK, DT_COMM_F32, 10 } };
    float    a[100], b[100], sum[100], out[100];
    uint64_t state = 3;
    fill(a, 100, TIES, &state);
    fill(b, 100, TIES, &state);
    for (int i = 0; i < 100; i++) sum[i] = a[i] + b[i];
    for (size_t t = 0; t < sizeof of / sizeof *of; t++) {
        dt_codec c = codec_of(of[t].kind);
        char    *x, *y;
        int64_t  n = encode(&c, a, 100, NULL, 1, 5, &x);
        ASSERT_EQ(n, encode(&c, b, 100, NULL, 1, 5, &y));
        EXPECT_EQ(0, memcmp(x, y, DT_CODEC_HEADER));
        dt__fold(of[t].dtype, DT_COMM_SUM, x + DT_CODEC_HEADER, y + DT_CODEC_HEADER, of[t].n, false);
        ASSERT_EQ(0, dt_codec_decode(&c, x, n, out, 100, false));
        free(x);
        ASSERT_EQ(n, encode(&c, sum, 100, NULL, 1, 5, &x));
        float want[100];
        ASSERT_EQ(0, dt_codec_decode(&c, x, n, want, 100, false));
        for (int i = 0; i < 100; i++) EXPECT_EQ_MSG(want[i], out[i], dt_codec_name(of[t].kind));
        free(x);
        free(y);
    }
}

/* ==================================================================================================== >>feedback */
/* C(p) + residual = p after every step, whatever the numbers. */
static void conserved(int *utest_result, const dt_codec *c, int what, int64_t n, float scale)
{
    float *in = (float *)malloc((size_t)n * 4 + 1), *residual = (float *)calloc((size_t)n + 1, 4),
          *p = (float *)malloc((size_t)n * 4 + 1);
    float   *out = (float *)malloc((size_t)n * 4 + 1);
    uint64_t state = (uint64_t)(n * 31 + what);
    for (uint64_t step = 0; step < 4; step++) {
        bool lost = false;
        fill(in, n, what, &state);
        for (int64_t i = 0; i < n; i++) p[i] = (float)((double)in[i] * (double)scale + (double)residual[i]);
        int bad = trip(c, in, n, residual, scale, step, out);
        /* f16 cannot hold these; of QSGD with few levels the residual grows */
        if (bad == DT_COMM_ERR_NONFINITE && what == HUGE_ONES &&
            (c->kind == DT_CODEC_F16 || (c->kind == DT_CODEC_QSGD && step)))
            break;
        ASSERT_EQ_MSG(0, bad, dt_codec_name(c->kind));
        for (int64_t i = 0; i < n; i++) {
            double left = (double)p[i] - (double)out[i], error = fabs(left - (double)residual[i]);
            if (exact(c->kind) ? error != 0 : error > 0x1p-24 * fabs(left) + 0x1p-150) lost = true;
            if (bits_of(residual[i]) != bits_of(p[i] - out[i])) lost = true;
        }
        ASSERT_FALSE_MSG(lost, dt_codec_name(c->kind));
    }
    free(in);
    free(residual);
    free(p);
    free(out);
}
UTEST(feedback, sent_and_residual_are_what_was_there)
{
    static const int64_t sizes[] = { 0, 1, 2, 7, 8, 9, 63, 1023, 1024, 1025, 5000 };
    for (int t = 0; t < DT_CODECS * CLASSES; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            dt_codec c = codec_of(t / CLASSES);
            conserved(utest_result, &c, t % CLASSES, sizes[s], 1);
            c.levels = (int)s + 1;
            c.bucket = 1 + (int64_t)s * 300;
            conserved(utest_result, &c, t % CLASSES, sizes[s], 0.3f);
        }
}
/* With whole numbers nothing is rounded: what was sent in all steps and the last residual are the sum of all gradients. */
UTEST(feedback, nothing_is_lost_over_many_steps)
{
    enum { N = 300 };
    for (int k = DT_CODEC_TOPK; k <= DT_CODEC_RANDOMK; k++) {
        dt_codec c = codec_of(k);
        float    in[N], out[N], residual[N] = { 0 }, total[N] = { 0 }, sent[N] = { 0 };
        uint64_t state = 5;
        c.ratio = 0.02;
        for (uint64_t step = 0; step < 200; step++) {
            char *w;
            fill(in, N, TIES, &state);
            int64_t n = encode(&c, in, N, residual, 2, step, &w);
            ASSERT_EQ(0, dt_codec_decode(&c, w, n, out, N, false));
            ASSERT_EQ(0, dt_codec_decode(&c, w, n, sent, N, true));
            free(w);
            int nonzero = 0;
            for (int i = 0; i < N; i++) {
                total[i] += 2 * in[i];
                nonzero += out[i] != 0;
            }
            ASSERT_LE(nonzero, 6);
        }
        for (int i = 0; i < N; i++) EXPECT_EQ(total[i], sent[i] + residual[i]);
    }
}

/* ==================================================================================================== >>choosing */
typedef struct pick {
    uint32_t a, i;
} pick;
static int by_size(const void *x, const void *y) /* largest magnitude first, then lowest index */
{
    const pick *a = (const pick *)x, *b = (const pick *)y;
    return a->a != b->a ? (a->a < b->a ? 1 : -1) : a->i < b->i ? -1 : 1;
}
UTEST(choosing, topk_is_the_head_of_the_sorted_vector)
{
    static const double ratio[] = { 1e-9, 0.001, 0.01, 0.3, 0.5, 0.999, 1 };
    uint64_t            state = 11;
    for (int64_t n = 1; n < 6000; n = n * 3 + 1)
        for (int what = 0; what < CLASSES; what++)
            for (size_t t = 0; t < sizeof ratio / sizeof *ratio; t++) {
                dt_codec c = codec_of(DT_CODEC_TOPK);
                float   *in = (float *)malloc((size_t)n * 4), *out = (float *)malloc((size_t)n * 4),
                      *want = (float *)calloc((size_t)n, 4);
                pick *all = (pick *)malloc((size_t)n * sizeof *all);
                c.ratio = ratio[t];
                int64_t k = (dt_codec_bound(&c, n) - DT_CODEC_HEADER) / 8;
                fill(in, n, what, &state);
                for (int64_t i = 0; i < n; i++) {
                    all[i].a = bits_of(in[i]) & 0x7fffffff;
                    all[i].i = (uint32_t)i;
                }
                qsort(all, (size_t)n, sizeof *all, by_size);
                for (int64_t i = 0; i < k; i++) want[all[i].i] = in[all[i].i];
                ASSERT_EQ(0, trip(&c, in, n, NULL, 1, 0, out));
                EXPECT_EQ_MSG(0, memcmp(want, out, (size_t)n * 4), "what is sent");
                free(in);
                free(out);
                free(want);
                free(all);
            }
}
UTEST(choosing, neighbours_in_the_last_bit)
{
    enum { N = 3000 };
    float    in[N], out[N];
    dt_codec c = codec_of(DT_CODEC_TOPK);
    for (int i = 0; i < N; i++) in[i] = float_of(0x3f800000u + (uint32_t)((i * 7) % N));
    ASSERT_EQ(0, trip(&c, in, N, NULL, -1, 0, out));
    for (int i = 0; i < N; i++) EXPECT_EQ((i * 7) % N >= N - N / 10 ? -in[i] : 0.0f, out[i]);
}
UTEST(choosing, the_decoder_takes_another_ratio_of_topk)
{
    dt_codec c = codec_of(DT_CODEC_TOPK);
    float    in[100] = { 0, 5, 0, -7 }, out[100];
    char    *w;
    int64_t  n = encode(&c, in, 100, NULL, 1, 0, &w);
    c.ratio = 0.5;
    ASSERT_EQ(0, dt_codec_decode(&c, w, n, out, 100, false));
    EXPECT_EQ(0, memcmp(in, out, sizeof in));
    free(w);
}

/* ==================================================================================================== >>random */
UTEST(random, randomk_is_the_same_on_all_ranks_and_fair)
{
    enum { N = 50, STEPS = 4000 };
    dt_codec c = codec_of(DT_CODEC_RANDOMK);
    float    a[N], b[N], in[N], other[N];
    int      chosen[N] = { 0 }, pairs = 0, same = 0;
    for (int i = 0; i < N; i++) {
        in[i] = (float)(i + 1);
        other[i] = -in[i];
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        int k = 0;
        ASSERT_EQ(0, trip(&c, in, N, NULL, 1, step, a));
        ASSERT_EQ(0, trip(&c, other, N, NULL, 1, step, b));
        for (int i = 0; i < N; i++) {
            ASSERT_EQ(a[i], -b[i]);
            ASSERT_TRUE(a[i] == 0 || a[i] == in[i]);
            chosen[i] += a[i] != 0;
            k += a[i] != 0;
        }
        ASSERT_EQ(5, k);
        pairs += a[0] != 0 && a[N - 1] != 0;
        ASSERT_EQ(0, trip(&c, in, N, NULL, 1, step + 1, b));
        same += memcmp(a, b, sizeof a) == 0;
    }
    EXPECT_LE(same, 2); /* of 2 million choices */
    for (int i = 0; i < N; i++) EXPECT_NEAR(STEPS * 0.1, (double)chosen[i], 4 * sqrt(STEPS * 0.1 * 0.9));
    double both = 5.0 * 4.0 / (50.0 * 49.0); /* without replacement */
    EXPECT_NEAR(STEPS * both, (double)pairs, 4 * sqrt(STEPS * both * (1 - both)));
    c.seed = 8;
    ASSERT_EQ(0, trip(&c, in, N, NULL, 1, STEPS, a));
    EXPECT_NE(0, memcmp(a, b, sizeof a));
}
/* The mean of C(p) is p, and its variance is within the bound of the paper. */
UTEST(random, qsgd_is_unbiased)
{
    enum { N = 96 };
    static const int levels[] = { 1, 3, 5, 7, 127, 1000, 32767 };
    int              steps = dt_test_quick() ? 2000 : 20000;
    float            in[N], out[N], again[N];
    uint64_t         state = 21;
    fill(in, N, NORMAL, &state);
    in[3] = 0;
    for (size_t t = 0; t < sizeof levels / sizeof *levels; t++)
        for (int64_t bucket = N / 3; bucket <= N; bucket *= 3) {
            dt_codec c = codec_of(DT_CODEC_QSGD);
            double   sum[N] = { 0 }, bound = 0, total = 0;
            c.levels = levels[t];
            c.bucket = bucket;
            for (int step = 0; step < steps; step++) {
                ASSERT_EQ(0, trip(&c, in, N, NULL, 1, (uint64_t)step, out));
                for (int i = 0; i < N; i++) {
                    sum[i] += (double)out[i];
                    total += ((double)out[i] - (double)in[i]) * ((double)out[i] - (double)in[i]) / steps;
                }
            }
            for (int64_t b = 0; b < N; b += bucket) {
                double square = 0, s = levels[t], d = (double)bucket;
                for (int64_t i = b; i < b + bucket; i++) square += (double)in[i] * (double)in[i];
                bound += fmin(d / (s * s), sqrt(d) / s) * square;
                for (int64_t i = b; i < b + bucket; i++) { /* the exact variance of one element */
                    double unit = sqrt(square) / s, x = fabs((double)in[i]) / unit, up = x - floor(x);
                    double se = unit * sqrt(up * (1 - up) / steps);
                    EXPECT_NEAR((double)in[i], sum[i] / steps, 4 * se + 1e-6);
                }
            }
            EXPECT_LE(total, bound * 1.001);
            ASSERT_EQ(0, trip(&c, in, N, NULL, 1, (uint64_t)steps - 1, again)); /* the same step, the same numbers */
            EXPECT_EQ(0, memcmp(out, again, sizeof out));
        }
}
UTEST(random, qsgd_draws_differ_by_seed_and_step)
{
    float    in[512], a[512], b[512];
    dt_codec c = codec_of(DT_CODEC_QSGD);
    uint64_t state = 4;
    fill(in, 512, NORMAL, &state);
    c.levels = 1;
    ASSERT_EQ(0, trip(&c, in, 512, NULL, 1, 0, a));
    ASSERT_EQ(0, trip(&c, in, 512, NULL, 1, 1, b));
    EXPECT_NE(0, memcmp(a, b, sizeof a));
    c.seed++;
    ASSERT_EQ(0, trip(&c, in, 512, NULL, 1, 0, b));
    EXPECT_NE(0, memcmp(a, b, sizeof a));
}

/* ==================================================================================================== >>refusing */
static void refused(int *utest_result, const dt_codec *c, const float *in, int64_t n, const float *before, float scale,
                    const char *says)
{
    float *residual = before ? (float *)malloc((size_t)n * 4) : NULL;
    char  *w;
    if (residual) memcpy(residual, before, (size_t)n * 4);
    EXPECT_EQ_MSG((int64_t)DT_COMM_ERR_NONFINITE, encode(c, in, n, residual, scale, 0, &w), dt_codec_name(c->kind));
    EXPECT_EQ(DT_COMM_ERR_NONFINITE, dt_comm_get_status(NULL));
    EXPECT_TRUE_MSG(strstr(dt_comm_error(NULL), says) != NULL, dt_comm_error(NULL));
    if (residual) EXPECT_EQ_MSG(0, memcmp(residual, before, (size_t)n * 4), dt_codec_name(c->kind));
    free(w);
    free(residual);
}
UTEST(refusing, what_is_not_finite)
{
    enum { N = 2500, PLACES = 5 };
    static const int at[PLACES] = { 0, 1, 1023, 1024, N - 1 };
    static float     in[N], residual[N], zero[N];
    uint64_t         state = 9;
    for (int kt = 0; kt < DT_CODECS * PLACES; kt++) {
        dt_codec c = codec_of(kt / PLACES);
        int      t = kt % PLACES;
        char     says[40];
        snprintf(says, sizeof says, "element %d of 2500", at[t]);
        fill(in, N, NORMAL, &state);
        fill(residual, N, NORMAL, &state);
        in[at[t]] = t & 1 ? -INFINITY : INFINITY;
        refused(utest_result, &c, in, N, NULL, 1, says);
        refused(utest_result, &c, in, N, NULL, 0.5f, says);
        refused(utest_result, &c, in, N, residual, 1, says);
        in[at[t]] = t & 1 ? -NAN : NAN;
        refused(utest_result, &c, in, N, NULL, 1, says);
        refused(utest_result, &c, in, N, residual, 0.5f, says);
        in[at[t]] = 3e38f; /* the sum is too large, or the product */
        residual[at[t]] = 3e38f;
        refused(utest_result, &c, in, N, residual, 1, says);
        refused(utest_result, &c, in, N, NULL, 2, says);
        in[at[t]] = 0;
        residual[at[t]] = NAN; /* a residual that is broken already */
        refused(utest_result, &c, in, N, residual, 1, says);
        refused(utest_result, &c, zero, N, zero, NAN, "element 0");
    }
}
UTEST(refusing, what_the_dtype_cannot_hold)
{
    float    in[5] = { 1, 2, 65519.0f, 3, 4 }, zero[5] = { 0 }, out[5];
    dt_codec c = codec_of(DT_CODEC_F16);
    ASSERT_EQ(0, trip(&c, in, 5, NULL, 1, 0, out));
    EXPECT_EQ(65504.0f, out[2]);
    in[2] = -65520.0f;
    refused(utest_result, &c, in, 5, NULL, 1, "element 2 of 5 is -65520");
    refused(utest_result, &c, in, 5, zero, 1, "f16");
    ASSERT_EQ(0, trip(&c, in, 5, zero, 0.5f, 0, out));
    EXPECT_EQ(-32768.0f, out[2]); /* 32760 rounded; its residual: */
    EXPECT_EQ(8.0f, zero[2]);
    c.kind = DT_CODEC_BF16;
    in[2] = float_of(0x7f7f7fff);
    ASSERT_EQ(0, trip(&c, in, 5, NULL, 1, 0, out));
    EXPECT_EQ(0x7f7f0000u, bits_of(out[2]));
    in[2] = float_of(0x7f7f8000);
    refused(utest_result, &c, in, 5, NULL, 1, "bf16");
    c.kind = DT_CODEC_QSGD;
    in[3] = in[2];
    refused(utest_result, &c, in, 5, NULL, 1, "norm of bucket 0");
    c.kind = DT_CODEC_ONEBIT; /* means of the largest floats are finite */
    for (int i = 0; i < 5; i++) in[i] = i & 1 ? FLT_MAX : -FLT_MAX;
    ASSERT_EQ(0, trip(&c, in, 5, NULL, 1, 0, out));
    EXPECT_EQ(0, memcmp(in, out, sizeof in));
    c.kind = DT_CODEC_SIGN;
    ASSERT_EQ(0, trip(&c, in, 5, NULL, 1, 0, out));
    EXPECT_EQ(0, memcmp(in, out, sizeof in));
}
static void bad_argument(int *utest_result, const dt_codec *c, int64_t n, const char *says)
{
    float in[4] = { 0 };
    char  out[64];
    EXPECT_EQ((int64_t)DT_COMM_ERR_ARG, dt_codec_bound(c, n));
    EXPECT_EQ((int64_t)DT_COMM_ERR_ARG, dt_codec_encode(c, in, n, NULL, 1, 0, out, sizeof out));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_codec_decode(c, out, sizeof out, in, n, false));
    EXPECT_TRUE_MSG(strstr(dt_comm_error(NULL), says) != NULL, dt_comm_error(NULL));
}
UTEST(refusing, arguments)
{
    dt_codec c = codec_of(DT_CODEC_TOPK), bad;
    float    in[4] = { 1, 2, 3, 4 };
    char     out[128];
    bad_argument(utest_result, NULL, 4, "NULL");
    bad_argument(utest_result, &c, -1, "-1 elements");
    bad_argument(utest_result, &c, (int64_t)1 << 32, "4294967295");
    bad = codec_of(DT_CODEC_NONE);
    bad_argument(utest_result, &bad, INT64_MAX, "elements");
    bad = codec_of(DT_CODECS);
    bad_argument(utest_result, &bad, 4, "kind is 8");
    bad = codec_of(-1);
    bad_argument(utest_result, &bad, 4, "kind is -1");
    bad = c;
    bad.ratio = 1.5;
    bad_argument(utest_result, &bad, 4, "ratio is 1.5");
    bad.ratio = NAN;
    bad_argument(utest_result, &bad, 4, "ratio");
    bad.ratio = -0.1;
    bad_argument(utest_result, &bad, 4, "ratio");
    bad = codec_of(DT_CODEC_QSGD);
    bad.levels = 32768;
    bad_argument(utest_result, &bad, 4, "levels");
    bad.levels = -1;
    bad_argument(utest_result, &bad, 4, "levels");
    bad.levels = 1;
    bad.bucket = -5;
    bad_argument(utest_result, &bad, 4, "bucket -5");
    EXPECT_EQ((int64_t)DT_COMM_ERR_ARG, dt_codec_encode(&c, NULL, 4, NULL, 1, 0, out, sizeof out));
    EXPECT_EQ((int64_t)DT_COMM_ERR_ARG, dt_codec_encode(&c, in, 4, NULL, 1, 0, NULL, sizeof out));
    EXPECT_EQ((int64_t)DT_COMM_ERR_ARG, dt_codec_encode(&c, in, 4, NULL, 1, 0, out, DT_CODEC_HEADER + 7));
    EXPECT_TRUE(strstr(dt_comm_error(NULL), "39 bytes") && strstr(dt_comm_error(NULL), "needs 40"));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_codec_decode(&c, NULL, 40, in, 4, false));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_codec_decode(&c, out, 40, NULL, 4, false));
}

/* ==================================================================================================== >>hostile */
enum { H = 37 };
/* Decodes n bytes from memory of exactly this size. 1: they were taken, and all of out is finite; 0: refused, out is as before;
   -1: neither. */
static int fed(const dt_codec *c, const char *bytes, int64_t n, bool add)
{
    char  *exactly = (char *)malloc((size_t)n + !n);
    float *out = (float *)malloc(H * sizeof *out), before[H];
    int    result = 1;
    memcpy(exactly, bytes, (size_t)n);
    for (int i = 0; i < H; i++) out[i] = before[i] = 0.25f;
    int status = dt_codec_decode(c, exactly, n, out, H, add);
    if (status == DT_COMM_ERR_MISMATCH || status == DT_COMM_ERR_NONFINITE) result = memcmp(out, before, sizeof before) ? -1 : 0;
    else if (status) result = -1;
    else
        for (int i = 0; i < H; i++)
            if (!isfinite(out[i]) && !(add && isfinite(out[i] - before[i]))) result = -1;
    free(exactly);
    free(out);
    return result;
}
static int64_t sample(dt_codec *c, char *wire, int64_t room)
{
    float    in[H];
    uint64_t state = 2;
    fill(in, H, NORMAL, &state);
    c->levels = 5; /* in 4 bits: some are too large */
    c->bucket = 10;
    return dt_codec_encode(c, in, H, NULL, 1, 77, wire, room);
}
static void hostile(int *utest_result, int kind)
{
    dt_codec c = codec_of(kind);
    char     wire[256] = { 0 };
    int64_t  n = sample(&c, wire, sizeof wire);
    ASSERT_GT(n, (int64_t)DT_CODEC_HEADER);
    for (int64_t cut = 0; cut < (int64_t)sizeof wire; cut++) EXPECT_EQ(cut == n, fed(&c, wire, cut, false));
    for (int64_t i = 0; i < n; i++)
        for (int with = 1; with < 256; with++) {
            wire[i] = (char)(wire[i] ^ with);
            int took = fed(&c, wire, n, with & 1);
            EXPECT_GE(took, 0);
            if (i < 16) EXPECT_EQ(0, took); /* magic, kind and n */
            wire[i] = (char)(wire[i] ^ with);
        }
    EXPECT_EQ(1, fed(&c, wire, n, true));
}
UTEST(hostile, every_length_and_every_byte)
{
    for (int k = 0; k < DT_CODECS; k++) hostile(utest_result, k);
}
UTEST(hostile, random_bytes_behind_a_good_header)
{
    uint64_t state = 1;
    for (int turn = 0; turn < (dt_test_quick() ? 4000 : 100000); turn++) {
        dt_codec c = codec_of(turn % DT_CODECS);
        char     wire[256];
        int64_t  n = sample(&c, wire, sizeof wire);
        for (int64_t i = turn & 8 ? 24 : DT_CODEC_HEADER; i < n; i++) wire[i] = (char)dt_test_random(&state);
        ASSERT_GE(fed(&c, wire, n, turn & 16), 0);
    }
}
static void put32(char *to, uint32_t v) { memcpy(to, &v, 4); }
static void says(int *utest_result, const dt_codec *c, const char *wire, int64_t n, const char *words)
{
    EXPECT_EQ(0, fed(c, wire, n, false));
    EXPECT_TRUE_MSG(strstr(dt_comm_error(NULL), words) != NULL, dt_comm_error(NULL));
    EXPECT_EQ(strstr(words, "finite") ? DT_COMM_ERR_NONFINITE : DT_COMM_ERR_MISMATCH, dt_comm_get_status(NULL));
}
UTEST(hostile, the_message_says_what_is_wrong)
{
    char     wire[256], bad[256];
    dt_codec c = codec_of(DT_CODEC_TOPK), other;
    int64_t  n = sample(&c, wire, sizeof wire), k = (n - DT_CODEC_HEADER) / 8;
    char    *index = bad + DT_CODEC_HEADER, *value = index + 4 * k;
    ASSERT_EQ(4, k);
#define DAMAGE(words, ...)                        \
    do {                                          \
        memcpy(bad, wire, sizeof bad);            \
        __VA_ARGS__;                              \
        says(utest_result, &c, bad, n, words);    \
    } while (0)
    DAMAGE("not ascending", put32(index + 4, 0));
    DAMAGE("not ascending", memcpy(index + 4, index, 4));
    DAMAGE("too large", put32(index + 12, H));
    DAMAGE("too large", put32(index + 12, UINT32_MAX));
    DAMAGE("not finite", put32(value + 4, 0x7fc00000));
    DAMAGE("top 38 of 37", put32(bad + 24, H + 1));
    DAMAGE("top 18446744073709551615", memset(bad + 24, 0xff, 8));
    DAMAGE("bytes", put32(bad + 24, 3));
    DAMAGE("dt_codec_encode of this version", put32(bad, 0));
    other = c;
    other.kind = DT_CODEC_F16;
    says(utest_result, &other, wire, n, "sender used codec topk for 37 floats, here codec f16 for 37");
    float out[H + 1];
    EXPECT_EQ(DT_COMM_ERR_MISMATCH, dt_codec_decode(&c, wire, n, out, H + 1, false));
    EXPECT_TRUE(strstr(dt_comm_error(NULL), "37 floats, here codec topk for 38") != NULL);
    says(utest_result, &c, wire, 31, "header");
    says(utest_result, &c, wire, 0, "header");

    c = codec_of(DT_CODEC_RANDOMK);
    n = sample(&c, wire, sizeof wire);
    other = c;
    other.seed = 9;
    says(utest_result, &other, wire, n, "seed is 7, here it is 9");
    other = c;
    other.ratio = 0.5;
    says(utest_result, &other, wire, n, "with this ratio");

    c = codec_of(DT_CODEC_SIGN);
    n = sample(&c, wire, sizeof wire);
    DAMAGE("not finite", put32(bad + 24, 0x7f800000));
    DAMAGE("wrong sign", put32(bad + 28, 0x3f800000));
    DAMAGE("behind the last element", bad[n - 1] = (char)0x80);

    c = codec_of(DT_CODEC_QSGD);
    n = sample(&c, wire, sizeof wire);
    DAMAGE("not finite", put32(bad + 32, 0x7fc00000));
    DAMAGE("negative", put32(bad + 32, 0xbf800000));
    DAMAGE("level is too large", bad[DT_CODEC_HEADER + 16] = 0x0c); /* 6 of 5 */
    DAMAGE("behind the last element", bad[n - 1] = 0x10);
    other = c;
    other.levels = 7;
    says(utest_result, &other, wire, n, "5 levels and buckets of 10, here it has 7");

    c = codec_of(DT_CODEC_F16);
    n = sample(&c, wire, sizeof wire);
    DAMAGE("not finite", bad[n - 1] = 0x7c);
#undef DAMAGE
}

/* ==================================================================================================== >>kernels */
/* The kernels of this machine have the bits of the portable ones. */
UTEST(kernels, both_instruction_sets_agree)
{
    enum { N = 300 };
    const dt__codec_table *a = &dt__codec_sse, *b = dt__codec_best();
    float                  in[N], residual[N], x[N + 1], y[N + 1];
    char                   u[4 * N], v[4 * N];
    uint64_t               state = 6;
    if (a == b) UTEST_SKIP("this machine has no AVX2");
    for (int n = 0; n < N; n += n < 40 ? 1 : 13)
        for (int what = 0; what < CLASSES; what++) {
            static const float scale[] = { 1, -1, 0.5f, 0.3f, 65536 };
            fill(in, N, what, &state);
            fill(residual, N, what, &state);
            for (int s = 0; s < 5; s++)
                for (int r = 0; r < 2; r++) {
                    memset(x, 0x11, sizeof x);
                    memset(y, 0x11, sizeof y);
                    a->product(x, in, r ? residual : NULL, scale[s], n);
                    b->product(y, in, r ? residual : NULL, scale[s], n);
                    ASSERT_EQ(0, memcmp(x, y, sizeof x));
                    for (int i = 0; i < n && r; i++)
                        ASSERT_EQ(bits_of((float)((double)in[i] * (double)scale[s] + (double)residual[i])), bits_of(x[i]));
                    ASSERT_EQ(0x11111111u, bits_of(x[n]));
                }
            ASSERT_EQ(a->top(in, n), b->top(in, n));
            double sum[4][8] = { { 0.25 }, { 0.5 }, { 0.25 }, { 0.5 } };
            ASSERT_EQ(a->sums(sum[0], sum[1], in, n), b->sums(sum[2], sum[3], in, n));
            ASSERT_EQ(0, memcmp(sum[0], sum[2], 2 * sizeof sum[0]));
            memset(u, 0, sizeof u);
            memset(v, 0, sizeof v);
            a->signs(u, in, n);
            b->signs(v, in, n);
            ASSERT_EQ(0, memcmp(u, v, sizeof u));
            for (int half = 0; half < 2; half++) {
                memset(u, 0x22, sizeof u);
                memset(v, 0x22, sizeof v);
                a->narrow[half](u + 1, in, n);
                b->narrow[half](v + 1, in, n);
                ASSERT_EQ(0, memcmp(u, v, sizeof u));
                ASSERT_EQ(0x22, u[1 + 2 * n]);
                a->widen[half](x, u + 1, n);
                b->widen[half](y, u + 1, n);
                ASSERT_EQ(0, memcmp(x, y, (size_t)n * 4));
            }
        }
}
UTEST(kernels, every_half_comes_back)
{
    for (int half = 0; half < 2; half++)
        for (uint32_t h = 0; h < 65536; h += 8) {
            uint16_t in[8], out[8];
            float    wide[8];
            for (uint32_t i = 0; i < 8; i++) in[i] = (uint16_t)(h + i);
            dt__codec_best()->widen[half](wide, (const char *)in, 8);
            dt__codec_best()->narrow[half]((char *)out, wide, 8);
            for (int i = 0; i < 8; i++) ASSERT_TRUE(isnan(wide[i]) || in[i] == out[i]);
        }
}
