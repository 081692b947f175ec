/* test_sim_programs.c: programs of simulated ranks, which wait, make communicators and free them, each on a thread of its own */
#define DT__WANT_INSIDE
#include "dt_sim.h"
#include "harness.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

enum { RANKS = 5, ROUNDS = 6 };
typedef struct job {
    dt_sim *s;
    int     ended, alone, bad, freed, sum[RANKS], size[RANKS];
    int64_t first[RANKS]; /* packets that each has sent in the sums */
    double  when[RANKS];
} job;
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }

/* Sums until a rank dies; then the others make a communicator of themselves and go on, also with copies and halves of it. */
static void survive(dt_comm *c, void *user)
{
    job     *j = (job *)user;
    int      me = dt_comm_rank(c), x = 0, rc = 0;
    dt_comm *rest = NULL, *copy = NULL, *half = NULL;
    for (int i = 0; i < ROUNDS && !rc; i++) {
        x = 1;
        rc = dt_comm_allreduce(c, &x, 1, DT_COMM_I32, DT_COMM_SUM);
    }
    j->first[me] = dt_sim_sent(j->s, me);
    for (int tries = 0; tries < 5; tries++) { /* news of the death may come to some of them in the first try */
        rc = dt_comm_shrink(c, &rest);
        if (rc) break;
        x = 1;
        rc = dt_comm_allreduce(rest, &x, 1, DT_COMM_I32, DT_COMM_SUM);
        if (!rc) rc = dt_comm_dup(rest, &copy);
        if (!rc) rc = dt_comm_split(copy, dt_comm_rank(copy) % 2, 0, &half);
        if (!rc) {
            int y = 1, n = dt_comm_size(copy);
            rc = dt_comm_allreduce(half, &y, 1, DT_COMM_I32, DT_COMM_SUM);
            j->bad += !rc && y != n / 2 + (n % 2 && dt_comm_rank(copy) % 2 == 0);
        }
        if (!rc) rc = dt_comm_barrier(copy);
        j->size[me] = rc ? 0 : dt_comm_size(rest);
        dt_comm_free(half);
        dt_comm_free(copy);
        dt_comm_free(rest);
        half = copy = rest = NULL;
        if (!rc) break;
    }
    if (!dt_sim_dead(j->s, me)) {
        j->bad += rc != 0 || x != j->size[me];
        j->sum[me] = x;
    }
    j->ended++;
    j->when[me] = dt_sim_now(j->s);
}
static int survive_run(int victim, int64_t n, bool tolerant, int64_t *first, uint64_t *hash)
{
    job j;
    memset(&j, 0, sizeof j);
    j.s = dt_sim_new(.world = RANKS, .seed = (uint64_t)(10 + victim), .tolerant = tolerant, .timeout = 30);
    for (int i = 0; i < RANKS; i++) dt_sim_start(j.s, i, 0.001 * i, survive, &j);
    if (n) dt_sim_before(j.s, victim, n, NULL, NULL);
    int    running = dt_sim_run(j.s, 1000), bad = j.bad + (running != 0) + (j.ended != RANKS);
    double now = dt_sim_now(j.s);
    int    dead = dt_sim_dead(j.s, victim);
    bad += dead != (n > 0 && dt_sim_sent(j.s, victim) >= n);
    for (int i = 0; i < RANKS; i++) /* it may have died after the others had finished */
        if (i != victim || !dead) bad += j.size[i] != RANKS && j.size[i] != RANKS - dead;
    if (now > 15) bad++;
    if (bad)
        printf("    rank %d dies before packet %d, %s: %d running, %d of %d ended, now %g, sizes %d %d %d %d %d\n",
               victim, (int)n, tolerant ? "tolerant" : "", running, j.ended, RANKS, now, j.size[0], j.size[1],
               j.size[2], j.size[3], j.size[4]);
    *hash = dt_sim_hash(j.s, NULL);
    if (!n) *first = j.first[victim];
    dt_sim_free(j.s);
    return bad;
}
UTEST(programs, survivors_make_communicators)
{
    int      bad = 0;
    uint64_t a, b;
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL);
    for (int tolerant = 0; tolerant < 2; tolerant++)
        for (int victim = 0; victim < RANKS && bad < 5; victim += 2) {
            int64_t first = 0;
            for (int64_t n = 0; n <= first && bad < 5; n++) {
                bad += survive_run(victim, n, tolerant, &first, &a);
                if (n % 8) continue;
                bad += survive_run(victim, n, tolerant, &first, &b);
                EXPECT_EQ(a, b);
            }
            EXPECT_TRUE(first >= 2 * ROUNDS);
        }
    dt_set_log(NULL, NULL);
    EXPECT_EQ(0, bad);
}

static void waits_for_ever(dt_comm *c, void *user)
{
    int x = 0;
    ((job *)user)->bad += dt_comm_recv(c, &x, 1, DT_COMM_I32, DT_ANY, .timeout = DT_FOREVER) != DT_COMM_ERR_PEER;
    ((job *)user)->ended++;
}
UTEST(programs, end_with_the_simulator)
{
    job j;
    memset(&j, 0, sizeof j);
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL);
    j.s = dt_sim_new(.world = 3, .tolerant = true);
    dt_sim_start(j.s, 1, 0, waits_for_ever, &j);
    EXPECT_EQ(1, dt_sim_run(j.s, 100));
    EXPECT_NEAR(100, dt_sim_now(j.s), 1e-6);
    dt_sim_free(j.s);
    dt_set_log(NULL, NULL);
    EXPECT_EQ(1, j.ended);
    EXPECT_EQ(0, j.bad);
}

static void alone(dt_comm *c, void *user)
{
    job     *j = (job *)user;
    dt_comm *copy = NULL;
    int      x = 7;
    j->bad += dt_comm_dup(c, &copy) || dt_comm_allreduce(copy, &x, 1, DT_COMM_I32, DT_COMM_SUM) || x != 7;
    dt_comm_free(copy);
    dt_comm_free(c);
    j->ended++;
}
UTEST(programs, a_world_of_one_may_be_freed)
{
    job j;
    memset(&j, 0, sizeof j);
    j.s = dt_sim_new(.world = 1);
    dt_sim_start(j.s, 0, 0, alone, &j);
    EXPECT_EQ(0, dt_sim_run(j.s, 10));
    EXPECT_TRUE(dt_sim_comm(j.s, 0) == NULL && !dt_sim_dead(j.s, 0));
    dt_sim_free(j.s);
    EXPECT_EQ(1, j.ended);
    EXPECT_EQ(0, j.bad);
}

/* A member leaves; the others hear of it as of a member that left, and not of a death. */
static void leaves(dt_comm *c, void *user)
{
    job          *j = (job *)user;
    dt_comm_event e;
    if (dt_comm_rank(c) == 1) {
        dt_comm_free(c);
        j->ended++;
        return;
    }
    j->bad += dt_comm_next_event(c, &e, .timeout = 5) != 1 || e.kind != DT_MEMBER_LEFT || e.rank != 1;
    j->bad += dt_comm_next_event(c, &e, .timeout = 1) != 0 || dt__world_gone(c->world, 1) != DT__LEFT;
    j->ended++;
}
UTEST(programs, leave)
{
    job j;
    memset(&j, 0, sizeof j);
    j.s = dt_sim_new(.world = 4, .tolerant = true);
    for (int i = 0; i < 4; i++) dt_sim_start(j.s, i, 0, leaves, &j);
    EXPECT_EQ(0, dt_sim_run(j.s, 100));
    EXPECT_TRUE(dt_sim_now(j.s) < 2);
    dt_sim_free(j.s);
    EXPECT_EQ(4, j.ended);
    EXPECT_EQ(0, j.bad);
}

/* A program that is paused gets no turn; the others wait for it. */
static void barrier(dt_comm *c, void *user)
{
    job *j = (job *)user;
    j->bad += dt_comm_barrier(c) != 0;
    j->when[dt_comm_rank(c)] = dt_sim_now(j->s);
    j->ended++;
}
UTEST(programs, are_paused)
{
    job j;
    memset(&j, 0, sizeof j);
    j.s = dt_sim_new(.world = 3);
    dt_sim_pause(j.s, 2, 0, 4);
    for (int i = 0; i < 3; i++) dt_sim_start(j.s, i, 0.5, barrier, &j);
    EXPECT_EQ(0, dt_sim_run(j.s, 100));
    for (int i = 0; i < 3; i++) EXPECT_TRUE(j.when[i] >= 4 && j.when[i] < 5);
    dt_sim_free(j.s);
    EXPECT_EQ(3, j.ended);
    EXPECT_EQ(0, j.bad);
}

static void calls(dt_comm *c, void *user)
{
    job *j = (job *)user;
    j->when[0] = dt_sim_now(j->s);
    j->alone += dt_comm_rank(c) == 1;
}
UTEST(programs, something_happens_before_a_packet)
{
    job j;
    memset(&j, 0, sizeof j);
    j.s = dt_sim_new(.world = 3);
    for (int i = 0; i < 3; i++) dt_sim_start(j.s, i, 0.5, barrier, &j);
    EXPECT_EQ(0, dt_sim_before(j.s, 1, 1, calls, &j));
    EXPECT_EQ(0, dt_sim_before(j.s, 1, 1000000, calls, &j)); /* it never comes: nobody waits for it */
    EXPECT_TRUE(dt_sim_before(j.s, 3, 1, calls, &j) < 0 && dt_sim_before(j.s, 0, 0, calls, &j) < 0);
    EXPECT_TRUE(dt_sim_start(j.s, 0, 0, NULL, &j) < 0);
    EXPECT_EQ(0, dt_sim_run(j.s, 100));
    EXPECT_EQ(1, j.alone);
    EXPECT_TRUE(j.when[0] >= 0.5);
    dt_sim_free(j.s);
}
