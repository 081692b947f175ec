/* The tape: accumulation, leaves, detach, no-grad, retain, hooks, blocks, changes in place. */
#include "dt_test.h"

static dt_tensor *vec(const float *v, int64_t n) { return dt_from(v, DT_SHAPE(n)); }
static double     grad_at(dt_tensor *t, int64_t i) { return dt_item(dt_select(dt_grad(t), 0, i)); }
static const float abc[3] = { 1, 2, 3 };

UTEST(autograd, gradient_of_a_shared_value_is_the_sum_of_its_uses)
{
    dt_tensor *w = dt_param(vec(abc, 3));
    dt_tensor *h = dt_mul_scalar(w, 2);                                   /* used three times */
    dt_backward(dt_sum(dt_add(dt_mul(h, h), h)));                         /* d/dw 4w^2 + 2w = 8w + 2 */
    for (int i = 0; i < 3; i++) EXPECT_NEAR(8 * abc[i] + 2, grad_at(w, i), 1e-6);
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}

UTEST(autograd, several_backwards_accumulate_until_zeroed)
{
    dt_tensor *w = dt_param(vec(abc, 3));
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
    dt_tensor  *w = dt_param(vec(abc, 3)), *y = dt_mul(w, w);
    dt_backward(y, .grad = vec(g, 3), .retain = true);
    dt_backward(y, .grad = vec(g, 3));
    EXPECT_NEAR(2 * 2 * 3 * 30.0, grad_at(w, 2), 1e-5);
    EXPECT_ERROR(dt_backward(y, .grad = vec(g, 3)), "retain");
    EXPECT_ERROR(dt_backward(dt_mul(w, w)), "has 3 elements");
    dt_end();
    dt_free(w);
}

UTEST(autograd, detach_and_no_grad_cut_the_tape)
{
    dt_tensor *w = dt_param(vec(abc, 3));
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
    dt_tensor *w = dt_param(vec(abc, 3)), *h = dt_mul_scalar(w, 3);
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
    dt_tensor *a = dt_param(vec(abc, 3)), *b = dt_param(vec(abc, 3)), *unused = dt_param(vec(abc, 3));
    seen       s = { 0 };
    s.ask = a;
    dt_grad_hooks h = { on_begin, on_ready, on_end, &s };
    int           id = dt_hooks_add(&h);
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
    dt_hooks_remove(id);
    int n = s.n;
    dt_backward(dt_sum(a));
    EXPECT_EQ(n, s.n);
    dt_end();
    dt_free(a);
    dt_free(b);
    dt_free(unused);
    EXPECT_EQ(0, dt_check("test"));
}

/* ---- blocks */
UTEST(autograd, packed_parameters_share_two_blocks)
{
    dt_tensor *a = dt_param(vec(abc, 3)), *b = dt_param(dt_ones(DT_SHAPE(2, 2))), *p[2] = { a, b };
    dt_block   all;
    ASSERT_EQ(DT_OK, dt_pack(&all, p, 2));
    ASSERT_EQ(7, dt_numel(all.value));
    dt_backward(dt_sum(dt_mul(a, a)));
    float g[7];
    ASSERT_EQ(DT_OK, dt_copy_out(all.grad, g, sizeof g));
    const float want[7] = { 2, 4, 6, 0, 0, 0, 0 }; /* b was not reached: zeros, not rubbish */
    for (int i = 0; i < 7; i++) EXPECT_EQ(want[i], g[i]);
    dt_add_to(all.value, all.grad, -0.5);
    EXPECT_NEAR(0, dt_item(dt_sum(dt_abs(a))), 0); /* the update shows in the parameter */
    EXPECT_NEAR(4, dt_item(dt_sum(b)), 0);
    dt_block_zero_grad(&all);
    dt_backward(dt_sum(b));
    dt_copy_out(all.grad, g, sizeof g);
    EXPECT_EQ(0, g[0]); /* what was there before is gone */
    EXPECT_EQ(1, g[3]);
    dt_block again;
    EXPECT_ERROR(dt_pack(&again, p, 2), "packed already");
    dt_end();
    dt_free(a);
    dt_free(b);
    dt_block_free(&all);
}

UTEST(autograd, a_block_outlives_its_parameters_and_the_other_way_round)
{
    int64_t    live = dt_stats().live_tensors;
    dt_tensor *p[2] = { dt_param(dt_ones(DT_SHAPE(4))), dt_param(dt_ones(DT_SHAPE(5))) };
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
    dt_tensor *w = dt_param(vec(abc, 3)), *x = vec(abc, 3), *y = dt_sum(dt_mul(w, x));
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
    dt_tensor *w = dt_param(vec(abc, 3)), *y = dt_sum(dt_mul(w, w));
    dt_add_to(w, vec(abc, 3), 1);
    EXPECT_ERROR(dt_backward(y), "changed in place");
    dt_end();
    dt_free(w);
}

UTEST(autograd, a_kept_result_outlives_its_tape)
{
    dt_tensor *w = dt_param(vec(abc, 3)), *y = dt_keep(dt_sum(dt_mul(w, w)));
    dt_end();
    EXPECT_NEAR(14, dt_item(y), 1e-6);
    EXPECT_ERROR(dt_backward(y), "ended");
    dt_free(y);
    dt_free(w);
}

UTEST(autograd, early_free_leaves_the_tape_whole)
{
    dt_tensor *w = dt_param(vec(abc, 3)), *h = dt_exp(w), *y = dt_sum(dt_mul(h, h));
    dt_free(h);
    ASSERT_EQ(DT_OK, dt_backward(y));
    EXPECT_NEAR(2 * __builtin_exp(2.0), grad_at(w, 0), 1e-4);
    dt_end();
    dt_free(w);
    EXPECT_EQ(0, dt_check("test"));
}

UTEST_MAIN()
