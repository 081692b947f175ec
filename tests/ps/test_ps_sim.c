/* test_ps_sim.c: the parameter server in virtual time: convergence in all disciplines, a thousand workers, deaths from a seed, and
   allocations that fail one after the other
   run: long, asan-later, -O1 */
#define DT_PS_IMPLEMENTATION
#define DT__WANT_INSIDE
#include "harness.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dt_sim.h"

/* ---- allocations of the store fail */
static int64_t allocations, fail_at = -1;
static bool fails_now(void) { return allocations++ == fail_at; }
#undef DT_COMM_MALLOC
#undef DT_COMM_REALLOC
#define DT_COMM_MALLOC(n) (fails_now() ? NULL : malloc(n))
#define DT_COMM_REALLOC(p, n) (fails_now() ? NULL : realloc(p, n))
#define dt__comm_zeroed(n, size) (fails_now() ? NULL : (dt__comm_zeroed)(n, size))
#define dt_comm_alloc(c, n) (fails_now() ? NULL : (dt_comm_alloc)(c, n))
#include "dt_ps.h"

UTEST_MAIN()

/* ---------------------------------------------------------------------------------------------------- a world
   Workers fit a line: a group of the weights, with an update function, and of a counter for each worker. */
enum { DIM = 6 };
typedef struct world world;
typedef struct worker {
    world     *w;
    int        rank;
    float      weight[DIM], grad[DIM];
    int64_t   *count, *one;     /* of all workers: what is pulled; a one for this worker */
    dt_ps_item item[2];
    uint64_t   random;
    int64_t    used, kept, lost, started; /* pushes by what became of them */
    int64_t    last;            /* version */
    bool       busy, stop, dead, freed;
    bool       absent, joined;  /* a newcomer: it has not come; it has joined the communicator */
    int        errors;          /* one after the other */
    dt_ps_info info;
} worker;
struct world {
    dt_sim    *sim;
    dt_ps    **ps;
    worker    *worker;
    int        nworkers, nservers, wrong;
    int        nstart;          /* workers at the start; the others join */
    int64_t    updates;         /* the workers stop at this version */
    bool       measures;        /* updates are made in two steps */
    dt_ps_opts o;
};
static float truth(int i) { return (float)(i + 1) * 0.5f; }
static int   step_down(const dt_ps_part *p, const float *grad, void *user)
{
    world *w = (world *)user;
    if (w->measures && p->measured != 2 * DIM) w->wrong++;
    for (int64_t i = 0; i < p->n; i++) ((float *)p->value)[i] -= 0.1f * grad[i];
    return 0;
}
static double twice_n(const dt_ps_part *p, const float *grad, void *user) /* the mean is that of the update, at each of its elements */
{
    (void)user;
    return p->n && grad[p->n - 1] == grad[p->n - 1] ? 2 * (double)p->n : 0;
}
static bool alone(const world *w) /* worker 0 goes on until the others have gone: so nobody waits for it, and it sees everything */
{
    for (int i = 1; i < w->nworkers; i++)
        if (!w->worker[i].freed && !w->worker[i].dead && !w->worker[i].absent) return false;
    return true;
}
static void begin(dt_comm *c, void *user);
static void failed(worker *k) /* a call: it is tried again, for the store can be used on */
{
    if (fail_at < 0 || ++k->errors > 3 || dt_comm_get_status(dt_sim_comm(k->w->sim, k->rank))) k->dead = k->stop = true;
    else dt_sim_at(k->w->sim, k->rank, dt_sim_now(k->w->sim) + 1e-3, begin, k);
}
static void exchanged(void *user, int status, const dt_ps_info *info)
{
    worker *k = (worker *)user;
    world  *w = k->w;
    k->busy = false;
    k->info = *info;
    if (status) {
        failed(k);
        return;
    }
    k->errors = 0;
    k->used += info->verdict == DT_PS_USED;
    k->kept += info->verdict == DT_PS_KEPT;
    k->lost += info->verdict == DT_PS_CANCELLED || info->verdict == DT_PS_STALE;
    if (info->version < k->last || info->staleness < 0) w->wrong++;
    k->last = info->version;
    if (info->version >= w->updates && (k->rank || alone(w))) k->stop = true;
    else dt_sim_at(w->sim, k->rank, dt_sim_now(w->sim) + 1e-3 * (double)(1 + dt_test_random(&k->random) % 20), begin, k);
}
static void begin(dt_comm *c, void *user)
{
    worker *k = (worker *)user;
    world  *w = k->w;
    (void)c;
    if (k->dead) return;
    float x[DIM], err = 0; /* a sample: y = truth . x */
    for (int i = 0; i < DIM; i++) {
        x[i] = (float)((double)(dt_test_random(&k->random) % 2001) / 1000 - 1);
        err += (k->weight[i] - truth(i)) * x[i];
    }
    for (int i = 0; i < DIM; i++) k->grad[i] = err * x[i];
    dt_ps_op *op = dt_ps_exchange_start(w->ps[k->rank], k->item, 2);
    if (!op) {
        failed(k);
        return;
    }
    k->started++;
    k->busy = true;
    if (dt_ps_then(op, exchanged, k)) w->wrong++;
}
static bool worker_init(world *w, int i) /* the store of worker i is there */
{
    worker *k = &w->worker[i];
    return !dt_ps_init(w->ps[k->rank], 0, k->weight, DIM, DT_COMM_F32, .rule = DT_PS_UPDATE, .group = 1) &&
           !dt_ps_init(w->ps[k->rank], 1, k->count, w->nworkers, DT_COMM_I64, .rule = DT_PS_SUM, .group = 1);
}
static bool world_measures; /* of the next world */
static bool world_open(world *w, int nstart, int nservers, int joins, dt_ps_opts o, uint64_t seed, bool tolerant)
{
    int n = nstart + nservers, nworkers = nstart + joins;
    memset(w, 0, sizeof *w);
    o.servers = nservers;
    w->o = o;
    w->sim = dt_sim_new(.world = n, .seed = seed, .tolerant = tolerant, .timeout = 60, .room = joins ? n + joins : 0);
    w->ps = (dt_ps **)calloc((size_t)(n + joins), sizeof *w->ps);
    w->worker = (worker *)calloc((size_t)nworkers, sizeof *w->worker);
    w->nworkers = nworkers;
    w->measures = world_measures;
    w->nstart = nstart;
    w->nservers = nservers;
    for (int i = 0; i < nworkers; i++) w->worker[i].rank = i < nstart ? i : i + nservers, w->worker[i].absent = i >= nstart;
    bool ok = w->sim != NULL;
    for (int i = 0; i < n && ok; i++) ok = (w->ps[i] = dt_ps_new_with(dt_sim_comm(w->sim, i), o)) != NULL;
    for (int i = nstart; i < n && ok; i++) ok = (!w->measures || !dt_ps_on_measure(w->ps[i], twice_n, NULL)) && !dt_ps_on_update(w->ps[i], step_down, w, 0);
    for (int i = 0; i < nworkers && ok; i++) {
        worker *k = &w->worker[i];
        k->w = w;
        k->random = seed * 1000003 + (uint64_t)i;
        k->count = (int64_t *)calloc((size_t)nworkers, 8);
        k->one = (int64_t *)calloc((size_t)nworkers, 8);
        k->one[i] = 1;
        dt_ps_item a = { 0, DT_COMM_F32, DIM, k->grad, k->weight }, b = { 1, DT_COMM_I64, nworkers, k->one, k->count };
        k->item[0] = a;
        k->item[1] = b;
        if (i < nstart) ok = worker_init(w, i);
        if (!ok && fail_at < 0) printf("    worker %d: %s\n", i, dt_ps_error(w->ps[i]));
    }
    for (int i = 0; i < nstart && ok; i++) dt_sim_at(w->sim, i, dt_sim_now(w->sim) + 1e-4 * i, begin, &w->worker[i]);
    return ok;
}
static bool world_new(world *w, int nworkers, int nservers, dt_ps_opts o, uint64_t seed, bool tolerant)
{
    return world_open(w, nworkers, nservers, 0, o, seed, tolerant);
}
static void joined(dt_comm *c, void *user) /* of dt_sim_join */
{
    world *w = (world *)user;
    w->worker[dt_comm_rank(c) - w->nservers].joined = true;
}
static void enters(world *w, int i) /* a newcomer makes its store, pulls and begins */
{
    worker    *k = &w->worker[i];
    dt_comm   *c = dt_sim_comm(w->sim, k->rank);
    dt_ps_item item[2] = { k->item[0], k->item[1] };
    dt_ps_op  *op = NULL;
    k->joined = k->absent = false;
    item[0].push = item[1].push = NULL;
    w->ps[k->rank] = dt_ps_new_with(c, w->o);
    if (w->ps[k->rank] && dt_ps_worker(w->ps[k->rank]) == i && worker_init(w, i)) op = dt_ps_exchange_start(w->ps[k->rank], item, 2);
    if (op && !dt_ps_wait(op, &k->info)) dt_sim_at(w->sim, k->rank, dt_sim_now(w->sim), begin, k);
    else {
        const char *why = dt_comm_error(NULL);
        if (!dt_comm_get_status(c) && !(why && strstr(why, "declared dead"))) w->wrong++, printf("    newcomer %d: %s\n", i, dt_comm_error(NULL));
        k->dead = true; /* it died, or was expelled, meanwhile */
    }
}
/* Runs until all have stopped. Who has stopped leaves, so that nobody waits for it; worker 0 leaves in world_free. */
static worker *world_run(world *w, double most)
{
    double end = dt_sim_now(w->sim) + most;
    while (dt_sim_now(w->sim) < end) {
        dt_sim_run(w->sim, dt_sim_now(w->sim) + 0.05);
        for (int i = 0; i < w->nworkers; i++) {
            worker *k = &w->worker[i];
            if (k->joined) enters(w, i);
            if (k->absent) continue;
            if (dt_comm_get_status(dt_sim_comm(w->sim, k->rank))) k->dead = true;
            if (!i || k->freed || (!k->dead && !k->stop)) continue;
            int rc = dt_ps_free(w->ps[k->rank]);
            if (dt_comm_get_status(dt_sim_comm(w->sim, k->rank))) k->dead = true; /* meanwhile */
            if (rc && !k->dead) w->wrong++, printf("    worker %d: dt_ps_free: %s\n", i, dt_comm_error(NULL));
            k->freed = true;
        }
        if (w->worker[0].stop && alone(w)) return &w->worker[0];
    }
    printf("    not all workers have stopped after %g s of virtual time\n", most);
    for (int i = 0; i < w->nworkers && i < 20; i++)
        if (!w->worker[i].freed)
            printf("      worker %d: busy %d, stop %d, dead %d, started %d\n", i, w->worker[i].busy, w->worker[i].stop, w->worker[i].dead, (int)w->worker[i].started);
    w->wrong++;
    return NULL;
}
/* The counters have every push that was used, once. */
static void world_check(world *w, worker *last)
{
    if (!last || last->dead) return;
    dt_ps_stats st;
    for (int i = 0; i < 2; i++) last->item[i].push = NULL;
    if (dt_ps_wait(dt_ps_exchange_start(w->ps[last->rank], last->item, 2), &last->info) || dt_ps_get_stats(w->ps[last->rank], 0, &st)) {
        w->wrong++;
        printf("    the last pull: %s\n", dt_ps_error(w->ps[last->rank]));
        return;
    }
    int64_t sum = 0;
    for (int i = 0; i < w->nworkers; i++) {
        const worker *k = &w->worker[i];
        int64_t       n = last->count[i];
        sum += n;
        if (n < k->used || n > k->used + k->kept + (k->dead ? k->started - k->used - k->kept - k->lost : 0)) {
            if (w->wrong++ < 5)
                printf("    worker %d: %d pushes are in the values; %d used, %d kept, %d lost, %d started, dead %d\n", i, (int)n, (int)k->used, (int)k->kept,
                       (int)k->lost, (int)k->started, k->dead);
        }
    }
    if (sum != st.used || st.version != last->info.version) w->wrong++, printf("    %d pushes in the values, %d were used\n", (int)sum, (int)st.used);
}
static void world_free(world *w)
{
    for (int i = 0; i < w->nworkers + w->nservers; i++) /* a rank without a store ends */
        if (!w->ps[i] && dt_sim_comm(w->sim, i)) dt_sim_kill(w->sim, i, dt_sim_now(w->sim));
    double began = dt_sim_now(w->sim);
    for (int at = 0; at < w->nworkers + w->nservers; at++) { /* servers last: they wait for the workers */
        bool server = at >= w->nworkers;
        int  i = server ? w->nstart + at - w->nworkers : w->worker[at].rank;
        if (!server && w->worker[at].freed) continue;
        if (!dt_sim_comm(w->sim, i)) continue;
        int rc = w->ps[i] ? dt_ps_free(w->ps[i]) : 0;
        if (rc && !dt_comm_get_status(dt_sim_comm(w->sim, i)) && fail_at < 0) w->wrong++, printf("    rank %d: dt_ps_free: %s\n", i, dt_comm_error(NULL));
        dt_comm_error(dt_sim_comm(w->sim, i));
    }
    if (dt_sim_now(w->sim) - began > 10 && fail_at < 0) w->wrong++, printf("    the end took %g s\n", dt_sim_now(w->sim) - began); /* something timed out */
    for (int i = 0; i < w->nworkers; i++) free(w->worker[i].count), free(w->worker[i].one);
    dt_sim_free(w->sim);
    free(w->ps);
    free(w->worker);
}
static dt_ps_opts opts_of(int mode)
{
    dt_ps_opts o;
    memset(&o, 0, sizeof o);
    o.mode = mode;
    o.k = 3;
    o.staleness = 4;
    o.big = 3;
    return o;
}
static float distance(const worker *k)
{
    float d = 0;
    for (int i = 0; i < DIM; i++) d += (k->weight[i] - truth(i)) * (k->weight[i] - truth(i));
    return d;
}
UTEST(virtual_time, all_disciplines_converge_and_a_seed_repeats)
{
    for (int mode = 0; mode < 2 * DT_PS_MODES; mode++) {
        uint64_t hash[2];
        world_measures = mode >= DT_PS_MODES;
        for (int again = 0; again < 2; again++) {
            world w;
            ASSERT_TRUE(world_new(&w, 8, world_measures ? 3 : 2, opts_of(mode % DT_PS_MODES), 77 + (uint64_t)mode, false));
            w.updates = world_measures ? 60 : 500;
            worker *last = world_run(&w, 100);
            world_check(&w, last);
            hash[again] = dt_sim_hash(w.sim, NULL);
            if (last && !world_measures && distance(last) > 0.01f) w.wrong++, printf("    mode %d: distance %g\n", mode, (double)distance(last));
            world_free(&w);
            EXPECT_EQ(0, w.wrong);
        }
        EXPECT_TRUE(hash[0] == hash[1]);
    }
    world_measures = false;
}
UTEST(virtual_time, a_thousand_workers)
{
    for (int i = 0; i < 2; i++) {
        world w;
        ASSERT_TRUE(world_new(&w, dt_test_quick() ? 60 : 1000, 4, opts_of(i ? DT_PS_K_ASYNC : DT_PS_ASYNC), 5, false));
        w.updates = dt_test_quick() ? 500 : 4000;
        worker *last = world_run(&w, 100);
        EXPECT_TRUE(last != NULL);
        world_check(&w, last);
        world_free(&w);
        EXPECT_EQ(0, w.wrong);
    }
}
/* Some workers die, at times from the seed: those who live come to their end, and the counters are right. */
UTEST(virtual_time, workers_die)
{
    for (int seed = 0; seed < (dt_test_quick() ? 24 : 200); seed++) {
        world    w;
        uint64_t random = (uint64_t)seed;
        int      mode = seed % DT_PS_MODES;
        world_measures = seed / DT_PS_MODES % 2;
        ASSERT_TRUE(world_new(&w, 8, 2, opts_of(mode), 1000 + (uint64_t)seed, true));
        w.updates = 150;
        int dead = 1 + (int)(dt_test_random(&random) % 5), gone = 0;
        for (int i = 0; i < dead; i++) {
            int victim = 1 + (int)(dt_test_random(&random) % 7);
            if (gone >> victim & 1) continue;
            gone |= 1 << victim;
            dt_sim_kill(w.sim, victim, dt_sim_now(w.sim) + 1e-4 * (double)(dt_test_random(&random) % 5000));
        }
        worker *last = world_run(&w, 100);
        if (!last) w.wrong++;
        world_check(&w, last);
        world_free(&w);
        if (w.wrong) printf("    seed %d, mode %d\n", seed, mode);
        ASSERT_EQ(0, w.wrong);
    }
    world_measures = false;
}
/* A server dies, also between the two steps of an update: everybody hears of it, and nobody waits for ever. */
UTEST(virtual_time, a_server_dies)
{
    for (int seed = 0; seed < (dt_test_quick() ? 32 : 300); seed++) {
        world    w;
        uint64_t random = (uint64_t)seed;
        world_measures = seed / DT_PS_MODES % 2;
        ASSERT_TRUE(world_new(&w, 4, 3, opts_of(seed % DT_PS_MODES), 7000 + (uint64_t)seed, true));
        w.updates = 1000000;
        double began = dt_sim_now(w.sim);
        dt_sim_kill(w.sim, 4 + (int)(dt_test_random(&random) % 3), began + 1e-5 * (double)(dt_test_random(&random) % 30000));
        worker *last = world_run(&w, 100);
        if (!last || !last->dead) w.wrong++; /* its call has failed */
        if (dt_sim_now(w.sim) - began > 20) w.wrong++, printf("    it took %g s\n", dt_sim_now(w.sim) - began);
        world_free(&w);
        if (w.wrong) printf("    seed %d\n", seed);
        ASSERT_EQ(0, w.wrong);
    }
    world_measures = false;
}
/* Workers join and die, at times from the seed; one of the names comes back with a higher incarnation: the counters are right. */
UTEST(virtual_time, workers_join)
{
    int64_t used = 0;
    for (int seed = 0; seed < (dt_test_quick() ? 32 : 300); seed++) {
        world    w;
        uint64_t random = (uint64_t)seed + 900;
        int      mode = seed % DT_PS_MODES;
        world_measures = seed / DT_PS_MODES % 2;
        ASSERT_TRUE(world_open(&w, 4, 2, 4, opts_of(mode), 5000 + (uint64_t)seed, true));
        w.updates = 120;
        ASSERT_EQ(0, dt_comm_accept(dt_sim_comm(w.sim, 0)));
        for (int i = 0; i < 4; i++)
            dt_sim_join(w.sim, dt_sim_now(w.sim) + 1e-4 * (double)(dt_test_random(&random) % 4000), i % 2 ? "comer" : NULL, 1 + i, joined, &w);
        for (int i = 0; i < 2; i++) dt_sim_kill(w.sim, i ? 6 : 1 + (int)(dt_test_random(&random) % 3), dt_sim_now(w.sim) + 1e-4 * (double)(dt_test_random(&random) % 6000));
        worker *last = world_run(&w, 100);
        if (!last) w.wrong++;
        world_check(&w, last);
        for (int i = 4; i < 8; i++) used += w.worker[i].used;
        world_free(&w);
        if (w.wrong) printf("    seed %d, mode %d\n", seed, mode);
        ASSERT_EQ(0, w.wrong);
    }
    world_measures = false;
    EXPECT_GT(used, 100);
}
/* Workers leave while others compute, are cancelled and wait: nobody waits for an answer of one that has left. */
UTEST(virtual_time, workers_leave)
{
    for (int seed = 0; seed < (dt_test_quick() ? 24 : 200); seed++) {
        world w;
        int   mode = seed % 3 ? DT_PS_K_SYNC : DT_PS_K_BATCH_SYNC;
        ASSERT_TRUE(world_new(&w, 8, 3, opts_of(mode), 3000 + (uint64_t)seed, false));
        w.updates = 20;
        worker *last = world_run(&w, 50);
        if (!last) w.wrong++;
        world_check(&w, last);
        world_free(&w);
        if (w.wrong) printf("    seed %d\n", seed);
        ASSERT_EQ(0, w.wrong);
    }
}
/* A push that was accepted counts, even if the coordinator hears that its worker has left before all servers say that they have it. */
UTEST(virtual_time, a_push_before_leaving_counts)
{
    enum { WORKERS = 5, SERVERS = 3, N = 200 };
    for (int seed = 0; seed < (dt_test_quick() ? 40 : 400); seed++) {
        dt_sim    *s = dt_sim_new(.world = WORKERS + SERVERS, .seed = (uint64_t)seed + 1, .timeout = 60);
        dt_ps     *ps[WORKERS + SERVERS];
        int64_t    one[N], out[N];
        dt_ps_opts o = opts_of(DT_PS_ASYNC);
        int        bad = 0;
        o.servers = SERVERS;
        if (seed % 2) o.big = N; /* then the coordinator has no part of it, mostly */
        for (int i = 0; i < N; i++) one[i] = 1, out[i] = 0;
        for (int i = 0; i < WORKERS + SERVERS; i++) ps[i] = dt_ps_new_with(dt_sim_comm(s, i), o);
        for (int i = 0; i < WORKERS; i++) bad += dt_ps_init(ps[i], 0, out, N, DT_COMM_I64, .rule = DT_PS_SUM, .group = 1 + seed % SERVERS) != 0;
        for (int i = 1; i < WORKERS; i++) bad += dt_ps_push(ps[i], 0, one, N, DT_COMM_I64) || dt_ps_free(ps[i]);
        dt_sim_run(s, dt_sim_now(s) + 1);
        bad += dt_ps_pull(ps[0], 0, out, N, DT_COMM_I64) || out[0] != WORKERS - 1 || out[N - 1] != WORKERS - 1;
        bad += dt_ps_free(ps[0]) != 0;
        for (int i = WORKERS; i < WORKERS + SERVERS; i++) bad += dt_ps_free(ps[i]) != 0;
        dt_sim_free(s);
        ASSERT_EQ(0, bad);
    }
}
/* One allocation fails, each of them in its turn: nobody waits for ever, and nothing is lost (AddressSanitizer sees that). */
UTEST(memory, each_allocation_fails_once)
{
    static const int modes[] = { DT_PS_ASYNC, DT_PS_SYNC, DT_PS_K_SYNC, DT_PS_SSP_CLOCK };
    for (int m = 0; m < 9; m++) {
        int64_t    reached = 0, step = dt_test_quick() ? 7 : 1;
        dt_ps_opts o = opts_of(m < 8 ? modes[m % 4] : (int)DT_PS_SYNC);
        o.replicas = m < 8 ? 1 + m / 4 : 1; /* 2: with copies of the servers */
        world_measures = m == 8;
        for (int64_t k = 0;; k += step) {
            world w;
            allocations = 0;
            fail_at = k;
            if (world_new(&w, 3, 2, o, 9, true)) {
                w.updates = 6;
                double  began = dt_sim_now(w.sim);
                worker *last = world_run(&w, 300);
                EXPECT_LT(dt_sim_now(w.sim) - began, 30.0); /* who cannot go on says so: nothing times out, after 60 s */
                fail_at = allocations <= k ? -1 : fail_at;
                if (fail_at < 0) world_check(&w, last);
                if (allocations > k) w.wrong = 0; /* a call may have failed */
            }
            world_free(&w);
            EXPECT_EQ(0, w.wrong);
            reached = k;
            if (allocations <= k) break; /* it was not reached */
        }
        fail_at = -1;
        EXPECT_GT(reached, 50);
    }
    world_measures = false;
}
