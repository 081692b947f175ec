/* models.h: forwards with cuts for the tests of pipelines, and batches for them */
#ifndef PIPE_MODELS_H
#define PIPE_MODELS_H

#include "dt_test.h"

#include "dt_pipe.h"

#include <stdio.h>

/* All have up to seven cuts; how many of them are used is the number of stages. */
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
    for (int i = 3; i < 7; i++) x = dt_tanh(dt_mul(cut(m, i, x), x));
    return dt_cross_entropy(dt_linear(m, "fc", dt_flatten(x), .out = 10), y);
}
static int blocks = 7; /* of words */
/* Integers as input; the embedding is used by the first stage and, as the output layer, by the last. */
static dt_tensor *words(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    enum { VOCAB = 17, DIM = 16 };
    dt_tensor *table = dt_parameter(m, "table", DT_SHAPE(VOCAB, DIM), .init = DT_INIT_NORMAL, .b = 0.3);
    dt_tensor *h = dt_op_embedding(x, table);
    for (int i = 0; i < blocks; i++) {
        char name[16];
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
#endif
