/* test_growth.c: members of an elastic job hold no more after many deaths than after a few
   run: alone, long, asan-later, no-valgrind */
static void heal_sends(void);
#define DT__ON_SEND() heal_sends()
#define DT__AGREEMENTS 8
#define DT__PARTS_KEPT 32
#define DT_NET_IMPLEMENTATION
#define DT_ELASTIC_IMPLEMENTATION
#include "dt_test.h"

#include "dt_elastic.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "heal.h"

UTEST_STATE();

static const char *const held[] = { "descriptors", "threads", "mappings", "bytes of malloc" };
static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}
static int64_t median_of(const heal *j, int member, int what, int first, int end) /* deaths first to end - 1 */
{
    int64_t v[HEAL_DEATHS];
    int     n = 0;
    for (int d = first; d < end; d++) /* was there a full group between this death and the next one? */
        if (j->used[member][d].threads) v[n++] = (&j->used[member][d].descriptors)[what];
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n ? v[n / 2] : -1;
}
/* Member 0, which leads at first, dies, and so does each one that takes its place. Members 1, which leads then, and 2 stay. What a group
   needs for a moment comes and goes, so the median of N deaths is compared with that of the next N. */
static bool grows_not(const char *transport, int shard)
{
    const int     N = dt_test_quick() ? 30 : 60;
    /* a connection that is made later; malloc divides its own; texts with longer numbers, and parts of a state that are on their way */
    const int64_t more[] = { 3, 0, 3, 25 * N + (shard ? 8192 : 2048) };
    heal  *j = heal_new(3);
    double slow = getenv("DT_TEST_SLOW") ? atof(getenv("DT_TEST_SLOW")) : 1;
    j->watch = 1;
    j->epochs = 1 << 30;
    j->transport = transport;
    j->shard = shard;
    j->plan[0].how = HEAL_LIFE;
    j->plan[0].step = 3;
    for (int i = 0; i < 3; i++) heal_start(j, i, i);
    int64_t end = heal_ns() + (int64_t)(60 * slow * 1e9);
    bool    dead = false, ok = true;
    while ((j->deaths[1] < 3 * N || j->deaths[2] < 3 * N) && heal_ns() < end) {
        heal_reports(j);
        int status;
        if (!dead) dead = waitpid(j->pid[0], &status, WNOHANG) == j->pid[0];
        if (dead && j->generation > j->mine[0]) heal_start(j, 0, -1), dead = false; /* the group has gone on */
        usleep(500);
    }
    for (int i = 0; i < 3; i++) kill(j->pid[i], SIGKILL);
    for (int i = 0; i < 3; i++) waitpid(j->pid[i], NULL, 0);
    for (int i = 1; i < 3; i++) {
        if (j->deaths[i] < 3 * N) ok = printf("    member %d has seen %d deaths of %d in time\n", i, j->deaths[i], 3 * N) < 0;
        for (int what = 0; what < 4; what++) {
            int64_t a = median_of(j, i, what, N, 2 * N), b = median_of(j, i, what, 2 * N, 3 * N);
            bool    fits = a >= 0 && b <= a + more[what];
            ok = ok && fits;
            if (!fits || getenv("DT_HEAL_SAY"))
                printf("    member %d, %s: %lld, then %lld\n", i, held[what], (long long)a, (long long)b);
        }
    }
    heal_free(j);
    return ok;
}
UTEST(growth, no_member_grows_with_the_deaths)
{
    EXPECT_TRUE(grows_not("shm", 0));
    EXPECT_TRUE(grows_not("tcp", 0));
}
UTEST(growth, nor_with_sharded_states) { EXPECT_TRUE(grows_not("auto", 2)); }
int main(int argc, char **argv)
{
    static const char tunables[] = "GLIBC_TUNABLES"; /* chunks in a thread's cache would count as used */
    if (!getenv(tunables) && setenv(tunables, "glibc.malloc.tcache_count=0", 1) == 0) execv("/proc/self/exe", argv);
    return utest_main(argc, (const char *const *)argv);
}
