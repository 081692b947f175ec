/* test_emu.c: the emulated CUDA libraries keep the rules they are there to enforce. Most cases run in a process of
   their own, with their own settings, because failed checks are sticky and end in an exit status. Link with the four
   libraries of this directory; no GPU, no nvcc.
   run: own-rule */
#include "harness.h"

#include "cases.h"
#include "emu.h"

#include <cublas_v2.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN(a) ((int)(sizeof(a) / sizeof *(a)))

/* ==================================================================================================== >>cases
   A case is a function that a child process runs; it exits with 0 if all its CHECKs hold. */
static void case_fails(void) /* not exit(1): a failed check would turn that into 97 */
{
    fflush(NULL);
    _exit(1);
}
#define CHECK(x)                                                                   \
    do {                                                                           \
        if (!(x)) {                                                                \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #x); \
            case_fails();                                                          \
        }                                                                          \
    } while (0)
#define OK(call)                                                                        \
    do {                                                                                \
        int status_ = (int)(call);                                                      \
        if (status_) {                                                                  \
            fprintf(stderr, "%s:%d: %d from %s\n", __FILE__, __LINE__, status_, #call); \
            case_fails();                                                               \
        }                                                                               \
    } while (0)

static char said[1 << 16]; /* what the last child wrote to stderr */

static int run_case(const char *name, const char *settings)
{
    char with[512];
    snprintf(with, sizeof with, "DT_EMU_HANG=1 %s", settings);
    return case_run(name, with, 40 * dt_test_slow(), said, sizeof said);
}
static bool says(const char *what)
{
    if (strstr(said, "emu: ") && strstr(said, what)) return true;
    printf("stderr was: %s\n", said);
    return false;
}
static bool ran(int status, int expected)
{
    if (status == expected) return true;
    printf("exit status %d; stderr was: %s\n", status, said);
    return false;
}
#define EXPECT_CASE(name, settings) EXPECT_TRUE(ran(run_case(name, settings), 0))
#define EXPECT_CAUGHT(name, settings, text)                    \
    do {                                                       \
        EXPECT_TRUE(ran(run_case(name, settings), 97));        \
        EXPECT_TRUE(says(text));                               \
    } while (0)

static float *device_floats(const float *v, size_t n)
{
    float *p;
    OK(cudaMalloc((void **)&p, n * sizeof *p));
    if (v) OK(cudaMemcpy(p, v, n * sizeof *p, cudaMemcpyHostToDevice));
    return p;
}
static cudaStream_t stream_new(unsigned flags)
{
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, flags));
    return s;
}
static void set_flag(void *p) { *(int *)p = 1; }

/* ---- streams and events */
static void case_when(void) /* work runs at once in eager mode, and only when waited for in lazy mode */
{
    cudaStream_t s = stream_new(cudaStreamNonBlocking), other = stream_new(cudaStreamNonBlocking);
    static int   flag;
    bool         eager = !strcmp(getenv("DT_EMU"), "eager");
    OK(cudaLaunchHostFunc(s, set_flag, &flag));
    CHECK(flag == eager);
    OK(cudaStreamSynchronize(other));
    CHECK(flag == eager);
    OK(cudaStreamSynchronize(s));
    CHECK(flag == 1);
    flag = 0;
    OK(cudaLaunchHostFunc(s, set_flag, &flag));
    OK(cudaDeviceSynchronize());
    CHECK(flag == 1);
}
static void case_beside(void) /* says whether waiting for one stream ran work of another */
{
    cudaStream_t s = stream_new(cudaStreamNonBlocking), other = stream_new(cudaStreamNonBlocking);
    static int   flag[8];
    for (int i = 0; i < 4; i++) OK(cudaLaunchHostFunc(s, set_flag, &flag[i]));
    for (int i = 4; i < 8; i++) OK(cudaLaunchHostFunc(other, set_flag, &flag[i]));
    int before = flag[0] + flag[1] + flag[2] + flag[3];
    OK(cudaStreamSynchronize(other));
    CHECK(flag[4] && flag[5] && flag[6] && flag[7]);
    if (flag[0] + flag[1] + flag[2] + flag[3] > before) fprintf(stderr, "beside\n");
}
/* A copy into device memory on one stream, one out of it on another, with or without the event between them. */
static void two_streams(bool wait)
{
    cudaStream_t a = stream_new(cudaStreamNonBlocking), b = stream_new(cudaStreamNonBlocking);
    cudaEvent_t  ev;
    float       *in, *out, *x = device_floats(NULL, 64), *y = device_floats(NULL, 64);
    OK(cudaMallocHost((void **)&in, 256));
    OK(cudaMallocHost((void **)&out, 256));
    OK(cudaEventCreateWithFlags(&ev, cudaEventDisableTiming));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 64; i++) in[i] = (float)(i + round);
        OK(cudaMemcpyAsync(x, in, 256, cudaMemcpyHostToDevice, a));
        OK(cudaMemcpyAsync(y, x, 256, cudaMemcpyDeviceToDevice, a));
        OK(cudaEventRecord(ev, a));
        if (wait) OK(cudaStreamWaitEvent(b, ev, 0));
        OK(cudaMemcpyAsync(out, y, 256, cudaMemcpyDeviceToHost, b));
        if (cudaStreamSynchronize(b)) exit(0); /* strict: 97 */
        for (int i = 0; i < 64; i++) CHECK(out[i] == (float)(i + round));
        OK(cudaStreamSynchronize(a));
    }
    OK(cudaEventDestroy(ev));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
}
static void case_event(void) { two_streams(true); }
static void case_no_event(void) { two_streams(false); }
static void case_legacy(void) /* the default stream and blocking streams wait for each other, others do not */
{
    cudaStream_t blocking = stream_new(cudaStreamDefault), free_ = stream_new(cudaStreamNonBlocking);
    static int   flag[3];
    OK(cudaLaunchHostFunc(0, set_flag, &flag[0]));
    OK(cudaLaunchHostFunc(free_, set_flag, &flag[1]));
    OK(cudaStreamSynchronize(free_));
    CHECK(flag[0] == 0 && flag[1] == 1);
    OK(cudaLaunchHostFunc(blocking, set_flag, &flag[2]));
    OK(cudaStreamSynchronize(blocking));
    CHECK(flag[0] == 1 && flag[2] == 1);
    memset(flag, 0, sizeof flag);
    OK(cudaLaunchHostFunc(blocking, set_flag, &flag[0]));
    OK(cudaLaunchHostFunc(free_, set_flag, &flag[1]));
    OK(cudaLaunchHostFunc(0, set_flag, &flag[2]));
    OK(cudaStreamSynchronize(0));
    CHECK(flag[0] == 1 && flag[1] == 0 && flag[2] == 1);
    cudaEvent_t ev; /* not the wait for the default stream but its work waits */
    memset(flag, 0, sizeof flag);
    OK(cudaEventCreate(&ev));
    OK(cudaLaunchHostFunc(blocking, set_flag, &flag[0]));
    OK(cudaEventRecord(ev, 0));
    OK(cudaEventSynchronize(ev));
    CHECK(flag[0] == 1);
}
static void case_events(void)
{
    cudaStream_t s = stream_new(0), t = stream_new(cudaStreamNonBlocking), wrong;
    cudaEvent_t  a, b, untimed;
    static int   flag;
    float        ms;
    int          tries = 0;
    OK(cudaEventCreate(&a));
    OK(cudaEventCreate(&b));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    OK(cudaEventQuery(a)); /* never recorded: nothing to wait for */
    OK(cudaStreamWaitEvent(s, a, 0));
    OK(cudaEventSynchronize(a));
    OK(cudaEventRecord(a, s));
    OK(cudaLaunchHostFunc(s, set_flag, &flag));
    OK(cudaEventRecord(b, s));
    OK(cudaStreamWaitEvent(t, b, 0));
    CHECK(cudaEventElapsedTime(&ms, a, b) == cudaErrorNotReady);
    CHECK(cudaStreamQuery(t) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaErrorNotReady);
    while (cudaEventQuery(b) == cudaErrorNotReady) CHECK(++tries < 10); /* asking lets it go on */
    CHECK(flag == 1);
    (void)cudaGetLastError();
    OK(cudaStreamSynchronize(t));
    OK(cudaEventElapsedTime(&ms, a, b));
    CHECK(ms >= 0);
    OK(cudaEventRecord(untimed, s));
    OK(cudaEventSynchronize(untimed));
    CHECK(cudaEventElapsedTime(&ms, a, untimed) == cudaErrorInvalidResourceHandle);
    /* a wait alone is work: who waits for the stream waits for the event */
    flag = 0;
    OK(cudaLaunchHostFunc(s, set_flag, &flag));
    OK(cudaEventRecord(b, s));
    OK(cudaStreamWaitEvent(t, b, 0));
    OK(cudaStreamSynchronize(t));
    CHECK(flag == 1);
    OK(cudaSetDevice(1));
    wrong = stream_new(0);
    CHECK(cudaEventRecord(a, wrong) == cudaErrorInvalidResourceHandle);
    OK(cudaStreamWaitEvent(wrong, b, 0)); /* waiting across devices is fine */
    OK(cudaStreamDestroy(wrong));
    CHECK(cudaStreamSynchronize(wrong) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamSynchronize(cudaStreamPerThread) == cudaErrorInvalidResourceHandle);
    CHECK(cudaStreamCreateWithFlags(&wrong, 77) == cudaErrorInvalidValue);
}
static void case_destroyed_stream(void) /* its work goes on */
{
    cudaStream_t s = stream_new(cudaStreamNonBlocking), t = stream_new(cudaStreamNonBlocking);
    cudaEvent_t  ev;
    static int   flag;
    OK(cudaEventCreate(&ev));
    OK(cudaLaunchHostFunc(s, set_flag, &flag));
    OK(cudaEventRecord(ev, s));
    OK(cudaStreamWaitEvent(t, ev, 0));
    OK(cudaStreamDestroy(s));
    OK(cudaEventDestroy(ev));
    OK(cudaStreamSynchronize(t));
    CHECK(flag == 1);
}
static void calls_cuda(void *p) { *(int *)p = (int)cudaDeviceSynchronize(); }
static void case_host_function(void)
{
    static int got;
    OK(cudaLaunchHostFunc(0, calls_cuda, &got));
    cudaStreamSynchronize(0);
    CHECK(got == cudaErrorNotPermitted);
}
static void case_many(void) /* more work than a stream holds */
{
    cudaStream_t s = stream_new(cudaStreamNonBlocking);
    static int   flag;
    char        *p;
    OK(cudaMalloc((void **)&p, 16));
    OK(cudaLaunchHostFunc(s, set_flag, &flag));
    for (int i = 0; i < 1500; i++) OK(cudaMemsetAsync(p, i, 16, s));
    CHECK(flag == 1);
    OK(cudaStreamSynchronize(s));
}

static void *thread_main(void *arg) /* a thread with streams of its own on a device that others use as well */
{
    cublasHandle_t h;
    float          one = 1, zero = 0, id[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    int            d = *(int *)arg % 2;
    OK(cudaSetDevice(d));
    OK(cublasCreate(&h));
    cudaStream_t s = stream_new(cudaStreamNonBlocking), t = stream_new(cudaStreamNonBlocking);
    cudaEvent_t  ev;
    OK(cublasSetStream(h, s));
    OK(cudaEventCreate(&ev));
    for (int round = 0; round < 20; round++) {
        float v[16], w[16], *x, *y, *z;
        for (int i = 0; i < 16; i++) v[i] = (float)(i + round + *(int *)arg * 100);
        OK(cudaMalloc((void **)&x, 64));
        OK(cudaMalloc((void **)&y, 64));
        OK(cudaMalloc((void **)&z, 64));
        OK(cudaMemcpyAsync(x, v, 64, cudaMemcpyHostToDevice, s));
        OK(cudaMemcpyAsync(y, id, 64, cudaMemcpyHostToDevice, s));
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, x, 4, y, 4, &zero, z, 4));
        OK(cudaEventRecord(ev, s));
        OK(cudaStreamWaitEvent(t, ev, 0));
        OK(cudaMemcpyAsync(w, z, 64, cudaMemcpyDeviceToHost, t));
        CHECK(!memcmp(v, w, 64));
        OK(cudaFree(x));
        OK(cudaFree(y));
        OK(cudaFree(z));
    }
    OK(cublasDestroy(h));
    return NULL;
}
static void case_threads(void)
{
    pthread_t th[6];
    int       id[6];
    for (int i = 0; i < 6; i++) {
        id[i] = i;
        pthread_create(&th[i], NULL, thread_main, &id[i]);
    }
    for (int i = 0; i < 6; i++) pthread_join(th[i], NULL);
}

/* ---- memory */
static void case_capture(void)
{
    cudaStream_t  s = stream_new(cudaStreamNonBlocking), other = stream_new(cudaStreamNonBlocking);
    cudaGraph_t   graph = NULL;
    cudaEvent_t   e;
    enum cudaStreamCaptureStatus status;
    float        *x = device_floats(NULL, 64);
    void         *p = NULL;
    OK(cudaEventCreate(&e));
    OK(cudaEventRecord(e, other));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(x, 0, 256, s));
    OK(cudaMemsetAsync(x, 0, 4, other));
    OK(cudaStreamIsCapturing(s, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(s, &graph));
    CHECK(graph != NULL);
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 6; i++) {
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
        cudaError_t r = i == 0   ? cudaMalloc(&p, 4)
                        : i == 1 ? cudaFree(x)
                        : i == 2 ? cudaStreamSynchronize(other)
                        : i == 3 ? cudaDeviceSynchronize()
                        : i == 4 ? cudaEventSynchronize(e)
                                 : cudaStreamWaitEvent(s, e, 0);
        CHECK(r == (i < 5 ? cudaErrorStreamCaptureUnsupported : cudaErrorStreamCaptureIsolation));
        OK(cudaStreamIsCapturing(s, &status));
        CHECK(status == cudaStreamCaptureStatusInvalidated);
        CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
    }
    CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorIllegalState);
    (void)cudaGetLastError();
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(x));
}
static void case_staged(void) /* pageable memory may change after the call */
{
    float v[64], w[64], *x = device_floats(NULL, 64);
    for (int i = 0; i < 64; i++) v[i] = (float)i;
    OK(cudaMemcpyAsync(x, v, sizeof v, cudaMemcpyHostToDevice, 0));
    memset(v, 0, sizeof v);
    OK(cudaMemcpyAsync(w, x, sizeof w, cudaMemcpyDeviceToHost, 0)); /* and is there on return */
    for (int i = 0; i < 64; i++) CHECK(w[i] == (float)i);
}
static void case_pinned_source_changed(void)
{
    float *v, *x = device_floats(NULL, 64);
    OK(cudaHostAlloc((void **)&v, 256, cudaHostAllocDefault));
    memset(v, 0, 256);
    OK(cudaMemcpyAsync(x, v, 256, cudaMemcpyHostToDevice, 0));
    v[3] = 1;
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
}
static void case_pinned_target_poisoned(void)
{
    float v[64] = {0}, *w, *x = device_floats(v, 64);
    OK(cudaMallocHost((void **)&w, 256));
    memset(w, 0, 256);
    OK(cudaMemcpyAsync(w, x, 256, cudaMemcpyDeviceToHost, 0));
    CHECK(w[0] != w[0] && w[63] != w[63]);
    OK(cudaStreamSynchronize(0));
    CHECK(w[0] == 0 && w[63] == 0);
    w[5] = 1; /* after the wait it is the host's again */
    OK(cudaDeviceSynchronize());
}
static void case_pinned_target_written(void)
{
    float v[64] = {0}, *w, *x = device_floats(v, 64);
    OK(cudaMallocHost((void **)&w, 256));
    OK(cudaMemcpyAsync(w, x, 256, cudaMemcpyDeviceToHost, 0));
    w[9] = 3;
    CHECK(cudaStreamSynchronize(0) == cudaErrorLaunchFailure);
}
static void case_pinned_chain(void) /* through one pinned buffer and back, in the order of a stream: nobody's mistake */
{
    float v[64], w[64], *p, *x, *y = device_floats(NULL, 64);
    cudaStream_t s = stream_new(cudaStreamNonBlocking);
    for (int i = 0; i < 64; i++) v[i] = (float)i;
    x = device_floats(v, 64);
    OK(cudaDeviceSynchronize());
    p = aligned_alloc(4096, 4096);
    OK(cudaHostRegister(p, 4096, cudaHostRegisterDefault));
    CHECK(cudaHostRegister(p, 4096, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaMemcpyAsync(p, x, 256, cudaMemcpyDeviceToHost, s));
    OK(cudaMemcpyAsync(y, p, 256, cudaMemcpyHostToDevice, s));
    OK(cudaMemsetAsync(x, 0, 256, s));
    OK(cudaMemcpyAsync(p, x, 256, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    CHECK(p[5] == 0);
    OK(cudaMemcpy(w, y, 256, cudaMemcpyDeviceToHost));
    CHECK(!memcmp(v, w, sizeof v));
    OK(cudaHostUnregister(p));
    CHECK(cudaHostUnregister(p) == cudaErrorHostMemoryNotRegistered);
}
static void case_pinned_freed(void)
{
    float *v, *x = device_floats(NULL, 64);
    OK(cudaMallocHost((void **)&v, 256));
    OK(cudaMemcpyAsync(x, v, 256, cudaMemcpyHostToDevice, 0));
    CHECK(cudaFreeHost(v) == cudaErrorInvalidValue);
}
static void case_dereference(void)
{
    volatile float *x = device_floats((float[]){1}, 1);
    printf("%g\n", (double)x[0]);
}
static void case_crash(void)
{
    volatile int *volatile nowhere = NULL;
    (void)device_floats(NULL, 1);
    *nowhere = 1;
}
static void case_past_the_end(void)
{
    float v[64] = {0}, *x = device_floats(v, 64);
    CHECK(cudaMemcpy(x + 1, v, 256, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
}
static void case_freed(void)
{
    float v[64] = {0}, *x = device_floats(v, 64);
    OK(cudaFree(x));
    CHECK(cudaMemset(x, 0, 4) == cudaErrorInvalidValue);
}
static void case_freed_twice(void)
{
    float *x = device_floats(NULL, 64);
    OK(cudaFree(x));
    OK(cudaFree(NULL));
    CHECK(cudaFree(x) == cudaErrorInvalidValue);
}
static void case_unwritten(void)
{
    float v[64] = {0}, *x = device_floats(NULL, 64);
    OK(cudaMemset(x, 0, 252));
    CHECK(cudaMemcpy(v, x, 256, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
}
static void case_unwritten_copied(void) /* not a read; but it does not become written by it */
{
    float v[64] = {0}, *x = device_floats(NULL, 64), *y = device_floats(v, 64);
    OK(cudaMemcpy(y, x, 256, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(v, y, 256, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
}
static void case_copy_kinds(void)
{
    float v[64] = {0}, w[64], *x = device_floats(v, 64);
    CHECK(cudaMemcpy(x, v, 256, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(v, x, 256, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(w, v, 256, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(x, v, 256, (enum cudaMemcpyKind)9) == cudaErrorInvalidMemcpyDirection);
    CHECK(cudaMemset(v, 0, 256) == cudaErrorInvalidValue);
    OK(cudaMemcpy(w, x, 256, cudaMemcpyDefault));
    OK(cudaMemcpy(x, v, 0, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(w, v, 256, cudaMemcpyHostToHost));
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
}
static void case_out_of_memory(void)
{
    size_t rest, all;
    char  *p, *q = (char *)1;
    OK(cudaMalloc((void **)&p, 1000));
    CHECK((uintptr_t)p % 256 == 0);
    OK(cudaMemGetInfo(&rest, &all));
    CHECK(all == 100000 && rest == 99000);
    CHECK(cudaMalloc((void **)&q, 99001) == cudaErrorMemoryAllocation);
    CHECK(q == (char *)1);
    CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    OK(cudaMalloc((void **)&q, 99000));
    OK(cudaFree(p));
    OK(cudaMalloc((void **)&p, 0));
    CHECK(!p);
    CHECK(cudaFree(q + 8) == cudaErrorInvalidValue);
}
static void case_sticky(void)
{
    float v[64] = {0}, *x = device_floats(NULL, 64);
    void *p;
    int   n = 0;
    CHECK(cudaMemcpy(v, x, 256, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
    CHECK(cudaMalloc(&p, 4) == cudaErrorIllegalAddress);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
    OK(cudaGetDeviceCount(&n));
    OK(cudaSetDevice(1)); /* another device has its own */
    OK(cudaMalloc(&p, 4));
    CHECK(cudaGetLastError() == cudaSuccess);
}
static void case_attributes(void)
{
    struct cudaPointerAttributes a;
    float                       *x = device_floats(NULL, 4), *h;
    OK(cudaMallocHost((void **)&h, 64));
    OK(cudaPointerGetAttributes(&a, x + 1));
    CHECK(a.type == cudaMemoryTypeDevice && a.device == 0);
    OK(cudaPointerGetAttributes(&a, h + 1));
    CHECK(a.type == cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&a, &a));
    CHECK(a.type == cudaMemoryTypeUnregistered);
}

/* ---- devices */
static void case_devices(void)
{
    int                   n = -1, can = -1, v;
    struct cudaDeviceProp p;
    OK(cudaGetDeviceCount(&n));
    CHECK(n == 2);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice && cudaSetDevice(-1) == cudaErrorInvalidDevice);
    OK(cudaGetDeviceProperties(&p, 1));
    CHECK(!strcmp(p.name, "emulated GPU 1") && p.major == 9 && p.minor == 0); /* CUDA_VISIBLE_DEVICES=3,1,9,0 */
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK(v == 9);
    CHECK(cudaDeviceGetAttribute(&v, (enum cudaDeviceAttr)9999, 0) == cudaErrorInvalidValue);
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1);
    OK(cudaDeviceCanAccessPeer(&can, 0, 0));
    CHECK(can == 0);
    OK(cudaDeviceEnablePeerAccess(1, 0));
    CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
    CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorInvalidDevice);
    OK(cudaDeviceDisablePeerAccess(1));
    CHECK(cudaDeviceDisablePeerAccess(1) == cudaErrorPeerAccessNotEnabled);
    OK(cudaDriverGetVersion(&v));
    CHECK(v == CUDART_VERSION);
}
static void case_no_device(void)
{
    int            n = -7, v = -1;
    cublasHandle_t b;
    cudnnHandle_t  d;
    int            expected = getenv("DT_EMU_DEVICES")[0] == '0' ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
    CHECK(cudaGetDeviceCount(&n) == (cudaError_t)expected && n == -7);
    OK(cudaDriverGetVersion(&v));
    CHECK(v == (expected == cudaErrorNoDevice ? CUDART_VERSION : 0));
    CHECK(cudaSetDevice(0) == (cudaError_t)expected);
    CHECK(cublasCreate(&b) == CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK(cudnnCreate(&d) == CUDNN_STATUS_NOT_INITIALIZED);
}
static void case_peer_copies(void)
{
    float v[64], w[64], *x, *y;
    for (int i = 0; i < 64; i++) v[i] = (float)i;
    x = device_floats(v, 64);
    OK(cudaSetDevice(1));
    y = device_floats(NULL, 64);
    CHECK(cudaMemcpyPeer(y, 0, x, 0, 256) == cudaErrorInvalidValue);
    OK(cudaMemcpyPeer(y, 1, x, 0, 256)); /* needs no peer access */
    OK(cudaMemcpy(w, y, 256, cudaMemcpyDeviceToHost));
    CHECK(!memcmp(v, w, 256));
    cudaStream_t s = stream_new(cudaStreamNonBlocking);
    OK(cudaMemsetAsync(y, 0, 256, s));
    OK(cudaMemcpyPeerAsync(x, 0, y, 1, 256, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(w, x, 256, cudaMemcpyDefault));
    CHECK(w[7] == 0);
}
static void peer_product(bool enabled)
{
    cublasHandle_t h;
    float          one = 1, zero = 0, v[4] = {1, 2, 3, 4}, w[4], *x, *y;
    OK(cudaSetDevice(1));
    x = device_floats(v, 4);
    OK(cudaDeviceSynchronize());
    OK(cudaSetDevice(0));
    y = device_floats(NULL, 4);
    if (enabled) OK(cudaDeviceEnablePeerAccess(1, 0));
    OK(cublasCreate(&h));
    OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, x, 2, x, 2, &zero, y, 2));
    if (cudaMemcpy(w, y, 16, cudaMemcpyDeviceToHost)) exit(0);
    CHECK(w[0] == 7 && w[3] == 22);
}
static void case_peer(void) { peer_product(true); }
static void case_no_peer(void) { peer_product(false); }
static void case_fork(void)
{
    void *p;
    int   status;
    OK(cudaMalloc(&p, 4));
    pid_t pid = fork();
    if (!pid) _exit(cudaMalloc(&p, 4) == cudaErrorInitializationError ? 0 : 1);
    waitpid(pid, &status, 0);
    CHECK(status == 0);
}
static void case_leak(void)
{
    void *p;
    OK(cudaMalloc(&p, 4));
}

UTEST(emu, work_runs_when_something_waits_for_it)
{
    EXPECT_CASE("when", "DT_EMU=lazy");
    EXPECT_CASE("when", "DT_EMU=eager");
}
UTEST(emu, a_missing_event_is_caught)
{
    char settings[64];
    int  caught = 0;
    EXPECT_CASE("event", "DT_EMU=lazy DT_EMU_LEAKS=1");
    EXPECT_CASE("no_event", "DT_EMU=eager"); /* which is why eager proves nothing */
    EXPECT_CAUGHT("no_event", "DT_EMU=lazy", "never been written");
    for (int seed = 0; seed < 20; seed++) {
        snprintf(settings, sizeof settings, "DT_EMU=random:%d", seed);
        EXPECT_CASE("event", settings);
        caught += run_case("no_event", settings) != 0;
    }
    EXPECT_GT(caught, 10);
}
UTEST(emu, waiting_runs_other_work_in_random_mode_only)
{
    char settings[64];
    int  beside = 0;
    EXPECT_CASE("beside", "DT_EMU=lazy");
    EXPECT_FALSE(strstr(said, "beside"));
    for (int seed = 0; seed < 20; seed++) {
        snprintf(settings, sizeof settings, "DT_EMU=random:%d", seed);
        EXPECT_CASE("beside", settings);
        beside += strstr(said, "beside") != NULL;
    }
    EXPECT_GT(beside, 5);
    EXPECT_LT(beside, 20);
}
UTEST(emu, the_legacy_stream_waits_for_blocking_streams_only) { EXPECT_CASE("legacy", "DT_EMU=lazy"); }
UTEST(emu, events_and_queries) { EXPECT_CASE("events", "DT_EMU=lazy DT_EMU_DEVICES=2"); }
UTEST(emu, a_destroyed_stream_finishes_its_work) { EXPECT_CASE("destroyed_stream", "DT_EMU=lazy"); }
UTEST(emu, host_functions_may_not_call_cuda) { EXPECT_CAUGHT("host_function", "DT_EMU=lazy", "cudaLaunchHostFunc"); }
UTEST(emu, a_full_stream_makes_the_host_wait) { EXPECT_CASE("many", "DT_EMU=lazy"); }
UTEST(emu, threads)
{
    EXPECT_CASE("threads", "DT_EMU_DEVICES=2");
    EXPECT_CASE("threads", "DT_EMU_DEVICES=2 DT_EMU=random:1");
}
UTEST(emu, pageable_copies_are_staged) { EXPECT_CASE("staged", "DT_EMU=lazy"); }
UTEST(emu, pinned_memory_belongs_to_the_copy_until_it_ran)
{
    EXPECT_CAUGHT("pinned_source_changed", "DT_EMU=lazy", "the host changed");
    EXPECT_CASE("pinned_target_poisoned", "DT_EMU=lazy");
    EXPECT_CAUGHT("pinned_target_written", "DT_EMU=lazy", "the host wrote");
    EXPECT_CASE("pinned_chain", "DT_EMU=lazy");
    EXPECT_CASE("pinned_chain", "DT_EMU=random:5");
    EXPECT_CAUGHT("pinned_freed", "DT_EMU=lazy", "still in use");
}
UTEST(emu, the_host_cannot_touch_device_memory)
{
    EXPECT_CAUGHT("dereference", "DT_EMU=lazy", "the host touches device memory");
    EXPECT_EQ(1000 + SIGSEGV, run_case("dereference", "DT_EMU_STRICT=0"));
    EXPECT_TRUE(says("the host touches device memory"));
    EXPECT_EQ(1000 + SIGSEGV, run_case("crash", "DT_EMU=lazy")); /* another crash is none of ours */
    EXPECT_TRUE(!strstr(said, "emu: "));
}
UTEST(emu, memory_that_is_not_there)
{
    EXPECT_CAUGHT("past_the_end", "DT_EMU=lazy", "pass the end of the 256 bytes");
    EXPECT_CAUGHT("freed", "DT_EMU=lazy", "have been freed");
    EXPECT_CAUGHT("freed_twice", "DT_EMU=lazy", "freed twice");
    EXPECT_CAUGHT("unwritten", "DT_EMU=lazy", "byte 252");
    EXPECT_CAUGHT("unwritten_copied", "DT_EMU=lazy", "never been written");
}
UTEST(emu, directions_of_copies) { EXPECT_CASE("copy_kinds", "DT_EMU=lazy"); }
UTEST(emu, out_of_memory) { EXPECT_CASE("out_of_memory", "DT_EMU_MEMORY=100000"); }
UTEST(emu, errors_stick) { EXPECT_CAUGHT("sticky", "DT_EMU_DEVICES=2", "never been written"); }
UTEST(emu, pointers) { EXPECT_CASE("attributes", "DT_EMU=lazy"); }
UTEST(emu, devices)
{
    EXPECT_CASE("devices", "DT_EMU_DEVICES=4 CUDA_VISIBLE_DEVICES=3,1,9,0 DT_EMU_CC=90");
    EXPECT_CASE("no_device", "DT_EMU_DEVICES=0");
    EXPECT_CASE("no_device", "DT_EMU_DEVICES=-1");
    EXPECT_CASE("peer_copies", "DT_EMU_DEVICES=2");
    EXPECT_CASE("peer", "DT_EMU_DEVICES=2");
    EXPECT_CAUGHT("no_peer", "DT_EMU_DEVICES=2", "without peer access");
}
UTEST(emu, forks_have_no_device) { EXPECT_CASE("fork", "DT_EMU=lazy"); }
UTEST(emu, leaks) { EXPECT_CAUGHT("leak", "DT_EMU_LEAKS=1", "left at exit: 4 bytes"); }
UTEST(emu, settings_that_are_none_are_refused)
{
    EXPECT_EQ(97, run_case("staged", "DT_EMU=sometimes"));
    EXPECT_EQ(97, run_case("staged", "DT_EMU_HANG=long"));
}
UTEST(emu, captures_refuse_what_waits_and_allocates) { EXPECT_CASE("capture", ""); }
UTEST(emu, what_is_not_modelled_is_not_there)
{
    static const char *const names[] = {"cudaMallocManaged", "cudaMallocAsync", "cudaGraphLaunch", "cudaMemcpyToSymbol",
                                        "cudaDeviceReset", "cublasDgemm_v2", "cudnnPoolingForward", "ncclCommSplit"};
    for (int i = 0; i < LEN(names); i++) EXPECT_TRUE(dlsym(RTLD_DEFAULT, names[i]) == NULL);
    EXPECT_TRUE(dlsym(RTLD_DEFAULT, "cudaMalloc") != NULL);
}
UTEST(emu, formats)
{
    for (uint32_t i = 0; i < 65536; i++) {
        float f = emu_f16_to_f32((uint16_t)i), b = emu_bf16_to_f32((uint16_t)i);
        if (f == f) ASSERT_EQ(i, (uint32_t)emu_f32_to_f16(f));
        else ASSERT_TRUE(emu_f16_to_f32(emu_f32_to_f16(f)) != f);
        if (b == b) ASSERT_EQ(i, (uint32_t)emu_f32_to_bf16(b));
        if ((i & 0x7fff) >= 0x7bff) continue; /* the next one: halfway goes to the even one */
        float next = emu_f16_to_f32((uint16_t)(i + 1)), half = (f + next) / 2;
        ASSERT_EQ(i & 1 ? i + 1 : i, (uint32_t)emu_f32_to_f16(half));
        ASSERT_EQ(i + 1, (uint32_t)emu_f32_to_f16(nextafterf(half, next)));
        ASSERT_EQ(i, (uint32_t)emu_f32_to_f16(nextafterf(half, f)));
    }
    EXPECT_EQ(0x7c00, emu_f32_to_f16(65520.0f));
    EXPECT_EQ(0x7bff, emu_f32_to_f16(65519.0f));
    EXPECT_EQ(0x3f80, emu_f32_to_bf16(1.00390625f));
    EXPECT_EQ(0x3f82, emu_f32_to_bf16(1.01171875f));
    EXPECT_TRUE(emu_tf32(1.0f + 0x1p-11f) == 1.0f && emu_tf32(1.0f + 0x1p-10f) == 1.0f + 0x1p-10f);
}

/* ==================================================================================================== >>cublas */
enum { F32, F16, BF16 };
static const cudaDataType blas_type[] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF};
static const double       eps_of[] = {0x1p-23, 0x1p-10, 0x1p-7};

static uint64_t draw_state = 1;
static float    draw(void)
{
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(draw_state >> 40) / (1 << 24)) - 0.5f;
}
static void put_value(void *p, int64_t i, int t, float v)
{
    if (t == F32) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t == F16 ? emu_f32_to_f16(v) : emu_f32_to_bf16(v);
}
static float get_value(const void *p, int64_t i, int t)
{
    if (t == F32) return ((const float *)p)[i];
    return t == F16 ? emu_f16_to_f32(((const uint16_t *)p)[i]) : emu_bf16_to_f32(((const uint16_t *)p)[i]);
}
static size_t type_width(int t) { return t == F32 ? 4 : 2; }
/* n elements, random; *copy: a host copy of them */
static void *device_values(int64_t n, int t, void **copy)
{
    void *p, *h = malloc((size_t)n * type_width(t));
    for (int64_t i = 0; i < n; i++) put_value(h, i, t, draw());
    OK(cudaMalloc(&p, (size_t)n * type_width(t)));
    OK(cudaMemcpy(p, h, (size_t)n * type_width(t), cudaMemcpyHostToDevice));
    *copy = h;
    return p;
}
static void product_case(cublasHandle_t h, int ta, int tb, int m, int n, int k, int tab, int tc, float alpha,
                         float beta, int batch, bool pointers)
{
    int     lda = (ta ? k : m) + 3, ldb = (tb ? n : k) + 1, ldc = m + 2;
    int64_t sa = (int64_t)lda * (ta ? m : k), sb = (int64_t)ldb * (tb ? k : n), sc = (int64_t)ldc * n;
    void   *ha, *hb, *hc, *a = device_values(sa * batch, tab, &ha), *b = device_values(sb * batch, tab, &hb);
    void   *c = device_values(sc * batch, tc, &hc), *got = malloc((size_t)(sc * batch) * type_width(tc));
    if (pointers) {
        void *pa[8], *pb[8], *pc[8], *da, *db, *dc;
        for (int i = 0; i < batch; i++) {
            pa[i] = (char *)a + (size_t)(i * sa) * type_width(tab);
            pb[i] = (char *)b + (size_t)(i * sb) * type_width(tab);
            pc[i] = (char *)c + (size_t)(i * sc) * type_width(tc);
        }
        OK(cudaMalloc(&da, sizeof pa));
        OK(cudaMalloc(&db, sizeof pb));
        OK(cudaMalloc(&dc, sizeof pc));
        OK(cudaMemcpy(da, pa, sizeof *pa * (size_t)batch, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(db, pb, sizeof *pb * (size_t)batch, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(dc, pc, sizeof *pc * (size_t)batch, cudaMemcpyHostToDevice));
        OK(cublasGemmBatchedEx(h, (cublasOperation_t)ta, (cublasOperation_t)tb, m, n, k, &alpha,
                               (const void *const *)da, blas_type[tab], lda, (const void *const *)db, blas_type[tab],
                               ldb, &beta, (void *const *)dc, blas_type[tc], ldc, batch, CUBLAS_COMPUTE_32F,
                               CUBLAS_GEMM_DEFAULT));
    } else
        OK(cublasGemmStridedBatchedEx(h, (cublasOperation_t)ta, (cublasOperation_t)tb, m, n, k, &alpha, a,
                                      blas_type[tab], lda, sa, b, blas_type[tab], ldb, sb, &beta, c, blas_type[tc], ldc,
                                      sc, batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    OK(cudaMemcpy(got, c, (size_t)(sc * batch) * type_width(tc), cudaMemcpyDeviceToHost));
    for (int s = 0; s < batch; s++)
        for (int j = 0; j < n; j++)
            for (int i = 0; i < ldc; i++) {
                int64_t at = s * sc + (int64_t)j * ldc + i;
                double  sum = 0, most = 0;
                if (i >= m) { /* between the columns nothing changes */
                    CHECK(get_value(got, at, tc) == get_value(hc, at, tc));
                    continue;
                }
                for (int q = 0; q < k; q++) {
                    double x = get_value(ha, s * sa + (ta ? (int64_t)i * lda + q : (int64_t)q * lda + i), tab);
                    double y = get_value(hb, s * sb + (tb ? (int64_t)q * ldb + j : (int64_t)j * ldb + q), tab);
                    sum += x * y;
                    most += fabs(x * y);
                }
                double want = alpha * sum + (beta != 0 ? beta * (double)get_value(hc, at, tc) : 0);
                CHECK(fabs(get_value(got, at, tc) - want) <= eps_of[tc] * fabs(want) + 0x1p-21 * (most + 1));
            }
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(c));
    free(ha), free(hb), free(hc), free(got);
}
static void case_products(void)
{
    static const struct { int ab, c; } types[] = {{F32, F32}, {F16, F16}, {F16, F32}, {BF16, BF16}, {BF16, F32}};
    cublasHandle_t h;
    OK(cublasCreate(&h));
    for (int t = 0; t < 4; t++)
        for (int y = 0; y < LEN(types); y++) {
            product_case(h, t & 1, t >> 1, 21, 19, 300, types[y].ab, types[y].c, 1, 0, 1, false);
            product_case(h, t & 1, t >> 1, 5, 1, 7, types[y].ab, types[y].c, 0.5f, 2, 3, false);
            product_case(h, t & 1, t >> 1, 1, 33, 1, types[y].ab, types[y].c, -1, 1, 2, true);
        }
    OK(cublasDestroy(h));
}
static void case_product_rules(void)
{
    cublasHandle_t h, h1;
    float          one = 1, zero = 0, v[16] = {0}, got[4];
    float         *a = device_floats((float[]){1, 2, 3, 4}, 4), *b = device_floats((float[]){1, 0, 0, 1}, 4);
    float *c = device_floats(NULL, 4), *scalars = device_floats((float[]){2, 0}, 2), *fresh = device_floats(NULL, 4);
    int            ver;
    OK(cublasCreate(&h));
    OK(cublasGetVersion(h, &ver));
    CHECK(ver == CUBLAS_VERSION);
    /* leading dimensions and sizes */
    CHECK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 1, b, 2, &zero, c, 2) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, b, 1, &zero, c, 2) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, b, 2, &zero, c, 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, -1, 2, 2, &one, a, 2, b, 2, &zero, c, 2) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, NULL, a, 2, b, 2, &zero, c, 2) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(cublasSgemm(NULL, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, b, 2, &zero, c, 2) ==
          CUBLAS_STATUS_NOT_INITIALIZED);
    OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 0, 2, 2, &one, a, 1, b, 2, &zero, c, 1));
    /* beta 0 reads no C: it is still unwritten; alpha 0 reads no A and B */
    OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, b, 2, &zero, c, 2));
    OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &zero, fresh, 2, fresh, 2, &one, c, 2));
    OK(cudaMemcpy(got, c, 16, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 1 && got[1] == 2 && got[2] == 3 && got[3] == 4);
    /* k 0: C = beta C */
    OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 0, &one, a, 2, b, 1, &zero, c, 2));
    OK(cudaMemcpy(got, c, 16, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 0 && got[3] == 0);
    /* scalars of the device, read when the product runs */
    OK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE));
    OK(cublasSgemm(h, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 2, scalars, a, 2, b, 2, scalars + 1, c, 2));
    OK(cudaMemcpy(got, c, 16, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 2 && got[1] == 6 && got[2] == 4 && got[3] == 8);
    OK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_HOST));
    /* the table of compute types */
#define EX(ta, tb, tc, compute)                                                                                        \
    cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, ta, 1, b, tb, 1, &zero, c, tc, 1, compute,             \
                 CUBLAS_GEMM_DEFAULT)
    CHECK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_16F, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(EX(CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(EX(CUDA_R_16F, CUDA_R_16F, CUDA_R_16BF, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(EX(CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F_FAST_TF32) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_16F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(EX(CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F) == CUBLAS_STATUS_NOT_SUPPORTED);
    /* TF32 drops bits, plain f32 does not */
    v[0] = 1 + 0x1p-12f;
    OK(cudaMemcpy(a, v, 4, cudaMemcpyHostToDevice));
    OK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F));
    OK(cudaMemcpy(got, c, 4, cudaMemcpyDeviceToHost));
    CHECK(got[0] == v[0]);
    OK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32));
    OK(cudaMemcpy(got, c, 4, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 1);
    OK(cublasSetMathMode(h, CUBLAS_TF32_TENSOR_OP_MATH));
    OK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F));
    OK(cudaMemcpy(got, c, 4, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 1);
    CHECK(cublasSetMathMode(h, (cublasMath_t)77) == CUBLAS_STATUS_INVALID_VALUE);
    float *space = device_floats(v, 16);
    CHECK(cublasSetWorkspace(h, space + 1, 32) == CUBLAS_STATUS_INVALID_VALUE);
    OK(cublasSetWorkspace(h, space, 64));
    OK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F));
    CHECK(!strcmp(cublasGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE"));
    /* a handle is of its device */
    OK(cudaSetDevice(1));
    OK(cublasCreate(&h1));
    CHECK(EX(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(cublasSetStream(h, stream_new(0)) == CUBLAS_STATUS_INVALID_VALUE);
    OK(cublasSetStream(h1, stream_new(0)));
    OK(cublasDestroy(h1));
}
/* The products that are caught: DT_CASE says which. */
static void case_bad_product(void)
{
    cublasHandle_t h;
    float          one = 1, zero = 0, *a = device_floats((float[]){1, 2, 3, 4}, 4), *c = device_floats(NULL, 4);
    float         *b = device_floats((float[4096]){0}, 4096);
    int            which = atoi(getenv("DT_CASE"));
    OK(cublasCreate(&h));
    switch (which) {
    case 0: OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, a, 2, &one, c, 2)); break;  /* reads C */
    case 1: OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, a, 2, &zero, a, 2)); break; /* C is A */
    case 2:
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 3, a, 2, &zero, c, 2));
        break; /* A too large */
    case 3: OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, &one, 2, &zero, c, 2)); break; /* host B */
    case 4: cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, a, a, 2, a, 2, &zero, c, 2); break; /* device alpha */
    case 5:
        cublasSgemmStridedBatched(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, 1, a, 1, 1, &zero, c, 1, 0, 2);
        break;
    case 6: /* freed before it ran */
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, a, 1, &zero, c, 1));
        OK(cudaFree(a)); /* waits */
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, a, 1, &zero, c, 1));
        break;
    case 7:
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, (float *)((char *)a + 2), 1, a, 1, &zero, c, 1));
        break;
    case 8: /* what lies in the workspace is lost */
        OK(cublasSetWorkspace(h, b, 16384));
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, a, 1, &zero, c, 1));
        CHECK(cudaMemcpy(&one, b + 4095, 4, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
        break;
    case 9: OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, b, 2, a, 2, &zero, b + 3, 2)); break;
    case 10: OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a, 2, b, 2, &zero, b + 3, 2)); break;
    case 11: /* columns of one larger matrix, beside each other: not wrong; then one column more */
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, b, 8, b + 2, 8, &zero, b + 4, 8));
        OK(cudaDeviceSynchronize());
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 3, 2, 2, &one, b, 8, b + 2, 8, &zero, b + 4, 8));
        OK(cudaDeviceSynchronize());
        OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 3, 2, 2, &one, b, 8, b + 5, 8, &zero, b + 4, 8));
        break;
    }
    CHECK(cudaDeviceSynchronize() != cudaSuccess);
}
UTEST(emu, matrix_products) { EXPECT_CASE("products", "DT_EMU=lazy"); }
UTEST(emu, the_rules_of_matrix_products) { EXPECT_CASE("product_rules", "DT_EMU_DEVICES=2"); }
UTEST(emu, matrix_products_that_are_wrong)
{
    EXPECT_CAUGHT("bad_product", "DT_CASE=0", "C of a matrix product: reads");
    EXPECT_CAUGHT("bad_product", "DT_CASE=1", "shares memory");
    EXPECT_CAUGHT("bad_product", "DT_CASE=2", "pass the end");
    EXPECT_CAUGHT("bad_product", "DT_CASE=3", "is no device memory");
    EXPECT_CAUGHT("bad_product", "DT_CASE=4", "pointer mode is host");
    EXPECT_CAUGHT("bad_product", "DT_CASE=5", "overlap");
    EXPECT_CAUGHT("bad_product", "DT_CASE=6", "have been freed");
    EXPECT_CAUGHT("bad_product", "DT_CASE=7", "not aligned");
    EXPECT_CAUGHT("bad_product", "DT_CASE=8", "never been written");
    EXPECT_CAUGHT("bad_product", "DT_CASE=9", "shares memory");
    EXPECT_CAUGHT("bad_product", "DT_CASE=10", "shares memory");
    EXPECT_CAUGHT("bad_product", "DT_CASE=11", "shares memory");
}

/* ==================================================================================================== >>cudnn */
static const cudnnDataType_t dnn_type[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16};
typedef struct conv_case {
    int n, c, h, w, k, r, s, pad[2], step[2], dilation[2], groups, type, nhwc, nhwc_filter, flip;
} conv_case;
typedef struct conv_set {
    cudnnHandle_t                h;
    cudnnTensorDescriptor_t      x, y;
    cudnnFilterDescriptor_t      w;
    cudnnConvolutionDescriptor_t c;
    int                          oh, ow;
} conv_set;

static conv_set conv_make(const conv_case *t)
{
    conv_set s;
    int      n, c;
    OK(cudnnCreate(&s.h));
    OK(cudnnCreateTensorDescriptor(&s.x));
    OK(cudnnCreateTensorDescriptor(&s.y));
    OK(cudnnCreateFilterDescriptor(&s.w));
    OK(cudnnCreateConvolutionDescriptor(&s.c));
    OK(cudnnSetTensor4dDescriptor(s.x, t->nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, dnn_type[t->type], t->n, t->c,
                                  t->h, t->w));
    OK(cudnnSetFilter4dDescriptor(s.w, dnn_type[t->type], t->nhwc_filter ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, t->k,
                                  t->c / t->groups, t->r, t->s));
    OK(cudnnSetConvolution2dDescriptor(s.c, t->pad[0], t->pad[1], t->step[0], t->step[1], t->dilation[0],
                                       t->dilation[1], t->flip ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION,
                                       CUDNN_DATA_FLOAT));
    OK(cudnnSetConvolutionGroupCount(s.c, t->groups));
    OK(cudnnSetConvolutionMathType(s.c, CUDNN_FMA_MATH));
    OK(cudnnGetConvolution2dForwardOutputDim(s.c, s.x, s.w, &n, &c, &s.oh, &s.ow));
    CHECK(n == t->n && c == t->k);
    CHECK(s.oh == 1 + (t->h + 2 * t->pad[0] - ((t->r - 1) * t->dilation[0] + 1)) / t->step[0]);
    OK(cudnnSetTensor4dDescriptor(s.y, t->nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, dnn_type[t->type], n, c, s.oh,
                                  s.ow));
    return s;
}
static int64_t image_at(const conv_case *t, int n, int c, int h, int w, int channels, int height, int width)
{
    return t->nhwc ? (((int64_t)n * height + h) * width + w) * channels + c
                   : (((int64_t)n * channels + c) * height + h) * width + w;
}
static int64_t tap_at(const conv_case *t, int k, int c, int r, int s)
{
    int cg = t->c / t->groups;
    if (t->flip) r = t->r - 1 - r, s = t->s - 1 - s;
    return t->nhwc_filter ? (((int64_t)k * t->r + r) * t->s + s) * cg + c
                          : (((int64_t)k * cg + c) * t->r + r) * t->s + s;
}
/* Calls f for every product that a convolution is made of. */
static void each_product(const conv_case *t, const conv_set *s, const void *x, const void *w, const void *y,
                         double *out, double *most, int which)
{
    int cg = t->c / t->groups, kg = t->k / t->groups;
    for (int n = 0; n < t->n; n++)
        for (int k = 0; k < t->k; k++)
            for (int i = 0; i < s->oh; i++)
                for (int j = 0; j < s->ow; j++)
                    for (int c = 0; c < cg; c++)
                        for (int r = 0; r < t->r; r++)
                            for (int q = 0; q < t->s; q++) {
                                int h = i * t->step[0] - t->pad[0] + r * t->dilation[0];
                                int v = j * t->step[1] - t->pad[1] + q * t->dilation[1];
                                if (h < 0 || h >= t->h || v < 0 || v >= t->w) continue;
                                int64_t ax = image_at(t, n, k / kg * cg + c, h, v, t->c, t->h, t->w);
                                int64_t ay = image_at(t, n, k, i, j, t->k, s->oh, s->ow), aw = tap_at(t, k, c, r, q);
                                double p = which == 0   ? (double)get_value(x, ax, t->type) * get_value(w, aw, t->type)
                                           : which == 1 ? (double)get_value(y, ay, t->type) * get_value(w, aw, t->type)
                                                        : (double)get_value(x, ax, t->type) * get_value(y, ay, t->type);
                                int64_t at = which == 0 ? ay : which == 1 ? ax : aw;
                                out[at] += p;
                                most[at] += fabs(p);
                            }
}
static void conv_run(const conv_case *t, int which, int algo, float alpha, float beta)
{
    conv_set s = conv_make(t);
    int64_t  nx = (int64_t)t->n * t->c * t->h * t->w, ny = (int64_t)t->n * t->k * s.oh * s.ow;
    int64_t  nw = (int64_t)t->k * (t->c / t->groups) * t->r * t->s, no = which == 0 ? ny : which == 1 ? nx : nw;
    void    *hx, *hy, *hw, *x = device_values(nx, t->type, &hx), *y = device_values(ny, t->type, &hy);
    void    *w = device_values(nw, t->type, &hw), *out = which == 0 ? y : which == 1 ? x : w, *work = NULL;
    void    *old = which == 0 ? hy : which == 1 ? hx : hw, *got = malloc((size_t)no * type_width(t->type));
    double  *want = calloc((size_t)no, sizeof *want), *most = calloc((size_t)no, sizeof *most);
    size_t   nbytes = 0;
    char     guard[64], after[64];
    int st = which == 0 ? (int)cudnnGetConvolutionForwardWorkspaceSize(s.h, s.x, s.w, s.c, s.y,
                                                                       (cudnnConvolutionFwdAlgo_t)algo, &nbytes)
             : which == 1
                 ? (int)cudnnGetConvolutionBackwardDataWorkspaceSize(s.h, s.w, s.y, s.c, s.x,
                                                                     (cudnnConvolutionBwdDataAlgo_t)algo, &nbytes)
                 : (int)cudnnGetConvolutionBackwardFilterWorkspaceSize(s.h, s.x, s.y, s.c, s.w,
                                                                       (cudnnConvolutionBwdFilterAlgo_t)algo, &nbytes);
    CHECK(st == 0 || st == CUDNN_STATUS_NOT_SUPPORTED);
    if (nbytes) { /* exactly as large as promised; what lies behind stays */
        OK(cudaMalloc(&work, nbytes + sizeof guard));
        for (int i = 0; i < LEN(guard); i++) guard[i] = (char)(i + 3);
        OK(cudaMemcpy((char *)work + nbytes, guard, sizeof guard, cudaMemcpyHostToDevice));
    }
    for (int pass = 0; pass < 2 && !st; pass++) {
        size_t given = pass ? nbytes : nbytes - 1;
        int    got_st;
        if (!pass && !nbytes) continue;
        if (which == 0)
            got_st = (int)cudnnConvolutionForward(s.h, &alpha, s.x, x, s.w, w, s.c, (cudnnConvolutionFwdAlgo_t)algo,
                                                  work, given, &beta, s.y, y);
        else if (which == 1)
            got_st = (int)cudnnConvolutionBackwardData(s.h, &alpha, s.w, w, s.y, y, s.c,
                                                       (cudnnConvolutionBwdDataAlgo_t)algo, work, given, &beta, s.x, x);
        else
            got_st = (int)cudnnConvolutionBackwardFilter(
                s.h, &alpha, s.x, x, s.y, y, s.c, (cudnnConvolutionBwdFilterAlgo_t)algo, work, given, &beta, s.w, w);
        CHECK(got_st == (pass ? 0 : CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT));
    }
    if (!st) {
        OK(cudaMemcpy(got, out, (size_t)no * type_width(t->type), cudaMemcpyDeviceToHost));
        each_product(t, &s, hx, hw, hy, want, most, which);
        for (int64_t i = 0; i < no; i++) {
            double v = alpha * want[i] + (beta != 0 ? beta * (double)get_value(old, i, t->type) : 0);
            CHECK(fabs(get_value(got, i, t->type) - v) <= eps_of[t->type] * fabs(v) + 0x1p-20 * (most[i] + 1e-3));
        }
        if (nbytes) {
            OK(cudaMemcpy(after, (char *)work + nbytes, sizeof after, cudaMemcpyDeviceToHost));
            CHECK(!memcmp(after, guard, sizeof guard));
        }
    }
    OK(cudaFree(work));
    OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaFree(w));
    OK(cudnnDestroyTensorDescriptor(s.x));
    OK(cudnnDestroyTensorDescriptor(s.y));
    OK(cudnnDestroyFilterDescriptor(s.w));
    OK(cudnnDestroyConvolutionDescriptor(s.c));
    OK(cudnnDestroy(s.h));
    free(hx), free(hy), free(hw), free(got), free(want), free(most);
}
static void case_convolutions(void)
{
    static const conv_case shapes[] = {
        {2, 3, 7, 6, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, F32, 0, 0, 0},
        {3, 4, 9, 8, 6, 3, 2, {2, 0}, {2, 3}, {1, 2}, 2, F32, 0, 0, 0},
        {1, 5, 6, 6, 5, 5, 5, {2, 2}, {1, 1}, {1, 1}, 5, F32, 1, 0, 0},
        {2, 8, 5, 7, 3, 1, 1, {0, 0}, {1, 1}, {1, 1}, 1, F16, 1, 1, 0},
        {2, 4, 8, 8, 4, 3, 3, {1, 1}, {2, 2}, {1, 1}, 1, BF16, 1, 0, 0},
        {2, 4, 8, 8, 4, 3, 3, {0, 1}, {1, 1}, {1, 1}, 2, F16, 0, 0, 1},
        {1, 2, 6, 5, 3, 2, 3, {0, 0}, {1, 2}, {2, 1}, 1, F32, 0, 0, 1},
    };
    for (int i = 0; i < LEN(shapes); i++)
        for (int which = 0; which < 3; which++)
            for (int algo = 0; algo < 8; algo++) {
                conv_run(&shapes[i], which, algo, 1, 0);
                conv_run(&shapes[i], which, algo, 0.5f, 2);
            }
}
/* Tensors with gaps: the gaps are neither read (nobody wrote them) nor written. */
static void case_conv_strided(void)
{
    static const int strides[][4] = {{200, 50, 10, 2}, {128, 36, 8, 1}, {1, 2, 6, 24}, {97, 1, 21, 4}};
    conv_case        t = {2, 3, 4, 5, 2, 1, 1, {0, 0}, {1, 1}, {1, 1}, 1, F32, 0, 0, 0};
    float            one = 1, zero = 0, weight[6] = {1, 2, 3, -1, 0, 1};
    for (int i = 0; i < LEN(strides); i++) {
        const int *s = strides[i];
        conv_set   c = conv_make(&t);
        float     *x = device_floats(NULL, 400), *y = device_floats(NULL, 400), *w = device_floats(weight, 6);
        OK(cudnnSetTensor4dDescriptorEx(c.x, CUDNN_DATA_FLOAT, 2, 3, 4, 5, s[0], s[1], s[2], s[3]));
        OK(cudnnSetTensor4dDescriptorEx(c.y, CUDNN_DATA_FLOAT, 2, 2, 4, 5, s[0], s[1], s[2], s[3]));
        for (int e = 0; e < 120; e++) {
            float v = (float)(e % 7);
            OK(cudaMemcpy(x + e / 60 * s[0] + e / 20 % 3 * s[1] + e / 5 % 4 * s[2] + e % 5 * s[3], &v, 4,
                          cudaMemcpyHostToDevice));
        }
        OK(cudnnConvolutionForward(c.h, &one, c.x, x, c.w, w, c.c, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0,
                                   &zero, c.y, y));
        for (int e = 0; e < 80; e++) {
            int   n = e / 40, k = e / 20 % 2, at = n * 60 + e % 20;
            float v, want = 0;
            for (int q = 0; q < 3; q++) want += weight[k * 3 + q] * (float)((at + 20 * q) % 7);
            OK(cudaMemcpy(&v, y + n * s[0] + k * s[1] + e / 5 % 4 * s[2] + e % 5 * s[3], 4, cudaMemcpyDeviceToHost));
            CHECK(v == want);
        }
    }
    /* the last gap is still as it was allocated */
    float v, *y = device_floats(NULL, 400);
    conv_set c = conv_make(&t);
    float   *x = device_floats(NULL, 400), *w = device_floats(weight, 6);
    OK(cudaMemset(x, 0, 1600));
    OK(cudnnSetTensor4dDescriptorEx(c.y, CUDNN_DATA_FLOAT, 2, 2, 4, 5, 128, 36, 8, 1));
    OK(cudnnConvolutionForward(c.h, &one, c.x, x, c.w, w, c.c, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &zero,
                               c.y, y));
    CHECK(cudaMemcpy(&v, y + 5, 4, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
}
static void case_conv_rules(void)
{
    conv_case t = {2, 4, 8, 8, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, F32, 0, 0, 0};
    conv_set  s = conv_make(&t);
    int       n, v[4], got;
    float one = 1, zero = 0, *x = device_floats(NULL, 512), *y = device_floats(NULL, 512),
          *w = device_floats(NULL, 144);
    cudnnConvolutionFwdAlgoPerf_t       fwd[8];
    cudnnConvolutionBwdFilterAlgoPerf_t flt[8];
    cudnnTensorDescriptor_t             d;
    CHECK(cudnnGetVersion() == CUDNN_VERSION);
    OK(cudnnCreateTensorDescriptor(&d));
    CHECK(cudnnSetTensor4dDescriptor(d, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 0, 1, 1, 1) == CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetTensor4dDescriptor(d, CUDNN_TENSOR_NCHW, CUDNN_DATA_DOUBLE, 1, 1, 1, 1) ==
          CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    CHECK(cudnnSetConvolution2dDescriptor(s.c, -1, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) ==
          CUDNN_STATUS_BAD_PARAM);
    CHECK(cudnnSetConvolution2dDescriptor(s.c, 0, 0, 0, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT) ==
          CUDNN_STATUS_BAD_PARAM);
    OK(cudnnSetTensor4dDescriptor(d, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 5, 8, 8));
    CHECK(cudnnGetConvolution2dForwardOutputDim(s.c, d, s.w, v, v + 1, v + 2, v + 3) == CUDNN_STATUS_BAD_PARAM);
    OK(cudnnSetTensor4dDescriptor(d, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 4, 8, 9)); /* not what comes out */
    CHECK(cudnnConvolutionForward(s.h, &one, s.x, x, s.w, w, s.c, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0,
                                  &zero, d, y) == CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    CHECK(cudnnConvolutionForward(s.h, &one, s.x, x, s.w, w, s.c, CUDNN_CONVOLUTION_FWD_ALGO_FFT, NULL, 0, &zero, s.y,
                                  y) == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(cudnnConvolutionForward(s.h, &one, s.x, x, s.w, w, s.c, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                  NULL, 0, &zero, s.y, y) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
    /* searches: all algorithms, those that work first; the non-deterministic ones are named */
    OK(cudnnGetConvolutionForwardAlgorithmMaxCount(s.h, &n));
    OK(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &got, fwd));
    CHECK(got == n && fwd[0].status == 0 && fwd[n - 1].status != 0 && fwd[n - 1].time == -1.0f);
    OK(cudnnFindConvolutionForwardAlgorithm(s.h, s.x, s.w, s.c, s.y, 2, &got, fwd));
    CHECK(got == 2 && fwd[0].status == 0 && fwd[0].time <= fwd[1].time);
    OK(cudnnFindConvolutionBackwardFilterAlgorithm(s.h, s.x, s.y, s.c, s.w, 8, &got, flt));
    for (int i = 0; i < got; i++)
        if (!flt[i].status)
            CHECK((flt[i].determinism == CUDNN_NON_DETERMINISTIC) ==
                  (flt[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 ||
                   flt[i].algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3));
    /* with the user's memory: algorithms that fit */
    OK(cudaMemset(y, 0, 2048));
    OK(cudnnFindConvolutionForwardAlgorithmEx(s.h, s.x, x, s.w, w, s.c, s.y, y, 8, &got, fwd, NULL, 0));
    for (int i = 0; i < got; i++) CHECK(fwd[i].status || fwd[i].memory == 0);
    /* bf16 needs a device that has it; sums in f16 are not modelled */
    OK(cudnnSetTensor4dDescriptor(s.x, CUDNN_TENSOR_NCHW, CUDNN_DATA_BFLOAT16, 2, 4, 8, 8));
    OK(cudnnSetTensor4dDescriptor(s.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_BFLOAT16, 2, 4, 8, 8));
    OK(cudnnSetFilter4dDescriptor(s.w, CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NCHW, 4, 4, 3, 3));
    CHECK(cudnnGetConvolutionForwardAlgorithm_v7(s.h, s.x, s.w, s.c, s.y, 8, &got, fwd) ==
          CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH); /* DT_EMU_CC=75 */
}
/* The sum of a filter gradient, printed: the seed decides it where the algorithm is not deterministic. */
static void case_conv_order(void)
{
    conv_case t = {16, 1, 3, 3, 1, 1, 1, {0, 0}, {1, 1}, {1, 1}, 1, F32, 0, 0, 0};
    conv_set  s = conv_make(&t);
    void     *hx, *hy, *x = device_values(144, F32, &hx), *y = device_values(144, F32, &hy);
    float     one = 1, zero = 0, got, *w = device_floats(NULL, 1), *work = device_floats(NULL, 1024);
    OK(cudnnConvolutionBackwardFilter(s.h, &one, s.x, x, s.y, y, s.c,
                                      (cudnnConvolutionBwdFilterAlgo_t)atoi(getenv("DT_CASE")), work, 4096, &zero, s.w,
                                      w));
    OK(cudaMemcpy(&got, w, 4, cudaMemcpyDeviceToHost));
    fprintf(stderr, "%a\n", (double)got);
}
static void case_bad_convolution(void)
{
    conv_case t = {2, 4, 8, 8, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, F32, 0, 0, 0};
    conv_set  s = conv_make(&t);
    float     one = 1, zero = 0, *x = device_floats(NULL, 512), *w = device_floats(NULL, 144), v;
    int       which = atoi(getenv("DT_CASE")), got;
    float    *y = device_floats(NULL, which == 1 ? 511 : 512);
    cudnnConvolutionFwdAlgoPerf_t fwd[8];
    OK(cudaMemset(x, 0, which == 0 ? 2044 : 2048));
    OK(cudaMemset(w, 0, 576));
    if (which == 2) { /* a search in the user's memory leaves anything in the output */
        OK(cudaMemset(y, 0, 2048));
        OK(cudnnFindConvolutionForwardAlgorithmEx(s.h, s.x, x, s.w, w, s.c, s.y, y, 8, &got, fwd, NULL, 0));
        CHECK(cudaMemcpy(&v, y + 511, 4, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
        return;
    }
    OK(cudnnConvolutionForward(s.h, &one, s.x, x, s.w, w, s.c, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &zero,
                               s.y, y));
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}
UTEST(emu, convolutions)
{
    EXPECT_CASE("convolutions", "DT_EMU=lazy");
    EXPECT_CAUGHT("conv_strided", "DT_EMU=lazy", "never been written");
}
UTEST(emu, the_rules_of_convolutions) { EXPECT_CASE("conv_rules", "DT_EMU_CC=75"); }
UTEST(emu, algorithms_that_are_not_deterministic_are_not)
{
    char first[64], settings[64];
    for (int algo = 0; algo < 2; algo++) {
        int other = 0;
        for (int seed = 0; seed < 8; seed++) {
            snprintf(settings, sizeof settings, "DT_EMU=random:%d DT_CASE=%d", seed, algo);
            EXPECT_CASE("conv_order", settings);
            if (!seed) snprintf(first, sizeof first, "%.63s", said);
            else other += strcmp(first, said) != 0;
        }
        if (algo == 0) EXPECT_GT(other, 0);
        else EXPECT_EQ(0, other);
    }
}
UTEST(emu, convolutions_that_are_wrong)
{
    EXPECT_CAUGHT("bad_convolution", "DT_CASE=0", "x of a convolution: reads");
    EXPECT_CAUGHT("bad_convolution", "DT_CASE=1", "y of a convolution: 2048 bytes");
    EXPECT_CAUGHT("bad_convolution", "DT_CASE=2", "never been written");
}

/* ==================================================================================================== >>nccl */
typedef struct rank_set {
    int          n;
    ncclComm_t   comm[8];
    cudaStream_t stream[8];
} rank_set;
static rank_set ranks_make(int n)
{
    rank_set s = {.n = n};
    OK(ncclCommInitAll(s.comm, n, NULL));
    for (int i = 0; i < n; i++) {
        OK(cudaSetDevice(i));
        s.stream[i] = stream_new(cudaStreamNonBlocking);
    }
    return s;
}
static float *rank_floats(int r, size_t n, float v, bool written)
{
    float *h = malloc(n * sizeof *h), *p;
    OK(cudaSetDevice(r));
    for (size_t i = 0; i < n; i++) h[i] = v + (float)i;
    p = device_floats(written ? h : NULL, n);
    OK(cudaDeviceSynchronize());
    free(h);
    return p;
}
static void rank_expect(int r, const float *p, size_t n, float v, float step)
{
    float *h = malloc(n * sizeof *h);
    OK(cudaSetDevice(r));
    OK(cudaMemcpy(h, p, n * sizeof *h, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) CHECK(h[i] == v + step * (float)i);
    free(h);
}
static void case_collectives(void) /* four devices, one thread, group calls */
{
    enum { N = 4, M = 40 };
    rank_set s = ranks_make(N);
    float   *a[N], *b[N];
    int      v;
    for (int r = 0; r < N; r++) {
        a[r] = rank_floats(r, N * M, (float)r, true);
        b[r] = rank_floats(r, N * M, 0, false);
        OK(ncclCommCount(s.comm[r], &v));
        CHECK(v == N);
        OK(ncclCommUserRank(s.comm[r], &v));
        CHECK(v == r);
        OK(ncclCommCuDevice(s.comm[r], &v));
        CHECK(v == r);
    }
#define EACH(call)                                 \
    do {                                           \
        OK(ncclGroupStart());                      \
        for (int r = 0; r < N; r++) OK(call);      \
        OK(ncclGroupEnd());                        \
        for (int r = 0; r < N; r++) OK(cudaStreamSynchronize(s.stream[r])); \
    } while (0)
    EACH(ncclAllReduce(a[r], b[r], M, ncclFloat, ncclSum, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, b[r], M, 6, 4);
    EACH(ncclAllReduce(a[r], b[r], M, ncclFloat, ncclAvg, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, b[r], M, 1.5f, 1);
    EACH(ncclAllReduce(a[r], b[r], M, ncclFloat, ncclMax, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, b[r], M, 3, 1);
    EACH(ncclBroadcast(r == 2 ? a[r] : NULL, b[r], M, ncclFloat, 2, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, b[r], M, 2, 1);
    EACH(ncclReduce(a[r], r == 1 ? b[r] : NULL, M, ncclFloat, ncclSum, 1, s.comm[r], s.stream[r]));
    rank_expect(1, b[1], M, 6, 4);
    EACH(ncclReduceScatter(a[r], b[r], M, ncclFloat, ncclSum, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, b[r], M, 6 + 4 * M * (float)r, 4);
    EACH(ncclAllGather(a[r], b[r], M, ncclFloat, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++)
        for (int q = 0; q < N; q++) rank_expect(r, b[r] + q * M, M, (float)q, 1);
    /* in place */
    EACH(ncclAllGather(b[r] + r * M, b[r], M, ncclFloat, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, b[r] + 3 * M, M, 3, 1);
    EACH(ncclAllReduce(a[r], a[r], M, ncclFloat, ncclSum, s.comm[r], s.stream[r]));
    for (int r = 0; r < N; r++) rank_expect(r, a[r], M, 6, 4);
    /* messages around a ring, one group */
    OK(ncclGroupStart());
    for (int r = 0; r < N; r++) {
        OK(ncclSend(b[r] + r * M, M, ncclFloat, (r + 1) % N, s.comm[r], s.stream[r]));
        OK(ncclRecv(a[r], M, ncclFloat, (r + 3) % N, s.comm[r], s.stream[r]));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < N; r++) {
        OK(cudaStreamSynchronize(s.stream[r]));
        rank_expect(r, a[r], M, (float)((r + 3) % N), 1);
    }
    /* nothing to do is done */
    OK(ncclAllReduce(a[0], a[0], 0, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
    CHECK(ncclAllReduce(a[0], a[0], 1, ncclFloat8e4m3, ncclSum, s.comm[0], s.stream[0]) == ncclInvalidArgument);
    CHECK(ncclBroadcast(a[0], a[0], 1, ncclFloat, N, s.comm[0], s.stream[0]) == ncclInvalidArgument);
    CHECK(ncclAllReduce(NULL, a[0], 1, ncclFloat, ncclSum, s.comm[0], s.stream[0]) == ncclInvalidArgument);
    CHECK(ncclAllReduce(a[0], a[0], 1, ncclFloat, ncclSum, s.comm[0], s.stream[1]) == ncclInvalidUsage);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    for (int r = 0; r < N; r++) OK(ncclCommDestroy(s.comm[r]));
}
static void case_nccl_types(void)
{
    enum { N = 3 };
    rank_set        s = ranks_make(N);
    static uint16_t h[N][2];
    void           *p[N];
    for (int type = 0; type < 2; type++)
        for (int big = 0; big < 2; big++) {
            ncclDataType_t t = type ? ncclBfloat16 : ncclFloat16;
            for (int r = 0; r < N; r++) {
                float v = big ? (r ? 0.5f : 4096.0f) : (float)(r + 1);
                h[r][0] = h[r][1] = type ? emu_f32_to_bf16(v) : emu_f32_to_f16(v);
                OK(cudaSetDevice(r));
                OK(cudaMalloc(&p[r], 4));
                OK(cudaMemcpy(p[r], h[r], 4, cudaMemcpyHostToDevice));
                OK(cudaDeviceSynchronize());
            }
            EACH(ncclAllReduce(p[r], p[r], 2, t, ncclSum, s.comm[r], s.stream[r]));
            for (int r = 0; r < N; r++) {
                uint16_t got[2];
                OK(cudaSetDevice(r));
                OK(cudaMemcpy(got, p[r], 4, cudaMemcpyDeviceToHost));
                float v = type ? emu_bf16_to_f32(got[0]) : emu_f16_to_f32(got[0]);
                CHECK(v == (big ? 4096.0f : 6.0f)); /* rounded at every step: the small ones are lost or not by order */
            }
        }
}
typedef struct rank_thread {
    int          rank, n, rounds;
    ncclUniqueId id;
} rank_thread;
static void *rank_main(void *arg) /* a rank as a thread or a process with its own communicator */
{
    rank_thread *t = arg;
    ncclComm_t   c;
    ncclResult_t async;
    OK(cudaSetDevice(t->rank));
    cudaStream_t s = stream_new(cudaStreamNonBlocking);
    float       *a = rank_floats(t->rank, 1000, (float)t->rank, true);
    OK(ncclCommInitRank(&c, t->n, t->id, t->rank));
    for (int i = 0; i < t->rounds; i++) {
        OK(ncclAllReduce(a, a, 1000, ncclFloat, ncclAvg, c, s));
        OK(ncclBroadcast(a, a, 1000, ncclFloat, i % t->n, c, s));
    }
    if (t->n == 2) {
        if (t->rank) OK(ncclRecv(a, 1000, ncclFloat, 0, c, s));
        else OK(ncclSend(a, 1000, ncclFloat, 1, c, s));
    }
    OK(cudaStreamSynchronize(s));
    rank_expect(t->rank, a, 1000, (float)(t->n - 1) / 2, 1);
    OK(ncclCommGetAsyncError(c, &async));
    CHECK(async == ncclSuccess);
    OK(ncclCommDestroy(c));
    return NULL;
}
static void case_rank_threads(void)
{
    pthread_t    th[4];
    rank_thread  t[4];
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < 4; r++) {
        t[r] = (rank_thread){r, 4, 5, id};
        pthread_create(&th[r], NULL, rank_main, &t[r]);
    }
    for (int r = 0; r < 4; r++) pthread_join(th[r], NULL);
}
static pid_t fork_rank(void) /* a rank that ends with its parent, and in any case */
{
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm((unsigned)(30 * dt_test_slow()));
    }
    return pid;
}
static void case_rank_processes(void)
{
    ncclUniqueId id;
    pid_t        pid[4];
    int          status, n = atoi(getenv("DT_CASE"));
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < n; r++) {
        pid[r] = fork_rank(); /* before any device is used */
        if (!pid[r]) {
            rank_thread t = {r, n, 5, id};
            rank_main(&t);
            exit(0);
        }
    }
    for (int r = 0; r < n; r++) {
        waitpid(pid[r], &status, 0);
        CHECK(status == 0);
    }
}
/* One process has queued its part and waits elsewhere. Nobody there asks for it, and yet it must run. */
static void case_idle_process(void)
{
    ncclUniqueId id;
    int          fd[2], status;
    char         ch;
    OK(ncclGetUniqueId(&id));
    CHECK(!pipe(fd));
    pid_t pid = fork_rank();
    int   rank = pid == 0;
    ncclComm_t c;
    OK(cudaSetDevice(rank));
    cudaStream_t s = stream_new(cudaStreamNonBlocking);
    float       *a = rank_floats(rank, 100, (float)rank, true);
    OK(ncclCommInitRank(&c, 2, id, rank));
    OK(ncclAllReduce(a, a, 100, ncclFloat, ncclSum, c, s));
    if (rank) {
        close(fd[1]);
        CHECK(read(fd[0], &ch, 1) == 1);
    }
    OK(cudaStreamSynchronize(s));
    rank_expect(rank, a, 100, 1, 2);
    if (!rank) {
        CHECK(write(fd[1], "x", 1) == 1);
        waitpid(pid, &status, 0);
        CHECK(status == 0);
    }
    OK(ncclCommDestroy(c));
}
/* The other process has a rank, works on something else and never issues the operation. */
static void case_absent_process(void)
{
    ncclUniqueId id;
    ncclComm_t   c;
    OK(ncclGetUniqueId(&id));
    pid_t pid = fork_rank();
    int   rank = pid == 0;
    OK(cudaSetDevice(rank));
    cudaStream_t s = stream_new(cudaStreamNonBlocking);
    float       *a = rank_floats(rank, 100, (float)rank, true);
    OK(ncclCommInitRank(&c, 2, id, rank));
    if (rank) {
        for (int i = 0; i < 15; i++) { /* while it moves, the other one has patience */
            usleep(100000);
            OK(cudaMemset(a, 0, 4));
            OK(cudaDeviceSynchronize());
        }
        usleep(20000000);
        exit(0);
    }
    double begun = emu_seconds();
    OK(ncclAllReduce(a, a, 100, ncclFloat, ncclSum, c, s));
    CHECK(cudaStreamSynchronize(s) == cudaErrorLaunchTimeout);
    CHECK(emu_seconds() - begun > 1.8 && emu_seconds() - begun < 15 * dt_test_slow());
    kill(pid, SIGKILL);
}
static void case_bad_collective(void)
{
    rank_set s = ranks_make(2);
    float   *a[2] = {rank_floats(0, 100, 0, true), rank_floats(1, 100, 1, true)}, *b = rank_floats(0, 100, 0, false);
    int      which = atoi(getenv("DT_CASE"));
    ncclResult_t async = ncclSuccess;
    if (which == 5) { /* one thread, no group */
        OK(ncclAllReduce(a[0], a[0], 100, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
        CHECK(ncclAllReduce(a[1], a[1], 100, ncclFloat, ncclSum, s.comm[1], s.stream[1]) == ncclInvalidUsage);
        exit(0);
    }
    OK(ncclGroupStart());
    switch (which) {
    case 0: /* counts differ */
        OK(ncclAllReduce(a[0], a[0], 100, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
        OK(ncclAllReduce(a[1], a[1], 99, ncclFloat, ncclSum, s.comm[1], s.stream[1]));
        break;
    case 1: /* another order */
        OK(ncclAllReduce(a[0], a[0], 50, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
        OK(ncclBroadcast(a[0] + 50, a[0] + 50, 50, ncclFloat, 0, s.comm[0], s.stream[0]));
        OK(ncclBroadcast(a[1] + 50, a[1] + 50, 50, ncclFloat, 0, s.comm[1], s.stream[1]));
        OK(ncclAllReduce(a[1], a[1], 50, ncclFloat, ncclSum, s.comm[1], s.stream[1]));
        break;
    case 2:
        OK(ncclAllReduce(a[0], a[0], 100, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
        break; /* rank 1 does not come */
    case 3: /* overlapping, not in place */
        OK(ncclAllReduce(a[0], a[0] + 1, 50, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
        OK(ncclAllReduce(a[1], a[1], 50, ncclFloat, ncclSum, s.comm[1], s.stream[1]));
        break;
    case 4: /* never written; passed on, not read, until somebody does */
        OK(ncclAllReduce(b, b, 100, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
        OK(ncclAllReduce(a[1], a[1], 100, ncclFloat, ncclSum, s.comm[1], s.stream[1]));
        break;
    case 6: /* messages of other sizes */
        OK(ncclSend(a[0], 100, ncclFloat, 1, s.comm[0], s.stream[0]));
        OK(ncclRecv(a[1], 90, ncclFloat, 0, s.comm[1], s.stream[1]));
        break;
    case 7: OK(ncclSend(a[0], 100, ncclFloat, 1, s.comm[0], s.stream[0])); break; /* nobody receives */
    }
    OK(ncclGroupEnd());
    OK(cudaSetDevice(which == 4 || which == 6 ? 1 : 0));
    cudaError_t e = cudaStreamSynchronize(s.stream[which == 4 || which == 6 ? 1 : 0]);
    if (which == 4) {
        CHECK(e == cudaSuccess);
        float v[1];
        CHECK(cudaMemcpy(v, a[1], 4, cudaMemcpyDeviceToHost) == cudaErrorIllegalAddress);
        exit(0);
    }
    CHECK(e == (which == 3 ? cudaErrorLaunchFailure : cudaErrorLaunchTimeout));
    OK(ncclCommGetAsyncError(s.comm[which == 6], &async));
    CHECK(async == ncclInternalError);
}
static ncclComm_t abort_comm;
static void      *abort_later(void *arg)
{
    (void)arg;
    usleep(100000);
    OK(ncclCommAbort(abort_comm));
    return NULL;
}
static void case_abort(void) /* a rank that waits in vain goes on when its communicator is aborted */
{
    rank_set  s = ranks_make(2);
    float    *a = rank_floats(0, 100, 0, true);
    pthread_t th;
    OK(ncclAllReduce(a, a, 100, ncclFloat, ncclSum, s.comm[0], s.stream[0]));
    CHECK(cudaStreamQuery(s.stream[0]) == cudaErrorNotReady);
    CHECK(cudaStreamQuery(s.stream[0]) == cudaErrorNotReady);
    abort_comm = s.comm[0];
    pthread_create(&th, NULL, abort_later, NULL);
    OK(cudaStreamSynchronize(s.stream[0]));
    pthread_join(th, NULL);
    OK(ncclCommAbort(s.comm[1]));
    OK(cudaStreamQuery(s.stream[0]));
}
static void case_nccl_init(void)
{
    ncclUniqueId id;
    ncclComm_t   c[2];
    int          twice[2] = {1, 1}, absent[2] = {0, 7};
    float       *a, *b;
    CHECK(ncclCommInitAll(c, 2, twice) == ncclInvalidUsage);
    CHECK(ncclCommInitAll(c, 2, absent) == ncclInvalidUsage);
    OK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(c, 2, id, 2) == ncclInvalidArgument);
    OK(ncclGroupStart()); /* two ranks of one thread */
    for (int r = 0; r < 2; r++) {
        OK(cudaSetDevice(r));
        OK(ncclCommInitRank(&c[r], 2, id, r));
    }
    OK(ncclGroupEnd());
    a = rank_floats(0, 10, 0, true);
    b = rank_floats(1, 10, 1, true);
    OK(ncclGroupStart()); /* default streams: of the device that is current at the call, not at the end of the group */
    OK(ncclAllReduce(b, b, 10, ncclFloat, ncclSum, c[1], 0));
    OK(cudaSetDevice(0));
    OK(ncclAllReduce(a, a, 10, ncclFloat, ncclSum, c[0], 0));
    OK(ncclGroupEnd());
    rank_expect(0, a, 10, 1, 2);
    rank_expect(1, b, 10, 1, 2);
    OK(ncclCommDestroy(c[0]));
    OK(ncclCommDestroy(c[1]));
    OK(ncclGetUniqueId(&id));
    OK(cudaSetDevice(0));
    OK(ncclCommInitRank(c, 1, id, 0)); /* one rank is all ranks */
    OK(cudaSetDevice(1));
    CHECK(ncclAllReduce(a, a, 10, ncclFloat, ncclSum, c[0], 0) == ncclInvalidUsage);
    OK(ncclCommDestroy(c[0]));
}
/* Two communicators of two ranks, each with a stream of its own. Rank 1 calls the second one first if DT_CASE is 1. Rank 0 waits
   for the first, rank 1 for the second. */
static void *two_comms_main(void *arg)
{
    rank_thread *t = arg;
    ncclUniqueId second = t->id;
    ncclComm_t   c[2];
    cudaStream_t s[2];
    float       *a[2];
    OK(cudaSetDevice(t->rank));
    strcat(second.internal, "-b");
    for (int i = 0; i < 2; i++) {
        s[i] = stream_new(cudaStreamNonBlocking);
        a[i] = rank_floats(t->rank, 100, (float)t->rank, true);
        OK(ncclCommInitRank(&c[i], 2, i ? second : t->id, t->rank));
    }
    int first = t->rounds && t->rank;
    OK(ncclAllReduce(a[first], a[first], 100, ncclFloat, ncclSum, c[first], s[first]));
    OK(ncclAllReduce(a[!first], a[!first], 100, ncclFloat, ncclSum, c[!first], s[!first]));
    for (int i = 0; i < 2; i++) {
        if (cudaStreamSynchronize(s[i ^ t->rank])) exit(0);
        rank_expect(t->rank, a[i ^ t->rank], 100, 1, 2);
    }
    for (int i = 0; i < 2; i++) OK(ncclCommDestroy(c[i]));
    return NULL;
}
static void case_two_comms(void)
{
    pthread_t    th[2];
    rank_thread  t[2];
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < 2; r++) {
        t[r] = (rank_thread){r, 2, atoi(getenv("DT_CASE")), id};
        pthread_create(&th[r], NULL, two_comms_main, &t[r]);
    }
    for (int r = 0; r < 2; r++) pthread_join(th[r], NULL);
}
static void case_nccl_alone(void) /* the other rank never comes */
{
    ncclUniqueId id;
    ncclComm_t   c;
    OK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&c, 2, id, 0) == ncclInternalError);
}
UTEST(emu, collectives)
{
    char settings[64];
    EXPECT_CASE("collectives", "DT_EMU_DEVICES=4");
    EXPECT_CASE("collectives", "DT_EMU_DEVICES=4 DT_EMU=eager");
    for (int seed = 0; seed < 5; seed++) {
        snprintf(settings, sizeof settings, "DT_EMU_DEVICES=4 DT_EMU=random:%d", seed);
        EXPECT_CASE("collectives", settings);
    }
    EXPECT_CASE("nccl_types", "DT_EMU_DEVICES=3");
}
UTEST(emu, ranks_as_threads)
{
    EXPECT_CASE("rank_threads", "DT_EMU_DEVICES=4 DT_EMU_HANG=5");
    EXPECT_CASE("rank_threads", "DT_EMU_DEVICES=4 DT_EMU_HANG=5 DT_EMU=random:3");
}
UTEST(emu, ranks_as_processes)
{
    EXPECT_CASE("rank_processes", "DT_EMU_DEVICES=4 DT_EMU_HANG=5 DT_CASE=2");
    EXPECT_CASE("rank_processes", "DT_EMU_DEVICES=4 DT_EMU_HANG=5 DT_CASE=4 DT_EMU=random:1");
    EXPECT_CASE("idle_process", "DT_EMU_DEVICES=2 DT_EMU_HANG=5");
}
UTEST(emu, collectives_that_are_wrong)
{
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=0", "99 float32");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=1", "GPUs would hang");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=2", "waiting for rank 1");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=3", "input and output overlap");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=4", "never been written");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=5", "not as a group");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=6", "receives 90 float32");
    EXPECT_CAUGHT("bad_collective", "DT_EMU_DEVICES=2 DT_CASE=7", "rank 0 hangs");
    EXPECT_CAUGHT("absent_process", "DT_EMU_DEVICES=2", "waiting for rank 1");
}
UTEST(emu, two_communicators_where_there_is_room_for_one_kernel)
{
#define TWO_COMMS "DT_EMU_DEVICES=2 DT_EMU_HANG=2 "
    EXPECT_CASE("two_comms", TWO_COMMS "DT_CASE=0");
    EXPECT_CASE("two_comms", TWO_COMMS "DT_CASE=1");
    EXPECT_CASE("two_comms", TWO_COMMS "DT_CASE=0 DT_EMU_NCCL_ROOM=2");
    EXPECT_CASE("two_comms", TWO_COMMS "DT_CASE=0 DT_EMU_NCCL_ROOM=1 NCCL_LAUNCH_ORDER_IMPLICIT=1");
    EXPECT_CASE("two_comms", TWO_COMMS "DT_CASE=0 DT_EMU_NCCL_ROOM=1 NCCL_LAUNCH_ORDER_IMPLICIT=1 DT_EMU=random:3");
    EXPECT_CAUGHT("two_comms", TWO_COMMS "DT_CASE=1 DT_EMU_NCCL_ROOM=1 NCCL_LAUNCH_ORDER_IMPLICIT=1",
                  "the ranks use the communicators in different orders");
}
UTEST(emu, communicators)
{
    EXPECT_CASE("abort", "DT_EMU_DEVICES=2 DT_EMU_HANG=20");
    EXPECT_CASE("nccl_init", "DT_EMU_DEVICES=2");
    EXPECT_CAUGHT("nccl_alone", "DT_EMU_DEVICES=2", "1 of 2 ranks are there");
}

/* ==================================================================================================== >>launch
   A fat binary as nvcc makes it, but by hand: PTX for two capabilities. */
void      **__cudaRegisterFatBinary(void *wrapper);
void        __cudaRegisterFatBinaryEnd(void **handle);
void        __cudaRegisterFunction(void **handle, const char *host, char *device_fun, const char *name, int limit,
                                   uint3 *tid, uint3 *bid, dim3 *bdim, dim3 *gdim, int *wsize);
unsigned    __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream);

/* add: y[i] += v for i < n. turn: through shared memory, y[i] = i rotated by one in the block; races without the
   barrier. bound: at most 64 threads. large: 40 KiB of static shared memory. own: counts its launches in a variable */
static const char ptx_head[] = ".version 7.8\n.target sm_%d\n.address_size 64\n";
static const char ptx_body[] =
    ".extern .shared .align 4 .b8 dyn[];\n"
    ".global .align 4 .u32 times;\n"
    ".visible .entry add(.param .u64 p0, .param .f32 p1, .param .u32 p2)\n"
    "{\n.reg .pred %p<2>;\n.reg .b32 %r<6>;\n.reg .b64 %d<5>;\n.reg .f32 %f<4>;\n"
    "ld.param.u64 %d1, [p0];\nld.param.f32 %f1, [p1];\nld.param.u32 %r1, [p2];\n"
    "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmov.u32 %r4, %tid.x;\nmad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "setp.ge.s32 %p1, %r5, %r1;\n@%p1 bra done;\n"
    "cvta.to.global.u64 %d2, %d1;\nmul.wide.s32 %d3, %r5, 4;\nadd.s64 %d4, %d2, %d3;\n"
    "ld.global.f32 %f2, [%d4];\nadd.f32 %f3, %f2, %f1;\nst.global.f32 [%d4], %f3;\n"
    "done:\nret;\n}\n"
#define TURN(name, barrier)                                                                                       \
    ".visible .entry " name "(.param .u64 p0)\n"                                                                  \
    "{\n.reg .b32 %r<9>;\n.reg .b64 %d<5>;\n"                                                                     \
    "ld.param.u64 %d1, [p0];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, dyn;\n"                    \
    "shl.b32 %r4, %r1, 2;\nadd.s32 %r5, %r3, %r4;\nst.shared.u32 [%r5], %r1;\n" barrier                            \
    "add.s32 %r6, %r1, 1;\nrem.u32 %r6, %r6, %r2;\nshl.b32 %r6, %r6, 2;\nadd.s32 %r7, %r3, %r6;\n"                 \
    "ld.shared.u32 %r8, [%r7];\ncvta.to.global.u64 %d2, %d1;\nmul.wide.u32 %d3, %r1, 4;\nadd.s64 %d4, %d2, %d3;\n"  \
    "st.global.u32 [%d4], %r8;\nret;\n}\n"
    TURN("turn", "bar.sync 0;\n")
    TURN("race", "")
    ".visible .entry bound()\n.maxntid 64, 1, 1\n{\nret;\n}\n"
    ".visible .entry large()\n{\n.shared .align 4 .b8 room[40960];\nret;\n}\n"
    ".visible .entry own(.param .u64 p0)\n"
    "{\n.reg .b32 %r<3>;\n.reg .b64 %d<3>;\n"
    "ld.param.u64 %d1, [p0];\ncvta.to.global.u64 %d2, %d1;\n"
    "ld.global.u32 %r1, [times];\nadd.u32 %r2, %r1, 1;\n"
    "st.global.u32 [times], %r2;\nst.global.u32 [%d2], %r2;\nret;\n}\n";
enum { ADD, TURN_, RACE, BOUND, LARGE, OWN, KERNELS };
static const char *const kernel_names[KERNELS] = {"add", "turn", "race", "bound", "large", "own"};
static char              kernel_hosts[KERNELS]; /* their addresses stand for the host's functions */
#define KERNEL(k) ((const void *)&kernel_hosts[k])

static void register_kernels(bool packed)
{
    static unsigned char                                                fat[1 << 14];
    static struct { int magic, version; const void *data; void *more; } wrapper;
    static const int                                                    archs[] = {75, 80};
    size_t                                                              n = 16;
    for (int i = 0; i < LEN(archs); i++) {
        char     text[8192];
        size_t   length, head = 64;
        uint32_t u32;
        uint16_t u16;
        uint64_t u64;
        snprintf(text, sizeof text, ptx_head, archs[i]);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s", ptx_body);
        length = (strlen(text) + 8) / 8 * 8;
        memset(fat + n, 0, head + length);
        u16 = 1, memcpy(fat + n, &u16, 2);
        u16 = 0x101, memcpy(fat + n + 2, &u16, 2);
        u32 = (uint32_t)head, memcpy(fat + n + 4, &u32, 4);
        u64 = length, memcpy(fat + n + 8, &u64, 8);
        u32 = (uint32_t)archs[i], memcpy(fat + n + 28, &u32, 4);
        u64 = packed ? 0x2011 : 0x11, memcpy(fat + n + 40, &u64, 8);
        strcpy((char *)fat + n + head, text);
        n += head + length;
    }
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, head = 16;
    uint64_t rest = n - 16;
    memcpy(fat, &magic, 4), memcpy(fat + 4, &version, 2), memcpy(fat + 6, &head, 2), memcpy(fat + 8, &rest, 8);
    wrapper.magic = 0x466243b1;
    wrapper.version = 1;
    wrapper.data = fat;
    void **h = __cudaRegisterFatBinary(&wrapper);
    for (int k = 0; k < KERNELS; k++)
        __cudaRegisterFunction(h, KERNEL(k), NULL, kernel_names[k], -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(h);
}
static dim3 dim(unsigned x, unsigned y, unsigned z)
{
    dim3 d;
    d.x = x, d.y = y, d.z = z;
    return d;
}
static cudaError_t launch_add(float *y, float v, int n, unsigned blocks, unsigned threads, cudaStream_t s)
{
    void *args[] = {&y, &v, &n};
    return cudaLaunchKernel(KERNEL(ADD), dim(blocks, 1, 1), dim(threads, 1, 1), args, 0, s);
}
static void case_launch(void)
{
    float           v[100] = {0}, *y = device_floats(v, 100), one = 1;
    int             n = 100;
    dim3            g, b;
    size_t          shared;
    cudaStream_t    s, got;
    cudaKernel_t    k;
    void           *args[] = {&y, &one, &n};
    struct cudaDeviceProp p;
    register_kernels(false);
    OK(cudaGetDeviceProperties(&p, 0));
    CHECK(p.major == 8 && p.minor == 0); /* of the newest PTX */
    s = stream_new(cudaStreamNonBlocking);
    OK(cudaStreamSynchronize(0));
    OK(launch_add(y, 2, 100, 4, 32, s));
    /* as nvcc's host code does it; parameters are taken at the call */
    CHECK(!__cudaPushCallConfiguration(dim(4, 1, 1), dim(32, 1, 1), 0, s));
    OK(__cudaPopCallConfiguration(&g, &b, &shared, &got));
    CHECK(g.x == 4 && b.x == 32 && got == s);
    CHECK(__cudaPopCallConfiguration(&g, &b, &shared, &got) == cudaErrorMissingConfiguration);
    OK(__cudaGetKernel(&k, KERNEL(ADD)));
    OK(__cudaLaunchKernel(k, dim(4, 1, 1), dim(32, 1, 1), args, 0, s));
    one = 55, n = 0;
    OK(cudaMemcpyAsync(v, y, sizeof v, cudaMemcpyDeviceToHost, s));
    for (int i = 0; i < 100; i++) CHECK(v[i] == 3);
    CHECK(__cudaGetKernel(&k, v) == cudaErrorInvalidDeviceFunction);
    /* variables: each device has its own */
    unsigned count[2], *at[2];
    for (int d = 0; d < 2; d++) {
        OK(cudaSetDevice(d));
        OK(cudaMalloc((void **)&at[d], 4));
        void *a[] = {&at[d]};
        for (int i = 0; i <= d; i++) OK(cudaLaunchKernel(KERNEL(OWN), dim(1, 1, 1), dim(1, 1, 1), a, 0, 0));
        OK(cudaMemcpy(&count[d], at[d], 4, cudaMemcpyDeviceToHost));
    }
    CHECK(count[0] == 1 && count[1] == 2);
    CHECK(launch_add(y, 1, 1, 1, 1, s) ==
          cudaErrorInvalidResourceHandle); /* a stream of device 0, device 1 is current */
}
static void case_launch_limits(void)
{
    float                    *y = device_floats(NULL, 4);
    void                     *args[] = {&y};
    unsigned                  got[64];
    struct cudaFuncAttributes a;
    int                       blocks;
    register_kernels(false);
    CHECK(launch_add(y, 1, 0, 1, 1025, 0) == cudaErrorInvalidConfiguration);
    CHECK(launch_add(y, 1, 0, 0, 32, 0) == cudaErrorInvalidConfiguration);
    CHECK(launch_add(y, 1, 0, 1, 0, 0) == cudaErrorInvalidConfiguration);
#define BOUND_AT(g, b) cudaLaunchKernel(KERNEL(BOUND), g, b, NULL, 0, 0)
    CHECK(BOUND_AT(dim(1, 65536, 1), dim(1, 1, 1)) == cudaErrorInvalidConfiguration);
    CHECK(BOUND_AT(dim(1, 1, 65536), dim(1, 1, 1)) == cudaErrorInvalidConfiguration);
    CHECK(BOUND_AT(dim(1, 1, 1), dim(1, 1, 65)) == cudaErrorInvalidConfiguration);
    CHECK(BOUND_AT(dim(1, 1, 1), dim(32, 33, 1)) == cudaErrorInvalidConfiguration);
    CHECK(BOUND_AT(dim(1, 1, 1), dim(65, 1, 1)) == cudaErrorLaunchOutOfResources);
    CHECK(cudaGetLastError() == cudaErrorLaunchOutOfResources && cudaGetLastError() == cudaSuccess);
    OK(BOUND_AT(dim(70000, 1, 1), dim(1, 1, 1)));
    OK(BOUND_AT(dim(1, 1, 1), dim(64, 1, 1)));
    OK(cudaDeviceSynchronize());
    /* shared memory: 48 KiB, more by attribute */
#define TURN_WITH(n) cudaLaunchKernel(KERNEL(TURN_), dim(1, 1, 1), dim(64, 1, 1), args, n, 0)
    OK(cudaMalloc((void **)&y, 256));
    CHECK(TURN_WITH((48 << 10) + 1) == cudaErrorInvalidValue);
    OK(TURN_WITH(48 << 10));
    OK(cudaFuncSetAttribute(KERNEL(TURN_), cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    OK(TURN_WITH(100 << 10));
    CHECK(TURN_WITH((100 << 10) + 4) == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(KERNEL(TURN_), cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10) ==
          cudaErrorInvalidValue);
    OK(cudaMemcpy(got, y, 256, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < 64; i++) CHECK(got[i] == (i + 1) % 64);
    CHECK(cudaLaunchKernel(KERNEL(LARGE), dim(1, 1, 1), dim(1, 1, 1), NULL, 9 << 10, 0) == cudaErrorInvalidValue);
    OK(cudaLaunchKernel(KERNEL(LARGE), dim(1, 1, 1), dim(1, 1, 1), NULL, 8 << 10, 0));
    OK(cudaFuncGetAttributes(&a, KERNEL(LARGE)));
    CHECK(a.sharedSizeBytes == 40960 && a.maxThreadsPerBlock == 1024);
    OK(cudaFuncGetAttributes(&a, KERNEL(BOUND)));
    CHECK(a.maxThreadsPerBlock == 64 && a.numRegs == 255);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, KERNEL(LARGE), 32, 0));
    CHECK(blocks == 4); /* 164 KiB of 41 */
    /* registers, of the file that the test wrote: 1024 threads of 65 are too many */
    CHECK(launch_add(y, 1, 0, 1, 1024, 0) == cudaErrorLaunchOutOfResources);
    OK(launch_add(y, 1, 0, 1, 896, 0));
    OK(cudaDeviceSynchronize());
}
static void case_no_image(void)
{
    float *y = device_floats(NULL, 4);
    register_kernels(false);
    CHECK(launch_add(y, 1, 0, 1, 32, 0) == cudaErrorNoKernelImageForDevice); /* DT_EMU_CC=70 */
    CHECK(cudaGetLastError() == cudaErrorNoKernelImageForDevice);
    OK(cudaDeviceSynchronize());
}
static void case_bad_launch(void)
{
    float  v[64] = {0}, *y = device_floats(v, 64);
    void  *args[] = {&y};
    int    which = atoi(getenv("DT_CASE"));
    static const cudaError_t expected[] = {cudaErrorIllegalAddress, cudaErrorIllegalAddress, cudaErrorIllegalAddress,
                                           cudaErrorIllegalAddress, cudaErrorIllegalAddress, cudaErrorMisalignedAddress,
                                           cudaErrorIllegalAddress};
    register_kernels(which == 7);
    OK(cudaDeviceSynchronize());
    switch (which) {
    case 0: OK(launch_add(y, 1, 65, 3, 32, 0)); break;
    case 1: OK(launch_add(v, 1, 1, 1, 32, 0)); break; /* the host's */
    case 2:
        OK(cudaFree(y));
        OK(launch_add(y, 1, 1, 1, 32, 0));
        break;
    case 3: OK(cudaLaunchKernel(KERNEL(RACE), dim(1, 1, 1), dim(64, 1, 1), args, 256, 0)); break;
    case 4:
        OK(cudaSetDevice(1));
        OK(launch_add(y, 1, 1, 1, 32, 0));
        break;
    case 5: OK(launch_add((float *)((char *)y + 2), 1, 1, 1, 32, 0)); break;
    case 6: OK(launch_add(device_floats(NULL, 4), 1, 1, 1, 32, 0)); break; /* never written */
    case 7: CHECK(launch_add(y, 1, 1, 1, 32, 0) == cudaErrorNoKernelImageForDevice); exit(0);
    }
    cudaError_t e = cudaDeviceSynchronize();
    fprintf(stderr, "%d\n", (int)e);
    CHECK(which == 3 ? e != cudaSuccess : e == expected[which]);
}
static void case_zero_copy(void) /* kernels may use pinned memory, and what they write there is no host's mistake */
{
    float *h, *x = device_floats(NULL, 4);
    OK(cudaMallocHost((void **)&h, 16));
    register_kernels(false);
    for (int i = 0; i < 4; i++) h[i] = (float)i;
    OK(launch_add(h, 1, 4, 1, 32, 0));
    OK(cudaMemcpyAsync(x, h, 16, cudaMemcpyHostToDevice, 0));
    OK(cudaMemcpyAsync(h, x, 16, cudaMemcpyDeviceToHost, 0));
    OK(cudaDeviceSynchronize());
    CHECK(h[0] == 1 && h[3] == 4);
}
UTEST(emu, launches) { EXPECT_CASE("launch", "DT_EMU_DEVICES=2"); }
UTEST(emu, the_limits_of_launches)
{
    char  path[] = "/tmp/test_emu_XXXXXX", settings[128];
    int   fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    ASSERT_TRUE(f != NULL);
    fprintf(f, "bound 255\nadd 65\n");
    fclose(f);
    snprintf(settings, sizeof settings, "DT_EMU_REGS=%s", path);
    EXPECT_CASE("launch_limits", settings);
    unlink(path);
    EXPECT_CASE("no_image", "DT_EMU_CC=70");
}
UTEST(emu, launches_that_are_wrong)
{
    EXPECT_CAUGHT("bad_launch", "DT_CASE=0", "kernel add");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=1", "kernel add");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=2", "have been freed");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=3", "kernel race");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=4 DT_EMU_DEVICES=2", "without peer access");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=5", "kernel add");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=6", "kernel add");
    EXPECT_CAUGHT("bad_launch", "DT_CASE=7", "compressed");
}
UTEST(emu, kernels_reach_pinned_memory) { EXPECT_CASE("zero_copy", "DT_EMU=lazy"); }
UTEST(emu, the_report)
{
    EXPECT_CASE("zero_copy", "DT_EMU_REPORT=1");
    EXPECT_TRUE(strstr(said, "1 kernels launched") && strstr(said, "2 copies of 32 bytes") &&
                strstr(said, "coverage: "));
}

/* ==================================================================================================== >>main */
#define CASES(X)                                                                                                 \
    X(when) X(event) X(no_event) X(legacy) X(events) X(destroyed_stream) X(host_function) X(many) X(staged)      \
    X(pinned_source_changed) X(pinned_target_poisoned) X(pinned_target_written) X(pinned_chain) X(pinned_freed)  \
    X(dereference) X(crash) X(threads) X(past_the_end) X(freed) X(freed_twice) X(unwritten) X(unwritten_copied)  \
    X(copy_kinds) X(out_of_memory) X(sticky) X(attributes) X(devices) X(no_device) X(peer_copies) X(peer)        \
    X(no_peer) X(fork) X(leak) X(products) X(product_rules) X(bad_product) X(convolutions) X(conv_rules)         \
    X(conv_order) X(conv_strided) X(bad_convolution) X(collectives) X(nccl_types) X(rank_threads) X(rank_processes) \
    X(idle_process) X(bad_collective) X(abort) X(nccl_init) X(nccl_alone) X(two_comms) X(capture) X(launch) X(launch_limits) X(no_image) \
    X(bad_launch) X(zero_copy) X(beside) X(absent_process)
#define ROW(n) {#n, case_##n},
static const test_case cases[] = {CASES(ROW){NULL, NULL}};

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    int status = case_main(cases);
    if (status >= 0) return status;
    return utest_main(argc, argv);
}
