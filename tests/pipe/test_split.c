/* test_split.c: layers split over the ranks of a tensor axis: equal to the whole layer, initial bits, numbers of sums, dropout,
   optimisers, mixed precision, checkpoints, errors
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_pipe.h"
#include "fake_device.h"
#include "teams.h"
#include "temp_files.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

/* ==================================================================================================== >>nets
   Each takes x and y, and uses .split; without a tensor axis it is the whole net. */
enum { N = 8, T = 6, E = 16, HEADS = 4, VOCAB = 24, CLASSES = 12 };
static dt_tensor *flat(dt_tensor *x) { return dt_reshape(x, DT_SHAPE(dt_size(x, 0), -1)); }
static dt_tensor *net_mlp(dt_model *m, dt_tensor *x, dt_tensor *y)
{
    dt_tensor *h = dt_linear(m, "fc", x, .out = 32, .act = DT_ACT_TANH, .split = DT_SPLIT_OUT);
    h = dt_linear(m, "proj", h, .out = E, .split = DT_SPLIT_IN);
    h = dt_linear(m, "fc2", dt_layernorm(m, "ln", dt_add(h, x)), .out = 8, .no_bias = true, .split = DT_SPLIT_OUT);
    return dt_mse_loss(dt_linear(m, "out", dt_gelu(h), .out = 1, .split = DT_SPLIT_IN), y);
}
static dt_tensor *net_attention(dt_model *m, dt_tensor *x, dt_tensor *y)
{
    x = dt_reshape(x, DT_SHAPE(N, 2, E / 2));
    dt_tensor *h = dt_multihead_attention(m, "a", x, .heads = HEADS, .causal = true, .split = DT_SPLIT_HEADS);
    h = dt_multihead_attention(m, "b", dt_add(h, x), .heads = HEADS, .kv = x, .no_bias = true, .split = DT_SPLIT_HEADS);
    return dt_mse_loss(dt_linear(m, "out", flat(h), .out = 1), y);
}
static dt_tensor *net_dropped(dt_model *m, dt_tensor *x, dt_tensor *y)
{
    x = dt_dropout(m, dt_reshape(x, DT_SHAPE(N, 2, E / 2)), 0.2);
    dt_tensor *h = dt_multihead_attention(m, "a", x, .heads = HEADS, .dropout = 0.3, .no_bias = true,
                                          .split = DT_SPLIT_HEADS); /* the gradient of a bias of keys is rounding only */
    h = dt_linear(m, "fc", flat(h), .out = 32, .split = DT_SPLIT_OUT);
    h = dt_dropout_parts(m, h, 0.4, -1);
    return dt_mse_loss(dt_dropout(m, dt_linear(m, "out", h, .out = 1, .split = DT_SPLIT_IN), 0.1), y);
}
static dt_tensor *tokens(dt_tensor *x) { return dt_cast(dt_mul_scalar(dt_sigmoid(dt_detach(x)), VOCAB - 0.01), DT_I64); }
static dt_tensor *net_words(dt_model *m, dt_tensor *x, dt_tensor *y)
{
    (void)y;
    dt_tensor *t = tokens(x); /* (N, E) */
    dt_tensor *h = dt_embedding(m, "wte", t, .num = VOCAB, .dim = 12, .split = DT_SPLIT_IN);
    dt_tensor *p = dt_embedding(m, "wpe", t, .num = VOCAB, .dim = 12, .split = DT_SPLIT_OUT);
    h = dt_reshape(dt_add(h, dt_gather_parts(m, p, 2)), DT_SHAPE(N * E, 12));
    dt_tensor *logits = dt_linear(m, "head", h, .out = VOCAB, .split = DT_SPLIT_OUT), *target = dt_reshape(t, DT_SHAPE(N * E));
    dt_tensor *loss = dt_cross_entropy_parts(m, logits, target);
    loss = dt_add(loss, dt_mul_scalar(dt_cross_entropy_parts(m, logits, target, .label_smoothing = 0.2, .ignore_index = 3), 0.5));
    dt_tensor *each = dt_cross_entropy_parts(m, logits, target, .reduction = DT_NONE, .ignore_index = 5);
    loss = dt_add(loss, dt_mean(dt_mul(each, each)));
    return dt_add(loss, dt_mul_scalar(dt_cross_entropy_parts(m, logits, target, .reduction = DT_SUM), 0.01));
}
static dt_tensor *net_conv(dt_model *m, dt_tensor *x, dt_tensor *y)
{
    x = dt_reshape(x, DT_SHAPE(N, 1, 4, 4));
    dt_tensor *h = dt_conv2d(m, "c1", x, .out = 8, .kernel = 3, .pad = 1, .split = DT_SPLIT_OUT);
    h = dt_batchnorm2d(m, "bn", h, .split = DT_SPLIT_BOTH, .act = DT_ACT_RELU);
    h = dt_conv2d(m, "c2", h, .out = 16, .kernel = 3, .pad = 1, .groups = 4, .act = DT_ACT_TANH, .split = DT_SPLIT_BOTH);
    h = dt_groupnorm(m, "gn", h, .groups = 8, .split = DT_SPLIT_BOTH);
    h = dt_conv2d(m, "c3", h, .out = 6, .kernel = 3, .pad = 1, .split = DT_SPLIT_IN);
    return dt_mse_loss(dt_linear(m, "out", dt_flatten(dt_tanh(h)), .out = 1), y);
}
/* AlexNet's two halves: they meet in the third convolution and in the linear layers. */
static dt_tensor *net_halves(dt_model *m, dt_tensor *x, dt_tensor *y)
{
    x = dt_reshape(x, DT_SHAPE(N, 1, 4, 4));
    dt_tensor *h = dt_relu(dt_conv2d(m, "c1", x, .out = 8, .kernel = 3, .pad = 1, .split = DT_SPLIT_OUT));
    h = dt_relu(dt_conv2d(m, "c2", h, .out = 8, .kernel = 3, .pad = 1, .groups = 4, .split = DT_SPLIT_BOTH));
    h = dt_gather_parts(m, h, 1);
    h = dt_relu(dt_conv2d(m, "c3", h, .out = 8, .kernel = 3, .pad = 1, .split = DT_SPLIT_OUT));
    h = dt_gather_parts(m, h, 1);
    h = dt_take_part(m, dt_flatten(h), 1);
    return dt_mse_loss(dt_linear(m, "out", h, .out = 1, .split = DT_SPLIT_IN), y);
}
typedef dt_tensor *(*net_fn)(dt_model *m, dt_tensor *x, dt_tensor *y);
static const net_fn nets[] = { net_mlp, net_attention, net_dropped, net_words, net_conv, net_halves };
enum { NETS = sizeof nets / sizeof *nets };
static void batch(dt_tensor **x, dt_tensor **y)
{
    *x = dt_normal(0, 1, DT_SHAPE(N, E));
    *y = dt_sum(*x, .dims = DT_DIM(1), .keepdim = true);
}

/* ==================================================================================================== >>comparing */
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)
static char *files;
static const char *file(const char *name)
{
    static char path[2][400];
    static int  turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", files, name);
    return path[turn];
}
/* The largest difference between two archives, relative to 1 + the value; -1: they have other names or shapes. */
static double differ(const char *a, const char *b, bool say)
{
    dt_archive *x = dt_archive_open(a), *y = dt_archive_open(b);
    double      most = x && y && dt_archive_count(x) == dt_archive_count(y) ? 0 : -1;
    for (int64_t i = 0; most >= 0 && i < dt_archive_count(x); i++) {
        dt_archive_entry e, f;
        int64_t          k = dt_archive_find(y, dt_archive_name(x, i));
        if (!dt_archive_info(x, i, &e) || !dt_archive_info(y, k, &f) || e.dtype != f.dtype || e.nbytes != f.nbytes ||
            e.shape.ndim != f.shape.ndim || memcmp(e.shape.dim, f.shape.dim, (size_t)e.shape.ndim * sizeof *e.shape.dim)) {
            if (say) printf("    '%s' is missing or has another shape\n", dt_archive_name(x, i));
            most = -1;
            break;
        }
        const float *p = (const float *)dt_archive_data(x, i), *q = (const float *)dt_archive_data(y, k);
        double       here = 0;
        if (e.dtype != DT_F32) {
            if (memcmp(p, q, e.nbytes) && strncmp(e.name, "rng", 3)) here = 1;
        } else
            for (size_t n = 0; n < e.nbytes / 4; n++) {
                double d = fabs((double)p[n] - (double)q[n]) / (1 + fabs((double)q[n]));
                if (!(d <= here)) here = d;
            }
        if (say && here > 1e-4) printf("    '%s' differs by %g\n", e.name, here);
        if (!(here <= most)) most = here;
    }
    dt_archive_free(x);
    dt_archive_free(y);
    return most;
}
static dt_optimizer *optimizer(dt_model *m, int kind, float clip)
{
    if (kind == 1) return dt_adamw(m, .lr = 0.01f, .clip_norm = clip);
    if (kind == 2) return dt_lamb(m, .lr = 0.01f, .weight_decay = 0.1f, .clip_norm = clip);
    if (kind == 3) return dt_lars(m, .lr = 0.5f, .momentum = 0.9f, .weight_decay = 0.01f, .clip_norm = clip);
    return dt_sgd(m, .lr = 0.05f, .momentum = 0.9f, .clip_norm = clip);
}
static double step(dt_model *m, net_fn net, dt_optimizer *opt, dt_amp *amp, float *dx)
{
    dt_tensor *x, *y;
    double     value;
    batch(&x, &y);
    if (dx) dt_set_requires_grad(x);
    dt_tensor *loss = net(m, x, y);
    value = loss ? dt_item(loss) : NAN;
    if (amp) dt_amp_backward(amp, loss);
    else dt_backward(loss);
    if (dx && dt_grad(x)) dt_copy_out(dt_grad(x), dx, N * E * sizeof *dx);
    if (dx && !dt_grad(x)) memset(dx, 0, N * E * sizeof *dx);
    if (opt) dt_step(opt);
    else dt_end();
    if (dx) dt_free(x);
    return value;
}

/* ==================================================================================================== >>layers */
/* arg: the net. The first values have the bits of the whole model; the loss, the gradient of x and the weights after some steps
   are near. */
static void equal(team *t, dt_comm *c, int rank)
{
    net_fn net = nets[t->arg];
    float  dx[2][N * E];
    double loss[2];
    dt_model *m = dt_model_new(.seed = 5), *whole = dt_model_new(.seed = 5);
    dt_tensor_parallel *tp = dt_tensor_parallel_new(m, c);
    dt_optimizer *opt = optimizer(m, t->arg2, 0.5f), *opt2 = optimizer(whole, t->arg2, 0.5f);
    CHECK(tp != NULL);
    dt_manual_seed(7);
    dt_rng start = *dt_rng_default();
    for (int i = 0; i < 4; i++) {
        start = *dt_rng_default();
        loss[0] = step(m, net, i ? opt : NULL, NULL, dx[0]);
        *dt_rng_default() = start;
        loss[1] = step(whole, net, i ? opt2 : NULL, NULL, dx[1]);
        double most = 0, size = 0;
        for (int k = 0; k < N * E; k++) {
            most = fmax(most, fabs((double)dx[0][k] - (double)dx[1][k]));
            size = fmax(size, fabs((double)dx[1][k]));
        }
        CHECK(fabs(loss[0] - loss[1]) <= 2e-5 * (1 + fabs(loss[1])));
        CHECK(most <= 1e-4 * size);
        if (!(fabs(loss[0] - loss[1]) <= 2e-5 * (1 + fabs(loss[1]))) || !(most <= 1e-4 * size))
            printf("    net %d, step %d: losses %.9g %.9g, dx differs by %g of %g\n", t->arg, i, loss[0], loss[1], most, size);
        if (i == 0 || i == 3) {
            CHECK(!dt_model_save(m, file("parts")));
            if (rank == 0) CHECK(!dt_model_save(whole, file("whole")));
            if (rank == 0 && !dt_error()) {
                double d = differ(file("parts"), file("whole"), true);
                if (i == 0 && nets[t->arg] != net_conv) CHECK(d == 0); /* batch norm has changed its statistics */
                CHECK(d >= 0 && d < 2e-4);
            }
        }
    }
    CHECK(dt_model_numel(m, false) == dt_model_numel(whole, false));
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    dt_optimizer_free(opt), dt_optimizer_free(opt2);
    dt_tensor_parallel_free(tp);
    dt_model_free(m), dt_model_free(whole);
    CHECK(!dt_comm_free(c));
}
static int run(const char *how, int n, void (*fn)(team *t, dt_comm *c, int rank), int arg, int arg2)
{
    team t = team_of(how, n, 30, fn);
    t.arg = arg;
    t.arg2 = arg2;
    files = temp_dir();
    int failed = team_run(&t);
    temp_remove(files);
    return failed + (t.done != n);
}
UTEST(layers, equal_the_whole_layer)
{
    for (int k = 0; k < NETS; k++)
        for (int n = 2; n <= 4; n += 2) EXPECT_EQ(0, run("shm", n, equal, k, 0));
}
UTEST(layers, optimizers_see_whole_parameters)
{
    for (int kind = 1; kind < 4; kind++) {
        EXPECT_EQ(0, run("shm", 2, equal, 0, kind));
        if (!dt_test_quick()) EXPECT_EQ(0, run("tcp", 4, equal, 1, kind));
    }
}
static dt_tensor *one_mlp(dt_model *m, dt_tensor *x)
{
    return dt_linear(m, "proj", dt_gelu(dt_linear(m, "fc", x, .out = 32, .split = DT_SPLIT_OUT)), .out = E, .split = DT_SPLIT_IN);
}
static dt_tensor *one_attention(dt_model *m, dt_tensor *x)
{
    return dt_multihead_attention(m, "a", dt_reshape(x, DT_SHAPE(N, 2, E / 2)), .heads = HEADS, .split = DT_SPLIT_HEADS);
}
static void counted(team *t, dt_comm *c, int rank)
{
    (void)t;
    for (int k = 0; k < 2; k++) {
        dt_model           *m = dt_model_new(.seed = 5);
        dt_tensor_parallel *tp = dt_tensor_parallel_new(m, c);
        dt_tensor          *x = dt_set_requires_grad(dt_normal(0, 1, DT_SHAPE(N, E))), *y = k ? one_attention(m, x) : one_mlp(m, x);
        dt_tensor_parallel_stats s = dt_tensor_parallel_get_stats(tp);
        CHECK(s.forward == 1 && s.backward == 0 && s.nbytes == N * E * 4);
        dt_backward(dt_sum(y));
        s = dt_tensor_parallel_get_stats(tp);
        CHECK(s.forward == 1 && s.backward == 1 && s.nbytes == 2 * N * E * 4);
        dt_end();
        dt_free(x);
        dt_tensor_parallel_free(tp);
        dt_model_free(m);
    }
    CHECK(!dt_comm_free(c));
}
UTEST(layers, one_sum_forward_and_one_backward)
{
    EXPECT_EQ(0, run("shm", 2, counted, 0, 0));
    EXPECT_EQ(0, run("threads", 4, counted, 1, 0));
}

/* ==================================================================================================== >>training */
/* arg: the level. Losses are near those of one rank; the scale is the same on all. */
static void mixed(team *t, dt_comm *c, int rank)
{
    static const char *const level[] = { "O0", "O1", "O2", "O3" };
    for (int k = 0; k < NETS; k++) {
        dt_model *m = dt_model_new(.seed = 5), *whole = dt_model_new(.seed = 5);
        dt_tensor_parallel *tp = dt_tensor_parallel_new(m, c);
        dt_optimizer *opt = optimizer(m, 1, 0.5f), *opt2 = optimizer(whole, 1, 0.5f);
        dt_amp *amp = dt_amp_new(m, .level = level[t->arg], .dtype = DT_F16, .init_scale = 256);
        dt_amp *amp2 = dt_amp_new(whole, .level = level[t->arg], .dtype = DT_F16, .init_scale = 256);
        double  loss[2];
        dt_manual_seed(7);
        for (int i = 0; i < 3; i++) {
            dt_rng start = *dt_rng_default();
            loss[0] = step(m, nets[k], opt, amp, NULL);
            *dt_rng_default() = start;
            loss[1] = step(whole, nets[k], opt2, amp2, NULL);
            CHECK(fabs(loss[0] - loss[1]) <= 0.02 * (1 + fabs(loss[1])));
            if (!(fabs(loss[0] - loss[1]) <= 0.02 * (1 + fabs(loss[1])))) printf("    net %d, %s: %.9g %.9g\n", k, level[t->arg], loss[0], loss[1]);
            CHECK(dt_amp_scale(amp, 0) == dt_amp_scale(amp2, 0));
        }
        if (dt_error()) printf("    net %d, rank %d: %s\n", k, rank, dt_error());
        CHECK(!dt_error());
        dt_amp_free(amp), dt_amp_free(amp2);
        dt_optimizer_free(opt), dt_optimizer_free(opt2);
        dt_tensor_parallel_free(tp);
        dt_model_free(m), dt_model_free(whole);
    }
    CHECK(!dt_comm_free(c));
}
UTEST(training, mixed_precision)
{
    for (int level = 0; level < 4; level++) EXPECT_EQ(0, run("shm", 2, mixed, level, 0));
}
/* One rank's gradient is not finite: arg 1: with a dynamic loss scale, which is halved on all. */
static void not_finite(team *t, dt_comm *c, int rank)
{
    dt_model           *m = dt_model_new(.seed = 5);
    dt_tensor_parallel *tp = dt_tensor_parallel_new(m, c);
    dt_optimizer       *opt = optimizer(m, 1, 0);
    dt_amp             *amp = t->arg ? dt_amp_new(m, .level = "O1", .dtype = DT_F16, .init_scale = 256) : NULL;
    float               before[64], after[64];
    step(m, net_mlp, opt, amp, NULL);
    dt_tensor *w = dt_model_find(m, "fc.weight");
    dt_copy_out(dt_narrow(dt_reshape(w, DT_SHAPE(-1)), 0, 0, 64), before, sizeof before);
    dt_end();
    dt_tensor *x, *y;
    batch(&x, &y);
    dt_tensor *loss = net_mlp(m, x, y);
    if (rank == 1) { /* without a trace in the loss */
        dt_tensor *b = dt_model_find(m, "fc.bias");
        dt_tensor *more = dt_mul_scalar(dt_sum(dt_mul(b, dt_full(3e38, DT_SHAPE(1)))), 0);
        loss = dt_add(loss, dt_mul_scalar(dt_sum(dt_mul(b, dt_full(INFINITY, DT_SHAPE(1)))), 0));
        loss = dt_add(loss, more);
        loss = dt_where(dt_eq(loss, loss), loss, dt_full(0.5, dt_shape_of(loss)));
    }
    (void)dt_item(loss);
    if (amp) dt_amp_backward(amp, loss);
    else dt_backward(loss);
    dt_step(opt);
    if (amp) CHECK(!dt_error() && dt_amp_scale(amp, 0) == 128);
    else CHECK(dt_error() && strstr(dt_error(), "on rank 1 of the tensor axis the gradient of 'fc.bias' is not finite"));
    if (!amp && dt_error() && !strstr(dt_error(), "on rank 1 of")) printf("    %s\n", dt_error());
    dt_error_clear();
    dt_copy_out(dt_narrow(dt_reshape(w, DT_SHAPE(-1)), 0, 0, 64), after, sizeof after);
    CHECK(!memcmp(before, after, sizeof before));
    dt_end();
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_tensor_parallel_free(tp);
    dt_model_free(m);
    dt_comm_free(c);
}
UTEST(training, one_verdict_on_gradients)
{
    for (int amp = 0; amp < 2; amp++) EXPECT_EQ(0, run("shm", 2, not_finite, amp, 0));
}
static double resumed(dt_comm *c, int kind, const char *dir, int steps, int64_t *at) /* c NULL: one rank */
{
    dt_model           *m = dt_model_new(.seed = 5);
    dt_tensor_parallel *tp = c ? dt_tensor_parallel_new(m, c) : NULL;
    dt_optimizer       *opt = optimizer(m, kind, 0.5f);
    dt_checkpoint      *k = dt_checkpoint_new(dir, .model = m, .optimizer = opt);
    int64_t             epoch = 0;
    double              loss = 0;
    *at = 0;
    dt_manual_seed(7);
    dt_checkpoint_resume(k, &epoch, at);
    for (int i = 0; i < steps && !dt_error(); i++, ++*at) loss = step(m, net_dropped, opt, NULL, NULL);
    dt_checkpoint_save(k, 0, *at);
    dt_checkpoint_free(k);
    dt_optimizer_free(opt);
    dt_tensor_parallel_free(tp);
    dt_model_free(m);
    return loss;
}
/* 2 steps by all ranks, 2 more by one rank, 2 by all again: near 6 steps of one rank, with the states of the optimiser. A file that is
   loaded and saved at once keeps its bits. */
static void through_layouts(team *t, dt_comm *c, int rank)
{
    int64_t at = 0;
    char    path[2][500];
    double  loss = resumed(c, t->arg, file("a"), 2, &at);
    CHECK(at == 2);
    if (rank == 0) loss = resumed(NULL, t->arg, file("a"), 2, &at);
    CHECK(!dt_comm_barrier(c));
    loss = resumed(c, t->arg, file("a"), 2, &at);
    CHECK(at == 6);
    char own[16];
    snprintf(own, sizeof own, "alone-%d", rank);
    double whole = resumed(NULL, t->arg, file(own), 6, &at);
    CHECK(fabs(loss - whole) <= 1e-4 * (1 + fabs(whole)));
    CHECK(!dt_comm_barrier(c));
    if (rank == 0) {
        snprintf(path[0], sizeof path[0], "%s/ckpt-%08d.safetensors", file("a"), 6);
        snprintf(path[1], sizeof path[1], "%s/ckpt-%08d.safetensors", file("alone-0"), 6);
        double d = differ(path[0], path[1], true);
        CHECK(d >= 0 && d < 1e-3);
        if (!(d >= 0 && d < 1e-3)) printf("    checkpoints differ by %g\n", d);
        dt_archive *x = dt_archive_open(path[0]);
        CHECK(dt_archive_find(x, "a.in_proj_weight") >= 0);
        dt_archive_free(x);
        snprintf(path[1], sizeof path[1], "%s/copy", files);
        CHECK(!mkdir(path[1], 0700));
    }
    CHECK(!dt_comm_barrier(c));
    /* loaded and saved again by all ranks */
    dt_model           *m = dt_model_new(.seed = 99);
    dt_tensor_parallel *tp = dt_tensor_parallel_new(m, c);
    snprintf(path[0], sizeof path[0], "%s/ckpt-%08d.safetensors", file("a"), 6);
    CHECK(dt_model_load(m, path[0], .no_strict = true) >= 0);
    step(m, net_dropped, NULL, NULL, NULL);
    CHECK(!dt_model_save(m, file("again")));
    if (rank == 0) {
        dt_archive *x = dt_archive_open(path[0]), *y = dt_archive_open(file("again"));
        for (int64_t i = 0; i < dt_archive_count(y); i++) {
            dt_archive_entry e, f;
            CHECK(dt_archive_info(y, i, &e) && dt_archive_info(x, dt_archive_find(x, e.name), &f) && e.nbytes == f.nbytes);
            CHECK(!memcmp(dt_archive_data(y, i), dt_archive_data(x, dt_archive_find(x, e.name)), e.nbytes));
        }
        CHECK(dt_archive_count(y) == 6);
        dt_archive_free(x);
        dt_archive_free(y);
    }
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    dt_tensor_parallel_free(tp);
    dt_model_free(m);
    CHECK(!dt_comm_free(c));
}
UTEST(training, checkpoints_hold_the_whole_model)
{
    EXPECT_EQ(0, run("shm", 2, through_layouts, 1, 0));
    EXPECT_EQ(0, run("shm", 4, through_layouts, 0, 0));
}
static void on_fake(team *t, dt_comm *c, int rank) /* the host cannot read the device: values go through dt's copies */
{
    fake_device *f = fake_device_new(0);
    dt_set_default_device(f->dev);
    equal(t, c, rank);
    dt_end();
    dt_set_default_device(NULL);
    CHECK(fake_device_free(f) == DT_OK);
}
UTEST(training, memory_that_the_host_cannot_read)
{
    for (int k = 0; k < NETS; k++) EXPECT_EQ(0, run("shm", 2, on_fake, k, k == 1 ? 0 : k % 4));
}

/* ==================================================================================================== >>errors */
enum { HEADS_BAD, OUT_BAD, GROUPS_BAD, ROWS_BAD, CHANNELS_BAD, ACT_BAD, GROUPED_BAD, SPLIT_BAD, LOSS_BAD, PART_BAD, WIDTH_DIFFERS,
       SEED_DIFFERS, SPLIT_DIFFERS, NAME_DIFFERS, BAD_TOKEN, LATE, TWICE, ERRORS };
static const struct {
    const char *text[2]; /* all must be in the message, on each rank */
} errors[ERRORS] = {
    { { "dt_multihead_attention 'a': the layer has 6 heads (.heads), which the 4 ranks of the tensor axis cannot divide equally", "" } },
    { { "dt_linear 'fc': the layer has 10 features (.out)", "use a multiple of 4" } },
    { { "dt_conv2d 'c': the layer has 2 groups (.groups)", "multiple of 4" } },
    { { "dt_embedding 'e': the layer has 6 rows (.num)", "multiple of 4" } },
    { { "dt_conv2d 'c': the layer has 6 channels (.out)", "multiple of 4" } },
    { { "dt_linear 'fc': .act cannot be used with DT_SPLIT_IN", "apply the activation" } },
    { { "dt_conv2d 'c': .groups is 4", "use DT_SPLIT_BOTH" } },
    { { "dt_linear 'fc': .split is 3; this layer can be split by DT_SPLIT_OUT, DT_SPLIT_IN", "" } },
    { { "dt_cross_entropy_parts: logits (16, 4)", "target (3)" } },
    { { "dt_take_part: dimension 1 of x (8, 10) cannot be divided equally between the 4 ranks", "" } },
    { { "dt_linear 'fc2'", "rank 1" } },
    { { "the models differ: number 1 is parameter 'ln.weight'", "from the same seed" } },
    { { "number 1 is parameter 'fc.weight' f32 (32, 16), split into 4 along dimension 0 on rank 0", "f32 (8, 16), values" } },
    { { "number 1 is parameter 'fc.weight' f32 (4, 16)", "'fcx.weight' f32 (4, 16), split into 4 along dimension 0 on rank 1" } },
    { { "embedding: index 24", "" } },
    { { "has parameters already", "before the first forward" } },
    { { "is split over ranks already", "dt_hybrid_new" } },
};
static dt_tensor *wrong(dt_model *m, int kind, int rank, dt_comm *c)
{
    dt_tensor *x = dt_full(0.5, DT_SHAPE(8, 16)), *image = dt_full(0.5, DT_SHAPE(2, 4, 4, 4)), *y = NULL;
    const bool odd = rank == 1;
    switch (kind) {
    case HEADS_BAD: return dt_multihead_attention(m, "a", dt_full(1, DT_SHAPE(2, 3, 12)), .heads = 6, .split = DT_SPLIT_HEADS);
    case OUT_BAD: return dt_linear(m, "fc", x, .out = 10, .split = DT_SPLIT_OUT);
    case GROUPS_BAD: return dt_conv2d(m, "c", dt_full(1, DT_SHAPE(2, 1, 4, 4)), .out = 8, .kernel = 3, .groups = 2, .split = DT_SPLIT_BOTH);
    case ROWS_BAD: return dt_embedding(m, "e", dt_full(1, DT_SHAPE(3), .dtype = DT_I64), .num = 6, .dim = 4, .split = DT_SPLIT_IN);
    case CHANNELS_BAD: return dt_conv2d(m, "c", image, .out = 6, .kernel = 3, .split = DT_SPLIT_OUT);
    case ACT_BAD: return dt_linear(m, "fc", x, .out = 8, .act = DT_ACT_RELU, .split = DT_SPLIT_IN);
    case GROUPED_BAD: return dt_conv2d(m, "c", image, .out = 8, .kernel = 3, .groups = 4, .split = DT_SPLIT_OUT);
    case SPLIT_BAD: return dt_linear(m, "fc", x, .out = 8, .split = DT_SPLIT_BOTH);
    case LOSS_BAD: return dt_cross_entropy_parts(m, dt_full(1, DT_SHAPE(16, 4)), dt_full(1, DT_SHAPE(3), .dtype = DT_I64));
    case PART_BAD: return dt_take_part(m, dt_full(1, DT_SHAPE(8, 10)), 1);
    case WIDTH_DIFFERS:
        y = dt_linear(m, "fc", x, .out = 32, .split = DT_SPLIT_OUT);
        return dt_linear(m, "fc2", y, .out = odd ? 12 : 16, .split = DT_SPLIT_IN);
    case SEED_DIFFERS: return dt_sum(dt_layernorm(m, "ln", x));
    case SPLIT_DIFFERS:
        y = odd ? dt_linear(m, "fc", x, .out = 8) : dt_linear(m, "fc", x, .out = 32, .split = DT_SPLIT_OUT);
        return dt_sum(dt_linear(m, "fc2", y, .out = 4, .split = DT_SPLIT_IN));
    case NAME_DIFFERS: return dt_sum(dt_linear(m, odd ? "fcx" : "fc", x, .out = 4, .split = DT_SPLIT_OUT));
    case BAD_TOKEN: return dt_embedding(m, "e", dt_full(24, DT_SHAPE(3), .dtype = DT_I64), .num = 24, .dim = 4, .split = DT_SPLIT_IN);
    case LATE: case TWICE:
        if (kind == LATE) dt_linear(m, "fc", x, .out = 4);
        dt_tensor_parallel_free(dt_tensor_parallel_new(m, c));
        return NULL;
    default: return NULL;
    }
}
static void erring(team *t, dt_comm *c, int rank)
{
    dt_model           *m = dt_model_new(.seed = 5);
    dt_tensor_parallel *tp = t->arg == LATE ? NULL : dt_tensor_parallel_new(m, c);
    dt_tensor          *y = wrong(m, t->arg, rank, c);
    if (t->arg == SEED_DIFFERS && rank == 1) dt_copy(dt_model_find(m, "ln.weight"), dt_full(0.99, DT_SHAPE(16)));
    if (y && !dt_error()) dt_backward(dt_sum(y));
    bool ok = dt_error() && strstr(dt_error(), errors[t->arg].text[0]) && strstr(dt_error(), errors[t->arg].text[1]);
    CHECK(ok);
    if (!ok) printf("    %d: %s\n", t->arg, dt_error() ? dt_error() : "no error");
    dt_error_clear();
    dt_end();
    dt_tensor_parallel_free(tp);
    dt_model_free(m);
    dt_comm_free(c);
}
UTEST(errors, name_layer_and_rank)
{
    for (int k = 0; k < ERRORS; k++) EXPECT_EQ(0, run("shm", 4, erring, k, 0));
}
/* arg 0: a rank dies, 1: it is stopped, in the middle of a forward. */
static void loses_a_rank(team *t, dt_comm *c, int rank)
{
    dt_model           *m = dt_model_new(.seed = 5);
    dt_tensor_parallel *tp = dt_tensor_parallel_new(m, c);
    dt_optimizer       *opt = optimizer(m, 0, 0);
    step(m, net_mlp, opt, NULL, NULL);
    if (rank == 2) {
        team_set(t, 0);
        raise(t->arg ? SIGSTOP : SIGKILL);
    }
    for (int i = 0; i < 1000 && !dt_error(); i++) step(m, net_mlp, opt, NULL, NULL);
    CHECK(dt_error() && strstr(dt_error(), "rank 2"));
    if (dt_error() && !strstr(dt_error(), "rank 2")) printf("    %s\n", dt_error());
    if (t->arg && rank == 0) kill(t->pid[2], SIGKILL);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_tensor_parallel_free(tp);
    dt_model_free(m);
    dt_comm_free(c);
}
UTEST(errors, a_rank_that_dies_or_stops_is_named)
{
    for (int stop = 0; stop < 2; stop++) {
        team t = team_of("shm", 4, 1.5, loses_a_rank);
        t.arg = stop;
        EXPECT_EQ(0, team_run(&t));
        EXPECT_EQ(3, t.done);
    }
}
