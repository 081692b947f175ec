/* dtypes.cuh: elements whose dtype is known only at run time, and the log-sum-exp of a row. A kernel that moves memory
   and computes little takes the dtype as a value: the branch is the same for a whole grid and costs a few instructions
   a load, while a type parameter for each operand would make hundreds of instances. Values are floats, or int64 where
   all operands are integers; the conversions are those of the CPU backend. */
#ifndef DT_KERNELS_DTYPES_CUH
#define DT_KERNELS_DTYPES_CUH

#include "common.cuh"

namespace dtk {

inline int elem_size(int dtype)
{
    return dtype == DT_I64 ? 8 : dtype == DT_U8 ? 1 : dtype == DT_F16 || dtype == DT_BF16 ? 2 : 4;
}
inline bool is_int(int dtype) { return dtype >= DT_I32; }
inline bool aligned_to(const void *p, int nbytes) { return (size_t)p % (size_t)nbytes == 0; }

inline int64_t double_to_i64(double v) /* toward zero, saturated; NaN: 0 */
{
    return v >= 9223372036854775808.0 ? INT64_MAX : v <= -9223372036854775808.0 ? INT64_MIN : v == v ? (int64_t)v : 0;
}

/* ---- one element, as a float or as an int64. An integer keeps the low bits of what is stored. */
__device__ __forceinline__ float to_float(int32_t x) { return (float)x; }
__device__ __forceinline__ float to_float(int64_t x) { return (float)x; }
__device__ __forceinline__ float to_float(uint8_t x) { return (float)x; }

/* Toward zero; u8: the low byte of an int32, 0 beyond its range; the others saturate. NaN: 0. */
template <typename T> __device__ __forceinline__ T float_to(float x) { return from_float<T>(x); }
template <> __device__ __forceinline__ uint8_t float_to<uint8_t>(float x)
{
    return x > -2147483648.0f && x < 2147483648.0f ? (uint8_t)(int32_t)x : (uint8_t)0;
}
template <> __device__ __forceinline__ int32_t float_to<int32_t>(float x)
{
    return x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : x == x ? (int32_t)x : 0;
}
template <> __device__ __forceinline__ int64_t float_to<int64_t>(float x)
{
    return x >= 9223372036854775808.0f ? INT64_MAX : x < -9223372036854775808.0f ? INT64_MIN : x == x ? (int64_t)x : 0;
}

__device__ __forceinline__ int64_t load_int(const void *p, int dtype, int64_t i) /* of an integer dtype */
{
    return dtype == DT_I64 ? ((const int64_t *)p)[i] : dtype == DT_I32 ? ((const int32_t *)p)[i]
                                                                       : ((const uint8_t *)p)[i];
}
__device__ __forceinline__ void store_int(void *p, int dtype, int64_t i, int64_t v, bool add)
{
    uint64_t u = (uint64_t)v;
    if (add) u += (uint64_t)load_int(p, dtype, i);
    if (dtype == DT_I64) ((int64_t *)p)[i] = (int64_t)u;
    else if (dtype == DT_I32) ((int32_t *)p)[i] = (int32_t)u;
    else ((uint8_t *)p)[i] = (uint8_t)u;
}

/* ---- V neighbours at once, in accesses of up to 16 bytes, to which p + i must be aligned. Of a piece with n < V
   elements only these are touched, one by one; the others are loaded as fill. */
template <typename T, int V>
constexpr int access_size = V * sizeof(T) <= 16 ? V : 16 / (int)sizeof(T);

template <typename T, int V>
__device__ __forceinline__ void load_as(float (&v)[V], const T *p, int64_t n = V, float fill = 0.0f)
{
    constexpr int N = access_size<T, V>;
    if (n >= V) {
#pragma unroll
        for (int j = 0; j < V; j += N) {
            pack<T, N> q = *(const pack<T, N> *)(p + j);
#pragma unroll
            for (int k = 0; k < N; k++) v[j + k] = to_float(q.v[k]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; k++) v[k] = k < n ? to_float(p[k]) : fill;
    }
}
template <typename T> __device__ __forceinline__ T sum_of(T old, float v)
{
    if constexpr (is_float_type<T>::value) return from_float<T>(v + to_float(old));
    else return (T)((uint64_t)float_to<T>(v) + (uint64_t)old);
}
template <typename T, int V>
__device__ __forceinline__ void store_as(T *p, const float (&v)[V], bool add, int64_t n = V)
{
    constexpr int N = access_size<T, V>;
    if (n >= V) {
#pragma unroll
        for (int j = 0; j < V; j += N) {
            pack<T, N> q;
            if (add) {
                q = *(const pack<T, N> *)(p + j);
#pragma unroll
                for (int k = 0; k < N; k++) q.v[k] = sum_of(q.v[k], v[j + k]);
            } else {
#pragma unroll
                for (int k = 0; k < N; k++) q.v[k] = float_to<T>(v[j + k]);
            }
            *(pack<T, N> *)(p + j) = q;
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; k++)
            if (k < n) p[k] = add ? sum_of(p[k], v[k]) : float_to<T>(v[k]);
    }
}
/* Several at once are never i32 or i64, and eight never f32: see pack_width(). */
template <int V>
__device__ __forceinline__ void load_pack(float (&v)[V], const void *p, int dtype, int64_t i, int64_t n = V,
                                          float fill = 0.0f)
{
    if (dtype == DT_F16) load_as(v, (const __half *)p + i, n, fill);
    else if (dtype == DT_BF16) load_as(v, (const __nv_bfloat16 *)p + i, n, fill);
    else if (V == 8 || dtype == DT_U8) load_as(v, (const uint8_t *)p + i, n, fill);
    else if (V == 4 || dtype == DT_F32) load_as(v, (const float *)p + i, n, fill);
    else if (dtype == DT_I32) load_as(v, (const int32_t *)p + i, n, fill);
    else load_as(v, (const int64_t *)p + i, n, fill);
}
template <int V>
__device__ __forceinline__ void store_pack(void *p, int dtype, int64_t i, const float (&v)[V], bool add, int64_t n = V)
{
    if (dtype == DT_F16) store_as((__half *)p + i, v, add, n);
    else if (dtype == DT_BF16) store_as((__nv_bfloat16 *)p + i, v, add, n);
    else if (V == 8 || dtype == DT_U8) store_as((uint8_t *)p + i, v, add, n);
    else if (V == 4 || dtype == DT_F32) store_as((float *)p + i, v, add, n);
    else if (dtype == DT_I32) store_as((int32_t *)p + i, v, add, n);
    else store_as((int64_t *)p + i, v, add, n);
}
/* The same for operands that are f32, f16 or bf16. */
template <int V>
__device__ __forceinline__ void load_floats(float (&v)[V], const void *p, int dtype, int64_t i, int64_t n = V,
                                            float fill = 0.0f)
{
    if (dtype == DT_F32) load_as(v, (const float *)p + i, n, fill);
    else if (dtype == DT_F16) load_as(v, (const __half *)p + i, n, fill);
    else load_as(v, (const __nv_bfloat16 *)p + i, n, fill);
}
template <int V>
__device__ __forceinline__ void store_floats(void *p, int dtype, int64_t i, const float (&v)[V], bool add,
                                             int64_t n = V)
{
    if (dtype == DT_F32) store_as((float *)p + i, v, add, n);
    else if (dtype == DT_F16) store_as((__half *)p + i, v, add, n);
    else store_as((__nv_bfloat16 *)p + i, v, add, n);
}
__device__ __forceinline__ float load_h(const void *p, int dtype, int64_t i) /* one of these */
{
    float v[1];
    load_floats<1>(v, p, dtype, i);
    return v[0];
}
__device__ __forceinline__ void store_h(void *p, int dtype, int64_t i, float x, bool add)
{
    float v[1] = { x };
    store_floats<1>(p, dtype, i, v, add);
}
__device__ __forceinline__ float load_float(const void *p, int dtype, int64_t i) /* one of any dtype */
{
    float v[1];
    load_pack<1>(v, p, dtype, i);
    return v[0];
}
__device__ __forceinline__ void store_float(void *p, int dtype, int64_t i, float x, bool add)
{
    float v[1] = { x };
    store_pack<1>(p, dtype, i, v, add);
}

/* Neighbours that one thread takes of operands with these dtypes: 8 if all are of 1 or 2 bytes, 4 if some are f32, else
   1. */
inline int pack_width(const int *dtype, int n)
{
    int v = 8;
    for (int k = 0; k < n; k++) {
        if (dtype[k] == DT_I32 || dtype[k] == DT_I64) return 1;
        if (dtype[k] == DT_F32) v = 4;
    }
    return v;
}
inline bool pack_aligned(const void *p, int dtype, int v)
{
    int nbytes = v * elem_size(dtype);
    return aligned_to(p, nbytes < 16 ? nbytes : 16);
}
/* Of dense operands; 1 also where the addresses do not allow more. */
template <int N> inline int dense_width(const dt_view *const (&view)[N])
{
    int dtype[N];
    for (int k = 0; k < N; k++) dtype[k] = view[k]->dtype;
    int v = pack_width(dtype, N);
    for (int k = 0; k < N; k++)
        if (!pack_aligned(view[k]->data, dtype[k], v)) return 1;
    return v;
}

/* ---- log(sum exp(x)) in one pass: m is the largest that is not NaN, s the sum of exp(x - m) so far. NaN and +inf make
   s NaN; where all are -inf, s is 0 and x - m is NaN. */
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
    __device__ __forceinline__ void over_block() /* of BLOCK threads; may be called again at once */
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

} /* namespace dtk */

#endif /* DT_KERNELS_DTYPES_CUH */
