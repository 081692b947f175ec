/* test_amp.c: mixed precision. Contents: >>levels >>casts >>scaling >>masters >>several >>convergence */
#define _GNU_SOURCE
#include "dt_nn.h"
#include "dt_test.h"

#include "golden/scaler.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

UTEST_MAIN()

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", x, .out = 16);
    x = dt_relu(dt_batchnorm1d(m, "bn", x));
    return dt_linear(m, "fc2", x, .out = 4);
}
static dt_tensor *loss_of(dt_model *m, double size)
{
    dt_rng r;
    dt_rng_seed(&r, 5);
    dt_tensor *x = dt_normal(0, size, DT_SHAPE(8, 12), .rng = &r);
    int64_t    y[8] = { 0, 1, 2, 3, 0, 1, 2, 3 };
    return dt_cross_entropy(net(m, x), dt_from(y, DT_SHAPE(8), .dtype = DT_I64));
}
typedef struct bits { /* of a model's state */
    unsigned char byte[1 << 14];
    size_t        n;
} bits;
static void take(bits *b, dt_model *m)
{
    b->n = 0;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        if (p.buffer) continue; /* running statistics move with each forward */
        dt_copy_out(p.value, b->byte + b->n, dt_nbytes(p.value));
        b->n += dt_nbytes(p.value);
    }
}
static bool same(const bits *a, const bits *b) { return a->n == b->n && !memcmp(a->byte, b->byte, a->n); }

/* ==================================================================================================== >>levels */
UTEST(levels, are_the_table_of_apex)
{
    static const struct { const char *level, *text;
    } want[] = {
        { "O0", "O0 f16: cast_model no, cast_ops no, keep_batchnorm_f32 no, master_weights no, loss_scale 1" },
        { NULL, "O1 f16: cast_model no, cast_ops yes, keep_batchnorm_f32 no, master_weights no, loss_scale dynamic "
                "from 65536" },
        { "O2", "O2 f16: cast_model yes, cast_ops no, keep_batchnorm_f32 yes, master_weights yes, loss_scale dynamic "
                "from 65536" },
        { "O3", "O3 f16: cast_model yes, cast_ops no, keep_batchnorm_f32 no, master_weights no, loss_scale 1" },
        { "o2", "O2 f16: cast_model yes, cast_ops no, keep_batchnorm_f32 yes, master_weights yes, loss_scale dynamic "
                "from 65536" },
        { "03", "O3 f16: cast_model yes, cast_ops no, keep_batchnorm_f32 no, master_weights no, loss_scale 1" },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        dt_model *m = dt_model_new(.seed = 1);
        dt_amp   *a = dt_amp_new(m, .level = want[i].level);
        char      text[256];
        ASSERT_TRUE(a != NULL);
        dt_amp_describe(a, text, sizeof text);
        EXPECT_STREQ(want[i].text, text);
        dt_amp_free(a);
        dt_model_free(m);
    }
}
UTEST(levels, each_property_can_be_set)
{
    dt_model *m = dt_model_new(.seed = 1);
    char      text[256];
    dt_amp   *a = dt_amp_new(m, .level = "O3", .dtype = DT_BF16, .keep_batchnorm_f32 = DT_YES, .loss_scale = 128);
    dt_amp_describe(a, text, sizeof text);
    EXPECT_STREQ("O3 bf16: cast_model yes, cast_ops no, keep_batchnorm_f32 yes, master_weights no, loss_scale 128",
                 text);
    dt_amp_free(a);
    a = dt_amp_new(m, .level = "O2", .keep_batchnorm_f32 = DT_NO, .master_weights = DT_NO, .init_scale = 1024);
    dt_amp_describe(a, text, sizeof text);
    EXPECT_STREQ(
        "O2 f16: cast_model yes, cast_ops no, keep_batchnorm_f32 no, master_weights no, loss_scale dynamic from 1024",
        text);
    dt_amp_free(a);
    a = dt_amp_new(m, .level = "O0", .loss_scale = DT_DYNAMIC);
    EXPECT_EQ(65536.0, dt_amp_scale(a, 0));
    dt_amp_free(a);
    dt_model_free(m);
}
UTEST(levels, bad_levels_and_combinations_are_named)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR(dt_amp_new(m, .level = "O4"), "\"O4\"; it must be one of \"O0\", \"O1\", \"O2\", \"O3\"");
    EXPECT_ERROR(dt_amp_new(m, .level = "O22"), "\"O22\"");
    EXPECT_ERROR(dt_amp_new(m, .level = ""), "\"\"");
    EXPECT_ERROR(dt_amp_new(m, .level = "O1", .cast_model = DT_YES), ".cast_model with O1");
    EXPECT_ERROR(dt_amp_new(m, .level = "O1", .keep_batchnorm_f32 = DT_YES), ".keep_batchnorm_f32 with O1");
    EXPECT_ERROR(dt_amp_new(m, .level = "O1", .master_weights = DT_NO), ".master_weights with O1");
    EXPECT_ERROR(dt_amp_new(m, .level = "O2", .cast_ops = DT_YES), ".cast_ops with O2");
    EXPECT_ERROR(dt_amp_new(m, .level = "O0", .master_weights = DT_YES), "no half weights");
    EXPECT_ERROR(dt_amp_new(m, .dtype = DT_I32), "DT_F16 or DT_BF16");
    EXPECT_ERROR(dt_amp_new(m, .loss_scale = -3), ".loss_scale is -3");
    EXPECT_ERROR(dt_amp_new(m, .backoff_factor = 2), ".backoff_factor 2");
    EXPECT_ERROR(dt_amp_new(m, .num_losses = 99), ".num_losses is 99");
    EXPECT_ERROR(dt_amp_new(NULL, .level = "O2"), "NULL");
    dt_amp *a = dt_amp_new(m);
    EXPECT_ERROR(dt_amp_new(m), "already");
    EXPECT_ERROR(dt_model_cast(m, DT_F16) == DT_OK ? m : NULL, "mixed precision decides");
    EXPECT_ERROR(dt_amp_backward(a, dt_ones(DT_SHAPE(2))) == DT_OK ? m : NULL, "one element");
    EXPECT_ERROR(dt_amp_backward(a, dt_ones(DT_SHAPE(1)), .loss = 1) == DT_OK ? m : NULL,
                 "loss 1; .num_losses of dt_amp_new is 1");
    EXPECT_ERROR(dt_amp_backward(NULL, dt_ones(DT_SHAPE(1))) == DT_OK ? m : NULL, "NULL");
    dt_amp_free(a);
    EXPECT_EQ(DT_AUTOCAST_OFF, (int)dt_autocast_get().mode);
    dt_end();
    dt_model_free(m);
    dt_amp_free(NULL);
}

/* ==================================================================================================== >>casts */
UTEST(casts, o1_by_list)
{
    for (int k = 0; k < 2; k++) {
        dt_dtype    h = k ? DT_BF16 : DT_F16;
        dt_autocast on = { DT_AUTOCAST_OPS, h }, before = dt_autocast_set(on);
        dt_tensor  *f = dt_ones(DT_SHAPE(4, 4)), *g = dt_cast(f, h), *q = dt_ones(DT_SHAPE(1, 1, 4, 4));
        int64_t     label[4] = { 0, 1, 2, 3 };
        dt_tensor  *y = dt_from(label, DT_SHAPE(4), .dtype = DT_I64), *both[2] = { f, g };
        EXPECT_EQ(h, dt_dtype_of(dt_matmul(f, f)));
        EXPECT_EQ(h, dt_dtype_of(dt_op_linear(f, f, NULL)));
        EXPECT_EQ(h, dt_dtype_of(dt_op_conv2d(q, dt_ones(DT_SHAPE(1, 1, 1, 1)), NULL)));
        EXPECT_EQ(h, dt_dtype_of(dt_attention(q, q, q)));
        dt_tensor *full[] = { dt_exp(g),
                              dt_log(g),
                              dt_pow_scalar(g, 2),
                              dt_pow(g, g),
                              dt_rdiv_scalar(g, 1),
                              dt_softplus(g, 1),
                              dt_softmax(g, 1),
                              dt_log_softmax(g, 1),
                              dt_gelu(g),
                              dt_gelu_tanh(g),
                              dt_sum(g),
                              dt_var(g),
                              dt_op_layer_norm(g, NULL, NULL),
                              dt_op_rms_norm(g, NULL),
                              dt_cross_entropy(g, y),
                              dt_nll_loss(g, y),
                              dt_mse_loss(g, g),
                              dt_l1_loss(g, g),
                              dt_smooth_l1_loss(g, g),
                              dt_bce_with_logits(g, g) };
        for (size_t i = 0; i < sizeof full / sizeof *full; i++) {
            char what[32];
            snprintf(what, sizeof what, "f32 op %zu", i);
            EXPECT_EQ_MSG(DT_F32, (int)dt_dtype_of(full[i]), what);
        }
        EXPECT_EQ(DT_F32, (int)dt_dtype_of(dt_add(f, g))); /* the widest wins */
        EXPECT_EQ(h, dt_dtype_of(dt_mul(g, g)));
        EXPECT_EQ(h, dt_dtype_of(dt_relu(g)));
        EXPECT_EQ(DT_F32, (int)dt_dtype_of(dt_cat(both, 2, 0)));
        dt_autocast_set(before);
        EXPECT_EQ(DT_F32, (int)dt_dtype_of(dt_matmul(f, f)));
        EXPECT_EQ(h, dt_dtype_of(dt_exp(g)));
        dt_end();
    }
    dt_autocast bad = { DT_AUTOCAST_OPS, DT_I32 };
    EXPECT_ERROR((dt_autocast_set(bad), NULL), "DT_F16 or DT_BF16");
}
UTEST(casts, a_parameter_is_cast_once_a_step)
{
    dt_autocast on = { DT_AUTOCAST_OPS, DT_F16 }, before = dt_autocast_set(on);
    dt_tensor  *w = dt_set_requires_grad(dt_full(0.5, DT_SHAPE(4, 4))), *x = dt_ones(DT_SHAPE(1, 4), .dtype = DT_F16);
    int64_t     n[4];
    for (int i = 0; i < 3; i++) { /* the cast, then none */
        n[i] = dt_stats().live_tensors;
        dt_op_linear(x, w, NULL);
    }
    n[3] = dt_stats().live_tensors;
    EXPECT_EQ(n[2] - n[1] + 0, n[3] - n[2]);
    EXPECT_GT(n[1] - n[0], n[2] - n[1]);
    EXPECT_EQ(2.0, dt_item(dt_mean(dt_op_linear(x, w, NULL))));
    dt_fill(w, 1); /* a change is seen */
    EXPECT_EQ(4.0, dt_item(dt_mean(dt_op_linear(x, w, NULL))));
    dt_no_grad_begin();
    dt_tensor *quiet = dt_op_linear(x, w, NULL);
    dt_no_grad_end();
    EXPECT_FALSE(dt_requires_grad(quiet));
    EXPECT_TRUE(dt_requires_grad(dt_op_linear(x, w, NULL))); /* not the cast made without gradients */
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_op_linear(x, w, NULL))));
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_op_linear(x, w, NULL)))); /* nor one whose tape is gone */
    EXPECT_EQ(DT_F32, (int)dt_dtype_of(dt_grad(w)));
    EXPECT_EQ(2.0, dt_item(dt_mean(dt_grad(w))));
    dt_end();
    EXPECT_EQ(4.0, dt_item(dt_mean(dt_op_linear(dt_ones(DT_SHAPE(1, 4)), w, NULL))));
    dt_autocast_set(before);
    dt_end();
    dt_free(w);
}
UTEST(casts, of_the_model_at_each_level)
{
    static const struct { const char *level; int fc, bn, y; } want[] = {
        { "O0", DT_F32, DT_F32, DT_F32 }, { "O1", DT_F32, DT_F32, DT_F16 },
        { "O2", DT_F16, DT_F32, DT_F16 }, { "O3", DT_F16, DT_F16, DT_F16 },
    };
    for (int before = 0; before < 2; before++)
        for (int i = 0; i < 4; i++) {
            dt_model *m = dt_model_new(.seed = 1);
            if (before) { /* the model exists, sealed, when it is cast */
                ASSERT_EQ(DT_OK, dt_backward(loss_of(m, 1)));
                dt_end();
            }
            dt_amp    *a = dt_amp_new(m, .level = want[i].level);
            dt_tensor *y = net(m, dt_ones(DT_SHAPE(8, 12)));
            EXPECT_EQ_MSG(want[i].y, (int)dt_dtype_of(y), want[i].level);
            EXPECT_EQ_MSG(want[i].fc, (int)dt_dtype_of(dt_model_find(m, "fc1.weight")), want[i].level);
            EXPECT_EQ_MSG(want[i].bn, (int)dt_dtype_of(dt_model_find(m, "bn.weight")), want[i].level);
            EXPECT_EQ_MSG(want[i].bn, (int)dt_dtype_of(dt_model_find(m, "bn.running_var")), want[i].level);
            dt_forward_begin(m);
            dt_tensor *l = loss_of(m, 1);
            EXPECT_EQ_MSG(DT_F32, (int)dt_dtype_of(l), want[i].level);
            EXPECT_EQ_MSG(DT_OK, dt_amp_backward(a, l), want[i].level);
            dt_end();
            dt_amp_free(a);
            dt_model_free(m);
        }
}

/* ==================================================================================================== >>scaling */
UTEST(scaling, traces_are_gradscalers)
{
    int traces = 0;
    for (size_t k = 0; k < sizeof golden_scaler / sizeof *golden_scaler; k++) {
        const golden_scaler_case *t = &golden_scaler[k];
        if (t->init_scale > 16777216) continue; /* above the cap, which GradScaler lacks */
        traces++;
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 1e-3);
        dt_amp       *a = dt_amp_new(m, .level = "O0", .loss_scale = DT_DYNAMIC, .init_scale = t->init_scale,
                                     .growth_factor = t->growth_factor, .backoff_factor = t->backoff_factor,
                                     .growth_interval = t->growth_interval);
        for (int i = 0; t->overflow[i]; i++) {
            dt_tensor *w = dt_parameter(m, "w", DT_SHAPE(3), .init = DT_INIT_CONST, .a = 1);
            dt_tensor *l = dt_sum(dt_mul_scalar(w, t->overflow[i] == '1' ? INFINITY : 1));
            ASSERT_EQ(DT_OK, dt_amp_backward(a, l));
            ASSERT_EQ_MSG(DT_OK, dt_step(opt), dt_error() ? dt_error() : "");
            char where[64];
            snprintf(where, sizeof where, "trace %d, step %d", (int)k, i);
            ASSERT_EQ_MSG((float)t->scale[i], (float)dt_amp_scale(a, 0), where);
        }
        dt_amp_free(a);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    EXPECT_GE(traces, 5);
}
UTEST(scaling, stops_at_the_cap)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 1e-3);
    dt_amp       *a = dt_amp_new(m, .level = "O2", .growth_interval = 1);
    for (int i = 0; i < 20; i++) {
        ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_mul_scalar(loss_of(m, 1), 1e-8)));
        ASSERT_EQ(DT_OK, dt_step(opt));
    }
    EXPECT_EQ(16777216.0, dt_amp_scale(a, 0));
    dt_amp_free(a);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(scaling, an_overflow_skips_the_step_and_changes_no_bit)
{
    static const char *const levels[] = { "O1", "O2" };
    for (int k = 0; k < 4; k++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = k < 2 ? dt_sgd(m, .lr = 0.1, .momentum = 0.9) : dt_adam(m, .lr = 0.1);
        dt_amp       *a = dt_amp_new(m, .level = levels[k % 2]);
        bits          one, two, three;
        ASSERT_EQ(DT_OK, dt_amp_backward(a, loss_of(m, 1)));
        ASSERT_EQ(DT_OK, dt_step(opt));
        take(&one, m);
        ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_mul_scalar(loss_of(m, 1), 1e30))); /* inf in the halves */
        ASSERT_EQ(DT_OK, dt_step(opt));
        take(&two, m);
        EXPECT_TRUE(same(&one, &two));
        EXPECT_EQ((int64_t)1, dt_amp_overflows(a));
        EXPECT_EQ(32768.0, dt_amp_scale(a, 0));
        EXPECT_EQ((int64_t)1, dt_optimizer_steps(opt));
        /* the state too: the next step is as if the overflow had never been */
        ASSERT_EQ(DT_OK, dt_amp_backward(a, loss_of(m, 1)));
        ASSERT_EQ(DT_OK, dt_step(opt));
        take(&three, m);
        EXPECT_FALSE(same(&two, &three));
        dt_model     *n = dt_model_new(.seed = 1);
        dt_amp_free(a);
        dt_optimizer *o2 = k < 2 ? dt_sgd(n, .lr = 0.1, .momentum = 0.9) : dt_adam(n, .lr = 0.1);
        a = dt_amp_new(n, .level = levels[k % 2], .init_scale = 65536);
        for (int i = 0; i < 2; i++) {
            ASSERT_EQ(DT_OK, dt_amp_backward(a, loss_of(n, 1)));
            ASSERT_EQ(DT_OK, dt_step(o2));
        }
        take(&two, n);
        if (k % 2 == 0)
            EXPECT_TRUE(same(&two, &three)); /* O1: f32 weights; scales are powers of two, so nothing rounds */
        dt_amp_free(a);
        dt_optimizer_free(opt);
        dt_optimizer_free(o2);
        dt_model_free(m);
        dt_model_free(n);
    }
}
UTEST(scaling, the_floor_is_an_error_that_names_tensor_and_step)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_amp       *a = dt_amp_new(m, .level = "O2", .min_loss_scale = 16384);
    bits          before, after;
    ASSERT_EQ(DT_OK, dt_amp_backward(a, loss_of(m, 1)));
    ASSERT_EQ(DT_OK, dt_step(opt));
    take(&before, m);
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_mul_scalar(loss_of(m, 1), 1e30)));
        ASSERT_EQ(DT_OK, dt_step(opt));
    }
    EXPECT_EQ(16384.0, dt_amp_scale(a, 0));
    ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_mul_scalar(loss_of(m, 1), 1e30)));
    EXPECT_ERROR(dt_step(opt) == DT_OK ? m : NULL,
                 "step 2: the gradient of 'fc2.bias' is not finite at loss scale 16384");
    take(&after, m);
    EXPECT_TRUE(same(&before, &after));
    dt_end();
    dt_amp_free(a);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(scaling, a_static_scale_skips_and_does_not_skip_for_ever)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_amp       *a = dt_amp_new(m, .level = "O2", .loss_scale = 128);
    for (int i = 0; i < 19; i++) {
        ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_mul_scalar(loss_of(m, 1), 1e30)));
        ASSERT_EQ(DT_OK, dt_step(opt));
    }
    EXPECT_EQ(128.0, dt_amp_scale(a, 0));
    EXPECT_EQ((int64_t)0, dt_optimizer_steps(opt));
    ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_mul_scalar(loss_of(m, 1), 1e30)));
    EXPECT_ERROR(dt_step(opt) == DT_OK ? m : NULL, "static and overflowed 20 steps in a row");
    dt_end();
    dt_amp_free(a);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(scaling, clipping_sees_unscaled_gradients)
{
    bits got[2];
    for (int k = 0; k < 2; k++) { /* O0 without a scale, and with one */
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .clip_norm = 0.01);
        dt_amp       *a = dt_amp_new(m, .level = "O0", .loss_scale = k ? 4096 : 1);
        for (int i = 0; i < 3; i++) {
            ASSERT_EQ(DT_OK, dt_amp_backward(a, loss_of(m, 1)));
            ASSERT_EQ(DT_OK, dt_step(opt));
        }
        take(&got[k], m);
        dt_amp_free(a);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    EXPECT_TRUE(same(&got[0], &got[1]));
}
UTEST(scaling, accumulated_backwards_add_up)
{
    static const char *const levels[] = { "O0", "O1", "O2" };
    for (int k = 0; k < 3; k++) {
        float g[2][48] = { { 0 } };
        for (int two = 0; two < 2; two++) {
            dt_model     *m = dt_model_new(.seed = 1);
            dt_optimizer *opt = dt_sgd(m, .lr = 1);
            dt_amp       *a = dt_amp_new(m, .level = levels[k], .loss_scale = 1024);
            dt_tensor    *w = NULL;
            float         before[48], after[48];
            for (int i = 0; i < 1 + two; i++) {
                w = dt_parameter(m, "w", DT_SHAPE(48), .init = DT_INIT_NORMAL);
                dt_tensor *l = dt_mean(dt_mul(dt_cast(w, DT_F32), dt_arange(0, 48, 1)));
                if (!i) dt_copy_out(dt_cast(w, DT_F32), before, sizeof before);
                ASSERT_EQ(DT_OK, dt_amp_backward(a, two ? dt_mul_scalar(l, i ? 0.75 : 0.25) : l));
            }
            ASSERT_EQ(DT_OK, dt_step(opt));
            dt_copy_out(dt_cast(w, DT_F32), after, sizeof after);
            for (int i = 0; i < 48; i++) g[two][i] = before[i] - after[i];
            dt_end();
            dt_amp_free(a);
            dt_optimizer_free(opt);
            dt_model_free(m);
        }
        for (int i = 0; i < 48; i++) EXPECT_NEAR(g[0][i], g[1][i], (k == 2 ? 4e-3 : 1e-6));
    }
}

UTEST(scaling, may_begin_after_steps_where_nothing_is_cast)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    ASSERT_EQ(DT_OK, dt_backward(loss_of(m, 1)));
    ASSERT_EQ(DT_OK, dt_step(opt));
    EXPECT_ERROR(dt_amp_new(m, .level = "O2"), "an optimiser has stepped already");
    EXPECT_EQ(DT_F32, (int)dt_dtype_of(dt_model_find(m, "fc1.weight")));
    dt_amp *a = dt_amp_new(m, .level = "O1");
    ASSERT_TRUE(a != NULL);
    EXPECT_EQ(DT_OK, dt_amp_backward(a, loss_of(m, 1)));
    EXPECT_EQ(DT_OK, dt_step(opt));
    EXPECT_EQ((int64_t)2, dt_optimizer_steps(opt));
    dt_amp_free(a);
    dt_optimizer_free(opt);
    dt_model_free(m);
}

/* ==================================================================================================== >>masters */
UTEST(masters, keep_what_a_half_would_lose)
{
    double moved[2];
    for (int k = 0; k < 2; k++) { /* 100 steps of 1e-5 from 1: half the distance of f16 at 1 is 4.9e-4 */
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 1e-5);
        dt_amp       *a = dt_amp_new(m, .level = k ? "O3" : "O2");
        for (int i = 0; i < 100; i++) {
            dt_tensor *w = dt_parameter(m, "w", DT_SHAPE(1), .init = DT_INIT_CONST, .a = 1);
            ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_sum(w)));
            ASSERT_EQ(DT_OK, dt_step(opt));
        }
        moved[k] = 1 - dt_item(dt_model_find(m, "w"));
        dt_end();
        dt_amp_free(a);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    EXPECT_NEAR(1e-3, moved[0], 3e-4);
    EXPECT_EQ(0.0, moved[1]);
}

/* ==================================================================================================== >>several */
UTEST(several, losses_have_their_own_scales)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 1);
    dt_amp       *a = dt_amp_new(m, .level = "O1", .num_losses = 2);
    for (int i = 0; i < 2; i++) {
        dt_tensor *w = dt_parameter(m, "w", DT_SHAPE(4), .init = DT_INIT_CONST, .a = 0);
        ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_sum(w)));
        w = dt_parameter(m, "w", DT_SHAPE(4), .init = DT_INIT_CONST, .a = 0);
        ASSERT_EQ(DT_OK, dt_amp_backward(a, dt_sum(dt_mul_scalar(w, i ? 2 : INFINITY)), .loss = 1));
        ASSERT_EQ(DT_OK, dt_step(opt));
        EXPECT_EQ(i ? -3.0 : 0.0, dt_item(dt_mean(w))); /* first skipped for both, then 1 + 2 */
    }
    EXPECT_EQ(65536.0, dt_amp_scale(a, 0));
    EXPECT_EQ(32768.0, dt_amp_scale(a, 1));
    dt_end();
    dt_amp_free(a);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(several, optimisers_and_models)
{
    dt_model     *m = dt_model_new(.seed = 1), *n = dt_model_new(.seed = 2);
    dt_optimizer *om = dt_sgd(m, .lr = 1), *on = dt_sgd(n, .lr = 1);
    dt_amp       *a = dt_amp_new(m, .level = "O1");
    ASSERT_EQ(DT_OK, dt_amp_add(a, n));
    for (int i = 0; i < 2; i++) {
        dt_tensor *w = dt_parameter(m, "w", DT_SHAPE(4)), *v = dt_parameter(n, "v", DT_SHAPE(4));
        dt_tensor *l = dt_add(dt_sum(w), dt_sum(dt_mul_scalar(v, i ? 1 : INFINITY)));
        ASSERT_EQ(DT_OK, dt_amp_backward(a, l));
        ASSERT_EQ(DT_OK, dt_step(om));
        ASSERT_EQ(DT_OK, dt_step(on));
        EXPECT_EQ(i ? -2.0 : -1.0, dt_item(dt_mean(w))); /* its own gradients were fine */
        EXPECT_EQ(i ? -1.0 : 0.0, dt_item(dt_mean(v)));
        EXPECT_EQ(32768.0, dt_amp_scale(a, 0)); /* once a step, not once an optimiser */
    }
    dt_end();
    dt_amp_free(a);
    dt_optimizer_free(om);
    dt_optimizer_free(on);
    dt_model_free(m);
    dt_model_free(n);
}

/* ==================================================================================================== >>convergence
   A loss whose gradients vanish in f16: 1e-7 of the usual one. Scaled it trains as f32 does; unscaled not at all. */
static double train(const char *level, dt_dtype dtype, double scale, double size)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.2 / size, .momentum = 0.9);
    dt_amp       *a = dt_amp_new(m, .level = level, .dtype = dtype, .loss_scale = scale, .init_scale = 16777216);
    double        last = NAN;
    for (int i = 0; i < 60 && !dt_error(); i++) {
        dt_tensor *l = loss_of(m, 1);
        last = dt_item(l);
        dt_amp_backward(a, dt_mul_scalar(l, size));
        dt_step(opt);
    }
    dt_end();
    dt_amp_free(a);
    dt_optimizer_free(opt);
    dt_model_free(m);
    return dt_error() ? NAN : last;
}
UTEST(convergence, needs_the_scale_in_f16)
{
    double f32 = train("O0", DT_F16, 1, 1e-7);
    EXPECT_LT(f32, 0.05);
    EXPECT_LT(train("O1", DT_F16, DT_DYNAMIC, 1e-7), 0.05);
    EXPECT_LT(train("O2", DT_F16, DT_DYNAMIC, 1e-7), 0.05);
    EXPECT_GT(train("O1", DT_F16, 1, 1e-7), 0.5);
    EXPECT_GT(train("O2", DT_F16, 1, 1e-7), 0.5);
    EXPECT_LT(train("O1", DT_BF16, 1, 1e-7), 0.05); /* bf16 has f32's range: it needs none */
    EXPECT_LT(train("O2", DT_BF16, 1, 1e-7), 0.05);
}
UTEST(convergence, at_every_level)
{
    static const char *const levels[] = { "O0", "O1", "O2", "O3" };
    for (int k = 0; k < 8; k++) {
        const char *level = levels[k % 4];
        EXPECT_LT_MSG(train(level, k < 4 ? DT_F16 : DT_BF16, 0, 1), 0.1, level);
    }
}
