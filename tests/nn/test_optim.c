/* test_optim.c: optimisers. Values of PyTorch's over 20 steps, groups, clipping, what is left alone, what is refused,
   what an error or a failed allocation leaves behind, saving and loading. Sees private functions: links alone.
   Contents: >>toy >>golden >>owners >>clipping >>halves >>errors >>numeric >>memory >>saving >>life
   run: asan-only, ubsan */
#define _GNU_SOURCE
#define DT_NN_IMPLEMENTATION /* to see private functions */
#include "dt_nn.h"

#include "dt_test.h"
#include "fake_device.h"
#include "golden/optim.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

enum { CASES = (int)(sizeof golden_optim / sizeof *golden_optim) };

/* ==================================================================================================== >>toy
   Three parameters whose gradients are what we say: loss = sum(a*ga) + sum(b*gb) + sum(c*gc). */
enum { A = 1, B = 2, C = 4, ALL = 7 };
static const char *const names[3] = { "a", "b", "c" };

typedef struct toy {
    dt_model     *m;
    dt_optimizer *opt;
    dt_rng        rng;
    dt_tensor    *p[3];
    int           made;
} toy;

static dt_shape toy_shape(int i) { return i == 0 ? DT_SHAPE(4, 5) : i == 1 ? DT_SHAPE(3) : DT_SHAPE(2, 2, 2, 2); }

static void toy_open(toy *t, dt_device *dev, dt_dtype dtype)
{
    memset(t, 0, sizeof *t);
    t->m = dt_model_new(.seed = 1, .device = dev, .dtype = dtype);
    dt_rng_seed(&t->rng, 7);
}
static void toy_close(toy *t)
{
    dt_optimizer_free(t->opt);
    dt_model_free(t->m);
    dt_end();
}
/* The parameters; the first time they get their values from the generator. */
static void toy_params(toy *t)
{
    dt_forward_begin(t->m);
    for (int i = 0; i < 3; i++) t->p[i] = dt_parameter(t->m, names[i], toy_shape(i));
    for (int i = 0; i < 3 && !t->made; i++)
        dt_copy(t->p[i], dt_normal(0, 1, toy_shape(i), .rng = &t->rng, .device = dt_model_device(t->m)));
    t->made = 1;
}
/* One backward that reaches the parameters in 'which'; gradients from the generator, times k. */
static dt_tensor *toy_backward(toy *t, int which, double k)
{
    dt_tensor *loss = NULL, *g[3];
    toy_params(t);
    for (int i = 0; i < 3; i++)
        g[i] = dt_normal(0, 1, toy_shape(i), .rng = &t->rng, .device = dt_model_device(t->m));
    for (int i = 0; i < 3; i++) {
        if (!(which >> i & 1)) continue;
        dt_tensor *l = dt_sum(dt_mul(dt_cast(t->p[i], DT_F32), dt_mul_scalar(g[i], k)));
        loss = loss ? dt_add(loss, l) : l;
    }
    dt_backward(loss);
    return loss;
}
static dt_status toy_step(toy *t)
{
    toy_backward(t, ALL, 1);
    return dt_step(t->opt);
}
static void toy_values(toy *t, float *v) /* all of them as f32, in the order of names */
{
    for (int i = 0; i < 3; i++) {
        dt_tensor *x = dt_cast(dt_model_find(t->m, names[i]), DT_F32);
        dt_copy_out(x, v, dt_nbytes(x));
        v += dt_numel(x);
    }
}
static int toy_differs(toy *t, const float *before) /* a bit for each parameter that changed */
{
    float now[GOLDEN_OPTIM_N];
    toy_values(t, now);
    return (memcmp(now, before, 20 * 4) ? A : 0) | (memcmp(now + 20, before + 20, 3 * 4) ? B : 0) |
           (memcmp(now + 23, before + 23, 16 * 4) ? C : 0);
}

/* ==================================================================================================== >>golden */
static double worst(const float *got, const float *want)
{
    double w = 0;
    for (int i = 0; i < GOLDEN_OPTIM_N; i++)
        w = fmax(w, isnan(got[i]) ? INFINITY : fabs((double)got[i] - want[i]) / (1 + fabs((double)want[i])));
    return w;
}
static void golden_case(int *utest_result, const golden_optim_case *c, int k, dt_device *dev)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    int   kept = 0;
    toy_open(&t, dev, DT_F32);
    t.opt = c->make(t.m, c->o);
    for (int step = 1; step <= GOLDEN_OPTIM_STEPS; step++) {
        ASSERT_OK(toy_step(&t));
        if (step != golden_optim_kept[kept]) continue;
        toy_values(&t, v);
        char   text[120];
        double w = worst(v, c->value[kept]);
        snprintf(text, sizeof text, "case %d (%s), step %d: off by %.3g", k, c->name, step, w);
        EXPECT_TRUE_MSG(w <= 4e-7, text);
        if (getenv("DT_TEST_VERBOSE")) printf("%s\n", text);
        kept++;
    }
    EXPECT_EQ((int64_t)GOLDEN_OPTIM_STEPS, dt_optimizer_steps(t.opt));
    toy_close(&t);
}
UTEST(golden, values_of_pytorch)
{
    for (int k = 0; k < CASES; k++) golden_case(utest_result, &golden_optim[k], k, NULL);
    EXPECT_EQ(0, dt_check("golden"));
}
UTEST(golden, any_number_of_threads_and_the_fake_device_give_the_same_bits)
{
    fake_device *f = fake_device_new(0);
    ASSERT_TRUE(f != NULL);
    for (int k = 0; k < CASES; k++) golden_case(utest_result, &golden_optim[k], k, f->dev);
    dt_empty_cache();
    EXPECT_EQ(0, (int)fake_live_blocks(f));
    for (int k = 0; k < CASES; k++) { /* large enough for the pool */
        float *first = NULL;
        for (int run = 0; run < 4; run++) {
            dt_device    *dev = run == 3 ? f->dev : NULL;
            dt_model     *m = dt_model_new(.seed = 3, .device = dev);
            dt_optimizer *opt = golden_optim[k].make(m, golden_optim[k].o);
            dt_set_num_threads(run == 3 ? 2 : run + 1);
            dt_manual_seed(5);
            for (int step = 0; step < 2; step++) {
                dt_tensor *w = dt_parameter(m, "w", DT_SHAPE(170, 201), .init = DT_INIT_NORMAL);
                dt_tensor *b = dt_parameter(m, "b", DT_SHAPE(35), .init = DT_INIT_UNIFORM, .a = -1, .b = 1);
                dt_tensor *l = dt_sum(dt_mul(w, dt_normal(0, 1, DT_SHAPE(170, 201), .device = dev)));
                dt_backward(dt_add(l, dt_sum(dt_mul(b, dt_normal(0, 1, DT_SHAPE(35), .device = dev)))));
                ASSERT_OK(dt_step(opt));
            }
            enum { N = 170 * 201 };
            float *v = (float *)malloc((N + 35) * sizeof *v);
            EXPECT_OK(dt_copy_out(dt_model_find(m, "w"), v, N * sizeof *v));
            EXPECT_OK(dt_copy_out(dt_model_find(m, "b"), v + N, 35 * sizeof *v));
            if (!first) first = v;
            EXPECT_EQ_MSG(0, memcmp(first, v, (N + 35) * sizeof *v), golden_optim[k].name);
            if (run) free(v);
            dt_optimizer_free(opt);
            dt_model_free(m);
        }
        free(first);
    }
    dt_set_num_threads(0);
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
}
UTEST(golden, a_step_reads_nothing_back_from_the_device)
{
    fake_device *f = fake_device_new(0);
    toy          t;
    ASSERT_TRUE(f != NULL);
    toy_open(&t, f->dev, DT_F32);
    t.opt = dt_lamb(t.m, .lr = 0.01); /* clips by norm */
    EXPECT_OK(toy_step(&t));
    toy_backward(&t, ALL, 1);
    int64_t downloads = f->downloads;
    EXPECT_OK(dt_step(t.opt));
    EXPECT_EQ(downloads, f->downloads);
    toy_close(&t);
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
}

/* ==================================================================================================== >>owners */
UTEST(owners, groups_by_pattern_the_latest_wins)
{
    toy   t;
    float before[GOLDEN_OPTIM_N], after[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m, .lr = 0.5, .weight_decay = 0.25);
    EXPECT_EQ(1, dt_optimizer_add_group(t.opt, "b|c", .lr = 0.125));
    EXPECT_EQ(2, dt_optimizer_add_group(t.opt, "c", .lr = DT_ZERO));
    EXPECT_EQ(3, dt_optimizer_add_group(t.opt, "b", .weight_decay = DT_ZERO)); /* lr of the optimiser, not of group 1 */
    EXPECT_EQ(4, dt_optimizer_groups(t.opt));
    toy_params(&t);
    toy_values(&t, before);
    dt_rng rng = t.rng;
    EXPECT_OK(toy_step(&t));
    toy_values(&t, after);
    float g[GOLDEN_OPTIM_N];
    for (int i = 0, at = 0; i < 3; at += i == 0 ? 20 : 3, i++) {
        dt_tensor *x = dt_normal(0, 1, toy_shape(i), .rng = &rng);
        dt_copy_out(x, g + at, dt_nbytes(x));
    }
    for (int i = 0; i < 23; i++)
        EXPECT_NEAR(before[i] - 0.5 * (g[i] + (i < 20 ? 0.25 * before[i] : 0)), (double)after[i], 1e-6);
    EXPECT_EQ((A | B), toy_differs(&t, before));
    toy_close(&t);
}
UTEST(owners, groups_and_optimisers_may_come_after_the_seal)
{
    toy   t;
    float v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N];
    for (int late = 0; late < 2; late++) {
        toy_open(&t, NULL, DT_F32);
        if (!late) t.opt = dt_adam(t.m, .lr = 0.1);
        if (!late) dt_optimizer_add_group(t.opt, "b", .lr = 0.3);
        toy_backward(&t, ALL, 1); /* seals */
        dt_end();
        if (late) t.opt = dt_adam(t.m, .lr = 0.1);
        if (late) EXPECT_EQ(1, dt_optimizer_add_group(t.opt, "b", .lr = 0.3));
        EXPECT_OK(dt_step(t.opt)); /* the gradients moved along */
        EXPECT_OK(toy_step(&t));
        toy_values(&t, late ? w : v);
        if (late) EXPECT_ERROR(dt_optimizer_add_group(t.opt, "nothing", .lr = 1), "matches 'nothing'");
        if (late) EXPECT_EQ(2, dt_optimizer_groups(t.opt));
        toy_close(&t);
    }
    EXPECT_EQ(0, memcmp(v, w, sizeof v));
}
UTEST(owners, a_group_made_later_keeps_the_states)
{
    toy   t;
    float v[2][GOLDEN_OPTIM_N];
    for (int late = 0; late < 2; late++) {
        toy_open(&t, NULL, DT_F32);
        t.opt = dt_adam(t.m, .lr = 0.1);
        for (int step = 0; step < 3; step++) EXPECT_OK(toy_step(&t));
        if (late) EXPECT_EQ(1, dt_optimizer_add_group(t.opt, "b", .lr = 0.1));
        EXPECT_OK(toy_step(&t));
        toy_values(&t, v[late]);
        toy_close(&t);
    }
    EXPECT_EQ(0, memcmp(v[0], v[1], sizeof v[0]));
}
UTEST(owners, two_optimisers_share_a_model)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m, .params = "a|b", .lr = 0.1);
    dt_optimizer *rest = dt_adam(t.m); /* c: a and b are taken */
    toy_backward(&t, ALL, 1);
    toy_values(&t, v);
    EXPECT_OK(dt_step(rest));
    EXPECT_EQ(C, toy_differs(&t, v));
    toy_values(&t, v);
    EXPECT_OK(dt_step(t.opt)); /* its gradients waited */
    EXPECT_EQ((A | B), toy_differs(&t, v));
    dt_optimizer *none = dt_sgd(t.m);
    toy_backward(&t, ALL, 1);
    EXPECT_ERROR(dt_step(none), "no parameters to update");
    dt_optimizer_free(none);
    dt_optimizer_free(rest);
    toy_close(&t);
}
UTEST(owners, what_no_backward_reached_is_left_alone)
{
    toy   t;
    float v[GOLDEN_OPTIM_N], late[GOLDEN_OPTIM_N];
    for (int k = 0; k < CASES; k++) { /* c is met later: it has had no update then, as PyTorch counts */
        toy_open(&t, NULL, DT_F32);
        t.opt = golden_optim[k].make(t.m, golden_optim[k].o);
        toy_params(&t);
        toy_values(&t, v);
        for (int step = 0; step < 3; step++) {
            toy_backward(&t, A | B, 1);
            EXPECT_OK(dt_step(t.opt));
            EXPECT_EQ_MSG((A | B), toy_differs(&t, v), golden_optim[k].name);
        }
        dt_rng rng = t.rng;
        toy_backward(&t, C, 1);
        EXPECT_OK(dt_step(t.opt));
        toy_values(&t, late);
        toy_close(&t);

        toy_open(&t, NULL, DT_F32);
        t.opt = golden_optim[k].make(t.m, golden_optim[k].o);
        toy_params(&t);
        t.rng = rng;
        toy_backward(&t, C, 1); /* the same as its first update */
        EXPECT_OK(dt_step(t.opt));
        toy_values(&t, v);
        EXPECT_EQ_MSG(0, memcmp(v + 23, late + 23, 16 * sizeof *v), golden_optim[k].name);
        toy_close(&t);
    }
}
UTEST(owners, parameters_with_other_counts_of_steps_get_their_own_corrections)
{
    toy    t;
    float  mixed[GOLDEN_OPTIM_N], whole[GOLDEN_OPTIM_N], fresh[GOLDEN_OPTIM_N];
    dt_rng rng;
    for (int run = 0; run < 3; run++) { /* a and b twice, c once; all twice; all once, with the second gradients */
        toy_open(&t, NULL, DT_F32);
        t.opt = dt_adam(t.m, .lr = 0.1);
        toy_params(&t);
        if (run < 2) {
            toy_backward(&t, run == 0 ? A | B : ALL, 1);
            EXPECT_OK(dt_step(t.opt));
            rng = t.rng;
        }
        t.rng = rng;
        EXPECT_OK(toy_step(&t));
        EXPECT_EQ(run == 0 ? 2 : 1, t.opt->nruns);
        toy_values(&t, run == 0 ? mixed : run == 1 ? whole : fresh);
        toy_close(&t);
    }
    EXPECT_EQ(0, memcmp(mixed, whole, 23 * sizeof *mixed));
    EXPECT_EQ(0, memcmp(mixed + 23, fresh + 23, 16 * sizeof *mixed));
}
UTEST(owners, frozen_parameters_are_left_alone)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adamw(t.m, .lr = 0.1);
    dt_model_freeze(t.m, "b"); /* before the seal */
    toy_params(&t);
    toy_values(&t, v);
    EXPECT_OK(toy_step(&t));
    EXPECT_EQ((A | C), toy_differs(&t, v));
    EXPECT_EQ(1, dt_model_freeze(t.m, "c")); /* in a block already */
    toy_values(&t, v);
    EXPECT_OK(toy_step(&t));
    EXPECT_EQ(A, toy_differs(&t, v));
    EXPECT_EQ(2, dt_model_unfreeze(t.m, "b|c"));
    toy_values(&t, v);
    EXPECT_OK(toy_step(&t));
    EXPECT_EQ(ALL, toy_differs(&t, v));
    toy_close(&t);
}
UTEST(owners, a_step_without_gradients_does_nothing)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adamw(t.m, .lr = 0.1);
    EXPECT_OK(toy_step(&t));
    toy_values(&t, v);
    EXPECT_OK(dt_step(t.opt)); /* the step before took them */
    toy_backward(&t, ALL, 1);
    dt_optimizer_zero_grad(t.opt);
    EXPECT_OK(dt_step(t.opt));
    EXPECT_EQ(0, toy_differs(&t, v));
    EXPECT_EQ((int64_t)1, dt_optimizer_steps(t.opt));
    toy_close(&t);
}
UTEST(owners, two_backwards_add_up)
{
    toy   t;
    float v[2][GOLDEN_OPTIM_N];
    for (int twice = 0; twice < 2; twice++) {
        toy_open(&t, NULL, DT_F32);
        t.opt = dt_adam(t.m, .lr = 0.1);
        toy_params(&t);
        for (int step = 0; step < 3; step++) {
            dt_rng rng = t.rng;
            toy_backward(&t, ALL, twice ? 0.5 : 1);
            if (twice) {
                t.rng = rng;
                toy_backward(&t, ALL, 0.5); /* halves add up exactly */
            }
            EXPECT_OK(dt_step(t.opt));
        }
        toy_values(&t, v[twice]);
        toy_close(&t);
    }
    EXPECT_EQ(0, memcmp(v[0], v[1], sizeof v[0]));
}

/* ==================================================================================================== >>clipping */
static void toy_grads(toy *t, float *v)
{
    for (int i = 0; i < 3; i++) {
        dt_tensor *g = dt_grad(dt_model_find(t->m, names[i]));
        dt_copy_out(g, v, dt_nbytes(g));
        v += dt_numel(g);
    }
}
UTEST(clipping, explicit_calls_give_pytorch_values)
{
    toy   t;
    float g[GOLDEN_OPTIM_N], again[GOLDEN_OPTIM_N];
    for (int value = 0; value < 2; value++) {
        toy_open(&t, NULL, DT_F32);
        t.opt = dt_sgd(t.m);
        dt_optimizer_add_group(t.opt, "b", .lr = 1); /* two blocks */
        toy_backward(&t, ALL, 1);
        if (value) EXPECT_OK(dt_clip_grad_value(t.opt, 0.5));
        else EXPECT_NEAR((double)golden_clip_total, dt_clip_grad_norm(t.opt, 2), 1e-6);
        toy_grads(&t, g);
        for (int i = 0; i < GOLDEN_OPTIM_N; i++)
            EXPECT_NEAR((double)(value ? golden_clip_value[i] : golden_clip_norm[i]), (double)g[i], 2e-7);
        if (!value) EXPECT_NEAR(2.0, dt_clip_grad_norm(t.opt, INFINITY), 1e-5); /* a look at the norm */
        toy_grads(&t, again);
        EXPECT_EQ(0, memcmp(g, again, sizeof g));
        toy_close(&t);
    }
}
UTEST(clipping, norms_neither_overflow_nor_ask_for_the_impossible)
{
    toy   t;
    float g[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m);
    EXPECT_TRUE(isnan(dt_clip_grad_norm(t.opt, 1)));
    dt_error_clear();
    EXPECT_ERROR(dt_clip_grad_value(t.opt, 1), "dt_clip_grad_value: no backward yet");
    toy_backward(&t, ALL, 1e25);
    EXPECT_NEAR(1.0, dt_clip_grad_norm(t.opt, 1) / 1e25 / (double)golden_clip_total, 1e-6);
    EXPECT_NEAR(1.0, dt_clip_grad_norm(t.opt, 1), 1e-5);
    EXPECT_NEAR(1.0, dt_clip_grad_norm(t.opt, 0), 1e-5);
    toy_grads(&t, g);
    for (int i = 0; i < GOLDEN_OPTIM_N; i++) EXPECT_NEAR(0.0, (double)g[i], 0.0);
    EXPECT_TRUE(isnan(dt_clip_grad_norm(t.opt, -1)));
    dt_error_clear();
    EXPECT_ERROR(dt_clip_grad_value(t.opt, NAN), "the limit is nan");
    EXPECT_TRUE(isnan(dt_clip_grad_norm(NULL, 1)));
    dt_error_clear();
    EXPECT_ERROR(dt_clip_grad_value(NULL, 1), "the optimiser is NULL");
    toy_close(&t);
}

/* ==================================================================================================== >>halves */
UTEST(halves, parameters_without_masters_have_f32_states_and_round_once)
{
    for (int d = DT_F16; d <= DT_BF16; d++)
        for (int k = 0; k < CASES; k++) {
            int   which = k % 2 ? A | C : ALL; /* b lies in the middle of the block */
            toy   h, f;
            float v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N];
            if (golden_optim[k].o.clip_norm != 0 || !strcmp(golden_optim[k].name, "lamb")) continue; /* norms differ */
            toy_open(&h, NULL, (dt_dtype)d);
            toy_open(&f, NULL, DT_F32);
            h.opt = golden_optim[k].make(h.m, golden_optim[k].o);
            f.opt = golden_optim[k].make(f.m, golden_optim[k].o);
            toy_params(&h);
            toy_params(&f);
            EXPECT_EQ(d, (int)dt_dtype_of(h.p[0]));
            for (int i = 0; i < 3; i++) EXPECT_OK(dt_copy(f.p[i], h.p[i]));
            toy_backward(&h, which, 1);
            for (int i = 0; i < 3; i++) dt_keep(dt_grad(h.p[i]));
            toy_params(&f); /* the same gradients as f32 */
            dt_tensor *l = NULL;
            for (int i = 0; i < 3; i++) {
                if (!(which >> i & 1)) continue;
                dt_tensor *s = dt_sum(dt_mul(f.p[i], dt_cast(dt_grad(h.p[i]), DT_F32)));
                l = l ? dt_add(l, s) : s;
            }
            EXPECT_OK(dt_backward(l));
            for (int i = 0; i < 3; i++) dt_free(dt_grad(h.p[i]));
            EXPECT_OK(dt_step(h.opt));
            EXPECT_OK(dt_step(f.opt));
            for (int i = 0; i < h.m->nblocks; i++)
                for (int s = 0; s < DT__MAX_STATES; s++)
                    if (h.m->block[i].state[s]) EXPECT_EQ((int)DT_F32, (int)dt_dtype_of(h.m->block[i].state[s]));
            toy_values(&h, v);
            dt_tensor *once[3];
            for (int i = 0; i < 3; i++) once[i] = dt_cast(dt_cast(f.p[i], (dt_dtype)d), DT_F32);
            for (int i = 0, at = 0; i < 3; at += i == 0 ? 20 : 3, i++) dt_copy_out(once[i], w + at, dt_nbytes(once[i]));
            EXPECT_EQ_MSG(0, memcmp(v, w, sizeof v), golden_optim[k].name);
            toy_close(&h);
            toy_close(&f);
        }
    EXPECT_EQ(0, dt_check("halves"));
}
UTEST(halves, masters_move_in_f32_and_the_model_gets_them_rounded)
{
    for (int k = 0; k < CASES; k++) {
        toy   h, f;
        float v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N];
        toy_open(&h, NULL, DT_BF16);
        toy_open(&f, NULL, DT_F32);
        h.m->masters = 1;
        h.opt = golden_optim[k].make(h.m, golden_optim[k].o);
        f.opt = golden_optim[k].make(f.m, golden_optim[k].o);
        toy_params(&h);
        toy_params(&f);
        for (int i = 0; i < 3; i++) { /* gradients that bf16 holds exactly; masters as the f32 model */
            EXPECT_OK(dt_copy(dt__model_param(h.m, names[i])->init, f.p[i]));
            EXPECT_OK(dt_copy(h.p[i], f.p[i]));
        }
        for (int step = 0; step < 3; step++) {
            toy *both[2] = { &h, &f };
            for (int s = 0; s < 2; s++) {
                dt_tensor *l = NULL;
                toy_params(both[s]);
                for (int i = 0; i < 3; i++) {
                    dt_tensor *g = dt_full(i == 1 ? -0.75 : 0.5 + step, toy_shape(i));
                    dt_tensor *x = dt_sum(dt_mul(dt_cast(both[s]->p[i], DT_F32), g));
                    l = l ? dt_add(l, x) : x;
                }
                EXPECT_OK(dt_backward(l));
                EXPECT_OK(dt_step(both[s]->opt));
            }
        }
        toy_values(&f, w);
        for (int i = 0; i < 3; i++) {
            const dt__param *p = dt__model_param(h.m, names[i]);
            const float *at = (const float *)h.m->block[p->block].master->st->ptr + p->offset;
            EXPECT_EQ_MSG(0, memcmp(at, w + (i == 0 ? 0 : i == 1 ? 20 : 23), (size_t)p->t->numel * 4),
                          golden_optim[k].name);
        }
        for (int i = 0; i < GOLDEN_OPTIM_N; i++) w[i] = dt__bf16_to_f32(dt__f32_to_bf16(w[i]));
        toy_values(&h, v);
        EXPECT_EQ_MSG(0, memcmp(v, w, sizeof v), golden_optim[k].name);
        toy_close(&h);
        toy_close(&f);
    }
}
UTEST(halves, gradients_that_were_unscaled_are_the_ones_used)
{
    toy   t;
    float v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m, .lr = 0.5);
    toy_backward(&t, A | C, 1);
    dt__mblock *b = &t.m->block[0];
    b->mgrad = dt__new_like("test", b->b.value, DT_F32);
    dt__fill(b->mgrad, 2);
    dt__note_reached(t.m, b);
    dt_block_zero_grad(&b->b);
    b->use_mgrad = 1;
    toy_values(&t, v);
    EXPECT_OK(dt_step(t.opt));
    EXPECT_EQ((A | C), toy_differs(&t, v)); /* b was not reached */
    toy_values(&t, w);
    for (int i = 0; i < 20; i++) EXPECT_NEAR((double)v[i] - 1, (double)w[i], 1e-6);
    EXPECT_EQ(0, (int)b->use_mgrad);
    EXPECT_OK(dt_step(t.opt)); /* they are gone */
    EXPECT_EQ(0, toy_differs(&t, w));
    toy_backward(&t, A | B, 1);
    dt__note_reached(t.m, b);
    dt_block_zero_grad(&b->b);
    b->use_mgrad = 1;
    EXPECT_EQ(1, dt_model_freeze(t.m, "a"));
    EXPECT_OK(dt_step(t.opt));
    EXPECT_EQ(B, toy_differs(&t, w)); /* not c, which the step before had, nor the frozen one */
    toy_close(&t);
}

/* ==================================================================================================== >>errors */
UTEST(errors, options_an_optimiser_does_not_take)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR(dt_adam(m, .momentum = 0.9), "dt_adam: .momentum is not an option here; it takes .lr, .weight_decay, "
                 ".beta1, .beta2, .eps, .clip_norm, .clip_value, .amsgrad, .maximize, .params");
    EXPECT_ERROR(dt_sgd(m, .eps = 1e-8), "dt_sgd: .eps is not");
    EXPECT_ERROR(dt_sgd(m, .amsgrad = true), ".amsgrad is not");
    EXPECT_ERROR(dt_adagrad(m, .beta1 = 0.9), ".beta1 is not");
    EXPECT_ERROR(dt_adamw(m, .nesterov = true), ".nesterov is not");
    EXPECT_ERROR(dt_lars(m, .dampening = 0.1), ".dampening is not");
    EXPECT_ERROR(dt_lamb(m, .trust_coefficient = 0.1), ".trust_coefficient is not");
    EXPECT_ERROR(dt_rmsprop(m, .lr_decay = 0.1), ".lr_decay is not");
    dt_optimizer *opt = dt_sgd(m);
    EXPECT_ERROR(dt_optimizer_add_group(opt, "*", .alpha = 0.9), "dt_optimizer_add_group: .alpha is not");
    EXPECT_ERROR(dt_optimizer_add_group(opt, "*", .clip_norm = 1), ".clip_norm is not");
    EXPECT_ERROR(dt_optimizer_add_group(opt, "*", .params = "a"), ".params is not");
    EXPECT_EQ(1, m->nopts);
    EXPECT_EQ(1, dt_optimizer_groups(opt));
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(errors, the_table_of_numbers_is_in_the_order_of_the_bits)
{
#define BIT(n, key, lo, below, must) EXPECT_STREQ(#n, dt__optim_numbers[DT__O_##n].name);
    DT__OPTIM_NUMBERS(BIT)
#undef BIT
#define BIT(n) EXPECT_EQ(offsetof(dt_optimizer_opts, n), dt__optim_flags[DT__O_##n - DT__O_NUMBERS]);
    DT__OPTIM_FLAGS(BIT)
#undef BIT
}
UTEST(errors, values_pytorch_refuses)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR(dt_sgd(m, .lr = -0.1), "dt_sgd: .lr is -0.1; it must be 0 (DT_ZERO) or more");
    EXPECT_ERROR(dt_adam(m, .lr = NAN), ".lr is nan");
    EXPECT_ERROR(dt_adam(m, .lr = INFINITY), ".lr is inf");
    EXPECT_ERROR(dt_sgd(m, .momentum = -1), ".momentum is -1");
    EXPECT_ERROR(dt_sgd(m, .weight_decay = -1), ".weight_decay is -1");
    EXPECT_ERROR(dt_sgd(m, .nesterov = true), ".nesterov needs .momentum above 0");
    EXPECT_ERROR(dt_sgd(m, .nesterov = true, .momentum = 0.9, .dampening = 0.1), "no .dampening");
    EXPECT_ERROR(dt_lars(m, .nesterov = true, .momentum = DT_ZERO), ".nesterov needs");
    EXPECT_ERROR(dt_adam(m, .beta1 = 1), ".beta1 is 1");
    EXPECT_ERROR(dt_adamw(m, .beta2 = -0.1), ".beta2 is -0.1");
    EXPECT_ERROR(dt_lamb(m, .beta2 = 1.5), ".beta2 is 1.5");
    EXPECT_ERROR(dt_adam(m, .eps = -1), ".eps is -1");
    EXPECT_ERROR(dt_rmsprop(m, .alpha = -1), ".alpha is -1");
    EXPECT_ERROR(dt_adagrad(m, .lr_decay = -1), ".lr_decay is -1");
    EXPECT_ERROR(dt_adagrad(m, .initial_accumulator_value = -1), ".initial_accumulator_value is -1");
    EXPECT_ERROR(dt_lars(m, .trust_coefficient = -1), ".trust_coefficient is -1");
    EXPECT_ERROR(dt_sgd(m, .clip_norm = -1), ".clip_norm is -1");
    EXPECT_ERROR(dt_sgd(m, .clip_value = -1), ".clip_value is -1");
    EXPECT_ERROR(dt_sgd(m, .params = ""), "empty pattern");
    EXPECT_ERROR(dt_sgd(NULL), "dt_sgd: the model is NULL");
    dt_optimizer *opt = dt_sgd(m, .momentum = 0.9, .nesterov = true);
    EXPECT_ERROR(dt_optimizer_add_group(opt, "*.bias", .momentum = DT_ZERO), ".nesterov needs");
    EXPECT_ERROR(dt_optimizer_add_group(opt, "*.bias", .lr = -1), "dt_optimizer_add_group: .lr is -1");
    EXPECT_ERROR(dt_optimizer_add_group(opt, ""), "needs a pattern");
    EXPECT_ERROR(dt_optimizer_add_group(opt, NULL), "needs a pattern");
    EXPECT_ERROR(dt_optimizer_add_group(NULL, "a"), "the optimiser is NULL");
    for (int i = 1; i < DT__MAX_GROUPS; i++) EXPECT_EQ(i, dt_optimizer_add_group(opt, "x"));
    EXPECT_ERROR(dt_optimizer_add_group(opt, "x"), "32 groups at most");
    dt_optimizer *many[DT__MAX_OPTIMIZERS];
    for (int i = 1; i < DT__MAX_OPTIMIZERS; i++) EXPECT_OK(many[i] = dt_adam(m));
    EXPECT_ERROR(dt_adam(m), "16 optimisers at most");
    for (int i = 1; i < DT__MAX_OPTIMIZERS; i++) dt_optimizer_free(many[i]);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(errors, defaults_and_zeros)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *o[] = { dt_sgd(m), dt_adam(m), dt_adamw(m), dt_rmsprop(m), dt_adagrad(m), dt_lars(m), dt_lamb(m),
                          dt_adamw(m, .weight_decay = DT_ZERO, .beta1 = DT_ZERO, .eps = DT_ZERO),
                          dt_lamb(m, .clip_norm = DT_ZERO) };
    /*       lr    decay momentum beta1 beta2 eps alpha trust clip; an option that it does not take is 0 */
    static const double want[9][9] = { { 1e-3, 0, 0, 0, 0, 0, 0, 0, 0 },
        { 1e-3, 0, 0, 0.9, 0.999, 1e-8, 0, 0, 0 }, { 1e-3, 1e-2, 0, 0.9, 0.999, 1e-8, 0, 0, 0 },
        { 1e-2, 0, 0, 0, 0, 1e-8, 0.99, 0, 0 }, { 1e-2, 0, 0, 0, 0, 1e-10, 0, 0, 0 },
        { 0.1, 0, 0.9, 0, 0, 1e-8, 0, 0.001, 0 }, { 1e-3, 1e-2, 0, 0.9, 0.999, 1e-6, 0, 0, 1 },
        { 1e-3, 0, 0, 0, 0.999, 0, 0, 0, 0 }, { 1e-3, 1e-2, 0, 0.9, 0.999, 1e-6, 0, 0, 0 } };
    for (int i = 0; i < 9; i++) {
        const dt_optimizer_opts *g = &o[i]->group[0];
        double got[9] = { g->lr, g->weight_decay, g->momentum, g->beta1, g->beta2, g->eps, g->alpha, g->trust_coefficient,
                          g->clip_norm };
        for (int k = 0; k < 9; k++) EXPECT_NEAR(want[i][k], got[k], 0.0);
        dt_optimizer_free(o[i]);
    }
    dt_model_free(m);
}
UTEST(errors, steps_at_the_wrong_time)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adam(t.m, .lr = 0.1);
    EXPECT_ERROR(dt_step(NULL), "dt_step: the optimiser is NULL");
    toy_params(&t);
    EXPECT_ERROR(dt_step(t.opt), "dt_step: no backward yet");
    toy_backward(&t, ALL, 1);
    EXPECT_ERROR(dt_sgd(t.m), "after dt_end()"); /* would move what the tape uses */
    EXPECT_ERROR(dt_optimizer_add_group(t.opt, "a", .lr = 1), "after dt_end()");
    toy_values(&t, v);
    dt_reshape(t.p[0], DT_SHAPE(7)); /* an error is pending: nothing changes, the step ends */
    EXPECT_TRUE(dt_error() != NULL);
    EXPECT_EQ((int)DT_ERR_SHAPE, (int)dt_step(t.opt));
    EXPECT_EQ(0, (int)dt__tls.step.n);
    EXPECT_EQ(0, (int)dt__tls.tape.n);
    dt_error_clear();
    EXPECT_EQ(0, toy_differs(&t, v));
    EXPECT_EQ((int64_t)0, dt_optimizer_steps(t.opt));
    EXPECT_OK(toy_step(&t)); /* and on it goes */
    EXPECT_EQ(ALL, toy_differs(&t, v));
    toy_close(&t);
}
UTEST(errors, a_skipped_step_changes_no_bit)
{
    toy   t;
    float v[GOLDEN_OPTIM_N], s[GOLDEN_OPTIM_N], u[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adam(t.m, .lr = 0.1);
    EXPECT_OK(toy_step(&t));
    toy_values(&t, v);
    memcpy(s, t.m->block[0].state[1]->st->ptr, sizeof s);
    toy_backward(&t, ALL, 1);
    t.opt->skip = 1;
    EXPECT_OK(dt_step(t.opt));
    EXPECT_EQ(0, toy_differs(&t, v));
    memcpy(u, t.m->block[0].state[1]->st->ptr, sizeof s);
    EXPECT_EQ(0, memcmp(s, u, sizeof s));
    EXPECT_EQ((int64_t)1, dt_optimizer_steps(t.opt));
    EXPECT_TRUE(dt_grad(dt_model_find(t.m, "a")) == NULL); /* cleared */
    EXPECT_OK(toy_step(&t));                               /* one step is skipped, not all */
    EXPECT_EQ(ALL, toy_differs(&t, v));
    toy_close(&t);
}
UTEST(errors, learning_rates_and_momentum)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *sgd = dt_sgd(m, .lr = 0.5, .momentum = 0.25), *adam = dt_adam(m), *ada = dt_adagrad(m);
    dt_optimizer_add_group(sgd, "a", .lr = 0.125);
    EXPECT_NEAR(0.5, dt_optimizer_lr(sgd, 0), 0.0);
    EXPECT_NEAR(0.125, dt_optimizer_lr(sgd, 1), 0.0);
    EXPECT_OK(dt_optimizer_set_lr(sgd, 1, 0));
    EXPECT_NEAR(0.0, dt_optimizer_lr(sgd, 1), 0.0);
    EXPECT_NEAR(0.5, dt_optimizer_lr(sgd, 0), 0.0);
    EXPECT_OK(dt_optimizer_set_lr(sgd, -1, 2));
    EXPECT_NEAR(2.0, dt_optimizer_lr(sgd, 0) * dt_optimizer_lr(sgd, 1) / 2, 0.0);
    EXPECT_NEAR(0.25, dt_optimizer_momentum(sgd, 1), 0.0);
    EXPECT_OK(dt_optimizer_set_momentum(sgd, 0, 0.75));
    EXPECT_NEAR(0.75, dt_optimizer_momentum(sgd, 0), 0.0);
    EXPECT_NEAR(0.25, dt_optimizer_momentum(sgd, 1), 0.0);
    EXPECT_NEAR(0.9, dt_optimizer_momentum(adam, 0), 0.0);
    EXPECT_OK(dt_optimizer_set_momentum(adam, -1, 0.5));
    EXPECT_NEAR(0.5, adam->group[0].beta1, 0.0);
    EXPECT_TRUE(isnan(dt_optimizer_momentum(ada, 0)) && isnan(dt_optimizer_lr(ada, 1)) && isnan(dt_optimizer_lr(NULL, 0)) && isnan(dt_optimizer_lr(ada, -1)));
    EXPECT_EQ(0, dt_check("asking is no error"));
    EXPECT_ERROR(dt_optimizer_set_momentum(ada, 0, 0.5), "dt_adagrad has neither");
    EXPECT_ERROR(dt_optimizer_set_momentum(adam, 0, 1), "below 1");
    EXPECT_ERROR(dt_optimizer_set_momentum(sgd, 0, -1), "0 or more");
    EXPECT_ERROR(dt_optimizer_set_lr(sgd, 2, 1), "group 2 of 2");
    EXPECT_ERROR(dt_optimizer_set_lr(sgd, -2, 1), "group -2");
    EXPECT_ERROR(dt_optimizer_set_lr(sgd, 0, -1), "is -1");
    EXPECT_ERROR(dt_optimizer_set_lr(sgd, 0, NAN), "is nan");
    EXPECT_ERROR(dt_optimizer_set_lr(NULL, 0, 1), "NULL");
    EXPECT_EQ(0, dt_optimizer_groups(NULL));
    EXPECT_EQ((int64_t)0, dt_optimizer_steps(NULL));
    dt_optimizer_zero_grad(NULL);
    dt_optimizer_free(NULL);
    dt_optimizer_free(ada);
    dt_optimizer_free(adam);
    dt_optimizer_free(sgd);
    dt_model_free(m);
}

/* ==================================================================================================== >>numeric */
UTEST(numeric, a_loss_that_is_not_finite_is_refused)
{
    static const double bad[] = { INFINITY, -INFINITY, NAN };
    toy t;
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adam(t.m, .lr = 0.1);
    EXPECT_OK(toy_step(&t));
    for (int k = 0; k < 3; k++) {
        float v[GOLDEN_OPTIM_N], s[GOLDEN_OPTIM_N];
        char  part[80];
        toy_values(&t, v);
        memcpy(s, t.m->block[0].state[0]->st->ptr, sizeof s);
        int64_t steps = dt_optimizer_steps(t.opt);
        toy_params(&t);
        dt_tensor *l = dt_sum(dt_mul_scalar(dt_reshape(t.p[0], DT_SHAPE(20)), bad[k]));
        l = dt_add(l, dt_sum(dt_mul(t.p[1], dt_full(bad[k], DT_SHAPE(3)))));
        l = dt_add(l, dt_sum(t.p[2]));
        EXPECT_OK(dt_backward(l)); /* the backward itself is no error, and the loss can be looked at */
        EXPECT_FALSE(isfinite(dt_item(l)));
        EXPECT_EQ((int)DT_ERR_NUMERIC, (int)dt_step(t.opt));
        snprintf(part, sizeof part, "in step %d;", (int)steps + 1);
        const char *e = dt_error() ? dt_error() : "";
        EXPECT_TRUE_MSG(strstr(e, "dt_step: the loss (of 'add') was "), e);
        EXPECT_TRUE_MSG(strstr(e, part) && strstr(e, "is of 'b'") && strstr(e, ".clip_norm"), e);
        dt_error_clear();
        EXPECT_EQ(0, toy_differs(&t, v));
        EXPECT_EQ(0, memcmp(s, t.m->block[0].state[0]->st->ptr, sizeof s));
        EXPECT_EQ(steps, dt_optimizer_steps(t.opt));
        EXPECT_TRUE(dt_grad(dt_model_find(t.m, "a")) == NULL);
        EXPECT_OK(toy_step(&t)); /* forgotten */
        EXPECT_EQ(ALL, toy_differs(&t, v));
    }
    toy_params(&t); /* an infinite loss with finite gradients */
    EXPECT_OK(dt_backward(dt_add_scalar(dt_sum(t.p[0]), INFINITY)));
    EXPECT_ERROR(dt_step(t.opt), "no gradient is infinite or NaN");
    toy_close(&t);
}
UTEST(numeric, the_end_of_the_step_forgets) /* nothing else does: the gradients may be another optimiser's */
{
    toy t;
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m, .lr = 0.1);
    for (int by = 0; by < 2; by++) {
        toy_params(&t);
        EXPECT_OK(dt_backward(dt_mul_scalar(dt_sum(t.p[0]), INFINITY)));
        dt_optimizer_zero_grad(t.opt);
        if (by) dt_error_clear();
        else dt_end();
        EXPECT_EQ((int)toy_step(&t), by ? (int)DT_ERR_NUMERIC : (int)DT_OK);
        dt_error_clear();
        EXPECT_OK(toy_step(&t));
    }
    toy_close(&t);
}
UTEST(numeric, centred_rmsprop_survives_constant_gradients)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_rmsprop(t.m, .centered = true, .alpha = 0.5, .lr = 1e-6);
    for (int step = 0; step < 200; step++) { /* the variance of a constant is 0, or a rounding below */
        toy_params(&t);
        EXPECT_OK(dt_backward(dt_sum(dt_mul_scalar(t.p[0], 0.1))));
        EXPECT_OK(dt_step(t.opt));
    }
    toy_values(&t, v);
    for (int i = 0; i < 20; i++) EXPECT_TRUE(isfinite(v[i]));
    toy_close(&t);
}
UTEST(numeric, momentum_switched_on_later_starts_with_the_gradient)
{
    toy   t;
    float v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N], x[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m, .lr = 0.5, .dampening = 0.75);
    EXPECT_OK(toy_step(&t));
    EXPECT_OK(dt_optimizer_set_momentum(t.opt, 0, 0.5));
    toy_values(&t, v);
    for (int step = 0; step < 2; step++) {
        toy_params(&t);
        EXPECT_OK(dt_backward(dt_sum(t.p[0])));
        EXPECT_OK(dt_step(t.opt));
        toy_values(&t, step ? x : w);
    }
    EXPECT_NEAR(-0.5, (double)w[0] - (double)v[0], 1e-6);                      /* buf = g, not damped */
    EXPECT_NEAR(-0.5 * (0.5 + 0.25), (double)x[0] - (double)w[0], 1e-6);       /* then 0.5*buf + 0.25*g */
    toy_close(&t);
}
UTEST(numeric, a_written_parameter_has_a_new_version)
{
    toy t;
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_sgd(t.m, .lr = 0.5);
    EXPECT_OK(toy_step(&t));
    uint32_t version = dt_model_find(t.m, "a")->st->version;
    EXPECT_OK(toy_step(&t));
    EXPECT_NE(version, dt_model_find(t.m, "a")->st->version);
    toy_close(&t);
}

/* ==================================================================================================== >>memory */
UTEST(memory, steps_make_no_malloc)
{
    static const int pattern[2] = { A | B, B | C };
    for (int k = 0; k < CASES; k++)
        for (int mixed = 0; mixed < 2; mixed++) { /* the same parameters each time, or other ones in turn */
            toy     t;
            int64_t grew = 0;
            toy_open(&t, NULL, DT_F32);
            t.opt = golden_optim[k].make(t.m, golden_optim[k].o);
            for (int step = 0; step < 10; step++) {
                toy_backward(&t, mixed ? pattern[step % 2] : ALL, 1);
                int64_t before = dt_stats().host_allocs;
                ASSERT_OK(dt_step(t.opt));
                if (step >= 4) grew += dt_stats().host_allocs - before;
            }
            EXPECT_EQ_MSG((int64_t)0, grew, golden_optim[k].name);
            toy_close(&t);
        }
}
typedef struct budget {
    int64_t left; /* allocations until all fail; < 0: they do not */
    int64_t live;
    int     failed;
} budget;
static void *budget_alloc(void *user, size_t nbytes)
{
    budget *b = (budget *)user;
    if (b->left == 0) {
        b->failed = 1;
        return NULL;
    }
    if (b->left > 0) b->left--;
    void *p = malloc(nbytes);
    b->live += p != NULL;
    return p;
}
static void budget_free(void *user, void *ptr, size_t nbytes)
{
    (void)nbytes;
    ((budget *)user)->live--;
    free(ptr);
}
static void toy_state(toy *t, uint64_t *hash) /* of all states and step counts */
{
    *hash = 14695981039346656037u;
    for (int i = 0; i < t->m->nblocks; i++)
        for (int k = 0; k < DT__MAX_STATES; k++) {
            const dt_tensor *s = t->m->block[i].state[k];
            for (int64_t e = 0; s && e < s->numel; e++) { /* zeros count as none: a state may have been made */
                uint32_t u;
                memcpy(&u, (const float *)s->st->ptr + e, 4);
                if (u) *hash = (*hash ^ (u + (uint64_t)e * 31 + (uint64_t)k * 977)) * 1099511628211u;
            }
        }
    for (int i = 0; i < t->m->nparams; i++) *hash = (*hash ^ (uint64_t)t->m->param[i]->steps) * 1099511628211u;
}
/* Each allocation of a step fails in turn: nothing has changed, the gradients wait, and the step can be taken again. */
UTEST(memory, a_failed_allocation_leaves_all_as_it_was)
{
    int tries = 0;
    for (int k = 0; k < CASES; k++) {
        budget       b = { -1, 0, 0 };
        dt_allocator a = { budget_alloc, budget_free, &b };
        toy          t, u;
        float        v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N];
        dt_end();
        dt_empty_cache();
        ASSERT_OK(dt_set_allocator(&a));
        toy_open(&t, NULL, DT_F32);
        toy_open(&u, NULL, DT_F32);
        t.opt = golden_optim[k].make(t.m, golden_optim[k].o);
        u.opt = golden_optim[k].make(u.m, golden_optim[k].o);
        for (int step = 0; step < 2; step++) {
            uint64_t before, after;
            toy_backward(&t, step ? ALL : A | C, 1);
            toy_values(&t, v);
            toy_state(&t, &before);
            for (int64_t n = 0;; n++, tries++) {
                dt_end();
                dt_empty_cache();
                b.left = n;
                b.failed = 0;
                dt_status s = dt_step(t.opt);
                b.left = -1;
                if (!b.failed) {
                    EXPECT_EQ(DT_OK, s);
                    break;
                }
                EXPECT_EQ((int)DT_ERR_MEMORY, (int)s);
                dt_error_clear();
                EXPECT_EQ_MSG(0, toy_differs(&t, v), golden_optim[k].name);
                toy_state(&t, &after);
                EXPECT_TRUE_MSG(before == after, golden_optim[k].name);
                if (*utest_result) break;
            }
            toy_backward(&u, step ? ALL : A | C, 1);
            EXPECT_OK(dt_step(u.opt));
        }
        toy_values(&t, v);
        toy_values(&u, w);
        EXPECT_EQ_MSG(0, memcmp(v, w, sizeof v), golden_optim[k].name);
        toy_close(&t);
        toy_close(&u);
        dt_empty_cache();
        EXPECT_EQ_MSG((int64_t)0, b.live, golden_optim[k].name);
        dt_set_allocator(NULL);
        EXPECT_EQ(0, dt_check("allocations"));
        dt_error_clear();
    }
    EXPECT_GT(tries, 100);
}
UTEST(memory, constructors_that_fail_leave_nothing)
{
    budget       b = { -1, 0, 0 };
    dt_allocator a = { budget_alloc, budget_free, &b };
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_set_allocator(&a));
    for (int64_t n = 0;; n++) {
        dt_model *m = dt_model_new(.seed = 1);
        b.failed = 0;
        b.left = n;
        dt_optimizer *opt = dt_adam(m, .params = "a|b");
        int           g = opt ? dt_optimizer_add_group(opt, "a", .lr = 1) : -1;
        b.left = -1;
        if (!b.failed) EXPECT_EQ(1, g);
        else EXPECT_EQ((int)DT_ERR_MEMORY, (int)dt_error_code());
        dt_error_clear();
        if (opt && g < 0) EXPECT_EQ(1, dt_optimizer_groups(opt));
        dt_optimizer_free(opt);
        EXPECT_EQ(0, m->nopts);
        dt_model_free(m);
        dt_empty_cache();
        EXPECT_EQ((int64_t)0, b.live);
        if (!b.failed) break;
    }
    dt_set_allocator(NULL);
}

/* ==================================================================================================== >>saving */
typedef struct box_item {
    char    name[80];
    char    kind; /* t, n, i */
    double  x;
    int64_t i, numel;
    float   v[20];
} box_item;
typedef struct box {
    box_item at[160];
    int      n;
} box;
static box_item *box_find(dt__visit *v, const char *name, char kind)
{
    box *b = (box *)v->user;
    for (int i = 0; i < b->n; i++)
        if (!strcmp(b->at[i].name, name) && (v->loading ? b->at[i].kind == kind : 1)) {
            if (v->loading) return &b->at[i];
            dt_fail(DT_ERR_STATE, "box: '%s' comes twice", name);
            return NULL;
        }
    if (v->loading || b->n == 160) {
        dt_fail(DT_ERR_STATE, "box: no '%s'", name);
        return NULL;
    }
    snprintf(b->at[b->n].name, sizeof b->at[b->n].name, "%s", name);
    b->at[b->n].kind = kind;
    return &b->at[b->n++];
}
static int box_tensor(dt__visit *v, const char *name, dt_tensor *t)
{
    box_item *it = box_find(v, name, 't');
    if (!it) return dt_error_code();
    if (!v->loading) it->numel = dt_numel(t);
    if (it->numel != dt_numel(t)) return dt_fail(DT_ERR_SHAPE, "box: '%s' is of another shape", name);
    return (int)(v->loading ? dt_copy_in(t, it->v, dt_nbytes(t)) : dt_copy_out(t, it->v, dt_nbytes(t)));
}
static int box_number(dt__visit *v, const char *name, double *x)
{
    box_item *it = box_find(v, name, 'n');
    if (!it) return dt_error_code();
    if (v->loading) *x = it->x;
    else it->x = *x;
    return 0;
}
static int box_integer(dt__visit *v, const char *name, int64_t *x)
{
    box_item *it = box_find(v, name, 'i');
    if (!it) return dt_error_code();
    if (v->loading) *x = it->i;
    else it->i = *x;
    return 0;
}
static int box_visit(box *b, toy *t, int loading)
{
    dt__visit v = { loading, box_tensor, box_number, box_integer, b, false, 0, 0, NULL, NULL, NULL };
    if (!loading) b->n = 0;
    return dt__optimizer_visit(t->opt, &v, "opt");
}
static const box_item *box_get(const box *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (!strcmp(b->at[i].name, name)) return &b->at[i];
    return NULL;
}
UTEST(saving, a_resumed_training_gives_the_same_bits)
{
    static box b;
    for (int k = 0; k < CASES; k++) {
        toy   t, u;
        float v[GOLDEN_OPTIM_N], w[GOLDEN_OPTIM_N];
        toy_open(&t, NULL, DT_F32);
        t.opt = golden_optim[k].make(t.m, golden_optim[k].o);
        dt_optimizer_add_group(t.opt, "b", .lr = 0.03, .weight_decay = 0.01);
        for (int step = 0; step < 3; step++) {
            toy_backward(&t, step == 1 ? A | B : ALL, 1); /* the counts of steps differ */
            EXPECT_OK(dt_step(t.opt));
        }
        EXPECT_OK(dt_optimizer_set_lr(t.opt, 0, 0.0123));
        EXPECT_EQ(0, box_visit(&b, &t, 0));

        toy_open(&u, NULL, DT_F32); /* another one, that has done something else before */
        u.opt = golden_optim[k].make(u.m, golden_optim[k].o);
        dt_optimizer_add_group(u.opt, "b", .lr = 7);
        for (int step = 0; step < 2; step++) EXPECT_OK(toy_step(&u));
        for (int i = 0; i < 3; i++) EXPECT_OK(dt_copy(dt_model_find(u.m, names[i]), dt_model_find(t.m, names[i])));
        EXPECT_EQ(0, box_visit(&b, &u, 1));
        EXPECT_EQ((int64_t)3, dt_optimizer_steps(u.opt));
        EXPECT_NEAR(0.0123, dt_optimizer_lr(u.opt, 0), 0.0);
        EXPECT_NEAR(0.03, dt_optimizer_lr(u.opt, 1), 0.0);
        u.rng = t.rng;
        for (int step = 0; step < 3; step++) {
            EXPECT_OK(toy_step(&t));
            EXPECT_OK(toy_step(&u));
        }
        toy_values(&t, v);
        toy_values(&u, w);
        EXPECT_EQ_MSG(0, memcmp(v, w, sizeof v), golden_optim[k].name);
        toy_close(&t);
        toy_close(&u);
    }
    EXPECT_EQ(0, dt_check("saving"));
}
UTEST(saving, names_are_pytorchs)
{
    static box b;
    toy        t;
    struct { dt_optimizer *(*make)(dt_model *, dt_optimizer_opts); dt_optimizer_opts o; const char *state[3]; } want[] = {
        { dt_sgd_with, { .momentum = 0.9 }, { "momentum_buffer" } },
        { dt_adam_with, { .amsgrad = true }, { "exp_avg", "exp_avg_sq", "max_exp_avg_sq" } },
        { dt_rmsprop_with, { .momentum = 0.9, .centered = true }, { "square_avg", "grad_avg", "momentum_buffer" } },
        { dt_adagrad_with, { .lr = 0.1 }, { "sum" } },
        { dt_lamb_with, { .lr = 0.1 }, { "exp_avg", "exp_avg_sq" } },
        { dt_lion_with, { .lr = 0.1 }, { "exp_avg" } },
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        toy_open(&t, NULL, DT_F32);
        t.opt = want[k].make(t.m, want[k].o);
        EXPECT_OK(toy_step(&t));
        EXPECT_EQ(0, box_visit(&b, &t, 0));
        int tensors = 0, states = 0;
        for (int i = 0; i < b.n; i++) tensors += b.at[i].kind == 't';
        for (int s = 0; s < 3 && want[k].state[s]; s++, states++)
            for (int i = 0; i < 3; i++) {
                char name[80];
                snprintf(name, sizeof name, "opt.%s.%s", want[k].state[s], names[i]);
                const box_item *it = box_get(&b, name);
                EXPECT_TRUE_MSG(it && it->numel == dt_numel(dt_model_find(t.m, names[i])), name);
            }
        EXPECT_EQ(3 * states, tensors);
        EXPECT_TRUE(box_get(&b, "opt.group.0.lr") && box_get(&b, "opt.group.0.weight_decay"));
        EXPECT_TRUE(box_get(&b, "opt.step.a") && box_get(&b, "opt.step.a")->i == 1);
        EXPECT_EQ((int64_t)1, box_get(&b, "opt.has_state")->i);
        EXPECT_EQ((int64_t)1, box_get(&b, "opt.steps")->i);
        toy_close(&t);
    }
}
UTEST(saving, what_was_saved_before_the_first_step_resets)
{
    static box b;
    toy        t;
    float      v[2][GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adam(t.m, .lr = 0.1);
    EXPECT_EQ(0, box_visit(&b, &t, 0)); /* before the seal as well */
    EXPECT_EQ((int64_t)0, box_get(&b, "opt.has_state")->i);
    for (int i = 0; i < b.n; i++) EXPECT_TRUE(b.at[i].kind != 't');
    for (int round = 0; round < 2; round++) {
        toy_params(&t);
        for (int i = 0; i < 3; i++) EXPECT_OK(dt_fill(t.p[i], 0.5));
        dt_end();
        dt_rng_seed(&t.rng, 5);
        for (int step = 0; step < 2; step++) EXPECT_OK(toy_step(&t));
        toy_values(&t, v[round]);
        EXPECT_EQ(0, box_visit(&b, &t, 1));
        EXPECT_EQ((int64_t)0, dt_optimizer_steps(t.opt));
    }
    EXPECT_EQ(0, memcmp(v[0], v[1], sizeof v[0]));
    toy_close(&t);
}
static void spoil(box *b, const char *name, int64_t i, double x)
{
    for (int k = 0; k < b->n; k++)
        if (!strcmp(b->at[k].name, name)) b->at[k].i = i, b->at[k].x = x;
}
UTEST(saving, what_does_not_fit_is_refused)
{
    static box good, b;
    toy        t, u;
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adam(t.m, .lr = 0.1);
    EXPECT_OK(toy_step(&t));
    EXPECT_EQ(0, box_visit(&good, &t, 0));
    toy_open(&u, NULL, DT_F32);
    u.opt = dt_sgd(u.m, .lr = 0.1);
    EXPECT_OK(toy_step(&u));
    EXPECT_ERROR(box_visit(&good, &u, 1), "what was saved is of dt_adam, this is dt_sgd");
    toy_close(&u);
    toy_open(&u, NULL, DT_F32);
    u.opt = dt_adam(u.m, .lr = 0.1);
    EXPECT_ERROR(box_visit(&good, &u, 1), "after the seal");
    EXPECT_OK(toy_step(&u));
    dt_optimizer_add_group(u.opt, "a", .lr = 2);
    EXPECT_ERROR(box_visit(&good, &u, 1), "1 groups were saved, this has 2");
    toy_close(&u);
    struct { const char *name; int64_t i; double x; const char *message; } bad[] = {
        { "opt.kind", 99, 0, "an unknown kind" }, { "opt.steps", -1, 0, "-1 steps" },
        { "opt.group.0.lr", 0, -1, ".lr is -1" }, { "opt.group.0.beta1", 0, 2, ".beta1 is 2" },
        { "opt.group.0.states", 8, 0, "states 8" }, { "opt.group.0.states", -1, 0, "states -1" },
        { "opt.step.b", -5, 0, "'b' was saved with -5" }, { "opt.group.0.eps", 0, NAN, ".eps is nan" },
        { "opt.group.0.states", 7, 0, "no 'opt.max_exp_avg_sq" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        b = good;
        spoil(&b, bad[k].name, bad[k].i, bad[k].x);
        EXPECT_ERROR(box_visit(&b, &t, 1), bad[k].message);
        EXPECT_EQ(0, box_visit(&good, &t, 1)); /* and the good one still loads */
    }
    toy_close(&t);
}

/* ==================================================================================================== >>life */
UTEST(life, free_in_any_order)
{
    toy   t;
    float v[GOLDEN_OPTIM_N];
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_lamb(t.m, .lr = 0.1, .params = "a|b");
    dt_optimizer *first = dt_adam(t.m, .params = "c");
    toy_backward(&t, ALL, 1);
    EXPECT_OK(dt_step(first));
    EXPECT_OK(dt_step(t.opt));
    dt_optimizer_free(t.opt); /* its parameters are nobody's, its states are gone; the other one's are not */
    EXPECT_EQ(0, first->index);
    for (int i = 0; i < 3; i++) {
        const dt__param *p = dt__model_param(t.m, names[i]);
        EXPECT_EQ(i == 2 ? 0 : -1, p->opt);
        EXPECT_EQ((int64_t)(i == 2), p->steps);
        EXPECT_TRUE((i == 2) == (t.m->block[p->block].state[0] != NULL));
    }
    toy_values(&t, v);
    toy_backward(&t, ALL, 1);
    EXPECT_OK(dt_step(first));
    EXPECT_EQ(C, toy_differs(&t, v));
    t.opt = dt_sgd(t.m, .lr = 0.1, .momentum = 0.9);
    toy_values(&t, v);
    EXPECT_OK(toy_step(&t));
    EXPECT_EQ((A | B), toy_differs(&t, v));
    dt_model_free(t.m); /* the model first: the optimisers know */
    EXPECT_ERROR(dt_step(t.opt), "the model of the optimiser was freed");
    EXPECT_ERROR(dt_optimizer_add_group(t.opt, "a"), "was freed");
    EXPECT_TRUE(isnan(dt_clip_grad_norm(t.opt, 1)));
    dt_error_clear();
    dt_optimizer_zero_grad(t.opt);
    dt_optimizer_free(first);
    dt_optimizer_free(t.opt);
    dt_end();
    EXPECT_EQ((int64_t)0, dt_stats().live_tensors);
}
static int warned;
static void count_warning(void *user, int level, const char *text)
{
    (void)user;
    warned += level == DT_LOG_WARN && strstr(text, "'*.bais', has no parameters");
}
UTEST(life, a_group_that_matches_nothing_is_told)
{
    toy t;
    toy_open(&t, NULL, DT_F32);
    t.opt = dt_adamw(t.m);
    dt_optimizer_add_group(t.opt, "*.bais", .weight_decay = DT_ZERO);
    dt_optimizer_add_group(t.opt, "b", .weight_decay = DT_ZERO);
    warned = 0;
    dt_set_log(count_warning, NULL);
    for (int step = 0; step < 3; step++) EXPECT_OK(toy_step(&t));
    dt_set_log(NULL, NULL);
    EXPECT_EQ(1, warned);
    toy_close(&t);
}
UTEST(life, a_small_network_learns)
{
    for (int k = 0; k < 9; k++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *rest = k == 8 ? dt_adamw(m, .params = "*.bias", .lr = 0.02) : NULL;
        dt_optimizer *opt = k == 0   ? dt_sgd(m, .lr = 0.1, .momentum = 0.9)
                            : k == 1 ? dt_adam(m, .lr = 0.02)
                            : k == 2 ? dt_adamw(m, .lr = 0.02)
                            : k == 3 ? dt_rmsprop(m, .lr = 0.01)
                            : k == 4 ? dt_adagrad(m, .lr = 0.1)
                            : k == 5 ? dt_lars(m, .lr = 1, .trust_coefficient = 0.02)
                            : k == 6 ? dt_lamb(m, .lr = 0.05)
                            : k == 7 ? dt_lion(m, .lr = 0.005)
                                     : dt_muon(m, .lr = 0.02);
        double first = 0, last = 0;
        dt_manual_seed(2);
        for (int step = 0; step < 120; step++) {
            dt_tensor *x = dt_uniform(-1, 1, DT_SHAPE(32, 2));
            dt_tensor *y = dt_mul(dt_narrow(x, 1, 0, 1), dt_narrow(x, 1, 1, 1));
            dt_tensor *h = dt_linear(m, "fc1", x, .out = 16, .act = DT_ACT_TANH);
            dt_tensor *l = dt_mse_loss(dt_linear(m, "fc2", h, .out = 1), y);
            ASSERT_OK(dt_backward(l));
            last = dt_item(l);
            if (step == 0) first = last;
            if (rest) ASSERT_OK(dt_update(rest));
            ASSERT_OK(dt_step(opt));
        }
        EXPECT_TRUE_MSG(last < 0.5 * first, dt__optim_kinds[opt->kind].call);
        dt_optimizer_free(opt);
        dt_optimizer_free(rest);
        dt_model_free(m);
    }
}

/* ---- Muon against its formulas in double */
static void muon_reference(double *x, int rows, int cols)
{
    double norm = 0, a[9][9], b[9][9], y[9];
    for (int i = 0; i < rows * cols; i++) norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int i = 0; i < rows * cols; i++) x[i] /= norm;
    for (int step = 0; step < 5; step++) { /* x = 3.4445 x + b x, from the left, which is the same as from the right */
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                a[i][j] = 0;
                for (int k = 0; k < cols; k++) a[i][j] += x[i * cols + k] * x[j * cols + k];
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                b[i][j] = -4.7750 * a[i][j];
                for (int k = 0; k < rows; k++) b[i][j] += 2.0315 * a[i][k] * a[k][j];
            }
        for (int j = 0; j < cols; j++) {
            for (int i = 0; i < rows; i++) {
                y[i] = 3.4445 * x[i * cols + j];
                for (int k = 0; k < rows; k++) y[i] += b[i][k] * x[k * cols + j];
            }
            for (int i = 0; i < rows; i++) x[i * cols + j] = y[i];
        }
    }
}
UTEST(muon, is_its_formulas_for_wide_and_tall_matrices_with_clipping_and_the_other_sign)
{
    static const int shape[3][2] = { { 3, 7 }, { 9, 4 }, { 1, 5 } };
    for (int kind = 0; kind < 3; kind++) {
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_muon(m, .lr = 0.1, .weight_decay = kind ? 0.5 : 0.1, .clip_norm = kind == 1 ? 0.25 : 0, .maximize = kind == 2);
        double        w[3][40], buf[3][40] = { { 0 } };
        for (int step = 0; step < 3; step++) {
            dt_tensor *l = NULL, *p[3];
            float      v[40];
            double     g[3][40], total = 0;
            for (int k = 0; k < 3; k++) {
                char name[8];
                snprintf(name, sizeof name, "w%d", k);
                p[k] = dt_parameter(m, name, DT_SHAPE(shape[k][0], shape[k][1]), .init = DT_INIT_NORMAL);
                dt_tensor *part = dt_sum(dt_mul(p[k], dt_mul(p[k], p[k])));
                l = l ? dt_add(l, part) : part;
            }
            ASSERT_OK(dt_backward(l));
            for (int k = 0; k < 3; k++) {
                int n = shape[k][0] * shape[k][1];
                ASSERT_OK(dt_copy_out(dt_grad(p[k]), v, (size_t)n * 4));
                for (int i = 0; i < n; i++) total += (double)v[i] * v[i], g[k][i] = v[i];
                ASSERT_OK(dt_copy_out(p[k], v, (size_t)n * 4));
                for (int i = 0; i < n && step == 0; i++) w[k][i] = v[i];
            }
            for (int k = 0; k < 3; k++) {
                int    n = shape[k][0] * shape[k][1];
                double u[40], clip = kind == 1 && sqrt(total) > 0.25 ? 0.25 / (sqrt(total) + 1e-6) : 1, decay = kind ? 0.5 : 0.1;
                for (int i = 0; i < n; i++) {
                    double d = g[k][i] * clip * (kind == 2 ? -1 : 1);
                    buf[k][i] = 0.95 * buf[k][i] + 0.05 * d;
                    u[i] = 0.05 * d + 0.95 * buf[k][i];
                }
                muon_reference(u, shape[k][0], shape[k][1]);
                for (int i = 0; i < n; i++)
                    w[k][i] = w[k][i] * (1 - 0.1 * decay) - 0.1 * sqrt(fmax(1, (double)shape[k][0] / shape[k][1])) * u[i];
            }
            ASSERT_OK(dt_step(opt));
            for (int k = 0; k < 3; k++) {
                int n = shape[k][0] * shape[k][1];
                ASSERT_OK(dt_copy_out(dt_model_find(m, k == 0 ? "w0" : k == 1 ? "w1" : "w2"), v, (size_t)n * 4));
                for (int i = 0; i < n; i++) EXPECT_NEAR(w[k][i], (double)v[i], 2e-4);
            }
        }
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
}
UTEST(muon, refuses_vectors_by_name_and_changes_nothing)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_muon(m);
    dt_tensor    *y = dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4);
    ASSERT_OK(dt_backward(dt_sum(dt_mul(y, y))));
    float before[12], after[12];
    ASSERT_OK(dt_copy_out(dt_model_find(m, "fc.weight"), before, sizeof before));
    EXPECT_ERROR(dt_step(opt) == DT_OK ? m : NULL, "parameter 'fc.bias' is (4)");
    ASSERT_OK(dt_copy_out(dt_model_find(m, "fc.weight"), after, sizeof after));
    EXPECT_EQ(0, memcmp(before, after, sizeof before));
    dt_end();
    dt_optimizer_free(opt);
    dt_model_free(m);
}

/* ==================================================================================================== >>adafactor */
UTEST(adafactor, keeps_rows_and_columns_of_matrices)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adafactor(m);
    size_t        before, after;
    dt_tensor    *w = dt_parameter(m, "w", DT_SHAPE(1000, 1000), .init = DT_INIT_NORMAL);
    ASSERT_OK(dt_backward(dt_sum(dt_mul(w, w))));
    before = (size_t)dt_stats().live_bytes;
    ASSERT_OK(dt_update(opt));
    after = (size_t)dt_stats().live_bytes;
    EXPECT_LE(after - before, (size_t)20000); /* twice 1,000 numbers for rows and for columns */
    dt_end();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(adafactor, refuses_a_clipping_threshold_below_1)
{
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_ERROR(dt_adafactor(m, .d = 0.5), "dt_adafactor: .d is 0.5; it must be 1 or more");
    EXPECT_ERROR(dt_adafactor(m, .beta2_decay = 0.8), "dt_adafactor: .beta2_decay is 0.8; it must be 0 (DT_ZERO) or less");
    dt_model_free(m);
}

/* ==================================================================================================== >>rules
   Optimisers of the program */
typedef struct seen {
    int     calls, fail_at;
    int64_t numel[8], ndim[8];
    double  lr[8];
    char    name[8][16];
    dt_optimizer *again; /* steps this one inside the update */
} seen;
static dt_status adam_rule(dt_rule_call *u, void *user) /* torch.optim.Adam */
{
    seen *s = (seen *)user;
    int   k = s ? s->calls++ : 0;
    if (s && k < 8) {
        s->numel[k] = dt_numel(u->value);
        s->ndim[k] = dt_ndim(u->value);
        s->lr[k] = u->o->lr;
        snprintf(s->name[k], sizeof s->name[k], "%s", u->name);
    }
    if (s && s->again) dt_step(s->again);
    if (s && s->fail_at && s->calls == s->fail_at) return DT_ERR_NUMERIC;
    double     b1 = u->o->beta1, b2 = u->o->beta2, t = (double)u->t;
    dt_tensor *g = u->o->weight_decay != 0 ? dt_add(u->grad, dt_mul_scalar(u->value, u->o->weight_decay)) : u->grad;
    dt_copy(u->state[0], dt_add(u->state[0], dt_mul_scalar(dt_sub(g, u->state[0]), 1 - b1)));
    dt_copy(u->state[1], dt_add(dt_mul_scalar(u->state[1], b2), dt_mul_scalar(dt_mul(g, g), 1 - b2)));
    dt_tensor *root = dt_add_scalar(dt_mul_scalar(dt_sqrt(u->state[1]), 1 / sqrt(1 - pow(b2, t))), u->o->eps);
    dt_add_to(u->value, dt_div(u->state[0], root), -u->o->lr / (1 - pow(b1, t)));
    return dt_error_code();
}
#define ADAM_DEFAULTS { .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 }
UTEST(rule, adam_as_a_rule_is_adam)
{
    for (int each = 0; each < 2; each++) {
        dt_rule r = { "my_adam", { "exp_avg", "exp_avg_sq" }, each, adam_rule, NULL, ADAM_DEFAULTS };
        for (int k = 0; k < CASES; k++) {
            const golden_optim_case *c = &golden_optim[k];
            if (c->make != dt_adam_with || c->o.amsgrad) continue;
            toy   t;
            float v[GOLDEN_OPTIM_N];
            int   kept = 0;
            toy_open(&t, NULL, DT_F32);
            t.opt = dt_optimizer_new_with(t.m, &r, c->o);
            for (int step = 1; step <= GOLDEN_OPTIM_STEPS; step++) {
                ASSERT_OK(toy_step(&t));
                if (step != golden_optim_kept[kept]) continue;
                toy_values(&t, v);
                EXPECT_TRUE_MSG(worst(v, c->value[kept]) <= 4e-7, each ? "each" : "vectors");
                kept++;
            }
            toy_close(&t);
        }
    }
}
UTEST(rule, gets_vectors_of_groups_or_each_parameter_in_its_shape)
{
    for (int each = 0; each < 2; each++) {
        seen    s = { 0 };
        dt_rule r = { "my_adam", { "exp_avg", "exp_avg_sq" }, each, adam_rule, &s, ADAM_DEFAULTS };
        toy     t;
        toy_open(&t, NULL, DT_F32);
        t.opt = dt_optimizer_new(t.m, &r, .lr = 0.5);
        ASSERT_EQ(1, dt_optimizer_add_group(t.opt, "b", .lr = 0.25));
        ASSERT_OK(toy_step(&t));
        ASSERT_EQ(each ? 3 : 2, s.calls);
        int64_t all = 0;
        for (int k = 0; k < s.calls; k++) {
            bool b = !strcmp(s.name[k], "b");
            all += s.numel[k];
            EXPECT_NEAR(b ? 0.25 : 0.5, s.lr[k], 0);
            if (each) EXPECT_EQ((int64_t)(b ? 1 : !strcmp(s.name[k], "a") ? 2 : 4), s.ndim[k]);
            else EXPECT_EQ((int64_t)1, s.ndim[k]);
        }
        EXPECT_GE(all, (int64_t)GOLDEN_OPTIM_N); /* a vector has the gaps between its parameters, too */
        toy_close(&t);
    }
}
UTEST(rule, mixed_precision_gives_it_masters_in_f32_and_unscaled_gradients)
{
    for (int level = 1; level < 4; level++) {
        dt_rule       r = { "my_adam", { "exp_avg", "exp_avg_sq" }, false, adam_rule, NULL, ADAM_DEFAULTS };
        float         got[2][12];
        for (int own = 0; own < 2; own++) {
            static const char *const levels[] = { "O0", "O1", "O2", "O3" };
            dt_model     *m = dt_model_new(.seed = 1);
            dt_amp       *amp = dt_amp_new(m, .level = levels[level], .dtype = DT_F16, .loss_scale = 128);
            dt_optimizer *opt = own ? dt_optimizer_new(m, &r, .lr = 0.01, .clip_norm = 0.5) : dt_adam(m, .lr = 0.01, .clip_norm = 0.5);
            ASSERT_TRUE(amp && opt);
            for (int step = 0; step < 5; step++) {
                dt_tensor *y = dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4);
                ASSERT_OK(dt_amp_backward(amp, dt_sum(dt_cast(dt_mul(y, y), DT_F32))));
                ASSERT_OK(dt_step(opt));
            }
            ASSERT_OK(dt_copy_out(dt_cast(dt_model_find(m, "fc.weight"), DT_F32), got[own], sizeof got[own]));
            dt_end();
            dt_amp_free(amp);
            dt_optimizer_free(opt);
            dt_model_free(m);
        }
        for (int i = 0; i < 12; i++) EXPECT_NEAR(got[0][i], got[1][i], level == 3 ? 2e-3 : level == 2 ? 1e-3 : 1e-6);
    }
}
UTEST(rule, what_is_missing_or_fails_is_named)
{
    seen    s = { 0 };
    dt_rule r = { "my_adam", { "exp_avg", "exp_avg_sq" }, true, adam_rule, &s, ADAM_DEFAULTS }, bad = r;
    toy     t;
    toy_open(&t, NULL, DT_F32);
    EXPECT_ERROR(dt_optimizer_new(t.m, NULL), "dt_optimizer_new: the rule is NULL");
    bad.update = NULL;
    EXPECT_ERROR(dt_optimizer_new(t.m, &bad), "the rule has no function");
    bad = r;
    bad.state[0] = NULL;
    EXPECT_ERROR(dt_optimizer_new(t.m, &bad), "rule 'my_adam': .state[1] has a name and .state[0] has none");
    bad = r;
    bad.defaults.beta1 = 2;
    EXPECT_ERROR(dt_optimizer_new(t.m, &bad), "my_adam: .beta1 is 2; it must be 0 (DT_ZERO) or more and below 1");
    t.opt = dt_optimizer_new(t.m, &r);
    s.fail_at = 2;
    toy_backward(&t, ALL, 1);
    EXPECT_ERROR(dt_step(t.opt) ? NULL : t.m, "my_adam: its update of '");
    dt_end();
    s.again = t.opt;
    toy_backward(&t, ALL, 1);
    EXPECT_ERROR(dt_step(t.opt) ? NULL : t.m, "dt_step: called inside the update of a rule");
    dt_end();
    static box b;
    s.again = NULL;
    s.fail_at = 0;
    EXPECT_OK(toy_step(&t));
    EXPECT_EQ(0, box_visit(&b, &t, 0));
    EXPECT_TRUE(box_get(&b, "opt.exp_avg_sq.a") != NULL);
    dt_optimizer_free(t.opt);
    bad = r;
    bad.name = "other";
    t.opt = dt_optimizer_new(t.m, &bad);
    EXPECT_ERROR(box_visit(&b, &t, 1) ? NULL : t.m, "what was saved is of an unknown kind, this is other");
    toy_close(&t);
}
