/* test_flood.c - connections without the token, as many as a process can make: ranks join and the control tree heals all
   the same, also over 20 ms of delay each way. Without DT_TEST_QUICK there are more rounds.
   Contents: >>pending >>joining >>healing
   run: alone, long, asan-later */
#define DT_IMPLEMENTATION
#include "harness.h"

#include "dt_comm.h"
#include "strangers.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

UTEST_MAIN()

/* ==================================================================================================== >>pending
   Which of the connections without the token is closed. */
UTEST(pending, the_address_with_the_most_connections_loses_one_of_them_at_random)
{
    enum { CROWD = 100, FEW = 20, DRAWS = 4000 };
    static dt__world w;
    dt__conn        *k[CROWD + FEW + 2];
    int              hits[CROWD + FEW + 2] = { 0 }, least = DRAWS, most = 0, wrong = 0;
    w.size = 2;
    w.ticket_fd = -1;
    ASSERT_EQ(dt__control_new(&w), 0);
    for (int i = 0; i < CROWD + FEW + 2; i++) {
        k[i] = dt__conn_new(&w, -1, 0, -1);
        k[i]->state = DT__CONN_HANDSHAKE;
        k[i]->shake.server = true;
        k[i]->source = (uint8_t)(i < CROWD ? 7 : 8);
    }
    k[CROWD + FEW]->source = 7; /* it has proved that it has the token */
    k[CROWD + FEW]->shake.state = DT__SHAKE_AT_R;
    k[CROWD + FEW + 1]->source = 7; /* dialed, not accepted */
    k[CROWD + FEW + 1]->shake.server = false;
    for (int i = 0; i < DRAWS; i++) {
        dt__conn *x = dt__pending_pick(&w, INT64_MAX);
        for (int m = 0; m < CROWD + FEW + 2; m++) hits[m] += k[m] == x;
    }
    for (int i = 0; i < CROWD; i++) {
        least = hits[i] < least ? hits[i] : least;
        most = hits[i] > most ? hits[i] : most;
    }
    for (int i = CROWD; i < CROWD + FEW + 2; i++) wrong += hits[i];
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(least, 10); /* 40 each, with a deviation of 6 */
    EXPECT_LT(most, 80);
    EXPECT_TRUE(dt__pending_pick(&w, k[0]->since) == NULL); /* all are too young */
    for (int i = 0; i < CROWD + FEW + 2; i++) k[i]->since = dt__comm_now() + DT__NS_PER_S;
    EXPECT_FALSE(dt__pending_drop(&w));
    k[1]->since = k[CROWD + 1]->since = 0; /* only these have had their time */
    EXPECT_TRUE(dt__pending_drop(&w) && dt__pending_drop(&w) && !dt__pending_drop(&w));
    EXPECT_TRUE(k[1]->state == DT__CONN_BROKEN && k[CROWD + 1]->state == DT__CONN_BROKEN);
    dt__control_free(&w);
}

/* ==================================================================================================== >>joining */
static int join_role(int rank, void *arg)
{
    job *j = (job *)arg;
    if (rank == j->n) return proxy(j, 1), 0;
    if (rank == j->n + 1) return j->strange > 0 ? 0 : (flood(j, j->port, 1), 0);
    if (rank && !(j->strange > 0)) flood_runs(j);
    struct rlimit few = { (rlim_t)j->fds, (rlim_t)j->fds };
    if (rank == 0 && j->fds && setrlimit(RLIMIT_NOFILE, &few)) return 1;
    dt_comm_opts o = job_opts(j, rank);
    int64_t      begin = dt_test_ns();
    dt__world   *w = dt__world_join(&o, &dt__comm_client);
    if (rank) j->took[rank] = dt_test_ns() - begin; /* rank 0 waits for the others */
    if (!w) printf("    rank %d after %.2f s: %s\n", rank, seconds(begin), dt__said.text);
    int rc = w ? dt__world_meet(w, 1, NULL, NULL) : 1;
    flag_set(j, 0);
    flag_wait(j, 0, j->n);
    if (w) dt__world_unref(w);
    flag_set(j, 2);
    if (rank == 0) flag_wait(j, 2, j->n), flag_set(j, 1);
    return rc != 0;
}
UTEST(joining, while_a_flood_lasts_and_with_20_ms_of_delay)
{
    for (int round = 0; round < (dt_test_quick() ? 2 : 10); round++) {
        job *j = job_proxy(job_token(job_new(4)));
        j->delay = round % 2 ? 0.02 : 0;
        if (round % 3 == 1) j->fds = 80;
        int64_t begin = dt_test_ns();
        EXPECT_EQ(dt_test_ranks(j->n + 2, 30, join_role, j), 0);
        double worst = job_worst(j);
        printf("    delay %.0f ms, %d descriptors: joined after %.2f s; %.0f connections/s of strangers\n", j->delay * 1e3, j->fds, worst,
               (double)j->made / seconds(begin));
        EXPECT_LT(worst, 5 * dt_test_slow());
        job_free(j);
    }
}
UTEST(joining, what_a_stranger_says_is_no_verdict)
{
    job *j = job_proxy(job_token(job_new(2)));
    j->strange = 2; /* another version, no answer, wrong proofs, another protocol; then rank 0 */
    EXPECT_EQ(dt_test_ranks(j->n + 2, 30, join_role, j), 0);
    EXPECT_GT((double)j->took[1] * 1e-9, 1.5);
    job_free(j);
}

/* ==================================================================================================== >>healing
   Rank 1 dies; the ranks below it dial rank 0, which is flooded. A communicator without rank 1 loses nobody. */
static int heal_role(int rank, void *arg)
{
    job *j = (job *)arg;
    if (rank == j->n) return proxy(j, 1), 0;
    if (rank == j->n + 1) return flag_wait(j, 3, j->n), flood(j, j->port, 1), 0;
    dt_comm_opts o = job_opts(j, rank);
    int          rest[JOB_RANKS], n = 0, bad = 0;
    dt_comm      c;
    o.port = j->port;
    dt__world *w = dt__world_join(&o, &dt__comm_client);
    if (!w) return printf("    rank %d: %s\n", rank, dt__said.text);
    for (int r = 0; r < j->n; r++)
        if (r != 1) rest[n++] = r;
    memset(&c, 0, sizeof c);
    c.world = w;
    c.id = 9;
    c.size = n;
    c.member = rest;
    c.failed_rank = c.wake_fd = -1;
    if (rank != 1) dt__world_add(w, &c);
    pthread_mutex_lock(&w->lock);
    dt__addr a;
    dt__addr_take(&a, w->member[0].addr, w->member[0].addr_len);
    dt__addr_set_port(&a, j->proxy_port);
    if (rank > DT__TREE) memcpy(w->member[0].addr, &a.u, a.n);
    pthread_mutex_unlock(&w->lock);
    flag_set(j, 3);
    flood_runs(j);
    if (rank == 1) _exit(0);
    int64_t begin = dt_test_ns();
    for (bool whole = false; !whole && seconds(begin) < 15 * dt_test_slow(); poll(NULL, 0, 1)) {
        pthread_mutex_lock(&w->lock);
        whole = w->control->gone[1] && (rank == 0 || w->control->parent);
        pthread_mutex_unlock(&w->lock);
    }
    j->took[rank] = dt_test_ns() - begin;
    flag_set(j, 0);
    flag_wait(j, 0, j->n - 1);
    pthread_mutex_lock(&w->lock); /* whoever is declared dead would be here now, or in the text of c */
    for (int r = 0; r < j->n; r++) bad += (w->control->gone[r] != 0) != (r == 1);
    bad += w->control->expelled;
    pthread_mutex_unlock(&w->lock);
    if (bad || !dt__comm_ok(&c)) bad = printf("    rank %d: %d wrong, status %d: %s\n", rank, bad, c.status, c.text);
    dt__world_remove(w, &c);
    flag_set(j, 4);
    flag_wait(j, 4, j->n - 1);
    if (rank == 0) flag_set(j, 1); /* the flood ends */
    dt__world_unref(w);
    return bad != 0;
}
UTEST(healing, while_a_flood_lasts_nobody_is_declared_dead)
{
    for (int round = 0; round < (dt_test_quick() ? 2 : 6); round++) {
        job *j = job_proxy(job_token(job_new(20)));
        j->delay = round % 2 ? 0 : 0.02;
        j->strange = round % 2 ? 2 : 0; /* longer than a handshake may last */
        EXPECT_EQ(dt_test_ranks(j->n + 2, 40, heal_role, j), 0);
        double worst = job_worst(j);
        printf("    delay %.0f ms: the tree was whole after %.2f s\n", j->delay * 1e3, worst);
        EXPECT_LT(worst, 10 * dt_test_slow());
        job_free(j);
    }
}
UTEST(healing, a_message_names_ranks_of_the_world)
{
    static dt__member m[4];
    dt__world         w;
    dt_comm           c;
    int               member[2] = { 1, 2 };
    char              text[200];
    memset(&w, 0, sizeof w);
    memset(&c, 0, sizeof c);
    w.member = m;
    snprintf(m[2].host_name, sizeof m[2].host_name, "b");
    m[2].pid = 7;
    c.world = &w;
    c.member = member;
    EXPECT_STREQ(dt__comm_who(&c, 1, true, text, sizeof text), "rank 2 (b, pid 7) [rank 1 of this communicator]");
    EXPECT_STREQ(dt__comm_who(&c, 0, false, text, sizeof text), "rank 1 [rank 0 of this communicator]");
    member[0] = 0;
    EXPECT_STREQ(dt__comm_who(&c, 0, true, text, sizeof text), "rank 0");
    c.member = NULL;
    EXPECT_STREQ(dt__comm_who(&c, 3, false, text, sizeof text), "rank 3");
}
