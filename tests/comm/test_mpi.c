/* test_mpi.c: communicators whose data goes over MPI: our plans over its messages, and its own collectives. Without
   DT_USE_MPI this program compiles itself with it and runs that under mpirun; without Open MPI it skips.
   Contents: >>launch >>ranks >>misuse >>main
   run: alone, long, asan-later */
#ifndef DT_USE_MPI
#include "harness.h"

#include "dt_comm.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_MAIN()

/* ==================================================================================================== >>launch */
static bool have(const char *command) { return system(command) == 0; }
static char dir[] = "/tmp/dt_mpi.XXXXXX";
/* The exit status of mpirun; 124: it did not end in time. The ranks' own output tells what is wrong. */
static int launch(const char *env, const char *more, int ranks, const char *mode, double seconds)
{
    char text[1024];
    snprintf(text, sizeof text,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
             "OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=%s %s timeout -k 5 %.0f mpirun --oversubscribe %s -n %d %s/test %s "
             ">%s/log 2>&1",
             dir, env, seconds * dt_test_slow(), more, ranks, dir, mode, dir);
    int status = system(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static bool logged(const char *word)
{
    char text[256];
    snprintf(text, sizeof text, "grep -q '%s' %s/log", word, dir);
    return have(text);
}
static bool run(const char *env, int ranks, const char *mode) /* ends well, and all ranks say so */
{
    char text[128], all[16];
    int  status = launch(env, "", ranks, mode, 60);
    snprintf(text, sizeof text, "cat %s/log", dir);
    snprintf(all, sizeof all, "ok %d", ranks);
    bool ok = status == 0 && logged(all);
    if (!ok) printf("    mpirun -n %d test %s: exit status %d\n", ranks, mode, status);
    if (!ok && system(text)) printf("    no log\n");
    return ok;
}
static void clean_up(void)
{
    char text[128];
    snprintf(text, sizeof text, "rm -rf %s", dir);
    if (system(text)) printf("    %s is left over\n", dir);
}
static const char *set_up(void) /* NULL, or why not; mpicc takes a few seconds */
{
    static const char *why = "";
    char               text[1024];
    if (!why || *why) return why;
    why = "Open MPI (mpicc, mpirun) is not installed";
    if (!have("mpirun --version 2>/dev/null | grep -q 'Open MPI'") || !have("command -v mpicc >/dev/null")) return why;
    why = "there is no temporary directory";
    if (!mkdtemp(dir) || atexit(clean_up)) return why;
    /* the library lies beside this program, for those that are not built with a sanitizer */
    char    lib[512] = "";
    ssize_t n = readlink("/proc/self/exe", lib, sizeof lib - 16);
    char   *slash = n > 0 ? strrchr(lib, '/') : NULL;
    if (slash) memcpy(slash, "/libdt.a", 9);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    lib[0] = 0;
#endif
    bool linked = slash && lib[0] && access(lib, R_OK) == 0;
    snprintf(text, sizeof text, "mpicc -O1 -g -std=c11 -I. -Itests -DDT_USE_MPI %s '%s' %s -o %s/test -lm -lpthread",
             linked ? "-DDT_LINKED -DDT_MPI_IMPLEMENTATION" : "", __FILE__, linked ? lib : "", dir);
    return why = have(text) ? NULL : "it does not compile";
}
#define SET_UP()                                                                             \
    do {                                                                                     \
        const char *why_ = set_up();                                                         \
        if (why_ && strstr(why_, "Open MPI")) UTEST_SKIP("Open MPI (mpicc, mpirun) is not installed"); \
        ASSERT_TRUE_MSG(!why_, why_);                                                        \
    } while (0)

UTEST(mpi, every_collective_algorithm_dtype_and_reduction)
{
    SET_UP();
    EXPECT_TRUE(run("", 3, "matrix"));
    if (getenv("DT_TEST_QUICK")) return;
    EXPECT_TRUE(run("", 2, "matrix"));
    EXPECT_TRUE(run("", 4, "matrix"));
}
UTEST(mpi, messages)
{
    SET_UP();
    EXPECT_TRUE(run("", 2, "messages"));
}
UTEST(mpi, chosen_by_the_environment)
{
    SET_UP();
    EXPECT_TRUE(run("DT_COMM_TRANSPORT=mpi DT_COMM_ALGO=native", 2, "env"));
}
UTEST(mpi, in_a_program_that_has_started_it)
{
    SET_UP();
    EXPECT_TRUE(run("", 2, "own"));
    EXPECT_TRUE(run("", 2, "funneled"));
}
UTEST(mpi, different_calls_absent_ranks_and_aborts_are_errors_everywhere)
{
    SET_UP();
    EXPECT_TRUE(run("", 3, "misuse"));
}
UTEST(mpi, a_rank_that_does_not_join_is_an_error)
{
    SET_UP();
    launch("", "", 2, "alone", 20);
    EXPECT_TRUE(logged("a rank of the MPI job does not join"));
    launch("DT_TEST_ODD=1", "", 3, "odd", 20);
    EXPECT_TRUE(logged("rank 1 could not set up its communicator"));
}
UTEST(mpi, a_killed_rank_ends_the_job)
{
    SET_UP();
    for (int k = 0; k < 2; k++) {
        int64_t begin = dt_test_ns();
        int     status = launch("", "", 3, k ? "die native" : "die", 30);
        EXPECT_TRUE(status != 0 && status != 124);
        EXPECT_LT((double)(dt_test_ns() - begin), 10e9 * dt_test_slow());
        EXPECT_TRUE(logged("signal 9") || logged("rank 1 died")); /* by mpirun, or by survivors who were faster */
    }
}
/* mpirun can be told to leave the others alone: they hear of the death by the control tree. */
UTEST(mpi, survivors_of_a_killed_rank_name_it)
{
    SET_UP();
    for (int k = 0; k < 2; k++) {
        int64_t begin = dt_test_ns();
        launch("", "--enable-recovery", 3, k ? "die native" : "die", 30);
        EXPECT_LT((double)(dt_test_ns() - begin), 10e9 * dt_test_slow());
        EXPECT_TRUE(logged("rank 0: rank 1 died") && logged("rank 2: rank 1 died"));
    }
}
static int by_mpi(void *arg)
{
    dt_comm *c = dt_comm_init(.transport = (const char *)arg);
    return c || !strstr(dt_comm_error(NULL), "-DDT_USE_MPI") || !strstr(dt_comm_error(NULL), "mpirun");
}
static int by_native(void *arg)
{
    (void)arg;
    dt_comm *c = dt_comm_init(.algo = "native", .join_timeout = 20);
    return c || !strstr(dt_comm_error(NULL), "it needs transport \"mpi\"");
}
UTEST(mpi, is_refused_in_a_program_without_it)
{
    EXPECT_EQ(0, by_mpi((void *)(uintptr_t) "mpi"));
    EXPECT_EQ(0, dt_spawn(2, by_native, NULL));
}

#else
/* ==================================================================================================== >>ranks
   What test_comm.c has each rank do, over MPI. Each of its functions frees the communicator it gets. */
#include "harness.h"
#undef UTEST_MAIN
#define UTEST_MAIN() UTEST_STATE(); /* without a main */
#define DT_IMPLEMENTATION
#include "dt_mpi.h"
#include "test_comm.c"
#include "message_cases.h"

#include <math.h>
#include <sched.h>

static team     all;
static dt_comm *world;
static void     with(const char *algo, void (*fn)(team *t, dt_comm *c, int rank), void *arg)
{
    dt_comm *c = NULL;
    int      rank = dt_comm_rank(world);
    world->opts.algo = algo; /* what is split off gets it */
    all.arg = arg;
    if (dt_comm_dup(world, &c)) check(&all, false, dt_comm_error(world), rank, 0);
    all.comm[rank] = c;
    if (c) fn(&all, c, rank);
    all.comm[rank] = world;
}
/* Messages around the sizes at which they are cut: 4 KiB with the header, pieces of 512 KiB, four at a time. */
static void large(team *t, dt_comm *c, int rank)
{
    static const int64_t count[] = { 1024, 1025, 131072 * 2, 131072 * 2 + 2, 524288 * 2, 1250000 };
    for (int k = 0; k < 6; k++) {
        int64_t n = count[k];
        float  *x = (float *)malloc((size_t)n * 4);
        for (int64_t i = 0; i < n; i++) x[i] = (float)value(rank, i);
        bool ok = !dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM);
        for (int64_t i = 0; ok && i < n; i++) ok = x[i] == (float)reduced(t->n, i, DT_COMM_SUM);
        check(t, ok, "large allreduce", rank, n);
        for (int64_t i = 0; i < n; i++) x[i] = rank == 1 ? (float)value(3, i) : -1;
        ok = !dt_comm_broadcast(c, x, n, DT_COMM_F32, 1);
        for (int64_t i = 0; ok && i < n; i++) ok = x[i] == (float)value(3, i);
        check(t, ok, "large broadcast", rank, n);
        free(x);
    }
    dt_comm_free(c);
}
static void nan_wins(team *t, dt_comm *c, int rank) /* as on every transport */
{
    float  x = rank == 0 ? NAN : 1;
    double y = rank == t->n - 1 ? NAN : 1;
    check(t, !dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_MAX) && isnan(x), "max of NaN", rank, 0);
    check(t, !dt_comm_allreduce(c, &y, 1, DT_COMM_F64, DT_COMM_MIN) && isnan(y), "min of NaN", rank, 0);
    dt_comm_free(c);
}
static void named(team *t, dt_comm *c, int rank) /* the algorithm that was asked for is the one that ran */
{
    char    text[16384], want[64];
    int32_t x = 1;
    dt_comm_allreduce(c, &x, 1, DT_COMM_I32, DT_COMM_SUM);
    dt_comm_history(c, text, sizeof text);
    snprintf(want, sizeof want, "i32, sum, root 0, %s,", (const char *)t->arg);
    check(t, strstr(text, want) != NULL, "algorithm", rank, 0);
    dt_comm_free(c);
}
static void matrix(void)
{
    static const char *const algo[] = { NULL,     "native",  "direct", "alltoall", "tree",  "ring",    "doubling",
                                        "halving", "blocks", "bruck",  "chain",    "scatter", "pairs", "two_level",
                                        "leader", "shared" };
    int count = getenv("DT_TEST_QUICK") ? 6 : (int)(sizeof algo / sizeof *algo);
    for (int a = 0; a < count; a++) {
        with(algo[a], allreduce_sizes, NULL);
        with(algo[a], others, NULL);
    }
    for (int a = 0; a < 2; a++) {
        with(algo[a], allreduce_kinds, NULL);
        with(algo[a], splits, NULL);
        with(algo[a], many_works, NULL);
        with(algo[a], round_trip, NULL);
        with(algo[a], history, NULL);
        with(algo[a], large, NULL);
        with(algo[a], nan_wins, NULL);
    }
    with("native", named, (void *)(uintptr_t) "native");
    with("ring", named, (void *)(uintptr_t) "ring");
    with("direct", large, NULL); /* whole vectors in a message */
    check(&all, !strcmp(dt_comm_launcher(world), "MPI") && dt_comm_local_size(world) == all.n, "where", 0, 0);
}

/* ==================================================================================================== >>misuse */
static void late(team *t, dt_comm *c, int rank)
{
    float x = 1;
    if (rank == 1)
        while (!dt_comm_get_status(c)) sched_yield();
    else
        check(t, dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM) == DT_COMM_ERR_TIMEOUT, "timeout", rank, 1);
    check(t, dt_comm_failed_rank(c) == 1, dt_comm_error(c), rank, 1);
    dt_comm_free(c);
}
static void misuse(void)
{
    for (int kind = 0; kind < 9; kind++) {
        with("native", mismatch, &kind);
        if (kind != 4 && kind != 8) with("ring", mismatch, &kind);
    }
    for (int a = 0; a < 2; a++) {
        with(a ? "native" : NULL, late, NULL);
        with(a ? "native" : NULL, wrong_argument, NULL);
        with(a ? "native" : NULL, stop_it, NULL);
    }
    with(NULL, splits, NULL); /* the world goes on */
}
/* Rank 1 dies in the midst of work. */
static void messages(void)
{
    static const struct {
        const char *name;
        situation   fn;
    } list[] = { { "tags", tags_in_any_order }, { "itself", to_itself }, { "early", early }, { "deadlines", own_deadlines },
                 { "views", views }, { "serve next", serve_next }, { "at once", serve_at_once }, { "calls itself", calls_itself } };
    memset(bigger, 9, sizeof bigger);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        dt_comm *c = NULL; /* handlers stay with their communicator */
        check(&all, !dt_comm_dup(world, &c), "dup", dt_comm_rank(world), (int64_t)i);
        check(&all, c && !list[i].fn(c, dt_comm_rank(c)), list[i].name, dt_comm_rank(world), 0);
        check(&all, !dt_comm_free(c), "free", dt_comm_rank(world), (int64_t)i);
    }
}
static void dies(void)
{
    static float x[300000];
    int          rank = dt_comm_rank(world), rc = 0;
    for (int i = 0; i < 100000 && !rc; i++) {
        if (rank == 1 && i == 5) raise(SIGKILL);
        rc = dt_comm_allreduce(world, x, 1 + i % 3 * 100000, DT_COMM_F32, DT_COMM_SUM);
    }
    if (rc == DT_COMM_ERR_PEER && dt_comm_failed_rank(world) == 1 && strstr(dt_comm_error(world), "rank 1"))
        printf("rank %d: rank 1 died\n", rank);
    else printf("rank %d: status %d, %s\n", rank, rc, dt_comm_error(world));
    fflush(stdout);
}

/* ==================================================================================================== >>main */
static int join_alone(void) /* rank 1 starts MPI, but does not join */
{
    int level, rank;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1) {
        MPI_Barrier(MPI_COMM_WORLD);
    } else {
        if (!dt_comm_init(.transport = "mpi", .join_timeout = 1)) printf("%s\n", dt_comm_error(NULL));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 0);
    return 0;
}
static int join_odd(void) /* rank 1 wants what there is not */
{
    bool     odd = !strcmp(getenv("OMPI_COMM_WORLD_RANK"), "1");
    dt_comm *c = dt_comm_init(.transport = "mpi", .algo = odd ? "none such" : NULL, .join_timeout = 15);
    if (!c) printf("%s\n", dt_comm_error(NULL));
    return c != NULL;
}
/* In a program's own MPI one joins as often as one likes, and it stays open. */
static void own(void)
{
    int level, over = 0;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    check(&all, !dt_comm_init(.transport = "mpi", .tolerant = true) && strstr(dt_comm_error(NULL), "MPI ends the job"), "tolerant", 0, 0);
    for (int i = 0; i < 3; i++) {
        world = dt_comm_init(.transport = "mpi", .join_timeout = 20);
        all.n = dt_comm_size(world);
        if (!world) printf("%s\n", dt_comm_error(NULL));
        with(NULL, splits, NULL);
        memset(all.comm, 0, sizeof all.comm);
        check(&all, world && !dt_comm_free(world), "free", 0, i);
    }
    MPI_Finalized(&over);
    check(&all, !over, "not ours to end", 0, 0);
    MPI_Finalize();
    check(&all, !dt_comm_init(.transport = "mpi") && strstr(dt_comm_error(NULL), "MPI_Finalize"), "over", 0, 0);
}
static void funneled(void) /* one thread: asynchronous work moves when it is looked at */
{
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    dt__mpi_job.level = MPI_THREAD_FUNNELED;
    world = dt_comm_init(.transport = "mpi", .no_thread = true, .join_timeout = 20);
    all.n = dt_comm_size(world);
    with(NULL, many_works, NULL);
    with("native", many_works, NULL);
    memset(all.comm, 0, sizeof all.comm);
    check(&all, world && !dt_comm_free(world), "free", 0, 0);
    MPI_Finalize();
}
int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "", *algo = argc > 2 ? argv[2] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(mode, "alone")) return join_alone();
    if (!strcmp(mode, "odd")) return join_odd();
    int ranks = 0;
    if (!strcmp(mode, "own")) own(), ranks = 2;
    else if (!strcmp(mode, "funneled")) funneled(), ranks = 2;
    else {
        world = dt_comm_init(.transport = !strcmp(mode, "env") ? NULL : "mpi", .algo = algo,
                             .timeout = !strcmp(mode, "misuse") ? 2 : 20, .join_timeout = 20);
        if (!world) {
            printf("%s\n", dt_comm_error(NULL));
            return 1;
        }
        all.n = ranks = dt_comm_size(world);
        all.comm[dt_comm_rank(world)] = world;
        if (!strcmp(mode, "matrix")) matrix();
        else if (!strcmp(mode, "env")) with(NULL, named, (void *)(uintptr_t) "native");
        else if (!strcmp(mode, "misuse")) misuse();
        else if (!strcmp(mode, "messages")) messages();
        else dies();
        int32_t bad = all.failed;
        if (!dt_comm_get_status(world) && (dt_comm_allreduce(world, &bad, 1, DT_COMM_I32, DT_COMM_SUM) || bad))
            ranks = 0;
        if (dt_comm_rank(world)) ranks = 0;
        all.comm[dt_comm_rank(world)] = NULL;
        check(&all, !dt_comm_free(world), "free", 0, 0);
        int over = 0;
        MPI_Finalized(&over);
        check(&all, over, "ours to end", 0, 0);
    }
    if (ranks && !all.failed) printf("ok %d\n", ranks);
    return all.failed != 0;
}
#endif
