/* attention.cu: scaled dot-product attention, o = softmax(scale q k^T) v, and its gradient, in two ways.

   By products, on tensor cores, on devices of capability 7.5 and 8.0 (later ones have twice the f32 lanes, and the kernel below is faster on
   paper): operands of one half type without mask, lengths and window, d a multiple of 8, rows aligned to 16
   bytes, at least 8192 pairs of query and key, and workspace for one head within 256 MiB. cuBLAS computes scores (f32) of some heads
   at a time, a kernel makes weights of them, cuBLAS multiplies these with v. One half would round a weight by more than the result may
   be off, so a weight is the sum of two (the second is what the first lost), and a result the f32 sum of two products. Blocks of 512 rows of a causal head skip
   the blocks of keys that they do not see: 3/4 of the pairs are computed for t = 1024. Backward: scores and do v^T (f32), a kernel
   for p and ds (two halves each), then dv, dk and dq. Memory, 8 bytes a pair forward and 16 backward, is written once and read once,
   ds twice.

   In one kernel, for all else; the scores are never stored in device memory:

   q, o (b, h, t, d), k, v (b, h, s, d), lse (b, h, t). Causal: query i sees the keys j <= i. Forward, over tiles of 64
   keys with the running maximum m and sum l of each query:
       m' = max(m, max_j s_ij), p = exp(s - m'), l = l exp(m - m') + sum p, o = o exp(m - m') + p v; at the end o / l,
       lse = m + log l
   Masks, lengths and windows (hidden) are added to the scores; tiles outside of all windows are skipped.
   Backward, with delta_i = sum_d do o, p = exp(s - lse) once more and ds = scale p (do v^T - delta):
       dv = p^T do, dk = ds^T q, dq = ds k
   in three kernels: delta by rows; dk and dv by tiles of keys, over the queries; dq by tiles of queries, over the keys.
   Each sum is computed by one thread in ascending order, without atomics: the same bits in every run.

   Launch shape: a block of 16 x 16 threads for a tile of 64 rows of the result of one head and at most 128 of its
   columns; a larger d takes more blocks, which each compute the scores again. Everything is built from two products:
   - dot: a tile of 64 x 64 scores; both operands go through shared memory, transposed, 32 of d at a time; a thread holds
     4 x 4 sums and reads two float4 for 16 FMAs: a warp takes 3 cycles of shared memory for 4 of arithmetic.
   - mul: 64 x 64 weights from shared memory times 64 rows of W columns; a thread holds 4 x W/16 sums for each group of
     W columns. W is 32 or 64.
   f16 and bf16 are converted to f32 as they are loaded; tiles that the mask hides entirely are skipped. 34 KiB of shared
   memory; two blocks fit a multiprocessor up to d = 64, one beyond or with masks, lengths or a window.

   Roofline, a head, causal half of it: forward 4 t s d FLOPs, backward 14 t s d (the scores and do v^T twice), in f32
   FMA (A100: 19.5 TFLOP/s; tensor cores are not used). A pair of tiles loads 3 (forward), 6 (dk and dv) or 5 (dq) times
   64 x d elements of e bytes through L1 and L2, 77/e FLOPs a byte and more, and each operand comes from memory about
   once for each head while L2 holds it: bound by arithmetic. */
#include "vector.cuh"

namespace dtk {
namespace attention {

enum { TILE = 64, DEPTH = 32, PITCH = TILE + 4, THREADS = 256 };

struct heads { /* an operand (b, h, rows, d) with unit stride in d */
    operand<mixed> x;
    int64_t        b, h, row; /* strides */
    int            fours;     /* accesses of 4 elements of d are possible: aligned, and 4 divides d */
    int            shared;    /* several heads of q have the same one */
};
struct matrix { /* the part of one head */
    operand<mixed> x; /* begins at its first element */
    int64_t        step, rows, cols;
    int            fours;
};
struct args {
    int64_t heads, h, t, s, d;
    int64_t tiles, groups; /* of the result: tiles of rows, groups of columns; one block for each of them and each head */
    float   scale;
    int     causal;
    int64_t lse_b, lse_h, lse_t; /* strides */
    int64_t offset, window, rep; /* rep: heads of q for each head of k and v */
    operand<any_type> mask;      /* p NULL: none */
    int64_t           mask_b, mask_h, mask_t, mask_s;
    const int64_t    *lengths;   /* NULL: none */
    int64_t           lengths_b;
};
__device__ __forceinline__ matrix head_of(const args &a, const heads &m, int64_t head, int64_t rows)
{
    int64_t b = divide(head, a.h), in_b = head - b * a.h, at = b * m.b + (m.shared ? divide(in_b, a.rep) : in_b) * m.h;
    char   *p = (char *)m.x.p + at * (m.x.dtype == DT_F32 ? 4 : 2);
    return matrix{ { p, m.x.add, m.x.dtype }, m.row, rows, a.d, m.fours };
}
/* how many of n rows or columns remain from 'at' on, at most 64 */
__device__ __forceinline__ int left_of(int64_t n, int64_t at) { return n - at < TILE ? (int)(n - at) : (int)TILE; }
/* 4 elements of a row, 0 outside of it, in one load, for operands with 'fours'. The conversion comes later, so that
   several loads can be in flight. */
struct four {
    uint4 raw; /* 4 floats, or 4 halves in x and y */
    /* at: the same for all threads; off: the thread's */
    __device__ __forceinline__ void load(const matrix &m, int64_t at, int off, bool in)
    {
        bool wide = m.x.dtype == DT_F32;
        raw = make_uint4(0, 0, 0, 0);
        if (in && wide) raw = *(const uint4 *)((const float *)m.x.p + at + off);
        if (in && !wide) {
            uint2 t = *(const uint2 *)((const uint16_t *)m.x.p + at + off);
            raw.x = t.x, raw.y = t.y;
        }
    }
    __device__ __forceinline__ float4 get(int dtype) const
    {
        if (dtype == DT_F32)
            return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                               __uint_as_float(raw.w));
        if (dtype == DT_BF16) /* the upper half of a float */
            return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                               __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
        return make_float4(half_at(raw.x), half_at(raw.x >> 16), half_at(raw.y), half_at(raw.y >> 16));
    }
    static __device__ __forceinline__ float half_at(unsigned bits)
    {
        return __half2float(__ushort_as_half((unsigned short)bits));
    }
};
template <int N>
__device__ __forceinline__ void store_row(const matrix &m, int64_t row, int64_t col, const float (&v)[N])
{
    int64_t at = row * m.step + col;
    if (row >= m.rows) return;
    if (m.fours && col + N <= m.cols) {
        m.x.store(at, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (col + k < m.cols) m.x.put(at + k, v[k]);
}
/* to[DEPTH][PITCH] := 64 rows of m from 'row', DEPTH columns from 'col', transposed */
__device__ __forceinline__ void turn(float *to, const matrix &m, int64_t row, int64_t col)
{
    int rows = left_of(m.rows, row), cols = left_of(m.cols, col);
    if (m.fours) {
        int     r = (int)threadIdx.x / 4, k = (int)threadIdx.x % 4 * 4, off = r * (int)m.step + k;
        int64_t at = row * m.step + col;
        four    f[2];
#pragma unroll
        for (int i = 0; i < 2; i++) f[i].load(m, at + 16 * i, off, r < rows && k + 16 * i < cols);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *p = to + (k + 16 * i) * PITCH + r;
            float4 v = f[i].get(m.x.dtype);
            p[0] = v.x, p[PITCH] = v.y, p[2 * PITCH] = v.z, p[3 * PITCH] = v.w;
        }
        return;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        int r = i / DEPTH, k = i % DEPTH;
        to[k * PITCH + r] = r < rows && k < cols ? m.x.at((row + r) * m.step + col + k) : 0.0f;
    }
}
/* to[TILE][W] := 64 rows of m from 'row', W columns from 'col' */
template <int W> __device__ __forceinline__ void fetch(float *to, const matrix &m, int64_t row, int64_t col)
{
    constexpr int N = TILE * W / 4 / THREADS, DOWN = THREADS * 4 / W;
    int           rows = left_of(m.rows, row), cols = left_of(m.cols, col);
    if (m.fours) {
        int     r = (int)threadIdx.x * 4 / W, k = (int)threadIdx.x * 4 % W, off = r * (int)m.step + k;
        int64_t at = row * m.step + col;
        four    f[N];
#pragma unroll
        for (int i = 0; i < N; i++, at += DOWN * m.step) f[i].load(m, at, off, r + DOWN * i < rows && k < cols);
#pragma unroll
        for (int i = 0; i < N; i++) *(float4 *)(to + ((int)threadIdx.x + i * THREADS) * 4) = f[i].get(m.x.dtype);
        return;
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < TILE * W; i += THREADS) {
        int r = i / W, k = i % W;
        to[i] = r < rows && k < cols ? m.x.at((row + r) * m.step + col + k) : 0.0f;
    }
}
/* s[i][j] := row a0 + 4 ty + i of a times row b0 + 4 tx + j of b. ab is overwritten. */
__device__ __forceinline__ void dot(float (&s)[4][4], float *ab, const matrix &a, int64_t a0, const matrix &b,
                                    int64_t b0)
{
    int tx = (int)threadIdx.x % 16 * 4, ty = (int)threadIdx.x / 16 * 4;
#pragma unroll
    for (int i = 0; i < 16; i++) s[i / 4][i % 4] = 0;
    for (int64_t col = 0; col < a.cols; col += DEPTH) {
        int n = (int)(a.cols - col < DEPTH ? a.cols - col : DEPTH);
        __syncthreads();
        turn(ab, a, a0, col);
        turn(ab + DEPTH * PITCH, b, b0, col);
        __syncthreads();
#pragma unroll 2
        for (int k = 0; k < n; k++) {
            float4 x = *(const float4 *)(ab + k * PITCH + ty), y = *(const float4 *)(ab + (DEPTH + k) * PITCH + tx);
            float  u[4] = { x.x, x.y, x.z, x.w }, v[4] = { y.x, y.y, y.z, y.w };
#pragma unroll
            for (int i = 0; i < 16; i++) s[i / 4][i % 4] = fmaf(u[i / 4], v[i % 4], s[i / 4][i % 4]);
        }
    }
}
/* tile[4 tx + j][4 ty + i] := s[i][j]. Must follow a dot, whose barriers guarantee that the old contents have been read. */
__device__ __forceinline__ void put_tile(float *tile, const float (&s)[4][4])
{
    int tx = (int)threadIdx.x % 16 * 4, ty = (int)threadIdx.x / 16 * 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
        *(float4 *)(tile + (tx + j) * PITCH + ty) = make_float4(s[0][j], s[1][j], s[2][j], s[3][j]);
}
/* sum[c][i][j] += the sum over k of tile[k][4 ty + i] times row x0 + k of x, column col + c W + W/16 tx + j */
template <int W, int NC>
__device__ __forceinline__ void mul(float (&sum)[NC][4][W / 16], float *ab, const float *tile, const matrix &x,
                                    int64_t x0, int64_t col)
{
    constexpr int J = W / 16;
    int           tx = (int)threadIdx.x % 16 * J, ty = (int)threadIdx.x / 16 * 4;
    int           n = left_of(x.rows, x0);
#pragma unroll
    for (int c = 0; c < NC; c++) {
        if (col + c * W >= x.cols) break;
        __syncthreads();
        fetch<W>(ab, x, x0, col + c * W);
        __syncthreads();
#pragma unroll 2
        for (int k = 0; k < n; k++) {
            float4 p = *(const float4 *)(tile + k * PITCH + ty);
            float  u[4] = { p.x, p.y, p.z, p.w };
            pack<float, J> v = *(const pack<float, J> *)(ab + k * W + tx);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < J; j++) sum[c][i][j] = fmaf(u[i], v.v[j], sum[c][i][j]);
        }
    }
}
template <int W, int NC>
__device__ __forceinline__ void put_sums(const matrix &y, int64_t row, int64_t col, const float (&sum)[NC][4][W / 16])
{
    int tx = (int)threadIdx.x % 16 * (W / 16), ty = (int)threadIdx.x / 16 * 4;
#pragma unroll
    for (int c = 0; c < NC; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) store_row(y, row + ty + i, col + c * W + tx, sum[c][i]);
}
/* over the 16 threads of a row */
__device__ __forceinline__ float row_max(float x)
{
#pragma unroll
    for (int d = 8; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, d));
    return x;
}
__device__ __forceinline__ float row_sum(float x)
{
#pragma unroll
    for (int d = 8; d > 0; d /= 2) x += __shfl_xor_sync(FULL, x, d);
    return x;
}
/* The keys that some query of the tile at q0 sees. */
__device__ __forceinline__ int64_t keys_seen(const args &a, int64_t q0)
{
    int64_t end = (q0 + TILE < a.t ? q0 + TILE : a.t) + a.offset;
    return a.causal && end < a.s ? end : a.s;
}
__device__ __forceinline__ int64_t keys_from(const args &a, int64_t q0) /* the first tile of them */
{
    int64_t first = q0 + a.offset - a.window + 1;
    return first <= 0 ? 0 : first / TILE * TILE;
}
/* What is added to the score of a pair: -inf if window, lengths or mask hide the key. */
__device__ __forceinline__ float hidden(const args &a, int64_t head, int64_t query, int64_t key)
{
    int64_t b = divide(head, a.h), h = head - b * a.h;
    if (key <= query + a.offset - a.window) return -INFINITY;
    if (a.lengths != nullptr && key >= a.lengths[b * a.lengths_b]) return -INFINITY;
    if (a.mask.p == nullptr) return 0.0f;
    int64_t at = b * a.mask_b + h * a.mask_h + query * a.mask_t + key * a.mask_s;
    if (a.mask.dtype != DT_U8) return a.mask.at(at);
    return ((const uint8_t *)a.mask.p)[at] != 0 ? 0.0f : -INFINITY;
}
/* Which pairs of a tile with rows from r0 and columns from c0 are computed: those inside the matrix, and with causal
   those whose key is at or before their query. */
struct mask {
    int rows, cols, diag;
    __device__ __forceinline__ mask(const args &a, int64_t rows_in, int64_t r0, int64_t cols_in, int64_t c0, bool keys)
    {
        int64_t d = (keys ? c0 - r0 : r0 - c0) + a.offset; /* query minus key at the corner */
        rows = left_of(rows_in, r0);
        cols = left_of(cols_in, c0);
        diag = a.causal && d < TILE ? (int)(d > -2 * TILE ? d : -2 * TILE) : (int)TILE;
    }
};
__device__ __forceinline__ int64_t lse_at(const args &a, int64_t head)
{
    int64_t b = divide(head, a.h);
    return b * a.lse_b + (head - b * a.h) * a.lse_h;
}
/* The tile of a block. The longest tiles of a causal head come first. */
struct item {
    int64_t head, row, col;
    __device__ __forceinline__ item(const args &a, int64_t i, int width, bool descending)
    {
        int64_t rest = divide(i, a.tiles), tile = i - rest * a.tiles;
        head = divide(rest, a.groups);
        col = (rest - head * a.groups) * width;
        row = (descending ? a.tiles - 1 - tile : tile) * TILE;
    }
};

template <int W, int NC, bool HIDES>
static __global__ void __launch_bounds__(THREADS, NC == 1 && !HIDES ? 2 : 1)
    forward(args a, heads o, float *lse, heads q, heads k, heads v)
{
    __shared__ __align__(16) float ab[2 * DEPTH * PITCH], tile[TILE * PITCH];
    int                            tx = (int)threadIdx.x % 16 * 4, ty = (int)threadIdx.x / 16 * 4;
    for (int64_t i0 = blockIdx.x; i0 < a.heads * a.tiles * a.groups; i0 += gridDim.x) {
        item    w(a, i0, W * NC, true);
        matrix  mq = head_of(a, q, w.head, a.t), mk = head_of(a, k, w.head, a.s), mv = head_of(a, v, w.head, a.s);
        int64_t seen = keys_seen(a, w.row), from = keys_from(a, w.row);
        float   m[4], l[4], s[4][4], sum[NC][4][W / 16];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            m[i] = -INFINITY;
            l[i] = 0.0f;
#pragma unroll
            for (int c = 0; c < NC * (W / 16); c++) sum[c / (W / 16)][i][c % (W / 16)] = 0;
        }
        for (int64_t k0 = from; k0 < seen; k0 += TILE) {
            mask see(a, a.t, w.row, a.s, k0, false);
            dot(s, ab, mq, w.row, mk, k0);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float top = m[i], part = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    bool seen_j = tx + j < see.cols && tx + j <= ty + i + see.diag;
                    s[i][j] = seen_j ? s[i][j] * a.scale : -INFINITY;
                    if (HIDES && seen_j && ty + i < see.rows) s[i][j] += hidden(a, w.head, w.row + ty + i, k0 + tx + j);
                    top = fmaxf(top, s[i][j]);
                }
                top = row_max(top);
                float about = top == -INFINITY ? 0.0f : top; /* only -inf so far: avoids -inf - -inf = NaN */
#pragma unroll
                for (int j = 0; j < 4; j++) part += s[i][j] = expf(s[i][j] - about);
                float alpha = expf(m[i] - about);
                m[i] = top;
                l[i] = fmaf(l[i], alpha, row_sum(part));
#pragma unroll
                for (int c = 0; c < NC * (W / 16); c++) sum[c / (W / 16)][i][c % (W / 16)] *= alpha;
            }
            put_tile(tile, s);
            mul<W, NC>(sum, ab, tile, mv, k0, w.col);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float r = l[i] == 0.0f ? 0.0f : 1.0f / l[i]; /* no keys: o = 0, lse = -inf */
#pragma unroll
            for (int c = 0; c < NC * (W / 16); c++) sum[c / (W / 16)][i][c % (W / 16)] *= r;
            if (tx == 0 && w.col == 0 && w.row + ty + i < a.t)
                lse[lse_at(a, w.head) + (w.row + ty + i) * a.lse_t] = m[i] + logf(l[i]);
        }
        put_sums<W, NC>(head_of(a, o, w.head, a.t), w.row, w.col, sum);
    }
}

/* delta (heads, t): a warp for each row */
static __global__ void deltas(args a, float *delta, heads dy, heads o)
{
    int64_t lane = threadIdx.x % WARP;
    for (int64_t i = grid_first() / WARP; i < a.heads * a.t; i += grid_step() / WARP) {
        int64_t head = divide(i, a.t), row = i - head * a.t;
        matrix  my = head_of(a, dy, head, a.t), mo = head_of(a, o, head, a.t);
        float   sum = 0;
        for (int64_t col = lane; col < a.d; col += WARP)
            sum = fmaf(my.x.at(row * my.step + col), mo.x.at(row * mo.step + col), sum);
        sum = warp_reduce(sum, add_f());
        if (lane == 0) delta[i] = sum;
    }
}
/* Of a tile whose rows are keys (and columns queries) or the reverse; ls and dl belong to the queries.
   s := exp(scale s - lse), 0 where the query does not see the key */
template <bool KEYS, bool HIDES>
__device__ __forceinline__ void weigh(float (&s)[4][4], const args &a, const mask &see, const float (&ls)[4], int64_t head, int64_t r0,
                                      int64_t c0)
{
    int tx = (int)threadIdx.x % 16 * 4, ty = (int)threadIdx.x / 16 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int  r = ty + i, c = tx + j;
            bool seen = r < see.rows && c < see.cols && (KEYS ? r <= c + see.diag : c <= r + see.diag);
            float about = ls[KEYS ? j : i]; /* -inf: the query sees no key */
            if (HIDES && seen) {
                float more = hidden(a, head, (KEYS ? c0 : r0) + (KEYS ? c : r), (KEYS ? r0 : c0) + (KEYS ? r : c));
                about -= more;
                seen = about != INFINITY && ls[KEYS ? j : i] != -INFINITY;
            }
            s[i][j] = seen ? expf(fmaf(s[i][j], a.scale, -about)) : 0.0f;
        }
}
/* s := scale p (s - delta), with the p that the tile holds */
template <bool KEYS>
__device__ __forceinline__ void times_tile(float (&s)[4][4], const float *tile, const float (&dl)[4], float scale)
{
    int tx = (int)threadIdx.x % 16 * 4, ty = (int)threadIdx.x / 16 * 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float4 v = *(const float4 *)(tile + (tx + j) * PITCH + ty);
        float  p[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int i = 0; i < 4; i++) s[i][j] = (s[i][j] - dl[KEYS ? j : i]) * scale * p[i];
    }
}

/* dk and dv: rows are keys */
template <int W, int NC, bool HIDES>
static __global__ void __launch_bounds__(THREADS, NC == 1 && !HIDES ? 2 : 1)
    backward_keys(args a, heads dk, heads dv, heads dy, heads q, heads k, heads v, const float *lse, const float *delta)
{
    __shared__ __align__(16) float ab[2 * DEPTH * PITCH], tile[TILE * PITCH];
    int                            tx = (int)threadIdx.x % 16 * 4;
    for (int64_t i0 = blockIdx.x; i0 < a.heads * a.tiles * a.groups; i0 += gridDim.x) {
        item   w(a, i0, W * NC, false);
        matrix mq = head_of(a, q, w.head, a.t), my = head_of(a, dy, w.head, a.t);
        matrix mk = head_of(a, k, w.head, a.s), mv = head_of(a, v, w.head, a.s);
        float  s[4][4], sum_k[NC][4][W / 16], sum_v[NC][4][W / 16];
        const float *ls = lse + lse_at(a, w.head), *dl = delta + w.head * a.t;
#pragma unroll
        for (int c = 0; c < NC * 4 * (W / 16); c++) {
            sum_k[c / (W / 4)][c / (W / 16) % 4][c % (W / 16)] = 0;
            sum_v[c / (W / 4)][c / (W / 16) % 4][c % (W / 16)] = 0;
        }
        int64_t first = a.causal && w.row > a.offset ? (w.row - a.offset) / TILE * TILE : 0;
        for (int64_t q0 = first; q0 < a.t && w.row >= keys_from(a, q0); q0 += TILE) {
            mask  see(a, a.s, w.row, a.t, q0, true);
            float of[4];
            dot(s, ab, mk, w.row, mq, q0);
#pragma unroll
            for (int j = 0; j < 4; j++) of[j] = tx + j < see.cols ? ls[(q0 + tx + j) * a.lse_t] : 0.0f;
            weigh<true, HIDES>(s, a, see, of, w.head, w.row, q0);
            put_tile(tile, s);
            mul<W, NC>(sum_v, ab, tile, my, q0, w.col);
            dot(s, ab, mv, w.row, my, q0);
#pragma unroll
            for (int j = 0; j < 4; j++) of[j] = tx + j < see.cols ? dl[q0 + tx + j] : 0.0f;
            times_tile<true>(s, tile, of, a.scale);
            put_tile(tile, s);
            mul<W, NC>(sum_k, ab, tile, mq, q0, w.col);
        }
        put_sums<W, NC>(head_of(a, dk, w.head, a.s), w.row, w.col, sum_k);
        put_sums<W, NC>(head_of(a, dv, w.head, a.s), w.row, w.col, sum_v);
    }
}
/* dq: rows are queries */
template <int W, int NC, bool HIDES>
static __global__ void __launch_bounds__(THREADS, NC == 1 && !HIDES ? 2 : 1)
    backward_queries(args a, heads dq, heads dy, heads q, heads k, heads v, const float *lse, const float *delta)
{
    __shared__ __align__(16) float ab[2 * DEPTH * PITCH], tile[TILE * PITCH];
    int                            ty = (int)threadIdx.x / 16 * 4;
    for (int64_t i0 = blockIdx.x; i0 < a.heads * a.tiles * a.groups; i0 += gridDim.x) {
        item    w(a, i0, W * NC, true);
        matrix  mq = head_of(a, q, w.head, a.t), my = head_of(a, dy, w.head, a.t);
        matrix  mk = head_of(a, k, w.head, a.s), mv = head_of(a, v, w.head, a.s);
        int64_t seen = keys_seen(a, w.row);
        float   s[4][4], sum[NC][4][W / 16], ls[4], dl[4];
#pragma unroll
        for (int c = 0; c < NC * 4 * (W / 16); c++) sum[c / (W / 4)][c / (W / 16) % 4][c % (W / 16)] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int64_t query = w.row + ty + i;
            ls[i] = query < a.t ? lse[lse_at(a, w.head) + query * a.lse_t] : 0.0f;
            dl[i] = query < a.t ? delta[w.head * a.t + query] : 0.0f;
        }
        for (int64_t k0 = keys_from(a, w.row); k0 < seen; k0 += TILE) {
            mask see(a, a.t, w.row, a.s, k0, false);
            dot(s, ab, mq, w.row, mk, k0);
            weigh<false, HIDES>(s, a, see, ls, w.head, w.row, k0);
            put_tile(tile, s);
            dot(s, ab, my, w.row, mv, k0);
            times_tile<false>(s, tile, dl, a.scale);
            put_tile(tile, s);
            mul<W, NC>(sum, ab, tile, mk, k0, w.col);
        }
        put_sums<W, NC>(head_of(a, dq, w.head, a.t), w.row, w.col, sum);
    }
}

static heads heads_of(const dt_view &v, const operand<mixed> &x)
{
    heads m = { x, v.stride[0], v.stride[1], v.stride[2], suits(v.data, v.dtype, 4) && v.shape[3] % 4 == 0, 0 };
    for (int d = 0; d < 3; d++)
        if (v.shape[d] > 1 && v.stride[d] % 4 != 0) m.fours = 0;
    if (v.stride[2] > INT_MAX / TILE) m.fours = 0; /* offsets inside a tile have 32 bits */
    return m;
}
/* h: heads of q */
static heads in_heads(const dt_call *c, int i, int64_t h)
{
    heads m = heads_of(c->in[i], in_of<mixed>(c, i));
    m.shared = c->in[i].shape[1] != h;
    return m;
}
static heads out_heads(const dt_call *c, int i) { return heads_of(c->out[i], out_of<mixed>(c, i)); }
/* more: the number of the operand of the mask; the lengths follow it */
static args args_of(const dt_call *c, const dt_view &q, const dt_view &k, const dt_view &lse, int more)
{
    args a;
    a.h = q.shape[1];
    a.heads = q.shape[0] * q.shape[1];
    a.t = q.shape[2];
    a.s = k.shape[2];
    a.d = q.shape[3];
    a.tiles = a.groups = 0;
    a.scale = (float)c->u.attn.scale;
    a.causal = c->u.attn.causal != 0;
    a.lse_b = lse.stride[0];
    a.lse_h = lse.stride[1];
    a.lse_t = lse.stride[2];
    a.offset = a.causal ? c->u.attn.offset : 0;
    a.window = a.causal && c->u.attn.window > 0 ? c->u.attn.window : INT64_MAX / 2;
    a.rep = k.shape[1] > 0 ? a.h / k.shape[1] : 1;
    a.mask = { nullptr, 0, DT_F32 };
    a.mask_b = a.mask_h = a.mask_t = a.mask_s = a.lengths_b = 0;
    a.lengths = nullptr;
    if (c->nin > more && present(c->in[more])) {
        const dt_view &m = c->in[more];
        a.mask = { m.data, 0, m.dtype };
        a.mask_b = m.stride[0], a.mask_h = m.stride[1], a.mask_t = m.stride[2], a.mask_s = m.stride[3];
    }
    if (c->nin > more + 1 && present(c->in[more + 1])) {
        a.lengths = (const int64_t *)c->in[more + 1].data;
        a.lengths_b = c->in[more + 1].stride[0];
    }
    return a;
}
static bool hides(const args &a)
{
    return a.mask.p != nullptr || a.lengths != nullptr || a.window < a.t + a.offset;
}
/* ---- by products */
constexpr int64_t ROWS = 512; /* of a block of scores, and keys of a block of their gradients */
constexpr int64_t SPACE = (int64_t)256 << 20, PAIRS = 8192;
struct plan {
    int64_t b, h, n, t, s, d, rep, pitch, offset; /* n: heads at a time; pitch: of rows of scores */
    int     dtype, causal;
    int64_t seen(int64_t row_end) const /* keys that the rows before it see */
    {
        return causal && row_end + offset < s ? row_end + offset : s;
    }
};
static bool fits(const dt_view &v, int dtype) /* for vectors of 8, by cuBLAS and by kernels */
{
    bool yes = v.dtype == dtype && suits(v.data, dtype, 8) && (v.stride[3] == 1 || v.shape[3] == 1) && v.shape[3] % 8 == 0;
    for (int i = 0; i < 3; i++) yes = yes && (v.shape[i] == 1 || v.stride[i] % 8 == 0);
    return yes;
}
/* Does it go by products? from: the operand q; nbytes of workspace a pair */
static bool by_products(dt_device *dev, plan *p, const dt_call *c, const args &a, int from, int ins, int outs, int nbytes)
{
    const dt_view &q = c->in[from];
    if (dt__cuda_capability(dev) > 80 || hides(a) || a.offset < 0 || a.t * a.s < PAIRS || (a.causal && a.s > a.t + a.offset)) return false;
    if (q.dtype != DT_F16 && q.dtype != DT_BF16) return false;
    for (int i = 0; i < ins; i++)
        if (!fits(c->in[i], q.dtype)) return false;
    for (int i = 0; i < outs; i++)
        if (!fits(c->out[i], c->out[i].dtype == DT_F32 && i > 0 ? (int)DT_F32 : q.dtype)) return false;
    *p = plan{ q.shape[0], a.h, 0, a.t, a.s, a.d, a.rep, (a.s + 7) / 8 * 8, a.offset, q.dtype, a.causal };
    int64_t most = SPACE / (p->t * p->pitch * nbytes) / p->rep * p->rep;
    if (most == 0) return false;
    int64_t parts = (p->h + most - 1) / most, each = (p->h / p->rep + parts - 1) / parts;
    p->n = each * p->rep;
    return true;
}
/* Rows of heads [head, head + n) of image b, as (n / rep, rep, rows, columns) */
static dt_view rows_of(const plan &p, const dt_view &v, int64_t b, int64_t head, int64_t n, int64_t row, int64_t rows)
{
    bool    shared = v.shape[1] != p.h;
    dt_view r = v;
    int64_t at = b * v.stride[0] + (shared ? head / p.rep : head) * v.stride[1] + row * v.stride[2];
    r.data = (char *)v.data + at * elem_size(v.dtype);
    r.shape[0] = n / p.rep, r.shape[1] = p.rep, r.shape[2] = rows;
    r.stride[0] = shared ? v.stride[1] : p.rep * v.stride[1];
    r.stride[1] = shared ? 0 : v.stride[1];
    r.stride[3] = 1;
    return r;
}
/* The same of a matrix (n, t, pitch) in workspace: `columns` of them from `column` on */
static dt_view pairs_of(const plan &p, void *mem, int dtype, int64_t n, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    dt_view r;
    memset(&r, 0, sizeof r);
    r.data = (char *)mem + (row * p.pitch + column) * elem_size(dtype);
    r.dtype = dtype;
    r.layout = DT_LAYOUT_PLAIN;
    r.ndim = 4;
    r.shape[0] = n / p.rep, r.shape[1] = p.rep, r.shape[2] = rows, r.shape[3] = columns;
    r.stride[0] = p.rep * p.t * p.pitch, r.stride[1] = p.t * p.pitch, r.stride[2] = p.pitch, r.stride[3] = 1;
    return r;
}
static size_t sums_bytes(const plan &p) { return (size_t)(p.n * ROWS * p.d) * sizeof(float); } /* of a block of a result */
static dt_view turned(dt_view v)
{
    int64_t n = v.shape[2], s = v.stride[2];
    v.shape[2] = v.shape[3], v.stride[2] = v.stride[3];
    v.shape[3] = n, v.stride[3] = s;
    return v;
}
struct weights_of { /* what the kernels know of n heads */
    int64_t rows, t, s, pitch, offset, lse_h, lse_t; /* rows: n t */
    int     causal;
    __device__ __forceinline__ int64_t seen(int64_t query) const { return causal && query + offset + 1 < s ? query + offset + 1 : s; }
    /* Products read weights of whole blocks of keys: those that the query does not see are 0. */
    __device__ __forceinline__ int64_t end(int64_t query) const
    {
        int64_t last = ((query / ROWS + 1) * ROWS + offset + ROWS - 1) / ROWS * ROWS;
        return causal && last < s ? last : s;
    }
};
static weights_of weights_for(const plan &p, int64_t n, const args &a)
{
    return weights_of{ n * p.t, p.t, p.s, p.pitch, p.offset, a.lse_h, a.lse_t, p.causal };
}
/* w = softmax of the rows of x; a warp for each row. lse begins at the first of these heads. */
/* v in w[at ..] and what that loses in w[at + more ..] */
template <typename T> __device__ __forceinline__ void store_split(T *w, int64_t at, int64_t more, float (&v)[4], int64_t n)
{
    float lost[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float kept = to_float(from_float<T>(v[k]));
        lost[k] = kept - kept == 0 ? v[k] - kept : 0.0f; /* infinity and NaN: in the first */
    }
    store_vector(w + at, v, false, n);
    store_vector(w + at + more, lost, false, n);
}
template <typename T> static __global__ void softmax_rows(weights_of g, T *w, float *lse, const float *x)
{
    int lane = (int)threadIdx.x % WARP * 4;
    for (int64_t i = grid_first() / WARP; i < g.rows; i += grid_step() / WARP) {
        int64_t   head = divide(i, g.t), query = i - head * g.t, seen = g.seen(query), end = g.end(query);
        lse_state r = lse_state::none();
        float     v[4];
        for (int64_t j = lane; j < seen; j += WARP * 4) {
            load_vector(x + i * g.pitch + j, v, seen - j, -INFINITY);
            r.add(v);
        }
        r.over_warp();
        float about = r.m == -INFINITY ? 0.0f : r.m, factor = r.s == 0.0f ? 0.0f : 1.0f / r.s;
        if (lane == 0) lse[head * g.lse_h + query * g.lse_t] = r.m + logf(r.s);
        for (int64_t j = lane; j < end; j += WARP * 4) {
            if (j < seen) load_vector(x + i * g.pitch + j, v, seen - j, -INFINITY);
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = j + k < seen ? expf(v[k] - about) * factor : 0.0f;
            store_split(w, i * g.pitch + j, g.rows * g.pitch, v, end - j);
        }
    }
}
/* w = exp(x - lse), dx = scale w (dw - delta): the weights, and the gradients of the scores before they are scaled */
template <typename T>
static __global__ void softmax_rows_bwd(weights_of g, T *w, T *dx, const float *x, const float *dw, const float *lse,
                                        const float *delta, float scale)
{
    int lane = (int)threadIdx.x % WARP * 4;
    for (int64_t i = grid_first() / WARP; i < g.rows; i += grid_step() / WARP) {
        int64_t head = divide(i, g.t), query = i - head * g.t, seen = g.seen(query), end = g.end(query);
        float   about = lse[head * g.lse_h + query * g.lse_t], less = delta[i], v[4], d[4];
        for (int64_t j = lane; j < end; j += WARP * 4) {
            if (j < seen) {
                load_vector(x + i * g.pitch + j, v, seen - j);
                load_vector(dw + i * g.pitch + j, d, seen - j);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                bool there = j + k < seen && about != -INFINITY;
                v[k] = there ? expf(v[k] - about) : 0.0f;
                d[k] = there ? scale * v[k] * (d[k] - less) : 0.0f;
            }
            store_split(w, i * g.pitch + j, g.rows * g.pitch, v, end - j);
            store_split(dx, i * g.pitch + j, g.rows * g.pitch, d, end - j);
        }
    }
}
/* y = a b, or y += a b, where a is the sum of the halves at a and `more` bytes behind; sum: f32 for y */
static int twice(dt_device *dev, const dt_call *c, const dt_view &y, dt_view a, const dt_view &b, size_t more, float *sum, bool add)
{
    dt_view z = y, rest = a;
    rest.data = (char *)a.data + more;
    if (y.dtype != DT_F32) {
        z.data = sum;
        z.dtype = DT_F32;
        z.stride[2] = z.shape[3];
        z.stride[1] = z.shape[2] * z.stride[2];
        z.stride[0] = z.shape[1] * z.stride[1];
    }
    int bad = dt__cuda_matmul(dev, c, &z, &a, &b, 1, y.dtype == DT_F32 && add ? 1 : 0);
    if (!bad) bad = dt__cuda_matmul(dev, c, &z, &rest, &b, 1, 1);
    if (bad || y.dtype == DT_F32) return bad;
    dt_call k;
    memset(&k, 0, sizeof k);
    k.op = DT_K_copy;
    k.stream = c->stream;
    k.nout = k.nin = 1;
    k.out[0] = y;
    k.in[0] = z;
    k.acc = add;
    return dt__cuda_copy(dev, &k);
}
static int forward_by_products(dt_device *dev, const dt_call *c, const plan &p, const args &a)
{
    int64_t pairs = p.n * p.t * p.pitch;
    char   *mem = (char *)dt__cuda_scratch(dev, c->stream, (size_t)pairs * 8 + sums_bytes(p));
    if (!mem) return DT_ERR_MEMORY;
    float       *x = (float *)mem, *sum = (float *)(mem + pairs * 8);
    void        *w = mem + pairs * 4;
    cudaStream_t st = stream_of(dev, c);
    int          bad = 0;
    for (int64_t i = 0; i < p.b; i++)
        for (int64_t h = 0; h < p.h && !bad; h += p.n) {
            int64_t n = p.h - h < p.n ? p.h - h : p.n;
            float  *lse = (float *)c->out[1].data + i * a.lse_b + h * a.lse_h;
            for (int64_t r = 0; r < p.t && !bad; r += ROWS) {
                int64_t rows = p.t - r < ROWS ? p.t - r : ROWS, seen = p.seen(r + rows);
                dt_view y = pairs_of(p, x, DT_F32, n, r, rows, 0, seen), q = rows_of(p, c->in[0], i, h, n, r, rows);
                dt_view k = turned(rows_of(p, c->in[1], i, h, n, 0, seen));
                bad = dt__cuda_matmul(dev, c, &y, &q, &k, a.scale, 0);
            }
            if (bad) break;
            weights_of g = weights_for(p, n, a);
            unsigned   grid = blocks_for(g.rows, BLOCK / WARP);
            if (p.dtype == DT_F16) softmax_rows<<<grid, BLOCK, 0, st>>>(g, (__half *)w, lse, x);
            else softmax_rows<<<grid, BLOCK, 0, st>>>(g, (__nv_bfloat16 *)w, lse, x);
            bad = launched(c);
            for (int64_t r = 0; r < p.t && !bad; r += ROWS) {
                int64_t rows = p.t - r < ROWS ? p.t - r : ROWS, seen = p.seen(r + rows);
                dt_view y = rows_of(p, c->out[0], i, h, n, r, rows), l = pairs_of(p, w, p.dtype, n, r, rows, 0, seen);
                bad = twice(dev, c, y, l, rows_of(p, c->in[2], i, h, n, 0, seen), (size_t)(n * p.t * p.pitch) * 2, sum, false);
            }
        }
    return bad;
}
/* delta: of all heads, (b h, t) */
static int backward_by_products(dt_device *dev, const dt_call *c, const plan &p, const args &a, const float *delta, char *mem)
{
    int64_t      pairs = p.n * p.t * p.pitch;
    float       *x = (float *)mem, *dw = x + pairs;
    char        *w = (char *)(dw + pairs), *dx = w + pairs * 4;
    float       *sum = (float *)(dx + pairs * 4);
    cudaStream_t st = stream_of(dev, c);
    int          bad = 0;
    for (int64_t i = 0; i < p.b; i++)
        for (int64_t h = 0; h < p.h && !bad; h += p.n) {
            int64_t      n = p.h - h < p.n ? p.h - h : p.n;
            size_t       more = (size_t)(n * p.t * p.pitch) * 2;
            const float *lse = (const float *)c->in[5].data + i * a.lse_b + h * a.lse_h;
            for (int64_t r = 0; r < p.t && !bad; r += ROWS) {
                int64_t rows = p.t - r < ROWS ? p.t - r : ROWS, seen = p.seen(r + rows);
                dt_view y = pairs_of(p, x, DT_F32, n, r, rows, 0, seen), q = rows_of(p, c->in[1], i, h, n, r, rows);
                dt_view z = pairs_of(p, dw, DT_F32, n, r, rows, 0, seen), g = rows_of(p, c->in[0], i, h, n, r, rows);
                dt_view k = turned(rows_of(p, c->in[2], i, h, n, 0, seen)), v = turned(rows_of(p, c->in[3], i, h, n, 0, seen));
                bad = dt__cuda_matmul(dev, c, &y, &q, &k, a.scale, 0);
                if (!bad) bad = dt__cuda_matmul(dev, c, &z, &g, &v, 1, 0);
            }
            if (bad) break;
            weights_of   g = weights_for(p, n, a);
            unsigned     grid = blocks_for(g.rows, BLOCK / WARP);
            const float *less = delta + (i * p.h + h) * p.t;
            if (p.dtype == DT_F16)
                softmax_rows_bwd<<<grid, BLOCK, 0, st>>>(g, (__half *)w, (__half *)dx, x, dw, lse, less, a.scale);
            else
                softmax_rows_bwd<<<grid, BLOCK, 0, st>>>(g, (__nv_bfloat16 *)w, (__nv_bfloat16 *)dx, x, dw, lse, less, a.scale);
            bad = launched(c);
            for (int64_t k0 = 0; k0 < p.s && !bad; k0 += ROWS) { /* keys, and the rows that see them */
                int64_t keys = p.s - k0 < ROWS ? p.s - k0 : ROWS;
                int64_t r = p.causal && k0 > p.offset ? (k0 - p.offset) / ROWS * ROWS : 0, rows = p.t - r;
                dt_view v = rows_of(p, c->out[2], i, h, n, k0, keys), k = rows_of(p, c->out[1], i, h, n, k0, keys);
                dt_view l = turned(pairs_of(p, w, p.dtype, n, r, rows, k0, keys)), dl = turned(pairs_of(p, dx, p.dtype, n, r, rows, k0, keys));
                dt_view y = rows_of(p, c->in[0], i, h, n, r, rows), q = rows_of(p, c->in[1], i, h, n, r, rows);
                bad = twice(dev, c, v, l, y, more, sum, c->acc >> 2 & 1u);
                if (!bad) bad = twice(dev, c, k, dl, q, more, sum, c->acc >> 1 & 1u);
            }
            for (int64_t r = 0; r < p.t && !bad; r += ROWS) {
                int64_t rows = p.t - r < ROWS ? p.t - r : ROWS, seen = p.seen(r + rows);
                dt_view q = rows_of(p, c->out[0], i, h, n, r, rows), dl = pairs_of(p, dx, p.dtype, n, r, rows, 0, seen);
                bad = twice(dev, c, q, dl, rows_of(p, c->in[2], i, h, n, 0, seen), more, sum, c->acc & 1u);
            }
        }
    return bad;
}
/* The tiles of 'rows' rows by groups of 'width' columns, and the blocks for them. */
static unsigned cut(args *a, int64_t rows, int width)
{
    a->tiles = (rows + TILE - 1) / TILE;
    a->groups = a->d > width ? (a->d + width - 1) / width : 1;
    return blocks_for(a->heads * a->tiles * a->groups, 1);
}
template <int W, int NC>
static void run_forward(args a, cudaStream_t st, const heads &o, float *lse, const heads &q, const heads &k,
                        const heads &v)
{
    unsigned grid = cut(&a, a.t, W * NC);
    if (hides(a)) forward<W, NC, true><<<grid, THREADS, 0, st>>>(a, o, lse, q, k, v);
    else forward<W, NC, false><<<grid, THREADS, 0, st>>>(a, o, lse, q, k, v);
}
template <int W, int NC>
static void run_keys(args a, cudaStream_t st, const dt_call *c, const float *lse, const float *delta)
{
    unsigned grid = cut(&a, a.s, W * NC);
    auto kernel = hides(a) ? backward_keys<W, NC, true> : backward_keys<W, NC, false>;
    kernel<<<grid, THREADS, 0, st>>>(a, out_heads(c, 1), out_heads(c, 2), in_heads(c, 0, a.h), in_heads(c, 1, a.h),
                                     in_heads(c, 2, a.h), in_heads(c, 3, a.h), lse, delta);
}
template <int W, int NC>
static void run_queries(args a, cudaStream_t st, const dt_call *c, const float *lse, const float *delta)
{
    unsigned grid = cut(&a, a.t, W * NC);
    auto kernel = hides(a) ? backward_queries<W, NC, true> : backward_queries<W, NC, false>;
    kernel<<<grid, THREADS, 0, st>>>(a, out_heads(c, 0), in_heads(c, 0, a.h), in_heads(c, 1, a.h), in_heads(c, 2, a.h),
                                     in_heads(c, 3, a.h), lse, delta);
}

} /* namespace attention */
} /* namespace dtk */

extern "C" int dt__cuda_attention(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    attention::args a = attention::args_of(c, c->in[0], c->in[1], c->out[1], 3);
    int             status = all_floats(c, 7, 1);
    attention::plan p;
    if (status || a.heads == 0 || a.t == 0) return status;
    if (!(c->acc & 1) && attention::by_products(dev, &p, c, a, 0, 3, 1, 8)) return attention::forward_by_products(dev, c, p, a);
    cudaStream_t     s = stream_of(dev, c);
    float           *lse = (float *)c->out[1].data;
    attention::heads o = attention::out_heads(c, 0), q = attention::in_heads(c, 0, a.h), k = attention::in_heads(c, 1, a.h);
    attention::heads v = attention::in_heads(c, 2, a.h);
    o.x.add = 0;
    if (a.d <= 32) attention::run_forward<32, 1>(a, s, o, lse, q, k, v);
    else if (a.d <= 64) attention::run_forward<64, 1>(a, s, o, lse, q, k, v);
    else attention::run_forward<64, 2>(a, s, o, lse, q, k, v);
    return launched(c);
}

extern "C" int dt__cuda_attention_bwd(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    attention::args a = attention::args_of(c, c->in[1], c->in[2], c->in[5], 6);
    int             status = all_floats(c, 0x1f, 7);
    if (status || a.heads == 0) return status;
    cudaStream_t s = stream_of(dev, c);
    const float *lse = (const float *)c->in[5].data;
    size_t       rows = (size_t)(a.heads * (a.t > 0 ? a.t : 1));
    attention::plan p;
    bool         products = attention::by_products(dev, &p, c, a, 1, 5, 3, 16);
    size_t       before = products ? (rows * sizeof(float) + 511) / 512 * 512 : rows * sizeof(float);
    float       *delta = (float *)dt__cuda_scratch(dev, c->stream, before + (products ? (size_t)(p.n * p.t * p.pitch) * 16 + attention::sums_bytes(p) : 0));
    if (!delta) return DT_ERR_MEMORY;
    if (a.t > 0)
        attention::deltas<<<blocks_for(a.heads * a.t, BLOCK / WARP), BLOCK, 0, s>>>(
            a, delta, attention::in_heads(c, 0, a.h), attention::in_heads(c, 4, a.h));
    if (products) return attention::backward_by_products(dev, c, p, a, delta, (char *)delta + before);
    if (a.s > 0) {
        if (a.d <= 32) attention::run_keys<32, 1>(a, s, c, lse, delta);
        else if (a.d <= 64) attention::run_keys<64, 1>(a, s, c, lse, delta);
        else attention::run_keys<64, 2>(a, s, c, lse, delta);
    }
    if (a.t > 0) {
        if (a.d <= 32) attention::run_queries<32, 1>(a, s, c, lse, delta);
        else if (a.d <= 64) attention::run_queries<64, 1>(a, s, c, lse, delta);
        else attention::run_queries<64, 2>(a, s, c, lse, delta);
    }
    return launched(c);
}
