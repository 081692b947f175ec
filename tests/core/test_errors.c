/* test_errors.c: bad input. Each mistake is one clear message that names the call and the shapes; the program goes on
   after dt_error_clear(), and nothing is left behind. Contents: >>null >>shapes >>autograd >>state >>memory */
#define _GNU_SOURCE
#include "dt_test.h"

#include "fake_device.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* expr fails, its message has all the parts, it is of that kind; then the thread works again. */
static void expect_error(int *utest_result, int line, const char *text, int bad, dt_status code, const char *a,
                         const char *b, const char *c)
{
    const char *e = dt_error() ? dt_error() : "(no message)";
    char        where[1400];
    snprintf(where, sizeof where, "line %d: %s: \"%s\"", line, text, e);
    EXPECT_TRUE_MSG(bad, where);
    EXPECT_EQ_MSG((int)code, (int)dt_error_code(), where);
    EXPECT_TRUE_MSG(strstr(e, a) && strstr(e, b) && strstr(e, c), where);
    EXPECT_TRUE_MSG(dt_ones(DT_SHAPE(1)) == NULL, where);                 /* until cleared, calls return NULL ... */
    EXPECT_TRUE_MSG(strcmp(e, dt_error() ? dt_error() : "") == 0, where); /* ... and the first message stays */
    dt_error_clear();
    EXPECT_TRUE_MSG(dt_error() == NULL && dt_error_code() == DT_OK, where);
    EXPECT_TRUE_MSG(dt_item(dt_ones(DT_SCALAR)) == 1.0, where);
    dt_error_clear();
}
#define FAILS(expr, code, a, b, c)                                        \
    do {                                                                  \
        int bad_ = DT_TEST_BAD_(expr);                                    \
        expect_error(utest_result, __LINE__, #expr, bad_, code, a, b, c); \
    } while (0)

typedef struct counts {
    int64_t tensors;
    size_t  bytes;
} counts;
static counts count(void)
{
    dt_end();
    counts c = { dt_stats().live_tensors, dt_stats().live_bytes };
    return c;
}
#define NOTHING_LEFT(before)                         \
    do {                                             \
        counts after_ = count();                     \
        EXPECT_EQ((before).tensors, after_.tensors); \
        EXPECT_EQ((before).bytes, after_.bytes);     \
    } while (0)

/* ==================================================================================================== >>null */
#define NULLS(call, name) FAILS(call, DT_ERR_ARG, name, "", "")

UTEST(null, calls_that_make_a_tensor)
{
    counts     before = count();
    dt_tensor *t[2] = { NULL, NULL }, *one = dt_ones(DT_SHAPE(2, 2));
    int64_t    pads[2] = { 1, 1 };
    dt_shape   s = DT_SHAPE(2);
    NULLS(dt_from(NULL, s), "dt_from");
    NULLS(dt_keep(NULL), "dt_keep");
    NULLS(dt_cast(NULL, DT_F16), "dt_cast");
    NULLS(dt_to(NULL, dt_cpu()), "dt_to");
    NULLS(dt_clone(NULL), "dt_clone");
    NULLS(dt_contiguous(NULL), "dt_contiguous");
    NULLS(dt_reshape(NULL, s), "dt_reshape");
    NULLS(dt_flatten(NULL), "dt_flatten");
    NULLS(dt_permute(NULL, s), "dt_permute");
    NULLS(dt_transpose(NULL, 0, 1), "dt_transpose");
    NULLS(dt_narrow(NULL, 0, 0, 1), "dt_narrow");
    NULLS(dt_select(NULL, 0, 0), "dt_select");
    NULLS(dt_expand(NULL, s), "dt_expand");
    NULLS(dt_squeeze(NULL, 0), "dt_squeeze");
    NULLS(dt_unsqueeze(NULL, 0), "dt_unsqueeze");
    NULLS(dt_set_requires_grad(NULL), "dt_set_requires_grad");
    NULLS(dt_detach(NULL), "dt_detach");
#define BINARY(f)            \
    NULLS(f(NULL, one), #f); \
    NULLS(f(one, NULL), #f); \
    NULLS(f(NULL, NULL), #f)
    BINARY(dt_add);
    BINARY(dt_sub);
    BINARY(dt_mul);
    BINARY(dt_div);
    BINARY(dt_pow);
    BINARY(dt_maximum);
    BINARY(dt_minimum);
    BINARY(dt_eq);
    BINARY(dt_ne);
    BINARY(dt_lt);
    BINARY(dt_le);
    BINARY(dt_gt);
    BINARY(dt_ge);
    BINARY(dt_matmul);
    BINARY(dt_op_embedding);
    BINARY(dt_cross_entropy);
    BINARY(dt_nll_loss);
    BINARY(dt_mse_loss);
    BINARY(dt_l1_loss);
    BINARY(dt_smooth_l1_loss);
    BINARY(dt_bce_with_logits);
    BINARY(dt_kl_div);
    BINARY(dt_atan2);
    BINARY(dt_prelu);
#define SCALAR(f) NULLS(f(NULL, 1.0), #f)
    SCALAR(dt_add_scalar);
    SCALAR(dt_sub_scalar);
    SCALAR(dt_mul_scalar);
    SCALAR(dt_div_scalar);
    SCALAR(dt_rsub_scalar);
    SCALAR(dt_rdiv_scalar);
    SCALAR(dt_pow_scalar);
    SCALAR(dt_maximum_scalar);
    SCALAR(dt_minimum_scalar);
    SCALAR(dt_leaky_relu);
    SCALAR(dt_softplus);
    SCALAR(dt_elu);
    SCALAR(dt_op_dropout);
#define UNARY(f) NULLS(f(NULL), #f)
    UNARY(dt_neg);
    UNARY(dt_abs);
    UNARY(dt_sqrt);
    UNARY(dt_exp);
    UNARY(dt_log);
    UNARY(dt_relu);
    UNARY(dt_gelu);
    UNARY(dt_gelu_tanh);
    UNARY(dt_silu);
    UNARY(dt_sigmoid);
    UNARY(dt_tanh);
    UNARY(dt_sum);
    UNARY(dt_mean);
    UNARY(dt_amax);
    UNARY(dt_amin);
    UNARY(dt_var);
    UNARY(dt_argmax);
    UNARY(dt_rsqrt);
    UNARY(dt_reciprocal);
    UNARY(dt_log1p);
    UNARY(dt_expm1);
    UNARY(dt_sin);
    UNARY(dt_cos);
    UNARY(dt_tan);
    UNARY(dt_erf);
    UNARY(dt_sign);
    UNARY(dt_floor);
    UNARY(dt_ceil);
    UNARY(dt_round);
    UNARY(dt_selu);
    UNARY(dt_hardswish);
    UNARY(dt_mish);
    UNARY(dt_logsigmoid);
    UNARY(dt_std);
    UNARY(dt_prod);
    UNARY(dt_logsumexp);
    UNARY(dt_argmin);
    NULLS(dt_clamp(NULL, 0, 1), "dt_clamp");
    NULLS(dt_where(NULL, one, one), "dt_where");
    NULLS(dt_where(one, NULL, one), "dt_where");
    NULLS(dt_where(one, one, NULL), "dt_where");
    NULLS(dt_softmax(NULL, 0), "dt_softmax");
    NULLS(dt_log_softmax(NULL, 0), "dt_log_softmax");
    NULLS(dt_op_linear(NULL, one, one), "dt_op_linear");
    NULLS(dt_op_linear(one, NULL, one), "dt_op_linear");
    NULLS(dt_op_conv2d(NULL, one, one), "dt_op_conv2d");
    NULLS(dt_op_conv2d(dt_ones(DT_SHAPE(1, 1, 3, 3)), NULL, NULL), "dt_op_conv2d");
    NULLS(dt_op_conv_transpose2d(NULL, one, one), "dt_op_conv_transpose2d");
    NULLS(dt_op_conv_transpose2d(dt_ones(DT_SHAPE(1, 1, 3, 3)), NULL, NULL), "dt_op_conv_transpose2d");
    NULLS(dt_maxpool2d(NULL, .kernel = 2), "dt_maxpool2d");
    NULLS(dt_avgpool2d(NULL, .kernel = 2), "dt_avgpool2d");
    NULLS(dt_adaptive_avgpool2d(NULL, 1, 1), "dt_adaptive_avgpool2d");
    NULLS(dt_op_batch_norm(NULL, NULL, NULL, NULL, NULL), "dt_op_batch_norm");
    NULLS(dt_op_layer_norm(NULL, NULL, NULL), "dt_op_layer_norm");
    NULLS(dt_op_rms_norm(NULL, NULL), "dt_op_rms_norm");
    NULLS(dt_gather(NULL, 0, one), "dt_gather");
    NULLS(dt_gather(one, 0, NULL), "dt_gather");
    NULLS(dt_cat(NULL, 2, 0), "dt_cat");
    NULLS(dt_cat(t, 2, 0), "dt_cat");
    NULLS(dt_stack(NULL, 2, 0), "dt_stack");
    NULLS(dt_stack(t, 2, 0), "dt_stack");
    NULLS(dt_pad(NULL, pads, 2, 0), "dt_pad");
    NULLS(dt_pad(one, NULL, 2, 0), "dt_pad");
    NULLS(dt_attention(NULL, one, one), "dt_attention");
    NULLS(dt_attention(one, NULL, one), "dt_attention");
    NULLS(dt_attention(one, one, NULL), "dt_attention");
    NOTHING_LEFT(before);
}

UTEST(null, calls_that_give_a_status)
{
    counts     before = count();
    float      v[4] = { 0 };
    dt_tensor *one = dt_ones(DT_SHAPE(2, 2)), *out[2];
    dt_block   block;
    NULLS(dt_copy_out(NULL, v, 4), "dt_copy_out");
    NULLS(dt_copy_out(one, NULL, 16), "dt_copy_out");
    NULLS(dt_copy_in(NULL, v, 4), "dt_copy_in");
    NULLS(dt_copy_in(one, NULL, 16), "dt_copy_in");
    NULLS(dt_copy(NULL, one), "dt_copy");
    NULLS(dt_copy(one, NULL), "dt_copy");
    NULLS(dt_fill(NULL, 1), "dt_fill");
    NULLS(dt_add_to(NULL, one, 1), "dt_add_to");
    NULLS(dt_add_to(one, NULL, 1), "dt_add_to");
    NULLS(dt_item(NULL), "dt_item");
    NULLS(dt_split(NULL, 1, 0, out, 2), "dt_split");
    NULLS(dt_split(one, 1, 0, NULL, 2), "dt_split");
    NULLS(dt_backward(NULL), "dt_backward");
    NULLS(dt_grad_hooks_add(NULL), "dt_grad_hooks_add");
    NULLS(dt_pack(NULL, &one, 1), "dt_pack");
    NULLS(dt_pack(&block, NULL, 1), "dt_pack");
    NULLS((void *)dt_device_new(NULL, 0, NULL), "dt_device_new");
    NOTHING_LEFT(before);
}

/* Asking and giving back take NULL without an error. */
UTEST(null, calls_that_ask_or_give_back)
{
    char buf[8];
    dt_free(NULL);
    dt_zero_grad(NULL);
    dt_retain_grad(NULL);
    dt_error_clear(); /* it may say so */
    dt_block_zero_grad(NULL);
    dt_block_free(NULL);
    dt_grad_hooks_remove(-1);
    dt_set_default_device(NULL);
    dt_set_log(NULL, NULL);
    EXPECT_EQ(0, dt_shape_of(NULL).ndim);
    EXPECT_EQ(0, dt_ndim(NULL));
    EXPECT_EQ(0, (int)dt_size(NULL, 0));
    EXPECT_EQ(0, (int)dt_stride(NULL, 0));
    EXPECT_EQ(0, (int)dt_numel(NULL));
    EXPECT_EQ(0, (int)dt_nbytes(NULL));
    EXPECT_EQ(0, (int)dt_dtype_of(NULL));
    EXPECT_TRUE(dt_device_of(NULL) == NULL);
    EXPECT_FALSE(dt_requires_grad(NULL));
    EXPECT_FALSE(dt_grad_pending(NULL));
    EXPECT_TRUE(dt_grad(NULL) == NULL);
    dt_is_contiguous(NULL);
    EXPECT_TRUE(dt_data_ptr(NULL) == NULL);
    dt_error_clear();
    dt_print(NULL);
    dt_to_string(NULL, buf, sizeof buf);
    dt_to_string(NULL, NULL, 0);
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_device_name(NULL);
    dt_device_impl(NULL);
    dt_device_backend(NULL);
    dt_device_allow_fallback(NULL, true);
    dt_device_allow_fallback(NULL, false);
    dt_device_set_stream(NULL, NULL);
    dt_device_free(NULL);
    dt_mem_free(NULL, 8);
    dt_error_clear();
    EXPECT_EQ(DT_OK, dt_synchronize(NULL));
    EXPECT_EQ(dt_device_stats(dt_cpu()).live_bytes, dt_device_stats(NULL).live_bytes);
    EXPECT_EQ(DT_OK, dt_set_allocator(NULL));
    EXPECT_STREQ("?", dt_dtype_name((dt_dtype)77));
    EXPECT_EQ(0, (int)dt_dtype_nbytes((dt_dtype)-1));
    EXPECT_TRUE(dt_kernel_name(-1) != NULL);
    EXPECT_TRUE(dt_kernel_name(DT_K_COUNT) != NULL);
    EXPECT_EQ(0, dt_check(NULL));
    dt_trace_push(NULL);
    dt_trace_pop();
    dt_trace_span(NULL, NULL, 0, 1);
    dt_trace_counter(NULL, 1);
    EXPECT_TRUE(dt_error() == NULL);
    FAILS((int)dt_trace_start(NULL), DT_ERR_ARG, "dt_trace_start", "", "");
    NULLS(dt_from_blob(NULL, DT_SHAPE(2)), "dt_from_blob");
}

UTEST(null, ops_of_the_program)
{
    dt_tensor *out[1];
    EXPECT_EQ(DT_ERR_ARG, dt_function_run(NULL, NULL, 0, NULL, 0, out, 1));
    dt_error_clear();
    NULLS(dt_function_apply(NULL, NULL, 1, NULL, 0), "dt_function_run");
    NULLS(dt_fn_in(NULL, 0), "dt_fn_in");
    EXPECT_TRUE(dt_fn_opts(NULL) == NULL);
    NULLS((dt_fn_out(NULL, 0, NULL), NULL), "dt_fn_out");
    NULLS((dt_fn_save(NULL, 0, NULL), NULL), "dt_fn_save");
    NULLS(dt_fn_saved(NULL, 0), "dt_fn_saved");
    NULLS(dt_fn_grad(NULL, 0), "dt_fn_grad");
    EXPECT_FALSE(dt_fn_needs_grad(NULL, 0));
    dt_error_clear();
    NULLS((dt_fn_give(NULL, 0, NULL), NULL), "dt_fn_give");
}

/* The tests of this set are complete: every function of dt.h that takes a pointer appears in this file. */
UTEST(null, every_public_call_is_tried)
{
    static const char *const exempt[] = { "dt_fail", "dt_cpu", NULL }; /* takes a format; takes nothing */
    char                     path[512], *slash, line[512], *self;
    snprintf(path, sizeof path, "%s", __FILE__);
    FILE *f = fopen(path, "r");
    if (!f) UTEST_SKIP("the source is not here");
    self = (char *)calloc(1, 1 << 20);
    size_t n = fread(self, 1, (1 << 20) - 1, f);
    fclose(f);
    EXPECT_GT(n, (size_t)1000);
    slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 64, "%sdt.h", slash ? "../../" : "");
    f = fopen(path, "r");
    ASSERT_TRUE_MSG(f != NULL, path);
    int seen = 0;
    while (fgets(line, sizeof line, f)) {
        char name[80] = "", *open = strchr(line, '(');
        if (strstr(line, "#endif /* DT_H_INCLUDED */")) break;
        if (strncmp(line, "DT_API ", 7) != 0 || !open || strncmp(open, "(void)", 6) == 0) continue;
        if (strstr(open, "/*")) *strstr(open, "/*") = 0;
        if (!strchr(open, '*')) continue; /* no pointer on the line: nothing to pass NULL for */
        char *start = open;
        while (start > line &&
               (start[-1] == '_' || (start[-1] >= 'a' && start[-1] <= 'z') || (start[-1] >= '0' && start[-1] <= '9')))
            start--;
        snprintf(name, sizeof name, "%.*s", (int)(open - start), start);
        size_t len = strlen(name);
        if (len > 5 && strcmp(name + len - 5, "_with") == 0) name[len - 5] = 0;
        bool ok = strstr(self, name) != NULL;
        for (int k = 0; exempt[k]; k++) ok = ok || strcmp(exempt[k], name) == 0;
        EXPECT_TRUE_MSG(ok, name);
        seen++;
    }
    fclose(f);
    free(self);
    EXPECT_GT(seen, 120);
}

/* ==================================================================================================== >>shapes */
UTEST(shapes, making)
{
    counts   before = count();
    float    v[6] = { 0 };
    dt_shape nine = DT_SHAPE(1), bad = DT_SHAPE(2, -3), huge = DT_SHAPE((int64_t)1 << 40, (int64_t)1 << 40);
    nine.ndim = 9;
    FAILS(dt_zeros(bad), DT_ERR_SHAPE, "dt_zeros", "-3", "");
    FAILS(dt_zeros(nine), DT_ERR_SHAPE, "dt_zeros", "9", "");
    FAILS(dt_empty(huge), DT_ERR_SHAPE, "dt_empty", "1099511627776", "");
    FAILS(dt_empty(DT_SHAPE((int64_t)1 << 62)), DT_ERR_SHAPE, "dt_empty", "", ""); /* numel fits, bytes do not */
    FAILS(dt_empty(DT_SHAPE(0, (int64_t)1 << 62, (int64_t)1 << 62)), DT_ERR_SHAPE, "dt_empty", "",
          ""); /* strides would not fit */
    FAILS(dt_from(v, bad), DT_ERR_SHAPE, "dt_from", "-3", "");
    FAILS(dt_ones(DT_SHAPE(2), .dtype = (dt_dtype)9), DT_ERR_DTYPE, "dt_ones", "9", "");
    FAILS(dt_full(1, bad), DT_ERR_SHAPE, "dt_full", "-3", "");
    FAILS(dt_uniform(0, 1, bad), DT_ERR_SHAPE, "dt_uniform", "-3", "");
    FAILS(dt_normal(0, 1, bad), DT_ERR_SHAPE, "dt_normal", "-3", "");
    FAILS(dt_uniform(0, 1, DT_SHAPE(3), .dtype = DT_I32), DT_ERR_DTYPE, "dt_uniform", "i32", "");
    FAILS(dt_uniform(2, 1, DT_SHAPE(3)), DT_ERR_ARG, "dt_uniform", "", "");
    FAILS(dt_normal(0, -1, DT_SHAPE(3)), DT_ERR_ARG, "dt_normal", "", "");
    FAILS(dt_randperm(-1), DT_ERR_SHAPE, "dt_randperm", "-1", "");
    FAILS(dt_arange(0, 5, 0), DT_ERR_ARG, "dt_arange", "", "");
    FAILS(dt_arange(0, 5, -1), DT_ERR_ARG, "dt_arange", "", "");
    FAILS(dt_arange(0, 1e300, 1), DT_ERR_ARG, "dt_arange", "", "");
    FAILS(dt_arange(0, (double)NAN, 1), DT_ERR_ARG, "dt_arange", "", "");
    NOTHING_LEFT(before);
}

UTEST(shapes, views)
{
    counts     before = count();
    dt_tensor *t = dt_ones(DT_SHAPE(2, 3, 4));
    FAILS(dt_reshape(t, DT_SHAPE(5, 5)), DT_ERR_SHAPE, "dt_reshape", "(2, 3, 4)", "(5, 5)");
    FAILS(dt_reshape(t, DT_SHAPE(-1, 5)), DT_ERR_SHAPE, "dt_reshape", "(2, 3, 4)", "");
    FAILS(dt_reshape(t, DT_SHAPE(-1, -1)), DT_ERR_SHAPE, "dt_reshape", "", "");
    FAILS(dt_reshape(dt_ones(DT_SHAPE(0)), DT_SHAPE(-1, 0)), DT_ERR_SHAPE, "dt_reshape", "", "");
    FAILS(dt_permute(t, DT_SHAPE(0, 1)), DT_ERR_ARG, "dt_permute", "(2, 3, 4)", "");
    FAILS(dt_permute(t, DT_SHAPE(0, 1, 1)), DT_ERR_ARG, "dt_permute", "", "");
    FAILS(dt_permute(t, DT_SHAPE(0, 1, 3)), DT_ERR_ARG, "dt_permute", "3", "");
    FAILS(dt_transpose(t, 0, 3), DT_ERR_ARG, "dt_transpose", "3", "3 dim");
    FAILS(dt_transpose(t, -4, 0), DT_ERR_ARG, "dt_transpose", "-4", "");
    FAILS(dt_narrow(t, 1, 2, 2), DT_ERR_ARG, "dt_narrow", "", "");
    FAILS(dt_narrow(t, 1, -4, 1), DT_ERR_ARG, "dt_narrow", "", "");
    FAILS(dt_narrow(t, 1, 0, -1), DT_ERR_ARG, "dt_narrow", "", "");
    FAILS(dt_narrow(t, 1, INT64_MAX, 1), DT_ERR_ARG, "dt_narrow", "", "");
    FAILS(dt_narrow(t, 1, 1, INT64_MAX), DT_ERR_ARG, "dt_narrow", "", "");
    FAILS(dt_narrow(t, 3, 0, 1), DT_ERR_ARG, "dt_narrow", "3", "");
    FAILS(dt_select(t, 0, 2), DT_ERR_ARG, "dt_select", "2", "");
    FAILS(dt_select(t, 5, 0), DT_ERR_ARG, "dt_select", "5", "");
    FAILS(dt_expand(t, DT_SHAPE(2, 3, 5)), DT_ERR_SHAPE, "dt_expand", "(2, 3, 4)", "(2, 3, 5)");
    FAILS(dt_expand(t, DT_SHAPE(3, 4)), DT_ERR_SHAPE, "dt_expand", "(2, 3, 4)", "");
    FAILS(dt_expand(t, DT_SHAPE(-1, 2, 3, 4)), DT_ERR_SHAPE, "dt_expand", "", "");
    FAILS(dt_squeeze(t, 3), DT_ERR_ARG, "dt_squeeze", "3", "");
    FAILS(dt_unsqueeze(t, 5), DT_ERR_ARG, "dt_unsqueeze", "5", "");
    FAILS(dt_unsqueeze(dt_ones(DT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1)), 0), DT_ERR_SHAPE, "dt_unsqueeze", "", "");
    NOTHING_LEFT(before);
}

UTEST(shapes, moving_values)
{
    counts     before = count();
    float      v[6] = { 0 };
    dt_tensor *t = dt_ones(DT_SHAPE(2, 3)), *e = dt_expand(dt_ones(DT_SHAPE(1, 3)), DT_SHAPE(2, 3));
    FAILS(dt_copy_out(t, v, 20), DT_ERR_ARG, "dt_copy_out", "20", "24");
    FAILS(dt_copy_in(t, v, 28), DT_ERR_ARG, "dt_copy_in", "28", "24");
    FAILS(dt_copy(t, dt_ones(DT_SHAPE(2, 2))), DT_ERR_SHAPE, "dt_copy", "(2, 3)", "(2, 2)");
    FAILS(dt_copy(dt_ones(DT_SHAPE(3)), t), DT_ERR_SHAPE, "dt_copy", "(2, 3)", "(3)");
    FAILS(dt_add_to(t, dt_ones(DT_SHAPE(4)), 1), DT_ERR_SHAPE, "dt_add_to", "(2, 3)", "(4)");
    FAILS(dt_fill(e, 1), DT_ERR_ARG, "dt_fill", "", ""); /* one element under many places */
    FAILS(dt_item(t), DT_ERR_SHAPE, "dt_item", "(2, 3)", "");
    FAILS(dt_cast(t, (dt_dtype)6), DT_ERR_DTYPE, "dt_cast", "6", "");
    NOTHING_LEFT(before);
}

UTEST(shapes, elementwise_and_reductions)
{
    counts     before = count();
    dt_tensor *a = dt_ones(DT_SHAPE(2, 3)), *b = dt_ones(DT_SHAPE(4)), *i = dt_ones(DT_SHAPE(2, 3), .dtype = DT_I32);
    dt_tensor *none = dt_ones(DT_SHAPE(0, 3));
    FAILS(dt_add(a, b), DT_ERR_SHAPE, "dt_add", "(2, 3)", "(4)");
    FAILS(dt_mul(a, b), DT_ERR_SHAPE, "dt_mul", "(2, 3)", "(4)");
    FAILS(dt_pow(a, b), DT_ERR_SHAPE, "dt_pow", "(2, 3)", "(4)");
    FAILS(dt_eq(a, b), DT_ERR_SHAPE, "dt_eq", "(2, 3)", "(4)");
    FAILS(dt_maximum(a, b), DT_ERR_SHAPE, "dt_maximum", "(2, 3)", "(4)");
    FAILS(dt_where(dt_ones(DT_SHAPE(4), .dtype = DT_U8), a, a), DT_ERR_SHAPE, "dt_where", "(4)", "(2, 3)");
    FAILS(dt_where(a, a, a), DT_ERR_DTYPE, "dt_where", "f32", "");
    FAILS(dt_exp(i), DT_ERR_DTYPE, "dt_exp", "i32", "");
    FAILS(dt_softmax(i, 0), DT_ERR_DTYPE, "dt_softmax", "i32", "");
    FAILS(dt_softmax(a, 2), DT_ERR_ARG, "dt_softmax", "2", "");
    FAILS(dt_log_softmax(a, -3), DT_ERR_ARG, "dt_log_softmax", "-3", "");
    FAILS(dt_sum(a, .dims = DT_DIM(2)), DT_ERR_ARG, "dt_sum", "2", "");
    FAILS(dt_sum(a, .dims = DT_DIM(-3)), DT_ERR_ARG, "dt_sum", "-3", "");
    FAILS(dt_mean(i), DT_ERR_DTYPE, "dt_mean", "i32", "");
    FAILS(dt_var(i), DT_ERR_DTYPE, "dt_var", "i32", "");
    FAILS(dt_amax(none), DT_ERR_SHAPE, "dt_amax", "(0, 3)", "");
    FAILS(dt_amin(none, .dims = DT_DIM(0)), DT_ERR_SHAPE, "dt_amin", "(0, 3)", "");
    FAILS(dt_argmax(none), DT_ERR_SHAPE, "dt_argmax", "(0, 3)", "");
    FAILS(dt_argmax(dt_ones(DT_SHAPE(2, 3, 4)), .dims = DT_DIM(0) | DT_DIM(1)), DT_ERR_ARG, "dt_argmax", "", "");
    FAILS(dt_op_dropout(a, 1.5), DT_ERR_ARG, "dt_op_dropout", "1.5", "");
    FAILS(dt_op_dropout(a, -0.1), DT_ERR_ARG, "dt_op_dropout", "-0.1", "");
    FAILS(dt_op_dropout(a, (double)NAN), DT_ERR_ARG, "dt_op_dropout", "", "");
    FAILS(dt_softplus(a, 0), DT_ERR_ARG, "dt_softplus", "", "");
    NOTHING_LEFT(before);
}

UTEST(shapes, matmul_conv_pool_norm)
{
    counts     before = count();
    dt_tensor *a = dt_ones(DT_SHAPE(2, 3)), *b = dt_ones(DT_SHAPE(4, 5)), *x = dt_ones(DT_SHAPE(1, 3, 6, 6));
    dt_tensor *w = dt_ones(DT_SHAPE(4, 3, 3, 3)), *c3 = dt_ones(DT_SHAPE(3)), *c4 = dt_ones(DT_SHAPE(4));
    dt_tensor *i = dt_ones(DT_SHAPE(3, 4), .dtype = DT_I64);
    FAILS(dt_matmul(a, b), DT_ERR_SHAPE, "dt_matmul", "(2, 3)", "(4, 5)");
    FAILS(dt_matmul(dt_ones(DT_SCALAR), b), DT_ERR_SHAPE, "dt_matmul", "", "");
    FAILS(dt_matmul(dt_ones(DT_SHAPE(2, 2, 3)), dt_ones(DT_SHAPE(3, 3, 4))), DT_ERR_SHAPE, "dt_matmul", "(2, 2, 3)",
          "(3, 3, 4)");
    FAILS(dt_matmul(a, i), DT_ERR_DTYPE, "dt_matmul", "i64", "");
    FAILS(dt_op_linear(a, b, NULL), DT_ERR_SHAPE, "dt_op_linear", "(2, 3)", "(4, 5)");
    FAILS(dt_op_linear(a, dt_ones(DT_SHAPE(4, 3)), c3), DT_ERR_SHAPE, "dt_op_linear", "(3)", "");
    FAILS(dt_op_linear(a, dt_ones(DT_SHAPE(4, 3)), NULL, .act = (dt_act)9), DT_ERR_ARG, "dt_op_linear", "9", "");
    FAILS(dt_op_conv2d(a, w, NULL), DT_ERR_SHAPE, "dt_op_conv2d", "(2, 3)", "");
    FAILS(dt_op_conv2d(x, dt_ones(DT_SHAPE(4, 2, 3, 3)), NULL), DT_ERR_SHAPE, "dt_op_conv2d", "(1, 3, 6, 6)",
          "(4, 2, 3, 3)");
    FAILS(dt_op_conv2d(x, w, c3), DT_ERR_SHAPE, "dt_op_conv2d", "(3)", "");
    FAILS(dt_op_conv2d(x, w, c4, .groups = 2), DT_ERR_SHAPE, "dt_op_conv2d", "2", "");
    FAILS(dt_op_conv2d(x, w, c4, .groups = -1), DT_ERR_SHAPE, "dt_op_conv2d", "-1", "");
    FAILS(dt_op_conv2d(x, w, c4, .stride = -1), DT_ERR_ARG, "dt_op_conv2d", "-1", "");
    FAILS(dt_op_conv2d(x, w, c4, .pad = -1), DT_ERR_ARG, "dt_op_conv2d", "-1", "");
    FAILS(dt_op_conv2d(x, w, c4, .dilation = 5), DT_ERR_SHAPE, "dt_op_conv2d", "(1, 3, 6, 6)",
          ""); /* larger than the image */
    FAILS(dt_op_conv2d(x, w, c4, .pad = 0x7fffffff), DT_ERR_SHAPE, "dt_op_conv2d", "", "");
    FAILS(dt_maxpool2d(x), DT_ERR_ARG, "dt_maxpool2d", "kernel", "");
    FAILS(dt_maxpool2d(a, .kernel = 2), DT_ERR_SHAPE, "dt_maxpool2d", "(2, 3)", "");
    FAILS(dt_maxpool2d(x, .kernel = 7), DT_ERR_ARG, "dt_maxpool2d", "(1, 3, 6, 6)", "7");
    FAILS(dt_maxpool2d(x, .kernel = 2, .pad = 2), DT_ERR_ARG, "dt_maxpool2d", "", "");
    FAILS(dt_avgpool2d(x, .kernel = 2, .stride = -1), DT_ERR_ARG, "dt_avgpool2d", "-1", "");
    FAILS(dt_adaptive_avgpool2d(x, 0, 1), DT_ERR_ARG, "dt_adaptive_avgpool2d", "0", "");
    FAILS(dt_op_batch_norm(x, c4, NULL, c3, c3), DT_ERR_SHAPE, "dt_op_batch_norm", "(4)", "");
    FAILS(dt_op_batch_norm(x, NULL, NULL, NULL, NULL, .eval = true), DT_ERR_ARG, "dt_op_batch_norm", "",
          ""); /* evaluation without statistics */
    FAILS(dt_op_batch_norm(dt_ones(DT_SHAPE(1, 3)), NULL, NULL, c3, c3), DT_ERR_SHAPE,
          "dt_op_batch_norm", "(1, 3)", "");
    FAILS(dt_op_batch_norm(x, NULL, NULL, c3, c3, .add = a), DT_ERR_SHAPE, "dt_op_batch_norm", "(2, 3)", "");
    FAILS(dt_op_batch_norm(x, NULL, NULL, c3, c3, .act = DT_ACT_TANH), DT_ERR_ARG, "dt_op_batch_norm", "", "");
    FAILS(dt_op_layer_norm(a, c4, NULL), DT_ERR_SHAPE, "dt_op_layer_norm", "(4)", "(2, 3)");
    FAILS(dt_op_layer_norm(a, NULL, NULL, .normalized_dims = 3), DT_ERR_ARG, "dt_op_layer_norm", "3", "");
    FAILS(dt_op_rms_norm(a, c4), DT_ERR_SHAPE, "dt_op_rms_norm", "(4)", "(2, 3)");
    NOTHING_LEFT(before);
}

UTEST(shapes, indices_losses_joins_attention)
{
    counts     before = count();
    int64_t    ten[2] = { 1, 10 }, minus[2] = { -1, 0 }, pads[3] = { 1, 1, 1 }, cut[2] = { -9, 0 };
    float      v[2];
    dt_tensor *w = dt_ones(DT_SHAPE(4, 3)), *i = dt_from(ten, DT_SHAPE(2), .dtype = DT_I64),
              *a = dt_ones(DT_SHAPE(2, 3));
    dt_tensor *m = dt_from(minus, DT_SHAPE(2), .dtype = DT_I64), *pair[2] = { a, w }, *mixed[2] = { a, i }, *out[1];
    FAILS(dt_op_embedding(i, w), DT_ERR_ARG, "embedding", "10", "4");
    FAILS(dt_op_embedding(m, w), DT_ERR_ARG, "embedding", "-1", "");
    FAILS(dt_op_embedding(a, w), DT_ERR_DTYPE, "dt_op_embedding", "f32", "");
    FAILS(dt_op_embedding(i, dt_ones(DT_SHAPE(4))), DT_ERR_SHAPE, "dt_op_embedding", "(4)", "");
    FAILS(dt_gather(dt_ones(DT_SHAPE(4)), 0, i), DT_ERR_ARG, "gather", "10", "4");
    FAILS(dt_gather(w, 0, i), DT_ERR_SHAPE, "dt_gather", "(4, 3)", "(2)");
    FAILS(dt_gather(dt_ones(DT_SHAPE(4)), 1, i), DT_ERR_ARG, "dt_gather", "1", "");
    FAILS(dt_gather(w, 0, a), DT_ERR_DTYPE, "dt_gather", "f32", "");
    FAILS(dt_gather(a, 0, dt_zeros(DT_SHAPE(1, 4), .dtype = DT_I64)), DT_ERR_SHAPE, "dt_gather", "(2, 3)", "(1, 4)");
    FAILS(dt_cat(pair, 0, 0), DT_ERR_ARG, "dt_cat", "one tensor", "");
    FAILS(dt_cat(pair, 2, 1), DT_ERR_SHAPE, "dt_cat", "(2, 3)", "(4, 3)");
    FAILS(dt_cat(pair, 2, 2), DT_ERR_ARG, "dt_cat", "2", "");
    FAILS(dt_stack(pair, 2, 0), DT_ERR_SHAPE, "dt_stack", "(2, 3)", "(4, 3)");
    FAILS(dt_cat(mixed, 2, 0), DT_ERR_SHAPE, "dt_cat", "(2, 3)", "(2)");
    FAILS(dt_split(w, 1, 0, out, 1), DT_ERR_ARG, "dt_split", "4", "1"); /* more pieces than room */
    FAILS(dt_split(w, 0, 0, out, 1), DT_ERR_ARG, "dt_split", "0", "");
    FAILS(dt_split(w, 1, 2, out, 1), DT_ERR_ARG, "dt_split", "2", "");
    FAILS(dt_pad(a, pads, 3, 0), DT_ERR_ARG, "dt_pad", "3", "");
    FAILS(dt_pad(dt_ones(DT_SHAPE(3)), pads, 4, 0), DT_ERR_ARG, "dt_pad", "4", "");
    FAILS(dt_pad(a, cut, 2, 0), DT_ERR_ARG, "dt_pad", "-9", "");
    FAILS(dt_cross_entropy(a, i), DT_ERR_ARG, "cross_entropy", "10", "3");
    FAILS(dt_cross_entropy(w, i), DT_ERR_SHAPE, "dt_cross_entropy", "(4, 3)", "(2)");
    FAILS(dt_cross_entropy(a, dt_zeros(DT_SHAPE(2, 3), .dtype = DT_I64)), DT_ERR_SHAPE, "dt_cross_entropy", "(2, 3)",
          "");
    FAILS(dt_cross_entropy(a, dt_ones(DT_SHAPE(2))), DT_ERR_SHAPE, "dt_cross_entropy", "probabilities", "(2)");
    FAILS(dt_cross_entropy(a, dt_zeros(DT_SHAPE(2), .dtype = DT_I64), .weight = dt_ones(DT_SHAPE(4))), DT_ERR_SHAPE,
          "dt_cross_entropy", "(4)", "");
    FAILS(dt_cross_entropy(a, dt_zeros(DT_SHAPE(2), .dtype = DT_I64), .label_smoothing = 2), DT_ERR_ARG,
          "dt_cross_entropy", "2", "");
    FAILS(dt_cross_entropy(a, dt_zeros(DT_SHAPE(2), .dtype = DT_I64), .reduction = (dt_reduction)5), DT_ERR_ARG,
          "dt_cross_entropy", "5", "");
    FAILS(dt_nll_loss(a, m), DT_ERR_ARG, "nll", "-1", "");
    FAILS(dt_mse_loss(a, w), DT_ERR_SHAPE, "dt_mse_loss", "(2, 3)", "(4, 3)");
    FAILS(dt_l1_loss(a, i), DT_ERR_SHAPE, "dt_l1_loss", "(2, 3)", "(2)");
    FAILS(dt_smooth_l1_loss(a, a, .beta = -1), DT_ERR_ARG, "dt_smooth_l1_loss", "-1", "");
    FAILS(dt_bce_with_logits(a, w), DT_ERR_SHAPE, "dt_bce_with_logits", "(2, 3)", "(4, 3)");
    FAILS(dt_attention(a, a, a), DT_ERR_SHAPE, "dt_attention", "(2, 3)", "");
    FAILS(dt_attention(dt_ones(DT_SHAPE(1, 1, 2, 3)), dt_ones(DT_SHAPE(1, 1, 2, 4)), dt_ones(DT_SHAPE(1, 1, 2, 4))),
          DT_ERR_SHAPE, "dt_attention", "(1, 1, 2, 3)", "(1, 1, 2, 4)");
    FAILS(dt_attention(dt_ones(DT_SHAPE(1, 1, 2, 3)), dt_ones(DT_SHAPE(1, 1, 4, 3)), dt_ones(DT_SHAPE(1, 1, 5, 3))),
          DT_ERR_SHAPE, "dt_attention", "(1, 1, 4, 3)", "(1, 1, 5, 3)");
    (void)v;
    NOTHING_LEFT(before);
}

UTEST(shapes, devices)
{
    fake_device *f = fake_device_new(0);
    counts       before = count();
    ASSERT_TRUE(f != NULL);
    dt_tensor *a = dt_ones(DT_SHAPE(2, 2)), *b = dt_ones(DT_SHAPE(2, 2), .device = f->dev);
    FAILS(dt_add(a, b), DT_ERR_DEVICE, "dt_add", "cpu", "fake");
    FAILS(dt_matmul(a, b), DT_ERR_DEVICE, "dt_matmul", "cpu", "fake");
    FAILS(dt_where(dt_eq(a, a), b, b), DT_ERR_DEVICE, "dt_where", "cpu", "fake");
    FAILS(dt_mse_loss(a, b), DT_ERR_DEVICE, "dt_mse_loss", "cpu", "fake");
    FAILS(dt_op_linear(a, b, NULL), DT_ERR_DEVICE, "dt_op_linear", "cpu", "fake");
    FAILS(dt_add_to(a, b, 1), DT_ERR_DEVICE, "dt_add_to", "cpu", "fake");
    FAILS((int)dt_device_free(f->dev), DT_ERR_STATE, "dt_device_free", "", "");
    FAILS((int)dt_device_free(dt_cpu()), DT_ERR_ARG, "dt_device_free", "", "");
    NOTHING_LEFT(before);
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

/* ==================================================================================================== >>autograd */
UTEST(autograd, backward_where_it_cannot_run)
{
    counts     before = count();
    float      g2[2] = { 1, 1 };
    dt_tensor *p = dt_set_requires_grad(dt_ones(DT_SHAPE(3))), *x = dt_ones(DT_SHAPE(3));
    FAILS((int)dt_backward(dt_sum(x)), DT_ERR_GRAD, "dt_backward", "parameter", "");
    FAILS((int)dt_backward(dt_mul(p, p)), DT_ERR_GRAD, "dt_backward", "(3)", "");
    FAILS((int)dt_backward(dt_mul(p, p), .grad = dt_from(g2, DT_SHAPE(2))), DT_ERR_SHAPE, "dt_backward", "(2)", "(3)");
    dt_tensor *y = dt_sum(dt_mul(p, p));
    EXPECT_EQ(DT_OK, dt_backward(y));
    FAILS((int)dt_backward(y), DT_ERR_GRAD, "dt_backward", "retain", "");
    EXPECT_NEAR(6.0, dt_item(dt_sum(dt_grad(p))), 0.0); /* the refused one added nothing */
    y = dt_sum(dt_mul(p, p));
    EXPECT_EQ(DT_OK, dt_backward(y, .retain_graph = true));
    EXPECT_EQ(DT_OK, dt_backward(y));
    EXPECT_NEAR(18.0, dt_item(dt_sum(dt_grad(p))), 0.0);
    dt_no_grad_begin();
    y = dt_sum(dt_mul(p, p));
    dt_no_grad_end();
    FAILS((int)dt_backward(y), DT_ERR_GRAD, "dt_backward", "no_grad", "");
    FAILS((int)dt_backward(dt_sum(dt_detach(p))), DT_ERR_GRAD, "dt_backward", "", "");
    FAILS(dt_set_requires_grad(dt_mul(p, p)), DT_ERR_GRAD, "dt_set_requires_grad", "(3)", "");
    FAILS(dt_set_requires_grad(dt_ones(DT_SHAPE(2), .dtype = DT_I64)), DT_ERR_DTYPE, "dt_set_requires_grad", "i64", "");
    dt_end();
    dt_free(p);
    NOTHING_LEFT(before);
}

UTEST(autograd, in_place_changes_of_what_backward_needs)
{
    counts     before = count();
    dt_tensor *p = dt_set_requires_grad(dt_ones(DT_SHAPE(3))), *x = dt_ones(DT_SHAPE(3));
    dt_tensor *y = dt_sum(dt_mul(p, x));
    EXPECT_EQ(DT_OK, dt_fill(x, 5)); /* backward needs the old x */
    FAILS((int)dt_backward(y), DT_ERR_GRAD, "dt_backward", "changed in place", "(3)");
    y = dt_sum(dt_add(p, x)); /* backward of a sum does not */
    EXPECT_EQ(DT_OK, dt_fill(x, 6));
    EXPECT_EQ(DT_OK, dt_backward(y));
    dt_tensor *z = dt_exp(p);
    FAILS((int)dt_fill(z, 1), DT_ERR_GRAD, "dt_fill", "exp", ""); /* a value of the tape itself */
    y = dt_sum(dt_mul(p, p));
    dt_no_grad_begin();
    EXPECT_EQ(DT_OK, dt_add_to(p, x, -0.1)); /* an update between forward and backward */
    dt_no_grad_end();
    FAILS((int)dt_backward(y), DT_ERR_GRAD, "dt_backward", "changed in place", "");
    y = dt_sum(dt_mul(p, dt_narrow(x, 0, 0, 3))); /* through a view */
    EXPECT_EQ(DT_OK, dt_copy(dt_narrow(x, 0, 1, 1), dt_ones(DT_SHAPE(1))));
    FAILS((int)dt_backward(y), DT_ERR_GRAD, "dt_backward", "changed in place", "");
    dt_end();
    dt_free(p);
    NOTHING_LEFT(before);
}

/* ==================================================================================================== >>state */
UTEST(state, scopes_and_released_tensors)
{
    counts before = count();
    dt_no_grad_end();
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "dt_no_grad_end"));
    dt_error_clear();
    EXPECT_TRUE(dt_is_grad_enabled());
    dt_tensor *p = dt_set_requires_grad(dt_ones(DT_SHAPE(3))), *y = dt_keep(dt_sum(dt_mul(p, p)));
    dt_end();
    FAILS((int)dt_backward(y), DT_ERR_GRAD, "dt_backward", "dt_end", ""); /* kept, but its tape has ended */
    dt_free(y);
    dt_free(p);
    dt_tensor *t = dt_ones(DT_SHAPE(3));
    dt_end();
    FAILS(dt_exp(t), DT_ERR_STATE, "dt_exp", "dt_keep", ""); /* the handle's memory is not handed out again yet */
    t = dt_ones(DT_SHAPE(3));
    dt_free(t);
    FAILS(dt_exp(t), DT_ERR_STATE, "dt_exp", "", "");
    NOTHING_LEFT(before);
}

UTEST(state, the_first_message_is_kept_and_others_pass)
{
    counts     before = count();
    dt_tensor *a = dt_ones(DT_SHAPE(2, 3)), *b = dt_ones(DT_SHAPE(4)), *bad = dt_add(a, b);
    char       first[512];
    snprintf(first, sizeof first, "%s", dt_error());
    EXPECT_TRUE(dt_matmul(bad, b) == NULL);
    EXPECT_TRUE(dt_relu(a) == NULL);
    EXPECT_TRUE(dt_backward(bad) < 0);
    EXPECT_TRUE(isnan(dt_item(a)));
    EXPECT_STREQ(first, dt_error());
    dt_error_clear();
    EXPECT_NEAR(6.0, dt_item(dt_sum(a)), 0.0);
    NOTHING_LEFT(before);
}

static void on_log(void *user, int level, const char *text)
{
    if (level == DT_LOG_ERROR && strstr(text, "dt_add")) ++*(int *)user;
}
UTEST(state, the_log_hears_errors)
{
    int seen = 0;
    dt_set_log(on_log, &seen);
    EXPECT_TRUE(dt_add(dt_ones(DT_SHAPE(2)), dt_ones(DT_SHAPE(3))) == NULL);
    dt_set_log(NULL, NULL);
    dt_error_clear();
    EXPECT_EQ(1, seen);
    dt_end();
}

UTEST(state, blocks)
{
    counts     before = count();
    dt_tensor *p[2] = { dt_set_requires_grad(dt_ones(DT_SHAPE(3))), dt_set_requires_grad(dt_ones(DT_SHAPE(2), .dtype = DT_F16)) },
              *x = dt_ones(DT_SHAPE(2));
    dt_block b;
    memset(&b, 0, sizeof b);
    FAILS((int)dt_pack(&b, p, 2), DT_ERR_DTYPE, "dt_pack", "f32", "f16");
    FAILS((int)dt_pack(&b, &x, 1), DT_ERR_ARG, "dt_pack", "", ""); /* not a parameter */
    FAILS((int)dt_pack(&b, p, 0), DT_ERR_ARG, "dt_pack", "one parameter", "");
    dt_end();
    dt_free(p[0]);
    dt_free(p[1]);
    NOTHING_LEFT(before);
}

/* ==================================================================================================== >>memory
   A whole train step with the n-th allocation failing, for every n. */
typedef struct budget {
    int64_t left; /* allocations until one fails; < 0: none does */
    int64_t calls, live;
    size_t  live_nbytes;
    int     failed;
} budget;

static void *budget_alloc(void *user, size_t nbytes)
{
    budget *b = (budget *)user;
    int64_t left = __atomic_fetch_sub(&b->left, 1, __ATOMIC_RELAXED);
    if (left == 0) {
        b->failed = 1;
        return NULL;
    }
    void *p = NULL;
    if (posix_memalign(&p, 64, nbytes ? nbytes : 1)) return NULL;
    memset(p, 0xff, nbytes); /* what is not written is NaN */
    __atomic_add_fetch(&b->calls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&b->live, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&b->live_nbytes, nbytes, __ATOMIC_RELAXED);
    return p;
}
static void budget_free(void *user, void *ptr, size_t nbytes)
{
    budget *b = (budget *)user;
    __atomic_sub_fetch(&b->live, 1, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&b->live_nbytes, nbytes, __ATOMIC_RELAXED);
    free(ptr);
}

enum { STEP_PARAMS = 9 };
static dt_tensor *step_loss(dt_tensor **p, dt_tensor *mean, dt_tensor *var, dt_tensor *x, dt_tensor *y)
{
    x = dt_op_conv2d(x, p[0], p[1], .pad = 1);
    x = dt_op_batch_norm(x, p[2], p[3], mean, var, .act = DT_ACT_RELU);
    x = dt_maxpool2d(x, .kernel = 2);
    x = dt_add(x, dt_relu(dt_op_conv2d(x, p[4], NULL, .pad = 1, .groups = 2)));
    x = dt_avgpool2d(x, .kernel = 2);
    x = dt_flatten(x);
    x = dt_op_dropout(dt_op_linear(x, p[5], p[6], .act = DT_ACT_RELU), 0.2);
    x = dt_op_layer_norm(x, NULL, NULL);
    dt_tensor *q = dt_reshape(x, DT_SHAPE(1, 2, 2, -1)), *a = dt_attention(q, q, q, .causal = true);
    x = dt_mul(dt_reshape(a, dt_shape_of(x)), dt_softmax(dt_gelu(x), 1));
    dt_tensor *both[2] = { x, dt_op_embedding(y, p[7]) };
    x = dt_op_linear(dt_cat(both, 2, 1), p[8], NULL);
    return dt_cross_entropy(x, y, .label_smoothing = 0.1);
}

/* Two steps, so that caches are used too. Returns the loss of the second; NaN on error. */
static double whole_step(void)
{
    int64_t  label[4] = { 0, 1, 2, 1 };
    dt_shape s[STEP_PARAMS] = { DT_SHAPE(4, 3, 3, 3), DT_SHAPE(4), DT_SHAPE(4),    DT_SHAPE(4),    DT_SHAPE(4, 2, 3, 3),
                                DT_SHAPE(8, 16),      DT_SHAPE(8), DT_SHAPE(3, 5), DT_SHAPE(3, 13) };
    dt_tensor *p[STEP_PARAMS], *mean, *var, *x, *y;
    dt_block   block;
    double     loss = (double)NAN;
    memset(&block, 0, sizeof block);
    dt_manual_seed(1);
    for (int i = 0; i < STEP_PARAMS; i++) p[i] = dt_set_requires_grad(dt_uniform(-0.5, 0.5, s[i]));
    mean = dt_keep(dt_zeros(DT_SHAPE(4)));
    var = dt_keep(dt_ones(DT_SHAPE(4)));
    x = dt_keep(dt_normal(0, 1, DT_SHAPE(4, 3, 8, 8)));
    y = dt_keep(dt_from(label, DT_SHAPE(4), .dtype = DT_I64));
    dt_pack(&block, p, STEP_PARAMS);
    for (int step = 0; step < 2; step++) {
        dt_tensor *l = step_loss(p, mean, var, x, y);
        dt_backward(l);
        dt_no_grad_begin();
        if (!dt_error()) dt_add_to(block.value, block.grad, -0.1);
        dt_no_grad_end();
        dt_block_zero_grad(&block);
        loss = dt_item(l);
        dt_end();
    }
    for (int i = 0; i < STEP_PARAMS; i++) dt_free(p[i]);
    dt_block_free(&block);
    dt_free(mean);
    dt_free(var);
    dt_free(x);
    dt_free(y);
    dt_end();
    return dt_error() ? (double)NAN : loss;
}

UTEST(memory, every_failing_allocation_is_an_error_and_leaks_nothing)
{
    budget       b = { -1, 0, 0, 0, 0 };
    dt_allocator a = { budget_alloc, budget_free, &b };
    dt_end();
    dt_empty_cache();
    dt_memory_stats before = dt_stats();
    ASSERT_EQ_MSG(DT_OK, dt_set_allocator(&a), dt_error() ? dt_error() : "");
    double want = whole_step();
    EXPECT_TRUE_MSG(!isnan(want), dt_error() ? dt_error() : "no error");
    dt_error_clear();
    dt_empty_cache();
    int64_t total = b.calls, stays = b.live;
    EXPECT_EQ(0, (int)stays);
    int64_t step = dt_test_quick() && total > 200 ? total / 100 : 1;
    for (int64_t n = 0; n < total; n += step) {
        char text[64];
        b.left = n;
        b.failed = 0;
        double got = whole_step();
        snprintf(text, sizeof text, "allocation %lld of %lld fails", (long long)n, (long long)total);
        b.left = -1;
        if (dt_error()) {
            EXPECT_EQ_MSG((int)DT_ERR_MEMORY, (int)dt_error_code(), dt_error());
            EXPECT_TRUE_MSG(strstr(dt_error(), "memory") != NULL, dt_error());
        } else { /* dt may do without it, but then the result is right */
            EXPECT_NEAR_MSG(want, got, 0.0, text);
        }
        EXPECT_TRUE_MSG(b.failed, text);
        dt_error_clear();
        dt_empty_cache();
        EXPECT_EQ_MSG(stays, b.live, text);
        EXPECT_EQ_MSG(before.live_tensors, dt_stats().live_tensors, text);
        if (*utest_result) break; /* the first is enough */
    }
    EXPECT_EQ(before.host_bytes, dt_stats().host_bytes);
    EXPECT_NEAR(want, whole_step(), 0.0); /* and all is well afterwards */
    dt_empty_cache();
    EXPECT_EQ(DT_OK, dt_set_allocator(NULL));
    printf("%lld allocations failed in turn\n", (long long)total);
}

/* The same for the memory of a device, and for its kernels. */
UTEST(memory, every_failing_device_allocation_and_kernel_is_an_error)
{
    fake_device *f = fake_device_new(0);
    ASSERT_TRUE(f != NULL);
    dt_set_default_device(f->dev);
    double want = whole_step();
    dt_empty_cache();
    int64_t allocs = f->allocs, kernels = 0;
    for (int k = 0; k < DT_K_COUNT; k++) kernels += f->kernels[k];
    EXPECT_TRUE_MSG(!isnan(want), dt_error() ? dt_error() : "");
    EXPECT_EQ(0, (int)fake_live_blocks(f));
    int64_t step = dt_test_quick() ? 9 : 1;
    for (int64_t n = 1; n <= allocs + kernels; n += step) {
        char text[64];
        if (n <= allocs) f->fail_alloc = n;
        else f->fail_kernel = n - allocs;
        double got = whole_step();
        snprintf(text, sizeof text, "%s %lld fails", n <= allocs ? "allocation" : "kernel",
                 (long long)(n <= allocs ? n : n - allocs));
        EXPECT_TRUE_MSG(dt_error() ? dt_error_code() == (n <= allocs ? DT_ERR_MEMORY : DT_ERR_DEVICE) : got == want,
                        text);
        if (n > allocs) EXPECT_TRUE_MSG(dt_error() != NULL, text);
        dt_error_clear();
        f->fail_alloc = f->fail_kernel = 0;
        dt_synchronize(f->dev);
        dt_error_clear();
        dt_empty_cache();
        EXPECT_EQ_MSG(0, (int)fake_live_blocks(f), text);
        if (*utest_result) break;
    }
    dt_set_default_device(NULL);
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

UTEST(memory, the_allocator_is_not_changed_while_something_lives)
{
    budget       b = { -1, 0, 0, 0, 0 };
    dt_allocator a = { budget_alloc, budget_free, &b };
    dt_tensor   *t = dt_keep(dt_ones(DT_SHAPE(3)));
    FAILS((int)dt_set_allocator(&a), DT_ERR_STATE, "dt_set_allocator", "", "");
    dt_free(t);
    dt_end();
    a.free = NULL;
    FAILS((int)dt_set_allocator(&a), DT_ERR_ARG, "dt_set_allocator", "", "");
}

UTEST(null, random_numbers)
{
    uint32_t words[4];
    (void)utest_result; /* nothing crashes */
    dt_rng_seed(NULL, 1);
    dt_rng_u32(NULL);
    dt_rng_u64(NULL);
    dt_rng_uniform(NULL, NULL, 3, 0, 1);
    dt_rng_normal(NULL, NULL, 3, 0, 1);
    dt_rng_randperm(NULL, NULL, 3);
    dt_philox(0, 0, words);
    dt_philox(0, 0, NULL);
    dt_error_clear(); /* whether the generator calls leave a message is theirs */
}
