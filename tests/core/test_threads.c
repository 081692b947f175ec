/* The pool and the threads of the user: same bits, safe beside each other, after a fork. */
#include "dt_test.h"

#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static double work(uint64_t seed) /* a small training step; a number that depends on every bit of it */
{
    dt_manual_seed(seed);
    dt_tensor *w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(8, 3, 3, 3))), *x = dt_normal(0, 1, DT_SHAPE(16, 3, 24, 24));
    dt_tensor *h = dt_maxpool2d(dt_op_conv2d(x, w, NULL, .pad = 1, .act = DT_ACT_RELU), .kernel = 2);
    dt_tensor *a = dt_matmul(dt_flatten(h), dt_normal(0, 0.01, DT_SHAPE(1152, 64)));
    dt_backward(dt_mean(dt_mul(dt_softmax(dt_op_dropout(a, 0.3), 1), a)));
    float    g[216];
    uint64_t bits = 0;
    if (dt_copy_out(dt_grad(w), g, sizeof g) == DT_OK)
        for (int i = 0; i < 216; i++) {
            uint32_t u;
            memcpy(&u, &g[i], 4);
            bits = bits * 1099511628211ull + u;
        }
    dt_end();
    dt_free(w);
    return dt_error() ? -1 : (double)(bits >> 12);
}

UTEST(threads, the_number_of_threads_does_not_change_a_bit)
{
    dt_set_num_threads(1);
    EXPECT_EQ(1, dt_get_num_threads());
    double one = work(3);
    EXPECT_TRUE(one > 0);
    for (int n = 2; n <= 5; n++) {
        dt_set_num_threads(n);
        EXPECT_EQ(one, work(3));
    }
    dt_set_num_threads(0);
    EXPECT_GE(dt_get_num_threads(), 1);
}

static void *user_thread(void *arg)
{
    double *r = (double *)arg;
    for (int i = 0; i < 4; i++) r[i] = work((uint64_t)i + 1);
    return NULL;
}
UTEST(threads, several_user_threads_at_once)
{
    double    want[4], got[4][4];
    pthread_t t[4];
    dt_set_num_threads(3);
    user_thread(want);
    for (int i = 0; i < 4; i++) ASSERT_EQ(0, pthread_create(&t[i], NULL, user_thread, got[i]));
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) EXPECT_EQ(want[k], got[i][k]);
    dt_set_num_threads(0);
}

static void *failing_thread(void *arg)
{
    *(int *)arg = dt_add(dt_ones(DT_SHAPE(2)), dt_ones(DT_SHAPE(3))) == NULL && dt_error() != NULL;
    return NULL;
}
UTEST(threads, an_error_stays_on_its_thread)
{
    pthread_t t;
    int       failed = 0;
    ASSERT_EQ(0, pthread_create(&t, NULL, failing_thread, &failed));
    pthread_join(t, NULL);
    EXPECT_EQ(1, failed);
    EXPECT_TRUE(dt_error() == NULL);
}

UTEST(threads, a_thread_gives_its_memory_back_when_it_ends)
{
    double    r[4];
    pthread_t t;
    int64_t   live = dt_stats().live_tensors;
    ASSERT_EQ(0, pthread_create(&t, NULL, user_thread, r));
    pthread_join(t, NULL);
    EXPECT_EQ(live, dt_stats().live_tensors);
    dt_empty_cache();
    EXPECT_EQ((size_t)0, dt_stats().cached_bytes);
}

static void *other_tape(void *arg)
{
    dt_tensor *y = *(dt_tensor **)arg;
    *(int *)((dt_tensor **)arg + 1) = dt_mul(y, y) == NULL && strstr(dt_error(), "another thread") != NULL;
    return NULL;
}
UTEST(threads, values_of_another_threads_tape_are_refused)
{
    struct { dt_tensor *y; int refused; } a;
    pthread_t  t;
    dt_tensor *w = dt_set_requires_grad(dt_ones(DT_SHAPE(2)));
    a.y = dt_exp(w);
    a.refused = 0;
    ASSERT_EQ(0, pthread_create(&t, NULL, other_tape, &a));
    pthread_join(t, NULL);
    EXPECT_EQ(1, a.refused);
    dt_end();
    dt_free(w);
}

static int threads_of_this_process(void) /* -1 where the system does not tell */
{
    DIR *d = opendir("/proc/self/task");
    int  n = d ? 0 : -1;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}
static int forked(int rank, void *arg)
{
    (void)rank;
    double got = work(7);
    int    n = threads_of_this_process();
    return got == *(double *)arg && (n < 0 || n >= 2) ? 0 : 1; /* the same bits, and a worker of its own again */
}
UTEST(threads, the_pool_works_in_forked_ranks)
{
#ifdef __SANITIZE_THREAD__
    UTEST_SKIP("ThreadSanitizer allows no new threads after the fork of a process with threads");
#endif
    dt_set_num_threads(2);
    double want = work(7); /* the parent's pool has threads when it forks */
    EXPECT_EQ(0, dt_test_ranks(3, 30, forked, &want));
    dt_set_num_threads(0);
}

static int defaults(int rank, void *arg)
{
    (void)rank, (void)arg;
    unsetenv("DT_NUM_THREADS");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    dt_set_num_threads(0);
    int all = dt_get_num_threads();
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    dt_set_num_threads(0);
    int half = dt_get_num_threads();
    setenv("DT_NUM_THREADS", "3", 1);
    dt_set_num_threads(0);
    return all < 1 || half != (all / 2 > 1 ? all / 2 : 1) || dt_get_num_threads() != 3;
}
UTEST(threads, the_default_is_the_cores_shared_by_the_local_ranks)
{
    EXPECT_EQ(0, dt_test_ranks(1, 10, defaults, NULL));
}

UTEST(threads, a_generators_state_can_be_saved_and_restored)
{
    float a[40], b[40];
    dt_manual_seed(11);
    dt_copy_out(dt_normal(0, 1, DT_SHAPE(5)), a, 20); /* an odd number: a cached normal is part of the state */
    dt_rng saved = *dt_rng_default();
    dt_copy_out(dt_add(dt_normal(0, 1, DT_SHAPE(40)), dt_op_dropout(dt_ones(DT_SHAPE(40)), 0.5)), a, sizeof a);
    *dt_rng_default() = saved;
    dt_copy_out(dt_add(dt_normal(0, 1, DT_SHAPE(40)), dt_op_dropout(dt_ones(DT_SHAPE(40)), 0.5)), b, sizeof b);
    EXPECT_EQ(0, memcmp(a, b, sizeof a));
    dt_end();
    EXPECT_EQ(0, dt_check("test"));
}

UTEST_MAIN()
