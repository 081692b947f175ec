/* test_wait.c: how ranks of one machine wait: who is woken; ranks on one core; crowded cores, on which ranks sleep instead of
   yielding
   run: alone, long */
#define DT__WANT_INSIDE
#include "dt_comm.h"
#include "harness.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

UTEST_MAIN()

/* ==================================================================================================== waking */
static dt__shared *shared_of(dt_comm *c) { return (dt__shared *)c->shared; }
/* Rank i announces that it will sleep, as dt__idle does, until `counter` has `value` on all ranks. Nobody calls futex. */
static void doze(dt_comm *c, int counter, uint64_t value)
{
    uint64_t want[DT__COUNTERS];
    memset(want, 0, sizeof want);
    if (value) want[counter] = value;
    dt__shared_doze(shared_of(c), want);
}
static int threads(int n, dt_comm **c)
{
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    return dt_comm_threads_with(n, c, o);
}
static void *free_one(void *c) { return dt_comm_free((dt_comm *)c) ? c : NULL; }
static void  free_all(int n, dt_comm **c) /* together: the ranks wait for each other */
{
    pthread_t t[4];
    for (int i = 0; i < n; i++) pthread_create(&t[i], NULL, free_one, c[i]);
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
}
static bool asleep(dt_comm *c) { return dt__slot_of(shared_of(c), shared_of(c)->me)->asleep != 0; }
UTEST(wait, only_ranks_that_can_go_on_are_woken)
{
    dt_comm *c[4];
    ASSERT_EQ(0, threads(4, c));
    dt__shared *s = shared_of(c[0]);
    uint64_t   *put[4];
    for (int i = 0; i < 4; i++) put[i] = &dt__slot_of(s, i)->put;

    doze(c[1], DT__PUT, 3);
    doze(c[2], DT__PUT, 4);
    doze(c[3], DT__PART, 1);
    for (int i = 0; i < 3; i++) *put[i] = 3;
    dt__shared_ring(s); /* rank 3 has not put 3 pieces */
    EXPECT_EQ(3u, s->head->sleepers);
    EXPECT_EQ(0u, s->head->bell);

    *put[3] = 3;
    dt__shared_settle(s);
    EXPECT_FALSE(asleep(c[1]));
    EXPECT_TRUE(asleep(c[2]));
    EXPECT_TRUE(asleep(c[3]));
    EXPECT_EQ(2u, s->head->sleepers);
    EXPECT_EQ(1u, s->head->bell); /* a rank that is about to call futex does not sleep */

    doze(c[1], 0, 0); /* for anything */
    dt__shared_ring(s);
    EXPECT_FALSE(asleep(c[1]));
    EXPECT_TRUE(asleep(c[2]));

    dt__shared_wake(s);
    EXPECT_EQ(0u, s->head->sleepers);
    dt__shared_rise(shared_of(c[2])); /* it finds that it was woken already */
    EXPECT_EQ(0u, s->head->sleepers);
    for (int i = 0; i < 4; i++) {
        EXPECT_FALSE(asleep(c[i]));
        *put[i] = 0;
    }
    free_all(4, c);
}
UTEST(wait, a_rank_that_sleeps_for_messages_is_woken_by_the_last_of_many)
{
    dt_comm *c[4];
    ASSERT_EQ(0, threads(4, c));
    dt__shared *s = shared_of(c[0]);
    for (int k = 0; k < 20; k++) dt__shared_ring_to(s, 1 + k % 2); /* more than the list of debts holds; nobody sleeps */
    dt__shared_ring_to(s, 3);
    doze(c[3], DT__FIN, UINT64_MAX); /* it has not seen the frame, and no counter wakes it */
    dt__shared_settle(s);
    EXPECT_FALSE(asleep(c[3]));
    EXPECT_EQ(0u, s->head->sleepers);
    free_all(4, c);
}
UTEST(wait, both_posts_of_a_rank_are_counters)
{
    dt_comm *c[2];
    ASSERT_EQ(0, threads(2, c));
    dt__shared *s = shared_of(c[0]);
    for (int k = 0; k < 2; k++) {
        uint64_t *mine = &dt__slot_of(s, 0)->post[k].no, *its = &dt__slot_of(s, 1)->post[k].no;
        doze(c[1], DT__POST_EVEN + k, 7);
        *mine = 7;
        dt__shared_ring(s);
        EXPECT_TRUE(asleep(c[1]));
        *its = 7;
        dt__shared_ring(s);
        EXPECT_FALSE(asleep(c[1]));
        *mine = *its = 0;
    }
    free_all(2, c);
}

/* ==================================================================================================== crowded cores */
UTEST(wait, a_crowd_is_remembered_for_a_while)
{
    const int64_t ms = 1000000, t = 1000000 * ms;
    dt__crowd_found(NULL, t);
    EXPECT_TRUE(dt__crowd_known(NULL));
    EXPECT_FALSE(dt__crowd_ends(NULL, t + 99 * ms));
    EXPECT_TRUE(dt__crowd_ends(NULL, t + 100 * ms));
    EXPECT_FALSE(dt__crowd_known(NULL));
    /* it is still so: twice as long each time, up to 1.6 s */
    int64_t at = t + 100 * ms, span = 100 * ms;
    for (int i = 0; i < 6; i++) {
        dt__crowd_found(NULL, ++at);
        span = 2 * span < 1600 * ms ? 2 * span : 1600 * ms;
        EXPECT_FALSE(dt__crowd_ends(NULL, at + span - 1));
        EXPECT_TRUE(dt__crowd_ends(NULL, at + span));
        at += span;
    }
    /* much later: as at first */
    at += 5000 * ms;
    dt__crowd_found(NULL, at);
    EXPECT_FALSE(dt__crowd_ends(NULL, at + 99 * ms));
    EXPECT_TRUE(dt__crowd_ends(NULL, at + 100 * ms));
}
/* The ranks find crowded cores and forget them again between calls of all kinds: short, direct and staged vectors. They
   use few or many stages, and change between them while other ranks are still in the last call. Rank 1 is late now and
   then, so that the others are as far ahead as they can be. */
static int crowd(void *arg)
{
    static const int64_t sizes[] = { 1, 3000, 5000, 70000, 300000, 900000, 1 }; /* of 4 bytes */
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    int      rounds = dt_test_quick() ? 6 : 60, most = 0, few = 0, bad = 0;
    dt_comm *c = dt_comm_init(.transport = "shm", .timeout = 20, .join_timeout = 20);
    int32_t *x = (int32_t *)malloc(900000 * sizeof *x), *y = c ? (int32_t *)dt_comm_alloc(c, 70000 * sizeof *y) : NULL;
    (void)arg;
    if (!c || !x || !y) return 1;
    dt__shared *s = shared_of(c);
    int         n = dt_comm_size(c), rank = dt_comm_rank(c), sum = n * (n + 1) / 2;
    for (int k = 0; k < rounds * SIZES && !bad; k++) {
        int64_t  len = sizes[k % SIZES];
        int32_t *v = len == 70000 && k / SIZES % 2 ? y : x; /* y: direct */
        if (k % 11 == rank) dt__crowd_found(s, dt__comm_now());
        if (k % 11 > 3) s->shares_core = true;
        if (k % 11 == 8) dt__crowd_ends(s, INT64_MAX);
        if (k % 5 == 0 && rank == 1) poll(NULL, 0, 2);
        for (int64_t i = 0; i < len; i++) v[i] = (rank + 1) * (int32_t)(i + k);
        bad = dt_comm_allreduce(c, v, len, DT_COMM_I32, DT_COMM_SUM);
        for (int64_t i = 0; i < len && !bad; i++) bad = v[i] != sum * (int32_t)(i + k);
        if (v == x && len > 2000) s->nstages == DT__STAGES_MOST ? most++ : few++;
    }
    if (bad) fprintf(stderr, "rank %d: wrong sum: %s\n", rank, dt_comm_error(c) ? dt_comm_error(c) : "");
    if (!most || !few) fprintf(stderr, "rank %d: %d calls were followed by many stages, %d by few\n", rank, most, few);
    dt_comm_dealloc(c, y);
    free(x);
    return dt_comm_free(c) || bad || !most || !few;
}
UTEST(wait, sums_are_right_on_crowded_cores)
{
    EXPECT_EQ(0, dt_spawn(2, crowd, NULL));
    EXPECT_EQ(0, dt_spawn(5, crowd, NULL));
}

/* ==================================================================================================== one core */
/* Two ranks that could have a core each are bound to one: they learn that spinning is in vain. */
static int one_core(void *arg)
{
    const char *how = (const char *)arg;
    uint64_t    set[16] = { 0 };
    float       x[2] = { 0, 0 };
    int         bad = 0, enough = 0;
    dt_comm    *c = dt_comm_init(.transport = how, .timeout = 20, .join_timeout = 20);
    if (!c) return 1;
    for (int i = 0; i < 10 && !bad; i++) bad = dt_comm_barrier(c);
    if (c->shared && dt__shared_spin(shared_of(c)) == 0) return dt_comm_free(c) != 0; /* there is one core only */
    if (syscall(SYS_sched_getaffinity, 0, sizeof set, set) < 0) return 1;
    for (int i = 0, found = 0; i < 16; i++) { /* the first core of the set */
        set[i] = found ? 0 : set[i] & (~set[i] + 1);
        found = found || set[i];
    }
    if (syscall(SYS_sched_setaffinity, 0, sizeof set, set)) return 1;
    int64_t end = dt__comm_now() + (int64_t)(10e9 * dt_test_slow());
    while (!bad && x[1] < 2) { /* until both have learnt it */
        dt__crowd_ends(shared_of(c), INT64_MAX); /* other programs are not meant here */
        enough = enough || c->engine->vain >= 2;
        x[0] = 1;
        x[1] = enough || dt__comm_now() > end;
        bad = dt_comm_allreduce(c, x, 2, DT_COMM_F32, DT_COMM_SUM);
    }
    if (!enough) fprintf(stderr, "rank %d over %s: still spins\n", dt_comm_rank(c), how);
    return dt_comm_free(c) || bad || !enough;
}
UTEST(wait, ranks_on_one_core_spin_less)
{
    char shm[] = "shm", tcp[] = "tcp";
    if (dt__shared_cores(NULL) < 2) UTEST_SKIP("one core");
    EXPECT_EQ(0, dt_spawn(2, one_core, shm));
    EXPECT_EQ(0, dt_spawn(2, one_core, tcp));
}
