/* elementwise.cu: fill, copy, iota, unary, unary_bwd, binary, where, and the epilogue of a matrix product.

   y[i] = f(x[i]; a, b) and z[i] = a f(x[i], y[i]; b), the functions of DT_UNARY_FNS and DT_BINARY_FNS, over operands of
   any strides and any mix of dtypes; dx[i] = f'(x[i]) dy[i]; z[i] = cond[i] ? x[i] : y[i]; the epilogue is
   y[.., j] = act(y[.., j] + bias[j]). Everything is computed in f32, or in int64 (modulo 2^64) if all operands are
   integers.

   Index space: dimensions of size 1 are dropped, the output's smallest stride becomes the innermost, neighbours that are
   contiguous in all operands are merged. A thread takes a piece of V neighbours of the innermost dimension:
     V = 8  all operands are of 1 or 2 bytes    V = 4  some are f32       both: accesses of up to 16 bytes
     V = 1  an operand is strided, not aligned, i32 or i64, or the function's cost is POWER (bound by arithmetic)
   Broadcasts along the innermost dimension (stride 0) and along the others keep V. Blocks of 256 threads, one piece a
   thread, grid-stride loops.

   Roofline: each operand is moved once: fill of f32 4 bytes per element, copy, unary and the epilogue 8, binary and the
   gradient of a unary 12, where 13, acc 4 more; half of it in f16 and bf16. 0 to 40 FLOPs per element (copy .. gradient
   of gelu). GPUs offer 10 FLOPs per byte and more, so all functions except the powers (about 100) are memory-bound; the
   gradient of gelu in bf16 (40 for 6 bytes) is near the balance. A transposing copy goes through shared memory in tiles
   of 32 x 32, so that both sides are accessed in whole cache lines. */
#include "vector.cuh"

namespace dtk {

/* ---------------------------------------------------------------------------------------------------- functions */
/* A row of DT_UNARY_FNS is ew_u_NAME and its derivative ew_d_NAME, a row of DT_BINARY_FNS is ew_b_NAME, and rows that take
   integers have ew_iu_NAME or ew_ib_NAME. The switches below are generated from the lists: a row without its functions
   does not compile. */
#define DT__EW_UNARY_FORMS(X) X(SCALE) X(SHIFT) X(SQUARE) X(CUBE) /* cheaper forms of AFFINE and POW */
#define DT__X(n) EW_##n,
enum { EW_LAST_ROW = DT_U_COUNT - 1, DT__EW_UNARY_FORMS(DT__X) EW_SAME /* y = x: copies with a cast */ };
#undef DT__X

__device__ __forceinline__ float ew_sigmoid(float x) /* e/(1 + e) below 0, which keeps the accuracy of small results */
{
    float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
__device__ __forceinline__ float ew_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
__device__ __forceinline__ float ew_power(float x, float e) /* 0.5 and -0.5 by sqrtf, for its signs and NaNs */
{
    return e == 0.5f ? sqrtf(x) : e == -0.5f ? 1.0f / sqrtf(x) : powf(x, e);
}
__device__ __forceinline__ float ew_gelu_inner(float x, float z) /* -2 sqrt(2/pi) (x + 0.044715 x^3), z = x^2 */
{
    return x * fmaf(z, -0.0713548163f, -1.59576912f);
}

/* x = k pi/2 + r, then polynomials in r (sinf() needs local memory). Up to 1e5 in three steps, of which the first is exact.
   Beyond: x = m 2^e with m of 24 bits; the bits of 2/pi that decide m 2^e 2/pi modulo 4 begin at bit e - 2 behind the point;
   64 of them give r with an error of 2^-38. */
__device__ __forceinline__ float ew_quarter(float x, int &quadrant)
{
    float k = rintf(x * 0.636619772f);
    if (!(fabsf(x) > 1e5f)) { /* NaN: here */
        quadrant = (int)k & 3;
        return fmaf(k, 1.71512451e-15f, fmaf(k, 4.37113883e-8f, fmaf(k, -1.57079637f, x)));
    }
    uint32_t u = __float_as_uint(x);
    int      o = (int)(u >> 23 & 255u) - 150 - 2, s = o & 63;
    uint64_t first = 0xa2f9836e4e441529ull, second = 0xfc2757d1f534ddc0ull, third = 0xdb6295993c439041ull;
    uint64_t high = o < 64 ? first : second, low = o < 64 ? second : third;
    uint64_t bits = o < 0 ? first >> -o : s ? high << s | low >> (64 - s) : high;
    uint64_t p = bits * (u & 0x7fffffu | 0x800000u), q = (p + (1ull << 61)) >> 62;
    float    r = (float)((double)(int64_t)(p - (q << 62)) * 3.4061215800865545e-19); /* pi/2 2^-62 */
    quadrant = (int)(x < 0.0f ? 0 - q : q) & 3;
    return (u & 0x7fffffffu) >= 0x7f800000u ? NAN : x < 0.0f ? -r : r;
}
__device__ __forceinline__ float ew_sin_near(float r) /* |r| <= pi/4 */
{
    float z = r * r, p = fmaf(z, 2.71831149e-6f, -1.98393348e-4f);
    return fmaf(r * z, fmaf(z, fmaf(z, p, 8.33332930e-3f), -0.166666667f), r);
}
__device__ __forceinline__ float ew_cos_near(float r)
{
    float z = r * r, p = fmaf(z, fmaf(z, 2.44331571e-5f, -1.38873162e-3f), 4.16666456e-2f);
    return fmaf(z * z, p, fmaf(z, -0.5f, 1.0f));
}
__device__ __forceinline__ float ew_wave(float x, int ahead) /* sin(x + ahead pi/2) */
{
    int   q;
    float r = ew_quarter(x, q), y = (q + ahead) & 1 ? ew_cos_near(r) : ew_sin_near(r);
    return (q + ahead) & 2 ? -y : y;
}
__device__ __forceinline__ float ew_sin(float x) { return ew_wave(x, 0); }
__device__ __forceinline__ float ew_cos(float x) { return ew_wave(x, 1); }
__device__ __forceinline__ float ew_tan(float x)
{
    int   q;
    float r = ew_quarter(x, q), s = ew_sin_near(r), c = ew_cos_near(r);
    return q & 1 ? -c / s : s / c;
}
/* NaN in, NaN out. */
#define DT__EW_U(name) \
    __device__ __forceinline__ float ew_u_##name(float x, [[maybe_unused]] float a, [[maybe_unused]] float b)
DT__EW_U(AFFINE) { return fmaf(a, x, b); }
DT__EW_U(SCALE) { return a * x; } /* -0 stays */
DT__EW_U(SHIFT) { return x + b; }
DT__EW_U(RECIP) { return a / x; }
DT__EW_U(POW) { return ew_power(x, a); }
DT__EW_U(SQUARE) { return x * x; }
DT__EW_U(CUBE) { return x * x * x; }
DT__EW_U(ABS) { return fabsf(x); }
DT__EW_U(SQRT) { return sqrtf(x); }
DT__EW_U(EXP) { return expf(x); }
DT__EW_U(LOG) { return logf(x); }
DT__EW_U(CLAMP)
{
    float t = a > x ? a : x;
    return b < t ? b : t;
}
DT__EW_U(RELU) { return 0.0f > x ? 0.0f : x; }
DT__EW_U(LEAKY_RELU) { return x > 0.0f ? x : a * x; }
DT__EW_U(GELU) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
DT__EW_U(GELU_TANH) { return x / (1.0f + expf(ew_gelu_inner(x, x * x))); } /* 1 + tanh(u) = 2/(1 + exp(-2u)) */
DT__EW_U(SILU)
{
    float e = expf(-fabsf(x));
    return (x < 0.0f ? x * e : x) / (1.0f + e);
}
DT__EW_U(RSQRT) { return 1.0f / sqrtf(x); }
DT__EW_U(SIN) { return ew_sin(x); }
DT__EW_U(COS) { return ew_cos(x); }
DT__EW_U(TAN) { return ew_tan(x); }
DT__EW_U(ERF) { return erff(x); }
DT__EW_U(LOG1P) { return log1pf(x); }
DT__EW_U(EXPM1) { return expm1f(x); }
DT__EW_U(SIGN) { return ew_sign(x); }
DT__EW_U(FLOOR) { return floorf(x); }
DT__EW_U(CEIL) { return ceilf(x); }
DT__EW_U(ROUND) { return rintf(x); }
DT__EW_U(ELU) { return x > 0.0f ? b * x : a * b * expm1f(x); }
DT__EW_U(HARDSWISH)
{
    float t = 0.0f > x + 3.0f ? 0.0f : x + 3.0f;
    return x * (6.0f < t ? 6.0f : t) / 6.0f;
}
__device__ __forceinline__ float ew_mish_gate(float x) /* tanh(log(1 + e^x)) = (e^2 + 2e)/(e^2 + 2e + 2), e = exp(x) */
{
    float e = expf(20.0f < x ? 20.0f : x), n = e * (e + 2.0f);
    return n / (n + 2.0f);
}
DT__EW_U(MISH) { return x * ew_mish_gate(x); }
DT__EW_U(LOGSIGMOID) { return (0.0f < x ? 0.0f : x) - log1pf(expf(-fabsf(x))); }
DT__EW_U(SIGMOID) { return ew_sigmoid(x); }
DT__EW_U(TANH) { return tanhf(x); }
DT__EW_U(SOFTPLUS)
{
    float t = a * x;
    return t > 20.0f ? x : log1pf(expf(t)) / a;
}
#undef DT__EW_U

/* dy times the derivative; v is the row's x or y, as NEEDS_X or NEEDS_Y says */
#define DT__EW_D(name) \
    __device__ __forceinline__ float ew_d_##name([[maybe_unused]] float dy, [[maybe_unused]] float v, [[maybe_unused]] float a, \
                                                 [[maybe_unused]] float b)
DT__EW_D(AFFINE) { return dy * a; }
DT__EW_D(RECIP) { return a == 0.0f ? dy * a : -(dy * (v * (v / a))); }
DT__EW_D(POW) { return a == 0.0f ? a : dy * (a * ew_power(v, a - 1.0f)); }
DT__EW_D(SQUARE) { return dy * (a * v); }
DT__EW_D(ABS) { return dy * ew_sign(v); }
DT__EW_D(SQRT) { return dy / (v + v); }
DT__EW_D(EXP) { return dy * v; }
DT__EW_D(LOG) { return dy / v; }
DT__EW_D(CLAMP) { return v > a && v < b ? dy : 0.0f; } /* 0 at the bounds */
DT__EW_D(RELU) { return v <= 0.0f ? 0.0f : dy; } /* a NaN lets the gradient through */
DT__EW_D(LEAKY_RELU) { return v > 0.0f ? dy : dy * a; }
DT__EW_D(GELU)
{
    float c = 0.5f * (1.0f + erff(v * 0.70710678f)), p = 0.39894228f * expf(-0.5f * v * v);
    return dy * fmaf(v, p, c);
}
DT__EW_D(GELU_TANH) /* s + v s(1 - s) 2u', s = 1/(1 + exp(-2u)) */
{
    float z = v * v, e = expf(ew_gelu_inner(fabsf(v), z)), r = 1.0f / (1.0f + e), er = e * r;
    float du = fmaf(z, 0.214064449f, 1.59576912f);
    return dy * fmaf(v * (er * r), du, v < 0.0f ? er : r);
}
DT__EW_D(SILU)
{
    float s = ew_sigmoid(v);
    return dy * (s * fmaf(v, 1.0f - s, 1.0f));
}
DT__EW_D(RSQRT) { return dy * (-0.5f * v * v * v); }
DT__EW_D(SIN) { return dy * ew_cos(v); }
DT__EW_D(COS) { return -(dy * ew_sin(v)); }
DT__EW_D(TAN) { return dy * fmaf(v, v, 1.0f); }
DT__EW_D(ERF) { return dy * (1.12837917f * expf(-(v * v))); }
DT__EW_D(LOG1P) { return dy / (v + 1.0f); }
DT__EW_D(EXPM1) { return dy * (v + 1.0f); }
DT__EW_D(SIGN) { return 0.0f; }
DT__EW_D(FLOOR) { return 0.0f; }
DT__EW_D(CEIL) { return 0.0f; }
DT__EW_D(ROUND) { return 0.0f; }
DT__EW_D(ELU) { return v <= 0.0f ? dy * (a * b * expf(v)) : dy * b; } /* a NaN lets the gradient through */
DT__EW_D(HARDSWISH) { return v <= -3.0f ? 0.0f : v < 3.0f ? dy * fmaf(v, 0.333333333f, 0.5f) : dy; }
DT__EW_D(MISH) /* t + v s (1 - t^2), s the sigmoid */
{
    float t = ew_mish_gate(v);
    return dy * fmaf(v * ew_sigmoid(v), 1.0f - t * t, t);
}
DT__EW_D(LOGSIGMOID) { return dy * ew_sigmoid(-v); }
DT__EW_D(SIGMOID) { return dy * ((1.0f - v) * v); }
DT__EW_D(TANH) { return dy * fmaf(-v, v, 1.0f); }
DT__EW_D(SOFTPLUS)
{
    float t = a * v;
    return t > 20.0f ? dy : dy * ew_sigmoid(t);
}
#undef DT__EW_D

#define DT__EW_B(name)                                                                       \
    __device__ __forceinline__ float ew_b_##name(float x, float y, [[maybe_unused]] float a, \
                                                 [[maybe_unused]] float b)
DT__EW_B(ADD) { return a * fmaf(b, y, x); }
DT__EW_B(MUL) { return a * (x * y); }
DT__EW_B(DIV) { return a * (x / y); }
DT__EW_B(POW) { return a * powf(x, y); }
DT__EW_B(POW_DX) { return a * (y == 0.0f ? 0.0f : y * powf(x, y - 1.0f)); }
DT__EW_B(POW_DY) { return a * (x == 0.0f && y >= 0.0f ? 0.0f : powf(x, y) * logf(x)); }
DT__EW_B(MAX) { return a * (x > y || x != x ? x : y); }
DT__EW_B(MIN) { return a * (x < y || x != x ? x : y); }
DT__EW_B(MAX_DX) { return a * (x < y ? 0.0f : x == y ? 0.5f : 1.0f); }
DT__EW_B(MIN_DX) { return a * (x > y ? 0.0f : x == y ? 0.5f : 1.0f); }
DT__EW_B(EQ) { return x == y ? 1.0f : 0.0f; }
DT__EW_B(NE) { return x != y ? 1.0f : 0.0f; }
DT__EW_B(LT) { return x < y ? 1.0f : 0.0f; }
DT__EW_B(LE) { return x <= y ? 1.0f : 0.0f; }
DT__EW_B(GT) { return x > y ? 1.0f : 0.0f; }
DT__EW_B(GE) { return x >= y ? 1.0f : 0.0f; }
DT__EW_B(ATAN2) { return a * atan2f(x, y); }
DT__EW_B(ATAN2_DX)
{
    float d = fmaf(x, x, y * y);
    return a * (y * (d == 0.0f ? 0.0f : 1.0f / d));
}
DT__EW_B(PRELU) { return a * (x > 0.0f ? x : x * y); }
DT__EW_B(PRELU_DX) { return a * (x > 0.0f ? 1.0f : y); }
DT__EW_B(PRELU_DY) { return a * (x > 0.0f ? 0.0f : x); }
DT__EW_B(KL_DIV) { return a * (y == 0.0f ? -(y * x) : y * (logf(y) - x)); }
DT__EW_B(KL_DIV_DY) { return a * (logf(y) + 1.0f - x); }
DT__EW_B(MSE) { return a * ((x - y) * (x - y)); }
DT__EW_B(MSE_DX) { return a * (2.0f * (x - y)); }
DT__EW_B(L1) { return a * fabsf(x - y); }
DT__EW_B(L1_DX) { return a * ew_sign(x - y); }
DT__EW_B(SMOOTH_L1)
{
    float d = fabsf(x - y);
    return a * (d < b ? 0.5f * d * d / b : fmaf(-0.5f, b, d));
}
DT__EW_B(SMOOTH_L1_DX)
{
    float d = x - y;
    return a * (fabsf(d) >= b ? ew_sign(d) : d / b);
}
DT__EW_B(BCE) /* (1 - y)x + max(-x, 0) + log(1 + exp(-|x|)): infinite where x is */
{
    return a * (fmaf(1.0f - y, x, fmaxf(-x, 0.0f)) + log1pf(expf(-fabsf(x))));
}
DT__EW_B(BCE_DX) { return a * (ew_sigmoid(x) - y); }
#undef DT__EW_B

/* The largest V of a function. Derivatives that are slow would need more registers than there are for 8 elements and their divisions. */
__host__ __device__ constexpr int ew_most(int cost, bool slope) { return cost == DT_COST_POWER ? 1 : cost == DT_COST_SLOW && slope ? 4 : 8; }
/* The function of a whole piece: the switch is outside of the loop over its elements. A function is compiled for V up to
   ew_most(). fn was checked by the entry. */
template <typename F, int V> __device__ __forceinline__ void ew_each(float (&v)[V], F f)
{
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = f(j);
}
#define DT__EW_CASE(code, cost, call)                                                            \
    case code:                                                                                   \
        if constexpr (V <= ew_most(cost, SLOPE)) ew_each(x, [&](int j) { return call; });        \
        break;
template <int V> __device__ __forceinline__ void ew_unary_all(int fn, float (&x)[V], float a, float b)
{
    constexpr bool SLOPE = false;
    switch (fn) {
#define DT__X(n, type, grad, cost, grad_cost, t) DT__EW_CASE(DT_U_##n, DT_COST_##cost, ew_u_##n(x[j], a, b))
        DT_UNARY_FNS(DT__X)
#undef DT__X
#define DT__X(n) DT__EW_CASE(EW_##n, DT_COST_CHEAP, ew_u_##n(x[j], a, b))
        DT__EW_UNARY_FORMS(DT__X)
#undef DT__X
    case EW_SAME: break;
    }
}
template <int V>
__device__ __forceinline__ void ew_slope_all(int fn, float (&x)[V], const float (&y)[V], float a, float b)
{
    constexpr bool SLOPE = true;
    switch (fn) {
#define DT__X(n, type, grad, cost, grad_cost, t) DT__EW_CASE(DT_U_##n, DT_COST_##grad_cost, ew_d_##n(x[j], y[j], a, b))
        DT_UNARY_FNS(DT__X)
#undef DT__X
        DT__EW_CASE(EW_SQUARE, DT_COST_CHEAP, ew_d_SQUARE(x[j], y[j], a, b))
    }
}
template <int V>
__device__ __forceinline__ void ew_binary_all(int fn, float (&x)[V], const float (&y)[V], float a, float b)
{
    constexpr bool SLOPE = false;
    switch (fn) {
#define DT__X(n, type, grad, cost, t) DT__EW_CASE(DT_B_##n, DT_COST_##cost, ew_b_##n(x[j], y[j], a, b))
        DT_BINARY_FNS(DT__X)
#undef DT__X
    }
}
#undef DT__EW_CASE

/* ---------------------------------------------------------------------------------------------------- operands */
/* N operands, the output first. The innermost dimension of w counts pieces of V elements. */
template <int N> struct ew_ops {
    walk<N>           w;
    int64_t           pieces, inner; /* inner: elements of the innermost dimension */
    operand<any_type> x[N];
    int               fn;
    bool              one[N]; /* the operand is broadcast along the innermost dimension */
    float             a, b;
    int64_t           ia, ib;
};

template <int N> __device__ __forceinline__ void ew_place(const ew_ops<N> &o, int64_t i, int64_t (&at)[N])
{
    if (o.w.ndim <= 1) {
#pragma unroll
        for (int k = 0; k < N; k++) at[k] = i * o.w.stride[k][0];
    } else {
        walk_at(o.w, i, at);
    }
}
/* The elements of piece i. A partial piece is possible only if there is one run of elements. */
template <int V, int N> __device__ __forceinline__ int64_t ew_count(const ew_ops<N> &o, int64_t i)
{
    return V > 1 && o.w.ndim <= 1 ? o.inner - i * V : V;
}
template <int V, int N>
__device__ __forceinline__ void ew_load(float (&v)[V], const ew_ops<N> &o, int k, int64_t at, int64_t n)
{
    if (V > 1 && o.one[k]) {
        float x[V];
        o.x[k].load(at, x, 1);
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = x[0];
    } else {
        o.x[k].load(at, v, n);
    }
}

template <int V> static __global__ void __launch_bounds__(BLOCK) ew_unary_kernel(const __grid_constant__ ew_ops<2> o)
{
    for (int64_t i = grid_first(); i < o.pieces; i += grid_step()) {
        int64_t at[2], n = ew_count<V>(o, i);
        float   x[V];
        ew_place(o, i, at);
        ew_load<V>(x, o, 1, at[1], n);
        ew_unary_all<V>(o.fn, x, o.a, o.b);
        o.x[0].store(at[0], x, n);
    }
}
/* unary_bwd and binary: both are functions of two operands */
template <int V, bool SLOPE>
static __global__ void __launch_bounds__(BLOCK) ew_binary_kernel(const __grid_constant__ ew_ops<3> o)
{
    for (int64_t i = grid_first(); i < o.pieces; i += grid_step()) {
        int64_t at[3], n = ew_count<V>(o, i);
        float   x[V], y[V];
        ew_place(o, i, at);
        ew_load<V>(x, o, 1, at[1], n);
        ew_load<V>(y, o, 2, at[2], n);
        if constexpr (SLOPE) ew_slope_all<V>(o.fn, x, y, o.a, o.b);
        else ew_binary_all<V>(o.fn, x, y, o.a, o.b);
        o.x[0].store(at[0], x, n);
    }
}
/* y := act(y + bias); fn is the row of act, or EW_SAME; bias may be absent */
template <int V> static __global__ void __launch_bounds__(BLOCK) ew_epilogue_kernel(const __grid_constant__ ew_ops<2> o)
{
    for (int64_t i = grid_first(); i < o.pieces; i += grid_step()) {
        int64_t at[2], n = ew_count<V>(o, i);
        float   y[V], bias[V];
        ew_place(o, i, at);
        o.x[0].floats().load(at[0], y, n);
        if (o.x[1].p) {
            ew_load<V>(bias, o, 1, at[1], n);
            ew_each(y, [&](int j) { return y[j] + bias[j]; });
        }
        switch (o.fn) {
        case DT_U_RELU: ew_each(y, [&](int j) { return ew_u_RELU(y[j], 0.0f, 0.0f); }); break;
        case DT_U_SIGMOID: ew_each(y, [&](int j) { return ew_u_SIGMOID(y[j], 0.0f, 0.0f); }); break;
        case DT_U_TANH: ew_each(y, [&](int j) { return ew_u_TANH(y[j], 0.0f, 0.0f); }); break;
        case EW_SAME: break;
        }
        o.x[0].floats().adding(false).store(at[0], y, n);
    }
}

/* Integers, computed modulo 2^64. Codes: EWI_UNARY or EWI_BINARY + function; for one operand y is x. */
enum { EWI_SAME, EWI_UNARY, EWI_BINARY = EWI_UNARY + DT_U_COUNT };
#define DT__EW_INT(name, expr)                                                                                      \
    __device__ __forceinline__ int64_t ew_##name(int64_t x, [[maybe_unused]] int64_t y, [[maybe_unused]] int64_t a, \
                                                 [[maybe_unused]] int64_t b)                                        \
    {                                                                                                               \
        [[maybe_unused]] uint64_t ux = (uint64_t)x, uy = (uint64_t)y, ua = (uint64_t)a, ub = (uint64_t)b;           \
        return (int64_t)(expr);                                                                                     \
    }
DT__EW_INT(iu_AFFINE, ua * ux + ub)
DT__EW_INT(iu_ABS, x < 0 ? 0 - ux : ux)
DT__EW_INT(iu_SIGN, (x > 0) - (x < 0))
DT__EW_INT(iu_FLOOR, x)
DT__EW_INT(iu_CEIL, x)
DT__EW_INT(iu_ROUND, x)
DT__EW_INT(iu_CLAMP, (x > a ? x : a) < b ? (x > a ? x : a) : b)
DT__EW_INT(ib_ADD, ua * (ux + ub * uy))
DT__EW_INT(ib_MUL, ua * (ux * uy))
DT__EW_INT(ib_MAX, ua * (x > y ? ux : uy))
DT__EW_INT(ib_MIN, ua * (x < y ? ux : uy))
DT__EW_INT(ib_EQ, x == y)
DT__EW_INT(ib_NE, x != y)
DT__EW_INT(ib_LT, x < y)
DT__EW_INT(ib_LE, x <= y)
DT__EW_INT(ib_GT, x > y)
DT__EW_INT(ib_GE, x >= y)
#undef DT__EW_INT
__device__ __forceinline__ int64_t ew_ints(int fn, int64_t x, int64_t y, int64_t a, int64_t b)
{
    switch (fn) {
    case EWI_SAME: return x;
#define DT__EW_CASE_FLOATS(code, f)
#define DT__EW_CASE_INTS(code, f) case code: return f(x, y, a, b);
#define DT__EW_CASE_COMPARE(code, f) case code: return f(x, y, a, b);
#define DT__X(n, type, grad, cost, grad_cost, t) DT__EW_CASE_##type(EWI_UNARY + DT_U_##n, ew_iu_##n)
        DT_UNARY_FNS(DT__X)
#undef DT__X
#define DT__X(n, type, grad, cost, t) DT__EW_CASE_##type(EWI_BINARY + DT_B_##n, ew_ib_##n)
        DT_BINARY_FNS(DT__X)
#undef DT__X
#undef DT__EW_CASE_FLOATS
#undef DT__EW_CASE_INTS
#undef DT__EW_CASE_COMPARE
    }
    __trap(); /* not reached: the entries check that the row takes integers */
    return 0;
}
static __global__ void __launch_bounds__(BLOCK) ew_int_kernel(const __grid_constant__ ew_ops<3> o)
{
    for (int64_t i = grid_first(); i < o.pieces; i += grid_step()) {
        int64_t at[3];
        ew_place(o, i, at);
        int64_t x = o.x[1].at_int(at[1]), y = o.x[2].at_int(at[2]);
        o.x[0].put_int(at[0], ew_ints(o.fn, x, y, o.ia, o.ib));
    }
}

inline int64_t double_to_i64(double v) /* toward zero, saturated; NaN: 0 */
{
    return v >= 9223372036854775808.0 ? INT64_MAX : v <= -9223372036854775808.0 ? INT64_MIN : v == v ? (int64_t)v : 0;
}
/* The views with their dimensions in the order of the output's strides, largest first. */
template <int N> inline void ew_sort(dt_view (&v)[N], const dt_view *const (&from)[N])
{
    for (int k = 0; k < N; k++) v[k] = *from[k];
    for (int i = 1; i < v[0].ndim; i++)
        for (int j = i; j > 0 && v[0].stride[j] > v[0].stride[j - 1]; j--)
            for (int k = 0; k < N; k++) {
                int64_t n = v[k].shape[j], s = v[k].stride[j];
                v[k].shape[j] = v[k].shape[j - 1], v[k].stride[j] = v[k].stride[j - 1];
                v[k].shape[j - 1] = n, v[k].stride[j - 1] = s;
            }
}
template <int N> inline walk<N> ew_walk(const dt_view *const (&view)[N])
{
    dt_view        v[N];
    const dt_view *p[N];
    ew_sort(v, view);
    for (int k = 0; k < N; k++) p[k] = &v[k];
    walk<N> w = walk_of<N>(p);
    for (int k = 0; k < N && w.ndim == 0; k++) w.stride[k][0] = 0;
    return w;
}
/* V: 1, 4 or 8. The pointer of an absent operand is NULL. */
template <int N> inline int ew_width(const ew_ops<N> &o)
{
    int dtype[N];
    for (int k = 0; k < N; k++) dtype[k] = o.x[k].dtype;
    int v = width_of(dtype), last = o.w.ndim - 1;
    if (o.w.ndim == 0 || o.w.stride[0][last] != 1 || (last > 0 && o.w.shape[last] % v)) return 1;
    for (int k = 0; k < N; k++) {
        int64_t s = o.w.stride[k][last];
        if (s == 0) continue;
        if (s != 1 || !suits(o.x[k].p, dtype[k], v)) return 1;
        for (int d = 0; d < last; d++)
            if (o.w.stride[k][d] % v) return 1;
    }
    return v;
}
/* What the host needs to know of a row. */
struct ew_row { bool ints; int cost, grad_cost; };
enum { EW_TYPE_FLOATS, EW_TYPE_INTS, EW_TYPE_COMPARE };
static const ew_row ew_unary_rows[DT_U_COUNT] = {
#define DT__X(n, type, grad, cost, grad_cost, t) { EW_TYPE_##type != EW_TYPE_FLOATS, DT_COST_##cost, DT_COST_##grad_cost },
    DT_UNARY_FNS(DT__X)
#undef DT__X
};
static const ew_row ew_binary_rows[DT_B_COUNT] = {
#define DT__X(n, type, grad, cost, t) { EW_TYPE_##type != EW_TYPE_FLOATS, DT_COST_##cost, DT_COST_CHEAP },
    DT_BINARY_FNS(DT__X)
#undef DT__X
};

/* Operands and index space; gives V, at most 'most'. */
template <int N> inline int ew_begin(ew_ops<N> &o, const dt_view *const (&view)[N], const dt_call *c, int most)
{
    o.w = ew_walk(view);
    for (int k = 0; k < N; k++) o.x[k] = operand_of<any_type>(view[k], k == 0 && c && (c->acc & 1));
    o.fn = c ? c->u.ew.fn : 0;
    o.a = c ? (float)c->u.ew.a : 0.0f;
    o.b = c ? (float)c->u.ew.b : 0.0f;
    o.ia = c ? double_to_i64(c->u.ew.a) : 0;
    o.ib = c ? double_to_i64(c->u.ew.b) : 0;
    int v = most > 1 ? ew_width(o) : 1;
    if (v > most) v = most;
    int last = o.w.ndim > 0 ? o.w.ndim - 1 : 0;
    o.inner = o.w.ndim > 0 ? o.w.shape[last] : 1;
    for (int k = 0; k < N; k++) o.one[k] = o.w.stride[k][last] == 0;
    o.pieces = o.w.total;
    if (v > 1) {
        int64_t n = (o.inner + v - 1) / v;
        o.pieces = o.w.total / o.inner * n;
        o.w.shape[last] = n;
        for (int k = 0; k < N; k++) o.w.stride[k][last] *= v;
    }
    return v;
}

/* ---------------------------------------------------------------------------------------------------- launches */
static int ew_run_unary(dt_device *dev, const dt_call *c, const ew_ops<2> &o, int v)
{
    cudaStream_t s = stream_of(dev, c);
    unsigned     blocks = blocks_for(o.pieces);
    with_width<8, 4, 1>(v, [&](auto w) { ew_unary_kernel<w.value><<<blocks, BLOCK, 0, s>>>(o); });
    return launched(c);
}
template <bool SLOPE> static int ew_run_binary(dt_device *dev, const dt_call *c, const ew_ops<3> &o, int v)
{
    cudaStream_t s = stream_of(dev, c);
    unsigned     blocks = blocks_for(o.pieces);
    with_width<8, 4, 1>(v, [&](auto w) { ew_binary_kernel<w.value, SLOPE><<<blocks, BLOCK, 0, s>>>(o); });
    return launched(c);
}
static int ew_run_ints(dt_device *dev, const dt_call *c, const dt_view *x, const dt_view *y, int code)
{
    const dt_view *v[3] = { &c->out[0], x, y };
    ew_ops<3>      o;
    ew_begin(o, v, c, 1);
    o.fn = code;
    ew_int_kernel<<<blocks_for(o.pieces), BLOCK, 0, stream_of(dev, c)>>>(o);
    return launched(c);
}
static int ew_no_ints(const char *what)
{
    return dt_fail(DT_ERR_DTYPE, "%s: this function does not take integers; cast the operands to f32", what);
}

/* ---------------------------------------------------------------------------------------------------- bits
   Copies without a cast, fill and where move elements of 1, 2, 4 or 8 bytes, or units of several of them. */
template <typename U> static __global__ void __launch_bounds__(BLOCK)
ew_fill_kernel(U *y, U value, const __grid_constant__ walk<1> w)
{
    for (int64_t i = grid_first(); i < w.total; i += grid_step()) {
        int64_t at[1];
        walk_at(w, i, at);
        y[at[0]] = value;
    }
}
template <typename U> static __global__ void __launch_bounds__(BLOCK)
ew_copy_kernel(U *y, const U *x, const __grid_constant__ walk<2> w)
{
    for (int64_t i = grid_first(); i < w.total; i += grid_step()) {
        int64_t at[2];
        walk_at(w, i, at);
        y[at[0]] = x[at[1]];
    }
}
template <typename U> static __global__ void __launch_bounds__(BLOCK)
ew_where_kernel(U *z, operand<any_type> cond, const U *x, const U *y, const __grid_constant__ walk<4> w)
{
    for (int64_t i = grid_first(); i < w.total; i += grid_step()) {
        int64_t at[4];
        walk_at(w, i, at);
        z[at[0]] = cond.at_int(at[1]) != 0 ? x[at[2]] : y[at[3]];
    }
}
/* The same for V neighbours and a condition of u8; U is the raw element. */
template <typename U, int V>
__device__ __forceinline__ void ew_load_bits(U (&v)[V], const ew_ops<4> &o, int k, int64_t at, int64_t n)
{
    const U *p = (const U *)o.x[k].p + at;
    if (o.one[k] || n < V) {
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = j < n ? p[o.one[k] ? 0 : j] : (U)0;
    } else {
        pack<U, V> q = *(const pack<U, V> *)p;
#pragma unroll
        for (int j = 0; j < V; j++) v[j] = q.v[j];
    }
}
template <typename U, int V>
static __global__ void __launch_bounds__(BLOCK, 4) ew_where_wide_kernel(const __grid_constant__ ew_ops<4> o)
{
    for (int64_t i = grid_first(); i < o.pieces; i += grid_step()) {
        int64_t at[4], n = ew_count<V>(o, i);
        uint8_t cond[V];
        U       x[V], y[V];
        ew_place(o, i, at);
        ew_load_bits(cond, o, 1, at[1], n);
        ew_load_bits(x, o, 2, at[2], n);
        ew_load_bits(y, o, 3, at[3], n);
        U         *z = (U *)o.x[0].p + at[0];
        pack<U, V> q;
#pragma unroll
        for (int j = 0; j < V; j++) q.v[j] = cond[j] ? x[j] : y[j];
        if (n >= V) {
            *(pack<U, V> *)z = q;
        } else {
#pragma unroll
            for (int j = 0; j < V; j++)
                if (j < n) z[j] = q.v[j];
        }
    }
}
static __global__ void __launch_bounds__(BLOCK) /* z += */
ew_where_add_kernel(operand<any_type> z, operand<any_type> cond, operand<any_type> x, operand<any_type> y,
                    const __grid_constant__ walk<4> w)
{
    for (int64_t i = grid_first(); i < w.total; i += grid_step()) {
        int64_t at[4];
        walk_at(w, i, at);
        bool         take = cond.at_int(at[1]) != 0;
        operand<any_type> from = { take ? x.p : y.p, 0, z.dtype }, to = z.adding(true);
        int64_t      k = take ? at[2] : at[3];
        if (z.dtype >= DT_I32) to.put_int(at[0], from.at_int(k));
        else to.floats().put(at[0], from.floats().at(k));
    }
}
/* y[.., b, a] = x[.., b, a], y dense along a, x along b: read along b, transposed in shared memory, written along a. */
template <typename U> struct ew_turn {
    walk<2> w; /* of the other dimensions */
    int64_t na, nb, ya, xa, yb, xb; /* sizes; strides */
    int64_t ta, tb;                 /* tiles */
};
template <typename U> static __global__ void __launch_bounds__(BLOCK)
ew_turn_kernel(U *y, const U *x, const __grid_constant__ ew_turn<U> t)
{
    __shared__ U tile[32][32 + (sizeof(U) < 4 ? 4 / sizeof(U) : 1)]; /* an odd number of words: no two rows in one bank */
    int          lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32;
    for (int64_t i = blockIdx.x; i < t.w.total * t.ta * t.tb; i += gridDim.x) {
        int64_t a = i % t.ta * 32, b = i / t.ta % t.tb * 32, at[2];
        walk_at(t.w, i / t.ta / t.tb, at);
        for (int j = row; j < 32; j += BLOCK / 32)
            if (a + j < t.na && b + lane < t.nb) tile[j][lane] = x[at[1] + (a + j) * t.xa + (b + lane) * t.xb];
        __syncthreads();
        for (int j = row; j < 32; j += BLOCK / 32)
            if (a + lane < t.na && b + j < t.nb) y[at[0] + (a + lane) * t.ya + (b + j) * t.yb] = tile[lane][j];
        __syncthreads();
    }
}

/* The largest unit, up to 16 bytes, in which all N operands can be accessed. Afterwards w counts units. */
template <int N> static int ew_units(walk<N> &w, void *const (&p)[N], int size)
{
    int last = w.ndim - 1, n = 16 / size;
    for (int k = 0; k < N; k++)
        if (w.ndim == 0 || w.stride[k][last] != 1) return size;
    for (; n > 1; n /= 2) {
        bool fits = w.shape[last] % n == 0;
        for (int k = 0; k < N && fits; k++) {
            fits = aligned_to(p[k], n * size);
            for (int d = 0; d < last; d++) fits = fits && w.stride[k][d] % n == 0;
        }
        if (fits) break;
    }
    w.total /= n;
    w.shape[last] /= n;
    for (int k = 0; k < N; k++)
        for (int d = 0; d < last; d++) w.stride[k][d] /= n;
    return n * size;
}

/* The outer dimension along which x is dense, or -1. Both dimensions must have at least 16 elements, half a tile. */
static int ew_turned(const walk<2> &w)
{
    int last = w.ndim - 1;
    if (w.ndim < 2 || w.stride[0][last] != 1 || w.stride[1][last] == 1 || w.shape[last] < 16) return -1;
    for (int d = last - 1; d >= 0; d--)
        if (w.stride[1][d] == 1 && w.shape[d] >= 16) return d;
    return -1;
}
template <typename U> static void ew_run_turn(const walk<2> &w, int d, void *y, const void *x, cudaStream_t s)
{
    int        last = w.ndim - 1;
    ew_turn<U> t;
    t.w = w;
    t.na = w.shape[last], t.ya = w.stride[0][last], t.xa = w.stride[1][last];
    t.nb = w.shape[d], t.yb = w.stride[0][d], t.xb = w.stride[1][d];
    t.ta = (t.na + 31) / 32, t.tb = (t.nb + 31) / 32;
    t.w.total = w.total / t.na / t.nb;
    t.w.ndim = w.ndim - 2;
    for (int i = d; i < t.w.ndim; i++) {
        t.w.shape[i] = w.shape[i + 1];
        for (int k = 0; k < 2; k++) t.w.stride[k][i] = w.stride[k][i + 1];
    }
    ew_turn_kernel<U><<<blocks_for(t.w.total * t.ta * t.tb, 1), BLOCK, 0, s>>>((U *)y, (const U *)x, t);
}
static int ew_copy_bits(dt_device *dev, const dt_call *c)
{
    const dt_view *v[2] = { &c->out[0], &c->in[0] };
    walk<2>        w = ew_walk(v);
    cudaStream_t   s = stream_of(dev, c);
    int            size = elem_size(v[0]->dtype), d = ew_turned(w);
    void          *p[2] = { v[0]->data, v[1]->data };
    if (walk_is_dense(w)) {
        if (p[0] == p[1]) return 0;
        return dt__cuda_check((int)cudaMemcpyAsync(p[0], p[1], (size_t)(w.total * size), cudaMemcpyDeviceToDevice, s),
                              "copy");
    }
    if (d >= 0) {
        with_bits<8>(size, [&](auto u) { ew_run_turn<decltype(u)>(w, d, p[0], p[1], s); });
        return launched(c);
    }
    with_bits<16>(ew_units(w, p, size), [&](auto u) {
        using U = decltype(u);
        ew_copy_kernel<U><<<blocks_for(w.total), BLOCK, 0, s>>>((U *)p[0], (const U *)p[1], w);
    });
    return launched(c);
}

static __global__ void __launch_bounds__(BLOCK)
ew_iota_kernel(operand<any_type> y, int64_t n, int64_t stride, double a, double b, int64_t ia, int64_t ib, bool whole)
{
    int dtype = y.dtype;
    y.add = false;
    for (int64_t i = grid_first(); i < n; i += grid_step()) {
        double v = fma(b, (double)i, a);
        if (dtype < DT_I32) {
            y.floats().put(i * stride, (float)v);
        } else if (whole) { /* exact, modulo 2^64 */
            y.put_int(i * stride, (int64_t)((uint64_t)ia + (uint64_t)ib * (uint64_t)i));
        } else {
            int64_t l = v >= 9223372036854775808.0 ? INT64_MAX : v <= -9223372036854775808.0 ? INT64_MIN
                      : v == v ? (int64_t)v : 0;
            if (dtype == DT_I32) l = l > INT32_MAX ? INT32_MAX : l < INT32_MIN ? INT32_MIN : l;
            if (dtype == DT_U8) l = v > -2147483648.0 && v < 2147483648.0 ? l : 0;
            y.put_int(i * stride, l);
        }
    }
}

} /* namespace dtk */

/* ---------------------------------------------------------------------------------------------------- entries */
extern "C" int dt__cuda_fill(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *const v[1] = { y };
    walk<1>        w = ew_walk(v);
    double         a = c->u.ew.a;
    float          f = (float)a;
    int            size = elem_size(y->dtype);
    unsigned char  one[16] = { 0 };
    if (w.total == 0) return 0;
    if (y->dtype == DT_F32) {
        memcpy(one, &f, 4);
    } else if (y->dtype == DT_F16) {
        __half h = __float2half_rn(f);
        memcpy(one, &h, 2);
    } else if (y->dtype == DT_BF16) {
        __nv_bfloat16 h = __float2bfloat16_rn(f);
        memcpy(one, &h, 2);
    } else {
        int64_t l = double_to_i64(a);
        if (y->dtype == DT_I32) l = l > INT32_MAX ? INT32_MAX : l < INT32_MIN ? INT32_MIN : l;
        if (y->dtype == DT_U8) l = a > -2147483648.0 && a < 2147483648.0 ? (l & 255) : 0;
        memcpy(one, &l, (size_t)size); /* the low bytes: hosts of CUDA are little-endian */
    }
    for (int i = size; i < 16; i++) one[i] = one[i - size];
    bool same = true;
    for (int i = 1; i < size; i++) same = same && one[i] == one[0];
    if (same && walk_is_dense(w))
        return dt__cuda_check((int)cudaMemsetAsync(y->data, one[0], (size_t)(w.total * size), stream_of(dev, c)),
                              "fill");
    void *const p[1] = { y->data };
    with_bits<16>(ew_units(w, p, size), [&](auto u) {
        using U = decltype(u);
        memcpy(&u, one, sizeof u);
        ew_fill_kernel<U><<<blocks_for(w.total), BLOCK, 0, stream_of(dev, c)>>>((U *)p[0], u, w);
    });
    return launched(c);
}

extern "C" int dt__cuda_copy(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *x = &c->in[0], *const v[2] = { y, x };
    ew_ops<2>      o;
    if (numel(*y) == 0) return 0;
    if (y->dtype == x->dtype && !(c->acc & 1)) return ew_copy_bits(dev, c);
    if (is_int(y->dtype) && is_int(x->dtype)) return ew_run_ints(dev, c, x, x, EWI_SAME);
    int width = ew_begin(o, v, c, 8);
    o.fn = EW_SAME;
    return ew_run_unary(dev, c, o, width);
}

extern "C" int dt__cuda_iota(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0];
    int64_t        n = y->ndim > 0 ? y->shape[0] : 1, stride = y->ndim > 0 ? y->stride[0] : 1;
    int64_t        ia = double_to_i64(c->u.ew.a), ib = double_to_i64(c->u.ew.b);
    bool           whole = c->u.ew.a == (double)ia && c->u.ew.b == (double)ib;
    if (n == 0) return 0;
    ew_iota_kernel<<<blocks_for(n), BLOCK, 0, stream_of(dev, c)>>>(out_of<any_type>(c, 0), n, stride, c->u.ew.a,
                                                                   c->u.ew.b, ia, ib, whole);
    return launched(c);
}

extern "C" int dt__cuda_unary(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *x = &c->in[0], *const v[2] = { y, x };
    int            fn = c->u.ew.fn;
    double         a = c->u.ew.a, b = c->u.ew.b;
    ew_ops<2>      o;
    if (fn < 0 || fn >= DT_U_COUNT) return dt_fail(DT_ERR_ARG, "unary: there is no function %d", fn);
    if (numel(*y) == 0) return 0;
    if (is_int(y->dtype) && is_int(x->dtype))
        return ew_unary_rows[fn].ints ? ew_run_ints(dev, c, x, x, EWI_UNARY + fn) : ew_no_ints("unary");
    if (fn == DT_U_AFFINE) fn = b == 0 ? (int)EW_SCALE : a == 1 ? (int)EW_SHIFT : fn;
    if (fn == DT_U_POW) {
        if (a == 2) fn = EW_SQUARE;
        else if (a == 3) fn = EW_CUBE;
        else if (a == 0.5) fn = DT_U_SQRT;
        else if (a == -1) fn = DT_U_RECIP, a = 1;
    }
    int width = ew_begin(o, v, c, fn < DT_U_COUNT ? ew_most(ew_unary_rows[fn].cost, false) : 8);
    o.fn = fn;
    o.a = (float)a;
    return ew_run_unary(dev, c, o, width);
}

extern "C" int dt__cuda_unary_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *dx = &c->out[0], *dy = &c->in[0];
    /* AFFINE's derivative needs no second operand: dy stands in for one that is absent */
    const dt_view *const v[3] = { dx, dy, c->nin < 2 || !present(c->in[1]) ? dy : &c->in[1] };
    int                  fn = c->u.ew.fn;
    ew_ops<3>            o;
    if (fn < 0 || fn >= DT_U_COUNT) return dt_fail(DT_ERR_ARG, "unary_bwd: there is no function %d", fn);
    if (numel(*dx) == 0) return 0;
    if (is_int(dx->dtype) && is_int(dy->dtype) && is_int(v[2]->dtype)) return ew_no_ints("unary_bwd");
    if (fn == DT_U_POW && c->u.ew.a == 2) fn = EW_SQUARE;
    int width = ew_begin(o, v, c, fn < DT_U_COUNT ? ew_most(ew_unary_rows[fn].grad_cost, true) : 8);
    o.fn = fn;
    return ew_run_binary<true>(dev, c, o, width);
}

extern "C" int dt__cuda_binary(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *z = &c->out[0], *const v[3] = { z, &c->in[0], &c->in[1] };
    int            fn = c->u.ew.fn;
    ew_ops<3>      o;
    if (fn < 0 || fn >= DT_B_COUNT) return dt_fail(DT_ERR_ARG, "binary: there is no function %d", fn);
    if (numel(*z) == 0) return 0;
    if (is_int(z->dtype) && is_int(v[1]->dtype) && is_int(v[2]->dtype))
        return ew_binary_rows[fn].ints ? ew_run_ints(dev, c, v[1], v[2], EWI_BINARY + fn) : ew_no_ints("binary");
    int width = ew_begin(o, v, c, ew_most(ew_binary_rows[fn].cost, false));
    return ew_run_binary<false>(dev, c, o, width);
}

extern "C" int dt__cuda_where(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *z = &c->out[0], *cond = &c->in[0], *x = &c->in[1], *y = &c->in[2], *const v[4] = { z, cond, x, y };
    if (numel(*z) == 0) return 0;
    if (!is_int(cond->dtype)) return dt_fail(DT_ERR_DTYPE, "where: the condition must be u8, i32 or i64");
    if (x->dtype != z->dtype || y->dtype != z->dtype)
        return dt_fail(DT_ERR_DTYPE, "where: the two values and the result must have one dtype; cast them");
    cudaStream_t s = stream_of(dev, c);
    int          size = elem_size(z->dtype);
    if (!(c->acc & 1) && cond->dtype == DT_U8) {
        ew_ops<4> o;
        int       width = ew_begin(o, v, c, 8);
        unsigned  pieces = blocks_for(o.pieces);
        if (width == 4) ew_where_wide_kernel<uint32_t, 4><<<pieces, BLOCK, 0, s>>>(o);
        else if (width == 8 && size == 2) ew_where_wide_kernel<uint16_t, 8><<<pieces, BLOCK, 0, s>>>(o);
        else if (width == 8) ew_where_wide_kernel<uint8_t, 8><<<pieces, BLOCK, 0, s>>>(o);
        if (width > 1) return launched(c);
    }
    walk<4>  w = ew_walk(v);
    unsigned blocks = blocks_for(w.total);
    if (c->acc & 1) {
        ew_where_add_kernel<<<blocks, BLOCK, 0, s>>>(out_of<any_type>(c, 0), in_of<any_type>(c, 0),
                                                     in_of<any_type>(c, 1), in_of<any_type>(c, 2), w);
        return launched(c);
    }
    with_bits<8>(size, [&](auto u) {
        using U = decltype(u);
        ew_where_kernel<U><<<blocks, BLOCK, 0, s>>>((U *)z->data, in_of<any_type>(c, 0), (const U *)x->data,
                                                    (const U *)y->data, w);
    });
    return launched(c);
}

extern "C" int dt__cuda_epilogue(dt_device *dev, void *stream, const dt_view *y, const dt_view *bias, int dim, int act)
{
    using namespace dtk;
    dt_view along = *y; /* the bias, broadcast to the shape of y */
    bool    has = bias && bias->ndim >= 0;
    if (y->dtype > DT_BF16)
        return dt_fail(DT_ERR_DTYPE, "cuda: the epilogue does not take %s", dt_dtype_name((dt_dtype)y->dtype));
    int     fn = act == DT_ACT_NONE ? (int)EW_SAME : act == DT_ACT_RELU ? (int)DT_U_RELU
               : act == DT_ACT_SIGMOID ? (int)DT_U_SIGMOID : act == DT_ACT_TANH ? (int)DT_U_TANH : -1;
    if (fn < 0) return dt_fail(DT_ERR_ARG, "cuda: the epilogue has no activation %d; it has those of dt_act", act);
    if (numel(*y) == 0 || (!has && act == DT_ACT_NONE)) return 0;
    for (int d = 0; d < y->ndim; d++) along.stride[d] = has && d == dim ? bias->stride[0] : 0;
    along.data = has ? bias->data : NULL;
    along.dtype = has ? bias->dtype : y->dtype;
    const dt_view *const v[2] = { y, &along };
    ew_ops<2>            o;
    int                  width = ew_begin(o, v, NULL, 8);
    cudaStream_t         s = (cudaStream_t)dt__cuda_stream(dev, stream);
    unsigned             blocks = blocks_for(o.pieces);
    o.fn = fn;
    with_width<8, 4, 1>(width, [&](auto w) { ew_epilogue_kernel<w.value><<<blocks, BLOCK, 0, s>>>(o); });
    return dt__cuda_check((int)cudaGetLastError(), "epilogue");
}
