/* test_sim.c: the engine in virtual time: exact results whatever messages do, deaths, stops, different calls; and what
   plans take on clusters, beside the formulas. Each seed is a run; a failure names it: test_sim --filter=... SEED=n runs
   it alone */
#define DT_IMPLEMENTATION
#include "../dt_comm.h"
#include "ranks.h"

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
    char        what[200];
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
static size_t size_of(int dtype) { return dt__comm_size_of(dtype); }

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
static dt_work *start_alltoall(dt_comm *c, const call *o, const void *in, void *out)
{
    dt__call a = dt__call_of("alltoall", DT_COLL_ALLTOALL, in, out, o->n, NULL, o->dtype, 0, 0);
    dt_work *w = (dt_work *)calloc(1, sizeof *w);
    w->own = true;
    if (!dt__comm_ok(c) || dt__prepare_with(c, &a, w, NULL)) {
        free(w);
        return NULL;
    }
    w->temp = w->data = (char *)malloc((size_t)w->n * w->size + 1);
    w->in = (const char *)in;
    w->out = (char *)out;
    w->in_n = w->out_n = w->n;
    dt__submit(c, w, false);
    return w;
}
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
    } else if (o.coll == DT_COLL_ALLTOALL) s->work = start_alltoall(c, &o, s->in, s->out);
    else {
        const void *in = whole(o.coll) ? NULL : s->in;
        dt__call    a = dt__call_of("start", o.coll, in, s->out, here, counts, o.dtype, o.op, o.root);
        s->work = dt__call_start(c, &a);
    }
    if (!s->work) s->status = dt_comm_status_of(c);
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
        while (c->coll != DT_COLL_BARRIER && c->coll != DT_COLL_ALLREDUCE && c->coll != DT_COLL_ALLGATHER) {
            free(t->count[0]), free(t->at[0]);
            choose_call(t, c, 0);
            if (!c->n && c->coll != DT_COLL_BARRIER) c->coll = DT_COLL_SEND;
            if (c->uneven) c->coll = DT_COLL_SEND;
        }
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
             "rank %d of %d, %s of %lld %s by %s, %s at rank %d, operation %d, status %d, said of %d: %s", s->rank, t->n,
             dt_coll_name(o->coll), (long long)o->n, dt__comm_dtypes[o->dtype], t->algo, fault_name[t->fault], t->odd,
             s->k, s->status, dt_comm_failed_rank(dt_sim_comm(t->sim, s->rank)), what);
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
        for (int64_t i = 0; i < n && ok && !f32; i++) ok = equal(t, s, i, r == o->root ? reduced(t, o, i) : value(r, i));
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
    int      status = dt_comm_status_of(c), who = dt_comm_failed_rank(c);
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
            if (s->status && s->status != dt_comm_status_of(dt_sim_comm(t->sim, r)))
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
static int runs(int n, int seeds, int *utest_result)
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
    return failed;
}
static bool full(void) { return getenv("DT_TEST_FULL") != NULL; }
UTEST(sim, ranks_64) { EXPECT_EQ(0, runs(64, full() ? 2000 : 200, utest_result)); }
UTEST(sim, ranks_1000) { EXPECT_EQ(0, runs(1000, full() ? 50 : 10, utest_result)); }
