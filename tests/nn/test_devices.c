/* test_devices.c: one model on several devices. Contents: >>to >>training >>state >>misuse >>memory
   The devices are fake ones (fake_device.h): the host and the other devices cannot read their memory, and their work is done
   as late as possible. */
#define _GNU_SOURCE
#include "dt_nn.h"
#include "dt_test.h"

#include "fake_device.h"
#include "temp_files.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ---------------------------------------------------------------------------------------------------- devices */
enum { ONE, PEERS, STRANGERS, WITH_CPU, HOST, KINDS }; /* how the devices of a test are related */
static const char *const kind_name[] = { "one device", "peers", "backends of their own", "the CPU and a fake device",
                                         "two CPUs" };
typedef struct places {
    int          kind;
    fake_device *f[3];
    dt_device   *dev[3];
} places;

static void places_open(places *p, int kind)
{
    memset(p, 0, sizeof *p);
    p->kind = kind;
    for (int i = 0; i < 3; i++) p->dev[i] = dt_cpu();
    if (kind == PEERS && fake_devices_new(p->f, 3)) abort();
    for (int i = kind == WITH_CPU; i < 3 && (kind == STRANGERS || kind == WITH_CPU); i++) p->f[i] = fake_device_new(0);
    for (int i = 0; i < 3; i++)
        if (p->f[i]) p->dev[i] = p->f[i]->dev;
    for (int i = 1; i < 3 && kind == HOST; i++) p->dev[i] = dt_device_new(dt_device_backend(dt_cpu()), i, NULL);
    fake_device_use_all();
}
#define PLACES_CLOSE(p) /* no tensor is left on a device */                                            \
    do {                                                                                               \
        dt_end();                                                                                      \
        for (int i_ = 2; i_ >= 0; i_--) EXPECT_EQ(DT_OK, dt_synchronize((p)->dev[i_]));                \
        dt_empty_cache();                                                                              \
        for (int i_ = 2; i_ >= 0; i_--) {                                                              \
            if ((p)->f[i_]) EXPECT_EQ(0, (int)fake_live_blocks((p)->f[i_]));                           \
            if ((p)->f[i_]) EXPECT_EQ(DT_OK, fake_device_free((p)->f[i_]));                            \
            else if ((p)->dev[i_] != dt_cpu()) EXPECT_EQ(DT_OK, dt_device_free((p)->dev[i_]));         \
        }                                                                                              \
    } while (0)

static dt_tensor *numbers(dt_device *dev, dt_dtype dtype, int64_t n, int from) /* 0, 1, 2 ... modulo 100 */
{
    dt_tensor *t = dt_arange(from, from + (double)n, 1);
    return dt_to(dt_cast(dt_sub(t, dt_mul_scalar(dt_cast(dt_cast(dt_mul_scalar(t, 0.01), DT_I32), DT_F32), 100)), dtype), dev);
}

/* ---------------------------------------------------------------------------------------------------- >>to */
static dt_tensor *shaped(int form, dt_tensor *x) /* x has 24 elements */
{
    x = dt_reshape(x, DT_SHAPE(2, 3, 4));
    if (form == 1) return dt_transpose(x, 0, 2);
    if (form == 2) return dt_narrow(x, 2, 1, 2);
    if (form == 3) return dt_expand(dt_select(x, 0, 1), DT_SHAPE(5, 3, 4));
    if (form == 4) return dt_narrow(x, 1, 3, 0); /* no elements */
    if (form == 5) return dt_narrow(x, 0, 1, 1); /* dense, with an offset */
    return x;
}
UTEST(to, copies_every_dtype_and_view_from_device_to_device)
{
    for (int kind = 0; kind < KINDS; kind++) {
        places p;
        places_open(&p, kind);
        for (int d = 0; d < DT_DTYPE_COUNT; d++)
            for (int form = 0; form < 6; form++) {
                dt_tensor *want = shaped(form, numbers(dt_cpu(), (dt_dtype)d, 24, 3));
                dt_tensor *x = shaped(form, numbers(p.dev[0], (dt_dtype)d, 24, 3));
                dt_tensor *y = dt_to(x, p.dev[1]), *z = dt_to(y, p.dev[2]);
                EXPECT_TRUE(dt_device_of(z) == p.dev[2] && dt_to(z, p.dev[2]) == z);
                EXPECT_SAME_BITS(want, dt_to(z, dt_cpu()));
                EXPECT_SAME_BITS(want, dt_to(y, dt_cpu()));
                dt_end();
            }
        EXPECT_TRUE_MSG(kind != PEERS || p.f[1]->copies > 20, "copies from device to device");
        EXPECT_TRUE_MSG(kind != PEERS || !p.f[1]->uploads, "none through the host");
        PLACES_CLOSE(&p);
    }
}
UTEST(to, keeps_the_layout_of_images)
{
    places p;
    places_open(&p, PEERS);
    float w[8 * 8 * 9];
    for (int i = 0; i < 8 * 8 * 9; i++) w[i] = (float)(i % 13) - 6;
    dt_tensor *y[2];
    for (int split = 0; split < 2; split++) {
        dt_device *b = p.dev[split];
        dt_tensor *x = dt_reshape(numbers(p.dev[0], DT_F32, 2 * 8 * 36, 0), DT_SHAPE(2, 8, 6, 6));
        dt_tensor *wa = dt_from(w, DT_SHAPE(8, 8, 3, 3));
        dt_tensor *k = dt_set_requires_grad(dt_to(wa, p.dev[0]));
        dt_tensor *h = dt_to(dt_op_conv2d(x, k, NULL, .pad = 1, .act = DT_ACT_RELU), b);
        y[split] = dt_keep(dt_to(dt_maxpool2d(dt_op_conv2d(h, dt_to(wa, b), NULL, .pad = 1), .kernel = 2), dt_cpu()));
        dt_backward(dt_sum(y[split]));
        dt_tensor *g = dt_keep(dt_to(dt_grad(k), dt_cpu()));
        dt_free(k);
        dt_end();
        dt_free(y[split]);
        y[split] = g;
    }
    EXPECT_SAME_BITS(y[0], y[1]);
    for (int i = 0; i < 2; i++) dt_free(y[i]);
    PLACES_CLOSE(&p);
}
/* x is used on its own device and on two others; the gradient is the sum of all uses. */
UTEST(to, gradients_come_back)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int leaf = 0; leaf < 2; leaf++) {
            places p;
            places_open(&p, kind);
            dt_tensor *x = dt_set_requires_grad(dt_to(dt_arange(0, 6, 1), p.dev[0]));
            dt_tensor *h = leaf ? x : dt_mul_scalar(x, 2), *back = NULL;
            if (!leaf) dt_retain_grad(h);
            for (int i = 0; i < 3; i++) {
                dt_tensor *there = dt_mul(dt_to(h, p.dev[i]), dt_to(numbers(dt_cpu(), DT_F32, 6, 10 * i), p.dev[i]));
                dt_tensor *here = dt_to(dt_sum(there), p.dev[0]);
                back = back ? dt_add(back, here) : here;
            }
            EXPECT_OK(dt_backward(back));
            float g[6];
            EXPECT_TRUE(dt_device_of(dt_grad(h)) == p.dev[0]);
            EXPECT_OK(dt_copy_out(dt_grad(h), g, sizeof g));
            for (int i = 0; i < 6; i++) EXPECT_NEAR(3.0 * i + 30, (double)g[i], 0.0);
            dt_no_grad_begin();
            EXPECT_TRUE(!dt_requires_grad(dt_to(h, dt_cpu())) || dt_device_of(h) == dt_cpu());
            dt_no_grad_end();
            dt_end();
            dt_free(x);
            PLACES_CLOSE(&p);
        }
}
/* Does a chain of copies end with the right sum? The host frees each source at once, and takes its memory again. */
static double chain(places *p)
{
    for (int i = 0; i < 8; i++) {
        dt_device *a = p->dev[i % 2], *b = p->dev[(i + 1) % 2];
        dt_tensor *x = dt_full(i, DT_SHAPE(100), .device = a), *y = dt_to(x, b);
        dt_free(x);
        dt_fill(dt_empty(DT_SHAPE(100), .device = a), -1e6); /* the memory of x */
        dt_tensor *z = dt_to(dt_add_scalar(y, 1), a);
        dt_free(y);
        dt_empty_cache();
        if (i == 7) return dt_item(dt_sum(z));
    }
    return 0;
}
UTEST(to, is_queued_and_ordered_without_the_host)
{
    places p;
    places_open(&p, PEERS);
    EXPECT_NEAR(800.0, chain(&p), 0.0);
    dt_end();
    int64_t    late[2] = { p.f[0]->late, p.f[1]->late };
    dt_tensor *x = dt_full(3, DT_SHAPE(10), .device = p.dev[0]);
    dt_tensor *y = dt_mul_scalar(dt_to(dt_mul_scalar(dt_to(x, p.dev[1]), 2), p.dev[0]), 2);
    EXPECT_TRUE_MSG(late[0] == p.f[0]->late && late[1] == p.f[1]->late, "nothing has run: the host did not wait");
    EXPECT_NEAR(120.0, dt_item(dt_sum(y)), 0.0);
    for (int broken = 1; broken < 3; broken++) { /* the fake devices show a missing order */
        dt_end();
        p.f[0]->unordered = p.f[1]->unordered = broken;
        double got = chain(&p);
        EXPECT_TRUE_MSG(dt_error() || got != 800.0, "a copy that is not ordered is seen");
        dt_error_clear();
        dt_end();
        dt_synchronize(p.dev[0]);
        dt_error_clear();
        dt_synchronize(p.dev[1]);
        dt_error_clear();
    }
    p.f[0]->unordered = p.f[1]->unordered = 0;
    PLACES_CLOSE(&p);
}
/* Reading the result of one branch runs no kernel of the other: on real devices the two run at the same time. */
UTEST(to, branches_do_not_wait_for_each_other)
{
    for (int read = 0; read < 2; read++) {
        places p;
        places_open(&p, PEERS);
        dt_tensor *x = dt_full(1, DT_SHAPE(50), .device = p.dev[0]), *y[2] = { x, dt_to(x, p.dev[1]) };
        int64_t    before = p.f[!read]->stream[0].queued; /* what the copy may wait for */
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 10; k++) y[i] = dt_add_scalar(y[i], 1);
        EXPECT_NEAR(550.0, dt_item(dt_sum(y[read])), 0.0);
        EXPECT_TRUE(p.f[!read]->stream[0].done <= before);
        EXPECT_NEAR(550.0, dt_item(dt_sum(y[!read])), 0.0);
        PLACES_CLOSE(&p);
    }
}
/* A tensor of another stream than the thread's: its memory is not used again before the copy. */
UTEST(to, counts_as_a_use_on_the_threads_stream)
{
    places p;
    places_open(&p, PEERS);
    const dt_backend *be = dt_device_backend(p.dev[0]);
    void             *side = be->stream_new(p.dev[0]);
    dt_device_set_stream(p.dev[0], side);
    dt_tensor *x = dt_full(5, DT_SHAPE(64), .device = p.dev[0]);
    dt_device_set_stream(p.dev[0], NULL);
    be->order(p.dev[0], NULL, side);
    dt_tensor *y = dt_to(x, p.dev[1]);
    dt_free(x);
    dt_device_set_stream(p.dev[0], side);
    dt_fill(dt_empty(DT_SHAPE(64), .device = p.dev[0]), -1);
    be->wait(p.dev[0], side);
    dt_device_set_stream(p.dev[0], NULL);
    EXPECT_NEAR(320.0, dt_item(dt_sum(y)), 0.0);
    dt_end();
    dt_empty_cache();
    be->stream_free(p.dev[0], side);
    PLACES_CLOSE(&p);
}
UTEST(to, every_op_with_operands_on_two_devices_is_refused)
{
    places p;
    places_open(&p, PEERS);
    dt_device *a = p.dev[0], *b = p.dev[1];
    int64_t    zero[4] = { 0, 0, 0, 0 };
    dt_tensor *x = dt_ones(DT_SHAPE(4, 4), .device = a), *y = dt_ones(DT_SHAPE(4, 4), .device = b), *two[2] = { x, y };
    dt_tensor *v = dt_ones(DT_SHAPE(4), .device = b), *va = dt_ones(DT_SHAPE(4), .device = a);
    dt_tensor *im = dt_ones(DT_SHAPE(1, 4, 4, 4), .device = a), *k = dt_ones(DT_SHAPE(4, 4, 1, 1), .device = b);
    dt_tensor *ka = dt_ones(DT_SHAPE(4, 4, 1, 1), .device = a), *imb = dt_ones(DT_SHAPE(1, 4, 4, 4), .device = b);
    dt_tensor *i = dt_from(zero, DT_SHAPE(4), .dtype = DT_I64, .device = b);
    dt_tensor *ii = dt_reshape(dt_from(zero, DT_SHAPE(4), .dtype = DT_I64, .device = b), DT_SHAPE(4, 1));
#define REFUSED(call)                                                                                      \
    do {                                                                                                   \
        bool said = (call) == 0 && dt_error() && strstr(dt_error(), "fake:0") && strstr(dt_error(), "fake:1") && \
                    strstr(dt_error(), "dt_to()");                                                         \
        EXPECT_TRUE_MSG(said, #call);                                                                      \
        if (!said) printf("    %s\n", dt_error() ? dt_error() : "no error");                               \
        dt_error_clear();                                                                                  \
    } while (0)
    REFUSED(dt_add(x, y));
    REFUSED(dt_mul(x, y));
    REFUSED(dt_eq(x, y));
    REFUSED(dt_where(dt_cast(x, DT_U8), x, y));
    REFUSED(dt_where(dt_cast(x, DT_U8), y, y));
    REFUSED(dt_matmul(x, y));
    REFUSED(dt_op_linear(x, y, NULL));
    REFUSED(dt_op_linear(x, x, v));
    REFUSED(dt_op_conv2d(im, k, NULL));
    REFUSED(dt_op_conv2d(im, ka, v));
    REFUSED(dt_op_batch_norm(im, v, v, NULL, NULL));
    REFUSED(dt_op_batch_norm(im, va, v, NULL, NULL));
    REFUSED(dt_op_batch_norm(im, va, va, v, v));
    REFUSED(dt_op_batch_norm(im, va, va, NULL, NULL, .add = imb));
    REFUSED(dt_op_layer_norm(x, v, NULL));
    REFUSED(dt_op_layer_norm(x, va, v));
    REFUSED(dt_op_rms_norm(x, v));
    REFUSED(dt_op_embedding(i, x));
    REFUSED(dt_gather(x, 1, ii));
    REFUSED(dt_cat(two, 2, 0));
    REFUSED(dt_stack(two, 2, 0));
    REFUSED(dt_cross_entropy(x, i));
    REFUSED(dt_cross_entropy(x, dt_to(i, a), .weight = v));
    REFUSED(dt_nll_loss(x, i));
    REFUSED(dt_mse_loss(x, y));
    REFUSED(dt_l1_loss(x, y));
    REFUSED(dt_smooth_l1_loss(x, y));
    REFUSED(dt_bce_with_logits(x, y));
    REFUSED(dt_attention(im, im, imb));
    REFUSED(dt_attention(im, imb, im));
    REFUSED(dt_add_to(x, y, 1) == DT_OK);
    REFUSED(dt_backward(dt_mul_scalar(dt_set_requires_grad(x), 2), .grad = y) == DT_OK);
    EXPECT_OK(dt_copy(x, y)); /* copies between devices */
    EXPECT_NEAR(16.0, dt_item(dt_sum(x)), 0.0);
    dt_free(x);
    PLACES_CLOSE(&p);
}
UTEST(to, a_view_on_the_memory_of_another_device_is_an_error)
{
    places p;
    places_open(&p, PEERS);
    dt_tensor *x = dt_ones(DT_SHAPE(4), .device = p.dev[0]);
    dt_tensor *theirs = dt_from_blob(dt_data_ptr(x), DT_SHAPE(4), .device = p.dev[1]);
    double     sum = dt_item(dt_sum(theirs));
    EXPECT_TRUE(isnan(sum) && dt_error() && strstr(dt_error(), "not inside a live block"));
    dt_error_clear();
    PLACES_CLOSE(&p);
}
UTEST(to, statistics_of_each_device)
{
    places p;
    places_open(&p, PEERS);
    size_t all = dt_stats().live_bytes;
    dt_tensor *x = dt_zeros(DT_SHAPE(1024), .device = p.dev[0]);
    dt_to(x, p.dev[1]);
    dt_to(x, p.dev[1]);
    EXPECT_EQ(4096, (int)dt_device_stats(p.dev[0]).live_bytes);
    EXPECT_EQ(8192, (int)dt_device_stats(p.dev[1]).live_bytes);
    EXPECT_EQ(12288, (int)(dt_stats().live_bytes - all));
    dt_end();
    EXPECT_EQ(0, (int)dt_device_stats(p.dev[1]).live_bytes);
    EXPECT_EQ(8192, (int)dt_device_stats(p.dev[1]).peak_bytes);
    EXPECT_EQ(8192, (int)dt_device_stats(p.dev[1]).cached_bytes);
    dt_stats_reset();
    EXPECT_EQ(0, (int)dt_device_stats(p.dev[1]).peak_bytes);
    p.f[1]->fail_alloc = 1;
    EXPECT_OK(dt_to(dt_zeros(DT_SHAPE(900), .device = p.dev[0]), p.dev[1])); /* out of the cache */
    p.f[1]->fail_alloc = 1;
    EXPECT_OK(dt_to(dt_zeros(DT_SHAPE(77777), .device = p.dev[0]), p.dev[1])); /* after the cache is freed */
    EXPECT_EQ(0, (int)dt_device_stats(p.dev[1]).cached_bytes);
    PLACES_CLOSE(&p);
}

/* ---------------------------------------------------------------------------------------------------- >>training
   AlexNet's two halves (Krizhevsky et al. 2012), small: each half has its own kernels and its own device; layer 3 reads both
   halves; they are joined before the last layers. */
typedef struct alex {
    dt_device *dev[2];
    bool       extras; /* batch norm and dropout */
} alex;
static dt_tensor *both(dt_tensor *mine, dt_tensor *other, dt_device *dev)
{
    dt_tensor *two[2] = { mine, dt_to(other, dev) };
    return dt_cat(two, 2, 1);
}
static dt_tensor *alexnet(dt_model *m, dt_tensor *x, const alex *a)
{
    dt_tensor *h[2], *t[2];
    for (int i = 0; i < 2; i++) {
        dt_device_begin(m, a->dev[i]);
        dt_scope_begin(m, "half%d", i);
        h[i] = dt_conv2d(m, "conv1", dt_to(x, a->dev[i]), .out = 4, .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
        if (a->extras) h[i] = dt_batchnorm2d(m, "bn1", h[i]);
        h[i] = dt_maxpool2d(h[i], .kernel = 2);
        h[i] = dt_conv2d(m, "conv2", h[i], .out = 6, .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
        dt_scope_end(m);
        dt_device_end(m);
    }
    for (int i = 0; i < 2; i++) { /* in the order of the halves: 0, 1 */
        dt_device_begin(m, a->dev[i]);
        dt_scope_begin(m, "half%d", i);
        t[i] = dt_conv2d(m, "conv3", both(h[i], h[!i], a->dev[i]), .out = 6, .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
        t[i] = dt_maxpool2d(dt_conv2d(m, "conv4", t[i], .out = 4, .kernel = 3, .pad = 1, .act = DT_ACT_RELU), .kernel = 2);
        if (a->extras) t[i] = dt_dropout(m, t[i], 0.3);
        dt_scope_end(m);
        dt_device_end(m);
    }
    dt_device_begin(m, a->dev[0]);
    x = dt_linear(m, "fc1", dt_flatten(both(t[0], t[1], a->dev[0])), .out = 16, .act = DT_ACT_RELU);
    dt_device_begin(m, a->dev[1]); /* scopes nest */
    x = dt_linear(m, "fc2", dt_to(x, a->dev[1]), .out = 12, .act = DT_ACT_RELU);
    dt_device_end(m);
    x = dt_linear(m, "fc3", dt_to(x, a->dev[0]), .out = 4);
    dt_device_end(m);
    return x;
}
static dt_tensor *images(dt_device *dev, int step, dt_tensor **y)
{
    enum { N = 6 };
    float   x[N * 3 * 64];
    int64_t label[N];
    for (int i = 0; i < N * 3 * 64; i++) {
        uint32_t r[4];
        dt_philox(9, (uint64_t)(step * N * 192 + i), r);
        x[i] = (float)r[0] / 2147483648.0f - 1;
        label[i / 192] = (int64_t)(r[1] % 4);
    }
    *y = dt_from(label, DT_SHAPE(N), .dtype = DT_I64, .device = dev);
    return dt_from(x, DT_SHAPE(N, 3, 8, 8), .device = dev);
}
enum { SGD, ADAMW, LAMB, LARS, ADAGRAD, OPTIMISERS };
static dt_optimizer *optimiser(dt_model *m, int which, double clip, double clip_value)
{
    switch (which) {
    case SGD: return dt_sgd(m, .lr = 0.05, .weight_decay = 1e-3, .momentum = 0.9, .clip_norm = clip, .clip_value = clip_value);
    case ADAMW: return dt_adamw(m, .lr = 0.01, .clip_norm = clip);
    case LAMB: return dt_lamb(m, .lr = 0.01, .clip_norm = clip == 0 ? DT_ZERO : clip);
    case LARS: return dt_lars(m, .lr = 0.5, .weight_decay = 1e-3, .clip_norm = clip);
    default: return dt_adagrad(m, .lr = 0.01, .initial_accumulator_value = 0.1, .clip_norm = clip);
    }
}
typedef struct trained { /* a training and what it left */
    dt_model     *m;
    dt_optimizer *opt;
    dt_amp       *amp;
    alex          net;
    double        loss[16];
} trained;
typedef struct how {
    int         which;
    double      clip, clip_value;
    const char *level;
    dt_dtype    half;
    bool        extras, frozen;
} how;
static void train_begin(trained *t, const places *p, const how *h)
{
    memset(t, 0, sizeof *t);
    for (int i = 0; i < 2; i++) t->net.dev[i] = p->dev[i];
    t->net.extras = h->extras;
    t->m = dt_model_new(.seed = 11, .device = p->dev[0]);
    if (h->level) t->amp = dt_amp_new(t->m, .level = h->level, .dtype = h->half, .init_scale = 256);
    if (h->frozen) dt_model_freeze(t->m, "half1.conv1.*|fc1.bias");
    t->opt = optimiser(t->m, h->which, h->clip, h->clip_value);
}
static void train_step(trained *t, int s)
{
    dt_tensor *y, *x = images(t->net.dev[0], s, &y), *loss = dt_cross_entropy(alexnet(t->m, x, &t->net), y);
    if (t->amp) dt_amp_backward(t->amp, loss);
    else dt_backward(loss);
    t->loss[s % 16] = dt_item(loss);
    dt_step(t->opt);
}
static void train_end(trained *t)
{
    dt_amp_free(t->amp);
    dt_optimizer_free(t->opt);
    dt_model_free(t->m);
    dt_end();
}
static bool same_model(dt_model *a, dt_model *b)
{
    char x[16384], y[16384];
    bool same = dt_model_count(a) == dt_model_count(b);
    for (int i = 0; i < dt_model_count(a) && same; i++) {
        dt_parameter_info p, q;
        dt_model_get(a, i, &p);
        dt_model_get(b, i, &q);
        size_t n = dt_nbytes(p.value);
        same = !strcmp(p.name, q.name) && n == dt_nbytes(q.value) && n <= sizeof x && !dt_copy_out(p.value, x, n) &&
               !dt_copy_out(q.value, y, n) && !memcmp(x, y, n);
        if (!same) printf("    %s differs\n", p.name);
    }
    return same;
}
static double model_gap(dt_model *a, dt_model *b) /* the largest difference of two weights */
{
    float  x[4096], y[4096];
    double worst = 0;
    for (int i = 0; i < dt_model_count(a); i++) {
        dt_parameter_info p, q;
        dt_model_get(a, i, &p);
        dt_model_get(b, i, &q);
        if (p.buffer || dt_numel(p.value) > 4096 || dt_copy_out(p.value, x, dt_nbytes(p.value)) ||
            dt_copy_out(q.value, y, dt_nbytes(q.value)))
            continue;
        for (int64_t k = 0; k < dt_numel(p.value); k++) worst = fmax(worst, fabs((double)x[k] - (double)y[k]));
    }
    return worst;
}
static const how hows[] = {
    { SGD, 0, 0.02, NULL, DT_F32, true, false },   { ADAMW, 0, 0, NULL, DT_F32, true, true },
    { LAMB, 0, 0, NULL, DT_F32, false, false },    { LARS, 0, 0, NULL, DT_F32, false, true },
    { ADAGRAD, 0, 0, NULL, DT_F32, false, false }, { SGD, 0, 0, "O0", DT_F16, true, false },
    { SGD, 0, 0, "O1", DT_F16, true, false },      { ADAMW, 0, 0, "O1", DT_BF16, true, false },
    { SGD, 0, 0, "O2", DT_F16, true, true },       { ADAMW, 0, 0, "O2", DT_BF16, true, false },
    { SGD, 0, 0, "O3", DT_BF16, false, false },
};
UTEST(training, has_the_bits_of_one_device)
{
    bool quick = getenv("DT_TEST_QUICK") != NULL;
    for (size_t k = 0; k < sizeof hows / sizeof hows[0]; k++) {
        places  one;
        trained want;
        places_open(&one, ONE);
        train_begin(&want, &one, &hows[k]);
        for (int s = 0; s < 12; s++) train_step(&want, s);
        for (int kind = PEERS; kind < KINDS; kind++) {
            if (quick && kind != PEERS + (int)k % 4) continue;
            places  p;
            trained t;
            places_open(&p, kind);
            train_begin(&t, &p, &hows[k]);
            for (int s = 0; s < 12; s++) train_step(&t, s);
            EXPECT_EQ(DT_OK, dt_error_code());
            EXPECT_TRUE_MSG(same_model(want.m, t.m), kind_name[kind]);
            EXPECT_TRUE(!memcmp(want.loss, t.loss, sizeof t.loss) && isfinite(t.loss[11]));
            EXPECT_TRUE(dt_device_of(dt_model_find(t.m, "half1.conv2.weight")) == p.dev[1]);
            EXPECT_TRUE(dt_device_of(dt_model_find(t.m, "fc2.weight")) == p.dev[1]);
            EXPECT_TRUE(dt_device_of(dt_model_find(t.m, "half0.conv2.weight")) == p.dev[0]);
            EXPECT_TRUE(!hows[k].extras || dt_device_of(dt_model_find(t.m, "half1.bn1.running_mean")) == p.dev[1]);
            dt_model_eval(t.m);
            dt_model_eval(want.m);
            dt_no_grad_begin();
            dt_tensor *y, *a = alexnet(want.m, images(dt_cpu(), 50, &y), &want.net);
            dt_tensor *b = alexnet(t.m, images(p.dev[0], 50, &y), &t.net);
            EXPECT_SAME_BITS(a, dt_to(b, dt_cpu()));
            dt_no_grad_end();
            dt_model_train(want.m);
            train_end(&t);
            PLACES_CLOSE(&p);
        }
        train_end(&want);
        PLACES_CLOSE(&one);
    }
}
/* The kernels of one half see only the channels of that half: a convolution with two groups. */
UTEST(training, two_halves_are_a_convolution_with_groups)
{
    places p;
    places_open(&p, PEERS);
    dt_manual_seed(4);
    dt_tensor *x = dt_normal(0, 1, DT_SHAPE(2, 8, 6, 6)), *w = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(10, 4, 3, 3)));
    dt_tensor *v = dt_set_requires_grad(dt_clone(dt_detach(w))), *half[2];
    dt_tensor *want = dt_op_conv2d(x, w, NULL, .pad = 1, .groups = 2);
    for (int i = 0; i < 2; i++) {
        dt_tensor *k = dt_to(dt_narrow(v, 0, 5 * i, 5), p.dev[i]);
        half[i] = dt_to(dt_op_conv2d(dt_to(dt_narrow(x, 1, 4 * i, 4), p.dev[i]), k, NULL, .pad = 1), dt_cpu());
    }
    dt_tensor *got = dt_cat(half, 2, 1);
    EXPECT_TRUE(dt_item(dt_amax(dt_abs(dt_sub(got, want)))) < 1e-5);
    EXPECT_OK(dt_backward(dt_sum(dt_mul(want, want))));
    EXPECT_OK(dt_backward(dt_sum(dt_mul(got, got))));
    EXPECT_TRUE(dt_item(dt_amax(dt_abs(dt_sub(dt_grad(v), dt_grad(w))))) < 1e-3);
    dt_end();
    dt_free(w);
    dt_free(v);
    PLACES_CLOSE(&p);
}
/* One trunk, and two heads with their own losses on devices of their own. */
static dt_tensor *detector(dt_model *m, dt_tensor *x, dt_tensor *y, dt_device *const *dev)
{
    dt_tensor *part[2];
    dt_device_begin(m, dev[0]);
    x = dt_conv2d(m, "trunk", x, .out = 8, .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
    x = dt_flatten(dt_maxpool2d(x, .kernel = 2));
    for (int i = 0; i < 2; i++) {
        dt_device_begin(m, dev[1 + i]);
        dt_tensor *h = dt_linear(m, i ? "box" : "class", dt_to(x, dev[1 + i]), .out = 4);
        dt_tensor *t = dt_to(y, dev[1 + i]);
        part[i] = i ? dt_smooth_l1_loss(h, dt_expand(dt_unsqueeze(dt_cast(t, DT_F32), 1), DT_SHAPE(6, 4)))
                    : dt_cross_entropy(h, t);
        dt_device_end(m);
    }
    dt_device_end(m);
    return dt_add(dt_to(part[0], dev[0]), dt_mul_scalar(dt_to(part[1], dev[0]), 0.5));
}
UTEST(training, heads_on_devices_of_their_own)
{
    places  one, p;
    trained t[2];
    places_open(&one, ONE);
    places_open(&p, PEERS);
    for (int side = 0; side < 2; side++) {
        dt_device *const *dev = side ? p.dev : one.dev;
        memset(&t[side], 0, sizeof t[side]);
        t[side].m = dt_model_new(.seed = 2, .device = dev[2]); /* its own device is not the trunk's */
        t[side].opt = optimiser(t[side].m, ADAMW, 0, 0);
        for (int s = 0; s < 10; s++) {
            dt_tensor *y, *x = images(dev[0], s, &y), *loss = detector(t[side].m, x, y, dev);
            EXPECT_OK(dt_backward(loss));
            t[side].loss[s] = dt_item(loss);
            EXPECT_OK(dt_step(t[side].opt));
        }
    }
    EXPECT_TRUE(same_model(t[0].m, t[1].m) && !memcmp(t[0].loss, t[1].loss, sizeof t[0].loss));
    for (int side = 0; side < 2; side++) train_end(&t[side]);
    PLACES_CLOSE(&p);
}
/* Every layer in a scope that is not the model's device. */
static dt_tensor *all_layers(dt_model *m, dt_tensor *index, dt_device *dev)
{
    dt_device_begin(m, dev);
    dt_tensor *x = dt_embedding(m, "table", dt_to(index, dev), .num = 10, .dim = 8);
    x = dt_multihead_attention(m, "attention", x, .heads = 2, .causal = true, .dropout = 0.2);
    x = dt_add(x, dt_multihead_attention(m, "cross", x, .heads = 2, .kv = dt_mul_scalar(x, 0.5)));
    x = dt_rmsnorm(m, "rms", dt_layernorm(m, "norm", dt_add(x, dt_parameter(m, "shift", DT_SHAPE(8), .init = DT_INIT_NORMAL))));
    x = dt_groupnorm(m, "groups", dt_transpose(x, 1, 2), .groups = 2);
    x = dt_batchnorm1d(m, "bn", x, .cumulative = true);
    x = dt_add(x, dt_buffer(m, "const", DT_SHAPE(1), .init = DT_INIT_CONST, .a = 0.5));
    x = dt_linear(m, "out", x, .out = 3);
    dt_device_end(m);
    return dt_to(dt_mean(dt_mul(x, x)), dt_model_device(m));
}
UTEST(training, every_layer_in_a_scope)
{
    places  one, p;
    trained t[2];
    places_open(&one, ONE);
    places_open(&p, PEERS);
    for (int side = 0; side < 2; side++) {
        const places *at = side ? &p : &one;
        memset(&t[side], 0, sizeof t[side]);
        t[side].m = dt_model_new(.seed = 2, .device = at->dev[0]);
        t[side].opt = optimiser(t[side].m, ADAMW, 0, 0);
        for (int s = 0; s < 5; s++) {
            dt_tensor *index = dt_reshape(dt_arange(0, 10, 1, .dtype = DT_I64), DT_SHAPE(2, 5));
            dt_tensor *loss = all_layers(t[side].m, dt_to(index, at->dev[0]), at->dev[1]);
            EXPECT_OK(dt_backward(loss));
            t[side].loss[s] = dt_item(loss);
            EXPECT_OK(dt_step(t[side].opt));
        }
    }
    EXPECT_TRUE(same_model(t[0].m, t[1].m) && !memcmp(t[0].loss, t[1].loss, sizeof t[0].loss));
    for (int side = 0; side < 2; side++) train_end(&t[side]);
    PLACES_CLOSE(&p);
}
UTEST(training, has_one_norm_over_all_devices)
{
    for (int which = 0; which < 2; which++)
        for (int kind = PEERS; kind < KINDS; kind++) {
            places  one, p;
            trained want, t;
            how     h = { which ? LAMB : SGD, 0.25, 0, NULL, DT_F32, false, false };
            places_open(&one, ONE);
            places_open(&p, kind);
            train_begin(&want, &one, &h);
            train_begin(&t, &p, &h);
            for (int s = 0; s < 8; s++) {
                train_step(&want, s);
                train_step(&t, s);
            }
            EXPECT_TRUE(model_gap(want.m, t.m) < 1e-5); /* the sums of squares are added in another order */
            dt_tensor *y, *x = images(p.dev[0], 9, &y);
            EXPECT_OK(dt_backward(dt_cross_entropy(alexnet(t.m, x, &t.net), y)));
            double sum = 0, after = 0;
            for (int round = 0; round < 2; round++) {
                for (int i = 0; i < dt_model_count(t.m); i++) {
                    dt_parameter_info q;
                    dt_model_get(t.m, i, &q);
                    double s = dt_item(dt_sum(dt_mul(dt_grad(q.value), dt_grad(q.value))));
                    *(round ? &after : &sum) += s;
                }
                if (!round) EXPECT_NEAR(sqrt(sum), dt_clip_grad_norm(t.opt, 0.125), 1e-5 * sqrt(sum));
            }
            EXPECT_TRUE(sqrt(sum) > 0.2);
            EXPECT_NEAR(0.125, sqrt(after), 1e-5);
            EXPECT_OK(dt_clip_grad_value(t.opt, 1e-3));
            EXPECT_NEAR(1e-3, dt_item(dt_amax(dt_abs(dt_grad(dt_model_find(t.m, "fc2.weight"))))), 1e-9);
            EXPECT_NEAR(1e-3, dt_item(dt_amax(dt_abs(dt_grad(dt_model_find(t.m, "fc1.weight"))))), 1e-9);
            train_end(&want);
            train_end(&t);
            PLACES_CLOSE(&p);
        }
}
/* An overflow on one device, the first or the second: no weight on any device changes, and the scale is halved once. */
UTEST(training, has_one_verdict_on_overflow)
{
    const char *level[] = { "O1", "O2" };
    for (int k = 0; k < 4; k++) {
        places p;
        trained t;
        how     h = { SGD, 0, 0, level[k / 2], DT_F16, false, false };
        places_open(&p, PEERS);
        train_begin(&t, &p, &h);
        train_step(&t, 0);
        dt_tensor *w = dt_model_find(t.m, "half1.conv1.weight"), *v = dt_model_find(t.m, "half0.conv1.weight");
        dt_tensor *w0 = dt_keep(dt_clone(w)), *v0 = dt_keep(dt_clone(v));
        dt_tensor *y, *x = images(p.dev[0], 1, &y), *loss = dt_cross_entropy(alexnet(t.m, x, &t.net), y);
        double     scale = dt_amp_scale(t.amp, 0);
        dt_tensor *huge = dt_mul_scalar(dt_sum(dt_cast(k % 2 ? w : v, DT_F32)), 1e38); /* its gradient overflows */
        loss = dt_add(loss, dt_to(huge, p.dev[0]));
        EXPECT_OK(dt_amp_backward(t.amp, loss));
        EXPECT_OK(dt_step(t.opt));
        EXPECT_NEAR(scale / 2, dt_amp_scale(t.amp, 0), 0.0);
        EXPECT_EQ(1, (int)dt_amp_overflows(t.amp));
        EXPECT_SAME_BITS(w0, w);
        EXPECT_SAME_BITS(v0, v);
        train_step(&t, 2);
        EXPECT_NEAR(scale / 2, dt_amp_scale(t.amp, 0), 0.0);
        EXPECT_TRUE(dt_item(dt_sum(dt_abs(dt_sub(dt_cast(w0, DT_F32), dt_cast(w, DT_F32))))) > 0);
        dt_free(w0);
        dt_free(v0);
        train_end(&t);
        PLACES_CLOSE(&p);
    }
}
UTEST(training, names_the_bad_gradient_on_any_device)
{
    places p;
    trained t;
    how     h = { SGD, 0, 0, NULL, DT_F32, false, false };
    places_open(&p, WITH_CPU); /* the loss is on the CPU, where it is looked at */
    train_begin(&t, &p, &h);
    train_step(&t, 0);
    dt_tensor *w = dt_model_find(t.m, "fc2.weight"), *w0 = dt_keep(dt_clone(w));
    dt_tensor *x = dt_ones(DT_SHAPE(2, 16), .device = p.dev[1]);
    dt_tensor *bad = dt_mul_scalar(dt_op_linear(x, w, dt_model_find(t.m, "fc2.bias")), INFINITY);
    dt_tensor *good = dt_sum(dt_model_find(t.m, "fc3.weight")); /* it is looked at first, on its device */
    EXPECT_OK(dt_backward(dt_add(good, dt_to(dt_sum(bad), p.dev[0]))));
    EXPECT_ERROR(dt_step(t.opt), "first gradient that is not finite is of 'fc2.bias'");
    EXPECT_SAME_BITS(w0, w);
    dt_free(w0);
    train_end(&t);
    PLACES_CLOSE(&p);
}

/* ---------------------------------------------------------------------------------------------------- >>state */
/* Saved on two devices, continued on one; saved there, continued on two: the bits of a training that never stopped. */
UTEST(state, checkpoints_go_from_two_devices_to_one_and_back)
{
    for (int k = 0; k < 3; k++) {
        int64_t epoch = 0, step = 0;
        how     h = hows[k == 0 ? 0 : k == 1 ? 1 : 8];
        places  p, one;
        trained whole;
        places_open(&p, k ? PEERS : STRANGERS);
        places_open(&one, ONE);
        train_begin(&whole, &one, &h);
        for (int s = 0; s < 12; s++) train_step(&whole, s);
        char *dir = temp_dir();
        for (int part = 0; part < 3; part++) {
            trained t;
            train_begin(&t, part == 1 ? &one : &p, &h);
            dt_checkpoint *c = dt_checkpoint_new(dir, .model = t.m);
            int            found = dt_checkpoint_resume(c, &epoch, &step);
            EXPECT_EQ(part > 0, found);
            EXPECT_EQ(4 * part, (int)step);
            for (int s = 4 * part; s < 4 * part + 4; s++) train_step(&t, s);
            EXPECT_OK(dt_checkpoint_save(c, 0, 4 * part + 4));
            dt_checkpoint_free(c);
            if (part == 2) EXPECT_TRUE(same_model(whole.m, t.m));
            train_end(&t);
        }
        temp_remove(dir);
        train_end(&whole);
        PLACES_CLOSE(&p);
    }
}
UTEST(state, dt_model_to_moves_every_part)
{
    places p;
    how    h = hows[8]; /* O2: halves, masters, frozen parameters, buffers */
    for (int sealed = 0; sealed < 2; sealed++) {
        trained t, want;
        places  one;
        places_open(&p, PEERS);
        places_open(&one, ONE);
        train_begin(&want, &one, &h);
        train_begin(&t, &p, &h);
        dt_tensor *y, *x = images(p.dev[0], 0, &y);
        dt_no_grad_begin();
        alexnet(t.m, x, &t.net);
        alexnet(want.m, images(dt_cpu(), 0, &y), &want.net);
        dt_no_grad_end();
        if (sealed) EXPECT_OK(dt_model_seal(t.m));
        dt_end();
        EXPECT_OK(dt_model_to(t.m, p.dev[2]));
        EXPECT_TRUE(dt_model_device(t.m) == p.dev[2]);
        for (int i = 0; i < dt_model_count(t.m); i++) {
            dt_parameter_info q;
            dt_model_get(t.m, i, &q);
            EXPECT_TRUE(dt_device_of(q.value) == p.dev[2]);
        }
        dt_no_grad_begin(); /* a forward with the old scopes */
        EXPECT_ERROR(alexnet(t.m, images(p.dev[0], 0, &y), &t.net),
                     "its parameters are on fake:2, this call is in a device scope of fake:0");
        dt_end();
        dt_no_grad_end();
        t.net.dev[0] = t.net.dev[1] = p.dev[2];
        for (int s = 0; s < 6; s++) {
            train_step(&t, s);
            train_step(&want, s);
        }
        EXPECT_EQ(DT_OK, dt_error_code());
        EXPECT_TRUE(same_model(want.m, t.m));
        train_end(&t);
        train_end(&want);
        PLACES_CLOSE(&p);
    }
}
UTEST(state, a_cast_leaves_every_part_on_its_device)
{
    places  p;
    how     h = { SGD, 0, 0, NULL, DT_F32, true, false };
    trained t;
    places_open(&p, PEERS);
    train_begin(&t, &p, &h);
    dt_tensor *y, *x = images(p.dev[0], 0, &y);
    dt_no_grad_begin();
    EXPECT_OK(alexnet(t.m, x, &t.net));
    dt_no_grad_end();
    dt_end();
    for (int cast = 0; cast < 2; cast++) {
        if (cast) t.amp = dt_amp_new(t.m, .level = "O2");
        else EXPECT_OK(dt_model_cast(t.m, DT_BF16) || dt_model_cast(t.m, DT_F32));
        for (int i = 0; i < dt_model_count(t.m); i++) {
            dt_parameter_info q;
            dt_model_get(t.m, i, &q);
            bool second = strstr(q.name, "half1") || strstr(q.name, "fc2");
            EXPECT_TRUE(dt_device_of(q.value) == p.dev[second]);
        }
    }
    train_step(&t, 0);
    EXPECT_EQ(DT_OK, dt_error_code());
    train_end(&t);
    PLACES_CLOSE(&p);
}
UTEST(state, the_summary_shows_devices_if_there_are_several)
{
    char    text[8192];
    how     h = hows[0];
    trained t;
    places  p;
    for (int kind = 0; kind < 2; kind++) {
        places_open(&p, kind);
        train_begin(&t, &p, &h);
        train_step(&t, 0);
        size_t len = dt_model_summary(t.m, text, sizeof text);
        EXPECT_TRUE(len > 0 && len < sizeof text);
        EXPECT_TRUE((strstr(text, "device\n") != NULL) == (kind == PEERS));
        EXPECT_TRUE((strstr(text, "fake:1\n") != NULL) == (kind == PEERS));
        if (kind == PEERS) {
            char *fc2 = strstr(text, "fc2"), *total = strstr(text, "total"), *end = fc2 ? strchr(fc2, '\n') : NULL;
            EXPECT_TRUE(end && !strncmp(end - 6, "fake:1", 6));
            double n[3] = { 0, 0, 0 };
            for (int i = 0; i < 3 && total; i++, total = strchr(total, '\n') + 1) { /* all, fake:0, fake:1 */
                char line[200] = "", digits[40] = "";
                snprintf(line, sizeof line, "%.*s", (int)strcspn(total, "\n"), total);
                for (char *c = line + (i ? 0 : 5), *d = digits; *c; c++) {
                    if (*c >= '0' && *c <= '9') *d++ = *c;
                    else if (*digits && *c == ' ') break;
                }
                n[i] = atof(digits);
            }
            EXPECT_NEAR((double)dt_model_numel(t.m, false), n[0], 0.0);
            EXPECT_NEAR(n[0], n[1] + n[2], 0.0);
            EXPECT_TRUE(n[1] > 0 && n[2] > 0);
        }
        train_end(&t);
        PLACES_CLOSE(&p);
    }
}

/* ---------------------------------------------------------------------------------------------------- >>misuse */
UTEST(misuse, of_scopes_is_a_clear_error)
{
    places p;
    places_open(&p, PEERS);
    dt_model  *m = dt_model_new(.seed = 1, .device = p.dev[0]);
    dt_tensor *x = dt_ones(DT_SHAPE(2, 3), .device = p.dev[0]), *y = dt_to(x, p.dev[1]);
    EXPECT_ERROR((dt_device_end(m), -1), "dt_device_end: without a dt_device_begin");
    EXPECT_ERROR(dt_device_begin(m, NULL), "the device is NULL");
    EXPECT_ERROR(dt_device_begin(NULL, p.dev[0]), "the model is NULL");
    for (int i = 0; i < 32; i++) EXPECT_OK(dt_device_begin(m, p.dev[i % 2]));
    EXPECT_ERROR(dt_device_begin(m, p.dev[0]), "32 device scopes are open");
    for (int i = 0; i < 32; i++) dt_device_end(m);
    EXPECT_ERROR((dt_device_end(m), -1), "without a dt_device_begin");
    /* the input is elsewhere: nothing is copied silently */
    EXPECT_ERROR(dt_linear(m, "a", y, .out = 2), "dt_linear 'a': x is on fake:1, the model on fake:0");
    dt_device_begin(m, p.dev[1]);
    EXPECT_TRUE(dt_model_device(m) == p.dev[1]);
    EXPECT_ERROR(dt_linear(m, "a", x, .out = 2),
                 "dt_linear 'a': x is on fake:0, the device scope on fake:1; copy x with dt_to()");
    EXPECT_OK(dt_linear(m, "a", y, .out = 2));
    EXPECT_OK(dt_parameter(m, "p", DT_SHAPE(3)));
    EXPECT_TRUE(dt_device_of(dt_model_find(m, "p")) == p.dev[1]);
    dt_device_end(m);
    EXPECT_TRUE(dt_model_device(m) == p.dev[0]);
    dt_forward_begin(m);
    EXPECT_ERROR(dt_linear(m, "a", x, .out = 2),
                 "dt_linear 'a': its parameters are on fake:1, this call is outside device scopes, on fake:0");
    dt_forward_begin(m);
    EXPECT_ERROR(dt_parameter(m, "p", DT_SHAPE(3)), "dt_parameter 'p': its parameters are on fake:1");
    /* a scope that is not ended: the next forward says so, and has none */
    dt_device_begin(m, p.dev[1]);
    dt_end();
    x = dt_ones(DT_SHAPE(2, 3), .device = p.dev[0]);
    EXPECT_ERROR(dt_linear(m, "b", x, .out = 2), "an earlier forward has begun a device scope of fake:1 and not ended it");
    EXPECT_OK(dt_linear(m, "b", x, .out = 2));
    dt_device_begin(m, p.dev[1]);
    dt_end();
    EXPECT_ERROR(dt_device_begin(m, p.dev[1]), "not ended it");
    EXPECT_ERROR((dt_device_end(m), -1), "without a dt_device_begin");
    dt_device_begin(m, p.dev[1]);
    dt_end();
    EXPECT_ERROR((dt_device_end(m), -1), "not ended it");
    /* with an error pending begin and end do nothing, and leave nothing open */
    dt_fail(DT_ERR_ARG, "an error of the program");
    EXPECT_TRUE(dt_device_begin(m, p.dev[1]) < 0);
    dt_device_end(m);
    dt_error_clear();
    EXPECT_TRUE(dt_model_device(m) == p.dev[0]);
    dt_model_free(m);
    PLACES_CLOSE(&p);
}

/* ---------------------------------------------------------------------------------------------------- >>memory */
/* The second device is full at its n-th allocation, for each n: the error names the device, and nothing leaks. */
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
UTEST(memory, of_the_second_device_runs_out)
{
    how  h = { LAMB, 1, 0, "O2", DT_F16, true, false };
    bool quick = getenv("DT_TEST_QUICK") != NULL, done = false;
    dt_set_log(no_log, NULL);
    for (int64_t n = 1; !done; n += quick ? 11 : 1) {
        places  p;
        trained t;
        places_open(&p, PEERS);
        dt_memory_stats none = dt_stats();
        train_begin(&t, &p, &h);
        p.f[1]->full = n;
        train_step(&t, 0);
        train_step(&t, 1);
        done = p.f[1]->full > 0;
        p.f[1]->full = 0;
        if (dt_error()) EXPECT_TRUE_MSG(strstr(dt_error(), "out of memory") && strstr(dt_error(), "fake:1"), dt_error());
        dt_error_clear();
        train_end(&t);
        EXPECT_EQ(none.live_bytes, dt_stats().live_bytes);
        EXPECT_EQ(none.live_tensors, dt_stats().live_tensors);
        PLACES_CLOSE(&p);
    }
    dt_set_log(NULL, NULL);
}
