/* dt_cuda.h - v0.1.0 - the CUDA backend: cuBLAS, cuDNN and the kernels of kernels/ behind dt.h's table */
/*
DO THIS

    #define DT_IMPLEMENTATION
    #include "dt_cuda.h"

    in one C or C++ file, instead of dt.h or before dt_nn.h, with DT_USE_CUDA defined for all files. Build
    kernels/dt_kernels.cu with nvcc and link -lcudart -lcublas -lcudnn. One line does it all:

        nvcc -DDT_USE_CUDA train.c kernels/dt_kernels.cu -lcublas -lcudnn

    or gcc for the C files (-isystem CUDA/include) and nvcc for the kernels.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_cuda.h"
    #include <stdio.h>

    int main(void)
    {
        dt_device *gpu = dt_cuda(0);
        if (!gpu) {
            printf("%s; computing on the CPU\n", dt_error());
            dt_clear_error();
        }
        dt_set_default_device(gpu);
        dt_tensor *a = dt_ones(DT_SHAPE(300, 200)), *b = dt_full(0.5, DT_SHAPE(200, 100));
        double     sum = dt_item(dt_sum(dt_matmul(a, b)));
        printf("%s: %.0f\n", dt_device_name(dt_default_device()), sum);
        dt_end();
        return dt_check("cuda") || sum != 300.0 * 100.0 * 100.0;
    }

WHAT IT DOES NOT DO

    It has not been run on a GPU yet: docs/gpu.md says what was verified, and how. No managed memory, no graphs.

CONTENTS

    >>api            devices, options, statistics, streams, pinned memory
    >>kernels        what kernels/ and this file need of each other
    >>status         errors of the CUDA libraries as dt errors
    >>allocator      device memory: segments, splits, statistics
    >>device         streams, copies, waiting
    >>gemm           matrix products by cuBLAS
    >>conv           convolution by cuDNN
    >>table          the list of entries
*/
#ifndef DT_CUDA_H
#define DT_CUDA_H

#include "dt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>api */
/* The GPU with this index, made at the first call and kept. NULL after dt_fail(DT_ERR_DEVICE): there is no driver, no
   GPU, no such index, or one that the kernels were not built for. */
DT_API dt_device *dt_cuda(int index);
DT_API int        dt_cuda_count(void); /* GPUs; 0 without a driver, and no error */

typedef struct dt_cuda_opts {
    int  dt__first DT_D;
    bool no_tf32 DT_D;       /* f32 products and convolutions in full f32 (default: TF32 where the card has it, unless
                                DT_CUDA_TF32=0) */
    bool deterministic DT_D; /* the same bits in every run (DT_CUDA_DETERMINISTIC=1) */
    int  layout DT_D;        /* of images: DT_LAYOUT_PLAIN or DT_LAYOUT_NHWC */
} dt_cuda_opts;
DT_API dt_status dt_cuda_set_with(dt_device *dev, dt_cuda_opts o);
#ifdef DT__LIT
#define dt_cuda_set(...) dt_cuda_set_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_cuda_opts, __VA_ARGS__, ))
#endif

typedef struct dt_cuda_stats {
    size_t  reserved, used, peak; /* bytes taken from the driver; given to tensors; the most of these */
    int64_t segments, blocks;     /* pieces of each */
    int64_t mallocs, retries;     /* calls of cudaMalloc; how many of them needed the cache to be given back first */
} dt_cuda_stats;
DT_API dt_cuda_stats dt_cuda_get_stats(dt_device *dev);

/* The streams of a device beside the one that computes. They are dt_stream_use's and the table's. */
DT_API void *dt_cuda_copy_stream(dt_device *dev);
DT_API void *dt_cuda_comm_stream(dt_device *dev);
/* Memory of the host that copies run beside kernels from and to; NULL after dt_fail. */
DT_API void *dt_cuda_host_alloc(size_t nbytes);
DT_API void  dt_cuda_host_free(void *ptr);

/* ---------------------------------------------------------------------------------------------------- >>kernels
   kernels/ defines dt__cuda_NAME for every row of DT_KERNELS but gemm and the convolutions, which are here. */
#define DT__CUDA_ENTRY(n) DT_API int dt__cuda_##n(dt_device *dev, const dt_call *c);
DT_KERNELS(DT__CUDA_ENTRY)
/* y := act(y + bias), bias along dimension dim of y; bias may be absent (ndim -1). y is dense in its layout. */
DT_API int dt__cuda_epilogue(dt_device *dev, void *stream, const dt_view *y, const dt_view *bias, int dim, int act);

/* What they need. */
DT_API void *dt__cuda_stream(dt_device *dev, void *stream); /* the cudaStream_t of a stream of the table */
/* Device memory for what is queued next on this stream; the next call may give the same. NULL after dt_fail. */
DT_API void *dt__cuda_scratch(dt_device *dev, void *stream, size_t nbytes);
DT_API int   dt__cuda_check(int cuda_error, const char *what); /* 0, or DT_ERR_DEVICE after dt_fail */
DT_API int   dt__cuda_processors(dt_device *dev);              /* its multiprocessors */
DT_API bool  dt__cuda_deterministic(dt_device *dev);

#ifdef __cplusplus
}
#endif
#endif /* DT_CUDA_H */
