/* test_newcomers.c - members that join a group which is at work: strangers, slow networks, wrong tokens, other machines, deaths
   in the middle, members that break the protocol; and events that nobody reads. Joins in peace are in test_tolerant.c.
   Contents: >>flood >>tokens (and accepting) >>broken >>stages >>heard >>shrinks >>unread
   run: alone, long, asan-later */
#define DT_IMPLEMENTATION
#include "harness.h"

#include "dt_comm.h"
#include "strangers.h"
#include "teams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

UTEST_MAIN()

/* ==================================================================================================== >>flood
   Processes: the members, the proxy, the strangers, the newcomer. */
enum { FAST, SLOWLY };
enum { F_LISTENS, F_END, F_IN, F_OUT, F_READY };
static dt_comm *flood_member(job *j, int rank)
{
    dt_comm_opts o = job_opts(j, rank);
    o.port = j->port;
    o.tolerant = true;
    o.room = 8;
    if (j->n == 1) o.addr = NULL, o.port = 0, o.listen_fd = 0;
    dt_comm *c = dt_comm_init_with(o);
    if (!c) return NULL;
    if (rank == 0 && dt_comm_accept(c)) return NULL;
    if (rank == 0) { /* a world of one has chosen its port */
        dt__addr a;
        dt__addr_take(&a, c->world->member[0].addr, c->world->member[0].addr_len);
        j->port = dt__addr_port(&a);
        flag_set(j, F_LISTENS);
    }
    return c;
}
DT_TEST_RANK(flood_role)
{
    job *j = (job *)arg;
    int  kind = rank - j->n;
    struct rlimit few = { (rlim_t)j->fds, (rlim_t)j->fds };
    if (kind >= 0) flag_wait(j, F_LISTENS, 1);
    if (kind == 0) proxy(j, F_END);
    else if (kind == 1 && j->victim == FAST) flood(j, j->port, F_END);
    else if (kind == 1) flood_slowly(j, j->port, F_END);
    if (kind == 0 || kind == 1) return;
    if (rank == 0 && j->fds) ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
    dt_comm *c = NULL;
    if (kind < 0) {
        c = flood_member(j, rank);
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, j->n, NULL));
    } else {
        flood_runs(j);
        int64_t begin = dt_test_ns();
        c = dt_comm_join(.addr = "127.0.0.1", .port = j->proxy_port, .token_file = j->token_file, .timeout = j->timeout,
                         .join_timeout = j->join_timeout);
        j->took[0] = dt_test_ns() - begin;
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        EXPECT_EQ(j->n, dt_comm_rank(c));
        /* its sockets, too, are made in the flood */
        for (int i = 0; i < j->n; i++) EXPECT_TRUE(team_exchange(c, j->n, i, 100000));
    }
    if (kind < 0) EXPECT_TRUE(team_exchange(c, rank, j->n, 100000));
    flag_set(j, F_IN);
    flag_wait(j, F_IN, j->n + 1);
    EXPECT_EQ(0, dt_comm_free(c));
    flag_set(j, F_OUT);
    if (rank == 0) flag_wait(j, F_OUT, j->n + 1), flag_set(j, F_END);
}
/* fds: the descriptors of rank 0; 0: many, so that strangers cannot keep it from accepting */
static void joins_in_a_flood(int *utest_result, int n, int kind, int held, double delay, int fds)
{
    job *j = job_proxy(job_token(job_new(n)));
    j->delay = delay;
    j->victim = kind;
    j->fds = fds;
    j->held = held;
    int64_t begin = dt_test_ns();
    EXPECT_EQ(0, dt_test_ranks(n + 3, 40, flood_role, j));
    printf("    %d members, delay %.0f ms, %d descriptors: joined after %.2f s; %.0f connections/s of strangers\n", n,
           delay * 1e3, fds, (double)j->took[0] * 1e-9, (double)j->made / seconds(begin));
    EXPECT_LT((double)j->took[0] * 1e-9, (kind == SLOWLY && !fds ? 5 : 15) * dt_test_slow());
    job_free(j);
}
UTEST(flood, a_newcomer_joins_a_group_of_one) { joins_in_a_flood(utest_result, 1, FAST, MUCH, 0, 0); }
UTEST(flood, a_newcomer_joins_over_20_ms_of_delay)
{
    for (int i = 0; i < (dt_test_quick() ? 1 : 6); i++)
        joins_in_a_flood(utest_result, 1 + 2 * (i % 2 == 0), FAST, i > 2 ? MUCH : HELD, 0.02, i % 3 == 2 ? 80 : 0);
}
UTEST(flood, a_thousand_slow_strangers_and_20_ms_of_delay)
{
    for (int i = 0; i < (dt_test_quick() ? 1 : 4); i++)
        joins_in_a_flood(utest_result, 1 + 2 * (i % 2), SLOWLY, 0, 0.02, i == 3 ? 80 : 0);
}

/* ==================================================================================================== >>tokens
   Where and with which token: by options and by the environment. A token that cannot be read is an error at once, another one
   is refused at the end of .join_timeout; both say so. */
static int host(job *j, dt_comm **out) /* rank 0 of a group of one with the token of the job */
{
    dt_comm *c = dt_comm_init(.world = 1, .token_file = j->token_file, .tolerant = true, .room = 8, .timeout = j->timeout,
                              .join_timeout = j->join_timeout);
    if (!c) return printf("    %s\n", dt_comm_error(NULL));
    for (int i = 0; i < 2; i++) /* a wrong address leaves nothing behind */
        if (dt_comm_accept(c, .bind = "192.0.2.1", .port = j->port) != DT_COMM_ERR_JOIN ||
            strncmp(dt_comm_error(NULL), "dt_comm_accept: ", 16))
            return printf("    bind: %s\n", dt_comm_error(NULL));
    if (dt_comm_accept(c, .port = j->port)) return printf("    %s\n", dt_comm_error(NULL));
    *out = c;
    flag_set(j, F_LISTENS);
    return 0;
}
static bool said(const char *word)
{
    const char *e = dt_comm_error(NULL);
    if (e && strstr(e, word) && !strncmp(e, "dt_comm_join: ", 14)) return true;
    printf("    expected \"dt_comm_join: ... %s\": %s\n", word, e ? e : "");
    return false;
}
DT_TEST_RANK(token_role)
{
    job     *j = (job *)arg;
    dt_comm *c = NULL;
    char     other[64], text[16];
    int64_t  begin;
    if (rank == 0) {
        ASSERT_EQ(0, host(j, &c));
        for (int i = 1; i <= 3; i++) {
            EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, i, NULL));
            EXPECT_TRUE(team_exchange(c, 0, i, 1000));
        }
        flag_wait(j, F_END, 1);
        EXPECT_EQ(0, dt_comm_get_status(c));
        EXPECT_EQ(4, dt_comm_size(c));
        EXPECT_EQ(0, dt_comm_free(c));
        return;
    }
    flag_wait(j, F_LISTENS, 1);
    snprintf(text, sizeof text, "%d", j->port);
    dt_comm *in[3];
    in[0] = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    setenv("DT_TOKEN_FILE", j->token_file, 1);
    in[1] = dt_comm_join(.timeout = j->timeout);
    unsetenv("DT_TOKEN_FILE");
    in[2] = dt_comm_join(.timeout = j->timeout, .token_fd = open(j->token_file, O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < 3; i++) {
        ASSERT_TRUE_MSG(in[i] != NULL, dt_comm_error(NULL));
        EXPECT_EQ(i + 1, dt_comm_rank(in[i]));
        EXPECT_TRUE(team_exchange(in[i], i + 1, 0, 1000));
    }
    token_new(other);
    begin = dt_test_ns();
    EXPECT_TRUE(!dt_comm_join(.token_file = other, .join_timeout = 1) && said("another token"));
    EXPECT_GT(seconds(begin), 0.9);
    setenv("DT_TOKEN_FILE", other, 1);
    EXPECT_TRUE(!dt_comm_join(.join_timeout = 0.3) && said("another token"));
    chmod(other, 0644);
    begin = dt_test_ns();
    EXPECT_TRUE(!dt_comm_join(.join_timeout = 30) && said("chmod 600"));
    unsetenv("DT_TOKEN_FILE");
    EXPECT_TRUE(!dt_comm_join(.token_file = other, .join_timeout = 30) && said(other));
    unlink(other);
    EXPECT_TRUE(!dt_comm_join(.token_file = other, .join_timeout = 30) && said(other));
    EXPECT_TRUE(!dt_comm_join(.token_file = "/dev/null", .join_timeout = 30) && said("/dev/null"));
    EXPECT_TRUE(!dt_comm_join(.join_timeout = 30) && said("a token is needed"));
    setenv("MASTER_PORT", "many", 1);
    EXPECT_TRUE(!dt_comm_join(.token_file = j->token_file, .join_timeout = 30) && said("MASTER_PORT is 'many'"));
    EXPECT_TRUE(!dt_comm_join(.addr = "127.0.0.1", .port = 70000, .token_file = j->token_file) && said("where is rank 0?"));
    EXPECT_TRUE(!dt_comm_join(.addr = "no such name", .port = j->port, .token_file = j->token_file) && said("'no such name'"));
    EXPECT_TRUE(!dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .bind = "192.0.2.1") &&
                said("192.0.2.1"));
    EXPECT_LT(seconds(begin), 5 * dt_test_slow()); /* no time was waited for */
    flag_set(j, F_END);
    for (int i = 0; i < 3; i++) dt_comm_free(in[i]);
}
UTEST(tokens, by_a_file_or_a_descriptor)
{
    job *j = job_token(job_new(1));
    close(j->listen_fd); /* dt_comm_accept binds the port */
    j->listen_fd = -1;
    EXPECT_EQ(0, job_run(j, 2, 40, token_role));
}

/* dt_comm_accept of a group of one makes a listener, a Unix socket and an eventfd. If there is no descriptor for one of them it
   fails, and leaves none behind. */
DT_TEST_RANK(few_fds_role)
{
    dt_comm      *c = dt_comm_init(.world = 1, .tolerant = true, .room = 4);
    struct rlimit all, few;
    int           fds, made = 0, failed = 0;
    ASSERT_TRUE(c != NULL && !getrlimit(RLIMIT_NOFILE, &all));
    while (!made) {
        int lowest = dup(0); /* the next number */
        close(lowest);
        fds = count_in("/proc/self/fd");
        few = all;
        few.rlim_cur = (rlim_t)(lowest + failed);
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
        made = !dt_comm_accept(c);
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &all));
        if (made) break;
        EXPECT_TRUE_MSG(!strncmp(dt_comm_error(NULL), "dt_comm_accept: ", 16), dt_comm_error(NULL));
        EXPECT_EQ(fds, count_in("/proc/self/fd"));
        failed++;
        ASSERT_LT(failed, 10);
    }
    EXPECT_EQ(3, failed);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(accepting, without_descriptors_fails_and_leaves_nothing) { EXPECT_EQ(0, dt_test_ranks(1, 20, few_fds_role, NULL)); }

/* ==================================================================================================== >>broken
   Members that have the token, and break the protocol: each is put out with an event that says why, and the others go on. The
   member is a process that makes its connections by hand. */
typedef struct fake {
    dt__world w;
    int       fd, listen_fd; /* its connection to rank 0 */
    uint64_t  comm;
} fake;
static int fake_dial(job *j, fake *f) /* it has the token, and no more */
{
    dt__addr a;
    char     text[256];
    world_fake(&f->w, -1, 2, 0);
    if (dt__token_read_file(j->token_file, "", f->w.token) != 1) return 1;
    f->w.client = &dt__comm_client;
    f->w.timeout = f->w.join_timeout = j->timeout;
    dt__addr_loopback(&a, j->port);
    f->fd = dt__dial_until(&f->w, &a, 1, 0, DT__KIND_JOIN, 0, 0, dt_test_ns() + dt__ns_of(j->timeout), NULL, text, sizeof text);
    return f->fd < 0 ? printf("    %s\n", text) : 0;
}
static int fake_row(fake *f, dt__member *m)
{
    dt__addr a;
    int      port;
    memset(m, 0, sizeof *m);
    f->listen_fd = job_listen(&port);
    dt__addr_loopback(&a, port);
    memcpy(m->addr, &a.u, a.n);
    m->addr_len = a.n;
    m->pid = (int64_t)getpid();
    snprintf(m->host_name, sizeof m->host_name, "nowhere");
    return dt__cframe_send(f->fd, DT__C_MEMBER, -1, m, sizeof *m, dt_test_ns() + 5000000000) != 1;
}
static int fake_join(job *j, fake *f)
{
    dt__member m;
    int32_t    round;
    int        head = 0;
    uint8_t   *gone = NULL;
    uint64_t   id;
    if (fake_dial(j, f) || fake_row(f, &m) ||
        dt__world_welcomed(&f->w, f->fd, dt_test_ns() + dt__ns_of(j->timeout), &round, &gone, &head))
        return printf("    %s\n", dt_comm_error(NULL));
    free(gone);
    memcpy(&id, f->w.job, sizeof id);
    f->comm = dt__id_mix(id, 0);
    return 0;
}
static void fake_free(fake *f)
{
    close(f->fd);
    close(f->listen_fd);
    free(f->w.member);
}
static int fake_link(fake *f, int to) /* a socket for messages */
{
    dt__addr  a;
    dt__shake h;
    dt__addr_take(&a, f->w.member[to].addr, f->w.member[to].addr_len);
    for (;;) { /* a rank that has not heard of this member yet refuses it */
        int fd = dt__dial(&f->w, &a, to, DT__KIND_LINK, f->comm, DT__STREAM_MAIL, dt_test_ns() + 5000000000, NULL, &h);
        if (fd >= 0) return fd;
        poll(NULL, 0, 1);
    }
}
static const struct {
    uint32_t magic, kind, nbytes; /* of the head; magic 0: right */
    int32_t  first;               /* the first number of the body; the rest is 0xff */
} frames[] = { { 1, DT__C_NOTE, 0, -1 },
               { 0, DT__C_NOTE, 0xffffffffu, -1 },
               { 0, DT__C_NOTE, DT__CFRAME_MAX + 1, -1 },
               { 0, DT__C_NOTE, 3, -1 },
               { 0, 999, 0, -1 },
               { 0, DT__C_MEMBER, sizeof(dt__member), -1 },
               { 0, DT__C_WELCOME, sizeof(dt__cwelcome), -1 },
               { 0, DT__C_JOIN, 4, -1 },
               { 0, DT__C_JOIN, sizeof(dt__cjoin), -1 },
               { 0, DT__C_JOIN, sizeof(dt__cjoin), 100000 },
               { 0, DT__C_PART, 4, -1 },
               { 0, DT__C_PART, sizeof(dt__cpart), -1 },
               { 0, DT__C_DEATH, sizeof(dt__cdeath), -1 },
               { 0, DT__C_AGREE_STATE, 8, -1 },
               { 0, DT__C_LEAVE_DOWN, 0, -1 } };
static const dt__mhead heads[] = { { 0, DT__M_EAGER, 0, 0, 0, 0, 0, 0, 0 },
                                   { DT__M_MARK, 99, 0, 0, 0, 0, 0, 0, 0 },
                                   { DT__M_MARK, DT__M_EAGER, 0, DT_COMM_U8, 0, UINT64_MAX, 0, 0, 0 },
                                   { DT__M_MARK, DT__M_EAGER, 9, DT_COMM_U8, 0, 1, 0, 0, 0 },
                                   { DT__M_MARK, DT__M_EAGER, 0, 99, 0, 1, 0, 0, 0 },
                                   { DT__M_MARK, DT__M_EAGER, 0, DT_COMM_U8, -5, 1, 0, 0, 0 },
                                   { DT__M_MARK, DT__M_LARGE, 0, DT_COMM_U8, 0, 1 << 20, 1, 64, 0 },
                                   { DT__M_MARK, DT__M_DATA, 0, DT_COMM_U8, 0, UINT64_MAX, 1, 0, 0 } };
enum { FRAMES = sizeof frames / sizeof *frames, HEADS = sizeof heads / sizeof *heads, CASES = FRAMES + HEADS, TRIO = 3 };
static void break_it(fake *f, int i)
{
    uint8_t   junk[2048];
    dt__chead h;
    if (i >= FRAMES) {
        int fd = fake_link(f, i % TRIO);
        send(fd, &heads[i - FRAMES], sizeof *heads, MSG_NOSIGNAL);
        f->w.listen_fd = fd; /* stays open: it is the frame that is wrong, not the end of the connection */
        return;
    }
    memset(junk, 0xff, sizeof junk);
    memcpy(junk, &frames[i].first, sizeof frames[i].first);
    h.magic = frames[i].magic ? frames[i].magic : DT__CFRAME_MAGIC;
    h.kind = frames[i].kind;
    h.nbytes = frames[i].nbytes;
    h.rank = f->w.rank;
    send(f->fd, &h, sizeof h, MSG_NOSIGNAL);
    if (h.nbytes <= sizeof junk) send(f->fd, junk, h.nbytes, MSG_NOSIGNAL);
}
static dt_comm *trio_member(job *j, int rank, int room)
{
    dt_comm_opts o = job_opts(j, rank);
    o.tolerant = true;
    o.room = room;
    dt_comm *c = dt_comm_init_with(o);
    if (!c) printf("    %s\n", dt_comm_error(NULL));
    if (c && rank == 0 && dt_comm_accept(c)) printf("    %s\n", dt_comm_error(NULL));
    if (rank == 0) flag_set(j, F_LISTENS);
    return c;
}
static bool ring(dt_comm *c, int rank, int n) /* each exchanges messages with its neighbours, in an order without cycles */
{
    bool ok = true;
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++)
            if (rank == a || rank == b) ok = team_exchange(c, rank, rank == a ? b : a, 5000) && ok;
    return ok;
}
DT_TEST_RANK(broken_role)
{
    job *j = (job *)arg;
    if (rank == TRIO) {
        flag_wait(j, F_LISTENS, 1);
        for (int i = 0; i < CASES; i++) {
            fake *f = (fake *)calloc(1, sizeof *f);
            ASSERT_EQ(0, fake_join(j, f));
            EXPECT_EQ(TRIO + i, f->w.rank);
            break_it(f, i);
            flag_wait(j, F_IN, TRIO * (i + 1)); /* all have the event */
            if (i >= FRAMES) close(f->w.listen_fd);
            fake_free(f);
            free(f);
        }
        dt_comm *c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        for (int i = 0; i < TRIO; i++) EXPECT_TRUE(team_exchange(c, TRIO + CASES, i, 5000));
        flag_set(j, F_END);
        flag_wait(j, F_END, TRIO + 1);
        EXPECT_EQ(0, dt_comm_free(c));
        return;
    }
    dt_comm *c = trio_member(j, rank, TRIO + CASES + 1);
    ASSERT_TRUE(c != NULL);
    EXPECT_TRUE(ring(c, rank, TRIO));
    for (int i = 0; i < CASES; i++) {
        dt_comm_event e;
        char          who[32];
        EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, TRIO + i, NULL));
        EXPECT_TRUE(team_event(c, DT_MEMBER_DIED, TRIO + i, &e));
        snprintf(who, sizeof who, "rank %d (", TRIO + i);
        EXPECT_TRUE_MSG(strstr(e.why, who) != NULL, e.why);
        EXPECT_TRUE_MSG(strstr(e.why, i < FRAMES ? "it sent a broken frame" : "sent an invalid message frame to rank") != NULL,
                        e.why);
        EXPECT_TRUE(dt_comm_send(c, &i, 1, DT_COMM_I32, TRIO + i) == DT_COMM_ERR_PEER && strstr(dt_comm_error(NULL), who));
        flag_set(j, F_IN);
        EXPECT_TRUE(ring(c, rank, TRIO));
    }
    EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, TRIO + CASES, NULL));
    EXPECT_TRUE(team_exchange(c, rank, TRIO + CASES, 5000));
    EXPECT_EQ(0, dt_comm_get_status(c));
    EXPECT_EQ(0, dt_comm_next_event(c, &(dt_comm_event){ 0 }));
    flag_set(j, F_END);
    flag_wait(j, F_END, TRIO + 1);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(broken, members_are_expelled_with_an_event_that_says_why)
{
    EXPECT_EQ(0, job_run(job_token(job_new(TRIO)), TRIO + 1, 40, broken_role));
}

/* A process that claims the number of another one: it joined at a head that died before anybody had heard of it, and the next head gave
   the number again. */
DT_TEST_RANK(impostor_role)
{
    job *j = (job *)arg;
    if (rank == TRIO) {
        fake      *f = (fake *)calloc(1, sizeof *f);
        dt__shake  h;
        dt__addr   a;
        flag_wait(j, F_LISTENS, 1);
        ASSERT_TRUE(f && !fake_join(j, f));
        dt__addr_loopback(&a, j->port);
        uint64_t own = dt__row_id(&f->w.member[f->w.rank]);
        for (int i = 0; i < 2; i++) {
            ASSERT_EQ(DT__SHAKE_REFUSED, dt__dial(&f->w, &a, 0, DT__KIND_TREE, i ? own : own ^ 2, 0, dt_test_ns() + 5000000000, NULL, &h));
            EXPECT_EQ(i ? (int)DT_COMM_ERR_JOIN : (int)DT_COMM_ERR_PEER, h.r.status);
            EXPECT_TRUE_MSG(strstr(h.r.text, i ? "in the tree already" : "rank 3 is another process here") != NULL, h.r.text);
        }
        fake_free(f);
        free(f);
        flag_set(j, F_END);
        return;
    }
    dt_comm *c = trio_member(j, rank, TRIO + 1);
    ASSERT_TRUE(c != NULL);
    EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, TRIO, NULL));
    flag_wait(j, F_END, 1);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(broken, a_process_with_the_number_of_another_is_refused)
{
    job *j = job_token(job_new(TRIO));
    EXPECT_EQ(0, job_run(j, TRIO + 1, 40, impostor_role));
}

/* ==================================================================================================== >>stages
   Newcomers that end, or say something else, at each stage of joining. Only one whose row has come was ever a member. */
enum { NO_WORD, HALF_A_PROOF, NO_ROW, HALF_A_ROW, NOT_A_ROW, BAD_INCARNATION, BAD_ADDRESS, ROW, HALF_A_WELCOME, STAGES };
static int stage(job *j, int what)
{
    fake       f;
    dt__member m;
    uint8_t    some[700];
    int64_t    soon = dt_test_ns() + 5000000000;
    dt__addr   a;
    memset(&f, 0, sizeof f);
    f.listen_fd = -1;
    if (what < NO_ROW) {
        dt__addr_loopback(&a, j->port);
        f.fd = dt__connect(&a);
        memset(some, 1, sizeof some);
        memcpy(some, "DTK1\2\0\0\0", 8);
        if (!dt__wait_fd(f.fd, POLLIN, soon) || (what == HALF_A_PROOF && send(f.fd, some, 64, MSG_NOSIGNAL) != 64)) return 1;
    } else if (fake_dial(j, &f)) return 1;
    memset(&m, 0, sizeof m);
    if (what == HALF_A_ROW) {
        dt__chead h;
        memset(&h, 0, sizeof h);
        h.magic = DT__CFRAME_MAGIC;
        h.kind = DT__C_MEMBER;
        h.nbytes = sizeof m;
        if (send(f.fd, &h, sizeof h, MSG_NOSIGNAL) < 0 || send(f.fd, &m, 100, MSG_NOSIGNAL) != 100) return 1;
    }
    if (what == NOT_A_ROW && dt__cframe_send(f.fd, DT__C_NOTE, -1, &m, sizeof m, soon) != 1) return 1;
    m.incarnation = what == BAD_INCARNATION ? -1 : 0;
    m.addr_len = what == BAD_ADDRESS ? 1000 : 16;
    if ((what == BAD_INCARNATION || what == BAD_ADDRESS) &&
        dt__cframe_send(f.fd, DT__C_MEMBER, -1, &m, sizeof m, soon) != 1)
        return 1;
    bool refused = what == NOT_A_ROW || what == BAD_INCARNATION || what == BAD_ADDRESS;
    if (refused && (!dt__wait_fd(f.fd, POLLIN, soon) || recv(f.fd, some, sizeof some, 0) > 0))
        return printf("    stage %d is not refused\n", what);
    if (what >= ROW && fake_row(&f, &m)) return 1;
    if (what == HALF_A_WELCOME && (!dt__wait_fd(f.fd, POLLIN, soon) || recv(f.fd, some, 20, 0) != 20)) return 1;
    close(f.fd);
    if (f.listen_fd >= 0) close(f.listen_fd);
    return 0;
}
DT_TEST_RANK(stages_role)
{
    job *j = (job *)arg;
    if (rank == TRIO) {
        flag_wait(j, F_READY, TRIO);
        for (int turn = 0; turn < 2; turn++)
            for (int i = 0; i < STAGES; i++) {
                EXPECT_EQ(0, stage(j, i));
                /* so that it is heard of before the next */
                if (i >= ROW) flag_wait(j, F_IN, TRIO * (turn * (STAGES - ROW) + i - ROW + 1));
            }
        dt_comm *c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        EXPECT_EQ(TRIO + 2 * (STAGES - ROW), dt_comm_rank(c));
        for (int i = 0; i < TRIO; i++) EXPECT_TRUE(team_exchange(c, dt_comm_rank(c), i, 5000));
        flag_wait(j, F_END, 3);
        EXPECT_EQ(0, dt_comm_free(c));
        return;
    }
    dt_comm *c = trio_member(j, rank, 20);
    ASSERT_TRUE(c != NULL);
    EXPECT_TRUE(ring(c, rank, TRIO));
    int fds = count_in("/proc/self/fd"), last = TRIO + 2 * (STAGES - ROW);
    flag_set(j, F_READY);
    for (int i = TRIO; i < last; i++) {
        EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, i, NULL));
        EXPECT_TRUE(team_event(c, DT_MEMBER_DIED, i, NULL));
        flag_set(j, F_IN);
    }
    EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, last, NULL));
    EXPECT_TRUE(team_exchange(c, rank, last, 5000));
    flag_set(j, F_END);
    flag_wait(j, F_END, TRIO);
    EXPECT_TRUE(team_event(c, DT_MEMBER_LEFT, last, NULL));
    EXPECT_TRUE(ring(c, rank, TRIO));
    /* the connection of one that has gone is closed by the next calls, when its end has been read */
    for (int64_t begin = dt_test_ns(); count_in("/proc/self/fd") > fds && seconds(begin) < 5 * dt_test_slow();)
        EXPECT_EQ(0, dt_comm_probe(c, NULL, DT_ANY, .tag = DT_ANY, .timeout = 0.01));
    EXPECT_EQ(fds, count_in("/proc/self/fd")); /* of none a connection is left */
    flag_set(j, F_OUT);
    flag_wait(j, F_OUT, TRIO);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(stages, a_newcomer_that_ends_in_the_middle_holds_nobody_up)
{
    EXPECT_EQ(0, job_run(job_token(job_new(TRIO)), TRIO + 1, 40, stages_role));
}

/* It has the token and says nothing more: others join beside it, and it is dropped at last. */
DT_TEST_RANK(silent_role)
{
    job     *j = (job *)arg;
    dt_comm *c = NULL;
    if (rank == 0) {
        j->join_timeout = 1;
        ASSERT_EQ(0, host(j, &c));
        EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, 1, NULL));
        EXPECT_TRUE(team_event(c, DT_MEMBER_LEFT, 1, NULL));
        flag_wait(j, F_END, 1);
        EXPECT_EQ(2, dt_comm_size(c));
        EXPECT_EQ(0, dt_comm_free(c));
        return;
    }
    fake    f;
    char    byte;
    int64_t begin;
    memset(&f, 0, sizeof f);
    flag_wait(j, F_LISTENS, 1);
    begin = dt_test_ns();
    ASSERT_EQ(0, fake_dial(j, &f));
    c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
    EXPECT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    EXPECT_EQ(0, dt_comm_free(c));
    EXPECT_TRUE(dt__wait_fd(f.fd, POLLIN, begin + (int64_t)(10e9 * dt_test_slow())) && recv(f.fd, &byte, 1, 0) <= 0);
    EXPECT_GT(seconds(begin), 0.9);
    close(f.fd);
    flag_set(j, F_END);
}
UTEST(stages, a_newcomer_that_says_nothing_is_dropped)
{
    job *j = job_token(job_new(1));
    close(j->listen_fd);
    j->listen_fd = -1;
    EXPECT_EQ(0, job_run(j, 2, 40, silent_role));
}

/* ==================================================================================================== >>heard
   Rank 0 accepts a newcomer and dies before the others have heard of it: j->victim is a bit for each of those that have not. */
static void silence(job *j, dt_comm *c) /* what rank 0 says to them goes nowhere; the connections stay open until it dies */
{
    dt__world *w = c->world;
    int        pair[2];
    pthread_mutex_lock(&w->lock);
    for (dt__conn *k = w->control->conns; k; k = k->next)
        if (dt__conn_in_tree(k) && (j->victim >> k->peer & 1))
            if (dup(k->fd) < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) || dup2(pair[0], k->fd) < 0)
                abort();
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}
static bool sums(dt_comm *c, int n) /* a communicator of those that are left adds numbers */
{
    dt_comm *now = NULL;
    int      sum = 1;
    bool     ok = !dt_comm_shrink(c, &now) && dt_comm_size(now) == n;
    ok = ok && !dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) && sum == n;
    if (!ok) printf("    rank %d: %s\n", dt_comm_rank(c), dt_comm_error(NULL) ? dt_comm_error(NULL) : "wrong sum");
    dt_comm_free(now);
    return ok;
}
DT_TEST_RANK(unheard_role)
{
    job          *j = (job *)arg;
    dt_comm_event e;
    dt_comm      *c = NULL;
    bool          none = j->victim == 6;
    int           x = 0, seen = 0, rc;
    if (rank == TRIO) {
        flag_wait(j, F_READY, 1);
        c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        EXPECT_EQ(TRIO, dt_comm_rank(c));
        flag_set(j, F_IN);
    } else {
        c = trio_member(j, rank, 8);
        ASSERT_TRUE(c != NULL);
        EXPECT_TRUE(ring(c, rank, TRIO));
        flag_set(j, F_OUT);
    }
    if (rank == 0) {
        flag_wait(j, F_OUT, TRIO);
        silence(j, c);
        flag_set(j, F_READY);
        flag_wait(j, F_IN, none ? 1 : 2); /* whoever hears of it has heard it */
        _exit(0);
    }
    int64_t begin = dt_test_ns();
    if (none && rank == TRIO) { /* nobody knows it: its communicator fails */
        EXPECT_EQ(DT_COMM_ERR_PEER, dt_comm_recv(c, &x, 1, DT_COMM_I32, 1, .timeout = DT_FOREVER));
        while ((rc = dt_comm_next_event(c, &e, .timeout = 20 * dt_test_slow())) == 1)
            EXPECT_TRUE(e.kind == DT_MEMBER_DIED && e.rank == 0);
        EXPECT_EQ(DT_COMM_ERR_PEER, rc);
        EXPECT_TRUE_MSG(strstr(dt_comm_error(c), "join again") != NULL, dt_comm_error(c));
        dt_comm *now = NULL;
        EXPECT_TRUE(dt_comm_shrink(c, &now) != 0 && !now);
        EXPECT_LT(seconds(begin), 10 * dt_test_slow());
        flag_set(j, F_END);
        dt_comm_free(c);
        return;
    }
    for (int want = none || rank == TRIO ? 1 : 3; seen < want;) { /* a bit: rank 0 has died; it has joined */
        ASSERT_EQ(1, dt_comm_next_event(c, &e, .timeout = 20 * dt_test_slow()));
        EXPECT_TRUE((e.kind == DT_MEMBER_DIED && e.rank == 0) || (e.kind == DT_MEMBER_JOINED && e.rank == TRIO));
        if (e.kind == DT_MEMBER_JOINED) flag_set(j, F_IN);
        seen |= e.kind == DT_MEMBER_DIED ? 1 : 2;
    }
    EXPECT_EQ(none || rank == TRIO ? 1 : 3, seen);
    EXPECT_LT(seconds(begin), 10 * dt_test_slow());
    for (int i = 1; i < (none ? 3 : 4); i++)
        if (i != rank) EXPECT_TRUE(team_exchange(c, rank, i, 5000));
    EXPECT_TRUE(sums(c, none ? 2 : 3));
    flag_set(j, F_END);
    flag_wait(j, F_END, 3);
    EXPECT_EQ(0, dt_comm_next_event(c, &e));
    flag_set(j, F_READY);
    flag_wait(j, F_READY, none ? 3 : 4);
    EXPECT_EQ(0, dt_comm_free(c));
}
static job *unheard(int by) /* newcomers are refused for good a second after the death of rank 0 */
{
    job *j = job_token(job_new(TRIO));
    j->victim = by;
    j->timeout = 10 * dt_test_slow();
    return j;
}
UTEST(heard, by_nobody_before_rank_0_died) { EXPECT_EQ(0, job_run(unheard(6), TRIO + 1, 40, unheard_role)); }
UTEST(heard, by_some_before_rank_0_died)
{
    for (int i = 1; i < 3; i++) EXPECT_EQ(0, job_run(unheard(1 << i), TRIO + 1, 40, unheard_role));
}
/* Rank 2 has heard of it, and is stopped for so long that rank 1 refuses the newcomer for good: it has died for both. */
DT_TEST_RANK(late_news_role)
{
    job          *j = (job *)arg;
    dt_comm_event e;
    dt_comm      *c = NULL;
    if (rank == TRIO) {
        flag_wait(j, F_READY, 1);
        c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        while (dt_comm_next_event(c, &e, .timeout = 20 * dt_test_slow()) == 1) {}
        EXPECT_TRUE_MSG(dt_comm_error(c) && strstr(dt_comm_error(c), "join again"), dt_comm_error(c));
        kill(j->pid, SIGCONT);
        flag_wait(j, F_END, 2);
        dt_comm_free(c);
        return;
    }
    c = trio_member(j, rank, 8);
    ASSERT_TRUE(c != NULL);
    EXPECT_TRUE(ring(c, rank, TRIO));
    flag_set(j, F_OUT);
    if (rank == 0) {
        flag_wait(j, F_OUT, TRIO);
        silence(j, c);
        flag_set(j, F_READY);
        while (!dt_test_is_stopped(__atomic_load_n(&j->pid, __ATOMIC_SEQ_CST))) poll(NULL, 0, 1);
        _exit(0);
    }
    if (rank == 2) {
        EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, TRIO, NULL));
        __atomic_store_n(&j->pid, (int)getpid(), __ATOMIC_SEQ_CST);
        raise(SIGSTOP);
    }
    EXPECT_TRUE(team_event(c, DT_MEMBER_DIED, 0, NULL));
    if (rank == 1) EXPECT_TRUE(team_event(c, DT_MEMBER_JOINED, TRIO, NULL));
    EXPECT_TRUE(team_event(c, DT_MEMBER_DIED, TRIO, &e));
    EXPECT_TRUE_MSG(strstr(e.why, "refused by rank 1") != NULL, e.why);
    EXPECT_TRUE(team_exchange(c, rank, 3 - rank, 5000));
    EXPECT_TRUE(sums(c, 2));
    flag_set(j, F_END);
    flag_wait(j, F_END, 2);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(heard, too_late_by_others) { EXPECT_EQ(0, job_run(unheard(2), TRIO + 1, 40, late_news_role)); }

/* ==================================================================================================== >>shrinks
   dt_comm_shrink of some members runs when a newcomer joins and calls it, too. */
static dt_comm *shrink_newcomer(job *j)
{
    dt_comm *c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout);
    if (!c) printf("    %s\n", dt_comm_error(NULL));
    return c;
}
static void agreement_runs(dt_comm *c, int round, int from) /* until this rank has heard of it */
{
    for (bool found = false; !found; poll(NULL, 0, 1)) {
        pthread_mutex_lock(&c->world->lock);
        for (int i = 0; i < DT__AGREEMENTS; i++) {
            const dt__agreement *e = &c->world->control->agreement[i];
            found = found || (e->comm == c->id && e->round == round && e->came && dt__bit(e->came, from));
        }
        pthread_mutex_unlock(&c->world->lock);
    }
}
static void *shrink_thread(void *arg)
{
    job     *j = ((job **)arg)[0];
    dt_comm *c = ((dt_comm **)arg)[1];
    agreement_runs(c, 0, 1);
    flag_set(j, F_READY); /* now it comes */
    return NULL;
}
DT_TEST_RANK(shrink_role)
{
    job      *j = (job *)arg;
    dt_comm  *c = NULL;
    void     *both[2];
    pthread_t thread;
    if (rank == TRIO) {
        flag_wait(j, F_READY, 1);
        ASSERT_TRUE((c = shrink_newcomer(j)) != NULL);
        flag_set(j, F_IN);
    } else {
        ASSERT_TRUE((c = trio_member(j, rank, 8)) != NULL);
        EXPECT_TRUE(ring(c, rank, TRIO));
        flag_set(j, F_OUT);
        flag_wait(j, F_OUT, TRIO);
        both[0] = j;
        both[1] = c;
        if (rank == 0) ASSERT_EQ(0, pthread_create(&thread, NULL, shrink_thread, both));
        if (rank == 2) flag_wait(j, F_IN, 1); /* ranks 0 and 1 are in it, the newcomer has joined */
    }
    EXPECT_TRUE(sums(c, TRIO + 1));
    if (rank == 0) pthread_join(thread, NULL);
    EXPECT_TRUE(sums(c, TRIO + 1)); /* all have the same number for the next one */
    flag_set(j, F_END);
    flag_wait(j, F_END, TRIO + 1);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(shrinks, a_newcomer_takes_part_in_one_that_runs)
{
    for (int i = 0; i < (dt_test_quick() ? 2 : 10); i++) {
        job    *j = job_token(job_new(TRIO));
        int64_t begin = dt_test_ns();
        EXPECT_EQ(0, job_run(j, TRIO + 1, 40, shrink_role));
        EXPECT_LT(seconds(begin), 10 * dt_test_slow()); /* nobody waited for the timeout */
    }
}

/* The members have agreed on who is left and make their communicator: a newcomer that calls now is too late, does not disturb
   them, and takes part in the next one. */
DT_TEST_RANK(second_step_role)
{
    job     *j = (job *)arg;
    dt_comm *c = NULL, *now = NULL;
    if (rank == TRIO) {
        flag_wait(j, F_READY, TRIO);
        ASSERT_TRUE((c = shrink_newcomer(j)) != NULL);
        EXPECT_EQ(1, c->round);
        if (j->victim) flag_set(j, F_IN);
        EXPECT_TRUE(dt_comm_shrink(c, &now) == DT_COMM_ERR_TIMEOUT && !now && strstr(dt_comm_error(NULL), "too late"));
        flag_set(j, F_OUT);
    } else {
        ASSERT_TRUE((c = trio_member(j, rank, 8)) != NULL);
        EXPECT_TRUE(ring(c, rank, TRIO));
        uint8_t set[1] = { 0xff };
        bool    all = false;
        /* the first step of dt_comm_shrink */
        EXPECT_EQ(0, dt__world_agree(c->world, c->id, c->round++, c->timeout, set, 0, 0, &all));
        EXPECT_EQ(7, set[0]);
        flag_set(j, F_READY);
        if (rank == 0 && !j->victim) agreement_runs(c, 1, TRIO); /* its call has come before the second step */
        if (rank == 0 && !j->victim) flag_set(j, F_IN);
        flag_wait(j, F_IN, 1);
        EXPECT_EQ_MSG(0, dt__world_agree(c->world, c->id, c->round++, c->timeout, set, 99, TRIO, &all), dt_comm_error(NULL));
        EXPECT_EQ(7, set[0]);
        EXPECT_TRUE(all);
        flag_wait(j, F_OUT, 1);
    }
    EXPECT_TRUE(sums(c, TRIO + 1));
    flag_set(j, F_END);
    flag_wait(j, F_END, TRIO + 1);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(shrinks, a_newcomer_that_is_too_late_disturbs_nobody)
{
    for (int i = 0; i < 2; i++) {
        job *j = job_token(job_new(TRIO));
        j->victim = i;
        EXPECT_EQ(0, job_run(j, TRIO + 1, 40, second_step_role));
    }
}

/* A group that began with one rank: its members share memory after dt_comm_shrink, as any others of one machine. */
DT_TEST_RANK(from_one_role)
{
    job     *j = (job *)arg;
    dt_comm *c = NULL, *now = NULL;
    int      sum = 1;
    if (rank == 0) {
        ASSERT_EQ(0, host(j, &c));
        EXPECT_TRUE(sums(c, 1));
        flag_set(j, F_READY);
        flag_wait(j, F_IN, 2);
    } else {
        flag_wait(j, F_READY, 1);
        ASSERT_TRUE((c = shrink_newcomer(j)) != NULL);
        flag_set(j, F_IN);
        flag_wait(j, F_IN, 2); /* both have joined */
    }
    ASSERT_TRUE_MSG(!dt_comm_shrink(c, &now), dt_comm_error(NULL));
    EXPECT_EQ(TRIO, dt_comm_size(now));
    EXPECT_TRUE(now->shared != NULL);
    EXPECT_TRUE(!dt_comm_allreduce(now, &sum, 1, DT_COMM_I32, DT_COMM_SUM) && sum == TRIO);
    flag_set(j, F_END);
    flag_wait(j, F_END, TRIO);
    EXPECT_EQ(0, dt_comm_free(now));
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(shrinks, a_group_that_began_with_one)
{
    job *j = job_token(job_new(1));
    close(j->listen_fd);
    j->listen_fd = -1;
    EXPECT_EQ(0, job_run(j, TRIO, 40, from_one_role));
}

/* All members make a new communicator again and again, while newcomers come at any moment and take part from then on. A
   newcomer may be too late for one; a member never fails. */
DT_TEST_RANK(again_role)
{
    job     *j = (job *)arg;
    dt_comm *c = NULL, *now = NULL;
    int      late = 0, end = 0, rounds = 0;
    if (rank >= TRIO) {
        flag_wait(j, F_READY, 1 + 4 * (rank - TRIO)); /* any moment of a later round */
        usleep((useconds_t)(j->victim * 137 % 1000));
        ASSERT_TRUE((c = shrink_newcomer(j)) != NULL);
        flag_set(j, F_IN);
    } else ASSERT_TRUE((c = trio_member(j, rank, 8)) != NULL);
    for (; !end; rounds++) {
        int rc = dt_comm_shrink(c, &now), all[2];
        if (rc && rank >= TRIO && rounds == late && strstr(dt_comm_error(NULL), "too late") && ++late < 20) continue;
        ASSERT_TRUE_MSG(!rc, dt_comm_error(NULL));
        if (rank == 0) flag_set(j, F_READY);
        all[0] = flag_get(j, F_IN) == 3;
        all[1] = 1;
        ASSERT_EQ(0, dt_comm_allreduce(now, all, 2, DT_COMM_I32, DT_COMM_SUM));
        EXPECT_EQ(dt_comm_size(now), all[1]);
        end = all[0] == TRIO + 3; /* all are here, and all know it */
        EXPECT_EQ(0, dt_comm_free(now));
    }
    EXPECT_EQ(0, dt_comm_get_status(c));
    if (rank == 0 && !dt_test_quick()) printf("    %d rounds\n", rounds);
    flag_set(j, F_END);
    flag_wait(j, F_END, TRIO + 3);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(shrinks, again_and_again_while_others_join)
{
    for (int i = 0; i < (dt_test_quick() ? 3 : 30); i++) {
        job *j = job_token(job_new(TRIO));
        j->victim = i;
        int64_t begin = dt_test_ns();
        EXPECT_EQ(0, job_run(j, TRIO + 3, 40, again_role));
        EXPECT_LT(seconds(begin), 10 * dt_test_slow());
    }
}

/* ==================================================================================================== >>unread
   Members come and go, and nobody reads the events: memory and descriptors of rank 0 do not grow, nobody waits for it, and a
   late reader gets each event once, in order. */
static long rss_kib(void)
{
    long  pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}
static bool instrumented(void) /* memory is the instrument's, too */
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    const char *preload = getenv("LD_PRELOAD");
    return preload && strstr(preload, "vgpreload");
#endif
}
static bool unread_dies(int i) { return i % 3 == 1; }
enum { SENDER = 60 }; /* one of so many */
/* it waits up to 0.25 s for rank 0 to read that, which it does not */
static bool unread_sends(int i) { return i % SENDER == 2; }
static int come_and_go(job *j, int i)
{
    if (unread_dies(i)) {
        fake *f = (fake *)calloc(1, sizeof *f);
        int   bad = fake_join(j, f);
        if (!bad) fake_free(f);
        free(f);
        return bad;
    }
    dt_comm *c = dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .timeout = j->timeout,
                              .no_thread = true);
    if (!c) return printf("    %d: %s\n", i, dt_comm_error(NULL));
    int bad = unread_sends(i) && dt_comm_send(c, &i, 1, DT_COMM_I32, 0, .tag = 5);
    return dt_comm_free(c) || bad;
}
DT_TEST_RANK(unread_role)
{
    job *j = (job *)arg;
    int  n = dt_test_quick() ? 150 : 3000, warm = SENDER;
    if (rank == 1) {
        flag_wait(j, F_LISTENS, 1);
        for (int i = 1; i <= n; i++) {
            ASSERT_EQ(0, come_and_go(j, i));
            if (i == warm) flag_set(j, F_IN), flag_wait(j, F_OUT, 1);
        }
        flag_set(j, F_END);
        return;
    }
    dt_comm *c = dt_comm_init(.world = 1, .token_file = j->token_file, .tolerant = true, .room = n + 1, .timeout = j->timeout,
                              .no_thread = true);
    ASSERT_TRUE_MSG(c && !dt_comm_accept(c, .port = j->port), dt_comm_error(NULL));
    flag_set(j, F_LISTENS);
    flag_wait(j, F_IN, 1); /* the program does something else all the time */
    int  fds = count_in("/proc/self/fd");
    long rss = rss_kib();
    flag_set(j, F_OUT);
    int64_t begin = dt_test_ns();
    flag_wait(j, F_END, 1);
    long more = rss_kib() - rss;
    int  sockets = count_in("/proc/self/fd") - fds;
    printf("    %d members came and went in %.2f s; %ld KiB, %d descriptors more\n", n, seconds(begin), more, sockets);
    EXPECT_LE(sockets, n / SENDER); /* only those with messages that nobody has received */
    /* the table of members, when it is first used */
    if (!instrumented()) EXPECT_LT(more, 3 * (long)(n * sizeof(dt_comm_event) / 1024) + 2048);
    struct pollfd p = { dt_comm_event_fd(c), POLLIN, 0 };
    dt_comm_event e;
    int           joined = 0, went = 0, wrong = 0, got;
    uint8_t      *state = (uint8_t *)calloc((size_t)n + 1, 1);
    EXPECT_EQ(1, poll(&p, 1, 0));
    while (went < n && dt_comm_next_event(c, &e, .timeout = 5 * dt_test_slow()) == 1) { /* the last one may still be leaving */
        if (e.rank < 1 || e.rank > n) wrong++;
        else if (e.kind == DT_MEMBER_JOINED) wrong += e.rank != ++joined || state[e.rank], state[e.rank] = 1;
        else {
            wrong += state[e.rank] != 1 || e.kind != (unread_dies(e.rank) ? DT_MEMBER_DIED : DT_MEMBER_LEFT) || !e.why[0];
            state[e.rank] = 2;
            went++;
        }
    }
    EXPECT_EQ(0, wrong);
    EXPECT_EQ(n, joined);
    EXPECT_EQ(n, went);
    EXPECT_EQ(0, dt_comm_next_event(c, &e));
    EXPECT_EQ(0, poll(&p, 1, 0));
    for (int i = 1; i <= n && !wrong; i++) /* what they sent is there all the same */
        if (unread_sends(i)) wrong += dt_comm_recv(c, &got, 1, DT_COMM_I32, i, .tag = 5) != 0 || got != i;
    EXPECT_EQ(0, wrong);
    /* messages move in dt_comm_next_event */
    for (begin = dt_test_ns(); count_in("/proc/self/fd") > fds - 1 && seconds(begin) < 5 * dt_test_slow();)
        EXPECT_EQ(0, dt_comm_next_event(c, &e, .timeout = 0.05));
    EXPECT_LE(count_in("/proc/self/fd"), fds - 1); /* also those of the first ones are closed */
    free(state);
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(unread, events_of_thousands_of_members)
{
    job *j = job_token(job_new(1));
    close(j->listen_fd);
    j->listen_fd = -1;
    EXPECT_EQ(0, job_run(j, 2, 50, unread_role));
}
