/* rank_threads.h: ranks that are threads with a GPU each, in a process of their own */
#ifndef RANK_THREADS_H
#define RANK_THREADS_H

#include "dt_test.h"

#include "dt_nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct rank_arg {
    dt_comm *c;
    int      rank, world, failed;
    char     why[400];
    void (*body)(struct rank_arg *a);
    dt_device *gpu;
    double     extra;
} rank_arg;
#define MUST(x)                                                                                                    \
    do {                                                                                                           \
        if (!(x) && !a->failed) {                                                                                  \
            a->failed = __LINE__;                                                                                  \
            snprintf(a->why, sizeof a->why, "rank %d, line %d: %s; comm: %.150s; dt: %.100s", a->rank, __LINE__, #x, \
                     dt_comm_error(a->c) ? dt_comm_error(a->c) : "-", dt_error() ? dt_error() : "-");              \
        }                                                                                                          \
    } while (0)
static void *rank_thread(void *p)
{
    rank_arg *a = (rank_arg *)p;
    a->gpu = dt_cuda(a->rank);
    MUST(a->gpu != NULL);
    dt_set_default_device(a->gpu);
    if (a->gpu) a->body(a);
    dt_error_clear();
    dt_end();
    return NULL;
}
typedef struct threads_arg {
    int    n;
    double timeout;
    void (*body)(rank_arg *a);
} threads_arg;
static bool host_only; /* communicators without NCCL */
static void run_threads_here(int *utest_result, int n, double timeout, void (*body)(rank_arg *a))
{
    dt_comm  *c[8];
    rank_arg  arg[8];
    pthread_t t[8];
    ASSERT_GE(dt_cuda_count(), n);
    ASSERT_EQ(0, dt_comm_threads(n, c, .backend = host_only ? 0 : DT_NCCL, .timeout = timeout * dt_test_slow()));
    memset(arg, 0, sizeof arg);
    for (int i = 0; i < n; i++) {
        arg[i].c = c[i];
        arg[i].rank = i;
        arg[i].world = n;
        arg[i].body = body;
        ASSERT_EQ(0, pthread_create(&t[i], NULL, rank_thread, &arg[i]));
    }
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < n; i++) EXPECT_STREQ("", arg[i].why);
}

static int threads_main(int rank, void *p)
{
    threads_arg *k = (threads_arg *)p;
    int          failed = 0, *utest_result = &failed;
    (void)rank;
    run_threads_here(utest_result, k->n, k->timeout, k->body);
    return failed;
}
/* In a process of its own: one that has used a GPU cannot fork ranks that do. */
static DT_TEST_UNUSED void run_threads(int *utest_result, int n, double timeout, void (*body)(rank_arg *a))
{
    threads_arg k = { n, timeout, body };
    EXPECT_EQ(0, dt_test_ranks(1, 50, threads_main, &k));
}
#endif
