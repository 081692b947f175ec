/* test_elastic.c: training goes on when members die at any time, and when others join; each sample counts once an epoch, all
   members have the same weights after each step
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_elastic.h"
#include "temp_files.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "heal.h"

UTEST_MAIN()

static void start_all(heal *j)
{
    for (int r = 0; r < j->world; r++) heal_start(j, r, r);
}
static double slow(double s) { return s * (getenv("DT_TEST_SLOW") ? atof(getenv("DT_TEST_SLOW")) : 1); }

/* ---------------------------------------------------------------------------------------------------- deaths */
UTEST(elastic, without_deaths_it_is_training)
{
    for (int n = 1; n <= 4; n++) {
        heal *j = heal_new(n);
        start_all(j);
        EXPECT_EQ(0, heal_wait(j, slow(30)));
        EXPECT_EQ(0, heal_check(j));
        EXPECT_EQ(n, j->size_at_end);
        heal_free(j);
    }
}
UTEST(elastic, each_rank_may_die_at_each_point_of_a_step)
{
    for (int how = HEAL_BEFORE; how <= HEAL_AFTER; how++)
        for (int rank = 0; rank < 3; rank += dt_test_quick() ? 2 : 1)
            for (int step = 0; step < 6; step += dt_test_quick() ? 4 : 1) {
                heal *j = heal_new(3);
                j->transport = (how + step) % 2 ? "tcp" : "auto";
                j->plan[rank].how = how;
                j->plan[rank].step = step;
                start_all(j);
                EXPECT_EQ(0, heal_wait(j, slow(30)));
                EXPECT_EQ(0, heal_check(j));
                EXPECT_EQ(2, j->size_at_end);
                if (j->bad) printf("    rank %d dies at point %d of step %d\n", rank, how, step);
                heal_free(j);
            }
}

/* ---------------------------------------------------------------------------------------------------- newcomers */
UTEST(elastic, a_dead_member_is_replaced)
{
    for (int rank = 0; rank < 3; rank++)
        for (int tcp = 0; tcp < 2; tcp++) {
            heal *j = heal_new(3);
            j->transport = tcp ? "tcp" : "auto";
            j->epochs = 40;
            j->seconds_of_step = 2;
            j->replace = 1;
            j->plan[rank].how = HEAL_BACKWARD;
            j->plan[rank].step = 4;
            start_all(j);
            EXPECT_EQ(0, heal_wait(j, slow(30)));
            EXPECT_EQ(0, heal_check(j));
            EXPECT_EQ(1, j->joined);
            EXPECT_EQ(3, j->size_at_end);
            heal_free(j);
        }
}
