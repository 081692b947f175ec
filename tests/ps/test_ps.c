/* test_ps.c: the parameter server on threads, over shared memory and over TCP: rules, sizes, versions, errors, deaths, hostile requests
   run: alone, long, asan-later */
#define DT__WANT_INSIDE
#include "dt_ps.h"
#include "ranks.h"

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

/* ---------------------------------------------------------------------------------------------------- ranks
   A situation is a function that every rank runs with a store. */
enum { MOST = 80, BIG = 100000 };
typedef struct team {     /* seen by all ranks */
    const char *how;      /* "threads", "shm", "tcp" */
    int         n, arg;
    bool        tolerant;
    double      timeout;
    dt_ps_opts  o;
    void      (*fn)(struct team *t, dt_comm *c, int rank);
    int         failed, done, flag[4]; /* atomic */
    int64_t     sum[8];   /* atomic */
    float       weight[2][64];
    char        text[MOST][300];
} team;
static team    *team_now;
static dt_comm *thread_comm[MOST];
static const char *const hows[] = { "threads", "shm", "tcp" };

static void check(team *t, bool ok, const char *what, int line, int rank, dt_ps *ps, dt_comm *c)
{
    if (ok) return;
    if (__atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED) < 8)
        printf("    line %d: %s: %s, rank %d of %d, %d servers, mode %d, arg %d: %s / %s / %s\n", line, what, t->how, rank, t->n, t->o.servers, t->o.mode,
               t->arg, ps && dt_ps_error(ps) ? dt_ps_error(ps) : "", dt_comm_error(c) ? dt_comm_error(c) : "",
               dt_comm_error(NULL) ? dt_comm_error(NULL) : "");
    fflush(stdout);
}
#define CHECK(what) check(t, what, #what, __LINE__, rank, ps, c)
static void set(team *t, int k) { __atomic_add_fetch(&t->flag[k], 1, __ATOMIC_RELEASE); }
static int  get(const team *t, int k) { return __atomic_load_n(&t->flag[k], __ATOMIC_ACQUIRE); }
static void await(const team *t, int k, int n)
{
    while (get(t, k) < n) usleep(200);
}
static int spawned(void *arg)
{
    team    *t = (team *)arg;
    dt_comm *c = dt_comm_init(.transport = t->how, .timeout = t->timeout, .join_timeout = 60, .tolerant = t->tolerant);
    if (!c) {
        printf("    init: %s\n", dt_comm_error(NULL));
        __atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED);
        return 1;
    }
    t->fn(t, c, dt_comm_rank(c));
    dt_comm_error(c); /* so that a failure is not logged */
    dt_comm_free(c);
    __atomic_add_fetch(&t->done, 1, __ATOMIC_RELAXED);
    return 0;
}
static void *played(void *arg)
{
    dt_comm *c = *(dt_comm **)arg;
    team_now->fn(team_now, c, dt_comm_rank(c));
    dt_comm_error(c);
    dt_comm_free(c);
    __atomic_add_fetch(&team_now->done, 1, __ATOMIC_RELAXED);
    return NULL;
}
typedef struct plan {
    int        n, arg, dead; /* dead: processes that do not come to their end */
    bool       tolerant;
    double     timeout;      /* default 20 */
    dt_ps_opts o;
} plan;
static team *run_keep(const char *how, plan p, void (*fn)(team *t, dt_comm *c, int rank)) /* its failed has all that was wrong */
{
    team *t = (team *)mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) abort();
    t->how = how;
    t->n = p.n;
    t->arg = p.arg;
    t->fn = fn;
    t->o = p.o;
    t->tolerant = p.tolerant;
    t->timeout = (p.timeout > 0 ? p.timeout : 20) * dt_test_slow();
    team_now = t;
    int alive = p.n - p.dead;
    if (strcmp(how, "threads")) dt_spawn(p.n, spawned, t);
    else {
        pthread_t    thread[MOST];
        dt_comm_opts o;
        memset(&o, 0, sizeof o);
        o.timeout = t->timeout;
        o.tolerant = p.tolerant;
        int made = dt_comm_threads_with(p.n, thread_comm, o) ? 0 : p.n;
        for (int i = 0; i < made; i++) pthread_create(&thread[i], NULL, played, &thread_comm[i]);
        for (int i = 0; i < made; i++) pthread_join(thread[i], NULL);
        if (!made) t->failed = 1000;
        alive = p.n;
    }
    if (t->done != alive) t->failed++, printf("    %s: %d of %d came to the end\n", how, t->done, alive);
    return t;
}
static int run(const char *how, plan p, void (*fn)(team *t, dt_comm *c, int rank))
{
    team *t = run_keep(how, p, fn);
    int   failed = t->failed;
    munmap(t, sizeof *t);
    return failed;
}
static plan plan_of(int n, int servers, int mode)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.n = n;
    p.o.servers = servers;
    p.o.mode = mode;
    p.o.k = 2;
    p.o.staleness = 1;
    return p;
}
static void serve(team *t, dt_comm *c, int rank, dt_ps *ps) /* a rank that is a server only */
{
    CHECK(!dt_ps_serve(ps));
    CHECK(!dt_ps_free(ps));
}

/* ---------------------------------------------------------------------------------------------------- rules */
static size_t size_of(int dtype)
{
    static const size_t size[] = { 4, 2, 2, 4, 8, 1, 8 };
    return size[dtype];
}
static void write_at(void *p, int dtype, int64_t i, int v) /* v: 0 .. 100 */
{
    float    f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    switch (dtype) {
    case DT_COMM_F32: ((float *)p)[i] = f; return;
    case DT_COMM_F64: ((double *)p)[i] = v; return;
    case DT_COMM_I32: ((int32_t *)p)[i] = v; return;
    case DT_COMM_I64: ((int64_t *)p)[i] = v; return;
    case DT_COMM_U8: ((uint8_t *)p)[i] = (uint8_t)v; return;
    case DT_COMM_BF16: ((uint16_t *)p)[i] = (uint16_t)(u >> 16); return;
    default: ((uint16_t *)p)[i] = (uint16_t)(v ? ((u >> 23) - 112) << 10 | (u >> 13 & 1023) : 0); return; /* f16 */
    }
}
static int start_of(int64_t i) { return (int)(i % 5); }
static int pushed_of(int worker, int64_t i) { return worker + 1 + (int)(i % 3); }
/* Every dtype, lengths from nothing to several messages, on one server and cut over all; in SYNC, the sum of all workers. */
static void rules(team *t, dt_comm *c, int rank)
{
    static const int64_t lengths[] = { 0, 1, 63, 500, 4097, 70001 };
    dt_ps *ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (!ps) return;
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int    worker = dt_ps_worker(ps), workers = dt_ps_workers(ps), key = 0;
    char  *in = (char *)malloc(80000 * 8), *out = (char *)malloc(80000 * 8), *want = (char *)malloc(80000 * 8);
    CHECK(worker == rank && workers == t->n - t->o.servers && (t->o.servers ? dt_ps_server(ps) < 0 : dt_ps_server(ps) == rank));
    for (int dtype = 0; dtype < DT_COMM_DTYPES; dtype++)
        for (int l = 0; l < 6; l++)
            for (int rule = DT_PS_ASSIGN; rule <= DT_PS_SUM; rule++, key++) {
                int64_t n = lengths[l];
                size_t  size = size_of(dtype);
                if (dt_test_quick() && l == 5 && dtype % 3) continue;
                for (int64_t i = 0; i < n; i++) write_at(in, dtype, i, start_of(i));
                CHECK(!dt_ps_init(ps, key, worker ? NULL : in, n, dtype, .rule = rule));
                memset(out, 77, (size_t)n * size);
                CHECK(!dt_ps_pull(ps, key, out, n, dtype) && !memcmp(in, out, (size_t)n * size));
                for (int round = 1; round <= 2; round++) {
                    for (int64_t i = 0; i < n; i++) {
                        int sum = 0;
                        for (int w = 0; w < workers; w++) sum += pushed_of(w, i);
                        write_at(want, dtype, i, rule == DT_PS_SUM ? start_of(i) + round * sum : sum);
                        write_at(in, dtype, i, pushed_of(worker, i));
                    }
                    memset(out, 77, (size_t)n * size);
                    if (round == 1) CHECK(!dt_ps_push_pull(ps, key, in, out, n, dtype));
                    else CHECK(!dt_ps_push(ps, key, in, n, dtype) && !dt_ps_pull(ps, key, out, n, dtype));
                    CHECK(!memcmp(want, out, (size_t)n * size));
                }
            }
    free(in), free(out), free(want);
    CHECK(!dt_ps_free(ps));
}
UTEST(exchange, sums_and_assignments_of_all_dtypes_and_lengths)
{
    for (int i = 0; i < 3; i++)
        for (int servers = 0; servers < 3; servers++) {
            plan p = plan_of(3 + servers, servers, DT_PS_SYNC);
            p.o.big = 3000;
            if (dt_test_quick() && i == 2 && servers == 1) continue;
            EXPECT_EQ(0, run(hows[i], p, rules));
        }
}
