/* test_calls.c - what the calls of dt_comm.h promise beside their results: how much memory they take, that a buffer may be
   both input and output, that statistics and history can be read at any time, that a failure waits for nobody, in which
   order pending messages match and end */
#include "harness.h"

#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int64_t heap_now, heap_most; /* bytes that dt_comm.h has allocated; atomic */
static int64_t heap_calls;          /* of malloc and realloc, but in dt_net.h: its control thread now and then sends */
static void *heap_count(void *p, const char *file)
{
    if (!strstr(file, "dt_net.h")) __atomic_add_fetch(&heap_calls, 1, __ATOMIC_SEQ_CST);
    int64_t now = __atomic_add_fetch(&heap_now, p ? (int64_t)malloc_usable_size(p) : 0, __ATOMIC_SEQ_CST);
    int64_t most = __atomic_load_n(&heap_most, __ATOMIC_SEQ_CST);
    while (now > most && !__atomic_compare_exchange_n(&heap_most, &most, now, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return p;
}
static void *heap_uncount(void *p)
{
    if (p) __atomic_sub_fetch(&heap_now, (int64_t)malloc_usable_size(p), __ATOMIC_SEQ_CST);
    return p;
}
static bool heap_empty; /* malloc fails */
#define DT_COMM_MALLOC(n) heap_count(heap_empty ? NULL : malloc(n), __FILE__)
#define DT_COMM_REALLOC(p, n) heap_count(realloc(heap_uncount(p), n), __FILE__)
#define DT_COMM_FREE(p) free(heap_uncount(p))
/* How the kernel answers when a rank reads the memory of another. */
#include <sys/syscall.h>
#include <sys/uio.h>
enum { PEEK_REAL, PEEK_FORBIDDEN, PEEK_SHORT, PEEK_OTHER, PEEK_FAILS };
static int peek_how, peek_calls;
static ssize_t peek(int pid, const struct iovec *to, const struct iovec *from);
#define DT__VM_READ(pid, to, from) peek(pid, to, from) /* counted, and as the test says */
#define DT_COMM_IMPLEMENTATION
#define DT_MSG_IMPLEMENTATION
#define DT_NET_IMPLEMENTATION
#define DT_PLAN_IMPLEMENTATION
#include "dt_comm.h"

UTEST_MAIN()

enum { MOST = 8 };
typedef struct team {
    int      n, failed; /* failed: atomic */
    dt_comm *comm[MOST];
    void   (*fn)(struct team *t, dt_comm *c, int rank);
    int64_t  count;
    int      root;
} team;
typedef struct player {
    team *t;
    int   rank;
} player;
static void *play(void *arg)
{
    player *p = (player *)arg;
    p->t->fn(p->t, p->t->comm[p->rank], p->rank);
    dt_comm_free(p->t->comm[p->rank]);
    return NULL;
}
static void check(team *t, bool ok, const char *what, int rank)
{
    if (ok) return;
    if (__atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED) < 5)
        printf("    %s: rank %d of %d: %s\n", what, rank, t->n, dt_comm_error(t->comm[rank]) ? dt_comm_error(t->comm[rank]) : "");
    fflush(stdout);
}
/* fn on n ranks; returns how many checks failed */
static int run(int n, const char *algo, void (*fn)(team *t, dt_comm *c, int rank), int64_t count, int root)
{
    team         t;
    pthread_t    thread[MOST];
    player       p[MOST];
    dt_comm_opts o;
    memset(&t, 0, sizeof t);
    memset(&o, 0, sizeof o);
    t.n = n;
    t.fn = fn;
    t.count = count;
    t.root = root;
    o.algo = algo;
    o.timeout = 20 * dt_test_slow();
    if (dt_comm_threads_with(n, t.comm, o)) return 1000;
    for (int i = 0; i < n; i++) {
        p[i].t = &t;
        p[i].rank = i;
        pthread_create(&thread[i], NULL, play, &p[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    return t.failed;
}
static float value(int rank, int64_t i) { return (float)((rank * 5 + i * 3) % 7); }

/* ==================================================================================================== memory */
static void begin_counting(dt_comm *c, int rank)
{
    dt_comm_barrier(c);
    if (!rank) heap_most = heap_now;
    dt_comm_barrier(c);
}
static void reduce_scatter(team *t, dt_comm *c, int rank)
{
    int64_t n = t->count, all = n * t->n;
    float  *in = (float *)malloc((size_t)all * 4), *out = (float *)malloc((size_t)n * 4);
    for (int64_t i = 0; i < all; i++) in[i] = value(rank, i);
    begin_counting(c, rank);
    check(t, !dt_comm_reduce_scatter(c, in, out, n, NULL, DT_COMM_F32, DT_COMM_SUM), "reduce_scatter", rank);
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < t->n; r++) sum += value(r, rank * n + i);
        if (out[i] != sum) check(t, false, "sum", rank);
    }
    dt_comm_barrier(c);
    free(in);
    free(out);
}
static void gather(team *t, dt_comm *c, int rank)
{
    int64_t n = t->count, all = n * t->n;
    float  *in = (float *)malloc((size_t)n * 4), *out = rank == t->root ? (float *)malloc((size_t)all * 4) : NULL;
    for (int64_t i = 0; i < n; i++) in[i] = value(rank, i);
    begin_counting(c, rank);
    check(t, !dt_comm_gather(c, in, out, n, NULL, DT_COMM_F32, t->root), "gather", rank);
    for (int64_t i = 0; out && i < all; i++)
        if (out[i] != value((int)(i / n), i % n)) check(t, false, "gathered", rank);
    dt_comm_barrier(c);
    free(in);
    free(out);
}
static void scatter(team *t, dt_comm *c, int rank)
{
    int64_t n = t->count, all = n * t->n;
    float  *in = rank == t->root ? (float *)malloc((size_t)all * 4) : NULL, *out = (float *)malloc((size_t)n * 4);
    for (int64_t i = 0; in && i < all; i++) in[i] = value(3, i);
    begin_counting(c, rank);
    check(t, !dt_comm_scatter(c, in, out, n, NULL, DT_COMM_F32, t->root), "scatter", rank);
    for (int64_t i = 0; i < n; i++)
        if (out[i] != value(3, rank * n + i)) check(t, false, "scattered", rank);
    dt_comm_barrier(c);
    free(in);
    free(out);
}
static void alltoall(team *t, dt_comm *c, int rank) /* with counts: twice as much to higher ranks as to lower ones */
{
    int64_t n = t->count, sends[MOST], recvs[MOST], going = 0, coming = 0, at = 0;
    for (int r = 0; r < t->n; r++) {
        sends[r] = rank < r ? 2 * n : n;
        recvs[r] = r < rank ? 2 * n : n;
        going += sends[r];
        coming += recvs[r];
    }
    int64_t most = going > coming ? going : coming;
    float  *in = (float *)malloc((size_t)most * 4), *out = t->root ? in : (float *)malloc((size_t)coming * 4);
    for (int64_t i = 0; i < going; i++) in[i] = value(rank, i);
    begin_counting(c, rank);
    check(t, !dt_comm_alltoall(c, in, out, 0, sends, recvs, DT_COMM_F32), "alltoall", rank);
    for (int r = 0; r < t->n; at += recvs[r++]) {
        int64_t from = 0; /* where rank r has the segment for this rank */
        for (int k = 0; k < rank; k++) from += r < k ? 2 * n : n;
        for (int64_t i = 0; i < recvs[r]; i++)
            if (out[at + i] != value(r, from + i)) check(t, false, "exchanged", rank);
    }
    dt_comm_barrier(c);
    if (out != in) free(out);
    free(in);
}
static void alltoall_equal(team *t, dt_comm *c, int rank)
{
    int64_t n = t->count, all = n * t->n;
    float  *in = (float *)malloc((size_t)all * 4), *out = t->root ? in : (float *)malloc((size_t)all * 4);
    for (int64_t i = 0; i < all; i++) in[i] = value(rank, i);
    begin_counting(c, rank);
    check(t, !dt_comm_alltoall(c, in, out, n, NULL, NULL, DT_COMM_F32), "alltoall", rank);
    for (int64_t i = 0; i < all; i++)
        if (out[i] != value((int)(i / n), rank * n + i % n)) check(t, false, "exchanged", rank);
    dt_comm_barrier(c);
    if (out != in) free(out);
    free(in);
}
/* The ranks together take at most so many segments, and a little for plans. */
static bool takes(double segments, int n, const char *algo, void (*fn)(team *t, dt_comm *c, int rank), int root)
{
    int64_t count = 50000, before = heap_now;
    if (run(n, algo, fn, count, root)) return false;
    double took = (double)(heap_most - before) / (4.0 * (double)count);
    /* communicators and plans take about 40 KB a rank. Less is possible: the ranks need not take it at the same time */
    if (took > segments + 0.3 * n) printf("    %s with %d ranks: %.2f segments, expected %.2f at most\n", algo, n, took, segments);
    return took <= segments + 0.3 * n;
}
UTEST(memory, reduce_scatter_takes_the_segments_that_are_on_their_way)
{
    EXPECT_TRUE(takes(0, 2, "ring", reduce_scatter, 0));
    EXPECT_TRUE(takes(3, 3, "ring", reduce_scatter, 0)); /* one a rank */
    EXPECT_TRUE(takes(12, 6, "ring", reduce_scatter, 0)); /* two a rank */
    EXPECT_TRUE(takes(0, 2, "halving", reduce_scatter, 0));
    EXPECT_TRUE(takes(8, 4, "halving", reduce_scatter, 0)); /* half of the vector a rank */
    EXPECT_TRUE(takes(0, 6, "pairs", reduce_scatter, 0));
    EXPECT_TRUE(takes(6, 6, "direct", reduce_scatter, 0)); /* the vector on rank 0 */
    EXPECT_TRUE(takes(30, 6, "ordered", reduce_scatter, 0)); /* the parts of the other five ranks, on each rank */
    EXPECT_TRUE(takes(0, 2, NULL, reduce_scatter, 0));
}
UTEST(memory, gather_and_scatter_take_the_segments_that_a_rank_passes_on)
{
    EXPECT_TRUE(takes(0, 6, "direct", gather, 2));
    EXPECT_TRUE(takes(0, 6, "direct", scatter, 2));
    for (int root = 0; root < 6; root += 5) { /* members 2 and 4 from the root on have two segments each */
        EXPECT_TRUE(takes(4, 6, "tree", gather, root));
        EXPECT_TRUE(takes(4, 6, "tree", scatter, root));
    }
}

UTEST(memory, alltoall_takes_none_of_its_own)
{
    EXPECT_TRUE(takes(0, 4, NULL, alltoall, 0));
    EXPECT_TRUE(takes(0, 4, "direct", alltoall_equal, 0));
    EXPECT_TRUE(takes(0, 4, "pairs", alltoall_equal, 0));
    EXPECT_TRUE(takes(16, 4, "pairs", alltoall_equal, 1)); /* in place: what is received waits */
}
static void alltoall_of_many(team *t, dt_comm *c, int rank)
{
    enum { WORLD = 1000 }; /* ranks that the plan is made for; nobody runs it */
    static int64_t count[WORLD];
    static float   in[WORLD], out[WORLD];
    dt_comm        big = *c;
    dt__coll_work  w;
    dt__call       a = dt__call_of("alltoall", DT_COLL_ALLTOALL, in, out, 0, NULL, DT_COMM_F32, 0, 0);
    for (int i = 0; i < WORLD; i++) count[i] = 1;
    memset(&w, 0, sizeof w);
    big.size = WORLD;
    big.rank = 5;
    a.sends = a.recvs = count;
    begin_counting(c, rank);
    int64_t before = heap_now;
    check(t, !dt__prepare(&big, &a, &w), "prepare", 0);
    check(t, heap_most - before < 500 * WORLD, "bytes a rank", 0); /* a matrix of counts would take 8000 */
    dt__unprepare(&w, 0);
}
UTEST(memory, alltoall_with_counts_is_linear_in_the_ranks) { EXPECT_EQ(0, run(1, NULL, alltoall_of_many, 0, 0)); }

/* ---- small messages. Two ranks; returns how many things were wrong. */
enum { SMALL_WINDOW = 8 };
static int small_messages(dt_comm *c, int rank, int turn)
{
    static __thread uint8_t out[SMALL_WINDOW][1000], in[SMALL_WINDOW][1000];
    dt_work                *w[2 * SMALL_WINDOW];
    dt_msg_info             info;
    dt_msg_view             view;
    int                     bad = 0, peer = 1 - rank, tag = turn * 100; /* tags that were never used before */
    for (int k = 0; k < SMALL_WINDOW; k++) { /* both ways; then received in another order, by sender and tag, by any */
        memset(out[k], turn + k + rank, sizeof out[k]);
        bad += dt_comm_send(c, out[k], 100 * k + 1, DT_COMM_U8, peer, .tag = tag + k) != 0;
    }
    for (int k = SMALL_WINDOW - 1; k >= 2; k--) {
        bad += dt_comm_recv(c, in[k], 100 * k + 1, DT_COMM_U8, peer, .tag = tag + k) != 0;
        bad += in[k][100 * k] != (uint8_t)(turn + k + peer);
    }
    bad += dt_comm_probe(c, &info, DT_ANY, .tag = tag + 1, .timeout = DT_FOREVER) != 1;
    bad += dt_comm_recv(c, in[0], 1000, DT_COMM_U8, DT_ANY, .tag = DT_ANY, .info = &info) || info.n != 1;
    bad += dt_comm_recv_view(c, &view, DT_COMM_U8, peer, .tag = tag + 1) || view.info.n != 101;
    dt_comm_view_free(c, &view);
    for (int k = 0; k < SMALL_WINDOW; k++) {
        w[k] = dt_comm_recv_start(c, in[k], 1000, DT_COMM_U8, k % 2 ? peer : rank, .tag = tag + k);
        w[SMALL_WINDOW + k] = dt_comm_send_start(c, out[k], 1000, DT_COMM_U8, k % 2 ? peer : rank, .tag = tag + k);
    }
    for (int k = 0; k < 2 * SMALL_WINDOW; k++) bad += !w[k] || dt_work_wait(w[k]);
    return bad;
}
/* Many messages of each size arrive before their receives: more than in any turn, whatever rank is faster. */
static int small_crowd(dt_comm *c, int rank)
{
    uint8_t x[1024] = { 0 };
    int     bad = 0, peer = 1 - rank;
    for (int n = 1024; n >= 64; n /= 2)
        for (int k = 0; k < 40; k++) bad += dt_comm_send(c, x, n, DT_COMM_U8, peer, .tag = n) != 0;
    bad += dt_comm_send(c, x, 1, DT_COMM_U8, peer) || dt_comm_recv(c, x, 1, DT_COMM_U8, peer); /* after them: they are there */
    for (int n = 1024; n >= 64; n /= 2)
        for (int k = 0; k < 40; k++) bad += dt_comm_recv(c, x, n, DT_COMM_U8, peer, .tag = n) != 0;
    return bad;
}
static int small_rank(dt_comm *c, int rank) /* when buffers and keys of messages are there, messages need no more */
{
    int bad = small_crowd(c, rank), turns = dt_test_quick() ? 50 : 500;
    for (int i = 0; i < 50; i++) bad += small_messages(c, rank, 100 + i);
    bad += dt_comm_barrier(c) != 0;
    int64_t before = __atomic_load_n(&heap_calls, __ATOMIC_SEQ_CST);
    bad += dt_comm_barrier(c) != 0;
    for (int i = 0; i < turns; i++) bad += small_messages(c, rank, 150 + i);
    bad += dt_comm_barrier(c) != 0;
    int64_t calls = __atomic_load_n(&heap_calls, __ATOMIC_SEQ_CST) - before;
    if (calls) printf("    %lld mallocs in %d turns\n", (long long)calls, turns);
    return bad + (calls != 0);
}
static void small_thread(team *t, dt_comm *c, int rank) { check(t, !small_rank(c, rank), "small messages", rank); }
static int  small_process(void *transport)
{
    dt_comm *c = dt_comm_init(.transport = (const char *)transport, .timeout = 20 * dt_test_slow());
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    int bad = small_rank(c, dt_comm_rank(c));
    if (dt_comm_error(c)) printf("    %s\n", dt_comm_error(c));
    return dt_comm_free(c) || bad;
}
UTEST(memory, small_messages_take_none_after_the_first_on_threads) { EXPECT_EQ(0, run(2, NULL, small_thread, 0, 0)); }
UTEST(memory, small_messages_take_none_after_the_first_in_shared_memory) { EXPECT_EQ(0, dt_spawn(2, small_process, (void *)"shm")); }
UTEST(memory, small_messages_take_none_after_the_first_over_tcp) { EXPECT_EQ(0, dt_spawn(2, small_process, (void *)"tcp")); }

/* ==================================================================================================== pending messages
   The table of receives that wait, and the queue of messages with the timeout of the communicator, against models. */
enum { PENDING = 600 };
static void pending_open(dt__mail *m)
{
    memset(m, 0, sizeof *m);
    m->posted_cap = 64;
    m->posted = m->last_posted = (dt__req **)dt__comm_zeroed(m->posted_cap, sizeof *m->posted);
}
UTEST(pending, a_message_takes_the_receive_that_was_posted_first)
{
    static dt__req q[PENDING];
    static bool    waits[PENDING];
    uint64_t       seed = 11;
    int            wrong = 0, taken = 0, order = 0;
    dt__mail       m;
    pending_open(&m);
    memset(q, 0, sizeof q);
    for (int turn = 0; turn < 40 * PENDING; turn++) {
        int  k = (int)(dt_test_random(&seed) % PENDING), few = turn / PENDING % 3; /* many keys, few, one */
        int  tag = few == 2 ? 0 : (int)(dt_test_random(&seed) % (few ? 4 : 500)) << 16;
        int  peer = few ? 0 : (int)(dt_test_random(&seed) % 3);
        bool wild = turn / PENDING % 2;
        if (dt_test_random(&seed) % 4 == 0) { /* a message comes */
            dt__mhead h;
            int       best = -1;
            memset(&h, 0, sizeof h);
            h.tag = tag;
            for (int i = 0; i < PENDING; i++) {
                bool match = waits[i] && (q[i].peer == DT_ANY || q[i].peer == peer) && (q[i].tag == DT_ANY || q[i].tag == tag);
                if (match && (best < 0 || q[i].order < q[best].order)) best = i;
            }
            dt__req *got = dt__match_posted(&m, peer, &h);
            wrong += got != (best < 0 ? NULL : &q[best]);
            if (got) waits[got - q] = false, taken++;
        } else if (waits[k]) { /* it is cancelled */
            dt__posted_remove(&m, &q[k]);
            waits[k] = false;
        } else {
            q[k].peer = wild && dt_test_random(&seed) % 8 == 0 ? DT_ANY : peer;
            q[k].tag = wild && dt_test_random(&seed) % 8 == 0 ? DT_ANY : tag;
            q[k].order = (uint64_t)++order;
            dt__posted_add(&m, &q[k]);
            waits[k] = true;
        }
    }
    for (int i = 0; i < PENDING; i++)
        if (waits[i]) dt__posted_remove(&m, &q[i]);
    for (size_t i = 0; i < m.posted_cap; i++) wrong += m.posted[i] != NULL;
    EXPECT_EQ(0, wrong);
    EXPECT_GT(taken, PENDING);
    EXPECT_EQ(0, m.nposted);
    EXPECT_EQ(0, m.nwild);
    EXPECT_EQ(0u, (unsigned)m.nfirst);
    EXPECT_GT((int)m.posted_cap, 64); /* it has grown */
    DT_COMM_FREE(m.posted);
}
UTEST(pending, tags_at_any_distance_are_in_different_buckets)
{
    enum { TAGS = 2048, BUCKETS = 4096 };
    static uint8_t n[BUCKETS];
    int            most = 0;
    for (int shift = 0; shift <= 21; shift++) { /* 21: one tag, many ranks */
        memset(n, 0, sizeof n);
        for (int i = 0; i < TAGS; i++) {
            size_t h = dt__key_hash(BUCKETS, shift > 20 ? i : 3, shift > 20 ? 5 : i << shift, DT__SPACE_USER);
            ASSERT_LT((int)h, (int)BUCKETS);
            if (n[h] < UINT8_MAX && ++n[h] > most) most = n[h];
        }
    }
    EXPECT_LT(most, 9);
}
UTEST(pending, the_queue_keeps_the_order_and_little_memory)
{
    static dt__req q[PENDING];
    static int     line[PENDING];
    static int64_t since[PENDING];
    uint64_t       seed = 12;
    int            n = 0, wrong = 0;
    int64_t        now = 0, before = 0;
    dt__mail       m;
    memset(&m, 0, sizeof m);
    memset(q, 0, sizeof q);
    for (int turn = 0; turn < 200 * PENDING; turn++) {
        int k = (int)(dt_test_random(&seed) % PENDING), at = 0, most = turn < 10 * PENDING ? PENDING : 20;
        if (turn == 20 * PENDING) before = heap_calls;
        while (at < n && line[at] != k) at++;
        if (at < n) {
            if (n <= most && at == 0) continue; /* the first one stays: there are gaps behind it */
            dt__queue_remove(&m, &q[k]);
            wrong += since[at] >= 0 && q[k].w.started != since[at];
            memmove(line + at, line + at + 1, (size_t)(n - at - 1) * sizeof *line);
            memmove(since + at, since + at + 1, (size_t)(--n - at) * sizeof *since);
            q[k].w.started = 0;
        } else if (n < most) {
            wrong += !dt__queue_add(&m, &q[k]);
            line[n] = k;
            since[n++] = -1;
        }
        if (dt_test_random(&seed) % 16 == 0) { /* as dt__mail_overdue does */
            dt__queue_date(&m, ++now);
            for (int i = 0; i < n; i++) since[i] = since[i] < 0 ? now : since[i];
        }
        uint32_t           fresh = 0;
        const dt__waiting *t = dt__queue_first(&m);
        for (int i = 0; i < n; i++) fresh += since[i] < 0;
        wrong += m.nqueue != (uint32_t)n || m.nfresh != fresh;
        wrong += n ? !t || t->q != &q[line[0]] || t->since != since[0] : t != NULL;
        if (turn % 50) continue;
        int i = 0;
        for (uint64_t p = m.first; p < m.end; p++) {
            const dt__waiting *s = dt__queue_at(&m, p);
            if (!s->q) continue;
            wrong += i == n || s->q != &q[line[i]] || s->since != since[i] || dt__queue_at(&m, s->q->place - 1) != s;
            i++;
        }
        wrong += i != n;
    }
    EXPECT_EQ(0, wrong);
    EXPECT_EQ(0, (int)(heap_calls - before));
    EXPECT_LE(m.queue_cap, 2048u);
    DT_COMM_FREE(m.queue);
}
enum { TIMED = 300 };
static dt_comm *timed_open(dt__req *q) /* a tolerant communicator of one rank; the caller drives it. q: TIMED receives */
{
    dt_comm     *c;
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    o.timeout = 1000;
    o.tolerant = true;
    if (dt_comm_threads_with(1, &c, o)) return NULL;
    dt__engine_enter(c);
    memset(q, 0, TIMED * sizeof *q);
    for (int k = 0; k < TIMED; k++) {
        q[k].w.c = c;
        q[k].w.kind = DT__WORK_MESSAGE;
        q[k].call = "a receive";
        q[k].dtype = DT_COMM_U8;
        q[k].tag = k / 2;
    }
    return c;
}
static int timed_close(dt_comm *c, const dt__req *q)
{
    int wrong = dt__mail_next(c) != INT64_MAX || dt__mail_of(c)->nqueue || dt__mail_of(c)->nposted || dt__mail_of(c)->npending;
    for (int k = 0; k < TIMED; k++) wrong += !q[k].w.finished;
    dt__engine_leave(c);
    return wrong + (dt_comm_free(c) != 0);
}
/* Times that the test makes up: the time of receive k begins at k + 1 seconds. */
static int times_out(int fails_from) /* from this receive on there is no memory for the queue and the table */
{
    static dt__req q[TIMED];
    const int64_t  second = DT__NS_PER_S;
    int            wrong = 0;
    dt_comm       *c = timed_open(q);
    if (!c) return 1000;
    for (int k = 0; k < TIMED; k++) {
        heap_empty = k >= fails_from;
        dt__mail_post(c, &q[k]);
        wrong += dt__mail_next(c) != 0; /* its time has not begun */
        dt__mail_overdue(c, (k + 1) * second);
        wrong += dt__mail_next(c) != 1001 * second + DT__NS_PER_US;
    }
    heap_empty = false;
    wrong += (dt__mail_of(c)->nqueue < TIMED) != (fails_from < TIMED);
    for (int k = 0; k < TIMED; k += 3) wrong += !dt__mail_cancel(c, &q[k], DT_COMM_ERR_CANCELLED);
    for (int k = 0; k < TIMED; k++) {
        dt__mail_overdue(c, (1001 + k) * second);
        wrong += k % 3 && q[k].w.finished;
        dt__mail_overdue(c, (1001 + k) * second + 1);
        wrong += !q[k].w.finished || q[k].w.status != (k % 3 ? DT_COMM_ERR_TIMEOUT : DT_COMM_ERR_CANCELLED);
    }
    return wrong + timed_close(c, q);
}
UTEST(pending, receives_time_out_in_order)
{
    EXPECT_EQ(0, times_out(INT32_MAX));
    EXPECT_EQ(0, times_out(100)); /* some are in the queue, others in lists */
    EXPECT_EQ(0, times_out(0));
}
UTEST(pending, all_end_when_the_communicator_fails_or_the_sender_goes)
{
    static dt__req q[TIMED];
    for (int how = 0; how < 2; how++) {
        dt_comm *c = timed_open(q);
        ASSERT_TRUE(c != NULL);
        for (int k = 0; k < TIMED; k++) {
            q[k].timeout = k % 5 == 0 ? DT_FOREVER : k % 7 == 0 ? 500 : 0;
            dt__mail_post(c, &q[k]);
            if (k == TIMED / 2) dt__mail_overdue(c, DT__NS_PER_S); /* the time of those before it has begun */
        }
        if (how) dt__peer_end(c, 0, false);
        else dt__mail_fail(c, DT_COMM_ERR_PEER);
        for (int k = 0; k < TIMED; k++) EXPECT_EQ((int)DT_COMM_ERR_PEER, q[k].w.status);
        EXPECT_EQ(0, timed_close(c, q));
    }
}

/* ==================================================================================================== private memory */
static dt_comm *peek_comm;
static ssize_t  peek(int pid, const struct iovec *to, const struct iovec *from)
{
    peek_calls++;
    if (peek_how == PEEK_FORBIDDEN) {
        errno = EPERM;
        return -1;
    }
    ssize_t n = (ssize_t)syscall(SYS_process_vm_readv, pid, to, 1ul, from, 1ul, 0ul);
    if (n <= 0) return n;
    if (peek_how == PEEK_SHORT && n > 100) { /* a page at the end is not there */
        memset((char *)to->iov_base + n - 1, 0x55, 1);
        return n - 1;
    }
    if (peek_how == PEEK_OTHER) memset(to->iov_base, 0x55, (size_t)n); /* another process has the number of this one now */
    if (peek_how == PEEK_FAILS) dt_comm_abort(peek_comm, "the sender uses its memory for something else now");
    return n;
}
enum { PEEK_BYTES = 3 << 20 };
static int peek_rank(void *how) /* rank 0 sends from memory that rank 1 does not share; one message, then several at once */
{
    enum { SEVERAL = 5 };
    static uint8_t x[SEVERAL][PEEK_BYTES];
    dt_work       *w[SEVERAL];
    dt_msg_view    view;
    dt_comm       *c = dt_comm_init(.transport = "shm", .timeout = 20 * dt_test_slow());
    int            bad = !c, rank = bad ? 0 : dt_comm_rank(c);
    if (bad) return printf("    %s\n", dt_comm_error(NULL)), 1;
    peek_how = *(int *)how;
    peek_comm = c;
    for (int k = 0; k < SEVERAL; k++) memset(x[k], rank ? 0 : k + 1, sizeof x[k]);
    if (peek_how == PEEK_FAILS) { /* what was read may be anything: never a success */
        if (!rank) bad = dt_comm_send(c, x[0], 1 << 20, DT_COMM_U8, 1) == 0;
        else bad = dt_comm_recv(c, x[0], 1 << 20, DT_COMM_U8, 0) == 0;
        dt_comm_free(c);
        return bad;
    }
    for (int64_t n = 16385; n <= PEEK_BYTES && !bad; n = 3 * n - 1)
        if (!rank) bad = dt_comm_send(c, x[1], n, DT_COMM_U8, 1, .tag = 3);
        else bad = dt_comm_recv(c, x[0], n, DT_COMM_U8, 0, .tag = 3) || x[0][0] != 2 || x[0][n / 2] != 2 || x[0][n - 1] != 2;
    if (!bad && !rank) bad = dt_comm_send(c, x[2], PEEK_BYTES, DT_COMM_U8, 1);
    else if (!bad) {
        bad = dt_comm_recv_view(c, &view, DT_COMM_U8, 0) || memcmp(view.data, "\3\3\3\3", 4) ||
              ((const uint8_t *)view.data)[PEEK_BYTES - 1] != 3;
        dt_comm_view_free(c, &view);
    }
    if (rank) bad = bad || (peek_how == PEEK_REAL ? peek_calls < 8 : peek_calls > 2); /* it does not try again and again */
    for (int k = 0; k < SEVERAL && !bad; k++)
        w[k] = rank ? dt_comm_recv_start(c, x[k], PEEK_BYTES, DT_COMM_U8, 0, .tag = k)
                    : dt_comm_send_start(c, x[k], PEEK_BYTES, DT_COMM_U8, 1, .tag = k);
    for (int k = 0; k < SEVERAL && !bad; k++)
        bad = dt_work_wait(w[k]) || x[k][0] != k + 1 || x[k][PEEK_BYTES / 2] != k + 1 || x[k][PEEK_BYTES - 1] != k + 1;
    if (bad) printf("    rank %d: %s; %d reads\n", rank, dt_comm_error(c) ? dt_comm_error(c) : "wrong bytes", peek_calls);
    return dt_comm_free(c) || bad;
}
static int peeks(int how) { return dt_spawn(2, peek_rank, &how); }
UTEST(private_memory, is_read_by_the_receiver) { EXPECT_EQ(0, peeks(PEEK_REAL)); }
UTEST(private_memory, is_sent_where_the_machine_forbids_to_read_it) { EXPECT_EQ(0, peeks(PEEK_FORBIDDEN)); }
UTEST(private_memory, is_sent_if_it_cannot_be_read_whole) { EXPECT_EQ(0, peeks(PEEK_SHORT)); }
UTEST(private_memory, of_another_process_is_never_taken_for_a_message) { EXPECT_EQ(0, peeks(PEEK_OTHER)); }
UTEST(private_memory, of_a_sender_that_failed_is_never_taken_for_a_message) { EXPECT_EQ(0, peeks(PEEK_FAILS)); }

/* ==================================================================================================== buffers */
static void shared_buffers(team *t, dt_comm *c, int rank)
{
    int64_t n = t->count, all = n * t->n, at = rank * n;
    float  *x = (float *)malloc((size_t)all * 4);
    for (int how = 0; how < 3; how++) { /* at its own segment, at the beginning, across two segments */
        float *out = how == 0 ? x + at : how == 1 ? x : x + (at + n / 2 + n < all ? at + n / 2 : at - n / 2);
        for (int64_t i = 0; i < all; i++) x[i] = value(rank, i);
        check(t, !dt_comm_reduce_scatter(c, x, out, n, NULL, DT_COMM_F32, DT_COMM_MEAN), "reduce_scatter", rank);
        for (int64_t i = 0; i < n; i++) {
            float sum = 0;
            for (int r = 0; r < t->n; r++) sum += value(r, at + i);
            if (out[i] != sum / (float)t->n) check(t, false, how == 0 ? "in place" : how == 1 ? "beginning" : "across", rank);
        }
    }
    for (int64_t i = 0; i < all; i++) x[i] = i / n == rank ? value(rank, i) : -1;
    check(t, !dt_comm_gather(c, NULL, x, n, NULL, DT_COMM_F32, t->root), "gather in place", rank);
    for (int64_t i = 0; i < all && rank == t->root; i++)
        if (x[i] != value((int)(i / n), i)) check(t, false, "gathered in place", rank);
    check(t, !dt_comm_scatter(c, x, x + at, n, NULL, DT_COMM_F32, t->root), "scatter in place", rank);
    for (int64_t i = 0; i < n; i++)
        if (x[at + i] != value(rank, at + i)) check(t, false, "scattered in place", rank);
    dt_comm_barrier(c);
    free(x);
}
UTEST(buffers, input_and_output_may_overlap)
{
    static const char *const algo[] = { NULL, "ring", "pairs", "halving", "direct", "ordered", "tree" };
    for (int a = 0; a < 7; a++)
        for (int n = 2; n <= 5; n++) {
            EXPECT_EQ(0, run(n, algo[a], shared_buffers, 300, n / 2));
            EXPECT_EQ(0, run(n, algo[a], alltoall, 300, 1));
            EXPECT_EQ(0, run(n, algo[a], alltoall_equal, 300, 1));
        }
}
static void no_buffer(team *t, dt_comm *c, int rank)
{
    float x[4] = { 0, 0, 0, 0 };
    int   rc = rank == 1 ? dt_comm_reduce_scatter(c, NULL, x, 2, NULL, DT_COMM_F32, DT_COMM_SUM)
                         : dt_comm_reduce_scatter(c, x, x, 2, NULL, DT_COMM_F32, DT_COMM_SUM);
    check(t, rc == DT_COMM_ERR_ARG && strstr(dt_comm_error(c), "rank 1: dt_comm_reduce_scatter: in is NULL"), "message", rank);
}
UTEST(buffers, a_missing_input_is_named) { EXPECT_EQ(0, run(2, NULL, no_buffer, 0, 0)); }

/* ==================================================================================================== watching */
/* Operation k has a count that follows from its number: a line made of two operations is found. */
static int64_t count_of(int64_t k) { return k % 2 ? 3 + k % 97 : 2000 + k % 61; } /* short ones and long ones */
typedef struct watcher {
    const dt_comm *c;
    int            stop, bad;        /* stop: atomic */
    int64_t        lines, calls;
} watcher;
static void *watch(void *arg)
{
    watcher *w = (watcher *)arg;
    int64_t  calls = 0, bytes = 0;
    double   busy = 0;
    while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE) || !w->lines) { /* at least once behind the last call */
        static __thread char text[20000];
        dt_comm_stats        s = dt_comm_get_stats(w->c);
        w->bad += s.calls < calls || s.bytes < bytes || s.busy < busy;
        calls = s.calls, bytes = s.bytes, busy = s.busy;
        dt_comm_history(w->c, text, sizeof text);
        int64_t last = 0;
        for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, w->lines++) {
            long long no = 0, n = -1;
            if (sscanf(line, "rank 0: allreduce #%lld of %lld f32, max,", &no, &n) != 2 || n != count_of(no) || no <= last) {
                if (!w->bad++) printf("    %.*s\n", (int)(end - line), line);
            }
            last = no;
        }
        w->bad += dt_comm_get_status(w->c) != 0 || dt_comm_error(w->c) != NULL || dt_comm_get_stragglers(w->c, NULL, 0) > 1;
    }
    w->calls = calls;
    return NULL;
}
static void watched(team *t, dt_comm *c, int rank)
{
    static float x[MOST][4096];
    watcher      w;
    pthread_t    thread;
    memset(&w, 0, sizeof w);
    w.c = c;
    if (!rank) pthread_create(&thread, NULL, watch, &w);
    for (int64_t k = 1; k <= t->count; k++) {
        if (k % 5) check(t, !dt_comm_allreduce(c, x[rank], count_of(k), DT_COMM_F32, DT_COMM_MAX), "allreduce", rank);
        else check(t, !dt_work_wait(dt_comm_allreduce_start(c, x[rank], count_of(k), DT_COMM_F32, DT_COMM_MAX)), "started", rank);
    }
    if (rank) return;
    __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    check(t, !w.bad, "what another thread saw", rank);
    check(t, w.lines > 0, "lines", rank);
    check(t, dt_comm_get_stats(c).calls == t->count, "calls", rank);
}
UTEST(watching, statistics_and_history_while_the_engine_works)
{
    EXPECT_EQ(0, run(2, NULL, watched, dt_test_quick() ? 3000 : 30000, 0));
    EXPECT_EQ(0, run(2, "ring", watched, dt_test_quick() ? 1000 : 10000, 0));
}
static dt__past_slot one_slot;
static void *write_slot(void *arg)
{
    int64_t n = *(int64_t *)arg;
    for (int64_t i = 1; i <= n; i++) {
        dt__past p;
        memset(&p, 0, sizeof p);
        p.seq = (uint64_t)i;
        p.count = p.began = p.ended = i;
        p.root = p.status = (int32_t)i;
        dt__past_put(&one_slot, (uint64_t)i, &p);
    }
    return NULL;
}
UTEST(watching, an_entry_is_read_whole_or_not_at_all)
{
    int64_t   n = dt_test_quick() ? 300000 : 3000000, got = 0, torn = 0;
    pthread_t thread;
    ASSERT_EQ(0, pthread_create(&thread, NULL, write_slot, &n));
    for (uint64_t no = 0; no < (uint64_t)n;) {
        dt__past p;
        no = __atomic_load_n(&one_slot.no, __ATOMIC_RELAXED);
        if (!no || !dt__past_get(&one_slot, no, &p)) continue;
        got++;
        torn += p.seq != no || p.count != (int64_t)no || p.began != p.count || p.ended != p.count || p.root != p.status ||
                p.root != (int32_t)no;
    }
    pthread_join(thread, NULL);
    EXPECT_EQ(0, torn);
    EXPECT_GT(got, 0);
}

/* ==================================================================================================== failing */
static void *late_text(void *arg) /* the failure of another rank appears after 5 ms */
{
    dt__segment_head *h = (dt__segment_head *)arg;
    usleep(5000);
    snprintf(h->text, sizeof h->text, "the other's text");
    h->rank = 1;
    __atomic_store_n(&h->status, (int32_t)DT_COMM_ERR_PEER, __ATOMIC_RELEASE);
    return NULL;
}
/* Another rank has begun to write its failure to the segment, and was stopped there. */
static void half_failed(team *t, dt_comm *c, int rank)
{
    dt__segment_head *h = ((dt__shared *)c->shared)->head;
    pthread_t         thread;
    dt_comm_barrier(c);
    if (!rank) {
        __atomic_store_n(&h->failing, 1, __ATOMIC_SEQ_CST);
        if (t->root) pthread_create(&thread, NULL, late_text, h);
        int64_t t0 = dt_test_ns();
        dt_comm_abort(c, "mine");
        double took = (double)(dt_test_ns() - t0) * 1e-9;
        check(t, took < 1 * dt_test_slow(), "time", rank);
        check(t, dt_comm_get_status(c) == (t->root ? DT_COMM_ERR_PEER : DT_COMM_ERR_ABORT), "status", rank);
        check(t, !strcmp(dt_comm_error(c), t->root ? "the other's text" : "rank 0: mine"), "text", rank);
        if (t->root) pthread_join(thread, NULL);
    }
    /* rank 1 has seen nothing: it is not told in a world of threads, where nobody can be stopped alone */
    if (!t->root) dt__comm_failed(c, DT_COMM_ERR_STATE, 0, "the end of the test");
}
UTEST(failing, does_not_wait_for_a_rank_that_was_stopped_while_it_failed)
{
    EXPECT_EQ(0, run(2, NULL, half_failed, 0, 0));
    EXPECT_EQ(0, run(2, NULL, half_failed, 0, 1)); /* its text comes within 50 ms: it is taken */
}
static int half_failed_process(void *arg) /* rank 1 is stopped after the first half; ranks 0 and 2 fail */
{
    int *right = (int *)arg;
    dt_comm *c = dt_comm_init(.transport = "shm", .timeout = 20 * dt_test_slow());
    float    x = 1;
    if (!c || dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM)) return 1;
    int rank = dt_comm_rank(c);
    if (rank == 1) __atomic_store_n(&((dt__shared *)c->shared)->head->failing, 1, __ATOMIC_SEQ_CST);
    if (dt_comm_barrier(c)) return 2;
    if (rank == 0) dt_comm_abort(c, "mine");
    int64_t t0 = dt_test_ns();
    while (!dt_comm_get_status(c)) usleep(1000); /* the control connections tell the others */
    double took = (double)(dt_test_ns() - t0) * 1e-9;
    bool   ok = took < 1 * dt_test_slow() && dt_comm_get_status(c) == DT_COMM_ERR_ABORT && !strcmp(dt_comm_error(c), "rank 0: mine");
    if (ok) __atomic_add_fetch(right, 1, __ATOMIC_RELAXED);
    else printf("    rank %d after %.2f s: %s\n", rank, took, dt_comm_error(c));
    dt_comm_free(c);
    return 0;
}
UTEST(failing, all_processes_hear_of_it_though_the_segment_does_not_say_so)
{
    int *right = (int *)mmap(NULL, sizeof *right, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(right != MAP_FAILED);
    EXPECT_EQ(0, dt_spawn(3, half_failed_process, right));
    EXPECT_EQ(3, *right);
    munmap(right, sizeof *right);
}
