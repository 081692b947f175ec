/* test_cudnn.c: what dt_cuda.h tells cuDNN, and what cuDNN makes of it: descriptors, output sizes, refusals. Calls that
   take no handle need no GPU, so this runs on the real library as well as on the emulated one, with the same statuses:
   which of the two is said at the start.
   run: own-rule */
#define DT_CUDA_IMPLEMENTATION
#define DT_USE_CUDA
#include "dt_test.h"

#include "dt_cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    /* the emulated one brings its own runtime */
    bool emulated = dlsym(RTLD_DEFAULT, "emu_lock") != NULL;
    int  want = getenv("DT_TEST_CUDNN") ? !strcmp(getenv("DT_TEST_CUDNN"), "real") : -1;
    printf("%s cuDNN %zu, built with %d\n", emulated ? "emulated" : "real", cudnnGetVersion(), CUDNN_VERSION);
    if (want >= 0 && want == (int)emulated) {
        printf("the %s library was asked for\n", want ? "real" : "emulated");
        return 1;
    }
    return utest_main(argc, argv);
}

typedef struct conv_case {
    int n, c, h, w, k, r, s, stride[2], pad[2], dilation[2], groups;
} conv_case;

/* What both take. Sizes that do not divide, windows as large as the padded image, unequal sides. */
static const conv_case fine[] = {
    { 1, 1, 1, 1, 1, 1, 1, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 },
    { 5, 1, 14, 14, 8, 5, 5, { 1, 1 }, { 2, 2 }, { 1, 1 }, 1 },
    { 4, 3, 32, 32, 16, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 },
    { 2, 16, 33, 31, 32, 3, 3, { 2, 2 }, { 1, 1 }, { 1, 1 }, 1 },
    { 2, 16, 32, 32, 32, 1, 1, { 2, 2 }, { 0, 0 }, { 1, 1 }, 1 },
    { 3, 5, 7, 11, 13, 3, 5, { 2, 3 }, { 1, 0 }, { 1, 1 }, 1 },
    { 3, 6, 13, 9, 9, 3, 2, { 1, 2 }, { 2, 1 }, { 2, 3 }, 3 },
    { 2, 8, 10, 10, 8, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 1 }, 8 },
    { 2, 8, 11, 10, 24, 3, 3, { 3, 2 }, { 0, 1 }, { 1, 2 }, 8 },
    { 1, 4, 7, 7, 4, 7, 7, { 1, 1 }, { 0, 0 }, { 1, 1 }, 2 },
    { 1, 2, 5, 5, 3, 3, 3, { 5, 5 }, { 0, 0 }, { 2, 2 }, 1 },
    { 1, 2, 3, 4, 3, 2, 2, { 7, 9 }, { 3, 2 }, { 1, 1 }, 1 },
    { 1, 3, 1, 17, 2, 1, 3, { 1, 1 }, { 0, 8 }, { 1, 8 }, 1 },
    { 2, 2, 9, 9, 2, 2, 2, { 2, 2 }, { 5, 5 }, { 3, 3 }, 1 },
    { 7, 1, 2, 3, 1, 1, 1, { 2, 2 }, { 1, 1 }, { 4, 4 }, 1 },
    { 3, 3, 224, 224, 8, 7, 7, { 2, 2 }, { 3, 3 }, { 1, 1 }, 1 },
    { 2, 15, 6, 5, 10, 3, 4, { 2, 1 }, { 2, 3 }, { 2, 2 }, 5 },
    { 1, 1, 100, 3, 1, 100, 3, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 },
};
/* What dt does not take. Nor does cuDNN, but that it looks at some only when it convolves, not when it tells a size. */
static const struct {
    const char *what;
    bool        later;
    conv_case   t;
} refused[] = {
    { "a window larger than the image", false, { 1, 2, 4, 4, 3, 5, 3, { 1, 1 }, { 0, 0 }, { 1, 1 }, 1 } },
    { "a dilated window larger than the padded image",
      false,
      { 1, 2, 4, 4, 3, 3, 3, { 1, 1 }, { 1, 1 }, { 1, 4 }, 1 } },
    { "channels that do not fit", false, { 1, 3, 8, 8, 4, 3, 3, { 1, 1 }, { 0, 0 }, { 1, 1 }, 2 } },
    { "filters that the groups do not divide", true, { 1, 4, 8, 8, 3, 3, 3, { 1, 1 }, { 0, 0 }, { 1, 1 }, 2 } },
    { "a stride of -1", false, { 1, 2, 8, 8, 3, 3, 3, { -1, 1 }, { 0, 0 }, { 1, 1 }, 1 } },
    { "a padding of -1", false, { 1, 2, 8, 8, 3, 3, 3, { 1, 1 }, { 0, -1 }, { 1, 1 }, 1 } },
    { "a dilation of -1", false, { 1, 2, 8, 8, 3, 3, 3, { 1, 1 }, { 0, 0 }, { -1, 1 }, 1 } },
    { "groups of -1", false, { 1, 2, 8, 8, 3, 3, 3, { 1, 1 }, { 0, 0 }, { 1, 1 }, -1 } },
};
#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

static const dt_dtype        dtypes[3] = { DT_F32, DT_F16, DT_BF16 };
static const cudnnDataType_t types[3] = { CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16 };

/* ---- as dt.h hands them to the table */
static dt_view view_of(dt_dtype dtype, int layout, int64_t a, int64_t b, int64_t c, int64_t d)
{
    dt_view v;
    memset(&v, 0, sizeof v);
    v.dtype = (int32_t)dtype;
    v.layout = layout;
    v.ndim = 4;
    v.shape[0] = a, v.shape[1] = b, v.shape[2] = c, v.shape[3] = d;
    if (layout == DT_LAYOUT_NHWC) {
        v.stride[1] = 1, v.stride[3] = b, v.stride[2] = b * d, v.stride[0] = b * d * c;
    } else {
        v.stride[3] = 1, v.stride[2] = d, v.stride[1] = d * c, v.stride[0] = d * c * b;
    }
    return v;
}
static void call_of(dt_call *c, const conv_case *t)
{
    memset(c, 0, sizeof *c);
    c->op = DT_K_conv2d;
    for (int i = 0; i < 2; i++) {
        c->u.conv.stride[i] = t->stride[i];
        c->u.conv.pad[i] = t->pad[i];
        c->u.conv.dilation[i] = t->dilation[i];
    }
    c->u.conv.groups = t->groups;
}
/* What dt_cuda.h keeps of a convolution; freed by descs_end also after an error */
typedef struct descs {
    dt__cuda_descs               of;
    cudnnConvolutionDescriptor_t conv;
} descs;
static void descs_end(descs *t)
{
    dt__cuda_conv *e = (dt__cuda_conv *)dt_mem_alloc(sizeof *e);
    memset((void *)e, 0, sizeof *e);
    e->descs = t->of;
    e->algo[0].conv = t->conv;
    dt__conv_free(e);
}
static int describe(dt__cuda_dev *d, descs *t, const conv_case *k, dt_dtype dtype, int layout, const int *out)
{
    dt_call c;
    dt_view x = view_of(dtype, layout, k->n, k->c, k->h, k->w),
            y = view_of(dtype, layout, out[0], out[1], out[2], out[3]);
    dt_view w = view_of(dtype, DT_LAYOUT_PLAIN, k->k, k->groups > 0 ? k->c / k->groups : k->c, k->r, k->s);
    call_of(&c, k);
    memset(t, 0, sizeof *t);
    int bad = dt__cudnn_describe(&t->of, &x, &w, &y);
    return bad ? bad : dt__cudnn_conv(&t->conv, &c, dt__conv_math(d, (int)dtype));
}
/* The shape of dt's own result, computed on the CPU; false: an error, which is pending. */
static bool size_by_dt(const conv_case *k, int *out)
{
    dt_op_conv2d_opts o;
    memset((void *)&o, 0, sizeof o);
    o.stride = k->stride[0], o.stride_w = k->stride[1];
    o.pad = k->pad[0] ? k->pad[0] : DT_ZERO, o.pad_w = k->pad[1] ? k->pad[1] : DT_ZERO;
    o.dilation = k->dilation[0], o.dilation_w = k->dilation[1];
    o.groups = k->groups;
    dt_tensor *x = dt_zeros(DT_SHAPE(k->n, k->c, k->h, k->w));
    dt_tensor *w = dt_zeros(DT_SHAPE(k->k, k->groups > 0 ? k->c / k->groups : k->c, k->r, k->s));
    dt_tensor *y = dt_op_conv2d_with(x, w, NULL, o);
    for (int i = 0; i < 4 && y; i++) out[i] = (int)dt_size(y, i);
    return y != NULL;
}

/* ---- what is in them */
static void same_image(int *utest_result, cudnnTensorDescriptor_t t, cudnnDataType_t type, const dt_view *v)
{
    cudnnDataType_t got;
    int             dim[4], stride[4], nd = 0, dims[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX];
    size_t          nbytes = 0;
    int64_t         n = 1;
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetTensor4dDescriptor(t, &got, &dim[0], &dim[1], &dim[2], &dim[3], &stride[0],
                                                               &stride[1], &stride[2], &stride[3]));
    EXPECT_EQ((int)type, (int)got);
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetTensorNdDescriptor(t, CUDNN_DIM_MAX, &got, &nd, dims, strides));
    ASSERT_EQ(4, nd);
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(v->shape[i], (int64_t)dim[i]);
        EXPECT_EQ(v->stride[i], (int64_t)stride[i]);
        EXPECT_EQ(dim[i], dims[i]);
        EXPECT_EQ(stride[i], strides[i]);
        n *= v->shape[i];
    }
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetTensorSizeInBytes(t, &nbytes));
    EXPECT_EQ((size_t)n * dt_dtype_nbytes((dt_dtype)v->dtype), nbytes);
}
static void same_conv(int *utest_result, const descs *t, const conv_case *k, cudnnMathType_t math)
{
    int                    pad[2], step[2], dilation[2], groups = 0;
    cudnnConvolutionMode_t mode;
    cudnnDataType_t        sums;
    cudnnMathType_t        got;
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetConvolution2dDescriptor(t->conv, &pad[0], &pad[1], &step[0], &step[1],
                                                                    &dilation[0], &dilation[1], &mode, &sums));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(k->pad[i], pad[i]);
        EXPECT_EQ(k->stride[i], step[i]);
        EXPECT_EQ(k->dilation[i], dilation[i]);
    }
    EXPECT_EQ((int)CUDNN_CROSS_CORRELATION, (int)mode);
    EXPECT_EQ((int)CUDNN_DATA_FLOAT, (int)sums);
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetConvolutionGroupCount(t->conv, &groups));
    EXPECT_EQ(k->groups, groups);
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetConvolutionMathType(t->conv, &got));
    EXPECT_EQ((int)math, (int)got);
}
UTEST(descriptors, hold_what_the_table_was_given)
{
    for (int i = 0; i < COUNT(fine); i++)
        for (int layout = 0; layout < 2; layout++)
            for (int h = 0; h < 6; h++) {
                const conv_case    *k = &fine[i];
                descs               t;
                dt__cuda_dev        d;
                int                 out[4], lay = layout ? DT_LAYOUT_NHWC : DT_LAYOUT_PLAIN, dim[4];
                cudnnDataType_t     type;
                cudnnTensorFormat_t format;
                memset((void *)&d, 0, sizeof d);
                d.opts.tf32 = h >= 3;
                ASSERT_TRUE(size_by_dt(k, out));
                dt_end();
                ASSERT_TRUE(describe(&d, &t, k, dtypes[h % 3], lay, out) == 0);
                dt_view x = view_of(dtypes[h % 3], lay, k->n, k->c, k->h, k->w);
                dt_view y = view_of(dtypes[h % 3], lay, out[0], out[1], out[2], out[3]);
                same_image(utest_result, t.of.x, types[h % 3], &x);
                same_image(utest_result, t.of.y, types[h % 3], &y);
                same_conv(utest_result, &t, k, h % 3 ? CUDNN_TENSOR_OP_MATH : h ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH);
                ASSERT_EQ(CUDNN_STATUS_SUCCESS,
                          (int)cudnnGetFilter4dDescriptor(t.of.w, &type, &format, &dim[0], &dim[1], &dim[2], &dim[3]));
                EXPECT_TRUE(types[h % 3] == type);
                EXPECT_EQ((int)(layout ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW), (int)format);
                EXPECT_TRUE(dim[0] == k->k && dim[1] == k->c / k->groups && dim[2] == k->r && dim[3] == k->s);
                descs_end(&t);
            }
}
UTEST(sizes, of_results_are_dt_s)
{
    for (int i = 0; i < COUNT(fine); i++)
        for (int layout = 0; layout < 2; layout++)
            for (int h = 0; h < 3; h++) {
                descs          t;
                dt__cuda_dev   d;
                int            out[4], two[4], nd[4];
                memset((void *)&d, 0, sizeof d);
                ASSERT_TRUE(size_by_dt(&fine[i], out));
                dt_end();
                ASSERT_EQ(0, describe(&d, &t, &fine[i], dtypes[h], layout ? DT_LAYOUT_NHWC : DT_LAYOUT_PLAIN, out));
                ASSERT_EQ(CUDNN_STATUS_SUCCESS,
                          (int)cudnnGetConvolution2dForwardOutputDim(t.conv, t.of.x, t.of.w, &two[0], &two[1], &two[2], &two[3]));
                ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnGetConvolutionNdForwardOutputDim(t.conv, t.of.x, t.of.w, 4, nd));
                for (int j = 0; j < 4; j++) {
                    EXPECT_EQ(out[j], two[j]);
                    EXPECT_EQ(out[j], nd[j]);
                }
                descs_end(&t);
            }
}

/* ---- refusals */
UTEST(refused, by_dt_before_cudnn_would)
{
    for (int i = 0; i < COUNT(refused); i++) {
        descs          t;
        dt__cuda_dev   d;
        int            out[4] = { 1, 1, 1, 1 }, n, c, h, w;
        memset((void *)&d, 0, sizeof d);
        EXPECT_FALSE(size_by_dt(&refused[i].t, out));
        EXPECT_TRUE(dt_error_code() == DT_ERR_SHAPE || dt_error_code() == DT_ERR_ARG);
        dt_error_clear();
        dt_end();
        /* and if it did not: the descriptor is refused, with the name of the call, or the size is */
        int           bad = describe(&d, &t, &refused[i].t, DT_F32, DT_LAYOUT_PLAIN, out);
        cudnnStatus_t st = CUDNN_STATUS_SUCCESS;
        if (bad)
            EXPECT_TRUE(strstr(dt_error(), ": cudnnSetConvolution") &&
                        strstr(dt_error(), "CUDNN_STATUS_BAD_PARAM"));
        else st = cudnnGetConvolution2dForwardOutputDim(t.conv, t.of.x, t.of.w, &n, &c, &h, &w);
        printf("    %s: %s\n", refused[i].what, bad ? dt_error() : cudnnGetErrorString(st));
        if (!bad && !refused[i].later) EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)st);
        dt_error_clear();
        descs_end(&t);
    }
}
UTEST(refused, images_that_are_too_large)
{
    static const struct {
        int64_t     shape[4];
        const char *says;
    } large[] = { { { 1, 1, 1, (int64_t)INT_MAX + 1 }, "is too large for cuDNN" },
                  { { 2, 1, 65536, 65536 }, "is too large for cuDNN" },
                  { { 3, 2, 32768, 32768 }, "is too large for cuDNN" },
                  { { 3, 1, 32768, 32768 }, ": cudnnSetTensor4dDescriptorEx: CUDNN_STATUS_NOT_SUPPORTED" } };
    for (int i = 0; i < COUNT(large); i++) {
        cudnnTensorDescriptor_t t = NULL;
        const int64_t          *s = large[i].shape;
        dt_view                 v = view_of(DT_F32, DT_LAYOUT_PLAIN, s[0], s[1], s[2], s[3]);
        int                     bad = dt__cudnn_image(&t, &v);
        printf("    %s\n", dt_error() ? dt_error() : "taken");
        EXPECT_NE(0, bad);
        EXPECT_TRUE(dt_error() && strstr(dt_error(), large[i].says));
        dt_error_clear();
        if (t) EXPECT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnDestroyTensorDescriptor(t));
    }
}
/* Calls with bad arguments that dt never makes: the status, which the emulation must have too. */
UTEST(refused, the_same_way_by_both_libraries)
{
    cudnnTensorDescriptor_t      x;
    cudnnFilterDescriptor_t      w;
    cudnnConvolutionDescriptor_t c;
    int                          dim[4] = { 1, 2, 8, 8 }, none[4] = { 1, 0, 8, 8 }, n;
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnCreateTensorDescriptor(&x));
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnCreateFilterDescriptor(&w));
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnCreateConvolutionDescriptor(&c));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnSetTensor4dDescriptorEx(x, CUDNN_DATA_FLOAT, 1, 0, 8, 8, 64, 64, 8, 1));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnSetTensor4dDescriptorEx(x, CUDNN_DATA_FLOAT, 1, -2, 8, 8, 64, 64, 8, 1));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnSetTensor4dDescriptorEx(x, (cudnnDataType_t)99, 1, 2, 8, 8, 128, 64, 8, 1));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnSetFilterNdDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 4, none));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnSetFilterNdDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 2, dim));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnSetConvolutionGroupCount(c, 0));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM,
              (int)cudnnSetConvolution2dDescriptor(c, 0, 0, 0, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM,
              (int)cudnnSetConvolution2dDescriptor(c, 0, 0, 1, 1, 0, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 2, 8, 8));
    ASSERT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 3, 2, 3, 3));
    ASSERT_EQ(CUDNN_STATUS_SUCCESS,
              (int)cudnnSetConvolution2dDescriptor(c, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    EXPECT_EQ(CUDNN_STATUS_BAD_PARAM, (int)cudnnGetConvolution2dForwardOutputDim(NULL, x, w, &n, &n, &n, &n));
    EXPECT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnDestroyTensorDescriptor(x));
    EXPECT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnDestroyFilterDescriptor(w));
    EXPECT_EQ(CUDNN_STATUS_SUCCESS, (int)cudnnDestroyConvolutionDescriptor(c));
}
/* Without a GPU the real library has no handle; the emulated one is asked with no device. */
UTEST(refused, a_handle_where_there_is_no_gpu)
{
    cudnnHandle_t h = NULL;
    int           n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) UTEST_SKIP("there is a GPU");
    EXPECT_EQ(CUDNN_STATUS_NOT_INITIALIZED, (int)cudnnCreate(&h));
}
