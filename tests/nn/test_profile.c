/* test_profile.c: DT_PROFILE: what a profile says of small models, counted by hand; when and where it is written.
   Contents: >>counts >>steps >>files >>models >>processes */
#define _GNU_SOURCE
#include "dt_data.h"
#include "dt_nn.h"
#include "dt_scale.h"
#include "dt_test.h"

#include "fake_device.h"
#include "temp_files.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the text of a profile */
typedef struct text {
    char *s;
} text;
static text read_text(const char *path)
{
    text  t = { NULL };
    FILE *f = fopen(path, "rb");
    if (!f) return t;
    t.s = (char *)calloc(1, 1 << 18);
    if (t.s) t.s[fread(t.s, 1, (1 << 18) - 1, f)] = 0;
    fclose(f);
    return t;
}
/* The line that begins with these words; "": it is missing. */
static const char *line(text t, const char *words)
{
    static char buf[8][512];
    static int  turn;
    char       *to = buf[turn = (turn + 1) & 7];
    size_t      n = strlen(words);
    to[0] = 0;
    for (const char *p = t.s; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (!strncmp(p, words, n) && (p[n] == ' ' || p[n] == '\n')) {
            snprintf(to, sizeof buf[0], "%.*s", (int)strcspn(p, "\n"), p);
            break;
        }
    return to;
}
/* The number behind a word of a line, in its base unit; -1: the word is missing, or the unit is another. */
static double after(const char *l, const char *word, const char *unit)
{
    char        key[64];
    const char *at;
    char       *end;
    snprintf(key, sizeof key, "%s ", word);
    at = !strncmp(l, key, strlen(key)) ? l : NULL;
    snprintf(key, sizeof key, " %s ", word);
    if (!at && (at = strstr(l, key))) at++;
    if (!at) return -1;
    double v = strtod(at + strlen(word) + 1, &end);
    size_t n = strlen(unit);
    return !strncmp(end, unit, n) && (end[n] == 0 || end[n] == ' ') ? v : -1;
}
static double number(text t, const char *word, const char *unit) { return after(line(t, word), word, unit); }
static double layer(text t, const char *name, const char *word, const char *unit)
{
    char key[128];
    snprintf(key, sizeof key, "layer %s", name);
    return after(line(t, key), word, unit);
}
static int lines(text t, const char *word)
{
    int n = 0;
    for (const char *p = t.s; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) n += !strncmp(p, word, strlen(word)) && p[strlen(word)] == ' ';
    return n;
}
/* The i-th line with this word: the word behind it. */
static void nth(text t, const char *word, int i, char *to, size_t nbytes)
{
    to[0] = 0;
    for (const char *p = t.s; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (!strncmp(p, word, strlen(word)) && p[strlen(word)] == ' ' && i-- == 0) {
            p += strlen(word) + 1;
            snprintf(to, nbytes, "%.*s", (int)strcspn(p, " \n"), p);
            return;
        }
}

/* ---- trainings */
static char logged[4096];
static void keep_log(void *user, int level, const char *message)
{
    (void)user;
    if (level <= DT_LOG_WARN) snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}
struct profile {
    char *dir;
    char  path[4200];
};
UTEST_F_SETUP(profile)
{
    utest_fixture->dir = temp_dir();
    snprintf(utest_fixture->path, sizeof utest_fixture->path, "%s/p", utest_fixture->dir);
    setenv("DT_PROFILE", utest_fixture->path, 1);
    setenv("DT_PROFILE_STEPS", "4", 1);
    logged[0] = 0;
    dt_set_log(keep_log, NULL);
    ASSERT_TRUE(utest_fixture->dir != NULL);
}
UTEST_F_TEARDOWN(profile)
{
    (void)utest_result;
    unsetenv("DT_PROFILE");
    unsetenv("DT_PROFILE_STEPS");
    dt_set_log(NULL, NULL);
    dt_error_clear();
    dt_end();
    temp_remove(utest_fixture->dir);
}
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv", x, .out = 4, .kernel = 3, .pad = 1);
    x = dt_maxpool2d(dt_batchnorm2d(m, "norm", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "fc 1", dt_flatten(x), .out = 10);
}
static dt_tensor *two(dt_model *m, dt_tensor *x)
{
    return dt_linear(m, "b", dt_linear(m, "a", x, .out = 8, .act = DT_ACT_TANH), .out = 1);
}
static void steps(dt_model *m, dt_optimizer *opt, int n)
{
    for (int i = 0; i < n; i++) {
        dt_backward(dt_mean(two(m, dt_full(0.5, DT_SHAPE(6, 5)))));
        dt_step(opt);
    }
}
static void train_two(int n)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    steps(m, opt, n);
    dt_optimizer_free(opt);
    dt_model_free(m);
}

/* ==================================================================================================== >>counts */
UTEST_F(profile, says_what_was_counted_by_hand)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adamw(m, .lr = 0.01);
    int64_t       label[20];
    for (int i = 0; i < 20; i++) label[i] = i % 10;
    for (int i = 0; i < 9; i++) {
        dt_tensor *x = dt_full(0.5, DT_SHAPE(20, 2, 8, 8));
        dt_backward(dt_cross_entropy(net(m, x), dt_from(label, DT_SHAPE(20), .dtype = DT_I64)));
        dt_step(opt);
    }
    text t = read_text(utest_fixture->path); /* written by the last step: the model is still there */
    ASSERT_TRUE(t.s != NULL);
    EXPECT_TRUE(!strncmp(t.s, "dt profile 1\n", 13) && !strcmp(t.s + strlen(t.s) - 5, "\nend\n"));
    EXPECT_STREQ("# device cpu", line(t, "# device"));
    EXPECT_STREQ("# dtype f32", line(t, "# dtype"));
    EXPECT_STREQ("# optimizer adamw", line(t, "# optimizer"));
    EXPECT_STREQ("batch 20 sample", line(t, "batch"));
    EXPECT_STREQ("# backwards 1", line(t, "# backwards"));
    EXPECT_STREQ("# steps 5", line(t, "# steps")); /* 9, of which 4 warm up: half of them at most */
    EXPECT_EQ(dt_get_num_threads(), (int)number(t, "# threads", ""));
    EXPECT_NEAR(8.0, number(t, "state", "B"), 1.0); /* two states of AdamW; blocks have gaps */
    /* operations: 2 * outputs * inputs of each; a batch norm 4 an element */
    ASSERT_EQ(3, lines(t, "layer"));
    EXPECT_EQ(2.0 * (20 * 4 * 8 * 8) * (2 * 3 * 3), layer(t, "conv", "flops", "FLOP"));
    EXPECT_EQ(2.0 * (20 * 10) * (4 * 4 * 4), layer(t, "fc_1", "flops", "FLOP"));
    EXPECT_EQ(4.0 * (4 * 2 * 3 * 3 + 4), layer(t, "conv", "params", "B"));
    EXPECT_EQ(4.0 * (4 + 4), layer(t, "norm", "params", "B")); /* without its running statistics */
    EXPECT_EQ(4.0 * (64 * 10 + 10), layer(t, "fc_1", "params", "B"));
    EXPECT_EQ(4.0 * (20 * 4 * 8 * 8), layer(t, "conv", "out", "B"));
    EXPECT_EQ(4.0 * (20 * 10), layer(t, "fc_1", "out", "B"));
    EXPECT_GE(layer(t, "conv", "held", "B"), 4.0 * (20 * 4 * 8 * 8));
    EXPECT_TRUE(strstr(line(t, "layer fc_1"), " # linear") != NULL);
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(t.s);
}
UTEST_F(profile, the_planner_reads_it)
{
    train_two(9);
    text            t = read_text(utest_fixture->path);
    dt_scale_model *m = t.s ? dt_scale_profile_parse("p", t.s, strlen(t.s)) : NULL;
    ASSERT_TRUE_MSG(m != NULL, dt_plan_error());
    EXPECT_EQ(2, m->nlayers);
    EXPECT_STREQ("a", m->layer[0].name);
    EXPECT_EQ(5 * 8 + 8, (int)m->layer[0].params);
    EXPECT_EQ(6.0, m->batch);
    EXPECT_NEAR(1e-9 * layer(t, "a", "ready", "ns"), m->layer[0].ready, 1e-12);
    EXPECT_NEAR(1e-9 * number(t, "step", "ns"), m->step, 1e-12);
    EXPECT_GE(m->step, m->forward + m->backward + m->update);
    dt_scale_model_free(m);
    free(t.s);
}
UTEST_F(profile, times_add_up_to_the_step)
{
    train_two(20);
    text   t = read_text(utest_fixture->path);
    double forward = layer(t, "a", "forward", "ns") + layer(t, "b", "forward", "ns");
    double backward = layer(t, "a", "backward", "ns") + layer(t, "b", "backward", "ns"), step = number(t, "step", "ns");
    double all = number(t, "forward", "ns") + number(t, "backward", "ns") + number(t, "update", "ns") + number(t, "input", "ns") +
                 number(t, "# other", "ns");
    EXPECT_TRUE(forward > 0 && backward > 0 && number(t, "update", "ns") > 0);
    EXPECT_NEAR(number(t, "forward", "ns"), forward, 4);
    EXPECT_NEAR(number(t, "backward", "ns"), backward, 4);
    EXPECT_NEAR(step, all, 8);
    EXPECT_TRUE(number(t, "# fast", "ns") <= number(t, "# median", "ns") && number(t, "# median", "ns") <= number(t, "# slow", "ns"));
    EXPECT_TRUE(number(t, "# fast", "ns") <= step && step <= number(t, "# slow", "ns"));
    free(t.s);
}
UTEST_F(profile, gradients_are_in_the_order_in_which_they_became_ready)
{
    char name[64];
    train_two(9);
    text t = read_text(utest_fixture->path);
    ASSERT_EQ(4, lines(t, "# gradient"));
    double last = 0;
    for (int i = 0; i < 4; i++) {
        char key[100];
        nth(t, "# gradient", i, name, sizeof name);
        EXPECT_EQ(i < 2 ? 'b' : 'a', name[0]); /* the last layer first */
        snprintf(key, sizeof key, "# gradient %s", name);
        double at = after(line(t, key), "ready", "ns");
        EXPECT_TRUE(at >= last && at <= number(t, "backward", "ns") + 1);
        EXPECT_EQ(!strcmp(name, "a.weight") ? 160.0 : !strcmp(name, "b.bias") ? 4.0 : 32.0, after(line(t, key), "bytes", "B"));
        last = at;
    }
    EXPECT_EQ(last, layer(t, "a", "ready", "ns"));
    free(t.s);
}
UTEST_F(profile, frozen_and_unused_parameters)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    dt_model_freeze(m, "a.*");
    for (int i = 0; i < 9; i++) {
        dt_tensor *x = two(m, dt_full(0.5, DT_SHAPE(6, 5)));
        dt_linear(m, "unused", x, .out = 3);
        dt_backward(dt_mean(x));
        dt_step(opt);
    }
    text t = read_text(utest_fixture->path);
    EXPECT_EQ(0.0, layer(t, "a", "params", "B"));
    EXPECT_EQ(-1.0, layer(t, "a", "ready", "ns"));
    EXPECT_EQ(2, lines(t, "# gradient"));
    EXPECT_EQ(24.0, layer(t, "unused", "params", "B"));
    EXPECT_NEAR(number(t, "backward", "ns"), layer(t, "unused", "ready", "ns"), 2); /* what DDP sends of it waits for the end */
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(t.s);
}
UTEST_F(profile, names_without_blanks_and_not_too_long)
{
    char          name[130];
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    memset(name, 'x', sizeof name - 1);
    memcpy(name + 100, " a\n#\\", 5);
    name[sizeof name - 1] = 0;
    for (int i = 0; i < 2; i++) {
        dt_backward(dt_mean(dt_linear(m, name, dt_full(0.5, DT_SHAPE(6, 5)), .out = 3)));
        dt_step(opt);
    }
    dt_optimizer_free(opt);
    dt_model_free(m);
    text t = read_text(utest_fixture->path);
    nth(t, "layer", 0, name, sizeof name);
    EXPECT_EQ(63, (int)strlen(name));
    EXPECT_TRUE(strstr(name, "x_a__\\x") != NULL);
    free(t.s);
}

/* ==================================================================================================== >>steps */
UTEST_F(profile, a_loader_tells_its_bytes_and_its_rate)
{
    enum { N = 64 };
    float        *x = (float *)calloc(N * 5, sizeof *x);
    int64_t       y[N] = { 0 };
    dt_dataset   *set = dt_arrays(x, N, .x_shape = DT_SHAPE(5), .y = y, .y_dtype = DT_I64);
    dt_loader    *in = dt_loader_new(set, .batch = 8);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    for (int epoch = 0; epoch < 2; epoch++)
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_backward(dt_mean(two(m, b.x)));
            dt_step(opt);
        }
    text t = read_text(utest_fixture->path);
    EXPECT_EQ(5.0 * 4 + 8, number(t, "sample", "B"));
    EXPECT_EQ(8.0, after(line(t, "batch"), "batch", " sample"));
    EXPECT_GT(number(t, "load", "ns"), 0.0);
    EXPECT_GT(number(t, "input", "ns"), 0.0);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(set);
    free(x);
    free(t.s);
}
UTEST_F(profile, gradients_that_accumulate)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < 3; k++) {
            dt_backward(dt_mean(two(m, dt_full(0.5, DT_SHAPE(6, 5)))));
            if (k < 2) dt_end();
        }
        dt_step(opt);
    }
    text t = read_text(utest_fixture->path);
    EXPECT_STREQ("# backwards 3", line(t, "# backwards"));
    EXPECT_STREQ("batch 18 sample", line(t, "batch"));
    EXPECT_EQ(3 * 2.0 * 6 * 5 * 8, layer(t, "a", "flops", "FLOP"));
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(t.s);
}
UTEST_F(profile, a_step_with_an_evaluation_is_not_counted)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    for (int i = 0; i < 6; i++) {
        steps(m, opt, 1);
        if (i % 2) continue;
        dt_model_eval(m);
        dt_no_grad_begin();
        two(m, dt_full(0.5, DT_SHAPE(6, 5)));
        dt_no_grad_end();
        dt_end();
        dt_model_train(m);
    }
    dt_optimizer_free(opt);
    dt_model_free(m); /* writes 3 steps, of which 1 warms up */
    text t = read_text(utest_fixture->path);
    EXPECT_STREQ("# steps 2", line(t, "# steps"));
    EXPECT_STREQ("batch 6 sample", line(t, "batch"));
    free(t.s);
}
UTEST_F(profile, a_forward_without_a_backward_is_not_counted)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    for (int i = 0; i < 4; i++) {
        two(m, dt_full(0.5, DT_SHAPE(6, 5)));
        dt_end();
        steps(m, opt, 2);
    }
    dt_optimizer_free(opt);
    dt_model_free(m);
    text t = read_text(utest_fixture->path);
    EXPECT_STREQ("# steps 2", line(t, "# steps")); /* 4, of which 2 warm up */
    EXPECT_STREQ("batch 6 sample", line(t, "batch"));
    free(t.s);
}
UTEST_F(profile, ends_after_its_steps)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    steps(m, opt, 8);
    EXPECT_EQ(-1, access(utest_fixture->path, F_OK));
    steps(m, opt, 1);
    EXPECT_EQ(0, access(utest_fixture->path, F_OK));
    unlink(utest_fixture->path);
    int64_t allocs = dt_stats().host_allocs;
    steps(m, opt, 12);
    EXPECT_EQ(allocs, dt_stats().host_allocs);
    dt_optimizer_free(opt);
    dt_model_free(m);
    EXPECT_EQ(-1, access(utest_fixture->path, F_OK));
}
UTEST_F(profile, steps_that_are_no_number)
{
    static const char *const bad[] = { "0", "-1", "5x", "100001", "99999999999999999999", " 5" };
    for (int i = 0; i < 6; i++) {
        logged[0] = 0;
        setenv("DT_PROFILE_STEPS", bad[i], 1);
        train_two(1);
        EXPECT_TRUE_MSG(strstr(logged, "DT_PROFILE_STEPS: found \"") && strstr(logged, "expected a number of steps from 1 to 100000"), logged);
        EXPECT_EQ(DT_OK, dt_error_code());
    }
}
UTEST_F(profile, without_the_variable_nothing_is_measured)
{
    unsetenv("DT_PROFILE");
    train_two(1);
    int64_t allocs = dt_stats().host_bytes;
    train_two(9);
    EXPECT_EQ(allocs, (int64_t)dt_stats().host_bytes);
    setenv("DT_PROFILE", "", 1);
    train_two(9);
    EXPECT_EQ(-1, access(utest_fixture->path, F_OK));
    EXPECT_STREQ("", logged);
}

/* ==================================================================================================== >>files */
UTEST_F(profile, a_path_that_cannot_be_written_is_logged_and_the_training_goes_on)
{
    static const char *const names[] = { "missing/p", "folder", "link", "pipe", "long" };
    static const char *const why[] = { "No such file", "not a regular file", "not a regular file", "not a regular file", "too long" };
    char path[4300], lengthy[2000];
    mkdir(temp_in(utest_fixture->dir, "folder"), 0700);
    ASSERT_EQ(0, symlink("target", temp_in(utest_fixture->dir, "link")));
    ASSERT_EQ(0, mkfifo(temp_in(utest_fixture->dir, "pipe"), 0600));
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%.2000s/%.2000s", utest_fixture->dir, i == 4 ? lengthy : names[i]);
        setenv("DT_PROFILE", path, 1);
        logged[0] = 0;
        train_two(10);
        EXPECT_TRUE_MSG(strstr(logged, "DT_PROFILE: cannot write ") && strstr(logged, why[i]) && strstr(logged, "without a profile"), logged);
        EXPECT_EQ(DT_OK, dt_error_code());
    }
    EXPECT_EQ(-1, access(temp_in(utest_fixture->dir, "target"), F_OK));
}
UTEST_F(profile, a_file_of_that_name_is_replaced_when_the_new_one_is_whole)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    temp_put(utest_fixture->dir, "p", "old", 3);
    steps(m, opt, 8);
    text t = read_text(utest_fixture->path);
    EXPECT_STREQ("old", t.s);
    free(t.s);
    steps(m, opt, 1);
    t = read_text(utest_fixture->path);
    EXPECT_EQ(2, lines(t, "layer"));
    free(t.s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    int n = 0;
    DIR *d = opendir(utest_fixture->dir);
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    EXPECT_EQ(3, n); /* ., .. and p: no temporary file is left */
}
UTEST_F(profile, a_trap_set_after_the_begin)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    steps(m, opt, 1);
    ASSERT_EQ(0, symlink("target", utest_fixture->path));
    dt_optimizer_free(opt);
    dt_model_free(m);
    EXPECT_TRUE_MSG(strstr(logged, "it is a symbolic link") != NULL, logged);
    EXPECT_EQ(-1, access(temp_in(utest_fixture->dir, "target"), F_OK));
    EXPECT_EQ(DT_OK, dt_error_code());
}
UTEST_F(profile, out_of_memory_ends_the_profile_and_not_the_training)
{
    int survived = 0;
    for (int64_t left = 0; left < 80; left++) {
        dt_test_budget b;
        dt_empty_cache();
        ASSERT_EQ(DT_OK, dt_test_budget_set(&b, -1));
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
        b.left = left; /* this allocation of the training fails */
        steps(m, opt, 10);
        bool failed = b.left < 0, stopped = dt_error_code() != DT_OK;
        b.left = -1;
        if (stopped) EXPECT_EQ(DT_ERR_MEMORY, (int)dt_error_code());
        survived += failed && !stopped;
        dt_error_clear();
        dt_end();
        dt_optimizer_free(opt);
        dt_model_free(m);
        EXPECT_EQ(0, temp_budget_end(&b));
    }
    EXPECT_GE(survived, 9); /* what the profile itself allocates */
}

/* ==================================================================================================== >>models */
UTEST_F(profile, each_model_has_a_file)
{
    dt_model     *m[2];
    dt_optimizer *opt[2];
    for (int i = 0; i < 2; i++) {
        m[i] = dt_model_new(.seed = 1);
        opt[i] = dt_sgd(m[i], .lr = 0.01);
    }
    for (int i = 0; i < 9; i++) { /* the second one has the first one's output: one backward runs through both */
        dt_tensor *x = dt_linear(m[0], "first", dt_full(0.5, DT_SHAPE(6, 5)), .out = 4);
        dt_backward(dt_mean(dt_linear(m[1], "second", x, .out = 3)));
        dt_update(opt[0]);
        dt_step(opt[1]);
    }
    text t = read_text(utest_fixture->path), u = read_text(temp_in(utest_fixture->dir, "p.2"));
    EXPECT_EQ(1, lines(t, "layer"));
    EXPECT_EQ(1, lines(u, "layer"));
    EXPECT_EQ(4.0 * (5 * 4 + 4), layer(t, "first", "params", "B"));
    EXPECT_EQ(4.0 * (4 * 3 + 3), layer(u, "second", "params", "B"));
    EXPECT_TRUE(layer(t, "first", "backward", "ns") > 0 && layer(u, "second", "backward", "ns") > 0);
    EXPECT_STREQ("# backwards 1", line(t, "# backwards"));
    EXPECT_STREQ("# backwards 1", line(u, "# backwards"));
    for (int i = 0; i < 2; i++) {
        dt_optimizer_free(opt[i]);
        dt_model_free(m[i]);
    }
    free(t.s);
    free(u.s);
}
UTEST_F(profile, a_backward_counts_for_the_models_that_it_reaches)
{
    dt_model     *g = dt_model_new(.seed = 1), *d = dt_model_new(.seed = 2);
    dt_optimizer *og = dt_sgd(g, .lr = 0.01), *od = dt_sgd(d, .lr = 0.01);
    for (int i = 0; i < 9; i++) { /* as in a GAN */
        dt_tensor *fake = dt_linear(g, "g", dt_full(0.5, DT_SHAPE(6, 5)), .out = 4);
        dt_backward(dt_mean(dt_linear(d, "d", dt_full(0.5, DT_SHAPE(6, 4)), .out = 1)));
        dt_backward(dt_mean(dt_linear(d, "d", dt_detach(fake), .out = 1)));
        dt_update(od);
        dt_backward(dt_mean(dt_linear(d, "d", fake, .out = 1)));
        dt_optimizer_zero_grad(od);
        dt_step(og);
    }
    text t = read_text(utest_fixture->path), u = read_text(temp_in(utest_fixture->dir, "p.2"));
    EXPECT_STREQ("# backwards 1", line(t, "# backwards"));
    EXPECT_STREQ("# backwards 3", line(u, "# backwards")); /* the third ran after dt_update, and belongs to the next step */
    EXPECT_GT(layer(t, "g", "backward", "ns"), 0.0);
    dt_optimizer_free(og);
    dt_optimizer_free(od);
    dt_model_free(g);
    dt_model_free(d);
    free(t.s);
    free(u.s);
}
UTEST_F(profile, a_model_that_is_freed_while_its_tape_lives)
{
    dt_model     *m = dt_model_new(.seed = 1), *n = dt_model_new(.seed = 2);
    dt_optimizer *om = dt_sgd(m, .lr = 0.01), *on = dt_sgd(n, .lr = 0.01);
    dt_backward(dt_mean(dt_linear(n, "n", dt_linear(m, "m", dt_full(0.5, DT_SHAPE(6, 5)), .out = 4), .out = 1)));
    dt_step(on);
    dt_tensor *y = dt_linear(n, "n", dt_linear(m, "m", dt_full(0.5, DT_SHAPE(6, 5)), .out = 4), .out = 1);
    dt_optimizer_free(om);
    dt_model_free(m);
    EXPECT_EQ(DT_OK, dt_backward(dt_mean(y)));
    dt_step(on);
    dt_optimizer_free(on);
    dt_model_free(n);
    text t = read_text(temp_in(utest_fixture->dir, "p.2"));
    EXPECT_EQ(1, lines(t, "layer"));
    free(t.s);
}
static void *train_on_a_thread(void *user)
{
    (void)user;
    train_two(9);
    return NULL;
}
UTEST_F(profile, models_of_two_threads)
{
    pthread_t th[2];
    for (int i = 0; i < 2; i++) ASSERT_EQ(0, pthread_create(&th[i], NULL, train_on_a_thread, NULL));
    for (int i = 0; i < 2; i++) pthread_join(th[i], NULL);
    text t = read_text(utest_fixture->path), u = read_text(temp_in(utest_fixture->dir, "p.2"));
    EXPECT_EQ(2, lines(t, "layer"));
    EXPECT_EQ(2, lines(u, "layer"));
    free(t.s);
    free(u.s);
}
UTEST_F(profile, an_asynchronous_device)
{
    fake_device  *f = fake_device_new(0);
    dt_model     *m = dt_model_new(.seed = 1, .device = f->dev);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    for (int i = 0; i < 9; i++) {
        dt_backward(dt_mean(two(m, dt_full(0.5, DT_SHAPE(6, 5), .device = f->dev))));
        dt_step(opt);
    }
    EXPECT_EQ(DT_OK, dt_error_code());
    text t = read_text(utest_fixture->path);
    EXPECT_TRUE(strncmp(line(t, "# device"), "# device cpu", 12) != 0);
    EXPECT_EQ(2, lines(t, "layer"));
    EXPECT_EQ(4, lines(t, "# gradient"));
    EXPECT_TRUE(layer(t, "a", "forward", "ns") > 0 && layer(t, "a", "backward", "ns") > 0);
    EXPECT_TRUE(number(t, "step", "ns") > 0 && number(t, "# peak", "B") > 0);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
    free(t.s);
}

/* ==================================================================================================== >>processes: this program with --child */
static int child_main(const char *what)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    if (!strcmp(what, "nothing")) return two(m, dt_full(0.5, DT_SHAPE(6, 5))) ? dt_check("child") : 1;
    steps(m, opt, 3);
    if (!strcmp(what, "error")) {
        dt_linear(m, "a", dt_full(0.5, DT_SHAPE(6, 7)), .out = 8);
        return dt_check("child");
    }
    if (!strcmp(what, "quick_exit")) quick_exit(0);
    if (!strcmp(what, "fork")) {
        int   status = 1;
        pid_t pid = fork();
        if (pid == 0) exit((steps(m, opt, 2), dt_check("child")));
        if (waitpid(pid, &status, 0) != pid || status) return 1;
        if (!access(getenv("DT_PROFILE"), F_OK)) return 1; /* it has written what belongs to its parent */
    }
    return dt_check("child"); /* neither model nor optimiser are freed */
}
static int run_child(const char *what, const char *errors, const char *rank, const char *world)
{
    char    self[1024] = "";
    int     status = -1;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    pid_t   pid = n > 0 ? fork() : -1;
    if (pid < 0) return 129;
    if (pid == 0) {
        setenv("DT_LOG", "warn", 1);
        if (rank) setenv("RANK", rank, 1), setenv("WORLD_SIZE", world, 1);
        if (errors && !freopen(errors, "w", stderr)) _exit(126);
        execl(self, "test_profile", "--child", what, (char *)NULL);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
UTEST_F(profile, a_program_that_ends_writes_it)
{
    static const char *const how[] = { "exit", "quick_exit", "error", "fork" };
    for (int i = 0; i < 4; i++) {
        unlink(utest_fixture->path);
        EXPECT_EQ(i == 2 ? 1 : 0, run_child(how[i], temp_in(utest_fixture->dir, "err"), NULL, NULL));
        text t = read_text(utest_fixture->path);
        EXPECT_STREQ_MSG("# steps 2", line(t, "# steps"), how[i]); /* 3, of which 1 warms up; the child adds nothing */
        EXPECT_EQ(2, lines(t, "layer"));
        free(t.s);
    }
}
UTEST_F(profile, a_program_that_makes_no_step_says_so)
{
    EXPECT_EQ(0, run_child("nothing", temp_in(utest_fixture->dir, "err"), NULL, NULL));
    text t = read_text(temp_in(utest_fixture->dir, "err"));
    EXPECT_TRUE_MSG(t.s && strstr(t.s, "DT_PROFILE: nothing was written: no model made a training step"), t.s);
    EXPECT_EQ(-1, access(utest_fixture->path, F_OK));
    free(t.s);
}
UTEST_F(profile, each_rank_has_a_file)
{
    EXPECT_EQ(0, run_child("exit", NULL, "1", "2"));
    text t = read_text(temp_in(utest_fixture->dir, "p.rank1"));
    EXPECT_STREQ("# ranks 2", line(t, "# ranks"));
    EXPECT_EQ(-1, access(utest_fixture->path, F_OK));
    free(t.s);
}

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    if (argc == 3 && !strcmp(argv[1], "--child")) return child_main(argv[2]);
    return utest_main(argc, argv);
}
