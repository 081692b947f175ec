/* test_tcp.c: messages over sockets. Ranks are threads of this process with links of their own making; every socket
   call passes a shim that interrupts, cuts and refuses. Whatever it does, each message arrives as it was sent.
   Contents: >>shim >>links >>traffic >>headers >>gone >>slow >>waiting >>closing
   run: alone, long, asan-later */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct dt_comm;
struct dt__world;
struct dt__frame;
static int     test_link(struct dt__world *w, struct dt_comm *c, int peer, int stream);
static void    test_abort(struct dt__world *w, struct dt_comm *c, int status, int rank, const char *text);
static bool    test_frame_ok(struct dt_comm *c, int peer, const struct dt__frame *want, const struct dt__frame *got);
static ssize_t test_send(int fd, struct msghdr *m, int flags);
static ssize_t test_recv(int fd, struct msghdr *m, int flags);
static int     test_poll(struct pollfd *p, nfds_t n, const struct timespec *t);
static void   *test_alloc(void *p, size_t n);
#define DT__WORLD_LINK test_link
#define DT__WORLD_ABORT test_abort
#define DT__WORLD_ASK dt__world_ask
#define DT__FRAME_OK test_frame_ok
#define DT__SEND(fd, m, flags) test_send(fd, m, flags)
#define DT__RECV(fd, m, flags) test_recv(fd, m, flags)
#define DT__POLL(p, n, t) test_poll(p, n, t)
#define DT_COMM_MALLOC(n) test_alloc(NULL, n)
#define DT_COMM_REALLOC(p, n) test_alloc(p, n)
#define DT_COMM_FREE(p) free(p)
#pragma GCC diagnostic ignored "-Wunused-function" /* what the stand-ins replace */
#define DT_IMPLEMENTATION
#include "dt_comm.h"

#include "harness.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>

UTEST_MAIN()

/* ==================================================================================================== >>shim */
static __thread uint64_t state; /* 0: no faults on this thread */
static uint32_t next(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return (uint32_t)((*s * 0x2545F4914F6CDD1Du) >> 32);
}
enum { INTERRUPT = 1, REFUSE = 2, CUT = 4, BYTES = 8 }; /* EINTR; EAGAIN; a random part; one byte at a time */
static int faults;                                      /* which ones; set while no rank runs */
static int hits[3][3];                                  /* send, recv, poll: how often each; atomic */
static void hit(int call, int kind) { __atomic_fetch_add(&hits[call][kind], 1, __ATOMIC_RELAXED); }

/* Returns an errno, or 0 with what is left of the message in v. */
static int spoil(int call, const struct msghdr *m, struct msghdr *copy, struct iovec *v)
{
    size_t total = 0, keep;
    *copy = *m;
    if (!faults || !state) return 0;
    if ((faults & INTERRUPT) && next(&state) % 3 == 0) {
        hit(call, 0);
        return EINTR;
    }
    if ((faults & REFUSE) && next(&state) % 4 == 0) {
        hit(call, 1);
        return EAGAIN;
    }
    for (size_t i = 0; i < m->msg_iovlen; i++) total += m->msg_iov[i].iov_len;
    keep = faults & BYTES ? 1 : (faults & CUT) && total ? 1 + next(&state) % total : total;
    if (keep < total) hit(call, 2);
    copy->msg_iov = v;
    for (size_t i = 0; i < m->msg_iovlen; i++) {
        v[i] = m->msg_iov[i];
        if (v[i].iov_len > keep) v[i].iov_len = keep;
        keep -= v[i].iov_len;
    }
    return 0;
}
static ssize_t test_send(int fd, struct msghdr *m, int flags)
{
    struct msghdr copy;
    struct iovec  v[2];
    errno = spoil(0, m, &copy, v);
    return errno ? -1 : sendmsg(fd, &copy, flags);
}
static ssize_t test_recv(int fd, struct msghdr *m, int flags)
{
    struct msghdr copy;
    struct iovec  v[2];
    ssize_t       r;
    errno = spoil(1, m, &copy, v);
    if (errno) return -1;
    r = recvmsg(fd, &copy, flags);
    m->msg_controllen = copy.msg_controllen;
    return r;
}
static int test_poll(struct pollfd *p, nfds_t n, const struct timespec *t)
{
    if ((faults & INTERRUPT) && state && next(&state) % 3 == 0) {
        hit(2, 0);
        errno = EINTR;
        return -1;
    }
    return ppoll(p, n, t, NULL);
}
static size_t allocated; /* bytes asked for; atomic */
static int    alloc_fails; /* the how manieth from now fails; 0: none */
static void  *test_alloc(void *p, size_t n)
{
    __atomic_fetch_add(&allocated, n, __ATOMIC_RELAXED);
    if (alloc_fails > 0 && --alloc_fails == 0) return NULL;
    return realloc(p, n);
}

/* ==================================================================================================== >>links */
enum { RANKS = 3, STREAMS = 3 };
static int  ends[RANKS][RANKS][STREAMS]; /* the descriptor of rank a to rank b; -1: taken or none */
static int  not_yet;                     /* calls of test_link that say so first */
static int  aborts;                      /* atomic */
static bool use_unix;
static dt__world nowhere; /* a world without a table */

static int test_link(struct dt__world *w, struct dt_comm *c, int peer, int stream)
{
    static __thread int asked;
    int                 fd = ends[c->rank][peer][stream];
    (void)w;
    if (asked++ % (not_yet + 1) < not_yet) return -1;
    if (fd < 0) {
        dt__comm_failed(c, DT_COMM_ERR_NET, peer, "test_link: no link");
        return -2;
    }
    ends[c->rank][peer][stream] = -1;
    return fd;
}
static void test_abort(struct dt__world *w, struct dt_comm *c, int status, int rank, const char *text)
{
    (void)w, (void)c, (void)status, (void)rank, (void)text;
    __atomic_fetch_add(&aborts, 1, __ATOMIC_RELAXED);
}
static bool test_frame_ok(struct dt_comm *c, int peer, const dt__frame *want, const dt__frame *got)
{
    if (got->magic == want->magic && got->version == want->version && got->comm == want->comm &&
        got->epoch == want->epoch && got->seq == want->seq && got->count == want->count && got->root == want->root &&
        got->coll == want->coll && got->algo == want->algo && got->dtype == want->dtype && got->op == want->op)
        return true;
    dt__comm_failed(c, DT_COMM_ERR_MISMATCH, peer, "the headers differ");
    return false;
}
static int make_pair(int *a, int *b) /* connected sockets */
{
    struct sockaddr_in at;
    socklen_t          len = sizeof at;
    int                listener;
    if (use_unix) {
        int sv[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv)) return -1;
        *a = sv[0];
        *b = sv[1];
    } else {
        memset(&at, 0, sizeof at);
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1)) return -1;
        if (getsockname(listener, (struct sockaddr *)&at, &len)) return -1;
        *a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(*a, (struct sockaddr *)&at, sizeof at)) return -1;
        *b = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        fcntl(*a, F_SETFL, O_NONBLOCK);
        close(listener);
    }
    return *b < 0 ? -1 : 0;
}
static int make_links(int ranks, int streams)
{
    for (int a = 0; a < ranks; a++)
        for (int b = a + 1; b < ranks; b++)
            for (int s = 0; s < streams; s++)
                if (make_pair(&ends[a][b][s], &ends[b][a][s])) return -1;
    return 0;
}
static void close_links(int ranks, int streams) /* those that nobody took */
{
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < ranks; b++)
            for (int s = 0; s < streams; s++)
                if (a != b && ends[a][b][s] >= 0) close(ends[a][b][s]), ends[a][b][s] = -1;
}
static void start(dt_comm *c, int rank, int size, int streams)
{
    memset(c, 0, sizeof *c);
    c->id = 77;
    c->rank = rank;
    c->size = size;
    c->streams = streams;
    c->timeout = 30;
    c->world = &nowhere;
    c->failed_rank = -1;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->across = dt__transport_get("tcp");
    c->client = &dt__comm_client;
}
static void stop(dt_comm *c)
{
    c->across->close(c);
    close(c->wake_fd);
}
static dt__msg message(uint64_t seq, int rank, void *ptr, size_t n)
{
    dt__msg m;
    memset(&m, 0, sizeof m);
    m.head.magic = DT__FRAME_MAGIC;
    m.head.version = DT__FRAME_VERSION;
    m.head.comm = 77;
    m.head.seq = seq;
    m.head.nbytes = n;
    m.head.rank = rank;
    m.head.coll = DT_COLL_SEND;
    m.ptr = (char *)ptr;
    m.n = n;
    return m;
}
static void wait_for(dt_comm *c, double seconds) /* as the engine waits */
{
    dt__pollset set = { NULL, 0, 0, dt__comm_now() + (int64_t)(seconds * 1e9) };
    c->across->fds(c, &set);
    dt__pollset_wait(c, &set);
    DT_COMM_FREE(set.p);
}
/* Calls again until it is done or failed; at most so many seconds */
static int finish(dt_comm *c, int (*move)(dt_comm *, int, dt__msg *), int peer, dt__msg *m, double seconds)
{
    int64_t end = dt_test_ns() + (int64_t)(seconds * dt_test_slow() * 1e9);
    int     r;
    while ((r = move(c, peer, m)) == 0) {
        if (dt_test_ns() > end) return 99;
        wait_for(c, 0.2);
    }
    return r;
}

/* ==================================================================================================== >>traffic
   Every rank sends MESSAGES to every other, and receives as many, all pairs at the same time. */
typedef struct traffic {
    uint64_t seed;
    int      ranks, streams, messages, buffer; /* buffer: SO_SNDBUF; 0: as usual */
    size_t   largest;
    double   bandwidth, latency;
    /* of one rank */
    int      rank;
    char     why[200]; /* it failed */
    uint64_t sent, counted;
} traffic;

static const int plain_sizes[] = { 0, 1, 7, 4095, 4096, 4097, 262143, 262144, 262145 };

/* What the k-th message from a to b is; the same for both. */
static dt__msg draw_message(const traffic *t, int a, int b, int k, uint64_t *rng)
{
    uint64_t s = t->seed * 1000003u + (uint64_t)(a * 64 + b) * 7919u + (uint64_t)k * 104729u + 1;
    size_t   n, size;
    dt__msg  m;
    for (int i = 0; i < 4; i++) next(&s);
    n = next(&s) % 3 == 0 ? (size_t)plain_sizes[next(&s) % 9] : (size_t)next(&s) >> (next(&s) % 32);
    if (n > t->largest) n = n % (t->largest + 1);
    m = message((uint64_t)k, a, NULL, 0);
    m.dtype = (int)(next(&s) % DT_COMM_DTYPES);
    m.op = next(&s) % 2 ? DT_COMM_SUM : DT_COMM_MIN;
    m.fold = next(&s) % 2;
    m.left = next(&s) % 2;
    size = dt__elem_nbytes(m.dtype);
    m.n = n / size * size;
    m.head.nbytes = m.n;
    m.head.count = (int64_t)(m.n / size);
    *rng = s;
    return m;
}
static void scribble(char *p, size_t n, uint64_t s)
{
    uint32_t x = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0) x = next(&s);
        p[i] = (char)(x >> 8 * (i % 4));
    }
}
static void *run_rank(void *arg)
{
    traffic *t = (traffic *)arg;
    dt_comm  c;
    dt__msg  out[RANKS], in[RANKS];
    char    *src[RANKS], *dst[RANKS], *want[RANKS];
    int      nout[RANKS], nin[RANKS], left = 2 * (t->ranks - 1) * t->messages;
    uint64_t s;
    int64_t  end = dt_test_ns() + (int64_t)(50e9 * dt_test_slow());
    start(&c, t->rank, t->ranks, t->streams);
    c.bandwidth = t->bandwidth;
    c.latency = t->latency;
    if (t->buffer) dt__tcp_of(&c)->sndbuf = t->buffer;
    state = t->seed * 31 + (uint64_t)t->rank + 1;
    for (int p = 0; p < t->ranks; p++) {
        src[p] = (char *)malloc(t->largest + 1);
        dst[p] = (char *)malloc(t->largest + 1);
        want[p] = (char *)malloc(t->largest + 1);
        nout[p] = nin[p] = 0;
    }
    memset(out, 0, sizeof out);
    memset(in, 0, sizeof in);
    while (left && !t->why[0]) {
        int moved = 0;
        for (int p = 0; p < t->ranks; p++) {
            int r;
            if (p == t->rank) continue;
            if (nout[p] < t->messages) {
                if (!out[p].ptr) {
                    out[p] = draw_message(t, t->rank, p, nout[p], &s);
                    out[p].ptr = src[p];
                    scribble(src[p], out[p].n, s);
                }
                r = c.across->send(&c, p, &out[p]);
                if (r < 0) snprintf(t->why, sizeof t->why, "send to %d: %d %.100s", p, r, c.text);
                if (r > 0) {
                    t->sent += sizeof(dt__frame) + out[p].n;
                    memset(src[p], 0x11, out[p].n); /* it is ours again */
                    memset(&out[p], 0, sizeof out[p]);
                    nout[p]++, left--, moved++;
                }
            }
            if (nin[p] < t->messages) {
                if (!in[p].ptr) {
                    in[p] = draw_message(t, p, t->rank, nin[p], &s);
                    in[p].ptr = dst[p];
                    scribble(want[p], in[p].n, s);
                    scribble(dst[p], in[p].n, s ^ 5);
                    dst[p][in[p].n] = 0x77;
                    if (in[p].fold) { /* as one piece */
                        char *both = (char *)malloc(in[p].n + 1);
                        memcpy(both, dst[p], in[p].n);
                        dt__fold(in[p].dtype, in[p].op, both, want[p], in[p].head.count, in[p].left);
                        memcpy(want[p], both, in[p].n);
                        free(both);
                    }
                }
                r = c.across->recv(&c, p, &in[p]);
                if (r < 0) snprintf(t->why, sizeof t->why, "receive from %d: %d %.100s", p, r, c.text);
                if (r > 0) {
                    if (memcmp(want[p], dst[p], in[p].n) || dst[p][in[p].n] != 0x77)
                        snprintf(t->why, sizeof t->why, "message %d from %d: %zu bytes, fold %d: differs", nin[p], p,
                                 in[p].n, in[p].fold);
                    memset(&in[p], 0, sizeof in[p]);
                    nin[p]++, left--, moved++;
                }
            }
        }
        if (!moved) wait_for(&c, 1);
        if (dt_test_ns() > end) snprintf(t->why, sizeof t->why, "it did not end: %d messages are left", left);
    }
    t->counted = dt__tcp_bytes(&c);
    stop(&c);
    for (int p = 0; p < t->ranks; p++) free(src[p]), free(dst[p]), free(want[p]);
    state = 0;
    return NULL;
}
static void run_traffic_for(int *utest_result, traffic t, double *seconds)
{
    traffic   all[RANKS];
    pthread_t thread[RANKS];
    int64_t   begin;
    *seconds = 0;
    if (make_links(t.ranks, t.streams)) {
        EXPECT_TRUE(0 && "the sockets could not be made");
        return;
    }
    begin = dt_test_ns();
    for (int r = 0; r < t.ranks; r++) {
        all[r] = t;
        all[r].rank = r;
        pthread_create(&thread[r], NULL, run_rank, &all[r]);
    }
    for (int r = 0; r < t.ranks; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < t.ranks; r++) {
        EXPECT_STREQ("", all[r].why);
        EXPECT_EQ(all[r].sent, all[r].counted);
    }
    close_links(t.ranks, t.streams);
    *seconds = (double)(dt_test_ns() - begin) * 1e-9;
}
static void run_traffic(int *utest_result, traffic t)
{
    double seconds;
    run_traffic_for(utest_result, t, &seconds);
}
static traffic traffic_of(int ranks, int streams, int messages, size_t largest, uint64_t seed)
{
    traffic t;
    memset(&t, 0, sizeof t);
    t.ranks = ranks;
    t.streams = streams;
    t.messages = messages;
    t.largest = largest;
    t.seed = seed;
    return t;
}
static bool quick(void) { return getenv("DT_TEST_QUICK") != NULL; }

UTEST(traffic, two_ranks_messages_up_to_8_mib)
{
    for (int streams = 1; streams <= STREAMS; streams++)
        run_traffic(utest_result, traffic_of(2, streams, quick() ? 10 : 40, 8 << 20, (uint64_t)streams));
}
UTEST(traffic, three_ranks)
{
    run_traffic(utest_result, traffic_of(3, 2, quick() ? 10 : 40, 1 << 20, 9));
}
UTEST(traffic, unix_sockets)
{
    use_unix = true;
    run_traffic(utest_result, traffic_of(3, 1, quick() ? 10 : 40, 1 << 20, 10));
    use_unix = false;
}
UTEST(traffic, links_that_come_late)
{
    not_yet = 3;
    run_traffic(utest_result, traffic_of(3, 3, 5, 1 << 20, 11));
    not_yet = 0;
}
UTEST(traffic, interrupted_cut_and_refused)
{
    memset(hits, 0, sizeof hits);
    for (int streams = 1; streams <= STREAMS; streams++) {
        faults = INTERRUPT | REFUSE | CUT;
        run_traffic(utest_result, traffic_of(2, streams, quick() ? 10 : 30, 2 << 20, 20 + (uint64_t)streams));
        faults = 0;
    }
    for (int kind = 0; kind < 3; kind++) {
        EXPECT_GT(hits[0][kind], 0);
        EXPECT_GT(hits[1][kind], 0);
    }
    EXPECT_GT(hits[2][0], 0);
}
UTEST(traffic, a_byte_at_a_time)
{
    faults = BYTES | INTERRUPT | REFUSE;
    run_traffic(utest_result, traffic_of(2, 1, 30, 5000, 30));
    faults = 0;
    faults = BYTES;
    run_traffic(utest_result, traffic_of(2, 3, 2, quick() ? 30000 : 300000, 31));
    faults = 0;
}
UTEST(traffic, sending_buffers_of_4_kib)
{
    traffic t = traffic_of(2, 2, 10, 1 << 20, 40);
    t.buffer = 4096;
    run_traffic(utest_result, t);
    use_unix = true;
    run_traffic(utest_result, t);
    use_unix = false;
    faults = CUT | REFUSE | INTERRUPT;
    t.largest = 1 << 18;
    run_traffic(utest_result, t);
    faults = 0;
}

/* ==================================================================================================== >>headers */
/* Rank 0 receives n bytes; what 'got' says is written to its link by hand, with n bytes behind it. */
static void receive_forged(int *utest_result, dt_comm *c, const dt__frame *got, size_t behind, char *buf, size_t n,
                           bool fold)
{
    dt__msg m = message(3, 1, buf, n);
    char   *payload = (char *)malloc(behind + 1);
    int     r, other = ends[1][0][0];
    size_t  before;
    memset(payload, 0x22, behind + 1);
    m.fold = fold;
    m.dtype = DT_COMM_U8;
    EXPECT_EQ((ssize_t)sizeof *got, send(other, got, sizeof *got, MSG_NOSIGNAL));
    EXPECT_EQ((ssize_t)behind, send(other, payload, behind, MSG_NOSIGNAL));
    dt__tcp_link_of(c, 1); /* what a link needs, whatever comes */
    before = allocated;
    r = finish(c, c->across->recv, 1, &m, 5);
    EXPECT_EQ(before, allocated);
    EXPECT_EQ(DT_COMM_ERR_MISMATCH, r);
    free(payload);
}
UTEST(headers, a_wrong_one_leaves_the_buffer_alone)
{
    for (int what = 0; what < 8; what++)
        for (int large = 0; large < 2; large++) {
            dt_comm   c;
            dt__frame got;
            size_t    n = large ? 100000 : 64;
            char     *buf = (char *)calloc(n, 1);
            ASSERT_EQ(0, make_links(2, 1));
            start(&c, 0, 2, 1);
            got = message(3, 1, buf, n).head;
            if (what == 0) got.seq++;
            if (what == 1) got.coll = DT_COLL_ALLREDUCE;
            if (what == 2) got.dtype = DT_COMM_F64;
            if (what == 3) got.op = DT_COMM_MAX;
            if (what == 4) got.root = 1;
            if (what == 5) got.comm = 78;
            if (what == 6) got.magic = 0x20544547; /* "GET " */
            if (what == 7) got.epoch = 1;
            receive_forged(utest_result, &c, &got, n, buf, n, large);
            EXPECT_EQ(DT_COMM_ERR_MISMATCH, c.status);
            EXPECT_EQ(1, c.failed_rank);
            for (size_t i = 0; i < n; i++) ASSERT_EQ(0, buf[i]);
            stop(&c);
            close_links(2, 1);
            free(buf);
        }
}
UTEST(headers, lengths_that_are_not_expected_are_refused)
{
    static const uint64_t lengths[] = { 0, 1, 63, 65, UINT32_MAX, (uint64_t)1 << 31, (uint64_t)1 << 63, UINT64_MAX,
                                        (uint64_t)-64, 64 + ((uint64_t)1 << 32) };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int fold = 0; fold < 2; fold++) {
            dt_comm   c;
            dt__frame got;
            char      buf[64];
            int       before = aborts;
            memset(buf, 0, sizeof buf);
            ASSERT_EQ(0, make_links(2, 1));
            start(&c, 0, 2, 1);
            got = message(3, 1, buf, sizeof buf).head;
            got.nbytes = lengths[i];
            receive_forged(utest_result, &c, &got, 200, buf, sizeof buf, fold);
            EXPECT_TRUE(strstr(c.text, "rank 1 sends") && strstr(c.text, "rank 0 expects 64"));
            EXPECT_EQ(before + 1, aborts); /* the others are told */
            for (size_t k = 0; k < sizeof buf; k++) ASSERT_EQ(0, buf[k]);
            EXPECT_EQ(DT_COMM_ERR_MISMATCH, c.across->send(&c, 1, NULL)); /* and so says every later call */
            stop(&c);
            close_links(2, 1);
        }
}

/* ==================================================================================================== >>gone */
/* The other end sends the header and half of the payload, then closes; hard: by a reset. */
static void close_in_the_middle(dt_comm *c, dt__msg *m, bool hard)
{
    struct linger l = { 1, 0 };
    int           other = ends[1][0][0];
    ssize_t       r = send(other, &m->head, sizeof m->head, MSG_NOSIGNAL);
    r += send(other, m->ptr, m->n / 2, MSG_NOSIGNAL);
    (void)r;
    c->across->recv(c, 1, m); /* takes it, so that a reset does not overtake it */
    if (hard) setsockopt(other, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(other);
    ends[1][0][0] = -1;
}
UTEST(gone, a_peer_that_closes_in_a_message_is_named_after_a_while)
{
    for (int hard = 0; hard < 2; hard++) {
        dt_comm c;
        char    buf[1000];
        dt__msg m = message(3, 1, buf, sizeof buf);
        int     before = aborts;
        int64_t begin = dt_test_ns();
        memset(buf, 0, sizeof buf);
        ASSERT_EQ(0, make_links(2, 1));
        start(&c, 0, 2, 1);
        close_in_the_middle(&c, &m, hard);
        EXPECT_EQ(DT_COMM_ERR_PEER, finish(&c, c.across->recv, 1, &m, 10));
        EXPECT_GE(dt_test_ns() - begin, (int64_t)450000000); /* the control tree had its time */
        EXPECT_EQ(1, c.failed_rank);
        EXPECT_TRUE_MSG(strstr(c.text, "rank 1 is gone") != NULL, c.text);
        EXPECT_TRUE_MSG(!hard || strstr(c.text, "reset"), c.text);
        EXPECT_EQ(before + 1, aborts);
        stop(&c);
        close_links(2, 1);
    }
}
static void *tell(void *arg) /* what the control thread does */
{
    dt__comm_failed((dt_comm *)arg, DT_COMM_ERR_PEER, 2, "rank 2 was killed");
    return NULL;
}
UTEST(gone, the_control_tree_knows_better)
{
    dt_comm   c;
    char      buf[1000];
    dt__msg   m = message(3, 1, buf, sizeof buf);
    int       before = aborts;
    pthread_t thread;
    memset(buf, 0, sizeof buf);
    ASSERT_EQ(0, make_links(2, 1));
    start(&c, 0, 2, 1);
    close_in_the_middle(&c, &m, false);
    EXPECT_EQ(0, c.across->recv(&c, 1, &m));
    pthread_create(&thread, NULL, tell, &c);
    EXPECT_EQ(DT_COMM_ERR_PEER, finish(&c, c.across->recv, 1, &m, 10));
    pthread_join(thread, NULL);
    EXPECT_EQ(2, c.failed_rank);
    EXPECT_STREQ("rank 2 was killed", c.text);
    EXPECT_EQ(before, aborts);
    stop(&c);
    close_links(2, 1);
}
UTEST(gone, a_sender_gets_no_signal)
{
    for (int kind = 0; kind < 2; kind++) { /* a reset, a broken pipe */
        dt_comm c;
        size_t  n = 32 << 20; /* more than the kernel takes */
        char   *buf = (char *)calloc(n, 1);
        dt__msg m = message(3, 0, buf, n);
        use_unix = kind == 1;
        ASSERT_EQ(0, make_links(2, 1));
        use_unix = false;
        start(&c, 0, 2, 1);
        EXPECT_EQ(0, c.across->send(&c, 1, &m));
        close(ends[1][0][0]);
        ends[1][0][0] = -1;
        EXPECT_EQ(DT_COMM_ERR_PEER, finish(&c, c.across->send, 1, &m, 10));
        EXPECT_EQ(1, c.failed_rank);
        stop(&c);
        close_links(2, 1);
        free(buf);
    }
}
UTEST(gone, what_was_sent_arrives_although_the_sender_closed)
{
    dt_comm a, b;
    size_t  n = 100000;
    char   *x = (char *)malloc(n), *y = (char *)calloc(n, 1);
    dt__msg out = message(3, 0, x, n), in = message(3, 0, y, n);
    scribble(x, n, 5);
    ASSERT_EQ(0, make_links(2, 1));
    start(&a, 0, 2, 1);
    start(&b, 1, 2, 1);
    EXPECT_EQ(1, finish(&a, a.across->send, 1, &out, 10));
    stop(&a);
    EXPECT_EQ(1, finish(&b, b.across->recv, 0, &in, 10));
    EXPECT_EQ(0, memcmp(x, y, n));
    stop(&b);
    free(x);
    free(y);
}
UTEST(gone, a_link_that_cannot_be_made)
{
    dt_comm c;
    char    x = 0;
    dt__msg m = message(1, 0, &x, 1);
    memset(ends, -1, sizeof ends);
    start(&c, 0, 2, 1);
    EXPECT_EQ(DT_COMM_ERR_NET, c.across->send(&c, 1, &m));
    EXPECT_STREQ("test_link: no link", c.text);
    stop(&c);
}
UTEST(gone, without_memory_it_fails_and_can_be_closed)
{
    for (int k = 1; k <= 5; k++) {
        dt_comm c;
        char    x[8192];
        dt__msg m = message(3, 1, x, sizeof x);
        ASSERT_EQ(0, make_links(2, 1));
        start(&c, 0, 2, 1);
        m.fold = true;
        m.dtype = DT_COMM_U8;
        EXPECT_EQ((ssize_t)sizeof m.head, send(ends[1][0][0], &m.head, sizeof m.head, MSG_NOSIGNAL));
        alloc_fails = k;
        EXPECT_EQ(DT_COMM_ERR_MEMORY, finish(&c, c.across->recv, 1, &m, 5));
        EXPECT_EQ(0, alloc_fails);
        alloc_fails = 0;
        stop(&c);
        close_links(2, 1);
    }
}

/* ==================================================================================================== >>slow */
UTEST(slow, bandwidth_is_not_exceeded)
{
    traffic t = traffic_of(2, 2, 6, 400000, 50);
    uint64_t bytes = 0, rng;
    double   seconds;
    t.bandwidth = 4e6;
    for (int k = 0; k < t.messages; k++) bytes += draw_message(&t, 0, 1, k, &rng).n;
    run_traffic_for(utest_result, t, &seconds);
    EXPECT_GT(bytes, (uint64_t)200000);
    EXPECT_GE(seconds, 0.9 * (double)bytes / t.bandwidth);
}
/* There and back five times. */
static void *echo(void *arg)
{
    dt_comm *c = (dt_comm *)arg;
    for (uint64_t k = 0; k < 5; k++) {
        char    x = 0;
        dt__msg in = message(2 * k, 0, &x, 1), out = message(2 * k + 1, 1, &x, 1);
        if (finish(c, c->across->recv, 0, &in, 20) != 1 || finish(c, c->across->send, 0, &out, 20) != 1) break;
    }
    return NULL;
}
UTEST(slow, latency_is_kept)
{
    dt_comm   a, b;
    pthread_t thread;
    int64_t   begin = dt_test_ns();
    ASSERT_EQ(0, make_links(2, 1));
    start(&a, 0, 2, 1);
    start(&b, 1, 2, 1);
    a.latency = b.latency = 0.02;
    pthread_create(&thread, NULL, echo, &b);
    for (uint64_t k = 0; k < 5; k++) {
        char    x = (char)k, y = 0;
        dt__msg out = message(2 * k, 0, &x, 1), in = message(2 * k + 1, 1, &y, 1);
        EXPECT_EQ(1, finish(&a, a.across->send, 1, &out, 20));
        EXPECT_EQ(1, finish(&a, a.across->recv, 1, &in, 20));
        EXPECT_EQ(x, y);
    }
    pthread_join(thread, NULL);
    EXPECT_GE((double)(dt_test_ns() - begin) * 1e-9, 10 * 0.02 * 0.95);
    stop(&a);
    stop(&b);
}
/* Messages on their way together are late once, not one after the other: 200 of 20 ms would take 4 s. A kernel may
   begin to stamp packets some time after it was asked to: the best of three rounds counts. */
UTEST(slow, latency_of_messages_that_follow_each_other_overlaps)
{
    dt_comm a, b;
    double  best = 1e9;
    ASSERT_EQ(0, make_links(2, 1));
    start(&a, 0, 2, 1);
    start(&b, 1, 2, 1);
    a.latency = b.latency = 0.02;
    char    x = 1;
    dt__msg first = message(0, 0, &x, 1);
    EXPECT_EQ(0, b.across->recv(&b, 0, &first)); /* opens the link, with its stamps */
    for (uint64_t round = 0; round < 600 && best >= 2.0 * dt_test_slow(); round += 200) {
        int64_t begin = dt_test_ns();
        for (uint64_t k = round; k < round + 200; k++) {
            dt__msg out = message(k, 0, &x, 1);
            EXPECT_EQ(1, finish(&a, a.across->send, 1, &out, 20));
        }
        for (uint64_t k = round; k < round + 200; k++) {
            dt__msg in = k ? message(k, 0, &x, 1) : first;
            EXPECT_EQ(1, finish(&b, b.across->recv, 0, &in, 20));
        }
        best = (double)(dt_test_ns() - begin) * 1e-9;
    }
    EXPECT_LT(best, 2.0 * dt_test_slow());
    stop(&a);
    stop(&b);
}
UTEST(slow, bandwidth_and_latency_with_faults_change_no_bit)
{
    traffic t = traffic_of(3, 2, 4, 300000, 51);
    t.bandwidth = 50e6;
    t.latency = 1e-4;
    faults = INTERRUPT | REFUSE | CUT;
    run_traffic(utest_result, t);
    faults = 0;
}

/* ==================================================================================================== >>waiting */
static void *wake(void *arg)
{
    uint64_t one = 1;
    ssize_t  r = write(((dt_comm *)arg)->wake_fd, &one, sizeof one);
    return r == sizeof one ? NULL : arg;
}
UTEST(waiting, ends_when_woken_when_something_came_and_when_the_time_is_over)
{
    dt_comm   a, b;
    pthread_t thread;
    char      x = 4, y = 0;
    dt__msg   out = message(0, 0, &x, 1), in = message(0, 0, &y, 1);
    int64_t   begin = dt_test_ns();
    ASSERT_EQ(0, make_links(2, 1));
    start(&a, 0, 2, 1);
    start(&b, 1, 2, 1);
    wait_for(&a, 0.01); /* with no link at all */
    EXPECT_GE(dt_test_ns() - begin, (int64_t)9000000);
    EXPECT_EQ(0, b.across->recv(&b, 0, &in));
    begin = dt_test_ns();
    wait_for(&b, 0.01);
    EXPECT_GE(dt_test_ns() - begin, (int64_t)9000000);
    pthread_create(&thread, NULL, wake, &b);
    wait_for(&b, 1000);
    pthread_join(thread, NULL);
    begin = dt_test_ns();
    wait_for(&b, 0.01); /* woken once */
    EXPECT_GE(dt_test_ns() - begin, (int64_t)9000000);
    EXPECT_EQ(1, a.across->send(&a, 1, &out));
    wait_for(&b, 1000);
    EXPECT_EQ(1, finish(&b, b.across->recv, 0, &in, 10));
    EXPECT_EQ(4, y);
    dt__comm_failed(&b, DT_COMM_ERR_ABORT, -1, "enough");
    for (int i = 0; i < 2; i++) wait_for(&b, 1000); /* no sleep when all is over, woken or not */
    EXPECT_EQ(DT_COMM_ERR_ABORT, b.across->recv(&b, 0, &in));
    stop(&a);
    stop(&b);
}
static void *drain(void *arg) /* until nothing comes any more */
{
    static char buf[1 << 16];
    int         fd = *(int *)arg;
    for (;;) {
        struct pollfd p = { fd, POLLIN, 0 };
        ssize_t       r = poll(&p, 1, 20000) == 1 ? recv(fd, buf, sizeof buf, MSG_DONTWAIT) : 0;
        if (r <= 0) return NULL;
    }
}
/* Whatever holds a message up, a wait of 1000 s ends when it may go on. */
UTEST(waiting, ends_when_a_message_may_go_on)
{
    size_t n = 32 << 20;
    char  *buf = (char *)calloc(n, 1), x = 1, y = 0;
    for (int what = 0; what < 6; what++) {
        dt_comm   a, b;
        dt__msg   out = what < 2 ? message(0, 0, buf, what ? 3 << 20 : n) : message(0, 0, &x, 1),
                in = message(0, 0, &y, 1);
        pthread_t thread;
        ASSERT_EQ(0, make_links(2, 1));
        start(&a, 0, 2, 1);
        start(&b, 1, 2, 1);
        if (what == 0) { /* the kernel has room again */
            EXPECT_EQ(0, a.across->send(&a, 1, &out));
            while (a.across->send(&a, 1, &out) == 0 && !((dt__tcp *)a.across_data)->link[1]->out.blocked) {}
            pthread_create(&thread, NULL, drain, &ends[1][0][0]);
            for (int r = 0; r == 0; r = a.across->send(&a, 1, &out)) wait_for(&a, 1000);
            shutdown(((dt__tcp *)a.across_data)->link[1]->fd[0], SHUT_WR);
            pthread_join(thread, NULL);
        } else if (what == 1) { /* it had its turn, and was not held up at all */
            EXPECT_EQ(0, a.across->send(&a, 1, &out));
            wait_for(&a, 1000);
        } else if (what == 2) { /* the other end is given some time */
            close(ends[0][1][0]);
            ends[0][1][0] = -1;
            EXPECT_EQ(0, b.across->recv(&b, 0, &in));
            wait_for(&b, 1000);
            EXPECT_EQ(DT_COMM_ERR_PEER, finish(&b, b.across->recv, 0, &in, 10));
        } else if (what == 3) { /* the link is not there yet */
            not_yet = 1000000;
            EXPECT_EQ(0, b.across->recv(&b, 0, &in));
            pthread_create(&thread, NULL, wake, &b); /* as the control thread does when it is */
            wait_for(&b, 1000);
            pthread_join(thread, NULL);
            not_yet = 0;
        } else if (what == 4) { /* it is late on purpose */
            b.latency = 0.05;
            EXPECT_EQ(0, b.across->recv(&b, 0, &in));
            EXPECT_EQ(1, a.across->send(&a, 1, &out));
            while (!in.done) EXPECT_EQ(0, b.across->recv(&b, 0, &in));
            wait_for(&b, 1000);
            EXPECT_EQ(1, finish(&b, b.across->recv, 0, &in, 10));
        } else { /* it was faster than it may be */
            a.bandwidth = 1e6;
            out = message(0, 0, buf, 100000);
            while (a.across->send(&a, 1, &out) == 0 && !((dt__tcp *)a.across_data)->link[1]->out.ready) {}
            wait_for(&a, 1000);
        }
        stop(&a);
        stop(&b);
        close_links(2, 1);
    }
    free(buf);
}

/* ==================================================================================================== >>closing */
static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}
UTEST(closing, leaves_no_descriptor_and_more_streams_than_there_are_is_all_of_them)
{
    int     before = open_descriptors();
    dt_comm c;
    char    x = 0;
    dt__msg m = message(0, 0, &x, 1);
    ASSERT_EQ(0, make_links(2, 1));
    start(&c, 0, 2, 1000);
    EXPECT_EQ(1, finish(&c, c.across->send, 1, &m, 10));
    EXPECT_EQ((int)DT__TCP_STREAMS, ((dt__tcp *)c.across_data)->streams);
    stop(&c);
    close_links(2, 1);
    EXPECT_EQ(before, open_descriptors());
}
