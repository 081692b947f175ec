/* Schedules: values of PyTorch's schedulers over 1,000 steps, warm-up in front of each kind, groups, momentum, the
   metric of a plateau, wrong options, saving and loading. Sees private functions: links alone.
   run: asan-only */
#define DT_NN_IMPLEMENTATION /* to see private functions */
#include "dt_nn.h"

#include "dt_test.h"
#include "golden/sched.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = (int)(sizeof golden_sched / sizeof *golden_sched) };

/* An optimiser with the two groups of the golden values; the model has no parameters yet, and needs none. */
typedef struct fixture {
    dt_model     *m;
    dt_optimizer *opt;
    dt_scheduler  *s;
} fixture;

static void fixture_open(fixture *f, bool adam)
{
    f->m = dt_model_new(.seed = 1);
    f->opt = adam ? dt_adam(f->m, .lr = golden_sched_base[0])
                  : dt_sgd(f->m, .lr = golden_sched_base[0], .momentum = 0.9);
    dt_optimizer_add_group(f->opt, "*.bias", .lr = golden_sched_base[1]);
    f->s = NULL;
}
static void fixture_close(fixture *f)
{
    dt_scheduler_free(f->s);
    dt_optimizer_free(f->opt);
    dt_model_free(f->m);
}
static void fixture_case(fixture *f, const golden_sched_case *c)
{
    fixture_open(f, c->adam);
    f->s = c->make(f->opt, c->o);
    if (c->warm.steps) dt_warmup_with(f->s, c->warm);
}

/* the sequence of make_sched.py */
static double metric(int64_t i) { return 1.0 + (double)((i * 37) % 64) / 256.0 - (double)(i / 50) / 32.0; }

static dt_status advance(fixture *f, bool plateau)
{
    return plateau ? dt_scheduler_metric(f->s, metric(dt_scheduler_steps(f->s))) : dt_scheduler_step(f->s);
}
static bool is_plateau(const golden_sched_case *c) { return !strcmp(c->name, "plateau"); }

/* 1e-13 of the value. Where 1 + cos cancels, what one unit in the last place of a cosine makes of it. */
static bool close_to(double got, double want, double top, bool cosine)
{
    return fabs(got - want) <= 1e-13 * fabs(want) + (cosine ? 4e-16 * top : 0);
}

UTEST(sched, values_of_pytorch_over_1000_steps)
{
    for (int k = 0; k < CASES; k++) {
        const golden_sched_case *c = &golden_sched[k];
        fixture                  f;
        double                   sum[4] = { 0, 0, 0, 0 }, top = 0;
        int                      kept = 0, wrong = 0;
        char                     text[200];
        fixture_case(&f, c);
        for (int i = 0; i < GOLDEN_SCHED_KEPT; i++) top = fmax(top, c->value[0][i]);
        for (int t = 0; t <= GOLDEN_SCHED_STEPS && !wrong; t++) {
            double got[4] = { dt_optimizer_lr(f.opt, 0), dt_optimizer_lr(f.opt, 1), dt_optimizer_momentum(f.opt, 0), dt_optimizer_momentum(f.opt, 1) };
            for (int i = 0; i < 4; i++) sum[i] += got[i];
            for (int i = 0; i < 2 + c->moves && t == golden_sched_step(kept); i++)
                if (!close_to(got[i], c->value[i][kept], top, c->cosine)) {
                    snprintf(text, sizeof text, "case %d (%s) step %d: %s %.17g, want %.17g", k, c->name, t,
                             i < 2 ? "lr" : "momentum", got[i], c->value[i][kept]);
                    EXPECT_TRUE_MSG(!(wrong = 1), text);
                }
            kept += t == golden_sched_step(kept);
            if (t < GOLDEN_SCHED_STEPS) ASSERT_OK(advance(&f, is_plateau(c)));
        }
        for (int i = 0; i < 4 && !wrong; i++) {
            snprintf(text, sizeof text, "case %d (%s): sum %d is %.17g, want %.17g", k, c->name, i, sum[i], c->sum[i]);
            EXPECT_TRUE_MSG(fabs(sum[i] - c->sum[i]) <= 1e-12 * c->sum[i], text);
        }
        EXPECT_EQ(wrong ? -1 : GOLDEN_SCHED_STEPS, wrong ? -1 : (int)dt_scheduler_steps(f.s));
        fixture_close(&f);
    }
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, known_values)
{
    static const double one[10] = { .004, .052, .1, .0950484632, .0811745654, .0611262022, .0388741978, .0188258346,
                                    .0049519368, 4e-7 };
    static const double cyc[9] = { .01, .0325, .055, .0775, .1, .0775, .055, .0325, .01 };
    fixture f;
    fixture_open(&f, false);
    f.s = dt_one_cycle_lr(f.opt, .max_lr = 0.1, .total_steps = 10);
    for (int i = 0; i < 10; i++) {
        EXPECT_NEAR(one[i], dt_optimizer_lr(f.opt, 0), 1e-10);
        dt_scheduler_step(f.s);
    }
    fixture_close(&f);
    fixture_open(&f, false);
    f.s = dt_cyclic_lr(f.opt, .base_lr = 0.01, .max_lr = 0.1, .step_size_up = 4);
    for (int i = 0; i < 9; i++) {
        EXPECT_NEAR(cyc[i], dt_optimizer_lr(f.opt, 1), 1e-15);
        EXPECT_NEAR(0.9 - 0.1 * (cyc[i] - 0.01) / 0.09, dt_optimizer_momentum(f.opt, 1), 1e-15);
        dt_scheduler_step(f.s);
    }
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

/* Where a cosine follows a warm-up PyTorch takes the closed form, which rounds: 0.36 + (0.1 - 0.36) is not 0.1. */
UTEST(sched, a_cosine_after_a_warm_up_begins_by_the_closed_form)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_cosine_annealing_lr(f.opt, .t_max = 10, .eta_min = 0.36);
    EXPECT_TRUE(dt_optimizer_lr(f.opt, 0) == 0.1);
    dt_warmup(f.s, .steps = 1);
    dt_scheduler_step(f.s);
    volatile double low = 0.36, rise = golden_sched_base[0] - low;
    EXPECT_TRUE(dt_optimizer_lr(f.opt, 0) == low + rise);
    EXPECT_TRUE(dt_optimizer_lr(f.opt, 0) != 0.1);
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, milestones_are_copied)
{
    int64_t at[2] = { 1, 3 };
    fixture f;
    fixture_open(&f, false);
    f.s = dt_multistep_lr(f.opt, .milestones = at, .nmilestones = 2, .gamma = 0.5);
    at[0] = at[1] = 100;
    for (int i = 0; i < 3; i++) dt_scheduler_step(f.s);
    EXPECT_NEAR(0.025, dt_optimizer_lr(f.opt, 0), 0);
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, an_lr_set_by_hand_is_where_the_schedule_goes_on)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_step_lr(f.opt, .step_size = 2);
    dt_scheduler_step(f.s);
    dt_optimizer_set_lr(f.opt, 1, 0.5);
    dt_scheduler_step(f.s);
    EXPECT_NEAR(0.1 * 0.1, dt_optimizer_lr(f.opt, 0), 0);
    EXPECT_NEAR(0.5 * 0.1, dt_optimizer_lr(f.opt, 1), 0);
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, two_schedules_of_one_optimiser_multiply)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_exponential_lr(f.opt, .gamma = 0.5);
    dt_scheduler *other = dt_step_lr(f.opt, .step_size = 1, .gamma = 0.25);
    for (int i = 0; i < 3; i++) {
        dt_scheduler_step(f.s);
        dt_scheduler_step(other);
    }
    EXPECT_NEAR(0.1 / 512, dt_optimizer_lr(f.opt, 0), 1e-19);
    dt_scheduler_free(other);
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, a_plateau_counts_nan_and_equal_metrics_as_no_progress)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_reduce_lr_on_plateau(f.opt, .patience = 1, .factor = 0.5);
    EXPECT_OK(dt_scheduler_metric(f.s, 1.0));
    EXPECT_OK(dt_scheduler_metric(f.s, (double)NAN));
    EXPECT_NEAR(0.1, dt_optimizer_lr(f.opt, 0), 0);
    EXPECT_OK(dt_scheduler_metric(f.s, 1.0)); /* the second without progress: more than the patience */
    EXPECT_NEAR(0.05, dt_optimizer_lr(f.opt, 0), 0);
    EXPECT_NEAR(0.037 * 0.5, dt_optimizer_lr(f.opt, 1), 0);
    EXPECT_OK(dt_scheduler_metric(f.s, 0.9));
    EXPECT_OK(dt_scheduler_metric(f.s, 0.9));
    EXPECT_NEAR(0.05, dt_optimizer_lr(f.opt, 0), 0);
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, one_cycle_ends_after_its_steps_and_never_goes_below_zero)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_one_cycle_lr(f.opt, .max_lr = 0.1, .epochs = 5, .steps_per_epoch = 2, .anneal_strategy = DT_ANNEAL_LINEAR);
    for (int i = 0; i < 10; i++) EXPECT_OK(dt_scheduler_step(f.s));
    EXPECT_NEAR(4e-7, dt_optimizer_lr(f.opt, 0), 1e-16);
    EXPECT_ERROR(dt_scheduler_step(f.s), "10 steps");
    EXPECT_EQ(10, (int)dt_scheduler_steps(f.s));
    fixture_close(&f);
    /* a rise of one step has no length: it is at the top at once */
    fixture_open(&f, false);
    f.s = dt_one_cycle_lr(f.opt, .max_lr = 0.1, .total_steps = 10, .pct_start = 0.1);
    EXPECT_NEAR(0.1, dt_optimizer_lr(f.opt, 0), 0);
    EXPECT_NEAR(0.85, dt_optimizer_momentum(f.opt, 0), 0);
    fixture_close(&f);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, the_linear_scaling_rule)
{
    fixture f;
    double  by_hand[12];
    EXPECT_NEAR(0.8, dt_scale_lr(0.1, 2048, 256), 1e-16);
    fixture_open(&f, false);
    EXPECT_OK(dt_optimizer_scale_lr(f.opt, 8));
    EXPECT_NEAR(0.8, dt_optimizer_lr(f.opt, 0), 1e-16);
    EXPECT_NEAR(0.037 * 8, dt_optimizer_lr(f.opt, 1), 0);
    f.s = dt_cosine_annealing_lr(f.opt, .t_max = 10);
    dt_warmup(f.s, .steps = 5, .start = 1.0 / 8);
    for (int i = 0; i < 12; i++) {
        by_hand[i] = dt_optimizer_lr(f.opt, 1);
        dt_scheduler_step(f.s);
    }
    fixture_close(&f);
    fixture_open(&f, false); /* the other way to write it is the same training */
    f.s = dt_cosine_annealing_lr(f.opt, .t_max = 10);
    dt_warmup(f.s, .steps = 5, .multiplier = 8);
    for (int i = 0; i < 12; i++) {
        EXPECT_NEAR(by_hand[i], dt_optimizer_lr(f.opt, 1), 1e-15);
        dt_scheduler_step(f.s);
    }
    EXPECT_ERROR(dt_scale_lr(0.1, 2048, 0), "base_batch 0");
    EXPECT_ERROR(dt_scale_lr((double)NAN, 1, 1), "lr nan");
    EXPECT_ERROR(dt_optimizer_scale_lr(f.opt, -1), "above 0");
    EXPECT_ERROR(dt_optimizer_scale_lr(NULL, 2), "NULL");
    fixture_close(&f);
}

UTEST(sched, wrong_options_are_refused_with_what_is_right)
{
    static const int64_t below[2] = { 3, -1 };
    fixture              f;
    fixture_open(&f, false);
    dt_optimizer *o = f.opt;
    EXPECT_ERROR(dt_step_lr(o, .step_size = 3, .t_max = 3),
                 "dt_step_lr: it does not take .t_max; it takes .step_size, .gamma");
    EXPECT_ERROR(dt_cosine_annealing_lr(o, .t_max = 3, .three_phase = true), "does not take .three_phase");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .cycle_momentum = DT_NO), "does not take .cycle_momentum");
    EXPECT_ERROR(dt_exponential_lr(o, .gamma = 1, .milestones = below), "does not take .milestones");
    EXPECT_ERROR(dt_step_lr(o, .gamma = 0.5), ".step_size is missing");
    EXPECT_ERROR(dt_exponential_lr(o), ".gamma is missing");
    EXPECT_ERROR(dt_multistep_lr(o, .milestones = below), ".nmilestones is missing");
    EXPECT_ERROR(dt_multistep_lr(o, .nmilestones = 2), ".milestones is missing");
    EXPECT_ERROR(dt_multistep_lr(o, .milestones = below, .nmilestones = 2), ".milestones[1] is -1");
    EXPECT_ERROR(dt_multistep_lr(o, .milestones = below, .nmilestones = -2), ".nmilestones is -2; it must be 1");
    EXPECT_ERROR(dt_cosine_annealing_lr(o), ".t_max is missing");
    EXPECT_ERROR(dt_cosine_annealing_warm_restarts(o), ".t_0 is missing");
    EXPECT_ERROR(dt_cyclic_lr(o, .max_lr = 1), ".base_lr is missing");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1), ".max_lr is missing");
    EXPECT_ERROR(dt_one_cycle_lr(o, .total_steps = 5), ".max_lr is missing");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1), ".total_steps is missing");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .epochs = 3), ".steps_per_epoch is 0");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .epochs = 3, .steps_per_epoch = 2, .total_steps = 6), "not both");
    EXPECT_ERROR(dt_constant_lr(o, .factor = 1.5), "above 0 and at most 1");
    EXPECT_ERROR(dt_constant_lr(o, .factor = DT_ZERO), ".factor is 0");
    EXPECT_ERROR(dt_constant_lr(o, .total_iters = -1), ".total_iters is -1");
    EXPECT_ERROR(dt_linear_lr(o, .start_factor = 1.5), ".start_factor is 1.5");
    EXPECT_ERROR(dt_linear_lr(o, .start_factor = DT_ZERO), ".start_factor is 0");
    EXPECT_ERROR(dt_linear_lr(o, .end_factor = 1.5), ".end_factor is 1.5; it must be 0 to 1");
    EXPECT_ERROR(dt_linear_lr(o, .total_iters = DT_ZERO), ".total_iters is 0");
    EXPECT_ERROR(dt_step_lr(o, .step_size = -3), "1 to 2^40");
    EXPECT_ERROR(dt_step_lr(o, .step_size = 3, .gamma = -1), ".gamma is -1; it must be finite and at least 0");
    EXPECT_ERROR(dt_exponential_lr(o, .gamma = (double)NAN), ".gamma is nan");
    EXPECT_ERROR(dt_exponential_lr(o, .gamma = (double)INFINITY), ".gamma is inf");
    EXPECT_ERROR(dt_polynomial_lr(o, .power = -1), ".power is -1");
    EXPECT_ERROR(dt_polynomial_lr(o, .total_iters = -1), ".total_iters is -1");
    EXPECT_ERROR(dt_cosine_annealing_lr(o, .t_max = 3, .eta_min = -0.1), ".eta_min is -0.1");
    EXPECT_ERROR(dt_cosine_annealing_warm_restarts(o, .t_0 = -1), ".t_0 is -1");
    EXPECT_ERROR(dt_cosine_annealing_warm_restarts(o, .t_0 = 1, .t_mult = -1), ".t_mult is -1");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = -1), ".max_lr is -1");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = -1, .max_lr = 1), ".base_lr is -1");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = 2, .mode = DT_MODE_MIN), "DT_MODE_TRIANGULAR2");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = 2, .step_size_up = -2), ".step_size_up is -2");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = 2, .step_size_down = -2), ".step_size_down is -2");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = 2, .max_momentum = 1), ".max_momentum is 1");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = 2, .base_momentum = -1), ".base_momentum is -1");
    EXPECT_ERROR(dt_cyclic_lr(o, .base_lr = 1, .max_lr = 2, .cycle_momentum = (dt_switch)7), "DT_YES or DT_NO");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .total_steps = 5, .pct_start = 1.1), ".pct_start is 1.1");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .total_steps = 5, .anneal_strategy = (dt_anneal)5), "DT_ANNEAL_COS or");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .total_steps = 5, .div_factor = DT_ZERO), ".div_factor is 0");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .total_steps = 5, .final_div_factor = -1), ".final_div_factor is -1");
    EXPECT_ERROR(dt_one_cycle_lr(o, .max_lr = 1, .total_steps = -5), ".total_steps is -5");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .factor = 1), ".factor is 1; it must be at least 0 and below 1");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .mode = DT_MODE_TRIANGULAR), "DT_MODE_MIN or DT_MODE_MAX");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .threshold_mode = (dt_threshold_mode)9), "DT_THRESHOLD_REL or");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .patience = -1), ".patience is -1");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .cooldown = -1), ".cooldown is -1");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .threshold = -1), ".threshold is -1");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .min_lr = -1), ".min_lr is -1");
    EXPECT_ERROR(dt_reduce_lr_on_plateau(o, .eps = -1), ".eps is -1");
    EXPECT_NEAR(0.1, dt_optimizer_lr(f.opt, 0), 0); /* nothing was changed */
    EXPECT_NEAR(0.9, dt_optimizer_momentum(f.opt, 0), 0);
    fixture_close(&f);
}

UTEST(sched, the_table_of_options_is_consistent)
{
    EXPECT_EQ(strlen(DT__SCHED_LETTERS), (size_t)DT__SCHEDULES);
    for (int i = 0; i < DT__SCHED_FIELDS; i++) {
        const dt__sched_field *f = &dt__sched_fields[i];
        EXPECT_TRUE_MSG(*f->takes && strspn(f->takes, DT__SCHED_LETTERS) == strlen(f->takes), f->name);
        EXPECT_TRUE_MSG(strspn(f->needs, f->takes) == strlen(f->needs), f->name);
        EXPECT_TRUE_MSG(strchr("dnibp", f->type) != NULL, f->name);
        for (int k = 0; k < i; k++) /* each schedule has one line for an option */
            if (dt__sched_fields[k].at == f->at) EXPECT_TRUE_MSG(!strpbrk(dt__sched_fields[k].takes, f->takes), f->name);
        if (!f->ends[0] || isnan(f->otherwise)) continue;
        EXPECT_TRUE_MSG(f->otherwise >= f->lo && f->otherwise <= f->hi, f->name);
    }
}
UTEST(sched, wrong_calls_are_errors_and_change_nothing)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_step_lr(f.opt, .step_size = 1);
    EXPECT_ERROR(dt_scheduler_metric(f.s, 1), "dt_step_lr takes no metric");
    EXPECT_ERROR(dt_warmup(f.s), ".steps is 0");
    EXPECT_ERROR(dt_warmup(f.s, .steps = 3, .start = 1.5), ".start is 1.5");
    EXPECT_ERROR(dt_warmup(f.s, .steps = 3, .multiplier = 0.5), ".multiplier is 0.5");
    EXPECT_ERROR(dt_warmup(f.s, .steps = 3, .multiplier = 2, .start = 0.5), "not both");
    EXPECT_NEAR(0.1, dt_optimizer_lr(f.opt, 0), 0);
    EXPECT_OK(dt_warmup(f.s, .steps = 3, .start = 0.5));
    EXPECT_ERROR(dt_warmup(f.s, .steps = 3, .start = 0.5), "has a warm-up");
    EXPECT_OK(dt_scheduler_step(f.s));
    double lr = dt_optimizer_lr(f.opt, 0);
    dt_fail(DT_ERR_ARG, "something else went wrong"); /* a pending error: nothing moves */
    EXPECT_LT((int)dt_scheduler_step(f.s), 0);
    EXPECT_LT((int)dt_scheduler_metric(f.s, 1), 0);
    EXPECT_LT((int)dt_optimizer_scale_lr(f.opt, 2), 0);
    EXPECT_TRUE(isnan(dt_scale_lr(1, 1, 1)));
    EXPECT_TRUE(dt_step_lr(f.opt, .step_size = 1) == NULL);
    EXPECT_STREQ("something else went wrong", dt_error());
    dt_error_clear();
    EXPECT_EQ(1, (int)dt_scheduler_steps(f.s));
    EXPECT_NEAR(lr, dt_optimizer_lr(f.opt, 0), 0);
    dt_optimizer_add_group(f.opt, "*.weight", .lr = 1);
    EXPECT_ERROR(dt_scheduler_step(f.s), "3 groups, it had 2");
    fixture_close(&f);
    fixture_open(&f, false);
    f.s = dt_reduce_lr_on_plateau(f.opt);
    EXPECT_ERROR(dt_scheduler_step(f.s), "dt_scheduler_metric");
    dt_scheduler_metric(f.s, 1);
    EXPECT_ERROR(dt_warmup(f.s, .steps = 3), "has stepped already");
    fixture_close(&f);
}

UTEST(sched, an_optimiser_without_momentum_cycles_its_lr_alone)
{
    dt_model     *m = dt_model_new();
    dt_optimizer *opt = dt_adagrad(m, .lr = 0.1);
    EXPECT_ERROR(dt_cyclic_lr(opt, .base_lr = 0.01, .max_lr = 0.1), ".cycle_momentum = DT_NO");
    EXPECT_ERROR(dt_one_cycle_lr(opt, .total_steps = 10, .max_lr = 0.1), ".cycle_momentum = DT_NO");
    dt_scheduler *s = dt_cyclic_lr(opt, .base_lr = 0.01, .max_lr = 0.1, .cycle_momentum = DT_NO, .step_size_up = 1);
    EXPECT_OK(dt_scheduler_step(s));
    EXPECT_NEAR(0.1, dt_optimizer_lr(opt, 0), 1e-16);
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, null_is_an_error_not_a_crash)
{
    for (int k = 0; k < CASES; k++) EXPECT_ERROR(golden_sched[k].make(NULL, golden_sched[k].o), "NULL");
    EXPECT_ERROR(dt_scheduler_step(NULL), "dt_scheduler_step: the scheduler is NULL");
    EXPECT_ERROR(dt_scheduler_metric(NULL, 1), "NULL");
    EXPECT_ERROR(dt_warmup(NULL, .steps = 1), "NULL");
    EXPECT_EQ(0, (int)dt_scheduler_steps(NULL));
    dt_scheduler_free(NULL);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, freed_after_its_optimiser)
{
    fixture f;
    fixture_open(&f, false);
    f.s = dt_multistep_lr(f.opt, .milestones = (int64_t[]){ 1, 2 }, .nmilestones = 2);
    dt_optimizer_free(f.opt);
    dt_model_free(f.m);
    dt_scheduler_free(f.s);
    EXPECT_EQ(0, dt_check("sched"));
}

/* ---------------------------------------------------------------------------------------------------- saving */
typedef struct saved { /* what a visitor was told, as text */
    char name[64][64];
    char text[64][40];
    int  n;
    int  damage; /* the entry that is lost or, with 'other', changed */
    const char *other;
} saved;

static int saved_at(saved *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->name[i], name)) return i;
    return -1;
}
static int visit_text(dt__visit *v, const char *name, char *text, size_t n)
{
    saved *s = (saved *)v->user;
    int    i = saved_at(s, name);
    if (v->loading && (i < 0 || (i == s->damage && !s->other))) return dt_fail(DT_ERR_STATE, "%s is missing", name);
    if (v->loading) {
        snprintf(text, n, "%s", i == s->damage ? s->other : s->text[i]);
        return 0;
    }
    if (i >= 0 || s->n == 64) return dt_fail(DT_ERR_STATE, "%s is there twice, or one too many", name);
    snprintf(s->name[s->n], sizeof s->name[0], "%s", name);
    snprintf(s->text[s->n++], sizeof s->text[0], "%s", text);
    return 0;
}
static int visit_number(dt__visit *v, const char *name, double *x)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", *x);
    int bad = visit_text(v, name, text, sizeof text);
    if (!bad && v->loading) *x = strtod(text, NULL);
    return bad;
}
static int visit_integer(dt__visit *v, const char *name, int64_t *x)
{
    char text[40];
    snprintf(text, sizeof text, "%lld", (long long)*x);
    int bad = visit_text(v, name, text, sizeof text);
    if (!bad && v->loading) *x = strtoll(text, NULL, 10);
    return bad;
}
static int save(fixture *f, saved *s)
{
    dt__visit v = { .loading = 0, .number = visit_number, .integer = visit_integer, .user = s };
    memset(s, 0, sizeof *s);
    s->damage = -1;
    return dt__scheduler_visit(f->s, &v, "schedule");
}
static int load(fixture *f, saved *s)
{
    dt__visit v = { .loading = 1, .number = visit_number, .integer = visit_integer, .user = s };
    return dt__scheduler_visit(f->s, &v, "schedule");
}

UTEST(sched, saved_and_loaded_at_every_10th_step_it_goes_on_with_the_same_bits)
{
    for (int k = 0; k < CASES; k++) {
        const golden_sched_case *c = &golden_sched[k];
        fixture                  whole, cut, next;
        saved                    s;
        fixture_case(&whole, c);
        fixture_case(&cut, c);
        for (int t = 0; t < 310; t++) {
            ASSERT_OK(advance(&whole, is_plateau(c)));
            ASSERT_OK(advance(&cut, is_plateau(c)));
            if (t % 10 == 0) {
                ASSERT_OK(save(&cut, &s));
                fixture_close(&cut);
                fixture_case(&next, c);
                ASSERT_OK(load(&next, &s));
                cut = next;
            }
            for (int g = 0; g < 2; g++) {
                double a[2] = { dt_optimizer_lr(whole.opt, g), dt_optimizer_momentum(whole.opt, g) };
                double b[2] = { dt_optimizer_lr(cut.opt, g), dt_optimizer_momentum(cut.opt, g) };
                ASSERT_TRUE_MSG(!memcmp(a, b, sizeof a), c->name);
            }
        }
        EXPECT_EQ(310, (int)dt_scheduler_steps(cut.s));
        fixture_close(&whole);
        fixture_close(&cut);
    }
    EXPECT_EQ(0, dt_check("sched"));
}

/* The base lr is part of what is saved: a schedule made on a decayed lr, as after loading the optimiser, goes on. */
UTEST(sched, loading_brings_the_base_lr_back)
{
    fixture a, b;
    saved   s;
    fixture_open(&a, false);
    a.s = dt_cosine_annealing_lr(a.opt, .t_max = 5);
    for (int i = 0; i < 4; i++) dt_scheduler_step(a.s);
    ASSERT_OK(save(&a, &s));
    fixture_open(&b, false);
    dt_optimizer_set_lr(b.opt, 0, 0.003);
    b.s = dt_cosine_annealing_lr(b.opt, .t_max = 5);
    ASSERT_OK(load(&b, &s));
    for (int i = 0; i < 20; i++) {
        dt_scheduler_step(a.s);
        dt_scheduler_step(b.s);
        EXPECT_NEAR(dt_optimizer_lr(a.opt, 0), dt_optimizer_lr(b.opt, 0), 0);
    }
    fixture_close(&a);
    fixture_close(&b);
    EXPECT_EQ(0, dt_check("sched"));
}

UTEST(sched, what_does_not_fit_is_not_loaded)
{
    fixture a, b;
    saved   s;
    fixture_open(&a, false);
    fixture_open(&b, false);
    a.s = dt_cosine_annealing_warm_restarts(a.opt, .t_0 = 4);
    for (int i = 0; i < 6; i++) dt_scheduler_step(a.s);
    ASSERT_OK(save(&a, &s));
    b.s = dt_step_lr(b.opt, .step_size = 3);
    EXPECT_ERROR(load(&b, &s), "of dt_cosine_annealing_warm_restarts, this scheduler of dt_step_lr");
    dt_scheduler_free(b.s);
    dt_optimizer_add_group(b.opt, "*.weight", .lr = 1);
    b.s = dt_cosine_annealing_warm_restarts(b.opt, .t_0 = 4);
    EXPECT_ERROR(load(&b, &s), "2 groups were saved, the optimiser has 3");
    fixture_close(&b);

    fixture_open(&b, false);
    b.s = dt_cosine_annealing_warm_restarts(b.opt, .t_0 = 4);
    for (int i = 0; i < s.n; i++) { /* each entry lost, each one senseless */
        s.damage = i;
        s.other = NULL;
        EXPECT_ERROR(load(&b, &s), "is missing");
        s.other = "-3";
        EXPECT_ERROR(load(&b, &s), "dt_scheduler");
        EXPECT_EQ(0, (int)dt_scheduler_steps(b.s));
        EXPECT_NEAR(0.1, dt_optimizer_lr(b.opt, 0), 0);
    }
    s.damage = saved_at(&s, "schedule.t_i");
    s.other = "1"; /* shorter than what has passed of it */
    EXPECT_ERROR(load(&b, &s), "damaged");
    s.damage = -1;
    EXPECT_OK(load(&b, &s));
    EXPECT_EQ(6, (int)dt_scheduler_steps(b.s));
    EXPECT_ERROR(save(&(fixture){ NULL, NULL, NULL }, &s), "NULL");
    fixture_close(&a);
    fixture_close(&b);
}

/* ---------------------------------------------------------------------------------------------------- memory */
static int   allocs_left = -1;
static void *meagre_alloc(void *user, size_t n)
{
    (void)user;
    return allocs_left == 0 ? NULL : (allocs_left -= allocs_left > 0, malloc(n));
}
static void meagre_free(void *user, void *p, size_t n)
{
    (void)user;
    (void)n;
    free(p);
}

UTEST(sched, out_of_memory_is_an_error_and_leaks_nothing)
{
    static const int64_t steps[2] = { 1, 2 };
    dt_allocator         meagre = { meagre_alloc, meagre_free, NULL };
    fixture              f;
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_set_allocator(&meagre));
    fixture_open(&f, false);
    size_t before = dt_stats().host_bytes;
    for (int n = 0; n < 2; n++) {
        allocs_left = n;
        EXPECT_ERROR(dt_multistep_lr(f.opt, .milestones = steps, .nmilestones = 2), "dt_multistep_lr: out of memory");
        allocs_left = -1;
        EXPECT_EQ(before, dt_stats().host_bytes);
    }
    fixture_close(&f);
    dt_empty_cache();
    EXPECT_OK(dt_set_allocator(NULL));
}

UTEST_MAIN()
