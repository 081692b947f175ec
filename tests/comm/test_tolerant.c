/* test_tolerant.c: groups that survive their members: deaths and departures are events, messages go on
   run: alone, asan-later */
#define DT__WANT_INSIDE
#include "dt_sim.h"
#include "teams.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_MAIN()

enum { MOST = 8, BIG = 24 << 20 };
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)
/* fn on n ranks, of which `alive` come to its end; how many checks failed. A rank that dies is no failure. */
static int run(const char *how, int n, double timeout, int arg, int alive, void (*fn)(team *t, dt_comm *c, int rank))
{
    team t = team_of(how, n, timeout, fn);
    t.arg = arg;
    t.frees = t.o.tolerant = true;
    int failed = team_run(&t);
    if (!strcmp(how, "threads")) alive = n;
    if (t.done != alive) failed++, printf("    %s: %d of %d came to the end\n", how, t.done, alive);
    return failed;
}
/* A process dies; a thread gives up, which is the same for the others. */
static bool die(const team *t, dt_comm *c)
{
    if (strcmp(t->how, "threads")) kill(getpid(), SIGKILL);
    dt_comm_abort(c, "it gives up");
    return true;
}
static bool names(int rank, const char *word) /* does the last message name it? */
{
    char        who[16];
    const char *e = dt_comm_error(NULL);
    snprintf(who, sizeof who, "rank %d", rank);
    return e && strstr(e, who) && strstr(e, word);
}
/* Has a message begun to arrive there? Looks at memory that dt writes: only to find the middle of it. */
__attribute__((no_sanitize("thread"))) static bool begun(const char *p) { return *(const volatile char *)p != 0; }
static const char *const hows[] = { "threads", "shm", "tcp" };

/* The living ones exchange messages in a ring, small and large; then they make a communicator of the rest. */
static void go_on(team *t, dt_comm *c, int rank, const bool *dead)
{
    enum { MANY = 50, LARGE = 300000 };
    int  next = rank, before = rank;
    do next = (next + 1) % t->n;
    while (dead[next]);
    do before = (before + t->n - 1) % t->n;
    while (dead[before]);
    char *out = (char *)malloc(LARGE), *in = (char *)calloc(1, LARGE);
    memset(out, rank + 1, LARGE);
    for (int i = 0; i < MANY; i++) {
        int64_t  n = i % 10 == 9 ? LARGE : 100 + i;
        dt_work *w = dt_comm_send_start(c, out, n, DT_COMM_U8, next, .tag = 5);
        CHECK(w && !dt_comm_recv(c, in, n, DT_COMM_U8, before, .tag = 5) && in[n - 1] == before + 1);
        CHECK(w && !dt_work_wait(w));
    }
    free(out);
    free(in);
    CHECK(!dt_comm_get_status(c));
    dt_comm *rest = NULL;
    int      living = 0, sum = 1;
    for (int i = 0; i < t->n; i++) living += !dead[i];
    CHECK(!dt_comm_shrink(c, &rest));
    if (!rest) return;
    CHECK(!dt_comm_allreduce(rest, &sum, 1, DT_COMM_I32, DT_COMM_SUM) && sum == living && dt_comm_size(rest) == living);
    CHECK(!dt_comm_free(rest));
}

static void before_first_contact(team *t, dt_comm *c, int rank)
{
    bool          dead[MOST] = { false };
    int           last = t->n - 1, x = 0;
    dt_comm_event e;
    dead[last] = true;
    if (rank == last && die(t, c)) return;
    CHECK(team_event(c, DT_MEMBER_DIED, last, &e));
    CHECK(dt_comm_send(c, &x, 1, DT_COMM_I32, last) == DT_COMM_ERR_PEER && names(last, strcmp(t->how, "threads") ? "died" : "gives up"));
    CHECK(dt_comm_recv(c, &x, 1, DT_COMM_I32, last) == DT_COMM_ERR_PEER && names(last, strcmp(t->how, "threads") ? "died" : "gives up"));
    dt_work *w = dt_comm_send_start(c, &x, 1, DT_COMM_I32, last, .tag = 3);
    CHECK(w && dt_work_wait(w) == DT_COMM_ERR_PEER);
    CHECK(dt_comm_call(c, last, 1, &x, 4, &x, 4, NULL) == DT_COMM_ERR_PEER && names(last, "dt_comm_call"));
    CHECK(dt_comm_barrier(c) == DT_COMM_ERR_PEER && strstr(dt_comm_error(NULL), "dt_comm_shrink"));
    CHECK(!dt_comm_allreduce_start(c, &x, 1, DT_COMM_I32, DT_COMM_SUM) && strstr(dt_comm_error(NULL), "dt_comm_shrink"));
    CHECK(dt_comm_next_event(c, &e) == 0);
    go_on(t, c, rank, dead);
}
UTEST(deaths, before_the_first_contact)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 4, 20, 0, 3, before_first_contact));
}

/* Rank 1 dies while large messages move, to it and from it. Other messages with rank 1 end, too; those with rank 2 do not. */
static void in_the_middle(team *t, dt_comm *c, int rank)
{
    bool  dead[MOST] = { false };
    char *in = (char *)calloc(1, BIG), *out = (char *)malloc(BIG);
    dead[1] = true;
    memset(out, 7, BIG);
    if (rank == 1) {
        dt_work *r = dt_comm_recv_start(c, in, BIG, DT_COMM_U8, 0, .tag = 1), *s = dt_comm_send_start(c, out, BIG, DT_COMM_U8, 0, .tag = 2);
        while (!begun(in) || !__atomic_load_n(&t->flag[0], __ATOMIC_ACQUIRE)) dt_work_test(s);
        die(t, c);
        dt_work_wait(r), dt_work_wait(s);
    }
    if (rank == 0) {
        dt_work *r = dt_comm_recv_start(c, in, BIG, DT_COMM_U8, 1, .tag = 2), *s = dt_comm_send_start(c, out, BIG, DT_COMM_U8, 1, .tag = 1);
        dt_work *two = dt_comm_recv_start(c, &dead[4], 1, DT_COMM_U8, 2, .tag = 9);
        dt_work *never = dt_comm_send_start(c, out, BIG, DT_COMM_U8, 1, .tag = 3), *none = dt_comm_recv_start(c, out, 1, DT_COMM_U8, 1, .tag = 4);
        while (!begun(in)) dt_work_test(r);
        team_set(t, 0);
        int a = dt_work_wait(r), b = dt_work_wait(s);
        CHECK(a == DT_COMM_ERR_PEER || (a == 0 && in[BIG - 1] == 7)); /* it may have been faster */
        CHECK(b == DT_COMM_ERR_PEER || b == 0);
        CHECK(dt_work_wait(never) == DT_COMM_ERR_PEER && names(1, "dt_comm_send_start to"));
        CHECK(dt_work_wait(none) == DT_COMM_ERR_PEER && names(1, "dt_comm_recv_start from"));
        team_set(t, 1);
        CHECK(!dt_work_wait(two));
    }
    if (rank == 2) {
        team_await(t, 1, 1);
        CHECK(!dt_comm_send(c, in, 1, DT_COMM_U8, 0, .tag = 9));
    }
    if (rank != 1) {
        CHECK(team_event(c, DT_MEMBER_DIED, 1, NULL));
        go_on(t, c, rank, dead);
    }
    free(in);
    free(out);
}
UTEST(deaths, in_the_middle_of_large_messages)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 3, 20, 0, 2, in_the_middle));
}

/* arg: the rank that dies, and how many after it. Rank n-1 has a receive from any rank, which goes on waiting. */
static void some_die(team *t, dt_comm *c, int rank)
{
    bool     dead[MOST] = { false };
    int      x = 0, first = t->arg % 100, n = t->arg / 100, seen = 0;
    dt_work *any = dt_comm_recv_start(c, &x, 1, DT_COMM_I32, DT_ANY, .tag = 8);
    for (int i = 0; i < n; i++) dead[first + i] = true;
    CHECK(any != NULL);
    team_set(t, 0);
    if (dead[rank]) team_await(t, 0, t->n);
    if (dead[rank] && die(t, c)) {
        dt_work_wait(any);
        return;
    }
    for (int i = 0; i < n; i++) {
        dt_comm_event e;
        CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_DIED && dead[e.rank] && !(seen >> e.rank & 1));
        seen |= 1 << e.rank;
    }
    CHECK(dt_comm_next_event(c, &(dt_comm_event){ 0 }) == 0);
    CHECK(!dt_work_test(any));
    team_set(t, 1);
    team_await(t, 1, t->n - n);
    int y = 100 + rank, to = rank;
    do to = (to + 1) % t->n;
    while (dead[to]);
    CHECK(!dt_comm_send(c, &y, 1, DT_COMM_I32, to, .tag = 8));
    CHECK(!dt_work_wait(any) && x >= 100);
    go_on(t, c, rank, dead);
}
UTEST(deaths, a_receive_from_any_rank_goes_on_waiting)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 4, 20, 102, 3, some_die));
}
UTEST(deaths, two_at_once)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 5, 20, 202, 3, some_die));
}
UTEST(deaths, of_rank_0)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 4, 20, 100, 3, some_die));
}
UTEST(deaths, of_rank_0_and_a_rank_below_it)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 5, 20, 200, 3, some_die));
}
UTEST(deaths, of_all_but_one)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 4, 20, 300, 1, some_die));
}

/* Rank 0, which is to hand out the memory of the next communicator, dies when all have agreed on it: the others do not wait for
   it until the timeout. */
static void after_the_agreement(team *t, dt_comm *c, int rank)
{
    bool dead[MOST] = { true };
    if (rank == 0) {
        uint8_t set[8];
        bool    all;
        memset(set, 0, sizeof set);
        for (int i = 0; i < t->n; i++) dt__bit_set(set, i);
        CHECK(dt__agree_nbytes(c->world) <= sizeof set);
        CHECK(!dt__world_agree(c->world, c->id, c->round, c->timeout, set, 0, 0, &all));
        die(t, c);
    }
    int64_t begin = dt_test_ns();
    go_on(t, c, rank, dead);
    CHECK((double)(dt_test_ns() - begin) < 1e9 * t->o.timeout / 2);
}
UTEST(deaths, after_an_agreement)
{
    for (int i = 1; i < 3; i++) EXPECT_EQ(0, run(hows[i], 4, 20, 0, 3, after_the_agreement));
}

/* A running collective ends on all members, and messages go on. */
static void in_a_collective(team *t, dt_comm *c, int rank)
{
    bool    dead[MOST] = { false };
    float  *x = (float *)calloc(300000, sizeof *x);
    dead[1] = true;
    CHECK(!dt_comm_allreduce(c, x, 300000, DT_COMM_F32, DT_COMM_SUM));
    team_set(t, 0);
    team_await(t, 0, t->n);
    if (rank == 1) die(t, c);
    else {
        int rc = 0;
        if (t->arg) { /* asynchronous */
            dt_work *w = dt_comm_allreduce_start(c, x, 300000, DT_COMM_F32, DT_COMM_SUM);
            rc = w ? dt_work_wait(w) : DT_COMM_ERR_PEER;
        } else rc = dt_comm_allreduce(c, x, 300000, DT_COMM_F32, DT_COMM_SUM);
        CHECK(rc == DT_COMM_ERR_PEER && names(1, "dt_comm_shrink"));
        CHECK(!dt_comm_get_status(c));
        go_on(t, c, rank, dead);
    }
    free(x);
}
UTEST(deaths, in_a_collective)
{
    for (int i = 0; i < 6; i++) EXPECT_EQ(0, run(hows[i % 3], 4, 20, i / 3, 3, in_a_collective));
}

/* A stopped member is not dead: messages with it time out alone, also large ones in the middle, and it goes on later. */
static void stopped(team *t, dt_comm *c, int rank)
{
    bool  dead[MOST] = { false };
    char *x = (char *)calloc(1, BIG);
    int   y = 1;
    if (rank == 1) {
        dt_work *r = dt_comm_recv_start(c, x, BIG, DT_COMM_U8, 0, .tag = 1, .timeout = DT_FOREVER);
        while (!begun(x)) dt_work_test(r);
        team_set(t, 0);
        kill(getpid(), SIGSTOP);
        int rc = dt_work_wait(r);
        CHECK(rc == (team_flag(t, 2) ? 0 : DT_COMM_ERR_TIMEOUT));
        CHECK(!memchr(x, 9, BIG)); /* what its sender wrote there when its call had ended */
        CHECK(!dt_comm_send(c, &y, 1, DT_COMM_I32, 0, .tag = 6));
    } else if (rank == 0) {
        memset(x, 3, BIG);
        dt_work *w = dt_comm_send_start(c, x, BIG, DT_COMM_U8, 1, .tag = 1);
        team_await(t, 0, 1);
        dt_work *v = dt_comm_send_start(c, x, BIG, DT_COMM_U8, 1, .tag = 2);
        CHECK(dt_comm_recv(c, &y, 1, DT_COMM_I32, 1, .tag = 6) == DT_COMM_ERR_TIMEOUT && names(1, "timeout"));
        int rc = dt_work_wait(w);
        if (!rc) team_set(t, 2); /* it was faster: a sanitizer changes times */
        CHECK(!rc || rc == DT_COMM_ERR_TIMEOUT);
        CHECK(dt_work_wait(v) == DT_COMM_ERR_TIMEOUT);
        CHECK(!dt_comm_get_status(c) && dt_comm_next_event(c, &(dt_comm_event){ 0 }) == 0);
        memset(x, 9, BIG); /* nobody may send it any more */
        team_set(t, 1);
        while (!dt_test_is_stopped(t->pid[1])) usleep(200);
        kill(t->pid[1], SIGCONT);
        CHECK(!dt_comm_recv(c, &y, 1, DT_COMM_I32, 1, .tag = 6));
        free(x);
        x = NULL;
    } else team_await(t, 1, 1);
    go_on(t, c, rank, dead);
    free(x);
}
/* The same for one that sends: the buffer of the receive that has ended is written no more, and the sender is told. */
static void stopped_sender(team *t, dt_comm *c, int rank)
{
    bool  dead[MOST] = { false };
    char *x = (char *)calloc(1, BIG);
    int   y = 1;
    if (rank == 1) {
        memset(x, 3, BIG);
        dt_work *s = dt_comm_send_start(c, x, BIG, DT_COMM_U8, 0, .tag = 1, .timeout = DT_FOREVER);
        while (!team_flag(t, 0)) dt_work_test(s);
        kill(getpid(), SIGSTOP);
        int rc = dt_work_wait(s);
        CHECK(rc == (team_flag(t, 2) ? 0 : DT_COMM_ERR_TIMEOUT) && (!rc || names(0, "the receiver gave it up")));
        CHECK(!dt_comm_send(c, &y, 1, DT_COMM_I32, 0, .tag = 6));
    } else if (rank == 0) {
        dt_work *r = dt_comm_recv_start(c, x, BIG, DT_COMM_U8, 1, .tag = 1);
        while (!begun(x)) dt_work_test(r);
        team_set(t, 0);
        int rc = dt_work_wait(r);
        if (!rc) team_set(t, 2); /* it was faster */
        CHECK(!rc || (rc == DT_COMM_ERR_TIMEOUT && names(1, "timeout")));
        memset(x, 9, BIG);
        team_set(t, 1);
        while (!dt_test_is_stopped(t->pid[1])) usleep(200); /* if it was faster */
        kill(t->pid[1], SIGCONT);
        CHECK(!dt_comm_recv(c, &y, 1, DT_COMM_I32, 1, .tag = 6));
    } else team_await(t, 1, 1);
    go_on(t, c, rank, dead);
    CHECK(rank || !memchr(x, 3, BIG));
    free(x);
}
static int stopped_job(int i, void *arg)
{
    (void)arg;
    return run(hows[1 + i % 2], 3, 3, 0, 3, i / 2 ? stopped_sender : stopped);
}
UTEST(messages, with_a_stopped_member_time_out_alone) { EXPECT_EQ(0, dt_test_ranks(4, 50, stopped_job, NULL)); }

/* A member leaves in order: what it sent last arrives, then it has left. Rank 0 sends it much that it never reads. */
static void leaves(team *t, dt_comm *c, int rank)
{
    bool  dead[MOST] = { false };
    int   last = t->n - 1, x[3] = { 0 };
    char *big = (char *)calloc(1, 200000);
    dead[last] = true;
    if (rank == last) {
        if (t->arg) team_await(t, 0, 1);
        for (int i = 0; i < 3; i++) x[0] = i, CHECK(!dt_comm_send(c, x, 1, DT_COMM_I32, 0, .tag = 1));
        free(big);
        return;
    }
    if (rank == 0) {
        if (t->arg) {
            for (int i = 0; i < 50; i++) CHECK(!dt_comm_send(c, big, 1000, DT_COMM_U8, last, .tag = 7));
            team_set(t, 0);
        }
        CHECK(team_event(c, DT_MEMBER_LEFT, last, NULL));
        for (int i = 0; i < 3; i++) CHECK(!dt_comm_recv(c, x, 1, DT_COMM_I32, i & 1 ? DT_ANY : last, .tag = 1) && x[0] == i);
        CHECK(dt_comm_recv(c, x, 1, DT_COMM_I32, last, .tag = 1) == DT_COMM_ERR_PEER && names(last, "left"));
        CHECK(dt_comm_send(c, big, 200000, DT_COMM_U8, last) == DT_COMM_ERR_PEER && names(last, "left"));
    } else CHECK(team_event(c, DT_MEMBER_LEFT, last, NULL));
    go_on(t, c, rank, dead);
    free(big);
}
UTEST(departures, in_order)
{
    for (int i = 0; i < 6; i++) EXPECT_EQ(0, run(hows[i % 3], 3, 20, i / 3, 3, leaves));
}
/* Rank 3 is stopped while the others end a collective and leave, first the one above it in the control tree: nothing tells
   rank 3 how many collectives the others have finished. Their bytes have arrived. */
static void unheard(team *t, dt_comm *c, int rank)
{
    int x = rank == 0 ? 77 : 0;
    CHECK(!dt_comm_barrier(c));
    if (rank == 3) kill(getpid(), SIGSTOP);
    while (rank != 3 && !dt_test_is_stopped(t->pid[3])) usleep(200);
    for (int i = 0; rank == 3 && i < 3; i++) { /* it has not yet begun the collective that the others have finished */
        dt_comm_event e;
        CHECK(dt_comm_next_event(c, &e, .timeout = 20 * dt_test_slow()) == 1 && e.kind == DT_MEMBER_LEFT);
    }
    CHECK(!dt_comm_broadcast(c, &x, 1, DT_COMM_I32, 0) && x == 77);
    if (rank == 0 || rank == 2) team_await(t, 0, rank == 0 ? 1 : 2);
    int64_t begin = dt_test_ns();
    if (rank == 3) {
        CHECK(dt_comm_barrier(c) == DT_COMM_ERR_PEER && !dt_comm_get_status(c));
        CHECK((double)(dt_test_ns() - begin) * 1e-9 < 10 * dt_test_slow());
        CHECK(dt_comm_broadcast(c, &x, 1, DT_COMM_I32, 0) == DT_COMM_ERR_PEER);
    }
    CHECK(!dt_comm_free(c));
    team_set(t, 0);
    if (rank == 2) kill(t->pid[3], SIGCONT);
}
UTEST(departures, of_those_who_tell_of_departures)
{
    team t = team_of("tcp", 4, 20, unheard);
    t.o.tolerant = true;
    EXPECT_EQ(0, team_run(&t));
    EXPECT_EQ(4, t.done);
}

/* The descriptor is readable while an event waits. */
static void polled(team *t, dt_comm *c, int rank)
{
    bool          dead[MOST] = { false };
    struct pollfd p = { dt_comm_event_fd(c), POLLIN, 0 };
    dt_comm_event e;
    dead[1] = true;
    if (rank == 1) {
        team_await(t, 0, t->n - 1);
        die(t, c);
        return;
    }
    CHECK(p.fd >= 0 && poll(&p, 1, 0) == 0);
    team_set(t, 0);
    CHECK(poll(&p, 1, 20000) == 1 && (p.revents & POLLIN));
    CHECK(poll(&p, 1, 0) == 1); /* still */
    CHECK(dt_comm_next_event(c, &e) == 1 && e.rank == 1);
    CHECK(poll(&p, 1, 0) == 0);
    go_on(t, c, rank, dead);
}
UTEST(events, a_descriptor_tells_of_them)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 3, 20, 0, 2, polled));
}

/* Messages that do not suit their receives end alone and stay for other receives; wrong arguments fail the call only. */
static void misfits(team *t, dt_comm *c, int rank)
{
    bool  dead[MOST] = { false };
    char *x = (char *)calloc(1, 300000);
    float f[4] = { 0 };
    if (rank == 0)
        for (int k = 0; k < 2; k++) {
            int n = k ? 300000 : 4;
            dt_work *w = dt_comm_send_start(c, x, n, DT_COMM_U8, 1, .tag = 1);
            CHECK(w && !dt_work_wait(w));
        }
    if (rank == 1)
        for (int k = 0; k < 2; k++) {
            int n = k ? 300000 : 4;
            dt_msg_info info;
            while (!dt_comm_probe(c, &info, 0, .tag = 1, .timeout = 5)) {}
            CHECK(dt_comm_recv(c, f, 4, DT_COMM_F32, 0, .tag = 1) == DT_COMM_ERR_MISMATCH && names(0, "dt_comm_recv of rank 1"));
            CHECK(dt_comm_recv(c, x, n - 1, DT_COMM_U8, 0, .tag = 1) == DT_COMM_ERR_MISMATCH);
            CHECK(!dt_comm_recv(c, x, n, DT_COMM_U8, 0, .tag = 1));
        }
    /* the receive is there first */
    if (rank == 2) {
        dt_work *w = dt_comm_recv_start(c, f, 4, DT_COMM_F32, 1, .tag = 2), *v = dt_comm_recv_start(c, x, 4, DT_COMM_U8, 1, .tag = 2);
        team_set(t, 0);
        CHECK(dt_work_wait(w) == DT_COMM_ERR_MISMATCH && names(1, "rank 2"));
        CHECK(!dt_work_wait(v));
    }
    if (rank == 1) {
        team_await(t, 0, 1);
        CHECK(!dt_comm_send(c, x, 4, DT_COMM_U8, 2, .tag = 2));
    }
    CHECK(dt_comm_send(c, x, 1, DT_COMM_U8, 99) == DT_COMM_ERR_ARG && names(99, "out of range"));
    CHECK(dt_comm_send(c, x, 1, 77, 1) == DT_COMM_ERR_ARG);
    CHECK(!dt_comm_send_start(c, x, -1, DT_COMM_U8, 1));
    CHECK(dt_comm_probe(c, NULL, 99) == DT_COMM_ERR_ARG);
    CHECK(!dt_comm_get_status(c) && !dt_comm_barrier(c));
    go_on(t, c, rank, dead);
    free(x);
}
UTEST(messages, that_do_not_suit_end_alone)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 3, 20, 0, 3, misfits));
}

/* A server: a client dies in the middle of a large request, and before its reply; others are served. */
static void serves(dt_request *q) { dt_request_reply(q, q->data, q->n); }
static void serving(team *t, dt_comm *c, int rank)
{
    bool  dead[MOST] = { false };
    char *x = (char *)calloc(1, BIG);
    dead[2] = true;
    if (rank == 0) CHECK(!dt_comm_serve(c, 1, serves, .at_once = true));
    team_set(t, 0);
    team_await(t, 0, t->n);
    if (rank == 2) {
        dt_work *w[3];
        for (int i = 0; i < 3; i++) w[i] = dt_comm_call_start(c, 0, 1, x, i ? BIG : 100, x, BIG);
        CHECK(!dt_work_wait(w[0]));
        die(t, c);
        for (int i = 1; i < 3; i++) dt_work_wait(w[i]);
        free(x);
        return;
    }
    CHECK(team_event(c, DT_MEMBER_DIED, 2, NULL));
    for (int i = 0; rank == 1 && i < 20; i++) CHECK(!dt_comm_call(c, 0, 1, x, i < 3 ? BIG : 64, x, BIG, NULL));
    go_on(t, c, rank, dead);
    free(x);
}
UTEST(serving, a_client_dies)
{
    for (int i = 0; i < 3; i++) EXPECT_EQ(0, run(hows[i], 3, 20, 0, 2, serving));
}

/* A collective that times out, or with a wrong argument, halts collectives on all members; messages go on. */
static void halts(team *t, dt_comm *c, int rank)
{
    bool dead[MOST] = { false };
    int  x = 0, rc;
    if (t->arg) rc = dt_comm_allreduce(c, &x, rank ? 1 : -1, DT_COMM_I32, DT_COMM_SUM);
    else if (rank == 1) { /* it is in its program */
        dt_msg_info i;
        CHECK(dt_comm_probe(c, &i, 0, .tag = 4, .timeout = DT_FOREVER) == 1 && !dt_comm_recv(c, &x, 1, DT_COMM_I32, 0, .tag = 4));
        rc = dt_comm_barrier(c);
    } else rc = dt_comm_barrier(c);
    CHECK(rc == (t->arg ? DT_COMM_ERR_ARG : DT_COMM_ERR_TIMEOUT));
    CHECK(!dt_comm_get_status(c) && dt_comm_error(NULL));
    if (rank == 0 && !t->arg) CHECK(!dt_comm_send(c, &x, 1, DT_COMM_I32, 1, .tag = 4));
    CHECK(dt_comm_barrier(c) == rc);
    go_on(t, c, rank, dead);
}
static int halts_job(int i, void *arg) { return (void)arg, run(hows[i % 3], 3, i / 3 ? 20 : 1, i / 3, 3, halts); }
/* at the same time: some wait for the timeout */
UTEST(collectives, failures_halt_them) { EXPECT_EQ(0, dt_test_ranks(6, 50, halts_job, NULL)); }

/* ==================================================================================================== joining */
#undef CHECK
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, NULL)
#define SET(k) team_set(t, k)
#define AWAIT(k, n) team_await(t, k, n)
static bool refused(team *t, const char *name, int incarnation, const char *word)
{
    dt_comm    *c = team_join(t, name, incarnation);
    const char *e = dt_comm_error(NULL);
    bool        ok = !c && e && strstr(e, word);
    if (!ok) printf("    expected \"%s\": %s\n", word, e ? e : "");
    if (c) dt_comm_free(c);
    return ok;
}
/* Newcomers join while the others exchange messages; everybody talks to everybody, then all make a communicator for a sum. */
enum { START = 3, COMERS = 3, ALL = START + COMERS };
static void everybody(team *t, dt_comm *c, int rank)
{
    int seen = 0;
    while (dt_comm_size(c) < ALL) {
        dt_comm_event e;
        int           rc = dt_comm_next_event(c, &e, .timeout = 20 * dt_test_slow());
        CHECK(rc == 1 && e.kind == DT_MEMBER_JOINED && e.rank == (rank < START ? START : rank + 1) + seen && e.pid > 0);
        CHECK(strstr(e.why, "comer") != NULL && e.incarnation == 3);
        seen++;
        if (rc != 1) return;
    }
    CHECK(dt_comm_next_event(c, &(dt_comm_event){ 0 }) == (dt_comm_size(c) - (rank < START ? START : rank + 1) - seen > 0));
    for (int step = 1; step < ALL; step++) /* pairs meet in an order without cycles */
        for (int a = 0; a < ALL; a++) {
            int b = a ^ step;
            if (b >= ALL || (rank != a && rank != b) || a > b) continue;
            CHECK(team_exchange(c, rank, rank == a ? b : a, 300000));
        }
    dt_comm *now = NULL;
    int      sum = 1;
    CHECK(dt_comm_allreduce(c, &sum, 1, DT_COMM_I32, DT_COMM_SUM) == DT_COMM_ERR_STATE && strstr(dt_comm_error(NULL), "dt_comm_shrink"));
    CHECK(!dt_comm_shrink(c, &now) && dt_comm_size(now) == ALL);
    CHECK(!dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) && sum == ALL);
    CHECK(!dt_comm_free(now));
    SET(1);
    AWAIT(1, ALL); /* nobody leaves before all have it */
    CHECK(!dt_comm_get_status(c) && !dt_comm_free(c));
}
static int first_ones(void *arg)
{
    team    *t = (team *)arg;
    dt_comm *c = team_start(t, 8);
    int      rank = dt_comm_rank(c);
    for (int i = 0; i < 300 && rank < 2; i++) CHECK(team_exchange(c, rank, 1 - rank, i % 10 ? 100 : 100000)); /* traffic */
    everybody(t, c, rank);
    return 0;
}
static void comer(team *t, int k)
{
    char name[32];
    snprintf(name, sizeof name, "comer %d", k);
    dt_comm *c = team_join(t, name, 3);
    int      rank = c ? dt_comm_rank(c) : -1;
    CHECK(c && rank >= START && dt_comm_size(c) > rank);
    if (c) everybody(t, c, rank);
}
static int joins(const char *how)
{
    team *t = team_new(START, how);
    pid_t  pid[COMERS];
    for (int i = 0; i < COMERS; i++) pid[i] = team_fork(t, comer, i);
    if (dt_spawn(START, first_ones, t)) t->failed++;
    return team_end(t, pid, COMERS);
}
UTEST(joins, during_traffic)
{
    EXPECT_EQ(0, joins("auto"));
    EXPECT_EQ(0, joins("tcp"));
}

/* A member comes back under a higher incarnation; late ones, full groups, other tokens and closed groups are refused. */
static int gatekeeper(void *arg)
{
    team        *t = (team *)arg;
    dt_comm      *c = team_start(t, 5);
    int           rank = 0, x = 0;
    dt_comm_event e;
    /* incarnation 1 joins as rank 1, is killed, comes back as rank 2 */
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 1 && e.incarnation == 1);
    CHECK(!dt_comm_recv(c, &x, 1, DT_COMM_I32, 1, .tag = 1) && x == 11);
    kill((pid_t)e.pid, SIGKILL);
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_DIED && e.rank == 1);
    CHECK(dt_comm_send(c, &x, 1, DT_COMM_I32, 1) == DT_COMM_ERR_PEER);
    SET(0);
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 2 && e.incarnation == 2);
    CHECK(!dt_comm_recv(c, &x, 1, DT_COMM_I32, 2, .tag = 1) && x == 22);
    /* its successor comes while it lives: it is expelled */
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 3 && e.incarnation == 7);
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_DIED && e.rank == 2 && strstr(e.why, "replaced"));
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 4);
    AWAIT(2, 1); /* it is full */
    CHECK(!dt_comm_accept(c, .closed = true));
    SET(3);
    AWAIT(4, 1);
    CHECK(!dt_comm_free(c));
    return 0;
}
static void worker_1(team *t, int k)
{
    dt_comm *c = team_join(t, "worker", 1);
    int      rank = k, x = 11;
    CHECK(c && dt_comm_rank(c) == 1 && !dt_comm_send(c, &x, 1, DT_COMM_I32, 0, .tag = 1));
    pause();
}
static void worker_2(team *t, int k)
{
    int rank = k, x = 22;
    AWAIT(0, 1);
    CHECK(refused(t, "worker", 1, "too late") && strstr(dt_comm_error(NULL), "incarnation 1"));
    CHECK(refused(t, "worker", 0, "too late"));
    dt_comm *c = team_join(t, "worker", 2);
    CHECK(c && dt_comm_rank(c) == 2 && dt_comm_size(c) == 3);
    CHECK(dt_comm_send(c, &x, 1, DT_COMM_I32, 1) == DT_COMM_ERR_PEER && strstr(dt_comm_error(NULL), "before this rank joined"));
    CHECK(dt_comm_next_event(c, &(dt_comm_event){ 0 }) == 0);
    CHECK(!dt_comm_send(c, &x, 1, DT_COMM_I32, 0, .tag = 1));
    SET(1);
    CHECK(dt_comm_recv(c, &x, 1, DT_COMM_I32, 0, .tag = 99, .timeout = DT_FOREVER) == DT_COMM_ERR_PEER); /* until it is expelled */
    CHECK(dt_comm_get_status(c) == DT_COMM_ERR_PEER && strstr(dt_comm_error(c), "replaced"));
    dt_comm_free(c);
}
static void others(team *t, int k)
{
    int rank = k;
    AWAIT(1, 1);
    dt_comm *c = team_join(t, "worker", 7), *d = team_join(t, NULL, 0);
    CHECK(c && dt_comm_rank(c) == 3 && d && dt_comm_rank(d) == 4);
    CHECK(refused(t, NULL, 0, "full"));
    SET(2);
    AWAIT(3, 1);
    CHECK(refused(t, "late", 0, "closed"));
    char wrong[200];
    snprintf(wrong, sizeof wrong, "%s", t->invitation);
    wrong[strlen(wrong) - 1] = wrong[strlen(wrong) - 1] == '0' ? '1' : '0';
    CHECK(!dt_comm_join(.invitation = wrong, .join_timeout = 1) && strstr(dt_comm_error(NULL), "another token"));
    CHECK(!dt_comm_join(.invitation = "dt1-00-00") && strstr(dt_comm_error(NULL), "not one of"));
    CHECK(!dt_comm_join(.addr = "127.0.0.1", .port = 1) && strstr(dt_comm_error(NULL), "token"));
    SET(4);
    dt_comm_free(c);
    dt_comm_free(d);
}
UTEST(joins, names_and_incarnations)
{
    team *t = team_new(1, "auto");
    pid_t  pid[3];
    pid[0] = team_fork(t, worker_1, 1);
    pid[1] = team_fork(t, worker_2, 2);
    pid[2] = team_fork(t, others, 3);
    if (gatekeeper(t)) t->failed++;
    EXPECT_EQ(0, team_end(t, pid, 3));
}

/* After the death of rank 0 nobody can join, and the members go on. */
static int orphans(void *arg)
{
    team    *t = (team *)arg;
    dt_comm *c = team_start(t, 8);
    int      rank = dt_comm_rank(c);
    if (rank == 0) {
        AWAIT(0, 1);
        kill(getpid(), SIGKILL);
    }
    dt_comm_event e;
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 3);
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_DIED && e.rank == 0);
    CHECK(team_exchange(c, rank, 3 - rank, 100000) && (rank == 2 || team_exchange(c, rank, 3, 100000)));
    if (rank == 2) CHECK(team_exchange(c, rank, 3, 100000));
    SET(1);
    AWAIT(1, 3);
    CHECK(!dt_comm_free(c));
    return 0;
}
static void orphan(team *t, int k)
{
    dt_comm      *c = team_join(t, NULL, 0);
    int           rank = k;
    dt_comm_event e;
    CHECK(c && dt_comm_rank(c) == 3);
    SET(0);
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_DIED && e.rank == 0);
    CHECK(team_exchange(c, 3, 1, 100000) && team_exchange(c, 3, 2, 100000));
    CHECK(!dt_comm_join(.invitation = t->invitation, .join_timeout = 1) && dt_comm_error(NULL));
    SET(1);
    AWAIT(1, 3);
    CHECK(!dt_comm_free(c));
}
UTEST(joins, after_the_death_of_rank_0)
{
    team *t = team_new(3, "auto");
    pid_t  pid = team_fork(t, orphan, 3);
    dt_spawn(3, orphans, t);
    EXPECT_EQ(0, team_end(t, &pid, 1));
}

/* A farm: workers are killed at any moment and replaced, many times; the master loses nothing but tasks of the dead. */
enum { LIVES = 24, TASKS = 400 };
static void farm_worker(team *t, int k)
{
    char name[32];
    int  task = -1, rank = k;
    AWAIT(0, k + 1); /* until it is hired */
    if (__atomic_load_n(&t->flag[1], __ATOMIC_ACQUIRE)) return;
    snprintf(name, sizeof name, "worker %d", k % 3);
    dt_comm *c = team_join(t, name, 1 + k / 3);
    CHECK(c != NULL);
    char *big = (char *)calloc(1, 200000);
    while (c && big) {
        memcpy(big, &task, sizeof task);
        if (dt_comm_send(c, big, 200000, DT_COMM_U8, 0, .tag = 1)) break;
        if (dt_comm_recv(c, &task, 1, DT_COMM_I32, 0, .tag = 2) || task < 0) break;
    }
    free(big);
    dt_comm_free(c);
}
UTEST(joins, a_farm_whose_workers_are_killed)
{
    team *t = team_new(1, "auto");
    pid_t  pid[LIVES + 3];
    int    lives = 0, done = 0, next = 0, working[64], rank = 0, quick = dt_test_quick() ? 9 : LIVES, deaths = 0;
    bool   have[TASKS] = { false };
    char  *big = (char *)malloc(200000);
    for (int i = 0; i < quick; i++) pid[i] = team_fork(t, farm_worker, i); /* now: this process has one thread only */
    dt_comm *c = team_start(t, 40);
    for (; lives < 3; lives++) SET(0);
    memset(working, -1, sizeof working);
    while (done < TASKS) {
        dt_msg_info   from;
        dt_comm_event e;
        int           rc = dt_comm_recv(c, big, 200000, DT_COMM_U8, DT_ANY, .tag = 1, .info = &from, .timeout = 0.2);
        if (rc && rc != DT_COMM_ERR_TIMEOUT && rc != DT_COMM_ERR_PEER) break;
        while (dt_comm_next_event(c, &e) == 1)
            if (e.kind == DT_MEMBER_DIED) {
                deaths++;
                if (working[e.rank] >= 0) have[working[e.rank]] = false; /* another gets it */
                if (lives < quick) SET(0), lives++;
            }
        if (rc) continue;
        int task;
        memcpy(&task, big, sizeof task);
        if (task >= 0) done++, working[from.from] = -1;
        for (next = 0; next < TASKS && have[next]; next++) {}
        if (next < TASKS && !dt_comm_send(c, &next, 1, DT_COMM_I32, from.from, .tag = 2)) have[next] = true, working[from.from] = next;
        if (done % 16 == 5 && lives < quick && deaths + 3 == lives) kill(pid[lives - 1 - done / 16 % 2], SIGKILL);
    }
    CHECK(done == TASKS && !dt_comm_get_status(c));
    CHECK(deaths >= lives - 3);
    SET(1);
    for (int i = lives; i < quick; i++) SET(0);
    for (int i = 1; i < 64 && i < dt_comm_size(c); i++) dt_comm_send(c, &(int){ -1 }, 1, DT_COMM_I32, i, .tag = 2);
    CHECK(!dt_comm_free(c));
    free(big);
    EXPECT_EQ(0, team_end(t, pid, quick));
}

/* Threads join threads of their process. */
typedef struct late_thread {
    dt_comm *beside;
    team    *t;
    int      k;
} late_thread;
static void *late_one(void *arg)
{
    late_thread *l = (late_thread *)arg;
    team       *t = l->t;
    int          rank = 3 + l->k;
    dt_comm     *c = dt_comm_join(.beside = l->beside, .name = "late", .incarnation = 1 + l->k);
    CHECK(c && dt_comm_rank(c) == rank && dt_comm_size(c) == rank + 1);
    if (!c) return NULL;
    CHECK(team_exchange(c, rank, 0, 300000));
    SET(6);
    dt_comm *now = NULL;
    int      sum = 1;
    if (l->k) {
        CHECK(!dt_comm_shrink(c, &now) && !dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) && sum == 4);
        dt_comm_free(now);
    }
    if (l->k == 0) AWAIT(0, 1); /* until it is replaced */
    dt_comm_free(c);
    return NULL;
}
static void *early_one(void *arg)
{
    late_thread  *l = (late_thread *)arg;
    team        *t = l->t;
    dt_comm      *c = l->beside, *now = NULL;
    int           rank = dt_comm_rank(c), sum = 1;
    dt_comm_event e;
    CHECK(!dt_comm_barrier(c));
    SET(5);
    AWAIT(5, 3); /* whoever joins halts the barrier of those that are still in it */
    pthread_t    thread[2];
    late_thread  late[2] = { { c, t, 0 }, { c, t, 1 } };
    if (rank == 0) {
        CHECK(!dt_comm_join(.beside = c) && strstr(dt_comm_error(NULL), "closed"));
        CHECK(!dt_comm_accept(c));
        pthread_create(&thread[0], NULL, late_one, &late[0]);
    }
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 3 && e.incarnation == 1 && dt_comm_size(c) >= 4);
    if (rank == 0) {
        CHECK(team_exchange(c, 0, 3, 300000));
        AWAIT(6, 1); /* rank 3 has it, too: it will be replaced */
        CHECK(!dt_comm_join(.beside = c, .name = "late", .incarnation = 1) && strstr(dt_comm_error(NULL), "too late"));
        pthread_create(&thread[1], NULL, late_one, &late[1]);
    }
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_JOINED && e.rank == 4 && e.incarnation == 2);
    CHECK(dt_comm_next_event(c, &e, .timeout = 20) == 1 && e.kind == DT_MEMBER_DIED && e.rank == 3 && strstr(e.why, "replaced"));
    if (rank == 0) {
        CHECK(team_exchange(c, 0, 4, 300000));
        CHECK(!dt_comm_join(.beside = c) && strstr(dt_comm_error(NULL), "full"));
        SET(0);
    }
    CHECK(!dt_comm_shrink(c, &now) && !dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) && sum == 4);
    dt_comm_free(now);
    if (rank == 0) pthread_join(thread[0], NULL), pthread_join(thread[1], NULL);
    CHECK(!dt_comm_free(c));
    return NULL;
}
UTEST(joins, of_threads)
{
    team       *t = team_new(3, "threads");
    dt_comm     *c[3];
    late_thread  l[3];
    pthread_t    thread[3];
    ASSERT_EQ(0, dt_comm_threads(3, c, .tolerant = true, .room = 5, .timeout = 15 * dt_test_slow()));
    for (int i = 0; i < 3; i++) {
        l[i].beside = c[i];
        l[i].t = t;
        pthread_create(&thread[i], NULL, early_one, &l[i]);
    }
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    EXPECT_EQ(0, team_end(t, NULL, 0));
}

/* ==================================================================================================== the simulator
   Seeds of deaths, pauses, joins and messages on 8 members. Laws: a message between two survivors arrives whole; one with a dead
   member arrives whole or ends with DT_COMM_ERR_PEER; each survivor sees each death and each join once, joins in order; no
   survivor's communicator fails; the same seed gives the same events. */
enum { EIGHT = 8, ROOM = 12, MESSAGES = 60, MOST_BYTES = 3000, TO_ALL = 7000 };
typedef struct law_message {
    int      from, to, n, k;
    dt_work *send, *recv;
    dt_msg_info info;
    uint8_t  out[MOST_BYTES], in[MOST_BYTES];
} law_message;
typedef struct law {
    uint64_t    random;
    law_message m[MESSAGES];
    bool        killed[ROOM];
    int         njoined, joined[ROOM];
    dt_work    *hello[ROOM][EIGHT], *heard[ROOM][EIGHT]; /* of each newcomer, to each of the first ones */
    uint8_t     text[ROOM][EIGHT][MOST_BYTES];
    dt_msg_info info[ROOM][EIGHT];
} law;
typedef struct law_step {
    law *l;
    int  k;
} law_step;
static uint64_t draw(law *l, uint64_t n)
{
    l->random = l->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (l->random >> 33) % n;
}
static uint8_t pattern(int k, int i) { return (uint8_t)(k * 31 + i * 7 + 1); }
static void law_send(dt_comm *c, void *user)
{
    law_step    *s = (law_step *)user;
    law_message *m = &s->l->m[s->k];
    m->send = dt_comm_send_start(c, m->out, m->n, DT_COMM_U8, m->to, .tag = s->k);
}
static void law_recv(dt_comm *c, void *user)
{
    law_step    *s = (law_step *)user;
    law_message *m = &s->l->m[s->k];
    m->recv = dt_comm_recv_start(c, m->in, MOST_BYTES, DT_COMM_U8, m->from, .tag = s->k, .info = &m->info);
}
static uint8_t greeting[MOST_BYTES];
static void law_hello(dt_comm *c, void *user)
{
    law *l = (law *)user;
    int  me = dt_comm_rank(c);
    l->joined[l->njoined++] = me;
    for (int i = 0; i < EIGHT; i++) l->hello[me][i] = dt_comm_send_start(c, greeting, i & 1 ? 100 : MOST_BYTES, DT_COMM_U8, i, .tag = TO_ALL + me);
}
static void law_accept(dt_comm *c, void *user)
{
    (void)user;
    dt_comm_accept(c);
}
static bool law_ended(dt_work *w, int *status) /* a receive without a deadline may still wait: cancelled */
{
    if (!w) return *status = DT_COMM_ERR_CANCELLED, true;
    dt_work_cancel(w);
    return *status = dt_work_wait(w), true;
}
static int law_run(uint64_t seed, uint64_t *hash)
{
    law      *l = (law *)calloc(1, sizeof *l);
    law_step *step = (law_step *)calloc(MESSAGES, sizeof *step);
    int       bad = 0;
    l->random = seed * 2654435761u + 17;
    dt_sim *s = dt_sim_new(.world = EIGHT, .seed = seed, .tolerant = true, .room = ROOM, .timeout = 30, .delay = 2e-3);
    if (!s) return 1;
#define LAW(what) ((what) ? 0 : (printf("    seed %d, line %d: %s: %s\n", (int)seed, __LINE__, #what, dt_comm_error(NULL) ? dt_comm_error(NULL) : ""), bad++))
    memset(greeting, 5, sizeof greeting);
    dt_sim_at(s, 0, 0, law_accept, NULL);
    for (int k = 0; k < MESSAGES; k++) {
        law_message *m = &l->m[k];
        m->from = (int)draw(l, EIGHT);
        m->to = (m->from + 1 + (int)draw(l, EIGHT - 1)) % EIGHT;
        m->n = draw(l, 2) ? 1 + (int)draw(l, 200) : 1 + (int)draw(l, MOST_BYTES);
        m->k = k;
        for (int i = 0; i < m->n; i++) m->out[i] = pattern(k, i);
        step[k].l = l;
        step[k].k = k;
        dt_sim_at(s, m->from, 0.05 * (double)draw(l, 1000) / 1000, law_send, &step[k]);
        dt_sim_at(s, m->to, 0.05 * (double)draw(l, 1000) / 1000, law_recv, &step[k]);
    }
    for (int r = EIGHT; r < ROOM; r++)
        for (int i = 0; i < EIGHT; i++)
            l->heard[r][i] = dt_comm_recv_start(dt_sim_comm(s, i), l->text[r][i], MOST_BYTES, DT_COMM_U8, DT_ANY, .tag = TO_ALL + r,
                                                .info = &l->info[r][i], .timeout = DT_FOREVER);
    dt_work *idle[EIGHT]; /* nothing comes: so that time passes, in which all deaths are found */
    for (int i = 0; i < EIGHT; i++) idle[i] = dt_comm_recv_start(dt_sim_comm(s, i), greeting, 1, DT_COMM_U8, DT_ANY, .tag = 9999, .timeout = 8);
    int joins = (int)draw(l, ROOM - EIGHT + 2);
    for (int i = 0; i < joins; i++)
        dt_sim_join(s, 0.04 * (double)draw(l, 1000) / 1000, draw(l, 2) ? "comer" : NULL, (int64_t)draw(l, 3), law_hello, l);
    for (int n = (int)draw(l, 5); n > 0; n--) {
        int r = (int)draw(l, ROOM); /* one that has not joined by then is not killed */
        dt_sim_kill(s, r, 0.06 * (double)draw(l, 1000) / 1000);
    }
    for (int n = (int)draw(l, 4); n > 0; n--)
        dt_sim_pause(s, (int)draw(l, EIGHT), 0.05 * (double)draw(l, 1000) / 1000, 0.02 * (double)draw(l, 1000) / 1000);
    int busy = dt_sim_run(s, 200);
    LAW(busy == 0);
    for (int r = 0; r < ROOM; r++) {
        dt_comm *c = dt_sim_comm(s, r);
        if (!c) continue;
        l->killed[r] = dt_comm_get_status(c) == DT_COMM_ERR_PEER && strstr(dt_comm_error(c), "was killed in the simulator");
    }
    for (int i = 0; i < EIGHT; i++) LAW(dt_work_wait(idle[i]) == (l->killed[i] ? DT_COMM_ERR_PEER : DT_COMM_ERR_TIMEOUT));
    bool root = !l->killed[0];
    for (int k = 0; k < MESSAGES; k++) {
        law_message *m = &l->m[k];
        bool         hurt = l->killed[m->from] || l->killed[m->to];
        int          a, b;
        law_ended(m->send, &a);
        law_ended(m->recv, &b);
        LAW(hurt || (a == 0 && b == 0));
        LAW(a == 0 || l->killed[m->from] || a == DT_COMM_ERR_PEER || (!m->send && a == DT_COMM_ERR_CANCELLED));
        LAW(b == 0 || l->killed[m->to] || b == DT_COMM_ERR_PEER || (!m->recv && b == DT_COMM_ERR_CANCELLED));
        if (m->recv && !b) LAW(!memcmp(m->in, m->out, (size_t)m->n));
    }
    for (int r = EIGHT; r < ROOM; r++)
        for (int i = 0; i < EIGHT; i++) {
            int a = 0, b = 0;
            law_ended(l->hello[r][i], &a);
            law_ended(l->heard[r][i], &b);
            bool there = dt_sim_comm(s, r) && l->hello[r][i] && !l->killed[r] && !dt_comm_get_status(dt_sim_comm(s, r));
            if (there && !l->killed[i]) LAW(a == 0 && b == 0);
            if (l->heard[r][i] && !b) LAW(l->info[r][i].from == r && l->text[r][i][99] == 5);
        }
    for (int r = 0; r < ROOM; r++) {
        dt_comm      *c = dt_sim_comm(s, r);
        dt_comm_event e;
        int           died[ROOM] = { 0 }, last = EIGHT - 1, size = 0;
        if (!c || l->killed[r]) continue;
        if (dt_comm_get_status(c)) { /* replaced by a higher incarnation, or its join was lost with rank 0 */
            LAW(r >= EIGHT && (strstr(dt_comm_error(c), "replaced") || (!root && strstr(dt_comm_error(c), "join again"))));
            continue;
        }
        while (dt_comm_next_event(c, &e) == 1) {
            if (e.kind == DT_MEMBER_JOINED) LAW(e.rank == (last < r ? (r >= EIGHT ? r : last) : last) + 1), last = e.rank;
            else LAW(e.kind == DT_MEMBER_DIED && ++died[e.rank] == 1);
        }
        size = dt_comm_size(c);
        for (int i = 0; i < size; i++) {
            bool failed = l->killed[i] || (dt_sim_comm(s, i) && dt_comm_get_status(dt_sim_comm(s, i))) || !dt_sim_comm(s, i);
            LAW(!died[i] || failed);
            LAW(died[i] || !l->killed[i] || i == r || r >= EIGHT); /* a newcomer may have come after the death */
        }
        if (root && r < EIGHT) LAW(size == dt_comm_size(dt_sim_comm(s, 0)));
    }
    *hash = dt_sim_hash(s, NULL);
    dt_sim_free(s);
    free(step);
    free(l);
    return bad;
}
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
UTEST(simulator, deaths_joins_and_messages)
{
    int      seeds = getenv("DT_TEST_SEEDS") ? atoi(getenv("DT_TEST_SEEDS")) : dt_test_quick() ? 100 : 1000, bad = 0;
    uint64_t a, b;
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL); /* thousands of failures */
    for (int i = getenv("DT_TEST_SEED") ? atoi(getenv("DT_TEST_SEED")) : 1; i <= seeds && bad < 5; i++) {
        bad += law_run((uint64_t)i, &a);
        if (i % 50) continue;
        bad += law_run((uint64_t)i, &b);
        EXPECT_EQ(a, b);
    }
    dt_set_log(NULL, NULL);
    EXPECT_EQ(0, bad);
}
