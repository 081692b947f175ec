/* test_ps_laws.c: the laws of the coordinator of a parameter server (dt_ps.h, >>coordinator), in virtual time. Learners
   compute for random times, push, and go on when they are answered. Mean staleness and time for an update have closed forms
   (Dutta et al. 2018; Ho et al. 2013); disciplines are equal at the ends of their ranges; random programs of pushes, pulls,
   leaves and joins lose no push, no answer and no batch; a log is replayed bit for bit. A failure names its seed, and SEED=n
   runs it alone.
   Contents: >>world >>laws >>identities >>programs >>replay >>many
   run: long, -O1 */
#define DT__WANT_INSIDE
#define _GNU_SOURCE
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dt_ps.h"

UTEST_MAIN()

#define MODES(X) X(SYNC) X(K_SYNC) X(K_BATCH_SYNC) X(K_ASYNC) X(K_BATCH_ASYNC) X(ASYNC) X(SSP) X(SSP_CLOCK)
#define MODE_NAME(m) #m,
static const char *const mode_name[DT_PS_MODES] = { MODES(MODE_NAME) };

static __attribute__((format(printf, 5, 6))) bool say(int *result, int line, const char *expected, const char *where,
                                                      const char *format, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    dt_test_failure(result, __FILE__, line, expected, text, where);
    return false;
}
static dt_ps_discipline options(int mode, int k, int staleness)
{
    dt_ps_discipline o;
    memset(&o, 0, sizeof o);
    o.mode = mode;
    o.k = k;
    o.staleness = staleness;
    return o;
}
static void seeds(int quick, int full, int *first, int *last)
{
    const char *s = getenv("SEED");
    *first = s ? atoi(s) : 0;
    *last = s ? *first : (dt_test_quick() ? quick : full) - 1;
}

/* ==================================================================================================== >>world
   Learners and a coordinator. A learner that computes has one event: when it is done. Events are in a heap. */
enum { EXPONENTIAL, SHIFTED, PARETO, DELAYS }; /* rate 1; 0.5 + exponential; shape 3, from 1 */
static const char *const delay_name[DELAYS] = { "exponential", "shifted exponential", "Pareto" };
static const double      delay_mean[DELAYS] = { 1, 1.5, 1.5 };
enum { WEIGHTS = 3 };
typedef struct world {
    dt__ps_coord d;
    int          learners, delays;
    uint64_t     rng;
    double       now, *when;          /* by learner: the end of its batch */
    int         *heap, *place, nheap; /* learners by time; where a learner is in it, or -1 */
    int64_t     *version, *batch;     /* by learner */
    int64_t      seq, pushes;
    /* counted at each update */
    int64_t used, stale, stalest;
    /* replay: what is computed */
    bool   computes;
    double weight[WEIGHTS], (*has)[WEIGHTS]; /* now; by learner: what it has pulled */
    double (*grad)[WEIGHTS];                 /* by request */
    int64_t   ngrad;
    uint64_t *trace; /* a hash of the weights after each update */
    int64_t   ntrace;
    int       extra; /* per mille: a learner pulls where it should push */
    bool      stops; /* a learner stops when it gets batch -1 */
} world;

static double delay(world *w)
{
    double u = ((double)(dt_test_random(&w->rng) >> 11) + 0.5) * 0x1p-53;
    return w->delays == PARETO ? 1 / cbrt(u) : w->delays == SHIFTED ? 0.5 - log(u) : -log(u);
}
static void heap_set(world *w, int i, int learner)
{
    w->heap[i] = learner;
    w->place[learner] = i;
}
static void heap_move(world *w, int i, int learner) /* learner is put at i, or where it belongs */
{
    while (i && w->when[learner] < w->when[w->heap[(i - 1) / 2]]) {
        heap_set(w, i, w->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (int c; (c = 2 * i + 1) < w->nheap; i = c) {
        if (c + 1 < w->nheap && w->when[w->heap[c + 1]] < w->when[w->heap[c]]) c++;
        if (w->when[learner] <= w->when[w->heap[c]]) break;
        heap_set(w, i, w->heap[c]);
    }
    heap_set(w, i, learner);
}
static void heap_remove(world *w, int learner)
{
    int i = w->place[learner];
    if (i < 0) return;
    w->place[learner] = -1;
    int last = w->heap[--w->nheap];
    if (last != learner) heap_move(w, i, last);
}
static void starts(world *w, int learner)
{
    w->when[learner] = w->now + delay(w);
    if (w->place[learner] < 0) heap_move(w, w->nheap++, learner);
    else heap_move(w, w->place[learner], learner);
}
static bool world_new(world *w, dt_ps_discipline o, int learners, int delays, uint64_t seed)
{
    size_t n = (size_t)learners;
    memset(w, 0, sizeof *w);
    w->learners = learners;
    w->delays = delays;
    w->rng = dt_test_random(
        &seed); /* states that are multiples of a constant apart would give shifted copies of one sequence */
    w->when = (double *)calloc(n, sizeof *w->when);
    w->heap = (int *)calloc(n, sizeof *w->heap);
    w->place = (int *)calloc(n, sizeof *w->place);
    w->version = (int64_t *)calloc(n, sizeof *w->version);
    w->batch = (int64_t *)calloc(n, sizeof *w->batch);
    w->has = (double(*)[WEIGHTS])calloc(n, sizeof *w->has);
    for (int i = 0; i < learners; i++) w->place[i] = -1, w->batch[i] = i;
    for (int j = 0; j < WEIGHTS; j++) w->weight[j] = 0.5 + 0.1 * j;
    for (int i = 0; i < learners; i++) memcpy(w->has[i], w->weight, sizeof w->weight);
    return dt__ps_coord_init(&w->d, &o, learners);
}
static void world_free(world *w)
{
    dt__ps_coord_free(&w->d);
    free(w->when);
    free(w->heap);
    free(w->place);
    free(w->version);
    free(w->batch);
    free(w->has);
    free(w->grad);
    free(w->trace);
}
/* What a learner computes: any function of its weights and its batch in which each bit matters. */
static void compute(world *w, int learner)
{
    uint64_t h = (uint64_t)w->batch[learner] + 77;
    if (w->seq >= w->ngrad) {
        w->ngrad = 2 * w->ngrad + 1024;
        w->grad = (double(*)[WEIGHTS])realloc(w->grad, (size_t)w->ngrad * sizeof *w->grad);
    }
    for (int j = 0; j < WEIGHTS; j++) {
        double x = (double)(dt_test_random(&h) >> 11) * 0x1p-53, v = w->has[learner][(j + 1) % WEIGHTS];
        w->grad[w->seq][j] = w->has[learner][j] * (1 + 0.3 * x) + 0.2 * v * v - x;
    }
}
static void applies(world *w, const dt__ps_act *a)
{
    uint64_t h = 0;
    for (int j = 0; j < WEIGHTS; j++) {
        double sum = 0;
        for (int i = 0; i < a->n; i++)
            sum += (double)w->d.used[a->first + i].weight * w->grad[w->d.used[a->first + i].seq][j];
        w->weight[j] -= 0.2 * sum;
        uint64_t bits;
        memcpy(&bits, &w->weight[j], sizeof bits);
        h = (h ^ bits) * 0x100000001b3u + (h >> 29);
    }
    if (!(w->ntrace & (w->ntrace - 1)))
        w->trace = (uint64_t *)realloc(w->trace, (size_t)(w->ntrace ? 2 * w->ntrace : 1) * sizeof *w->trace);
    w->trace[w->ntrace++] = h;
}
static void pulls(world *w, int learner)
{
    heap_remove(w, learner);
    dt__ps_coord_pull(&w->d, learner, ++w->seq);
}
static void pushes(world *w, int learner)
{
    heap_remove(w, learner);
    w->seq++;
    w->pushes++;
    if (w->computes) compute(w, learner);
    dt__ps_coord_push(&w->d, learner, w->seq, w->version[learner]);
}
/* Does what the coordinator says. A pull after a cancel adds to it. */
static void absorbs(world *w)
{
    for (int i = 0; i < w->d.nacts; i++) {
        dt__ps_act a = w->d.act[i];
        switch (a.kind) {
        case DT__PS_APPLY:
            for (int k = 0; k < a.n; k++) {
                int64_t old = a.version - 1 - w->d.used[a.first + k].version;
                w->used++;
                w->stale += old;
                if (old > w->stalest) w->stalest = old;
            }
            if (w->computes) applies(w, &a);
            break;
        case DT__PS_ANSWER:
            if (a.info.fresh) {
                w->version[a.learner] = a.version;
                memcpy(w->has[a.learner], w->weight, sizeof w->weight);
            }
            w->batch[a.learner] = a.info.batch;
            if (!(w->stops && a.info.batch < 0)) starts(w, a.learner);
            break;
        case DT__PS_CANCEL: pulls(w, a.learner); break;
        default: break;
        }
    }
    w->d.nacts = w->d.nused = 0;
}
static void all_pull(world *w)
{
    for (int i = 0; i < w->learners; i++) pulls(w, i);
    absorbs(w);
}
static bool next(world *w) /* false: nobody computes */
{
    if (!w->nheap) return false;
    int l = w->heap[0];
    w->now = w->when[l];
    if (w->extra && dt_test_random(&w->rng) % 1000 < (uint64_t)w->extra) pulls(w, l);
    else pushes(w, l);
    absorbs(w);
    return true;
}

/* ==================================================================================================== >>laws
   Each run is cut into ten parts. The standard error is that of the means of the parts of all runs. */
enum { PARTS = 10 };
typedef struct measured {
    double  time, time_error, stale, stale_error;
    int64_t stalest;
} measured; /* for an update */
static void mean_of(const double *x, int n, double *mean, double *error)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    *mean = sum / n;
    for (int i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *error = sqrt(squares / (n - 1) / n);
}
static measured measure(dt_ps_discipline o, int learners, int delays, int runs, int64_t updates)
{
    measured m;
    double  *time = (double *)calloc((size_t)(runs * PARTS), sizeof *time),
           *stale = (double *)calloc((size_t)(runs * PARTS), sizeof *stale);
    memset(&m, 0, sizeof m);
    for (int r = 0; r < runs; r++) {
        world w;
        if (!world_new(&w, o, learners, delays, (uint64_t)(r + 1))) break;
        all_pull(&w);
        while (w.d.version < updates / PARTS && next(&w)) {} /* the beginning is not measured */
        for (int p = 0; p < PARTS; p++) {
            int64_t version = w.d.version, until = version + updates / PARTS;
            double  now = w.now;
            w.used = w.stale = 0;
            while (w.d.version < until && next(&w)) {}
            time[r * PARTS + p] = (w.now - now) / (double)(w.d.version - version);
            stale[r * PARTS + p] = (double)w.stale / (double)w.used;
        }
        if (w.stalest > m.stalest) m.stalest = w.stalest;
        world_free(&w);
    }
    mean_of(time, runs * PARTS, &m.time, &m.time_error);
    mean_of(stale, runs * PARTS, &m.stale, &m.stale_error);
    free(time);
    free(stale);
    return m;
}
static bool within(int *result, const char *what, dt_ps_discipline o, int learners, int delays, double got, double error,
                   double law)
{
    char where[200];
    snprintf(where, sizeof where, "%s, %s: %d learners, K %d, s %d, delays %s", what, mode_name[o.mode], learners, o.k,
             o.staleness, delay_name[delays]);
    if (!(fabs(got - law) <= 4 * error + 1e-9))
        return say(result, __LINE__, "the law, within 4 standard errors", where, "%.6f +- %.6f; law %.6f", got, error,
                   law);
    if (!(error <= 0.02 * law + 1e-9))
        return say(result, __LINE__, "a standard error below 2 percent", where, "%.6f +- %.6f", got, error);
    return true;
}
static double harmonic(int n) { return n > 0 ? 1.0 / n + harmonic(n - 1) : 0; }
/* The mean of the k-th smallest of n delays. */
static double order_mean(int delays, int k, int n)
{
    double a = 3;
    if (delays == PARETO)
        return exp(lgamma(n + 1) - lgamma(n - k + 1) + lgamma(n - k + 1 - 1 / a) - lgamma(n + 1 - 1 / a));
    return harmonic(n) - harmonic(n - k) + (delays == SHIFTED ? 0.5 : 0);
}
static void laws_of(int *result, int mode, int k, int learners)
{
    int     runs = dt_test_quick() ? 2 : 10;
    int64_t updates = dt_test_quick() ? 10000 : 100000;
    for (int x = 0; x < DELAYS; x++) {
        dt_ps_discipline o = options(mode, k, 0);
        measured   m = measure(o, learners, x, runs, updates);
        double     p = learners, stale = 0, time = -1;
        switch (mode) {
        case DT_PS_SYNC:
        case DT_PS_SSP_CLOCK: time = order_mean(x, learners, learners); break;
        case DT_PS_K_SYNC: time = order_mean(x, k, learners); break;
        case DT_PS_K_BATCH_SYNC: time = x == EXPONENTIAL ? k / p : -1; break;
        case DT_PS_K_ASYNC:
            time = x == EXPONENTIAL ? order_mean(x, k, learners) : -1;
            stale = p / k - 1;
            /* delays that are likelier to end the longer they have run: it does not pay to begin anew */
            if (x == SHIFTED && m.time > order_mean(x, k, learners) - 4 * m.time_error)
                say(result, __LINE__, "K_ASYNC is faster than K_SYNC", delay_name[x], "%.6f and %.6f", m.time,
                    order_mean(x, k, learners));
            break;
        case DT_PS_K_BATCH_ASYNC: time = k * delay_mean[x] / p, stale = (p - 1) / k; break;
        case DT_PS_ASYNC: time = delay_mean[x] / p, stale = p - 1; break;
        default: time = order_mean(x, learners, learners) / p, stale = (p - 1) / 2; break; /* SSP */
        }
        if (time >= 0) within(result, "time for an update", o, learners, x, m.time, m.time_error, time);
        within(result, "mean staleness", o, learners, x, m.stale, m.stale_error, stale);
        if (stale == 0 && m.stalest)
            say(result, __LINE__, "no stale push", mode_name[mode], "one of %d versions", (int)m.stalest);
    }
}
UTEST(laws, sync) { laws_of(utest_result, DT_PS_SYNC, 1, 8); }
UTEST(laws, k_sync) { laws_of(utest_result, DT_PS_K_SYNC, 4, 8); }
UTEST(laws, k_batch_sync) { laws_of(utest_result, DT_PS_K_BATCH_SYNC, 4, 8); }
UTEST(laws, k_batch_sync_more_than_learners) { laws_of(utest_result, DT_PS_K_BATCH_SYNC, 7, 3); }
UTEST(laws, k_async) { laws_of(utest_result, DT_PS_K_ASYNC, 4, 8); }
UTEST(laws, k_async_odd) { laws_of(utest_result, DT_PS_K_ASYNC, 3, 7); }
UTEST(laws, k_batch_async) { laws_of(utest_result, DT_PS_K_BATCH_ASYNC, 4, 8); }
UTEST(laws, k_batch_async_more_than_learners) { laws_of(utest_result, DT_PS_K_BATCH_ASYNC, 7, 3); }
UTEST(laws, async) { laws_of(utest_result, DT_PS_ASYNC, 1, 8); }
UTEST(laws, ssp_0) { laws_of(utest_result, DT_PS_SSP, 1, 8); }
UTEST(laws, ssp_clock_0) { laws_of(utest_result, DT_PS_SSP_CLOCK, 1, 8); }

UTEST(laws, ssp_table) /* values of a simulation that knew nothing of this code, to three digits */
{
    static const struct {
        int    s;
        double time, stale;
    } row[] = { { 0, 0.340, 3.5 },  { 1, 0.224, 4.58 }, { 2, 0.189, 5.17 },
                { 4, 0.162, 5.73 }, { 8, 0.146, 6.22 }, { INT32_MAX, 0.125, 7 } };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        dt_ps_discipline o = options(DT_PS_SSP, 1, row[i].s);
        measured   m = measure(o, 8, EXPONENTIAL, dt_test_quick() ? 2 : 10, dt_test_quick() ? 50000 : 100000);
        if (fabs(m.time / row[i].time - 1) > 0.02 || fabs(m.stale / row[i].stale - 1) > 0.02)
            say(utest_result, __LINE__, "the table, within 2 percent", "SSP",
                "s %d: time %.4f, staleness %.3f; table %.3f, %.2f", row[i].s, m.time, m.stale, row[i].time,
                row[i].stale);
        /* from its pull to its push another learner pushes 2 s + 1 times at most */
        if (row[i].s < 1000) EXPECT_LE(m.stalest, (int64_t)(2 * row[i].s + 1) * 7);
    }
}
/* Clocks: a push is older than s versions never, and time is that of SSP. */
UTEST(laws, ssp_clock_bound)
{
    for (int s = 1; s <= 4; s *= 2)
        for (int x = 0; x < DELAYS; x++) {
            measured a = measure(options(DT_PS_SSP_CLOCK, 1, s), 8, x, 2, dt_test_quick() ? 2000 : 20000);
            measured b = measure(options(DT_PS_SSP, 1, s), 8, x, 2, dt_test_quick() ? 16000 : 160000);
            EXPECT_LE(a.stalest, (int64_t)s);
            EXPECT_GT(a.stale, 0.1);
            EXPECT_NEAR(a.time / 8 / b.time, 1.0, 0.02);
        }
}

/* ==================================================================================================== >>identities
   Two coordinators hear the same and must say the same, act by act. */
static bool same_acts(int *result, const char *where, const dt__ps_coord *a, const dt__ps_coord *b)
{
    if (a->nacts != b->nacts || a->nused != b->nused)
        return say(result, __LINE__, "the same acts", where, "%d acts of %d pushes; %d of %d", a->nacts, a->nused,
                   b->nacts, b->nused);
    for (int i = 0; i < a->nacts; i++) {
        const dt__ps_act *x = &a->act[i], *y = &b->act[i];
        const dt_ps_info *p = &x->info, *q = &y->info;
        if (x->kind != y->kind || x->learner != y->learner || x->first != y->first || x->n != y->n ||
            x->seq != y->seq || x->version != y->version || p->verdict != q->verdict || p->fresh != q->fresh ||
            p->version != q->version || p->staleness != q->staleness || p->batch != q->batch)
            return say(result, __LINE__, "the same acts", where,
                       "act %d: kind %d, learner %d, verdict %d, batch %d; %d, %d, %d, %d", i, x->kind, x->learner,
                       p->verdict, (int)p->batch, y->kind, y->learner, q->verdict, (int)q->batch);
    }
    for (int i = 0; i < a->nused; i++) {
        const dt__ps_push *x = &a->used[i], *y = &b->used[i];
        if (x->learner != y->learner || x->seq != y->seq || x->version != y->version || x->batch != y->batch ||
            x->weight != y->weight)
            return say(result, __LINE__, "the same pushes", where, "push %d: learner %d, batch %d; %d, %d", i,
                       x->learner, (int)x->batch, y->learner, (int)y->batch);
    }
    return true;
}
static bool same_runs(int *result, dt_ps_discipline o, dt_ps_discipline like, int learners, int seed)
{
    world a, b;
    char  where[120];
    bool  ok = world_new(&a, o, learners, seed % DELAYS, (uint64_t)seed);
    ok = world_new(&b, like, learners, seed % DELAYS, (uint64_t)seed) && ok;
    snprintf(where, sizeof where, "%s and %s: %d learners, seed %d", mode_name[o.mode], mode_name[like.mode], learners,
             seed);
    for (int i = 0; i < learners; i++) pulls(&a, i), pulls(&b, i);
    ok = ok && same_acts(result, where, &a.d, &b.d);
    absorbs(&a);
    absorbs(&b);
    for (int i = 0; i < 400 && ok && a.nheap; i++) {
        int l = a.heap[0];
        a.now = b.now = a.when[l];
        pushes(&a, l);
        pushes(&b, l);
        ok = same_acts(result, where, &a.d, &b.d);
        absorbs(&a);
        absorbs(&b);
        if (ok && (a.nheap != b.nheap || a.heap[0] != b.heap[0]))
            ok = say(result, __LINE__, "the same next learner", where, "another");
    }
    world_free(&a);
    world_free(&b);
    return ok;
}
UTEST(identities, all)
{
    int first, last, inf = INT32_MAX;
    seeds(30, 300, &first, &last);
    for (int seed = first; seed <= last && !*utest_result; seed++) {
        int p = 1 + seed % 9;
        same_runs(utest_result, options(DT_PS_K_SYNC, p, 0), options(DT_PS_SYNC, 1, 0), p, seed);
        same_runs(utest_result, options(DT_PS_K_ASYNC, p, 0), options(DT_PS_SYNC, 1, 0), p, seed);
        same_runs(utest_result, options(DT_PS_SSP_CLOCK, 1, 0), options(DT_PS_SYNC, 1, 0), p, seed);
        same_runs(utest_result, options(DT_PS_K_ASYNC, 1, 0), options(DT_PS_ASYNC, 1, 0), p, seed);
        same_runs(utest_result, options(DT_PS_K_BATCH_ASYNC, 1, 0), options(DT_PS_ASYNC, 1, 0), p, seed);
        same_runs(utest_result, options(DT_PS_SSP, 1, inf), options(DT_PS_ASYNC, 1, 0), p, seed);
        same_runs(utest_result, options(DT_PS_K_BATCH_SYNC, 1, 0), options(DT_PS_K_SYNC, 1, 0), p, seed);
    }
}

/* ==================================================================================================== >>programs
   Random programs. A model follows the acts and knows of every request and every batch where it is. */
enum { STEPS = 300, LEARNERS = 8 };
enum { PULLED = 1, PENDING, USED, DROPPED };                     /* a request */
enum { NOWHERE = 0, COMPUTED, PUSHED, APPLIED, POOLED, WASTED }; /* a batch */
typedef struct asked {
    int     learner, fate;
    bool    answered;
    int64_t version, batch, staleness, clock;
} asked;
typedef struct model {
    dt__ps_coord d;
    dt_ps_discipline   o;
    uint64_t     rng;
    int          seed, learners, k;
    bool         sync, kept_k, joined;
    struct {
        int     state;
        int64_t seq, version, batch, clock;
        bool    told, pulled;
    } l[LEARNERS];
    int64_t version, nseq, next_batch, npending, npool, stale, cancelled, used;
    asked   ask[STEPS + 2 * LEARNERS + 2];
    int     where[2 * STEPS + 64];
    int    *result;
} model;
static bool wrong(model *m, int line, const char *expected, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static bool wrong(model *m, int line, const char *expected, const char *format, ...)
{
    char    text[300], where[200];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    snprintf(where, sizeof where,
             "seed %d: %s, %d learners, K %d, s %d, max_staleness %d, batches %d, drop %d; version %d", m->seed,
             mode_name[m->o.mode], m->learners, m->k, m->o.staleness, m->o.max_staleness, (int)m->o.batches,
             m->o.drop_batches, (int)m->version);
    return say(m->result, line, expected, where, "%s", text);
}
#define MUST(condition, ...)                                                  \
    do {                                                                      \
        if (!(condition)) return wrong(m, __LINE__, #condition, __VA_ARGS__); \
    } while (0)
static int below(model *m, int n) { return (int)(dt_test_random(&m->rng) % (uint64_t)n); }
static int count(const model *m, int state)
{
    int n = 0;
    for (int i = 0; i < m->learners; i++) n += m->l[i].state == state;
    return n;
}
static int64_t slowest(const model *m)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < m->learners; i++)
        if (m->l[i].state != DT__PS_OUT && m->l[i].clock < least) least = m->l[i].clock;
    return least;
}
static void batch_back(model *m, int64_t batch, bool waste)
{
    if (batch < 0) return;
    m->where[batch] = waste ? WASTED : POOLED;
    m->npool += !waste;
}
static bool on_apply(model *m, const dt__ps_act *a)
{
    double sum = 0;
    bool   distinct = m->o.mode != DT_PS_K_BATCH_SYNC && m->o.mode != DT_PS_K_BATCH_ASYNC && !m->joined;
    MUST(a->version == m->version + 1, "version %d after %d", (int)a->version, (int)m->version);
    MUST(a->n > 0 && a->first >= 0 && a->first + a->n <= m->d.nused, "pushes %d + %d of %d", a->first, a->n,
         m->d.nused);
    for (int i = 0; i < a->n; i++) {
        const dt__ps_push *p = &m->d.used[a->first + i];
        MUST(p->seq > 0 && p->seq <= m->nseq, "request %d", (int)p->seq);
        asked  *r = &m->ask[p->seq];
        int64_t old = m->version - p->version;
        float   weight = 1.0f / (float)a->n;
        if (m->o.scale_by_staleness && old > 1) weight /= (float)old;
        MUST(r->fate == PENDING, "request %d has fate %d", (int)p->seq, r->fate);
        MUST(r->learner == p->learner && r->version == p->version && r->batch == p->batch,
             "push of learner %d, version %d, batch %d", p->learner, (int)p->version, (int)p->batch);
        MUST(!i || p[-1].learner < p->learner || (!distinct && p[-1].learner == p->learner && p[-1].seq < p->seq),
             "learner %d after %d", p->learner, p[-1].learner);
        MUST(!m->sync || !old, "a push that is %d versions old", (int)old);
        MUST(!m->o.max_staleness || old <= m->o.max_staleness, "a push that is %d versions old", (int)old);
        MUST(p->weight == weight, "weight %g, not %g", (double)p->weight, (double)weight);
        if (m->o.mode == DT_PS_SSP_CLOCK)
            MUST(r->clock == m->ask[m->d.used[a->first].seq].clock && r->clock < slowest(m), "clock %d", (int)r->clock);
        if (p->batch >= 0) {
            MUST(m->where[p->batch] == PUSHED, "batch %d is in %d", (int)p->batch, m->where[p->batch]);
            m->where[p->batch] = APPLIED;
        }
        sum += (double)p->weight;
        r->fate = USED;
        r->staleness = old;
        m->npending--;
        m->used++;
    }
    MUST(m->o.scale_by_staleness || fabs(sum - 1) < 1e-6, "weights sum to %g", sum);
    switch (m->o.mode) {
    case DT_PS_SYNC: MUST(!count(m, DT__PS_RUNS), "an update while somebody computes"); break;
    case DT_PS_K_SYNC:
    case DT_PS_K_ASYNC:
        MUST(a->n == m->k || (a->n < m->k && !count(m, DT__PS_RUNS)) || !m->kept_k, "%d pushes", a->n);
        break;
    case DT_PS_K_BATCH_SYNC:
    case DT_PS_K_BATCH_ASYNC:
        MUST(a->n == m->k || (a->n < m->k && count(m, DT__PS_OUT) == m->learners) || !m->kept_k, "%d pushes", a->n);
        break;
    case DT_PS_ASYNC:
    case DT_PS_SSP: MUST(a->n == 1, "%d pushes", a->n); break;
    default: break;
    }
    m->version++;
    return true;
}
static bool on_answer(model *m, const dt__ps_act *a)
{
    MUST(a->seq > 0 && a->seq <= m->nseq, "request %d", (int)a->seq);
    asked *r = &m->ask[a->seq];
    int    l = a->learner;
    MUST(r->learner == l && !r->answered, "request %d of learner %d, answered %d; the answer is for %d", (int)a->seq,
         r->learner, r->answered, l);
    MUST(m->l[l].state == DT__PS_WAITS && m->l[l].seq == a->seq, "learner %d does not wait for it", l);
    MUST(a->version == m->version && a->info.version == m->version, "version %d", (int)a->info.version);
    int verdict = r->fate == PULLED    ? DT_PS_NONE
                  : r->fate == USED    ? DT_PS_USED
                  : r->fate == PENDING ? DT_PS_KEPT
                  : m->sync            ? DT_PS_CANCELLED
                                       : DT_PS_STALE;
    MUST(a->info.verdict == verdict, "verdict %d, not %d", a->info.verdict, verdict);
    MUST(a->info.fresh == !(verdict == DT_PS_KEPT && m->o.mode == DT_PS_K_BATCH_SYNC), "fresh %d", a->info.fresh);
    MUST(verdict != DT_PS_KEPT || m->o.mode == DT_PS_K_BATCH_SYNC || m->o.mode == DT_PS_K_BATCH_ASYNC ||
             m->o.mode == DT_PS_SSP_CLOCK,
         "kept");
    MUST(verdict != DT_PS_USED || a->info.staleness == r->staleness, "staleness %d, not %d", (int)a->info.staleness,
         (int)r->staleness);
    MUST(verdict != DT_PS_NONE || a->info.staleness == 0, "staleness %d of a pull", (int)a->info.staleness);
    MUST(a->info.k == m->k, "K %d, not %d", a->info.k, m->k);
    int64_t b = a->info.batch;
    if (m->l[l].batch >= 0) MUST(b == m->l[l].batch, "batch %d; it had %d", (int)b, (int)m->l[l].batch);
    else if (b < 0)
        MUST(b == -1 && !m->npool && m->o.batches && m->next_batch == m->o.batches, "no batch; %d in the pool",
             (int)m->npool);
    else if (m->npool) {
        MUST(b < m->next_batch && m->where[b] == POOLED, "batch %d", (int)b);
        m->npool--;
    } else {
        MUST(b == m->next_batch && (!m->o.batches || b < m->o.batches), "batch %d, next %d", (int)b,
             (int)m->next_batch);
        m->next_batch++;
    }
    if (b >= 0) m->where[b] = COMPUTED;
    m->l[l].batch = b;
    m->l[l].state = DT__PS_RUNS;
    m->l[l].version = m->version;
    m->l[l].told = false;
    m->l[l].pulled = true;
    r->answered = true;
    return true;
}
static bool on_act(model *m, const dt__ps_act *a)
{
    int l = a->learner;
    MUST(a->kind == DT__PS_APPLY || (l >= 0 && l < m->learners), "learner %d", l);
    switch (a->kind) {
    case DT__PS_APPLY: return on_apply(m, a);
    case DT__PS_ANSWER: return on_answer(m, a);
    case DT__PS_CANCEL:
        MUST(m->sync && m->l[l].state == DT__PS_RUNS && !m->l[l].told && m->l[l].version < m->version &&
                 a->version == m->version,
             "cancel of learner %d", l);
        batch_back(m, m->l[l].batch, m->o.drop_batches);
        m->l[l].batch = -1;
        m->l[l].told = true;
        m->cancelled++;
        return true;
    case DT__PS_DROP: {
        MUST(a->seq > 0 && a->seq <= m->nseq, "request %d", (int)a->seq);
        asked *r = &m->ask[a->seq];
        MUST(r->learner == l && r->fate == PENDING, "request %d of learner %d, fate %d", (int)a->seq, r->learner,
             r->fate);
        MUST(m->sync
                 ? r->version < m->version
                 : m->o.max_staleness && (m->o.mode == DT_PS_SSP_CLOCK || m->version - r->version > m->o.max_staleness),
             "a push of version %d is dropped", (int)r->version);
        batch_back(m, r->batch, m->o.drop_batches);
        r->fate = DROPPED;
        m->npending--;
        if (!m->sync) m->stale++;
        else if (!m->l[l].told) m->cancelled++;
        return true;
    }
    default: return wrong(m, __LINE__, "a known act", "kind %d", a->kind);
    }
}
static bool look(model *m) /* after each step */
{
    for (int i = 0; i < m->d.nacts; i++)
        if (!on_act(m, &m->d.act[i])) return false;
    m->d.nacts = m->d.nused = 0;
    int runs = count(m, DT__PS_RUNS), waits = count(m, DT__PS_WAITS);
    MUST(m->d.nruns == runs && m->d.nwaits == waits, "%d compute, %d wait; the coordinator says %d, %d", runs, waits,
         m->d.nruns, m->d.nwaits);
    MUST(runs || !waits, "nobody computes, %d wait", waits);
    MUST(m->d.version == m->version && m->d.npending == m->npending, "%d pushes wait, not %d", m->d.npending,
         (int)m->npending);
    int need = m->o.mode == DT_PS_SYNC || m->o.mode == DT_PS_SSP_CLOCK ? INT32_MAX
               : m->o.mode == DT_PS_ASYNC || m->o.mode == DT_PS_SSP    ? 1
                                                                       : m->k;
    MUST(m->npending < need && (runs || waits || !m->npending), "%d pushes wait", (int)m->npending);
    for (int i = 0; i < m->learners && m->sync; i++)
        MUST(m->l[i].state != DT__PS_RUNS || m->l[i].version == m->version || m->l[i].told, "learner %d works in vain",
             i);
    for (int i = 0; i < m->learners && m->o.mode >= DT_PS_SSP; i++) {
        int64_t ahead = m->l[i].clock - slowest(m);
        MUST(m->l[i].state == DT__PS_OUT || (ahead <= m->o.staleness) == (m->l[i].state == DT__PS_RUNS),
             "learner %d is %d ahead, state %d", i, (int)ahead, m->l[i].state);
    }
    MUST(m->d.npool - m->d.pool_first == m->npool, "%d batches in the pool, not %d", m->d.npool - m->d.pool_first,
         (int)m->npool);
    for (int i = m->d.pool_first; i < m->d.npool; i++)
        MUST(m->d.pool[i] >= 0 && m->d.pool[i] < m->next_batch && m->where[m->d.pool[i]] == POOLED,
             "batch %d is in the pool", (int)m->d.pool[i]);
    MUST(m->d.next_batch == m->next_batch, "next batch %d, not %d", (int)m->d.next_batch, (int)m->next_batch);
    MUST(m->d.stats.used == m->used && m->d.stats.stale == m->stale && m->d.stats.cancelled == m->cancelled,
         "%d used, %d stale, %d cancelled; the coordinator: %d, %d, %d", (int)m->used, (int)m->stale, (int)m->cancelled,
         (int)m->d.stats.used, (int)m->d.stats.stale, (int)m->d.stats.cancelled);
    MUST(!m->d.memory && !m->d.differs, "it has failed");
    return true;
}
static bool ask(model *m, int l, bool push)
{
    asked *r = &m->ask[++m->nseq];
    r->learner = l;
    r->fate = push ? PENDING : PULLED;
    r->version = m->l[l].version;
    r->clock = m->l[l].clock;
    r->batch = push ? m->l[l].batch : -1;
    m->l[l].state = DT__PS_WAITS;
    m->l[l].seq = m->nseq;
    if (!push) dt__ps_coord_pull(&m->d, l, m->nseq);
    else {
        m->npending++;
        m->l[l].clock++;
        if (r->batch >= 0) m->where[r->batch] = PUSHED;
        m->l[l].batch = -1;
        dt__ps_coord_push(&m->d, l, m->nseq, r->version);
    }
    return look(m);
}
static bool leave(model *m, int l)
{
    batch_back(m, m->l[l].batch, false); /* nobody has computed it */
    m->l[l].batch = -1;
    m->l[l].state = DT__PS_OUT;
    dt__ps_coord_leave(&m->d, l);
    return look(m);
}
static bool join(model *m, int l)
{
    int64_t least = slowest(m);
    m->joined = true;
    m->l[l].state = DT__PS_RUNS;
    m->l[l].version = m->version;
    m->l[l].clock = least == INT64_MAX ? 0 : least;
    m->l[l].told = m->l[l].pulled = false;
    dt__ps_coord_join(&m->d, l);
    return look(m);
}
static bool one_step(model *m, bool moves)
{
    int l = below(m, m->learners), dice = below(m, 1000);
    if (moves && dice < 15) {
        m->k = 1 + below(m, m->learners + 2);
        m->kept_k = false;
        dt__ps_coord_set_k(&m->d, m->k);
        return look(m);
    }
    if (m->l[l].state == DT__PS_OUT) return !moves || dice >= 200 || join(m, l);
    if (moves && dice < 40) return leave(m, l);
    if (m->l[l].state == DT__PS_WAITS) return true;
    if (m->l[l].batch < 0 && m->l[l].pulled && !m->l[l].told && dice < 500) return leave(m, l); /* no more batches */
    return ask(m, l, m->l[l].pulled && dice >= (m->l[l].told ? 500 : 100));
}
static bool program(int *result, int seed, int mode)
{
    model *m = (model *)calloc(1, sizeof *m);
    m->result = result;
    m->seed = seed;
    m->rng = (uint64_t)seed * 8 + (uint64_t)mode + 1;
    m->learners = 1 + below(m, LEARNERS);
    m->o = options(mode, 1 + below(m, m->learners + 2), below(m, 5));
    m->o.max_staleness = below(m, 2) ? 1 + below(m, 5) : 0;
    m->o.drop_batches = below(m, 2);
    m->o.scale_by_staleness = below(m, 2);
    m->o.batches = below(m, 3) ? 0 : 1 + below(m, 60);
    m->k = m->o.k;
    m->sync = mode <= DT_PS_K_BATCH_SYNC;
    m->kept_k = true;
    bool moves = below(m, 2), pulled = below(m, 2), ok = dt__ps_coord_init(&m->d, &m->o, m->learners);
    for (int i = 0; i < m->learners; i++) {
        m->l[i].state = DT__PS_RUNS;
        m->l[i].pulled = pulled;
        m->l[i].batch = m->o.batches && i >= m->o.batches ? -1 : i;
        if (m->l[i].batch >= 0) m->where[i] = COMPUTED, m->next_batch++;
    }
    for (int i = 0; i < STEPS && ok; i++) ok = one_step(m, moves);
    for (int i = 0; i < m->learners && ok; i++) /* one after the other, the waiting ones too */
        if (m->l[i].state != DT__PS_OUT) ok = leave(m, i);
    for (int64_t i = 1; i <= m->nseq && ok; i++)
        if (m->ask[i].fate == PENDING)
            ok = wrong(m, __LINE__, "each push is used or dropped", "request %d waits", (int)i);
    for (int64_t i = 0; i < m->next_batch && ok; i++)
        if (m->where[i] != APPLIED && m->where[i] != POOLED && (m->where[i] != WASTED || !m->o.drop_batches))
            ok = wrong(m, __LINE__, "each batch is used, in the pool or wasted", "batch %d is in %d", (int)i,
                       m->where[i]);
    dt__ps_coord_free(&m->d);
    free(m);
    return ok;
}
UTEST(programs, all)
{
    int first, last;
    seeds(100, 1000, &first, &last);
    for (int seed = first; seed <= last; seed++)
        for (int mode = 0; mode < DT_PS_MODES; mode++)
            if (!program(utest_result, seed, mode)) return;
}

/* ==================================================================================================== >>replay
   Weights are computed by the learners of the world. A run is recorded, and its log is replayed with other delays. */
typedef struct play {
    dt_ps_discipline    o;
    int           learners, extra;
    bool          starts;
    dt__ps_entry *log;
    int64_t       n;
} play;
static void play_choose(play *p, int seed, int mode)
{
    uint64_t rng = (uint64_t)seed * 16 + (uint64_t)mode;
    memset(p, 0, sizeof *p);
    p->learners = 1 + (int)(dt_test_random(&rng) % 8);
    p->o =
        options(mode, 1 + (int)(dt_test_random(&rng) % (uint64_t)(p->learners + 1)), (int)(dt_test_random(&rng) % 4));
    p->o.max_staleness = dt_test_random(&rng) % 3 ? 0 : 1 + (int)(dt_test_random(&rng) % 6);
    p->o.scale_by_staleness = dt_test_random(&rng) & 1;
    p->o.drop_batches = dt_test_random(&rng) & 1;
    p->extra = dt_test_random(&rng) & 1 ? 100 : 0;
    p->starts = dt_test_random(&rng) & 1; /* without a first pull */
}
static bool play_new(world *w, const play *p, int seed)
{
    if (!world_new(w, p->o, p->learners, seed % DELAYS, (uint64_t)seed)) return false;
    w->computes = w->stops = true;
    w->extra = p->extra;
    return true;
}
static void play_begin(world *w, const play *p)
{
    if (!p->starts) all_pull(w);
    else
        for (int i = 0; i < p->learners; i++) starts(w, i);
}
static bool play_record(world *w, play *p, int seed, int64_t updates)
{
    if (!play_new(w, p, seed)) return false;
    w->d.record = true;
    play_begin(w, p);
    while (w->d.version < updates && next(w)) {
        int l = (int)(dt_test_random(&w->rng) % 400);
        if (l >= p->learners || w->d.nruns + w->d.nwaits < 2 || w->d.learner[l].state == DT__PS_OUT) continue;
        heap_remove(w, l); /* a learner dies now and then */
        dt__ps_coord_leave(&w->d, l);
        absorbs(w);
    }
    p->log = w->d.log;
    p->n = w->d.nlog;
    return w->d.version >= updates;
}
static void play_name(const play *p, int seed, char *where, size_t n)
{
    snprintf(where, n, "seed %d: %s, %d learners, K %d, s %d, max_staleness %d, pulls %d, starts %d", seed,
             mode_name[p->o.mode], p->learners, p->o.k, p->o.staleness, p->o.max_staleness, p->extra, p->starts);
}
static void replay_one(int *result, int seed, int mode, int64_t updates)
{
    play  p;
    world a, b;
    char  where[200];
    play_choose(&p, seed, mode);
    play_name(&p, seed, where, sizeof where);
    if (!play_record(&a, &p, seed + 1, updates))
        say(result, __LINE__, "a recorded run", where, "%d updates", (int)a.d.version);
    for (int again = 0; again < 2; again++) {
        int64_t n = 0;
        if (!play_new(&b, &p, seed + 1000 + again)) say(result, __LINE__, "memory", where, "none");
        b.d.record = again == 1; /* a replay may be recorded, and the log has the weights */
        b.d.scale = b.d.scale != (again == 1);
        if (dt__ps_coord_replay(&b.d, p.log, p.n))
            say(result, __LINE__, "a log that is accepted", where, "%s", dt_comm_error(NULL));
        play_begin(&b, &p);
        while (next(&b)) {}
        while (n < a.ntrace && n < b.ntrace && a.trace[n] == b.trace[n]) n++;
        if (b.d.differs)
            say(result, __LINE__, "a run like that of the log", where, "it differs at update %d of %d",
                (int)b.d.version, (int)a.d.version);
        else if (b.d.nwaits)
            say(result, __LINE__, "a replay that ends", where, "%d wait at update %d of %d", b.d.nwaits,
                (int)b.d.version, (int)a.d.version);
        else if (n < a.ntrace || b.ntrace != a.ntrace || memcmp(a.weight, b.weight, sizeof a.weight))
            say(result, __LINE__, "the same weights", where, "%d of %d updates are the same; %d were replayed", (int)n,
                (int)a.ntrace, (int)b.ntrace);
        else if (b.d.nlog != p.n || memcmp(b.d.log, p.log, (size_t)p.n * sizeof *p.log))
            say(result, __LINE__, "the same log", where, "another");
        world_free(&b);
    }
    world_free(&a);
}
UTEST(replay, all)
{
    int first, last;
    EXPECT_LE(sizeof(dt__ps_entry), (size_t)40);
    seeds(20, 200, &first, &last);
    for (int seed = first; seed <= last && !*utest_result; seed++)
        for (int mode = 0; mode < DT_PS_MODES && !*utest_result; mode++) replay_one(utest_result, seed, mode, 200);
}
/* Runs the replay of a log to its end. It may fail, but it must not wait for what cannot come. */
static void replay_odd(int *result, const play *p, const dt__ps_entry *log, int seed, int64_t leaves, const char *where)
{
    world   w;
    int64_t steps = 0;
    if (!play_new(&w, p, seed)) return;
    if (!dt__ps_coord_replay(&w.d, log, p->n)) {
        play_begin(&w, p);
        while (!w.d.differs && next(&w)) {
            if (++steps != leaves) continue;
            int l = (int)(dt_test_random(&w.rng) % (uint64_t)p->learners);
            heap_remove(&w, l);
            dt__ps_coord_leave(&w.d, l);
            absorbs(&w);
        }
        if (w.d.nwaits && !w.d.differs)
            say(result, __LINE__, "an end, or an error", where, "%d wait at entry %d of %d", w.d.nwaits,
                (int)w.d.log_at, (int)p->n);
        if (w.d.memory) say(result, __LINE__, "memory", where, "none");
    } else if (leaves) say(result, __LINE__, "a log that is accepted", where, "%s", dt_comm_error(NULL));
    world_free(&w);
}
UTEST(replay, deaths_and_broken_logs)
{
    int first, last;
    seeds(20, 200, &first, &last);
    for (int seed = first; seed <= last && !*utest_result; seed++)
        for (int mode = 0; mode < DT_PS_MODES && !*utest_result; mode++) {
            play     p;
            world    a;
            char     where[200];
            uint64_t rng = (uint64_t)seed;
            play_choose(&p, seed, mode);
            play_name(&p, seed, where, sizeof where);
            if (!play_record(&a, &p, seed + 1, 60)) {
                say(utest_result, __LINE__, "a recorded run", where, "%d updates", (int)a.d.version);
                world_free(&a);
                return;
            }
            replay_odd(utest_result, &p, p.log, seed + 7, 1 + (int64_t)(dt_test_random(&rng) % 100), where);
            dt__ps_entry *log = (dt__ps_entry *)malloc((size_t)p.n * sizeof *log);
            for (int i = 0; i < 8; i++) { /* one entry is wrong */
                dt__ps_entry *e = &log[dt_test_random(&rng) % (uint64_t)p.n];
                memcpy(log, p.log, (size_t)p.n * sizeof *log);
                switch (i) {
                case 0: e->learner = (uint32_t)(dt_test_random(&rng) % (uint64_t)p.learners); break;
                case 1: e->learner = (uint32_t)dt_test_random(&rng); break;
                case 2: e->version += (int64_t)(dt_test_random(&rng) % 5) - 2; break;
                case 3: e->version = (int64_t)dt_test_random(&rng); break;
                case 4: e->version = (int64_t)(dt_test_random(&rng) % (uint64_t)(e->update + 1)); break;
                case 5: e->update += (int64_t)(dt_test_random(&rng) % 5) - 2; break;
                case 6: e->update = (int64_t)dt_test_random(&rng); break;
                default: e->batch = (int64_t)dt_test_random(&rng); break;
                }
                replay_odd(utest_result, &p, log, seed + 7, 0, where);
            }
            free(log);
            world_free(&a);
        }
}
UTEST(replay, impossible_logs)
{
    static const dt__ps_entry good[3] = { { 0, 1, 0, 0, 0 }, { 1, 1, 0, 1, 1 }, { 1, 1, 1, 2, -1 } };
    static const struct {
        int          at;
        dt__ps_entry e;
    } bad[] = {
        { 0, { 0, 1, 0, 1, 0 } }, /* the first update is 0 */
        { 1, { 1, 1, 0, 2, 1 } }, /* an update is missing */
        { 2, { 1, 1, 1, 0, 1 } }, /* the order */
        { 1, { 1, 1, 2, 1, 1 } }, /* values of an update that was not made yet */
        { 1, { 1, 1, -1, 1, 1 } }, { 1, { 2, 1, 0, 1, 1 } }, { 1, { UINT32_MAX, 1, 0, 1, 1 } },
        { 1, { 1, 1, 0, 1, -2 } }, { 1, { 1, 1, 1, 1, 1 } }, /* then this is good, and the next one has older values: see below */
    };
    int n = (int)(sizeof bad / sizeof *bad);
    for (int i = -1; i < n; i++) {
        dt_ps_discipline   o = options(DT_PS_ASYNC, 1, 0);
        dt__ps_coord d;
        dt__ps_entry log[3];
        memcpy(log, good, sizeof log);
        if (i >= 0) log[bad[i].at] = bad[i].e;
        if (i == n - 1) log[2].version = 0;
        ASSERT_TRUE(dt__ps_coord_init(&d, &o, 2));
        EXPECT_EQ(dt__ps_coord_replay(&d, log, 3), i < 0 ? 0 : (int)DT_COMM_ERR_ARG);
        if (i >= 0) EXPECT_TRUE(dt_comm_error(NULL) && strstr(dt_comm_error(NULL), "impossible"));
        dt__ps_coord_free(&d);
    }
}
/* A program that counts its pushes makes more of them than the log has, if some were dropped when it was recorded. */
UTEST(replay, beyond_the_end)
{
    for (int mode = 0; mode < DT_PS_MODES; mode++) {
        play  p;
        world a, b;
        bool  may_drop = mode <= DT_PS_K_BATCH_SYNC;
        memset(&p, 0, sizeof p);
        p.learners = 4;
        p.o = options(mode, 2, 1);
        ASSERT_TRUE(play_record(&a, &p, 5, 50));
        ASSERT_TRUE(play_new(&b, &p, 6));
        ASSERT_EQ(dt__ps_coord_replay(&b.d, p.log, p.n), 0);
        play_begin(&b, &p);
        while (next(&b)) {}
        EXPECT_EQ(b.d.version, a.d.version);
        dt__ps_coord_push(&b.d, 1, ++b.seq, b.version[1]);
        EXPECT_EQ(b.d.differs, !may_drop);
        if (may_drop) {
            ASSERT_EQ(b.d.nacts, 2);
            EXPECT_EQ(b.d.act[0].kind, (int)DT__PS_DROP);
            EXPECT_EQ(b.d.act[1].kind, (int)DT__PS_ANSWER);
            EXPECT_EQ(b.d.act[1].info.verdict, (int)DT_PS_CANCELLED);
            EXPECT_EQ(b.d.version, a.d.version);
        }
        world_free(&a);
        world_free(&b);
    }
}

/* ==================================================================================================== >>many */
UTEST(many, thousand_learners)
{
    int64_t total = dt_test_quick() ? 20000 : 200000;
    for (int mode = 0; mode < DT_PS_MODES; mode++) {
        world   w;
        int64_t t = dt_test_ns();
        ASSERT_TRUE(world_new(&w, options(mode, 100, 4), 1000, EXPONENTIAL, 1));
        all_pull(&w);
        while (w.pushes < total && next(&w)) {}
        EXPECT_EQ(w.pushes, total);
        EXPECT_EQ(w.d.nruns + w.d.nwaits, 1000);
        EXPECT_EQ(w.used + w.d.npending + w.d.stats.stale, total); /* a learner that is cancelled does not push */
        t = dt_test_ns() - t;
        printf("  1000 learners, %-13s %8.3f us for a push, %" PRId64 " updates\n", mode_name[mode],
               (double)t / 1e3 / (double)total, w.d.version);
        EXPECT_LT((double)t / 1e9, 30 * dt_test_slow());
        world_free(&w);
    }
}
