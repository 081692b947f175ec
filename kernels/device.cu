/* device.cu: can the current device run the kernels? dt_cuda() asks once for each device. The kernel is never launched; its
   attributes exist only if the program has code for the device. */
#include "common.cuh"

namespace dtk {
__global__ void probe_kernel() {}
}
extern "C" int dt__cuda_probe(void)
{
    cudaFuncAttributes a;
    return (int)cudaFuncGetAttributes(&a, (const void *)dtk::probe_kernel);
}
