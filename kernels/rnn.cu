/* rnn.cu: one time step of a recurrent layer (RNN, LSTM, GRU): what is between the matrix products. With n units and gates
   (b, g n) that hold the sums of the products and biases:
       tanh, relu  h = f(x)
       LSTM        i, f, o = sigmoid, q = tanh; c = f c' + i q, h = o tanh c
       GRU         r, z = sigmoid(x + u), m = tanh(x + r u), h = m + z (h' - m); u: the recurrent sums
   The gradient has the values of the gates, not the sums. A row whose sequence has ended passes h and c on.

   A thread computes one unit of one row. Blocks of 256 threads, grid-stride loop; neighbouring threads read neighbouring
   elements.

   Roofline, LSTM in f32: 10 elements read or written and about 60 FLOPs for each unit: bound by memory, and for the sizes of one
   time step by the launch. */
#include "vector.cuh"

namespace dtk {
namespace rnn {

struct rows { /* an operand (b, ...), any stride between rows */
    operand<mixed> x;
    int64_t        step;
    __device__ __forceinline__ bool  is() const { return x.p != nullptr; }
    __device__ __forceinline__ float at(int64_t row, int64_t i) const { return x.at(row * step + i); }
    __device__ __forceinline__ void  put(int64_t row, int64_t i, float v) const
    {
        if (x.p != nullptr) x.put(row * step + i, v);
    }
};
struct args {
    int64_t        b, n, t, lengths_b;
    int            kind;
    const int64_t *lengths; /* NULL: none */
    __device__ __forceinline__ bool over(int64_t row) const { return lengths != nullptr && t >= lengths[row * lengths_b]; }
};
__device__ __forceinline__ float sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

static __global__ void __launch_bounds__(BLOCK)
forward(args a, rows h, rows c, rows y, rows s, rows hn, rows x, rows r, rows h0, rows c0)
{
    int64_t n = a.n;
    for (int64_t i = grid_first(); i < a.b * n; i += grid_step()) {
        int64_t row = divide(i, n), j = i - row * n;
        if (a.over(row)) {
            int g = a.kind == DT_CELL_LSTM ? 4 : a.kind == DT_CELL_GRU ? 3 : 1;
            h.put(row, j, h0.at(row, j));
            if (c.is()) c.put(row, j, c0.at(row, j));
            y.put(row, j, 0.0f);
            hn.put(row, j, 0.0f);
            for (int k = 0; k < g; k++) s.put(row, k * n + j, 0.0f);
            continue;
        }
        float v = x.at(row, j), out;
        if (a.kind == DT_CELL_LSTM) {
            float in = sigmoid(v), f = sigmoid(x.at(row, n + j)), q = tanhf(x.at(row, 2 * n + j)), o = sigmoid(x.at(row, 3 * n + j));
            float cc = fmaf(f, c0.at(row, j), in * q);
            out = o * tanhf(cc);
            s.put(row, j, in);
            s.put(row, n + j, f);
            s.put(row, 2 * n + j, q);
            s.put(row, 3 * n + j, o);
            c.put(row, j, cc);
        } else if (a.kind == DT_CELL_GRU) {
            float g = sigmoid(v + r.at(row, j)), z = sigmoid(x.at(row, n + j) + r.at(row, n + j)), u = r.at(row, 2 * n + j);
            float m = tanhf(fmaf(g, u, x.at(row, 2 * n + j)));
            out = fmaf(z, h0.at(row, j) - m, m);
            s.put(row, j, g);
            s.put(row, n + j, z);
            s.put(row, 2 * n + j, m);
            hn.put(row, j, u);
        } else {
            out = a.kind == DT_CELL_TANH ? tanhf(v) : v > 0 || v != v ? v : 0.0f;
            s.put(row, j, out);
        }
        h.put(row, j, out);
        y.put(row, j, out);
    }
}
static __global__ void __launch_bounds__(BLOCK)
backward(args a, rows d, rows dr, rows dh, rows dc, rows dy, rows dh0, rows dc0, rows s, rows p, rows before)
{
    int64_t n = a.n;
    for (int64_t i = grid_first(); i < a.b * n; i += grid_step()) {
        int64_t row = divide(i, n), j = i - row * n;
        float   g = dh0.is() ? dh0.at(row, j) : 0.0f, gc = dc0.is() ? dc0.at(row, j) : 0.0f;
        if (a.over(row)) {
            int gates = a.kind == DT_CELL_LSTM ? 4 : a.kind == DT_CELL_GRU ? 3 : 1;
            for (int k = 0; k < gates; k++) {
                d.put(row, k * n + j, 0.0f);
                dr.put(row, k * n + j, 0.0f);
            }
            dh.put(row, j, g);
            dc.put(row, j, gc);
            continue;
        }
        if (dy.is()) g += dy.at(row, j);
        if (a.kind == DT_CELL_LSTM) {
            float in = s.at(row, j), f = s.at(row, n + j), q = s.at(row, 2 * n + j), o = s.at(row, 3 * n + j);
            float t = tanhf(p.at(row, j));
            gc += g * o * (1.0f - t * t);
            d.put(row, j, gc * q * in * (1.0f - in));
            d.put(row, n + j, gc * before.at(row, j) * f * (1.0f - f));
            d.put(row, 2 * n + j, gc * in * (1.0f - q * q));
            d.put(row, 3 * n + j, g * t * o * (1.0f - o));
            dc.put(row, j, gc * f);
            dh.put(row, j, 0.0f);
        } else if (a.kind == DT_CELL_GRU) {
            float r = s.at(row, j), z = s.at(row, n + j), m = s.at(row, 2 * n + j);
            float dm = g * (1.0f - z) * (1.0f - m * m), da = dm * p.at(row, j) * r * (1.0f - r);
            float dz = g * (before.at(row, j) - m) * z * (1.0f - z);
            d.put(row, j, da);
            d.put(row, n + j, dz);
            d.put(row, 2 * n + j, dm);
            dr.put(row, j, da);
            dr.put(row, n + j, dz);
            dr.put(row, 2 * n + j, dm * r);
            dh.put(row, j, g * z);
        } else {
            float v = s.at(row, j);
            d.put(row, j, a.kind == DT_CELL_TANH ? g * (1.0f - v * v) : v > 0 ? g : 0.0f);
            dh.put(row, j, 0.0f);
        }
    }
}

static rows in_rows(const dt_call *c, int i)
{
    if (i >= c->nin || !present(c->in[i])) return rows{ { nullptr, 0, DT_F32 }, 0 };
    return rows{ in_of<mixed>(c, i), c->in[i].stride[0] };
}
static rows out_rows(const dt_call *c, int i)
{
    if (i >= c->nout || !present(c->out[i])) return rows{ { nullptr, 0, DT_F32 }, 0 };
    return rows{ out_of<mixed>(c, i), c->out[i].stride[0] };
}
static args args_of(const dt_call *c, const dt_view &gates, int lengths)
{
    int  kind = c->u.cell.kind, g = kind == DT_CELL_LSTM ? 4 : kind == DT_CELL_GRU ? 3 : 1;
    args a = { gates.shape[0], gates.shape[1] / g, c->u.cell.t, 0, kind, nullptr };
    if (lengths < c->nin && present(c->in[lengths])) {
        a.lengths = (const int64_t *)c->in[lengths].data;
        a.lengths_b = c->in[lengths].stride[0];
    }
    return a;
}

} /* namespace rnn */
} /* namespace dtk */

extern "C" int dt__cuda_rnn_cell(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    rnn::args a = rnn::args_of(c, c->in[0], 4);
    int       status = all_floats(c, 0xf, 0x1f);
    if (status || a.b * a.n == 0) return status;
    rnn::forward<<<blocks_for(a.b * a.n), BLOCK, 0, stream_of(dev, c)>>>(
        a, rnn::out_rows(c, 0), rnn::out_rows(c, 1), rnn::out_rows(c, 2), rnn::out_rows(c, 3), rnn::out_rows(c, 4),
        rnn::in_rows(c, 0), rnn::in_rows(c, 1), rnn::in_rows(c, 2), rnn::in_rows(c, 3));
    return launched(c);
}
extern "C" int dt__cuda_rnn_cell_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    rnn::args a = rnn::args_of(c, c->out[0], 6);
    int       status = all_floats(c, 0x3f, 0xf);
    if (status || a.b * a.n == 0) return status;
    rnn::backward<<<blocks_for(a.b * a.n), BLOCK, 0, stream_of(dev, c)>>>(
        a, rnn::out_rows(c, 0), rnn::out_rows(c, 1), rnn::out_rows(c, 2), rnn::out_rows(c, 3), rnn::in_rows(c, 0),
        rnn::in_rows(c, 1), rnn::in_rows(c, 2), rnn::in_rows(c, 3), rnn::in_rows(c, 4), rnn::in_rows(c, 5));
    return launched(c);
}
