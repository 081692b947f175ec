/* test_gpu_memory.c: training with little more device memory than its tensors need, and options that change meanwhile
   run: emulated */
#include "dt_test.h"

#include "dt_cuda.h"
#include <cuda_runtime_api.h>
#include "dt_nn.h"
#include "counted.h"
#include "nets.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The losses of a trainer on the GPU and the largest sum of its tensors; in a process of its own: DT_EMU_MEMORY is read once. */
static int child(int which, const char *level)
{
    const trainer *t = &trainers[which];
    dt_device     *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    dt_manual_seed(7);
    dt_model     *m = dt_model_new(.seed = 1, .device = gpu);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9);
    dt_amp       *amp = *level ? dt_amp_new(m, .level = level, .dtype = DT_BF16) : NULL;
    int64_t       label[16];
    for (int64_t i = 0; i < t->x.dim[0]; i++) label[i] = i % CLASSES;
    for (int i = 0; i < STEPS; i++) {
        dt_tensor *y = dt_from(label, DT_SHAPE(t->x.dim[0]), .dtype = DT_I64);
        dt_tensor *l = dt_cross_entropy(t->net(m, data_of(t, i)), y);
        printf("loss %.9g\n", dt_item(l));
        if (amp) dt_amp_backward(amp, l);
        else dt_backward(l);
        dt_step(opt);
    }
    printf("retries %lld\nused %zu\n", (long long)dt_cuda_get_stats(gpu).retries, dt_cuda_get_stats(gpu).peak);
    if (dt_error()) printf("%s\n", dt_error());
    return dt_error_code() != DT_OK;
}
int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "child")) return child(atoi(argv[2]), argv[3]);
    return utest_main(argc, (const char *const *)argv);
}
UTEST_STATE();

static bool run(int which, const char *level, size_t memory, char *out, size_t n)
{
    char   command[256];
    size_t got = 0;
    snprintf(command, sizeof command, "DT_CUDA_DETERMINISTIC=1 DT_EMU_MEMORY=%zu /proc/%d/exe child %d '%s' 2>&1", memory, (int)getpid(), which,
             level);
    FILE *p = popen(command, "r");
    if (!p) return false;
    for (size_t k; got < n - 1 && (k = fread(out + got, 1, n - 1 - got, p)) > 0;) got += k;
    out[got] = 0;
    return pclose(p) == 0;
}
UTEST(memory, a_tenth_more_than_the_tensors_need_is_enough)
{
    static char calm[4096], tight[4096];
    for (int i = 0; i < 4; i++) {
        const char *level = i == 3 ? "O2" : "";
        ASSERT_TRUE(run(i % 3, level, (size_t)1 << 32, calm, sizeof calm));
        const char *end = strstr(calm, "retries 0\nused ");
        ASSERT_TRUE(end != NULL);
        size_t used = strtoull(end + 15, NULL, 10), memory = used + used / 10;
        bool   ok = run(i % 3, level, memory, tight, sizeof tight);
        if (!ok) printf("    %s, %zu bytes: %s\n", trainers[i % 3].name, memory, tight);
        ASSERT_TRUE(ok);
        EXPECT_EQ(0, strncmp(calm, tight, (size_t)(end - calm))); /* the same losses, to the bit */
        EXPECT_TRUE(strstr(tight, "retries 0\n") == NULL);        /* and it was tight */
    }
}
UTEST(memory, half_of_what_the_tensors_need_is_an_error)
{
    static char out[4096];
    ASSERT_TRUE(run(0, "", (size_t)1 << 32, out, sizeof out));
    size_t used = strtoull(strstr(out, "used ") + 5, NULL, 10);
    EXPECT_FALSE(run(0, "", used / 2, out, sizeof out));
    EXPECT_TRUE(strstr(out, "out of memory") != NULL);
}

static int layout_of(dt_device *gpu, dt_dtype dtype) { return dt_device_backend(gpu)->image_layout(gpu, DT_K_conv2d, dtype); }
/* After the first steps: then it could be captured as a graph. */
UTEST(capture, a_step_neither_waits_nor_allocates)
{
    dt_device    *gpu = dt_cuda(0);
    cudaStream_t  s = (cudaStream_t)dt__cuda_stream(gpu, NULL);
    cudaGraph_t   graph = NULL;
    const trainer *t = &trainers[0];
    int64_t       label[16] = { 0 };
    dt_set_default_device(gpu);
    dt_model     *m = dt_model_new(.seed = 1, .device = gpu);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9);
    for (int i = 0; i < 4; i++) {
        dt_tensor *x = data_of(t, i), *y = dt_from(label, DT_SHAPE(t->x.dim[0]), .dtype = DT_I64);
        EXPECT_OK(dt_synchronize(gpu));
        if (i == 3) ASSERT_EQ(0, (int)cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        EXPECT_OK(dt_backward(dt_cross_entropy(t->net(m, x), y)));
        EXPECT_OK(dt_step(opt));
        if (i == 3) EXPECT_EQ(0, (int)cudaStreamEndCapture(s, &graph));
        dt_end();
    }
    ASSERT_TRUE(graph != NULL);
    cudaGraphDestroy(graph);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_set_default_device(NULL);
}
UTEST(options, those_that_are_not_named_stay)
{
    dt_device *gpu = dt_cuda(0);
    ASSERT_TRUE(gpu != NULL);
    EXPECT_EQ((int)DT_LAYOUT_PLAIN, layout_of(gpu, DT_F32)); /* at first */
    EXPECT_EQ((int)DT_LAYOUT_NHWC, layout_of(gpu, DT_F16));
    EXPECT_EQ((int)DT_LAYOUT_NHWC, layout_of(gpu, DT_BF16));
    EXPECT_OK(dt_cuda_set(gpu, .deterministic = DT_YES, .layout = DT_LAYOUT_NHWC));
    EXPECT_OK(dt_cuda_set(gpu, .tf32 = DT_YES));
    EXPECT_TRUE(dt__cuda_deterministic(gpu));
    EXPECT_EQ((int)DT_LAYOUT_NHWC, layout_of(gpu, DT_F32));
    EXPECT_OK(dt_cuda_set(gpu, .deterministic = DT_NO, .layout = DT_ZERO));
    EXPECT_FALSE(dt__cuda_deterministic(gpu));
    EXPECT_EQ((int)DT_LAYOUT_PLAIN, layout_of(gpu, DT_F32));
    EXPECT_EQ((int)DT_LAYOUT_PLAIN, layout_of(gpu, DT_F16));
    EXPECT_ERROR(dt_cuda_set(gpu, .layout = 77), "dt_cuda_set: .layout is 77");
    EXPECT_ERROR(dt_cuda_set(gpu, .workspace_mb = -1), "dt_cuda_set: .workspace_mb is -1");
    EXPECT_OK(dt_cuda_set(gpu, .tf32 = DT_NO));
}
static dt_tensor *image(int64_t n) { return dt_ones(DT_SHAPE(n, 3, 12, 12)); }
static double     convolved(int64_t n)
{
    double r = dt_item(dt_sum(dt_op_conv2d(image(n), dt_full(0.25, DT_SHAPE(4, 3, 3, 3)), NULL)));
    dt_end();
    return r / (double)n;
}
UTEST(convolution, a_smaller_batch_asks_for_nothing_and_no_workspace_is_allowed)
{
    dt_device *gpu = dt_cuda(0);
    dt_set_default_device(gpu);
    double want = 0.25 * 27 * 4 * 100;
    EXPECT_EQ(want, convolved(8));
    EXPECT_OK(dt_cuda_set(gpu, .search = DT_YES));
    uint64_t waits = counted(EMU_WAITS);
    EXPECT_EQ(want, convolved(8)); /* another option: a search, which waits for the device */
    uint64_t searched = counted(EMU_WAITS);
    EXPECT_EQ(want, convolved(8));
    uint64_t again = counted(EMU_WAITS);
    EXPECT_EQ(want, convolved(5));
    uint64_t last = counted(EMU_WAITS);
    EXPECT_GT(searched - waits, again - searched);
    EXPECT_EQ(again - searched, last - again);
    EXPECT_EQ(want, convolved(9)); /* a larger one does ask */
    EXPECT_GT(counted(EMU_WAITS) - last, last - again);
    EXPECT_OK(dt_cuda_set(gpu, .search = DT_NO, .workspace_mb = DT_ZERO));
    EXPECT_EQ(want, convolved(8));
    EXPECT_OK(dt_cuda_set(gpu, .workspace_mb = 512));
    dt_set_default_device(NULL);
}
