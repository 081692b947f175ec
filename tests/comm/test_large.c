/* test_large.c: large worlds and large memory: many ranks, many communicators, arenas that grow, few descriptors
   run: alone, long */
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
#include "dt_comm.h"

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
