/* device.cu: can this device run the kernels? Asked once, when dt_cuda makes it, of a kernel that is never launched: no
   mathematics, no launch shape, no bytes. */
#include "common.cuh"

namespace dtk {
__global__ void probe_kernel() {}
}
extern "C" int dt__cuda_probe(void)
{
    cudaFuncAttributes a;
    return (int)cudaFuncGetAttributes(&a, (const void *)dtk::probe_kernel);
}
