/* optim.cu: updates of the optimisers, norms of parameters and gradients, unscaling that detects infinities and NaNs.

   DT_KERNELS in dt.h has the formulas. Constants are rounded to f32 on the host, products that feed sums are fused, all
   other operations are rounded one by one: the same arithmetic as the CPU's for each element. p, g and the copy are each
   f32, f16 or bf16; states are f32; everything is computed in f32.

   Launch shape: a thread for 4 elements at a time (16 bytes of f32, 8 of halves), 256 a block, striding by the grid;
   single elements if a base address is not aligned. LARS and LAMB: a first kernel computes the ratio of each
   segment (f64), then each thread finds its segment by bisection.
   Norms: blocks sum pieces of 8192 elements in f64, one partial sum for each piece and segment that overlap, at
   part[piece + segment]: pieces and segments are both in order, so no two share a place. Then a warp for each segment
   adds its pieces. The only atomic is the flag of unscale, whose value does not depend on the order.

   Roofline, bytes for each element with all f32 (halves of g and p save 2 each, a copy in halves costs 2):
       sgd 12, with momentum 20 · adam 28, amsgrad 36 · rmsprop 20, centred 28, with momentum 36 · adagrad 20 · lion 20
       lamb 28 + lamb_apply 12 + norms 4 + 4 · norms 4 · unscale 8, in place or not
   5 to 15 FLOPs an element, one or two of them division or square root: bound by memory. */
#include "vector.cuh"

namespace dtk {
namespace optim {

/* Updates of one element: p (for lamb: u) and the states change. has: bit mask of the states that are present. */
struct cell {
    float p, s[3];
};
struct sgd {
    float lr, wd, mom, keep;
    int   decay, first, nesterov, buf;
    __device__ __forceinline__ void step(cell &e, float g, float ratio) const
    {
        float d = decay ? fmaf(wd, e.p, g) : g;
        d *= ratio;
        if (buf) {
            float b = first ? d : fmaf(keep, d, __fmul_rn(mom, e.s[0]));
            e.s[0] = b;
            d = nesterov ? fmaf(mom, b, d) : b;
        }
        e.p = fmaf(lr, d, e.p);
    }
};
/* m + t (g - m), computed from the nearer end as PyTorch's lerp does */
__device__ __forceinline__ float lerp(float m, float g, float t)
{
    return t < 0.5f ? fmaf(t, g - m, m) : fmaf(t - 1.0f, g - m, g);
}
__device__ __forceinline__ float square(float v, float g, float b2, float rest)
{
    return fmaf(rest * g, g, __fmul_rn(b2, v));
}
struct adam {
    float rate, root, eps, wd, keep, t1, b2, rest; /* -lr/c1, 1/sqrt(c2), .., 1 - lr wd, 1 - b1, b2, 1 - b2 */
    int   coupled, amsgrad;
    __device__ __forceinline__ void step(cell &e, float g, float) const
    {
        if (coupled) g = fmaf(wd, e.p, g);
        float m = lerp(e.s[0], g, t1), v = square(e.s[1], g, b2, rest);
        e.s[0] = m;
        e.s[1] = v;
        if (amsgrad) e.s[2] = v = v <= e.s[2] ? e.s[2] : v; /* NaN stays */
        e.p = __fmul_rn(e.p, keep) + rate * m / fmaf(sqrtf(v), root, eps);
    }
};
struct rmsprop {
    float lr, wd, eps, mom, b2, rest;
    int   decay, centred, buf;
    __device__ __forceinline__ void step(cell &e, float g, float) const
    {
        if (decay) g = fmaf(wd, e.p, g);
        float s = square(e.s[0], g, b2, rest);
        e.s[0] = s;
        if (centred) {
            float a = lerp(e.s[1], g, rest);
            e.s[1] = a;
            s = fmaf(-a, a, s);
            s = s < 0 ? 0.0f : s; /* rounding may give a negative number */
        }
        s = sqrtf(s) + eps;
        if (buf) {
            e.s[2] = fmaf(mom, e.s[2], g / s);
            e.p = fmaf(lr, e.s[2], e.p);
        } else {
            e.p += lr * g / s;
        }
    }
};
struct adagrad {
    float lr, wd, eps;
    int   decay;
    __device__ __forceinline__ void step(cell &e, float g, float) const
    {
        if (decay) g = fmaf(wd, e.p, g);
        e.s[0] = fmaf(g, g, e.s[0]);
        e.p += lr * g / (sqrtf(e.s[0]) + eps);
    }
};
struct lion {
    float lr, keep, t1, t2;
    __device__ __forceinline__ void step(cell &e, float g, float) const
    {
        float u = lerp(e.s[0], g, t1);
        u = u > 0 ? lr : u < 0 ? -lr : u * 0.0f; /* NaN stays */
        e.p = __fmul_rn(e.p, keep) - u;
        e.s[0] = lerp(e.s[0], g, t2);
    }
};
struct lamb { /* p in, u out */
    float scale, root, eps, wd, t1, b2, rest;
    int   decay;
    __device__ __forceinline__ void step(cell &e, float g, float) const
    {
        float m = lerp(e.s[0], g, t1), v = square(e.s[1], g, b2, rest);
        e.s[0] = m;
        e.s[1] = v;
        float u = scale * m / fmaf(sqrtf(v), root, eps);
        e.p = decay ? fmaf(wd, e.p, u) : u;
    }
};
struct lamb_apply { /* g is u; the ratio holds -lr */
    __device__ __forceinline__ void step(cell &e, float g, float ratio) const { e.p = fmaf(ratio, g, e.p); }
};

struct rows {
    int64_t        n;
    operand<mixed> to, p, g, copy; /* p is read, 'to' written; most often the same */
    float         *s[3];           /* states; NULL: absent */
    const float   *gscale;         /* NULL: 1 */
    float          sign, ratio;    /* sign of g; ratio if there are no segments */
    const float   *ratios;         /* by segment; NULL: there are no segments */
    const int64_t *seg;
    int64_t        nseg;
};
/* N elements from i */
template <int N, typename U>
__device__ __forceinline__ void update(const rows &r, const U &u, int64_t i, float gmul, float ratio)
{
    float p[N], g[N], s[3][N];
    r.p.load(i, p);
    r.g.load(i, g);
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (r.s[k]) load_vector(r.s[k] + i, s[k]);
#pragma unroll
    for (int k = 0; k < N; k++) {
        cell e = { p[k], { s[0][k], s[1][k], s[2][k] } };
        u.step(e, __fmul_rn(gmul, g[k]), ratio);
        p[k] = e.p;
        s[0][k] = e.s[0], s[1][k] = e.s[1], s[2][k] = e.s[2];
    }
    r.to.store(i, p);
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (r.s[k]) store_vector(r.s[k] + i, s[k]);
    if (r.copy.p) r.copy.store(i, p);
}
/* the last segment that begins at or before i; -1 if there is no such segment */
__device__ __forceinline__ int64_t segment_of(const int64_t *seg, int64_t nseg, int64_t i)
{
    int64_t lo = -1, hi = nseg;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (seg[mid] <= i) lo = mid;
        else hi = mid;
    }
    return lo;
}
template <int N, bool SEGMENTS, typename U> static __global__ void update_all(rows r, U u)
{
    float gmul = r.gscale ? r.sign * *r.gscale : r.sign;
    for (int64_t i = grid_first() * N; i < r.n; i += grid_step() * N) {
        int left = (int)(r.n - i < N ? r.n - i : N);
        if (!SEGMENTS) {
            if (left == N) update<N>(r, u, i, gmul, r.ratio);
            else
                for (int k = 0; k < left; k++) update<1>(r, u, i + k, gmul, r.ratio);
            continue;
        }
        int64_t s = segment_of(r.seg, r.nseg, i);
        if (left == N && s >= 0 && i + N <= r.seg[s + 1]) {
            update<N>(r, u, i, gmul, r.ratios[s]);
            continue;
        }
        /* the range crosses the end of a segment; elements outside of all segments do not change */
        for (int64_t j = i; j < i + left; j++) {
            while (s + 1 < r.nseg && r.seg[s + 1] <= j) s++;
            if (s >= 0 && j < r.seg[s + 1]) update<1>(r, u, j, gmul, r.ratios[s]);
        }
    }
}
/* LARS: trust |w| / (|g| + wd |w| + eps); LAMB: -lr |w| / |u|; 1 instead where a norm is 0 */
static __global__ void ratios_of(float *ratio, const float *wnorm, const float *unorm, const float *gscale,
                                 int64_t nseg, int lars, double trust, double wd, double eps, double lr)
{
    for (int64_t s = grid_first(); s < nseg; s += grid_step()) {
        double w = (double)wnorm[s], u = (double)unorm[s];
        if (lars && gscale) u *= fabs((double)*gscale);
        float r = w == 0 || u == 0 ? 1.0f : (float)(lars ? trust * w / (u + wd * w + eps) : w / u);
        ratio[s] = lars ? r : (float)(-lr * (double)r);
    }
}

/* The operands of a call: outputs 0 .. nstates are p and the states, 'copy' the output that gets p rounded (-1: absent),
   the inputs p (-1: output 0), gradient and gscale (-1: absent). */
static rows rows_of(const dt_call *c, int nstates, int copy, int p, int grad, int gscale)
{
    rows r;
    r.n = c->out[0].shape[0];
    r.to = out_of<mixed>(c, 0);
    r.to.add = 0;
    r.p = p < 0 ? r.to : in_of<mixed>(c, p);
    r.g = in_of<mixed>(c, grad);
    r.copy = out_of<mixed>(c, copy < 0 ? DT_MAX_OUT : copy);
    r.copy.add = 0;
    for (int k = 0; k < 3; k++) r.s[k] = k < nstates && has_out(c, 1 + k) ? (float *)c->out[1 + k].data : NULL;
    r.gscale = gscale >= 0 && has_in(c, gscale) ? (const float *)c->in[gscale].data : NULL;
    r.sign = c->u.opt.maximize ? -1.0f : 1.0f;
    r.ratio = 1.0f;
    r.ratios = NULL;
    r.seg = NULL;
    r.nseg = 0;
    return r;
}
static bool in_fours(const operand<mixed> &x)
{
    return suits(x.p, x.dtype, 4); /* an absent one, too */
}
template <typename U> static int run(dt_device *dev, const dt_call *c, const rows &r, const U &u)
{
    cudaStream_t s = stream_of(dev, c);
    bool         fours = in_fours(r.to) && in_fours(r.p) && in_fours(r.g) && in_fours(r.copy);
    if (r.n == 0) return 0;
    for (int k = 0; k < 3; k++) fours = fours && aligned_to(r.s[k], 16);
    unsigned grid = blocks_for(fours ? (r.n + 3) / 4 : r.n);
    with_width<4, 1>(fours ? 4 : 1, [&](auto w) { update_all<w.value, false, U><<<grid, BLOCK, 0, s>>>(r, u); });
    return launched(c);
}
/* With segments: inputs norms, norms + 1 and norms + 2 are wnorm, unorm (gnorm) and segments. */
template <typename U> static int run_segments(dt_device *dev, const dt_call *c, rows r, const U &u, int norms)
{
    cudaStream_t s = stream_of(dev, c);
    if (!has_in(c, norms) || !has_in(c, norms + 2)) return run(dev, c, r, u);
    r.seg = (const int64_t *)c->in[norms + 2].data;
    r.nseg = c->in[norms].shape[0];
    if (r.n == 0 || r.nseg == 0) return 0;
    float *ratio = (float *)dt__cuda_scratch(dev, c->stream, (size_t)r.nseg * sizeof(float));
    if (!ratio) return DT_ERR_MEMORY;
    r.ratios = ratio;
    bool fours = in_fours(r.to) && in_fours(r.p) && in_fours(r.g) && in_fours(r.copy) && aligned_to(r.s[0], 16);
    ratios_of<<<blocks_for(r.nseg), BLOCK, 0, s>>>(ratio, (const float *)c->in[norms].data,
                                                   (const float *)c->in[norms + 1].data, r.gscale, r.nseg,
                                                   c->op == DT_K_sgd, c->u.opt.trust, c->u.opt.wd, c->u.opt.eps,
                                                   c->u.opt.lr);
    unsigned grid = blocks_for(fours ? (r.n + 3) / 4 : r.n);
    with_width<4, 1>(fours ? 4 : 1, [&](auto w) { update_all<w.value, true, U><<<grid, BLOCK, 0, s>>>(r, u); });
    return launched(c);
}

/* ---------------------------------------------------------------------------------------------------- norms */
enum { PIECE = 8192 };

static __global__ void square_pieces(double *part, operand<mixed> x, int64_t n, const int64_t *seg, int64_t nseg,
                                     int vec)
{
    for (int64_t piece = blockIdx.x; piece * PIECE < n; piece += gridDim.x) {
        int64_t begin = piece * PIECE, end = begin + PIECE < n ? begin + PIECE : n;
        int64_t s = seg ? segment_of(seg, nseg, begin) : 0;
        for (s = s < 0 ? 0 : s; s < nseg && (seg ? seg[s] : 0) < end; s++) {
            int64_t a = seg && seg[s] > begin ? seg[s] : begin, b = seg && seg[s + 1] < end ? seg[s + 1] : end;
            if (a >= b) continue;
            double sum = 0;
            for (int64_t i = a / 4 * 4 + (int64_t)threadIdx.x * 4; i < b; i += BLOCK * 4) {
                float v[4];
                if (vec) {
                    x.load(i, v, n - i);
                } else {
#pragma unroll
                    for (int k = 0; k < 4; k++) v[k] = i + k < n ? x.at(i + k) : 0.0f;
                }
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (i + k >= a && i + k < b) sum = fma((double)v[k], (double)v[k], sum);
            }
            sum = block_reduce(sum, add_f(), 0.0);
            if (threadIdx.x == 0) part[piece + s] = sum;
        }
    }
}
static __global__ void norms_finish(float *y, const double *part, int64_t n, const int64_t *seg, int64_t nseg)
{
    int64_t lane = threadIdx.x % WARP;
    for (int64_t s = grid_first() / WARP; s < nseg; s += grid_step() / WARP) {
        int64_t a = seg ? seg[s] : 0, b = seg ? seg[s + 1] : n;
        double  sum = 0;
        if (a < b)
            for (int64_t piece = a / PIECE + lane; piece <= (b - 1) / PIECE; piece += WARP) sum += part[piece + s];
        sum = warp_reduce(sum, add_f());
        if (lane == 0) y[s] = (float)sqrt(sum);
    }
}

/* ---------------------------------------------------------------------------------------------------- unscale */
template <int N>
static __global__ void unscale(float *y, float *flag, operand<mixed> x, int64_t n, float a, int add)
{
    bool bad = false;
    for (int64_t i = grid_first() * N; i < n; i += grid_step() * N) {
        float   v[N], t[N];
        int64_t left = N > 1 ? n - i : N;
        x.load(i, v, left);
        operand<float> to = { y, 0 };
        if (y && add) to.load(i, t, left);
#pragma unroll
        for (int k = 0; k < N; k++) {
            bad = bad || (__float_as_uint(v[k]) & 0x7fffffffu) > 0x7f7fffffu;
            v[k] = add && y ? fmaf(a, v[k], t[k]) : a * v[k];
        }
        if (y) to.store(i, v, left);
    }
    if (__any_sync(FULL, bad) && threadIdx.x % WARP == 0) atomicExch((unsigned *)flag, __float_as_uint(1.0f));
}

} /* namespace optim */
} /* namespace dtk */

extern "C" int dt__cuda_sgd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 5);
    if (status) return status;
    optim::rows r = optim::rows_of(c, 1, 2, -1, 0, 1);
    optim::sgd  u = { (float)-c->u.opt.lr, (float)c->u.opt.wd, (float)c->u.opt.b1, (float)(1 - c->u.opt.b2),
                      c->u.opt.wd != 0, c->u.opt.first, c->u.opt.nesterov, has_out(c, 1) };
    return optim::run_segments(dev, c, r, u, 2);
}

extern "C" int dt__cuda_adam(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int    status = all_floats(c, 1, 0x11);
    double lr = c->u.opt.lr, wd = c->u.opt.wd;
    if (status) return status;
    optim::rows r = optim::rows_of(c, 3, 4, -1, 0, 1);
    optim::adam u = { (float)(-lr / c->u.opt.c1), (float)(1 / sqrt(c->u.opt.c2)), (float)c->u.opt.eps, (float)wd,
                      c->u.opt.decoupled ? (float)(1 - lr * wd) : 1.0f, (float)(1 - c->u.opt.b1), (float)c->u.opt.b2,
                      (float)(1 - c->u.opt.b2), wd != 0 && !c->u.opt.decoupled, has_out(c, 3) };
    return optim::run(dev, c, r, u);
}

extern "C" int dt__cuda_rmsprop(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 0x11);
    if (status) return status;
    optim::rows    r = optim::rows_of(c, 3, 4, -1, 0, 1);
    optim::rmsprop u = { (float)-c->u.opt.lr, (float)c->u.opt.wd, (float)c->u.opt.eps, (float)c->u.opt.b1,
                         (float)c->u.opt.b2, (float)(1 - c->u.opt.b2), c->u.opt.wd != 0, has_out(c, 2), has_out(c, 3) };
    return optim::run(dev, c, r, u);
}

extern "C" int dt__cuda_adagrad(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 5);
    if (status) return status;
    optim::rows    r = optim::rows_of(c, 1, 2, -1, 0, 1);
    optim::adagrad u = { (float)-c->u.opt.lr, (float)c->u.opt.wd, (float)c->u.opt.eps, c->u.opt.wd != 0 };
    return optim::run(dev, c, r, u);
}

extern "C" int dt__cuda_lion(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 5);
    if (status) return status;
    optim::rows r = optim::rows_of(c, 1, 2, -1, 0, 1);
    optim::lion u = { (float)c->u.opt.lr, (float)(1 - c->u.opt.lr * c->u.opt.wd), (float)(1 - c->u.opt.b1), (float)(1 - c->u.opt.b2) };
    return optim::run(dev, c, r, u);
}

extern "C" int dt__cuda_lamb(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 3, 1);
    if (status) return status;
    optim::rows r = optim::rows_of(c, 2, -1, 0, 1, 2);
    optim::lamb u = { (float)(1 / c->u.opt.c1), (float)(1 / sqrt(c->u.opt.c2)), (float)c->u.opt.eps,
                      (float)c->u.opt.wd, (float)(1 - c->u.opt.b1), (float)c->u.opt.b2, (float)(1 - c->u.opt.b2),
                      c->u.opt.wd != 0 };
    return optim::run(dev, c, r, u);
}

extern "C" int dt__cuda_lamb_apply(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 3);
    if (status) return status;
    optim::rows r = optim::rows_of(c, 0, 1, -1, 0, -1);
    r.ratio = (float)-c->u.opt.lr;
    return optim::run_segments(dev, c, r, optim::lamb_apply(), 1);
}

extern "C" int dt__cuda_norms(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int64_t        n = c->in[0].shape[0], nseg = c->out[0].shape[0];
    const int64_t *seg = has_in(c, 1) ? (const int64_t *)c->in[1].data : NULL;
    int            status = all_floats(c, 1, 0);
    if (status || nseg == 0) return status;
    int64_t pieces = (n + optim::PIECE - 1) / optim::PIECE;
    double *part = (double *)dt__cuda_scratch(dev, c->stream, (size_t)(pieces + nseg) * sizeof(double));
    if (!part) return DT_ERR_MEMORY;
    cudaStream_t   s = stream_of(dev, c);
    operand<mixed> x = in_of<mixed>(c, 0);
    if (pieces > 0)
        optim::square_pieces<<<blocks_for(pieces, 1), BLOCK, 0, s>>>(part, x, n, seg, nseg,
                                                                               suits(x.p, x.dtype, 4));
    unsigned grid = blocks_for(nseg, BLOCK / WARP);
    optim::norms_finish<<<grid, BLOCK, 0, s>>>((float *)c->out[0].data, part, n, seg, nseg);
    return launched(c);
}

extern "C" int dt__cuda_unscale(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int64_t n = c->in[0].shape[0];
    int     status = all_floats(c, 1, 0), add = (int)(c->acc & 1u);
    if (status || n == 0) return status;
    float         *y = has_out(c, 0) ? (float *)c->out[0].data : NULL, *flag = (float *)c->out[1].data;
    operand<mixed> x = in_of<mixed>(c, 0);
    cudaStream_t   s = stream_of(dev, c);
    bool           fours = suits(x.p, x.dtype, 4) && aligned_to(y, 16);
    unsigned       grid = blocks_for(fours ? (n + 3) / 4 : n);
    with_width<4, 1>(fours ? 4 : 1, [&](auto w) {
        optim::unscale<w.value><<<grid, BLOCK, 0, s>>>(y, flag, x, n, (float)c->u.ew.a, add);
    });
    return launched(c);
}
