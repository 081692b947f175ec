/* test_attach.c: models on a parameter server: the same bits as one process, all disciplines, cancellation, mixed precision,
   schedules, checkpoints, errors */
#include "dt_test.h"

#include "crew.h"
#include "dt_data.h"
#include "dt_serve.h"
#include "temp_files.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
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
    float  w[8][WEIGHTS + 100];
    int64_t number[8][8];
    double loss[8][2];
    int    failed, flag;
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
static bool crowd_tolerant; /* the next one survives deaths */
static int crowd_run(crowd *a, int n, int servers, void (*fn)(member *k), const void *arg) /* how many ranks have failed */
{
    dt_comm  *c[8];
    pthread_t t[8];
    memset((void *)a, 0, sizeof *a);
    a->n = n;
    a->servers = servers;
    a->fn = fn;
    a->arg = arg;
    if (dt_comm_threads(n, c, .timeout = 20 * dt_test_slow(), .tolerant = crowd_tolerant)) return -1;
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
KIND(momentum_half, dt_sgd(m, .lr = 0.5, .momentum = 0.9))
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
    { "sgd", make_sgd, false },
    { "momentum", make_momentum, false },
    { "nesterov", make_nesterov, false },
    { "adam", make_adam, false },
    { "adamw", make_adamw, false },
    { "amsgrad", make_amsgrad, false },
    { "rmsprop", make_rmsprop, false },
    { "adagrad", make_adagrad, false },
    { "lars", make_lars, false },
    { "lamb", make_lamb, false },
    { "groups", make_groups, false },
    { "clipped", make_clipped, true },
    { "lamb clipped", make_lamb_clipped, true },
    { "groups clipped", make_groups_clipped, true },
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
            int workers = form == 0   ? 3
                          : form == 1 ? 2
                          : form == 2 ? 1
                                      : 4,
                servers = form == 0   ? 1
                          : form == 1 ? 2
                          : form == 2 ? 1
                                      : 0;
            if (kinds[i].clips && servers != 1) continue;
            reference(&kinds[i], workers, STEPS, w, NULL);
            ASSERT_EQ_MSG(0, crowd_run(&a, workers + servers, servers, sync_rank, &kinds[i]), kinds[i].name);
            for (int r = 0; r < workers; r++) {
                EXPECT_EQ(STEPS, a.number[r][0]);
                EXPECT_TRUE_MSG(!memcmp(w, a.w[r], sizeof w), kinds[i].name);
            }
        }
}
/* With several servers the norm is the sum of their parts: the same bits in each run, and those of one process but for rounding. */
UTEST(attach, clipping_by_norm_with_several_servers)
{
    static crowd a, b;
    static float w[WEIGHTS], free_w[WEIGHTS];
    static const kind no_clip = { "not clipped", make_momentum_half, false };
    data_make();
    reference(&no_clip, 3, STEPS, free_w, NULL);
    for (int i = 0; i < KINDS; i++)
        for (int form = 0; form < 3 && kinds[i].clips; form++) { /* 2 servers; 4; all ranks are both */
            int workers = 3, servers = form == 0 ? 2 : form == 1 ? 4 : 0;
            reference(&kinds[i], workers, STEPS, w, NULL);
            ASSERT_EQ_MSG(0, crowd_run(&a, workers + servers, servers, sync_rank, &kinds[i]), kinds[i].name);
            ASSERT_EQ_MSG(0, crowd_run(&b, workers + servers, servers, sync_rank, &kinds[i]), kinds[i].name);
            double worst = 0, off = 0;
            for (int k = 0; k < WEIGHTS; k++) {
                double d = fabs((double)a.w[0][k] - w[k]) / (fabs((double)w[k]) + 0.01), e = fabs((double)free_w[k] - w[k]);
                worst = d > worst ? d : worst;
                off = e > off ? e : off;
            }
            EXPECT_LT_MSG(worst, 1e-5, kinds[i].name);
            EXPECT_GT(off, 1e-2); /* clipping matters here */
            for (int r = 0; r < workers; r++) EXPECT_TRUE_MSG(!memcmp(a.w[0], a.w[r], sizeof w) && !memcmp(a.w[0], b.w[r], sizeof w), kinds[i].name);
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
    dt_codec      codec = *(const dt_codec *)k->all->arg;
    dt_ps        *store = dt_ps_new(k->c);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adamw(m, .lr = 0.01, .weight_decay = 0.1);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .codec = codec);
    for (int i = 0; i < 4 && !dt_error(); i++) {
        dt_tensor *x = dt_from(data_x[0], DT_SHAPE(BATCH, IN)), *a = dt_linear(m, "a", x, .out = 4),
                  *b = dt_linear(m, "b", x, .out = 4), *c = dt_linear(m, "c", x, .out = 4);
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
    for (int q = DT_CODEC_NONE; q <= DT_CODEC_TOPK; q += DT_CODEC_TOPK) { /* also where few elements are sent */
        dt_codec codec = { .kind = q, .ratio = 0.1 };
        ASSERT_EQ(0, crowd_run(&a, 2, 0, unreached_rank, &codec));
        const float *w = a.w[0];
        EXPECT_TRUE(w[0] != w[3] && w[1] != w[4]);      /* a: both; b: worker 1 */
        EXPECT_EQ(w[2], w[5]);                          /* c: nobody, in spite of its weight decay */
        EXPECT_TRUE(w[8] != w[5] && w[8] == w[11]);     /* until step 2, and not after it */
        EXPECT_TRUE(w[3] == w[6] && w[6] != w[9]);
        EXPECT_EQ(0, memcmp(a.w[0], a.w[1], 12 * sizeof(float)));
    }
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

/* ---- a server gives up in the middle: its copy goes on with the same bits, those of the scheduler, too */
static void replica_rank(member *k)
{
    const kind   *kd = (const kind *)k->all->arg;
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers, .big = 100, .replicas = 2);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = kd->make(m);
    dt_scheduler *s = schedule(opt);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .scheduler = s);
    if (k->rank == 3) {
        while (!__atomic_load_n(&k->all->flag, __ATOMIC_ACQUIRE)) usleep(200);
        dt_comm_abort(k->c, "it gives up");
    } else if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    for (int i = 0; i < STEPS && dt_ps_worker(store) >= 0; i++) {
        if (i == 3) __atomic_store_n(&k->all->flag, 1, __ATOMIC_RELEASE);
        dt_backward(loss_of(m, dt_ps_next_batch(pm)));
        dt_step(opt);
    }
    if (dt_ps_worker(store) >= 0) weights_of(m, k->all->w[k->rank]);
    dt_ps_detach(pm);
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
    if (k->rank == 3) dt_comm_error(k->c), dt_error_clear();
}
static void quiet(void *user, int level, const char *text);
UTEST(attach, a_copy_of_a_server_takes_over)
{
    static crowd a;
    static float w[WEIGHTS];
    data_make();
    dt_set_log(quiet, NULL);
    crowd_tolerant = true;
    for (int i = 0; i < (dt_test_quick() ? 3 : 30); i++) {
        reference(&kinds[i % 4], 2, STEPS, w, schedule);
        ASSERT_EQ(0, crowd_run(&a, 5, 3, replica_rank, &kinds[i % 4]));
        EXPECT_EQ(0, memcmp(w, a.w[0], sizeof w));
        EXPECT_EQ(0, memcmp(w, a.w[1], sizeof w));
    }
    crowd_tolerant = false;
    dt_set_log(NULL, NULL);
}

/* ---- all disciplines on digits */
typedef struct mode_case { int mode, k, staleness, codec, two; } mode_case; /* two: levels, with two machines of two workers */
static const int machines[] = { 0, 0, 1, 1, 0, 1, 0 };
static const mode_case modes[] = {
    { DT_PS_SYNC, 0, 0, 0, 0 },          { DT_PS_K_SYNC, 2, 0, 0, 0 }, { DT_PS_K_BATCH_SYNC, 2, 0, 0, 0 }, { DT_PS_K_ASYNC, 2, 0, 0, 0 },
    { DT_PS_K_BATCH_ASYNC, 2, 0, 0, 0 }, { DT_PS_ASYNC, 0, 0, 0, 0 },  { DT_PS_SSP, 0, 2, 0, 0 },          { DT_PS_SSP_CLOCK, 0, 2, 0, 0 },
};
enum { MODES = sizeof modes / sizeof *modes, TOTAL = 180 };
static dt_tensor *digits(dt_model *m, dt_tensor *x)
{
    x = dt_relu(dt_batchnorm1d(m, "bn", dt_linear(m, "a", dt_flatten(x), .out = 32)));
    return dt_linear(m, "b", x, .out = 10);
}
/* train: with the statistics of the batch: a worker that was slow has computed few batches, and has poor running statistics */
static double digits_loss(dt_model *m, dt_dataset *set, bool train)
{
    dt_loader *in = dt_loader_new(set, .batch = 500);
    dt_batch   b;
    double     loss = NAN;
    if (!train) dt_model_eval(m);
    dt_no_grad_begin();
    if (dt_loader_next(in, &b)) loss = dt_item(dt_cross_entropy(digits(m, b.x), b.y));
    dt_no_grad_end();
    dt_end();
    dt_model_train(m);
    dt_loader_free(in);
    return loss;
}
static void digits_train(dt_comm *c, int servers, const mode_case *q, double *before, double *after, int64_t *steps,
                         int64_t *seen)
{
    dt_ps        *store = dt_ps_new(c, .servers = servers, .two_level = q->two, .machines = machines);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    dt_dataset   *set =
        dt_idx_open("data/digits/digits-images-idx3-ubyte", .labels = "data/digits/digits-labels-idx1-ubyte", .classes = 10);
    dt_loader    *in = dt_loader_new(set, .batch = 50, .shuffle = true, .drop_last = true);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = q->mode, .k = q->k, .staleness = q->staleness, .batches = TOTAL,
                                     .codec = { .kind = q->codec, .ratio = 0.1 });
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    else {
        dt_batch b;
        for (int64_t n; (n = dt_ps_next_batch(pm)) >= 0; (*steps)++) {
            if (!dt_loader_get(in, n, &b)) break;
            dt_tensor *loss = dt_cross_entropy(digits(m, b.x), b.y);
            dt_backward(loss);
            dt_step(opt);
            if (dt_ps_model_info(pm).verdict == DT_PS_USED || dt_ps_model_info(pm).verdict == DT_PS_KEPT) *seen += n + 1;
        }
        dt_ps_collect(pm);
        *before = digits_loss(m, set, false);
        *after = digits_loss(m, set, true);
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
    digits_train(k->c, a->servers, (const mode_case *)a->arg, &a->loss[k->rank][0], &a->loss[k->rank][1],
                 &a->number[k->rank][0], &a->number[k->rank][1]);
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
            EXPECT_LT_MSG(a.loss[i][1], modes[q].mode == DT_PS_SYNC ? 1.7 : 2.2, text); /* of 2.3; stale pushes learn slower */
            EXPECT_EQ_MSG(a.loss[0][0], a.loss[i][0], text); /* the same parameters and running statistics */
            EXPECT_EQ_MSG(a.loss[0][1], a.loss[i][1], text);
        }
        EXPECT_EQ_MSG(TOTAL * (TOTAL + 1) / 2, seen, text); /* every batch is in one update */
    }
}
UTEST(attach, digits_are_learnt_with_codecs) /* top 10 % and f16, with error feedback: near the plain loss */
{
    static const mode_case with[] = { { DT_PS_SYNC, 0, 0, DT_CODEC_NONE, 0 }, { DT_PS_SYNC, 0, 0, DT_CODEC_TOPK, 0 }, { DT_PS_SYNC, 0, 0, DT_CODEC_F16, 0 } };
    static crowd           a;
    double                 loss[3];
    for (int q = 0; q < 3; q++) {
        ASSERT_EQ(0, crowd_run(&a, 3, 1, digits_member, &with[q]));
        loss[q] = a.loss[0][1];
        EXPECT_EQ(a.loss[0][1], a.loss[1][1]);
    }
    if (getenv("DT_TEST_TIMES")) printf("    loss %g, top-k %g, f16 %g\n", loss[0], loss[1], loss[2]);
    EXPECT_LT(loss[0], 1.0);
    EXPECT_LT(loss[1], loss[0] + 0.1);
    EXPECT_NEAR(loss[0], loss[2], 0.02);
    EXPECT_TRUE(loss[0] != loss[1] && loss[0] != loss[2]); /* it was in use */
}
UTEST(attach, digits_are_learnt_on_two_levels) /* machines instead of workers: K 1 is one of two */
{
    static crowd a;
    for (int q = 0; q < MODES; q++) {
        mode_case with = modes[q];
        int64_t   seen = 0;
        int       servers = q % 3;
        char      text[40];
        with.two = 1;
        with.k = 1;
        snprintf(text, sizeof text, "mode %d, %d servers", with.mode, servers);
        ASSERT_EQ_MSG(0, crowd_run(&a, 4 + servers, servers, digits_member, &with), text);
        for (int i = 0; i < 4; i++) {
            seen += a.number[i][1];
            EXPECT_LT_MSG(a.loss[i][1], 2.2, text);
            EXPECT_EQ_MSG(a.loss[0][0], a.loss[i][0], text);
            EXPECT_EQ_MSG(a.loss[0][1], a.loss[i][1], text);
        }
        EXPECT_EQ_MSG(TOTAL * (TOTAL + 1) / 2, seen, text); /* every batch is in one update */
    }
}
static void too_large_rank(member *k) /* a gradient that f16 cannot hold is refused, and the training goes on */
{
    dt_ps        *store = dt_ps_new(k->c);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .codec = { .kind = DT_CODEC_F16 });
    dt_backward(dt_mul(loss_of(m, 0), dt_full(1e9, DT_SHAPE(1))));
    dt_step(opt);
    k->all->number[k->rank][0] = dt_error_code();
    k->all->number[k->rank][1] = dt_error() && strstr(dt_error(), "nothing was pushed") && strstr(dt_error(), "key");
    dt_error_clear();
    dt_end();
    dt_backward(loss_of(m, 0));
    dt_step(opt);
    k->all->number[k->rank][2] = dt_ps_model_info(pm).version;
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, what_a_codec_cannot_hold)
{
    static crowd a;
    data_make();
    ASSERT_EQ(0, crowd_run(&a, 2, 0, too_large_rank, NULL));
    for (int i = 0; i < 2; i++) EXPECT_TRUE(a.number[i][0] == DT_ERR_NUMERIC && a.number[i][1] && a.number[i][2] == 1);
}
static void digits_crew(crew *k)
{
    double  before = 0, after = 0;
    int64_t steps = 0, seen = 0;
    digits_train(k->c, 1, (const mode_case *)k->arg, &before, &after, &steps, &seen);
    if (k->rank < 3) crew_check(k, after < 2.2 && after > 0, "the loss has not fallen");
    k->box->x[k->rank][0] = (float)after;
}
UTEST(attach, digits_are_learnt_by_processes_in_all_modes)
{
#ifdef __SANITIZE_THREAD__
    UTEST_SKIP("ThreadSanitizer: no threads after a fork of a process with threads");
#endif
    for (int q = 0; q < MODES; q++)
        EXPECT_EQ(0, crew_run(q & 1 ? "tcp" : "shm", 4, digits_crew, (void *)(uintptr_t)&modes[q]));
}

/* ---- cancellation: a backward that is useless ends before its next layer */
enum { LAYERS = 6 };
static dt_tensor *deep(dt_model *m, dt_tensor *x)
{
    for (int i = 0; i < LAYERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "l%d", i);
        x = dt_linear(m, name, x, .out = IN, .act = DT_ACT_TANH);
    }
    return dt_mean(dt_mul(x, x));
}
typedef struct layers {
    dt_ps *store;
    bool   wait, late;
    int    ready, *flag;
} layers;
static void layer_ready(void *user, dt_tensor *p)
{
    layers *l = (layers *)user;
    int64_t deadline = dt_test_ns() + (int64_t)(20e9 * dt_test_slow());
    (void)p;
    l->ready++;
    if (l->wait) __atomic_store_n(l->flag, 1, __ATOMIC_RELEASE);
    else
        while (!__atomic_load_n(l->flag, __ATOMIC_ACQUIRE) && dt_test_ns() < deadline)
            sched_yield();                                         /* worker 1 is in its backward */
    while (l->wait && !dt_ps_cancelled(l->store, 3) && !l->late) { /* key 3: the first parameter */
        l->late = dt_test_ns() > deadline;
        sched_yield();
    }
}
static void cancel_rank(member *k)
{
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    layers        l = { store, k->rank == 1, false, 0, &k->all->flag };
    dt_grad_hooks h = { NULL, layer_ready, NULL, &l };
    int           hook = dt_grad_hooks_add(&h);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = DT_PS_K_SYNC, .k = 1, .batches = 2);
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    else {
        int64_t *n = k->all->number[k->rank];
        n[0] = dt_ps_next_batch(pm);
        dt_backward(deep(m, dt_from(data_x[0], DT_SHAPE(BATCH, IN))));
        n[1] = l.ready;
        n[2] = l.late;
        n[3] = dt_grad(dt_model_find(m, "l5.weight")) != NULL;
        dt_step(opt);
        n[4] = dt_ps_model_info(pm).verdict;
        n[5] = dt_ps_model_info(pm).version;
        l.wait = false;
        for (int64_t b; (b = dt_ps_next_batch(pm)) >= 0;) { /* worker 1 again, or worker 0 with its batch */
            n[6] += b + 1;
            dt_backward(deep(m, dt_from(data_x[0], DT_SHAPE(BATCH, IN))));
            dt_step(opt);
        }
        n[7] = dt_ps_model_info(pm).version;
    }
    dt_grad_hooks_remove(hook);
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, a_cancelled_backward_stops_early)
{
    static crowd a;
    data_make();
    for (int servers = 0; servers < 2; servers++) {
        ASSERT_EQ(0, crowd_run(&a, 2 + servers, servers, cancel_rank, NULL));
        const int64_t *n = a.number[0], *late = a.number[1];
        EXPECT_TRUE(n[0] == 0 && late[0] == 1);
        EXPECT_EQ(2 * LAYERS, n[1]);
        EXPECT_TRUE(n[3] && n[4] == DT_PS_USED && n[5] == 1);
        EXPECT_TRUE(late[1] >= 1 && late[1] <= 2); /* the weight and bias of the last layer */
        EXPECT_FALSE(late[2]);
        EXPECT_FALSE(late[3]); /* its gradients are dropped */
        EXPECT_EQ(DT_PS_NONE, late[4]);
        EXPECT_GE(late[5], 1);
    }
}

/* ---- mixed precision: an overflow of one worker is its own matter */
static void amp_rank(member *k)
{
    const char   *level = (const char *)k->all->arg;
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_amp       *amp = dt_amp_new(m, .level = level, .init_scale = 1024);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = DT_PS_SYNC);
    int64_t      *n = k->all->number[k->rank];
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    else {
        bool spoilt = k->rank != 1;
        for (int i = 0; i < STEPS && !dt_error();) {
            int64_t    b = dt_ps_next_batch(pm);
            dt_tensor *loss = loss_of(m, b);
            bool       now = !spoilt && i == 2;
            if (i == 0) k->all->loss[k->rank][0] += dt_item(loss);
            if (now) loss = dt_mul_scalar(loss, 1e37), spoilt = true; /* times the scale it is not finite */
            dt_amp_backward(amp, loss);
            dt_step(opt);
            if (now) {
                n[0] = dt_ps_next_batch(pm) == b; /* the same batch again */
                n[1] = dt_ps_model_info(pm).verdict;
                n[2] = dt_ps_model_info(pm).version;
            } else i++;
        }
        n[3] = dt_amp_overflows(amp);
        n[4] = (int64_t)dt_amp_scale(amp, 0);
        n[5] = dt_ps_model_info(pm).version;
        n[6] = dt_dtype_of(dt_model_find(m, "a.weight"));
        weights_of(m, k->all->w[k->rank]);
        k->all->loss[k->rank][1] = dt_item(loss_of(m, k->rank));
        dt_end();
    }
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_amp_free(amp);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, mixed_precision_skips_an_overflow)
{
    static crowd      a;
    static const char *level[] = { "O1", "O2" };
    data_make();
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ_MSG(0, crowd_run(&a, 3, 1, amp_rank, level[i]), level[i]);
        const int64_t *n = a.number[1];
        EXPECT_TRUE_MSG(n[0] == 1 && n[1] == DT_PS_NONE && n[2] == 2, level[i]);
        EXPECT_TRUE_MSG(n[3] == 1 && n[4] == 512 && a.number[0][3] == 0 && a.number[0][4] == 1024, level[i]);
        EXPECT_EQ_MSG(STEPS, n[5], level[i]);
        EXPECT_EQ_MSG(i == 0 ? DT_F32 : DT_F16, n[6], level[i]);
        EXPECT_TRUE_MSG(!memcmp(a.w[0], a.w[1], sizeof a.w[0]), level[i]);
        EXPECT_TRUE_MSG(a.loss[0][1] < a.loss[0][0], level[i]);
    }
}

/* ---- checkpoints */
typedef struct run { const char *dir; const kind *k; int mode, from, to; bool schedule, average, two; } run;
static dt_tensor *normed(dt_model *m, dt_tensor *x)
{
    return dt_linear(m, "b", dt_tanh(dt_batchnorm1d(m, "bn", dt_linear(m, "a", x, .out = HIDDEN))), .out = CLASSES);
}
static void saving_rank(member *k)
{
    const run     *r = (const run *)k->all->arg;
    dt_ps         *store = dt_ps_new(k->c, .servers = k->all->servers, .big = 50, .two_level = r->two, .machines = machines);
    dt_model      *m = dt_model_new(.seed = 3);
    dt_optimizer  *opt = r->k->make(m);
    dt_scheduler  *s = r->schedule ? schedule(opt) : NULL;
    dt_ps_model   *pm = dt_ps_attach(m, opt, store, .mode = r->mode, .k = r->mode == DT_PS_SYNC ? 0 : 2, .scheduler = s,
                                     .average_buffers = r->average);
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    else {
        dt_checkpoint *c = dt_checkpoint_new(r->dir, .model = m, .scheduler = s, .every_steps = 5, .every_minutes = 1000);
        int64_t        epoch = 0, step = 0;
        k->all->number[k->rank][0] = dt_checkpoint_resume(c, &epoch, &step);
        k->all->number[k->rank][1] = dt_ps_next_batch(pm);
        if (step != r->from) dt_fail(DT_ERR_STATE, "resumed at step %d", (int)step);
        while (step < r->to && !dt_error()) {
            int64_t    at = dt_ps_next_batch(pm) % (N / BATCH) * BATCH;
            dt_tensor *x = dt_from(data_x[at], DT_SHAPE(BATCH, IN)),
                      *y = dt_from(&data_y[at], DT_SHAPE(BATCH), .dtype = DT_I64);
            dt_backward(dt_cross_entropy(normed(m, x), y));
            dt_step(opt);
            dt_checkpoint_tick(c, 0, ++step);
        }
        dt_checkpoint_finish(c, 0, step);
        k->all->number[k->rank][2] = dt_ps_model_info(pm).version;
        dt_ps_collect(pm);
        if (!dt_error()) {
            float *w = k->all->w[k->rank];
            for (int i = 0; i < dt_model_count(m); i++) { /* with the running statistics */
                dt_parameter_info p;
                dt_model_get(m, i, &p);
                if (dt_dtype_of(p.value) != DT_F32) continue;
                dt_copy_out(p.value, w, (size_t)dt_numel(p.value) * 4);
                w += dt_numel(p.value);
            }
        }
        dt_checkpoint_free(c);
    }
    dt_ps_detach(pm);
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, a_resume_with_other_servers_is_as_never_stopped)
{
    static crowd     a, b;
    static const int which[] = { 1, 3, 7, 10, 9 };
    data_make();
    for (int i = 0; i < (dt_test_quick() ? 3 : 5); i++) {
        const kind *k = &kinds[which[i]];
        char       *calm = temp_dir(), *stopped = temp_dir();
        run r = { calm, k, DT_PS_SYNC, 0, 8, i != 3, i == 1, false };
        ASSERT_EQ_MSG(0, crowd_run(&a, 3, 1, saving_rank, &r), k->name);
        EXPECT_EQ(0, a.number[0][0]);
        r.dir = stopped;
        r.to = 5;
        ASSERT_EQ_MSG(0, crowd_run(&b, 4, 2, saving_rank, &r), k->name);
        r.from = 5;
        r.to = 8;
        ASSERT_EQ_MSG(0, crowd_run(&b, 5, 3, saving_rank, &r), k->name);
        EXPECT_TRUE_MSG(b.number[0][0] == 1 && b.number[1][0] == 1, k->name);
        EXPECT_TRUE_MSG(b.number[0][1] == 10 && b.number[1][1] == 11, k->name); /* the batches after those of 5 updates */
        EXPECT_EQ_MSG(8, b.number[1][2], k->name);
        EXPECT_TRUE_MSG(!memcmp(a.w[0], b.w[0], sizeof a.w[0]) && !memcmp(a.w[0], b.w[1], sizeof a.w[0]), k->name);
        temp_remove(calm);
        temp_remove(stopped);
    }
}
/* Two levels: a run that was stopped goes on as if it never had been; with one level, too, but for the order of sums. */
UTEST(attach, two_levels_save_and_resume)
{
    static crowd a, b, c;
    data_make();
    for (int mode = 0; mode < 2; mode++) {
        char *calm = temp_dir(), *stopped = temp_dir();
        run   r = { calm, &kinds[1], mode ? DT_PS_ASYNC : DT_PS_SYNC, 0, 8, true, true, true };
        if (mode) r.mode = DT_PS_K_ASYNC; /* they rest, and begin again together */
        ASSERT_EQ(0, crowd_run(&a, 5, 1, saving_rank, &r));
        r.dir = stopped;
        r.to = 5;
        ASSERT_EQ(0, crowd_run(&b, 6, 2, saving_rank, &r));
        r.from = 5;
        r.to = 8;
        r.two = mode;
        ASSERT_EQ(0, crowd_run(&c, 5, 1, saving_rank, &r)); /* writes another file */
        r.two = true;
        if (!mode)
            for (int i = 0; i < 4; i++) {
                EXPECT_TRUE(c.number[i][0] == 1 && c.number[i][1] == 20 + i && c.number[i][2] == 8);
                for (int k = 0; k < WEIGHTS; k++) EXPECT_NEAR(a.w[i][k], c.w[i][k], 1e-4);
            }
        temp_remove(stopped);
        stopped = temp_dir();
        r.dir = stopped;
        r.from = 0;
        r.to = 5;
        ASSERT_EQ(0, crowd_run(&b, 6, 2, saving_rank, &r));
        r.from = 5;
        r.to = 8;
        ASSERT_EQ(0, crowd_run(&b, 7, 3, saving_rank, &r));
        for (int i = 0; i < 4 && !mode; i++) {
            EXPECT_TRUE(b.number[i][0] == 1 && b.number[i][1] == 20 + i && b.number[i][2] == 8);
            EXPECT_EQ(0, memcmp(a.w[0], b.w[i], sizeof a.w[0]));
        }
        temp_remove(calm);
        temp_remove(stopped);
    }
}
UTEST(attach, all_modes_save_and_resume)
{
    static crowd a;
    data_make();
    for (int q = 1; q < MODES; q++) {
        char text[32];
        snprintf(text, sizeof text, "mode %d", modes[q].mode);
        char *dir = temp_dir();
        run   r = { dir, &kinds[3], modes[q].mode, 0, 7, true, false, false };
        ASSERT_EQ_MSG(0, crowd_run(&a, 4, 1, saving_rank, &r), text);
        r.from = 7;
        r.to = 10;
        ASSERT_EQ_MSG(0, crowd_run(&a, 4, 2, saving_rank, &r), text); /* another number of workers: 2 of 3 */
        EXPECT_TRUE_MSG(!memcmp(a.w[0], a.w[1], sizeof a.w[0]), text);
        temp_remove(dir);
    }
}
UTEST(attach, the_file_is_that_of_one_process)
{
    static crowd a;
    static float w[WEIGHTS + 200];
    char        *dir = temp_dir();
    int64_t      epoch, step = 0;
    data_make();
    run r = { dir, &kinds[3], DT_PS_SYNC, 0, 5, false, false, false };
    ASSERT_EQ(0, crowd_run(&a, 3, 1, saving_rank, &r));
    dt_model      *m = dt_model_new(.seed = 9);
    dt_optimizer  *opt = kinds[3].make(m);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    EXPECT_EQ(1, dt_checkpoint_resume(c, &epoch, &step));
    normed(m, dt_from(data_x[0], DT_SHAPE(BATCH, IN)));
    ASSERT_OK(dt_model_seal(m));
    EXPECT_EQ(5, dt_optimizer_steps(opt));
    dt_copy_out(dt_model_find(m, "a.weight"), w, HIDDEN * IN * 4);
    EXPECT_EQ(0, memcmp(w, a.w[0], HIDDEN * IN * 4));
    dt_end();
    dt_checkpoint_free(c);
    dt_optimizer_free(opt);
    dt_model_free(m);
    temp_remove(dir);
}

/* ---- buffers */
static void buffers_rank(member *k)
{
    bool          average = k->all->arg != NULL;
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .average_buffers = average);
    if (dt_ps_worker(store) < 0) dt_ps_serve(store);
    else {
        for (int i = 0; i < 3; i++) {
            dt_tensor *x = dt_from(data_x[k->rank * BATCH], DT_SHAPE(BATCH, IN));
            dt_backward(dt_mean(normed(m, x)));
            dt_step(opt);
        }
        dt_copy_out(dt_model_find(m, "bn.running_mean"), k->all->w[k->rank], HIDDEN * 4);
        dt_ps_collect(pm);
        dt_copy_out(dt_model_find(m, "bn.running_mean"), k->all->w[k->rank] + HIDDEN, HIDDEN * 4);
        k->all->number[k->rank][0] = (int64_t)dt_item(dt_model_find(m, "bn.num_batches_tracked"));
    }
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_ps_free(store);
}
UTEST(attach, buffers_are_worker_0s_or_the_mean)
{
    static crowd a;
    data_make();
    for (int average = 0; average < 2; average++) {
        ASSERT_EQ(0, crowd_run(&a, 4, 1, buffers_rank, average ? "" : NULL));
        EXPECT_NE(0, memcmp(a.w[0], a.w[1], HIDDEN * 4));
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < HIDDEN; i++) {
                float mean = (a.w[0][i] + a.w[1][i] + a.w[2][i]) / 3;
                EXPECT_EQ(average ? mean : a.w[0][i], a.w[r][HIDDEN + i]);
                EXPECT_EQ(3, a.number[r][0]);
            }
    }
}

/* ---- errors */
enum {
    OTHER_MODEL,
    HAS_DDP,
    SERVER_TRAINS,
    OTHER_PARAMETERS,
    OTHER_SHAPE,
    PLATEAU,
    OTHER_OPTIONS,
    NOT_FINITE,
    NOT_OWN,
    STEPPED,
    ERRORS
};
static dt_tensor *renamed(dt_model *m) /* net, with another name for its first layer */
{
    dt_tensor *x = dt_linear(m, "c", dt_from(data_x[0], DT_SHAPE(BATCH, IN)), .out = HIDDEN, .act = DT_ACT_TANH);
    return dt_mean(dt_linear(m, "b", x, .out = CLASSES));
}
static void quiet(void *user, int level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}
static void error_rank(member *k)
{
    int           what = *(const int *)k->all->arg;
    bool          odd = k->rank == 1;
    dt_ps        *store = dt_ps_new(k->c, .servers = k->all->servers);
    dt_model     *m = dt_model_new(.seed = 3), *other = dt_model_new(.seed = 4);
    dt_optimizer *opt = what == NOT_OWN ? dt_sgd(m, .params = "b.*") : dt_sgd(what == OTHER_MODEL ? other : m, .lr = 0.1);
    dt_scheduler *s = what == PLATEAU ? dt_reduce_lr_on_plateau(opt) : NULL;
    dt_ddp       *d = what == HAS_DDP ? dt_ddp_new(m, k->c) : NULL;
    if (what == STEPPED) {
        dt_backward(loss_of(m, 0));
        dt_step(opt);
    }
    dt_ps_model *pm = dt_ps_attach(m, opt, store, .k = what == OTHER_OPTIONS && odd ? 2 : 1, .scheduler = s);
    if (pm && dt_ps_worker(store) < 0 && what == SERVER_TRAINS) {
        dt_backward(loss_of(m, 0));
        dt_step(opt);
    } else if (pm && dt_ps_worker(store) < 0) dt_ps_serve(store);
    for (int i = 0; pm && dt_ps_worker(store) >= 0 && i < 2; i++) {
        if (what == OTHER_SHAPE && odd) dt_linear(m, "a", dt_from(data_x[0], DT_SHAPE(BATCH, IN)), .out = HIDDEN + 1);
        dt_tensor *loss = dt_error() ? NULL : what == OTHER_PARAMETERS && odd ? renamed(m) : loss_of(m, i);
        if (what == NOT_FINITE && odd && i == 1) { /* only the gradient */
            dt_tensor *z = dt_mul_scalar(dt_model_find(m, "b.weight"), 0);
            loss = dt_add(loss, dt_sqrt(dt_sum(dt_mul(z, z))));
        }
        if (loss) dt_backward(loss);
        dt_step(opt);
        if (what == NOT_FINITE && dt_error()) break;
    }
    k->all->number[k->rank][0] = dt_ps_model_info(pm).version;
    char text[1024];
    snprintf(text, sizeof text, "%s", dt_error() ? dt_error() : "");
    dt_error_clear();
    dt_ps_detach(pm);
    dt_ddp_free(d);
    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_model_free(other);
    dt_ps_free(store);
    snprintf(k->error, sizeof k->error, "%s", text);
    dt_error_clear();
}
UTEST(attach, errors_say_what_is_wrong)
{
    static crowd a;
    static const struct { int what, servers, rank; const char *text;
    } e[] = {
        { OTHER_MODEL, 1, 0, "the optimiser belongs to another model" },
        { HAS_DDP, 0, 0, "the model has a ddp already" },
        { SERVER_TRAINS, 1, 2, "rank 2 is a server only" },
        { OTHER_PARAMETERS, 1, 0,
          "number 1 is parameter 'a.weight' f32 (20, 12) on worker 0, parameter 'c.weight' f32 (20, 12) on worker 1" },
        { OTHER_PARAMETERS, 1, 1, "on worker 0, parameter 'c.weight'" },
        { OTHER_SHAPE, 1, 1, "'a.weight' (21, 12)" },
        { PLATEAU, 1, 0, "a plateau scheduler needs a metric" },
        { OTHER_OPTIONS, 1, 0, "rank 1 has other options than rank 0" },
        { NOT_FINITE, 1, 1, "on worker 1 the gradient of 'b.weight' is not finite" },
        { NOT_OWN, 1, 0, "'a.weight' is not one of the optimiser's" },
        { STEPPED, 1, 0, "has made 1 steps" },
    };
    data_make();
    dt_set_log(quiet, NULL);
    for (int i = 0; i < (int)(sizeof e / sizeof *e); i++) {
        crowd_run(&a, 2 + e[i].servers, e[i].servers, error_rank, &e[i].what);
        if (!strstr(a.m[e[i].rank].error, e[i].text)) printf("    %d: %s\n", i, a.m[e[i].rank].error);
        EXPECT_TRUE_MSG(strstr(a.m[e[i].rank].error, e[i].text) != NULL, e[i].text);
        if (e[i].what == NOT_FINITE)
            EXPECT_TRUE(!a.m[0].error[0] && a.number[0][0] == 2 && a.number[1][0] == 1); /* worker 0 goes on */
    }
    dt_set_log(NULL, NULL);
}
