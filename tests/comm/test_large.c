/* test_large.c: large worlds and large memory: many ranks, many communicators, arenas that grow, few descriptors
   run: alone, long, no-valgrind */
#define DT_IMPLEMENTATION
#include "ranks.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static int64_t first_chunk = INT64_C(256) << 20; /* of an arena; ranks inherit it */
#define DT__ARENA_CHUNK first_chunk
static int relay_from = 512; /* ranks */
#define DT__RELAY_FROM relay_from
#include "dt_comm.h"

#include <dirent.h>
#include <signal.h>

UTEST_MAIN()

static bool instrumented(void) /* address space cannot be limited, and processes are large */
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    const char *preload = getenv("LD_PRELOAD");
    return preload && strstr(preload, "valgrind");
#endif
}
static dt_comm *join(void)
{
    dt_comm *c = dt_comm_init(.timeout = 60 * dt_test_slow(), .join_timeout = 60 * dt_test_slow());
    if (!c) printf("    rank %s: %s\n", getenv("RANK"), dt_comm_error(NULL));
    return c;
}
static int wrong(const dt_comm *c, const char *what)
{
    printf("    rank %d: %s: %s\n", dt_comm_rank(c), what, dt_comm_error(c) ? dt_comm_error(c) : "");
    return 1;
}
/* A job of n ranks with DT_COMM_ARENA = mib; 0: as it is. Returns what dt_spawn does. */
static int job(int n, int mib, int (*fn)(void *), void *arg)
{
    char *before = getenv("DT_COMM_ARENA") ? strdup(getenv("DT_COMM_ARENA")) : NULL, text[24];
    snprintf(text, sizeof text, "%d", mib);
    if (mib) setenv("DT_COMM_ARENA", text, 1);
    int rc = dt_spawn(n, fn, arg);
    if (rc < 0) printf("    %s\n", dt_comm_error(NULL));
    if (before) setenv("DT_COMM_ARENA", before, 1);
    else unsetenv("DT_COMM_ARENA");
    free(before);
    return rc;
}

/* ==================================================================================================== >>arenas */
/* x := rank + i; the sum over all ranks. At least a page, so that it is reduced in place. */
static bool reduces(dt_comm *c, float *x, int64_t n)
{
    int  p = dt_comm_size(c);
    bool ok = x != NULL;
    for (int64_t i = 0; ok && i < n; i++) x[i] = (float)(dt_comm_rank(c) + i % 100);
    int rc = dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM);
    for (int64_t i = 0; ok && i < n; i++) ok = x[i] == (float)(p * (p - 1) / 2 + p * (i % 100));
    return ok && !rc;
}
static bool in_place(dt_comm *c, const void *x) /* is it passed by its position? */
{
    return dt__shared_at((dt__shared *)c->shared, x, 1) >= 0;
}
enum { MANY = 64 };
static int many_communicators(void *arg)
{
    dt_comm *c = join(), *more[MANY];
    (void)arg;
    if (!c) return 1;
    for (int i = 0; i < MANY; i++) {
        if (dt_comm_dup(c, &more[i])) return wrong(c, "dup");
        float *x = (float *)dt_comm_alloc(more[i], 8192);
        if (!x || !in_place(more[i], x) || !reduces(more[i], x, 2048)) return wrong(more[i], "allreduce");
    }
    for (int i = 0; i < MANY; i++)
        if (dt_comm_free(more[i])) return 1;
    return dt_comm_free(c);
}
UTEST(arena, sixty_four_communicators_on_a_machine_of_a_tebibyte)
{
    EXPECT_EQ(0, job(16, 1 << 20, many_communicators, NULL));
}

/* Chunks of 2 MiB, 4 MiB, 8 MiB ...: what does not fit in one is in another. */
static int growing(void *arg)
{
    size_t   mib = (size_t)1 << 20;
    dt_comm *c = join();
    char    *x[40];
    (void)arg;
    if (!c) return 1;
    dt__shared *s = (dt__shared *)c->shared;
    for (int round = 0; round < 3; round++) {
        uint64_t state = (uint64_t)(dt_comm_rank(c) + 40 * round);
        for (int i = 0; i < 40; i++) { /* blocks of many sizes: they do not overlap, and lie where they should */
            size_t n = i == 17 ? 19 * mib : 1 + dt_test_random(&state) % (i % 4 ? 300000 : 3 * mib);
            if (!(x[i] = (char *)dt_comm_alloc(c, n))) return wrong(c, "alloc");
            if ((uintptr_t)x[i] % (n >= 4096 ? 4096 : 64) || !in_place(c, x[i] + n - 1)) return wrong(c, "position");
            memset(x[i], i + 1, n);
        }
        for (int i = 0; i < 40; i++) /* each still has its own bytes */
            if (x[i][0] != i + 1) return wrong(c, "overlap");
        if (!reduces(c, (float *)(void *)x[17], (int64_t)(19 * mib / 4))) return wrong(c, "a large block");
        float *small = (float *)dt_comm_alloc(c, 8192); /* wherever there is room: not the same chunk on all ranks */
        if (!reduces(c, small, 2048)) return wrong(c, "a small block");
        dt_comm_dealloc(c, small);
        uint64_t opened = s->opened;
        if (!(opened >> 4 & 1)) return wrong(c, "the large block is not in the chunk of 32 MiB");
        for (int i = 0; i < 40; i++) dt_comm_dealloc(c, x[(i * 7 + round) % 40]);
        if (s->arena_used) return wrong(c, "something is still in use");
        int blocks = 0;
        for (const dt__arena_block *b = s->blocks; b; b = b->next) blocks++;
        if (blocks != __builtin_popcountll(opened)) return wrong(c, "free blocks are not joined");
        if (round && opened != s->opened) return wrong(c, "memory that was given back is not used again");
    }
    /* a message whose payload is read where it is */
    float *x0 = (float *)dt_comm_alloc(c, 12 * mib);
    if (!x0 || !in_place(c, x0)) return wrong(c, "alloc");
    if (dt_comm_rank(c) == 1) memset(x0, 42, 12 * mib);
    if (dt_comm_broadcast(c, x0, (int64_t)(12 * mib), DT_COMM_U8, 1)) return wrong(c, "broadcast");
    return ((char *)x0)[12 * mib - 1] != 42 || dt_comm_free(c);
}
UTEST(arena, grows_and_is_used_again)
{
    int64_t before = first_chunk;
    first_chunk = 2 << 20;
    EXPECT_EQ(0, job(3, 256, growing, NULL));
    first_chunk = before;
}

/* The other ranks' positions are checked; a chunk that cannot be mapped is an error on all ranks. */
static int positions(void *arg)
{
    dt_comm *c = join();
    (void)arg;
    if (!c) return 1;
    dt__shared *s = (dt__shared *)c->shared;
    if (c->rank == 0 && !dt_comm_alloc(c, 5 << 20)) return wrong(c, "alloc"); /* level 2, 8 MiB */
    if (dt_comm_barrier(c)) return 1;
    int64_t end = dt__chunk_at(s, 2, 0) + (8 << 20);
    if (!dt__shared_see(s, end - 10, 10)) return wrong(c, "the end of the chunk");
    const int64_t bad[] = { -2, INT64_MIN, INT64_MAX, end, end - 9, dt__chunk_at(s, 3, 1), dt__chunk_at(s, 20, 0),
                            dt__chunk_at(s, 2, 0) - 5, (int64_t)s->nbytes - 5 };
    for (int i = 0; i < (int)DT__COUNT_OF(bad); i++)
        if (dt__shared_see(s, bad[i], 10) || errno != EINVAL) return printf("    position %d\n", i) + wrong(c, "a bad position");
    if (dt__shared_see(s, end - (8 << 20), (size_t)9 << 20)) return wrong(c, "too long");
    return dt_comm_free(c);
}
static int unmappable(void *arg)
{
    bool          message = *(bool *)arg;
    size_t        n = (size_t)20 << 20;
    struct rlimit r;
    unsigned long pages = 0;
    dt_comm      *c = join();
    if (!c) return 1;
    float *x = (float *)dt_comm_alloc(c, n);
    if (!x || !in_place(c, x) || dt_comm_barrier(c)) return wrong(c, "alloc");
    memset(x, 0, n);
    FILE *f = fopen("/proc/self/statm", "r");
    bool  ok = f && fscanf(f, "%lu", &pages) == 1;
    if (f) fclose(f);
    if (!ok || getrlimit(RLIMIT_AS, &r)) return 1;
    r.rlim_cur = (rlim_t)(pages * (unsigned long)sysconf(_SC_PAGESIZE) + ((unsigned long)8 << 20));
    if (c->rank == 1 && setrlimit(RLIMIT_AS, &r)) return 1;
    int rc = message ? dt_comm_broadcast(c, x, (int64_t)n, DT_COMM_U8, 0)
                     : dt_comm_allreduce(c, x, (int64_t)(n / 4), DT_COMM_F32, DT_COMM_SUM);
    if (!rc) rc = dt_comm_barrier(c);
    const char *text = dt_comm_error(c);
    ok = rc == DT_COMM_ERR_MEMORY && text && strstr(text, "rank 1: cannot map the shared memory of rank ") &&
         dt_comm_failed_rank(c) == 1;
    if (!ok) return wrong(c, "not the right error");
    return dt_comm_free(c) != DT_COMM_ERR_MEMORY;
}
UTEST(arena, positions_of_other_ranks_are_checked)
{
    int64_t before = first_chunk;
    bool    message = false;
    first_chunk = 2 << 20;
    EXPECT_EQ(0, job(2, 256, positions, NULL));
    if (!instrumented()) {
        EXPECT_EQ(0, job(2, 256, unmappable, &message));
        message = true;
        EXPECT_EQ(0, job(2, 256, unmappable, &message));
    }
    first_chunk = before;
}

/* Memory is backed when it is used: a barrier needs slots, and of many ranks a few channels. */
static int thrifty(void *arg)
{
    int         n = *(int *)arg;
    struct stat st;
    dt_comm    *c = join();
    float       x[3000];
    if (!c) return 1;
    dt__shared *s = (dt__shared *)c->shared;
    for (int i = 0; i < 3000; i++) x[i] = (float)c->rank;
    if (dt_comm_barrier(c) || fstat(s->fd, &st)) return wrong(c, "barrier");
    /* a rank sends to at most 8 others */
    if ((int64_t)st.st_blocks * 512 > (int64_t)dt__shared_stages(n) + n * 8 * 8192) return wrong(c, "too much memory is backed");
    if (dt_comm_barrier(c)) return wrong(c, "barrier");
    /* a reduction that is staged, and messages */
    if (dt_comm_allreduce(c, x, 3000, DT_COMM_F32, DT_COMM_SUM) || x[2999] != (float)(n * (n - 1) / 2)) return wrong(c, "sum");
    if (dt_comm_broadcast(c, x, 3000, DT_COMM_F32, 1)) return wrong(c, "broadcast");
    return dt_comm_free(c);
}
UTEST(segment, has_memory_only_where_it_is_used)
{
    int n = 24, more = 80;
    EXPECT_EQ(0, job(n, 0, thrifty, &n));
    if (!instrumented()) EXPECT_EQ(0, job(more, 0, thrifty, &more)); /* by messages: too many to share one reduction */
}

/* ==================================================================================================== >>worlds */
static int large_rank(void *arg)
{
    int      n = *(int *)arg, me;
    dt_comm *c = join();
    if (!c) return 1;
    me = c->rank;
    if (dt_comm_barrier(c)) return wrong(c, "barrier");
    if (dt_comm_broadcast(c, &me, 1, DT_COMM_I32, n - 1) || me != n - 1) return wrong(c, "broadcast");
    return dt_comm_free(c);
}
static int large_world(int rank, void *arg) /* with few descriptors at first: the limit is raised as far as needed */
{
    struct rlimit r;
    (void)rank;
    if (getrlimit(RLIMIT_NOFILE, &r)) return 1;
    r.rlim_cur = 100;
    return setrlimit(RLIMIT_NOFILE, &r) || job(*(int *)arg, 0, large_rank, arg);
}
UTEST(world, of_many_ranks_joins)
{
    int n = instrumented() ? 40 : dt_test_quick() ? 128 : 1024;
    relay_from = n < 512 ? n : 512;
    int64_t begin = dt_test_ns();
    EXPECT_EQ(0, dt_test_ranks(1, 60, large_world, &n));
    printf("   %d ranks: %.1f s\n", n, (double)(dt_test_ns() - begin) * 1e-9);
    relay_from = 512;
}

/* Too few descriptors: said at once, with their number, and not when the time to join is over. */
static bool says_fds(const char *text, int limit)
{
    char want[80];
    int  need = 0;
    snprintf(want, sizeof want, "file descriptors, but the limit of this process is %d: raise it (ulimit -n ", limit);
    const char *p = text ? strstr(text, want) : NULL;
    return p && sscanf(p + strlen(want), "%d", &need) == 1 && need > 100 && need < 250;
}
static int never(void *arg)
{
    *(int *)arg = 1;
    return 0;
}
DT_TEST_RANK(few_descriptors)
{
    struct rlimit r = { 64, 64 };
    int          *started = (int *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    dt_comm_opts  o;
    int64_t       begin = dt_test_ns();
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &r));
    EXPECT_EQ((int)DT_COMM_ERR_NET, dt_spawn(100, never, started));
    EXPECT_TRUE_MSG(says_fds(dt_comm_error(NULL), 64), dt_comm_error(NULL));
    EXPECT_EQ(0, *started);
    memset(&o, 0, sizeof o);
    o.world = 100;
    o.addr = "127.0.0.1";
    o.port = 1;
    EXPECT_TRUE(dt_comm_init_with(o) == NULL); /* rank 0 */
    EXPECT_TRUE_MSG(says_fds(dt_comm_error(NULL), 64), dt_comm_error(NULL));
    int n = 4;
    EXPECT_EQ(0, job(n, 0, large_rank, &n)); /* these are enough for a few ranks */
    EXPECT_LT((double)(dt_test_ns() - begin) * 1e-9, 20 * dt_test_slow());
    while (dup(0) >= 0) {} /* the program itself has used all of them */
    EXPECT_EQ((int)DT_COMM_ERR_NET, dt_spawn(2, never, started));
    EXPECT_TRUE(strstr(dt_comm_error(NULL), "file descriptors, but the limit of this process is 64") != NULL);
}
UTEST(world, that_needs_more_descriptors_than_allowed_says_so_at_once)
{
    EXPECT_EQ(0, dt_test_ranks(1, 60, few_descriptors, NULL));
}

/* ==================================================================================================== >>relays
   A world of 40 ranks that registers as if it were large. Ranks 1 to 16 come first, then 17 to 23, which are relays, too,
   then the others, which wait at relays. Something happens to one of them. */
enum { RANKS = 40, RELAYS = 7 };
enum { NOTHING, ABSENT, KILLED, STOPPED };
typedef struct relays { /* shared by all ranks */
    int   what, victim, pid;
    int   there;   /* ranks that have registered */
    int   fds, most; /* of rank 0: before, and when all have registered */
    int   told;    /* ranks that got the right error */
} relays;
static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int  n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
static void relays_hear(void *user, int level, const char *text) /* in rank 0 */
{
    relays *j = (relays *)user;
    int     rank, there;
    const char *pid = strstr(text, ", pid "), *is = strstr(text, ") is there, ");
    if (level != 4 || !pid || !is || sscanf(text, "rank %d", &rank) != 1 || sscanf(is, ") is there, %d", &there) != 1) return;
    if (rank == j->victim) j->pid = atoi(pid + 6);
    if (rank == j->victim && j->what == STOPPED) kill(j->pid, SIGSTOP);
    if (there == RANKS) j->most = count_fds();
    if (there == RANKS && j->what == STOPPED) kill(j->pid, SIGCONT);
    if (there == RANKS - 1 && j->what == KILLED) kill(j->pid, SIGKILL);
    __atomic_store_n(&j->there, there, __ATOMIC_RELEASE);
}
static bool relays_told(const relays *j, const char *text)
{
    char want[3][80];
    if (!text) return false;
    snprintf(want[0], sizeof want[0], "missing: rank %d (%d of %d are there)", RANKS - 1, RANKS - 1, RANKS);
    snprintf(want[1], sizeof want[1], ", pid %d) left while joining; missing: ranks %d, %d", j->pid, j->victim, RANKS - 1);
    snprintf(want[2], sizeof want[2], "rank %d left while this rank was joining", j->victim);
    if (j->what == ABSENT) return strstr(text, want[0]) && strstr(text, "the world is not complete after ");
    return strstr(text, want[1]) || (j->victim <= 23 && strstr(text, want[2])); /* at a relay that died */
}
static int relays_rank(void *arg)
{
    relays *j = (relays *)arg;
    int     rank = atoi(getenv("RANK"));
    if (rank == RANKS - 1 && (j->what == ABSENT || j->what == KILLED)) return 0;
    if (rank == 0) j->fds = count_fds(), dt_set_log(relays_hear, j);
    while (__atomic_load_n(&j->there, __ATOMIC_ACQUIRE) < (rank > 23 ? 24 : rank > 16 ? 17 : 0)) poll(NULL, 0, 1);
    dt_comm *c = dt_comm_init(.timeout = 30 * dt_test_slow(), .join_timeout = (j->what == ABSENT ? 2 : 30) * dt_test_slow());
    if (j->what == ABSENT || j->what == KILLED) {
        bool right = !c && relays_told(j, dt_comm_error(NULL)) && dt_comm_get_status(NULL) == DT_COMM_ERR_JOIN;
        if (!right) printf("    rank %d: %s\n", rank, c ? "joined" : dt_comm_error(NULL));
        __atomic_add_fetch(&j->told, right, __ATOMIC_SEQ_CST);
        return 0;
    }
    if (!c) return printf("    rank %d: %s\n", rank, dt_comm_error(NULL));
    if (rank == 0 && c->world->control->ndirect != RELAYS) return wrong(c, "no relays");
    dt_sha256 s;
    uint8_t   sum[32], all[RANKS][32];
    dt_sha256_begin(&s);
    dt_sha256_add(&s, c->world->member, RANKS * sizeof *c->world->member);
    dt_sha256_end(&s, sum);
    if (dt_comm_allgather(c, sum, all, 32, NULL, DT_COMM_U8)) return wrong(c, "allgather");
    for (int r = 0; r < RANKS; r++)
        if (memcmp(all[r], sum, 32)) return wrong(c, "the tables differ");
    return dt_comm_free(c);
}
static relays *relays_run(int what, int victim, int *status)
{
    relays *j = (relays *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    j->what = what;
    j->victim = victim;
    relay_from = RANKS;
    *status = dt_spawn(RANKS, relays_rank, j);
    relay_from = 512;
    return j;
}
UTEST(relays, rank_0_keeps_few_connections)
{
    int     status;
    relays *j = relays_run(NOTHING, -1, &status);
    EXPECT_EQ(0, status);
    EXPECT_GE(j->most, j->fds + 16 + RELAYS);
    EXPECT_LE(j->most, j->fds + 16 + RELAYS + 6); /* three listeners, an eventfd, what lists them */
    munmap(j, sizeof *j);
}
UTEST(relays, who_is_missing_is_named_to_all_who_came)
{
    int     status;
    relays *j = relays_run(ABSENT, -1, &status);
    EXPECT_EQ(0, status);
    EXPECT_EQ(RANKS - 1, j->told);
    munmap(j, sizeof *j);
}
UTEST(relays, a_rank_that_dies_at_a_relay_and_a_relay_are_named)
{
    const int victim[] = { 30, 20, 3 };
    for (int i = 0; i < 3; i++) {
        int     status;
        relays *j = relays_run(KILLED, victim[i], &status);
        EXPECT_EQ(128 + SIGKILL, status);
        EXPECT_EQ(RANKS - 2, j->told);
        munmap(j, sizeof *j);
    }
}
UTEST(relays, a_relay_that_does_not_answer_is_replaced)
{
    int status;
    if (dt_test_quick()) UTEST_SKIP("it takes the time that a relay has to answer");
    relays *j = relays_run(STOPPED, 20, &status);
    EXPECT_EQ(0, status);
    munmap(j, sizeof *j);
}
