/* nets.h - the networks of the benchmarks, their data and one training step; bench/peer_train.py does the same in PyTorch */
#ifndef NETS_H_INCLUDED
#define NETS_H_INCLUDED

#include "dt_nn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* layers are created in the same order as in PyTorch, so that equal seeds give equal parameters */
static dt_tensor *mlp(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "0", x, .out = 512, .act = DT_ACT_RELU);
    x = dt_linear(m, "2", x, .out = 512, .act = DT_ACT_RELU);
    return dt_linear(m, "4", x, .out = 10);
}
static dt_tensor *convnet(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "0", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "1", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_conv2d(m, "4", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "5", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "9", dt_flatten(x), .out = 10);
}
static dt_tensor *block(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1 || dt_size(x, 1) != out) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = dt_batchnorm2d(m, "downsample.1", skip);
    }
    return dt_batchnorm2d(m, "bn2", y, .act = DT_ACT_RELU, .add = skip);
}
static dt_tensor *resnet(dt_model *m, dt_tensor *x, int stages, int blocks, int width)
{
    x = dt_conv2d(m, "conv1", x, .out = width, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int i = 0; i < stages * blocks; i++) {
        dt_scope_begin(m, "layers.%d", i);
        x = block(m, x, width << i / blocks, i && i % blocks == 0 ? 2 : 1);
        dt_scope_end(m);
    }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
}
static dt_tensor *resnet20(dt_model *m, dt_tensor *x) { return resnet(m, x, 3, 3, 16); }
static dt_tensor *resnet18(dt_model *m, dt_tensor *x) { return resnet(m, x, 4, 2, 64); }
static dt_tensor *heads(dt_tensor *x, int64_t n)
{
    dt_shape s = dt_shape_of(x);
    return dt_transpose(dt_reshape(x, DT_SHAPE(s.dim[0], s.dim[1], n, s.dim[2] / n)), 1, 2);
}
static dt_tensor *gpt(dt_model *m, dt_tensor *tokens)
{
    int64_t    t = dt_size(tokens, 1), d = 256;
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = 512, .dim = d);
    x = dt_add(x, dt_embedding(m, "wpe", dt_arange(0, (double)t, 1, .dtype = DT_I64), .num = t, .dim = d));
    for (int i = 0; i < 4; i++) {
        dt_scope_begin(m, "h.%d", i);
        dt_tensor *a = dt_linear(m, "attn.qkv", dt_layernorm(m, "ln_1", x), .out = 3 * d);
        a = dt_attention(heads(dt_narrow(a, 2, 0, d), 4), heads(dt_narrow(a, 2, d, d), 4),
                         heads(dt_narrow(a, 2, 2 * d, d), 4), .causal = true);
        a = dt_reshape(dt_transpose(a, 1, 2), dt_shape_of(x));
        x = dt_add(x, dt_linear(m, "attn.proj", a, .out = d));
        a = dt_gelu_tanh(dt_linear(m, "fc", dt_layernorm(m, "ln_2", x), .out = 4 * d));
        x = dt_add(x, dt_linear(m, "proj", a, .out = d));
        dt_scope_end(m);
    }
    x = dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = 512, .no_bias = true);
    return dt_reshape(x, DT_SHAPE(-1, 512));
}

typedef struct work {
    const char *name, *unit;
    dt_tensor *(*net)(dt_model *, dt_tensor *);
    dt_shape    shape; /* of x */
    int64_t     items;
    const char *mode;          /* mode of the first peer: default or bf16 */
    double      least[2];      /* target ratios of dt's speed: to PyTorch "default", to "best" */
} work;

static const work works[] = {
    { "mlp", "images/s", mlp, { 2, { 128, 784 } }, 128, "default", { 1.3, 1.2 } },
    { "convnet", "images/s", convnet, { 4, { 100, 1, 28, 28 } }, 100, "default", { 2.0, 1.3 } },
    { "resnet20", "images/s", resnet20, { 4, { 128, 3, 32, 32 } }, 128, "default", { 1.6, 1.3 } },
    { "resnet18", "images/s", resnet18, { 4, { 32, 3, 32, 32 } }, 32, "default", { 1.15, 1.1 } },
    { "gpt", "tokens/s", gpt, { 2, { 8, 128 } }, 1024, "default", { 1.4, 1.2 } },
    { "convnet", "images/s", convnet, { 4, { 100, 1, 28, 28 } }, 100, "bf16", { 5, 0 } },
};
enum { NWORKS = sizeof works / sizeof *works };

typedef struct worker {
    const work   *w;
    dt_model     *m;
    dt_optimizer *opt;
    dt_amp       *amp;
    dt_tensor    *x, *y;
    int           infer;
} worker;
static void make_data(worker *k)
{
    dt_rng  r;
    int64_t n = k->w->items, label[4096], token[8 * 129];
    float   u[8 * 129];
    dt_rng_seed(&r, 2);
    for (int64_t i = 0; i < n; i++) label[i] = i % 10;
    if (!strcmp(k->w->name, "gpt")) {
        int64_t x[1024];
        dt_rng_uniform(&r, u, 8 * 129, 0, 1);
        for (int i = 0; i < 8 * 129; i++) token[i] = (int64_t)(u[i] * 512);
        for (int i = 0; i < 1024; i++) {
            x[i] = token[i / 128 * 129 + i % 128];
            label[i] = token[i / 128 * 129 + i % 128 + 1];
        }
        k->x = dt_keep(dt_from(x, k->w->shape, .dtype = DT_I64));
    } else {
        k->x = dt_keep(dt_normal(0, 1, k->w->shape, .rng = &r));
    }
    k->y = dt_keep(dt_from(label, DT_SHAPE(n), .dtype = DT_I64));
}
static inline void begin(worker *k, const work *w, int infer)
{
    memset(k, 0, sizeof *k);
    k->w = w;
    k->infer = infer;
    k->m = dt_model_new(.seed = 1);
    k->opt = strcmp(w->name, "gpt") ? dt_sgd(k->m, .lr = 0.01, .momentum = 0.9) : dt_adamw(k->m, .lr = 3e-4);
    if (!strcmp(w->mode, "bf16")) k->amp = dt_amp_new(k->m, .level = "O2", .dtype = DT_BF16);
    make_data(k);
    if (infer) {
        dt_model_eval(k->m);
        dt_no_grad_begin();
    }
}
static double one_step(worker *k)
{
    double value;
    if (k->infer) {
        dt_tensor *y = k->w->net(k->m, k->x);
        value = dt_item(dt_select(dt_select(y, 0, 0), 0, 0));
        dt_end();
        return value;
    }
    dt_tensor *l = dt_cross_entropy(k->w->net(k->m, k->x), k->y);
    if (k->amp)
        dt_amp_backward(k->amp, l);
    else
        dt_backward(l);
    value = dt_item(l);
    dt_step(k->opt);
    return value;
}
#endif /* NETS_H_INCLUDED */
