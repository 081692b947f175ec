/* emu_cudnn.c: convolutions on the CPU, see emu.h. Becomes libcudnn.so.9.

   Legacy descriptors of up to 8 dimensions; convolutions of 4-d tensors in f32, f16 and bf16 with f32 sums. Algorithms
   differ in what they accept, in the workspace they want (all of it is overwritten) and, where the documentation calls
   them non-deterministic, in the order of their sums, which the seed decides. The order of search results is the seed's
   as well. TF32 for f32 unless the math type says otherwise. Not modelled and refused: f64, integers, sums in f16, FFT
   algorithms, more or fewer dimensions. */
#include "emu.h"

#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef emu_handle handle;
typedef struct tensor {
    uint32_t        magic;
    cudnnDataType_t type;
    int             nd, dim[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
} tensor;
typedef struct filter {
    uint32_t            magic;
    cudnnDataType_t     type;
    cudnnTensorFormat_t format;
    int                 nd, dim[CUDNN_DIM_MAX]; /* k, c, then the window */
} filter;
typedef struct conv {
    uint32_t               magic;
    int                    nd, pad[CUDNN_DIM_MAX], step[CUDNN_DIM_MAX], dilation[CUDNN_DIM_MAX], groups;
    cudnnConvolutionMode_t mode;
    cudnnDataType_t        compute;
    cudnnMathType_t        math;
    cudnnReorderType_t     reorder;
} conv;
enum { HANDLE_MAGIC = 0xd22a, TENSOR_MAGIC = 0xd22b, FILTER_MAGIC = 0xd22c, CONV_MAGIC = 0xd22d };
enum { FORWARD, DATA, FILTER };

static handle *handle_of(cudnnHandle_t h) { return (handle *)emu_handle_of(h, HANDLE_MAGIC); }
static tensor *tensor_of(cudnnTensorDescriptor_t t)
{
    return t && ((tensor *)t)->magic == TENSOR_MAGIC ? (tensor *)t : NULL;
}
static filter *filter_of(cudnnFilterDescriptor_t f)
{
    return f && ((filter *)f)->magic == FILTER_MAGIC ? (filter *)f : NULL;
}
static conv *conv_of(cudnnConvolutionDescriptor_t c)
{
    return c && ((conv *)c)->magic == CONV_MAGIC ? (conv *)c : NULL;
}

/* ==================================================================================================== >>handle */
size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *v)
{
    if (!v || (unsigned)type > PATCH_LEVEL) return CUDNN_STATUS_BAD_PARAM;
    *v = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}
#define STATUSES(X)                                                                                                \
    X(SUCCESS) X(NOT_INITIALIZED) X(SUBLIBRARY_VERSION_MISMATCH) X(BAD_PARAM) X(BAD_PARAM_NULL_POINTER)            \
    X(BAD_PARAM_MISALIGNED_POINTER) X(BAD_PARAM_SIZE_INSUFFICIENT) X(BAD_PARAM_STREAM_MISMATCH)                    \
    X(BAD_PARAM_SHAPE_MISMATCH) X(NOT_SUPPORTED) X(NOT_SUPPORTED_SHAPE) X(NOT_SUPPORTED_DATA_TYPE)                 \
    X(NOT_SUPPORTED_LAYOUT) X(NOT_SUPPORTED_ARCH_MISMATCH) X(NOT_SUPPORTED_PADDING) X(INTERNAL_ERROR)              \
    X(INTERNAL_ERROR_HOST_ALLOCATION_FAILED) X(INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) X(EXECUTION_FAILED)        \
    X(EXECUTION_FAILED_CUDART)
const char *cudnnGetErrorString(cudnnStatus_t st)
{
    switch (st) {
#define NAME(n) \
    case CUDNN_STATUS_##n: return "CUDNN_STATUS_" #n;
        STATUSES(NAME)
    default: return "CUDNN_UNKNOWN_STATUS";
    }
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    if (!out) return CUDNN_STATUS_BAD_PARAM;
    void *h = emu_handle_new(sizeof(handle), HANDLE_MAGIC);
    if (h) *out = (cudnnHandle_t)h;
    return h ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t hh)
{
    handle *h = handle_of(hh);
    if (!hh) return CUDNN_STATUS_SUCCESS;
    if (!h) return CUDNN_STATUS_BAD_PARAM;
    emu_handle_free(h);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t hh, cudaStream_t stream)
{
    handle *h = handle_of(hh);
    if (!h) return CUDNN_STATUS_BAD_PARAM;
    bool good = emu_handle_set(h, stream, "cudnnSetStream");
    return good ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t hh, cudaStream_t *stream)
{
    handle *h = handle_of(hh);
    if (!h || !stream) return CUDNN_STATUS_BAD_PARAM;
    *stream = h->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ==================================================================================================== >>descriptors */
static bool is_float(cudnnDataType_t t)
{
    return t == CUDNN_DATA_FLOAT || t == CUDNN_DATA_HALF || t == CUDNN_DATA_BFLOAT16;
}
static size_t width(cudnnDataType_t t) { return t == CUDNN_DATA_FLOAT ? 4 : 2; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out)
{
    if (!out) return CUDNN_STATUS_BAD_PARAM;
    tensor *t = calloc(1, sizeof *t);
    t->magic = TENSOR_MAGIC;
    *out = (cudnnTensorDescriptor_t)t;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d)
{
    tensor *t = tensor_of(d);
    if (d && !t) return CUDNN_STATUS_BAD_PARAM;
    if (t) t->magic = 0;
    free(t);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_tensor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int nd, const int *dim,
                                const int *stride)
{
    tensor *t = tensor_of(d);
    int64_t last = 0;
    if (!t || !dim || !stride) return CUDNN_STATUS_BAD_PARAM;
    if (nd > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    if (nd < 3) return CUDNN_STATUS_BAD_PARAM;
    if (!is_float(type)) {
        emu_note("a tensor descriptor of data type %d", (int)type);
        return (unsigned)type > CUDNN_DATA_INT4 ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    }
    for (int i = 0; i < nd; i++) {
        if (dim[i] < 1 || stride[i] < 1) return CUDNN_STATUS_BAD_PARAM;
        last += (int64_t)(dim[i] - 1) * stride[i];
    }
    if (last > INT32_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    t->type = type;
    t->nd = nd;
    memcpy(t->dim, dim, (size_t)nd * sizeof *dim);
    memcpy(t->stride, stride, (size_t)nd * sizeof *stride);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, cudnnDataType_t type, int nd, const int dim[],
                                         const int stride[])
{
    return set_tensor(d, type, nd, dim, stride);
}
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format, cudnnDataType_t type,
                                           int nd, const int dim[])
{
    int     stride[CUDNN_DIM_MAX];
    int64_t n = 1;
    if (!tensor_of(d) || !dim) return CUDNN_STATUS_BAD_PARAM;
    if (nd > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    if (nd < 3 || (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < nd; i++) {
        if (dim[i] < 1) return CUDNN_STATUS_BAD_PARAM;
        n *= dim[i];
        if (n > INT32_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    }
    n = 1;
    if (format == CUDNN_TENSOR_NHWC) {
        stride[1] = 1;
        n = dim[1];
    }
    for (int i = nd - 1; i >= 0; i--) {
        if (i == 1 && format == CUDNN_TENSOR_NHWC) continue;
        stride[i] = (int)n;
        n *= dim[i];
    }
    return set_tensor(d, type, nd, dim, stride);
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w)
{
    int dim[4] = {n, c, h, w};
    return cudnnSetTensorNdDescriptorEx(d, format, type, 4, dim);
}
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t d, cudnnDataType_t type, int n, int c, int h, int w,
                                           int sn, int sc, int sh, int sw)
{
    int dim[4] = {n, c, h, w}, stride[4] = {sn, sc, sh, sw};
    return set_tensor(d, type, 4, dim, stride);
}
cudnnStatus_t cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t d, cudnnDataType_t *type, int *n, int *c, int *h,
                                         int *w, int *sn, int *sc, int *sh, int *sw)
{
    tensor *t = tensor_of(d);
    int    *dim[4] = {n, c, h, w}, *stride[4] = {sn, sc, sh, sw};
    if (!t || !type) return CUDNN_STATUS_BAD_PARAM;
    if (t->nd != 4) return CUDNN_STATUS_BAD_PARAM;
    *type = t->type;
    for (int i = 0; i < 4; i++) {
        if (!dim[i] || !stride[i]) return CUDNN_STATUS_BAD_PARAM;
        *dim[i] = t->dim[i];
        *stride[i] = t->stride[i];
    }
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t d, int most, cudnnDataType_t *type, int *nd,
                                         int dim[], int stride[])
{
    tensor *t = tensor_of(d);
    if (!t || !type || !nd || !dim || !stride) return CUDNN_STATUS_BAD_PARAM;
    *type = t->type;
    *nd = t->nd;
    for (int i = 0; i < t->nd && i < most; i++) {
        dim[i] = t->dim[i];
        stride[i] = t->stride[i];
    }
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t d, size_t *nbytes)
{
    tensor *t = tensor_of(d);
    size_t  last = 0;
    if (!t || !nbytes) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < t->nd; i++) last += (size_t)(t->dim[i] - 1) * (size_t)t->stride[i];
    *nbytes = t->nd ? (last + 1) * width(t->type) : 0;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out)
{
    if (!out) return CUDNN_STATUS_BAD_PARAM;
    filter *f = calloc(1, sizeof *f);
    f->magic = FILTER_MAGIC;
    *out = (cudnnFilterDescriptor_t)f;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d)
{
    filter *f = filter_of(d);
    if (d && !f) return CUDNN_STATUS_BAD_PARAM;
    if (f) f->magic = 0;
    free(f);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int nd, const int dim[])
{
    filter *f = filter_of(d);
    if (!f || !dim) return CUDNN_STATUS_BAD_PARAM;
    if (nd > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
    if (nd < 3 || (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)) return CUDNN_STATUS_BAD_PARAM;
    if (!is_float(type)) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    for (int i = 0; i < nd; i++)
        if (dim[i] < 1) return CUDNN_STATUS_BAD_PARAM;
    f->type = type;
    f->format = format;
    f->nd = nd;
    memcpy(f->dim, dim, (size_t)nd * sizeof *dim);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w)
{
    int dim[4] = {k, c, h, w};
    return cudnnSetFilterNdDescriptor(d, type, format, 4, dim);
}
cudnnStatus_t cudnnGetFilter4dDescriptor(const cudnnFilterDescriptor_t d, cudnnDataType_t *type,
                                         cudnnTensorFormat_t *format, int *k, int *c, int *h, int *w)
{
    filter *f = filter_of(d);
    if (!f || !type || !format || !k || !c || !h || !w) return CUDNN_STATUS_BAD_PARAM;
    if (f->nd != 4) return CUDNN_STATUS_BAD_PARAM;
    *type = f->type;
    *format = f->format;
    *k = f->dim[0], *c = f->dim[1], *h = f->dim[2], *w = f->dim[3];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out)
{
    if (!out) return CUDNN_STATUS_BAD_PARAM;
    conv *c = calloc(1, sizeof *c);
    c->magic = CONV_MAGIC;
    c->groups = 1;
    *out = (cudnnConvolutionDescriptor_t)c;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d)
{
    conv *c = conv_of(d);
    if (d && !c) return CUDNN_STATUS_BAD_PARAM;
    if (c) c->magic = 0;
    free(c);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t d, int n, const int pad[], const int step[],
                                              const int dilation[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    conv *c = conv_of(d);
    if (!c || !pad || !step || !dilation) return CUDNN_STATUS_BAD_PARAM;
    if (n > CUDNN_DIM_MAX - 2) return CUDNN_STATUS_NOT_SUPPORTED;
    if (n < 1 || (mode != CUDNN_CONVOLUTION && mode != CUDNN_CROSS_CORRELATION)) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < n; i++)
        if (pad[i] < 0 || step[i] < 1 || dilation[i] < 1) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < n; i++) {
        c->pad[i] = pad[i];
        c->step[i] = step[i];
        c->dilation[i] = dilation[i];
    }
    c->nd = n;
    c->mode = mode;
    c->compute = compute;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int u, int v,
                                              int dil_h, int dil_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    int pad[2] = {pad_h, pad_w}, step[2] = {u, v}, dilation[2] = {dil_h, dil_w};
    return cudnnSetConvolutionNdDescriptor(d, 2, pad, step, dilation, mode, compute);
}
cudnnStatus_t cudnnGetConvolution2dDescriptor(const cudnnConvolutionDescriptor_t d, int *pad_h, int *pad_w, int *u,
                                              int *v, int *dil_h, int *dil_w, cudnnConvolutionMode_t *mode,
                                              cudnnDataType_t *compute)
{
    conv *c = conv_of(d);
    if (!c || !pad_h || !pad_w || !u || !v || !dil_h || !dil_w || !mode || !compute)
        return CUDNN_STATUS_BAD_PARAM;
    if (c->nd != 2) return CUDNN_STATUS_BAD_PARAM;
    *pad_h = c->pad[0], *pad_w = c->pad[1], *u = c->step[0], *v = c->step[1];
    *dil_h = c->dilation[0], *dil_w = c->dilation[1];
    *mode = c->mode;
    *compute = c->compute;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups)
{
    conv *c = conv_of(d);
    if (!c) return CUDNN_STATUS_BAD_PARAM;
    if (groups < 1) return CUDNN_STATUS_BAD_PARAM;
    c->groups = groups;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int *groups)
{
    conv *c = conv_of(d);
    if (!c || !groups) return CUDNN_STATUS_BAD_PARAM;
    *groups = c->groups;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math)
{
    conv *c = conv_of(d);
    if (!c) return CUDNN_STATUS_BAD_PARAM;
    if ((unsigned)math > CUDNN_FMA_MATH) return CUDNN_STATUS_BAD_PARAM;
    c->math = math;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t *math)
{
    conv *c = conv_of(d);
    if (!c || !math) return CUDNN_STATUS_BAD_PARAM;
    *math = c->math;
    return CUDNN_STATUS_SUCCESS;
}
static int out_dim(const conv *c, int i, int x, int window)
{
    int64_t room = (int64_t)x + 2 * (int64_t)c->pad[i] - ((int64_t)(window - 1) * c->dilation[i] + 1);
    return room < 0 ? 0 : (int)(1 + room / c->step[i]);
}
cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(const cudnnConvolutionDescriptor_t cd,
                                                    const cudnnTensorDescriptor_t xd, const cudnnFilterDescriptor_t wd,
                                                    int nd, int dim[])
{
    conv   *c = conv_of(cd);
    tensor *x = tensor_of(xd);
    filter *w = filter_of(wd);
    if (!c || !x || !w || !dim) return CUDNN_STATUS_BAD_PARAM;
    if (x->nd != w->nd || x->nd != c->nd + 2 || nd != x->nd || x->dim[1] != w->dim[1] * c->groups ||
        w->dim[0] % c->groups)
        return CUDNN_STATUS_BAD_PARAM;
    for (int i = 2; i < nd; i++)
        if (out_dim(c, i - 2, x->dim[i], w->dim[i]) < 1) return CUDNN_STATUS_BAD_PARAM;
    dim[0] = x->dim[0];
    dim[1] = w->dim[0];
    for (int i = 2; i < nd; i++) dim[i] = out_dim(c, i - 2, x->dim[i], w->dim[i]);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t cd,
                                                    const cudnnTensorDescriptor_t xd, const cudnnFilterDescriptor_t wd,
                                                    int *n, int *c, int *h, int *w)
{
    int dim[4];
    if (!n || !c || !h || !w) return CUDNN_STATUS_BAD_PARAM;
    cudnnStatus_t st = cudnnGetConvolutionNdForwardOutputDim(cd, xd, wd, 4, dim);
    if (!st) *n = dim[0], *c = dim[1], *h = dim[2], *w = dim[3];
    return st;
}

/* ==================================================================================================== >>algorithms */
typedef struct task { /* a convolution: which of the three, and between what */
    int    kind, algo;
    tensor x, y;
    filter w;
    conv   c;
} task;

static bool is_nhwc(const tensor *t)
{
    return t->stride[1] == 1 && t->stride[3] == t->dim[1] && t->stride[2] == t->dim[1] * t->dim[3] &&
           t->stride[0] == t->dim[1] * t->dim[3] * t->dim[2];
}
static const char *algo_name(int kind) { return kind == FORWARD ? "forward" : kind == DATA ? "data" : "filter"; }
static bool        deterministic(int kind, int algo)
{
    if (kind == DATA) return algo != CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
    if (kind == FILTER)
        return algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 && algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3;
    return true;
}
/* Do the descriptors belong together, and can any algorithm do it? */
static cudnnStatus_t check_task(const task *t, int device)
{
    int             dim[4];
    cudnnDataType_t type = t->x.type;
    if (t->x.nd != 4 || t->y.nd != 4 || t->w.nd != 4 || t->c.nd != 2) {
        emu_note("a convolution of %d, %d, %d and %d dimensions", t->x.nd, t->y.nd, t->w.nd, t->c.nd);
        return CUDNN_STATUS_NOT_SUPPORTED_SHAPE;
    }
    if (t->y.type != type || t->w.type != type) {
        emu_note("a convolution of types %d, %d and %d", (int)type, (int)t->w.type, (int)t->y.type);
        return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    }
    if (t->c.compute != CUDNN_DATA_FLOAT) {
        emu_note("a convolution that sums in type %d: f32 is modelled", (int)t->c.compute);
        return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    }
    if (type == CUDNN_DATA_BFLOAT16 && emu_capability(device) < 80) return CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH;
    if (t->x.dim[1] != t->w.dim[1] * t->c.groups || t->w.dim[0] % t->c.groups) {
        emu_note("a convolution of %d channels by filters of %d in %d groups, %d filters", t->x.dim[1], t->w.dim[1],
                 t->c.groups, t->w.dim[0]);
        return CUDNN_STATUS_BAD_PARAM;
    }
    dim[0] = t->x.dim[0];
    dim[1] = t->w.dim[0];
    for (int i = 0; i < 2; i++) dim[2 + i] = out_dim(&t->c, i, t->x.dim[2 + i], t->w.dim[2 + i]);
    if (memcmp(dim, t->y.dim, sizeof dim)) {
        emu_note("a convolution gives %d x %d x %d x %d, the descriptor says %d x %d x %d x %d", dim[0], dim[1], dim[2],
                 dim[3], t->y.dim[0], t->y.dim[1], t->y.dim[2], t->y.dim[3]);
        return CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH;
    }
    if (t->w.format == CUDNN_TENSOR_NHWC && (!is_nhwc(&t->x) || !is_nhwc(&t->y))) {
        emu_note("a filter of format NHWC with images that are not");
        return CUDNN_STATUS_NOT_SUPPORTED_LAYOUT;
    }
    return CUDNN_STATUS_SUCCESS;
}
/* Can this algorithm, and with how much workspace? The sizes are of our own making; real ones differ by card. */
static cudnnStatus_t check_algo(const task *t, size_t *workspace)
{
    const conv *c = &t->c;
    bool        dilated = c->dilation[0] > 1 || c->dilation[1] > 1, strided = c->step[0] > 1 || c->step[1] > 1;
    int         r = t->w.dim[2], s = t->w.dim[3], pixels = t->y.dim[2] * t->y.dim[3];
    size_t      column = (size_t)t->w.dim[1] * (size_t)r * (size_t)s * 4, k = (size_t)t->w.dim[0];
    bool        winograd = r == 3 && s == 3 && !strided && !dilated && c->pad[0] < 3 && c->pad[1] < 3;
    bool        winograd5 = r == 5 && s == 5 && !strided && !dilated && c->pad[0] < 5 && c->pad[1] < 5;
    bool        plain = t->w.format == CUDNN_TENSOR_NCHW;
    *workspace = 0;
    switch (t->kind * 16 + t->algo) {
    case FORWARD * 16 + CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM: break;
    case FORWARD * 16 + CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM: *workspace = column + 12; break;
    case FORWARD * 16 + CUDNN_CONVOLUTION_FWD_ALGO_GEMM:
        if (dilated || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = column * (size_t)pixels;
        break;
    case FORWARD * 16 + CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD:
        if (!winograd || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = 16 * k * (size_t)t->w.dim[1] * 4 + 4;
        break;
    case FORWARD * 16 + CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED:
        if ((!winograd && !winograd5) || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = 36 * k * (size_t)t->w.dim[1] * 4 + 1028;
        break;
    case DATA * 16 + CUDNN_CONVOLUTION_BWD_DATA_ALGO_0: break;
    case DATA * 16 + CUDNN_CONVOLUTION_BWD_DATA_ALGO_1: *workspace = column + 20; break;
    case DATA * 16 + CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD:
        if (!winograd || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = 16 * k * (size_t)t->w.dim[1] * 4 + 4;
        break;
    case DATA * 16 + CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED:
        if ((!winograd && !winograd5) || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = 36 * k * (size_t)t->w.dim[1] * 4 + 1028;
        break;
    case FILTER * 16 + CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0: break;
    case FILTER * 16 + CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1: *workspace = column + 28; break;
    case FILTER * 16 + CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3:
        if (dilated || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = column * k + 36;
        break;
    case FILTER * 16 + CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED:
        if ((!winograd && !winograd5) || !plain) return CUDNN_STATUS_NOT_SUPPORTED;
        *workspace = 36 * k * (size_t)t->w.dim[1] * 4 + 1028;
        break;
    default: return CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}
enum { MOST_ALGOS = 8 };
static int algo_count(int kind)
{
    return kind == FORWARD ? CUDNN_CONVOLUTION_FWD_ALGO_COUNT
           : kind == DATA  ? CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT
                           : CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT;
}
static bool same_task(cudnnHandle_t hh, int kind, int algo, cudnnTensorDescriptor_t xd, cudnnFilterDescriptor_t wd,
                      cudnnConvolutionDescriptor_t cd, cudnnTensorDescriptor_t yd, task *t)
{
    if (!handle_of(hh) || !tensor_of(xd) || !tensor_of(yd) || !filter_of(wd) || !conv_of(cd)) return false;
    *t = (task){kind, algo, *tensor_of(xd), *tensor_of(yd), *filter_of(wd), *conv_of(cd)};
    return true;
}

/* The algorithms, those that can do it first, in the seed's order; limit: of workspace. */
static cudnnStatus_t rank_algos(const handle *h, task *t, int wanted, int *got, cudnnConvolutionFwdAlgoPerf_t *out,
                                size_t limit)
{
    cudnnConvolutionFwdAlgoPerf_t p[MOST_ALGOS];
    cudnnStatus_t                 st = check_task(t, h->device);
    int                           n = algo_count(t->kind);
    if (st) return st;
    if (wanted < 1 || !got || !out) return CUDNN_STATUS_BAD_PARAM;
    for (int i = 0; i < n; i++) {
        memset(&p[i], 0, sizeof p[i]);
        t->algo = i;
        p[i].algo = (cudnnConvolutionFwdAlgo_t)i;
        p[i].status = check_algo(t, &p[i].memory);
        if (!p[i].status && p[i].memory > limit) p[i].status = CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
        p[i].time = p[i].status ? -1.0f : 0.01f + (float)(emu_random() % 1000) * 1e-3f;
        p[i].determinism = deterministic(t->kind, i) ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
        p[i].mathType = t->c.math;
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && (p[j].status ? 1e9f : p[j].time) < (p[j - 1].status ? 1e9f : p[j - 1].time); j--) {
            cudnnConvolutionFwdAlgoPerf_t swap = p[j];
            p[j] = p[j - 1];
            p[j - 1] = swap;
        }
    *got = n < wanted ? n : wanted;
    memcpy(out, p, (size_t)*got * sizeof *p);
    return CUDNN_STATUS_SUCCESS;
}
/* The three kinds of results differ in the name of their enumeration only. */
_Static_assert(sizeof(cudnnConvolutionFwdAlgoPerf_t) == sizeof(cudnnConvolutionBwdDataAlgoPerf_t) &&
                   sizeof(cudnnConvolutionFwdAlgoPerf_t) == sizeof(cudnnConvolutionBwdFilterAlgoPerf_t),
               "results");
static cudnnStatus_t search(cudnnHandle_t hh, int kind, cudnnTensorDescriptor_t xd, cudnnFilterDescriptor_t wd,
                            cudnnConvolutionDescriptor_t cd, cudnnTensorDescriptor_t yd, int wanted, int *got,
                            void *out, size_t limit)
{
    task                          t;
    cudnnStatus_t                 st;
    cudnnConvolutionFwdAlgoPerf_t p[MOST_ALGOS];
    if (!same_task(hh, kind, 0, xd, wd, cd, yd, &t) || !got || !out) return CUDNN_STATUS_BAD_PARAM;
    emu_lock();
    st = rank_algos(handle_of(hh), &t, wanted, got, p, limit);
    if (!st) memcpy(out, p, (size_t)*got * sizeof *p);
    emu_unlock();
    return st;
}

/* ==================================================================================================== >>convolution */
typedef struct conv_work {
    emu_work      w;
    task          t;
    float         alpha, beta;
    const void   *in, *weight; /* in: x or dy; weight: NULL for the filter's gradient */
    const void   *other;       /* x for the filter's gradient */
    void         *out;
    void         *workspace;
    size_t        workspace_nbytes;
    uint64_t      order; /* 0: as they come */
} conv_work;

static float load(const void *p, int64_t i, cudnnDataType_t t)
{
    if (t == CUDNN_DATA_FLOAT) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == CUDNN_DATA_HALF ? emu_f16_to_f32(h) : emu_bf16_to_f32(h);
}
static void store(void *p, int64_t i, cudnnDataType_t t, float v)
{
    if (t == CUDNN_DATA_FLOAT) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t == CUDNN_DATA_HALF ? emu_f32_to_f16(v) : emu_f32_to_bf16(v);
}
static int rounding(const conv *c, int device) /* of f32 operands */
{
    if (c->math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) return 2;
    return c->math != CUDNN_FMA_MATH && emu_capability(device) >= 80;
}
static float rounded(float v, int how)
{
    return how == 1 ? emu_tf32(v) : how == 2 ? emu_f16_to_f32(emu_f32_to_f16(v)) : v;
}

/* Access to all elements of a tensor, run by run of neighbours. */
static void *open_tensor(int device, const tensor *t, const void *ptr, int access, const char *who)
{
    int    at[4] = {0, 1, 2, 3};
    size_t e = width(t->type), run = e, last = 0;
    int    d = 3;
    for (int i = 1; i < 4; i++) /* by stride, largest first */
        for (int j = i; j > 0 && t->stride[at[j]] > t->stride[at[j - 1]]; j--) {
            int swap = at[j];
            at[j] = at[j - 1];
            at[j - 1] = swap;
        }
    for (int i = 0; i < 4; i++) last += (size_t)(t->dim[i] - 1) * (size_t)t->stride[i];
    for (; d >= 0 && (t->dim[at[d]] == 1 || (size_t)t->stride[at[d]] * e == run); d--) run *= (size_t)t->dim[at[d]];
    if (d < 0) return emu_bytes(device, ptr, run, access, who);
    char *base = emu_bytes(device, ptr, (last + 1) * e, 0, who);
    int   n[3] = {1, 1, 1}, s[3] = {0, 0, 0};
    for (int i = 0; d < 3 && i <= d; i++) n[2 - d + i] = t->dim[at[i]], s[2 - d + i] = t->stride[at[i]];
    if (d == 3) { /* not even one dimension of neighbours: element by element of the last */
        n[0] = t->dim[at[0]], n[1] = t->dim[at[1]], n[2] = t->dim[at[2]];
        s[0] = t->stride[at[0]], s[1] = t->stride[at[1]], s[2] = t->stride[at[2]];
    }
    for (int i = 0; base && i < n[0]; i++)
        for (int j = 0; j < n[1]; j++)
            for (int k = 0; k < n[2]; k++) {
                const char *p = (const char *)ptr +
                                ((int64_t)i * s[0] + (int64_t)j * s[1] + (int64_t)k * s[2]) * (int64_t)e;
                bool ok = d == 3
                              ? emu_rows(device, p, t->dim[at[3]], e, (size_t)t->stride[at[3]] * e, access, who) != NULL
                              : emu_bytes(device, p, run, access, who) != NULL;
                if (!ok) return NULL;
            }
    return base;
}
/* One image as f32, channels first. */
static void image(float *out, const tensor *t, const void *p, int n, int how)
{
    for (int c = 0; c < t->dim[1]; c++)
        for (int h = 0; h < t->dim[2]; h++) {
            int64_t at = (int64_t)n * t->stride[0] + (int64_t)c * t->stride[1] + (int64_t)h * t->stride[2];
            for (int w = 0; w < t->dim[3]; w++) *out++ = rounded(load(p, at + (int64_t)w * t->stride[3], t->type), how);
        }
}
static void put_image(const float *v, const tensor *t, void *p, int n, float alpha, float beta)
{
    for (int c = 0; c < t->dim[1]; c++)
        for (int h = 0; h < t->dim[2]; h++) {
            int64_t at = (int64_t)n * t->stride[0] + (int64_t)c * t->stride[1] + (int64_t)h * t->stride[2];
            for (int w = 0; w < t->dim[3]; w++, v++) {
                int64_t i = at + (int64_t)w * t->stride[3];
                float   r = alpha * *v;
                if (beta != 0) r += beta * load(p, i, t->type);
                store(p, i, t->type, r);
            }
        }
}
/* Where tap (r, s) of filter k, channel c lies. Mode "convolution" turns the window over. */
static int64_t tap(const task *t, int k, int c, int r, int s)
{
    const int *d = t->w.dim;
    if (t->c.mode == CUDNN_CONVOLUTION) r = d[2] - 1 - r, s = d[3] - 1 - s;
    return t->w.format == CUDNN_TENSOR_NCHW ? (((int64_t)k * d[1] + c) * d[2] + r) * d[3] + s
                                            : (((int64_t)k * d[2] + r) * d[3] + s) * d[1] + c;
}
/* Columns: for each (c, r, s) of a group, its value at every pixel of the output. by_pixel: the transpose. */
static void columns(float *col, const task *t, const float *img, int first_channel, bool by_pixel)
{
    const int *wd = t->w.dim, *xd = t->x.dim, oh = t->y.dim[2], ow = t->y.dim[3];
    int64_t    rows = (int64_t)wd[1] * wd[2] * wd[3], pixels = (int64_t)oh * ow, row = 0;
    for (int c = 0; c < wd[1]; c++)
        for (int r = 0; r < wd[2]; r++)
            for (int s = 0; s < wd[3]; s++, row++)
                for (int i = 0; i < oh; i++) {
                    int          h = i * t->c.step[0] - t->c.pad[0] + r * t->c.dilation[0];
                    bool         in = h >= 0 && h < xd[2];
                    const float *line = in ? img + ((int64_t)(first_channel + c) * xd[2] + h) * xd[3] : NULL;
                    for (int j = 0; j < ow; j++) {
                        int   w = j * t->c.step[1] - t->c.pad[1] + s * t->c.dilation[1];
                        float v = in && w >= 0 && w < xd[3] ? line[w] : 0;
                        if (by_pixel) col[((int64_t)i * ow + j) * rows + row] = v;
                        else col[row * pixels + (int64_t)i * ow + j] = v;
                    }
                }
}
static void add_columns(float *img, const task *t, const float *col, int first_channel)
{
    const int *wd = t->w.dim, *xd = t->x.dim, oh = t->y.dim[2], ow = t->y.dim[3];
    for (int c = 0; c < wd[1]; c++)
        for (int r = 0; r < wd[2]; r++)
            for (int s = 0; s < wd[3]; s++)
                for (int i = 0; i < oh; i++) {
                    int h = i * t->c.step[0] - t->c.pad[0] + r * t->c.dilation[0];
                    for (int j = 0; j < ow; j++, col++) {
                        int w = j * t->c.step[1] - t->c.pad[1] + s * t->c.dilation[1];
                        if (h >= 0 && h < xd[2] && w >= 0 && w < xd[3])
                            img[((int64_t)(first_channel + c) * xd[2] + h) * xd[3] + w] += *col;
                    }
                }
}
static void *room(size_t n)
{
    void *p = calloc(n + 1, sizeof(float));
    if (!p) {
        fprintf(stderr, "emu: out of host memory\n");
        abort();
    }
    return p;
}
/* 0..n-1, shuffled by order unless it is 0. */
static int *sequence(int n, uint64_t order)
{
    int *p = malloc((size_t)(n + 1) * sizeof *p);
    for (int i = 0; i < n; i++) p[i] = i;
    for (int i = n - 1; order && i > 0; i--) {
        order = order * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((order >> 33) % (unsigned)(i + 1)), swap = p[i];
        p[i] = p[j];
        p[j] = swap;
    }
    return p;
}
static void forward(const conv_work *w, const void *x, const void *weight, void *y, int how)
{
    const task *t = &w->t;
    int         k = t->w.dim[0] / t->c.groups, c = t->w.dim[1];
    int64_t     taps = (int64_t)c * t->w.dim[2] * t->w.dim[3], pixels = (int64_t)t->y.dim[2] * t->y.dim[3];
    float      *wt = room((size_t)(taps * t->w.dim[0])), *col = room((size_t)(taps * pixels)), *p = wt;
    float      *img = room((size_t)t->x.dim[1] * (size_t)t->x.dim[2] * (size_t)t->x.dim[3]);
    float      *out = room((size_t)(t->w.dim[0] * pixels));
    for (int f = 0; f < t->w.dim[0]; f++)
        for (int a = 0; a < c; a++)
            for (int r = 0; r < t->w.dim[2]; r++)
                for (int s = 0; s < t->w.dim[3]; s++) *p++ = rounded(load(weight, tap(t, f, a, r, s), t->w.type), how);
    for (int n = 0; n < t->x.dim[0]; n++) {
        image(img, &t->x, x, n, how);
        memset(out, 0, (size_t)(t->w.dim[0] * pixels) * sizeof *out);
        for (int g = 0; g < t->c.groups; g++) {
            columns(col, t, img, g * c, false);
            emu_sgemm(k, pixels, taps, wt + g * k * taps, taps, col, pixels, out + g * k * pixels, pixels);
        }
        put_image(out, &t->y, y, n, w->alpha, w->beta);
    }
    free(wt), free(col), free(img), free(out);
}
static void backward_data(const conv_work *w, const void *dy, const void *weight, void *dx, int how)
{
    const task *t = &w->t;
    int         k = t->w.dim[0] / t->c.groups, c = t->w.dim[1];
    int64_t     taps = (int64_t)c * t->w.dim[2] * t->w.dim[3], pixels = (int64_t)t->y.dim[2] * t->y.dim[3];
    size_t      nimg = (size_t)t->x.dim[1] * (size_t)t->x.dim[2] * (size_t)t->x.dim[3];
    float      *wt = room((size_t)(taps * t->w.dim[0])), *col = room((size_t)(taps * pixels)), *img = room(nimg);
    float      *out = room((size_t)(t->w.dim[0] * pixels)), *mixed = room((size_t)(k * pixels));
    int        *order = sequence(k, w->order);
    for (int g = 0; g < t->c.groups; g++) /* of each group: taps x k, the filters in the order of the sum */
        for (int a = 0; a < c; a++)
            for (int r = 0; r < t->w.dim[2]; r++)
                for (int s = 0; s < t->w.dim[3]; s++)
                    for (int f = 0; f < k; f++)
                        wt[g * k * taps + (((int64_t)a * t->w.dim[2] + r) * t->w.dim[3] + s) * k + f] =
                            rounded(load(weight, tap(t, g * k + order[f], a, r, s), t->w.type), how);
    for (int n = 0; n < t->x.dim[0]; n++) {
        image(out, &t->y, dy, n, how);
        memset(img, 0, nimg * sizeof *img);
        for (int g = 0; g < t->c.groups; g++) {
            for (int f = 0; f < k; f++)
                memcpy(mixed + f * pixels, out + (g * k + order[f]) * pixels, (size_t)pixels * sizeof *mixed);
            memset(col, 0, (size_t)(taps * pixels) * sizeof *col);
            emu_sgemm(taps, pixels, k, wt + g * k * taps, k, mixed, pixels, col, pixels);
            add_columns(img, t, col, g * c);
        }
        put_image(img, &t->x, dx, n, w->alpha, w->beta);
    }
    free(wt), free(col), free(img), free(out), free(mixed), free(order);
}
static void backward_filter(const conv_work *w, const void *dy, const void *x, void *dw, int how)
{
    const task *t = &w->t;
    int         k = t->w.dim[0] / t->c.groups, c = t->w.dim[1];
    int64_t     taps = (int64_t)c * t->w.dim[2] * t->w.dim[3], pixels = (int64_t)t->y.dim[2] * t->y.dim[3];
    float      *wt = room((size_t)(taps * t->w.dim[0])), *col = room((size_t)(taps * pixels)), *p = wt;
    float      *img = room((size_t)t->x.dim[1] * (size_t)t->x.dim[2] * (size_t)t->x.dim[3]);
    float      *out = room((size_t)(t->w.dim[0] * pixels));
    int        *order = sequence(t->x.dim[0], w->order);
    for (int n = 0; n < t->x.dim[0]; n++) {
        image(img, &t->x, x, order[n], how);
        image(out, &t->y, dy, order[n], how);
        for (int g = 0; g < t->c.groups; g++) {
            columns(col, t, img, g * c, true);
            emu_sgemm(k, taps, pixels, out + g * k * pixels, pixels, col, taps, wt + g * k * taps, taps);
        }
    }
    for (int f = 0; f < t->w.dim[0]; f++)
        for (int a = 0; a < c; a++)
            for (int r = 0; r < t->w.dim[2]; r++)
                for (int s = 0; s < t->w.dim[3]; s++, p++) {
                    int64_t i = tap(t, f, a, r, s);
                    float   v = w->alpha * *p;
                    if (w->beta != 0) v += w->beta * load(dw, i, t->w.type);
                    store(dw, i, t->w.type, v);
                }
    free(wt), free(col), free(img), free(out), free(order);
}
static int conv_run(emu_work *ew)
{
    conv_work  *w = (conv_work *)ew;
    const task *t = &w->t;
    int         d = ew->device, how = t->x.type == CUDNN_DATA_FLOAT ? rounding(&t->c, d) : 0;
    size_t nw = (size_t)t->w.dim[0] * (size_t)t->w.dim[1] * (size_t)t->w.dim[2] * (size_t)t->w.dim[3] *
                width(t->w.type);
    int         out = w->beta != 0 ? EMU_READ | EMU_WRITE : EMU_WRITE;
    if (w->workspace_nbytes) { /* all that was promised is used, and left as it may be */
        if (!emu_bytes(d, w->workspace, w->workspace_nbytes, EMU_WRITE, "the workspace of cuDNN")) return EMU_DONE;
        emu_forget(d, w->workspace, w->workspace_nbytes);
    }
    if (t->kind == FORWARD) {
        void *x = open_tensor(d, &t->x, w->in, EMU_READ, "x of a convolution");
        void *f = x ? emu_bytes(d, w->weight, nw, EMU_READ, "w of a convolution") : NULL;
        void *y = f ? open_tensor(d, &t->y, w->out, out, "y of a convolution") : NULL;
        if (y) forward(w, x, f, y, how);
    } else if (t->kind == DATA) {
        void *dy = open_tensor(d, &t->y, w->in, EMU_READ, "dy of a convolution's data gradient");
        void *f = dy ? emu_bytes(d, w->weight, nw, EMU_READ, "w of a convolution's data gradient") : NULL;
        void *dx = f ? open_tensor(d, &t->x, w->out, out, "dx of a convolution's data gradient") : NULL;
        if (dx) backward_data(w, dy, f, dx, how);
    } else {
        void *dy = open_tensor(d, &t->y, w->in, EMU_READ, "dy of a convolution's filter gradient");
        void *x = dy ? open_tensor(d, &t->x, w->other, EMU_READ, "x of a convolution's filter gradient") : NULL;
        void *dw = x ? emu_bytes(d, w->out, nw, out, "dw of a convolution's filter gradient") : NULL;
        if (dw) backward_filter(w, dy, x, dw, how);
    }
    emu_count(EMU_CONVS);
    return EMU_DONE;
}
static void conv_drop(emu_work *w) { free(w); }

/* With DT_EMU_HARSH: does the library refuse now what it named before? One algorithm of each direction runs for every f32 shape. */
static cudnnStatus_t harsh(const task *t, const void *const *operand)
{
    bool     halves = t->x.type != CUDNN_DATA_FLOAT;
    int      always = t->kind == FORWARD ? (int)CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM : 1;
    uint64_t shape = (uint64_t)t->x.dim[1] << 40 ^ (uint64_t)t->x.dim[2] << 24 ^ (uint64_t)t->w.dim[0] << 8 ^ (uint64_t)t->w.dim[2];
    if (!emu_harsh(0)) return CUDNN_STATUS_SUCCESS;
    if (halves && emu_harsh(1) % 2 && (int)(emu_harsh(2) % 3) == t->kind) return CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE;
    for (int i = 0; halves && i < 4; i++)
        if ((uintptr_t)operand[i] % 16) return CUDNN_STATUS_NOT_SUPPORTED;
    if (t->algo == always) return CUDNN_STATUS_SUCCESS;
    uint64_t dice = emu_harsh(3 + shape * 31 + (uint64_t)(t->kind * 16 + t->algo)) % 4;
    return dice == 0   ? CUDNN_STATUS_NOT_SUPPORTED
           : dice == 1 ? CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                       : CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t convolve(cudnnHandle_t hh, const task *t, const float *alpha, const float *beta, const void *in,
                              const void *weight, const void *other, void *out, void *workspace, size_t nbytes,
                              const char *name)
{
    handle       *h = handle_of(hh);
    cudnnStatus_t st;
    size_t        need = 0, e = width(t->x.type);
    const void   *operand[4] = {in, weight, other, out};
    if (!alpha || !beta || !in || !out || (!weight && !other)) return CUDNN_STATUS_BAD_PARAM;
    emu_lock();
    if (emu_usable() || emu_sticky(h->device)) st = CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    else if (emu_device() != h->device) {
        emu_note("%s: a handle of device %d while device %d is current", name, h->device, emu_device());
        st = CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH;
    } else if (!(st = check_task(t, h->device)) && (st = check_algo(t, &need)))
        emu_note("%s: algorithm %d (%s) cannot do it", name, t->algo, algo_name(t->kind));
    if (!st && need && (nbytes < need || !workspace)) {
        emu_note("%s: a workspace of %zu bytes, algorithm %d needs %zu", name, nbytes, t->algo, need);
        st = CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
    }
    for (int i = 0; !st && i < 4; i++)
        if (operand[i] && (uintptr_t)operand[i] % e) st = CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
    for (int i = 0; !st && i < 4; i++)
        if (operand[i]) emu_operand(operand[i], name);
    if (!st) st = harsh(t, operand);
    if (!st && emu_is_device_pointer(alpha)) {
        emu_fail(h->device, cudaErrorIllegalAddress, "%s: alpha and beta are read on the host", name);
        st = CUDNN_STATUS_EXECUTION_FAILED;
    }
    if (!st) {
        static bool used[EMU_MAX_DEVICES];
        if (!used[h->device]) emu_loading(h->device, "the first convolution");
        used[h->device] = true;
        conv_work *w = calloc(1, sizeof *w);
        *w = (conv_work){.t = *t, .alpha = *alpha, .beta = *beta, .in = in, .weight = weight, .other = other,
                         .out = out, .workspace = workspace, .workspace_nbytes = need};
        w->w = (emu_work){.run = conv_run, .drop = conv_drop, .name = name};
        if (!deterministic(t->kind, t->algo)) w->order = emu_random() | 1;
        if (emu_queue(h->stream, &w->w)) st = CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    }
    emu_unlock();
    return st;
}
cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                      const void *x, const cudnnFilterDescriptor_t wd, const void *w,
                                      const cudnnConvolutionDescriptor_t cd, cudnnConvolutionFwdAlgo_t algo,
                                      void *workspace, size_t nbytes, const void *beta,
                                      const cudnnTensorDescriptor_t yd, void *y)
{
    task t;
    if (!same_task(h, FORWARD, (int)algo, xd, wd, cd, yd, &t)) return CUDNN_STATUS_BAD_PARAM;
    return convolve(h, &t, alpha, beta, x, w, NULL, y, workspace, nbytes, "cudnnConvolutionForward");
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha, const cudnnFilterDescriptor_t wd,
                                           const void *w, const cudnnTensorDescriptor_t dyd, const void *dy,
                                           const cudnnConvolutionDescriptor_t cd, cudnnConvolutionBwdDataAlgo_t algo,
                                           void *workspace, size_t nbytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxd, void *dx)
{
    task t;
    if (!same_task(h, DATA, (int)algo, dxd, wd, cd, dyd, &t)) return CUDNN_STATUS_BAD_PARAM;
    return convolve(h, &t, alpha, beta, dy, w, NULL, dx, workspace, nbytes, "cudnnConvolutionBackwardData");
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha, const cudnnTensorDescriptor_t xd,
                                             const void *x, const cudnnTensorDescriptor_t dyd, const void *dy,
                                             const cudnnConvolutionDescriptor_t cd,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace, size_t nbytes,
                                             const void *beta, const cudnnFilterDescriptor_t dwd, void *dw)
{
    task t;
    if (!same_task(h, FILTER, (int)algo, xd, dwd, cd, dyd, &t)) return CUDNN_STATUS_BAD_PARAM;
    return convolve(h, &t, alpha, beta, dy, NULL, x, dw, workspace, nbytes, "cudnnConvolutionBackwardFilter");
}

/* ==================================================================================================== >>search */
static cudnnStatus_t workspace_of(cudnnHandle_t h, int kind, int algo, cudnnTensorDescriptor_t xd,
                                  cudnnFilterDescriptor_t wd, cudnnConvolutionDescriptor_t cd,
                                  cudnnTensorDescriptor_t yd, size_t *nbytes)
{
    task          t;
    cudnnStatus_t st;
    if (!same_task(h, kind, algo, xd, wd, cd, yd, &t) || !nbytes) return CUDNN_STATUS_BAD_PARAM;
    emu_lock();
    st = check_task(&t, handle_of(h)->device);
    if (!st) st = check_algo(&t, nbytes);
    emu_unlock();
    return st;
}
/* A search with the user's memory: waits for the device and leaves anything in the output. */
static cudnnStatus_t search_ex(cudnnHandle_t hh, int kind, cudnnTensorDescriptor_t xd, cudnnFilterDescriptor_t wd,
                               cudnnConvolutionDescriptor_t cd, cudnnTensorDescriptor_t yd, const void *a,
                               const void *b, void *out, int wanted, int *got, void *results, void *workspace,
                               size_t nbytes)
{
    cudnnStatus_t st;
    handle       *h = handle_of(hh);
    task          t;
    if (!same_task(hh, kind, 0, xd, wd, cd, yd, &t) || !a || !b || !out || (nbytes && !workspace))
        return CUDNN_STATUS_BAD_PARAM;
    if ((st = search(hh, kind, xd, wd, cd, yd, wanted, got, results, nbytes))) return st;
    if (cudaStreamSynchronize(h->stream)) return CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    emu_lock();
    tensor as_tensor = {.type = t.w.type, .nd = 4};
    for (int i = 3, n = 1; i >= 0; n *= t.w.dim[i--]) as_tensor.dim[i] = t.w.dim[i], as_tensor.stride[i] = n;
    tensor *o = kind == FORWARD ? &t.y : kind == DATA ? &t.x : &as_tensor;
    size_t  all = 0;
    for (int i = 0; i < 4; i++) all += (size_t)(o->dim[i] - 1) * (size_t)o->stride[i];
    all = (all + 1) * width(o->type);
    if (emu_bytes(h->device, out, all, 0, "the output of a search")) emu_forget(h->device, out, all);
    if (nbytes && emu_bytes(h->device, workspace, nbytes, 0, "the workspace of a search"))
        emu_forget(h->device, workspace, nbytes);
    if (emu_sticky(h->device)) st = CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    emu_unlock();
    return st;
}
#define MOST (~(size_t)0)
static cudnnStatus_t most_algos(cudnnHandle_t h, int kind, int *n)
{
    if (!handle_of(h) || !n) return CUDNN_STATUS_BAD_PARAM;
    *n = algo_count(kind);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t h, int *n) { return most_algos(h, FORWARD, n); }
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t h, int *n)
{
    return most_algos(h, DATA, n);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t h, int *n)
{
    return most_algos(h, FILTER, n);
}
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t h, const cudnnTensorDescriptor_t xd,
                                                      const cudnnFilterDescriptor_t wd,
                                                      const cudnnConvolutionDescriptor_t cd,
                                                      const cudnnTensorDescriptor_t yd, cudnnConvolutionFwdAlgo_t algo,
                                                      size_t *nbytes)
{
    return workspace_of(h, FORWARD, (int)algo, xd, wd, cd, yd, nbytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t h, const cudnnFilterDescriptor_t wd,
                                                           const cudnnTensorDescriptor_t dyd,
                                                           const cudnnConvolutionDescriptor_t cd,
                                                           const cudnnTensorDescriptor_t dxd,
                                                           cudnnConvolutionBwdDataAlgo_t algo, size_t *nbytes)
{
    return workspace_of(h, DATA, (int)algo, dxd, wd, cd, dyd, nbytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t h, const cudnnTensorDescriptor_t xd,
                                                             const cudnnTensorDescriptor_t dyd,
                                                             const cudnnConvolutionDescriptor_t cd,
                                                             const cudnnFilterDescriptor_t dwd,
                                                             cudnnConvolutionBwdFilterAlgo_t algo, size_t *nbytes)
{
    return workspace_of(h, FILTER, (int)algo, xd, dwd, cd, dyd, nbytes);
}
cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t h, const cudnnTensorDescriptor_t xd,
                                                     const cudnnFilterDescriptor_t wd,
                                                     const cudnnConvolutionDescriptor_t cd,
                                                     const cudnnTensorDescriptor_t yd, const int wanted, int *got,
                                                     cudnnConvolutionFwdAlgoPerf_t *out)
{
    return search(h, FORWARD, xd, wd, cd, yd, wanted, got, out, MOST);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t h, const cudnnFilterDescriptor_t wd,
                                                          const cudnnTensorDescriptor_t dyd,
                                                          const cudnnConvolutionDescriptor_t cd,
                                                          const cudnnTensorDescriptor_t dxd, const int wanted, int *got,
                                                          cudnnConvolutionBwdDataAlgoPerf_t *out)
{
    return search(h, DATA, dxd, wd, cd, dyd, wanted, got, out, MOST);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t h, const cudnnTensorDescriptor_t xd,
                                                            const cudnnTensorDescriptor_t dyd,
                                                            const cudnnConvolutionDescriptor_t cd,
                                                            const cudnnFilterDescriptor_t dwd, const int wanted,
                                                            int *got, cudnnConvolutionBwdFilterAlgoPerf_t *out)
{
    return search(h, FILTER, xd, dwd, cd, dyd, wanted, got, out, MOST);
}
/* With memory of its own; waits for the device, as a search that measures does. */
static cudnnStatus_t search_waiting(cudnnHandle_t h, int kind, cudnnTensorDescriptor_t xd, cudnnFilterDescriptor_t wd,
                                    cudnnConvolutionDescriptor_t cd, cudnnTensorDescriptor_t yd, int wanted, int *got,
                                    void *out)
{
    cudnnStatus_t                  st;
    cudnnConvolutionFwdAlgoPerf_t *p = out;
    if (!handle_of(h)) return CUDNN_STATUS_BAD_PARAM;
    if (cudaDeviceSynchronize()) return CUDNN_STATUS_EXECUTION_FAILED_CUDART;
    st = search(h, kind, xd, wd, cd, yd, wanted, got, out, MOST);
    for (int i = 0; !st && emu_harsh(0) && i < *got; i++) {
        void *space;
        if (p[i].status || !p[i].memory) continue;
        if (cudaMalloc(&space, p[i].memory)) {
            (void)cudaGetLastError();
            p[i].status = CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
        } else (void)cudaFree(space);
    }
    return st;
}
cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t h, const cudnnTensorDescriptor_t xd,
                                                   const cudnnFilterDescriptor_t wd,
                                                   const cudnnConvolutionDescriptor_t cd,
                                                   const cudnnTensorDescriptor_t yd, const int wanted, int *got,
                                                   cudnnConvolutionFwdAlgoPerf_t *out)
{
    return search_waiting(h, FORWARD, xd, wd, cd, yd, wanted, got, out);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t h, const cudnnFilterDescriptor_t wd,
                                                        const cudnnTensorDescriptor_t dyd,
                                                        const cudnnConvolutionDescriptor_t cd,
                                                        const cudnnTensorDescriptor_t dxd, const int wanted, int *got,
                                                        cudnnConvolutionBwdDataAlgoPerf_t *out)
{
    return search_waiting(h, DATA, dxd, wd, cd, dyd, wanted, got, out);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t h, const cudnnTensorDescriptor_t xd,
                                                          const cudnnTensorDescriptor_t dyd,
                                                          const cudnnConvolutionDescriptor_t cd,
                                                          const cudnnFilterDescriptor_t dwd, const int wanted, int *got,
                                                          cudnnConvolutionBwdFilterAlgoPerf_t *out)
{
    return search_waiting(h, FILTER, xd, dwd, cd, dyd, wanted, got, out);
}
cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const void *x,
                                                     const cudnnFilterDescriptor_t wd, const void *w,
                                                     const cudnnConvolutionDescriptor_t cd,
                                                     const cudnnTensorDescriptor_t yd, void *y, const int wanted,
                                                     int *got, cudnnConvolutionFwdAlgoPerf_t *out, void *workspace,
                                                     size_t nbytes)
{
    return search_ex(h, FORWARD, xd, wd, cd, yd, x, w, y, wanted, got, out, workspace, nbytes);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t h, const cudnnFilterDescriptor_t wd,
                                                          const void *w, const cudnnTensorDescriptor_t dyd,
                                                          const void *dy, const cudnnConvolutionDescriptor_t cd,
                                                          const cudnnTensorDescriptor_t dxd, void *dx, const int wanted,
                                                          int *got, cudnnConvolutionBwdDataAlgoPerf_t *out,
                                                          void *workspace, size_t nbytes)
{
    return search_ex(h, DATA, dxd, wd, cd, dyd, dy, w, dx, wanted, got, out, workspace, nbytes);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const void *x, const cudnnTensorDescriptor_t dyd, const void *dy,
    const cudnnConvolutionDescriptor_t cd, const cudnnFilterDescriptor_t dwd, void *dw, const int wanted, int *got,
    cudnnConvolutionBwdFilterAlgoPerf_t *out, void *workspace, size_t nbytes)
{
    return search_ex(h, FILTER, xd, dwd, cd, dyd, dy, x, dw, wanted, got, out, workspace, nbytes);
}
