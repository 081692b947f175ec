/* emu_cublas.c: matrix products on the CPU, see emu.h. Becomes libcublas.so.13.

   Products are work of the handle's stream. What the documentation says holds: column order and leading dimensions, the
   table of compute types, scalars at the call or (in device pointer mode) when the product runs, C unread where beta is
   0, A and B unread where alpha is 0. f32 accumulation; TF32 operands rounded where the compute type or the math mode
   asks for it. Not modelled and refused: f64, complex, integers, 8-bit formats. */
#include "emu.h"

#include <cublas_v2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct handle {
    emu_handle          on;
    cublasMath_t        math;
    cublasPointerMode_t mode;
    cublasAtomicsMode_t atomics;
    void               *workspace;
    size_t              workspace_nbytes;
} handle;
enum { HANDLE_MAGIC = 0xb1a5 };

static handle *handle_of(cublasHandle_t h) { return (handle *)emu_handle_of(h, HANDLE_MAGIC); }

/* ---- the handle */
cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    if (!out) return CUBLAS_STATUS_INVALID_VALUE;
    void *h = emu_handle_new(sizeof(handle), HANDLE_MAGIC);
    if (h) *out = (cublasHandle_t)h;
    return h ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t hh)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    emu_handle_free(&h->on);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t h, int *v)
{
    if (!handle_of(h)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!v) return CUBLAS_STATUS_INVALID_VALUE;
    *v = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetProperty(libraryPropertyType type, int *v)
{
    if (!v || (unsigned)type > PATCH_LEVEL) return CUBLAS_STATUS_INVALID_VALUE;
    *v = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t hh, cudaStream_t stream)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!emu_handle_set(&h->on, stream, "cublasSetStream")) return CUBLAS_STATUS_INVALID_VALUE;
    h->workspace = NULL; /* back to the library's own */
    h->workspace_nbytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t hh, cudaStream_t *stream)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!stream) return CUBLAS_STATUS_INVALID_VALUE;
    *stream = h->on.stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t hh, void *workspace, size_t nbytes)
{
    handle        *h = handle_of(hh);
    cublasStatus_t st = CUBLAS_STATUS_SUCCESS;
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if ((uintptr_t)workspace % 256) return CUBLAS_STATUS_INVALID_VALUE;
    emu_lock();
    if (nbytes && emu_pointer_device(workspace) != h->on.device) st = CUBLAS_STATUS_INVALID_VALUE;
    else {
        h->workspace = nbytes ? workspace : NULL;
        h->workspace_nbytes = nbytes;
    }
    emu_unlock();
    return st;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t hh, cublasMath_t mode)
{
    handle *h = handle_of(hh);
    int     plain = (int)mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (plain != CUBLAS_DEFAULT_MATH && plain != CUBLAS_PEDANTIC_MATH && plain != CUBLAS_TF32_TENSOR_OP_MATH &&
        plain != 1 /* CUBLAS_TENSOR_OP_MATH, deprecated */)
        return CUBLAS_STATUS_INVALID_VALUE;
    h->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t hh, cublasMath_t *mode)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!mode) return CUBLAS_STATUS_INVALID_VALUE;
    *mode = h->math;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t hh, cublasPointerMode_t mode)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (mode != CUBLAS_POINTER_MODE_HOST && mode != CUBLAS_POINTER_MODE_DEVICE) return CUBLAS_STATUS_INVALID_VALUE;
    h->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t hh, cublasPointerMode_t *mode)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!mode) return CUBLAS_STATUS_INVALID_VALUE;
    *mode = h->mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t hh, cublasAtomicsMode_t mode)
{
    handle *h = handle_of(hh);
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (mode != CUBLAS_ATOMICS_NOT_ALLOWED && mode != CUBLAS_ATOMICS_ALLOWED) return CUBLAS_STATUS_INVALID_VALUE;
    h->atomics = mode;
    return CUBLAS_STATUS_SUCCESS;
}

#define STATUSES(X)                                                                                                    \
    X(SUCCESS, "success") X(NOT_INITIALIZED, "the library was not initialized")                                        \
    X(ALLOC_FAILED, "the resource allocation failed")                                                                  \
    X(INVALID_VALUE, "an unsupported value or parameter was passed to the function")                                   \
    X(ARCH_MISMATCH, "a feature that is absent from the device is required")                                           \
    X(MAPPING_ERROR, "an access to GPU memory space failed")                                                           \
    X(EXECUTION_FAILED, "the function failed to launch on the GPU") X(INTERNAL_ERROR, "an internal operation failed")  \
    X(NOT_SUPPORTED, "the functionality requested is not supported") X(LICENSE_ERROR, "an error of the licence")
const char *cublasGetStatusName(cublasStatus_t st)
{
    switch (st) {
#define NAME(n, t) \
    case CUBLAS_STATUS_##n: return "CUBLAS_STATUS_" #n;
        STATUSES(NAME)
    default: return "unrecognized error code";
    }
}
const char *cublasGetStatusString(cublasStatus_t st)
{
    switch (st) {
#define TEXT(n, t) \
    case CUBLAS_STATUS_##n: return t;
        STATUSES(TEXT)
    default: return "unrecognized error code";
    }
}

/* ---- the product */
enum { AS_IS, TO_TF32, TO_F16, TO_BF16 }; /* what becomes of f32 operands */
typedef struct product {
    emu_work          w;
    cublasOperation_t ta, tb;
    int64_t           m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    const void       *a, *b;
    void             *c;
    bool              pointers; /* a, b, c are arrays, in device memory, of pointers */
    cudaDataType      type_ab, type_c;
    bool              half, device_scalars; /* scalars and sums in f16; scalars in device memory */
    bool              partial;              /* see sums_in_parts */
    int               rounding;
    const void       *alpha_at, *beta_at;
    float             alpha, beta;
    void             *workspace;
    size_t            workspace_nbytes;
} product;

static size_t width(cudaDataType t) { return t == CUDA_R_32F ? 4 : 2; }
static float  load(const void *p, int64_t i, cudaDataType t)
{
    if (t == CUDA_R_32F) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return t == CUDA_R_16F ? emu_f16_to_f32(h) : emu_bf16_to_f32(h);
}
static void store(void *p, int64_t i, cudaDataType t, float v)
{
    if (t == CUDA_R_32F) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t == CUDA_R_16F ? emu_f32_to_f16(v) : emu_f32_to_bf16(v);
}
static float rounded(float v, int how)
{
    switch (how) {
    case TO_TF32: return emu_tf32(v);
    case TO_F16: return emu_f16_to_f32(emu_f32_to_f16(v));
    case TO_BF16: return emu_bf16_to_f32(emu_f32_to_bf16(v));
    default: return v;
    }
}
/* out (cols x rows, dense): the transpose of op(x), which is rows x cols in column order, as f32. */
static void pack(float *out, const void *x, cudaDataType type, cublasOperation_t op, int64_t rows, int64_t cols,
                 int64_t ld, int how)
{
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++)
            out[j * rows + i] = rounded(load(x, op == CUBLAS_OP_N ? j * ld + i : i * ld + j, type), how);
}
static void sums_f16(const product *p, const float *at, const float *bt, float *sum)
{
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            float s = 0;
            for (int64_t q = 0; q < p->k; q++)
                s = emu_f16_to_f32(emu_f32_to_f16(s + at[q * p->m + i] * bt[j * p->k + q]));
            sum[j * p->m + i] = s;
        }
}
/* As a product whose sums are cut into parts along k, which are added in the type of the result */
static void sums_in_parts(const product *p, const float *at, const float *bt, float *sum)
{
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            unsigned char total[4] = { 0 };
            for (int64_t from = 0; from < p->k; from += 4) {
                float s = 0;
                for (int64_t q = from; q < p->k && q < from + 4; q++) s += at[q * p->m + i] * bt[j * p->k + q];
                store(total, 0, p->type_c, load(total, 0, p->type_c) + s);
            }
            sum[j * p->m + i] = load(total, 0, p->type_c);
        }
}
/* Do two matrices of device memory share an element? Columns of rows bytes, ld bytes apart. */
static bool shares(const void *a, int64_t na, size_t rows_a, size_t ld_a, const void *b, int64_t nb, size_t rows_b,
                   size_t ld_b)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    if (!na || !nb || !rows_a || !rows_b) return false;
    if (x >= y + (size_t)(nb - 1) * ld_b + rows_b || y >= x + (size_t)(na - 1) * ld_a + rows_a) return false;
    if (ld_a != ld_b || ld_a < rows_a || ld_a < rows_b) return true;
    size_t gap = (size_t)(x < y ? y - x : x - y) % ld_a; /* columns beside each other in one larger matrix */
    return x < y ? !(gap >= rows_a && gap + rows_b <= ld_a) : !(gap >= rows_b && gap + rows_a <= ld_a);
}

static bool run_one(const product *p, const void *a, const void *b, void *c, float alpha, float beta, float *at,
                    float *bt, float *sum)
{
    size_t  wab = width(p->type_ab), wc = width(p->type_c);
    bool    na = p->ta == CUBLAS_OP_N, nb = p->tb == CUBLAS_OP_N;
    int     d = p->w.device;
    int64_t rows_a = na ? p->m : p->k, cols_a = na ? p->k : p->m, rows_b = nb ? p->k : p->n, cols_b = nb ? p->n : p->k;
    if ((uintptr_t)a % wab || (uintptr_t)b % wab || (uintptr_t)c % wc) {
        emu_fail(d, cudaErrorMisalignedAddress, "%s: an operand is not aligned to its elements", p->w.name);
        return false;
    }
    memset(sum, 0, (size_t)(p->m * p->n) * sizeof *sum);
    if (alpha != 0 && p->k) {
        size_t      ra = (size_t)rows_a * wab, rb = (size_t)rows_b * wab, rc = (size_t)p->m * wc;
        size_t      la = (size_t)p->lda * wab, lb = (size_t)p->ldb * wab, lc = (size_t)p->ldc * wc;
        const void *pa = emu_rows(d, a, cols_a, ra, la, EMU_READ, "A of a matrix product");
        const void *pb = pa ? emu_rows(d, b, cols_b, rb, lb, EMU_READ, "B of a matrix product") : NULL;
        if (!pb) return false;
        if (shares(a, cols_a, ra, la, c, p->n, rc, lc) || shares(b, cols_b, rb, lb, c, p->n, rc, lc)) {
            emu_fail(d, cudaErrorLaunchFailure, "%s: C shares memory with A or B", p->w.name);
            return false;
        }
        int how = p->type_ab == CUDA_R_32F ? p->rounding : AS_IS;
        pack(at, pa, p->type_ab, p->ta, p->m, p->k, p->lda, how);
        pack(bt, pb, p->type_ab, p->tb, p->k, p->n, p->ldb, how);
        if (p->half) sums_f16(p, at, bt, sum);
        else if (p->partial) sums_in_parts(p, at, bt, sum);
        else emu_sgemm(p->n, p->m, p->k, bt, p->k, at, p->m, sum, p->m);
    }
    void *pc = emu_rows(d, c, p->n, (size_t)p->m * wc, (size_t)p->ldc * wc,
                        beta != 0 ? EMU_READ | EMU_WRITE : EMU_WRITE, "C of a matrix product");
    if (!pc) return false;
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            float v = alpha * sum[j * p->m + i];
            if (beta != 0) v += beta * load(pc, j * p->ldc + i, p->type_c);
            store(pc, j * p->ldc + i, p->type_c, v);
        }
    return true;
}
static int product_run(emu_work *w)
{
    product *p = (product *)w;
    float    alpha = p->alpha, beta = p->beta;
    int      d = w->device;
    size_t   wab = width(p->type_ab), wc = width(p->type_c);
    if (p->device_scalars) {
        cudaDataType t = p->half ? CUDA_R_16F : CUDA_R_32F;
        void        *x = emu_bytes(d, p->alpha_at, width(t), EMU_READ, "alpha of a matrix product");
        void        *y = x ? emu_bytes(d, p->beta_at, width(t), EMU_READ, "beta of a matrix product") : NULL;
        if (!y) return EMU_DONE;
        alpha = load(x, 0, t);
        beta = load(y, 0, t);
    }
    if (p->workspace) { /* anything may be in there afterwards */
        size_t part = p->workspace_nbytes < 4096 ? p->workspace_nbytes : 4096;
        if (!emu_bytes(d, p->workspace, p->workspace_nbytes, 0, "the workspace of cuBLAS")) return EMU_DONE;
        emu_forget(d, p->workspace, part);
        emu_forget(d, (char *)p->workspace + p->workspace_nbytes - part, part);
    }
    void *const *pa = NULL, *const *pb = NULL, *const *pc = NULL;
    if (p->pointers) {
        size_t n = (size_t)p->batch * sizeof(void *);
        if (!(pa = emu_bytes(d, p->a, n, EMU_READ, "the pointers to A of cublasGemmBatchedEx")) ||
            !(pb = emu_bytes(d, p->b, n, EMU_READ, "the pointers to B of cublasGemmBatchedEx")) ||
            !(pc = emu_bytes(d, p->c, n, EMU_READ, "the pointers to C of cublasGemmBatchedEx")))
            return EMU_DONE;
    }
    float *at = malloc((size_t)(p->m * p->k + 1) * 4), *bt = malloc((size_t)(p->k * p->n + 1) * 4);
    float *sum = malloc((size_t)(p->m * p->n + 1) * 4);
    if (!at || !bt || !sum) {
        fprintf(stderr, "emu: out of host memory\n");
        abort();
    }
    for (int64_t i = 0; i < p->batch; i++) {
        const char *a = p->pointers ? pa[i] : (const char *)p->a + i * p->stride_a * (int64_t)wab;
        const char *b = p->pointers ? pb[i] : (const char *)p->b + i * p->stride_b * (int64_t)wab;
        char       *c = p->pointers ? pc[i] : (char *)p->c + i * p->stride_c * (int64_t)wc;
        emu_operand(a, w->name);
        emu_operand(b, w->name);
        emu_operand(c, w->name);
        if (!run_one(p, a, b, c, alpha, beta, at, bt, sum)) break;
    }
    free(at);
    free(bt);
    free(sum);
    emu_count(EMU_GEMMS);
    return EMU_DONE;
}
static void product_drop(emu_work *w) { free(w); }

/* The table of cublasGemmEx: what may be computed, and how f32 operands are rounded for it. */
static bool computable(const handle *h, cublasComputeType_t compute, cudaDataType ta, cudaDataType tb, cudaDataType tc,
                       product *p)
{
    bool f32 = ta == CUDA_R_32F && tc == CUDA_R_32F;
    if (ta != tb || (ta != CUDA_R_32F && ta != CUDA_R_16F && ta != CUDA_R_16BF)) return false;
    p->rounding = AS_IS;
    switch (compute) {
    case CUBLAS_COMPUTE_16F: case CUBLAS_COMPUTE_16F_PEDANTIC:
        p->half = true;
        return ta == CUDA_R_16F && tc == CUDA_R_16F;
    case CUBLAS_COMPUTE_32F:
        if (f32 && ((int)h->math & 15) == CUBLAS_TF32_TENSOR_OP_MATH && emu_capability(h->on.device) >= 80)
            p->rounding = TO_TF32;
        return f32 || (ta != CUDA_R_32F && (tc == ta || tc == CUDA_R_32F));
    case CUBLAS_COMPUTE_32F_PEDANTIC: return f32 || (ta != CUDA_R_32F && (tc == ta || tc == CUDA_R_32F));
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        if (emu_capability(h->on.device) >= 80) p->rounding = TO_TF32;
        return f32;
    case CUBLAS_COMPUTE_32F_FAST_16F: p->rounding = TO_F16; return f32;
    case CUBLAS_COMPUTE_32F_FAST_16BF: p->rounding = TO_BF16; return f32;
    default: return false;
    }
}
static bool is_op(cublasOperation_t t) { return t == CUBLAS_OP_N || t == CUBLAS_OP_T || t == CUBLAS_OP_C; }
static int64_t at_least_1(int64_t n) { return n > 1 ? n : 1; }

static cublasStatus_t check(const handle *h, const product *p, const void *alpha, const void *beta)
{
    bool na = p->ta == CUBLAS_OP_N, nb = p->tb == CUBLAS_OP_N;
    if (p->m < 0 || p->n < 0 || p->k < 0 || p->batch < 0 || !is_op(p->ta) || !is_op(p->tb)) {
        emu_note("%s: m %lld, n %lld, k %lld, batch %lld or an operation out of range", p->w.name, (long long)p->m,
                 (long long)p->n, (long long)p->k, (long long)p->batch);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (p->lda < at_least_1(na ? p->m : p->k) || p->ldb < at_least_1(nb ? p->k : p->n) || p->ldc < at_least_1(p->m)) {
        emu_note("%s: lda %lld, ldb %lld or ldc %lld is too small for m %lld, n %lld, k %lld", p->w.name,
                 (long long)p->lda, (long long)p->ldb, (long long)p->ldc, (long long)p->m, (long long)p->n,
                 (long long)p->k);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
    if (h->mode == CUBLAS_POINTER_MODE_HOST && (emu_is_device_pointer(alpha) || emu_is_device_pointer(beta))) {
        emu_fail(h->on.device, cudaErrorIllegalAddress, "%s: alpha or beta is in device memory, the pointer mode is host",
                 p->w.name);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    for (int64_t i = 1; i < p->batch && !p->pointers; i++) {
        size_t wc = width(p->type_c), rows = (size_t)p->m * wc, ld = (size_t)p->ldc * wc;
        if (!shares(p->c, p->n, rows, ld, (char *)p->c + i * p->stride_c * (int64_t)wc, p->n, rows, ld)) continue;
        emu_fail(h->on.device, cudaErrorLaunchFailure, "%s: the matrices C of a batch overlap: stride %lld", p->w.name,
                 (long long)p->stride_c);
        return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t multiply(cublasHandle_t hh, product desc, const void *alpha, const void *beta, cudaDataType ta,
                               cudaDataType tb, cudaDataType tc, cublasComputeType_t compute)
{
    handle        *h = handle_of(hh);
    product       *p = NULL;
    cublasStatus_t st;
    if (!h) return CUBLAS_STATUS_NOT_INITIALIZED;
    desc.type_ab = ta;
    desc.type_c = tc;
    emu_lock();
    if (emu_usable() || emu_sticky(h->on.device)) st = CUBLAS_STATUS_EXECUTION_FAILED;
    else if (emu_device() != h->on.device) {
        emu_note("%s: a handle of device %d while device %d is current", desc.w.name, h->on.device, emu_device());
        st = CUBLAS_STATUS_EXECUTION_FAILED;
    } else if (!computable(h, compute, ta, tb, tc, &desc)) {
        emu_note("%s: A type %d, B type %d, C type %d, compute type %d", desc.w.name, (int)ta, (int)tb, (int)tc,
                 (int)compute);
        st = CUBLAS_STATUS_NOT_SUPPORTED;
    } else st = check(h, &desc, alpha, beta);
    desc.partial = emu_harsh(0) && ta != CUDA_R_32F && tc != CUDA_R_32F &&
                   !((int)h->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (st || !desc.m || !desc.n || !desc.batch) {
        emu_unlock();
        return st;
    }
    static bool used[EMU_MAX_DEVICES];
    if (!used[h->on.device]) emu_loading(h->on.device, "the first product");
    used[h->on.device] = true;
    p = malloc(sizeof *p);
    *p = desc;
    p->w.run = product_run;
    p->w.drop = product_drop;
    p->workspace = h->workspace;
    p->workspace_nbytes = h->workspace_nbytes;
    if (h->mode == CUBLAS_POINTER_MODE_DEVICE) {
        p->device_scalars = true;
        p->alpha_at = alpha;
        p->beta_at = beta;
    } else {
        p->alpha = load(alpha, 0, p->half ? CUDA_R_16F : CUDA_R_32F);
        p->beta = load(beta, 0, p->half ? CUDA_R_16F : CUDA_R_32F);
    }
    if (emu_queue(h->on.stream, &p->w)) st = CUBLAS_STATUS_EXECUTION_FAILED;
    emu_unlock();
    return st;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta, void *c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    product p = {.w.name = "cublasGemmEx", .ta = ta, .tb = tb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                 .ldc = ldc, .batch = 1, .a = a, .b = b, .c = c};
    (void)algo; /* a hint */
    return multiply(h, p, alpha, beta, type_a, type_b, type_c, compute);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                          int k, const void *alpha, const void *a, cudaDataType type_a, int lda,
                                          long long stride_a, const void *b, cudaDataType type_b, int ldb,
                                          long long stride_b, const void *beta, void *c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t algo)
{
    product p = {.w.name = "cublasGemmStridedBatchedEx", .ta = ta, .tb = tb, .m = m, .n = n, .k = k, .lda = lda,
                 .ldb = ldb, .ldc = ldc, .batch = batch, .stride_a = stride_a, .stride_b = stride_b,
                 .stride_c = stride_c, .a = a, .b = b, .c = c};
    (void)algo;
    return multiply(h, p, alpha, beta, type_a, type_b, type_c, compute);
}
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                                   const void *alpha, const void *const a[], cudaDataType type_a, int lda,
                                   const void *const b[], cudaDataType type_b, int ldb, const void *beta,
                                   void *const c[], cudaDataType type_c, int ldc, int batch,
                                   cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    product p = {.w.name = "cublasGemmBatchedEx", .ta = ta, .tb = tb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                 .ldc = ldc, .batch = batch, .a = a, .b = b, .c = (void *)(uintptr_t)c, .pointers = true};
    (void)algo;
    return multiply(h, p, alpha, beta, type_a, type_b, type_c, compute);
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                              const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
                              float *c, int ldc)
{
    product p = {.w.name = "cublasSgemm", .ta = ta, .tb = tb, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb,
                 .ldc = ldc, .batch = 1, .a = a, .b = b, .c = c};
    return multiply(h, p, alpha, beta, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                         int k, const float *alpha, const float *a, int lda, long long stride_a,
                                         const float *b, int ldb, long long stride_b, const float *beta, float *c,
                                         int ldc, long long stride_c, int batch)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, stride_a, b, CUDA_R_32F, ldb,
                                      stride_b, beta, c, CUDA_R_32F, ldc, stride_c, batch, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT);
}
