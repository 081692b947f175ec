/* test_gpu_loader.c: a loader's batches on a GPU: the bits and the order of a loader on the CPU, copied beside the
   kernels, and the host waits for nothing. For the emulated libraries (DT_EMU: lazy or random streams), where what was
   not ordered is a wrong result; it runs on a real GPU too. */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_cuda.h"
#include "dt_data.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_MAIN()

/* ---- what the program calls of the runtime passes here: waits are counted by thread, a call may fail on request */
static __thread int is_trainer; /* this thread */
static struct {
    int64_t waits, others, copies, pinned, segments;
    int64_t pinned_live, events_live;
    int64_t fail_copy, fail_pinned, fail_record;
    bool    all; /* from the failing one on */
} calls;

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))
static int64_t one_more(int64_t *n) { return __atomic_add_fetch(n, 1, __ATOMIC_RELAXED); }
static bool    fails(int64_t *left) /* the n-th from now; with .all, those behind it too */
{
    int64_t n = __atomic_load_n(left, __ATOMIC_RELAXED);
    if (n <= 0) return false;
    if (n == 1 && calls.all) return true;
    return __atomic_sub_fetch(left, 1, __ATOMIC_RELAXED) == 0;
}
static void waits(void) { one_more(is_trainer ? &calls.waits : &calls.others); }

cudaError_t cudaDeviceSynchronize(void)
{
    waits();
    return REAL(cudaDeviceSynchronize)();
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    waits();
    return REAL(cudaStreamSynchronize)(s);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    waits();
    return REAL(cudaEventSynchronize)(e);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (kind == cudaMemcpyHostToDevice) one_more(&calls.copies);
    if (kind == cudaMemcpyHostToDevice && fails(&calls.fail_copy)) return cudaErrorUnknown;
    return REAL(cudaMemcpyAsync)(dst, src, n, kind, s);
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    one_more(&calls.pinned);
    cudaError_t e = fails(&calls.fail_pinned) ? cudaErrorMemoryAllocation : REAL(cudaHostAlloc)(p, n, flags);
    if (e == cudaSuccess) one_more(&calls.pinned_live);
    return e;
}
cudaError_t cudaFreeHost(void *p)
{
    cudaError_t e = REAL(cudaFreeHost)(p);
    if (e == cudaSuccess) __atomic_sub_fetch(&calls.pinned_live, 1, __ATOMIC_RELAXED);
    return e;
}
cudaError_t cudaMalloc(void **p, size_t n)
{
    one_more(&calls.segments);
    return REAL(cudaMalloc)(p, n);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    one_more(&calls.events_live);
    return REAL(cudaEventCreateWithFlags)(e, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    __atomic_sub_fetch(&calls.events_live, 1, __ATOMIC_RELAXED);
    return REAL(cudaEventDestroy)(e);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    return fails(&calls.fail_record) ? cudaErrorUnknown : REAL(cudaEventRecord)(e, s);
}

/* ---- a set, and loaders of it */
enum { N = 43, C = 3, H = 12, W = 10, ITEM = C * H * W, BATCH = 8, BATCHES = 6, EPOCHS = 3 }; /* the last batch: 3 */
static uint8_t    image[N][ITEM], label[N];
static dt_device *gpu(void)
{
    is_trainer = 1;
    return dt_cuda(0);
}
static dt_dataset *images(void)
{
    for (int i = 0; i < N; i++) {
        label[i] = (uint8_t)(i % 10);
        for (int k = 0; k < ITEM; k++) image[i][k] = (uint8_t)(i * 37 + k * 3 + 1);
    }
    return dt_arrays(image, N, .x_dtype = DT_U8, .x_shape = DT_SHAPE(C, H, W), .y = label, .y_dtype = DT_U8,
                     .classes = 10);
}
static dt_loader *loader(dt_dataset *s, dt_device *dev, int workers)
{
    return dt_loader_new(s, .batch = BATCH, .shuffle = true, .seed = 5, .workers = workers, .mean = { 0.4, 0.5, 0.6 },
                         .std = { 0.2, 0.3, 0.25 }, .crop = 2, .flip = true, .cutout = 4, .device = dev);
}
/* What a step computes of a batch, long after the call that queued it: copies that kernels make. */
typedef struct seen {
    dt_tensor *x, *y;
    int64_t    n, epoch, index, item[BATCH];
} seen;
static void look(seen *k, const dt_batch *b)
{
    dt_tensor *y = b->x; /* more of them, so that the batch is still read when the next one comes */
    for (int i = 0; i < 3; i++) y = dt_mul(y, dt_sub(b->x, y));
    k->x = dt_keep(dt_clone(b->x));
    k->y = dt_keep(dt_clone(b->y));
    k->n = b->n, k->epoch = b->epoch, k->index = b->index;
    memcpy(k->item, b->item, (size_t)b->n * sizeof *k->item);
}
static int look_at_epoch(dt_loader *in, seen *k)
{
    int n = 0;
    for (dt_batch b; n < BATCHES && dt_loader_next(in, &b); dt_end()) look(&k[n++], &b);
    dt_batch end;
    return !dt_loader_next(in, &end) ? n : -1; /* the end of the epoch */
}
static void forget(seen *k, int n)
{
    for (int i = 0; i < n; i++) {
        dt_free(k[i].x);
        dt_free(k[i].y);
    }
    memset(k, 0, (size_t)n * sizeof *k);
}
static void expect_same(int *utest_result, const seen *k, const seen *want, int n)
{
    for (int i = 0; i < n; i++) {
        EXPECT_TRUE(dt_device_of(k[i].x) == dt_cuda(0) && dt_device_of(k[i].y) == dt_cuda(0));
        EXPECT_SAME_BITS(k[i].x, want[i].x);
        EXPECT_SAME_BITS(k[i].y, want[i].y);
        EXPECT_EQ(want[i].n, k[i].n);
        EXPECT_EQ(want[i].epoch, k[i].epoch);
        EXPECT_EQ(want[i].index, k[i].index);
        EXPECT_EQ(0, memcmp(want[i].item, k[i].item, (size_t)k[i].n * sizeof *k[i].item));
    }
}
/* All epochs of both; the GPU's are looked at when all have been queued. */
static void expect_epochs(int *utest_result, dt_loader *in, dt_loader *cpu)
{
    static seen k[EPOCHS][BATCHES], want[EPOCHS][BATCHES];
    ASSERT_TRUE(in && cpu);
    for (int e = 0; e < EPOCHS; e++) EXPECT_EQ(BATCHES, look_at_epoch(in, k[e]));
    for (int e = 0; e < EPOCHS; e++) EXPECT_EQ(BATCHES, look_at_epoch(cpu, want[e]));
    EXPECT_FALSE(dt_error());
    for (int e = 0; e < EPOCHS; e++) {
        expect_same(utest_result, k[e], want[e], BATCHES);
        forget(k[e], BATCHES);
        forget(want[e], BATCHES);
    }
    dt_loader_free(in);
    dt_loader_free(cpu);
    EXPECT_FALSE(dt_error());
}

/* ==================================================================================================== values */
UTEST(values, are_those_of_the_cpu)
{
    dt_dataset *s = images();
    for (int workers = 0; workers <= 2; workers++)
        expect_epochs(utest_result, loader(s, gpu(), workers), loader(s, NULL, workers));
    dt_dataset_free(s);
}
UTEST(values, are_those_of_the_cpu_whatever_the_prefetch)
{
    dt_dataset *s = images();
    for (int n = 1; n <= 4; n++)
        expect_epochs(utest_result,
                      dt_loader_new(s, .batch = BATCH, .shuffle = true, .workers = 2, .prefetch = n, .device = gpu()),
                      dt_loader_new(s, .batch = BATCH, .shuffle = true));
    dt_dataset_free(s);
}
UTEST(values, are_those_of_the_cpu_from_memory_of_the_caller)
{
    dt_test_budget b = { .left = -1 };
    dt_allocator   a = { dt_test_budget_alloc, dt_test_budget_free, &b };
    dt_dataset    *s = images();
    gpu();
    int64_t pinned = calls.pinned;
    expect_epochs(utest_result, dt_loader_new(s, .batch = BATCH, .workers = 1, .device = gpu(), .buffers = &a),
                  dt_loader_new(s, .batch = BATCH));
    EXPECT_EQ(pinned, calls.pinned);
    EXPECT_GT(b.calls, 0);
    EXPECT_EQ(0, b.live);
    dt_dataset_free(s);
}
UTEST(values, are_those_of_the_cpu_on_a_stream_of_the_callers)
{
    const dt_backend *be = dt_device_backend(gpu());
    void             *own = be->stream_new(gpu());
    dt_dataset       *s = images();
    ASSERT_TRUE(own != NULL);
    void *before = dt_device_set_stream(gpu(), own);
    expect_epochs(utest_result, loader(s, gpu(), 2), loader(s, NULL, 0));
    dt_device_set_stream(gpu(), before);
    EXPECT_EQ(0, be->wait(gpu(), own));
    dt_empty_cache(); /* memory of that stream */
    be->stream_free(gpu(), own);
    dt_dataset_free(s);
}
UTEST(values, are_right_after_a_jump_and_beside_another_loader)
{
    dt_dataset *s = images();
    dt_loader  *in[3] = { loader(s, gpu(), 1), loader(s, NULL, 0), loader(s, gpu(), 2) };
    static seen k[3][10];
    for (int i = 0; i < 10; i++) {
        dt_batch b;
        for (int j = 0; j < 3; j++) {
            if (i == 4) { /* the batch that is on its way to the device is none of the next */
                dt_loader_cursor(in[j])->epoch = 7;
                dt_loader_cursor(in[j])->position = 2 * BATCH;
            }
            while (!dt_loader_next(in[j], &b)) ASSERT_FALSE(dt_error());
            look(&k[j][i], &b);
        }
        dt_end();
    }
    expect_same(utest_result, k[0], k[1], 10);
    expect_same(utest_result, k[2], k[1], 10);
    for (int j = 0; j < 3; j++) {
        forget(k[j], 10);
        dt_loader_free(in[j]);
    }
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

/* ==================================================================================================== time */
UTEST(time, the_host_waits_for_no_copy)
{
    dt_dataset *s = images();
    for (int workers = 1; workers <= 2; workers++) { /* nothing in the loop waits: the trainer runs far ahead */
        dt_loader  *in = loader(s, gpu(), workers);
        static seen k[EPOCHS][BATCHES];
        look_at_epoch(in, k[0]);
        forget(k[0], BATCHES);
        int64_t before = calls.waits, copies = calls.copies;
        for (int e = 0; e < EPOCHS; e++) EXPECT_EQ(BATCHES, look_at_epoch(in, k[e]));
        EXPECT_EQ(before, calls.waits);
        EXPECT_EQ(2 * BATCHES * EPOCHS, calls.copies - copies);
        for (int e = 0; e < EPOCHS; e++) forget(k[e], BATCHES);
        dt_loader_free(in);
    }
    for (int workers = 0; workers <= 2; workers++) { /* it looks at every loss: it waits for that alone */
        dt_loader *in = loader(s, gpu(), workers);
        int64_t    before = 0, steps = 0, others = 0;
        for (int e = 0; e < EPOCHS; e++) {
            for (dt_batch b; dt_loader_next(in, &b); dt_end(), steps++) EXPECT_GT(dt_item(dt_mean(dt_abs(b.x))), 0.1);
            if (e == 0) before = calls.waits, others = calls.others, steps = 0; /* scratch grows in the first one */
        }
        EXPECT_EQ(2 * BATCHES, steps);
        EXPECT_EQ(steps, calls.waits - before);
        if (workers < 2) EXPECT_EQ(others, calls.others); /* nor do workers: the copies were long done */
        dt_loader_free(in);
    }
    dt_dataset_free(s);
}
static int64_t made;
static int     count_items(void *user, const dt_sample *sample, void *x)
{
    (void)user, (void)sample, (void)x;
    one_more(&made);
    return 0;
}
static bool until_made(int64_t n) /* more items than that; false: they do not come */
{
    for (int i = 0; i < 20000 * dt_test_slow(); i++, usleep(1000))
        if (__atomic_load_n(&made, __ATOMIC_RELAXED) > n) return true;
    return false;
}
UTEST(time, a_batch_is_on_its_way_when_the_one_before_is_handed_out)
{
    dt_dataset *s = images();
    made = 0;
    dt_loader *in = dt_loader_new(s, .batch = BATCH, .drop_last = true, .workers = 1, .prefetch = 3,
                                  .transform = count_items, .device = gpu());
    int64_t    before = calls.copies;
    for (int i = 0; i < BATCHES - 1; i++) {
        dt_batch b;
        /* it makes the batch after the next one: so the next one is ready */
        if (i < BATCHES - 3) ASSERT_TRUE(in && until_made((i + 2) * BATCH));
        ASSERT_TRUE(dt_loader_next(in, &b));
        if (i < BATCHES - 3) EXPECT_EQ(2 * (i + 2), calls.copies - before);
        dt_end();
    }
    dt_loader_free(in);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}
UTEST(time, buffers_are_few_and_nothing_is_made_anew)
{
    dt_dataset *s = images();
    gpu();
    int64_t     pinned = calls.pinned;
    dt_loader  *in = loader(s, gpu(), 2);
    static seen k[BATCHES];
    for (int e = 0; e < 2; e++) {
        look_at_epoch(in, k);
        forget(k, BATCHES);
    }
    EXPECT_LE(calls.pinned - pinned, 2 * (4 + 3 + 1)); /* two workers: four batches ahead */
    int64_t segments = calls.segments;
    pinned = calls.pinned;
    for (int e = 0; e < 4; e++) {
        look_at_epoch(in, k);
        forget(k, BATCHES);
    }
    EXPECT_EQ(segments, calls.segments);
    EXPECT_LE(calls.pinned - pinned, 2);
    dt_loader_free(in);
    dt_dataset_free(s);
}
UTEST(time, that_of_a_slow_device_is_not_the_loaders)
{
    dt_dataset *s = images();
    for (int workers = 0; workers < 2; workers++) {
        dt_loader *in = dt_loader_new(s, .batch = BATCH, .workers = workers, .prefetch = 1, .device = gpu());
        char       line[256];
        for (int e = 0; e < EPOCHS; e++)
            for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
                dt_tensor *y = dt_reshape(b.x, DT_SHAPE(-1));
                for (int i = 0; i < 3; i++) y = dt_cat(((dt_tensor *[]){ y, y }), 2, 0);
                for (int i = 0; i < 6; i++) y = dt_tanh(y);
            }
        dt_loader_stats t = dt_loader_get_stats(in);
        EXPECT_LT(t.wait, t.elsewhere);
        EXPECT_GT(dt_loader_report(in, 0, line, sizeof line), 0u);
        if (getenv("DT_TEST_VERBOSE")) printf("    %s\n", line);
        dt_loader_free(in);
    }
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

/* ==================================================================================================== errors */
/* What loaders left behind since: buffers, marks, bytes of tensors. */
typedef struct holdings {
    int64_t pinned, events;
    size_t  live;
} holdings;
static holdings held(void)
{
    holdings h = { calls.pinned_live, calls.events_live, dt_stats().live_bytes };
    return h;
}
static void expect_nothing_left(int *utest_result, holdings before)
{
    dt_end();
    EXPECT_EQ(before.pinned, calls.pinned_live);
    EXPECT_EQ(before.events, calls.events_live);
    EXPECT_EQ(before.live, dt_stats().live_bytes);
}
static int fail_at_20(void *user, const dt_sample *sample, void *x)
{
    (void)user, (void)x;
    return sample->item == 20 ? dt_fail(DT_ERR_STATE, "item 20 is bad") : 0;
}
UTEST(errors, of_workers_come_with_their_batch)
{
    dt_dataset *s = images();
    for (int workers = 0; workers <= 2; workers++) {
        dt_loader *in = dt_loader_new(s, .batch = BATCH, .workers = workers, .transform = fail_at_20, .device = gpu());
        dt_batch   b;
        for (int i = 0; i < 2; i++) ASSERT_TRUE(dt_loader_next(in, &b));
        EXPECT_ERROR(dt_loader_next(in, &b) ? DT_OK : dt_error_code(), "item 20 is bad");
        dt_end();
        dt_loader_free(in);
    }
    dt_dataset_free(s);
}
/* The n-th of such calls fails, alone or with all behind it: the batches before it are right, the first that is not
   there is an error. *batches: how many came. */
static void until_error(int *utest_result, dt_dataset *s, int64_t *fail, int64_t n, bool all, int workers,
                        const char *part, int *batches)
{
    seen       k[BATCHES], want[BATCHES];
    int        came = 0;
    dt_loader *cpu = loader(s, NULL, 0), *in = loader(s, gpu(), workers);
    dt_batch   b;
    calls.all = all;
    *fail = n;
    for (; came < BATCHES && dt_loader_next(in, &b); dt_end()) look(&k[came++], &b);
    *fail = 0;
    if (came < BATCHES) EXPECT_TRUE(dt_error() && strstr(dt_error(), part));
    else EXPECT_FALSE(dt_error());
    dt_error_clear();
    dt_end();
    EXPECT_EQ(BATCHES, look_at_epoch(cpu, want));
    expect_same(utest_result, k, want, came);
    forget(k, came);
    forget(want, BATCHES);
    dt_loader_free(in);
    dt_loader_free(cpu);
    *batches = came;
}
UTEST(errors, of_copies_come_with_their_batch)
{
    dt_dataset *s = images();
    gpu();
    dt_end();
    holdings before = held();
    for (int workers = 0; workers <= 2; workers++)
        for (int n = 1; n <= 2 * BATCHES; n++) {
            int came;
            until_error(utest_result, s, &calls.fail_copy, n, true, workers, "cudaMemcpyAsync", &came);
            EXPECT_EQ((n - 1) / 2, came);
            until_error(utest_result, s, &calls.fail_copy, n, false, workers, "cudaMemcpyAsync", &came);
            /* one that was tried ahead is tried again when it is due */
            EXPECT_TRUE(came == (n - 1) / 2 || (workers && came == BATCHES));
        }
    expect_nothing_left(utest_result, before);
    dt_dataset_free(s);
}
UTEST(errors, of_marks_and_of_pinned_memory_too)
{
    dt_dataset *s = images();
    gpu();
    dt_end();
    holdings before = held();
    for (int workers = 0; workers <= 1; workers++) {
        int came;
        for (int n = 1; n <= 3 * BATCHES; n++) /* two orders and a mark a batch */
            until_error(utest_result, s, &calls.fail_record, n, true, workers, "cudaEventRecord", &came);
        until_error(utest_result, s, &calls.fail_record, 1, true, workers, "cudaEventRecord", &came);
        EXPECT_EQ(0, came);
    }
    calls.all = true;
    for (int n = 1; n < 3; n++) {
        calls.fail_pinned = n;
        dt_loader *in = loader(s, gpu(), 1);
        dt_batch   b;
        EXPECT_ERROR(dt_loader_next(in, &b) ? DT_OK : dt_error_code(), "out of pinned memory for a batch of");
        calls.fail_pinned = 0;
        dt_loader_free(in);
    }
    expect_nothing_left(utest_result, before);
    dt_dataset_free(s);
}
UTEST(errors, a_copy_that_nobody_waits_for_comes_before_what_takes_its_memory)
{
    dt_dataset *s = images();
    made = 0;
    dt_loader *in =
        dt_loader_new(s, .batch = BATCH, .workers = 1, .prefetch = 3, .transform = count_items, .device = gpu());
    int64_t    before = calls.copies;
    dt_tensor *t[4];
    dt_batch   b;
    ASSERT_TRUE(in && until_made(2 * BATCH)); /* the second batch is ready */
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(4, calls.copies - before); /* and on its way */
    dt_loader_cursor(in)->position = -5;
    EXPECT_ERROR(dt_loader_next(in, &b) ? DT_OK : dt_error_code(), "position is -5");
    dt_end();
    for (int i = 0; i < 4; i++) t[i] = dt_keep(dt_full(3, DT_SHAPE(BATCH, C, H, W), .device = gpu()));
    for (int i = 0; i < 4; i++) EXPECT_EQ(3.0, dt_item(dt_mean(t[i])));
    EXPECT_EQ(0, dt_device_backend(gpu())->wait(gpu(), dt_cuda_copy_stream(gpu())));
    for (int i = 0; i < 4; i++) {
        EXPECT_EQ(3.0, dt_item(dt_mean(t[i])));
        dt_free(t[i]);
    }
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}
UTEST(errors, a_loader_may_go_at_any_time)
{
    dt_dataset *s = images();
    gpu();
    dt_end();
    holdings before = held();
    for (int workers = 0; workers <= 2; workers++)
        for (int n = 0; n < BATCHES; n++) {
            dt_loader *in = loader(s, gpu(), workers);
            dt_batch   b;
            seen       k;
            for (int i = 0; i < n; i++, dt_end()) EXPECT_TRUE(dt_loader_next(in, &b));
            ASSERT_TRUE(dt_loader_next(in, &b));
            dt_loader_free(in);
            k.x = dt_keep(dt_clone(b.x)); /* what was handed out stays */
            k.y = dt_keep(dt_clone(b.y));
            dt_end();
            EXPECT_EQ(0.0, dt_item(dt_sum(dt_ne(k.x, k.x))));
            forget(&k, 1);
            dt_end();
        }
    expect_nothing_left(utest_result, before);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}
