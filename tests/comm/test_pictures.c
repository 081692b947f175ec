/* test_pictures.c: the pictures of README.md and docs/ are those of the algorithms and schedules. `make pictures` draws them
   again.
   run: asan-later */
#include "harness.h"

#include "dt_comm.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_MAIN()

static const int two_by_four[] = { 0, 0, 0, 0, 1, 1, 1, 1 };
static const struct {
    const char *name;
    dt_algo     algo;
    int         world;
    int64_t     count;
    const int  *host;
} pictures[] = { { "ring-4", DT_ALGO_RING, 4, 4, NULL },
                 { "halving-8", DT_ALGO_HALVING, 8, 8, NULL },
                 { "blocks-7", DT_ALGO_BLOCKS, 7, 8, NULL },
                 { "two-level-2x4", DT_ALGO_TWO_LEVEL, 8, 8, two_by_four } };

static size_t read_all(const char *path, char *buf, size_t nbytes)
{
    FILE  *f = fopen(path, "rb");
    size_t n = f ? fread(buf, 1, nbytes, f) : 0;
    if (f) fclose(f);
    return n;
}
static char a[1 << 18], b[1 << 18], drawn[256], stored[256];
static void paths_of(const char *dir, const char *name) /* where to draw it, and where the one of docs/ is */
{
    const char *to = getenv("DT_PICTURES"), *slash = strrchr(__FILE__, '/');
    snprintf(drawn, sizeof drawn, "%s/%s.svg", to ? to : dir, name);
    snprintf(stored, sizeof stored, "%.*s../../docs/%s.svg", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__, name);
}
static bool is_current(void)
{
    size_t n = read_all(drawn, a, sizeof a);
    bool   same = n > 1000 && n < sizeof a && n == read_all(stored, b, sizeof b) && memcmp(a, b, n) == 0;
    if (!getenv("DT_PICTURES")) unlink(drawn);
    return same;
}
UTEST(pictures, of_the_readme_are_current)
{
    char dir[] = "/tmp/dt_pictures.XXXXXX";
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++) {
        dt_plan_opts o;
        memset(&o, 0, sizeof o);
        o.world = pictures[i].world;
        o.count = pictures[i].count;
        o.host = pictures[i].host;
        paths_of(dir, pictures[i].name);
        ASSERT_EQ(0, dt_plan_svg(drawn, DT_COLL_ALLREDUCE, pictures[i].algo, &o));
        EXPECT_TRUE_MSG(is_current(), "make pictures, and look at them");
    }
    rmdir(dir);
}
UTEST(pictures, of_pipelines_are_current)
{
    char dir[] = "/tmp/dt_pictures.XXXXXX", name[64];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    for (int k = 0; k < (int)DT_PIPE_KIND_COUNT; k++) {
        dt_pipe_schedule *s = dt_pipe_schedule_new(.kind = (dt_pipe_kind)k, .ranks = 4, .micro = 8);
        ASSERT_TRUE(s != NULL);
        double          one = 1.0 / s->chunks;
        dt_pipe_timing *t = dt_pipe_simulate(s, .forward = one, .backward_input = one, .backward_weight = one);
        ASSERT_TRUE(t != NULL);
        snprintf(name, sizeof name, "pipeline-%s", dt_pipe_kind_name((dt_pipe_kind)k));
        paths_of(dir, name);
        ASSERT_EQ(0, dt_pipe_svg(drawn, s, t));
        EXPECT_TRUE_MSG(is_current(), "make pictures, and look at them");
        dt_pipe_timing_free(t);
        dt_pipe_schedule_free(s);
    }
    rmdir(dir);
}
