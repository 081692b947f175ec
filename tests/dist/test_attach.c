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
