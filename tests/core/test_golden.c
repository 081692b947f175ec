/* test_golden.c: dt against PyTorch. golden/ops.h has outputs and gradients of small cases of every op, golden/rng.h
   what PyTorch's CPU generator draws (both beside the scripts that made them). The ops run on the CPU and on the fake
   device. Contents: >>ops >>random
   run: ubsan */
#define _GNU_SOURCE
#include "dt_test.h"

#include "conformance.h"
#include "fake_device.h"
#include "golden/ops.h"
#include "golden/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== >>ops */
static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static const cf_row *row_named(const char *name)
{
    for (int k = 0; k < CF_NROWS; k++)
        if (strcmp(cf_rows[k]->name, name) == 0) return cf_rows[k];
    return NULL;
}

static void golden_inputs(cf_ctx *x, const golden_case *g)
{
    for (int k = 0; k < x->nin; k++) {
        cf_input *in = &x->input[k];
        if (!in->present) continue;
        in->base = (double *)malloc((size_t)(in->nbase + 1) * sizeof(double));
        for (int64_t e = 0; e < in->nbase; e++) {
            double v = golden_value(e, k, g->range[k][0], g->range[k][1]);
            in->base[e] = cf_is_float(in->dtype) ? cf_round(in->dtype, cf_round(DT_F32, v)) : floor(v);
        }
        cf_input_ready(x, k);
    }
}

/* Both sides sum in f32, in different orders: eps*sqrt(terms) of either, for up to some hundred terms of size 2. */
static double golden_tolerance(dt_dtype d, double want)
{
    return d == DT_F32 ? 2e-6 * (1 + fabs(want)) : 4 * cf_eps(d) * (0.5 + fabs(want));
}

/* Compares t with golden_data[at..]; "" or what is wrong. */
static void golden_compare(char *bad, size_t room, const char *what, dt_tensor *t, int64_t n, int at,
                           dt_dtype tol_dtype)
{
    dt_dtype d = dt_dtype_of(t);
    size_t   size = dt_dtype_nbytes(d);
    char    *p = (char *)malloc(dt_nbytes(t) + 1);
    if (!t || dt_numel(t) != n || dt_copy_out(t, p, dt_nbytes(t)) != DT_OK)
        snprintf(bad, room, "%s: %lld elements, not %lld; %s", what, (long long)dt_numel(t), (long long)n,
                 dt_error() ? dt_error() : "");
    for (int64_t e = 0; !bad[0] && e < n; e++) {
        double got = cf_decode(d, p + (size_t)e * size), want = (double)float_of(golden_data[at + e]);
        if (!(fabs(got - want) <= golden_tolerance(tol_dtype, want)) && !(isnan(got) && isnan(want)))
            snprintf(bad, room, "%s[%lld]: %.9g, PyTorch: %.9g", what, (long long)e, got, want);
    }
    free(p);
}

static void golden_run(char *bad, size_t room, const golden_case *g)
{
    cf_case    c = { g->spec, { 0 }, { 0 } };
    cf_ctx     x;
    dt_tensor *leaf[CF_MAX_IN] = { NULL }, *in[CF_MAX_IN] = { NULL };
    cf_row     row = *row_named(g->op);
    row.grad = g->grads; /* what PyTorch gives a gradient to */
    memcpy(c.i, g->i, sizeof c.i);
    memcpy(c.d, g->d, sizeof c.d);
    cf_ctx_init(&x, &row, &c, (dt_dtype)g->dtype);
    golden_inputs(&x, g);
    for (int i = 0; i < x.nin; i++)
        if (x.input[i].present) in[i] = cf_tensor(&x, i, &leaf[i]);
    dt_tensor *y = row.build(in, &c);
    golden_compare(bad, room, "output", y, g->nout, g->at, x.dtype);
    if (g->grads && y) {
        double *w = (double *)malloc((size_t)g->nout * sizeof(double));
        size_t  size = dt_dtype_nbytes(dt_dtype_of(y));
        char   *bytes = (char *)malloc((size_t)g->nout * size);
        for (int e = 0; e < g->nout; e++) cf_encode(dt_dtype_of(y), golden_weight(e), bytes + (size_t)e * size);
        dt_backward(y, .grad = dt_from(bytes, dt_shape_of(y), .dtype = dt_dtype_of(y)));
        free(bytes);
        free(w);
    }
    int at = g->at + g->nout;
    for (int i = 0; i < x.nin; i++)
        if (g->grads >> i & 1) {
            char what[32];
            snprintf(what, sizeof what, "gradient of input %d", i);
            golden_compare(bad, room, what, dt_grad(leaf[i]), x.input[i].nbase, at, x.dtype);
            at += (int)x.input[i].nbase;
        }
    if (dt_error() && !bad[0]) snprintf(bad, room, "%s", dt_error());
    dt_error_clear();
    dt_end();
    for (int i = 0; i < x.nin; i++)
        if (cf_has_grad(&x, i)) dt_free(leaf[i]);
    cf_ctx_free(&x);
}

static void golden_all(int *utest_result)
{
    for (size_t k = 0; k < sizeof golden_cases / sizeof golden_cases[0]; k++) {
        const golden_case *g = &golden_cases[k];
        char               bad[512] = "", text[700];
        ASSERT_TRUE_MSG(row_named(g->op) != NULL, g->op);
        golden_run(bad, sizeof bad, g);
        snprintf(text, sizeof text, "%s \"%s\" {%d %d %d} %s: %s", g->op, g->spec, (int)g->i[0], (int)g->i[1],
                 (int)g->i[2], dt_dtype_name((dt_dtype)g->dtype), bad);
        EXPECT_STREQ_MSG("", bad, text);
    }
}

UTEST(golden, ops_as_pytorch)
{
    const char *s = getenv("DT_TEST_DEVICE");
    if (!s || strcmp(s, "fake") != 0) golden_all(utest_result);
}

UTEST(golden, ops_as_pytorch_on_the_fake_device)
{
    const char *s = getenv("DT_TEST_DEVICE");
    if (s && strcmp(s, "cpu") == 0) UTEST_SKIP("DT_TEST_DEVICE=cpu");
    fake_device *f = fake_device_new(0);
    ASSERT_TRUE(f != NULL);
    dt_set_default_device(f->dev);
    golden_all(utest_result);
    dt_set_default_device(NULL);
    dt_empty_cache();
    EXPECT_EQ(0, (int)fake_live_blocks(f));
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

UTEST(golden, every_op_has_a_case)
{
    static const char *const views[] = { "reshape",    "permute", "transpose", "narrow",  "select",
                                         "expand",     "squeeze", "unsqueeze", "flatten", "clone",
                                         "contiguous", "to",      "cast",      "add_mixed", "einsum" }; /* moves: nothing to measure */
    for (int k = 0; k < CF_NROWS; k++) {
        bool found = false;
        for (size_t v = 0; v < sizeof views / sizeof views[0]; v++)
            found = found || strcmp(views[v], cf_rows[k]->name) == 0;
        for (size_t g = 0; g < sizeof golden_cases / sizeof golden_cases[0]; g++)
            found = found || strcmp(golden_cases[g].op, cf_rows[k]->name) == 0;
        EXPECT_TRUE_MSG(found, cf_rows[k]->name);
    }
}

/* ==================================================================================================== >>random
   Equal bits, not close values: a program ported from PyTorch draws the same numbers. */
static void expect_words(int *utest_result, const void *got, const uint32_t *want, int n, const char *what)
{
    for (int i = 0; i < n; i++) {
        uint32_t w;
        memcpy(&w, (const char *)got + 4 * i, 4);
        if (w != want[i]) {
            char text[128];
            snprintf(text, sizeof text, "%s[%d]: 0x%08x, PyTorch: 0x%08x", what, i, w, want[i]);
            EXPECT_TRUE_MSG(w == want[i], text);
            return;
        }
    }
}
#define EXPECT_WORDS(got, want) expect_words(utest_result, got, want, (int)(sizeof(want) / 4), #want)

static void words_of(uint32_t *out, const int64_t *v, int n)
{
    for (int i = 0; i < n; i++) out[i] = (uint32_t)v[i];
}

UTEST(random, uniform_as_pytorch)
{
    float v[20];
    dt_manual_seed(0);
    dt_rng_uniform(dt_rng_default(), v, 20, 0, 1);
    EXPECT_WORDS(v, golden_rand_0);
    dt_manual_seed(42);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_uniform(-0.1234567, 0.7654321, DT_SHAPE(4, 5)), v, sizeof v));
    EXPECT_WORDS(v, golden_uniform_42);
    dt_end();
}

UTEST(random, normal_as_pytorch)
{
    float                        v[40];
    static const int             n[5] = { 1, 15, 16, 17, 40 };
    static const uint32_t *const want[5] = { golden_randn_1, golden_randn_15, golden_randn_16, golden_randn_17,
                                             golden_randn_40 };
    for (int k = 0; k < 5; k++) {
        dt_rng r;
        dt_rng_seed(&r, (uint64_t)n[k]);
        dt_rng_normal(&r, v, n[k], 0, 1);
        expect_words(utest_result, v, want[k], n[k], "randn");
    }
    dt_manual_seed(1);
    dt_rng_normal(dt_rng_default(), v, 7, 0.3, 1.7);
    dt_rng_normal(dt_rng_default(), v + 7, 4, 0.3, 1.7);
    EXPECT_WORDS(v, golden_normal_7);
    dt_manual_seed(2);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_normal(-0.3, 0.02, DT_SHAPE(33)), v, 33 * sizeof(float)));
    EXPECT_WORDS(v, golden_normal_33);
    dt_end();
}

UTEST(random, randperm_as_pytorch)
{
    int64_t  p[37];
    uint32_t w[37];
    dt_manual_seed(0);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_randperm(10), p, 10 * sizeof(int64_t)));
    words_of(w, p, 10);
    EXPECT_WORDS(w, golden_randperm_0);
    dt_manual_seed(((uint64_t)1 << 63) + 12345);
    dt_rng_randperm(dt_rng_default(), p, 37);
    words_of(w, p, 37);
    EXPECT_WORDS(w, golden_randperm_big);
    dt_end();
}

UTEST(random, multinomial_and_bernoulli_as_pytorch)
{
    static const float p[8] = { 0.1f, 0.0f, 2.5f, 0.4f, 1.0f, 1.0f, 0.5f, 0.0f };
    int64_t            v[24];
    uint32_t           w[25];
    float              b[25];
    dt_manual_seed(3);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_multinomial(dt_from(p, DT_SHAPE(2, 4)), 12, .replacement = true), v, sizeof v));
    words_of(w, v, 24);
    EXPECT_WORDS(w, golden_multinomial_3);
    dt_manual_seed(4);
    EXPECT_EQ(DT_OK, dt_copy_out(dt_bernoulli(dt_linspace(0, 1, 25)), b, sizeof b));
    for (int i = 0; i < 25; i++) w[i] = (uint32_t)b[i];
    EXPECT_WORDS(w, golden_bernoulli_4);
    dt_end();
}

UTEST(random, draws_of_all_kinds_in_turn)
{
    dt_rng   r, saved;
    uint32_t out[87];
    int64_t  p[5];
    dt_rng_seed(&r, 5);
    for (int round = 0, at = 0; round < 3; round++) {
        saved = r; /* the struct is the whole state: a copy draws the same again */
        for (int again = 0; again < 2; again++) {
            float *f = (float *)(void *)(out + at);
            dt_rng_normal(&r, f, 3, 0, 1);
            dt_rng_uniform(&r, f + 3, 2, -0.7, 0.3);
            dt_rng_normal(&r, f + 5, 17, 0.5, 0.25);
            dt_rng_randperm(&r, p, 5);
            words_of(out + at + 22, p, 5);
            dt_rng_normal(&r, f + 27, 2, 1, 3);
            if (again == 0) r = saved;
        }
        at += 29;
    }
    EXPECT_WORDS(out, golden_mixed_5);
}

static uint32_t digest_of(const void *p, int64_t n)
{
    uint32_t h = 0x811c9dc5u, w;
    for (int64_t i = 0; i < n; i++) {
        memcpy(&w, (const char *)p + 4 * i, 4);
        h = (h ^ w) * 0x01000193u;
    }
    return h;
}

UTEST(random, long_draws_as_pytorch)
{
    enum { N = 100003, P = 20000 };
    float   *v = (float *)malloc(N * sizeof(float));
    int64_t *p = (int64_t *)malloc(P * sizeof(int64_t));
    dt_rng   r;
    dt_rng_seed(&r, 9);
    dt_rng_uniform(&r, v, N, -2.5, 1.1);
    EXPECT_EQ(golden_digest_9[0], digest_of(v, N));
    dt_rng_normal(&r, v, N, 0, 1);
    EXPECT_EQ(golden_digest_9[1], digest_of(v, N));
    dt_rng_normal(&r, v, 5000, 3, 0.7);
    EXPECT_EQ(golden_digest_9[2], digest_of(v, 5000));
    dt_rng_randperm(&r, p, P);
    words_of((uint32_t *)(void *)v, p, P);
    EXPECT_EQ(golden_digest_9[3], digest_of(v, P));
    free(v);
    free(p);
}

/* A published vector of Philox4x32-10 (Random123's known answers, key and counter 0), and the counter's order. */
UTEST(random, philox_known_answer)
{
    uint32_t              w[4], v[4];
    static const uint32_t zero[4] = { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u };
    dt_philox(0, 0, w);
    EXPECT_WORDS(w, zero);
    dt_philox(1, 0, v);
    EXPECT_NE(0, memcmp(w, v, sizeof w));
    dt_philox((uint64_t)1 << 32, 0, w); /* the whole seed counts */
    EXPECT_NE(0, memcmp(w, v, sizeof w));
    dt_philox(0, (uint64_t)1 << 40, v); /* and the whole counter */
    EXPECT_NE(0, memcmp(w, v, sizeof w));
}

UTEST(random, words)
{
    dt_rng a, b;
    dt_rng_seed(&a, 5489); /* the reference implementation's default seed */
    EXPECT_EQ(3499211612u, dt_rng_u32(&a));
    dt_rng_seed(&a, 77);
    dt_rng_seed(&b, 77);
    uint64_t hi = dt_rng_u32(&a), lo = dt_rng_u32(&a);
    EXPECT_TRUE(dt_rng_u64(&b) == (hi << 32 | lo));
}
