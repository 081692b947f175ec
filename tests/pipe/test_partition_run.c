/* test_partition_run.c: pipelines that find their cuts: the bits of one rank, profiles of models, where the cuts are, errors
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_pipe.h"
#include "teams.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)
static dt_tensor *layer(dt_model *m, const char *format, int i, dt_tensor *x, int64_t out)
{
    char name[16];
    snprintf(name, sizeof name, format, i);
    return dt_linear(m, name, x, .out = out);
}
/* Residuals over every layer, a skip connection over all, dropout. */
static dt_tensor *mlp(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    dt_tensor *first = dt_relu(layer(m, "fc%d", 0, x, 24));
    x = first;
    for (int i = 1; i < 7; i++) {
        x = dt_add(x, dt_dropout(m, dt_tanh(layer(m, "fc%d", i, x, 24)), 0.2));
        if (i == 2 || i == 5) x = dt_add(dt_mul(x, first), first);
    }
    return dt_mse_loss(dt_linear(m, "out", x, .out = 1), y);
}
static dt_tensor *conv(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    x = dt_batchnorm2d(m, "bn1", dt_conv2d(m, "conv1", x, .out = 8, .kernel = 3, .pad = 1), .act = DT_ACT_RELU);
    for (int i = 0; i < 2; i++) {
        dt_scope_begin(m, "block.%d", i);
        dt_tensor *z = dt_batchnorm2d(m, "bn1", dt_conv2d(m, "conv1", x, .out = 8, .kernel = 3, .pad = 1), .act = DT_ACT_RELU);
        z = dt_conv2d(m, "conv2", z, .out = 8, .kernel = 3, .pad = 1);
        x = dt_batchnorm2d(m, "bn2", z, .act = DT_ACT_RELU, .add = x);
        dt_scope_end(m);
    }
    return dt_cross_entropy(dt_linear(m, "fc", dt_flatten(dt_maxpool2d(x, .kernel = 2)), .out = 10), y);
}
/* Six equal blocks; dt_stage is called before each but the first. */
static dt_tensor *places(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    for (int i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "place%d", i);
        if (i) x = dt_stage(m, name, x);
        x = layer(m, "b%d", i, dt_tanh(layer(m, "a%d", i, x, 64)), 64);
    }
    return dt_mse_loss(dt_linear(m, "out", x, .out = 1), y);
}
/* Two equal halves of 8 layers. Between them one number for each place of a sample goes on, elsewhere 64. */
static dt_tensor *narrow(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    for (int half = 0; half < 2; half++) {
        dt_scope_begin(m, "half%d", half);
        for (int i = 0; i < 7; i++) x = dt_tanh(layer(m, "fc%d", i, x, 64));
        x = layer(m, "end%d", half, x, 1);
        dt_scope_end(m);
    }
    return dt_mse_loss(x, y);
}
enum { MLP, CONV, PLACES, NARROW, BATCH = 16 };
static dt_pipeline_fn const models[] = { mlp, conv, places, narrow };
static void batch(int kind, dt_tensor **x, dt_tensor **y) /* of the thread's generator */
{
    *x = kind == CONV ? dt_normal(0, 1, DT_SHAPE(BATCH, 3, 8, 8)) : dt_normal(0, 1, DT_SHAPE(BATCH, 6));
    if (kind == NARROW) *x = dt_normal(0, 1, DT_SHAPE(BATCH, 64, 6));
    *y = kind == CONV ? dt_cast(dt_uniform(0, 9.99, DT_SHAPE(BATCH)), DT_I64) : dt_sum(*x, .dims = DT_DIM(-1), .keepdim = true);
}

/* ==================================================================================================== >>same_bits */
typedef struct plan {
    int model, schedule, chunks, micro, how;
} plan;
static const plan *the; /* of this test */
static int differ(dt_model *m, dt_model *whole, int *mine) /* parameters of this rank that differ from those of the unsplit model */
{
    int bad = 0;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info a, b;
        char              p[40000], q[40000];
        dt_model_get(m, i, &a);
        dt_model_get(whole, i, &b);
        if (!strcmp(dt_device_name(dt_device_of(a.value)), "elsewhere")) continue;
        ++*mine;
        size_t n = (size_t)dt_numel(a.value) * (size_t)dt_dtype_nbytes(dt_dtype_of(a.value));
        if (strcmp(a.name, b.name) || dt_numel(a.value) != dt_numel(b.value) || n > sizeof p) return 1000;
        dt_copy_out(a.value, p, n);
        dt_copy_out(b.value, q, n);
        if (memcmp(p, q, n)) bad++, printf("    '%s' differs\n", a.name);
    }
    dt_end();
    return bad;
}
static bool same_on_all(dt_comm *c, const void *data, size_t n)
{
    int64_t both[2] = { 0, 0 };
    for (size_t i = 0; i < n; i++) both[0] = (both[0] * 31 + ((const uint8_t *)data)[i]) % 1000000007;
    both[1] = -both[0];
    return !dt_comm_allreduce(c, both, 2, DT_COMM_I64, DT_COMM_MAX) && both[0] == -both[1];
}
/* The schedule as it ran: on each rank one step after the other; nothing ends before the stage that it depends on has begun. */
static void timing(team *t, dt_comm *c, int rank, dt_pipeline *p)
{
    const dt_pipe_schedule *s = dt_pipeline_schedule(p);
    dt_pipe_timing         *run = dt_pipeline_timing(p), *planned = dt_pipeline_planned(p, run);
    CHECK(run && planned && !dt_error());
    if (!run || !planned) return;
    CHECK(run->nsteps == s->nsteps && run->ranks == t->n && run->seconds > 0 && run->bubble >= 0 && run->bubble < 1);
    CHECK(same_on_all(c, run->start, (size_t)s->nsteps * sizeof *run->start) && same_on_all(c, run->end, (size_t)s->nsteps * sizeof *run->end));
    for (int r = 0; r < t->n; r++)
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++) {
            CHECK(run->start[i] >= 0 && run->end[i] >= run->start[i] && run->end[i] <= run->seconds);
            CHECK(i == s->first[r] || run->start[i] >= run->end[i - 1]);
            dt_pipe_message m;
            for (int64_t k = s->first[0]; dt_pipe_input(s, r, &s->step[i], &m) && k < s->nsteps; k++) {
                bool from = k >= s->first[m.from] && k < s->first[m.from + 1] && s->step[k].chunk * t->n + m.from == m.stage;
                if (from && s->step[k].micro == m.micro && (s->step[k].op != DT_PIPE_FORWARD) == m.gradient &&
                    s->step[k].op != DT_PIPE_BACKWARD_WEIGHT)
                    CHECK(run->start[k] <= run->end[i]);
            }
        }
    CHECK(planned->seconds > 0 && planned->held[0] == run->held[0]);
    dt_pipe_timing_free(run);
    dt_pipe_timing_free(planned);
}
static void same_bits(team *t, dt_comm *c, int rank)
{
    const plan *k = the;
    double      loss[3] = { 0, 0, 0 };
    int         mine = 0;
    static __thread char text[8192];
    dt_model     *m = dt_model_new(.seed = 3), *whole = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01f), *all = dt_adam(whole, .lr = 0.01f);
    dt_pipeline  *p = dt_pipeline_new(m, c, .micro = k->micro, .schedule = (dt_pipe_kind)k->schedule, .chunks = k->chunks,
                                      .balance = (dt_pipe_balance)k->how);
    CHECK(p != NULL);
    dt_manual_seed(11);
    for (int i = 0; i < 3 && !dt_error(); i++) {
        dt_tensor *x, *y;
        dt_rng     start = *dt_rng_default();
        int64_t    n = BATCH / k->micro;
        batch(k->model, &x, &y);
        CHECK(!dt_pipeline_backward(p, models[k->model], NULL, x, y, &loss[0]));
        dt_step(opt);
        *dt_rng_default() = start;
        batch(k->model, &x, &y);
        for (int j = loss[1] = 0; j < k->micro; j++) {
            dt_tensor *l = models[k->model](whole, dt_narrow(x, 0, j * n, n), dt_narrow(y, 0, j * n, n), NULL);
            loss[1] += dt_item(l) / k->micro;
            dt_backward(l, .grad = dt_full(1.0 / k->micro, dt_shape_of(l)));
        }
        dt_step(all);
        CHECK(loss[0] == loss[1]);
    }
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    if (!dt_error()) CHECK(!differ(m, whole, &mine));
    CHECK(mine > 0 && mine < dt_model_count(m));
    size_t len = dt_pipeline_describe(p, text, sizeof text); /* the same on all ranks */
    CHECK(len > 100 && len < sizeof text && strstr(text, "crosses the cut") && strstr(text, "<- slowest"));
    CHECK(same_on_all(c, text, len));
    if (!dt_error()) timing(t, c, rank, p);
    dt_optimizer_free(opt);
    dt_optimizer_free(all);
    dt_pipeline_free(p);
    dt_model_free(m);
    dt_model_free(whole);
    CHECK(!dt_comm_free(c));
}
static void compare(int *utest_result, int ranks, plan k)
{
    team t = team_of("shm", ranks, 30, same_bits);
    the = &k;
    EXPECT_EQ(0, team_run(&t));
    EXPECT_EQ(ranks, t.done);
}
UTEST(same_bits, residuals_skip_connections_dropout)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        compare(utest_result, ranks, (plan){ MLP, DT_PIPE_1F1B, 1, 4, DT_BALANCE_MEASURED });
        compare(utest_result, ranks, (plan){ MLP, DT_PIPE_ZB_H1, 1, 4, DT_BALANCE_ESTIMATED });
    }
    compare(utest_result, 2, (plan){ MLP, DT_PIPE_INTERLEAVED, 2, 4, DT_BALANCE_MEASURED });
}
UTEST(same_bits, convolutions_and_batch_norms)
{
    for (int ranks = 2; ranks <= 3; ranks++) {
        compare(utest_result, ranks, (plan){ CONV, DT_PIPE_1F1B, 1, 4, DT_BALANCE_MEASURED });
        compare(utest_result, ranks, (plan){ CONV, DT_PIPE_GPIPE, 1, 4, DT_BALANCE_ESTIMATED });
    }
    compare(utest_result, 2, (plan){ CONV, DT_PIPE_INTERLEAVED, 2, 4, DT_BALANCE_ESTIMATED });
}
UTEST(same_bits, only_at_calls_of_dt_stage)
{
    compare(utest_result, 2, (plan){ PLACES, DT_PIPE_1F1B, 1, 4, DT_BALANCE_MEASURED });
    compare(utest_result, 3, (plan){ PLACES, DT_PIPE_1F1B, 1, 4, DT_BALANCE_ESTIMATED });
}

/* ==================================================================================================== >>profiles */
static dt_pipe_profile *profile_of(int kind, dt_pipe_balance how)
{
    dt_tensor       *x, *y;
    dt_model        *m = dt_model_new(.seed = 3);
    dt_manual_seed(11);
    batch(kind, &x, &y);
    dt_rng           before = *dt_rng_default();
    dt_pipe_profile *f = dt_pipe_profile_new(m, models[kind], NULL, x, y, how);
    if (dt_model_count(m) || memcmp(&before, dt_rng_default(), sizeof before)) { /* nothing has changed */
        dt_pipe_profile_free(f);
        f = NULL;
    }
    dt_end();
    dt_model_free(m);
    return f;
}
static void has(int *utest_result, const dt_pipe_profile *f, int i, const char *name, int64_t params)
{
    ASSERT_GT(f->nlayers, i);
    EXPECT_STREQ(name, f->layers[i].name);
    EXPECT_EQ(params, f->layers[i].params);
    EXPECT_TRUE(f->layers[i].forward > 0 && f->layers[i].backward > 0 && f->layers[i].held > 0);
}
UTEST(profiles, layers_with_their_parameters_and_what_crosses)
{
    for (int how = DT_BALANCE_MEASURED; how <= (int)DT_BALANCE_ESTIMATED; how++) {
        dt_pipe_profile *f = profile_of(MLP, (dt_pipe_balance)how);
        ASSERT_TRUE(f != NULL);
        ASSERT_EQ(8, f->nlayers);
        has(utest_result, f, 0, "fc0", (6 * 24 + 24) * 4);
        has(utest_result, f, 3, "fc3", (24 * 24 + 24) * 4);
        has(utest_result, f, 7, "out", (24 + 1) * 4);
        /* after each layer its result crosses, and until layer 5 that of the first one, which the last layers do not need */
        for (int cut = 1; cut < 8; cut++) {
            int64_t nbytes = 0;
            for (int i = 0; i < f->nedges; i++)
                if (f->edges[i].from < cut && f->edges[i].to >= cut) nbytes += f->edges[i].nbytes;
            EXPECT_EQ((cut == 1 || cut > 5 ? 1 : 2) * BATCH * 24 * 4, nbytes);
        }
        dt_pipe_profile_free(f);
        EXPECT_TRUE((f = profile_of(CONV, (dt_pipe_balance)how)) != NULL);
        has(utest_result, f, 5, "block.0.bn2", 4 * 8 * 4 + 8);
        dt_pipe_profile_free(f);
        EXPECT_TRUE((f = profile_of(PLACES, (dt_pipe_balance)how)) != NULL);
        EXPECT_EQ(6, f->nlayers);
        has(utest_result, f, 0, "first", (6 * 64 + 64 + 64 * 64 + 64) * 4);
        has(utest_result, f, 5, "place5", (2 * (64 * 64 + 64) + 65) * 4);
        dt_pipe_profile_free(f);
    }
    EXPECT_STREQ("", dt_error() ? dt_error() : "");
}
static dt_tensor *heavy(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    x = dt_linear(m, "small1", x, .out = 8);
    x = dt_linear(m, "wide", x, .out = 1024);
    x = dt_linear(m, "heavy", x, .out = 1024);
    x = dt_linear(m, "down", x, .out = 8);
    return dt_mse_loss(dt_linear(m, "small2", x, .out = 1), y);
}
/* Forward and backward of the heavy layer have over half of the time: 98 % of the work. */
UTEST(profiles, work_is_counted_where_it_is_done)
{
    for (int how = DT_BALANCE_MEASURED; how <= (int)DT_BALANCE_ESTIMATED; how++) {
        dt_model        *m = dt_model_new(.seed = 3);
        dt_tensor       *x = dt_normal(0, 1, DT_SHAPE(64, 8));
        dt_pipe_profile *f = dt_pipe_profile_new(m, heavy, NULL, x, dt_zeros(DT_SHAPE(64, 1)), (dt_pipe_balance)how);
        ASSERT_TRUE(f && f->nlayers == 5);
        double forward = 0, backward = 0;
        for (int i = 0; i < 5; i++) forward += f->layers[i].forward, backward += f->layers[i].backward;
        EXPECT_GT(f->layers[2].forward, 0.5 * forward);
        EXPECT_GT(f->layers[2].backward, 0.5 * backward);
        dt_pipe_profile_free(f);
        dt_end();
        dt_model_free(m);
    }
}
UTEST(profiles, bad_arguments)
{
    dt_model  *m = dt_model_new(.seed = 3);
    dt_tensor *x = dt_zeros(DT_SHAPE(4, 8));
    EXPECT_TRUE(!dt_pipe_profile_new(m, NULL, NULL, x, x, DT_BALANCE_MEASURED));
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "the function is NULL"));
    dt_error_clear();
    EXPECT_TRUE(!dt_pipe_profile_new(m, heavy, NULL, x, x, DT_BALANCE_OFF));
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "expected DT_BALANCE_MEASURED"));
    dt_error_clear();
    EXPECT_TRUE(!dt_pipe_profile_new(m, heavy, NULL, NULL, x, DT_BALANCE_MEASURED));
    EXPECT_TRUE(dt_error() && strstr(dt_error(), "x is NULL"));
    dt_error_clear();
    EXPECT_TRUE(!dt_pipe_profile_new(m, heavy, NULL, x, dt_zeros(DT_SHAPE(4, 3)), DT_BALANCE_MEASURED)); /* the forward fails */
    EXPECT_TRUE(dt_error() != NULL);
    dt_error_clear();
    dt_pipe_profile_free(NULL);
    dt_end();
    dt_model_free(m);
}

/* ==================================================================================================== >>cuts */
typedef struct wish {
    int         model, how, chunks;
    int64_t     memory;
    bool        changes;  /* the second forward is another one */
    const char *stage[4]; /* names that the stages must have */
    const char *error;    /* or this */
} wish;
static const wish *wanted;
static __thread int calls;
static dt_tensor *changing(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    for (int i = 0; i < 4; i++) x = layer(m, "fc%d", (i + calls) % 4, x, 6);
    return dt_mse_loss(dt_linear(m, "out", x, .out = 1), y);
}
static void cuts(team *t, dt_comm *c, int rank)
{
    const wish  *k = wanted;
    char         text[4096];
    dt_model    *m = dt_model_new(.seed = 3);
    dt_tensor   *x, *y;
    dt_pipeline *p = dt_pipeline_new(m, c, .micro = 4, .schedule = k->chunks ? DT_PIPE_INTERLEAVED : DT_PIPE_1F1B, .chunks = k->chunks,
                                     .balance = (dt_pipe_balance)k->how, .memory = k->memory);
    calls = 0;
    batch(k->model, &x, &y);
    dt_pipeline_backward(p, k->changes ? changing : models[k->model], NULL, x, y, NULL);
    if (k->changes) {
        CHECK(!dt_error() && !dt_comm_barrier(c));
        calls++;
        dt_pipeline_backward(p, changing, NULL, x, y, NULL);
    }
    if (k->error) {
        if (!dt_error() || !strstr(dt_error(), k->error)) printf("    rank %d: %s\n", rank, dt_error() ? dt_error() : "no error");
        CHECK(dt_error() && strstr(dt_error(), k->error));
        dt_error_clear();
    } else {
        CHECK(!dt_error());
        dt_pipeline_describe(p, text, sizeof text);
        for (int s = 0; s < 4 && k->stage[s]; s++) {
            char line[80];
            snprintf(line, sizeof line, "stage %d '%s'", s, k->stage[s]);
            if (!strstr(text, line)) printf("    expected %s, found:\n%s\n", line, text);
            CHECK(strstr(text, line) != NULL);
        }
    }
    dt_pipeline_free(p);
    dt_model_free(m);
    dt_comm_free(c);
}
static void cut(int *utest_result, int ranks, wish k)
{
    team t = team_of("shm", ranks, 30, cuts);
    wanted = &k;
    EXPECT_EQ(0, team_run(&t));
    EXPECT_EQ(ranks, t.done);
}
UTEST(cuts, are_where_few_bytes_cross) /* only messages take time here */
{
    dt_pipe_profile *f = profile_of(NARROW, DT_BALANCE_ESTIMATED);
    ASSERT_TRUE(f && f->nlayers == 16);
    for (int i = 0; i < f->nlayers; i++) f->layers[i].forward = f->layers[i].backward = 0;
    dt_pipe_partition *p = dt_pipe_partition_new(.layers = f->layers, .nlayers = f->nlayers, .edges = f->edges, .nedges = f->nedges, .ranks = 2,
                                                 .micro = 4, .bandwidth = 1e6);
    ASSERT_TRUE(p != NULL);
    EXPECT_STREQ("half1.fc0", f->layers[p->stage[1].first].name);
    EXPECT_EQ(BATCH * 64 * 4, p->stage[1].in);
    dt_pipe_partition_free(p);
    dt_pipe_profile_free(f);
}
UTEST(cuts, too_few_layers)
{
    cut(utest_result, 4, (wish){ .model = MLP, .how = DT_BALANCE_MEASURED, .chunks = 3,
                                 .error = "the forward has 8 layers, expected at least 12: 4 ranks with .chunks = 3" });
    cut(utest_result, 4, (wish){ .model = PLACES, .how = DT_BALANCE_ESTIMATED, .chunks = 2,
                                 .error = "the forward has 5 calls of dt_stage, expected at least 7" });
}
UTEST(cuts, memory_is_too_small)
{
    cut(utest_result, 2, (wish){ .model = PLACES, .how = DT_BALANCE_ESTIMATED, .memory = 1000, .error = "no partition fits into 1000 bytes" });
}
UTEST(cuts, a_forward_that_changes)
{
    cut(utest_result, 2, (wish){ .model = MLP, .how = DT_BALANCE_ESTIMATED, .changes = true, .error = "must make the same calls" });
}
static void too_early(team *t, dt_comm *c, int rank)
{
    dt_model    *m = dt_model_new(.seed = 3);
    dt_pipeline *p = dt_pipeline_new(m, c);
    CHECK(!dt_pipeline_timing(p) && strstr(dt_error(), "call dt_pipeline_backward before"));
    dt_error_clear();
    CHECK(!dt_pipeline_timing(NULL) && strstr(dt_error(), "the pipeline is NULL"));
    dt_error_clear();
    CHECK(!dt_pipeline_planned(p, NULL) && strstr(dt_error(), "NULL"));
    dt_error_clear();
    dt_pipeline_free(p);
    dt_model_free(m);
    dt_comm_free(c);
}
UTEST(timing, before_the_first_backward)
{
    team t = team_of("shm", 2, 30, too_early);
    EXPECT_EQ(0, team_run(&t));
    EXPECT_EQ(2, t.done);
}
