/* test_attach_members.c: models on a parameter server whose workers die, join later and come back; without progress threads
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_serve.h"
#include "teams.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

UTEST_MAIN()

enum { IN = 12, HIDDEN = 20, CLASSES = 3, BATCH = 5, N = 60, WEIGHTS = HIDDEN * IN + HIDDEN + CLASSES * HIDDEN + CLASSES };
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
static dt_tensor *loss_of(dt_model *m, int64_t batch)
{
    int64_t    at = batch % (N / BATCH) * BATCH;
    dt_tensor *x = dt_from(data_x[at], DT_SHAPE(BATCH, IN)), *y = dt_from(&data_y[at], DT_SHAPE(BATCH), .dtype = DT_I64);
    return dt_cross_entropy(dt_linear(m, "b", dt_linear(m, "a", x, .out = HIDDEN, .act = DT_ACT_TANH), .out = CLASSES), y);
}
static void grads_of(dt_model *m, float *g, bool out)
{
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        size_t n = (size_t)dt_numel(p.value);
        if (out) dt_copy_out(dt_grad(p.value), g, n * 4);
        else dt_copy_in(dt_grad(p.value), g, n * 4);
        g += n;
    }
}
static void weights_of(dt_model *m, float *w)
{
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        dt_copy_out(p.value, w, (size_t)dt_numel(p.value) * 4);
        w += dt_numel(p.value);
    }
    dt_end();
}

/* ---------------------------------------------------------------------------------------------------- the situations
   Two workers, ranks 0 and 1, and two servers, 2 and 3. Worker 1 may die; a newcomer may join. */
enum { START = 4, ROOM = 8, LAST = 14, BATCHES = 60, UPDATES = 64 };
enum { DIES = 1, JOINS = 2, FAILS = 4, BARE = 8 };         /* team.arg2: bits. FAILS: .fail_on_death, BARE: .no_thread */
enum { GONE = 0, OUT = 1 };                                /* flags */
typedef struct seen { /* by all processes */
    int64_t batch[4][UPDATES]; /* SYNC: by worker and version: the batch of the push that is in it, plus 1 */
    float   w[4][WEIGHTS];
    int     ended[4];
} seen;
static seen *all;
#define CHECK(what)                                                                                                 \
    do {                                                                                                            \
        bool ok_ = (what);                                                                                          \
        team_check(t, ok_, #what, __LINE__, dt_comm_rank(c), c);                                                    \
        if (!ok_ && dt_error()) printf("    %s\n", dt_error());                                                     \
    } while (0)
static void wait_for_workers(team *t, dt_comm *c, dt_ps_model *pm, int n) /* in the group of the parameters */
{
    dt_ps_stats st;
    int64_t     end = dt_test_ns() + (int64_t)(20e9 * dt_test_slow());
    memset(&st, 0, sizeof st);
    while (!dt_ps_model_stats(pm, &st) && st.workers != n && dt_test_ns() < end) usleep(1000);
    CHECK(st.workers == n);
}
static void trains(team *t, dt_comm *c)
{
    int           rank = dt_comm_rank(c);
    bool          sync = t->arg == DT_PS_SYNC, victim = rank == 1 && (t->arg2 & DIES), newcomer = rank >= START;
    dt_ps        *store = dt_ps_new(c, .servers = 2, .big = 100, .fail_on_death = (t->arg2 & FAILS) != 0);
    dt_model     *m = dt_model_new(.seed = (uint64_t)(3 + rank));
    dt_optimizer *opt = dt_adam(m, .lr = 0.01, .weight_decay = 0.1);
    CHECK(store != NULL);
    dt_ps_model *pm = dt_ps_attach(m, opt, store, .mode = t->arg, .k = 2, .staleness = 2, .batches = sync ? 0 : BATCHES);
    int          me = dt_ps_worker(store);
    CHECK(pm && (!newcomer || me == 2));
    if (me < 0) CHECK(!dt_ps_serve(store));
    int64_t b = -1, end = dt_test_ns() + (int64_t)(40e9 * dt_test_slow());
    for (int step = 0; pm && me >= 0 && !dt_error() && dt_test_ns() < end && (b = dt_ps_next_batch(pm)) >= 0; step++) {
        if (victim && step == 4) {
            team_set(t, GONE);
            if (strcmp(t->how, "threads")) kill(getpid(), SIGKILL);
            dt_comm_abort(c, "it gives up");
            break;
        }
        if (rank == 0 && step == 6 && t->arg2 & JOINS) wait_for_workers(t, c, pm, t->arg2 & DIES ? 2 : 3);
        dt_backward(loss_of(m, b));
        dt_step(opt);
        if (t->arg2 & FAILS && dt_error()) break;
        CHECK(!dt_error());
        dt_ps_info info = dt_ps_model_info(pm);
        if (sync) {
            CHECK(info.verdict == DT_PS_USED && info.version < UPDATES);
            if (info.version < UPDATES) all->batch[me][info.version] = b + 1;
            if (info.version % 3 == 0) CHECK(!dt_ps_collect(pm)); /* all workers are here at the same version */
            if (info.version == LAST) break;
        } else if (step > 6) usleep(500);
    }
    if (t->arg2 & FAILS && me >= 0 && !victim) CHECK(dt_error() && strstr(dt_error(), "worker 1 has gone"));
    else if (me >= 0 && !victim) {
        CHECK(sync || b == -1);
        CHECK(!dt_error());
        if (newcomer && !sync) CHECK(!dt_ps_collect(pm)); /* the others do not wait for it */
        if (sync) weights_of(m, all->w[me]);
        all->ended[me] = 1;
    }
    dt_error_clear();
    if (newcomer) team_set(t, OUT);
    if (rank == 0 && !sync && !(t->arg2 & FAILS)) {
        dt_ps_stats st;
        if (t->arg2 & JOINS) team_await(t, OUT, 1);
        if (!(t->arg2 & DIES)) team_await(t, 2, 1);
        else wait_for_workers(t, c, pm, 0); /* this one rests, too */
        CHECK(!dt_ps_model_stats(pm, &st) && st.used == BATCHES); /* each batch is in one update */
    }
    if (rank == 1 && !victim) team_set(t, 2);
    dt_ps_detach(pm);
    dt_optimizer_free(opt);
    dt_model_free(m);
    int rc = dt_ps_free(store);
    if (!victim && !(t->arg2 & FAILS)) CHECK(!rc);
    dt_error_clear();
    dt_comm_error(c);
    dt_comm_free(c);
}
/* One process that adds the gradients of the batches of each update in the order of the workers. */
static void reference(float *w)
{
    static float  sum[WEIGHTS], g[WEIGHTS];
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01, .weight_decay = 0.1);
    for (int v = 1; v <= LAST; v++) {
        int n = 0;
        for (int k = 0; k < 4; k++) {
            if (!all->batch[k][v]) continue;
            dt_optimizer_zero_grad(opt);
            dt_backward(loss_of(m, all->batch[k][v] - 1));
            grads_of(m, g, true);
            for (int i = 0; i < WEIGHTS; i++) sum[i] = n ? sum[i] + g[i] : g[i];
            n++;
        }
        for (int i = 0; i < WEIGHTS && n > 1; i++) sum[i] *= 1.0f / (float)n;
        grads_of(m, sum, false);
        dt_step(opt);
    }
    weights_of(m, w);
    dt_optimizer_free(opt);
    dt_model_free(m);
}

/* ---- ranks */
static dt_comm *threads[ROOM];
static void *member_thread(void *arg)
{
    trains(team_of_threads, *(dt_comm **)arg);
    return NULL;
}
static bool join_now(const team *t)
{
    if (t->arg2 & DIES) team_await(t, GONE, 1);
    return (t->arg2 & JOINS) != 0;
}
static void *newcomer_thread(void *arg)
{
    team    *t = team_of_threads;
    dt_comm *c = join_now(t) ? dt_comm_join(.beside = threads[2], .name = "comer", .incarnation = 1, .no_thread = (t->arg2 & BARE) != 0) : NULL;
    (void)arg;
    if (c) trains(t, c);
    return NULL;
}
static void newcomer_process(team *t, int k)
{
    (void)k;
    dt_comm *c = join_now(t) ? team_join(t, "comer", 1) : NULL;
    if (t->arg2 & JOINS) CHECK(c != NULL);
    if (c) trains(t, c);
}
static int member_process(void *arg)
{
    team *t = (team *)arg;
    trains(t, team_start(t, ROOM));
    return 0;
}
static int run(const char *how, int mode, int what)
{
    team *t = team_new(START, how);
    int   failed;
    t->arg = mode;
    t->arg2 = what;
    memset(all, 0, sizeof *all);
    if (!strcmp(how, "threads")) {
        pthread_t thread[START + 1];
        team_of_threads = t;
        if (dt_comm_threads(START, threads, .timeout = t->o.timeout, .tolerant = true, .room = ROOM, .no_thread = (what & BARE) != 0)) return 1000;
        dt_comm_accept(threads[0]);
        for (int i = 0; i < START; i++) pthread_create(&thread[i], NULL, member_thread, &threads[i]);
        pthread_create(&thread[START], NULL, newcomer_thread, NULL);
        for (int i = 0; i <= START; i++) pthread_join(thread[i], NULL);
        failed = team_end(t, NULL, 0);
    } else {
        pid_t pid = team_fork(t, newcomer_process, 0);
        dt_spawn(START, member_process, t);
        failed = team_end(t, &pid, 1);
    }
    if (what & FAILS) return failed;
    if (!all->ended[0] || (!all->ended[1] && !(what & DIES)) || (!all->ended[2] && what & JOINS)) failed++, printf("    not all have ended\n");
    if (mode == DT_PS_SYNC && !failed) {
        static float w[WEIGHTS];
        int64_t      joined = 0;
        for (int v = 1; v <= LAST; v++) joined += all->batch[2][v] != 0;
        reference(w);
        for (int k = 0; k < 3; k++)
            if (all->ended[k] && memcmp(w, all->w[k], sizeof w)) failed++, printf("    worker %d has other bits than one process\n", k);
        if (what & JOINS && joined < LAST - 7) failed++, printf("    the newcomer was in %d updates\n", (int)joined);
    }
    if (failed) printf("    %s, mode %d, %d\n", how, mode, what);
    return failed;
}
static const char *const hows[] = { "threads", "shm", "tcp" };
static const int modes[] = { DT_PS_SYNC, DT_PS_K_SYNC, DT_PS_K_ASYNC, DT_PS_ASYNC, DT_PS_SSP_CLOCK };
static void runs(int *utest_result, int what)
{
    data_make();
    if (!all) all = (seen *)mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    dt_error_clear();
    for (int q = 0; q < (int)(sizeof modes / sizeof *modes); q++)
        for (int i = 0; i < (what & BARE ? 1 : 3); i++) {
#ifdef __SANITIZE_THREAD__
            if (i) continue; /* no threads after a fork of a process with threads */
#endif
            if (dt_test_quick() && modes[q] != DT_PS_SYNC && (i + q) % 3) continue;
            EXPECT_EQ(0, run(hows[i], modes[q], what));
        }
}
UTEST(members, a_worker_dies) { runs(utest_result, DIES); }
UTEST(members, a_death_is_everyones_error) { runs(utest_result, DIES | FAILS); }
UTEST(members, a_newcomer_attaches) { runs(utest_result, JOINS); }
UTEST(members, a_worker_comes_back) { runs(utest_result, DIES | JOINS); }
UTEST(members, without_progress_threads) { runs(utest_result, DIES | JOINS | BARE); }
