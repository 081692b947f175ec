/* Compares messages between two ranks of dt and of Open MPI in one run: make bench-p2p

       bench_p2p [--transports shm,tcp] [--sizes 8,1024,65536,1048576] [--rounds N] [--parts pong,window,pending]

   pong      half of the time that a message takes there and one takes back: dt_comm_send and dt_comm_recv
   window    the rate of 64 messages in flight: dt_comm_send_start and dt_comm_recv_start (p2p.h)
   pending   the time of a message of 8 bytes when 10 to 10,000 receives wait, each with its own tag. Messages come in
             another random order, ten at a time: then the receiver answers, whatever the number of receives. The time
             should not grow by more than 20 %. Also: without answers, all at once.

   Buffers are ordinary memory. For large messages of dt in shared memory there are two more rows: buffers of dt_comm_alloc,
   and views of such messages (dt_comm_recv_view), which the receiver does not read. Open MPI runs with and without
   single-copy transfers; the better one counts. Ratio: more than 1 means that dt is faster. Targets: 1.0 everywhere, 1.3 at
   8 bytes in shared memory. Sides, turns and medians: turns.h. */
#define DT__WANT_INSIDE
#include "dt_comm.h"

#include <sys/mman.h>

#define THE_BENCH "bench_p2p"
#include "p2p.h"
#include "turns.h"

/* ---- dt's ranks */
typedef struct ours {
    p2p      p; /* first: p2p_check finds it */
    dt_comm *c;
    float   *plain, *shared;
    size_t   nplain, nshared; /* bytes of a message that fits */
    bool     alloc, view;
} ours;
static int our_use(rank_side *s, const char *word) /* "pong", "window"; then "-alloc" or "-view" */
{
    ours *o = (ours *)s->self;
    o->p.window = !strncmp(word, "window", 6);
    o->view = strstr(word, "-view") != NULL;
    o->alloc = o->view || strstr(word, "-alloc") != NULL;
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
    *p = (float *)(o->alloc ? dt_comm_alloc(o->c, nbytes * P2P_WINDOW) : malloc(nbytes * P2P_WINDOW));
    *n = *p ? nbytes : 0;
    return *p;
}
static int our_pong(rank_side *s, ours *o, char *x, int64_t n)
{
    int         bad = 0, peer = 1 - s->rank;
    dt_msg_view v;
    if (s->rank == 0) bad = dt_comm_send(o->c, x, n, DT_COMM_U8, peer, .tag = P2P_TAG);
    if (!bad && o->view) bad = dt_comm_recv_view(o->c, &v, DT_COMM_U8, peer, .tag = P2P_TAG);
    else if (!bad) bad = dt_comm_recv(o->c, x + n, n, DT_COMM_U8, peer, .tag = P2P_TAG);
    if (!bad && o->p.check) p2p_see(&o->p, peer, 0, o->view ? (const char *)v.data : x + n, (size_t)n);
    if (!bad && o->view) dt_comm_view_free(o->c, &v);
    if (!bad && s->rank == 1) bad = dt_comm_send(o->c, x, n, DT_COMM_U8, peer, .tag = P2P_TAG);
    return bad;
}
static int our_window(rank_side *s, ours *o, char *x, int64_t n)
{
    static dt_msg_view v[P2P_WINDOW];
    dt_work           *w[P2P_WINDOW];
    int                bad = 0, end = 0;
    for (int k = 0; k < P2P_WINDOW; k++) {
        char *at = x + k * n;
        if (s->rank == 0) w[k] = dt_comm_send_start(o->c, at, n, DT_COMM_U8, 1, .tag = P2P_TAG);
        else if (o->view) w[k] = dt_comm_recv_view_start(o->c, &v[k], DT_COMM_U8, 0, .tag = P2P_TAG);
        else w[k] = dt_comm_recv_start(o->c, at, n, DT_COMM_U8, 0, .tag = P2P_TAG);
    }
    for (int k = 0; k < P2P_WINDOW; k++) {
        bad |= dt_work_wait(w[k]);
        if (bad || !s->rank) continue;
        if (o->p.check) p2p_see(&o->p, 0, k, o->view ? (const char *)v[k].data : x + k * n, (size_t)n);
        if (o->view) dt_comm_view_free(o->c, &v[k]);
    }
    if (!bad && s->rank) bad = dt_comm_send(o->c, &end, 1, DT_COMM_I32, 0, .tag = P2P_TAG);
    else if (!bad) bad = dt_comm_recv(o->c, &end, 1, DT_COMM_I32, 1, .tag = P2P_TAG);
    return bad;
}
static int our_call(rank_side *s, float *x, size_t n)
{
    ours *o = (ours *)s->self;
    return (o->p.window ? our_window : our_pong)(s, o, (char *)x, (int64_t)(n * sizeof *x));
}
static int our_rank(void *name) /* "dt-shm", "dt-tcp" */
{
    ours      o;
    rank_side s = { 0, 0, our_use, our_buffer, our_call, NULL, p2p_check, &o };
    memset(&o, 0, sizeof o);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(atoi(getenv("RANK")), 2);
    o.c = dt_comm_init(.transport = (const char *)name + 3);
    if (!o.c) return fprintf(stderr, "bench_p2p: %s\n", dt_comm_error(NULL)), 1;
    s.rank = dt_comm_rank(o.c);
    s.world = dt_comm_size(o.c);
    int bad = rank_serve(&s, the_path, (const char *)name);
    if (bad && dt_comm_error(o.c)) fprintf(stderr, "bench_p2p: %s\n", dt_comm_error(o.c));
    dt_comm_dealloc(o.c, o.shared);
    free(o.plain);
    dt_comm_free(o.c);
    return bad;
}

/* ---- many pending receives */
enum { PENDING_MOST = 10000, PENDING_SIZES = 4, PENDING_ROUNDS = 61 };
static const int pending_of[PENDING_SIZES] = { 10, 100, 1000, PENDING_MOST };
typedef struct pending {
    const char *transport;
    double      turn[2][PENDING_SIZES][PENDING_ROUNDS]; /* seconds a message: in tens, all at once */
} pending;
static void shuffle(int *v, int n, uint64_t x)
{
    for (int i = n - 1; i > 0; i--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        int k = (int)(x % (uint64_t)(i + 1)), t = v[i];
        v[i] = v[k];
        v[k] = t;
    }
}
/* n receives wait, the messages come, `group` at a time. Always PENDING_MOST messages: several such turns if n is less.
   Seconds a message. */
static int pending_run(dt_comm *c, int n, int group, uint64_t seed, double *seconds)
{
    static int      tag[PENDING_MOST], order[PENDING_MOST], at[PENDING_MOST];
    static int64_t  in[PENDING_MOST];
    static dt_work *w[PENDING_MOST];
    int             bad = 0, rank = dt_comm_rank(c);
    int64_t         answer = 0;
    *seconds = 0;
    for (int first = 0; first < PENDING_MOST && !bad; first += n) {
        for (int i = 0; i < n; i++) tag[i] = order[i] = i;
        shuffle(tag, n, seed + (uint64_t)first);
        shuffle(order, n, seed * 31 + (uint64_t)first);
        for (int i = 0; i < n; i++) at[tag[i]] = i;
        for (int i = 0; i < n && rank; i++) w[i] = dt_comm_recv_start(c, &in[i], 1, DT_COMM_I64, 0, .tag = tag[i]);
        bad = dt_comm_barrier(c);
        double t = now();
        for (int i = 0; i < n && !bad; i++) {
            int64_t out = order[i];
            int     k = at[order[i]]; /* the receive of this message */
            if (!rank) bad = dt_comm_send(c, &out, 1, DT_COMM_I64, 1, .tag = order[i]);
            else bad = dt_work_wait(w[k]) || in[k] != tag[k];
            if (bad || (i + 1) % group) continue;
            if (rank) bad = dt_comm_send(c, &answer, 1, DT_COMM_I64, 0, .tag = PENDING_MOST);
            else bad = dt_comm_recv(c, &answer, 1, DT_COMM_I64, 1, .tag = PENDING_MOST);
        }
        *seconds += (now() - t) / PENDING_MOST;
    }
    return bad;
}
static int pending_rank(void *arg)
{
    pending *p = (pending *)arg;
    double   t;
    pin(atoi(getenv("RANK")), 2);
    dt_comm *c = dt_comm_init(.transport = p->transport);
    if (!c) return fprintf(stderr, "bench_p2p: %s\n", dt_comm_error(NULL)), 1;
    int bad = pending_run(c, PENDING_MOST, PENDING_MOST, 1, &t);
    for (int r = 0; r < PENDING_ROUNDS; r++)
        for (int k = 0; k < 2 * PENDING_SIZES && !bad; k++) {
            int n = pending_of[k / 2];
            bad = pending_run(c, n, k % 2 ? n : pending_of[0], 5u + (uint64_t)r, &t);
            if (dt_comm_rank(c) == 0) p->turn[k % 2][k / 2][r] = t; /* the sender: it has all answers */
        }
    if (bad) fprintf(stderr, "bench_p2p: pending: %s\n", dt_comm_error(c) ? dt_comm_error(c) : "a wrong message");
    return dt_comm_free(c) || bad;
}
static int pendings(const char *transport)
{
    pending *p = (pending *)mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double   grows[PENDING_ROUNDS];
    if (p == MAP_FAILED) return 1;
    p->transport = transport;
    if (dt_spawn(2, pending_rank, p)) return fprintf(stderr, "bench_p2p: pending: a rank failed\n"), 1;
    for (int r = 0; r < PENDING_ROUNDS; r++) grows[r] = p->turn[0][PENDING_SIZES - 1][r] / p->turn[0][0][r];
    for (int k = 0; k < PENDING_SIZES; k++)
        printf("%s, pending %d: %.3f us a message; all at once %.3f us\n", transport, pending_of[k],
               median(p->turn[0][k], PENDING_ROUNDS) * 1e6, median(p->turn[1][k], PENDING_ROUNDS) * 1e6);
    double g = median(grows, PENDING_ROUNDS);
    printf("%s, pending: from %d to %d receives the time grows by %.0f %%%s\n", transport, pending_of[0], PENDING_MOST,
           100 * (g - 1), g > 1.2 ? "  (above the target)" : "");
    munmap(p, sizeof *p);
    return 0;
}

/* ---- the driver */
static void side_start(const char *name, int listener)
{
    side *s = &sides[nsides++];
    side_new(s, name, 2);
    if (!strncmp(name, "dt-", 3)) {
        s->pid[s->npid++] = child(NULL);
        if (!s->pid[0]) _exit(dt_spawn(2, our_rank, s->name));
    } else side_mpi(s, "build/bench/peer_p2p_mpi");
    side_up(s, listener, strncmp(name, "mpi", 3) ? NULL : "Open MPI (mpirun, build/bench/peer_p2p_mpi)");
}
static void add(column *c, int *n, const char *label, const char *name, const char *use, int64_t least)
{
    column *o = &c[*n];
    memset(o, 0, sizeof *o);
    o->label = label;
    o->use = use;
    o->s = side_find(name, 2);
    o->tcp = strstr(name, "-tcp") != NULL;
    o->shm = !o->tcp;
    o->dt = !strncmp(name, "dt-", 3);
    o->peer = !o->dt;
    o->least = least;
    if (o->s) ++*n;
}
/* Compares dt with the better one of Open MPI's columns at the size measured last. */
static void judge(const column *c, int n, int k, bool window)
{
    for (int i = 0; i < n; i++) {
        const column *p = best_peer(c, n, 2, c[i].tcp, k);
        if (!c[i].dt || !c[i].time[k] || !p) continue;
        double      r = ratio(p, &c[i], rounds), mega = (double)(sizes[k] * P2P_WINDOW) * 1e-6;
        const char *kind = strchr(c[i].use, '-') ? strchr(c[i].use, '-') : "";
        double      a = window ? mega / c[i].time[k] : c[i].time[k] * 1e6 / 2, b = window ? mega / p->time[k] : p->time[k] * 1e6 / 2;
        const char *unit = window ? "MB/s" : "us";
        printf("p2p-%s-%s%s-%s: dt %.*f %s, %s %.*f %s, ratio %.2f%s\n", window ? "window" : "pong", c[i].tcp ? "tcp" : "shm", kind,
               size_text(sizes[k]), window ? 0 : 2, a, unit, p->label, window ? 0 : 2, b, unit, r,
               verdict(r, !window && sizes[k] == 8 && c[i].shm ? 1.3 : 1.0));
    }
    fflush(stdout);
}
int main(int argc, char **argv)
{
    static column c[MOST_COLUMNS];
    const char   *how = option(argc, argv, "--transports", "shm,tcp"), *parts = option(argc, argv, "--parts", "pong,window,pending");
    char          dir[] = "/tmp/dt-p2p-XXXXXX";
    bool          shm = strstr(how, "shm") != NULL, tcp = strstr(how, "tcp") != NULL;
    nsizes = numbers(option(argc, argv, "--sizes", "8,1024,65536,1048576"), 1, sizes, MOST_SIZES);
    rounds = atoi(option(argc, argv, "--rounds", "15"));
    if (rounds < 1 || rounds > MOST_ROUNDS) rounds = 15;
    the_driver = getpid();
    signal(SIGPIPE, SIG_IGN);
    int listener = mkdtemp(dir) ? listen_at(dir) : -1;
    if (listener < 0) return fprintf(stderr, "bench_p2p: cannot create a socket under /tmp\n"), 1;
    bool compare = strstr(parts, "pong") || strstr(parts, "window");
    if (compare && shm) side_start("dt-shm", listener), side_start("mpi", listener), side_start("mpi-none", listener);
    if (compare && tcp) side_start("dt-tcp", listener), side_start("mpi-tcp", listener);
    for (int window = 0; window < 2; window++) {
        int n = 0;
        if (!strstr(parts, window ? "window" : "pong")) continue;
        add(c, &n, "dt", "dt-shm", window ? "window" : "pong", 0);
        add(c, &n, "dt, dt_comm_alloc", "dt-shm", window ? "window-alloc" : "pong-alloc", 32 << 10);
        add(c, &n, "dt, views", "dt-shm", window ? "window-view" : "pong-view", 32 << 10);
        add(c, &n, "Open MPI", "mpi", window ? "window" : "pong", 0);
        add(c, &n, "Open MPI without single copy", "mpi-none", window ? "window" : "pong", 0);
        add(c, &n, "dt, tcp", "dt-tcp", window ? "window" : "pong", 0);
        add(c, &n, "Open MPI", "mpi-tcp", window ? "window" : "pong", 0);
        for (int k = 0; k < nsizes; k++) {
            sizes[k] = (sizes[k] + 3) / 4 * 4;
            measure(c, n, k, rounds, 0.01);
            judge(c, n, k, window);
        }
    }
    for (int i = 0; i < nsides; i++) side_end(&sides[i]);
    close(listener);
    remove_all(dir);
    if (strstr(parts, "pending") && shm) failures += pendings("shm");
    if (strstr(parts, "pending") && tcp) failures += pendings("tcp");
    return failures != 0;
}
