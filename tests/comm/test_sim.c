/* test_sim.c: the engine in virtual time: exact results whatever messages do, deaths, stops, different calls; and what
   plans take on clusters, beside the formulas. Each seed is a run; a failure names it, and SEED=n runs it alone.
   run: long, asan-later, -O1 */
#define DT_COMM_IMPLEMENTATION
#define DT_PLAN_IMPLEMENTATION
#include "dt_sim.h"
#include "ranks.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== a run by seed */
enum { CALM = 0, STOPS, DEATH, DEATHS, DIFFERENT, STOPPED, ABORTED, DEATH_STOPS, FAULTS };
static const char *const fault_name[] = { "calm", "stops", "a death", "two deaths", "a different call", "a long stop",
                                          "an abort", "a death and stops" };
enum { OPS = 3 };
typedef struct call {
    dt_coll coll;
    int     dtype, op, root, shift; /* shift: of sends */
    int64_t n;                      /* of all, or of each rank */
    bool    uneven;
} call;
typedef struct side { /* a rank in an operation */
    struct team *t;
    int          rank, k;
    dt_work     *work, *more;
    int          status;
    char        *in, *out;
} side;
typedef struct team {
    uint64_t    seed, random;
    int         n, fault, ops, odd, other; /* odd: the rank at fault, or the one that calls something else */
    int         kind;                      /* of difference */
    const char *algo;
    int        *host;
    call        op[OPS];
    int64_t    *count[OPS], *at[OPS];
    side       *side;
    dt_sim     *sim;
    char        what[600];
} team;

static uint64_t draw(team *t)
{
    uint64_t x = t->random += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static int    below(team *t, int n) { return (int)(draw(t) % (uint64_t)n); }
static double part(team *t) { return (double)(draw(t) >> 11) * 0x1p-53; }
static bool   whole(dt_coll c) { return c == DT_COLL_ALLREDUCE || c == DT_COLL_BROADCAST || c == DT_COLL_REDUCE; }
static bool   reduces(dt_coll c) { return whole(c) ? c != DT_COLL_BROADCAST : c == DT_COLL_REDUCE_SCATTER; }
static size_t size_of(int dtype) { return dt__elem_nbytes(dtype); }

/* What a rank has at i, small enough for sums; f32: sums that depend on their order. */
static int64_t value(int rank, int64_t i) { return (rank * 31 + i * 7 + 3) % 23 - 4; }
static void    set(void *p, int dtype, int64_t i, int rank, int64_t v)
{
    if (dtype == DT_COMM_I32) ((int32_t *)p)[i] = (int32_t)v;
    else if (dtype == DT_COMM_I64) ((int64_t *)p)[i] = v;
    else if (dtype == DT_COMM_F64) ((double *)p)[i] = (double)v;
    else ((float *)p)[i] = (float)v + 1e-3f * (float)((rank * 13 + i) % 101);
}
static int64_t get(const void *p, int dtype, int64_t i)
{
    if (dtype == DT_COMM_I32) return ((const int32_t *)p)[i];
    if (dtype == DT_COMM_I64) return ((const int64_t *)p)[i];
    if (dtype == DT_COMM_F64) return (int64_t)((const double *)p)[i];
    return (int64_t)((const float *)p)[i];
}
static int64_t reduced(const team *t, const call *c, int64_t i)
{
    int64_t v = value(0, i);
    for (int r = 1; r < t->n; r++) {
        int64_t x = value(r, i);
        v = c->op == DT_COMM_SUM ? v + x : c->op == DT_COMM_MIN ? (x < v ? x : v) : x > v ? x : v;
    }
    return v;
}

/* ---- starting */
static void start(dt_comm *c, void *user)
{
    side   *s = (side *)user;
    team   *t = s->t;
    call    o = t->op[s->k];
    int     n = t->n;
    int64_t here = o.coll == DT_COLL_BARRIER ? 0 : o.n;
    if (t->fault == DIFFERENT && s->rank == t->odd && s->k == 0) {
        if (t->kind == 0) here = o.n = o.n ? o.n - 1 : 1;
        if (t->kind == 1) o.dtype = DT_COMM_I32;
        if (t->kind == 2) o.op = DT_COMM_PROD;
        if (t->kind == 3) o.root = (o.root + 1 + below(t, n - 1)) % n;
        if (t->kind == 4) o.coll = o.coll == DT_COLL_ALLREDUCE ? DT_COLL_BROADCAST : DT_COLL_ALLREDUCE;
    }
    const int64_t *counts = o.uneven ? t->count[s->k] : NULL;
    if (o.coll == DT_COLL_SEND) {
        int to = (s->rank + o.shift) % n, from = (s->rank + n - o.shift) % n;
        s->work = dt_comm_send_start(c, s->in, o.n, o.dtype, to);
        s->more = dt_comm_recv_start(c, s->out, o.n, o.dtype, from);
    } else {
        const void *in = whole(o.coll) ? NULL : s->in;
        dt__call    a = dt__call_of("start", o.coll, in, s->out, here, counts, o.dtype, o.op, o.root);
        s->work = dt__call_start(c, &a);
    }
    if (!s->work) s->status = dt_comm_get_status(c);
}

/* ---- choosing */
static const char *choose_algo(team *t, dt_coll coll)
{
    for (int tries = 0; tries < 100; tries++) {
        dt_algo a = (dt_algo)below(t, DT_ALGO_COUNT);
        if (a == DT_ALGO_SHARED) continue;
        if (a == DT_ALGO_AUTO && t->n <= 64) return "auto";
        if (dt_plan_can(coll, a, t->n, t->host)) return dt_algo_name(a);
    }
    return "auto";
}
static void choose_call(team *t, call *c, int k)
{
    static const int dtypes[] = { DT_COMM_I32, DT_COMM_I64, DT_COMM_F32, DT_COMM_F64 };
    static const int ops[] = { DT_COMM_SUM, DT_COMM_MIN, DT_COMM_MAX };
    int              n = t->n, each = n > 100 ? 4 : 40, most = n > 100 ? 40 : 3000;
    int64_t          sizes[] = { 0, 1, n - 1, n, n + 1, below(t, most), below(t, most) };
    c->coll = (dt_coll)below(t, DT_COLL_RECV);
    c->dtype = dtypes[below(t, 4)];
    c->op = ops[below(t, 3)];
    c->root = below(t, n);
    c->shift = 1 + below(t, n - 1);
    c->n = whole(c->coll) ? sizes[below(t, 7)] : below(t, each);
    c->uneven = !whole(c->coll) && c->coll != DT_COLL_ALLTOALL && c->coll != DT_COLL_SEND && below(t, 3) == 0;
    if (c->coll == DT_COLL_BARRIER) c->n = 0, c->uneven = false, c->dtype = DT_COMM_U8, c->op = 0, c->root = 0;
    if (!reduces(c->coll)) c->op = 0;
    t->count[k] = (int64_t *)malloc((size_t)n * sizeof(int64_t));
    t->at[k] = (int64_t *)malloc((size_t)(n + 1) * sizeof(int64_t));
    t->at[k][0] = 0;
    for (int r = 0; r < n; r++) {
        t->count[k][r] = c->uneven ? below(t, each) : c->n;
        t->at[k][r + 1] = t->at[k][r] + t->count[k][r];
    }
}
static void choose(team *t, uint64_t seed, int n)
{
    memset(t, 0, sizeof *t);
    t->seed = seed;
    t->random = seed * 1000003 + (uint64_t)n;
    t->n = n;
    t->fault = (int)(seed % FAULTS);
    t->ops = t->fault == DIFFERENT ? 2 : 1 + below(t, n > 100 ? 2 : OPS);
    t->host = (int *)malloc((size_t)n * sizeof(int));
    int hosts = 1 + below(t, 8), scattered = below(t, 4) == 0;
    for (int r = 0; r < n; r++) t->host[r] = scattered ? below(t, hosts) : r * hosts / n;
    for (int k = 0; k < t->ops; k++) choose_call(t, &t->op[k], k);
    call *c = &t->op[0];
    t->odd = below(t, n);
    t->other = (t->odd + 1 + below(t, n - 1)) % n;
    if (t->fault == STOPPED) /* everybody needs everybody */
        do {
            free(t->count[0]), free(t->at[0]);
            choose_call(t, c, 0);
        } while ((c->coll != DT_COLL_BARRIER && c->coll != DT_COLL_ALLREDUCE && c->coll != DT_COLL_ALLGATHER) ||
                 c->uneven || (!c->n && c->coll != DT_COLL_BARRIER));
    if (t->fault == DIFFERENT) {
        do {
            free(t->count[0]), free(t->at[0]);
            choose_call(t, c, 0);
            t->kind = below(t, 5);
        } while (c->coll == DT_COLL_SEND || c->coll == DT_COLL_ALLTOALL || c->uneven || !c->n ||
                 (t->kind == 1 && c->dtype == DT_COMM_I32) || (t->kind == 2 && !reduces(c->coll)) ||
                 (t->kind == 3 && c->coll != DT_COLL_BROADCAST && c->coll != DT_COLL_REDUCE &&
                  c->coll != DT_COLL_GATHER && c->coll != DT_COLL_SCATTER) ||
                 (t->kind == 4 && !whole(c->coll)));
        memset(&t->op[1], 0, sizeof t->op[1]);
        t->op[1].dtype = DT_COMM_U8; /* a barrier */
    }
    t->algo = choose_algo(t, c->coll);
}
static void fill(team *t)
{
    t->side = (side *)calloc((size_t)(t->n * t->ops), sizeof *t->side);
    for (int k = 0; k < t->ops; k++)
        for (int r = 0; r < t->n; r++) {
            const call *o = &t->op[k];
            side       *s = &t->side[k * t->n + r];
            int64_t     all = whole(o->coll) ? o->n + 1 : t->at[k][t->n];
            if (o->coll == DT_COLL_SEND || o->coll == DT_COLL_BARRIER) all = o->n;
            s->t = t;
            s->rank = r;
            s->k = k;
            /* one that calls something else reads and writes other parts: all of it is there */
            s->in = (char *)malloc((size_t)all * 8 + 8);
            s->out = (char *)malloc((size_t)all * 8 + 8);
            for (int64_t i = 0; i < all; i++) set(whole(o->coll) ? s->out : s->in, o->dtype, i, r, value(r, i));
        }
}
static double faults(team *t) /* the timeout */
{
    double T = 2;
    int    f = t->fault;
    if (f == STOPS || f == DEATH_STOPS)
        for (int k = 0; k < 3; k++) dt_sim_pause(t->sim, below(t, t->n), 0.01 * part(t), 0.28 * T * part(t));
    if (f == STOPPED) dt_sim_pause(t->sim, t->odd, 0, 3 * T);
    if (f == DEATH || f == DEATHS || f == DEATH_STOPS) dt_sim_kill(t->sim, t->odd, 0.02 * part(t));
    if (f == DEATHS) dt_sim_kill(t->sim, t->other, 0.02 * part(t));
    return T;
}
static void give_up(dt_comm *c, void *user)
{
    (void)user;
    dt_comm_abort(c, "enough");
}

/* ---- what must hold */
static bool wrong(team *t, const side *s, const char *what)
{
    const call *o = &t->op[s->k];
    snprintf(t->what, sizeof t->what,
             "rank %d of %d, %s of %lld %s by %s, %s at rank %d, operation %d, status %d, said of %d: %s", s->rank,
             t->n, dt_coll_name(o->coll), (long long)o->n, dt__comm_dtype_name(o->dtype), t->algo, fault_name[t->fault],
             t->odd, s->k, s->status, dt_comm_failed_rank(dt_sim_comm(t->sim, s->rank)), what);
    return false;
}
static bool equal(const team *t, const side *s, int64_t i, int64_t want)
{
    return get(s->out, t->op[s->k].dtype, i) == want;
}
static bool exact(team *t, const side *s, const side *first) /* first: the first rank that ended well */
{
    const call *o = &t->op[s->k];
    int64_t    *at = t->at[s->k], n = o->n, mine = at[s->rank + 1] - at[s->rank];
    bool        f32 = o->dtype == DT_COMM_F32, ok = true;
    int         r = s->rank, N = t->n;
    switch (o->coll) {
    case DT_COLL_ALLREDUCE:
        if (s != first) return !memcmp(s->out, first->out, (size_t)n * size_of(o->dtype));
        for (int64_t i = 0; i < n && ok && !f32; i++) ok = equal(t, s, i, reduced(t, o, i));
        for (int64_t i = 0; i < n && ok && f32; i++) {
            double sum = (double)reduced(t, o, i), got = (double)((float *)(void *)s->out)[i];
            ok = fabs(got - sum) <= 0.11 * (o->op == DT_COMM_SUM ? N : 1); /* values are whole, and up to 0.1 more */
        }
        return ok;
    case DT_COLL_REDUCE:
        for (int64_t i = 0; i < n && ok && !f32; i++)
            ok = equal(t, s, i, r == o->root ? reduced(t, o, i) : value(r, i));
        return ok;
    case DT_COLL_BROADCAST:
        for (int64_t i = 0; i < n && ok; i++) ok = equal(t, s, i, (int64_t)value(o->root, i)) || f32;
        return ok;
    case DT_COLL_REDUCE_SCATTER:
        for (int64_t i = 0; i < mine && ok && !f32; i++) ok = equal(t, s, i, reduced(t, o, at[r] + i));
        return ok;
    case DT_COLL_SCATTER:
        for (int64_t i = 0; i < mine && ok; i++) ok = equal(t, s, i, value(o->root, at[r] + i)) || f32;
        return ok;
    case DT_COLL_GATHER:
        if (r != o->root) return true; /* fall through */
    case DT_COLL_ALLGATHER:
        for (int q = 0; q < N && ok; q++)
            ok = !memcmp(s->out + (size_t)at[q] * size_of(o->dtype), t->side[s->k * N + q].in,
                         (size_t)(at[q + 1] - at[q]) * size_of(o->dtype));
        return ok;
    case DT_COLL_ALLTOALL:
        for (int q = 0; q < N && ok; q++)
            ok = !memcmp(s->out + (size_t)(q * n) * size_of(o->dtype),
                         t->side[s->k * N + q].in + (size_t)(r * n) * size_of(o->dtype), (size_t)n * size_of(o->dtype));
        return ok;
    case DT_COLL_SEND:
        return !memcmp(s->out, t->side[s->k * N + (r + N - o->shift) % N].in, (size_t)n * size_of(o->dtype));
    default: return true;
    }
}
static bool lives(const team *t, int r)
{
    bool death = t->fault == DEATH || t->fault == DEATHS || t->fault == DEATH_STOPS;
    return !(death && r == t->odd) && !(t->fault == DEATHS && r == t->other);
}
static bool verdict(team *t, const side *s) /* of the communicator, in the end */
{
    dt_comm *c = dt_sim_comm(t->sim, s->rank);
    int      status = dt_comm_get_status(c), who = dt_comm_failed_rank(c);
    switch (t->fault) {
    case CALM:
    case STOPS: return status == 0;
    case DEATH:
    case DEATH_STOPS: return status == DT_COMM_ERR_PEER && who == t->odd;
    case DEATHS: return status == DT_COMM_ERR_PEER && (who == t->odd || who == t->other);
    case DIFFERENT: return status == DT_COMM_ERR_MISMATCH;
    case STOPPED: return status == DT_COMM_ERR_TIMEOUT && who == t->odd;
    default: return status == DT_COMM_ERR_ABORT && who == t->odd;
    }
}
static bool check(team *t)
{
    for (int k = 0; k < t->ops; k++) {
        const side *first = NULL;
        for (int r = 0; r < t->n; r++) {
            side *s = &t->side[k * t->n + r];
            if (!lives(t, r)) continue;
            if (!s->status && !first) first = s;
            if (s->status && s->status != dt_comm_get_status(dt_sim_comm(t->sim, r)))
                return wrong(t, s, "the call failed otherwise than the communicator");
            if (!verdict(t, s)) return wrong(t, s, dt_comm_error(dt_sim_comm(t->sim, r)));
            if (!s->status && !(t->fault == DIFFERENT) && !exact(t, s, first)) return wrong(t, s, "the result");
        }
    }
    return true;
}
static bool run(team *t, uint64_t seed, int n, uint64_t *hash)
{
    int64_t events;
    choose(t, seed, n);
    fill(t);
    t->sim = dt_sim_new(.world = n, .host = t->host, .seed = seed, .timeout = 2, .algo = t->algo);
    bool ok = t->sim != NULL;
    if (ok) {
        faults(t);
        for (int k = 0; k < t->ops; k++) {
            double when = t->fault == DIFFERENT ? 0.001 * k : 0.004 * k;
            for (int r = 0; r < n; r++)
                dt_sim_at(t->sim, r, when + 0.0009 * part(t), start, &t->side[k * n + r]); /* in order on each */
        }
        if (t->fault == ABORTED) dt_sim_at(t->sim, t->odd, 0.01 * part(t), give_up, NULL);
        int left = dt_sim_run(t->sim, 1e6);
        if (left) snprintf(t->what, sizeof t->what, "%d ranks of %d are in a call still", left, n);
        ok = !left;
        for (int i = 0; ok && i < n * t->ops; i++) {
            side *s = &t->side[i];
            int   more = s->more ? dt_work_wait(s->more) : 0;
            if (s->work) s->status = dt_work_wait(s->work);
            if (!s->status) s->status = more;
        }
        ok = ok && check(t);
        *hash = dt_sim_hash(t->sim, &events) + (uint64_t)events;
    }
    dt_sim_free(t->sim);
    for (int i = 0; i < n * t->ops; i++) free(t->side[i].in), free(t->side[i].out);
    for (int k = 0; k < OPS; k++) free(t->count[k]), free(t->at[k]);
    free(t->side);
    free(t->host);
    return ok;
}
static void runs(int n, int seeds, int *utest_result)
{
    const char *one = getenv("SEED");
    int         failed = 0;
    for (int seed = one ? atoi(one) : 0; seed < (one ? atoi(one) + 1 : seeds); seed++) {
        team     t;
        uint64_t hash = 0, again = 1;
        bool     ok = run(&t, (uint64_t)seed, n, &hash);
        if (!ok) printf("    seed %d: %s\n", seed, t.what);
        failed += !ok;
        if (seed % 20 < 8 && n <= 64) { /* every fault twice: event for event */
            run(&t, (uint64_t)seed, n, &again);
            EXPECT_EQ_MSG(hash, again, "the same seed is another run");
        }
        if (failed > 20) break;
    }
    EXPECT_EQ(0, failed);
}
/* Quick: for `make test`; quick and slow: under an instrument. */
static int seeds(int all, int some, int few) { return !dt_test_quick() ? all : dt_test_slow() > 1 ? few : some; }
UTEST(sim, ranks_64) { runs(64, seeds(2000, 200, 40), utest_result); }
UTEST(sim, ranks_1000) { runs(1000, seeds(50, 10, 3), utest_result); }

/* ==================================================================================================== calls */
static void start_sum(dt_comm *c, void *user)
{
    static float x[8];
    *(dt_work **)user = dt_comm_allreduce_start(c, x + dt_comm_rank(c), 1, DT_COMM_F32, DT_COMM_SUM);
}
static void block(dt_comm *c, void *user)
{
    float x = 1;
    *(int *)user = dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
}
UTEST(sim, who_waits_runs_it)
{
    int32_t  x[5] = { 1, 2, 3, 4, 5 };
    dt_work *w[5];
    dt_sim  *s = dt_sim_new(.world = 5, .seed = 3, .timeout = 1);
    ASSERT_TRUE(s != NULL);
    for (int r = 1; r < 5; r++)
        w[r] = dt_comm_allreduce_start(dt_sim_comm(s, r), &x[r], 1, DT_COMM_I32, DT_COMM_SUM);
    EXPECT_FALSE(dt_work_test(w[2]));
    EXPECT_EQ(0, dt_comm_allreduce(dt_sim_comm(s, 0), &x[0], 1, DT_COMM_I32, DT_COMM_SUM)); /* rank 0 waits */
    for (int r = 1; r < 5; r++) EXPECT_EQ(0, dt_work_wait(w[r]));
    for (int r = 0; r < 5; r++) EXPECT_EQ(15, x[r]);
    EXPECT_GT(dt_sim_now(s), 0.0);
    EXPECT_LT(dt_sim_now(s), 1.0);
    EXPECT_EQ(DT_COMM_ERR_TIMEOUT, dt_comm_barrier(dt_sim_comm(s, 4))); /* nobody else comes */
    EXPECT_EQ(0, dt_comm_failed_rank(dt_sim_comm(s, 4)));
    EXPECT_EQ(0, dt_sim_run(s, 100)); /* and all hear of it */
    EXPECT_TRUE(strstr(dt_comm_error(dt_sim_comm(s, 1)), "rank 0 (host0, pid 1000) has not called it") != NULL);
    EXPECT_STREQ("the simulator", dt_comm_launcher(dt_sim_comm(s, 0)));
    dt_sim_free(s);
}
UTEST(sim, a_stop_moves_what_was_to_come)
{
    dt_sim  *s = dt_sim_new(.world = 2, .seed = 1);
    dt_work *w[2] = { NULL, NULL };
    ASSERT_TRUE(s != NULL);
    dt_sim_pause(s, 1, 0, 5);
    dt_sim_at(s, 0, 1, start_sum, &w[0]);
    dt_sim_at(s, 1, 1, start_sum, &w[1]);
    EXPECT_EQ(1, dt_sim_run(s, 4)); /* rank 0 is in its call, rank 1 has not called */
    EXPECT_NEAR(4.0, dt_sim_now(s), 1e-6);
    EXPECT_TRUE(w[0] && !w[1]);
    EXPECT_EQ(0, dt_sim_run(s, 10));
    EXPECT_TRUE(dt_sim_now(s) > 5 && dt_sim_now(s) < 5.1);
    EXPECT_EQ(0, dt_work_wait(w[0]));
    EXPECT_EQ(0, dt_work_wait(w[1]));
    dt_sim_free(s);
}
UTEST(sim, misuse)
{
    EXPECT_TRUE(dt_sim_new(.world = 0) == NULL);
    EXPECT_TRUE(dt_sim_new(.world = 5000) == NULL);
    EXPECT_TRUE(dt_sim_new(.world = 2, .algo = "no such thing") == NULL);
    EXPECT_TRUE(strstr(dt_comm_error(NULL), "no such thing") != NULL);
    dt_sim *s = dt_sim_new(.world = 3);
    int     rc = 0;
    ASSERT_TRUE(s != NULL);
    EXPECT_TRUE(dt_sim_comm(s, 3) == NULL);
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_sim_kill(s, 3, 0));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_sim_pause(s, 0, -1, 1));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_sim_at(s, 0, 0, NULL, NULL));
    dt_sim_at(s, 1, 0, block, &rc);
    EXPECT_EQ(0, dt_sim_run(s, 10));
    EXPECT_EQ(DT_COMM_ERR_STATE, rc);
    EXPECT_EQ(DT_COMM_ERR_STATE, dt_comm_get_status(dt_sim_comm(s, 2))); /* an error of all */
    dt_sim_free(s);
}

/* ==================================================================================================== predictions */
static dt_plan_opts plan_of(int world, int64_t count, const int *host)
{
    dt_plan_opts o;
    memset(&o, 0, sizeof o);
    o.world = world;
    o.count = count;
    o.host = host;
    return o;
}
static dt_cluster cluster(void)
{
    dt_cluster k;
    memset(&k, 0, sizeof k);
    k.costs = dt_costs_default();
    return k;
}
static double seconds(const dt_cluster *k, dt_algo algo, const dt_plan_opts *o)
{
    dt_plan_prediction c;
    return dt_plan_predict(&c, DT_COLL_ALLREDUCE, algo, o, k, NULL) ? -1 : c.seconds;
}
#define EXPECT_RATIO(want, got, tol) EXPECT_NEAR(1.0, (got) / (want), tol)

UTEST(predict, formulas_of_one_class)
{
    static const int worlds[] = { 2, 3, 4, 5, 8, 13, 16, 64, 100, 128 };
    for (int i = 0; i < 10; i++) {
        int          p = worlds[i], floor_lg = dt__plan_log2(p), p2 = 1 << floor_lg, lg = dt__plan_log2_up(p);
        dt_cluster   k = cluster();
        dt_plan_opts o = plan_of(p, (int64_t)p * 128 * 65, NULL);
        k.near = k.far = DT_LINK_NET;
        double a = k.costs.alpha[DT_LINK_NET], b = k.costs.beta[DT_LINK_NET], g = k.costs.gamma, n = 4.0 * o.count;
        double part = n * (p - 1) / p;
        EXPECT_RATIO(2 * (p - 1) * a + 2 * part * b + part * g, seconds(&k, DT_ALGO_RING, &o), 1e-9);
        EXPECT_RATIO(lg * (2 * a + 2 * n * b + n * g), seconds(&k, DT_ALGO_TREE, &o), 1e-9);
        if (p == p2) {
            EXPECT_RATIO(lg * (a + n * b + n * g), seconds(&k, DT_ALGO_DOUBLING, &o), 1e-9);
            EXPECT_RATIO(2 * lg * a + 2 * part * b + part * g, seconds(&k, DT_ALGO_HALVING, &o), 1e-9);
        } else {
            EXPECT_RATIO((floor_lg + 2) * (a + n * b) + (floor_lg + 1) * n * g, seconds(&k, DT_ALGO_DOUBLING, &o),
                         1e-9);
            EXPECT_RATIO((3 + 2 * floor_lg) * a + (4 * n - 2 * n / p2) * b + (1.5 * n - n / p2) * g,
                         seconds(&k, DT_ALGO_HALVING, &o), 1e-9);
        }
    }
}
UTEST(predict, formula_of_two_levels)
{
    int host[48];
    for (int L = 2; L <= 16; L *= 2)
        for (int H = 2; H <= 3; H++) {
            for (int i = 0; i < H * L; i++) host[i] = i / L;
            dt_cluster   k = cluster();
            dt_plan_opts o = plan_of(H * L, (int64_t)H * L * 1024, host);
            k.nic = -1; /* a card for each rank: nothing is in anybody's way */
            const double *a = k.costs.alpha, *b = k.costs.beta, n = 4.0 * o.count, m = n / L / H;
            EXPECT_RATIO(2 * (L - 1) * (a[DT_LINK_SHM] + n / L * b[DT_LINK_SHM]) +
                             2 * (H - 1) * (a[DT_LINK_NET] + m * b[DT_LINK_NET]) +
                             ((L - 1) * n / L + (H - 1) * m) * k.costs.gamma,
                         seconds(&k, DT_ALGO_TWO_LEVEL, &o), 1e-9);
        }
}
UTEST(predict, messages_and_bytes_are_the_plans)
{
    int host[20];
    for (int i = 0; i < 20; i++) host[i] = i / 3;
    for (int c = 0; c < (int)DT_COLL_SEND; c++)
        for (int a = 0; a < (int)DT_ALGO_COUNT; a++)
            for (int p = 1; p <= 20; p++) {
                const int *h = a == (int)DT_ALGO_SHARED ? NULL : host;
                if (!dt_plan_can((dt_coll)c, (dt_algo)a, p, h)) continue;
                dt_plan_opts o = plan_of(p, 7 + p % 5, h);
                dt_cluster   k = cluster();
                dt_plan_prediction  got;
                int64_t      messages = 0, elements = 0, steps = 0;
                const char  *why = NULL;
                o.segment = 3;
                o.root = p / 2;
                k.element = 2;
                EXPECT_EQ_MSG(0, dt_plan_predict(&got, (dt_coll)c, (dt_algo)a, &o, &k, &why), why ? why : "");
                for (o.rank = 0; o.rank < p; o.rank++) {
                    dt_plan plan;
                    memset(&plan, 0, sizeof plan);
                    ASSERT_EQ(0, dt_plan_make(&plan, (dt_coll)c, (dt_algo)a, &o, NULL));
                    for (int64_t i = 0; i < plan.nsteps; i++)
                        if (plan.step[i].kind == DT_STEP_SEND) messages++, elements += plan.step[i].n;
                    steps += plan.nsteps;
                    dt_plan_free(&plan);
                }
                EXPECT_EQ(messages, got.messages);
                EXPECT_EQ(2 * elements, got.bytes);
                EXPECT_EQ(steps > 0, got.seconds > 0);
                EXPECT_TRUE(p > 1 ? steps > 0 : messages == 0);
            }
}
UTEST(predict, two_machines_and_a_slow_link)
{
    enum { L = 8, P = 16 };
    int host[P];
    for (int i = 0; i < P; i++) host[i] = i / L;
    dt_cluster   k = cluster();
    dt_plan_opts o = plan_of(P, 1 << 20, host);
    dt_plan_prediction  two, ring, best;
    int64_t      n = 4 << 20;
    EXPECT_EQ(0, dt_plan_predict(&two, DT_COLL_ALLREDUCE, DT_ALGO_TWO_LEVEL, &o, &k, NULL));
    EXPECT_EQ(0, dt_plan_predict(&ring, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, NULL));
    EXPECT_EQ(0, dt_plan_predict(&best, DT_COLL_ALLREDUCE, DT_ALGO_AUTO, &o, &k, NULL));
    EXPECT_LT(1.5 * two.seconds, ring.seconds);
    EXPECT_EQ(n, two.bytes_nic);                     /* L ranks, 2 (n/L)(H-1)/H each */
    EXPECT_EQ(2 * n * (P - 1) / P, ring.bytes_nic);  /* one of them sends on */
    EXPECT_LE(best.seconds, 1.01 * two.seconds);
    EXPECT_NE((int)DT_ALGO_AUTO, (int)best.algo);
    /* the card is what all wait for: twice the time a byte, twice the time */
    k.nic = 2 * k.costs.beta[DT_LINK_NET];
    EXPECT_RATIO(2 * two.seconds, seconds(&k, DT_ALGO_TWO_LEVEL, &o), 0.1);
}
UTEST(predict, a_switch_is_the_bottleneck_it_is)
{
    enum { P = 8 };
    int        host[P], sw[P];
    dt_cluster k = cluster();
    double     b = k.costs.beta[DT_LINK_NET];
    for (int i = 0; i < P; i++) host[i] = i, sw[i] = i / 4;
    dt_plan_opts o = plan_of(P, 8 << 20, host);
    static const dt_algo through[] = { DT_ALGO_RING, DT_ALGO_HALVING, DT_ALGO_DOUBLING };
    for (int i = 0; i < 3; i++) {
        k = cluster();
        double open = seconds(&k, through[i], &o), one, half;
        k.fabric = b / P; /* as much as all cards together */
        EXPECT_RATIO(open, seconds(&k, through[i], &o), 0.1);
        k.fabric = b;
        one = seconds(&k, through[i], &o);
        k.fabric = 2 * b;
        half = seconds(&k, through[i], &o);
        EXPECT_RATIO(2.0, half / one, 0.01);
        EXPECT_LT(4 * open, one); /* a crossbar against one wire for all */
    }
    /* two switches: the ring crosses between them once each way, halving with everything it has */
    k = cluster();
    k.switch_of = sw;
    k.trunk = b;
    double ring = seconds(&k, DT_ALGO_RING, &o), halving = seconds(&k, DT_ALGO_HALVING, &o);
    k.trunk = 4 * b;
    EXPECT_RATIO(4 * ring, seconds(&k, DT_ALGO_RING, &o), 0.1);
    EXPECT_LT(1.5 * halving, seconds(&k, DT_ALGO_HALVING, &o));
    dt_plan_prediction c;
    EXPECT_EQ(0, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, NULL));
    EXPECT_EQ(2 * c.bytes / P * 5 / 2, c.bytes_switch); /* of 8 ways 4 are inside or leave, and one comes */
}
static void large_world(int *utest_result, dt_algo a)
{
    int         p = 4096, *host = (int *)malloc((size_t)p * sizeof(int));
    dt_cluster  k = cluster();
    dt_costs    t = k.costs;
    dt_plan_prediction c;
    bool        heavy = a == DT_ALGO_RING || a == DT_ALGO_ALLTOALL || a == DT_ALGO_TWO_LEVEL || a == DT_ALGO_ORDERED;
    int         n = heavy ? 1024 : p;
    int64_t     t0 = dt_test_ns();
    ASSERT_TRUE(host != NULL);
    if (dt_plan_can(DT_COLL_ALLREDUCE, a, n, NULL)) {
        if (!dt_test_quick()) n = p;
        else if (dt_test_slow() > 1) n = 256;
        for (int i = 0; i < n; i++) host[i] = a == DT_ALGO_SHARED ? 0 : i / 8;
        int          link = a == DT_ALGO_SHARED ? DT_LINK_SHM : DT_LINK_NET;
        dt_plan_opts o = plan_of(n, (int64_t)n * 8, host);
        EXPECT_EQ(0, dt_plan_predict(&c, DT_COLL_ALLREDUCE, a, &o, &k, NULL));
        /* the formulas take every round for as long as its slowest rank: the events are as fast or faster */
        EXPECT_LE(c.seconds, dt_plan_cost(&t, DT_COLL_ALLREDUCE, a, n, host, link, o.count * 4, 0) * 1.000001);
        EXPECT_GT(c.seconds, 0.0);
        printf("    %d ranks, %-9s %10lld messages, %.3g s; in %.2f s\n", n, dt_algo_name(a), (long long)c.messages,
               c.seconds, 1e-9 * (double)(dt_test_ns() - t0));
    }
    free(host);
}
UTEST(predict, large_worlds)
{
    for (int a = 1; a < (int)DT_ALGO_COUNT; a++)
        if (a != (int)DT_ALGO_RING && a != (int)DT_ALGO_ORDERED) large_world(utest_result, (dt_algo)a);
}
UTEST(predict, large_rings) { large_world(utest_result, DT_ALGO_RING); }
UTEST(predict, large_ordered_rings) { large_world(utest_result, DT_ALGO_ORDERED); }
UTEST(predict, misuse)
{
    int          host[2] = { 0, 2 };
    dt_cluster   k = cluster();
    dt_plan_opts o = plan_of(9000, 1, NULL);
    dt_plan_prediction  c;
    const char  *why = NULL;
    EXPECT_EQ(-1, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, &why));
    EXPECT_STREQ("world is not in 1..8192", why);
    o = plan_of(2, 1, host);
    EXPECT_EQ(-1, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, &why));
    o.host = NULL;
    EXPECT_EQ(-1, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_BRUCK, &o, &k, &why));
    EXPECT_STREQ("this collective has no such algorithm", why);
    k.costs.alpha[0] = -1;
    EXPECT_EQ(-1, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, &why));
    memset(&k, 0, sizeof k);
    EXPECT_EQ(0, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, &why));
    EXPECT_TRUE(why == NULL && c.seconds > 0);
    o.count = INT64_MAX / 2;
    EXPECT_EQ(-1, dt_plan_predict(&c, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &k, &why));
}
