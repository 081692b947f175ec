/* Messages between ranks, one situation a test: matching, deadlines, cancelling, views, requests and replies; who is named
   when one makes no progress, also at first contact. The laws for random programs are in test_laws.c.
   Contents: >>crew >>matching >>deadlines >>views >>serving >>memory >>blame
   run: alone */
#define _GNU_SOURCE
#include "ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dt_comm.h"
#include "message_cases.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

/* ==================================================================================================== >>crew
   A situation is a function that every rank runs; it returns how many things were wrong. It runs on threads, on processes
   over shared memory and over TCP. */
typedef struct crew {
    situation    fn;
    const char  *transport;
    dt_comm_opts o;
    dt_comm     *c;
    int          bad;
} crew;
static int crew_process(void *arg)
{
    crew        *w = (crew *)arg;
    dt_comm_opts o = w->o;
    o.transport = w->transport;
    dt_comm *c = dt_comm_init_with(o);
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    int bad = w->fn(c, dt_comm_rank(c));
    dt_comm_free(c);
    return bad != 0;
}
static void *crew_thread(void *arg)
{
    crew *w = (crew *)arg;
    w->bad = w->fn(w->c, dt_comm_rank(w->c));
    dt_comm_free(w->c);
    return NULL;
}
static int everywhere_with(int n, situation fn, dt_comm_opts o)
{
    crew      w[8];
    pthread_t thread[8];
    dt_comm  *c[8];
    int       bad = 0;
    for (int i = 0; i < n; i++) w[i].fn = fn, w[i].o = o, w[i].bad = 0, w[i].transport = NULL;
    if (o.timeout == 0) o.timeout = 10 * dt_test_slow();
    w[0].o = o;
    w[0].transport = "shm";
    if (dt_spawn(n, crew_process, &w[0])) bad++, printf("    over shared memory\n");
    w[0].transport = "tcp";
    if (dt_spawn(n, crew_process, &w[0])) bad++, printf("    over TCP\n");
    if (dt_comm_threads_with(n, c, o)) return bad + 1;
    for (int i = 0; i < n; i++) {
        w[i].c = c[i];
        pthread_create(&thread[i], NULL, crew_thread, &w[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        if (w[i].bad) bad++, printf("    on threads\n");
    }
    return bad;
}
static int everywhere(int n, situation fn)
{
    dt_comm_opts none = { 0 };
    return everywhere_with(n, fn, none);
}

/* ==================================================================================================== >>matching */
UTEST(matching, tags_are_received_in_any_order_and_lengths_are_told) { EXPECT_EQ(0, everywhere(3, tags_in_any_order)); }

UTEST(matching, a_rank_sends_to_itself)
{
    EXPECT_EQ(0, everywhere(2, to_itself));
    dt_comm *c = dt_comm_init(.world = 1); /* alone, too */
    ASSERT_TRUE(c != NULL);
    EXPECT_EQ(0, to_itself(c, 0));
    EXPECT_EQ(0, dt_comm_free(c));
}

UTEST(matching, seventy_large_messages_both_ways_and_an_early_receive) { EXPECT_EQ(0, everywhere(2, early)); }

static int wrong_length(dt_comm *c, int rank)
{
    int x[8] = { 0 }, bad = 0;
    int rc = rank ? dt_comm_recv(c, x, 5, DT_COMM_I32, 0, .tag = 4) : dt_comm_send(c, x, 3, DT_COMM_I32, 1, .tag = 4);
    if (!rc) rc = dt_comm_barrier(c);
    const char *e = dt_comm_error(c);
    bad += CHECK(rc == DT_COMM_ERR_MISMATCH && e && strstr(e, "rank 0 sends 3 elements of i32 with tag 4") && strstr(e, ".info"));
    return bad;
}
UTEST(matching, a_message_of_another_length_is_an_error_on_all_ranks) { EXPECT_EQ(0, everywhere(2, wrong_length)); }

/* Messages that do not suit their receive: small and large, when the receive waits already and when the message is there
   first. Nothing is written behind the buffer. */
enum { LONGER, SHORTER, OTHER_DTYPE, OTHER_DTYPE_VIEW, MISFITS };
enum { EARLY_RECEIVE, LATE_RECEIVE, RECEIVE_AT_ONCE, ORDERS };
static int  misfit_what, misfit_order;
static int *sent_flag; /* in memory that the ranks share: the message is there, and its receiver has not looked yet */
static bool sent_flag_new(void)
{
    void *p = mmap(NULL, sizeof *sent_flag, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sent_flag = p == MAP_FAILED ? NULL : (int *)p;
    return sent_flag != NULL;
}
static void sent_set(void) { __atomic_store_n(sent_flag, 1, __ATOMIC_SEQ_CST); }
static void sent_await(void)
{
    while (!__atomic_exchange_n(sent_flag, 0, __ATOMIC_SEQ_CST)) usleep(100);
}
static int64_t misfit_n;
static int misfit(dt_comm *c, int rank)
{
    int64_t     n = misfit_n, sent = misfit_what == LONGER ? 2 * n : misfit_what == SHORTER ? n - 1 : n;
    int32_t    *x = (int32_t *)malloc((size_t)(3 * n) * sizeof *x);
    int         bad = 0, rc = 0, dtype = misfit_what < OTHER_DTYPE ? DT_COMM_I32 : DT_COMM_F32, hello = 1;
    bool        view = misfit_what == OTHER_DTYPE_VIEW;
    dt_msg_info info, *told = misfit_what == SHORTER ? NULL : &info;
    dt_msg_view v;
    dt_work    *w = NULL;
    memset(x, 0x5a, (size_t)(3 * n) * sizeof *x);
    if (misfit_what == OTHER_DTYPE && misfit_order == RECEIVE_AT_ONCE) told = NULL; /* the shortest way has no .info */
    if (rank) bad += CHECK(!dt_comm_recv(c, &hello, 1, DT_COMM_I32, 0));
    else bad += CHECK(!dt_comm_send(c, &hello, 1, DT_COMM_I32, 1));
    if (rank && misfit_order == EARLY_RECEIVE)
        w = view ? dt_comm_recv_view_start(c, &v, dtype, 0, .tag = 4) : dt_comm_recv_start(c, x, n, dtype, 0, .tag = 4, .info = told);
    if (rank) bad += CHECK(!dt_comm_send(c, &hello, 1, DT_COMM_I32, 0)); /* it has looked, and an early receive waits */
    else bad += CHECK(!dt_comm_recv(c, &hello, 1, DT_COMM_I32, 1));
    if (!rank) w = dt_comm_send_start(c, x, sent, DT_COMM_I32, 1, .tag = 4);
    if (!rank && misfit_order == RECEIVE_AT_ONCE) sent_set();
    if (rank && misfit_order == RECEIVE_AT_ONCE) sent_await();
    if (rank && misfit_order == LATE_RECEIVE) bad += CHECK(dt_comm_probe(c, &info, 0, .tag = 4, .timeout = DT_FOREVER) == 1 && info.n == sent);
    if (w) rc = dt_work_wait(w);
    else rc = view ? dt_comm_recv_view(c, &v, dtype, 0, .tag = 4) : dt_comm_recv(c, x, n, dtype, 0, .tag = 4, .info = told);
    if (!rc && !rank) rc = dt_comm_barrier(c); /* a small message is sent before the receiver looks at it */
    const char *e = dt_comm_error(c);
    bad += CHECK(rc == DT_COMM_ERR_MISMATCH && e && strstr(e, "elements of i32 with tag 4") && dt_comm_failed_rank(c) == 0);
    for (int64_t i = n; i < 3 * n; i++)
        if (x[i] != 0x5a5a5a5a) return free(x), bad + CHECK(!"written behind the buffer");
    free(x);
    return bad;
}
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
UTEST(matching, a_message_that_does_not_suit_its_receive_is_an_error)
{
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL); /* 72 worlds fail */
    ASSERT_TRUE(sent_flag_new());
    for (misfit_what = 0; misfit_what < MISFITS; misfit_what++)
        for (misfit_order = 0; misfit_order < ORDERS; misfit_order++)
            for (misfit_n = 100; misfit_n <= 100000; misfit_n *= 1000) {
                int bad = everywhere(2, misfit);
                if (bad) printf("    misfit %d, order %d, %d elements\n", misfit_what, misfit_order, (int)misfit_n);
                EXPECT_EQ(0, bad);
            }
    dt_set_log(NULL, NULL);
    munmap(sent_flag, sizeof *sent_flag);
}
/* A request with the tag, the length and the dtype that a receive waits for: it is not a message. */
static void double_it(dt_request *q)
{
    int64_t x;
    memcpy(&x, q->data, sizeof x);
    x *= 2;
    dt_request_reply(q, &x, sizeof x);
}
static int request_or_message(dt_comm *c, int rank)
{
    int     bad = 0;
    int64_t x = 21, y = 0;
    if (!rank) {
        bad += CHECK(!dt_comm_send(c, &x, 8, DT_COMM_U8, 1, .tag = 4) && !dt_comm_recv(c, &x, 8, DT_COMM_U8, 1, .tag = 4));
        dt_work *w = dt_comm_call_start(c, 1, 4, &x, 8, &y, 8);
        sent_set();
        bad += CHECK(!dt_work_wait(w) && y == 42);
    } else {
        bad += CHECK(!dt_comm_recv(c, &y, 8, DT_COMM_U8, 0, .tag = 4) && y == 21 && !dt_comm_send(c, &y, 8, DT_COMM_U8, 0, .tag = 4));
        sent_await();
        y = 0;
        bad += CHECK(dt_comm_recv(c, &y, 8, DT_COMM_U8, 0, .tag = 4, .timeout = 0.02) == DT_COMM_ERR_TIMEOUT && y == 0);
        bad += CHECK(dt_comm_probe(c, NULL, DT_ANY, .tag = DT_ANY) == 0);
        bad += CHECK(!dt_comm_serve(c, 4, double_it) && dt_comm_serve_next(c, DT_FOREVER) == 1);
    }
    return bad + CHECK(!dt_comm_barrier(c));
}
UTEST(matching, a_request_is_not_received_as_a_message)
{
    ASSERT_TRUE(sent_flag_new());
    EXPECT_EQ(0, everywhere(2, request_or_message));
    munmap(sent_flag, sizeof *sent_flag);
}

/* Blocking calls have a short way past the lists. They keep the order all the same, and take no message of another tag or of
   another receive. Without a progress thread, so that only these calls look. */
static int short_way(dt_comm *c, int rank)
{
    enum { LARGE = 15000, MOST = 400 };
    int      bad = 0, x[4] = { 1, 2, 3, 4 }, y[2] = { 0, 0 };
    dt_work *w[MOST], *early_one = NULL;
    char    *much = (char *)calloc(1, LARGE);
    for (int turn = 0; turn < 3; turn++) { /* the receiver has one that has arrived; has a receive that waits; another tag comes first */
        if (rank) {
            dt_msg_info info;
            if (turn == 0) bad += CHECK(dt_comm_probe(c, &info, 0, .tag = 4, .timeout = DT_FOREVER) == 1);
            if (turn == 1) early_one = dt_comm_recv_start(c, &y[0], 1, DT_COMM_I32, 0, .tag = 4);
            bad += CHECK(!dt_comm_send(c, &x[0], 1, DT_COMM_I32, 0));
            sent_await();
            if (turn == 0) bad += CHECK(!dt_comm_recv(c, &y[0], 1, DT_COMM_I32, 0, .tag = 4));
            bad += CHECK(!dt_comm_recv(c, &y[1], 1, DT_COMM_I32, 0, .tag = 4));
            if (turn == 1) bad += CHECK(!dt_work_wait(early_one));
            if (turn == 2) bad += CHECK(!dt_comm_recv(c, &y[0], 1, DT_COMM_I32, 0, .tag = 5));
            bad += CHECK(y[0] == 1 && y[1] == 2);
        } else {
            if (turn == 0) bad += CHECK(!dt_comm_send(c, &x[0], 1, DT_COMM_I32, 1, .tag = 4));
            bad += CHECK(!dt_comm_recv(c, &y[0], 1, DT_COMM_I32, 1));
            if (turn) bad += CHECK(!dt_comm_send(c, &x[0], 1, DT_COMM_I32, 1, .tag = turn == 2 ? 5 : 4));
            bad += CHECK(!dt_comm_send(c, &x[1], 1, DT_COMM_I32, 1, .tag = 4));
            sent_set();
        }
        bad += CHECK(!dt_comm_barrier(c));
    }
    if (!rank) { /* no room for those in front; there would be for the last one */
        for (int i = 0; i < MOST; i++) w[i] = dt_comm_send_start(c, much, LARGE, DT_COMM_U8, 1, .tag = 4);
        bad += CHECK(!dt_comm_send(c, much, 8, DT_COMM_U8, 1, .tag = 4));
        sent_set();
        for (int i = 0; i < MOST; i++) bad += CHECK(!dt_work_wait(w[i]));
    } else {
        for (int i = 0; i < 300 && !__atomic_load_n(sent_flag, __ATOMIC_SEQ_CST); i++) usleep(1000); /* it need not come */
        for (int i = 0; i <= MOST; i++) {
            dt_msg_info info;
            int64_t     n = i < MOST ? LARGE : 8;
            bad += CHECK(!dt_comm_recv(c, much, LARGE, DT_COMM_U8, 0, .tag = 4, .info = &info) && info.n == n);
            if (bad) break;
        }
        sent_await();
    }
    free(much);
    return bad + CHECK(!dt_comm_barrier(c));
}
UTEST(matching, the_short_way_keeps_the_order)
{
    dt_comm_opts o = { 0 };
    o.no_thread = true;
    ASSERT_TRUE(sent_flag_new());
    EXPECT_EQ(0, everywhere_with(2, short_way, o));
    munmap(sent_flag, sizeof *sent_flag);
}

/* ==================================================================================================== >>deadlines */
UTEST(deadlines, a_message_with_a_timeout_of_its_own_ends_alone) { EXPECT_EQ(0, everywhere(2, own_deadlines)); }

/* ==================================================================================================== >>views */
UTEST(views, are_read_in_place_and_given_back) { EXPECT_EQ(0, everywhere(2, views)); }

/* From dt_comm_alloc memory inside a machine nothing is copied: the reader sees what the sender writes meanwhile. */
static int same_memory(dt_comm *c, int rank)
{
    enum { BIG = 1 << 20 };
    int bad = 0;
    if (rank == 0) {
        volatile char *mine = (volatile char *)dt_comm_alloc(c, BIG);
        dt_work       *s = dt_comm_send_start(c, (const void *)(uintptr_t)mine, BIG, DT_COMM_U8, 1);
        bad += CHECK(!dt_comm_barrier(c));
        mine[BIG - 1] = 77;
        bad += CHECK(!dt_comm_barrier(c));
        bad += CHECK(!dt_work_wait(s));
    } else {
        dt_msg_view v;
        bad += CHECK(!dt_comm_recv_view(c, &v, DT_COMM_U8, 0));
        bad += CHECK(!dt_comm_barrier(c) && !dt_comm_barrier(c));
        bad += CHECK(((const volatile char *)v.data)[BIG - 1] == 77);
        dt_comm_view_free(c, &v);
    }
    return bad;
}
UTEST(views, of_shared_memory_are_not_copies)
{
    crew w = { same_memory, "shm", { 0 }, NULL, 0 };
    w.o.timeout = 10 * dt_test_slow();
    EXPECT_EQ(0, dt_spawn(2, crew_process, &w));
}

/* ==================================================================================================== >>serving */
UTEST(serving, on_a_thread_of_the_program)
{
    kept = NULL;
    memset(bigger, 9, sizeof bigger);
    EXPECT_EQ(0, everywhere(3, serve_next));
}
UTEST(serving, on_the_progress_thread)
{
    kept = NULL;
    memset(bigger, 9, sizeof bigger);
    EXPECT_EQ(0, everywhere(2, serve_at_once));
}
UTEST(serving, a_rank_is_server_and_client) { EXPECT_EQ(0, everywhere(2, calls_itself)); }

static int served_no_more(dt_comm *c, int rank)
{
    int     bad = 0;
    int64_t x = 5, y = 0;
    if (rank) bad += CHECK(!dt_comm_serve(c, ADD, handler, .at_once = true));
    bad += CHECK(!dt_comm_barrier(c));
    if (!rank) bad += CHECK(!dt_comm_call(c, 1, ADD, &x, 8, &y, 8, NULL) && y == 5);
    bad += CHECK(!dt_comm_barrier(c));
    if (rank) bad += CHECK(!dt_comm_serve(c, ADD, NULL));
    bad += CHECK(!dt_comm_barrier(c));
    if (!rank) bad += CHECK(dt_comm_call(c, 1, ADD, &x, 8, &y, 8, NULL, .timeout = 0.05) == DT_COMM_ERR_TIMEOUT);
    bad += CHECK(!dt_comm_barrier(c));
    if (rank) bad += CHECK(dt_comm_serve_next(c, 0.01) == 0); /* nobody has it */
    if (rank) bad += CHECK(!dt_comm_serve(c, ADD, handler, .at_once = true)); /* again; the request that came meanwhile is served, too */
    bad += CHECK(!dt_comm_barrier(c));
    if (!rank) bad += CHECK(!dt_comm_call(c, 1, ADD, &x, 8, &y, 8, NULL) && y == 5);
    return bad + CHECK(!dt_comm_barrier(c));
}
UTEST(serving, no_more_and_again) { EXPECT_EQ(0, everywhere(2, served_no_more)); }

/* Requests of one rank with one tag run in the order in which they were sent: also behind a large one, and if they came before
   the handler. */
typedef struct row {
    int n, out_of_order; /* atomic */
} row;
static void in_a_row(dt_request *q)
{
    row *w = (row *)q->user;
    int  no;
    memcpy(&no, q->data, sizeof no);
    if (no != __atomic_fetch_add(&w->n, 1, __ATOMIC_ACQ_REL)) __atomic_add_fetch(&w->out_of_order, 1, __ATOMIC_ACQ_REL);
    dt_request_reply(q, NULL, 0);
}
static int requests_in_order(dt_comm *c, int rank)
{
    enum { MANY = 40, INTS = 200000 };
    int      bad = 0, *in = (int *)calloc(INTS + MANY, sizeof *in);
    dt_work *w[MANY];
    row      r = { 0, 0 };
    for (int round = 0; round < 6; round++) {
        bool late = round % 2, at_once = round < 4;
        __atomic_store_n(&r.n, 0, __ATOMIC_RELEASE);
        if (rank && !late) bad += CHECK(!dt_comm_serve(c, 30, in_a_row, .user = &r, .at_once = at_once));
        bad += CHECK(!dt_comm_barrier(c));
        for (int i = 0; !rank && i < MANY; i++) {
            in[i] = i;
            w[i] = dt_comm_call_start(c, 1, 30, in + i, i % 10 ? 4 : 4 * INTS, NULL, 0); /* overlapping is harmless */
        }
        char go = 0;
        if (!rank) bad += CHECK(!dt_comm_send(c, &go, 1, DT_COMM_U8, 1, .tag = 6));
        else bad += CHECK(!dt_comm_recv(c, &go, 1, DT_COMM_U8, 0, .tag = 6));
        if (rank && late) bad += CHECK(!dt_comm_serve(c, 30, in_a_row, .user = &r, .at_once = at_once));
        for (int i = 0; rank && !at_once && i < MANY; i++) bad += CHECK(dt_comm_serve_next(c, DT_FOREVER) == 1);
        for (int i = 0; !rank && i < MANY; i++) bad += CHECK(w[i] && !dt_work_wait(w[i]));
        bad += CHECK(!dt_comm_barrier(c));
        if (rank) bad += CHECK(__atomic_load_n(&r.n, __ATOMIC_ACQUIRE) == MANY && !__atomic_load_n(&r.out_of_order, __ATOMIC_ACQUIRE));
        if (rank) bad += CHECK(!dt_comm_serve(c, 30, NULL));
    }
    free(in);
    return bad;
}
UTEST(serving, in_order) { EXPECT_EQ(0, everywhere(2, requests_in_order)); }

/* A handler may start messages, also calls, and wait for them elsewhere. */
typedef struct started {
    dt_work *sent, *called; /* atomic: the progress thread writes them */
    int64_t  sum;
} started;
static void passes_on(dt_request *q)
{
    static const int64_t nine = 9;
    started             *s = (started *)q->user;
    dt_work             *w = dt_comm_send_start(q->c, &nine, 1, DT_COMM_I64, 0, .tag = 5);
    __atomic_store_n(&s->sent, w, __ATOMIC_RELEASE);
    w = dt_comm_call_start(q->c, dt_comm_rank(q->c), ADD, &nine, 8, &s->sum, 8); /* served by another handler of this rank */
    __atomic_store_n(&s->called, w, __ATOMIC_RELEASE);
    dt_request_reply(q, NULL, 0);
}
static int handlers_start(dt_comm *c, int rank)
{
    started s = { NULL, NULL, 0 };
    int64_t got = 0;
    int     bad = 0;
    if (rank) bad += CHECK(!dt_comm_serve(c, ADD, handler, .at_once = true) && !dt_comm_serve(c, 20, passes_on, .user = &s, .at_once = true));
    bad += CHECK(!dt_comm_barrier(c));
    for (int i = 0; i < 20; i++) {
        if (rank == 0) {
            bad += CHECK(!dt_comm_call(c, 1, 20, NULL, 0, NULL, 0, NULL));
            bad += CHECK(!dt_comm_recv(c, &got, 1, DT_COMM_I64, 1, .tag = 5) && got == 9);
        }
        bad += CHECK(!dt_comm_barrier(c)); /* behind it the handler has run */
        if (rank) {
            dt_work *sent = __atomic_load_n(&s.sent, __ATOMIC_ACQUIRE), *called = __atomic_load_n(&s.called, __ATOMIC_ACQUIRE);
            bad += CHECK(sent && called && !dt_work_wait(sent) && !dt_work_wait(called) && s.sum == 9);
        }
        bad += CHECK(!dt_comm_barrier(c));
    }
    return bad;
}
UTEST(serving, a_handler_starts_messages) { EXPECT_EQ(0, everywhere(2, handlers_start)); }

/* A handler that waits would wait for itself. */
typedef struct waiting {
    int      how;
    dt_work *w; /* atomic */
    int64_t  x, y;
} waiting;
static void waits(dt_request *q)
{
    waiting *s = (waiting *)q->user;
    dt_work *w = dt_comm_recv_start(q->c, &s->x, 1, DT_COMM_I64, 0, .tag = 6);
    switch (s->how) {
    case 0: dt_comm_recv(q->c, &s->y, 1, DT_COMM_I64, 0, .tag = 6); break;
    case 1: dt_work_wait(w); break; /* refused: it stays to be waited for */
    default: dt_comm_barrier(q->c); break;
    }
    __atomic_store_n(&s->w, w, __ATOMIC_RELEASE);
    dt_request_refuse(q, "too late");
}
static int handler_waits(dt_comm *c, int rank, int how)
{
    waiting s = { how, NULL, 0, 0 };
    int     bad = 0;
    if (rank) bad += CHECK(!dt_comm_serve(c, 20, waits, .user = &s, .at_once = true));
    bad += CHECK(!dt_comm_barrier(c) || rank); /* the call of rank 0 may come before it returns here */
    if (!rank) bad += CHECK(dt_comm_call(c, 1, 20, NULL, 0, NULL, 0, NULL) == DT_COMM_ERR_STATE);
    else bad += CHECK(dt_comm_recv(c, NULL, 0, DT_COMM_I64, 0, .tag = 7, .timeout = DT_FOREVER) == DT_COMM_ERR_STATE);
    dt_work *w = NULL;
    while (rank && !(w = __atomic_load_n(&s.w, __ATOMIC_ACQUIRE))) sched_yield(); /* the handler may be in its last line */
    if (rank) bad += CHECK(dt_work_wait(w) == DT_COMM_ERR_STATE);
    return bad + CHECK(strstr(dt_comm_error(c), "must not wait"));
}
static int handler_receives(dt_comm *c, int rank) { return handler_waits(c, rank, 0); }
static int handler_waits_for_work(dt_comm *c, int rank) { return handler_waits(c, rank, 1); }
static int handler_meets(dt_comm *c, int rank) { return handler_waits(c, rank, 2); }
UTEST(serving, a_handler_that_waits_is_an_error)
{
    EXPECT_EQ(0, everywhere(2, handler_receives));
    EXPECT_EQ(0, everywhere(2, handler_waits_for_work));
    EXPECT_EQ(0, everywhere(2, handler_meets));
}

/* Statistics and history know messages, also those that took the short way. */
static int counted(dt_comm *c, int rank)
{
    enum { LARGE = 100000 };
    static const int n[3] = { 100, 200, LARGE };
    char            *x = (char *)calloc(1, LARGE), text[8000], line[100];
    int              bad = 0;
    int64_t          before = dt_comm_get_stats(c).bytes;
    for (int i = 0; i < 3; i++) {
        dt_work *w = NULL;
        if (rank) bad += CHECK(!dt_comm_recv(c, x, n[i], DT_COMM_U8, 0, .tag = 9));
        else if (i == 0) bad += CHECK(!dt_comm_send(c, x, n[i], DT_COMM_U8, 1, .tag = 9));
        else bad += CHECK((w = dt_comm_send_start(c, x, n[i], DT_COMM_U8, 1, .tag = 9)) != NULL && !dt_work_wait(w));
    }
    bad += CHECK(dt_comm_get_stats(c).bytes - before == (rank ? 0 : 100 + 200 + LARGE));
    dt_comm_history(c, text, sizeof text);
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, rank ? "recv of %d u8 from rank 0, tag 9" : "send of %d u8 to rank 1, tag 9", n[i]);
        bad += CHECK(strstr(text, line) != NULL);
    }
    free(x);
    return bad + CHECK(!dt_comm_barrier(c));
}
UTEST(watching, messages_are_counted_and_noted) { EXPECT_EQ(0, everywhere(2, counted)); }

/* ==================================================================================================== >>memory */
static int too_much(dt_comm *c, int rank)
{
    int  bad = 0, rc = 0;
    char x[1000] = { 0 };
    for (int i = 0; rank == 0 && i < 300 && !rc; i++) rc = dt_comm_send(c, x, 1000, DT_COMM_U8, 1, .tag = 3);
    if (!rc && rank == 0) rc = dt_comm_send(c, x, 1, DT_COMM_U8, 1, .tag = 4);
    if (rank == 1) rc = dt_comm_recv(c, x, 1, DT_COMM_U8, 0, .tag = 4); /* it comes behind all the others */
    if (!rc) rc = dt_comm_barrier(c);
    const char *e = dt_comm_error(c);
    bad += CHECK(rc == DT_COMM_ERR_MEMORY && e && strstr(e, "rank 1 holds 100000 bytes of messages") && strstr(e, ".message_memory"));
    return bad;
}
UTEST(memory, messages_that_nobody_receives_are_limited)
{
    dt_comm_opts o = { 0 };
    o.message_memory = 100000;
    EXPECT_EQ(0, everywhere_with(2, too_much, o));
}
static int too_many(dt_comm *c, int rank)
{
    int      bad = 0, n = 0;
    char     x[2000];
    dt_work *w[2000];
    while (n < 2000 && (w[n] = dt_comm_recv_start(c, x + n, 1, DT_COMM_U8, 1 - rank, .tag = n)) != NULL) n++;
    const char *e = dt_comm_error(c);
    bad += CHECK(n < 2000 && e && strstr(e, "messages are pending") && dt_comm_get_status(c) == DT_COMM_ERR_MEMORY);
    for (int i = 0; i < n; i++) bad += CHECK(dt_work_wait(w[i]) == DT_COMM_ERR_MEMORY);
    return bad;
}
UTEST(memory, pending_messages_are_limited)
{
    dt_comm_opts o = { 0 };
    o.message_memory = 200000;
    EXPECT_EQ(0, everywhere_with(2, too_many, o));
}

/* ==================================================================================================== >>blame */
/* What the ranks found, in memory that they share with the test. */
typedef struct outcome {
    int  failed[4];
    char text[4][800];
} outcome;
static outcome *shared_outcomes(int n)
{
    void *p = mmap(NULL, (size_t)n * sizeof(outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : (outcome *)p;
}
typedef struct job {
    outcome    *o;
    const char *transport;
    bool        send, warm;
} job;

/* Rank 0 receives from rank 1 (or sends it more than fits), which is in its program and does not answer; rank 2 has called
   more collectives than anybody: it is not to blame. */
static int one_silent(void *arg)
{
    const job *j = (const job *)arg;
    enum { MANY = 4 << 20 };
    dt_comm *c = dt_comm_init(.timeout = 1, .transport = j->transport);
    if (!c) return 1;
    int      rank = dt_comm_rank(c);
    float   *x = (float *)calloc(MANY, sizeof *x);
    if (!x) return 1;
    if (j->warm) dt_comm_barrier(c);
    if (rank == 0 && j->send) dt_comm_send(c, x, MANY, DT_COMM_F32, 1);
    if (rank == 0 && !j->send) dt_comm_recv(c, x, 1, DT_COMM_F32, 1);
    while (rank && !dt_comm_get_status(c)) usleep(10000); /* until it hears of the failure */
    j->o->failed[rank] = dt_comm_failed_rank(c);
    snprintf(j->o->text[rank], sizeof j->o->text[rank], "%s", dt_comm_error(c) ? dt_comm_error(c) : "");
    dt_comm_free(c);
    free(x);
    return 0;
}
static int silent_job(int i, void *arg) { return dt_spawn(3, one_silent, &((job *)arg)[i]); }
UTEST(timeout, names_the_peer_of_the_message_in_the_words_of_the_call)
{
    enum { JOBS = 8 }; /* all at once: they only wait */
    static const char *const transport[] = { "shm", "tcp" };
    outcome                 *o = shared_outcomes(JOBS);
    job                      j[JOBS];
    ASSERT_TRUE(o != NULL);
    for (int i = 0; i < JOBS; i++) {
        job one = { &o[i], transport[i % 2], i / 2 % 2 == 1, i / 4 == 1 };
        j[i] = one;
    }
    EXPECT_EQ(0, dt_test_ranks(JOBS, 30, silent_job, j));
    for (int i = 0; i < JOBS; i++)
        for (int r = 0; r < 3; r++) {
            EXPECT_EQ(1, o[i].failed[r]);
            EXPECT_TRUE_MSG(strstr(o[i].text[r], j[i].send ? "dt_comm_send to rank 1" : "dt_comm_recv from rank 1") != NULL,
                            o[i].text[r]);
        }
    munmap(o, JOBS * sizeof *o);
}

/* Threads have no control connections to ask over: the rank that waits names its peer itself. */
static int one_silent_thread(dt_comm *c, int rank)
{
    int bad = 0, x;
    if (rank == 0) bad += CHECK(dt_comm_recv(c, &x, 1, DT_COMM_I32, 1, .tag = 6) == DT_COMM_ERR_TIMEOUT);
    while (!dt_comm_get_status(c)) usleep(10000);
    const char *e = dt_comm_error(c);
    return bad + CHECK(dt_comm_failed_rank(c) == 1) + CHECK(e && strstr(e, "rank 0: dt_comm_recv from rank 1 (tag 6) made no progress for 1 s"));
}
UTEST(timeout, names_the_peer_of_the_message_on_threads)
{
    dt_comm  *c[3];
    crew      w[3];
    pthread_t thread[3];
    ASSERT_EQ(0, dt_comm_threads(3, c, .timeout = 1));
    for (int i = 0; i < 3; i++) {
        w[i].fn = one_silent_thread;
        w[i].c = c[i];
        pthread_create(&thread[i], NULL, crew_thread, &w[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        EXPECT_EQ(0, w[i].bad);
    }
}
/* A rank is stopped before the first contact: no connection to it exists. The others name it within the timeout and a
   second, on the first communicator and on new ones. what: 0 allreduce, 1 after dt_comm_dup, 2 after dt_comm_split, 3 a
   message, 4 after a death and dt_comm_shrink. */
typedef struct contact {
    int   n, what;
    pid_t pid;
    int   done, failed[4], status[4];
    double seconds[4];
} contact;
static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int first_contact(void *arg)
{
    contact *t = (contact *)arg;
    dt_comm *first = dt_comm_init(.timeout = 1, .transport = "tcp"), *c = first;
    float    x = 1;
    int      victim = t->what == 4 ? t->n - 2 : t->n - 1;
    if (!c) return 1;
    int world = dt_comm_rank(c);
    if (t->what == 1 && dt_comm_dup(first, &c)) return 1;
    if (t->what == 2 && dt_comm_split(first, 0, -world, &c)) return 1;
    if (t->what == 4) {
        if (world == t->n - 1) raise(SIGKILL);
        if (!dt_comm_barrier(first) || dt_comm_shrink(first, &c)) return 1;
    }
    if (world == victim) {
        __atomic_store_n(&t->pid, getpid(), __ATOMIC_SEQ_CST);
        raise(SIGSTOP);
        return 0;
    }
    while (!__atomic_load_n(&t->pid, __ATOMIC_SEQ_CST)) usleep(1000);
    double  begin = seconds_now();
    int     rank = dt_comm_rank(c), peer = t->what == 2 ? t->n - 1 - victim : victim;
    t->status[world] = t->what == 3 ? dt_comm_recv(c, &x, 1, DT_COMM_F32, peer) : dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
    t->seconds[world] = seconds_now() - begin;
    t->failed[world] = dt_comm_failed_rank(c) == peer;
    (void)rank;
    int left = t->what == 4 ? t->n - 2 : t->n - 1;
    if (__atomic_add_fetch(&t->done, 1, __ATOMIC_SEQ_CST) == left) kill(t->pid, SIGKILL);
    dt_comm_free(c);
    if (c != first) dt_comm_free(first);
    return 0;
}
static int contact_job(int i, void *arg)
{
    contact *t = &((contact *)arg)[i];
    return dt_spawn(t->n, first_contact, t) != 128 + SIGKILL;
}
UTEST(blame, a_rank_that_is_stopped_before_the_first_contact_is_named_in_time)
{
    enum { JOBS = 9 }; /* all at once: they only wait */
    contact *t = (contact *)mmap(NULL, JOBS * sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(t != MAP_FAILED);
    for (int i = 0; i < JOBS; i++) {
        t[i].what = i / 2;
        t[i].n = i == 8 ? 4 : 2 + i % 2;
    }
    EXPECT_EQ(0, dt_test_ranks(JOBS, 40, contact_job, t));
    for (int i = 0; i < JOBS; i++)
        for (int r = 0; r < (t[i].what == 4 ? t[i].n - 2 : t[i].n - 1); r++) {
            EXPECT_EQ(DT_COMM_ERR_TIMEOUT, t[i].status[r]);
            EXPECT_TRUE(t[i].failed[r]);
            EXPECT_TRUE_MSG(t[i].seconds[r] < 2 * dt_test_slow(), "longer than the timeout and a second");
        }
    munmap(t, JOBS * sizeof *t);
}
UTEST_MAIN()
