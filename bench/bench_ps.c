/* Measures the parameter server, beside the bounds that the library itself gives and beside MXNet's kvstore: make bench-ps

       bench_ps [--parts keys,model,straggler,step] [--transports shm,tcp] [--rounds N] [--sizes BYTES] [--nets convnet,resnet20,mlp]
                [--python PATH]

   keys        1,000 arrays of 4 KiB, one worker, one server of its own, DT_PS_ASYNC, DT_PS_SUM. The worker pushes and pulls one
               array after the other, 64 requests are outstanding. Beside: the same bytes there and back with dt_comm_call, 64
               outstanding, and a handler that only answers. This is the bound. Target: 100,000 push-pulls/s in shared memory.
   model       an f32 array of --sizes bytes (64 MiB) in dt_comm_alloc memory, two ranks that are workers and servers, DT_PS_SYNC,
               DT_PS_ASSIGN: push and pull into the same memory, and into other memory. Beside: dt_comm_allreduce of the same
               bytes. Target: 0.60 of it.
   straggler   four workers and one server. The computation of a batch is a wait of 10 ms, of one worker 40 ms, in slices of 1 ms:
               after each the worker asks dt_ps_cancelled, as a trainer does between layers. Gradients that became part of an
               update, a second, for six disciplines. Target: twice those of DT_PS_SYNC for K-batch-sync and async.

   MXNet 1.9.1 (ps-lite) does the work of keys and model in the same turns: dist_sync without an optimiser, where an array becomes
   the sum of its pushes; bench/peer_ps.py. With Unix sockets and with TCP, and with keys in windows of 64 and in one call for all;
   the best of them counts. Ratio: more than 1 means that dt is faster. Sides, turns and medians: turns.h.

   step        a training step of a conv net (batch 100 on each rank) and of ResNet-20 (128), two ranks with one thread each, which
               are workers and servers, DT_PS_SYNC: dt_ps_attach. Beside: dt_ddp_new, in the same processes, in turns of about half
               a second. First the losses of five steps must be the same. Target: 0.80, a step of at most 1.25 times DDP's. */
#define DT__WANT_INSIDE
#include "dt_serve.h"
#include "nets.h"

#include <arpa/inet.h>
#include <sys/mman.h>

#define THE_BENCH "bench_ps"
#include "allreduce.h"
#include "turns.h"

/* ---- dt's ranks: those of the workers follow the protocol of rank_side.h */
enum { KEYS = 1000, KEY_BYTES = 4096, WINDOW = 64, PASSES = 5, ECHO_TAG = 5 }; /* a call of "keys" passes five times over all keys */
typedef enum ours_use { KEYS_EXCHANGE, KEYS_ECHO, MODEL_IN_PLACE, MODEL_APART, MODEL_ALLREDUCE, USES } ours_use;
static const char *const use_name[USES] = { "exchange", "echo", "in-place", "apart", "allreduce" };
typedef struct ours {
    dt_comm *c;
    dt_ps   *ps;
    ours_use use;
    int      first, nkeys; /* the present keys */
    size_t   nbytes;       /* of an array */
    float   *push, *pull;  /* nkeys arrays */
    int64_t  passes;       /* over the present keys so far */
} ours;

static int our_error(const ours *o)
{
    const char *why = o->ps ? dt_ps_error(o->ps) : NULL;
    if (!why) why = o->c ? dt_comm_error(o->c) : NULL;
    if (!why) why = dt_comm_error(NULL);
    fprintf(stderr, "bench_ps: %s\n", why ? why : "an unknown error");
    return 1;
}
static int our_use(rank_side *s, const char *word)
{
    ours *o = (ours *)s->self;
    for (int i = 0; i < USES; i++)
        if (!strcmp(word, use_name[i]) && (i <= KEYS_ECHO) == (o->nkeys == KEYS)) return o->use = (ours_use)i, 0;
    return -1;
}
static float *our_buffer(rank_side *s, size_t nbytes)
{
    ours  *o = (ours *)s->self;
    size_t all = nbytes * (size_t)o->nkeys;
    if (nbytes == o->nbytes) return o->push;
    dt_comm_dealloc(o->c, o->push);
    dt_comm_dealloc(o->c, o->pull);
    o->push = (float *)dt_comm_alloc(o->c, all);
    o->pull = (float *)dt_comm_alloc(o->c, all);
    o->first += o->nbytes ? o->nkeys : 0; /* another size: other keys */
    o->nbytes = o->push && o->pull ? nbytes : 0;
    o->passes = 0;
    if (!o->nbytes) return NULL;
    memset(o->pull, 0, all);
    memset(o->push, 0, all);
    for (int k = 0; k < o->nkeys; k++)
        if (dt_ps_init(o->ps, o->first + k, o->pull, (int64_t)(nbytes / sizeof(float)), DT_COMM_F32,
                       .rule = o->nkeys == KEYS ? DT_PS_SUM : DT_PS_ASSIGN))
            return our_error(o), (float *)NULL;
    return o->push;
}
static void echo(dt_request *q) { dt_request_reply(q, q->data, q->n); }
static int  echo_call(ours *o)
{
    dt_work *w[WINDOW] = { 0 };
    int      total = PASSES * KEYS, bad = 0;
    for (int i = 0; i < total + WINDOW && !bad; i++) {
        size_t at = (size_t)(i % KEYS) * o->nbytes;
        if (w[i % WINDOW]) bad = dt_work_wait(w[i % WINDOW]);
        w[i % WINDOW] = i < total && !bad ? dt_comm_call_start(o->c, 1, ECHO_TAG, (char *)o->push + at, (int64_t)o->nbytes,
                                                               (char *)o->pull + at, (int64_t)o->nbytes) : NULL;
        bad = bad || (i < total && !w[i % WINDOW]);
    }
    return bad ? our_error(o) : 0;
}
static int keys_call(ours *o)
{
    dt_ps_op *op[WINDOW] = { 0 };
    int       total = PASSES * KEYS, bad = 0;
    for (int i = 0; i < total + WINDOW && !bad; i++) {
        int64_t    n = (int64_t)(o->nbytes / sizeof(float));
        int        k = i % KEYS;
        dt_ps_item item = { o->first + k, DT_COMM_F32, n, o->push + k * n, o->pull + k * n };
        if (op[i % WINDOW]) bad = dt_ps_wait(op[i % WINDOW], NULL);
        op[i % WINDOW] = i < total && !bad ? dt_ps_exchange_start(o->ps, &item, 1) : NULL;
        bad = bad || (i < total && !op[i % WINDOW]);
    }
    o->passes += PASSES;
    return bad ? our_error(o) : 0;
}
static int our_call(rank_side *s, float *x, size_t n)
{
    ours *o = (ours *)s->self;
    int   bad = 0;
    switch (o->use) {
    case KEYS_EXCHANGE: return keys_call(o);
    case KEYS_ECHO: return echo_call(o);
    case MODEL_IN_PLACE: bad = dt_ps_push_pull(o->ps, o->first, x, x, (int64_t)n, DT_COMM_F32); break;
    case MODEL_APART: bad = dt_ps_push_pull(o->ps, o->first, x, o->pull, (int64_t)n, DT_COMM_F32); break;
    case MODEL_ALLREDUCE: bad = dt_comm_allreduce(o->c, x, (int64_t)n, DT_COMM_F32, DT_COMM_SUM); break;
    case USES: return -1;
    }
    return bad ? our_error(o) : 0;
}
/* keys: the pushes are always the same, so the values are their multiples; the sums stay below 2^24 and are exact. */
static float key_number(int k, size_t i) { return (float)(1 + (k + (int)i) % 7); }
static int   keys_check(rank_side *s, float *x, size_t n)
{
    ours *o = (ours *)s->self;
    for (int k = 0; k < KEYS; k++)
        for (size_t i = 0; i < n; i++) x[(size_t)k * n + i] = key_number(k, i), o->pull[(size_t)k * n + i] = -1;
    if (our_call(s, x, n)) return -1;
    float times = o->use == KEYS_ECHO ? 1 : (float)o->passes;
    for (int k = 0; k < KEYS; k++)
        for (size_t i = 0; i < n; i++)
            if (o->pull[(size_t)k * n + i] != times * key_number(k, i)) return -1;
    return 0;
}
static int model_check(rank_side *s, float *x, size_t n)
{
    ours  *o = (ours *)s->self;
    float *got = o->use == MODEL_APART ? o->pull : x;
    sums_write(o->pull, n, -1);
    for (size_t i = 0; i < n; i++) x[i] = (float)((s->rank + 1) * (int)(i % 7 + 1));
    if (our_call(s, x, n)) return -1;
    for (size_t i = 0; i < n; i++)
        if (got[i] != (float)(s->world * (s->world + 1) / 2 * (int)(i % 7 + 1))) return -1;
    return 0;
}
static int our_rank(void *name) /* "dt-keys-shm", "dt-model-tcp", ... */
{
    ours      o;
    bool      keys = !strncmp((const char *)name, "dt-keys", 7);
    rank_side s = { 0, 0, our_use, our_buffer, our_call, keys ? NULL : sums_write, keys ? keys_check : model_check, &o };
    memset(&o, 0, sizeof o);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(atoi(getenv("RANK")), 2);
    o.nkeys = keys ? KEYS : 1;
    o.use = keys ? KEYS_EXCHANGE : MODEL_IN_PLACE;
    o.c = dt_comm_init(.transport = strrchr((const char *)name, '-') + 1);
    if (!o.c) return our_error(&o);
    o.ps = keys ? dt_ps_new(o.c, .servers = 1, .mode = DT_PS_ASYNC) : dt_ps_new(o.c);
    if (!o.ps) return our_error(&o);
    s.rank = dt_comm_rank(o.c);
    s.world = dt_comm_size(o.c);
    int bad = keys && s.rank ? dt_comm_serve(o.c, ECHO_TAG, echo, .at_once = true) : 0;
    if (!bad && dt_ps_worker(o.ps) >= 0) bad = rank_serve(&s, the_path, (const char *)name);
    if (dt_ps_free(o.ps)) o.ps = NULL, bad = our_error(&o); /* a server serves here, until the worker frees its store */
    dt_comm_dealloc(o.c, o.push);
    dt_comm_dealloc(o.c, o.pull);
    return dt_comm_free(o.c) || bad;
}

/* ---- straggler */
enum { LEARNERS = 4, LATE = LEARNERS - 1, LATE_TIMES = 4, BATCH_MS = 10, STRAGGLER_N = 1024, MODES = 6 };
static const struct { const char *name; int mode, k, makes; } modes[MODES] = { /* makes: pushes of an update */
    { "sync", DT_PS_SYNC, 0, LEARNERS },           { "k-sync", DT_PS_K_SYNC, 3, 3 },   { "k-batch-sync", DT_PS_K_BATCH_SYNC, 3, 3 },
    { "k-async", DT_PS_K_ASYNC, 3, 3 }, { "k-batch-async", DT_PS_K_BATCH_ASYNC, 3, 3 }, { "async", DT_PS_ASYNC, 0, 1 },
};
typedef struct straggle { /* shared by the ranks */
    int         mode;
    const char *transport;
    double      seconds;   /* of a turn */
    int         over;      /* atomic: worker 0 has read the statistics */
    double      rate, wasted, staleness; /* gradients a second: used, cancelled; of a used one */
} straggle;
/* Waits as long as a batch takes; false: what it computes has become useless. */
static bool straggle_compute(const dt_ps *ps, int slices)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (int i = 0; i < slices; i++) {
        t.tv_nsec += NS_PER_MS;
        if (t.tv_nsec >= NS_PER_S) t.tv_nsec -= NS_PER_S, t.tv_sec++;
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
        if (dt_ps_cancelled(ps, 0)) return false;
    }
    return true;
}
static int straggle_exchange(dt_ps *ps, straggle *s, const float *g, float *w)
{
    dt_ps_item item = { 0, DT_COMM_F32, STRAGGLER_N, g, w };
    dt_ps_info info;
    dt_ps_op  *op = dt_ps_exchange_start(ps, &item, 1);
    if (!op || dt_ps_wait(op, &info)) return fprintf(stderr, "bench_ps: straggler: %s\n", dt_ps_error(ps)), -1;
    if (!info.fresh || __atomic_load_n(&s->over, __ATOMIC_ACQUIRE)) return 0; /* at the end, updates can have fewer pushes */
    for (int i = 0; i < STRAGGLER_N; i++) /* all pushes are ones */
        if (w[i] != (float)(modes[s->mode].makes * info.version))
            return fprintf(stderr, "bench_ps: straggler: %s: %g after %lld updates of %d ones\n", modes[s->mode].name, (double)w[i],
                           (long long)info.version, modes[s->mode].makes), -1;
    return 0;
}
static int straggle_rank(void *arg)
{
    straggle *s = (straggle *)arg;
    float     g[STRAGGLER_N], w[STRAGGLER_N] = { 0 };
    int       bad = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dt_comm *c = dt_comm_init(.transport = s->transport);
    dt_ps   *ps = c ? dt_ps_new(c, .servers = 1, .mode = modes[s->mode].mode, .k = modes[s->mode].k) : NULL;
    if (!ps) return fprintf(stderr, "bench_ps: straggler: %s\n", dt_comm_error(NULL)), 1;
    int me = dt_ps_worker(ps);
    sums_write(g, STRAGGLER_N, 1);
    if (me >= 0) bad = dt_ps_init(ps, 0, w, STRAGGLER_N, DT_COMM_F32, .rule = DT_PS_SUM) || dt_ps_barrier(ps);
    double t = now();
    while (me >= 0 && !bad && !__atomic_load_n(&s->over, __ATOMIC_ACQUIRE)) {
        bool useful = straggle_compute(ps, me == LATE ? BATCH_MS * LATE_TIMES : BATCH_MS);
        bad = straggle_exchange(ps, s, useful ? g : NULL, w);
        double passed = now() - t;
        if (me || bad || passed < s->seconds) continue;
        dt_ps_stats stats;
        bad = dt_ps_get_stats(ps, 0, &stats);
        s->rate = (double)stats.used / passed;
        s->wasted = (double)stats.cancelled / passed;
        s->staleness = (double)stats.staleness / (double)stats.used;
        __atomic_store_n(&s->over, 1, __ATOMIC_RELEASE);
    }
    if (bad) __atomic_store_n(&s->over, 1, __ATOMIC_RELEASE);
    if (bad && dt_ps_error(ps)) fprintf(stderr, "bench_ps: straggler: %s\n", dt_ps_error(ps));
    bad = dt_ps_free(ps) || bad;
    return dt_comm_free(c) || bad;
}
static int straggler(const char *transport, int nrounds)
{
    static double rate[MODES][MOST_ROUNDS], wasted[MODES][MOST_ROUNDS], staleness[MODES][MOST_ROUNDS];
    double        r[MOST_ROUNDS];
    straggle     *s = (straggle *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return 1;
    for (int k = 0; k < nrounds; k++)
        for (int i = 0; i < MODES; i++) {
            int m = (i + k) % MODES;
            memset(s, 0, sizeof *s);
            s->mode = m;
            s->transport = transport;
            s->seconds = 1;
            if (dt_spawn(LEARNERS + 1, straggle_rank, s)) return fprintf(stderr, "bench_ps: straggler: a rank failed\n"), 1;
            rate[m][k] = s->rate;
            wasted[m][k] = s->wasted;
            staleness[m][k] = s->staleness;
        }
    munmap(s, sizeof *s);
    for (int m = 0; m < MODES; m++) {
        double sync[MOST_ROUNDS];
        bool   aim = modes[m].mode == DT_PS_K_BATCH_SYNC || modes[m].mode == DT_PS_ASYNC;
        for (int k = 0; k < nrounds; k++) r[k] = rate[m][k] / rate[0][k], sync[k] = rate[0][k];
        double times = median(r, nrounds);
        memcpy(r, rate[m], sizeof r); /* median sorts */
        printf("ps-straggler-%s-%s: dt %.0f gradients/s, sync %.0f gradients/s, ratio %.2f%s; cancelled %.0f/s, staleness %.2f\n", transport,
               modes[m].name, median(r, nrounds), median(sync, nrounds), times, verdict(times, aim ? 2 : 0), median(wasted[m], nrounds),
               median(staleness[m], nrounds));
    }
    fflush(stdout);
    return 0;
}

/* ---- step */
enum { STEP_LOSSES = 5 };
typedef struct stepping { /* shared by the ranks */
    const work *w;
    const char *transport;
    int         rounds;
    double      time[2][MOST_ROUNDS]; /* seconds of a step: of the store, of the ddp */
    double      loss[2][STEP_LOSSES]; /* of rank 0 */
} stepping;
static int step_rank(void *arg)
{
    stepping *s = (stepping *)arg;
    worker    k[2];
    dt_comm  *c[2] = { dt_comm_init(.transport = s->transport), NULL };
    int       rank = dt_comm_rank(c[0]), n[2];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dt_set_num_threads(1);
    if (!c[0] || dt_comm_dup(c[0], &c[1])) return fprintf(stderr, "bench_ps: step: %s\n", dt_comm_error(NULL)), 1;
    dt_ps *store = dt_ps_new(c[0]);
    for (int i = 0; i < 2; i++) {
        dt_rng  r;
        int64_t label[256];
        memset(&k[i], 0, sizeof k[i]);
        k[i].w = s->w;
        k[i].m = dt_model_new(.seed = 1);
        k[i].opt = dt_sgd(k[i].m, .lr = 0.01, .momentum = 0.9);
        dt_rng_seed(&r, 2 + (uint64_t)rank);
        for (int64_t j = 0; j < s->w->items; j++) label[j] = j % 10;
        k[i].x = dt_keep(dt_normal(0, 1, s->w->shape, .rng = &r));
        k[i].y = dt_keep(dt_from(label, DT_SHAPE(s->w->items), .dtype = DT_I64));
    }
    dt_ps_model *pm = dt_ps_attach(k[0].m, k[0].opt, store);
    dt_ddp      *d = dt_ddp_new(k[1].m, c[1]);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < STEP_LOSSES && !dt_error(); j++) {
            double t = now(), loss = one_step(&k[i]);
            n[i] = (int)(0.5 / (now() - t)) + 1;
            if (!rank) s->loss[i][j] = loss;
        }
    dt_comm_broadcast(c[1], n, 2, DT_COMM_I32, 0);
    for (int r = 0; r <= s->rounds; r++) /* the first is a warm-up */
        for (int q = 0; q < 2 && !dt_error(); q++) {
            int             i = (q + r) % 2;
            struct timespec pause = { 0, 50 * NS_PER_MS }; /* the threads of the other one go to sleep */
            nanosleep(&pause, NULL);
            dt_comm_barrier(c[1]);
            double t = now();
            for (int j = 0; j < n[i]; j++) one_step(&k[i]);
            dt_comm_barrier(c[1]);
            if (r && !rank) s->time[i][r - 1] = (now() - t) / n[i];
        }
    dt_ps_detach(pm);
    dt_ddp_free(d);
    for (int i = 0; i < 2; i++) {
        dt_free(k[i].x);
        dt_free(k[i].y);
        dt_optimizer_free(k[i].opt);
        dt_model_free(k[i].m);
    }
    int bad = dt_check("bench_ps: step");
    dt_error_clear();
    bad = dt_ps_free(store) || bad;
    return dt_comm_free(c[1]) || dt_comm_free(c[0]) || bad;
}
static int step_part(const char *net, const char *transport, int nrounds)
{
    double    r[MOST_ROUNDS];
    stepping *s = (stepping *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return 1;
    for (int i = NWORKS; i-- > 0;)
        if (!strcmp(works[i].name, net)) s->w = &works[i];
    s->transport = transport;
    s->rounds = nrounds;
    if (dt_spawn(2, step_rank, s)) return fprintf(stderr, "bench_ps: step: a rank failed\n"), 1;
    for (int j = 0; j < STEP_LOSSES; j++)
        if (!(fabs(s->loss[0][j] - s->loss[1][j]) <= 1e-5 * (1 + fabs(s->loss[1][j]))))
            return fprintf(stderr, "bench_ps: step: %s: loss %d is %.9g with the store, %.9g with the ddp: expected the same\n", net, j, s->loss[0][j],
                           s->loss[1][j]), 1;
    for (int k = 0; k < nrounds; k++) r[k] = s->time[1][k] / s->time[0][k];
    double times = median(r, nrounds);
    printf("ps-step-%s-%s: dt %.2f ms, DDP %.2f ms, ratio %.2f%s\n", net, transport, 1e3 * median(s->time[0], nrounds), 1e3 * median(s->time[1], nrounds),
           times, times < 0.8 ? "  (below the target)" : "");
    fflush(stdout);
    munmap(s, sizeof *s);
    return 0;
}

/* ---- the driver */
static int free_port(void) /* for MXNet's scheduler, which cannot choose one itself */
{
    struct sockaddr_in a;
    socklen_t          n = sizeof a;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !getsockname(fd, (struct sockaddr *)&a, &n);
    if (fd >= 0) close(fd);
    return ok ? ntohs(a.sin_port) : 0;
}
static bool mxnet_there(const char *python)
{
    const char *v[] = { python, "bench/peer_ps.py", "there", NULL };
    int         status = 1;
    pid_t       pid = child((char *const *)(uintptr_t)v);
    if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status)) return true;
    printf("MXNet is missing (%s cannot import mxnet): its rows are skipped\n", python);
    return false;
}
static void side_mxnet(side *s, int servers, const char *python)
{
    char nworkers[12], nservers[12], port[12];
    snprintf(nworkers, sizeof nworkers, "%d", s->world);
    snprintf(nservers, sizeof nservers, "%d", servers);
    snprintf(port, sizeof port, "%d", free_port());
    for (int i = 0; i < 1 + servers + s->world; i++) {
        const char *role = i == 0 ? "scheduler" : i <= servers ? "server" : "worker";
        const char *v[] = { python, "bench/peer_ps.py", the_path, s->name, role, nworkers, nservers, port, NULL };
        s->pid[s->npid++] = child((char *const *)(uintptr_t)v);
    }
}
/* The part and the transport are in the name. Only workers speak with the driver, so a side of "keys" has one rank. */
static void side_start(const char *who, const char *part, const char *how, int listener, const char *python)
{
    side *s = &sides[nsides++];
    char  name[32];
    bool  keys = !strcmp(part, "keys");
    snprintf(name, sizeof name, "%s-%s-%s", who, part, how);
    side_new(s, name, keys ? 1 : 2);
    if (python) side_mxnet(s, s->world, python); /* as many servers */
    else {
        s->pid[s->npid++] = child(NULL);
        if (!s->pid[0]) _exit(dt_spawn(2, our_rank, s->name));
    }
    side_up(s, listener, python ? "MXNet (its kvstore)" : NULL);
}
static void add(column *c, int *n, const char *label, const char *name, int world, const char *use)
{
    column *o = &c[*n];
    memset(o, 0, sizeof *o);
    o->label = label;
    o->use = use;
    o->s = side_find(name, world);
    o->peer = !strncmp(name, "mxnet", 5);
    o->dt = !o->peer;
    o->tcp = strstr(name, "-tcp") != NULL;
    o->shm = o->peer || !o->tcp; /* MXNet has no shared memory: its best is compared */
    if (o->s) ++*n;
}
static const column *find(const column *c, int n, bool tcp, const char *use) /* a column of dt */
{
    for (int i = 0; i < n; i++)
        if (c[i].dt && c[i].tcp == tcp && !strcmp(c[i].use, use) && c[i].time[0] > 0) return &c[i];
    return NULL;
}
/* amount: what a call does, in units */
static void row(const char *name, const column *a, const column *b, const char *peer, double amount, int digits, const char *unit,
                bool missed)
{
    printf("%s: dt %.*f %s, %s %.*f %s, ratio %.2f%s\n", name, digits, amount / a->time[0], unit, peer, digits, amount / b->time[0], unit,
           ratio(b, a, rounds), missed ? "  (below the target)" : "");
    fflush(stdout);
}
static void keys_part(bool shm, bool tcp, int nrounds)
{
    static column c[MOST_COLUMNS];
    int           n = 0;
    const double  amount = (double)PASSES * KEYS;
    rounds = nrounds;
    sizes[0] = KEY_BYTES;
    add(c, &n, "dt", "dt-keys-shm", 1, use_name[KEYS_EXCHANGE]);
    add(c, &n, "dt", "dt-keys-shm", 1, use_name[KEYS_ECHO]);
    add(c, &n, "dt", "dt-keys-tcp", 1, use_name[KEYS_EXCHANGE]);
    add(c, &n, "dt", "dt-keys-tcp", 1, use_name[KEYS_ECHO]);
    add(c, &n, "MXNet (Unix sockets; windows of 64)", "mxnet-keys-ipc", 1, "window");
    add(c, &n, "MXNet (Unix sockets; one call for all keys)", "mxnet-keys-ipc", 1, "list");
    add(c, &n, "MXNet (TCP; windows of 64)", "mxnet-keys-tcp", 1, "window");
    add(c, &n, "MXNet (TCP; one call for all keys)", "mxnet-keys-tcp", 1, "list");
    measure(c, n, 0, rounds, 0.3);
    for (int i = 0; i < 2; i++) {
        const column *a = find(c, n, i, use_name[KEYS_EXCHANGE]), *b = find(c, n, i, use_name[KEYS_ECHO]), *p = best_peer(c, n, 1, i, 0);
        if (!(i ? tcp : shm) || !a) continue;
        bool missed = !i && amount / a->time[0] < 100000;
        if (b) row(i ? "ps-keys-tcp-bound" : "ps-keys-shm-bound", a, b, "bare calls", amount, 0, "push-pulls/s", missed);
        if (p) row(i ? "ps-keys-tcp" : "ps-keys-shm", a, p, p->label, amount, 0, "push-pulls/s", missed);
    }
}
static void model_part(bool shm, bool tcp, int nrounds)
{
    static column c[MOST_COLUMNS];
    int           n = 0;
    rounds = nrounds;
    for (int i = MODEL_IN_PLACE; i <= MODEL_ALLREDUCE; i++) add(c, &n, "dt", "dt-model-shm", 2, use_name[i]);
    for (int i = MODEL_IN_PLACE; i <= MODEL_ALLREDUCE; i++) add(c, &n, "dt", "dt-model-tcp", 2, use_name[i]);
    add(c, &n, "MXNet (Unix sockets)", "mxnet-model-ipc", 2, "model");
    add(c, &n, "MXNet (TCP)", "mxnet-model-tcp", 2, "model");
    for (int k = 0; k < nsizes; k++) {
        sizes[0] = sizes[k];
        measure(c, n, 0, rounds, 0.2);
        for (int i = 0; i < 4; i++) {
            bool          over = i >= 2;
            const char   *use = use_name[i % 2 ? MODEL_APART : MODEL_IN_PLACE];
            const column *a = find(c, n, over, use), *b = find(c, n, over, use_name[MODEL_ALLREDUCE]), *p = best_peer(c, n, 2, over, 0);
            char          name[96];
            if (!(over ? tcp : shm) || !a) continue;
            snprintf(name, sizeof name, "ps-model-%s-%s-%s", over ? "tcp" : "shm", size_text(sizes[0]), use);
            if (p) row(name, a, p, p->label, (double)sizes[0] * 1e-9, 2, "GB/s", false);
            strcat(name, "-bound");
            if (b) row(name, a, b, "allreduce", (double)sizes[0] * 1e-9, 2, "GB/s", ratio(b, a, rounds) < 0.6);
        }
    }
}
int main(int argc, char **argv)
{
    const char *how = option(argc, argv, "--transports", "shm,tcp"), *parts = option(argc, argv, "--parts", "keys,model,straggler,step");
    const char *python = option(argc, argv, "--python", "python3"), *names = option(argc, argv, "--nets", "convnet,resnet20");
    char        dir[] = "/tmp/dt-ps-XXXXXX";
    bool        shm = strstr(how, "shm") != NULL, tcp = strstr(how, "tcp") != NULL;
    int         nrounds = atoi(option(argc, argv, "--rounds", "15"));
    if (nrounds < 1 || nrounds > MOST_ROUNDS) nrounds = 15;
    nsizes = numbers(option(argc, argv, "--sizes", "67108864"), 4, sizes, MOST_SIZES);
    for (int k = 0; k < nsizes; k++) sizes[k] = sizes[k] / 4 * 4;
    the_driver = getpid();
    signal(SIGPIPE, SIG_IGN);
    int listener = mkdtemp(dir) ? listen_at(dir) : -1;
    if (listener < 0) return fprintf(stderr, "bench_ps: cannot create a socket under /tmp\n"), 1;
    bool peer = (strstr(parts, "keys") || strstr(parts, "model")) && mxnet_there(python);
    for (int i = 0; i < 2; i++) {
        const char *part = i ? "model" : "keys";
        if (!strstr(parts, part)) continue;
        nsides = 0;
        if (shm) side_start("dt", part, "shm", listener, NULL);
        if (tcp) side_start("dt", part, "tcp", listener, NULL);
        if (peer && shm) side_start("mxnet", part, "ipc", listener, python);
        if (peer) side_start("mxnet", part, "tcp", listener, python);
        if (i) model_part(shm, tcp, nrounds);
        else {
            int64_t first = sizes[0];
            keys_part(shm, tcp, nrounds);
            sizes[0] = first;
        }
        for (int k = 0; k < nsides; k++) side_end(&sides[k]);
    }
    close(listener);
    remove_all(dir);
    if (strstr(parts, "straggler") && shm) failures += straggler("shm", nrounds < 5 ? nrounds : 5);
    if (strstr(parts, "straggler") && tcp) failures += straggler("tcp", nrounds < 5 ? nrounds : 5);
    static const char *const nets[] = { "convnet", "resnet20", "mlp" };
    for (int i = 0; i < 6 && strstr(parts, "step"); i++)
        if ((i % 2 ? tcp : shm) && strstr(names, nets[i / 2])) failures += step_part(nets[i / 2], i % 2 ? "tcp" : "shm", nrounds < 9 ? nrounds : 9);
    return failures != 0;
}
