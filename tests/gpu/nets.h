/* nets.h: the trainers of tests/gpu: conv net, ResNet-20 and GPT of examples/, narrower, and data for them */
#ifndef DT_GPU_NETS_H
#define DT_GPU_NETS_H

#include "harness.h"

#include "dt_nn.h"

#include <stdbool.h>
#include <stdint.h>

enum { STEPS = 4, CLASSES = 10 };
typedef struct trainer {
    const char *name;
    dt_tensor *(*net)(dt_model *m, dt_tensor *x);
    dt_shape    x;
    int         tokens; /* x are these many kinds of tokens */
} trainer;

/* ---- the nets of examples/, narrower */
static dt_tensor *conv_net(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "0", x, .out = 8, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "1", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_conv2d(m, "4", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "5", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "9", dt_op_dropout(dt_flatten(x), 0.25, .eval = !dt_model_is_training(m)), .out = CLASSES);
}
static dt_tensor *residual(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = dt_batchnorm2d(m, "downsample.1", skip);
    }
    return dt_batchnorm2d(m, "bn2", y, .add = skip, .act = DT_ACT_RELU);
}
static dt_tensor *resnet_20(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv1", x, .out = 4, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int i = 0; i < 9; i++) {
        dt_scope_begin(m, "layers.%d", i);
        x = residual(m, x, 4 << i / 3, i && i % 3 == 0 ? 2 : 1);
        dt_scope_end(m);
    }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = CLASSES);
}
static dt_tensor *gpt_2(dt_model *m, dt_tensor *tokens)
{
    int64_t    n = dt_size(tokens, 0), t = dt_size(tokens, 1), d = 32, h = 4;
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = 40, .dim = d);
    x = dt_add(x, dt_embedding(m, "wpe", dt_arange(0, (double)t, 1, .dtype = DT_I64), .num = t, .dim = d));
    for (int i = 0; i < 2; i++) {
        dt_scope_begin(m, "h.%d", i);
        dt_tensor *a = dt_linear(m, "attn.qkv", dt_layernorm(m, "ln_1", x), .out = 3 * d), *part[3];
        for (int k = 0; k < 3; k++)
            part[k] = dt_transpose(dt_reshape(dt_narrow(a, 2, k * d, d), DT_SHAPE(n, t, h, d / h)), 1, 2);
        a = dt_attention(part[0], part[1], part[2], .causal = true);
        x = dt_add(x, dt_linear(m, "attn.proj", dt_reshape(dt_transpose(a, 1, 2), dt_shape_of(x)), .out = d));
        a = dt_gelu_tanh(dt_linear(m, "fc", dt_layernorm(m, "ln_2", x), .out = 4 * d));
        x = dt_add(x, dt_linear(m, "proj", a, .out = d));
        dt_scope_end(m);
    }
    x = dt_linear(m, "head", dt_layernorm(m, "ln_f", x), .out = 40, .no_bias = true);
    return dt_reshape(dt_narrow(x, 1, t - 1, 1), DT_SHAPE(n, 40));
}
static DT_TEST_UNUSED const trainer trainers[] = { { "conv net", conv_net, { 4, { 5, 1, 14, 14 } }, 0 },
                                    { "ResNet-20", resnet_20, { 4, { 4, 3, 12, 12 } }, 0 },
                                    { "GPT", gpt_2, { 2, { 3, 17 } }, 40 } };

/* ---- training */
static DT_TEST_UNUSED dt_tensor *data_of(const trainer *t, int step)
{
    float   u[4 * 3 * 12 * 12 + 1024];
    int64_t token[64], n = 1;
    dt_rng  r;
    dt_rng_seed(&r, 100 + (uint64_t)step);
    for (int i = 0; i < t->x.ndim; i++) n *= t->x.dim[i];
    if (!t->tokens) return dt_normal(0, 1, t->x, .rng = &r);
    dt_rng_uniform(&r, u, n, 0, 1);
    for (int64_t i = 0; i < n; i++) token[i] = (int64_t)(u[i] * (float)t->tokens);
    return dt_from(token, t->x, .dtype = DT_I64);
}
#endif
