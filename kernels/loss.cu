/* loss.cu: cross entropy of logits, fused with the softmax, and nll of log-probabilities; and their gradients.

   logp_k = (x_k - m) - l, m = max x, l = log(sum exp(x_k - m)); lse holds m of all rows, then l of all rows, because m + l would
   lose the digits of l if logits are large. Of a row with target t, class weights w (or 1), smoothing s:
     loss  = (1 - s) w_t (-logp_t) + s/c sum_k w_k (-logp_k)
     dx_k  = p_k (a + b W) - b w_k - [k = t] a,  a = g (1 - s) w_t, b = g s/c, W = sum w, g = dy, or dy/total
   A row whose target is the ignored index gives 0. The mean divides by total, the sum of w_t. nll is the first term
   with logp = x.
   Probabilities are never stored: the gradient computes them again from x, m and l.

   A target that is neither a class nor the ignored index is recorded and becomes an error on the host (refuse, in
   common.cuh). Its loss and its row of dx are NaN (nll: the first element of the row); memory outside of the operands is
   never read.

   Launch shapes, blocks of 256 threads: a warp for a row of up to 1024 classes, else a block; one pass for m and the
   sum. At most 1024 blocks; each writes the sums of its rows in double, and one more block adds them in order, so that
   the bits are the same in every run. nll: a thread for a row.

   Roofline: forward 4 bytes per logit in f32 (with smoothing a second time, from L2 where rows are short), about 12
   FLOPs; backward 8 bytes and 12 FLOPs: memory-bound. Without the fusion log_softmax (8), nll, its gradient (4 of zeros) and
   that of log_softmax (12) move 24 bytes, and 36 where rows do not stay in L2 (softmax.cu). nll: a sector of 32 bytes
   for each row; its gradient sets dx to 0 first. */
#include "vector.cuh"

namespace dtk {

enum { CE_BLOCKS = 1024 };

struct ce_args {
    operand<mixed>    x, weight; /* weight may be absent */
    operand<any_type> target;
    int64_t           n, classes, ignore;
    double            smoothing;
    int               reduction;
    /* forward */
    operand<mixed> loss, lse, total; /* lse and total may be absent */
    double        *part;             /* by block: sums of loss and weight */
    /* backward: lse and total are inputs */
    operand<mixed> dx, dy;
    const double  *weights; /* W, or NULL: the number of classes */
    dt__cuda_watch watch;
};

__device__ __forceinline__ double ce_weight(const ce_args &a, int64_t k)
{
    return a.weight.p ? (double)a.weight.at(k) : 1.0;
}
/* Adds up the sums of a block's rows; one thread of each warp holds a partial sum. */
__device__ __forceinline__ void ce_leave(const ce_args &a, double loss, double total)
{
    loss = block_reduce(loss, add_f(), 0.0);
    total = block_reduce(total, add_f(), 0.0);
    if (threadIdx.x == 0) {
        a.part[2 * blockIdx.x] = loss;
        a.part[2 * blockIdx.x + 1] = total;
    }
}

/* A row for a warp, or (WIDE) for the block. */
template <int V, bool WIDE>
static __global__ void __launch_bounds__(BLOCK, 4) ce_forward_kernel(const __grid_constant__ ce_args a)
{
    constexpr int SIZE = WIDE ? BLOCK : WARP, ROWS = BLOCK / SIZE;
    int           lane = (int)threadIdx.x % SIZE;
    double        loss = 0, total = 0;
    for (int64_t row = blockIdx.x * ROWS + (int)threadIdx.x / SIZE; row < a.n; row += (int64_t)gridDim.x * ROWS) {
        int64_t   base = row * a.classes, t = a.target.at_int(row);
        lse_state e = lse_state::none();
        for (int64_t k = lane * V; k < a.classes; k += SIZE * V) {
            float x[V];
            a.x.load(base + k, x);
            e.add(x);
        }
        if constexpr (WIDE) e.over_block();
        else e.over_warp();
        float l = logf(e.s), even = 0.0f;
        if (a.smoothing > 0) {
#pragma unroll 1
            for (int64_t k = lane * V; k < a.classes; k += SIZE * V) {
                float x[V], w[V];
                a.x.load(base + k, x);
                if (a.weight.p) a.weight.load(k, w);
#pragma unroll
                for (int j = 0; j < V; j++) {
                    float logp = (x[j] - e.m) - l;
                    even = a.weight.p ? fmaf(logp, w[j], even) : even + logp;
                }
            }
            if constexpr (WIDE) even = block_reduce(even, add_f(), 0.0f);
            else even = warp_reduce(even, add_f());
        }
        if (lane != 0) continue;
        float one = 0.0f;
        if (t != a.ignore) {
            if (t >= 0 && t < a.classes) {
                double w = ce_weight(a, t);
                float  logp = (a.x.at(base + t) - e.m) - l;
                one = (float)fma(-a.smoothing / (double)a.classes, (double)even,
                                 -((1 - a.smoothing) * w * (double)logp));
                total += w;
            } else {
                one = NAN;
                refuse(a.watch, row, t);
            }
        }
        loss += (double)one;
        if (a.lse.p) {
            a.lse.adding(false).put(row, e.m == -INFINITY ? NAN : e.m); /* NaN if the row has only -inf */
            a.lse.adding(false).put(a.n + row, l);
        }
        if (a.reduction == DT_NONE) a.loss.adding(false).put(row, one);
    }
    ce_leave(a, loss, total);
}
static __global__ void __launch_bounds__(BLOCK, 4) ce_nll_kernel(const __grid_constant__ ce_args a)
{
    double loss = 0, total = 0;
    for (int64_t row = grid_first(); row < a.n; row += grid_step()) {
        int64_t t = a.target.at_int(row);
        float   one = 0.0f;
        if (t != a.ignore) {
            if (t >= 0 && t < a.classes) {
                double w = ce_weight(a, t);
                one = (float)(-w * (double)a.x.at(row * a.classes + t));
                total += w;
            } else {
                one = NAN;
                refuse(a.watch, row, t);
            }
        }
        loss += (double)one;
        if (a.reduction == DT_NONE) a.loss.adding(false).put(row, one);
    }
    ce_leave(a, loss, total);
}
static __global__ void __launch_bounds__(BLOCK, 4) ce_total_kernel(const __grid_constant__ ce_args a, int blocks)
{
    double loss = 0, total = 0;
    for (int b = (int)threadIdx.x; b < blocks; b += BLOCK) {
        double2 t = *(const double2 *)(a.part + 2 * b);
        loss += t.x;
        total += t.y;
    }
    loss = block_reduce(loss, add_f(), 0.0);
    total = block_reduce(total, add_f(), 0.0);
    if (threadIdx.x) return;
    if (a.reduction != DT_MEAN) total = 1;
    if (a.reduction != DT_NONE) a.loss.adding(false).put(0, (float)(loss / total));
    if (a.total.p) a.total.adding(false).put(0, (float)total);
}

static __global__ void __launch_bounds__(BLOCK, 4) ce_weights_kernel(operand<mixed> w, int64_t n, double *sum)
{
    double s = 0;
    for (int64_t i = threadIdx.x; i < n; i += BLOCK) s += (double)w.at(i);
    s = block_reduce(s, add_f(), 0.0);
    if (threadIdx.x == 0) *sum = s;
}
__device__ __forceinline__ double ce_gradient(const ce_args &a, int64_t row)
{
    if (a.reduction == DT_NONE) return (double)a.dy.at(row);
    return (double)a.dy.at(0) / (double)a.total.at(0);
}
template <int V, bool WIDE>
static __global__ void __launch_bounds__(BLOCK, 4) ce_backward_kernel(const __grid_constant__ ce_args a)
{
    constexpr int SIZE = WIDE ? BLOCK : WARP, ROWS = BLOCK / SIZE;
    int           lane = (int)threadIdx.x % SIZE;
    double        weights = a.weights ? *a.weights : (double)a.classes;
    for (int64_t row = blockIdx.x * (int64_t)ROWS + (int)threadIdx.x / SIZE; row < a.n;
         row += (int64_t)gridDim.x * ROWS) {
        int64_t base = row * a.classes, t = a.target.at_int(row);
        bool    ignored = t == a.ignore, bad = !ignored && (t < 0 || t >= a.classes);
        if (ignored && a.dx.add) continue;
        if (bad && lane == 0) refuse(a.watch, row, t);
        double g = ignored || bad ? 0.0 : ce_gradient(a, row), s = g * a.smoothing / (double)a.classes;
        double hit = ignored || bad ? 0.0 : g * (1 - a.smoothing) * ce_weight(a, t);
        float  k = (float)fma(s, weights, hit), less = (float)-s, top = (float)hit;
        float  m = a.lse.at(row), l = a.lse.at(a.n + row);
        for (int64_t col = lane * V; col < a.classes; col += SIZE * V) {
            float v[V], w[V];
            a.x.load(base + col, v);
            if (a.weight.p) a.weight.load(col, w);
#pragma unroll
            for (int j = 0; j < V; j++) {
                float e = expf((v[j] - m) - l);
                v[j] = a.weight.p ? fmaf(w[j], less, e * k) : fmaf(e, k, less);
                if (col + j == t) v[j] -= top;
                if (ignored) v[j] = 0.0f;
                if (bad) v[j] = NAN;
            }
            a.dx.store(base + col, v);
        }
    }
}
/* dx must hold 0, or the values to add to */
static __global__ void __launch_bounds__(BLOCK, 4) ce_nll_backward_kernel(const __grid_constant__ ce_args a)
{
    for (int64_t row = grid_first(); row < a.n; row += grid_step()) {
        int64_t t = a.target.at_int(row);
        if (t == a.ignore) continue;
        if (t >= 0 && t < a.classes) {
            a.dx.put(row * a.classes + t, (float)-(ce_gradient(a, row) * ce_weight(a, t)));
        } else {
            a.dx.adding(false).put(row * a.classes, NAN);
            refuse(a.watch, row, t);
        }
    }
}

} /* namespace dtk */

extern "C" int dt__cuda_cross_entropy(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *x = &c->in[0], *target = &c->in[1], *const rows[2] = { x, has_in(c, 2) ? &c->in[2] : x };
    cudaStream_t   s = stream_of(dev, c);
    int            status = all_floats(c, 5, 7);
    ce_args        a;
    memset(&a, 0, sizeof a);
    if (status) return status;
    if (!is_int(target->dtype)) return no_dtype(c, target->dtype);
    a.x = in_of<mixed>(c, 0);
    a.target = in_of<any_type>(c, 1);
    a.weight = in_of<mixed>(c, 2);
    a.n = x->shape[0], a.classes = x->shape[1];
    a.ignore = c->u.loss.ignore, a.smoothing = c->u.loss.smoothing, a.reduction = c->u.loss.reduction;
    a.watch = dt__cuda_watched(dev, c, a.classes);
    a.loss = out_of<mixed>(c, 0);
    a.lse = out_of<mixed>(c, 1);
    a.total = out_of<mixed>(c, 2);
    a.part = (double *)dt__cuda_scratch(dev, c->stream, CE_BLOCKS * 2 * sizeof(double));
    if (!a.part) return DT_ERR_MEMORY;
    bool     wide = a.classes > 1024, four = a.classes % 4 == 0 && dense_width(rows) > 1;
    unsigned blocks = blocks_for(a.n, c->u.loss.nll ? (int)BLOCK : wide ? 1 : BLOCK / WARP);
    if (blocks > CE_BLOCKS) blocks = CE_BLOCKS;
    if (c->u.loss.nll) ce_nll_kernel<<<blocks, BLOCK, 0, s>>>(a);
    else
        with_width<4, 1>(four ? 4 : 1, [&](auto w) {
            if (wide) ce_forward_kernel<w.value, true><<<blocks, BLOCK, 0, s>>>(a);
            else ce_forward_kernel<w.value, false><<<blocks, BLOCK, 0, s>>>(a);
        });
    ce_total_kernel<<<1, BLOCK, 0, s>>>(a, (int)blocks);
    return launched(c);
}

extern "C" int dt__cuda_cross_entropy_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *dx = &c->out[0], *x = &c->in[1], *target = &c->in[2];
    const dt_view *const rows[3] = { dx, c->u.loss.nll ? dx : x, has_in(c, 5) ? &c->in[5] : dx };
    cudaStream_t   s = stream_of(dev, c);
    int            status = all_floats(c, c->u.loss.nll ? 0x39 : 0x3b, 1);
    ce_args        a;
    memset(&a, 0, sizeof a);
    if (status) return status;
    if (!is_int(target->dtype)) return no_dtype(c, target->dtype);
    a.n = dx->shape[0], a.classes = dx->shape[1];
    if (a.n * a.classes == 0) return 0;
    a.dx = out_of<mixed>(c, 0);
    a.dy = in_of<mixed>(c, 0);
    a.x = in_of<mixed>(c, 1);
    a.target = in_of<any_type>(c, 2);
    a.lse = in_of<mixed>(c, 3);
    a.total = in_of<mixed>(c, 4);
    a.weight = in_of<mixed>(c, 5);
    a.ignore = c->u.loss.ignore, a.smoothing = c->u.loss.smoothing, a.reduction = c->u.loss.reduction;
    a.watch = dt__cuda_watched(dev, c, a.classes);
    if (c->u.loss.nll) {
        size_t nbytes = (size_t)(a.n * a.classes * elem_size(a.dx.dtype));
        if (!a.dx.add) status = dt__cuda_check((int)cudaMemsetAsync(a.dx.p, 0, nbytes, s), "nll_loss_bwd");
        if (!status) ce_nll_backward_kernel<<<blocks_for(a.n), BLOCK, 0, s>>>(a);
        return status ? status : launched(c);
    }
    if (a.weight.p && a.smoothing > 0) {
        double *sum = (double *)dt__cuda_scratch(dev, c->stream, sizeof(double));
        if (!sum) return DT_ERR_MEMORY;
        ce_weights_kernel<<<1, BLOCK, 0, s>>>(a.weight, a.classes, sum);
        a.weights = sum;
    }
    bool     wide = a.classes > 1024, four = a.classes % 4 == 0 && dense_width(rows) > 1;
    unsigned blocks = blocks_for(a.n, wide ? 1 : BLOCK / WARP);
    with_width<4, 1>(four ? 4 : 1, [&](auto w) {
        if (wide) ce_backward_kernel<w.value, true><<<blocks, BLOCK, 0, s>>>(a);
        else ce_backward_kernel<w.value, false><<<blocks, BLOCK, 0, s>>>(a);
    });
    return launched(c);
}
