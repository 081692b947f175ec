/* test_ps.c: the parameter server on threads, over shared memory and over TCP: rules, sizes, versions, errors, deaths, hostile requests
   run: alone, long, asan-later */
#define DT_PS_IMPLEMENTATION
#define DT__WANT_INSIDE
#include "ranks.h"
#include "dt_ps.h"

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
    int64_t     total[300]; /* atomic */
    float       weight[64];
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
#define FREE() /* its message does not need the store */       \
    do {                                                       \
        int rc_ = dt_ps_free(ps);                              \
        check(t, !rc_, "dt_ps_free", __LINE__, rank, NULL, c); \
    } while (0)
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
    int64_t begin = dt_test_ns();
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
    if (getenv("DT_TEST_TIMES")) printf("    %s, %d servers, mode %d, arg %d: %.3f s\n", how, p.o.servers, p.o.mode, p.arg, 1e-9 * (double)(dt_test_ns() - begin));
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
    FREE();
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
    FREE();
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

/* ---- the function of an update */
typedef struct seen { /* by a server */
    team *t;
    int   calls, bad;
} seen;
static int descend(const dt_ps_part *p, const float *grad, void *user)
{
    seen  *s = (seen *)user;
    float *w = (float *)p->value;
    s->calls++;
    for (int64_t i = 0; i < p->n; i++) {
        s->bad += p->state[0][i] != (float)p->version || p->state[1][i] != (float)(-2 * p->version) || p->state[2] != NULL;
        p->state[0][i] += 1;
        p->state[1][i] -= 2;
        w[i] -= 0.5f * grad[i];
    }
    s->bad += p->at < 0 || p->at + p->n > p->total || p->dtype != DT_COMM_F32 || (p->key == 1 && p->total != 10000) || (p->key == 0 && p->total != 7);
    return 0;
}
static void update_rule(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    seen   s = { t, 0, 0 };
    float *w = (float *)calloc(10000, sizeof *w), *g = (float *)malloc(10000 * sizeof *g);
    CHECK(ps != NULL);
    if (dt_ps_server(ps) >= 0) CHECK(!dt_ps_on_update(ps, descend, &s, 2));
    if (dt_ps_worker(ps) >= 0) {
        int workers = dt_ps_workers(ps);
        for (int key = 0; key < 2; key++) {
            int64_t n = key ? 10000 : 7;
            CHECK(!dt_ps_init(ps, key, w, n, DT_COMM_F32, .rule = DT_PS_UPDATE));
            for (int round = 1; round <= 3; round++) {
                for (int64_t i = 0; i < n; i++) g[i] = (float)(rank + 1 + i % 4);
                CHECK(!dt_ps_push_pull(ps, key, g, w, n, DT_COMM_F32));
                int wrong = 0;
                for (int64_t i = 0; i < n; i++) { /* the mean: workers + 1 over 2, and i % 4 */
                    float want = 0, sum = 0;
                    for (int k = 0; k < workers; k++) sum += (float)(k + 1 + i % 4);
                    for (int k = 0; k < round; k++) want -= 0.5f * (sum * (1.0f / (float)workers));
                    wrong += w[i] != want;
                }
                CHECK(!wrong);
            }
            memset(w, 0, 10000 * sizeof *w);
        }
    }
    FREE();
    ps = NULL;
    if (rank >= t->n - (t->o.servers ? t->o.servers : t->n)) CHECK(!s.bad && s.calls >= 3);
    free(w), free(g);
}
UTEST(exchange, update_function_with_state)
{
    for (int i = 0; i < 3; i++)
        for (int servers = 0; servers < 3; servers++) {
            plan p = plan_of(3 + servers, servers, DT_PS_SYNC);
            p.o.big = 3000;
            EXPECT_EQ(0, run(hows[i], p, update_rule));
        }
}
/* The server's program comes to dt_ps_on_update long after the workers have begun. */
static void late_function(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    seen   s = { t, 0, 0 };
    float  w[7] = { 0 }, g[7] = { 1, 1, 1, 1, 1, 1, 1 };
    if (dt_ps_server(ps) >= 0) {
        char x = 0;
        if (rank == t->n - 1) CHECK(!dt_comm_recv(c, &x, 1, DT_COMM_U8, 0)); /* worker 0 is about to call dt_ps_init */
        usleep(20000);
        CHECK(!dt_ps_on_update(ps, descend, &s, 2));
        CHECK(!dt_ps_serve(ps));
    } else {
        char x = 0;
        if (!rank) CHECK(!dt_comm_send(c, &x, 1, DT_COMM_U8, t->n - 1));
        CHECK(!dt_ps_init(ps, 0, w, 7, DT_COMM_F32, .rule = DT_PS_UPDATE) && !dt_ps_push_pull(ps, 0, g, w, 7, DT_COMM_F32) && w[6] == -0.5f);
    }
    FREE();
}
UTEST(exchange, update_function_that_comes_late)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], plan_of(3, 1, DT_PS_SYNC), late_function));
}
static int add_it(const dt_ps_part *p, const float *grad, void *user)
{
    (void)user;
    for (int64_t i = 0; i < p->n; i++) ((float *)p->value)[i] += grad[i];
    return 0;
}
/* A push that is n > 1 versions old counts 1 / n: worker 1 pushes with values of version 0 when there are 4. */
static void stale_scaled(team *t, dt_comm *c, int rank)
{
    dt_ps     *ps = dt_ps_new_with(c, t->o);
    float      w = 0, one = 1;
    dt_ps_info info;
    dt_ps_item it = { 0, DT_COMM_F32, 1, &one, &w };
    if (dt_ps_server(ps) >= 0) CHECK(!dt_ps_on_update(ps, add_it, NULL, 0));
    else {
        CHECK(!dt_ps_init(ps, 0, &w, 1, DT_COMM_F32, .rule = DT_PS_UPDATE) && !dt_ps_pull(ps, 0, &w, 1, DT_COMM_F32) && !dt_ps_barrier(ps));
        for (int i = 0; i < 4 && !rank; i++) CHECK(!dt_ps_push_pull(ps, 0, &one, &w, 1, DT_COMM_F32));
        CHECK(!dt_ps_barrier(ps));
        if (rank) {
            CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info));
            if (t->arg) CHECK(info.verdict == DT_PS_STALE && info.version == 4 && w == 4.0f);
            else CHECK(info.verdict == DT_PS_USED && info.staleness == 4 && info.version == 5 && w == 4.25f);
        }
        CHECK(!dt_ps_barrier(ps));
        dt_ps_stats st;
        CHECK(!dt_ps_get_stats(ps, 0, &st));
        CHECK(st.version == (t->arg ? 4 : 5) && st.stale == t->arg && st.used == st.version && st.histogram[4] == !t->arg && st.workers == 2 &&
              st.first > 0 && st.last >= st.first);
        CHECK(!dt_ps_barrier(ps)); /* both have asked before one leaves */
    }
    FREE();
}
UTEST(exchange, stale_pushes_count_less_or_not_at_all)
{
    plan p = plan_of(3, 1, DT_PS_ASYNC);
    p.o.scale_by_staleness = true;
    EXPECT_EQ(0, run("threads", p, stale_scaled));
    p.o.max_staleness = 2;
    p.arg = 1;
    EXPECT_EQ(0, run("threads", p, stale_scaled));
}

/* ---------------------------------------------------------------------------------------------------- versions
   A group: an array cut over all servers, small ones on one. Each push adds 1 to all elements, so a mixture of versions is seen at
   once. arg: the version at which the workers stop */
enum { ARRAYS = 4 };
static const int64_t array_n[ARRAYS] = { 5000, 3, 700, 20000 };
typedef struct arrays {
    int64_t   *in[ARRAYS], *out[ARRAYS];
    dt_ps_item item[ARRAYS];
} arrays;
static arrays arrays_new(int64_t v, int first)
{
    arrays a;
    for (int k = 0; k < ARRAYS; k++) {
        a.in[k] = (int64_t *)malloc((size_t)array_n[k] * 8);
        a.out[k] = (int64_t *)malloc((size_t)array_n[k] * 8);
        for (int64_t i = 0; i < array_n[k]; i++) a.in[k][i] = v, a.out[k][i] = 0;
        a.item[k].key = first + k;
        a.item[k].dtype = DT_COMM_I64;
        a.item[k].n = array_n[k];
        a.item[k].push = a.in[k];
        a.item[k].pull = a.out[k];
    }
    return a;
}
static void arrays_free(arrays *a)
{
    for (int k = 0; k < ARRAYS; k++) free(a->in[k]), free(a->out[k]);
}
static bool arrays_same(const arrays *a) /* do all elements have one value? */
{
    for (int k = 0; k < ARRAYS; k++)
        for (int64_t i = 0; i < array_n[k]; i++)
            if (a->out[k][i] != a->out[0][0]) return false;
    return true;
}
static bool arrays_init(dt_ps *ps, arrays *a, int rule)
{
    for (int k = 0; k < ARRAYS; k++)
        if (dt_ps_init(ps, a->item[k].key, a->out[k], array_n[k], DT_COMM_I64, .rule = rule, .group = 1 + a->item[0].key)) return false;
    return true;
}
static void one_version(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    arrays     a = arrays_new(1, 7);
    dt_ps_info info;
    int64_t    last = 0, used = 0;
    int        mode = t->o.mode, workers = dt_ps_workers(ps);
    CHECK(arrays_init(ps, &a, DT_PS_SUM));
    while (last < t->arg && !t->failed) {
        dt_ps_op *op = dt_ps_exchange_start(ps, a.item, ARRAYS);
        CHECK(op && !dt_ps_wait(op, &info));
        CHECK(arrays_same(&a));
        CHECK(info.version >= last && info.staleness >= 0 && info.staleness <= info.version && info.k == 2);
        if (mode == DT_PS_ASYNC || mode == DT_PS_SSP) CHECK(!info.fresh || a.out[0][0] == info.version || get(t, 1));
        if (mode == DT_PS_SYNC) CHECK(a.out[0][0] == workers * info.version && info.verdict == DT_PS_USED && info.staleness == 0);
        if (mode == DT_PS_K_SYNC) CHECK(info.verdict == DT_PS_USED || info.verdict == DT_PS_CANCELLED);
        last = info.version;
        used += info.verdict == DT_PS_USED || info.verdict == DT_PS_KEPT;
    }
    __atomic_add_fetch(&t->sum[0], used, __ATOMIC_RELAXED);
    if (rank == workers - 1) { /* it goes on with zeros until it is alone, and all pushes are in the values */
        dt_ps_stats st = { 0 };
        set(t, 1);
        for (int k = 0; k < ARRAYS; k++) memset(a.in[k], 0, (size_t)array_n[k] * 8);
        for (int alone = 0; alone < 5 && !t->failed;) {
            CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, a.item, ARRAYS), &info) && arrays_same(&a) && !dt_ps_get_stats(ps, 7, &st));
            if (st.workers == 1 && get(t, 0) == workers - 1) alone++;
        }
        for (int k = 0; k < ARRAYS; k++) a.item[k].push = NULL;
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, a.item, ARRAYS), &info) && arrays_same(&a) && info.verdict == DT_PS_NONE);
        CHECK(!dt_ps_get_stats(ps, 7, &st));
        int64_t bins = 0;
        for (int k = 0; k < DT_PS_HISTOGRAM; k++) bins += st.histogram[k];
        CHECK(bins == st.used && st.workers == 1 && st.version == info.version);
        CHECK(a.out[0][0] == __atomic_load_n(&t->sum[0], __ATOMIC_ACQUIRE));
    }
    set(t, 0);
    FREE();
    arrays_free(&a);
}
UTEST(versions, never_a_mixture)
{
    for (int mode = 0; mode < DT_PS_MODES; mode++)
        for (int i = 0; i < 3; i++) {
            plan p = plan_of(5, i == 1 ? 0 : 2, mode);
            p.o.big = 1000;
            p.arg = dt_test_quick() ? 20 : 150;
            EXPECT_EQ(0, run(hows[i], p, one_version));
        }
}

/* Push, then pull: the pull has what was pushed. */
static void sees_its_push(team *t, dt_comm *c, int rank)
{
    dt_ps  *ps = dt_ps_new_with(c, t->o);
    int64_t in[3000], out[3000];
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    memset(out, 0, sizeof out);
    CHECK(!dt_ps_init(ps, 0, out, 3000, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_pull(ps, 0, out, 3000, DT_COMM_I64));
    int64_t mine = 0;
    for (int round = 1; round < 20; round++) {
        for (int i = 0; i < 3000; i++) in[i] = INT64_C(1) << 8 * rank;
        CHECK(!dt_ps_push(ps, 0, in, 3000, DT_COMM_I64) && !dt_ps_pull(ps, 0, out, 3000, DT_COMM_I64));
        mine = out[0] >> 8 * rank & 255;
        CHECK(out[2999] == out[0] && mine <= round);
        if (t->o.mode != DT_PS_K_SYNC) CHECK(mine == round); /* others are not too early */
        dt_ps_op *op = dt_ps_pull_async(ps, 0, out, 3000, DT_COMM_I64);
        CHECK(op != NULL);
        while (op && !dt_ps_test(op)) usleep(50);
        CHECK(!dt_ps_wait(op, NULL) && out[2999] == out[0]);
    }
    FREE();
}
UTEST(versions, a_pull_sees_the_push_before_it)
{
    static const int modes[] = { DT_PS_SYNC, DT_PS_K_SYNC, DT_PS_K_ASYNC, DT_PS_ASYNC, DT_PS_SSP, DT_PS_SSP_CLOCK };
    for (int m = 0; m < 6; m++)
        for (int i = 0; i < 3; i++) {
            plan p = plan_of(5, i == 0 ? 0 : i, modes[m]);
            p.o.big = 1000;
            p.o.staleness = 0;
            EXPECT_EQ(0, run(hows[i], p, sees_its_push));
        }
}

/* Many operations at once of one worker, in order. */
static void a_row_of_operations(team *t, dt_comm *c, int rank)
{
    enum { ROW = 30 };
    dt_ps *ps = dt_ps_new_with(c, t->o);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    arrays     a[ROW];
    dt_ps_op  *op[ROW];
    dt_ps_info info, last = { 0 };
    for (int i = 0; i < ROW; i++) a[i] = arrays_new(1, 0);
    CHECK(arrays_init(ps, &a[0], DT_PS_SUM));
    for (int i = 0; i < ROW; i++) {
        if (i % 3 == 2)
            for (int k = 0; k < ARRAYS; k++) a[i].item[k].push = NULL;
        if (i % 3 == 1)
            for (int k = 0; k < ARRAYS; k++) a[i].item[k].pull = NULL;
        op[i] = dt_ps_exchange_start(ps, a[i].item, ARRAYS);
        CHECK(op[i] != NULL);
    }
    for (int i = 0; i < ROW; i++) {
        CHECK(!dt_ps_wait(op[i], &info));
        if (i % 3 == 1) continue;
        CHECK(arrays_same(&a[i]) && info.version >= last.version && a[i].out[0][0] >= (i / 3) * 2 + 1);
        last = info;
    }
    CHECK(!dt_ps_barrier(ps));
    CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, a[2].item, ARRAYS), &info) && arrays_same(&a[2]) && a[2].out[0][0] == 20 * dt_ps_workers(ps));
    for (int i = 0; i < ROW; i++) arrays_free(&a[i]);
    FREE();
}
UTEST(versions, many_operations_at_once)
{
    for (int i = 0; i < 3; i++)
        for (int servers = 0; servers < 4; servers += 3) {
            plan p = plan_of(3 + servers, servers, DT_PS_ASYNC);
            p.o.big = 1000;
            EXPECT_EQ(0, run(hows[i], p, a_row_of_operations));
        }
}

/* Workers push and leave at once: what was accepted is applied, also if a server hears of the departure first. */
static void push_and_leave(team *t, dt_comm *c, int rank)
{
    enum { N = 300, PUSHES = 5 };
    dt_ps *ps = dt_ps_new_with(c, t->o);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t in[N], out[N];
    for (int i = 0; i < N; i++) in[i] = 1, out[i] = 0;
    CHECK(!dt_ps_init(ps, 0, out, N, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_barrier(ps));
    for (int i = 0; i < PUSHES && rank; i++) CHECK(!dt_ps_push(ps, 0, in, N, DT_COMM_I64));
    if (!rank) {
        dt_ps_stats st = { 0 };
        int64_t     end = dt_test_ns() + (int64_t)(20e9 * dt_test_slow());
        while (st.workers != 1 && dt_test_ns() < end) CHECK(!dt_ps_get_stats(ps, 0, &st));
        CHECK(st.workers == 1 && !dt_ps_pull(ps, 0, out, N, DT_COMM_I64) && out[0] == PUSHES * (dt_ps_workers(ps) - 1) && out[N - 1] == out[0]);
    }
    FREE();
}
UTEST(versions, a_push_before_leaving_counts)
{
    for (int round = 0; round < (dt_test_quick() ? 4 : 20); round++)
        for (int i = 0; i < 3; i++) {
            plan p = plan_of(8, round % 2 ? 0 : 4, DT_PS_ASYNC);
            p.o.big = 10;
            EXPECT_EQ(0, run(hows[i], p, push_and_leave));
        }
}

/* ---------------------------------------------------------------------------------------------------- disciplines */
static void cancelled(team *t, dt_comm *c, int rank) /* K is 2 of 3; worker 2 computes until it is told to stop */
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t    in[3] = { 1, 1, 1 }, out[3] = { 0 };
    dt_ps_item it = { 0, DT_COMM_I64, 3, in, out };
    dt_ps_info info;
    CHECK(!dt_ps_init(ps, 0, out, 3, DT_COMM_I64, .rule = DT_PS_SUM));
    CHECK(!dt_ps_init(ps, 1, out, 3, DT_COMM_I64, .rule = DT_PS_SUM));
    CHECK(!dt_ps_pull(ps, 0, out, 3, DT_COMM_I64) && !dt_ps_barrier(ps));
    for (int round = 1; round <= 5; round++) {
        CHECK(!dt_ps_cancelled(ps, 1) && !dt_ps_cancelled(ps, 99) && !dt_ps_cancelled(NULL, 0));
        if (rank == 2) {
            int64_t end = dt_test_ns() + (int64_t)(20e9 * dt_test_slow());
            while (!dt_ps_cancelled(ps, 0) && dt_test_ns() < end) usleep(100);
            CHECK(dt_ps_cancelled(ps, 0));
            if (round % 2) CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.verdict == DT_PS_CANCELLED && info.fresh);
            else CHECK(!dt_ps_pull(ps, 0, out, 3, DT_COMM_I64));
        } else CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.verdict == DT_PS_USED && info.staleness == 0 && info.version == round);
        CHECK(out[0] == 2 * round && out[2] == 2 * round);
        CHECK(!dt_ps_cancelled(ps, 0) && !dt_ps_barrier(ps));
    }
    dt_ps_stats st;
    CHECK(!dt_ps_get_stats(ps, 0, &st) && st.version == 5 && st.used == 10 && st.cancelled == 5 && st.k == 2);
    FREE();
}
UTEST(disciplines, who_is_late_is_cancelled)
{
    for (int i = 0; i < 3; i++)
        for (int servers = 0; servers < 3; servers++) {
            plan p = plan_of(3 + servers, servers, DT_PS_K_SYNC);
            p.o.big = 2;
            EXPECT_EQ(0, run(hows[i], p, cancelled));
        }
}
static void set_k(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t     in = 1, out = 0;
    dt_ps_stats st;
    dt_ps_info  info;
    dt_ps_item  it = { 3, DT_COMM_I64, 1, &in, &out };
    CHECK(!dt_ps_init(ps, 3, &out, 1, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_pull(ps, 3, &out, 1, DT_COMM_I64) && !dt_ps_barrier(ps));
    if (!rank) CHECK(!dt_ps_set_k(ps, 3, 1) && !dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.k == 1 && info.version == 1 && out == 1);
    CHECK(!dt_ps_barrier(ps));
    if (rank == 1) CHECK(!dt_ps_set_k(ps, 3, 3));
    CHECK(!dt_ps_barrier(ps) && !dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.k == 3 && info.version == 2 && out == 4);
    CHECK(!dt_ps_barrier(ps) && !dt_ps_get_stats(ps, 3, &st) && st.k == 3 && st.used == 4 && st.version == 2);
    CHECK(dt_ps_set_k(ps, 3, 0) == DT_COMM_ERR_ARG && dt_ps_set_k(ps, 4, 1) == DT_COMM_ERR_ARG && dt_ps_get_stats(ps, 4, &st) == DT_COMM_ERR_ARG);
    CHECK(dt_ps_get_stats(ps, 3, NULL) == DT_COMM_ERR_ARG && !dt_ps_barrier(ps));
    FREE();
}
UTEST(disciplines, k_changes)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], plan_of(3 + i, i, DT_PS_K_ASYNC), set_k));
}
/* Each batch number is used by exactly one push that became part of an update: the array counts them. */
static void batches(team *t, dt_comm *c, int rank)
{
    int64_t    n = t->o.batches, *in = (int64_t *)calloc((size_t)n, 8), *out = (int64_t *)calloc((size_t)n, 8);
    dt_ps     *ps = dt_ps_new_with(c, t->o);
    dt_ps_item it = { 0, DT_COMM_I64, n, in, out };
    dt_ps_info info;
    if (dt_ps_worker(ps) < 0) {
        free(in), free(out);
        serve(t, c, rank, ps);
        return;
    }
    CHECK(!dt_ps_init(ps, 0, out, n, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_wait(dt_ps_pull_async(ps, 0, out, n, DT_COMM_I64), &info));
    while (info.batch >= 0) {
        memset(in, 0, (size_t)n * 8);
        if (info.batch >= n) break;
        in[info.batch] = 1;
        if (dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info)) break;
    }
    CHECK(info.batch == -1);
    if (rank == 0) { /* it goes on until it is alone: it may get what others give back. Without a batch it pushes zeros */
        dt_ps_stats st = { 0 };
        for (int alone = 0; (alone < 5 || info.batch >= 0) && !t->failed;) {
            memset(in, 0, (size_t)n * 8);
            if (info.batch >= 0) in[info.batch] = 1;
            CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && !dt_ps_get_stats(ps, 0, &st));
            alone += st.workers == 1 && get(t, 0) == dt_ps_workers(ps) - 1;
        }
        int64_t once = 0;
        it.push = NULL;
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info));
        for (int64_t i = 0; i < n; i++) once += out[i] == 1;
        CHECK(once == n && st.waiting == 0);
    }
    set(t, 0);
    FREE();
    free(in), free(out);
}
UTEST(disciplines, each_batch_is_used_once)
{
    for (int mode = 0; mode < DT_PS_MODES; mode++)
        for (int i = 0; i < 3; i++) {
            plan p = plan_of(5, i == 2 ? 0 : i + 1, mode);
            p.o.batches = dt_test_quick() ? 100 : 700;
            p.o.big = 50;
            EXPECT_EQ(0, run(hows[i], p, batches));
        }
}

/* ---- a run that is recorded is repeated bit by bit */
static int nonlinear(const dt_ps_part *p, const float *grad, void *user)
{
    float *w = (float *)p->value;
    team  *t = (team *)user;
    for (int64_t i = 0; i < p->n; i++) {
        p->state[0][i] = 0.9f * p->state[0][i] + grad[i];
        w[i] -= 0.01f * p->state[0][i];
        t->weight[i + p->at] = w[i];
    }
    return 0;
}
static void recorded(team *t, dt_comm *c, int rank) /* arg: 0: first time, 1: again; the weights of both are in the team that stays */
{
    enum { N = 40 };
    dt_ps_opts o = t->o; /* .record of the plan: a path */
    if (t->arg) o.replay = o.record, o.record = NULL;
    dt_ps *ps = dt_ps_new_with(c, o);
    float  w[N], g[N];
    CHECK(ps != NULL);
    if (dt_ps_server(ps) >= 0) CHECK(!dt_ps_on_update(ps, nonlinear, t, 1));
    if (dt_ps_worker(ps) >= 0) {
        uint64_t random = (uint64_t)rank + 99 * (uint64_t)t->arg;
        for (int i = 0; i < N; i++) w[i] = 1.0f / (float)(i + 1);
        CHECK(!dt_ps_init(ps, 0, w, N, DT_COMM_F32, .rule = DT_PS_UPDATE) && !dt_ps_pull(ps, 0, w, N, DT_COMM_F32));
        int        used = 0; /* pushes that were not thrown away: they are the same in both runs */
        dt_ps_item it = { 0, DT_COMM_F32, N, g, w };
        dt_ps_info info = { 0 };
        for (int round = 0; round < 30; round++) {
            for (int i = 0; i < N; i++) {
                float x = w[i] * w[(i + 7) % N] + 0.1f * (float)(rank + 1) - 0.03f * (float)(used % 5);
                g[i] = x / (1 + (x < 0 ? -x : x));
            }
            if (dt_test_random(&random) % 4 == 0) usleep(300);
            CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info));
            used += info.verdict == DT_PS_USED || info.verdict == DT_PS_KEPT;
        }
    }
    FREE();
}
static void record_and_repeat(int *utest_result, plan p, int i)
{
    char  path[200];
    float first[64];
    snprintf(path, sizeof path, "/tmp/dt_ps_log_%d", (int)getpid());
    p.o.record = path;
    p.o.big = 20;
    p.o.staleness = 3;
    for (int again = 0; again < 2; again++) {
        p.arg = again;
        team *t = run_keep(hows[(i + again) % 3], p, recorded);
        EXPECT_EQ(0, t->failed);
        if (!again) memcpy(first, t->weight, sizeof first);
        else EXPECT_EQ(0, memcmp(first, t->weight, 40 * sizeof(float)));
        munmap(t, sizeof *t);
    }
    for (int s = 0; s < 2; s++) snprintf(path, sizeof path, "/tmp/dt_ps_log_%d.%d", (int)getpid(), s), unlink(path);
}
UTEST(disciplines, a_recorded_run_is_repeated)
{
    static const int modes[] = { DT_PS_ASYNC, DT_PS_SSP, DT_PS_ASYNC, DT_PS_K_ASYNC, DT_PS_K_BATCH_ASYNC };
    for (int i = 0; i < (dt_test_quick() ? 2 : 5); i++) record_and_repeat(utest_result, plan_of(5, 2, modes[i]), i);
}

/* Many workers for some time: every push is applied once. */
static void crowd(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    enum { N = 3000 };
    int64_t *in = (int64_t *)malloc(N * 8), *out = (int64_t *)calloc(N, 8), pushes = 0, end = dt_test_ns() + (int64_t)t->arg * 1000000000;
    CHECK(!dt_ps_init(ps, 0, out, N, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_init(ps, 1, out, 5, DT_COMM_I64, .rule = DT_PS_SUM));
    for (int i = 0; i < N; i++) in[i] = i + 1;
    while (dt_test_ns() < end && !t->failed) {
        int key = pushes % 3 != 0, n = key ? 5 : N;
        CHECK(pushes % 2 ? !dt_ps_push(ps, key, in, n, DT_COMM_I64) : !dt_ps_push_pull(ps, key, in, out, n, DT_COMM_I64));
        pushes++;
        if (!(pushes % 2)) continue;
        for (int i = 0; i < n; i++)
            if (out[i] % (i + 1) || out[i] / (i + 1) != out[0]) {
                CHECK(!"one version");
                break;
            }
    }
    __atomic_add_fetch(&t->sum[0], (pushes + 2) / 3, __ATOMIC_ACQ_REL);
    __atomic_add_fetch(&t->sum[1], pushes - (pushes + 2) / 3, __ATOMIC_ACQ_REL);
    dt_ps_info info;
    CHECK(!dt_ps_wait(dt_ps_pull_async(ps, 0, out, N, DT_COMM_I64), NULL) && !dt_ps_wait(dt_ps_pull_async(ps, 1, out, 5, DT_COMM_I64), NULL));
    CHECK(!dt_ps_barrier(ps)); /* all pushes are applied: each worker has pulled after them */
    for (int key = 0; key < 2; key++) {
        int n = key ? 5 : N;
        CHECK(!dt_ps_wait(dt_ps_pull_async(ps, key, out, n, DT_COMM_I64), &info) && info.version == t->sum[key] && out[0] == t->sum[key] &&
              out[n - 1] == n * t->sum[key]);
    }
    free(in), free(out);
    CHECK(!dt_ps_barrier(ps));
    FREE();
}
UTEST(disciplines, sixty_four_workers)
{
    plan p = plan_of(66, 2, DT_PS_ASYNC);
    p.arg = dt_test_quick() ? 2 : 55;
    p.o.big = 1000;
    p.timeout = 60;
    EXPECT_EQ(0, run("threads", p, crowd));
}

/* ---------------------------------------------------------------------------------------------------- errors */
static bool says(const dt_ps *ps, const char *word)
{
    const char *e = dt_ps_error(ps);
    if (e && strstr(e, word)) return true;
    printf("    no '%s' in: %s\n", word, e ? e : "(nothing)");
    return false;
}
static void wrong_calls(team *t, dt_comm *c, int rank)
{
    dt_ps_opts bad = t->o;
    dt_ps     *ps = NULL;
    float      x[4] = { 0 }, y[4] = { 0 };
    bad.servers = t->n;
    CHECK(!dt_ps_new_with(c, bad) && strstr(dt_comm_error(NULL), ".servers"));
    bad = t->o, bad.mode = 99;
    CHECK(!dt_ps_new_with(c, bad) && !dt_ps_new_with(NULL, t->o));
    bad = t->o, bad.timeout = -1;
    CHECK(!dt_ps_new_with(c, bad));
    CHECK(dt_ps_free(NULL) == 0 && dt_ps_push(NULL, 0, x, 4, DT_COMM_F32) < 0 && dt_ps_wait(NULL, NULL) < 0 && dt_ps_then(NULL, NULL, NULL) < 0);
    ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        CHECK(dt_ps_push(ps, 0, x, 4, DT_COMM_F32) == DT_COMM_ERR_STATE && says(ps, "server only"));
        CHECK(dt_ps_init(ps, 0, x, 4, DT_COMM_F32) == DT_COMM_ERR_STATE && dt_ps_barrier(ps) == DT_COMM_ERR_STATE);
        CHECK(dt_ps_on_update(ps, NULL, NULL, 0) == DT_COMM_ERR_ARG && dt_ps_on_update(ps, add_it, NULL, 5) == DT_COMM_ERR_ARG);
        serve(t, c, rank, ps);
        return;
    }
    CHECK(t->o.servers == 0 || dt_ps_serve(ps) == DT_COMM_ERR_STATE);
    CHECK(dt_ps_pull(ps, 5, x, 4, DT_COMM_F32) == DT_COMM_ERR_ARG && says(ps, "key 5 does not exist"));
    CHECK(dt_ps_init(ps, -1, x, 4, DT_COMM_F32) == DT_COMM_ERR_ARG && dt_ps_init(ps, 0, x, -4, DT_COMM_F32) == DT_COMM_ERR_ARG);
    CHECK(dt_ps_init(ps, 0, x, 4, 17) == DT_COMM_ERR_ARG && dt_ps_init(ps, 0, x, 4, DT_COMM_F32, .rule = 3) == DT_COMM_ERR_ARG);
    CHECK(rank || dt_ps_init(ps, 0, NULL, 4, DT_COMM_F32) == DT_COMM_ERR_ARG);
    for (int key = 0; key < 3; key++) CHECK(!dt_ps_init(ps, key, x, 4, DT_COMM_F32, .rule = DT_PS_SUM, .group = key ? 9 : 0));
    CHECK(dt_ps_init(ps, 1, x, 4, DT_COMM_F32) == DT_COMM_ERR_ARG && says(ps, "exists already"));
    CHECK(dt_ps_push(ps, 0, x, 5, DT_COMM_F32) == DT_COMM_ERR_ARG && says(ps, "has 4 elements of f32; the call has 5"));
    CHECK(dt_ps_push(ps, 0, x, 4, DT_COMM_I32) == DT_COMM_ERR_ARG && says(ps, "i32"));
    CHECK(dt_ps_push(ps, 0, NULL, 4, DT_COMM_F32) == DT_COMM_ERR_ARG && says(ps, "NULL"));
    CHECK(dt_ps_push(ps, 1, x, 4, DT_COMM_F32) == DT_COMM_ERR_ARG && says(ps, "1 of the 2 keys"));
    dt_ps_item it[2] = { { 2, DT_COMM_F32, 4, x, y }, { 1, DT_COMM_F32, 4, x, y } };
    CHECK(!dt_ps_exchange_start(ps, it, 2) && says(ps, "ascend"));
    it[0].key = 0, it[1].key = 1;
    CHECK(!dt_ps_exchange_start(ps, it, 2) && says(ps, "not in one group"));
    CHECK(!dt_ps_exchange_start(ps, it, 0) && !dt_ps_exchange_start(ps, NULL, 1));
    CHECK(!dt_ps_push_pull(ps, 0, x, y, 4, DT_COMM_F32) && !dt_ps_error(ps)); /* it can be used on */
    FREE();
}
UTEST(errors, wrong_calls)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], plan_of(3 + i, i, DT_PS_SYNC), wrong_calls));
}
/* arg 0: other options; 1: two inits that differ; 2: worker 0 does not init; 3: no update function; 4: an update function that fails;
   5: an update with another dtype */
static int fails_it(const dt_ps_part *p, const float *grad, void *user)
{
    (void)grad, (void)user;
    return p->version ? dt__comm_bad(DT_COMM_ERR_ARG, "the learning rate is bad") : 0;
}
static void wrong_ranks(team *t, dt_comm *c, int rank)
{
    dt_ps_opts o = t->o;
    float      x[40] = { 0 };
    int        rc;
    if (t->arg == 0 && rank == 1) o.max_staleness = 5;
    if (t->arg == 2) o.timeout = 1 * dt_test_slow();
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        if (t->arg == 4) CHECK(!dt_ps_on_update(ps, fails_it, NULL, 1));
        serve(t, c, rank, ps);
        return;
    }
    int64_t begin = dt_test_ns();
    switch (t->arg) {
    case 0:
        rc = dt_ps_init(ps, 0, x, 40, DT_COMM_F32);
        CHECK(rank == 1 ? rc == DT_COMM_ERR_REMOTE && (says(ps, "other options on worker 1") || says(ps, "worker 1 has mode 0 with k 2")) : !rc);
        break;
    case 1:
        rc = dt_ps_init(ps, 0, x, rank ? 40 : 30, DT_COMM_F32);
        CHECK(rc ? rc == DT_COMM_ERR_REMOTE && says(ps, "differ") && says(ps, "40") && says(ps, "30") : !rank); /* whoever came second */
        break;
    case 2:
        if (rank) CHECK(dt_ps_init(ps, 0, x, 40, DT_COMM_F32) == DT_COMM_ERR_TIMEOUT && says(ps, "worker 0") && says(ps, "key 0"));
        set(t, 0);
        await(t, 0, dt_ps_workers(ps));
        break;
    case 3:
        rc = dt_ps_init(ps, 0, x, 40, DT_COMM_F32, .rule = DT_PS_UPDATE);
        CHECK(rc == DT_COMM_ERR_REMOTE && says(ps, "dt_ps_on_update"));
        break;
    case 4: { /* also of large arrays: what is sent for a refused push ends with it */
        enum { N = 100000 };
        float *big = (float *)calloc(N, sizeof *big);
        CHECK(!dt_ps_init(ps, 0, big, N, DT_COMM_F32, .rule = DT_PS_UPDATE) && !dt_ps_push_pull(ps, 0, big, big, N, DT_COMM_F32));
        CHECK(dt_ps_push_pull(ps, 0, big, big, N, DT_COMM_F32) == DT_COMM_ERR_REMOTE && says(ps, "learning rate") && says(ps, "key 0"));
        CHECK(dt_ps_push_pull(ps, 0, big, big, N, DT_COMM_F32) == DT_COMM_ERR_REMOTE && says(ps, "learning rate") && says(ps, "key 0"));
        CHECK(dt_ps_pull(ps, 0, big, N, DT_COMM_F32) == DT_COMM_ERR_REMOTE && says(ps, "learning rate"));
        free(big);
        CHECK(!dt_ps_init(ps, 1, x, 40, DT_COMM_F32) && !dt_ps_pull(ps, 1, x, 40, DT_COMM_F32)); /* another group */
        break;
    }
    default: CHECK(dt_ps_init(ps, 0, x, 40, DT_COMM_I32, .rule = DT_PS_UPDATE) == DT_COMM_ERR_REMOTE && says(ps, "f32")); break;
    }
    CHECK(1e-9 * (double)(dt_test_ns() - begin) < 4 * dt_test_slow());
    FREE();
}
UTEST(errors, ranks_that_do_not_agree)
{
    for (int arg = 0; arg < 6; arg++)
        for (int i = 0; i < 3; i++) {
            plan p = plan_of(5, i == 1 && arg != 4 ? 0 : 2, DT_PS_SYNC);
            p.arg = arg;
            p.o.big = 10;
            EXPECT_EQ(0, run(hows[i], p, wrong_ranks));
        }
}
/* A worker that never pushes is named; large values, too. arg: elements */
static void silent_worker(team *t, dt_comm *c, int rank)
{
    dt_ps_opts o = t->o;
    o.timeout = 1 * dt_test_slow();
    dt_ps *ps = dt_ps_new_with(c, o);
    float *x = (float *)calloc((size_t)t->arg, sizeof *x), *y = (float *)calloc((size_t)t->arg, sizeof *y);
    if (dt_ps_worker(ps) < 0) serve(t, c, rank, ps);
    else {
        CHECK(!dt_ps_init(ps, 3, x, t->arg, DT_COMM_F32, .rule = DT_PS_SUM) && !dt_ps_pull(ps, 3, y, t->arg, DT_COMM_F32));
        if (rank == 1) await(t, 0, t->n - t->o.servers - 1);
        else {
            int64_t begin = dt_test_ns();
            for (int i = 0; i < t->arg; i++) x[i] = 1;
            CHECK(dt_ps_push_pull(ps, 3, x, y, t->arg, DT_COMM_F32) == DT_COMM_ERR_TIMEOUT && says(ps, "worker 1"));
            CHECK(1e-9 * (double)(dt_test_ns() - begin) < 4 * dt_test_slow());
            set(t, 0);
        }
        /* it can be used on: the update is made when worker 1 pushes after all */
        if (rank == 1) CHECK(!dt_ps_push_pull(ps, 3, x, y, t->arg, DT_COMM_F32) && y[0] == (float)(dt_ps_workers(ps) - 1) && y[t->arg - 1] == y[0]);
        CHECK(!dt_ps_barrier(ps));
        CHECK(!dt_ps_pull(ps, 3, y, t->arg, DT_COMM_F32) && y[0] == (float)(dt_ps_workers(ps) - 1) && y[t->arg - 1] == y[0]);
        CHECK(!dt_ps_barrier(ps));
    FREE();
    }
    free(x), free(y);
}
UTEST(errors, a_worker_that_never_pushes_is_named)
{
    for (int i = 0; i < 6; i++) {
        plan p = plan_of(5, i % 3 == 1 ? 0 : 2, DT_PS_SYNC);
        if (dt_test_quick() && i != 1 && i != 3) continue;
        p.arg = i < 3 ? 40 : 300000;
        p.o.big = i % 2 ? 10 : 1000000;
        EXPECT_EQ(0, run(hows[i % 3], p, silent_worker));
    }
}
/* dt_ps_free with operations that nobody waited for */
static void then_it(void *user, int status, const dt_ps_info *info)
{
    (void)info;
    __atomic_store_n((int *)user, status ? status : 1, __ATOMIC_RELEASE);
}
static void freed_early(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    int64_t *x = (int64_t *)calloc((size_t)t->arg, 8), *y = (int64_t *)calloc((size_t)t->arg, 8), *z = (int64_t *)calloc((size_t)t->arg, 8);
    if (dt_ps_worker(ps) < 0) serve(t, c, rank, ps);
    else {
        int then = 0;
        CHECK(!dt_ps_init(ps, 0, x, t->arg, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_init(ps, 1, x, t->arg, DT_COMM_I64, .rule = DT_PS_SUM));
        CHECK(!dt_ps_barrier(ps));
        dt_ps_item it = { 0, DT_COMM_I64, t->arg, x, y }, other = { 1, DT_COMM_I64, t->arg, x, z };
        if (rank == 1) {
            for (int i = 0; i < t->arg; i++) x[i] = 1;
            CHECK(dt_ps_exchange_start(ps, &it, 1) != NULL);
            dt_ps_op *op = dt_ps_exchange_start(ps, &other, 1);
            CHECK(op && !dt_ps_then(op, then_it, &then));
        } else CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), NULL)); /* it is not held up by worker 1 */
        int rc = dt_ps_free(ps);
        ps = NULL;
        if (rank == 1) {
            CHECK(rc == DT_COMM_ERR_STATE && strstr(dt_comm_error(NULL), "not waited for"));
            CHECK(__atomic_load_n(&then, __ATOMIC_ACQUIRE) != 0);
        } else CHECK(!rc);
    }
    free(x), free(y), free(z);
}
UTEST(errors, freed_with_operations_outstanding)
{
    for (int i = 0; i < 12; i++) {
        plan p = plan_of(4, i % 3 == 0 ? 0 : 2, i < 6 ? DT_PS_SYNC : DT_PS_ASYNC);
        p.arg = i / 3 % 2 ? 40 : 100000;
        p.o.big = i % 2 ? 10 : 1000000;
        EXPECT_EQ(0, run(hows[i % 3], p, freed_early));
    }
}

static void refused(team *t, dt_comm *c, int rank, dt_ps *ps, int to, int tag, const void *data, size_t n)
{
    char out[100];
    CHECK(dt_comm_call(c, to, tag, data, (int64_t)n, out, sizeof out, NULL, .timeout = 5 * dt_test_slow()) == DT_COMM_ERR_REMOTE);
}
/* ---------------------------------------------------------------------------------------------------- codecs */
static dt_codec codec_of(int kind)
{
    dt_codec c;
    memset(&c, 0, sizeof c);
    c.kind = kind;
    c.ratio = 0.1;
    c.seed = 5;
    return c;
}
static float gradient(int worker, int round, int key, int64_t i) /* of no special form */
{
    uint64_t x = (uint64_t)worker * 1000003 + (uint64_t)round * 7919 + (uint64_t)key * 31 + (uint64_t)i * 2654435761u + 1;
    return ((float)(dt_test_random(&x) % 20001) - 10000) * 0.000317f;
}
static const float *residual_of(dt_ps *ps, int key)
{
    const dt__ps_key  *k = (const dt__ps_key *)dt__ps_map_get(&ps->keys, key);
    const dt__ps_team *t = dt__ps_team_of(ps, key);
    return k->residual[t->now];
}
/* Every codec: what the store adds up is what dt_codec_encode and dt_codec_decode of this rank give for all workers, bit for bit. arg: the kind */
static void codec_sums(team *t, dt_comm *c, int rank)
{
    enum { MAX = 70001, WORKERS = 2, KEYS = 5 };
    static const int64_t lengths[KEYS] = { 0, 1, 63, 5000, MAX };
    dt_ps_opts o = t->o;
    o.codec = codec_of(t->arg);
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    float *in = (float *)malloc(MAX * 4), *out = (float *)malloc(MAX * 4), *one = (float *)malloc(MAX * 4), *want = (float *)malloc(MAX * 4);
    float *residual = (float *)calloc(WORKERS * MAX, 4);
    char  *code = (char *)malloc(MAX * 8 + 64);
    for (int key = 0; key < KEYS; key++) {
        int64_t n = lengths[key];
        bool    feedback = t->arg != DT_CODEC_QSGD;
        for (int64_t i = 0; i < n; i++) want[i] = in[i] = (float)(i % 5);
        memset(residual, 0, WORKERS * MAX * 4);
        CHECK(!dt_ps_init(ps, key, in, n, DT_COMM_F32, .rule = DT_PS_SUM));
        int where = ((dt__ps_key *)dt__ps_map_get(&ps->keys, key))->server;
        for (int round = 0; round < 4; round++) {
            for (int w = 0; w < WORKERS; w++)
                for (int s = 0; s < dt_ps_servers(ps); s++) {
                    dt_codec cw = dt__ps_codec_for(&o.codec, w, key);
                    int64_t  at, m;
                    dt__ps_range(ps, n, s, where, &at, &m);
                    for (int64_t i = 0; i < m; i++) in[i] = gradient(w, round, key, at + i);
                    if (!m) continue;
                    int64_t got = dt_codec_encode(&cw, in, m, feedback ? residual + w * MAX + at : NULL, 1, (uint64_t)round, code, MAX * 8 + 64);
                    CHECK(got == dt_codec_bound(&cw, m) && !dt_codec_decode(&o.codec, code, got, one, m, false));
                    for (int64_t i = 0; i < m; i++) want[at + i] += one[i]; /* value, worker 0, worker 1: the store's order */
                }
            for (int64_t i = 0; i < n; i++) in[i] = gradient(rank, round, key, i);
            memset(out, 77, MAX * 4);
            if (round % 2) CHECK(!dt_ps_push(ps, key, in, n, DT_COMM_F32) && !dt_ps_pull(ps, key, out, n, DT_COMM_F32));
            else CHECK(!dt_ps_push_pull(ps, key, in, out, n, DT_COMM_F32));
            CHECK(!memcmp(out, want, (size_t)n * 4));
            if (feedback && n) CHECK(!memcmp(residual_of(ps, key), residual + rank * MAX, (size_t)n * 4));
        }
    }
    free(in), free(out), free(one), free(want), free(residual), free(code);
    CHECK(!dt_ps_barrier(ps));
    FREE();
}
UTEST(codecs, sums_of_what_was_sent)
{
    for (int kind = DT_CODEC_F16; kind < DT_CODECS; kind++)
        for (int i = 0; i < (dt_test_quick() ? 1 : 3); i++) {
            plan p = plan_of(2 + (kind + i) % 3, (kind + i) % 3, DT_PS_SYNC);
            p.arg = kind;
            p.o.big = 3000;
            EXPECT_EQ(0, run(hows[(kind + i) % 3], p, codec_sums));
        }
}
/* Top-k: nothing gets lost in any discipline. The pushes are whole numbers, so sums are exact: the values and the residuals of all workers
   are the sum of the pushes that were used. */
static void codec_keeps_all(team *t, dt_comm *c, int rank)
{
    enum { N = 300, ROUNDS = 60 };
    dt_ps_opts o = t->o;
    o.codec = codec_of(DT_CODEC_TOPK);
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    float      x[N], y[N] = { 0 }, mine[N] = { 0 };
    dt_ps_item it = { 0, DT_COMM_F32, N, x, y };
    dt_ps_info info = { 0 };
    uint64_t   random = (uint64_t)rank + 1;
    int        wasted = 0;
    CHECK(!dt_ps_init(ps, 0, y, N, DT_COMM_F32, .rule = DT_PS_SUM) && !dt_ps_pull(ps, 0, y, N, DT_COMM_F32) && !dt_ps_barrier(ps));
    for (int round = 0; round < ROUNDS; round++) {
        float before[N];
        bool  old = residual_of(ps, 0) != NULL;
        if (old) memcpy(before, residual_of(ps, 0), sizeof before);
        for (int i = 0; i < N; i++) x[i] = (float)(dt_test_random(&random) % 201) - 100;
        if (dt_test_random(&random) % 3 == 0) usleep(300);
        it.pull = round % 3 ? y : NULL; /* a push without a pull is told its verdict, too */
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info));
        int verdict = info.verdict;
        if (!it.pull) CHECK(!dt_ps_pull(ps, 0, y, N, DT_COMM_F32));
        if (verdict == DT_PS_USED || verdict == DT_PS_KEPT)
            for (int i = 0; i < N; i++) mine[i] += x[i];
        else wasted++, CHECK(!old || !memcmp(before, residual_of(ps, 0), sizeof before)); /* it goes on where it was */
    }
    for (int i = 0; i < N; i++) { /* whole numbers: sum[] is a place where all can add */
        __atomic_add_fetch(&t->total[i], (int64_t)mine[i] - (int64_t)residual_of(ps, 0)[i], __ATOMIC_ACQ_REL);
    }
    __atomic_add_fetch(&t->sum[0], wasted, __ATOMIC_ACQ_REL);
    CHECK(!dt_ps_rest(ps, 0, true)); /* who has ended is not waited for */
    CHECK(!dt_ps_barrier(ps));
    if (rank == 0) { /* the last pushes are applied when nobody computes any more */
        int wrong = 0;
        CHECK(!dt_ps_get_state(ps, 0, DT_PS_VALUE, y));
        for (int i = 0; i < N; i++) wrong += (int64_t)y[i] != t->total[i];
        CHECK(!wrong);
    }
    CHECK(!dt_ps_barrier(ps));
    FREE();
}
UTEST(codecs, error_feedback_loses_nothing)
{
    int64_t wasted = 0;
    for (int mode = 0; mode < DT_PS_MODES; mode++) {
        plan p = plan_of(5, 1 + mode % 2, mode);
        p.o.big = 100;
        p.o.max_staleness = mode == DT_PS_ASYNC || mode == DT_PS_K_ASYNC ? 1 : 0;
        team *t = run_keep(hows[mode % 3], p, codec_keeps_all);
        EXPECT_EQ(0, t->failed);
        wasted += t->sum[0];
        munmap(t, sizeof *t);
    }
    EXPECT_GT(wasted, 0); /* else the test has not seen what it is for */
}
/* What cannot be encoded, what a codec is not for, and ranks that do not agree. */
static void codec_errors(team *t, dt_comm *c, int rank)
{
    enum { N = 3000 };
    dt_ps_opts o = t->o;
    dt_ps_discipline d;
    memset(&d, 0, sizeof d);
    o.codec = codec_of(DT_CODEC_F16);
    o.codec.kind = DT_CODECS;
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(!ps && strstr(dt_comm_error(NULL), ".codec"));
    o.codec = codec_of(DT_CODEC_TOPK);
    o.codec.ratio = 2;
    CHECK(!dt_ps_new_with(c, o) && strstr(dt_comm_error(NULL), ".codec"));
    o.codec = codec_of(DT_CODEC_F16);
    ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    float      x[N], y[N] = { 0 }, before[N], z = 0;
    dt_ps_item it[2] = { { 2, DT_COMM_F32, N, x, y }, { 7, DT_COMM_F32, 1, x, &z } };
    CHECK(dt_ps_init(ps, 0, x, 3, DT_COMM_I64) == DT_COMM_ERR_ARG && says(ps, "key 0") && says(ps, "i64") && says(ps, "f16"));
    CHECK(!dt_ps_group(ps, 3) && !dt_ps_init(ps, 0, y, 3, DT_COMM_I64, .group = 3)); /* without a codec */
    d.codec.kind = -1;
    CHECK(dt_ps_group_with(ps, 4, d) == DT_COMM_ERR_ARG && says(ps, ".codec"));
    d.codec = codec_of(DT_CODEC_TOPK);
    CHECK(!dt_ps_group_with(ps, 4, d));
    CHECK(!dt_ps_init(ps, 2, y, N, DT_COMM_F32, .group = 4, .rule = DT_PS_SUM) && !dt_ps_init(ps, 7, y, 1, DT_COMM_F32, .group = 4, .rule = DT_PS_SUM));
    CHECK(!dt_ps_init(ps, 5, y, N, DT_COMM_F32));
    for (int i = 0; i < N; i++) x[i] = (float)(i % 50 + rank);
    CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, it, 2), NULL));
    memcpy(before, residual_of(ps, 2), sizeof before);
    dt_ps_item bad[2] = { it[0], it[1] };
    float      infinite = 1.0f / 0.0f;
    bad[1].push = &infinite;
    CHECK(!dt_ps_exchange_start(ps, bad, 2) && dt_comm_get_status(NULL) == DT_COMM_ERR_NONFINITE && says(ps, "key 7"));
    CHECK(!memcmp(before, residual_of(ps, 2), sizeof before)); /* of the key before it, too */
    x[2500] = 70000; /* finite, but f16 has nothing like it */
    CHECK(dt_ps_push(ps, 5, x, N, DT_COMM_F32) == DT_COMM_ERR_NONFINITE && says(ps, "key 5"));
    x[2500] = 7;
    CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, it, 2), NULL)); /* and the store goes on */
    CHECK(!dt_ps_push_pull(ps, 5, x, y, N, DT_COMM_F32) && y[2500] == 7.0f * (float)dt_ps_workers(ps));
    for (int i = 0; i < N; i++) x[i] = -0.0f; /* nothing: it is not sent, and the residual stays */
    memcpy(before, residual_of(ps, 2), sizeof before);
    CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, it, 2), NULL) && !memcmp(before, residual_of(ps, 2), sizeof before));
    CHECK(!dt_ps_push_pull(ps, 5, x, y, N, DT_COMM_F32) && !memcmp(x, y, sizeof x)); /* ASSIGN: the sum of -0 is -0 */
    memset(&d, 0, sizeof d);
    d.codec = codec_of(DT_CODEC_TOPK);
    d.codec.ratio += 0.1 * rank;
    CHECK(!dt_ps_group_with(ps, 9, d));
    int rc = dt_ps_init(ps, 9, y, N, DT_COMM_F32, .group = 9);
    __atomic_add_fetch(&t->flag[0], rc == DT_COMM_ERR_REMOTE && says(ps, "discipline of key 9"), __ATOMIC_ACQ_REL);
    CHECK(!dt_ps_barrier(ps));
    CHECK(get(t, 0) >= 1);
    FREE();
}
UTEST(codecs, what_cannot_be_encoded)
{
    for (int i = 0; i < 3; i++) {
        plan p = plan_of(2 + i, i, DT_PS_SYNC);
        p.o.big = 1000;
        EXPECT_EQ(0, run(hows[i], p, codec_errors));
    }
}
/* Worker 1 sends bytes that are not those of the codec: they are refused, and nothing changes. arg 0: in the request, 1: as messages */
static void codec_hostile(team *t, dt_comm *c, int rank)
{
    enum { MOST_N = 40000 };
    dt_ps_opts o = t->o;
    o.codec = codec_of(DT_CODEC_TOPK);
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t  n = t->arg ? MOST_N : 500, room = dt_codec_bound(&o.codec, n);
    float   *x = (float *)calloc(MOST_N, 4), *y = (float *)calloc(MOST_N, 4), *z = (float *)calloc(MOST_N, 4);
    char    *code = (char *)malloc((size_t)room), *req = (char *)malloc(sizeof(dt__ps_head) + sizeof(dt__ps_wire) + (size_t)room);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 100);
    CHECK(!dt_ps_init(ps, 0, x, n, DT_COMM_F32, .rule = DT_PS_SUM) && !dt_ps_push_pull(ps, 0, x, y, n, DT_COMM_F32) && !dt_ps_barrier(ps));
    CHECK(!dt_ps_pull(ps, 0, y, n, DT_COMM_F32) && (room > DT__PS_INLINE) == (t->arg == 1));
    if (rank == 1) {
        dt__ps_head h;
        dt__ps_wire w;
        uint64_t    random = 3;
        int         to = ps->server_rank[0];
        for (int i = 0; i < 40; i++) {
            dt__ps_head_fill(ps, &h, 0, 0);
            h.flags = 3, h.seq = 1000 + i, h.servers = 1, h.nparts = 1, h.version = 1;
            memset(&w, 0, sizeof w);
            w.dtype = DT_COMM_F32, w.n = n, w.nbytes = room, w.tag = t->arg ? dt__ps_next_tag(ps) : -1, w.see = -1;
            CHECK(dt_codec_encode(&o.codec, x, n, NULL, 1, 0, code, room) == room);
            uint32_t big = (uint32_t)n, inf = 0x7f800000u;
            switch (i % 8) {
            case 0: code[0] ^= 1; break;                                                     /* no magic */
            case 1: code[4] = DT_CODEC_F16; break;                                           /* another codec */
            case 2: memcpy(code + DT_CODEC_HEADER, &big, 4); break;                          /* an index beyond the end */
            case 3: memcpy(code + room - 4, &inf, 4); break;                                 /* a value */
            case 4: memcpy(code + DT_CODEC_HEADER + 4, code + DT_CODEC_HEADER, 4); break;    /* an index twice */
            case 5: w.nbytes += i & 8 ? 8 : -8; break;                                       /* another length */
            case 6: memset(code, 0, DT_CODEC_HEADER); break;
            default: /* all of it at random */
                for (int64_t k = 0; k < room; k++) code[k] = (char)dt_test_random(&random);
            }
            memcpy(req, &h, sizeof h);
            memcpy(req + sizeof h, &w, sizeof w);
            memcpy(req + sizeof h + sizeof w, code, (size_t)room);
            dt_work *send = t->arg && w.nbytes == room ? dt_comm_send_start(c, code, room, DT_COMM_U8, to, .tag = w.tag) : NULL;
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, req, sizeof h + sizeof w + (size_t)(t->arg ? 0 : room));
            if (send) CHECK(!dt_work_wait(send));
        }
    }
    CHECK(!dt_ps_barrier(ps));
    if (rank == 0) CHECK(!dt_ps_pull(ps, 0, z, n, DT_COMM_F32) && !memcmp(y, z, (size_t)n * 4)); /* the requests of worker 1 have used numbers that come */
    if (rank == 0) CHECK(!dt_ps_push_pull(ps, 0, x, z, n, DT_COMM_F32) && memcmp(y, z, (size_t)n * 4));
    free(x), free(y), free(z), free(code), free(req);
    FREE();
}
UTEST(codecs, bytes_that_are_none_are_refused)
{
    for (int i = 0; i < 6; i++) {
        plan p = plan_of(3, 1, DT_PS_ASYNC);
        p.arg = i / 3;
        EXPECT_EQ(0, run(hows[i % 3], p, codec_hostile));
    }
}
UTEST(codecs, a_recorded_run_is_repeated) /* also where pushes were thrown away, which the second run does not do at the same places */
{
    static const struct { int mode, kind, max_staleness; } runs[] = { { DT_PS_K_SYNC, DT_CODEC_TOPK, 0 }, { DT_PS_ASYNC, DT_CODEC_QSGD, 2 },
        { DT_PS_K_ASYNC, DT_CODEC_TOPK, 1 }, { DT_PS_SSP, DT_CODEC_F16, 0 }, { DT_PS_K_BATCH_SYNC, DT_CODEC_RANDOMK, 0 }, { DT_PS_SSP_CLOCK, DT_CODEC_ONEBIT, 0 } };
    for (int i = 0; i < (dt_test_quick() ? 3 : 6); i++) {
        plan p = plan_of(5, 2, runs[i].mode);
        p.o.codec = codec_of(runs[i].kind);
        p.o.max_staleness = runs[i].max_staleness;
        record_and_repeat(utest_result, p, i);
    }
}
/* A push without a pull, again and again, and several at once: each waits for the verdict of the one before. */
static void codec_pushes(team *t, dt_comm *c, int rank)
{
    enum { N = 200, ROUNDS = 20 };
    dt_ps_opts o = t->o;
    o.codec = codec_of(DT_CODEC_TOPK);
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    float      x[N], y[N] = { 0 };
    dt_ps_op  *op[ROUNDS];
    dt_ps_item it = { 0, DT_COMM_F32, N, x, NULL };
    for (int i = 0; i < N; i++) x[i] = (float)(i % 50 + 1);
    CHECK(!dt_ps_init(ps, 0, y, N, DT_COMM_F32, .rule = DT_PS_SUM));
    for (int round = 0; round < ROUNDS; round++) CHECK((op[round] = dt_ps_exchange_start(ps, &it, 1)) != NULL);
    for (int round = 0; round < ROUNDS; round++) {
        dt_ps_info info;
        CHECK(!dt_ps_wait(op[round], &info) && (info.verdict == DT_PS_KEPT || info.verdict == DT_PS_USED));
    }
    for (int round = 0; round < ROUNDS; round++) CHECK(!dt_ps_push(ps, 0, x, N, DT_COMM_F32));
    CHECK(!dt_ps_pull(ps, 0, y, N, DT_COMM_F32) && !dt_ps_barrier(ps) && !dt_ps_pull(ps, 0, y, N, DT_COMM_F32));
    for (int i = 0; i < N; i++) __atomic_add_fetch(&t->total[i], (int64_t)residual_of(ps, 0)[i], __ATOMIC_ACQ_REL);
    CHECK(!dt_ps_barrier(ps));
    int wrong = 0;
    for (int i = 0; i < N; i++) wrong += (int64_t)y[i] + t->total[i] != 2 * ROUNDS * dt_ps_workers(ps) * (i % 50 + 1);
    CHECK(!wrong);
    FREE();
}
UTEST(codecs, pushes_without_pulls)
{
    static const int modes[] = { DT_PS_ASYNC, DT_PS_SSP };
    for (int i = 0; i < 2; i++)
        for (int servers = 0; servers < 3; servers++) {
            plan p = plan_of(3 + servers, servers, modes[i]);
            p.o.big = 70;
            EXPECT_EQ(0, run(hows[(i + servers) % 3], p, codec_pushes));
        }
}

/* A process dies; a thread gives up, which is the same for the others. */
static void die(const team *t, dt_comm *c)
{
    if (strcmp(t->how, "threads")) kill(getpid(), SIGKILL);
    dt_comm_abort(c, "it gives up");
}
/* ---------------------------------------------------------------------------------------------------- two levels
   Machines are pretended by .machines. */
static const int machines_of[][8] = {
    { 0, 0, 1, 1, 0, 1, 0, 1 },  /* two of two workers */
    { 0, 1, 1, 1, 0, 1, 0, 1 },  /* of one and of three */
    { 5, 3, 5, 3, 5, 3, 5, 3 },  /* in turns */
    { 0, 1, 2, 3, 4, 5, 6, 7 },  /* one worker on each */
    { 0, 0, 0, 0, 0, 0, 0, 0 },  /* one machine */
};
enum { TOPOLOGIES = sizeof machines_of / sizeof *machines_of };
static dt_ps_opts two_levels(const team *t, int topology)
{
    dt_ps_opts o = t->o;
    o.two_level = true;
    o.machines = machines_of[topology];
    return o;
}
/* The sums of SYNC, of all dtypes, on one server and cut; push and pull, only push, only pull. arg: the topology */
static void levels_sums(team *t, dt_comm *c, int rank)
{
    enum { MAX = 20001 };
    static const int64_t lengths[] = { 0, 1, 500, MAX };
    dt_ps *ps = dt_ps_new_with(c, two_levels(t, t->arg));
    CHECK(ps != NULL);
    CHECK(dt_ps_workers(ps) == t->n - t->o.servers && dt_ps_servers(ps) == (t->o.servers ? t->o.servers : t->n));
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    CHECK(dt_ps_worker(ps) == rank && dt_ps_server(ps) == (t->o.servers ? -1 : rank));
    int   workers = dt_ps_workers(ps), key = 0;
    char *in = (char *)malloc(MAX * 8), *out = (char *)malloc(MAX * 8), *want = (char *)malloc(MAX * 8);
    for (int dtype = 0; dtype < DT_COMM_DTYPES; dtype += dt_test_quick() ? 2 : 1)
        for (int l = 0; l < 4; l++)
            for (int rule = DT_PS_ASSIGN; rule <= DT_PS_SUM; rule++, key++) {
                int64_t n = lengths[l];
                size_t  size = size_of(dtype);
                for (int64_t i = 0; i < n; i++) write_at(in, dtype, i, start_of(i));
                CHECK(!dt_ps_init(ps, key, rank ? NULL : in, n, dtype, .rule = rule));
                memset(out, 77, (size_t)n * size);
                CHECK(!dt_ps_pull(ps, key, out, n, dtype) && !memcmp(in, out, (size_t)n * size));
                for (int round = 1; round <= 2; round++) {
                    for (int64_t i = 0; i < n; i++) {
                        int sum = 0;
                        for (int w = 0; w < workers; w++) sum += pushed_of(w, i);
                        write_at(want, dtype, i, rule == DT_PS_SUM ? start_of(i) + round * sum : sum);
                        write_at(in, dtype, i, pushed_of(rank, i));
                    }
                    memset(out, 77, (size_t)n * size);
                    if (round == 1) CHECK(!dt_ps_push_pull(ps, key, in, out, n, dtype));
                    else CHECK(!dt_ps_push(ps, key, in, n, dtype) && !dt_ps_pull(ps, key, out, n, dtype));
                    CHECK(!memcmp(want, out, (size_t)n * size));
                }
                CHECK(!dt_ps_barrier(ps));
                memset(out, 0, (size_t)n * size); /* apart from the group: each worker alone */
                CHECK(!dt_ps_get_state(ps, key, DT_PS_VALUE, out) && !memcmp(want, out, (size_t)n * size));
            }
    dt_ps_stats st;
    CHECK(!dt_ps_get_stats(ps, 0, &st) && st.version == 2);
    free(in), free(out), free(want);
    CHECK(!dt_ps_barrier(ps));
    FREE();
}
UTEST(two_levels, sums)
{
    for (int i = 0; i < (dt_test_quick() ? 5 : 15); i++) {
        plan p = plan_of(4 + i % 3, i % 3, DT_PS_SYNC);
        p.o.big = 3000;
        p.arg = i % TOPOLOGIES;
        EXPECT_EQ(0, run(hows[(i + i / 3) % 3], p, levels_sums));
    }
}
/* The mean of an update is that of the workers, also on machines of different sizes. */
static int add_mean(const dt_ps_part *p, const float *grad, void *user)
{
    (void)user;
    for (int64_t i = 0; i < p->n; i++) ((float *)p->value)[i] += grad[i];
    return 0;
}
static void levels_means(team *t, dt_comm *c, int rank)
{
    enum { N = 2000 };
    dt_ps_opts o = two_levels(t, t->arg % TOPOLOGIES);
    if (t->arg >= TOPOLOGIES) o.codec = codec_of(DT_CODEC_BF16); /* whole numbers: exact */
    dt_ps *ps = dt_ps_new_with(c, o);
    float  g[N], v[3], w[N] = { 0 };
    CHECK(ps != NULL);
    if (dt_ps_server(ps) >= 0) CHECK(!dt_ps_on_update(ps, add_mean, NULL, 0));
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int wrong = 0;
    CHECK(!dt_ps_init(ps, 7, w, N, DT_COMM_F32, .rule = DT_PS_UPDATE, .group = 2) && !dt_ps_init(ps, 3, w, 3, DT_COMM_F32, .rule = DT_PS_UPDATE, .group = 2));
    for (int round = 1; round < 4; round++) {
        dt_ps_item it[2] = { { 3, DT_COMM_F32, 3, g, v }, { 7, DT_COMM_F32, N, g, w } };
        dt_ps_info info;
        for (int i = 0; i < N; i++) g[i] = (float)(4 * (rank + i % 3)); /* four workers: 4 * 1.5 + 4 * (i % 3) is their mean */
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, it, 2), &info) && info.verdict == DT_PS_USED && info.version == round && !info.staleness);
        for (int i = 0; i < N; i++) wrong += w[i] != (float)(round * (6 + 4 * (i % 3))) || (i < 3 && v[i] != w[i]);
    }
    CHECK(!wrong);
    FREE();
}
UTEST(two_levels, means_of_workers)
{
    for (int i = 0; i < 2 * TOPOLOGIES; i++) {
        plan p = plan_of(4 + i % 3, i % 3, DT_PS_SYNC);
        p.o.big = 1000;
        p.arg = i;
        EXPECT_EQ(0, run(hows[(i + i / 3) % 3], p, levels_means));
    }
}
/* All disciplines: each batch is used once, all workers of a machine see the same versions, and each push is in the sum once. W is 2. */
static void levels_batches(team *t, dt_comm *c, int rank)
{
    enum { N = 300 };
    dt_ps *ps = dt_ps_new_with(c, two_levels(t, t->arg));
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t    in[N], out[N] = { 0 };
    dt_ps_item it = { 0, DT_COMM_I64, N, NULL, out };
    dt_ps_info info = { 0 };
    CHECK(!dt_ps_init(ps, 0, out, N, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info));
    uint64_t random = (uint64_t)rank;
    while (info.batch >= 0) {
        for (int i = 0; i < N; i++) in[i] = i == info.batch;
        CHECK(info.batch < N);
        if (dt_test_random(&random) % 3 == 0) usleep(300);
        it.push = dt_ps_cancelled(ps, 0) ? NULL : in;
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info));
        if (t->failed) break;
    }
    CHECK(!dt_ps_rest(ps, 0, true)); /* it has no more; the others go on */
    CHECK(!dt_ps_barrier(ps));
    int wrong = 0;
    CHECK(!dt_ps_get_state(ps, 0, DT_PS_VALUE, out));
    for (int i = 0; i < N; i++) wrong += out[i] != (i < 100);
    CHECK(!wrong);
    CHECK(!dt_ps_rest(ps, 0, false) && !dt_ps_pull(ps, 0, out, N, DT_COMM_I64)); /* and again */
    for (int i = 0; i < N; i++) wrong += out[i] != (i < 100);
    CHECK(!wrong && !dt_ps_barrier(ps));
    FREE();
}
UTEST(two_levels, each_batch_is_used_once_in_all_disciplines)
{
    for (int mode = 0; mode < DT_PS_MODES; mode++) {
        plan p = plan_of(4 + mode % 3, mode % 3, mode);
        p.o.batches = 99; /* which is 50 of machines, and 100 */
        p.o.big = 50;
        p.o.k = 1;
        p.arg = mode % 2 ? 2 : 0;
        EXPECT_EQ(0, run(hows[(mode + mode / 3) % 3], p, levels_batches));
    }
}
/* Machine 1 is late: it is cancelled, all its workers hear of it, and whether they push or pull then, they go on with the new values. */
static void levels_cancel(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, two_levels(t, 0));
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    float      one = 1, w = 0;
    dt_ps_item it = { 0, DT_COMM_F32, 1, &one, &w };
    dt_ps_info info;
    CHECK(!dt_ps_init(ps, 0, &w, 1, DT_COMM_F32, .rule = DT_PS_SUM) && !dt_ps_pull(ps, 0, &w, 1, DT_COMM_F32) && !dt_ps_barrier(ps));
    if (rank < 2) CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.verdict == DT_PS_USED && info.version == 1 && w == 2);
    else {
        while (!dt_ps_cancelled(ps, 0)) usleep(200);
        if (rank == 3) it.push = NULL; /* it has looked, and only pulls; worker 2 was quicker */
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.version == 1 && w == 2 && !dt_ps_cancelled(ps, 0));
        CHECK(info.verdict == (rank == 3 ? DT_PS_NONE : DT_PS_CANCELLED));
    }
    CHECK(!dt_ps_barrier(ps));
    dt_ps_stats st;
    CHECK(!dt_ps_get_stats(ps, 0, &st) && st.used == 1 && st.cancelled == 1 && st.workers == 2 && st.version == 1);
    CHECK(!dt_ps_barrier(ps));
    if (rank >= 2) {
        it.push = &one;
        CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), &info) && info.verdict == DT_PS_USED && w == 4);
    }
    CHECK(!dt_ps_barrier(ps));
    FREE();
}
UTEST(two_levels, a_machine_is_cancelled)
{
    for (int i = 0; i < 3; i++) {
        plan p = plan_of(4 + i, i, DT_PS_K_SYNC);
        p.o.k = 1;
        EXPECT_EQ(0, run(hows[i], p, levels_cancel));
    }
}
/* A worker of a machine dies or leaves; the machine goes on without it. If its first worker dies, the other one is told. arg: 0: worker 1
   dies, 1: it leaves, 2: worker 0 dies, 3: worker 1 with .fail_on_death, 4: worker 0 leaves and serves the other one on */
static void levels_death(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, two_levels(t, 0));
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t    one = 1, w = 0, before = 0;
    dt_ps_item it = { 0, DT_COMM_I64, 1, &one, &w };
    int        who = t->arg == 2 || t->arg == 4 ? 0 : 1, rc = 0;
    CHECK(!dt_ps_init(ps, 0, &w, 1, DT_COMM_I64, .rule = DT_PS_SUM));
    CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), NULL) && w == 4 && !dt_ps_barrier(ps));
    if (rank == who) {
        if (t->arg == 1 || t->arg == 4) {
            FREE();
            return;
        }
        die(t, c);
        dt_ps_free(ps);
        return;
    }
    int64_t end = dt_test_ns() + (int64_t)(30e9 * dt_test_slow());
    do { /* the others do not know when it goes */
        before = w;
        dt_ps_op *op = dt_ps_exchange_start(ps, &it, 1);
        rc = op ? dt_ps_wait(op, NULL) : DT_COMM_ERR_STATE;
    } while (!rc && dt_test_ns() < end && w - before != (t->arg == 2 ? 2 : 3));
    if (t->arg == 2 && rank == 1) CHECK(rc == DT_COMM_ERR_PEER && says(ps, "rank 0"));
    else if (t->arg == 3) CHECK(rc == DT_COMM_ERR_REMOTE && says(ps, "rank 1"));
    else CHECK(!rc && dt_test_ns() < end);
    if (!rc) { /* all are there once more */
        set(t, 0);
        while (get(t, 0) < (t->arg == 2 ? 2 : 3) && !rc) rc = dt_ps_wait(dt_ps_exchange_start(ps, &it, 1), NULL);
        CHECK(!rc);
    }
    FREE();
}
UTEST(two_levels, deaths_and_departures)
{
    for (int i = 0; i < 15; i++) {
        plan p = plan_of(5 + i % 2, 1 + i % 2, DT_PS_SYNC);
        p.arg = i % 5;
        p.tolerant = true;
        p.dead = p.arg == 1 || p.arg == 4 ? 0 : 1;
        p.o.fail_on_death = p.arg == 3;
        if (dt_test_quick() && i >= 10) break;
        EXPECT_EQ(0, run(hows[(i + i / 5) % 3], p, levels_death));
    }
}
/* Errors of the servers reach all workers of a machine, and the store goes on. */
static void levels_errors(team *t, dt_comm *c, int rank)
{
    enum { N = 5000 };
    dt_ps_opts o = two_levels(t, 0);
    o.codec = codec_of(DT_CODEC_F16);
    dt_ps *ps = dt_ps_new_with(c, o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    float x[N], y[N] = { 0 };
    for (int i = 0; i < N; i++) x[i] = 1;
    CHECK(!dt_ps_init(ps, 0, y, N, DT_COMM_F32, .rule = DT_PS_SUM));
    CHECK(!dt_ps_push_pull(ps, 0, x, y, N, DT_COMM_F32) && y[N - 1] == 4);
    if (rank < 2) { /* each is finite, but f16 does not have their sum: machine 0 is told, and machine 1 waits for it */
        x[9] = 40000;
        CHECK(dt_ps_push_pull(ps, 0, x, y, N, DT_COMM_F32) == DT_COMM_ERR_REMOTE && says(ps, "key 0") && says(ps, "f16"));
        x[9] = 1;
    }
    CHECK(!dt_ps_push_pull(ps, 0, x, y, N, DT_COMM_F32) && y[N - 1] == 8 && y[9] == 8);
    CHECK(dt_ps_init(ps, 1, x, 3, DT_COMM_I64) == DT_COMM_ERR_ARG && says(ps, "i64"));
    int differs = dt_ps_init(ps, 2, x, 3 + rank / 2, DT_COMM_F32); /* machine 1 has another length: at least one machine is told, both of its workers */
    CHECK(!differs || (differs == DT_COMM_ERR_REMOTE && says(ps, "key 2")));
    t->sum[rank] = differs;
    CHECK(!dt_ps_barrier(ps) && t->sum[0] == t->sum[1] && t->sum[2] == t->sum[3] && t->sum[0] + t->sum[2]);
    CHECK(!dt_ps_init(ps, 4, x, 3, DT_COMM_F32));
    int rc = dt_ps_init(ps, 5, x, 3 + (rank == 1), DT_COMM_F32); /* a worker differs from the first of its machine */
    if (rank == 1) CHECK(rc == DT_COMM_ERR_REMOTE && says(ps, "key 5"));
    CHECK(!dt_ps_barrier(ps));
    FREE();
}
UTEST(two_levels, errors_reach_the_machine)
{
    for (int i = 0; i < 3; i++) {
        plan p = plan_of(4 + i, i, DT_PS_SYNC);
        p.o.big = 1000;
        p.timeout = 5;
        EXPECT_EQ(0, run(hows[i], p, levels_errors));
    }
}
UTEST(two_levels, a_recorded_run_is_repeated)
{
    static const int modes[] = { DT_PS_ASYNC, DT_PS_K_SYNC, DT_PS_SSP };
    for (int i = 0; i < 3; i++) {
        plan p = plan_of(6, 2, modes[i]);
        p.o.two_level = true;
        p.o.machines = machines_of[0];
        p.o.k = 1;
        if (i == 1) p.o.codec = codec_of(DT_CODEC_TOPK);
        record_and_repeat(utest_result, p, i);
    }
}

/* ---------------------------------------------------------------------------------------------------- memory */
typedef struct kept { dt_ps *ps; int n; int64_t nbytes; } kept;
static void kept_look(void *user) /* on the thread that drives the communicator */
{
    kept *k = (kept *)user;
    k->n = k->ps->nareas;
    k->nbytes = k->ps->kept;
    int64_t sum = 0;
    for (int i = 0; i < k->n; i++) sum += k->ps->area[i].n;
    if (sum != k->nbytes) k->n = -1;
}
/* Memory of pushes that came through sockets is kept for the next ones, within bounds, and freed when nobody pushes any more. arg: the
   memory for messages, in MiB; 0: the default */
static void kept_memory(team *t, dt_comm *c, int rank)
{
    enum { KEYS = 40, N = 70000 };
    if (t->arg) c->opts.message_memory = (int64_t)t->arg << 20; /* of what the store keeps: messages have theirs since dt_comm_init */
    dt_ps     *ps = dt_ps_new_with(c, t->o);
    float     *x = (float *)malloc(KEYS * N * sizeof *x), *y = (float *)malloc(KEYS * N * sizeof *y);
    dt_ps_item it[KEYS];
    CHECK(ps && x && y);
    if (dt_ps_worker(ps) >= 0) {
        for (int k = 0; k < KEYS; k++) {
            it[k] = (dt_ps_item){ k, DT_COMM_F32, N, x + k * N, y + k * N };
            for (int i = 0; i < N; i++) x[k * N + i] = (float)(rank + k + i % 9);
            CHECK(!dt_ps_init(ps, k, x, N, DT_COMM_F32, .group = 1));
        }
        for (int round = 0; round < 3; round++) {
            int wrong = 0;
            CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, it, KEYS), NULL));
            for (int k = 0; k < KEYS; k++)
                for (int i = 0; i < N; i++) wrong += y[k * N + i] != (float)(1 + 2 * (k + i % 9));
            CHECK(!wrong);
        }
        CHECK(!dt_ps_barrier(ps));
    }
    if (dt_ps_server(ps) >= 0 && t->o.servers == 0) {
        int64_t most = t->arg ? (int64_t)t->arg << 19 : (int64_t)1 << 27, one = N * (int64_t)sizeof *x;
        kept    k = { ps, 0, 0 };
        dt__comm_drive(c, kept_look, &k);
        bool right = k.n == (most / one < DT__PS_AREAS ? (int)(most / one) : (int)DT__PS_AREAS) && k.nbytes == k.n * one;
        CHECK(right);
        for (int64_t end = dt_test_ns() + (int64_t)(30e9 * dt_test_slow()); k.n && dt_test_ns() < end; usleep(10000)) dt__comm_drive(c, kept_look, &k);
        CHECK(!k.n && !k.nbytes);
    }
    FREE();
    free(x), free(y);
}
UTEST(memory, of_pushes_is_kept_and_given_back)
{
    plan p = plan_of(2, 0, DT_PS_SYNC);
    p.o.timeout = 4 * dt_test_slow(); /* a tick is a quarter of it, or a second */
    EXPECT_EQ(0, run("tcp", p, kept_memory)); /* every server has twenty keys: sixteen are kept */
    p.arg = 1;
    EXPECT_EQ(0, run("tcp", p, kept_memory)); /* half of 1 MiB: one of them */
}

/* ---------------------------------------------------------------------------------------------------- deaths */
/* Worker 2 of 3 dies, with an operation under way or not, or leaves without dt_ps_free; the others go on, and no server has something
   else than the others. arg: 0: between operations; 1: in an operation; 2: dt_comm_free; 3: .fail_on_death */
static void worker_dies(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    arrays     a = arrays_new(1, 0);
    dt_ps_info info = { 0 };
    int        rc = 0;
    CHECK(arrays_init(ps, &a, DT_PS_SUM));
    CHECK(!dt_ps_barrier(ps));
    int64_t end = dt_test_ns() + (int64_t)(30e9 * dt_test_slow());
    for (int round = 0; rank != 2 && dt_test_ns() < end; round++) {
        if (round == 5) set(t, 0);
        dt_ps_op *op = dt_ps_exchange_start(ps, a.item, ARRAYS);
        rc = op ? dt_ps_wait(op, &info) : DT_COMM_ERR_STATE;
        if (rc) break;
        CHECK(arrays_same(&a));
        dt_ps_stats st;
        if (!dt_ps_get_stats(ps, 0, &st) && st.workers < 3 && t->arg != 3 && get(t, 1)) break;
    }
    if (rank == 2) {
        bool sync = t->o.mode == DT_PS_SYNC || t->o.mode == DT_PS_SSP || t->o.mode == DT_PS_SSP_CLOCK;
        for (int round = 0; round < 6 || (!sync && get(t, 0) < 1); round++) CHECK(!dt_ps_wait(dt_ps_exchange_start(ps, a.item, ARRAYS), NULL));
        dt_ps_op *op = t->arg == 1 ? dt_ps_exchange_start(ps, a.item, ARRAYS) : NULL;
        set(t, 1);
        if (t->arg != 2) die(t, c);
        else {
            dt_comm_error(c);
            dt_comm_free(c); /* and not dt_ps_free: the store is lost */
            __atomic_add_fetch(&t->done, 1, __ATOMIC_RELAXED);
            if (strcmp(t->how, "threads")) _exit(0);
            pthread_exit(NULL);
        }
        if (op) dt_ps_wait(op, NULL);
        dt_ps_free(ps);
        arrays_free(&a);
        return;
    }
    if (t->arg == 3) {
        CHECK(rc == DT_COMM_ERR_REMOTE && says(ps, "worker 2"));
        CHECK(dt_ps_barrier(ps) == DT_COMM_ERR_REMOTE && says(ps, "worker 2"));
        CHECK(dt_ps_init(ps, 70, a.out[1], 3, DT_COMM_I64) == DT_COMM_ERR_REMOTE && says(ps, "worker 2"));
    } else {
        CHECK(!rc);
        set(t, 2);
        while (get(t, 2) < 2 && !rc && dt_test_ns() < end) rc = dt_ps_wait(dt_ps_exchange_start(ps, a.item, ARRAYS), &info); /* so that nobody waits for this one */
        CHECK(!rc);
    }
    FREE();
    arrays_free(&a);
}
UTEST(deaths, of_a_worker)
{
    for (int mode = 0; mode < DT_PS_MODES; mode++)
        for (int arg = 0; arg < 4; arg++) {
            int i = (mode + arg) % 3;
            plan p = plan_of(5, 2, mode);
            if (arg == 2 && i == 0) i = 1; /* a store that is lost is a leak */
            p.tolerant = true;
            p.dead = arg == 2 ? 0 : 1;
            p.arg = arg;
            p.o.big = 1000;
            p.o.fail_on_death = arg == 3;
            EXPECT_EQ(0, run(hows[i], p, worker_dies));
        }
}
static void dies_before_the_barrier(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    CHECK(!dt_ps_barrier(ps));
    if (rank == 2) {
        usleep(50000); /* the others are in the next one by then; if not, they are refused all the same */
        die(t, c);
        dt_ps_free(ps);
        return;
    }
    int rc = dt_ps_barrier(ps);
    if (t->arg) CHECK(rc == DT_COMM_ERR_REMOTE && says(ps, "worker 2"));
    else CHECK(!rc); /* of those who are alive */
    FREE();
}
UTEST(deaths, of_a_worker_that_others_wait_for_in_a_barrier)
{
    for (int i = 0; i < 6; i++) {
        plan p = plan_of(5, 2, DT_PS_SYNC);
        p.tolerant = true;
        p.dead = 1;
        p.arg = i / 3;
        p.o.fail_on_death = i / 3;
        EXPECT_EQ(0, run(hows[i % 3], p, dies_before_the_barrier));
    }
}
/* Server 1 dies: all workers hear of it soon, whether they wait for it or for others. arg 0: beside workers; 1: on a worker's rank */
static void server_dies(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        if (dt_ps_server(ps) != 1) {
            serve(t, c, rank, ps);
            return;
        }
        await(t, 0, dt_ps_workers(ps));
        die(t, c);
        dt_ps_free(ps);
        return;
    }
    arrays  a = arrays_new(1, 0);
    int64_t end = dt_test_ns() + (int64_t)(30e9 * dt_test_slow()), begin = 0;
    int     rc = 0;
    CHECK(arrays_init(ps, &a, DT_PS_SUM));
    for (int round = 0; !rc && dt_test_ns() < end; round++) {
        if (round == 5) set(t, 0);
        if (t->o.servers == 0 && rank == 1 && round == 5) {
            await(t, 0, t->n);
            die(t, c);
            dt_ps_free(ps);
            arrays_free(&a);
            return;
        }
        begin = dt_test_ns();
        dt_ps_op *op = dt_ps_exchange_start(ps, a.item, ARRAYS);
        rc = op ? dt_ps_wait(op, NULL) : DT_COMM_ERR_STATE;
        if (!rc) CHECK(arrays_same(&a));
    }
    char who[30];
    snprintf(who, sizeof who, "rank %d", t->o.servers ? t->n - 1 : 1);
    CHECK(rc && says(ps, "server 1") && says(ps, who) && 1e-9 * (double)(dt_test_ns() - begin) < 5 * dt_test_slow());
    dt_ps_op *op = dt_ps_exchange_start(ps, a.item, ARRAYS);
    CHECK(!op || dt_ps_wait(op, NULL)); /* and again */
    FREE();
    arrays_free(&a);
}
UTEST(deaths, of_a_server)
{
    static const int modes[] = { DT_PS_SYNC, DT_PS_ASYNC, DT_PS_K_ASYNC };
    for (int i = 0; i < 9; i++) {
        plan p = plan_of(5, i / 3 == 1 ? 0 : 2, modes[(i + i / 3) % 3]);
        p.tolerant = true;
        p.dead = 1;
        p.o.big = 1000;
        EXPECT_EQ(0, run(hows[i % 3], p, server_dies));
    }
}
/* An ordinary communicator: one dies, and the calls of all fail. arg: who */
static void all_fail(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        if (rank == t->arg) {
            await(t, 0, 1);
            die(t, c);
        } else CHECK(dt_ps_serve(ps) < 0);
        int rc = dt_ps_free(ps);
        ps = NULL;
        CHECK(rc < 0);
        return;
    }
    arrays a = arrays_new(1, 0);
    int    rc = 0;
    rc = !arrays_init(ps, &a, DT_PS_SUM);
    for (int round = 0; !rc; round++) {
        if (round == 5) set(t, 0);
        if (round == 5 && rank == t->arg) die(t, c);
        dt_ps_op *op = dt_ps_exchange_start(ps, a.item, ARRAYS);
        rc = op ? dt_ps_wait(op, NULL) : DT_COMM_ERR_STATE;
    }
    CHECK(rc && dt_ps_error(ps) && dt_ps_barrier(ps) < 0);
    rc = dt_ps_free(ps);
    ps = NULL;
    CHECK(rc < 0);
    arrays_free(&a);
}
UTEST(deaths, on_an_ordinary_communicator_all_fail)
{
    for (int i = 0; i < 6; i++) {
        plan p = plan_of(5, i / 3 ? 2 : 0, i % 2 ? DT_PS_ASYNC : DT_PS_SYNC);
        p.arg = i / 3 ? 4 : 1;
        p.dead = 1;
        p.o.big = 1000;
        EXPECT_EQ(0, run(hows[i % 3], p, all_fail));
    }
}

/* ---------------------------------------------------------------------------------------------------- hostile ranks */
/* Worker 1 sends what it likes, worker 0 sees that nothing changes. arg: 0: nothing that it sends is right; 1: requests with some bytes
   changed, which may be right: nobody crashes and worker 0 goes on; 2: the same as a server to servers */
static void hostile(team *t, dt_comm *c, int rank)
{
    dt_ps *ps = dt_ps_new_with(c, t->o);
    CHECK(ps != NULL);
    if (dt_ps_worker(ps) < 0) {
        serve(t, c, rank, ps);
        return;
    }
    int64_t    x[100], y[100];
    dt_ps_info info;
    uint64_t   random = (uint64_t)t->arg + 5;
    for (int i = 0; i < 100; i++) x[i] = i;
    CHECK(!dt_ps_init(ps, 0, x, 100, DT_COMM_I64, .rule = DT_PS_SUM) && !dt_ps_init(ps, 1, x, 10, DT_COMM_I64, .rule = DT_PS_SUM, .group = 1));
    CHECK(!dt_ps_init(ps, 2, x, 10, DT_COMM_I64, .rule = DT_PS_SUM, .group = 1));
    CHECK(!dt_ps_push_pull(ps, 0, x, y, 100, DT_COMM_I64) && !dt_ps_barrier(ps));
    if (rank == 1) {
        struct { dt__ps_head head; dt__ps_wire wire[2]; int64_t value[100]; } r, m;
        struct { dt__ps_asks a; int64_t value[10]; } asks;
        int to = ps->server_rank[0];
        memset(&r, 0, sizeof r);
        dt__ps_head_fill(ps, &r.head, 0, 0);
        r.head.flags = 3, r.head.seq = 1000, r.head.servers = 1, r.head.nparts = 1;
        int where = ((dt__ps_key *)dt__ps_map_get(&ps->keys, 0))->server;
        r.wire[0].key = 0, r.wire[0].dtype = DT_COMM_I64, r.wire[0].n = 100, r.wire[0].nbytes = 800, r.wire[0].tag = -1;
        if (where == DT__PS_CUT) {
            dt__ps_range(ps, 100, 0, where, &r.wire[0].at, &r.wire[0].n);
            r.wire[0].nbytes = 8 * r.wire[0].n;
            r.head.servers = ((uint64_t)1 << ps->nservers) - 1;
        } else to = ps->server_rank[where], r.head.servers = (uint64_t)1 << where;
        size_t whole = sizeof r.head + sizeof r.wire[0] + (size_t)r.wire[0].nbytes;
        dt__ps_asks_fill(ps, &asks.a, 0, 100, DT_COMM_I64, DT_PS_SUM, 0);
        if (t->arg == 0) {
            for (size_t n = 0; n < whole; n++) refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &r, n);
            for (int tag = DT__PS_INIT; tag <= DT__PS_END; tag++) {
                size_t least = tag == DT__PS_INIT || tag == DT__PS_SET ? sizeof(dt__ps_asks) : sizeof(dt__ps_head);
                for (size_t n = 0; n < least; n++) refused(t, c, rank, ps, to, tag, &asks, n);
                for (int i = 0; i < 50; i++) {
                    for (size_t k = 0; k < sizeof m / 8; k++) {
                        uint64_t v = dt_test_random(&random);
                        memcpy((char *)&m + 8 * k, &v, 8);
                    }
                    refused(t, c, rank, ps, to, tag, &m, i % 2 ? sizeof m : dt_test_random(&random) % sizeof m);
                }
            }
            m = r, m.head.worker = 0; /* as another worker, as nobody, a server's tags */
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            refused(t, c, rank, ps, to, DT__PS_BYE, &m, sizeof m.head);
            m.head.worker = 77;
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            for (int tag = DT__PS_STAGED; tag <= DT__PS_ORDER && t->o.servers; tag++) refused(t, c, rank, ps, to, tag, &r, whole);
            if (t->o.servers) refused(t, c, rank, ps, to, DT__PS_END, &r, sizeof r.head);
            refused(t, c, rank, ps, to, DT__PS_SET, &asks, sizeof asks);   /* only worker 0 brings values */
            refused(t, c, rank, ps, to, DT__PS_READY, &r, sizeof r.head);
            m = r, m.head.version = 99; /* of the future */
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            m = r, m.head.seq = 1; /* of the past */
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            m = r, m.head.flags |= DT__PS_BAD;
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            m = r, m.head.servers ^= (uint64_t)1 << (t->o.servers ? 1 : 2); /* not the servers of this array */
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            m = r, m.head.nparts = 2;
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            m = r, m.head.nparts = INT32_MAX;
            refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            for (int k = 0; k < 8; k++) { /* another key, dtype, range, length, a tag that is none */
                m = r;
                m.wire[0].key += k == 0, m.wire[0].dtype += k == 1, m.wire[0].at += k == 2, m.wire[0].n += k == 3, m.wire[0].nbytes += k == 4;
                if (k == 5) m.wire[0].tag = 3;
                if (k == 6) m.wire[0].key = -1;
                if (k == 7) m.head.group = 1;
                refused(t, c, rank, ps, to, DT__PS_EXCHANGE, &m, whole);
            }
        }
        for (int i = 0; t->arg && i < (dt_test_quick() ? 200 : 2000); i++) {
            static const int tags[] = { DT__PS_EXCHANGE, DT__PS_ASK, DT__PS_INIT, DT__PS_SET, DT__PS_READY, DT__PS_STAGED, DT__PS_ORDER };
            char             out[4000];
            int              tag = tags[t->arg == 1 ? i % 5 : 5 + i % 2];
            size_t           n = tag == DT__PS_INIT || tag == DT__PS_SET ? sizeof asks : whole;
            m = r;
            if (tag == DT__PS_INIT || tag == DT__PS_SET) memcpy(&m, &asks, sizeof asks);
            else if (i % 3 == 0) m.head.seq += i;
            if (tag >= DT__PS_STAGED) m.head.group = (int)(dt_test_random(&random) % 4), m.head.nparts = (int)(dt_test_random(&random) % 4), n -= dt_test_random(&random) % 64;
            for (int k = (int)(dt_test_random(&random) % 3); k >= 0; k--) {
                size_t at = dt_test_random(&random) % (sizeof m.head + sizeof m.wire[0]);
                if (at < 8 || (at >= 12 && at < 16)) continue; /* the magic, the flags, the worker */
                ((char *)&m)[at] ^= (char)(1 << dt_test_random(&random) % 8);
            }
            dt_comm_call(c, i % 4 ? to : ps->server_rank[ps->nservers - 1], tag, &m, (int64_t)n, out, sizeof out, NULL, .timeout = 0.01);
        }
    }
    if (t->arg == 0) CHECK(!dt_ps_barrier(ps));
    else if (rank == 1) set(t, 0);
    else await(t, 0, 1);
    if (rank == 0 || (t->arg == 0 && rank != 1)) { /* the requests of worker 1 have used numbers that come */
        CHECK(!dt_ps_wait(dt_ps_pull_async(ps, 0, y, 100, DT_COMM_I64), &info) || t->arg == 2);
        for (int i = 0; i < 100 && !t->arg; i++) CHECK(y[i] == (1 + t->n - t->o.servers) * i);
        if (!t->arg) set(t, 1), await(t, 1, t->n - t->o.servers - 1);
        if (t->arg < 2) CHECK(!dt_ps_push_pull(ps, 0, x, y, 100, DT_COMM_I64));
    }
    int rc = dt_ps_free(ps);
    ps = NULL;
    CHECK(!rc || t->arg);
}
UTEST(hostile, broken_requests_are_refused)
{
    for (int i = 0; i < 4; i++) {
        plan p = plan_of(4, i == 1 ? 0 : 2, DT_PS_ASYNC);
        p.o.big = i % 2 ? 1000 : 70;
        EXPECT_EQ(0, run(hows[i % 3], p, hostile));
    }
}
UTEST(hostile, requests_with_changed_bytes_crash_nobody)
{
    for (int i = 0; i < 4; i++) {
        plan p = plan_of(4, i >= 2 ? 0 : 2, i % 2 ? DT_PS_ASYNC : DT_PS_SSP);
        p.arg = i >= 2 ? 2 : 1;
        p.o.staleness = 1 << 20;
        p.o.timeout = 1 * dt_test_slow();
        p.o.big = 70;
        EXPECT_EQ(0, run(hows[i % 2], p, hostile));
    }
}
