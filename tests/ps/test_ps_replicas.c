/* test_ps_replicas.c: copies of servers (.replicas = 2): a server or a worker dies before each of its messages, in virtual time and for real
   run: long, -O1 */
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
    bool    done, freed;
    double  began;
    char    said[300];
} worker;
struct world {
    dt_sim *sim;
    dt_ps  *ps[16];
    worker  k[MOST_WORKERS];
    int     nworkers, nservers, wrong, rounds;
};
static void begin(dt_comm *c, void *user);
static void exchanged(void *user, int status, const dt_ps_info *info)
{
    worker *k = (worker *)user;
    world  *w = k->w;
    (void)info;
    if (status) {
        k->errors++;
        k->done = true;
        snprintf(k->said, sizeof k->said, "%s", dt_comm_error(NULL));
    } else if (++k->round == w->rounds) k->done = true;
    else dt_sim_at(w->sim, k->rank, dt_sim_now(w->sim) + 1e-4, begin, k);
}
static void begin(dt_comm *c, void *user)
{
    worker *k = (worker *)user;
    (void)c;
    arrays_compute(&k->a, k->round);
    dt_ps_op *op = dt_ps_exchange_start(k->w->ps[k->rank], k->a.item, KEYS);
    if (op) dt_ps_then(op, exchanged, k);
    else k->errors++, k->done = true, snprintf(k->said, sizeof k->said, "%s", dt_ps_error(k->w->ps[k->rank]));
}
static bool dead(world *w, int rank) { return dt_comm_get_status(dt_sim_comm(w->sim, rank)) != 0; }
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
/* A run in which a rank dies before frame k of it; k 0: nobody. true: it has died. Everything is wrong that any rank sees as wrong. */
typedef struct outcome { bool died; int wrong; uint64_t hash; int64_t frames; int used[MOST_WORKERS]; bool lost[MOST_WORKERS]; char said[300]; int errors; } outcome;
static outcome train(int nworkers, int nservers, dt_ps_opts o, uint64_t seed, int victim, int64_t k, int victim2, int64_t k2)
{
    world   w;
    outcome out;
    int     n = nworkers + nservers;
    memset(&w, 0, sizeof w);
    memset(&out, 0, sizeof out);
    o.servers = nservers;
    w.sim = dt_sim_new(.world = n, .seed = seed, .tolerant = true, .timeout = 60);
    w.nworkers = nworkers;
    w.nservers = nservers;
    w.rounds = ROUNDS;
    for (int i = 0; i < n; i++) {
        w.ps[i] = dt_ps_new_with(dt_sim_comm(w.sim, i), o);
        if (!w.ps[i]) {
            printf("    rank %d: %s\n", i, dt_comm_error(NULL));
            out.wrong = 1;
            return out;
        }
    }
    if (k) dt_sim_kill_before(w.sim, victim, k);
    if (k2) dt_sim_kill_before(w.sim, victim2, k2);
    for (int i = nworkers; i < n; i++) dt_ps_on_update(w.ps[i], momentum, NULL, 1);
    for (int i = 0; i < nworkers; i++) {
        worker *x = &w.k[i];
        x->w = &w;
        x->rank = i;
        arrays_fill(&x->a, i);
        x->began = dt_sim_now(w.sim);
        if (!arrays_init(w.ps[i], &x->a)) x->errors++, x->done = true, snprintf(x->said, sizeof x->said, "%s", dt_ps_error(w.ps[i]));
        else dt_sim_at(w.sim, i, dt_sim_now(w.sim) + 1e-4 * i, begin, x);
    }
    double end = dt_sim_now(w.sim) + 40; /* less than the timeout: nothing ends by it */
    for (bool all = false; !all && dt_sim_now(w.sim) < end;) {
        dt_sim_run(w.sim, dt_sim_now(w.sim) + 0.02);
        all = true;
        for (int i = 1; i < nworkers; i++) {
            worker *x = &w.k[i];
            if (!x->freed && (x->done || dead(&w, i))) {
                int rc = dt_ps_free(w.ps[i]);
                if (rc && !x->errors && !dead(&w, i)) out.wrong++, printf("    worker %d: %s\n", i, dt_comm_error(NULL));
                x->freed = true;
            }
            all = all && x->freed;
        }
        all = all && (w.k[0].done || dead(&w, 0));
    }
    for (int i = 0; i < nworkers; i++)
        if (!w.k[i].done && !dead(&w, i)) out.wrong++, printf("    worker %d hangs in round %d\n", i, w.k[i].round);
    worker *x = &w.k[0];
    if (!dead(&w, 0) && !x->errors && x->done) { /* what the servers have in the end */
        for (int i = 0; i < KEYS; i++) x->a.item[i].push = NULL;
        if (dt_ps_wait(dt_ps_exchange_start(w.ps[0], x->a.item, KEYS), NULL) && !dead(&w, 0)) out.wrong++, printf("    the last pull: %s\n", dt_ps_error(w.ps[0]));
        out.hash = arrays_hash(&x->a);
        for (int i = 0; i < nworkers; i++) out.used[i] = arrays_count(&x->a, i);
    }
    for (int i = 0; i < nworkers; i++) {
        out.lost[i] = dead(&w, i);
        out.errors += w.k[i].errors && !dead(&w, i);
        if (w.k[i].errors && !dead(&w, i)) snprintf(out.said, sizeof out.said, "%.290s", w.k[i].said);
    }
    double began = dt_sim_now(w.sim);
    for (int i = 0; i < n; i++) {
        if (i < nworkers && w.k[i].freed) continue;
        int rc = dt_ps_free(w.ps[i]);
        if (rc && !dead(&w, i) && !out.errors) out.wrong++, printf("    rank %d: dt_ps_free: %s\n", i, dt_comm_error(NULL));
        dt_comm_error(dt_sim_comm(w.sim, i));
    }
    if (dt_sim_now(w.sim) - began > 20) out.wrong++, printf("    the end took %g s\n", dt_sim_now(w.sim) - began);
    out.died = k && dead(&w, victim);
    out.frames = dt_sim_frames(w.sim, victim);
    for (int i = 0; i < n; i++) dt_comm_error(dt_sim_comm(w.sim, i));
    dt_sim_free(w.sim);
    return out;
}
static void quiet(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }

/* A server of a synchronous run dies before each frame that it would send: all workers come to the end, with the bits of a calm run. */
UTEST(virtual_time, a_server_dies_before_each_message)
{
    dt_set_log(quiet, NULL);
    for (int nservers = 2; nservers <= 3; nservers++) {
        outcome calm = train(3, nservers, opts_of(DT_PS_SYNC, 1), 5, 0, 0, 0, 0);
        ASSERT_EQ(0, calm.wrong + calm.errors);
        for (int victim = 3; victim < 3 + nservers; victim++) {
            int64_t step = dt_test_quick() ? 29 : 1, k = 1 + (dt_test_quick() ? victim : 0);
            for (bool died = true; died; k += step) {
                outcome o = train(3, nservers, opts_of(DT_PS_SYNC, 2), 5 + (uint64_t)k, victim, k, 0, 0);
                died = o.died;
                if (o.errors) o.wrong++, printf("    %s\n", o.said);
                if (o.hash != calm.hash) o.wrong++, printf("    other bits than without the death; %d %d %d\n", o.used[0], o.used[1], o.used[2]);
                if (o.wrong) printf("    %d servers, rank %d died before frame %d\n", nservers, victim, (int)k);
                ASSERT_EQ(0, o.wrong);
            }
            if (getenv("DT_TEST_TIMES")) printf("    %d servers, rank %d: %d frames\n", nservers, victim, (int)k);
            ASSERT_GT(k, 100);
        }
    }
}
