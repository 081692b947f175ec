/* test_pipe.c: one model over several ranks: the bits of one rank with every schedule, what crosses cuts, mixed precision,
   clipping, checkpoints, errors
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_pipe.h"
#include "fake_device.h"
#include "models.h"
#include "teams.h"
#include "temp_files.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== >>same_bits */
typedef struct plan { /* of a test */
    int         model, schedule, chunks, micro, steps;
    bool        recompute;
    const char *amp; /* level, or NULL */
    float       clip;
    bool        fake; /* a device whose memory the host cannot read */
} plan;
static plan plan_of(int model, int schedule, int chunks, int micro, int steps)
{
    plan k = { model, schedule, chunks, micro, steps, false, NULL, 0, false };
    return k;
}
enum { BATCH = 16 };
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)
static const plan *the; /* of this process */
static void unsplit_step(dt_model *m, dt_optimizer *opt, const plan *k, dt_amp *amp, double *loss)
{
    dt_tensor *x, *y;
    batch(k->model, BATCH, &x, &y);
    int64_t n = BATCH / k->micro;
    *loss = 0;
    for (int i = 0; i < k->micro; i++) {
        dt_tensor *l = models[k->model](m, dt_narrow(x, 0, i * n, n), dt_narrow(y, 0, i * n, n), NULL);
        *loss += dt_item(l) / k->micro;
        if (amp) dt_amp_backward(amp, dt_mul_scalar(l, 1.0 / k->micro));
        else dt_backward(l, .grad = dt_full(1.0 / k->micro, dt_shape_of(l)));
    }
    dt_step(opt);
}
/* How many parameters of this rank differ; *mine: how many it has. Of the one with the name tied (NULL: of all) *most is how much
   elements differ. */
static int differ(dt_model *m, dt_model *whole, const char *tied, double *most, int *mine)
{
    int bad = 0;
    *mine = 0;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info a, b;
        dt_model_get(m, i, &a);
        dt_model_get(whole, i, &b);
        if (!strcmp(dt_device_name(dt_device_of(a.value)), "elsewhere")) continue;
        ++*mine;
        if (strcmp(a.name, b.name) || dt_numel(a.value) != dt_numel(b.value)) return 1000;
        size_t n = (size_t)dt_numel(a.value) * (size_t)dt_dtype_nbytes(dt_dtype_of(a.value));
        char  *p = (char *)malloc(n + 1), *q = (char *)malloc(n + 1);
        dt_copy_out(a.value, p, n);
        dt_copy_out(b.value, q, n);
        bool near = !tied || !strcmp(a.name, tied);
        for (size_t k = 0; near && k < n / 4; k++) {
            double d = fabs((double)((float *)(void *)p)[k] - (double)((float *)(void *)q)[k]);
            if (!(d <= *most)) *most = d;
        }
        if (!near && memcmp(p, q, n)) bad++, printf("    '%s' differs: %.9g %.9g\n", a.name, (double)((float *)(void *)p)[0], (double)((float *)(void *)q)[0]);
        free(p), free(q);
    }
    dt_end();
    return bad;
}
static void same_bits(team *t, dt_comm *c, int rank)
{
    const plan *k = the;
    stages = t->n * (k->chunks ? k->chunks : 1);
    double   loss[2] = { 0, 0 }, most = 0;
    int      mine = 0;

    dt_rng   start;
    fake_device *f = k->fake ? fake_device_new(0) : NULL;
    dt_device   *dev = f ? f->dev : NULL;
    if (f) dt_set_default_device(dev);
    dt_model *m = dt_model_new(.device = dev, .seed = 3), *whole = dt_model_new(.device = dev, .seed = 3);
    bool      sums = k->model == WORDS; /* of the table the order of a sum differs: Adam would enlarge that */
    dt_optimizer *opt = sums ? dt_sgd(m, .lr = 0.1f, .momentum = 0.9f) : dt_adam(m, .lr = 0.01f);
    dt_optimizer *all = sums ? dt_sgd(whole, .lr = 0.1f, .momentum = 0.9f) : dt_adam(whole, .lr = 0.01f);
    dt_amp       *amp = k->amp ? dt_amp_new(m, .level = k->amp, .dtype = DT_F16, .init_scale = 1024) : NULL;
    dt_amp       *amp2 = k->amp ? dt_amp_new(whole, .level = k->amp, .dtype = DT_F16, .init_scale = 1024) : NULL;
    dt_pipeline  *p = dt_pipeline_new(m, c, .micro = k->micro, .schedule = (dt_pipe_kind)k->schedule, .chunks = k->chunks,
                                      .recompute = k->recompute, .amp = amp);
    CHECK(p != NULL);
    dt_manual_seed(11);
    for (int i = 0; i < k->steps && !dt_error(); i++) {
        dt_tensor *x, *y;
        start = *dt_rng_default();
        batch(k->model, BATCH, &x, &y);
        CHECK(!dt_pipeline_backward(p, models[k->model], NULL, x, y, &loss[0]));
        dt_step(opt);
        *dt_rng_default() = start;
        unsplit_step(whole, all, k, amp2, &loss[1]);
        if (loss[0] != loss[1] && !sums) printf("    losses %.17g %.17g, step %d, %s\n", loss[0], loss[1], i, k->amp ? k->amp : "");
        CHECK(sums && i ? fabs(loss[0] - loss[1]) < 1e-5 : loss[0] == loss[1]);
        if (sums && i == 0) CHECK(!differ(m, whole, "table", &most, &mine)); /* later all depend on the table */
    }
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    if (!dt_error() && !sums) CHECK(!differ(m, whole, "", &most, &mine));
    if (!dt_error() && sums) {
        float *table = (float *)calloc(2, 17 * 16 * sizeof *table), *minus = table + 17 * 16;
        bool   have = rank == 0 || rank == t->n - 1; /* both have it, and it is the same */
        for (int i = 0; have && i < dt_model_count(m); i++) {
            dt_parameter_info a;
            dt_model_get(m, i, &a);
            if (!strcmp(a.name, "table")) dt_copy_out(a.value, table, 17 * 16 * sizeof *table);
        }
        for (int i = 0; i < 17 * 16; i++) minus[i] = have ? -table[i] : -INFINITY, table[i] = have ? table[i] : -INFINITY;
        CHECK(!dt_comm_allreduce(c, table, 2 * 17 * 16, DT_COMM_F32, DT_COMM_MAX));
        for (int i = 0; i < 17 * 16; i++) CHECK(table[i] == -minus[i] && table[i] != 0);
        CHECK(most < 1e-6);
        free(table);
    }
    __atomic_add_fetch(&t->flag[0], mine, __ATOMIC_RELAXED);
    dt_pipeline_free(p);
    dt_amp_free(amp);
    dt_amp_free(amp2);
    dt_optimizer_free(opt), dt_optimizer_free(all);
    dt_model_free(m);
    dt_model_free(whole);
    if (f) {
        dt_end();
        dt_set_default_device(NULL);
        CHECK(fake_device_free(f) == DT_OK); /* no tensor is left on it */
    }
    CHECK(!dt_comm_free(c));
}
static void compare(int *utest_result, int ranks, plan k)
{
    team t = team_of("shm", ranks, 30, same_bits);
    the = &k;
    EXPECT_EQ(0, team_run(&t));
    EXPECT_EQ(ranks, t.done);
    EXPECT_GT(t.flag[0], ranks - 1);
}
static void all_schedules(int *utest_result, int model)
{
    static const int schedule[] = { DT_PIPE_GPIPE, DT_PIPE_1F1B, DT_PIPE_INTERLEAVED, DT_PIPE_ZB_H1 };
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int i = 0; i < 4; i++) {
            plan k = plan_of(model, schedule[i], schedule[i] == DT_PIPE_INTERLEAVED ? 2 : 1, 4, 3);
            compare(utest_result, ranks, k);
            for (int micro = 8; micro <= 16 && !dt_test_quick(); micro *= 2) {
                k.micro = micro;
                compare(utest_result, ranks, k);
            }
        }
}
UTEST(same_bits, residuals_skip_connections_dropout) { all_schedules(utest_result, MLP); }
UTEST(same_bits, batch_norms_and_a_stage_without_parameters) { all_schedules(utest_result, CONV); }
UTEST(same_bits, a_table_on_two_ranks) { all_schedules(utest_result, WORDS); }
UTEST(same_bits, odd_numbers)
{
    compare(utest_result, 3, plan_of(MLP, DT_PIPE_1F1B, 1, 2, 2));
    compare(utest_result, 3, plan_of(MLP, DT_PIPE_ZB_H1, 1, 1, 2));
    compare(utest_result, 1, plan_of(MLP, DT_PIPE_1F1B, 1, 4, 2));
    compare(utest_result, 1, plan_of(MLP, DT_PIPE_INTERLEAVED, 4, 4, 2));
}
UTEST(same_bits, computed_again)
{
    for (int i = 0; i < 2; i++) {
        plan k = { i ? CONV : MLP, DT_PIPE_1F1B, 1, 4, 3, true, NULL, 0, false };
        compare(utest_result, 2, k);
        k.schedule = DT_PIPE_ZB_H1;
        compare(utest_result, 4, k);
        k.schedule = DT_PIPE_INTERLEAVED;
        k.chunks = 2;
        compare(utest_result, 2, k);
    }
}
UTEST(same_bits, memory_that_the_host_cannot_read)
{
    for (int i = 0; i < 4; i++) {
        plan k = plan_of(i % 3, i == 3 ? DT_PIPE_INTERLEAVED : i == 1 ? DT_PIPE_ZB_H1 : DT_PIPE_1F1B, i == 3 ? 2 : 1, 4, 2);
        k.fake = true;
        compare(utest_result, 2, k);
    }
}
UTEST(same_bits, of_all_that_crosses)
{
    for (crossing_kind = 0; crossing_kind < CROSSINGS; crossing_kind++)
        for (int i = 0; i < 5; i++) {
            int  kind = i == 2 ? DT_PIPE_ZB_H1 : i == 3 ? DT_PIPE_INTERLEAVED : DT_PIPE_1F1B;
            plan k = plan_of(CROSSING, kind, i == 3 ? 2 : 1, 4, 2);
            k.fake = i == 1;
            k.recompute = i == 4;
            compare(utest_result, i == 0 ? 1 : i == 2 ? 4 : 2, i == 0 ? plan_of(CROSSING, DT_PIPE_INTERLEAVED, 4, 4, 2) : k);
        }
}
UTEST(same_bits, mixed_precision)
{
    static const char *const level[] = { "O1", "O2" };
    for (int i = 0; i < 4; i++) {
        plan k = { i / 2 ? CONV : MLP, DT_PIPE_1F1B, 1, 4, 3, false, level[i % 2], 0, false };
        compare(utest_result, 2, k);
        k.schedule = DT_PIPE_ZB_H1;
        compare(utest_result, 2, k);
    }
}

/* ==================================================================================================== >>whole_model */
typedef struct rig { /* a model with what trains it */
    dt_model     *m;
    dt_optimizer *opt;
    dt_amp       *amp;
    dt_pipeline  *p; /* NULL: one rank */
} rig;
static rig rig_of(dt_comm *c, plan k)
{
    rig r;
    memset(&r, 0, sizeof r);
    r.m = dt_model_new(.seed = 3);
    r.opt = dt_adamw(r.m, .lr = 0.01f, .clip_norm = k.clip);
    r.amp = k.amp ? dt_amp_new(r.m, .level = k.amp, .dtype = DT_F16, .init_scale = 65536.0 * 256) : NULL;
    if (c) r.p = dt_pipeline_new(r.m, c, .micro = k.micro, .schedule = (dt_pipe_kind)k.schedule, .chunks = k.chunks, .amp = r.amp);
    stages = c ? dt_comm_size(c) * (k.chunks ? k.chunks : 1) : 1;
    return r;
}
static void rig_free(rig *r)
{
    dt_pipeline_free(r->p);
    dt_amp_free(r->amp);
    dt_optimizer_free(r->opt);
    dt_model_free(r->m);
}
static double rig_step(rig *r, plan k)
{
    double     loss = 0;
    dt_tensor *x, *y;
    if (!r->p) {
        unsplit_step(r->m, r->opt, &k, r->amp, &loss);
        return loss;
    }
    batch(k.model, BATCH, &x, &y);
    dt_pipeline_backward(r->p, models[k.model], NULL, x, y, &loss);
    dt_step(r->opt);
    return loss;
}

/* The norm is that of the whole model: the same coefficient on all ranks. A rank without parameters takes part. */
static void clips(team *t, dt_comm *c, int rank)
{
    plan k = plan_of(t->arg, DT_PIPE_1F1B, 1, 4, 3);
    k.clip = 0.05f;
    rig    a = rig_of(c, k);
    double most = 0, l[2];
    int    mine;
    dt_manual_seed(4);
    dt_rng start = *dt_rng_default();
    for (int i = 0; i < 3; i++) l[0] = rig_step(&a, k);
    stages = 1;
    rig b = rig_of(NULL, k);
    *dt_rng_default() = start;
    for (int i = 0; i < 3; i++) l[1] = rig_step(&b, k);
    CHECK(fabs(l[0] - l[1]) < 1e-4);
    differ(a.m, b.m, NULL, &most, &mine);
    CHECK(most < 2e-3); /* Adam: a gradient near 0 may change its sign */
    stages = t->n;
    dt_tensor *x, *y;
    batch(k.model, BATCH, &x, &y);
    CHECK(!dt_pipeline_backward(a.p, models[k.model], NULL, x, y, NULL));
    double norm = dt_clip_grad_norm(a.opt, 1e9), both[2];
    both[0] = norm, both[1] = -norm;
    CHECK(norm > 0 && !dt_comm_allreduce(c, both, 2, DT_COMM_F64, DT_COMM_MAX) && both[0] == -both[1]);
    dt_end();
    if (dt_error()) printf("    %s\n", dt_error());
    CHECK(!dt_error());
    rig_free(&a), rig_free(&b);
    CHECK(!dt_comm_free(c));
}
UTEST(whole_model, clipping_by_the_norm_over_all_stages)
{
    for (int model = 0; model < 3; model++) {
        team t = team_of("shm", 3, 30, clips);
        t.arg = model;
        EXPECT_EQ(0, team_run(&t));
    }
}

/* The loss scale is too large at first: an overflow on one rank skips the step on all, and the scale is halved on all. */
static void overflows(team *t, dt_comm *c, int rank)
{
    plan k = plan_of(MLP, t->arg ? DT_PIPE_ZB_H1 : DT_PIPE_1F1B, 1, 4, 3);
    k.amp = "O2";
    rig    a = rig_of(c, k), b;
    int    mine, skipped = 0;
    double most = 0;
    dt_manual_seed(4);
    dt_rng start = *dt_rng_default();
    for (int i = 0; i < 14; i++) rig_step(&a, k);
    stages = 1;
    b = rig_of(NULL, k);
    *dt_rng_default() = start;
    for (int i = 0; i < 14; i++) rig_step(&b, k);
    skipped = (int)dt_amp_overflows(a.amp);
    CHECK(skipped > 2 && skipped == (int)dt_amp_overflows(b.amp) && dt_amp_scale(a.amp, 0) == dt_amp_scale(b.amp, 0));
    CHECK(!differ(a.m, b.m, "", &most, &mine));
    CHECK(!dt_error());
    rig_free(&a), rig_free(&b);
    CHECK(!dt_comm_free(c));
}
UTEST(whole_model, an_overflow_on_one_rank_is_everyones)
{
    for (int i = 0; i < 2; i++) {
        team t = team_of("shm", 2, 30, overflows);
        t.arg = i;
        EXPECT_EQ(0, team_run(&t));
    }
}

/* Evaluation between steps of training: with another size of the batch; once as in training, which draws for dropout. */
static dt_tensor *evaluated(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    int *grads = (int *)user;
    grads[dt_is_grad_enabled()]++;
    if (!y) y = dt_sum(x, .dims = DT_DIM(1), .keepdim = true); /* of MLP */
    if (!dt_model_is_training(m)) x = dt_mul_scalar(x, 1);     /* another plan */
    dt_tensor *loss = models[grads[2]](m, x, y, NULL);
    grads[dt_is_grad_enabled()]++;
    return loss;
}
static void evaluates(team *t, dt_comm *c, int rank)
{
    plan   k = plan_of(t->arg, DT_PIPE_1F1B, 1, 4, 3);
    rig    a = rig_of(c, k), b;
    double value[3] = { 0 }, most = 0;
    int    mine;
    dt_manual_seed(4);
    dt_rng start = *dt_rng_default();
    for (int i = 0; i < 3; i++) {
        dt_tensor *x, *y;
        int        grads[3] = { 0, 0, t->arg };
        rig_step(&a, k);
        if (i != 1) dt_model_eval(a.m);
        batch(k.model, i ? BATCH : 8, &x, &y);
        CHECK(!dt_pipeline_forward(a.p, evaluated, grads, x, y, &value[i]));
        CHECK(grads[0] > 0 && (i != 1 || !grads[1])); /* a new shape or mode is traced first, with gradients */
        dt_end();
        dt_model_train(a.m);
    }
    stages = 1;
    b = rig_of(NULL, k);
    *dt_rng_default() = start;
    for (int i = 0; i < 3; i++) {
        dt_tensor *x, *y;
        double     v = 0;
        int        each = i ? BATCH / 4 : 2;
        rig_step(&b, k);
        if (i != 1) dt_model_eval(b.m);
        batch(k.model, 4 * each, &x, &y);
        dt_no_grad_begin();
        for (int n = 0; n < 4; n++) {
            dt_forward_begin(b.m);
            v += dt_item(models[k.model](b.m, dt_narrow(x, 0, n * each, each), dt_narrow(y, 0, n * each, each), NULL)) / 4;
        }
        dt_no_grad_end();
        dt_end();
        dt_model_train(b.m);
        CHECK(v == value[i]);
    }
    CHECK(!differ(a.m, b.m, "", &most, &mine));
    stages = t->n;
    double same[4] = { 0, 1, 2, 3 };
    dt_model_eval(a.m);
    for (int i = 0; i < 4 && k.model == MLP; i++) { /* without y; each time another shape than before */
        int        grads[3] = { 0, 0, MLP };
        dt_tensor *x, *y;
        dt_manual_seed(5);
        batch(MLP, i % 2 ? BATCH : 8, &x, &y);
        CHECK(!dt_pipeline_forward(a.p, evaluated, grads, x, i < 2 ? NULL : y, &same[i]));
        dt_end();
    }
    CHECK(k.model != MLP || (fabs(same[0] - same[2]) < 1e-5 && fabs(same[1] - same[3]) < 1e-5)); /* y is rounded otherwise */
    if (dt_error()) printf("    %s\n", dt_error());
    CHECK(!dt_error());
    rig_free(&a), rig_free(&b);
    CHECK(!dt_comm_free(c));
}
UTEST(whole_model, evaluation)
{
    for (int model = 0; model < 2; model++) {
        team t = team_of("shm", 2, 30, evaluates);
        t.arg = model;
        EXPECT_EQ(0, team_run(&t));
    }
}

/* Two steps with one layout, a checkpoint, two more with another: the bits of four steps on one rank. */
static char *checkpoints; /* the directory */
static int   layout[3];   /* ranks of the first part, its schedule, that of the second */
static void  half(team *t, dt_comm *c, int rank)
{
    plan    k = plan_of(t->arg, layout[1 + t->arg2], layout[1 + t->arg2] == DT_PIPE_INTERLEAVED ? 2 : 1, 4, 0);
    rig     a = rig_of(c, k);
    int64_t epoch = 0, step = 0;
    dt_checkpoint *keep = dt_checkpoint_new(checkpoints, .model = a.m, .optimizer = a.opt);
    dt_manual_seed(4);
    CHECK(dt_checkpoint_resume(keep, &epoch, &step) == t->arg2 && step == 2 * t->arg2);
    for (int i = 0; i < 2; i++) rig_step(&a, k);
    CHECK(!dt_checkpoint_save(keep, 0, step + 2));
    CHECK(!dt_model_save(a.m, temp_in(checkpoints, "model.safetensors")));
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    dt_checkpoint_free(keep);
    rig_free(&a);
    CHECK(!dt_comm_free(c));
}
static void two_layouts(int *utest_result, int model, int ranks1, int schedule1, int ranks2, int schedule2)
{
    checkpoints = temp_dir();
    layout[1] = schedule1;
    layout[2] = schedule2;
    for (int i = 0; i < 2; i++) {
        team t = team_of("shm", i ? ranks2 : ranks1, 30, half);
        t.arg = model;
        t.arg2 = i;
        EXPECT_EQ(0, team_run(&t));
    }
    plan k = plan_of(model, 0, 1, 4, 0);
    stages = 1;
    rig a = rig_of(NULL, k), b = rig_of(NULL, k), d = rig_of(NULL, k);
    dt_manual_seed(4);
    for (int i = 0; i < 4; i++) rig_step(&a, k);
    int64_t        epoch, step;
    double         most = 0;
    int            mine = 0;
    dt_checkpoint *keep = dt_checkpoint_new(checkpoints, .model = b.m, .optimizer = b.opt);
    EXPECT_EQ(1, dt_checkpoint_resume(keep, &epoch, &step)); /* what ranks have written, one rank reads */
    EXPECT_EQ(4, step);
    dt_rng start = *dt_rng_default(); /* it is in the file */
    rig_step(&b, k);
    *dt_rng_default() = start;
    rig_step(&a, k);
    EXPECT_EQ(0, differ(a.m, b.m, "", &most, &mine));
    EXPECT_EQ(dt_model_count(a.m), mine);
    EXPECT_EQ(0, dt_model_load(d.m, temp_in(checkpoints, "model.safetensors"))); /* it waits for the first forward */
    rig_step(&d, k);
    EXPECT_TRUE_MSG(!dt_error(), dt_error() ? dt_error() : "");
    dt_checkpoint_free(keep);
    rig_free(&a), rig_free(&b), rig_free(&d);
    temp_remove(checkpoints);
}
UTEST(whole_model, checkpoints_hold_the_unsplit_model)
{
    two_layouts(utest_result, MLP, 2, DT_PIPE_1F1B, 3, DT_PIPE_ZB_H1);
    two_layouts(utest_result, CONV, 4, DT_PIPE_1F1B, 2, DT_PIPE_INTERLEAVED); /* a stage without parameters */
    two_layouts(utest_result, MLP, 1, DT_PIPE_1F1B, 2, DT_PIPE_GPIPE);
}

/* ==================================================================================================== >>memory
   Tensors of UNIT bytes: tanh keeps its result, a linear layer its input, which is the result before. */
enum { ROWS = 64, WIDE = 64, UNIT = ROWS * WIDE * 4, LAYERS = 16 };
static dt_tensor *deep(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)y, (void)user;
    for (int s = 0; s < stages; s++) {
        dt_scope_begin(m, "s%d", s);
        if (s) x = dt_stage(m, "next", x);
        for (int i = 0; i < LAYERS; i++) {
            char name[24];
            snprintf(name, sizeof name, "fc%d", i);
            x = dt_tanh(dt_linear(m, name, x, .out = WIDE));
        }
        dt_scope_end(m);
    }
    return dt_mean(x);
}
static dt_pipe_bytes deep_bytes(int s) /* of stage s, by what the layers need */
{
    dt_pipe_bytes b;
    memset(&b, 0, sizeof b);
    b.in = s ? UNIT : 0;
    b.grad = s + 1 < stages ? UNIT : 0;
    b.kept = b.in + LAYERS * UNIT;
    b.forward = b.kept + LAYERS * UNIT; /* and the results of the linear layers, until it ends */
    b.backward = b.kept + 2 * UNIT;     /* the gradient of the output, and that of the last linear layer */
    b.between = b.in + (2 * LAYERS - 1) * UNIT; /* a linear layer needs its input and the gradient of its output */
    b.input = b.between + UNIT;         /* the gradient of its input */
    if (b.input < b.backward) b.input = b.backward;
    b.weight = b.between;
    return b;
}
static void measures(team *t, dt_comm *c, int rank)
{
    dt_pipe_bytes bytes[8];
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1f);
    dt_pipeline  *p = dt_pipeline_new(m, c, .micro = 8, .schedule = (dt_pipe_kind)t->arg, .recompute = t->arg2);
    dt_tensor    *x = dt_keep(dt_normal(0, 1, DT_SHAPE(8 * ROWS, WIDE)));
    double        peak = 0;
    stages = dt_pipeline_stages(p);
    for (int s = 0; s < stages; s++) {
        bytes[s] = deep_bytes(s);
        if (t->arg2) bytes[s].kept = bytes[s].in;
    }
    for (int i = 0; i < 3; i++) {
        size_t live = dt_stats().live_bytes;
        dt_stats_reset();
        CHECK(!dt_pipeline_backward(p, deep, NULL, x, NULL, NULL));
        if (i) peak = (double)(dt_stats().peak_bytes - live);
        dt_step(opt);
    }
    double formula = (double)dt_pipe_memory(dt_pipeline_schedule(p), rank, bytes);
    if (!(peak < 1.1 * formula && peak > 0.9 * formula) || getenv("DT_SHOW"))
        printf("    %s%s, rank %d of %d: peak %.1f units, formula %.1f\n", dt_pipe_kind_name((dt_pipe_kind)t->arg),
               t->arg2 ? " computed again" : "", rank, t->n, peak / UNIT, formula / UNIT);
    CHECK(peak < 1.1 * formula && peak > 0.9 * formula);
    dt_free(x);
    dt_pipeline_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    CHECK(!dt_error() && !dt_comm_free(c));
}
UTEST(memory, is_what_the_schedule_implies)
{
    static const int schedule[] = { DT_PIPE_GPIPE, DT_PIPE_1F1B, DT_PIPE_INTERLEAVED, DT_PIPE_ZB_H1 };
    for (int i = 0; i < 10; i++) {
        team t = team_of("shm", i % 2 ? 4 : 2, 30, measures);
        t.arg = schedule[i / 2 % 4];
        t.arg2 = i > 7;
        EXPECT_EQ(0, team_run(&t));
        EXPECT_EQ(t.n, t.done);
    }
}

/* ==================================================================================================== >>errors */
static bool says(const char *a, const char *b) /* does the pending error have these words? Clears it */
{
    const char *e = dt_error();
    bool        ok = e && strstr(e, a) && (!b || strstr(e, b));
    if (!ok) printf("    expected '%s' and '%s', found: %s\n", a, b ? b : "", e ? e : "no error");
    dt_error_clear();
    return ok;
}
enum {
    TOO_FEW, OTHER_NAME, OTHER_SHAPE, DIVIDES, READS, READS_ALL, CHANGES, ONE_FAILS, NOT_A_LOSS, NO_LOSS, WRITES, WRITES_A_VIEW,
    WRITES_THE_BASE, WRITES_THE_BATCH, FREE_GRADIENT, EARLY_LOSS, LATER_NULL, CARRIED, SCOPES, ERRORS
};
static int  wrong;   /* which mistake */
static int  step_no; /* of this rank */
static int  own_rank;
static dt_tensor *outside; /* kept by the program */
static dt_tensor *mistaken(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    dt_tensor *batch_x = x, *before = NULL, *part = NULL, *early = NULL;
    x = dt_relu(dt_linear(m, "a", x, .out = 8));
    if (wrong >= WRITES && wrong <= WRITES_THE_BASE) before = dt_detach(x), part = dt_narrow(before, 1, 0, 2);
    if (wrong == EARLY_LOSS) early = dt_mean(x);
    if (wrong == CARRIED && !outside) outside = dt_keep(dt_detach(x));
    x = dt_stage(m, wrong == OTHER_NAME && own_rank == 1 ? "other" : "second", x);
    float value[16];
    if (wrong == READS) dt_item(dt_sum(x));
    if (wrong == READS_ALL) dt_copy_out(x, value, sizeof value);
    if (wrong == CHANGES && step_no == 1) x = dt_relu(x);
    if (wrong == ONE_FAILS && own_rank == 1 && step_no == 1) dt_fail(DT_ERR_STATE, "the program's own error");
    if (wrong == SCOPES) dt_device_begin(m, dt_device_of(x));
    if (wrong == WRITES) dt_fill(before, 1);
    if (wrong == WRITES_A_VIEW) dt_fill(dt_narrow(before, 1, 2, 2), 1);
    if (wrong == WRITES_THE_BASE) dt_add_to(part, part, 1);
    if (wrong == WRITES_THE_BATCH) dt_fill(batch_x, 1);
    if (wrong == FREE_GRADIENT) x = dt_mul(x, outside);
    if (wrong == CARRIED) x = dt_add(x, outside);
    if (before) x = dt_add(x, before);
    x = dt_linear(m, "b", x, .out = 8);
    if (wrong == SCOPES) dt_device_end(m);
    if (wrong != TOO_FEW) x = dt_stage(m, "third", x);
    if (wrong == CHANGES && step_no == 2) x = dt_add(x, x);
    x = dt_linear(m, "c", x, .out = 1);
    if (wrong == EARLY_LOSS) return early;
    return wrong == NOT_A_LOSS ? x : wrong == NO_LOSS || (wrong == LATER_NULL && step_no == 1) ? NULL : dt_mse_loss(x, y);
}
static void mistakes(team *t, dt_comm *c, int rank)
{
    static const char *const words[ERRORS][2] = { { "2 stages", "expected 3" },
                                                  { "different models or batches", "must be the same on all ranks" },
                                                  { "different models or batches", "shapes of x and y" },
                                                  { "multiple of .micro", ".drop_last" },
                                                  { "dt_item", "cut into stages" },
                                                  { "dt_copy_out", "cut into stages" },
                                                  { "same calls", NULL },
                                                  { "the program's own error", NULL },
                                                  { "(2, 1)", "a loss of one element" },
                                                  { "returned NULL", "expected the loss" },
                                                  { "dt_fill: stage 1 (second, rank 1) changes", "change a dt_clone()" },
                                                  { "dt_fill: stage 1 (second, rank 1) changes", "stage 0 (rank 0) has made" },
                                                  { "dt_add_to: stage 1 (second, rank 1) changes", "change a dt_clone()" },
                                                  { "which was made before the forward", "buffer of the model" },
                                                  { "stage 1 (second, rank 1) uses a tensor (8)", "dt_parameter" },
                                                  { "that stage 0 has made", "the last stage, 2 (third, rank 2)" },
                                                  { "stage 2 (third, rank 2): the function returned NULL", NULL },
                                                  { "stage 1 (second, rank 1) uses a tensor", "in an earlier forward" },
                                                  { "dt_device_begin", "a rank uses one device" } };
    wrong = t->arg;
    own_rank = rank;
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1f);
    dt_pipeline  *p = dt_pipeline_new(m, c, .micro = 4);
    int64_t       n = wrong == DIVIDES ? 9 : wrong == OTHER_SHAPE && rank == 2 ? 16 : 8;
    if (wrong == FREE_GRADIENT) outside = dt_set_requires_grad(dt_keep(dt_ones(DT_SHAPE(8))));
    for (step_no = 0; step_no < 3 && !dt_error(); step_no++) {
        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(n, 4)), *y = dt_zeros(DT_SHAPE(n, 1));
        dt_pipeline_backward(p, mistaken, NULL, x, y, NULL);
        dt_step(opt);
    }
    CHECK(says(words[wrong][0], words[wrong][1]));
    dt_free(outside);
    dt_end();
    dt_pipeline_free(p);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_error(c);
    dt_comm_free(c);
}
UTEST(errors, mistakes_are_everyones_error)
{
    for (int i = 0; i < ERRORS; i++) {
        team t = team_of("shm", 3, 20, mistakes);
        t.arg = i;
        EXPECT_EQ(0, team_run(&t));
        EXPECT_EQ(3, t.done);
    }
}
UTEST(errors, of_one_rank)
{
    dt_comm     *c[2];
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    ASSERT_EQ(0, dt_comm_threads_with(2, c, o));
    dt_model *m = dt_model_new(.seed = 1), *used = dt_model_new(.seed = 1);
    EXPECT_TRUE(!dt_pipeline_new(NULL, c[0]) && says("dt_pipeline_new: the model is NULL", NULL));
    EXPECT_TRUE(!dt_pipeline_new(m, NULL) && says("the communicator is NULL", NULL));
    EXPECT_TRUE(!dt_pipeline_new(m, c[0], .micro = 3, .schedule = DT_PIPE_INTERLEAVED) && says("dt_pipeline_new", "micro"));
    EXPECT_TRUE(!dt_pipeline_new(m, c[0], .schedule = (dt_pipe_kind)9) && says("dt_pipeline_new", "kind is 9"));
    dt_linear(used, "a", dt_zeros(DT_SHAPE(2, 2)), .out = 1);
    EXPECT_TRUE(!dt_pipeline_new(used, c[0]) && says("has parameters already", "before the first forward"));
    EXPECT_TRUE(dt_pipeline_backward(NULL, mlp, NULL, NULL, NULL, NULL) && says("the pipeline is NULL", NULL));
    EXPECT_TRUE(dt_stage(m, "", NULL) == NULL && says("a stage needs a name", NULL));
    EXPECT_EQ(0, dt_pipeline_stages(NULL));
    dt_pipeline_free(NULL);
    dt_end();
    dt_model_free(m), dt_model_free(used);
    for (int i = 0; i < 2; i++) dt_comm_abort(c[i], "the end"), dt_comm_error(c[i]), dt_comm_free(c[i]);
}

/* A rank dies, or is stopped, in step 1 of a training: the others learn of it in time, and who it was. */
static void dies(team *t, dt_comm *c, int rank)
{
    plan k = plan_of(MLP, t->arg2, 1, 4, 0);
    rig  a = rig_of(c, k);
    int  victim = t->arg / 2;
    char who[24];
    snprintf(who, sizeof who, "rank %d", victim);
    int64_t begin = dt_test_ns();
    for (int i = 0; i < 50 && !dt_error(); i++) {
        if (rank == victim && i == 1) {
            if (t->arg % 2) {
                t->flag[1] = 1;
                kill(getpid(), SIGSTOP);
            } else kill(getpid(), SIGKILL);
        }
        begin = dt_test_ns();
        rig_step(&a, k);
    }
    if (rank != victim) CHECK(says(who, t->arg % 2 ? NULL : "died"));
    if (rank != victim) CHECK((double)(dt_test_ns() - begin) * 1e-9 < 10 * dt_test_slow());
    dt_error_clear();
    __atomic_add_fetch(&t->flag[2], 1, __ATOMIC_ACQ_REL);
    while (rank == (victim == 0) && t->arg % 2 && team_flag(t, 2) < t->n - 1) usleep(1000); /* it wakes the stopped one up */
    if (rank == (victim == 0) && t->arg % 2) kill(t->pid[victim], SIGCONT);
    rig_free(&a);
    dt_error_clear();
    dt_comm_error(c);
    dt_comm_free(c);
}
UTEST(errors, a_rank_that_dies_or_stops_is_named)
{
    for (int i = 0; i < 6; i++) {
        team t = team_of("shm", 3, 2, dies);
        t.how = i % 3 ? "shm" : "tcp";
        t.arg = i;
        t.arg2 = i % 2 ? DT_PIPE_1F1B : DT_PIPE_ZB_H1;
        EXPECT_EQ(0, team_run(&t));
    }
}
