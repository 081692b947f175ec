/* gpu_paper.c - a model of the CUDA backend: launches, bytes and FLOPs of training steps, and the times that a roofline
   model gives for them. COMPUTED, NOT MEASURED: it needs no GPU, and no GPU was used.

   The "paper" device is a backend of dt.h whose memory is reserved addresses that are never accessed and whose kernels
   compute nothing: for every dt_call they record the launches that dt_cuda.h and kernels/ would make, with bytes and
   FLOPs derived from the views. Models run on it unchanged: forward, backward, step. The output is the Markdown of
   docs/gpu.md.

   Build: cc -O1 gpu_paper.c -lm -lpthread -ldl          Exit status 1: a count differs from the known one of a model.

   With DT_USE_CUDA, linked with kernels/ and the emulated libraries of tests/gpu, it prints no tables: the models run in
   full size on dt_cuda.h itself, over a runtime that counts launches without executing them, and every count must equal
   that of the paper device. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#endif
#ifdef DT_USE_CUDA
#define DT_CUDA_IMPLEMENTATION /* to see private functions; the rest is linked */
#include "../dt_cuda.h"
#endif
#include "../dt_comm.h"
#include "../dt_nn.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel_rows.h"

/* ---------------------------------------------------------------------------------------------- assumptions */
typedef struct card {
    const char *name;
    double      bandwidth, fma, tensor; /* bytes/s; FLOP/s of f32 without tensor cores; of f16 and bf16, dense */
    double      link;                   /* NVLink, bytes/s in one direction */
} card;
static const card cards[] = { { "A100", 2.0e12, 19.5e12, 312e12, 300e9 }, { "H100", 3.35e12, 67e12, 989e12, 450e9 } };
enum { NCARDS = sizeof cards / sizeof *cards };
static const card v100 = { "V100", 0.9e12, 15.7e12, 125e12, 150e9 }; /* only beside published figures */

/* Compute units, and reach: the fraction of its peak that each attains. That of convolutions is what published rates of
   training ResNet-50 leave for them (published, below), if all else takes the time that is computed here: in f32 367
   images/s on a V100, in halves with channels last 2,470 on an A100. With channels first a step takes 1.26 times as long:
   published are 1.22 (PyTorch's documentation, V100; PaddlePaddle) to 1.3 (Composer's documentation, A100). */
enum { FMA, CONV_FMA, TENSOR_GEMM, TENSOR_CONV, TENSOR_CONV_NCHW, TENSOR_ATTENTION, OWN, UNITS };
static const double reach[UNITS] = { 0.80, 0.75, 0.70, 0.32, 0.22, 0.50, 0.50 };
static const double reach_memory = 0.85, reach_link = 0.80;
/* seconds. On the device: between two launches; the shortest kernel. On the host: a launch; a dt_call; additionally for a
   library call. ring_alpha: latency of a step of a ring */
static const double gap = 1e-6, least = 4e-6;
static const double host_launch = 2.5e-6, host_call = 1e-6, host_library = 5e-6;
static const double ring_alpha = 4e-6;
enum { WORLD = 8, FIRST_BUCKET = 1 << 20, BUCKET = 25 << 20 };

/* ---------------------------------------------------------------------------------------------- launches */
#define FAMILIES(X)               \
    X(GEMM, "products")           \
    X(CONV, "convolutions")       \
    X(ATTENTION, "attention")     \
    X(NORM, "norms")              \
    X(EW, "elementwise, copies")  \
    X(POOL, "pooling")            \
    X(LOSS, "softmax, loss")      \
    X(INDEX, "embedding, gather") \
    X(REDUCE, "reductions")       \
    X(OPTIM, "optimiser")
#define FAMILY_ENUM(n, t) F_##n,
#define FAMILY_NAME(n, t) t,
enum { FAMILIES(FAMILY_ENUM) F_COUNT };
static const char *const family_name[] = { FAMILIES(FAMILY_NAME) };

enum { FORWARD, BACKWARD, UPDATE, PHASES };
typedef struct launch {
    int    family, phase, unit, library;
    double bytes, flops;
} launch;

typedef struct paper {
    dt_backend table;
    dt_device *dev;
    char      *range;
    size_t     next, live, peak;
    int        layout;
    bool       eager; /* updates are counted tensor by tensor (eager_update), not as the optimiser's kernels */
    launch    *l;     /* launches of the current step */
    int        n, cap, phase;
    int64_t    calls, waits;
    double     useful; /* FLOPs of products, convolutions and attention in the forward, from their shapes */
} paper;
#define RANGE ((size_t)1 << 42)

static paper *paper_of(dt_device *dev) { return (paper *)dt_device_impl(dev); }
static void   note(paper *p, int family, int unit, double bytes, double flops)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 4096;
        p->l = (launch *)realloc(p->l, (size_t)p->cap * sizeof *p->l);
        if (!p->l) exit(1);
    }
    launch *l = &p->l[p->n++];
    l->family = family;
    l->phase = p->phase;
    l->unit = unit;
    l->library = family == F_GEMM || family == F_CONV;
    l->bytes = bytes;
    l->flops = flops;
}

/* ---------------------------------------------------------------------------------------------- views */
static bool   has_in(const dt_call *c, int i) { return i < c->nin && c->in[i].ndim >= 0; }
static bool   has_out(const dt_call *c, int i) { return i < c->nout && c->out[i].ndim >= 0; }
static double size_of(const dt_view *v) { return (double)dt_dtype_nbytes((dt_dtype)v->dtype); }
static double bytes_of(const dt_view *v) /* stored bytes: a broadcast dimension counts once */
{
    double n = v->ndim < 0 ? 0 : size_of(v);
    for (int d = 0; d < v->ndim; d++) n *= v->stride[d] == 0 && v->shape[d] ? 1 : (double)v->shape[d];
    return n;
}
static double in_bytes(const dt_call *c, int i) { return has_in(c, i) ? bytes_of(&c->in[i]) : 0; }
static double out_bytes(const dt_call *c, int i) /* an output that is accumulated is also read */
{
    return has_out(c, i) ? bytes_of(&c->out[i]) * (c->acc >> i & 1u ? 2 : 1) : 0;
}
static double all_bytes(const dt_call *c)
{
    double n = 0;
    for (int i = 0; i < c->nin; i++) n += in_bytes(c, i);
    for (int i = 0; i < c->nout; i++) n += out_bytes(c, i);
    return n;
}

/* ---------------------------------------------------------------------------------------------- elementwise */
static void count_move(paper *p, const dt_view *y, const dt_view *x, bool add)
{
    note(p, F_EW, OWN, bytes_of(x) + bytes_of(y) * (add ? 2 : 1), add ? numel(y) : 0);
}
static double unary_flops(int fn)
{
    switch (fn) {
    case DT_U_AFFINE: return 2;
    case DT_U_ABS:
    case DT_U_CLAMP:
    case DT_U_RELU:
    case DT_U_SIGN:
    case DT_U_FLOOR:
    case DT_U_CEIL:
    case DT_U_ROUND:
    case DT_U_HARDSWISH:
    case DT_U_RSQRT:
    case DT_U_LEAKY_RELU:
    case DT_U_SQRT:
    case DT_U_RECIP: return 1;
    case DT_U_POW: return 100;
    case DT_U_EXP:
    case DT_U_LOG:
    case DT_U_LOG1P:
    case DT_U_EXPM1:
    case DT_U_SIN:
    case DT_U_COS:
    case DT_U_TAN:
    case DT_U_ERF:
    case DT_U_ELU:
    case DT_U_MISH:
    case DT_U_LOGSIGMOID:
    case DT_U_GELU:
    case DT_U_GELU_TANH:
    case DT_U_SILU:
    case DT_U_SIGMOID:
    case DT_U_TANH:
    case DT_U_SOFTPLUS: return 20;
    }
    fprintf(stderr, "gpu_paper: unary_flops has no case for function %d\n", fn);
    exit(1);
}
static void count_elementwise(paper *p, const dt_call *c)
{
    double n = numel(&c->out[0]), f = 0;
    if (c->op == DT_K_unary) f = unary_flops(c->u.ew.fn);
    if (c->op == DT_K_unary_bwd) f = 2 * unary_flops(c->u.ew.fn);
    if (c->op == DT_K_binary) f = c->u.ew.fn >= DT_B_POW && c->u.ew.fn <= DT_B_POW_DY ? 100 : 2;
    if (n > 0) note(p, F_EW, OWN, all_bytes(c), f * n);
}
static void count_epilogue(paper *p, const dt_view *y, const dt_view *bias, int act)
{
    note(p, F_EW, OWN, 2 * bytes_of(y) + (bias ? bytes_of(bias) : 0),
         numel(y) * ((bias ? 1 : 0) + (act == DT_ACT_NONE   ? 0
                                       : act == DT_ACT_RELU ? 1
                                                            : 20)));
}

/* ---------------------------------------------------------------------------------------------- reductions */
typedef struct dims { /* of a loop nest, outermost first */
    int     n;
    int64_t shape[DT_MAX_DIMS], x[DT_MAX_DIMS], y[DT_MAX_DIMS];
} dims;
static void dims_insert(dims *d, int64_t n, int64_t x, int64_t y, bool sorted)
{
    int i = d->n++;
    for (; sorted && i > 0 && d->x[i - 1] < x; i--) {
        d->shape[i] = d->shape[i - 1];
        d->x[i] = d->x[i - 1];
        d->y[i] = d->y[i - 1];
    }
    d->shape[i] = n;
    d->x[i] = x;
    d->y[i] = y;
}
static int64_t dims_join(dims *d, bool both) /* merges adjacent dimensions with compatible strides; returns the elements */
{
    int     n = 0;
    int64_t total = 1;
    for (int i = 0; i < d->n; i++) {
        int64_t many = d->shape[i];
        bool    joins = n > 0 && d->x[n - 1] == d->x[i] * many && (!both || d->y[n - 1] == d->y[i] * many);
        total *= many;
        if (!joins) d->shape[n++] = 1;
        d->shape[n - 1] *= many;
        d->x[n - 1] = d->x[i];
        d->y[n - 1] = d->y[i];
    }
    d->n = n;
    return total;
}
/* As in kernels/reduce.cu: one kernel, and a second one if the reduced elements are split into chunks. */
static void count_reduce(paper *p, const dt_call *c)
{
    const dt_view *y = &c->out[0], *x = &c->in[0];
    dims           keep, over;
    keep.n = over.n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (x->shape[d] == 1) continue;
        if (y->shape[d] == 1) dims_insert(&over, x->shape[d], x->stride[d], 0, c->u.reduce.fn != DT_R_ARGMAX && c->u.reduce.fn != DT_R_ARGMIN);
        else dims_insert(&keep, x->shape[d], x->stride[d], y->stride[d], true);
    }
    int64_t outs = dims_join(&keep, true), n = dims_join(&over, false), pieces = n, items = outs, chunks = 1;
    if (outs == 0) return;
    bool    columns = keep.n > 0 && over.n > 0 && n > 1 && keep.x[keep.n - 1] < over.x[over.n - 1];
    int64_t worth = 2048, v = x->dtype == DT_F32 ? 4 : 8;
    if (columns) {
        int64_t rows = n >= 8 ? 8 : n >= 4 ? 4 : 2, inner = keep.shape[keep.n - 1];
        int64_t cols = inner < 256 / rows ? inner : 256 / rows;
        items = outs / inner * ((inner + cols - 1) / cols);
        worth = 16 * (256 / cols);
    } else if (over.n > 0 && over.x[over.n - 1] == 1 && (over.n == 1 || over.shape[over.n - 1] % v == 0)) {
        pieces = n / v;
        worth = 2048 / v;
    }
    if (columns || n > 2048) {
        chunks = items < 512 ? (512 + items - 1) / items : 1;
        if (chunks > pieces / worth) chunks = pieces / worth;
    }
    note(p, F_REDUCE, OWN, all_bytes(c), (double)(outs * n) * (c->u.reduce.fn == DT_R_VAR ? 4 : 1));
    if (chunks > 1) note(p, F_REDUCE, OWN, (double)(outs * chunks) * 8 + out_bytes(c, 0), (double)(outs * chunks));
}

/* ---------------------------------------------------------------------------------------------- products */
static bool lead_ok(const dt_view *v) /* as dt__cuda_lead: can cuBLAS use the operand without a copy? */
{
    int64_t rows = v->shape[v->ndim - 2], cols = v->shape[v->ndim - 1];
    int64_t r = v->stride[v->ndim - 2], c = v->stride[v->ndim - 1];
    if (c == 1 || cols == 1) {
        if (rows == 1 || r >= cols) return true;
    }
    return (r == 1 || rows == 1) && (cols == 1 || c >= rows);
}
/* As dt__cuda_products: batch dimensions with constant strides in all operands are one batched call. */
static void count_products(paper *p, const dt_view *y, const dt_view *a, const dt_view *b, bool onto)
{
    int64_t n[DT_MAX_DIMS], step[3][DT_MAX_DIMS], calls = 1;
    int     nd = 0;
    for (int i = 0; i < y->ndim - 2; i++) {
        const dt_view *v[3] = { y, a, b };
        bool           joins = nd > 0;
        if (y->shape[i] == 1) continue;
        for (int j = 0; j < 3 && joins; j++) joins = step[j][nd - 1] == v[j]->stride[i] * y->shape[i];
        if (!joins) n[nd++] = 1;
        n[nd - 1] *= y->shape[i];
        for (int j = 0; j < 3; j++) step[j][nd - 1] = v[j]->stride[i];
    }
    for (int i = 0; i < nd - 1; i++) calls *= n[i];
    if (nd) calls *= (n[nd - 1] + 65534) / 65535;
    double flops = 2 * numel(y) * (double)a->shape[a->ndim - 1];
    double bytes = bytes_of(a) + bytes_of(b) + bytes_of(y) * (onto ? 2 : 1);
    if (p->phase == FORWARD) p->useful += flops;
    for (int64_t i = 0; i < calls; i++)
        note(p, F_GEMM, a->dtype == DT_F32 ? FMA : TENSOR_GEMM, bytes / (double)calls, flops / (double)calls);
}
static void count_gemm(paper *p, const dt_call *c) /* as dt__cuda_gemm */
{
    dt_view        y = c->out[0], a = c->in[0], b = c->in[1], ta = a, tb = b, ty = y;
    const dt_view *bias = &c->in[2];
    int            dtype = a.dtype == b.dtype ? a.dtype : (int)DT_F32, act = c->u.gemm.act;
    bool           biased = has_in(c, 2), add = c->acc & 1, half = y.dtype != DT_F32;
    bool           copy_a = a.dtype != dtype || !lead_ok(&a), copy_b = b.dtype != dtype || !lead_ok(&b);
    bool           exact = act == DT_ACT_NONE || act == DT_ACT_RELU;
    bool           begins = half && biased && exact && !add && bias->dtype == y.dtype;
    bool           through = (half && y.dtype != dtype) || (half && (!exact || (biased && !begins))) ||
                   (add && (biased || act != DT_ACT_NONE));
    if (numel(&y) == 0) return;
    ta.dtype = tb.dtype = dtype;
    ty.dtype = DT_F32;
    dense(&ta);
    dense(&tb);
    dense(&ty);
    if (through) begins = false;
    if (copy_a) count_move(p, &ta, &a, false);
    if (copy_b) count_move(p, &tb, &b, false);
    if (begins) count_move(p, &y, bias, false);
    count_products(p, through ? &ty : &y, copy_a ? &ta : &a, copy_b ? &tb : &b, begins || (add && !through));
    if ((biased && !begins) || act != DT_ACT_NONE)
        count_epilogue(p, through ? &ty : &y, biased && !begins ? bias : NULL, act);
    if (through) count_move(p, &y, &ty, add);
}

/* ---------------------------------------------------------------------------------------------- convolutions */
/* As dt__conv_run. turned: images are NHWC, so weights are transposed before, or their gradients after. */
static void count_conv_run(paper *p, const dt_view *x, const dt_view *w, const dt_view *y, const dt_view *to, bool add)
{
    double flops = 2 * numel(y) * (double)(w->shape[1] * w->shape[2] * w->shape[3]);
    bool   nhwc = x->layout == DT_LAYOUT_NHWC, turned = nhwc && w->shape[1] > 1 && w->shape[2] * w->shape[3] > 1, weight = to == w;
    if (turned && !weight) count_move(p, w, w, false);
    if (p->phase == FORWARD) p->useful += flops;
    note(p, F_CONV, x->dtype == DT_F32 ? CONV_FMA : nhwc ? TENSOR_CONV : TENSOR_CONV_NCHW,
         bytes_of(x) + bytes_of(w) + bytes_of(y) + (add && !(turned && weight) ? bytes_of(to) : 0), flops);
    if (turned && weight) count_move(p, w, w, add);
}
static void count_conv(paper *p, const dt_call *c)
{
    const dt_view *y = &c->out[0], *bias = &c->in[2];
    int            act = c->u.conv.act;
    bool           biased = has_in(c, 2), begins = biased && y->dtype != DT_F32;
    bool           exact = act == DT_ACT_NONE || act == DT_ACT_RELU;
    if (numel(y) == 0) return;
    if (y->dtype != DT_F32 && (!exact || (biased && bias->dtype != y->dtype))) { /* operands are cast to f32 for the call */
        dt_view x = c->in[0], w = c->in[1], wide = *y;
        x.dtype = w.dtype = wide.dtype = DT_F32;
        count_move(p, &x, &c->in[0], false);
        count_move(p, &w, &c->in[1], false);
        count_conv_run(p, &x, &w, &wide, &wide, false);
        count_epilogue(p, &wide, biased ? bias : NULL, act);
        count_move(p, y, &wide, false);
        return;
    }
    if (begins) count_move(p, y, bias, false);
    count_conv_run(p, &c->in[0], &c->in[1], y, y, begins);
    if ((biased && !begins) || act != DT_ACT_NONE) count_epilogue(p, y, biased && !begins ? bias : NULL, act);
}
static void count_conv_weight(paper *p, const dt_call *c)
{
    const dt_view *dw = &c->out[0], *dy = &c->in[0];
    if (has_out(c, 0)) count_conv_run(p, &c->in[1], dw, dy, dw, c->acc & 1);
    if (!has_out(c, 1)) return;
    dt_call k;
    memset(&k, 0, sizeof k);
    k.op = DT_K_reduce;
    k.nout = k.nin = 1;
    k.acc = c->acc >> 1 & 1;
    k.in[0] = k.out[0] = *dy;
    k.out[0].dtype = c->out[1].dtype;
    for (int i = 0; i < 4; i++) {
        k.out[0].shape[i] = i == 1 ? dy->shape[1] : 1;
        k.out[0].stride[i] = i == 1;
    }
    count_reduce(p, &k);
}

/* ---------------------------------------------------------------------------------------------- the rest */
/* A row that a block reads twice is loaded from memory twice if the rows in flight (108 multiprocessors with 4 blocks
   each) do not fit the L2 cache of 40 MB. */
static double again(double row_bytes, double all) { return 432 * row_bytes > 40e6 ? all : 0; }
static void   count_softmax(paper *p, const dt_call *c)
{
    const dt_view *y = &c->out[0];
    double         n = numel(y), in = all_bytes(c) - out_bytes(c, 0);
    double         row = (double)y->shape[1] * in / (n > 0 ? n : 1);
    bool           bwd = c->op == DT_K_softmax_bwd;
    if (n > 0) note(p, F_LOSS, OWN, all_bytes(c) + (y->shape[1] > 512 ? again(row, in) : 0), n * (bwd ? 6 : 20));
}
static void count_loss(paper *p, const dt_call *c)
{
    bool   bwd = c->op == DT_K_cross_entropy_bwd;
    double rows = numel(&c->in[bwd ? 2 : 1]), x = in_bytes(c, bwd ? 1 : 0), n = numel(&c->in[bwd ? 1 : 0]);
    if (!bwd && c->u.loss.nll) note(p, F_LOSS, OWN, rows * 40, rows * 4); /* one 32-byte sector for each target */
    else if (!bwd) note(p, F_LOSS, OWN, x * (c->u.loss.smoothing > 0 ? 2 : 1) + rows * 12, n * 12);
    else if (c->u.loss.nll) {
        if (!(c->acc & 1)) note(p, F_LOSS, OWN, bytes_of(&c->out[0]), 0);
        note(p, F_LOSS, OWN, rows * 72, rows * 4);
    } else note(p, F_LOSS, OWN, x + out_bytes(c, 0) + rows * 12, n * 12);
    if (!bwd) note(p, F_LOSS, OWN, 16 * 1024, 2 * 1024);
}
static void count_layer_norm(paper *p, const dt_call *c)
{
    double n = numel(&c->in[0]);
    if (c->op == DT_K_layer_norm) {
        note(p, F_NORM, OWN, all_bytes(c), n * (c->u.norm.rms ? 6 : 9));
        return;
    }
    double in = in_bytes(c, 0) + in_bytes(c, 1) + in_bytes(c, 3) + in_bytes(c, 4);
    if (has_out(c, 0)) note(p, F_NORM, OWN, in + in_bytes(c, 2) + out_bytes(c, 0), n * 12);
    if (!has_out(c, 1) && !has_out(c, 2)) return;
    note(p, F_NORM, OWN, in, n * 5);
    double rows = (double)c->in[1].shape[0], cols = (double)c->in[1].shape[1];
    double tiles = ceil(cols / 32 * size_of(&c->in[1]) / 16),
           slices = rows / 64 < 1024 / tiles ? rows / 64 : 1024 / tiles;
    note(p, F_NORM, OWN, (slices < 1 ? 1 : slices) * cols * 8 + out_bytes(c, 1) + out_bytes(c, 2), 0);
}
static void count_batch_norm(paper *p, const dt_call *c)
{
    double n = numel(&c->in[0]), x = in_bytes(c, 0), chs = (double)c->in[0].shape[1];
    if (c->op == DT_K_batch_norm) {
        if (c->u.norm.train || !has_in(c, 3)) note(p, F_NORM, OWN, x, n * 4);
        note(p, F_NORM, OWN, chs * 16 * 16, chs * 100);
        if (has_out(c, 0)) note(p, F_NORM, OWN, x + in_bytes(c, 5) + out_bytes(c, 0), n * 4);
        return;
    }
    double dy = in_bytes(c, 0), y = in_bytes(c, 5);
    bool   given = has_in(c, 6), train = c->u.norm.train;
    if (!given && (train || has_out(c, 1) || has_out(c, 2))) note(p, F_NORM, OWN, dy + in_bytes(c, 1) + y, n * 5);
    note(p, F_NORM, OWN, chs * 8 * 16, chs * 100);
    if (has_out(c, 0))
        note(p, F_NORM, OWN, dy + (train ? in_bytes(c, 1) : 0) + y + out_bytes(c, 0) + out_bytes(c, 3), n * 6);
}
static void count_pool(paper *p, const dt_call *c)
{
    double         n = numel(&c->out[0]), cells = (double)c->u.pool.kernel[0] * c->u.pool.kernel[1];
    const dt_view *big = c->op == DT_K_pool2d ? &c->in[0] : &c->out[0];
    const dt_view *small = c->op == DT_K_pool2d ? &c->out[0] : &c->in[0];
    if (c->u.pool.adaptive) cells = numel(big) / numel(small);
    if (n > 0) note(p, F_POOL, OWN, all_bytes(c), cells * numel(small));
}
/* As ix_scatter: adds n rows of d elements to the rows of out that their keys name. */
static void count_scatter(paper *p, const dt_call *c, double n, double d, int64_t limit, int64_t ny)
{
    const dt_view *out = &c->out[0];
    double         size = size_of(out), dy = in_bytes(c, 0), index = in_bytes(c, 1);
    double         rows = n < (double)limit ? n : (double)limit; /* rows of the result that are written, at most */
    if (!(c->acc & 1)) note(p, F_INDEX, OWN, (double)limit * d * size, 0);
    if (out->dtype == DT_F32) {
        note(p, F_INDEX, OWN, dy + index + 2 * n * d * 4, n * d);
        return;
    }
    if (ny == 1) {
        note(p, F_INDEX, OWN, dy + index + n * d * 2 * size, n * d);
        return;
    }
    for (int shift = 0; shift == 0 || (shift < 63 && limit >> shift); shift += 8) {
        note(p, F_INDEX, OWN, n * (shift ? 40 : 8), 0); /* counting digits: reads the index through the order so far */
        note(p, F_INDEX, OWN, 2 * 8 * 256 * (n / 2048 + 1), 0);
        note(p, F_INDEX, OWN, n * (shift ? 48 : 16), 0);
    }
    double chunks = floor((n + 63) / 64);
    note(p, F_INDEX, OWN, dy + n * 40 + rows * d * size * (c->acc & 1 ? 2 : 1) + 2 * chunks * d * 4, n * d);
    if (chunks > 1) note(p, F_INDEX, OWN, 2 * chunks * d * 4, chunks * d);
}
static void count_index(paper *p, const dt_call *c)
{
    const dt_view *out = &c->out[0];
    double         y = bytes_of(out);
    if (c->op == DT_K_embedding) note(p, F_INDEX, OWN, 2 * y + in_bytes(c, 0), 0);
    else if (c->op == DT_K_gather) note(p, F_INDEX, OWN, y + 32 * numel(out) + in_bytes(c, 1), 0);
    else if (c->op == DT_K_embedding_bwd)
        count_scatter(p, c, (double)c->in[0].shape[0], (double)out->shape[1], out->shape[0], 0);
    else count_scatter(p, c, numel(&c->in[0]), 1, (int64_t)numel(out), c->in[0].shape[1]);
}
/* Number of pairs of tiles of 64 that the mask does not hide completely. */
static double tile_pairs(int64_t t, int64_t s, bool causal)
{
    int64_t rows = (t + 63) / 64, cols = (s + 63) / 64, n = 0;
    for (int64_t i = 0; i < rows; i++) n += causal && i + 1 < cols ? i + 1 : cols;
    return (double)n;
}
/* As attention.cu's by_products and what follows it: workspace of a pair forward 8 bytes, backward 16. */
static bool one_kernel; /* this run is for a device that takes the kernel */
static bool attention_by_products(const dt_call *c, bool bwd, int64_t *heads)
{
    const dt_view *q = &c->in[bwd ? 1 : 0], *k = &c->in[bwd ? 2 : 1];
    int64_t        t = q->shape[2], s = k->shape[2], d = q->shape[3], most = ((int64_t)256 << 20) / (t * ((s + 7) / 8 * 8) * (bwd ? 16 : 8));
    if (one_kernel || q->dtype == DT_F32 || has_in(c, bwd ? 6 : 3) || c->u.attn.window > 0 || t * s < 8192 || d % 8 || most == 0) return false;
    if (k->shape[1] != q->shape[1] || (c->u.attn.causal && (s > t || c->u.attn.offset))) return false; /* no model here has these */
    int64_t parts = (q->shape[1] + most - 1) / most;
    *heads = (q->shape[1] + parts - 1) / parts;
    return true;
}
static void count_attention_products(paper *p, const dt_call *c, bool bwd, int64_t most)
{
    const dt_view *q = &c->in[bwd ? 1 : 0], *k = &c->in[bwd ? 2 : 1];
    int64_t        t = q->shape[2], s = k->shape[2];
    double         d = (double)q->shape[3];
    for (int64_t i = 0; i < q->shape[0]; i++)
        for (int64_t h = 0; h < q->shape[1]; h += most) {
            double n = (double)(q->shape[1] - h < most ? q->shape[1] - h : most), pairs = 0;
            for (int turn = 0; turn < (bwd ? 3 : 2); turn++) { /* scores (backward: and do v'); o or dq; dv and dk */
                for (int64_t r = 0; r < t; r += 512) {
                    double rows = (double)(t - r < 512 ? t - r : 512), seen = (double)(c->u.attn.causal && r + 512 < s ? r + 512 : s);
                    double block = n * rows * seen, mine = n * rows * d, theirs = n * seen * d;
                    int    times = bwd && turn != 1 ? 2 : 1;
                    int    halves = turn ? 2 : 1; /* weights are the sum of two halves */
                    if (turn == 2) { /* the same numbers of keys' blocks as of rows' blocks: these have the rows from r on */
                        block = n * rows * (double)(c->u.attn.causal ? t - r : t);
                        theirs = n * (double)(c->u.attn.causal ? t - r : t) * d;
                    }
                    if (turn == 0) pairs += block;
                    for (int j = 0; j < times; j++) {
                        for (int half = 0; half < halves; half++)
                            note(p, F_GEMM, TENSOR_GEMM, block * (turn ? 2 : 4) + (turn ? theirs * 2 + mine * 4 * (1 + half) : (mine + theirs) * 2),
                                 2 * block * d);
                        if (turn) note(p, F_EW, OWN, mine * 6, 0); /* the sum, in halves */
                    }
                }
                if (turn == 0) note(p, F_ATTENTION, OWN, pairs * (bwd ? 16 : 8), pairs * 24);
            }
        }
}
static void count_attention(paper *p, const dt_call *c)
{
    int64_t heads;
    bool           bwd = c->op == DT_K_attention_bwd;
    const dt_view *q = &c->in[bwd ? 1 : 0], *k = &c->in[bwd ? 2 : 1];
    double         d = (double)q->shape[3], groups = d > 128 ? ceil(d / 128) : 1;
    double         pairs = (double)(q->shape[0] * q->shape[1]) * tile_pairs(q->shape[2], k->shape[2], c->u.attn.causal);
    double         one = pairs * 64 * 64 * d * 2; /* FLOPs of one product of all pairs */
    if (numel(q) == 0) return;
    if (bwd && attention_by_products(c, bwd, &heads)) {
        note(p, F_ATTENTION, OWN, in_bytes(c, 0) + in_bytes(c, 4) + in_bytes(c, 5), 2 * numel(q));
        count_attention_products(p, c, bwd, heads);
        return;
    }
    if (!bwd) {
        if (p->phase == FORWARD) p->useful += 4 * numel(q) * (double)k->shape[2] / (c->u.attn.causal ? 2 : 1);
        if (attention_by_products(c, bwd, &heads)) count_attention_products(p, c, bwd, heads);
        else note(p, F_ATTENTION, OWN, all_bytes(c), one * (groups + 1));
        return;
    }
    double read = in_bytes(c, 0) + in_bytes(c, 1) + in_bytes(c, 2) + in_bytes(c, 3) + 2 * in_bytes(c, 5);
    note(p, F_ATTENTION, OWN, in_bytes(c, 0) + in_bytes(c, 4) + in_bytes(c, 5), 2 * numel(q));
    note(p, F_ATTENTION, OWN, read + out_bytes(c, 1) + out_bytes(c, 2), one * (2 * groups + 2));
    note(p, F_ATTENTION, OWN, read + out_bytes(c, 0), one * (2 * groups + 1));
}
static void count_optimizer(paper *p, const dt_call *c)
{
    double n = numel(&c->out[0]), bytes = 0;
    if (p->eager) return;
    if (c->op == DT_K_norms) {
        note(p, F_OPTIM, OWN, in_bytes(c, 0), 2 * numel(&c->in[0]));
        note(p, F_OPTIM, OWN, numel(&c->in[0]) / 8192 * 8, numel(&c->in[0]) / 8192);
        return;
    }
    if (c->op == DT_K_unscale) {
        note(p, F_OPTIM, OWN, all_bytes(c), numel(&c->in[0]));
        return;
    }
    int copy = c->op == DT_K_lamb_apply                     ? 1
               : c->op == DT_K_lamb                         ? -1
               : c->op == DT_K_sgd || c->op == DT_K_adagrad || c->op == DT_K_lion ? 2
                                                            : 4;
    for (int i = 0; i < c->nout; i++)
        if (has_out(c, i)) bytes += bytes_of(&c->out[i]) * (i == copy || (c->op == DT_K_lamb && i == 0) ? 1 : 2);
    for (int i = 0; i < c->nin; i++) bytes += in_bytes(c, i);
    bool segments = c->op == DT_K_lamb_apply ? has_in(c, 1) : c->op == DT_K_sgd && has_in(c, 2);
    if (segments) note(p, F_OPTIM, OWN, 0, 0);
    note(p, F_OPTIM, OWN, bytes, n * (c->op == DT_K_sgd || c->op == DT_K_lamb_apply ? 6 : 15));
}
static int paper_kernel(dt_device *dev, const dt_call *c)
{
    paper *p = paper_of(dev);
    p->calls++;
    switch (c->op) {
    case DT_K_gemm: count_gemm(p, c); break;
    case DT_K_conv2d: count_conv(p, c); break;
    case DT_K_conv2d_bwd_data: count_conv_run(p, &c->out[0], &c->in[1], &c->in[0], &c->out[0], c->acc & 1); break;
    case DT_K_conv2d_bwd_weight: count_conv_weight(p, c); break;
    case DT_K_reduce: count_reduce(p, c); break;
    case DT_K_softmax:
    case DT_K_softmax_bwd: count_softmax(p, c); break;
    case DT_K_cross_entropy:
    case DT_K_cross_entropy_bwd: count_loss(p, c); break;
    case DT_K_layer_norm:
    case DT_K_layer_norm_bwd: count_layer_norm(p, c); break;
    case DT_K_batch_norm:
    case DT_K_batch_norm_bwd: count_batch_norm(p, c); break;
    case DT_K_pool2d:
    case DT_K_pool2d_bwd: count_pool(p, c); break;
    case DT_K_embedding:
    case DT_K_embedding_bwd:
    case DT_K_gather:
    case DT_K_scatter:
    case DT_K_gather_bwd: count_index(p, c); break;
    case DT_K_rnn_cell:
    case DT_K_rnn_cell_bwd: note(p, F_EW, OWN, all_bytes(c), numel(&c->in[3]) * 15); break;
    case DT_K_scan:
    case DT_K_sort:
    case DT_K_resize:
    case DT_K_resize_bwd: note(p, F_EW, OWN, all_bytes(c), numel(&c->out[0]) * 8); break;
    case DT_K_dropout: note(p, F_EW, OWN, all_bytes(c), numel(&c->out[0]) * 25); break;
    case DT_K_attention:
    case DT_K_attention_bwd: count_attention(p, c); break;
    case DT_K_sgd:
    case DT_K_adam:
    case DT_K_rmsprop:
    case DT_K_adagrad:
    case DT_K_lion:
    case DT_K_lamb:
    case DT_K_lamb_apply:
    case DT_K_norms:
    case DT_K_unscale: count_optimizer(p, c); break;
    case DT_K_fill:
    case DT_K_copy:
    case DT_K_iota:
    case DT_K_unary:
    case DT_K_unary_bwd:
    case DT_K_binary:
    case DT_K_where: count_elementwise(p, c); break;
    default: return dt_fail(DT_ERR_STATE, "gpu_paper: paper_kernel has no case for kernel %s", dt_kernel_name(c->op));
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------- the device */
static void *paper_alloc(dt_device *dev, size_t nbytes)
{
    paper *p = paper_of(dev);
    nbytes = (nbytes + 511) / 512 * 512 + (nbytes == 0 ? 512 : 0);
    if (nbytes > RANGE - p->next) return NULL;
    void *at = p->range + p->next;
    p->next += nbytes; /* addresses are never reused */
    p->live += nbytes;
    if (p->live > p->peak) p->peak = p->live;
    return at;
}
static void paper_free(dt_device *dev, void *ptr, size_t nbytes)
{
    if (ptr) paper_of(dev)->live -= (nbytes + 511) / 512 * 512 + (nbytes == 0 ? 512 : 0);
}
static int paper_upload(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes)
{
    (void)stream, (void)dst, (void)host;
    if (nbytes) note(paper_of(dev), F_EW, OWN, (double)nbytes, 0);
    return 0;
}
static int paper_download(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes)
{
    (void)stream, (void)src;
    if (nbytes) note(paper_of(dev), F_EW, OWN, (double)nbytes, 0);
    memset(host, 0, nbytes); /* looks like a loss of 0 and no overflow */
    paper_of(dev)->waits++;
    return 0;
}
static int paper_wait(dt_device *dev, void *stream)
{
    (void)stream;
    paper_of(dev)->waits++;
    return 0;
}
static int paper_order(dt_device *dev, void *after, void *before)
{
    (void)dev, (void)after, (void)before;
    return 0;
}
static int paper_layout(dt_device *dev, int kernel, int dtype)
{
    (void)kernel, (void)dtype;
    return paper_of(dev)->layout;
}
static bool paper_open(paper *p, int layout, bool eager)
{
    memset(p, 0, sizeof *p);
    p->layout = layout;
    p->eager = eager;
    p->table.name = "paper";
    p->table.alloc = paper_alloc;
    p->table.free = paper_free;
    p->table.upload = paper_upload;
    p->table.download = paper_download;
    p->table.wait = paper_wait;
    p->table.order = paper_order;
    p->table.image_layout = paper_layout;
    for (int k = 0; k < DT_K_COUNT; k++) p->table.kernel[k] = paper_kernel;
    p->range = (char *)mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    p->dev = p->range == (char *)MAP_FAILED ? NULL : dt_device_new(&p->table, 0, p);
    return p->dev != NULL;
}
static void paper_close(paper *p)
{
    dt_device_free(p->dev);
    munmap(p->range, RANGE);
    free(p->l);
}

/* ---------------------------------------------------------------------------------------------- models
   fused: as users of dt write them. Otherwise no op is fused with the next one, and softmax, attention and loss are
   composed of elementary ops. */
static dt_tensor *norm(dt_model *m, const char *name, dt_tensor *x, dt_tensor *skip, bool relu, bool fused)
{
    if (fused) return dt_batchnorm2d(m, name, x, .act = relu ? DT_ACT_RELU : DT_ACT_NONE, .add = skip);
    x = dt_batchnorm2d(m, name, x);
    if (skip) x = dt_add(x, skip);
    return relu ? dt_relu(x) : x;
}
static dt_tensor *convnet(dt_model *m, dt_tensor *x, bool fused)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(norm(m, "bn1", x, NULL, true, fused), .kernel = 2);
    x = dt_conv2d(m, "conv2", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(norm(m, "bn2", x, NULL, true, fused), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}
static dt_tensor *basic(dt_model *m, dt_tensor *x, int out, int stride, bool fused)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = norm(m, "bn1", y, NULL, true, fused);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = norm(m, "downsample.1", skip, NULL, false, fused);
    }
    return norm(m, "bn2", y, skip, true, fused);
}
static dt_tensor *resnet20(dt_model *m, dt_tensor *x, bool fused)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1, .no_bias = true);
    x = norm(m, "bn1", x, NULL, true, fused);
    for (int i = 0; i < 9; i++) {
        dt_scope_begin(m, "layers.%d", i);
        x = basic(m, x, 16 << i / 3, i && i % 3 == 0 ? 2 : 1, fused);
        dt_scope_end(m);
    }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
}
static dt_tensor *bottleneck(dt_model *m, dt_tensor *x, int width, int stride, bool down, bool fused)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = width, .kernel = 1, .no_bias = true);
    y = norm(m, "bn1", y, NULL, true, fused);
    y = dt_conv2d(m, "conv2", y, .out = width, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = norm(m, "bn2", y, NULL, true, fused);
    y = dt_conv2d(m, "conv3", y, .out = 4 * width, .kernel = 1, .no_bias = true);
    if (down) {
        skip = dt_conv2d(m, "downsample.0", x, .out = 4 * width, .kernel = 1, .stride = stride, .no_bias = true);
        skip = norm(m, "downsample.1", skip, NULL, false, fused);
    }
    return norm(m, "bn3", y, skip, true, fused);
}
static dt_tensor *resnet50(dt_model *m, dt_tensor *x, bool fused) /* as in torchvision: the 3 x 3 convolution has the stride */
{
    static const int blocks[4] = { 3, 4, 6, 3 };
    x = dt_conv2d(m, "conv1", x, .out = 64, .kernel = 7, .stride = 2, .pad = 3, .no_bias = true);
    x = dt_maxpool2d(norm(m, "bn1", x, NULL, true, fused), .kernel = 3, .stride = 2, .pad = 1);
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < blocks[s]; i++) {
            dt_scope_begin(m, "layer%d.%d", s + 1, i);
            x = bottleneck(m, x, 64 << s, s && i == 0 ? 2 : 1, i == 0, fused);
            dt_scope_end(m);
        }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 1000);
}
enum { LAYERS = 12 };
static dt_tensor *part(dt_tensor *x, int i) /* queries, keys or values: (b, heads, t, d) */
{
    dt_shape s = dt_shape_of(x);
    x = dt_narrow(x, 2, (int64_t)i * DIM, DIM);
    return dt_transpose(dt_reshape(x, DT_SHAPE(s.dim[0], s.dim[1], HEADS, DIM / HEADS)), 1, 2);
}
static dt_tensor *attend(dt_tensor *x, dt_tensor *mask) /* mask NULL: fused */
{
    dt_tensor *q = part(x, 0), *k = part(x, 1), *v = part(x, 2);
    if (!mask) return dt_attention(q, k, v, .causal = true);
    dt_tensor *s = dt_mul_scalar(dt_matmul(q, dt_transpose(k, 2, 3)), 0.125);
    return dt_matmul(dt_softmax(dt_add(s, mask), -1), v);
}
static dt_tensor *gpt2(dt_model *m, dt_tensor *tokens, bool fused)
{
    dt_tensor *x = dt_embedding(m, "wte", tokens, .num = VOCAB, .dim = DIM), *at, *mask;
    at = dt_arange(0, CONTEXT, 1, .dtype = DT_I64);
    x = dt_add(x, dt_embedding(m, "wpe", at, .num = CONTEXT, .dim = DIM));
    mask = fused ? NULL : dt_zeros(DT_SHAPE(CONTEXT, CONTEXT), .dtype = dt_dtype_of(x));
    for (int i = 0; i < LAYERS; i++) {
        dt_scope_begin(m, "h.%d", i);
        dt_tensor *a = attend(dt_linear(m, "attn.c_attn", dt_layernorm(m, "ln_1", x), .out = 3 * DIM), mask);
        a = dt_reshape(dt_transpose(a, 1, 2), dt_shape_of(x));
        x = dt_add(x, dt_linear(m, "attn.c_proj", a, .out = DIM));
        a = dt_linear(m, "mlp.c_fc", dt_layernorm(m, "ln_2", x), .out = 4 * DIM);
        x = dt_add(x, dt_linear(m, "mlp.c_proj", dt_gelu_tanh(a), .out = DIM));
        dt_scope_end(m);
    }
    x = dt_op_linear(dt_layernorm(m, "ln_f", x), dt_model_find(m, "wte.weight"), NULL); /* tied weights */
    return dt_reshape(x, DT_SHAPE(-1, VOCAB));
}

typedef struct config {
    const char *name, *mode, *items; /* items: unit of the rate */
    dt_tensor *(*net)(dt_model *, dt_tensor *, bool);
    dt_shape shape; /* of x */
    int64_t  rows;  /* targets */
    int      layout;
    bool     amp;
} config;
static const config configs[] = {
    { "MNIST conv net, batch 100", "f32", "images", convnet, { 4, { 100, 1, 28, 28 } }, 100, 0, false },
    { "ResNet-20, batch 128", "f32", "images", resnet20, { 4, { 128, 3, 32, 32 } }, 128, 0, false },
    { "ResNet-50, batch 256", "f32 NCHW", "images", resnet50, { 4, { 256, 3, 224, 224 } }, 256, 0, false },
    { "ResNet-50, batch 256", "O2 bf16 NCHW", "images", resnet50, { 4, { 256, 3, 224, 224 } }, 256, 0, true },
    { "ResNet-50, batch 256", "O2 bf16 NHWC", "images", resnet50, { 4, { 256, 3, 224, 224 } }, 256, 1, true },
    { "GPT-2 124M, 16 x 1024", "O2 bf16, attention in one kernel (H100)", "tokens", gpt2, { 2, { 16, CONTEXT } }, 16 * CONTEXT, 0, true },
    { "GPT-2 124M, 16 x 1024", "O2 bf16, attention by products (A100)", "tokens", gpt2, { 2, { 16, CONTEXT } }, 16 * CONTEXT, 0, true },
};
enum { NCONFIGS = sizeof configs / sizeof *configs, GPT2 = NCONFIGS - 1, GPT2_ONE = NCONFIGS - 2 };
static bool is_gpt(const config *c) { return c->net == gpt2; }
static bool is_resnet50(const config *c) { return c->net == resnet50; }

/* ---------------------------------------------------------------------------------------------- a run */
typedef struct grad { /* of a parameter */
    dt_tensor *t;
    int        key;   /* its block: dtype and group */
    int        ready; /* number of launches before it was complete */
    double     bytes;
} grad;
typedef struct run {
    launch *l;
    int     n, ngrads;
    grad   *g; /* in reverse order of creation */
    int64_t calls, waits, params;
    size_t  peak;
    double  useful;
} run;
typedef struct watch {
    paper *p;
    run   *r;
} watch;

static void grad_ready(void *user, dt_tensor *t)
{
    watch *w = (watch *)user;
    for (int i = 0; i < w->r->ngrads; i++)
        if (w->r->g[i].t == t) w->r->g[i].ready = w->p->n;
}
static void grads_end(void *user, dt_status s)
{
    (void)s;
    ((watch *)user)->p->phase = UPDATE; /* work of mixed precision after the backward belongs to the update */
}
static void list_grads(run *r, dt_model *m)
{
    int n = dt_model_count(m);
    r->g = (grad *)calloc((size_t)n, sizeof *r->g);
    r->ngrads = 0;
    for (int i = n - 1; i >= 0 && r->g; i--) {
        dt_parameter_info info;
        if (!dt_model_get(m, i, &info) || info.buffer) continue;
        grad *g = &r->g[r->ngrads++];
        g->t = info.value;
        g->bytes = (double)dt_numel(info.value) * (double)dt_dtype_nbytes(dt_dtype_of(info.value));
        g->key = 2 * (int)dt_dtype_of(info.value) + dt_name_matches("*bias|*ln_*", info.name);
    }
}
/* An update made of elementary ops, tensor by tensor: bytes per element of each op. */
static void eager_update(paper *p, const run *r, const config *c)
{
    /* d = g + wd p; buf *= b; buf += d; p -= lr buf */
    static const double sgd[] = { 12, 8, 12, 12 };
    /* p *= 1 - lr wd; m += t (g - m); v *= b; v += t g g; s = sqrt(v); s /= c; s += eps; p -= lr m / s */
    static const double adam[] = { 8, 12, 8, 12, 8, 8, 8, 16 };
    int                 nops = is_gpt(c) ? 8 : 4;
    for (int i = 0; i < r->ngrads; i++) {
        double n = (double)dt_numel(r->g[i].t), size = r->g[i].bytes / n;
        if (c->amp) note(p, F_OPTIM, OWN, n * (size + 4), n);                                /* unscaled into f32 */
        if (is_gpt(c)) note(p, F_OPTIM, OWN, n * 4, 2 * n), note(p, F_OPTIM, OWN, n * 8, n); /* norm; clipped */
        for (int k = 0; k < nops; k++) note(p, F_OPTIM, OWN, n * (is_gpt(c) ? adam[k] : sgd[k]), 2 * n);
        if (c->amp && size < 4) note(p, F_OPTIM, OWN, n * (size + 4), 0); /* the half-precision copy of the master */
    }
}
static bool one_step(paper *p, run *r, const config *c, bool fused, dt_model *m, dt_optimizer *opt, dt_amp *amp,
                     dt_tensor *x, dt_tensor *y)
{
    p->n = 0;
    p->calls = p->waits = 0;
    p->useful = 0;
    p->phase = FORWARD;
    dt_tensor *out = c->net(m, x, fused);
    dt_tensor *loss = fused ? dt_cross_entropy(out, y) : dt_nll_loss(dt_log_softmax(dt_cast(out, DT_F32), 1), y);
    p->phase = BACKWARD;
    if (amp) dt_amp_backward(amp, loss);
    else dt_backward(loss);
    p->phase = UPDATE;
    dt_item(loss);
    if (!r->g) list_grads(r, m);
    dt_step(opt);
    if (p->eager) eager_update(p, r, c);
    return !dt_error();
}
static paper *counting; /* where the emulated runtime counts launches; NULL: not counting */
/* Runs three steps and records the third; the second must make the same launches. on: a device; NULL: the paper device */
static bool run_config(run *r, const config *c, bool fused, dt_device *on)
{
    paper p;
    memset(r, 0, sizeof *r);
    memset(&p, 0, sizeof p);
    one_kernel = c == &configs[GPT2_ONE];
    if (!on && !paper_open(&p, c->layout, !fused)) return false;
    counting = on ? &p : NULL;
    dt_set_default_device(on ? on : p.dev);
    watch         w = { &p, r };
    dt_grad_hooks h = { NULL, grad_ready, grads_end, &w };
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = is_gpt(c) ? dt_adamw(m, .lr = 6e-4, .weight_decay = 0.1, .clip_norm = fused ? 1 : 0)
                                  : dt_sgd(m, .lr = 0.1, .weight_decay = 1e-4, .momentum = 0.9);
    if (is_gpt(c)) dt_optimizer_add_group(opt, "*bias|*ln_*", .weight_decay = DT_ZERO);
    dt_amp    *amp = c->amp ? dt_amp_new(m, .level = "O2", .dtype = DT_BF16) : NULL;
    dt_tensor *x = dt_keep(dt_zeros(c->shape, .dtype = is_gpt(c) ? DT_I64 : DT_F32));
    dt_tensor *y = dt_keep(dt_zeros(DT_SHAPE(c->rows), .dtype = DT_I64));
    int        id = dt_grad_hooks_add(&h), before = 0;
    bool       ok = true;
    for (int s = 0; s < 3 && ok; s++) {
        ok = one_step(&p, r, c, fused, m, opt, amp, x, y);
        if (s == 2 && before != p.n) {
            fprintf(stderr, "%s: %d launches in the second step, %d in the third\n", c->name, before, p.n);
            ok = false;
        }
        before = p.n;
    }
    r->l = p.l;
    p.l = NULL;
    r->n = p.n;
    r->calls = p.calls;
    r->waits = p.waits;
    r->peak = p.peak;
    r->useful = p.useful;
    r->params = dt_model_numel(m, false);
    dt_grad_hooks_remove(id);
    dt_free(x);
    dt_free(y);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_end();
    counting = NULL;
    if (!on) paper_close(&p);
    dt_set_default_device(NULL);
    return ok && !dt_error();
}

/* ---------------------------------------------------------------------------------------------- times */
static double memory_time(const card *k, double bytes) { return bytes / (k->bandwidth * reach_memory); }
static bool   is_tensor(int unit) { return unit >= TENSOR_GEMM && unit <= TENSOR_ATTENTION; }
static double math_time(const card *k, int unit, double flops)
{
    return flops / ((is_tensor(unit) ? k->tensor : k->fma) * reach[unit]);
}
static double launch_time(const card *k, const launch *l)
{
    double t = memory_time(k, l->bytes), u = math_time(k, l->unit, l->flops);
    t = t > u ? t : u;
    return gap + (t > least ? t : least);
}
static double phase_time(const card *k, const run *r, int phase) /* phase PHASES: all phases */
{
    double t = 0;
    for (int i = 0; i < r->n; i++)
        if (phase == PHASES || r->l[i].phase == phase) t += launch_time(k, &r->l[i]);
    return t;
}
static double host_time(const run *r)
{
    double t = (double)r->calls * host_call;
    for (int i = 0; i < r->n; i++) t += host_launch + (r->l[i].library ? host_library : 0);
    return t;
}
static double step_time(const card *k, const run *r)
{
    double t = phase_time(k, r, PHASES), h = host_time(r);
    return t > h ? t : h;
}
static double total(const run *r, int family, int phase, bool flops)
{
    double t = 0;
    for (int i = 0; i < r->n; i++)
        if ((family < 0 || r->l[i].family == family) && (phase == PHASES || r->l[i].phase == phase))
            t += flops ? r->l[i].flops : r->l[i].bytes;
    return t;
}
static int launches(const run *r, int phase)
{
    int n = 0;
    for (int i = 0; i < r->n; i++) n += phase == PHASES || r->l[i].phase == phase;
    return n;
}

/* ---------------------------------------------------------------------------------------------- eight cards */
typedef struct bucket {
    double ready, bytes; /* ready: seconds since the begin of the backward */
} bucket;
static double ring_time(const card *k, double bytes)
{
    dt_costs t = dt_costs_default();
    t.alpha[DT_LINK_THREAD] = ring_alpha;
    t.beta[DT_LINK_THREAD] = 1 / (k->link * reach_link);
    t.gamma = 3 / (k->bandwidth * reach_memory); /* two values are read, one is written */
    return dt_plan_cost(&t, DT_COLL_ALLREDUCE, DT_ALGO_RING, WORLD, NULL, DT_LINK_THREAD, (int64_t)bytes, 0);
}
static double ready_time(const card *k, const run *r, int before)
{
    double t = 0;
    for (int i = 0; i < before && i < r->n; i++)
        if (r->l[i].phase == BACKWARD) t += launch_time(k, &r->l[i]);
    return t;
}
/* Buckets as dt_ddp makes them: in each block in reverse order of creation, the first of 1 MiB, the others of 25 MiB. */
static int make_buckets(const card *k, const run *r, bucket *b, int max)
{
    int    n = 0;
    double limit = FIRST_BUCKET;
    for (int key = 0; key < 2 * 6; key++) {
        bool open = false;
        for (int i = 0; i < r->ngrads; i++) {
            const grad *g = &r->g[i];
            if (g->key != key) continue;
            if (!open || b[n - 1].bytes + g->bytes > limit) {
                if (open) limit = BUCKET;
                if (n == max) return -1;
                b[n].bytes = b[n].ready = 0;
                n++;
                open = true;
            }
            double t = ready_time(k, r, g->ready);
            b[n - 1].bytes += g->bytes;
            if (t > b[n - 1].ready) b[n - 1].ready = t;
        }
    }
    for (int i = 1; i < n; i++) /* sorted by the time at which they are ready */
        for (int j = i; j > 0 && b[j].ready < b[j - 1].ready; j--) {
            bucket t = b[j];
            b[j] = b[j - 1];
            b[j - 1] = t;
        }
    return n;
}

/* ---------------------------------------------------------------------------------------------- single kernels */
typedef struct sums {
    double bytes, flops, seconds, memory;
    int    launches, unit; /* unit: of the launch with most FLOPs */
} sums;
static double kernel_sums(const kernel_row *k, int dtype, const card *on, sums *s) /* returns the number of elements */
{
    paper   p;
    dt_call c;
    memset(&c, 0, sizeof c);
    memset(s, 0, sizeof *s);
    double most = -1;
    c.op = k->op;
    k->make(&c, dtype);
    if (!paper_open(&p, DT_LAYOUT_PLAIN, false)) return 1;
    if (k->op == DT_K_COUNT) count_epilogue(&p, &c.out[0], &c.in[0], c.u.gemm.act);
    else paper_kernel(p.dev, &c);
    for (int i = 0; i < p.n; i++) {
        double t = memory_time(on, p.l[i].bytes), u = math_time(on, p.l[i].unit, p.l[i].flops);
        if (p.l[i].flops > most) most = p.l[i].flops, s->unit = p.l[i].unit;
        s->bytes += p.l[i].bytes;
        s->flops += p.l[i].flops;
        s->seconds += t > u ? t : u;
        s->memory += t > u ? t : 0;
    }
    s->launches = p.n;
    double n = numel(k->input < 0 ? &c.out[0] : &c.in[k->input]);
    paper_close(&p);
    return n;
}

/* ---------------------------------------------------------------------------------------------- tables */
static void print_assumptions(void)
{
    printf("### Assumptions\n\n| | A100 SXM 80 GB | H100 SXM | reached |\n|---|--:|--:|--:|\n");
    printf("| memory | %.2f TB/s | %.2f TB/s | %.0f %% |\n", 1e-12 * cards[0].bandwidth, 1e-12 * cards[1].bandwidth,
           100 * reach_memory);
    printf("| f32, cuBLAS without TF32; convolutions | %.1f TFLOP/s | %.0f TFLOP/s | %.0f %%; %.0f %% |\n",
           1e-12 * cards[0].fma, 1e-12 * cards[1].fma, 100 * reach[FMA], 100 * reach[CONV_FMA]);
    printf("| f32, dt's own kernels | %.1f TFLOP/s | %.0f TFLOP/s | %.0f %% |\n", 1e-12 * cards[0].fma,
           1e-12 * cards[1].fma, 100 * reach[OWN]);
    printf("| f16 and bf16, products on tensor cores | %.0f TFLOP/s | %.0f TFLOP/s | %.0f %% |\n",
           1e-12 * cards[0].tensor, 1e-12 * cards[1].tensor, 100 * reach[TENSOR_GEMM]);
    printf("| f16 and bf16, convolutions on tensor cores, NHWC; NCHW | %.0f TFLOP/s | %.0f TFLOP/s | %.0f %%; %.0f %% |\n",
           1e-12 * cards[0].tensor, 1e-12 * cards[1].tensor, 100 * reach[TENSOR_CONV], 100 * reach[TENSOR_CONV_NCHW]);
    printf("| NVLink, a direction of a card | %.0f GB/s | %.0f GB/s | %.0f %% |\n\n", 1e-9 * cards[0].link,
           1e-9 * cards[1].link, 100 * reach_link);
    printf(
        "A launch takes the device %.0f us and the longer of its bytes, its FLOPs and %.0f us. It takes the host "
        "%.1f us, a call of a\nlibrary %.0f us more, each call of dt's table %.0f us; the queue hides that while the "
        "device has more to do. A step of a ring begins\nafter %.0f us.\n\n",
        1e6 * gap, 1e6 * least, 1e6 * host_launch, 1e6 * host_library, 1e6 * host_call, 1e6 * ring_alpha);
}
static void print_kernels(void)
{
    printf("### Kernels\n\n");
    printf("| kernel | launches | B/element f32 | B/element bf16 | FLOP/element | FLOP/B bf16 | A100 bf16 G/s | "
           "H100 bf16 G/s | bound by |\n|---|--:|--:|--:|--:|--:|--:|--:|---|\n");
    for (size_t i = 0; i < NKERNEL_ROWS; i++) {
        if (kernel_rows[i].beside) continue;
        const kernel_row *k = &kernel_rows[i];
        sums              f, h[NCARDS];
        double            n = kernel_sums(k, DT_F32, &cards[0], &f);
        for (int j = 0; j < NCARDS; j++) kernel_sums(k, DT_BF16, &cards[j], &h[j]);
        bool slow[2] = { h[0].memory < h[0].seconds / 2, h[1].memory < h[1].seconds / 2 };
        printf("| %s | %d | %.1f | %.1f | %.0f | %.1f | %.1f | %.1f | %s |\n", k->name, h[0].launches, f.bytes / n,
               h[0].bytes / n, h[0].flops / n, h[0].flops / h[0].bytes, 1e-9 * n / h[0].seconds,
               1e-9 * n / h[1].seconds,
               slow[0] && slow[1] ? "arithmetic"
               : slow[0]          ? "arithmetic; H100: memory"
                                  : "memory");
    }
    printf("\n");
}
static void print_launches(const run (*r)[2])
{
    printf("### Launches of a step, before and after fusion\n\n");
    printf("| model | precision | before: forward + backward + update | after | saved | GB moved before | after | "
           "waits of the host | memory GB before | after |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for (int i = 0; i < NCONFIGS; i++) {
        const run *a = &r[i][0], *b = &r[i][1];
        printf("| %s | %s | %d + %d + %d = %d | %d + %d + %d = %d | %.0f %% | %.2f | %.2f | %lld | %.2f | %.2f |\n",
               configs[i].name, configs[i].mode, launches(a, FORWARD), launches(a, BACKWARD), launches(a, UPDATE), a->n,
               launches(b, FORWARD), launches(b, BACKWARD), launches(b, UPDATE), b->n,
               100.0 * (1 - (double)b->n / a->n), 1e-9 * total(a, -1, PHASES, false),
               1e-9 * total(b, -1, PHASES, false), (long long)b->waits, 1e-9 * (double)a->peak, 1e-9 * (double)b->peak);
    }
    printf("\n");
}
static void print_steps(const run (*r)[2])
{
    printf("### The time of a step\n\n");
    printf("| model | precision | card | forward ms | backward ms | update ms | host ms | step ms | rate | "
           "before fusion ms |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for (int i = 0; i < NCONFIGS; i++)
        for (int j = 0; j < NCARDS; j++) {
            const run  *b = &r[i][1];
            const card *k = &cards[j];
            double      t = step_time(k, b);
            printf("| %s | %s | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.0f %s/s | %.2f |\n", configs[i].name,
                   configs[i].mode, k->name, 1e3 * phase_time(k, b, FORWARD), 1e3 * phase_time(k, b, BACKWARD),
                   1e3 * phase_time(k, b, UPDATE), 1e3 * host_time(b), 1e3 * t, (double)configs[i].rows / t,
                   configs[i].items, 1e3 * step_time(k, &r[i][0]));
        }
    printf("\n");
}
static void print_families(const run (*r)[2])
{
    printf("### Launches and milliseconds by family, A100\n\n| family");
    for (int i = 2; i < NCONFIGS; i++)
        printf(" | %.*s %s", (int)strcspn(configs[i].name, ","), configs[i].name, configs[i].mode);
    printf(" | GPT-2 before fusion |\n|---|");
    for (int i = 2; i <= NCONFIGS; i++) printf("--:|");
    printf("\n");
    for (int f = 0; f < F_COUNT; f++) {
        printf("| %s", family_name[f]);
        for (int i = 2; i <= NCONFIGS; i++) {
            const run *b = i < NCONFIGS ? &r[i][1] : &r[GPT2][0];
            double     t = 0;
            int        n = 0;
            for (int k = 0; k < b->n; k++)
                if (b->l[k].family == f) t += launch_time(&cards[0], &b->l[k]), n++;
            if (n) printf(" | %d: %.1f ms", n, 1e3 * t);
            else printf(" | ");
        }
        printf(" |\n");
    }
    double f = total(&r[GPT2_ONE][1], F_ATTENTION, PHASES, true);
    printf(
        "\nAttention of GPT-2 is %.2f TFLOP a step. With tensor cores at %.0f %% of their peak it would take %.1f ms "
        "on an A100, %.1f ms on an\nH100.\n\n",
        1e-12 * f, 100 * reach[TENSOR_ATTENTION], 1e3 * math_time(&cards[0], TENSOR_ATTENTION, f),
        1e3 * math_time(&cards[1], TENSOR_ATTENTION, f));
}
/* One card. fitted: a rate from which reach was taken, so it must come out; a check fails if it does not. */
enum { RESNET_F32 = 2, RESNET_NHWC = 4 };
static const struct {
    const char *what, *source;
    int         config;
    const card *on;
    bool        fused, fitted;
    double      least, most; /* published */
} published[] = {
    { "ResNet-50 f32", "NVIDIA DeepLearningExamples, V100-16 FP32", RESNET_F32, &v100, true, true, 367, 367 },
    { "ResNet-50 O2 bf16 NHWC", "the same, A100 AMP", RESNET_NHWC, &cards[0], true, true, 2470, 2470 },
    { "ResNet-50 O2 bf16 NHWC", "the same, V100-16 AMP", RESNET_NHWC, &v100, true, false, 1200, 1200 },
    { "GPT-2 124M O2 bf16", "about, as reported of llm.c and nanoGPT on one A100, attention on tensor cores", GPT2,
      &cards[0], true, false, 180e3, 230e3 },
    { "... its attention on tensor cores", "the same", -GPT2_ONE, &cards[0], true, false, 180e3, 230e3 },
};
static double rate_beside(const run (*r)[2], size_t i)
{
    int        at = abs(published[i].config);
    const run *b = &r[at][published[i].fused];
    double     t = step_time(published[i].on, b);
    if (published[i].config < 0)
        for (int k = 0; k < b->n; k++)
            if (b->l[k].family == F_ATTENTION)
                t += math_time(published[i].on, TENSOR_ATTENTION, b->l[k].flops) - launch_time(published[i].on, &b->l[k]);
    return (double)configs[at].rows / t;
}
static void print_published(const run (*r)[2])
{
    printf("### Beside published figures\n\n| model | card | computed | published | of it | source |\n");
    printf("|---|---|--:|--:|--:|---|\n");
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        double rate = rate_beside(r, i), middle = (published[i].least + published[i].most) / 2;
        char   text[64];
        snprintf(text, sizeof text, published[i].least < published[i].most ? "%.0f to %.0f" : "%.0f", published[i].least,
                 published[i].most);
        printf("| %s | %s | %.0f | %s | %.0f %%%s | %s |\n", published[i].what, published[i].on->name, rate, text,
               100 * rate / middle, published[i].fitted ? ", fitted" : "", published[i].source);
    }
    printf("\nOf 8 A100 ResNet-50 is published with 16,621 images/s, 84 %% of 8 times one; the table of 8 cards leaves out "
           "reading and decoding images,\nand cards that wait for the slowest.\n\n");
}
static int print_eight(const run (*r)[2])
{
    printf("### Data parallel, %d cards\n\n", WORLD);
    printf("| model | precision | card | buckets | gradients MB | first bucket ms | all reduced in ms (T2) | "
           "step ms, formula | by buckets | of one card's rate |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for (int i = 2; i < NCONFIGS; i++)
        for (int j = 0; j < NCARDS; j++) {
            const run  *b = &r[i][1];
            const card *k = &cards[j];
            bucket      all[512];
            int         n = make_buckets(k, b, all, 512);
            double      t2 = 0, end = 0, bytes = 0, back = phase_time(k, b, BACKWARD);
            double      rest = phase_time(k, b, FORWARD) + phase_time(k, b, UPDATE);
            if (n < 1) return 1;
            for (int q = 0; q < n; q++) {
                launch scaled = { F_EW, BACKWARD, OWN, 0, 2 * all[q].bytes, 0 }; /* scaled and checked for overflow */
                double t = launch_time(k, &scaled) + ring_time(k, all[q].bytes);
                t2 += t;
                bytes += all[q].bytes;
                end = (end > all[q].ready ? end : all[q].ready) + t;
            }
            double formula = rest + (back > all[0].ready + t2 ? back : all[0].ready + t2);
            double exact = rest + (back > end ? back : end);
            printf("| %s | %s | %s | %d | %.1f | %.2f | %.2f | %.2f | %.2f | %.1f %% |\n", configs[i].name,
                   configs[i].mode, k->name, n, 1e-6 * bytes, 1e3 * all[0].ready, 1e3 * t2, 1e3 * formula, 1e3 * exact,
                   100 * phase_time(k, b, PHASES) / exact);
        }
    printf("\n");
    return 0;
}

/* ---------------------------------------------------------------------------------------------- checks */
static int near(const char *what, double is, double should, double tolerance)
{
    if (fabs(is - should) <= tolerance * fabs(should)) return 0;
    fprintf(stderr, "gpu_paper: %s is %.6g, expected %.6g\n", what, is, should);
    return 1;
}
/* Compares counts with known properties of the models, and the time of a ring with dt_plan_cost's formula. */
static int check(const run (*r)[2])
{
    int    bad = 0;
    double tokens = 16.0 * CONTEXT, weights = 12.0 * LAYERS * DIM * DIM + (double)VOCAB * DIM;
    for (int i = 0; i < NCONFIGS; i++)
        for (int k = 0; k < 2; k++) {
            const run *b = &r[i][k];
            if (is_resnet50(&configs[i])) {
                bad |= near("ResNet-50: parameters", (double)b->params, 25557032, 0);
                bad |= near("ResNet-50: GFLOP of an image forward", 1e-9 * b->useful / 256, 8.178, 0.001);
                bad |= near("ResNet-50: FLOPs of a step over those of a forward",
                            (total(b, F_CONV, PHASES, true) + total(b, F_GEMM, PHASES, true)) / b->useful,
                            3 - 2 * 64.0 * 3 * 49 * 112 * 112 * 256 / b->useful, 1e-9); /* images have no gradient */
            }
            if (!is_gpt(&configs[i])) continue;
            bad |= near("GPT-2: parameters", (double)b->params, 124439808, 0);
            double gemm = total(b, F_GEMM, PHASES, true);
            /* not fused: products that are not masked. Fused: 3 with scores and twice 4 with their halves, of 3/4 of the pairs */
            double scores = LAYERS * 2 * tokens * CONTEXT * DIM * (!k ? 6 : i == GPT2_ONE ? 0 : 11 * 0.75);
            bad |= near("GPT-2: FLOPs of products", gemm, 6 * weights * tokens + scores, 1e-9);
            if (k) bad |= near("GPT-2: 6 N a token", gemm - scores, 6 * 124439808.0 * tokens, 0.01);
        }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].fitted) bad |= near(published[i].source, rate_beside(r, i), published[i].least, 0.02);
    for (int j = 0; j < NCARDS; j++) {
        double n = 1e8, p = WORLD, moved = n * (p - 1) / p;
        bad |= near("a ring", ring_time(&cards[j], n),
                    2 * (p - 1) * ring_alpha + 2 * moved / (cards[j].link * reach_link) +
                        3 * moved / (cards[j].bandwidth * reach_memory),
                    1e-9);
    }
    return bad;
}
#ifdef DT_USE_CUDA
/* ---------------------------------------------------------------------------------------------- the real launchers
   These functions override those of the emulated libraries: memory is reserved addresses, launches are recorded. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
static void            count_one(int family)
{
    if (counting) note(counting, family, OWN, 0, 0);
}
cudaError_t cudaMalloc(void **ptr, size_t nbytes)
{
    static char  *range;
    static size_t next;
    if (!range) range = (char *)mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == (char *)MAP_FAILED || nbytes > RANGE - next) return cudaErrorMemoryAllocation;
    *ptr = range + next;
    next += (nbytes + 511) / 512 * 512;
    return cudaSuccess;
}
cudaError_t cudaFree(void *ptr) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (kind == cudaMemcpyDeviceToHost) memset(to, 0, n);
    count_one(F_EW);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t s)
{
    count_one(F_EW);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s)
{
    count_one(F_EW);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s);
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s)
{
    count_one(F_EW);
    return cudaSuccess;
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                          int k, const void *alpha, const void *a, cudaDataType at, int lda,
                                          long long sa, const void *b, cudaDataType bt, int ldb, long long sb,
                                          const void *beta, void *c, cudaDataType ct, int ldc, long long sc, int batch,
                                          cublasComputeType_t type, cublasGemmAlgo_t algo)
{
    count_one(F_GEMM);
    return CUBLAS_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                      const void *x, const cudnnFilterDescriptor_t wd, const void *w,
                                      const cudnnConvolutionDescriptor_t cd, cudnnConvolutionFwdAlgo_t algo, void *ws,
                                      size_t n, const void *beta, const cudnnTensorDescriptor_t yd, void *y)
{
    count_one(F_CONV);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha, const cudnnFilterDescriptor_t wd,
                                           const void *w, const cudnnTensorDescriptor_t yd, const void *dy,
                                           const cudnnConvolutionDescriptor_t cd, cudnnConvolutionBwdDataAlgo_t algo,
                                           void *ws, size_t n, const void *beta, const cudnnTensorDescriptor_t xd,
                                           void *dx)
{
    count_one(F_CONV);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                             const void *x, const cudnnTensorDescriptor_t yd, const void *dy,
                                             const cudnnConvolutionDescriptor_t cd,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *ws, size_t n, const void *beta,
                                             const cudnnFilterDescriptor_t wd, void *dw)
{
    count_one(F_CONV);
    return CUDNN_STATUS_SUCCESS;
}
static int launches_of(const run *r, int phase, int kind) /* kind 0: kernels and copies, 1: products, 2: convolutions */
{
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        int f = r->l[i].family;
        n += r->l[i].phase == phase && kind == (f == F_GEMM ? 1 : f == F_CONV ? 2 : 0);
    }
    return n;
}
static int compare(const config *c, bool fused)
{
    static const char *const phase[] = { "forward", "backward", "update" };
    dt_device               *gpu = dt_cuda(0);
    run                      paper_run, real_run;
    int                      bad = 0;
    if (!gpu || dt_cuda_set(gpu, .layout = c->layout ? (int)c->layout : DT_ZERO)) return 1;
    if (!run_config(&paper_run, c, fused, NULL) || !run_config(&real_run, c, fused, gpu)) return 1;
    for (int p = 0; p < (fused ? PHASES : UPDATE); p++) { /* without fusion the updates are not made by dt */
        int a[3], b[3];
        for (int k = 0; k < 3; k++) {
            a[k] = launches_of(&paper_run, p, k);
            b[k] = launches_of(&real_run, p, k);
            if (a[k] != b[k]) bad = 1;
        }
        printf("%s, %s, %s fusion, %s: kernels and copies %d, products %d, convolutions %d; launched %d, %d, %d%s\n",
               c->name, c->mode, fused ? "after" : "before", phase[p], a[0], a[1], a[2], b[0], b[1], b[2],
               bad ? ": NOT THE SAME" : "");
    }
    free(paper_run.l), free(paper_run.g);
    free(real_run.l), free(real_run.g);
    return bad;
}
static int compare_all(void) /* 0, or 1 after an error; -1 if not built with DT_USE_CUDA */
{
    int bad = 0;
    setenv("DT_EMU_CC", "80", 1);
    for (int i = 0; i < NCONFIGS; i++)
        for (int k = 0; k < 2 && i != GPT2_ONE; k++) bad += compare(&configs[i], k == 1); /* the emulated device goes by products */
    printf("%d passed, %d failed, 0 skipped\n", 2 * (NCONFIGS - 1) - bad, bad);
    return dt_check("gpu_paper") || bad;
}
#else
static int compare_all(void) { return -1; }
#endif /* DT_USE_CUDA */
/* For gpu_perf --time: row, type, part, launches, bytes, FLOPs, unit, reached of memory, of arithmetic, with tabs between */
static int print_rows(int64_t share)
{
    static const struct {
        const char *name;
        int         dtype;
    } types[] = { { "f32", DT_F32 }, { "f16", DT_F16 }, { "bf16", DT_BF16 } };
    rows_part = share > 0 ? share : 1;
    for (int i = 0; i < NKERNEL_ROWS; i++)
        for (int t = 0; t < 3; t++) {
            sums s;
            kernel_sums(&kernel_rows[i], types[t].dtype, &cards[0], &s);
            printf("%s\t%s\t%d\t%d\t%.0f\t%.0f\t%s\t%g\t%g\n", kernel_rows[i].name, types[t].name, (int)rows_part,
                   s.launches, s.bytes, s.flops, is_tensor(s.unit) ? "tensor" : "fma", reach_memory, reach[s.unit]);
        }
    return dt_check("gpu_paper");
}
int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--rows")) return print_rows(atoll(argv[2]));
    static run r[NCONFIGS][2]; /* [0] not fused, [1] fused */
    int        bad = compare_all();
    if (bad >= 0) return bad;
    bad = 0;
    for (int i = 0; i < NCONFIGS; i++)
        for (int k = 0; k < 2 && !bad; k++)
            if (!run_config(&r[i][k], &configs[i], k == 1, NULL)) bad = 1;
    if (bad) return dt_check("gpu_paper") || 1;
    bad = check((const run(*)[2])r);
    print_assumptions();
    print_kernels();
    print_launches((const run(*)[2])r);
    print_steps((const run(*)[2])r);
    print_published((const run(*)[2])r);
    print_families((const run(*)[2])r);
    bad |= print_eight((const run(*)[2])r);
    for (int i = 0; i < NCONFIGS; i++)
        for (int k = 0; k < 2; k++) {
            free(r[i][k].l);
            free(r[i][k].g);
        }
    return dt_check("gpu_paper") || bad;
}
