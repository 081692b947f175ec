/* operand.cuh: float operands of a call. The floats of a call need not be of one dtype: weights may be f32 where rows
   are halves, a gradient f32 where its tensor is not. operand<T> is one whose type the kernel knows; operand<mixed>
   finds it at run time, a branch that all threads take alike. Kernels over large operands have an instance for each
   element type that moves vectors, and one, <mixed>, that moves single elements: for dtypes that differ, for rows
   and bases that vectors do not fit. */
#ifndef DT_KERNELS_OPERAND_CUH
#define DT_KERNELS_OPERAND_CUH

#include "common.cuh"

namespace dtk {
namespace operands { /* the files that use it are namespaces inside: their names meet no other file's */

struct mixed {};
template <typename T> constexpr int lanes = (int)(16 / sizeof(T)); /* elements of a vector */
template <> constexpr int           lanes<mixed> = 1;

/* N elements at p, which is aligned to them, or to 16 bytes if they are more */
template <typename T, int N> __device__ __forceinline__ void load_vector(const T *p, float (&v)[N])
{
    constexpr int M = N < lanes<T> ? N : lanes<T>;
#pragma unroll
    for (int k = 0; k < N; k += M) {
        pack<T, M> t = *(const pack<T, M> *)(p + k);
#pragma unroll
        for (int j = 0; j < M; j++) v[k + j] = to_float(t.v[j]);
    }
}
template <typename T, int N> __device__ __forceinline__ void store_vector(T *p, const float (&v)[N])
{
    constexpr int M = N < lanes<T> ? N : lanes<T>;
#pragma unroll
    for (int k = 0; k < N; k += M) {
        pack<T, M> t;
#pragma unroll
        for (int j = 0; j < M; j++) t.v[j] = from_float<T>(v[k + j]);
        *(pack<T, M> *)(p + k) = t;
    }
}

template <typename T> struct operand {
    T  *p;   /* NULL: absent */
    int add; /* an output that is added to */
    __device__ __forceinline__ float at(int64_t i) const { return to_float(p[i]); }
    __device__ __forceinline__ void put(int64_t i, float v) const
    {
        p[i] = from_float<T>(add ? to_float(p[i]) + v : v);
    }
    template <int N> __device__ __forceinline__ void load(int64_t i, float (&v)[N]) const
    {
        load_vector<T, N>(p + i, v);
    }
    template <int N> __device__ __forceinline__ void store(int64_t i, const float (&v)[N]) const
    {
        float t[N];
        if (add) load_vector<T, N>(p + i, t);
#pragma unroll
        for (int k = 0; k < N; k++) t[k] = add ? t[k] + v[k] : v[k];
        store_vector<T, N>(p + i, t);
    }
};
template <> struct operand<mixed> {
    void *p;
    int   add, dtype;
    template <typename T> __device__ __forceinline__ operand<T> as() const { return operand<T>{ (T *)p, add }; }
    __device__ __forceinline__ float at(int64_t i) const
    {
        if (dtype == DT_F32) return as<float>().at(i);
        if (dtype == DT_F16) return as<__half>().at(i);
        return as<__nv_bfloat16>().at(i);
    }
    __device__ __forceinline__ void put(int64_t i, float v) const
    {
        if (dtype == DT_F32) as<float>().put(i, v);
        else if (dtype == DT_F16) as<__half>().put(i, v);
        else as<__nv_bfloat16>().put(i, v);
    }
    template <int N> __device__ __forceinline__ void load(int64_t i, float (&v)[N]) const
    {
        if (dtype == DT_F32) as<float>().load(i, v);
        else if (dtype == DT_F16) as<__half>().load(i, v);
        else as<__nv_bfloat16>().load(i, v);
    }
    template <int N> __device__ __forceinline__ void store(int64_t i, const float (&v)[N]) const
    {
        if (dtype == DT_F32) as<float>().store(i, v);
        else if (dtype == DT_F16) as<__half>().store(i, v);
        else as<__nv_bfloat16>().store(i, v);
    }
};
/* The first 'left' of N elements, 0 behind them; a whole vector at once. */
template <int N, typename T>
__device__ __forceinline__ void load_some(const operand<T> &x, int64_t i, int64_t left, float (&v)[N])
{
    if (left >= N) {
        x.load(i, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = k < left ? x.at(i + k) : 0.0f;
}
template <int N, typename T>
__device__ __forceinline__ void store_some(const operand<T> &y, int64_t i, int64_t left, const float (&v)[N])
{
    if (left >= N) {
        y.store(i, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (k < left) y.put(i + k, v[k]);
}
/* i / n, cheaper where both fit 32 bits; neither is negative */
__device__ __forceinline__ int64_t divide(int64_t i, int64_t n)
{
    return (uint64_t)(i | n) >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* ---- the host's side */
inline bool has_in(const dt_call *c, int i) { return i < c->nin && c->in[i].ndim >= 0; }
inline bool has_out(const dt_call *c, int i) { return i < c->nout && c->out[i].ndim >= 0; }
inline bool is_float_view(const dt_view &v) { return v.dtype == DT_F32 || v.dtype == DT_F16 || v.dtype == DT_BF16; }

template <typename T> inline operand<T> operand_of(void *p, int dtype, int add)
{
    (void)dtype;
    return operand<T>{ (T *)p, add };
}
template <> inline operand<mixed> operand_of<mixed>(void *p, int dtype, int add)
{
    return operand<mixed>{ p, add, dtype };
}
template <typename T> inline operand<T> in_of(const dt_call *c, int i)
{
    return has_in(c, i) ? operand_of<T>(c->in[i].data, c->in[i].dtype, 0) : operand_of<T>(NULL, DT_F32, 0);
}
template <typename T> inline operand<T> out_of(const dt_call *c, int i)
{
    return has_out(c, i) ? operand_of<T>(c->out[i].data, c->out[i].dtype, (int)(c->acc >> i & 1u))
                         : operand_of<T>(NULL, DT_F32, 0);
}
/* Its base suits vectors of n elements. */
inline bool suits(const dt_view &v, int n)
{
    size_t bytes = (size_t)n * (v.dtype == DT_F32 ? 4 : 2);
    return (size_t)v.data % (bytes < 16 ? bytes : 16) == 0;
}
/* Inputs (bits of ins) and outputs (bits of outs) that are there: all floats. 0 or a status. */
inline int all_floats(const dt_call *c, unsigned ins, unsigned outs)
{
    for (int i = 0; i < DT_MAX_IN; i++)
        if (ins >> i & 1u && has_in(c, i) && !is_float_view(c->in[i])) return no_dtype(c, c->in[i].dtype);
    for (int i = 0; i < DT_MAX_OUT; i++)
        if (outs >> i & 1u && has_out(c, i) && !is_float_view(c->out[i])) return no_dtype(c, c->out[i].dtype);
    return 0;
}
/* Calls f with a value of the element type of those operands if they are of one dtype, suit vectors, and 'unit', the
   length of the runs that vectors must divide, allows them; else with mixed(). Those of 'beside' (inputs) need only
   suit vectors. */
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
        if ((ins | beside) >> i & 1u && has_in(c, i)) fast = suits(c->in[i], n);
    for (int i = 0; i < DT_MAX_OUT && fast; i++)
        if (outs >> i & 1u && has_out(c, i)) fast = suits(c->out[i], n);
    return fast ? with_float(c, dtype, f) : f(mixed());
}

} /* namespace operands */
} /* namespace dtk */

#endif /* DT_KERNELS_OPERAND_CUH */
