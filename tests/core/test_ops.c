/* dt_ops.h and ops of the program: what conformance.h's table cannot show. Errors that name value and position, ties, NaN, duplicates,
   an op with an own backward, the check of gradients, autocast. run: portable, ubsan */
#include "dt_test.h"

#include <math.h>
#include <string.h>

#include "dt_ops.h"

UTEST_MAIN()

static bool fails(dt_status code, const char *words)
{
    bool ok = dt_error_code() == code && dt_error() && strstr(dt_error(), words);
    if (!ok) printf("expected %d with '%s', got: %s\n", (int)code, words, dt_error() ? dt_error() : "no error");
    dt_error_clear();
    return ok;
}
static dt_tensor *vec(const float *v, int64_t n) { return dt_from(v, DT_SHAPE(n)); }
static dt_tensor *ints(const int64_t *v, int64_t n) { return dt_from(v, DT_SHAPE(n), .dtype = DT_I64); }
static bool is(dt_tensor *t, const float *want, int n)
{
    float v[64];
    t = dt_cast(t, DT_F32);
    bool same = t && dt_numel(t) == n && dt_copy_out(t, v, (size_t)n * sizeof *v) == DT_OK;
    for (int i = 0; same && i < n; i++) same = v[i] == want[i] || (v[i] != v[i] && want[i] != want[i]);
    if (!same) printf("%s\n", dt_error() ? dt_error() : "other values");
    return same;
}
#define IS(t, ...) is(t, (const float[]){ __VA_ARGS__ }, (int)(sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)))

/* ------------------------------------------------------------------------------------------------ values */
UTEST(ops, sort_puts_nan_last_and_keeps_the_order_of_equals)
{
    const float x[7] = { 2, NAN, -0.0f, 0, INFINITY, -INFINITY, 2 };
    dt_tensor  *at, *y = dt_sort(vec(x, 7), 0, .index = &at);
    EXPECT_TRUE(IS(y, -INFINITY, 0, 0, 2, 2, INFINITY, NAN));
    EXPECT_TRUE(IS(at, 5, 2, 3, 0, 6, 4, 1));
    EXPECT_TRUE(IS(dt_argsort(vec(x, 7), 0, .descending = true), 1, 4, 0, 6, 2, 3, 5));
    EXPECT_TRUE(IS(dt_topk(vec(x, 7), 2, 0), NAN, INFINITY));
    EXPECT_EQ(0, (int)dt_numel(dt_topk(vec(x, 7), 0, 0)));
    dt_end();
    EXPECT_EQ(0, dt_check("sort"));
}
UTEST(ops, sort_of_64_bit_integers_is_exact)
{
    const int64_t x[5] = { INT64_MAX, INT64_MIN, INT64_MAX - 1, 0, -1 };
    EXPECT_TRUE(IS(dt_argsort(ints(x, 5), 0), 1, 4, 3, 2, 0));
    EXPECT_TRUE(IS(dt_argsort(ints(x, 5), 0, .descending = true), 0, 2, 3, 4, 1));
    dt_end();
    EXPECT_EQ(0, dt_check("sort"));
}
UTEST(ops, scatter_of_one_place_twice_keeps_the_last_and_adds_all)
{
    const int64_t at[4] = { 1, 1, 0, 1 }, whole[3] = { INT64_C(1) << 60, 1, INT64_C(1) << 60 }, two[3] = { 0, 1, 0 };
    const float   src[4] = { 1, 2, 3, 4 };
    EXPECT_TRUE(IS(dt_scatter(dt_zeros(DT_SHAPE(3)), 0, ints(at, 4), vec(src, 4)), 3, 4, 0));
    EXPECT_TRUE(IS(dt_scatter_add(dt_zeros(DT_SHAPE(3)), 0, ints(at, 4), vec(src, 4)), 3, 7, 0));
    dt_tensor *sum = dt_scatter_add(dt_zeros(DT_SHAPE(2), .dtype = DT_I64), 0, ints(two, 3), ints(whole, 3));
    int64_t    v[2] = { 0, 0 };
    EXPECT_EQ(DT_OK, dt_copy_out(sum, v, sizeof v));
    EXPECT_TRUE(v[0] == INT64_C(1) << 61 && v[1] == 1);
    dt_end();
}
UTEST(ops, counts_and_one_hot)
{
    const int64_t at[5] = { 0, 3, 3, 1, 3 };
    EXPECT_TRUE(IS(dt_bincount(ints(at, 5)), 1, 1, 0, 3));
    EXPECT_TRUE(IS(dt_bincount(ints(at, 5), .minlength = 6), 1, 1, 0, 3, 0, 0));
    EXPECT_TRUE(IS(dt_one_hot(dt_narrow(ints(at, 5), 0, 2, 2), -1), 0, 0, 0, 1, 0, 1, 0, 0));
    EXPECT_EQ((int)DT_I64, (int)dt_dtype_of(dt_one_hot(ints(at, 5), 4)));
    dt_end();
    EXPECT_EQ(0, dt_check("counts"));
}
UTEST(ops, reductions_of_what_is_not_finite)
{
    const float inf[3] = { 1, INFINITY, 2 }, low[2] = { -INFINITY, -INFINITY }, nan_[3] = { 1, NAN, 2 }, far[2] = { 1000, 1000 };
    EXPECT_TRUE(IS(dt_logsumexp(vec(inf, 3)), INFINITY));
    EXPECT_TRUE(IS(dt_logsumexp(vec(low, 2)), -INFINITY));
    EXPECT_TRUE(IS(dt_logsumexp(vec(nan_, 3)), NAN));
    EXPECT_NEAR(1000.6931471805599, dt_item(dt_logsumexp(vec(far, 2))), 1e-4);
    EXPECT_TRUE(IS(dt_logsumexp(dt_zeros(DT_SHAPE(0))), -INFINITY));
    EXPECT_TRUE(IS(dt_prod(dt_zeros(DT_SHAPE(0))), 1));
    EXPECT_TRUE(IS(dt_argmin(vec(nan_, 3)), 1));
    EXPECT_TRUE(IS(dt_any(vec(nan_, 3)), 1));
    EXPECT_TRUE(IS(dt_all(dt_zeros(DT_SHAPE(0))), 1));
    EXPECT_TRUE(IS(dt_any(dt_zeros(DT_SHAPE(0))), 0));
    dt_end();
    EXPECT_EQ(0, dt_check("reductions"));
}
UTEST(ops, gradients_where_a_formula_divides_by_zero)
{
    const float x[4] = { 0, 3, 0, 2 }, same[3] = { 2, 2, 2 }, one[3] = { 2, 0, 5 };
    dt_tensor  *t = dt_set_requires_grad(vec(x, 4)), *s = dt_set_requires_grad(vec(same, 3)), *p = dt_set_requires_grad(vec(one, 3));
    dt_backward(dt_norm(dt_mul_scalar(t, 0)));
    EXPECT_TRUE(IS(dt_grad(t), 0, 0, 0, 0));
    dt_backward(dt_std(s));
    EXPECT_TRUE(IS(dt_grad(s), 0, 0, 0));
    dt_backward(dt_prod(p));
    EXPECT_TRUE(IS(dt_grad(p), 0, 10, 0));
    dt_end();
    dt_free(t), dt_free(s), dt_free(p);
    EXPECT_EQ(0, dt_check("gradients"));
}
UTEST(ops, variance_with_a_correction)
{
    const float x[5] = { 1, 2, 4, 8, 0 };
    dt_tensor  *t = vec(x, 5);
    EXPECT_NEAR(8, dt_item(dt_var(t, .correction = DT_ZERO)), 1e-5);
    EXPECT_NEAR(10, dt_item(dt_var(t, .correction = 1)), 1e-5);
    EXPECT_NEAR(20, dt_item(dt_var(t, .correction = 3)), 1e-5);
    EXPECT_TRUE(IS(dt_var(t, .correction = 5), INFINITY));
    dt_end();
    EXPECT_EQ(0, dt_check("variance"));
}
UTEST(ops, round_goes_to_even_and_integers_stay)
{
    const float   x[6] = { 0.5f, 1.5f, 2.5f, -0.5f, 8388609, -2.5f };
    const int64_t n[3] = { -3, 0, INT64_MAX };
    EXPECT_TRUE(IS(dt_round(vec(x, 6)), 0, 2, 2, -0.0f, 8388609, -2));
    dt_tensor *f = dt_floor(ints(n, 3));
    int64_t    v[3];
    EXPECT_EQ(DT_OK, dt_copy_out(f, v, sizeof v));
    EXPECT_EQ(0, memcmp(v, n, sizeof v));
    EXPECT_TRUE(IS(dt_sign(ints(n, 3)), -1, 0, 1));
    dt_end();
}
UTEST(ops, linspace_ends_where_it_should)
{
    EXPECT_TRUE(IS(dt_linspace(0, 1, 5), 0, 0.25f, 0.5f, 0.75f, 1));
    EXPECT_TRUE(IS(dt_linspace(3, 7, 1), 3));
    EXPECT_EQ(0, (int)dt_numel(dt_linspace(3, 7, 0)));
    EXPECT_TRUE((float)dt_item(dt_select(dt_linspace(0.1, 0.7, 1000), 0, -1)) == 0.7f);
    EXPECT_TRUE(dt_linspace(0, 1, -1) == NULL && fails(DT_ERR_ARG, "steps is -1"));
    dt_end();
}
UTEST(ops, draws_without_replacement_are_all_different)
{
    const float p[4] = { 0, 1, 3, 2 };
    int64_t     v[3], count[4] = { 0 };
    dt_manual_seed(1);
    for (int k = 0; k < 400; k++) {
        EXPECT_EQ(DT_OK, dt_copy_out(dt_multinomial(vec(p, 4), 3), v, sizeof v));
        EXPECT_TRUE(v[0] != v[1] && v[1] != v[2] && v[0] != v[2] && v[0] > 0 && v[1] > 0 && v[2] > 0);
        count[v[0]]++;
        dt_end();
    }
    EXPECT_NEAR(200.0, (double)count[2], 40.0); /* half of the first draws */
    EXPECT_TRUE(dt_multinomial(vec(p, 4), 4) == NULL && fails(DT_ERR_ARG, "4 draws without replacement need 4"));
    EXPECT_TRUE(dt_multinomial(vec(p, 4), 5) == NULL && fails(DT_ERR_ARG, "5 draws"));
    const float bad[2] = { 1, -1 };
    EXPECT_TRUE(dt_multinomial(vec(bad, 2), 1) == NULL && fails(DT_ERR_ARG, "probability -1 of category 1 in row 0"));
    EXPECT_TRUE(dt_bernoulli(vec(bad, 2)) == NULL && fails(DT_ERR_ARG, "from -1 to 1"));
    dt_end();
}

/* ------------------------------------------------------------------------------------------------ errors */
UTEST(errors, an_index_out_of_range_is_named_with_its_position)
{
    const int64_t at[3] = { 0, 5, 1 }, below[2] = { 3, -2 };
    dt_tensor    *x = dt_ones(DT_SHAPE(4, 3));
    EXPECT_TRUE(dt_index_select(x, 0, ints(at, 3)) == NULL && fails(DT_ERR_ARG, "index 5 at position 1 is out of range for 4"));
    EXPECT_TRUE(dt_index_select(x, 1, ints(at, 3)) == NULL && fails(DT_ERR_ARG, "index 5 at position 1 is out of range for 3"));
    dt_tensor *i2 = dt_reshape(ints(at, 3), DT_SHAPE(1, 3));
    EXPECT_TRUE(dt_scatter(x, 0, i2, dt_ones(DT_SHAPE(1, 3))) == NULL && fails(DT_ERR_ARG, "index 5 at position 1"));
    EXPECT_TRUE(dt_scatter_add(x, 0, i2, dt_ones(DT_SHAPE(1, 3))) == NULL && fails(DT_ERR_ARG, "index 5 at position 1"));
    EXPECT_TRUE(dt_one_hot(ints(at, 3), 4) == NULL && fails(DT_ERR_ARG, "index 5 at position 1"));
    EXPECT_TRUE(dt_bincount(ints(below, 2)) == NULL && fails(DT_ERR_ARG, "index -2 at position 1 is negative"));
    EXPECT_TRUE(dt_one_hot(ints(below, 2), -1) == NULL && fails(DT_ERR_ARG, "index -2 at position 1 is negative"));
    dt_end();
}
UTEST(errors, shapes_dtypes_and_options_that_do_not_fit)
{
    dt_tensor    *x = dt_ones(DT_SHAPE(2, 3)), *n = dt_zeros(DT_SHAPE(2), .dtype = DT_I64), *b[2] = { x, x };
    const int64_t cut[2] = { -2, -2 };
    EXPECT_TRUE(dt_topk(x, 4, 1) == NULL && fails(DT_ERR_ARG, "k is 4, but dimension 1"));
    EXPECT_TRUE(dt_sort(x, 2) == NULL && dt_error_code() != DT_OK);
    dt_error_clear();
    EXPECT_TRUE(dt_index_select(x, 0, x) == NULL && fails(DT_ERR_DTYPE, "index is f32"));
    EXPECT_TRUE(dt_scatter(x, 0, dt_reshape(n, DT_SHAPE(1, 2)), dt_cast(x, DT_F16)) == NULL && fails(DT_ERR_DTYPE, "dt_cast"));
    EXPECT_TRUE(dt_scatter(x, 0, n, x) == NULL && fails(DT_ERR_SHAPE, "dt_scatter"));
    EXPECT_TRUE(dt_masked_fill(x, dt_zeros(DT_SHAPE(4), .dtype = DT_U8), 1) == NULL && fails(DT_ERR_SHAPE, "mask"));
    EXPECT_TRUE(dt_masked_fill(n, dt_zeros(DT_SHAPE(2), .dtype = DT_U8), 0.5) == NULL && fails(DT_ERR_DTYPE, "0.5 is not an integer"));
    EXPECT_TRUE(dt_tril(n, 0) == NULL && fails(DT_ERR_SHAPE, "at least 2 dimensions"));
    EXPECT_TRUE(dt_flip(x, 1) == NULL && fails(DT_ERR_ARG, "DT_DIM"));
    EXPECT_TRUE(dt_repeat(x, DT_SHAPE(2)) == NULL && fails(DT_ERR_ARG, "times"));
    EXPECT_TRUE(dt_einsum("ij,jk->ik", b, 2) == NULL && fails(DT_ERR_SHAPE, "letter j has size 3 in one operand and 2"));
    EXPECT_TRUE(dt_einsum("ii->i", b, 1) == NULL && fails(DT_ERR_ARG, "no diagonals"));
    EXPECT_TRUE(dt_einsum("ij->k", b, 1) == NULL && fails(DT_ERR_ARG, "letter k"));
    EXPECT_TRUE(dt_einsum("ijk", b, 1) == NULL && fails(DT_ERR_ARG, "has 3 letters"));
    EXPECT_TRUE(dt_einsum("...j", b, 1) == NULL && fails(DT_ERR_ARG, "no ellipsis"));
    EXPECT_TRUE(dt_einsum("ij,jk", b, 1) == NULL && fails(DT_ERR_ARG, "operand 0 of 1"));
    EXPECT_TRUE(dt_interpolate(x, .size = 3) == NULL && fails(DT_ERR_SHAPE, "(n, c, h, w)"));
    EXPECT_TRUE(dt_interpolate(dt_ones(DT_SHAPE(1, 1, 2, 2))) == NULL && fails(DT_ERR_ARG, "either size or scale"));
    EXPECT_TRUE(dt_interpolate(dt_ones(DT_SHAPE(1, 1, 2, 2)), .scale = 0.1) == NULL && fails(DT_ERR_ARG, "at least 1 pixel"));
    EXPECT_TRUE(dt_pixel_shuffle(dt_ones(DT_SHAPE(1, 3, 2, 2)), 2) == NULL && fails(DT_ERR_SHAPE, "multiple of r^2"));
    EXPECT_TRUE(dt_pad(x, cut, 2, 0) == NULL && fails(DT_ERR_ARG, "negative pads"));
    EXPECT_TRUE(dt_prelu(x, dt_ones(DT_SHAPE(2))) == NULL && fails(DT_ERR_SHAPE, "one for each channel"));
    EXPECT_TRUE(dt_sin(n) == NULL && dt_error_code() == DT_ERR_DTYPE);
    dt_error_clear();
    EXPECT_TRUE(dt_cross_entropy(x, dt_ones(DT_SHAPE(2))) == NULL && fails(DT_ERR_SHAPE, "probabilities"));
    EXPECT_TRUE(dt_mse_loss(x, x, .reduction = DT_BATCHMEAN) == NULL && fails(DT_ERR_ARG, "reduction is 3"));
    EXPECT_TRUE(dt_var(x, .correction = -1) == NULL && fails(DT_ERR_ARG, ".correction is -1"));
    EXPECT_TRUE(dt_cumsum(NULL, 0) == NULL && dt_error_code() != DT_OK);
    dt_error_clear();
    dt_end();
}

/* ------------------------------------------------------------------------------------------------ ops of the program */
/* (a, b, scale) -> a*b*scale and a + b; the gradients by hand */
typedef struct pair_opts {
    double scale;
} pair_opts;
static int       backwards;
static dt_status pair_forward(dt_fn_call *c)
{
    const pair_opts *o = (const pair_opts *)dt_fn_opts(c);
    dt_fn_save(c, 0, dt_fn_in(c, 0));
    dt_fn_save(c, 1, dt_fn_in(c, 1));
    dt_fn_out(c, 0, dt_mul_scalar(dt_mul(dt_fn_in(c, 0), dt_fn_in(c, 1)), o->scale));
    dt_fn_out(c, 1, dt_add(dt_fn_in(c, 0), dt_fn_in(c, 1)));
    return DT_OK;
}
static dt_status pair_backward(dt_fn_call *c)
{
    const pair_opts *o = (const pair_opts *)dt_fn_opts(c);
    backwards++;
    for (int k = 0; k < 2; k++) {
        dt_tensor *g = NULL, *g0 = dt_fn_grad(c, 0), *g1 = dt_fn_grad(c, 1);
        if (!dt_fn_needs_grad(c, k)) continue;
        if (g0) g = dt_mul(dt_mul_scalar(g0, o->scale), dt_fn_saved(c, 1 - k));
        if (g1) g = g ? dt_add(g, g1) : g1;
        dt_fn_give(c, k, g);
    }
    return DT_OK;
}
static const dt_function pair = { "pair", pair_forward, pair_backward };
static const pair_opts   three = { 3 };

UTEST(function, several_outputs_give_one_backward)
{
    const float av[2] = { 1, 2 }, bv[2] = { 5, 7 };
    int64_t     live = dt_stats().live_tensors;
    for (int used = 1; used < 4; used++) { /* bit k: the loss uses output k */
        dt_tensor *a = dt_set_requires_grad(vec(av, 2)), *b = dt_set_requires_grad(vec(bv, 2)), *in[2] = { a, b }, *out[2];
        backwards = 0;
        EXPECT_EQ(DT_OK, dt_function_run(&pair, in, 2, &three, sizeof three, out, 2));
        EXPECT_TRUE(IS(out[0], 15, 42) && IS(out[1], 6, 9));
        dt_tensor *l = used == 1 ? dt_sum(out[0]) : used == 2 ? dt_sum(out[1]) : dt_add(dt_sum(out[0]), dt_sum(out[1]));
        EXPECT_EQ(DT_OK, dt_backward(l, .retain_graph = true));
        EXPECT_EQ(1, backwards);
        EXPECT_TRUE(used == 1 ? IS(dt_grad(a), 15, 21) : used == 2 ? IS(dt_grad(a), 1, 1) : IS(dt_grad(a), 16, 22));
        EXPECT_EQ(DT_OK, dt_backward(l)); /* a second one adds */
        EXPECT_TRUE(used == 1 ? IS(dt_grad(b), 6, 12) : used == 2 ? IS(dt_grad(b), 2, 2) : IS(dt_grad(b), 8, 14));
        dt_end();
        dt_free(a), dt_free(b);
    }
    EXPECT_EQ(live, dt_stats().live_tensors);
    EXPECT_EQ(0, dt_check("function"));
}
UTEST(function, an_input_without_gradient_and_no_grad_at_all)
{
    dt_tensor *a = dt_set_requires_grad(dt_ones(DT_SHAPE(2))), *b = dt_ones(DT_SHAPE(2)), *in[2] = { a, b }, *out[2];
    EXPECT_EQ(DT_OK, dt_function_run(&pair, in, 2, &three, sizeof three, out, 2));
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(out[0], out[0]))));
    EXPECT_TRUE(IS(dt_grad(a), 18, 18));
    dt_no_grad_begin();
    EXPECT_EQ(DT_OK, dt_function_run(&pair, in, 2, &three, sizeof three, out, 2));
    EXPECT_FALSE(dt_requires_grad(out[0]));
    dt_no_grad_end();
    in[0] = b;
    EXPECT_EQ(DT_OK, dt_function_run(&pair, in, 2, &three, sizeof three, out, 2));
    EXPECT_FALSE(dt_requires_grad(out[1]));
    dt_end();
    dt_free(a);
    EXPECT_EQ(0, dt_check("function"));
}
static dt_status same_forward(dt_fn_call *c) /* returns its input */
{
    dt_fn_out(c, 0, dt_fn_in(c, 0));
    return DT_OK;
}
static dt_status twice_backward(dt_fn_call *c)
{
    dt_fn_give(c, 0, dt_mul_scalar(dt_fn_grad(c, 0), 2));
    return DT_OK;
}
UTEST(function, an_output_that_is_the_input)
{
    static const dt_function f = { "same", same_forward, twice_backward };
    dt_tensor               *a = dt_set_requires_grad(dt_ones(DT_SHAPE(2))), *y = dt_function_apply(&f, &a, 1, NULL, 0);
    EXPECT_TRUE(y != NULL && y != a);
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(y)));
    EXPECT_TRUE(IS(dt_grad(a), 2, 2));
    dt_end();
    dt_free(a);
    EXPECT_EQ(0, dt_check("function"));
}
static int       mistake;
static dt_status wrong_forward(dt_fn_call *c)
{
    if (mistake == 1) return DT_ERR_ARG;
    if (mistake == 2) return DT_OK; /* no output */
    if (mistake == 3) dt_fn_out(c, 1, dt_fn_in(c, 0));
    if (mistake == 4) dt_fn_give(c, 0, dt_fn_in(c, 0));
    dt_fn_save(c, 0, dt_fn_in(c, 0));
    dt_fn_out(c, 0, dt_mul_scalar(dt_fn_in(c, 0), 2));
    return DT_OK;
}
static dt_status wrong_backward(dt_fn_call *c)
{
    if (mistake == 5) dt_fn_give(c, 0, dt_ones(DT_SHAPE(3)));
    if (mistake == 6) return DT_ERR_STATE;
    if (mistake == 7) dt_fn_give(c, 1, dt_fn_grad(c, 0));
    return DT_OK;
}
UTEST(function, mistakes_are_named_and_nothing_leaks)
{
    static const dt_function f = { "wrong", wrong_forward, wrong_backward };
    static const char *const words[] = { "",
                                         "wrong: its forward returned",
                                         "did not set output 0",
                                         "wrong has no number 1",
                                         "called in the forward",
                                         "wrong: the gradient of input 0 is",
                                         "its backward returned",
                                         "wrong has no number 1",
                                         "changed in place" };
    int64_t live = dt_stats().live_tensors;
    for (mistake = 1; mistake <= 8; mistake++) {
        dt_tensor *a = dt_set_requires_grad(dt_ones(DT_SHAPE(2))), *y = dt_function_apply(&f, &a, 1, NULL, 0);
        EXPECT_EQ(mistake <= 4, y == NULL);
        if (mistake == 8) {
            dt_no_grad_begin();
            dt_fill(a, 3);
            dt_no_grad_end();
        }
        if (y) dt_backward(dt_sum(y));
        EXPECT_TRUE_MSG(dt_error() && strstr(dt_error(), words[mistake]), dt_error() ? dt_error() : "no error");
        dt_error_clear();
        dt_end();
        dt_free(a);
    }
    EXPECT_TRUE(dt_function_apply(NULL, NULL, 0, NULL, 0) == NULL && fails(DT_ERR_ARG, "NULL"));
    EXPECT_EQ(live, dt_stats().live_tensors);
}

/* ------------------------------------------------------------------------------------------------ gradcheck */
static dt_tensor *good(dt_tensor *const *in, int n, void *user)
{
    (void)n, (void)user;
    return dt_mul(dt_sin(in[0]), dt_exp(dt_matmul(in[0], in[1])));
}
static dt_status bad_forward(dt_fn_call *c)
{
    dt_fn_save(c, 0, dt_fn_in(c, 0));
    dt_fn_out(c, 0, dt_mul(dt_fn_in(c, 0), dt_fn_in(c, 0)));
    return DT_OK;
}
static dt_status bad_backward(dt_fn_call *c) /* 1 per cent off */
{
    dt_fn_give(c, 0, dt_mul(dt_fn_grad(c, 0), dt_mul_scalar(dt_fn_saved(c, 0), 2.02)));
    return DT_OK;
}
static dt_tensor *bad(dt_tensor *const *in, int n, void *user)
{
    static const dt_function f = { "bad", bad_forward, bad_backward };
    (void)n, (void)user;
    return dt_function_apply(&f, in, 1, NULL, 0);
}
static dt_tensor *rough(dt_tensor *const *in, int n, void *user) /* many waves within every step */
{
    (void)n, (void)user;
    return dt_sin(dt_mul_scalar(in[0], 1e5));
}
UTEST(gradcheck, right_wrong_and_undecided)
{
    dt_rng r;
    dt_rng_seed(&r, 2);
    dt_tensor *in[2] = { dt_normal(0, 1, DT_SHAPE(3, 3), .rng = &r), dt_normal(0, 0.5, DT_SHAPE(3, 3), .rng = &r) };
    EXPECT_EQ(DT_OK, dt_gradcheck(good, NULL, in, 2));
    EXPECT_EQ(DT_ERR_GRAD, dt_gradcheck(bad, NULL, in, 1));
    EXPECT_TRUE(fails(DT_ERR_GRAD, "element 0 of input 0: the gradient is"));
    EXPECT_EQ(DT_ERR_GRAD, dt_gradcheck(rough, NULL, in, 1));
    EXPECT_TRUE(fails(DT_ERR_GRAD, "nothing can be said"));
    EXPECT_EQ(DT_ERR_ARG, dt_gradcheck(NULL, NULL, in, 1));
    EXPECT_TRUE(fails(DT_ERR_ARG, "fn"));
    dt_tensor *h = dt_cast(in[0], DT_F16);
    EXPECT_EQ(DT_ERR_DTYPE, dt_gradcheck(good, NULL, &h, 1));
    EXPECT_TRUE(fails(DT_ERR_DTYPE, "must be f32"));
    dt_end();
}

/* ------------------------------------------------------------------------------------------------ autocast */
UTEST(autocast, dtypes_of_the_new_ops)
{
    dt_autocast half = { DT_AUTOCAST_OPS, DT_BF16 }, old = dt_autocast_set(half);
    dt_tensor  *x = dt_cast(dt_ones(DT_SHAPE(2, 3)), DT_BF16);
    EXPECT_EQ((int)DT_BF16, (int)dt_dtype_of(dt_sin(x)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_tan(x)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_expm1(x)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_norm(x)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_cumsum(x, 0)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_prod(x)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_kl_div(x, x)));
    EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(dt_triplet_margin_loss(x, x, x)));
    dt_autocast_set(old);
    dt_end();
    EXPECT_EQ(0, dt_check("autocast"));
}
