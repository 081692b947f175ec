/* Edges of values and options that PyTorch defines: infinities, zeros that are said, draws of halves, and
   a loss that is not finite. The expected numbers are PyTorch's. run: portable */
#include "dt_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dt_nn.h"

static dt_tensor *vec(const float *v, int64_t n) { return dt_from(v, DT_SHAPE(n)); }
static bool fails(dt_status code, const char *words)
{
    bool ok = dt_error_code() == code && dt_error() && strstr(dt_error(), words);
    if (!ok) printf("expected %d with '%s', got: %s\n", (int)code, words, dt_error() ? dt_error() : "no error");
    dt_error_clear();
    return ok;
}

UTEST(edges, options_that_are_zero_or_negative)
{
    static const float v[4] = { 1, 2, 3, 5 };
    dt_tensor *x = dt_reshape(vec(v, 4), DT_SHAPE(2, 2)), *q = dt_reshape(vec(v, 4), DT_SHAPE(1, 1, 2, 2));
    dt_tensor *m = dt_keep(dt_zeros(DT_SHAPE(2))), *var = dt_keep(dt_ones(DT_SHAPE(2)));
    /* momentum 0: the running statistics stay */
    dt_op_batch_norm(x, NULL, NULL, m, var, .momentum = DT_ZERO);
    EXPECT_EQ(dt_item(dt_sum(m)), 0.0);
    EXPECT_EQ(dt_item(dt_sum(var)), 2.0);
    /* eps 0 in evaluation: x itself */
    EXPECT_EQ(dt_item(dt_sum(dt_op_batch_norm(x, NULL, NULL, m, var, .eval = true, .eps = DT_ZERO))), 11.0);
    /* layer norm of (1, 2) with eps 0 is exactly -1, 1 */
    EXPECT_EQ(dt_item(dt_amax(dt_op_layer_norm(dt_narrow(x, 0, 0, 1), NULL, NULL, .eps = DT_ZERO))), 1.0);
    /* scale 0: every key has the same weight; a negative one is a scale like any other */
    EXPECT_NEAR(dt_item(dt_select(dt_reshape(dt_attention(q, q, q, .scale = DT_ZERO), DT_SHAPE(4)), 0, 0)), 2.0, 1e-6);
    dt_tensor *a = dt_attention(q, q, q, .scale = -0.5), *b = dt_attention(dt_neg(q), q, q, .scale = 0.5);
    EXPECT_NEAR(dt_item(dt_amax(dt_abs(dt_sub(a, b)))), 0.0, 1e-6);
    EXPECT_EQ(dt_error_code(), DT_OK);

    dt_op_batch_norm(x, NULL, NULL, m, var, .eps = DT_ZERO);
    EXPECT_TRUE(fails(DT_ERR_ARG, "dt_op_batch_norm: .eps is 0"));
    dt_op_batch_norm(x, NULL, NULL, m, var, .eps = -1e-5);
    EXPECT_TRUE(fails(DT_ERR_ARG, "dt_op_batch_norm: .eps is -1e-05"));
    dt_op_batch_norm(x, NULL, NULL, m, var, .momentum = -0.1);
    EXPECT_TRUE(fails(DT_ERR_ARG, ".momentum is -0.1"));
    dt_op_layer_norm(x, NULL, NULL, .eps = -1);
    EXPECT_TRUE(fails(DT_ERR_ARG, "dt_op_layer_norm: .eps is -1"));
    dt_op_rms_norm(x, NULL, .eps = NAN);
    EXPECT_TRUE(fails(DT_ERR_ARG, "dt_op_rms_norm: .eps is"));
    dt_attention(q, q, q, .scale = INFINITY);
    EXPECT_TRUE(fails(DT_ERR_ARG, "dt_attention: .scale is inf"));
    dt_model  *net = dt_model_new();
    dt_tensor *h = dt_reshape(q, DT_SHAPE(1, 2, 2));
    dt_multihead_attention(net, "a", h, .heads = 1, .dropout = -0.5);
    EXPECT_TRUE(fails(DT_ERR_ARG, "'a': .dropout is -0.5"));
    dt_multihead_attention(net, "b", h, .heads = 1, .dropout = 1.5);
    EXPECT_TRUE(fails(DT_ERR_ARG, "'b': .dropout is 1.5"));
    EXPECT_TRUE(dt_multihead_attention(net, "c", h, .heads = 1, .dropout = DT_ZERO) != NULL);
    dt_model_free(net);
    dt_free(m);
    dt_free(var);
    dt_end();
}

UTEST(edges, dims_are_named_once_and_flatten_needs_two)
{
    dt_tensor *x = dt_ones(DT_SHAPE(2, 3));
    dt_sum(x, .dims = DT_DIM(0) | DT_DIM(-2));
    EXPECT_TRUE(fails(DT_ERR_ARG, "dt_sum: .dims names dimension 0 of (2, 3) twice"));
    EXPECT_EQ(dt_item(dt_sum(x, .dims = DT_DIM(0) | DT_DIM(-1))), 6.0);
    dt_flatten(dt_ones(DT_SHAPE(3)));
    EXPECT_TRUE(fails(DT_ERR_SHAPE, "dt_flatten: t is (3)"));
    EXPECT_EQ(dt_size(dt_flatten(dt_ones(DT_SHAPE(3, 2, 2))), 1), 4);
    dt_end();
}

UTEST(edges, bounds_of_clamp_that_are_nan)
{
    static const float v[3] = { -1, 2, INFINITY };
    for (int k = 0; k < 2; k++) {
        dt_tensor *x = dt_set_requires_grad(vec(v, 3)), *y = dt_clamp(x, k ? (double)NAN : -5, k ? 5 : (double)NAN);
        const float *p = (const float *)dt_data_ptr(y);
        for (int i = 0; i < 3; i++) EXPECT_TRUE(isnan(p[i]));
        dt_backward(dt_sum(y));
        EXPECT_EQ(dt_item(dt_amax(dt_abs(dt_grad(x)))), 0.0);
        dt_free(x);
        dt_end();
    }
    dt_clamp(dt_ones(DT_SHAPE(2), .dtype = DT_I64), NAN, 1);
    EXPECT_TRUE(fails(DT_ERR_DTYPE, "not an integer"));
}

/* torch.manual_seed(3): the bits of torch.empty(37, dtype).normal_(0.5, 2)[19:26], and rand(1) after it */
UTEST(edges, draws_of_halves)
{
    static const uint16_t f16[7] = { 0xc19b, 0x412f, 0xb73c, 0xad7e, 0xb247, 0x3cca, 0x3898 }, bf16[7] = { 0xc033, 0x4026, 0xbee7, 0xbdb0, 0xbe49, 0x3f99, 0x3f13 };
    for (int k = 0; k < 2; k++) {
        dt_manual_seed(3);
        dt_tensor *x = dt_normal(0.5, 2, DT_SHAPE(37), .dtype = k ? DT_BF16 : DT_F16);
        uint16_t   bits[37];
        ASSERT_EQ(dt_copy_out(x, bits, sizeof bits), DT_OK);
        for (int i = 0; i < 7; i++) EXPECT_EQ(bits[19 + i], k ? bf16[i] : f16[i]);
        EXPECT_EQ((float)dt_item(dt_uniform(0, 1, DT_SHAPE(1))), (float)0.430147231f);
    }
    /* a draw that rounds to the upper bound is the lower one */
    for (int k = 0; k < 4; k++) {
        double lo = k < 2 ? -1 : 0.1, hi = k < 2 ? 1 : 0.3;
        dt_manual_seed(5);
        dt_tensor *x = dt_uniform(lo, hi, DT_SHAPE(20000), .dtype = k % 2 ? DT_BF16 : DT_F16);
        static const int64_t at_lo[4] = { 7, 37, 10, 52 };
        dt_tensor *low = dt_cast(dt_full(lo, DT_SHAPE(1)), k % 2 ? DT_BF16 : DT_F16), *high = dt_cast(dt_full(hi, DT_SHAPE(1)), k % 2 ? DT_BF16 : DT_F16);
        EXPECT_EQ(dt_item(dt_sum(dt_eq(x, low))), (double)at_lo[k]);
        EXPECT_EQ(dt_item(dt_sum(dt_eq(x, high))), 0.0);
    }
    dt_end();
}

/* One input of a 3x3 convolution is infinite: the outputs that see it are infinite with the sign of the weight, the others finite. */
UTEST(edges, convolution_of_an_infinity)
{
    for (int k = 0; k < 4; k++) { /* forward; data gradient; data gradient that is added; weight gradient */
        dt_tensor *x = dt_set_requires_grad(dt_full(0.5, DT_SHAPE(2, 16, 8, 8)));
        dt_tensor *w = dt_set_requires_grad(dt_full(-0.25, DT_SHAPE(16, 16, 3, 3)));
        dt_tensor *g = dt_full(1, DT_SHAPE(2, 16, 8, 8)), *r;
        int64_t    at = ((1 * 16 + 3) * 8 + 4) * 8 + 5, infinite = 0, nan = 0, finite = 0, n;
        ((float *)dt_data_ptr(k == 1 || k == 2 ? g : x))[at] = INFINITY;
        if (k == 0) {
            r = dt_op_conv2d(x, w, NULL, .pad = 1);
        } else {
            if (k == 2) dt_backward(dt_sum(dt_mul_scalar(x, 3)));
            dt_backward(dt_op_conv2d(x, w, NULL, .pad = 1), .grad = g);
            r = dt_grad(k == 3 ? w : x);
        }
        const float *p = (const float *)dt_data_ptr(dt_contiguous(r));
        n = dt_numel(r);
        for (int64_t i = 0; i < n; i++)
            if (isnan(p[i])) nan++;
            else if (isinf(p[i])) infinite++;
            else finite++;
        EXPECT_EQ(nan, 0);
        EXPECT_EQ(infinite, k == 3 ? 16 * 9 : 9 * 16);
        EXPECT_EQ(finite, n - infinite);
        dt_free(x);
        dt_free(w);
        dt_end();
    }
}

UTEST(edges, a_loss_that_is_not_finite_stays_an_error)
{
    dt_model *m = dt_model_new();
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    for (int step = 0; step < 3; step++) { /* the second loss is infinite, and the program clears an error of its own before dt_step */
        dt_tensor *y = dt_linear(m, "fc", dt_ones(DT_SHAPE(4, 2)), .out = 1);
        dt_backward(dt_mean(step == 1 ? dt_mul_scalar(y, INFINITY) : y));
        double before = dt_item(dt_sum(dt_model_find(m, "fc.weight")));
        dt_reshape(y, DT_SHAPE(5));
        EXPECT_TRUE(fails(DT_ERR_SHAPE, "dt_reshape"));
        dt_status rc = dt_step(opt);
        EXPECT_EQ(rc, step == 1 ? DT_ERR_NUMERIC : DT_OK);
        dt_error_clear();
        double after = dt_item(dt_sum(dt_model_find(m, "fc.weight")));
        EXPECT_TRUE(step == 1 ? after == before : after != before);
    }
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_end();
}

UTEST(edges, many_models_of_one_thread)
{
    enum { N = 40 };
    dt_model     *m[N];
    dt_optimizer *opt[N];
    for (int i = 0; i < N; i++) {
        m[i] = dt_model_new();
        opt[i] = dt_sgd(m[i], .lr = 0.5);
        dt_linear(m[i], "fc", dt_ones(DT_SHAPE(1, 2)), .out = 1);
    }
    ASSERT_EQ(dt_error_code(), DT_OK);
    dt_end();
    dt_model_free(m[7]); /* the hook of the thread outlives a model */
    for (int i = 0; i < N; i++) {
        if (i == 7) continue;
        dt_tensor *a = dt_linear(m[i], "fc", dt_ones(DT_SHAPE(1, 2)), .out = 1);
        if (i == 10) a = dt_add(a, dt_linear(m[11], "fc", dt_ones(DT_SHAPE(1, 2)), .out = 1)); /* two models in one backward */
        dt_backward(dt_sum(a));
        EXPECT_EQ(dt_step(opt[i]), DT_OK);
        if (i == 10) EXPECT_EQ(dt_step(opt[11]), DT_OK);
    }
    for (int i = 0; i < N; i++) {
        dt_optimizer_free(opt[i]);
        if (i != 7) dt_model_free(m[i]);
    }
    EXPECT_EQ(dt_error_code(), DT_OK);
    dt_end();
}
/* A number from the bits of products and convolutions, with the kernels of this process. */
static uint64_t bits_of_kernels(void)
{
    static const int64_t size[][3] = { { 7, 33, 50 }, { 64, 64, 64 }, { 130, 100, 600 }, { 1, 300, 700 }, { 300, 1, 700 }, { 23, 17, 1 } };
    uint64_t             hash = 1469598103934665603u;
    dt_manual_seed(4);
    for (int k = 0; k < 16; k++) {
        dt_tensor *x, *w, *y, *out[3] = { NULL, NULL, NULL };
        if (k < 6) {
            x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(size[k][0], size[k][2])));
            w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(size[k][1], size[k][2])));
            y = dt_op_linear(x, w, NULL, .act = k % 2 ? DT_ACT_RELU : DT_ACT_NONE);
        } else if (k < 12) { /* Winograd, stride, large kernel, 1x1, groups, depthwise */
            int kernel = k == 8 ? 5 : k == 9 ? 1 : 3;
            x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(2, 16, 13, 11)));
            w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(k == 11 ? 16 : 24, k == 11 ? 1 : k == 10 ? 8 : 16, kernel, kernel)));
            y = dt_op_conv2d(x, w, NULL, .stride = k == 7 ? 2 : 1, .pad = kernel / 2, .groups = k == 11 ? 16 : k == 10 ? 2 : 1, .act = k % 2 ? DT_ACT_RELU : DT_ACT_NONE);
        } else if (k == 12) {
            x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(1, 2, 37, 24)));
            w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(1, 2, 37, 24)));
            y = dt_attention(x, w, w, .causal = true);
        } else if (k == 15) {
            x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(2, 32, 13, 11)));
            w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(32, 4, 3, 3)));
            y = dt_op_conv2d(x, w, NULL, .pad = 1, .groups = 8, .act = DT_ACT_RELU);
        } else if (k == 13) { /* the window's gradient, and taps whose rows follow each other */
            x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(2, 3, 31, 29)));
            w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(20, 3, 7, 7)));
            y = dt_op_conv2d(x, w, NULL, .stride = 2, .pad = 3);
        } else {
            x = dt_set_requires_grad(dt_mul_scalar(dt_normal(0, 1, DT_SHAPE(999)), 4));
            w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(999)));
            y = dt_mul(dt_gelu(x), w);
        }
        dt_backward(dt_sum(dt_mul(y, y)));
        out[0] = y, out[1] = dt_grad(x), out[2] = dt_grad(w);
        for (int i = 0; i < 3; i++) {
            dt_tensor           *c = dt_contiguous(out[i]);
            const unsigned char *p = (const unsigned char *)dt_data_ptr(c);
            for (size_t j = 0; p && j < dt_nbytes(c); j++) hash = (hash ^ p[j]) * 1099511628211u;
        }
        dt_free(x);
        dt_free(w);
        dt_end();
    }
    return hash;
}
/* dx of a convolution in double: x (n, c, h, w), f (oc, c, k, k) */
static void image_gradient(double *dx, const float *dy, const float *f, const int64_t *s, int64_t oc, int64_t k, int64_t stride, int64_t pad)
{
    int64_t oh = (s[2] + 2 * pad - k) / stride + 1, ow = (s[3] + 2 * pad - k) / stride + 1;
    for (int64_t i = 0; i < s[0] * s[1] * s[2] * s[3]; i++) dx[i] = 0;
    for (int64_t n = 0; n < s[0]; n++)
        for (int64_t o = 0; o < oc; o++)
            for (int64_t p = 0; p < oh * ow; p++) {
                double g = dy[(n * oc + o) * oh * ow + p];
                for (int64_t c = 0; c < s[1]; c++)
                    for (int64_t t = 0; t < k * k; t++) {
                        int64_t y = p / ow * stride - pad + t / k, x = p % ow * stride - pad + t % k;
                        if (y < 0 || y >= s[2] || x < 0 || x >= s[3]) continue;
                        dx[((n * s[1] + c) * s[2] + y) * s[3] + x] += g * f[(o * s[1] + c) * k * k + t];
                    }
            }
}
UTEST(edges, gradients_of_images_with_few_channels)
{
    static const struct { int64_t s[4], oc, k; int stride, pad; } t[] = {
        { { 2, 3, 9, 11 }, 17, 3, 1, 1 },    { { 1, 3, 33, 40 }, 16, 7, 2, 3 },  { { 2, 1, 12, 12 }, 20, 5, 3, 0 },
        { { 1, 4, 17, 9 }, 16, 4, 4, 2 },    { { 1, 3, 90, 600 }, 16, 3, 2, 1 }, /* several bands */
        { { 1, 3, 90, 601 }, 16, 5, 1, 2 },  { { 1, 2, 10, 10 }, 16, 3, 5, 0 }, /* pixels that no window has */
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        for (int half = 0; half < 2; half++) {
            dt_dtype   type = half ? DT_BF16 : DT_F32;
            dt_manual_seed(3);
            dt_tensor *x = dt_set_requires_grad(dt_zeros(DT_SHAPE(t[i].s[0], t[i].s[1], t[i].s[2], t[i].s[3]), .dtype = type));
            dt_tensor *f = dt_cast(dt_normal(0, 1, DT_SHAPE(t[i].oc, t[i].s[1], t[i].k, t[i].k)), type);
            dt_tensor *y = dt_op_conv2d(x, f, NULL, .stride = t[i].stride, .pad = t[i].pad);
            dt_tensor *g = dt_cast(dt_normal(0, 1, dt_shape_of(y)), type), *g32 = dt_cast(g, DT_F32), *f32 = dt_cast(f, DT_F32);
            int64_t    numel = dt_numel(x);
            double    *want = (double *)malloc((size_t)numel * sizeof *want), worst = 0;
            float     *got[3];
            image_gradient(want, (const float *)dt_data_ptr(g32), (const float *)dt_data_ptr(f32), t[i].s, t[i].oc, t[i].k, t[i].stride,
                           t[i].pad);
            for (int threads = 1; threads <= 3; threads++) {
                dt_set_num_threads(threads);
                y = dt_op_conv2d(x, f, NULL, .stride = t[i].stride, .pad = t[i].pad);
                for (int twice = 0; twice < (half ? 1 : 2); twice++) { /* the second one is added */
                    if (twice) y = dt_op_conv2d(x, f, NULL, .stride = t[i].stride, .pad = t[i].pad);
                    EXPECT_EQ(dt_backward(y, .grad = g), DT_OK);
                }
                got[threads - 1] = (float *)malloc((size_t)numel * sizeof(float));
                dt_copy_out(dt_cast(dt_grad(x), DT_F32), got[threads - 1], (size_t)numel * sizeof(float));
                dt_zero_grad(x);
            }
            for (int64_t k = 0; k < numel; k++)
                worst = fmax(worst, fabs((double)got[0][k] - (half ? 1 : 2) * want[k]) / (sqrt((double)(t[i].oc * t[i].k * t[i].k)) + fabs(want[k])));
            EXPECT_TRUE(worst < (half ? 8e-3 : 1e-5));
            EXPECT_EQ(memcmp(got[0], got[1], (size_t)numel * sizeof(float)), 0);
            EXPECT_EQ(memcmp(got[0], got[2], (size_t)numel * sizeof(float)), 0);
            for (int k = 0; k < 3; k++) free(got[k]);
            free(want);
            dt_end();
            dt_free(x);
        }
    dt_set_num_threads(0);
    EXPECT_EQ(dt_error_code(), DT_OK);
}
UTEST(edges, groups_of_four_channels_are_convolutions_of_their_own)
{
    static const struct { int64_t c, h, w, k; int stride, pad; } t[] = { { 32, 7, 9, 3, 1, 1 }, { 16, 5, 5, 1, 1, 0 }, { 48, 8, 11, 5, 2, 2 } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        for (int half = 0; half < 2; half++) {
            dt_dtype   type = half ? DT_BF16 : DT_F32;
            dt_act     act = i == 1 ? DT_ACT_NONE : i == 0 ? DT_ACT_RELU : DT_ACT_TANH;
            dt_tensor *part[12];
            dt_manual_seed(7);
            dt_tensor *x = dt_cast(dt_normal(0, 1, DT_SHAPE(2, t[i].c, t[i].h, t[i].w)), type), *b = dt_cast(dt_normal(0, 1, DT_SHAPE(t[i].c)), type);
            dt_tensor *f = dt_cast(dt_normal(0, 1, DT_SHAPE(t[i].c, 4, t[i].k, t[i].k)), type);
            dt_tensor *y = dt_op_conv2d(x, f, b, .stride = t[i].stride, .pad = t[i].pad, .groups = (int)t[i].c / 4, .act = act);
            for (int64_t g = 0; g < t[i].c / 4; g++)
                part[g] = dt_op_conv2d(dt_narrow(x, 1, 4 * g, 4), dt_narrow(f, 0, 4 * g, 4), dt_narrow(b, 0, 4 * g, 4), .stride = t[i].stride,
                                       .pad = t[i].pad, .act = act);
            dt_tensor *off = dt_abs(dt_sub(dt_cast(y, DT_F32), dt_cast(dt_cat(part, (int)t[i].c / 4, 1), DT_F32)));
            EXPECT_TRUE(dt_item(dt_amax(off)) <= (half ? 0.13 : 2e-5));
            dt_end();
        }
    EXPECT_EQ(dt_error_code(), DT_OK);
}
/* One query, as in generation, has a kernel of its own: it gives what two equal queries give. */
UTEST(edges, attention_of_one_query)
{
    static const struct { int64_t b, h, hk, s, d; } t[] = { { 1, 2, 2, 1, 8 }, { 2, 4, 2, 70, 16 }, { 1, 3, 3, 64, 40 }, { 1, 2, 1, 131, 64 },
                                                            { 1, 1, 1, 5, 12 } };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        for (int kind = 0; kind < 5; kind++) { /* plain, hidden keys, added numbers, lengths, no key at all */
            dt_manual_seed(5);
            dt_tensor *q = dt_normal(0, 1, DT_SHAPE(t[i].b, t[i].h, 1, t[i].d)), *qs[2] = { q, q };
            dt_tensor *k = dt_normal(0, 1, DT_SHAPE(t[i].b, t[i].hk, t[i].s, t[i].d)), *v = dt_normal(0, 1, dt_shape_of(k));
            dt_tensor *u = dt_uniform(-1, 1, DT_SHAPE(t[i].b, 1, 1, t[i].s)), *mask = NULL, *len = NULL;
            int64_t    n[2] = { t[i].s / 2, t[i].s };
            if (kind == 1) mask = dt_gt(u, dt_zeros(DT_SHAPE(1)));
            if (kind == 2) mask = u;
            if (kind == 3) len = dt_from(n, DT_SHAPE(t[i].b), .dtype = DT_I64);
            if (kind == 4) mask = dt_zeros(dt_shape_of(u), .dtype = DT_U8);
            for (int half = 0; half < 2; half++) {
                dt_dtype   type = half ? DT_F16 : DT_F32;
                dt_tensor *kc = dt_cast(k, type), *vc = dt_cast(v, type);
                dt_tensor *one = dt_attention(dt_cast(q, type), kc, vc, .mask = mask, .lengths = len);
                dt_tensor *two = dt_attention(dt_cast(dt_cat(qs, 2, 2), type), kc, vc, .mask = mask, .lengths = len);
                dt_tensor *off = dt_abs(dt_sub(dt_cast(one, DT_F32), dt_cast(dt_narrow(two, 2, 0, 1), DT_F32)));
                EXPECT_TRUE(dt_item(dt_amax(off)) <= (half ? 2e-3 : 2e-6));
                if (kind == 4) EXPECT_EQ(dt_item(dt_amax(dt_abs(dt_cast(one, DT_F32)))), 0.0);
            }
            dt_end();
        }
    EXPECT_EQ(dt_error_code(), DT_OK);
}
UTEST(edges, kernels_of_avx512_have_the_bits_of_avx2)
{
    if (strcmp(dt_cpu_isa(), "avx512") != 0) UTEST_SKIP("this CPU has no AVX-512, or DT_CPU_ISA names another instruction set");
    int   from[2];
    char  text[32] = "", want[32];
    ASSERT_EQ(pipe(from), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(from[1], 1);
        setenv("DT_CPU_ISA", "avx2", 1);
        setenv("EDGES_BITS", "1", 1);
        execl("/proc/self/exe", "test_edges", (char *)NULL);
        _exit(127);
    }
    close(from[1]);
    ssize_t n = read(from[0], text, sizeof text - 1);
    close(from[0]);
    EXPECT_TRUE(n > 0);
    EXPECT_EQ(waitpid(pid, NULL, 0), pid);
    snprintf(want, sizeof want, "avx2 %016llx", (unsigned long long)bits_of_kernels());
    EXPECT_STREQ(text, want);
}
UTEST_STATE();
int main(int argc, const char *const argv[])
{
    if (getenv("EDGES_BITS")) return printf("%s %016llx", dt_cpu_isa(), (unsigned long long)bits_of_kernels()) < 0;
    return utest_main(argc, argv);
}
