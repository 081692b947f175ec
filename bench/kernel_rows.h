/* kernel_rows.h: a call of every kernel of kernels/, at a typical shape. bench/gpu_paper.c computes what they should cost,
   tests/gpu/gpu_perf.c counts what they cost in the interpreter, or measures them on a GPU.

   A row makes a dt_call without memory. rows_part divides the outermost size of the operands: the interpreter needs seconds
   where a GPU needs microseconds. Include dt.h first. */
#ifndef DT_KERNEL_ROWS_H
#define DT_KERNEL_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { DIM = 768, HEADS = 12, CONTEXT = 1024, VOCAB = 50257 };

static int64_t rows_part = 1;
static int64_t index_limit, index_step; /* of the row made last: integers are below limit; or multiples of step */
static int64_t cut(int64_t n) { return n / rows_part > 0 ? n / rows_part : 1; }
static int64_t context(void) { return rows_part > 1 ? CONTEXT / 4 : CONTEXT; }
static double numel(const dt_view *v)
{
    double n = 1;
    for (int d = 0; d < v->ndim; d++) n *= (double)v->shape[d];
    return n;
}
static void dense(dt_view *v)
{
    int64_t n = 1;
    for (int i = v->ndim - 1; i >= 0; i--) {
        v->stride[i] = n;
        n *= v->shape[i];
    }
}
static dt_view view_of(int dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t d)
{
    dt_view v;
    int64_t shape[4] = { a, b, c, d };
    memset(&v, 0, sizeof v);
    v.dtype = dtype;
    v.ndim = ndim;
    for (int i = 0; i < ndim; i++) v.shape[i] = shape[i];
    dense(&v);
    return v;
}
static const dt_view absent = { NULL, 0, 0, -1, 0, { 0 }, { 0 } };
static void          operands(dt_call *c, int nout, int nin)
{
    c->nout = nout;
    c->nin = nin;
    for (int i = 0; i < DT_MAX_OUT; i++) c->out[i] = absent;
    for (int i = 0; i < DT_MAX_IN; i++) c->in[i] = absent;
}
static void flat(dt_call *c, int nout, int nin, int dtype) /* all operands have the same shape, 2^24 elements */
{
    operands(c, nout, nin);
    for (int i = 0; i < nout; i++) c->out[i] = view_of(dtype, 1, cut(1 << 24), 0, 0, 0);
    for (int i = 0; i < nin; i++) c->in[i] = view_of(dtype, 1, cut(1 << 24), 0, 0, 0);
}
static void of_copy(dt_call *c, int t)
{
    flat(c, 1, 1, t);
    c->in[0].dtype = DT_F32;
}
static void of_unary(dt_call *c, int t) { flat(c, 1, 1, t), c->u.ew.fn = DT_U_RELU; }
static void of_gelu(dt_call *c, int t) { flat(c, 1, 1, t), c->u.ew.fn = DT_U_GELU_TANH; }
static void of_gelu_bwd(dt_call *c, int t) { flat(c, 1, 2, t), c->u.ew.fn = DT_U_GELU_TANH; }
static void of_binary(dt_call *c, int t) { flat(c, 1, 2, t), c->u.ew.fn = DT_B_ADD, c->u.ew.a = c->u.ew.b = 1; }
static void of_where(dt_call *c, int t)
{
    flat(c, 1, 3, t);
    c->in[0].dtype = DT_U8;
}
static void of_fill(dt_call *c, int t) { flat(c, 1, 0, t), c->u.ew.a = 2; }
static void of_dropout(dt_call *c, int t) { flat(c, 1, 1, t), c->u.dropout.p = 0.1; }
static void of_sum(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->in[0] = view_of(t, 2, cut(1 << 14), 1 << 10, 0, 0);
    c->out[0] = view_of(t, 2, 1, 1 << 10, 0, 0);
    c->u.reduce.fn = DT_R_SUM;
}
static void of_softmax(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = c->in[0] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
}
static void of_softmax_bwd(dt_call *c, int t)
{
    operands(c, 1, 2);
    c->out[0] = c->in[0] = c->in[1] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
}
static void of_loss(dt_call *c, int t)
{
    operands(c, 3, 2);
    index_limit = VOCAB;
    c->u.loss.ignore = -100;
    c->in[0] = view_of(t, 2, cut(4096), VOCAB, 0, 0);
    c->in[1] = view_of(DT_I64, 1, cut(4096), 0, 0, 0);
    c->out[0] = c->out[2] = view_of(DT_F32, 1, 1, 0, 0, 0);
    c->out[1] = view_of(DT_F32, 1, 2 * cut(4096), 0, 0, 0);
}
static void of_loss_bwd(dt_call *c, int t)
{
    operands(c, 1, 5);
    index_limit = VOCAB;
    c->u.loss.ignore = -100;
    c->out[0] = c->in[1] = view_of(t, 2, cut(4096), VOCAB, 0, 0);
    c->in[0] = c->in[4] = view_of(DT_F32, 1, 1, 0, 0, 0);
    c->in[2] = view_of(DT_I64, 1, cut(4096), 0, 0, 0);
    c->in[3] = view_of(DT_F32, 1, 2 * cut(4096), 0, 0, 0);
}
static void of_layer_norm(dt_call *c, int t)
{
    operands(c, 3, 3);
    c->out[0] = c->in[0] = view_of(t, 2, cut(1 << 14), DIM, 0, 0);
    c->out[1] = c->out[2] = view_of(DT_F32, 1, cut(1 << 14), 0, 0, 0);
    c->in[1] = c->in[2] = view_of(t, 1, DIM, 0, 0, 0);
}
static void of_rms_norm(dt_call *c, int t)
{
    of_layer_norm(c, t);
    c->out[1] = c->in[2] = absent;
    c->u.norm.rms = 1;
}
static void of_layer_norm_bwd(dt_call *c, int t)
{
    operands(c, 3, 5);
    c->out[0] = c->in[0] = c->in[1] = view_of(t, 2, cut(1 << 14), DIM, 0, 0);
    c->out[1] = c->out[2] = c->in[2] = view_of(t, 1, DIM, 0, 0, 0);
    c->in[3] = c->in[4] = view_of(DT_F32, 1, cut(1 << 14), 0, 0, 0);
}
static void of_batch_norm(dt_call *c, int t)
{
    operands(c, 5, 6);
    c->out[0] = c->in[0] = view_of(t, 4, cut(64), 256, 56, 56);
    for (int i = 1; i < 5; i++) c->out[i] = c->in[i] = view_of(DT_F32, 1, 256, 0, 0, 0);
    c->u.norm.train = 1;
    c->u.norm.eps = 1e-5;
    c->u.norm.act = DT_ACT_RELU;
}
static void of_batch_norm_add(dt_call *c, int t)
{
    of_batch_norm(c, t);
    c->in[5] = c->in[0];
}
static void of_batch_norm_bwd(dt_call *c, int t)
{
    operands(c, 4, 6);
    c->out[0] = c->in[0] = c->in[1] = c->in[5] = view_of(t, 4, cut(64), 256, 56, 56);
    c->out[1] = c->out[2] = c->in[2] = c->in[3] = c->in[4] = view_of(DT_F32, 1, 256, 0, 0, 0);
    c->u.norm.train = 1;
    c->u.norm.eps = 1e-5;
    c->u.norm.act = DT_ACT_RELU;
}
static void of_batch_norm_add_bwd(dt_call *c, int t)
{
    of_batch_norm_bwd(c, t);
    c->out[3] = c->out[0];
}
static void of_maxpool(dt_call *c, int t)
{
    operands(c, 2, 1);
    c->in[0] = view_of(t, 4, cut(64), 64, 112, 112);
    c->out[0] = view_of(t, 4, cut(64), 64, 56, 56);
    c->out[1] = view_of(DT_U8, 4, cut(64), 64, 56, 56);
    c->u.pool.max = 1;
    c->u.pool.kernel[0] = c->u.pool.kernel[1] = 3;
    c->u.pool.stride[0] = c->u.pool.stride[1] = 2;
    c->u.pool.pad[0] = c->u.pool.pad[1] = 1;
}
static void of_maxpool_bwd(dt_call *c, int t)
{
    operands(c, 1, 2);
    c->out[0] = view_of(t, 4, cut(64), 64, 112, 112);
    c->in[0] = view_of(t, 4, cut(64), 64, 56, 56);
    c->in[1] = view_of(DT_U8, 4, cut(64), 64, 56, 56);
    c->u.pool.max = 1;
    c->u.pool.kernel[0] = c->u.pool.kernel[1] = 3;
    c->u.pool.stride[0] = c->u.pool.stride[1] = 2;
    c->u.pool.pad[0] = c->u.pool.pad[1] = 1;
}
static void of_embedding(dt_call *c, int t)
{
    operands(c, 1, 2);
    index_limit = cut(VOCAB);
    c->out[0] = view_of(t, 2, cut(1 << 14), DIM, 0, 0);
    c->in[0] = view_of(DT_I64, 1, cut(1 << 14), 0, 0, 0);
    c->in[1] = view_of(t, 2, cut(VOCAB), DIM, 0, 0);
}
static void of_embedding_bwd(dt_call *c, int t)
{
    operands(c, 1, 2);
    index_limit = cut(VOCAB);
    c->out[0] = view_of(t, 2, cut(VOCAB), DIM, 0, 0);
    c->in[0] = view_of(t, 2, cut(1 << 14), DIM, 0, 0);
    c->in[1] = view_of(DT_I64, 1, cut(1 << 14), 0, 0, 0);
    c->acc = 1;
}
static void of_gather(dt_call *c, int t)
{
    operands(c, 1, 2);
    index_limit = 1024;
    c->out[0] = view_of(t, 3, cut(1 << 14), 64, 1, 0);
    c->in[0] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
    c->in[1] = view_of(DT_I64, 3, cut(1 << 14), 64, 1, 0);
}
static dt_view heads_of(int t) { return view_of(t, 4, cut(16), HEADS, context(), 64); }
static void of_attention(dt_call *c, int t)
{
    operands(c, 2, 3);
    c->out[0] = c->in[0] = c->in[1] = c->in[2] = heads_of(t);
    c->out[1] = view_of(DT_F32, 3, cut(16), HEADS, context(), 0);
    c->u.attn.causal = 1;
    c->u.attn.scale = 0.125;
}
static void of_attention_bwd(dt_call *c, int t)
{
    operands(c, 3, 6);
    for (int i = 0; i < 5; i++) c->in[i] = heads_of(t);
    for (int i = 0; i < 3; i++) c->out[i] = c->in[0];
    c->in[5] = view_of(DT_F32, 3, cut(16), HEADS, context(), 0);
    c->u.attn.causal = 1;
    c->u.attn.scale = 0.125;
}
static void of_update(dt_call *c, int t, int nstates, int copy) /* gradients are f32 after unscale */
{
    c->u.opt.lr = 1e-3, c->u.opt.b1 = 0.9, c->u.opt.b2 = 0.99, c->u.opt.eps = 1e-8, c->u.opt.c1 = c->u.opt.c2 = 0.5;
    operands(c, copy + 1, 1);
    for (int i = 0; i <= nstates; i++) c->out[i] = view_of(DT_F32, 1, cut(1 << 24), 0, 0, 0);
    c->in[0] = view_of(DT_F32, 1, cut(1 << 24), 0, 0, 0);
    if (t != DT_F32) c->out[copy] = view_of(t, 1, cut(1 << 24), 0, 0, 0);
}
static void of_sgd(dt_call *c, int t) { of_update(c, t, 1, 2); }
static void of_adam(dt_call *c, int t) { of_update(c, t, 2, 4); }
static void of_unscale(dt_call *c, int t)
{
    operands(c, 2, 1);
    c->out[0] = view_of(DT_F32, 1, cut(1 << 24), 0, 0, 0);
    c->out[1] = view_of(DT_F32, 1, 1, 0, 0, 0);
    c->in[0] = view_of(t, 1, cut(1 << 24), 0, 0, 0);
}
static void of_norms(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = view_of(DT_F32, 1, 1, 0, 0, 0);
    c->in[0] = view_of(t, 1, cut(1 << 24), 0, 0, 0);
}


/* ---- those that are not in the tables of docs/gpu.md: every other kernel of kernels/ */
static dt_view nhwc(dt_view v)
{
    v.layout = DT_LAYOUT_NHWC;
    v.stride[1] = 1;
    v.stride[3] = v.shape[1];
    v.stride[2] = v.shape[1] * v.shape[3];
    return v;
}
static void all_nhwc(dt_call *c)
{
    for (int i = 0; i < DT_MAX_OUT; i++)
        if (c->out[i].ndim == 4) c->out[i] = nhwc(c->out[i]);
    for (int i = 0; i < DT_MAX_IN; i++)
        if (c->in[i].ndim == 4) c->in[i] = nhwc(c->in[i]);
}
static void of_turn(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = c->in[0] = view_of(t, 2, cut(1 << 14), 1024, 0, 0);
    c->in[0].stride[0] = 1;
    c->in[0].stride[1] = c->in[0].shape[0];
}
static void of_rows(dt_call *c, int t) /* a part of a wider tensor */
{
    operands(c, 1, 1);
    c->out[0] = c->in[0] = view_of(t, 2, cut(1 << 14), DIM, 0, 0);
    c->in[0].stride[0] = 3 * DIM;
}
static void of_iota(dt_call *c, int t) { flat(c, 1, 0, t), c->u.ew.b = 1; }
static void of_ints(dt_call *c, int t)
{
    flat(c, 1, 2, t == DT_F32 ? DT_I32 : DT_I64);
    c->u.ew.fn = DT_B_ADD, c->u.ew.a = c->u.ew.b = 1;
}
static void of_where_add(dt_call *c, int t) { of_where(c, t), c->acc = 1; }
static void of_where_rows(dt_call *c, int t) /* the condition is one for a row */
{
    operands(c, 1, 3);
    c->out[0] = c->in[1] = c->in[2] = view_of(t, 2, cut(1 << 14), 1024, 0, 0);
    c->in[0] = view_of(DT_I32, 2, cut(1 << 14), 1024, 0, 0);
    c->in[0].stride[0] = 1, c->in[0].stride[1] = 0;
}
static void of_epilogue(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = view_of(t, 2, cut(1 << 14), 1024, 0, 0);
    c->in[0] = view_of(t, 1, 1024, 0, 0, 0);
    c->u.gemm.act = DT_ACT_TANH;
}
static void of_sum_along(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->in[0] = view_of(t, 2, cut(1 << 14), 1024, 0, 0);
    c->out[0] = view_of(t, 2, cut(1 << 14), 1, 0, 0);
    c->u.reduce.fn = DT_R_SUM, c->u.reduce.n = 1024;
}
static void of_argmax(dt_call *c, int t) { of_sum_along(c, t), c->out[0].dtype = DT_I64, c->u.reduce.fn = DT_R_ARGMAX; }
static void of_var(dt_call *c, int t) { of_sum_along(c, t), c->u.reduce.fn = DT_R_VAR; }
static void of_sum_all(dt_call *c, int t)
{
    flat(c, 1, 1, t);
    c->out[0] = view_of(t, 1, 1, 0, 0, 0);
    c->u.reduce.fn = DT_R_SUM, c->u.reduce.n = c->in[0].shape[0];
}
static void of_softmax_short(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = c->in[0] = view_of(t, 3, cut(1 << 16), 256, 1, 0);
}
static void of_softmax_chs(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = c->in[0] = view_of(t, 3, cut(256), 64, 1024, 0);
}
static void of_softmax_chs_bwd(dt_call *c, int t)
{
    operands(c, 1, 2);
    c->out[0] = c->in[0] = c->in[1] = view_of(t, 3, cut(256), 64, 1024, 0);
}
static void of_loss_padded(dt_call *c, int t) /* rows of a multiple of 64 columns */
{
    of_loss(c, t);
    c->in[0] = view_of(t, 2, cut(4096), (VOCAB + 63) / 64 * 64, 0, 0);
}
static void narrow_loss(dt_call *c, int classes)
{
    for (int i = 0; i < 2; i++)
        if (c->in[i].ndim == 2) c->in[i] = view_of(c->in[i].dtype, 2, cut(1 << 14), classes, 0, 0);
    if (c->op == DT_K_cross_entropy) {
        c->in[1] = view_of(DT_I64, 1, cut(1 << 14), 0, 0, 0);
        c->out[1] = view_of(DT_F32, 1, 2 * cut(1 << 14), 0, 0, 0);
    } else {
        c->out[0] = view_of(c->out[0].dtype, 2, cut(1 << 14), classes, 0, 0);
        c->in[2] = view_of(DT_I64, 1, cut(1 << 14), 0, 0, 0);
        c->in[3] = view_of(DT_F32, 1, 2 * cut(1 << 14), 0, 0, 0);
    }
    index_limit = classes;
}
static void of_loss_1000(dt_call *c, int t) { of_loss(c, t), narrow_loss(c, 1000); }
static void of_loss_1000_bwd(dt_call *c, int t) { of_loss_bwd(c, t), narrow_loss(c, 1000); }
static void of_loss_smooth_bwd(dt_call *c, int t)
{
    of_loss_1000_bwd(c, t);
    c->nin = 6;
    c->in[5] = view_of(t, 1, 1000, 0, 0, 0);
    c->u.loss.smoothing = 0.1;
}
static void of_nll(dt_call *c, int t) { of_loss_1000(c, t), c->u.loss.nll = 1; }
static void of_nll_bwd(dt_call *c, int t) { of_loss_1000_bwd(c, t), c->u.loss.nll = 1; }
static void of_layer_norm_wide(dt_call *c, int t)
{
    of_layer_norm(c, t);
    c->out[0] = c->in[0] = view_of(t, 2, cut(1 << 12), 8192, 0, 0);
    c->out[1] = c->out[2] = view_of(DT_F32, 1, cut(1 << 12), 0, 0, 0);
    c->in[1] = c->in[2] = view_of(t, 1, 8192, 0, 0, 0);
}
static void of_batch_norm_nhwc(dt_call *c, int t) { of_batch_norm(c, t), all_nhwc(c); }
static void of_batch_norm_bwd_nhwc(dt_call *c, int t) { of_batch_norm_bwd(c, t), all_nhwc(c); }
static void of_maxpool_nhwc(dt_call *c, int t) { of_maxpool(c, t), all_nhwc(c); }
static void of_maxpool_bwd_nhwc(dt_call *c, int t) { of_maxpool_bwd(c, t), all_nhwc(c); }
static void of_average(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->in[0] = view_of(t, 4, cut(64), 2048, 7, 7);
    c->out[0] = view_of(t, 4, cut(64), 2048, 1, 1);
    c->u.pool.adaptive = 1;
}
static void of_average_wide(dt_call *c, int t)
{
    of_average(c, t);
    c->in[0] = view_of(t, 4, cut(64), 256, 28, 28);
    c->out[0] = view_of(t, 4, cut(64), 256, 1, 1);
}
static void of_gather_bwd(dt_call *c, int t)
{
    of_gather(c, t);
    c->in[0] = c->out[0];
    c->out[0] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
}
static void of_gather_one_bwd(dt_call *c, int t) /* one index for each column */
{
    operands(c, 1, 2);
    index_limit = 64;
    c->in[0] = view_of(t, 3, cut(1 << 14), 1, 16, 0);
    c->in[1] = view_of(DT_I64, 3, cut(1 << 14), 1, 16, 0);
    c->out[0] = view_of(t, 3, cut(1 << 14), 64, 16, 0);
}
static void of_scan(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->out[0] = c->in[0] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
    c->u.scan.fn = DT_R_SUM;
}
static void of_scan_columns(dt_call *c, int t)
{
    of_scan(c, t);
    c->out[0] = c->in[0] = view_of(t, 3, cut(1 << 8), 64, 1024, 0);
}
static void of_sort(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->in[0] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
    c->out[0] = view_of(DT_I64, 3, cut(1 << 14), 1024, 1, 0);
}
static void of_sort_long(dt_call *c, int t)
{
    of_sort(c, t);
    c->in[0] = view_of(t, 3, cut(1 << 12), 4096, 1, 0);
    c->out[0] = view_of(DT_I64, 3, cut(1 << 12), 100, 1, 0);
}
static void of_scatter(dt_call *c, int t)
{
    operands(c, 1, 2);
    index_limit = 1024;
    c->out[0] = view_of(t, 3, cut(1 << 14), 1024, 1, 0);
    c->in[0] = view_of(DT_I64, 3, cut(1 << 14), 256, 1, 0);
    c->in[1] = view_of(t, 3, cut(1 << 14), 256, 1, 0);
}
static void of_count(dt_call *c, int t) /* a histogram */
{
    of_scatter(c, t == DT_F32 ? DT_I64 : DT_U8);
    c->u.scatter.add = 1;
}
static void of_resize(dt_call *c, int t)
{
    operands(c, 1, 1);
    c->in[0] = view_of(t, 3, cut(1 << 10), 64, 64, 0);
    c->out[0] = view_of(t, 3, cut(1 << 10), 128, 128, 0);
    c->u.resize.linear = 1;
    c->u.resize.scale[0] = c->u.resize.scale[1] = 0.5;
}
static void of_resize_bwd(dt_call *c, int t)
{
    of_resize(c, t);
    dt_view x = c->in[0];
    c->in[0] = c->out[0];
    c->out[0] = x;
}
static void of_lstm(dt_call *c, int t)
{
    operands(c, 4, 4);
    c->out[0] = c->in[2] = view_of(t, 2, cut(1 << 14), 512, 0, 0);
    c->out[1] = c->in[3] = view_of(DT_F32, 2, cut(1 << 14), 512, 0, 0);
    c->out[3] = c->in[0] = view_of(t, 2, cut(1 << 14), 2048, 0, 0);
    c->u.cell.kind = DT_CELL_LSTM;
}
static void of_lstm_bwd(dt_call *c, int t)
{
    operands(c, 4, 6);
    c->out[0] = c->in[3] = view_of(t, 2, cut(1 << 14), 2048, 0, 0);
    c->out[2] = c->in[0] = view_of(t, 2, cut(1 << 14), 512, 0, 0);
    c->out[3] = c->in[2] = c->in[4] = c->in[5] = view_of(DT_F32, 2, cut(1 << 14), 512, 0, 0);
    c->u.cell.kind = DT_CELL_LSTM;
}
/* ---- libraries: no kernel of ours, and nothing to count */
static void of_product(dt_call *c, int t)
{
    operands(c, 1, 2);
    int64_t n = rows_part > 1 ? 64 : 4096;
    c->out[0] = c->in[0] = view_of(t, 2, cut(4096), n, 0, 0);
    c->in[1] = view_of(t, 2, n, n, 0, 0);
    c->u.gemm.alpha = 1;
}
static void of_conv(dt_call *c, int t)
{
    int64_t chs = rows_part > 1 ? 16 : 256;
    operands(c, 1, 2);
    c->out[0] = c->in[0] = view_of(t, 4, cut(64), chs, 14, 14);
    c->in[1] = view_of(t, 4, chs, chs, 3, 3);
    for (int i = 0; i < 2; i++) c->u.conv.stride[i] = c->u.conv.pad[i] = c->u.conv.dilation[i] = 1;
    c->u.conv.groups = 1;
}
static void of_conv_weight(dt_call *c, int t)
{
    of_conv(c, t);
    dt_view w = c->in[1];
    c->in[1] = c->in[0];
    c->out[0] = w;
}
enum { SEGMENTS = 64 };
static void of_lars(dt_call *c, int t)
{
    of_sgd(c, t);
    c->nin = 5;
    c->in[2] = c->in[3] = view_of(DT_F32, 1, SEGMENTS, 0, 0, 0);
    c->in[4] = view_of(DT_I64, 1, SEGMENTS + 1, 0, 0, 0);
    c->u.opt.trust = 1e-3;
    index_step = c->in[0].shape[0] / SEGMENTS;
}

typedef struct kernel_row {
    const char *name;
    int         op;
    void (*make)(dt_call *, int dtype);
    int  input;  /* operand whose elements are counted: an input, or -1 for output 0 */
    bool beside; /* not in the tables of docs/gpu.md */
} kernel_row;
static const kernel_row kernel_rows[] = {
    { "fill", DT_K_fill, of_fill, -1, false },
    { "copy; cast from f32", DT_K_copy, of_copy, -1, false },
    { "relu", DT_K_unary, of_unary, -1, false },
    { "gelu (tanh)", DT_K_unary, of_gelu, -1, false },
    { "gelu backward", DT_K_unary_bwd, of_gelu_bwd, -1, false },
    { "add", DT_K_binary, of_binary, -1, false },
    { "where", DT_K_where, of_where, -1, false },
    { "dropout, either way", DT_K_dropout, of_dropout, -1, false },
    { "sum over rows (a bias' gradient)", DT_K_reduce, of_sum, 0, false },
    { "softmax, 1024 wide", DT_K_softmax, of_softmax, -1, false },
    { "softmax backward", DT_K_softmax_bwd, of_softmax_bwd, -1, false },
    { "softmax + cross entropy, 50257 wide", DT_K_cross_entropy, of_loss, 0, false },
    { "its backward", DT_K_cross_entropy_bwd, of_loss_bwd, -1, false },
    { "layer norm", DT_K_layer_norm, of_layer_norm, -1, false },
    { "rms norm", DT_K_layer_norm, of_rms_norm, -1, false },
    { "layer norm backward", DT_K_layer_norm_bwd, of_layer_norm_bwd, -1, false },
    { "batch norm + relu, training", DT_K_batch_norm, of_batch_norm, -1, false },
    { "batch norm + add + relu", DT_K_batch_norm, of_batch_norm_add, -1, false },
    { "batch norm + relu backward", DT_K_batch_norm_bwd, of_batch_norm_bwd, -1, false },
    { "batch norm + add + relu backward", DT_K_batch_norm_bwd, of_batch_norm_add_bwd, -1, false },
    { "max pooling 3x3/2", DT_K_pool2d, of_maxpool, 0, false },
    { "max pooling backward", DT_K_pool2d_bwd, of_maxpool_bwd, -1, false },
    { "embedding", DT_K_embedding, of_embedding, -1, false },
    { "embedding backward, added", DT_K_embedding_bwd, of_embedding_bwd, 0, false },
    { "gather along rows", DT_K_gather, of_gather, -1, false },
    { "attention, causal, t 1024, d 64", DT_K_attention, of_attention, 0, false },
    { "attention backward", DT_K_attention_bwd, of_attention_bwd, 0, false },
    { "SGD with momentum (bf16: and the copy)", DT_K_sgd, of_sgd, 0, false },
    { "AdamW (bf16: and the copy)", DT_K_adam, of_adam, 0, false },
    { "unscale and look for overflow", DT_K_unscale, of_unscale, 0, false },
    { "norm of all gradients", DT_K_norms, of_norms, 0, false },
    { "product 4096 x 4096 x 4096", DT_K_gemm, of_product, -1, true },
    { "convolution 3 x 3, 256 channels, 14 x 14", DT_K_conv2d, of_conv, -1, true },
    { "its gradient of images", DT_K_conv2d_bwd_data, of_conv, -1, true },
    { "its gradient of weights", DT_K_conv2d_bwd_weight, of_conv_weight, 0, true },
    { "copy, transposed", DT_K_copy, of_turn, -1, true },
    { "copy of a part of each row", DT_K_copy, of_rows, -1, true },
    { "iota", DT_K_iota, of_iota, -1, true },
    { "add integers", DT_K_binary, of_ints, -1, true },
    { "where, added", DT_K_where, of_where_add, -1, true },
    { "where, an integer condition a row", DT_K_where, of_where_rows, -1, true },
    { "bias and tanh after a product", DT_K_COUNT, of_epilogue, -1, true },
    { "sum along rows, 1024 wide", DT_K_reduce, of_sum_along, 0, true },
    { "variance along rows", DT_K_reduce, of_var, 0, true },
    { "argmax along rows", DT_K_reduce, of_argmax, 0, true },
    { "sum of all", DT_K_reduce, of_sum_all, 0, true },
    { "softmax, 256 wide", DT_K_softmax, of_softmax_short, -1, true },
    { "softmax over channels", DT_K_softmax, of_softmax_chs, -1, true },
    { "softmax over channels, backward", DT_K_softmax_bwd, of_softmax_chs_bwd, -1, true },
    { "softmax + cross entropy, 50304 wide", DT_K_cross_entropy, of_loss_padded, 0, true },
    { "softmax + cross entropy, 1000 wide", DT_K_cross_entropy, of_loss_1000, 0, true },
    { "its backward, 1000 wide", DT_K_cross_entropy_bwd, of_loss_1000_bwd, -1, true },
    { "its backward, weights and smoothing", DT_K_cross_entropy_bwd, of_loss_smooth_bwd, -1, true },
    { "loss of log-probabilities", DT_K_cross_entropy, of_nll, 1, true },
    { "its backward (nll)", DT_K_cross_entropy_bwd, of_nll_bwd, 2, true },
    { "layer norm, 8192 wide", DT_K_layer_norm, of_layer_norm_wide, -1, true },
    { "batch norm + relu, NHWC", DT_K_batch_norm, of_batch_norm_nhwc, -1, true },
    { "batch norm + relu backward, NHWC", DT_K_batch_norm_bwd, of_batch_norm_bwd_nhwc, -1, true },
    { "max pooling, NHWC", DT_K_pool2d, of_maxpool_nhwc, 0, true },
    { "max pooling backward, NHWC", DT_K_pool2d_bwd, of_maxpool_bwd_nhwc, -1, true },
    { "global average, 7 x 7", DT_K_pool2d, of_average, 0, true },
    { "global average, 28 x 28", DT_K_pool2d, of_average_wide, 0, true },
    { "gather backward", DT_K_gather_bwd, of_gather_bwd, 0, true },
    { "gather backward, one a column", DT_K_gather_bwd, of_gather_one_bwd, 0, true },
    { "cumulative sum along rows", DT_K_scan, of_scan, -1, true },
    { "cumulative sum over columns", DT_K_scan, of_scan_columns, -1, true },
    { "sort of 1024", DT_K_sort, of_sort, 0, true },
    { "top 100 of 4096", DT_K_sort, of_sort_long, 0, true },
    { "scatter", DT_K_scatter, of_scatter, 0, true },
    { "scatter, added integers", DT_K_scatter, of_count, 0, true },
    { "resize x 2, bilinear", DT_K_resize, of_resize, -1, true },
    { "resize backward", DT_K_resize_bwd, of_resize_bwd, -1, true },
    { "LSTM cell", DT_K_rnn_cell, of_lstm, 0, true },
    { "LSTM cell backward", DT_K_rnn_cell_bwd, of_lstm_bwd, -1, true },
    { "LARS", DT_K_sgd, of_lars, 0, true },
};
enum { NKERNEL_ROWS = sizeof kernel_rows / sizeof *kernel_rows };

#endif /* DT_KERNEL_ROWS_H */
