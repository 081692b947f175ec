/* indexing.cu: embedding and gather, and their gradients.

   embedding      y[i] = weight[index[i]], rows of d elements       dweight[r] = sum of dy[i] with index[i] = r
                  (both with an outer dimension, too, whose rows share the indices)
   gather         y[o, j, i] = x[o, index[o, j, i], i]              dx[o, k, i] = sum of dy[o, j, i] with index = k
   Forward moves bits: a thread moves up to 16 bytes of a row (embedding) or one element (gather).

   The gradients are one problem: position p adds d neighbours of dy to row key(p) of the result. Three ways:
     atomics   f32, where the device need not be deterministic: a thread for an element, one float atomic each
     columns   gather: a thread for each (o, i) adds in the order of j; for f32, or where positions cannot meet
     sorted    everything else: positions are sorted by key (radix sort, stable, 8 bits a pass), cut into chunks of 64,
               and a thread adds up one column of one chunk in f32. A run of equal keys inside a chunk is written at
               once; a run that crosses chunks leaves partial sums, which a second kernel adds in order. The result has
               the same bits in every run, f16 and bf16 are rounded once, the time hardly depends on how often an index
               occurs, and no f32 copy of the table is needed.

   An index out of range is recorded and becomes an error on the host (refuse, in common.cuh). Its result is NaN (0 for
   integers), and it adds nothing to a gradient; memory outside of the operands is never accessed.

   Launch shapes: blocks of 256 threads, grid-stride loops; sorting: a block for 2048 positions, and
   one block of 1024 threads for the sums of the digits' counts.

   Roofline: embedding 2 d elements moved per position and the index, no FLOPs; gather an element, its index and a
   sector of 32 bytes of x. Gradients: dy once, the result once (atomics read it, too), and once more to set it to 0, 1
   FLOP per element of dy. Sorting moves 5 times 8 bytes per position and pass (3 times in the first, which counts
   positions and does not read them), the index in sectors of 32 once the order is not that of memory; 2 passes for up
   to 65,535 rows. All of them are memory-bound. */
#include "vector.cuh"

namespace dtk {

enum { IX_CHUNK = 64, IX_TILE = 2048, IX_DIGITS = 256, IX_SCAN = 1024 };

/* ---------------------------------------------------------------------------------------------------- forward */
template <typename U> __device__ __forceinline__ U ix_bits(bool ones)
{
    if constexpr (sizeof(U) == 16) return ones ? U{ ~0u, ~0u, ~0u, ~0u } : U{ 0, 0, 0, 0 };
    else return ones ? (U)~(U)0 : (U)0;
}
/* units: elements of type U in a row; nan: a bad index gives all bits 1, which is NaN in every float dtype */
template <typename U> static __global__ void __launch_bounds__(BLOCK, 4)
ix_embedding_kernel(U *y, const U *weight, operand<any_type> index, int64_t outer, int64_t n, int64_t units, bool nan,
                    const __grid_constant__ dt__cuda_watch watch)
{
    for (int64_t i = grid_first(); i < outer * n * units; i += grid_step()) {
        int64_t pos = i / units, o = outer > 1 ? pos / n : 0, row = index.at_int(pos - o * n);
        bool    good = row >= 0 && row < watch.limit;
        y[i] = good ? weight[(o * watch.limit + row) * units + (i - pos * units)] : ix_bits<U>(nan);
        if (!good && i == pos * units) refuse(watch, pos - o * n, row);
    }
}
template <typename U> static __global__ void __launch_bounds__(BLOCK, 4)
ix_gather_kernel(U *y, const U *x, operand<any_type> index, int64_t n, int64_t ny, int64_t inner, bool nan,
                 const __grid_constant__ dt__cuda_watch watch)
{
    for (int64_t p = grid_first(); p < n; p += grid_step()) {
        int64_t k = index.at_int(p), o = p / inner / ny;
        bool    good = k >= 0 && k < watch.limit;
        y[p] = good ? x[(o * watch.limit + k) * inner + p % inner] : ix_bits<U>(nan);
        if (!good) refuse(watch, p, k);
    }
}

/* ---------------------------------------------------------------------------------------------------- keys */
/* embedding: ny = 0, the key is the index. gather: the key is the place of an element in dx. */
struct ix_keys {
    operand<any_type> index;
    int64_t           rows, ny, inner, limit; /* limit: keys are below it; the key of a bad index is limit */
    int64_t           many; /* embedding: positions that share the indices (a row of the outer dimension); 0: all */
    dt__cuda_watch    watch;
};
__device__ __forceinline__ int64_t ix_key(const ix_keys &k, int64_t p)
{
    int64_t o = k.many ? p / k.many : 0, row = k.index.at_int(p - o * k.many);
    if (row < 0 || row >= k.rows) return k.limit;
    if (k.many) return o * k.rows + row;
    return k.ny ? (p / (k.ny * k.inner) * k.rows + row) * k.inner + p % k.inner : row;
}

__device__ __forceinline__ void ix_refuse(const ix_keys &k, int64_t p)
{
    if (k.many) p %= k.many;
    refuse(k.watch, p, k.index.at_int(p));
}

static __global__ void __launch_bounds__(BLOCK, 4)
ix_atomic_kernel(float *out, operand<mixed> dy, const __grid_constant__ ix_keys k, int64_t n, int64_t d)
{
    for (int64_t i = grid_first(); i < n * d; i += grid_step()) {
        int64_t p = i / d, key = ix_key(k, p);
        if (key < k.limit) atomicAdd(out + key * d + (i - p * d), dy.at(i));
        else if (i == p * d) ix_refuse(k, p);
    }
}
/* A thread for each (o, i). The result must hold 0, or the values to add to. */
static __global__ void __launch_bounds__(BLOCK, 4)
ix_columns_kernel(operand<mixed> dx, operand<mixed> dy, const __grid_constant__ ix_keys k, int64_t columns)
{
    for (int64_t c = grid_first(); c < columns; c += grid_step()) {
        int64_t first = c / k.inner * k.ny * k.inner + c % k.inner;
        for (int64_t j = 0; j < k.ny; j++) {
            int64_t p = first + j * k.inner, key = ix_key(k, p);
            if (key < k.limit) dx.adding(true).put(key, dy.at(p));
            else ix_refuse(k, p);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- sorting
   One pass over 8 bits of the keys: counts of each digit in each tile of positions, in the order (digit, tile); their
   exclusive sums are the places where a tile's positions with that digit begin; then every position goes to its place.
   A warp owns IX_TILE/8 neighbours of a tile and takes them 32 at a time, so equal digits keep their order. from ==
   NULL: the input is the positions 0, 1, 2, ... */
struct ix_pass {
    ix_keys        k;
    const int64_t *from;
    int64_t       *to, *count; /* count: [digit][tile] */
    int64_t        n, tiles;
    int            shift;
};
/* A mask of the warp's active lanes that have this lane's digit. */
__device__ __forceinline__ unsigned ix_peers(int digit, bool active)
{
    unsigned peers = __ballot_sync(FULL, active);
#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
        unsigned set = __ballot_sync(FULL, digit >> bit & 1);
        peers &= digit >> bit & 1 ? set : ~set;
    }
    return peers;
}
template <bool SCATTER>
static __global__ void __launch_bounds__(BLOCK, 4) ix_pass_kernel(const __grid_constant__ ix_pass a)
{
    constexpr int WARPS = BLOCK / WARP;
    __shared__ int64_t place[WARPS][IX_DIGITS]; /* by warp and digit: the count, then the place of the next position */
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        int64_t first = tile * IX_TILE + warp * (IX_TILE / WARPS);
        for (int w = 0; w < WARPS; w++) place[w][threadIdx.x] = 0; /* BLOCK is IX_DIGITS */
        __syncthreads();
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < IX_TILE / WARPS; i += WARP) {
                int64_t  at = first + i + lane, p = 0;
                bool     active = at < a.n;
                int      digit = 0;
                if (active) {
                    p = a.from ? a.from[at] : at;
                    digit = (int)(ix_key(a.k, p) >> a.shift & (IX_DIGITS - 1));
                }
                unsigned peers = ix_peers(digit, active), before = peers & ((1u << lane) - 1);
                int64_t  base = active ? place[warp][digit] : 0;
                __syncwarp();
                if (active && round == 1) a.to[base + __popc(before)] = p;
                if (active && before == 0) place[warp][digit] = base + __popc(peers);
                __syncwarp();
            }
            __syncthreads();
            if (round == 1 || !SCATTER) break;
            int64_t next = a.count[threadIdx.x * a.tiles + tile]; /* one thread for each digit turns counts into places */
            for (int w = 0; w < WARPS; w++) {
                int64_t many = place[w][threadIdx.x];
                place[w][threadIdx.x] = next;
                next += many;
            }
            __syncthreads();
        }
        if constexpr (!SCATTER) {
            int64_t many = 0;
            for (int w = 0; w < WARPS; w++) many += place[w][threadIdx.x];
            a.count[threadIdx.x * a.tiles + tile] = many;
        }
        __syncthreads();
    }
}
/* v becomes its exclusive prefix sums; one block */
static __global__ void __launch_bounds__(IX_SCAN) ix_scan_kernel(int64_t *v, int64_t n)
{
    __shared__ long long warps[IX_SCAN / WARP];
    int                  lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    long long            carry = 0;
    for (int64_t first = 0; first < n; first += IX_SCAN) {
        int64_t   i = first + threadIdx.x;
        long long own = i < n ? v[i] : 0, sum = own;
        for (int d = 1; d < WARP; d *= 2) {
            long long before = __shfl_up_sync(FULL, sum, d);
            if (lane >= d) sum += before;
        }
        if (lane == WARP - 1) warps[warp] = sum;
        __syncthreads();
        long long all = 0, less = 0;
        for (int w = 0; w < IX_SCAN / WARP; w++) {
            if (w < warp) less += warps[w];
            all += warps[w];
        }
        if (i < n) v[i] = carry + less + sum - own;
        carry += all;
        __syncthreads();
    }
}

/* ---------------------------------------------------------------------------------------------------- sums of runs */
struct ix_runs {
    ix_keys        k;
    const int64_t *order; /* positions, sorted by key */
    operand<mixed> dy, out;
    float         *head, *tail; /* [chunk][d]: sums of the run that began in an earlier chunk; of the run that continues */
    int64_t        n, d, chunks;
};
__device__ __forceinline__ int64_t ix_run_key(const ix_runs &a, int64_t slot) { return ix_key(a.k, a.order[slot]); }

static __global__ void __launch_bounds__(BLOCK, 4) ix_runs_kernel(const __grid_constant__ ix_runs a)
{
    for (int64_t i = grid_first(); i < a.chunks * a.d; i += grid_step()) {
        int64_t c = i / a.d, col = i - c * a.d, first = c * IX_CHUNK;
        int64_t end = first + IX_CHUNK < a.n ? first + IX_CHUNK : a.n;
        int64_t key = ix_run_key(a, first);
        bool    open = first > 0 && ix_run_key(a, first - 1) == key; /* the run began before this chunk */
        float   sum = 0.0f;
        for (int64_t j = first; j < end; j++) {
            sum += a.dy.at(a.order[j] * a.d + col);
            if (key >= a.k.limit && col == 0) ix_refuse(a.k, a.order[j]);
            int64_t next = j + 1 < a.n ? ix_run_key(a, j + 1) : -1;
            if (next == key && j + 1 < end) continue;
            if (open) a.head[i] = sum;
            else if (next == key) a.tail[i] = sum;
            else if (key < a.k.limit) a.out.put(key * a.d + col, sum);
            key = next;
            open = false;
            sum = 0.0f;
        }
    }
}
/* The runs that begin in a chunk and end in a later one. */
static __global__ void __launch_bounds__(BLOCK, 4) ix_joins_kernel(const __grid_constant__ ix_runs a)
{
    for (int64_t i = grid_first(); i < (a.chunks - 1) * a.d; i += grid_step()) {
        int64_t c = i / a.d, col = i - c * a.d, first = c * IX_CHUNK, last = first + IX_CHUNK - 1;
        int64_t key = ix_run_key(a, last);
        if (key >= a.k.limit || ix_run_key(a, last + 1) != key) continue;
        if (ix_run_key(a, first) == key && first > 0 && ix_run_key(a, first - 1) == key) continue; /* began earlier */
        float sum = a.tail[i];
        for (int64_t n = c + 1; n < a.chunks && ix_run_key(a, n * IX_CHUNK) == key; n++) sum += a.head[n * a.d + col];
        a.out.put(key * a.d + col, sum);
    }
}

static int ix_sorted(dt_device *dev, const dt_call *c, const ix_keys &k, int64_t n, int64_t d)
{
    cudaStream_t s = stream_of(dev, c);
    int64_t      tiles = (n + IX_TILE - 1) / IX_TILE, chunks = (n + IX_CHUNK - 1) / IX_CHUNK;
    int64_t      counts = IX_DIGITS * tiles;
    size_t       nbytes = (size_t)(2 * n + counts) * sizeof(int64_t) + (size_t)(2 * chunks * d) * sizeof(float);
    char        *mem = (char *)dt__cuda_scratch(dev, c->stream, nbytes);
    if (!mem) return DT_ERR_MEMORY;
    int64_t *order = (int64_t *)mem, *other = order + n, *count = other + n;
    ix_pass  p = { k, NULL, order, count, n, tiles, 0 };
    for (p.shift = 0; p.shift == 0 || (p.shift < 63 && k.limit >> p.shift); p.shift += 8) {
        unsigned blocks = blocks_for(tiles, 1);
        ix_pass_kernel<false><<<blocks, BLOCK, 0, s>>>(p);
        ix_scan_kernel<<<1, IX_SCAN, 0, s>>>(count, counts);
        ix_pass_kernel<true><<<blocks, BLOCK, 0, s>>>(p);
        int64_t *done = p.to;
        p.to = done == order ? other : order;
        p.from = done;
    }
    float  *head = (float *)(count + counts);
    ix_runs a = { k, p.from, in_of<mixed>(c, 0), out_of<mixed>(c, 0), head, head + chunks * d, n, d, chunks };
    ix_runs_kernel<<<blocks_for(chunks * d), BLOCK, 0, s>>>(a);
    if (chunks > 1) ix_joins_kernel<<<blocks_for((chunks - 1) * d), BLOCK, 0, s>>>(a);
    return launched(c);
}
/* Sets or adds to the output (limit rows of d elements): the sums by key of the rows of the first input. */
static int ix_scatter(dt_device *dev, const dt_call *c, const ix_keys &k, int64_t n, int64_t d)
{
    cudaStream_t   s = stream_of(dev, c);
    operand<mixed> out = out_of<mixed>(c, 0), dy = in_of<mixed>(c, 0);
    int64_t        columns = k.ny ? n / k.ny : 0;
    if (!out.add && k.limit * d > 0) {
        cudaError_t e = cudaMemsetAsync(out.p, 0, (size_t)(k.limit * d * elem_size(out.dtype)), s);
        if (e != cudaSuccess) return dt__cuda_check((int)e, dt_kernel_name(c->op));
    }
    if (n * d == 0 || k.limit == 0) return 0;
    if (out.dtype == DT_F32 && !dt__cuda_deterministic(dev)) {
        ix_atomic_kernel<<<blocks_for(n * d), BLOCK, 0, s>>>((float *)out.p, dy, k, n, d);
        return launched(c);
    }
    if (k.ny == 1 || (k.ny && out.dtype == DT_F32 && (k.ny <= 64 || columns >= 16384))) {
        ix_columns_kernel<<<blocks_for(columns), BLOCK, 0, s>>>(out, dy, k, columns);
        return launched(c);
    }
    return ix_sorted(dev, c, k, n, d);
}

} /* namespace dtk */

extern "C" int dt__cuda_embedding(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *index = &c->in[0], *weight = &c->in[1];
    int            more = y->ndim == 3;
    int64_t        outer = more ? y->shape[0] : 1, n = y->shape[more], nbytes = y->shape[more + 1] * elem_size(y->dtype);
    if (!is_int(index->dtype)) return no_dtype(c, index->dtype);
    if (outer * n * nbytes == 0) return 0;
    int unit = 16;
    while (nbytes % unit || !aligned_to(y->data, unit) || !aligned_to(weight->data, unit)) unit /= 2;
    with_bits<16>(unit, [&](auto u) {
        using U = decltype(u);
        int64_t units = nbytes / (int64_t)sizeof(U);
        ix_embedding_kernel<U><<<blocks_for(outer * n * units), BLOCK, 0, stream_of(dev, c)>>>(
            (U *)y->data, (const U *)weight->data, in_of<any_type>(c, 0), outer, n, units, !is_int(y->dtype),
            dt__cuda_watched(dev, c, weight->shape[more]));
    });
    return launched(c);
}

extern "C" int dt__cuda_embedding_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *dw = &c->out[0], *dy = &c->in[0], *index = &c->in[1];
    int            status = all_floats(c, 1, 1);
    if (status) return status;
    if (!is_int(index->dtype)) return no_dtype(c, index->dtype);
    int     more = dw->ndim == 3;
    int64_t outer = more ? dw->shape[0] : 1, rows = dw->shape[more], n = dy->shape[more];
    ix_keys k = { in_of<any_type>(c, 1), rows, 0, 1, outer * rows, outer > 1 ? n : 0, dt__cuda_watched(dev, c, rows) };
    return ix_scatter(dev, c, k, outer * n, dw->shape[more + 1]);
}

extern "C" int dt__cuda_gather(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *x = &c->in[0], *index = &c->in[1];
    int64_t        n = numel(*y);
    if (!is_int(index->dtype)) return no_dtype(c, index->dtype);
    if (n == 0) return 0;
    with_bits<8>(elem_size(y->dtype), [&](auto u) {
        using U = decltype(u);
        ix_gather_kernel<U><<<blocks_for(n), BLOCK, 0, stream_of(dev, c)>>>(
            (U *)y->data, (const U *)x->data, in_of<any_type>(c, 1), n, y->shape[1], y->shape[2], !is_int(y->dtype),
            dt__cuda_watched(dev, c, x->shape[1]));
    });
    return launched(c);
}

extern "C" int dt__cuda_gather_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *dx = &c->out[0], *dy = &c->in[0], *index = &c->in[1];
    int            status = all_floats(c, 1, 1);
    if (status) return status;
    if (!is_int(index->dtype)) return no_dtype(c, index->dtype);
    ix_keys k = { in_of<any_type>(c, 1), dx->shape[1], dy->shape[1],
                  dx->shape[2],     numel(*dx),   0, dt__cuda_watched(dev, c, dx->shape[1]) };
    return ix_scatter(dev, c, k, numel(*dy), 1);
}
