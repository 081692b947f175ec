/* Compares single ops with PyTorch, forward and backward, one and two threads: make bench-ops

       bench_ops [--threads 1,2] [--rounds N] [--ms N] [--only TEXT,TEXT] [--work fwd,both] [--worst N] [--python PATH]
                 [--log FILE] [--seconds N]

   --only: cases whose names contain one of the texts. --seconds: no case begins after this time. --log: each result is appended to this
   file, and what is there is not measured again: several calls with --seconds make one table, and the summary is of all of it.

   Each case is an op and its numbers. Two processes compute it on the same inputs: this program and bench/peer_ops.py, which has
   a function with the name of the op. First their results (outputs, and gradients for the same gradient of the output) are
   compared. Then they take turns; a side's time is the median of its turns, the ratio the median of the ratios of the rounds. "fwd"
   is the forward without gradients, "both" the forward and the backward to all inputs.

   A new op: a function make_NAME here, its line in the list of ops, a function in the peer, and lines in the list of cases. */
#define DT_IMPLEMENTATION
#include "dt_layers.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "bench.h"

/* ---- the numbers of a case: the same as numbers() and integers() of the peer */
static float noise(uint64_t seed, int64_t i)
{
    uint64_t z = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(z >> 40) / (float)(1 << 23) - 1.0f;
}
static dt_tensor *numbers(uint64_t seed, dt_shape s)
{
    dt_tensor *t = dt_empty(s);
    float     *p = (float *)dt_data_ptr(t);
    for (int64_t i = 0; i < dt_numel(t); i++) p[i] = noise(seed, i);
    return dt_keep(t);
}
static dt_tensor *integers(uint64_t seed, int64_t high, dt_shape s)
{
    dt_tensor *t = dt_empty(s, .dtype = DT_I64);
    int64_t   *p = (int64_t *)dt_data_ptr(t);
    for (int64_t i = 0; i < dt_numel(t); i++) {
        p[i] = (int64_t)((noise(seed, i) + 1) * 0.5f * (float)high);
        if (p[i] >= high) p[i] = high - 1;
    }
    return dt_keep(t);
}

/* ---- the ops */
enum { MAX_INPUTS = 8, MAX_WITH = 4, MAX_NUMBERS = 10 };
typedef struct op_case op_case;
struct op_case {
    const char *name, *op;
    int64_t     v[MAX_NUMBERS]; /* its numbers */
    int         nv, loose; /* loose: random by another generator, so that only the means are compared */
    dt_tensor  *in[MAX_INPUTS]; /* with gradients */
    int         nin;
    dt_tensor  *with[MAX_WITH]; /* without */
    dt_model   *model;
    dt_kv_cache *cache;
    dt_tensor *(*call)(op_case *);
};
static dt_shape shape_from(const int64_t *v, int n)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = n;
    for (int i = 0; i < n; i++) s.dim[i] = v[i];
    return s;
}
static void leaf(op_case *c, dt_shape s)
{
    c->in[c->nin] = dt_set_requires_grad(numbers((uint64_t)c->nin + 1, s));
    c->nin++;
}
#define V c->v
#define OP(name, made, computed)                                            \
    static dt_tensor *call_##name(op_case *c) { return computed; }          \
    static void       make_##name(op_case *c)                               \
    {                                                                       \
        made;                                                               \
        c->call = call_##name;                                              \
    }
#define I(k) c->in[k]
#define ALL(from) shape_from(V + (from), c->nv - (from))
OP(conv, (leaf(c, DT_SHAPE(V[0], V[1], V[2], V[3])), leaf(c, DT_SHAPE(V[4], V[1] / V[8], V[5], V[5])), leaf(c, DT_SHAPE(V[4]))),
   dt_op_conv2d(I(0), I(1), I(2), .stride = (int)V[6], .pad = (int)V[7], .groups = (int)V[8]))
OP(linear, (leaf(c, DT_SHAPE(V[0], V[1])), leaf(c, DT_SHAPE(V[2], V[1])), leaf(c, DT_SHAPE(V[2]))),
   dt_op_linear(I(0), I(1), I(2)))
OP(matmul, (leaf(c, V[0] ? DT_SHAPE(V[0], V[1], V[2]) : DT_SHAPE(V[1], V[2])),
            leaf(c, V[0] ? DT_SHAPE(V[0], V[2], V[3]) : DT_SHAPE(V[2], V[3]))),
   dt_matmul(I(0), I(1)))
OP(gemv, (leaf(c, DT_SHAPE(V[0], V[1])), leaf(c, DT_SHAPE(V[1]))), dt_matmul(I(0), I(1)))
OP(gevm, (leaf(c, DT_SHAPE(V[0])), leaf(c, DT_SHAPE(V[0], V[1]))), dt_matmul(I(0), I(1)))
OP(dot, (leaf(c, DT_SHAPE(V[0])), leaf(c, DT_SHAPE(V[0]))), dt_matmul(I(0), I(1)))
OP(relu, leaf(c, ALL(0)), dt_relu(I(0)))
OP(gelu, leaf(c, ALL(0)), dt_gelu(I(0)))
OP(exp, leaf(c, ALL(0)), dt_exp(I(0)))
OP(tanh, leaf(c, ALL(0)), dt_tanh(I(0)))
OP(softmax, leaf(c, ALL(1)), dt_softmax(I(0), (int)V[0]))
OP(log_softmax, leaf(c, ALL(1)), dt_log_softmax(I(0), (int)V[0]))
#define DIMS (V[0] == 9 ? 0 : DT_DIM((int)V[0])) /* 9: all */
OP(sum, leaf(c, ALL(1)), dt_sum(I(0), .dims = DIMS))
OP(mean, leaf(c, ALL(1)), dt_mean(I(0), .dims = DIMS))
OP(var, leaf(c, ALL(1)), dt_var(I(0), .dims = DIMS))
OP(amax, leaf(c, ALL(1)), dt_amax(I(0), .dims = DIMS))
OP(argmax, c->with[0] = numbers(1, ALL(1)), dt_argmax(c->with[0], .dims = DIMS))
OP(layernorm, (leaf(c, ALL(0)), leaf(c, ALL(1)), leaf(c, ALL(1))), dt_op_layer_norm(I(0), I(1), I(2)))
OP(rmsnorm, (leaf(c, ALL(0)), leaf(c, ALL(1))), dt_op_rms_norm(I(0), I(1)))
OP(batchnorm,
   (leaf(c, ALL(1)), leaf(c, DT_SHAPE(V[2])), leaf(c, DT_SHAPE(V[2])), c->with[0] = dt_keep(dt_zeros(DT_SHAPE(V[2]))),
    c->with[1] = dt_keep(dt_ones(DT_SHAPE(V[2])))),
   dt_op_batch_norm(I(0), I(1), I(2), c->with[0], c->with[1], .eval = !V[0]))
OP(maxpool, leaf(c, ALL(2)), dt_maxpool2d(I(0), .kernel = (int)V[0], .stride = (int)V[1]))
OP(avgpool, leaf(c, ALL(2)), dt_avgpool2d(I(0), .kernel = (int)V[0], .stride = (int)V[1]))
OP(adaptive, leaf(c, ALL(1)), dt_adaptive_avgpool2d(I(0), V[0], V[0]))
OP(embedding, (leaf(c, DT_SHAPE(V[0], V[1])), c->with[0] = integers(2, V[0], DT_SHAPE(V[2]))),
   dt_op_embedding(c->with[0], I(0)))
OP(gather, (leaf(c, DT_SHAPE(V[1], V[2])),
            c->with[0] = integers(2, V[0] ? V[2] : V[1], V[0] ? DT_SHAPE(V[1], V[3]) : DT_SHAPE(V[3], V[2]))),
   dt_gather(I(0), (int)V[0], c->with[0]))
static void leaves(op_case *c)
{
    for (int i = 0; i < V[1]; i++) leaf(c, ALL(2));
}
OP(cat, leaves(c), dt_cat(c->in, c->nin, (int)V[0]))
static dt_shape order_of(const op_case *c)
{
    dt_shape s = shape_from(V + 1, c->nv - 1);
    int64_t  d = V[0];
    for (int i = s.ndim - 1; i >= 0; i--, d /= 10) s.dim[i] = d % 10 - 1;
    return s;
}
OP(permute, leaf(c, ALL(1)), dt_contiguous(dt_permute(I(0), order_of(c))))
static const dt_dtype dtypes[] = { DT_F32, DT_F16, DT_BF16, DT_I32, DT_I64, DT_U8 };
static void make_cast_input(op_case *c)
{
    dt_tensor *x = numbers(1, DT_SHAPE(V[2]));
    c->with[0] = dt_keep(dt_cast(dt_abs(dt_mul_scalar(x, 100)), dtypes[V[0]]));
    dt_free(x);
}
OP(cast, make_cast_input(c), dt_cast(c->with[0], dtypes[V[1]]))
static void make_operands(op_case *c)
{
    leaf(c, ALL(1));
    leaf(c, V[0] == 0 ? ALL(1) : V[0] == 1 ? DT_SHAPE(V[2]) : DT_SHAPE(V[1], 1));
}
OP(add, make_operands(c), dt_add(I(0), I(1)))
OP(mul, make_operands(c), dt_mul(I(0), I(1)))
OP(addi, (c->with[0] = integers(1, 1000, ALL(0)), c->with[1] = integers(2, 1000, ALL(0))), dt_add(c->with[0], c->with[1]))
static void make_mask(op_case *c)
{
    dt_tensor *x = numbers(3, ALL(0));
    c->with[0] = dt_keep(dt_gt(x, dt_zeros(DT_SHAPE(1))));
    dt_free(x);
}
OP(where, (leaf(c, ALL(0)), leaf(c, ALL(0)), make_mask(c)), dt_where(c->with[0], I(0), I(1)))
OP(normal, (void)0, dt_normal(0, 1, DT_SHAPE(V[0])))
OP(uniform, (void)0, dt_uniform(0, 1, DT_SHAPE(V[0])))
OP(crossentropy, (leaf(c, ALL(0)), c->with[0] = integers(2, V[1], DT_SHAPE(V[0]))), dt_cross_entropy(I(0), c->with[0]))
OP(mse, (leaf(c, ALL(0)), c->with[0] = numbers(2, ALL(0))), dt_mse_loss(I(0), c->with[0]))
OP(attention, (leaf(c, ALL(1)), leaf(c, ALL(1)), leaf(c, ALL(1))), dt_attention(I(0), I(1), I(2), .causal = V[0] != 0))
static dt_tensor *attention_mask(int64_t added, int64_t t) /* (t, t): about a third of the keys is hidden, or numbers are added */
{
    dt_tensor *x = numbers(4, DT_SHAPE(t, t));
    if (added) return x;
    dt_tensor *m = dt_keep(dt_gt(x, dt_full(-0.3, DT_SHAPE(1))));
    dt_free(x);
    return m;
}
OP(maskattention,
   (leaf(c, ALL(1)), leaf(c, ALL(1)), leaf(c, ALL(1)), c->with[0] = attention_mask(V[0], V[3])),
   dt_attention(I(0), I(1), I(2), .mask = c->with[0]))
/* one token behind V[2] others: its key and value go into the cache, and it attends to all of them */
static void make_filled_cache(op_case *c)
{
    c->cache = dt_kv_cache_new(V[0], V[1], V[2] + 1, V[3]);
    for (int i = 0; i < 3; i++) c->with[i] = numbers((uint64_t)i + 1, DT_SHAPE(V[0], V[1], 1, V[3]));
    dt_tensor *past = numbers(4, DT_SHAPE(V[0], V[1], V[2], V[3])), *q = numbers(5, DT_SHAPE(V[0], V[1], V[2], V[3]));
    dt_no_grad_begin();
    dt_attention_cached(q, past, past, c->cache);
    dt_no_grad_end();
    dt_free(past);
    dt_free(q);
}
static dt_tensor *next_token(op_case *c)
{
    dt_no_grad_begin();
    dt_kv_cache_truncate(c->cache, V[2]);
    dt_tensor *y = dt_attention_cached(c->with[0], c->with[1], c->with[2], c->cache);
    dt_no_grad_end();
    return y;
}
OP(cached, make_filled_cache(c), next_token(c))
static void make_recurrent(op_case *c, int64_t gates) /* time steps, sequences, inputs, units */
{
    leaf(c, DT_SHAPE(V[0], V[1], V[2]));
    leaf(c, DT_SHAPE(gates * V[3], V[2]));
    leaf(c, DT_SHAPE(gates * V[3], V[3]));
    for (int i = 0; i < 2; i++) leaf(c, DT_SHAPE(gates * V[3]));
    dt_no_grad_begin();
    for (int i = 1; i < 3; i++) dt_copy(I(i), dt_mul_scalar(I(i), 0.0625));
    dt_no_grad_end();
}
OP(lstm, make_recurrent(c, 4), dt_op_recurrent(DT_CELL_LSTM, I(0), &I(1)))
OP(gru, make_recurrent(c, 3), dt_op_recurrent(DT_CELL_GRU, I(0), &I(1)))
OP(dropout, (leaf(c, ALL(0)), c->loose = 1), dt_op_dropout(I(0), 0.1))
static void make_groupnorm_layer(op_case *c)
{
    leaf(c, ALL(1));
    c->model = dt_model_new();
    dt_groupnorm(c->model, "g", I(0), .groups = (int)V[0]);
    I(1) = dt_model_find(c->model, "g.weight");
    I(2) = dt_model_find(c->model, "g.bias");
    for (int i = 1; i < 3; i++) dt_copy(I(i), numbers((uint64_t)i + 1, DT_SHAPE(V[2])));
    c->nin = 3;
}
OP(groupnorm, make_groupnorm_layer(c), dt_groupnorm(c->model, "g", I(0), .groups = (int)V[0]))

static const struct {
    const char *name;
    void (*make)(op_case *);
} ops[] = {
#define O(name) { #name, make_##name }
    O(conv), O(linear), O(matmul), O(gemv), O(gevm), O(dot), O(relu), O(gelu), O(exp), O(tanh), O(softmax), O(log_softmax),
    O(sum), O(mean), O(var), O(amax), O(argmax), O(layernorm), O(rmsnorm), O(groupnorm), O(batchnorm), O(maxpool),
    O(avgpool), O(adaptive), O(embedding), O(gather), O(cat), O(permute), O(cast), O(add), O(mul), O(addi), O(where),
    O(normal), O(uniform), O(crossentropy), O(mse), O(attention), O(maskattention), O(cached),
    O(lstm), O(gru), O(dropout),
};

/* ---- the cases: a name, the op and its numbers (see the functions above) */
static const char *const cases[][2] = {
    { "conv3x3-64", "conv 8 64 56 56 64 3 1 1 1" },
    { "conv3x3-256", "conv 8 256 14 14 256 3 1 1 1" },
    { "conv3x3-stride2", "conv 8 64 56 56 128 3 2 1 1" },
    { "conv7x7-stem", "conv 4 3 224 224 64 7 2 3 1" },
    { "conv5x5", "conv 16 32 28 28 64 5 1 2 1" },
    { "conv11x11-stride4", "conv 4 3 224 224 64 11 4 2 1" },
    { "conv1x1", "conv 8 256 28 28 64 1 1 0 1" },
    { "conv1x1-wide", "conv 8 64 28 28 256 1 1 0 1" },
    { "conv1x1-stride2", "conv 8 256 28 28 512 1 2 0 1" },
    { "conv1x1-tiny", "conv 32 512 1 1 128 1 1 0 1" },
    { "conv1x1-7x7", "conv 8 512 7 7 512 1 1 0 1" },
    { "conv-groups", "conv 8 128 28 28 128 3 1 1 32" },
    { "conv-patch16", "conv 4 3 224 224 192 16 16 0 1" },
    { "depthwise3x3", "conv 8 144 56 56 144 3 1 1 144" },
    { "depthwise3x3-stride2", "conv 8 144 56 56 144 3 2 1 144" },
    { "depthwise5x5", "conv 8 240 28 28 240 5 1 2 240" },
    { "depthwise7x7", "conv 8 96 56 56 96 7 1 3 96" },
    { "linear-64x256x256", "linear 64 256 256" },
    { "linear-1x1024x1024", "linear 1 1024 1024" },
    { "linear-512x768x3072", "linear 512 768 3072" },
    { "matmul-16", "matmul 0 16 16 16" },
    { "matmul-64", "matmul 0 64 64 64" },
    { "matmul-256", "matmul 0 256 256 256" },
    { "matmul-batch", "matmul 32 64 64 64" },
    { "matmul-thin", "matmul 0 4096 16 16" },
    { "gemv-1024", "gemv 1024 1024" },
    { "gemv-4096x512", "gemv 4096 512" },
    { "gevm-1024", "gevm 1024 1024" },
    { "gevm-512x4096", "gevm 512 4096" },
    { "dot-1e4", "dot 10000" },
    { "dot-1e6", "dot 1000000" },
    { "relu-1e6", "relu 1000 1000" },
    { "gelu-1e6", "gelu 1000 1000" },
    { "exp-1e5", "exp 100 1000" },
    { "tanh-1e5", "tanh 100 1000" },
    { "softmax-last", "softmax 1 1024 1000" },
    { "softmax-short", "softmax 1 10000 10" },
    { "softmax-first", "softmax 0 256 1000" },
    { "softmax-middle", "softmax 1 16 64 784" },
    { "log_softmax-last", "log_softmax 1 256 10000" },
    { "log_softmax-first", "log_softmax 0 64 4096" },
    { "sum-all", "sum 9 1000 1000" },
    { "sum-last", "sum 1 1000 1000" },
    { "sum-last-short", "sum 1 100000 8" },
    { "sum-first", "sum 0 1000 1000" },
    { "sum-first-few", "sum 0 8 100000" },
    { "sum-middle", "sum 1 16 64 784" },
    { "mean-last", "mean 1 4096 256" },
    { "var-last", "var 1 1000 1000" },
    { "var-first", "var 0 1000 1000" },
    { "amax-all", "amax 9 1000 1000" },
    { "amax-last", "amax 1 1000 1000" },
    { "amax-first", "amax 0 1000 1000" },
    { "amax-first-few", "amax 0 4 100000" },
    { "argmax-last", "argmax 1 1000 1000" },
    { "argmax-first", "argmax 0 100 1000" },
    { "layernorm-768", "layernorm 1024 768" },
    { "layernorm-64", "layernorm 8192 64" },
    { "rmsnorm-1024", "rmsnorm 1024 1024" },
    { "groupnorm-32", "groupnorm 32 8 128 28 28" },
    { "groupnorm-8", "groupnorm 8 4 64 56 56" },
    { "batchnorm-train", "batchnorm 1 16 64 28 28" },
    { "batchnorm-eval", "batchnorm 0 16 64 28 28" },
    { "batchnorm-eval-7x7", "batchnorm 0 16 512 7 7" },
    { "maxpool2", "maxpool 2 2 16 64 56 56" },
    { "maxpool3-stride2", "maxpool 3 2 8 64 112 112" },
    { "avgpool2", "avgpool 2 2 16 64 56 56" },
    { "adaptive1", "adaptive 1 16 512 7 7" },
    { "adaptive1-56", "adaptive 1 8 64 56 56" },
    { "adaptive7", "adaptive 7 8 256 14 14" },
    { "embedding-128", "embedding 10000 128 4096" },
    { "embedding-768", "embedding 5000 768 512" },
    { "gather-1", "gather 1 1024 1000 1" },
    { "gather-many", "gather 1 256 1000 500" },
    { "gather-first", "gather 0 1000 256 500" },
    { "cat-last", "cat 1 4 1000 64" },
    { "cat-first", "cat 0 4 64 4096" },
    { "cat-channels", "cat 1 2 8 64 28 28" },
    { "permute-transpose", "permute 21 1000 1000" },
    { "permute-heads", "permute 1324 8 128 12 64" },
    { "permute-nhwc", "permute 1342 8 64 56 56" },
    { "permute-batch", "permute 132 64 128 128" },
    { "cast-f32-bf16", "cast 0 2 1000000" },
    { "cast-bf16-f32", "cast 2 0 1000000" },
    { "cast-f32-f16", "cast 0 1 1000000" },
    { "cast-u8-f32", "cast 5 0 1000000" },
    { "cast-f32-u8", "cast 0 5 1000000" },
    { "cast-i32-i64", "cast 3 4 1000000" },
    { "cast-i64-f32", "cast 4 0 1000000" },
    { "add-equal", "add 0 1000 1000" },
    { "add-row", "add 1 1000 1000" },
    { "add-small", "add 0 16 64" },
    { "mul-column", "mul 2 1000 1000" },
    { "mul-row", "mul 1 1000 1000" },
    { "add-i64", "addi 1000000" },
    { "where", "where 1000 1000" },
    { "normal-1e6", "normal 1000000" },
    { "uniform-1e6", "uniform 1000000" },
    { "crossentropy-1000", "crossentropy 512 1000" },
    { "crossentropy-50k", "crossentropy 64 50257" },
    { "mse", "mse 1000 1000" },
    { "attention-causal", "attention 1 4 8 128 64" },
    { "attention-full", "attention 0 2 8 256 64" },
    { "attention-mask", "maskattention 0 4 8 128 64" },
    { "attention-bias", "maskattention 1 2 8 256 64" },
    { "generate-128", "cached 1 12 128 64" },
    { "generate-1000", "cached 1 12 1000 64" },
    { "generate-batch", "cached 8 12 256 64" },
    { "lstm-step-1x256", "lstm 1 1 256 256" },
    { "lstm-step-32x256", "lstm 1 32 256 256" },
    { "lstm-16x32x128", "lstm 16 32 128 128" },
    { "gru-step-32x256", "gru 1 32 256 256" },
    { "dropout-1e6", "dropout 1000000" },
};

static int case_begin(op_case *c, const char *name, const char *line)
{
    static char words[128];
    memset(c, 0, sizeof *c);
    snprintf(words, sizeof words, "%s", line);
    c->name = name;
    c->op = strtok(words, " ");
    for (char *w; (w = strtok(NULL, " ")) != NULL && c->nv < MAX_NUMBERS;) c->v[c->nv++] = atoll(w);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (!strcmp(ops[i].name, c->op)) ops[i].make(c);
    dt_end();
    return c->call ? 0 : -1;
}
static void case_end(op_case *c)
{
    int own = c->model ? 1 : c->nin;
    for (int i = 0; i < own; i++) dt_free(c->in[i]);
    for (int i = 0; i < MAX_WITH; i++) dt_free(c->with[i]);
    dt_kv_cache_free(c->cache);
    dt_model_free(c->model);
    dt_end();
}
static dt_tensor *both(op_case *c, dt_tensor *g)
{
    dt_tensor *y = c->call(c);
    dt_backward(y, .grad = g);
    return y;
}
static void clear(op_case *c)
{
    for (int i = 0; i < c->nin; i++) dt_zero_grad(c->in[i]);
    dt_end();
}
static double time_of(op_case *c, dt_tensor *g, int with_backward, double seconds) /* a call */
{
    int    n = 0;
    double t = now(), e;
    if (!with_backward) dt_no_grad_begin();
    do {
        if (with_backward) {
            both(c, g);
            clear(c);
        } else {
            c->call(c);
            dt_end();
        }
        n++;
        e = now() - t;
    } while (e < seconds);
    if (!with_backward) dt_no_grad_end();
    return e / n;
}

/* ---- the peer */
typedef struct peer {
    pid_t pid;
    FILE *in, *out;
    char  file[64];
} peer;
static int ask(peer *p, double *answer, const char *format, ...)
{
    char    line[128], word[16];
    va_list a;
    va_start(a, format);
    vfprintf(p->in, format, a);
    va_end(a);
    fputc('\n', p->in);
    fflush(p->in);
    *answer = 0;
    return fgets(line, sizeof line, p->out) && sscanf(line, "%15s %lf", word, answer) >= 1 ? 0 : -1;
}
static int peer_start(peer *p, const char *python)
{
    int to[2], from[2];
    if (pipe(to) || pipe(from)) return -1;
    snprintf(p->file, sizeof p->file, "/tmp/bench_ops.%d", (int)getpid());
    p->pid = fork();
    if (p->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        for (int i = 3; i < 64; i++) close(i);
        execlp(python, python, "bench/peer_ops.py", (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->in = fdopen(to[1], "w");
    p->out = fdopen(from[0], "r");
    return p->in && p->out ? 0 : -1;
}
/* Compares tensor k of the results with the peer's: |a - b| <= tolerance * (|b| + the root mean square of b). */
static int differs(peer *p, const op_case *c, dt_tensor *t, int k)
{
    double    answer, squares = 0, sum[2] = { 0, 0 };
    int64_t   n = dt_numel(t), bad = 0;
    dt_tensor *f = dt_contiguous(dt_cast(t, DT_F32));
    const float *a = (const float *)dt_data_ptr(f);
    float    *b = (float *)malloc((size_t)n * 4 + 4);
    if (!a || !b || ask(p, &answer, "show %d %s", k, p->file)) return 1;
    FILE *in = fopen(p->file, "rb");
    if (!in || fread(b, 4, (size_t)n, in) != (size_t)n || fgetc(in) != EOF) {
        fprintf(stderr, "bench_ops: %s: result %d has not %lld elements\n", c->name, k, (long long)n);
        return 1;
    }
    fclose(in);
    for (int64_t i = 0; i < n; i++) squares += (double)b[i] * (double)b[i], sum[0] += (double)a[i], sum[1] += (double)b[i];
    double rms = sqrt(squares / (double)(n ? n : 1)), worst = 0;
    for (int64_t i = 0; i < n && !c->loose; i++) {
        double d = fabs((double)a[i] - (double)b[i]) / (fabs((double)b[i]) + rms + 1e-6);
        if (!(d <= 2e-4)) bad++;
        if (d > worst) worst = d;
    }
    if (c->loose && !(fabs(sum[0] - sum[1]) <= 0.01 * (double)n)) bad = 1;
    if (bad)
        fprintf(stderr, "bench_ops: %s: result %d: %lld of %lld elements differ, the worst by %.3g\n", c->name, k, (long long)bad,
                (long long)n, worst);
    free(b);
    return bad != 0;
}

/* ---- the driver */
enum { MAX_ROUNDS = 64, MAX_ROWS = 1024 };
typedef struct row {
    char   name[48];
    double ratio;
} row;
static row rows[MAX_ROWS];
static int nrows;
static const char *log_path; /* --log, or NULL */
static int row_known(const char *name)
{
    for (int i = 0; i < nrows; i++)
        if (!strcmp(rows[i].name, name)) return 1;
    return 0;
}
static void log_read(void) /* lines: a name, dt's and PyTorch's microseconds, the ratio */
{
    char  line[256];
    FILE *f = log_path ? fopen(log_path, "r") : NULL;
    while (f && nrows < MAX_ROWS && fgets(line, sizeof line, f)) {
        double us[2];
        if (sscanf(line, "%47s %lf %lf %lf", rows[nrows].name, &us[0], &us[1], &rows[nrows].ratio) == 4) nrows++;
    }
    if (f) fclose(f);
}
static void log_row(const row *r, double ours, double theirs)
{
    FILE *f = log_path ? fopen(log_path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s %.2f %.2f %.3f\n", r->name, ours, theirs, r->ratio);
    fclose(f);
}
static int case_wanted(const char *name, const char *only) /* only: texts, separated by commas */
{
    char list[256], *state = NULL;
    if (!only) return 1;
    snprintf(list, sizeof list, "%s", only);
    for (char *w = strtok_r(list, ",", &state); w; w = strtok_r(NULL, ",", &state))
        if (strstr(name, w)) return 1;
    return 0;
}
static int by_ratio(const void *a, const void *b)
{
    double x = ((const row *)a)->ratio, y = ((const row *)b)->ratio;
    return x < y ? -1 : x > y;
}
static int run_case(peer *p, const char *const *line, const char *works, const char *threads, int rounds, double ms)
{
    static const char *const work_name[] = { "fwd", "both" };
    op_case    c;
    double     n, t[2][MAX_ROUNDS], ratio[MAX_ROUNDS];
    int        bad = 0, wanted = 0;
    char       name[48];
    for (int th = 1; th <= 2; th++)
        for (int w = 0; w < 2; w++) {
            snprintf(name, sizeof name, "%s-%s-%dt", line[0], work_name[w], th);
            wanted |= strchr(threads, '0' + th) && strstr(works, work_name[w]) && !row_known(name);
        }
    if (!wanted) return 0;
    if (case_begin(&c, line[0], line[1]) || ask(p, &n, "case %s", line[1])) {
        fprintf(stderr, "bench_ops: %s: %s: no such op, or the peer has died\n", line[0], line[1]);
        return 1;
    }
    dt_manual_seed(1);
    dt_tensor *y = c.call(&c), *g = NULL;
    if (c.nin) {
        g = numbers(9, dt_shape_of(y));
        dt_backward(y, .grad = g);
    }
    if ((int)n != 1 + c.nin) {
        fprintf(stderr, "bench_ops: %s: the peer has %d results, expected %d\n", c.name, (int)n, 1 + c.nin);
        bad = 1;
    }
    bad |= differs(p, &c, y, 0);
    for (int i = 0; i < c.nin && !bad; i++) bad |= differs(p, &c, dt_grad(c.in[i]), 1 + i);
    clear(&c);
    for (int th = 1; th <= 2 && !bad; th++) {
        if (!strchr(threads, '0' + th)) continue;
        dt_set_num_threads(th);
        bad |= ask(p, &n, "threads %d", th);
        for (int w = 0; w < (c.nin ? 2 : 1) && !bad; w++) {
            snprintf(name, sizeof name, "%s-%s-%dt", c.name, work_name[w], th);
            if (!strstr(works, work_name[w]) || row_known(name)) continue;
            for (int r = -1; r < rounds && !bad; r++) /* round -1 warms up */
                for (int i = 0; i < 2; i++) {
                    double          v, limit = r < 0 ? ms / 2 : ms;
                    struct timespec rest = { 0, 4 * NS_PER_MS }; /* the other side's spinning threads go to sleep */
                    if (th > 1) nanosleep(&rest, NULL);
                    if ((i ^ r) & 1) bad |= ask(p, &v, "time %g %s", limit, work_name[w]);
                    else v = time_of(&c, g, w, limit * 1e-3);
                    if (r >= 0) t[(i ^ r) & 1][r] = v;
                }
            if (bad) break;
            for (int r = 0; r < rounds; r++) ratio[r] = t[1][r] / t[0][r];
            row *o = &rows[nrows < MAX_ROWS - 1 ? nrows++ : nrows];
            memcpy(o->name, name, sizeof name);
            o->ratio = median(ratio, rounds);
            printf("%s: dt %.1f us, PyTorch %.1f us, ratio %.2f%s\n", o->name, 1e6 * median(t[0], rounds),
                   1e6 * median(t[1], rounds), o->ratio, o->ratio < 0.8 ? "  (below the target)" : "");
            fflush(stdout);
            log_row(o, 1e6 * median(t[0], rounds), 1e6 * median(t[1], rounds));
        }
    }
    dt_free(g);
    case_end(&c);
    return bad | (dt_check("bench_ops") != 0);
}

int main(int argc, char **argv)
{
    const char *threads = option(argc, argv, "--threads", "1,2"), *works = option(argc, argv, "--work", "fwd,both");
    const char *only = option(argc, argv, "--only", NULL);
    int         rounds = atoi(option(argc, argv, "--rounds", "5")), worst = atoi(option(argc, argv, "--worst", "10"));
    double      ms = atof(option(argc, argv, "--ms", "20")), seconds = atof(option(argc, argv, "--seconds", "1e9")), begin = now();
    int         failed = 0, below = 0;
    peer        p;
    log_path = option(argc, argv, "--log", NULL);
    log_read();
    if (rounds < 1 || rounds > MAX_ROUNDS) rounds = 5;
    signal(SIGPIPE, SIG_IGN);
    if (peer_start(&p, option(argc, argv, "--python", "python3"))) return fprintf(stderr, "bench_ops: no peer\n"), 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (case_wanted(cases[i][0], only) && now() - begin < seconds) failed |= run_case(&p, cases[i], works, threads, rounds, ms);
    fclose(p.in);
    fclose(p.out);
    waitpid(p.pid, NULL, 0);
    remove(p.file);
    if (!nrows) return 1;
    qsort(rows, (size_t)nrows, sizeof rows[0], by_ratio);
    for (int i = 0; i < nrows; i++) below += rows[i].ratio < 0.8;
    printf("%d rows, %d below 0.8, median ratio %.2f, %.0f s\n", nrows, below, rows[nrows / 2].ratio, now() - begin);
    for (int i = 0; i < worst && i < nrows; i++) printf("  worst: %s %.2f\n", rows[i].name, rows[i].ratio);
    return failed;
}
