/* models.h - known networks as functions, with the parameter names of torchvision and of HuggingFace's transformers

       dt_model *m = dt_model_new(.seed = 1);
       dt_model_load(m, "resnet18.safetensors");       the state_dict of torchvision's resnet18, saved by safetensors
       dt_model_eval(m);
       dt_tensor *y = resnet(m, x, 18, NET_OPTS(.classes = 1000));

   Include it after dt_layers.h. x is (n, 3, h, w); tokens are (b, t), i64. The results are those of PyTorch, in training and in
   evaluation mode, except that dropout draws other numbers. Dropout is in the places where the original has it.

   Which file fits: a state_dict with the names of
       alexnet, vgg16, resnet, mobilenet_v2, inception_v3, vit: torchvision.models
       unet            Ronneberger et al. 2015 with batch norms, as in many PyTorch programs
       gpt2            GPT2Model; of GPT2LMHeadModel:        dt_model_load(m, path, .strip = "transformer.")
       bert            BertModel; of BertForPreTraining:     .strip = "bert.", .no_strict = true
       llama           LlamaForCausalLM */
#ifndef EXAMPLE_MODELS_H_INCLUDED
#define EXAMPLE_MODELS_H_INCLUDED

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Options: designated initialisers, in C++20 in the order of the struct: NET_OPTS(.classes = 10, .width = 0.5) */
#ifdef __cplusplus
#define NET_OPTS(...) net_opts{ __VA_ARGS__ }
#define TRANSFORMER_OPTS(...) transformer_opts{ __VA_ARGS__ }
#define NET__UNIT(...) net__unit{ __VA_ARGS__ }
#else
#define NET_OPTS(...) (net_opts){ __VA_ARGS__ }
#define TRANSFORMER_OPTS(...) (transformer_opts){ __VA_ARGS__ }
#define NET__UNIT(...) (net__unit){ __VA_ARGS__ }
#endif

/* ---------------------------------------------------------------------------------------------------- images */
typedef struct net_opts {
    int64_t     classes DT_D; /* 1000; unet: 2 */
    double      width DT_D;   /* channels inside the net: those of the original times this; 1 */
    double      dropout DT_D; /* default: the original's (alexnet, vgg16, inception_v3: 0.5; mobilenet_v2: 0.2); DT_ZERO: none */
    dt_tensor **aux DT_D;     /* inception_v3: makes the auxiliary head, and puts its logits here; default: without the head */
} net_opts;

static inline int64_t net__classes(net_opts o) { return o.classes ? o.classes : 1000; }
static inline int64_t net__wide(net_opts o, int64_t channels)
{
    int64_t n = o.width > 0 ? (int64_t)((double)channels * o.width) : channels;
    return n > 0 ? n : 1;
}
static inline dt_tensor *net__dropout(dt_model *m, dt_tensor *x, net_opts o, double otherwise)
{
    double p = o.dropout == DT_ZERO ? 0 : o.dropout > 0 ? o.dropout : otherwise;
    return p > 0 ? dt_dropout(m, x, p) : x;
}
/* The linear layers of AlexNet and VGG: two of 4096 and the classes. at: the index of each in `classifier` */
static inline dt_tensor *net__classifier(dt_model *m, dt_tensor *x, const int at[3], bool dropout_first, net_opts o)
{
    char name[3][24];
    for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "classifier.%d", at[i]);
    x = dt_flatten(x);
    for (int i = 0; i < 2; i++) {
        if (dropout_first) x = net__dropout(m, x, o, 0.5);
        x = dt_linear(m, name[i], x, .out = net__wide(o, 4096), .act = DT_ACT_RELU);
        if (!dropout_first) x = net__dropout(m, x, o, 0.5);
    }
    return dt_linear(m, name[2], x, .out = net__classes(o));
}

static inline dt_tensor *alexnet(dt_model *m, dt_tensor *x, net_opts o)
{
    static const int at[3] = { 1, 4, 6 };
    x = dt_conv2d(m, "features.0", x, .out = net__wide(o, 64), .kernel = 11, .stride = 4, .pad = 2, .act = DT_ACT_RELU);
    x = dt_maxpool2d(x, .kernel = 3, .stride = 2);
    x = dt_conv2d(m, "features.3", x, .out = net__wide(o, 192), .kernel = 5, .pad = 2, .act = DT_ACT_RELU);
    x = dt_maxpool2d(x, .kernel = 3, .stride = 2);
    x = dt_conv2d(m, "features.6", x, .out = net__wide(o, 384), .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
    x = dt_conv2d(m, "features.8", x, .out = net__wide(o, 256), .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
    x = dt_conv2d(m, "features.10", x, .out = net__wide(o, 256), .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
    x = dt_adaptive_avgpool2d(dt_maxpool2d(x, .kernel = 3, .stride = 2), 6, 6);
    return net__classifier(m, x, at, true, o);
}

static inline dt_tensor *vgg16(dt_model *m, dt_tensor *x, net_opts o)
{
    static const int channels[] = { 64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0 };
    static const int at[3] = { 0, 3, 6 };
    char             name[24];
    for (size_t i = 0, layer = 0; i < sizeof channels / sizeof *channels; i++) {
        snprintf(name, sizeof name, "features.%d", (int)layer);
        layer += channels[i] ? 2 : 1;
        x = channels[i] ? dt_conv2d(m, name, x, .out = net__wide(o, channels[i]), .kernel = 3, .pad = 1, .act = DT_ACT_RELU)
                        : dt_maxpool2d(x, .kernel = 2);
    }
    return net__classifier(m, dt_adaptive_avgpool2d(x, 7, 7), at, false, o);
}

/* A convolution without bias, and a batch norm */
typedef struct net__unit {
    int        kernel_w DT_D, stride DT_D, pad DT_D, pad_w DT_D, groups DT_D;
    double     eps DT_D;
    dt_act     act DT_D;
    dt_tensor *add DT_D;
} net__unit;
static inline dt_tensor *net__conv_bn(dt_model *m, dt_tensor *x, const char *conv, const char *bn, int64_t out, int kernel,
                                      net__unit u)
{
    x = dt_conv2d(m, conv, x, .out = out, .kernel = kernel, .kernel_w = u.kernel_w, .stride = u.stride, .pad = u.pad,
                  .pad_w = u.pad_w, .groups = u.groups, .no_bias = true);
    return dt_batchnorm2d(m, bn, x, .eps = u.eps, .act = u.act, .add = u.add);
}

/* depth: 18, 34, 50, 101 or 152 */
static inline dt_tensor *resnet(dt_model *m, dt_tensor *x, int depth, net_opts o)
{
    static const int all[5][5] = { { 18, 2, 2, 2, 2 }, { 34, 3, 4, 6, 3 }, { 50, 3, 4, 6, 3 }, { 101, 3, 4, 23, 3 },
                                   { 152, 3, 8, 36, 3 } };
    int              row = 0;
    while (row < 5 && all[row][0] != depth) row++;
    if (row == 5) {
        dt_fail(DT_ERR_ARG, "resnet: depth %d; it must be 18, 34, 50, 101 or 152", depth);
        return NULL;
    }
    bool deep = depth >= 50; /* blocks of three convolutions, the last of which makes four times as many channels */
    x = net__conv_bn(m, x, "conv1", "bn1", net__wide(o, 64), 7, NET__UNIT(.stride = 2, .pad = 3, .act = DT_ACT_RELU));
    x = dt_maxpool2d(x, .kernel = 3, .stride = 2, .pad = 1);
    for (int s = 0; s < 4; s++)
        for (int b = 0; b < all[row][1 + s]; b++) {
            int64_t    c = net__wide(o, (int64_t)64 << s), out = deep ? 4 * c : c;
            int        stride = b == 0 && s > 0 ? 2 : 1;
            dt_tensor *y = x, *skip = x;
            dt_scope_begin(m, "layer%d.%d", s + 1, b);
            if (deep) y = net__conv_bn(m, y, "conv1", "bn1", c, 1, NET__UNIT(.act = DT_ACT_RELU));
            y = net__conv_bn(m, y, deep ? "conv2" : "conv1", deep ? "bn2" : "bn1", c, 3,
                             NET__UNIT(.stride = stride, .pad = 1, .act = DT_ACT_RELU));
            if (stride > 1 || dt_size(x, 1) != out)
                skip = net__conv_bn(m, x, "downsample.0", "downsample.1", out, 1, NET__UNIT(.stride = stride));
            x = net__conv_bn(m, y, deep ? "conv3" : "conv2", deep ? "bn3" : "bn2", out, deep ? 1 : 3,
                             NET__UNIT(.pad = deep ? 0 : 1, .act = DT_ACT_RELU, .add = skip));
            dt_scope_end(m);
        }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = net__classes(o));
}

/* Channels are multiples of 8, as in the paper. */
static inline int64_t net__eights(double channels)
{
    int64_t n = (int64_t)(channels + 4) / 8 * 8;
    if (n < 8) n = 8;
    return (double)n < 0.9 * channels ? n + 8 : n;
}
static inline dt_tensor *mobilenet_v2(dt_model *m, dt_tensor *x, net_opts o)
{
    /* each row: expansion, channels, blocks, stride of the first block */
    static const int rows[7][4] = { { 1, 16, 1, 1 }, { 6, 24, 2, 2 }, { 6, 32, 3, 2 }, { 6, 64, 4, 2 }, { 6, 96, 3, 1 },
                                    { 6, 160, 3, 2 }, { 6, 320, 1, 1 } };
    double           width = o.width > 0 ? o.width : 1;
    int              layer = 1;
    x = net__conv_bn(m, x, "features.0.0", "features.0.1", net__eights(32 * width), 3, NET__UNIT(.stride = 2, .pad = 1));
    x = dt_clamp(x, 0, 6);
    for (int r = 0; r < 7; r++)
        for (int b = 0; b < rows[r][2]; b++, layer++) {
            int64_t    in = dt_size(x, 1), hidden = in * rows[r][0], out = net__eights(rows[r][1] * width);
            int        stride = b ? 1 : rows[r][3], wide = rows[r][0] > 1;
            dt_tensor *y = x;
            dt_scope_begin(m, "features.%d.conv", layer);
            if (wide) y = dt_clamp(net__conv_bn(m, y, "0.0", "0.1", hidden, 1, NET__UNIT(.stride = 1)), 0, 6);
            y = net__conv_bn(m, y, wide ? "1.0" : "0.0", wide ? "1.1" : "0.1", hidden, 3,
                             NET__UNIT(.stride = stride, .pad = 1, .groups = (int)hidden));
            y = dt_clamp(y, 0, 6);
            x = net__conv_bn(m, y, wide ? "2" : "1", wide ? "3" : "2", out, 1,
                             NET__UNIT(.add = stride == 1 && in == out ? x : NULL));
            dt_scope_end(m);
        }
    int64_t last = net__eights(1280 * (width > 1 ? width : 1));
    x = net__conv_bn(m, x, "features.18.0", "features.18.1", last, 1, NET__UNIT(.stride = 1));
    x = dt_clamp(x, 0, 6);
    x = net__dropout(m, dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), o, 0.2);
    return dt_linear(m, "classifier.1", x, .out = net__classes(o));
}

/* ---- Inception: branches of convolutions over one input, joined by channel */
static inline dt_tensor *net__basic(dt_model *m, const char *name, dt_tensor *x, int64_t out, int kernel, int kernel_w,
                                    int stride)
{
    dt_scope_begin(m, "%s", name);
    int pad = stride == 1 ? kernel / 2 : 0, pad_w = stride == 1 ? kernel_w / 2 : 0; /* no padding where the image is halved */
    x = net__conv_bn(m, x, "conv", "bn", out, kernel,
                     NET__UNIT(.kernel_w = kernel_w, .stride = stride, .pad = pad, .pad_w = pad_w ? pad_w : DT_ZERO,
                                  .eps = 0.001, .act = DT_ACT_RELU));
    dt_scope_end(m);
    return x;
}
static inline dt_tensor *net__pool_branch(dt_model *m, dt_tensor *x, int64_t out)
{
    return net__basic(m, "branch_pool", dt_avgpool2d(x, .kernel = 3, .stride = 1, .pad = 1), out, 1, 1, 1);
}
static inline dt_tensor *net__inception_a(dt_model *m, const char *name, dt_tensor *x, int64_t pool, net_opts o)
{
    dt_tensor *y[4];
    dt_scope_begin(m, "%s", name);
    y[0] = net__basic(m, "branch1x1", x, net__wide(o, 64), 1, 1, 1);
    y[1] = net__basic(m, "branch5x5_1", x, net__wide(o, 48), 1, 1, 1);
    y[1] = net__basic(m, "branch5x5_2", y[1], net__wide(o, 64), 5, 5, 1);
    y[2] = net__basic(m, "branch3x3dbl_1", x, net__wide(o, 64), 1, 1, 1);
    y[2] = net__basic(m, "branch3x3dbl_2", y[2], net__wide(o, 96), 3, 3, 1);
    y[2] = net__basic(m, "branch3x3dbl_3", y[2], net__wide(o, 96), 3, 3, 1);
    y[3] = net__pool_branch(m, x, net__wide(o, pool));
    dt_scope_end(m);
    return dt_cat(y, 4, 1);
}
static inline dt_tensor *net__inception_b(dt_model *m, const char *name, dt_tensor *x, net_opts o)
{
    dt_tensor *y[3];
    dt_scope_begin(m, "%s", name);
    y[0] = net__basic(m, "branch3x3", x, net__wide(o, 384), 3, 3, 2);
    y[1] = net__basic(m, "branch3x3dbl_1", x, net__wide(o, 64), 1, 1, 1);
    y[1] = net__basic(m, "branch3x3dbl_2", y[1], net__wide(o, 96), 3, 3, 1);
    y[1] = net__basic(m, "branch3x3dbl_3", y[1], net__wide(o, 96), 3, 3, 2);
    y[2] = dt_maxpool2d(x, .kernel = 3, .stride = 2);
    dt_scope_end(m);
    return dt_cat(y, 3, 1);
}
static inline dt_tensor *net__inception_c(dt_model *m, const char *name, dt_tensor *x, int64_t inner, net_opts o)
{
    dt_tensor *y[4];
    int64_t    c = net__wide(o, inner), out = net__wide(o, 192);
    dt_scope_begin(m, "%s", name);
    y[0] = net__basic(m, "branch1x1", x, out, 1, 1, 1);
    y[1] = net__basic(m, "branch7x7_1", x, c, 1, 1, 1);
    y[1] = net__basic(m, "branch7x7_2", y[1], c, 1, 7, 1);
    y[1] = net__basic(m, "branch7x7_3", y[1], out, 7, 1, 1);
    y[2] = net__basic(m, "branch7x7dbl_1", x, c, 1, 1, 1);
    y[2] = net__basic(m, "branch7x7dbl_2", y[2], c, 7, 1, 1);
    y[2] = net__basic(m, "branch7x7dbl_3", y[2], c, 1, 7, 1);
    y[2] = net__basic(m, "branch7x7dbl_4", y[2], c, 7, 1, 1);
    y[2] = net__basic(m, "branch7x7dbl_5", y[2], out, 1, 7, 1);
    y[3] = net__pool_branch(m, x, out);
    dt_scope_end(m);
    return dt_cat(y, 4, 1);
}
static inline dt_tensor *net__inception_d(dt_model *m, const char *name, dt_tensor *x, net_opts o)
{
    dt_tensor *y[3];
    int64_t    c = net__wide(o, 192);
    dt_scope_begin(m, "%s", name);
    y[0] = net__basic(m, "branch3x3_1", x, c, 1, 1, 1);
    y[0] = net__basic(m, "branch3x3_2", y[0], net__wide(o, 320), 3, 3, 2);
    y[1] = net__basic(m, "branch7x7x3_1", x, c, 1, 1, 1);
    y[1] = net__basic(m, "branch7x7x3_2", y[1], c, 1, 7, 1);
    y[1] = net__basic(m, "branch7x7x3_3", y[1], c, 7, 1, 1);
    y[1] = net__basic(m, "branch7x7x3_4", y[1], c, 3, 3, 2);
    y[2] = dt_maxpool2d(x, .kernel = 3, .stride = 2);
    dt_scope_end(m);
    return dt_cat(y, 3, 1);
}
static inline dt_tensor *net__inception_e(dt_model *m, const char *name, dt_tensor *x, net_opts o)
{
    dt_tensor *y[4], *pair[2];
    int64_t    c = net__wide(o, 384);
    dt_scope_begin(m, "%s", name);
    y[0] = net__basic(m, "branch1x1", x, net__wide(o, 320), 1, 1, 1);
    y[1] = net__basic(m, "branch3x3_1", x, c, 1, 1, 1);
    pair[0] = net__basic(m, "branch3x3_2a", y[1], c, 1, 3, 1);
    pair[1] = net__basic(m, "branch3x3_2b", y[1], c, 3, 1, 1);
    y[1] = dt_cat(pair, 2, 1);
    y[2] = net__basic(m, "branch3x3dbl_1", x, net__wide(o, 448), 1, 1, 1);
    y[2] = net__basic(m, "branch3x3dbl_2", y[2], c, 3, 3, 1);
    pair[0] = net__basic(m, "branch3x3dbl_3a", y[2], c, 1, 3, 1);
    pair[1] = net__basic(m, "branch3x3dbl_3b", y[2], c, 3, 1, 1);
    y[2] = dt_cat(pair, 2, 1);
    y[3] = net__pool_branch(m, x, net__wide(o, 192));
    dt_scope_end(m);
    return dt_cat(y, 4, 1);
}
/* x (n, 3, 299, 299), or another size from 75 on, with .aux from 299 on; in -1 .. 1: torchvision's transform_input is not done
   here */
static inline dt_tensor *inception_v3(dt_model *m, dt_tensor *x, net_opts o)
{
    static const int inner[4] = { 128, 160, 160, 192 };
    x = net__basic(m, "Conv2d_1a_3x3", x, net__wide(o, 32), 3, 3, 2);
    dt_scope_begin(m, "Conv2d_2a_3x3"); /* the one of stride 1 without padding */
    x = net__conv_bn(m, x, "conv", "bn", net__wide(o, 32), 3, NET__UNIT(.eps = 0.001, .act = DT_ACT_RELU));
    dt_scope_end(m);
    x = net__basic(m, "Conv2d_2b_3x3", x, net__wide(o, 64), 3, 3, 1);
    x = dt_maxpool2d(x, .kernel = 3, .stride = 2);
    x = net__basic(m, "Conv2d_3b_1x1", x, net__wide(o, 80), 1, 1, 1);
    dt_scope_begin(m, "Conv2d_4a_3x3");
    x = net__conv_bn(m, x, "conv", "bn", net__wide(o, 192), 3, NET__UNIT(.eps = 0.001, .act = DT_ACT_RELU));
    dt_scope_end(m);
    x = dt_maxpool2d(x, .kernel = 3, .stride = 2);
    x = net__inception_a(m, "Mixed_5b", x, 32, o);
    x = net__inception_a(m, "Mixed_5c", x, 64, o);
    x = net__inception_a(m, "Mixed_5d", x, 64, o);
    x = net__inception_b(m, "Mixed_6a", x, o);
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "Mixed_6%c", 'b' + i);
        x = net__inception_c(m, name, x, inner[i], o);
    }
    if (o.aux) {
        dt_scope_begin(m, "AuxLogits");
        dt_tensor *a = net__basic(m, "conv0", dt_avgpool2d(x, .kernel = 5, .stride = 3), net__wide(o, 128), 1, 1, 1);
        dt_scope_begin(m, "conv1");
        a = net__conv_bn(m, a, "conv", "bn", net__wide(o, 768), 5, NET__UNIT(.eps = 0.001, .act = DT_ACT_RELU));
        dt_scope_end(m);
        *o.aux = dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(a, 1, 1)), .out = net__classes(o));
        dt_scope_end(m);
    }
    x = net__inception_d(m, "Mixed_7a", x, o);
    x = net__inception_e(m, "Mixed_7b", x, o);
    x = net__inception_e(m, "Mixed_7c", x, o);
    x = net__dropout(m, dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), o, 0.5);
    return dt_linear(m, "fc", x, .out = net__classes(o));
}

/* U-Net: (n, 3, h, w) -> (n, classes, h, w). Sides that are no multiples of 16 are padded where halves are joined. */
static inline dt_tensor *net__twice(dt_model *m, const char *name, dt_tensor *x, int64_t out)
{
    dt_scope_begin(m, "%s.double_conv", name);
    x = net__conv_bn(m, x, "0", "1", out, 3, NET__UNIT(.pad = 1, .act = DT_ACT_RELU));
    x = net__conv_bn(m, x, "3", "4", out, 3, NET__UNIT(.pad = 1, .act = DT_ACT_RELU));
    dt_scope_end(m);
    return x;
}
static inline dt_tensor *unet(dt_model *m, dt_tensor *x, net_opts o)
{
    dt_tensor *side[4];
    char       name[40];
    x = net__twice(m, "inc", x, net__wide(o, 64));
    for (int i = 0; i < 4; i++) {
        side[i] = x;
        snprintf(name, sizeof name, "down%d.maxpool_conv.1", i + 1);
        x = net__twice(m, name, dt_maxpool2d(x, .kernel = 2), net__wide(o, (int64_t)128 << i));
    }
    for (int i = 0; i < 4; i++) {
        int64_t c = net__wide(o, (int64_t)512 >> i);
        snprintf(name, sizeof name, "up%d.up", i + 1);
        x = dt_conv_transpose2d(m, name, x, .out = c, .kernel = 2, .stride = 2);
        int64_t h = dt_size(side[3 - i], 2) - dt_size(x, 2), w = dt_size(side[3 - i], 3) - dt_size(x, 3);
        int64_t pads[4] = { w / 2, w - w / 2, h / 2, h - h / 2 };
        dt_tensor *pair[2] = { side[3 - i], h || w ? dt_pad(x, pads, 4, 0) : x };
        snprintf(name, sizeof name, "up%d.conv", i + 1);
        x = net__twice(m, name, dt_cat(pair, 2, 1), c);
    }
    return dt_conv2d(m, "outc.conv", x, .out = o.classes ? o.classes : 2, .kernel = 1);
}

/* ---------------------------------------------------------------------------------------------------- transformers */
typedef struct transformer_opts { /* 0: the default of each model, which its table below lists */
    int64_t layers DT_D, heads DT_D, dim DT_D, ff DT_D, vocab DT_D, context DT_D;
    int64_t kv_heads DT_D;   /* llama: heads of keys and values; default, if heads is given: as many */
    int64_t classes DT_D;    /* vit: 1000 */
    int64_t patch DT_D;      /* vit: 16 */
    double  eps DT_D;        /* of the norms */
    double  theta DT_D;      /* llama: the base of the rotary positions */
    double  dropout DT_D;    /* default none; HuggingFace's GPT-2 and BERT train with 0.1 */
    bool    tied DT_D;       /* llama: the output layer has the weights of the embedding */
    dt_tensor    *rope DT_D;   /* llama: dt_rope_table(context, dim / heads, theta), kept; default: made in each forward */
    dt_tensor    *types DT_D;  /* bert: token types (b, t), i64; default: 0 */
    dt_tensor    *mask DT_D;   /* bert: (b, t), u8, 0: padding; default: no padding */
    dt_tensor   **pooled DT_D; /* bert: receives the pooled output (b, dim) */
    dt_kv_cache **cache DT_D;  /* gpt2, llama: one for each layer, to generate: dt_layers.h */
} transformer_opts;

/* (b, t, h d) -> (b, h, t, d), and back */
static inline dt_tensor *net__heads(dt_tensor *x, int64_t heads)
{
    int64_t d = dt_size(x, 2) / heads;
    return dt_transpose(dt_reshape(x, DT_SHAPE(dt_size(x, 0), dt_size(x, 1), heads, d)), 1, 2);
}
static inline dt_tensor *net__joined(dt_tensor *x)
{
    x = dt_transpose(x, 1, 2);
    return dt_reshape(x, DT_SHAPE(dt_size(x, 0), dt_size(x, 1), dt_size(x, 2) * dt_size(x, 3)));
}
/* Positions of the tokens, behind those that a cache holds */
static inline dt_tensor *net__positions(dt_tensor *tokens, dt_kv_cache **cache)
{
    int64_t at = cache ? dt_kv_cache_length(cache[0]) : 0;
    return dt_arange((double)at, (double)(at + dt_size(tokens, 1)), 1, .dtype = DT_I64, .device = dt_device_of(tokens));
}
/* HuggingFace's Conv1D: a linear layer whose weight is (in, out) */
static inline dt_tensor *net__conv1d(dt_model *m, const char *name, dt_tensor *x, int64_t out)
{
    char weight[64], bias[64];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    dt_tensor *w = dt_parameter(m, weight, DT_SHAPE(dt_size(x, -1), out), .init = DT_INIT_NORMAL, .b = 0.02);
    dt_tensor *b = dt_parameter(m, bias, DT_SHAPE(out));
    return dt_op_linear(dt_cast(x, dt_dtype_of(w)), dt_transpose(w, 0, 1), b);
}

/* GPT2LMHeadModel: tokens (b, t) -> logits (b, t, vocab). The output layer has the weights of the embedding.
   layers 12, heads 12, dim 768, ff 4 dim, vocab 50257, context 1024, eps 1e-5 */
static inline dt_tensor *gpt2(dt_model *m, dt_tensor *tokens, transformer_opts o)
{
    int64_t    layers = o.layers ? o.layers : 12, heads = o.heads ? o.heads : 12, dim = o.dim ? o.dim : 768;
    int64_t    vocab = o.vocab ? o.vocab : 50257, ff = o.ff ? o.ff : 4 * dim;
    dt_tensor *wte = dt_parameter(m, "wte.weight", DT_SHAPE(vocab, dim), .init = DT_INIT_NORMAL, .b = 0.02);
    int64_t    context = o.context ? o.context : 1024;
    dt_tensor *wpe = dt_parameter(m, "wpe.weight", DT_SHAPE(context, dim), .init = DT_INIT_NORMAL, .b = 0.02);
    dt_tensor *x = dt_add(dt_op_embedding(tokens, wte), dt_op_embedding(net__positions(tokens, o.cache), wpe));
    x = o.dropout > 0 ? dt_dropout(m, x, o.dropout) : x;
    for (int64_t i = 0; i < layers; i++) {
        dt_scope_begin(m, "h.%d", (int)i);
        dt_tensor *a = net__conv1d(m, "attn.c_attn", dt_layernorm(m, "ln_1", x, .eps = o.eps), 3 * dim), *qkv[3];
        for (int k = 0; k < 3; k++) qkv[k] = net__heads(dt_narrow(a, 2, k * dim, dim), heads);
        a = o.cache ? dt_attention_cached(qkv[0], qkv[1], qkv[2], o.cache[i])
                    : dt_attention(qkv[0], qkv[1], qkv[2], .causal = true);
        a = net__conv1d(m, "attn.c_proj", net__joined(a), dim);
        x = dt_add(x, o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a);
        a = net__conv1d(m, "mlp.c_fc", dt_layernorm(m, "ln_2", x, .eps = o.eps), ff);
        a = net__conv1d(m, "mlp.c_proj", dt_gelu_tanh(a), dim);
        x = dt_add(x, o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a);
        dt_scope_end(m);
    }
    x = dt_layernorm(m, "ln_f", x, .eps = o.eps);
    return dt_op_linear(dt_cast(x, dt_dtype_of(wte)), wte, NULL);
}

/* BertModel: tokens (b, t) -> the last hidden states (b, t, dim). layers 12, heads 12, dim 768, ff 4 dim, vocab 30522, context
   512, eps 1e-12 */
static inline dt_tensor *bert(dt_model *m, dt_tensor *tokens, transformer_opts o)
{
    int64_t    layers = o.layers ? o.layers : 12, heads = o.heads ? o.heads : 12, dim = o.dim ? o.dim : 768;
    int64_t    b = dt_size(tokens, 0), context = o.context ? o.context : 512;
    double     eps = o.eps > 0 ? o.eps : 1e-12;
    dt_tensor *types = o.types ? o.types : dt_zeros(dt_shape_of(tokens), .dtype = DT_I64, .device = dt_device_of(tokens));
    dt_tensor *mask = o.mask ? dt_reshape(o.mask, DT_SHAPE(b, 1, 1, dt_size(tokens, 1))) : NULL;
    dt_scope_begin(m, "embeddings");
    dt_tensor *x = dt_embedding(m, "word_embeddings", tokens, .num = o.vocab ? o.vocab : 30522, .dim = dim);
    x = dt_add(x, dt_embedding(m, "position_embeddings", net__positions(tokens, NULL), .num = context, .dim = dim));
    x = dt_add(x, dt_embedding(m, "token_type_embeddings", types, .num = 2, .dim = dim));
    x = dt_layernorm(m, "LayerNorm", x, .eps = eps);
    x = o.dropout > 0 ? dt_dropout(m, x, o.dropout) : x;
    dt_scope_end(m);
    for (int64_t i = 0; i < layers; i++) {
        dt_scope_begin(m, "encoder.layer.%d", (int)i);
        dt_tensor *q = net__heads(dt_linear(m, "attention.self.query", x, .out = dim), heads);
        dt_tensor *k = net__heads(dt_linear(m, "attention.self.key", x, .out = dim), heads);
        dt_tensor *v = net__heads(dt_linear(m, "attention.self.value", x, .out = dim), heads);
        dt_tensor *a = dt_linear(m, "attention.output.dense", net__joined(dt_attention(q, k, v, .mask = mask)), .out = dim);
        a = o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a;
        x = dt_layernorm(m, "attention.output.LayerNorm", dt_add(a, x), .eps = eps);
        a = dt_gelu(dt_linear(m, "intermediate.dense", x, .out = o.ff ? o.ff : 4 * dim));
        a = dt_linear(m, "output.dense", a, .out = dim);
        a = o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a;
        x = dt_layernorm(m, "output.LayerNorm", dt_add(a, x), .eps = eps);
        dt_scope_end(m);
    }
    dt_tensor *pooled = dt_linear(m, "pooler.dense", dt_select(x, 1, 0), .out = dim, .act = DT_ACT_TANH);
    if (o.pooled) *o.pooled = pooled;
    return x;
}

/* LlamaForCausalLM: tokens (b, t) -> logits (b, t, vocab). layers 22, heads 32, kv_heads 4, dim 2048, ff 5632, vocab 32000
   (TinyLlama-1.1B), eps 1e-5, theta 10000. The context has no limit but memory. */
static inline dt_tensor *llama(dt_model *m, dt_tensor *tokens, transformer_opts o)
{
    int64_t    layers = o.layers ? o.layers : 22, heads = o.heads ? o.heads : 32, dim = o.dim ? o.dim : 2048;
    int64_t    kv_heads = o.kv_heads ? o.kv_heads : o.heads ? heads : 4, d = dim / heads;
    int64_t    ff = o.ff ? o.ff : o.dim ? 4 * dim : 5632, vocab = o.vocab ? o.vocab : 32000;
    int64_t    before = o.cache ? dt_kv_cache_length(o.cache[0]) : 0;
    double     eps = o.eps > 0 ? o.eps : 1e-5;
    dt_tensor *table = o.rope ? o.rope : dt_rope_table(before + dt_size(tokens, 1), d, o.theta > 0 ? o.theta : 10000,
                                                       .device = dt_device_of(tokens));
    dt_tensor *wte = dt_parameter(m, "model.embed_tokens.weight", DT_SHAPE(vocab, dim), .init = DT_INIT_NORMAL, .b = 0.02);
    dt_tensor *x = dt_op_embedding(tokens, wte);
    for (int64_t i = 0; i < layers; i++) {
        dt_scope_begin(m, "model.layers.%d", (int)i);
        dt_tensor *a = dt_rmsnorm(m, "input_layernorm", x, .eps = eps);
        dt_tensor *q = net__heads(dt_linear(m, "self_attn.q_proj", a, .out = dim, .no_bias = true), heads);
        dt_tensor *k = net__heads(dt_linear(m, "self_attn.k_proj", a, .out = kv_heads * d, .no_bias = true), kv_heads);
        dt_tensor *v = net__heads(dt_linear(m, "self_attn.v_proj", a, .out = kv_heads * d, .no_bias = true), kv_heads);
        q = dt_rope(q, table, .offset = before), k = dt_rope(k, table, .offset = before);
        a = o.cache ? dt_attention_cached(q, k, v, o.cache[i]) : dt_attention(q, k, v, .causal = true);
        x = dt_add(x, dt_linear(m, "self_attn.o_proj", net__joined(a), .out = dim, .no_bias = true));
        a = dt_rmsnorm(m, "post_attention_layernorm", x, .eps = eps);
        dt_tensor *gate = dt_silu(dt_linear(m, "mlp.gate_proj", a, .out = ff, .no_bias = true));
        a = dt_mul(gate, dt_linear(m, "mlp.up_proj", a, .out = ff, .no_bias = true));
        x = dt_add(x, dt_linear(m, "mlp.down_proj", a, .out = dim, .no_bias = true));
        dt_scope_end(m);
    }
    x = dt_rmsnorm(m, "model.norm", x, .eps = eps);
    if (o.tied) return dt_op_linear(dt_cast(x, dt_dtype_of(wte)), wte, NULL);
    return dt_linear(m, "lm_head", x, .out = vocab, .no_bias = true);
}

/* vit_b_16: x (n, 3, h, w) -> logits; h and w are multiples of the patch. layers 12, heads 12, dim 768, ff 4 dim, eps 1e-6. All
   images of a model have one size. */
static inline dt_tensor *vit(dt_model *m, dt_tensor *x, transformer_opts o)
{
    int64_t layers = o.layers ? o.layers : 12, dim = o.dim ? o.dim : 768, patch = o.patch ? o.patch : 16, n = dt_size(x, 0);
    double  eps = o.eps > 0 ? o.eps : 1e-6;
    int     heads = o.heads ? (int)o.heads : 12;
    x = dt_conv2d(m, "conv_proj", x, .out = dim, .kernel = (int)patch, .stride = (int)patch);
    x = dt_transpose(dt_reshape(x, DT_SHAPE(n, dim, dt_size(x, 2) * dt_size(x, 3))), 1, 2);
    dt_tensor *both[2] = { dt_expand(dt_parameter(m, "class_token", DT_SHAPE(1, 1, dim)), DT_SHAPE(n, 1, dim)), x };
    x = dt_cat(both, 2, 1);
    x = dt_add(x, dt_parameter(m, "encoder.pos_embedding", DT_SHAPE(1, dt_size(x, 1), dim), .init = DT_INIT_NORMAL, .b = 0.02));
    x = o.dropout > 0 ? dt_dropout(m, x, o.dropout) : x;
    for (int64_t i = 0; i < layers; i++) {
        dt_scope_begin(m, "encoder.layers.encoder_layer_%d", (int)i);
        dt_tensor *a = dt_multihead_attention(m, "self_attention", dt_layernorm(m, "ln_1", x, .eps = eps), .heads = heads);
        x = dt_add(x, o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a);
        a = dt_gelu(dt_linear(m, "mlp.0", dt_layernorm(m, "ln_2", x, .eps = eps), .out = o.ff ? o.ff : 4 * dim));
        a = dt_linear(m, "mlp.3", o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a, .out = dim);
        x = dt_add(x, o.dropout > 0 ? dt_dropout(m, a, o.dropout) : a);
        dt_scope_end(m);
    }
    x = dt_layernorm(m, "encoder.ln", x, .eps = eps);
    return dt_linear(m, "heads.head", dt_select(x, 1, 0), .out = o.classes ? o.classes : 1000);
}

#endif /* EXAMPLE_MODELS_H_INCLUDED */
