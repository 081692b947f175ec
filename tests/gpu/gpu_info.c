/* gpu_info.c: GPUs and libraries of this machine, for the report of `make cuda-selftest`. With --arch: the compute
   capability of the first one alone, as nvcc writes it. Ends with 1, and a line that says why, without a GPU. */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int         n = 0, driver = 0, runtime = 0, blas[3] = { 0, 0, 0 }, nccl = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n < 1) {
        fprintf(stderr, "no GPU: %s\n", e == cudaSuccess ? "the driver finds none" : cudaGetErrorString(e));
        return 1;
    }
    for (int i = 0; i < n; i++) {
        struct cudaDeviceProp p;
        if ((e = cudaGetDeviceProperties(&p, i)) != cudaSuccess) {
            fprintf(stderr, "GPU %d: %s\n", i, cudaGetErrorString(e));
            return 1;
        }
        if (argc > 1 && !strcmp(argv[1], "--arch")) {
            printf("%d%d\n", p.major, p.minor);
            return 0;
        }
        printf("GPU %d: %s, compute capability %d.%d, %.1f GiB, %d multiprocessors\n", i, p.name, p.major, p.minor,
               (double)p.totalGlobalMem / 1073741824.0, p.multiProcessorCount);
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    for (int i = 0; i < 3; i++) cublasGetProperty((libraryPropertyType)i, &blas[i]);
    ncclGetVersion(&nccl);
    printf("driver %d.%d, runtime %d.%d, cuBLAS %d.%d.%d, cuDNN %zu, NCCL %d\n", driver / 1000, driver % 1000 / 10,
           runtime / 1000, runtime % 1000 / 10, blas[0], blas[1], blas[2], cudnnGetVersion(), nccl);
    return 0;
}
