/* test_ps_join.c: workers that join a store which is at work, die, and come back: threads, shared memory, TCP
   run: alone, asan-later */
#define DT_PS_IMPLEMENTATION
#define DT__WANT_INSIDE
#include "ranks.h"
#include "dt_ps.h"
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

/* ---------------------------------------------------------------------------------------------------- each batch once
   Ranks 0 and 1 are workers, 2 and 3 servers. Worker 1 dies. A newcomer takes its place, and dies or stands still; its next
   incarnation joins. The arrays of the store count the batches whose pushes are in them: how many, the sum of their numbers, the sum
   of the squares. At the end they are all that were given out, but those that the coordinator still has. */
enum { START = 4, ROOM = 8, LONG = 5000, GONE = 0, HAS_RUN = 1, END = 2, OUT = 3, STANDS = 4 }; /* flags */
enum { DIES, STANDS_STILL, LEAVES };             /* team.arg2: what becomes of the first newcomer */
#define CHECK(what) team_check(t, what, #what, __LINE__, dt_comm_rank(c), c)
typedef struct work {
    int64_t    small[3], sum[3], *big, *all;
    dt_ps_item item[2];
    dt_ps_info info;
} work;
static bool work_new(work *w, dt_ps *ps)
{
    memset(w, 0, sizeof *w);
    w->big = (int64_t *)calloc(LONG, sizeof *w->big);
    w->all = (int64_t *)calloc(LONG, sizeof *w->all);
    dt_ps_item a = { 0, DT_COMM_I64, 3, w->small, w->sum }, b = { 1, DT_COMM_I64, LONG, w->big, w->all };
    w->item[0] = a;
    w->item[1] = b;
    return !dt_ps_init(ps, 0, w->sum, 3, DT_COMM_I64, .rule = DT_PS_SUM, .group = 1) &&
           !dt_ps_init(ps, 1, w->all, LONG, DT_COMM_I64, .rule = DT_PS_SUM, .group = 1);
}
static void work_free(work *w) { free(w->big), free(w->all); }
static int work_pull(work *w, dt_ps *ps)
{
    dt_ps_item item[2];
    memcpy(item, w->item, sizeof item);
    item[0].push = item[1].push = NULL;
    dt_ps_op *op = dt_ps_exchange_start(ps, item, 2);
    return op ? dt_ps_wait(op, &w->info) : -1;
}
static dt_ps_op *work_start(work *w, dt_ps *ps)
{
    int64_t b = w->info.batch;
    w->small[0] = 1;
    w->small[1] = b;
    w->small[2] = b * b;
    for (int i = 0; i < LONG; i++) w->big[i] = b + i;
    return dt_ps_exchange_start(ps, w->item, 2);
}
static int work_step(work *w, dt_ps *ps)
{
    dt_ps_op *op = work_start(w, ps);
    return op ? dt_ps_wait(op, &w->info) : -1;
}
static bool work_right(const work *w) /* all arrays and their parts are of one version */
{
    for (int i = 0; i < LONG; i++)
        if (w->all[i] != w->sum[1] + i * w->sum[0]) return false;
    return true;
}
static dt_ps_opts opts_of(const team *t)
{
    dt_ps_opts o;
    memset(&o, 0, sizeof o);
    o.servers = 2;
    o.mode = t->arg;
    o.k = 2;
    o.staleness = 2;
    o.big = 1000;
    return o;
}
static void dies(const team *t, dt_comm *c)
{
    if (strcmp(t->how, "threads")) kill(getpid(), SIGKILL);
    dt_comm_abort(c, "it gives up");
}
static void worker_at_start(team *t, dt_comm *c)
{
    int    rank = dt_comm_rank(c);
    dt_ps *ps = dt_ps_new_with(c, opts_of(t));
    work   w;
    CHECK(ps && dt_ps_workers(ps) == 2 && dt_ps_worker(ps) == (rank < 2 ? rank : -1));
    if (rank >= 2) {
        CHECK(!dt_ps_serve(ps));
        CHECK(!dt_ps_free(ps));
        return;
    }
    CHECK(work_new(&w, ps) && !work_pull(&w, ps));
    int64_t end = dt_test_ns() + (int64_t)(40e9 * dt_test_slow());
    for (int step = 0; team_flag(t, END) < 1 && dt_test_ns() < end; step++) {
        if (rank == 1 && step == 10) {
            team_set(t, GONE);
            dt_ps_op *op = work_start(&w, ps);
            dies(t, c);
            if (op) dt_ps_wait(op, NULL);
            dt_ps_free(ps);
            work_free(&w);
            return;
        }
        CHECK(!work_step(&w, ps) && work_right(&w));
        if (step > 10) usleep(300);
    }
    CHECK(team_flag(t, END) >= 1);
    while (team_flag(t, OUT) < 1 && dt_test_ns() < end && !work_step(&w, ps)) usleep(300); /* the others may wait for this one */
    int64_t     cursor[64], n = 0, sum[3] = { 0, 0, 0 };
    dt_ps_stats st;
    CHECK(!work_pull(&w, ps) && work_right(&w) && !dt_ps_get_cursor(ps, 0, cursor, 64, &n) && n <= 64 && !dt_ps_get_stats(ps, 0, &st));
    for (int64_t b = 0; b < cursor[1]; b++) {
        bool out = false;
        for (int i = 2; i < n; i++) out = out || cursor[i] == b;
        if (!out) sum[0]++, sum[1] += b, sum[2] += b * b;
    }
    CHECK(!memcmp(sum, w.sum, sizeof sum));
    CHECK(st.used == sum[0] && st.version == cursor[0] && st.workers == 1);
    CHECK(!dt_ps_free(ps));
    work_free(&w);
}
static void newcomer(team *t, dt_comm *c, int k) /* k: 0, 1 */
{
    dt_ps *ps = c ? dt_ps_new_with(c, opts_of(t)) : NULL;
    work   w;
    CHECK(ps != NULL);
    if (!ps) return;
    CHECK(dt_comm_rank(c) == START + k && dt_ps_worker(ps) == 2 + k && dt_ps_workers(ps) == 2 && dt_ps_server(ps) < 0);
    CHECK(work_new(&w, ps) && !work_pull(&w, ps) && work_right(&w));
    CHECK(w.sum[0] > 0 && w.info.version > 0 && w.info.batch >= 0);
    for (int step = 0; step < 15; step++) {
        int64_t version = w.info.version;
        CHECK(!work_step(&w, ps) && work_right(&w));
        if (t->arg == DT_PS_SYNC) CHECK(w.info.version == version + 1 && w.info.verdict == DT_PS_USED); /* no update without this worker */
    }
    if (k || t->arg2 != LEAVES) team_set(t, HAS_RUN);
    if (k == 0 && t->arg2 == DIES) {
        dt_ps_op *op = work_start(&w, ps);
        dies(t, c);
        if (op) dt_ps_wait(op, NULL);
    } else if (k == 0 && t->arg2 == STANDS_STILL) { /* the other one has its name: this one is expelled */
        team_await(t, STANDS, 1);
        CHECK(work_step(&w, ps) != 0 && dt_ps_error(ps) && strstr(dt_ps_error(ps), "replaced by"));
    } else if (k == 1) team_set(t, END);
    int rc = dt_ps_free(ps);
    if (k == 1 || t->arg2 == LEAVES) CHECK(!rc);
    if (k == 1) team_set(t, OUT);
    work_free(&w);
}
static void member_ends(dt_comm *c)
{
    dt_comm_error(c);
    dt_comm_free(c);
}
static int member_main(void *arg)
{
    team    *t = (team *)arg;
    dt_comm *c = team_start(t, ROOM);
    worker_at_start(t, c);
    member_ends(c);
    return 0;
}
static void newcomer_main(team *t, int k)
{
    team_await(t, k ? HAS_RUN : GONE, 1);
    dt_comm *c = team_join(t, "comer", 1 + k);
    if (k) team_set(t, STANDS);
    newcomer(t, c, k);
    if (c) member_ends(c);
    if (!k && t->arg2 == LEAVES) team_set(t, HAS_RUN);
}
/* ---- the same with threads */
static dt_comm *threads[ROOM];
static void *member_thread(void *arg)
{
    dt_comm *c = *(dt_comm **)arg;
    worker_at_start(team_of_threads, c);
    member_ends(c);
    return NULL;
}
static void *newcomer_thread(void *arg)
{
    team *t = team_of_threads;
    int   k = *(int *)arg;
    team_await(t, k ? HAS_RUN : GONE, 1);
    dt_comm *c = dt_comm_join(.beside = threads[2], .name = "comer", .incarnation = 1 + k);
    if (k) team_set(t, STANDS);
    newcomer(t, c, k);
    if (c) member_ends(c);
    if (!k && t->arg2 == LEAVES) team_set(t, HAS_RUN);
    return NULL;
}
static int run_threads(team *t)
{
    pthread_t thread[START + 2];
    int       number[2] = { 0, 1 };
    team_of_threads = t;
    if (dt_comm_threads(START, threads, .timeout = t->o.timeout, .tolerant = true, .room = ROOM)) return 1000;
    dt_comm_accept(threads[0]);
    for (int i = 0; i < START; i++) pthread_create(&thread[i], NULL, member_thread, &threads[i]);
    for (int i = 0; i < 2; i++) pthread_create(&thread[START + i], NULL, newcomer_thread, &number[i]);
    for (int i = 0; i < START + 2; i++) pthread_join(thread[i], NULL);
    return team_end(t, NULL, 0);
}
static int run(const char *how, int mode, int what)
{
    team *t = team_new(START, how);
    pid_t pid[2];
    t->arg = mode;
    t->arg2 = what;
    if (!strcmp(how, "threads")) return run_threads(t);
    for (int i = 0; i < 2; i++) pid[i] = team_fork(t, newcomer_main, i);
    dt_spawn(START, member_main, t);
    return team_end(t, pid, 2);
}
static void all(int *utest_result, int mode)
{
    static const char *const hows[] = { "threads", "shm", "tcp" };
    for (int i = 0; i < 3; i++)
        for (int what = DIES; what <= LEAVES; what++) {
            if (dt_test_quick() && mode != DT_PS_SYNC && (i + mode + what) % 3) continue;
            EXPECT_EQ(0, run(hows[i], mode, what));
        }
}
UTEST(newcomers, sync) { all(utest_result, DT_PS_SYNC); }
UTEST(newcomers, k_async) { all(utest_result, DT_PS_K_ASYNC); }
UTEST(newcomers, async) { all(utest_result, DT_PS_ASYNC); }
UTEST(newcomers, k_sync) { all(utest_result, DT_PS_K_SYNC); }
UTEST(newcomers, ssp_clock) { all(utest_result, DT_PS_SSP_CLOCK); }
