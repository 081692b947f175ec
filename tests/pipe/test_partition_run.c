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
/* Two equal halves of 8 layers. Between them one number for each sample goes on, elsewhere 256. */
static dt_tensor *narrow(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    for (int half = 0; half < 2; half++) {
        dt_scope_begin(m, "half%d", half);
        for (int i = 0; i < 7; i++) x = dt_tanh(layer(m, "fc%d", i, x, 256));
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
    *y = kind == CONV ? dt_cast(dt_uniform(0, 9.99, DT_SHAPE(BATCH)), DT_I64) : dt_sum(*x, .dims = DT_DIM(1), .keepdim = true);
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
    uint64_t sum[2] = { 0, 0 };
    for (size_t i = 0; i < len; i++) sum[0] = sum[0] * 31 + (uint8_t)text[i];
    sum[0] >>= 1, sum[1] = ~sum[0];
    CHECK(!dt_comm_allreduce(c, sum, 2, DT_COMM_I64, DT_COMM_MAX) && sum[0] == ~sum[1]);
    if (rank == 0) puts(text);
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
