/* test_survive.c: ranks that call different things, that die, stop, come late; the survivors go on
   run: alone, long, asan-later */
#define DT__WANT_INSIDE
#include "dt_comm.h"
#include "teams.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

UTEST_MAIN()

enum { MOST = 8, MANY = 6000, GUARD = 64 };
enum { TOLD, READY, BACK, WANT }; /* flags of a team; WANT: how many must be told */
static uint64_t last_bits;   /* what rank 0 of the last team left */
static bool     use_ordered; /* of the next team */

static double slow(void) { return dt_test_slow(); }
#define check(t, ok, what, rank, c) team_check(t, ok, what, __LINE__, rank, c)
/* fn on n ranks; how many checks failed. A rank that dies is no failure: fn says what must hold. */
static int run(const char *how, int n, double timeout, int arg, int arg2, void (*fn)(team *t, dt_comm *c, int rank))
{
    team t = team_of(how, n, timeout, fn);
    t.arg = arg;
    t.arg2 = arg2;
    t.o.ordered = use_ordered;
    int failed = team_run(&t);
    last_bits = t.bits;
    if (t.flag[WANT] && t.flag[TOLD] != t.flag[WANT])
        failed++, printf("    %s: %d of %d went on\n", how, t.flag[TOLD], t.flag[WANT]);
    return failed;
}

/* ==================================================================================================== misuse */
enum { COUNT, DTYPE, OP, ROOT, KIND, ORDER, WRONGS };
enum { ALLREDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALLGATHER, GATHER, SCATTER, CALLS };
static const char *const wrong_names[] = { "count", "dtype", "op", "root", "kind", "order" };
static const char *const call_names[] = { "allreduce", "reduce",  "broadcast", "reduce_scatter",
                                          "allgather", "gather", "scatter" };
/* The others have no such argument. */
static bool applies(int wrong, int call)
{
    if (wrong == OP) return call == ALLREDUCE || call == REDUCE || call == REDUCE_SCATTER;
    if (wrong == ROOT) return call == BROADCAST || call == REDUCE || call == GATHER || call == SCATTER;
    return true;
}
static int calls(dt_comm *c, int call, char *in, char *out, int64_t n, int dtype, int op, int root)
{
    switch (call) {
    case ALLREDUCE: return dt_comm_allreduce(c, out, n, dtype, op);
    case REDUCE: return dt_comm_reduce(c, out, n, dtype, op, root);
    case BROADCAST: return dt_comm_broadcast(c, out, n, dtype, root);
    case REDUCE_SCATTER: return dt_comm_reduce_scatter(c, in, out, n, NULL, dtype, op);
    case ALLGATHER: return dt_comm_allgather(c, in, out, n, NULL, dtype);
    case GATHER: return dt_comm_gather(c, in, out, n, NULL, dtype, root);
    default: return dt_comm_scatter(c, in, out, n, NULL, dtype, root);
    }
}
/* arg: what is wrong; arg2: the call, and whether it is a long one. The last rank does something else. */
static void differ(team *t, dt_comm *c, int rank)
{
    int     wrong = t->arg, call = t->arg2 % CALLS, odd = rank == t->n - 1, dtype = DT_COMM_F32, op = DT_COMM_SUM;
    int64_t n = t->arg2 >= CALLS ? 1500 : 8;
    size_t  room = (size_t)n * 4 * MOST;
    char   *in = (char *)malloc(room + 2 * GUARD), *out = (char *)malloc(room + 2 * GUARD), a[64], b[64];
    int     root = 0, rc;
    memset(in, 0x11, room + 2 * GUARD);
    memset(out, 0x11, room + 2 * GUARD);
    size_t  used = (size_t)n * 4 * (size_t)(call == ALLGATHER || call == GATHER ? t->n : 1); /* of out */
    int64_t t0 = dt__comm_now();
    if (wrong == COUNT && odd) n -= 1;
    if (wrong == DTYPE && odd) dtype = DT_COMM_I32;
    if (wrong == OP && odd) op = DT_COMM_MAX;
    if (wrong == ROOT && odd) root = 1;
    if (wrong == KIND && odd) call = (call + 1) % CALLS;
    if (wrong == ORDER && odd) { /* the barrier that follows comes first */
        rc = dt_comm_barrier(c);
        if (!rc) rc = calls(c, call, in + GUARD, out + GUARD, n, dtype, op, root);
    } else {
        rc = calls(c, call, in + GUARD, out + GUARD, n, dtype, op, root);
        if (!rc) rc = dt_comm_barrier(c); /* who had no part in what differed hears of it here */
    }
    int64_t     took = dt__comm_now() - t0;
    const char *m = dt_comm_error(c);
    snprintf(a, sizeof a, "rank %d %s", t->n - 1, "");
    snprintf(b, sizeof b, "%s #1", call_names[t->arg2 % CALLS]);
    check(t, rc == DT_COMM_ERR_MISMATCH && m && strstr(m, "different things") && strstr(m, a), wrong_names[wrong],
          rank, c);
    /* over tcp the first frame of a rank that has gone on may be all that is known of it */
    check(t, m && (strstr(m, b) || (!strcmp(t->how, "tcp") && strstr(m, "barrier #2"))), "both sides", rank, c);
    check(t, (double)took < 1e9 * slow(), "within a second", rank, c);
    if (wrong != KIND || !odd) /* which writes more */
        for (size_t i = used + GUARD; i < room + 2 * GUARD; i++)
            if (out[i] != 0x11) check(t, false, "behind the buffer", rank, c), i = room + 2 * GUARD;
    for (size_t i = 0; i < GUARD; i++)
        if (out[i] != 0x11 || in[i] != 0x11) check(t, false, "before the buffer", rank, c), i = GUARD;
    for (size_t i = GUARD; i < room + 2 * GUARD; i++)
        if (in[i] != 0x11) check(t, false, "the input", rank, c), i = room + 2 * GUARD;
    free(in);
    free(out);
    check(t, dt_comm_free(c) == DT_COMM_ERR_MISMATCH, "free", rank, NULL);
}
static void differ_all(int *utest_result, const char *how)
{
    for (int wrong = 0; wrong < WRONGS; wrong++)
        for (int call = 0; call < CALLS; call++) {
            if (!applies(wrong, call)) continue;
            int first = dt_test_quick() ? 2 + (wrong + call) % 3 : 2, last = dt_test_quick() ? first : 4;
            for (int n = first; n <= last; n++) {
                int by = call + (call + n) % 2 * CALLS;
                EXPECT_EQ(0, run(how, n, 20, wrong, by, differ));
            }
        }
}
UTEST(misuse, calls_that_differ_over_tcp) { differ_all(utest_result, "tcp"); }
UTEST(misuse, calls_that_differ_in_shared_memory) { differ_all(utest_result, "shm"); }
UTEST(misuse, calls_that_differ_among_threads) { differ_all(utest_result, "threads"); }

/* Many teams at once: most of them only wait. */
typedef struct job {
    const char *how;
    int         n, arg, arg2;
    double      timeout;
    void      (*fn)(team *t, dt_comm *c, int rank);
} job;
static int job_run(int i, void *arg)
{
    const job *j = (const job *)arg + i;
    return run(j->how, j->n, j->timeout, j->arg, j->arg2, j->fn) != 0;
}
static const char *const hows[] = { "shm", "tcp", "threads" };

/* arg 0: the last rank leaves a call out, 1: it makes one more. arg2: all calls are alike, or they differ. */
static void miscounted(team *t, dt_comm *c, int rank)
{
    int   odd = rank == t->n - 1, total = 5, rc = 0;
    float x[4] = { 0 };
    char  who[32], last[32];
    for (int i = 1; !rc && i <= total + (t->arg && odd); i++) {
        if (!t->arg && odd && i == 3) continue;
        rc = t->arg2 && i % 2 ? dt_comm_allreduce(c, x, 4, DT_COMM_F32, DT_COMM_SUM) : dt_comm_barrier(c);
    }
    while (!rc && !(rc = dt_comm_get_status(c))) sched_yield(); /* in its program, until the others give up */
    const char *m = dt_comm_error(c);
    if (rc == DT_COMM_ERR_MISMATCH) {
        snprintf(who, sizeof who, "rank %d ", t->n - 1);
        check(t, t->arg2 && !t->arg && strstr(m, who) && strstr(m, "barrier #3"), "both sides", rank, c);
    } else {
        /* who left one out is one behind; who made one more waits for all the others */
        snprintf(last, sizeof last, "#%d", t->arg ? 5 : 4);
        check(t, rc == DT_COMM_ERR_TIMEOUT && strstr(m, "not called it") && strstr(m, last), "timeout", rank, c);
        check(t, dt_comm_failed_rank(c) == (t->arg ? 0 : t->n - 1), "who", rank, c);
        check(t, !t->arg2 || t->arg, "a mismatch is one", rank, c);
    }
    dt_comm_free(c);
}
UTEST(misuse, a_call_left_out_or_made_twice)
{
    job j[36];
    int k = 0;
    for (int h = 0; h < 3; h++)
        for (int n = 2; n <= (dt_test_quick() ? 2 : 4); n++)
            for (int v = 0; v < 4; v++) {
                job one = { hows[h], n, v / 2, v % 2, 1, miscounted };
                j[k++] = one;
            }
    EXPECT_EQ(0, dt_test_ranks(k, 50, job_run, j));
}

/* ==================================================================================================== deaths */
static void killed_in_a_call(team *t, dt_comm *c, int rank)
{
    float     x[4] = { 0 };
    dt__frame f;
    uint64_t  done;
    check(t, !dt_comm_barrier(c), "before", rank, c);
    if (rank == 0) { /* kills it as soon as it is in the call */
        while (!dt__shared_last(c, 1, &f, &done) || f.seq < 1) sched_yield();
        kill(t->pid[1], SIGKILL);
    }
    int rc = rank ? dt_comm_allreduce(c, x, 4, DT_COMM_F32, DT_COMM_SUM) : 0;
    while (!rc && !(rc = dt_comm_get_status(c))) sched_yield();
    check(t, rc == DT_COMM_ERR_PEER && strstr(dt_comm_error(c), "it was in allreduce #2"), "what it did", rank, c);
    dt_comm_free(c);
}
UTEST(deaths, the_message_tells_what_the_dead_rank_did)
{
    EXPECT_EQ(0, run("shm", 3, 20, 0, 0, killed_in_a_call));
}

/* ==================================================================================================== going on */
/* Everything works on the new communicator: who is in it, in which order; sums, parts, copies. */
static void works(team *t, dt_comm *c, int rank, const int *alive, int n, int depth)
{
    int32_t  all[MOST], me = rank, x[3] = { rank, 1, 0 };
    dt_comm *part = NULL, *twin = NULL;
    int      mine = 0, sum = 0;
    check(t, c && dt_comm_size(c) == n, "members", rank, c);
    if (!c || dt_comm_size(c) != n) return;
    for (int i = 0; i < n; i++) sum += alive[i], mine = alive[i] == rank ? i : mine;
    check(t, dt_comm_rank(c) == mine, "its rank", rank, c);
    check(t, !dt_comm_allgather(c, &me, all, 1, NULL, DT_COMM_I32), "allgather", rank, c);
    for (int i = 0; i < n; i++) check(t, all[i] == alive[i], "order", rank, c);
    check(t, !dt_comm_allreduce(c, x, 3, DT_COMM_I32, DT_COMM_SUM) && x[0] == sum && x[1] == n, "sum", rank, c);
    float *y = (float *)malloc(MANY * 4);
    for (int i = 0; i < MANY; i++) y[i] = (float)(rank + i % 3);
    check(t, !dt_comm_allreduce(c, y, MANY, DT_COMM_F32, DT_COMM_SUM) && y[1] == (float)(sum + n), "long sum", rank, c);
    free(y);
    check(t, !dt_comm_broadcast(c, x, 3, DT_COMM_I32, n - 1), "broadcast", rank, c);
    if (depth == 0) return;
    check(t, !dt_comm_dup(c, &twin) && twin, "dup", rank, c);
    if (twin) works(t, twin, rank, alive, n, 0);
    check(t, !dt_comm_free(twin), "free", rank, NULL);
    check(t, !dt_comm_split(c, mine % 2, 0, &part) && dt_comm_size(part) == (n + 1 - mine % 2) / 2, "split", rank, c);
    check(t, !dt_comm_free(part), "free", rank, NULL);
}
/* Waits in collectives until the communicator fails. */
static int until_it_fails(team *t, dt_comm *c)
{
    float x[500] = { 0 };
    int   rc = 0;
    for (int i = 0; !rc; i++)
        rc = i % 2 ? dt_comm_allreduce(c, x, 1 + i * 37 % 500, DT_COMM_F32, DT_COMM_SUM) : dt_comm_barrier(c);
    (void)t;
    return rc;
}
static int alive_of(const team *t, int dead, int *alive) /* dead: a bit for each rank */
{
    int n = 0;
    for (int r = 0; r < t->n; r++)
        if (!(dead >> r & 1)) alive[n++] = r;
    return n;
}
static void everyone_is_here(team *t, dt_comm *c) /* nobody dies while others still join */
{
    check(t, !dt_comm_barrier(c), "before", dt_comm_rank(c), c);
    __atomic_add_fetch(&t->flag[READY], 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&t->flag[READY], __ATOMIC_ACQUIRE) < t->n) sched_yield();
}
/* arg: who dies, a bit for each rank; arg2: who dies while the others agree. */
static void survivors(team *t, dt_comm *c, int rank)
{
    dt_comm *next = NULL, *last = NULL;
    int      alive[MOST], n = alive_of(t, t->arg | t->arg2, alive), rc;
    __atomic_store_n(&t->flag[WANT], n, __ATOMIC_RELAXED);
    everyone_is_here(t, c);
    if (t->arg >> rank & 1) raise(SIGKILL);
    until_it_fails(t, c);
    if (t->arg2 >> rank & 1) {
        pid_t me = getpid();
        if (!fork()) { /* a little later, at any point of it */
            usleep((useconds_t)(rank * 700 + t->arg2 * 331 % 1500));
            kill(me, SIGKILL);
            _exit(0);
        }
    }
    int64_t t0 = dt__comm_now();
    rc = dt_comm_shrink(c, &next);
    check(t, !rc && next, dt_comm_error(NULL) ? dt_comm_error(NULL) : "shrink", rank, NULL);
    check(t, (double)(dt__comm_now() - t0) < (t->o.timeout + 10 * slow()) * 1e9, "in time", rank, NULL);
    dt_comm_free(c);
    while (next && dt_comm_size(next) > n) { /* it died after the agreement */
        until_it_fails(t, next);
        check(t, !dt_comm_shrink(next, &last), dt_comm_error(NULL), rank, NULL);
        dt_comm_free(next);
        next = last;
    }
    if (t->arg2 >> rank & 1) /* it is about to die */
        for (;;) pause();
    works(t, next, rank, alive, n, 1);
    /* once more, without a failure */
    check(t, !dt_comm_shrink(next, &last), "again", rank, next);
    works(t, last, rank, alive, n, 1);
    check(t, !dt_comm_free(last), "free", rank, NULL);
    check(t, !dt_comm_free(next), "free", rank, NULL);
    __atomic_add_fetch(&t->flag[TOLD], 1, __ATOMIC_RELAXED);
}
UTEST(shrink, survivors_of_deaths_go_on)
{
    static const int dead[][2] = { { 2, 1 }, { 2, 2 }, { 3, 1 }, { 3, 4 }, { 3, 3 }, { 4, 1 }, { 4, 2 },
                                   { 4, 6 }, { 4, 7 }, { 4, 14 }, { 5, 17 }, { 8, 0x55 } }; /* ranks; who */
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < (int)(sizeof dead / sizeof *dead); i++)
            EXPECT_EQ(0, run(hows[h], dead[i][0], 20, dead[i][1], 0, survivors));
}
UTEST(shrink, deaths_while_they_agree)
{
    for (int i = 0; i < (dt_test_quick() ? 6 : 24); i++) {
        static const int dead[][3] = { { 3, 1, 2 }, { 4, 2, 1 }, { 4, 1, 6 }, { 5, 16, 3 }, { 5, 1, 2 }, { 4, 8, 7 } };
        const int *d = dead[i / 2 % 6];
        const char *how = hows[i % 2];
        EXPECT_EQ(0, run(how, d[0], 20, d[1], d[2], survivors));
    }
}

/* arg: who does not come; arg2 0: it is stopped, 1: it only does not call. It goes on when the others have a
   communicator, and finds errors; they are not disturbed. */
static void without(team *t, dt_comm *c, int rank)
{
    dt_comm *next = NULL, *none = NULL;
    int      alive[MOST], n = alive_of(t, t->arg, alive);
    int32_t  x[2];
    __atomic_store_n(&t->flag[WANT], n, __ATOMIC_RELAXED);
    everyone_is_here(t, c);
    if (t->arg >> rank & 1) {
        pid_t me = getpid();
        if (!t->arg2 && !fork()) {
            while (__atomic_load_n(&t->flag[TOLD], __ATOMIC_ACQUIRE) < n && getppid() == me) usleep(2000);
            kill(me, SIGCONT);
            _exit(0);
        }
        if (!t->arg2) raise(SIGSTOP);
        while (__atomic_load_n(&t->flag[TOLD], __ATOMIC_ACQUIRE) < n) usleep(2000);
        x[0] = dt_comm_allreduce(c, x, 1, DT_COMM_I32, DT_COMM_SUM);
        check(t, x[0] != 0, "it is told", rank, c);
        x[0] = dt_comm_shrink(c, &next);
        check(t, x[0] != 0 && !next && dt_comm_error(NULL), "it is left out", rank, c);
        check(t, dt_comm_barrier(c) != 0, "it stays out", rank, c);
        dt_comm_free(c);
        __atomic_add_fetch(&t->flag[BACK], 1, __ATOMIC_RELEASE);
        return;
    }
    until_it_fails(t, c);
    int64_t t0 = dt__comm_now();
    check(t, !dt_comm_shrink(c, &next), dt_comm_error(NULL), rank, c);
    check(t, (double)(dt__comm_now() - t0) < t->o.timeout * 3e9 + 3e9 * slow(), "in time", rank, c);
    dt_comm_free(c);
    works(t, next, rank, alive, n, 1);
    __atomic_add_fetch(&t->flag[TOLD], 1, __ATOMIC_RELEASE);
    do { /* until all of those are back */
        x[0] = __atomic_load_n(&t->flag[BACK], __ATOMIC_ACQUIRE);
        x[1] = 1;
        if (dt_comm_allreduce(next, x, 2, DT_COMM_I32, DT_COMM_MIN)) break;
    } while (x[0] < t->n - n);
    check(t, !dt_comm_get_status(next), "not disturbed", rank, next);
    check(t, !dt_comm_shrink(next, &none), "again", rank, next);
    works(t, none, rank, alive, n, 1);
    dt_comm_free(none);
    check(t, !dt_comm_free(next), "free", rank, NULL);
}
UTEST(shrink, without_a_stopped_rank_which_comes_back_too_late)
{
    static const int who[][2] = { { 2, 1 }, { 2, 2 }, { 3, 1 }, { 3, 4 }, { 4, 2 }, { 4, 9 } };
    job              j[12];
    for (int i = 0; i < 12; i++) {
        job one = { hows[i % 2], who[i / 2][0], who[i / 2][1], 0, 1, without };
        j[i] = one;
    }
    EXPECT_EQ(0, dt_test_ranks(dt_test_quick() ? 6 : 12, 55, job_run, j));
}
UTEST(shrink, without_a_rank_that_does_not_call)
{
    static const int who[][2] = { { 2, 1 }, { 3, 4 }, { 4, 6 } };
    job              j[9];
    for (int i = 0; i < 9; i++) {
        job one = { hows[i % 3], who[i / 3][0], who[i / 3][1], 1, 1, without };
        j[i] = one;
    }
    EXPECT_EQ(0, dt_test_ranks(9, 55, job_run, j));
}

/* ==================================================================================================== stragglers */
/* Rank arg comes late to some operations, by 0.8 of the timeout. */
static void late(team *t, dt_comm *c, int rank)
{
    int               times = dt_test_quick() ? 3 : 50;
    dt_comm_straggler s[MOST];
    float             x[40] = { 0 };
    char              text[2000], name[32];
    for (int i = 0; i < 6 * times; i++) {
        if (rank == t->arg && i % 6 == 5) usleep((useconds_t)(0.8e6 * t->o.timeout));
        int rc = i % 3 == 0   ? dt_comm_barrier(c)
                 : i % 3 == 1 ? dt_comm_allgather(c, &x[rank], x, 1, NULL, DT_COMM_F32)
                              : dt_comm_allreduce(c, x, 40, DT_COMM_F32, DT_COMM_SUM);
        check(t, rc == 0, "no error", rank, c);
    }
    int n = dt_comm_get_stragglers(c, s, MOST);
    snprintf(name, sizeof name, "rank %d", t->arg);
    if (rank != t->arg) {
        check(t, n >= 1 && s[0].rank == t->arg && s[0].last >= times, "who was late", rank, c);
        check(t, n >= 1 && s[0].waited > 0.5 * times * t->o.timeout && s[0].waited < times * 2 * t->o.timeout &&
                     s[0].longest < 1.5 * t->o.timeout && s[0].longest > 0.5 * t->o.timeout,
              "how late", rank, c);
        size_t length = dt_comm_stragglers(c, text, sizeof text);
        check(t, length == strlen(text) && !strncmp(text, name, strlen(name)), text, rank, c);
        check(t, dt_comm_stragglers(c, text, 5) == length && strlen(text) == 4, "a short buffer", rank, c);
    } else check(t, n == 0 || s[0].waited < t->o.timeout, "it did not wait", rank, c);
    check(t, dt_comm_get_stragglers(c, s, 0) == n, "how many", rank, c);
    dt_comm_free(c);
}
static const char *late_algo[] = { NULL, "ring", "tree" };
static int         late_run(int i, void *arg)
{
    if (late_algo[i / 3]) setenv("DT_COMM_ALGO", late_algo[i / 3], 1);
    (void)arg;
    return run(hows[i % 3], 3 + i / 3, 1, i % 3, 0, late) != 0;
}
UTEST(stragglers, a_slow_rank_is_named_and_no_error)
{
    EXPECT_EQ(0, dt_test_ranks(9, 58, late_run, NULL));
}

/* ==================================================================================================== ordered */
static uint64_t hash_of(const void *p, size_t n, uint64_t h)
{
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001b3);
    return h;
}
static float term(int rank, int64_t i) { return (float)((rank * 131 + i * 7919) % 1009) * (rank % 2 ? -1e3f : 1e-3f); }
/* arg: not at all, by option, by environment. What rank 0 found is in bits. */
static void in_order(team *t, dt_comm *c, int rank)
{
    static const int64_t size[] = { 1, 3, 7, 100, MANY };
    uint64_t             h = 0;
    for (int k = 0; k < 5; k++) {
        int64_t n = size[k];
        float  *x = (float *)malloc((size_t)n * 4), *y = (float *)malloc((size_t)n * 4 * MOST), *z = y + n;
        for (int64_t i = 0; i < n; i++) x[i] = y[i] = term(rank, i);
        check(t, !dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM), "allreduce", rank, c);
        for (int64_t i = 0; t->arg && i < n; i++) { /* the tree */
            float v[MOST];
            for (int r = 0; r < t->n; r++) v[r] = term(r, i);
            for (int s = 1; s < t->n; s *= 2)
                for (int r = 0; r + s < t->n; r += 2 * s) v[r] += v[r + s];
            if (memcmp(v, &x[i], 4)) check(t, false, "not the tree's", rank, c), i = n;
        }
        check(t, !dt_comm_reduce(c, y, n, DT_COMM_F32, DT_COMM_SUM, k % t->n), "reduce", rank, c);
        if (t->arg && rank == k % t->n) check(t, !memcmp(x, y, (size_t)n * 4), "reduce as allreduce", rank, c);
        h = hash_of(x, (size_t)n * 4, h + 1);
        if (n % t->n == 0) { /* segments of the same vector */
            for (int64_t i = 0; i < n; i++) y[i] = term(rank, i);
            check(t, !dt_comm_reduce_scatter(c, y, z, n / t->n, NULL, DT_COMM_F32, DT_COMM_SUM), "scatter", rank, c);
            if (t->arg) check(t, !memcmp(x + n / t->n * rank, z, (size_t)(n / t->n) * 4), "as allreduce", rank, c);
        }
        uint16_t half[40];
        for (int i = 0; i < 40; i++) half[i] = (uint16_t)(0x2e00 + (rank * 37 + i * 11) % 1500);
        check(t, !dt_comm_allreduce(c, half, 40, DT_COMM_F16, DT_COMM_MEAN), "half", rank, c);
        h = hash_of(half, sizeof half, h);
        free(x);
        free(y);
    }
    if (rank == 0) t->bits = h;
    check(t, !dt_comm_free(c), "free", rank, NULL);
}
static int order_run(const char *how, int n, const char *algo, int arg)
{
    if (algo) setenv("DT_COMM_ALGO", algo, 1);
    if (arg == 2) setenv("DT_COMM_ORDERED", "1", 1);
    use_ordered = arg == 1;
    int failed = run(how, n, 20, arg, 0, in_order);
    use_ordered = false;
    unsetenv("DT_COMM_ALGO");
    unsetenv("DT_COMM_ORDERED");
    return failed;
}
UTEST(ordered, the_same_bits_over_every_transport_and_with_any_algorithm)
{
    static const char *const algo[] = { NULL, "ring", "tree", "halving" };
    for (int n = 2; n <= 6; n++) {
        uint64_t bits = 0;
        for (int k = 0; k < 12; k++) {
            const char *how = hows[k % 3];
            int         streams = 1 + k % 2;
            EXPECT_EQ(0, order_run(how, n, algo[k / 3], streams));
            if (k) EXPECT_EQ(bits, last_bits);
            bits = last_bits;
        }
    }
    EXPECT_EQ(0, order_run("tcp", 5, "ring", 0)); /* these numbers do show the order */
    uint64_t ring = last_bits;
    EXPECT_EQ(0, order_run("tcp", 5, "tree", 0));
    EXPECT_TRUE(ring != last_bits);
}
/* One rank has not asked for it: as any other difference. */
static void not_all_ordered(team *t, dt_comm *c, int rank)
{
    float x[8] = { 0 };
    c->ordered = rank == 0;
    int rc = dt_comm_allreduce(c, x, 8, DT_COMM_F32, DT_COMM_SUM);
    check(t, rc == DT_COMM_ERR_MISMATCH && strstr(dt_comm_error(c), "algorithm ordered"), "mismatch", rank, c);
    dt_comm_free(c);
}
UTEST(ordered, all_ranks_must_ask)
{
    for (int h = 0; h < 3; h++) EXPECT_EQ(0, run(hows[h], 3, 20, 0, 0, not_all_ordered));
}
