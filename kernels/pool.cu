/* pool.cu: max and average pooling of images and their gradients, NCHW and NHWC.

   y(o) = max or mean of x over the window of o, cells o*stride - pad .. + kernel that lie inside x. An average divides
   by the cells inside, or with include_pad by those of the padded image; adaptive windows are o*in/out to
   ceil((o+1)*in/out). Max keeps the position of the maximum in its window, row * kernel width + column, in u8 or i32;
   NaN counts as the largest. Backward: dx(i) = the sum over the windows that contain i, in ascending order, of dy (max:
   if the position is i's; average: dy / divisor). Every dx is written by one thread, without atomics: the bits are the
   same in every run.

   Launch shape: a thread for each element of y (forward) or dx (backward), in NHWC for a vector of 16 bytes along c;
   256 threads a block. Averages over windows of 32 cells and more in NCHW take a warp for each element of y.

   Roofline: forward reads x once from memory (cells of overlapping windows again from L1) and writes y and the index:
   for 2x2/2 of f32 4 + 1 + 1/4 bytes for each element of x, and 1 comparison (kernel/stride a dimension: 2 1/4 for
   3x3/2). Backward reads dy and the index (again kernel/stride times a dimension from L1) and writes dx: the same
   bytes, an addition for each maximum, for averages one for each cell. Memory-bound. */
#include "vector.cuh"

namespace dtk {
namespace pool {

struct args {
    int64_t chs, h, w, oh, ow;
    int64_t total;                   /* threads: elements of y or dx, or vectors of them */
    int     nhwc, max, adaptive, include_pad, index_i32;
    int     kernel[2], stride[2], pad[2];
    void   *index;                   /* u8 or i32, of y's shape and layout; NULL: not kept */
};
struct span {
    int64_t lo, hi; /* the cells of a window that lie inside the input */
    int64_t start;  /* where the window begins; below 0 in the padding */
    int64_t full;   /* cells including the padding, without those beyond the padding */
};
template <int DIM> __device__ __forceinline__ span window(const args &a, int64_t o)
{
    const int64_t nin = DIM ? a.w : a.h, nout = DIM ? a.ow : a.oh;
    span          s;
    if (a.adaptive) {
        s.lo = s.start = divide(o * nin, nout);
        s.hi = divide((o + 1) * nin + nout - 1, nout);
        s.full = s.hi - s.lo;
        return s;
    }
    int64_t pad = a.pad[DIM], end;
    s.start = o * a.stride[DIM] - pad;
    end = s.start + a.kernel[DIM];
    if (end > nin + pad) end = nin + pad;
    s.full = end - s.start;
    s.lo = s.start < 0 ? 0 : s.start;
    s.hi = end > nin ? nin : end;
    if (s.hi < s.lo) s.hi = s.lo;
    return s;
}
__device__ __forceinline__ float divisor(const args &a, const span &v, const span &u)
{
    if (a.include_pad && !a.adaptive) return (float)(v.full * u.full);
    return (float)((v.hi - v.lo) * (u.hi - u.lo));
}
/* The outputs whose windows contain cell i: lo .. hi. */
template <int DIM> __device__ __forceinline__ void over(const args &a, int64_t i, int64_t *lo, int64_t *hi)
{
    const int64_t nin = DIM ? a.w : a.h, nout = DIM ? a.ow : a.oh;
    int64_t       at = i + a.pad[DIM];
    if (a.adaptive) {
        *lo = divide(i * nout, nin);
        *hi = divide((i + 1) * nout + nin - 1, nin);
    } else {
        *lo = at >= a.kernel[DIM] ? divide(at - a.kernel[DIM], a.stride[DIM]) + 1 : 0;
        *hi = divide(at, a.stride[DIM]) + 1;
    }
    if (*hi > nout) *hi = nout;
}

/* Where an element, or the first of a vector along c, lies in an image of rows by cols: its row and column, the
   offset of (0, 0) of the same channel in an image of other_rows by other_cols, and the steps of that image. */
struct place {
    int64_t row, col, other, row_step, col_step;
};
template <int N>
__device__ __forceinline__ place place_of(const args &a, int64_t i, int64_t rows, int64_t cols, int64_t other_rows,
                                          int64_t other_cols)
{
    place   p;
    int64_t ch = 0, image, t;
    if (a.nhwc) {
        int64_t groups = N == 1 ? a.chs : a.chs / N;
        t = divide(i, groups);
        ch = (i - t * groups) * N;
        i = t;
    }
    t = divide(i, cols);
    p.col = i - t * cols;
    image = divide(t, rows);
    p.row = t - image * rows;
    p.col_step = a.nhwc ? a.chs : 1;
    p.row_step = other_cols * p.col_step;
    p.other = image * other_rows * p.row_step + ch; /* NCHW: image is the plane of a channel */
    return p;
}
template <int N> __device__ __forceinline__ void put_index(const args &a, int64_t i, const int (&at)[N])
{
    pack<uint8_t, N> t;
    if (a.index_i32) {
#pragma unroll
        for (int k = 0; k < N; k++) ((int32_t *)a.index)[i + k] = at[k];
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++) t.v[k] = (uint8_t)at[k];
    *(pack<uint8_t, N> *)((uint8_t *)a.index + i) = t;
}
template <int N> __device__ __forceinline__ void get_index(const args &a, int64_t i, int (&at)[N])
{
    if (a.index_i32) {
#pragma unroll
        for (int k = 0; k < N; k++) at[k] = ((const int32_t *)a.index)[i + k];
        return;
    }
    pack<uint8_t, N> t = *(const pack<uint8_t, N> *)((const uint8_t *)a.index + i);
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = t.v[k];
}

template <typename T, int N> static __global__ void forward(args a, operand<T> y, operand<T> x)
{
    for (int64_t i = grid_first(); i < a.total; i += grid_step()) {
        place p = place_of<N>(a, i, a.oh, a.ow, a.h, a.w);
        span  v = window<0>(a, p.row), u = window<1>(a, p.col);
        float m[N], t[N];
        int   at[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            m[k] = a.max ? -INFINITY : 0.0f;
            at[k] = (int)((v.lo - v.start) * a.kernel[1] + (u.lo - u.start));
        }
        for (int64_t r = v.lo; r < v.hi; r++)
            for (int64_t q = u.lo; q < u.hi; q++) {
                int cell = (int)((r - v.start) * a.kernel[1] + (q - u.start));
                x.load(p.other + r * p.row_step + q * p.col_step, t);
#pragma unroll
                for (int k = 0; k < N; k++) {
                    bool more = t[k] > m[k] || t[k] != t[k];
                    if (!a.max) m[k] += t[k];
                    else if (more) m[k] = t[k], at[k] = cell;
                }
            }
        if (!a.max && v.lo < v.hi && u.lo < u.hi) {
            float d = divisor(a, v, u);
#pragma unroll
            for (int k = 0; k < N; k++) m[k] /= d;
        }
        y.store(i * N, m);
        if (a.max && a.index) put_index<N>(a, i * N, at);
    }
}
/* An average over a large window: a warp for each element of y, lanes along the rows of the window. */
static __global__ void forward_wide(args a, operand<mixed> y, operand<mixed> x)
{
    int64_t lane = threadIdx.x % WARP;
    for (int64_t i = grid_first() / WARP; i < a.total; i += grid_step() / WARP) {
        place   p = place_of<1>(a, i, a.oh, a.ow, a.h, a.w);
        span    v = window<0>(a, p.row), u = window<1>(a, p.col);
        int64_t cols = u.hi - u.lo, cells = (v.hi - v.lo) * cols;
        float   sum = 0;
        for (int64_t j = lane; j < cells; j += WARP) {
            int64_t r = divide(j, cols), q = j - r * cols;
            sum += x.at(p.other + (v.lo + r) * p.row_step + (u.lo + q) * p.col_step);
        }
        sum = warp_reduce(sum, add_f());
        if (lane == 0) y.put(i, cells > 0 ? sum / divisor(a, v, u) : 0.0f);
    }
}

template <typename T, int N> static __global__ void backward(args a, operand<T> dx, operand<T> dy)
{
    for (int64_t i = grid_first(); i < a.total; i += grid_step()) {
        place   p = place_of<N>(a, i, a.h, a.w, a.oh, a.ow);
        int64_t r0, r1, q0, q1;
        float   sum[N], g[N];
        int     at[N];
        over<0>(a, p.row, &r0, &r1);
        over<1>(a, p.col, &q0, &q1);
#pragma unroll
        for (int k = 0; k < N; k++) sum[k] = 0;
        for (int64_t r = r0; r < r1; r++)
            for (int64_t q = q0; q < q1; q++) {
                int64_t from = p.other + r * p.row_step + q * p.col_step;
                dy.load(from, g);
                if (a.max) {
                    int cell = (int)((p.row + a.pad[0] - r * a.stride[0]) * a.kernel[1] +
                                     (p.col + a.pad[1] - q * a.stride[1]));
                    get_index<N>(a, from, at);
#pragma unroll
                    for (int k = 0; k < N; k++)
                        sum[k] += at[k] == cell ? g[k] : 0.0f; /* no branch, which would split the load of g */
                } else {
                    float d = divisor(a, window<0>(a, r), window<1>(a, q));
#pragma unroll
                    for (int k = 0; k < N; k++) sum[k] += g[k] / d;
                }
            }
        dx.store(i * N, sum);
    }
}

/* y and x: the views of the small and of the large image */
static args args_of(const dt_call *c, const dt_view &y, const dt_view &x, const dt_view *index)
{
    args a;
    a.nhwc = x.layout == DT_LAYOUT_NHWC;
    a.chs = x.shape[1];
    a.h = x.shape[2];
    a.w = x.shape[3];
    a.oh = y.shape[2];
    a.ow = y.shape[3];
    a.total = 0;
    a.max = c->u.pool.max;
    a.adaptive = c->u.pool.adaptive;
    a.include_pad = c->u.pool.include_pad;
    for (int d = 0; d < 2; d++) {
        a.kernel[d] = c->u.pool.kernel[d];
        a.stride[d] = c->u.pool.stride[d];
        a.pad[d] = c->u.pool.pad[d];
    }
    a.index = index ? index->data : NULL;
    a.index_i32 = index && index->dtype == DT_I32;
    return a;
}
static int index_ok(const dt_call *c, const dt_view *index)
{
    if (!index || index->dtype == DT_U8 || index->dtype == DT_I32) return 0;
    return no_dtype(c, index->dtype);
}
/* Can x, y and the index be accessed in vectors along c? */
template <typename T> static bool along_c(const args &a)
{
    return a.nhwc && a.chs % lanes<T> == 0 && (a.index_i32 || (size_t)a.index % lanes<T> == 0);
}

} /* namespace pool */
} /* namespace dtk */

extern "C" int dt__cuda_pool2d(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *index = c->u.pool.max && has_out(c, 1) ? &c->out[1] : NULL;
    pool::args     a = pool::args_of(c, c->out[0], c->in[0], index);
    int64_t        n = numel(c->out[0]);
    int            status = pool::index_ok(c, index);
    if (status || n == 0) return status;
    cudaStream_t s = stream_of(dev, c);
    int64_t      cells = a.adaptive ? a.h / a.oh * (a.w / a.ow) : (int64_t)a.kernel[0] * a.kernel[1];
    a.total = n;
    if (!a.max && !a.nhwc && cells >= WARP) {
        status = all_floats(c, 1, 1);
        if (status) return status;
        unsigned grid = blocks_for(n, BLOCK / WARP);
        pool::forward_wide<<<grid, BLOCK, 0, s>>>(a, out_of<mixed>(c, 0), in_of<mixed>(c, 0));
        return launched(c);
    }
    return with_operands(c, 1, 1, 0, 0, [&](auto t) {
        using T = decltype(t);
        bool vec = pool::along_c<T>(a);
        if (vec) a.total = n / lanes<T>;
        unsigned   grid = blocks_for(a.total);
        operand<T> y = out_of<T>(c, 0), x = in_of<T>(c, 0);
        if (vec) pool::forward<T, lanes<T>><<<grid, BLOCK, 0, s>>>(a, y, x);
        else pool::forward<T, 1><<<grid, BLOCK, 0, s>>>(a, y, x);
        return launched(c);
    });
}

extern "C" int dt__cuda_pool2d_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *index = c->u.pool.max && has_in(c, 1) ? &c->in[1] : NULL;
    pool::args     a = pool::args_of(c, c->in[0], c->out[0], index);
    int64_t        n = numel(c->out[0]);
    int            status = pool::index_ok(c, index);
    if (status || n == 0) return status;
    if (a.max && !index) return dt_fail(DT_ERR_ARG, "cuda: pool2d_bwd of a maximum needs the index");
    cudaStream_t s = stream_of(dev, c);
    a.total = n;
    return with_operands(c, 1, 1, 0, 0, [&](auto t) {
        using T = decltype(t);
        bool vec = pool::along_c<T>(a);
        if (vec) a.total = n / lanes<T>;
        unsigned   grid = blocks_for(a.total);
        operand<T> dx = out_of<T>(c, 0), dy = in_of<T>(c, 0);
        if (vec) pool::backward<T, lanes<T>><<<grid, BLOCK, 0, s>>>(a, dx, dy);
        else pool::backward<T, 1><<<grid, BLOCK, 0, s>>>(a, dx, dy);
        return launched(c);
    });
}
