/* Deliberately broken kernels, each beside its repaired twin. test_broken.c shows that the checks of the PTX
   interpreter find every broken one and let its twin pass. BLOCK threads a block; n elements unless said otherwise. */
#include <cuda_fp16.h>
#include <stdint.h>

#define BLOCK 128
#define FULL 0xffffffffu

/* ---- a barrier is missing between the write and the read of shared memory */
extern "C" __global__ void missing_barrier_bad(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[BLOCK - 1 - threadIdx.x];
}
extern "C" __global__ void missing_barrier_good(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[BLOCK - 1 - threadIdx.x];
}

/* ---- a tree reduction without the barrier in its loop */
extern "C" __global__ void tree_bad(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int d = BLOCK / 2; d > 0; d /= 2)
        if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    if (threadIdx.x == 0) y[0] = s[0];
}
extern "C" __global__ void tree_good(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int d = BLOCK / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[0] = s[0];
}

/* ---- scratch of one round overwritten while another thread still reads it */
extern "C" __global__ void reuse_bad(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    float sum = 0;
    for (int i = 0; i < 3; i++) {
        s[threadIdx.x] = x[threadIdx.x] * (float)i;
        __syncthreads();
        sum += s[(threadIdx.x + 40) % BLOCK];
    }
    y[threadIdx.x] = sum;
}
extern "C" __global__ void reuse_good(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    float sum = 0;
    for (int i = 0; i < 3; i++) {
        __syncthreads();
        s[threadIdx.x] = x[threadIdx.x] * (float)i;
        __syncthreads();
        sum += s[(threadIdx.x + 40) % BLOCK];
    }
    y[threadIdx.x] = sum;
}

/* ---- a sum over blocks and threads without atomics */
extern "C" __global__ void sum_bad(float *y, const float *x)
{
    y[0] += x[threadIdx.x];
}
extern "C" __global__ void sum_good(float *y, const float *x)
{
    atomicAdd(y, x[threadIdx.x]);
}

/* ---- a count that is set to zero while others already add to it */
extern "C" __global__ void zero_bad(float *y, const float *x)
{
    __shared__ float s;
    if (threadIdx.x == 0) s = 0;
    atomicAdd(&s, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = s;
}
extern "C" __global__ void zero_good(float *y, const float *x)
{
    __shared__ float s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    atomicAdd(&s, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) y[0] = s;
}

/* ---- the last blocks run past n */
extern "C" __global__ void past_end_bad(float *y, const float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i <= n) y[i] = x[i < n ? i : 0];
}
extern "C" __global__ void past_end_good(float *y, const float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = x[i];
}

/* ---- a read before the beginning: a stencil without its border */
extern "C" __global__ void stencil_bad(float *y, const float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n - 1) y[i] = x[i - 1] + x[i + 1];
}
extern "C" __global__ void stencil_good(float *y, const float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = (i > 0 ? x[i - 1] : 0) + (i < n - 1 ? x[i + 1] : 0);
}

/* ---- one element more than the shared array has, into its neighbour */
extern "C" __global__ void shared_end_bad(float *y, const float *x, int one)
{
    __shared__ float s[BLOCK], t[BLOCK];
    s[threadIdx.x + one] = x[threadIdx.x];
    t[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[(BLOCK - 1 - threadIdx.x + one) % (BLOCK + 1)] + t[threadIdx.x ^ 1];
}
extern "C" __global__ void shared_end_good(float *y, const float *x, int one)
{
    __shared__ float s[BLOCK + 1], t[BLOCK];
    s[threadIdx.x + one] = x[threadIdx.x];
    t[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[BLOCK - 1 - threadIdx.x + one] + t[threadIdx.x ^ 1];
}

/* ---- a barrier that only some threads reach */
extern "C" __global__ void divergent_barrier_bad(float *y, const float *x, int n)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < n) {
        __syncthreads();
        y[threadIdx.x] = s[n - 1 - threadIdx.x];
    }
}
extern "C" __global__ void divergent_barrier_good(float *y, const float *x, int n)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n) y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

/* ---- threads that leave early before a barrier */
extern "C" __global__ void early_return_bad(float *y, const float *x, int n)
{
    __shared__ float s[BLOCK];
    if (threadIdx.x >= n) return;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}
extern "C" __global__ void early_return_good(float *y, const float *x, int n)
{
    __shared__ float s[BLOCK];
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n) y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

/* ---- shared memory read where nobody wrote: the tail of the tile */
extern "C" __global__ void uninitialised_bad(float *y, const float *x, int n)
{
    __shared__ float s[BLOCK];
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += s[i];
    y[threadIdx.x] = sum;
}
extern "C" __global__ void uninitialised_good(float *y, const float *x, int n)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = threadIdx.x < n ? x[threadIdx.x] : 0;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += s[i];
    y[threadIdx.x] = sum;
}

/* ---- a gradient added to memory that nobody set to zero */
extern "C" __global__ void fresh_bad(float *y, const float *x) /* y is fresh */
{
    y[threadIdx.x] += x[threadIdx.x];
}
extern "C" __global__ void fresh_good(float *y, const float *x)
{
    y[threadIdx.x] = x[threadIdx.x];
}

/* ---- a shuffle inside a branch with the mask of the whole warp */
extern "C" __global__ void partial_mask_bad(float *y, const float *x, int n)
{
    float v = x[threadIdx.x];
    if (threadIdx.x < n) v += __shfl_xor_sync(FULL, v, 1); /* n is no multiple of 32 */
    __syncthreads();
    y[threadIdx.x] = v;
}
extern "C" __global__ void partial_mask_good(float *y, const float *x, int n)
{
    float v = x[threadIdx.x], w = __shfl_xor_sync(FULL, v, 1);
    if (threadIdx.x < n) v += w;
    __syncthreads();
    y[threadIdx.x] = v;
}

/* ---- a shuffle that reads lanes which have left */
extern "C" __global__ void gone_lanes_bad(float *y, const float *x, int n)
{
    if (threadIdx.x >= n) return;
    float v = x[threadIdx.x];
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(FULL, v, d);
    if (threadIdx.x % 32 == 0) atomicAdd(y, v);
}
extern "C" __global__ void gone_lanes_good(float *y, const float *x, int n)
{
    float v = threadIdx.x < n ? x[threadIdx.x] : 0;
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(FULL, v, d);
    if (threadIdx.x % 32 == 0) atomicAdd(y, v);
}

/* ---- warp-synchronous code without __syncwarp: lanes of a warp are not in step */
extern "C" __global__ void missing_syncwarp_bad(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    unsigned lane = threadIdx.x % 32;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int d = 16; d > 0; d /= 2)
        if (lane < d) s[threadIdx.x] += s[threadIdx.x + d];
    if (lane == 0) y[threadIdx.x / 32] = s[threadIdx.x];
}
extern "C" __global__ void missing_syncwarp_good(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    unsigned lane = threadIdx.x % 32;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (int d = 16; d > 0; d /= 2) {
        if (lane < d) s[threadIdx.x] += s[threadIdx.x + d];
        __syncwarp();
    }
    if (lane == 0) y[threadIdx.x / 32] = s[threadIdx.x];
}

/* ---- a vote is no memory barrier */
extern "C" __global__ void vote_is_no_sync_bad(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    if (__any_sync(FULL, x[threadIdx.x] > 1e30f)) s[threadIdx.x] = 0;
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void vote_is_no_sync_good(float *y, const float *x)
{
    __shared__ float s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    if (__any_sync(FULL, x[threadIdx.x] > 1e30f)) s[threadIdx.x] = 0;
    __syncwarp();
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}

/* ---- float4 through a pointer that is only 4-byte aligned: x + 1 */
extern "C" __global__ void misaligned_bad(float *y, const float *x)
{
    float4 v = ((const float4 *)(x + 1))[threadIdx.x];
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
extern "C" __global__ void misaligned_good(float *y, const float *x)
{
    const float *p = x + 1 + 4 * threadIdx.x;
    y[threadIdx.x] = p[0] + p[1] + p[2] + p[3];
}

/* ---- the last block sums the partial sums of the others without fences */
extern "C" __global__ void last_block_bad(float *y, const float *x, unsigned *count, float *part)
{
    if (threadIdx.x == 0) {
        part[blockIdx.x] = x[blockIdx.x];
        if (atomicAdd(count, 1u) == gridDim.x - 1) {
            float sum = 0;
            for (unsigned i = 0; i < gridDim.x; i++) sum += part[i];
            y[0] = sum;
        }
    }
}
extern "C" __global__ void last_block_good(float *y, const float *x, unsigned *count, float *part)
{
    if (threadIdx.x == 0) {
        part[blockIdx.x] = x[blockIdx.x];
        __threadfence();
        if (atomicAdd(count, 1u) == gridDim.x - 1) {
            __threadfence();
            float sum = 0;
            for (unsigned i = 0; i < gridDim.x; i++) sum += part[i];
            y[0] = sum;
        }
    }
}

/* ---- blocks that overlap by one element */
extern "C" __global__ void overlap_bad(float *y, const float *x)
{
    unsigned i = blockIdx.x * (BLOCK - 1) + threadIdx.x;
    y[i] = x[i] + (float)blockIdx.x;
}
extern "C" __global__ void overlap_good(float *y, const float *x)
{
    unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    y[i] = x[i] + (float)blockIdx.x;
}

/* ---- in place, but the neighbour is read from another block */
extern "C" __global__ void in_place_bad(float *y, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n - 1) y[i] = 2 * y[i + 1];
}
extern "C" __global__ void in_place_good(float *y, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n - 1) y[i] = 2 * y[i];
}

/* ---- half-precision tiles: two threads share a 32-bit word, one writes all of it */
extern "C" __global__ void halves_bad(__half *y, const __half *x)
{
    __shared__ __half s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x % 2 == 0) ((__half2 *)s)[threadIdx.x / 2] = __float2half2_rn((float)threadIdx.x);
    y[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void halves_good(__half *y, const __half *x)
{
    __shared__ __half s[BLOCK];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x % 2 == 0) ((__half2 *)s)[threadIdx.x / 2] = __float2half2_rn((float)threadIdx.x);
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}

/* ---- it never ends */
extern "C" __global__ void endless_bad(float *y, const float *x)
{
    for (float v = x[0]; v != 0.5f; v += 1) y[0] = v;
}
extern "C" __global__ void endless_good(float *y, const float *x)
{
    for (float v = x[0]; v < 100; v += 1)
        if (threadIdx.x == 0 && blockIdx.x == 0) y[0] = v;
}

/* ---- division by a size that may be zero */
extern "C" __global__ void zero_divisor_bad(float *y, const float *x, int zero)
{
    y[threadIdx.x] = x[threadIdx.x] + (float)(threadIdx.x / (unsigned)zero);
}
extern "C" __global__ void zero_divisor_good(float *y, const float *x, int zero)
{
    y[threadIdx.x] = x[threadIdx.x] + (zero ? (float)(threadIdx.x / (unsigned)zero) : 0);
}
