/* softmax.cu: softmax and log_softmax over the middle of (outer, dim, inner), and their gradients.

   y_k = exp(x_k - m)/s, or (x_k - m) - log s;  m = max x, s = sum exp(x_k - m)
   dx_k = y_k (dy_k - sum_j dy_j y_j), or dy_k - exp(y_k) sum_j dy_j for the logarithm
   Computed in f32. A row with NaN or +inf, or of -inf only, is all NaN.

   Launch shapes, blocks of 256 threads:
     inner = 1, short rows   a warp for a row, the row stays in registers: every element is read once and written once
     inner = 1, long rows    a block for a row: one pass for m and s (or the sum), a second, from L2, that writes
     inner > 1               a thread, or 8 that are merged in shared memory, for a column; neighbours along inner
   Accesses of 4 elements (16 or 8 bytes) along rows if 4 divides dim and the addresses are aligned; a row is then long
   from 513 elements on, otherwise from 257.

   Roofline: 2 elements moved per element (8 bytes in f32, 4 in bf16), about 20 FLOPs with the exponential; the gradient
   3 elements (12 and 6 bytes), 4 FLOPs, for the logarithm about 15: memory. In the shapes of two passes the inputs are
   fetched twice, the second time from L2 if rows in flight fit there: 4 blocks on each of 108 multiprocessors fill the
   40 MB of an A100 with rows of 23,000 f32, beyond which x counts twice (12 bytes; the gradient 20). */
#include "vector.cuh"

namespace dtk {

struct sm_args {
    operand<mixed> x, y; /* backward: dy and y */
    operand<mixed> out;
    int64_t        outer, dim, inner;
    int            lanes;
    bool           logs;
};

/* The term of an element in the sum of the backward, and the result. */
__device__ __forceinline__ float sm_term(const sm_args &a, float dy, float y) { return a.logs ? dy : dy * y; }
__device__ __forceinline__ float sm_grad(const sm_args &a, float dy, float y, float sum)
{
    return a.logs ? fmaf(-expf(y), sum, dy) : y * (dy - sum);
}
__device__ __forceinline__ float sm_value(const sm_args &a, float x, const lse_state &t, float log_s)
{
    return a.logs ? (x - t.m) - log_s : expf(x - t.m) / t.s;
}

/* dim <= 32*V*G: lane l holds V elements from each (32g + l)V on */
template <int V, int G, bool BWD>
static __global__ void __launch_bounds__(BLOCK, 2) sm_warp_kernel(const __grid_constant__ sm_args a)
{
    int lane = (int)threadIdx.x % WARP;
    for (int64_t row = grid_first() / WARP; row < a.outer; row += grid_step() / WARP) {
        float x[G][V], y[BWD ? G : 1][V], top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int g = 0; g < G; g++) {
            int64_t col = (g * WARP + lane) * V;
            a.x.load(row * a.dim + col, x[g], a.dim - col, BWD ? 0.0f : -INFINITY);
            if constexpr (BWD) a.y.load(row * a.dim + col, y[g], a.dim - col);
        }
        if constexpr (BWD) {
#pragma unroll
            for (int g = 0; g < G; g++)
#pragma unroll
                for (int j = 0; j < V; j++)
                    if ((g * WARP + lane) * V + j < a.dim) sum += sm_term(a, x[g][j], y[g][j]);
            sum = warp_reduce(sum, add_f());
#pragma unroll
            for (int g = 0; g < G; g++)
#pragma unroll
                for (int j = 0; j < V; j++) x[g][j] = sm_grad(a, x[g][j], y[g][j], sum);
        } else {
#pragma unroll
            for (int g = 0; g < G; g++)
#pragma unroll
                for (int j = 0; j < V; j++) top = fmaxf(top, x[g][j]);
            top = warp_reduce(top, [](float p, float q) { return fmaxf(p, q); });
#pragma unroll
            for (int g = 0; g < G; g++)
#pragma unroll
                for (int j = 0; j < V; j++) {
                    float d = x[g][j] - top, e = expf(d);
                    if ((g * WARP + lane) * V + j < a.dim) sum += e;
                    x[g][j] = a.logs ? d : e;
                }
            sum = warp_reduce(sum, add_f());
            if (a.logs) sum = logf(sum);
#pragma unroll
            for (int g = 0; g < G; g++)
#pragma unroll
                for (int j = 0; j < V; j++) x[g][j] = a.logs ? x[g][j] - sum : x[g][j] / sum;
        }
#pragma unroll
        for (int g = 0; g < G; g++) {
            int64_t col = (g * WARP + lane) * V;
            a.out.store(row * a.dim + col, x[g], a.dim - col);
        }
    }
}

template <int V, bool BWD>
static __global__ void __launch_bounds__(BLOCK, 4) sm_block_kernel(const __grid_constant__ sm_args a)
{
    for (int64_t row = blockIdx.x; row < a.outer; row += gridDim.x) {
        int64_t   base = row * a.dim;
        lse_state t = lse_state::none();
        float     sum = 0.0f, log_s = 0.0f;
        for (int64_t col = threadIdx.x * V; col < a.dim; col += BLOCK * V) {
            float x[V], y[V];
            a.x.load(base + col, x);
            if constexpr (BWD) {
                a.y.load(base + col, y);
#pragma unroll
                for (int j = 0; j < V; j++) sum += sm_term(a, x[j], y[j]);
            } else {
                t.add(x);
            }
        }
        if constexpr (BWD) {
            sum = block_reduce(sum, add_f(), 0.0f);
        } else {
            t.over_block();
            log_s = logf(t.s);
        }
        for (int64_t col = threadIdx.x * V; col < a.dim; col += BLOCK * V) {
            float x[V], y[V];
            a.x.load(base + col, x);
            if constexpr (BWD) a.y.load(base + col, y);
#pragma unroll
            for (int j = 0; j < V; j++) {
                if constexpr (BWD) x[j] = sm_grad(a, x[j], y[j], sum);
                else x[j] = sm_value(a, x[j], t, log_s);
            }
            a.out.store(base + col, x);
        }
    }
}

/* Threads (row, col): a.lanes of them for a column, columns next to each other along inner. */
template <bool BWD> static __global__ void __launch_bounds__(BLOCK, 4) sm_cols_kernel(const __grid_constant__ sm_args a)
{
    __shared__ float tops[BLOCK], sums[BLOCK]; /* apart: pairs would be read with two threads in each bank */
    int              cols = BLOCK / a.lanes, col = (int)threadIdx.x % cols, row = (int)threadIdx.x / cols;
    for (int64_t first = blockIdx.x * (int64_t)cols; first < a.outer * a.inner; first += gridDim.x * (int64_t)cols) {
        int64_t   k = first + col, base = k / a.inner * a.dim * a.inner + k % a.inner;
        int64_t   dim = k < a.outer * a.inner ? a.dim : 0;
        lse_state t = lse_state::none();
        float     sum = 0.0f, log_s = 0.0f;
        for (int64_t d = row; d < dim; d += a.lanes) {
            float x[1] = { a.x.at(base + d * a.inner) };
            if constexpr (BWD) sum += sm_term(a, x[0], a.y.at(base + d * a.inner));
            else t.add(x);
        }
        if (a.lanes > 1) {
            sums[threadIdx.x] = BWD ? sum : t.s;
            if constexpr (!BWD) tops[threadIdx.x] = t.m;
            __syncthreads();
            for (int r = 0; r < a.lanes; r++) { /* the same order in every thread */
                if constexpr (BWD) sum = r ? sum + sums[r * cols + col] : sums[col];
                else if (r) t.merge({ tops[r * cols + col], sums[r * cols + col] });
                else t = { tops[col], sums[col] };
            }
            __syncthreads();
        }
        if constexpr (!BWD) log_s = logf(t.s);
        for (int64_t d = row; d < dim; d += a.lanes) {
            int64_t at = base + d * a.inner;
            float   x = a.x.at(at);
            if constexpr (BWD) x = sm_grad(a, x, a.y.at(at), sum);
            else x = sm_value(a, x, t, log_s);
            a.out.put(at, x);
        }
    }
}

template <bool BWD> static int sm_run(dt_device *dev, const dt_call *c)
{
    const dt_view *x = &c->in[0], *y = &c->in[BWD ? 1 : 0], *out = &c->out[0], *const all[3] = { out, x, y };
    cudaStream_t   s = stream_of(dev, c);
    int            status = all_floats(c, BWD ? 3 : 1, 1);
    sm_args        a = { operand_of<mixed>(x), operand_of<mixed>(y), operand_of<mixed>(out, BWD && (c->acc & 1)),
                         out->shape[0], out->shape[1], out->shape[2], 1, c->u.softmax.log != 0 };
    if (status || a.outer * a.dim * a.inner == 0) return status;
    if (a.inner > 1) {
        a.lanes = a.dim >= 32 ? 8 : 1;
        sm_cols_kernel<BWD><<<blocks_for(a.outer * a.inner, BLOCK / a.lanes), BLOCK, 0, s>>>(a);
        return launched(c);
    }
    bool     wide = a.dim % 4 == 0 && dense_width(all) > 1;
    unsigned blocks = blocks_for(a.outer, BLOCK / WARP);
    if (a.dim > (wide ? 512 : 256)) {
        with_width<4, 1>(wide ? 4 : 1, [&](auto w) {
            sm_block_kernel<w.value, BWD><<<blocks_for(a.outer, 1), BLOCK, 0, s>>>(a);
        });
    } else if (wide) {
        if (a.dim <= 128) sm_warp_kernel<4, 1, BWD><<<blocks, BLOCK, 0, s>>>(a);
        else sm_warp_kernel<4, 4, BWD><<<blocks, BLOCK, 0, s>>>(a);
    } else {
        if (a.dim <= 32) sm_warp_kernel<1, 1, BWD><<<blocks, BLOCK, 0, s>>>(a);
        else sm_warp_kernel<1, 8, BWD><<<blocks, BLOCK, 0, s>>>(a);
    }
    return launched(c);
}

} /* namespace dtk */

extern "C" int dt__cuda_softmax(dt_device *dev, const dt_call *c) { return dtk::sm_run<false>(dev, c); }
extern "C" int dt__cuda_softmax_bwd(dt_device *dev, const dt_call *c) { return dtk::sm_run<true>(dev, c); }
