/* common.cuh: shared by all kernel files: element types, reductions over a warp and a block, the log-sum-exp of a row,
   index spaces of strided operands, launching. Every file defines entries dt__cuda_NAME(dev, call) of dt_cuda.h's list.
   An entry reads the dt_call, chooses a template instance (vector.cuh) and queues it on the call's stream. It returns 0,
   or a dt_status after dt_fail. */
#ifndef DT_KERNELS_COMMON_CUH
#define DT_KERNELS_COMMON_CUH

#ifndef DT_USE_CUDA
#define DT_USE_CUDA
#endif
#include "../dt_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <limits.h>

namespace dtk {

enum { WARP = 32, BLOCK = 256 };
constexpr unsigned FULL = 0xffffffffu;

/* ---- elements: kept in T, computed in float (floats) or in T (integers) */
template <typename T> struct is_float_type { static constexpr bool value = false; };
template <> struct is_float_type<float> { static constexpr bool value = true; };
template <> struct is_float_type<__half> { static constexpr bool value = true; };
template <> struct is_float_type<__nv_bfloat16> { static constexpr bool value = true; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* N elements that are read and written at once; N * sizeof(T) is at most 16 bytes. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T v[N];
};

/* ---- reductions. All threads of the warp, or of the block, must take part; every thread gets the result. */
template <typename T, typename F> __device__ __forceinline__ T warp_reduce(T x, F f)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) x = f(x, __shfl_xor_sync(FULL, x, d));
    return x;
}
struct add_f {
    template <typename T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
struct max_f { /* the result is NaN if one is NaN */
    __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};
struct min_f {
    __device__ __forceinline__ float operator()(float a, float b) const { return a < b || a != a ? a : b; }
};
/* Over the threads of a block (a multiple of 32, at most 1024). Calls need no barrier between them. */
template <typename T, typename F> __device__ __forceinline__ T block_reduce(T x, F f, T neutral)
{
    __shared__ T part[WARP];
    int          lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
    x = warp_reduce(x, f);
    __syncthreads(); /* all threads have read the results of the previous call */
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_reduce(lane < warps ? part[lane] : neutral, f);
}

/* ---- log(sum exp(x)) in one pass: m is the largest x so far that is not NaN, s the sum of exp(x - m). NaN and +inf make
   s NaN. If all x are -inf, s is 0 and x - m is NaN. */
struct lse_state {
    float m, s;
    __device__ __forceinline__ static lse_state none() { return { -INFINITY, 0.0f }; }
    template <int V> __device__ __forceinline__ void add(const float (&x)[V])
    {
        float top = m;
#pragma unroll
        for (int j = 0; j < V; j++) top = fmaxf(top, x[j]);
        if (top > m) {
            s *= expf(m - top);
            m = top;
        }
#pragma unroll
        for (int j = 0; j < V; j++) s += x[j] == -INFINITY ? 0.0f : expf(x[j] - m);
    }
    __device__ __forceinline__ void merge(const lse_state &o)
    {
        float top = fmaxf(m, o.m);
        s = s * (m == top ? 1.0f : expf(m - top)) + o.s * (o.m == top ? 1.0f : expf(o.m - top));
        m = top;
    }
    __device__ __forceinline__ void over_warp()
    {
#pragma unroll
        for (int d = WARP / 2; d > 0; d /= 2) merge({ __shfl_xor_sync(FULL, m, d), __shfl_xor_sync(FULL, s, d) });
    }
    __device__ __forceinline__ void over_block() /* of BLOCK threads; calls need no barrier between them */
    {
        __shared__ lse_state part[BLOCK / WARP];
        over_warp();
        __syncthreads();
        if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = *this;
        __syncthreads();
        *this = part[0];
        for (int k = 1; k < BLOCK / WARP; k++) merge(part[k]);
    }
};

/* ---- strided operands: the offsets of N of them for a linear index over one shape */
template <int N> struct walk {
    int     ndim;
    int64_t total, shape[DT_MAX_DIMS], stride[N][DT_MAX_DIMS];
};
/* The index space has the shape of view[0]. Dimensions of size 1 are dropped; neighbours that are contiguous in all
   operands are merged. The innermost dimension is last. */
template <int N> inline walk<N> walk_of(const dt_view *const (&view)[N])
{
    walk<N> w;
    w.ndim = 0;
    w.total = 1;
    for (int d = 0; d < view[0]->ndim; d++) {
        int64_t n = view[0]->shape[d];
        w.total *= n;
        if (n == 1) continue;
        bool joins = w.ndim > 0;
        for (int k = 0; k < N && joins; k++) joins = w.stride[k][w.ndim - 1] == view[k]->stride[d] * n;
        if (!joins) w.shape[w.ndim++] = 1;
        w.shape[w.ndim - 1] *= n;
        for (int k = 0; k < N; k++) w.stride[k][w.ndim - 1] = view[k]->stride[d];
    }
    return w;
}
template <int N> inline bool walk_is_dense(const walk<N> &w) /* all operands are one run of elements */
{
    if (w.ndim > 1) return false;
    for (int k = 0; k < N; k++)
        if (w.ndim == 1 && w.stride[k][0] != 1) return false;
    return true;
}
/* i / n, in 32 bits if both fit, which is cheaper; neither is negative */
__device__ __forceinline__ int64_t divide(int64_t i, int64_t n)
{
    return (uint64_t)i >> 32 || (uint64_t)n >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}
template <int N> __device__ __forceinline__ void walk_at(const walk<N> &w, int64_t i, int64_t (&at)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) at[k] = 0;
#pragma unroll
    for (int d = DT_MAX_DIMS - 1; d >= 0; d--) { /* unrolled, so that the strides stay in the parameters */
        if (d >= w.ndim) continue;
        int64_t q = divide(i, w.shape[d]), r = i - q * w.shape[d];
#pragma unroll
        for (int k = 0; k < N; k++) at[k] += r * w.stride[k][d];
        i = q;
    }
}

/* ---- reports an index that is out of range. The first thread of the first such call takes the record (dt__cuda_bad) and
   writes the fields of its call; all threads of that call then lower the parts. Later calls find the record taken. */
__device__ __forceinline__ void refuse(const dt__cuda_watch &w, int64_t position, int64_t value)
{
    unsigned long long owner = atomicCAS(&w.at->call, 0ull, w.call);
    if (owner != 0 && owner != w.call) return;
    if (owner == 0) {
        w.at->limit = w.limit;
        w.at->ignore = w.ignore;
        w.at->op = w.op;
        w.at->nll = w.nll;
    }
#pragma unroll
    for (int i = 0; i < 3; i++)
        atomicMin(&w.at->part[i],
                  (unsigned long long)position << 24 | ((unsigned long long)value >> 24 * i & 0xffffffu));
}

/* ---- launching */
/* Blocks for n items, one thread each. Kernels use grid-stride loops, so a smaller grid is correct too. */
inline unsigned blocks_for(int64_t n, int per_block = BLOCK)
{
    int64_t b = (n + per_block - 1) / per_block, most = 65535 * 16;
    return (unsigned)(b < 1 ? 1 : b > most ? most : b);
}
__device__ __forceinline__ int64_t grid_first() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t grid_step() { return (int64_t)gridDim.x * blockDim.x; }

inline bool present(const dt_view &v) { return v.ndim >= 0; }
inline int64_t numel(const dt_view &v)
{
    int64_t n = 1;
    for (int d = 0; d < v.ndim; d++) n *= v.shape[d];
    return n;
}
inline cudaStream_t stream_of(dt_device *dev, const dt_call *c)
{
    return (cudaStream_t)dt__cuda_stream(dev, c->stream);
}
/* The error of the entry's launches, which every entry returns. */
inline int launched(const dt_call *c) { return dt__cuda_check((int)cudaGetLastError(), dt_kernel_name(c->op)); }
inline int no_dtype(const dt_call *c, int dtype)
{
    return dt_fail(DT_ERR_DTYPE, "cuda: %s does not take %s", dt_kernel_name(c->op), dt_dtype_name((dt_dtype)dtype));
}

} /* namespace dtk */

#endif /* DT_KERNELS_COMMON_CUH */
