/* vector.cuh: access to the operands of a call, one element or several neighbours (a vector) at a time, and the choice of
   a template instance of a kernel by the host.

   The operands of one call may have different dtypes: weights may be f32 while rows are f16, a gradient f32 while its
   tensor is f16. An operand is a pointer, 'add' (the output is added to) and what the kernel knows of its element type:
     operand<T>         the type, at compile time
     operand<mixed>     f32, f16 or bf16: a branch at run time, which is the same for all threads of a grid
     operand<any_type>  any dtype; as integers, too (at_int, put_int)
   A kernel that moves memory and computes little takes mixed or any_type: the branch costs a few instructions a load,
   while a type for each operand would make hundreds of instances. Kernels over large operands of one dtype have an
   instance for each float type, and one, <mixed>, for the rest. Values are floats, or int64 where all operands are
   integers; the conversions are those of the CPU backend.

   The host:
     in_of<T>, out_of<T>      make operands of a call's views; absent ones have p == NULL
     all_floats, is_int       check dtypes
     dense_width, suits       how many neighbours an access may take
     with_operands            calls f with a T, or with mixed() if dtypes differ, or rows or addresses are not aligned
     with_width<8, 4, 1>      calls f with one of these widths, as a constant
     with_bits                calls f with an unsigned type of as many bytes, where elements only move */
#ifndef DT_KERNELS_VECTOR_CUH
#define DT_KERNELS_VECTOR_CUH

#include "common.cuh"

namespace dtk {

struct mixed {};
struct any_type {};
template <typename T> constexpr int lanes = (int)(16 / sizeof(T)); /* elements of 16 bytes */
template <> constexpr int           lanes<mixed> = 1;

/* ---------------------------------------------------------------------------------------------------- conversions
   One element from a float: toward zero for integers; u8: the low byte of an int32, 0 beyond its range; the others
   saturate. NaN: 0. */
__device__ __forceinline__ float to_float(int32_t x) { return (float)x; }
__device__ __forceinline__ float to_float(int64_t x) { return (float)x; }
__device__ __forceinline__ float to_float(uint8_t x) { return (float)x; }

template <> __device__ __forceinline__ uint8_t from_float<uint8_t>(float x)
{
    return x > -2147483648.0f && x < 2147483648.0f ? (uint8_t)(int32_t)x : (uint8_t)0;
}
template <> __device__ __forceinline__ int32_t from_float<int32_t>(float x)
{
    return x >= 2147483648.0f ? INT32_MAX : x < -2147483648.0f ? INT32_MIN : x == x ? (int32_t)x : 0;
}
template <> __device__ __forceinline__ int64_t from_float<int64_t>(float x)
{
    return x >= 9223372036854775808.0f ? INT64_MAX : x < -9223372036854775808.0f ? INT64_MIN : x == x ? (int64_t)x : 0;
}
/* old + v. Integers keep the low bits. */
template <typename T> __device__ __forceinline__ T sum_of(T old, float v)
{
    if constexpr (is_float_type<T>::value) return from_float<T>(v + to_float(old));
    else return (T)((uint64_t)from_float<T>(v) + (uint64_t)old);
}

/* ---------------------------------------------------------------------------------------------------- vectors
   V neighbours at p, in accesses of up to 16 bytes, to which p must be aligned. If there are only n < V elements, they
   are moved one by one; the others are loaded as fill. */
template <typename T, int V> constexpr int access_size = V < lanes<T> ? V : lanes<T>;

template <typename T, int V>
__device__ __forceinline__ void load_vector(const T *p, float (&v)[V], int64_t n = V, float fill = 0.0f)
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
template <typename T, int V>
__device__ __forceinline__ void store_vector(T *p, const float (&v)[V], bool add = false, int64_t n = V)
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
                for (int k = 0; k < N; k++) q.v[k] = from_float<T>(v[j + k]);
            }
            *(pack<T, N> *)(p + j) = q;
        }
    } else {
#pragma unroll
        for (int k = 0; k < V; k++)
            if (k < n) p[k] = add ? sum_of(p[k], v[k]) : from_float<T>(v[k]);
    }
}

/* ---------------------------------------------------------------------------------------------------- operands
   at, put: one element. load, store: V of them from i on, or the first n. adding: the same operand with another add. */
template <typename T> struct operand {
    T  *p;   /* NULL: absent */
    int add; /* an output that is added to */
    __device__ __forceinline__ operand adding(bool a) const { return operand{ p, a }; }
    __device__ __forceinline__ float at(int64_t i) const { return to_float(p[i]); }
    __device__ __forceinline__ void put(int64_t i, float x) const
    {
        p[i] = add ? sum_of(p[i], x) : from_float<T>(x);
    }
    template <int V>
    __device__ __forceinline__ void load(int64_t i, float (&v)[V], int64_t n = V, float fill = 0.0f) const
    {
        load_vector(p + i, v, n, fill);
    }
    template <int V> __device__ __forceinline__ void store(int64_t i, const float (&v)[V], int64_t n = V) const
    {
        store_vector(p + i, v, add, n);
    }
};
template <> struct operand<mixed> {
    void *p;
    int   add, dtype;
    __device__ __forceinline__ operand adding(bool a) const { return operand{ p, a, dtype }; }
    template <typename T> __device__ __forceinline__ operand<T> as() const { return operand<T>{ (T *)p, add }; }
    template <int V>
    __device__ __forceinline__ void load(int64_t i, float (&v)[V], int64_t n = V, float fill = 0.0f) const
    {
        if (dtype == DT_F32) as<float>().load(i, v, n, fill);
        else if (dtype == DT_F16) as<__half>().load(i, v, n, fill);
        else as<__nv_bfloat16>().load(i, v, n, fill);
    }
    template <int V> __device__ __forceinline__ void store(int64_t i, const float (&v)[V], int64_t n = V) const
    {
        if (dtype == DT_F32) as<float>().store(i, v, n);
        else if (dtype == DT_F16) as<__half>().store(i, v, n);
        else as<__nv_bfloat16>().store(i, v, n);
    }
    __device__ __forceinline__ float at(int64_t i) const
    {
        float v[1];
        load(i, v);
        return v[0];
    }
    __device__ __forceinline__ void put(int64_t i, float x) const
    {
        float v[1] = { x };
        store(i, v);
    }
};
/* Vectors are never of i32 or i64, and vectors of eight never of f32: see width_of(). */
template <> struct operand<any_type> {
    void *p;
    int   add, dtype;
    __device__ __forceinline__ operand adding(bool a) const { return operand{ p, a, dtype }; }
    __device__ __forceinline__ operand<mixed> floats() const { return operand<mixed>{ p, add, dtype }; }
    template <typename T> __device__ __forceinline__ operand<T> as() const { return operand<T>{ (T *)p, add }; }
    template <int V>
    __device__ __forceinline__ void load(int64_t i, float (&v)[V], int64_t n = V, float fill = 0.0f) const
    {
        if (dtype == DT_F16) as<__half>().load(i, v, n, fill);
        else if (dtype == DT_BF16) as<__nv_bfloat16>().load(i, v, n, fill);
        else if (V == 8 || dtype == DT_U8) as<uint8_t>().load(i, v, n, fill);
        else if (V == 4 || dtype == DT_F32) as<float>().load(i, v, n, fill);
        else if (dtype == DT_I32) as<int32_t>().load(i, v, n, fill);
        else as<int64_t>().load(i, v, n, fill);
    }
    template <int V> __device__ __forceinline__ void store(int64_t i, const float (&v)[V], int64_t n = V) const
    {
        if (dtype == DT_F16) as<__half>().store(i, v, n);
        else if (dtype == DT_BF16) as<__nv_bfloat16>().store(i, v, n);
        else if (V == 8 || dtype == DT_U8) as<uint8_t>().store(i, v, n);
        else if (V == 4 || dtype == DT_F32) as<float>().store(i, v, n);
        else if (dtype == DT_I32) as<int32_t>().store(i, v, n);
        else as<int64_t>().store(i, v, n);
    }
    __device__ __forceinline__ float at(int64_t i) const
    {
        float v[1];
        load(i, v);
        return v[0];
    }
    __device__ __forceinline__ void put(int64_t i, float x) const
    {
        float v[1] = { x };
        store(i, v);
    }
    __device__ __forceinline__ int64_t at_int(int64_t i) const /* of an integer dtype */
    {
        return dtype == DT_I64 ? ((const int64_t *)p)[i] : dtype == DT_I32 ? ((const int32_t *)p)[i]
                                                                           : ((const uint8_t *)p)[i];
    }
    __device__ __forceinline__ void put_int(int64_t i, int64_t v) const
    {
        uint64_t u = (uint64_t)v;
        if (add) u += (uint64_t)at_int(i);
        if (dtype == DT_I64) ((int64_t *)p)[i] = (int64_t)u;
        else if (dtype == DT_I32) ((int32_t *)p)[i] = (int32_t)u;
        else ((uint8_t *)p)[i] = (uint8_t)u;
    }
};

/* ---------------------------------------------------------------------------------------------------- the host */
inline bool has_in(const dt_call *c, int i) { return i < c->nin && present(c->in[i]); }
inline bool has_out(const dt_call *c, int i) { return i < c->nout && present(c->out[i]); }
inline bool is_int(int dtype) { return dtype >= DT_I32; }
inline int  elem_size(int dtype)
{
    return dtype == DT_I64 ? 8 : dtype == DT_U8 ? 1 : dtype == DT_F16 || dtype == DT_BF16 ? 2 : 4;
}
inline bool aligned_to(const void *p, int nbytes) { return (size_t)p % (size_t)nbytes == 0; }

template <typename T> inline operand<T> operand_of(const dt_view *v, int add = 0) /* NULL: absent */
{
    if constexpr (__is_same(T, mixed) || __is_same(T, any_type))
        return operand<T>{ v ? v->data : NULL, add, v ? v->dtype : DT_F32 };
    else return operand<T>{ v ? (T *)v->data : NULL, add };
}
template <typename T> inline operand<T> in_of(const dt_call *c, int i)
{
    return operand_of<T>(has_in(c, i) ? &c->in[i] : NULL);
}
template <typename T> inline operand<T> out_of(const dt_call *c, int i)
{
    return has_out(c, i) ? operand_of<T>(&c->out[i], (int)(c->acc >> i & 1u)) : operand_of<T>(NULL);
}
/* Checks that the inputs in ins and the outputs in outs (bit masks) are floats or absent. 0 or a status. */
inline int all_floats(const dt_call *c, unsigned ins, unsigned outs)
{
    for (int i = 0; i < DT_MAX_IN; i++)
        if (ins >> i & 1u && has_in(c, i) && is_int(c->in[i].dtype)) return no_dtype(c, c->in[i].dtype);
    for (int i = 0; i < DT_MAX_OUT; i++)
        if (outs >> i & 1u && has_out(c, i) && is_int(c->out[i].dtype)) return no_dtype(c, c->out[i].dtype);
    return 0;
}
/* Is the address aligned for vectors of n elements? */
inline bool suits(const void *p, int dtype, int n)
{
    int nbytes = n * elem_size(dtype);
    return aligned_to(p, nbytes < 16 ? nbytes : 16);
}
/* Neighbours that one thread takes of operands with these dtypes: 8 if all are of 1 or 2 bytes, 4 if some are f32, else
   1. */
template <int N> inline int width_of(const int (&dtype)[N])
{
    int v = 8;
    for (int k = 0; k < N; k++) {
        if (dtype[k] == DT_I32 || dtype[k] == DT_I64) return 1;
        if (dtype[k] == DT_F32) v = 4;
    }
    return v;
}
/* The same for dense operands; 1 also if an address is not aligned. */
template <int N> inline int dense_width(const dt_view *const (&view)[N])
{
    int dtype[N];
    for (int k = 0; k < N; k++) dtype[k] = view[k]->dtype;
    int v = width_of(dtype);
    for (int k = 0; k < N; k++)
        if (!suits(view[k]->data, dtype[k], v)) return 1;
    return v;
}

/* Calls f with a value of the operands' element type if they all have one dtype, their addresses are aligned for vectors,
   and the vector length divides 'unit', the length of a contiguous run; otherwise with mixed(). The inputs in 'beside'
   need only be aligned. Returns f's result, 0 or a status. */
template <typename F>
inline int with_operands(const dt_call *c, unsigned ins, unsigned outs, unsigned beside, int64_t unit, F f)
{
    int  dtype = -1, status = all_floats(c, ins | beside, outs);
    bool fast = true;
    if (status) return status;
    for (int k = 0; k < DT_MAX_IN + DT_MAX_OUT; k++) {
        bool           in = k < DT_MAX_IN;
        int            i = in ? k : k - DT_MAX_IN;
        const dt_view *v = in ? &c->in[i] : &c->out[i];
        if (!((in ? ins : outs) >> i & 1u) || !(in ? has_in(c, i) : has_out(c, i))) continue;
        if (dtype < 0) dtype = v->dtype;
        fast = fast && v->dtype == dtype;
    }
    int n = dtype == DT_F32 ? lanes<float> : lanes<__half>;
    fast = fast && dtype >= 0 && unit % n == 0;
    for (int i = 0; i < DT_MAX_IN && fast; i++)
        if ((ins | beside) >> i & 1u && has_in(c, i)) fast = suits(c->in[i].data, c->in[i].dtype, n);
    for (int i = 0; i < DT_MAX_OUT && fast; i++)
        if (outs >> i & 1u && has_out(c, i)) fast = suits(c->out[i].data, c->out[i].dtype, n);
    if (!fast) return f(mixed());
    return dtype == DT_F32 ? f(float()) : dtype == DT_F16 ? f(__half()) : f(__nv_bfloat16());
}
/* Calls f with the width v if it is one of V, MORE ..., otherwise with the last of them:
   with_width<8, 4, 1>(v, [&](auto w) { kernel<w.value><<<...>>>(...); }) */
template <int V> struct width {
    static constexpr int value = V;
};
template <int V, int... MORE, typename F> inline void with_width(int v, F f)
{
    if constexpr (sizeof...(MORE) == 0) f(width<V>());
    else if (v == V) f(width<V>());
    else with_width<MORE...>(v, f);
}
/* Calls f with an unsigned type of nbytes bytes: 1, 2, 4, 8, or 16 if MOST is 16. */
template <int MOST, typename F> inline void with_bits(int nbytes, F f)
{
    if constexpr (MOST == 16) {
        if (nbytes == 16) {
            f(uint4());
            return;
        }
    }
    if (nbytes == 8) f(uint64_t());
    else if (nbytes == 4) f(uint32_t());
    else if (nbytes == 2) f(uint16_t());
    else f(uint8_t());
}

} /* namespace dtk */

#endif /* DT_KERNELS_VECTOR_CUH */
