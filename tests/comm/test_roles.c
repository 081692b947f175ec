/* test_roles.c: DMLC_ROLE and the variables beside it (ps-lite, MXNet): the scheduler gives the ranks their numbers
   run: alone, asan-later */
#define DT_IMPLEMENTATION
#include "ranks.h"
#include "tools/launchers.h"

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int relay_from = 512; /* ranks */
#define DT__RELAY_FROM relay_from
#include "dt_comm.h"

UTEST_MAIN()

/* ==================================================================================================== >>shared */
enum { MOST = 40, FLAGS = 4 };
typedef struct scene { /* seen by all processes of a test */
    int         workers, servers; /* DMLC_NUM_WORKER, DMLC_NUM_SERVER */
    int         port, listen_fd;
    char        token[2][64];     /* files; the second has another token */
    double      join_timeout;
    int         there;            /* atomic: processes that have registered, the scheduler included */
    int         flag[FLAGS];      /* atomic */
    int         turn[MOST];       /* process i is the one that comes as number turn[i], from 0 */
    const char *transport;
    bool        tolerant;
} scene;

static scene *scene_new(int workers, int servers)
{
    scene   *s = (scene *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    dt__addr a;
    memset(s, 0, sizeof *s);
    dt__addr_loopback(&a, 0);
    s->workers = workers;
    s->servers = servers;
    s->listen_fd = dt__listen(&a);
    getsockname(s->listen_fd, &a.u.any, &a.n);
    s->port = dt__addr_port(&a);
    s->join_timeout = 20;
    s->there = 1;
    for (int i = 0; i < MOST; i++) s->turn[i] = i;
    for (int i = 0; i < 2; i++) {
        uint8_t token[32];
        snprintf(s->token[i], sizeof s->token[i], "/tmp/dt_roles_XXXXXX");
        int fd = mkstemp(s->token[i]);
        if (!dt__comm_random(token, 32) || write(fd, token, 32) != 32) abort();
        close(fd);
    }
    return s;
}
static int scene_run(scene *s, int processes, int (*fn)(int rank, void *arg)) /* 0: all is well; s is gone */
{
    int failed = dt_test_ranks(processes, 40, fn, s);
    if (s->listen_fd >= 0) close(s->listen_fd);
    for (int i = 0; i < 2; i++) unlink(s->token[i]);
    munmap(s, sizeof *s);
    return failed;
}
static void flag_set(scene *s, int i) { __atomic_add_fetch(&s->flag[i], 1, __ATOMIC_SEQ_CST); }
static void flag_wait(scene *s, int i, int n)
{
    while (__atomic_load_n(&s->flag[i], __ATOMIC_SEQ_CST) < n) poll(NULL, 0, 1);
}
static void there_wait(scene *s, int n)
{
    while (__atomic_load_n(&s->there, __ATOMIC_SEQ_CST) < n) poll(NULL, 0, 1);
}
static void there_take(void *user, int level, const char *text) /* the log of the scheduler */
{
    scene      *s = (scene *)user;
    int         n;
    const char *is = strstr(text, ") is there, ");
    if (level == 4 && is && sscanf(is, ") is there, %d", &n) == 1) __atomic_store_n(&s->there, n, __ATOMIC_SEQ_CST);
}
static void quiet(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
static void number_env(const char *name, int v)
{
    char text[16];
    snprintf(text, sizeof text, "%d", v);
    setenv(name, text, 1);
}
static void dmlc_env(scene *s, const char *role)
{
    launchers_forget();
    setenv("DMLC_ROLE", role, 1);
    number_env("DMLC_NUM_WORKER", s->workers);
    number_env("DMLC_NUM_SERVER", s->servers);
    setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
    number_env("DMLC_PS_ROOT_PORT", s->port);
    if (s->token[0][0]) setenv("DT_TOKEN_FILE", s->token[0], 1);
    dt_set_log(quiet, NULL);
    if (strcmp(role, "scheduler")) return;
    if (s->listen_fd >= 0) number_env("DT_LISTEN_FD", s->listen_fd);
    dt_set_log(there_take, s);
}
static dt_comm *enter(scene *s, const char *role)
{
    dmlc_env(s, role);
    return dt_comm_init(.transport = s->transport, .tolerant = s->tolerant, .join_timeout = s->join_timeout * dt_test_slow(),
                        .timeout = 20 * dt_test_slow());
}
/* It must fail with this in its message, within so many seconds. */
static bool refused(scene *s, const char *role, const char *why, double most)
{
    int64_t  begin = dt_test_ns();
    dt_comm *c = enter(s, role);
    double   took = (double)(dt_test_ns() - begin) * 1e-9;
    if (!c && strstr(dt_comm_error(NULL), why) && took < most * dt_test_slow()) return true;
    printf("   %s after %.1f s: %s\n", role, took, c ? "joined" : dt_comm_error(NULL));
    return false;
}
static const char *role_of(const scene *s, int process) /* process 0 is the scheduler, then workers, then servers */
{
    return process == 0 ? "scheduler" : process <= s->workers ? "worker" : "server";
}
/* In the world: every rank has the role of its number, and messages arrive. */
DT_TEST_RANK(world_is_right)
{
    dt_comm *c = (dt_comm *)arg;
    char     mine[16] = "", all[MOST][16];
    int      n = dt_comm_size(c), workers = atoi(getenv("DMLC_NUM_WORKER"));
    snprintf(mine, sizeof mine, "%s", getenv("DMLC_ROLE"));
    ASSERT_EQ(n, workers + atoi(getenv("DMLC_NUM_SERVER")) + 1);
    ASSERT_EQ_MSG(0, dt_comm_allgather(c, mine, all, 16, NULL, DT_COMM_U8), dt_comm_error(NULL));
    for (int r = 0; r < n; r++) EXPECT_STREQ(r == 0 ? "scheduler" : r <= workers ? "worker" : "server", all[r]);
    EXPECT_STREQ(mine, all[dt_comm_rank(c)]);
    EXPECT_STREQ("DMLC_ROLE", dt_comm_launcher(c));
    EXPECT_EQ(n, dt_comm_local_size(c));
}

/* ==================================================================================================== >>numbers */
DT_TEST_RANK(arrives)
{
    scene *s = (scene *)arg;
    int    turn = s->turn[rank], ahead = 0;
    for (int i = 0; i < rank; i++) ahead += !strcmp(role_of(s, i), role_of(s, rank)) && s->turn[i] < turn;
    for (int i = rank + 1; i < MOST; i++) ahead += !strcmp(role_of(s, i), role_of(s, rank)) && s->turn[i] < turn;
    if (turn > s->turn[0]) there_wait(s, turn); /* those before it are registered */
    dt_comm *c = enter(s, role_of(s, rank));
    ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    EXPECT_EQ(0, world_is_right(dt_comm_rank(c), c));
    int first = rank == 0 ? 0 : rank <= s->workers ? 1 : 1 + s->workers;
    if (s->turn[0] == 0) EXPECT_EQ(first + ahead, dt_comm_rank(c)); /* in the order in which they came */
    flag_set(s, 0);
    flag_wait(s, 0, dt_comm_size(c)); /* a member that leaves a tolerant communicator ends what the others are doing */
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(numbers, in_every_order_of_arrival)
{
    for (int order = 0; order < 24; order++) { /* of a scheduler, two workers and a server */
        scene *s = scene_new(2, 1);
        int    left[4] = { 0, 1, 2, 3 }, code = order;
        for (int i = 0, n = 4; i < 4; i++, n--) {
            int k = code % n;
            code /= n;
            s->turn[i] = left[k];
            left[k] = left[n - 1];
        }
        EXPECT_EQ(0, scene_run(s, 4, arrives));
    }
}
UTEST(numbers, every_transport_tolerant_and_without_servers)
{
    static const char *const transport[] = { "auto", "shm", "tcp" };
    for (int i = 0; i < 6; i++) {
        scene *s = scene_new(3, i % 2 ? 2 : 0);
        s->transport = transport[i % 3];
        s->tolerant = i >= 3;
        EXPECT_EQ(0, scene_run(s, s->workers + s->servers + 1, arrives));
    }
}
UTEST(numbers, without_a_token_on_one_machine) /* the ticket at the Unix socket */
{
    scene *s = scene_new(1, 1);
    for (int i = 0; i < 2; i++) unlink(s->token[i]), s->token[i][0] = 0;
    EXPECT_EQ(0, scene_run(s, 3, arrives));
}
DT_TEST_RANK(many)
{
    scene   *s = (scene *)arg;
    dt_comm *c = enter(s, role_of(s, rank));
    ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    if (rank == 0) EXPECT_GT(c->world->control->ndirect, 0); /* relays */
    EXPECT_EQ(0, world_is_right(rank, c));
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(numbers, ranks_that_wait_at_relays)
{
    scene *s = scene_new(22, 9);
    relay_from = 30;
    EXPECT_EQ(0, scene_run(s, 32, many));
    relay_from = 512;
}
/* Somebody with the token, by hand. Returns the connection and *rank, the number that it got; or negative and text. */
static int dial(scene *s, int *rank, uint64_t roles, char *text, size_t nbytes)
{
    dt__world w;
    dt__addr  a;
    memset(&w, 0, sizeof w);
    w.rank = *rank;
    w.size = w.start = w.room = s->workers + s->servers + 1;
    dt__token_read_file(s->token[0], "", w.token);
    dt__addr_loopback(&a, s->port);
    int fd = dt__dial_until(&w, &a, 1, 0, DT__KIND_REGISTER, roles, 0, dt__comm_now() + 10 * DT__NS_PER_S, NULL, text, nbytes);
    *rank = w.rank;
    return fd;
}
static bool dial_refused(scene *s, int rank, uint64_t roles, const char *why)
{
    char text[400] = "";
    int  fd = dial(s, &rank, roles, text, sizeof text);
    if (fd < 0 && strstr(text, why)) return true;
    printf("   %s\n", fd < 0 ? text : "accepted");
    return false;
}
DT_TEST_RANK(goes_again)
{
    scene *s = (scene *)arg;
    char   text[400];
    if (rank == 3) { /* a worker that goes before it sends its row */
        int number[3] = { DT__RANK_WORKER, DT__RANK_WORKER, DT__RANK_SERVER }, fd[3];
        for (int i = 0; i < 3; i++) {
            fd[i] = dial(s, &number[i], (uint64_t)2 << 32 | 1, text, sizeof text);
            ASSERT_GE_MSG(fd[i], 0, text);
            EXPECT_EQ(1 + i, number[i]);
        }
        EXPECT_TRUE(dial_refused(s, DT__RANK_WORKER, (uint64_t)2 << 32 | 1, "a worker comes too late: there are 2 already"));
        EXPECT_TRUE(dial_refused(s, DT__RANK_SERVER - 1, (uint64_t)2 << 32 | 1, "out of range"));
        EXPECT_TRUE(dial_refused(s, 1, (uint64_t)2 << 32 | 1, "there is a rank 1 already"));
        EXPECT_TRUE(dial_refused(s, DT__RANK_WORKER, 0, "came with its number"));
        for (int i = 0; i < 3; i++) close(fd[i]);
        flag_set(s, 0);
        return;
    }
    if (rank) flag_wait(s, 0, 1);
    dt_comm *c = NULL;
    for (int64_t until = dt_test_ns() + (int64_t)(10e9 * dt_test_slow()); !c && dt_test_ns() < until;) {
        c = enter(s, rank == 4 ? "server" : role_of(s, rank));
        /* the scheduler may not have seen yet that those connections are closed */
        if (!c && !strstr(dt_comm_error(NULL), "comes too late")) break;
    }
    ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    EXPECT_EQ(0, world_is_right(rank, c));
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(numbers, one_that_goes_before_it_is_registered_gives_its_number_back)
{
    EXPECT_EQ(0, scene_run(scene_new(2, 1), 5, goes_again));
}
/* A rank 0 that has the token and gives a number that a worker cannot have. */
DT_TEST_RANK(wrong_number)
{
    scene *s = (scene *)arg;
    if (rank == 1) {
        EXPECT_TRUE(refused(s, "worker", "rank 0 gave a worker the number", 10));
        return;
    }
    dt__world w;
    dt__shake h;
    memset(&w, 0, sizeof w);
    dt__token_read_file(s->token[0], "", w.token);
    dt__wait_fd(s->listen_fd, POLLIN, dt__comm_now() + 10 * DT__NS_PER_S);
    int fd = accept(s->listen_fd, NULL, NULL), got;
    ASSERT_GE(fd, 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    ASSERT_TRUE(dt__shake_server(&h, &w));
    h.number = s->turn[0];
    for (;;) {
        got = dt__shake_step(&h, fd);
        if (got == DT__SHAKE_DECIDE) dt__shake_reply(&h, 0, "");
        else if (got == DT__SHAKE_AGAIN) dt__wait_fd(fd, dt__shake_events(&h), dt__comm_now() + DT__NS_PER_S);
        else break;
    }
    EXPECT_EQ((int)DT__SHAKE_DONE, got);
    char end;
    dt__wait_fd(fd, POLLIN, dt__comm_now() + 10 * DT__NS_PER_S);
    EXPECT_EQ(0, (int)recv(fd, &end, 1, 0)); /* it hangs up */
    close(fd);
}
UTEST(numbers, a_number_that_cannot_be_is_refused)
{
    static const int number[] = { 0, 3, 4, -2, INT32_MAX, INT32_MIN };
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        scene *s = scene_new(2, 1);
        s->turn[0] = number[i];
        EXPECT_EQ(0, scene_run(s, 2, wrong_number));
    }
}

/* ==================================================================================================== >>mistakes */
DT_TEST_RANK(one_missing)
{
    scene      *s = (scene *)arg;
    const char *want = "missing: 1 of 2 workers (DMLC_NUM_WORKER) (3 of 4 are there)";
    if (s->workers == 3) want = "missing: 1 of 3 workers (DMLC_NUM_WORKER), 2 of 2 servers (DMLC_NUM_SERVER) (3 of 6";
    EXPECT_TRUE(refused(s, rank == 0 ? "scheduler" : rank == 1 || s->workers == 3 ? "worker" : "server", want, 6));
}
UTEST(mistakes, who_does_not_come_is_counted)
{
    for (int i = 0; i < 2; i++) {
        scene *s = scene_new(2 + i, 1 + i);
        s->join_timeout = 1;
        EXPECT_EQ(0, scene_run(s, 3, one_missing));
    }
}
DT_TEST_RANK(too_many)
{
    scene *s = (scene *)arg;
    if (rank == 3) {
        there_wait(s, 2); /* the worker is registered */
        EXPECT_TRUE(refused(s, "worker", "a worker comes too late: there are 1 already, as many as DMLC_NUM_WORKER says", 10));
        flag_set(s, 0);
        flag_wait(s, 1, 3);
        EXPECT_TRUE(refused(s, "worker", "as many as DMLC_NUM_WORKER says: the world is complete", 10));
        EXPECT_TRUE(refused(s, "server", "as many as DMLC_NUM_SERVER says: the world is complete", 10));
        flag_set(s, 2);
        return;
    }
    if (rank == 2) flag_wait(s, 0, 1);
    dt_comm *c = enter(s, role_of(s, rank));
    ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    flag_set(s, 1);
    flag_wait(s, 2, 1);
    EXPECT_EQ(0, world_is_right(rank, c));
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(mistakes, who_is_too_many_is_told_and_the_others_go_on) { EXPECT_EQ(0, scene_run(scene_new(1, 1), 4, too_many)); }
DT_TEST_RANK(other_numbers)
{
    scene *s = (scene *)arg;
    if (rank == 2) {
        scene other = *s;
        there_wait(s, 2);
        other.join_timeout = 20;
        other.workers = 3;
        EXPECT_TRUE(refused(&other, "worker", "a worker has DMLC_NUM_WORKER 3 and DMLC_NUM_SERVER 1, rank 0 has 2 and 1", 10));
        other.workers = 1;
        other.servers = 2; /* as many together */
        EXPECT_TRUE(refused(&other, "server", "a server has DMLC_NUM_WORKER 1 and DMLC_NUM_SERVER 2, rank 0 has 2 and 1", 10));
        return;
    }
    EXPECT_TRUE(refused(s, role_of(s, rank),
                        "missing: 1 of 2 workers (DMLC_NUM_WORKER), 1 of 1 servers (DMLC_NUM_SERVER) (2 of 4 are there); "
                        "refused: a server has DMLC_NUM_WORKER 1",
                        9));
}
UTEST(mistakes, numbers_that_differ_are_told_to_all)
{
    scene *s = scene_new(2, 1);
    s->join_timeout = 2;
    EXPECT_EQ(0, scene_run(s, 3, other_numbers));
}
DT_TEST_RANK(other_launcher)
{
    scene *s = (scene *)arg;
    if (rank == 0 && s->turn[0] == 0) {
        EXPECT_TRUE(refused(s, "scheduler",
                            "refused: rank 1 came with its number, but in this job the scheduler numbers the ranks", 9));
        return;
    }
    if (rank == 1 && s->turn[0] == 1) {
        EXPECT_TRUE(refused(s, "worker",
                            "a worker has DMLC_ROLE, but the ranks of this job have their numbers from RANK and", 9));
        return;
    }
    dmlc_env(s, rank ? "worker" : "scheduler"); /* RANK comes first */
    number_env("RANK", rank);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    number_env("MASTER_PORT", s->port);
    dt_comm    *c = dt_comm_init(.join_timeout = s->join_timeout * dt_test_slow());
    const char *want = rank ? "rank 1 came with its number" : "refused: a worker has DMLC_ROLE";
    EXPECT_TRUE_MSG(!c && strstr(dt_comm_error(NULL), want), dt_comm_error(NULL));
}
UTEST(mistakes, ranks_of_another_launcher)
{
    for (int i = 0; i < 2; i++) {
        scene *s = scene_new(1, 0);
        s->join_timeout = 2;
        s->turn[0] = i;
        EXPECT_EQ(0, scene_run(s, 2, other_launcher));
    }
}
DT_TEST_RANK(two_schedulers)
{
    scene *s = (scene *)arg;
    if (rank == 3) {
        there_wait(s, 2);
        EXPECT_TRUE(refused(s, "scheduler", "is there another scheduler (DMLC_ROLE), or another job at DMLC_PS_ROOT_PORT", 10));
        setenv("DMLC_PS_ROOT_URI", "192.0.2.1", 1); /* of no machine */
        dt_comm *c = dt_comm_init(.join_timeout = 10);
        EXPECT_TRUE_MSG(!c && strstr(dt_comm_error(NULL), "DMLC_PS_ROOT_URI must be an address of the scheduler's machine"),
                        dt_comm_error(NULL));
        flag_set(s, 0);
        return;
    }
    if (rank == 2) flag_wait(s, 0, 1);
    dt_comm *c = enter(s, role_of(s, rank));
    ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    EXPECT_EQ(0, world_is_right(rank, c));
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(mistakes, a_second_scheduler)
{
    scene *s = scene_new(1, 1);
    close(s->listen_fd); /* each binds it */
    s->listen_fd = -1;
    EXPECT_EQ(0, scene_run(s, 4, two_schedulers));
}
/* The scheduler hangs up on a server with the other token, and says nothing about numbers. */
static bool hears_nothing(scene *s)
{
    dt__world w;
    dt__shake h;
    dt__addr  a;
    char      byte;
    int64_t   until = dt__comm_now() + 10 * DT__NS_PER_S;
    memset(&w, 0, sizeof w);
    w.rank = DT__RANK_SERVER;
    w.size = w.start = w.room = s->workers + s->servers + 1;
    dt__token_read_file(s->token[0], "", w.token);
    dt__addr_loopback(&a, s->port);
    int fd = dt__connect(&a);
    if (fd < 0 || !dt__shake_client(&h, &w, 0, DT__KIND_REGISTER, (uint64_t)1 << 32 | 1, 0)) return false;
    while (h.state != DT__SHAKE_AT_R && dt__shake_step(&h, fd) == DT__SHAKE_AGAIN)
        dt__wait_fd(fd, dt__shake_events(&h), until);
    if (h.done) return printf("   it got %zu bytes of an answer\n", h.done), false;
    dt__wait_fd(fd, POLLIN, until);
    ssize_t n = recv(fd, &byte, 1, 0);
    return n == 0 || (n < 0 && errno != EAGAIN); /* the connection stays open on this side */
}
DT_TEST_RANK(strangers)
{
    scene *s = (scene *)arg;
    if (rank == 3 || rank == 4) { /* with another token, with none */
        scene other = *s;
        there_wait(s, 2);
        other.join_timeout = 1;
        snprintf(other.token[0], sizeof other.token[0], "%s", s->token[1]);
        if (rank == 3) {
            EXPECT_TRUE(refused(&other, "server", "probably it has another token", 6));
            EXPECT_TRUE(hears_nothing(&other));
        } else {
            dmlc_env(s, "server");
            unsetenv("DT_TOKEN_FILE");
            dt_comm *c = dt_comm_init(.join_timeout = 1 * dt_test_slow());
            EXPECT_TRUE_MSG(!c && strstr(dt_comm_error(NULL), "rank 0 did not come"), dt_comm_error(NULL));
        }
        flag_set(s, 0);
        return;
    }
    if (rank == 2) flag_wait(s, 0, 2); /* none of them got the number of the server */
    dt_comm *c = enter(s, role_of(s, rank));
    ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
    EXPECT_EQ(0, world_is_right(rank, c));
    EXPECT_EQ(0, dt_comm_free(c));
}
UTEST(mistakes, a_stranger_gets_no_number) { EXPECT_EQ(0, scene_run(scene_new(1, 1), 5, strangers)); }
DT_TEST_RANK(one_dies)
{
    scene *s = (scene *)arg;
    if (rank == 2) {
        there_wait(s, 2);
        dmlc_env(s, "server");
        int  number = DT__RANK_SERVER;
        char text[400];
        int  fd = dial(s, &number, (uint64_t)2 << 32 | 1, text, sizeof text);
        ASSERT_GE_MSG(fd, 0, text);
        dt__member m;
        memset(&m, 0, sizeof m);
        m.pid = 4711;
        EXPECT_EQ(3, number);
        EXPECT_EQ(1, dt__cframe_send(fd, DT__C_MEMBER, number, &m, sizeof m, dt__comm_now() + 5 * DT__NS_PER_S));
        there_wait(s, 3);
        return;
    }
    EXPECT_TRUE(refused(s, role_of(s, rank),
                        "rank 3 (, pid 4711) left while joining; missing: 1 of 2 workers (DMLC_NUM_WORKER), 1 of 1", 10));
}
UTEST(mistakes, one_that_dies_while_joining_is_named) { EXPECT_EQ(0, scene_run(scene_new(2, 1), 3, one_dies)); }
