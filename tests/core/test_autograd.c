/* The tape: accumulation, leaves, detach, no-grad, retain, hooks, blocks, changes in place. */
#include "dt_test.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static dt_tensor *vec(const float *v, int64_t n) { return dt_from(v, DT_SHAPE(n)); }
static double     grad_at(dt_tensor *t, int64_t i) { return dt_item(dt_select(dt_grad(t), 0, i)); }
static const float abc[3] = { 1, 2, 3 };

UTEST(autograd, gradient_of_a_shared_value_is_the_sum_of_its_uses)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3));
    dt_tensor *h = dt_mul_scalar(w, 2);                                   /* used three times */
    dt_backward(dt_sum(dt_add(dt_mul(h, h), h)));                         /* d/dw 4w^2 + 2w = 8w + 2 */
    for (int i = 0; i < 3; i++) EXPECT_NEAR(8 * abc[i] + 2, grad_at(w, i), 1e-6);
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(autograd, several_backwards_accumulate_until_zeroed)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3));
    for (int k = 1; k <= 3; k++) {
        dt_backward(dt_sum(dt_mul(w, w)));
        EXPECT_NEAR(2.0 * k * abc[1], grad_at(w, 1), 1e-6);
        dt_end();
    }
    dt_zero_grad(w);
    EXPECT_TRUE(dt_grad(w) == NULL);
    dt_backward(dt_sum(w));
    EXPECT_NEAR(1, grad_at(w, 2), 0);
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(autograd, given_gradient_and_retain)
{
    const float g[3] = { 10, 20, 30 };
    dt_tensor  *w = dt_set_requires_grad(vec(abc, 3)), *y = dt_mul(w, w);
    dt_backward(y, .grad = vec(g, 3), .retain_graph = true);
    dt_backward(y, .grad = vec(g, 3));
    EXPECT_NEAR(2 * 2 * 3 * 30.0, grad_at(w, 2), 1e-5);
    EXPECT_ERROR(dt_backward(y, .grad = vec(g, 3)), "retain");
    EXPECT_ERROR(dt_backward(dt_mul(w, w)), "has 3 elements");
    dt_end();
    dt_free(w);
}

UTEST(autograd, detach_and_no_grad_cut_the_tape)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3));
    dt_backward(dt_sum(dt_mul(w, dt_detach(w)))); /* d/dw w * const */
    EXPECT_NEAR(3, grad_at(w, 2), 0);
    dt_no_grad_begin();
    dt_tensor *y = dt_sum(dt_mul(w, w));
    dt_no_grad_end();
    EXPECT_FALSE(dt_requires_grad(y));
    EXPECT_ERROR(dt_backward(y), "dt_backward");
    EXPECT_ERROR((dt_no_grad_end(), (void *)NULL), "dt_no_grad_begin");
    dt_end();
    dt_free(w);
}

UTEST(autograd, retained_gradient_of_an_inner_value)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3)), *h = dt_mul_scalar(w, 3);
    dt_retain_grad(h);
    dt_backward(dt_sum(dt_mul(h, h)));
    for (int i = 0; i < 3; i++) EXPECT_NEAR(6 * abc[i], grad_at(h, i), 1e-6);
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}

/* ---- hooks */
typedef struct seen {
    dt_tensor *order[8];
    int        n, begun, ended, reached;
    dt_tensor *ask;
    double     value; /* of the gradient when it was said to be complete */
} seen;
static void on_begin(void *user)
{
    seen *s = (seen *)user;
    s->begun++;
    s->reached = dt_grad_pending(s->ask);
}
static void on_ready(void *user, dt_tensor *p)
{
    seen *s = (seen *)user;
    s->order[s->n++] = p;
    if (p == s->ask) s->value = dt_item(dt_sum(dt_grad(p)));
}
static void on_end(void *user, dt_status status) { ((seen *)user)->ended += status == DT_OK; }

UTEST(autograd, hooks_fire_once_per_parameter_in_backward_order_when_complete)
{
    dt_tensor *a = dt_set_requires_grad(vec(abc, 3)), *b = dt_set_requires_grad(vec(abc, 3)), *unused = dt_set_requires_grad(vec(abc, 3));
    seen       s = { 0 };
    s.ask = a;
    dt_grad_hooks h = { on_begin, on_ready, on_end, &s };
    int           id = dt_grad_hooks_add(&h);
    ASSERT_GE(id, 0);
    dt_tensor *x = dt_mul(a, a);              /* a early ... */
    x = dt_mul(x, b);
    dt_backward(dt_sum(dt_add(x, a)));        /* ... and late: complete only after both */
    EXPECT_EQ(1, s.begun);
    EXPECT_EQ(1, s.ended);
    EXPECT_EQ(1, s.reached);
    ASSERT_EQ(2, s.n);
    EXPECT_TRUE(s.order[0] == b);
    EXPECT_TRUE(s.order[1] == a);
    EXPECT_NEAR(2 * (1 + 4 + 9) + 3, s.value, 1e-5); /* sum of 2ab + 1 with a = b */
    s.ask = unused;
    dt_backward(dt_sum(dt_mul(a, b)));
    EXPECT_EQ(0, s.reached);
    EXPECT_FALSE(dt_grad_pending(a));
    dt_grad_hooks_remove(id);
    int n = s.n;
    dt_backward(dt_sum(a));
    EXPECT_EQ(n, s.n);
    dt_end();
    dt_free(a);
    dt_free(b);
    dt_free(unused);
    EXPECT_EQ(0, dt_check("test"));
}
static void stop_at(void *user, dt_tensor *p)
{
    dt_tensor **at = (dt_tensor **)user;
    if (at[0] == p) dt_backward_stop();
}
UTEST(autograd, a_hook_stops_a_backward)
{
    dt_tensor    *a = dt_set_requires_grad(vec(abc, 3)), *b = dt_set_requires_grad(vec(abc, 3)), *at = b;
    dt_grad_hooks h = { NULL, stop_at, NULL, &at };
    int           id = dt_grad_hooks_add(&h);
    dt_backward_stop(); /* outside a backward: nothing */
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(dt_backward(dt_sum(dt_mul(dt_mul(a, a), b))));
        EXPECT_TRUE(dt_grad(b) != NULL);
        EXPECT_TRUE(dt_grad(a) == NULL); /* its op comes later */
        dt_zero_grad(b);
        dt_end();
    }
    at = NULL;
    EXPECT_OK(dt_backward(dt_sum(dt_mul(dt_mul(a, a), b))));
    EXPECT_TRUE(dt_grad(a) != NULL); /* the next one is not stopped */
    dt_end();
    dt_grad_hooks_remove(id);
}

/* ---- blocks */
UTEST(autograd, packed_parameters_share_two_blocks)
{
    dt_tensor *a = dt_set_requires_grad(vec(abc, 3)), *b = dt_set_requires_grad(dt_ones(DT_SHAPE(2, 2))), *p[2] = { a, b };
    dt_block   all;
    ASSERT_EQ(DT_OK, dt_pack(&all, p, 2));
    ASSERT_EQ(20, dt_numel(all.value)); /* b begins 64 bytes behind a */
    ASSERT_EQ(16, all.offset[1]);
    dt_backward(dt_sum(dt_mul(a, a)));
    float g[20];
    ASSERT_EQ(DT_OK, dt_copy_out(all.grad, g, sizeof g));
    const float want[20] = { 2, 4, 6 }; /* b was not reached: zeros, not rubbish */
    for (int i = 0; i < 20; i++) EXPECT_EQ(want[i], g[i]);
    dt_add_to(all.value, all.grad, -0.5);
    EXPECT_NEAR(0, dt_item(dt_sum(dt_abs(a))), 0); /* the update shows in the parameter */
    EXPECT_NEAR(4, dt_item(dt_sum(b)), 0);
    dt_block_zero_grad(&all);
    dt_backward(dt_sum(b));
    dt_copy_out(all.grad, g, sizeof g);
    EXPECT_EQ(0, g[0]); /* what was there before is gone */
    EXPECT_EQ(0, g[3]);
    EXPECT_EQ(1, g[16]);
    dt_block again;
    EXPECT_ERROR(dt_pack(&again, p, 2), "is already in a block");
    dt_end();
    dt_free(a);
    dt_free(b);
    dt_block_free(&all);
}

UTEST(autograd, a_block_outlives_its_parameters_and_the_other_way_round)
{
    int64_t    live = dt_stats().live_tensors;
    dt_tensor *p[2] = { dt_set_requires_grad(dt_ones(DT_SHAPE(4))), dt_set_requires_grad(dt_ones(DT_SHAPE(5))) };
    dt_block   all;
    dt_pack(&all, p, 2);
    dt_end();
    dt_free(p[0]);
    dt_block_zero_grad(&all);
    dt_block_free(&all);
    dt_backward(dt_sum(p[1]));
    EXPECT_NEAR(5, dt_item(dt_sum(dt_grad(p[1]))), 0);
    dt_end();
    dt_free(p[1]);
    EXPECT_EQ(live, dt_stats().live_tensors);
    EXPECT_EQ(0, dt_check("test"));
}

/* ---- changes in place */
UTEST(autograd, a_saved_value_changed_in_place_is_an_error)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3)), *x = vec(abc, 3), *y = dt_sum(dt_mul(w, x));
    dt_fill(x, 7);
    EXPECT_ERROR(dt_backward(y), "changed in place");
    y = dt_sum(dt_add(w, x)); /* add needs neither value */
    dt_fill(x, 8);
    EXPECT_EQ(DT_OK, dt_backward(y));
    dt_tensor *h = dt_exp(w);
    EXPECT_ERROR(dt_fill(h, 0), "exp");
    dt_end();
    dt_free(w);
}

UTEST(autograd, an_update_between_forward_and_backward_is_an_error)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3)), *y = dt_sum(dt_mul(w, w));
    dt_add_to(w, vec(abc, 3), 1);
    EXPECT_ERROR(dt_backward(y), "changed in place");
    dt_end();
    dt_free(w);
}

UTEST(autograd, a_kept_result_outlives_its_tape)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3)), *y = dt_keep(dt_sum(dt_mul(w, w)));
    dt_end();
    EXPECT_NEAR(14, dt_item(y), 1e-6);
    EXPECT_ERROR(dt_backward(y), "dt_end freed the tape");
    dt_free(y);
    dt_free(w);
}

UTEST(autograd, early_free_leaves_the_tape_whole)
{
    dt_tensor *w = dt_set_requires_grad(vec(abc, 3)), *h = dt_exp(w), *y = dt_sum(dt_mul(h, h));
    dt_free(h);
    ASSERT_EQ(DT_OK, dt_backward(y));
    EXPECT_NEAR(2 * __builtin_exp(2.0), grad_at(w, 0), 1e-4);
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}

/* A sum hands one gradient to both its terms, here to one of them through a view: what a gets beside it (5, before b's
   is used) must not reach b. */
UTEST(autograd, a_gradient_that_two_values_share_is_not_added_to)
{
    for (int view = 0; view < 2; view++) {
        dt_tensor *w = dt_set_requires_grad(vec(abc, 3)), *v = dt_set_requires_grad(vec(abc, 3)), *c = vec(abc, 3);
        dt_tensor *a = dt_mul_scalar(w, 2), *b = dt_mul_scalar(v, 3), *more = dt_mul_scalar(a, 5);
        dt_tensor *y = dt_mul(dt_add(a, view ? dt_reshape(b, DT_SHAPE(3)) : b), c);
        dt_backward(dt_add(dt_sum(y), dt_sum(more)));
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(2 * (abc[i] + 5), grad_at(w, i));
            EXPECT_EQ(3 * abc[i], grad_at(v, i));
        }
        dt_end();
        dt_free(w);
        dt_free(v);
    }
    EXPECT_EQ(0, dt_check("test"));
}

/* Slices of one value: side by side, with gaps, overlapping, along two dimensions, beside a use of the whole value. The
   gradient is the sum of the slices' weights, whatever the order of the uses. */
typedef struct slice { int dim, start, length, weight; } slice; /* length 0: the whole value */

static void check_slices(int *utest_result, const slice *cut, int n)
{
    enum { ROWS = 3, COLS = 10 };
    double     want[ROWS][COLS] = { { 0 } };
    dt_tensor *w = dt_set_requires_grad(dt_full(1, DT_SHAPE(ROWS, COLS))), *h = dt_mul_scalar(w, 2), *loss = NULL;
    dt_retain_grad(h);
    for (int k = 0; k < n; k++) {
        dt_tensor *part = cut[k].length ? dt_narrow(h, cut[k].dim, cut[k].start, cut[k].length) : h;
        dt_tensor *term = dt_mul_scalar(dt_sum(part), cut[k].weight);
        loss = loss ? dt_add(loss, term) : term;
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) {
                int at = cut[k].dim ? j : i;
                bool in = !cut[k].length || (at >= cut[k].start && at < cut[k].start + cut[k].length);
                want[i][j] += in ? cut[k].weight : 0;
            }
    }
    float got[2][ROWS][COLS];
    EXPECT_EQ(DT_OK, dt_backward(loss));
    dt_copy_out(dt_grad(w), got[0], sizeof got[0]);
    dt_copy_out(dt_grad(h), got[1], sizeof got[1]);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) {
            EXPECT_EQ(2 * want[i][j], (double)got[0][i][j]);
            EXPECT_EQ(want[i][j], (double)got[1][i][j]);
        }
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}
UTEST(autograd, slices_of_a_value_add_up_to_its_gradient)
{
    static const slice cuts[][4] = {
        { { 1, 0, 3, 1 }, { 1, 3, 4, 2 }, { 1, 7, 3, 5 } },                  /* side by side, in order */
        { { 1, 3, 4, 2 }, { 1, 0, 3, 1 }, { 1, 7, 3, 5 } },
        { { 1, 7, 3, 5 }, { 1, 0, 3, 1 }, { 1, 3, 4, 2 } },                  /* the middle first in backward */
        { { 1, 0, 3, 1 }, { 1, 7, 3, 5 } },                                  /* a gap */
        { { 1, 2, 3, 1 } },                                                  /* gaps on both sides */
        { { 1, 2, 5, 1 }, { 1, 4, 6, 2 } },                                  /* overlapping */
        { { 1, 0, 5, 1 }, { 1, 5, 5, 2 }, { 1, 0, 5, 4 }, { 1, 3, 4, 8 } },  /* whole, then more */
        { { 0, 0, 1, 1 }, { 1, 2, 4, 2 }, { 0, 1, 2, 4 } },                  /* along two dimensions */
        { { 1, 0, 0, 8 }, { 1, 0, 3, 1 }, { 1, 3, 4, 2 } },                  /* the whole value first, and last */
        { { 1, 0, 3, 1 }, { 1, 3, 4, 2 }, { 1, 0, 0, 8 } },
    };
    static const int n[] = { 3, 3, 3, 2, 1, 2, 4, 3, 3, 3 };
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) check_slices(utest_result, cuts[i], n[i]);
}

/* q, k and v cut from one projection, as (b, t, h, d) seen as (b, h, t, d): the result is in that order too, so that
   joining the heads copies nothing, and gradients are those of dense copies. */
UTEST(autograd, attention_keeps_the_order_of_its_heads)
{
    enum { B = 2, T = 70, H = 4, D = 16, E = H * D };
    static float value[B * T * 3 * E], got[2][B * T * 3 * E], out[2][B * T * E];
    for (int i = 0; i < B * T * 3 * E; i++) value[i] = (float)((i * 7919) % 257) / 128 - 1;
    for (int dense = 0; dense < 2; dense++) {
        dt_tensor *w = dt_set_requires_grad(dt_from(value, DT_SHAPE(B, T, 3 * E))), *all = dt_mul_scalar(w, 1), *part[3];
        for (int k = 0; k < 3; k++) {
            part[k] = dt_reshape(dt_narrow(all, 2, k * E, E), DT_SHAPE(B, T, H, D));
            part[k] = dt_transpose(part[k], 1, 2);
            if (dense) part[k] = dt_contiguous(part[k]);
        }
        dt_tensor *y = dt_transpose(dt_attention(part[0], part[1], part[2], .causal = true), 1, 2);
        EXPECT_EQ(!dense, dt_is_contiguous(y));
        y = dt_reshape(y, DT_SHAPE(B, T, E));
        dt_copy_out(y, out[dense], sizeof out[dense]);
        dt_backward(dt_sum(dt_mul(y, y)));
        dt_copy_out(dt_grad(w), got[dense], sizeof got[dense]);
        dt_end();
        dt_free(w);
    }
    EXPECT_EQ(0, memcmp(out[0], out[1], sizeof out[0]));
    EXPECT_EQ(0, memcmp(got[0], got[1], sizeof got[0]));
    EXPECT_EQ(0, dt_check("test"));
}

/* One value as query, key and value: its gradient is the sum of the three. By blocks and by heads, f32 and halves. */
UTEST(autograd, attention_to_itself)
{
    enum { T = 70, D = 16, MOST = 8 * T * D };
    static float value[MOST], got[2][MOST];
    for (int i = 0; i < MOST; i++) value[i] = (float)((i * 7919) % 257) / 128 - 1;
    for (int heads = 1; heads <= 8; heads += 7)
        for (int leaf = 0; leaf < 2; leaf++) {
            for (int apart = 0; apart < 2; apart++) {
                dt_tensor *w = dt_set_requires_grad(dt_from(value, DT_SHAPE(1, heads, T, D))), *x = leaf ? w : dt_mul_scalar(w, 1);
                dt_tensor *y = apart ? dt_attention(x, dt_clone(x), dt_clone(x)) : dt_attention(x, x, x);
                dt_backward(dt_sum(dt_mul(y, y)));
                dt_copy_out(dt_grad(w), got[apart], sizeof(float) * (size_t)(heads * T * D));
                dt_end();
                dt_free(w);
            }
            for (int i = 0; i < heads * T * D; i++) EXPECT_NEAR(got[1][i], got[0][i], 1e-5);
        }
    EXPECT_EQ(0, dt_check("test"));
}

UTEST_MAIN()
