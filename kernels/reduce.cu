/* reduce.cu: SUM, MEAN, MAX, MIN, ARGMAX, ARGMIN, VAR, PROD, NORM, LSE over any dimensions of operands of any strides.

   y[k] = op over r of x[k, r]: k walks the kept dimensions, r the reduced ones; both are merged where the strides allow
   it, the smallest stride of x innermost (ARGMAX and ARGMIN keep the order, since its results are indices). Every thread
   accumulates a state; states are merged in an order that depends on shapes alone, without atomics: the same bits in
   every run and on every GPU.
     sum, mean   double; a thread adds up to 8 neighbours in f32 first
     var         sums of d and d^2 in double, d = x - p with p the first element of the output: states of one output
                 have the same p, so they merge by adding; p is a value of the data, so q - s^2/n loses nothing that
                 matters
     max, min    NaN if an element is NaN; argmax: the first of equals, or the first NaN
     integers    int64, modulo 2^64

   Launch shapes, blocks of 256 threads:
     rows        the reduced dimension is the dense one: 1 to 32 lanes of a warp for an output, or (above 2048 elements)
                 a block; accesses of 16 bytes where the addresses allow it
     columns     a kept dimension is the dense one: neighbouring threads take neighbouring outputs, the rest of the
                 block takes other rows; the rows are merged in shared memory
   Where that makes fewer than 512 blocks, the reduced elements are cut into chunks, a block for each, and a second
   kernel merges the states of the chunks, a warp for an output.

   Roofline: bytes are those of x, and 8 or 16 for each chunk of an output; 1 FLOP per element (var 4 in double: on
   GPUs with few double units, 1/64 of the f32 rate, that takes about as long as the loads). All of them are
   memory-bound. */
#include "vector.cuh"

namespace dtk {

/* ---------------------------------------------------------------------------------------------------- states */
struct red_sum { /* also of means */
    double s;
    static constexpr bool ints = false;
    __device__ __forceinline__ static red_sum none(int) { return { 0.0 }; }
    template <int V> __device__ __forceinline__ void add(int, const float (&v)[V], int64_t, double)
    {
        float t[V];
#pragma unroll
        for (int j = 0; j < V; j++) t[j] = v[j];
#pragma unroll
        for (int d = V / 2; d > 0; d /= 2)
#pragma unroll
            for (int j = 0; j < d; j++) t[j] += t[j + d];
        s += (double)t[0];
    }
    __device__ __forceinline__ void merge(int, const red_sum &o) { s += o.s; }
    __device__ __forceinline__ red_sum other(int d) const { return { __shfl_xor_sync(FULL, s, d) }; }
};
struct red_var {
    double s, q;
    static constexpr bool ints = false;
    __device__ __forceinline__ static red_var none(int) { return { 0.0, 0.0 }; }
    template <int V> __device__ __forceinline__ void add(int, const float (&v)[V], int64_t, double pivot)
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            double d = (double)v[j] - pivot;
            s += d;
            q = fma(d, d, q);
        }
    }
    __device__ __forceinline__ void merge(int, const red_var &o)
    {
        s += o.s;
        q += o.q;
    }
    __device__ __forceinline__ red_var other(int d) const
    {
        return { __shfl_xor_sync(FULL, s, d), __shfl_xor_sync(FULL, q, d) };
    }
};
struct red_top { /* max and min */
    float v;
    static constexpr bool ints = false;
    __device__ __forceinline__ static red_top none(int fn) { return { fn == DT_R_MIN ? INFINITY : -INFINITY }; }
    __device__ __forceinline__ void see(int fn, float x)
    {
        v = fn == DT_R_MIN ? min_f()(x, v) : max_f()(x, v);
    }
    template <int V> __device__ __forceinline__ void add(int fn, const float (&x)[V], int64_t, double)
    {
#pragma unroll
        for (int j = 0; j < V; j++) see(fn, x[j]);
    }
    __device__ __forceinline__ void merge(int fn, const red_top &o) { see(fn, o.v); }
    __device__ __forceinline__ red_top other(int d) const { return { __shfl_xor_sync(FULL, v, d) }; }
};
struct red_prod {
    double s;
    static constexpr bool ints = false;
    __device__ __forceinline__ static red_prod none(int) { return { 1.0 }; }
    template <int V> __device__ __forceinline__ void add(int, const float (&v)[V], int64_t, double)
    {
#pragma unroll
        for (int j = 0; j < V; j++) s *= (double)v[j];
    }
    __device__ __forceinline__ void merge(int, const red_prod &o) { s *= o.s; }
    __device__ __forceinline__ red_prod other(int d) const { return { __shfl_xor_sync(FULL, s, d) }; }
};
struct red_norm {
    double q;
    static constexpr bool ints = false;
    __device__ __forceinline__ static red_norm none(int) { return { 0.0 }; }
    template <int V> __device__ __forceinline__ void add(int, const float (&v)[V], int64_t, double)
    {
        float t = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++) t = fmaf(v[j], v[j], t);
        q += (double)t;
    }
    __device__ __forceinline__ void merge(int, const red_norm &o) { q += o.q; }
    __device__ __forceinline__ red_norm other(int d) const { return { __shfl_xor_sync(FULL, q, d) }; }
};
struct red_lse { /* logsumexp; lse_state makes NaN of +inf, so +inf is counted apart */
    lse_state s;
    static constexpr bool ints = false;
    __device__ __forceinline__ static red_lse none(int) { return { lse_state::none() }; }
    template <int V> __device__ __forceinline__ void add(int, const float (&v)[V], int64_t, double)
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            float x = v[j], e = x == s.m ? 1.0f : expf(-fabsf(x - s.m)); /* NaN: NaN */
            s.s = x > s.m ? s.s * e + 1.0f : s.s + e;
            s.m = x > s.m ? x : s.m;
            if (x == -INFINITY) s.s -= e;
        }
    }
    __device__ __forceinline__ void merge(int, const red_lse &o)
    {
        float top = fmaxf(s.m, o.s.m);
        s.s = s.s * (s.m == top ? 1.0f : expf(s.m - top)) + o.s.s * (o.s.m == top ? 1.0f : expf(o.s.m - top));
        s.m = top;
    }
    __device__ __forceinline__ red_lse other(int d) const
    {
        return { { __shfl_xor_sync(FULL, s.m, d), __shfl_xor_sync(FULL, s.s, d) } };
    }
};
template <typename T> struct red_at { /* argmax or argmin of floats, or of integers */
    T       v;
    int64_t i;
    static constexpr bool ints = !is_float_type<T>::value;
    __device__ __forceinline__ static red_at none(int fn)
    {
        bool least = fn == DT_R_ARGMIN;
        if constexpr (ints) return { least ? INT64_MAX : INT64_MIN, INT64_MAX };
        else return { least ? INFINITY : -INFINITY, INT64_MAX };
    }
    __device__ __forceinline__ void merge(int fn, const red_at &o)
    {
        bool nan = v != v, other = o.v != o.v, same = nan ? other : v == o.v;
        if (same ? o.i < i : !nan && (other || (fn == DT_R_ARGMIN ? o.v < v : o.v > v))) *this = o;
    }
    template <int V> __device__ __forceinline__ void add(int fn, const T (&x)[V], int64_t first, double)
    {
#pragma unroll
        for (int j = 0; j < V; j++) merge(fn, red_at{ x[j], first + j });
    }
    __device__ __forceinline__ red_at other(int d) const
    {
        return { __shfl_xor_sync(FULL, v, d), (int64_t)__shfl_xor_sync(FULL, (long long)i, d) };
    }
};
struct red_int { /* sum, product, max and min of integers */
    int64_t v;
    static constexpr bool ints = true;
    __device__ __forceinline__ static red_int none(int fn)
    {
        return { fn == DT_R_SUM ? 0 : fn == DT_R_PROD ? 1 : fn == DT_R_MIN ? INT64_MAX : INT64_MIN };
    }
    __device__ __forceinline__ void merge(int fn, const red_int &o)
    {
        if (fn == DT_R_SUM) v = (int64_t)((uint64_t)v + (uint64_t)o.v);
        else if (fn == DT_R_PROD) v = (int64_t)((uint64_t)v * (uint64_t)o.v);
        else if (fn == DT_R_MIN ? o.v < v : o.v > v) v = o.v;
    }
    __device__ __forceinline__ void add(int fn, const int64_t (&x)[1], int64_t, double)
    {
        merge(fn, red_int{ x[0] });
    }
    __device__ __forceinline__ red_int other(int d) const
    {
        return { (int64_t)__shfl_xor_sync(FULL, (long long)v, d) };
    }
};

struct red_args {
    walk<2>           keep;     /* outputs: offsets in x and in y */
    walk<1>           over;     /* reduced, in pieces of V elements: offsets in x */
    int64_t           n, inner; /* elements reduced into one; columns: size of the innermost kept dimension */
    operand<any_type> x, y;
    void             *part;           /* states [output][chunk], if there is more than one chunk */
    int64_t           chunk, nchunks; /* pieces of a chunk */
    int64_t           tiles;          /* columns: along the innermost kept dimension */
    int               fn, lanes, cols;
    bool              biased;
};

template <typename S> __device__ __forceinline__ void red_finish(const red_args &a, const S &s, int64_t at)
{
    double n = (double)a.n;
    if constexpr (__is_same(S, red_sum)) {
        a.y.put(at, (float)(a.fn == DT_R_MEAN ? s.s / n : s.s));
    } else if constexpr (__is_same(S, red_var)) {
        double q = s.q - s.s * s.s / n;
        if (q < 0) q = 0;
        a.y.put(at, (float)(a.biased ? q / n : n > 0 ? q / (n - 1) : (double)NAN));
    } else if constexpr (__is_same(S, red_prod)) {
        a.y.put(at, (float)s.s);
    } else if constexpr (__is_same(S, red_norm)) {
        a.y.put(at, (float)sqrt(s.q));
    } else if constexpr (__is_same(S, red_lse)) {
        a.y.put(at, s.s.s != s.s.s ? s.s.s : s.s.m == INFINITY || s.s.m == -INFINITY ? s.s.m : s.s.m + logf(s.s.s));
    } else if constexpr (__is_same(S, red_top)) {
        a.y.put(at, s.v);
    } else if constexpr (__is_same(S, red_int)) {
        a.y.put_int(at, s.v);
    } else {
        a.y.put_int(at, s.i);
    }
}
template <typename S>
__device__ __forceinline__ void red_leave(const red_args &a, const S &s, int64_t out, int64_t c, int64_t at)
{
    if (a.nchunks > 1) ((S *)a.part)[out * a.nchunks + c] = s;
    else red_finish(a, s, at);
}
/* The piece p of V elements at x + at. V = 4: f32; V = 8: f16 or bf16. */
template <typename S, int V>
__device__ __forceinline__ void red_piece(S &s, const red_args &a, int64_t at, int64_t p, double pivot)
{
    if constexpr (S::ints) {
        int64_t v[1] = { a.x.at_int(at) };
        s.add(a.fn, v, p, pivot);
    } else {
        float v[V];
        if constexpr (V == 1) v[0] = a.x.at(at);
        else if constexpr (V == 4) a.x.as<float>().load(at, v);
        else if (a.x.dtype == DT_F16) a.x.as<__half>().load(at, v);
        else a.x.as<__nv_bfloat16>().load(at, v);
        s.add(a.fn, v, p * V, pivot);
    }
}
/* Every step-th piece from 'from' on. */
template <typename S, int V, int UNROLL>
__device__ __forceinline__ void red_pieces(S &s, const red_args &a, int64_t base, int64_t from, int64_t end, int step,
                                           double pivot)
{
    if (a.over.ndim <= 1) {
        int64_t stride = a.over.stride[0][0];
#pragma unroll UNROLL
        for (int64_t p = from; p < end; p += step) red_piece<S, V>(s, a, base + p * stride, p, pivot);
    } else {
#pragma unroll 1
        for (int64_t p = from; p < end; p += step) {
            int64_t at[1];
            walk_at(a.over, p, at);
            red_piece<S, V>(s, a, base + at[0], p, pivot);
        }
    }
}
/* The elements behind the last whole piece of a run, taken by the next thread in turn. */
template <typename S, int V>
__device__ __forceinline__ void red_rest(S &s, const red_args &a, int64_t base, double pivot)
{
    if constexpr (V > 1)
        for (int64_t i = a.over.total * V; i < a.n; i++) red_piece<S, 1>(s, a, base + i, i, pivot);
}
template <typename S> __device__ __forceinline__ double red_pivot(const red_args &a, int64_t base)
{
    if constexpr (__is_same(S, red_var)) return a.n > 0 ? (double)a.x.at(base) : 0.0;
    else return 0.0;
}

/* ---------------------------------------------------------------------------------------------------- rows */
/* a.lanes (a power of two up to 32) lanes for an output; one chunk */
template <typename S, int V>
static __global__ void __launch_bounds__(BLOCK, 4) red_lanes_kernel(const __grid_constant__ red_args a)
{
    int64_t per = BLOCK / a.lanes; /* outputs of a block; the loop is the same for all lanes of a warp */
    int     lane = (int)threadIdx.x % a.lanes;
    for (int64_t first = blockIdx.x * per; first < a.keep.total; first += gridDim.x * per) {
        int64_t out = first + (int)threadIdx.x / a.lanes, at[2] = { 0, 0 };
        bool    mine = out < a.keep.total;
        S       s = S::none(a.fn);
        if (mine) {
            walk_at(a.keep, out, at);
            double pivot = red_pivot<S>(a, at[0]);
            red_pieces<S, V, 1>(s, a, at[0], lane, a.over.total, a.lanes, pivot);
            if (lane == a.over.total % a.lanes) red_rest<S, V>(s, a, at[0], pivot);
        }
        for (int d = a.lanes / 2; d > 0; d /= 2) s.merge(a.fn, s.other(d));
        if (mine && lane == 0) red_finish(a, s, at[1]);
    }
}
/* A block for an output and a chunk. */
template <typename S, int V>
static __global__ void __launch_bounds__(BLOCK, 4) red_block_kernel(const __grid_constant__ red_args a)
{
    __shared__ S part[BLOCK / WARP];
    int          lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t b = blockIdx.x; b < a.keep.total * a.nchunks; b += gridDim.x) {
        int64_t out = b / a.nchunks, c = b % a.nchunks, at[2];
        int64_t end = (c + 1) * a.chunk < a.over.total ? (c + 1) * a.chunk : a.over.total;
        S       s = S::none(a.fn);
        walk_at(a.keep, out, at);
        double pivot = red_pivot<S>(a, at[0]);
        red_pieces<S, V, 1>(s, a, at[0], c * a.chunk + threadIdx.x, end, BLOCK, pivot);
        if (c == a.nchunks - 1 && threadIdx.x == (end - c * a.chunk) % BLOCK) red_rest<S, V>(s, a, at[0], pivot);
        for (int d = WARP / 2; d > 0; d /= 2) s.merge(a.fn, s.other(d));
        if (lane == 0) part[warp] = s;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int k = 1; k < BLOCK / WARP; k++) s.merge(a.fn, part[k]);
            red_leave(a, s, out, c, at[1]);
        }
        __syncthreads();
    }
}

/* ---------------------------------------------------------------------------------------------------- columns */
/* Threads (row, col) with a.cols columns; the rows are merged in shared memory. */
template <typename S>
static __global__ void __launch_bounds__(BLOCK, 4) red_cols_kernel(const __grid_constant__ red_args a)
{
    __shared__ S part[BLOCK];
    int          col = (int)threadIdx.x % a.cols, row = (int)threadIdx.x / a.cols;
    int64_t      total = a.keep.total / a.inner * a.tiles * a.nchunks;
    for (int64_t b = blockIdx.x; b < total; b += gridDim.x) {
        int64_t c = b % a.nchunks, t = b / a.nchunks, k = t % a.tiles * a.cols + col, at[2] = { 0, 0 };
        int64_t out = t / a.tiles * a.inner + k;
        int64_t end = (c + 1) * a.chunk < a.over.total ? (c + 1) * a.chunk : a.over.total;
        bool    mine = k < a.inner && row < a.lanes;
        S       s = S::none(a.fn);
        if (mine) {
            walk_at(a.keep, out, at);
            double pivot = red_pivot<S>(a, at[0]);
            red_pieces<S, 1, 4>(s, a, at[0], c * a.chunk + row, end, a.lanes, pivot);
        }
        part[threadIdx.x] = s;
        for (int left = a.lanes; left > 1;) {
            int half = (left + 1) / 2;
            __syncthreads();
            if (row < half && row + half < left) {
                s.merge(a.fn, part[threadIdx.x + half * a.cols]);
                part[threadIdx.x] = s;
            }
            left = half;
        }
        if (mine && row == 0) red_leave(a, s, out, c, at[1]);
        __syncthreads();
    }
}

/* ---------------------------------------------------------------------------------------------------- chunks */
template <typename S>
static __global__ void __launch_bounds__(BLOCK, 4) red_chunks_kernel(const __grid_constant__ red_args a)
{
    int lane = (int)threadIdx.x % WARP;
    for (int64_t out = grid_first() / WARP; out < a.keep.total; out += grid_step() / WARP) { /* a warp for an output */
        S       s = S::none(a.fn);
        int64_t at[2];
        for (int64_t c = lane; c < a.nchunks; c += WARP) s.merge(a.fn, ((const S *)a.part)[out * a.nchunks + c]);
        for (int d = WARP / 2; d > 0; d /= 2) s.merge(a.fn, s.other(d));
        walk_at(a.keep, out, at);
        if (lane == 0) red_finish(a, s, at[1]);
    }
}

/* ---------------------------------------------------------------------------------------------------- launching */
enum { RED_BLOCKS = 512 }; /* blocks that keep a GPU busy */

template <typename S, typename F> static void red_with_width(int v, F f)
{
    if constexpr (S::ints) with_width<1>(v, f);
    else with_width<8, 4, 1>(v, f);
}
template <typename S> static int red_run(dt_device *dev, const dt_call *c, red_args &a, bool columns, int v)
{
    cudaStream_t s = stream_of(dev, c);
    int64_t      items = columns ? a.keep.total / a.inner * a.tiles : a.keep.total; /* blocks without chunks */
    bool         lanes = !columns && a.n <= 2048;
    if (!lanes) {
        int64_t least = columns ? 16 * (int64_t)a.lanes : 2048 / v; /* the fewest pieces for which a block pays */
        a.nchunks = items < RED_BLOCKS ? (RED_BLOCKS + items - 1) / items : 1;
        if (a.nchunks > a.over.total / least) a.nchunks = a.over.total / least;
        if (a.nchunks < 1) a.nchunks = 1;
        a.chunk = (a.over.total + a.nchunks - 1) / a.nchunks;
        if (a.chunk > 0) a.nchunks = (a.over.total + a.chunk - 1) / a.chunk;
        if (a.nchunks > 1) {
            a.part = dt__cuda_scratch(dev, c->stream, (size_t)(a.keep.total * a.nchunks) * sizeof(S));
            if (!a.part) return DT_ERR_MEMORY;
        }
    }
    unsigned blocks = blocks_for(items * a.nchunks, 1);
    if (columns) {
        red_cols_kernel<S><<<blocks, BLOCK, 0, s>>>(a);
    } else if (lanes) {
        a.lanes = 1;
        while (a.lanes < WARP && a.lanes < a.over.total) a.lanes *= 2;
        blocks = blocks_for(a.keep.total, BLOCK / a.lanes);
        red_with_width<S>(v, [&](auto w) { red_lanes_kernel<S, w.value><<<blocks, BLOCK, 0, s>>>(a); });
    } else {
        red_with_width<S>(v, [&](auto w) { red_block_kernel<S, w.value><<<blocks, BLOCK, 0, s>>>(a); });
    }
    if (a.nchunks > 1) red_chunks_kernel<S><<<blocks_for(a.keep.total, BLOCK / WARP), BLOCK, 0, s>>>(a);
    return launched(c);
}

/* One more dimension, before those with smaller strides of x (sorted), or last. */
static void red_insert(dt_view &x, dt_view &y, int64_t n, int64_t xs, int64_t ys, bool sorted)
{
    int d = x.ndim++;
    y.ndim = x.ndim;
    for (; sorted && d > 0 && x.stride[d - 1] < xs; d--) {
        x.shape[d] = x.shape[d - 1], x.stride[d] = x.stride[d - 1];
        y.shape[d] = y.shape[d - 1], y.stride[d] = y.stride[d - 1];
    }
    x.shape[d] = y.shape[d] = n;
    x.stride[d] = xs, y.stride[d] = ys;
}
/* The elements of a dense row that a thread takes at once; over then counts whole pieces. */
static int red_width(red_args &a)
{
    const int dtype[1] = { a.x.dtype };
    int       last = a.over.ndim - 1, v = width_of(dtype);
    if (dtype[0] == DT_U8 || a.over.ndim == 0 || a.over.stride[0][last] != 1 || !suits(a.x.p, dtype[0], v)) return 1;
    if (last > 0 && a.over.shape[last] % v) return 1; /* a partial piece is possible only if there is one run */
    for (int d = 0; d < last; d++)
        if (a.over.stride[0][d] % v) return 1;
    for (int d = 0; d < a.keep.ndim; d++)
        if (a.keep.stride[0][d] % v) return 1;
    a.over.total /= v;
    a.over.shape[last] /= v;
    a.over.stride[0][last] = v;
    return v;
}

} /* namespace dtk */

extern "C" int dt__cuda_reduce(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    static const char *const names[DT_R_COUNT] = { "sum", "mean", "max", "min", "argmax", "var", "argmin", "prod", "norm",
                                                   "logsumexp" };
    const dt_view *y = &c->out[0], *x = &c->in[0];
    int            fn = c->u.reduce.fn;
    bool           ints = is_int(x->dtype) && is_int(y->dtype), index = fn == DT_R_ARGMAX || fn == DT_R_ARGMIN;
    dt_view        kx, ky, rx, ry;
    red_args       a;
    if (fn < 0 || fn >= DT_R_COUNT) return dt_fail(DT_ERR_ARG, "reduce: there is no function %d", fn);
    if (ints && (fn == DT_R_MEAN || fn == DT_R_VAR || fn == DT_R_NORM || fn == DT_R_LSE))
        return dt_fail(DT_ERR_DTYPE, "reduce: %s does not take integers; cast to f32", names[fn]);
    memset(&a, 0, sizeof a);
    kx.ndim = ky.ndim = rx.ndim = ry.ndim = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (x->shape[d] == 1) continue;
        if (y->shape[d] == 1) red_insert(rx, ry, x->shape[d], x->stride[d], 0, !index);
        else red_insert(kx, ky, x->shape[d], x->stride[d], y->stride[d], true);
    }
    const dt_view *const keep[2] = { &kx, &ky }, *const over[1] = { &rx };
    a.keep = walk_of<2>(keep);
    a.over = walk_of<1>(over);
    a.n = a.over.total;
    if (a.keep.total == 0) return 0;
    if (a.n == 0 && (fn == DT_R_MAX || fn == DT_R_MIN || index))
        return dt_fail(DT_ERR_SHAPE, "reduce: %s over no elements has no value; reduce a dimension that is not 0",
                       names[fn]);
    a.x = in_of<any_type>(c, 0), a.y = out_of<any_type>(c, 0);
    a.fn = fn;
    a.biased = c->u.reduce.biased != 0;
    a.nchunks = 1;
    a.chunk = a.n;
    a.lanes = a.cols = 1;
    if (a.over.ndim == 0) a.over.stride[0][0] = 0;
    a.inner = a.keep.ndim > 0 ? a.keep.shape[a.keep.ndim - 1] : 1;
    bool columns = a.keep.ndim > 0 && a.over.ndim > 0 && a.n > 1 &&
                   a.keep.stride[0][a.keep.ndim - 1] < a.over.stride[0][a.over.ndim - 1];
    if (columns) {
        int rows = a.n >= 8 ? 8 : a.n >= 4 ? 4 : 2;
        a.cols = (int)(a.inner < BLOCK / rows ? a.inner : BLOCK / rows);
        a.lanes = BLOCK / a.cols;
        a.tiles = (a.inner + a.cols - 1) / a.cols;
    }
    int v = columns || ints ? 1 : red_width(a);
    a.chunk = a.over.total;
    if (ints) {
        if (index) return red_run<red_at<int64_t>>(dev, c, a, columns, v);
        return red_run<red_int>(dev, c, a, columns, v);
    }
    if (fn == DT_R_SUM || fn == DT_R_MEAN) return red_run<red_sum>(dev, c, a, columns, v);
    if (fn == DT_R_VAR) return red_run<red_var>(dev, c, a, columns, v);
    if (fn == DT_R_PROD) return red_run<red_prod>(dev, c, a, columns, v);
    if (fn == DT_R_NORM) return red_run<red_norm>(dev, c, a, columns, v);
    if (fn == DT_R_LSE) return red_run<red_lse>(dev, c, a, columns, v);
    if (index) return red_run<red_at<float>>(dev, c, a, columns, v);
    return red_run<red_top>(dev, c, a, columns, v);
}
