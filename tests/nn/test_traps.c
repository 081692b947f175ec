/* What a new user falls into: errors that nobody reads, plain numbers as sets of dimensions, handles used after their step,
   a model used on two threads in turn, an option that is zero. */
#define _GNU_SOURCE
#include "dt_test.h"

#include <pthread.h>

#include "dt_comm.h"
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

/* ---- ranks */
static int rank_that_ends(void *arg)
{
    (void)arg;
    bad_shapes();
    return 0;
}
static int rank_that_disagrees(void *read)
{
    dt_comm *c = dt_comm_init(.timeout = 20);
    float    x = 1;
    if (!c) return 1;
    if (dt_comm_rank(c)) dt_comm_barrier(c);
    else dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
    if (read && !dt_comm_error(c)) return 2;
    dt_comm_free(c);
    return 0;
}
static int  yes = 1;
static void ranks_ended(void) { dt_spawn(2, rank_that_ends, NULL); }
static void comms_freed(void) { dt_spawn(2, rank_that_disagrees, NULL); }
static void comms_read(void) { dt_spawn(2, rank_that_disagrees, &yes); }
UTEST(unread, errors_of_ranks_and_communicators)
{
    unsetenv("DT_LOG");
    hear(ranks_ended);
    EXPECT_EQ(times("error: "), 2); /* each rank one */
    EXPECT_EQ(times("dt_matmul"), 2);
    hear(comms_read);
    int logged = times("different things"); /* by the library itself, as it happened */
    hear(comms_freed);
    EXPECT_EQ(times("different things"), logged + 2);
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
    const char *preload = getenv("LD_PRELOAD"); /* valgrind is there; like ThreadSanitizer it keeps memory of its own */
#ifdef __SANITIZE_THREAD__
    preload = "vgpreload";
#endif
    if (!preload || !strstr(preload, "vgpreload"))
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
static void *trains(void *arg)
{
    dt_model     *m = (dt_model *)arg;
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_backward(dt_sum(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4)));
    dt_step(opt);
    void *bad = dt_error() || !dt_model_is_sealed(m) || dt_optimizer_steps(opt) != 1 ? arg : NULL;
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
    return bad;
}
UTEST(model, used_here_trained_and_freed_elsewhere)
{
    for (int i = 0; i < 40; i++) { /* more than a thread has hooks */
        dt_model *m = dt_model_new(.seed = 1);
        pthread_t id;
        void     *bad = NULL;
        EXPECT_OK(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4));
        dt_end();
        ASSERT_EQ(0, pthread_create(&id, NULL, trains, m));
        pthread_join(id, &bad);
        EXPECT_TRUE(bad == NULL);
    }
    dt_tensor *x = dt_set_requires_grad(dt_ones(DT_SHAPE(1)));
    EXPECT_OK(dt_backward(dt_sum(x))); /* hooks of models that are gone do nothing */
    dt_end();
    dt_free(x);
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

/* ---- options */
UTEST(options, a_zero_that_means_the_default_is_refused)
{
    dt_model *m = dt_model_new(.seed = 1);
    double    zero = 0;
    EXPECT_ERROR(dt_sgd(m, .lr = 0), ".lr = DT_ZERO");
    EXPECT_ERROR(dt_adam(m, .lr = 0.1, .beta1 = 0.0), ".beta1 = DT_ZERO");
    EXPECT_ERROR(dt_adamw(m, .weight_decay = zero), ".weight_decay = DT_ZERO");
    dt_optimizer *opt = dt_adamw(m, .lr = 0.5, .weight_decay = DT_ZERO);
    ASSERT_TRUE(opt != NULL);
    EXPECT_ERROR(dt_optimizer_add_group(opt, "*", .lr = 0), ".lr = DT_ZERO");
    EXPECT_OK(dt_optimizer_add_group(opt, "*.bias", .weight_decay = 0, .lr = 0.1)); /* zero already: nothing to refuse */
    dt_optimizer_free(opt);
    opt = dt_sgd(m, .lr = 0.1, .momentum = 0, .weight_decay = 0);
    EXPECT_TRUE(opt != NULL);
    dt_optimizer_free(opt);
    dt_model_free(m);
}

/* ---- two optimisers, one forward */
static dt_tensor *generator(dt_model *m, dt_tensor *z) { return dt_linear(m, "g", z, .out = 3); }
static dt_tensor *discriminator(dt_model *m, dt_tensor *x) { return dt_linear(m, "d", x, .out = 1); }
static double norm_of(dt_model *m, const char *name) { return dt_item(dt_sum(dt_mul(dt_model_find(m, name), dt_model_find(m, name)))); }
UTEST(update, trains_both_nets_of_a_gan_from_one_batch)
{
    dt_model     *g = dt_model_new(.seed = 1), *d = dt_model_new(.seed = 2);
    dt_optimizer *opt_g = dt_sgd(g, .lr = 0.1), *opt_d = dt_sgd(d, .lr = 0.1);
    double        was[2] = { 0, 0 };
    for (int step = 0; step < 3; step++) {
        dt_tensor *z = dt_ones(DT_SHAPE(4, 2)), *real = dt_ones(DT_SHAPE(4, 3));
        dt_tensor *ones = dt_ones(DT_SHAPE(4, 1)), *zeros = dt_zeros(DT_SHAPE(4, 1)), *fake = generator(g, z);
        EXPECT_OK(dt_backward(dt_bce_with_logits(discriminator(d, real), ones)));
        EXPECT_OK(dt_backward(dt_bce_with_logits(discriminator(d, dt_detach(fake)), zeros)));
        EXPECT_OK(dt_update(opt_d));
        EXPECT_OK(dt_backward(dt_bce_with_logits(discriminator(d, fake), ones)));
        dt_optimizer_zero_grad(opt_d);
        EXPECT_OK(dt_step(opt_g));
        double now[2] = { norm_of(g, "g.weight"), norm_of(d, "d.weight") };
        EXPECT_TRUE(now[0] != was[0] && now[1] != was[1]);
        was[0] = now[0], was[1] = now[1];
        dt_end();
    }
    EXPECT_EQ(dt_optimizer_steps(opt_g), 3);
    EXPECT_EQ(dt_optimizer_steps(opt_d), 3);
    dt_optimizer_free(opt_g);
    dt_optimizer_free(opt_d);
    dt_model_free(g);
    dt_model_free(d);
}
static void idle_steps(void)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_backward(dt_sum(generator(m, dt_ones(DT_SHAPE(1, 2)))));
    dt_step(opt);
    dt_step(opt); /* no backward: nothing changes */
    dt_step(opt);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(update, a_step_that_changes_nothing_says_so_once)
{
    unsetenv("DT_LOG");
    hear(idle_steps);
    EXPECT_EQ(times("nothing changed"), 1);
    EXPECT_EQ(times("dt_update"), 1);
    EXPECT_TRUE(dt_error() == NULL);
}

/* ---- files */
static const char file[] = "build/test_traps.safetensors";
static void write_file(const char *name, dt_tensor *t)
{
    dt_archive *a = dt_archive_new();
    dt_archive_add(a, name, t);
    dt_archive_write(a, file);
    dt_archive_free(a);
}
UTEST(files, a_layer_that_a_strictly_loaded_file_lacks_is_an_error_when_it_is_made)
{
    write_file("fc.weight", dt_ones(DT_SHAPE(4, 3)));
    dt_end();
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_TRUE(dt_model_load(m, file) >= 0);
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4), "'fc.bias' is missing in the file");
    dt_model_free(m);
    dt_end();
    m = dt_model_new(.seed = 1);
    EXPECT_TRUE(dt_model_load(m, file, .no_strict = true) >= 0);
    EXPECT_OK(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4));
    dt_model_free(m);
    dt_end();
    m = dt_model_new(.seed = 1);
    EXPECT_TRUE(dt_model_load(m, file) >= 0);
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 5)), .out = 4), "(4, 3) in the file, (4, 5) in the model");
    dt_model_free(m);
    dt_end();
}
UTEST(files, a_prefix_of_all_names_is_named)
{
    write_file("module.fc.weight", dt_ones(DT_SHAPE(4, 3)));
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_TRUE(dt_model_load(m, file) >= 0);
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4, .no_bias = true), ".strip = \"module.\"");
    dt_model_free(m);
    dt_end();
    m = dt_model_new(.seed = 1); /* the same when the model is there first */
    dt_linear(m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 4, .no_bias = true);
    dt_model_seal(m);
    EXPECT_ERROR(dt_model_load(m, file), ".strip = \"module.\"");
    dt_model_free(m);
    dt_end();
}
static void bytes(const char *data, size_t n)
{
    FILE *f = fopen(file, "wb");
    if (!f) return;
    fwrite(data, 1, n, f);
    fclose(f);
}
UTEST(files, other_formats_and_dtypes_are_named)
{
    static const char head[] = "{\"fc.weight\":{\"dtype\":\"F64\",\"shape\":[1,1],\"data_offsets\":[0,8]}}";
    static const char odd[] = "{\"fc.weight\":{\"dtype\":\"U64\",\"shape\":[1,1],\"data_offsets\":[0,8]}}";
    char              f64[128] = { 0 };
    uint64_t          n = sizeof head - 1;
    double            value = 0.75;
    memcpy(f64, &n, 8);
    memcpy(f64 + 8, head, sizeof head - 1);
    memcpy(f64 + 8 + n, &value, 8);
    bytes(f64, 8 + sizeof head - 1 + 8);
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_TRUE(dt_model_load(m, file) >= 0);
    EXPECT_NEAR(0.75, dt_item(dt_linear(m, "fc", dt_ones(DT_SHAPE(1, 1)), .out = 1, .no_bias = true)), 0); /* converted */
    dt_model_free(m);
    dt_end();
    memcpy(f64 + 8, odd, sizeof odd - 1);
    bytes(f64, 8 + sizeof head - 1 + 8);
    m = dt_model_new(.seed = 1);
    EXPECT_TRUE(dt_model_load(m, file) >= 0);
    EXPECT_ERROR(dt_linear(m, "fc", dt_ones(DT_SHAPE(1, 1)), .out = 1, .no_bias = true), "is U64 (1, 1) in the file");
    dt_model_free(m);
    dt_end();
    bytes("PK\003\004\024\000\010\010", 8);
    EXPECT_ERROR(dt_archive_open(file), "PyTorch archive");
    bytes("\200\002\212\012lfc", 8);
    EXPECT_ERROR(dt_archive_open(file), "pickle");
    bytes("\377\377\377\377\377\377\377\177", 8);
    EXPECT_ERROR(dt_archive_open(file), "not a safetensors file");
    remove(file);
}

UTEST_MAIN()
