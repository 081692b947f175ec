/* dt_cuda.h - v0.2.0 - the CUDA backend: cuBLAS, cuDNN and the kernels of kernels/ behind dt.h's table */
/*
DO THIS

    #define DT_IMPLEMENTATION
    #include "dt_cuda.h"

    in one C or C++ file, before dt_nn.h. With DT_USE_CUDA, compile kernels/dt_kernels.cu with nvcc and link -lcudart
    -lcublas -lcudnn. Without DT_USE_CUDA the header compiles too, and dt_cuda() fails with a message. One command
    builds a program:

        nvcc -O3 -arch=native -DDT_USE_CUDA train.c kernels/dt_kernels.cu -lcublas -lcudnn

    or use gcc for the C files (-isystem CUDA/include) and nvcc for the kernels. Several GPUs of one program
    (dt_parallel) exchange data by peer copies; with dt_nccl.h they use NCCL, and ranks with one GPU each can train
    together.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_cuda.h"
    #include <stdio.h>

    int main(void)
    {
        dt_device *gpu = dt_cuda(0);
        if (!gpu) {
            printf("%s; computing on the CPU\n", dt_error());
            dt_error_clear();
        }
        dt_set_default_device(gpu);
        dt_tensor *a = dt_ones(DT_SHAPE(300, 200)), *b = dt_full(0.5, DT_SHAPE(200, 100));
        double     sum = dt_item(dt_sum(dt_matmul(a, b)));
        printf("%s: %.0f\n", dt_device_name(dt_default_device()), sum);
        dt_end();
        return dt_check("cuda") || sum != 300.0 * 100.0 * 100.0;
    }

WHAT IT DOES NOT DO

    It has not been run on a GPU yet: docs/gpu.md says what was verified, and how. It uses no managed memory and no
    CUDA graphs.

CONTENTS

    >>api            devices, options, statistics, streams, pinned memory
    >>kernels        functions that kernels/ and this file call in each other
    >>inside         functions for the implementations of other headers
    >>status         implementation from here: errors of the CUDA libraries as dt errors
    >>allocator      device memory: segments, splits, statistics
    >>device         streams, copies, waiting
    >>gemm           matrix products by cuBLAS
    >>conv           convolution by cuDNN
    >>group          broadcasts and sums over several devices
    >>table          the backend's table, creating devices
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_CUDA_IMPLEMENTATION)
#define DT_CUDA_IMPLEMENTATION
#endif
#include "dt.h"

#ifndef DT_CUDA_H
#define DT_CUDA_H

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_cuda.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>api */
/* The GPU with this index, created by the first call and kept until the program ends. NULL after
   dt_fail(DT_ERR_DEVICE): there is no driver, no GPU with this index, or the kernels were not built for it. */
DT_API dt_device *dt_cuda(int index);
DT_API int        dt_cuda_count(void); /* number of GPUs; 0 without a driver, which is not an error */

/* dt_cuda_set changes the options that it is given, from the next call on; the others stay. The environment sets them first. */
typedef struct dt_cuda_opts {
    int dt__first           DT_D;
    dt_switch tf32          DT_D; /* f32 products and convolutions may round their factors to TF32 (DT_CUDA_TF32=1) */
    dt_switch deterministic DT_D; /* the same bits in every run (DT_CUDA_DETERMINISTIC=1) */
    dt_switch search        DT_D; /* measure cuDNN's algorithms for each new convolution; default: its heuristics (DT_CUDA_SEARCH=1) */
    int layout              DT_D; /* of images: at first DT_LAYOUT_NHWC for halves and DT_LAYOUT_PLAIN for f32; for both DT_LAYOUT_NHWC
                             (DT_CUDA_NHWC=1), or DT_ZERO for DT_LAYOUT_PLAIN (DT_CUDA_NHWC=0) */
    int workspace_mb        DT_D; /* of a convolution, at most: 512 at first (DT_CUDA_WORKSPACE_MB); DT_ZERO: algorithms without one */
} dt_cuda_opts;
DT_API dt_status dt_cuda_set_with(dt_device *dev, dt_cuda_opts o);
#ifdef DT__LIT
#define dt_cuda_set(...) dt_cuda_set_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_cuda_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_cuda_set dt_cuda_set_with
#endif

typedef struct dt_cuda_stats {
    size_t  reserved, used, peak; /* bytes allocated from the driver; in use; the largest value of used */
    int64_t segments, blocks;     /* allocations from the driver; blocks in use */
    int64_t mallocs, retries;     /* calls of cudaMalloc; those that ran out of memory, after which dt.h frees its cache */
} dt_cuda_stats;
DT_API dt_cuda_stats dt_cuda_get_stats(dt_device *dev); /* of one GPU */

/* The streams of a device besides the compute stream, for dt_device_set_stream() and the entries of dt_backend. */
DT_API void *dt_cuda_copy_stream(dt_device *dev);
DT_API void *dt_cuda_comm_stream(dt_device *dev);
/* Pinned host memory: copies from and to it run asynchronously. NULL after dt_fail. */
DT_API void *dt_cuda_host_alloc(size_t nbytes);
DT_API void  dt_cuda_host_free(void *ptr);

/* ---------------------------------------------------------------------------------------------------- >>kernels
   kernels/ defines dt__cuda_NAME for every row of DT_KERNELS except gemm and the convolutions, which are in this file.
   kernels/ is compiled separately, so these names have external linkage even with DT_STATIC. */
#ifdef DT_USE_CUDA
#define DT__CUDA_ENTRY(n) int dt__cuda_##n(dt_device *dev, const dt_call *c);
DT_KERNELS(DT__CUDA_ENTRY)
/* In place: y = act(y + bias), bias along dimension dim of y; bias may be absent (ndim -1). y is dense in its layout. */
int dt__cuda_epilogue(dt_device *dev, void *stream, const dt_view *y, const dt_view *bias, int dim, int act);

/* An index or a target that is out of range. The kernel that reads it writes this record, in pinned memory, with atomic
   operations; the host turns it into an error when it next waits for the stream. The record keeps the first such call,
   and of that call the lowest position: part[i] is position << 24 | bits 24i to 24i+23 of the value, and each part is
   an atomic minimum, so all three belong to the same position. */
typedef struct dt__cuda_bad {
    unsigned long long call; /* number of the call; 0: no index was out of range so far */
    unsigned long long part[3];
    int64_t            limit, ignore;
    int32_t            op, nll;
} dt__cuda_bad;
typedef struct dt__cuda_watch { /* argument of every kernel that reads indices */
    dt__cuda_bad      *at;
    unsigned long long call;
    int64_t            limit, ignore; /* indices are in 0..limit-1, or ignore */
    int32_t            op, nll;
} dt__cuda_watch;
dt__cuda_watch dt__cuda_watched(dt_device *dev, const dt_call *c, int64_t limit);

/* Functions of this file that kernels/ calls. */
void *dt__cuda_stream(dt_device *dev, void *stream); /* the cudaStream_t of a dt_call's stream; makes dev current */
/* Scratch memory of the device, valid for what is queued on this stream until the next call. NULL after dt_fail. */
void *dt__cuda_scratch(dt_device *dev, void *stream, size_t nbytes);
int   dt__cuda_check(int cuda_error, const char *what); /* 0, or DT_ERR_DEVICE after dt_fail */
int   dt__cuda_processors(dt_device *dev);              /* number of multiprocessors */
bool  dt__cuda_deterministic(dt_device *dev);
int   dt__cuda_capability(dt_device *dev);              /* 80 for 8.0 */
/* y = alpha a b + beta y for each index of the first dimensions, by cuBLAS, with sums in f32. a and b have one dtype, y it or f32; each
   has unit stride in one of its last two dimensions, y in its last. On the stream of `like`. */
int   dt__cuda_matmul(dt_device *dev, const dt_call *like, const dt_view *y, const dt_view *a, const dt_view *b, float alpha, float beta);
/* In kernels/: a cudaError_t that says whether the current device can run the kernels. */
int   dt__cuda_probe(void);
#endif /* DT_USE_CUDA */

#ifdef __cplusplus
}
#endif
#endif /* DT_CUDA_H */

#if defined(DT__WANT_INSIDE) && !defined(DT__CUDA_INSIDE)
#define DT__CUDA_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   Another header (dt_nccl.h) registers these functions to exchange the blocks of a group (>>group) instead of copies. */
#ifdef __cplusplus
extern "C" {
#endif
enum { DT__CUDA_DEVICES = 64 }; /* largest number of devices */
typedef struct dt__cuda_exchange {
    void *(*begin)(dt_device *const *dev, int n); /* communicators of these devices; NULL after dt_fail */
    void (*end)(void *comms, dt_device *const *dev, int n); /* waits for the work queued on the devices */
    /* block[b * n + i] is block b on device i. sum: the first device's block becomes the sum of all; otherwise it is
       copied to the other devices. */
    int (*run)(void *comms, dt_device *const *dev, int n, void *const *stream, const dt_view *block, int nblocks,
               bool sum);
} dt__cuda_exchange;
/* Creates the handles of cuBLAS and cuDNN for the compute stream: what they load and allocate may wait for the whole device. */
#ifdef DT_USE_CUDA
#ifdef DT_STATIC
static int dt__cuda_prepare(dt_device *dev) __attribute__((unused));
#else
__attribute__((visibility("hidden"))) int dt__cuda_prepare(dt_device *dev);
#endif
#endif
/* dt_nccl.h sets it in a constructor, before main(). NULL: blocks are exchanged by copies. */
#ifdef DT_STATIC
static const dt__cuda_exchange *dt__cuda_exchanged_by __attribute__((unused));
#else
extern __attribute__((visibility("hidden"))) const dt__cuda_exchange *dt__cuda_exchanged_by;
#endif
#ifdef __cplusplus
}
#endif
#endif /* DT__CUDA_INSIDE */

#if defined(DT_CUDA_IMPLEMENTATION) && !defined(DT__CUDA_IMPLEMENTED)
#define DT__CUDA_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__CORE_IMPLEMENTED)
#error "dt_cuda.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_CUDA_IMPLEMENTATION"
#endif
#ifdef DT_USE_CUDA
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(CUDA);
DT__NEEDS(CUDA, CORE);
#ifndef DT_STATIC
const dt__cuda_exchange *dt__cuda_exchanged_by;
#endif

#ifndef DT_USE_CUDA
static void *dt__cuda_none(const char *call)
{
    dt_fail(DT_ERR_DEVICE, "%s: this program was built without CUDA (DT_USE_CUDA)", call);
    return NULL;
}
DT_API int        dt_cuda_count(void) { return 0; }
DT_API dt_device *dt_cuda(int index)
{
    (void)index;
    return (dt_device *)dt__cuda_none("dt_cuda");
}
DT_API dt_status dt_cuda_set_with(dt_device *dev, dt_cuda_opts o)
{
    (void)dev, (void)o;
    dt__cuda_none("dt_cuda_set");
    return DT_ERR_DEVICE;
}
DT_API dt_cuda_stats dt_cuda_get_stats(dt_device *dev)
{
    dt_cuda_stats s;
    (void)dev;
    memset(&s, 0, sizeof s);
    return s;
}
DT_API void *dt_cuda_copy_stream(dt_device *dev) { return dev ? dt__cuda_none("dt_cuda_copy_stream") : NULL; }
DT_API void *dt_cuda_comm_stream(dt_device *dev) { return dev ? dt__cuda_none("dt_cuda_comm_stream") : NULL; }
DT_API void *dt_cuda_host_alloc(size_t nbytes) { return nbytes ? dt__cuda_none("dt_cuda_host_alloc") : NULL; }
DT_API void  dt_cuda_host_free(void *ptr) { (void)ptr; }
#else

enum {
    DT__CUDA_ALIGN = 512,      /* bytes: blocks are multiples of it */
    DT__CUDA_UNIT = 2 << 20,   /* bytes: segments are multiples of it */
    DT__CUDA_SMALL = 1 << 20,  /* bytes: smaller blocks come from segments of 2 MiB */
    DT__CUDA_LARGE = 10 << 20, /* bytes: smaller blocks come from segments of 20 MiB, larger ones have their own */
    DT__CUDA_STAGE = 4 << 20,  /* bytes of each of the two pinned buffers for uploads */
    DT__CUDA_SCRATCH = 65536,  /* bytes: the smallest scratch of a stream */
    DT__CUDA_BATCH = 65535,    /* matrices of one call of cuBLAS */
    DT__CUDA_ALGOS = 8,        /* algorithms that cuDNN may name for a convolution; it has 8, 6 and 7 */
    DT__CUDA_CHAINS = 256,     /* of the table of convolutions */
    DT__CUDA_BLAS_SPACE = 8 << 20, /* bytes of cuBLAS's workspace, if results must be the same in every run */
    DT__CUDA_SLOTS = 16        /* streams whose order is tracked, see dt__cuda_queue.behind */
};
enum { /* scratch blocks of a stream */
    DT__SPACE_KERNELS,
    DT__SPACE_LIBRARIES, /* workspaces, copies of operands in a form that the library reads */
    DT__SPACE_F32,       /* operands converted to f32; blocks of other devices */
    DT__SPACE_BLAS,      /* see dt__cuda_queue.fixed */
    DT__SPACE_COUNT
};

/* A stream with its own library handles and scratch, so that threads on different streams share none of them. */
typedef struct dt__cuda_queue {
    struct dt__cuda_queue *next;
    cudaStream_t           stream;
    cudaEvent_t            event; /* for order() */
    cublasHandle_t         blas;  /* NULL until first used */
    bool                   fixed; /* blas has a workspace of ours, so that its results are the same in every run */
    cudnnHandle_t          dnn;   /* NULL until first used */
    void                  *scratch[DT__SPACE_COUNT]; /* by DT__SPACE_... */
    size_t                 scratch_n[DT__SPACE_COUNT];
    dt__cuda_bad          *bad;                        /* pinned */
    int                    slot;                       /* 1..DT__CUDA_SLOTS; 0: all slots were taken */
    uint64_t               behind[DT__CUDA_SLOTS + 1]; /* by slot: the last watched call that this stream waits for */
} dt__cuda_queue;
typedef struct dt__cuda_piece { /* a block of a segment, used or free; the list is in the order of addresses */
    struct dt__cuda_piece *next, *before;
    char                  *ptr;
    size_t                 nbytes;
    bool                   used;
} dt__cuda_piece;
typedef struct dt__cuda_segment { /* one cudaMalloc */
    struct dt__cuda_segment *next;
    dt__cuda_piece          *first;
    size_t                   nbytes;
} dt__cuda_segment;
typedef struct dt__cuda_descs {
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
} dt__cuda_descs;
typedef struct dt__cuda_algo {
    int                          algo, math;
    cudnnConvolutionDescriptor_t conv;
    size_t                       nbytes; /* of its workspace */
} dt__cuda_algo;
typedef struct dt__cuda_conv { /* what is known of a convolution: it is never freed, and only `first` and `told` change */
    struct dt__cuda_conv *next;
    int64_t               key[24]; /* shapes, dtypes and options, see dt__conv_key() */
    int64_t               batch;
    dt__cuda_descs        descs;
    dt__cuda_algo         algo[DT__CUDA_ALGOS]; /* the best one first */
    int                   nalgos, first;        /* those before `first` have failed */
    bool                  told;                 /* that it is computed in f32 */
} dt__cuda_conv;
typedef struct dt__cuda_stage { /* a pinned buffer of uploads */
    void           *host;
    cudaEvent_t     done;  /* recorded behind the copy out of host */
    bool            busy;  /* done has been recorded and not waited for */
    dt__cuda_queue *queue; /* where done was recorded */
    uint64_t        calls; /* the last watched call before done */
} dt__cuda_stage;
/* lock protects opts, more, segments, convs, stats, slots, peers, every queue's behind and the reading of its bad; staging protects
   stage and stage_next. calls is atomic. staging may be held while lock is taken, not the other way round. */
typedef struct dt__cuda_dev {
    int               index, processors, capability;
    dt_device        *dev;
    struct {
        bool   tf32, deterministic, search;
        int    layout; /* -1: by dtype */
        size_t workspace;
    } opts;
    dt__cuda_queue    compute, copy, comm;
    dt__cuda_queue   *more; /* those of stream_new() */
    dt__cuda_segment *segments;
    dt__cuda_conv    *convs[DT__CUDA_CHAINS];
    dt__cuda_stage    stage[2];
    int               stage_next;
    dt_cuda_stats     stats;
    unsigned          slots; /* bit i: slot i is taken */
    uint64_t          peers; /* bit i: peer access to device i is enabled, or impossible */
    uint64_t          calls; /* watched calls so far (dt__cuda_watched): they are numbered from 1 */
    pthread_mutex_t   lock, staging;
} dt__cuda_dev;

static pthread_mutex_t dt__cuda_lock = PTHREAD_MUTEX_INITIALIZER; /* protects dt__cuda_devices */
static dt__cuda_dev   *dt__cuda_devices[DT__CUDA_DEVICES];

static dt__cuda_dev *dt__cuda_of(dt_device *dev) { return (dt__cuda_dev *)dt_device_impl(dev); }

/* ==================================================================================================== >>status */
#define DT__CUDA_LOST                                                                                   \
    "; a kernel has failed, and every call on this device fails from here on: start the program again " \
    "(CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer shows which kernel)"
/* Errors that corrupt the context: every later call of this process on the device fails. */
static bool dt__cuda_is_lost(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable: return true;
    default: return false;
    }
}
int dt__cuda_check(int cuda_error, const char *what)
{
    cudaError_t e = (cudaError_t)cuda_error;
    int         index = -1;
    if (e == cudaSuccess) return 0;
    (void)cudaGetLastError(); /* reported here: clear it */
    if (cudaGetDevice(&index) != cudaSuccess) (void)cudaGetLastError();
    return dt_fail(e == cudaErrorMemoryAllocation ? DT_ERR_MEMORY : DT_ERR_DEVICE, "cuda:%d: %s: %s (%s)%s", index,
                   what, cudaGetErrorString(e), cudaGetErrorName(e), dt__cuda_is_lost(e) ? DT__CUDA_LOST : "");
}
/* A library call has failed. The cause may be a kernel that was queued before, so wait for the device and look. */
static int dt__cuda_library(dt_status code, const char *what, const char *text)
{
    cudaError_t e = cudaDeviceSynchronize();
    int         index = -1;
    if (e != cudaSuccess) (void)cudaGetLastError();
    if (cudaGetDevice(&index) != cudaSuccess) (void)cudaGetLastError();
    if (dt__cuda_is_lost(e))
        return dt_fail(DT_ERR_DEVICE, "cuda:%d: %s: %s, after %s (%s)" DT__CUDA_LOST, index, what, text,
                       cudaGetErrorString(e), cudaGetErrorName(e));
    return dt_fail(code, "cuda:%d: %s: %s", index, what, text);
}
static int dt__cublas_check(cublasStatus_t s, const char *what)
{
    char text[160];
    if (s == CUBLAS_STATUS_SUCCESS) return 0;
    snprintf(text, sizeof text, "%s (%s)", cublasGetStatusString(s), cublasGetStatusName(s));
    return dt__cuda_library(s == CUBLAS_STATUS_ALLOC_FAILED ? DT_ERR_MEMORY : DT_ERR_DEVICE, what, text);
}
static int dt__cudnn_check(cudnnStatus_t s, const char *what)
{
    if (s == CUDNN_STATUS_SUCCESS) return 0;
    return dt__cuda_library(DT_ERR_DEVICE, what, cudnnGetErrorString(s));
}
/* Says why there is no GPU; e is the error of cudaGetDeviceCount. */
static void dt__cuda_absent(int e)
{
    int have = 0, want = 0;
    if (cudaDriverGetVersion(&have) != cudaSuccess || cudaRuntimeGetVersion(&want) != cudaSuccess) have = 0;
    (void)cudaGetLastError();
    if (e == (int)cudaErrorInsufficientDriver && have > 0)
        dt_fail(DT_ERR_DEVICE,
                "dt_cuda: no GPU: the driver is for CUDA %d.%d, this program for %d.%d; install a newer driver, or "
                "compute on the CPU",
                have / 1000, have % 1000 / 10, want / 1000, want % 1000 / 10);
    else if (e == (int)cudaErrorInsufficientDriver)
        dt_fail(DT_ERR_DEVICE, "dt_cuda: no GPU: there is no NVIDIA driver; install one, or compute on the CPU");
    else if (e == (int)cudaSuccess || e == (int)cudaErrorNoDevice)
        dt_fail(DT_ERR_DEVICE, "dt_cuda: no GPU: the driver finds none; see what nvidia-smi lists and what "
                               "CUDA_VISIBLE_DEVICES hides, or compute on the CPU");
    else
        dt_fail(DT_ERR_DEVICE, "dt_cuda: no GPU: cudaGetDeviceCount: %s (%s)", cudaGetErrorString((cudaError_t)e),
                cudaGetErrorName((cudaError_t)e));
}
/* Makes d the current device of the thread. */
static int dt__cuda_enter(const dt__cuda_dev *d)
{
    return dt__cuda_check((int)cudaSetDevice(d->index), "cudaSetDevice");
}

/* ==================================================================================================== >>allocator
   Best fit: a block is cut from the smallest free piece that is large enough; free neighbours are merged; a segment that
   is entirely free goes back to the driver. If the driver has no room for a segment, a block gets one of its own size, and if
   it has none for that, a free piece of any segment. dt.h caches freed tensors by size and stream, so a block comes back here only
   when dt.h empties its cache. dt__cuda_free() then waits for the device, so that any stream may use the block next.
   Any thread may call; d->lock is held inside. */
static size_t dt__cuda_segment_for(size_t nbytes)
{
    size_t unit = DT__CUDA_UNIT;
    if (nbytes < DT__CUDA_SMALL) return unit;
    if (nbytes < DT__CUDA_LARGE) return 10 * unit;
    return (nbytes + unit - 1) / unit * unit;
}
static dt__cuda_piece *dt__cuda_cut(dt__cuda_dev *d, dt__cuda_piece *p, size_t nbytes)
{
    size_t least = nbytes < DT__CUDA_SMALL ? DT__CUDA_ALIGN : DT__CUDA_SMALL;
    if (p->nbytes - nbytes >= least) { /* the rest stays free */
        dt__cuda_piece *rest = (dt__cuda_piece *)dt_mem_alloc(sizeof *rest);
        if (rest) {
            rest->ptr = p->ptr + nbytes;
            rest->nbytes = p->nbytes - nbytes;
            rest->used = false;
            rest->before = p;
            rest->next = p->next;
            if (p->next) p->next->before = rest;
            p->next = rest;
            p->nbytes = nbytes;
        }
    }
    p->used = true;
    d->stats.blocks++;
    d->stats.used += p->nbytes;
    if (d->stats.used > d->stats.peak) d->stats.peak = d->stats.used;
    return p;
}
static dt__cuda_piece *dt__cuda_fit(dt__cuda_dev *d, size_t nbytes, bool any) /* any: from a segment for other sizes */
{
    size_t          from = dt__cuda_segment_for(nbytes);
    dt__cuda_piece *best = NULL;
    for (dt__cuda_segment *s = d->segments; s; s = s->next) {
        if (!any && nbytes < DT__CUDA_LARGE && s->nbytes != from) continue;
        if (!any && nbytes >= DT__CUDA_LARGE && s->nbytes < from) continue;
        for (dt__cuda_piece *p = s->first; p; p = p->next)
            if (!p->used && p->nbytes >= nbytes && (!best || p->nbytes < best->nbytes)) best = p;
    }
    return best;
}
/* NULL without a message when out of memory: dt.h then frees its cache and tries again. */
static void *dt__cuda_malloc(dt__cuda_dev *d, size_t nbytes)
{
    void       *ptr = NULL;
    cudaError_t e = cudaMalloc(&ptr, nbytes);
    d->stats.mallocs++;
    if (e == cudaSuccess) return ptr;
    if (e != cudaErrorMemoryAllocation) dt__cuda_check((int)e, "cudaMalloc");
    (void)cudaGetLastError();
    d->stats.retries++;
    return NULL;
}
static void *dt__cuda_alloc(dt_device *dev, size_t nbytes)
{
    dt__cuda_dev *d = dt__cuda_of(dev);
    void         *ptr = NULL;
    nbytes = nbytes == 0 ? (size_t)DT__CUDA_ALIGN : (nbytes + DT__CUDA_ALIGN - 1) / DT__CUDA_ALIGN * DT__CUDA_ALIGN;
    pthread_mutex_lock(&d->lock);
    dt__cuda_piece *p = dt__cuda_fit(d, nbytes, false);
    if (!p && !dt__cuda_enter(d)) {
        dt__cuda_segment *s = (dt__cuda_segment *)dt_mem_alloc(sizeof *s);
        p = s ? (dt__cuda_piece *)dt_mem_alloc(sizeof *p) : NULL;
        size_t n = dt__cuda_segment_for(nbytes);
        ptr = p ? dt__cuda_malloc(d, n) : NULL;
        if (p && !ptr && dt__err.code == DT_OK && n > nbytes) ptr = dt__cuda_malloc(d, n = nbytes); /* no room for neighbours */
        if (!ptr) {
            dt_mem_free(p, sizeof *p);
            dt_mem_free(s, sizeof *s);
            p = dt__cuda_fit(d, nbytes, true);
        } else {
            memset(p, 0, sizeof *p);
            p->ptr = (char *)ptr;
            p->nbytes = s->nbytes = n;
            s->first = p;
            s->next = d->segments;
            d->segments = s;
            d->stats.segments++;
            d->stats.reserved += n;
        }
    }
    ptr = p ? dt__cuda_cut(d, p, nbytes)->ptr : NULL;
    pthread_mutex_unlock(&d->lock);
    return ptr;
}
static void dt__cuda_join(dt__cuda_piece *p) /* merges p with the next piece if both are free */
{
    dt__cuda_piece *q = p->next;
    if (!q || p->used || q->used) return;
    p->nbytes += q->nbytes;
    p->next = q->next;
    if (q->next) q->next->before = p;
    dt_mem_free(q, sizeof *q);
}
static void dt__cuda_free(dt_device *dev, void *ptr, size_t nbytes)
{
    dt__cuda_dev *d = dt__cuda_of(dev);
    (void)nbytes;
    if (!ptr || cudaSetDevice(d->index) != cudaSuccess) return;
    (void)cudaDeviceSynchronize(); /* queued work may still use the block; the next call reports an error of that work */
    pthread_mutex_lock(&d->lock);
    for (dt__cuda_segment **at = &d->segments; *at; at = &(*at)->next) {
        dt__cuda_segment *s = *at;
        dt__cuda_piece   *p = s->first;
        if ((char *)ptr < p->ptr || (char *)ptr >= p->ptr + s->nbytes) continue;
        while (p && p->ptr != (char *)ptr) p = p->next;
        if (!p) break;
        p->used = false;
        d->stats.blocks--;
        d->stats.used -= p->nbytes;
        dt__cuda_join(p);
        if (p->before) dt__cuda_join(p->before);
        if (!s->first->used && !s->first->next) {
            *at = s->next;
            d->stats.segments--;
            d->stats.reserved -= s->nbytes;
            (void)cudaFree(s->first->ptr);
            dt_mem_free(s->first, sizeof *s->first);
            dt_mem_free(s, sizeof *s);
        }
        break;
    }
    pthread_mutex_unlock(&d->lock);
}
static bool dt__cuda_is(dt_device *dev) { return dev && dt_device_backend(dev)->free == dt__cuda_free; }
/* dt_backend.memory_text */
static void dt__cuda_memory_text(dt_device *dev, char *text, size_t nbytes)
{
    dt__cuda_dev *d = dt__cuda_of(dev);
    dt_cuda_stats s = dt_cuda_get_stats(dev);
    size_t        unused = 0, total = 0;
    if (cudaSetDevice(d->index) != cudaSuccess || cudaMemGetInfo(&unused, &total) != cudaSuccess)
        (void)cudaGetLastError();
    snprintf(
        text, nbytes,
        "reserved %zu: used by tensors and workspaces %zu, cached %zu; the driver has %zu free of %zu; take a smaller "
        "batch, end steps earlier (dt_end), or stop what else runs on this GPU",
        s.reserved, s.used, s.reserved - s.used, unused, total);
}
/* dt_backend.adopts: is ptr memory of the device? */
static int dt__cuda_adopts(dt_device *dev, const void *ptr)
{
    dt__cuda_dev                *d = dt__cuda_of(dev);
    struct cudaPointerAttributes a;
    int                          bad = dt__cuda_enter(d);
    memset(&a, 0, sizeof a);
    if (!bad) bad = dt__cuda_check((int)cudaPointerGetAttributes(&a, ptr), "cudaPointerGetAttributes");
    if (bad || a.type == cudaMemoryTypeManaged || (a.type == cudaMemoryTypeDevice && a.device == d->index)) return bad;
    if (a.type == cudaMemoryTypeDevice)
        return dt_fail(DT_ERR_DEVICE,
                       "dt_from_blob: %p is memory of cuda:%d, not of %s; make the tensor there, and move it "
                       "with dt_to()",
                       ptr, a.device, dt_device_name(dev));
    return dt_fail(DT_ERR_DEVICE, "dt_from_blob: %p is memory of the host, not of %s; dt_from() copies it there", ptr,
                   dt_device_name(dev));
}
DT_API dt_cuda_stats dt_cuda_get_stats(dt_device *dev)
{
    dt_cuda_stats s;
    memset(&s, 0, sizeof s);
    if (!dt__cuda_is(dev)) return s;
    dt__cuda_dev *d = dt__cuda_of(dev);
    pthread_mutex_lock(&d->lock);
    s = d->stats;
    pthread_mutex_unlock(&d->lock);
    return s;
}

/* ==================================================================================================== >>device */
static dt__cuda_queue *dt__cuda_queue_of(dt__cuda_dev *d, void *stream)
{
    return stream ? (dt__cuda_queue *)stream : &d->compute;
}
void *dt__cuda_stream(dt_device *dev, void *stream)
{
    dt__cuda_dev *d = dt__cuda_of(dev);
    dt__cuda_enter(d);
    return (void *)dt__cuda_queue_of(d, stream)->stream;
}
int  dt__cuda_processors(dt_device *dev) { return dt__cuda_of(dev)->processors; }
int  dt__cuda_capability(dt_device *dev) { return dt__cuda_of(dev)->capability; }
bool dt__cuda_deterministic(dt_device *dev) { return dt__cuda_of(dev)->opts.deterministic; }
/* which: DT__SPACE_...; the blocks may be in use at the same time. NULL without a message: out of memory. */
static void *dt__cuda_space_try(dt_device *dev, void *stream, int which, size_t nbytes)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *q = dt__cuda_queue_of(d, stream);
    if (nbytes <= q->scratch_n[which] && q->scratch[which]) return q->scratch[which];
    size_t n = nbytes < DT__CUDA_SCRATCH ? (size_t)DT__CUDA_SCRATCH : nbytes + nbytes / 4;
    if (q->scratch[which]) { /* waits for the stream; rare, since the scratch only grows */
        if (dt__cuda_check((int)cudaStreamSynchronize(q->stream), "cudaStreamSynchronize")) return NULL;
        dt__cuda_free(dev, q->scratch[which], q->scratch_n[which]);
        q->scratch[which] = NULL;
        q->scratch_n[which] = 0;
    }
    q->scratch[which] = dt__cuda_alloc(dev, n);
    if (!q->scratch[which]) { /* free dt.h's cache and try again, as for a tensor */
        dt__device_trim(dev);
        q->scratch[which] = dt__cuda_alloc(dev, n);
    }
    if (!q->scratch[which] && n > nbytes) q->scratch[which] = dt__cuda_alloc(dev, n = nbytes);
    if (q->scratch[which]) q->scratch_n[which] = n;
    return q->scratch[which];
}
static void *dt__cuda_space(dt_device *dev, void *stream, int which, size_t nbytes)
{
    void *p = dt__cuda_space_try(dev, stream, which, nbytes);
    char  text[512];
    if (p || dt__err.code != DT_OK) return p;
    dt__cuda_memory_text(dev, text, sizeof text);
    dt_fail(DT_ERR_MEMORY, "cuda: out of memory for %zu bytes of workspace on %s (%s)", nbytes, dt_device_name(dev), text);
    return NULL;
}
void *dt__cuda_scratch(dt_device *dev, void *stream, size_t nbytes)
{
    return dt__cuda_space(dev, stream, DT__SPACE_KERNELS, nbytes);
}
static void dt__cuda_bad_clear(dt__cuda_bad *b)
{
    for (int i = 0; i < 3; i++) __atomic_store_n(&b->part[i], UINT64_MAX, __ATOMIC_RELAXED);
    __atomic_store_n(&b->call, 0, __ATOMIC_RELEASE); /* last: a kernel may write the record once this is 0 */
}
/* Takes the bad index of this queue if its call is known to have finished, that is if its number is at most upto. The
   caller holds d->lock. */
static bool dt__cuda_bad_take(dt__cuda_queue *q, uint64_t upto, dt__cuda_bad *out)
{
    uint64_t call = q->bad ? __atomic_load_n(&q->bad->call, __ATOMIC_ACQUIRE) : 0;
    if (!call || call > upto) return false;
    *out = *q->bad;
    dt__cuda_bad_clear(q->bad);
    return true;
}
static int dt__cuda_bad_tell(const dt__cuda_bad *b) /* the same messages as the CPU backend's */
{
    long long at = (long long)(b->part[0] >> 24), limit = (long long)b->limit;
    uint64_t  v = 0;
    for (int i = 0; i < 3; i++) v |= (uint64_t)(b->part[i] & 0xffffffu) << 24 * i;
    bool back = b->op == DT_K_cross_entropy_bwd;
    if (b->op == DT_K_cross_entropy || back)
        return dt_fail(DT_ERR_ARG,
                       "%s%s: target %lld at position %lld is out of range for %lld classes; "
                       "targets must be in 0..%lld, or equal to ignore_index (%lld)",
                       b->nll ? "nll_loss" : "cross_entropy", back ? "_bwd" : "", (long long)(int64_t)v, at, limit,
                       limit - 1, (long long)b->ignore);
    return dt_fail(DT_ERR_ARG,
                   "%s: index %lld at position %lld is out of range for %lld rows; indices must be in 0..%lld",
                   dt_kernel_name(b->op), (long long)(int64_t)v, at, limit, limit - 1);
}
static uint64_t dt__cuda_calls(dt__cuda_dev *d) { return __atomic_load_n(&d->calls, __ATOMIC_RELAXED); }
/* The host has waited for q (NULL: all queues), and upto was the number of watched calls before it waited. Reports a bad
   index of the calls that are known to have finished: those of q up to upto, and those that q waited for. */
static int dt__cuda_refused(dt__cuda_dev *d, dt__cuda_queue *q, uint64_t upto)
{
    dt__cuda_queue *each[3] = { &d->compute, &d->copy, &d->comm }, *more;
    dt__cuda_bad    b;
    bool            found = false;
    pthread_mutex_lock(&d->lock);
    more = d->more;
    for (int i = 0; (i < 3 || more) && !found; i++) {
        dt__cuda_queue *x = i < 3 ? each[i] : more;
        if (i >= 3) more = more->next;
        found = dt__cuda_bad_take(x, !q || x == q ? upto : q->behind[x->slot], &b);
    }
    pthread_mutex_unlock(&d->lock);
    return found ? dt__cuda_bad_tell(&b) : 0;
}
dt__cuda_watch dt__cuda_watched(dt_device *dev, const dt_call *c, int64_t limit)
{
    dt__cuda_dev  *d = dt__cuda_of(dev);
    dt__cuda_watch w;
    memset(&w, 0, sizeof w);
    w.at = dt__cuda_queue_of(d, c->stream)->bad;
    w.call = __atomic_add_fetch(&d->calls, 1, __ATOMIC_RELAXED);
    w.limit = limit;
    w.op = c->op;
    if (c->op == DT_K_cross_entropy || c->op == DT_K_cross_entropy_bwd) {
        w.ignore = c->u.loss.ignore;
        w.nll = c->u.loss.nll;
    } else w.ignore = -1; /* ignores nothing: -1 is out of range */
    return w;
}
static int dt__cuda_queue_begin(dt__cuda_dev *d, dt__cuda_queue *q)
{
    memset(q, 0, sizeof *q);
    pthread_mutex_lock(&d->lock);
    for (int i = DT__CUDA_SLOTS; i > 0; i--)
        if (!(d->slots >> i & 1u)) q->slot = i;
    if (q->slot) d->slots |= 1u << q->slot;
    pthread_mutex_unlock(&d->lock);
    int bad =
        dt__cuda_check((int)cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    if (!bad)
        bad = dt__cuda_check((int)cudaEventCreateWithFlags(&q->event, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags");
    if (!bad)
        bad =
            dt__cuda_check((int)cudaHostAlloc((void **)&q->bad, sizeof *q->bad, cudaHostAllocMapped), "cudaHostAlloc");
    if (!bad) dt__cuda_bad_clear(q->bad);
    return bad;
}
static void dt__cuda_queue_end(dt_device *dev, dt__cuda_dev *d, dt__cuda_queue *q)
{
    dt__cuda_bad b;
    if (q->stream) (void)cudaStreamSynchronize(q->stream);
    pthread_mutex_lock(&d->lock);
    bool found = dt__cuda_bad_take(q, UINT64_MAX, &b);
    if (q->slot) d->slots &= ~(1u << q->slot);
    pthread_mutex_unlock(&d->lock);
    if (found) dt__cuda_bad_tell(&b); /* report it now: the record is freed below */
    if (q->bad) (void)cudaFreeHost(q->bad);
    if (q->blas) (void)cublasDestroy(q->blas);
    if (q->dnn) (void)cudnnDestroy(q->dnn);
    for (int i = 0; i < DT__SPACE_COUNT; i++)
        if (q->scratch[i]) dt__cuda_free(dev, q->scratch[i], q->scratch_n[i]);
    if (q->event) (void)cudaEventDestroy(q->event);
    if (q->stream) (void)cudaStreamDestroy(q->stream);
    memset(q, 0, sizeof *q);
}
static void *dt__cuda_stream_new(dt_device *dev)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *q = (dt__cuda_queue *)dt_mem_alloc(sizeof *q);
    if (!q) {
        dt_fail(DT_ERR_MEMORY, "cuda: out of host memory for a stream (%zu bytes)", sizeof *q);
        return NULL;
    }
    if (dt__cuda_enter(d) || dt__cuda_queue_begin(d, q)) {
        dt__cuda_queue_end(dev, d, q);
        dt_mem_free(q, sizeof *q);
        return NULL;
    }
    pthread_mutex_lock(&d->lock);
    q->next = d->more;
    d->more = q;
    pthread_mutex_unlock(&d->lock);
    return q;
}
static void dt__cuda_stream_free(dt_device *dev, void *stream)
{
    dt__cuda_dev *d = dt__cuda_of(dev);
    bool          found = false;
    pthread_mutex_lock(&d->lock);
    for (dt__cuda_queue **at = &d->more; *at && !found; at = &(*at)->next)
        if (*at == stream) {
            *at = (*at)->next;
            found = true;
            break;
        }
    pthread_mutex_unlock(&d->lock);
    if (!found || dt__cuda_enter(d)) return;
    dt__cuda_queue_end(dev, d, (dt__cuda_queue *)stream);
    dt_mem_free(stream, sizeof(dt__cuda_queue));
}
static dt__cuda_dev *dt__cuda_asked_of(const char *call, dt_device *dev)
{
    if (dt__cuda_is(dev)) return dt__cuda_of(dev);
    if (dev) dt_fail(DT_ERR_ARG, "%s: %s is not a CUDA device; pass one that dt_cuda() returned", call, dt_device_name(dev));
    return NULL;
}
DT_API void *dt_cuda_copy_stream(dt_device *dev)
{
    dt__cuda_dev *d = dt__cuda_asked_of("dt_cuda_copy_stream", dev);
    return d ? &d->copy : NULL;
}
DT_API void *dt_cuda_comm_stream(dt_device *dev)
{
    dt__cuda_dev *d = dt__cuda_asked_of("dt_cuda_comm_stream", dev);
    return d ? &d->comm : NULL;
}

/* Copies through two pinned buffers, one filled by the host while the device reads the other. When this returns, the
   caller may reuse host, and the last copies may still be running. */
static int dt__cuda_upload(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *q = dt__cuda_queue_of(d, stream);
    cudaStream_t    s = (cudaStream_t)dt__cuda_stream(dev, stream);
    int             bad = 0;
    pthread_mutex_lock(&d->staging);
    for (size_t at = 0; at < nbytes && !bad;) {
        dt__cuda_stage *g = &d->stage[d->stage_next];
        size_t          n = nbytes - at < DT__CUDA_STAGE ? nbytes - at : (size_t)DT__CUDA_STAGE;
        d->stage_next = !d->stage_next;
        if (!g->host)
            bad = dt__cuda_check((int)cudaHostAlloc(&g->host, DT__CUDA_STAGE, cudaHostAllocDefault), "cudaHostAlloc");
        if (!bad && !g->done)
            bad = dt__cuda_check((int)cudaEventCreateWithFlags(&g->done, cudaEventDisableTiming),
                                 "cudaEventCreateWithFlags");
        if (!bad && g->busy) bad = dt__cuda_check((int)cudaEventSynchronize(g->done), "cudaEventSynchronize");
        if (!bad && g->busy && g->queue == q) bad = dt__cuda_refused(d, q, g->calls);
        if (bad) break;
        g->busy = false;
        g->queue = q;
        g->calls = dt__cuda_calls(d);
        memcpy(g->host, (const char *)host + at, n);
        bad = dt__cuda_check((int)cudaMemcpyAsync((char *)dst + at, g->host, n, cudaMemcpyHostToDevice, s),
                             "cudaMemcpyAsync");
        if (!bad) bad = dt__cuda_check((int)cudaEventRecord(g->done, s), "cudaEventRecord");
        g->busy = !bad;
        at += n;
    }
    pthread_mutex_unlock(&d->staging);
    return bad;
}
static int dt__cuda_download(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *q = dt__cuda_queue_of(d, stream);
    cudaStream_t    s = (cudaStream_t)dt__cuda_stream(dev, stream);
    uint64_t        calls = dt__cuda_calls(d);
    int             bad = 0;
    if (nbytes)
        bad = dt__cuda_check((int)cudaMemcpyAsync(host, src, nbytes, cudaMemcpyDeviceToHost, s), "cudaMemcpyAsync");
    if (!bad) bad = dt__cuda_check((int)cudaStreamSynchronize(s), "cudaStreamSynchronize");
    return bad ? bad : dt__cuda_refused(d, q, calls);
}
/* dt.h's storages may name a stream that has been freed; stream_free() waited for its work. */
static bool dt__cuda_lives(dt__cuda_dev *d, const dt__cuda_queue *q)
{
    bool found = q == &d->compute || q == &d->copy || q == &d->comm;
    if (found) return true;
    pthread_mutex_lock(&d->lock);
    for (dt__cuda_queue *x = d->more; x && !found; x = x->next) found = x == q;
    pthread_mutex_unlock(&d->lock);
    return found;
}
static int dt__cuda_wait(dt_device *dev, void *stream)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *q = (dt__cuda_queue *)stream;
    int             bad = dt__cuda_enter(d);
    uint64_t        calls = bad ? 0 : dt__cuda_calls(d);
    if (bad || (q && !dt__cuda_lives(d, q))) return bad;
    if (!q) bad = dt__cuda_check((int)cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    else bad = dt__cuda_check((int)cudaStreamSynchronize(q->stream), "cudaStreamSynchronize");
    return bad ? bad : dt__cuda_refused(d, q, calls);
}
static int dt__cuda_order(dt_device *dev, void *after, void *before)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *a = dt__cuda_queue_of(d, after), *b = dt__cuda_queue_of(d, before);
    uint64_t        calls = dt__cuda_calls(d);
    if (a == b || !dt__cuda_lives(d, b)) return 0;
    if (!dt__cuda_lives(d, a)) return dt__cuda_wait(dev, b);
    int bad = dt__cuda_enter(d);
    if (!bad) bad = dt__cuda_check((int)cudaEventRecord(b->event, b->stream), "cudaEventRecord");
    if (!bad) bad = dt__cuda_check((int)cudaStreamWaitEvent(a->stream, b->event, 0), "cudaStreamWaitEvent");
    pthread_mutex_lock(&d->lock);
    for (int i = 1; i <= DT__CUDA_SLOTS && !bad; i++)
        if (b->behind[i] > a->behind[i]) a->behind[i] = b->behind[i];
    if (!bad && b->slot) a->behind[b->slot] = calls;
    pthread_mutex_unlock(&d->lock);
    return bad;
}
static int dt__cuda_image_layout(dt_device *dev, int kernel, int dtype)
{
    int layout = dt__cuda_of(dev)->opts.layout;
    (void)kernel;
    return layout >= 0 ? layout : dtype == DT_F16 || dtype == DT_BF16 ? (int)DT_LAYOUT_NHWC : (int)DT_LAYOUT_PLAIN;
}
DT_API void *dt_cuda_host_alloc(size_t nbytes)
{
    void *p = NULL;
    if (dt__cuda_check((int)cudaHostAlloc(&p, nbytes ? nbytes : 1, cudaHostAllocPortable), "cudaHostAlloc"))
        return NULL;
    return p;
}
DT_API void dt_cuda_host_free(void *ptr)
{
    if (ptr) (void)cudaFreeHost(ptr);
}

/* ---- for data loaders and pipelines: asynchronous copies from and to pinned memory, marks that say when a copy is done */
static void *dt__cuda_pinned(dt_device *dev, size_t nbytes)
{
    void *p = NULL;
    if (cudaSetDevice(dt__cuda_of(dev)->index) == cudaSuccess &&
        cudaHostAlloc(&p, nbytes ? nbytes : 1, cudaHostAllocPortable) == cudaSuccess)
        return p;
    (void)cudaGetLastError(); /* the caller reports the error */
    return NULL;
}
static void dt__cuda_pinned_free(dt_device *dev, void *ptr, size_t nbytes)
{
    (void)dev, (void)nbytes;
    dt_cuda_host_free(ptr);
}
static int dt__cuda_upload_later(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes)
{
    cudaStream_t s = (cudaStream_t)dt__cuda_stream(dev, stream);
    if (!nbytes) return 0;
    return dt__cuda_check((int)cudaMemcpyAsync(dst, host, nbytes, cudaMemcpyHostToDevice, s), "cudaMemcpyAsync");
}
static int dt__cuda_download_later(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes)
{
    cudaStream_t s = (cudaStream_t)dt__cuda_stream(dev, stream);
    if (!nbytes) return 0;
    return dt__cuda_check((int)cudaMemcpyAsync(host, src, nbytes, cudaMemcpyDeviceToHost, s), "cudaMemcpyAsync");
}
static int dt__cuda_mark(dt_device *dev, void *stream, void **mark)
{
    cudaStream_t s = (cudaStream_t)dt__cuda_stream(dev, stream);
    cudaEvent_t  e = (cudaEvent_t)*mark;
    int          bad = 0;
    if (!e) /* BlockingSync: the thread that waits sleeps, and leaves its core to the workers */
        bad = dt__cuda_check((int)cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventBlockingSync),
                             "cudaEventCreateWithFlags");
    if (bad) return bad;
    *mark = (void *)e;
    return dt__cuda_check((int)cudaEventRecord(e, s), "cudaEventRecord");
}
static int dt__cuda_passed(dt_device *dev, void *mark, bool wait, bool *yes)
{
    int         bad = dt__cuda_enter(dt__cuda_of(dev));
    cudaError_t e = bad ? cudaSuccess : cudaEventQuery((cudaEvent_t)mark);
    *yes = false;
    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (!wait) return 0;
        e = cudaEventSynchronize((cudaEvent_t)mark);
    }
    if (!bad) bad = dt__cuda_check((int)e, "an asynchronous copy");
    *yes = !bad;
    return bad;
}
static void dt__cuda_mark_free(dt_device *dev, void *mark)
{
    if (mark && !dt__cuda_enter(dt__cuda_of(dev))) (void)cudaEventDestroy((cudaEvent_t)mark);
}

/* ==================================================================================================== >>gemm
   cuBLAS is column-major: it sees a row-major matrix as its transpose. So c = a b is computed as c' = b' a'. */
/* Sums are in f32 also where results are halves: without the flag cuBLAS may add partial sums in the type of the result.
   The same call gives the same bits in every run as long as its workspace does not change; cuBLAS's own may, where several
   streams are in use. */
static int dt__cuda_blas_fix(dt__cuda_dev *d, dt__cuda_queue *q)
{
    size_t n = d->opts.deterministic ? (size_t)DT__CUDA_BLAS_SPACE : 0;
    void  *space = n ? dt__cuda_space(d->dev, q, DT__SPACE_BLAS, n) : NULL;
    if (n && !space) return DT_ERR_MEMORY;
    int bad = dt__cublas_check(cublasSetWorkspace(q->blas, space, n), "cublasSetWorkspace");
    q->fixed = !bad && n > 0;
    return bad;
}
static cublasHandle_t dt__cuda_blas(dt__cuda_dev *d, dt__cuda_queue *q)
{
    if (q->blas && q->fixed == d->opts.deterministic) return q->blas;
    if (q->blas) return dt__cuda_blas_fix(d, q) ? NULL : q->blas;
    cublasStatus_t s = cublasCreate(&q->blas);
    if (s != CUBLAS_STATUS_SUCCESS) { /* cuBLAS allocates device memory: free dt.h's cache and try again */
        dt__device_trim(d->dev);
        s = cublasCreate(&q->blas);
    }
    if (s != CUBLAS_STATUS_SUCCESS) {
        q->blas = NULL;
        dt__cublas_check(s, "cublasCreate");
        return NULL;
    }
    if (dt__cublas_check(cublasSetStream(q->blas, q->stream), "cublasSetStream")) return NULL;
    cublasMath_t math = (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (dt__cublas_check(cublasSetMathMode(q->blas, math), "cublasSetMathMode")) return NULL;
    return d->opts.deterministic && dt__cuda_blas_fix(d, q) ? NULL : q->blas;
}
static cudaDataType_t dt__cuda_type(int dtype)
{
    return dtype == DT_F16 ? CUDA_R_16F : dtype == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}
static void dt__cuda_call(dt_call *k, int op, const dt_call *like)
{
    memset(k, 0, sizeof *k);
    k->op = op;
    k->stream = like->stream;
}
static size_t dt__cuda_bytes(const dt_view *v) /* of a dense copy, rounded up to DT__CUDA_ALIGN */
{
    size_t n = dt_dtype_nbytes((dt_dtype)v->dtype);
    for (int i = 0; i < v->ndim; i++) n *= (size_t)v->shape[i];
    return (n + DT__CUDA_ALIGN - 1) / DT__CUDA_ALIGN * DT__CUDA_ALIGN;
}
static bool dt__cuda_empty(const dt_view *v)
{
    for (int i = 0; i < v->ndim; i++)
        if (v->shape[i] == 0) return true;
    return false;
}
static void dt__cuda_dense(dt_view *v) /* sets the strides of a dense tensor */
{
    int64_t n = 1;
    for (int i = v->ndim - 1; i >= 0; i--) {
        v->stride[i] = n;
        n *= v->shape[i];
    }
    v->layout = DT_LAYOUT_PLAIN;
}
/* y = x in y's dtype and strides; with add, y += x. */
static int dt__cuda_move(dt_device *dev, const dt_call *like, const dt_view *y, const dt_view *x, bool add)
{
    dt_call k;
    dt__cuda_call(&k, DT_K_copy, like);
    k.nout = k.nin = 1;
    k.out[0] = *y;
    k.in[0] = *x;
    k.acc = add;
    return dt__cuda_copy(dev, &k);
}
static int dt__cuda_zero(dt_device *dev, const dt_call *like, const dt_view *y)
{
    dt_call k;
    dt__cuda_call(&k, DT_K_fill, like);
    k.nout = 1;
    k.out[0] = *y;
    return dt__cuda_fill(dev, &k);
}
/* The leading dimension and *op of the matrix in the last two dimensions of v. 0: no stride is 1, cuBLAS cannot read it. */
static int64_t dt__cuda_lead(const dt_view *v, cublasOperation_t *op)
{
    int64_t rows = v->shape[v->ndim - 2], cols = v->shape[v->ndim - 1];
    int64_t r = v->stride[v->ndim - 2], c = v->stride[v->ndim - 1];
    bool    plain = c == 1 || cols == 1;
    if (plain && rows == 1) r = cols;
    if (plain && r >= cols) {
        *op = CUBLAS_OP_N;
        return r > 0 ? r : 1;
    }
    if (cols == 1) c = rows;
    if ((r == 1 || rows == 1) && c >= rows) {
        *op = CUBLAS_OP_T;
        return c > 0 ? c : 1;
    }
    return 0;
}
/* One product for each index of the batch. Batch dimensions that can be merged in all operands go into one call. */
int dt__cuda_matmul(dt_device *dev, const dt_call *c, const dt_view *y, const dt_view *a, const dt_view *b, float alpha, float beta)
{
    dt__cuda_dev     *d = dt__cuda_of(dev);
    dt__cuda_queue   *q = dt__cuda_queue_of(d, c->stream);
    cublasHandle_t    h = dt__cuda_enter(d) ? NULL : dt__cuda_blas(d, q);
    cublasOperation_t oa, ob;
    int64_t           la = dt__cuda_lead(a, &oa), lb = dt__cuda_lead(b, &ob), n[DT_MAX_DIMS], step[3][DT_MAX_DIMS];
    int64_t           m = y->shape[y->ndim - 2], cols = y->shape[y->ndim - 1], k = a->shape[a->ndim - 1], outer = 1;
    int64_t           ly = y->stride[y->ndim - 2] > cols ? y->stride[y->ndim - 2] : cols;
    int               nd = 0;
    if (!h) return DT_ERR_DEVICE;
    if (m > INT_MAX || cols > INT_MAX || k > INT_MAX || la > INT_MAX || lb > INT_MAX || ly > INT_MAX)
        return dt_fail(DT_ERR_SHAPE,
                       "cuda: gemm: m, n, k of %" PRId64 ", %" PRId64 ", %" PRId64
                       " or a row stride is above 2^31 - 1, cuBLAS's limit; split the product",
                       m, cols, k);
    for (int i = 0; i < y->ndim - 2; i++) {
        const dt_view *v[3] = { y, a, b };
        bool           joins = nd > 0;
        if (y->shape[i] == 1) continue;
        for (int j = 0; j < 3 && joins; j++) joins = step[j][nd - 1] == v[j]->stride[i] * y->shape[i];
        if (!joins) n[nd++] = 1;
        n[nd - 1] *= y->shape[i];
        for (int j = 0; j < 3; j++) step[j][nd - 1] = v[j]->stride[i];
    }
    int64_t batch = nd ? n[nd - 1] : 1;
    for (int i = 0; i < nd - 1; i++) outer *= n[i];
    cublasComputeType_t type = a->dtype == DT_F32 && d->opts.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    size_t              sa = dt_dtype_nbytes((dt_dtype)a->dtype), sy = dt_dtype_nbytes((dt_dtype)y->dtype);
    for (int64_t i = 0; i < outer; i++) {
        int64_t at[3] = { 0, 0, 0 }, rest = i;
        for (int j = nd - 2; j >= 0; j--) {
            for (int v = 0; v < 3; v++) at[v] += rest % n[j] * step[v][j];
            rest /= n[j];
        }
        for (int64_t done = 0; done < batch;) {
            int count = batch - done > DT__CUDA_BATCH ? (int)DT__CUDA_BATCH : (int)(batch - done);
            for (int v = 0; v < 3 && nd; v++) at[v] += done ? DT__CUDA_BATCH * step[v][nd - 1] : 0;
            int bad = dt__cublas_check(
                cublasGemmStridedBatchedEx(h, ob, oa, (int)cols, (int)m, (int)k, &alpha,
                                           (char *)b->data + (size_t)at[2] * sa, dt__cuda_type(b->dtype), (int)lb,
                                           nd ? step[2][nd - 1] : 0, (char *)a->data + (size_t)at[1] * sa,
                                           dt__cuda_type(a->dtype), (int)la, nd ? step[1][nd - 1] : 0, &beta,
                                           (char *)y->data + (size_t)at[0] * sy, dt__cuda_type(y->dtype), (int)ly,
                                           nd ? step[0][nd - 1] : 0, count, type, CUBLAS_GEMM_DEFAULT),
                "cublasGemmStridedBatchedEx");
            if (bad) return bad;
            done += count;
        }
    }
    return 0;
}
/* Adding a bias or applying an activation to a product in f16 or bf16 would round the product before, too. So for such a c, either c is
   first set to the bias and the product is added to it (begins), or the product is computed in f32 (through). */
int dt__cuda_gemm(dt_device *dev, const dt_call *c)
{
    dt_view           y = c->out[0], a = c->in[0], b = c->in[1];
    const dt_view    *bias = &c->in[2];
    cublasOperation_t op;
    int               dtype = a.dtype == b.dtype ? a.dtype : (int)DT_F32, bad = 0, act = c->u.gemm.act;
    bool              biased = c->nin > 2 && bias->ndim >= 0, add = c->acc & 1, halves = y.dtype != DT_F32;
    bool              copy_a = a.dtype != dtype || !dt__cuda_lead(&a, &op);
    bool              copy_b = b.dtype != dtype || !dt__cuda_lead(&b, &op);
    bool              exact = act == DT_ACT_NONE || act == DT_ACT_RELU; /* these do not round */
    bool              begins = halves && biased && exact && !add && bias->dtype == y.dtype;
    bool              through = (halves && y.dtype != dtype) || (halves && (!exact || (biased && !begins))) ||
                   (add && (biased || act != DT_ACT_NONE));
    dt_view none = c->out[0], ta = a, tb = b, ty = y;
    none.ndim = -1;
    if (dt__cuda_empty(&y)) return 0;
    if (through) begins = false;
    ta.dtype = tb.dtype = dtype;
    ty.dtype = DT_F32;
    dt__cuda_dense(&ta);
    dt__cuda_dense(&tb);
    dt__cuda_dense(&ty);
    size_t need =
        (copy_a ? dt__cuda_bytes(&ta) : 0) + (copy_b ? dt__cuda_bytes(&tb) : 0) + (through ? dt__cuda_bytes(&ty) : 0);
    char *at = need ? (char *)dt__cuda_space(dev, c->stream, DT__SPACE_LIBRARIES, need) : NULL;
    if (need && !at) return DT_ERR_MEMORY;
    if (copy_a) {
        ta.data = at;
        at += dt__cuda_bytes(&ta);
        bad = dt__cuda_move(dev, c, &ta, &a, false);
        a = ta;
    }
    if (copy_b && !bad) {
        tb.data = at;
        at += dt__cuda_bytes(&tb);
        bad = dt__cuda_move(dev, c, &tb, &b, false);
        b = tb;
    }
    if (through) ty.data = at;
    if (begins && !bad) {
        dt_view rows = y; /* the bias, broadcast to all rows */
        rows.data = bias->data;
        for (int i = 0; i < rows.ndim; i++) rows.stride[i] = i == rows.ndim - 1;
        bad = dt__cuda_move(dev, c, &y, &rows, false);
    }
    const dt_view *to = through ? &ty : &y;
    bool           onto = begins || (add && !through);
    if (!bad && a.shape[a.ndim - 1] == 0) {
        if (!onto) bad = dt__cuda_zero(dev, c, to);
    } else if (!bad) bad = dt__cuda_matmul(dev, c, to, &a, &b, (float)c->u.gemm.alpha, onto ? 1.0f : 0.0f);
    if (begins) biased = false;
    if (!bad && (biased || act != DT_ACT_NONE))
        bad = dt__cuda_epilogue(dev, c->stream, to, biased ? bias : &none, to->ndim - 1, act);
    if (!bad && through) bad = dt__cuda_move(dev, c, &y, &ty, add);
    return bad;
}

/* ==================================================================================================== >>conv
   cuDNN's legacy API: descriptors of images, weights and the convolution, an algorithm and its workspace. For each shape cuDNN is
   asked once for its algorithms, in the order of its heuristics or, with the option search, of measured times; the descriptors and
   the list are kept. A batch that is smaller than one that was asked for (the last of an epoch) takes over its list. An algorithm that
   fails when it runs (not supported after all, no memory for its workspace) is tried again with the caches emptied, and then never
   again for this shape: the next one takes its place. Halves for which none is left are computed in f32, with a warning.
   Images are in the device's layout. Weights are always plain; for NHWC images they are transposed to (k, r, s, c) for the call,
   unless that is the same order (kernels of 1 x 1, one channel). */
enum { DT__CONV_FORWARD, DT__CONV_DATA, DT__CONV_WEIGHT };
static const char *dt__conv_name(int way)
{
    return way == DT__CONV_FORWARD ? "convolution" : way == DT__CONV_DATA ? "gradient of a convolution's images"
                                                                          : "gradient of a convolution's weights";
}
static void dt__conv_free(dt__cuda_conv *e)
{
    if (e->descs.x) (void)cudnnDestroyTensorDescriptor(e->descs.x);
    if (e->descs.y) (void)cudnnDestroyTensorDescriptor(e->descs.y);
    if (e->descs.w) (void)cudnnDestroyFilterDescriptor(e->descs.w);
    for (int i = 0; i < DT__CUDA_ALGOS; i++)
        if (e->algo[i].conv) (void)cudnnDestroyConvolutionDescriptor(e->algo[i].conv);
    dt_mem_free(e, sizeof *e);
}
static cudnnDataType_t dt__cudnn_type(int dtype)
{
    return dtype == DT_F16 ? CUDNN_DATA_HALF : dtype == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}
static int dt__cudnn_image(cudnnTensorDescriptor_t *t, const dt_view *v)
{
    for (int i = 0; i < 4; i++)
        if (v->shape[i] > INT_MAX || v->stride[i] > INT_MAX)
            return dt_fail(DT_ERR_SHAPE,
                           "cuda: convolution: an image of %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                           " is too large for cuDNN",
                           v->shape[0], v->shape[1], v->shape[2], v->shape[3]);
    int bad = dt__cudnn_check(cudnnCreateTensorDescriptor(t), "cudnnCreateTensorDescriptor");
    if (bad) return bad;
    return dt__cudnn_check(cudnnSetTensor4dDescriptorEx(*t, dt__cudnn_type(v->dtype), (int)v->shape[0],
                                                        (int)v->shape[1], (int)v->shape[2], (int)v->shape[3],
                                                        (int)v->stride[0], (int)v->stride[1], (int)v->stride[2],
                                                        (int)v->stride[3]),
                           "cudnnSetTensor4dDescriptorEx");
}
static int dt__cudnn_conv(cudnnConvolutionDescriptor_t *t, const dt_call *c, int math)
{
    int bad = dt__cudnn_check(cudnnCreateConvolutionDescriptor(t), "cudnnCreateConvolutionDescriptor");
    if (!bad)
        bad = dt__cudnn_check(cudnnSetConvolution2dDescriptor(*t, c->u.conv.pad[0], c->u.conv.pad[1],
                                                              c->u.conv.stride[0], c->u.conv.stride[1],
                                                              c->u.conv.dilation[0], c->u.conv.dilation[1],
                                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
                              "cudnnSetConvolution2dDescriptor");
    if (!bad)
        bad = dt__cudnn_check(cudnnSetConvolutionGroupCount(*t, c->u.conv.groups), "cudnnSetConvolutionGroupCount");
    if (!bad)
        bad = dt__cudnn_check(cudnnSetConvolutionMathType(*t, (cudnnMathType_t)math), "cudnnSetConvolutionMathType");
    return bad;
}
/* x, y: images; w: (k, c/groups, r, s) */
static int dt__cudnn_describe(dt__cuda_descs *t, const dt_view *x, const dt_view *w, const dt_view *y)
{
    cudnnTensorFormat_t f = x->layout == DT_LAYOUT_NHWC ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    int                 bad = dt__cudnn_image(&t->x, x);
    if (!bad) bad = dt__cudnn_image(&t->y, y);
    if (!bad) bad = dt__cudnn_check(cudnnCreateFilterDescriptor(&t->w), "cudnnCreateFilterDescriptor");
    if (!bad)
        bad = dt__cudnn_check(cudnnSetFilter4dDescriptor(t->w, dt__cudnn_type(w->dtype), f, (int)w->shape[0],
                                                         (int)w->shape[1], (int)w->shape[2], (int)w->shape[3]),
                              "cudnnSetFilter4dDescriptor");
    return bad;
}
static cudnnHandle_t dt__cuda_dnn(dt__cuda_dev *d, dt__cuda_queue *q)
{
    if (q->dnn) return q->dnn;
    cudnnStatus_t s = cudnnCreate(&q->dnn);
    if (s != CUDNN_STATUS_SUCCESS) { /* as for cuBLAS */
        dt__device_trim(d->dev);
        s = cudnnCreate(&q->dnn);
    }
    if (s != CUDNN_STATUS_SUCCESS) {
        q->dnn = NULL;
        dt__cudnn_check(s, "cudnnCreate");
        return NULL;
    }
    return dt__cudnn_check(cudnnSetStream(q->dnn, q->stream), "cudnnSetStream") ? NULL : q->dnn;
}
#ifdef DT_STATIC
static
#endif
int dt__cuda_prepare(dt_device *dev)
{
    dt__cuda_dev *d = dt__cuda_of(dev);
    int           bad = dt__cuda_enter(d);
    if (!bad && (!dt__cuda_blas(d, &d->compute) || !dt__cuda_dnn(d, &d->compute))) bad = DT_ERR_DEVICE;
    return bad;
}
/* The algorithms that cuDNN's list p of n names, the best first: those that work, fit into the limit of workspaces and, with the
   option deterministic, are. A macro, since the three result types differ in the type of algo. */
#define DT__CONV_TAKE(p, n)                                                                           \
    for (int i_ = 0; i_ < (n) && i_ < DT__CUDA_ALGOS; i_++)                                           \
        if ((p)[i_].status == CUDNN_STATUS_SUCCESS && (p)[i_].memory <= d->opts.workspace &&          \
            (!d->opts.deterministic || (p)[i_].determinism == CUDNN_DETERMINISTIC)) {                 \
            e->algo[e->nalgos].algo = (int)(p)[i_].algo;                                              \
            e->algo[e->nalgos++].math = (int)(p)[i_].mathType;                                        \
        }
/* Returns cuDNN's status, without dt_fail. A search runs every algorithm, in memory of cuDNN's own. */
static cudnnStatus_t dt__conv_list(dt__cuda_dev *d, cudnnHandle_t h, int way, const dt__cuda_descs *t,
                                   cudnnConvolutionDescriptor_t conv, bool search, dt__cuda_conv *e)
{
    int           n = 0;
    cudnnStatus_t s;
    if (way == DT__CONV_FORWARD) {
        cudnnConvolutionFwdAlgoPerf_t p[DT__CUDA_ALGOS];
        s = search ? cudnnFindConvolutionForwardAlgorithm(h, t->x, t->w, conv, t->y, DT__CUDA_ALGOS, &n, p)
                   : cudnnGetConvolutionForwardAlgorithm_v7(h, t->x, t->w, conv, t->y, DT__CUDA_ALGOS, &n, p);
        if (s == CUDNN_STATUS_SUCCESS) DT__CONV_TAKE(p, n)
    } else if (way == DT__CONV_DATA) {
        cudnnConvolutionBwdDataAlgoPerf_t p[DT__CUDA_ALGOS];
        s = search ? cudnnFindConvolutionBackwardDataAlgorithm(h, t->w, t->y, conv, t->x, DT__CUDA_ALGOS, &n, p)
                   : cudnnGetConvolutionBackwardDataAlgorithm_v7(h, t->w, t->y, conv, t->x, DT__CUDA_ALGOS, &n, p);
        if (s == CUDNN_STATUS_SUCCESS) DT__CONV_TAKE(p, n)
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t p[DT__CUDA_ALGOS];
        s = search ? cudnnFindConvolutionBackwardFilterAlgorithm(h, t->x, t->y, conv, t->w, DT__CUDA_ALGOS, &n, p)
                   : cudnnGetConvolutionBackwardFilterAlgorithm_v7(h, t->x, t->y, conv, t->w, DT__CUDA_ALGOS, &n, p);
        if (s == CUDNN_STATUS_SUCCESS) DT__CONV_TAKE(p, n)
    }
    return s;
}
static cudnnStatus_t dt__conv_workspace(cudnnHandle_t h, int way, const dt__cuda_descs *t, dt__cuda_algo *a)
{
    if (way == DT__CONV_FORWARD)
        return cudnnGetConvolutionForwardWorkspaceSize(h, t->x, t->w, a->conv, t->y, (cudnnConvolutionFwdAlgo_t)a->algo, &a->nbytes);
    if (way == DT__CONV_DATA)
        return cudnnGetConvolutionBackwardDataWorkspaceSize(h, t->w, t->y, a->conv, t->x, (cudnnConvolutionBwdDataAlgo_t)a->algo,
                                                            &a->nbytes);
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(h, t->x, t->y, a->conv, t->w, (cudnnConvolutionBwdFilterAlgo_t)a->algo,
                                                          &a->nbytes);
}
static void dt__conv_key(int64_t *key, const dt__cuda_dev *d, const dt_call *c, int way, const dt_view *x,
                         const dt_view *w, const dt_view *y)
{
    int n = 0;
    memset(key, 0, sizeof(int64_t) * 24);
    key[n++] = way;
    key[n++] = x->dtype * 64 + w->dtype * 8 + y->dtype;
    key[n++] = x->layout * 8 + d->opts.tf32 * 4 + d->opts.deterministic * 2 + d->opts.search;
    key[n++] = (int64_t)d->opts.workspace;
    for (int i = 1; i < 4; i++) key[n++] = x->shape[i];
    for (int i = 0; i < 4; i++) key[n++] = w->shape[i];
    for (int i = 1; i < 4; i++) key[n++] = y->shape[i];
    for (int i = 0; i < 2; i++) {
        key[n++] = c->u.conv.stride[i];
        key[n++] = c->u.conv.pad[i];
        key[n++] = c->u.conv.dilation[i];
    }
    key[n++] = c->u.conv.groups;
}
static dt__cuda_conv **dt__conv_chain(dt__cuda_dev *d, const int64_t *key)
{
    uint64_t hash = 0;
    for (int i = 0; i < 24; i++) hash = (hash ^ (uint64_t)key[i]) * UINT64_C(0x9e3779b97f4a7c15) >> 1;
    return &d->convs[hash >> 32 & (DT__CUDA_CHAINS - 1)];
}
static int dt__conv_math(const dt__cuda_dev *d, int dtype)
{
    return dtype != DT_F32 ? CUDNN_TENSOR_OP_MATH : d->opts.tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
}
/* The list of algorithms of e, whose key and descriptors are set: that of a larger batch, or cuDNN's. */
static int dt__conv_ask(dt__cuda_dev *d, const dt_call *c, cudnnHandle_t h, int way, const dt__cuda_conv *larger, dt__cuda_conv *e,
                        int dtype)
{
    int           math = dt__conv_math(d, dtype), bad = 0;
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
    for (int i = larger ? larger->first : 0; larger && i < larger->nalgos; i++) {
        e->algo[e->nalgos].algo = larger->algo[i].algo;
        e->algo[e->nalgos++].math = larger->algo[i].math;
    }
    if (!larger) {
        cudnnConvolutionDescriptor_t conv = NULL;
        bad = dt__cudnn_conv(&conv, c, math);
        if (!bad && d->opts.search) s = dt__conv_list(d, h, way, &e->descs, conv, true, e);
        if (!bad && s != CUDNN_STATUS_SUCCESS) { /* a search needs memory */
            dt__device_trim(d->dev);
            s = dt__conv_list(d, h, way, &e->descs, conv, true, e);
        }
        if (!bad && (!d->opts.search || s != CUDNN_STATUS_SUCCESS)) s = dt__conv_list(d, h, way, &e->descs, conv, false, e);
        if (conv) (void)cudnnDestroyConvolutionDescriptor(conv);
    }
    for (int i = 0; i < e->nalgos && !bad; i++) bad = dt__cudnn_conv(&e->algo[i].conv, c, e->algo[i].math);
    for (int i = 0; i < e->nalgos && !bad; i++) /* one without a size is one that does not support this shape */
        if (dt__conv_workspace(h, way, &e->descs, &e->algo[i]) != CUDNN_STATUS_SUCCESS) e->algo[i].nbytes = SIZE_MAX;
    return bad;
}
/* What is known of this convolution, valid as long as the device. NULL after dt_fail. */
static dt__cuda_conv *dt__conv_find(dt__cuda_dev *d, const dt_call *c, cudnnHandle_t h, int way, const dt_view *x,
                                    const dt_view *w, const dt_view *y)
{
    int64_t        key[24], batch = x->shape[0];
    dt__cuda_conv *e, *larger = NULL, **chain;
    dt__conv_key(key, d, c, way, x, w, y);
    chain = dt__conv_chain(d, key);
    pthread_mutex_lock(&d->lock);
    for (e = *chain; e && (e->batch != batch || memcmp(e->key, key, sizeof key) != 0); e = e->next)
        if (e->batch > batch && !memcmp(e->key, key, sizeof key)) larger = e;
    pthread_mutex_unlock(&d->lock);
    if (e) return e;
    e = (dt__cuda_conv *)dt_mem_alloc(sizeof *e);
    if (!e) {
        dt_fail(DT_ERR_MEMORY, "cuda: out of host memory for the algorithms of a convolution (%zu bytes)", sizeof *e);
        return NULL;
    }
    memset((void *)e, 0, sizeof *e);
    memcpy(e->key, key, sizeof key);
    e->batch = batch;
    if (dt__cudnn_describe(&e->descs, x, w, y) || dt__conv_ask(d, c, h, way, larger, e, x->dtype)) {
        dt__conv_free(e);
        return NULL;
    }
    pthread_mutex_lock(&d->lock); /* if two threads asked at once, there are two entries: the newer one is found */
    e->next = *chain;
    *chain = e;
    pthread_mutex_unlock(&d->lock);
    return e;
}
/* A view (k, c, r, s) of weights that cuDNN's NHWC format stores as (k, r, s, c) */
static dt_view dt__conv_turned(const dt_view *w)
{
    dt_view t = *w;
    t.stride[1] = 1;
    t.stride[3] = w->shape[1];
    t.stride[2] = w->shape[1] * w->shape[3];
    t.stride[0] = w->shape[1] * w->shape[3] * w->shape[2];
    return t;
}
/* With this algorithm. *status: cuDNN's, which is no error of dt yet. Returns 0 or an error after dt_fail. */
static int dt__conv_try(dt_device *dev, const dt_call *c, cudnnHandle_t h, int way, const dt__cuda_descs *t, const dt__cuda_algo *a,
                        const dt_view *x, const dt_view *w, const dt_view *y, bool add, cudnnStatus_t *status)
{
    const float one = 1, zero = 0, *beta = add ? &one : &zero;
    bool        turn = x->layout == DT_LAYOUT_NHWC && w->shape[1] > 1 && w->shape[2] * w->shape[3] > 1;
    size_t      wbytes = turn ? dt__cuda_bytes(w) : 0;
    dt_view     turned = dt__conv_turned(w);
    int         bad = 0;
    char       *space = a->nbytes + wbytes ? (char *)dt__cuda_space_try(dev, c->stream, DT__SPACE_LIBRARIES, a->nbytes + wbytes) : NULL;
    *status = CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    if (a->nbytes + wbytes && !space) return dt__err.code;
    void *weights = turn ? (void *)space : w->data;
    void *work = space ? (void *)(space + wbytes) : NULL;
    turned.data = weights;
    if (turn && way != DT__CONV_WEIGHT) bad = dt__cuda_move(dev, c, &turned, w, false);
    if (bad) return bad;
    if (way == DT__CONV_FORWARD)
        *status = cudnnConvolutionForward(h, &one, t->x, x->data, t->w, weights, a->conv, (cudnnConvolutionFwdAlgo_t)a->algo, work,
                                          a->nbytes, beta, t->y, y->data);
    else if (way == DT__CONV_DATA)
        *status = cudnnConvolutionBackwardData(h, &one, t->w, weights, t->y, y->data, a->conv, (cudnnConvolutionBwdDataAlgo_t)a->algo,
                                               work, a->nbytes, beta, t->x, x->data);
    else
        *status = cudnnConvolutionBackwardFilter(h, &one, t->x, x->data, t->y, y->data, a->conv,
                                                 (cudnnConvolutionBwdFilterAlgo_t)a->algo, work, a->nbytes, turn ? &zero : beta, t->w,
                                                 weights);
    if (*status == CUDNN_STATUS_SUCCESS && turn && way == DT__CONV_WEIGHT) bad = dt__cuda_move(dev, c, w, &turned, add);
    return bad;
}
static int dt__conv_in_f32(dt_device *dev, const dt_call *c, int way, const dt_view *x, const dt_view *w, const dt_view *y, bool add);
static int dt__conv_run(dt_device *dev, const dt_call *c, int way, const dt_view *x, const dt_view *w, const dt_view *y,
                        bool add)
{
    dt__cuda_dev   *d = dt__cuda_of(dev);
    dt__cuda_queue *q = dt__cuda_queue_of(d, c->stream);
    int             bad = dt__cuda_enter(d), tries = 0;
    cudnnStatus_t   s = CUDNN_STATUS_NOT_SUPPORTED;
    cudnnHandle_t   h = bad ? NULL : dt__cuda_dnn(d, q);
    if (!h) return bad ? bad : DT_ERR_DEVICE;
    if (x->dtype != y->dtype || x->dtype != w->dtype)
        return dt_fail(DT_ERR_DTYPE, "cuda: convolution: images of %s and %s with weights of %s; cast them to one dtype",
                       dt_dtype_name((dt_dtype)x->dtype), dt_dtype_name((dt_dtype)y->dtype),
                       dt_dtype_name((dt_dtype)w->dtype));
    dt__cuda_conv *e = dt__conv_find(d, c, h, way, x, w, y);
    if (!e) return dt__err.code;
    for (;;) {
        int at = __atomic_load_n(&e->first, __ATOMIC_RELAXED);
        if (at >= e->nalgos) break;
        if (e->algo[at].nbytes != SIZE_MAX) {
            bad = dt__conv_try(dev, c, h, way, &e->descs, &e->algo[at], x, w, y, add, &s);
            if (bad || s == CUDNN_STATUS_SUCCESS) return bad;
            bool refused = s / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000; /* before it queued anything */
            if (!refused && dt__cuda_is_lost(cudaDeviceSynchronize())) return dt__cudnn_check(s, dt__conv_name(way));
            if (!refused && !tries++) {
                dt__device_trim(dev);
                continue;
            }
        }
        tries = 0;
        __atomic_compare_exchange_n(&e->first, &at, at + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    if (x->dtype == DT_F32)
        return dt_fail(s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ? DT_ERR_MEMORY : DT_ERR_DEVICE,
                       "cuda:%d: %s: none of the %d %salgorithms that cuDNN names for these shapes within %zu MiB of workspace "
                       "could run (the last one: %s); take a smaller batch, or change the options with dt_cuda_set",
                       d->index, dt__conv_name(way), e->nalgos, d->opts.deterministic ? "deterministic " : "", d->opts.workspace >> 20,
                       cudnnGetErrorString(s));
    if (!__atomic_exchange_n(&e->told, true, __ATOMIC_RELAXED)) {
        char text[240];
        snprintf(text, sizeof text, "cuda:%d: %s in %s: cuDNN has no algorithm for images of %" PRId64 " x %" PRId64 " x %" PRId64
                 " and a kernel of %" PRId64 " x %" PRId64 " (%s): it is computed in f32", d->index, dt__conv_name(way),
                 dt_dtype_name((dt_dtype)x->dtype), x->shape[1], x->shape[2], x->shape[3], w->shape[2], w->shape[3], cudnnGetErrorString(s));
        dt__log(DT_LOG_WARN, text);
    }
    return dt__conv_in_f32(dev, c, way, x, w, y, add);
}
/* Views in f32 of the operands of a convolution, in the device's memory for that; the inputs are converted. */
static int dt__conv_widen(dt_device *dev, const dt_call *c, int way, const dt_view *const *from, dt_view *v)
{
    size_t at[4] = { 0, 0, 0, 0 };
    int    bad = 0, out = way == DT__CONV_FORWARD ? 2 : way == DT__CONV_DATA ? 0 : 1;
    for (int i = 0; i < 3; i++) {
        v[i] = *from[i];
        v[i].dtype = DT_F32;
        at[i + 1] = at[i] + dt__cuda_bytes(&v[i]);
    }
    char *space = (char *)dt__cuda_space(dev, c->stream, DT__SPACE_F32, at[3]);
    if (!space) return DT_ERR_MEMORY;
    for (int i = 0; i < 3; i++) v[i].data = space + at[i];
    for (int i = 0; i < 3 && !bad; i++)
        if (i != out) bad = dt__cuda_move(dev, c, &v[i], from[i], false);
    return bad;
}
static int dt__conv_in_f32(dt_device *dev, const dt_call *c, int way, const dt_view *x, const dt_view *w, const dt_view *y, bool add)
{
    const dt_view *from[3] = { x, w, y };
    dt_view        v[3];
    int            out = way == DT__CONV_FORWARD ? 2 : way == DT__CONV_DATA ? 0 : 1;
    int            bad = dt__conv_widen(dev, c, way, from, v);
    if (!bad) bad = dt__conv_run(dev, c, way, &v[0], &v[1], &v[2], false);
    return bad ? bad : dt__cuda_move(dev, c, from[out], &v[out], add);
}
/* The result of cuDNN has the dtype of its inputs. To round f16 and bf16 only once, behind bias and activation, the
   operands are converted to f32 for the call. */
static int dt__conv_wide(dt_device *dev, const dt_call *c, const dt_view *bias)
{
    const dt_view *from[3] = { &c->in[0], &c->in[1], &c->out[0] };
    dt_view        v[3];
    int            bad = dt__conv_widen(dev, c, DT__CONV_FORWARD, from, v);
    if (!bad) bad = dt__conv_run(dev, c, DT__CONV_FORWARD, &v[0], &v[1], &v[2], false);
    if (!bad) bad = dt__cuda_epilogue(dev, c->stream, &v[2], bias, 1, c->u.conv.act);
    return bad ? bad : dt__cuda_move(dev, c, &c->out[0], &v[2], false);
}
int dt__cuda_conv2d(dt_device *dev, const dt_call *c)
{
    const dt_view *y = &c->out[0], *bias = &c->in[2];
    dt_view        none = *y, rows = *y;
    bool           biased = c->nin > 2 && bias->ndim >= 0, begins = biased && y->dtype != DT_F32;
    bool           exact = c->u.conv.act == DT_ACT_NONE || c->u.conv.act == DT_ACT_RELU;
    bool           empty = dt__cuda_empty(&c->in[0]) || dt__cuda_empty(&c->in[1]);
    int            bad = 0;
    none.ndim = -1;
    if (dt__cuda_empty(y)) return 0;
    if (y->dtype != DT_F32 && !empty && (!exact || (biased && bias->dtype != y->dtype)))
        return dt__conv_wide(dev, c, biased ? bias : &none);
    if (begins) { /* as in gemm */
        rows.data = bias->data;
        rows.dtype = bias->dtype;
        rows.layout = DT_LAYOUT_PLAIN;
        for (int i = 0; i < 4; i++) rows.stride[i] = i == 1;
        bad = dt__cuda_move(dev, c, y, &rows, false);
    }
    if (bad) return bad;
    if (!empty) bad = dt__conv_run(dev, c, DT__CONV_FORWARD, &c->in[0], &c->in[1], y, begins);
    else if (!begins) bad = dt__cuda_zero(dev, c, y);
    if (begins) biased = false;
    if (!bad && (biased || c->u.conv.act != DT_ACT_NONE))
        bad = dt__cuda_epilogue(dev, c->stream, y, biased ? bias : &none, 1, c->u.conv.act);
    return bad;
}
int dt__cuda_conv2d_bwd_data(dt_device *dev, const dt_call *c)
{
    const dt_view *dx = &c->out[0];
    if (dt__cuda_empty(dx)) return 0;
    if (dt__cuda_empty(&c->in[0]) || dt__cuda_empty(&c->in[1])) return c->acc & 1 ? 0 : dt__cuda_zero(dev, c, dx);
    return dt__conv_run(dev, c, DT__CONV_DATA, dx, &c->in[1], &c->in[0], c->acc & 1);
}
int dt__cuda_conv2d_bwd_weight(dt_device *dev, const dt_call *c)
{
    const dt_view *dw = &c->out[0], *db = &c->out[1], *dy = &c->in[0], *x = &c->in[1];
    int            bad = 0;
    if (dw->ndim >= 0 && !dt__cuda_empty(dw)) {
        if (dt__cuda_empty(dy) || dt__cuda_empty(x)) bad = c->acc & 1 ? 0 : dt__cuda_zero(dev, c, dw);
        else bad = dt__conv_run(dev, c, DT__CONV_WEIGHT, x, dw, dy, c->acc & 1);
    }
    if (bad || c->nout < 2 || db->ndim < 0 || dt__cuda_empty(db)) return bad;
    dt_call k; /* db = the sum of dy over all but the channels */
    dt__cuda_call(&k, DT_K_reduce, c);
    k.nout = k.nin = 1;
    k.acc = c->acc >> 1 & 1;
    k.u.reduce.fn = DT_R_SUM;
    k.u.reduce.n = dy->shape[0] * dy->shape[2] * dy->shape[3];
    k.in[0] = *dy;
    k.out[0] = *dy;
    k.out[0].data = db->data;
    k.out[0].dtype = db->dtype;
    k.out[0].layout = DT_LAYOUT_PLAIN;
    for (int i = 0; i < 4; i++) {
        k.out[0].shape[i] = i == 1 ? dy->shape[1] : 1;
        k.out[0].stride[i] = i == 1 ? 1 : 0;
    }
    return dt__cuda_reduce(dev, &k);
}

/* ==================================================================================================== >>group
   Broadcasts and sums of blocks over several devices of this program. With dt_nccl.h (dt__cuda_exchanged_by) NCCL does
   it. Otherwise blocks are copied from device to device, ordered behind the queued work of both, and added in the order
   of the devices. */
enum { DT__CUDA_PIECE = 16 << 20 }; /* bytes of another device's block that are copied and added at a time */
typedef struct dt__cuda_group {
    int                      n;
    dt_device               *dev[DT__CUDA_DEVICES];
    const dt__cuda_exchange *by; /* NULL: copies */
    void                    *comms;
} dt__cuda_group;

/* Work queued from now on in stream a of dev waits for the work in stream b of another device. */
static int dt__cuda_behind(dt_device *dev, void *a, dt_device *of, void *b)
{
    dt__cuda_queue *p = dt__cuda_queue_of(dt__cuda_of(dev), a), *q = dt__cuda_queue_of(dt__cuda_of(of), b);
    int             bad = dt__cuda_enter(dt__cuda_of(of));
    if (!bad) bad = dt__cuda_check((int)cudaEventRecord(q->event, q->stream), "cudaEventRecord");
    if (!bad) bad = dt__cuda_check((int)cudaStreamWaitEvent(p->stream, q->event, 0), "cudaStreamWaitEvent");
    return bad;
}
/* Before the first copy from one device to another: peer access, so that the copy takes the direct way. Without it (the two
   devices have no such way) the driver copies through the host. dev is current. */
static void dt__cuda_reach(dt__cuda_dev *dev, const dt__cuda_dev *from)
{
    uint64_t bit = (uint64_t)1 << from->index;
    int      can = 0;
    pthread_mutex_lock(&dev->lock);
    if (!(dev->peers & bit)) {
        dev->peers |= bit;
        if (cudaDeviceCanAccessPeer(&can, dev->index, from->index) || (can && cudaDeviceEnablePeerAccess(from->index, 0)))
            (void)cudaGetLastError(); /* already enabled, by NCCL or the program, or refused */
    }
    pthread_mutex_unlock(&dev->lock);
}
static int dt__cuda_fetch(dt_device *dev, void *stream, void *dst, dt_device *from, const void *src, size_t nbytes)
{
    cudaStream_t s = (cudaStream_t)dt__cuda_stream(dev, stream);
    dt__cuda_reach(dt__cuda_of(dev), dt__cuda_of(from));
    return dt__cuda_check(
        (int)cudaMemcpyPeerAsync(dst, dt__cuda_of(dev)->index, src, dt__cuda_of(from)->index, nbytes, s),
        "cudaMemcpyPeerAsync");
}
static int dt__cuda_peer(dt_device *dev, void *stream, void *dst, dt_device *from, void *from_stream, const void *src,
                         size_t nbytes)
{
    int bad = nbytes ? dt__cuda_behind(dev, stream, from, from_stream) : 0;
    if (!bad && nbytes) bad = dt__cuda_fetch(dev, stream, dst, from, src, nbytes);
    return bad || !nbytes ? bad : dt__cuda_behind(from, from_stream, dev, stream);
}
static size_t dt__cuda_block_bytes(const dt_view *v)
{
    return (size_t)v->shape[0] * dt_dtype_nbytes((dt_dtype)v->dtype);
}
/* The first device's v += src, the same block on device from. */
static int dt__cuda_group_add(dt__cuda_group *g, void *stream, const dt_view *v, int from, const char *src)
{
    size_t  all = dt__cuda_block_bytes(v), each = dt_dtype_nbytes((dt_dtype)v->dtype);
    dt_call like;
    int     bad = 0;
    void   *space = dt__cuda_space(g->dev[0], stream, DT__SPACE_F32, all < DT__CUDA_PIECE ? all : (size_t)DT__CUDA_PIECE);
    if (!space) return DT_ERR_MEMORY;
    memset(&like, 0, sizeof like);
    like.stream = stream;
    for (size_t at = 0; at < all && !bad; at += DT__CUDA_PIECE) {
        size_t  n = all - at < DT__CUDA_PIECE ? all - at : (size_t)DT__CUDA_PIECE;
        dt_view x = *v, y = *v;
        x.shape[0] = y.shape[0] = (int64_t)(n / each);
        x.data = space;
        y.data = (char *)v->data + at;
        bad = dt__cuda_fetch(g->dev[0], stream, space, g->dev[from], src + at, n);
        if (!bad) bad = dt__cuda_move(g->dev[0], &like, &y, &x, true);
    }
    return bad;
}
static int dt__cuda_group_run(void *group, void *const *stream, const dt_view *block, int nblocks, bool sum)
{
    dt__cuda_group *g = (dt__cuda_group *)group;
    int             bad = 0;
    if (g->by) return g->by->run(g->comms, g->dev, g->n, stream, block, nblocks, sum);
    for (int i = 1; i < g->n && !bad; i++)
        bad = sum ? dt__cuda_behind(g->dev[0], stream[0], g->dev[i], stream[i])
                  : dt__cuda_behind(g->dev[i], stream[i], g->dev[0], stream[0]);
    for (int k = 0; k < nblocks * g->n && !bad; k++) {
        int            i = k % g->n;
        const dt_view *v = &block[k], *root = v - i;
        if (i == 0 || v->shape[0] == 0) continue;
        if (sum) bad = dt__cuda_group_add(g, stream[0], root, i, (const char *)v->data);
        else bad = dt__cuda_fetch(g->dev[i], stream[i], v->data, g->dev[0], root->data, dt__cuda_block_bytes(v));
    }
    for (int i = 1; i < g->n && !bad; i++) /* later work must not overwrite a block that is still being read */
        bad = sum ? dt__cuda_behind(g->dev[i], stream[i], g->dev[0], stream[0])
                  : dt__cuda_behind(g->dev[0], stream[0], g->dev[i], stream[i]);
    return bad;
}
static void *dt__cuda_group_new(dt_device *const *dev, int n)
{
    dt__cuda_group *g = n > 0 && n <= DT__CUDA_DEVICES ? (dt__cuda_group *)dt_mem_alloc(sizeof *g) : NULL;
    if (!g) {
        dt_fail(DT_ERR_MEMORY, "cuda: no group of %d devices: out of host memory, or not 1 to %d devices", n,
                (int)DT__CUDA_DEVICES);
        return NULL;
    }
    memset((void *)g, 0, sizeof *g);
    g->n = n;
    for (int i = 0; i < n; i++) g->dev[i] = dev[i];
    g->by = dt__cuda_exchanged_by;
    if (!g->by || (g->comms = g->by->begin(g->dev, n)) != NULL) return g;
    dt_mem_free(g, sizeof *g);
    return NULL;
}
static void dt__cuda_group_free(void *group)
{
    dt__cuda_group *g = (dt__cuda_group *)group;
    if (!g) return;
    if (g->by) g->by->end(g->comms, g->dev, g->n);
    dt_mem_free(g, sizeof *g);
}
static int dt__cuda_group_broadcast(void *group, void *const *stream, const dt_view *block, int nblocks)
{
    return dt__cuda_group_run(group, stream, block, nblocks, false);
}
static int dt__cuda_group_sum(void *group, void *const *stream, const dt_view *block, int nblocks)
{
    return dt__cuda_group_run(group, stream, block, nblocks, true);
}

/* ==================================================================================================== >>table */
#define DT__CUDA_ROW(n) dt__cuda_##n,
static const dt_backend dt__cuda_backend = { "cuda",
                                             dt__cuda_alloc,
                                             dt__cuda_free,
                                             dt__cuda_upload,
                                             dt__cuda_download,
                                             dt__cuda_wait,
                                             dt__cuda_order,
                                             dt__cuda_stream_new,
                                             dt__cuda_stream_free,
                                             dt__cuda_image_layout,
                                             dt__cuda_pinned,
                                             dt__cuda_pinned_free,
                                             dt_cuda_copy_stream,
                                             dt__cuda_upload_later,
                                             dt__cuda_download_later,
                                             dt__cuda_mark,
                                             dt__cuda_passed,
                                             dt__cuda_mark_free,
                                             dt__cuda_memory_text,
                                             dt__cuda_adopts,
                                             { DT_KERNELS(DT__CUDA_ROW) },
                                             dt_cuda_count,
                                             dt_cuda,
                                             dt__cuda_peer,
                                             dt__cuda_group_new,
                                             dt__cuda_group_free,
                                             dt__cuda_group_broadcast,
                                             dt__cuda_group_sum,
                                             NULL };
static int              dt__cuda_asked(int *count) /* the number of devices; returns the error if there are none */
{
    int         n = 0; /* cudaGetDeviceCount does not write it when it fails */
    cudaError_t e = cudaGetDeviceCount(&n);
    *count = e == cudaSuccess && n > 0 ? n : 0;
    if (e != cudaSuccess) (void)cudaGetLastError();
    return (int)e;
}
DT_API int dt_cuda_count(void)
{
    int n;
    (void)dt__cuda_asked(&n);
    return n;
}
static bool dt__cuda_env(const char *name)
{
    const char *s = getenv(name);
    return s && *s && strcmp(s, "0") != 0;
}
static void dt__cuda_end(dt__cuda_dev *d)
{
    if (d->dev) (void)dt_device_free(d->dev);
    for (int i = 0; i < 2; i++) {
        if (d->stage[i].done) (void)cudaEventDestroy(d->stage[i].done);
        if (d->stage[i].host) (void)cudaFreeHost(d->stage[i].host);
    }
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->staging);
    dt_mem_free(d, sizeof *d);
}
static dt__cuda_dev *dt__cuda_new(int index)
{
    struct cudaDeviceProp p;
    dt__cuda_dev         *d = (dt__cuda_dev *)dt_mem_alloc(sizeof *d);
    if (!d) {
        dt_fail(DT_ERR_MEMORY, "dt_cuda: out of host memory for device %d (%zu bytes)", index, sizeof *d);
        return NULL;
    }
    memset((void *)d, 0, sizeof *d);
    d->index = index;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->staging, NULL);
    int bad = dt__cuda_enter(d);
    if (!bad) bad = dt__cuda_check((int)cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    int e = bad ? 0 : dt__cuda_probe();
    if (!bad && (e == (int)cudaErrorNoKernelImageForDevice || e == (int)cudaErrorInvalidDeviceFunction ||
                 e == (int)cudaErrorUnsupportedPtxVersion || e == (int)cudaErrorInvalidKernelImage)) {
        (void)cudaGetLastError();
        bad = dt_fail(DT_ERR_DEVICE,
                      "dt_cuda: the kernels were not built for device %d, %s (compute capability %d.%d); "
                      "build kernels/dt_kernels.cu with -arch=sm_%d%d",
                      index, p.name, p.major, p.minor, p.major, p.minor);
    } else if (!bad) bad = dt__cuda_check(e, "loading the kernels");
    if (!bad) {
        d->processors = p.multiProcessorCount;
        d->capability = 10 * p.major + p.minor;
        const char *most = getenv("DT_CUDA_WORKSPACE_MB");
        long        mb = most && *most >= '0' && *most <= '9' ? strtol(most, NULL, 10) : 512;
        d->opts.tf32 = dt__cuda_env("DT_CUDA_TF32");
        d->opts.deterministic = dt__cuda_env("DT_CUDA_DETERMINISTIC");
        d->opts.search = dt__cuda_env("DT_CUDA_SEARCH");
        d->opts.workspace = (size_t)(mb < 1 << 20 ? mb : 1 << 20) << 20;
        const char *nhwc = getenv("DT_CUDA_NHWC");
        d->opts.layout = !nhwc || !*nhwc ? -1 : dt__cuda_env("DT_CUDA_NHWC") ? (int)DT_LAYOUT_NHWC : (int)DT_LAYOUT_PLAIN;
        bad = dt__cuda_queue_begin(d, &d->compute);
    }
    if (!bad) bad = dt__cuda_queue_begin(d, &d->copy);
    if (!bad) bad = dt__cuda_queue_begin(d, &d->comm);
    if (!bad && (d->dev = dt_device_new(&dt__cuda_backend, index, d)) == NULL) bad = DT_ERR_MEMORY;
    if (!bad) return d;
    dt__cuda_queue *q[3] = { &d->compute, &d->copy, &d->comm };
    for (int i = 0; i < 3; i++) dt__cuda_queue_end(d->dev, d, q[i]);
    dt__cuda_end(d);
    return NULL;
}
DT_API dt_device *dt_cuda(int index)
{
    int n, e = dt__cuda_asked(&n);
    if (n == 0) {
        dt__cuda_absent(e);
        return NULL;
    }
    if (index < 0 || index >= n || index >= DT__CUDA_DEVICES) {
        dt_fail(DT_ERR_DEVICE, "dt_cuda: device %d; there %s %d, counted from 0", index, n == 1 ? "is" : "are", n);
        return NULL;
    }
    pthread_mutex_lock(&dt__cuda_lock);
    if (!dt__cuda_devices[index]) dt__cuda_devices[index] = dt__cuda_new(index);
    dt__cuda_dev *d = dt__cuda_devices[index];
    pthread_mutex_unlock(&dt__cuda_lock);
    return d ? d->dev : NULL;
}
DT_API dt_status dt_cuda_set_with(dt_device *dev, dt_cuda_opts o)
{
    if (!dev || dt_device_backend(dev) != &dt__cuda_backend)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_cuda_set: %s is not a CUDA device; pass one that dt_cuda() returned",
                                  dt_device_name(dev));
    if (o.layout && o.layout != DT_ZERO && o.layout != DT_LAYOUT_NHWC)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_cuda_set: .layout is %d; it must be DT_LAYOUT_NHWC, or DT_ZERO for DT_LAYOUT_PLAIN",
                                  o.layout);
    if (o.workspace_mb != DT_ZERO && (o.workspace_mb < 0 || o.workspace_mb > 1 << 20))
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_cuda_set: .workspace_mb is %d; it must be between 1 and %d, or DT_ZERO for none",
                                  o.workspace_mb, 1 << 20);
    dt__cuda_dev *d = dt__cuda_of(dev);
    pthread_mutex_lock(&d->lock);
    if (o.tf32) d->opts.tf32 = o.tf32 == DT_YES;
    if (o.deterministic) d->opts.deterministic = o.deterministic == DT_YES;
    if (o.search) d->opts.search = o.search == DT_YES;
    if (o.layout) d->opts.layout = o.layout == DT_LAYOUT_NHWC ? DT_LAYOUT_NHWC : DT_LAYOUT_PLAIN;
    if (o.workspace_mb) d->opts.workspace = o.workspace_mb == DT_ZERO ? 0 : (size_t)o.workspace_mb << 20;
    pthread_mutex_unlock(&d->lock);
    return DT_OK;
}
#endif /* DT_USE_CUDA */
#ifdef __cplusplus
}
#endif
#endif /* DT_CUDA_IMPLEMENTATION */
