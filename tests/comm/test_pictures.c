/* test_pictures.c: the pictures of README.md are those of the algorithms. `make pictures` draws them again.
   run: asan-later */
#include "harness.h"

#include "dt_comm.h"

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
UTEST(pictures, of_the_readme_are_current)
{
    static char a[1 << 18], b[1 << 18];
    char        dir[] = "/tmp/dt_pictures.XXXXXX", drawn[256], stored[256], root[128];
    const char *to = getenv("DT_PICTURES"), *slash = strrchr(__FILE__, '/');
    snprintf(root, sizeof root, "%.*s../..", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__);
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++) {
        dt_plan_opts o;
        memset(&o, 0, sizeof o);
        o.world = pictures[i].world;
        o.count = pictures[i].count;
        o.host = pictures[i].host;
        snprintf(drawn, sizeof drawn, "%s/%s.svg", to ? to : dir, pictures[i].name);
        snprintf(stored, sizeof stored, "%s/docs/%s.svg", root, pictures[i].name);
        ASSERT_EQ(0, dt_plan_svg(drawn, DT_COLL_ALLREDUCE, pictures[i].algo, &o));
        size_t n = read_all(drawn, a, sizeof a);
        EXPECT_TRUE(n > 1000 && n < sizeof a);
        EXPECT_TRUE_MSG(n == read_all(stored, b, sizeof b) && memcmp(a, b, n) == 0, "make pictures, and look at them");
        if (!to) unlink(drawn);
    }
    rmdir(dir);
}
