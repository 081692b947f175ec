/* What a new user falls into: errors that nobody reads, plain numbers as sets of dimensions, handles used after their step,
   a model used on two threads in turn, an option that is zero. */
#define _GNU_SOURCE
#include "dt_test.h"

#include <pthread.h>

#include "dt_data.h"
#include "dt_nn.h"

/* ---- what is written to stderr */
static char said[8192];
static void hear(void (*fn)(void)) /* fn's stderr, of the default log function, is in said */
{
    FILE *f = tmpfile();
    int   old = dup(2);
    size_t n = 0;
    fflush(stderr);
    if (f && old >= 0 && dup2(fileno(f), 2) >= 0) {
        fn();
        fflush(stderr);
        dup2(old, 2);
        rewind(f);
        n = fread(said, 1, sizeof said - 1, f);
    }
    said[n] = 0;
    if (f) fclose(f);
    close(old);
}
static int times(const char *text)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, text)); p++) n++;
    return n;
}

static void bad_shapes(void) { dt_matmul(dt_ones(DT_SHAPE(2, 3)), dt_ones(DT_SHAPE(2, 3))); }
static void item_unread(void)
{
    bad_shapes();
    dt_item(NULL);
    dt_item(NULL);
}
static void read_by_the_program(void)
{
    bad_shapes();
    if (dt_error()) dt_item(NULL);
    dt_model_free(NULL);
}
static void model_freed(void)
{
    dt_model *m = dt_model_new(.seed = 1);
    bad_shapes();
    dt_model_free(m);
    dt_model_free(NULL);
}
static void loop_without_data(void)
{
    dt_dataset *s = dt_mnist_open("/nonexistent", DT_TRAIN);
    dt_loader  *in = dt_loader_new(s, .batch = 4);
    dt_batch    b;
    for (int i = 0; i < 5000; i++) /* for ever, but for this test */
        while (dt_loader_next(in, &b)) {
        }
    dt_loader_free(in);
}
static void *thread_that_ends(void *arg)
{
    (void)arg;
    bad_shapes();
    return NULL;
}
static void thread_ended(void)
{
    pthread_t t;
    if (pthread_create(&t, NULL, thread_that_ends, NULL) == 0) pthread_join(t, NULL);
}
static void hidden(void *user, int level, const char *text) { (void)text, *(int *)user += level == DT_LOG_ERROR; }
static void own_callback(void)
{
    int n = 0;
    dt_set_log(hidden, &n);
    model_freed();
    dt_set_log(NULL, NULL);
    fprintf(stderr, "heard %d\n", n);
}

UTEST(unread, errors_are_written_once_when_nobody_read_them)
{
    unsetenv("DT_LOG");
    void (*const fn[])(void) = { item_unread, model_freed, loop_without_data, thread_ended };
    const char *const part[] = { "dt_matmul", "dt_matmul", "/nonexistent", "dt_matmul" };
    for (int i = 0; i < 4; i++) {
        hear(fn[i]);
        EXPECT_EQ(times("error: "), 1);
        EXPECT_EQ(times(part[i]), 1);
        dt_error_clear();
        dt_end();
    }
}
UTEST(unread, errors_that_were_read_are_not)
{
    unsetenv("DT_LOG");
    hear(read_by_the_program);
    EXPECT_STREQ(said, "");
    dt_error_clear();
    hear(own_callback);
    EXPECT_STREQ(said, "heard 1\n");
    dt_error_clear();
    dt_end();
}

UTEST(dims, a_plain_number_is_refused_with_the_right_spelling)
{
    dt_tensor *x = dt_ones(DT_SHAPE(2, 3));
    EXPECT_ERROR(dt_sum(x, 1), "DT_DIM(1)");
    EXPECT_ERROR(dt_sum(x, .dims = 1), ".dims = 1");
    EXPECT_ERROR(dt_mean(x, .dims = (uint32_t)-1), "DT_DIM(-1)");
    EXPECT_ERROR(dt_amax(x, .dims = 3), "DT_DIM(");
    EXPECT_ERROR(dt_argmax(x, .dims = 1), "DT_DIM(1)");
    EXPECT_ERROR(dt_sum(x, .dims = DT_DIM(2)), "2");
    EXPECT_EQ(dt_numel(dt_sum(x, .dims = DT_DIM(1))), 2);
    EXPECT_EQ(dt_numel(dt_sum(x, .dims = DT_DIM(-2))), 3);
    EXPECT_EQ(dt_numel(dt_sum(x, .dims = DT_DIM(0) | DT_DIM(-1))), 1);
    EXPECT_EQ(dt_numel(dt_argmax(x, .dims = DT_DIM(1))), 2);
    dt_end();
}

UTEST(handles, a_handle_does_not_come_alive_again)
{
    dt_tensor *x = dt_ones(DT_SHAPE(3));
    dt_end();
    dt_tensor *y = dt_full(7, DT_SHAPE(3));
    EXPECT_TRUE(x != y);
    EXPECT_ERROR(dt_sum(x), "dt_keep");
    EXPECT_EQ(dt_numel(x), 0);
    dt_end();
}
UTEST(handles, dead_ones_stay_dead_and_take_no_memory)
{
    enum { OLD = 997, STEPS = 4000, EACH = 100 };
    static dt_tensor *old[OLD];
    dt_tensor        *one = dt_keep(dt_ones(DT_SHAPE(1)));
    long              pages[2] = { 0, 0 }, all;
    int               alive = 0, steps = dt_test_quick() ? STEPS / 10 : STEPS;
    for (int s = 0, k = 0; s < 2 * steps; s++) {
        for (int i = 0; i < EACH; i++, k = (k + 1) % OLD) old[k] = dt_add_scalar(one, 1);
        dt_end();
        if (s % 50 == 0)
            for (int i = 0; i < OLD; i++) alive += old[i] && dt_numel(old[i]) != 0;
        if ((s + 1) % steps == 0) {
            FILE *f = fopen("/proc/self/statm", "r");
            if (f && fscanf(f, "%ld %ld", &all, &pages[s / steps]) != 2) pages[s / steps] = 0;
            if (f) fclose(f);
        }
    }
    EXPECT_EQ(alive, 0);
    EXPECT_LT(pages[1], pages[0] + 512); /* 2 MiB; the handles of the second half would be 30 times that */
    dt_free(one);
}
static void *makes_and_ends(void *arg)
{
    dt_tensor **t = (dt_tensor **)arg;
    for (int i = 0; i < 100; i++) t[i] = dt_ones(DT_SHAPE(2));
    dt_end();
    return NULL;
}
UTEST(handles, of_threads_that_ended_stay_dead)
{
    static dt_tensor *t[100];
    pthread_t         id;
    ASSERT_EQ(0, pthread_create(&id, NULL, makes_and_ends, t));
    pthread_join(id, NULL);
    int alive = 0;
    for (int i = 0; i < 200; i++) dt_zeros(DT_SHAPE(2));
    for (int i = 0; i < 100; i++) alive += dt_numel(t[i]) != 0;
    EXPECT_EQ(alive, 0);
    EXPECT_ERROR(dt_neg(t[5]), "dt_keep");
    dt_end();
}

/* ---- a model on two threads, one at a time */
static void *one_forward(void *arg)
{
    dt_model *m = (dt_model *)arg;
    dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4);
    static int bad;
    bad = dt_error() != NULL;
    dt_error_clear();
    dt_end();
    return bad ? arg : NULL;
}
UTEST(model, may_be_used_on_one_thread_after_another)
{
    dt_model *m = dt_model_new(.seed = 1);
    dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4);
    for (int i = 0; i < 3; i++) {
        pthread_t id;
        void     *bad = NULL;
        ASSERT_EQ(0, pthread_create(&id, NULL, one_forward, m));
        pthread_join(id, &bad);
        EXPECT_TRUE(bad == NULL);
    }
    EXPECT_OK(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4));
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4), "dt_end()");
    dt_end();
    dt_model_free(m);
}

UTEST_MAIN()
