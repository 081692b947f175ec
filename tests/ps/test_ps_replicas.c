/* test_ps_replicas.c: copies of servers (.replicas = 2): a server or a worker dies before each of its messages, in virtual time and for real
   run: long, asan-later, -O1 */
#define DT_PS_IMPLEMENTATION
#define DT__WANT_INSIDE
#include "harness.h"
#include "dt_sim.h"
#include "dt_ps.h"
#include "teams.h"

#include <signal.h>
#include <sys/time.h>

UTEST_MAIN()

/* ---------------------------------------------------------------------------------------------------- a short training
   A group of four arrays, cut over all servers or on one of them, small enough for a request or messages of their own: weights with an update
   function that has a state; sums to which worker w adds 1000 to the power of w. */
enum { KEYS = 4, ROUNDS = 5, MOST_WORKERS = 3, LONG = 1500 };
static const int64_t lengths[KEYS] = { 400, 7, LONG, 130 }; /* of the keys 0, 1 (f32), 2, 3 (i64) */
typedef struct arrays {
    float      w[2][400], g[2][400];
    int64_t    sum[2][LONG], add[LONG];
    dt_ps_item item[KEYS];
    int        nworkers, worker;
} arrays;
static void arrays_fill(arrays *a, int worker)
{
    int64_t one = worker == 0 ? 1 : worker == 1 ? 1000 : 1000000;
    memset(a, 0, sizeof *a);
    a->worker = worker;
    for (int i = 0; i < LONG; i++) a->add[i] = one;
    for (int i = 0; i < 400; i++) a->w[0][i] = (float)i / 100, a->w[1][i] = 1;
    for (int k = 0; k < KEYS; k++) {
        a->item[k].key = k;
        a->item[k].dtype = k < 2 ? DT_COMM_F32 : DT_COMM_I64;
        a->item[k].n = lengths[k];
        a->item[k].push = k < 2 ? (const void *)a->g[k] : (const void *)a->add;
        a->item[k].pull = k < 2 ? (void *)a->w[k] : (void *)a->sum[k - 2];
    }
}
static void arrays_compute(arrays *a, int round) /* gradients that depend on the weights: an error would go on */
{
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lengths[k]; i++) a->g[k][i] = a->w[k][i] * 0.37f + (float)((i * 7 + a->worker * 3 + round) % 11) / 7 - 0.6f;
}
static bool arrays_init(dt_ps *ps, arrays *a)
{
    bool ok = true;
    for (int k = 0; k < KEYS && ok; k++)
        ok = !dt_ps_init(ps, k, a->item[k].pull, lengths[k], a->item[k].dtype, .rule = k < 2 ? DT_PS_UPDATE : DT_PS_SUM, .group = 3);
    return ok;
}
/* Pushes of worker w that are in the sums; -1: the elements differ, so that a server has other pushes than another. */
static int arrays_count(const arrays *a, int w)
{
    int64_t x = a->sum[0][0], d = w == 0 ? 1 : w == 1 ? 1000 : 1000000;
    for (int i = 0; i < LONG; i++)
        if (a->sum[0][i] != x || (i < 130 && a->sum[1][i] != x)) return -1;
    return (int)(x / d % 1000);
}
static uint64_t arrays_hash(const arrays *a)
{
    uint64_t h = 1469598103934665603u;
    for (int k = 0; k < KEYS; k++) {
        const unsigned char *p = (const unsigned char *)a->item[k].pull;
        for (int64_t i = 0; i < lengths[k] * (k < 2 ? 4 : 8); i++) h = (h ^ p[i]) * 1099511628211u;
    }
    return h;
}
static int momentum(const dt_ps_part *p, const float *grad, void *user)
{
    (void)user;
    for (int64_t i = 0; i < p->n; i++) {
        p->state[0][i] = 0.9f * p->state[0][i] + grad[i];
        ((float *)p->value)[i] -= 0.05f * p->state[0][i] + 0.001f * (float)p->version;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- virtual time */
typedef struct world world;
typedef struct worker {
    world  *w;
    arrays  a;
    int     rank, round, errors;
    int     used, kept, started; /* pushes by what became of them */
    bool    done, freed;    /* freed: also while it is in dt_ps_free */
    char    said[300];
} worker;
struct world {
    dt_sim *sim;
    dt_ps  *ps[16];
    worker  k[MOST_WORKERS];
    int     nworkers, nservers, rounds, mode;
    int     last;           /* who looks at the values in the end */
};
static bool dead(world *w, int rank) { return dt_comm_get_status(dt_sim_comm(w->sim, rank)) != 0; }
/* The last one goes on until the others have left: so nobody waits for it. With DT_PS_SYNC all have the same number of rounds. */
static bool alone(world *w)
{
    for (int i = 0; i < w->nworkers && w->mode != DT_PS_SYNC; i++)
        if (i != w->last && !w->k[i].freed && !dead(w, i)) return false;
    return true;
}
static void begin(dt_comm *c, void *user);
static void exchanged(void *user, int status, const dt_ps_info *info)
{
    worker *k = (worker *)user;
    world  *w = k->w;
    k->used += !status && info->verdict == DT_PS_USED;
    k->kept += !status && info->verdict == DT_PS_KEPT;
    if (status) {
        k->errors++;
        k->done = true;
        snprintf(k->said, sizeof k->said, "%s", dt_comm_error(NULL));
    } else if (++k->round >= w->rounds && (k->rank != w->last || alone(w))) k->done = true;
    else dt_sim_at(w->sim, k->rank, dt_sim_now(w->sim) + 1e-4, begin, k);
}
static void begin(dt_comm *c, void *user)
{
    worker *k = (worker *)user;
    (void)c;
    arrays_compute(&k->a, k->round);
    dt_ps_op *op = dt_ps_exchange_start(k->w->ps[k->rank], k->a.item, KEYS);
    k->started++;
    if (op) dt_ps_then(op, exchanged, k);
    else k->errors++, k->done = true, snprintf(k->said, sizeof k->said, "%s", dt_ps_error(k->w->ps[k->rank]));
}
static dt_ps_opts opts_of(int mode, int replicas)
{
    dt_ps_opts o;
    memset(&o, 0, sizeof o);
    o.mode = mode;
    o.k = 2;
    o.staleness = 2;
    o.big = 100;
    o.replicas = replicas;
    return o;
}
/* A run in which ranks die before a frame of theirs. Everything is wrong that any rank sees as wrong. */
typedef struct fate { int rank; int64_t before; } fate; /* before 0: it lives */
typedef struct outcome {
    int      wrong, errors;  /* errors: workers that are alive and had one; said: of one of them */
    bool     died;           /* the first fate has come */
    uint64_t hash;           /* of what the servers have in the end */
    bool     same;           /* the workers that are alive have the same values after their last round */
    char     said[300];
} outcome;
static void world_end(world *w, outcome *out)
{
    int    n = w->nworkers + w->nservers;
    double began = dt_sim_now(w->sim);
    for (int i = 0; i < w->nworkers; i++) {
        if (dead(w, i)) continue;
        out->errors += w->k[i].errors != 0;
        if (w->k[i].errors) snprintf(out->said, sizeof out->said, "%s", w->k[i].said);
    }
    for (int i = 0; i < n; i++) {
        if (!w->ps[i] || (i < w->nworkers && w->k[i].freed)) continue;
        int rc = dt_ps_free(w->ps[i]);
        if (rc && !dead(w, i) && !out->errors) out->wrong++, printf("    rank %d: dt_ps_free: %s\n", i, dt_comm_error(NULL));
    }
    if (dt_sim_now(w->sim) - began > 20) out->wrong++, printf("    the end took %g s\n", dt_sim_now(w->sim) - began); /* something timed out */
    for (int i = 0; i < n; i++) dt_comm_error(dt_sim_comm(w->sim, i));
    dt_sim_free(w->sim);
}
static bool world_new(world *w, int nworkers, int nservers, dt_ps_opts o, uint64_t seed)
{
    int n = nworkers + nservers;
    memset(w, 0, sizeof *w);
    o.servers = nservers;
    w->sim = dt_sim_new(.world = n, .seed = seed, .tolerant = true, .timeout = 60);
    w->nworkers = nworkers;
    w->nservers = nservers;
    w->rounds = ROUNDS;
    for (int i = 0; i < n; i++) {
        w->ps[i] = dt_ps_new_with(dt_sim_comm(w->sim, i), o);
        if (!w->ps[i]) printf("    rank %d: %s\n", i, dt_comm_error(NULL));
        if (!w->ps[i]) return false;
    }
    for (int i = nworkers; i < n; i++) dt_ps_on_update(w->ps[i], momentum, NULL, 1);
    for (int i = 0; i < nworkers; i++) {
        w->k[i].w = w;
        w->k[i].rank = i;
        arrays_fill(&w->k[i].a, i);
    }
    return true;
}
static void said(worker *x, const char *text)
{
    x->errors++;
    x->done = true;
    snprintf(x->said, sizeof x->said, "%s", text ? text : "?");
}
static outcome train(int nworkers, int nservers, dt_ps_opts o, uint64_t seed, fate f, fate g)
{
    world   w;
    outcome out;
    memset(&out, 0, sizeof out);
    if (!world_new(&w, nworkers, nservers, o, seed)) {
        out.wrong = 1;
        return out;
    }
    int last = w.last = f.before && f.rank == 0 ? 1 : 0;
    w.mode = o.mode;
    if (f.before) dt_sim_kill_before(w.sim, f.rank, f.before);
    if (g.before) dt_sim_kill_before(w.sim, g.rank, g.before);
    for (int i = 0; i < nworkers; i++) {
        worker *x = &w.k[i];
        if (!arrays_init(w.ps[i], &x->a)) said(x, dt_ps_error(w.ps[i]));
        else dt_sim_at(w.sim, i, dt_sim_now(w.sim) + 1e-4 * i, begin, x);
    }
    double end = dt_sim_now(w.sim) + 40; /* less than the timeout: nothing ends by it */
    for (bool all = false; !all && dt_sim_now(w.sim) < end;) {
        dt_sim_run(w.sim, dt_sim_now(w.sim) + 0.02);
        all = true;
        for (int i = 0; i < nworkers; i++) {
            worker *x = &w.k[i];
            bool    stop = x->done || dead(&w, i);
            if (i != last && !x->freed && stop) {
                x->freed = true;
                int rc = dt_ps_free(w.ps[i]);
                if (rc && !x->errors && !dead(&w, i)) out.wrong++, printf("    worker %d: %s\n", i, dt_comm_error(NULL));
            }
            all = all && (i == last ? stop : x->freed);
        }
    }
    for (int i = 0; i < nworkers; i++)
        if (!w.k[i].done && !dead(&w, i)) out.wrong++, printf("    worker %d hangs in round %d\n", i, w.k[i].round);
    worker *x = &w.k[last];
    out.same = true;
    for (int i = 0; i < nworkers; i++)
        if (!dead(&w, i) && !w.k[i].errors && arrays_hash(&w.k[i].a) != arrays_hash(&x->a)) out.same = false;
    if (!dead(&w, last) && !x->errors && x->done) { /* what the servers have in the end */
        for (int i = 0; i < KEYS; i++) x->a.item[i].push = NULL;
        if (dt_ps_wait(dt_ps_exchange_start(w.ps[last], x->a.item, KEYS), NULL) && !dead(&w, last)) said(x, dt_ps_error(w.ps[last]));
        out.hash = arrays_hash(&x->a);
        for (int i = 0; i < nworkers && !dead(&w, last) && !x->errors; i++) { /* each push is there once, or not at all, and on all servers */
            const worker *k = &w.k[i];
            int           n = arrays_count(&x->a, i), may = k->kept + (dead(&w, i) ? k->started - k->used - k->kept : 0);
            if (n < k->used || n > k->used + may)
                out.wrong++, printf("    worker %d: %d pushes are in the values; %d used, %d kept, %d started, dead %d\n", i, n, k->used, k->kept, k->started, dead(&w, i));
        }
    }
    out.died = f.before && dead(&w, f.rank);
    world_end(&w, &out);
    return out;
}
static fate at(int rank, int64_t before)
{
    fate f;
    f.rank = rank;
    f.before = before;
    return f;
}
static void quiet(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }

/* A server of a synchronous run dies before each frame that it would send: all workers come to the end, with the bits of a calm run. */
UTEST(virtual_time, a_server_dies_before_each_message)
{
    dt_set_log(quiet, NULL);
    for (int nservers = 2; nservers <= 3; nservers++) {
        outcome calm = train(3, nservers, opts_of(DT_PS_SYNC, 1), 5, at(0, 0), at(0, 0));
        ASSERT_EQ(0, calm.wrong + calm.errors);
        for (int victim = 3; victim < 3 + nservers; victim++) {
            int64_t step = dt_test_quick() ? 29 : 1, k = 1 + (dt_test_quick() ? victim : 0);
            for (bool died = true; died; k += step) {
                outcome o = train(3, nservers, opts_of(DT_PS_SYNC, 2), 5 + (uint64_t)k, at(victim, k), at(0, 0));
                died = o.died;
                if (o.errors) o.wrong++, printf("    %s\n", o.said);
                if (o.hash != calm.hash) o.wrong++, printf("    other bits than without the death\n");
                if (o.wrong) printf("    %d servers, rank %d died before frame %d\n", nservers, victim, (int)k);
                ASSERT_EQ(0, o.wrong);
            }
            ASSERT_GT(k, 300); /* so many frames there were */
        }
    }
    dt_set_log(NULL, NULL);
}
/* The same in the other disciplines, where the values depend on the order of messages: each push is used once, on all servers. */
UTEST(virtual_time, a_server_dies_in_all_disciplines)
{
    dt_set_log(quiet, NULL);
    for (int mode = DT_PS_SYNC + 1; mode < DT_PS_MODES; mode++)
        for (int victim = 3; victim < 6; victim++) {
            int64_t step = dt_test_quick() ? 97 : 3, k = 1 + victim % step;
            for (bool died = true; died; k += step) {
                outcome o = train(3, 3, opts_of(mode, 2), 50 + (uint64_t)k, at(victim, k), at(0, 0));
                died = o.died;
                if (o.errors) o.wrong++, printf("    %s\n", o.said);
                if (o.wrong) printf("    mode %d, rank %d died before frame %d\n", mode, victim, (int)k);
                ASSERT_EQ(0, o.wrong);
            }
        }
    dt_set_log(NULL, NULL);
}
/* A worker dies before each of its frames: the others come to the end with the same values, and its pushes are on all servers or on none. */
UTEST(virtual_time, a_worker_dies_before_each_message)
{
    static const int modes[] = { DT_PS_SYNC, DT_PS_ASYNC, DT_PS_K_ASYNC };
    dt_set_log(quiet, NULL);
    for (int m = 0; m < 3; m++)
        for (int victim = 0; victim < 3; victim++) {
            int64_t step = dt_test_quick() ? 31 : 1, k = 1 + victim % step;
            for (bool died = true; died; k += step) {
                outcome o = train(3, 2 + m % 2, opts_of(modes[m], 2), 70 + (uint64_t)k, at(victim, k), at(0, 0));
                died = o.died;
                bool early = victim == 0 && strstr(o.said, "worker 0 has gone before"); /* without it there are no values */
                if (o.errors && !early) o.wrong++, printf("    %s\n", o.said);
                if (m == 0 && !o.same) o.wrong++, printf("    workers have other values than others\n");
                if (o.wrong) printf("    mode %d, rank %d died before frame %d\n", modes[m], victim, (int)k);
                ASSERT_EQ(0, o.wrong);
            }
            ASSERT_GT(k, 100);
        }
    dt_set_log(NULL, NULL);
}
/* Two servers that are not neighbours die: the same bits. Neighbours: an error on all that names a server and its arrays, and nobody hangs. */
UTEST(virtual_time, two_servers_die)
{
    dt_set_log(quiet, NULL);
    outcome calm = train(3, 4, opts_of(DT_PS_SYNC, 1), 5, at(0, 0), at(0, 0));
    int     errors = 0, lost = 0;
    for (int i = 0; i < (dt_test_quick() ? 24 : 400); i++) {
        uint64_t random = (uint64_t)i + 1;
        bool     pair = i % 2;
        fate     f = at(3 + i / 2 % (pair ? 4 : 2), 1 + (int64_t)(dt_test_random(&random) % 450)), g = at(3 + (f.rank - 3 + (pair ? 1 : 2)) % 4, 0);
        g.before = 1 + (int64_t)(dt_test_random(&random) % 450);
        outcome o = train(3, 4, opts_of(DT_PS_SYNC, 2), 5 + (uint64_t)i, f, g);
        if (!pair && (o.errors || o.hash != calm.hash)) o.wrong++;
        if (pair && o.errors && !strstr(o.said, "start again from a checkpoint")) o.wrong++;
        if (pair && !o.errors && o.hash != calm.hash) o.wrong++; /* one of them came to its end */
        errors += pair && o.errors;
        lost += strstr(o.said, "and its copy") && strstr(o.said, "elements") && strstr(o.said, "server ");
        if (o.wrong) printf("    ranks %d and %d died before frames %d and %d: %s\n", f.rank, g.rank, (int)f.before, (int)g.before, o.said);
        ASSERT_EQ(0, o.wrong);
    }
    EXPECT_GT(errors, dt_test_quick() ? 3 : 100);
    EXPECT_GT(lost, errors / 2);
    dt_set_log(NULL, NULL);
}
/* A worker dies, and a server, one after the other or at the same time: what the server knew of the worker's death, its copy knows. */
UTEST(virtual_time, a_worker_and_a_server_die)
{
    dt_set_log(quiet, NULL);
    for (int i = 0; i < (dt_test_quick() ? 60 : 1500); i++) {
        static const int modes[] = { DT_PS_SYNC, DT_PS_ASYNC, DT_PS_K_ASYNC, DT_PS_SSP_CLOCK };
        uint64_t random = (uint64_t)i + 1;
        int      mode = modes[i % 4];
        fate     f = at(1 + i / 4 % 2, 1 + (int64_t)(dt_test_random(&random) % 150)), g = at(3 + i / 8 % 3, 1 + (int64_t)(dt_test_random(&random) % 500));
        outcome  o = train(3, 3, opts_of(mode, 2), 5 + (uint64_t)i, f, g);
        if (o.errors) o.wrong++, printf("    %s\n", o.said);
        if (mode == DT_PS_SYNC && !o.same) o.wrong++, printf("    workers have other values than others\n");
        if (o.wrong) printf("    mode %d: ranks %d and %d died before frames %d and %d\n", mode, f.rank, g.rank, (int)f.before, (int)g.before);
        ASSERT_EQ(0, o.wrong);
    }
    dt_set_log(NULL, NULL);
}
/* Several operations of a worker at once, pushes, pulls and both: after a death they are sent again in their order. */
enum { DEPTH = 6 };
static int pipeline(uint64_t seed, int victim, int64_t k, bool *died) /* how much was wrong */
{
    static int64_t into[MOST_WORKERS][LONG]; /* where pulls go */
    world    w;
    outcome  out;
    int      bad = 0;
    memset(&out, 0, sizeof out);
    if (!world_new(&w, 3, 3, opts_of(DT_PS_ASYNC, 2), seed)) return 1;
    dt_sim_kill_before(w.sim, victim, k);
    for (int i = 0; i < 3; i++) bad += !arrays_init(w.ps[i], &w.k[i].a);
    for (int round = 0; round < 2; round++) {
        dt_ps_op *op[MOST_WORKERS][DEPTH];
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < 3; i++) {
                dt_ps_item item[KEYS];
                for (int m = 0; m < KEYS; m++) {
                    item[m] = w.k[i].a.item[m];
                    if (d % 3 == 1) item[m].push = NULL;
                    item[m].pull = d % 3 == 2 ? NULL : (void *)into[i];
                }
                op[i][d] = dt_ps_exchange_start(w.ps[i], item, KEYS);
            }
        for (int i = 0; i < 3; i++)
            for (int d = 0; d < DEPTH; d++)
                if (!op[i][d] || dt_ps_wait(op[i][d], NULL)) bad++, printf("    worker %d, operation %d: %s\n", i, d, dt_ps_error(w.ps[i]));
    }
    dt_sim_run(w.sim, dt_sim_now(w.sim) + 1); /* a push is answered before it is used */
    arrays *a = &w.k[0].a;
    for (int m = 0; m < KEYS; m++) a->item[m].push = NULL;
    if (dt_ps_wait(dt_ps_exchange_start(w.ps[0], a->item, KEYS), NULL)) bad++;
    for (int i = 0; i < 3; i++) bad += arrays_count(a, i) != 2 * DEPTH * 2 / 3;
    *died = dead(&w, victim);
    for (int i = 0; i < 3; i++) {
        if (dt_ps_free(w.ps[i])) bad++, printf("    worker %d: dt_ps_free: %s\n", i, dt_comm_error(NULL));
        w.k[i].freed = true;
    }
    world_end(&w, &out);
    return bad + out.wrong;
}
UTEST(virtual_time, operations_at_once)
{
    dt_set_log(quiet, NULL);
    for (int victim = 3; victim < 6; victim++) {
        int64_t step = dt_test_quick() ? 41 : 1, k = 1 + victim % step;
        for (bool died = true; died; k += step) {
            int wrong = pipeline(7 + (uint64_t)k, victim, k, &died);
            if (wrong) printf("    rank %d died before frame %d\n", victim, (int)k);
            ASSERT_EQ(0, wrong);
        }
        ASSERT_GT(k, 150);
    }
    dt_set_log(NULL, NULL);
}
/* ---- rounds that all workers begin together, one after the other */
static int rounds(world *w, int from, int to)
{
    dt_ps_op *op[MOST_WORKERS];
    int       bad = 0;
    for (int r = from; r < to; r++) {
        for (int i = 0; i < w->nworkers; i++) {
            arrays_compute(&w->k[i].a, r);
            op[i] = dt_ps_exchange_start(w->ps[i], w->k[i].a.item, KEYS);
        }
        for (int i = 0; i < w->nworkers; i++)
            if (!op[i] || dt_ps_wait(op[i], NULL)) {
                bad++;
                if (!w->k[i].errors) said(&w->k[i], dt_ps_error(w->ps[i]));
            }
    }
    return bad;
}
/* A worker knows that a server has died while its call before has not ended yet: the next call waits for it. */
UTEST(virtual_time, a_call_waits_for_those_before_it)
{
    dt_set_log(quiet, NULL);
    for (int seed = 0; seed < 20; seed++) {
        world   w;
        outcome out;
        memset(&out, 0, sizeof out);
        ASSERT_TRUE(world_new(&w, 1, 2, opts_of(DT_PS_ASYNC, 2), 3 + (uint64_t)seed));
        ASSERT_TRUE(arrays_init(w.ps[0], &w.k[0].a));
        dt_ps_op *first = dt_ps_exchange_start(w.ps[0], w.k[0].a.item, KEYS);
        dt__ps_gone_away(w.ps[0], 0);
        dt_ps_op *second = dt_ps_exchange_start(w.ps[0], w.k[0].a.item, KEYS);
        dt_sim_kill(w.sim, 1, dt_sim_now(w.sim));
        EXPECT_EQ(0, dt_ps_wait(first, NULL));
        EXPECT_EQ(0, dt_ps_wait(second, NULL));
        EXPECT_EQ(2, arrays_count(&w.k[0].a, 0));
        EXPECT_EQ(0, dt_ps_free(w.ps[0]));
        w.k[0].freed = true;
        world_end(&w, &out);
        ASSERT_EQ(0, out.wrong);
    }
    dt_set_log(NULL, NULL);
}
/* Pushes with a codec and error feedback: they are sent again as they were. */
static uint64_t coded(int kind, uint64_t seed, int victim, int64_t k, int *wrong)
{
    world    w;
    outcome  out;
    uint64_t hash = 0;
    memset(&out, 0, sizeof out);
    if (!world_new(&w, 2, 3, opts_of(DT_PS_SYNC, 2), seed)) return 0;
    if (k) dt_sim_kill_before(w.sim, victim, k);
    for (int i = 0; i < 2; i++) {
        dt_codec codec;
        memset((void *)&codec, 0, sizeof codec);
        codec.kind = kind;
        codec.ratio = 0.2;
        *wrong += dt_ps_group(w.ps[i], 3, .mode = DT_PS_SYNC, .codec = codec) != 0;
        for (int m = 0; m < 2; m++)
            *wrong += dt_ps_init(w.ps[i], m, w.k[i].a.item[m].pull, lengths[m], DT_COMM_F32, .rule = DT_PS_UPDATE, .group = 3) != 0;
    }
    for (int r = 0; r < ROUNDS && !*wrong; r++) {
        dt_ps_op *op[2];
        for (int i = 0; i < 2; i++) {
            arrays_compute(&w.k[i].a, r);
            op[i] = dt_ps_exchange_start(w.ps[i], w.k[i].a.item, 2);
        }
        for (int i = 0; i < 2; i++) *wrong += !op[i] || dt_ps_wait(op[i], NULL);
    }
    for (int i = 0; i < 2; i++) {
        uint64_t h = arrays_hash(&w.k[i].a);
        if (i && h != hash) ++*wrong;
        hash = h;
        *wrong += dt_ps_free(w.ps[i]) != 0;
        w.k[i].freed = true;
    }
    world_end(&w, &out);
    *wrong += out.wrong;
    return hash;
}
UTEST(virtual_time, pushes_with_a_codec)
{
    static const int kinds[] = { DT_CODEC_TOPK, DT_CODEC_F16 };
    dt_set_log(quiet, NULL);
    for (int c = 0; c < 2; c++) {
        int      wrong = 0;
        uint64_t calm = coded(kinds[c], 3, 0, 0, &wrong);
        ASSERT_EQ(0, wrong);
        for (int64_t k = 1; k < 250; k += dt_test_quick() ? 23 : 1) {
            uint64_t hash = coded(kinds[c], 3 + (uint64_t)k, 2 + (int)(k % 3), k, &wrong);
            if (wrong || hash != calm) printf("    codec %d, rank %d died before frame %d\n", kinds[c], 2 + (int)(k % 3), (int)k);
            ASSERT_TRUE(!wrong && hash == calm);
        }
    }
    dt_set_log(NULL, NULL);
}
static double nothing_measured(const dt_ps_part *p, const float *grad, void *user)
{
    (void)p, (void)grad, (void)user;
    return 0;
}
UTEST(options, replicas_need_servers_and_a_tolerant_communicator)
{
    dt_sim    *s = dt_sim_new(.world = 3, .seed = 1), *t = dt_sim_new(.world = 3, .seed = 1, .tolerant = true);
    dt_ps_opts o = opts_of(DT_PS_SYNC, 2);
    o.servers = 2;
    EXPECT_TRUE(!dt_ps_new_with(dt_sim_comm(s, 0), o) && strstr(dt_comm_error(NULL), ".tolerant = true"));
    o.servers = 1;
    EXPECT_TRUE(!dt_ps_new_with(dt_sim_comm(t, 0), o) && strstr(dt_comm_error(NULL), "2 servers or more"));
    o.servers = 2;
    o.two_level = true;
    EXPECT_TRUE(!dt_ps_new_with(dt_sim_comm(t, 0), o) && strstr(dt_comm_error(NULL), "leave out one of them"));
    o.two_level = false;
    o.replicas = 3;
    EXPECT_TRUE(!dt_ps_new_with(dt_sim_comm(t, 0), o) && strstr(dt_comm_error(NULL), ".replicas must be 1"));
    o.replicas = -1;
    EXPECT_TRUE(!dt_ps_new_with(dt_sim_comm(t, 0), o) && strstr(dt_comm_error(NULL), ".replicas must be 1"));
    o.replicas = 2;
    dt_sim *r = dt_sim_new(.world = 3, .seed = 1, .tolerant = true, .room = 5);
    EXPECT_TRUE(!dt_ps_new_with(dt_sim_comm(r, 0), o) && strstr(dt_comm_error(NULL), "without .room"));
    dt_ps *ps = dt_ps_new_with(dt_sim_comm(t, 1), o);
    EXPECT_TRUE(ps && dt_ps_on_measure(ps, nothing_measured, NULL) && strstr(dt_ps_error(ps), "not possible with .replicas = 2"));
    dt_comm_abort(dt_sim_comm(t, 1), "the end of the test");
    dt_ps_free(ps);
    dt_sim_free(r);
    dt_sim_free(s);
    dt_sim_free(t);
}
UTEST(options, ranks_that_do_not_agree)
{
    for (int other = 0; other < 2; other++) { /* the worker, the servers have copies */
        dt_sim *t = dt_sim_new(.world = 3, .seed = 1, .tolerant = true);
        dt_ps  *ps[3];
        float   x = 1;
        for (int i = 0; i < 3; i++) {
            dt_ps_opts o = opts_of(DT_PS_SYNC, (i == 0) == (other == 0) ? 2 : 1);
            o.servers = 2;
            ps[i] = dt_ps_new_with(dt_sim_comm(t, i), o);
        }
        EXPECT_TRUE(dt_ps_init(ps[0], 0, &x, 1, DT_COMM_F32) == DT_COMM_ERR_REMOTE && strstr(dt_ps_error(ps[0]), ".replicas"));
        for (int i = 0; i < 3; i++) EXPECT_EQ(0, dt_ps_free(ps[i]));
        dt_sim_free(t);
    }
}
UTEST(options, the_statistics_say_how_many_hold_an_array)
{
    world       w;
    outcome     out;
    dt_ps_stats st;
    dt_set_log(quiet, NULL);
    memset(&out, 0, sizeof out);
    ASSERT_TRUE(world_new(&w, 2, 3, opts_of(DT_PS_SYNC, 2), 3));
    for (int i = 0; i < 2; i++) ASSERT_TRUE(arrays_init(w.ps[i], &w.k[i].a));
    EXPECT_EQ(0, rounds(&w, 0, 2));
    EXPECT_TRUE(!dt_ps_get_stats(w.ps[1], 0, &st) && st.replicas == 2 && st.version == 2);
    dt_sim_kill(w.sim, 3, dt_sim_now(w.sim));
    EXPECT_EQ(0, rounds(&w, 2, 4));
    EXPECT_TRUE(!dt_ps_get_stats(w.ps[0], 0, &st) && st.replicas == 1 && st.version == 4 && st.used == 8);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(0, dt_ps_free(w.ps[i]));
        w.k[i].freed = true;
    }
    world_end(&w, &out);
    EXPECT_EQ(0, out.wrong);
    dt_set_log(NULL, NULL);
}
/* Without replicas: the error of all names the server and its part of the arrays, and comes long before the timeout; a run from the
   checkpoint ends with the bits of a run without the death. With replicas: a second death of the pair, the same. */
UTEST(checkpoint, a_run_begins_again_after_an_error)
{
    static float   value[2][400], state[2][400];
    static int64_t sum[2][LONG];
    dt_set_log(quiet, NULL);
    for (int replicas = 1; replicas <= 2; replicas++) {
        outcome calm = train(3, 3, opts_of(DT_PS_SYNC, 1), 5, at(0, 0), at(0, 0)), out;
        world   w;
        int64_t cursor[16], n = 0;
        memset(&out, 0, sizeof out);
        ASSERT_TRUE(world_new(&w, 3, 3, opts_of(DT_PS_SYNC, replicas), 3));
        for (int i = 0; i < 3; i++) ASSERT_TRUE(arrays_init(w.ps[i], &w.k[i].a));
        EXPECT_EQ(0, rounds(&w, 0, 2));
        for (int k = 0; k < 2; k++) {
            EXPECT_EQ(0, dt_ps_get_state(w.ps[1], k, DT_PS_VALUE, value[k]));
            EXPECT_EQ(0, dt_ps_get_state(w.ps[1], k, 0, state[k]));
            EXPECT_EQ(0, dt_ps_get_state(w.ps[1], k + 2, DT_PS_VALUE, sum[k]));
        }
        EXPECT_EQ(0, dt_ps_get_cursor(w.ps[1], 0, cursor, 16, &n));
        EXPECT_EQ(0, rounds(&w, 2, 3));
        for (int r = 0; r < replicas; r++) dt_sim_kill(w.sim, 4 + r, dt_sim_now(w.sim));
        double began = dt_sim_now(w.sim);
        EXPECT_EQ(3, rounds(&w, 3, 4));
        EXPECT_LT(dt_sim_now(w.sim) - began, 20.0);
        for (int i = 0; i < 3; i++) { /* of key 0 elements 192 to 319 are on server 1 */
            const char *text = w.k[i].said;
            EXPECT_TRUE(strstr(text, "server 1 (rank 4)") && strstr(text, "key 0 (elements ") && strstr(text, "start again from a checkpoint"));
            if (replicas == 2) EXPECT_TRUE(strstr(text, "and its copy (rank 5)") != NULL);
        }
        EXPECT_EQ(3, rounds(&w, 4, 5)); /* and again */
        world_end(&w, &out);
        EXPECT_EQ(0, out.wrong);
        ASSERT_TRUE(world_new(&w, 3, 3, opts_of(DT_PS_SYNC, replicas), 4));
        for (int i = 0; i < 3; i++) ASSERT_TRUE(arrays_init(w.ps[i], &w.k[i].a));
        for (int k = 0; k < 2; k++) {
            EXPECT_EQ(0, dt_ps_set_state(w.ps[0], k, DT_PS_VALUE, value[k]));
            EXPECT_EQ(0, dt_ps_set_state(w.ps[0], k, 0, state[k]));
            EXPECT_EQ(0, dt_ps_set_state(w.ps[0], k + 2, DT_PS_VALUE, sum[k]));
        }
        EXPECT_EQ(0, dt_ps_set_cursor(w.ps[0], 0, cursor, n));
        if (replicas == 2) dt_sim_kill(w.sim, 3, dt_sim_now(w.sim)); /* what was set is in the copy, too */
        for (int i = 0; i < 3; i++) {
            for (int k = 0; k < KEYS; k++) w.k[i].a.item[k].push = NULL;
            EXPECT_EQ(0, dt_ps_wait(dt_ps_exchange_start(w.ps[i], w.k[i].a.item, KEYS), NULL));
            for (int k = 0; k < KEYS; k++) w.k[i].a.item[k].push = k < 2 ? (const void *)w.k[i].a.g[k] : (const void *)w.k[i].a.add;
        }
        EXPECT_EQ(0, rounds(&w, 2, ROUNDS));
        EXPECT_TRUE(arrays_hash(&w.k[0].a) == calm.hash);
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(0, dt_ps_free(w.ps[i]));
            w.k[i].freed = true;
        }
        memset(&out, 0, sizeof out);
        world_end(&w, &out);
        EXPECT_EQ(0, out.wrong);
    }
    dt_set_log(NULL, NULL);
}

/* ---------------------------------------------------------------------------------------------------- processes that are killed
   Ranks train with barriers in between; one of them is killed at a random time, from its first call to its last. */
typedef struct hall { uint64_t hash[8]; int64_t ns; bool end[8]; int count[8]; } hall; /* seen by all */
static hall      *seen;
static int        doomed; /* this rank dies after so many microseconds */
static int64_t    doom_us;
static dt_ps_opts real_opts;
static void killed(int sig) { (void)sig, kill(getpid(), SIGKILL); }
static void doom(void)
{
    struct itimerval it;
    memset(&it, 0, sizeof it);
    it.it_value.tv_sec = doom_us / 1000000;
    it.it_value.tv_usec = doom_us % 1000000;
    signal(SIGALRM, killed);
    setitimer(ITIMER_REAL, &it, NULL);
}
static void trained(team *t, dt_comm *c, int rank)
{
    arrays  a;
    int64_t began = dt_test_ns();
    dt_ps  *ps = dt_ps_new_with(c, real_opts);
    team_check(t, ps != NULL, "dt_ps_new", __LINE__, rank, c);
    if (!ps) return;
    int number = dt_ps_worker(ps), rc = 0;
    if (dt_ps_server(ps) >= 0) team_check(t, !dt_ps_on_update(ps, momentum, NULL, 1), "dt_ps_on_update", __LINE__, rank, c);
    if (rank == doomed && rank) doom();
    if (number >= 0) {
        arrays_fill(&a, number);
        bool ok = arrays_init(ps, &a);
        if (rank == doomed && !rank) doom(); /* without worker 0 there would be no values */
        for (int r = 0; r < 40 && ok && !rc; r++) {
            arrays_compute(&a, r);
            rc = dt_ps_wait(dt_ps_exchange_start(ps, a.item, KEYS), NULL);
            if (!rc && r % 5 == 4) rc = dt_ps_barrier(ps);
        }
        seen->end[rank] = ok && !rc;
        if (!seen->end[rank]) printf("    rank %d: %s\n", rank, dt_ps_error(ps) ? dt_ps_error(ps) : "?");
        seen->hash[rank] = arrays_hash(&a);
        for (int i = 0; i < 3 && seen->end[rank]; i++) team_check(t, arrays_count(&a, i) >= 0, "the servers have the same pushes", __LINE__, rank, c);
    }
    rc = dt_ps_free(ps);
    team_check(t, !rc, "dt_ps_free", __LINE__, rank, c);
    if (rank == 0) seen->ns = dt_test_ns() - began;
    dt_comm_error(c);
    dt_comm_free(c);
}
static int real_run(const char *how, int n, int servers, int victim, int64_t us)
{
    team t = team_of(how, n, 30, trained);
    t.o.tolerant = true;
    memset(seen, 0, sizeof *seen);
    real_opts = opts_of(DT_PS_SYNC, 2);
    real_opts.servers = servers;
    doomed = victim;
    doom_us = us;
    return team_run(&t);
}
UTEST(processes, are_killed_at_random_times)
{
    static const char *const hows[] = { "shm", "tcp" };
    static const struct { int n, servers; } worlds[] = { { 5, 2 }, { 6, 3 }, { 3, 0 } }; /* the last: each is a worker and a server */
    uint64_t random = 11;
    seen = (hall *)mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    dt_set_log(quiet, NULL);
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < 3; m++) {
            const char *how = hows[i];
            int         n = worlds[m].n, servers = worlds[m].servers;
            ASSERT_EQ(0, real_run(how, n, servers, -1, 0));
            uint64_t calm = seen->hash[0];
            int64_t  ns = seen->ns;
            for (int k = 0; k < (dt_test_quick() ? 1 : 9); k++) {
                int     victim = m == 2 ? k % 3 : k % 4 == 3 ? 1 + k / 4 : n - servers + k % servers;
                bool    server = servers && victim >= n - servers;
                int64_t us = 1 + (int64_t)(dt_test_random(&random) % (uint64_t)(ns / 1000 + 1));
                int     wrong = real_run(how, n, servers, victim, us);
                for (int r = 0; r < (servers ? n - servers : n); r++) {
                    if (r == victim) continue;
                    if (!seen->end[r]) wrong++, printf("    rank %d did not come to its end\n", r);
                    else if (seen->hash[r] != (server ? calm : seen->hash[victim ? 0 : 1])) wrong++, printf("    rank %d has other bits\n", r);
                }
                if (wrong) printf("    %s, %d ranks, %d servers: rank %d was killed after %d us of %d\n", how, n, servers, victim, (int)us, (int)(ns / 1000));
                ASSERT_EQ(0, wrong);
            }
        }
    munmap(seen, sizeof *seen);
    dt_set_log(NULL, NULL);
}
