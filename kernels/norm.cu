/* norm.cu: layer norm and rms norm over rows, batch norm over channels, and their gradients.

   Layer norm of a row x of n: mean = sum(x)/n, var = sum((x - mean)^2)/n, rstd = 1/sqrt(var + eps), xhat = (x - mean)
   rstd, y = w xhat + b. Rms norm: mean = 0. Backward, with g = w dy:
       dx = rstd (g - mean(g) - xhat mean(g xhat))    (rms: without mean(g));    dw = sum dy xhat, db = sum dy over rows
   Batch norm: the same over the n h w values of a channel, y = act(w xhat + b + add). Running statistics move by
   'momentum' towards mean and unbiased variance. Backward, with g = the gradient before the relu and m values a channel:
       dw = sum g xhat, db = sum g, dx = w rstd (g - db/m - xhat dw/m); in evaluation dx = w rstd g; dadd = g

   Sums of x - shift with a shift near the mean avoid cancellation. Rows compute the mean first. A thread of the batch
   statistics shifts by its first elements, then by its mean; partial sums are converted to a common shift as they are
   added; slices are merged in f64. Order and partition of every sum depend on the shape alone, and there are no atomics:
   the same bits in every run.

   Launch shapes (256 threads a block):
   - rows: a warp for a row of up to 1024 elements, else a block; vectors of 16 bytes where rows are aligned.
   - columns (dw and db of layer norm; channels of NHWC): a block is a tile of columns by a slice of rows, x threads
     across (each with a vector of columns) and y down, folded in shared memory; a second kernel adds the slices.
   - planes (channels of NCHW): a block is a slice of one channel; a warp for each channel adds the slices. A thread takes 8 halves if
     8 divides h w, else 4 elements if 4 does, else 1.
   - apply: flat over the image in vectors, 4 rounds of blocks of the device. Below 2^31 elements, with 32-bit indices: a vector is of
     one channel (4 or 8 divide h w), or of neighbouring channels of NHWC (they divide c), or of at most two channels (h w is odd,
     and at least a vector). Otherwise: channel = (i / inner) % c with inner = h w in NCHW and 1 in NHWC, element by element.

   Roofline, e the bytes of an element, all memory-bound:
       layer_norm       2e an element (x once, y; the second and third pass over a row read L1 or L2), 9 FLOPs;
                        rms norm 6
       layer_norm_bwd   3e and 12 FLOPs for dx, 2e and 5 more for dw and db: dy and x are read twice
       batch_norm       train x twice and y: 3e (4e with add), 8 FLOPs; evaluation 2e (3e), 4
       batch_norm_bwd   sums 2e (3e with relu) and 5 FLOPs, dx 3e (4e with relu, 5e with dadd) and 6: dy, x and y are
                        read twice, 7e in all with relu
   Tables and partial sums are below 1 % of that for images of any size that matters. */
#include "vector.cuh"

namespace dtk {
namespace norm {

/* ---------------------------------------------------------------------------------------------------- rows */
/* The sum over the threads that share a row: a warp or the block. */
template <bool WHOLE> __device__ __forceinline__ float row_sum(float x)
{
    return WHOLE ? block_reduce(x, add_f(), 0.0f) : warp_reduce(x, add_f());
}
template <bool WHOLE> __device__ __forceinline__ int64_t first_row()
{
    return WHOLE ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
}
template <bool WHOLE> __device__ __forceinline__ int64_t row_step()
{
    return (int64_t)gridDim.x * (WHOLE ? 1 : BLOCK / WARP);
}
inline unsigned row_blocks(bool whole, int64_t rows)
{
    return whole ? blocks_for(rows, 1) : blocks_for(rows, BLOCK / WARP);
}

struct ln_args {
    int64_t        rows, cols;
    float         *mean, *rstd; /* (rows), out or in; mean NULL: not kept, or not centred */
    float          eps;
    int            rms;
    operand<mixed> weight, bias; /* (cols) */
};

template <typename T, bool WHOLE> static __global__ void ln_forward(ln_args a, operand<T> y, operand<T> x)
{
    constexpr int N = lanes<T>;
    const int     step = (WHOLE ? BLOCK : WARP) * N, begin = (int)(threadIdx.x % (WHOLE ? BLOCK : WARP)) * N;
    const float   count = (float)a.cols;
    for (int64_t row = first_row<WHOLE>(); row < a.rows; row += row_step<WHOLE>()) {
        int64_t base = row * a.cols;
        float   v[N], s = 0, q = 0, about = 0;
        if (!a.rms) {
            for (int64_t i = begin; i < a.cols; i += step) {
                x.load(base + i, v);
#pragma unroll
                for (int k = 0; k < N; k++) s += v[k];
            }
            about = row_sum<WHOLE>(s) / count;
        }
        s = 0;
        for (int64_t i = begin; i < a.cols; i += step) {
            x.load(base + i, v);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float d = v[k] - about;
                s += d;
                q = fmaf(d, d, q);
            }
        }
        float off = a.rms ? 0.0f : row_sum<WHOLE>(s) / count; /* the rounding error of the mean */
        float mean = about + off, var = fmaf(-off, off, row_sum<WHOLE>(q) / count);
        float rstd = 1.0f / sqrtf((var < 0 ? 0.0f : var) + a.eps);
        if (begin == 0) {
            if (a.mean) a.mean[row] = mean;
            if (a.rstd) a.rstd[row] = rstd;
        }
        for (int64_t i = begin; i < a.cols; i += step) {
            float w[N], b[N];
            x.load(base + i, v);
            if (a.weight.p) a.weight.load(i, w);
            if (a.bias.p) a.bias.load(i, b);
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] = fmaf((v[k] - mean) * rstd, a.weight.p ? w[k] : 1.0f, a.bias.p ? b[k] : 0.0f);
            y.store(base + i, v);
        }
    }
}

template <typename T, bool WHOLE>
static __global__ void ln_backward(ln_args a, operand<T> dx, operand<T> dy, operand<T> x)
{
    constexpr int N = lanes<T>;
    const int     step = (WHOLE ? BLOCK : WARP) * N, begin = (int)(threadIdx.x % (WHOLE ? BLOCK : WARP)) * N;
    const float   count = (float)a.cols;
    for (int64_t row = first_row<WHOLE>(); row < a.rows; row += row_step<WHOLE>()) {
        int64_t base = row * a.cols;
        float   mean = a.mean ? a.mean[row] : 0.0f, rstd = a.rstd[row], s1 = 0, s2 = 0;
        float   g[N], v[N], w[N];
        for (int64_t i = begin; i < a.cols; i += step) {
            dy.load(base + i, g);
            x.load(base + i, v);
            if (a.weight.p) a.weight.load(i, w);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float t = a.weight.p ? g[k] * w[k] : g[k];
                s1 += t;
                s2 = fmaf(t, (v[k] - mean) * rstd, s2);
            }
        }
        float c1 = a.mean ? row_sum<WHOLE>(s1) / count : 0.0f, c2 = row_sum<WHOLE>(s2) / count;
        for (int64_t i = begin; i < a.cols; i += step) {
            dy.load(base + i, g);
            x.load(base + i, v);
            if (a.weight.p) a.weight.load(i, w);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float t = fmaf(g[k], a.weight.p ? w[k] : 1.0f, -c1);
                v[k] = fmaf((v[k] - mean) * rstd, -c2, t) * rstd;
            }
            dx.store(base + i, v);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- sums
   A source says what is summed over columns or planes: the sum of one lane, how an element is added to it, and the
   result, which is merged with the results of other lanes, threads and slices. */
struct two_sums {
    float a, b;
    __device__ __forceinline__ void merge(const two_sums &o)
    {
        a += o.a;
        b += o.b;
    }
};
struct moments { /* of n values: the sums of x - shift and of its square */
    float n, shift, s, q;
    __device__ __forceinline__ void about(float to)
    {
        float d = shift - to;
        q = fmaf(d, fmaf(n, d, 2 * s), q);
        s = fmaf(n, d, s);
        shift = to;
    }
    __device__ __forceinline__ void merge(moments o)
    {
        if (n == 0) shift = o.shift;
        o.about(shift);
        n += o.n;
        s += o.s;
        q += o.q;
    }
};
__device__ __forceinline__ two_sums from_lane(const two_sums &r, int lane)
{
    return two_sums{ __shfl_xor_sync(FULL, r.a, lane), __shfl_xor_sync(FULL, r.b, lane) };
}
__device__ __forceinline__ moments from_lane(const moments &r, int lane)
{
    return moments{ __shfl_xor_sync(FULL, r.n, lane), __shfl_xor_sync(FULL, r.shift, lane),
                    __shfl_xor_sync(FULL, r.s, lane), __shfl_xor_sync(FULL, r.q, lane) };
}

template <typename T> struct stats_of { /* the moments of x */
    typedef T       type;
    typedef moments result, lane;
    operand<T>      x;
    template <int N> struct channels {}; /* what the sums need of the channels of a vector, loaded once */
    template <int N> __device__ __forceinline__ channels<N> of(int64_t, int) const { return {}; }
    static __device__ __forceinline__ lane   zero() { return lane{ 0, 0, 0, 0 }; }
    static __device__ __forceinline__ result end(lane l) /* with the mean as the shift: the first elements may be far from it */
    {
        float mean = l.n > 0 ? l.shift + l.s / l.n : 0.0f;
        l.about(mean - mean == 0 ? mean : 0.0f);
        return l;
    }
    /* N elements from 'at' into the sums l: row (of columns), their first channel, and by how much channels step */
    template <int N>
    __device__ __forceinline__ void step(lane (&l)[N], int64_t at, int64_t row, const channels<N> &, int ch_step) const
    {
        float v[N];
        (void)row;
        x.load(at, v);
        if (l[0].n == 0) { /* shift: the mean of these elements if they are of one channel, else each element itself */
            float m = 0;
#pragma unroll
            for (int k = 0; k < N; k++) m += v[k];
#pragma unroll
            for (int k = 0; k < N; k++) {
                float about = ch_step ? v[k] : m / N;
                l[k].shift = about - about == 0 ? about : 0.0f;
            }
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            float d = v[k] - l[k].shift;
            l[k].n += 1;
            l[k].s += d;
            l[k].q = fmaf(d, d, l[k].q);
        }
    }
};
template <typename T> struct bn_grads_of { /* g and g (x - mean of the channel) */
    typedef T        type;
    typedef two_sums result, lane;
    operand<T>       dy, x, y;
    operand<mixed>   mean;
    template <int N> struct channels { float mean[N]; };
    template <int N> __device__ __forceinline__ channels<N> of(int64_t ch, int ch_step) const
    {
        channels<N> r;
#pragma unroll
        for (int k = 0; k < N; k++) r.mean[k] = k && !ch_step ? r.mean[0] : mean.at(ch + k * ch_step);
        return r;
    }
    static __device__ __forceinline__ lane   zero() { return lane{ 0, 0 }; }
    static __device__ __forceinline__ result end(const lane &l) { return l; }
    template <int N>
    __device__ __forceinline__ void step(lane (&l)[N], int64_t at, int64_t row, const channels<N> &c, int ch_step) const
    {
        float g[N], v[N], u[N];
        (void)row, (void)ch_step;
        dy.load(at, g);
        x.load(at, v);
        if (y.p) y.load(at, u);
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (y.p && u[k] <= 0) g[k] = 0;
            l[k].a += g[k];
            l[k].b = fmaf(g[k], v[k] - c.mean[k], l[k].b);
        }
    }
};
template <typename T> struct ln_grads_of { /* dy and dy xhat */
    typedef T        type;
    typedef two_sums result, lane;
    operand<T>       dy, x;
    const float     *mean, *rstd; /* of each row */
    template <int N> struct channels {};
    template <int N> __device__ __forceinline__ channels<N> of(int64_t, int) const { return {}; }
    static __device__ __forceinline__ lane   zero() { return lane{ 0, 0 }; }
    static __device__ __forceinline__ result end(const lane &l) { return l; }
    template <int N>
    __device__ __forceinline__ void step(lane (&l)[N], int64_t at, int64_t row, const channels<N> &, int ch_step) const
    {
        float g[N], v[N], m = mean ? mean[row] : 0.0f, r = rstd[row];
        (void)ch_step;
        dy.load(at, g);
        x.load(at, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            l[k].a += g[k];
            l[k].b = fmaf(g[k], (v[k] - m) * r, l[k].b);
        }
    }
};

/* part[slice][col] of (rows, cols); blockDim (x, y): x threads of N columns across, y rows down, 256 in all */
template <typename S, int N>
static __global__ void over_columns(S s, typename S::result *part, int64_t rows, int64_t cols, int64_t per,
                                    int64_t tiles)
{
    __shared__ typename S::result sum[BLOCK][N];
    int64_t                       slice = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    int64_t                       col = (tile * blockDim.x + threadIdx.x) * N;
    int64_t                       last = (slice + 1) * per < rows ? (slice + 1) * per : rows;
    int                           tid = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    typename S::lane              l[N];
#pragma unroll
    for (int k = 0; k < N; k++) l[k] = S::zero();
    if (col < cols) {
        typename S::template channels<N> c = s.template of<N>(col, 1);
        for (int64_t row = slice * per + threadIdx.y; row < last; row += blockDim.y)
            s.template step<N>(l, row * cols + col, row, c, 1);
    }
#pragma unroll
    for (int k = 0; k < N; k++) sum[tid][k] = S::end(l[k]);
    for (int half = (int)blockDim.y / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.y < half)
#pragma unroll
            for (int k = 0; k < N; k++) sum[tid][k].merge(sum[tid + half * (int)blockDim.x][k]);
    }
    if (threadIdx.y == 0 && col < cols)
#pragma unroll
        for (int k = 0; k < N; k++) part[slice * cols + col + k] = sum[tid][k];
}
/* part[slice][ch] of an image (n, chs, hw); a block is a slice of 'per' of the count values of a channel */
template <typename S, int N>
static __global__ void over_planes(S s, typename S::result *part, int64_t count, int64_t chs, int64_t hw, int64_t per, fast_div by_hw)
{
    __shared__ typename S::result sum[BLOCK / WARP];
    int64_t                       slice = blockIdx.x / chs, ch = blockIdx.x % chs;
    int64_t                       last = (slice + 1) * per < count ? (slice + 1) * per : count;
    int                           lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    typename S::lane              l[N];
#pragma unroll
    for (int k = 0; k < N; k++) l[k] = S::zero();
    typename S::template channels<N> c = s.template of<N>(ch, 0);
    if (by_hw.d) { /* count is below 2^31 */
        for (uint32_t j = (uint32_t)(slice * per) + threadIdx.x * N; j < (uint32_t)last; j += BLOCK * N) { /* N divides hw and per */
            uint32_t image = by_hw(j);
            s.template step<N>(l, (image * chs + ch) * hw + (j - image * by_hw.d), 0, c, 0);
        }
    } else {
        for (int64_t j = slice * per + (int64_t)threadIdx.x * N; j < last; j += BLOCK * N) {
            int64_t image = j / hw;
            s.template step<N>(l, (image * chs + ch) * hw + (j - image * hw), 0, c, 0);
        }
    }
    typename S::result r = S::end(l[0]);
#pragma unroll
    for (int k = 1; k < N; k++) r.merge(S::end(l[k]));
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) r.merge(from_lane(r, d));
    if (lane == 0) sum[warp] = r;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < BLOCK / WARP; w++) r.merge(sum[w]);
    part[slice * chs + ch] = r;
}

struct cut { /* of a sum: slices, and the rows or values of each */
    int64_t slices, per, tiles;
    dim3    block;
};
/* 'want' slices, but no more than give 1024 blocks with 'tiles' tiles each; at most 2^22 of n in a slice, so that a float
   counts them exactly */
static int64_t slices_for(int64_t n, int64_t want, int64_t tiles)
{
    int64_t most = tiles < 1024 ? 1024 / tiles : 1, least = (n >> 22) + 1;
    want = want > most ? most : want;
    return want > least ? want : least;
}
static cut cut_columns(int64_t rows, int64_t cols, int n)
{
    cut     c;
    int64_t across = (cols + n - 1) / n, x = 1;
    while (x < across && x < WARP) x *= 2;
    c.block = dim3((unsigned)x, (unsigned)(BLOCK / x));
    c.tiles = (across + x - 1) / x;
    c.slices = slices_for(rows, rows / (8 * (BLOCK / x)), c.tiles);
    c.per = (rows + c.slices - 1) / c.slices;
    return c;
}
static cut cut_planes(int64_t count, int64_t chs)
{
    cut c;
    c.slices = slices_for(count, count / (16 * BLOCK), chs);
    c.per = ((count + c.slices - 1) / c.slices + 7) / 8 * 8; /* whole vectors */
    c.block = dim3(BLOCK);
    c.tiles = chs;
    return c;
}
static int too_many(const dt_call *c)
{
    return dt_fail(DT_ERR_ARG, "cuda: %s: more rows or channels than a grid has blocks, 2^31 - 1; split the tensor",
                   dt_kernel_name(c->op));
}

static __global__ void ln_finish(const two_sums *part, int64_t slices, int64_t cols, operand<mixed> dw,
                                 operand<mixed> db)
{
    for (int64_t i = grid_first(); i < cols; i += grid_step()) {
        two_sums t = { 0, 0 };
        for (int64_t s = 0; s < slices; s++) t.merge(part[s * cols + i]);
        if (dw.p) dw.put(i, t.b);
        if (db.p) db.put(i, t.a);
    }
}

/* ---------------------------------------------------------------------------------------------------- batch norm */
struct bn_args {
    int64_t chs, inner, total, count; /* channels; neighbours of one channel; elements; elements of a channel */
    int     nhwc, train, relu;
};
static bn_args bn_of(const dt_call *c, const dt_view &x)
{
    bn_args a;
    int64_t hw = x.shape[2] * x.shape[3];
    a.nhwc = x.layout == DT_LAYOUT_NHWC;
    a.chs = x.shape[1];
    a.inner = a.nhwc ? 1 : hw;
    a.count = x.shape[0] * hw;
    a.total = a.count * a.chs;
    a.train = c->u.norm.train;
    a.relu = c->u.norm.act == DT_ACT_RELU;
    return a;
}
/* The sums of a source over each channel, in scratch memory, followed by 'tables' floats for each channel. */
template <typename R> struct sums_of {
    R      *part;
    float  *table;
    int64_t slices;
};
/* Elements of a vector that are of one channel (NCHW) or of whole neighbouring channels (NHWC); 1: vectors are not */
template <typename T> static int bn_width(const bn_args &a)
{
    if (a.nhwc) return a.chs % lanes<T> ? 1 : lanes<T>;
    for (int n = lanes<T>; n >= 4; n /= 2)
        if (a.inner % n == 0) return n;
    return 1;
}
static cut bn_cut(const bn_args &a, int n)
{
    return a.nhwc ? cut_columns(a.count, a.chs, n) : cut_planes(a.count, a.chs);
}
template <typename R>
static int bn_scratch(sums_of<R> *r, dt_device *dev, const dt_call *c, const bn_args &a, int64_t slices)
{
    size_t part = (size_t)(slices * a.chs) * sizeof(R);
    char  *mem = (char *)dt__cuda_scratch(dev, c->stream, part + (size_t)a.chs * 4 * sizeof(float));
    if (!mem) return DT_ERR_MEMORY;
    r->part = (R *)mem;
    r->table = (float *)(mem + part);
    r->slices = slices;
    return 0;
}
template <typename S>
static int bn_sum(sums_of<typename S::result> *r, dt_device *dev, const dt_call *c, const bn_args &a, const S &s)
{
    int status = 0;
    with_width<8, 4, 1>(bn_width<typename S::type>(a), [&](auto w) {
        constexpr int N = w.value;
        if constexpr (N > lanes<typename S::type>) status = (int)DT_ERR_STATE; /* bn_width() gives none */
        else {
            cut u = bn_cut(a, N);
            status = u.slices * u.tiles > INT_MAX ? too_many(c) : bn_scratch(r, dev, c, a, u.slices);
            if (status) return;
            unsigned     grid = (unsigned)(u.slices * u.tiles);
            cudaStream_t stream = stream_of(dev, c);
            fast_div     by_hw = a.count < (int64_t)1 << 30 ? fast_div::by(a.inner) : fast_div{ 0, 0, 0 };
            if constexpr (N == 1 || N == lanes<typename S::type>) {
                if (a.nhwc) over_columns<S, N><<<grid, u.block, 0, stream>>>(s, r->part, a.count, a.chs, u.per, u.tiles);
            }
            if (!a.nhwc) over_planes<S, N><<<grid, u.block, 0, stream>>>(s, r->part, a.count, a.chs, a.inner, u.per, by_hw);
            status = launched(c);
        }
    });
    return status;
}

struct bn_tables { /* arrays by channel: outputs, and the inputs they are computed from */
    operand<mixed> mean, rstd, running[2], weight, bias, old[2];
    double         eps, momentum;
};
/* A warp for each channel: merge the slices, in double. given: mean and variance are the running ones, and part is NULL. */
static __global__ void bn_finish(const moments *part, int64_t slices, float *table, bn_args a, bn_tables t,
                                 int only_stats)
{
    int lane = (int)threadIdx.x % WARP;
    for (int64_t ch = grid_first() / WARP; ch < a.chs; ch += grid_step() / WARP) {
        double n = 0, mean = 0, m2 = 0, all;
        for (int64_t s = lane; part && s < slices; s += WARP) {
            moments o = part[s * a.chs + ch];
            if (o.n == 0) continue;
            double on = (double)o.n, off = (double)o.s / on, d = (double)o.shift + off - mean;
            all = n + on;
            m2 += fma(-off, (double)o.s, (double)o.q) + d * d * (n * on / all);
            mean += d * (on / all);
            n = all;
        }
        for (int k = WARP / 2; part && k > 0; k /= 2) {
            double on = __shfl_xor_sync(FULL, n, k), om = __shfl_xor_sync(FULL, mean, k);
            double oq = __shfl_xor_sync(FULL, m2, k), d = om - mean;
            all = n + on;
            if (all <= 0) continue; /* in both lanes */
            m2 += oq + d * d * (n * on / all);
            mean += d * (on / all);
            n = all;
        }
        if (lane > 0) continue;
        double var = part ? (m2 < 0 ? 0 : m2) / n : (double)t.old[1].at(ch);
        double bias = t.bias.p ? (double)t.bias.at(ch) : 0.0;
        if (!part) mean = (double)t.old[0].at(ch);
        if (only_stats) {
            t.mean.put(ch, (float)mean);
            t.rstd.put(ch, (float)var);
            continue;
        }
        double rstd = 1.0 / sqrt(var + t.eps);
        float  scale = (float)(t.weight.p ? rstd * (double)t.weight.at(ch) : rstd);
        table[ch] = scale;
        table[a.chs + ch] = (float)fma(-mean, (double)scale, bias);
        if (t.mean.p) t.mean.put(ch, (float)mean);
        if (t.rstd.p) t.rstd.put(ch, (float)rstd);
        if (!a.train) continue;
        double k = t.momentum, unbiased = a.count > 1 ? var * ((double)a.count / (double)(a.count - 1)) : var;
        if (t.running[0].p && t.old[0].p)
            t.running[0].put(ch, (float)fma(k, mean, (1 - k) * (double)t.old[0].at(ch)));
        if (t.running[1].p && t.old[1].p)
            t.running[1].put(ch, (float)fma(k, unbiased, (1 - k) * (double)t.old[1].at(ch)));
    }
}
/* Walks the channels of the flat elements from i on. */
struct channel {
    int64_t ch, left; /* left: elements before the next channel */
    __device__ __forceinline__ channel(const bn_args &a, int64_t i)
    {
        int64_t plane = a.inner == 1 ? i : divide(i, a.inner);
        left = a.inner == 1 ? 1 : a.inner - (i - plane * a.inner);
        ch = plane - divide(plane, a.chs) * a.chs;
    }
    __device__ __forceinline__ void next(const bn_args &a)
    {
        if (--left > 0) return;
        left = a.inner;
        if (++ch == a.chs) ch = 0;
    }
};
/* Of the vector i of N elements: a row of 'table' (of chs floats a row) at each element, see the head of this file */
enum { ONE_CHANNEL, NEIGHBOURS, TWO_CHANNELS };
struct bn_flat { /* total < 2^31 */
    uint32_t vectors, chs, inner; /* inner: of vectors, or of elements with TWO_CHANNELS */
    fast_div by_inner, by_chs;
};
template <int N, int MODE> struct bn_at {
    uint32_t ch, left; /* TWO_CHANNELS: elements before the second channel */
    __device__ __forceinline__ bn_at(const bn_flat &a, uint32_t i)
    {
        if (MODE == NEIGHBOURS) ch = (i - a.by_inner(i) * a.inner) * N; /* inner: vectors of a row of channels */
        else {
            uint32_t plane = a.by_inner(MODE == TWO_CHANNELS ? i * N : i);
            ch = plane - a.by_chs(plane) * a.chs;
            left = MODE == TWO_CHANNELS ? a.inner - (i * N - plane * a.inner) : N;
        }
    }
    __device__ __forceinline__ void row(const bn_flat &a, const float *table, float (&v)[N]) const
    {
        if (MODE == NEIGHBOURS) load_vector(table + ch, v);
        else {
            float first = table[ch], second = MODE == TWO_CHANNELS ? table[ch + 1 < a.chs ? ch + 1 : 0] : first;
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = MODE == ONE_CHANNEL || k < (int)left ? first : second;
        }
    }
};
/* Calls f with the width and the mode of the flat kernels, or with width 0 where there is none: mixed dtypes, 2^31 elements, planes
   that are odd and smaller than a vector. */
template <int M> struct mode_is {
    static constexpr int value = M;
};
template <typename T, typename F> static int bn_with_flat(const bn_args &a, F f)
{
    constexpr int L = lanes<T>;
    bn_flat       b;
    int           n = bn_width<T>(a);
    bool          two = n == 1 && !a.nhwc && a.inner >= L && a.total % L == 0;
    if (L == 1 || a.total >= INT_MAX || (n == 1 && !two)) return f(width<0>(), mode_is<ONE_CHANNEL>(), b);
    if (two) n = L;
    b.vectors = (uint32_t)(a.total / n);
    b.chs = (uint32_t)a.chs;
    b.inner = (uint32_t)(two ? a.inner : (a.nhwc ? a.chs : a.inner) / n);
    b.by_inner = fast_div::by(b.inner);
    b.by_chs = fast_div::by(a.chs);
    if (two) return f(width<(L > 1 ? L : 4)>(), mode_is<TWO_CHANNELS>(), b);
    if constexpr (L == 8) {
        if (n == 8) return a.nhwc ? f(width<8>(), mode_is<NEIGHBOURS>(), b) : f(width<8>(), mode_is<ONE_CHANNEL>(), b);
    }
    if constexpr (L == 4) {
        if (a.nhwc) return f(width<4>(), mode_is<NEIGHBOURS>(), b);
    }
    return f(width<4>(), mode_is<ONE_CHANNEL>(), b);
}
template <typename T, int N, int MODE>
static __global__ void bn_apply_flat(bn_flat a, int relu, operand<T> y, operand<T> x, operand<T> add, const float *table)
{
    for (uint32_t i = (uint32_t)grid_first(); i < a.vectors; i += (uint32_t)grid_step()) {
        float         v[N], z[N], scale[N], shift[N];
        bn_at<N, MODE> c(a, i);
        c.row(a, table, scale);
        c.row(a, table + a.chs, shift);
        x.load((int64_t)i * N, v);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = fmaf(v[k], scale[k], shift[k]);
        if (add.p) {
            add.load((int64_t)i * N, z);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] += z[k];
        }
        if (relu) {
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = v[k] < 0 ? 0.0f : v[k];
        }
        y.store((int64_t)i * N, v);
    }
}
template <typename T>
static __global__ void bn_apply(bn_args a, operand<T> y, operand<T> x, operand<T> add, const float *table)
{
    constexpr int N = lanes<T>;
    for (int64_t i = grid_first() * N; i < a.total; i += grid_step() * N) {
        float   v[N], z[N];
        channel c(a, i);
        x.load(i, v, a.total - i);
        if (add.p) add.load(i, z, a.total - i);
#pragma unroll
        for (int k = 0; k < N; k++, c.next(a)) {
            v[k] = fmaf(v[k], table[c.ch], table[a.chs + c.ch]);
            if (add.p) v[k] += z[k];
            if (a.relu && v[k] < 0) v[k] = 0;
        }
        y.store(i, v, a.total - i);
    }
}

struct bn_back {
    operand<mixed> dw, db, weight, mean, rstd, sums;
    double         n; /* values of a channel in the sums */
};
/* dweight, dbias and the tables of dx = scale g + slope (x - mean) + offset. part == NULL: the sums are not needed. */
static __global__ void bn_bwd_finish(const two_sums *part, int64_t slices, float *table, bn_args a, bn_back b)
{
    int lane = (int)threadIdx.x % WARP;
    for (int64_t ch = grid_first() / WARP; ch < a.chs; ch += grid_step() / WARP) {
        double s1 = 0, s2 = 0;
        for (int64_t s = lane; part && s < slices; s += WARP) {
            two_sums t = part[s * a.chs + ch];
            s1 += (double)t.a;
            s2 += (double)t.b;
        }
        s1 = warp_reduce(s1, add_f());
        s2 = warp_reduce(s2, add_f());
        if (lane > 0) continue;
        double rstd = (double)b.rstd.at(ch);
        if (b.sums.p) {
            s1 = (double)b.sums.at(ch);
            s2 = (double)b.sums.at(a.chs + ch) / rstd;
        }
        double scale = b.weight.p ? rstd * (double)b.weight.at(ch) : rstd;
        table[ch] = (float)scale;
        table[a.chs + ch] = (float)(-scale * rstd * rstd * s2 / b.n);
        table[2 * a.chs + ch] = (float)(-scale * s1 / b.n);
        table[3 * a.chs + ch] = b.mean.at(ch);
        if (b.dw.p) b.dw.put(ch, (float)(s2 * rstd));
        if (b.db.p) b.db.put(ch, (float)s1);
    }
}
template <typename T, int N, int MODE>
static __global__ void bn_bwd_apply_flat(bn_flat a, int train, operand<T> dx, operand<T> dadd, operand<T> dy, operand<T> x,
                                         operand<T> y, const float *table)
{
    for (uint32_t i = (uint32_t)grid_first(); i < a.vectors; i += (uint32_t)grid_step()) {
        float         g[N], v[N], t[N];
        bn_at<N, MODE> c(a, i);
        dy.load((int64_t)i * N, g);
        if (y.p) {
            y.load((int64_t)i * N, t);
#pragma unroll
            for (int k = 0; k < N; k++) g[k] = t[k] <= 0 ? 0.0f : g[k];
        }
        c.row(a, table, t);
        if (train) {
            float slope[N], u[N];
            x.load((int64_t)i * N, v);
            c.row(a, table + 3 * a.chs, u);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] -= u[k];
            c.row(a, table + a.chs, slope);
            c.row(a, table + 2 * a.chs, u);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = fmaf(g[k], t[k], fmaf(v[k], slope[k], u[k]));
        } else {
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = g[k] * t[k];
        }
        dx.store((int64_t)i * N, v);
        if (dadd.p) dadd.store((int64_t)i * N, g);
    }
}
template <typename T>
static __global__ void bn_bwd_apply(bn_args a, operand<T> dx, operand<T> dadd, operand<T> dy, operand<T> x,
                                    operand<T> y, const float *table)
{
    constexpr int N = lanes<T>;
    for (int64_t i = grid_first() * N; i < a.total; i += grid_step() * N) {
        float   g[N], v[N], u[N];
        channel c(a, i);
        dy.load(i, g, a.total - i);
        if (a.train) x.load(i, v, a.total - i);
        if (y.p) y.load(i, u, a.total - i);
#pragma unroll
        for (int k = 0; k < N; k++, c.next(a)) {
            if (y.p && u[k] <= 0) g[k] = 0;
            float scale = table[c.ch];
            if (a.train) {
                float t = fmaf(v[k] - table[3 * a.chs + c.ch], table[a.chs + c.ch], table[2 * a.chs + c.ch]);
                v[k] = fmaf(g[k], scale, t);
            } else {
                v[k] = g[k] * scale;
            }
        }
        dx.store(i, v, a.total - i);
        if (dadd.p) dadd.store(i, g, a.total - i);
    }
}
static unsigned channel_blocks(int64_t chs) { return blocks_for(chs, BLOCK / WARP); }

} /* namespace norm */
} /* namespace dtk */

extern "C" int dt__cuda_layer_norm(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view &x = c->in[0];
    norm::ln_args  a = { x.shape[0], x.shape[1], NULL, NULL, (float)c->u.norm.eps, c->u.norm.rms, in_of<mixed>(c, 1),
                         in_of<mixed>(c, 2) };
    if (a.rows * a.cols == 0) return 0;
    if (has_out(c, 1)) a.mean = (float *)c->out[1].data;
    if (has_out(c, 2)) a.rstd = (float *)c->out[2].data;
    bool     whole = a.cols > 1024;
    unsigned grid = norm::row_blocks(whole, a.rows);
    return with_operands(c, 1, 1, 6, a.cols, [&](auto t) {
        using T = decltype(t);
        cudaStream_t s = stream_of(dev, c);
        if (whole) norm::ln_forward<T, true><<<grid, BLOCK, 0, s>>>(a, out_of<T>(c, 0), in_of<T>(c, 0));
        else norm::ln_forward<T, false><<<grid, BLOCK, 0, s>>>(a, out_of<T>(c, 0), in_of<T>(c, 0));
        return launched(c);
    });
}

extern "C" int dt__cuda_layer_norm_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view &x = c->in[1];
    norm::ln_args  a = { x.shape[0], x.shape[1], NULL, (float *)c->in[4].data, 0, c->u.norm.rms, in_of<mixed>(c, 2),
                         operand_of<mixed>(NULL) };
    if (a.cols == 0) return 0;
    if (!a.rms && has_in(c, 3)) a.mean = (float *)c->in[3].data;
    bool     whole = a.cols > 1024;
    unsigned grid = norm::row_blocks(whole, a.rows);
    if (has_out(c, 0) && a.rows > 0) {
        int status = with_operands(c, 3, 1, 4, a.cols, [&](auto t) {
            using T = decltype(t);
            cudaStream_t s = stream_of(dev, c);
            operand<T>   dx = out_of<T>(c, 0), dy = in_of<T>(c, 0), in = in_of<T>(c, 1);
            if (whole) norm::ln_backward<T, true><<<grid, BLOCK, 0, s>>>(a, dx, dy, in);
            else norm::ln_backward<T, false><<<grid, BLOCK, 0, s>>>(a, dx, dy, in);
            return launched(c);
        });
        if (status) return status;
    }
    if (!has_out(c, 1) && !has_out(c, 2)) return 0;
    int status = all_floats(c, 0, 6);
    return status ? status : with_operands(c, 3, 0, 0, a.cols, [&](auto t) {
        using T = decltype(t);
        cudaStream_t         s = stream_of(dev, c);
        norm::ln_grads_of<T> g = { in_of<T>(c, 0), in_of<T>(c, 1), a.mean, a.rstd };
        norm::cut            u = norm::cut_columns(a.rows, a.cols, lanes<T>);
        if (u.slices * u.tiles > INT_MAX) return norm::too_many(c);
        norm::two_sums *part =
            (norm::two_sums *)dt__cuda_scratch(dev, c->stream, (size_t)(u.slices * a.cols) * sizeof(norm::two_sums));
        if (!part) return (int)DT_ERR_MEMORY;
        unsigned tiles = (unsigned)(u.slices * u.tiles);
        norm::over_columns<norm::ln_grads_of<T>, lanes<T>><<<tiles, u.block, 0, s>>>(g, part, a.rows, a.cols, u.per, u.tiles);
        norm::ln_finish<<<blocks_for(a.cols), BLOCK, 0, s>>>(part, u.slices, a.cols, out_of<mixed>(c, 1),
                                                                       out_of<mixed>(c, 2));
        return launched(c);
    });
}

extern "C" int dt__cuda_batch_norm(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    norm::bn_args   a = norm::bn_of(c, c->in[0]);
    norm::bn_tables t = { out_of<mixed>(c, 1), out_of<mixed>(c, 2), { out_of<mixed>(c, 3), out_of<mixed>(c, 4) },
                          in_of<mixed>(c, 1), in_of<mixed>(c, 2), { in_of<mixed>(c, 3), in_of<mixed>(c, 4) },
                          c->u.norm.eps, c->u.norm.momentum };
    norm::sums_of<norm::moments> r = { NULL, NULL, 0 };
    int status = a.total == 0 ? 0 : all_floats(c, 0x1e, 0x1e);
    if (status || a.total == 0) return status;
    if (a.train || !has_in(c, 3) || !has_in(c, 4))
        status = with_operands(c, 1, 0, 0, 0, [&](auto e) {
            using T = decltype(e);
            norm::stats_of<T> s = { in_of<T>(c, 0) };
            return norm::bn_sum(&r, dev, c, a, s);
        });
    else
        status = norm::bn_scratch(&r, dev, c, a, 0);
    if (status) return status;
    cudaStream_t stream = stream_of(dev, c);
    norm::bn_finish<<<norm::channel_blocks(a.chs), BLOCK, 0, stream>>>(r.slices ? r.part : NULL, r.slices, r.table,
                                                                            a, t, !has_out(c, 0));
    if (!has_out(c, 0)) return launched(c);
    return with_operands(c, 0x21, 1, 0, 0, [&](auto e) {
        using T = decltype(e);
        return norm::bn_with_flat<T>(a, [&](auto w, auto mode, const norm::bn_flat &b) {
            operand<T> y = out_of<T>(c, 0), x = in_of<T>(c, 0), add = in_of<T>(c, 5);
            if constexpr (w.value == 0) {
                unsigned grid = blocks_on(dev, (a.total + lanes<T> - 1) / lanes<T>);
                norm::bn_apply<T><<<grid, BLOCK, 0, stream>>>(a, y, x, add, r.table);
            } else {
                norm::bn_apply_flat<T, w.value, mode.value><<<blocks_on(dev, b.vectors), BLOCK, 0, stream>>>(b, a.relu, y, x, add, r.table);
            }
            return launched(c);
        });
    });
}

extern "C" int dt__cuda_batch_norm_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    norm::bn_args a = norm::bn_of(c, c->in[1]);
    bool          given = has_in(c, 6);
    norm::bn_back b = { out_of<mixed>(c, 1), out_of<mixed>(c, 2), in_of<mixed>(c, 2), in_of<mixed>(c, 3),
                        in_of<mixed>(c, 4), in_of<mixed>(c, 6), given ? (double)c->u.norm.n : (double)a.count };
    norm::sums_of<norm::two_sums> r = { NULL, NULL, 0 };
    int status = a.chs == 0 ? 0 : all_floats(c, 0x5c, 6);
    if (status || a.chs == 0) return status;
    if (!given && (a.train || has_out(c, 1) || has_out(c, 2)))
        status = with_operands(c, 0x23, 0, 0, 0, [&](auto e) {
            using T = decltype(e);
            norm::bn_grads_of<T> s = { in_of<T>(c, 0), in_of<T>(c, 1), in_of<T>(c, 5), in_of<mixed>(c, 3) };
            return norm::bn_sum(&r, dev, c, a, s);
        });
    else
        status = norm::bn_scratch(&r, dev, c, a, 0);
    if (status) return status;
    cudaStream_t stream = stream_of(dev, c);
    norm::bn_bwd_finish<<<norm::channel_blocks(a.chs), BLOCK, 0, stream>>>(r.slices ? r.part : NULL, r.slices,
                                                                                r.table, a, b);
    if (!has_out(c, 0) || a.total == 0) return launched(c);
    return with_operands(c, 0x23, 9, 0, 0, [&](auto e) {
        using T = decltype(e);
        operand<T> dx = out_of<T>(c, 0), dadd = out_of<T>(c, 3), dy = in_of<T>(c, 0), x = in_of<T>(c, 1);
        operand<T> y = in_of<T>(c, 5);
        return norm::bn_with_flat<T>(a, [&](auto w, auto mode, const norm::bn_flat &b) {
            if constexpr (w.value == 0) {
                unsigned grid = blocks_on(dev, (a.total + lanes<T> - 1) / lanes<T>);
                norm::bn_bwd_apply<T><<<grid, BLOCK, 0, stream>>>(a, dx, dadd, dy, x, y, r.table);
            } else {
                norm::bn_bwd_apply_flat<T, w.value, mode.value>
                    <<<blocks_on(dev, b.vectors), BLOCK, 0, stream>>>(b, a.train, dx, dadd, dy, x, y, r.table);
            }
            return launched(c);
        });
    });
}
