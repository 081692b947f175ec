/* test_newcomers.c - members that join a group which is at work: strangers, slow networks, wrong tokens, other machines, deaths
   in the middle, members that break the protocol; and events that nobody reads. What follows a join in peace is in test_tolerant.c.
   Contents: >>flood >>tokens
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
enum { F_LISTENS, F_END, F_IN, F_OUT };
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
        c = dt_comm_join(.addr = "127.0.0.1", .port = j->proxy_port, .token_file = j->token_file, .timeout = j->timeout, .join_timeout = j->join_timeout);
        j->took[0] = dt_test_ns() - begin;
        ASSERT_TRUE_MSG(c != NULL, dt_comm_error(NULL));
        EXPECT_EQ(j->n, dt_comm_rank(c));
        for (int i = 0; i < j->n; i++) EXPECT_TRUE(team_exchange(c, j->n, i, 100000)); /* its sockets, too, are made in the flood */
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
    printf("    %d members, delay %.0f ms, %d descriptors: joined after %.2f s; %.0f connections/s of strangers\n", n, delay * 1e3, fds,
           (double)j->took[0] * 1e-9, (double)j->made / seconds(begin));
    EXPECT_LT((double)j->took[0] * 1e-9, (kind == SLOWLY && !fds ? 2 : 5) * dt_test_slow());
    job_free(j);
}
UTEST(flood, a_newcomer_joins_a_group_of_one) { joins_in_a_flood(utest_result, 1, FAST, MUCH, 0, 0); }
UTEST(flood, a_newcomer_joins_over_20_ms_of_delay)
{
    for (int i = 0; i < (dt_test_quick() ? 1 : 6); i++) joins_in_a_flood(utest_result, 1 + 2 * (i % 2 == 0), FAST, i > 2 ? MUCH : HELD, 0.02, i % 3 == 2 ? 80 : 0);
}
UTEST(flood, a_thousand_slow_strangers_and_20_ms_of_delay)
{
    for (int i = 0; i < (dt_test_quick() ? 1 : 4); i++) joins_in_a_flood(utest_result, 1 + 2 * (i % 2), SLOWLY, 0, 0.02, i == 3 ? 80 : 0);
}

/* ==================================================================================================== >>tokens
   Where and with which token: by options and by the environment. A token that cannot be read is an error at once, another one is
   refused at the end of .join_timeout; both say so. */
static int host(job *j, dt_comm **out) /* rank 0 of a group of one with the token of the job */
{
    dt_comm *c = dt_comm_init(.world = 1, .token_file = j->token_file, .tolerant = true, .room = 8, .timeout = j->timeout);
    if (!c) return printf("    %s\n", dt_comm_error(NULL));
    for (int i = 0; i < 2; i++) /* a wrong address leaves nothing behind */
        if (dt_comm_accept(c, .bind = "192.0.2.1", .port = j->port) != DT_COMM_ERR_JOIN || strncmp(dt_comm_error(NULL), "dt_comm_accept: ", 16))
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
    EXPECT_TRUE(!dt_comm_join(.addr = "127.0.0.1", .port = j->port, .token_file = j->token_file, .bind = "192.0.2.1") && said("192.0.2.1"));
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
