/* test_survive.c: ranks that call different things, that die, stop, come late; the survivors go on */
#define DT_IMPLEMENTATION
#include "../dt_comm.h"
#include "ranks.h"

UTEST_MAIN()

enum { MOST = 8, MANY = 6000, GUARD = 64 };
typedef struct team { /* seen by all ranks */
    const char *how;  /* "shm", "tcp", "threads" */
    const char *algo;
    int         n, arg, arg2, ordered;
    double      timeout;
    void      (*fn)(struct team *t, dt_comm *c, int rank);
    int         failed, told, ready; /* atomic */
    int64_t     when;
    uint64_t    bits[MOST];
    int32_t     pid[MOST];
} team;
static team    *shared_team;
static dt_comm *thread_comm[MOST];

static double slow(void) { return utest_slow(); }
static void   check(team *t, bool ok, const char *what, int rank, dt_comm *c)
{
    if (ok) return;
    if (__atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED) < 6)
        printf("    %s: %s, rank %d of %d, %d/%d: %s\n", what, t->how, rank, t->n, t->arg, t->arg2,
               dt_comm_error(c) ? dt_comm_error(c) : "");
    fflush(stdout);
}
static int spawned(void *arg)
{
    team    *t = (team *)arg;
    dt_comm *c = dt_comm_init(.transport = t->how, .algo = t->algo, .timeout = t->timeout, .join_timeout = 60);
    if (!c) {
        printf("    init: %s\n", dt_comm_error(NULL));
        __atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED);
        return 1;
    }
    t->pid[dt_comm_rank(c)] = (int32_t)getpid();
    t->fn(t, c, dt_comm_rank(c));
    return 0;
}
static void *played(void *arg)
{
    dt_comm *c = *(dt_comm **)arg;
    shared_team->fn(shared_team, c, dt_comm_rank(c));
    return NULL;
}
/* fn on n ranks; how many checks failed. A rank that dies is no failure: fn says what must hold. */
static int run(const char *how, int n, double timeout, int arg, int arg2, void (*fn)(team *t, dt_comm *c, int rank))
{
    team *t = (team *)mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) return 1000;
    t->how = how;
    t->n = n;
    t->arg = arg;
    t->arg2 = arg2;
    t->fn = fn;
    t->timeout = timeout * slow();
    shared_team = t;
    if (strcmp(how, "threads")) dt_spawn(n, spawned, t);
    else {
        pthread_t    thread[MOST];
        dt_comm_opts o;
        memset(&o, 0, sizeof o);
        o.timeout = t->timeout;
        if (dt_comm_threads_with(n, thread_comm, o)) t->failed = 1000;
        for (int i = 0; !t->failed && i < n; i++) pthread_create(&thread[i], NULL, played, &thread_comm[i]);
        for (int i = 0; t->failed < 1000 && i < n; i++) pthread_join(thread[i], NULL);
    }
    int failed = t->failed;
    munmap(t, sizeof *t);
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
            for (int n = first; n <= last; n++)
                EXPECT_EQ(0, run(how, n, 20, wrong, call + (call + n) % 2 * CALLS, differ));
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
    while (!rc && !(rc = dt_comm_status_of(c))) sched_yield(); /* in its program, until the others give up */
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
    while (!rc && !(rc = dt_comm_status_of(c))) sched_yield();
    check(t, rc == DT_COMM_ERR_PEER && strstr(dt_comm_error(c), "it was in allreduce #2"), "what it did", rank, c);
    dt_comm_free(c);
}
UTEST(deaths, the_message_tells_what_the_dead_rank_did)
{
    EXPECT_EQ(0, run("shm", 3, 20, 0, 0, killed_in_a_call));
}
