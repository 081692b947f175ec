/* test_comm.c: collectives of threads, of processes over shared memory and over TCP: all algorithms, dtypes, sizes;
   work in flight; misuse; ranks that die, stop or do not come
   run: alone, long, asan-later */
#define DT__WANT_INSIDE
#include "dt_comm.h"
#include "harness.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

UTEST_MAIN()

enum { MOST = 16 };
typedef struct team {
    int      n;
    dt_comm *comm[MOST];
    void   (*fn)(struct team *t, dt_comm *c, int rank);
    void    *arg;
    int      failed; /* atomic */
    int      status; /* of dt_spawn */
    int      dies;   /* somebody is meant to */
    int      told;   /* survivors that said the right thing */
    int64_t  when, slowest; /* of a death; of hearing of it, ns */
} team;
typedef struct player {
    team *t;
    int   rank;
} player;
static void *play(void *arg)
{
    player *p = (player *)arg;
    p->t->fn(p->t, p->t->comm[p->rank], p->rank);
    return NULL;
}
/* the same with processes; how: "shm" or "tcp" */
static const char *spawn_how, *spawn_algo;
static double      spawn_timeout, spawn_bandwidth;
static const char *spawn_odd_algo; /* of rank 1 */
static int         spawned(void *arg)
{
    team       *t = (team *)arg;
    const char *algo = spawn_odd_algo && atoi(getenv("RANK")) == 1 ? spawn_odd_algo : spawn_algo;
    dt_comm *c = dt_comm_init(.transport = spawn_how, .algo = algo, .timeout = spawn_timeout, .join_timeout = 20,
                              .bandwidth = spawn_bandwidth);
    if (!c) {
        printf("    init: %s\n", dt_comm_error(NULL));
        return 1;
    }
    t->comm[dt_comm_rank(c)] = c; /* each process sees its own: it is written before it is read */
    t->fn(t, c, dt_comm_rank(c));
    return 0;
}
static int spawn(const char *how, int n, const char *algo, double timeout, void (*fn)(team *t, dt_comm *c, int rank),
                 void *arg)
{
    team *t = (team *)mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) return 1000;
    t->n = n;
    t->fn = fn;
    t->arg = arg;
    spawn_how = how;
    spawn_algo = algo;
    spawn_timeout = timeout;
    t->status = dt_spawn(n, spawned, t);
    int failed = t->failed + (t->status != 0 && !t->dies ? 100 : 0);
    munmap(t, sizeof *t);
    return failed;
}
/* fn on n ranks; how many checks failed */
static bool run_no_thread;
static int  run(int n, const char *algo, double timeout, void (*fn)(team *t, dt_comm *c, int rank), void *arg)
{
    team         t;
    pthread_t    thread[MOST];
    player       p[MOST];
    dt_comm_opts o;
    memset(&t, 0, sizeof t);
    memset(&o, 0, sizeof o);
    t.n = n;
    t.fn = fn;
    t.arg = arg;
    o.algo = algo;
    o.timeout = timeout;
    o.no_thread = run_no_thread;
    if (dt_comm_threads_with(n, t.comm, o)) return 1000;
    for (int i = 0; i < n; i++) {
        p[i].t = &t;
        p[i].rank = i;
        pthread_create(&thread[i], NULL, play, &p[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    return t.failed;
}
static void check(team *t, bool ok, const char *what, int rank, int64_t n)
{
    if (ok) return;
    if (__atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED) < 5)
        printf("    %s: rank %d of %d, n %lld: %s\n", what, rank, t->n, (long long)n,
               dt_comm_error(t->comm[rank]) ? dt_comm_error(t->comm[rank]) : "");
    fflush(stdout);
}

/* ==================================================================================================== values */
static double half_of(uint16_t h)
{
    int    e = (h >> 10) & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}
static void put(void *buf, int64_t i, int dtype, int v) /* small whole numbers: exact in every dtype */
{
    float    f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (dtype) {
    case DT_COMM_F32: ((float *)buf)[i] = f; break;
    case DT_COMM_F64: ((double *)buf)[i] = v; break;
    case DT_COMM_BF16: ((uint16_t *)buf)[i] = (uint16_t)(bits >> 16); break;
    case DT_COMM_F16:
        if (!v) ((uint16_t *)buf)[i] = 0;
        else
            ((uint16_t *)buf)[i] =
                (uint16_t)((bits >> 16 & 0x8000) | ((((bits >> 23) & 255) - 112) << 10) | (bits >> 13 & 1023));
        break;
    case DT_COMM_I32: ((int32_t *)buf)[i] = v; break;
    case DT_COMM_I64: ((int64_t *)buf)[i] = v; break;
    default: ((uint8_t *)buf)[i] = (uint8_t)v; break;
    }
}
static double get(const void *buf, int64_t i, int dtype)
{
    float    f;
    uint32_t bits;
    switch (dtype) {
    case DT_COMM_F32: return ((const float *)buf)[i];
    case DT_COMM_F64: return ((const double *)buf)[i];
    case DT_COMM_F16: return half_of(((const uint16_t *)buf)[i]);
    case DT_COMM_BF16:
        bits = (uint32_t)((const uint16_t *)buf)[i] << 16;
        memcpy(&f, &bits, 4);
        return f;
    case DT_COMM_I32: return ((const int32_t *)buf)[i];
    case DT_COMM_I64: return (double)((const int64_t *)buf)[i];
    default: return ((const uint8_t *)buf)[i];
    }
}
static int value(int rank, int64_t i) { return (int)((rank * 5 + i * 3) % 7); }
static double reduced(int n, int64_t i, int op)
{
    double r = value(0, i);
    for (int k = 1; k < n; k++) {
        double v = value(k, i);
        r = op == DT_COMM_MIN ? (v < r ? v : r) : op == DT_COMM_MAX ? (v > r ? v : r) : op == DT_COMM_PROD ? r * v
            : op == DT_COMM_OR ? (double)((int)r | (int)v) : r + v;
    }
    return op == DT_COMM_MEAN ? r / n : r;
}
static const int64_t sizes[] = { 0, 1, 2, 3, 5, 11, 12, 13, 64, 257, 1024, 1025, 4097, 33000, 70001 };
enum { SIZES = sizeof sizes / sizeof *sizes };

static void allreduce_sizes(team *t, dt_comm *c, int rank)
{
    for (int k = 0; k < SIZES; k++) {
        int64_t n = sizes[k];
        float  *x = (float *)malloc((size_t)n * 4 + 4);
        for (int64_t i = 0; i < n; i++) x[i] = (float)value(rank, i);
        x[n] = 77;
        bool ok = !dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM) && x[n] == 77;
        for (int64_t i = 0; ok && i < n; i++) ok = x[i] == (float)reduced(t->n, i, DT_COMM_SUM);
        check(t, ok, "allreduce", rank, n);
        free(x);
    }
    check(t, !dt_comm_free(c), "free", rank, 0);
}
UTEST(allreduce, every_algorithm_world_and_size)
{
    static const char *const algo[] = { NULL,      "direct", "alltoall",  "tree",   "ring",  "doubling",
                                        "halving", "blocks", "two_level", "leader", "shared" };
    for (int a = 0; a < 11; a++)
        for (int n = 1; n <= (getenv("DT_TEST_QUICK") ? 5 : 9); n++) {
            if (algo[a] && dt_algo_find(algo[a]) == DT_ALGO_COUNT) printf("    no %s\n", algo[a]);
            EXPECT_EQ(0, run(n, algo[a], 20, allreduce_sizes, NULL));
        }
}
UTEST(allreduce, processes)
{
    static const char *const algo[] = { NULL, "ring", "halving", "blocks", "tree" };
    for (int a = 0; a < (getenv("DT_TEST_QUICK") ? 2 : 5); a++)
        for (int n = 2; n <= 5; n += a ? 3 : 1) {
            EXPECT_EQ(0, spawn("shm", n, algo[a], 20, allreduce_sizes, NULL));
            EXPECT_EQ(0, spawn("tcp", n, algo[a], 20, allreduce_sizes, NULL));
        }
}
static void in_place(team *t, dt_comm *c, int rank) /* memory of the communicator, given back and taken again */
{
    for (int round = 0; round < 3; round++) {
        float *x[SIZES];
        for (int k = 0; k < SIZES; k++) x[k] = (float *)dt_comm_alloc(c, (size_t)sizes[k] * 4);
        for (int k = SIZES - 1; k >= 0; k--) {
            for (int64_t i = 0; x[k] && i < sizes[k]; i++) x[k][i] = (float)value(rank, i);
            bool ok =
                x[k] && (uintptr_t)x[k] % 64 == 0 && !dt_comm_allreduce(c, x[k], sizes[k], DT_COMM_F32, DT_COMM_SUM);
            for (int64_t i = 0; ok && i < sizes[k]; i++) ok = x[k][i] == (float)reduced(t->n, i, DT_COMM_SUM);
            check(t, ok, "in place", rank, sizes[k]);
        }
        for (int k = 0; k < SIZES; k++) dt_comm_dealloc(c, x[(k * 7) % SIZES]);
    }
    /* more than a rank reduces in one go */
    float *z = (float *)dt_comm_alloc(c, 4 * 600001);
    for (int i = 0; z && i < 600001; i++) z[i] = (float)value(rank, i);
    bool ok = z && !dt_comm_allreduce(c, z, 600001, DT_COMM_F32, DT_COMM_SUM);
    for (int i = 0; ok && i < 600001; i++) ok = z[i] == (float)reduced(t->n, i, DT_COMM_SUM);
    check(t, ok, "large", rank, 600001);
    dt_comm_dealloc(c, z);
    /* one rank has ordinary memory: all fall back */
    float *y = rank ? (float *)dt_comm_alloc(c, 400000) : (float *)malloc(400000);
    for (int i = 0; i < 100000; i++) y[i] = (float)value(rank, i);
    ok = !dt_comm_allreduce(c, y, 100000, DT_COMM_F32, DT_COMM_MEAN);
    for (int i = 0; ok && i < 100000; i++) ok = fabs(y[i] - reduced(t->n, i, DT_COMM_MEAN)) < 1e-5;
    check(t, ok, "mixed", rank, 100000);
    if (rank) dt_comm_dealloc(c, y);
    else free(y);
    check(t, !dt_comm_alloc(c, (size_t)1 << 60), "too much", rank, 0);
    dt_comm_free(c);
}
UTEST(asking, what_a_communicator_was_made_with)
{
    dt_comm *c = dt_comm_init(.world = 1, .no_thread = true, .timeout = 7);
    ASSERT_TRUE(c != NULL);
    EXPECT_TRUE(dt_comm_options(c)->no_thread);
    EXPECT_EQ(7.0, dt_comm_options(c)->timeout);
    EXPECT_EQ(0, dt_comm_options(c)->backend);
    EXPECT_EQ(0, dt_comm_free(c));
    EXPECT_FALSE(dt_comm_options(NULL)->no_thread);
}
static int unknown_transport(void *arg)
{
    dt_comm *c = dt_comm_init(.transport = (const char *)arg, .join_timeout = 20 * dt_test_slow());
    if (!c && strstr(dt_comm_error(NULL), "is unknown; expected one of: auto, shm, tcp, mpi")) return 0;
    return printf("    %s\n", c ? "it was accepted" : dt_comm_error(NULL)) > 0;
}
UTEST(transports, unknown_names_are_refused_with_the_list)
{
    static const struct {
        const char *name, *says;
    } wrong[] = { { "pigeon", "dt_comm_init: transport \"pigeon\" is unknown; expected one of: auto, shm, tcp, mpi" },
                  { "threads", "transport \"threads\" is opened by dt_comm_threads, not by dt_comm_init" },
                  { "sim", "transport \"sim\" is opened by dt_sim_new of dt_sim.h, not by dt_comm_init" },
                  { "mpi", "transport \"mpi\" is not in this program: include dt_mpi.h" } };
    for (int i = 0; i < 4; i++) {
        dt_comm *c = dt_comm_init(.transport = wrong[i].name);
        EXPECT_TRUE(c == NULL);
        EXPECT_TRUE(strstr(dt_comm_error(NULL), wrong[i].says) != NULL);
        if (c) dt_comm_free(c);
    }
    static const char *const right[] = { "", "auto", "shm", "tcp" };
    for (int i = 0; i < 4; i++) {
        dt_comm *c = dt_comm_init(.transport = right[i]);
        EXPECT_TRUE(c != NULL);
        EXPECT_EQ(0, c ? dt_comm_free(c) : 0);
    }
    EXPECT_EQ(0, dt_spawn(3, unknown_transport, (void *)"pigeon")); /* all ranks learn of it */
}
UTEST(allreduce, in_memory_of_the_communicator)
{
    EXPECT_EQ(0, spawn("shm", 2, NULL, 20, in_place, NULL));
    EXPECT_EQ(0, spawn("shm", 5, NULL, 20, in_place, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, NULL, 20, in_place, NULL));
    EXPECT_EQ(0, run(3, NULL, 20, in_place, NULL));
}
/* 4 MiB for each rank: what is given back can be had again, whole; more than there is cannot, and nobody else's */
static void arena(team *t, dt_comm *c, int rank)
{
    static const int order[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    size_t           mib = (size_t)1 << 20;
    for (int k = 0; k < 6; k++) {
        char *x = (char *)dt_comm_alloc(c, 3 * mib), *part[3];
        bool  ok = x && !dt_comm_alloc(c, 2 * mib);
        if (x) memset(x, rank + 1, 3 * mib);
        check(t, ok && !dt_comm_barrier(c), "all of it", rank, k);
        for (size_t i = 0; ok && i < 3 * mib; i++) ok = x[i] == rank + 1;
        dt_comm_dealloc(c, x);
        for (int i = 0; i < 3; i++) ok = (part[i] = (char *)dt_comm_alloc(c, mib)) != NULL && ok;
        for (int i = 0; ok && i < 3; i++) memset(part[i], 10 * rank + i, mib);
        for (int i = 0; ok && i < 3; i++) ok = part[i][0] == 10 * rank + i && part[i][mib - 1] == 10 * rank + i;
        for (int i = 0; i < 3; i++) dt_comm_dealloc(c, part[order[k][i]]);
        check(t, ok && !dt_comm_barrier(c), "in parts", rank, k);
    }
    dt_comm_free(c);
}
UTEST(memory, what_is_given_back_is_had_again)
{
    char *before = getenv("DT_COMM_ARENA") ? strdup(getenv("DT_COMM_ARENA")) : NULL;
    setenv("DT_COMM_ARENA", "4", 1);
    EXPECT_EQ(0, spawn("shm", 2, NULL, 20, arena, NULL));
    if (before) setenv("DT_COMM_ARENA", before, 1);
    else unsetenv("DT_COMM_ARENA");
    free(before);
}
static void allreduce_kinds(team *t, dt_comm *c, int rank)
{
    for (int dtype = 0; dtype < DT_COMM_DTYPES; dtype++)
        for (int op = 0; op < DT_COMM_OPS; op++)
            for (int k = 0; k < 3; k++) {
                static const int64_t count[] = { 5, 700, 40000 };
                int64_t              n = count[k];
                bool                 whole = dtype == DT_COMM_I32 || dtype == DT_COMM_I64 || dtype == DT_COMM_U8;
                char                *x = (char *)malloc((size_t)n * 8);
                if (op == DT_COMM_OR && !whole) {
                    free(x);
                    continue;
                }
                for (int64_t i = 0; i < n; i++)
                    put(x, i, dtype, op == DT_COMM_PROD ? value(rank, i) % 3 : value(rank, i));
                bool ok = !dt_comm_allreduce(c, x, n, dtype, op);
                for (int64_t i = 0; ok && i < n; i++) {
                    double want = reduced(t->n, i, op);
                    if (op == DT_COMM_PROD) {
                        want = 1;
                        for (int r = 0; r < t->n; r++) want *= value(r, i) % 3;
                    }
                    if (whole) want = floor(want);
                    double tol = dtype == DT_COMM_BF16  ? 0.01 * want
                                 : dtype == DT_COMM_F16 ? 0.002 * want
                                 : op == DT_COMM_MEAN   ? 1e-6 * want
                                                        : 0;
                    ok = fabs(get(x, i, dtype) - want) <= (whole ? 0 : tol);
                    if (!ok)
                        printf("    dtype %d op %d i %lld got %g want %g\n", dtype, op, (long long)i, get(x, i, dtype),
                               want);
                }
                check(t, ok, "allreduce", rank, n);
                free(x);
            }
    dt_comm_free(c);
}
UTEST(allreduce, every_dtype_and_reduction)
{
    EXPECT_EQ(0, run(4, NULL, 20, allreduce_kinds, NULL));
    EXPECT_EQ(0, run(3, "ring", 20, allreduce_kinds, NULL));
}
static void others(team *t, dt_comm *c, int rank)
{
    int p = t->n;
    for (int k = 0; k < 11; k++) {
        int64_t n = sizes[k], total = 0, counts[MOST], at[MOST + 1], recvs[MOST];
        for (int v = 0; v < 2; v++) { /* equal segments, and segments that differ */
            total = 0;
            for (int r = 0; r < p; r++) {
                counts[r] = v ? (r * 3 + n) % (n + 2) : n;
                at[r] = total;
                total += counts[r];
            }
            at[p] = total;
            int32_t *all = (int32_t *)calloc((size_t)total + 1, 4), *mine = (int32_t *)calloc((size_t)total + 1, 4);
            bool     ok = true;
            for (int64_t i = 0; i < counts[rank]; i++) mine[i] = (int32_t)(rank * 1000 + i);
            ok = !dt_comm_allgather(c, mine, all, n, v ? counts : NULL, DT_COMM_I32);
            for (int r = 0; r < p && ok; r++)
                for (int64_t i = 0; i < counts[r] && ok; i++) ok = all[at[r] + i] == r * 1000 + i;
            check(t, ok, "allgather", rank, n);
            for (int64_t i = 0; i < total; i++) all[i] = value(rank, i);
            ok = !dt_comm_reduce_scatter(c, all, mine, n, v ? counts : NULL, DT_COMM_I32, DT_COMM_SUM);
            for (int64_t i = 0; i < counts[rank] && ok; i++)
                ok = mine[i] == (int32_t)reduced(p, at[rank] + i, DT_COMM_SUM);
            for (int64_t i = 0; i < total && ok; i++) ok = all[i] == value(rank, i); /* in is left as it was */
            check(t, ok, "reduce_scatter", rank, n);
            int root = k % p;
            for (int64_t i = 0; i < counts[rank]; i++) mine[i] = (int32_t)(rank * 1000 + i);
            memset(all, 0, (size_t)total * 4);
            ok = !dt_comm_gather(c, mine, all, n, v ? counts : NULL, DT_COMM_I32, root);
            for (int r = 0; rank == root && r < p && ok; r++)
                for (int64_t i = 0; i < counts[r] && ok; i++) ok = all[at[r] + i] == r * 1000 + i;
            check(t, ok, "gather", rank, n);
            memset(mine, 0, (size_t)total * 4);
            ok = !dt_comm_scatter(c, rank == root ? all : NULL, mine, n, v ? counts : NULL, DT_COMM_I32, root);
            for (int64_t i = 0; i < counts[rank] && ok; i++) ok = mine[i] == rank * 1000 + i;
            check(t, ok, "scatter", rank, n);
            /* rank s sends (s + r) % 3 + n elements to r, or n */
            int64_t sends[MOST], out_n = 0, in_n = 0;
            for (int r = 0; r < p; r++) {
                sends[r] = v ? (rank + 2 * r) % 3 + n : n;
                recvs[r] = v ? (r + 2 * rank) % 3 + n : n;
                out_n += sends[r];
                in_n += recvs[r];
            }
            int32_t *go = (int32_t *)calloc((size_t)out_n + 1, 4), *come = (int32_t *)calloc((size_t)in_n + 1, 4),
                    *w = go;
            for (int r = 0; r < p; r++)
                for (int64_t i = 0; i < sends[r]; i++) *w++ = (int32_t)(rank * 100000 + r * 1000 + i);
            ok = !dt_comm_alltoall(c, go, come, n, v ? sends : NULL, v ? recvs : NULL, DT_COMM_I32);
            w = come;
            for (int r = 0; r < p && ok; r++)
                for (int64_t i = 0; i < recvs[r] && ok; i++) ok = *w++ == r * 100000 + rank * 1000 + i;
            check(t, ok, "alltoall", rank, n);
            free(go);
            free(come);
            free(all);
            free(mine);
        }
        double *x = (double *)malloc((size_t)n * 8 + 8);
        for (int64_t i = 0; i < n; i++) x[i] = value(rank, i);
        bool ok = !dt_comm_reduce(c, x, n, DT_COMM_F64, DT_COMM_SUM, k % p);
        for (int64_t i = 0; ok && i < n; i++)
            ok = x[i] == (rank == k % p ? reduced(p, i, DT_COMM_SUM) : value(rank, i));
        check(t, ok, "reduce", rank, n);
        for (int64_t i = 0; i < n; i++) x[i] = rank == k % p ? value(9, i) : -1;
        ok = !dt_comm_broadcast(c, x, n, DT_COMM_F64, k % p);
        for (int64_t i = 0; ok && i < n; i++) ok = x[i] == value(9, i);
        check(t, ok, "broadcast", rank, n);
        free(x);
    }
    check(t, !dt_comm_barrier(c), "barrier", rank, 0);
    dt_comm_free(c);
}
UTEST(collectives, all_of_them_with_every_algorithm)
{
    static const char *const algo[] = { NULL,      "direct", "tree",  "ring",    "doubling",
                                        "halving", "bruck",  "chain", "scatter", "pairs" };
    for (int a = 0; a < 10; a++)
        for (int n = 1; n <= (getenv("DT_TEST_QUICK") ? 3 : 6); n++) EXPECT_EQ(0, run(n, algo[a], 20, others, NULL));
}

static void every_root(team *t, dt_comm *c, int rank) /* the same count: plans are kept */
{
    for (int round = 0; round < 2; round++)
        for (int root = 0; root < t->n; root++) {
            int32_t x[100], y[100];
            for (int i = 0; i < 100; i++) x[i] = rank == root ? value(root, i) : -1, y[i] = value(rank, i);
            bool ok = !dt_comm_broadcast(c, x, 100, DT_COMM_I32, root) &&
                      !dt_comm_reduce(c, y, 100, DT_COMM_I32, DT_COMM_SUM, root);
            for (int i = 0; ok && i < 100; i++)
                ok = x[i] == value(root, i) &&
                     y[i] == (rank == root ? (int32_t)reduced(t->n, i, DT_COMM_SUM) : value(rank, i));
            check(t, ok, "root", rank, root);
        }
    dt_comm_free(c);
}
UTEST(collectives, every_root)
{
    EXPECT_EQ(0, run(3, NULL, 20, every_root, NULL));
    EXPECT_EQ(0, run(4, "tree", 20, every_root, NULL));
}

UTEST(collectives, processes)
{
    EXPECT_EQ(0, spawn("shm", 3, NULL, 20, others, NULL));
    EXPECT_EQ(0, spawn("tcp", 3, NULL, 20, others, NULL));
    EXPECT_EQ(0, spawn("tcp", 4, "ring", 20, others, NULL));
}
static void splits(team *t, dt_comm *c, int rank)
{
    dt_comm *part = NULL, *again = NULL, *none = NULL;
    int32_t  x = rank, y = 1;
    check(t, !dt_comm_split(c, rank % 2, -rank, &part) && part, "split", rank, 0);
    check(t, dt_comm_size(part) == (t->n + 1 - rank % 2) / 2, "size", rank, dt_comm_size(part));
    check(t, dt_comm_rank(part) == (t->n - 1 - rank) / 2 , "order", rank, dt_comm_rank(part)); /* by key: backwards */
    check(t, !dt_comm_allreduce(part, &x, 1, DT_COMM_I32, DT_COMM_SUM), "sum", rank, 0);
    int want = 0;
    for (int r = rank % 2; r < t->n; r += 2) want += r;
    check(t, x == want, "sum of a part", rank, x);
    check(t, !dt_comm_dup(c, &again) && dt_comm_rank(again) == rank, "dup", rank, 0);
    dt_work *w = dt_comm_allreduce_start(c, &y, 1, DT_COMM_I32, DT_COMM_SUM); /* both at once */
    int32_t  z = 2;
    check(t, !dt_comm_allreduce(again, &z, 1, DT_COMM_I32, DT_COMM_SUM) && z == 2 * t->n, "beside", rank, z);
    int rc = dt_work_wait(w); /* before y is an argument */
    check(t, !rc && y == t->n, "beside it", rank, y);
    check(t, !dt_comm_split(c, rank ? 0 : -1, 0, &none) && !none == !rank, "no colour", rank, 0);
    check(t, !rank || dt_comm_rank(none) == rank - 1, "equal keys: by rank", rank, dt_comm_rank(none));
    check(t, dt_comm_local_rank(part) == dt_comm_rank(part) && dt_comm_local_size(part) == dt_comm_size(part), "local",
          rank, dt_comm_local_rank(part));
    dt_comm_free(none);
    dt_comm_free(part);
    dt_comm_free(again);
    check(t, !dt_comm_free(c), "free", rank, 0);
}
UTEST(collectives, parts_of_a_communicator)
{
    EXPECT_EQ(0, spawn("shm", 4, NULL, 20, splits, NULL));
    EXPECT_EQ(0, spawn("tcp", 5, NULL, 20, splits, NULL));
}

/* ==================================================================================================== in flight */
static void many_works(team *t, dt_comm *c, int rank)
{
    enum { WORKS = 40 };
    static float x[MOST][WORKS][300];
    dt_work     *w[WORKS];
    for (int k = 0; k < WORKS; k++) {
        for (int i = 0; i < 300; i++) x[rank][k][i] = (float)(value(rank, i) + k);
        w[k] = dt_comm_allreduce_start(c, x[rank][k], 1 + k * 7, DT_COMM_F32, DT_COMM_SUM);
    }
    float y = (float)rank; /* a blocking one behind them */
    check(t, !dt_comm_allreduce(c, &y, 1, DT_COMM_F32, DT_COMM_SUM) && y == (float)(t->n * (t->n - 1) / 2), "blocking",
          rank, 1);
    for (int left = WORKS; left; left--) {
        int k = dt_work_wait_any(w, WORKS);
        check(t, k >= 0 && dt_work_test(w[k]), "wait_any", rank, k);
        if (k < 0) return;
        bool ok = !dt_work_wait(w[k]);
        w[k] = NULL;
        for (int i = 0; ok && i < 1 + k * 7; i++)
            ok = x[rank][k][i] == (float)(reduced(t->n, i, DT_COMM_SUM) + t->n * k);
        check(t, ok, "work", rank, k);
    }
    check(t, dt_work_wait_any(w, WORKS) == -1, "none left", rank, 0);
    dt_comm_free(c);
}
UTEST(work, any_number_in_flight_in_the_order_of_their_start)
{
    EXPECT_EQ(0, run(2, NULL, 20, many_works, NULL));
    EXPECT_EQ(0, run(5, "ring", 20, many_works, NULL));
    EXPECT_EQ(0, spawn("shm", 3, NULL, 20, many_works, NULL));
    EXPECT_EQ(0, spawn("tcp", 3, NULL, 20, many_works, NULL));
}
static void round_trip(team *t, dt_comm *c, int rank)
{
    for (int64_t n = 1; n < 200000; n = n * 3 + 1) {
        int32_t *a = (int32_t *)malloc((size_t)n * 4), *b = (int32_t *)malloc((size_t)n * 4);
        int      to = (rank + 1) % t->n, from = (rank + t->n - 1) % t->n;
        for (int64_t i = 0; i < n; i++) a[i] = (int32_t)(rank + i);
        dt_work *s = dt_comm_send_start(c, a, n, DT_COMM_I32, to);
        bool     ok = !dt_comm_recv(c, b, n, DT_COMM_I32, from) || t->n == 2;
        ok = !dt_work_wait(s) && ok;
        for (int64_t i = 0; ok && i < n; i++) ok = b[i] == from + i;
        check(t, ok, "ring of sends", rank, n);
        free(a);
        free(b);
        if (!dt_comm_get_status(c)) continue;
        break;
    }
    dt_comm_free(c);
}
UTEST(work, sends_and_receives)
{
    EXPECT_EQ(0, run(2, NULL, 5, round_trip, NULL));
    EXPECT_EQ(0, run(4, NULL, 5, round_trip, NULL));
    EXPECT_EQ(0, spawn("shm", 4, NULL, 5, round_trip, NULL));
    EXPECT_EQ(0, spawn("tcp", 3, NULL, 5, round_trip, NULL));
}

static void in_order(team *t, dt_comm *c, int rank) /* many messages of one pair; a buffer that was sent is free */
{
    enum { MESSAGES = 12 };
    static const int64_t n[MESSAGES] = { 1, 3000, 2, 0, 200000, 5, 1024, 1025, 7, 90000, 300000, 1 };
    int32_t             *out[MESSAGES], *in[MESSAGES];
    dt_work             *s[MESSAGES], *r[MESSAGES];
    int                  to = (rank + 1) % t->n, from = (rank + t->n - 1) % t->n;
    for (int k = 0; k < MESSAGES; k++) {
        out[k] = (int32_t *)malloc((size_t)n[k] * 4 + 4);
        in[k] = (int32_t *)calloc((size_t)n[k] + 1, 4);
        for (int64_t i = 0; i < n[k]; i++) out[k][i] = (int32_t)(rank * 7 + k + i);
    }
    for (int k = 0; k < MESSAGES; k++) s[k] = dt_comm_send_start(c, out[k], n[k], DT_COMM_I32, to);
    for (int k = 0; k < MESSAGES; k++) r[k] = dt_comm_recv_start(c, in[k], n[k], DT_COMM_I32, from);
    bool ok = true;
    for (int k = 0; k < MESSAGES; k++) {
        ok = !dt_work_wait(s[k]) && ok;
        memset(out[k], 0xff, (size_t)n[k] * 4);
    }
    for (int k = 0; k < MESSAGES; k++) {
        ok = !dt_work_wait(r[k]) && ok;
        for (int64_t i = 0; ok && i < n[k]; i++) ok = in[k][i] == from * 7 + k + i;
        check(t, ok, "in order", rank, k);
        free(out[k]);
        free(in[k]);
    }
    dt_comm_free(c);
}
UTEST(work, messages_of_a_pair_stay_in_order)
{
    EXPECT_EQ(0, run(2, NULL, 20, in_order, NULL));
    EXPECT_EQ(0, run(3, NULL, 20, in_order, NULL));
    EXPECT_EQ(0, spawn("shm", 2, NULL, 20, in_order, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, NULL, 20, in_order, NULL));
}
static void only_tested(team *t, dt_comm *c, int rank) /* it moves by itself, or whenever it is looked at */
{
    int64_t  end = dt_test_ns() + (int64_t)(20e9 * dt_test_slow());
    float    x[2] = { (float)rank, 1 };
    dt_work *w[2];
    for (int k = 0; k < 2; k++) w[k] = dt_comm_allreduce_start(c, x + k, 1, DT_COMM_F32, DT_COMM_SUM);
    while (!dt_work_test(w[1]) && dt_test_ns() < end) sched_yield();
    check(t, dt_work_test(w[0]) && dt_work_test(w[1]), "tested", rank, 0);
    bool ok = !dt_work_wait(w[0]);
    ok = !dt_work_wait(w[1]) && ok && x[0] == (float)(t->n * (t->n - 1) / 2) && x[1] == (float)t->n;
    check(t, ok, "only tested", rank, 0);
    dt_comm_free(c);
}
UTEST(work, is_done_without_being_waited_for)
{
    EXPECT_EQ(0, run(2, NULL, 20, only_tested, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, NULL, 20, only_tested, NULL));
    run_no_thread = true;
    EXPECT_EQ(0, run(2, NULL, 20, only_tested, NULL));
    run_no_thread = false;
}
/* Rank 1 comes 3 ms after rank 0, who sleeps by then. A lost wake-up costs 5 ms on average, 300 of them 1.5 s. */
static void sleepers(team *t, dt_comm *c, int rank)
{
    int messages = *(int *)t->arg;
    for (int i = 0; i < 300; i++) {
        char x[8192] = { 0 };
        int  rc;
        if (rank == 1) {
            poll(NULL, 0, 3);
            __atomic_store_n(&t->when, dt_test_ns(), __ATOMIC_RELEASE);
        }
        if (!messages) rc = dt_comm_barrier(c);
        else if (rank == 1) rc = dt_comm_send(c, x, 100, DT_COMM_U8, 0);
        else rc = dt_comm_recv(c, x, 100, DT_COMM_U8, 1);
        if (rank == 0) t->slowest += dt_test_ns() - __atomic_load_n(&t->when, __ATOMIC_ACQUIRE);
        check(t, !rc && !dt_comm_barrier(c), "sleepers", rank, i);
    }
    if (rank == 0) check(t, (double)t->slowest < 0.9e9 * dt_test_slow(), "ms of waking", rank, t->slowest / 1000000);
    dt_comm_free(c);
}
UTEST(work, who_sleeps_is_woken)
{
    for (int messages = 0; messages < 2; messages++) {
        int failed = 1;
        for (int tries = 0; failed && tries < 3; tries++) failed = run(2, NULL, 20, sleepers, &messages);
        EXPECT_EQ(0, failed);
    }
}
static void frees(team *t, dt_comm *c, int rank)
{
    if (rank == 1) {
        poll(NULL, 0, 50);
        __atomic_store_n(&t->told, 1, __ATOMIC_RELEASE);
    }
    int rc = dt_comm_free(c);
    if (rc || !__atomic_load_n(&t->told, __ATOMIC_ACQUIRE)) __atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED);
}
UTEST(work, freeing_waits_for_the_others)
{
    EXPECT_EQ(0, run(2, NULL, 20, frees, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, NULL, 20, frees, NULL));
}

/* ==================================================================================================== misuse */
static void mismatch(team *t, dt_comm *c, int rank)
{
    static float x[MOST][9000];
    int          odd = rank == t->n - 1, kind = *(int *)t->arg, rc = 0;
    const char  *m;
    switch (kind) {
    case 0: rc = dt_comm_allreduce(c, x[rank], odd ? 7 : 8, DT_COMM_F32, DT_COMM_SUM); break;
    case 1: rc = dt_comm_allreduce(c, x[rank], 8, odd ? DT_COMM_I32 : DT_COMM_F32, DT_COMM_SUM); break;
    case 2: rc = dt_comm_allreduce(c, x[rank], 8, DT_COMM_F32, odd ? DT_COMM_MAX : DT_COMM_SUM); break;
    case 3: rc = dt_comm_broadcast(c, x[rank], 8, DT_COMM_F32, odd ? 1 : 0); break;
    case 4:
        rc = odd ? dt_comm_broadcast(c, x[rank], 8, DT_COMM_F32, 0)
                 : dt_comm_allreduce(c, x[rank], 8, DT_COMM_F32, DT_COMM_SUM);
        break;
    case 5: rc = odd ? dt_comm_barrier(c) : dt_comm_allgather(c, x[rank], x[rank] + 100, 8, NULL, DT_COMM_F32); break;
    case 6: rc = dt_comm_allreduce(c, x[rank], odd ? 9000 : 8999, DT_COMM_F32, DT_COMM_SUM); break;
    case 7: rc = dt_comm_reduce(c, x[rank], 8, DT_COMM_F32, DT_COMM_SUM, odd ? 1 : 0); break;
    default:
        rc = odd ? dt_comm_reduce(c, x[rank], 8, DT_COMM_F32, DT_COMM_SUM, 0)
                 : dt_comm_broadcast(c, x[rank], 8, DT_COMM_F32, 0);
    }
    if (!rc) rc = dt_comm_barrier(c); /* a rank that had no part in what differed hears of it here */
    m = dt_comm_error(c);
    check(t, rc == DT_COMM_ERR_MISMATCH && m && strstr(m, "different things"), "mismatch", rank, kind);
    check(t, dt_comm_barrier(c) == DT_COMM_ERR_MISMATCH, "later calls", rank, kind);
    dt_comm_free(c);
}
UTEST(misuse, different_calls_are_an_error_everywhere)
{
    static const char *const algo[] = { NULL, "ring", "tree" };
    for (int a = 0; a < 3; a++)
        for (int n = 2; n <= 4; n++)
            for (int kind = 0; kind < 9; kind++) {
                int64_t t0 = dt__comm_now();
                EXPECT_EQ(0, run(n, algo[a], 30, mismatch, &kind));
                EXPECT_TRUE(dt__comm_now() - t0 < 10000000000);
            }
}
static void mismatch_started(team *t, dt_comm *c, int rank)
{
    float    x[8] = { 0 };
    dt_work *w = dt_comm_allreduce_start(c, x, rank ? 8 : 7, DT_COMM_F32, DT_COMM_SUM);
    check(t, dt_work_wait(w) == DT_COMM_ERR_MISMATCH, "started", rank, 0);
    dt_comm_free(c);
}
static void mismatch_sent(team *t, dt_comm *c, int rank)
{
    int32_t x[8] = { 0 };
    int     rc = rank ? dt_comm_recv(c, x, 5, DT_COMM_I32, 0) : dt_comm_send(c, x, 6, DT_COMM_I32, 1);
    if (!rc) rc = dt_comm_barrier(c); /* who has sent hears of it here */
    check(t, rc == DT_COMM_ERR_MISMATCH, "sent", rank, rc);
    for (int i = 0; i < 8; i++) check(t, x[i] == 0, "nothing arrived", rank, i);
    dt_comm_free(c);
}
UTEST(misuse, works_and_messages_that_differ)
{
    EXPECT_EQ(0, run(2, NULL, 20, mismatch_started, NULL));
    EXPECT_EQ(0, run(2, "ring", 20, mismatch_started, NULL));
    EXPECT_EQ(0, run(2, NULL, 20, mismatch_sent, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, NULL, 20, mismatch_sent, NULL));
}
static void other_algorithm(team *t, dt_comm *c, int rank)
{
    float x[8] = { 0 };
    int   rc = dt_comm_allreduce(c, x, 8, DT_COMM_F32, DT_COMM_SUM);
    if (!rc) rc = dt_comm_barrier(c);
    const char *m = dt_comm_error(c);
    bool ok = rc == DT_COMM_ERR_MISMATCH && m && strstr(m, "algorithm ring") && strstr(m, "algorithm tree");
    check(t, ok, "algorithms", rank, rc);
    dt_comm_free(c);
}
UTEST(misuse, ranks_with_different_algorithms)
{
    spawn_odd_algo = "ring";
    EXPECT_EQ(0, spawn("shm", 2, "tree", 20, other_algorithm, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, "tree", 20, other_algorithm, NULL));
    spawn_odd_algo = NULL;
}
static void absent(team *t, dt_comm *c, int rank)
{
    float x = 1;
    if (rank == 1) { /* waits for the others to give up */
        while (!dt_comm_get_status(c)) sched_yield();
    } else {
        check(t, dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM) == DT_COMM_ERR_TIMEOUT, "timeout", rank, 1);
    }
    check(t, dt_comm_error(c) && strstr(dt_comm_error(c), "have not called it: 1"), "who", rank, 1);
    check(t, dt_comm_failed_rank(c) == 1, "failed rank", rank, 1);
    dt_comm_free(c);
}
UTEST(misuse, a_rank_that_does_not_come_is_named)
{
    EXPECT_EQ(0, run(3, NULL, 1, absent, NULL));
}
static void wrong_argument(team *t, dt_comm *c, int rank)
{
    float x[4] = { 0 };
    int   rc = rank ? dt_comm_barrier(c) : dt_comm_allreduce(c, x, -4, DT_COMM_F32, DT_COMM_SUM);
    check(t, rc == DT_COMM_ERR_ARG && strstr(dt_comm_error(c), "rank 0: dt_comm_allreduce: -4 elements"), "argument",
          rank, 0);
    dt_comm_free(c);
}
static void stop_it(team *t, dt_comm *c, int rank)
{
    if (rank == 0) dt_comm_abort(c, "no more");
    check(t, dt_comm_barrier(c) == DT_COMM_ERR_ABORT && strstr(dt_comm_error(c), "rank 0: no more"), "abort", rank, 0);
    dt_comm_free(c);
}
static void every_argument(team *t, dt_comm *c, int rank)
{
    int64_t     few[2] = { 4, -1 }, many[2] = { 1, INT64_MAX / 128 + 1 };
    float       x[16] = { 0 };
    int         rc = 0;
    const char *why = "";
    if (rank) rc = dt_comm_barrier(c);
    else switch (*(int *)t->arg) {
        case 0: rc = dt_comm_allreduce(c, x, 4, 7, DT_COMM_SUM), why = "dtype 7 is not a dt_comm_dtype"; break;
        case 1: rc = dt_comm_broadcast(c, x, 4, -1, 0), why = "dtype -1 is not a dt_comm_dtype"; break;
        case 2: rc = dt_comm_allreduce(c, x, 4, DT_COMM_F32, 6), why = "op 6 is not a dt_comm_op"; break;
        case 3: rc = dt_comm_reduce(c, x, 4, DT_COMM_F32, -1, 0), why = "op -1 is not a dt_comm_op"; break;
        case 4: rc = dt_comm_allreduce(c, x, 4, DT_COMM_F32, DT_COMM_OR), why = "or of f32 is not defined"; break;
        case 5: rc = dt_comm_broadcast(c, x, 4, DT_COMM_F32, 2), why = "rank 2 is out of range"; break;
        case 6: rc = dt_comm_gather(c, x, x + 4, 4, NULL, DT_COMM_F32, -1), why = "rank -1 is out of range"; break;
        case 7: rc = dt_comm_allgather(c, x, x, 0, few, DT_COMM_F32), why = "-1 elements of rank 1"; break;
        case 8: rc = dt_comm_reduce_scatter(c, x, x, 0, many, DT_COMM_U8, DT_COMM_SUM), why = "of rank 1"; break;
        case 9: rc = dt_comm_allgather(c, x, x, INT64_MAX / 64, NULL, DT_COMM_U8), why = "elements"; break;
        case 10: rc = dt_comm_send(c, x, 4, DT_COMM_F32, 2), why = "rank 2 is out of range"; break;
        case 11: rc = dt_comm_recv(c, x, 4, DT_COMM_F32, -2), why = "rank -2 is out of range"; break;
        case 14: rc = dt_comm_send(c, x, 4, DT_COMM_F32, 1, .tag = DT_ANY), why = "tag -1; expected 0 or more"; break;
        case 15: rc = dt_comm_send(c, x, 4, DT_COMM_F32, DT_ANY), why = "rank -1 is out of range"; break;
        case 16: rc = dt_comm_recv(c, x, 4, DT_COMM_F32, 1, .timeout = -1), why = ".timeout is -1"; break;
        case 17: rc = dt_comm_recv(c, NULL, 4, DT_COMM_F32, 1), why = "the buffer is NULL"; break;
        case 18: rc = dt_comm_probe(c, NULL, 2), why = "rank 2 is out of range"; break;
        case 19: rc = dt_comm_send(c, x, 4, 7, 1), why = "dtype 7 is not a dt_comm_dtype"; break;
        case 20: rc = dt_comm_recv(c, x, -1, DT_COMM_F32, 1), why = "-1 elements"; break;
        case 21: rc = dt_comm_send(c, x, INT64_MAX / 64 + 1, DT_COMM_U8, 1), why = "elements; expected 0 to"; break;
        case 22: rc = dt_comm_recv(c, x, 4, DT_COMM_F32, 1, .tag = -2), why = "tag -2; expected 0 or more, or DT_ANY"; break;
        case 12: rc = dt_comm_alltoall(c, x, x + 8, 1, few, few, DT_COMM_F32), why = "-1 elements to"; break;
        default: rc = dt_comm_alltoall(c, x, x + 8, 1, few, NULL, DT_COMM_F32), why = "given together";
        }
    check(t, rc == DT_COMM_ERR_ARG && strstr(dt_comm_error(c), why), "argument", rank, *(int *)t->arg);
    dt_comm_free(c);
}
UTEST(misuse, every_argument)
{
    for (int what = 0; what < 23; what++) EXPECT_EQ(0, run(2, NULL, 10, every_argument, &what));
}
UTEST(misuse, arguments_and_aborts_reach_everyone)
{
    EXPECT_EQ(0, run(3, NULL, 10, wrong_argument, NULL));
    EXPECT_EQ(0, run(3, NULL, 10, stop_it, NULL));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_comm_barrier(NULL));
    EXPECT_TRUE(strstr(dt_comm_error(NULL), "dt_comm_barrier: the communicator is NULL") != NULL);
}
UTEST(misuse, calls_without_a_communicator_keep_the_reason_why_there_is_none)
{
    float x = 1;
    EXPECT_TRUE(!dt_comm_init(.rank = 3, .world = 2, .addr = "127.0.0.1", .port = 1));
    char why[512];
    snprintf(why, sizeof why, "%s", dt_comm_error(NULL));
    EXPECT_TRUE(strncmp(why, "dt_comm_init: ", 14) == 0);
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_comm_allreduce(NULL, &x, 1, DT_COMM_F32, DT_COMM_SUM));
    EXPECT_EQ(DT_COMM_ERR_ARG, dt_comm_send(NULL, &x, 1, DT_COMM_F32, 1));
    EXPECT_TRUE(strncmp(dt_comm_error(NULL), "dt_comm_send: the communicator is NULL, because dt_comm_init: ", 62) == 0);
    EXPECT_TRUE(strstr(dt_comm_error(NULL), why) != NULL && !strstr(dt_comm_error(NULL), "allreduce"));
}
static void history(team *t, dt_comm *c, int rank)
{
    float x[3] = { 0 };
    char  text[16384];
    for (int i = 0; i < 70; i++) dt_comm_allreduce(c, x, 3, DT_COMM_F32, DT_COMM_MAX);
    size_t n = dt_comm_history(c, text, sizeof text), lines = 0;
    for (size_t i = 0; i < n && i < sizeof text; i++) lines += text[i] == '\n';
    check(t, lines == 64 && strstr(text, "allreduce #70 of 3 f32, max") && !strstr(text, "#6 of"), "history", rank,
          (int64_t)lines);
    check(t, dt_comm_get_stats(c).calls == 70, "calls", rank, 0);
    dt_comm_free(c);
}
static void counted(team *t, dt_comm *c, int rank) /* by ring, 2 ranks: each sends half of it twice */
{
    float x[1000] = { 0 };
    char  text[2000];
    bool  ok = !dt_comm_allreduce(c, x, 1000, DT_COMM_F32, DT_COMM_SUM);
    check(t, ok && dt_comm_get_stats(c).bytes == 4000, "bytes", rank, dt_comm_get_stats(c).bytes);
    for (int i = 0; i < 2; i++)
        ok = !(rank ? dt_comm_recv(c, x, 10, DT_COMM_F32, 0) : dt_comm_send(c, x, 10, DT_COMM_F32, 1)) && ok;
    dt_comm_stats s = dt_comm_get_stats(c);
    dt_comm_history(c, text, sizeof text);
    check(t, ok && s.bytes == (rank ? 4000 : 4080) && strstr(text, rank ? "recv of 10 f32 from rank 0, tag 0" : "send of 10 f32 to rank 1, tag 0"), "sent", rank, s.bytes);
    check(t, t->arg ? s.bytes_net > s.bytes : s.bytes_net == 0, "through sockets", rank, s.bytes_net);
    dt_comm_free(c);
}
UTEST(watching, bytes_are_counted)
{
    EXPECT_EQ(0, run(2, "ring", 10, counted, NULL));
    EXPECT_EQ(0, spawn("shm", 2, "ring", 10, counted, NULL));
    EXPECT_EQ(0, spawn("tcp", 2, "ring", 10, counted, "net"));
}
UTEST(watching, the_last_operations_are_remembered)
{
    EXPECT_EQ(0, run(2, NULL, 10, history, NULL));
}

/* ==================================================================================================== faults */
static void killed(team *t, dt_comm *c, int rank)
{
    static float x[70000];
    int          victim = *(int *)t->arg % t->n, steps = *(int *)t->arg / 7 % 5;
    t->dies = 1;
    for (int i = 0; i < 1000; i++) {
        if (rank == victim && i == 1 + steps) { /* after a whole call: by then every rank has joined */
            t->when = dt__comm_now();
            raise(SIGKILL);
        }
        int rc = i % 3 == 0 ? dt_comm_allreduce(c, x, 1 + i % 5 * 17000, DT_COMM_F32, DT_COMM_SUM)
                 : i % 3 == 1 ? dt_comm_broadcast(c, x, 5000, DT_COMM_F32, i % t->n) : dt_comm_barrier(c);
        if (!rc) continue;
        int64_t late = dt__comm_now() - t->when;
        char    who[32];
        snprintf(who, sizeof who, "rank %d", victim);
        check(t, rc == DT_COMM_ERR_PEER && dt_comm_failed_rank(c) == victim && strstr(dt_comm_error(c), who),
              "who died", rank, victim);
        if (late > t->slowest) t->slowest = late;
        __atomic_add_fetch(&t->told, 1, __ATOMIC_RELAXED);
        break;
    }
    dt_comm_free(c);
}
static int64_t kill_slowest;
static int kills(const char *how, int n, int seed)
{
    team *t = (team *)mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    t->n = n;
    t->fn = killed;
    t->arg = &seed;
    spawn_how = how;
    spawn_algo = NULL;
    spawn_timeout = 20;
    int rc = dt_spawn(n, spawned, t);
    int bad = t->failed + (t->told != n - 1) + (rc != 128 + SIGKILL);
    if (bad)
        printf("    %s, %d ranks, seed %d: %d of %d survivors were right, status %d\n", how, n, seed, t->told, n - 1,
               rc);
    if (t->slowest > kill_slowest) kill_slowest = t->slowest;
    munmap(t, sizeof *t);
    return bad;
}
UTEST(faults, survivors_of_a_killed_rank_all_name_it)
{
    const char *slow = getenv("DT_TEST_SLOW");
    int         trials = getenv("DT_TEST_QUICK") ? 4 : 12;
    for (int i = 0; i < trials; i++) {
        int ranks = 2 + i % 4;
        EXPECT_EQ(0, kills("shm", ranks, i * 5 + 1));
        EXPECT_EQ(0, kills("tcp", ranks, i * 3 + 2));
    }
    printf("    the slowest survivor heard of it after %.1f ms\n", 1e-6 * (double)kill_slowest);
    EXPECT_TRUE((double)kill_slowest < 1e9 * (slow && atof(slow) > 1 ? atof(slow) : 1));
}
static void stopped(team *t, dt_comm *c, int rank)
{
    float x = 1;
    t->dies = 1;
    check(t, !dt_comm_barrier(c), "before", rank, 0);
    if (rank == 1) {
        pid_t me = getpid();
        if (!fork()) { /* lets it go on after a while */
            for (int64_t until = dt__comm_now() + INT64_C(3500000000); dt__comm_now() < until;) usleep(20000);
            kill(me, SIGCONT);
            _exit(0);
        }
        raise(SIGSTOP);
    }
    int64_t t0 = dt__comm_now();
    int     rc = dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
    if (rank != 1) {
        check(t, rc == DT_COMM_ERR_TIMEOUT && dt_comm_failed_rank(c) == 1, "who stopped", rank, dt_comm_failed_rank(c));
        check(t, dt__comm_now() - t0 >= INT64_C(900000000), "not before the time is over", rank, 0);
    } else {
        check(t, rc != 0, "it hears that they have gone on", rank, rc);
    }
    dt_comm_free(c);
}
UTEST(faults, a_stopped_rank_is_named)
{
    EXPECT_EQ(0, spawn("shm", 3, NULL, 1, stopped, NULL));
    EXPECT_EQ(0, spawn("tcp", 3, NULL, 1, stopped, NULL));
}
UTEST(faults, different_calls_of_processes)
{
    static const char *const how[] = { "shm", "tcp" };
    for (int h = 0; h < 2; h++)
        for (int kind = 0; kind < 9; kind += 2) {
            if (h && (kind == 4 || kind == 8)) continue;
            EXPECT_EQ(0, spawn(how[h], 3, NULL, 4, mismatch, &kind));
        }
}
static void slow_but_sure(team *t, dt_comm *c, int rank)
{
    size_t n = (size_t)(1.3 * c->timeout * spawn_bandwidth);
    char  *x = (char *)calloc(n, 1);
    int    rc = rank ? dt_comm_recv(c, x, (int64_t)n, DT_COMM_U8, 0) : dt_comm_send(c, x, (int64_t)n, DT_COMM_U8, 1);
    if (!rc) rc = dt_comm_broadcast(c, x, (int64_t)n, DT_COMM_U8, 0);
    check(t, !rc, "it moves all the time", rank, rc);
    free(x);
    dt_comm_free(c);
}
static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
/* A wire that had a message to send, and then has none, saves up no bandwidth: the next message is as slow as the first. */
static void slow_again(team *t, dt_comm *c, int rank)
{
    size_t  n = (size_t)(0.3 * spawn_bandwidth);
    char   *x = (char *)calloc(n, 1);
    int64_t begin = 0, end;
    int     rc = 0;
    for (int i = 0; i < 2 && !rc; i++) { /* messages alone: a collective would let go of what was saved */
        struct timespec rest = { 0, 600 * 1000 * 1000 };
        if (i) nanosleep(&rest, NULL); /* the wire is idle */
        begin = clock_ns();
        rc = rank ? dt_comm_recv(c, x, (int64_t)n, DT_COMM_U8, 0) : dt_comm_send(c, x, (int64_t)n, DT_COMM_U8, 1);
        if (!rc) rc = rank ? dt_comm_send(c, x, 1, DT_COMM_U8, 0) : dt_comm_recv(c, x, 1, DT_COMM_U8, 1); /* it has arrived */
    }
    end = clock_ns();
    check(t, !rc && (rank || end - begin > 200 * 1000 * 1000), "the second message is as slow as the first", rank, rc);
    free(x);
    dt_comm_free(c);
}
UTEST(faults, an_idle_wire_saves_up_no_bandwidth)
{
    spawn_bandwidth = 2e6;
    EXPECT_EQ(0, spawn("tcp", 2, NULL, 4 * dt_test_slow(), slow_again, NULL));
    spawn_bandwidth = 0;
}
UTEST(faults, a_slow_transfer_is_no_timeout)
{
    double slow = dt_test_slow();
    spawn_bandwidth = 2e6;
    EXPECT_EQ(0, spawn("tcp", 2, NULL, slow < 1 ? 1 : slow > 4 ? 4 : slow, slow_but_sure, NULL));
    spawn_bandwidth = 0;
}
