/* test_pipe.c: one model over several ranks: the bits of one rank with every schedule, what crosses cuts, mixed precision,
   clipping, checkpoints, errors
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_pipe.h"
#include "teams.h"
#include "temp_files.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== >>models
   All have up to four cuts; how many of them are used is the number of stages. */
static int stages; /* of this process */
static dt_tensor *cut(dt_model *m, int i, dt_tensor *x)
{
    static const char *const names[] = { "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth" };
    return i + 1 < stages ? dt_stage(m, names[i], x) : x;
}
/* A residual over one cut, a skip connection over all of them that two stages use twice, dropout. */
static dt_tensor *mlp(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    dt_tensor *first = dt_relu(dt_linear(m, "fc0", x, .out = 24));
    x = first;
    for (int i = 0; i < 7; i++) {
        char name[8];
        snprintf(name, sizeof name, "fc%d", i + 1);
        dt_tensor *before = x;
        x = cut(m, i, x);
        x = dt_dropout(m, dt_tanh(dt_linear(m, name, x, .out = 24)), 0.2);
        x = dt_add(x, before);
        if (i == 1 || i == 3) x = dt_add(dt_mul(x, first), first);
    }
    return dt_mse_loss(dt_linear(m, "out", x, .out = 1), y);
}
/* Batch norms (buffers), convolutions in a private layout, a stage without parameters. */
static dt_tensor *conv(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    x = dt_relu(dt_batchnorm2d(m, "bn1", dt_conv2d(m, "conv1", x, .out = 8, .kernel = 3, .pad = 1)));
    x = cut(m, 0, x);
    x = dt_maxpool2d(x, .kernel = 2);
    x = cut(m, 1, x);
    dt_tensor *z = dt_relu(dt_batchnorm2d(m, "bn2", dt_conv2d(m, "conv2", x, .out = 8, .kernel = 3, .pad = 1)));
    z = cut(m, 2, z);
    x = dt_relu(dt_add(x, dt_conv2d(m, "conv3", z, .out = 8, .kernel = 3, .pad = 1)));
    for (int i = 3; i < 7; i++) x = dt_mul(cut(m, i, x), x);
    return dt_cross_entropy(dt_linear(m, "fc", dt_flatten(x), .out = 10), y);
}
/* Integers as input; the embedding is used by the first stage and, as the output layer, by the last. */
static dt_tensor *words(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    enum { VOCAB = 17, DIM = 16 };
    dt_tensor *table = dt_parameter(m, "table", DT_SHAPE(VOCAB, DIM), .init = DT_INIT_NORMAL, .b = 0.3);
    dt_tensor *h = dt_op_embedding(x, table);
    for (int i = 0; i < 7; i++) {
        char name[8];
        h = cut(m, i, h);
        snprintf(name, sizeof name, "h%d", i);
        dt_scope_begin(m, "%s", name);
        h = dt_add(h, dt_multihead_attention(m, "attn", dt_layernorm(m, "ln", h), .heads = 2, .causal = true));
        dt_scope_end(m);
    }
    dt_tensor *logits = dt_matmul(dt_reshape(h, DT_SHAPE(-1, DIM)), dt_transpose(table, 0, 1));
    return dt_cross_entropy(logits, dt_reshape(y, DT_SHAPE(-1)));
}
enum { MLP, CONV, WORDS };
static dt_pipeline_fn const models[] = { mlp, conv, words };
static void batch(int kind, int n, dt_tensor **x, dt_tensor **y) /* of the thread's generator */
{
    if (kind == MLP) {
        *x = dt_normal(0, 1, DT_SHAPE(n, 6));
        *y = dt_sum(*x, .dims = DT_DIM(1), .keepdim = true);
    } else if (kind == CONV) {
        *x = dt_normal(0, 1, DT_SHAPE(n, 3, 8, 8));
        *y = dt_cast(dt_uniform(0, 9.99, DT_SHAPE(n)), DT_I64);
    } else {
        *x = dt_cast(dt_uniform(0, 16.99, DT_SHAPE(n, 5)), DT_I64);
        *y = dt_cast(dt_uniform(0, 16.99, DT_SHAPE(n, 5)), DT_I64);
    }
}

/* ==================================================================================================== >>same_bits */
typedef struct plan { /* of a test */
    int model, schedule, chunks, micro, steps;
} plan;
enum { BATCH = 16 };
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)
static const plan *the; /* of this process */
static void unsplit_step(dt_model *m, dt_optimizer *opt, const plan *k, double *loss)
{
    dt_tensor *x, *y;
    batch(k->model, BATCH, &x, &y);
    int64_t n = BATCH / k->micro;
    *loss = 0;
    for (int i = 0; i < k->micro; i++) {
        dt_tensor *l = models[k->model](m, dt_narrow(x, 0, i * n, n), dt_narrow(y, 0, i * n, n), NULL);
        *loss += dt_item(l) / k->micro;
        dt_backward(l, .grad = dt_full(1.0 / k->micro, dt_shape_of(l)));
    }
    dt_step(opt);
}
/* How many parameters of this rank differ; *mine: how many it has. tied: the most that elements of the one on two ranks may differ. */
static int differ(dt_model *m, dt_model *whole, const char *tied, double *most, int *mine)
{
    int bad = 0;
    *mine = 0;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info a, b;
        dt_model_get(m, i, &a);
        dt_model_get(whole, i, &b);
        if (!strcmp(dt_device_name(dt_device_of(a.value)), "elsewhere")) continue;
        ++*mine;
        if (strcmp(a.name, b.name) || dt_numel(a.value) != dt_numel(b.value)) return 1000;
        size_t n = (size_t)dt_numel(a.value) * (size_t)dt_dtype_nbytes(dt_dtype_of(a.value));
        char  *p = (char *)malloc(n + 1), *q = (char *)malloc(n + 1);
        dt_copy_out(a.value, p, n);
        dt_copy_out(b.value, q, n);
        for (size_t k = 0; !strcmp(a.name, tied) && k < n / 4; k++) {
            double d = fabs((double)((float *)(void *)p)[k] - (double)((float *)(void *)q)[k]);
            if (!(d <= *most)) *most = d;
        }
        if (strcmp(a.name, tied) && memcmp(p, q, n)) bad++, printf("    '%s' differs: %.9g %.9g\n", a.name, (double)((float *)(void *)p)[0], (double)((float *)(void *)q)[0]);
        free(p), free(q);
    }
    dt_end();
    return bad;
}
static void same_bits(team *t, dt_comm *c, int rank)
{
    const plan *k = the;
    stages = t->n * (k->chunks ? k->chunks : 1);
    double   loss[2] = { 0, 0 }, most = 0;
    int      mine = 0;
    dt_rng   start;
    dt_model *m = dt_model_new(.seed = 3), *whole = dt_model_new(.seed = 3);
    bool      sums = k->model == WORDS; /* of the table the order of a sum differs: Adam would enlarge that */
    dt_optimizer *opt = sums ? dt_sgd(m, .lr = 0.1f, .momentum = 0.9f) : dt_adam(m, .lr = 0.01f);
    dt_optimizer *all = sums ? dt_sgd(whole, .lr = 0.1f, .momentum = 0.9f) : dt_adam(whole, .lr = 0.01f);
    dt_pipeline  *p = dt_pipeline_new(m, c, .micro = k->micro, .schedule = (dt_pipe_kind)k->schedule, .chunks = k->chunks);
    CHECK(p != NULL);
    dt_manual_seed(11);
    for (int i = 0; i < k->steps && !dt_error(); i++) {
        dt_tensor *x, *y;
        start = *dt_rng_default();
        batch(k->model, BATCH, &x, &y);
        CHECK(!dt_pipeline_backward(p, models[k->model], NULL, x, y, &loss[0]));
        dt_step(opt);
        *dt_rng_default() = start;
        unsplit_step(whole, all, k, &loss[1]);
        CHECK(sums && i ? fabs(loss[0] - loss[1]) < 1e-5 : loss[0] == loss[1]);
        if (sums && i == 0) CHECK(!differ(m, whole, "table", &most, &mine)); /* later all depend on the table */
    }
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    if (!dt_error() && !sums) CHECK(!differ(m, whole, "", &most, &mine));
    if (!dt_error() && sums) {
        float *table = (float *)calloc(2, 17 * 16 * sizeof *table), *minus = table + 17 * 16;
        bool   have = rank == 0 || rank == t->n - 1; /* both have it, and it is the same */
        for (int i = 0; have && i < dt_model_count(m); i++) {
            dt_parameter_info a;
            dt_model_get(m, i, &a);
            if (!strcmp(a.name, "table")) dt_copy_out(a.value, table, 17 * 16 * sizeof *table);
        }
        for (int i = 0; i < 17 * 16; i++) minus[i] = have ? -table[i] : -INFINITY, table[i] = have ? table[i] : -INFINITY;
        CHECK(!dt_comm_allreduce(c, table, 2 * 17 * 16, DT_COMM_F32, DT_COMM_MAX));
        for (int i = 0; i < 17 * 16; i++) CHECK(table[i] == -minus[i] && table[i] != 0);
        CHECK(most < 1e-6);
        free(table);
    }
    __atomic_add_fetch(&t->flag[0], mine, __ATOMIC_RELAXED);
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
    EXPECT_GT(t.flag[0], ranks - 1);
}
static void all_schedules(int *utest_result, int model)
{
    static const plan quick[] = { { 0, DT_PIPE_GPIPE, 1, 4, 3 }, { 0, DT_PIPE_1F1B, 1, 4, 3 }, { 0, DT_PIPE_INTERLEAVED, 2, 4, 3 },
                                  { 0, DT_PIPE_ZB_H1, 1, 4, 3 } };
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int i = 0; i < 4; i++) {
            plan k = quick[i];
            k.model = model;
            compare(utest_result, ranks, k);
            for (int micro = 8; micro <= 16 && !dt_test_quick(); micro *= 2) {
                k.micro = micro;
                compare(utest_result, ranks, k);
            }
        }
}
UTEST(same_bits, residuals_skip_connections_dropout) { all_schedules(utest_result, MLP); }
UTEST(same_bits, batch_norms_and_a_stage_without_parameters) { all_schedules(utest_result, CONV); }
UTEST(same_bits, a_table_on_two_ranks) { all_schedules(utest_result, WORDS); }
UTEST(same_bits, odd_numbers)
{
    compare(utest_result, 3, (plan){ MLP, DT_PIPE_1F1B, 1, 2, 2 });
    compare(utest_result, 3, (plan){ MLP, DT_PIPE_ZB_H1, 1, 1, 2 });
    compare(utest_result, 1, (plan){ MLP, DT_PIPE_1F1B, 1, 4, 2 });
    compare(utest_result, 1, (plan){ MLP, DT_PIPE_INTERLEAVED, 4, 4, 2 });
}
