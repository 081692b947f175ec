/* test_attach.c: models on a parameter server: the same bits as one process, all disciplines, cancellation, mixed precision,
   schedules, checkpoints, errors */
#include "dt_test.h"

#include "crew.h"
#include "dt_data.h"
#include "dt_dist.h"
#include "temp_files.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_MAIN()

enum { N = 60, IN = 12, HIDDEN = 20, CLASSES = 3, BATCH = 5, WEIGHTS = HIDDEN * IN + HIDDEN + CLASSES * HIDDEN + CLASSES };
static float   data_x[N][IN];
static int64_t data_y[N];
static void    data_make(void)
{
    uint32_t r[4];
    for (int i = 0; i < N * IN; i++) {
        dt_philox(9, (uint64_t)i, r);
        data_x[i / IN][i % IN] = (float)r[0] / 4294967296.0f - 0.5f;
        data_y[i / IN] = r[1] % CLASSES;
    }
}
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    return dt_linear(m, "b", dt_linear(m, "a", x, .out = HIDDEN, .act = DT_ACT_TANH), .out = CLASSES);
}
static dt_tensor *loss_of(dt_model *m, int64_t batch)
{
    int64_t    at = batch % (N / BATCH) * BATCH;
    dt_tensor *x = dt_from(data_x[at], DT_SHAPE(BATCH, IN)), *y = dt_from(&data_y[at], DT_SHAPE(BATCH), .dtype = DT_I64);
    return dt_cross_entropy(net(m, x), y);
}
static void weights_of(dt_model *m, float *w)
{
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        if (p.buffer) continue;
        dt_copy_out(dt_cast(p.value, DT_F32), w, (size_t)dt_numel(p.value) * 4);
        w += dt_numel(p.value);
    }
    dt_end();
}

/* ---- n ranks that are threads */
typedef struct crowd crowd;
typedef struct member {
    crowd   *all;
    dt_comm *c;
    int      rank;
    char     error[1024];
} member;
struct crowd {
    int    n, servers;
    void (*fn)(member *k);
    const void *arg;
    float  w[8][WEIGHTS];
    int64_t number[8][8];
    double loss[8][2];
    int    failed;
    member m[8];
};
static void *crowd_main(void *arg)
{
    member *k = (member *)arg;
    k->all->fn(k);
    if (dt_error()) {
        snprintf(k->error, sizeof k->error, "%s", dt_error());
        __atomic_add_fetch(&k->all->failed, 1, __ATOMIC_RELAXED);
        dt_error_clear();
    }
    dt_comm_free(k->c);
    return NULL;
}
static int crowd_run(crowd *a, int n, int servers, void (*fn)(member *k), const void *arg) /* how many ranks have failed */
{
    dt_comm  *c[8];
    pthread_t t[8];
    memset((void *)a, 0, sizeof *a);
    a->n = n;
    a->servers = servers;
    a->fn = fn;
    a->arg = arg;
    if (dt_comm_threads(n, c, .timeout = 20 * dt_test_slow())) return -1;
    for (int i = 0; i < n; i++) {
        a->m[i].all = a;
        a->m[i].c = c[i];
        a->m[i].rank = i;
        pthread_create(&t[i], NULL, crowd_main, &a->m[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < n && a->failed; i++)
        if (a->m[i].error[0]) printf("    rank %d: %s\n", i, a->m[i].error);
    return a->failed;
}

/* ---- the same bits as one process */
typedef struct kind {
    const char *name;
    dt_optimizer *(*make)(dt_model *m);
    bool clips;
} kind;
#define KIND(name, call) \
    static dt_optimizer *make_##name(dt_model *m) { return call; }
KIND(sgd, dt_sgd(m, .lr = 0.1, .weight_decay = 0.01))
KIND(momentum, dt_sgd(m, .lr = 0.1, .momentum = 0.9, .dampening = 0.1))
KIND(nesterov, dt_sgd(m, .lr = 0.05, .momentum = 0.9, .nesterov = true, .clip_value = 0.02))
KIND(adam, dt_adam(m, .lr = 0.01, .weight_decay = 0.1))
KIND(adamw, dt_adamw(m, .lr = 0.01))
KIND(amsgrad, dt_adam(m, .lr = 0.01, .amsgrad = true))
KIND(rmsprop, dt_rmsprop(m, .lr = 0.01, .momentum = 0.5, .centered = true))
KIND(adagrad, dt_adagrad(m, .lr = 0.05, .lr_decay = 0.01, .initial_accumulator_value = 0.1))
KIND(lars, dt_lars(m, .lr = 0.5, .weight_decay = 0.01))
KIND(lamb, dt_lamb(m, .lr = 0.05, .clip_norm = DT_ZERO))
KIND(lamb_clipped, dt_lamb(m, .lr = 0.05, .clip_norm = 0.05))
KIND(clipped, dt_sgd(m, .lr = 0.5, .momentum = 0.9, .clip_norm = 0.05))
static dt_optimizer *make_groups(dt_model *m)
{
    dt_optimizer *o = dt_adamw(m, .lr = 0.02);
    dt_optimizer_add_group(o, "*.bias", .weight_decay = DT_ZERO, .lr = 0.05);
    return o;
}
static dt_optimizer *make_groups_clipped(dt_model *m)
{
    dt_optimizer *o = dt_sgd(m, .lr = 0.2, .clip_norm = 0.1, .clip_value = 0.05);
    dt_optimizer_add_group(o, "*.bias", .lr = 0.05);
    return o;
}
static const kind kinds[] = {
    { "sgd", make_sgd, false }, { "momentum", make_momentum, false }, { "nesterov", make_nesterov, false }, { "adam", make_adam, false },
    { "adamw", make_adamw, false }, { "amsgrad", make_amsgrad, false }, { "rmsprop", make_rmsprop, false }, { "adagrad", make_adagrad, false },
    { "lars", make_lars, false }, { "lamb", make_lamb, false }, { "groups", make_groups, false }, { "clipped", make_clipped, true },
    { "lamb clipped", make_lamb_clipped, true }, { "groups clipped", make_groups_clipped, true },
};
enum { KINDS = sizeof kinds / sizeof *kinds };
/* one process: the gradients of P batches are added in order, times 1/P */
static void reference(const kind *k, int workers, int steps, float *w, dt_scheduler *(*schedule)(dt_optimizer *))
{
    static float  sum[WEIGHTS], g[WEIGHTS];
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = k->make(m);
    dt_scheduler *s = schedule ? schedule(opt) : NULL;
    for (int step = 0; step < steps; step++) {
        for (int p = 0; p < workers; p++) {
            dt_optimizer_zero_grad(opt);
            dt_backward(loss_of(m, step * workers + p));
            int at = 0;
            for (int i = 0; i < dt_model_count(m); i++) {
                dt_parameter_info q;
                dt_model_get(m, i, &q);
                dt_copy_out(dt_grad(q.value), g + at, (size_t)dt_numel(q.value) * 4);
                at += (int)dt_numel(q.value);
            }
            for (int i = 0; i < WEIGHTS; i++) sum[i] = p ? sum[i] + g[i] : g[i];
        }
        float each = 1.0f / (float)workers;
        int   at = 0;
        for (int i = 0; i < WEIGHTS && workers > 1; i++) sum[i] *= each;
        for (int i = 0; i < dt_model_count(m); i++) {
            dt_parameter_info q;
            dt_model_get(m, i, &q);
            dt_copy_in(dt_grad(q.value), sum + at, (size_t)dt_numel(q.value) * 4);
            at += (int)dt_numel(q.value);
        }
        dt_step(opt);
        if (s) dt_scheduler_step(s);
    }
    weights_of(m, w);
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
enum { STEPS = 6 };
static void sync_rank(member *k)
{
    const kind   *kd = (const kind *)k->all->arg;
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers, .big = 100);
    dt_model     *m = dt_model_new(.seed = (uint64_t)(3 + k->rank)); /* worker 0's values are everybody's */
    dt_optimizer *opt = kd->make(m);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = DT_PS_SYNC);
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    for (int i = 0; i < STEPS && dt_ps_worker(store) >= 0 && !dt_error(); i++) {
        int64_t b = dt_ps_next_batch(pm);
        if (b != i * dt_ps_workers(store) + k->rank) dt_fail(DT_ERR_STATE, "batch %d in step %d", (int)b, i);
        dt_backward(loss_of(m, b));
        dt_step(opt);
    }
    if (dt_ps_worker(store) >= 0 && !dt_error()) {
        weights_of(m, k->all->w[k->rank]);
        k->all->number[k->rank][0] = dt_ps_model_info(pm).version;
    }
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, sync_is_one_process_bit_for_bit)
{
    static crowd a;
    static float w[WEIGHTS];
    data_make();
    for (int i = 0; i < KINDS; i++)
        for (int form = 0; form < (dt_test_quick() ? 2 : 4); form++) {
            int workers = form == 0 ? 3 : form == 1 ? 2 : form == 2 ? 1 : 4, servers = form == 0 ? 1 : form == 1 ? 2 : form == 2 ? 1 : 0;
            if (kinds[i].clips && servers != 1) continue;
            reference(&kinds[i], workers, STEPS, w, NULL);
            ASSERT_EQ_MSG(0, crowd_run(&a, workers + servers, servers, sync_rank, &kinds[i]), kinds[i].name);
            for (int r = 0; r < workers; r++) {
                EXPECT_EQ(STEPS, a.number[r][0]);
                EXPECT_TRUE_MSG(!memcmp(w, a.w[r], sizeof w), kinds[i].name);
            }
        }
}
static void ddp_rank(member *k)
{
    const kind   *kd = (const kind *)k->all->arg;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = kd->make(m);
    dt_ddp       *d = dt_ddp_new(m, k->c, .slots = 2);
    for (int i = 0; i < STEPS; i++) {
        dt_backward(loss_of(m, i * 2 + k->rank));
        dt_step(opt);
    }
    weights_of(m, k->all->w[k->rank]);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(attach, two_workers_are_a_ddp_with_two_slots)
{
    static crowd a, b;
    data_make();
    ASSERT_EQ(0, crowd_run(&a, 3, 1, sync_rank, &kinds[3]));
    ASSERT_EQ(0, crowd_run(&b, 2, 0, ddp_rank, &kinds[3]));
    EXPECT_EQ(0, memcmp(a.w[1], b.w[0], sizeof a.w[0]));
}

/* ---- a parameter that nobody's backward reaches does not change; one that some reach does */
static void unreached_rank(member *k)
{
    dt_ps        *store = dt_ps_new(k->c);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adamw(m, .lr = 0.01, .weight_decay = 0.1);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store);
    for (int i = 0; i < 4 && !dt_error(); i++) {
        dt_tensor *x = dt_from(data_x[0], DT_SHAPE(BATCH, IN)), *a = dt_linear(m, "a", x, .out = 4), *b = dt_linear(m, "b", x, .out = 4),
                  *c = dt_linear(m, "c", x, .out = 4);
        dt_tensor *loss = dt_mean(dt_mul(a, a));
        if (k->rank == 1) loss = dt_add(loss, dt_mean(dt_mul(b, b)));
        if (i == 2) loss = dt_mean(dt_mul(c, c)); /* its second moment begins here, with t = 1 */
        dt_backward(loss);
        dt_step(opt);
        float *w = k->all->w[k->rank];
        for (int q = 0; q < 3; q++) {
            float s = 0;
            dt_copy_out(dt_sum(dt_model_find(m, q == 0 ? "a.weight" : q == 1 ? "b.weight" : "c.weight")), &s, 4);
            w[i * 3 + q] = s;
        }
        dt_end();
    }
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, parameters_without_a_gradient_stay)
{
    static crowd a;
    data_make();
    ASSERT_EQ(0, crowd_run(&a, 2, 0, unreached_rank, NULL));
    const float *w = a.w[0];
    EXPECT_TRUE(w[0] != w[3] && w[1] != w[4]);      /* a: both; b: worker 1 */
    EXPECT_EQ(w[2], w[5]);                          /* c: nobody, in spite of its weight decay */
    EXPECT_TRUE(w[8] != w[5] && w[8] == w[11]);     /* until step 2, and not after it */
    EXPECT_TRUE(w[3] == w[6] && w[6] != w[9]);
    EXPECT_EQ(0, memcmp(a.w[0], a.w[1], 12 * sizeof(float)));
}

/* ---- the scheduler's step is the number of the update */
static dt_scheduler *schedule(dt_optimizer *opt)
{
    dt_scheduler *s = dt_cosine_annealing_lr(opt, .t_max = 5);
    dt_warmup(s, .steps = 2);
    return s;
}
static void schedule_rank(member *k)
{
    const kind   *kd = (const kind *)k->all->arg;
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = kd->make(m);
    dt_scheduler *s = schedule(opt);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .scheduler = s);
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    for (int i = 0; i < STEPS && dt_ps_worker(store) >= 0; i++) {
        dt_backward(loss_of(m, dt_ps_next_batch(pm)));
        dt_step(opt);
    }
    k->all->loss[k->rank][0] = dt_optimizer_lr(opt, 0);
    if (dt_ps_worker(store) >= 0) weights_of(m, k->all->w[k->rank]);
    dt_ps_detach(pm);
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, the_scheduler_counts_updates)
{
    static crowd a;
    static float w[WEIGHTS];
    data_make();
    reference(&kinds[1], 2, STEPS, w, schedule);
    ASSERT_EQ(0, crowd_run(&a, 4, 2, schedule_rank, &kinds[1]));
    EXPECT_EQ(0, memcmp(w, a.w[0], sizeof w));
    EXPECT_EQ(0, memcmp(w, a.w[1], sizeof w));
    EXPECT_TRUE(a.loss[0][0] == a.loss[1][0] && a.loss[0][0] > 0 && a.loss[0][0] < 0.1);
}

/* ---- all disciplines on digits */
typedef struct mode_case { int mode, k, staleness; } mode_case;
static const mode_case modes[] = {
    { DT_PS_SYNC, 0, 0 }, { DT_PS_K_SYNC, 2, 0 }, { DT_PS_K_BATCH_SYNC, 2, 0 }, { DT_PS_K_ASYNC, 2, 0 }, { DT_PS_K_BATCH_ASYNC, 2, 0 },
    { DT_PS_ASYNC, 0, 0 }, { DT_PS_SSP, 0, 2 }, { DT_PS_SSP_CLOCK, 0, 2 },
};
enum { MODES = sizeof modes / sizeof *modes, TOTAL = 180 };
static dt_tensor *digits(dt_model *m, dt_tensor *x)
{
    x = dt_relu(dt_batchnorm1d(m, "bn", dt_linear(m, "a", dt_flatten(x), .out = 32)));
    return dt_linear(m, "b", x, .out = 10);
}
static double digits_loss(dt_model *m, dt_dataset *set)
{
    dt_loader *in = dt_loader_new(set, .batch = 500);
    dt_batch   b;
    double     loss = NAN;
    dt_model_eval(m);
    dt_no_grad_begin();
    if (dt_loader_next(in, &b)) loss = dt_item(dt_cross_entropy(digits(m, b.x), b.y));
    dt_no_grad_end();
    dt_end();
    dt_model_train(m);
    dt_loader_free(in);
    return loss;
}
static void digits_train(dt_comm *c, int servers, const mode_case *q, double *before, double *after, int64_t *steps, int64_t *seen)
{
    dt_ps        *store = dt_ps_new(c, .servers = servers);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    dt_dataset   *set = dt_idx_open("data/digits/digits-images-idx3-ubyte", .labels = "data/digits/digits-labels-idx1-ubyte", .classes = 10);
    dt_loader    *in = dt_loader_new(set, .batch = 50, .shuffle = true, .drop_last = true);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = q->mode, .k = q->k, .staleness = q->staleness, .batches = TOTAL);
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    else {
        dt_batch b;
        for (int64_t n; (n = dt_ps_next_batch(pm)) >= 0; (*steps)++) {
            if (!dt_loader_get(in, n, &b)) break;
            dt_tensor *loss = dt_cross_entropy(digits(m, b.x), b.y);
            if (!*steps) *before = dt_item(loss);
            dt_backward(loss);
            dt_step(opt);
            if (dt_ps_model_info(pm).verdict == DT_PS_USED || dt_ps_model_info(pm).verdict == DT_PS_KEPT) *seen += n + 1;
        }
        dt_ps_collect(pm);
        *after = digits_loss(m, set);
    }
    dt_ps_detach(pm);
    dt_loader_free(in);
    dt_dataset_free(set);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
static void digits_member(member *k)
{
    crowd *a = k->all;
    digits_train(k->c, a->servers, (const mode_case *)a->arg, &a->loss[k->rank][0], &a->loss[k->rank][1], &a->number[k->rank][0], &a->number[k->rank][1]);
}
UTEST(attach, digits_are_learnt_by_threads_in_all_modes)
{
    static crowd a;
    for (int q = 0; q < MODES; q++) {
        int64_t seen = 0;
        int     servers = q % 3;
        char    text[40];
        snprintf(text, sizeof text, "mode %d, %d servers", modes[q].mode, servers);
        ASSERT_EQ_MSG(0, crowd_run(&a, 3 + servers, servers, digits_member, &modes[q]), text);
        for (int i = 0; i < 3; i++) {
            seen += a.number[i][1];
            EXPECT_LT_MSG(a.loss[i][1], 1.7, text);
            EXPECT_EQ_MSG(a.loss[0][1], a.loss[i][1], text); /* the same parameters and running statistics */
        }
        EXPECT_EQ_MSG(TOTAL * (TOTAL + 1) / 2, seen, text); /* every batch is in one update */
    }
}
static void digits_crew(crew *k)
{
    double  before = 0, after = 0;
    int64_t steps = 0, seen = 0;
    digits_train(k->c, 1, (const mode_case *)k->arg, &before, &after, &steps, &seen);
    if (k->rank < 3) crew_check(k, after < 1.7 && after > 0, "the loss has not fallen");
    k->box->x[k->rank][0] = (float)after;
}
UTEST(attach, digits_are_learnt_by_processes_in_all_modes)
{
    for (int q = 0; q < MODES; q++)
        EXPECT_EQ(0, crew_run(q & 1 ? "tcp" : "shm", 4, digits_crew, (void *)(uintptr_t)&modes[q]));
}
