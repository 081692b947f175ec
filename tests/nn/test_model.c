/* test_model.c: models by name and their layers. Contents: >>names >>lifecycle >>modes >>layers >>misuse >>memory */
#define _GNU_SOURCE
#include "dt_nn.h"
#include "dt_test.h"

#include "fake_device.h"
#include "golden/nn.h"
#include "golden_layers.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* Two hidden layers with scopes: what most tests use. */
static dt_tensor *mlp(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "in", x, .out = 8, .act = DT_ACT_TANH);
    for (int i = 0; i < 2; i++) {
        dt_scope_begin(m, "block.%d", i);
        x = dt_linear(m, "fc", dt_layernorm(m, "norm", x), .out = 8, .act = DT_ACT_RELU);
        dt_scope_end(m);
    }
    return dt_linear(m, "out", x, .out = 3, .no_bias = true);
}
static double mlp_step(dt_model *m)
{
    dt_tensor *y = mlp(m, dt_full(0.5, DT_SHAPE(4, 5)));
    dt_tensor *l = dt_mean(dt_mul(y, y));
    dt_backward(l);
    return dt_item(l);
}

/* ==================================================================================================== >>names */
UTEST(names, are_those_of_a_state_dict_in_order_of_creation)
{
    static const char *const want[] = { "in.weight", "in.bias", "block.0.norm.weight", "block.0.norm.bias",
        "block.0.fc.weight", "block.0.fc.bias", "block.1.norm.weight", "block.1.norm.bias", "block.1.fc.weight",
        "block.1.fc.bias", "out.weight" };
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_OK(mlp(m, dt_ones(DT_SHAPE(4, 5))));
    ASSERT_EQ((int)(sizeof want / sizeof *want), dt_model_count(m));
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        ASSERT_TRUE(dt_model_get(m, i, &p));
        EXPECT_STREQ(want[i], p.name);
        EXPECT_TRUE(dt_model_find(m, want[i]) == p.value);
        EXPECT_FALSE(p.buffer || p.frozen);
    }
    EXPECT_TRUE(dt_model_find(m, "block.0.fc") == NULL); /* not found is an answer */
    EXPECT_TRUE(dt_error() == NULL);
    EXPECT_EQ((int64_t)(5 * 8 + 8 + 2 * (16 + 64 + 8) + 24), dt_model_numel(m, false));
    dt_end();
    dt_model_free(m);
}
UTEST(names, patterns)
{
    EXPECT_TRUE(dt_name_matches("*.bias", "a.b.bias"));
    EXPECT_TRUE(dt_name_matches("*bn*|*.bias", "layer1.0.bn1.weight"));
    EXPECT_TRUE(dt_name_matches("layer?.*.weight", "layer1.0.conv1.weight"));
    EXPECT_TRUE(dt_name_matches("a*b*c", "a-b-b-c"));
    EXPECT_TRUE(dt_name_matches("*", ""));
    EXPECT_TRUE(dt_name_matches("x|", ""));
    EXPECT_FALSE(dt_name_matches("*.bias", "bias.weight"));
    EXPECT_FALSE(dt_name_matches("fc", "fc.weight"));
    EXPECT_FALSE(dt_name_matches("", "a"));
    EXPECT_FALSE(dt_name_matches("a|b", "ab"));
    EXPECT_FALSE(dt_name_matches(NULL, "a"));
}
UTEST(names, thousands_are_found)
{
    dt_model *m = dt_model_new(.seed = 1);
    char      name[32];
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "p%d", i);
        ASSERT_OK(dt_parameter(m, name, DT_SHAPE(1), .init = DT_INIT_CONST, .a = i));
    }
    for (int i = 0; i < 3000; i += 7) {
        snprintf(name, sizeof name, "p%d", i);
        EXPECT_EQ((double)i, dt_item(dt_model_find(m, name)));
    }
    dt_end();
    dt_model_free(m);
}

/* ==================================================================================================== >>lifecycle */
UTEST(lifecycle, the_first_backward_seals_and_packs_in_reverse_order)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_FALSE(dt_model_is_sealed(m));
    double first = mlp_step(m);
    EXPECT_TRUE(dt_model_is_sealed(m));
    EXPECT_TRUE(dt_error() == NULL);
    dt_tensor *g = dt_grad(dt_model_find(m, "in.weight"));
    ASSERT_TRUE(g != NULL);
    EXPECT_SHAPE(g, DT_SHAPE(8, 5));
    dt_end();
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        dt_zero_grad(p.value);
    }
    EXPECT_EQ(first, mlp_step(m)); /* packed: same values */
    dt_end();
    dt_model_free(m);
}
UTEST(lifecycle, a_backward_of_other_tensors_does_not_seal)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *p = dt_set_requires_grad(dt_ones(DT_SHAPE(2)));
    EXPECT_OK(mlp(m, dt_ones(DT_SHAPE(4, 5))));
    EXPECT_EQ(0, (int)dt_backward(dt_sum(p)));
    EXPECT_FALSE(dt_model_is_sealed(m));
    dt_end();
    mlp_step(m);
    EXPECT_TRUE(dt_model_is_sealed(m));
    dt_end();
    dt_free(p);
    dt_model_free(m);
}
UTEST(lifecycle, a_new_name_after_the_seal_is_an_error)
{
    dt_model *m = dt_model_new(.seed = 1);
    mlp_step(m);
    dt_end();
    EXPECT_ERROR(dt_linear(m, "late", dt_ones(DT_SHAPE(1, 5)), .out = 2), "'late': a new name after the seal");
    EXPECT_ERROR(dt_parameter(m, "late", DT_SHAPE(1)), "after the seal");
    EXPECT_EQ(11, dt_model_count(m));
    dt_end();
    dt_model_free(m);
}
UTEST(lifecycle, sealing_by_hand_and_an_empty_model)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR(dt_model_seal(m) == DT_OK ? m : NULL, "no parameters");
    EXPECT_OK(mlp(m, dt_ones(DT_SHAPE(4, 5))));
    dt_end();
    EXPECT_EQ(DT_OK, dt_model_seal(m));
    EXPECT_EQ(DT_OK, dt_model_seal(m)); /* twice is once */
    EXPECT_TRUE(mlp_step(m) > 0);
    dt_end();
    dt_model_free(m);
}
UTEST(lifecycle, a_model_freed_before_its_seal_leaves_no_hook)
{
    for (int i = 0; i < 40; i++) { /* more than a thread has hooks */
        dt_model *m = dt_model_new(.seed = 1);
        ASSERT_OK(mlp(m, dt_ones(DT_SHAPE(4, 5))));
        dt_end();
        dt_model_free(m);
    }
    dt_tensor *p = dt_set_requires_grad(dt_ones(DT_SHAPE(2)));
    EXPECT_EQ(0, (int)dt_backward(dt_sum(p)));
    dt_end();
    dt_free(p);
}
UTEST(lifecycle, same_seed_same_bits_other_seed_other_bits)
{
    dt_model *a = dt_model_new(.seed = 7), *b = dt_model_new(.seed = 7), *c = dt_model_new(.seed = 8);
    dt_tensor *x = dt_ones(DT_SHAPE(4, 5));
    ASSERT_TRUE(mlp(a, x) && mlp(b, x) && mlp(c, x));
    EXPECT_SAME_BITS(dt_model_find(a, "out.weight"), dt_model_find(b, "out.weight"));
    EXPECT_TRUE(fnv(dt_model_find(a, "out.weight")) != fnv(dt_model_find(c, "out.weight")));
    dt_end();
    dt_model_free(a);
    dt_model_free(b);
    dt_model_free(c);
}
UTEST(lifecycle, freezing_before_and_after_the_seal)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_EQ(0, dt_model_freeze(m, "in.*")); /* nothing there yet: it waits */
    mlp_step(m);
    EXPECT_FALSE(dt_requires_grad(dt_model_find(m, "in.weight")));
    EXPECT_TRUE(dt_grad(dt_model_find(m, "in.weight")) == NULL);
    EXPECT_TRUE(dt_grad(dt_model_find(m, "out.weight")) != NULL);
    dt_end();
    uint64_t before = fnv(dt_model_find(m, "in.weight")), out = fnv(dt_model_find(m, "out.weight"));
    EXPECT_EQ(2, dt_model_unfreeze(m, "in.*")); /* it moves into a block: values stay */
    EXPECT_EQ(before, fnv(dt_model_find(m, "in.weight")));
    EXPECT_EQ(out, fnv(dt_model_find(m, "out.weight")));
    EXPECT_EQ(4, dt_model_freeze(m, "block.0.*"));
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        dt_zero_grad(p.value);
    }
    mlp_step(m);
    EXPECT_TRUE(dt_grad(dt_model_find(m, "in.weight")) != NULL);
    EXPECT_FALSE(dt_requires_grad(dt_model_find(m, "block.0.fc.weight")));
    EXPECT_EQ(dt_model_numel(m, false) - 16 - 72, dt_model_numel(m, true));
    EXPECT_ERROR(dt_model_freeze(m, "nothing.like.this") >= 0 ? m : NULL, "no parameter's name matches 'nothing.like.this'");
    dt_end();
    dt_model_free(m);
}
UTEST(lifecycle, cast_and_move_keep_handles_and_values)
{
    fake_device *f = fake_device_new(0);
    for (int sealed = 0; sealed < 2; sealed++) {
        dt_model *m = dt_model_new(.seed = 1);
        ASSERT_OK(mlp(m, dt_full(0.5, DT_SHAPE(4, 5))));
        if (sealed) mlp_step((dt_forward_begin(m), m));
        dt_end();
        dt_tensor *w = dt_model_find(m, "in.weight");
        uint64_t   bits = fnv(w);
        EXPECT_EQ(DT_OK, dt_model_to(m, f->dev));
        EXPECT_TRUE(dt_model_find(m, "in.weight") == w && dt_device_of(w) == f->dev);
        EXPECT_EQ(bits, fnv(w));
        EXPECT_OK(mlp(m, dt_full(0.5, DT_SHAPE(4, 5), .device = f->dev)));
        EXPECT_ERROR(mlp((dt_forward_begin(m), m), dt_full(0.5, DT_SHAPE(4, 5))), "the model on");
        dt_end();
        EXPECT_EQ(DT_OK, dt_model_cast(m, DT_BF16));
        EXPECT_EQ(DT_BF16, (int)dt_dtype_of(w));
        EXPECT_EQ(DT_OK, dt_model_to(m, dt_cpu()));
        dt_tensor *y = mlp(m, dt_full(0.5, DT_SHAPE(4, 5), .dtype = DT_BF16));
        EXPECT_EQ(DT_BF16, (int)dt_dtype_of(y));
        EXPECT_EQ(DT_OK, dt_backward(dt_sum(y)));
        EXPECT_EQ(DT_BF16, (int)dt_dtype_of(dt_grad(w)));
        dt_end();
        dt_model_free(m);
    }
    dt_empty_cache();
    fake_device_free(f);
}
UTEST(lifecycle, shared_layers_add_their_gradients)
{
    dt_model *m = dt_model_new(.seed = 1);
    float     sum[6] = { 0 };
    for (int twice = 0; twice < 2; twice++) {
        dt_tensor *x = dt_ones(DT_SHAPE(1, 2));
        dt_tensor *y = dt_linear(m, "fc", x, .out = 2, .no_bias = true);
        if (twice) y = dt_add(y, dt_linear(m, "fc", dt_mul_scalar(x, 3), .out = 2, .no_bias = true, .shared = true));
        ASSERT_EQ(DT_OK, dt_backward(dt_sum(y)));
        float      got[4];
        dt_tensor *w = dt_model_find(m, "fc.weight");
        dt_copy_out(dt_grad(w), got, sizeof got);
        sum[twice] = got[0];
        dt_zero_grad(w);
        dt_end();
    }
    EXPECT_EQ(1.0f, sum[0]);
    EXPECT_EQ(4.0f, sum[1]);
    dt_model_free(m);
}
UTEST(lifecycle, summary_has_a_line_for_each_layer)
{
    dt_model *m = dt_model_new(.seed = 1);
    char      text[4096];
    ASSERT_OK(dt_conv2d(m, "conv", dt_ones(DT_SHAPE(2, 3, 8, 8)), .out = 4, .kernel = 3, .pad = 1));
    ASSERT_OK(mlp(m, dt_ones(DT_SHAPE(4, 5))));
    size_t n = dt_model_summary(m, text, sizeof text);
    EXPECT_EQ(n, strlen(text));
    EXPECT_TRUE(strstr(text, "block.1.fc") && strstr(text, "dt_layernorm") && strstr(text, "(2, 4, 8, 8)"));
    EXPECT_TRUE(strstr(text, "27,648")); /* 2*2*64*4*27 FLOPs of the convolution */
    EXPECT_TRUE(strstr(text, "total"));
    char small[10];
    EXPECT_EQ(n, dt_model_summary(m, small, sizeof small));
    EXPECT_EQ((size_t)9, strlen(small));
    dt_end();
    dt_model_free(m);
}

/* ==================================================================================================== >>modes */
UTEST(modes, running_statistics_change_in_training_only)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_normal(3, 2, DT_SHAPE(16, 4));
    ASSERT_OK(dt_batchnorm1d(m, "bn", x));
    dt_tensor *mean = dt_model_find(m, "bn.running_mean"), *count = dt_model_find(m, "bn.num_batches_tracked");
    uint64_t   one = fnv(mean);
    EXPECT_EQ(1.0, dt_item(count));
    EXPECT_EQ(DT_I64, (int)dt_dtype_of(count));
    dt_model_eval(m);
    dt_forward_begin(m);
    EXPECT_OK(dt_batchnorm1d(m, "bn", x));
    EXPECT_EQ(one, fnv(mean));
    EXPECT_EQ(1.0, dt_item(count));
    dt_model_train(m);
    dt_forward_begin(m);
    EXPECT_OK(dt_batchnorm1d(m, "bn", x));
    EXPECT_TRUE(one != fnv(mean));
    EXPECT_EQ(2.0, dt_item(count));
    dt_parameter_info p;
    ASSERT_TRUE(dt_model_get(m, 2, &p));
    EXPECT_TRUE(p.buffer && !strcmp(p.name, "bn.running_mean"));
    dt_end();
    dt_model_free(m);
}
UTEST(modes, dropout_is_off_in_evaluation_and_drawn_from_the_model)
{
    dt_model  *a = dt_model_new(.seed = 3), *b = dt_model_new(.seed = 3);
    dt_tensor *x = dt_ones(DT_SHAPE(100));
    dt_tensor *ya = dt_dropout(a, x, 0.5), *za = dt_dropout(a, x, 0.5);
    EXPECT_SAME_BITS(ya, dt_dropout(b, x, 0.5));
    EXPECT_TRUE(fnv(ya) != fnv(za));
    EXPECT_TRUE(dt_item(dt_amax(ya)) == 2.0 && dt_item(dt_amin(ya)) == 0.0);
    dt_model_eval(a);
    EXPECT_TRUE(dt_dropout(a, x, 0.5) == x);
    dt_end();
    dt_model_free(a);
    dt_model_free(b);
}

/* ==================================================================================================== >>layers
   Each layer starts from PyTorch's bits and gives its values and gradients. */
LAYER(linear, DT_SHAPE(4, 7), 0, dt_linear(m, "l", x, .out = 5))
LAYER(linear_no_bias, DT_SHAPE(2, 25), 0, dt_linear(m, "l", x, .out = 3, .no_bias = true))
LAYER(conv, DT_SHAPE(2, 3, 5, 5), 0, dt_conv2d(m, "l", x, .out = 4, .kernel = 3, .pad = 1))
LAYER(conv_groups, DT_SHAPE(2, 4, 6, 5), 0,
      dt_conv2d(m, "l", x, .out = 6, .kernel = 3, .kernel_w = 2, .stride = 2, .pad = 1, .pad_w = DT_ZERO, .groups = 2,
                .no_bias = true))
LAYER(bn2d, DT_SHAPE(4, 3, 2, 2), 0, dt_batchnorm2d(m, "l", x))
LAYER(bn1d, DT_SHAPE(6, 5), 0, dt_batchnorm1d(m, "l", x))
LAYER(ln, DT_SHAPE(3, 6), 0, dt_layernorm(m, "l", x))
LAYER(ln2, DT_SHAPE(4, 2, 3), 0, dt_layernorm(m, "l", x, .normalized_dims = 2, .eps = 1e-3))
LAYER(rms, DT_SHAPE(3, 6), 0, dt_rmsnorm(m, "l", x))
LAYER(gn, DT_SHAPE(3, 4, 2, 3), 0, dt_groupnorm(m, "l", x, .groups = 2))
LAYER(embedding, DT_SHAPE(3, 4), 11, dt_embedding(m, "l", x, .num = 11, .dim = 6))
LAYER(embedding_padding, DT_SHAPE(3, 4), 11, dt_embedding(m, "l", x, .num = 11, .dim = 6, .padding_idx = 3))
LAYER(bn3d, DT_SHAPE(2, 3, 2, 3, 2), 0, dt_batchnorm3d(m, "l", x))
LAYER(mha, DT_SHAPE(2, 5, 8), 0, dt_multihead_attention(m, "l", x, .heads = 2))
LAYER(mha_causal, DT_SHAPE(2, 5, 8), 0, dt_multihead_attention(m, "l", x, .heads = 2, .causal = true, .no_bias = true))
LAYER(mha_cross, DT_SHAPE(2, 7, 8), 0,
      dt_multihead_attention(m, "l", dt_narrow(x, 1, 0, 3), .heads = 2, .kv = dt_narrow(x, 1, 3, 4)))
static dt_tensor *twice_cumulative(dt_model *m, dt_tensor *x)
{
    dt_batchnorm1d(m, "l", x, .cumulative = true);
    return dt_batchnorm1d(m, "l", dt_mul_scalar(x, 2), .cumulative = true, .shared = true);
}
UTEST(layers, bn_cumulative)
{
    dt_rng r;
    dt_rng_seed(&r, 2);
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_OK(twice_cumulative(m, dt_normal(0, 1, DT_SHAPE(6, 5), .rng = &r)));
    EXPECT_CLOSE_D(dt_model_find(m, "l.running_mean"), nn_bn_cumulative_running_mean, 5, 1e-6, 1e-5);
    EXPECT_CLOSE_D(dt_model_find(m, "l.running_var"), nn_bn_cumulative_running_var, 5, 1e-6, 1e-5);
    EXPECT_EQ(2.0, dt_item(dt_model_find(m, "l.num_batches_tracked")));
    dt_end();
    dt_model_free(m);
}
UTEST(layers, attention_with_dropout_in_evaluation_is_attention_and_without_draws_at_p_0)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_normal(0, 1, DT_SHAPE(2, 6, 8));
    dt_tensor *plain = dt_multihead_attention(m, "a", x, .heads = 2, .causal = true);
    dt_forward_begin(m);
    dt_model_eval(m);
    EXPECT_SAME_BITS(plain, dt_multihead_attention(m, "a", x, .heads = 2, .causal = true, .dropout = 0.9));
    dt_forward_begin(m);
    dt_model_train(m);
    dt_tensor *little = dt_multihead_attention(m, "a", x, .heads = 2, .causal = true, .dropout = 1e-12);
    EXPECT_CLOSE_TO(little, plain, 1e-6, 1e-5); /* the composed path, nothing dropped: the same values */
    dt_forward_begin(m);
    dt_tensor *much = dt_multihead_attention(m, "a", x, .heads = 2, .causal = true, .dropout = 0.5);
    EXPECT_TRUE(fnv(much) != fnv(plain));
    dt_end();
    dt_model_free(m);
}
UTEST(layers, own_parameters_and_buffers)
{
    dt_model *m = dt_model_new(.seed = 1);
    for (int step = 0; step < 2; step++) {
        dt_tensor *p = dt_parameter(m, "pos", DT_SHAPE(3), .init = DT_INIT_CONST, .a = 2);
        dt_tensor *b = dt_buffer(m, "mask", DT_SHAPE(3), .init = DT_INIT_CONST, .a = 5);
        ASSERT_TRUE(p && b);
        EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(p, b))));
        EXPECT_EQ(step ? 10.0 : 5.0, dt_item(dt_mean(dt_grad(p))));
        EXPECT_TRUE(dt_grad(b) == NULL);
        dt_end();
    }
    EXPECT_ERROR(dt_parameter(m, "pos", DT_SHAPE(4)), "'pos' is (3), but this call needs (4)");
    dt_model_free(m);
}

/* ==================================================================================================== >>misuse */
UTEST(misuse, a_name_twice_in_one_forward)
{
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_ones(DT_SHAPE(2, 4));
    EXPECT_OK(dt_linear(m, "fc", x, .out = 4));
    EXPECT_ERROR(dt_linear(m, "fc", x, .out = 4), "'fc': the name is used twice in one forward");
    EXPECT_OK(dt_linear(m, "fc", x, .out = 4, .shared = true));
    dt_forward_begin(m);
    EXPECT_OK(dt_linear(m, "fc", x, .out = 4));
    dt_end();
    EXPECT_OK(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 4)), .out = 4)); /* dt_end ended the forward */
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 4)), .out = 4, .shared = true))));
    EXPECT_OK(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 4)), .out = 4)); /* so did dt_backward: accumulation */
    dt_end();
    dt_model_free(m);
}
UTEST(misuse, other_shapes_other_kinds_other_options)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_OK(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 4)), .out = 4));
    dt_forward_begin(m);
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 5)), .out = 4),
                 "'fc.weight' is (4, 4), but this call needs (4, 5)");
    EXPECT_ERROR(dt_linear((dt_forward_begin(m), m), "fc", dt_ones(DT_SHAPE(2, 4)), .out = 3), "needs (3, 4)");
    EXPECT_ERROR(dt_layernorm((dt_forward_begin(m), m), "fc", dt_ones(DT_SHAPE(2, 4))), "the name belongs to a dt_linear");
    EXPECT_ERROR(dt_linear((dt_forward_begin(m), m), "fc", dt_ones(DT_SHAPE(2, 4)), .out = 4, .kernel = 3),
                 ".kernel is not an option of this layer; it takes .out, .no_bias, .act");
    EXPECT_ERROR(dt_linear(m, "g", dt_ones(DT_SHAPE(2, 4))), ".out is 0");
    EXPECT_ERROR(dt_linear(m, "", dt_ones(DT_SHAPE(2, 4)), .out = 2), "needs a name");
    EXPECT_ERROR(dt_linear(m, NULL, dt_ones(DT_SHAPE(2, 4)), .out = 2), "needs a name");
    EXPECT_ERROR(dt_linear(NULL, "a", dt_ones(DT_SHAPE(2, 4)), .out = 2), "the model is NULL");
    EXPECT_ERROR(dt_linear(m, "h", NULL, .out = 2), "x is NULL");
    EXPECT_ERROR(dt_conv2d(m, "c", dt_ones(DT_SHAPE(1, 3, 4, 4)), .out = 4, .kernel = 3, .groups = 2), "divisible");
    EXPECT_ERROR(dt_groupnorm(m, "gn", dt_ones(DT_SHAPE(1, 3, 4, 4)), .groups = 2), "divisible");
    EXPECT_ERROR(dt_embedding(m, "e", dt_zeros(DT_SHAPE(3), .dtype = DT_I64), .num = 4), ".dim 0");
    EXPECT_ERROR(dt_multihead_attention(m, "mha", dt_ones(DT_SHAPE(2, 3, 5)), .heads = 2), "divisible");
    EXPECT_ERROR(dt_batchnorm2d(m, "bn", dt_ones(DT_SHAPE(2, 3))), "must be (n, c, h, w)");
    EXPECT_ERROR(dt_model_new(.dtype = DT_I32), "f32, f16 or bf16");
    dt_end();
    dt_model_free(m);
}
UTEST(misuse, a_parameter_name_that_another_layer_has)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_OK(dt_parameter(m, "fc.weight", DT_SHAPE(2)));
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 4)), .out = 4), "'fc.weight' belongs to another layer");
    dt_end();
    dt_model_free(m);
}
UTEST(misuse, scopes)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR((dt_scope_end(m), NULL), "dt_scope_end: without a dt_scope_begin");
    EXPECT_ERROR(dt_scope_begin(m, "%s", "") == DT_OK ? m : NULL, "a scope needs a name");
    char long_name[600];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    EXPECT_ERROR(dt_scope_begin(m, "%s", long_name) == DT_OK ? m : NULL, "too long");
    for (int i = 0; i < 32; i++) ASSERT_TRUE(dt_scope_begin(m, "%d", i) == DT_OK);
    EXPECT_ERROR(dt_scope_begin(m, "more") == DT_OK ? m : NULL, "32 scopes are open");
    for (int i = 0; i < 32; i++) dt_scope_end(m);
    EXPECT_OK(dt_parameter(m, "top", DT_SHAPE(1)));
    EXPECT_TRUE(dt_model_find(m, "top") != NULL);
    dt_end();
    dt_model_free(m);
    dt_model_free(NULL);
    dt_model_train(NULL);
    dt_forward_begin(NULL);
}
UTEST(misuse, with_an_error_pending_nothing_is_made)
{
    dt_model *m = dt_model_new(.seed = 1);
    dt_fail(DT_ERR_ARG, "pending");
    EXPECT_TRUE(dt_linear(m, "fc", NULL, .out = 2) == NULL);
    EXPECT_TRUE(dt_model_new(.seed = 2) == NULL);
    EXPECT_EQ(0, dt_model_count(m));
    EXPECT_STREQ("pending", dt_error());
    dt_error_clear();
    dt_model_free(m);
}

/* ==================================================================================================== >>memory */
static int64_t fail_at, calls;
static void *failing(void *user, size_t n)
{
    (void)user;
    return ++calls >= fail_at ? NULL : malloc(n); /* a single failure may be survived by a retry */
}
static void release(void *user, void *p, size_t n)
{
    (void)user;
    (void)n;
    free(p);
}
UTEST(memory, every_allocation_may_fail)
{
    dt_allocator a = { failing, release, NULL };
    dt_end();
    dt_empty_cache();
    ASSERT_EQ(DT_OK, dt_set_allocator(&a));
    int64_t passed = 0;
    for (fail_at = 1; !passed && fail_at < 100000; fail_at++) {
        calls = 0;
        dt_model *m = dt_model_new(.seed = 1);
        dt_model_freeze(m, "block.0.*");
        for (int i = 0; i < 2; i++) {
            mlp_step(m);
            dt_end();
        }
        dt_model_unfreeze(m, "*");
        if (dt_error_code() == DT_OK) {
            passed = 1;
        } else {
            EXPECT_EQ_MSG(DT_ERR_MEMORY, (int)dt_error_code(), dt_error());
            dt_error_clear();
        }
        dt_model_free(m);
        dt_end();
        dt_empty_cache();
        ASSERT_EQ((int64_t)0, dt_stats().live_tensors);
    }
    EXPECT_TRUE(passed && fail_at > 60);
    EXPECT_EQ(DT_OK, dt_set_allocator(NULL));
}
