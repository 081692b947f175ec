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
/* What crosses cuts beside a plain activation. */
enum {
    WHOLE_NUMBERS,  /* integers and bytes, used by two later stages; no gradient */
    VIEWS,          /* transposed, a part in the middle, expanded */
    VIEW_AND_BASE,  /* both of the same memory */
    EMPTY,          /* no elements */
    WITHOUT_GRAD,   /* made under dt_no_grad, and detached */
    HALVES,         /* f16 beside f32 */
    ONE_NUMBER,     /* no dimensions */
    OWN_WRITES,     /* changed in place by the stage that has made it */
    UNUSED_THERE,   /* the next stage uses it in a way that needs no gradient of it */
    CROSSINGS
};
static int        crossing_kind;
static dt_tensor *crossing(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    dt_tensor *h = dt_relu(dt_linear(m, "a", x, .out = 12)), *a = h, *b = h, *z = NULL;
    switch (crossing_kind) {
    case WHOLE_NUMBERS: a = dt_argmax(h, .dims = DT_DIM(1)), b = dt_gt(h, dt_mean(h)); break;
    case VIEWS:
        a = dt_transpose(h, 0, 1);
        b = dt_narrow(h, 1, 3, 5);
        z = dt_expand(dt_narrow(h, 1, 0, 1), dt_shape_of(h));
        break;
    case VIEW_AND_BASE: a = dt_narrow(h, 0, 1, dt_size(h, 0) - 1); break;
    case EMPTY: a = dt_narrow(h, 1, 2, 0), b = dt_relu(a); break;
    case WITHOUT_GRAD:
        dt_no_grad_begin();
        a = dt_tanh(h);
        dt_no_grad_end();
        b = dt_detach(h);
        break;
    case HALVES: a = dt_cast(h, DT_F16); break;
    case ONE_NUMBER: a = dt_mean(h); break;
    case OWN_WRITES:
        a = dt_zeros(dt_shape_of(h));
        dt_add_to(a, dt_detach(h), 2);
        dt_fill(dt_narrow(a, 1, 0, 2), 0.5);
        break;
    default: break;
    }
    h = cut(m, 0, h);
    for (int i = 0; i < 2; i++) {
        h = dt_tanh(dt_linear(m, i ? "c" : "b", h, .out = 12));
        switch (crossing_kind) {
        case WHOLE_NUMBERS: h = dt_where(b, h, dt_mul(h, dt_cast(dt_reshape(a, DT_SHAPE(-1, 1)), DT_F32))); break;
        case VIEWS: h = dt_add(dt_mul(h, dt_transpose(a, 0, 1)), dt_add(z, dt_mean(b))); break;
        case VIEW_AND_BASE: h = dt_add(dt_add(h, b), dt_mean(a)); break;
        case EMPTY: h = dt_cat((dt_tensor *[]){ h, a, b }, 3, 1); break;
        case WITHOUT_GRAD: h = dt_add(dt_mul(h, a), b); break;
        case HALVES: h = dt_add(h, dt_cast(dt_mul(a, a), DT_F32)); break;
        case ONE_NUMBER: h = dt_mul(h, a); break;
        case OWN_WRITES: h = dt_mul(h, a); break;
        default: h = i ? dt_add(h, dt_cast(dt_gt(b, dt_zeros(DT_SHAPE(1))), DT_F32)) : h; break;
        }
        if (i == 0) h = cut(m, 1, h);
    }
    for (int i = 2; i < 7; i++) h = dt_tanh(cut(m, i, h));
    return dt_mse_loss(dt_linear(m, "out", h, .out = 1), y);
}
enum { MLP, CONV, WORDS, CROSSING };
static dt_pipeline_fn const models[] = { mlp, conv, words, crossing };
static void batch(int kind, int n, dt_tensor **x, dt_tensor **y) /* of the thread's generator */
{
    if (kind == MLP || kind == CROSSING) {
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
