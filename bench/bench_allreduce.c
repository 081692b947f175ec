/* Compares allreduce of dt, Open MPI and gloo in one run: make bench-allreduce

       bench_allreduce [--ranks 2,4] [--transports shm,tcp] [--sizes 8,1024,...] [--rounds N] [--peers mpi,gloo]
                       [--parts compare,algos,overlap,busy] [--loops 0,1,2] [--before PROGRAM] [--python PATH]

   Measured: f32 sums in place, in ordinary memory and in memory of dt_comm_alloc. Each rank rewrites its buffer before
   each call; this is not timed (up to 1 KiB it is, because it takes less time than reading the clock). The duration of
   a call is from the time the last rank enters to the time the last rank leaves.

   Sides, turns and medians: turns.h.

   Peers: Open MPI, with and without single-copy transfers (the better one counts); gloo. Also measured: a loop that only
   reduces (all buffers shared, each rank reduces its part), a ping-pong of 8 bytes, more ranks than cores, all
   algorithms, computing while a slow network transfers. Charts: build/bench/allreduce-TRANSPORT-RANKS.svg

   The part "busy" (make bench-allreduce-busy) measures beside 0, 1 and 2 other programs, processes that only count. Every
   call is timed by itself: the median and the 99th percentile are over all calls of all rounds. --before PROGRAM is this
   program, built from an older tree: its dt takes part in the turns. */
#define DT__WANT_INSIDE
#include "dt_comm.h"

#include <sys/mman.h>

#define THE_BENCH "bench_allreduce"
#include "allreduce.h"
#include "turns.h"

static char the_store[160]; /* file for the rendezvous of gloo's ranks */

/* ---- dt's ranks */
typedef struct ours {
    dt_comm *c;
    float   *plain, *shared;
    size_t   nplain, nshared;
    bool     alloc;
} ours;
static int our_use(rank_side *s, const char *word)
{
    ours *o = (ours *)s->self;
    if (!strcmp(word, "plain") || !strcmp(word, "alloc")) {
        o->alloc = !strcmp(word, "alloc");
        o->c->engine->algo = DT_ALGO_AUTO; /* same effect as a communicator with .algo */
        return 0;
    }
    dt_algo a = dt_algo_find(word);
    if (a == DT_ALGO_COUNT || !dt_plan_can(DT_COLL_ALLREDUCE, a, s->world, o->c->host)) return 1;
    if (a == DT_ALGO_SHARED && !o->c->shared) return 1;
    o->alloc = false;
    o->c->engine->algo = (int)a;
    return 0;
}
static float *our_buffer(rank_side *s, size_t nbytes)
{
    ours   *o = (ours *)s->self;
    float **p = o->alloc ? &o->shared : &o->plain;
    size_t *n = o->alloc ? &o->nshared : &o->nplain;
    if (nbytes <= *n) return *p;
    if (o->alloc) dt_comm_dealloc(o->c, *p);
    else free(*p);
    *p = (float *)(o->alloc ? dt_comm_alloc(o->c, nbytes) : aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096));
    *n = *p ? nbytes : 0;
    return *p;
}
static int our_call(rank_side *s, float *x, size_t n)
{
    return dt_comm_allreduce(((ours *)s->self)->c, x, (int64_t)n, DT_COMM_F32, DT_COMM_SUM);
}
static int our_rank(void *name) /* "dt-shm", "dt-tcp", "before-shm", "before-tcp" */
{
    ours      o;
    rank_side s = { 0, 0, our_use, our_buffer, our_call, sums_write, sums_check, &o };
    memset(&o, 0, sizeof o);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(atoi(getenv("RANK")), atoi(getenv("WORLD_SIZE")));
    o.c = dt_comm_init(.transport = strchr((const char *)name, '-') + 1);
    if (!o.c) return fprintf(stderr, "bench_allreduce: %s\n", dt_comm_error(NULL)), 1;
    s.rank = dt_comm_rank(o.c);
    s.world = dt_comm_size(o.c);
    int bad = rank_serve(&s, the_path, (const char *)name);
    if (bad && dt_comm_error(o.c)) fprintf(stderr, "bench_allreduce: %s\n", dt_comm_error(o.c));
    dt_comm_dealloc(o.c, o.shared);
    free(o.plain);
    dt_comm_free(o.c);
    return bad;
}

/* ---- a loop that only reduces, and a ping-pong */
typedef struct flag {
    uint64_t at __attribute__((aligned(128)));
} flag;
typedef struct bare {
    flag    *ready, *done; /* of each rank */
    float   *x[MOST_RANKS];
    uint64_t no;
    bool     pong, yields;
} bare;
typedef float eight __attribute__((vector_size(32), may_alias));
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
static void bare_sum(float *const *x, int p, size_t lo, size_t hi)
{
    size_t i = lo;
    for (; i + 8 <= hi; i += 8) {
        eight v = *(const eight *)(x[0] + i);
        for (int k = 1; k < p; k++) v += *(const eight *)(x[k] + i);
        for (int k = 0; k < p; k++) *(eight *)(x[k] + i) = v;
    }
    for (; i < hi; i++) {
        float v = x[0][i];
        for (int k = 1; k < p; k++) v += x[k][i];
        for (int k = 0; k < p; k++) x[k][i] = v;
    }
}
static void bare_meet(const rank_side *s, flag *l, uint64_t no)
{
    const bare *b = (const bare *)s->self;
    __atomic_store_n(&l[s->rank].at, no, __ATOMIC_RELEASE);
    for (int i = 0; i < s->world; i++)
        while (__atomic_load_n(&l[i].at, __ATOMIC_ACQUIRE) < no)
            if (b->yields) sched_yield();
}
static int bare_use(rank_side *s, const char *word)
{
    ((bare *)s->self)->pong = !strcmp(word, "pingpong");
    return 0;
}
static float *bare_buffer(rank_side *s, size_t nbytes)
{
    (void)nbytes;
    return ((bare *)s->self)->x[s->rank];
}
static int bare_call(rank_side *s, float *x, size_t n)
{
    bare *b = (bare *)s->self;
    (void)x;
    b->no++;
    if (b->pong) { /* one round trip */
        if (s->rank == 1) {
            while (__atomic_load_n(&b->ready[0].at, __ATOMIC_ACQUIRE) < b->no) {}
            __atomic_store_n(&b->ready[1].at, b->no, __ATOMIC_RELEASE);
        } else if (s->rank == 0) {
            __atomic_store_n(&b->ready[0].at, b->no, __ATOMIC_RELEASE);
            while (__atomic_load_n(&b->ready[1].at, __ATOMIC_ACQUIRE) < b->no) {}
        }
        return 0;
    }
    size_t part = (n / (size_t)s->world) & ~(size_t)15, lo = part * (size_t)s->rank;
    bare_meet(s, b->ready, b->no);
    bare_sum(b->x, s->world, lo, s->rank == s->world - 1 ? n : lo + part);
    bare_meet(s, b->done, b->no);
    return 0;
}
static int bare_rank(int rank, int world, char *memory, size_t nbytes)
{
    bare      b;
    rank_side s = { rank, world, bare_use, bare_buffer, bare_call, sums_write, sums_check, &b };
    memset(&b, 0, sizeof b);
    b.ready = (flag *)(void *)memory;
    b.done = b.ready + MOST_RANKS;
    b.yields = world > dt__shared_cores(NULL);
    for (int i = 0; i < world; i++) b.x[i] = (float *)(void *)(memory + 8192 + (size_t)i * nbytes);
    pin(rank, world);
    return rank_serve(&s, the_path, "bare");
}

/* ---- computing while a slow network transfers */
static double overlap_rate(double seconds, dt_work *until) /* loops per second, for 'seconds' or until the work ends */
{
    static volatile float sink;
    double                t = now();
    int64_t               n = 0;
    while (until ? !dt_work_test(until) : now() - t < seconds) {
        for (int i = 0; i < 10; i++) sink = fma_loop(2000);
        n += 10;
    }
    (void)sink;
    return (double)n / (now() - t);
}
static double thread_seconds(pthread_t t) /* CPU time of the thread */
{
    clockid_t       id;
    struct timespec at = { 0, 0 };
    if (pthread_getcpuclockid(t, &id) == 0) clock_gettime(id, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}
static int overlap_rank(void *arg)
{
    double  *found = (double *)arg; /* [0]: bytes per second. Then for each rank: fraction of the compute rate that is left,
                                       seconds of a call, CPU seconds of the communicator's thread in it */
    dt_comm *c = dt_comm_init(.transport = "tcp", .bandwidth = found[0]);
    int64_t  n = (int64_t)(found[0] / 32);
    float   *x = (float *)calloc((size_t)n, sizeof *x);
    double   left[9], time[9], self[9];
    if (!c || !x) return 1;
    dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM);
    for (int i = 0; i < 9; i++) {
        dt_comm_barrier(c);
        double   alone = overlap_rate(0.2, NULL), t = now();
        dt_comm_barrier(c);
        t = now();
        dt_work *w = dt_comm_allreduce_start(c, x, n, DT_COMM_F32, DT_COMM_SUM);
        self[i] = -thread_seconds(c->engine->thread);
        left[i] = overlap_rate(0, w) / alone;
        if (dt_work_wait(w)) return 1;
        time[i] = now() - t;
        self[i] += thread_seconds(c->engine->thread);
    }
    found[3 * dt_comm_rank(c) + 1] = median(left, 9);
    found[3 * dt_comm_rank(c) + 2] = median(time, 9);
    found[3 * dt_comm_rank(c) + 3] = median(self, 9);
    free(x);
    return dt_comm_free(c);
}
static int overlap(double rate) /* bytes per second */
{
    double *found = (double *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return 1;
    found[0] = rate;
    if (dt_spawn(2, overlap_rank, found)) return fprintf(stderr, "bench_allreduce: overlap: a rank failed\n"), 1;
    double left = found[1] < found[4] ? found[1] : found[4];
    printf("allreduce-overlap: %.1f MiB at %.0f Mbit/s in %.0f ms, concurrent compute is %.1f %% slower%s; the transfer's "
           "thread uses %.1f %% of a core\n",
           rate / 8 / (1 << 20), rate * 8e-6, found[2] * 1e3, 100 * (1 - left),
           left < 0.95 ? "  (more than asked for)" : "", 100 * found[3] / found[2]);
    munmap(found, 4096);
    return 0;
}

/* ---- the driver: sides */
static const char *the_before; /* --before, or NULL */
static void side_start(const char *name, int world, int listener, size_t most, const char *python)
{
    side *s = &sides[nsides++];
    char  missing[128], text[12];
    side_new(s, name, world);
    snprintf(text, sizeof text, "%d", world);
    missing[0] = 0;
    if (!strncmp(name, "dt-", 3)) {
        s->pid[s->npid++] = child(NULL);
        if (!s->pid[0]) _exit(dt_spawn(world, our_rank, s->name));
    } else if (!strncmp(name, "before-", 7)) {
        const char *v[] = { the_before, "--serve", the_path, "--name", name, "--ranks", text, NULL };
        s->pid[s->npid++] = child((char *const *)(uintptr_t)v);
    } else if (!strcmp(name, "bare")) {
        size_t n = 8192 + (size_t)world * most;
        char  *memory = (char *)mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        for (; memory != MAP_FAILED && s->npid < world; s->npid++) {
            s->pid[s->npid] = child(NULL);
            if (!s->pid[s->npid]) _exit(bare_rank(s->npid, world, memory, most));
        }
        if (memory != MAP_FAILED) munmap(memory, n);
    } else if (!strncmp(name, "mpi", 3)) {
        snprintf(missing, sizeof missing, "Open MPI (%s; mpirun, build/bench/peer_allreduce_mpi)", name);
        side_mpi(s, "build/bench/peer_allreduce_mpi");
    } else { /* gloo */
        snprintf(missing, sizeof missing, "gloo (%.80s with torch)", python);
        for (; s->npid < world; s->npid++) {
            char rank[12], store[sizeof the_store + 16];
            snprintf(rank, sizeof rank, "%d", s->npid);
            snprintf(store, sizeof store, "%s-%d", the_store, world);
            const char *v[] = { python, "bench/peer_allreduce.py", the_path, name, rank, text, store, NULL };
            s->pid[s->npid] = child((char *const *)(uintptr_t)v);
        }
    }
    side_up(s, listener, missing[0] ? missing : NULL);
}

/* ---- measuring */
static const column *find(const column *c, int n, const char *label, int world, int k)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(c[i].label, label) && c[i].s && c[i].s->world == world && c[i].time[k] > 0) return &c[i];
    return NULL;
}
/* Compares dt with its targets at the size measured last. */
static void judge(const column *c, int n, int k)
{
    int64_t b = sizes[k];
    for (int i = 0; i < n; i++) {
        if (!c[i].dt || !c[i].time[k]) continue;
        bool          alloc = !strcmp(c[i].use, "alloc");
        int           world = c[i].s->world;
        double        least = c[i].tcp ? 1.2 : alloc ? (b >= 1 << 20 ? 2 : 1.3) : b == 8 << 20 ? 1.0 : 1.3;
        const char   *name = c[i].tcp ? "tcp" : alloc ? "alloc" : "shm";
        const column *p = best_peer(c, n, world, c[i].tcp, k), *bound = find(c, n, "bare loop", world, k);
        const column *pong = find(c, n, "ping-pong", world, k), *two = find(c, n, c[i].label, 2, k);
        if (p) {
            double r = ratio(p, &c[i], rounds);
            printf("allreduce-%s-%dr-%s: dt %.2f us, %s %.2f us, ratio %.2f%s\n", name, world, size_text(b),
                   c[i].time[k] * 1e6, p->label, p->time[k] * 1e6, r, verdict(r, least));
        }
        if (alloc && bound && b >= 1 << 20) {
            double r = ratio(bound, &c[i], rounds);
            printf("allreduce-%s-%dr-%s: dt %.2f us, %s %.2f us, ratio %.2f%s\n", name, world, size_text(b),
                   c[i].time[k] * 1e6, bound->label, bound->time[k] * 1e6, r,
                   verdict(r, b >= 8 << 20 && world == 2 ? 0.7 : 0));
        }
        if (!c[i].tcp && !alloc && pong) {
            double r = ratio(&c[i], pong, rounds);
            printf("allreduce-%s-%dr-%s: dt takes %.2f times a ping-pong there and back (%.2f us), %.2f times one "
                   "way%s\n",
                   name, world, size_text(b), r, pong->time[k] * 1e6, 2 * r,
                   r > 1.5 ? "  (above the target)" : "");
        }
        if (world > 2 && two) {
            double r = ratio(&c[i], two, rounds);
            printf("allreduce-%s-%dr-%s: dt takes %.2f times as long as with 2 ranks%s\n", name, world, size_text(b), r,
                   r > 2.5 ? "  (above the target)" : "");
        }
    }
    fflush(stdout);
}
static void table(const column *c, int n, int world, bool tcp, const char *title)
{
    printf("\n%s, %d ranks, %s, us\n%-24s", title, world, tcp ? "TCP on loopback" : "shared memory", "");
    for (int k = 0; k < nsizes; k++) printf(" %9s", size_text(sizes[k]));
    printf("\n");
    for (int i = 0; i < n; i++) {
        if (!c[i].s || c[i].s->world != world || !(tcp ? c[i].tcp : c[i].shm)) continue;
        printf("%-24s", c[i].label);
        for (int k = 0; k < nsizes; k++)
            if (!c[i].time[k]) printf(" %9s", "-");
            else printf(" %9.*f", c[i].time[k] < 1e-5 ? 2 : c[i].time[k] < 1e-3 ? 1 : 0, c[i].time[k] * 1e6);
        printf("\n");
    }
    fflush(stdout);
}

/* ---- beside other programs */
#define BUSY_TURN 0.06                     /* seconds of a turn */
enum { MOST_LOOPS = 16, BUSY_CALLS = 30 }; /* BUSY_CALLS: timed calls of a turn, at most */
static pid_t the_loop[MOST_LOOPS];
static void  loops_end(void)
{
    for (int i = 0; i < MOST_LOOPS; i++) {
        if (the_loop[i] <= 0) continue;
        kill(the_loop[i], SIGKILL);
        waitpid(the_loop[i], NULL, 0);
        the_loop[i] = 0;
    }
}
static int loops_start(int n)
{
    for (int i = 0; i < n && i < MOST_LOOPS; i++) {
        the_loop[i] = fork();
        if (the_loop[i] < 0) return -1;
        if (the_loop[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* the loop ends however the driver ends */
        if (getppid() != the_driver) _exit(1);
        for (volatile uint64_t count = 0;; count++) {}
    }
    return 0;
}
typedef struct busy_row { /* one side at one size, all calls of all rounds */
    double time[MOST_ROUNDS * BUSY_CALLS];
    int    n, calls, gap; /* calls, gap: of the next turn */
    double total, made;   /* seconds of all turns, calls in them */
} busy_row;
static double busy_at(const busy_row *b, double fraction) /* 0.5: the median */
{
    static double v[MOST_ROUNDS * BUSY_CALLS];
    memcpy(v, b->time, (size_t)b->n * sizeof *v);
    qsort(v, (size_t)b->n, sizeof *v, by_value);
    return b->n ? v[(int)(fraction * (b->n - 1) + 0.5)] : 0;
}
static const char *busy_unit(double t, double *value)
{
    *value = t * (t < 1e-3 ? 1e6 : 1e3);
    return t < 1e-3 ? "us" : "ms";
}
/* One turn. The mean time of a call so far decides how many calls a turn has, and how many untimed ones are between the
   timed ones: the turn must be longer than the time slices of the scheduler. */
static bool busy_turn(busy_row *b, side *s, int64_t nbytes)
{
    double t = now();
    if (!s->up || !side_times(s, nbytes, 1, b->calls, 1, b->gap, b->time + b->n)) return false;
    b->n += b->calls;
    t = now() - t;
    b->total += t;
    b->made += 1 + b->calls * (1.0 + b->gap);
    double most = BUSY_TURN / (t / (1 + b->calls * (1.0 + b->gap)));
    if (most > 8.0 * b->calls * (1 + b->gap)) most = 8.0 * b->calls * (1 + b->gap);
    b->calls = most < 2 ? 2 : most > BUSY_CALLS ? BUSY_CALLS : (int)most;
    b->gap = most > BUSY_CALLS ? (int)(most / BUSY_CALLS) - 1 : 0;
    return true;
}
enum { US, BEFORE, PEER, WHO }; /* columns of the table */
typedef struct busy_result { /* a row of the table */
    int         loops, world;
    bool        tcp;
    int64_t     nbytes;
    double      median[WHO], late[WHO], rate[WHO]; /* seconds; 99th percentile; calls a second with all waits. 0: none */
    const char *peer;                              /* the one with the lowest median */
} busy_result;
static void busy_note(busy_result *o, int who, const busy_row *b)
{
    o->median[who] = busy_at(b, 0.5);
    o->late[who] = busy_at(b, 0.99);
    o->rate[who] = b->made / b->total;
}
/* Measures dt, the older dt and the peers in turn: one size, one transport, one number of ranks and loops. */
static void busy_case(busy_result *o)
{
    static const struct {
        const char *side, *label;
        bool        tcp, shm;
    } all[] = { { "dt-shm", "dt", false, true },         { "dt-tcp", "dt", true, false },
                { "before-shm", "before", false, true }, { "before-tcp", "before", true, false },
                { "mpi", "Open MPI", false, true },      { "mpi-none", "Open MPI without single copy", false, true },
                { "mpi-tcp", "Open MPI", true, false },  { "gloo", "gloo", true, true } };
    enum { ALL = sizeof all / sizeof all[0] };
    static busy_row row[ALL];
    side           *on[ALL];
    char            name[64];
    for (int i = 0; i < ALL; i++) {
        on[i] = (o->tcp ? all[i].tcp : all[i].shm) ? side_find(all[i].side, o->world) : NULL;
        memset(&row[i], 0, sizeof row[i]);
        row[i].calls = 2;
        if (on[i] && i < 4 && !side_says_ok(on[i], side_ask(on[i], "use plain\n"))) on[i] = NULL;
        if (on[i] && !side_says_ok(on[i], side_ask(on[i], "check %lld\n", (long long)o->nbytes))) {
            fprintf(stderr, "bench_allreduce: %s, %d ranks, %s: wrong sums\n", all[i].side, o->world,
                    size_text(o->nbytes));
            failures++;
            on[i] = NULL;
        }
    }
    for (int r = 0; r < rounds; r++)
        for (int j = 0; j < ALL; j++) {
            int i = (j + r) % ALL;
            if (on[i] && !busy_turn(&row[i], on[i], o->nbytes)) on[i] = NULL;
        }
    int us = o->tcp ? 1 : 0;
    if (!on[us] || !row[us].n) return;
    busy_note(o, US, &row[us]);
    snprintf(name, sizeof name, "allreduce-busy-%dloops-%s-%dr-%s", o->loops, o->tcp ? "tcp" : "shm", o->world,
             size_text(o->nbytes));
    for (int i = 2; i < ALL; i++) {
        if (!on[i] || !row[i].n) continue;
        double      a = o->median[US], b = busy_at(&row[i], 0.5), va, vb, wa, wb;
        const char *ua = busy_unit(a, &va), *ub = busy_unit(b, &vb);
        const char *xa = busy_unit(o->late[US], &wa), *xb = busy_unit(busy_at(&row[i], 0.99), &wb);
        printf("%s: dt %.3g %s, %s %.3g %s, ratio %.2f; 99th percentile %.3g %s, %.3g %s; calls/s %.3g, %.3g\n", name, va,
               ua, all[i].label, vb, ub, b / a, wa, xa, wb, xb, o->rate[US], row[i].made / row[i].total);
        if (i < 4) busy_note(o, BEFORE, &row[i]);
        else if (!o->peer || b < o->median[PEER]) {
            busy_note(o, PEER, &row[i]);
            o->peer = all[i].label;
        }
    }
    fflush(stdout);
}
static void busy_time(double t)
{
    double      v;
    const char *unit = busy_unit(t, &v);
    if (t > 0) printf(" %7.3g %s", v, unit);
    else printf(" %7s   ", "-");
}
static void busy_table(const busy_result *o, int n)
{
    double logs = 0, least = INFINITY;
    int    rows = 0, low = 0;
    printf("\nmedian, 99th percentile and calls a second; calm: times the median without loops\n%-26s %-33s %-33s %-33s\n",
           "loops, transport, ranks", "dt", "before", "best peer");
    for (int i = 0; i < n; i++) {
        const busy_result *r = &o[i], *calm = NULL;
        for (int k = 0; k < n; k++)
            if (!o[k].loops && o[k].tcp == r->tcp && o[k].world == r->world && o[k].nbytes == r->nbytes) calm = &o[k];
        printf("%d %s %d %-18s", r->loops, r->tcp ? "tcp" : "shm", r->world, size_text(r->nbytes));
        for (int who = 0; who < WHO; who++) {
            busy_time(r->median[who]);
            busy_time(r->late[who]);
            printf(" %8.3g |", r->rate[who]);
        }
        if (calm && calm->median[US] > 0) printf(" calm %.1f", r->median[US] / calm->median[US]);
        if (r->median[BEFORE] > 0 && r->median[US] > 0) printf(" before %.2f", r->median[BEFORE] / r->median[US]);
        if (r->median[PEER] > 0 && r->median[US] > 0) {
            double q = r->median[PEER] / r->median[US];
            printf(" peer %.2f%s", q, verdict(q, 0.9));
            logs += log(q);
            rows++;
            low += q < 0.9;
            least = q < least ? q : least;
        }
        printf("\n");
    }
    if (rows)
        printf("allreduce-busy: geometric mean of the ratios to the best peer %.2f over %d rows, the lowest %.2f, %d below "
               "0.9\n",
               exp(logs / rows), rows, least, low);
}
static int busy(const int64_t *loops, int nloops, const int64_t *worlds, int nworlds, bool shm, bool tcp)
{
    static busy_result result[8 * 2 * 4 * MOST_SIZES];
    int                n = 0;
    atexit(loops_end);
    for (int l = 0; l < nloops; l++) {
        if (loops[l] > MOST_LOOPS || loops_start((int)loops[l])) {
            loops_end();
            return fprintf(stderr, "bench_allreduce: cannot start %lld busy loops\n", (long long)loops[l]), 1;
        }
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < nworlds && (t ? tcp : shm); i++)
                for (int k = 0; k < nsizes; k++) {
                    busy_result *o = &result[n++];
                    o->loops = (int)loops[l];
                    o->world = (int)worlds[i];
                    o->tcp = t != 0;
                    o->nbytes = sizes[k];
                    busy_case(o);
                }
        loops_end();
    }
    busy_table(result, n);
    return 0;
}

/* ---- charts: bytes per second over bytes, both axes logarithmic */
static void plot(const column *c, int n, const column *algos, int nalgos, int world, bool tcp)
{
    static const char *const colour[] = { "#2563a8", "#5fa052", "#c8641e", "#8e44ad", "#999999", "#b8860b", "#c0392b",
                                          "#16a085", "#444444", "#d87093", "#7f8c3d", "#3b3b98" };
    char   path[128];
    double w = 900, h = 520, left = 70, right = 210, top = 30, bottom = 50;
    double x0 = log10((double)sizes[0]), x1 = log10((double)sizes[nsizes - 1]) + 1e-9, y0 = 6, y1 = 11;
    int    row = 0;
    snprintf(path, sizeof path, "build/bench/allreduce-%s-%d.svg", tcp ? "tcp" : "shm", world);
    FILE *f = fopen(path, "w");
    if (!f) return;
    if (tcp) y0 = 4, y1 = 10;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" font-family=\"sans-serif\" "
               "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
               "<text x=\"%g\" y=\"18\" font-weight=\"bold\">allreduce, %d ranks, %s: bytes per second over "
               "bytes</text>\n",
            w, h, left, world, tcp ? "TCP on loopback" : "shared memory");
    for (int d = (int)y0; d <= (int)y1; d++) {
        static const char *const unit[] = { "10 KB/s",  "100 KB/s", "1 MB/s",  "10 MB/s",
                                            "100 MB/s", "1 GB/s",   "10 GB/s", "100 GB/s" };
        double y = h - bottom - (d - y0) / (y1 - y0) * (h - top - bottom);
        fprintf(f, "<line x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%g\" y=\"%.1f\" "
                   "text-anchor=\"end\" fill=\"#333\">%s</text>\n",
                left, y, w - right, y, left - 6, y + 4, unit[d - 4]);
    }
    for (int k = 0; k < nsizes; k++) {
        double x = left + (log10((double)sizes[k]) - x0) / (x1 - x0) * (w - left - right);
        fprintf(f, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\" fill=\"#333\">%s</text>\n", x, h - bottom + 18,
                size_text(sizes[k]));
    }
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < (part ? nalgos : n); i++) {
            const column *o = part ? &algos[i] : &c[i];
            char          points[MOST_SIZES * 20];
            size_t        at = 0;
            if (!o->s || o->s->world != world || !(tcp ? o->tcp : o->shm)) continue;
            for (int k = 0; k < nsizes; k++) {
                double rate = o->time[k] > 0 ? log10((double)sizes[k] / o->time[k]) : -1;
                if (rate < y0 || (o->use && !strcmp(o->use, "pingpong"))) continue;
                at += (size_t)snprintf(points + at, sizeof points - at, "%.1f,%.1f ",
                                       left + (log10((double)sizes[k]) - x0) / (x1 - x0) * (w - left - right),
                                       h - bottom - (rate - y0) / (y1 - y0) * (h - top - bottom));
            }
            if (!at) continue;
            const char *dash = part ? " stroke-dasharray=\"2 3\"" : o->peer ? " stroke-dasharray=\"7 4\"" : "";
            double      y = top + 12 + 18 * row;
            fprintf(f, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"%s/>\n", points,
                    colour[row % 12], o->dt && !part ? "2.5" : "1.5", dash);
            fprintf(f, "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" stroke=\"%s\" stroke-width=\"2\"%s/>"
                       "<text x=\"%g\" y=\"%g\" fill=\"#333\">%s</text>\n",
                    w - right + 14, y, w - right + 44, y, colour[row % 12], dash, w - right + 50, y + 4, o->label);
            row++;
        }
    fprintf(f, "</svg>\n");
    fclose(f);
    printf("chart: %s\n", path);
}

/* ---- the parts */
static void add(column *c, int *n, const char *label, const char *name, const char *use, int world, const char *kind)
{
    column *o = &c[*n];
    memset(o, 0, sizeof *o);
    o->label = label;
    o->use = use;
    o->s = side_find(name, world);
    o->shm = strchr(kind, 's') != NULL;
    o->tcp = strchr(kind, 't') != NULL;
    o->dt = strchr(kind, 'd') != NULL;
    o->peer = strchr(kind, 'p') != NULL;
    o->unchecked = strchr(kind, '1') != NULL; /* a ping-pong of a flag: one size */
    o->most = o->unchecked ? 8 : 0;
    if (o->s) ++*n;
}
static int serve(const char *path, const char *name, int world) /* as the older dt of another driver */
{
    static char mine[32];
    if (!strchr(name, '-') || world < 2 || world > MOST_RANKS) return 1;
    snprintf(the_path, sizeof the_path, "%s", path);
    snprintf(mine, sizeof mine, "%s", name);
    return dt_spawn(world, our_rank, mine);
}
int main(int argc, char **argv)
{
    static column c[MOST_COLUMNS], algos[MOST_SIDES * DT_ALGO_COUNT];
    int64_t       worlds[4];
    int           n = 0, nalgos = 0, nworlds = numbers(option(argc, argv, "--ranks", "2,4"), 2, worlds, 4);
    const char   *how = option(argc, argv, "--transports", "shm,tcp");
    const char   *peers = option(argc, argv, "--peers", "mpi,gloo");
    const char   *parts = option(argc, argv, "--parts", "compare,algos,overlap");
    const char   *python = option(argc, argv, "--python", "python3");
    const char   *driver = option(argc, argv, "--serve", NULL);
    char          dir[] = "/tmp/dt-allreduce-XXXXXX";
    if (driver) return serve(driver, option(argc, argv, "--name", ""), (int)worlds[0]);
    the_before = option(argc, argv, "--before", NULL);
    nsizes = numbers(option(argc, argv, "--sizes", "8,1024,16384,131072,1048576,8388608,67108864"), 1, sizes, MOST_SIZES);
    rounds = atoi(option(argc, argv, "--rounds", "9"));
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = 9;
    the_driver = getpid();
    signal(SIGPIPE, SIG_IGN);
    int    listener = mkdtemp(dir) ? listen_at(dir) : -1;
    size_t most = 4096;
    snprintf(the_store, sizeof the_store, "%s/store", dir);
    if (listener < 0) return fprintf(stderr, "bench_allreduce: cannot create a socket under /tmp\n"), 1;
    for (int k = 0; k < nsizes; k++) {
        sizes[k] = (sizes[k] + 3) / 4 * 4;
        if ((size_t)sizes[k] > most) most = ((size_t)sizes[k] + 4095) & ~(size_t)4095;
    }
    bool shm = strstr(how, "shm") != NULL, tcp = strstr(how, "tcp") != NULL, compare = strstr(parts, "compare") != NULL;
    bool beside = strstr(parts, "busy") != NULL, with_peers = compare || beside;
    for (int i = 0; i < nworlds; i++) {
        int w = (int)worlds[i];
        if (w < 2 || w > MOST_RANKS || !(with_peers || strstr(parts, "algos"))) continue;
        if (shm) side_start("dt-shm", w, listener, most, python);
        if (tcp) side_start("dt-tcp", w, listener, most, python);
        if (shm && beside && the_before) side_start("before-shm", w, listener, most, python);
        if (tcp && beside && the_before) side_start("before-tcp", w, listener, most, python);
        if (shm && compare) side_start("bare", w, listener, most, python);
        if (with_peers && strstr(peers, "mpi") && shm) side_start("mpi", w, listener, most, python);
        if (with_peers && strstr(peers, "mpi") && shm) side_start("mpi-none", w, listener, most, python);
        if (with_peers && strstr(peers, "mpi") && tcp) side_start("mpi-tcp", w, listener, most, python);
        if (with_peers && strstr(peers, "gloo")) side_start("gloo", w, listener, most, python);
    }
    for (int i = 0; i < nworlds; i++) {
        int w = (int)worlds[i];
        add(c, &n, "dt", "dt-shm", "plain", w, "sd");
        add(c, &n, "dt, dt_comm_alloc", "dt-shm", "alloc", w, "sd");
        add(c, &n, "bare loop", "bare", "loop", w, "s");
        if (w == 2) add(c, &n, "ping-pong", "bare", "pingpong", w, "s1");
        add(c, &n, "Open MPI", "mpi", NULL, w, "sp");
        add(c, &n, "Open MPI, no single copy", "mpi-none", NULL, w, "sp");
        add(c, &n, "dt, tcp", "dt-tcp", "plain", w, "td");
        add(c, &n, "Open MPI, tcp", "mpi-tcp", NULL, w, "tp");
        add(c, &n, "gloo", "gloo", NULL, w, "stp");
        for (int a = DT_ALGO_DIRECT; a < DT_ALGO_COUNT; a++) {
            const char *name = dt_algo_name((dt_algo)a);
            if (!dt_plan_can(DT_COLL_ALLREDUCE, (dt_algo)a, w, NULL)) continue;
            add(algos, &nalgos, name, "dt-shm", name, w, "sd");
            if (a != DT_ALGO_SHARED) add(algos, &nalgos, name, "dt-tcp", name, w, "td");
        }
    }
    for (int k = 0; k < nsizes && compare; k++) {
        measure(c, n, k, rounds, 0.015);
        judge(c, n, k);
    }
    for (int k = 0; k < nsizes && strstr(parts, "algos"); k++)
        for (int at = 0; at < nalgos; at += MOST_COLUMNS)
            measure(algos + at, nalgos - at < MOST_COLUMNS ? nalgos - at : MOST_COLUMNS, k, 3, 0.01);
    if (beside) {
        int64_t loops[8];
        int     nloops = numbers(option(argc, argv, "--loops", "0,1,2"), 0, loops, 8);
        failures += busy(loops, nloops, worlds, nworlds, shm, tcp);
    }
    for (int i = 0; i < nworlds; i++)
        for (int t = 0; t < 2; t++) {
            if (!(t ? tcp : shm)) continue;
            if (compare) table(c, n, (int)worlds[i], t, "allreduce");
            if (strstr(parts, "algos")) table(algos, nalgos, (int)worlds[i], t, "algorithms");
            if (nsizes > 1 && (compare || strstr(parts, "algos")))
                plot(c, compare ? n : 0, algos, strstr(parts, "algos") ? nalgos : 0, (int)worlds[i], t);
        }
    for (int i = 0; i < nsides; i++) side_end(&sides[i]);
    close(listener);
    remove_all(dir);
    if (strstr(parts, "overlap")) failures += overlap(12.5e6) + overlap(125e6);
    return failures != 0;
}
