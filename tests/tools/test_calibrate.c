/* test_calibrate.c: tools/calibrate.h: its figures are possible ones, and the planner reads them
   run: alone, asan-later */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_scale.h"
#include "tools/calibrate.h"

UTEST_MAIN()

UTEST(calibrate, figures_that_the_planner_reads)
{
    calibration c;
    ASSERT_EQ(0, calibrate(&c, 2, NULL));
    EXPECT_EQ(calibrate_cores(), c.cores);
    EXPECT_TRUE(c.flops > 1e6 && c.copy > 1e6 && c.sum > 1e6 && c.spread >= 0);
    EXPECT_TRUE(c.compute[1] > 0 && c.compute[1] <= 1);
    for (int k = 2; k <= c.cores && k <= CALIBRATE_PROCESSES; k++)
        for (int i = 0; i < CALIBRATE_SETS; i++)
            EXPECT_TRUE(c.compute[k] > 0 && c.compute[k] <= 1 && c.memory[k][i] > 0 && c.memory[k][i] <= 1);
    for (int tcp = 0; tcp < 2; tcp++) {
        EXPECT_TRUE(c.send[tcp].latency > 0 && c.send[tcp].rate > 1e6);
        EXPECT_TRUE(c.allreduce[tcp].latency > 0 && c.allreduce[tcp].rate > 1e6);
        EXPECT_TRUE(c.allreduce[tcp].busy >= 0 && c.allreduce[tcp].busy <= 10);
    }
    char  *text = NULL;
    size_t n = 0;
    FILE  *f = open_memstream(&text, &n);
    calibrate_print(f, &c);
    fclose(f);
    dt_scale_cluster k;
    ASSERT_EQ_MSG(0, dt_scale_cluster_parse(&k, "this", text, n), dt_plan_error());
    EXPECT_EQ(1, k.machines);
    EXPECT_EQ(c.cores, k.per_machine);
    EXPECT_NEAR(c.flops, k.device.speed, 1);
    EXPECT_NEAR(c.allreduce[1].rate, k.inter.rate, 1);
    if (c.cores > 1) EXPECT_NEAR(c.allreduce[0].busy < 1 ? c.allreduce[0].busy : 1, k.busy, 1e-3);
    free(text);
}
/* A link of this rate: the planner's allreduce of two ranks takes as long as what was measured */
UTEST(calibrate, the_planner_predicts_the_allreduce_that_was_measured)
{
    dt_costs t;
    double   rate = 5e9, best = 1e9;
    memset((void *)&t, 0, sizeof t);
    for (int i = 0; i < (int)DT_LINK_COUNT; i++) t.beta[i] = 1 / calibrate_link_rate(rate);
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) {
        double s = a == (int)DT_ALGO_AUTO
                       ? -1
                       : dt_plan_cost(&t, DT_COLL_ALLREDUCE, (dt_algo)a, 2, NULL, DT_LINK_SHM, 1 << 20, 0);
        if (s > 0 && s < best) best = s;
    }
    EXPECT_NEAR((1 << 20) / rate, best, 1e-6);
}
