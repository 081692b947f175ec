/* test_faults.c - ranks that are killed, stopped or late, signals, strangers, too little memory: every rank gets the
   right error in time, and nothing is left over. The full counts run without DT_TEST_QUICK.
   Contents: >>crew >>killed >>stopped >>pending >>history >>memory >>joining >>signals
   >>strangers >>again
   run: alone, long, asan-later */
#define DT_NET_IMPLEMENTATION
#include "ranks.h"

/* strangers are dropped after 5 s, in quick runs after 2 s */
static int64_t test_handshake_time(void) { return INT64_C(1000000000) * (dt_test_quick() ? 2 : 5); }
#define DT__HANDSHAKE_TIME test_handshake_time()
#include "dt_comm.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

UTEST_MAIN()

/* ==================================================================================================== >>crew
   A job of forked ranks, and what they tell in memory that all share. */
enum { MOST = 8 };
typedef struct crew {
    int         n;
    const char *how; /* transport */
    double      timeout, join_timeout;
    unsigned    seed;
    uint32_t    victims; /* a bit each */
    int         sign;    /* the signal that they get */
    int         started; /* ranks that have finished a call; atomic */
    int64_t     when;    /* ns: the first victim's end */
    int64_t     delay;   /* ns: how long after its first call */
    int         busy;    /* victims that were in a call then */
    int         heard, right; /* ranks that got an error; the right one */
    int64_t     since[MOST], back[MOST]; /* begin and end of the call that failed */
    int         pid[MOST];
    int         calling[MOST]; /* it is in a call */
    char        text[400];     /* of the first rank that was wrong */
} crew;

static unsigned draw(unsigned *s) /* below 2^16 */
{
    *s = *s * 1103515245 + 12345;
    return *s >> 16;
}
static crew *crew_new(int n, const char *how, unsigned seed)
{
    crew *w = (crew *)mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w == MAP_FAILED) abort();
    w->n = n;
    w->how = how;
    w->seed = seed;
    w->timeout = 20 * dt_test_slow();
    w->join_timeout = 20 * dt_test_slow();
    w->sign = SIGKILL;
    return w;
}
static void crew_free(crew *w) { munmap(w, sizeof *w); }
static void crew_wrong(crew *w, const dt_comm *c, int rank, int rc)
{
    if (w->text[0]) return;
    snprintf(w->text, sizeof w->text, "rank %d: %d: %s", rank, rc, dt_comm_error(c) ? dt_comm_error(c) : "no message");
}
static dt_comm *crew_join(crew *w)
{
    int *pid = &w->pid[atoi(getenv("RANK"))];
    if (!*pid) *pid = getpid(); /* once: the thread that dooms reads it */
    return dt_comm_init(.transport = w->how, .timeout = w->timeout, .join_timeout = w->join_timeout);
}
/* The i-th call of a job: the same on all ranks. */
static int crew_call(crew *w, dt_comm *c, int i)
{
    static float x[MOST * 40000], y[40000];
    unsigned     s = w->seed + (unsigned)i * 7919;
    int          kind, root, n, rank = dt_comm_rank(c), rc;
    draw(&s);
    kind = (int)(draw(&s) % 4);
    root = (int)draw(&s) % w->n;
    n = (int)draw(&s) % (draw(&s) % 2 ? 40000 : 50);
    w->since[rank] = dt_test_ns();
    __atomic_store_n(&w->calling[rank], 1, __ATOMIC_RELAXED);
    rc = kind == 0   ? dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM)
         : kind == 1 ? dt_comm_broadcast(c, x, n, DT_COMM_F32, root)
         : kind == 2 ? dt_comm_gather(c, y, x, n, NULL, DT_COMM_F32, root)
                     : dt_comm_barrier(c);
    __atomic_store_n(&w->calling[rank], 0, __ATOMIC_RELAXED);
    w->back[rank] = dt_test_ns();
    return rc;
}
static bool is_victim(const crew *w, int rank) { return rank >= 0 && (w->victims >> rank & 1); }
static int  victims_of(const crew *w) { return __builtin_popcount(w->victims); }
/* A thread of the last victim: all of them get their signal when nobody expects it. */
static void *doom(void *arg)
{
    crew           *w = (crew *)arg;
    struct timespec t;
    t.tv_sec = 0;
    t.tv_nsec = (long)w->delay;
    nanosleep(&t, NULL);
    w->when = dt_test_ns();
    for (int r = 0; r < w->n; r++) {
        if (!is_victim(w, r)) continue;
        w->busy += __atomic_load_n(&w->calling[r], __ATOMIC_RELAXED);
        kill(w->pid[r], w->sign);
    }
    return NULL;
}
static void doom_begin(crew *w, int rank)
{
    pthread_t t;
    if (w->victims >> rank == 1 && pthread_create(&t, NULL, doom, w) == 0) pthread_detach(t);
}
static int  count_in(const char *path)
{
    DIR *d = opendir(path);
    int  n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
static bool instrumented(void) /* memory is the instrument's, too */
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    const char *s = getenv("LD_PRELOAD");
    return s && strstr(s, "vgpreload");
#endif
}
static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* ==================================================================================================== >>killed */
static int killed_rank(void *arg)
{
    crew    *w = (crew *)arg;
    dt_comm *c = crew_join(w);
    char     who[32];
    if (!c) return printf("    init: %s\n", dt_comm_error(NULL)) > 0;
    int rank = dt_comm_rank(c), rc = 0;
    for (int i = 0; !rc && i < 1000000; i++) {
        rc = i ? crew_call(w, c, i) : dt_comm_barrier(c); /* after it every rank has joined */
        if (i == 0) doom_begin(w, rank);
    }
    if (is_victim(w, rank)) pause(); /* another one was faster */
    int named = dt_comm_failed_rank(c);
    snprintf(who, sizeof who, "rank %d", named);
    if (rc == DT_COMM_ERR_PEER && is_victim(w, named) && strstr(dt_comm_error(c), who) &&
        dt_comm_barrier(c) == DT_COMM_ERR_PEER)
        __atomic_add_fetch(&w->right, 1, __ATOMIC_SEQ_CST);
    else crew_wrong(w, c, rank, rc);
    __atomic_add_fetch(&w->heard, 1, __ATOMIC_SEQ_CST);
    dt_comm_free(c);
    return 0;
}
static int killed_job(int i, void *arg) /* one of several at the same time */
{
    crew *w = ((crew **)arg)[i];
    return dt_spawn(w->n, killed_rank, w) != 128 + SIGKILL;
}
/* only: NULL: over both transports in turn */
static void killing(int *utest_result, const char *only, int trials, int together, bool many)
{
    static const int worlds[] = { 2, 3, 4, 8 };
    static int64_t   late[4096];
    int              n = 0, busy = 0, files = count_in("/dev/shm"), kills = 0;
    for (int i = 0; i < trials; i += together) {
        crew *team[2 * MOST], *w;
        for (int k = 0; k < together; k++) {
            const char *how = only ? only : (i + k) / 2 % 2 ? "tcp" : "shm";
            unsigned    s = (unsigned)(i + k) * 31 + (unsigned)strlen(how) + many;
            w = team[k] = crew_new(many ? 3 + (i + k) % 6 : worlds[(i + k) % 4], how, s);
            w->delay = (int64_t)(draw(&s) % 3000) * 1000;
            if (many) { /* 2 to P-1 of them, rank 0 every second time */
                int number = 2 + (int)draw(&s) % (w->n - 2);
                w->victims = (i + k) % 2 ? 0 : 1;
                while (victims_of(w) < number) w->victims |= 1u << draw(&s) % (unsigned)w->n;
            } else w->victims = 1u << draw(&s) % (unsigned)w->n;
        }
        EXPECT_EQ(dt_test_ranks(together, 30, killed_job, team), 0);
        for (int k = 0; k < together; k++) {
            w = team[k];
            kills += victims_of(w);
            busy += w->busy;
            if (w->right != w->n - victims_of(w))
                printf("    %s, %d ranks, victims %x, seed %u: %d were right, %d heard of it; %s\n", w->how, w->n,
                       w->victims, w->seed, w->right, w->heard, w->text);
            EXPECT_EQ(w->right, w->n - victims_of(w));
            for (int r = 0; r < w->n; r++)
                if (!is_victim(w, r)) late[n++] = w->back[r] - w->when;
            crew_free(w);
        }
    }
    qsort(late, (size_t)n, sizeof *late, by_value);
    printf("    %s: %d ranks killed, %d of them in a call; survivors knew after %.1f ms (p50), %.1f (slowest)\n",
           only ? only : "both", kills, busy, 1e-6 * (double)late[n / 2], 1e-6 * (double)late[n - 1]);
    EXPECT_TRUE((double)late[n - 1] < 1e9 * dt_test_slow());
    EXPECT_EQ(count_in("/dev/shm"), files);
}
UTEST(killed, one_of_processes_with_shared_memory)
{
    killing(utest_result, "shm", dt_test_quick() ? 40 : 200, 1, false);
}
UTEST(killed, one_of_processes_over_tcp) { killing(utest_result, "tcp", dt_test_quick() ? 40 : 200, 1, false); }
UTEST(killed, several_at_once)
{ /* who has lost rank 0 does not know who else is alive, and leaves after a second: several jobs at the same time */
    killing(utest_result, NULL, dt_test_quick() ? 10 : 50, 10, true);
}

/* ==================================================================================================== >>stopped */
static int stopped_rank(void *arg)
{
    crew    *w = (crew *)arg;
    dt_comm *c = crew_join(w);
    if (!c) return printf("    init: %s\n", dt_comm_error(NULL)) > 0;
    int rank = dt_comm_rank(c), rc = 0;
    for (int i = 0; !rc && i < 1000000; i++) {
        rc = i ? crew_call(w, c, i) : dt_comm_barrier(c);
        if (i == 0) doom_begin(w, rank);
    }
    /* the stopped one need not be the first to say so, but it must not go on alone */
    if (is_victim(w, rank) || (rc == DT_COMM_ERR_TIMEOUT && is_victim(w, dt_comm_failed_rank(c))))
        __atomic_add_fetch(&w->right, 1, __ATOMIC_SEQ_CST);
    else crew_wrong(w, c, rank, rc);
    if (__atomic_add_fetch(&w->heard, 1, __ATOMIC_SEQ_CST) == w->n - 1)
        for (int r = 0; r < w->n; r++)
            if (is_victim(w, r)) kill(w->pid[r], SIGCONT);
    dt_comm_free(c);
    return 0;
}
/* Before any two ranks have exchanged a message: there is no connection that could tell. */
static int cold_rank(void *arg)
{
    crew    *w = (crew *)arg;
    dt_comm *c = crew_join(w);
    float    x[100] = { 0 };
    if (!c) return printf("    init: %s\n", dt_comm_error(NULL)) > 0;
    int rank = dt_comm_rank(c), victim = __builtin_ctz(w->victims);
    __atomic_add_fetch(&w->started, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&w->started, __ATOMIC_SEQ_CST) < w->n) poll(NULL, 0, 1);
    if (rank == victim) raise(SIGSTOP);
    else
        while (!dt_test_is_stopped(w->pid[victim])) poll(NULL, 0, 1);
    w->since[rank] = dt_test_ns();
    int rc = rank == victim ? dt_comm_barrier(c) : dt_comm_allreduce(c, x, 100, DT_COMM_F32, DT_COMM_SUM);
    w->back[rank] = dt_test_ns();
    if (rank == victim ? rc != 0 : rc == DT_COMM_ERR_TIMEOUT && dt_comm_failed_rank(c) == victim)
        __atomic_add_fetch(&w->right, 1, __ATOMIC_SEQ_CST);
    else crew_wrong(w, c, rank, rc);
    if (rank != victim && __atomic_add_fetch(&w->heard, 1, __ATOMIC_SEQ_CST) == w->n - 1) kill(w->pid[victim], SIGCONT);
    dt_comm_free(c);
    return 0;
}
enum { COLD = 8, WARM = 20 };
typedef struct stops { /* they only wait: all run at the same time */
    crew *team[COLD + WARM];
    int   cold, n; /* the first ones are cold */
} stops;
static int stops_job(int i, void *arg)
{
    const stops *a = (const stops *)arg;
    return dt_spawn(a->team[i]->n, i < a->cold ? cold_rank : stopped_rank, a->team[i]);
}
UTEST(stopped, survivors_name_it_after_the_timeout_and_it_hears_of_it)
{
    stops  a;
    double slowest[2] = { 0, 0 }, limit = 1;
    a.cold = dt_test_quick() ? 4 : COLD;
    a.n = a.cold + (dt_test_quick() ? 6 : WARM);
    for (int i = 0; i < a.n; i++) {
        int      k = i < a.cold ? i : i - a.cold;
        unsigned s = (unsigned)k * 17 + 3;
        bool     tcp = i < a.cold ? k % 4 != 3 : k % 2;
        crew    *w = a.team[i] = crew_new(2 + k % 3, tcp ? "tcp" : "shm", i < a.cold ? 1 : s);
        w->timeout = limit;
        w->sign = SIGSTOP;
        w->delay = (int64_t)(draw(&s) % 3000) * 1000;
        w->victims = i < a.cold ? 1u << (k % 2 ? 0 : w->n - 1) : 1u << draw(&s) % (unsigned)w->n;
    }
    EXPECT_EQ(dt_test_ranks(a.n, 30, stops_job, &a), 0);
    for (int i = 0; i < a.n; i++) {
        crew  *w = a.team[i];
        bool   cold = i < a.cold;
        double longest = 0;
        for (int r = 0; r < w->n; r++) {
            if (is_victim(w, r)) continue;
            double waited = 1e-9 * (double)(w->back[r] - w->since[r]);
            double late = cold ? waited : 1e-9 * (double)(w->back[r] - w->when);
            longest = waited > longest ? waited : longest;
            slowest[cold] = late > slowest[cold] ? late : slowest[cold];
            if (cold) EXPECT_GE(waited, limit);
        }
        EXPECT_GE(longest, limit); /* somebody waited for the whole time */
        EXPECT_EQ_MSG(w->right, w->n, w->text);
        crew_free(w);
    }
    printf("    %d jobs: the slowest survivor knew %.2f s after the stop, before the first contact after %.2f s; the timeout is "
           "%g s\n", a.n, slowest[0], slowest[1], limit);
    EXPECT_LT(slowest[0], limit + dt_test_slow());
    EXPECT_LT(slowest[1], limit + dt_test_slow());
}

/* ==================================================================================================== >>pending
   Work that is not waited for when its communicator is freed, aborted, or when its process ends. */
enum { PENDING = 5, ELEMENTS = 50000 };
typedef struct duo { /* two ranks that are threads */
    dt_comm *c[2];
    float    x[2][PENDING][ELEMENTS];
    int      rank, how; /* how: 0 free, 1 abort by rank 1 then free, 2 rank 1 starts nothing and aborts */
    bool     one_thread;
    int      rc[2][PENDING], status[2];
} duo;
typedef struct seat {
    duo *d;
    int  rank;
} seat;
static void *pending_rank(void *arg)
{
    duo     *d = ((seat *)arg)->d;
    int      me = ((seat *)arg)->rank;
    dt_comm *c = d->c[me];
    dt_work *w[PENDING];
    for (int i = 0; i < PENDING; i++) {
        bool none = d->how == 2 && me == 1;
        for (int k = 0; k < ELEMENTS; k++) d->x[me][i][k] = (float)(me + i);
        w[i] = none ? NULL : dt_comm_allreduce_start(c, d->x[me][i], ELEMENTS, DT_COMM_F32, DT_COMM_SUM);
    }
    if (d->how && me == 1) dt_comm_abort(c, "enough");
    d->status[me] = dt_comm_free(c);
    for (int i = 0; i < PENDING; i++) { /* it is gone, they are not */
        d->rc[me][i] = d->status[me]; /* it was not started: the other one had aborted */
        if (!w[i]) continue;
        bool done = dt_work_test(w[i]) && dt_work_wait_any(&w[i], 1) == 0;
        d->rc[me][i] = done ? dt_work_wait(w[i]) : -1000;
    }
    return NULL;
}
UTEST(pending, works_outlive_a_communicator_of_threads)
{
    for (int i = 0; i < 6; i++) {
        duo      *d = (duo *)calloc(1, sizeof *d);
        pthread_t t[2];
        seat      s[2];
        d->how = i % 3;
        ASSERT_EQ(dt_comm_threads(2, d->c, .timeout = 10 * dt_test_slow(), .no_thread = i / 3), 0);
        for (int r = 0; r < 2; r++) {
            s[r].d = d;
            s[r].rank = r;
            pthread_create(&t[r], NULL, pending_rank, &s[r]);
        }
        for (int r = 0; r < 2; r++) pthread_join(t[r], NULL);
        for (int r = 0; r < 2; r++) {
            EXPECT_EQ(d->status[r], d->how ? DT_COMM_ERR_ABORT : 0);
            for (int k = 0; k < PENDING; k++) {
                if (d->how == 2 && r == 1) continue;
                EXPECT_TRUE(d->rc[r][k] == 0 || (d->how && d->rc[r][k] == DT_COMM_ERR_ABORT));
                EXPECT_TRUE(d->rc[r][k] != 0 || d->x[r][k][ELEMENTS - 1] == (float)(1 + 2 * k));
                EXPECT_TRUE(d->how != 2 || d->rc[r][k] == DT_COMM_ERR_ABORT); /* nothing was there to add */
            }
        }
        free(d);
    }
}
UTEST(pending, a_work_of_a_world_of_one_outlives_it)
{
    dt_comm *c = dt_comm_init(.world = 1);
    float    x = 3;
    ASSERT_TRUE(c != NULL);
    dt_work *w = dt_comm_allreduce_start(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
    EXPECT_EQ(dt_comm_free(c), 0);
    EXPECT_TRUE(dt_work_test(w));
    EXPECT_EQ(dt_work_wait(w), 0);
}
static int leaving_rank(void *arg) /* one of them ends with work under way; the others' waits return */
{
    static float x[PENDING][ELEMENTS];
    crew        *w = (crew *)arg;
    dt_comm     *c = crew_join(w);
    dt_work     *k[PENDING];
    if (!c) return printf("    init: %s\n", dt_comm_error(NULL)) > 0;
    int rank = dt_comm_rank(c);
    dt_comm_barrier(c); /* a slow one learns of the end here */
    for (int i = 0; i < PENDING; i++) {
        k[i] = dt_comm_allreduce_start(c, x[i], ELEMENTS, DT_COMM_F32, DT_COMM_SUM);
        if (is_victim(w, rank) && i == 2) _exit(0);
    }
    for (int i = 0; i < PENDING; i++) {
        int rc = k[i] ? dt_work_wait(k[i]) : dt_comm_get_status(c);
        if (i == PENDING - 1 && (rc != DT_COMM_ERR_PEER || !is_victim(w, dt_comm_failed_rank(c))))
            return printf("    rank %d: %d: %s\n", rank, rc, dt_comm_error(c)) > 0;
    }
    dt_comm_free(c);
    return 0;
}
UTEST(pending, waits_return_when_a_process_ends)
{
    for (int i = 0; i < 8; i++) {
        crew *w = crew_new(2 + i % 3, i % 2 ? "tcp" : "shm", 1);
        w->victims = 1u << i % w->n;
        EXPECT_EQ(dt_spawn(w->n, leaving_rank, w), 0);
        crew_free(w);
    }
}

/* ==================================================================================================== >>history
   What the ranks did before an error goes to the log, a line each that a program can read. */
static char history_log[64 * 256];
static void history_take(void *user, int level, const char *text)
{
    (void)user;
    if (level != 3 || strncmp(text, "history: ", 9) != 0) return;
    snprintf(history_log + strlen(history_log), sizeof history_log - strlen(history_log), "%s\n", text + 9);
}
static int history_rank(void *arg)
{
    crew    *w = (crew *)arg;
    char     text[sizeof history_log], *line = text;
    unsigned last = 0;
    dt_set_log(history_take, NULL);
    dt_comm *c = crew_join(w);
    if (!c) return 1;
    int rank = dt_comm_rank(c), rc = 0, lines = 0;
    for (int i = 0; i < 80 && !rc; i++) {
        if (i == 70 && is_victim(w, rank)) raise(SIGKILL);
        rc = crew_call(w, c, i);
    }
    size_t n = dt_comm_history(c, text, sizeof text);
    dt_comm_free(c);
    if (!rc || n >= sizeof text || strcmp(text, history_log) != 0)
        return printf("    rank %d: status %d, log:\n%s", rank, rc, history_log) > 0;
    for (; *line; line = strchr(line, '\n') + 1, lines++) {
        char      coll[32], dtype[8], op[8], algo[32];
        int       r, root, status;
        unsigned  seq;
        long long count;
        double    seconds;
        if (sscanf(line, "rank %d: %31s #%u of %lld %7[a-z0-9], %7[a-z], root %d, %31[a-z_], %lf s, status %d\n", &r,
                   coll, &seq, &count, dtype, op, &root, algo, &seconds, &status) != 10 ||
            r != rank || (lines && seq != last + 1) || (status && lines != DT__HISTORY - 1))
            return printf("    rank %d: line %d: %.200s\n", rank, lines, line) > 0;
        last = seq;
    }
    return lines == DT__HISTORY ? 0 : printf("    %d lines\n", lines) > 0;
}
UTEST(history, the_last_operations_are_in_the_log_of_every_survivor)
{
    for (int i = 0; i < 4; i++) {
        crew *w = crew_new(3, i % 2 ? "tcp" : "shm", (unsigned)i);
        w->victims = 1u << i % 3;
        EXPECT_EQ(dt_spawn(3, history_rank, w), 128 + SIGKILL);
        crew_free(w);
    }
}

/* A log function may ask about the communicator and abort it: no lock is held that these calls need. */
static dt_comm *logged_comm; /* atomic; NULL: not made yet, or freed */
static int      log_answers; /* atomic */
static void     log_aborts(void *user, int level, const char *text)
{
    char     past[100];
    dt_comm *c = __atomic_load_n(&logged_comm, __ATOMIC_ACQUIRE);
    (void)user;
    if (!c || level != 1 || !strstr(text, " died")) return;
    dt_comm_get_status(c);
    dt_comm_history(c, past, sizeof past);
    dt_comm_abort(c, "the log function says so");
    if (dt_comm_get_status(c) && dt_comm_error(c)) __atomic_add_fetch(&log_answers, 1, __ATOMIC_RELEASE);
}
static int log_rank(void *arg)
{
    crew *w = (crew *)arg;
    dt_set_log(log_aborts, NULL);
    dt_comm *c = crew_join(w);
    if (!c) return 1;
    __atomic_store_n(&logged_comm, c, __ATOMIC_RELEASE);
    int rank = dt_comm_rank(c), rc = 0;
    for (int i = 0; !rc; i++) {
        if (i == 20 && is_victim(w, rank)) raise(SIGKILL);
        rc = crew_call(w, c, i);
    }
    while (!__atomic_load_n(&log_answers, __ATOMIC_ACQUIRE)) usleep(1000);
    dt_comm_free(c);
    if (rc != DT_COMM_ERR_PEER && rc != DT_COMM_ERR_ABORT) return printf("    rank %d: status %d\n", rank, rc) > 0;
    __atomic_add_fetch(&w->right, 1, __ATOMIC_RELAXED);
    return 0;
}
UTEST(history, a_log_function_may_abort)
{
    for (int i = 0; i < 4; i++) {
        crew *w = crew_new(3, i % 2 ? "tcp" : "shm", (unsigned)i);
        w->victims = 1u << (i + 1) % 3;
        EXPECT_EQ(dt_spawn(3, log_rank, w), 128 + SIGKILL);
        EXPECT_EQ(w->right, 2); /* dt_spawn kills those that do not end */
        crew_free(w);
    }
}

/* ==================================================================================================== >>memory
   The kernel refuses memory for the segment: an error on every rank, no signal. Calls are refused by a filter of the
   process, so that it is the real code that asks. */
enum { NO_MEMFD = 1, NO_TRUNCATE, NO_SEATS, NO_CHANNELS, NO_STAGES, NO_FILE_SIZE, SMALL_FILES, NO_SPACE, WAYS };
static int refuse(int call, int error) /* from now on, in this process */
{
    struct sock_filter f[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog p;
    p.len = sizeof f / sizeof *f;
    p.filter = f;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
}
static int limit_to(int what, rlim_t n)
{
    struct rlimit r;
    if (getrlimit(what, &r)) return 1;
    r.rlim_cur = n;
    return setrlimit(what, &r);
}
static int memory_rank(void *arg)
{
    int         way = *(int *)arg, rc = 0, rank = atoi(getenv("RANK"));
    float       x[3000] = { 0 };
    const char *text;
    if (way == NO_MEMFD) rc = refuse(SYS_memfd_create, ENOSYS);
    if (way == NO_TRUNCATE) rc = refuse(SYS_ftruncate, ENOSPC);
    if (way == NO_SEATS) rc = refuse(SYS_fallocate, ENOSPC);
    if (way == NO_FILE_SIZE) rc = limit_to(RLIMIT_FSIZE, 1 << 20);
    if (way == SMALL_FILES) rc = limit_to(RLIMIT_FSIZE, 64 << 20);
    if (way == NO_SPACE) rc = limit_to(RLIMIT_AS, (rlim_t)200 << 20);
    if (rc) return 77;
    if (way == NO_SPACE && rank == 2 && nice(19) < 0) return 77; /* the others have failed when it comes, mostly */
    dt_comm *c = dt_comm_init(.transport = "shm", .timeout = 20 * dt_test_slow(), .join_timeout = 20 * dt_test_slow());
    if (way == SMALL_FILES) { /* there is room for what is needed, and a small arena */
        float *y = (float *)dt_comm_alloc(c, 4096);
        bool   ok = c && y && !dt_comm_alloc(c, 64 << 20) && !dt_comm_allreduce(c, y, 1000, DT_COMM_F32, DT_COMM_SUM);
        return !ok || dt_comm_free(c);
    }
    if (way == NO_CHANNELS || way == NO_STAGES) { /* memory ends later: the root's broadcast, or a reduction, finds no place */
        rc = dt_comm_barrier(c); /* a slow one hears of it here */
        if (!c || ((way == NO_CHANNELS || rank == 1) && refuse(SYS_fallocate, ENOMEM))) return 1;
        if (!rc && way == NO_CHANNELS) rc = dt_comm_broadcast(c, x, 3000, DT_COMM_F32, 1);
        if (!rc && way == NO_STAGES) rc = dt_comm_allreduce(c, x, 3000, DT_COMM_F32, DT_COMM_SUM);
        if (!rc) rc = dt_comm_barrier(c);
        text = dt_comm_error(c);
        bool ok = rc == DT_COMM_ERR_MEMORY && text && strstr(text, "shared memory") && dt_comm_failed_rank(c) == 1;
        if (!ok) printf("    rank %d: %d: %s\n", rank, rc, text ? text : "");
        bool none = (dt_comm_alloc(c, 4096) == NULL) == (way == NO_CHANNELS || rank == 1);
        return dt_comm_free(c) != DT_COMM_ERR_MEMORY || !ok || !none;
    }
    text = dt_comm_error(NULL);
    if (!c && dt_comm_get_status(NULL) == DT_COMM_ERR_MEMORY && text && strstr(text, "shared memory")) return 0;
    return printf("    way %d, rank %d: %s: %d: %s\n", way, rank, c ? "joined" : "NULL", dt_comm_get_status(NULL),
                  text ? text : "") > 0;
}
UTEST(memory, a_segment_that_cannot_be_made_is_an_error_on_every_rank)
{
    for (int way = NO_MEMFD; way < WAYS; way++) {
        if (way == NO_SPACE && instrumented()) continue;
        for (int again = way == NO_SPACE ? 10 : 1; again > 0; again--) {
            int rc = dt_spawn(3, memory_rank, &way);
            if (rc == 77) UTEST_SKIP("the kernel has no filters for system calls");
            EXPECT_EQ(rc, 0);
        }
    }
}

/* ==================================================================================================== >>joining
   A rank dies while it joins, or between two worlds: everybody's call ends, at the latest when the time to join is
   over. */
static int rejoin_rank(void *arg)
{
    crew *w = (crew *)arg;
    int   rank = atoi(getenv("RANK")), rc = 0;
    w->pid[rank] = getpid();
    doom_begin(w, rank);
    for (int i = 0; !rc && i < 10000; i++) {
        w->since[rank] = dt_test_ns();
        dt_comm *c = crew_join(w);
        float    x = 1;
        rc = c ? dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM) : DT_COMM_ERR_JOIN;
        if (c && dt_comm_free(c)) rc = 1;
        if (!rc && x != (float)w->n) return printf("    rank %d: the sum of %d ones is %g\n", rank, w->n, x) > 0;
    }
    w->back[rank] = dt_test_ns();
    if (is_victim(w, rank)) pause();
    __atomic_add_fetch(&w->heard, 1, __ATOMIC_SEQ_CST);
    return 0;
}
static int rejoin_job(int i, void *arg)
{
    crew *w = ((crew **)arg)[i];
    return dt_spawn(w->n, rejoin_rank, w) != 128 + SIGKILL;
}
UTEST(joining, a_rank_that_is_killed_in_it_or_between_two_worlds_holds_nobody_up)
{
    enum { TOGETHER = 10 };
    double slowest = 0, limit = 1;
    int    trials = dt_test_quick() ? 10 : 50;
    for (int i = 0; i < trials; i += TOGETHER) {
        crew *team[TOGETHER];
        for (int k = 0; k < TOGETHER; k++) {
            unsigned s = (unsigned)(i + k) * 13 + 1;
            crew    *w = team[k] = crew_new(2 + k % 4, k / 2 % 2 ? "tcp" : "shm", s);
            draw(&s);
            w->join_timeout = w->timeout = limit;
            w->delay = (int64_t)draw(&s) % (k % 2 ? 200 : 20) * 1000000; /* in the first one; later */
            w->victims = 1u << draw(&s) % (unsigned)w->n;
        }
        EXPECT_EQ(dt_test_ranks(TOGETHER, 30, rejoin_job, team), 0);
        for (int k = 0; k < TOGETHER; k++) {
            crew *w = team[k];
            EXPECT_EQ(w->heard, w->n - 1);
            for (int r = 0; r < w->n; r++) {
                double late = 1e-9 * (double)(w->back[r] - (w->since[r] > w->when ? w->since[r] : w->when));
                if (!is_victim(w, r) && late > slowest) slowest = late;
            }
            crew_free(w);
        }
    }
    printf("    %d trials, time to join %g s: the slowest rank ended after %.2f s\n", trials, limit, slowest);
    EXPECT_LT(slowest, limit + 2 * dt_test_slow()); /* rank 0 names who is missing; a second for leaving */
}
typedef struct port { /* a job at a fixed port with a token */
    int     port, flag[6];
    char    token[64];
    int     ports[4];
    char    names[4][32];
    uint8_t job[2][16]; /* of this one and of the one before */
} port;
static port *port_new(void)
{
    port    *j = (port *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    dt__addr a;
    uint8_t  token[32];
    dt__addr_loopback(&a, 0);
    snprintf(j->token, sizeof j->token, "/tmp/dt_faults_XXXXXX");
    int fd = dt__listen(&a), file = mkstemp(j->token);
    if (fd < 0 || file < 0 || !dt__comm_random(token, 32) || write(file, token, 32) != 32) abort();
    getsockname(fd, &a.u.any, &a.n);
    j->port = dt__addr_port(&a);
    close(fd);
    close(file);
    return j;
}
static void port_free(port *j)
{
    unlink(j->token);
    munmap(j, sizeof *j);
}
static void flag_add(port *j, int i) { __atomic_add_fetch(&j->flag[i], 1, __ATOMIC_SEQ_CST); }
static int  flag_get(port *j, int i) { return __atomic_load_n(&j->flag[i], __ATOMIC_SEQ_CST); }
static void flag_wait(port *j, int i, int n)
{
    while (flag_get(j, i) < n) poll(NULL, 0, 1);
}
static dt_comm *port_join(port *j, int rank, int world, int64_t epoch, const char *how)
{
    return dt_comm_init(.rank = rank, .world = world, .addr = "127.0.0.1", .port = j->port, .token_file = j->token,
                        .epoch = epoch, .timeout = 20 * dt_test_slow(), .join_timeout = 20 * dt_test_slow(),
                        .transport = how);
}
static int epoch_rank(int rank, void *arg)
{
    port   *j = (port *)arg;
    int64_t begin = dt_test_ns();
    if (rank == 2) { /* of the start before: it is late, and takes the place of rank 1 */
        dt_comm *c = port_join(j, 1, 2, 1, "tcp");
        bool     ok = !c && strstr(dt_comm_error(NULL), "rank 1 is of start 1 of the job, rank 0 of start 2") &&
                  (double)(dt_test_ns() - begin) < 2e9 * dt_test_slow();
        flag_add(j, 0);
        return ok ? 0 : printf("    %s\n", c ? "it was let in" : dt_comm_error(NULL));
    }
    if (rank == 1) flag_wait(j, 0, 1);
    dt_comm *c = port_join(j, rank, 2, 2, "tcp");
    return !c || dt_comm_barrier(c) || dt_comm_free(c);
}
UTEST(joining, a_late_rank_of_an_earlier_start_is_refused)
{
    port *j = port_new();
    EXPECT_EQ(dt_test_ranks(3, 30, epoch_rank, j), 0);
    port_free(j);
}

/* ==================================================================================================== >>signals
   The calls of the C library on sockets, as dt_comm.h makes them: interrupted, refused, cut to a byte. */
enum { CALM, TIMER, ERRORS, BYTES, SMALL, STORM, MODES };
static int             spoil_mode;
static int             spoiled[3]; /* EINTR, EAGAIN, cut; atomic */
static __thread unsigned spoil_seed;
static int spoil_size(size_t *n) /* errno, or 0 */
{
    if (spoil_mode < ERRORS || spoil_mode == SMALL) return 0;
    if (!spoil_seed) spoil_seed = (unsigned)getpid() ^ (unsigned)(uintptr_t)&spoil_seed;
    int e = spoil_mode == BYTES ? 0 : draw(&spoil_seed) % 4 == 0 ? EINTR : draw(&spoil_seed) % 4 == 0 ? EAGAIN : 0;
    if (e) __atomic_add_fetch(&spoiled[e == EAGAIN], 1, __ATOMIC_RELAXED);
    else if (*n > 1 && spoil_mode != ERRORS) {
        *n = spoil_mode == BYTES ? 1 : 1 + draw(&spoil_seed) % *n;
        __atomic_add_fetch(&spoiled[2], 1, __ATOMIC_RELAXED);
    }
    return e;
}
ssize_t send(int fd, const void *buf, size_t n, int flags)
{
    if ((errno = spoil_size(&n)) != 0) return -1;
    return syscall(SYS_sendto, fd, buf, n, flags, NULL, 0);
}
ssize_t recv(int fd, void *buf, size_t n, int flags)
{
    if ((errno = spoil_size(&n)) != 0) return -1;
    return syscall(SYS_recvfrom, fd, buf, n, flags, NULL, NULL);
}
static int spoil_message(const struct msghdr *m, struct msghdr *copy, struct iovec *v)
{
    size_t n = 0;
    *copy = *m;
    for (size_t i = 0; i < m->msg_iovlen; i++) n += m->msg_iov[i].iov_len;
    int e = spoil_size(&n);
    if (e || m->msg_iovlen > 2) return e;
    for (size_t i = 0; i < m->msg_iovlen; i++) {
        v[i] = m->msg_iov[i];
        if (v[i].iov_len > n) v[i].iov_len = n;
        n -= v[i].iov_len;
    }
    copy->msg_iov = v;
    return 0;
}
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    struct msghdr copy;
    struct iovec  v[2];
    if ((errno = spoil_message(m, &copy, v)) != 0) return -1;
    return syscall(SYS_sendmsg, fd, &copy, flags);
}
ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    struct msghdr copy;
    struct iovec  v[2];
    if ((errno = spoil_message(m, &copy, v)) != 0) return -1;
    ssize_t r = syscall(SYS_recvmsg, fd, &copy, flags);
    m->msg_controllen = copy.msg_controllen;
    m->msg_flags = copy.msg_flags;
    return r;
}
int socket(int domain, int type, int protocol) /* what is accepted has the buffers of the listener */
{
    int fd = (int)syscall(SYS_socket, domain, type, protocol), small = 4096;
    if (fd >= 0 && spoil_mode >= SMALL) syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    return fd;
}
int setsockopt(int fd, int level, int name, const void *value, socklen_t n)
{
    if (spoil_mode >= SMALL && level == SOL_SOCKET && name == SO_SNDBUF) return 0;
    return (int)syscall(SYS_setsockopt, fd, level, name, value, n);
}
static int  alarms;
static void alarm_take(int sign)
{
    (void)sign;
    alarms++;
}
typedef struct sums { /* what came out, of each rank */
    const char *how;
    uint64_t    sum[3];
    int         alarms, spoiled[3];
} sums;
static uint64_t sum_of(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001b3);
    return h;
}
static int signals_rank(void *arg)
{
    static float      x[9000], y[9000];
    sums             *t = (sums *)arg;
    struct itimerval  every;
    struct sigaction  a;
    int               rank = atoi(getenv("RANK")), rc = 0;
    uint64_t          h = 1;
    memset(&a, 0, sizeof a);
    memset(&every, 0, sizeof every);
    a.sa_handler = alarm_take; /* without SA_RESTART */
    every.it_value.tv_usec = every.it_interval.tv_usec = spoil_mode == TIMER || spoil_mode == STORM ? 300 : 0;
    sigaction(SIGALRM, &a, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    dt_comm *c = dt_comm_init(.transport = t->how, .timeout = 30 * dt_test_slow(), .join_timeout = 30 * dt_test_slow());
    if (!c) return printf("    mode %d: %s\n", spoil_mode, dt_comm_error(NULL)) > 0;
    for (int i = 0; i < (dt_test_quick() ? 6 : 12) && !rc; i++) {
        static const int sizes[] = { 0, 1, 7, 100, 1025, 3000 };
        int              n = sizes[i % 6];
        for (int k = 0; k < n; k++) x[k] = 1.0f / (float)(1 + k + 5 * rank + i);
        rc = dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM);
        if (!rc) rc = dt_comm_broadcast(c, x, n, DT_COMM_F32, i % 3);
        if (!rc) rc = dt_comm_allgather(c, x, y, n, NULL, DT_COMM_F32);
        if (!rc) rc = dt_comm_reduce_scatter(c, y, x, n, NULL, DT_COMM_F32, DT_COMM_SUM);
        h = sum_of(sum_of(h, x, (size_t)n * 4), y, (size_t)n * 12);
        dt_work *w = rc ? NULL : dt_comm_allreduce_start(c, y, n, DT_COMM_F32, DT_COMM_MAX);
        void    *p = dt_comm_alloc(c, 4 << 20); /* a signal in it is no reason to fail */
        if (!rc && (!p || dt_work_wait(w))) rc = 1;
        dt_comm_dealloc(c, p);
    }
    t->sum[rank] = h;
    if (rc) printf("    mode %d, rank %d: %s\n", spoil_mode, rank, dt_comm_error(c) ? dt_comm_error(c) : "no memory");
    int end = dt_comm_free(c);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    __atomic_add_fetch(&t->alarms, alarms, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++) __atomic_add_fetch(&t->spoiled[i], spoiled[i], __ATOMIC_RELAXED);
    return rc || end;
}
static void signals(int *utest_result, const char *how)
{
    sums *t = (sums *)mmap(NULL, MODES * sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int mode = CALM; mode < MODES; mode++) {
        t[mode].how = how;
        spoil_mode = mode;
        int rc = dt_spawn(3, signals_rank, &t[mode]);
        spoil_mode = CALM;
        EXPECT_EQ(rc, 0);
        EXPECT_TRUE(memcmp(t[mode].sum, t[CALM].sum, sizeof t->sum) == 0);
        printf("    %s, mode %d: %d signals, %d calls interrupted, %d refused, %d cut\n", how, mode, t[mode].alarms,
               t[mode].spoiled[0], t[mode].spoiled[1], t[mode].spoiled[2]);
        EXPECT_EQ(t[mode].alarms > 0, mode == TIMER || mode == STORM);
        EXPECT_EQ(t[mode].spoiled[0] > 0 && t[mode].spoiled[1] > 0, mode == ERRORS || mode == STORM);
        EXPECT_EQ(t[mode].spoiled[2] > 0, mode == BYTES || mode == STORM);
    }
    munmap(t, MODES * sizeof *t);
}
UTEST(signals, and_cut_calls_change_no_bit_over_tcp) { signals(utest_result, "tcp"); }
UTEST(signals, and_cut_calls_change_no_bit_with_shared_memory) { signals(utest_result, "shm"); }

/* ==================================================================================================== >>strangers */
static long rss_kib(void)
{
    long  pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}
static void stranger(const dt__addr *a, unsigned *seed)
{
    static const char *const says[] = { "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                                        "\x6c\x9d\x4b\xfc\xf2\xb9\x4a\x56", "DTK1" };
    struct linger            now = { 1, 0 };
    char                     junk[256];
    unsigned                 kind = draw(seed) % 6;
    int                      fd = dt__connect(a);
    if (fd < 0) return; /* the queue is full */
    dt__wait_fd(fd, POLLOUT, dt_test_ns() + 1000000000);
    for (size_t k = 0; k < sizeof junk; k++) junk[k] = (char)draw(seed);
    if (kind < 4) send(fd, says[kind], strlen(says[kind]), MSG_NOSIGNAL);
    if (kind == 4) send(fd, junk, 1 + draw(seed) % sizeof junk, MSG_NOSIGNAL);
    if (kind == 5) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* a reset, and no word */
    close(fd);
}
static void door(port *j, dt_comm *c) /* where this rank listens, for strangers */
{
    int      rank = dt_comm_rank(c);
    dt__addr a;
    dt__addr_take(&a, c->world->member[rank].addr, c->world->member[rank].addr_len);
    j->ports[rank] = dt__addr_port(&a);
    memcpy(j->names[rank], c->world->member[rank].unix_name, sizeof j->names[rank]);
}
static int garbage_rank(int rank, void *arg)
{
    static float x[5000];
    port        *j = (port *)arg;
    int          count = dt_test_quick() ? 500 : 5000, rc = 0, fds = 0, steps = 0;
    long         rss = 0;
    dt__addr     a;
    if (rank == 3) {
        unsigned seed = 1;
        dt__addr_loopback(&a, j->port);
        flag_wait(j, 0, 1);
        for (int i = 0; i < count; i++) {
            stranger(&a, &seed);
            if (i == count / 2) flag_add(j, 1); /* now the last one joins */
        }
        flag_wait(j, 2, 3);
        for (int i = 0; i < count; i++) {
            if (i % 2) dt__addr_loopback(&a, j->ports[i / 2 % 3]);
            else dt__addr_unix(&a, j->names[i / 2 % 3]);
            stranger(&a, &seed);
        }
        flag_add(j, 3);
        return 0;
    }
    if (rank == 0) flag_add(j, 0);
    if (rank == 2) flag_wait(j, 1, 1);
    dt_comm *c = port_join(j, rank, 3, 0, "tcp");
    if (!c) return printf("    rank %d: %s\n", rank, dt_comm_error(NULL));
    door(j, c);
    for (bool go = true; go && !rc; steps++) {
        float end = (float)flag_get(j, 3);
        for (int i = 0; i < 5000; i++) x[i] = (float)(rank + i % 7);
        rc = dt_comm_allreduce(c, x, 5000, DT_COMM_F32, DT_COMM_SUM);
        for (int i = 0; i < 5000 && !rc; i++) rc = x[i] == (float)(3 + 3 * (i % 7)) ? 0 : 1;
        if (!rc) rc = dt_comm_allreduce(c, &end, 1, DT_COMM_F32, DT_COMM_MIN);
        go = end == 0;
        if (steps == 20) {
            fds = count_in("/proc/self/fd");
            rss = rss_kib();
            flag_add(j, 2);
        }
    }
    for (int i = 0; i < 5000 && count_in("/proc/self/fd") > fds; i++) poll(NULL, 0, 2); /* the last ones are closed */
    int  left = count_in("/proc/self/fd") - fds;
    long more = rss_kib() - rss;
    if (rank == 0) printf("    %d strangers in %d steps; %ld KiB more\n", 2 * count, steps, more);
    if (more > 1024 && !instrumented()) rc = printf("    rank %d: %ld KiB more\n", rank, more);
    if (left > 0) rc = printf("    rank %d: %d descriptors more\n", rank, left);
    return dt_comm_free(c) || rc;
}
UTEST(strangers, garbage_at_every_door_changes_nothing)
{
    port *j = port_new();
    EXPECT_EQ(dt_test_ranks(4, 60, garbage_rank, j), 0);
    port_free(j);
}
enum { SLOW = 1000 };
static int slow_rank(int rank, void *arg)
{
    port *j = (port *)arg;
    if (rank == 3) { /* connects a thousand times; says nothing, or a byte a second */
        static int     fd[SLOW];
        static int64_t since[SLOW];
        double         oldest = 0;
        int            open = 0, count = SLOW, turn = 0;
        struct rlimit  r;
        dt__addr       a;
        if (getrlimit(RLIMIT_NOFILE, &r)) return 1;
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
        if (r.rlim_max < SLOW + 50) count = (int)r.rlim_max - 50;
        dt__addr_loopback(&a, j->port);
        flag_wait(j, 0, 1);
        for (int i = 0; i < count; i++) {
            since[i] = dt_test_ns();
            while ((fd[i] = dt__connect(&a)) < 0 || !dt__wait_fd(fd[i], POLLOUT, dt_test_ns() + 2000000000)) {
                if (fd[i] >= 0) close(fd[i]);
                if (dt_test_ns() - since[i] > (int64_t)(1e10 * dt_test_slow())) return printf("    connect: %d\n", errno);
                poll(NULL, 0, 5); /* rank 0 has not begun to listen */
            }
            open++;
            if (i == count / 2) flag_add(j, 1); /* now the ranks come */
        }
        while (open > 0) {
            for (int i = 0; i < count; i++) {
                char    trash[256];
                ssize_t n;
                if (fd[i] < 0) continue;
                if (turn % 20 == 0 && i % 2) send(fd[i], &"DTK1\1"[turn / 20 % 5], 1, MSG_NOSIGNAL);
                while ((n = recv(fd[i], trash, sizeof trash, 0)) > 0) {}
                double age = 1e-9 * (double)(dt_test_ns() - since[i]);
                oldest = age > oldest ? age : oldest;
                if (n < 0 && (errno == EAGAIN || errno == EINTR) && age < 20 * dt_test_slow()) continue;
                close(fd[i]);
                fd[i] = -1;
                open--;
            }
            poll(NULL, 0, 50);
            turn++;
        }
        flag_add(j, 2);
        printf("    %d strangers: the last was dropped after %.2f s\n", count, oldest);
        return oldest > 1e-9 * (double)test_handshake_time() + dt_test_slow();
    }
    if (rank == 0) flag_add(j, 0);
    if (rank > 0) flag_wait(j, 1, 1);
    int64_t  begin = dt_test_ns();
    dt_comm *c = port_join(j, rank, 3, 0, NULL);
    double   took = 1e-9 * (double)(dt_test_ns() - begin);
    float    x = 0;
    if (!c) return printf("    rank %d: %s\n", rank, dt_comm_error(NULL));
    while (x == 0) { /* the job goes on */
        x = (float)flag_get(j, 2);
        if (dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_MIN)) return printf("    %s\n", dt_comm_error(c));
        poll(NULL, 0, 1);
    }
    if (rank == 1) printf("    joined in %.3f s\n", took);
    return dt_comm_free(c) || (rank && took > 2 * dt_test_slow());
}
UTEST(strangers, a_thousand_that_say_nothing_keep_nobody_out)
{
    port *j = port_new();
    EXPECT_EQ(dt_test_ranks(4, 50, slow_rank, j), 0);
    port_free(j);
}

/* ==================================================================================================== >>again */
static int stale_dial(port *j, int kind, int64_t epoch) /* as rank 1 of the job before; what it gets */
{
    dt__world w;
    dt__shake h;
    dt__addr  a;
    memset(&w, 0, sizeof w);
    w.rank = 1;
    w.size = 2;
    w.epoch = epoch;
    w.timeout = w.join_timeout = 5;
    dt__token_read_file(j->token, "", w.token);
    memcpy(w.job, j->job[1], 16);
    dt__addr_loopback(&a, j->port);
    int got = dt__dial(&w, &a, 0, kind, 1, 0, dt_test_ns() + (int64_t)(2e9 * dt_test_slow()), NULL, &h);
    if (got >= 0) close(got);
    return got;
}
static int port_rank(int rank, void *arg)
{
    port *j = (port *)arg;
    int   jobs = dt_test_quick() ? 50 : 200, fds = 0, threads = 0;
    for (int k = 1; k <= jobs; k++) {
        float x = 1;
        if (rank == 2) { /* of the job before */
            flag_wait(j, 0, 2 * k);
            int link = k == 1 ? DT__SHAKE_BAD_JOB : stale_dial(j, DT__KIND_LINK, k - 1),
                tree = k == 1 ? DT__SHAKE_BAD_JOB : stale_dial(j, DT__KIND_TREE, k),
                join = stale_dial(j, DT__KIND_REGISTER, k - 1);
            flag_add(j, 1);
            if (link != DT__SHAKE_BAD_JOB || tree != DT__SHAKE_BAD_JOB || join != DT__SHAKE_REFUSED)
                return printf("    job %d: a stale rank got %d, %d, %d\n", k, link, tree, join);
            continue;
        }
        dt_comm *c = port_join(j, rank, 2, k, k % 2 ? "tcp" : "shm");
        if (!c) return printf("    job %d, rank %d: %s\n", k, rank, dt_comm_error(NULL));
        if (rank == 0) {
            memcpy(j->job[1], j->job[0], 16);
            memcpy(j->job[0], c->world->job, 16);
        }
        flag_add(j, 0);
        flag_wait(j, 1, k);
        if (dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM) || x != 2 || dt_comm_free(c)) return 1;
        if (k == 2) fds = count_in("/proc/self/fd"), threads = count_in("/proc/self/task");
    }
    if (rank == 2) return 0;
    for (int64_t begin = dt_test_ns(); dt_test_ns() - begin < 2000000000;) /* an ended thread is listed a moment longer */
        if (count_in("/proc/self/fd") == fds && count_in("/proc/self/task") == threads) return 0;
    return 1;
}
UTEST(again, many_jobs_on_one_port_and_ranks_of_the_job_before)
{
    port   *j = port_new();
    int64_t begin = dt_test_ns();
    EXPECT_EQ(dt_test_ranks(3, 60, port_rank, j), 0);
    printf("    %.2f s\n", 1e-9 * (double)(dt_test_ns() - begin));
    port_free(j);
}
typedef struct flat { /* what must not grow */
    int  fds, threads, files;
    long rss;
} flat;
static flat flat_now(void)
{
    flat f;
    f.fds = count_in("/proc/self/fd");
    f.threads = count_in("/proc/self/task");
    f.files = count_in("/dev/shm");
    f.rss = rss_kib();
    return f;
}
static int flat_bad(const char *what, int n, flat then)
{
    flat    now;
    bool    bad;
    int64_t begin = dt_test_ns();
    do { /* a thread that has ended is listed a moment longer, now or when `then` was taken */
        now = flat_now();
        bad = now.fds != then.fds || now.threads > then.threads || now.files != then.files;
        bad = bad || (!instrumented() && now.rss > then.rss + 1024);
    } while (bad && dt_test_ns() - begin < 2000000000);
    if (bad)
        printf("    %d %s: descriptors %d then %d, threads %d then %d, files %d then %d, KiB %ld then %ld\n", n, what,
               then.fds, now.fds, then.threads, now.threads, then.files, now.files, then.rss, now.rss);
    return bad;
}
static dt_comm *again_pair[2];
static int      again_turn; /* odd: the second thread frees */
static void    *again_thread(void *arg)
{
    int n = *(int *)arg;
    for (int i = 0; i < n; i++) {
        while (__atomic_load_n(&again_turn, __ATOMIC_ACQUIRE) != 2 * i + 1) sched_yield();
        dt_comm_free(again_pair[1]);
        __atomic_store_n(&again_turn, 2 * i + 2, __ATOMIC_RELEASE);
    }
    return NULL;
}
static int again_kinds(int rank, void *arg)
{
    int       n = dt_test_quick() ? 1000 : 10000, kind = *(int *)arg, failed = 0;
    flat      then = flat_now();
    pthread_t t;
    (void)rank;
    if (kind == 1) pthread_create(&t, NULL, again_thread, &n);
    for (int i = 0; i < n && !failed; i++) {
        if (kind == 0) {
            dt_comm *c = dt_comm_init(.world = 1);
            failed = !c || dt_comm_free(c);
        } else if (kind == 1) {
            failed = dt_comm_threads(2, again_pair, .timeout = 20 * dt_test_slow()) != 0;
            __atomic_store_n(&again_turn, 2 * i + 1, __ATOMIC_RELEASE);
            failed |= dt_comm_free(again_pair[0]);
            while (__atomic_load_n(&again_turn, __ATOMIC_ACQUIRE) != 2 * i + 2) sched_yield();
        } else if (kind == 2) { /* a port that nobody listens at, for one reason or another */
            failed = dt_comm_init(.world = 2, .rank = i % 3, .addr = i % 4 ? "127.0.0.1" : "127.0.0.1 ", .port = 1,
                                  .join_timeout = 1e-4, .insecure = true) != NULL;
        }
        if (i == 99) then = flat_now();
    }
    if (kind == 1) {
        pthread_join(t, NULL);
        then.threads--;
    }
    return failed || flat_bad(kind == 0 ? "worlds of one" : kind == 1 ? "worlds of threads" : "failed joins", n, then);
}
UTEST(again, worlds_that_come_and_go_leave_nothing)
{
    for (int kind = 0; kind < 3; kind++) EXPECT_EQ(dt_test_ranks(1, 50, again_kinds, &kind), 0);
}
static int dup_rank(void *arg)
{
    int      n = dt_test_quick() ? 300 : 10000, rc = 0;
    dt_comm *c = dt_comm_init(.transport = (const char *)arg, .timeout = 20 * dt_test_slow());
    flat     then = flat_now();
    if (!c) return 1;
    for (int i = 0; i < n && !rc; i++) {
        dt_comm *d = NULL;
        float    x = 1;
        rc = dt_comm_dup(c, &d) || dt_comm_allreduce(d, &x, 1, DT_COMM_F32, DT_COMM_SUM) || x != 2 || dt_comm_free(d);
        if (i == 99) then = flat_now();
    }
    if (rc) printf("    %s\n", dt_comm_error(c) ? dt_comm_error(c) : "wrong");
    rc |= flat_bad("communicators", n, then);
    return dt_comm_free(c) || rc;
}
UTEST(again, communicators_that_come_and_go_leave_nothing)
{
    char how[2][4] = { "shm", "tcp" };
    for (int i = 0; i < 2; i++) {
        int64_t begin = dt_test_ns();
        EXPECT_EQ(dt_spawn(2, dup_rank, how[i]), 0);
        printf("    %s: %.2f s\n", how[i], 1e-9 * (double)(dt_test_ns() - begin));
    }
}
