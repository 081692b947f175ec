/* dt_cpu.h - v0.2.0 - the CPU backend: thread pool, SIMD kernels chosen at run time, GEMM, convolution */
/*
DO THIS

    Nothing: dt.h includes this file for its implementation. It has no API of its own beyond dt.h's dt_cpu(),
    dt_set_num_threads(), dt_get_num_threads() and dt_cpu_isa().

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, no file of the program
    defines DT_IMPLEMENTATION before its include: define it in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_cpu.h"
    #include <stdio.h>

    int main(void)
    {
        dt_set_num_threads(2);
        dt_tensor *a = dt_ones(DT_SHAPE(300, 200)), *b = dt_full(0.5, DT_SHAPE(200, 100));
        double     sum = dt_item(dt_sum(dt_matmul(a, b)));
        printf("%s, %d threads: %.0f\n", dt_cpu_isa(), dt_get_num_threads(), sum);
        dt_end();
        return dt_check("cpu") || sum != 300.0 * 100.0 * 100.0;
    }

CONTENTS

    >>inside         the pool's functions for the kernels and dt_dist.h; the tables of kernels
    >>pool           the thread pool
    >>instances      the kernels, compiled for each instruction set
    >>cpu            the device
    >>vectors        vector types, loads and stores, halves by the row
    >>vmath          exp, log, tanh, erf, pow ... on vectors
    >>rows           one row kernel for each elementwise function
    >>tiles          pieces of strided operands as contiguous floats or ints
    >>engine         walking strided operands; unary, binary, where, reduce
    >>copy           copies, casts, transposes
    >>reduce         sums, means, extremes, variances over any dimensions
    >>gemm           the matrix product and its micro-kernels
    >>conv           convolution and its gradients, directly
    >>winograd       3x3 convolutions of many channels, with fewer multiplications (AVX2 only)
    >>rowio          rows of any float dtype
    >>pooling        max and average pooling
    >>batchnorm      batch norm, with relu and residual
    >>softmax        softmax and log_softmax
    >>layernorm      layer norm and rms norm
    >>indexing       embedding and gather
    >>ordering       scan, sort, scatter
    >>resize         nearest and bilinear interpolation of images
    >>dropout        dropout
    >>crossentropy   cross entropy and nll
    >>attention      scaled dot-product attention
    >>optim          updates of the optimisers, norms, unscaling
    >>recurrent      a time step of RNN, LSTM and GRU
    >>table          the list of kernels

MACROS

    DT_NO_AVX2       compile no AVX2 kernels: half the compile time, several times slower
    DT_NO_PORTABLE   compile no portable kernels (x86-64 only): half the compile time. On a CPU without AVX2, FMA and
                     F16C, or with DT_CPU_ISA=portable, dt_cpu() and every kernel then fail.
    DT_CPU_PARTS     DT_CPU_IMPLEMENTATION leaves the AVX2 kernels to another object file, so that two processes can
                     compile in parallel: cc -DDT_CPU_PARTS -DDT_CPU_IMPLEMENTATION ... and
                     cc -DDT_CPU_AVX2_IMPLEMENTATION ...
    DT_CPU_AVX2_IMPLEMENTATION   the AVX2 kernels alone. Not with DT_STATIC, which needs everything in one file.

HOW IT IS BUILT

    Every kernel is written once, over vectors of DT__W floats (GNU vector_size types), and compiled once for each
    instruction set: this file includes itself with DT__ISA defined. DT__K(name) is the name with the instruction set
    in it. The instances: portable (4 lanes, any CPU) and avx2 (8 lanes, AVX2 + FMA + F16C), chosen by cpuid when the
    device is first used, or forced with DT_CPU_ISA. On a CPU with AVX-512 the avx2 instance uses wider micro-kernels for
    matrix products and convolutions (DT_CPU_ISA=avx2: not); their results have the same bits.

    Images are (n, h, w, c) in memory between convolution, pooling and batch norm (DT_LAYOUT_NHWC), so that every inner
    loop runs over channels and convolution reads its input in place: no im2col.

    Work is cut into tasks in a way that depends on shapes alone, and threads take tasks. So results do not depend on
    the number of threads. Fused multiply-adds are written as fma() calls, since compilers contract a*b + c differently
    in different language modes.

LICENCE

    MIT, see LICENSE.
*/
#ifndef DT__ISA

#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_CPU_IMPLEMENTATION)
#define DT_CPU_IMPLEMENTATION
#endif
#include "dt.h"

#ifndef DT_CPU_H_INCLUDED
#define DT_CPU_H_INCLUDED
#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_cpu.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif
#endif

#if defined(DT__WANT_INSIDE) && !defined(DT__CPU_INSIDE)
#define DT__CPU_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   The pool's functions for the kernels and dt_dist.h, and the tables of kernels of each instruction set. */
#ifdef __cplusplus
extern "C" {
#endif
/* 1: kernels that this thread calls run on this thread alone; 0: on the pool; negative: no change. Returns the previous
   setting. */
DT__INSIDE int dt__pool_alone(int on);

typedef void (*dt__task_fn)(void *ctx, int64_t task, int worker);
DT__INSIDE int  dt__pool_size(void); /* workers, the caller included */
DT__INSIDE void dt__pool_run(int64_t ntasks, dt__task_fn fn, void *ctx);
/* The number of tasks, and items per task, if n items of 'cost' work each are cut into tasks of about 'grain' work. It
   depends on the shape alone. */
static inline int64_t dt__cut(int64_t n, int64_t cost, int64_t grain, int64_t *per_task)
{
    int64_t per = cost >= grain ? 1 : grain / (cost > 0 ? cost : 1);
    if (per < 1) per = 1;
    if (per > n) per = n > 0 ? n : 1;
    *per_task = per;
    return (n + per - 1) / per;
}

/* AVX-512, unless DT_CPU_ISA names less */
static inline bool dt__cpu_has_avx512(void)
{
#if defined(__x86_64__)
    const char *want = getenv("DT_CPU_ISA");
    if (want && (!strcmp(want, "avx2") || !strcmp(want, "portable"))) return false;
    return __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

#if defined(DT_NO_PORTABLE) && defined(DT_NO_AVX2)
#error "dt_cpu.h: DT_NO_PORTABLE and DT_NO_AVX2 together leave no kernels; define one of them"
#endif
#if defined(DT_NO_PORTABLE) && !defined(__x86_64__)
#error "dt_cpu.h: DT_NO_PORTABLE is for x86-64; other CPUs have only the portable kernels"
#endif
#if defined(__x86_64__) && !defined(DT_NO_AVX2)
#define DT__BUILT_AVX2
#endif
#ifndef DT_STATIC
DT__INSIDE const dt_kernel dt__portable_table[DT_K_COUNT], dt__avx2_table[DT_K_COUNT];
#endif
#ifdef __cplusplus
}
#endif
#endif /* DT__CPU_INSIDE */

#if (defined(DT_CPU_IMPLEMENTATION) && !defined(DT__CPU_IMPLEMENTED)) || \
    (defined(DT_CPU_AVX2_IMPLEMENTATION) && !defined(DT__CPU_AVX2_IMPLEMENTED))
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(DT__BUILT_AVX2) && (defined(DT_CPU_AVX2_IMPLEMENTATION) || !defined(DT_CPU_PARTS))
#define DT__WANT_AVX2
#include "dt_base.h"
#endif
#ifdef DT_USE_CBLAS
#include <cblas.h>
#endif
#if defined(DT_STATIC) && (defined(DT_CPU_PARTS) || defined(DT_CPU_AVX2_IMPLEMENTATION))
#error "dt_cpu.h: with DT_STATIC all kernels are in one file: leave DT_CPU_PARTS and DT_CPU_AVX2_IMPLEMENTATION out"
#endif
#if defined(DT_CPU_AVX2_IMPLEMENTATION) && defined(DT_NO_AVX2)
#error "dt_cpu.h: DT_CPU_AVX2_IMPLEMENTATION with DT_NO_AVX2: there is nothing to compile"
#endif
#endif

#if defined(DT_CPU_IMPLEMENTATION) && !defined(DT__CPU_IMPLEMENTED)
#define DT__CPU_IMPLEMENTED

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#if defined(DT_STATIC) && !defined(DT__CORE_IMPLEMENTED)
#error "dt_cpu.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_CPU_IMPLEMENTATION"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(CPU);
DT__NEEDS(CPU, CORE);
#if defined(DT_CPU_PARTS) && defined(DT__BUILT_AVX2)
DT__NEEDS(CPU, CPU_AVX2);
#endif

/* ==================================================================================================== >>pool
   dt__pool_run(n, fn, ctx) calls fn(ctx, task, worker) once for each task and returns when all have finished. Any worker
   may take any task, so two tasks must not write the same memory, and results must not depend on the number of workers.

   Any thread may call dt__pool_run(). It takes the mutex 'run' for the length of the job. If another thread holds it, or
   the caller is inside a job, the caller does all tasks itself. 'sleep' protects stop and the condition variable; the
   other fields of a job are written by the owner of 'run' before it opens the job.

   States of a worker:
     spinning   waits for a new epoch, DT__POOL_SPINS times
     sleeping   waits on the condition; counted in 'sleepers', so that a job knows whether to wake anyone
     inside     counted in 'inside'; it takes tasks only if the job is still open
   The owner closes the job (open = 0) when no task is left, then waits until inside == 0. A worker that wakes up late
   finds the job closed and goes back to spinning: a job never waits for a sleeping worker. */
#define DT__POOL_MAX 256
#define DT__POOL_SPINS 4000 /* looks for a new job before a worker sleeps */
#define DT__POOL_PAUSES 2000 /* looks at 'inside' before the caller yields its core */

typedef struct dt__pool {
    pthread_mutex_t run;   /* held by the thread whose job runs */
    pthread_mutex_t sleep; /* protects stop and the condition */
    pthread_cond_t  wake;
    pthread_t       thread[DT__POOL_MAX];
    int             size;    /* workers, the caller included; 0: not decided yet */
    int             started; /* threads that exist */
    int             stop;    /* the workers shall end */
    dt__task_fn     fn;
    void           *ctx;
    int64_t         ntasks;
    int             open;     /* workers may join the job */
    int             inside;   /* workers that may be running tasks */
    int             sleepers; /* workers that wait on the condition */
    uint32_t        epoch;    /* incremented for each job, and to stop */
    int             cpu;      /* the core of the job's caller; -1 if unknown */
    char            apart[64]; /* 'next' in a cache line of its own */
    int64_t         next; /* the next task to take */
} dt__pool;

static dt__pool dt__the_pool = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
                                 { 0 }, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, -1, { 0 }, 0 };
static __thread int dt__in_job;
DT__INSIDE int      dt__pool_alone(int on)
{
    int before = dt__in_job;
    if (on >= 0) dt__in_job = on;
    return before;
}

static inline void dt__pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static int dt__pool_default_size(void)
{
    const char *s = getenv("DT_NUM_THREADS");
    long        n = s ? strtol(s, NULL, 10) : 0;
    if (n <= 0) {
        unsigned long mask[128] = { 0 };
        long          len = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
        n = 0;
        for (long i = 0; i < len / (long)sizeof mask[0]; i++) n += __builtin_popcountl(mask[i]);
        if (n <= 0) n = sysconf(_SC_NPROCESSORS_ONLN);
        int ranks = dt__launcher_number(DT__LAUNCHER_LOCAL_SIZE);
        if (ranks > 1) n /= ranks;
    }
    return n < 1 ? 1 : n > DT__POOL_MAX ? DT__POOL_MAX : (int)n;
}

#if defined(__linux__) && !defined(__USE_GNU)
extern int sched_getcpu(void);
#endif
static inline int dt__pool_cpu(void)
{
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}
/* A scheduler that balances lazily may leave a worker on the caller's core for a long time, and the two then share it.
   The worker moves itself away: it excludes the core from its affinity mask, which migrates it, and restores the mask. */
static void dt__pool_step_off(int cpu)
{
#ifdef __linux__
    unsigned long mask[128] = { 0 }, other[128];
    long          len = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask), bits = 8 * (long)sizeof mask[0];
    if (len <= 0 || cpu < 0 || cpu >= 8 * len) return;
    memcpy(other, mask, sizeof mask);
    other[cpu / bits] &= ~(1ul << (cpu % bits));
    for (long i = 0; i < len / (long)sizeof mask[0]; i++)
        if (other[i]) {
            if (syscall(SYS_sched_setaffinity, 0, len, other) == 0) syscall(SYS_sched_setaffinity, 0, len, mask);
            return;
        }
#else
    (void)cpu;
#endif
}

static void dt__pool_tasks(dt__pool *p, int worker)
{
    int64_t t;
    while ((t = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->ntasks) p->fn(p->ctx, t, worker);
}

static void *dt__pool_worker(void *arg)
{
    dt__pool *p = &dt__the_pool;
    int       worker = (int)(intptr_t)arg;
    uint32_t  seen = 0;
    dt__in_job = 1;
    for (;;) {
        for (int spin = 0; spin < DT__POOL_SPINS && __atomic_load_n(&p->epoch, __ATOMIC_ACQUIRE) == seen; spin++)
            dt__pause();
        if (__atomic_load_n(&p->epoch, __ATOMIC_ACQUIRE) == seen) {
            pthread_mutex_lock(&p->sleep);
            __atomic_add_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
            while (__atomic_load_n(&p->epoch, __ATOMIC_SEQ_CST) == seen && !p->stop) pthread_cond_wait(&p->wake,
                    &p->sleep);
            __atomic_sub_fetch(&p->sleepers, 1, __ATOMIC_SEQ_CST);
            int stop = p->stop;
            pthread_mutex_unlock(&p->sleep);
            if (stop) return NULL;
        }
        seen = __atomic_load_n(&p->epoch, __ATOMIC_ACQUIRE);
        __atomic_add_fetch(&p->inside, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&p->open, __ATOMIC_SEQ_CST)) {
            int cpu = p->cpu;
            if (cpu >= 0 && cpu == dt__pool_cpu()) dt__pool_step_off(cpu);
            dt__pool_tasks(p, worker);
        }
        __atomic_sub_fetch(&p->inside, 1, __ATOMIC_SEQ_CST);
    }
}

static void dt__pool_stop(dt__pool *p) /* with p->run held */
{
    pthread_mutex_lock(&p->sleep);
    p->stop = 1;
    __atomic_add_fetch(&p->epoch, 1, __ATOMIC_SEQ_CST);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->sleep);
    for (int i = 0; i < p->started; i++) pthread_join(p->thread[i], NULL);
    p->stop = 0;
    p->started = 0;
}

static void dt__pool_child(void) /* in the child of a fork: the threads exist only in the parent */
{
    dt__pool *p = &dt__the_pool;
    pthread_mutex_init(&p->run, NULL);
    pthread_mutex_init(&p->sleep, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->started = p->open = p->inside = p->sleepers = 0;
    dt__in_job = 0;
}
static void dt__pool_atfork(void) { pthread_atfork(NULL, NULL, dt__pool_child); }

DT__INSIDE int dt__pool_size(void)
{
    int n = __atomic_load_n(&dt__the_pool.size, __ATOMIC_RELAXED);
    if (n == 0) {
        n = dt__pool_default_size();
        __atomic_store_n(&dt__the_pool.size, n, __ATOMIC_RELAXED);
    }
    return n;
}

static void dt__pool_start(dt__pool *p) /* with p->run held; fewer threads than asked for is not an error */
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dt__pool_atfork);
    int want = dt__pool_size() - 1;
    if (p->started > want) dt__pool_stop(p);
    while (p->started < want &&
           pthread_create(&p->thread[p->started], NULL, dt__pool_worker, (void *)(intptr_t)(p->started + 1)) == 0)
        p->started++;
}

DT__INSIDE void dt__pool_run(int64_t ntasks, dt__task_fn fn, void *ctx)
{
    dt__pool *p = &dt__the_pool;
    if (ntasks <= 1 || dt__in_job || dt__pool_size() == 1 || pthread_mutex_trylock(&p->run) != 0) {
        for (int64_t t = 0; t < ntasks; t++) fn(ctx, t, 0);
        return;
    }
    if (p->started != dt__pool_size() - 1) dt__pool_start(p);
    dt__in_job = 1;
    p->fn = fn;
    p->ctx = ctx;
    p->ntasks = ntasks;
    p->cpu = dt__pool_cpu();
    __atomic_store_n(&p->next, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&p->open, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&p->epoch, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&p->sleepers, __ATOMIC_SEQ_CST) > 0) {
        pthread_mutex_lock(&p->sleep);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->sleep);
    }
    dt__pool_tasks(p, 0);
    __atomic_store_n(&p->open, 0, __ATOMIC_SEQ_CST);
    for (int spin = 0; __atomic_load_n(&p->inside, __ATOMIC_SEQ_CST) != 0; spin++) {
        if (spin < DT__POOL_PAUSES)
            dt__pause();
        else
            sched_yield(); /* the worker we wait for may need this core */
    }
    dt__in_job = 0;
    pthread_mutex_unlock(&p->run);
}

DT_API void dt_set_num_threads(int n)
{
    dt__pool *p = &dt__the_pool;
    if (n < 0) n = 0;
    if (n > DT__POOL_MAX) n = DT__POOL_MAX;
    pthread_mutex_lock(&p->run);
    __atomic_store_n(&p->size, n ? n : dt__pool_default_size(), __ATOMIC_RELAXED);
    if (p->started > p->size - 1) dt__pool_stop(p);
    pthread_mutex_unlock(&p->run);
}
DT_API int dt_get_num_threads(void) { return dt__pool_size(); }

#ifdef __cplusplus
}
#endif
#endif /* DT_CPU_IMPLEMENTATION: the pool */

/* ==================================================================================================== >>instances
   The kernels below, once for each instruction set. */
#if (defined(DT_CPU_IMPLEMENTATION) && !defined(DT__CPU_INSTANCES)) || \
    (defined(DT_CPU_AVX2_IMPLEMENTATION) && !defined(DT__CPU_AVX2_IMPLEMENTED))
#ifdef __cplusplus
extern "C" {
#endif
#ifdef DT_STATIC
#define DT__TABLE static
#else
#define DT__TABLE
#endif
#define DT__PASTE3_(a, b, c) a##b##c
#define DT__PASTE3(a, b, c) DT__PASTE3_(a, b, c)
#define DT__K(name) DT__PASTE3(dt__, DT__ISA, _##name)

#if defined(DT_CPU_IMPLEMENTATION) && !defined(DT__CPU_INSTANCES) && !defined(DT_NO_PORTABLE)
#ifdef DT__BUILT_AVX2
DT__FAIR_BEGIN /* only a fallback beside AVX2: compile time matters more than speed */
#endif
#define DT__ISA portable
#define DT__W 4
#define DT__HAS_AVX2 0
#include "dt_cpu.h"
#ifdef DT__BUILT_AVX2
DT__FAIR_END
#endif
#endif

#if defined(DT__BUILT_AVX2) && !defined(DT__CPU_AVX2_IMPLEMENTED) && \
    (defined(DT_CPU_AVX2_IMPLEMENTATION) || !defined(DT_CPU_PARTS))
#define DT__CPU_AVX2_IMPLEMENTED
#ifdef DT_CPU_AVX2_IMPLEMENTATION
DT__PRESENT(CPU_AVX2);
DT__NEEDS(CPU_AVX2, CPU);
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define DT__ISA avx2
#define DT__W 8
#define DT__HAS_AVX2 1
#include "dt_cpu.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#ifdef DT_CPU_IMPLEMENTATION
#define DT__CPU_INSTANCES
#endif
#ifdef __cplusplus
}
#endif
#endif

#if defined(DT_CPU_IMPLEMENTATION) && !defined(DT__CPU_DEVICE)
#define DT__CPU_DEVICE
#ifdef __cplusplus
extern "C" {
#endif
/* ==================================================================================================== >>cpu
   The device. Its memory is host memory. It has one stream: kernels run when they are called. */
/* Large blocks are aligned to a huge page (2 MiB) and the system is asked for huge pages: fewer TLB misses and fewer page
   faults. The padding before and behind a block is never touched, so it costs address space, not memory. Not done with a
   user's allocator, for which padding may cost memory. */
#define DT__HUGE ((size_t)2 << 20)
#ifdef MADV_HUGEPAGE
static bool dt__cpu_huge(size_t nbytes) { return nbytes >= DT__HUGE && dt__alloc_is_ours(); }
static void dt__cpu_advise(void *at, size_t nbytes) /* only a hint: errors are ignored */
{
    madvise(at, nbytes & ~(DT__HUGE - 1), MADV_HUGEPAGE);
}
#else
static bool dt__cpu_huge(size_t nbytes) { return (void)nbytes, false; }
static void dt__cpu_advise(void *at, size_t nbytes) { (void)at, (void)nbytes; }
#endif
static void *dt__cpu_alloc(dt_device *dev, size_t nbytes)
{
    (void)dev;
    size_t align = dt__cpu_huge(nbytes) ? DT__HUGE : 64;
    char  *p = (char *)dt_mem_alloc(nbytes + 64 + align);
    if (!p) return NULL;
    char *at = (char *)(((uintptr_t)p + 64 + align - 1) & ~(uintptr_t)(align - 1));
    memcpy(at - sizeof p, &p, sizeof p);
    if (align == DT__HUGE) dt__cpu_advise(at, nbytes);
    return at;
}
static void dt__cpu_free(dt_device *dev, void *ptr, size_t nbytes)
{
    void *p;
    (void)dev;
    memcpy(&p, (char *)ptr - sizeof p, sizeof p);
    dt_mem_free(p, nbytes + 64 + (dt__cpu_huge(nbytes) ? DT__HUGE : 64));
}
#undef DT__HUGE
static int dt__cpu_upload(dt_device *dev, void *stream, void *dst, const void *host, size_t nbytes)
{
    (void)dev, (void)stream;
    memcpy(dst, host, nbytes);
    return 0;
}
static int dt__cpu_download(dt_device *dev, void *stream, void *host, const void *src, size_t nbytes)
{
    (void)dev, (void)stream;
    memcpy(host, src, nbytes);
    return 0;
}
static int dt__cpu_wait(dt_device *dev, void *stream)
{
    (void)dev, (void)stream;
    return 0;
}
static int dt__cpu_order(dt_device *dev, void *after, void *before)
{
    (void)dev, (void)after, (void)before;
    return 0;
}
static int dt__cpu_extended(dt_device *dev, int kernel)
{
    (void)dev;
    return kernel == DT_K_batch_norm || kernel == DT_K_layer_norm;
}
static int dt__cpu_image_layout(dt_device *dev, int kernel, int dtype)
{
    (void)dev, (void)kernel, (void)dtype;
    return DT_LAYOUT_NHWC;
}

static dt_backend     dt__cpu_backend;
static dt_device      dt__cpu_device;
static const char    *dt__cpu_isa_name;
static pthread_once_t dt__cpu_once = PTHREAD_ONCE_INIT;

static int dt__cpu_has_avx2(void)
{
#ifdef DT__BUILT_AVX2
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u); /* F16C */
#else
    return 0;
#endif
}
#ifdef DT_NO_PORTABLE
static const char *dt__cpu_lacks; /* why this build has no kernels for this CPU; NULL if it has */
static int         dt__cpu_fail(dt_device *dev, const dt_call *c) /* every kernel of a device without kernels */
{
    (void)dev, (void)c;
    return dt_fail(DT_ERR_DEVICE, "dt_cpu: %s were left out by DT_NO_PORTABLE; compile without it", dt__cpu_lacks);
}
#endif
static void dt__cpu_init(void)
{
    const char *want = getenv("DT_CPU_ISA");
    dt_backend *be = &dt__cpu_backend;
    int              portable = want && !strcmp(want, "portable");
    const dt_kernel *table = NULL;
#ifndef DT_NO_PORTABLE
    table = dt__portable_table;
    dt__cpu_isa_name = "portable";
#else
    dt__cpu_isa_name = "none";
    if (portable) dt__cpu_lacks = "DT_CPU_ISA=portable asks for the portable kernels, which";
    else if (!dt__cpu_has_avx2()) dt__cpu_lacks = "this CPU lacks AVX2, FMA or F16C, and the portable kernels";
#endif
#ifdef DT__BUILT_AVX2
    if (dt__cpu_has_avx2() && !portable) {
        table = dt__avx2_table;
        dt__cpu_isa_name = dt__cpu_has_avx512() ? "avx512" : "avx2";
    }
#endif
    if (table && want && *want && strcmp(want, dt__cpu_isa_name)) {
        char text[160];
        snprintf(text, sizeof text,
                 "DT_CPU_ISA=%.40s is not supported by this CPU or build; using %s (known: portable, avx2, avx512)", want, dt__cpu_isa_name);
        dt__log(DT_LOG_WARN, text);
    }
#ifndef __OPTIMIZE__
    dt__log(DT_LOG_WARN, "the CPU kernels were compiled without optimisation and are about ten times slower; compile dt's "
            "implementation with -O2 (nvcc, too)");
#endif
    be->name = "cpu";
    be->alloc = dt__cpu_alloc;
    be->free = dt__cpu_free;
    be->upload = dt__cpu_upload;
    be->download = dt__cpu_download;
    be->wait = dt__cpu_wait;
    be->order = dt__cpu_order;
    be->image_layout = dt__cpu_image_layout;
    be->extended = dt__cpu_extended;
#ifdef DT_NO_PORTABLE
    for (int i = 0; i < DT_K_COUNT; i++) be->kernel[i] = dt__cpu_fail;
#endif
    if (table) memcpy(be->kernel, table, sizeof be->kernel);
    (void)dt__cpu_has_avx2, (void)portable;
    dt__device_init(&dt__cpu_device, be, -1, NULL);
}
DT_API dt_device *dt_cpu(void)
{
    pthread_once(&dt__cpu_once, dt__cpu_init);
#ifdef DT_NO_PORTABLE
    if (dt__cpu_lacks) dt__cpu_fail(NULL, NULL);
#endif
    return &dt__cpu_device;
}
DT_API const char *dt_cpu_isa(void)
{
    dt_cpu();
    return dt__cpu_isa_name;
}
#ifdef __cplusplus
}
#endif
#endif /* DT_CPU_IMPLEMENTATION */

#else /* DT__ISA: the kernels, included by >>instances above */

/* ==================================================================================================== >>vectors
   Included once for each instruction set with DT__ISA (a name), DT__W (lanes of f32: 8 with AVX2, else 4) and
   DT__HAS_AVX2 (0 or 1). */
typedef float    DT__K(vf_t) __attribute__((vector_size(4 * DT__W)));
typedef int32_t  DT__K(vi_t) __attribute__((vector_size(4 * DT__W)));
typedef uint32_t DT__K(vu_t) __attribute__((vector_size(4 * DT__W)));
typedef float    DT__K(vfu_t) __attribute__((vector_size(4 * DT__W), aligned(4), may_alias));
typedef int32_t  DT__K(viu_t) __attribute__((vector_size(4 * DT__W), aligned(4), may_alias));
#define dt__vf DT__K(vf_t)
#define dt__vi DT__K(vi_t)
#define dt__vu DT__K(vu_t)

#define DT__INLINE static inline __attribute__((always_inline, unused))
#define DT__CALLED static __attribute__((noinline, unused)) /* long or rarely used: not inlined */
#if DT__HAS_AVX2
#define DT__FAST DT__INLINE
#else
#define DT__FAST DT__CALLED /* the portable kernels are a fallback: small code rather than fast code */
#endif
DT__INLINE dt__vf DT__K(ld)(const float *p) { return (dt__vf) * (const DT__K(vfu_t) *)p; }
DT__INLINE void   DT__K(st)(float *p, dt__vf v) { *(DT__K(vfu_t) *)p = (DT__K(vfu_t))v; }
DT__INLINE dt__vf DT__K(set1)(float x)
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_set1_ps(x);
#else
    dt__vf v = { x, x, x, x };
    return v;
#endif
}
DT__INLINE dt__vi DT__K(set1i)(int32_t x)
{
#if DT__HAS_AVX2
    return (dt__vi)_mm256_set1_epi32(x);
#else
    dt__vi v = { x, x, x, x };
    return v;
#endif
}
DT__INLINE dt__vf DT__K(zero)(void) { return DT__K(set1)(0.0f); }
/* a*b + c, with one rounding if the instruction set has FMA, otherwise two: the same bits with every compiler */
DT__INLINE dt__vf DT__K(fma)(dt__vf a, dt__vf b, dt__vf c)
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FP_FAST_FMAF)
    dt__vf r = { 0 };
    for (int i = 0; i < DT__W; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}
#if DT__HAS_AVX2
DT__INLINE dt__vf DT__K(sel)(dt__vi mask, dt__vf a, dt__vf b) /* mask ? a : b, lane masks of all ones or zeros */
{
    return (dt__vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
}
/* b if either is NaN */
DT__INLINE dt__vf DT__K(vmax)(dt__vf a, dt__vf b) { return (dt__vf)_mm256_max_ps((__m256)a, (__m256)b); }
DT__INLINE dt__vf DT__K(vmin)(dt__vf a, dt__vf b) { return (dt__vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
DT__INLINE dt__vf DT__K(sel)(dt__vi mask, dt__vf a, dt__vf b)
{
    return (dt__vf)(((dt__vi)a & mask) | ((dt__vi)b & ~mask));
}
DT__INLINE dt__vf DT__K(vmax)(dt__vf a, dt__vf b) { return DT__K(sel)((dt__vi)(a > b), a, b); }
DT__INLINE dt__vf DT__K(vmin)(dt__vf a, dt__vf b) { return DT__K(sel)((dt__vi)(a < b), a, b); }
#endif
DT__INLINE dt__vf DT__K(vsqrt)(dt__vf a)
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_sqrt_ps((__m256)a);
#else
    dt__vf r = { 0 };
    for (int i = 0; i < DT__W; i++) r[i] = sqrtf(a[i]);
    return r;
#endif
}
DT__INLINE dt__vf DT__K(tofloat)(dt__vi a)
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_cvtepi32_ps((__m256i)a);
#else
    dt__vf r = { 0 };
    for (int i = 0; i < DT__W; i++) r[i] = (float)a[i];
    return r;
#endif
}
DT__INLINE float DT__K(hsum)(dt__vf v) /* a fixed tree */
{
#if DT__HAS_AVX2
    __m128 h = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
#else
    float t[DT__W];
    DT__K(st)(t, v);
    for (int s = DT__W / 2; s > 0; s /= 2)
        for (int i = 0; i < s; i++) t[i] += t[i + s];
    return t[0];
#endif
}

/* Loads and stores of the first n elements of a vector; n may be below 0 or above DT__W. */
DT__INLINE dt__vi DT__K(lanes)(int64_t n) /* all ones in the first n lanes */
{
    static const int32_t on[2 * DT__W] = {
#if DT__W == 8
        -1, -1, -1, -1,
#endif
        -1, -1, -1, -1
    };
    return (dt__vi)*(const DT__K(viu_t) *)(on + DT__W - (n < 0 ? 0 : n > DT__W ? DT__W : n));
}
DT__FAST dt__vf DT__K(ld_some)(const float *p, int64_t n) /* the other lanes are 0 */
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_maskload_ps(p, (__m256i)DT__K(lanes)(n));
#else
    float t[DT__W];
    for (int i = 0; i < DT__W; i++) t[i] = i < n ? p[i] : 0.0f;
    return DT__K(ld)(t);
#endif
}
DT__FAST void DT__K(st_some)(float *p, dt__vf v, int64_t n)
{
#if DT__HAS_AVX2
    _mm256_maskstore_ps(p, (__m256i)DT__K(lanes)(n), (__m256)v);
#else
    float t[DT__W];
    DT__K(st)(t, v);
    for (int i = 0; i < DT__W && i < n; i++) p[i] = t[i];
#endif
}
#if DT__HAS_AVX2
/* d[i][j] = s[j][i], 8 x 8 elements of 4 bytes; lanes j >= n repeat lane 0. scaled: times k. Rows of d are written in
   order and may overlap. */
DT__INLINE void DT__K(turn8)(float *d, int64_t ds, const float *s, int64_t ss, int n, int scaled, __m256 k)
{
#define DT__ROW(i) __m256 r##i = _mm256_loadu_ps(s + (i < n ? i : 0) * ss)
    DT__ROW(0); DT__ROW(1); DT__ROW(2); DT__ROW(3); DT__ROW(4); DT__ROW(5); DT__ROW(6); DT__ROW(7);
#undef DT__ROW
    __m256 t0 = _mm256_unpacklo_ps(r0, r1), t1 = _mm256_unpackhi_ps(r0, r1), t2 = _mm256_unpacklo_ps(r2, r3);
    __m256 t3 = _mm256_unpackhi_ps(r2, r3), t4 = _mm256_unpacklo_ps(r4, r5), t5 = _mm256_unpackhi_ps(r4, r5);
    __m256 t6 = _mm256_unpacklo_ps(r6, r7), t7 = _mm256_unpackhi_ps(r6, r7);
    r0 = _mm256_shuffle_ps(t0, t2, 0x44), r1 = _mm256_shuffle_ps(t0, t2, 0xee);
    r2 = _mm256_shuffle_ps(t1, t3, 0x44), r3 = _mm256_shuffle_ps(t1, t3, 0xee);
    r4 = _mm256_shuffle_ps(t4, t6, 0x44), r5 = _mm256_shuffle_ps(t4, t6, 0xee);
    r6 = _mm256_shuffle_ps(t5, t7, 0x44), r7 = _mm256_shuffle_ps(t5, t7, 0xee);
#define DT__ROW(i, x, y, h)                                                                                     \
    do {                                                                                                        \
        __m256 v_ = _mm256_permute2f128_ps(x, y, h);                                                            \
        _mm256_storeu_ps(d + i * ds, scaled ? _mm256_mul_ps(k, v_) : v_);                                       \
    } while (0)
    DT__ROW(0, r0, r4, 0x20); DT__ROW(1, r1, r5, 0x20); DT__ROW(2, r2, r6, 0x20); DT__ROW(3, r3, r7, 0x20);
    DT__ROW(4, r0, r4, 0x31); DT__ROW(5, r1, r5, 0x31); DT__ROW(6, r2, r6, 0x31); DT__ROW(7, r3, r7, 0x31);
#undef DT__ROW
}
#endif

/* Rows of n contiguous elements between a float dtype and f32. Half stores round to nearest even; NaN stays NaN. */
static __attribute__((unused)) void DT__K(load_row)(float *dst, const void *src, int dtype, int64_t n)
{
    if (dtype == DT_F32) {
        memcpy(dst, src, (size_t)n * 4);
    } else if (dtype == DT_BF16) {
        const uint16_t *s = (const uint16_t *)src;
        int64_t         i = 0;
#if DT__HAS_AVX2
        for (; i + 8 <= n; i += 8) {
            __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(s + i)));
            _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)));
        }
#endif
        for (; i < n; i++) dst[i] = dt__bf16_to_f32(s[i]);
    } else {
        const uint16_t *s = (const uint16_t *)src;
        int64_t         i = 0;
#if DT__HAS_AVX2
        for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i,
                                                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(s + i))));
#endif
        for (; i < n; i++) dst[i] = dt__f16_to_f32(s[i]);
    }
}
static __attribute__((unused)) void DT__K(store_row)(void *dst, int dtype, const float *src, int64_t n)
{
    if (dtype == DT_F32) {
        memcpy(dst, src, (size_t)n * 4);
    } else if (dtype == DT_BF16) {
        uint16_t *d = (uint16_t *)dst;
        int64_t   i = 0;
#if DT__HAS_AVX2
        for (; i + 8 <= n; i += 8) {
            __m256  f = _mm256_loadu_ps(src + i);
            __m256i u = _mm256_castps_si256(f), top = _mm256_srli_epi32(u, 16);
            __m256i up = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(top, _mm256_set1_epi32(1)));
            __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, up), 16), q = _mm256_or_si256(top,
                    _mm256_set1_epi32(0x40));
            __m256i v = _mm256_blendv_epi8(r, q, _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q)));
            v = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
            _mm_storeu_si128((__m128i *)(void *)(d + i), _mm256_castsi256_si128(v));
        }
#endif
        for (; i < n; i++) d[i] = dt__f32_to_bf16(src[i]);
    } else {
        uint16_t *d = (uint16_t *)dst;
        int64_t   i = 0;
#if DT__HAS_AVX2
        for (; i + 16 <= n; i += 16) {
            __m128i a = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0), b = _mm256_cvtps_ph(_mm256_loadu_ps(src + i + 8), 0);
            _mm_storeu_si128((__m128i *)(void *)(d + i), a);
            _mm_storeu_si128((__m128i *)(void *)(d + i + 8), b);
        }
        for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(void *)(d + i),
                                                    _mm256_cvtps_ph(_mm256_loadu_ps(src + i), 0));
#endif
        for (; i < n; i++) d[i] = dt__f32_to_f16(src[i]);
    }
}
DT__INLINE void DT__K(add_row)(float *dst, const float *src, int64_t n)
{
    int64_t i = 0;
    for (; i + DT__W <= n; i += DT__W) DT__K(st)(dst + i, DT__K(ld)(dst + i) + DT__K(ld)(src + i));
    for (; i < n; i++) dst[i] += src[i];
}
/* dst (a dtype row) := or += src (f32) */
static __attribute__((unused)) void DT__K(put_row)(void *dst, int dtype, const float *src, int64_t n, int add)
{
    if (!add) {
        DT__K(store_row)(dst, dtype, src, n);
    } else if (dtype == DT_F32) {
        DT__K(add_row)((float *)dst, src, n);
    } else {
        float buf[256];
        for (int64_t at = 0; at < n; at += 256) {
            int64_t m = n - at < 256 ? n - at : 256;
            DT__K(load_row)(buf, (const uint16_t *)dst + at, dtype, m);
            DT__K(add_row)(buf, src + at, m);
            DT__K(store_row)((uint16_t *)dst + at, dtype, buf, m);
        }
    }
}

/* ==================================================================================================== >>vmath
   Elementary functions on vectors. A product that feeds a sum is always written as fma(), so that the compiler does not
   decide whether to fuse. fma() may round twice, so constants are split to make the leading product exact.
     exp      x = n ln2 + r, |r| <= ln2/2, polynomial in r, scaled by 2^n in two steps (denormal results are exact)
     log      x = 2^e m, m in [sqrt(1/2), sqrt(2)), polynomial in m - 1
     tanh     odd polynomial below 0.625, 1 - 2/(1 + exp 2x) above
     erf      odd polynomial below 0.95, 1 - exp(-g(x)) above with g = -log(erfc)
     pow      exp2(y log2 |x|) in double lanes, then the special cases of C's powf */

typedef double   DT__K(vd_t) __attribute__((vector_size(4 * DT__W))); /* half as many lanes as a dt__vf */
typedef int64_t  DT__K(vl_t) __attribute__((vector_size(4 * DT__W)));
typedef uint64_t DT__K(vul_t) __attribute__((vector_size(4 * DT__W)));
#define dt__vd DT__K(vd_t)
#define dt__vl DT__K(vl_t)
#define dt__vul DT__K(vul_t)
#define DT__C(x) DT__K(set1)(x)

DT__INLINE dt__vf DT__K(vabs)(dt__vf x) { return (dt__vf)((dt__vi)x & DT__K(set1i)(0x7fffffff)); }
DT__INLINE dt__vf DT__K(vneg)(dt__vf x) { return (dt__vf)((dt__vu)x ^ ((dt__vu)DT__K(set1i)(1) << 31)); }
DT__INLINE dt__vf DT__K(vcopysign)(dt__vf x, dt__vf sign)
{
    dt__vi m = DT__K(set1i)(0x7fffffff);
    return (dt__vf)(((dt__vi)x & m) | ((dt__vi)sign & ~m));
}

/* exp(r + n ln2) = p 2^n: gives p in [0.7, 1.42] and n for x in about [-126, 126]; NaN: p is NaN */
DT__INLINE dt__vf DT__K(exp_parts)(dt__vf x, dt__vi *n)
{
    dt__vf magic = DT__C(12582912.0f); /* 1.5*2^23: the sum's rounding leaves round(x log2 e) in the low bits */
    dt__vf t = DT__K(fma)(x, DT__C(1.44269504f), magic);
    dt__vf k = t - magic;
    dt__vf r = DT__K(fma)(k, DT__C(-0.693359375f), x);
    r = DT__K(fma)(k, DT__C(2.12194440e-4f), r);
    dt__vf p = DT__K(fma)(r, DT__C(0.00138131413f), DT__C(0.00836941879f));
    p = DT__K(fma)(r, p, DT__C(0.041668456f));
    p = DT__K(fma)(r, p, DT__C(0.166665152f));
    p = DT__K(fma)(r, p, DT__C(0.49999994f));
    p = DT__K(fma)(r * r, p, r);
    *n = (dt__vi)((dt__vu)t - (dt__vu)magic);
    return p + DT__C(1.0f);
}
DT__INLINE dt__vf DT__K(pow2i)(dt__vi n) /* 2^n, n in [-127, 128]; 0 and inf at the ends */
{
    return (dt__vf)(((dt__vu)n + (dt__vu)DT__K(set1i)(127)) << 23);
}
DT__FAST dt__vf DT__K(vexp)(dt__vf x)
{
    dt__vi n;
    x = DT__K(vmin)(DT__C(89.0f), DT__K(vmax)(DT__C(-104.5f), x)); /* NaN stays */
    dt__vf p = DT__K(exp_parts)(x, &n);
    dt__vi h = n >> 1;
    return p * DT__K(pow2i)(h) * DT__K(pow2i)((dt__vi)((dt__vu)n - (dt__vu)h));
}
DT__FAST dt__vf DT__K(exp_mid)(dt__vf x) /* -88 <= x <= 89, or NaN; 0 below -87.6, inf above 88.4 */
{
    dt__vi n;
    dt__vf p = DT__K(exp_parts)(x, &n);
    return p * DT__K(pow2i)(n);
}
DT__FAST dt__vf DT__K(exp_low)(dt__vf x) /* x <= 89, or NaN: exp without its denormals */
{
    return DT__K(exp_mid)(DT__K(vmax)(DT__C(-88.0f), x));
}

DT__FAST dt__vf DT__K(vlog)(dt__vf x)
{
    dt__vf zero = DT__K(zero)(), inf = (dt__vf)DT__K(set1i)(0x7f800000);
    dt__vi tiny = (dt__vi)(x < DT__C(1.17549435e-38f));
    dt__vf s = DT__K(sel)(tiny, x * DT__C(8388608.0f), x);
    dt__vi u = (dt__vi)((dt__vu)s - (dt__vu)DT__K(set1i)(0x3f3504f3)); /* sqrt(1/2) */
    dt__vi e = (dt__vi)((dt__vu)(u >> 23) - ((dt__vu)tiny & (dt__vu)DT__K(set1i)(23)));
    dt__vf m = (dt__vf)((dt__vu)(u & DT__K(set1i)(0x7fffff)) + (dt__vu)DT__K(set1i)(0x3f3504f3));
    dt__vf f = m - DT__C(1.0f), z = f * f, k = DT__K(tofloat)(e);
    dt__vf p = DT__K(fma)(f, DT__C(0.067466639f), DT__C(-0.116756395f));
    p = DT__K(fma)(f, p, DT__C(0.118881442f));
    p = DT__K(fma)(f, p, DT__C(-0.1240559f));
    p = DT__K(fma)(f, p, DT__C(0.142195553f));
    p = DT__K(fma)(f, p, DT__C(-0.166679963f));
    p = DT__K(fma)(f, p, DT__C(0.200021192f));
    p = DT__K(fma)(f, p, DT__C(-0.250000089f));
    p = DT__K(fma)(f, p, DT__C(0.333333135f));
    p = DT__K(fma)(z * f, p, k * DT__C(-2.12194440e-4f));
    p = DT__K(fma)(z, DT__C(-0.5f), p);
    p = DT__K(fma)(k, DT__C(0.693359375f), f + p);
    p = DT__K(sel)((dt__vi)(x == inf), inf, p);
    p = DT__K(sel)((dt__vi)(x == zero), DT__K(vneg)(inf), p);
    return DT__K(sel)((dt__vi)(x >= zero), p, (dt__vf)DT__K(set1i)(0x7fc00000)); /* below 0, and NaN */
}

DT__FAST dt__vf DT__K(vlog1p)(dt__vf x) /* log(u) with u = 1 + x, corrected for the rounding of u by (x - (u - 1))/u */
{
    dt__vf one = DT__C(1.0f), u = one + x, l = DT__K(vlog)(u);
    dt__vf lost = (x - (u - one)) / u;
    dt__vi plain = (dt__vi)(u > DT__K(zero)()) & (dt__vi)(u < DT__C(3.0e38f));
    l = DT__K(sel)(plain, l + lost, l);
    return DT__K(sel)((dt__vi)(x == DT__K(zero)()), x, l); /* -0 stays */
}

DT__FAST dt__vf DT__K(vtanh)(dt__vf x)
{
    dt__vf a = DT__K(vabs)(x), z = x * x;
    dt__vf p = DT__K(fma)(z, DT__C(-0.00570497802f), DT__C(0.0206390787f));
    p = DT__K(fma)(z, p, DT__C(-0.0537397116f));
    p = DT__K(fma)(z, p, DT__C(0.133314416f));
    p = DT__K(fma)(z, p, DT__C(-0.333332807f));
    p = DT__K(fma)(z * x, p, x);
    dt__vf e = DT__K(exp_mid)(DT__K(vmin)(DT__C(20.0f), a + a));
    dt__vf q = DT__C(1.0f) - DT__C(2.0f) / (DT__C(1.0f) + e);
    return DT__K(vcopysign)(DT__K(sel)((dt__vi)(a < DT__C(0.625f)), p, q), x); /* -0 stays */
}

DT__FAST dt__vf DT__K(vsigmoid)(dt__vf x) /* e/(1 + e) below 0, which keeps the accuracy of small results */
{
    dt__vf one = DT__C(1.0f), e = DT__K(vexp)(DT__K(vneg)(DT__K(vabs)(x)));
    return DT__K(sel)((dt__vi)(x < DT__K(zero)()), e, one) / (one + e);
}

DT__FAST dt__vf DT__K(verf)(dt__vf x)
{
    dt__vf a = DT__K(vabs)(x), z = x * x;
    dt__vf p = DT__K(fma)(z, DT__C(8.18507615e-05f), DT__C(-0.000809769845f));
    p = DT__K(fma)(z, p, DT__C(0.00519695133f));
    p = DT__K(fma)(z, p, DT__C(-0.0268577039f));
    p = DT__K(fma)(z, p, DT__C(0.112836637f));
    p = DT__K(fma)(z, p, DT__C(-0.376126319f));
    p = DT__K(fma)(z, p, DT__C(0.128379166f));
    p = DT__K(fma)(x, p, x);
    a = DT__K(vmin)(DT__C(4.1f), a); /* erf is 1 from 3.92 on; NaN stays */
    dt__vf g = DT__K(fma)(a, DT__C(-0.000191500149f), DT__C(0.00299950177f));
    g = DT__K(fma)(a, g, DT__C(-0.0220518429f));
    g = DT__K(fma)(a, g, DT__C(0.103566572f));
    g = DT__K(fma)(a, g, DT__C(0.637600422f));
    g = DT__K(fma)(a, g, DT__C(1.12742591f));
    g = DT__K(fma)(a, g, DT__C(0.000256495492f));
    dt__vf q = DT__C(1.0f) - DT__K(exp_mid)(DT__K(vneg)(g));
    return DT__K(sel)((dt__vi)(a < DT__C(0.95f)), p, DT__K(vcopysign)(q, x));
}

DT__INLINE dt__vd DT__K(set1d)(double x)
{
    dt__vd v;
    for (int i = 0; i < DT__W / 2; i++) v[i] = x;
    return v;
}
DT__INLINE dt__vd DT__K(fmad)(dt__vd a, dt__vd b, dt__vd c)
{
#if DT__HAS_AVX2
    return (dt__vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__FP_FAST_FMA)
    dt__vd r;
    for (int i = 0; i < DT__W / 2; i++) r[i] = __builtin_fma(a[i], b[i], c[i]);
    return r;
#else
    return a * b + c;
#endif
}
DT__INLINE dt__vul DT__K(set1ul)(uint64_t x)
{
    dt__vul v;
    for (int i = 0; i < DT__W / 2; i++) v[i] = x;
    return v;
}
DT__INLINE dt__vd DT__K(seld)(dt__vl mask, dt__vd a, dt__vd b)
{
    return (dt__vd)(((dt__vl)a & mask) | ((dt__vl)b & ~mask));
}
DT__INLINE dt__vd DT__K(widen)(const float *p)
{
#if DT__HAS_AVX2
    return (dt__vd)_mm256_cvtps_pd(_mm_loadu_ps(p));
#else
    dt__vd v = { 0 };
    for (int i = 0; i < DT__W / 2; i++) v[i] = (double)p[i];
    return v;
#endif
}
DT__INLINE void DT__K(narrow)(float *p, dt__vd v)
{
#if DT__HAS_AVX2
    _mm_storeu_ps(p, _mm256_cvtpd_ps((__m256d)v));
#else
    for (int i = 0; i < DT__W / 2; i++) p[i] = (float)v[i];
#endif
}
/* log2 of positive doubles that were floats: 2/ln2 atanh(s), s = (m - 1)/(m + 1), |s| < 0.172; not for 0, inf */
DT__INLINE dt__vd DT__K(vlog2d)(dt__vd x)
{
    dt__vul bias = DT__K(set1ul)(1024), top = (dt__vul)x - (dt__vul)DT__K(set1d)(0.70710678118654752) + (bias << 52);
    dt__vul e = (top >> 52) - bias;
    dt__vd  m = (dt__vd)((dt__vul)x - (e << 52));
    dt__vd  one = DT__K(set1d)(1.0), s = (m - one) / (m + one), z = s * s, p = DT__K(set1d)(1.0 / 15);
    for (int i = 13; i > 0; i -= 2) p = DT__K(fmad)(z, p, DT__K(set1d)(1.0 / i));
    /* e as a double without a 64-bit conversion: 1.5*2^52 + e, minus 1.5*2^52 */
    dt__vd big = DT__K(set1d)(6755399441055744.0), k = (dt__vd)((dt__vul)big + e) - big;
    return DT__K(fmad)(s * DT__K(set1d)(2.8853900817779268), p, k);
}
DT__INLINE dt__vd DT__K(vexp2d)(dt__vd t) /* |t| <= 1000, or NaN */
{
    dt__vd big = DT__K(set1d)(6755399441055744.0), u = t + big, f = t - (u - big);
    dt__vd r = f * DT__K(set1d)(0.69314718055994531), p = DT__K(set1d)(1.0 / 40320);
    static const double c[8] = { 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0 };
    for (int i = 0; i < 8; i++) p = DT__K(fmad)(r, p, DT__K(set1d)(c[i]));
    return p * (dt__vd)(((dt__vul)u - (dt__vul)big + DT__K(set1ul)(1023)) << 52);
}
DT__CALLED void DT__K(pow_half)(float *out, const float *x, const float *y) /* |x|^y for x > 0 finite; W/2 lanes */
{
    dt__vd lo = DT__K(set1d)(-300.0), hi = DT__K(set1d)(300.0);
    dt__vd t = DT__K(widen)(y) * DT__K(vlog2d)(DT__K(widen)(x));
    t = DT__K(seld)((dt__vl)(t < lo), lo, t);
    t = DT__K(seld)((dt__vl)(t > hi), hi, t);
    DT__K(narrow)(out, DT__K(vexp2d)(t));
}
DT__INLINE dt__vi DT__K(truncate)(dt__vf x) /* |x| < 2^31 */
{
#if DT__HAS_AVX2
    return (dt__vi)_mm256_cvttps_epi32((__m256)x);
#else
    dt__vi v;
    for (int i = 0; i < DT__W; i++) v[i] = (int32_t)x[i];
    return v;
#endif
}
/* ---- sin, cos, tan: x = k pi/2 + r in double, then polynomials in r. Beyond 1.6e6, where k pi/2 would not be exact, by libm. */
DT__CALLED void DT__K(quarter)(float *r, int32_t *quadrant, const float *x) /* W/2 lanes */
{
    dt__vd  big = DT__K(set1d)(6755399441055744.0), v = DT__K(widen)(x); /* 1.5*2^52: the sum's rounding leaves k */
    dt__vd  t = DT__K(fmad)(v, DT__K(set1d)(0.63661977236758134), big), k = t - big;
    dt__vul q = (dt__vul)t;
    v = DT__K(fmad)(k, DT__K(set1d)(-1.57079632673412561417), v); /* 33 bits: the product is exact */
    DT__K(narrow)(r, DT__K(fmad)(k, DT__K(set1d)(-6.07710050650619224932e-11), v));
    for (int i = 0; i < DT__W / 2; i++) quadrant[i] = (int32_t)(q[i] & 3);
}
enum { DT__K(SIN), DT__K(COS), DT__K(TAN) };
DT__CALLED dt__vf DT__K(vtrig)(dt__vf x, int fn)
{
    float   xs[DT__W], rs[DT__W];
    int32_t qs[DT__W];
    DT__K(st)(xs, x);
    DT__K(quarter)(rs, qs, xs);
    DT__K(quarter)(rs + DT__W / 2, qs + DT__W / 2, xs + DT__W / 2);
    dt__vf r = DT__K(ld)(rs), z = r * r, one = DT__C(1.0f);
    dt__vi q = (dt__vi)*(const DT__K(viu_t) *)qs, zero = DT__K(set1i)(0);
    dt__vf s = DT__K(fma)(z, DT__C(2.71831149e-6f), DT__C(-1.98393348e-4f));
    s = DT__K(fma)(z, s, DT__C(8.33332930e-3f));
    s = DT__K(fma)(z, s, DT__C(-0.166666667f));
    s = DT__K(fma)(r * z, s, r);
    dt__vf c = DT__K(fma)(z, DT__C(2.44331571e-5f), DT__C(-1.38873162e-3f));
    c = DT__K(fma)(z, c, DT__C(4.16666456e-2f));
    c = DT__K(fma)(z * z, c, DT__K(fma)(z, DT__C(-0.5f), one));
    if (fn == DT__K(COS)) q = (dt__vi)((dt__vu)q + (dt__vu)DT__K(set1i)(1));
    dt__vi odd = (dt__vi)((q & DT__K(set1i)(1)) != zero), back = (dt__vi)((q & DT__K(set1i)(2)) != zero);
    dt__vf y = DT__K(sel)(odd, c, s);
    if (fn == DT__K(TAN)) y = DT__K(sel)(odd, DT__K(vneg)(c) / s, s / c);
    else y = DT__K(sel)(back, DT__K(vneg)(y), y);
    DT__K(st)(rs, y);
    for (int i = 0; i < DT__W; i++)
        if (fabsf(xs[i]) > 1.6e6f) rs[i] = fn == DT__K(SIN) ? sinf(xs[i]) : fn == DT__K(COS) ? cosf(xs[i]) : tanf(xs[i]);
    return DT__K(ld)(rs);
}
DT__FAST dt__vf DT__K(vexpm1)(dt__vf x) /* 2^n (e + 1) - 1 = 2^(n-h) (2^h e + (2^h - 2^(h-n))) with e = exp(r) - 1 */
{
    dt__vf v = DT__K(vmin)(DT__C(89.0f), DT__K(vmax)(DT__C(-104.5f), x)), magic = DT__C(12582912.0f);
    dt__vf t = DT__K(fma)(v, DT__C(1.44269504f), magic), k = t - magic;
    dt__vf r = DT__K(fma)(k, DT__C(2.12194440e-4f), DT__K(fma)(k, DT__C(-0.693359375f), v));
    dt__vf p = DT__K(fma)(r, DT__C(0.00138131413f), DT__C(0.00836941879f));
    p = DT__K(fma)(r, p, DT__C(0.041668456f));
    p = DT__K(fma)(r, p, DT__C(0.166665152f));
    p = DT__K(fma)(r, p, DT__C(0.49999994f));
    p = DT__K(fma)(r * r, p, r);
    dt__vi n = (dt__vi)((dt__vu)t - (dt__vu)magic), h = n >> 1, g = (dt__vi)((dt__vu)n - (dt__vu)h);
    dt__vf a = DT__K(pow2i)(h);
    p = DT__K(pow2i)(g) * DT__K(fma)(a, p, a - DT__K(pow2i)((dt__vi)((dt__vu)DT__K(set1i)(0) - (dt__vu)g)));
    return DT__K(sel)((dt__vi)(x == DT__K(zero)()), x, p); /* -0 stays */
}
/* atan2: t = min/max of the magnitudes; a polynomial up to tan(pi/8), (t - 1)/(t + 1) above; then the octant */
DT__CALLED dt__vf DT__K(vatan2)(dt__vf y, dt__vf x)
{
    dt__vf zero = DT__K(zero)(), one = DT__C(1.0f), ay = DT__K(vabs)(y), ax = DT__K(vabs)(x);
    dt__vi steep = (dt__vi)(ay > ax), same = (dt__vi)(ay == ax);
    dt__vf t = DT__K(sel)(steep, ax, ay) / DT__K(sel)(steep, ay, ax);
    t = DT__K(sel)(same, DT__K(sel)((dt__vi)(ax == zero), zero, one), t); /* 0/0, inf/inf */
    dt__vi high = (dt__vi)(t > DT__C(0.414213562f));
    dt__vf u = DT__K(sel)(high, (t - one) / (t + one), t), z = u * u;
    dt__vf p = DT__K(fma)(z, DT__C(8.05374449e-2f), DT__C(-1.38776856e-1f));
    p = DT__K(fma)(z, p, DT__C(1.99777106e-1f));
    p = DT__K(fma)(z, p, DT__C(-3.33329492e-1f));
    p = DT__K(fma)(u * z, p, u);
    p = DT__K(sel)(high, p + DT__C(0.785398163f), p);
    p = DT__K(sel)(steep, DT__C(1.57079633f) - p, p);
    p = DT__K(sel)((dt__vi)((dt__vi)x < DT__K(set1i)(0)), DT__C(3.14159265f) - p, p); /* the sign bit: -0, too */
    p = DT__K(sel)((dt__vi)(x == x) & (dt__vi)(y == y), p, x + y);
    return DT__K(vcopysign)(p, y);
}
DT__INLINE dt__vf DT__K(vfloor)(dt__vf x)
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_floor_ps((__m256)x);
#else
    dt__vf r = { 0 };
    for (int i = 0; i < DT__W; i++) r[i] = floorf(x[i]);
    return r;
#endif
}
DT__INLINE dt__vf DT__K(vround)(dt__vf x) /* halves to even */
{
#if DT__HAS_AVX2
    return (dt__vf)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    dt__vf a = DT__K(vabs)(x), big = DT__C(8388608.0f), r = (a + big) - big; /* 2^23: the sum's rounding */
    return DT__K(vcopysign)(DT__K(sel)((dt__vi)(a < big), r, a), x);
#endif
}
static __attribute__((noinline)) dt__vf DT__K(vpow)(dt__vf x, dt__vf y)
{
    float  xs[DT__W], ys[DT__W], rs[DT__W];
    dt__vf zero = DT__K(zero)(), one = DT__C(1.0f), inf = (dt__vf)DT__K(set1i)(0x7f800000);
    dt__vf a = DT__K(vabs)(x), ay = DT__K(vabs)(y);
    dt__vi edge = (dt__vi)(a == zero) | (dt__vi)(a == inf); /* |x|^y is 0 or inf there */
    DT__K(st)(xs, DT__K(sel)(edge, DT__C(2.0f), a));
    DT__K(st)(ys, y);
    DT__K(pow_half)(rs, xs, ys);
    DT__K(pow_half)(rs + DT__W / 2, xs + DT__W / 2, ys + DT__W / 2);
    dt__vf r = DT__K(ld)(rs);
    dt__vi up = ((dt__vi)(a == inf) & (dt__vi)(y > zero)) | ((dt__vi)(a == zero) & (dt__vi)(y < zero));
    r = DT__K(sel)(edge & (dt__vi)(y == y), DT__K(sel)(up, inf, zero), r);
    r = DT__K(sel)((dt__vi)(ay == inf) & (dt__vi)(a == one), one, r);
    r = DT__K(sel)((dt__vi)(a == a), r, x);
    /* the sign of x stays if y is an odd integer; x < 0 to a power that is not an integer is NaN */
    dt__vf yc = DT__K(vmin)(DT__K(vmax)(y, DT__C(-1.6777216e7f)), DT__C(1.6777216e7f)); /* even beyond; NaN: even */
    dt__vi yi = DT__K(truncate)(yc), odd = (dt__vi)((yi & DT__K(set1i)(1)) != DT__K(set1i)(0));
    dt__vi whole = (dt__vi)(DT__K(tofloat)(yi) == yc);
    r = DT__K(sel)(~whole & (dt__vi)(x < zero) & ~edge, (dt__vf)DT__K(set1i)(0x7fc00000), r);
    r = DT__K(sel)(whole & odd, DT__K(vcopysign)(r, x), r);
    return DT__K(sel)((dt__vi)(y == zero) | (dt__vi)(x == one), one, r);
}
#undef DT__C
#undef dt__vd
#undef dt__vl
#undef dt__vul

/* ==================================================================================================== >>rows
   One row kernel for each elementwise function: out[i] = f(x[i], y[i]; a, b) over n contiguous floats, whole vectors.
   The lists in dt.h name the functions: u_NAME and its derivative d_NAME for a row of DT_UNARY_FNS, b_NAME for a row of
   DT_BINARY_FNS, and irow_u_NAME or irow_b_NAME if it takes integers. A row without its functions does not compile.
   row_any() takes any n: the last elements go through a padded copy, so that an element's bits do not depend on its
   position in the row. */
#define DT__C(x) DT__K(set1)(x)
#define DT__SEL(m, p, q) DT__K(sel)((dt__vi)(m), p, q)
#define DT__ONE DT__C(1.0f)
#define DT__ZERO DT__K(zero)()
#define DT__UNUSED __attribute__((unused))
#define DT__V(name) \
    DT__INLINE dt__vf DT__K(name)(dt__vf x DT__UNUSED, dt__vf y DT__UNUSED, dt__vf a DT__UNUSED, dt__vf b DT__UNUSED)

/* unary: of x, a, b */
DT__V(u_AFFINE) { return DT__K(fma)(a, x, b); }
DT__V(u_SCALE) { return a * x; } /* AFFINE with b = 0: -0 stays */
DT__V(u_SHIFT) { return x + b; }
DT__V(u_RECIP) { return a / x; }
DT__CALLED dt__vf DT__K(power)(dt__vf x, dt__vf e) /* 0.5 and -0.5 by the root, as PyTorch: its signs and NaNs */
{
    dt__vf root = DT__K(vsqrt)(x), r = DT__K(vpow)(x, e);
    r = DT__SEL(e == DT__C(0.5f), root, r);
    return DT__SEL(e == DT__C(-0.5f), DT__ONE / root, r);
}
DT__V(u_POW) { return DT__K(power)(x, a); }
DT__V(u_SQUARE) { return x * x; }
DT__V(u_CUBE) { return x * x * x; }
DT__V(u_ABS) { return DT__K(vabs)(x); }
DT__V(u_SQRT) { return DT__K(vsqrt)(x); }
DT__V(u_EXP) { return DT__K(vexp)(x); }
DT__V(u_LOG) { return DT__K(vlog)(x); }
DT__V(u_CLAMP) { return DT__K(vmin)(b, DT__K(vmax)(a, x)); } /* NaN stays */
DT__V(u_RELU) { return DT__K(vmax)(DT__ZERO, x); }
DT__V(u_LEAKY_RELU) { return DT__SEL(x > DT__ZERO, x, a * x); }
DT__V(u_GELU) { return DT__C(0.5f) * x * (DT__ONE + DT__K(verf)(x * DT__C(0.70710678f))); }
DT__INLINE dt__vf DT__K(gelu_inner)(dt__vf x, dt__vf z) /* -2 sqrt(2/pi) (x + 0.044715 x^3), z = x^2 */
{
    return x * DT__K(fma)(z, DT__C(-0.0713548163f), DT__C(-1.59576912f));
}
DT__V(u_GELU_TANH) /* 1 + tanh(u) = 2/(1 + exp(-2u)); -inf is -inf/inf: NaN, as PyTorch's */
{
    return x / (DT__ONE + DT__K(exp_low)(DT__K(vmin)(DT__C(89.0f), DT__K(gelu_inner)(x, x * x))));
}
DT__V(u_SILU)
{
    dt__vf e = DT__K(vexp)(DT__K(vneg)(DT__K(vabs)(x)));
    return DT__SEL(x < DT__ZERO, x * e, x) / (DT__ONE + e);
}
DT__INLINE dt__vf DT__K(vsign)(dt__vf x) /* 0 for 0 and for NaN */
{
    return DT__SEL(x > DT__ZERO, DT__ONE, DT__SEL(x < DT__ZERO, DT__C(-1.0f), DT__ZERO));
}
DT__V(u_RSQRT) { return DT__ONE / DT__K(vsqrt)(x); }
DT__V(u_SIN) { return DT__K(vtrig)(x, DT__K(SIN)); }
DT__V(u_COS) { return DT__K(vtrig)(x, DT__K(COS)); }
DT__V(u_TAN) { return DT__K(vtrig)(x, DT__K(TAN)); }
DT__V(u_ERF) { return DT__K(verf)(x); }
DT__V(u_LOG1P) { return DT__K(vlog1p)(x); }
DT__V(u_EXPM1) { return DT__K(vexpm1)(x); }
DT__V(u_SIGN) { return DT__K(vsign)(x); }
DT__V(u_FLOOR) { return DT__K(vfloor)(x); }
DT__V(u_CEIL) { return DT__K(vneg)(DT__K(vfloor)(DT__K(vneg)(x))); }
DT__V(u_ROUND) { return DT__K(vround)(x); }
DT__V(u_ELU) { return DT__SEL(x > DT__ZERO, b * x, a * b * DT__K(vexpm1)(x)); }
DT__INLINE dt__vf DT__K(unit6)(dt__vf x) /* min(max(x, 0), 6); NaN stays */
{
    return DT__K(vmin)(DT__C(6.0f), DT__K(vmax)(DT__ZERO, x));
}
DT__V(u_HARDSWISH) { return x * DT__K(unit6)(x + DT__C(3.0f)) / DT__C(6.0f); }
/* tanh(log(1 + e^x)) = (e^2 + 2e)/(e^2 + 2e + 2), e = exp(x) */
DT__INLINE dt__vf DT__K(mish_gate)(dt__vf x)
{
    dt__vf e = DT__K(vexp)(DT__K(vmin)(DT__C(20.0f), x)), n = e * (e + DT__C(2.0f));
    return n / (n + DT__C(2.0f));
}
DT__V(u_MISH) { return x * DT__K(mish_gate)(x); }
DT__V(u_LOGSIGMOID)
{
    return DT__K(vmin)(DT__ZERO, x) - DT__K(vlog1p)(DT__K(vexp)(DT__K(vneg)(DT__K(vabs)(x))));
}
DT__V(u_SIGMOID) { return DT__K(vsigmoid)(x); }
DT__V(u_TANH) { return DT__K(vtanh)(x); }
DT__V(u_SOFTPLUS)
{
    dt__vf t = a * x;
    return DT__SEL(t > DT__C(20.0f), x, DT__K(vlog1p)(DT__K(vexp)(t)) / a);
}

/* derivatives: x is dy; y is the row's x or y, as NEEDS_X or NEEDS_Y of DT_UNARY_FNS says */
DT__V(d_AFFINE) { return x * a; }
DT__V(d_RECIP) { return DT__SEL(a == DT__ZERO, x * a, DT__K(vneg)(x * (y * (y / a)))); }
DT__V(d_POW) { return DT__SEL(a == DT__ZERO, a, x * (a * DT__K(power)(y, a - DT__ONE))); }
DT__V(d_SQUARE) { return x * (a * y); }
DT__V(d_ABS) { return x * DT__K(vsign)(y); }
DT__V(d_SQRT) { return x / (y + y); }
DT__V(d_EXP) { return x * y; }
DT__V(d_LOG) { return x / y; }
DT__V(d_CLAMP) { return DT__SEL((y > a) & (y < b), x, DT__ZERO); } /* 0 at the bounds, as PyTorch */
DT__V(d_RELU) { return DT__SEL(y <= DT__ZERO, DT__ZERO, x); } /* a NaN lets the gradient through */
DT__V(d_LEAKY_RELU) { return DT__SEL(y > DT__ZERO, x, x * a); }
DT__V(d_GELU)
{
    dt__vf c = DT__C(0.5f) * (DT__ONE + DT__K(verf)(y * DT__C(0.70710678f)));
    dt__vf p = DT__C(0.39894228f) * DT__K(vexp)(DT__C(-0.5f) * y * y);
    return x * DT__K(fma)(y, p, c);
}
DT__V(d_GELU_TANH) /* s + y s(1 - s) 2u', s = 1/(1 + exp(-2u)) */
{
    dt__vf z = y * y, e = DT__K(exp_low)(DT__K(gelu_inner)(DT__K(vabs)(y), z)), r = DT__ONE / (DT__ONE + e), er = e * r;
    dt__vf du = DT__K(fma)(z, DT__C(0.214064449f), DT__C(1.59576912f));
    return x * DT__K(fma)(y * (er * r), du, DT__SEL(y < DT__ZERO, er, r));
}
DT__V(d_SILU)
{
    dt__vf s = DT__K(vsigmoid)(y);
    return x * (s * DT__K(fma)(y, DT__ONE - s, DT__ONE));
}
DT__V(d_RSQRT) { return x * (DT__C(-0.5f) * y * y * y); }
DT__V(d_SIN) { return x * DT__K(vtrig)(y, DT__K(COS)); }
DT__V(d_COS) { return DT__K(vneg)(x * DT__K(vtrig)(y, DT__K(SIN))); }
DT__V(d_TAN) { return x * DT__K(fma)(y, y, DT__ONE); }
DT__V(d_ERF) { return x * (DT__C(1.12837917f) * DT__K(vexp)(DT__K(vneg)(y * y))); }
DT__V(d_LOG1P) { return x / (y + DT__ONE); }
DT__V(d_EXPM1) { return x * (y + DT__ONE); }
DT__V(d_SIGN) { return DT__ZERO; }
DT__V(d_FLOOR) { return DT__ZERO; }
DT__V(d_CEIL) { return DT__ZERO; }
DT__V(d_ROUND) { return DT__ZERO; }
DT__V(d_ELU) { return DT__SEL(y <= DT__ZERO, x * (a * b * DT__K(vexp)(y)), x * b); } /* a NaN lets the gradient through */
DT__V(d_HARDSWISH)
{
    dt__vf t = x * DT__K(fma)(y, DT__C(0.333333333f), DT__C(0.5f));
    return DT__SEL(y <= DT__C(-3.0f), DT__ZERO, DT__SEL(y < DT__C(3.0f), t, x));
}
DT__V(d_MISH) /* t + y s (1 - t^2), s the sigmoid */
{
    dt__vf t = DT__K(mish_gate)(y);
    return x * DT__K(fma)(y * DT__K(vsigmoid)(y), DT__ONE - t * t, t);
}
DT__V(d_LOGSIGMOID) { return x * DT__K(vsigmoid)(DT__K(vneg)(y)); }
DT__V(d_SIGMOID) { return x * ((DT__ONE - y) * y); }
DT__V(d_TANH) { return x * DT__K(fma)(DT__K(vneg)(y), y, DT__ONE); }
DT__V(d_SOFTPLUS)
{
    dt__vf t = a * y;
    return DT__SEL(t > DT__C(20.0f), x, x * DT__K(vsigmoid)(t));
}

/* binary: a f(x, y) */
DT__V(b_ADD) { return a * DT__K(fma)(b, y, x); }
DT__V(b_PLUS) { return x + y; } /* ADD with a = b = 1 */
DT__V(b_MUL) { return a * (x * y); }
DT__V(b_TIMES) { return x * y; }
DT__V(b_DIV) { return a * (x / y); }
DT__V(b_OVER) { return x / y; }
DT__V(b_POW) { return a * DT__K(vpow)(x, y); }
DT__V(b_POW_DX) { return a * DT__SEL(y == DT__ZERO, DT__ZERO, y * DT__K(vpow)(x, y - DT__ONE)); }
DT__V(b_POW_DY)
{
    dt__vi nil = (dt__vi)(x == DT__ZERO) & (dt__vi)(y >= DT__ZERO);
    return a * DT__SEL(nil, DT__ZERO, DT__K(vpow)(x, y) * DT__K(vlog)(x));
}
DT__V(b_MAX) { return a * DT__SEL(x != x, x, DT__K(vmax)(x, y)); }
DT__V(b_MIN) { return a * DT__SEL(x != x, x, DT__K(vmin)(x, y)); }
DT__V(b_MAX_DX) { return a * DT__SEL(x < y, DT__ZERO, DT__SEL(x == y, DT__C(0.5f), DT__ONE)); }
DT__V(b_MIN_DX) { return a * DT__SEL(x > y, DT__ZERO, DT__SEL(x == y, DT__C(0.5f), DT__ONE)); }
DT__V(b_EQ) { return DT__SEL(x == y, DT__ONE, DT__ZERO); }
DT__V(b_NE) { return DT__SEL(x != y, DT__ONE, DT__ZERO); }
DT__V(b_LT) { return DT__SEL(x < y, DT__ONE, DT__ZERO); }
DT__V(b_LE) { return DT__SEL(x <= y, DT__ONE, DT__ZERO); }
DT__V(b_GT) { return DT__SEL(x > y, DT__ONE, DT__ZERO); }
DT__V(b_GE) { return DT__SEL(x >= y, DT__ONE, DT__ZERO); }
DT__V(b_ATAN2) { return a * DT__K(vatan2)(x, y); }
DT__V(b_ATAN2_DX)
{
    dt__vf d = DT__K(fma)(x, x, y * y);
    return a * (y * DT__SEL(d == DT__ZERO, DT__ZERO, DT__ONE / d));
}
DT__V(b_PRELU) { return a * DT__SEL(x > DT__ZERO, x, x * y); }
DT__V(b_PRELU_DX) { return a * DT__SEL(x > DT__ZERO, DT__ONE, y); }
DT__V(b_PRELU_DY) { return a * DT__SEL(x > DT__ZERO, DT__ZERO, x); }
DT__V(b_KL_DIV)
{
    return a * DT__SEL(y == DT__ZERO, DT__K(vneg)(y * x), y * (DT__K(vlog)(y) - x));
}
DT__V(b_KL_DIV_DY) { return a * (DT__K(vlog)(y) + DT__ONE - x); }
DT__V(b_MSE) { return a * ((x - y) * (x - y)); }
DT__V(b_MSE_DX) { return a * (DT__C(2.0f) * (x - y)); }
DT__V(b_L1) { return a * DT__K(vabs)(x - y); }
DT__V(b_L1_DX) { return a * DT__K(vsign)(x - y); }
DT__V(b_SMOOTH_L1)
{
    dt__vf d = DT__K(vabs)(x - y);
    return a * DT__SEL(d < b, DT__C(0.5f) * d * d / b, DT__K(fma)(DT__C(-0.5f), b, d));
}
DT__V(b_SMOOTH_L1_DX)
{
    dt__vf d = x - y;
    return a * DT__SEL(DT__K(vabs)(d) >= b, DT__K(vsign)(d), d / b);
}
DT__V(b_BCE)
{
    dt__vf n = DT__K(vneg)(x), l = DT__K(vlog1p)(DT__K(vexp)(DT__K(vneg)(DT__K(vabs)(x))));
    return a * (DT__K(fma)(DT__ONE - y, x, DT__K(vmax)(n, DT__ZERO)) + l); /* (1 - y)x + max(-x, 0): inf where x is */
}
DT__V(b_BCE_DX) { return a * (DT__K(vsigmoid)(x) - y); }

typedef void (*DT__K(row_fn))(float *out, const float *x, const float *y, int64_t n, float a, float b);
static void DT__K(row_any)(DT__K(row_fn) f, float *out, const float *x, const float *y, int64_t n, float a, float b)
{
    float   tx[DT__W] = { 0 }, ty[DT__W] = { 0 };
    int64_t rest = n % DT__W, i = n - rest;
    if (i) f(out, x, y, i, a, b);
    if (!rest) return;
    memcpy(tx, x + i, (size_t)rest * 4);
    memcpy(ty, y + i, (size_t)rest * 4);
    f(tx, tx, ty, DT__W, a, b);
    memcpy(out + i, tx, (size_t)rest * 4);
}
#define DT__ROW(f)                                                                                        \
    static void DT__K(row_##f)(float *out, const float *x, const float *y, int64_t n, float sa, float sb) \
    {                                                                                                     \
        dt__vf a = DT__K(set1)(sa), b = DT__K(set1)(sb);                                                  \
        for (int64_t i = 0; i < n; i += DT__W)                                                            \
            DT__K(st)(out + i, DT__K(f)(DT__K(ld)(x + i), DT__K(ld)(y + i), a, b));                       \
    }
#define DT__X(n, ...) DT__ROW(u_##n) DT__ROW(d_##n)
DT_UNARY_FNS(DT__X)
#undef DT__X
#define DT__X(n, ...) DT__ROW(b_##n)
DT_BINARY_FNS(DT__X)
#undef DT__X
DT__ROW(u_SCALE) DT__ROW(u_SHIFT) DT__ROW(u_SQUARE) DT__ROW(u_CUBE) DT__ROW(d_SQUARE)
DT__ROW(b_PLUS) DT__ROW(b_TIMES) DT__ROW(b_OVER)
#undef DT__ROW
#undef DT__V
#if DT__HAS_AVX2
/* GELU and its gradient with AVX-512: the same operations on 16 lanes, the same bits. n is a multiple of DT__W. */
DT__INLINE bool DT__K(wide)(void);
#define DT__WIDE_CODE __attribute__((target("avx512f,avx2,fma,f16c")))
#define DT__WIDE_INLINE static inline __attribute__((always_inline)) DT__WIDE_CODE
typedef float    DT__K(gf_t) __attribute__((vector_size(64)));
typedef int32_t  DT__K(gi_t) __attribute__((vector_size(64)));
typedef uint32_t DT__K(gu_t) __attribute__((vector_size(64)));
typedef float    DT__K(gf_at) __attribute__((vector_size(64), aligned(4), may_alias));
#define dt__gf DT__K(gf_t)
#define dt__gi DT__K(gi_t)
#define dt__gu DT__K(gu_t)
DT__WIDE_INLINE dt__gf DT__K(g1)(float x)
{
    dt__gf zero = { 0 };
    return zero + x;
}
#define DT__GFMA(p, z, c) __asm__("vfmadd213ps {%2, %1, %0|%0, %1, %2}" : "+v"(p) : "v"(z), "v"(c))
#define DT__GHORNER(p, z, c) DT__GFMA(p, z, DT__K(g1)(c))
DT__WIDE_INLINE dt__gf DT__K(wide_exp_parts)(dt__gf x, dt__gi *n) /* exp_parts */
{
    dt__gf magic = DT__K(g1)(12582912.0f), t = x, r, k, p = DT__K(g1)(0.00138131413f);
    DT__GFMA(t, DT__K(g1)(1.44269504f), magic);
    k = t - magic;
    r = k;
    DT__GFMA(r, DT__K(g1)(-0.693359375f), x);
    DT__GFMA(k, DT__K(g1)(2.12194440e-4f), r);
    DT__GHORNER(p, k, 0.00836941879f);
    DT__GHORNER(p, k, 0.041668456f);
    DT__GHORNER(p, k, 0.166665152f);
    DT__GHORNER(p, k, 0.49999994f);
    DT__GFMA(p, k * k, k);
    *n = (dt__gi)((dt__gu)t - (dt__gu)magic);
    return p + 1.0f;
}
DT__WIDE_INLINE dt__gf DT__K(wide_pow2i)(dt__gi n) { return (dt__gf)(((dt__gu)n + 127u) << 23); }
DT__WIDE_INLINE dt__gf DT__K(wide_erf)(dt__gf x)
{
    dt__gu zero = { 0 };
    dt__gi sign = (dt__gi)(zero + 0x80000000u), n;
    dt__gf a = (dt__gf)((dt__gi)x & ~sign), z = x * x, p = DT__K(g1)(8.18507615e-05f), g = DT__K(g1)(-0.000191500149f);
    dt__gf most = DT__K(g1)(4.1f);
    DT__GHORNER(p, z, -0.000809769845f);
    DT__GHORNER(p, z, 0.00519695133f);
    DT__GHORNER(p, z, -0.0268577039f);
    DT__GHORNER(p, z, 0.112836637f);
    DT__GHORNER(p, z, -0.376126319f);
    DT__GHORNER(p, z, 0.128379166f);
    DT__GFMA(p, x, x);
    __asm__("vminps {%2, %1, %0|%0, %1, %2}" : "=v"(a) : "v"(most), "v"(a)); /* NaN stays */
    DT__GHORNER(g, a, 0.00299950177f);
    DT__GHORNER(g, a, -0.0220518429f);
    DT__GHORNER(g, a, 0.103566572f);
    DT__GHORNER(g, a, 0.637600422f);
    DT__GHORNER(g, a, 1.12742591f);
    DT__GHORNER(g, a, 0.000256495492f);
    g = (dt__gf)((dt__gi)g ^ sign);
    g = DT__K(wide_exp_parts)(g, &n);
    dt__gf q = 1.0f - g * DT__K(wide_pow2i)(n);
    dt__gi near = (dt__gi)(a < DT__K(g1)(0.95f));
    return (dt__gf)(((dt__gi)p & near) | ((((dt__gi)q & ~sign) | ((dt__gi)x & sign)) & ~near));
}
static DT__WIDE_CODE __attribute__((noinline)) void DT__K(row_u_gelu_wide)(float *out, const float *x, const float *y, int64_t n, float a,
                                                                           float b)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        dt__gf v = *(const DT__K(gf_at) *)(x + i);
        v = 0.5f * v * (1.0f + DT__K(wide_erf)(v * 0.70710678f));
        *(DT__K(gf_at) *)(out + i) = (DT__K(gf_at))v;
    }
    if (i < n) DT__K(row_u_GELU)(out + i, x + i, y + i, n - i, a, b);
}
static DT__WIDE_CODE __attribute__((noinline)) void DT__K(row_d_gelu_wide)(float *out, const float *x, const float *y, int64_t n, float a,
                                                                           float b)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        dt__gf g = *(const DT__K(gf_at) *)(x + i), v = *(const DT__K(gf_at) *)(y + i), e = -0.5f * v * v;
        dt__gf c = 0.5f * (1.0f + DT__K(wide_erf)(v * 0.70710678f)), low = DT__K(g1)(-104.5f), high = DT__K(g1)(89.0f);
        dt__gi k;
        __asm__("vmaxps {%2, %1, %0|%0, %1, %2}" : "=v"(e) : "v"(low), "v"(e)); /* NaN stays */
        __asm__("vminps {%2, %1, %0|%0, %1, %2}" : "=v"(e) : "v"(high), "v"(e));
        e = DT__K(wide_exp_parts)(e, &k);
        dt__gi h = k >> 1;
        dt__gf p = 0.39894228f * (e * DT__K(wide_pow2i)(h) * DT__K(wide_pow2i)((dt__gi)((dt__gu)k - (dt__gu)h)));
        DT__GFMA(p, v, c);
        *(DT__K(gf_at) *)(out + i) = (DT__K(gf_at))(g * p);
    }
    if (i < n) DT__K(row_d_GELU)(out + i, x + i, y + i, n - i, a, b);
}
#undef dt__gf
#undef dt__gi
#undef dt__gu
#undef DT__GHORNER
#undef DT__GFMA
#undef DT__WIDE_INLINE
#undef DT__WIDE_CODE
#endif

/* The same for integers: computed modulo 2^64. */
typedef void (*DT__K(irow_fn))(int64_t *out, const int64_t *x, const int64_t *y, int64_t n, int64_t a, int64_t b);
#define DT__IROW(name, expr)                                                                                       \
    static void DT__K(irow_##name)(int64_t *out, const int64_t *x, const int64_t *y DT__UNUSED, int64_t n,         \
                                   int64_t a DT__UNUSED, int64_t b DT__UNUSED)                                     \
    {                                                                                                              \
        uint64_t ua DT__UNUSED = (uint64_t)a, ub DT__UNUSED = (uint64_t)b;                                         \
        for (int64_t i = 0; i < n; i++) out[i] = (int64_t)(expr);                                                  \
    }
#define DT__UX (uint64_t) x[i]
#define DT__UY (uint64_t) y[i]
DT__IROW(u_AFFINE, ua * DT__UX + ub)
DT__IROW(u_ABS, x[i] < 0 ? 0 - DT__UX : DT__UX)
DT__IROW(u_SIGN, (x[i] > 0) - (x[i] < 0))
DT__IROW(u_FLOOR, x[i])
DT__IROW(u_CEIL, x[i])
DT__IROW(u_ROUND, x[i])
DT__IROW(u_CLAMP, (x[i] > a ? x[i] : a) < b ? (x[i] > a ? x[i] : a) : b)
DT__IROW(b_ADD, ua * (DT__UX + ub * DT__UY))
static void DT__K(irow_b_PLUS)(int64_t *out, const int64_t *x, const int64_t *y, int64_t n, int64_t a, int64_t b)
{
    int64_t i = 0;
    (void)a, (void)b;
#if DT__HAS_AVX2
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)(x + i + 4));
        v = _mm256_add_epi64(v, _mm256_loadu_si256((const __m256i *)(const void *)(y + i)));
        w = _mm256_add_epi64(w, _mm256_loadu_si256((const __m256i *)(const void *)(y + i + 4)));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), v);
        _mm256_storeu_si256((__m256i *)(void *)(out + i + 4), w);
    }
#endif
    for (; i < n; i++) out[i] = (int64_t)(DT__UX + DT__UY);
}
DT__IROW(b_MUL, ua * (DT__UX * DT__UY))
DT__IROW(b_MAX, ua * (x[i] > y[i] ? DT__UX : DT__UY))
DT__IROW(b_MIN, ua * (x[i] < y[i] ? DT__UX : DT__UY))
DT__IROW(b_EQ, x[i] == y[i])
DT__IROW(b_NE, x[i] != y[i])
DT__IROW(b_LT, x[i] < y[i])
DT__IROW(b_LE, x[i] <= y[i])
DT__IROW(b_GT, x[i] > y[i])
DT__IROW(b_GE, x[i] >= y[i])
#undef DT__UX
#undef DT__UY
#undef DT__IROW

/* ==================================================================================================== >>tiles
   A tile is rows x cols elements of a strided operand: element (j, i) at j*s1 + i*s0. An input tile is converted to
   contiguous floats (or int64), or used in place if it is already contiguous; results are converted back. */
#define DT__TILE 1024 /* elements of a tile that goes through a buffer */
typedef uint8_t  DT__K(a8_t) __attribute__((may_alias)); /* raw bits, whatever the dtype */
typedef uint16_t DT__K(a16_t) __attribute__((may_alias));
typedef uint32_t DT__K(a32_t) __attribute__((may_alias));
typedef uint64_t DT__K(a64_t) __attribute__((may_alias));

DT__INLINE int DT__K(esize)(int dtype)
{
    return dtype == DT_I64 ? 8 : dtype == DT_U8 ? 1 : dtype == DT_F16 || dtype == DT_BF16 ? 2 : 4;
}
DT__INLINE bool DT__K(is_int)(int dtype) { return dtype >= DT_I32; }
DT__INLINE int64_t DT__K(dbl_to_i64)(double v) /* toward zero, saturated; NaN: 0 */
{
    return v >= 9223372036854775808.0 ? INT64_MAX : v <= -9223372036854775808.0 ? INT64_MIN : v == v ? (int64_t)v : 0;
}
DT__INLINE int64_t DT__K(to_int)(double v, int dtype) /* u8: the low byte of an int32, 0 beyond; the others saturate */
{
    if (dtype == DT_U8) return v > -2147483648.0 && v < 2147483648.0 ? (int32_t)v : 0;
    if (dtype == DT_I32) v = v > 2147483647.0 ? 2147483647.0 : v < -2147483648.0 ? -2147483648.0 : v;
    return DT__K(dbl_to_i64)(v);
}

/* Moves of raw elements; the order of the loops follows the source where that is contiguous along j. */
#define DT__MOVE(bits)                                                                                              \
    static void DT__K(move##bits)(void *dst, int64_t ds0, int64_t ds1, const void *src, int64_t ss0, int64_t ss1,   \
                                  int64_t cols, int64_t rows)                                                       \
    {                                                                                                               \
        DT__K(a##bits##_t) *d = (DT__K(a##bits##_t) *)dst;                                                          \
        const DT__K(a##bits##_t) *s = (const DT__K(a##bits##_t) *)src;                                              \
        if (ss0 == 0 && ds0 == 1) {                                                                                 \
            for (int64_t j = 0; j < rows; j++) {                                                                    \
                DT__K(a##bits##_t) v = s[j * ss1], line[512 / bits];                                                \
                int64_t i = 0;                                                                                      \
                for (int k = 0; cols >= 512 / bits && k < 512 / bits; k++) line[k] = v;                             \
                for (; i + 512 / bits <= cols; i += 512 / bits) memcpy(d + j * ds1 + i, line, sizeof line);         \
                for (; i < cols; i++) d[j * ds1 + i] = v;                                                           \
            }                                                                                                       \
        } else if (ds0 == 1 || ss1 != 1) {                                                                          \
            for (int64_t j = 0; j < rows; j++)                                                                      \
                for (int64_t i = 0; i < cols; i++) d[j * ds1 + i * ds0] = s[j * ss1 + i * ss0];                     \
        } else {                                                                                                    \
            for (int64_t i = 0; i < cols; i++)                                                                      \
                for (int64_t j = 0; j < rows; j++) d[j * ds1 + i * ds0] = s[j * ss1 + i * ss0];                     \
        }                                                                                                           \
    }
DT__MOVE(8)
DT__MOVE(16)
DT__MOVE(32)
DT__MOVE(64)
#undef DT__MOVE

static void DT__K(move_tile)(void *dst, int64_t ds0, int64_t ds1, const void *src, int64_t ss0, int64_t ss1,
                             int64_t cols, int64_t rows, int size)
{
    if (ds0 == 1 && ss0 == 1) {
        if (ds1 == cols && ss1 == cols) {
            cols *= rows;
            rows = 1;
        }
        for (int64_t j = 0; j < rows; j++) {
            char       *d = (char *)dst + j * ds1 * size;
            const char *s = (const char *)src + j * ss1 * size;
            if (d != s) memcpy(d, s, (size_t)(cols * size));
        }
        return;
    }
#if DT__HAS_AVX2
    if (size == 4 && ds0 == 1 && ss1 == 1 && (cols == 3 || cols == 4)) { /* images of few channels */
        DT__K(a32_t) *d = (DT__K(a32_t) *)dst;
        const DT__K(a32_t) *s0 = (const DT__K(a32_t) *)src, *s1 = s0 + ss0, *s2 = s1 + ss0, *s3 = cols == 4 ? s2 + ss0 : s2;
        if (cols == 3)
            for (int64_t j = 0; j < rows; j++, d += ds1) {
                uint32_t a = s0[j], b = s1[j], c = s2[j];
                d[0] = a, d[1] = b, d[2] = c;
            }
        else
            for (int64_t j = 0; j < rows; j++, d += ds1) {
                uint32_t a = s0[j], b = s1[j], c = s2[j], e = s3[j];
                d[0] = a, d[1] = b, d[2] = c, d[3] = e;
            }
        return;
    }
    if (size == 4 && ds0 == 1 && ss1 == 1 && rows == 3) { /* and back */
        DT__K(a32_t) *d0 = (DT__K(a32_t) *)dst, *d1 = d0 + ds1, *d2 = d1 + ds1;
        const DT__K(a32_t) *s = (const DT__K(a32_t) *)src;
        for (int64_t i = 0; i < cols; i++, s += ss0) {
            uint32_t a = s[0], b = s[1], c = s[2];
            d0[i] = a, d1[i] = b, d2[i] = c;
        }
        return;
    }
    if (size == 4 && ds0 == 1 && ss1 == 1 && cols * rows <= DT__TILE) {
        uint32_t buf[DT__TILE]; /* cache lines a large stride apart evict each other, so each is touched only once */
        bool     far = ds1 > cols;
        DT__K(a32_t) *d = far ? (DT__K(a32_t) *)buf : (DT__K(a32_t) *)dst;
        const DT__K(a32_t) *s = (const DT__K(a32_t) *)src;
        int64_t r8 = rows & ~(int64_t)7, c8 = cols & ~(int64_t)7;
        for (int64_t i = 0; i < c8; i += 8)
            for (int64_t j = 0; j < r8; j += 8)
                DT__K(turn8)((float *)(void *)(d + j * cols + i), cols, (const float *)(const void *)(s + j + i * ss0), ss0,
                             8, 0, _mm256_setzero_ps());
        if (c8 < cols) DT__K(move32)(d + c8, 1, cols, s + c8 * ss0, ss0, 1, cols - c8, r8);
        if (r8 < rows) DT__K(move32)(d + r8 * cols, 1, cols, s + r8, ss0, 1, cols, rows - r8);
        for (int64_t j = 0; far && j < rows; j++) memcpy((char *)dst + j * ds1 * 4, buf + j * cols, (size_t)cols * 4);
        return;
    }
#endif
    if (size == 4) DT__K(move32)(dst, ds0, ds1, src, ss0, ss1, cols, rows);
    else if (size == 2) DT__K(move16)(dst, ds0, ds1, src, ss0, ss1, cols, rows);
    else if (size == 8) DT__K(move64)(dst, ds0, ds1, src, ss0, ss1, cols, rows);
    else DT__K(move8)(dst, ds0, ds1, src, ss0, ss1, cols, rows);
}

/* n contiguous elements of any dtype as floats, or of an integer dtype as int64 */
static void DT__K(to_floats)(float *dst, const void *src, int dtype, int64_t n)
{
    if (!DT__K(is_int)(dtype)) {
        DT__K(load_row)(dst, src, dtype, n);
    } else if (dtype == DT_I32) {
        int64_t i = 0;
        for (; i + DT__W <= n; i += DT__W)
            DT__K(st)(dst + i, DT__K(tofloat)((dt__vi)*(const DT__K(viu_t) *)((const int32_t *)src + i)));
        for (; i < n; i++) dst[i] = (float)((const int32_t *)src)[i];
    } else if (dtype == DT_I64) {
        int64_t i = 0;
#if DT__HAS_AVX2
        for (; i + 8 <= n; i += 8) { /* eight that fit 32 bits at once */
            const int64_t *s = (const int64_t *)src + i;
            __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)s);
            __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(s + 4));
            __m256  lo = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
            __m256  hi = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd);
            __m256i sign = _mm256_srai_epi32(_mm256_castps_si256(lo), 31);
            if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(sign, _mm256_castps_si256(hi))) == -1) {
                __m256i v = _mm256_permute4x64_epi64(_mm256_castps_si256(lo), 0xd8);
                _mm256_storeu_ps(dst + i, _mm256_cvtepi32_ps(v));
            } else {
                for (int k = 0; k < 8; k++) dst[i + k] = (float)s[k];
            }
        }
#endif
        for (; i < n; i++) dst[i] = (float)((const int64_t *)src)[i];
    } else {
        int64_t i = 0;
#if DT__HAS_AVX2
        for (; i + 8 <= n; i += 8) {
            __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)((const uint8_t *)src + i));
            _mm256_storeu_ps(dst + i, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)));
        }
#endif
        for (; i < n; i++) dst[i] = (float)((const uint8_t *)src)[i];
    }
}
static void DT__K(to_ints)(int64_t *dst, const void *src, int dtype, int64_t n)
{
    if (dtype == DT_I32) {
        int64_t i = 0;
#if DT__HAS_AVX2
        for (; i + 4 <= n; i += 4) {
            __m128i four = _mm_loadu_si128((const __m128i *)(const void *)((const int32_t *)src + i));
            _mm256_storeu_si256((__m256i *)(void *)(dst + i), _mm256_cvtepi32_epi64(four));
        }
#endif
        for (; i < n; i++) dst[i] = ((const int32_t *)src)[i];
    } else if (dtype == DT_I64) {
        memcpy(dst, src, (size_t)n * 8);
    } else {
        for (int64_t i = 0; i < n; i++) dst[i] = ((const uint8_t *)src)[i];
    }
}

/* A tile as contiguous floats (ints: int64): the operand itself if it is contiguous, else converted into buf. */
static const void *DT__K(get_tile)(void *buf, const void *p, int dtype, int64_t s0, int64_t s1, int64_t cols,
                                   int64_t rows, bool ints)
{
    uint64_t raw[DT__TILE];
    bool     dense = s0 == 1 && (rows == 1 || s1 == cols);
    if (dense && dtype == (ints ? DT_I64 : DT_F32)) return p;
    bool same = dtype == (ints ? DT_I64 : DT_F32);
    bool one = s0 == 0 && (s1 == 0 || rows == 1); /* one value for the whole tile */
    if (!dense && (same || !one)) {
        DT__K(move_tile)(same ? buf : (void *)raw, 1, cols, p, s0, s1, cols, rows, DT__K(esize)(dtype));
        if (same) return buf;
        p = raw;
    }
    int64_t n = one ? 1 : cols * rows;
    if (ints) DT__K(to_ints)((int64_t *)buf, p, dtype, n);
    else DT__K(to_floats)((float *)buf, p, dtype, n);
    if (one && ints) DT__K(move64)(buf, 1, 0, buf, 0, 0, cols * rows, 1);
    else if (one) DT__K(move32)(buf, 1, 0, buf, 0, 0, cols * rows, 1);
    return buf;
}

/* int64 results into a tile of an integer dtype: low bits kept */
#define DT__PUT_INTS(T)                                                                                 \
    for (int64_t j = 0; j < rows; j++)                                                                  \
        for (int64_t i = 0; i < cols; i++) {                                                            \
            T *d = (T *)dst + j * s1 + i * s0;                                                          \
            *d = (T)((uint64_t)v[j * cols + i] + (add ? (uint64_t)*d : 0));                             \
        }
static void DT__K(put_ints)(void *dst, int dtype, int64_t s0, int64_t s1, const int64_t *v, int64_t cols,
                            int64_t rows, bool add)
{
    if (dtype == DT_I32) {
        DT__PUT_INTS(int32_t)
    } else if (dtype == DT_I64) {
        DT__PUT_INTS(int64_t)
    } else {
        DT__PUT_INTS(uint8_t)
    }
}
#undef DT__PUT_INTS

#if DT__HAS_AVX2
static int64_t DT__K(floats_to_u8)(uint8_t *d, const float *v, int64_t n) /* as to_int(); returns how many were converted */
{
    __m256i low = _mm256_set1_epi32(0x0c080400); /* the low bytes of the four lanes of each half */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { /* beyond int32 the conversion gives 0x80000000: low byte 0 */
        __m256i t = _mm256_shuffle_epi8(_mm256_cvttps_epi32(_mm256_loadu_ps(v + i)), low);
        __m128i w = _mm_unpacklo_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
        _mm_storel_epi64((__m128i *)(void *)(d + i), w);
    }
    return i;
}
#endif
static void DT__K(put_floats)(void *dst, int dtype, int64_t s0, int64_t s1, float *v, int64_t cols, int64_t rows,
                              bool add)
{
    if (DT__K(is_int)(dtype)) {
        int64_t t[DT__TILE], i = 0;
        if (dtype == DT_U8 && !add && s0 == 1 && (rows == 1 || s1 == cols)) {
            uint8_t *d = (uint8_t *)dst;
#if DT__HAS_AVX2
            i = DT__K(floats_to_u8)(d, v, cols * rows);
#endif
            for (; i < cols * rows; i++) d[i] = (uint8_t)DT__K(to_int)((double)v[i], DT_U8);
            return;
        }
        for (; i < cols * rows; i++) t[i] = DT__K(to_int)((double)v[i], dtype);
        DT__K(put_ints)(dst, dtype, s0, s1, t, cols, rows, add);
        return;
    }
    int size = DT__K(esize)(dtype);
    if (s0 == 1) {
        bool whole = rows == 1 || s1 == cols;
        for (int64_t j = 0; j < (whole ? 1 : rows); j++)
            DT__K(put_row)((char *)dst + j * s1 * size, dtype, v + j * cols, whole ? cols * rows : cols, add);
        return;
    }
    float    old[DT__TILE];
    uint16_t half[DT__TILE];
    if (add) {
        const float *o = (const float *)DT__K(get_tile)(old, dst, dtype, s0, s1, cols, rows, false);
        for (int64_t i = 0; i < cols * rows; i++) v[i] += o[i];
    }
    if (size == 2) DT__K(store_row)(half, dtype, v, cols * rows);
    DT__K(move_tile)(dst, s0, s1, size == 2 ? (const void *)half : (const void *)v, 1, cols, cols, rows, size);
}

/* ==================================================================================================== >>engine
   Every elementwise kernel is a plan: the index space without dims of size 1, dims merged if they are contiguous in all
   operands, the output's smallest stride innermost (dim 0). Tiles of dims 0 and 1 are the unit of work, a task is a
   range of tiles. If an operand is contiguous along another dim than the output, that dim becomes dim 1 and tiles are
   square. */
typedef struct DT__K(plan) DT__K(plan_t);
typedef struct DT__K(tilebuf) {
    union {
        float   f[DT__TILE];
        int64_t l[DT__TILE];
    } op[4];
    const void *seen[4]; /* the address that op[k] was loaded from: a broadcast row is loaded once for several tiles */
    int64_t     seen_n[4];
} DT__K(tilebuf_t);

struct DT__K(plan) {
    int     nop, ndim; /* operand 0 is the output */
    int64_t n[DT_MAX_DIMS + 2], s[4][DT_MAX_DIMS + 2];
    char   *p[4];
    int     dtype[4], size[4];
    int64_t cols, rows, nt0, nt1, ntiles, per; /* of a tile; tiles along dims 0, 1 and in all; per task */
    bool    add;
    float   a, b;
    int64_t ia, ib;
    DT__K(row_fn) row;
    DT__K(irow_fn) irow;
    DT__K(row_fn) row1; /* the function of (x, number, b*number) if one operand is one number for a row, or NULL */
    bool   commutes;    /* ... whichever of the two it is */
    void (*tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows, DT__K(tilebuf_t) *w);
};

static void DT__K(plan_swap)(DT__K(plan_t) *e, int i, int j)
{
    int64_t t = e->n[i];
    e->n[i] = e->n[j];
    e->n[j] = t;
    for (int k = 0; k < e->nop; k++) {
        t = e->s[k][i];
        e->s[k][i] = e->s[k][j];
        e->s[k][j] = t;
    }
}
static void DT__K(plan_merge)(DT__K(plan_t) *e) /* merges neighbouring dims that are contiguous in all operands */
{
    int m = 0;
    for (int i = 1; i < e->ndim; i++) {
        bool same = true;
        for (int k = 0; k < e->nop; k++) same = same && e->s[k][i] == e->s[k][m] * e->n[m];
        if (same) {
            e->n[m] *= e->n[i];
        } else {
            m++;
            e->n[m] = e->n[i];
            for (int k = 0; k < e->nop; k++) e->s[k][m] = e->s[k][i];
        }
    }
    if (e->ndim > 0) e->ndim = m + 1;
}

/* Operands: the output, then the inputs. False: there is nothing to do. */
static bool DT__K(plan_make)(DT__K(plan_t) *e, const dt_view *const *v, int nop)
{
    memset(e, 0, sizeof *e);
    e->nop = nop;
    for (int k = 0; k < nop; k++) {
        e->p[k] = (char *)v[k]->data;
        e->dtype[k] = v[k]->dtype;
        e->size[k] = DT__K(esize)(v[k]->dtype);
    }
    for (int i = v[0]->ndim - 1; i >= 0; i--) {
        if (v[0]->shape[i] == 0) return false;
        if (v[0]->shape[i] == 1) continue;
        e->n[e->ndim] = v[0]->shape[i];
        for (int k = 0; k < nop; k++) e->s[k][e->ndim] = v[k]->stride[i];
        e->ndim++;
    }
    for (int i = 1; i < e->ndim; i++)
        for (int j = i; j > 0 && e->s[0][j] < e->s[0][j - 1]; j--) DT__K(plan_swap)(e, j, j - 1);
    DT__K(plan_merge)(e);
    while (e->ndim < 2) e->n[e->ndim++] = 1;
    return true;
}

static void DT__K(plan_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(plan_t) *e = (const DT__K(plan_t) *)ctx;
    DT__K(tilebuf_t) w;
    (void)worker;
    for (int k = 0; k < 4; k++) w.seen[k] = NULL;
    if (e->ntiles == 1) {
        char *p[4] = { e->p[0], e->p[1], e->p[2], e->p[3] };
        e->tile(e, p, e->n[0], e->n[1], &w);
        return;
    }
    int64_t end = (task + 1) * e->per < e->ntiles ? (task + 1) * e->per : e->ntiles;
    for (int64_t t = task * e->per; t < end; t++) {
        int64_t rest = t / e->nt0, i = (t % e->nt0) * e->cols, j = (rest % e->nt1) * e->rows, off[4];
        rest /= e->nt1;
        for (int k = 0; k < e->nop; k++) off[k] = i * e->s[k][0] + j * e->s[k][1];
        for (int d = 2; d < e->ndim; d++) {
            int64_t x = rest % e->n[d];
            rest /= e->n[d];
            for (int k = 0; k < e->nop; k++) off[k] += x * e->s[k][d];
        }
        char *p[4];
        for (int k = 0; k < e->nop; k++) p[k] = e->p[k] + off[k] * e->size[k];
        e->tile(e, p, e->n[0] - i < e->cols ? e->n[0] - i : e->cols, e->n[1] - j < e->rows ? e->n[1] - j : e->rows, &w);
    }
}

static void DT__K(raw_tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows, DT__K(tilebuf_t) *w)
{
    (void)w;
    DT__K(move_tile)(p[0], e->s[0][0], e->s[0][1], p[1], e->s[1][0], e->s[1][1], cols, rows, e->size[0]);
}

/* Cuts the index space into tiles of at most 'most' elements and runs them; grain: elements of a task. */
static int DT__K(plan_run)(DT__K(plan_t) *e, int64_t most, int64_t grain)
{
    bool across = false;
    for (int k = 1; k < e->nop && !across; k++)
        for (int d = 1; d < e->ndim && e->s[k][0] != 0 && e->s[k][0] != 1; d++)
            if (e->s[k][d] == 1) {
                DT__K(plan_swap)(e, 1, d);
                across = true;
                break;
            }
    if (across) {
        e->cols = e->n[0] < 32 ? e->n[0] : 32;
        e->rows = e->n[1] < DT__TILE / e->cols ? e->n[1] : DT__TILE / e->cols;
        if (e->rows < 32) e->cols = e->n[0] < DT__TILE / e->rows ? e->n[0] : DT__TILE / e->rows;
        else if (e->cols == 32) e->rows = 32;
    } else {
        e->cols = e->n[0] < most ? e->n[0] : most;
        int64_t r = (e->tile == DT__K(raw_tile) || e->cols < DT__TILE ? most : e->cols) / e->cols; /* buffers' limit */
        e->rows = e->n[1] < r ? e->n[1] : r;
    }
    e->nt0 = e->cols == e->n[0] ? 1 : (e->n[0] + e->cols - 1) / e->cols;
    e->nt1 = e->rows == e->n[1] ? 1 : (e->n[1] + e->rows - 1) / e->rows;
    e->ntiles = e->nt0 * e->nt1;
    for (int d = 2; d < e->ndim; d++) e->ntiles *= e->n[d];
    int64_t ntasks = dt__cut(e->ntiles, e->cols * e->rows, grain, &e->per);
    dt__pool_run(ntasks, DT__K(plan_task), e);
    return 0;
}

/* Input k of a tile; a broadcast operand that is already in its buffer is not loaded again. */
static const void *DT__K(tile_in)(const DT__K(plan_t) *e, int k, char **p, int64_t cols, int64_t rows,
                                  DT__K(tilebuf_t) *w, bool ints)
{
    if (w->seen[k] == p[k] && w->seen_n[k] == cols * DT__TILE + rows) return &w->op[k];
    const void *x =
        DT__K(get_tile)(&w->op[k], p[k], e->dtype[k], e->s[k][0], e->s[k][1], cols, rows, ints);
    w->seen[k] = x == (const void *)&w->op[k] ? p[k] : NULL;
    w->seen_n[k] = cols * DT__TILE + rows;
    return x;
}
/* A row of x and one number: the operand with stride 0 is not spread over a buffer. False: this is not such a tile. */
static bool DT__K(number_tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows)
{
    int k = e->s[2][0] == 0 ? 2 : 1;
    if (!e->row1 || cols < 64 || e->add || (k == 1 && !e->commutes)) return false;
    if (e->s[0][0] != 1 || e->s[3 - k][0] != 1 || e->s[k][0] != 0) return false;
    for (int i = 0; i < 3; i++)
        if (e->dtype[i] != DT_F32) return false;
    for (int64_t j = 0; j < rows; j++) {
        const float *x = (const float *)(void *)p[3 - k] + j * e->s[3 - k][1];
        float        y = ((const float *)(void *)p[k])[j * e->s[k][1]];
        DT__K(row_any)(e->row1, (float *)(void *)p[0] + j * e->s[0][1], x, x, cols, y, e->b * y);
    }
    return true;
}
static void DT__K(float_tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows, DT__K(tilebuf_t) *w)
{
    if (e->row1 && DT__K(number_tile)(e, p, cols, rows)) return;
    const float *x = (const float *)DT__K(tile_in)(e, 1, p, cols, rows, w, false), *y = x;
    if (e->nop > 2) y = (const float *)DT__K(tile_in)(e, 2, p, cols, rows, w, false);
    bool direct = !e->add && e->dtype[0] == DT_F32 && e->s[0][0] == 1 && (rows == 1 || e->s[0][1] == cols);
    float *out = direct ? (float *)(void *)p[0] : w->op[0].f;
    DT__K(row_any)(e->row, out, x, y, cols * rows, e->a, e->b);
    if (!direct) DT__K(put_floats)(p[0], e->dtype[0], e->s[0][0], e->s[0][1], out, cols, rows, e->add);
}
static void DT__K(int_tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows, DT__K(tilebuf_t) *w)
{
    const int64_t *x = (const int64_t *)DT__K(tile_in)(e, 1, p, cols, rows, w, true), *y = x;
    if (e->nop > 2) y = (const int64_t *)DT__K(tile_in)(e, 2, p, cols, rows, w, true);
    if (!e->add && e->dtype[0] == DT_I64 && e->s[0][0] == 1 && (rows == 1 || e->s[0][1] == cols)) {
        e->irow((int64_t *)(void *)p[0], x, y, cols * rows, e->ia, e->ib);
        return;
    }
    e->irow(w->op[0].l, x, y, cols * rows, e->ia, e->ib);
    DT__K(put_ints)(p[0], e->dtype[0], e->s[0][0], e->s[0][1], w->op[0].l, cols, rows, e->add);
}

/* Runs a plan whose functions are set, in int64 if all operands are integers, else in f32. slow: the function costs more
   than the memory traffic, so tasks are smaller */
static int DT__K(plan_apply)(DT__K(plan_t) *e, const char *what, bool slow)
{
    bool ints = true, direct = !e->add;
    for (int k = 0; k < e->nop; k++) {
        ints = ints && DT__K(is_int)(e->dtype[k]);
        direct = direct && e->dtype[k] == DT_F32 && e->s[k][0] == 1;
    }
    if (ints && !e->irow)
        return dt_fail(DT_ERR_DTYPE, "%s: this function does not take integers; cast the operands to f32", what);
    e->tile = ints ? DT__K(int_tile) : DT__K(float_tile);
    /* tiles that are used in place need not fit a buffer */
    return DT__K(plan_run)(e, direct && e->n[0] >= DT__TILE ? 8 * DT__TILE : DT__TILE, slow ? 16384 : 65536);
}

/* The functions and the cost of a row of DT_UNARY_FNS or DT_BINARY_FNS. */
typedef struct DT__K(fn_row) {
    DT__K(row_fn)  row;
    DT__K(irow_fn) irow; /* NULL: does not take integers */
    int            cost; /* DT_COST_... */
} DT__K(fn_row);
#define DT__IROW_FLOATS(f) NULL
#define DT__IROW_INTS(f) DT__K(irow_##f)
#define DT__IROW_COMPARE(f) DT__K(irow_##f)

static int DT__K(unary)(dt_device *dev, const dt_call *c)
{
#define DT__X(n, type, grad, cost, grad_cost, t) { DT__K(row_u_##n), DT__IROW_##type(u_##n), DT_COST_##cost },
    static const DT__K(fn_row) rows[DT_U_COUNT] = { DT_UNARY_FNS(DT__X) };
#undef DT__X
    const dt_view  *v[2] = { &c->out[0], &c->in[0] };
    DT__K(plan_t) e;
    int    fn = c->u.ew.fn;
    double a = c->u.ew.a, b = c->u.ew.b;
    (void)dev;
    if (fn < 0 || fn >= DT_U_COUNT) return dt_fail(DT_ERR_ARG, "unary: there is no function %d", fn);
    if (!DT__K(plan_make)(&e, v, 2)) return 0;
    e.add = c->acc & 1;
    e.a = (float)a;
    e.b = (float)b;
    e.ia = DT__K(dbl_to_i64)(a);
    e.ib = DT__K(dbl_to_i64)(b);
    e.row = rows[fn].row;
    e.irow = rows[fn].irow;
    if (fn == DT_U_AFFINE) {
        if (b == 0) e.row = DT__K(row_u_SCALE);
        else if (a == 1) e.row = DT__K(row_u_SHIFT);
    } else if (fn == DT_U_POW) { /* cheaper forms; their results may differ from POW's in the last bit */
        if (a == 2) e.row = DT__K(row_u_SQUARE);
        else if (a == 3) e.row = DT__K(row_u_CUBE);
        else if (a == 0.5) e.row = DT__K(row_u_SQRT);
        else if (a == -1) e.row = DT__K(row_u_RECIP), e.a = 1.0f;
    }
#if DT__HAS_AVX2
    if (fn == DT_U_GELU && DT__K(wide)()) e.row = DT__K(row_u_gelu_wide);
#endif
    return DT__K(plan_apply)(&e, "unary", rows[fn].cost != DT_COST_CHEAP);
}

static int DT__K(unary_bwd)(dt_device *dev, const dt_call *c)
{
#define DT__X(n, type, grad, cost, grad_cost, t) { DT__K(row_d_##n), NULL, DT_COST_##grad_cost },
    static const DT__K(fn_row) rows[DT_U_COUNT] = { DT_UNARY_FNS(DT__X) };
#undef DT__X
    const dt_view  *v[3] = { &c->out[0], &c->in[0], &c->in[1] };
    DT__K(plan_t) e;
    int fn = c->u.ew.fn;
    (void)dev;
    if (fn < 0 || fn >= DT_U_COUNT) return dt_fail(DT_ERR_ARG, "unary_bwd: there is no function %d", fn);
    /* AFFINE's derivative needs no second operand: dy stands in for one that is absent */
    if (c->nin < 2 || c->in[1].ndim < 0) v[2] = v[1];
    if (!DT__K(plan_make)(&e, v, 3)) return 0;
    e.add = c->acc & 1;
    e.a = (float)c->u.ew.a;
    e.b = (float)c->u.ew.b;
    e.row = fn == DT_U_POW && c->u.ew.a == 2 ? DT__K(row_d_SQUARE) : rows[fn].row;
#if DT__HAS_AVX2
    if (fn == DT_U_GELU && DT__K(wide)()) e.row = DT__K(row_d_gelu_wide);
#endif
    return DT__K(plan_apply)(&e, "unary_bwd", rows[fn].cost != DT_COST_CHEAP);
}

static int DT__K(binary)(dt_device *dev, const dt_call *c)
{
#define DT__X(n, type, grad, cost, t) { DT__K(row_b_##n), DT__IROW_##type(b_##n), DT_COST_##cost },
    static const DT__K(fn_row) rows[DT_B_COUNT] = { DT_BINARY_FNS(DT__X) };
#undef DT__X
    const dt_view  *v[3] = { &c->out[0], &c->in[0], &c->in[1] };
    DT__K(plan_t) e;
    int    fn = c->u.ew.fn;
    double a = c->u.ew.a, b = c->u.ew.b;
    (void)dev;
    if (fn < 0 || fn >= DT_B_COUNT) return dt_fail(DT_ERR_ARG, "binary: there is no function %d", fn);
    if (!DT__K(plan_make)(&e, v, 3)) return 0;
    e.add = c->acc & 1;
    e.a = (float)a;
    e.b = (float)b;
    e.ia = DT__K(dbl_to_i64)(a);
    e.ib = DT__K(dbl_to_i64)(b);
    e.row = rows[fn].row;
    e.irow = rows[fn].irow;
    if (a == 1 && fn == DT_B_ADD && b == 1) e.row = DT__K(row_b_PLUS);
    if (a == 1 && fn == DT_B_MUL) e.row = DT__K(row_b_TIMES), e.row1 = DT__K(row_u_SCALE);
    if (a == 1 && fn == DT_B_ADD && (b == 1 || b == -1)) e.row1 = DT__K(row_u_SHIFT);
    e.commutes = fn == DT_B_MUL || b == 1;
    if (a == 1 && fn == DT_B_ADD && b == 1) e.irow = DT__K(irow_b_PLUS);
    if (a == 1 && fn == DT_B_DIV) e.row = DT__K(row_b_OVER);
    return DT__K(plan_apply)(&e, "binary", rows[fn].cost != DT_COST_CHEAP);
}
#undef DT__IROW_FLOATS
#undef DT__IROW_INTS
#undef DT__IROW_COMPARE

/* ==================================================================================================== >>copy */
static void DT__K(same_row)(float *out, const float *x, const float *y, int64_t n, float a, float b)
{
    (void)y, (void)a, (void)b;
    memmove(out, x, (size_t)n * 4);
}
static void DT__K(same_irow)(int64_t *out, const int64_t *x, const int64_t *y, int64_t n, int64_t a, int64_t b)
{
    (void)y, (void)a, (void)b;
    memmove(out, x, (size_t)n * 8);
}
/* Rows whose result needs no buffer */
static bool DT__K(cast_direct)(int to, int from)
{
    return to == DT_F32 || (to == DT_I64 && DT__K(is_int)(from)) || (from == DT_F32 && !DT__K(is_int)(to));
}
static void DT__K(cast_tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows, DT__K(tilebuf_t) *w)
{
    (void)w;
    for (int64_t j = 0; j < rows; j++) {
        char       *d = p[0] + j * e->s[0][1] * e->size[0];
        const char *s = p[1] + j * e->s[1][1] * e->size[1];
        if (e->dtype[0] == DT_F32) DT__K(to_floats)((float *)(void *)d, s, e->dtype[1], cols);
        else if (e->dtype[0] == DT_I64) DT__K(to_ints)((int64_t *)(void *)d, s, e->dtype[1], cols);
        else DT__K(store_row)(d, e->dtype[0], (const float *)(const void *)s, cols);
    }
}
static int DT__K(copy)(dt_device *dev, const dt_call *c)
{
    const dt_view  *v[2] = { &c->out[0], &c->in[0] };
    DT__K(plan_t) e;
    (void)dev;
    if (!DT__K(plan_make)(&e, v, 2)) return 0;
    e.add = c->acc & 1;
    if (!e.add && e.dtype[0] != e.dtype[1] && e.n[0] >= 64 && e.s[0][0] == 1 && e.s[1][0] == 1 &&
        DT__K(cast_direct)(e.dtype[0], e.dtype[1])) {
        e.tile = DT__K(cast_tile);
        return DT__K(plan_run)(&e, 8 * DT__TILE, 65536);
    }
    if (e.dtype[0] == e.dtype[1] && !e.add) {
        e.tile = DT__K(raw_tile);
        return DT__K(plan_run)(&e, 16 * DT__TILE, 65536);
    }
    e.row = DT__K(same_row);
    e.irow = DT__K(same_irow);
    return DT__K(plan_apply)(&e, "copy", false);
}

static int DT__K(fill)(dt_device *dev, const dt_call *c) /* a copy of one value with strides 0 */
{
    union { float f; uint16_t h; int32_t i; int64_t l; uint8_t b; } one;
    float   f = (float)c->u.ew.a;
    dt_view x = c->out[0];
    int64_t l = DT__K(to_int)(c->u.ew.a, x.dtype);
    memset(&one, 0, sizeof one);
    (void)dev;
    if (x.dtype == DT_F32) one.f = f;
    else if (x.dtype == DT_I32) one.i = (int32_t)l;
    else if (x.dtype == DT_I64) one.l = l;
    else if (x.dtype == DT_U8) one.b = (uint8_t)l;
    else one.h = x.dtype == DT_F16 ? dt__f32_to_f16(f) : dt__f32_to_bf16(f);
    x.data = &one;
    for (int i = 0; i < DT_MAX_DIMS; i++) x.stride[i] = 0;
    const dt_view  *v[2] = { &c->out[0], &x };
    DT__K(plan_t) e;
    if (!DT__K(plan_make)(&e, v, 2)) return 0;
    e.tile = DT__K(raw_tile);
    return DT__K(plan_run)(&e, 16 * DT__TILE, 65536);
}

static int DT__K(iota)(dt_device *dev, const dt_call *c)
{
    const dt_view *y = &c->out[0];
    int64_t n = y->ndim > 0 ? y->shape[0] : 1, s = y->ndim > 0 ? y->stride[0] : 1, l[256];
    int64_t ia = DT__K(dbl_to_i64)(c->u.ew.a), ib = DT__K(dbl_to_i64)(c->u.ew.b);
    bool    whole = c->u.ew.a == (double)ia && c->u.ew.b == (double)ib && DT__K(is_int)(y->dtype);
    float   f[256];
    (void)dev;
    for (int64_t at = 0; at < n; at += 256) {
        int64_t m = n - at < 256 ? n - at : 256;
        char   *d = (char *)y->data + at * s * DT__K(esize)(y->dtype);
        for (int64_t i = 0; i < m; i++) {
            double v = __builtin_fma(c->u.ew.b, (double)(at + i), c->u.ew.a);
            f[i] = (float)v;
            l[i] = whole ? (int64_t)((uint64_t)ia + (uint64_t)ib * (uint64_t)(at + i)) : DT__K(to_int)(v, y->dtype);
        }
        if (DT__K(is_int)(y->dtype)) DT__K(put_ints)(d, y->dtype, s, 0, l, m, 1, false);
        else DT__K(put_floats)(d, y->dtype, s, 0, f, m, 1, false);
    }
    return 0;
}

#define DT__PICK(bits)                                                                                              \
    static void DT__K(pick##bits)(void *out, int64_t so, const uint8_t *m, const void *xp, int64_t sx,              \
                                  const void *yp, int64_t sy, int64_t n)                                            \
    {                                                                                                               \
        DT__K(a##bits##_t) *d = (DT__K(a##bits##_t) *)out;                                                          \
        const DT__K(a##bits##_t) *x = (const DT__K(a##bits##_t) *)xp, *y = (const DT__K(a##bits##_t) *)yp;          \
        if (so == 1 && sx == 1 && sy == 1) {                                                                        \
            for (int64_t i = 0; i < n; i++) {                                                                       \
                DT__K(a##bits##_t) p = x[i], q = y[i];                                                              \
                d[i] = m[i] ? p : q;                                                                                \
            }                                                                                                       \
        } else {                                                                                                    \
            for (int64_t i = 0; i < n; i++) d[i * so] = m[i] ? x[i * sx] : y[i * sy];                               \
        }                                                                                                           \
    }
DT__PICK(8)
DT__PICK(16)
DT__PICK(32)
DT__PICK(64)
#undef DT__PICK

static void DT__K(where_mask)(uint8_t *m, const void *p, int dtype, int64_t s, int64_t n)
{
    if (dtype == DT_U8) {
        for (int64_t i = 0; i < n; i++) m[i] = ((const uint8_t *)p)[i * s] != 0;
    } else if (dtype == DT_I32) {
        for (int64_t i = 0; i < n; i++) m[i] = ((const int32_t *)p)[i * s] != 0;
    } else {
        for (int64_t i = 0; i < n; i++) m[i] = ((const int64_t *)p)[i * s] != 0;
    }
}
static void DT__K(where_tile)(const DT__K(plan_t) *e, char **p, int64_t cols, int64_t rows, DT__K(tilebuf_t) *w)
{
    uint8_t mask[DT__TILE];
    int     size = e->size[0];
    for (int64_t j = 0; j < rows; j++) {
        char *q[4];
        for (int k = 0; k < 4; k++) q[k] = p[k] + j * e->s[k][1] * e->size[k];
        int64_t so = e->s[0][0], sx = e->s[2][0], sy = e->s[3][0];
        void   *d = q[0];
        if (e->add) {
            d = &w->op[0];
            so = 1;
        }
        DT__K(where_mask)(mask, q[1], e->dtype[1], e->s[1][0], cols);
        if (size == 4) DT__K(pick32)(d, so, mask, q[2], sx, q[3], sy, cols);
        else if (size == 2) DT__K(pick16)(d, so, mask, q[2], sx, q[3], sy, cols);
        else if (size == 8) DT__K(pick64)(d, so, mask, q[2], sx, q[3], sy, cols);
        else DT__K(pick8)(d, so, mask, q[2], sx, q[3], sy, cols);
        if (!e->add) continue;
        if (DT__K(is_int)(e->dtype[0])) {
            DT__K(to_ints)(w->op[1].l, d, e->dtype[0], cols);
            DT__K(put_ints)(q[0], e->dtype[0], e->s[0][0], 0, w->op[1].l, cols, 1, true);
        } else {
            DT__K(to_floats)(w->op[1].f, d, e->dtype[0], cols);
            DT__K(put_floats)(q[0], e->dtype[0], e->s[0][0], 0, w->op[1].f, cols, 1, true);
        }
    }
}
static int DT__K(where)(dt_device *dev, const dt_call *c)
{
    const dt_view  *v[4] = { &c->out[0], &c->in[0], &c->in[1], &c->in[2] };
    DT__K(plan_t) e;
    (void)dev;
    if (!DT__K(plan_make)(&e, v, 4)) return 0;
    if (!DT__K(is_int)(e.dtype[1])) return dt_fail(DT_ERR_DTYPE, "where: the condition must be u8, i32 or i64");
    if (e.dtype[2] != e.dtype[0] || e.dtype[3] != e.dtype[0])
        return dt_fail(DT_ERR_DTYPE, "where: the two values and the result must have one dtype; cast them");
    e.add = c->acc & 1;
    e.tile = DT__K(where_tile);
    return DT__K(plan_run)(&e, DT__TILE, 32768);
}

/* ==================================================================================================== >>reduce
   There is one output for each index of the kept dims. Kept and reduced dims are merged, smallest stride of x first. The
   outputs along kept dim 0 are cut into groups, the reduced elements into chunks: an item is (outer kept index, group,
   chunk) and computes one state for each output of its group. The states of chunks are merged in order. All cuts depend
   on shapes alone.
     by rows     each output by itself: pieces of up to 2048 elements, lanes in f32, pieces in double
     by columns  all outputs of the group at once, 64 rows in f32, then double; when few columns are dense, several rows
                 are folded into one wide row
   The variance is two passes over a block that is still in cache, merged by Chan's formula. */
#define DT__COLS 512 /* outputs of a group at most */
typedef struct DT__K(state) {
    double  s, q;    /* sum, maximum or mean; sum of squares about the mean */
    int64_t n, i, v; /* elements so far; index of the maximum; integer value */
} DT__K(state_t);

typedef struct DT__K(red) {
    int     fn, xtype, ytype, xsize, ysize, nk, nr;
    bool    ints, add, biased, columns;
    char   *x, *y;
    int64_t kn[DT_MAX_DIMS + 1], kx[DT_MAX_DIMS + 1], ky[DT_MAX_DIMS + 1]; /* kept: sizes, strides of x and of y */
    int64_t rn[DT_MAX_DIMS + 2], rx[DT_MAX_DIMS + 2];                      /* reduced: sizes, strides of x */
    int64_t m, n;                       /* outputs; elements that go into one */
    int64_t cols, rows, np0, np1;       /* by rows: a piece, pieces along dims 0 and 1 */
    int64_t fold, rest;                 /* by columns: rows in one wide row; rows that are left over */
    int64_t units, chunk, nchunks;      /* pieces or rows in all; in a chunk; chunks */
    int64_t group, ngroups, nitems, per; /* outputs of a group; groups along kept dim 0 */
    DT__K(state_t) *part;               /* [item][group], if there is more than one chunk */
} DT__K(red_t);

DT__INLINE bool DT__K(is_simple)(int fn) { return fn == DT_R_SUM || fn == DT_R_MEAN || fn == DT_R_MAX || fn == DT_R_MIN; }
DT__INLINE bool DT__K(is_index)(int fn) { return fn == DT_R_ARGMAX || fn == DT_R_ARGMIN; }
DT__INLINE bool DT__K(beats)(int fn, double a, double b) /* a replaces b: NaN does, an equal value does not */
{
    return b == b && (a != a || (fn == DT_R_MIN || fn == DT_R_ARGMIN ? a < b : a > b));
}
static void DT__K(state_merge)(const DT__K(red_t) *r, DT__K(state_t) *d, const DT__K(state_t) *s) /* s comes after d */
{
    if (s->n == 0) return;
    if (d->n == 0) {
        *d = *s;
        return;
    }
    bool take = false;
    if (r->fn == DT_R_SUM || r->fn == DT_R_MEAN) {
        d->s += s->s;
        d->v = (int64_t)((uint64_t)d->v + (uint64_t)s->v);
    } else if (r->fn == DT_R_VAR) { /* quotients, not products, feed the sums: nothing to fuse */
        double na = (double)d->n, nb = (double)s->n, delta = s->s - d->s;
        d->s += delta * nb / (na + nb);
        d->q += s->q;
        d->q += delta * delta * na * nb / (na + nb);
    } else if (r->fn == DT_R_PROD) {
        d->s *= s->s;
        d->v = (int64_t)((uint64_t)d->v * (uint64_t)s->v);
    } else if (r->fn == DT_R_NORM) {
        d->q += s->q;
    } else if (r->fn == DT_R_LSE) { /* s: maximum, q: sum of exp(x - s); NaN stays */
        double low = s->s > d->s ? d->s : s->s;
        if (s->s != d->s) {
            take = s->s > d->s || s->s != s->s;
            d->q = (take ? s->q : d->q) + (take ? d->q : s->q) * exp(low - (take ? s->s : d->s));
            d->s = take ? s->s : d->s;
        } else {
            d->q += s->q;
        }
        d->n += s->n;
        return;
    } else if (r->ints) {
        take = r->fn == DT_R_MIN || r->fn == DT_R_ARGMIN ? s->v < d->v : s->v > d->v;
    } else {
        take = DT__K(beats)(r->fn, s->s, d->s);
    }
    if (take) {
        d->s = s->s;
        d->v = s->v;
        d->i = s->i;
    }
    d->n += s->n;
}

/* n outputs at once. The sums of columns begin at +0 and never become -0, so an addition merges them. */
static void DT__K(states_merge)(const DT__K(red_t) *r, DT__K(state_t) *d, const DT__K(state_t) *s, int64_t n)
{
    bool sum = r->columns && (r->fn == DT_R_SUM || r->fn == DT_R_MEAN);
    for (int64_t i = 0; sum && i < n; i++) {
        d[i].s += s[i].s;
        d[i].n += s[i].n;
    }
    for (int64_t i = 0; !sum && i < n; i++) DT__K(state_merge)(r, &d[i], &s[i]);
}

/* One piece of n contiguous floats. The last vector is padded with the identity of the operation. */
DT__INLINE dt__vf DT__K(tail)(const float *x, int64_t n, float pad)
{
    float t[DT__W];
    for (int i = 0; i < DT__W; i++) t[i] = pad;
    memcpy(t, x, (size_t)n * 4);
    return DT__K(ld)(t);
}
static float DT__K(leaf_sum)(const float *x, int64_t n) /* sums of 16 terms per lane, then their sum: less rounding */
{
    dt__vf  a0 = DT__ZERO, a1 = a0, a2 = a0, a3 = a0, all = a0;
    int64_t i = 0;
    for (; i + 4 * DT__W <= n; i += 4 * DT__W) {
        a0 += DT__K(ld)(x + i);
        a1 += DT__K(ld)(x + i + DT__W);
        a2 += DT__K(ld)(x + i + 2 * DT__W);
        a3 += DT__K(ld)(x + i + 3 * DT__W);
        if ((i / (4 * DT__W)) % 16 == 15) {
            all += (a0 + a1) + (a2 + a3);
            a0 = a1 = a2 = a3 = DT__ZERO;
        }
    }
    for (; i + DT__W <= n; i += DT__W) a0 += DT__K(ld)(x + i);
    if (i < n) a1 += DT__K(ld_some)(x + i, n - i);
    return DT__K(hsum)(all + ((a0 + a1) + (a2 + a3)));
}
static void DT__K(leaf_var)(DT__K(state_t) *s, const float *x, int64_t n)
{
    float   mean = DT__K(leaf_sum)(x, n) / (float)n;
    if (!(mean - mean == 0.0f)) { /* the sum overflowed, or an element is not finite: use double */
        s->s = s->q = 0;
        for (int64_t j = 0; j < n; j++) s->s += (double)x[j] / (double)n;
        for (int64_t j = 0; j < n; j++) {
            double d = (double)x[j] - s->s;
            s->q = __builtin_fma(d, d, s->q);
        }
        return;
    }
    dt__vf  mu = DT__C(mean), s0 = DT__ZERO, s1 = s0, q0 = s0, q1 = s0;
    int64_t i = 0;
    for (; i + 2 * DT__W <= n; i += 2 * DT__W) {
        dt__vf d = DT__K(ld)(x + i) - mu, f = DT__K(ld)(x + i + DT__W) - mu;
        s0 += d;
        s1 += f;
        q0 = DT__K(fma)(d, d, q0);
        q1 = DT__K(fma)(f, f, q1);
    }
    for (; i < n; i += DT__W) {
        dt__vf d = (n - i < DT__W ? DT__K(tail)(x + i, n - i, mean) : DT__K(ld)(x + i)) - mu;
        s0 += d;
        q0 = DT__K(fma)(d, d, q0);
    }
    double ds = (double)DT__K(hsum)(s0 + s1), dn = (double)n;
    s->s = (double)mean + ds / dn;
    s->q = (double)DT__K(hsum)(q0 + q1) - ds * ds / dn;
    if (s->q < 0) s->q = 0;
}
DT__INLINE dt__vf DT__K(vtop)(dt__vf x, dt__vf m, bool least) /* the larger (smaller) of both; NaN if one is NaN */
{
    return least ? DT__SEL((x < m) | (x != x), x, m) : DT__SEL((x > m) | (x != x), x, m);
}
/* the larger (smaller) of both, m if x is NaN */
DT__INLINE dt__vf DT__K(vmore)(dt__vf x, dt__vf m, bool least) { return least ? DT__K(vmin)(x, m) : DT__K(vmax)(x, m); }
DT__INLINE bool   DT__K(any)(dt__vi mask)
{
#if DT__HAS_AVX2
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int32_t any = 0;
    for (int k = 0; k < DT__W; k++) any |= mask[k];
    return any != 0;
#endif
}
DT__INLINE float DT__K(leaf_extreme)(const float *x, int64_t n, bool least)
{
    dt__vf  m0 = DT__C(x[0]), m1 = m0, m2 = m0, m3 = m0;
    dt__vi  nan = (dt__vi)(m0 != m0);
    float   t[DT__W], m;
    int64_t i = 0;
    for (; i + 4 * DT__W <= n; i += 4 * DT__W) {
        dt__vf a = DT__K(ld)(x + i), b = DT__K(ld)(x + i + DT__W), c = DT__K(ld)(x + i + 2 * DT__W);
        dt__vf d = DT__K(ld)(x + i + 3 * DT__W);
        nan |= ((dt__vi)(a != a) | (dt__vi)(b != b)) | ((dt__vi)(c != c) | (dt__vi)(d != d));
        m0 = DT__K(vmore)(a, m0, least);
        m1 = DT__K(vmore)(b, m1, least);
        m2 = DT__K(vmore)(c, m2, least);
        m3 = DT__K(vmore)(d, m3, least);
    }
    m0 = DT__K(vmore)(m2, m0, least);
    m1 = DT__K(vmore)(m3, m1, least);
    if (DT__K(any)(nan)) return NAN;
    for (; i < n; i += DT__W)
        m0 = DT__K(vtop)(n - i < DT__W ? DT__K(tail)(x + i, n - i, x[0]) : DT__K(ld)(x + i), m0, least);
    DT__K(st)(t, DT__K(vtop)(m1, m0, least));
    m = t[0];
    for (int k = 1; k < DT__W; k++) m = t[k] != t[k] || (least ? t[k] < m : t[k] > m) ? t[k] : m;
    return m;
}
static float DT__K(leaf_max)(const float *x, int64_t n) { return DT__K(leaf_extreme)(x, n, false); }
static float DT__K(leaf_min)(const float *x, int64_t n) { return DT__K(leaf_extreme)(x, n, true); }

static int64_t DT__K(leaf_find)(const float *x, int64_t n, float m) /* position of the first m (or NaN); it must exist */
{
    int64_t at = 0;
    for (; at + DT__W <= n; at += DT__W) {
        dt__vf v = DT__K(ld)(x + at);
        dt__vi hit = m == m ? (dt__vi)(v == DT__C(m)) : (dt__vi)(v != v);
#if DT__HAS_AVX2
        if (_mm256_movemask_ps((__m256)hit)) break;
#else
        int32_t any = 0;
        for (int k = 0; k < DT__W; k++) any |= hit[k];
        if (any) break;
#endif
    }
    while (m == m ? x[at] != m : x[at] == x[at]) at++;
    return at;
}
static double DT__K(leaf_squares)(const float *x, int64_t n)
{
    dt__vf  q0 = DT__ZERO, q1 = q0;
    int64_t i = 0;
    for (; i + 2 * DT__W <= n; i += 2 * DT__W) {
        dt__vf d = DT__K(ld)(x + i), f = DT__K(ld)(x + i + DT__W);
        q0 = DT__K(fma)(d, d, q0);
        q1 = DT__K(fma)(f, f, q1);
    }
    for (; i < n; i += DT__W) {
        dt__vf d = n - i < DT__W ? DT__K(tail)(x + i, n - i, 0.0f) : DT__K(ld)(x + i);
        q0 = DT__K(fma)(d, d, q0);
    }
    return (double)DT__K(hsum)(q0 + q1);
}
static double DT__K(leaf_exps)(const float *x, int64_t n, float m) /* sum of exp(x - m); m is finite and the largest */
{
    dt__vf  sum = DT__ZERO, top = DT__C(m);
    int64_t i = 0;
    for (; i + DT__W <= n; i += DT__W) sum += DT__K(exp_low)(DT__K(ld)(x + i) - top);
    double s = (double)DT__K(hsum)(sum);
    if (i < n) {
        float e[DT__W];
        DT__K(st)(e, DT__K(exp_low)(DT__K(tail)(x + i, n - i, m) - top));
        for (int64_t k = 0; k < n - i; k++) s += (double)e[k];
    }
    return s;
}
static double DT__K(leaf_product)(const float *x, int64_t n) /* in double: only the result can overflow */
{
    double  p[4] = { 1, 1, 1, 1 };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) p[k] *= (double)x[i + k];
    for (; i < n; i++) p[0] *= (double)x[i];
    return (p[0] * p[1]) * (p[2] * p[3]);
}
static void DT__K(leaf)(const DT__K(red_t) *r, DT__K(state_t) *s, const void *p, int64_t n, int64_t base)
{
    const float   *x = (const float *)p;
    const int64_t *l = (const int64_t *)p;
    memset(s, 0, sizeof *s);
    s->n = n;
    if (r->ints) {
        uint64_t sum = 0;
        int64_t  at = 0;
        bool     least = r->fn == DT_R_MIN || r->fn == DT_R_ARGMIN;
        if (r->fn == DT_R_SUM) {
            for (int64_t i = 0; i < n; i++) sum += (uint64_t)l[i];
        } else if (r->fn == DT_R_PROD) {
            sum = 1;
            for (int64_t i = 0; i < n; i++) sum *= (uint64_t)l[i];
        } else {
            for (int64_t i = 1; i < n; i++)
                if (least ? l[i] < l[at] : l[i] > l[at]) at = i;
        }
        s->v = r->fn == DT_R_SUM || r->fn == DT_R_PROD ? (int64_t)sum : l[at];
        s->i = base + at;
    } else if (r->fn == DT_R_VAR) {
        DT__K(leaf_var)(s, x, n);
    } else if (r->fn == DT_R_SUM || r->fn == DT_R_MEAN) {
        s->s = (double)DT__K(leaf_sum)(x, n);
    } else if (r->fn == DT_R_PROD) {
        s->s = DT__K(leaf_product)(x, n);
    } else if (r->fn == DT_R_NORM) {
        s->q = DT__K(leaf_squares)(x, n);
    } else if (r->fn == DT_R_LSE) {
        float m = DT__K(leaf_max)(x, n);
        s->s = (double)m;
        s->q = m - m == 0.0f ? DT__K(leaf_exps)(x, n, m) : 1; /* infinite or NaN: the result is m */
    } else {
        bool    least = r->fn == DT_R_MIN || r->fn == DT_R_ARGMIN;
        float   m = least ? DT__K(leaf_min)(x, n) : DT__K(leaf_max)(x, n);
        int64_t at = 0;
        if (DT__K(is_index)(r->fn)) at = DT__K(leaf_find)(x, n, m);
        s->s = (double)m;
        s->i = base + at;
    }
}

/* By rows, each one contiguous piece of f32: without states. The same bits. */
static void DT__K(red_short)(const DT__K(red_t) *r, char *y, const char *x, int64_t g)
{
    float f[DT__COLS];
    for (int64_t o = 0; o < g; o++) {
        const float *p = (const float *)(const void *)x + o * r->kx[0];
        if (r->fn == DT_R_MAX) f[o] = DT__K(leaf_max)(p, r->n);
        else if (r->fn == DT_R_MIN) f[o] = DT__K(leaf_min)(p, r->n);
        else f[o] = DT__K(leaf_sum)(p, r->n);
        if (r->fn == DT_R_MEAN) f[o] = (float)((double)f[o] / (double)r->n);
    }
    DT__K(put_floats)(y, r->ytype, r->ky[0], 0, f, g, 1, r->add);
}
/* By rows: pieces [from, to) of each of g outputs */
static void DT__K(red_rows)(const DT__K(red_t) *r, DT__K(state_t) *st, const char *x, int64_t g, int64_t from,
                            int64_t to)
{
    int64_t buf[DT__TILE];
    for (int64_t o = 0; o < g; o++)
        for (int64_t u = from; u < to; u++) {
            int64_t rest = u / r->np0, i = u % r->np0 * r->cols, j = rest % r->np1 * r->rows;
            int64_t off = o * r->kx[0] + i * r->rx[0] + j * r->rx[1], q = rest / r->np1;
            int64_t base = (q * r->rn[1] + j) * r->rn[0] + i;
            for (int d = 2; d < r->nr; d++) {
                off += q % r->rn[d] * r->rx[d];
                q /= r->rn[d];
            }
            int64_t cols = r->rn[0] - i < r->cols ? r->rn[0] - i : r->cols;
            int64_t rows = r->rn[1] - j < r->rows ? r->rn[1] - j : r->rows;
            const void *p = DT__K(get_tile)(buf, x + off * r->xsize, r->xtype, r->rx[0], r->rx[1], cols, rows, r->ints);
            DT__K(state_t) s;
            DT__K(leaf)(r, &s, p, cols * rows, base);
            DT__K(state_merge)(r, &st[o], &s);
        }
}

/* By columns: kernels over up to 8 rows of w columns. The loops over the last columns round like the vectors. */
typedef struct DT__K(colbuf) {
    float   acc[DT__COLS], mu[DT__COLS], q[DT__COLS];
    int32_t at[DT__COLS], row; /* argmax: row of the maximum within the block; the next row */
    bool    first, least; /* least: argmin */
} DT__K(colbuf_t);

DT__INLINE float DT__K(fma1)(float a, float b, float c)
{
#if DT__HAS_AVX2 || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
static void DT__K(cols_sum)(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w)
{
    int64_t i = 0;
    if (nrows == 8) { /* copies of the pointers: the compiler must assume that the stores change p */
        const float *a = p[0], *c = p[1], *d = p[2], *e = p[3], *f = p[4], *g = p[5], *h = p[6], *k = p[7];
        for (; i + DT__W <= w; i += DT__W) {
            dt__vf s0 = DT__K(ld)(a + i) + DT__K(ld)(c + i), s1 = DT__K(ld)(d + i) + DT__K(ld)(e + i);
            dt__vf s2 = DT__K(ld)(f + i) + DT__K(ld)(g + i), s3 = DT__K(ld)(h + i) + DT__K(ld)(k + i);
            DT__K(st)(b->acc + i, DT__K(ld)(b->acc + i) + ((s0 + s1) + (s2 + s3)));
        }
        for (; i < w; i++) b->acc[i] += ((a[i] + c[i]) + (d[i] + e[i])) + ((f[i] + g[i]) + (h[i] + k[i]));
        return;
    }
    for (int64_t j = 0; j < nrows; j++) {
        for (i = 0; i + DT__W <= w; i += DT__W) DT__K(st)(b->acc + i, DT__K(ld)(b->acc + i) + DT__K(ld)(p[j] + i));
        for (; i < w; i++) b->acc[i] += p[j][i];
    }
}
static void DT__K(cols_var)(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w) /* about mu */
{
    int64_t i = 0;
    for (; i + DT__W <= w; i += DT__W) {
        dt__vf mu = DT__K(ld)(b->mu + i), s = DT__K(ld)(b->acc + i), q = DT__K(ld)(b->q + i);
        for (int64_t j = 0; j < nrows; j++) {
            dt__vf d = DT__K(ld)(p[j] + i) - mu;
            s += d;
            q = DT__K(fma)(d, d, q);
        }
        DT__K(st)(b->acc + i, s);
        DT__K(st)(b->q + i, q);
    }
    for (; i < w; i++)
        for (int64_t j = 0; j < nrows; j++) {
            float d = p[j][i] - b->mu[i];
            b->acc[i] += d;
            b->q[i] = DT__K(fma1)(d, d, b->q[i]);
        }
}
DT__INLINE void DT__K(cols_extreme)(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w, bool least)
{
    int64_t i = 0;
    if (b->first) memcpy(b->acc, p[0], (size_t)w * 4);
    b->first = false;
#if DT__HAS_AVX2
    if (nrows == 8) { /* copies of the pointers, as in cols_sum; one comparison finds a NaN in two rows */
        const float *r[8] = { p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7] };
        for (; i + DT__W <= w; i += DT__W) {
            dt__vf m = DT__K(ld)(b->acc + i), bad = (dt__vf)(m != m);
            for (int j = 0; j < 8; j += 2) {
                dt__vf x = DT__K(ld)(r[j] + i), y = DT__K(ld)(r[j + 1] + i), u;
                __asm__("vcmpunordps {%2, %1, %0|%0, %1, %2}" : "=x"(u) : "x"(x), "x"(y));
                bad = (dt__vf)((dt__vi)bad | (dt__vi)u);
                m = DT__K(vmore)(y, DT__K(vmore)(x, m, least), least);
            }
            DT__K(st)(b->acc + i, DT__K(sel)((dt__vi)bad, DT__C(NAN), m));
        }
    }
#endif
    for (; i + DT__W <= w; i += DT__W) {
        dt__vf m = DT__K(ld)(b->acc + i);
        dt__vi nan = (dt__vi)(m != m);
        for (int64_t j = 0; j < nrows; j++) {
            dt__vf x = DT__K(ld)(p[j] + i);
            m = DT__K(vmore)(x, m, least);
            nan |= (dt__vi)(x != x);
        }
        DT__K(st)(b->acc + i, DT__K(sel)(nan, DT__C(NAN), m));
    }
    for (; i < w; i++)
        for (int64_t j = 0; j < nrows; j++) {
            float v = p[j][i], m = b->acc[i];
            b->acc[i] = v != v || (least ? v < m : v > m) ? v : m;
        }
}
static void DT__K(cols_max)(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w)
{
    DT__K(cols_extreme)(b, p, nrows, w, false);
}
static void DT__K(cols_min)(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w)
{
    DT__K(cols_extreme)(b, p, nrows, w, true);
}

static void DT__K(cols_argmax)(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w)
{
    if (b->first) {
        memcpy(b->acc, p[0], (size_t)w * 4);
        memset(b->at, 0, (size_t)w * 4);
        b->row = 0;
        b->first = false;
    }
    for (int64_t j = 0; j < nrows; j++, b->row++) {
        int64_t i = 0;
        for (; i + DT__W <= w; i += DT__W) {
            dt__vf v = DT__K(ld)(p[j] + i), m = DT__K(ld)(b->acc + i);
            dt__vi at = (dt__vi)*(const DT__K(viu_t) *)(b->at + i);
            dt__vi more = b->least ? (dt__vi)(v < m) : (dt__vi)(v > m);
            dt__vi take = (more | (dt__vi)(v != v)) & (dt__vi)(m == m);
            DT__K(st)(b->acc + i, DT__K(sel)(take, v, m));
            *(DT__K(viu_t) *)(b->at + i) = (DT__K(viu_t))((DT__K(set1i)(b->row) & take) | (at & ~take));
        }
        for (; i < w; i++) {
            float v = p[j][i], m = b->acc[i];
            bool  take = m == m && (v != v || (b->least ? v < m : v > m));
            b->acc[i] = take ? v : m;
            b->at[i] = take ? b->row : b->at[i];
        }
    }
}

typedef void (*DT__K(cols_fn))(DT__K(colbuf_t) *b, const float *const *p, int64_t nrows, int64_t w);
/* fn over rows [from, to) of w columns, at most 8 at a time */
static void DT__K(cols_walk)(const DT__K(red_t) *r, DT__K(colbuf_t) *b, DT__K(cols_fn) fn, const char *x, int64_t w,
                             int64_t from, int64_t to)
{
    float   buf[DT__TILE];
    int64_t step;
    for (int64_t u = from; u < to; u += step) {
        int64_t i = u % r->rn[0], q = u / r->rn[0], off = i * r->rx[0];
        for (int d = 1; d < r->nr; d++) {
            off += q % r->rn[d] * r->rx[d];
            q /= r->rn[d];
        }
        step = r->rn[0] - i < 8 ? r->rn[0] - i : 8;
        if (step > to - u) step = to - u;
        const char  *p = x + off * r->xsize;
        const float *row[8];
        if (r->xtype == DT_F32 && r->kx[0] == 1) {
            for (int64_t j = 0; j < step; j++) row[j] = (const float *)(const void *)p + j * r->rx[0];
        } else {
            const float *t = (const float *)DT__K(get_tile)(buf, p, r->xtype, r->kx[0], r->rx[0], w, step, false);
            for (int64_t j = 0; j < step; j++) row[j] = t + j * w;
        }
        fn(b, row, step, w);
    }
}
static void DT__K(cols_block)(const DT__K(red_t) *r, DT__K(state_t) *st, const char *x, int64_t w, int64_t from,
                              int64_t to)
{
    DT__K(colbuf_t) b;
    double n = (double)(to - from);
    DT__K(cols_fn) fn = r->fn == DT_R_MAX ? DT__K(cols_max) : r->fn == DT_R_MIN ? DT__K(cols_min)
                      : DT__K(is_index)(r->fn) ? DT__K(cols_argmax) : r->fn == DT_R_NORM ? DT__K(cols_var) : DT__K(cols_sum);
    b.least = r->fn == DT_R_ARGMIN;
    if (r->fn == DT_R_NORM) { /* squares about 0 */
        memset(b.mu, 0, (size_t)w * 4);
        memset(b.q, 0, (size_t)w * 4);
    }
    memset(b.acc, 0, (size_t)w * 4);
    b.first = true;
    DT__K(cols_walk)(r, &b, fn, x, w, from, to);
    if (r->fn == DT_R_VAR) {
        for (int64_t i = 0; i < w; i++) b.mu[i] = b.acc[i] / (float)n;
        memset(b.acc, 0, (size_t)w * 4);
        memset(b.q, 0, (size_t)w * 4);
        DT__K(cols_walk)(r, &b, DT__K(cols_var), x, w, from, to);
    }
    if (fn == DT__K(cols_sum) && r->fn != DT_R_VAR) {
        for (int64_t i = 0; i < w; i++) {
            st[i].s += (double)b.acc[i];
            st[i].n += to - from;
        }
        return;
    }
    for (int64_t i = 0; i < w; i++) {
        DT__K(state_t) s = { (double)b.acc[i], 0, to - from, 0, 0 };
        if (r->fn == DT_R_VAR) {
            s.q = (double)b.q[i] - s.s * s.s / n;
            if (s.q < 0) s.q = 0;
            s.s = (double)b.mu[i] + s.s / n;
        } else if (DT__K(is_index)(r->fn)) {
            s.i = from + b.at[i];
        } else if (r->fn == DT_R_NORM) {
            s.q = (double)b.q[i];
        }
        DT__K(state_merge)(r, &st[i], &s);
    }
}
/* Sum, mean, maximum or minimum of the columns of a group by one task: without states, which are larger than a column of few
   rows. The same bits. */
static void DT__K(red_few)(const DT__K(red_t) *r, char *y, const char *x, int64_t g)
{
    DT__K(colbuf_t) b;
    double sum[DT__COLS];
    bool   adds = r->fn == DT_R_SUM || r->fn == DT_R_MEAN, one = r->units <= 64;
    memset(b.acc, 0, (size_t)g * 4);
    if (adds && !one) memset(sum, 0, (size_t)g * sizeof *sum);
    b.first = true;
    for (int64_t u = 0; u < r->units; u += 64) {
        DT__K(cols_walk)(r, &b, r->fn == DT_R_MAX ? DT__K(cols_max) : adds ? DT__K(cols_sum) : DT__K(cols_min), x, g, u,
                         u + 64 < r->units ? u + 64 : r->units);
        if (!adds || one) continue;
        for (int64_t i = 0; i < g; i++) sum[i] += (double)b.acc[i];
        memset(b.acc, 0, (size_t)g * 4);
    }
    for (int64_t i = 0; adds && !one && i < g; i++) b.acc[i] = (float)(r->fn == DT_R_MEAN ? sum[i] / (double)r->n : sum[i]);
    for (int64_t i = 0; r->fn == DT_R_MEAN && one && i < g; i++) b.acc[i] = (float)((double)b.acc[i] / (double)r->n);
    if (r->ytype == DT_F32 && r->ky[0] == 1 && !r->add) memcpy(y, b.acc, (size_t)g * 4);
    else DT__K(put_floats)(y, r->ytype, r->ky[0], 0, b.acc, g, 1, r->add);
}
static void DT__K(red_cols)(const DT__K(red_t) *r, DT__K(state_t) *st, const char *x, int64_t g, int64_t from,
                            int64_t to)
{
    DT__K(state_t) wide[DT__COLS];
    int64_t w = g * r->fold;
    if (r->fold == 1 && (r->fn == DT_R_MAX || r->fn == DT_R_MIN)) { /* nothing is rounded: one block */
        DT__K(cols_block)(r, st, x, g, from, to);
        return;
    }
    if (r->fold == 1) {
        for (int64_t u = from; u < to; u += 64) DT__K(cols_block)(r, st, x, g, u, u + 64 < to ? u + 64 : to);
        return;
    }
    memset(wide, 0, sizeof wide);
    for (int64_t u = from; u < to; u += 64) DT__K(cols_block)(r, wide, x, w, u, u + 64 < to ? u + 64 : to);
    for (int64_t k = 0; k < r->fold; k++)
        DT__K(states_merge)(r, st, wide + k * g, g);
    if (to == r->units && r->rest > 0) { /* the rows that did not fill a wide row are one shorter row */
        memset(wide, 0, sizeof wide);
        DT__K(cols_block)(r, wide, x + to * w * r->xsize, r->rest * g, 0, 1);
        for (int64_t k = 0; k < r->rest; k++)
            DT__K(states_merge)(r, st, wide + k * g, g);
    }
}

static void DT__K(red_finish)(const DT__K(red_t) *r, char *y, const DT__K(state_t) *st, int64_t g)
{
    int64_t l[DT__COLS];
    float   f[DT__COLS];
    bool    ints = r->ints || DT__K(is_index)(r->fn);
    for (int64_t i = 0; i < g; i++) {
        double n = (double)st[i].n, v = st[i].s;
        l[i] = DT__K(is_index)(r->fn) ? st[i].i : r->fn == DT_R_PROD && st[i].n == 0 ? 1 : st[i].v;
        if (r->fn == DT_R_PROD && st[i].n == 0) v = 1;
        if (r->fn == DT_R_NORM) v = sqrt(st[i].q);
        if (r->fn == DT_R_LSE) v = st[i].n ? v + log(st[i].q) : -(double)INFINITY;
        if (r->fn == DT_R_MEAN) v = v / n; /* 0/0 = NaN if there are no elements */
        if (r->fn == DT_R_VAR) v = r->biased ? st[i].q / n : n > 0 ? st[i].q / (n - 1) : (double)NAN;
        f[i] = (float)v;
    }
    if (ints) DT__K(put_ints)(y, r->ytype, r->ky[0], 0, l, g, 1, r->add);
    else DT__K(put_floats)(y, r->ytype, r->ky[0], 0, f, g, 1, r->add);
}
/* The offsets of a group; returns the number of its outputs. */
static int64_t DT__K(red_place)(const DT__K(red_t) *r, int64_t grp, int64_t *x, int64_t *y)
{
    int64_t c = grp % r->ngroups * r->group, q = grp / r->ngroups;
    *x = c * r->kx[0];
    *y = c * r->ky[0];
    for (int d = 1; d < r->nk; d++) {
        *x += q % r->kn[d] * r->kx[d];
        *y += q % r->kn[d] * r->ky[d];
        q /= r->kn[d];
    }
    return r->kn[0] - c < r->group ? r->kn[0] - c : r->group;
}
static void DT__K(red_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(red_t) *r = (const DT__K(red_t) *)ctx;
    DT__K(state_t) own[DT__COLS];
    int64_t end = (task + 1) * r->per < r->nitems ? (task + 1) * r->per : r->nitems;
    (void)worker;
    for (int64_t it = task * r->per; it < end; it++) {
        int64_t xo, yo, g = DT__K(red_place)(r, it / r->nchunks, &xo, &yo), from = it % r->nchunks * r->chunk;
        int64_t to = from + r->chunk < r->units ? from + r->chunk : r->units;
        DT__K(state_t) *st = r->part ? r->part + it * r->group : own;
        if (!r->columns && !r->part && r->units == 1 && r->rows == 1 && r->rx[0] == 1 && r->xtype == DT_F32 && !r->ints &&
            DT__K(is_simple)(r->fn)) {
            DT__K(red_short)(r, r->y + yo * r->ysize, r->x + xo * r->xsize, g);
            continue;
        }
        if (r->columns && !r->part && r->fold == 1 && DT__K(is_simple)(r->fn)) {
            DT__K(red_few)(r, r->y + yo * r->ysize, r->x + xo * r->xsize, g);
            continue;
        }
        memset(st, 0, (size_t)g * sizeof *st);
        if (r->columns) DT__K(red_cols)(r, st, r->x + xo * r->xsize, g, from, to);
        else DT__K(red_rows)(r, st, r->x + xo * r->xsize, g, from, to);
        if (!r->part) DT__K(red_finish)(r, r->y + yo * r->ysize, st, g);
    }
}

/* Insert a dim so that x's strides ascend (sorted) or last (not), then merge what is one dim. ys may be NULL. */
static int DT__K(red_dims)(int64_t *n, int64_t *xs, int64_t *ys, int nd, bool sorted)
{
    for (int i = 1; sorted && i < nd; i++)
        for (int j = i; j > 0 && xs[j] < xs[j - 1]; j--) {
            int64_t t = n[j];
            n[j] = n[j - 1], n[j - 1] = t;
            t = xs[j], xs[j] = xs[j - 1], xs[j - 1] = t;
            if (ys) t = ys[j], ys[j] = ys[j - 1], ys[j - 1] = t;
        }
    int m = 0;
    for (int i = 1; i < nd; i++) {
        if (xs[i] == xs[m] * n[m] && (!ys || ys[i] == ys[m] * n[m])) {
            n[m] *= n[i];
        } else {
            m++;
            n[m] = n[i], xs[m] = xs[i];
            if (ys) ys[m] = ys[i];
        }
    }
    return nd > 0 ? m + 1 : 0;
}
static void DT__K(red_plan)(DT__K(red_t) *r)
{
    bool dense = r->kx[0] == 1 && r->xtype == DT_F32;
    int64_t wide = dense ? DT__COLS : 128, most; /* 8 rows of a group fit a tile */
    r->columns = !r->ints && r->kn[0] > 1 && r->n > 1 && r->fn != DT_R_PROD && r->fn != DT_R_LSE &&
                 (r->kx[0] < r->rx[0] || (r->n <= 32 && r->kn[0] >= 8));
    r->fold = 1;
    if (r->columns) {
        r->group = r->kn[0] < wide ? r->kn[0] : wide;
        bool solid = r->nr == 2 && r->rn[1] == 1 && r->kx[0] == 1 && r->rx[0] == r->kn[0];
        if (solid && !DT__K(is_index)(r->fn) && r->kn[0] <= wide / 2) {
            r->fold = wide / r->kn[0] < r->rn[0] ? wide / r->kn[0] : r->rn[0];
            r->rest = r->rn[0] % r->fold;
            r->rn[0] /= r->fold;
            r->rx[0] *= r->fold;
        }
        r->units = r->n / r->fold;
    } else {
        bool direct = r->rx[0] == 1 && r->xtype == (r->ints ? DT_I64 : DT_F32);
        r->cols = r->rn[0] < (direct ? 2048 : DT__TILE) ? r->rn[0] : direct ? 2048 : DT__TILE;
        r->rows = r->cols >= 128 ? 1 : r->rn[1] < DT__TILE / r->cols ? r->rn[1] : DT__TILE / r->cols;
        r->np0 = (r->rn[0] + r->cols - 1) / r->cols;
        r->np1 = (r->rn[1] + r->rows - 1) / r->rows;
        r->units = r->np0 * r->np1;
        for (int d = 2; d < r->nr; d++) r->units *= r->rn[d];
        r->group = r->n >= 16384 ? 1 : 16384 / r->n;
        if (r->group > 256) r->group = 256;
        if (r->group > r->kn[0]) r->group = r->kn[0];
    }
    r->ngroups = (r->kn[0] + r->group - 1) / r->group;
    int64_t groups = r->ngroups;
    for (int d = 1; d < r->nk; d++) groups *= r->kn[d];
    /* chunks of at least 65536 elements, and only as many as it takes to have 64 items */
    most = groups < 64 ? 64 / groups : 1;
    if (most > r->n * r->group / 65536) most = r->n * r->group / 65536;
    if (most < 1) most = 1;
    r->chunk = (r->units + most - 1) / most;
    if (r->chunk < 1) r->chunk = 1;
    r->nchunks = (r->units + r->chunk - 1) / r->chunk;
    if (r->nchunks < 1) r->nchunks = 1;
    r->nitems = groups * r->nchunks;
}

static int DT__K(red_run)(DT__K(red_t) *r)
{
    if (r->n == 0) { /* no elements: the result is the identity */
        r->group = 1;
        r->ngroups = r->kn[0];
        DT__K(state_t) none;
        memset(&none, 0, sizeof none);
        for (int64_t o = 0; o < r->m; o++) {
            int64_t xo, yo;
            DT__K(red_place)(r, o, &xo, &yo);
            DT__K(red_finish)(r, r->y + yo * r->ysize, &none, 1);
        }
        return 0;
    }
    DT__K(red_plan)(r);
    if (r->nchunks > 1) {
        r->part = (DT__K(state_t) *)dt_scratch((size_t)(r->nitems * r->group) * sizeof *r->part);
        if (!r->part) return DT_ERR_MEMORY;
    }
    int64_t ntasks = dt__cut(r->nitems, r->m * r->n / r->nitems + 16, 32768, &r->per);
    dt__pool_run(ntasks, DT__K(red_task), r);
    for (int64_t grp = 0; r->part && grp < r->nitems / r->nchunks; grp++) {
        int64_t xo, yo, g = DT__K(red_place)(r, grp, &xo, &yo);
        DT__K(state_t) *st = r->part + grp * r->nchunks * r->group;
        for (int64_t k = 1; k < r->nchunks; k++)
            DT__K(states_merge)(r, st, st + k * r->group, g);
        DT__K(red_finish)(r, r->y + yo * r->ysize, st, g);
    }
    return 0;
}

static int DT__K(reduce)(dt_device *dev, const dt_call *c)
{
    static const char *const names[DT_R_COUNT] = { "sum", "mean", "max", "min", "argmax", "var", "argmin", "prod", "norm",
                                                   "logsumexp" };
    const dt_view *y = &c->out[0], *x = &c->in[0];
    DT__K(red_t) r;
    (void)dev;
    memset(&r, 0, sizeof r);
    r.fn = c->u.reduce.fn;
    if (r.fn < 0 || r.fn >= DT_R_COUNT) return dt_fail(DT_ERR_ARG, "reduce: there is no function %d", r.fn);
    r.xtype = x->dtype, r.ytype = y->dtype;
    r.xsize = DT__K(esize)(x->dtype), r.ysize = DT__K(esize)(y->dtype);
    r.x = (char *)x->data, r.y = (char *)y->data;
    r.ints = DT__K(is_int)(x->dtype) && DT__K(is_int)(y->dtype);
    r.add = c->acc & 1;
    r.biased = c->u.reduce.biased != 0;
    if (r.ints && (r.fn == DT_R_MEAN || r.fn == DT_R_VAR || r.fn == DT_R_NORM || r.fn == DT_R_LSE))
        return dt_fail(DT_ERR_DTYPE, "reduce: %s does not take integers; cast to f32", names[r.fn]);
    r.m = r.n = 1;
    for (int i = x->ndim - 1; i >= 0; i--) {
        if (x->shape[i] == 1) continue;
        if (y->shape[i] == 1) {
            r.n *= r.rn[r.nr] = x->shape[i];
            r.rx[r.nr++] = x->stride[i];
        } else {
            r.m *= r.kn[r.nk] = x->shape[i];
            r.kx[r.nk] = x->stride[i];
            r.ky[r.nk++] = y->stride[i];
        }
    }
    if (r.m == 0) return 0;
    if (r.n == 0 && (r.fn == DT_R_MAX || r.fn == DT_R_MIN || DT__K(is_index)(r.fn)))
        return dt_fail(DT_ERR_SHAPE, "reduce: %s over no elements has no value; reduce a dimension that is not 0",
                       names[r.fn]);
    r.nk = DT__K(red_dims)(r.kn, r.kx, r.ky, r.nk, true);
    r.nr = DT__K(red_dims)(r.rn, r.rx, NULL, r.nr, !DT__K(is_index)(r.fn));
    if (r.nk == 0) r.nk = 1, r.kn[0] = 1, r.kx[0] = r.ky[0] = 1;
    while (r.nr < 2) r.rn[r.nr] = 1, r.rx[r.nr++] = 0;
    return DT__K(red_run)(&r);
}

#undef DT__C
#undef DT__SEL
#undef DT__ONE
#undef DT__ZERO
#undef DT__UNUSED
#undef DT__TILE
#undef DT__COLS

/* ==================================================================================================== >>gemm
   One micro-kernel, shared with convolution, Winograd and attention: a tile of up to DT__MR rows and DT__NR columns of
   sums is held in registers (12 accumulators, 2 vectors of b, 1 broadcast of a with 16 registers) while k runs. With
   AVX2 it is compiled for each number of rows, so that only the rows that exist are computed; elsewhere the tile always
   has DT__MR rows, the missing ones repeat the first and are not stored. A matrix times a vector has kernels of its own. */
#define DT__MR 6
#define DT__NR (2 * DT__W)

/* out[i] := or += from[i] + sum over segments s and k < len of a[i][segoff[s] + k*step] * b[row][0..NR). b's row pointer
   advances by ldb for each k and goes on across the segments. Row i of a is at a + aoff[i], or at a + i*lda where aoff is
   NULL; out likewise. */
typedef struct DT__K(mk_t) {
    const float   *b, *from, *alpha; /* from: NULL: 0; else alpha[i] from[i*ldf ..], alpha NULL: 1 */
    const int64_t *segoff;
    int64_t        nseg, len, step, lda, ldb, ldf, ldo;
    int            add, relu; /* add: out += the sum; relu: then max(out, 0) */
} DT__K(mk_t);
/* n: rows; of several tiles if it is a multiple of the kernel's */
typedef void (*DT__K(mk_fn))(const DT__K(mk_t) *m, int64_t n, const float *a, const int64_t *aoff, float *out,
                             const int64_t *ooff);
static const int64_t DT__K(mk_whole)[1] = { 0 }; /* segoff of a row that is one segment */

/* c += x*b in place. With the intrinsic, gcc writes the sum to x's register, moves accumulators between registers and
   spills inside the loop. */
#if DT__HAS_AVX2
#define DT__MK_FMA(c, x, b) __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c) : "x"(x), "x"(b))
#else
#define DT__MK_FMA(c, x, b) c = DT__K(fma)(x, b, c)
#endif
#define DT__MK_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) /* separate variables for the rows, so that they stay in registers */
#define DT__MK_ROW(i, x)                        \
    if (mr > i) {                               \
        x_ = DT__K(set1)(x);                    \
        DT__MK_FMA(c##i, x_, b0_);              \
        DT__MK_FMA(d##i, x_, b1_);              \
    }
/* one k: X(i) is a's element of row i, b's row is at b + off */
#define DT__MK_STEP(X, off)                                                                             \
    do {                                                                                                \
        dt__vf b0_ = DT__K(ld)(b + (off)), b1_ = DT__K(ld)(b + (off) + DT__W), x_;                      \
        DT__MK_ROW(0, X(0)) DT__MK_ROW(1, X(1)) DT__MK_ROW(2, X(2))                                     \
        DT__MK_ROW(3, X(3)) DT__MK_ROW(4, X(4)) DT__MK_ROW(5, X(5))                                     \
    } while (0)
/* One tile; mr is a constant, rows <= mr those that exist. packed, a constant: a and b are packed, one segment */
DT__INLINE void DT__K(mk_tile)(int mr, int64_t rows, int packed, const DT__K(mk_t) *m, const float *a, const int64_t *aoff,
                               float *out, const int64_t *ooff)
{
    const float   *b = m->b, *from = m->from, *p0 = a, *p1 = a, *p2 = a, *p3 = a, *p4 = a, *p5 = a;
    const int64_t *seg = packed ? DT__K(mk_whole) : m->segoff, *end = seg + (packed ? 1 : m->nseg);
    int64_t        ldb = packed ? DT__NR : m->ldb, step = packed ? DT__MR : m->step, ld = packed ? 1 : m->lda;
    dt__vf         c0 = DT__K(zero)(), c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0;
    dt__vf         d0 = c0, d1 = c0, d2 = c0, d3 = c0, d4 = c0, d5 = c0;
    if (aoff) {
#define DT__ROW(i) if (mr > i && rows > i) p##i = a + aoff[i];
        DT__MK_EACH(DT__ROW)
#undef DT__ROW
    } else {
#define DT__ROW(i) if (mr > i && rows > i) p##i = a + i * ld;
        DT__MK_EACH(DT__ROW)
#undef DT__ROW
    }
    if (from) {
#define DT__ROW(i) if (mr > i && rows > i) c##i = DT__K(ld)(from), d##i = DT__K(ld)(from + DT__W), from += m->ldf;
        DT__MK_EACH(DT__ROW)
#undef DT__ROW
        if (m->alpha) {
#define DT__ROW(i) if (mr > i && rows > i) c##i *= DT__K(set1)(m->alpha[i]), d##i *= DT__K(set1)(m->alpha[i]);
            DT__MK_EACH(DT__ROW)
#undef DT__ROW
        }
    }
#define DT__A0(i) p##i[at]
    if (!packed && m->len == 1)
        for (; seg < end; seg++, b += ldb) {
            int64_t at = *seg;
            DT__MK_STEP(DT__A0, 0);
        }
    for (; seg < end; seg++) {
        int64_t at = *seg, k = m->len;
#if DT__HAS_AVX2 /* used by large products; unrolled where throughput, not latency, is the limit */
        if (mr > 3 && step == 1) {
#define DT__A1(i) p##i[at + 1]
#define DT__A2(i) p##i[at + 2]
#define DT__A3(i) p##i[at + 3]
            for (; k >= 4 && ldb == DT__NR; k -= 4, at += 4, b += 4 * DT__NR) { /* convolution: b's rows at fixed offsets */
                DT__MK_STEP(DT__A0, 0);
                DT__MK_STEP(DT__A1, DT__NR);
                DT__MK_STEP(DT__A2, 2 * DT__NR);
                DT__MK_STEP(DT__A3, 3 * DT__NR);
                __asm__("" : "+r"(at)); /* keeps one index for all rows: gcc would increment six pointers */
            }
            for (; k >= 4; k -= 4, at += 4) {
                DT__MK_STEP(DT__A0, 0);
                b += ldb;
                DT__MK_STEP(DT__A1, 0);
                b += ldb;
                DT__MK_STEP(DT__A2, 0);
                b += ldb;
                DT__MK_STEP(DT__A3, 0);
                b += ldb;
                __asm__("" : "+r"(at)); /* keeps one index for all rows: gcc would increment six pointers */
            }
#undef DT__A1
#undef DT__A2
#undef DT__A3
        } else if (mr > 3 && packed) {
            const float *q = p0 + at;
#define DT__AQ0(i) q[i]
#define DT__AQ1(i) q[DT__MR + i]
#define DT__AQ2(i) q[2 * DT__MR + i]
#define DT__AQ3(i) q[3 * DT__MR + i]
            for (; k >= 4; k -= 4, q += 4 * DT__MR, b += 4 * DT__NR) {
                DT__MK_STEP(DT__AQ0, 0);
                DT__MK_STEP(DT__AQ1, DT__NR);
                DT__MK_STEP(DT__AQ2, 2 * DT__NR);
                DT__MK_STEP(DT__AQ3, 3 * DT__NR);
            }
#undef DT__AQ0
#undef DT__AQ1
#undef DT__AQ2
#undef DT__AQ3
            at = q - p0;
        } else if (mr > 3 && ld == 1) { /* columns of a matrix */
            const float *q = p0 + at;
#define DT__AQ0(i) q[i]
            for (; k >= 4; k -= 4) {
                DT__MK_STEP(DT__AQ0, 0);
                b += ldb, q += step;
                DT__MK_STEP(DT__AQ0, 0);
                b += ldb, q += step;
                DT__MK_STEP(DT__AQ0, 0);
                b += ldb, q += step;
                DT__MK_STEP(DT__AQ0, 0);
                b += ldb, q += step;
            }
#undef DT__AQ0
            at = q - p0;
        }
#endif
        for (; k > 0; k--, at += step, b += ldb) DT__MK_STEP(DT__A0, 0);
    }
#undef DT__A0
    float *o0 = out, *o1 = out, *o2 = out, *o3 = out, *o4 = out, *o5 = out;
    ld = m->ldo;
    if (ooff) {
#define DT__ROW(i) if (mr > i && rows > i) o##i = out + ooff[i];
        DT__MK_EACH(DT__ROW)
#undef DT__ROW
    } else {
#define DT__ROW(i) if (mr > i && rows > i) o##i = out + i * ld;
        DT__MK_EACH(DT__ROW)
#undef DT__ROW
    }
    if (m->add | m->relu) {
        if (m->add) {
#define DT__ROW(i) if (mr > i && rows > i) c##i += DT__K(ld)(o##i), d##i += DT__K(ld)(o##i + DT__W);
            DT__MK_EACH(DT__ROW)
#undef DT__ROW
        }
        if (m->relu) {
#define DT__ROW(i) if (mr > i) c##i = DT__K(vmax)(DT__K(zero)(), c##i), d##i = DT__K(vmax)(DT__K(zero)(), d##i);
            DT__MK_EACH(DT__ROW)
#undef DT__ROW
        }
    }
#define DT__ROW(i) if (mr > i && rows > i) DT__K(st)(o##i, c##i), DT__K(st)(o##i + DT__W, d##i);
    DT__MK_EACH(DT__ROW)
#undef DT__ROW
}
#define DT__MK(mr)                                                                                              \
    static __attribute__((noinline)) void DT__K(mk##mr)(const DT__K(mk_t) *m, int64_t n, const float *a,        \
                                                        const int64_t *aoff, float *out, const int64_t *ooff)   \
    {                                                                                                           \
        for (;;) {                                                                                              \
            DT__K(mk_tile)(mr, DT__HAS_AVX2 ? mr : n, 0, m, a, aoff, out, ooff);                                \
            if ((n -= mr) <= 0) return;                                                                         \
            if (aoff) aoff += mr;                                                                               \
            else a += mr * m->lda;                                                                              \
            if (ooff) ooff += mr;                                                                               \
            else out += mr * m->ldo;                                                                            \
        }                                                                                                       \
    }
DT__MK(6)
#if DT__HAS_AVX2
DT__MK(1)
DT__MK(2)
DT__MK(3)
DT__MK(4)
DT__MK(5)
/* the way that large products take */
DT__CALLED void DT__K(mk_packed6)(const DT__K(mk_t) *m, const float *a, float *out)
{
    DT__K(mk_tile)(6, 6, 1, m, a, NULL, out, NULL);
}
DT__CALLED void DT__K(mk_packed5)(const DT__K(mk_t) *m, const float *a, float *out)
{
    DT__K(mk_tile)(5, 5, 1, m, a, NULL, out, NULL);
}
static const DT__K(mk_fn) DT__K(mk)[DT__MR + 1] = { NULL, DT__K(mk1), DT__K(mk2), DT__K(mk3), DT__K(mk4), DT__K(mk5),
                                                    DT__K(mk6) };

/* With AVX-512 a row of b is one vector. Tiles of 6 rows, where two of them lie at equal distances 12 rows, and pairs of packed
   panels. Every sum has the same terms in the same order as above: the same bits. */
#define DT__WIDE_CODE __attribute__((target("avx512f,avx2,fma,f16c")))
typedef float DT__K(wf_t) __attribute__((vector_size(64)));
typedef float DT__K(wf_at) __attribute__((vector_size(64), aligned(4), may_alias));
#define dt__wf DT__K(wf_t)
#define DT__WLD(p) ((dt__wf) * (const DT__K(wf_at) *)(p))
#define DT__WST(p, v) (*(DT__K(wf_at) *)(p) = (DT__K(wf_at))(v))
#define DT__MK_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define DT__MK_EACH12(X) DT__MK_EACH(X) X(6) X(7) X(8) X(9) X(10) X(11)
#define DT__MK_ZERO(i) dt__wf c##i = { 0 };
#define DT__MK_FROM(i) c##i = DT__WLD(from + i * m->ldf);
#define DT__MK_ALPHA(i) c##i *= m->alpha[i];
#define DT__MK_ADD(i) c##i += DT__WLD(out + (ooff ? ooff[i] : i * m->ldo));
#define DT__MK_RELU(i) __asm__("vmaxps {%1, %2, %0|%0, %2, %1}" : "=v"(c##i) : "v"(c##i), "v"(none_)); /* NaN stays */
#define DT__MK_STORE(i) DT__WST(out + (ooff ? ooff[i] : i * m->ldo), c##i);
#define DT__MK_END(EACH)                \
    if (m->add) { EACH(DT__MK_ADD) }    \
    if (m->relu) { EACH(DT__MK_RELU) }  \
    EACH(DT__MK_STORE)
#define DT__MK_BEGIN(EACH)                         \
    dt__wf none_ = { 0 };                          \
    EACH(DT__MK_ZERO)                              \
    if (m->from) {                                 \
        const float *from = m->from;               \
        EACH(DT__MK_FROM)                          \
        if (m->alpha) { EACH(DT__MK_ALPHA) }       \
    }
#undef DT__MK_FMA
#define DT__MK_FMA(c, x) __asm__("vfmadd231ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(c) : "v"(b_), "m"(x));

static DT__WIDE_CODE __attribute__((noinline)) void DT__K(mw6)(const DT__K(mk_t) *m, const float *a, const int64_t *aoff,
                                                               float *out, const int64_t *ooff)
{
    const float *b = m->b;
#define DT__ROW(i) const float *p##i = a + (aoff ? aoff[i] : i * m->lda);
    DT__MK_EACH(DT__ROW)
#undef DT__ROW
    DT__MK_BEGIN(DT__MK_EACH)
    for (int64_t s = 0; s < m->nseg; s++) {
        int64_t at = m->segoff[s], k = m->len, ldb = m->ldb;
#define DT__K1(o)                                                                                                 \
    {                                                                                                             \
        dt__wf b_ = DT__WLD(b);                                                                           \
        DT__MK_FMA(c0, p0[at + o]) DT__MK_FMA(c1, p1[at + o]) DT__MK_FMA(c2, p2[at + o])                          \
        DT__MK_FMA(c3, p3[at + o]) DT__MK_FMA(c4, p4[at + o]) DT__MK_FMA(c5, p5[at + o])                          \
        b += ldb;                                                                                                 \
    }
        for (; k >= 4 && m->step == 1; k -= 4, at += 4) {
            DT__K1(0) DT__K1(1) DT__K1(2) DT__K1(3)
            __asm__("" : "+r"(at)); /* keeps one index for all rows */
        }
        for (; k > 0; k--, at += m->step) DT__K1(0)
#undef DT__K1
    }
    DT__MK_END(DT__MK_EACH)
}
/* rows ld apart */
static DT__WIDE_CODE __attribute__((noinline)) void DT__K(mw12)(const DT__K(mk_t) *m, const float *a, int64_t ld, float *out,
                                                                const int64_t *ooff)
{
    const float *b = m->b;
    DT__MK_BEGIN(DT__MK_EACH12)
    for (int64_t s = 0; s < m->nseg; s++) {
        const float *q0 = a + m->segoff[s], *q3 = q0 + 3 * ld, *q6 = q3 + 3 * ld, *q9 = q6 + 3 * ld;
        int64_t      k = m->len, ldb = m->ldb, step = m->step;
#define DT__K1(o)                                                                                                    \
    {                                                                                                                \
        dt__wf b_ = DT__WLD(b);                                                                              \
        DT__MK_FMA(c0, q0[o]) DT__MK_FMA(c1, q0[ld + o]) DT__MK_FMA(c2, q0[2 * ld + o])                              \
        DT__MK_FMA(c3, q3[o]) DT__MK_FMA(c4, q3[ld + o]) DT__MK_FMA(c5, q3[2 * ld + o])                              \
        DT__MK_FMA(c6, q6[o]) DT__MK_FMA(c7, q6[ld + o]) DT__MK_FMA(c8, q6[2 * ld + o])                              \
        DT__MK_FMA(c9, q9[o]) DT__MK_FMA(c10, q9[ld + o]) DT__MK_FMA(c11, q9[2 * ld + o])                            \
        b += ldb;                                                                                                    \
    }
        for (; k >= 4 && step == 1; k -= 4, q0 += 4, q3 += 4, q6 += 4, q9 += 4) { DT__K1(0) DT__K1(1) DT__K1(2) DT__K1(3) }
        for (; k > 0; k--, q0 += step, q3 += step, q6 += step, q9 += step) DT__K1(0)
#undef DT__K1
    }
    DT__MK_END(DT__MK_EACH12)
}
/* two panels of packed a, of r0 and r1 rows (5 or 6), with one panel of packed b */
#define DT__MW_PAIR(r0, r1, EACH0, EACH1)                                                                            \
    static DT__WIDE_CODE __attribute__((noinline)) void DT__K(mw_pair##r0##r1)(                                      \
        const DT__K(mk_t) *m, const float *a, const float *a2, float *out, float *out2)                              \
    {                                                                                                                \
        const float   *b = m->b;                                                                                     \
        const int64_t *ooff = NULL;                                                                                  \
        DT__MK_BEGIN(DT__MK_EACH12)                                                                                  \
        for (int64_t k = m->len; k > 0; k--, a += DT__MR, a2 += DT__MR, b += DT__NR) {                               \
            dt__wf b_ = DT__WLD(b);                                                                          \
            EACH0(DT__MW_FIRST) EACH1(DT__MW_SECOND)                                                                 \
        }                                                                                                            \
        if (m->add) { EACH0(DT__MK_ADD) EACH1(DT__MW_ADD) }                                                          \
        if (m->relu) { EACH0(DT__MK_RELU) EACH1(DT__MW_RELU) }                                                       \
        EACH0(DT__MK_STORE) EACH1(DT__MW_STORE)                                                                      \
        (void)c5, (void)c11, (void)none_;                                                                                        \
    }
#define DT__MW_6_0 c6
#define DT__MW_6_1 c7
#define DT__MW_6_2 c8
#define DT__MW_6_3 c9
#define DT__MW_6_4 c10
#define DT__MW_6_5 c11
#define DT__MW_FIRST(i) DT__MK_FMA(c##i, a[i])
#define DT__MW_SECOND(i) DT__MK_FMA(DT__MW_6_##i, a2[i])
#define DT__MW_ADD(i) DT__MW_6_##i += DT__WLD(out2 + i * m->ldo);
#define DT__MW_RELU(i) __asm__("vmaxps {%1, %2, %0|%0, %2, %1}" : "=v"(DT__MW_6_##i) : "v"(DT__MW_6_##i), "v"(none_));
#define DT__MW_STORE(i) DT__WST(out2 + i * m->ldo, DT__MW_6_##i);
#define DT__MK_EACH5(X) X(0) X(1) X(2) X(3) X(4)
DT__MW_PAIR(6, 6, DT__MK_EACH, DT__MK_EACH)
DT__MW_PAIR(6, 5, DT__MK_EACH, DT__MK_EACH5)
DT__MW_PAIR(5, 5, DT__MK_EACH5, DT__MK_EACH5)
#undef DT__MW_PAIR
#undef DT__MW_6_0
#undef DT__MW_6_1
#undef DT__MW_6_2
#undef DT__MW_6_3
#undef DT__MW_6_4
#undef DT__MW_6_5
#undef DT__MW_FIRST
#undef DT__MW_SECOND
#undef DT__MW_ADD
#undef DT__MW_RELU
#undef DT__MW_STORE
#undef DT__MK_EACH5
#undef DT__MK_EACH12
#undef DT__MK_ZERO
#undef DT__MK_FROM
#undef DT__MK_ALPHA
#undef DT__MK_ADD
#undef DT__MK_RELU
#undef DT__MK_STORE
#undef DT__MK_END
#undef DT__MK_BEGIN
static void DT__K(mk6_wide)(const DT__K(mk_t) *m, int64_t n, const float *a, const int64_t *aoff, float *out,
                            const int64_t *ooff)
{
    DT__K(mk_t) q = *m;
    for (; n > 0;) {
        int64_t mr = n >= 12 ? 12 : 6, ld = aoff ? aoff[1] - aoff[0] : m->lda;
        for (int64_t i = 2; aoff && i < mr && mr == 12; i++)
            if (aoff[i] - aoff[i - 1] != ld) mr = 6;
        if (mr == 12) DT__K(mw12)(&q, aoff ? a + aoff[0] : a, ld, out, ooff);
        else DT__K(mw6)(&q, a, aoff, out, ooff);
        n -= mr;
        if (aoff) aoff += mr;
        else a += mr * m->lda;
        if (ooff) ooff += mr;
        else out += mr * m->ldo;
        if (q.from) q.from += mr * m->ldf;
        if (q.alpha) q.alpha += mr;
    }
}
static const DT__K(mk_fn) DT__K(mkw)[DT__MR + 1] = { NULL, DT__K(mk1), DT__K(mk2), DT__K(mk3), DT__K(mk4), DT__K(mk5),
                                                     DT__K(mk6_wide) };
DT__INLINE bool DT__K(wide)(void) /* does this CPU have AVX-512, and may it be used? */
{
    static int known; /* 0: not asked yet; atomic */
    int        k = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!k) {
        k = dt__cpu_has_avx512() ? 2 : 1;
        __atomic_store_n(&known, k, __ATOMIC_RELAXED);
    }
    return k == 2;
}
DT__INLINE const DT__K(mk_fn) *DT__K(mk_best)(void) { return DT__K(wide)() ? DT__K(mkw) : DT__K(mk); }
#else
static const DT__K(mk_fn) DT__K(mk)[DT__MR + 1] = { NULL, DT__K(mk6), DT__K(mk6), DT__K(mk6), DT__K(mk6), DT__K(mk6),
                                                    DT__K(mk6) };
DT__INLINE const DT__K(mk_fn) *DT__K(mk_best)(void) { return DT__K(mk); }
#endif
#undef DT__MK
#undef DT__MK_STEP
#undef DT__MK_ROW
#undef DT__MK_EACH
#undef DT__MK_FMA

/* The product. c is cut into tiles of tm rows and tn columns, k into blocks of kc: tiles are tasks, a task runs its
   blocks in order, so each sum's order is a function of the shape alone. Inside a block the panels of b (kc x DT__NR,
   about 20 KiB: they stay in L1) are the outer loop, the panels of a (DT__MR x kc, all of them in L2) the inner one.
   Each operand is used in one of three ways: read in place (small problems), packed into panels by all threads
   before the tiles start (if several tiles use it), or packed by the task (if one tile uses it). f16 and bf16 operands
   are converted as they are packed; f16 and bf16 results are summed in an f32 tile and converted once. Very large
   problems are cut into slabs, so that the packed operands take at most a few tens of MiB. A small c with a huge k is cut
   along k into parts, whose number depends on the shape; their sums are added in order.
   Linear layers mostly compute x (m, k) times the transpose of weights (n, k) with m < n, and packing the weights would
   take a tenth of the time. So the product is flipped: c^T = w x^T reads the rows of the weights in place, packs the few
   columns of x^T, and transposes each finished tile. */
#define DT__GEMM_MC 144
#define DT__GEMM_KC 512
#define DT__GEMM_BP(k) (DT__NR * (k) + 16)
#define DT__GEMM_SLAB ((int64_t)4 << 20) /* elements of a packed operand */
enum { DT__K(GEMM_DIRECT), DT__K(GEMM_SHARED), DT__K(GEMM_OWN) };  /* where an operand's panels come from */

typedef struct DT__K(gemm_job) {
    const char *a, *b;
    char       *c;
    int         adt, bdt, cdt, act, add, amode, bmode;
    int         flip; /* m, n, a and b are those of c^T */
    float       alpha;
    const float *bias;                                   /* f32, padded with zeros to whole panels, or NULL */
    int64_t m, n, k, a_m, a_k, b_k, b_n, c_m;            /* strides in elements */
    int     nbatch;                                      /* batch dims */
    int64_t shape[DT_MAX_DIMS], sa[DT_MAX_DIMS], sb[DT_MAX_DIMS], sc[DT_MAX_DIMS], matrices;
    int64_t kpart, kcut;                                 /* parts of k, as a last batch dim; 0: k is not cut */
    int64_t z0, i0, i1, j0, j1, k0, k1;                  /* the slab */
    int64_t tm, tn, mt, nt, kc, nkb, ps, a_block, b_block; /* the tiles of the slab and the sizes of packed blocks */
    int64_t a_pieces, b_pieces; /* of a block, for packing */
    int64_t per, ntiles;                                 /* tiles of a task, tiles in all */
    float  *apack, *bpack, *work;
    int64_t work_a, work_b, work_all;                    /* floats of a worker's scratch */
} DT__K(gemm_job);

typedef struct DT__K(gemm_blk) {
    const float *a, *b, *b_ragged, *bias;
    float       *c;
    int64_t      a_m, a_k, ldb, b_panel, ldc, m, n, kc, ps; /* strides of a; ps: of its panels, 0: it is not packed */
    const char  *next; /* prefetched while this block is computed: rows of next_n bytes that the task packs next, or NULL */
    int64_t      next_ld, next_n, next_rows, next_per; /* next_per: lines for each tile */
    int          first, relu;
    float        alpha;
} DT__K(gemm_blk);

/* ---- one register tile */
/* Ragged tiles, and all where alpha is not 1 or code for each row would not pay: rows from memory. */
static __attribute__((noinline)) void DT__K(gemm_put_rows)(float *c, const float *t, int mr, const DT__K(gemm_blk) *g,
                                                           const float *bias, int nv)
{
    for (int i = 0; i < mr; i++, t += DT__NR, c += g->ldc)
        for (int h = 0; h < nv; h += DT__W) {
            dt__vf sum = bias ? DT__K(ld)(bias + h) : DT__K(zero)();
            if (!g->first) sum = sum + DT__K(ld_some)(c + h, nv - h);
            sum = DT__K(fma)(DT__K(ld)(t + h), DT__K(set1)(g->alpha), sum); /* an explicit fma(), not the compiler's choice */
            if (g->relu) sum = DT__K(vmax)(DT__K(zero)(), sum);
            DT__K(st_some)(c + h, sum, nv - h);
        }
}
/* The rows of panel p if m rows are divided evenly over panels (a tile of 1 or 2 rows would waste throughput). */
DT__INLINE int DT__K(gemm_panel)(int64_t *at, int64_t m, int64_t p)
{
    int64_t np = (m + DT__MR - 1) / DT__MR, q = m / np, r = m % np;
    *at = p * q + (p < r ? p : r);
    return (int)(q + (p < r));
}

/* All tiles of a block. The sums start at the bias, which is NULL except in the first block of k. */
static void DT__K(gemm_sweep)(const DT__K(gemm_blk) *g)
{
    int64_t     np = (g->m + DT__MR - 1) / DT__MR, q = g->m / np, r = g->m % np, next_at = 0;
    const char *next = g->next, *stop = next ? next + (g->next_rows - 1) * g->next_ld + g->next_n : NULL;
    float       t[2 * DT__MR * DT__NR];
    DT__K(mk_t) m = { NULL, NULL, NULL, DT__K(mk_whole), 1, g->kc, g->a_k, g->a_m, 0, 0, 0, 0, 0 };
    const DT__K(mk_fn) *mk = DT__K(mk_best)();
#if DT__HAS_AVX2
    bool wide = DT__K(wide)();
#endif
    for (int64_t j = 0; j < g->n; j += DT__NR) {
        int          nv = (int)(g->n - j < DT__NR ? g->n - j : DT__NR);
        int          rag = nv < DT__NR && g->b_ragged, one = g->alpha == 1.0f, direct = nv == DT__NR && one;
        const float *bias = g->bias ? g->bias + j : NULL;
        int64_t      at = 0;
        m.b = rag ? g->b_ragged : g->b + j / DT__NR * g->b_panel;
        m.ldb = rag ? DT__NR : g->ldb;
        m.from = one ? bias : NULL;
        m.ldo = direct ? g->ldc : DT__NR;
        m.add = direct && !g->first;
        m.relu = direct && g->relu;
#if DT__HAS_AVX2
        int packed = g->ps && m.ldb == DT__NR;
#endif
        for (int64_t p = 0; p < np; p++) {
            int          mr = (int)(q + (p < r));
            float       *c = g->c + at * g->ldc + j;
            const float *a = g->a + (g->ps ? p * g->ps : at * g->a_m);
            for (int i = 0; i < mr && g->kc >= 128; i++) __builtin_prefetch(c + i * g->ldc, 1); /* stored to later */
            float *out = direct ? c : t;
#if DT__HAS_AVX2
            if (wide && packed && mr > 4 && p + 1 < np) { /* two panels at once */
                int    mr2 = (int)(q + (p + 1 < r));
                float *out2 = direct ? c + mr * g->ldc : t + mr * DT__NR;
                if (mr + mr2 >= 10) {
                    if (mr + mr2 == 12) DT__K(mw_pair66)(&m, a, a + g->ps, out, out2);
                    else if (mr + mr2 == 11) DT__K(mw_pair65)(&m, a, a + g->ps, out, out2);
                    else DT__K(mw_pair55)(&m, a, a + g->ps, out, out2);
                    p++;
                    mr += mr2;
                    goto stored;
                }
            }
            if (packed && mr == 6) DT__K(mk_packed6)(&m, a, out);
            else if (packed && mr == 5) DT__K(mk_packed5)(&m, a, out);
            else
#endif
                mk[mr](&m, mr, a, NULL, out, NULL);
#if DT__HAS_AVX2
        stored:
#endif
            if (!direct) DT__K(gemm_put_rows)(c, t, mr, g, one ? NULL : bias, nv);
            at += mr;
            for (int64_t x = 0; x < g->next_per && next < stop; x++) {
                __builtin_prefetch(next + next_at, 0, 2);
                if ((next_at += 64) >= g->next_n) next_at = 0, next += g->next_ld;
            }
        }
    }
}

/* ---- packing */
DT__INLINE dt__vf DT__K(gemm_ldh)(const char *p, int dtype) /* DT__W elements as f32 */
{
    if (dtype == DT_F32) return DT__K(ld)((const float *)(const void *)p);
#if DT__HAS_AVX2
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (dtype == DT_F16) return (dt__vf)_mm256_cvtph_ps(h);
    return (dt__vf)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
#else
    float t[DT__W];
    DT__K(load_row)(t, p, dtype, DT__W);
    return DT__K(ld)(t);
#endif
}

/* dst[kk*ldd + r] := src[r*lds + kk] for r < nr <= 8, kk < k; lanes nr..7 of a row are overwritten where the
   instruction set moves 8 at a time: rows of dst are written in order and the last needs room for 8 */
DT__CALLED void DT__K(gemm_turn)(float *dst, int64_t ldd, const char *src, int64_t lds, int dtype, int nr, int64_t k)
{
    enum { N = 64 };
    const float *s = (const float *)(const void *)src;
    float        buf[8 * N];
    if (dtype != DT_F32) {
        for (int64_t kk = 0; kk < k; kk += N) {
            int64_t n = k - kk < N ? k - kk : (int64_t)N;
            for (int r = 0; r < nr; r++) DT__K(load_row)(buf + r * N, src + (r * lds + kk) * 2, dtype, n);
            DT__K(gemm_turn)(dst + kk * ldd, ldd, (const char *)buf, N, DT_F32, nr, n);
        }
        return;
    }
#if DT__HAS_AVX2
    __m256  none = _mm256_setzero_ps();
    int64_t kk = 0, rest = k % 8;
    if (nr == 8)
        for (; kk + 8 <= k; kk += 8) DT__K(turn8)(dst + kk * ldd, ldd, s + kk, lds, 8, 0, none);
    else if (nr == DT__MR && ldd == DT__MR)
        for (; kk + 8 <= k; kk += 8) DT__K(turn8)(dst + kk * DT__MR, DT__MR, s + kk, lds, DT__MR, 0, none);
    else
        for (; kk + 8 <= k; kk += 8) DT__K(turn8)(dst + kk * ldd, ldd, s + kk, lds, nr, 0, none);
    if (!rest) return;
    for (int r = 0; r < 8; r++) DT__K(st)(buf + r * 8, DT__K(ld_some)(s + (r < nr ? r : 0) * lds + kk, r < nr ? rest : 0));
    DT__K(turn8)(buf + 64, 8, buf, 8, 8, 0, none);
    for (int64_t i = 0; i < rest; i++) DT__K(st)(dst + (kk + i) * ldd, DT__K(ld)(buf + 64 + i * 8));
#else
    for (int r = 0; r < nr; r++)
        for (int64_t kk = 0; kk < k; kk++) dst[kk * ldd + r] = s[r * lds + kk];
#endif
}

/* The same if m is the contiguous dim, for panels from..to-1 side by side: a column is read once, line by line, and
   prefetched (columns may lie pages apart). A store writes more than a panel's rows; the next store overwrites the
   excess. */
static void DT__K(gemm_pack_cols)(float *dst, int64_t ps, const float *a, int64_t a_k, int64_t m, int64_t k,
                                  int64_t from, int64_t to)
{
    enum { SIDE = 8 };
    int64_t np = (m + DT__MR - 1) / DT__MR, at[SIDE];
    int     mr[SIDE];
    if (to > np) to = np;
    for (int64_t p = from; p < to; p += SIDE) {
        int n = (int)(to - p < SIDE ? to - p : (int64_t)SIDE), whole;
        for (int q = 0; q < n; q++) mr[q] = DT__K(gemm_panel)(&at[q], m, p + q);
        for (whole = n; whole > 0 && at[whole - 1] + 8 > m;) whole--; /* do not read behind the last row */
        for (int64_t kk = 0; kk < k; kk++) {
            const float *s = a + kk * a_k, *ahead = kk + 8 < k ? s + 8 * a_k : s;
            float       *d = dst + p * ps + kk * DT__MR;
            for (int64_t x = at[0]; x < at[n - 1] + mr[n - 1]; x += 16) __builtin_prefetch(ahead + x);
            for (int q = 0; q < whole; q++, d += ps) {
                DT__K(st)(d, DT__K(ld)(s + at[q]));
                if (DT__W < DT__MR) DT__K(st)(d + DT__W, DT__K(ld)(s + at[q] + DT__W));
            }
            for (int q = whole; q < n; q++, d += ps) memcpy(d, s + at[q], (size_t)mr[q] * 4);
        }
    }
}

/* panels from..to-1 of the m rows of a: DT__MR x k each, ps floats apart: dst[p*ps + kk*DT__MR + i] */
static void DT__K(gemm_pack_a)(float *dst, int64_t ps, const char *a, int64_t a_m, int64_t a_k, int dtype, int64_t m,
                               int64_t k, int64_t from, int64_t to)
{
    int64_t np = (m + DT__MR - 1) / DT__MR, es = dtype == DT_F32 ? 4 : 2, at;
    if (dtype == DT_F32 && a_k != 1) {
        DT__K(gemm_pack_cols)(dst, ps, (const float *)(const void *)a, a_k, m, k, from, to);
        return;
    }
    for (int64_t p = from; p < np && p < to; p++) {
        int         mr = DT__K(gemm_panel)(&at, m, p);
        float      *d = dst + p * ps;
        const char *s = a + at * a_m * es;
        if (a_k == 1) DT__K(gemm_turn)(d, DT__MR, s, a_m, dtype, mr, k);
        for (int64_t kk = 0; a_k != 1 && kk < k; kk++)
            DT__K(load_row)(d + kk * DT__MR, s + kk * a_k * es, dtype, mr);
    }
}

/* k rows of n columns of b as panels of k x DT__NR, the last one padded with zeros: dst[j/NR*bp + kk*NR + j%NR].
   Panels are bp = DT__GEMM_BP(k) floats apart, one cache line more than they need: otherwise the writes of a row would
   conflict in L1. */
static void DT__K(gemm_pack_b)(float *dst, const char *b, int64_t b_k, int64_t b_n, int dtype, int64_t k, int64_t n)
{
    int64_t es = dtype == DT_F32 ? 4 : 2, full = n / DT__NR * DT__NR, bp = DT__GEMM_BP(k);
    if (b_n == 1) {
        for (int64_t kk = 0; kk < k; kk++) {
            int64_t     ahead = kk + 8 < k ? 8 * b_k : 0; /* the runs of a row are too short for the hardware prefetcher */
            const char *s = b + kk * b_k * es;
            float      *d = dst + kk * DT__NR;
            for (int64_t j = 0; j < full; j += DT__NR, d += bp) {
                __builtin_prefetch(s + (ahead + j) * es);
                DT__K(st)(d, DT__K(gemm_ldh)(s + j * es, dtype));
                DT__K(st)(d + DT__W, DT__K(gemm_ldh)(s + (j + DT__W) * es, dtype));
            }
            if (full < n && dtype == DT_F32) {
                const float *f = (const float *)(const void *)s + full;
                DT__K(st)(d, DT__K(ld_some)(f, (int)(n - full)));
                DT__K(st)(d + DT__W, DT__K(ld_some)(f + DT__W, (int)(n - full) - DT__W));
            } else if (full < n) {
                DT__K(load_row)(d, s + full * es, dtype, n - full);
                for (int64_t j = n - full; j < DT__NR; j++) d[j] = 0.0f;
            }
        }
        return;
    }
    for (int64_t j = 0; j < n; j += 8) { /* 8 columns are half a panel, or with 4 lanes a whole one */
        float *d = dst + j / DT__NR * bp + j % DT__NR;
        DT__K(gemm_turn)(d, DT__NR, b + j * b_n * es, b_n, dtype, (int)(n - j < 8 ? n - j : 8), k);
        for (int64_t kk = 0; n - j < 8 && kk < k; kk++) memset(d + kk * DT__NR + n - j, 0, (size_t)(8 - (n - j)) * 4);
    }
    if (DT__NR == 16 && (n + 7) / 8 % 2 == 1)
        for (int64_t kk = 0; kk < k; kk++) memset(dst + full / DT__NR * bp + kk * DT__NR + 8, 0, 32);
}
/* ---- tasks */
static inline int64_t DT__K(gemm_up)(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static inline int64_t DT__K(gemm_es)(int dtype) { return dtype == DT_F32 ? 4 : 2; }

/* the operands of matrix z of the batch, and its range of k */
static void DT__K(gemm_matrix)(const DT__K(gemm_job) *g, int64_t z, const char **a, const char **b, char **c,
        int64_t *k0,
                               int64_t *k1)
{
    int64_t oa = 0, ob = 0, oc = 0;
    *k0 = g->k0;
    *k1 = g->k1;
    if (g->kpart) {
        int64_t part = z % g->kcut;
        z /= g->kcut;
        *k0 = part * g->kpart;
        *k1 = *k0 + g->kpart < g->k ? *k0 + g->kpart : g->k;
        oc = part * g->m * g->c_m;
    }
    for (int d = g->nbatch - 1; d >= 0; d--) {
        int64_t i = z % g->shape[d];
        z /= g->shape[d];
        oa += i * g->sa[d];
        ob += i * g->sb[d];
        oc += i * g->sc[d];
    }
    *a = g->a + oa * DT__K(gemm_es)(g->adt);
    *b = g->b + ob * DT__K(gemm_es)(g->bdt);
    *c = g->c + oc * DT__K(gemm_es)(g->cdt);
}

DT__INLINE dt__vf DT__K(gemm_act1)(dt__vf x, int act)
{
    if (act == DT_ACT_RELU) return DT__K(vmax)(DT__K(zero)(), x);
    if (act == DT_ACT_SIGMOID) return DT__K(vsigmoid)(x);
    return act == DT_ACT_TANH ? DT__K(vtanh)(x) : x;
}
static void DT__K(gemm_act)(float *c, int64_t n, int act)
{
    float   buf[DT__W] = { 0 };
    int64_t j = 0;
    for (; j + DT__W <= n; j += DT__W) DT__K(st)(c + j, DT__K(gemm_act1)(DT__K(ld)(c + j), act));
    if (j == n) return;
    memcpy(buf, c + j, (size_t)(n - j) * 4);
    DT__K(st)(buf, DT__K(gemm_act1)(DT__K(ld)(buf), act));
    memcpy(c + j, buf, (size_t)(n - j) * 4);
}

/* completes a finished tile: activations that are not fused, conversion of an f16 or bf16 result */
static void DT__K(gemm_finish)(const DT__K(gemm_job) *g, char *c, float *t, int64_t ldt, int64_t m, int64_t n)
{
    int slow = !g->add && (g->act == DT_ACT_SIGMOID || g->act == DT_ACT_TANH);
    for (int64_t i = 0; i < m && (slow || g->cdt != DT_F32); i++) {
        if (slow) DT__K(gemm_act)(t + i * ldt, n, g->act);
        if (g->cdt != DT_F32) DT__K(put_row)(c + i * g->c_m * 2, g->cdt, t + i * ldt, n, g->add);
    }
}

/* the same for a tile t (m x n) of c^T: eight rows of c at a time; bias is that of the tile's rows, padded */
static void DT__K(gemm_finish_turned)(const DT__K(gemm_job) *g, char *c, const float *t, int64_t ldt, int64_t m,
                                      int64_t n, const float *bias)
{
    float   buf[8 * (DT__GEMM_MC + 8)];
    int     plain = g->cdt == DT_F32 && !g->add && m % 8 == 0, act = g->add ? DT_ACT_NONE : g->act;
    int64_t es = g->cdt == DT_F32 ? 4 : 2, ld = plain ? g->c_m : DT__GEMM_MC + 8;
    for (int64_t j = 0; j < n; j += 8, c += 8 * g->c_m * es) {
        int    nk = (int)(n - j < 8 ? n - j : 8);
        float *d = plain ? (float *)(void *)c : buf;
        int64_t i = 0;
#if DT__HAS_AVX2
        for (; nk == 8 && i + 8 <= m; i += 8)
            DT__K(turn8)(d + i, ld, t + i * ldt + j, ldt, 8, 0, _mm256_setzero_ps());
#endif
        for (; i < m; i += 8)
            DT__K(gemm_turn)(d + i, ld, (const char *)(t + i * ldt + j), ldt, DT_F32, (int)(m - i < 8 ? m - i : 8), nk);
        for (int x = 0; x < nk; x++, d += ld) {
            for (i = 0; i < m && (bias || act == DT_ACT_RELU); i += DT__W) {
                dt__vf v = DT__K(ld)(d + i) + (bias ? DT__K(ld)(bias + i) : DT__K(zero)());
                DT__K(st)(d + i, act == DT_ACT_RELU ? DT__K(vmax)(DT__K(zero)(), v) : v);
            }
            if (act > DT_ACT_RELU) DT__K(gemm_act)(d, m, act);
            if (!plain) DT__K(put_row)(c + x * g->c_m * es, g->cdt, d, m, g->add);
        }
    }
}

/* While a block is computed, prefetch the part of b that the task packs next. */
static void DT__K(gemm_foresee)(DT__K(gemm_blk) *w, const DT__K(gemm_job) *g, const char *b, int64_t left,
        int64_t j, int64_t k,
                                int64_t k0, int64_t k1)
{
    int64_t es = DT__K(gemm_es)(g->bdt);
    w->next = NULL;
    w->next_per = 0;
    if (g->bmode != DT__K(GEMM_OWN) || g->b_n != 1) return;
    k += g->kc;
    if (k >= k1) k = k0, j += g->tn;
    if (j >= g->j1 || (k == k0 && left == 0)) return;
    w->next = b + (k * g->b_k + j * g->b_n) * es;
    w->next_ld = g->b_k * es;
    w->next_n = (g->j1 - j < g->tn ? g->j1 - j : g->tn) * es;
    w->next_rows = k1 - k < g->kc ? k1 - k : g->kc;
    int64_t lines = w->next_rows * ((w->next_n + 63) / 64), np = (w->m + DT__MR - 1) / DT__MR;
    w->next_per = lines / (np * ((w->n + DT__NR - 1) / DT__NR)) + 1;
}

/* tile t of the slab; the same task computes 'left' more tiles after it */
static void DT__K(gemm_one)(const DT__K(gemm_job) *g, int64_t t, int64_t left, int worker)
{
    const char *a, *b;
    char       *c;
    int64_t     k0, k1, z = t / (g->mt * g->nt), mi = t % g->mt, nj = t / g->mt % g->nt;
    int64_t     i = g->i0 + mi * g->tm, j = g->j0 + nj * g->tn;
    float      *work = g->work + worker * g->work_all;
    float      *tile = g->cdt == DT_F32 && !g->flip ? NULL : work + g->work_a + g->work_b;
    DT__K(gemm_blk) w;
    DT__K(gemm_matrix)(g, g->z0 + z, &a, &b, &c, &k0, &k1);
    c += (g->flip ? j * g->c_m + i : i * g->c_m + j) * DT__K(gemm_es)(g->cdt);
    w.m = g->i1 - i < g->tm ? g->i1 - i : g->tm;
    w.n = g->j1 - j < g->tn ? g->j1 - j : g->tn;
    w.c = tile ? tile : (float *)(void *)c;
    w.ldc = tile ? g->tn : g->c_m;
    w.alpha = g->alpha;
    for (int64_t q = 0, k = k0; k < k1; k += g->kc, q++) {
        int last = k + g->kc >= k1 && (g->kpart || k1 == g->k);
        w.kc = k1 - k < g->kc ? k1 - k : g->kc;
        w.first = k == (g->kpart ? k0 : 0) && (tile || !g->add);
        w.bias = w.first && g->bias && !g->add && !g->flip ? g->bias + j : NULL;
        w.relu = last && g->act == DT_ACT_RELU && !g->add && !g->flip;
        w.ps = g->ps;
        w.a_m = 1;
        w.a_k = DT__MR;
        if (g->amode == DT__K(GEMM_SHARED)) {
            w.a = g->apack + (mi * g->nkb + q) * g->a_block;
        } else if (g->amode == DT__K(GEMM_OWN)) {
            DT__K(gemm_pack_a)(work, g->ps, a + (i * g->a_m + k * g->a_k) * DT__K(gemm_es)(g->adt), g->a_m, g->a_k,
                               g->adt, w.m, w.kc, 0, w.m);
            w.a = work;
        } else {
            w.a = (const float *)(const void *)a + i * g->a_m + k * g->a_k;
            w.a_m = g->a_m;
            w.a_k = g->a_k;
            w.ps = 0;
        }
        const char *bk = b + (k * g->b_k + j * g->b_n) * DT__K(gemm_es)(g->bdt);
        w.b_ragged = NULL;
        w.ldb = DT__NR;
        w.b_panel = DT__GEMM_BP(w.kc);
        if (g->bmode == DT__K(GEMM_SHARED)) {
            w.b = g->bpack + (nj * g->nkb + q) * g->b_block;
        } else if (g->bmode == DT__K(GEMM_OWN)) {
            DT__K(gemm_pack_b)(work + g->work_a, bk, g->b_k, g->b_n, g->bdt, w.kc, w.n);
            w.b = work + g->work_a;
        } else {
            w.b = (const float *)(const void *)bk;
            w.ldb = g->b_k;
            w.b_panel = DT__NR;
            if (w.n % DT__NR) {
                float *rag = work + g->work_a;
                DT__K(gemm_pack_b)(rag, bk + w.n / DT__NR * DT__NR * 4, g->b_k, 1, DT_F32, w.kc, w.n % DT__NR);
                w.b_ragged = rag;
            }
        }
        DT__K(gemm_foresee)(&w, g, b, left, j, k, k0, k1);
        DT__K(gemm_sweep)(&w);
        if (last && g->flip)
            DT__K(gemm_finish_turned)(g, c, w.c, w.ldc, w.m, w.n, g->bias && !g->add ? g->bias + i : NULL);
        else if (last) DT__K(gemm_finish)(g, c, w.c, w.ldc, w.m, w.n);
    }
}
static void DT__K(gemm_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(gemm_job) *g = (const DT__K(gemm_job) *)ctx;
    int64_t end = (task + 1) * g->per < g->ntiles ? (task + 1) * g->per : g->ntiles;
    for (int64_t t = task * g->per; t < end; t++) DT__K(gemm_one)(g, t, end - t - 1, worker);
}

/* the shared panels: first a's tiles, then b's; a task packs a piece of a block, DT__GEMM_PIECE panels of it */
#define DT__GEMM_PIECE 4
static void DT__K(gemm_pack_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(gemm_job) *g = (const DT__K(gemm_job) *)ctx;
    const char *a, *b;
    char       *c;
    int64_t     k0, k1, na = g->amode == DT__K(GEMM_SHARED) ? g->mt * g->nkb * g->a_pieces : 0;
    int64_t     pieces = task < na ? g->a_pieces : g->b_pieces, t = task < na ? task : task - na;
    int64_t     at = t % pieces * DT__GEMM_PIECE;
    (void)worker;
    t /= pieces;
    DT__K(gemm_matrix)(g, g->z0, &a, &b, &c, &k0, &k1);
    int64_t q = t % g->nkb, k = k0 + q * g->kc, kc = k1 - k < g->kc ? k1 - k : g->kc;
    if (task < na) {
        int64_t i = g->i0 + t / g->nkb * g->tm, m = g->i1 - i < g->tm ? g->i1 - i : g->tm;
        DT__K(gemm_pack_a)(g->apack + t * g->a_block, g->ps, a + (i * g->a_m + k * g->a_k) * DT__K(gemm_es)(g->adt),
                           g->a_m, g->a_k, g->adt, m, kc, at, at + DT__GEMM_PIECE);
    } else {
        int64_t j = g->j0 + t / g->nkb * g->tn, n = g->j1 - j < g->tn ? g->j1 - j : g->tn;
        j += at * DT__NR, n -= at * DT__NR;
        if (n > DT__GEMM_PIECE * DT__NR) n = DT__GEMM_PIECE * DT__NR;
        if (n > 0)
            DT__K(gemm_pack_b)(g->bpack + t * g->b_block + at * DT__GEMM_BP(kc),
                               b + (k * g->b_k + j * g->b_n) * DT__K(gemm_es)(g->bdt), g->b_k, g->b_n, g->bdt, kc, n);
    }
}

/* ---- the plan: tiles, slabs and ways of reading, functions of the shape and the strides alone */
static void DT__K(gemm_tiles)(DT__K(gemm_job) *g, int64_t m, int64_t n, int64_t k, int64_t matrices)
{
    double  total = (double)m * (double)n * (double)k * (double)matrices;
    int64_t want = total < 262144 ? 1 : total < 1048576 ? 2 : total > 16777216 ? 32 : (int64_t)(total / 524288);
    int64_t mt = (m + DT__GEMM_MC - 1) / DT__GEMM_MC, nt = (want + matrices * mt - 1) / (matrices * mt);
    g->tm = DT__K(gemm_up)((m + mt - 1) / mt, DT__MR);
    g->tn = DT__K(gemm_up)((n + nt - 1) / nt, DT__NR);
    if (g->tn > (mt > 1 ? 256 : 128)) g->tn = mt > 1 ? 256 : 128; /* a block of b that one task packs stays in L2 */
    if (g->tn < 32) g->tn = DT__K(gemm_up)(n < 32 ? n : 32, DT__NR);
    nt = (n + g->tn - 1) / g->tn;
    if (matrices * mt * nt < want) {
        mt = (want + matrices * nt - 1) / (matrices * nt);
        g->tm = DT__K(gemm_up)((m + mt - 1) / mt, DT__MR);
        if (g->tm < 24) g->tm = DT__K(gemm_up)(m < 24 ? m : 24, DT__MR);
    }
    if (matrices == 1 && m >= 576 && n <= 1024) { /* a task packs its rows of a, which stay in L2 for all columns */
        mt = (m + 71) / 72;
        g->tm = DT__K(gemm_up)((m + mt - 1) / mt, DT__MR);
        g->tn = DT__K(gemm_up)(n, DT__NR);
    } else if (matrices == 1 && m > DT__GEMM_MC && m <= 288 && n >= 2 * m) { /* or its columns of b, for all rows */
        g->tm = DT__K(gemm_up)(m, DT__MR);
        g->tn = n >= 1024 ? 64 : 32;
    }
    if (g->flip) { /* all columns, so that a row of weights is fetched once */
        g->tn = DT__K(gemm_up)(n, DT__NR);
        g->tm = DT__K(gemm_up)((m + want - 1) / want, DT__MR);
        g->tm = g->tm < 24 ? 24 : g->tm > DT__GEMM_MC ? DT__GEMM_MC : g->tm;
    }
    int64_t nkb = (k + DT__GEMM_KC - 1) / DT__GEMM_KC;
    g->kc = DT__K(gemm_up)((k + nkb - 1) / nkb, 8);
    g->ps = DT__K(gemm_up)(DT__MR * g->kc + 2, 16); /* the transposing pack writes two floats past a panel */
    g->a_block = g->tm / DT__MR * g->ps;
    g->b_block = g->tn / DT__NR * DT__GEMM_BP(g->kc);
}

static void DT__K(gemm_modes)(DT__K(gemm_job) *g, int64_t k, int shared)
{
    int64_t mt = (g->m + g->tm - 1) / g->tm, nt = (g->n + g->tn - 1) / g->tn;
    int     near_b = g->b_k % 128 != 0 || k <= 64; /* rows a multiple of 512 bytes apart conflict in L1 */
    int     near_a = g->n <= 48 || (g->m * k <= 8192 && g->n < 4096); /* packing would cost more than it saves */
    if (g->adt == DT_F32 && (g->flip || near_a)) g->amode = DT__K(GEMM_DIRECT);
    else g->amode = nt > 1 && shared ? DT__K(GEMM_SHARED) : DT__K(GEMM_OWN);
    if (g->bdt == DT_F32 && g->b_n == 1 && (g->m <= 12 || (g->m <= 72 && near_b))) g->bmode = DT__K(GEMM_DIRECT);
    else g->bmode = mt > 1 && shared ? DT__K(GEMM_SHARED) : DT__K(GEMM_OWN);
    g->work_a = g->amode == DT__K(GEMM_OWN) ? g->a_block : 0;
    g->work_b = g->bmode == DT__K(GEMM_OWN) ? g->b_block : g->bmode == DT__K(GEMM_DIRECT) ? DT__GEMM_BP(g->kc) : 0;
    g->work_all = DT__K(gemm_up)(g->work_a + g->work_b + (g->cdt == DT_F32 && !g->flip ? 0 : g->tm * g->tn), 16);
}

static void DT__K(gemm_slab)(DT__K(gemm_job) *g, int64_t matrices)
{
    g->mt = (g->i1 - g->i0 + g->tm - 1) / g->tm;
    g->nt = (g->j1 - g->j0 + g->tn - 1) / g->tn;
    g->nkb = (g->k1 - g->k0 + g->kc - 1) / g->kc;
    g->a_pieces = (g->tm / DT__MR + DT__GEMM_PIECE - 1) / DT__GEMM_PIECE;
    g->b_pieces = (g->tn / DT__NR + DT__GEMM_PIECE - 1) / DT__GEMM_PIECE;
    int64_t na = g->amode == DT__K(GEMM_SHARED) ? g->mt * g->nkb : 0;
    int64_t nb = g->bmode == DT__K(GEMM_SHARED) ? g->nt * g->nkb : 0;
    int64_t size = na * g->a_block + nb * g->b_block, ntasks = na * g->a_pieces + nb * g->b_pieces;
    if (size > 8192)
        dt__pool_run(ntasks, DT__K(gemm_pack_task), g);
    else
        for (int64_t t = 0; t < ntasks; t++) DT__K(gemm_pack_task)(g, t, 0);
    g->ntiles = matrices * g->mt * g->nt;
    int64_t cost = g->tm * g->tn * (g->kpart ? g->kpart : g->k1 - g->k0);
    ntasks = dt__cut(g->ntiles, cost, 131072, &g->per);
    if (g->bmode == DT__K(GEMM_OWN) && g->ntiles > 64) ntasks = dt__cut(g->ntiles, 1, g->ntiles / 32, &g->per);
    if (g->ntiles * cost < 262144) ntasks = 1, g->per = g->ntiles;
    dt__pool_run(ntasks, DT__K(gemm_task), g);
}

/* The product with k > 0. extra > 0: c is the first 'extra' floats of the scratch, and the caller continues with it. */
static int DT__K(gemm_run)(DT__K(gemm_job) *g, const dt_view *bias, int64_t extra, int64_t matrices, float **scratch)
{
    int64_t k = g->kpart ? g->kpart : g->k;
    int     big = !g->kpart && (matrices == 1 || (double)g->m * (double)g->n * (double)k >= 4194304.0);
    DT__K(gemm_tiles)(g, g->m, g->n, k, big ? 1 : matrices);
    DT__K(gemm_modes)(g, k, big);
    int64_t ks = g->cdt == DT_F32 && k > 4096 ? 4096 / g->kc * g->kc : k, nkb = (ks + g->kc - 1) / g->kc, ms = g->m,
            ns = g->n;
    if (g->kpart) ks = g->k;
    if (g->amode == DT__K(GEMM_SHARED) && ms > DT__GEMM_SLAB / ks) ms = DT__K(gemm_up)(DT__GEMM_SLAB / ks + 1, g->tm);
    if (g->bmode == DT__K(GEMM_SHARED) && ns > DT__GEMM_SLAB / ks) ns = DT__K(gemm_up)(DT__GEMM_SLAB / ks + 1, g->tn);
    int64_t na = g->amode == DT__K(GEMM_SHARED) ? (ms + g->tm - 1) / g->tm * nkb * g->a_block : 0;
    int64_t nb = g->bmode == DT__K(GEMM_SHARED) ? (ns + g->tn - 1) / g->tn * nkb * g->b_block : 0;
    int64_t nb_all = g->flip ? g->m : g->n, nbias = bias ? DT__K(gemm_up)(nb_all, 16) : 0;
    extra = DT__K(gemm_up)(extra, 16);
    float *s = (float *)dt_scratch((size_t)(extra + nbias + na + nb + g->work_all * dt__pool_size()) * 4 + 64);
    if (!s) return DT_ERR_MEMORY;
    *scratch = s;
    if (extra) g->c = (char *)s;
    s += extra;
    if (bias) {
        DT__K(load_row)(s, bias->data, bias->dtype, nb_all);
        memset(s + nb_all, 0, (size_t)(nbias - nb_all) * 4);
        g->bias = s;
    }
    g->apack = s + nbias;
    g->bpack = g->apack + na;
    g->work = g->bpack + nb;
    for (g->z0 = 0; g->z0 < matrices; g->z0 += big ? 1 : matrices)
        for (g->i0 = 0; g->i0 < g->m; g->i0 = g->i1)
            for (g->j0 = 0, g->i1 = g->m - g->i0 < ms ? g->m : g->i0 + ms; g->j0 < g->n; g->j0 = g->j1)
                for (g->k0 = 0, g->j1 = g->n - g->j0 < ns ? g->n : g->j0 + ns; g->k0 < g->k; g->k0 = g->k1) {
                    g->k1 = g->k - g->k0 < ks ? g->k : g->k0 + ks;
                    DT__K(gemm_slab)(g, big ? 1 : matrices);
                }
    return 0;
}

/* ---- k in parts */
typedef struct DT__K(gemm_sum) {
    const DT__K(gemm_job) *g;
    const dt_view *bias;
    float         *part;
    int64_t        ld, parts, per;
} DT__K(gemm_sum);

/* a row of c from its f32 sum, which is overwritten */
static void DT__K(gemm_row)(const DT__K(gemm_job) *g, const dt_view *bias, char *c, float *row)
{
    float buf[64];
    if (bias && !g->add)
        for (int64_t j = 0; j < g->n; j += 64) {
            int64_t w = g->n - j < 64 ? g->n - j : 64;
            DT__K(load_row)(buf, (const char *)bias->data + j * DT__K(gemm_es)(bias->dtype), bias->dtype, w);
            for (int64_t i = 0; i < w; i++) row[j + i] += buf[i];
        }
    if (g->act != DT_ACT_NONE && !g->add) DT__K(gemm_act)(row, g->n, g->act);
    if (c != (char *)row) DT__K(put_row)(c, g->cdt, row, g->n, g->add);
}
static void DT__K(gemm_sum_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(gemm_sum) *s = (const DT__K(gemm_sum) *)ctx;
    const DT__K(gemm_job) *g = s->g;
    (void)worker;
    for (int64_t i = task * s->per; i < (task + 1) * s->per && i < g->m; i++) {
        float *row = s->part + i * s->ld;
        for (int64_t p = 1; p < s->parts; p++) {
            const float *x = row + p * g->m * s->ld;
            for (int64_t j = 0; j < s->ld; j += DT__NR) {
                DT__K(st)(row + j, DT__K(ld)(row + j) + DT__K(ld)(x + j));
                DT__K(st)(row + j + DT__W, DT__K(ld)(row + j + DT__W) + DT__K(ld)(x + j + DT__W));
            }
        }
        DT__K(gemm_row)(g, s->bias, g->c + i * g->c_m * DT__K(gemm_es)(g->cdt), row);
    }
}
static int DT__K(gemm_split)(const DT__K(gemm_job) *g, const dt_view *bias, int64_t parts)
{
    DT__K(gemm_job) h = *g;
    DT__K(gemm_sum) s;
    s.g = g, s.bias = bias, s.ld = DT__K(gemm_up)(g->n, DT__NR);
    h.kpart = DT__K(gemm_up)((g->k + parts - 1) / parts, 8);
    h.kcut = s.parts = (g->k + h.kpart - 1) / h.kpart;
    h.c_m = s.ld;
    h.cdt = DT_F32;
    h.add = 0;
    h.act = DT_ACT_NONE;
    int err = DT__K(gemm_run)(&h, NULL, h.kcut * g->m * s.ld, h.kcut, &s.part);
    if (err) return err;
    dt__pool_run(dt__cut(g->m, s.ld * s.parts, 65536, &s.per), DT__K(gemm_sum_task), &s);
    return 0;
}

/* ---- the entry */
static int DT__K(gemm_nothing)(DT__K(gemm_job) *g, const dt_view *bias) /* k = 0 */
{
    const char *a, *b;
    char       *c;
    int64_t     k0, k1;
    float      *row = (float *)dt_scratch((size_t)g->n * 4);
    if (!row) return DT_ERR_MEMORY;
    for (int64_t z = 0; z < g->matrices && !g->add; z++) {
        DT__K(gemm_matrix)(g, z, &a, &b, &c, &k0, &k1);
        for (int64_t i = 0; i < g->m; i++) {
            memset(row, 0, (size_t)g->n * 4);
            DT__K(gemm_row)(g, bias, c + i * g->c_m * DT__K(gemm_es)(g->cdt), row);
        }
    }
    return 0;
}

#ifdef DT_USE_CBLAS
static int DT__K(gemm_cblas)(const DT__K(gemm_job) *g, const dt_view *bias) /* 1: done */
{
    int64_t lda = g->a_k == 1 ? g->a_m : g->a_k, ldb = g->b_n == 1 ? g->b_k : g->b_n, big = 0x7fffffff;
    int     ta = g->a_k != 1, tb = g->b_n != 1;
    if (g->m == 1 && !ta) lda = g->k;
    if (g->k == 1 && !tb) ldb = g->n;
    if (g->adt != DT_F32 || g->bdt != DT_F32 || g->cdt != DT_F32 || g->m > big || g->n > big || g->k > big ||
        lda > big || ldb > big || g->c_m > big || lda < (ta ? g->m : g->k) || ldb < (tb ? g->k : g->n) ||
        (g->m > 1 && g->c_m < g->n))
        return 0;
    for (int64_t z = 0; z < g->matrices; z++) {
        const char *a, *b;
        char       *c;
        int64_t     k0, k1;
        DT__K(gemm_matrix)(g, z, &a, &b, &c, &k0, &k1);
        float *y = (float *)(void *)c;
        cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n,
                    (int)g->k, g->alpha, (const float *)(const void *)a, (int)lda, (const float *)(const void *)b,
                            (int)ldb,
                    g->add ? 1.0f : 0.0f, y, (int)(g->m > 1 ? g->c_m : g->n));
        for (int64_t i = 0; i < g->m && !g->add && (bias || g->act); i++)
            DT__K(gemm_row)(g, bias, (char *)(y + i * g->c_m), y + i * g->c_m);
    }
    return 1;
}
#endif

/* ---- a matrix times a vector, and the product of two vectors: bound by memory, so nothing is packed
   y[r] = sum over k of m[r][k] v[k], rows of m contiguous ("by rows"), or y[j] = sum over k of v[k] m[k][j] ("by columns").
   Tasks are ranges of y and, if these are few, of k; the sums of the ranges of k are added in order. */
#define DT__THIN_COLS 1024 /* by columns: sums of a task, in L1 */
typedef struct DT__K(thin) {
    const float *m, *v;
    float       *part; /* [range of k][ny], ny padded */
    int64_t      ld, ny, nk, ys, ks, nyt, pad; /* of a task: outputs, terms; tasks along y */
    bool         by_rows;
} DT__K(thin);
DT__INLINE dt__vf DT__K(thin_at)(const float *p, int64_t left) /* the vector at p; beyond the end: 0 */
{
    return left < DT__W ? DT__K(ld_some)(p, left) : DT__K(ld)(p);
}
static void DT__K(thin_rows)(float *y, const float *m, int64_t ld, const float *v, int64_t ny, int64_t nk)
{
    int64_t r = 0;
    for (; r + 4 <= ny; r += 4, m += 4 * ld) {
        dt__vf a0 = DT__K(zero)(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0, d1 = a0;
        int64_t k = 0;
        for (; k + 2 * DT__W <= nk; k += 2 * DT__W) {
            dt__vf x = DT__K(ld)(v + k), z = DT__K(ld)(v + k + DT__W);
            a0 = DT__K(fma)(DT__K(ld)(m + k), x, a0), a1 = DT__K(fma)(DT__K(ld)(m + k + DT__W), z, a1);
            b0 = DT__K(fma)(DT__K(ld)(m + ld + k), x, b0), b1 = DT__K(fma)(DT__K(ld)(m + ld + k + DT__W), z, b1);
            c0 = DT__K(fma)(DT__K(ld)(m + 2 * ld + k), x, c0), c1 = DT__K(fma)(DT__K(ld)(m + 2 * ld + k + DT__W), z, c1);
            d0 = DT__K(fma)(DT__K(ld)(m + 3 * ld + k), x, d0), d1 = DT__K(fma)(DT__K(ld)(m + 3 * ld + k + DT__W), z, d1);
        }
        for (; k < nk; k += DT__W) {
            dt__vf x = DT__K(thin_at)(v + k, nk - k);
            a0 = DT__K(fma)(DT__K(thin_at)(m + k, nk - k), x, a0);
            b0 = DT__K(fma)(DT__K(thin_at)(m + ld + k, nk - k), x, b0);
            c0 = DT__K(fma)(DT__K(thin_at)(m + 2 * ld + k, nk - k), x, c0);
            d0 = DT__K(fma)(DT__K(thin_at)(m + 3 * ld + k, nk - k), x, d0);
        }
        y[r] = DT__K(hsum)(a0 + a1), y[r + 1] = DT__K(hsum)(b0 + b1);
        y[r + 2] = DT__K(hsum)(c0 + c1), y[r + 3] = DT__K(hsum)(d0 + d1);
    }
    for (; r < ny; r++, m += ld) {
        dt__vf a0 = DT__K(zero)(), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
        int64_t k = 0;
        for (; k + 8 * DT__W <= nk; k += 8 * DT__W) {
            a0 = DT__K(fma)(DT__K(ld)(m + k), DT__K(ld)(v + k), a0);
            a1 = DT__K(fma)(DT__K(ld)(m + k + DT__W), DT__K(ld)(v + k + DT__W), a1);
            a2 = DT__K(fma)(DT__K(ld)(m + k + 2 * DT__W), DT__K(ld)(v + k + 2 * DT__W), a2);
            a3 = DT__K(fma)(DT__K(ld)(m + k + 3 * DT__W), DT__K(ld)(v + k + 3 * DT__W), a3);
            b0 = DT__K(fma)(DT__K(ld)(m + k + 4 * DT__W), DT__K(ld)(v + k + 4 * DT__W), b0);
            b1 = DT__K(fma)(DT__K(ld)(m + k + 5 * DT__W), DT__K(ld)(v + k + 5 * DT__W), b1);
            b2 = DT__K(fma)(DT__K(ld)(m + k + 6 * DT__W), DT__K(ld)(v + k + 6 * DT__W), b2);
            b3 = DT__K(fma)(DT__K(ld)(m + k + 7 * DT__W), DT__K(ld)(v + k + 7 * DT__W), b3);
        }
        for (; k < nk; k += DT__W) a0 = DT__K(fma)(DT__K(thin_at)(m + k, nk - k), DT__K(thin_at)(v + k, nk - k), a0);
        y[r] = DT__K(hsum)(((a0 + a1) + (a2 + a3)) + ((b0 + b1) + (b2 + b3)));
    }
}
static void DT__K(thin_cols)(float *y, const float *m, int64_t ld, const float *v, int64_t ny, int64_t nk)
{
    memset(y, 0, (size_t)ny * 4);
    int64_t k = 0, j;
    for (; k + 8 <= nk; k += 8, m += 8 * ld) {
        dt__vf v0 = DT__K(set1)(v[k]), v1 = DT__K(set1)(v[k + 1]), v2 = DT__K(set1)(v[k + 2]), v3 = DT__K(set1)(v[k + 3]);
        dt__vf v4 = DT__K(set1)(v[k + 4]), v5 = DT__K(set1)(v[k + 5]), v6 = DT__K(set1)(v[k + 6]), v7 = DT__K(set1)(v[k + 7]);
        for (j = 0; j + DT__W <= ny; j += DT__W) {
            const float *p = m + j, *q = p + 4 * ld;
            dt__vf s = DT__K(fma)(DT__K(ld)(p), v0, DT__K(ld)(y + j)), t = DT__K(ld)(p + ld) * v1;
            s = DT__K(fma)(DT__K(ld)(p + 2 * ld), v2, s), t = DT__K(fma)(DT__K(ld)(p + 3 * ld), v3, t);
            s = DT__K(fma)(DT__K(ld)(q), v4, s), t = DT__K(fma)(DT__K(ld)(q + ld), v5, t);
            s = DT__K(fma)(DT__K(ld)(q + 2 * ld), v6, s), t = DT__K(fma)(DT__K(ld)(q + 3 * ld), v7, t);
            DT__K(st)(y + j, s + t);
        }
        for (; j < ny; j++)
            for (int i = 0; i < 8; i++) y[j] = DT__K(fma1)(m[i * ld + j], v[k + i], y[j]);
    }
    for (; k < nk; k++, m += ld) {
        dt__vf v0 = DT__K(set1)(v[k]);
        for (j = 0; j + DT__W <= ny; j += DT__W) DT__K(st)(y + j, DT__K(fma)(DT__K(ld)(m + j), v0, DT__K(ld)(y + j)));
        for (; j < ny; j++) y[j] = DT__K(fma1)(m[j], v[k], y[j]);
    }
}
static void DT__K(thin_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(thin) *t = (const DT__K(thin) *)ctx;
    int64_t y0 = task % t->nyt * t->ys, k0 = task / t->nyt * t->ks;
    int64_t ny = t->ny - y0 < t->ys ? t->ny - y0 : t->ys, nk = t->nk - k0 < t->ks ? t->nk - k0 : t->ks;
    float  *y = t->part + task / t->nyt * t->pad + y0;
    (void)worker;
    if (t->by_rows) DT__K(thin_rows)(y, t->m + y0 * t->ld + k0, t->ld, t->v + k0, ny, nk);
    else DT__K(thin_cols)(y, t->m + k0 * t->ld + y0, t->ld, t->v + k0, ny, nk);
}
/* n elements of a vector with any stride as f32: where they are, or in buf */
static const float *DT__K(thin_vector)(float *buf, const char *p, int dtype, int64_t stride, int64_t n)
{
    if (dtype == DT_F32 && (stride == 1 || n == 1)) return (const float *)(const void *)p;
    int64_t es = DT__K(gemm_es)(dtype);
    if (stride == 1 || n == 1) DT__K(load_row)(buf, p, dtype, n);
    for (int64_t i = 0; stride != 1 && n > 1 && i < n; i++) DT__K(load_row)(buf + i, p + i * stride * es, dtype, 1);
    return buf;
}
/* c has one row or one column: 1 if it is done here, else 0, or a negative status */
static int DT__K(gemm_thin)(const DT__K(gemm_job) *g, const dt_view *bias)
{
    DT__K(thin) t;
    bool flat = g->m == 1 && !(g->n == 1 && g->b_k != 1); /* c is a row: the matrix is b */
    if (g->matrices != 1 || (g->m > 1 && g->n > 1) || (flat ? g->bdt : g->adt) != DT_F32) return 0;
    t.m = (const float *)(const void *)(flat ? g->b : g->a);
    t.ny = flat ? g->n : g->m, t.nk = g->k;
    t.by_rows = (flat ? g->b_k : g->a_k) == 1;
    if (!t.by_rows && (flat ? g->b_n : g->a_m) != 1) return 0;
    t.ld = t.by_rows ? (flat ? g->b_n : g->a_m) : (flat ? g->b_k : g->a_k);
    /* about 64 Ki terms a task */
    t.ys = t.by_rows ? (65536 / t.nk + 3) / 4 * 4 : DT__THIN_COLS;
    if (t.ys < 4) t.ys = 4;
    if (t.ys > t.ny) t.ys = t.ny;
    t.nyt = (t.ny + t.ys - 1) / t.ys;
    int64_t most = t.ny * t.nk / 65536, parts = most / t.nyt;
    if (parts > 32) parts = 32;
    if (parts > t.nk / 64) parts = t.nk / 64;
    if (parts < 1) parts = 1;
    t.ks = ((t.nk + parts - 1) / parts + 15) / 16 * 16;
    parts = (t.nk + t.ks - 1) / t.ks;
    t.pad = (t.ny + 15) / 16 * 16;
    float *s = (float *)dt_scratch((size_t)(t.pad * (parts + 1) + t.nk) * 4);
    if (!s) return DT_ERR_MEMORY;
    t.part = s;
    t.v = DT__K(thin_vector)(s + t.pad * (parts + 1), flat ? g->a : g->b, flat ? g->adt : g->bdt, flat ? g->a_k : g->b_k, t.nk);
    dt__pool_run(t.nyt * parts, DT__K(thin_task), &t);
    for (int64_t p = 1; p < parts; p++) DT__K(add_row)(s, s + p * t.pad, t.ny);
    float *more = s + parts * t.pad;
    if (g->alpha != 1.0f)
        for (int64_t i = 0; i < t.ny; i++) s[i] *= g->alpha;
    if (bias && g->m == 1 && g->n > 1) {
        DT__K(load_row)(more, bias->data, bias->dtype, g->n);
        DT__K(add_row)(s, more, g->n);
    } else if (bias) { /* one column: one bias */
        DT__K(load_row)(more, bias->data, bias->dtype, 1);
        for (int64_t i = 0; i < t.ny; i++) s[i] += more[0];
    }
    if (g->act != DT_ACT_NONE && !g->add) DT__K(gemm_act)(s, t.ny, g->act);
    int64_t cs = g->m == 1 ? 1 : g->c_m, es = DT__K(gemm_es)(g->cdt);
    if (cs == 1) DT__K(put_row)(g->c, g->cdt, s, t.ny, g->add);
    for (int64_t i = 0; cs != 1 && i < t.ny; i++) DT__K(put_row)(g->c + i * cs * es, g->cdt, s + i, 1, g->add);
    return 1;
}
/* k = 1: c = a b, a column times a row */
typedef struct DT__K(outer) {
    const DT__K(gemm_job) *g;
    const float *a, *b;
    int64_t      per, cols, nct; /* of a task: rows, columns; tasks along the columns */
} DT__K(outer);
static void DT__K(outer_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(outer) *o = (const DT__K(outer) *)ctx;
    const DT__K(gemm_job) *g = o->g;
    (void)worker;
    int64_t j0 = task % o->nct * o->cols, n = g->n - j0 < o->cols ? g->n : j0 + o->cols;
    task /= o->nct;
    for (int64_t i = task * o->per; i < (task + 1) * o->per && i < g->m; i++) {
        float  *c = (float *)(void *)g->c + i * g->c_m;
        float   x = o->a[i] * g->alpha;
        dt__vf  v = DT__K(set1)(x);
        int64_t j = j0;
        if (g->add) {
            for (; j + DT__W <= n; j += DT__W) DT__K(st)(c + j, DT__K(fma)(v, DT__K(ld)(o->b + j), DT__K(ld)(c + j)));
            for (; j < n; j++) c[j] = DT__K(fma1)(x, o->b[j], c[j]);
        } else {
            for (; j + DT__W <= n; j += DT__W) DT__K(st)(c + j, v * DT__K(ld)(o->b + j));
            for (; j < n; j++) c[j] = x * o->b[j];
        }
    }
}
static int DT__K(gemm_outer)(DT__K(gemm_job) *g)
{
    DT__K(outer) o;
    if (g->n == 1 && g->m > 1 && g->c_m == 1) { /* a column is a row of c^T */
        const char *p = g->a;
        int         dtype = g->adt;
        int64_t     stride = g->a_m;
        g->a = g->b, g->adt = g->bdt, g->a_m = g->b_n;
        g->b = p, g->bdt = dtype, g->b_n = stride;
        g->n = g->m, g->m = 1;
    }
    float *s = (float *)dt_scratch((size_t)(g->m + g->n + 16) * 4);
    if (!s) return DT_ERR_MEMORY;
    o.g = g;
    o.a = DT__K(thin_vector)(s, g->a, g->adt, g->a_m, g->m);
    o.b = DT__K(thin_vector)(s + (g->m + 15) / 16 * 16, g->b, g->bdt, g->b_n, g->n);
    o.cols = g->n < 65536 ? g->n : 65536;
    o.nct = (g->n + o.cols - 1) / o.cols;
    int64_t ntasks = dt__cut(g->m, o.cols, 65536, &o.per);
    dt__pool_run(ntasks * o.nct, DT__K(outer_task), &o);
    return 0;
}
#undef DT__THIN_COLS

/* A dim of size 1 can be given any stride: take the one that makes the matrix dense in one of its dims. Then fold the
   inner batch dims into m where b is the same for all of them. */
static void DT__K(gemm_normal)(DT__K(gemm_job) *g)
{
    if (g->k == 1) g->a_k = 1;
    else if (g->m == 1 && g->a_k != 1) g->a_m = 1;
    if (g->n == 1) g->b_n = 1;
    else if (g->k == 1 && g->b_n != 1) g->b_k = 1;
    while (g->nbatch > 0) {
        int     d = g->nbatch - 1;
        int64_t s = g->shape[d];
        if (s == 1) {
            g->nbatch--;
        } else if (g->sb[d] == 0 && g->m == 1 && g->a_k == 1) {
            g->a_m = g->sa[d], g->c_m = g->sc[d], g->m = s;
            g->nbatch--;
        } else if (g->sb[d] == 0 && g->m > 1 && g->sa[d] == g->m * g->a_m && g->sc[d] == g->m * g->c_m) {
            g->m *= s;
            g->nbatch--;
        } else {
            break;
        }
        g->matrices /= s;
    }
}

static __attribute__((unused)) int DT__K(gemm)(dt_device *dev, const dt_call *call)
{
    const dt_view  *c = &call->out[0], *a = &call->in[0], *b = &call->in[1];
    const dt_view  *bias = call->nin > 2 && call->in[2].ndim >= 0 ? &call->in[2] : NULL;
    DT__K(gemm_job) g;
    float          *unused;
    int             nd = c->ndim;
    (void)dev;
    memset(&g, 0, sizeof g);
    g.a = (const char *)a->data, g.b = (const char *)b->data, g.c = (char *)c->data;
    g.adt = a->dtype, g.bdt = b->dtype, g.cdt = c->dtype;
    g.alpha = (float)call->u.gemm.alpha, g.act = call->u.gemm.act, g.add = (int)(call->acc & 1);
    g.m = c->shape[nd - 2], g.n = c->shape[nd - 1], g.k = a->shape[a->ndim - 1];
    g.a_m = a->stride[a->ndim - 2], g.a_k = a->stride[a->ndim - 1];
    g.b_k = b->stride[b->ndim - 2], g.b_n = b->stride[b->ndim - 1], g.c_m = c->stride[nd - 2];
    g.matrices = 1;
    for (int d = 0; d < nd - 2; d++) { /* an operand with fewer dims is broadcast over the leading ones */
        int da = d - (nd - a->ndim), db = d - (nd - b->ndim);
        g.shape[d] = c->shape[d];
        g.sa[d] = da >= 0 && a->shape[da] != 1 ? a->stride[da] : 0;
        g.sb[d] = db >= 0 && b->shape[db] != 1 ? b->stride[db] : 0;
        g.sc[d] = c->stride[d];
        g.matrices *= c->shape[d];
    }
    g.nbatch = nd - 2;
    if (g.matrices == 0 || g.m == 0 || g.n == 0) return 0;
    if (bias && g.add) bias = NULL;
    if (g.k == 0) return DT__K(gemm_nothing)(&g, bias);
    DT__K(gemm_normal)(&g);
    if ((g.a_k != 1 && g.a_m != 1) || (g.b_k != 1 && g.b_n != 1))
        return dt_fail(DT_ERR_ARG,
                "gemm: %s has no dense dim among its last two (strides %lld and %lld); make it contiguous",
                       g.a_k != 1 && g.a_m != 1 ? "a" : "b", (long long)(g.a_k != 1 && g.a_m != 1 ? g.a_m : g.b_k),
                       (long long)(g.a_k != 1 && g.a_m != 1 ? g.a_k : g.b_n));
#ifdef DT_USE_CBLAS
    if (DT__K(gemm_cblas)(&g, bias)) return 0;
#endif
    if (g.k == 1 && g.matrices == 1 && g.cdt == DT_F32 && !bias && g.act == DT_ACT_NONE) return DT__K(gemm_outer)(&g);
    int thin = DT__K(gemm_thin)(&g, bias);
    if (thin) return thin < 0 ? thin : 0;
    if (g.matrices == 1 && g.k >= 2048 && g.m * g.n <= 16384 && g.k / 16 >= g.m && g.k / 16 >= g.n)
        return DT__K(gemm_split)(&g, bias, g.k / 1024 < 16 ? g.k / 1024 : 16);
    if (g.matrices == 1 && g.a_k == 1 && g.b_k == 1 && g.b_n != 1 && g.bdt == DT_F32 && g.k <= 4096 && g.m >= 12 &&
        g.m <= 384 && g.n >= g.m + g.m / 2) {
        DT__K(gemm_job) h = g;
        h.flip = 1;
        h.m = g.n, h.a = g.b, h.adt = g.bdt, h.a_m = g.b_n, h.a_k = 1;
        h.n = g.m, h.b = g.a, h.bdt = g.adt, h.b_n = g.a_m, h.b_k = 1;
        return DT__K(gemm_run)(&h, bias, 0, 1, &unused);
    }
    return DT__K(gemm_run)(&g, bias, 0, g.matrices, &unused);
}
#undef DT__GEMM_MC
#undef DT__GEMM_KC
#undef DT__GEMM_BP
#undef DT__GEMM_SLAB
#undef DT__GEMM_PIECE

/* ==================================================================================================== >>conv
   Convolution without an im2col matrix. One engine makes y and dx: each destination pixel is the sum over a list of
   taps of (cg source channels) x (cg x og weights). The taps a pixel sees depend on its residue class (position modulo
   the destination step: 1 forward, the stride backward), and within a class they sit at fixed offsets from the source
   position q*ss, so a tile of DT__MR pixels runs over one list of segments. Weights are packed once per call:
   [group][panel of NR destination channels][tap, by class][source channel][NR]. A task owns a band (rows of an image,
   or several small images): it copies the source rows into a zero-padded f32 image in its worker's scratch (or reads
   them in place when nothing lies outside), then goes panel by panel over the band's tiles, so that the band stays in
   L2 and a panel serves all its tiles. The weight gradient keeps the bands and copies: tiles of 6 (tap, source channel)
   rows by NR destination channels sum over 128 pixels at a time (a segment is one pixel) and are added
   to an f32 buffer of their part of the batch; the parts are added in order. A depthwise convolution goes the same
   ways with channels side by side. All cuts are functions of the shape. */
#define DT__CONV_BAND (320 * 1024) /* bytes of padded source in a band */
#define DT__CONV_GRAIN 1500000     /* multiply-adds of a task */
#define DT__CONV_TASKS 64          /* enough tasks to balance any pool */
#define DT__CONV_SHORT 24          /* segments shorter than this are taken element by element */
#define DT__CONV_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) /* the rows of a tile, so that they stay in registers */
#define DT__CONV_DATA 0
#define DT__CONV_FORWARD 1
#define DT__CONV_WEIGHT 2

typedef struct DT__K(conv_axis_t) {
    int64_t  src, dst, k;  /* extents: source, destination, kernel */
    int64_t  ss, ds;       /* source step of one q; destination step (the number of classes, if dst has so many) */
    int64_t  ncls, nq, nt; /* classes, largest q count of a class, taps used */
    int64_t  lo, span;     /* source positions of q: q*ss + lo .. q*ss + lo + span */
    int64_t *start, *off, *tap; /* taps of class r: start[r] .. start[r+1]-1, their offsets rising */
} DT__K(conv_axis_t);

typedef struct DT__K(conv_t) {
    DT__K(conv_axis_t) y, x;
    dt_view  src, dst;
    int64_t  n, groups, cg, og, np, ntap; /* cg, og: source and destination channels of a group; np: its panels */
    int64_t  kd;              /* source channels of one destination channel: cg, or 1 where depth */
    int64_t  so, sk;          /* strides of the plain weights: destination and source channel */
    int64_t *tapsrc, *segoff; /* by packed tap: its place in the plain kernel; the offsets of the class's segments */
    int      kind, depth, add, act, direct; /* depth: one channel a group, taken as one group of all channels */
    int      mix;                           /* four channels a group, likewise: see conv_run_mix */
    int      fine;                          /* short segments: segoff is by element */
    int64_t  sc, cw;        /* source channels: all, those of a copy */
    int64_t  pw, pitch, cp; /* of the copy: width, floats from row to row, from pixel to pixel */
    int64_t  rows, images, nband, nsplit; /* a band: rows of q in each of its images */
    int64_t  pack_per;
    float   *w32, *wpack, *bias;
    char    *work; /* of the workers */
    size_t   work_nbytes;
} DT__K(conv_t);

DT__INLINE int64_t DT__K(conv_min)(int64_t a, int64_t b) { return a < b ? a : b; }
DT__INLINE int64_t DT__K(conv_max)(int64_t a, int64_t b) { return a > b ? a : b; }
DT__INLINE size_t  DT__K(conv_nbytes)(int64_t n, size_t each) { return ((size_t)n * each + 127) & ~(size_t)63; }
DT__INLINE void   *DT__K(conv_take)(char **at, int64_t n, size_t each)
{
    void *p = *at;
    *at += DT__K(conv_nbytes)(n, each);
    return p;
}

/* Counts the taps of an axis; if its arrays are not NULL, fills them. */
static void DT__K(conv_axis)(DT__K(conv_axis_t) *a, int fwd, int64_t stride, int64_t pad, int64_t dil)
{
    int64_t n = 0, lo = 0, hi = 0;
    for (int64_t r = 0; r < a->ncls; r++) {
        if (a->start) a->start[r] = n;
        for (int64_t i = 0; i < a->k; i++) {
            int64_t tap = fwd ? i : a->k - 1 - i, off = fwd ? tap * dil - pad : r + pad - tap * dil;
            if (!fwd && off % stride != 0) continue;
            if (!fwd) off /= stride;
            if (a->start) {
                a->off[n] = off;
                a->tap[n] = tap;
            }
            lo = n == 0 ? off : DT__K(conv_min)(lo, off);
            hi = n == 0 ? off : DT__K(conv_max)(hi, off);
            n++;
        }
    }
    if (a->start) a->start[a->ncls] = n;
    a->nt = n;
    a->lo = lo;
    a->span = hi - lo;
}

/* Whether the taps of class rx are neighbours, so that a kernel row is one run of floats. */
static int DT__K(conv_merged)(const DT__K(conv_t) *p, int64_t rx)
{
    const DT__K(conv_axis_t) *x = &p->x;
    if (p->groups != 1 || p->depth || p->mix || p->cp != p->cg) return 0;
    for (int64_t i = x->start[rx] + 1; i < x->start[rx + 1]; i++)
        if (x->off[i] != x->off[i - 1] + 1) return 0;
    return 1;
}

static void DT__K(conv_taps)(DT__K(conv_t) *p)
{
    int64_t t = 0;
    for (int64_t ry = 0; ry < p->y.ncls; ry++) {
        for (int64_t rx = 0; rx < p->x.ncls; rx++) {
            int     merged = DT__K(conv_merged)(p, rx);
            int64_t seg = t;
            for (int64_t i = p->y.start[ry]; i < p->y.start[ry + 1]; i++) {
                for (int64_t j = p->x.start[rx]; j < p->x.start[rx + 1]; j++) {
                    int64_t off = (p->y.off[i] - p->y.lo) * p->pitch + (p->x.off[j] - p->x.lo) * p->cp;
                    for (int64_t k = 0; p->fine && k < p->kd; k++) p->segoff[t * p->kd + k] = off + k;
                    p->tapsrc[t++] = p->y.tap[i] * p->x.k + p->x.tap[j];
                    if (p->fine || (merged && j > p->x.start[rx])) continue;
                    p->segoff[seg++] = off;
                }
            }
        }
    }
}

/* Bands of the source and, when they are few, a split of the panels. */
static void DT__K(conv_cut)(DT__K(conv_t) *p)
{
    int64_t row = DT__K(conv_max)(p->pw * p->cp * 4, 1), full = (p->y.nq - 1) * p->y.ss + p->y.span + 1;
    int64_t mac = p->x.nq * p->x.ds * p->y.ds * DT__K(conv_max)(p->ntap / (p->x.ncls * p->y.ncls), 1);
    int64_t gp = p->groups * p->np;
    mac *= p->depth ? 4 * gp * DT__NR : p->kd * gp * DT__NR; /* of one row of q; for depth scaled to the time it takes */
    mac = DT__K(conv_max)(mac, 1);
    p->rows = p->y.nq;
    p->images = 1;
    if (full * row > DT__CONV_BAND) {
        int64_t fit = DT__CONV_BAND / row - p->y.span - 1;
        p->rows = fit > 0 ? fit / p->y.ss + 1 : 1;
        p->rows = DT__K(conv_max)(p->rows, p->y.span / p->y.ss);
    } else {
        int64_t per, fit = DT__K(conv_max)(DT__CONV_BAND / (full * row), 1);
        dt__cut(p->n, mac * p->y.nq, DT__CONV_GRAIN, &per);
        p->images = DT__K(conv_max)(per, (96 + p->y.nq * p->x.nq - 1) / (p->y.nq * p->x.nq));
        p->images = DT__K(conv_max)(DT__K(conv_min)(DT__K(conv_min)(p->images, fit), p->n), 1);
    }
    if (p->n < DT__CONV_TASKS / 2) /* few images: shorter bands */
        p->rows = DT__K(conv_min)(p->rows, DT__K(conv_max)(DT__CONV_GRAIN / mac, p->y.span / p->y.ss + 1));
    if (p->rows >= p->y.nq) p->rows = p->y.nq;
    else p->images = 1;
    p->nband = (p->n + p->images - 1) / p->images * ((p->y.nq + p->rows - 1) / p->rows);
    p->nsplit = 1;
    if (p->nband < DT__CONV_TASKS) {
        int64_t most = p->images * p->rows * mac / DT__CONV_GRAIN;
        p->nsplit = DT__K(conv_min)(most, (DT__CONV_TASKS + p->nband - 1) / DT__K(conv_max)(p->nband, 1));
        p->nsplit = DT__K(conv_max)(DT__K(conv_min)(p->nsplit, gp / 4), 1); /* each share of the panels copies the band again */
    }
}

/* Channels: a depthwise convolution has its channels side by side in panels. The weight gradient of many channels
   copies them in chunks, pixels an odd number of cache lines apart so that a column of pixels spreads over all sets of
   the cache. */
static void DT__K(conv_channels)(DT__K(conv_t) *p, const dt_view *w, int64_t groups)
{
    int64_t taps = w->shape[2] * w->shape[3];
    p->sc = p->src.shape[1];
    p->depth = groups > 1 && groups == p->sc && groups == p->dst.shape[1];
    p->groups = p->depth ? 1 : groups;
    p->cg = p->sc / p->groups;
    p->og = p->dst.shape[1] / p->groups;
#if DT__HAS_AVX2
    p->mix = p->kind == DT__CONV_FORWARD && p->groups > 1 && p->cg == 4 && p->og == 4 && p->sc % DT__NR == 0;
    if (p->mix) {
        p->groups = 1;
        p->cg = p->og = p->sc;
    }
#endif
    p->np = (p->og + DT__NR - 1) / DT__NR;
    p->kd = p->depth ? 1 : p->mix ? 4 : p->cg;
    p->so = p->kind == DT__CONV_DATA ? taps : taps * p->kd;
    p->sk = p->kind == DT__CONV_DATA ? taps * p->og : taps;
    p->cw = p->cp = p->sc;
    if (p->kind == DT__CONV_WEIGHT && groups == 1 && p->sc >= 64) {
        p->cw = DT__K(conv_min)(p->sc, 128);
        p->cp = p->cw % 32 ? p->cw : p->cw + 16;
        if (p->cw < p->sc && p->cp == p->sc) p->cp += 32; /* cp == sc would mean that a copy has all channels */
    }
}

DT__INLINE int64_t DT__K(conv_short)(void) /* segments shorter than this are taken element by element: the same sums */
{
#if DT__HAS_AVX2
    if (DT__K(wide)()) return 4;
#endif
    return DT__CONV_SHORT;
}
static void DT__K(conv_geometry)(DT__K(conv_t) *p, const dt_call *c, const dt_view *src, const dt_view *dst,
                                 const dt_view *w, int kind)
{
    int fwd = kind != DT__CONV_DATA;
    memset(p, 0, sizeof *p);
    p->src = *src;
    p->dst = *dst;
    p->kind = kind;
    p->n = dst->shape[2] && dst->shape[3] ? src->shape[0] : 0;
    DT__K(conv_channels)(p, w, c->u.conv.groups);
    for (int i = 0; i < 2; i++) {
        DT__K(conv_axis_t) *a = i ? &p->x : &p->y;
        a->src = src->shape[2 + i];
        a->dst = dst->shape[2 + i];
        a->k = w->shape[2 + i];
        a->ss = fwd ? c->u.conv.stride[i] : 1;
        a->ds = fwd ? 1 : c->u.conv.stride[i];
        a->ncls = DT__K(conv_max)(DT__K(conv_min)(a->ds, a->dst), 1);
        a->nq = DT__K(conv_max)((a->dst + a->ds - 1) / a->ds, 1);
        DT__K(conv_axis)(a, fwd, c->u.conv.stride[i], c->u.conv.pad[i], c->u.conv.dilation[i]);
    }
    p->ntap = p->y.nt * p->x.nt;
    p->fine = !p->depth && !p->mix && p->kd * (p->groups == 1 ? p->x.k : 1) < DT__K(conv_short)();
    p->pw = (p->x.nq - 1) * p->x.ss + p->x.span + 1;
    p->direct = p->src.dtype == DT_F32 && p->x.lo >= 0 && p->y.lo >= 0 && p->x.lo + p->pw <= p->x.src &&
                p->y.lo + (p->y.nq - 1) * p->y.ss + p->y.span + 1 <= p->y.src;
    if (p->cp != p->sc || (p->depth && p->sc % DT__NR != 0)) p->direct = 0;
    p->pitch = (p->direct ? p->x.src : p->pw) * p->cp;
    DT__K(conv_cut)(p);
}

static int64_t DT__K(conv_tables_numel)(const DT__K(conv_t) *p)
{
    return 2 * (p->y.k + p->x.k) + p->y.k * p->x.k * (p->fine ? 1 + p->kd : 2) + p->y.ncls + p->x.ncls + 2;
}

static void DT__K(conv_tables)(DT__K(conv_t) *p, const dt_call *c, int64_t *at)
{
    int fwd = p->kind != DT__CONV_DATA;
    for (int i = 0; i < 2; i++) {
        DT__K(conv_axis_t) *a = i ? &p->x : &p->y;
        a->start = at;
        a->off = a->start + a->ncls + 1;
        a->tap = a->off + a->k;
        at = a->tap + a->k;
        DT__K(conv_axis)(a, fwd, c->u.conv.stride[i], c->u.conv.pad[i], c->u.conv.dilation[i]);
    }
    p->tapsrc = at;
    p->segoff = at + p->y.k * p->x.k;
    DT__K(conv_taps)(p);
}

/* The images and rows of q of a band, and its source: address of (first image, first q) and distance of images. */
typedef struct DT__K(conv_band_t) {
    int64_t      n0, n1, q0, q1, image;
    const float *src;
} DT__K(conv_band_t);

static int64_t DT__K(conv_copy_numel)(const DT__K(conv_t) *p)
{
    return p->direct ? 0 : p->images * ((p->rows - 1) * p->y.ss + p->y.span + 1) * p->pitch;
}

/* One row of the copy: channels c0 and on of the source row s, zeros beside it. */
static void DT__K(conv_pad_row)(const DT__K(conv_t) *p, float *d, const char *s, int64_t c0)
{
    int64_t es = p->src.dtype == DT_F32 ? 4 : 2, cn = DT__K(conv_min)(p->cw, p->sc - c0);
    int64_t left = DT__K(conv_min)(DT__K(conv_max)(-p->x.lo, 0), p->pw);
    int64_t x0 = DT__K(conv_max)(p->x.lo, 0), x1 = DT__K(conv_min)(p->x.lo + p->pw, p->x.src);
    int64_t mid = DT__K(conv_max)(x1 - x0, 0), end = left + mid;
    memset(d, 0, (size_t)(left * p->cp) * 4);
    if (p->cp == p->sc) {
        if (mid) DT__K(load_row)(d + left * p->cp, s + x0 * p->sc * es, p->src.dtype, mid * p->sc);
    } else {
        for (int64_t x = 0; x < mid; x++)
            DT__K(load_row)(d + (left + x) * p->cp, s + ((x0 + x) * p->sc + c0) * es, p->src.dtype, cn);
    }
    if (end < p->pw) memset(d + end * p->cp, 0, (size_t)((p->pw - end) * p->cp) * 4);
}

static void DT__K(conv_band)(DT__K(conv_band_t) *b, const DT__K(conv_t) *p, int64_t band, int64_t c0, float *copy)
{
    int64_t per = (p->y.nq + p->rows - 1) / p->rows, es = p->src.dtype == DT_F32 ? 4 : 2;
    b->n0 = band / per * p->images;
    b->n1 = DT__K(conv_min)(b->n0 + p->images, p->n);
    b->q0 = band % per * p->rows;
    b->q1 = DT__K(conv_min)(b->q0 + p->rows, p->y.nq);
    int64_t y0 = b->q0 * p->y.ss + p->y.lo, ny = (b->q1 - b->q0 - 1) * p->y.ss + p->y.span + 1;
    if (p->direct) {
        b->image = p->y.src * p->pitch;
        b->src = (const float *)p->src.data + b->n0 * b->image + y0 * p->pitch + p->x.lo * p->sc;
        return;
    }
    b->image = ny * p->pitch;
    b->src = copy;
    for (int64_t n = b->n0; n < b->n1; n++) {
        for (int64_t y = y0; y < y0 + ny; y++, copy += p->pitch) {
            int64_t at = (n * p->y.src + y) * p->x.src * p->sc * es;
            if (y < 0 || y >= p->y.src) memset(copy, 0, (size_t)p->pitch * 4);
            else DT__K(conv_pad_row)(p, copy, (const char *)p->src.data + at, c0);
        }
    }
}

static void DT__K(conv_pack_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(conv_t) *p = (const DT__K(conv_t) *)ctx;
    int64_t t0 = task * p->pack_per, t1 = DT__K(conv_min)(t0 + p->pack_per, p->groups * p->np);
    (void)worker;
    for (int64_t gp = t0; gp < t1; gp++) {
        int64_t      o0 = gp % p->np * DT__NR, m = DT__K(conv_min)(p->og - o0, DT__NR);
        const float *w = p->w32 + gp / p->np * p->kd * p->og * p->y.k * p->x.k + o0 * p->so;
        float       *dst = p->wpack + gp * p->ntap * p->kd * DT__NR;
        for (int64_t k = 0; k < p->kd; k++) {
            for (int64_t t = 0; t < p->ntap; t++) {
                const float *s = w + k * p->sk + p->tapsrc[t];
                float       *d = dst + (t * p->kd + k) * DT__NR;
                for (int64_t j = 0; j < m; j++) d[j] = s[j * p->so];
                for (int64_t j = m; j < DT__NR; j++) d[j] = 0.0f;
            }
        }
    }
}

/* What all tiles of one class and panel share. */
typedef struct DT__K(conv_run_t) {
    const float   *src, *w, *bias;
    const int64_t *soff, *doff, *segoff; /* by pixel: source and destination; by segment */
    int64_t        npix, seglen, m;      /* m: destination channels of the panel */
    int            nseg, dtype, act, add;
    char          *dst;
} DT__K(conv_run_t);

/* Stores n pixels of a tile, except for plain f32 panels */
static void DT__K(conv_store)(const DT__K(conv_run_t) *r, const int64_t *doff, int64_t n, float *tile)
{
    int64_t es = r->dtype == DT_F32 ? 4 : 2;
    if (r->act == DT_ACT_SIGMOID)
        for (int64_t i = 0; i < n * DT__NR; i += DT__W) DT__K(st)(tile + i, DT__K(vsigmoid)(DT__K(ld)(tile + i)));
    if (r->act == DT_ACT_TANH)
        for (int64_t i = 0; i < n * DT__NR; i += DT__W) DT__K(st)(tile + i, DT__K(vtanh)(DT__K(ld)(tile + i)));
    for (int64_t i = 0; i < n; i++)
        DT__K(put_row)(r->dst + doff[i] * es, r->dtype, tile + i * DT__NR, r->m, r->add);
}

DT__INLINE void DT__K(conv_put)(float *o, dt__vf v0, dt__vf v1)
{
    DT__K(st)(o, v0);
    DT__K(st)(o + DT__W, v1);
}
DT__INLINE void DT__K(conv_add)(float *o, dt__vf v0, dt__vf v1)
{
    DT__K(st)(o, DT__K(ld)(o) + v0);
    DT__K(st)(o + DT__W, DT__K(ld)(o + DT__W) + v1);
}

/* All tiles of a run */
static void DT__K(conv_run)(const DT__K(conv_run_t) *r)
{
    int         relu = r->act == DT_ACT_RELU;
    int         plain = r->dtype == DT_F32 && r->m == DT__NR && r->act <= DT_ACT_RELU && !(r->add && relu);
    DT__K(mk_t) m = { r->w, r->bias, NULL, r->segoff, r->nseg, r->seglen, 1, 0, DT__NR, 0, DT__NR, 0, relu };
    float       tile[DT__MR * DT__NR];
    int64_t     at = 0, whole = plain ? r->npix / DT__MR * DT__MR : 0;
    m.add = r->add;
    if (whole) DT__K(mk_best)()[DT__MR](&m, whole, r->src, r->soff, (float *)(void *)r->dst, r->doff);
    m.add = 0;
    for (at = whole; at < r->npix; at += DT__MR) {
        DT__K(mk_best)()[DT__MR](&m, DT__MR, r->src, r->soff + at, tile, NULL);
        DT__K(conv_store)(r, r->doff + at, DT__K(conv_min)(r->npix - at, DT__MR), tile);
    }
}
#if DT__HAS_AVX2
/* conv_run_depth and conv_wdepth with AVX-512: the same bits */
#define DT__WIDE_FMA(c, x, w) __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(c) : "v"(w), "m"(*(const DT__K(wf_at) *)(x)));
static DT__WIDE_CODE __attribute__((noinline)) void DT__K(conv_run_depth_wide)(const DT__K(conv_run_t) *r)
{
    dt__wf none = { 0 }, bias = DT__WLD(r->bias);
    int    relu = r->act == DT_ACT_RELU, plain = r->dtype == DT_F32 && r->m == DT__NR && r->act <= DT_ACT_RELU && !r->add;
    for (int64_t at = 0; at < r->npix; at += DT__MR) {
        float        tile[DT__MR * DT__NR];
        const float *w = r->w, *src = r->src;
        const int64_t *so = r->soff + at;
        dt__wf       c0 = bias, c1 = bias, c2 = bias, c3 = bias, c4 = bias, c5 = bias;
        const float *a0 = src + so[0], *a1 = src + so[1], *a2 = src + so[2];
        const float *a3 = src + so[3], *a4 = src + so[4], *a5 = src + so[5];
        for (int s = 0; s < r->nseg; s++, w += DT__NR) {
            dt__wf  v = DT__WLD(w);
            int64_t off = r->segoff[s];
            DT__WIDE_FMA(c0, a0 + off, v) DT__WIDE_FMA(c1, a1 + off, v) DT__WIDE_FMA(c2, a2 + off, v)
            DT__WIDE_FMA(c3, a3 + off, v) DT__WIDE_FMA(c4, a4 + off, v) DT__WIDE_FMA(c5, a5 + off, v)
        }
#define DT__CONV_ONE(i)                                                                                                    \
    if (relu) __asm__("vmaxps {%1, %2, %0|%0, %2, %1}" : "=v"(c##i) : "v"(c##i), "v"(none)); /* NaN stays */               \
    DT__WST(plain && at + i < r->npix ? (float *)(void *)r->dst + r->doff[at + i] : tile + i * DT__NR, c##i);
        DT__CONV_ONE(0) DT__CONV_ONE(1) DT__CONV_ONE(2) DT__CONV_ONE(3) DT__CONV_ONE(4) DT__CONV_ONE(5)
#undef DT__CONV_ONE
        if (!plain) DT__K(conv_store)(r, r->doff + at, DT__K(conv_min)(r->npix - at, DT__MR), tile);
    }
}
#endif
#if DT__HAS_AVX2
/* The same for groups of four channels: a panel has whole groups, and the product with the group's k-th channel takes it from the four
   lanes of each group. The terms of a sum are those of conv_run in the same order. */
#define DT__MIX_WIDE(i, k)                                                                                                        \
    __asm__("vpermilps {%2, %1, %0|%0, %1, %2}" : "=v"(x_) : "m"(*(const DT__K(wf_at) *)(a##i + off)), "i"((k) * 0x55));           \
    __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(c##i) : "v"(v_), "v"(x_));
#define DT__MIX_WIDE_K(k)                                                                                                         \
    {                                                                                                                             \
        dt__wf v_ = DT__WLD(w + (k) * DT__NR), x_;                                                                                \
        DT__MIX_WIDE(0, k) DT__MIX_WIDE(1, k) DT__MIX_WIDE(2, k) DT__MIX_WIDE(3, k) DT__MIX_WIDE(4, k) DT__MIX_WIDE(5, k)         \
    }
static DT__WIDE_CODE __attribute__((noinline)) void DT__K(conv_mix_wide)(const DT__K(conv_run_t) *r, const int64_t *so, float *tile)
{
    const float *w = r->w, *src = r->src;
    dt__wf       c0 = DT__WLD(r->bias), c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0;
    const float *a0 = src + so[0], *a1 = src + so[1], *a2 = src + so[2], *a3 = src + so[3], *a4 = src + so[4], *a5 = src + so[5];
    for (int s = 0; s < r->nseg; s++, w += 4 * DT__NR) {
        int64_t off = r->segoff[s];
        DT__MIX_WIDE_K(0) DT__MIX_WIDE_K(1) DT__MIX_WIDE_K(2) DT__MIX_WIDE_K(3)
    }
    DT__WST(tile, c0);
    DT__WST(tile + DT__NR, c1);
    DT__WST(tile + 2 * DT__NR, c2);
    DT__WST(tile + 3 * DT__NR, c3);
    DT__WST(tile + 4 * DT__NR, c4);
    DT__WST(tile + 5 * DT__NR, c5);
}
#undef DT__MIX_WIDE
#undef DT__MIX_WIDE_K
typedef float DT__K(mix_at) __attribute__((vector_size(32), aligned(4), may_alias));
#define DT__MIX(c, from, k, v)                                                                                                    \
    __asm__("vpermilps {%2, %1, %0|%0, %1, %2}" : "=x"(x_) : "m"(*(const DT__K(mix_at) *)(from)), "i"((k) * 0x55));                \
    __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c) : "x"(v), "x"(x_));
#define DT__MIX_K(k)                                                                                                              \
    {                                                                                                                             \
        dt__vf v0_ = DT__K(ld)(w + (k) * DT__NR), v1_ = DT__K(ld)(w + (k) * DT__NR + DT__W), x_;                                  \
        DT__MIX(c0, a0 + off, k, v0_) DT__MIX(d0, a0 + off + DT__W, k, v1_)                                                       \
        DT__MIX(c1, a1 + off, k, v0_) DT__MIX(d1, a1 + off + DT__W, k, v1_)                                                       \
        DT__MIX(c2, a2 + off, k, v0_) DT__MIX(d2, a2 + off + DT__W, k, v1_)                                                       \
    }
static void DT__K(conv_mix)(const DT__K(conv_run_t) *r, const int64_t *so, float *tile) /* three pixels */
{
    const float *w = r->w, *src = r->src, *a0 = src + so[0], *a1 = src + so[1], *a2 = src + so[2];
    dt__vf       c0 = DT__K(ld)(r->bias), d0 = DT__K(ld)(r->bias + DT__W), c1 = c0, d1 = d0, c2 = c0, d2 = d0;
    for (int s = 0; s < r->nseg; s++, w += 4 * DT__NR) {
        int64_t off = r->segoff[s];
        DT__MIX_K(0) DT__MIX_K(1) DT__MIX_K(2) DT__MIX_K(3)
    }
    DT__K(conv_put)(tile, c0, d0);
    DT__K(conv_put)(tile + DT__NR, c1, d1);
    DT__K(conv_put)(tile + 2 * DT__NR, c2, d2);
}
#undef DT__MIX
#undef DT__MIX_K
static void DT__K(conv_run_mix)(const DT__K(conv_run_t) *r)
{
    dt__vf zero = DT__K(zero)();
    for (int64_t at = 0; at < r->npix; at += DT__MR) {
        float tile[DT__MR * DT__NR];
        if (DT__K(wide)()) {
            DT__K(conv_mix_wide)(r, r->soff + at, tile);
        } else {
            DT__K(conv_mix)(r, r->soff + at, tile);
            DT__K(conv_mix)(r, r->soff + at + 3, tile + 3 * DT__NR);
        }
        for (int i = 0; r->act == DT_ACT_RELU && i < DT__MR * DT__NR; i += DT__W)
            DT__K(st)(tile + i, DT__K(vmax)(zero, DT__K(ld)(tile + i)));
        DT__K(conv_store)(r, r->doff + at, DT__K(conv_min)(r->npix - at, DT__MR), tile);
    }
}
#endif
/* The same for a depthwise convolution: channel by channel */
static void DT__K(conv_run_depth)(const DT__K(conv_run_t) *r)
{
#if DT__HAS_AVX2
    if (DT__K(wide)()) {
        DT__K(conv_run_depth_wide)(r);
        return;
    }
#endif
    dt__vf zero = DT__K(zero)();
    for (int64_t at = 0; at < r->npix; at += DT__MR) {
        float        tile[DT__MR * DT__NR];
        const float *w = r->w, *a[DT__MR];
        dt__vf       acc[DT__MR][2];
#define DT__CONV_ONE(i)                             \
    a[i] = r->src + r->soff[at + i];                \
    acc[i][0] = DT__K(ld)(r->bias);                 \
    acc[i][1] = DT__K(ld)(r->bias + DT__W);
        DT__CONV_EACH(DT__CONV_ONE)
#undef DT__CONV_ONE
        for (int s = 0; s < r->nseg; s++, w += DT__NR) {
            dt__vf  w0 = DT__K(ld)(w), w1 = DT__K(ld)(w + DT__W);
            int64_t off = r->segoff[s];
#define DT__CONV_ONE(i)                                             \
    acc[i][0] = DT__K(fma)(DT__K(ld)(a[i] + off), w0, acc[i][0]);   \
    acc[i][1] = DT__K(fma)(DT__K(ld)(a[i] + off + DT__W), w1, acc[i][1]);
            DT__CONV_EACH(DT__CONV_ONE)
#undef DT__CONV_ONE
        }
#define DT__CONV_ONE(i) DT__K(conv_put)(tile + i * DT__NR, acc[i][0], acc[i][1]);
        DT__CONV_EACH(DT__CONV_ONE)
#undef DT__CONV_ONE
        for (int i = 0; r->act == DT_ACT_RELU && i < DT__MR * DT__NR; i += DT__W)
            DT__K(st)(tile + i, DT__K(vmax)(zero, DT__K(ld)(tile + i)));
        DT__K(conv_store)(r, r->doff + at, DT__K(conv_min)(r->npix - at, DT__MR), tile);
    }
}

/* The pixels of a class in a band; the source table is filled up to whole tiles. */
static int64_t DT__K(conv_pixels)(const DT__K(conv_t) *p, const DT__K(conv_band_t) *b, int64_t ry, int64_t rx,
                                  int64_t *soff, int64_t *doff)
{
    int64_t dc = p->og * p->groups, at = 0;
    int64_t nx = (p->x.dst - rx + p->x.ds - 1) / p->x.ds;
    int64_t q1 = DT__K(conv_min)(b->q1, (p->y.dst - ry + p->y.ds - 1) / p->y.ds);
    for (int64_t n = b->n0; n < b->n1; n++) {
        for (int64_t q = b->q0; q < q1; q++) {
            int64_t s = (n - b->n0) * b->image + (q - b->q0) * p->y.ss * p->pitch;
            int64_t ss = p->x.ss * p->cp, ds = p->x.ds * dc;
            int64_t d = ((n * p->y.dst + q * p->y.ds + ry) * p->x.dst + rx) * dc;
            for (int64_t x = 0; x < nx; x++) {
                soff[at + x] = s + x * ss;
                doff[at + x] = d + x * ds;
            }
            at += nx;
        }
    }
    for (int64_t i = at; at > 0 && i < at + DT__MR; i++) soff[i] = soff[at - 1];
    return at;
}

static void DT__K(conv_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(conv_t) *p = (const DT__K(conv_t) *)ctx;
    DT__K(conv_band_t) b;
    DT__K(conv_run_t)  r;
    char    *mem = p->work + p->work_nbytes * (size_t)worker;
    int64_t  npix = p->images * p->rows * p->x.nq, gp = p->groups * p->np, split = task % p->nsplit;
    float   *copy = (float *)DT__K(conv_take)(&mem, DT__K(conv_copy_numel)(p), 4);
    int64_t *soff = (int64_t *)DT__K(conv_take)(&mem, npix + DT__MR, 8);
    int64_t *doff = (int64_t *)DT__K(conv_take)(&mem, npix, 8);
    int64_t  es = p->dst.dtype == DT_F32 ? 4 : 2;
    DT__K(conv_band)(&b, p, task / p->nsplit, 0, copy);
    r.soff = soff;
    r.doff = doff;
    r.dtype = p->dst.dtype;
    r.act = p->act;
    r.add = p->add;
    for (int64_t cls = 0; cls < p->y.ncls * p->x.ncls; cls++) {
        int64_t ry = cls / p->x.ncls, rx = cls % p->x.ncls;
        int64_t ny = p->y.start[ry + 1] - p->y.start[ry], nx = p->x.start[rx + 1] - p->x.start[rx];
        int64_t tap0 = p->y.start[ry] * p->x.nt + ny * p->x.start[rx];
        int     merged = DT__K(conv_merged)(p, rx);
        r.npix = DT__K(conv_pixels)(p, &b, ry, rx, soff, doff);
        r.segoff = p->segoff + tap0 * (p->fine ? p->kd : 1);
        r.seglen = p->fine ? 1 : merged ? nx * p->kd : p->kd;
        r.nseg = (int)(p->fine ? ny * nx * p->kd : nx * p->kd == 0 ? 0 : merged ? ny : ny * nx);
        for (int64_t i = gp * split / p->nsplit; i < gp * (split + 1) / p->nsplit; i++) {
            int64_t g = i / p->np, o0 = i % p->np * DT__NR;
            r.src = b.src + (p->depth || p->mix ? o0 : g * p->cg);
            r.w = p->wpack + (i * p->ntap + tap0) * p->kd * DT__NR;
            r.bias = p->bias + i * DT__NR;
            r.m = DT__K(conv_min)(p->og - o0, DT__NR);
            r.dst = (char *)p->dst.data + (g * p->og + o0) * es;
            if (p->depth) DT__K(conv_run_depth)(&r);
#if DT__HAS_AVX2
            else if (p->mix) DT__K(conv_run_mix)(&r);
#endif
            else DT__K(conv_run)(&r);
        }
    }
}

static void DT__K(conv_bias)(DT__K(conv_t) *p, const dt_view *bias)
{
    memset(p->bias, 0, (size_t)(p->groups * p->np * DT__NR) * 4);
    if (!bias || bias->ndim < 0) return;
    for (int64_t i = 0; i < p->groups * p->np; i++) {
        int64_t o0 = i % p->np * DT__NR, at = i / p->np * p->og + o0, es = bias->dtype == DT_F32 ? 4 : 2;
        DT__K(load_row)(p->bias + i * DT__NR, (const char *)bias->data + at * es, bias->dtype,
                        DT__K(conv_min)(p->og - o0, DT__NR));
    }
}

/* The gradient of an image with few channels, such as a network's input: a panel of channels would be nearly empty. Instead a row of
   dy pixels times all weights, [tap][channel] side by side, gives what each pixel adds to its window, and the windows are added to a
   band of dx in f32. An element's terms are the sums over dy's channels, in the order of dy's pixels, whatever the bands are. */
#define DT__COLS_PIXELS 48
typedef struct DT__K(conv_cols_t) {
    const dt_view *src, *dst;
    int64_t  sc, oc, kh, kw, stride[2], pad[2];
    int64_t  np, rows, nband; /* panels; rows of dx in a band; bands of an image */
    int      add;
    float   *wpack; /* [panel][source channel][NR] */
    char    *work;
    size_t   work_nbytes;
} DT__K(conv_cols_t);
static void DT__K(conv_window)(float *d, const float *s, int64_t n) /* d += s */
{
    int64_t i = 0;
    for (; i + DT__W <= n; i += DT__W) DT__K(st)(d + i, DT__K(ld)(d + i) + DT__K(ld)(s + i));
    for (; i < n; i++) d[i] += s[i];
}
/* A row of dy: pixels x0 .. x0 + n - 1 at a, kernel rows ky0 .. ky1 - 1; out: row 0 of the kernel in the band */
static void DT__K(conv_cols_part)(const DT__K(conv_cols_t) *p, const float *a, int64_t x0, int64_t n, int64_t ky0, int64_t ky1, float *col,
                                  float *out)
{
    int64_t     w = p->dst->shape[3], row = p->kw * p->oc, ldo = p->np * DT__NR, whole = n / DT__MR * DT__MR;
    DT__K(mk_t) m = { NULL, NULL, NULL, DT__K(mk_whole), 1, p->sc, 1, p->sc, DT__NR, 0, ldo, 0, 0 };
    for (int64_t i = ky0 * row / DT__NR; i < (ky1 * row + DT__NR - 1) / DT__NR; i++) {
        m.b = p->wpack + i * p->sc * DT__NR;
        if (whole) DT__K(mk_best)()[DT__MR](&m, whole, a, NULL, col + i * DT__NR, NULL);
        if (n > whole)
            DT__K(mk_best)()[n - whole](&m, n - whole, a + whole * p->sc, NULL, col + whole * ldo + i * DT__NR, NULL);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (x0 + i) * p->stride[1] - p->pad[1], k0 = DT__K(conv_max)(-at, 0), k1 = DT__K(conv_min)(p->kw, w - at);
        for (int64_t ky = ky0; ky < ky1 && k0 < k1; ky++)
            DT__K(conv_window)(out + (ky * w + at + k0) * p->oc, col + i * ldo + ky * row + k0 * p->oc, (k1 - k0) * p->oc);
    }
}
static void DT__K(conv_cols_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(conv_cols_t) *p = (const DT__K(conv_cols_t) *)ctx;
    int64_t n = task / p->nband, y0 = task % p->nband * p->rows, h = p->dst->shape[2], w = p->dst->shape[3];
    int64_t y1 = DT__K(conv_min)(y0 + p->rows, h), sh = p->src->shape[2], sw = p->src->shape[3];
    int64_t es = p->src->dtype == DT_F32 ? 4 : 2, os = p->dst->dtype == DT_F32 ? 4 : 2, line = w * p->oc;
    char   *mem = p->work + p->work_nbytes * (size_t)worker;
    float  *band = (float *)DT__K(conv_take)(&mem, p->rows * line, 4);
    float  *col = (float *)DT__K(conv_take)(&mem, DT__COLS_PIXELS * p->np * DT__NR, 4);
    float  *half = (float *)DT__K(conv_take)(&mem, es == 4 ? 0 : sw * p->sc, 4);
    memset(band, 0, (size_t)((y1 - y0) * line) * 4);
    for (int64_t y = 0; y < sh; y++) {
        int64_t at = y * p->stride[0] - p->pad[0], k0 = DT__K(conv_max)(y0 - at, 0), k1 = DT__K(conv_min)(p->kh, y1 - at);
        if (k0 >= k1) continue;
        const char  *s = (const char *)p->src->data + (n * sh + y) * sw * p->sc * es;
        const float *f = (const float *)(const void *)s;
        if (es != 4) {
            DT__K(load_row)(half, s, p->src->dtype, sw * p->sc);
            f = half;
        }
        for (int64_t x = 0; x < sw; x += DT__COLS_PIXELS)
            DT__K(conv_cols_part)(p, f + x * p->sc, x, DT__K(conv_min)(sw - x, DT__COLS_PIXELS), k0, k1, col, band + (at - y0) * line);
    }
    DT__K(put_row)((char *)p->dst->data + (n * h + y0) * line * os, p->dst->dtype, band, (y1 - y0) * line, p->add);
}
static int DT__K(conv_cols)(const dt_call *c, const dt_view *src, const dt_view *w)
{
    DT__K(conv_cols_t) p;
    memset(&p, 0, sizeof p);
    p.src = src;
    p.dst = &c->out[0];
    p.sc = src->shape[1];
    p.oc = p.dst->shape[1];
    p.kh = w->shape[2];
    p.kw = w->shape[3];
    for (int i = 0; i < 2; i++) {
        p.stride[i] = c->u.conv.stride[i];
        p.pad[i] = c->u.conv.pad[i];
    }
    p.add = (int)(c->acc & 1u);
    int64_t cols = p.kh * p.kw * p.oc, h = p.dst->shape[2], line = p.dst->shape[3] * p.oc, wn = cols * p.sc;
    p.np = (cols + DT__NR - 1) / DT__NR;
    p.rows = DT__K(conv_max)(32 * 1024 / DT__K(conv_max)(line, 1), 3 * p.kh); /* 128 KiB; the edges of bands are computed twice in part */
    p.rows = DT__K(conv_min)((p.rows + p.stride[0] - 1) / p.stride[0] * p.stride[0], h);
    p.nband = (h + p.rows - 1) / p.rows;
    p.work_nbytes = DT__K(conv_nbytes)(p.rows * line, 4) + DT__K(conv_nbytes)(DT__COLS_PIXELS * p.np * DT__NR, 4) +
                    DT__K(conv_nbytes)(src->dtype == DT_F32 ? 0 : src->shape[3] * p.sc, 4);
    size_t need = DT__K(conv_nbytes)(p.np * p.sc * DT__NR, 4) + DT__K(conv_nbytes)(w->dtype == DT_F32 ? 0 : wn, 4);
    char  *mem = (char *)dt_scratch(need + p.work_nbytes * (size_t)dt__pool_size());
    if (!mem) return DT_ERR_MEMORY;
    p.wpack = (float *)DT__K(conv_take)(&mem, p.np * p.sc * DT__NR, 4);
    float       *w32 = (float *)DT__K(conv_take)(&mem, w->dtype == DT_F32 ? 0 : wn, 4);
    const float *f = w->dtype == DT_F32 ? (const float *)w->data : w32;
    p.work = mem;
    if (w->dtype != DT_F32) DT__K(load_row)(w32, w->data, w->dtype, wn);
    for (int64_t k = 0; k < p.sc; k++)
        for (int64_t j = 0; j < p.np * DT__NR; j++)
            p.wpack[(j / DT__NR * p.sc + k) * DT__NR + j % DT__NR] =
                j < cols ? f[(k * p.oc + j % p.oc) * p.kh * p.kw + j / p.oc] : 0.0f;
    dt__pool_run(src->shape[0] * p.nband, DT__K(conv_cols_task), &p);
    return 0;
}
static int DT__K(conv_is_cols)(const dt_call *c, const dt_view *src, const dt_view *w) /* is conv_cols faster for this gradient? */
{
    const dt_view *dst = &c->out[0];
    return c->u.conv.groups == 1 && dst->shape[1] <= DT__NR / 4 && src->shape[1] >= 16 && c->u.conv.dilation[0] == 1 &&
           c->u.conv.dilation[1] == 1 && w->shape[2] * w->shape[3] >= 9;
}
#undef DT__COLS_PIXELS

/* dst := or += the convolution of src with w, forward or transposed */
static int DT__K(conv_apply)(const dt_call *c, const dt_view *src, const dt_view *w, const dt_view *bias, int fwd)
{
    DT__K(conv_t) p;
    const dt_view *dst = &c->out[0];
    int64_t wn = w->shape[0] * w->shape[1] * w->shape[2] * w->shape[3];
    if (dst->shape[0] == 0 || dst->shape[1] == 0 || dst->shape[2] == 0 || dst->shape[3] == 0) return 0;
    if (!fwd && DT__K(conv_is_cols)(c, src, w)) return DT__K(conv_cols)(c, src, w);
    DT__K(conv_geometry)(&p, c, src, dst, w, fwd ? DT__CONV_FORWARD : DT__CONV_DATA);
    int64_t gp = p.groups * p.np, pn = gp * p.ntap * p.kd * DT__NR, npix = p.images * p.rows * p.x.nq;
    p.work_nbytes = DT__K(conv_nbytes)(DT__K(conv_copy_numel)(&p), 4) + DT__K(conv_nbytes)(npix + DT__MR, 8) +
                    DT__K(conv_nbytes)(npix, 8);
    size_t need = DT__K(conv_nbytes)(DT__K(conv_tables_numel)(&p), 8) + DT__K(conv_nbytes)(wn, 4) +
                  DT__K(conv_nbytes)(pn, 4) + DT__K(conv_nbytes)(gp * DT__NR, 4);
    char  *mem = (char *)dt_scratch(need + p.work_nbytes * (size_t)dt__pool_size());
    if (!mem) return DT_ERR_MEMORY;
    DT__K(conv_tables)(&p, c, (int64_t *)DT__K(conv_take)(&mem, DT__K(conv_tables_numel)(&p), 8));
    p.w32 = (float *)DT__K(conv_take)(&mem, wn, 4);
    p.wpack = (float *)DT__K(conv_take)(&mem, pn, 4);
    p.bias = (float *)DT__K(conv_take)(&mem, gp * DT__NR, 4);
    p.work = mem;
    p.act = fwd ? c->u.conv.act : DT_ACT_NONE;
    p.add = (int)(c->acc & 1u);
    if (w->dtype == DT_F32) p.w32 = (float *)w->data;
    else DT__K(load_row)(p.w32, w->data, w->dtype, wn);
    DT__K(conv_bias)(&p, bias);
    int64_t npack = dt__cut(gp, p.ntap * p.kd * DT__NR, 32768, &p.pack_per);
    dt__pool_run(npack, DT__K(conv_pack_task), &p);
    dt__pool_run(p.nband * p.nsplit, DT__K(conv_task), &p);
    return 0;
}

/* ---- weight gradient: the plan is the forward one, with dy as its destination */
typedef struct DT__K(conv_wgrad_t) {
    DT__K(conv_t) p;
    dt_view  dw, db;
    int64_t  parts, nchunk, nsplit; /* of the bands; of the source channels; of the panels */
    int64_t  block;         /* pixels of a sum that stays in registers */
    int64_t  reduce_per;
    int      copy_dy, add_w, add_b;
    float   *wbuf, *dbuf; /* [part][panel][tap][cg][NR], [part][panel][NR] */
} DT__K(conv_wgrad_t);

/* The pixels of one sum: k of them, x's at aoff, dy's in steps of ldb. */
typedef struct DT__K(conv_sum_t) {
    const float   *a, *b;
    const int64_t *aoff;
    int64_t        ldb, k;
} DT__K(conv_sum_t);

/* Rows i are at a + i, the segments are single pixels. With AVX2 and AVX-512 there is a kernel for each number of rows, up to
   DT__WROWS, in which the rows need no pointers of their own. The sums are those of the micro-kernel, bit for bit. */
#if DT__HAS_AVX2
typedef void (*DT__K(wrows_fn))(const DT__K(conv_sum_t) *r, const float *a, float *out);
#define DT__WROWS 12
#define DT__WROWS_1(X) X(0)
#define DT__WROWS_2(X) DT__WROWS_1(X) X(1)
#define DT__WROWS_3(X) DT__WROWS_2(X) X(2)
#define DT__WROWS_4(X) DT__WROWS_3(X) X(3)
#define DT__WROWS_5(X) DT__WROWS_4(X) X(4)
#define DT__WROWS_6(X) DT__WROWS_5(X) X(5)
#define DT__WROWS_7(X) DT__WROWS_6(X) X(6)
#define DT__WROWS_8(X) DT__WROWS_7(X) X(7)
#define DT__WROWS_9(X) DT__WROWS_8(X) X(8)
#define DT__WROWS_10(X) DT__WROWS_9(X) X(9)
#define DT__WROWS_11(X) DT__WROWS_10(X) X(10)
#define DT__WROWS_12(X) DT__WROWS_11(X) X(11)
#define DT__WROW_ZERO(i) dt__wf c##i = { 0 };
#define DT__WROW_FMA(i) __asm__("vfmadd231ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(c##i) : "v"(v_), "m"(x_[i]));
#define DT__WROW_ADD(i) DT__WST(out + i * DT__NR, DT__WLD(out + i * DT__NR) + c##i);
#define DT__WROWS_WIDE(n)                                                                                              \
    static DT__WIDE_CODE __attribute__((noinline)) void DT__K(wrows_wide##n)(const DT__K(conv_sum_t) *r, const float *a, \
                                                                             float *out)                               \
    {                                                                                                                  \
        const float   *b = r->b;                                                                                       \
        const int64_t *at = r->aoff, ldb = r->ldb;                                                                     \
        DT__WROWS_##n(DT__WROW_ZERO)                                                                                   \
        for (int64_t k = r->k; k > 0; k--, at++, b += ldb) {                                                           \
            dt__wf       v_ = DT__WLD(b);                                                                              \
            const float *x_ = a + *at;                                                                                 \
            DT__WROWS_##n(DT__WROW_FMA)                                                                                \
        }                                                                                                              \
        DT__WROWS_##n(DT__WROW_ADD)                                                                                    \
    }
DT__WROWS_WIDE(1) DT__WROWS_WIDE(2) DT__WROWS_WIDE(3) DT__WROWS_WIDE(4) DT__WROWS_WIDE(5) DT__WROWS_WIDE(6)
DT__WROWS_WIDE(7) DT__WROWS_WIDE(8) DT__WROWS_WIDE(9) DT__WROWS_WIDE(10) DT__WROWS_WIDE(11) DT__WROWS_WIDE(12)
#undef DT__WROWS_WIDE
#undef DT__WROW_ZERO
#undef DT__WROW_FMA
#undef DT__WROW_ADD
#define DT__WROW_ZERO(i) dt__vf c##i = DT__K(zero)(), d##i = c##i;
#define DT__WROW_FMA(i)                                                                     \
    y_ = DT__K(set1)(x_[i]);                                                                \
    __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(c##i) : "x"(y_), "x"(v_));         \
    __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+x"(d##i) : "x"(y_), "x"(w_));
#define DT__WROW_ADD(i) DT__K(conv_add)(out + i * DT__NR, c##i, d##i);
#define DT__WROWS_NARROW(n)                                                                                            \
    static __attribute__((noinline)) void DT__K(wrows##n)(const DT__K(conv_sum_t) *r, const float *a, float *out)      \
    {                                                                                                                  \
        const float   *b = r->b;                                                                                       \
        const int64_t *at = r->aoff, ldb = r->ldb;                                                                     \
        DT__WROWS_##n(DT__WROW_ZERO)                                                                                   \
        for (int64_t k = r->k; k > 0; k--, at++, b += ldb) {                                                           \
            dt__vf       v_ = DT__K(ld)(b), w_ = DT__K(ld)(b + DT__W), y_;                                             \
            const float *x_ = a + *at;                                                                                 \
            DT__WROWS_##n(DT__WROW_FMA)                                                                                \
        }                                                                                                              \
        DT__WROWS_##n(DT__WROW_ADD)                                                                                    \
    }
DT__WROWS_NARROW(1) DT__WROWS_NARROW(2) DT__WROWS_NARROW(3) DT__WROWS_NARROW(4) DT__WROWS_NARROW(5) DT__WROWS_NARROW(6)
#undef DT__WROWS_NARROW
#undef DT__WROW_ZERO
#undef DT__WROW_FMA
#undef DT__WROW_ADD
static const DT__K(wrows_fn) DT__K(wrows_wide)[DT__WROWS + 1] = {
    NULL, DT__K(wrows_wide1), DT__K(wrows_wide2), DT__K(wrows_wide3), DT__K(wrows_wide4), DT__K(wrows_wide5), DT__K(wrows_wide6),
    DT__K(wrows_wide7), DT__K(wrows_wide8), DT__K(wrows_wide9), DT__K(wrows_wide10), DT__K(wrows_wide11), DT__K(wrows_wide12)
};
static const DT__K(wrows_fn) DT__K(wrows_narrow)[DT__MR + 1] = { NULL, DT__K(wrows1), DT__K(wrows2), DT__K(wrows3), DT__K(wrows4),
                                                                 DT__K(wrows5), DT__K(wrows6) };
static void DT__K(conv_wrows)(int64_t n, const DT__K(conv_sum_t) *r, const float *a, float *out) /* in even tiles */
{
    int                    wide = DT__K(wide)();
    const DT__K(wrows_fn) *fn = wide ? DT__K(wrows_wide) : DT__K(wrows_narrow);
    int64_t                most = wide ? DT__WROWS : DT__MR, tiles = (n + most - 1) / most;
    for (int64_t i = 0; i < tiles; i++) {
        int64_t m0 = n * i / tiles, m1 = n * (i + 1) / tiles;
        fn[m1 - m0](r, a + m0, out + m0 * DT__NR);
    }
}
#undef DT__WROWS
#undef DT__WROWS_1
#undef DT__WROWS_2
#undef DT__WROWS_3
#undef DT__WROWS_4
#undef DT__WROWS_5
#undef DT__WROWS_6
#undef DT__WROWS_7
#undef DT__WROWS_8
#undef DT__WROWS_9
#undef DT__WROWS_10
#undef DT__WROWS_11
#undef DT__WROWS_12
#else
static void DT__K(conv_wrows)(int64_t n, const DT__K(conv_sum_t) *r, const float *a, float *out)
{
    static const int64_t near[DT__MR] = { 0, 1, 2, 3, 4, 5 };
    for (int64_t i = 0; i < n; i += DT__MR) {
        int64_t     mr = DT__K(conv_min)(n - i, DT__MR);
        DT__K(mk_t) m = { r->b, NULL, NULL, r->aoff, r->k, 1, 1, 0, r->ldb, 0, DT__NR, 1, 0 };
        DT__K(mk_best)()[mr](&m, (int)mr, a + i, near, out + i * DT__NR, NULL);
    }
}
#endif
/* The same for rows at a + off[i], of which some may follow each other */
static void DT__K(conv_wtile)(int64_t mr, const DT__K(conv_sum_t) *r, const float *a, const int64_t *off, float *out)
{
    DT__K(mk_t) m = { r->b, NULL, NULL, r->aoff, r->k, 1, 1, 0, r->ldb, 0, DT__NR, 1, 0 };
    DT__K(mk_best)()[mr](&m, (int)mr, a, off, out, NULL);
}

static void DT__K(conv_wsum)(float *out, const DT__K(conv_sum_t) *r) /* out[NR] += the sum of dy */
{
    dt__vf  s0 = DT__K(zero)(), s1 = s0, t0 = s0, t1 = s0, u0 = s0, u1 = s0, v0 = s0, v1 = s0;
    int64_t k = 0, ldb = r->ldb;
    for (const float *b = r->b; k + 4 <= r->k; k += 4, b += 4 * ldb) {
        s0 += DT__K(ld)(b);
        s1 += DT__K(ld)(b + DT__W);
        t0 += DT__K(ld)(b + ldb);
        t1 += DT__K(ld)(b + ldb + DT__W);
        u0 += DT__K(ld)(b + 2 * ldb);
        u1 += DT__K(ld)(b + 2 * ldb + DT__W);
        v0 += DT__K(ld)(b + 3 * ldb);
        v1 += DT__K(ld)(b + 3 * ldb + DT__W);
    }
    for (; k < r->k; k++) {
        s0 += DT__K(ld)(r->b + k * ldb);
        s1 += DT__K(ld)(r->b + k * ldb + DT__W);
    }
    DT__K(conv_add)(out, (s0 + t0) + (u0 + v0), (s1 + t1) + (u1 + v1));
}

/* Depthwise: tiles of taps instead of rows, channel by channel. */
#if DT__HAS_AVX2
static DT__WIDE_CODE __attribute__((noinline)) void DT__K(conv_wdepth_wide)(const DT__K(conv_t) *p,
                                                                            const DT__K(conv_sum_t) *r, float *out)
{
    for (int64_t t = 0; t < p->ntap; t += DT__MR) {
        const int64_t *so = p->segoff;
        int64_t        last = p->ntap - 1;
        dt__wf         c0 = { 0 }, c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0;
        const float   *a0 = r->a + so[t], *a1 = r->a + so[t + 1 < last ? t + 1 : last];
        const float   *a2 = r->a + so[t + 2 < last ? t + 2 : last];
        const float   *a3 = r->a + so[t + 3 < last ? t + 3 : last], *a4 = r->a + so[t + 4 < last ? t + 4 : last];
        const float   *a5 = r->a + so[t + 5 < last ? t + 5 : last];
        for (int64_t k = 0; k < r->k; k++) {
            dt__wf  v = DT__WLD(r->b + k * r->ldb);
            int64_t at = r->aoff[k];
            DT__WIDE_FMA(c0, a0 + at, v) DT__WIDE_FMA(c1, a1 + at, v) DT__WIDE_FMA(c2, a2 + at, v)
            DT__WIDE_FMA(c3, a3 + at, v) DT__WIDE_FMA(c4, a4 + at, v) DT__WIDE_FMA(c5, a5 + at, v)
        }
#define DT__CONV_ONE(i) \
    if (t + i < p->ntap) DT__WST(out + (t + i) * DT__NR, DT__WLD(out + (t + i) * DT__NR) + c##i);
        DT__CONV_ONE(0) DT__CONV_ONE(1) DT__CONV_ONE(2) DT__CONV_ONE(3) DT__CONV_ONE(4) DT__CONV_ONE(5)
#undef DT__CONV_ONE
    }
}
#undef DT__WIDE_FMA
#undef DT__WIDE_CODE
#undef DT__WLD
#undef DT__WST
#undef dt__wf
#endif
static void DT__K(conv_wdepth)(const DT__K(conv_t) *p, const DT__K(conv_sum_t) *r, float *out)
{
#if DT__HAS_AVX2
    if (DT__K(wide)()) {
        DT__K(conv_wdepth_wide)(p, r, out);
        return;
    }
#endif
    for (int64_t t = 0; t < p->ntap; t += DT__MR) {
        const float *a[DT__MR];
        dt__vf       acc[DT__MR][2];
#define DT__CONV_ONE(i)                                               \
    a[i] = r->a + p->segoff[DT__K(conv_min)(t + i, p->ntap - 1)];     \
    acc[i][0] = acc[i][1] = DT__K(zero)();
        DT__CONV_EACH(DT__CONV_ONE)
#undef DT__CONV_ONE
        for (int64_t k = 0; k < r->k; k++) {
            dt__vf  b0 = DT__K(ld)(r->b + k * r->ldb), b1 = DT__K(ld)(r->b + k * r->ldb + DT__W);
            int64_t at = r->aoff[k];
#define DT__CONV_ONE(i)                                             \
    acc[i][0] = DT__K(fma)(DT__K(ld)(a[i] + at), b0, acc[i][0]);    \
    acc[i][1] = DT__K(fma)(DT__K(ld)(a[i] + at + DT__W), b1, acc[i][1]);
            DT__CONV_EACH(DT__CONV_ONE)
#undef DT__CONV_ONE
        }
#define DT__CONV_ONE(i) \
    if (t + i < p->ntap) DT__K(conv_add)(out + (t + i) * DT__NR, acc[i][0], acc[i][1]);
        DT__CONV_EACH(DT__CONV_ONE)
#undef DT__CONV_ONE
    }
}

/* All taps of one panel over one block of pixels, for the source channels of the chunk at c0. */
static void DT__K(conv_wblock)(const DT__K(conv_t) *p, const DT__K(conv_sum_t) *r, int64_t c0, float *out)
{
    int     merged = DT__K(conv_merged)(p, 0);
    if (p->fine) { /* few channels: the rows of all taps together, in even tiles, or those that follow each other */
        int64_t m = p->ntap * p->kd, nt = (m + DT__MR - 1) / DT__MR, first = 0, runs = 1;
        for (int64_t i = 1; i < m; i++) runs += p->segoff[i] != p->segoff[i - 1] + 1;
        for (int64_t i = 1; i <= m && m >= 5 * runs; i++) {
            if (i < m && p->segoff[i] == p->segoff[i - 1] + 1) continue;
            DT__K(conv_wrows)(i - first, r, r->a + p->segoff[first], out + first * DT__NR);
            first = i;
        }
        if (first == m) return;
        for (int64_t i = 0; i < nt; i++) {
            int64_t m0 = m * i / nt, m1 = m * (i + 1) / nt;
            DT__K(conv_wtile)(m1 - m0, r, r->a, p->segoff + m0, out + m0 * DT__NR);
        }
        return;
    }
    int64_t step = merged ? p->x.k * p->cg : p->cg, nseg = merged ? p->y.k : p->y.k * p->x.k;
    int64_t len = p->groups > 1 || merged ? step : DT__K(conv_min)(p->cw, p->cg - c0);
    for (int64_t s = 0; s < nseg; s++) {
        const float *a = r->a + p->segoff[s];
        float       *o = out + (s * step + c0) * DT__NR;
        DT__K(conv_wrows)(len, r, a, o);
    }
}

/* dy of a band as [panel][pixel][NR] f32, for the panels i0..i1-1 */
static void DT__K(conv_wcopy)(const DT__K(conv_t) *p, const DT__K(conv_band_t) *b, float *copy, float *line,
                              int64_t i0, int64_t i1)
{
    int64_t c = p->og * p->groups, w = p->x.dst, es = p->dst.dtype == DT_F32 ? 4 : 2, at = 0;
    int64_t npix = (b->n1 - b->n0) * (b->q1 - b->q0) * w;
    for (int64_t n = b->n0; n < b->n1; n++) {
        for (int64_t q = b->q0; q < b->q1; q++, at += w) {
            const char *s = (const char *)p->dst.data + (n * p->y.dst + q) * w * c * es;
            if (p->dst.dtype != DT_F32) DT__K(load_row)(line, s, p->dst.dtype, w * c);
            const float *f = p->dst.dtype == DT_F32 ? (const float *)(const void *)s : line;
            for (int64_t i = i0; i < i1; i++) {
                int64_t o0 = i % p->np * DT__NR, m = DT__K(conv_min)(p->og - o0, DT__NR);
                float  *d = copy + ((i - i0) * npix + at) * DT__NR;
                const float *e = f + i / p->np * p->og + o0;
                for (int64_t x = 0; x < w; x++, d += DT__NR, e += c) {
                    if (m == DT__NR) {
                        DT__K(conv_put)(d, DT__K(ld)(e), DT__K(ld)(e + DT__W));
                    } else {
                        DT__K(conv_put)(d, DT__K(zero)(), DT__K(zero)());
                        for (int64_t j = 0; j < m; j++) d[j] = e[j];
                    }
                }
            }
        }
    }
}

/* One band's share of the panels i0..i1-1 and the source channels of the chunk at c0 */
static void DT__K(conv_wband)(const DT__K(conv_wgrad_t) *g, int64_t band, char *mem, int64_t i0, int64_t i1,
                              int64_t c0, float *wbuf, float *dbuf)
{
    const DT__K(conv_t) *p = &g->p;
    DT__K(conv_band_t) b;
    DT__K(conv_sum_t) r;
    int64_t  w = p->x.dst, oc = p->og * p->groups, npix = p->images * p->rows * w, at = 0;
    int64_t  most = (p->groups * p->np + g->nsplit - 1) / g->nsplit * npix * DT__NR;
    float   *copy = (float *)DT__K(conv_take)(&mem, DT__K(conv_copy_numel)(p), 4);
    float   *dcopy = (float *)DT__K(conv_take)(&mem, g->copy_dy ? most : 0, 4);
    float   *line = (float *)DT__K(conv_take)(&mem, g->copy_dy ? w * oc : 0, 4);
    int64_t *aoff = (int64_t *)DT__K(conv_take)(&mem, npix, 8);
    DT__K(conv_band)(&b, p, band, c0, copy);
    if (g->copy_dy) DT__K(conv_wcopy)(p, &b, dcopy, line, i0, i1);
    for (int64_t n = 0; n < b.n1 - b.n0; n++)
        for (int64_t q = 0; q < b.q1 - b.q0; q++, at += w)
            for (int64_t x = 0; x < w; x++)
                aoff[at + x] = n * b.image + q * p->y.ss * p->pitch + x * p->x.ss * p->cp;
    for (int64_t i = i0; i < i1; i++) {
        const float *dy = (const float *)p->dst.data + (b.n0 * p->y.dst + b.q0) * w * oc;
        dy = g->copy_dy ? dcopy + (i - i0) * at * DT__NR : dy + i / p->np * p->og + i % p->np * DT__NR;
        r.a = b.src + (p->depth ? i * DT__NR : i / p->np * p->cg);
        r.ldb = g->copy_dy ? DT__NR : oc;
        for (int64_t k = 0; k < at; k += g->block) {
            r.aoff = aoff + k;
            r.b = dy + k * r.ldb;
            r.k = DT__K(conv_min)(g->block, at - k);
            if (g->db.ndim >= 0 && c0 == 0) DT__K(conv_wsum)(dbuf + i * DT__NR, &r);
            if (p->depth) DT__K(conv_wdepth)(p, &r, wbuf + i * p->ntap * DT__NR);
            else DT__K(conv_wblock)(p, &r, c0, wbuf + i * p->ntap * p->cg * DT__NR);
        }
    }
}

static void DT__K(conv_wtask)(void *ctx, int64_t task, int worker)
{
    const DT__K(conv_wgrad_t) *g = (const DT__K(conv_wgrad_t) *)ctx;
    const DT__K(conv_t) *p = &g->p;
    int64_t part = task / (g->nsplit * g->nchunk), chunk = task / g->nsplit % g->nchunk, split = task % g->nsplit;
    int64_t gp = p->groups * p->np, wn = p->ntap * p->kd * DT__NR, c0 = chunk * p->cw;
    int64_t i0 = gp * split / g->nsplit, i1 = gp * (split + 1) / g->nsplit;
    int64_t len = p->groups > 1 || p->depth ? p->kd : DT__K(conv_min)(p->cw, p->kd - c0);
    float  *wbuf = g->wbuf + part * gp * wn, *dbuf = g->dbuf + part * gp * DT__NR;
    for (int64_t t = i0 * p->ntap; t < i1 * p->ntap; t++)
        memset(wbuf + (t * p->kd + c0) * DT__NR, 0, (size_t)(len * DT__NR) * 4);
    if (chunk == 0) memset(dbuf + i0 * DT__NR, 0, (size_t)((i1 - i0) * DT__NR) * 4);
    for (int64_t band = p->nband * part / g->parts; band < p->nband * (part + 1) / g->parts; band++)
        DT__K(conv_wband)(g, band, p->work + p->work_nbytes * (size_t)worker, i0, i1, c0, wbuf, dbuf);
}

/* dw of the rows (panel, source channel): the parts in order, then [tap][NR] turned into [NR][tap] */
static void DT__K(conv_wreduce)(void *ctx, int64_t task, int worker)
{
    const DT__K(conv_wgrad_t) *g = (const DT__K(conv_wgrad_t) *)ctx;
    const DT__K(conv_t) *p = &g->p;
    int64_t r0 = task * g->reduce_per, r1 = DT__K(conv_min)(r0 + g->reduce_per, p->groups * p->np * p->kd);
    int64_t es = g->dw.dtype == DT_F32 ? 4 : 2, all = p->groups * p->np * p->ntap * p->kd * DT__NR, nt = p->ntap;
    float  *sum = (float *)(void *)(p->work + p->work_nbytes * (size_t)worker), *turn = sum + nt * DT__NR;
    for (int64_t row = r0; row < r1; row++) {
        int64_t i = row / p->kd, k = row % p->kd, o0 = i % p->np * DT__NR, m = DT__K(conv_min)(p->og - o0, DT__NR);
        const float *s = g->wbuf + (i * nt * p->kd + k) * DT__NR;
        for (int64_t t = 0; t < nt; t++) {
            dt__vf s0 = DT__K(zero)(), s1 = DT__K(zero)();
            for (int64_t part = 0; part < g->parts; part++) {
                const float *e = s + part * all + t * p->kd * DT__NR;
                s0 += DT__K(ld)(e);
                s1 += DT__K(ld)(e + DT__W);
            }
            DT__K(st)(sum + t * DT__NR, s0);
            DT__K(st)(sum + t * DT__NR + DT__W, s1);
        }
        for (int64_t j = 0; j < m; j++) {
            char *d = (char *)g->dw.data + ((i / p->np * p->og + o0 + j) * p->kd + k) * nt * es;
            for (int64_t t = 0; t < nt; t++) turn[t] = sum[t * DT__NR + j];
            DT__K(put_row)(d, g->dw.dtype, turn, nt, g->add_w);
        }
    }
}

static void DT__K(conv_wbias)(const DT__K(conv_wgrad_t) *g)
{
    const DT__K(conv_t) *p = &g->p;
    int64_t gp = p->groups * p->np, es = g->db.dtype == DT_F32 ? 4 : 2;
    for (int64_t i = 0; i < gp; i++) {
        float   sum[DT__NR];
        int64_t o0 = i % p->np * DT__NR;
        for (int64_t j = 0; j < DT__NR; j++) {
            sum[j] = 0.0f;
            for (int64_t part = 0; part < g->parts; part++) sum[j] += g->dbuf[(part * gp + i) * DT__NR + j];
        }
        DT__K(put_row)((char *)g->db.data + (i / p->np * p->og + o0) * es, g->db.dtype, sum,
                       DT__K(conv_min)(p->og - o0, DT__NR), g->add_b);
    }
}

/* Parts: at least 512 pixels each, their buffers at most 16 MB together; then the panels. */
static void DT__K(conv_wcut)(DT__K(conv_wgrad_t) *g)
{
    const DT__K(conv_t) *p = &g->p;
    int64_t gp = p->groups * p->np, wn = DT__K(conv_max)(gp * p->ntap * p->kd * DT__NR, 1);
    int64_t pixels = p->n * p->y.dst * p->x.dst, mac = pixels * wn * (p->depth ? 4 : 1);
    g->parts = DT__K(conv_min)(DT__K(conv_min)(pixels / 512, p->nband), DT__CONV_TASKS);
    g->parts = DT__K(conv_min)(g->parts, 4 * 1024 * 1024 / wn);
    g->parts = DT__K(conv_min)(g->parts, mac / DT__CONV_GRAIN);
    g->parts = p->nband > 0 ? DT__K(conv_max)(g->parts, 1) : 0;
    g->nchunk = DT__K(conv_max)((p->sc + p->cw - 1) / DT__K(conv_max)(p->cw, 1), 1);
    int64_t have = DT__K(conv_max)(g->parts * g->nchunk, 1);
    g->nsplit = DT__K(conv_min)(DT__CONV_TASKS / have, mac / have / DT__CONV_GRAIN);
    g->nsplit = DT__K(conv_max)(DT__K(conv_min)(g->nsplit, gp / 4), 1);
    g->block = 128;
    g->copy_dy = p->dst.dtype != DT_F32 || p->og % DT__NR != 0 || p->og * p->groups > 16;
}

static int DT__K(conv_weight)(const dt_call *c, const dt_view *dy, const dt_view *x, const dt_view *dw)
{
    DT__K(conv_wgrad_t) g;
    DT__K(conv_t) *p = &g.p;
    if (dw->shape[0] == 0 || dw->shape[2] == 0 || dw->shape[3] == 0) return 0;
    memset(&g, 0, sizeof g);
    g.dw = *dw;
    g.db.ndim = -1;
    if (c->nout > 1) g.db = c->out[1];
    g.add_w = (int)(c->acc & 1u);
    g.add_b = (int)(c->acc >> 1 & 1u);
    DT__K(conv_geometry)(p, c, x, dy, dw, DT__CONV_WEIGHT);
    DT__K(conv_wcut)(&g);
    int64_t gp = p->groups * p->np, pn = g.parts * gp * p->ntap * p->kd * DT__NR, npix = p->images * p->rows * p->x.dst;
    int64_t most = (gp + g.nsplit - 1) / g.nsplit * npix * DT__NR;
    p->work_nbytes = DT__K(conv_nbytes)(DT__K(conv_copy_numel)(p), 4) + DT__K(conv_nbytes)(g.copy_dy ? most : 0, 4) +
                     DT__K(conv_nbytes)(g.copy_dy ? p->x.dst * p->og * p->groups : 0, 4) +
                     DT__K(conv_nbytes)(npix, 8) + DT__K(conv_nbytes)(p->ntap * (DT__NR + 1), 4);
    size_t need = DT__K(conv_nbytes)(DT__K(conv_tables_numel)(p), 8) + DT__K(conv_nbytes)(pn, 4) +
                  DT__K(conv_nbytes)(g.parts * gp * DT__NR, 4);
    char  *mem = (char *)dt_scratch(need + p->work_nbytes * (size_t)dt__pool_size());
    if (!mem) return DT_ERR_MEMORY;
    DT__K(conv_tables)(p, c, (int64_t *)DT__K(conv_take)(&mem, DT__K(conv_tables_numel)(p), 8));
    g.wbuf = (float *)DT__K(conv_take)(&mem, pn, 4);
    g.dbuf = (float *)DT__K(conv_take)(&mem, g.parts * gp * DT__NR, 4);
    p->work = mem;
    dt__pool_run(g.parts * g.nchunk * g.nsplit, DT__K(conv_wtask), &g);
    int64_t nred = dt__cut(gp * p->kd, p->ntap * DT__NR * (g.parts + 4), 100000, &g.reduce_per);
    dt__pool_run(nred, DT__K(conv_wreduce), &g);
    if (g.db.ndim >= 0) DT__K(conv_wbias)(&g);
    return 0;
}
#undef DT__CONV_BAND
#undef DT__CONV_GRAIN
#undef DT__CONV_TASKS
#undef DT__CONV_SHORT
#undef DT__CONV_EACH
#undef DT__CONV_DATA
#undef DT__CONV_FORWARD
#undef DT__CONV_WEIGHT

/* ==================================================================================================== >>winograd
   Winograd's F(2x2, 3x3): a tile of 2x2 outputs of a 3x3 convolution (stride 1, no dilation, one group) from the 4x4
   inputs it sees with 16 multiplications for each pair of channels instead of 36:
       Y = A' [(G w G') . (B' d B)] A      (. element by element, ' transposed)
       B' = 1  0 -1  0     G =  1   0   0     A' = 1  1  1  0
            0  1  1  0         1/2 1/2 1/2         0  1 -1  1
            0 -1  1  0         1/2 -1/2 1/2
            0 -1  0  1          0   0   1
   Summed over source channels this is one matrix product for each of the 16 positions. The data gradient is the same
   with the kernel turned round and the channels exchanged; the weight gradient is the adjoint: with D = A dy A' of a
   tile, dw = G' [sum over tiles of (B' d B) . D] G.

   Tiles are numbered over rows, columns and images. The weights are transformed once a call, to U = [panel of NR
   destination channels][position][source channel][NR]. A task owns blocks of tiles: it transforms their source to V =
   [position][tile][channel] in its worker's scratch (channels are contiguous, so it is sums of vectors; columns are
   held in registers from tile to tile), then for each panel and 24 tiles makes the 16 products, 24 KiB, and
   transforms them by A to the destination. Between products it prefetches the destination of these tiles and the
   source of the next block: otherwise the transforms wait for memory, and 16 channels gain 1.15 instead of 1.4.
   The weight gradient cuts the tiles into parts and the channels of both sides into chunks; a task transforms 64 tiles
   of its chunks at a time and adds V' D of each position to its part's sum; the parts are added in order.
   All cuts are functions of the shape.

   Measured against >>conv in turn (AMD EPYC, AVX2, f32, one thread; ratio of times; direct runs at 80 to 90 % of peak):
       channels, image     16, 32x32   32, 16x16   64, 8x8 and 32x32   128, 16x16   256, 8x8   512, 4x4
       forward, data          1.4         1.65            1.8             1.85         1.9     1.7, 1.55
       weights                1.5         1.6             1.8             2.0          2.1        2.0

   Rounding errors are about those of the direct sum (fewer terms, larger ones). An Inf or NaN would spread to the other
   pixels of the tiles that contain it (Inf - Inf), and the transforms' sums of 4 inputs may overflow where the direct sum
   does not. So a result that is not finite makes the direct engine compute the whole call again. A call that adds to its
   result cannot be repeated: there the operands are looked at first. */
#if DT__HAS_AVX2 /* the portable kernels have only the direct convolution: less code */
#define DT__WINO_SUB 24   /* tiles whose products are in L1 before they are transformed to the destination */
#define DT__WINO_RUN 16   /* tiles of a row that are transformed together */
#define DT__WINO_V 1536   /* tiles times channels of a block (at least DT__WINO_SUB tiles) */
#define DT__WINO_U 2097152 /* floats of U beyond which it pays to read it less often: larger blocks */
#define DT__WINO_GRAIN 1500000 /* multiply-adds of a task */
#define DT__WINO_TASKS 64 /* enough tasks to balance any pool */
#define DT__WINO_PACK 16  /* source channels of a piece of the weights */
#define DT__WINO_WT 64    /* tiles of a block of the weight gradient */
#define DT__WINO_WC 128   /* its channels, of either side */

typedef struct DT__K(wino_image_t) { /* what the tiles cover: 4x4 pixels (source) or 2x2 (dy), 2 apart */
    dt_view v;
    int64_t h, w, c, y0, x0; /* y0, x0: the first pixel of the first tile */
    int     nrow;            /* 4 or 2 */
} DT__K(wino_image_t);

typedef struct DT__K(wino_t) {
    DT__K(wino_image_t) src, dst;
    int64_t n, th, tw, ntile, np; /* tiles: of a column, of a row, of all images; panels of destination channels */
    int64_t block, nblock, nsplit, group; /* a block of tiles; shares of the panels; blocks of a task */
    int64_t ld, ps;               /* of V and D: floats from tile to tile, from position to position */
    int64_t pack_per, npack, reduce_per;
    int64_t parts, cw, kw, nc, nk; /* weight gradient: of the tiles; channels of a chunk, chunks of either side */
    int64_t kld, kps;              /* its D */
    int     fwd, act, add, add_b;
    int     odd; /* atomic: something is not finite */
    dt_view w, b;    /* weights and bias, or their gradients */
    float  *u, *bias; /* [panel][position][source channel][NR]: weights, or the parts' gradients of them */
    float  *zeros;    /* a row of a run */
    char   *work;
    size_t  work_nbytes;
} DT__K(wino_t);

/* ---- transforms of images: tiles beside each other in one row of tiles */
typedef struct DT__K(wino_run_t) {
    const float *row[4];      /* zeros for a row outside */
    int64_t      x, nx, step; /* column of the first tile in the rows, columns they have, floats of a column */
    int64_t      nt, c;       /* tiles; channels: whole vectors */
    float       *out;
    int64_t      ld, ps;
} DT__K(wino_run_t);

/* a column of 4 pixels times B', held in registers for the next tile */
#define DT__WINO_COLUMN(t, x)                                                                           \
    if ((uint64_t)(x) < (uint64_t)nx) {                                                                 \
        int64_t at = (x) * step;                                                                        \
        dt__vf  d1 = DT__K(ld)(p1 + at), d2 = DT__K(ld)(p2 + at);                                       \
        t##0 = DT__K(ld)(p0 + at) - d2;                                                                 \
        t##1 = d1 + d2;                                                                                 \
        t##2 = d2 - d1;                                                                                 \
        t##3 = DT__K(ld)(p3 + at) - d1;                                                                 \
    } else {                                                                                            \
        t##0 = t##1 = t##2 = t##3 = DT__K(zero)();                                                      \
    }
#define DT__WINO_ROW(i)                     \
    DT__K(st)(q, a##i - e##i);              \
    DT__K(st)(q + ps, b##i + e##i);         \
    DT__K(st)(q + 2 * ps, e##i - b##i);     \
    DT__K(st)(q + ps3, f##i - b##i);        \
    q += 4 * ps;                            \
    a##i = e##i;                            \
    b##i = f##i;
static __attribute__((noinline)) void DT__K(wino_source)(const DT__K(wino_run_t) *r)
{
    int64_t ps = r->ps, ps3 = 3 * ps, nx = r->nx, step = r->step;
    for (int64_t c = 0; c < r->c; c += DT__W) {
        const float *p0 = r->row[0] + c, *p1 = r->row[1] + c, *p2 = r->row[2] + c, *p3 = r->row[3] + c;
        float       *o = r->out + c;
        dt__vf       a0, a1, a2, a3, b0, b1, b2, b3, e0, e1, e2, e3, f0, f1, f2, f3;
        int64_t      x = r->x + 2, end = x + 2 * r->nt;
        DT__WINO_COLUMN(a, x - 2)
        DT__WINO_COLUMN(b, x - 1)
        for (; x < end; x += 2, o += r->ld) {
            float *q = o;
            DT__WINO_COLUMN(e, x)
            DT__WINO_COLUMN(f, x + 1)
            DT__WINO_ROW(0)
            DT__WINO_ROW(1)
            DT__WINO_ROW(2)
            DT__WINO_ROW(3)
        }
    }
}
#undef DT__WINO_COLUMN
#undef DT__WINO_ROW

#define DT__WINO_ROW(s, t)                  \
    DT__K(st)(q, s);                        \
    DT__K(st)(q + ps, (s) + (t));           \
    DT__K(st)(q + 2 * ps, (s) - (t));       \
    DT__K(st)(q + ps3, t);                  \
    q += 4 * ps;
static __attribute__((noinline)) void DT__K(wino_grad)(const DT__K(wino_run_t) *r)
{
    int64_t ps = r->ps, ps3 = 3 * ps, step = r->step;
    for (int64_t c = 0; c < r->c; c += DT__W) {
        const float *p0 = r->row[0] + c, *p1 = r->row[1] + c;
        float       *o = r->out + c;
        for (int64_t x = 0; x < 2 * r->nt; x += 2, o += r->ld, p0 += 2 * step, p1 += 2 * step) {
            float *q = o;
            dt__vf s0 = DT__K(ld)(p0), s1 = DT__K(ld)(p1), t0 = DT__K(zero)(), t1 = t0;
            if (x + 1 < r->nx) {
                t0 = DT__K(ld)(p0 + step);
                t1 = DT__K(ld)(p1 + step);
            }
            dt__vf s2 = s0 + s1, s3 = s0 - s1, t2 = t0 + t1, t3 = t0 - t1;
            DT__WINO_ROW(s0, t0)
            DT__WINO_ROW(s2, t2)
            DT__WINO_ROW(s3, t3)
            DT__WINO_ROW(s1, t1)
        }
    }
}
#undef DT__WINO_ROW

DT__INLINE int64_t DT__K(wino_up)(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
/* V and D are [position][tile][channel]. Tiles lie an odd number of cache lines apart (and whole panels), positions 16
   more than a multiple of 32: so the 16 x 16 lines that a run writes spread evenly over the sets of L1. */
DT__INLINE int64_t DT__K(wino_ld)(int64_t c)
{
    c = DT__K(wino_up)(c, DT__NR);
    return c % 32 ? c : c + 16;
}
DT__INLINE int64_t DT__K(wino_ps)(int64_t n) { return DT__K(wino_up)(n + 256, 512) - 256; }
DT__INLINE int64_t DT__K(wino_line)(int64_t c) /* floats of a run's row */
{
    return (2 * DT__WINO_RUN + 2) * DT__K(wino_up)(c, DT__NR);
}

/* Tiles t0..t1-1, channels c0..c0+cn-1: to out[position*ps + tile*ld + channel], channels filled up with zeros to whole
   panels. Rows of f32 whole panels long are read where they are. */
static void DT__K(wino_tiles)(const DT__K(wino_t) *p, const DT__K(wino_image_t) *m, int64_t t0, int64_t t1, int64_t c0,
                              int64_t cn, float *lines, float *out, int64_t ld, int64_t ps)
{
    DT__K(wino_run_t) r;
    int64_t es = m->v.dtype == DT_F32 ? 4 : 2, cp = DT__K(wino_up)(cn, DT__NR), nt;
    int     direct = es == 4 && cp == cn;
    r.c = cp;
    r.step = direct ? m->c : cp;
    r.ld = ld;
    r.ps = ps;
    for (int64_t t = t0; t < t1; t += nt) {
        int64_t image = t / (p->th * p->tw), tx = t % p->tw, y = t / p->tw % p->th * 2 + m->y0;
        nt = DT__K(conv_min)(DT__K(conv_min)(t1 - t, p->tw - tx), DT__WINO_RUN);
        int64_t x0 = tx * 2 + m->x0, first = DT__K(conv_max)(x0, 0);
        r.x = x0 - first;
        r.nx = DT__K(conv_max)(DT__K(conv_min)(x0 + 2 * nt + m->nrow - 2, m->w) - first, 0);
        r.nt = nt;
        r.out = out + (t - t0) * ld;
        for (int i = 0; i < m->nrow; i++) {
            const char *s = (const char *)m->v.data;
            r.row[i] = p->zeros;
            if (y + i < 0 || y + i >= m->h || r.nx == 0) continue;
            s += (((image * m->h + y + i) * m->w + first) * m->c + c0) * es;
            r.row[i] = (const float *)(const void *)s;
            if (direct) continue;
            float *d = lines + i * DT__K(wino_line)(cn);
            r.row[i] = d;
            if (cp == m->c) {
                DT__K(load_row)(d, s, m->v.dtype, r.nx * cp);
                continue;
            }
            for (int64_t x = 0; x < r.nx; x++, d += cp, s += m->c * es) {
                DT__K(load_row)(d, s, m->v.dtype, cn);
                for (int64_t k = cn; k < cp; k++) d[k] = 0.0f;
            }
        }
        if (m->nrow == 4) DT__K(wino_source)(&r);
        else DT__K(wino_grad)(&r);
    }
}

/* Walking over tiles without divisions */
typedef struct DT__K(wino_at_t) {
    int64_t image, ty, tx;
} DT__K(wino_at_t);
DT__INLINE void DT__K(wino_at)(DT__K(wino_at_t) *a, const DT__K(wino_t) *p, int64_t t)
{
    a->image = t / (p->th * p->tw);
    a->ty = t / p->tw % p->th;
    a->tx = t % p->tw;
}
DT__INLINE void DT__K(wino_next)(DT__K(wino_at_t) *a, const DT__K(wino_t) *p)
{
    if (++a->tx < p->tw) return;
    a->tx = 0;
    if (++a->ty < p->th) return;
    a->ty = 0;
    a->image++;
}
/* Prefetches channels c..c+n-1 of the 2x2 pixels at (y, x): the transforms come in bursts that exceed the bandwidth of
   memory. Addresses outside of the image may be prefetched too, which is harmless. */
DT__INLINE void DT__K(wino_ask)(const DT__K(wino_image_t) *m, const DT__K(wino_at_t) *a, int64_t y, int64_t x,
                                int64_t c, int64_t n)
{
    int64_t   es = m->v.dtype == DT_F32 ? 4 : 2, px = m->c * es, line = m->w * px;
    int64_t   first = ((a->image * m->h + 2 * a->ty + y) * m->w + 2 * a->tx + x) * px + c * es;
    uintptr_t at = (uintptr_t)m->v.data + (uintptr_t)first;
    for (int64_t i = 0; i < n * es; i += 64, at += 64) {
        __builtin_prefetch((const void *)at);
        __builtin_prefetch((const void *)(at + (uintptr_t)px));
        __builtin_prefetch((const void *)(at + (uintptr_t)line));
        __builtin_prefetch((const void *)(at + (uintptr_t)(line + px)));
    }
}

/* ---- weights: the panel's [source channel][tap][NR] as rows, then G w G' */
static void DT__K(wino_pack_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(wino_t) *p = (const DT__K(wino_t) *)ctx;
    int64_t c = p->src.c, o = p->dst.c, es = p->w.dtype == DT_F32 ? 4 : 2;
    float  *rows = (float *)(void *)(p->work + p->work_nbytes * (size_t)worker);
    for (int64_t t = task * p->pack_per; t < DT__K(conv_min)((task + 1) * p->pack_per, p->np * p->npack); t++) {
        int64_t panel = t / p->npack, o0 = panel * DT__NR, m = DT__K(conv_min)(o - o0, DT__NR);
        int64_t k0 = t % p->npack * DT__WINO_PACK, k1 = DT__K(conv_min)(k0 + DT__WINO_PACK, c);
        const char *w = (const char *)p->w.data;
        if (p->fwd) {
            DT__K(gemm_pack_b)(rows, w + (o0 * c + k0) * 9 * es, 1, 9 * c, p->w.dtype, 9 * (k1 - k0), m);
        } else {
            for (int64_t k = k0; k < k1; k++)
                DT__K(gemm_pack_b)(rows + (k - k0) * 9 * DT__NR, w + (k * o + o0) * 9 * es, 1, 9, p->w.dtype, 9, m);
        }
        dt__vf half = DT__K(set1)(0.5f);
        for (int64_t k = k0; k < k1; k++)
            for (int v = 0; v < DT__NR; v += DT__W) {
                const float *s = rows + (k - k0) * 9 * DT__NR + (p->fwd ? 0 : 8 * DT__NR) + v;
                int64_t      tap = p->fwd ? DT__NR : -DT__NR;
                float       *d = p->u + (panel * 16 * c + k) * DT__NR + v;
                dt__vf       g[4][3];
                for (int j = 0; j < 3; j++) {
                    dt__vf w0 = DT__K(ld)(s + j * tap), w1 = DT__K(ld)(s + (3 + j) * tap);
                    dt__vf w2 = DT__K(ld)(s + (6 + j) * tap), both = w0 + w2;
                    g[0][j] = w0;
                    g[1][j] = (both + w1) * half;
                    g[2][j] = (both - w1) * half;
                    g[3][j] = w2;
                }
                for (int i = 0; i < 4; i++) {
                    dt__vf both = g[i][0] + g[i][2];
                    DT__K(st)(d + (4 * i) * c * DT__NR, g[i][0]);
                    DT__K(st)(d + (4 * i + 1) * c * DT__NR, (both + g[i][1]) * half);
                    DT__K(st)(d + (4 * i + 2) * c * DT__NR, (both - g[i][1]) * half);
                    DT__K(st)(d + (4 * i + 3) * c * DT__NR, g[i][2]);
                }
            }
    }
}

/* ---- y and dx */
/* m[tile][NR] := v[tile][c] * u[c][NR], n tiles, room for whole sixes */
DT__CALLED void DT__K(wino_mul)(float *out, const float *v, int64_t ld, const float *u, int64_t c, int64_t n)
{
    DT__K(mk_t) m = { u, NULL, NULL, DT__K(mk_whole), 1, c, 1, ld, DT__NR, 0, DT__NR, 0, 0 };
    if (DT__K(wide)()) {
        DT__K(mk6_wide)(&m, (n + DT__MR - 1) / DT__MR * DT__MR, v, NULL, out, NULL);
        return;
    }
    for (int64_t t = 0; t < n; t += DT__MR) /* few channels make short sums: inlined here to avoid the call */
        DT__K(mk_tile)(DT__MR, DT__MR, 0, &m, v + t * ld, NULL, out + t * DT__NR, NULL);
}

/* all lanes of x times 0, summed, are 0 unless an element is not finite */
DT__INLINE void DT__K(wino_note)(DT__K(wino_t) *p, dt__vf x)
{
    if (!(DT__K(hsum)(x) == 0.0f)) __atomic_store_n(&p->odd, 1, __ATOMIC_RELAXED);
}
/* A' m A + bias of the tiles t0..t0+n-1 to the destination */
static __attribute__((noinline)) void DT__K(wino_out)(DT__K(wino_t) *p, const float *m, int64_t t0, int64_t n,
                                                      int64_t panel)
{
    dt__vf odd = DT__K(zero)();
    DT__K(conv_run_t) r;
    const DT__K(wino_image_t) *d = &p->dst;
    const float *bias = p->bias + panel * DT__NR;
    int64_t ps = DT__WINO_SUB * DT__NR, es = d->v.dtype == DT_F32 ? 4 : 2, c = d->c, line = d->w * c;
    DT__K(wino_at_t) a;
    DT__K(wino_at)(&a, p, t0);
    r.dtype = d->v.dtype;
    r.act = p->act;
    r.add = p->add;
    r.m = DT__K(conv_min)(c - panel * DT__NR, DT__NR);
    r.dst = (char *)d->v.data + panel * DT__NR * es;
    int plain = r.dtype == DT_F32 && r.m == DT__NR && r.act <= DT_ACT_RELU && !r.add;
    for (int64_t t = 0; t < n; t++, m += DT__NR, DT__K(wino_next)(&a, p)) {
        float   tile[4 * DT__NR], *o0 = tile, *o1 = tile + 2 * DT__NR;
        int64_t at = (a.image * d->h + 2 * a.ty) * line + 2 * a.tx * c, right = DT__NR;
        int     whole = 2 * a.ty + 1 < d->h && 2 * a.tx + 1 < d->w;
        if (plain && whole) {
            o0 = (float *)(void *)r.dst + at;
            o1 = o0 + line;
            right = c;
        }
        for (int v = 0; v < DT__NR; v += DT__W) {
            dt__vf b = DT__K(ld)(bias + v);
#define DT__WINO_COLUMN(j)                                                                              \
    dt__vf p##j = DT__K(ld)(m + (4 + j) * ps + v), q##j = DT__K(ld)(m + (8 + j) * ps + v);              \
    dt__vf s##j = DT__K(ld)(m + j * ps + v) + (p##j + q##j);                                            \
    dt__vf r##j = DT__K(ld)(m + (12 + j) * ps + v) + (p##j - q##j);
            DT__WINO_COLUMN(0)
            DT__WINO_COLUMN(1)
            DT__WINO_COLUMN(2)
            DT__WINO_COLUMN(3)
#undef DT__WINO_COLUMN
            dt__vf y0 = (s0 + b) + (s1 + s2), y1 = (s3 + b) + (s1 - s2);
            dt__vf y2 = (r0 + b) + (r1 + r2), y3 = (r3 + b) + (r1 - r2);
            odd = DT__K(fma)((y0 + y1) + (y2 + y3), DT__K(zero)(), odd);
            if (r.act == DT_ACT_RELU) {
                y0 = DT__K(vmax)(DT__K(zero)(), y0);
                y1 = DT__K(vmax)(DT__K(zero)(), y1);
                y2 = DT__K(vmax)(DT__K(zero)(), y2);
                y3 = DT__K(vmax)(DT__K(zero)(), y3);
            }
            DT__K(st)(o0 + v, y0);
            DT__K(st)(o0 + right + v, y1);
            DT__K(st)(o1 + v, y2);
            DT__K(st)(o1 + right + v, y3);
        }
        if (!(plain && whole)) {
            int64_t nx = 2 * a.tx + 1 < d->w ? 2 : 1, off[2];
            off[0] = at;
            off[1] = at + c;
            DT__K(conv_store)(&r, off, nx, tile);
            off[0] += line;
            off[1] += line;
            if (2 * a.ty + 1 < d->h) DT__K(conv_store)(&r, off, nx, tile + 2 * DT__NR);
        }
    }
    DT__K(wino_note)(p, odd);
}

/* a block of tiles, a share of the panels */
static void DT__K(wino_block)(DT__K(wino_t) *p, int64_t block, int64_t split, char *mem)
{
    int64_t t0 = block * p->block, n = DT__K(conv_min)(p->block, p->ntile - t0), c = p->src.c;
    float  *v = (float *)DT__K(conv_take)(&mem, 16 * p->ps, 4);
    float  *m = (float *)DT__K(conv_take)(&mem, 16 * DT__WINO_SUB * DT__NR, 4);
    float  *lines = (float *)DT__K(conv_take)(&mem, 4 * DT__K(wino_line)(c), 4);
    DT__K(wino_tiles)(p, &p->src, t0, t0 + n, 0, c, lines, v, p->ld, p->ps);
    for (int pos = 0; pos < 16; pos++)
        memset(v + pos * p->ps + n * p->ld, 0, (size_t)((DT__K(wino_up)(n, DT__MR) - n) * p->ld) * 4);
    DT__K(wino_at_t) in, out;
    int64_t i0 = p->np * split / p->nsplit, i1 = p->np * (split + 1) / p->nsplit, asked = 0, now = 0;
    int64_t steps = (i1 - i0) * ((n + DT__WINO_SUB - 1) / DT__WINO_SUB) * 16;
    DT__K(wino_at)(&in, p, t0 + n);
    for (int64_t i = i0; i < i1; i++) {
        DT__K(wino_at)(&out, p, t0);
        for (int64_t s = 0; s < n; s += DT__WINO_SUB) {
            int64_t ns = DT__K(conv_min)(n - s, DT__WINO_SUB), k = 0;
            for (int pos = 0; pos < 16; pos++, now++) {
                for (; k < ns * (pos + 1) / 16; k++, DT__K(wino_next)(&out, p))
                    DT__K(wino_ask)(&p->dst, &out, 0, 0, i * DT__NR, DT__NR);
                for (; asked < n * now / steps && in.image < p->n; asked++, DT__K(wino_next)(&in, p))
                    DT__K(wino_ask)(&p->src, &in, p->src.y0 + 2, p->src.x0 + 2, 0, c);
                DT__K(wino_mul)(m + pos * DT__WINO_SUB * DT__NR, v + pos * p->ps + s * p->ld, p->ld,
                                p->u + (i * 16 + pos) * c * DT__NR, c, ns);
            }
            DT__K(wino_out)(p, m, t0 + s, ns, i);
        }
    }
}
static void DT__K(wino_task)(void *ctx, int64_t task, int worker)
{
    DT__K(wino_t) *p = (DT__K(wino_t) *)ctx;
    int64_t b0 = task / p->nsplit * p->group, b1 = DT__K(conv_min)(b0 + p->group, p->nblock);
    for (int64_t b = b0; b < b1; b++)
        DT__K(wino_block)(p, b, task % p->nsplit, p->work + p->work_nbytes * (size_t)worker);
}

/* ---- the plan */
typedef struct DT__K(wino_look_t) {
    DT__K(wino_t) *p;
    const dt_view *v;
    int64_t        n;
} DT__K(wino_look_t);
static void DT__K(wino_look_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(wino_look_t) *l = (const DT__K(wino_look_t) *)ctx;
    float   buf[512];
    int64_t es = l->v->dtype == DT_F32 ? 4 : 2, end = DT__K(conv_min)((task + 1) * 65536, l->n);
    dt__vf  odd = DT__K(zero)();
    (void)worker;
    for (int64_t i = task * 65536; i < end; i += 512) {
        int64_t m = DT__K(conv_min)(end - i, 512);
        const char  *s = (const char *)l->v->data + i * es;
        const float *x = (const float *)(const void *)s;
        if (es != 4) {
            DT__K(load_row)(buf, s, l->v->dtype, m);
            x = buf;
        }
        for (int64_t k = 0; k < m; k += DT__W)
            odd = DT__K(fma)(m - k < DT__W ? DT__K(ld_some)(x + k, m - k) : DT__K(ld)(x + k), DT__K(zero)(), odd);
    }
    DT__K(wino_note)(l->p, odd);
}
static void DT__K(wino_look)(DT__K(wino_t) *p, const dt_view *v) /* sets odd if an element is not finite; v is dense */
{
    DT__K(wino_look_t) l = { p, v, 1 };
    for (int i = 0; i < v->ndim; i++) l.n *= v->shape[i];
    dt__pool_run((l.n + 65535) / 65536, DT__K(wino_look_task), &l);
}
static void DT__K(wino_image)(DT__K(wino_image_t) *m, const dt_view *v, int64_t y0, int64_t x0, int nrow)
{
    m->v = *v;
    m->c = v->shape[1];
    m->h = v->shape[2];
    m->w = v->shape[3];
    m->y0 = y0;
    m->x0 = x0;
    m->nrow = nrow;
}
static void DT__K(wino_geometry)(DT__K(wino_t) *p, const dt_call *c, const dt_view *src, const dt_view *dst, int fwd)
{
    memset(p, 0, sizeof *p);
    DT__K(wino_image)(&p->src, src, fwd ? -(int64_t)c->u.conv.pad[0] : (int64_t)c->u.conv.pad[0] - 2,
                      fwd ? -(int64_t)c->u.conv.pad[1] : (int64_t)c->u.conv.pad[1] - 2, 4);
    DT__K(wino_image)(&p->dst, dst, 0, 0, 2);
    p->fwd = fwd;
    p->n = dst->shape[0];
    p->th = (p->dst.h + 1) / 2;
    p->tw = (p->dst.w + 1) / 2;
    p->ntile = p->n * p->th * p->tw;
    p->np = (p->dst.c + DT__NR - 1) / DT__NR;
    p->add = (int)(c->acc & 1u);
    p->b.ndim = -1;
}

static int DT__K(wino_apply)(const dt_call *c, const dt_view *src, const dt_view *w, const dt_view *bias, int fwd)
{
    DT__K(wino_t) p;
    DT__K(wino_geometry)(&p, c, src, &c->out[0], fwd);
    if (p.add) {
        DT__K(wino_look)(&p, src);
        DT__K(wino_look)(&p, w);
        if (p.odd) return DT__K(conv_apply)(c, src, w, bias, fwd);
    }
    int64_t sc = p.src.c, un = p.np * 16 * sc * DT__NR;
    int64_t most = un > DT__WINO_U ? 4 * DT__WINO_SUB : DT__K(conv_max)(DT__WINO_V / sc, DT__WINO_SUB);
    p.nblock = (p.ntile + most - 1) / most;
    p.block = DT__K(wino_up)((p.ntile + p.nblock - 1) / p.nblock, DT__MR);
    p.nblock = (p.ntile + p.block - 1) / p.block;
    p.nsplit = DT__K(conv_min)(p.block * un / DT__WINO_GRAIN, DT__WINO_TASKS / p.nblock);
    p.nsplit = DT__K(conv_max)(DT__K(conv_min)(p.nsplit, p.np / 4), 1);
    p.group = DT__K(conv_min)(DT__WINO_GRAIN / (p.block * un), p.nblock / DT__WINO_TASKS);
    p.group = DT__K(conv_max)(p.group, 1);
    p.ld = DT__K(wino_ld)(sc);
    p.ps = DT__K(wino_ps)(p.block * p.ld);
    p.w = *w;
    p.act = fwd ? c->u.conv.act : DT_ACT_NONE;
    p.work_nbytes = DT__K(conv_nbytes)(16 * p.ps, 4) + DT__K(conv_nbytes)(16 * DT__WINO_SUB * DT__NR, 4) +
                    DT__K(conv_nbytes)(4 * DT__K(wino_line)(sc), 4);
    size_t need = DT__K(conv_nbytes)(un, 4) + DT__K(conv_nbytes)(p.np * DT__NR, 4) +
                  DT__K(conv_nbytes)(DT__K(wino_line)(sc), 4);
    char  *mem = (char *)dt_scratch(need + p.work_nbytes * (size_t)dt__pool_size());
    if (!mem) return DT_ERR_MEMORY;
    p.u = (float *)DT__K(conv_take)(&mem, un, 4);
    p.bias = (float *)DT__K(conv_take)(&mem, p.np * DT__NR, 4);
    p.zeros = (float *)DT__K(conv_take)(&mem, DT__K(wino_line)(sc), 4);
    memset(p.zeros, 0, (size_t)DT__K(wino_line)(sc) * 4);
    p.work = mem;
    memset(p.bias, 0, (size_t)(p.np * DT__NR) * 4);
    if (bias && bias->ndim >= 0) DT__K(load_row)(p.bias, bias->data, bias->dtype, p.dst.c);
    p.npack = (sc + DT__WINO_PACK - 1) / DT__WINO_PACK;
    int64_t npack = dt__cut(p.np * p.npack, DT__WINO_PACK * 16 * DT__NR, 32768, &p.pack_per);
    dt__pool_run(npack, DT__K(wino_pack_task), &p);
    dt__pool_run((p.nblock + p.group - 1) / p.group * p.nsplit, DT__K(wino_task), &p);
    if (p.odd && !p.add) return DT__K(conv_apply)(c, src, w, bias, fwd);
    return 0;
}

/* ---- weight gradient */
/* s[c][NR] := or += the sum over n tiles of v[tile][c] * d[tile][NR] */
static void DT__K(wino_wmul)(float *s, int64_t c, const float *v, int64_t ld, const float *d, int64_t kld, int64_t n,
                             int first)
{
    DT__K(mk_t) m = { d, NULL, NULL, DT__K(mk_whole), 1, n, ld, 1, kld, 0, DT__NR, !first, 0 };
    int64_t     np = (c + DT__MR - 1) / DT__MR, at; /* even panels: 4, 5 or 6 rows each, for c > 9 */
    for (int64_t i = 0; i < np; i++) {
        int mr = DT__K(gemm_panel)(&at, c, i);
        DT__K(mk_best)()[mr](&m, mr, v + at, NULL, s + at * DT__NR, NULL);
    }
}

/* One part of the tiles, a chunk of the source's channels, a chunk of the panels */
static void DT__K(wino_wtask)(void *ctx, int64_t task, int worker)
{
    DT__K(wino_t) *p = (DT__K(wino_t) *)ctx;
    dt__vf  odd = DT__K(zero)();
    char   *mem = p->work + p->work_nbytes * (size_t)worker;
    int64_t part = task / (p->nc * p->nk), ic = task / p->nk % p->nc, ik = task % p->nk, c = p->src.c;
    int64_t c0 = ic * p->cw, cn = DT__K(conv_min)(p->cw, c - c0);
    int64_t k0 = ik * p->kw, kn = DT__K(conv_min)(p->kw, p->dst.c - k0);
    int64_t tend = p->ntile * (part + 1) / p->parts, tbeg = p->ntile * part / p->parts;
    float  *v = (float *)DT__K(conv_take)(&mem, 16 * p->ps, 4);
    float  *d = (float *)DT__K(conv_take)(&mem, 16 * p->kps, 4);
    float  *lines = (float *)DT__K(conv_take)(&mem, 4 * DT__K(wino_line)(DT__K(conv_max)(p->cw, p->kw)), 4);
    float  *s = p->u + (part * p->np + k0 / DT__NR) * 16 * c * DT__NR, *db = p->bias + part * p->np * DT__NR + k0;
    if (ic == 0) memset(db, 0, (size_t)DT__K(wino_up)(kn, DT__NR) * 4);
    for (int64_t t = tbeg; t < tend; t += p->block) {
        int64_t n = DT__K(conv_min)(p->block, tend - t);
        DT__K(wino_tiles)(p, &p->src, t, t + n, c0, cn, lines, v, p->ld, p->ps);
        DT__K(wino_tiles)(p, &p->dst, t, t + n, k0, kn, lines, d, p->kld, p->kps);
        DT__K(wino_at_t) next;
        int64_t more = DT__K(conv_min)(p->block, tend - t - n), asked = 0;
        DT__K(wino_at)(&next, p, t + n);
        for (int pos = 0; pos < 16; pos++) {
            for (; asked < more * (pos + 1) / 16; asked++, DT__K(wino_next)(&next, p)) {
                DT__K(wino_ask)(&p->src, &next, p->src.y0 + 2, p->src.x0 + 2, c0, cn);
                DT__K(wino_ask)(&p->dst, &next, 0, 0, k0, kn);
            }
            for (int64_t k = 0; k < kn; k += DT__NR)
                DT__K(wino_wmul)(s + ((k / DT__NR * 16 + pos) * c + c0) * DT__NR, cn, v + pos * p->ps, p->ld,
                                 d + pos * p->kps + k, p->kld, n, t == tbeg);
        }
        for (int64_t k = 0; p->b.ndim >= 0 && ic == 0 && k < kn; k += DT__W) { /* row 1 of A is 1 1: D's (1, 1) */
            dt__vf sum = DT__K(zero)();
            for (int64_t i = 0; i < n; i++) sum += DT__K(ld)(d + 5 * p->kps + i * p->kld + k);
            DT__K(st)(db + k, DT__K(ld)(db + k) + sum);
        }
    }
    for (int64_t k = 0; k < kn; k += DT__NR)
        for (int64_t pos = 0; pos < 16; pos++) {
            const float *q = s + ((k / DT__NR * 16 + pos) * c + c0) * DT__NR;
            for (int64_t i = 0; i < cn * DT__NR; i += DT__W) odd = DT__K(fma)(DT__K(ld)(q + i), DT__K(zero)(), odd);
        }
    DT__K(wino_note)(p, odd);
}

/* dw of (panel, piece of the source's channels): the parts in order, G' s G, then [channel, tap][NR] turned */
static void DT__K(wino_wreduce)(void *ctx, int64_t task, int worker)
{
    const DT__K(wino_t) *p = (const DT__K(wino_t) *)ctx;
    int64_t c = p->src.c, es = p->w.dtype == DT_F32 ? 4 : 2, all = p->np * 16 * c * DT__NR;
    float  *rows = (float *)(void *)(p->work + p->work_nbytes * (size_t)worker);
    float  *turn = rows + DT__WINO_PACK * 9 * DT__NR; /* [NR][channel, tap] */
    dt__vf  half = DT__K(set1)(0.5f);
    for (int64_t t = task * p->reduce_per; t < DT__K(conv_min)((task + 1) * p->reduce_per, p->np * p->npack); t++) {
        int64_t panel = t / p->npack, o0 = panel * DT__NR, m = DT__K(conv_min)(p->dst.c - o0, DT__NR);
        int64_t k0 = t % p->npack * DT__WINO_PACK, kn = DT__K(conv_min)(DT__WINO_PACK, c - k0);
        for (int64_t k = 0; k < kn; k++)
            for (int v = 0; v < DT__NR; v += DT__W) {
                const float *s = p->u + (panel * 16 * c + k0 + k) * DT__NR + v;
                float       *d = rows + k * 9 * DT__NR + v;
                dt__vf       g[3][4];
                for (int j = 0; j < 4; j++) {
                    dt__vf q[4];
                    for (int i = 0; i < 4; i++) {
                        const float *e = s + (4 * i + j) * c * DT__NR;
                        q[i] = DT__K(ld)(e);
                        for (int64_t part = 1; part < p->parts; part++) q[i] += DT__K(ld)(e + part * all);
                    }
                    dt__vf both = (q[1] + q[2]) * half;
                    g[0][j] = q[0] + both;
                    g[1][j] = (q[1] - q[2]) * half;
                    g[2][j] = q[3] + both;
                }
                for (int i = 0; i < 3; i++) {
                    dt__vf both = (g[i][1] + g[i][2]) * half;
                    DT__K(st)(d + 3 * i * DT__NR, g[i][0] + both);
                    DT__K(st)(d + (3 * i + 1) * DT__NR, (g[i][1] - g[i][2]) * half);
                    DT__K(st)(d + (3 * i + 2) * DT__NR, g[i][3] + both);
                }
            }
        for (int64_t i = 0; i < 9 * kn; i += 8) /* rows past the end hold zeros or old values and are not used */
            for (int v = 0; v < DT__NR; v += 8)
                DT__K(gemm_turn)(turn + v * DT__WINO_PACK * 9 + i, DT__WINO_PACK * 9,
                                 (const char *)(rows + i * DT__NR + v), DT__NR, DT_F32, 8, 8);
        for (int64_t j = 0; j < m; j++)
            DT__K(put_row)((char *)p->w.data + ((o0 + j) * c + k0) * 9 * es, p->w.dtype, turn + j * DT__WINO_PACK * 9,
                           9 * kn, p->add);
    }
}

static void DT__K(wino_wbias)(const DT__K(wino_t) *p)
{
    int64_t n = p->np * DT__NR;
    for (int64_t part = 1; part < p->parts; part++)
        for (int64_t k = 0; k < n; k++) p->bias[k] += p->bias[part * n + k];
    DT__K(put_row)(p->b.data, p->b.dtype, p->bias, p->dst.c, p->add_b);
}

static int DT__K(wino_weight)(const dt_call *c, const dt_view *dy, const dt_view *x, const dt_view *dw)
{
    DT__K(wino_t) p;
    DT__K(wino_geometry)(&p, c, x, dy, 1);
    int64_t sc = p.src.c, kc = p.np * DT__NR, un = 16 * sc * kc;
    p.w = *dw;
    if (c->nout > 1) p.b = c->out[1];
    p.add_b = (int)(c->acc >> 1 & 1u);
    p.nc = (sc + DT__WINO_WC - 1) / DT__WINO_WC;
    p.cw = DT__K(wino_up)((sc + p.nc - 1) / p.nc, DT__NR);
    p.nc = (sc + p.cw - 1) / p.cw;
    p.nk = (kc + DT__WINO_WC - 1) / DT__WINO_WC;
    p.kw = DT__K(wino_up)((kc + p.nk - 1) / p.nk, DT__NR);
    p.nk = (kc + p.kw - 1) / p.kw;
    p.parts = DT__K(conv_min)(DT__WINO_TASKS / (p.nc * p.nk), p.ntile / 256);
    p.parts = DT__K(conv_min)(DT__K(conv_min)(p.parts, 4 * 1024 * 1024 / un), p.ntile * un / DT__WINO_GRAIN);
    p.parts = DT__K(conv_max)(p.parts, 1);
    int64_t most = (p.ntile + p.parts - 1) / p.parts, nb = (most + DT__WINO_WT - 1) / DT__WINO_WT;
    p.block = (most + nb - 1) / nb;
    p.ld = DT__K(wino_ld)(p.cw);
    p.kld = DT__K(wino_ld)(p.kw);
    p.ps = DT__K(wino_ps)(p.block * p.ld);
    p.kps = DT__K(wino_ps)(p.block * p.kld);
    p.work_nbytes = DT__K(conv_nbytes)(16 * p.ps, 4) + DT__K(conv_nbytes)(16 * p.kps, 4) +
                    DT__K(conv_nbytes)(4 * DT__K(wino_line)(DT__K(conv_max)(p.cw, p.kw)), 4) +
                    DT__K(conv_nbytes)(2 * DT__WINO_PACK * 9 * DT__NR, 4);
    int64_t zn = DT__K(wino_line)(DT__K(conv_max)(sc, kc));
    char   *mem = (char *)dt_scratch(DT__K(conv_nbytes)(p.parts * un, 4) + DT__K(conv_nbytes)(p.parts * kc, 4) +
                                     DT__K(conv_nbytes)(zn, 4) + p.work_nbytes * (size_t)dt__pool_size());
    if (!mem) return DT_ERR_MEMORY;
    p.u = (float *)DT__K(conv_take)(&mem, p.parts * un, 4);
    p.bias = (float *)DT__K(conv_take)(&mem, p.parts * kc, 4);
    p.zeros = (float *)DT__K(conv_take)(&mem, zn, 4);
    memset(p.zeros, 0, (size_t)zn * 4);
    p.work = mem;
    dt__pool_run(p.parts * p.nc * p.nk, DT__K(wino_wtask), &p);
    if (p.odd) return DT__K(conv_weight)(c, dy, x, dw);
    p.npack = (sc + DT__WINO_PACK - 1) / DT__WINO_PACK;
    int64_t nred = dt__cut(p.np * p.npack, DT__WINO_PACK * 16 * DT__NR * (p.parts + 1), 32768, &p.reduce_per);
    dt__pool_run(nred, DT__K(wino_wreduce), &p);
    if (p.b.ndim >= 0) DT__K(wino_wbias)(&p);
    return 0;
}

/* Does Winograd pay? Depends on the shape alone. Tiles that reach over the edge waste work (3x3 pixels gain nothing, 5x5
   a fifth); fewer than 'least' tiles do not pay for the transform of the weights. */
static int DT__K(wino_fits)(const dt_call *c, const dt_view *src, const dt_view *dst, const dt_view *w, int64_t least)
{
    int64_t h = dst->shape[2], x = dst->shape[3];
    if (w->shape[2] != 3 || w->shape[3] != 3 || c->u.conv.groups != 1) return 0;
    for (int i = 0; i < 2; i++)
        if (c->u.conv.stride[i] != 1 || c->u.conv.dilation[i] != 1) return 0;
    if (dst->shape[0] == 0 || src->shape[2] == 0 || src->shape[3] == 0) return 0;
    int64_t tiles = ((h + 1) / 2) * ((x + 1) / 2);
    return src->shape[1] >= 16 && dst->shape[1] >= 16 && h > 0 && x > 0 && 9 * h * x >= 24 * tiles &&
           dst->shape[0] * tiles >= least;
}
#undef DT__WINO_SUB
#undef DT__WINO_RUN
#undef DT__WINO_V
#undef DT__WINO_U
#undef DT__WINO_GRAIN
#undef DT__WINO_TASKS
#undef DT__WINO_PACK
#undef DT__WINO_WT
#undef DT__WINO_WC
#endif

/* ---- the entries of both engines */

static int DT__K(conv2d)(dt_device *dev, const dt_call *c)
{
    const dt_view *x = &c->in[0], *w = &c->in[1], *bias = c->nin > 2 ? &c->in[2] : NULL;
    (void)dev;
#if DT__HAS_AVX2
    if (DT__K(wino_fits)(c, x, &c->out[0], w, 12)) return DT__K(wino_apply)(c, x, w, bias, 1);
#endif
    return DT__K(conv_apply)(c, x, w, bias, 1);
}

static int DT__K(conv2d_bwd_data)(dt_device *dev, const dt_call *c)
{
    const dt_view *dy = &c->in[0], *w = &c->in[1];
    (void)dev;
#if DT__HAS_AVX2
    if (DT__K(wino_fits)(c, dy, &c->out[0], w, 12)) return DT__K(wino_apply)(c, dy, w, NULL, 0);
#endif
    return DT__K(conv_apply)(c, dy, w, NULL, 0);
}

static int DT__K(conv2d_bwd_weight)(dt_device *dev, const dt_call *c)
{
    const dt_view *dy = &c->in[0], *x = &c->in[1], *dw = &c->out[0];
    (void)dev;
#if DT__HAS_AVX2
    if (DT__K(wino_fits)(c, x, dy, dw, 1)) return DT__K(wino_weight)(c, dy, x, dw);
#endif
    return DT__K(conv_weight)(c, dy, x, dw);
}

/* ==================================================================================================== >>rowio
   Rows of float operands as f32, and vectors that stop at the end of a row. A row of f32 is used in place; a row of f16
   or bf16 goes through a buffer. In all loops 'left' is the number of remaining elements: a vector of fewer than DT__W
   elements is loaded and stored under a mask, so the last elements round like all others. */
DT__INLINE int DT__K(has_in)(const dt_call *c, int i) { return i < c->nin && c->in[i].ndim >= 0; }
DT__INLINE int DT__K(has_out)(const dt_call *c, int i) { return i < c->nout && c->out[i].ndim >= 0; }
DT__INLINE int DT__K(acc_bit)(const dt_call *c, int i) { return (int)(c->acc >> i & 1u); }

DT__CALLED const float *DT__K(row_in)(float *buf, const dt_view *v, int64_t at, int64_t n)
{
    if (v->dtype == DT_F32) return (const float *)v->data + at;
    DT__K(load_row)(buf, (const uint16_t *)v->data + at, v->dtype, n);
    return buf;
}
/* The f32 row in which to compute a row of an output; row_end() converts and stores it. */
DT__INLINE float *DT__K(row_out)(float *buf, const dt_view *v, int64_t at, int add)
{
    return v->dtype == DT_F32 && !add ? (float *)v->data + at : buf;
}
DT__CALLED void DT__K(row_end)(const dt_view *v, int64_t at, const float *row, int64_t n, int add)
{
    if (v->dtype != DT_F32) DT__K(put_row)((uint16_t *)v->data + at, v->dtype, row, n, add);
    else if (add) DT__K(put_row)((float *)v->data + at, DT_F32, row, n, 1);
}
DT__CALLED float DT__K(elem)(const dt_view *v, int64_t i)
{
    float f;
    return *DT__K(row_in)(&f, v, i, 1);
}
DT__CALLED void DT__K(set_elem)(const dt_view *v, int64_t i, float f, int add)
{
    if (v->dtype == DT_F32) DT__K(put_row)((float *)v->data + i, DT_F32, &f, 1, add);
    else DT__K(put_row)((uint16_t *)v->data + i, v->dtype, &f, 1, add);
}

DT__INLINE dt__vf DT__K(row_ld)(const float *p, int64_t left) /* 0 behind the end */
{
    return left >= DT__W ? DT__K(ld)(p) : DT__K(ld_some)(p, left);
}
DT__INLINE dt__vf DT__K(row_ld_or)(const float *p, int64_t left, float fill) /* fill behind the end */
{
    if (left >= DT__W) return DT__K(ld)(p);
    return DT__K(sel)(DT__K(lanes)(left), DT__K(ld_some)(p, left), DT__K(set1)(fill));
}
DT__INLINE void DT__K(row_st)(float *p, dt__vf v, int64_t left)
{
    if (left >= DT__W) DT__K(st)(p, v);
    else DT__K(st_some)(p, v, left);
}
/* Across the lanes of a vector: the sum, and the maximum where no lane is NaN. */
DT__INLINE float DT__K(row_hsum)(dt__vf v) { return DT__K(hsum)(v); }
#if DT__HAS_AVX2
DT__INLINE float DT__K(row_hmax)(dt__vf v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}
#else
DT__INLINE float DT__K(row_hmax)(dt__vf v)
{
    float t = v[0];
    for (int i = 1; i < DT__W; i++) t = t > v[i] ? t : v[i];
    return t;
}
#endif
/* Runs the tasks on the pool if there is enough work, else on this thread. The tasks are the same either way. */
DT__INLINE void DT__K(run_rows)(int64_t ntasks, dt__task_fn fn, void *ctx, int64_t work)
{
    if (work < 32768) {
        for (int64_t t = 0; t < ntasks; t++) fn(ctx, t, 0);
    } else {
        dt__pool_run(ntasks, fn, ctx);
    }
}
DT__INLINE int64_t DT__K(round16)(int64_t n) { return (n + 15) & ~(int64_t)15; }

/* ==================================================================================================== >>pooling
   Images are (n, h, w, c) in memory; vectors run along c. Forward: a task is some rows of y, each from the rows of x
   under its windows. Backward: a task is some rows of dx, each element summed from the windows of dy over it, in the
   order of dy: nothing is shared between tasks. Windows of 2x2 with stride 2 have their own loops. */
typedef struct DT__K(pool_ctx) {
    const dt_call *c;
    int64_t        n, ch, h, w, oh, ow;
    int64_t        per, nrows; /* rows of a task, of all */
    int64_t        nwork;      /* floats of a worker */
    float         *work;
    int64_t       *over; /* backward: of each w the outputs over it, first and end */
} DT__K(pool_ctx);

typedef struct DT__K(span) {
    int64_t lo, hi; /* the cells of a window that lie inside the input */
    int64_t start;  /* where the window begins; below 0 in the padding */
    int64_t full;   /* cells including the padding, without those beyond the padding */
} DT__K(span);

DT__INLINE DT__K(span) DT__K(pool_span)(const dt_call *c, int dim, int64_t o, int64_t nin, int64_t nout)
{
    DT__K(span) s;
    if (c->u.pool.adaptive) {
        s.lo = s.start = o * nin / nout;
        s.hi = ((o + 1) * nin + nout - 1) / nout;
        s.full = s.hi - s.lo;
        return s;
    }
    int64_t pad = c->u.pool.pad[dim], end;
    s.start = o * c->u.pool.stride[dim] - pad;
    end = s.start + c->u.pool.kernel[dim];
    if (end > nin + pad) end = nin + pad;
    s.full = end - s.start;
    s.lo = s.start < 0 ? 0 : s.start;
    s.hi = end > nin ? nin : end;
    if (s.hi < s.lo) s.hi = s.lo;
    return s;
}
DT__INLINE float DT__K(pool_divisor)(const dt_call *c, DT__K(span) v, DT__K(span) u)
{
    if (c->u.pool.include_pad && !c->u.pool.adaptive) return (float)(v.full * u.full);
    return (float)((v.hi - v.lo) * (u.hi - u.lo));
}

DT__INLINE void DT__K(index_st)(void *base, int dtype, int64_t at, dt__vi v, int64_t left)
{
    if (dtype == DT_I32) {
        DT__K(row_st)((float *)base + at, (dt__vf)v, left);
        return;
    }
    uint8_t t[DT__W];
#if DT__HAS_AVX2
    __m128i w = _mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i *)(void *)t, _mm_packus_epi16(w, w));
#else
    for (int i = 0; i < DT__W; i++) t[i] = (uint8_t)v[i];
#endif
    if (left >= DT__W) memcpy((uint8_t *)base + at, t, DT__W);
    else memcpy((uint8_t *)base + at, t, (size_t)left);
}
DT__INLINE dt__vi DT__K(index_ld)(const void *base, int dtype, int64_t at, int64_t left)
{
    if (dtype == DT_I32) return (dt__vi)DT__K(row_ld)((const float *)base + at, left);
    uint8_t        t[DT__W] = { 0 };
    const uint8_t *p = (const uint8_t *)base + at;
    if (left < DT__W) {
        memcpy(t, p, (size_t)left);
        p = t;
    }
#if DT__HAS_AVX2
    return (dt__vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#else
    dt__vi v;
    for (int i = 0; i < DT__W; i++) v[i] = p[i];
    return v;
#endif
}

/* m, mi := v, at where v is greater, or NaN */
DT__INLINE void DT__K(take_max)(dt__vf *m, dt__vi *mi, dt__vf v, int32_t at)
{
    dt__vi more = (dt__vi)(v > *m) | (dt__vi)(v != v);
    *m = DT__K(sel)(more, v, *m);
    *mi = (DT__K(set1i)(at) & more) | (*mi & ~more);
}

/* One row of y from the rows x of its windows, first to last of the span v. at: of the row in index. */
static void DT__K(maxpool_row)(const DT__K(pool_ctx) *p, float *y, const dt_view *index, int64_t at, const float *x,
                               DT__K(span) v, int64_t ow)
{
    int64_t ch = p->ch, pitch = p->w * ch;
    int32_t kw = p->c->u.pool.kernel[1];
    for (; ow < p->ow; ow++) {
        DT__K(span) u = DT__K(pool_span)(p->c, 1, ow, p->w, p->ow);
        for (int64_t i = 0; i < ch; i += DT__W) {
            dt__vf m = DT__K(set1)(-INFINITY);
            dt__vi mi = DT__K(set1i)((int32_t)((v.lo - v.start) * kw + (u.lo - u.start)));
            for (int64_t r = v.lo; r < v.hi; r++)
                for (int64_t q = u.lo; q < u.hi; q++)
                    DT__K(take_max)(&m, &mi, DT__K(row_ld)(x + (r - v.lo) * pitch + q * ch + i, ch - i),
                                    (int32_t)((r - v.start) * kw + (q - u.start)));
            DT__K(row_st)(y + ow * ch + i, m, ch - i);
            if (index) DT__K(index_st)(index->data, index->dtype, at + ow * ch + i, mi, ch - i);
        }
    }
}
/* The same for whole 2x2 windows with stride 2: the first n of the row. */
static void DT__K(maxpool2_row)(const DT__K(pool_ctx) *p, float *y, const dt_view *index, int64_t at, const float *x,
                                int64_t n)
{
    int64_t ch = p->ch, pitch = p->w * ch;
    for (int64_t ow = 0; ow < n; ow++, x += 2 * ch, y += ch, at += ch)
        for (int64_t i = 0; i < ch; i += DT__W) {
            int64_t left = ch - i;
            dt__vf  m = DT__K(row_ld)(x + i, left);
            dt__vi  mi = DT__K(set1i)(0);
            DT__K(take_max)(&m, &mi, DT__K(row_ld)(x + ch + i, left), 1);
            DT__K(take_max)(&m, &mi, DT__K(row_ld)(x + pitch + i, left), 2);
            DT__K(take_max)(&m, &mi, DT__K(row_ld)(x + pitch + ch + i, left), 3);
            DT__K(row_st)(y + i, m, left);
            if (index) DT__K(index_st)(index->data, index->dtype, at + i, mi, left);
        }
}
static void DT__K(avgpool_row)(const DT__K(pool_ctx) *p, float *y, const float *x, DT__K(span) v)
{
    int64_t ch = p->ch, pitch = p->w * ch;
    for (int64_t ow = 0; ow < p->ow; ow++) {
        DT__K(span) u = DT__K(pool_span)(p->c, 1, ow, p->w, p->ow);
        dt__vf div = DT__K(set1)(DT__K(pool_divisor)(p->c, v, u));
        int    none = v.lo >= v.hi || u.lo >= u.hi;
        for (int64_t i = 0; i < ch; i += DT__W) {
            dt__vf s = DT__K(zero)();
            for (int64_t r = v.lo; r < v.hi; r++)
                for (int64_t q = u.lo; q < u.hi; q++)
                    s += DT__K(row_ld)(x + (r - v.lo) * pitch + q * ch + i, ch - i);
            DT__K(row_st)(y + ow * ch + i, none ? s : s / div, ch - i);
        }
    }
}

static int DT__K(pool_2x2)(const dt_call *c)
{
    return c->u.pool.kernel[0] == 2 && c->u.pool.kernel[1] == 2 && c->u.pool.stride[0] == 2 &&
           c->u.pool.stride[1] == 2 && c->u.pool.pad[0] == 0 && c->u.pool.pad[1] == 0;
}
static void DT__K(pool2d_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(pool_ctx) *p = (const DT__K(pool_ctx) *)ctx;
    const dt_call *c = p->c;
    const dt_view *index = c->u.pool.max && DT__K(has_out)(c, 1) ? &c->out[1] : NULL;
    int64_t        in_row = p->w * p->ch, out_row = p->ow * p->ch;
    float         *ybuf = p->work + worker * p->nwork, *xbuf = ybuf + DT__K(round16)(out_row);
    int64_t        last = (task + 1) * p->per < p->nrows ? (task + 1) * p->per : p->nrows;
    for (int64_t row = task * p->per; row < last; row++) {
        DT__K(span) v = DT__K(pool_span)(c, 0, row % p->oh, p->h, p->oh);
        const float *x = DT__K(row_in)(xbuf, &c->in[0], (row / p->oh * p->h + v.lo) * in_row, (v.hi - v.lo) * in_row);
        float       *y = DT__K(row_out)(ybuf, &c->out[0], row * out_row, 0);
        if (!c->u.pool.max) {
            DT__K(avgpool_row)(p, y, x, v);
        } else {
            int64_t n = p->w / 2 < p->ow ? p->w / 2 : p->ow;
            if (v.hi - v.lo != 2 || !DT__K(pool_2x2)(c)) n = 0;
            DT__K(maxpool2_row)(p, y, index, row * out_row, x, n);
            DT__K(maxpool_row)(p, y, index, row * out_row, x, v, n);
        }
        DT__K(row_end)(&c->out[0], row * out_row, y, out_row, 0);
    }
}

/* y and x: the views of the small and of the large image */
static void DT__K(pool_begin)(DT__K(pool_ctx) *p, const dt_call *c, const dt_view *y, const dt_view *x)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->n = x->shape[0];
    p->ch = x->shape[1];
    p->h = x->shape[2];
    p->w = x->shape[3];
    p->oh = y->shape[2];
    p->ow = y->shape[3];
}
static int64_t DT__K(pool_reach)(const dt_call *c, int dim, int64_t nin, int64_t nout) /* cells of the largest window */
{
    int64_t k = c->u.pool.adaptive ? nin / nout + 2 : c->u.pool.kernel[dim];
    return k < nin ? k : nin;
}
static int DT__K(pool2d)(dt_device *dev, const dt_call *c)
{
    DT__K(pool_ctx) p;
    (void)dev;
    DT__K(pool_begin)(&p, c, &c->out[0], &c->in[0]);
    if (p.n * p.oh * p.ow * p.ch == 0) return 0;
    int64_t kh = DT__K(pool_reach)(c, 0, p.h, p.oh), kw = DT__K(pool_reach)(c, 1, p.w, p.ow);
    int64_t cost = p.ow * p.ch * (kh * kw > 1 ? kh * kw : 1);
    p.nrows = p.n * p.oh;
    p.nwork = DT__K(round16)(p.ow * p.ch) + DT__K(round16)(c->in[0].dtype == DT_F32 ? 0 : kh * p.w * p.ch);
    p.work = (float *)dt_scratch((size_t)p.nwork * 4 * (size_t)dt__pool_size());
    if (!p.work) return DT_ERR_MEMORY;
    int64_t ntasks = dt__cut(p.nrows, cost, 65536, &p.per);
    DT__K(run_rows)(ntasks, DT__K(pool2d_task), &p, p.nrows * cost);
    return 0;
}

/* The outputs whose windows have cell i inside, along one dimension: [lo, hi). */
DT__INLINE DT__K(span) DT__K(pool_over)(const dt_call *c, int dim, int64_t i, int64_t nin, int64_t nout)
{
    DT__K(span) s;
    int64_t at = i + c->u.pool.pad[dim], k = c->u.pool.kernel[dim], step = c->u.pool.stride[dim];
    s.start = s.full = 0;
    s.lo = c->u.pool.adaptive ? i * nout / nin : at >= k ? (at - k) / step + 1 : 0;
    s.hi = c->u.pool.adaptive ? ((i + 1) * nout + nin - 1) / nin : at / step + 1;
    if (s.hi > nout) s.hi = nout;
    return s;
}
/* The rows [v.lo, v.hi) of dy as f32, divided by their windows if the pooling is an average. */
static const float *DT__K(pool_grads)(const DT__K(pool_ctx) *p, float *buf, int64_t image, DT__K(span) v)
{
    const dt_call *c = p->c;
    int64_t        ch = p->ch, rows = v.hi > v.lo ? v.hi - v.lo : 0;
    const float   *dy = DT__K(row_in)(buf, &c->in[0], (image * p->oh + v.lo) * p->ow * ch, rows * p->ow * ch);
    if (c->u.pool.max) return dy;
    for (int64_t r = 0; r < rows; r++) {
        DT__K(span) s = DT__K(pool_span)(c, 0, v.lo + r, p->h, p->oh);
        for (int64_t ow = 0; ow < p->ow; ow++) {
            dt__vf  div = DT__K(set1)(DT__K(pool_divisor)(c, s, DT__K(pool_span)(c, 1, ow, p->w, p->ow)));
            int64_t at = (r * p->ow + ow) * ch;
            for (int64_t i = 0; i < ch; i += DT__W)
                DT__K(row_st)(buf + at + i, DT__K(row_ld)(dy + at + i, ch - i) / div, ch - i);
        }
    }
    return buf;
}
/* One row h of dx from the rows dy that reach it; at: where the first of them begins in index. max and dtype (of the
   index) are constants where it is called. */
DT__INLINE void DT__K(pool_row_bwd)(const DT__K(pool_ctx) *p, float *dx, const float *dy, int64_t at, int64_t h,
                                    DT__K(span) v, int max, int dtype)
{
    const void *index = p->c->in[1].data;
    int64_t     ch = p->ch, kw = p->c->u.pool.kernel[1], sh = p->c->u.pool.stride[0], sw = p->c->u.pool.stride[1];
    for (int64_t w = 0; w < p->w; w++) {
        int64_t lo = p->over[2 * w], hi = p->over[2 * w + 1];
        int64_t cell = (h + p->c->u.pool.pad[0]) * kw + w + p->c->u.pool.pad[1]; /* its place in the window at 0, 0 */
        for (int64_t i = 0; i < ch; i += DT__W) {
            dt__vf sum = DT__K(zero)();
            for (int64_t r = v.lo; r < v.hi; r++)
                for (int64_t q = lo; q < hi; q++) {
                    int64_t k = ((r - v.lo) * p->ow + q) * ch + i;
                    dt__vf  g = DT__K(row_ld)(dy + k, ch - i);
                    if (max) {
                        dt__vi mi = DT__K(index_ld)(index, dtype, at + k, ch - i);
                        g = (dt__vf)((dt__vi)g & (dt__vi)(mi == DT__K(set1i)((int32_t)(cell - r * sh * kw - q * sw))));
                    }
                    sum += g;
                }
            DT__K(row_st)(dx + w * ch + i, sum, ch - i);
        }
    }
}
static void DT__K(pool2d_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(pool_ctx) *p = (const DT__K(pool_ctx) *)ctx;
    const dt_call *c = p->c;
    int64_t        in_row = p->w * p->ch;
    int            add = DT__K(acc_bit)(c, 0);
    float         *xbuf = p->work + worker * p->nwork, *ybuf = xbuf + DT__K(round16)(in_row);
    int64_t        last = (task + 1) * p->per < p->nrows ? (task + 1) * p->per : p->nrows;
    for (int64_t row = task * p->per; row < last; row++) {
        int64_t image = row / p->h, h = row % p->h;
        DT__K(span) v = DT__K(pool_over)(c, 0, h, p->h, p->oh);
        const float *dy = DT__K(pool_grads)(p, ybuf, image, v);
        float       *dx = DT__K(row_out)(xbuf, &c->out[0], row * in_row, add);
        int64_t      at = (image * p->oh + v.lo) * p->ow * p->ch;
        if (!c->u.pool.max) DT__K(pool_row_bwd)(p, dx, dy, at, h, v, 0, 0);
        else if (c->in[1].dtype == DT_I32) DT__K(pool_row_bwd)(p, dx, dy, at, h, v, 1, DT_I32);
        else DT__K(pool_row_bwd)(p, dx, dy, at, h, v, 1, DT_U8);
        DT__K(row_end)(&c->out[0], row * in_row, dx, in_row, add);
    }
}
/* 2x2 windows that neither overlap nor reach over the edge: a task is some rows of dy and the rows of dx below them. */
static void DT__K(maxpool2_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(pool_ctx) *p = (const DT__K(pool_ctx) *)ctx;
    const dt_call *c = p->c;
    const dt_view *index = &c->in[1];
    int64_t        ch = p->ch, in_row = p->w * ch, out_row = p->ow * ch;
    int            add = DT__K(acc_bit)(c, 0);
    float         *xbuf = p->work + worker * p->nwork, *ybuf = xbuf + DT__K(round16)(3 * in_row);
    int64_t        last = (task + 1) * p->per < p->nrows ? (task + 1) * p->per : p->nrows;
    for (int64_t row = task * p->per; row < last; row++) {
        int64_t oh = row % p->oh, rows = oh + 1 < p->oh ? 2 : p->h - 2 * oh;
        int64_t to = (row / p->oh * p->h + 2 * oh) * in_row;
        const float *dy = DT__K(row_in)(ybuf, &c->in[0], row * out_row, out_row);
        float       *dx = DT__K(row_out)(xbuf, &c->out[0], to, add);
        for (int64_t ow = 0; ow < p->ow; ow++)
            for (int64_t i = 0; i < ch; i += DT__W) {
                int64_t left = ch - i;
                dt__vi  g = (dt__vi)DT__K(row_ld)(dy + ow * ch + i, left);
                dt__vi  mi = DT__K(index_ld)(index->data, index->dtype, row * out_row + ow * ch + i, left);
                float  *d = dx + 2 * ow * ch + i;
                DT__K(row_st)(d, (dt__vf)(g & (dt__vi)(mi == DT__K(set1i)(0))), left);
                DT__K(row_st)(d + ch, (dt__vf)(g & (dt__vi)(mi == DT__K(set1i)(1))), left);
                DT__K(row_st)(d + in_row, (dt__vf)(g & (dt__vi)(mi == DT__K(set1i)(2))), left);
                DT__K(row_st)(d + in_row + ch, (dt__vf)(g & (dt__vi)(mi == DT__K(set1i)(3))), left);
            }
        if (p->w % 2)
            for (int r = 0; r < 2; r++) memset(dx + (r + 1) * in_row - ch, 0, (size_t)ch * 4);
        if (rows == 3) memset(dx + 2 * in_row, 0, (size_t)in_row * 4);
        DT__K(row_end)(&c->out[0], to, dx, rows * in_row, add);
    }
}
static int DT__K(pool2d_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(pool_ctx) p;
    (void)dev;
    DT__K(pool_begin)(&p, c, &c->in[0], &c->out[0]);
    if (p.n * p.h * p.w * p.ch == 0) return 0;
    int     two = c->u.pool.max && DT__K(pool_2x2)(c) && p.oh > 0 && p.oh == p.h / 2 && p.ow == p.w / 2;
    int64_t cost = p.w * p.ch * (two ? 2 : 4), reach = 1; /* rows of dy over a row of dx */
    if (c->u.pool.adaptive) reach = p.oh / p.h + 2;
    else if (!two) reach = c->u.pool.kernel[0] / c->u.pool.stride[0] + 1;
    if (reach > p.oh) reach = p.oh;
    p.nrows = p.n * (two ? p.oh : p.h);
    p.nwork = DT__K(round16)(p.w * p.ch * (two ? 3 : 1)) + DT__K(round16)(reach * p.ow * p.ch);
    p.over = (int64_t *)dt_scratch((size_t)p.nwork * 4 * (size_t)dt__pool_size() + (size_t)p.w * 16);
    if (!p.over) return DT_ERR_MEMORY;
    p.work = (float *)(void *)(p.over + 2 * p.w);
    for (int64_t w = 0; w < p.w && !two; w++) {
        DT__K(span) s = DT__K(pool_over)(c, 1, w, p.w, p.ow);
        p.over[2 * w] = s.lo;
        p.over[2 * w + 1] = s.hi;
    }
    int64_t ntasks = dt__cut(p.nrows, cost, 65536, &p.per);
    DT__K(run_rows)(ntasks, two ? DT__K(maxpool2_bwd_task) : DT__K(pool2d_bwd_task), &p, p.nrows * cost);
    return 0;
}

/* ==================================================================================================== >>batchnorm
   The image is a flat array in which channels repeat every c elements. It is cut into rows of 'period' elements, a
   common multiple of c and the vector: then every column of the rows belongs to one channel, and per-channel values
   are tables of one period, for any c.
   Statistics: one pass. A task shifts by the mean of its first rows, sums x - shift and its square by column in f32
   over a few rows, folds the columns into channels in double; tasks are merged by Chan's formula in their order.
   Then one pass y = act(x*a + b + add). Backward: one pass for sum(g) and sum(g (x - mean)), one for dx. */
typedef struct DT__K(bn_ctx) {
    const dt_call *c;
    int64_t        ch, total; /* channels; elements */
    int64_t        period;    /* elements of a row */
    int64_t        group;     /* elements of the least row: a period holds a whole number of them */
    int64_t        per;       /* rows of a task */
    int64_t        ntasks;
    int64_t        strip;     /* rows converted and summed at a time */
    int64_t        nwork;     /* floats of a worker */
    float         *work;
    float         *table;     /* 4 periods: a, b, and backward: a, slope, offset, mean */
    double        *part;      /* of each task 2 ch: mean and sum of squares; backward: the two sums */
    int            train, sums, given; /* backward: the sums are made, or are an input */
} DT__K(bn_ctx);

static int64_t DT__K(bn_group)(int64_t ch)
{
    int64_t unit = ch <= 64 ? 4 * DT__W : DT__W, p = ch;
    while (p % unit) p += ch;
    return p;
}
/* Sizes, scratch and tasks, for nbuf strips and 6 rows a worker. The number of tasks, or -1 without memory. */
static int64_t DT__K(bn_begin)(DT__K(bn_ctx) *p, const dt_call *c, const dt_view *x, int64_t nbuf)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->ch = x->shape[1];
    p->total = x->shape[0] * x->shape[1] * x->shape[2] * x->shape[3];
    p->group = DT__K(bn_group)(p->ch);
    for (p->period = p->group; p->period < 256;) p->period += p->group;
    p->strip = 4096 / p->period > 4 ? 4096 / p->period : 4;
    int64_t rows = (p->total + p->period - 1) / p->period;
    if (p->strip > rows) p->strip = rows > 0 ? rows : 1;
    int64_t ntasks = p->ntasks = dt__cut(rows, p->period, 65536, &p->per);
    p->nwork = DT__K(round16)(p->period * (p->strip * nbuf + 6));
    int64_t nfloat = p->nwork * dt__pool_size() + 4 * DT__K(round16)(p->period);
    char   *mem = (char *)dt_scratch((size_t)nfloat * 4 + (size_t)(2 * p->ch * (ntasks + 1)) * 8);
    if (!mem) return -1;
    p->part = (double *)(void *)mem;
    p->table = (float *)(void *)(mem + (2 * p->ch * (ntasks + 1)) * 8);
    p->work = p->table + 4 * DT__K(round16)(p->period);
    return ntasks;
}
DT__INLINE float *DT__K(bn_table)(const DT__K(bn_ctx) *p, int i) { return p->table + i * DT__K(round16)(p->period); }
static void DT__K(bn_repeat)(float *table, int64_t ch, int64_t period) /* repeats the first ch values to a whole period */
{
    for (int64_t i = ch; i < period; i++) table[i] = table[i - ch];
}

DT__INLINE void DT__K(bn_step)(dt__vf *sum, dt__vf *sq, dt__vf x, dt__vf shift)
{
    dt__vf d = x - shift;
    *sum += d;
    *sq = DT__K(fma)(d, d, *sq);
}
/* sum[j] += x - shift[j] and sq[j] += (x - shift[j])^2 over the rows of x, j < len */
static void DT__K(bn_columns)(float *sum, float *sq, const float *x, const float *shift, int64_t rows, int64_t pitch,
                              int64_t len)
{
    int64_t j = 0, w = DT__W;
    for (; j + 4 * w <= len; j += 4 * w) {
        const float *at = x + j, *m = shift + j;
        dt__vf s0 = DT__K(ld)(sum + j), s1 = DT__K(ld)(sum + j + w), q0 = DT__K(ld)(sq + j), q1 = DT__K(ld)(sq + j + w);
        dt__vf s2 = DT__K(ld)(sum + j + 2 * w), s3 = DT__K(ld)(sum + j + 3 * w);
        dt__vf q2 = DT__K(ld)(sq + j + 2 * w), q3 = DT__K(ld)(sq + j + 3 * w);
        dt__vf m0 = DT__K(ld)(m), m1 = DT__K(ld)(m + w), m2 = DT__K(ld)(m + 2 * w), m3 = DT__K(ld)(m + 3 * w);
        for (int64_t r = 0; r < rows; r++, at += pitch) {
            DT__K(bn_step)(&s0, &q0, DT__K(ld)(at), m0);
            DT__K(bn_step)(&s1, &q1, DT__K(ld)(at + w), m1);
            DT__K(bn_step)(&s2, &q2, DT__K(ld)(at + 2 * w), m2);
            DT__K(bn_step)(&s3, &q3, DT__K(ld)(at + 3 * w), m3);
        }
        DT__K(st)(sum + j, s0);
        DT__K(st)(sum + j + w, s1);
        DT__K(st)(sum + j + 2 * w, s2);
        DT__K(st)(sum + j + 3 * w, s3);
        DT__K(st)(sq + j, q0);
        DT__K(st)(sq + j + w, q1);
        DT__K(st)(sq + j + 2 * w, q2);
        DT__K(st)(sq + j + 3 * w, q3);
    }
    for (; j < len; j += DT__W) {
        int64_t left = len - j;
        dt__vf  s = DT__K(row_ld)(sum + j, left), q = DT__K(row_ld)(sq + j, left), m = DT__K(row_ld)(shift + j, left);
        for (int64_t r = 0; r < rows; r++) DT__K(bn_step)(&s, &q, DT__K(row_ld)(x + r * pitch + j, left), m);
        DT__K(row_st)(sum + j, s, left);
        DT__K(row_st)(sq + j, q, left);
    }
}
/* to[c] += the columns of channel c; the columns are zeroed */
static void DT__K(bn_fold)(double *to, float *column, int64_t ch, int64_t period)
{
    for (int64_t at = 0; at < period; at += ch)
        for (int64_t i = 0; i < ch; i++) to[i] += (double)column[at + i];
    memset(column, 0, (size_t)period * 4);
}
/* shift := the mean of the first rows */
static void DT__K(bn_shift)(float *shift, double *tmp, float *column, const DT__K(bn_ctx) *p, const float *x, int64_t n)
{
    int64_t row = p->group, rows = n / row, rest = n % row;
    memset(column, 0, (size_t)row * 8);
    memset(shift, 0, (size_t)row * 4);
    memset(tmp, 0, (size_t)p->ch * 8);
    DT__K(bn_columns)(column, column + row, x, shift, rows, row, row);
    DT__K(bn_columns)(column, column + row, x + rows * row, shift, 1, row, rest);
    DT__K(bn_fold)(tmp, column, p->ch, row);
    memset(column + row, 0, (size_t)row * 4);
    for (int64_t i = 0; i < p->ch; i++) {
        float m = (float)(tmp[i] / (double)(n / p->ch));
        shift[i] = m - m == 0.0f ? m : 0.0f;
    }
    DT__K(bn_repeat)(shift, p->ch, row);
}
/* The first pass goes from the end to the beginning: the cache still holds the end, which the previous kernel wrote last,
   and then the beginning, where the second pass starts. */
static void DT__K(bn_stats_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(bn_ctx) *p = (const DT__K(bn_ctx) *)ctx;
    task = p->ntasks - 1 - task;
    int64_t period = p->period, row = p->group, first = task * p->per * period, last = first + p->per * period;
    float  *shift = p->work + worker * p->nwork, *column = shift + period, *xbuf = column + 2 * period;
    double *sum = p->part + 2 * p->ch * task, *sq = sum + p->ch;
    if (last > p->total) last = p->total;
    for (int64_t at = first; at < last; at += p->strip * period) {
        int64_t      n = last - at < p->strip * period ? last - at : p->strip * period;
        const float *x = DT__K(row_in)(xbuf, &p->c->in[0], at, n);
        if (at == first) {
            DT__K(bn_shift)(shift, sum, column, p, x, n);
            memset(sum, 0, (size_t)p->ch * 16);
        }
        DT__K(bn_columns)(column, column + row, x, shift, n / row, row, row);
        DT__K(bn_columns)(column, column + row, x + n / row * row, shift, 1, row, n % row);
        DT__K(bn_fold)(sum, column, p->ch, row);
        DT__K(bn_fold)(sq, column + row, p->ch, row);
    }
    double n = (double)((last - first) / p->ch);
    for (int64_t i = 0; i < p->ch; i++) { /* from sums of x - shift to the mean and the squares of x - mean */
        double d = sum[i] / n;
        sq[i] = __builtin_fma(-d, sum[i], sq[i]);
        sum[i] = (double)shift[i] + d;
    }
}
/* Merge the tasks into mean and biased variance, in part[0 .. 2 ch). */
static void DT__K(bn_merge)(const DT__K(bn_ctx) *p, int64_t ntasks)
{
    double *mean = p->part, *sq = mean + p->ch, all = (double)(p->total / p->ch), na, nb;
    na = (double)((p->per * p->period < p->total ? p->per * p->period : p->total) / p->ch);
    for (int64_t t = 1; t < ntasks; t++, na += nb) {
        int64_t first = t * p->per * p->period, last = first + p->per * p->period;
        double *m = p->part + 2 * p->ch * t, *q = m + p->ch;
        nb = (double)(((last < p->total ? last : p->total) - first) / p->ch);
        for (int64_t i = 0; i < p->ch; i++) {
            double d = m[i] - mean[i];
            sq[i] = __builtin_fma(d * d, na * nb / (na + nb), sq[i] + q[i]);
            mean[i] = __builtin_fma(m[i], nb / (na + nb), mean[i] * (na / (na + nb)));
        }
    }
    for (int64_t i = 0; i < p->ch; i++) sq[i] = (sq[i] < 0 ? 0 : sq[i]) / all;
}
/* From part (mean, variance) to the outputs mean and rstd, the running statistics and the tables a and b. */
static void DT__K(bn_finish)(const DT__K(bn_ctx) *p)
{
    const dt_call *c = p->c;
    float         *a = DT__K(bn_table)(p, 0), *b = DT__K(bn_table)(p, 1);
    double         n = (double)(p->total / p->ch), k = c->u.norm.momentum;
    for (int64_t i = 0; i < p->ch; i++) {
        double mean = p->part[i], var = p->part[p->ch + i], rstd = 1.0 / sqrt(var + c->u.norm.eps);
        double bias = DT__K(has_in)(c, 2) ? (double)DT__K(elem)(&c->in[2], i) : 0.0;
        a[i] = (float)(DT__K(has_in)(c, 1) ? rstd * (double)DT__K(elem)(&c->in[1], i) : rstd);
        b[i] = (float)__builtin_fma(-mean, (double)a[i], bias);
        if (DT__K(has_out)(c, 1)) DT__K(set_elem)(&c->out[1], i, (float)mean, 0);
        if (DT__K(has_out)(c, 2)) DT__K(set_elem)(&c->out[2], i, (float)rstd, 0);
        if (!c->u.norm.train) continue;
        double unbiased = n > 1 ? var * (n / (n - 1)) : var;
        for (int j = 3; j < 5; j++) {
            if (!DT__K(has_out)(c, j) || !DT__K(has_in)(c, j)) continue;
            double old = (1 - k) * (double)DT__K(elem)(&c->in[j], i);
            DT__K(set_elem)(&c->out[j], i, (float)__builtin_fma(k, j == 3 ? mean : unbiased, old), 0);
        }
    }
    DT__K(bn_repeat)(a, p->ch, p->period);
    DT__K(bn_repeat)(b, p->ch, p->period);
}
static void DT__K(bn_apply_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(bn_ctx) *p = (const DT__K(bn_ctx) *)ctx;
    const dt_call *c = p->c;
    const float   *a = DT__K(bn_table)(p, 0), *b = DT__K(bn_table)(p, 1), *z = NULL;
    int64_t        period = p->period, last = (task + 1) * p->per * period;
    float         *buf = p->work + worker * p->nwork;
    int            relu = c->u.norm.act == DT_ACT_RELU;
    if (last > p->total) last = p->total;
    for (int64_t at = task * p->per * period; at < last; at += period) {
        int64_t      n = last - at < period ? last - at : period;
        const float *x = DT__K(row_in)(buf, &c->in[0], at, n);
        float       *y = DT__K(row_out)(buf + 2 * period, &c->out[0], at, 0);
        if (DT__K(has_in)(c, 5)) z = DT__K(row_in)(buf + period, &c->in[5], at, n);
        for (int64_t j = 0; j < n; j += DT__W) {
            dt__vf v = DT__K(row_ld)(x + j, n - j);
            v = DT__K(fma)(v, DT__K(row_ld)(a + j, n - j), DT__K(row_ld)(b + j, n - j));
            if (z) v += DT__K(row_ld)(z + j, n - j);
            if (relu) v = DT__K(vmax)(DT__K(zero)(), v);
            DT__K(row_st)(y + j, v, n - j);
        }
        DT__K(row_end)(&c->out[0], at, y, n, 0);
    }
}
/* Plain images in evaluation: a task has some channels, of all images. */
static void DT__K(bn_plain_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(bn_ctx) *p = (const DT__K(bn_ctx) *)ctx;
    const dt_call *c = p->c;
    int64_t        plane = c->in[0].shape[2] * c->in[0].shape[3], images = c->in[0].shape[0];
    float          in[512], add[512], out[512];
    int            relu = c->u.norm.act == DT_ACT_RELU;
    (void)worker;
    for (int64_t t = task * p->per; t < (task + 1) * p->per && t < p->ch * images; t++) {
        dt__vf a = DT__K(set1)(DT__K(bn_table)(p, 0)[t % p->ch]), b = DT__K(set1)(DT__K(bn_table)(p, 1)[t % p->ch]);
        for (int64_t at = 0; at < plane; at += 512) {
            int64_t      n = plane - at < 512 ? plane - at : 512, e = t * plane + at;
            const float *x = DT__K(row_in)(in, &c->in[0], e, n), *z = NULL;
            float       *y = DT__K(row_out)(out, &c->out[0], e, 0);
            if (DT__K(has_in)(c, 5)) z = DT__K(row_in)(add, &c->in[5], e, n);
            int64_t j = 0;
            for (; j + DT__W <= n && !z && !relu; j += DT__W) DT__K(st)(y + j, DT__K(fma)(DT__K(ld)(x + j), a, b));
            for (; j < n; j += DT__W) {
                dt__vf v = DT__K(fma)(DT__K(row_ld)(x + j, n - j), a, b);
                if (z) v += DT__K(row_ld)(z + j, n - j);
                if (relu) v = DT__K(vmax)(DT__K(zero)(), v);
                DT__K(row_st)(y + j, v, n - j);
            }
            DT__K(row_end)(&c->out[0], e, y, n, 0);
        }
    }
}
static int DT__K(batch_norm)(dt_device *dev, const dt_call *c)
{
    DT__K(bn_ctx) p;
    const dt_view *x = &c->in[0];
    (void)dev;
    if (x->shape[0] * x->shape[1] * x->shape[2] * x->shape[3] == 0) return 0;
    int64_t ntasks = DT__K(bn_begin)(&p, c, x, 1);
    if (ntasks < 0) return DT_ERR_MEMORY;
    if (c->u.norm.train || !DT__K(has_in)(c, 3) || !DT__K(has_in)(c, 4)) {
        DT__K(run_rows)(ntasks, DT__K(bn_stats_task), &p, p.total);
        DT__K(bn_merge)(&p, ntasks);
        for (int64_t i = 0; i < p.ch && !DT__K(has_out)(c, 0); i++) {
            DT__K(set_elem)(&c->out[1], i, (float)p.part[i], 0);
            DT__K(set_elem)(&c->out[2], i, (float)p.part[p.ch + i], 0);
        }
        if (!DT__K(has_out)(c, 0)) return 0;
    } else {
        for (int64_t i = 0; i < p.ch; i++) {
            p.part[i] = (double)DT__K(elem)(&c->in[3], i);
            p.part[p.ch + i] = (double)DT__K(elem)(&c->in[4], i);
        }
    }
    DT__K(bn_finish)(&p);
    if (x->layout == DT_LAYOUT_PLAIN) {
        int64_t plane = x->shape[2] * x->shape[3];
        ntasks = dt__cut(p.total / plane, plane, 65536, &p.per);
        DT__K(run_rows)(ntasks, DT__K(bn_plain_task), &p, p.total);
        return 0;
    }
    DT__K(run_rows)(ntasks, DT__K(bn_apply_task), &p, p.total);
    return 0;
}

/* the gradient before the relu that gave y; y == NULL: there is no relu */
DT__INLINE dt__vf DT__K(bn_gate)(const float *dy, const float *y, int64_t at, int64_t left)
{
    dt__vf g = DT__K(row_ld)(dy + at, left);
    if (y) g = DT__K(sel)((dt__vi)(DT__K(row_ld)(y + at, left) <= DT__K(zero)()), DT__K(zero)(), g);
    return g;
}
DT__INLINE void DT__K(bn_step_bwd)(dt__vf *a, dt__vf *b, const float *dy, const float *x, const float *y, int64_t at,
                                   dt__vf mean)
{
    dt__vf g = DT__K(bn_gate)(dy, y, at, DT__W);
    *a += g;
    *b = DT__K(fma)(g, DT__K(ld)(x + at) - mean, *b);
}
/* s1[j] += g and s2[j] += g (x - mean[j]) over the rows, j < len */
static void DT__K(bn_columns_bwd)(float *s1, float *s2, const float *dy, const float *x, const float *y,
                                  const float *mean, int64_t rows, int64_t pitch, int64_t len)
{
    int64_t j = 0, w = DT__W;
    for (; j + 4 * w <= len; j += 4 * w) {
        dt__vf a0 = DT__K(ld)(s1 + j), a1 = DT__K(ld)(s1 + j + w), b0 = DT__K(ld)(s2 + j), b1 = DT__K(ld)(s2 + j + w);
        dt__vf a2 = DT__K(ld)(s1 + j + 2 * w), a3 = DT__K(ld)(s1 + j + 3 * w);
        dt__vf b2 = DT__K(ld)(s2 + j + 2 * w), b3 = DT__K(ld)(s2 + j + 3 * w);
        dt__vf m0 = DT__K(ld)(mean + j), m1 = DT__K(ld)(mean + j + w);
        dt__vf m2 = DT__K(ld)(mean + j + 2 * w), m3 = DT__K(ld)(mean + j + 3 * w);
        for (int64_t at = j; at < rows * pitch; at += pitch) {
            DT__K(bn_step_bwd)(&a0, &b0, dy, x, y, at, m0);
            DT__K(bn_step_bwd)(&a1, &b1, dy, x, y, at + w, m1);
            DT__K(bn_step_bwd)(&a2, &b2, dy, x, y, at + 2 * w, m2);
            DT__K(bn_step_bwd)(&a3, &b3, dy, x, y, at + 3 * w, m3);
        }
        DT__K(st)(s1 + j, a0);
        DT__K(st)(s1 + j + w, a1);
        DT__K(st)(s1 + j + 2 * w, a2);
        DT__K(st)(s1 + j + 3 * w, a3);
        DT__K(st)(s2 + j, b0);
        DT__K(st)(s2 + j + w, b1);
        DT__K(st)(s2 + j + 2 * w, b2);
        DT__K(st)(s2 + j + 3 * w, b3);
    }
    for (; j < len; j += DT__W) {
        int64_t left = len - j;
        dt__vf  a = DT__K(row_ld)(s1 + j, left), b = DT__K(row_ld)(s2 + j, left), m = DT__K(row_ld)(mean + j, left);
        for (int64_t at = j; at < rows * pitch; at += pitch) {
            dt__vf g = DT__K(bn_gate)(dy, y, at, left);
            a += g;
            b = DT__K(fma)(g, DT__K(row_ld)(x + at, left) - m, b);
        }
        DT__K(row_st)(s1 + j, a, left);
        DT__K(row_st)(s2 + j, b, left);
    }
}
static void DT__K(bn_sums_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(bn_ctx) *p = (const DT__K(bn_ctx) *)ctx;
    const dt_call *c = p->c;
    const float   *mean = DT__K(bn_table)(p, 3), *y = NULL;
    task = p->ntasks - 1 - task;
    int64_t        period = p->period, strip = p->strip * period, row = p->group;
    int64_t        first = task * p->per * period, last = first + p->per * period;
    float         *column = p->work + worker * p->nwork, *buf = column + 2 * period;
    double        *s1 = p->part + 2 * p->ch * (task + 1), *s2 = s1 + p->ch;
    if (last > p->total) last = p->total;
    memset(column, 0, (size_t)row * 8);
    memset(s1, 0, (size_t)p->ch * 16);
    for (int64_t at = first; at < last; at += strip) {
        int64_t      n = last - at < strip ? last - at : strip, whole = n / row * row;
        const float *dy = DT__K(row_in)(buf, &c->in[0], at, n), *x = DT__K(row_in)(buf + strip, &c->in[1], at, n);
        if (DT__K(has_in)(c, 5)) y = DT__K(row_in)(buf + 2 * strip, &c->in[5], at, n);
        DT__K(bn_columns_bwd)(column, column + row, dy, x, y, mean, n / row, row, row);
        DT__K(bn_columns_bwd)(column, column + row, dy + whole, x + whole, y ? y + whole : NULL, mean, 1, row,
                              n - whole);
        DT__K(bn_fold)(s1, column, p->ch, row);
        DT__K(bn_fold)(s2, column + row, p->ch, row);
    }
}
/* The sums of all tasks, dweight and dbias, and the tables of dx = a g + slope (x - mean) + offset. */
static void DT__K(bn_bwd_tables)(const DT__K(bn_ctx) *p, int64_t ntasks)
{
    const dt_call *c = p->c;
    double         n = (double)(p->total / p->ch), *s1 = p->part, *s2 = s1 + p->ch;
    memset(s1, 0, (size_t)p->ch * 16);
    for (int64_t t = 1; p->sums && t <= ntasks; t++)
        for (int64_t i = 0; i < 2 * p->ch; i++) s1[i] += p->part[2 * p->ch * t + i];
    if (p->given) n = (double)c->u.norm.n;
    for (int64_t i = 0; i < p->ch; i++) {
        double rstd = (double)DT__K(elem)(&c->in[4], i);
        if (p->given) {
            s1[i] = (double)DT__K(elem)(&c->in[6], i);
            s2[i] = (double)DT__K(elem)(&c->in[6], p->ch + i) / rstd;
        }
        double a = DT__K(has_in)(c, 2) ? rstd * (double)DT__K(elem)(&c->in[2], i) : rstd;
        DT__K(bn_table)(p, 0)[i] = (float)a;
        DT__K(bn_table)(p, 1)[i] = (float)(-a * rstd * rstd * s2[i] / n);
        DT__K(bn_table)(p, 2)[i] = (float)(-a * s1[i] / n);
        if (DT__K(has_out)(c, 1)) DT__K(set_elem)(&c->out[1], i, (float)(s2[i] * rstd), DT__K(acc_bit)(c, 1));
        if (DT__K(has_out)(c, 2)) DT__K(set_elem)(&c->out[2], i, (float)s1[i], DT__K(acc_bit)(c, 2));
    }
    for (int k = 0; k < 3; k++) DT__K(bn_repeat)(DT__K(bn_table)(p, k), p->ch, p->period);
}
static void DT__K(bn_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(bn_ctx) *p = (const DT__K(bn_ctx) *)ctx;
    const dt_call *c = p->c;
    const float   *a = DT__K(bn_table)(p, 0), *slope = DT__K(bn_table)(p, 1), *offset = DT__K(bn_table)(p, 2);
    const float   *mean = DT__K(bn_table)(p, 3), *y = NULL;
    int64_t        period = p->period, last = (task + 1) * p->per * period;
    float         *buf = p->work + worker * p->nwork, *dz = NULL;
    int            add_x = DT__K(acc_bit)(c, 0), add_z = DT__K(acc_bit)(c, 3);
    if (last > p->total) last = p->total;
    for (int64_t at = task * p->per * period; at < last; at += period) {
        int64_t      n = last - at < period ? last - at : period;
        const float *dy = DT__K(row_in)(buf, &c->in[0], at, n);
        const float *x = p->train ? DT__K(row_in)(buf + period, &c->in[1], at, n) : dy;
        float       *dx = DT__K(row_out)(buf + 3 * period, &c->out[0], at, add_x);
        if (DT__K(has_in)(c, 5)) y = DT__K(row_in)(buf + 2 * period, &c->in[5], at, n);
        if (DT__K(has_out)(c, 3)) dz = DT__K(row_out)(buf + 4 * period, &c->out[3], at, add_z);
        for (int64_t j = 0; j < n; j += DT__W) {
            int64_t left = n - j;
            dt__vf  g = DT__K(bn_gate)(dy, y, j, left), v;
            if (p->train) {
                v = DT__K(row_ld)(x + j, left) - DT__K(row_ld)(mean + j, left);
                v = DT__K(fma)(v, DT__K(row_ld)(slope + j, left), DT__K(row_ld)(offset + j, left));
                v = DT__K(fma)(g, DT__K(row_ld)(a + j, left), v);
            } else {
                v = g * DT__K(row_ld)(a + j, left);
            }
            DT__K(row_st)(dx + j, v, left);
            if (dz) DT__K(row_st)(dz + j, g, left);
        }
        DT__K(row_end)(&c->out[0], at, dx, n, add_x);
        if (dz) DT__K(row_end)(&c->out[3], at, dz, n, add_z);
    }
}
/* Plain images in evaluation: dx, dadd and the two sums of some channels. The sums of an image are in f32, those over images in
   double. */
static void DT__K(bn_plain_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(bn_ctx) *p = (const DT__K(bn_ctx) *)ctx;
    const dt_call *c = p->c;
    int64_t        plane = c->in[1].shape[2] * c->in[1].shape[3], images = c->in[1].shape[0];
    float          g0[512], x0[512], y0[512], d0[512], z0[512];
    int            add_x = DT__K(acc_bit)(c, 0), add_z = DT__K(acc_bit)(c, 3);
    (void)worker;
    for (int64_t k = task * p->per; k < (task + 1) * p->per && k < p->ch; k++) {
        double rstd = (double)DT__K(elem)(&c->in[4], k), s1 = 0, s2 = 0;
        dt__vf a = DT__K(set1)((float)(DT__K(has_in)(c, 2) ? rstd * (double)DT__K(elem)(&c->in[2], k) : rstd));
        dt__vf mean = DT__K(set1)(DT__K(elem)(&c->in[3], k));
        for (int64_t i = 0; i < images; i++) {
            dt__vf q1 = DT__K(zero)(), q2 = q1;
            for (int64_t at = 0; at < plane; at += 512) {
                int64_t      n = plane - at < 512 ? plane - at : 512, e = (i * p->ch + k) * plane + at;
                const float *dy = DT__K(row_in)(g0, &c->in[0], e, n), *y = NULL, *x = dy;
                float       *dx = DT__K(row_out)(d0, &c->out[0], e, add_x), *dz = NULL;
                if (p->sums) x = DT__K(row_in)(x0, &c->in[1], e, n);
                if (DT__K(has_in)(c, 5)) y = DT__K(row_in)(y0, &c->in[5], e, n);
                if (DT__K(has_out)(c, 3)) dz = DT__K(row_out)(z0, &c->out[3], e, add_z);
                for (int64_t j = 0; j < n; j += DT__W) {
                    dt__vf g = DT__K(bn_gate)(dy, y, j, n - j), d = DT__K(row_ld)(x + j, n - j) - mean;
                    q1 += g; /* lanes beyond the end: g is 0 */
                    q2 = DT__K(fma)(g, d, q2);
                    DT__K(row_st)(dx + j, g * a, n - j);
                    if (dz) DT__K(row_st)(dz + j, g, n - j);
                }
                DT__K(row_end)(&c->out[0], e, dx, n, add_x);
                if (dz) DT__K(row_end)(&c->out[3], e, dz, n, add_z);
            }
            s1 += (double)DT__K(hsum)(q1);
            s2 += (double)DT__K(hsum)(q2);
        }
        if (DT__K(has_out)(c, 1)) DT__K(set_elem)(&c->out[1], k, (float)(s2 * rstd), DT__K(acc_bit)(c, 1));
        if (DT__K(has_out)(c, 2)) DT__K(set_elem)(&c->out[2], k, (float)s1, DT__K(acc_bit)(c, 2));
    }
}
static int DT__K(batch_norm_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(bn_ctx) p;
    if (c->in[1].layout == DT_LAYOUT_PLAIN) { /* only in evaluation */
        memset(&p, 0, sizeof p);
        p.c = c;
        p.ch = c->in[1].shape[1];
        p.sums = DT__K(has_out)(c, 1) || DT__K(has_out)(c, 2);
        p.total = p.ch * c->in[1].shape[0] * c->in[1].shape[2] * c->in[1].shape[3];
        int64_t ntasks = dt__cut(p.ch, p.ch ? p.total / p.ch : 1, 32768, &p.per);
        DT__K(run_rows)(ntasks, DT__K(bn_plain_bwd_task), &p, p.total);
        return 0;
    }
    (void)dev;
    if (c->in[1].shape[1] == 0) return 0;
    int64_t ntasks = DT__K(bn_begin)(&p, c, &c->in[1], 3);
    if (ntasks < 0) return DT_ERR_MEMORY;
    p.train = c->u.norm.train;
    p.given = DT__K(has_in)(c, 6);
    p.sums = (p.train && !p.given) || DT__K(has_out)(c, 1) || DT__K(has_out)(c, 2);
    DT__K(load_row)(DT__K(bn_table)(&p, 3), c->in[3].data, c->in[3].dtype, p.ch);
    DT__K(bn_repeat)(DT__K(bn_table)(&p, 3), p.ch, p.period);
    if (p.sums) DT__K(run_rows)(ntasks, DT__K(bn_sums_task), &p, p.total);
    DT__K(bn_bwd_tables)(&p, ntasks);
    if (DT__K(has_out)(c, 0)) DT__K(run_rows)(ntasks, DT__K(bn_bwd_task), &p, p.total);
    return 0;
}

/* ==================================================================================================== >>softmax
   x is (outer, dim, inner). inner = 1: a row at a time, vectors along the row; rows of up to DT__SM_NARROW elements:
   DT__W rows at a time, transposed so that a vector holds one element of each. inner > 1: tiles of up to DT__SM_COLS
   columns, vectors along inner. Tiles and transposed rows are held in f32. Three passes over cached data: maximum,
   exp and its sum, scaling. */
#define DT__SM_NARROW 32
#define DT__SM_COLS 64

typedef struct DT__K(sm_ctx) {
    const dt_call *c;
    int64_t        outer, dim, inner;
    int64_t        cols, tiles; /* of inner: columns of a tile, tiles of one outer */
    int64_t        group;       /* rows at a time */
    int64_t        per, items;
    int64_t        nwork; /* floats of a worker */
    float         *work;
} DT__K(sm_ctx);

DT__CALLED dt__vf DT__K(row_max)(const float *x, int64_t n) /* the largest that is not NaN, or -inf, in all lanes */
{
    dt__vf m = DT__K(set1)(-INFINITY), m2 = m;
    int64_t i = 0;
    for (; i + 2 * DT__W <= n; i += 2 * DT__W) {
        m = DT__K(vmax)(DT__K(ld)(x + i), m);
        m2 = DT__K(vmax)(DT__K(ld)(x + i + DT__W), m2);
    }
    for (; i < n; i += DT__W) m = DT__K(vmax)(DT__K(row_ld_or)(x + i, n - i, -INFINITY), m);
    return DT__K(set1)(DT__K(row_hmax)(DT__K(vmax)(m, m2)));
}
/* sum of exp(x - top); the terms are stored to e unless it is NULL. Behind the end x is -inf and the term 0. */
DT__CALLED float DT__K(row_sumexp)(float *e, const float *x, dt__vf top, int64_t n)
{
    dt__vf  s = DT__K(zero)(), s2 = s;
    int64_t i = 0;
    for (; i + 2 * DT__W <= n; i += 2 * DT__W) {
        dt__vf a = DT__K(vexp)(DT__K(ld)(x + i) - top), b = DT__K(vexp)(DT__K(ld)(x + i + DT__W) - top);
        s += a;
        s2 += b;
        if (e) DT__K(st)(e + i, a);
        if (e) DT__K(st)(e + i + DT__W, b);
    }
    for (; i < n; i += DT__W) {
        dt__vf a = DT__K(vexp)(DT__K(row_ld_or)(x + i, n - i, -INFINITY) - top);
        s += a;
        if (e) DT__K(row_st)(e + i, a, n - i);
    }
    return DT__K(row_hsum)(s + s2);
}
static void DT__K(softmax_row)(float *y, const float *x, int64_t n, int logs)
{
    dt__vf top = DT__K(row_max)(x, n);
    if (logs) {
        dt__vf l = DT__K(vlog)(DT__K(set1)(DT__K(row_sumexp)(NULL, x, top, n)));
        for (int64_t i = 0; i < n; i += DT__W)
            DT__K(row_st)(y + i, (DT__K(row_ld)(x + i, n - i) - top) - l, n - i);
    } else {
        dt__vf s = DT__K(set1)(DT__K(row_sumexp)(y, x, top, n));
        for (int64_t i = 0; i < n; i += DT__W) DT__K(row_st)(y + i, DT__K(row_ld)(y + i, n - i) / s, n - i);
    }
}
/* Columns: top := the largest of each that is not NaN; returns the sum of exp(e - top). e[k*pitch] is replaced by the
   term, or by e - top if logs, or kept if keep. */
DT__CALLED dt__vf DT__K(col_sumexp)(dt__vf *top, float *e, int64_t n, int64_t pitch, int64_t left, int logs, int keep)
{
    dt__vf m = DT__K(set1)(-INFINITY), s = DT__K(zero)();
    for (int64_t k = 0; k < n; k++) m = DT__K(vmax)(DT__K(row_ld)(e + k * pitch, left), m);
    for (int64_t k = 0; k < n; k++) {
        dt__vf d = DT__K(row_ld)(e + k * pitch, left) - m, v = DT__K(vexp)(d);
        s += v;
        if (!keep) DT__K(row_st)(e + k * pitch, logs ? d : v, left);
    }
    *top = m;
    return s;
}
/* Four vectors of columns at once, so that the chains of maxima and sums overlap */
DT__CALLED void DT__K(softmax_columns4)(float *e, int64_t n, int64_t pitch, int logs)
{
    dt__vf m0 = DT__K(set1)(-INFINITY), m1 = m0, m2 = m0, m3 = m0, s0 = DT__K(zero)(), s1 = s0, s2 = s0, s3 = s0;
    float *p = e;
    for (int64_t k = 0; k < n; k++, p += pitch) {
        m0 = DT__K(vmax)(DT__K(ld)(p), m0), m1 = DT__K(vmax)(DT__K(ld)(p + DT__W), m1);
        m2 = DT__K(vmax)(DT__K(ld)(p + 2 * DT__W), m2), m3 = DT__K(vmax)(DT__K(ld)(p + 3 * DT__W), m3);
    }
    p = e;
    for (int64_t k = 0; k < n; k++, p += pitch) {
        dt__vf d0 = DT__K(ld)(p) - m0, d1 = DT__K(ld)(p + DT__W) - m1;
        dt__vf d2 = DT__K(ld)(p + 2 * DT__W) - m2, d3 = DT__K(ld)(p + 3 * DT__W) - m3;
        dt__vf v0 = DT__K(vexp)(d0), v1 = DT__K(vexp)(d1), v2 = DT__K(vexp)(d2), v3 = DT__K(vexp)(d3);
        s0 += v0, s1 += v1, s2 += v2, s3 += v3;
        DT__K(st)(p, logs ? d0 : v0), DT__K(st)(p + DT__W, logs ? d1 : v1);
        DT__K(st)(p + 2 * DT__W, logs ? d2 : v2), DT__K(st)(p + 3 * DT__W, logs ? d3 : v3);
    }
    p = e;
    if (logs) s0 = DT__K(vlog)(s0), s1 = DT__K(vlog)(s1), s2 = DT__K(vlog)(s2), s3 = DT__K(vlog)(s3);
    for (int64_t k = 0; k < n; k++, p += pitch) {
        dt__vf v0 = DT__K(ld)(p), v1 = DT__K(ld)(p + DT__W), v2 = DT__K(ld)(p + 2 * DT__W), v3 = DT__K(ld)(p + 3 * DT__W);
        DT__K(st)(p, logs ? v0 - s0 : v0 / s0), DT__K(st)(p + DT__W, logs ? v1 - s1 : v1 / s1);
        DT__K(st)(p + 2 * DT__W, logs ? v2 - s2 : v2 / s2), DT__K(st)(p + 3 * DT__W, logs ? v3 - s3 : v3 / s3);
    }
}
static void DT__K(softmax_columns)(float *e, int64_t n, int64_t pitch, int64_t cols, int logs)
{
    int64_t j = 0;
    for (; j + 4 * DT__W <= cols; j += 4 * DT__W) DT__K(softmax_columns4)(e + j, n, pitch, logs);
    for (; j < cols; j += DT__W) {
        int64_t left = cols - j;
        dt__vf  top, s = DT__K(col_sumexp)(&top, e + j, n, pitch, left, logs, 0);
        if (logs) s = DT__K(vlog)(s);
        for (int64_t k = 0; k < n; k++) {
            dt__vf v = DT__K(row_ld)(e + k * pitch + j, left);
            DT__K(row_st)(e + k * pitch + j, logs ? v - s : v / s, left);
        }
    }
}
/* DT__W rows of n, transposed: e[k*DT__W + r] = x[r*n + k]; the last row fills the missing ones */
DT__CALLED void DT__K(turn_in)(float *e, const float *x, int64_t n, int64_t rows)
{
    for (int64_t r = 0; r < DT__W; r++) {
        const float *from = x + (r < rows ? r : rows - 1) * n;
        for (int64_t k = 0; k < n; k++) e[k * DT__W + r] = from[k];
    }
}
static void DT__K(softmax_tile)(const DT__K(sm_ctx) *p, float *e, int64_t at, int64_t n)
{
    const dt_call *c = p->c;
    for (int64_t d = 0; d < p->dim; d++) {
        float       *row = e + d * DT__SM_COLS;
        const float *x = DT__K(row_in)(row, &c->in[0], at + d * p->inner, n);
        if (x != row) memcpy(row, x, (size_t)n * 4);
    }
    DT__K(softmax_columns)(e, p->dim, DT__SM_COLS, n, c->u.softmax.log);
    for (int64_t d = 0; d < p->dim; d++) {
        float *row = DT__K(row_out)(e + d * DT__SM_COLS, &c->out[0], at + d * p->inner, 0);
        if (c->out[0].dtype == DT_F32) memcpy(row, e + d * DT__SM_COLS, (size_t)n * 4);
        else DT__K(row_end)(&c->out[0], at + d * p->inner, row, n, 0);
    }
}
static void DT__K(softmax_narrow)(const DT__K(sm_ctx) *p, float *buf, int64_t row, int64_t rows)
{
    const dt_call *c = p->c;
    int64_t        n = p->dim, at = row * n;
    float         *e = buf + DT__W * n, *y = DT__K(row_out)(buf, &c->out[0], at, 0);
    DT__K(turn_in)(e, DT__K(row_in)(buf, &c->in[0], at, rows * n), n, rows);
    DT__K(softmax_columns)(e, n, DT__W, DT__W, c->u.softmax.log);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < n; k++) y[r * n + k] = e[k * DT__W + r];
    DT__K(row_end)(&c->out[0], at, y, rows * n, 0);
}
static void DT__K(softmax_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(sm_ctx) *p = (const DT__K(sm_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    int64_t        last = (task + 1) * p->per < p->items ? (task + 1) * p->per : p->items;
    for (int64_t i = task * p->per; i < last; i++) {
        if (p->group > 1) {
            int64_t row = i * p->group;
            DT__K(softmax_narrow)(p, buf, row, p->outer - row < p->group ? p->outer - row : p->group);
        } else if (p->inner == 1) {
            int64_t      at = i * p->dim;
            const float *x = DT__K(row_in)(buf, &c->in[0], at, p->dim);
            float       *y = DT__K(row_out)(buf + p->dim, &c->out[0], at, 0);
            DT__K(softmax_row)(y, x, p->dim, c->u.softmax.log);
            DT__K(row_end)(&c->out[0], at, y, p->dim, 0);
        } else {
            int64_t j = i % p->tiles * p->cols, n = p->inner - j < p->cols ? p->inner - j : p->cols;
            DT__K(softmax_tile)(p, buf, i / p->tiles * p->dim * p->inner + j, n);
        }
    }
}

static void DT__K(softmax_row_bwd)(float *dx, const float *dy, const float *y, int64_t n, int logs)
{
    dt__vf s = DT__K(zero)();
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf g = DT__K(row_ld)(dy + i, n - i);
        s = logs ? s + g : DT__K(fma)(g, DT__K(row_ld)(y + i, n - i), s);
    }
    s = DT__K(set1)(DT__K(row_hsum)(s));
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf g = DT__K(row_ld)(dy + i, n - i), v = DT__K(row_ld)(y + i, n - i);
        v = logs ? DT__K(fma)(DT__K(zero)() - DT__K(vexp)(v), s, g) : v * (g - s);
        DT__K(row_st)(dx + i, v, n - i);
    }
}
static void DT__K(softmax_tile_bwd)(const DT__K(sm_ctx) *p, float *buf, int64_t at, int64_t n)
{
    const dt_call *c = p->c;
    float          sum[DT__SM_COLS] = { 0 };
    int            logs = c->u.softmax.log, add = DT__K(acc_bit)(c, 0);
    for (int64_t d = 0; d < p->dim; d++) {
        const float *dy = DT__K(row_in)(buf, &c->in[0], at + d * p->inner, n);
        const float *y = DT__K(row_in)(buf + DT__SM_COLS, &c->in[1], at + d * p->inner, n);
        for (int64_t j = 0; j < n; j += DT__W) {
            dt__vf s = DT__K(row_ld)(sum + j, n - j), g = DT__K(row_ld)(dy + j, n - j);
            s = logs ? s + g : DT__K(fma)(g, DT__K(row_ld)(y + j, n - j), s);
            DT__K(row_st)(sum + j, s, n - j);
        }
    }
    for (int64_t d = 0; d < p->dim; d++) {
        const float *dy = DT__K(row_in)(buf, &c->in[0], at + d * p->inner, n);
        const float *y = DT__K(row_in)(buf + DT__SM_COLS, &c->in[1], at + d * p->inner, n);
        float       *dx = DT__K(row_out)(buf + 2 * DT__SM_COLS, &c->out[0], at + d * p->inner, add);
        for (int64_t j = 0; j < n; j += DT__W) {
            dt__vf s = DT__K(row_ld)(sum + j, n - j), g = DT__K(row_ld)(dy + j, n - j), v = DT__K(row_ld)(y + j, n - j);
            v = logs ? DT__K(fma)(DT__K(zero)() - DT__K(vexp)(v), s, g) : v * (g - s);
            DT__K(row_st)(dx + j, v, n - j);
        }
        DT__K(row_end)(&c->out[0], at + d * p->inner, dx, n, add);
    }
}
static void DT__K(softmax_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(sm_ctx) *p = (const DT__K(sm_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    int            add = DT__K(acc_bit)(c, 0);
    int64_t        last = (task + 1) * p->per < p->items ? (task + 1) * p->per : p->items;
    for (int64_t i = task * p->per; i < last; i++) {
        if (p->inner == 1) {
            int64_t      at = i * p->dim;
            const float *dy = DT__K(row_in)(buf, &c->in[0], at, p->dim);
            const float *y = DT__K(row_in)(buf + p->dim, &c->in[1], at, p->dim);
            float       *dx = DT__K(row_out)(buf + 2 * p->dim, &c->out[0], at, add);
            DT__K(softmax_row_bwd)(dx, dy, y, p->dim, c->u.softmax.log);
            DT__K(row_end)(&c->out[0], at, dx, p->dim, add);
        } else {
            int64_t j = i % p->tiles * p->cols, n = p->inner - j < p->cols ? p->inner - j : p->cols;
            DT__K(softmax_tile_bwd)(p, buf, i / p->tiles * p->dim * p->inner + j, n);
        }
    }
}
static int DT__K(softmax_run)(const dt_call *c, dt__task_fn fn, int64_t group)
{
    DT__K(sm_ctx) p;
    memset(&p, 0, sizeof p);
    p.c = c;
    p.outer = c->out[0].shape[0];
    p.dim = c->out[0].shape[1];
    p.inner = c->out[0].shape[2];
    if (p.outer * p.dim * p.inner == 0) return 0;
    p.cols = p.inner < DT__SM_COLS ? p.inner : DT__SM_COLS;
    p.tiles = (p.inner + p.cols - 1) / p.cols;
    p.group = p.inner == 1 && p.dim <= DT__SM_NARROW ? group : 1;
    p.items = (p.outer + p.group - 1) / p.group * p.tiles;
    p.nwork = DT__K(round16)(p.inner == 1 ? 3 * p.dim * p.group : DT__SM_COLS * (p.dim + 3));
    p.work = (float *)dt_scratch((size_t)p.nwork * 4 * (size_t)dt__pool_size());
    if (!p.work) return DT_ERR_MEMORY;
    int64_t ntasks = dt__cut(p.items, p.dim * p.cols * p.group, 16384, &p.per);
    DT__K(run_rows)(ntasks, fn, &p, 2 * p.outer * p.dim * p.inner);
    return 0;
}
static int DT__K(softmax)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(softmax_run)(c, DT__K(softmax_task), DT__W);
}
static int DT__K(softmax_bwd)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(softmax_run)(c, DT__K(softmax_bwd_task), 1);
}
#undef DT__SM_COLS

/* ==================================================================================================== >>layernorm
   A row at a time, in cache: its mean, then the sums of x - mean and its square (the first corrects the rounding of the
   mean), then y. Backward: the two row sums, then dx; a task sums dweight and dbias over its rows, and these partial
   sums are added in the order of the tasks. */
typedef struct DT__K(ln_ctx) {
    const dt_call *c;
    int64_t        rows, cols, per;
    int64_t        nwork;
    float         *work;
    float         *weight, *bias; /* f32, 1 and 0 where absent */
    float         *part;          /* by task: dweight, dbias; NULL if neither is wanted */
} DT__K(ln_ctx);

DT__CALLED float DT__K(row_sum)(const float *x, int64_t n)
{
    dt__vf  a = DT__K(zero)(), b = a, d = a, e = a;
    int64_t i = 0;
    for (; i + 4 * DT__W <= n; i += 4 * DT__W) {
        a += DT__K(ld)(x + i);
        b += DT__K(ld)(x + i + DT__W);
        d += DT__K(ld)(x + i + 2 * DT__W);
        e += DT__K(ld)(x + i + 3 * DT__W);
    }
    for (; i < n; i += DT__W) a += DT__K(row_ld)(x + i, n - i);
    return DT__K(row_hsum)((a + b) + (d + e));
}
DT__CALLED void DT__K(ln_stats)(float *mean, float *rstd, const float *x, int64_t n, double eps, int rms)
{
    float   about = rms ? 0.0f : DT__K(row_sum)(x, n) / (float)n;
    dt__vf  m = DT__K(set1)(about), s = DT__K(zero)(), s2 = s, q = s, q2 = s;
    int64_t i = 0;
    for (; i + 2 * DT__W <= n; i += 2 * DT__W) {
        dt__vf d = DT__K(ld)(x + i) - m, e = DT__K(ld)(x + i + DT__W) - m;
        s += d;
        s2 += e;
        q = DT__K(fma)(d, d, q);
        q2 = DT__K(fma)(e, e, q2);
    }
    for (; i < n; i += DT__W) {
        dt__vf d = DT__K(row_ld_or)(x + i, n - i, about) - m;
        s += d;
        q = DT__K(fma)(d, d, q);
    }
    double var = (double)DT__K(row_hsum)(q + q2) / (double)n;
    if (!rms) {
        double d = (double)DT__K(row_hsum)(s + s2) / (double)n;
        *mean = (float)((double)about + d);
        var = __builtin_fma(-d, d, var);
    } else {
        *mean = 0.0f;
    }
    *rstd = (float)(1.0 / sqrt((var < 0 ? 0 : var) + eps));
}
static void DT__K(layer_norm_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(ln_ctx) *p = (const DT__K(ln_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    const float   *w = p->weight, *b = p->bias;
    int64_t        n = p->cols, last = (task + 1) * p->per < p->rows ? (task + 1) * p->per : p->rows;
    for (int64_t row = task * p->per; row < last; row++) {
        const float *x = DT__K(row_in)(buf, &c->in[0], row * n, n);
        float       *y = DT__K(row_out)(buf + n, &c->out[0], row * n, 0), mean, rstd;
        DT__K(ln_stats)(&mean, &rstd, x, n, c->u.norm.eps, c->u.norm.rms);
        if (DT__K(has_out)(c, 1)) DT__K(set_elem)(&c->out[1], row, mean, 0);
        if (DT__K(has_out)(c, 2)) DT__K(set_elem)(&c->out[2], row, rstd, 0);
        dt__vf m = DT__K(set1)(mean), r = DT__K(set1)(rstd);
        int64_t i = 0;
        for (; i + DT__W <= n; i += DT__W) {
            dt__vf v = (DT__K(ld)(x + i) - m) * r;
            DT__K(st)(y + i, DT__K(fma)(v, DT__K(ld)(w + i), DT__K(ld)(b + i)));
        }
        if (i < n) {
            dt__vf v = (DT__K(ld_some)(x + i, n - i) - m) * r;
            DT__K(st_some)(y + i, DT__K(fma)(v, DT__K(ld_some)(w + i, n - i), DT__K(ld_some)(b + i, n - i)), n - i);
        }
        DT__K(row_end)(&c->out[0], row * n, y, n, 0);
    }
}
/* one vector of a row: *s1 += g, *s2 += g x_hat with g = dy w; dw += dy x_hat, db += dy if dw is given */
DT__INLINE void DT__K(ln_add)(dt__vf *s1, dt__vf *s2, float *dw, float *db, const float *dy, const float *x,
                              const float *w, dt__vf m, dt__vf r, int64_t left)
{
    dt__vf d = DT__K(row_ld)(dy, left), h = (DT__K(row_ld)(x, left) - m) * r, v = DT__K(row_ld)(w, left);
    *s1 = DT__K(fma)(d, v, *s1);
    *s2 = DT__K(fma)(d * v, h, *s2);
    if (!dw) return;
    DT__K(row_st)(dw, DT__K(fma)(d, h, DT__K(row_ld)(dw, left)), left);
    DT__K(row_st)(db, DT__K(row_ld)(db, left) + d, left);
}
/* a row: *c1 = mean(g), *c2 = mean(g x_hat) */
DT__CALLED void DT__K(ln_sums)(float *c1, float *c2, float *dw, float *db, const float *dy, const float *x,
                               const float *w, dt__vf m, dt__vf r, int64_t n)
{
    dt__vf  s1 = DT__K(zero)(), s2 = s1, t1 = s1, t2 = s1;
    int64_t i = 0, j = DT__W;
    for (; i + 2 * DT__W <= n; i += 2 * DT__W, j += 2 * DT__W) {
        DT__K(ln_add)(&s1, &s2, dw ? dw + i : NULL, dw ? db + i : NULL, dy + i, x + i, w + i, m, r, DT__W);
        DT__K(ln_add)(&t1, &t2, dw ? dw + j : NULL, dw ? db + j : NULL, dy + j, x + j, w + j, m, r, DT__W);
    }
    for (; i < n; i += DT__W)
        DT__K(ln_add)(&s1, &s2, dw ? dw + i : NULL, dw ? db + i : NULL, dy + i, x + i, w + i, m, r, n - i);
    *c1 = DT__K(row_hsum)(s1 + t1) / (float)n;
    *c2 = DT__K(row_hsum)(s2 + t2) / (float)n;
}
/* one vector of dx = r (dy w - c1 - x_hat c2) */
DT__INLINE void DT__K(ln_dx)(float *dx, const float *dy, const float *x, const float *w, dt__vf m, dt__vf r,
                             dt__vf less1, dt__vf less2, int64_t left)
{
    dt__vf v = DT__K(fma)(DT__K(row_ld)(dy, left), DT__K(row_ld)(w, left), less1);
    v = DT__K(fma)((DT__K(row_ld)(x, left) - m) * r, less2, v);
    DT__K(row_st)(dx, v * r, left);
}
static void DT__K(layer_norm_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(ln_ctx) *p = (const DT__K(ln_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    int64_t        n = p->cols, last = (task + 1) * p->per < p->rows ? (task + 1) * p->per : p->rows;
    float         *dw = p->part ? p->part + 2 * n * task : NULL, c1, c2;
    int            add = DT__K(acc_bit)(c, 0);
    if (dw) memset(dw, 0, (size_t)n * 8);
    for (int64_t row = task * p->per; row < last; row++) {
        const float *dy = DT__K(row_in)(buf, &c->in[0], row * n, n);
        const float *x = DT__K(row_in)(buf + n, &c->in[1], row * n, n);
        int          centred = !c->u.norm.rms && DT__K(has_in)(c, 3);
        dt__vf       m = DT__K(set1)(centred ? DT__K(elem)(&c->in[3], row) : 0.0f);
        dt__vf       r = DT__K(set1)(DT__K(elem)(&c->in[4], row));
        DT__K(ln_sums)(&c1, &c2, dw, dw ? dw + n : NULL, dy, x, p->weight, m, r, n);
        if (!DT__K(has_out)(c, 0)) continue;
        float *dx = DT__K(row_out)(buf + 2 * n, &c->out[0], row * n, add);
        dt__vf less1 = DT__K(set1)(centred ? -c1 : 0.0f), less2 = DT__K(set1)(-c2);
        int64_t i = 0;
        for (; i + DT__W <= n; i += DT__W)
            DT__K(ln_dx)(dx + i, dy + i, x + i, p->weight + i, m, r, less1, less2, DT__W);
        if (i < n) DT__K(ln_dx)(dx + i, dy + i, x + i, p->weight + i, m, r, less1, less2, n - i);
        DT__K(row_end)(&c->out[0], row * n, dx, n, add);
    }
}
/* Sizes and scratch; nbuf rows a worker; part for ntasks tasks if asked for. */
static int DT__K(ln_begin)(DT__K(ln_ctx) *p, const dt_call *c, const dt_view *x, int64_t nbuf, int64_t *ntasks,
                           int part)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->rows = x->shape[0];
    p->cols = x->shape[1];
    *ntasks = dt__cut(p->rows, p->cols, 32768, &p->per);
    if (p->per > 512) {
        p->per = 512;
        *ntasks = (p->rows + 511) / 512;
    }
    p->nwork = DT__K(round16)(nbuf * p->cols);
    int64_t share = part ? *ntasks * 2 * p->cols : 0;
    float  *mem = (float *)dt_scratch((size_t)(p->nwork * dt__pool_size() + share + 2 * DT__K(round16)(p->cols)) * 4);
    if (!mem) return DT_ERR_MEMORY;
    p->weight = mem;
    p->bias = mem + DT__K(round16)(p->cols);
    p->work = p->bias + DT__K(round16)(p->cols);
    p->part = part ? p->work + p->nwork * dt__pool_size() : NULL;
    for (int64_t i = 0; i < p->cols; i++) p->weight[i] = 1.0f;
    memset(p->bias, 0, (size_t)p->cols * 4);
    return 0;
}
/* Group norm: a row is a group of channels of an image, norm.n of them, and weight and bias have one value for each channel.
   The sums of a channel over an image go to part[row][2][channel]; dweight and dbias add them over the images in double. */
typedef struct DT__K(gn_row) {
    int64_t n, first; /* channels, elements of one; the first channel */
    int64_t plane;
} DT__K(gn_row);
DT__INLINE DT__K(gn_row) DT__K(gn_place)(const DT__K(ln_ctx) *p, int64_t row, int64_t channels)
{
    DT__K(gn_row) g;
    g.n = p->c->u.norm.n;
    g.first = row % (channels / g.n) * g.n;
    g.plane = p->cols / g.n;
    return g;
}
static void DT__K(group_norm_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(ln_ctx) *p = (const DT__K(ln_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    int64_t        n = p->cols, last = (task + 1) * p->per < p->rows ? (task + 1) * p->per : p->rows;
    for (int64_t row = task * p->per; row < last; row++) {
        DT__K(gn_row) g = DT__K(gn_place)(p, row, c->in[1].shape[0]);
        const float *x = DT__K(row_in)(buf, &c->in[0], row * n, n);
        float       *y = DT__K(row_out)(buf + n, &c->out[0], row * n, 0), mean, rstd;
        DT__K(ln_stats)(&mean, &rstd, x, n, c->u.norm.eps, 0);
        if (DT__K(has_out)(c, 1)) DT__K(set_elem)(&c->out[1], row, mean, 0);
        if (DT__K(has_out)(c, 2)) DT__K(set_elem)(&c->out[2], row, rstd, 0);
        for (int64_t k = 0; k < g.n; k++) {
            const float *s = x + k * g.plane;
            float       *d = y + k * g.plane;
            dt__vf       m = DT__K(set1)(mean), a = DT__K(set1)(rstd * p->weight[g.first + k]);
            dt__vf       b = DT__K(set1)(p->bias[g.first + k]);
            int64_t      i = 0;
            for (; i + DT__W <= g.plane; i += DT__W) DT__K(st)(d + i, DT__K(fma)(DT__K(ld)(s + i) - m, a, b));
            if (i < g.plane) DT__K(st_some)(d + i, DT__K(fma)(DT__K(ld_some)(s + i, g.plane - i) - m, a, b), g.plane - i);
        }
        DT__K(row_end)(&c->out[0], row * n, y, n, 0);
    }
}
static void DT__K(group_norm_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(ln_ctx) *p = (const DT__K(ln_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    int            add = DT__K(acc_bit)(c, 0);
    int64_t        n = p->cols, last = (task + 1) * p->per < p->rows ? (task + 1) * p->per : p->rows;
    for (int64_t row = task * p->per; row < last; row++) {
        DT__K(gn_row) g = DT__K(gn_place)(p, row, c->in[2].shape[0]);
        const float *dy = DT__K(row_in)(buf, &c->in[0], row * n, n), *x = DT__K(row_in)(buf + n, &c->in[1], row * n, n);
        float       *part = p->part + row * 2 * g.n, rstd = DT__K(elem)(&c->in[4], row);
        dt__vf       m = DT__K(set1)(DT__K(elem)(&c->in[3], row)), r = DT__K(set1)(rstd);
        double       c1 = 0, c2 = 0;
        for (int64_t k = 0; k < g.n; k++) {
            const float *u = dy + k * g.plane, *v = x + k * g.plane;
            dt__vf       s1 = DT__K(zero)(), s2 = s1, t1 = s1, t2 = s1;
            int64_t      i = 0;
            for (; i + 2 * DT__W <= g.plane; i += 2 * DT__W) {
                dt__vf e = DT__K(ld)(u + i), f = DT__K(ld)(u + i + DT__W);
                s1 += e;
                t1 += f;
                s2 = DT__K(fma)(e, DT__K(ld)(v + i) - m, s2);
                t2 = DT__K(fma)(f, DT__K(ld)(v + i + DT__W) - m, t2);
            }
            for (; i < g.plane; i += DT__W) {
                dt__vf e = DT__K(row_ld)(u + i, g.plane - i);
                s1 += e;
                s2 = DT__K(fma)(e, DT__K(row_ld_or)(v + i, g.plane - i, m[0]) - m, s2);
            }
            part[k] = DT__K(hsum)(s2 + t2) * rstd;
            part[g.n + k] = DT__K(hsum)(s1 + t1);
            c1 += (double)part[g.n + k] * (double)p->weight[g.first + k];
            c2 += (double)part[k] * (double)p->weight[g.first + k];
        }
        if (!DT__K(has_out)(c, 0)) continue;
        /* dx = r (dy w - c1 - (x - m) r c2) */
        float *dx = DT__K(row_out)(buf + 2 * n, &c->out[0], row * n, add);
        dt__vf less1 = DT__K(set1)((float)(-c1 / (double)n)), less2 = DT__K(set1)((float)(-c2 / (double)n) * rstd);
        for (int64_t k = 0; k < g.n; k++) {
            const float *u = dy + k * g.plane, *v = x + k * g.plane;
            float       *d = dx + k * g.plane;
            dt__vf       w = DT__K(set1)(p->weight[g.first + k]);
            int64_t      i = 0;
            for (; i + DT__W <= g.plane; i += DT__W)
                DT__K(st)(d + i, r * DT__K(fma)(DT__K(ld)(v + i) - m, less2, DT__K(fma)(DT__K(ld)(u + i), w, less1)));
            for (; i < g.plane; i += DT__W) {
                int64_t left = g.plane - i;
                dt__vf  e = DT__K(fma)(DT__K(row_ld)(u + i, left), w, less1);
                DT__K(row_st)(d + i, r * DT__K(fma)(DT__K(row_ld)(v + i, left) - m, less2, e), left);
            }
        }
        DT__K(row_end)(&c->out[0], row * n, dx, n, add);
    }
}
/* x: (rows, columns); w: (channels); b or NULL */
static int DT__K(group_norm)(const dt_call *c, const dt_view *x, const dt_view *w, const dt_view *b, bool back)
{
    DT__K(ln_ctx) p;
    int64_t channels = w->shape[0], pad = DT__K(round16)(channels);
    memset(&p, 0, sizeof p);
    p.c = c;
    p.rows = x->shape[0];
    p.cols = x->shape[1];
    int64_t ntasks = dt__cut(p.rows, p.cols, 32768, &p.per), n = c->u.norm.n;
    p.nwork = DT__K(round16)((back ? 3 : 2) * p.cols);
    p.weight = (float *)dt_scratch((size_t)(2 * pad + (back ? p.rows * 2 * n : 0) + p.nwork * dt__pool_size()) * 4 + 64);
    if (!p.weight) return DT_ERR_MEMORY;
    p.bias = p.weight + pad;
    p.part = p.bias + pad;
    p.work = p.part + (back ? DT__K(round16)(p.rows * 2 * n) : 0);
    DT__K(load_row)(p.weight, w->data, w->dtype, channels);
    if (b) DT__K(load_row)(p.bias, b->data, b->dtype, channels);
    DT__K(run_rows)(ntasks, back ? DT__K(group_norm_bwd_task) : DT__K(group_norm_task), &p, p.rows * p.cols);
    for (int k = 1; back && k < 3; k++) {
        if (!DT__K(has_out)(c, k)) continue;
        for (int64_t ch = 0; ch < channels; ch++) {
            double s = 0;
            for (int64_t row = ch / n; row < p.rows; row += channels / n) s += (double)p.part[row * 2 * n + (k - 1) * n + ch % n];
            DT__K(set_elem)(&c->out[k], ch, (float)s, DT__K(acc_bit)(c, k));
        }
    }
    return 0;
}
static int DT__K(layer_norm)(dt_device *dev, const dt_call *c)
{
    DT__K(ln_ctx) p;
    int64_t ntasks;
    (void)dev;
    if (c->in[0].shape[0] * c->in[0].shape[1] == 0) return 0;
    if (c->u.norm.n > 0) return DT__K(group_norm)(c, &c->in[0], &c->in[1], DT__K(has_in)(c, 2) ? &c->in[2] : NULL, false);
    if (DT__K(ln_begin)(&p, c, &c->in[0], 2, &ntasks, 0) != 0) return DT_ERR_MEMORY;
    if (DT__K(has_in)(c, 1)) DT__K(load_row)(p.weight, c->in[1].data, c->in[1].dtype, p.cols);
    if (DT__K(has_in)(c, 2)) DT__K(load_row)(p.bias, c->in[2].data, c->in[2].dtype, p.cols);
    DT__K(run_rows)(ntasks, DT__K(layer_norm_task), &p, p.rows * p.cols);
    return 0;
}
static int DT__K(layer_norm_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(ln_ctx) p;
    int64_t ntasks;
    int     part = DT__K(has_out)(c, 1) || DT__K(has_out)(c, 2);
    (void)dev;
    if (c->in[1].shape[1] == 0) return 0;
    if (c->u.norm.n > 0) return DT__K(group_norm)(c, &c->in[1], &c->in[2], NULL, true);
    if (DT__K(ln_begin)(&p, c, &c->in[1], 3, &ntasks, part) != 0) return DT_ERR_MEMORY;
    if (DT__K(has_in)(c, 2)) DT__K(load_row)(p.weight, c->in[2].data, c->in[2].dtype, p.cols);
    DT__K(run_rows)(ntasks, DT__K(layer_norm_bwd_task), &p, p.rows * p.cols * 2);
    if (!part) return 0;
    float *sum = p.work; /* the workers are done */
    for (int k = 0; k < 2; k++) {
        if (!DT__K(has_out)(c, 1 + k)) continue;
        memset(sum, 0, (size_t)p.cols * 4);
        for (int64_t t = 0; t < ntasks; t++)
            for (int64_t i = 0; i < p.cols; i += DT__W)
                DT__K(row_st)(sum + i, DT__K(row_ld)(sum + i, p.cols - i) +
                              DT__K(row_ld)(p.part + (2 * t + k) * p.cols + i, p.cols - i), p.cols - i);
        DT__K(put_row)(c->out[1 + k].data, c->out[1 + k].dtype, sum, p.cols, DT__K(acc_bit)(c, 1 + k));
    }
    return 0;
}

/* ==================================================================================================== >>indexing
   embedding and gather move elements by their size. Their gradients add the elements of one target in the order of
   positions: embedding_bwd sorts the positions by row (counting sort, stable), then sums every row of dweight in f32 and
   writes it once; gather_bwd gives each task its own columns. The lowest position with an index out of range is recorded
   and reported after the job. */
typedef struct DT__K(ix_ctx) {
    const dt_call *c;
    const dt_view *index;
    int64_t        n, rows;           /* positions; rows an index may name */
    int64_t        outer, ny, inner;  /* gather */
    int64_t        cols, tiles;       /* columns of a tile, tiles across */
    int64_t        per, items;
    int64_t       *start, *order;     /* embedding_bwd: the positions of row r are order[start[r] .. start[r+1]) */
    int64_t        nwork;
    float         *work;
    int64_t        bad;               /* the first bad position */
} DT__K(ix_ctx);

DT__INLINE int64_t DT__K(index_at)(const dt_view *v, int64_t i)
{
    if (v->dtype == DT_I64) return ((const int64_t *)v->data)[i];
    return v->dtype == DT_I32 ? ((const int32_t *)v->data)[i] : ((const uint8_t *)v->data)[i];
}
DT__INLINE void DT__K(note_bad)(int64_t *bad, int64_t at)
{
    int64_t seen = __atomic_load_n(bad, __ATOMIC_RELAXED);
    while (at < seen && !__atomic_compare_exchange_n(bad, &seen, at, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
static int DT__K(index_fail)(const char *op, const dt_view *index, int64_t at, int64_t rows)
{
    return dt_fail(DT_ERR_ARG,
                   "%s: index %lld at position %lld is out of range for %lld rows; indices must be in 0..%lld", op,
                   (long long)DT__K(index_at)(index, at), (long long)at, (long long)rows, (long long)(rows - 1));
}
DT__INLINE size_t DT__K(elem_size)(int dtype)
{
    return dtype == DT_U8 ? 1 : dtype == DT_F16 || dtype == DT_BF16 ? 2 : dtype == DT_I64 ? 8 : 4;
}

static void DT__K(embedding_task)(void *ctx, int64_t task, int worker)
{
    DT__K(ix_ctx) *p = (DT__K(ix_ctx) *)ctx;
    size_t      nbytes = (size_t)p->inner * DT__K(elem_size)(p->c->out[0].dtype);
    char       *y = (char *)p->c->out[0].data;
    const char *weight = (const char *)p->c->in[1].data;
    int64_t     last = (task + 1) * p->per < p->n ? (task + 1) * p->per : p->n;
    (void)worker;
    for (int64_t i = task * p->per, at = i % p->ny, base = i / p->ny * p->rows; i < last; i++) {
        int64_t row = DT__K(index_at)(p->index, at);
        if (row < 0 || row >= p->rows) {
            DT__K(note_bad)(&p->bad, at);
            return;
        }
        if (nbytes) memcpy(y + (size_t)i * nbytes, weight + (size_t)(base + row) * nbytes, nbytes);
        if (++at == p->ny) at = 0, base += p->rows;
    }
}
static void DT__K(embedding_dims)(DT__K(ix_ctx) *p, const dt_view *y, const dt_view *w)
{
    int more = y->ndim == 3;
    p->outer = more ? y->shape[0] : 1;
    p->n = p->ny = y->shape[more];
    p->inner = y->shape[more + 1];
    p->rows = w->shape[more];
}
static int DT__K(embedding)(dt_device *dev, const dt_call *c)
{
    DT__K(ix_ctx) p;
    (void)dev;
    memset(&p, 0, sizeof p);
    p.c = c;
    p.index = &c->in[0];
    DT__K(embedding_dims)(&p, &c->out[0], &c->in[1]);
    p.n *= p.outer;
    p.bad = INT64_MAX;
    int64_t cost = p.inner + 16, ntasks = dt__cut(p.n, cost, 32768, &p.per);
    DT__K(run_rows)(ntasks, DT__K(embedding_task), &p, p.n * cost);
    return p.bad == INT64_MAX ? 0 : DT__K(index_fail)("embedding", p.index, p.bad, p.rows);
}

/* Sort the positions by row. The first bad position, or -1. */
static int64_t DT__K(embedding_sort)(DT__K(ix_ctx) *p)
{
    memset(p->start, 0, (size_t)(p->rows + 2) * 8);
    for (int64_t i = 0; i < p->n; i++) {
        int64_t row = DT__K(index_at)(p->index, i);
        if (row < 0 || row >= p->rows) return i;
        p->start[row + 2]++;
    }
    for (int64_t r = 2; r < p->rows + 2; r++) p->start[r] += p->start[r - 1]; /* start[r+1]: where row r goes next */
    for (int64_t i = 0; i < p->n; i++) p->order[p->start[DT__K(index_at)(p->index, i) + 1]++] = i;
    return -1;
}
static void DT__K(embedding_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(ix_ctx) *p = (const DT__K(ix_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork, *sum = buf + p->cols;
    int            add = DT__K(acc_bit)(c, 0);
    int64_t        o = task / (p->tiles * p->items); /* items: chunks of rows */
    int64_t        first = task / p->tiles % p->items * p->per, col = task % p->tiles * p->cols;
    int64_t        last = first + p->per < p->rows ? first + p->per : p->rows;
    int64_t        n = p->inner - col < p->cols ? p->inner - col : p->cols;
    for (int64_t row = first; row < last; row++) {
        int64_t k = p->start[row], end = p->start[row + 1], at = (o * p->rows + row) * p->inner + col;
        if (k == end && add) continue;
        float *to = DT__K(row_out)(sum, &c->out[0], at, add);
        memset(to, 0, (size_t)n * 4);
        for (; k < end; k++) {
            const float *dy = DT__K(row_in)(buf, &c->in[0], (o * p->n + p->order[k]) * p->inner + col, n);
            for (int64_t i = 0; i < n; i += DT__W)
                DT__K(row_st)(to + i, DT__K(row_ld)(to + i, n - i) + DT__K(row_ld)(dy + i, n - i), n - i);
        }
        DT__K(row_end)(&c->out[0], at, to, n, add);
    }
}
static int DT__K(embedding_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(ix_ctx) p;
    (void)dev;
    memset(&p, 0, sizeof p);
    p.c = c;
    p.index = &c->in[1];
    DT__K(embedding_dims)(&p, &c->in[0], &c->out[0]);
    p.cols = p.inner < 128 ? p.inner : 128;
    p.nwork = DT__K(round16)(2 * p.cols);
    size_t sorted = (size_t)((p.rows + 2 + p.n + 7) & ~(int64_t)7) * 8;
    char  *mem = (char *)dt_scratch(sorted + (size_t)p.nwork * 4 * (size_t)dt__pool_size());
    if (!mem) return DT_ERR_MEMORY;
    p.start = (int64_t *)(void *)mem;
    p.order = p.start + p.rows + 2;
    p.work = (float *)(void *)(mem + sorted);
    int64_t bad = DT__K(embedding_sort)(&p);
    if (bad >= 0) return DT__K(index_fail)("embedding_bwd", p.index, bad, p.rows);
    if (p.outer * p.rows * p.inner == 0) return 0;
    p.tiles = (p.inner + p.cols - 1) / p.cols;
    p.items = dt__cut(p.rows, (1 + p.n / p.rows) * p.cols, 32768, &p.per);
    DT__K(run_rows)(p.outer * p.items * p.tiles, DT__K(embedding_bwd_task), &p, p.outer * (p.rows + p.n) * p.inner);
    return 0;
}

/* y[j][i] = x[index[j][i]][i] for some rows j of all outers; size and wide (indices are i64) are constants where it is called */
DT__INLINE void DT__K(gather_rows)(DT__K(ix_ctx) *p, int64_t first, int64_t last, size_t size, bool wide)
{
    int64_t     inner = p->inner, rows = p->rows, o = first / p->ny, j = first % p->ny;
    char       *y = (char *)p->c->out[0].data + (size_t)(first * inner) * size;
    const char *x = (const char *)p->c->in[0].data + (size_t)(o * rows * inner) * size;
    const int64_t *index = wide ? (const int64_t *)p->index->data + first * inner : NULL;
    for (int64_t row = first, n; inner == 1 && row < last; row += n, j = 0, x += (size_t)rows * size) { /* one outer at a time */
        n = last - row < p->ny - j ? last - row : p->ny - j;
        for (int64_t i = 0; i < n; i++) {
            int64_t k = wide ? index[i] : DT__K(index_at)(p->index, row + i);
            if ((uint64_t)k >= (uint64_t)rows) {
                DT__K(note_bad)(&p->bad, row + i);
                return;
            }
            memcpy(y + (size_t)i * size, x + (size_t)k * size, size);
        }
        y += (size_t)n * size;
        if (wide) index += n;
    }
    for (int64_t row = first; inner != 1 && row < last; row++) {
        for (int64_t i = 0; i < inner; i++, y += size) {
            int64_t k = wide ? *index++ : DT__K(index_at)(p->index, row * inner + i);
            if ((uint64_t)k >= (uint64_t)rows) {
                DT__K(note_bad)(&p->bad, row * inner + i);
                return;
            }
            memcpy(y, x + (size_t)(k * inner + i) * size, size);
        }
        if (++j < p->ny) continue;
        j = 0;
        x += (size_t)(rows * inner) * size;
    }
}
DT__INLINE void DT__K(gather_any)(DT__K(ix_ctx) *p, int64_t first, int64_t last, size_t size)
{
    if (p->index->dtype == DT_I64) DT__K(gather_rows)(p, first, last, size, true);
    else DT__K(gather_rows)(p, first, last, size, false);
}
static void DT__K(gather_task)(void *ctx, int64_t task, int worker)
{
    DT__K(ix_ctx) *p = (DT__K(ix_ctx) *)ctx;
    int64_t first = task * p->per, last = first + p->per < p->items ? first + p->per : p->items;
    (void)worker;
    switch (DT__K(elem_size)(p->c->out[0].dtype)) {
    case 1: DT__K(gather_any)(p, first, last, 1); break;
    case 2: DT__K(gather_any)(p, first, last, 2); break;
    case 4: DT__K(gather_any)(p, first, last, 4); break;
    case 8: DT__K(gather_any)(p, first, last, 8); break;
    }
}
static void DT__K(gather_begin)(DT__K(ix_ctx) *p, const dt_call *c, const dt_view *y, const dt_view *x)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->index = &c->in[1];
    p->outer = y->shape[0];
    p->ny = y->shape[1];
    p->inner = y->shape[2];
    p->rows = x->shape[1];
    p->bad = INT64_MAX;
}
static int DT__K(gather)(dt_device *dev, const dt_call *c)
{
    DT__K(ix_ctx) p;
    (void)dev;
    DT__K(gather_begin)(&p, c, &c->out[0], &c->in[0]);
    p.items = p.outer * p.ny;
    if (p.items * p.inner == 0) return 0;
    int64_t ntasks = dt__cut(p.items, p.inner, 16384, &p.per);
    DT__K(run_rows)(ntasks, DT__K(gather_task), &p, p.items * p.inner);
    return p.bad == INT64_MAX ? 0 : DT__K(index_fail)("gather", p.index, p.bad, p.rows);
}

/* An item is one outer and a tile of columns: of dx it owns (rows, n columns). f32 dx is summed in place; halves in a
   tile of f32. */
static void DT__K(gather_bwd_item)(DT__K(ix_ctx) *p, float *buf, int64_t o, int64_t col, int64_t n)
{
    const dt_call *c = p->c;
    const dt_view *dx = &c->out[0];
    int            add = DT__K(acc_bit)(c, 0), direct = dx->dtype == DT_F32;
    float         *dybuf = buf, *sum = direct ? (float *)dx->data + o * p->rows * p->inner + col : buf + p->cols;
    int64_t        pitch = direct ? p->inner : n;
    if (pitch == n && !(direct && add)) memset(sum, 0, (size_t)(p->rows * n) * 4);
    for (int64_t r = 0; r < p->rows && pitch != n && !(direct && add); r++) memset(sum + r * pitch, 0, (size_t)n * 4);
    if (p->inner == 1 && direct && c->in[0].dtype == DT_F32) { /* one index a row */
        const float *dy = (const float *)c->in[0].data + o * p->ny;
        for (int64_t j = 0; j < p->ny; j++) {
            int64_t k = DT__K(index_at)(p->index, o * p->ny + j);
            if (k >= 0 && k < p->rows) sum[k] += dy[j];
            else DT__K(note_bad)(&p->bad, o * p->ny + j);
        }
        return;
    }
    for (int64_t j = 0; j < p->ny; j++) {
        int64_t      at = (o * p->ny + j) * p->inner + col;
        const float *dy = DT__K(row_in)(dybuf, &c->in[0], at, n);
        for (int64_t i = 0; i < n; i++) {
            int64_t k = DT__K(index_at)(p->index, at + i);
            if (k >= 0 && k < p->rows) sum[k * pitch + i] += dy[i];
            else DT__K(note_bad)(&p->bad, at + i);
        }
    }
    for (int64_t r = 0; r < p->rows && !direct; r++)
        DT__K(row_end)(dx, (o * p->rows + r) * p->inner + col, sum + r * n, n, add);
}
static void DT__K(gather_bwd_task)(void *ctx, int64_t task, int worker)
{
    DT__K(ix_ctx) *p = (DT__K(ix_ctx) *)ctx;
    int64_t last = (task + 1) * p->per < p->items ? (task + 1) * p->per : p->items;
    for (int64_t i = task * p->per; i < last; i++) {
        int64_t col = i % p->tiles * p->cols, n = p->inner - col < p->cols ? p->inner - col : p->cols;
        DT__K(gather_bwd_item)(p, p->work + worker * p->nwork, i / p->tiles, col, n);
    }
}
static int DT__K(gather_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(ix_ctx) p;
    (void)dev;
    DT__K(gather_begin)(&p, c, &c->in[0], &c->out[0]);
    if (p.outer * p.inner * (p.rows + p.ny) == 0) return 0;
    p.cols = 65536 / (p.rows > 0 ? p.rows : 1) & ~(int64_t)15;
    p.cols = p.cols < 16 ? 16 : p.cols > 256 ? 256 : p.cols;
    if (p.cols > p.inner) p.cols = p.inner;
    p.tiles = (p.inner + p.cols - 1) / p.cols;
    p.items = p.outer * p.tiles;
    p.nwork = DT__K(round16)(p.cols * (1 + (c->out[0].dtype == DT_F32 ? 0 : p.rows)));
    p.work = (float *)dt_scratch((size_t)p.nwork * 4 * (size_t)dt__pool_size());
    if (!p.work) return DT_ERR_MEMORY;
    int64_t ntasks = dt__cut(p.items, (p.rows + 2 * p.ny) * p.cols, 32768, &p.per);
    DT__K(run_rows)(ntasks, DT__K(gather_bwd_task), &p, p.outer * (p.rows + 2 * p.ny) * p.inner);
    return p.bad == INT64_MAX ? 0 : DT__K(index_fail)("gather_bwd", p.index, p.bad, p.rows);
}

/* ==================================================================================================== >>ordering
   scan, sort and scatter over the middle dimension of (outer, n, inner).
     scan     sums and products of floats in double, of integers modulo 2^64, one after the other
     sort     the values become unsigned keys whose order is the order wanted (integers: of 64 bits, floats: of 32, so that
              -0 and 0 are equal and NaN is the largest); places are sorted by key, 8 bits a pass from the lowest on, which
              keeps equals in their order; passes in which all keys have the same digit are left out. For the k first of
              many, the highest 11 bits that differ say which places can be among them; only those are sorted.
     scatter  a task owns columns of y, and takes the positions in order */
typedef struct DT__K(order_ctx) {
    const dt_call *c;
    int64_t        outer, n, inner, k, ny;
    int64_t        cols, tiles, items, per;
    int64_t        nwork; /* bytes of a worker */
    char          *work;
    int64_t        bad; /* the first bad position */
} DT__K(order_ctx);

static void DT__K(order_begin)(DT__K(order_ctx) *p, const dt_call *c, const dt_view *v, int64_t cols)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->outer = v->shape[0];
    p->n = v->shape[1];
    p->inner = v->shape[2];
    p->cols = p->inner < cols ? p->inner : cols;
    p->tiles = p->cols ? (p->inner + p->cols - 1) / p->cols : 0;
    p->items = p->outer * p->tiles;
    p->bad = INT64_MAX;
}
DT__INLINE void DT__K(set_int)(const dt_view *v, int64_t i, int64_t x)
{
    if (v->dtype == DT_I64) ((int64_t *)v->data)[i] = x;
    else if (v->dtype == DT_I32) ((int32_t *)v->data)[i] = (int32_t)x;
    else ((uint8_t *)v->data)[i] = (uint8_t)x;
}

/* ---- scan */
enum { DT__K(SCAN_COLS) = 256 };
/* m columns that begin at 'at' of each row; with one column (inner is 1) up to 256 rows at a time are one run */
static void DT__K(scan_floats)(const DT__K(order_ctx) *p, int64_t first, int64_t m)
{
    const dt_call *c = p->c;
    float          xs[DT__K(SCAN_COLS)], ys[DT__K(SCAN_COLS)];
    double         acc[DT__K(SCAN_COLS)], one = c->u.scan.fn == DT_R_PROD ? 1.0 : 0.0;
    bool           prod = c->u.scan.fn == DT_R_PROD, back = c->u.scan.reverse != 0, ex = c->u.scan.exclusive != 0;
    if (p->inner == 1) {
        double a = one;
        for (int64_t j = 0; j < p->n; j += DT__K(SCAN_COLS)) {
            int64_t      w = p->n - j < DT__K(SCAN_COLS) ? p->n - j : (int64_t)DT__K(SCAN_COLS);
            int64_t      at = first + (back ? p->n - j - w : j);
            const float *x = DT__K(row_in)(xs, &c->in[0], at, w);
            float       *y = DT__K(row_out)(ys, &c->out[0], at, 0);
            for (int64_t i = 0; i < w; i++) {
                int64_t k = back ? w - 1 - i : i;
                double  v = (double)x[k], next = prod ? a * v : a + v;
                y[k] = (float)(ex ? a : next);
                a = next;
            }
            DT__K(row_end)(&c->out[0], at, y, w, 0);
        }
        return;
    }
    for (int64_t i = 0; i < m; i++) acc[i] = one;
    for (int64_t j = 0; j < p->n; j++) {
        int64_t      at = first + (back ? p->n - 1 - j : j) * p->inner;
        const float *x = DT__K(row_in)(xs, &c->in[0], at, m);
        float       *y = DT__K(row_out)(ys, &c->out[0], at, 0);
        for (int64_t i = 0; i < m; i++) {
            double v = (double)x[i], next = prod ? acc[i] * v : acc[i] + v;
            y[i] = (float)(ex ? acc[i] : next);
            acc[i] = next;
        }
        DT__K(row_end)(&c->out[0], at, y, m, 0);
    }
}
static void DT__K(scan_ints)(const DT__K(order_ctx) *p, int64_t first, int64_t m)
{
    const dt_call *c = p->c;
    bool           prod = c->u.scan.fn == DT_R_PROD, back = c->u.scan.reverse != 0, ex = c->u.scan.exclusive != 0;
    for (int64_t i = 0; i < m; i++) {
        uint64_t acc = prod ? 1 : 0;
        for (int64_t j = 0; j < p->n; j++) {
            int64_t  at = first + (back ? p->n - 1 - j : j) * p->inner + i;
            uint64_t v = (uint64_t)DT__K(index_at)(&c->in[0], at), next = prod ? acc * v : acc + v;
            DT__K(set_int)(&c->out[0], at, (int64_t)(ex ? acc : next));
            acc = next;
        }
    }
}
static void DT__K(scan_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(order_ctx) *p = (const DT__K(order_ctx) *)ctx;
    int64_t last = (task + 1) * p->per < p->items ? (task + 1) * p->per : p->items;
    (void)worker;
    for (int64_t it = task * p->per; it < last; it++) {
        int64_t col = it % p->tiles * p->cols, m = p->inner - col < p->cols ? p->inner - col : p->cols;
        int64_t first = it / p->tiles * p->n * p->inner + col;
        if (DT__K(is_int)(p->c->in[0].dtype)) DT__K(scan_ints)(p, first, m);
        else DT__K(scan_floats)(p, first, m);
    }
}
static int DT__K(scan)(dt_device *dev, const dt_call *c)
{
    DT__K(order_ctx) p;
    (void)dev;
    if (c->u.scan.fn != DT_R_SUM && c->u.scan.fn != DT_R_PROD) return dt_fail(DT_ERR_ARG, "scan: there is no function %d", c->u.scan.fn);
    DT__K(order_begin)(&p, c, &c->in[0], DT__K(SCAN_COLS));
    int64_t ntasks = dt__cut(p.items, p.n * p.cols, 16384, &p.per);
    DT__K(run_rows)(ntasks, DT__K(scan_task), &p, p.items * p.n * p.cols);
    return 0;
}

/* ---- sort */
typedef struct DT__K(pair) {
    uint64_t key;
    int64_t  at;
} DT__K(pair_t);
DT__INLINE uint64_t DT__K(float_key)(float f)
{
    uint32_t u = dt__f32_bits(f);
    if (f != f) return 0xffffffffu;
    if (f == 0) u = 0;
    return u >> 31 ? (uint32_t)~u : u | 0x80000000u;
}
static void DT__K(sort_keys)(const DT__K(order_ctx) *p, DT__K(pair_t) *d, int64_t first, uint64_t *differ)
{
    const dt_view *x = &p->c->in[0];
    uint64_t       flip = p->c->u.sort.descending ? ~(uint64_t)0 : 0;
    bool           ints = DT__K(is_int)(x->dtype);
    *differ = 0;
    for (int64_t j = 0; j < p->n; j++) {
        int64_t at = first + j * p->inner;
        if (ints) d[j].key = ((uint64_t)DT__K(index_at)(x, at) ^ (uint64_t)1 << 63) ^ flip;
        else if (x->dtype == DT_F32) d[j].key = (DT__K(float_key)(((const float *)x->data)[at]) ^ flip) & 0xffffffffu;
        else d[j].key = (DT__K(float_key)(DT__K(elem)(x, at)) ^ flip) & 0xffffffffu;
        d[j].at = j;
        *differ |= d[j].key ^ d[0].key;
    }
}
/* The places that can be among the first k, in their order; returns how many. */
static int64_t DT__K(sort_select)(DT__K(pair_t) *d, int64_t n, int64_t k, uint64_t differ)
{
    int64_t count[2048] = { 0 }, seen = 0, m = 0;
    int     high = 63 - __builtin_clzll(differ), shift = high > 10 ? high - 10 : 0, b = 0;
    for (int64_t j = 0; j < n; j++) count[d[j].key >> shift & 2047]++; /* higher bits are equal */
    while (b < 2047 && (seen += count[b]) < k) b++;
    for (int64_t j = 0; j < n; j++)
        if ((int64_t)(d[j].key >> shift & 2047) <= b) d[m++] = d[j];
    return m;
}
static DT__K(pair_t) *DT__K(sort_pairs)(DT__K(pair_t) *d, DT__K(pair_t) *other, int64_t n, uint64_t differ)
{
    if (n <= 32) {
        for (int64_t j = 1; j < n; j++) {
            DT__K(pair_t) v = d[j];
            int64_t i = j;
            for (; i > 0 && d[i - 1].key > v.key; i--) d[i] = d[i - 1];
            d[i] = v;
        }
        return d;
    }
    for (int shift = 0; shift < 64; shift += 8) {
        int64_t count[257] = { 0 };
        if (!(differ >> shift & 255)) continue;
        for (int64_t j = 0; j < n; j++) count[(d[j].key >> shift & 255) + 1]++;
        for (int i = 0; i < 256; i++) count[i + 1] += count[i];
        for (int64_t j = 0; j < n; j++) other[count[d[j].key >> shift & 255]++] = d[j];
        DT__K(pair_t) *t = d;
        d = other;
        other = t;
    }
    return d;
}
static void DT__K(sort_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(order_ctx) *p = (const DT__K(order_ctx) *)ctx;
    int64_t last = (task + 1) * p->per < p->items ? (task + 1) * p->per : p->items;
    DT__K(pair_t) *d = (DT__K(pair_t) *)(void *)(p->work + worker * p->nwork), *other = d + p->n;
    for (int64_t it = task * p->per; it < last; it++) {
        int64_t  o = it / p->inner, i = it % p->inner, m = p->n;
        uint64_t differ;
        DT__K(sort_keys)(p, d, o * p->n * p->inner + i, &differ);
        if (p->k < p->n / 2 && differ) m = DT__K(sort_select)(d, p->n, p->k, differ);
        DT__K(pair_t) *s = differ ? DT__K(sort_pairs)(d, other, m, differ) : d;
        int64_t *y = (int64_t *)p->c->out[0].data + o * p->k * p->inner + i;
        for (int64_t j = 0; j < p->k; j++) y[j * p->inner] = s[j].at;
    }
}
static int DT__K(sort)(dt_device *dev, const dt_call *c)
{
    DT__K(order_ctx) p;
    (void)dev;
    DT__K(order_begin)(&p, c, &c->in[0], 1);
    p.k = c->out[0].shape[1];
    if (p.items * p.k == 0) return 0;
    p.nwork = 2 * p.n * (int64_t)sizeof(DT__K(pair_t));
    p.work = (char *)dt_scratch((size_t)p.nwork * (size_t)dt__pool_size());
    if (!p.work) return DT_ERR_MEMORY;
    int64_t ntasks = dt__cut(p.items, 8 * p.n, 32768, &p.per);
    DT__K(run_rows)(ntasks, DT__K(sort_task), &p, 8 * p.items * p.n);
    return 0;
}

/* ---- scatter */
static void DT__K(scatter_task)(void *ctx, int64_t task, int worker)
{
    DT__K(order_ctx) *p = (DT__K(order_ctx) *)ctx;
    const dt_call *c = p->c;
    const dt_view *y = &c->out[0], *index = &c->in[0], *src = &c->in[1];
    int64_t        last = (task + 1) * p->per < p->items ? (task + 1) * p->per : p->items;
    size_t         size = DT__K(elem_size)(y->dtype);
    (void)worker;
    for (int64_t it = task * p->per; it < last; it++) {
        int64_t o = it / p->tiles, col = it % p->tiles * p->cols, m = p->inner - col < p->cols ? p->inner - col : p->cols;
        for (int64_t j = 0; j < p->n; j++)
            for (int64_t i = col; i < col + m; i++) {
                int64_t at = (o * p->n + j) * p->inner + i, k = DT__K(index_at)(index, at);
                if (k < 0 || k >= p->ny) {
                    DT__K(note_bad)(&p->bad, at);
                    continue;
                }
                int64_t to = (o * p->ny + k) * p->inner + i;
                if (!c->u.scatter.add) memcpy((char *)y->data + (size_t)to * size, (const char *)src->data + (size_t)at * size, size);
                else DT__K(set_int)(y, to, (int64_t)((uint64_t)DT__K(index_at)(y, to) + (uint64_t)DT__K(index_at)(src, at)));
            }
    }
}
static int DT__K(scatter)(dt_device *dev, const dt_call *c)
{
    DT__K(order_ctx) p;
    (void)dev;
    if (c->u.scatter.add && !DT__K(is_int)(c->out[0].dtype)) return dt_fail(DT_ERR_DTYPE, "scatter: floats are added by gather_bwd");
    DT__K(order_begin)(&p, c, &c->in[0], 256);
    p.ny = c->out[0].shape[1];
    int64_t ntasks = dt__cut(p.items, p.n * p.cols, 16384, &p.per);
    DT__K(run_rows)(ntasks, DT__K(scatter_task), &p, p.items * p.n * p.cols);
    return p.bad == INT64_MAX ? 0 : DT__K(index_fail)("scatter", &c->in[0], p.bad, p.ny);
}

/* ==================================================================================================== >>resize
   Images (n, h, w) to (n, oh, ow). Output pixel o reads input pixel floor(o*scale), or with linear a mean of two
   neighbours, per dimension; positions are computed in f32, as PyTorch does. A task is some images. */
typedef struct DT__K(tap) { /* out = x[at] + part*(x[next] - x[at]) */
    int64_t at, next;
    float   part;
} DT__K(tap_t);
typedef struct DT__K(resize_ctx) {
    const dt_call *c;
    const dt_view *small, *large; /* the image x or dx, and y or dy */
    int64_t        n, h, w, oh, ow, per, nwork;
    DT__K(tap_t)  *rows, *cols;
    float         *work;
} DT__K(resize_ctx);

static void DT__K(resize_taps)(DT__K(tap_t) *t, int64_t n, int64_t out, float scale, const dt_call *c)
{
    for (int64_t o = 0; o < out; o++) {
        float f = (float)o * scale;
        if (c->u.resize.linear && !c->u.resize.align) {
            f = ((float)o + 0.5f) * scale - 0.5f;
            if (f < 0) f = 0;
        }
        int64_t at = f >= (float)n ? n - 1 : (int64_t)f;
        if (at > n - 1) at = n - 1;
        t[o].at = at;
        t[o].next = at + (at < n - 1 && c->u.resize.linear ? 1 : 0);
        f -= (float)at;
        t[o].part = !c->u.resize.linear ? 0 : f > 1 ? 1 : f;
    }
}
static void DT__K(resize_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(resize_ctx) *p = (const DT__K(resize_ctx) *)ctx;
    int64_t last = (task + 1) * p->per < p->n * p->oh ? (task + 1) * p->per : p->n * p->oh;
    float  *a = p->work + worker * p->nwork, *b = a + p->w, *out = b + p->w;
    for (int64_t r = task * p->per; r < last; r++) { /* rows of y */
        const DT__K(tap_t) *t = &p->rows[r % p->oh];
        const float *x0 = DT__K(row_in)(a, p->small, (r / p->oh * p->h + t->at) * p->w, p->w);
        const float *x1 = DT__K(row_in)(b, p->small, (r / p->oh * p->h + t->next) * p->w, p->w);
        float       *y = DT__K(row_out)(out, p->large, r * p->ow, 0), v = t->part, u = 1 - v;
        for (int64_t i = 0; i < p->ow; i++) {
            const DT__K(tap_t) *s = &p->cols[i];
            float q = s->part, o = 1 - q;
            y[i] = p->c->u.resize.linear
                       ? u * (o * x0[s->at] + q * x0[s->next]) + v * (o * x1[s->at] + q * x1[s->next]) : x0[s->at];
        }
        DT__K(row_end)(p->large, r * p->ow, y, p->ow, 0);
    }
}
static void DT__K(resize_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(resize_ctx) *p = (const DT__K(resize_ctx) *)ctx;
    int64_t last = (task + 1) * p->per < p->n ? (task + 1) * p->per : p->n;
    float  *in = p->work + worker * p->nwork, *sum = in + p->ow;
    for (int64_t k = task * p->per; k < last; k++) {
        memset(sum, 0, (size_t)(p->h * p->w) * 4);
        for (int64_t r = 0; r < p->oh; r++) {
            const DT__K(tap_t) *t = &p->rows[r];
            const float *g = DT__K(row_in)(in, p->large, (k * p->oh + r) * p->ow, p->ow);
            float       *x0 = sum + t->at * p->w, *x1 = sum + t->next * p->w, v = t->part, u = 1 - v;
            for (int64_t i = 0; i < p->ow; i++) {
                const DT__K(tap_t) *s = &p->cols[i];
                float q = s->part, o = 1 - q;
                if (!p->c->u.resize.linear) {
                    x0[s->at] += g[i];
                } else {
                    x0[s->at] += u * o * g[i];
                    x0[s->next] += u * q * g[i];
                    x1[s->at] += v * o * g[i];
                    x1[s->next] += v * q * g[i];
                }
            }
        }
        DT__K(put_row)((char *)p->small->data + (size_t)(k * p->h * p->w) * DT__K(elem_size)(p->small->dtype), p->small->dtype, sum,
                       p->h * p->w, DT__K(acc_bit)(p->c, 0));
    }
}
static int DT__K(resize_run)(const dt_call *c, const dt_view *small, const dt_view *large, bool back)
{
    DT__K(resize_ctx) p;
    memset(&p, 0, sizeof p);
    p.c = c;
    p.small = small, p.large = large;
    p.n = small->shape[0], p.h = small->shape[1], p.w = small->shape[2];
    p.oh = large->shape[1], p.ow = large->shape[2];
    p.nwork = DT__K(round16)(back ? p.ow + p.h * p.w : 2 * p.w + p.ow);
    size_t taps = (size_t)(p.oh + p.ow) * sizeof(DT__K(tap_t)), workers = (size_t)dt__pool_size();
    taps = (taps + 63) & ~(size_t)63;
    char *mem = (char *)dt_scratch(taps + workers * (size_t)p.nwork * 4);
    if (!mem) return DT_ERR_MEMORY;
    p.rows = (DT__K(tap_t) *)(void *)mem;
    p.cols = p.rows + p.oh;
    p.work = (float *)(void *)(mem + taps);
    DT__K(resize_taps)(p.rows, p.h, p.oh, (float)c->u.resize.scale[0], c);
    DT__K(resize_taps)(p.cols, p.w, p.ow, (float)c->u.resize.scale[1], c);
    int64_t items = back ? p.n : p.n * p.oh, cost = back ? 4 * p.oh * p.ow + p.h * p.w : 4 * p.ow;
    int64_t ntasks = dt__cut(items, cost, 32768, &p.per);
    DT__K(run_rows)(ntasks, back ? DT__K(resize_bwd_task) : DT__K(resize_task), &p, items * cost);
    return 0;
}
static int DT__K(resize)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(resize_run)(c, &c->in[0], &c->out[0], false);
}
static int DT__K(resize_bwd)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(resize_run)(c, &c->out[0], &c->in[0], true);
}

/* ==================================================================================================== >>dropout
   Element i takes word i%4 of the Philox block offset + i/4, so there is no state and any order gives the same result. */
#define DT__DROP 1024 /* elements drawn at a time; a multiple of 32 */

typedef struct DT__K(drop_ctx) {
    const dt_call *c;
    int64_t        n;
    uint32_t       threshold;
    float          scale;
} DT__K(drop_ctx);

#if DT__HAS_AVX2
DT__INLINE void DT__K(mul_wide)(__m256i *hi, __m256i *lo, __m256i x, __m256i m) /* 32 x 32 -> 64 bits in 8 lanes */
{
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
/* 8 blocks from counter on, 32 words in the order of elements */
DT__INLINE void DT__K(philox8)(uint32_t *out, uint64_t seed, uint64_t counter)
{
    __m256i m0 = _mm256_set1_epi32((int)DT__PHILOX_M0), m1 = _mm256_set1_epi32((int)DT__PHILOX_M1);
    dt__vi  lane = { 0, 1, 2, 3, 4, 5, 6, 7 };
    dt__vu  low = (dt__vu)DT__K(set1i)((int32_t)(uint32_t)counter), sum = low + (dt__vu)lane;
    dt__vi  carry = (dt__vi)(sum < low); /* -1 where the low half wrapped */
    __m256i c0 = (__m256i)sum, c2 = _mm256_setzero_si256(), c3 = c2;
    __m256i c1 = (__m256i)(DT__K(set1i)((int32_t)(uint32_t)(counter >> 32)) - carry);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += DT__PHILOX_W0, k1 += DT__PHILOX_W1) {
        __m256i h0, l0, h1, l1;
        DT__K(mul_wide)(&h0, &l0, c0, m0);
        DT__K(mul_wide)(&h1, &l1, c2, m1);
        c0 = _mm256_xor_si256(_mm256_xor_si256(h1, c1), _mm256_set1_epi32((int)k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(h0, c3), _mm256_set1_epi32((int)k1));
        c1 = l1;
        c3 = l0;
    }
    __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpacklo_epi32(c2, c3);
    __m256i d = _mm256_unpackhi_epi32(c0, c1), e = _mm256_unpackhi_epi32(c2, c3);
    __m256i b04 = _mm256_unpacklo_epi64(a, b), b15 = _mm256_unpackhi_epi64(a, b);
    __m256i b26 = _mm256_unpacklo_epi64(d, e), b37 = _mm256_unpackhi_epi64(d, e);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute2x128_si256(b04, b15, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(out + 8), _mm256_permute2x128_si256(b26, b37, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm256_permute2x128_si256(b04, b15, 0x31));
    _mm256_storeu_si256((__m256i *)(void *)(out + 24), _mm256_permute2x128_si256(b26, b37, 0x31));
}
#endif
/* The words of n elements (out has room for 31 more) from the block 'counter' on. */
static void DT__K(philox_fill)(uint32_t *out, uint64_t seed, uint64_t counter, int64_t n)
{
#if DT__HAS_AVX2
    for (int64_t i = 0; i < n; i += 32) DT__K(philox8)(out + i, seed, counter + (uint64_t)(i / 4));
#else
    for (int64_t i = 0; i < n; i += 4) dt__philox_block(seed, counter + (uint64_t)(i / 4), out + i);
#endif
}
static void DT__K(dropout_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(drop_ctx) *p = (const DT__K(drop_ctx) *)ctx;
    const dt_call *c = p->c;
    uint32_t       word[DT__DROP + 32];
    float          xbuf[DT__DROP], ybuf[DT__DROP];
    int            add = DT__K(acc_bit)(c, 0);
    int64_t        first = task * 16 * DT__DROP, last = first + 16 * DT__DROP < p->n ? first + 16 * DT__DROP : p->n;
    dt__vu         limit = (dt__vu)DT__K(set1i)((int32_t)p->threshold);
    dt__vf         scale = DT__K(set1)(p->scale);
    (void)worker;
    for (int64_t at = first; at < last; at += DT__DROP) {
        int64_t      n = last - at < DT__DROP ? last - at : DT__DROP;
        const float *x = DT__K(row_in)(xbuf, &c->in[0], at, n);
        float       *y = DT__K(row_out)(ybuf, &c->out[0], at, add);
        DT__K(philox_fill)(word, c->u.dropout.seed, c->u.dropout.offset + (uint64_t)(at / 4), n);
        for (int64_t i = 0; i < n; i += DT__W) {
            dt__vu w;
            memcpy(&w, word + i, sizeof w); /* words behind the end are not used */
            dt__vf k = (dt__vf)((dt__vi)scale & (dt__vi)(w >= limit));
            DT__K(row_st)(y + i, DT__K(row_ld)(x + i, n - i) * k, n - i);
        }
        DT__K(row_end)(&c->out[0], at, y, n, add);
    }
}
static int DT__K(dropout)(dt_device *dev, const dt_call *c)
{
    DT__K(drop_ctx) p;
    double rate = c->u.dropout.p, limit = rate * 4294967296.0;
    (void)dev;
    p.c = c;
    p.n = 1;
    for (int i = 0; i < c->out[0].ndim; i++) p.n *= c->out[0].shape[i];
    if (p.n == 0) return 0;
    p.threshold = limit <= 0 ? 0 : limit >= 4294967295.0 ? 0xffffffffu : (uint32_t)limit;
    p.scale = rate >= 1 ? 0.0f : (float)(1.0 / (1.0 - rate));
    DT__K(run_rows)((p.n + 16 * DT__DROP - 1) / (16 * DT__DROP), DT__K(dropout_task), &p, p.n * 2);
    return 0;
}
#undef DT__DROP

/* ==================================================================================================== >>crossentropy
   loss = (1 - s) w_t (-logp_t) + s/c sum_k w_k (-logp_k) of each row with target t, s the smoothing,
   logp = (x - max) - log(sum exp(x - max)): with one number for both, large logits would lose the digits of logp.
   A row with the ignored target gives 0. DT__W rows are computed at a time, with one vector log of their sums, and
   transposed (see softmax) if they are narrow. A task sums its rows in double; the sums are added in the order of the
   tasks; the mean divides by the sum of w_t. */
typedef struct DT__K(ce_ctx) {
    const dt_call *c;
    const dt_view *target;
    int64_t        n, classes, per;
    int64_t        nwork;
    float         *work;
    float         *weight; /* f32, or NULL */
    double         weights; /* their sum, or the number of classes */
    double        *part;   /* of each task: loss, divisor */
    int64_t        bad;
} DT__K(ce_ctx);

/* sum over the row of w (x - top - l), w = 1 if NULL */
DT__CALLED float DT__K(ce_smooth)(const float *x, const float *w, dt__vf top, dt__vf l, int64_t n)
{
    dt__vf s = DT__K(zero)();
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf v = (DT__K(row_ld)(x + i, n - i) - top) - l;
        if (n - i < DT__W) v = DT__K(sel)(DT__K(lanes)(n - i), v, DT__K(zero)());
        s = w ? DT__K(fma)(v, DT__K(row_ld)(w + i, n - i), s) : s + v;
    }
    return DT__K(row_hsum)(s);
}
/* top and log(sum exp(x - top)) of up to DT__W rows */
static void DT__K(ce_lse)(float *top, float *l, float *buf, const float *x, int64_t n, int64_t rows)
{
    dt__vf m;
    if (n <= DT__SM_NARROW) {
        DT__K(turn_in)(buf, x, n, rows);
        DT__K(st)(l, DT__K(vlog)(DT__K(col_sumexp)(&m, buf, n, DT__W, DT__W, 0, 1)));
        DT__K(st)(top, m);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        m = DT__K(row_max)(x + r * n, n);
        top[r] = m[0];
        l[r] = DT__K(row_sumexp)(NULL, x + r * n, m, n);
    }
    DT__K(st)(l, DT__K(vlog)(DT__K(ld)(l)));
}
/* The loss of the row x with target t in range. */
DT__INLINE double DT__K(ce_row)(const DT__K(ce_ctx) *p, const float *x, int64_t t, float top, float l)
{
    int64_t n = p->classes;
    double  wt = p->weight ? (double)p->weight[t] : 1.0, s = p->c->u.loss.smoothing, even = 0.0;
    float   logp = (x[t] - top) - l;
    if (s > 0) even = (double)DT__K(ce_smooth)(x, p->weight, DT__K(set1)(top), DT__K(set1)(l), n);
    return __builtin_fma(-s / (double)n, even, -((1 - s) * wt * (double)logp));
}
static void DT__K(ce_task)(void *ctx, int64_t task, int worker)
{
    DT__K(ce_ctx) *p = (DT__K(ce_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork, top[DT__W] = { 0 }, l[DT__W] = { 0 };
    int64_t        n = p->classes, last = (task + 1) * p->per < p->n ? (task + 1) * p->per : p->n;
    int            nll = c->u.loss.nll;
    double         loss = 0, total = 0;
    const float   *x = NULL;
    for (int64_t i = task * p->per; i < last; i++) {
        int64_t r = (i - task * p->per) % DT__W, t = DT__K(index_at)(p->target, i);
        float   row = 0.0f;
        if (r == 0 && !nll) {
            int64_t rows = last - i < DT__W ? last - i : DT__W;
            x = DT__K(row_in)(buf, &c->in[0], i * n, rows * n);
            DT__K(ce_lse)(top, l, buf + DT__W * n, x, n, rows);
        }
        if (!nll && DT__K(has_out)(c, 1)) {
            DT__K(set_elem)(&c->out[1], i, top[r], 0);
            DT__K(set_elem)(&c->out[1], p->n + i, l[r], 0);
        }
        if (t != c->u.loss.ignore && (t < 0 || t >= n)) {
            DT__K(note_bad)(&p->bad, i);
            return;
        }
        if (t != c->u.loss.ignore) {
            double wt = p->weight ? (double)p->weight[t] : 1.0;
            if (nll) row = (float)(-wt * (double)DT__K(elem)(&c->in[0], i * n + t));
            else row = (float)DT__K(ce_row)(p, x + r * n, t, top[r], l[r]);
            total += wt;
        }
        loss += (double)row;
        if (c->u.loss.reduction == DT_NONE) DT__K(set_elem)(&c->out[0], i, row, 0);
    }
    p->part[2 * task] = loss;
    p->part[2 * task + 1] = total;
}
/* Sizes, scratch, weights. The number of tasks, or -1 without memory. */
static int64_t DT__K(ce_begin)(DT__K(ce_ctx) *p, const dt_call *c, const dt_view *x, const dt_view *target,
                               const dt_view *weight)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    p->target = target;
    p->n = x->shape[0];
    p->classes = x->shape[1];
    p->bad = INT64_MAX;
    p->weights = (double)p->classes;
    int64_t ntasks = dt__cut(p->n, p->classes + 32, 16384, &p->per);
    p->nwork = DT__K(round16)(2 * DT__W * p->classes);
    int64_t nfloat = p->nwork * dt__pool_size() + DT__K(round16)(p->classes);
    char   *mem = (char *)dt_scratch((size_t)nfloat * 4 + (size_t)(ntasks + 1) * 16);
    if (!mem) return -1;
    p->work = (float *)(void *)mem;
    p->part = (double *)(void *)(mem + nfloat * 4);
    if (weight) {
        p->weight = p->work + p->nwork * dt__pool_size();
        DT__K(load_row)(p->weight, weight->data, weight->dtype, p->classes);
        p->weights = 0;
        for (int64_t i = 0; i < p->classes; i++) p->weights += (double)p->weight[i];
    }
    return ntasks;
}
static int DT__K(ce_fail)(const DT__K(ce_ctx) *p, const char *op)
{
    return dt_fail(DT_ERR_ARG, "%s: target %lld at position %lld is out of range for %lld classes; "
                   "targets must be in 0..%lld, or equal to ignore_index (%lld)", op,
                   (long long)DT__K(index_at)(p->target, p->bad), (long long)p->bad, (long long)p->classes,
                   (long long)(p->classes - 1), (long long)p->c->u.loss.ignore);
}
static int DT__K(cross_entropy)(dt_device *dev, const dt_call *c)
{
    DT__K(ce_ctx) p;
    double loss = 0, total = 0;
    (void)dev;
    int64_t ntasks = DT__K(ce_begin)(&p, c, &c->in[0], &c->in[1], DT__K(has_in)(c, 2) ? &c->in[2] : NULL);
    if (ntasks < 0) return DT_ERR_MEMORY;
    DT__K(run_rows)(ntasks, DT__K(ce_task), &p, 2 * p.n * (p.classes + 16));
    if (p.bad != INT64_MAX) return DT__K(ce_fail)(&p, c->u.loss.nll ? "nll_loss" : "cross_entropy");
    for (int64_t t = 0; t < ntasks; t++) {
        loss += p.part[2 * t];
        total += p.part[2 * t + 1];
    }
    if (c->u.loss.reduction != DT_MEAN) total = 1;
    if (c->u.loss.reduction != DT_NONE) DT__K(set_elem)(&c->out[0], 0, (float)(loss / total), 0);
    if (DT__K(has_out)(c, 2)) DT__K(set_elem)(&c->out[2], 0, (float)total, 0);
    return 0;
}

/* dx_k = p_k (a + s W) - s w_k - [k = t] a, a = g (1 - smoothing) w_t, s = g smoothing/c, W = sum of weights */
static void DT__K(ce_row_bwd)(const DT__K(ce_ctx) *p, float *dx, const float *x, int64_t i, int64_t t, double g)
{
    const dt_call *c = p->c;
    int64_t        n = p->classes;
    double         wt = p->weight ? (double)p->weight[t] : 1.0, smooth = c->u.loss.nll ? 0 : c->u.loss.smoothing;
    double         a = g * (1 - smooth) * wt, s = g * smooth / (double)n;
    if (c->u.loss.nll) {
        memset(dx, 0, (size_t)n * 4);
        dx[t] = (float)-a;
        return;
    }
    dt__vf top = DT__K(set1)(DT__K(elem)(&c->in[3], i)), l = DT__K(set1)(DT__K(elem)(&c->in[3], p->n + i));
    dt__vf k = DT__K(set1)((float)__builtin_fma(s, p->weights, a)), less = DT__K(set1)((float)-s);
    for (int64_t j = 0; j < n; j += DT__W) {
        dt__vf v = DT__K(vexp)((DT__K(row_ld)(x + j, n - j) - top) - l);
        if (p->weight) v = DT__K(fma)(DT__K(row_ld)(p->weight + j, n - j), less, v * k);
        else v = DT__K(fma)(v, k, less);
        DT__K(row_st)(dx + j, v, n - j);
    }
    dx[t] -= (float)a;
}
static void DT__K(ce_bwd_task)(void *ctx, int64_t task, int worker)
{
    DT__K(ce_ctx) *p = (DT__K(ce_ctx) *)ctx;
    const dt_call *c = p->c;
    float         *buf = p->work + worker * p->nwork;
    int            add = DT__K(acc_bit)(c, 0), each = c->u.loss.reduction == DT_NONE;
    int64_t        n = p->classes, last = (task + 1) * p->per < p->n ? (task + 1) * p->per : p->n;
    double         g = 0;
    if (!each) g = (double)DT__K(elem)(&c->in[0], 0) / (double)DT__K(elem)(&c->in[4], 0);
    for (int64_t i = task * p->per; i < last; i++) {
        int64_t t = DT__K(index_at)(p->target, i);
        float  *dx = DT__K(row_out)(buf + n, &c->out[0], i * n, add);
        if (t == c->u.loss.ignore) {
            if (add) continue;
            memset(dx, 0, (size_t)n * 4);
        } else if (t < 0 || t >= n) {
            DT__K(note_bad)(&p->bad, i);
            return;
        } else {
            const float *x = c->u.loss.nll ? NULL : DT__K(row_in)(buf, &c->in[1], i * n, n);
            DT__K(ce_row_bwd)(p, dx, x, i, t, each ? (double)DT__K(elem)(&c->in[0], i) : g);
        }
        DT__K(row_end)(&c->out[0], i * n, dx, n, add);
    }
}
static int DT__K(cross_entropy_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(ce_ctx) p;
    (void)dev;
    if (c->out[0].shape[0] * c->out[0].shape[1] == 0) return 0;
    int64_t ntasks = DT__K(ce_begin)(&p, c, &c->out[0], &c->in[2], DT__K(has_in)(c, 5) ? &c->in[5] : NULL);
    if (ntasks < 0) return DT_ERR_MEMORY;
    DT__K(run_rows)(ntasks, DT__K(ce_bwd_task), &p, 2 * p.n * (p.classes + 16));
    return p.bad == INT64_MAX ? 0 : DT__K(ce_fail)(&p, c->u.loss.nll ? "nll_loss_bwd" : "cross_entropy_bwd");
}
#undef DT__SM_NARROW

/* ==================================================================================================== >>attention
   o = softmax(scale q k^T) v in blocks of DT__AQ queries by DT__AK keys; the t x s matrix never exists. Inside a block
   the scores are kept transposed, one row for each key and one lane for each query, so that
   - scores:  the rows of k times a transposed, scaled copy of the queries;
   - softmax: maxima and sums run down the rows, lane by lane, nothing is summed across a vector;
   - o += p v and dq += ds k: queries are the rows of the result;
   - dv += p do and dk += ds q: keys are the rows of the result.
   f16 and bf16 are converted to f32 as a block is loaded. Causal: a query sees the keys up to its own index; tiles
   beyond the diagonal are skipped, hidden scores inside a tile are set to 0.
   Forward: one item for each head and block of queries, running maximum and sum over the blocks of keys.
   Masks, lengths and windows: attn_hide sets scores of a block to -inf before the softmax; blocks that nobody sees are skipped.
   Backward: p = exp(s - lse) again, ds = p (dp - delta), delta = rowsum(do o). With enough heads a task does a whole
   head (5 products); with few, the items are blocks of keys (dk, dv) and then blocks of queries (dq) (7 products).
   Either way the blocks are added in ascending order, so the bits are the same. f32 gradients whose rows are whole
   panels are summed in the output itself. */
#define DT__AQ 64
#define DT__AK 64
#define DT__ATTN_HEADS 8 /* fewer heads than this: the backward splits them */

typedef struct DT__K(attn_t) {
    const dt_call *c;
    int64_t        heads, h, t, s, d, dp; /* dp: d in whole panels of DT__NR */
    int64_t        nqb, nkb, items, per;  /* blocks of queries and of keys; items of work, and how many a task takes */
    int64_t        hk, offset, window;    /* heads of k and v; see DT_KERNELS. window: INT64_MAX / 2 without one */
    int            causal, hides;         /* hides: there are scores to change before the softmax */
    const dt_view *mask, *lengths;        /* NULL: none */
    float          scale;
    float         *work, *delta; /* scratch of each worker; (heads, t) */
    int64_t        nwork;        /* floats of one worker */
    int64_t       *panel_off;    /* where the dp/NR panels of a block of keys begin */
} DT__K(attn_t);

/* one block: key j is seen by query i if j <= i + diag */
typedef struct DT__K(attn_block_t) {
    int nq, nk, diag;
} DT__K(attn_block_t);

static int DT__K(attn_min)(int64_t a, int64_t b) { return (int)(a < b ? a : b); }
static int DT__K(attn_clamp)(int x, int lo, int hi) { return x < lo ? lo : x > hi ? hi : x; }

static DT__K(attn_block_t) DT__K(attn_block)(const DT__K(attn_t) *a, int64_t q0, int64_t k0)
{
    DT__K(attn_block_t) g;
    g.nq = DT__K(attn_min)(DT__AQ, a->t - q0);
    g.nk = DT__K(attn_min)(DT__AK, a->s - k0);
    int64_t d = q0 + a->offset - k0;
    g.diag = a->causal && d < DT__AK ? (int)(d > -2 * DT__AQ ? d : -2 * DT__AQ) : DT__AK;
    return g;
}
static int64_t DT__K(attn_keys_seen)(const DT__K(attn_t) *a, int64_t q0) /* by any query of the block at q0 */
{
    int64_t end = (q0 + DT__AQ < a->t ? q0 + DT__AQ : a->t) + a->offset;
    return a->causal && end < a->s ? end : a->s;
}
static int64_t DT__K(attn_keys_from)(const DT__K(attn_t) *a, int64_t q0) /* the first block of keys that the block at q0 sees */
{
    int64_t first = q0 + a->offset - a->window + 1;
    return first <= 0 ? 0 : first / DT__AK * DT__AK;
}
static int64_t DT__K(attn_length)(const DT__K(attn_t) *a, int64_t head)
{
    if (!a->lengths) return a->s;
    int64_t n = ((const int64_t *)a->lengths->data)[head / a->h * a->lengths->stride[0]];
    return n < 0 ? 0 : n < a->s ? n : a->s;
}
/* s [AK][AQ] of a block: -inf where mask, lengths or window hide the key, and the additive mask */
static void DT__K(attn_hide)(const DT__K(attn_t) *a, float *s, int64_t head, int64_t q0, int64_t k0, const DT__K(attn_block_t) *g)
{
    int64_t        len = DT__K(attn_length)(a, head);
    const dt_view *m = a->mask;
    for (int i = 0; i < g->nq; i++) {
        int64_t low = q0 + i + a->offset - a->window + 1 - k0; /* the keys [from, to) are not hidden by window and length */
        int     from = DT__K(attn_min)(low < 0 ? 0 : low, g->nk);
        int     to = DT__K(attn_min)(len - k0 < 0 ? 0 : len - k0, g->nk);
        if (from > to) from = to;
        for (int j = 0; j < from; j++) s[j * DT__AQ + i] = -INFINITY;
        for (int j = to; j < g->nk; j++) s[j * DT__AQ + i] = -INFINITY;
        if (!m) continue;
        int64_t at = head / a->h * m->stride[0] + head % a->h * m->stride[1] + (q0 + i) * m->stride[2] + k0 * m->stride[3];
        if (m->dtype == DT_U8) {
            const uint8_t *p = (const uint8_t *)m->data + at;
            for (int j = from; j < to; j++)
                if (!p[j * m->stride[3]]) s[j * DT__AQ + i] = -INFINITY;
        } else if (m->dtype == DT_F32) {
            const float *p = (const float *)m->data + at;
            for (int j = from; j < to; j++) s[j * DT__AQ + i] += p[j * m->stride[3]];
        } else {
            const uint16_t *p = (const uint16_t *)m->data + at;
            for (int j = from; j < to; j++)
                s[j * DT__AQ + i] += m->dtype == DT_F16 ? dt__f16_to_f32(p[j * m->stride[3]]) : dt__bf16_to_f32(p[j * m->stride[3]]);
        }
    }
}

/* ---- rows in and out */
static char *DT__K(attn_at)(const DT__K(attn_t) *a, const dt_view *v, int64_t head, int64_t row)
{
    int64_t h = v->shape[1] == a->h ? head % a->h : head % a->h / (a->h / a->hk);
    int64_t off = head / a->h * v->stride[0] + h * v->stride[1] + row * v->stride[2];
    return (char *)v->data + off * (v->dtype == DT_F32 ? 4 : 2);
}
/* n rows of d as f32, stride *ld: in place if they are f32, else in buf */
static const float *DT__K(attn_rows)(int64_t *ld, float *buf, const DT__K(attn_t) *a, const dt_view *v, int64_t head,
                                     int64_t row, int n)
{
    *ld = v->dtype == DT_F32 ? v->stride[2] : a->d;
    if (v->dtype == DT_F32) return (const float *)(const void *)DT__K(attn_at)(a, v, head, row);
    for (int i = 0; i < n; i++)
        DT__K(load_row)(buf + i * a->d, DT__K(attn_at)(a, v, head, row + i), v->dtype, a->d);
    return buf;
}
/* Where the rows of a gradient are summed: in the output if possible, else in buf, which put stores to the output. */
static int DT__K(attn_direct)(const DT__K(attn_t) *a, int out)
{
    return a->c->out[out].dtype == DT_F32 && !(a->c->acc >> out & 1) && a->d == a->dp;
}
static float *DT__K(attn_sum)(int64_t *ld, const DT__K(attn_t) *a, int out, int64_t head, int64_t row, float *buf)
{
    int direct = DT__K(attn_direct)(a, out);
    *ld = direct ? a->c->out[out].stride[2] : a->dp;
    return direct ? (float *)(void *)DT__K(attn_at)(a, &a->c->out[out], head, row) : buf;
}
static void DT__K(attn_put)(const DT__K(attn_t) *a, int out, int64_t head, int64_t row, int64_t n, const float *buf)
{
    const dt_view *v = &a->c->out[out];
    if (DT__K(attn_direct)(a, out)) return;
    for (int64_t i = 0; i < n; i++)
        DT__K(put_row)(DT__K(attn_at)(a, v, head, row + i), v->dtype, buf + i * a->dp, a->d, a->c->acc >> out & 1);
}
static void DT__K(attn_put_zeros)(const DT__K(attn_t) *a, int out, int64_t head, int64_t row, int64_t n, float *buf)
{
    int64_t ld;
    float  *sum = DT__K(attn_sum)(&ld, a, out, head, row, buf);
    for (int64_t i = 0; i < n; i++) memset(sum + i * ld, 0, (size_t)a->dp * 4);
    DT__K(attn_put)(a, out, head, row, n, buf);
}
/* dst [dp/NR][block][NR] := src (n, d), columns beyond d are 0 */
static void DT__K(attn_panels)(float *dst, const float *src, int64_t ld, int n, int64_t d, int block)
{
    for (int64_t c = 0; c < d; c += DT__NR, dst += block * DT__NR) {
        for (int i = 0; i < n; i++) {
            const float *from = src + i * ld + c;
            float       *to = dst + i * DT__NR;
            if (d - c >= DT__NR) {
                DT__K(st)(to, DT__K(ld)(from));
                DT__K(st)(to + DT__W, DT__K(ld)(from + DT__W));
            } else {
                for (int64_t k = 0; k < DT__NR; k++) to[k] = k < d - c ? from[k] : 0.0f;
            }
        }
    }
}
/* dst [panel of NR rows][dp][NR] := scale * src (n, d) transposed; lanes beyond n and rows beyond d are 0 */
static void DT__K(attn_turn)(float *dst, const float *src, int64_t ld, int n, int64_t d, int64_t dp, float scale)
{
    for (int i = 0; i < (n + DT__NR - 1) / DT__NR * DT__NR; i += DT__W) {
        float       *to = dst + i / DT__NR * DT__NR * dp + i % DT__NR;
        const float *from = src + i * ld;
        int64_t      k = 0;
#if DT__HAS_AVX2
        if (i + 8 <= n)
            for (; k + 8 <= d; k += 8)
                DT__K(turn8)(to + k * DT__NR, DT__NR, from + k, ld, 8, 1, _mm256_set1_ps(scale));
#endif
        for (; k < d; k++)
            for (int j = 0; j < DT__W; j++) to[k * DT__NR + j] = i + j < n ? scale * from[j * ld + k] : 0.0f;
        for (; k < dp; k++) DT__K(st)(to + k * DT__NR, DT__K(zero)());
    }
}

/* ---- products: tiles of up to DT__MR x DT__NR. add 0: start at 0; alpha: first scale out row by row */
/* the rows of a block of keys, as the products read them: row j at p + j*ld, in nseg pieces of n elements at segoff */
typedef struct DT__K(attn_keys_t) {
    const float   *p;
    int64_t        ld, n;
    int            nseg;
    const int64_t *segoff;
} DT__K(attn_keys_t);

/* out [AK][AQ] := rows of keys times turned queries, where a panel of queries sees the key */
static void DT__K(attn_scores)(float *out, const DT__K(attn_keys_t) *k, const float *turned, int64_t dp,
                               const DT__K(attn_block_t) *g)
{
    DT__K(mk_t) m = { NULL, NULL, NULL, k->segoff, k->nseg, k->n, 1, k->ld, DT__NR, 0, DT__AQ, 0, 0 };
    for (int p = 0; p < g->nq; p += DT__NR) {
        int end = DT__K(attn_min)(g->nk, DT__K(attn_min)(p + DT__NR, g->nq) + g->diag);
        m.b = turned + p * dp;
        int whole = end > 0 ? end / DT__MR * DT__MR : 0, rest = end - whole;
        if (whole) DT__K(mk_best)()[DT__MR](&m, whole, k->p, NULL, out + p, NULL);
        if (rest > 0) DT__K(mk_best)()[rest](&m, rest, k->p + whole * k->ld, NULL, out + whole * DT__AQ + p, NULL);
    }
}
/* out (nk, dp) (+)= w (nk, nq) times panels of a query block */
static void DT__K(attn_to_keys)(float *out, int64_t ldo, int64_t dp, const float *w, const float *panels,
                                const DT__K(attn_block_t) *g, int add)
{
    DT__K(mk_t) m = { NULL, NULL, NULL, DT__K(mk_whole), 1, 0, 1, DT__AQ, DT__NR, ldo, ldo, 0, 0 };
    for (int64_t c = 0; c < dp; c += DT__NR) {
        for (int j = 0; j < g->nk; j += DT__MR) {
            int    first = DT__K(attn_clamp)(j - g->diag, 0, g->nq); /* the first query that sees key j */
            int    mr = DT__K(attn_min)(DT__MR, g->nk - j);
            float *to = out + j * ldo + c;
            m.len = g->nq - first;
            m.b = panels + c * DT__AQ + first * DT__NR;
            m.from = add ? to : NULL;
            DT__K(mk_best)()[mr](&m, mr, w + j * DT__AQ + first, NULL, to, NULL);
        }
    }
}
/* out (nq, dp) (+)= w (nk, nq) transposed times panels of a key block */
static void DT__K(attn_to_queries)(float *out, int64_t ldo, int64_t dp, const float *w, const float *panels,
                                   const DT__K(attn_block_t) *g, const float *alpha, int add)
{
    DT__K(mk_t) m = { NULL, NULL, NULL, DT__K(mk_whole), 1, 0, DT__AQ, 1, DT__NR, ldo, ldo, 0, 0 };
    for (int64_t c = 0; c < dp; c += DT__NR) {
        m.b = panels + c * DT__AK;
        for (int i = 0; i < g->nq; i += DT__MR) {
            int    mr = DT__K(attn_min)(DT__MR, g->nq - i);
            float *to = out + i * ldo + c;
            m.len = DT__K(attn_clamp)(i + mr + g->diag, 0, g->nk); /* keys that the last of them sees */
            m.from = add ? to : NULL;
            m.alpha = add && alpha ? alpha + i : NULL;
            DT__K(mk_best)()[mr](&m, mr, w + i, NULL, to, NULL);
        }
    }
}

/* ---- lane by lane: a vector of queries i.., all keys that a tile of the products above may read for them */
DT__INLINE dt__vi DT__K(attn_seen)(int j, int i, int diag) /* lanes whose query sees key j */
{
    dt__vi q = { 0 };
    for (int l = 0; l < DT__W; l++) q[l] = i + diag + l;
    return (dt__vi)(DT__K(set1i)(j) <= q);
}
DT__INLINE int DT__K(attn_touched)(const DT__K(attn_block_t) *g, int i)
{
    return DT__K(attn_clamp)(i + DT__W - 1 + g->diag + DT__MR, 0, g->nk);
}
/* s := exp(s - m) with the running maximum m and sum l of each query; alpha: the factor of earlier sums, exp(old m - m) */
static void DT__K(attn_softmax)(float *s, float *m, float *l, float *alpha, const DT__K(attn_block_t) *g)
{
    dt__vf ninf = DT__K(set1)(-INFINITY), zero = DT__K(zero)();
    for (int i = 0; i < g->nq; i += DT__W) {
        int    end = DT__K(attn_touched)(g, i), full = DT__K(attn_clamp)(i + g->diag + 1, 0, end), j;
        dt__vf old = DT__K(ld)(m + i), top = old, sum = zero, a;
        for (j = 0; j < full; j++) top = DT__K(vmax)(DT__K(ld)(s + j * DT__AQ + i), top);
        for (; j < end; j++) {
            dt__vf x = DT__K(sel)(DT__K(attn_seen)(j, i, g->diag), DT__K(ld)(s + j * DT__AQ + i), ninf);
            DT__K(st)(s + j * DT__AQ + i, x);
            top = DT__K(vmax)(x, top);
        }
        DT__K(st)(m + i, top);
        top = DT__K(sel)((dt__vi)(top == ninf), zero, top); /* only -inf so far: avoids -inf - -inf = NaN */
        for (j = 0; j < end; j++) {
            dt__vf p = DT__K(exp_low)(DT__K(ld)(s + j * DT__AQ + i) - top);
            DT__K(st)(s + j * DT__AQ + i, p);
            sum += p;
        }
        a = DT__K(exp_low)(old - top);
        DT__K(st)(alpha + i, a);
        DT__K(st)(l + i, DT__K(fma)(DT__K(ld)(l + i), a, sum));
    }
}
/* p (scores) := exp(p - lse); ds (dp) := scale p (ds - delta) */
static void DT__K(attn_softmax_bwd)(float *p, float *ds, const float *lse, const float *delta, float scale,
                                    const DT__K(attn_block_t) *g)
{
    dt__vf k = DT__K(set1)(scale), zero = DT__K(zero)();
    for (int i = 0; i < g->nq; i += DT__W) {
        int    end = DT__K(attn_touched)(g, i), full = DT__K(attn_clamp)(i + g->diag + 1, 0, end);
        dt__vf ls = DT__K(ld)(lse + i), dl = DT__K(ld)(delta + i);
        for (int j = 0; j < end; j++) {
            float *pp = p + j * DT__AQ + i, *dd = ds + j * DT__AQ + i;
            dt__vf x = DT__K(exp_low)(DT__K(ld)(pp) - ls), y = (DT__K(ld)(dd) - dl) * k * x; /* s <= lse */
            if (j >= full) {
                dt__vi seen = DT__K(attn_seen)(j, i, g->diag);
                x = DT__K(sel)(seen, x, zero);
                y = DT__K(sel)(seen, y, zero);
            }
            DT__K(st)(pp, x);
            DT__K(st)(dd, y);
        }
    }
}

/* ---- forward */
typedef struct DT__K(attn_fwd_t) {
    float *q, *s, *v, *o, *rows, *m, *l, *alpha; /* turned q, scores, panels of v, [AQ][dp], f32 rows, [AQ] each */
} DT__K(attn_fwd_t);

static void DT__K(attn_fwd_finish)(const DT__K(attn_t) *a, DT__K(attn_fwd_t) *w, int64_t head, int64_t q0, int nq)
{
    const dt_view *out = &a->c->out[0], *lse = &a->c->out[1];
    float         *l = (float *)lse->data + head / a->h * lse->stride[0] + head % a->h * lse->stride[1];
    for (int i = 0; i < nq; i += DT__W)
        DT__K(st)(w->m + i, DT__K(ld)(w->m + i) + DT__K(vlog)(DT__K(ld)(w->l + i)));
    for (int i = 0; i < nq; i++) {
        char  *row = DT__K(attn_at)(a, out, head, q0 + i);
        int    direct = out->dtype == DT_F32 && a->d == a->dp;
        float *o = w->o + i * a->dp, *to = direct ? (float *)(void *)row : o;
        dt__vf r = DT__K(set1)(w->l[i] == 0 ? 0.0f : 1.0f / w->l[i]); /* 0: the query sees no key */
        for (int64_t k = 0; k < a->dp; k += DT__W) DT__K(st)(to + k, DT__K(ld)(o + k) * r);
        if (!direct) DT__K(store_row)(row, out->dtype, o, a->d);
        l[(q0 + i) * lse->stride[2]] = w->m[i];
    }
}

static void DT__K(attn_fwd_block)(const DT__K(attn_t) *a, DT__K(attn_fwd_t) *w, int64_t head, int64_t q0)
{
    const dt_view       *q = &a->c->in[0], *k = &a->c->in[1], *v = &a->c->in[2];
    DT__K(attn_block_t)  g = DT__K(attn_block)(a, q0, 0);
    DT__K(attn_keys_t)   keys = { NULL, 0, a->d, 1, DT__K(mk_whole) };
    int64_t              ld, seen = DT__K(attn_keys_seen)(a, q0), from = DT__K(attn_keys_from)(a, q0);
    const float         *rows = DT__K(attn_rows)(&ld, w->rows, a, q, head, q0, g.nq);
    if (seen > DT__K(attn_length)(a, head)) seen = DT__K(attn_length)(a, head);
    DT__K(attn_turn)(w->q, rows, ld, g.nq, a->d, a->dp, a->scale);
    for (int i = 0; i < DT__AQ; i++) w->m[i] = -INFINITY, w->l[i] = seen > from ? 0.0f : 1.0f;
    if (seen <= from) memset(w->o, 0, (size_t)(DT__AQ * a->dp) * 4); /* no keys: o = 0, lse = -inf */
    for (int64_t k0 = from; k0 < seen; k0 += DT__AK) {
        g = DT__K(attn_block)(a, q0, k0);
        keys.p = DT__K(attn_rows)(&keys.ld, w->rows, a, k, head, k0, g.nk);
        DT__K(attn_scores)(w->s, &keys, w->q, a->dp, &g);
        if (a->hides) DT__K(attn_hide)(a, w->s, head, q0, k0, &g);
        DT__K(attn_softmax)(w->s, w->m, w->l, w->alpha, &g);
        rows = DT__K(attn_rows)(&ld, w->rows, a, v, head, k0, g.nk);
        DT__K(attn_panels)(w->v, rows, ld, g.nk, a->d, DT__AK);
        DT__K(attn_to_queries)(w->o, a->dp, a->dp, w->s, w->v, &g, k0 > from ? w->alpha : NULL, k0 > from);
    }
    DT__K(attn_fwd_finish)(a, w, head, q0, g.nq);
}

/* One query, as in generation, where a block would be nearly empty: scores are products of rows, and the keys of a block lie side by
   side. d is a multiple of DT__W. */
static void DT__K(attn_one_scores)(float *s, const float *k, int64_t ld, int64_t n, const float *q, int64_t d)
{
    int64_t j = 0;
    for (; j + 4 <= n; j += 4, k += 4 * ld) {
        const float *k1 = k + ld, *k2 = k1 + ld, *k3 = k2 + ld;
        dt__vf       s0 = DT__K(zero)(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
        int64_t      i = 0;
        for (; i + 2 * DT__W <= d; i += 2 * DT__W) {
            dt__vf a = DT__K(ld)(q + i), b = DT__K(ld)(q + i + DT__W);
            s0 = DT__K(fma)(a, DT__K(ld)(k + i), s0);
            s1 = DT__K(fma)(a, DT__K(ld)(k1 + i), s1);
            s2 = DT__K(fma)(a, DT__K(ld)(k2 + i), s2);
            s3 = DT__K(fma)(a, DT__K(ld)(k3 + i), s3);
            t0 = DT__K(fma)(b, DT__K(ld)(k + i + DT__W), t0);
            t1 = DT__K(fma)(b, DT__K(ld)(k1 + i + DT__W), t1);
            t2 = DT__K(fma)(b, DT__K(ld)(k2 + i + DT__W), t2);
            t3 = DT__K(fma)(b, DT__K(ld)(k3 + i + DT__W), t3);
        }
        for (; i < d; i += DT__W) {
            dt__vf a = DT__K(ld)(q + i);
            s0 = DT__K(fma)(a, DT__K(ld)(k + i), s0);
            s1 = DT__K(fma)(a, DT__K(ld)(k1 + i), s1);
            s2 = DT__K(fma)(a, DT__K(ld)(k2 + i), s2);
            s3 = DT__K(fma)(a, DT__K(ld)(k3 + i), s3);
        }
        s[j] = DT__K(hsum)(s0 + t0);
        s[j + 1] = DT__K(hsum)(s1 + t1);
        s[j + 2] = DT__K(hsum)(s2 + t2);
        s[j + 3] = DT__K(hsum)(s3 + t3);
    }
    for (; j < n; j++, k += ld) {
        dt__vf  s0 = DT__K(zero)(), t0 = s0;
        int64_t i = 0;
        for (; i + 2 * DT__W <= d; i += 2 * DT__W) {
            s0 = DT__K(fma)(DT__K(ld)(q + i), DT__K(ld)(k + i), s0);
            t0 = DT__K(fma)(DT__K(ld)(q + i + DT__W), DT__K(ld)(k + i + DT__W), t0);
        }
        for (; i < d; i += DT__W) s0 = DT__K(fma)(DT__K(ld)(q + i), DT__K(ld)(k + i), s0);
        s[j] = DT__K(hsum)(s0 + t0);
    }
}
static void DT__K(attn_one_values)(float *o, const float *v, int64_t ld, int64_t n, const float *p, int64_t d, float alpha)
{
    dt__vf  keep = DT__K(set1)(alpha);
    int64_t i = 0;
    for (; i + 4 * DT__W <= d; i += 4 * DT__W) {
        dt__vf       o0 = DT__K(ld)(o + i) * keep, o1 = DT__K(ld)(o + i + DT__W) * keep;
        dt__vf       o2 = DT__K(ld)(o + i + 2 * DT__W) * keep, o3 = DT__K(ld)(o + i + 3 * DT__W) * keep;
        const float *x = v + i;
        for (int64_t j = 0; j < n; j++, x += ld) {
            dt__vf w = DT__K(set1)(p[j]);
            o0 = DT__K(fma)(w, DT__K(ld)(x), o0);
            o1 = DT__K(fma)(w, DT__K(ld)(x + DT__W), o1);
            o2 = DT__K(fma)(w, DT__K(ld)(x + 2 * DT__W), o2);
            o3 = DT__K(fma)(w, DT__K(ld)(x + 3 * DT__W), o3);
        }
        DT__K(st)(o + i, o0);
        DT__K(st)(o + i + DT__W, o1);
        DT__K(st)(o + i + 2 * DT__W, o2);
        DT__K(st)(o + i + 3 * DT__W, o3);
    }
    for (; i < d; i += DT__W) {
        dt__vf o0 = DT__K(ld)(o + i) * keep;
        for (int64_t j = 0; j < n; j++) o0 = DT__K(fma)(DT__K(set1)(p[j]), DT__K(ld)(v + j * ld + i), o0);
        DT__K(st)(o + i, o0);
    }
}
static void DT__K(attn_fwd_one)(const DT__K(attn_t) *a, DT__K(attn_fwd_t) *w, int64_t head)
{
    const dt_view *q = &a->c->in[0], *k = &a->c->in[1], *v = &a->c->in[2];
    int64_t        ld, seen = DT__K(attn_keys_seen)(a, 0), from = DT__K(attn_keys_from)(a, 0), len = DT__K(attn_length)(a, head);
    const float   *rows = DT__K(attn_rows)(&ld, w->rows, a, q, head, 0, 1);
    float          p[DT__AK], m = -INFINITY, l = 0;
    if (seen > len) seen = len;
    for (int64_t i = 0; i < a->d; i++) w->q[i] = rows[i] * a->scale;
    memset(w->o, 0, (size_t)a->dp * 4);
    for (int64_t k0 = from; k0 < seen; k0 += DT__AK) {
        DT__K(attn_block_t) g = { 1, DT__K(attn_min)(DT__AK, seen - k0), DT__AK };
        rows = DT__K(attn_rows)(&ld, w->rows, a, k, head, k0, g.nk);
        DT__K(attn_one_scores)(p, rows, ld, g.nk, w->q, a->d);
        for (int j = g.nk; j < DT__AK; j++) p[j] = -INFINITY;
        if (a->hides) {
            for (int j = 0; j < g.nk; j++) w->s[j * DT__AQ] = p[j];
            DT__K(attn_hide)(a, w->s, head, 0, k0, &g);
            for (int j = 0; j < g.nk; j++) p[j] = w->s[j * DT__AQ];
        }
        float top = m;
        for (int j = 0; j < g.nk; j++) top = p[j] > top ? p[j] : top;
        float  base = top == -INFINITY ? 0.0f : top, lane[DT__W] = { m - base };
        dt__vf sum = DT__K(zero)(), b = DT__K(set1)(base);
        for (int j = 0; j < DT__AK; j += DT__W) {
            dt__vf e = DT__K(exp_low)(DT__K(ld)(p + j) - b);
            DT__K(st)(p + j, e);
            sum += e;
        }
        DT__K(st)(lane, DT__K(exp_low)(DT__K(ld)(lane)));
        l = l * lane[0] + DT__K(hsum)(sum);
        m = top;
        rows = DT__K(attn_rows)(&ld, w->rows, a, v, head, k0, g.nk);
        DT__K(attn_one_values)(w->o, rows, ld, g.nk, p, a->d, lane[0]);
    }
    for (int i = 0; i < DT__W; i++) w->m[i] = m, w->l[i] = seen > from ? l : 1.0f;
    DT__K(attn_fwd_finish)(a, w, head, 0, 1);
}

static void DT__K(attn_fwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(attn_t) *a = (const DT__K(attn_t) *)ctx;
    DT__K(attn_fwd_t)    w;
    w.q = a->work + worker * a->nwork;
    w.rows = w.q + DT__AQ * a->dp;
    w.s = w.rows + (DT__AQ > DT__AK ? DT__AQ : DT__AK) * a->d;
    w.v = w.s + DT__AK * DT__AQ;
    w.o = w.v + DT__AK * a->dp;
    w.m = w.o + DT__AQ * a->dp;
    w.l = w.m + DT__AQ;
    w.alpha = w.l + DT__AQ;
    for (int64_t n = task * a->per; a->t == 1 && a->d % DT__W == 0 && n < a->items && n < (task + 1) * a->per; n++)
        DT__K(attn_fwd_one)(a, &w, n);
    if (a->t == 1 && a->d % DT__W == 0) return;
    for (int64_t n = task * a->per; n < a->items && n < (task + 1) * a->per; n++) /* longest of a head first */
        DT__K(attn_fwd_block)(a, &w, n / a->nqb, (a->nqb - 1 - n % a->nqb) * DT__AQ);
}

/* mask: the operand's number; the lengths follow it */
static void DT__K(attn_init)(DT__K(attn_t) *a, const dt_call *c, const dt_view *q, const dt_view *k, int mask)
{
    memset(a, 0, sizeof *a);
    a->c = c;
    a->h = q->shape[1];
    a->heads = q->shape[0] * q->shape[1];
    a->t = q->shape[2];
    a->s = k->shape[2];
    a->d = q->shape[3];
    a->dp = (a->d + DT__NR - 1) / DT__NR * DT__NR;
    a->nqb = (a->t + DT__AQ - 1) / DT__AQ;
    a->nkb = (a->s + DT__AK - 1) / DT__AK;
    a->causal = c->u.attn.causal != 0;
    a->scale = (float)c->u.attn.scale;
    a->hk = k->shape[1] > 0 ? k->shape[1] : 1;
    a->offset = a->causal ? c->u.attn.offset : 0;
    a->window = a->causal && c->u.attn.window > 0 ? c->u.attn.window : INT64_MAX / 2;
    a->mask = DT__K(has_in)(c, mask) ? &c->in[mask] : NULL;
    a->lengths = DT__K(has_in)(c, mask + 1) ? &c->in[mask + 1] : NULL;
    a->hides = a->mask || a->lengths || a->window < a->t + a->offset;
}
/* tasks of about a million multiply-adds; an item is 'products' products of a block with all blocks it sees */
static void DT__K(attn_run)(DT__K(attn_t) *a, int64_t items, int64_t products, int64_t other, dt__task_fn fn)
{
    int64_t ntasks = dt__cut(items, products * (a->t == 1 ? 4 : DT__AQ) * (other < 1 ? 1 : other) * (a->d + 1), 1000000, &a->per);
    a->items = items;
    dt__pool_run(ntasks, fn, a);
}

static int DT__K(attention)(dt_device *dev, const dt_call *c)
{
    DT__K(attn_t) a;
    (void)dev;
    DT__K(attn_init)(&a, c, &c->in[0], &c->in[1], 3);
    if (a.heads == 0 || a.t == 0) return 0;
    a.nwork = (DT__AQ + DT__AK) * a.d + DT__AK * DT__AQ + (2 * DT__AQ + DT__AK) * a.dp + 3 * DT__AQ;
    a.work = (float *)dt_scratch((size_t)a.nwork * 4 * (size_t)dt__pool_size());
    if (!a.work) return DT_ERR_MEMORY;
    DT__K(attn_run)(&a, a.heads * a.nqb, 2, a.s, DT__K(attn_fwd_task));
    return 0;
}

/* ---- backward */
typedef struct DT__K(attn_bwd_t) {
    float *q, *dy, *qp, *dyp, *rows; /* of a block of queries: q and do, turned and in panels; f32 rows of halves */
    float *kp, *vp;                  /* panels of k and v, block after block */
    float *p, *ds;                   /* [AK][AQ] */
    float *dq, *dk, *dv;             /* [rows][dp], of gradients that are not summed in the output */
    float *lse, *delta;              /* [AQ] */
} DT__K(attn_bwd_t);

/* the scratch of a worker; nkb blocks of keys are kept */
static int64_t DT__K(attn_bwd_nwork)(const DT__K(attn_t) *a, int64_t nkb)
{
    return 6 * DT__AQ * a->dp + 4 * nkb * DT__AK * a->dp + 2 * DT__AK * DT__AQ + 2 * DT__AQ;
}
static void DT__K(attn_bwd_work)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t nkb, int worker)
{
    float **part[14] = { &w->q,  &w->dy, &w->qp, &w->dyp, &w->dq, &w->rows, &w->kp,
                         &w->vp, &w->dk, &w->dv, &w->p,   &w->ds, &w->lse,  &w->delta };
    float  *at = a->work + worker * a->nwork;
    for (int i = 0; i < 14; i++) {
        *part[i] = at;
        at += i < 6 ? DT__AQ * a->dp : i < 10 ? nkb * DT__AK * a->dp : i < 12 ? DT__AK * DT__AQ : DT__AQ;
    }
}

/* delta of a block of queries; rows of o that are halves go through the buffer of the turned q */
static void DT__K(attn_delta)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t q0)
{
    int64_t      ldy, ldo;
    int          nq = DT__K(attn_min)(DT__AQ, a->t - q0);
    const float *y = DT__K(attn_rows)(&ldy, w->rows, a, &a->c->in[0], head, q0, nq);
    const float *o = DT__K(attn_rows)(&ldo, w->q, a, &a->c->in[4], head, q0, nq);
    for (int i = 0; i < nq; i++) {
        dt__vf sum = DT__K(zero)();
        for (int64_t k = 0; k < a->d; k += DT__W)
            sum = DT__K(fma)(DT__K(row_ld)(y + i * ldy + k, a->d - k), DT__K(row_ld)(o + i * ldo + k, a->d - k), sum);
        a->delta[head * a->t + q0 + i] = DT__K(row_hsum)(sum);
    }
}
static void DT__K(attn_load_queries)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t q0, int panels)
{
    const dt_view *lse = &a->c->in[5];
    const float   *l = (const float *)lse->data + head / a->h * lse->stride[0] + head % a->h * lse->stride[1];
    int            nq = DT__K(attn_min)(DT__AQ, a->t - q0);
    int64_t        ld;
    const float   *rows = DT__K(attn_rows)(&ld, w->rows, a, &a->c->in[1], head, q0, nq);
    DT__K(attn_turn)(w->q, rows, ld, nq, a->d, a->dp, a->scale);
    if (panels) DT__K(attn_panels)(w->qp, rows, ld, nq, a->d, DT__AQ);
    rows = DT__K(attn_rows)(&ld, w->rows, a, &a->c->in[0], head, q0, nq);
    DT__K(attn_turn)(w->dy, rows, ld, nq, a->d, a->dp, 1.0f);
    if (panels) DT__K(attn_panels)(w->dyp, rows, ld, nq, a->d, DT__AQ);
    for (int i = 0; i < DT__AQ; i++) {
        w->lse[i] = i < nq ? l[(q0 + i) * lse->stride[2]] : INFINITY;
        if (w->lse[i] == -INFINITY) w->lse[i] = INFINITY; /* it sees no key: p = exp(-inf - inf) = 0 */
        w->delta[i] = i < nq ? a->delta[head * a->t + q0 + i] : 0.0f;
    }
}
/* k and v of the block at k0 as block 'at' of the panels */
static void DT__K(attn_load_keys)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t k0, int64_t at)
{
    int          nk = DT__K(attn_min)(DT__AK, a->s - k0);
    int64_t      ld;
    const float *rows = DT__K(attn_rows)(&ld, w->rows, a, &a->c->in[2], head, k0, nk);
    DT__K(attn_panels)(w->kp + at * DT__AK * a->dp, rows, ld, nk, a->d, DT__AK);
    rows = DT__K(attn_rows)(&ld, w->rows, a, &a->c->in[3], head, k0, nk);
    DT__K(attn_panels)(w->vp + at * DT__AK * a->dp, rows, ld, nk, a->d, DT__AK);
}
/* p and ds of the loaded queries with block 'at' of the panels of keys */
static void DT__K(attn_bwd_block)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t q0, int64_t k0, int64_t at,
                                  const DT__K(attn_block_t) *g)
{
    DT__K(attn_keys_t) k = { w->kp + at * DT__AK * a->dp, DT__NR, DT__NR, (int)(a->dp / DT__NR), a->panel_off }, v = k;
    v.p = w->vp + at * DT__AK * a->dp;
    DT__K(attn_scores)(w->p, &k, w->q, a->dp, g);
    if (a->hides) DT__K(attn_hide)(a, w->p, head, q0, k0, g);
    DT__K(attn_scores)(w->ds, &v, w->dy, a->dp, g);
    DT__K(attn_softmax_bwd)(w->p, w->ds, w->lse, w->delta, a->scale, g);
}
static int64_t DT__K(attn_first_queries)(const DT__K(attn_t) *a, int64_t k0) /* the first block that sees a key at k0.. */
{
    return a->causal && k0 > a->offset ? (k0 - a->offset) / DT__AQ * DT__AQ : 0;
}
static int DT__K(attn_any_query)(const DT__K(attn_t) *a, int64_t k0) /* does some block of queries see the keys at k0? */
{
    int64_t first = DT__K(attn_first_queries)(a, k0);
    return first < a->t && k0 >= DT__K(attn_keys_from)(a, first);
}
/* the part of dv and dk that p and ds of a block are; 'at' is the block's place in their buffers */
static void DT__K(attn_add_keys)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t k0, int64_t at,
                                 const DT__K(attn_block_t) *g, int add)
{
    int64_t ld;
    float  *sum = DT__K(attn_sum)(&ld, a, 2, head, k0, w->dv + at * DT__AK * a->dp);
    DT__K(attn_to_keys)(sum, ld, a->dp, w->p, w->dyp, g, add);
    sum = DT__K(attn_sum)(&ld, a, 1, head, k0, w->dk + at * DT__AK * a->dp);
    DT__K(attn_to_keys)(sum, ld, a->dp, w->ds, w->qp, g, add);
}
static void DT__K(attn_put_keys)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t k0, int64_t at)
{
    float  *buf[3] = { NULL, w->dk + at * DT__AK * a->dp, w->dv + at * DT__AK * a->dp };
    int64_t nk = DT__K(attn_min)(DT__AK, a->s - k0);
    for (int out = 1; out < 3; out++) {
        if (DT__K(attn_any_query)(a, k0)) DT__K(attn_put)(a, out, head, k0, nk, buf[out]);
        else DT__K(attn_put_zeros)(a, out, head, k0, nk, buf[out]); /* no query sees these keys */
    }
}

/* a block of queries: dq. all: with the panels of all keys, and its part of dk and dv; else the panels are loaded */
static void DT__K(attn_bwd_queries)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t q0, int all)
{
    int64_t seen = DT__K(attn_keys_seen)(a, q0), nq = DT__K(attn_min)(DT__AQ, a->t - q0), from = DT__K(attn_keys_from)(a, q0), ld;
    float  *dq = DT__K(attn_sum)(&ld, a, 0, head, q0, w->dq);
    DT__K(attn_load_queries)(w, a, head, q0, all);
    for (int64_t k0 = from; k0 < seen; k0 += DT__AK) {
        DT__K(attn_block_t) g = DT__K(attn_block)(a, q0, k0);
        int64_t at = all ? k0 / DT__AK : 0;
        if (!all) DT__K(attn_load_keys)(w, a, head, k0, 0);
        DT__K(attn_bwd_block)(w, a, head, q0, k0, at, &g);
        DT__K(attn_to_queries)(dq, ld, a->dp, w->ds, w->kp + at * DT__AK * a->dp, &g, NULL, k0 > from);
        if (all) DT__K(attn_add_keys)(w, a, head, k0, at, &g, q0 > DT__K(attn_first_queries)(a, k0));
    }
    if (seen > from) DT__K(attn_put)(a, 0, head, q0, nq, w->dq);
    else DT__K(attn_put_zeros)(a, 0, head, q0, nq, w->dq);
}
/* a block of keys: dk and dv */
static void DT__K(attn_bwd_keys)(DT__K(attn_bwd_t) *w, const DT__K(attn_t) *a, int64_t head, int64_t k0)
{
    int64_t from = DT__K(attn_first_queries)(a, k0);
    DT__K(attn_load_keys)(w, a, head, k0, 0);
    for (int64_t q0 = from; q0 < a->t && k0 >= DT__K(attn_keys_from)(a, q0); q0 += DT__AQ) {
        DT__K(attn_block_t) g = DT__K(attn_block)(a, q0, k0);
        DT__K(attn_load_queries)(w, a, head, q0, 1);
        DT__K(attn_bwd_block)(w, a, head, q0, k0, 0, &g);
        DT__K(attn_add_keys)(w, a, head, k0, 0, &g, q0 > from);
    }
    DT__K(attn_put_keys)(w, a, head, k0, 0);
}

static void DT__K(attn_bwd_head_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(attn_t) *a = (const DT__K(attn_t) *)ctx;
    DT__K(attn_bwd_t)    w;
    DT__K(attn_bwd_work)(&w, a, a->nkb, worker);
    for (int64_t n = task * a->per; n < a->items && n < (task + 1) * a->per; n++) {
        for (int64_t k = 0; k < a->nkb; k++) DT__K(attn_load_keys)(&w, a, n, k * DT__AK, k);
        for (int64_t q0 = 0; q0 < a->t; q0 += DT__AQ) {
            DT__K(attn_delta)(&w, a, n, q0);
            DT__K(attn_bwd_queries)(&w, a, n, q0, 1);
        }
        for (int64_t k = 0; k < a->nkb; k++) DT__K(attn_put_keys)(&w, a, n, k * DT__AK, k);
    }
}
static void DT__K(attn_bwd_keys_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(attn_t) *a = (const DT__K(attn_t) *)ctx;
    DT__K(attn_bwd_t)    w;
    DT__K(attn_bwd_work)(&w, a, 1, worker);
    for (int64_t n = task * a->per; n < a->items && n < (task + 1) * a->per; n++)
        DT__K(attn_bwd_keys)(&w, a, n / a->nkb, n % a->nkb * DT__AK);
}
static void DT__K(attn_bwd_queries_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(attn_t) *a = (const DT__K(attn_t) *)ctx;
    DT__K(attn_bwd_t)    w;
    DT__K(attn_bwd_work)(&w, a, 1, worker);
    for (int64_t n = task * a->per; n < a->items && n < (task + 1) * a->per; n++)
        DT__K(attn_bwd_queries)(&w, a, n / a->nqb, (a->nqb - 1 - n % a->nqb) * DT__AQ, 0);
}
static void DT__K(attn_delta_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(attn_t) *a = (const DT__K(attn_t) *)ctx;
    DT__K(attn_bwd_t)    w;
    DT__K(attn_bwd_work)(&w, a, 1, worker);
    for (int64_t n = task * a->per; n < a->items && n < (task + 1) * a->per; n++)
        DT__K(attn_delta)(&w, a, n / a->nqb, n % a->nqb * DT__AQ);
}

static int DT__K(attention_bwd)(dt_device *dev, const dt_call *c)
{
    DT__K(attn_t) a;
    (void)dev;
    DT__K(attn_init)(&a, c, &c->in[1], &c->in[2], 6);
    if (a.heads == 0) return 0;
    int     whole = a.s > 0 && (a.heads >= DT__ATTN_HEADS || (a.nqb <= 1 && a.nkb <= 1));
    int64_t ndelta = (a.heads * a.t + 15) / 16 * 16, noff = (a.dp / DT__NR * 2 + 15) / 16 * 16;
    a.nwork = DT__K(attn_bwd_nwork)(&a, whole ? a.nkb : 1);
    a.delta = (float *)dt_scratch(((size_t)a.nwork * (size_t)dt__pool_size() + (size_t)(ndelta + noff)) * 4);
    if (!a.delta) return DT_ERR_MEMORY;
    a.panel_off = (int64_t *)(void *)(a.delta + ndelta);
    a.work = a.delta + ndelta + noff;
    for (int64_t i = 0; i < a.dp / DT__NR; i++) a.panel_off[i] = i * DT__AK * DT__NR;
    if (whole) {
        DT__K(attn_run)(&a, a.heads, 5 * (a.nqb > 1 ? a.nqb : 1), a.s, DT__K(attn_bwd_head_task));
    } else {
        DT__K(attn_run)(&a, a.heads * a.nqb, 4, 1, DT__K(attn_delta_task));
        DT__K(attn_run)(&a, a.heads * a.nkb, 4, a.t, DT__K(attn_bwd_keys_task));
        DT__K(attn_run)(&a, a.heads * a.nqb, 3, a.s, DT__K(attn_bwd_queries_task));
    }
    return 0;
}
#undef DT__AQ
#undef DT__AK
#undef DT__ATTN_HEADS

/* ==================================================================================================== >>optim
   One driver for all optimisers passes pieces of the operands to the optimiser's row function, as f32 rows whose length
   is a multiple of DT__W. f32 operands are used in place; f16, bf16, scaled gradients and the last elements go through
   buffers, so the last elements round like all others and the cut into tasks changes no bit. Products that feed sums
   are fma(). */
#define DT__OPT_BLOCK 512  /* elements of a piece that needs buffers; a multiple of DT__W */
#define DT__OPT_TASK 16384 /* elements of a task */
#define DT__C(x) DT__K(set1)(x)

typedef struct DT__K(opt_rows) { /* f32, n elements of each, n a multiple of DT__W */
    float       *r[4];           /* the call's outputs: p and states, or u and states; NULL if absent */
    const float *g, *w;          /* the gradient (lamb_apply: u), scaled; lamb: the parameter */
    int64_t      n;
    float        ratio; /* of the segment; 1 without segments */
} DT__K(opt_rows);

typedef void (*DT__K(opt_fn))(const dt_call *c, const DT__K(opt_rows) *x);

typedef struct DT__K(opt_ctx) {
    const dt_call *c;
    DT__K(opt_fn) fn;
    int            nrw;      /* outputs 0 .. nrw-1 are rows */
    int            copy;     /* the output that gets p rounded, or -1 */
    int            grad, w;  /* inputs: the gradient; the parameter, or -1 */
    int64_t        n, block; /* elements in all, of a piece */
    float          gmul;
    const int64_t *seg; /* NULL: the whole is one */
    int64_t        nseg;
    const float   *wnorm, *unorm;
} DT__K(opt_ctx);

static __attribute__((noinline)) void DT__K(sgd_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *p = x->r[0], *buf = x->r[1];
    const float *grad = x->g;
    int64_t      n = x->n;
    dt__vf       lr = DT__C((float)-c->u.opt.lr), wd = DT__C((float)c->u.opt.wd), mom = DT__C((float)c->u.opt.b1);
    dt__vf       keep = DT__C((float)(1 - c->u.opt.b2)), ratio = DT__C(x->ratio);
    int          decay = c->u.opt.wd != 0, first = c->u.opt.first, nesterov = c->u.opt.nesterov;
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf w = DT__K(ld)(p + i), d = DT__K(ld)(grad + i);
        if (decay) d = DT__K(fma)(wd, w, d);
        d *= ratio;
        if (buf) {
            dt__vf b = first ? d : DT__K(fma)(keep, d, mom * DT__K(ld)(buf + i));
            DT__K(st)(buf + i, b);
            d = nesterov ? DT__K(fma)(mom, b, d) : b;
        }
        DT__K(st)(p + i, DT__K(fma)(lr, d, w));
    }
}
/* m := lerp(m, g, 1 - b1), computed from the nearer end as PyTorch does */
DT__INLINE dt__vf DT__K(opt_lerp)(dt__vf m, dt__vf g, double b1)
{
    float t = (float)(1 - b1);
    return t < 0.5f ? DT__K(fma)(DT__C(t), g - m, m) : DT__K(fma)(DT__C(t - 1.0f), g - m, g);
}
DT__INLINE dt__vf DT__K(opt_square)(dt__vf v, dt__vf g, double b2) /* b2*v + (1 - b2)*g*g */
{
    return DT__K(fma)(DT__C((float)(1 - b2)) * g, g, DT__C((float)b2) * v);
}
static __attribute__((noinline)) void DT__K(adam_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *p = x->r[0], *m = x->r[1], *v = x->r[2], *vmax = x->r[3];
    const float *grad = x->g;
    int64_t      n = x->n;
    double       b1 = c->u.opt.b1, b2 = c->u.opt.b2, decay = c->u.opt.wd;
    dt__vf       step = DT__C((float)(-c->u.opt.lr / c->u.opt.c1)), root = DT__C((float)(1 / sqrt(c->u.opt.c2)));
    dt__vf       eps = DT__C((float)c->u.opt.eps), wd = DT__C((float)decay), zero = DT__K(zero)();
    dt__vf       keep = DT__C(c->u.opt.decoupled ? (float)(1 - c->u.opt.lr * decay) : 1.0f);
    int          coupled = decay != 0 && !c->u.opt.decoupled;
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf w = DT__K(ld)(p + i), g = DT__K(ld)(grad + i);
        if (coupled) g = DT__K(fma)(wd, w, g);
        dt__vf a = DT__K(opt_lerp)(DT__K(ld)(m + i), g, b1), s = DT__K(opt_square)(DT__K(ld)(v + i), g, b2);
        DT__K(st)(m + i, a);
        DT__K(st)(v + i, s);
        if (vmax) {
            dt__vf top = DT__K(ld)(vmax + i);
            s = DT__K(sel)((dt__vi)(s <= top), top, s); /* NaN stays */
            DT__K(st)(vmax + i, s);
        }
        dt__vf q = step * a / DT__K(fma)(DT__K(vsqrt)(s), root, eps);
        DT__K(st)(p + i, DT__K(fma)(w, keep, zero) + q); /* the product is rounded before the sum, as PyTorch does */
    }
}
static __attribute__((noinline)) void DT__K(rmsprop_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *p = x->r[0], *sq = x->r[1], *avg = x->r[2], *buf = x->r[3];
    const float *grad = x->g;
    int64_t      n = x->n;
    int          decay = c->u.opt.wd != 0;
    double       alpha = c->u.opt.b2;
    dt__vf       lr = DT__C((float)-c->u.opt.lr), wd = DT__C((float)c->u.opt.wd), eps = DT__C((float)c->u.opt.eps);
    dt__vf       mom = DT__C((float)c->u.opt.b1);
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf w = DT__K(ld)(p + i), g = DT__K(ld)(grad + i);
        if (decay) g = DT__K(fma)(wd, w, g);
        dt__vf s = DT__K(opt_square)(DT__K(ld)(sq + i), g, alpha);
        DT__K(st)(sq + i, s);
        if (avg) {
            dt__vf a = DT__K(opt_lerp)(DT__K(ld)(avg + i), g, alpha);
            DT__K(st)(avg + i, a);
            s = DT__K(vmax)(DT__K(zero)(), DT__K(fma)(DT__K(vneg)(a), a, s)); /* rounding may give a negative number */
        }
        s = DT__K(vsqrt)(s) + eps;
        if (buf) {
            dt__vf b = DT__K(fma)(mom, DT__K(ld)(buf + i), g / s);
            DT__K(st)(buf + i, b);
            w = DT__K(fma)(lr, b, w);
        } else {
            w = w + lr * g / s;
        }
        DT__K(st)(p + i, w);
    }
}
static __attribute__((noinline)) void DT__K(adagrad_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *p = x->r[0], *sum = x->r[1];
    const float *grad = x->g;
    int64_t      n = x->n;
    int          decay = c->u.opt.wd != 0;
    dt__vf       lr = DT__C((float)-c->u.opt.lr), wd = DT__C((float)c->u.opt.wd), eps = DT__C((float)c->u.opt.eps);
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf w = DT__K(ld)(p + i), g = DT__K(ld)(grad + i);
        if (decay) g = DT__K(fma)(wd, w, g);
        dt__vf s = DT__K(fma)(g, g, DT__K(ld)(sum + i));
        DT__K(st)(sum + i, s);
        DT__K(st)(p + i, w + lr * g / (DT__K(vsqrt)(s) + eps));
    }
}
static __attribute__((noinline)) void DT__K(lion_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *p = x->r[0], *m = x->r[1];
    const float *grad = x->g;
    int64_t      n = x->n;
    dt__vf       keep = DT__C((float)(1 - c->u.opt.lr * c->u.opt.wd)), lr = DT__C((float)c->u.opt.lr), zero = DT__K(zero)();
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf w = DT__K(ld)(p + i) * keep, g = DT__K(ld)(grad + i), mean = DT__K(ld)(m + i);
        dt__vf u = DT__K(opt_lerp)(mean, g, c->u.opt.b1);
        u = DT__K(sel)((dt__vi)(u > zero), lr, DT__K(sel)((dt__vi)(u < zero), zero - lr, u * zero)); /* NaN stays */
        DT__K(st)(p + i, w - u);
        DT__K(st)(m + i, DT__K(opt_lerp)(mean, g, c->u.opt.b2));
    }
}
static __attribute__((noinline)) void DT__K(lamb_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *u = x->r[0], *m = x->r[1], *v = x->r[2];
    const float *grad = x->g, *w = c->u.opt.wd != 0 ? x->w : NULL;
    int64_t      n = x->n;
    double       b1 = c->u.opt.b1, b2 = c->u.opt.b2;
    dt__vf       scale = DT__C((float)(1 / c->u.opt.c1)), root = DT__C((float)(1 / sqrt(c->u.opt.c2)));
    dt__vf       eps = DT__C((float)c->u.opt.eps), wd = DT__C((float)c->u.opt.wd);
    for (int64_t i = 0; i < n; i += DT__W) {
        dt__vf g = DT__K(ld)(grad + i), a = DT__K(opt_lerp)(DT__K(ld)(m + i), g, b1);
        dt__vf s = DT__K(opt_square)(DT__K(ld)(v + i), g, b2);
        DT__K(st)(m + i, a);
        DT__K(st)(v + i, s);
        dt__vf q = scale * a / DT__K(fma)(DT__K(vsqrt)(s), root, eps);
        DT__K(st)(u + i, w ? DT__K(fma)(wd, DT__K(ld)(w + i), q) : q);
    }
}
static __attribute__((noinline)) void DT__K(lamb_apply_row)(const dt_call *c, const DT__K(opt_rows) *x)
{
    float       *p = x->r[0];
    const float *u = x->g;
    int64_t      n = x->n;
    dt__vf       lr = DT__C((float)(-c->u.opt.lr * (double)x->ratio));
    for (int64_t i = 0; i < n; i += DT__W)
        DT__K(st)(p + i, DT__K(fma)(lr, DT__K(ld)(u + i), DT__K(ld)(p + i)));
}

/* n elements from 'at' as an f32 row of whole vectors: in place, or in buf, padded with zeros */
static const float *DT__K(opt_in)(float *buf, const dt_view *v, int64_t at, int64_t n)
{
    int64_t whole = (n + DT__W - 1) / DT__W * DT__W;
    if (v->dtype == DT_F32 && n == whole) return (const float *)v->data + at;
    DT__K(load_row)(buf, (const char *)v->data + at * (v->dtype == DT_F32 ? 4 : 2), v->dtype, n);
    for (int64_t i = n; i < whole; i++) buf[i] = 0;
    return buf;
}
static void DT__K(opt_piece)(const DT__K(opt_ctx) *o, int64_t at, int64_t n, float ratio)
{
    const dt_call *c = o->c;
    float          buf[6][DT__OPT_BLOCK];
    DT__K(opt_rows) x;
    x.n = (n + DT__W - 1) / DT__W * DT__W;
    x.ratio = ratio;
    for (int k = 0; k < 4; k++) {
        int there = k < o->nrw && DT__K(has_out)(c, k);
        x.r[k] = there ? (float *)(uintptr_t)DT__K(opt_in)(buf[k], &c->out[k], at, n) : NULL;
    }
    x.w = o->w >= 0 ? DT__K(opt_in)(buf[4], &c->in[o->w], at, n) : NULL;
    x.g = DT__K(opt_in)(buf[5], &c->in[o->grad], at, n);
    if (o->gmul != 1.0f) {
        dt__vf k = DT__C(o->gmul);
        for (int64_t i = 0; i < x.n; i += DT__W) DT__K(st)(buf[5] + i, k * DT__K(ld)(x.g + i));
        x.g = buf[5];
    }
    o->fn(c, &x);
    for (int k = 0; k < o->nrw; k++)
        if (x.r[k] == buf[k])
            DT__K(store_row)((char *)c->out[k].data + at * (c->out[k].dtype == DT_F32 ? 4 : 2), c->out[k].dtype,
                             buf[k], n);
    if (o->copy >= 0) {
        const dt_view *v = &c->out[o->copy];
        DT__K(store_row)((char *)v->data + at * (v->dtype == DT_F32 ? 4 : 2), v->dtype, x.r[0], n);
    }
}
static void DT__K(opt_range)(const DT__K(opt_ctx) *o, int64_t first, int64_t last, float ratio)
{
    for (int64_t at = first, n; at < last; at += n) {
        n = last - at < o->block ? last - at : o->block;
        if (n > DT__W) n -= n % DT__W;
        DT__K(opt_piece)(o, at, n, ratio);
    }
}
static float DT__K(opt_ratio)(const DT__K(opt_ctx) *o, int64_t s)
{
    const dt_call *c = o->c;
    if (!o->wnorm) return 1;
    double w = o->wnorm[s], u = o->unorm[s];
    if (c->op == DT_K_sgd) u *= fabs((double)o->gmul);
    if (w == 0 || u == 0) return 1;
    return (float)(c->op == DT_K_sgd ? c->u.opt.trust * w / (u + c->u.opt.wd * w + c->u.opt.eps) : w / u);
}
static void DT__K(opt_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(opt_ctx) *o = (const DT__K(opt_ctx) *)ctx;
    int64_t first = task * DT__OPT_TASK, last = first + DT__OPT_TASK < o->n ? first + DT__OPT_TASK : o->n;
    (void)worker;
    if (!o->seg) {
        DT__K(opt_range)(o, first, last, 1);
        return;
    }
    int64_t s = 0, end = o->nseg; /* the last segment that begins at or before 'first' */
    while (end - s > 1) {
        int64_t mid = s + (end - s) / 2;
        if (o->seg[mid] <= first) s = mid;
        else end = mid;
    }
    for (; s < o->nseg && o->seg[s] < last; s++) {
        int64_t a = o->seg[s] > first ? o->seg[s] : first, b = o->seg[s + 1] < last ? o->seg[s + 1] : last;
        if (a < b) DT__K(opt_range)(o, a, b, DT__K(opt_ratio)(o, s));
    }
}
/* gscale: the input that scales the gradient; norms: the first of three (wnorm, unorm, segments); -1 if absent */
static int DT__K(opt_run)(const dt_call *c, DT__K(opt_fn) fn, int nrw, int copy, int grad, int gscale, int norms)
{
    DT__K(opt_ctx) o;
    int plain = c->in[grad].dtype == DT_F32 && c->out[0].dtype == DT_F32;
    o.c = c;
    o.fn = fn;
    o.nrw = nrw;
    o.copy = copy >= 0 && DT__K(has_out)(c, copy) ? copy : -1;
    o.grad = grad;
    o.w = c->op == DT_K_lamb ? 0 : -1;
    o.n = c->out[0].shape[0];
    o.gmul = c->u.opt.maximize ? -1.0f : 1.0f;
    if (gscale >= 0 && DT__K(has_in)(c, gscale)) o.gmul *= *(const float *)c->in[gscale].data;
    plain = plain && o.gmul == 1.0f && o.copy < 0 && (o.w < 0 || c->in[o.w].dtype == DT_F32);
    o.block = plain ? DT__OPT_TASK : DT__OPT_BLOCK;
    o.seg = NULL;
    o.nseg = 0;
    o.wnorm = o.unorm = NULL;
    if (norms >= 0 && DT__K(has_in)(c, norms) && DT__K(has_in)(c, norms + 2)) {
        o.wnorm = (const float *)c->in[norms].data;
        o.unorm = (const float *)c->in[norms + 1].data;
        o.seg = (const int64_t *)c->in[norms + 2].data;
        o.nseg = c->in[norms].shape[0];
    }
    DT__K(run_rows)((o.n + DT__OPT_TASK - 1) / DT__OPT_TASK, DT__K(opt_task), &o, o.n * 2);
    return 0;
}
static int DT__K(sgd)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(sgd_row), 2, 2, 0, 1, 2);
}
static int DT__K(adam)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(adam_row), 4, 4, 0, 1, -1);
}
static int DT__K(rmsprop)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(rmsprop_row), 4, 4, 0, 1, -1);
}
static int DT__K(adagrad)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(adagrad_row), 2, 2, 0, 1, -1);
}
static int DT__K(lion)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(lion_row), 2, 2, 0, 1, -1);
}
static int DT__K(lamb)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(lamb_row), 3, -1, 1, 2, -1);
}
static int DT__K(lamb_apply)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(opt_run)(c, DT__K(lamb_apply_row), 1, 1, 0, -1, 1);
}

/* ---- norms: squares in double, where squares of f32 neither overflow nor underflow; a task is a piece of one segment */
typedef struct DT__K(norms_ctx) {
    const dt_call *c;
    const int64_t *seg;   /* NULL: one segment */
    int64_t        nseg, n;
    int64_t       *first; /* of each segment its first task, and the number of tasks */
    double        *part;  /* of each task */
} DT__K(norms_ctx);

static double DT__K(sum_squares)(const float *x, int64_t n)
{
    enum { H = DT__W / 2 };
    DT__K(vd_t) a = DT__K(set1d)(0.0), b = a, d = a, e = a, v;
    double      t[H], sum = 0;
    int64_t     i = 0;
    for (; i + 4 * H <= n; i += 4 * H) {
        v = DT__K(widen)(x + i);
        a = DT__K(fmad)(v, v, a);
        v = DT__K(widen)(x + i + H);
        b = DT__K(fmad)(v, v, b);
        v = DT__K(widen)(x + i + 2 * H);
        d = DT__K(fmad)(v, v, d);
        v = DT__K(widen)(x + i + 3 * H);
        e = DT__K(fmad)(v, v, e);
    }
    a = (a + b) + (d + e);
    memcpy(t, &a, sizeof t);
    for (int k = 0; k < H; k++) sum += t[k];
    for (; i < n; i++) sum = __builtin_fma((double)x[i], (double)x[i], sum);
    return sum;
}
static void DT__K(norms_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(norms_ctx) *p = (const DT__K(norms_ctx) *)ctx;
    float   buf[DT__OPT_BLOCK];
    double  sum = 0;
    int64_t s = 0, end = p->nseg; /* the last segment whose first task is at or before this one */
    (void)worker;
    while (end - s > 1) {
        int64_t mid = s + (end - s) / 2;
        if (p->first[mid] <= task) s = mid;
        else end = mid;
    }
    int64_t at = (p->seg ? p->seg[s] : 0) + (task - p->first[s]) * DT__OPT_TASK, last = p->seg ? p->seg[s + 1] : p->n;
    if (last > at + DT__OPT_TASK) last = at + DT__OPT_TASK;
    int64_t block = p->c->in[0].dtype == DT_F32 ? DT__OPT_TASK : DT__OPT_BLOCK;
    for (int64_t n; at < last; at += n) {
        n = last - at < block ? last - at : block;
        sum += DT__K(sum_squares)(DT__K(row_in)(buf, &p->c->in[0], at, n), n);
    }
    p->part[task] = sum;
}
static int DT__K(norms)(dt_device *dev, const dt_call *c)
{
    DT__K(norms_ctx) p;
    int64_t ntasks = 0;
    (void)dev;
    p.c = c;
    p.n = c->in[0].shape[0];
    p.nseg = c->out[0].shape[0];
    p.seg = DT__K(has_in)(c, 1) ? (const int64_t *)c->in[1].data : NULL;
    int64_t most = p.n / DT__OPT_TASK + p.nseg + 1;
    p.first = (int64_t *)dt_scratch((size_t)(p.nseg + 1 + most) * 8);
    if (!p.first) return DT_ERR_MEMORY;
    p.part = (double *)(void *)(p.first + p.nseg + 1);
    for (int64_t s = 0; s < p.nseg; s++) {
        int64_t len = p.seg ? p.seg[s + 1] - p.seg[s] : p.n;
        p.first[s] = ntasks;
        ntasks += len > 0 ? (len + DT__OPT_TASK - 1) / DT__OPT_TASK : 0;
    }
    p.first[p.nseg] = ntasks;
    DT__K(run_rows)(ntasks, DT__K(norms_task), &p, p.n);
    for (int64_t s = 0; s < p.nseg; s++) {
        double sum = 0;
        for (int64_t t = p.first[s]; t < p.first[s + 1]; t++) sum += p.part[t];
        ((float *)c->out[0].data)[s] = (float)sqrt(sum);
    }
    return 0;
}

/* ---- unscale */
typedef struct DT__K(unscale_ctx) {
    const dt_call *c;
    int64_t        n;
    int            bad;
} DT__K(unscale_ctx);

static void DT__K(unscale_task)(void *ctx, int64_t task, int worker)
{
    DT__K(unscale_ctx) *p = (DT__K(unscale_ctx) *)ctx;
    const dt_call *c = p->c;
    float          buf[DT__OPT_BLOCK];
    dt__vi         bad = DT__K(set1i)(0), huge = DT__K(set1i)(0x7f7fffff), mag = DT__K(set1i)(0x7fffffff);
    dt__vf         a = DT__C((float)c->u.ew.a);
    int64_t        last = (task + 1) * DT__OPT_TASK < p->n ? (task + 1) * DT__OPT_TASK : p->n;
    float         *y = DT__K(has_out)(c, 0) ? (float *)c->out[0].data : NULL;
    int            add = DT__K(acc_bit)(c, 0), any = 0;
    (void)worker;
    for (int64_t at = task * DT__OPT_TASK, n; at < last; at += n) {
        n = last - at < DT__OPT_BLOCK ? last - at : DT__OPT_BLOCK;
        const float *x = DT__K(row_in)(buf, &c->in[0], at, n);
        int64_t      i = 0;
        for (; i + DT__W <= n; i += DT__W) {
            dt__vf v = DT__K(ld)(x + i);
            bad |= (dt__vi)(((dt__vi)v & mag) > huge);
            if (y) DT__K(st)(y + at + i, add ? DT__K(fma)(a, v, DT__K(ld)(y + at + i)) : a * v);
        }
        if (i == n) continue;
        dt__vf v = DT__K(row_ld)(x + i, n - i);
        bad |= (dt__vi)(((dt__vi)v & mag) > huge);
        if (y) DT__K(row_st)(y + at + i, add ? DT__K(fma)(a, v, DT__K(row_ld)(y + at + i, n - i)) : a * v, n - i);
    }
    for (int k = 0; k < DT__W; k++) any |= bad[k];
    if (any) __atomic_store_n(&p->bad, 1, __ATOMIC_RELAXED);
}
static int DT__K(unscale)(dt_device *dev, const dt_call *c)
{
    DT__K(unscale_ctx) p;
    (void)dev;
    p.c = c;
    p.n = c->in[0].shape[0];
    p.bad = 0;
    DT__K(run_rows)((p.n + DT__OPT_TASK - 1) / DT__OPT_TASK, DT__K(unscale_task), &p, p.n);
    if (p.bad) *(float *)c->out[1].data = 1;
    return 0;
}
#undef DT__OPT_BLOCK
#undef DT__OPT_TASK
#undef DT__C

/* ==================================================================================================== >>recurrent
   One time step of a recurrent layer: what is between the products, row by row. A row of f32 is used in place, a row of halves
   goes through a buffer of the worker. */
#define DT__CELL_ROWS 16 /* most rows of operands that a step reads and writes */
typedef struct DT__K(cell_t) {
    const dt_call *c;
    int64_t        rows, n, g, per; /* g: gates; rows a task takes */
    float         *work;
    int64_t        nwork;
} DT__K(cell_t);
static const int DT__K(cell_gates)[4] = { 1, 1, 4, 3 };

static const float *DT__K(cell_in)(const DT__K(cell_t) *k, int i, int64_t row, int64_t n, float **buf)
{
    if (!DT__K(has_in)(k->c, i)) return NULL;
    float *b = *buf;
    *buf += DT__K(round16)(n);
    return DT__K(row_in)(b, &k->c->in[i], row * k->c->in[i].stride[0], n);
}
static float *DT__K(cell_out)(const DT__K(cell_t) *k, int i, int64_t row, int64_t n, float **buf)
{
    if (!DT__K(has_out)(k->c, i)) return NULL;
    float *b = *buf;
    *buf += DT__K(round16)(n);
    return DT__K(row_out)(b, &k->c->out[i], row * k->c->out[i].stride[0], 0);
}
static void DT__K(cell_end)(const DT__K(cell_t) *k, int i, int64_t row, int64_t n, const float *x)
{
    if (x) DT__K(row_end)(&k->c->out[i], row * k->c->out[i].stride[0], x, n, 0);
}
static int DT__K(cell_over)(const DT__K(cell_t) *k, int lengths, int64_t row) /* the sequence of this row has ended */
{
    if (!DT__K(has_in)(k->c, lengths)) return 0;
    const dt_view *v = &k->c->in[lengths];
    return k->c->u.cell.t >= ((const int64_t *)v->data)[row * v->stride[0]];
}

static void DT__K(cell_fwd_row)(const DT__K(cell_t) *k, int64_t row, float *buf)
{
    int64_t      n = k->n;
    int          kind = k->c->u.cell.kind;
    const float *x = DT__K(cell_in)(k, 0, row, k->g * n, &buf), *r = DT__K(cell_in)(k, 1, row, k->g * n, &buf);
    const float *h0 = DT__K(cell_in)(k, 2, row, n, &buf), *c0 = DT__K(cell_in)(k, 3, row, n, &buf);
    float       *h = DT__K(cell_out)(k, 0, row, n, &buf), *c = DT__K(cell_out)(k, 1, row, n, &buf);
    float       *y = DT__K(cell_out)(k, 2, row, n, &buf), *s = DT__K(cell_out)(k, 3, row, k->g * n, &buf);
    float       *hn = DT__K(cell_out)(k, 4, row, n, &buf);
    if (DT__K(cell_over)(k, 4, row)) {
        memcpy(h, h0, (size_t)n * 4);
        if (c) memcpy(c, c0, (size_t)n * 4);
        if (y) memset(y, 0, (size_t)n * 4);
        if (hn) memset(hn, 0, (size_t)n * 4);
        memset(s, 0, (size_t)(k->g * n) * 4);
    } else {
        for (int64_t j = 0; j < n; j += DT__W) {
            int64_t left = n - j;
            dt__vf  v = DT__K(row_ld)(x + j, left), out;
            if (kind == DT_CELL_LSTM) {
                dt__vf i = DT__K(vsigmoid)(v), f = DT__K(vsigmoid)(DT__K(row_ld)(x + n + j, left));
                dt__vf g = DT__K(vtanh)(DT__K(row_ld)(x + 2 * n + j, left)), o = DT__K(vsigmoid)(DT__K(row_ld)(x + 3 * n + j, left));
                dt__vf cc = DT__K(fma)(f, DT__K(row_ld)(c0 + j, left), i * g);
                out = o * DT__K(vtanh)(cc);
                DT__K(row_st)(s + j, i, left);
                DT__K(row_st)(s + n + j, f, left);
                DT__K(row_st)(s + 2 * n + j, g, left);
                DT__K(row_st)(s + 3 * n + j, o, left);
                DT__K(row_st)(c + j, cc, left);
            } else if (kind == DT_CELL_GRU) {
                dt__vf a = DT__K(vsigmoid)(v + DT__K(row_ld)(r + j, left));
                dt__vf z = DT__K(vsigmoid)(DT__K(row_ld)(x + n + j, left) + DT__K(row_ld)(r + n + j, left));
                dt__vf q = DT__K(row_ld)(r + 2 * n + j, left);
                dt__vf m = DT__K(vtanh)(DT__K(fma)(a, q, DT__K(row_ld)(x + 2 * n + j, left)));
                out = DT__K(fma)(z, DT__K(row_ld)(h0 + j, left) - m, m);
                DT__K(row_st)(s + j, a, left);
                DT__K(row_st)(s + n + j, z, left);
                DT__K(row_st)(s + 2 * n + j, m, left);
                DT__K(row_st)(hn + j, q, left);
            } else {
                out = kind == DT_CELL_TANH ? DT__K(vtanh)(v) : DT__K(vmax)(v, DT__K(zero)());
                DT__K(row_st)(s + j, out, left);
            }
            DT__K(row_st)(h + j, out, left);
            if (y) DT__K(row_st)(y + j, out, left);
        }
    }
    DT__K(cell_end)(k, 0, row, n, h);
    DT__K(cell_end)(k, 1, row, n, c);
    DT__K(cell_end)(k, 2, row, n, y);
    DT__K(cell_end)(k, 3, row, k->g * n, s);
    DT__K(cell_end)(k, 4, row, n, hn);
}
static void DT__K(cell_bwd_row)(const DT__K(cell_t) *k, int64_t row, float *buf)
{
    int64_t      n = k->n;
    int          kind = k->c->u.cell.kind;
    const float *dy = DT__K(cell_in)(k, 0, row, n, &buf), *dh0 = DT__K(cell_in)(k, 1, row, n, &buf);
    const float *dc0 = DT__K(cell_in)(k, 2, row, n, &buf), *s = DT__K(cell_in)(k, 3, row, k->g * n, &buf);
    const float *p = DT__K(cell_in)(k, 4, row, n, &buf), *before = DT__K(cell_in)(k, 5, row, n, &buf);
    float       *d = DT__K(cell_out)(k, 0, row, k->g * n, &buf), *dr = DT__K(cell_out)(k, 1, row, k->g * n, &buf);
    float       *dh = DT__K(cell_out)(k, 2, row, n, &buf), *dc = DT__K(cell_out)(k, 3, row, n, &buf);
    dt__vf       zero = DT__K(zero)(), one = DT__K(set1)(1.0f);
    if (DT__K(cell_over)(k, 6, row)) {
        memset(d, 0, (size_t)(k->g * n) * 4);
        if (dr) memset(dr, 0, (size_t)(k->g * n) * 4);
        for (int64_t j = 0; j < n && dh; j++) dh[j] = dh0 ? dh0[j] : 0.0f;
        for (int64_t j = 0; j < n && dc; j++) dc[j] = dc0 ? dc0[j] : 0.0f;
    } else {
        for (int64_t j = 0; j < n; j += DT__W) {
            int64_t left = n - j;
            dt__vf  g = dy ? DT__K(row_ld)(dy + j, left) : zero, pass = zero;
            if (dh0) g += DT__K(row_ld)(dh0 + j, left);
            if (kind == DT_CELL_LSTM) {
                dt__vf i = DT__K(row_ld)(s + j, left), f = DT__K(row_ld)(s + n + j, left);
                dt__vf q = DT__K(row_ld)(s + 2 * n + j, left), o = DT__K(row_ld)(s + 3 * n + j, left);
                dt__vf t = DT__K(vtanh)(DT__K(row_ld)(p + j, left)), gc = g * o * (one - t * t);
                if (dc0) gc += DT__K(row_ld)(dc0 + j, left);
                DT__K(row_st)(d + j, gc * q * i * (one - i), left);
                DT__K(row_st)(d + n + j, gc * DT__K(row_ld)(before + j, left) * f * (one - f), left);
                DT__K(row_st)(d + 2 * n + j, gc * i * (one - q * q), left);
                DT__K(row_st)(d + 3 * n + j, g * t * o * (one - o), left);
                DT__K(row_st)(dc + j, gc * f, left);
            } else if (kind == DT_CELL_GRU) {
                dt__vf a = DT__K(row_ld)(s + j, left), z = DT__K(row_ld)(s + n + j, left), m = DT__K(row_ld)(s + 2 * n + j, left);
                dt__vf dm = g * (one - z) * (one - m * m), da = dm * DT__K(row_ld)(p + j, left) * a * (one - a);
                dt__vf dz = g * (DT__K(row_ld)(before + j, left) - m) * z * (one - z);
                pass = g * z;
                DT__K(row_st)(d + j, da, left);
                DT__K(row_st)(d + n + j, dz, left);
                DT__K(row_st)(d + 2 * n + j, dm, left);
                DT__K(row_st)(dr + j, da, left);
                DT__K(row_st)(dr + n + j, dz, left);
                DT__K(row_st)(dr + 2 * n + j, dm * a, left);
            } else {
                dt__vf h = DT__K(row_ld)(s + j, left);
                DT__K(row_st)(d + j, kind == DT_CELL_TANH ? g * (one - h * h) : DT__K(sel)((dt__vi)(h > zero), g, zero), left);
            }
            if (dh) DT__K(row_st)(dh + j, pass, left);
        }
    }
    DT__K(cell_end)(k, 0, row, k->g * n, d);
    DT__K(cell_end)(k, 1, row, k->g * n, dr);
    DT__K(cell_end)(k, 2, row, n, dh);
    DT__K(cell_end)(k, 3, row, n, dc);
}
static void DT__K(cell_fwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(cell_t) *k = (const DT__K(cell_t) *)ctx;
    for (int64_t r = task * k->per; r < k->rows && r < (task + 1) * k->per; r++) DT__K(cell_fwd_row)(k, r, k->work + worker * k->nwork);
}
static void DT__K(cell_bwd_task)(void *ctx, int64_t task, int worker)
{
    const DT__K(cell_t) *k = (const DT__K(cell_t) *)ctx;
    for (int64_t r = task * k->per; r < k->rows && r < (task + 1) * k->per; r++) DT__K(cell_bwd_row)(k, r, k->work + worker * k->nwork);
}
static int DT__K(cell_run)(const dt_call *c, const dt_view *gates, dt__task_fn fn)
{
    DT__K(cell_t) k;
    memset(&k, 0, sizeof k);
    k.c = c;
    k.g = DT__K(cell_gates)[c->u.cell.kind];
    k.rows = gates->shape[0];
    k.n = gates->shape[1] / k.g;
    k.nwork = DT__CELL_ROWS * DT__K(round16)(k.n) + 16 * DT__CELL_ROWS;
    if (k.rows == 0 || k.n == 0) return 0;
    k.work = (float *)dt_scratch((size_t)k.nwork * 4 * (size_t)dt__pool_size());
    if (!k.work) return DT_ERR_MEMORY;
    int64_t ntasks = dt__cut(k.rows, 12 * k.g * k.n, 65536, &k.per);
    DT__K(run_rows)(ntasks, fn, &k, 4 * k.rows * k.g * k.n);
    return 0;
}
static int DT__K(rnn_cell)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(cell_run)(c, &c->in[0], DT__K(cell_fwd_task));
}
static int DT__K(rnn_cell_bwd)(dt_device *dev, const dt_call *c)
{
    (void)dev;
    return DT__K(cell_run)(c, &c->out[0], DT__K(cell_bwd_task));
}
#undef DT__CELL_ROWS

/* ==================================================================================================== >>table */
#define DT__ENTRY(name) DT__K(name),
DT__TABLE const dt_kernel DT__K(table)[DT_K_COUNT] = { DT_KERNELS(DT__ENTRY) };
#undef DT__ENTRY

#undef DT__ISA
#undef DT__W
#undef DT__HAS_AVX2
#undef DT__INLINE
#undef DT__CALLED
#undef DT__FAST
#undef DT__MR
#undef DT__NR
#undef dt__vf
#undef dt__vi
#undef dt__vu
#endif /* DT__ISA */
