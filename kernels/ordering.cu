/* ordering.cu: scan, sort, scatter over the middle dimension of (outer, n, inner).

   scan      y[j] = sum or product of x[0..j] (or backwards, or without x[j]), floats in double, integers modulo 2^64.
             inner = 1: a block for a row, 256 elements at a time, partial results through shuffles and shared memory;
             else a thread for a column.
   sort      the places of the k smallest (or largest) of each column, in order; equals by place; NaN is the largest. The
             values become unsigned keys, and pairs (key, place), which are all different, go through a bitonic network:
             up to 1024 pairs in the shared memory of a block; longer columns, padded to a power of two, in scratch
             memory, a launch for each step of more than 1024.
   scatter   y[index] = src, where of several sources of one place the last counts: first every place notes the highest
             position that writes it (an atomic maximum), then that position writes. Added integers: atomics; u8, which has
             none, a thread for a column.

   An index out of range is recorded and becomes an error on the host (refuse, in common.cuh).

   Roofline: scan moves each operand once, 1 FLOP per element; scatter 8 bytes per place of y and 16 per position more than
   its operands. Both are memory-bound. sort in scratch memory moves 32 bytes per pair and step. */
#include "vector.cuh"

namespace dtk {

enum { ORD_TILE = 1024 };

/* ---------------------------------------------------------------------------------------------------- scan */
struct ord_scan {
    operand<any_type> x, y;
    int64_t           outer, n, inner;
    bool              prod, back, exclusive;
};
/* T: double or unsigned long long */
template <typename T> __device__ __forceinline__ T ord_op(bool prod, T a, T b) { return prod ? a * b : a + b; }
template <typename T> __device__ __forceinline__ T ord_get(const ord_scan &a, int64_t at)
{
    if constexpr (__is_same(T, double)) return (T)a.x.floats().at(at);
    else return (T)a.x.at_int(at);
}
template <typename T> __device__ __forceinline__ void ord_put(const ord_scan &a, int64_t at, T v)
{
    if constexpr (__is_same(T, double)) a.y.floats().put(at, (float)v);
    else a.y.put_int(at, (int64_t)v);
}
template <typename T> static __global__ void __launch_bounds__(BLOCK, 4) ord_columns_kernel(const __grid_constant__ ord_scan a)
{
    for (int64_t c = grid_first(); c < a.outer * a.inner; c += grid_step()) {
        int64_t first = c / a.inner * a.n * a.inner + c % a.inner;
        T       acc = a.prod ? (T)1 : (T)0;
        for (int64_t j = 0; j < a.n; j++) {
            int64_t at = first + (a.back ? a.n - 1 - j : j) * a.inner;
            T       next = ord_op<T>(a.prod, acc, ord_get<T>(a, at));
            ord_put<T>(a, at, a.exclusive ? acc : next);
            acc = next;
        }
    }
}
template <typename T> static __global__ void __launch_bounds__(BLOCK, 4) ord_rows_kernel(const __grid_constant__ ord_scan a)
{
    __shared__ T part[BLOCK / WARP];
    int          lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    T            one = a.prod ? (T)1 : (T)0;
    for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
        T carry = one;
        for (int64_t first = 0; first < a.n; first += BLOCK) {
            int64_t j = first + threadIdx.x, at = row * a.n + (a.back ? a.n - 1 - j : j);
            T       own = j < a.n ? ord_get<T>(a, at) : one, all = own;
            for (int d = 1; d < WARP; d *= 2) {
                T before = __shfl_up_sync(FULL, all, d);
                if (lane >= d) all = ord_op<T>(a.prod, before, all);
            }
            T less = __shfl_up_sync(FULL, all, 1); /* without this element */
            if (lane == 0) less = one;
            if (lane == WARP - 1) part[warp] = all;
            __syncthreads();
            T total = one;
            for (int w = 0; w < BLOCK / WARP; w++) {
                if (w == warp) {
                    T ahead = ord_op<T>(a.prod, carry, total);
                    if (j < a.n) ord_put<T>(a, at, ord_op<T>(a.prod, ahead, a.exclusive ? less : all));
                }
                total = ord_op<T>(a.prod, total, part[w]);
            }
            carry = ord_op<T>(a.prod, carry, total);
            __syncthreads();
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- sort */
struct __align__(16) ord_pair { /* aligned: one access, not two that use half of a sector each */
    unsigned long long key;
    long long          at;
};
__device__ __forceinline__ bool ord_after(const ord_pair &a, const ord_pair &b)
{
    return a.key > b.key || (a.key == b.key && a.at > b.at);
}
struct ord_sort {
    operand<any_type> x;
    int64_t          *y;
    ord_pair         *pairs;                 /* [column][padded], of long columns */
    int64_t           columns, n, inner, k, padded;
    bool              ints, descending;
};
/* Pair j of column c; behind the end one that comes last. */
__device__ __forceinline__ ord_pair ord_load(const ord_sort &a, int64_t c, int64_t j)
{
    if (j >= a.n) return { ~0ull, (long long)j };
    int64_t            at = c / a.inner * a.n * a.inner + j * a.inner + c % a.inner;
    unsigned long long key;
    if (a.ints) {
        key = (unsigned long long)a.x.at_int(at) ^ 1ull << 63;
        if (a.descending) key = ~key;
    } else {
        float    f = a.x.floats().at(at);
        uint32_t u = f == 0.0f ? 0u : __float_as_uint(f);
        u = f != f ? 0xffffffffu : u >> 31 ? ~u : u | 0x80000000u;
        key = a.descending ? ~u : u;
    }
    return { key, (long long)j };
}
__device__ __forceinline__ void ord_store(const ord_sort &a, int64_t c, int64_t j, const ord_pair &p)
{
    if (j < a.k) a.y[c / a.inner * a.k * a.inner + j * a.inner + c % a.inner] = p.at;
}
/* Steps of the network inside a tile of 'size' pairs whose first is number 'first' of its column. Block sizes from 'from' to
   'to'; of the largest only the steps below the tile remain. */
__device__ __forceinline__ void ord_network(ord_pair *s, int64_t first, int size, int64_t from, int64_t to)
{
    for (int64_t block = from; block <= to; block *= 2)
        for (int step = (int)(block / 2 < size / 2 ? block / 2 : size / 2); step > 0; step /= 2) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < size / 2; i += BLOCK) {
                int      lo = i / step * 2 * step + i % step, hi = lo + step;
                bool     down = ((first + lo) & block) != 0;
                ord_pair p = s[lo], q = s[hi];
                if (ord_after(p, q) != down) {
                    s[lo] = q;
                    s[hi] = p;
                }
            }
        }
    __syncthreads();
}
/* Whole columns of up to ORD_TILE pairs; padded is a power of two. */
static __global__ void __launch_bounds__(BLOCK, 4) ord_short_kernel(const __grid_constant__ ord_sort a)
{
    __shared__ ord_pair s[ORD_TILE];
    for (int64_t c = blockIdx.x; c < a.columns; c += gridDim.x) {
        for (int64_t j = threadIdx.x; j < a.padded; j += BLOCK) s[j] = ord_load(a, c, j);
        ord_network(s, 0, (int)a.padded, 2, a.padded);
        for (int64_t j = threadIdx.x; j < a.k; j += BLOCK) ord_store(a, c, j, s[j]);
        __syncthreads();
    }
}
/* Tiles of long columns. begin: loads the pairs and sorts each tile; else the steps of 'block' that stay inside a tile. */
static __global__ void __launch_bounds__(BLOCK, 4)
ord_tiles_kernel(const __grid_constant__ ord_sort a, int64_t block, bool begin)
{
    __shared__ ord_pair s[ORD_TILE];
    int64_t             tiles = a.padded / ORD_TILE;
    for (int64_t t = blockIdx.x; t < a.columns * tiles; t += gridDim.x) {
        int64_t c = t / tiles, first = t % tiles * ORD_TILE;
        for (int j = (int)threadIdx.x; j < ORD_TILE; j += BLOCK)
            s[j] = begin ? ord_load(a, c, first + j) : a.pairs[c * a.padded + first + j];
        ord_network(s, first, ORD_TILE, begin ? 2 : block, begin ? (int64_t)ORD_TILE : block);
        for (int j = (int)threadIdx.x; j < ORD_TILE; j += BLOCK) a.pairs[c * a.padded + first + j] = s[j];
        __syncthreads();
    }
}
static __global__ void __launch_bounds__(BLOCK, 4)
ord_step_kernel(const __grid_constant__ ord_sort a, int64_t block, int64_t step)
{
    int64_t half = a.padded / 2;
    for (int64_t i = grid_first(); i < a.columns * half; i += grid_step()) {
        int64_t   c = i / half, r = i % half, lo = r / step * 2 * step + r % step;
        ord_pair *s = a.pairs + c * a.padded, p = s[lo], q = s[lo + step];
        if (ord_after(p, q) != ((lo & block) != 0)) {
            s[lo] = q;
            s[lo + step] = p;
        }
    }
}
static __global__ void __launch_bounds__(BLOCK, 4) ord_result_kernel(const __grid_constant__ ord_sort a)
{
    for (int64_t i = grid_first(); i < a.columns * a.k; i += grid_step())
        ord_store(a, i / a.k, i % a.k, a.pairs[i / a.k * a.padded + i % a.k]);
}

/* ---------------------------------------------------------------------------------------------------- scatter */
struct ord_scatter {
    operand<any_type>   index, src, y;
    unsigned long long *last; /* of each place of y: 1 + the highest position that writes it, 0: none */
    int64_t             total, n, inner, ny; /* total: positions */
    int                 size;                /* bytes of an element */
    dt__cuda_watch      watch;
};
__device__ __forceinline__ int64_t ord_place(const ord_scatter &a, int64_t p) /* -1: out of range */
{
    int64_t k = a.index.at_int(p);
    return k < 0 || k >= a.ny ? -1 : (p / (a.n * a.inner) * a.ny + k) * a.inner + p % a.inner;
}
static __global__ void __launch_bounds__(BLOCK, 4) ord_claim_kernel(const __grid_constant__ ord_scatter a)
{
    for (int64_t p = grid_first(); p < a.total; p += grid_step()) {
        int64_t to = ord_place(a, p);
        if (to >= 0) atomicMax(&a.last[to], (unsigned long long)p + 1);
        else refuse(a.watch, p, a.index.at_int(p));
    }
}
template <typename U> static __global__ void __launch_bounds__(BLOCK, 4) ord_write_kernel(const __grid_constant__ ord_scatter a)
{
    for (int64_t p = grid_first(); p < a.total; p += grid_step()) {
        int64_t to = ord_place(a, p);
        if (to >= 0 && a.last[to] == (unsigned long long)p + 1) ((U *)a.y.p)[to] = ((const U *)a.src.p)[p];
    }
}
static __global__ void __launch_bounds__(BLOCK, 4) ord_add_kernel(const __grid_constant__ ord_scatter a)
{
    for (int64_t p = grid_first(); p < a.total; p += grid_step()) {
        int64_t to = ord_place(a, p), v = a.src.at_int(p);
        if (to < 0) refuse(a.watch, p, a.index.at_int(p));
        else if (a.y.dtype == DT_I64) atomicAdd((unsigned long long *)a.y.p + to, (unsigned long long)v);
        else atomicAdd((unsigned *)a.y.p + to, (unsigned)v);
    }
}
static __global__ void __launch_bounds__(BLOCK, 4) ord_add_bytes_kernel(const __grid_constant__ ord_scatter a)
{
    for (int64_t c = grid_first(); c < a.total / a.n; c += grid_step()) {
        int64_t first = c / a.inner * a.n * a.inner + c % a.inner;
        for (int64_t j = 0; j < a.n; j++) {
            int64_t p = first + j * a.inner, to = ord_place(a, p);
            if (to < 0) refuse(a.watch, p, a.index.at_int(p));
            else ((uint8_t *)a.y.p)[to] = (uint8_t)(((uint8_t *)a.y.p)[to] + (uint8_t)a.src.at_int(p));
        }
    }
}

} /* namespace dtk */

extern "C" int dt__cuda_scan(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *x = &c->in[0];
    ord_scan       a = { in_of<any_type>(c, 0),
                         out_of<any_type>(c, 0),
                         x->shape[0],
                         x->shape[1],
                         x->shape[2],
                         c->u.scan.fn == DT_R_PROD,
                         c->u.scan.reverse != 0,
                         c->u.scan.exclusive != 0 };
    cudaStream_t   s = stream_of(dev, c);
    if (c->u.scan.fn != DT_R_SUM && c->u.scan.fn != DT_R_PROD)
        return dt_fail(DT_ERR_ARG, "scan: there is no function %d", c->u.scan.fn);
    if (numel(*x) == 0) return 0;
    bool     ints = is_int(x->dtype);
    unsigned rows = blocks_for(a.outer, 1), columns = blocks_for(a.outer * a.inner);
    if (a.inner == 1 && ints) ord_rows_kernel<unsigned long long><<<rows, BLOCK, 0, s>>>(a);
    else if (a.inner == 1) ord_rows_kernel<double><<<rows, BLOCK, 0, s>>>(a);
    else if (ints) ord_columns_kernel<unsigned long long><<<columns, BLOCK, 0, s>>>(a);
    else ord_columns_kernel<double><<<columns, BLOCK, 0, s>>>(a);
    return launched(c);
}

extern "C" int dt__cuda_sort(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *x = &c->in[0];
    cudaStream_t   s = stream_of(dev, c);
    ord_sort       a = { in_of<any_type>(c, 0), (int64_t *)c->out[0].data, NULL, x->shape[0] * x->shape[2], x->shape[1],
                         x->shape[2],           c->out[0].shape[1],        2,    is_int(x->dtype), c->u.sort.descending != 0 };
    if (a.columns * a.k == 0) return 0;
    while (a.padded < a.n) a.padded *= 2;
    if (a.padded <= ORD_TILE) {
        ord_short_kernel<<<blocks_for(a.columns, 1), BLOCK, 0, s>>>(a);
        return launched(c);
    }
    a.pairs = (ord_pair *)dt__cuda_scratch(dev, c->stream, (size_t)(a.columns * a.padded) * sizeof(ord_pair));
    if (!a.pairs) return DT_ERR_MEMORY;
    unsigned tiles = blocks_for(a.columns * (a.padded / ORD_TILE), 1), halves = blocks_for(a.columns * (a.padded / 2));
    ord_tiles_kernel<<<tiles, BLOCK, 0, s>>>(a, ORD_TILE, true);
    for (int64_t block = 2 * ORD_TILE; block <= a.padded; block *= 2) {
        for (int64_t step = block / 2; step >= ORD_TILE; step /= 2) ord_step_kernel<<<halves, BLOCK, 0, s>>>(a, block, step);
        ord_tiles_kernel<<<tiles, BLOCK, 0, s>>>(a, block, false);
    }
    ord_result_kernel<<<blocks_for(a.columns * a.k), BLOCK, 0, s>>>(a);
    return launched(c);
}

extern "C" int dt__cuda_scatter(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *index = &c->in[0];
    cudaStream_t   s = stream_of(dev, c);
    ord_scatter    a = { in_of<any_type>(c, 0),
                         in_of<any_type>(c, 1),
                         out_of<any_type>(c, 0),
                         NULL,
                         numel(*index),
                         index->shape[1],
                         index->shape[2],
                         y->shape[1],
                         elem_size(y->dtype),
                         dt__cuda_watched(dev, c, y->shape[1]) };
    if (!is_int(index->dtype)) return no_dtype(c, index->dtype);
    if (a.total == 0) return 0;
    if (c->u.scatter.add) {
        if (!is_int(y->dtype)) return no_dtype(c, y->dtype);
        if (y->dtype == DT_U8) ord_add_bytes_kernel<<<blocks_for(a.total / a.n), BLOCK, 0, s>>>(a);
        else ord_add_kernel<<<blocks_for(a.total), BLOCK, 0, s>>>(a);
        return launched(c);
    }
    size_t nbytes = (size_t)(numel(*y) > 0 ? numel(*y) : 1) * sizeof *a.last;
    a.last = (unsigned long long *)dt__cuda_scratch(dev, c->stream, nbytes);
    if (!a.last) return DT_ERR_MEMORY;
    cudaError_t e = cudaMemsetAsync(a.last, 0, nbytes, s);
    if (e != cudaSuccess) return dt__cuda_check((int)e, dt_kernel_name(c->op));
    ord_claim_kernel<<<blocks_for(a.total), BLOCK, 0, s>>>(a);
    with_bits<8>(a.size, [&](auto u) { ord_write_kernel<decltype(u)><<<blocks_for(a.total), BLOCK, 0, s>>>(a); });
    return launched(c);
}
