/* resize.cu: images (n, h, w) to (n, oh, ow), nearest or bilinear, and its gradient.

   Output pixel o reads input pixel floor(o*scale), or with linear a weighted mean of two neighbours, per dimension;
   positions are computed in f32, as PyTorch does. In the gradient a thread takes a pixel of dx and adds up the pixels of dy
   that read it: positions grow with o, so these are neighbours, and a slightly wider range, from the inverse of the
   position, is searched for them. No atomics: the same bits in every run.

   Launch shapes: a thread for a pixel, blocks of 256. Roofline: y once, the neighbours of x from cache; 10 FLOPs per pixel
   of y. Memory-bound. */
#include "vector.cuh"

namespace dtk {

struct rs_dim {
    int64_t n, out;
    float   scale;
    bool    linear, align;
};
struct rs_args {
    operand<mixed> x, y; /* of the gradient: dx, dy */
    int64_t        images;
    rs_dim         rows, cols;
};
struct rs_tap { /* x[at] + part*(x[next] - x[at]) */
    int64_t at, next;
    float   part;
};
__device__ __forceinline__ rs_tap rs_tap_of(const rs_dim &d, int64_t o)
{
    float f = d.linear && !d.align ? fmaxf(__fadd_rn(__fmul_rn((float)o + 0.5f, d.scale), -0.5f), 0.0f) : __fmul_rn((float)o, d.scale);
    rs_tap t;
    t.at = f >= (float)d.n ? d.n - 1 : (int64_t)f;
    if (t.at > d.n - 1) t.at = d.n - 1;
    t.next = t.at + (d.linear && t.at < d.n - 1 ? 1 : 0);
    t.part = d.linear ? fminf(f - (float)t.at, 1.0f) : 0.0f;
    return t;
}
/* The weight of input i in an output pixel. */
__device__ __forceinline__ float rs_weight(const rs_tap &t, int64_t i)
{
    return (t.at == i ? 1.0f - t.part : 0.0f) + (t.next == i && t.next != t.at ? t.part : 0.0f) +
           (t.next == t.at && t.at == i ? t.part : 0.0f);
}
/* The output pixels that may read input i: [from, to) */
__device__ __forceinline__ void rs_readers(const rs_dim &d, int64_t i, int64_t &from, int64_t &to)
{
    from = 0, to = d.out;
    if (!(d.scale > 0.0f)) return;
    double  s = (double)d.scale, shift = d.linear && !d.align ? 0.5 : 0.0;
    double  lo = ((double)(i - 1) + shift) / s - shift - 2, hi = ((double)(i + 1) + shift) / s - shift + 2;
    if (lo > 0) from = lo < (double)d.out ? (int64_t)lo : d.out;
    if (i < d.n - 1 && hi < (double)d.out) to = hi > 0 ? (int64_t)hi + 1 : 0;
    if (to > d.out) to = d.out;
}
static __global__ void __launch_bounds__(BLOCK, 4) rs_kernel(const __grid_constant__ rs_args a)
{
    int64_t area = a.rows.out * a.cols.out;
    for (int64_t i = grid_first(); i < a.images * area; i += grid_step()) {
        int64_t k = i / area, base = k * a.rows.n * a.cols.n;
        rs_tap  r = rs_tap_of(a.rows, (i - k * area) / a.cols.out), c = rs_tap_of(a.cols, i % a.cols.out);
        float   v = a.x.at(base + r.at * a.cols.n + c.at);
        if (a.rows.linear) {
            float q = c.part, o = 1.0f - q, t = r.part, u = 1.0f - t;
            float v1 = a.x.at(base + r.at * a.cols.n + c.next), w0 = a.x.at(base + r.next * a.cols.n + c.at);
            float w1 = a.x.at(base + r.next * a.cols.n + c.next);
            v = u * (o * v + q * v1) + t * (o * w0 + q * w1);
        }
        a.y.put(i, v);
    }
}
static __global__ void __launch_bounds__(BLOCK, 4) rs_bwd_kernel(const __grid_constant__ rs_args a)
{
    int64_t area = a.rows.n * a.cols.n;
    for (int64_t i = grid_first(); i < a.images * area; i += grid_step()) {
        int64_t k = i / area, row = (i - k * area) / a.cols.n, col = i % a.cols.n, r0, r1, c0, c1;
        float   sum = 0.0f;
        rs_readers(a.rows, row, r0, r1);
        rs_readers(a.cols, col, c0, c1);
        for (int64_t r = r0; r < r1; r++) {
            float w = rs_weight(rs_tap_of(a.rows, r), row);
            if (w == 0.0f) continue;
            for (int64_t c = c0; c < c1; c++) {
                float u = rs_weight(rs_tap_of(a.cols, c), col);
                if (u != 0.0f) sum += w * u * a.y.at((k * a.rows.out + r) * a.cols.out + c);
            }
        }
        a.x.put(i, sum);
    }
}
static rs_args rs_of(const dt_call *c, const dt_view *x, const dt_view *y)
{
    rs_args a;
    bool    linear = c->u.resize.linear != 0, align = c->u.resize.align != 0;
    a.images = x->shape[0];
    a.rows = { x->shape[1], y->shape[1], (float)c->u.resize.scale[0], linear, align };
    a.cols = { x->shape[2], y->shape[2], (float)c->u.resize.scale[1], linear, align };
    return a;
}

} /* namespace dtk */

extern "C" int dt__cuda_resize(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 1);
    if (status || numel(c->out[0]) == 0) return status;
    rs_args a = rs_of(c, &c->in[0], &c->out[0]);
    a.x = in_of<mixed>(c, 0);
    a.y = out_of<mixed>(c, 0);
    rs_kernel<<<blocks_for(numel(c->out[0])), BLOCK, 0, stream_of(dev, c)>>>(a);
    return launched(c);
}

extern "C" int dt__cuda_resize_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    int status = all_floats(c, 1, 1);
    if (status || numel(c->out[0]) == 0) return status;
    rs_args a = rs_of(c, &c->out[0], &c->in[0]);
    a.x = out_of<mixed>(c, 0);
    a.y = in_of<mixed>(c, 0);
    rs_bwd_kernel<<<blocks_for(numel(c->out[0])), BLOCK, 0, stream_of(dev, c)>>>(a);
    return launched(c);
}
