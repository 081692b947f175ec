/* test_layouts.c: one job, any layout, the same weights. Three models train 50 steps on one rank, and on every way of sharing them.
   Where the order of sums is fixed the weights are equal to the bit. Else one rank with the same sum in another order says how much
   that changes. The table that `make layouts` prints is in docs/architecture.md. And: any layout reads any layout's checkpoints.
   run: alone, long, asan-later */
#include "dt_test.h"

#include "dt_pipe.h"
#include "dt_serve.h"
#include "checkpoints.h"
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
   Seven places where they may be cut into 2, 4 or 8 stages. halves: one rank computes the layers with .split in two halves, and adds
   them up as two ranks do. */
static int  stages = 1;
static bool halves;
static dt_tensor *cut(dt_model *m, int place, dt_tensor *x) /* place 0 to 6 */
{
    static const char *const names[] = { "s1", "s2", "s3", "s4", "s5", "s6", "s7" };
    return (place + 1) * stages % 8 == 0 ? dt_stage(m, names[place], x) : x;
}
static dt_tensor *half(dt_tensor *t, int dim, int i)
{
    int64_t n = dt_size(t, dim) / 2;
    return dt_narrow(t, dim, i * n, n);
}
static dt_tensor *both(dt_tensor *a, dt_tensor *b, int dim)
{
    dt_tensor *two[2];
    two[0] = a, two[1] = b;
    return dt_cat(two, 2, dim);
}
static dt_tensor *linear_out(dt_model *m, const char *name, dt_tensor *x, int64_t out)
{
    if (!halves) return dt_linear(m, name, x, .out = out, .split = DT_SPLIT_OUT);
    char full[64];
    dt_tensor *y = NULL, *w, *b;
    snprintf(full, sizeof full, "%s.weight", name);
    w = dt_model_find(m, full);
    if (!w) y = dt_linear(m, name, x, .out = out); /* the first forward makes the parameters */
    snprintf(full, sizeof full, "%s.bias", name);
    b = dt_model_find(m, full);
    if (y) return y;
    return both(dt_op_linear(x, half(w, 0, 0), half(b, 0, 0)), dt_op_linear(x, half(w, 0, 1), half(b, 0, 1)), -1);
}
static dt_tensor *linear_in(dt_model *m, const char *name, dt_tensor *x, int64_t out)
{
    if (!halves) return dt_linear(m, name, x, .out = out, .split = DT_SPLIT_IN);
    char full[64];
    dt_tensor *y = NULL, *w, *b;
    snprintf(full, sizeof full, "%s.weight", name);
    w = dt_model_find(m, full);
    if (!w) y = dt_linear(m, name, x, .out = out);
    snprintf(full, sizeof full, "%s.bias", name);
    b = dt_model_find(m, full);
    if (y) return y;
    y = dt_add(dt_op_linear(half(x, -1, 0), half(w, 1, 0), NULL), dt_op_linear(half(x, -1, 1), half(w, 1, 1), NULL));
    return dt_add(y, b);
}
static dt_tensor *mlp(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    char name[2][16];
    (void)user;
    x = dt_linear(m, "in", x, .out = 24);
    for (int i = 0; i < 7; i++) {
        snprintf(name[0], sizeof name[0], "fc%d", i);
        snprintf(name[1], sizeof name[1], "proj%d", i);
        x = dt_add(x, linear_in(m, name[1], dt_tanh(linear_out(m, name[0], x, 32)), 24));
        x = cut(m, i, x);
    }
    return dt_cross_entropy(dt_linear(m, "out", x, .out = 10), y);
}
static dt_tensor *conv_in(dt_model *m, const char *name, dt_tensor *x, int64_t out)
{
    if (!halves) return dt_conv2d(m, name, x, .out = out, .kernel = 3, .pad = 1, .split = DT_SPLIT_IN);
    char full[64];
    dt_tensor *y = NULL, *w, *b;
    snprintf(full, sizeof full, "%s.weight", name);
    w = dt_model_find(m, full);
    if (!w) y = dt_conv2d(m, name, x, .out = out, .kernel = 3, .pad = 1);
    snprintf(full, sizeof full, "%s.bias", name);
    b = dt_model_find(m, full);
    if (y) return y;
    y = dt_add(dt_op_conv2d(half(x, 1, 0), half(w, 1, 0), NULL, .pad = 1), dt_op_conv2d(half(x, 1, 1), half(w, 1, 1), NULL, .pad = 1));
    return dt_add(y, dt_reshape(b, DT_SHAPE(out, 1, 1)));
}
/* The digits are 8 x 8; without batch norm, whose statistics are those of a micro-batch; smooth, so that rounding
   stays small. */
static dt_tensor *digits(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    x = dt_reshape(dt_cast(x, DT_F32), DT_SHAPE(-1, 1, 8, 8));
    x = dt_tanh(dt_conv2d(m, "conv1", x, .out = 8, .kernel = 3, .pad = 1));
    for (int i = 0; i < 6; i++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "a%d", i);
        snprintf(name[1], sizeof name[1], "b%d", i);
        dt_tensor *h = dt_tanh(dt_conv2d(m, name[0], x, .out = 8, .kernel = 3, .pad = 1, .split = DT_SPLIT_OUT));
        x = cut(m, i, dt_add(x, conv_in(m, name[1], h, 8)));
    }
    x = dt_tanh(linear_in(m, "fc1", dt_take_part(m, dt_flatten(dt_avgpool2d(x, .kernel = 2)), 1), 16));
    return dt_cross_entropy(dt_linear(m, "fc2", cut(m, 6, x), .out = 10), y);
}
enum { VOCAB = 32, CONTEXT = 8, DIM = 16, HEADS = 4 };
static dt_tensor *gpt(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* four layers */
{
    (void)user;
    dt_tensor *t = dt_narrow(x, 1, 0, CONTEXT);
    dt_tensor *position = dt_arange(0, CONTEXT, 1, .dtype = DT_I64, .device = dt_device_of(t));
    dt_tensor *h = dt_embedding(m, "wte", t, .num = VOCAB, .dim = DIM, .split = DT_SPLIT_IN);
    h = dt_add(h, dt_embedding(m, "wpe", position, .num = CONTEXT, .dim = DIM));
    for (int i = 0; i < 4; i++) {
        char name[2][16];
        if (i) h = cut(m, 2 * i - 1, h);
        dt_scope_begin(m, "h.%d", i);
        h = dt_add(h, dt_multihead_attention(m, "attn", dt_layernorm(m, "ln_1", h), .heads = HEADS, .causal = true, .split = DT_SPLIT_HEADS));
        h = cut(m, 2 * i, h);
        dt_tensor *n = dt_layernorm(m, "ln_2", h);
        dt_scope_end(m);
        snprintf(name[0], sizeof name[0], "h.%d.mlp.fc", i);
        snprintf(name[1], sizeof name[1], "h.%d.mlp.proj", i);
        h = dt_add(h, linear_in(m, name[1], dt_gelu_tanh(linear_out(m, name[0], n, 4 * DIM)), DIM));
    }
    h = dt_reshape(dt_layernorm(m, "ln_f", h), DT_SHAPE(-1, DIM));
    return dt_cross_entropy_parts(m, dt_linear(m, "head", h, .out = VOCAB, .no_bias = true, .split = DT_SPLIT_OUT),
                                  dt_reshape(dt_narrow(y, 1, 0, CONTEXT), DT_SHAPE(-1)));
}
enum { MLP, DIGITS, GPT, MODELS };
static dt_pipeline_fn const models[] = { mlp, digits, gpt };
static const char *const    model_name[] = { "MLP", "digits conv net", "GPT, 4 layers" };
enum { BATCH = 16, MICRO = 4 }; /* samples of a step, and micro-batches */
static dt_dataset *images; /* of this process, with `in` */
static dt_loader  *in;
static void batch(int kind, dt_tensor **x, dt_tensor **y) /* the same on all ranks */
{
    if (kind == DIGITS) {
        dt_batch b;
        while (!dt_loader_next(in, &b) && !dt_error()) {}
        *x = b.x;
        *y = b.y;
    } else if (kind == GPT) {
        *x = dt_cast(dt_uniform(0, VOCAB - 0.01, DT_SHAPE(BATCH, CONTEXT)), DT_I64);
        *y = dt_cast(dt_clamp(dt_sub_scalar(dt_mul_scalar(dt_cast(*x, DT_F32), 1.0), 1.0), 0, VOCAB - 1), DT_I64);
    } else {
        *y = dt_cast(dt_uniform(0, 9.99, DT_SHAPE(BATCH)), DT_I64);
        *x = dt_add(dt_normal(0, 1, DT_SHAPE(BATCH, 64)), dt_mul_scalar(dt_reshape(dt_cast(*y, DT_F32), DT_SHAPE(BATCH, 1)), 0.3));
    }
}
static dt_optimizer *optimizer(dt_model *m) { return dt_sgd(m, .lr = 0.03, .momentum = 0.9); }
static int           steps(void) { return dt_test_quick() ? 10 : 50; }

/* ==================================================================================================== >>one_rank
   The same sum over the samples of a step, in four orders. */
enum { IN_ORDER, TREE, IN_PAIRS, WORKERS, HALVES, ORDERS };
static const char *const order_name[] = { "in order", "as a tree", "by pairs", "by workers", "layers in halves" };
static void part(dt_model *m, int kind, dt_tensor *x, dt_tensor *y, int64_t at, int64_t n, double weight)
{
    dt_tensor *l = models[kind](m, dt_narrow(x, 0, at, n), dt_narrow(y, 0, at, n), NULL);
    if (dt_error()) return;
    dt_backward(l, .grad = dt_full(weight, dt_shape_of(l)));
}
/* The gradients: into (0) or, times `by`, from and added to (1) a copy. */
static void gradients(dt_model *m, float **copy, int add, float by)
{
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        dt_tensor *g = dt_grad(p.value);
        if (!g) continue;
        size_t n = (size_t)dt_numel(g);
        float *now = (float *)malloc(n * sizeof *now);
        dt_copy_out(g, now, n * sizeof *now);
        if (!add) copy[i] = (float *)malloc(n * sizeof *now);
        for (size_t k = 0; k < n; k++) copy[i][k] = add ? copy[i][k] + by * now[k] : by * now[k];
        dt_no_grad_begin();
        if (add) dt_copy_in(g, copy[i], n * sizeof *now);
        else dt_copy(g, dt_full(0, dt_shape_of(g)));
        dt_no_grad_end();
        if (add) free(copy[i]);
        free(now);
    }
}
static void one_rank(int kind, int order, const char *path)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = optimizer(m);
    dt_ddp       *ddp = order == TREE ? dt_ddp_new(m, NULL, .slots = MICRO) : NULL;
    float       **copy = (float **)calloc(200, sizeof *copy);
    stages = 1;
    halves = false;
    dt_manual_seed(11);
    for (int s = 0; s < steps() && !dt_error(); s++) {
        dt_tensor *x, *y;
        batch(kind, &x, &y);
        int64_t n = BATCH / MICRO;
        halves = order == HALVES && s > 0;
        if (order == HALVES && !s) { /* makes the parameters; its gradients are not used */
            models[kind](m, x, y, NULL);
            dt_model_seal(m);
            dt_forward_begin(m);
            halves = true;
        }
        if (order == IN_ORDER || order == HALVES || order == TREE)
            for (int i = 0; i < MICRO; i++) part(m, kind, x, y, i * n, n, order == TREE ? 1 : 1.0 / MICRO);
        else { /* two data ranks with two micro-batches each; two workers with a half of the batch each */
            for (int r = 0; r < 2 && !dt_error(); r++) {
                if (order == IN_PAIRS)
                    for (int i = 0; i < 2; i++) part(m, kind, x, y, (2 * r + i) * n, n, 0.5);
                else part(m, kind, x, y, r * BATCH / 2, BATCH / 2, 1);
                if (order == IN_PAIRS) gradients(m, copy, r, 0.5f);
                else gradients(m, copy, r, 1);
            }
            for (int i = 0; order == WORKERS && i < dt_model_count(m); i++) { /* the mean of the sum */
                dt_parameter_info p;
                dt_model_get(m, i, &p);
                dt_no_grad_begin();
                if (dt_grad(p.value)) dt_copy(dt_grad(p.value), dt_mul_scalar(dt_grad(p.value), 0.5));
                dt_no_grad_end();
            }
        }
        dt_step(opt);
    }
    halves = false;
    dt_model_save(m, path);
    free(copy);
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}

/* ==================================================================================================== >>many_ranks */
typedef struct layout {
    const char *name;
    int         data, pipe, tensor, schedule, servers;
    int         order;   /* of one rank with the same bits; HALVES: near that of one rank, see the test */
    const char *why;
} layout;
static const layout layouts[] = {
    { "data 2", 2, 1, 1, 0, 0, TREE, "slots: the same tree of sums for any number of ranks" },
    { "data 4", 4, 1, 1, 0, 0, TREE, "the same" },
    { "pipe 2, GPipe", 1, 2, 1, DT_PIPE_GPIPE, 0, IN_ORDER, "each stage adds its micro-batches in order" },
    { "pipe 2, 1F1B", 1, 2, 1, DT_PIPE_1F1B, 0, IN_ORDER, "the same" },
    { "pipe 2, interleaved", 1, 2, 1, DT_PIPE_INTERLEAVED, 0, IN_ORDER, "the same" },
    { "pipe 2, ZB-H1", 1, 2, 1, DT_PIPE_ZB_H1, 0, IN_ORDER, "the same" },
    { "pipe 4, GPipe", 1, 4, 1, DT_PIPE_GPIPE, 0, IN_ORDER, "the same" },
    { "pipe 4, 1F1B", 1, 4, 1, DT_PIPE_1F1B, 0, IN_ORDER, "the same" },
    { "pipe 4, interleaved", 1, 4, 1, DT_PIPE_INTERLEAVED, 0, IN_ORDER, "the same" },
    { "pipe 4, ZB-H1", 1, 4, 1, DT_PIPE_ZB_H1, 0, IN_ORDER, "the same" },
    { "tensor 2", 1, 1, 2, 0, 0, HALVES, "a sum over features is two sums that are added" },
    { "data 2 x pipe 2", 2, 2, 1, DT_PIPE_1F1B, 0, IN_PAIRS, "the data axis adds the sums of two micro-batches each" },
    { "data 2 x tensor 2", 2, 1, 2, 0, 0, HALVES, "both" },
    { "pipe 2 x tensor 2", 1, 2, 2, DT_PIPE_1F1B, 0, HALVES, "as tensor 2" },
    { "2 workers, 1 server", 2, 1, 1, 0, 1, WORKERS, "the server adds the workers' gradients in their order" },
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)
static char *files;
static const char *file(int kind, int order, int shared)
{
    static char path[4][400];
    static int  turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%d.%d.%d", files, kind, order, shared);
    return path[turn];
}
static void with_a_server(team *t, dt_comm *c, int rank, int kind, const char *path)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = optimizer(m);
    dt_ps        *store = dt_ps_new(c, .servers = 1);
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = DT_PS_SYNC);
    int           worker = dt_ps_worker(store);
    dt_manual_seed(11);
    if (worker < 0) dt_ps_serve(store);
    for (int s = 0; s < steps() && worker >= 0 && !dt_error(); s++) {
        dt_tensor *x, *y;
        batch(kind, &x, &y);
        part(m, kind, x, y, worker * BATCH / 2, BATCH / 2, 1);
        dt_step(opt);
    }
    if (worker >= 0) CHECK(!dt_ps_collect(pm));
    if (worker == 0) CHECK(!dt_model_save(m, path));
    CHECK(!dt_error());
    dt_ps_detach(pm);
    dt_ps_free(store);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
static void on_grid(team *t, dt_comm *c, int rank, int kind, const layout *l, const char *path)
{
    int           chunks = l->schedule == DT_PIPE_INTERLEAVED ? 2 : 1;
    dt_grid      *g = dt_grid_new(c, .data = l->data, .pipe = l->pipe, .tensor = l->tensor);
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = optimizer(m);
    bool          slots = l->order == TREE;
    dt_ddp       *ddp = slots ? dt_ddp_new(m, dt_grid_comm(g, DT_AXIS_DATA), .slots = MICRO) : NULL;
    dt_pipeline  *p = slots ? NULL : dt_hybrid_new(m, g, .micro = MICRO / l->data, .schedule = (dt_pipe_kind)l->schedule, .chunks = chunks);
    int           first = 0, each = 0, at = dt_grid_rank(g, DT_AXIS_DATA);
    int64_t       n = BATCH / l->data;
    CHECK(g && (p || ddp));
    stages = l->pipe * chunks;
    dt_manual_seed(11);
    for (int s = 0; s < steps() && !dt_error(); s++) {
        dt_tensor *x, *y;
        batch(kind, &x, &y);
        if (ddp) dt_ddp_slots(ddp, &first, &each);
        for (int i = first; i < first + each; i++) part(m, kind, x, y, i * BATCH / MICRO, BATCH / MICRO, 1);
        if (p) dt_pipeline_backward(p, models[kind], NULL, dt_narrow(x, 0, at * n, n), dt_narrow(y, 0, at * n, n), NULL);
        dt_step(opt);
    }
    if (p || rank == 0) dt_model_save(m, path);
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    dt_pipeline_free(p);
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_grid_free(g);
}
static void train(team *t, dt_comm *c, int rank) /* arg: the model; arg2: the layout, or -1 - the order of one rank */
{
    images = dt_idx_open("data/digits/digits-images-idx3-ubyte", .labels = "data/digits/digits-labels-idx1-ubyte", .classes = 10);
    in = dt_loader_new(images, .batch = BATCH, .shuffle = true, .seed = 1, .drop_last = true, .workers = 1);
    if (t->arg2 < 0) one_rank(t->arg, -1 - t->arg2, file(t->arg, -1 - t->arg2, -1));
    else if (layouts[t->arg2].servers) with_a_server(t, c, rank, t->arg, file(t->arg, 0, t->arg2));
    else on_grid(t, c, rank, t->arg, &layouts[t->arg2], file(t->arg, 0, t->arg2));
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    dt_loader_free(in);
    dt_dataset_free(images);
    CHECK(!dt_comm_free(c));
}
static int run(int ranks, int kind, int what)
{
    team t = team_of("shm", ranks, 60, train);
    t.arg = kind;
    t.arg2 = what;
    int failed = team_run(&t);
    return failed + (t.done != ranks);
}
/* The largest difference of a weight; exactly 0: the same bits. -1: other names or shapes. */
static double differ(const char *a, const char *b)
{
    dt_archive *x = dt_archive_open(a), *y = dt_archive_open(b);
    double      most = x && y && dt_archive_count(x) == dt_archive_count(y) && dt_archive_count(x) > 4 ? 0 : -1;
    for (int64_t i = 0; most >= 0 && i < dt_archive_count(x); i++) {
        dt_archive_entry e, f;
        if (!dt_archive_info(x, i, &e) || !dt_archive_info(y, dt_archive_find(y, e.name), &f) || e.nbytes != f.nbytes) {
            most = -1;
            break;
        }
        const float *p = (const float *)dt_archive_data(x, i), *q = (const float *)dt_archive_data(y, dt_archive_find(y, e.name));
        bool         same = !memcmp(p, q, e.nbytes);
        for (size_t n = 0; n < e.nbytes / 4; n++) {
            double d = fabs((double)p[n] - (double)q[n]);
            if (!(d <= most)) most = d;
        }
        if (!same && most == 0) most = 1e-30; /* 0 and -0 */
    }
    dt_archive_free(x);
    dt_archive_free(y);
    return most;
}

/* ==================================================================================================== >>the_table */
static char cell[LAYOUTS][MODELS][80];
static double moved[MODELS][ORDERS]; /* how much another order changes on one rank */
static void table(void)
{
    printf("\n| layout | %s | %s | %s | why |\n| --- | --- | --- | --- | --- |\n", model_name[0], model_name[1], model_name[2]);
    for (int i = 0; i < LAYOUTS; i++)
        printf("| %s | %s | %s | %s | %s |\n", layouts[i].name, cell[i][0], cell[i][1], cell[i][2], layouts[i].why);
    for (int k = 1; k < ORDERS; k++) {
        printf("| one rank, %s |", order_name[k]);
        for (int m = 0; m < MODELS; m++) printf(" %.1e |", moved[m][k]);
        printf(" another order of the sum alone |\n");
    }
    printf("\n");
}
UTEST(layouts, one_job_any_layout_the_same_weights)
{
    files = temp_dir();
    for (int kind = 0; kind < MODELS; kind++) {
        for (int k = 0; k < ORDERS; k++) {
            ASSERT_EQ(0, run(1, kind, -1 - k));
            moved[kind][k] = differ(file(kind, k, -1), file(kind, IN_ORDER, -1));
            EXPECT_GE(moved[kind][k], 0);
        }
        for (int i = 0; i < LAYOUTS; i++) {
            const layout *l = &layouts[i];
            ASSERT_EQ(0, run(l->data * l->pipe * l->tensor + l->servers, kind, i));
            double d = differ(file(kind, 0, i), file(kind, l->order == HALVES ? IN_ORDER : l->order, -1));
            if (l->order == HALVES) { /* as much as another order of sums, on one rank */
                double limit = moved[kind][HALVES] + (l->data > 1 ? moved[kind][IN_PAIRS] : 0);
                EXPECT_TRUE(d >= 0 && d <= 4 * limit);
                if (!(d >= 0 && d <= 4 * limit)) printf("    %s, %s: %g, on one rank %g\n", model_name[kind], l->name, d, limit);
                snprintf(cell[i][kind], sizeof cell[i][kind], "%.1e", d);
            } else {
                EXPECT_EQ(0.0, d);
                if (d != 0) printf("    %s, %s: %g\n", model_name[kind], l->name, d);
                snprintf(cell[i][kind], sizeof cell[i][kind], "bits of one rank, %s", order_name[l->order]);
            }
        }
    }
    table();
    temp_remove(files);
}

/* ==================================================================================================== >>checkpoints
   Whole models, sharded ones (.shard of dt_ddp_new) and those on a grid read each other's: loaded and saved again, parameters and the
   optimiser's states have the same bits. Parameters of 1 and 5 elements are in parts that are not equal, or empty. */
static const struct { int ranks, shard, pipe, tensor; } places[] = { { 1, 0, 1, 1 }, { 1, 1, 1, 1 }, { 1, 2, 1, 1 }, { 1, 3, 1, 1 }, { 2, 0, 1, 1 },
    { 2, 1, 1, 1 }, { 2, 2, 1, 1 }, { 2, 3, 1, 1 }, { 3, 0, 1, 1 }, { 3, 1, 1, 1 }, { 3, 2, 1, 1 }, { 3, 3, 1, 1 }, { 4, 0, 1, 1 }, { 4, 1, 1, 1 },
    { 4, 2, 1, 1 }, { 4, 3, 1, 1 }, { 2, 0, 2, 1 }, { 2, 0, 1, 2 }, { 4, 0, 2, 2 } };
enum { PLACES = sizeof places / sizeof *places };
static dt_tensor *uneven(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* user: as net's */
{
    x = dt_linear(m, "in", x, .out = 5);
    for (int i = 0; i < 2; i++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "fc%d", i);
        snprintf(name[1], sizeof name[1], "proj%d", i);
        dt_tensor *h = dt_tanh(dt_linear(m, name[0], x, .out = 6, .split = DT_SPLIT_OUT));
        x = dt_add(x, dt_dropout(m, dt_linear(m, name[1], h, .out = 5, .split = DT_SPLIT_IN), 0.1));
        if (!i && *(int *)user == 2) x = dt_stage(m, "second", x);
    }
    x = dt_mul(x, dt_parameter(m, "one", DT_SHAPE(1), .init = DT_INIT_CONST, .a = 0.7));
    return dt_mse_loss(dt_linear(m, "out", dt_layernorm(m, "ln", dt_linear(m, "b", x, .out = 37)), .out = 1), y);
}
typedef struct trainee {
    dt_grid      *g;
    dt_model     *m;
    dt_amp       *amp;
    dt_optimizer *opt;
    dt_scheduler *sched;
    dt_ddp       *ddp;
    dt_pipeline  *p;
    int           stages;
    dt_pipeline_fn net;
} trainee;
static trainee trainee_of(dt_comm *c, int i, bool o2, int seed)
{
    trainee t;
    bool    grid = places[i].pipe * places[i].tensor > 1;
    memset(&t, 0, sizeof t);
    t.stages = places[i].pipe;
    t.net = uneven;
    t.g = grid ? dt_grid_new(c, .pipe = places[i].pipe, .tensor = places[i].tensor) : NULL;
    t.m = dt_model_new(.seed = (uint64_t)seed);
    t.amp = o2 ? dt_amp_new(t.m, .level = "O2", .init_scale = 1024) : NULL;
    t.opt = dt_adamw(t.m, .lr = 0.01);
    dt_optimizer_add_group(t.opt, "*bias", .lr = 0.02);
    t.sched = dt_step_lr(t.opt, .step_size = 2);
    t.ddp = grid ? NULL : dt_ddp_new(t.m, c, .shard = places[i].shard, .first_bucket_mb = 0.0003, .bucket_mb = 0.0006);
    t.p = grid ? dt_hybrid_new(t.m, t.g, .micro = 2, .amp = t.amp) : NULL;
    return t;
}
static void trainee_step(trainee *t, bool learns) /* else it only makes its parameters */
{
    dt_tensor *x = learns ? dt_normal(0, 1, DT_SHAPE(8, 12)) : dt_ones(DT_SHAPE(8, 12)); /* no number is drawn */
    dt_tensor *y = dt_sum(x, .dims = DT_DIM(1), .keepdim = true);
    double     loss;
    if (!learns) dt_model_eval(t->m);
    if (t->p && learns) dt_pipeline_backward(t->p, t->net, &t->stages, x, y, &loss);
    else if (t->p) dt_pipeline_forward(t->p, t->net, &t->stages, x, y, &loss);
    else if (!learns) t->net(t->m, x, y, &t->stages), dt_model_seal(t->m);
    else if (t->amp) dt_amp_backward(t->amp, t->net(t->m, x, y, &t->stages));
    else dt_backward(t->net(t->m, x, y, &t->stages));
    dt_model_train(t->m);
    if (learns) dt_step(t->opt), dt_scheduler_step(t->sched);
    else dt_end();
}
static void trainee_free(trainee *t)
{
    dt_pipeline_free(t->p);
    dt_ddp_free(t->ddp);
    dt_scheduler_free(t->sched);
    dt_optimizer_free(t->opt);
    dt_amp_free(t->amp);
    dt_model_free(t->m);
    dt_grid_free(t->g);
}
static dt_checkpoint *kept(const trainee *t, char *dir, size_t n, const char *what, int i, bool o2)
{
    snprintf(dir, n, "%s/%s-%d-%d", files, what, i, o2);
    return dt_checkpoint_new(dir, .model = t->m, .scheduler = t->sched, .keep = 1);
}
static bool left_out(int from, int to) { return dt_test_quick() && (from + 2 * to) % 5; } /* each writes for, and reads, three or four */
static void each_saves(team *t, dt_comm *c, int rank) /* all layouts of so many ranks; arg: mixed precision, too */
{
    char dir[500];
    for (int i = 0; i < PLACES; i++)
        for (int o2 = 0; o2 <= t->arg && places[i].ranks == t->n; o2++) {
            trainee        a = trainee_of(c, i, o2, 3);
            dt_checkpoint *save = kept(&a, dir, sizeof dir, "from", i, o2);
            dt_manual_seed(7);
            for (int s = 0; s < 3; s++) trainee_step(&a, true);
            CHECK(!dt_checkpoint_save(save, 1, 3));
            if (dt_error()) printf("    layout %d, rank %d: %s\n", i, rank, dt_error());
            CHECK(!dt_error());
            dt_checkpoint_free(save);
            trainee_free(&a);
        }
    CHECK(!dt_comm_free(c));
}
static void each_loads(team *t, dt_comm *c, int rank)
{
    char from[500], to[500], what[1200];
    for (int i = 0; i < PLACES; i++)
        for (int k = 0; k < PLACES; k++)
            for (int o2 = 0; o2 <= t->arg && places[k].ranks == t->n && !left_out(i, k); o2++) {
                trainee        a = trainee_of(c, k, o2, 9);
                dt_checkpoint *load = kept(&a, from, sizeof from, "from", i, o2), *save = kept(&a, to, sizeof to, "to", k, o2);
                int64_t        epoch = 0, at = 0;
                bool           before = (i + k) % 2; /* into a model that has trained */
                if (before) trainee_step(&a, true);
                CHECK(dt_checkpoint_resume(load, &epoch, &at) == 1 && epoch == 1 && at == 3);
                if (!before) trainee_step(&a, false);
                CHECK(!dt_checkpoint_save(save, epoch, at));
                if (dt_error()) printf("    layout %d reads %d, rank %d: %s\n", k, i, rank, dt_error());
                CHECK(!dt_error());
                bool same = rank || same_files(from, to, what, sizeof what);
                if (!same) printf("    %s\n", what);
                CHECK(same);
                dt_checkpoint_free(load);
                dt_checkpoint_free(save);
                trainee_free(&a);
                if (dt_error()) return;
            }
    CHECK(!dt_comm_free(c));
}
static int on_ranks(int ranks, void (*fn)(team *t, dt_comm *c, int rank), int arg)
{
    team t = team_of("shm", ranks, 60, fn);
    t.arg = arg;
    int failed = team_run(&t);
    return failed + (t.done != ranks);
}
UTEST(checkpoints, every_layout_reads_those_of_every_other)
{
    int o2 = !dt_test_quick(), pairs = 0;
    files = temp_dir();
    for (int i = 0; i < PLACES * PLACES; i++) pairs += !left_out(i / PLACES, i % PLACES);
    for (int n = 1; n <= 4; n++) EXPECT_EQ(0, on_ranks(n, each_saves, o2));
    for (int n = 1; n <= 4; n++) EXPECT_EQ(0, on_ranks(n, each_loads, o2));
    printf("    %d of %d pairs of layouts, %s\n", pairs, PLACES * PLACES,
           o2 ? "f32 and O2" : "f32; left out: pairs whose numbers have (from + 2 to) % 5 != 0, and O2");
    temp_remove(files);
}

enum { LARGE = 1440 };
static dt_tensor *large(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    x = dt_linear(m, "in", x, .out = LARGE);
    for (int i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d", i);
        x = dt_linear(m, name, x, .out = LARGE, .split = i % 2 ? DT_SPLIT_IN : DT_SPLIT_OUT);
        if (i == 3 && *(int *)user == 2) x = dt_stage(m, "second", x);
    }
    return dt_mse_loss(dt_linear(m, "out", x, .out = 1), y);
}
static void stream(team *t, dt_comm *c, int rank) /* arg: the layout; arg2: 0: saves, 1: loads, with a peak of its states and 64 MiB */
{
    trainee        a = trainee_of(c, t->arg, false, 3 + t->arg2);
    dt_checkpoint *k = dt_checkpoint_new(files, .model = a.m, .scheduler = a.sched, .keep = 1);
    int64_t        own = 0, epoch = 0, at = 0;
    a.net = large;
    trainee_step(&a, !t->arg2);
    for (int i = 0; i < dt_model_count(a.m); i++) {
        dt_parameter_info p;
        dt_model_get(a.m, i, &p);
        if (strcmp(dt_device_name(dt_device_of(p.value)), "elsewhere")) own += dt_numel(p.value) * 4;
    }
    dt_empty_cache();
    bool    known = peak_begin();
    int64_t before = status_kib("VmRSS:"), states = t->arg2 ? 2 * own >> 10 : 0;
    if (t->arg2) CHECK(dt_checkpoint_resume(k, &epoch, &at) == 1);
    else CHECK(!dt_checkpoint_save(k, 0, 1));
    int64_t more = status_kib("VmHWM:") - before;
    bool    little = !t->arg2 || !known || more < states + 65536; /* saving: rank 0 gathers what others have */
    if (!little || getenv("SHOW_MEMORY"))
        printf("    layout %d, rank %d: %s: %lld KiB more, of which %lld are states\n", t->arg, rank, t->arg2 ? "load" : "save",
               (long long)more, (long long)states);
    CHECK(little && own > 30 << 20 && own < 40 << 20);
    CHECK(!dt_error());
    dt_checkpoint_free(k);
    trainee_free(&a);
    CHECK(!dt_comm_free(c));
}
UTEST(checkpoints, of_large_models_are_loaded_on_a_grid_with_64_mib_at_most)
{
    if (dt_test_quick()) UTEST_SKIP("it needs models of 64 MiB with states of 128 MiB, and takes seconds");
    for (int i = 0; i < PLACES; i++) {
        if (places[i].pipe * places[i].tensor != 2) continue;
        files = temp_dir();
        for (int k = 0; k < 2; k++) {
            team t = team_of("shm", 2, 60, stream);
            t.arg = i;
            t.arg2 = k;
            EXPECT_EQ(0, team_run(&t));
            EXPECT_EQ(2, t.done);
        }
        temp_remove(files);
    }
}
