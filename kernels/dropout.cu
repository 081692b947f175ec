/* dropout.cu: y_i = kept_i x_i / (1 - p). Element i takes word i%4 of the Philox4x32-10 block of counter offset + i/4
   and is kept if that is >= p 2^32. There is no state; the CPU draws the same words; the gradient is the same kernel with
   dy for x.

   A thread takes 8 elements of 2 bytes (two generator blocks) or 4 of f32 (one), in accesses of 16 bytes; if an address
   is not aligned, 4 elements one by one. Blocks of 256 threads, grid-stride loop.

   Roofline: 8 bytes and 1 FLOP per element in f32 (4 bytes in f16). A generator block is 10 rounds of 2 wide products:
   about 25 integer operations per element, so GPUs with half as many integer as float units are near the balance in
   f16. */
#include "vector.cuh"

namespace dtk {

__device__ __forceinline__ void drop_philox(uint64_t seed, uint64_t counter, uint32_t (&out)[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        uint32_t h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* V elements at a time, a multiple of 4; aligned: in one access */
template <int V> static __global__ void __launch_bounds__(BLOCK, 4)
drop_kernel(operand<mixed> y, operand<mixed> x, int64_t n, uint64_t seed, uint64_t offset, uint32_t threshold,
            float scale, bool aligned)
{
    for (int64_t i = grid_first() * V; i < n; i += grid_step() * V) {
        float   v[V];
        int64_t left = n - i < V ? n - i : V;
        bool    full = aligned && left == V;
        if (full) {
            x.load(i, v);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) v[j] = j < left ? x.at(i + j) : 0.0f;
        }
#pragma unroll
        for (int q = 0; q < V; q += 4) {
            uint32_t word[4];
            drop_philox(seed, offset + (uint64_t)(i + q) / 4, word);
#pragma unroll
            for (int j = 0; j < 4; j++) v[q + j] *= word[j] >= threshold ? scale : 0.0f;
        }
        if (full) {
            y.store(i, v);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++)
                if (j < left) y.put(i + j, v[j]);
        }
    }
}

} /* namespace dtk */

extern "C" int dt__cuda_dropout(dt_device *dev, const dt_call *c)
{
    using namespace dtk;
    const dt_view *y = &c->out[0], *x = &c->in[0], *const v[2] = { y, x };
    int64_t        n = numel(*y);
    double         p = c->u.dropout.p, limit = p * 4294967296.0;
    uint32_t       threshold = limit <= 0 ? 0 : limit >= 4294967295.0 ? 0xffffffffu : (uint32_t)limit;
    float          scale = p >= 1 ? 0.0f : (float)(1.0 / (1.0 - p));
    int            status = all_floats(c, 1, 1);
    if (status || n == 0) return status;
    int          width = dense_width(v);
    cudaStream_t s = stream_of(dev, c);
    with_width<8, 4>(width, [&](auto w) {
        drop_kernel<w.value><<<blocks_for(n, w.value * BLOCK), BLOCK, 0, s>>>(
            out_of<mixed>(c, 0), in_of<mixed>(c, 0), n, c->u.dropout.seed, c->u.dropout.offset, threshold, scale,
            width > 1);
    });
    return launched(c);
}
