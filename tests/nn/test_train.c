/* Whole trainings beside PyTorch's: the same seed gives the same initial parameters, bit for bit and by the same names,
   and the losses of 50 steps are within 4 times what PyTorch differs from itself (golden/train.h).
   run: long, ubsan, no-valgrind */
#include "dt_test.h"

#include "dt_nn.h"
#include "golden/train.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { STEPS = GOLDEN_TRAIN_STEPS };

static uint64_t fnv(const void *p, size_t n)
{
    const unsigned char *b = (const unsigned char *)p;
    uint64_t             h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3ull;
    return h;
}

/* ---------------------------------------------------------------------------------------------------- models */
static dt_tensor *convnet(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_relu(dt_batchnorm2d(m, "bn1", x)), .kernel = 2);
    x = dt_conv2d(m, "conv2", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_relu(dt_batchnorm2d(m, "bn2", x)), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}

static dt_tensor *block(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .pad = 1, .stride = stride, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1 || dt_size(x, 1) != out) {
        x = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        x = dt_batchnorm2d(m, "downsample.1", x);
    }
    return dt_batchnorm2d(m, "bn2", y, .add = x, .act = DT_ACT_RELU);
}
static dt_tensor *resnet20(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            dt_scope_begin(m, "layer%d.%d", i + 1, k);
            x = block(m, x, 16 << i, i && !k ? 2 : 1);
            dt_scope_end(m);
        }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
}

static dt_tensor *mlp(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", x, .out = 128, .act = DT_ACT_RELU);
    x = dt_linear(m, "fc2", x, .out = 128, .act = DT_ACT_RELU);
    return dt_linear(m, "fc3", x, .out = 10);
}

static dt_tensor *gpt(dt_model *m, dt_tensor *x)
{
    int64_t    t = dt_size(x, 1);
    dt_tensor *h = dt_embedding(m, "tok", x, .num = 65, .dim = 64);
    h = dt_add(h, dt_embedding(m, "pos", dt_arange(0, (double)t, 1, .dtype = DT_I64), .num = 32, .dim = 64));
    for (int i = 0; i < 2; i++) {
        dt_scope_begin(m, "layers.%d", i);
        h = dt_add(h, dt_multihead_attention(m, "attn", dt_layernorm(m, "ln1", h), .heads = 4, .causal = true));
        dt_tensor *u = dt_gelu_tanh(dt_linear(m, "fc", dt_layernorm(m, "ln2", h), .out = 256));
        h = dt_add(h, dt_linear(m, "proj", u, .out = 64));
        dt_scope_end(m);
    }
    h = dt_linear(m, "head", dt_layernorm(m, "ln", h), .out = 65, .no_bias = true);
    return dt_reshape(h, DT_SHAPE(-1, 65));
}

/* ---------------------------------------------------------------------------------------------------- data */
typedef struct batches {
    int        n;
    dt_tensor *x[5], *y[5]; /* kept */
} batches;

static void batches_free(batches *b)
{
    for (int i = 0; i < b->n; i++) {
        dt_free(b->x[i]);
        dt_free(b->y[i]);
    }
}

/* Normal draws plus a quarter of the pattern of the class: what make_train.py's images() gives. */
static void images(batches *b, uint64_t seed, int n, dt_shape shape, const char *const *label)
{
    int64_t each = 1;
    dt_rng  rng;
    for (int i = 1; i < shape.ndim; i++) each *= shape.dim[i];
    float   *pattern = (float *)malloc(sizeof(float) * (size_t)(10 * each));
    float   *x = (float *)malloc(sizeof(float) * (size_t)(shape.dim[0] * each));
    uint8_t *y = (uint8_t *)malloc((size_t)shape.dim[0]);
    dt_rng_seed(&rng, seed);
    dt_rng_normal(&rng, pattern, 10 * each, 0, 1);
    b->n = n;
    for (int k = 0; k < n; k++) {
        dt_rng_normal(&rng, x, shape.dim[0] * each, 0, 1);
        for (int64_t i = 0; i < shape.dim[0]; i++) {
            y[i] = (uint8_t)(label[k][i] - '0');
            for (int64_t j = 0; j < each; j++) x[i * each + j] += 0.25f * pattern[y[i] * each + j];
        }
        b->x[k] = dt_keep(dt_from(x, shape));
        b->y[k] = dt_keep(dt_from(y, DT_SHAPE(shape.dim[0]), .dtype = DT_U8));
    }
    free(pattern);
    free(x);
    free(y);
}

static uint32_t lcg;
static int64_t  draw(void)
{
    lcg = (lcg * 1103515245u + 12345u) & 0x7fffffffu;
    return (int64_t)(lcg >> 16);
}
static void tokens(batches *b, int n)
{
    int64_t x[8][32], y[8][32];
    lcg = 12345;
    b->n = n;
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < 8; i++) {
            int64_t t = draw() % 65;
            for (int j = 0; j < 32; j++) {
                x[i][j] = t;
                t = draw() % 8 == 0 ? draw() % 65 : (t * 3 + 7) % 65;
                y[i][j] = t;
            }
        }
        b->x[k] = dt_keep(dt_from(x, DT_SHAPE(8, 32), .dtype = DT_I64));
        b->y[k] = dt_keep(dt_from(y, DT_SHAPE(256), .dtype = DT_I64));
    }
}

/* ---------------------------------------------------------------------------------------------------- training */
typedef struct training {
    const char         *name;
    dt_tensor        *(*net)(dt_model *m, dt_tensor *x);
    dt_optimizer     *(*make)(dt_model *m, dt_optimizer_opts o);
    dt_optimizer_opts       o;
    const golden_entry *state;
    int                 nstate;
    const uint64_t     *input;
    const double       *loss, *self; /* STEPS of training, one of evaluation */
    dt_optimizer_opts       biases;      /* .lr not 0: a group of their own */
} training;

static bool has_bytes(dt_tensor *t, uint64_t want)
{
    void    *p = malloc(dt_nbytes(t) + 1);
    uint64_t got = dt_copy_out(t, p, dt_nbytes(t)) == DT_OK ? fnv(p, dt_nbytes(t)) : ~want;
    free(p);
    return got == want;
}

/* The model has the entries of PyTorch's state_dict, no others, and their bits. A forward in evaluation mode makes
   them. */
static void check_initial(int *utest_result, const training *t, dt_model *m, batches *b)
{
    dt_parameter_info p;
    dt_model_eval(m);
    dt_no_grad_begin();
    t->net(m, b->x[0]);
    dt_no_grad_end();
    dt_end();
    dt_model_train(m);
    EXPECT_OK(dt_model_count(m));
    EXPECT_EQ_MSG(t->nstate, dt_model_count(m), t->name);
    for (int i = 0; i < b->n; i++) EXPECT_TRUE_MSG(has_bytes(b->x[i], t->input[i]), "the inputs are PyTorch's");
    for (int i = 0; dt_model_get(m, i, &p); i++) {
        int k = 0;
        while (k < t->nstate && strcmp(t->state[k].name, p.name)) k++;
        EXPECT_TRUE_MSG(k < t->nstate, p.name);
        if (k < t->nstate) EXPECT_TRUE_MSG(has_bytes(p.value, t->state[k].fnv), p.name);
    }
}

/* steps: fewer than STEPS for slow instruments */
static void check_training(int *utest_result, const training *t, batches *b, int steps)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = t->make(m, t->o);
    double        worst = 0;
    int           at = -1;
    if (t->biases.lr != 0) dt_optimizer_add_group_with(opt, "*.bias", t->biases);
    check_initial(utest_result, t, m, b);
    for (int i = 0; i <= steps && !dt_error(); i++) {
        double loss;
        if (i < steps) {
            dt_tensor *l = dt_cross_entropy(t->net(m, b->x[i % b->n]), b->y[i % b->n]);
            dt_backward(l);
            loss = dt_item(l);
            dt_step(opt);
        } else if (steps == STEPS) {
            dt_model_eval(m);
            dt_no_grad_begin();
            loss = dt_item(dt_cross_entropy(t->net(m, b->x[0]), b->y[0]));
            dt_no_grad_end();
            dt_end();
        } else {
            break;
        }
        double far = fabs(loss - t->loss[i]) / (t->self[i] * t->loss[i]);
        if (!(far <= worst)) {
            worst = far;
            at = i;
        }
        if (!(far <= 4)) {
            char text[160];
            snprintf(text, sizeof text, "%s step %d: loss %.9g, PyTorch %.9g: %.3g times its own difference", t->name,
                     i, loss, t->loss[i], far);
            EXPECT_TRUE_MSG(far <= 4, text);
            break;
        }
    }
    printf("%s: at most %.2f times PyTorch's own difference, at step %d\n", t->name, worst, at);
    dt_optimizer_free(opt);
    dt_model_free(m);
    EXPECT_EQ(0, dt_check(t->name));
    dt_error_clear();
}

#define STATE(x) golden_##x##_state, COUNT(golden_##x##_state), golden_##x##_input
#define LOSS(x) .loss = golden_##x##_loss, .self = golden_##x##_self

UTEST(train, the_mnist_network)
{
    const training t = { "mnist", convnet, dt_sgd_with, { .lr = 0.004, .momentum = 0.9 }, STATE(mnist), LOSS(mnist) };
    batches        b;
    images(&b, 11, COUNT(golden_mnist_input), DT_SHAPE(100, 1, 28, 28), golden_mnist_label);
    check_training(utest_result, &t, &b, dt_test_quick() ? 2 : STEPS);
    batches_free(&b);
}

UTEST(train, resnet20)
{
    const training t = { "resnet", resnet20, dt_sgd_with, { .lr = 0.002, .momentum = 0.9, .weight_decay = 1e-4 },
                         STATE(resnet), LOSS(resnet) };
    batches        b;
    images(&b, 12, COUNT(golden_resnet_input), DT_SHAPE(32, 3, 32, 32), golden_resnet_label);
    check_training(utest_result, &t, &b, dt_test_quick() ? 2 : STEPS);
    batches_free(&b);
}

UTEST(train, gpt)
{
    const training t = { "gpt", gpt, dt_adamw_with, { .lr = 1e-3 }, STATE(gpt), LOSS(gpt) };
    batches        b;
    tokens(&b, COUNT(golden_gpt_input));
    check_training(utest_result, &t, &b, dt_test_quick() ? 2 : STEPS);
    batches_free(&b);
}

#define MLP(x) "mlp " #x, mlp
static const training mlps[] = {
    { MLP(sgd), dt_sgd_with, { .lr = 0.1 }, STATE(mlp), LOSS(mlp_sgd) },
    { MLP(sgd_nesterov), dt_sgd_with, { .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4 },
      STATE(mlp), LOSS(mlp_sgd_nesterov) },
    { MLP(sgd_dampening), dt_sgd_with, { .lr = 0.1, .momentum = 0.9, .dampening = 0.5 },
      STATE(mlp), LOSS(mlp_sgd_dampening) },
    { MLP(adam), dt_adam_with, { .lr = 1e-3 }, STATE(mlp), LOSS(mlp_adam) },
    { MLP(adam_amsgrad), dt_adam_with, { .lr = 2e-3, .amsgrad = true, .weight_decay = 1e-2 },
      STATE(mlp), LOSS(mlp_adam_amsgrad) },
    { MLP(adamw), dt_adamw_with, { .lr = 2e-3 }, STATE(mlp), LOSS(mlp_adamw) },
    { MLP(rmsprop), dt_rmsprop_with, { .lr = 1e-3 }, STATE(mlp), LOSS(mlp_rmsprop) },
    { MLP(rmsprop_centered), dt_rmsprop_with, { .lr = 2e-4, .centered = true, .momentum = 0.9, .weight_decay = 1e-3 },
      STATE(mlp), LOSS(mlp_rmsprop_centered) },
    { MLP(adagrad), dt_adagrad_with, { .lr = 1e-2, .lr_decay = 1e-3 }, STATE(mlp), LOSS(mlp_adagrad) },
    { MLP(lars), dt_lars_with, { .lr = 5, .weight_decay = 1e-3 }, STATE(mlp), LOSS(mlp_lars) },
    { MLP(lars_groups), dt_lars_with, { .lr = 5, .weight_decay = 1e-3 }, STATE(mlp), LOSS(mlp_lars_groups),
      .biases = { .lr = 0.05, .weight_decay = DT_ZERO, .no_trust_ratio = true } },
    { MLP(lamb), dt_lamb_with, { .lr = 0.01 }, STATE(mlp), LOSS(mlp_lamb) },
    { MLP(lamb_groups), dt_lamb_with, { .lr = 0.01, .clip_norm = 0.2 }, STATE(mlp), LOSS(mlp_lamb_groups),
      .biases = { .lr = 0.005, .weight_decay = DT_ZERO } },
    { MLP(adamw_groups), dt_adamw_with, { .lr = 2e-3, .weight_decay = 0.1 }, STATE(mlp), LOSS(mlp_adamw_groups),
      .biases = { .lr = 1e-3, .weight_decay = DT_ZERO } },
};

UTEST(train, an_mlp_with_every_optimiser)
{
    batches b;
    images(&b, 13, COUNT(golden_mlp_input), DT_SHAPE(64, 64), golden_mlp_label);
    for (int i = 0; i < COUNT(mlps); i++) check_training(utest_result, &mlps[i], &b, dt_test_quick() ? 10 : STEPS);
    batches_free(&b);
}

/* Mixed precision follows the f32 training as far as its format allows: each loss within some steps of the half type. */
static void check_mixed(int *utest_result, const training *t, batches *b, const char *level, dt_dtype dtype, double bound)
{
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = t->make(m, t->o);
    dt_amp       *amp = dt_amp_new(m, .level = level, .dtype = dtype);
    double        worst = 0, last = 0;
    int           at = -1, steps = dt_test_quick() ? 8 : STEPS;
    char          what[96];
    for (int i = 0; i < steps && !dt_error(); i++) {
        dt_tensor *l = dt_cross_entropy(t->net(m, b->x[i % b->n]), b->y[i % b->n]);
        last = dt_item(l);
        dt_amp_backward(amp, l);
        dt_step(opt);
        double far = fabs(last - t->loss[i]) / (dt_test_eps(dtype) * t->loss[i]);
        if (!(far <= worst)) {
            worst = far;
            at = i;
        }
    }
    snprintf(what, sizeof what, "%s %s %s: at most %.2f steps of the half type from f32, at step %d", t->name, level,
             dt_dtype_name(dtype), worst, at);
    printf("%s\n", what);
    EXPECT_TRUE_MSG(worst <= bound && worst > 0, what);
    if (steps == STEPS) EXPECT_LT_MSG(last, 0.6 * t->loss[0], what);
    EXPECT_EQ((int64_t)0, dt_amp_overflows(amp));
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    EXPECT_EQ(0, dt_check(t->name));
    dt_error_clear();
}
UTEST(train, mixed_precision_follows_f32)
{
    const training mnist = { "mnist", convnet, dt_sgd_with, { .lr = 0.004, .momentum = 0.9 }, STATE(mnist), LOSS(mnist) };
    const training small = { "gpt", gpt, dt_adamw_with, { .lr = 1e-3 }, STATE(gpt), LOSS(gpt) };
    batches        images1, tokens1;
    images(&images1, 11, COUNT(golden_mnist_input), DT_SHAPE(100, 1, 28, 28), golden_mnist_label);
    tokens(&tokens1, COUNT(golden_gpt_input));
    for (int h = 0; h < 2; h++)
        for (int l = 1; l <= 2; l++) {
            const char *level = l == 1 ? "O1" : "O2";
            if (!dt_test_quick()) check_mixed(utest_result, &mnist, &images1, level, h ? DT_BF16 : DT_F16, 2);
            check_mixed(utest_result, &small, &tokens1, level, h ? DT_BF16 : DT_F16, 2);
        }
    batches_free(&images1);
    batches_free(&tokens1);
}

UTEST_MAIN()
