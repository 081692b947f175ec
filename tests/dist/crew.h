/* crew.h: a function on n ranks that are processes (shared memory or TCP), and what they say of it
       crew_run("shm", n, fn, arg)     0, or how many checks failed (100 more if a rank did not end with 0)
       in fn: crew_check(k, ok, "what"), k->rank, k->world, k->c; k->box is memory that all ranks and the test share
   A rank whose dt_error is pending at the end has failed, unless fn cleared it. */
#ifndef CREW_H
#define CREW_H
#include "harness.h"

#include "dt_comm.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct crew_box {
    int   failed;
    int   status;     /* of dt_spawn */
    int   number[16]; /* what a test likes, by rank */
    float x[16][8192];
    char  text[16][1024];
} crew_box;
typedef struct crew {
    dt_comm    *c;
    int         rank, world;
    const char *how;
    void       *arg;
    crew_box   *box;
    void (*fn)(struct crew *k);
    dt_comm_opts o;
} crew;
static DT_TEST_UNUSED bool crew_check(crew *k, bool ok, const char *what)
{
    if (!ok && __atomic_add_fetch(&k->box->failed, 1, __ATOMIC_RELAXED) < 8) {
        printf("    %s: rank %d of %d over %s: %s\n", what, k->rank, k->world, k->how, dt_error() ? dt_error() : "");
        fflush(stdout);
    }
    return ok;
}
static double crew_timeout = 20; /* of communicators */
static int    crew_rank(void *arg)
{
    crew *k = (crew *)arg;
    k->o.transport = k->how;
    k->o.timeout = crew_timeout;
    k->o.join_timeout = 30;
    k->c = dt_comm_init_with(k->o);
    if (!k->c) {
        printf("    init: %s\n", dt_comm_error(NULL));
        __atomic_add_fetch(&k->box->failed, 1, __ATOMIC_RELAXED);
        return 1;
    }
    k->rank = dt_comm_rank(k->c);
    k->world = dt_comm_size(k->c);
    k->fn(k);
    crew_check(k, dt_error_code() == DT_OK, "an error at the end");
    dt_error_clear();
    dt_comm_free(k->c);
    return 0;
}
static DT_TEST_UNUSED crew_box *crew_box_new(void)
{
    void *p = mmap(NULL, sizeof(crew_box), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : (crew_box *)p;
}
/* the box stays: munmap it */
static DT_TEST_UNUSED int crew_run_in(crew_box *box, const char *how, int n, void (*fn)(crew *k), void *arg)
{
    crew k;
    memset((void *)&k, 0, sizeof k);
    k.how = how;
    k.fn = fn;
    k.arg = arg;
    k.box = box;
    if (!box) return 1000;
    box->failed = 0;
    box->status = dt_spawn(n, crew_rank, &k);
    return box->failed + (box->status ? 100 : 0);
}
static DT_TEST_UNUSED int crew_run(const char *how, int n, void (*fn)(crew *k), void *arg)
{
    crew_box *box = crew_box_new();
    int       rc = crew_run_in(box, how, n, fn, arg);
    if (box) munmap(box, sizeof *box);
    return rc;
}
#endif
