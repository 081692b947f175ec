/* test_refused.c: bad input on the CUDA backend becomes an error that says what, where and what to do: indices, memory,
   devices, pointers, libraries. Memory that several streams use is not given on too early, and a training step waits
   for nothing but what is read. Most cases run in a process of their own, with their own settings of the emulation (emu.h).
   Contents: >>counts >>cases >>indices >>streams >>memory >>names >>path >>main
   run: emulated, test-cuda */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_cuda.h"
#include "dt_nn.h"
#include "cases.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ==================================================================================================== >>counts
   Calls of the backend that may wait pass through here, before they reach the runtime. */
static int n_device_waits, n_stream_waits, n_mallocs, n_frees, n_pins, fail_malloc, fail_blas, fail_dnn;

static void *next_of(const char *name)
{
    void *p = dlsym(RTLD_NEXT, name);
    if (!p) fprintf(stderr, "%s is missing\n", name), _exit(1);
    return p;
}
#define PASS(count, name, params, args)                      \
    cudaError_t name params                                  \
    {                                                        \
        static cudaError_t(*next) params;                    \
        __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);     \
        if (!next) *(void **)(void *)&next = next_of(#name); \
        return next args;                                    \
    }
PASS(n_device_waits, cudaDeviceSynchronize, (void), ())
PASS(n_stream_waits, cudaStreamSynchronize, (cudaStream_t s), (s))
PASS(n_frees, cudaFree, (void *p), (p))
PASS(n_pins, cudaHostAlloc, (void **p, size_t n, unsigned flags), (p, n, flags))

cudaError_t cudaMalloc(void **p, size_t n)
{
    static cudaError_t (*next)(void **, size_t);
    __atomic_add_fetch(&n_mallocs, 1, __ATOMIC_RELAXED);
    if (fail_malloc > 0 && fail_malloc--) return cudaErrorLaunchFailure;
    if (!next) *(void **)(void *)&next = next_of("cudaMalloc");
    return next(p, n);
}
cublasStatus_t cublasCreate_v2(cublasHandle_t *h)
{
    static cublasStatus_t (*next)(cublasHandle_t *);
    if (fail_blas > 0 && fail_blas--) return CUBLAS_STATUS_ALLOC_FAILED;
    if (!next) *(void **)(void *)&next = next_of("cublasCreate_v2");
    return next(h);
}
cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    static cudnnStatus_t (*next)(cudnnHandle_t *);
    if (fail_dnn > 0 && fail_dnn--) return CUDNN_STATUS_NOT_INITIALIZED;
    if (!next) *(void **)(void *)&next = next_of("cudnnCreate");
    return next(h);
}
static void counts_clear(void) { n_device_waits = n_stream_waits = n_mallocs = n_frees = n_pins = 0; }

/* ==================================================================================================== >>cases */
static void case_fails(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n  error: %s\n", file, line, what, dt_error() ? dt_error() : "none");
    fflush(NULL);
    _exit(1);
}
#define CHECK(x)                                      \
    do {                                              \
        if (!(x)) case_fails(__FILE__, __LINE__, #x); \
    } while (0)
/* The call has failed, and each of these is in the message; the error is cleared. */
static bool error_has(dt_status code, const char *a, const char *b, const char *c)
{
    const char *e = dt_error();
    bool        ok = e && dt_error_code() == code && strstr(e, a) && (!b || strstr(e, b)) && (!c || strstr(e, c));
    if (!ok) fprintf(stderr, "code %d, error: %s\n", (int)dt_error_code(), e ? e : "none");
    dt_error_clear();
    return ok;
}

static bool case_holds(const char *name, const char *settings)
{
    int status = case_run(name, settings, 60 * dt_test_slow(), NULL, 0);
    if (status) printf("    case %s with %s: status %d\n", name, settings, status);
    return status == 0;
}
#define EXPECT_CASE(name, settings) EXPECT_TRUE(case_holds(name, settings))
/* In every order that streams can run in. */
#define EXPECT_CASE_ORDERS(name, settings)              \
    do {                                                \
        EXPECT_CASE(name, "DT_EMU=lazy " settings);     \
        EXPECT_CASE(name, "DT_EMU=eager " settings);    \
        EXPECT_CASE(name, "DT_EMU=random:1 " settings); \
        EXPECT_CASE(name, "DT_EMU=random:2 " settings); \
        EXPECT_CASE(name, "DT_EMU=random:3 " settings); \
    } while (0)

static const dt_backend *table_of(dt_device *dev) { return dt_device_backend(dev); }

/* ==================================================================================================== >>indices
   One kernel call on any device, with some bad indices in it, and the sentence that comes of it. */
enum { POSITIONS = 300, ROWS = 7, WIDTH = 5 };
typedef struct act {
    const char *what;
    int         op, nll;
    dt_dtype    dtype, index; /* of values; of the indices */
    int64_t     rows;         /* or classes */
    bool        exact;        /* the device is told to be deterministic */
} act;
static const act acts[] = {
    { "embedding", DT_K_embedding, 0, DT_F32, DT_I64, ROWS, false },
    { "embedding, i32", DT_K_embedding, 0, DT_F16, DT_I32, ROWS, false },
    { "embedding, u8", DT_K_embedding, 0, DT_I32, DT_U8, ROWS, false },
    { "embedding_bwd, atomics", DT_K_embedding_bwd, 0, DT_F32, DT_I64, ROWS, false },
    { "embedding_bwd, sorted", DT_K_embedding_bwd, 0, DT_F32, DT_I32, ROWS, true },
    { "embedding_bwd, halves", DT_K_embedding_bwd, 0, DT_BF16, DT_I64, ROWS, false },
    { "gather", DT_K_gather, 0, DT_F32, DT_I64, ROWS, false },
    { "gather, u8", DT_K_gather, 0, DT_U8, DT_I32, ROWS, false },
    { "gather_bwd, atomics", DT_K_gather_bwd, 0, DT_F32, DT_I64, ROWS, false },
    { "gather_bwd, columns", DT_K_gather_bwd, 0, DT_F32, DT_I64, ROWS, true },
    { "gather_bwd, sorted", DT_K_gather_bwd, 0, DT_F16, DT_I64, ROWS, false },
    { "cross_entropy", DT_K_cross_entropy, 0, DT_F32, DT_I64, ROWS, false },
    { "cross_entropy, vectors", DT_K_cross_entropy, 0, DT_F16, DT_I32, 8, false },
    { "cross_entropy, wide", DT_K_cross_entropy, 0, DT_F32, DT_I64, 1100, false },
    { "cross_entropy_bwd", DT_K_cross_entropy_bwd, 0, DT_F32, DT_I64, ROWS, false },
    { "cross_entropy_bwd, wide", DT_K_cross_entropy_bwd, 0, DT_F32, DT_I64, 1101, false },
    { "nll_loss", DT_K_cross_entropy, 1, DT_F32, DT_I64, ROWS, false },
    { "nll_loss_bwd", DT_K_cross_entropy_bwd, 1, DT_F32, DT_I64, ROWS, false },
};

/* An operand of n elements whose bytes are all 0; idx: of integers, which these are the values of. */
static void operand(dt_device *dev, void *stream, dt_view *v, dt_dtype d, const int64_t *idx, int ndim, int64_t a,
                    int64_t b, int64_t c)
{
    int64_t shape[3] = { a, ndim > 1 ? b : 1, ndim > 2 ? c : 1 }, n = shape[0] * shape[1] * shape[2];
    size_t  size = dt_dtype_nbytes(d);
    char   *host = (char *)calloc((size_t)n, size);
    memset(v, 0, sizeof *v);
    v->data = table_of(dev)->alloc(dev, (size_t)n * size);
    v->dtype = d;
    v->ndim = ndim;
    for (int i = ndim - 1; i >= 0; i--) {
        v->shape[i] = shape[i];
        v->stride[i] = i == ndim - 1 ? 1 : v->stride[i + 1] * shape[i + 1];
    }
    for (int64_t i = 0; idx && i < n; i++) {
        if (d == DT_I64) ((int64_t *)(void *)host)[i] = idx[i];
        else if (d == DT_I32) ((int32_t *)(void *)host)[i] = (int32_t)idx[i];
        else ((uint8_t *)host)[i] = (uint8_t)idx[i];
    }
    table_of(dev)->upload(dev, stream, v->data, host, (size_t)n * size);
    free(host);
}
static void act_begin(dt_device *dev, void *stream, const act *a, const int64_t *idx, dt_call *c)
{
    int64_t n = POSITIONS;
    memset(c, 0, sizeof *c);
    c->op = a->op;
    c->stream = stream;
    c->nout = 1;
    c->nin = 2;
    switch (a->op) {
    case DT_K_embedding:
        operand(dev, stream, &c->out[0], a->dtype, NULL, 2, n, WIDTH, 0);
        operand(dev, stream, &c->in[0], a->index, idx, 1, n, 0, 0);
        operand(dev, stream, &c->in[1], a->dtype, NULL, 2, a->rows, WIDTH, 0);
        break;
    case DT_K_embedding_bwd:
        operand(dev, stream, &c->out[0], a->dtype, NULL, 2, a->rows, WIDTH, 0);
        operand(dev, stream, &c->in[0], a->dtype, NULL, 2, n, WIDTH, 0);
        operand(dev, stream, &c->in[1], a->index, idx, 1, n, 0, 0);
        break;
    case DT_K_gather:
    case DT_K_gather_bwd:
        operand(dev, stream, &c->out[0], a->dtype, NULL, 3, 3, a->op == DT_K_gather ? 10 : a->rows, 10);
        operand(dev, stream, &c->in[0], a->dtype, NULL, 3, 3, a->op == DT_K_gather ? a->rows : 10, 10);
        operand(dev, stream, &c->in[1], a->index, idx, 3, 3, 10, 10);
        break;
    case DT_K_cross_entropy:
        c->nout = 3;
        operand(dev, stream, &c->out[0], DT_F32, NULL, 1, 1, 0, 0);
        operand(dev, stream, &c->out[1], DT_F32, NULL, 1, 2 * n, 0, 0);
        operand(dev, stream, &c->out[2], DT_F32, NULL, 1, 1, 0, 0);
        operand(dev, stream, &c->in[0], a->dtype, NULL, 2, n, a->rows, 0);
        operand(dev, stream, &c->in[1], a->index, idx, 1, n, 0, 0);
        break;
    default:
        c->nin = 5;
        operand(dev, stream, &c->out[0], a->dtype, NULL, 2, n, a->rows, 0);
        operand(dev, stream, &c->in[0], DT_F32, NULL, 1, 1, 0, 0);
        operand(dev, stream, &c->in[1], a->dtype, NULL, 2, n, a->rows, 0);
        operand(dev, stream, &c->in[2], a->index, idx, 1, n, 0, 0);
        operand(dev, stream, &c->in[3], DT_F32, NULL, 1, 2 * n, 0, 0);
        operand(dev, stream, &c->in[4], DT_F32, NULL, 1, 1, 0, 0);
    }
    if (a->op >= DT_K_cross_entropy) {
        c->u.loss.ignore = -100;
        c->u.loss.nll = a->nll;
        c->u.loss.reduction = DT_MEAN;
    }
}
static void act_end(dt_device *dev, dt_call *c)
{
    for (int i = 0; i < c->nout; i++) table_of(dev)->free(dev, c->out[i].data, 0);
    for (int i = 0; i < c->nin; i++) table_of(dev)->free(dev, c->in[i].data, 0);
}
/* Good indices; from 'first' on, now and then, bad ones: above, below, far away, and the one that losses ignore. */
static void indices(int64_t *idx, const act *a, int first)
{
    for (int i = 0; i < POSITIONS; i++) idx[i] = i % ROWS;
    if (a->op >= DT_K_cross_entropy) idx[0] = -100;
    if (first < 0) return;
    idx[first] = a->index == DT_I64 ? -((int64_t)1 << 50) - 12345 : a->index == DT_I32 ? -70000 : 200;
    for (int i = first + 1; i < POSITIONS; i += 17) idx[i] = a->index == DT_U8 ? 255 : a->rows + i;
}
/* Calls the kernel and waits; read: by reading an output. The pending error says what came of it. */
static void act_run(dt_device *dev, const act *a, int first, bool read)
{
    int64_t idx[POSITIONS];
    char    byte[8];
    dt_call c;
    indices(idx, a, first);
    act_begin(dev, NULL, a, idx, &c);
    table_of(dev)->kernel[a->op](dev, &c);
    if (read) table_of(dev)->download(dev, NULL, byte, c.out[0].data, dt_dtype_nbytes((dt_dtype)c.out[0].dtype));
    else table_of(dev)->wait(dev, NULL);
    act_end(dev, &c);
}
static void exact(dt_device *gpu, bool yes)
{
    dt_cuda_opts o;
    memset((void *)&o, 0, sizeof o);
    o.deterministic = yes ? DT_YES : DT_NO;
    dt_cuda_set_with(gpu, o);
}

UTEST(indices, the_sentence_is_that_of_the_cpu)
{
    dt_device *gpu = dt_cuda(0);
    ASSERT_TRUE(gpu != NULL);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        char want[512];
        for (int first = 137; first >= -1; first -= 138) { /* -1: good indices, and no error */
            act_run(dt_cpu(), &acts[i], first, true);
            snprintf(want, sizeof want, "%s", dt_error() ? dt_error() : "none");
            int code = (int)dt_error_code();
            dt_error_clear();
            EXPECT_EQ(first < 0, strcmp(want, "none") == 0);
            exact(gpu, acts[i].exact);
            act_run(gpu, &acts[i], first, i % 2);
            EXPECT_EQ(code, (int)dt_error_code());
            EXPECT_STREQ(want, dt_error() ? dt_error() : "none");
            dt_error_clear();
            EXPECT_EQ(DT_OK, dt_synchronize(gpu)); /* told once */
            dt_error_clear();
        }
    }
    exact(gpu, false);
}

/* The same through the tensors of the library. */
static dt_tensor *by_gather(dt_device *dev)
{
    int64_t at[4] = { 0, 2, 3, -1 };
    return dt_gather(dt_ones(DT_SHAPE(2, 3), .device = dev), 1,
                     dt_from(at, DT_SHAPE(2, 2), .dtype = DT_I64, .device = dev));
}
static dt_tensor *by_loss(dt_device *dev)
{
    int64_t at[3] = { 1, -100, 4 };
    return dt_cross_entropy(dt_ones(DT_SHAPE(3, 4), .device = dev),
                            dt_from(at, DT_SHAPE(3), .dtype = DT_I64, .device = dev));
}
static dt_tensor *by_pixels(dt_device *dev) /* (n, c, h): the classes are moved last */
{
    int32_t at[6] = { 1, 0, 2, 9, 1, 0 };
    return dt_nll_loss(dt_ones(DT_SHAPE(2, 3, 3), .device = dev),
                       dt_from(at, DT_SHAPE(2, 3), .dtype = DT_I32, .device = dev));
}
UTEST(indices, reading_a_tensor_tells)
{
    dt_tensor *(*const make[])(dt_device *) = { by_gather, by_loss, by_pixels };
    for (int i = 0; i < 3; i++) {
        char want[512];
        make[i](dt_cpu());
        snprintf(want, sizeof want, "%s", dt_error() ? dt_error() : "none");
        dt_error_clear();
        dt_end();
        EXPECT_TRUE(strstr(want, "out of range") != NULL);
        dt_tensor *y = make[i](dt_cuda(0));
        EXPECT_TRUE(y != NULL && !dt_error()); /* queued */
        EXPECT_TRUE(isnan(dt_item(dt_sum(y))));
        EXPECT_STREQ(want, dt_error() ? dt_error() : "none");
        dt_error_clear();
        EXPECT_TRUE(dt_item(dt_sum(dt_ones(DT_SHAPE(4), .device = dt_cuda(0)))) == 4.0);
        EXPECT_TRUE(!dt_error());
        dt_error_clear();
        dt_end();
    }
}
UTEST(indices, the_first_call_counts)
{
    dt_device *gpu = dt_cuda(0);
    int64_t    idx[POSITIONS];
    dt_call    c[2];
    ASSERT_TRUE(gpu != NULL);
    for (int i = 0; i < 2; i++) {
        indices(idx, &acts[0], i ? 3 : 50);
        act_begin(gpu, NULL, &acts[0], idx, &c[i]);
    }
    for (int i = 0; i < 2; i++) EXPECT_EQ(0, table_of(gpu)->kernel[acts[0].op](gpu, &c[i]));
    EXPECT_NE(DT_OK, dt_synchronize(gpu));
    EXPECT_TRUE(error_has(DT_ERR_ARG, "at position 50 ", NULL, NULL));
    EXPECT_EQ(DT_OK, dt_synchronize(gpu));
    for (int i = 0; i < 2; i++) act_end(gpu, &c[i]);
}

/* ---- several streams and devices */
static void case_bad_on_streams(void)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = table_of(gpu);
    void             *a = be->stream_new(gpu), *b = be->stream_new(gpu), *x = be->stream_new(gpu);
    int64_t           idx[POSITIONS];
    dt_call           c;
    char              byte[8];
    CHECK(a && b && x);
    indices(idx, &acts[0], 20);
    act_begin(gpu, a, &acts[0], idx, &c);
    CHECK(be->kernel[acts[0].op](gpu, &c) == 0);
    CHECK(be->wait(gpu, b) == 0); /* of another stream that is not behind it */
    CHECK(be->wait(gpu, a) != 0 && error_has(DT_ERR_ARG, "embedding: index", "position 20", NULL));
    CHECK(be->wait(gpu, a) == 0);
    CHECK(be->kernel[acts[0].op](gpu, &c) == 0);
    CHECK(be->order(gpu, x, a) == 0 && be->order(gpu, b, x) == 0); /* b behind x behind a */
    CHECK(be->download(gpu, b, byte, c.out[0].data, 4) != 0 && error_has(DT_ERR_ARG, "position 20", NULL, NULL));
    CHECK(be->wait(gpu, a) == 0);
    CHECK(be->order(gpu, b, a) == 0); /* what comes in a later is not before b */
    CHECK(be->kernel[acts[0].op](gpu, &c) == 0);
    CHECK(be->wait(gpu, b) == 0);
    CHECK(be->wait(gpu, NULL) != 0 && error_has(DT_ERR_ARG, "position 20", NULL, NULL)); /* all of them */
    CHECK(be->kernel[acts[0].op](gpu, &c) == 0);
    be->stream_free(gpu, a); /* the last who could tell */
    CHECK(error_has(DT_ERR_ARG, "position 20", NULL, NULL));
    be->stream_free(gpu, b);
    be->stream_free(gpu, x);
    CHECK(!dt_error());
    act_end(gpu, &c);
}
static void case_bad_on_devices(void)
{
    dt_device *gpu[2] = { dt_cuda(0), dt_cuda(1) };
    int64_t    idx[POSITIONS];
    dt_call    c[2];
    CHECK(gpu[0] && gpu[1] && gpu[0] != gpu[1]);
    for (int i = 0; i < 2; i++) {
        indices(idx, &acts[0], i ? 30 : -1);
        act_begin(gpu[i], NULL, &acts[0], idx, &c[i]);
        CHECK(table_of(gpu[i])->kernel[acts[0].op](gpu[i], &c[i]) == 0);
    }
    CHECK(dt_synchronize(gpu[0]) == DT_OK);
    CHECK(dt_synchronize(gpu[1]) != DT_OK && error_has(DT_ERR_ARG, "position 30", NULL, NULL));
    CHECK(dt_synchronize(gpu[1]) == DT_OK);
    for (int i = 0; i < 2; i++) act_end(gpu[i], &c[i]);
}
/* A loop that reads nothing is told by an upload, which waits for an earlier one anyway. */
static void case_bad_unread(void)
{
    dt_device *gpu = dt_cuda(0);
    int64_t    bad[4] = { 0, 1, 9, 2 };
    int        steps = 0;
    CHECK(gpu != NULL);
    dt_set_default_device(gpu);
    counts_clear();
    for (; steps < 10 && !dt_error(); steps++) {
        dt_cross_entropy(dt_ones(DT_SHAPE(4, 3)), dt_from(bad, DT_SHAPE(4), .dtype = DT_I64));
        dt_end();
    }
    CHECK(n_device_waits == 0 && n_stream_waits == 0);
    CHECK(steps >= 2 && steps <= 4);
    CHECK(error_has(DT_ERR_ARG, "cross_entropy: target 9 at position 2", NULL, NULL));
}
UTEST(indices, streams) { EXPECT_CASE_ORDERS("bad_on_streams", ""); }
UTEST(indices, devices) { EXPECT_CASE_ORDERS("bad_on_devices", "DT_EMU_DEVICES=2"); }
UTEST(indices, a_loop_that_reads_nothing) { EXPECT_CASE_ORDERS("bad_unread", ""); }

/* ==================================================================================================== >>streams
   Memory goes on to others only behind what still uses it. */
enum { MANY = 40000 };
static void *use(dt_device *gpu, void *stream) { return dt_device_set_stream(gpu, stream); }

/* Made on a, freed with work of a pending: b gets other memory, a the same. */
static void case_reuse(void)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = table_of(gpu);
    void             *a = be->stream_new(gpu), *b = be->stream_new(gpu);
    CHECK(a && b);
    dt_set_default_device(gpu);
    use(gpu, a);
    dt_tensor *t = dt_full(1, DT_SHAPE(MANY)), *u = dt_mul_scalar(t, 2);
    CHECK(t && u);
    dt_free(t);
    use(gpu, b);
    dt_tensor *v = dt_full(9, DT_SHAPE(MANY));
    CHECK(v && be->wait(gpu, b) == 0);
    use(gpu, a);
    int64_t    blocks = dt_cuda_get_stats(gpu).blocks;
    dt_tensor *w = dt_full(7, DT_SHAPE(MANY));
    CHECK(w && dt_cuda_get_stats(gpu).blocks == blocks); /* out of the cache */
    CHECK(dt_item(dt_sum(u)) == 2.0 * MANY);
    CHECK(dt_item(dt_sum(w)) == 7.0 * MANY);
    use(gpu, b);
    CHECK(dt_item(dt_sum(v)) == 9.0 * MANY);
    use(gpu, NULL);
    dt_end();
    be->stream_free(gpu, a);
    be->stream_free(gpu, b);
    CHECK(!dt_error());
}
/* Made on a, used on b (and c) behind it, freed: what a makes of it next comes behind them. */
static void case_reuse_of_shared(void)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = table_of(gpu);
    for (int others = 1; others <= 2; others++) {
        void      *a = be->stream_new(gpu), *b = be->stream_new(gpu), *c = be->stream_new(gpu);
        dt_tensor *u[2] = { NULL, NULL };
        CHECK(a && b && c);
        dt_set_default_device(gpu);
        use(gpu, a);
        dt_tensor *t = dt_full(1, DT_SHAPE(MANY));
        CHECK(t != NULL);
        for (int i = 0; i < others; i++) {
            CHECK(be->order(gpu, i ? c : b, a) == 0);
            use(gpu, i ? c : b);
            u[i] = dt_sum(dt_mul_scalar(t, 2 + i));
        }
        use(gpu, a);
        dt_free(t);
        int64_t    blocks = dt_cuda_get_stats(gpu).blocks;
        dt_tensor *w = dt_full(7, DT_SHAPE(MANY));
        CHECK(w && dt_cuda_get_stats(gpu).blocks == blocks); /* the same memory */
        CHECK(be->wait(gpu, a) == 0);
        for (int i = 0; i < others; i++) {
            use(gpu, i ? c : b);
            CHECK(dt_item(u[i]) == (2.0 + i) * MANY);
        }
        use(gpu, NULL);
        dt_end();
        be->stream_free(gpu, a);
        be->stream_free(gpu, b);
        be->stream_free(gpu, c);
        CHECK(!dt_error());
    }
}
/* A tensor outlives the streams that it was made and used on. */
static void case_stream_is_gone(void)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = table_of(gpu);
    for (int which = 0; which < 2; which++) {
        void *a = be->stream_new(gpu), *b = be->stream_new(gpu);
        dt_set_default_device(gpu);
        use(gpu, a);
        dt_tensor *t = dt_keep(dt_full(3, DT_SHAPE(MANY)));
        CHECK(be->order(gpu, b, a) == 0);
        use(gpu, b);
        dt_tensor *s = dt_keep(dt_sum(t));
        be->stream_free(gpu, which ? a : b);
        if (!which) use(gpu, a);
        CHECK(dt_item(s) == 3.0 * MANY);
        use(gpu, NULL);
        dt_free(t);
        dt_free(s);
        dt_end();
        be->stream_free(gpu, which ? b : a);
        CHECK(!dt_error());
    }
}
/* Given back to the device, memory serves other streams: it has been waited for. */
static void case_trim(void)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = table_of(gpu);
    void             *a = be->stream_new(gpu), *b = be->stream_new(gpu);
    dt_set_default_device(gpu);
    use(gpu, a);
    dt_tensor *t = dt_full(1, DT_SHAPE(MANY)), *u = dt_mul_scalar(t, 2);
    dt_free(t);
    dt_empty_cache();
    use(gpu, b);
    dt_tensor *v = dt_full(9, DT_SHAPE(MANY));
    CHECK(v && be->wait(gpu, b) == 0);
    use(gpu, a);
    CHECK(dt_item(dt_sum(u)) == 2.0 * MANY);
    use(gpu, b);
    CHECK(dt_item(dt_sum(v)) == 9.0 * MANY);
    use(gpu, NULL);
    dt_end();
    dt_empty_cache();
    be->stream_free(gpu, a);
    be->stream_free(gpu, b);
    CHECK(!dt_error());
}
UTEST(streams, freed_memory_stays_with_its_stream) { EXPECT_CASE_ORDERS("reuse", ""); }
UTEST(streams, freed_memory_that_others_used) { EXPECT_CASE_ORDERS("reuse_of_shared", ""); }
UTEST(streams, tensors_outlive_them) { EXPECT_CASE_ORDERS("stream_is_gone", ""); }
UTEST(streams, memory_given_back) { EXPECT_CASE_ORDERS("trim", ""); }

/* ==================================================================================================== >>memory */
static const size_t MIB = (size_t)1 << 20;

/* 64 MiB in all. */
static void case_cache_first(void)
{
    dt_device *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    CHECK(dt_zeros(DT_SHAPE(10 << 20))); /* 40 MiB, then in the cache */
    dt_end();
    dt_cuda_stats s = dt_cuda_get_stats(gpu);
    CHECK(s.used >= 40 * MIB && s.retries == 0 && dt_stats().cached_bytes >= 40 * MIB);
    dt_tensor *t = dt_zeros(DT_SHAPE(13 << 20)); /* of another class: the cache has to go */
    CHECK(t && !dt_error());
    s = dt_cuda_get_stats(gpu);
    CHECK(s.retries == 1 && s.used >= 52 * MIB && s.used <= 60 * MIB);
    CHECK(dt_item(dt_sum(t)) == 0.0);
    dt_end();
    CHECK(!dt_error());
}
/* A workspace needs what the cache holds. */
static void case_cache_for_workspace(void)
{
    dt_device *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    dt_tensor *a = dt_full(0.5, DT_SHAPE(1000, 1000), .dtype = DT_F16), *b = dt_ones(DT_SHAPE(1000, 1000));
    CHECK(a && b && dt_synchronize(gpu) == DT_OK);
    dt_free(dt_zeros(DT_SHAPE(3 << 20)));
    dt_free(dt_zeros(DT_SHAPE(7 << 20)));
    dt_cuda_stats s = dt_cuda_get_stats(gpu);
    void         *w = dt__cuda_scratch(gpu, NULL, 20 * MIB); /* what a kernel would do */
    CHECK(w && !dt_error() && dt_cuda_get_stats(gpu).retries > s.retries);
    CHECK(dt__cuda_scratch(gpu, NULL, 200 * MIB) == NULL);
    CHECK(error_has(DT_ERR_MEMORY, "209715200 bytes of workspace on cuda:0", "the driver has ", "batch"));
    CHECK(dt_item(dt_sum(dt_add(b, b))) == 2e6);
    dt_end();
    CHECK(!dt_error());
}
static void case_no_more(void)
{
    dt_device *gpu = dt_cuda(1); /* the message names it */
    dt_set_default_device(gpu);
    dt_tensor *t = dt_zeros(DT_SHAPE(10 << 20));
    dt_free(dt_zeros(DT_SHAPE(1000)));
    CHECK(t && dt_synchronize(gpu) == DT_OK);
    CHECK(dt_zeros(DT_SHAPE(8 << 20)) == NULL && dt_error_code() == DT_ERR_MEMORY);
    size_t        asked = 0, reserved = 0, used = 0, cached = 0, unused = 0, total = 0;
    const char   *e = dt_error();
    dt_cuda_stats s = dt_cuda_get_stats(gpu);
    CHECK(
        sscanf(e,
               "dt: out of memory: %zu bytes on cuda:1 (reserved %zu: used by tensors and workspaces %zu, cached %zu; "
               "the driver has %zu free of %zu;",
               &asked, &reserved, &used, &cached, &unused, &total) == 6);
    CHECK(asked == 32 * MIB && total == 64 * MIB && reserved + unused == total && used + cached == reserved);
    CHECK(used >= 40 * MIB && used == s.used && reserved == s.reserved && s.retries == 2);
    CHECK(strstr(e, "take a smaller batch") && strstr(e, "dt_end"));
    dt_error_clear();
    CHECK(dt_item(dt_sum(t)) == 0.0 && !dt_error()); /* and it goes on */
    dt_end();
    CHECK(dt_zeros(DT_SHAPE(8 << 20)) && dt_synchronize(gpu) == DT_OK); /* once there is room */
    dt_end();
}
static void case_statistics(void)
{
    dt_device *gpu = dt_cuda(0);
    size_t     unused, total;
    dt_set_default_device(gpu);
    dt_cuda_stats s0 = dt_cuda_get_stats(gpu), s;
    CHECK(s0.used == 0 && s0.blocks == 0);
    counts_clear();
    dt_tensor *a = dt_keep(dt_empty(DT_SHAPE(256))), *b = dt_keep(dt_empty(DT_SHAPE(1 << 20)));
    dt_tensor *c = dt_keep(dt_empty(DT_SHAPE(5 << 20)));
    CHECK(a && b && c);
    s = dt_cuda_get_stats(gpu);
    CHECK(s.used == 1024 + 4 * MIB + 20 * MIB && s.blocks == 3 && s.segments == 3 && s.peak == s.used);
    CHECK(s.mallocs == n_mallocs && n_mallocs == 3 && s.retries == 0);
    CHECK(s.reserved == 2 * MIB + 20 * MIB + 20 * MIB);
    CHECK(cudaMemGetInfo(&unused, &total) == cudaSuccess && total - unused == s.reserved);
    dt_free(a);
    dt_free(b);
    dt_free(c);
    CHECK(dt_cuda_get_stats(gpu).used == s.used); /* dt.h keeps them */
    dt_empty_cache();
    s = dt_cuda_get_stats(gpu);
    CHECK(s.used == 0 && s.blocks == 0 && s.segments == 0 && s.reserved == 0 && s.peak == 1024 + 24 * MIB);
    CHECK(n_frees == 3);
    CHECK(dt_cuda_get_stats(dt_cpu()).mallocs == 0 && dt_cuda_get_stats(NULL).mallocs == 0);
}
UTEST(memory, the_cache_is_given_back_first) { EXPECT_CASE("cache_first", "DT_EMU_MEMORY=67108864"); }
UTEST(memory, also_for_a_workspace) { EXPECT_CASE("cache_for_workspace", "DT_EMU_MEMORY=67108864"); }
UTEST(memory, there_is_no_more) { EXPECT_CASE("no_more", "DT_EMU_MEMORY=67108864 DT_EMU_DEVICES=2"); }
UTEST(memory, statistics) { EXPECT_CASE("statistics", "DT_EMU_LEAKS=0"); }

/* ==================================================================================================== >>names */
static void case_no_device(void)
{
    CHECK(dt_cuda_count() == 0 && !dt_error());
    CHECK(dt_cuda(0) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "dt_cuda: no GPU: the driver finds none", "nvidia-smi", "CPU"));
    CHECK(dt_item(dt_sum(dt_ones(DT_SHAPE(3)))) == 3.0); /* on the CPU */
    dt_end();
}
static void case_no_driver(void)
{
    CHECK(dt_cuda_count() == 0 && !dt_error());
    CHECK(dt_cuda(0) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "dt_cuda: no GPU: there is no NVIDIA driver", "install one", "CPU"));
}
static void case_no_index(void)
{
    CHECK(dt_cuda_count() == 2 && dt_cuda(2) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "dt_cuda: device 2; there are 2, counted from 0", NULL, NULL));
    CHECK(dt_cuda(-1) == NULL && error_has(DT_ERR_DEVICE, "dt_cuda: device -1;", NULL, NULL));
    CHECK(dt_cuda(1) && dt_cuda(1) == dt_cuda(1) && !dt_error());
}
static void case_other_arch(void)
{
    CHECK(dt_cuda(0) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "the kernels were not built for device 0", "compute capability 7.0", "-arch=sm_70"));
}
static void case_two_devices(void)
{
    dt_tensor *a = dt_ones(DT_SHAPE(3), .device = dt_cuda(0)), *b = dt_ones(DT_SHAPE(3), .device = dt_cuda(1));
    CHECK(a && b && dt_add(a, b) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "dt_add: tensors are on cuda:0 and cuda:1", "dt_to()", NULL));
    CHECK(dt_item(dt_sum(dt_add(dt_to(a, dt_cuda(1)), b))) == 6.0);
    dt_end();
}
static void case_pointers(void)
{
    static float x[16];
    dt_device   *gpu = dt_cuda(0);
    void        *here, *there, *pinned = dt_cuda_host_alloc(64);
    CHECK(gpu && pinned && cudaSetDevice(1) == cudaSuccess && cudaMalloc(&there, 64) == cudaSuccess);
    CHECK(cudaSetDevice(0) == cudaSuccess && cudaMalloc(&here, 64) == cudaSuccess);
    CHECK(dt_from_blob(x, DT_SHAPE(16), .device = gpu) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "dt_from_blob: 0x", "is memory of the host, not of cuda:0", "dt_from()"));
    CHECK(dt_from_blob(pinned, DT_SHAPE(16), .device = gpu) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "is memory of the host, not of cuda:0", NULL, NULL));
    CHECK(dt_from_blob(there, DT_SHAPE(16), .device = gpu) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "is memory of cuda:1, not of cuda:0", "dt_to()", NULL));
    dt_tensor *t = dt_from_blob(here, DT_SHAPE(16), .device = gpu);
    CHECK(t && dt_fill(t, 2) == DT_OK && dt_item(dt_sum(t)) == 32.0);
    CHECK(dt_from_blob(x, DT_SHAPE(16)) != NULL); /* the CPU's */
    CHECK(dt_cuda_copy_stream(dt_cpu()) == NULL);
    CHECK(error_has(DT_ERR_ARG, "dt_cuda_copy_stream: cpu is not a CUDA device", "dt_cuda()", NULL));
    CHECK(dt_cuda_comm_stream(dt_cpu()) == NULL && error_has(DT_ERR_ARG, "dt_cuda_comm_stream: cpu", NULL, NULL));
    dt_end();
    CHECK(cudaFree(here) == cudaSuccess && cudaFree(there) == cudaSuccess);
    dt_cuda_host_free(pinned);
}
/* A kernel reads what is not its own: every call from here on says that the device is lost. */
static void case_lost(void)
{
    dt_device        *gpu = dt_cuda(0);
    const dt_backend *be = table_of(gpu);
    dt_call           c;
    dt_set_default_device(gpu);
    dt_tensor *t = dt_keep(dt_ones(DT_SHAPE(8, 8))), *x = dt_keep(dt_ones(DT_SHAPE(1, 1, 8, 8)));
    dt_tensor *w = dt_keep(dt_ones(DT_SHAPE(1, 1, 3, 3)));
    CHECK(dt_item(dt_sum(dt_matmul(t, t))) == 512.0);
    memset(&c, 0, sizeof c);
    c.op = DT_K_unary;
    c.nout = c.nin = 1;
    c.u.ew.fn = DT_U_ABS;
    operand(gpu, NULL, &c.out[0], DT_F32, NULL, 1, 64, 0, 0);
    c.in[0] = c.out[0];
    c.in[0].data = (void *)(uintptr_t)4096;
    CHECK(be->kernel[c.op](gpu, &c) == 0);
    CHECK(dt_synchronize(gpu) != DT_OK);
    CHECK(error_has(DT_ERR_DEVICE, "cuda:0: cudaDeviceSynchronize: ", "cudaErrorIllegalAddress",
                    "start the program again"));
    const char *lost = "every call on this device fails from here on";
    CHECK(dt_empty(DT_SHAPE(5 << 20)) == NULL && error_has(DT_ERR_DEVICE, "cuda", "cudaErrorIllegalAddress", lost));
    CHECK(dt_add(t, t) == NULL && error_has(DT_ERR_DEVICE, "cuda:0: ", "cudaErrorIllegalAddress", lost));
    CHECK(dt_matmul(t, t) == NULL && error_has(DT_ERR_DEVICE, "cuda:0: ", "cudaErrorIllegalAddress", lost));
    CHECK(dt_op_conv2d(x, w, NULL) == NULL && error_has(DT_ERR_DEVICE, "cuda:0: ", "cudaErrorIllegalAddress", lost));
    float v[64];
    CHECK(dt_copy_out(t, v, sizeof v) != DT_OK &&
          error_has(DT_ERR_DEVICE, "cuda:0: ", "cudaErrorIllegalAddress", lost));
    CHECK(dt_from(v, DT_SHAPE(64)) == NULL && error_has(DT_ERR_DEVICE, "cuda:0: ", "cudaErrorIllegalAddress", lost));
    CHECK(dt_synchronize(gpu) != DT_OK && error_has(DT_ERR_DEVICE, "cuda:0: ", "cudaErrorIllegalAddress", lost));
}
/* cudaMalloc may be the first to hear of it: that is no want of memory. */
static void case_lost_at_malloc(void)
{
    dt_device *gpu = dt_cuda(0);
    fail_malloc = 2;
    CHECK(dt_empty(DT_SHAPE(5 << 20), .device = gpu) == NULL);
    CHECK(
        error_has(DT_ERR_DEVICE, "cuda:0: cudaMalloc: ", "cudaErrorLaunchFailure", "every call on this device fails"));
    CHECK(dt_cuda_get_stats(gpu).reserved == 0);
}
static dt_tensor *a_conv(dt_device *gpu)
{
    return dt_op_conv2d(dt_ones(DT_SHAPE(1, 1, 8, 8), .device = gpu), dt_ones(DT_SHAPE(1, 1, 3, 3), .device = gpu),
                        NULL);
}
static void case_libraries(void)
{
    dt_device *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    dt_tensor *t = dt_ones(DT_SHAPE(8, 8));
    fail_blas = 2;
    CHECK(dt_matmul(t, t) == NULL);
    CHECK(error_has(DT_ERR_MEMORY, "cuda:0: cublasCreate: ", "CUBLAS_STATUS_ALLOC_FAILED", NULL));
    fail_blas = 1; /* with the cache given back it succeeds */
    CHECK(dt_item(dt_sum(dt_matmul(t, t))) == 512.0);
    fail_dnn = 2;
    CHECK(a_conv(gpu) == NULL);
    CHECK(error_has(DT_ERR_DEVICE, "cuda:0: cudnnCreate: ", "CUDNN_STATUS_NOT_INITIALIZED", NULL));
    fail_dnn = 1;
    CHECK(dt_item(dt_sum(a_conv(gpu))) == 9.0 * 36);
    dt_end();
}
UTEST(names, no_device) { EXPECT_CASE("no_device", "DT_EMU_DEVICES=0"); }
UTEST(names, no_driver) { EXPECT_CASE("no_driver", "DT_EMU_DEVICES=-1"); }
UTEST(names, no_such_index) { EXPECT_CASE("no_index", "DT_EMU_DEVICES=2"); }
UTEST(names, another_architecture) { EXPECT_CASE("other_arch", "DT_EMU_CC=70"); }
UTEST(names, tensors_of_two_devices) { EXPECT_CASE("two_devices", "DT_EMU_DEVICES=2"); }
UTEST(names, memory_of_others) { EXPECT_CASE("pointers", "DT_EMU_DEVICES=2"); }
UTEST(names, a_lost_device)
{
    EXPECT_CASE("lost", "DT_EMU_STRICT=0");
    EXPECT_CASE("lost_at_malloc", "DT_EMU=lazy");
}
UTEST(names, libraries_that_do_not_start) { EXPECT_CASE("libraries", "DT_EMU_DEVICES=1"); }

/* ==================================================================================================== >>path
   After the first steps, a step waits for what is read, and takes nothing from the driver. */
static dt_tensor *net(dt_model *m, dt_tensor *x, dt_tensor *tokens)
{
    x = dt_conv2d(m, "conv", x, .out = 4, .kernel = 3, .pad = 1);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_linear(m, "fc", dt_flatten(x), .out = 16);
    dt_tensor *e = dt_embedding(m, "emb", tokens, .num = 10, .dim = 16);
    x = dt_layernorm(m, "ln", dt_add(x, e));
    return dt_linear(m, "head", dt_op_dropout(x, 0.1), .out = 5);
}
static void case_step(void)
{
    float      pixel[6 * 64];
    int64_t    token[6] = { 1, 2, 3, 4, 5, 9 }, label[6] = { 0, 1, 2, 3, 4, 0 };
    dt_device *gpu = dt_cuda(0);
    bool       half = getenv("DT_CASE") != NULL;
    dt_set_default_device(gpu);
    dt_model     *m = dt_model_new(.seed = 1, .device = gpu);
    dt_optimizer *opt = dt_adamw(m, .lr = 1e-3);
    dt_amp       *amp = half ? dt_amp_new(m, .level = "O1", .dtype = DT_BF16) : NULL;
    for (int i = 0; i < 6 * 64; i++) pixel[i] = (float)(i % 7);
    for (int step = 0; step < 12; step++) {
        if (step == 4) counts_clear(); /* it is warm: from here on no loss is read */
        dt_tensor *x = dt_from(pixel, DT_SHAPE(6, 1, 8, 8)), *t = dt_from(token, DT_SHAPE(6), .dtype = DT_I64);
        dt_tensor *y = dt_from(label, DT_SHAPE(6), .dtype = DT_I64);
        dt_tensor *loss = dt_cross_entropy(net(m, x, t), y);
        if (step < 4) CHECK(dt_item(loss) > 0);
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        dt_clip_grad_value(opt, 5); /* the norm would be read */
        if (step >= 8) CHECK(dt_item(loss) > 0);
        dt_step(opt);
        /* mixed precision looks once a step whether gradients are finite */
        if (step >= 4) CHECK(n_stream_waits == (step < 8 ? 0 : step - 7) + (half ? step - 3 : 0));
        CHECK(!dt_error());
    }
    CHECK(n_device_waits == 0);
    CHECK(n_mallocs + n_frees + n_pins == 0);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(path, a_step_waits_for_what_is_read) { EXPECT_CASE_ORDERS("step", ""); }
UTEST(path, in_mixed_precision) { EXPECT_CASE("step", "DT_CASE=1"); }

/* ==================================================================================================== >>main */
#define CASES(X)                                                                                            \
    X(bad_on_streams)                                                                                       \
    X(bad_on_devices) X(bad_unread) X(reuse) X(reuse_of_shared) X(stream_is_gone) X(trim) X(cache_first)    \
        X(cache_for_workspace) X(no_more) X(statistics) X(no_device) X(no_driver) X(no_index) X(other_arch) \
            X(two_devices) X(pointers) X(lost) X(lost_at_malloc) X(libraries) X(step)
#define ROW(n) { #n, case_##n },
static const test_case cases[] = { CASES(ROW){ NULL, NULL } };

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    int status = case_main(cases);
    if (status >= 0) return status;
    return utest_main(argc, argv);
}
