/* dt_nccl.h - v0.2.0 - several GPUs by NCCL: communicators of dt_comm.h on their memory, and dt_parallel */
/*
DO THIS

    #define DT_IMPLEMENTATION
    #include "dt_nccl.h"

    in one C or C++ file, with -DDT_USE_CUDA -DDT_USE_NCCL and the libraries of dt_cuda.h, and -lnccl:

        nvcc -O3 -arch=native -DDT_USE_CUDA -DDT_USE_NCCL train.c kernels/dt_kernels.cu -lcublas -lcudnn -lnccl

    It adds no calls. With this header in the program, dt_comm_init(.backend = DT_NCCL) returns communicators that accept
    GPU memory (dt_net.h, >>joining), so that dt_ddp trains models on GPUs; and the GPUs of one program (dt_parallel)
    exchange data by NCCL. Without it, or without DT_USE_NCCL, dt_comm_init returns an error that says so, and dt_parallel
    copies between GPUs.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_nccl.h"
    #include <stdio.h>

    int main(void)
    {
        dt_comm *c = dt_comm_init(.backend = DT_NCCL);
        if (!c) {
            printf("%s\n", dt_comm_error(NULL)); // this program was built without NCCL
            return 0;
        }
        dt_device *gpu = dt_cuda(dt_comm_local_rank(c)); // the GPU with the number of the local rank
        if (!gpu) {
            printf("%s\n", dt_error());
            return dt_comm_free(c);
        }
        dt_tensor *x = dt_full(dt_comm_rank(c) + 1, DT_SHAPE(1000), .device = gpu);
        dt_comm_allreduce(c, dt_data_ptr(x), 1000, DT_COMM_F32, DT_COMM_SUM);
        printf("rank %d of %d: %g\n", dt_comm_rank(c), dt_comm_size(c), dt_item(dt_amax(x)));
        dt_end();
        int bad = dt_check("nccl");
        return dt_comm_free(c) || bad;
    }

WHAT IT DOES NOT DO

    It has not been run on a GPU yet: docs/gpu.md says what was verified, and how. Collectives are allreduce, broadcast,
    reduce, reduce_scatter and allgather, beside send and recv. A process has one GPU for each communicator.

CONTENTS

    >>nccl           implementation: GPU memory in communicators of dt_comm.h
    >>devices        blocks of several devices of one program
    >>register       registration with dt_comm.h and dt_cuda.h

LINKING

    No symbol of a program refers to this implementation: a constructor registers it before main. Therefore the linker takes
    its object from a static library only if the object also holds the implementations of other headers (dt.c), or with
    -Wl,--whole-archive.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_NCCL_IMPLEMENTATION)
#define DT_NCCL_IMPLEMENTATION
#endif
#include "dt_cuda.h"
#include "dt_comm.h"

#ifndef DT_NCCL_H_INCLUDED
#define DT_NCCL_H_INCLUDED
#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_nccl.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif
#endif /* DT_NCCL_H_INCLUDED */

#if defined(DT_NCCL_IMPLEMENTATION) && !defined(DT__NCCL_IMPLEMENTED)
#define DT__NCCL_IMPLEMENTED
#if defined(DT_USE_CUDA) && defined(DT_USE_NCCL)
#if defined(DT_STATIC) && (!defined(DT__CUDA_IMPLEMENTED) || !defined(DT__COMM_IMPLEMENTED))
#error "dt_nccl.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_NCCL_IMPLEMENTATION"
#endif
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <signal.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(NCCL);
DT__NEEDS(NCCL, CUDA);
DT__NEEDS(NCCL, COMM);

/* ==================================================================================================== >>nccl
   GPU memory in the communicators of dt_comm.h: the implementation of dt__device_transport. NCCL communicators are created by
   the first call that needs one: one for the collectives of a dt_comm, and one for the messages of each pair and direction.
   Each has its own stream, so a send never waits for a receive or a collective that was queued before it, and ranks that send
   to each other at the same time do not deadlock. They are non-blocking. Each dt_comm has a watchdog thread, which aborts
   queued work when the dt_comm fails or its timeout passes.

   Messages. The record of the sender goes by the host's messages, so tags are matched there; the data follow on the stream of
   the pair, where NCCL matches the n-th send with the n-th receive. Therefore each message takes a number when its call
   begins (given), they are queued in that order (queued), and the record carries the sender's number: a receiver that has
   another one reports it. A message that ends without having been queued would leave a gap that the other side does not
   have: the communicator fails.

   One order. Every collective of a communicator takes a turn of its GPU when its call begins, and NCCL gets the collectives of all
   communicators of this process in that order; so ranks that make the same calls in the same order give NCCL one order. A GPU
   need not have room for the kernels of two collectives at once. If one rank ran them in one order and another rank in the other
   order, each would wait for what the other has not begun. NCCL 2.26 and later start their kernels in the order of these calls
   (NCCL_LAUNCH_ORDER_IMPLICIT, set before main); for an older NCCL an event makes each collective wait for the one before. A
   collective in two levels keeps its turn until its last part is queued. Messages take no turns: they are small, and a rank must
   be able to send while it receives.

   Loading. CUDA loads a kernel when it is first used, and may wait for all work of the GPU to do so. If that work is a collective
   or a receive that waits for another rank, which waits for this one, both hang. Therefore programs with this header load all kernels
   at once (CUDA_MODULE_LOADING=EAGER, set before main unless the environment says otherwise), and a dt_comm creates the handles of
   the libraries before its first call on GPU memory.

   Threads: begin, wait and alone run on the program's thread, poll on the thread that drives the engine, dt__nccl_main is
   the watchdog thread.
   Locks: dt__nccl_turns.lock protects the list of turns and is taken last. n->lock protects the lists of jobs, their reference counts, quit, ended, and the ncclComm_t of every link. To abort,
   a thread takes the ncclComm_t out of the link under the lock and calls ncclCommAbort without the lock.
   A job: begin creates it; poll issues and queues it; the watchdog keeps it until its event 'done' has passed; when wait and
   the watchdog have both dropped it, it is kept for reuse. */
enum { DT__NCCL_NUMBER = 4, /* bytes of a record: [0]: is there an id; then the number of a message, then the id or why not */
       DT__NCCL_ID = 8 };
typedef struct dt__nccl_link {
    ncclComm_t   comm;
    cudaStream_t stream;
    bool         named; /* its ncclUniqueId was created */
    uint32_t     given, queued; /* messages: numbers that were given to calls; the next one that may be queued */
} dt__nccl_link;
typedef struct dt__nccl_job {
    dt__job              base;
    struct dt__nccl_job *next; /* in the list 'queued' or 'spare' */
    struct dt__nccl     *n;
    dt__nccl_link       *link;
    int                  refs; /* one of the work, one of the watchdog; under the lock */
    int                  coll, dtype, op, root;
    const char          *in;
    char                *out;
    int64_t              count, *counts; /* counts: the counts of all ranks, then their offsets; NULL: equal counts */
    uint32_t             number; /* of a message */
    struct dt__nccl_job *later;  /* in the list of turns, while in_turn */
    bool                 in_turn;
    bool                 first, issued, told; /* told: it is queued, and the watchdog knows it */
    cudaEvent_t          ready, begun, done;
    int64_t              since; /* ns: when it was queued */
    uint64_t             seq;
    /* two levels */
    bool     two;
    int      phase;
    dt_work *sub;
} dt__nccl_job;
typedef struct dt__nccl {
    dt_comm        *c;
    dt_device      *dev;
    dt__nccl_link   all, *to, *from; /* by peer */
    pthread_mutex_t lock;
    pthread_cond_t  cond;
    pthread_t       thread;
    int             refs;
    bool            watching, quit, ended;
    dt__nccl_job   *queued, *spare;
    /* Two levels. inside: the ranks of this machine; across: the ranks of all machines with the same local rank. */
    dt_comm *inside, *across; /* inside NULL: one level; across NULL: this rank sends nothing to other machines */
    bool     equal;           /* all machines have the same number of ranks */
    void    *stream;          /* a stream of dt_cuda.h's device table */
    void    *stage;
    size_t   stage_n;
} dt__nccl;

/* ---- turns of all communicators of the process */
static struct dt__nccl_turns {
    pthread_mutex_t lock;
    pthread_cond_t  passed;
    dt__nccl_job   *first[DT__CUDA_DEVICES];  /* by device: collectives that NCCL has not got yet */
    cudaEvent_t     last[DT__CUDA_DEVICES];   /* behind the one that it got last, for NCCL below 2.26 */
} dt__nccl_turns = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, { NULL }, { NULL } };
static __thread bool dt__nccl_within; /* this thread runs a collective of two levels, which has the turn of its parts */

static void dt__nccl_turn_take(dt__nccl_job *j)
{
    dt__nccl_job **at = &dt__nccl_turns.first[j->n->dev->index];
    pthread_mutex_lock(&dt__nccl_turns.lock);
    while (*at) at = &(*at)->later;
    *at = j;
    j->later = NULL;
    j->in_turn = true;
    pthread_mutex_unlock(&dt__nccl_turns.lock);
}
static void dt__nccl_turn_pass(dt__nccl_job *j) /* NCCL has it, or it has failed */
{
    dt__nccl_job **at = &dt__nccl_turns.first[j->n->dev->index];
    pthread_mutex_lock(&dt__nccl_turns.lock);
    if (j->in_turn) {
        while (*at != j) at = &(*at)->later;
        *at = j->later;
        j->in_turn = false;
        pthread_cond_broadcast(&dt__nccl_turns.passed);
    }
    pthread_mutex_unlock(&dt__nccl_turns.lock);
}
/* The first turn of a device that does not belong to a communicator that has failed; called with the lock held. */
static dt__nccl_job *dt__nccl_turn_first(int device)
{
    dt__nccl_job *j = dt__nccl_turns.first[device];
    while (j && !dt__comm_ok(j->n->c)) j = j->later;
    return j;
}
static bool dt__nccl_turn_is(const dt__nccl_job *j)
{
    if (!j->in_turn) return true; /* a message, or a part of a collective that has the turn */
    pthread_mutex_lock(&dt__nccl_turns.lock);
    bool yes = dt__nccl_turn_first(j->n->dev->index) == j;
    pthread_mutex_unlock(&dt__nccl_turns.lock);
    return yes;
}
static void dt__nccl_turn_drop(const dt__nccl *n) /* the communicator ends */
{
    pthread_mutex_lock(&dt__nccl_turns.lock);
    for (dt__nccl_job **at = &dt__nccl_turns.first[n->dev->index]; *at;) {
        dt__nccl_job *j = *at;
        if (j->n == n) {
            *at = j->later;
            j->in_turn = false;
        } else at = &j->later;
    }
    pthread_cond_broadcast(&dt__nccl_turns.passed);
    pthread_mutex_unlock(&dt__nccl_turns.lock);
}
static void dt__nccl_turn_wait(int device) /* until NCCL has got all collectives that were begun before */
{
    pthread_mutex_lock(&dt__nccl_turns.lock);
    while (dt__nccl_turn_first(device)) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t); /* a communicator may fail without passing a turn: look again in a while */
        t.tv_nsec += 10000000;
        if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&dt__nccl_turns.passed, &dt__nccl_turns.lock, &t);
    }
    pthread_mutex_unlock(&dt__nccl_turns.lock);
}
static bool dt__nccl_orders(void) /* does this NCCL start kernels in the order of the calls? */
{
    static int version;
    int        v = __atomic_load_n(&version, __ATOMIC_RELAXED);
    if (!v && ncclGetVersion(&v) == ncclSuccess) __atomic_store_n(&version, v, __ATOMIC_RELAXED);
    const char *set = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return v >= 22600 && set && strcmp(set, "1") == 0;
}
/* For an older NCCL: the collective that has the turn waits on its stream for the one before (begins), or is the one before. */
static cudaError_t dt__nccl_turn_chain(const dt__nccl_job *j, cudaStream_t stream, bool begins)
{
    cudaEvent_t *last = &dt__nccl_turns.last[j->n->dev->index];
    cudaError_t  e = cudaSuccess;
    if (j->coll == DT_COLL_SEND || j->coll == DT_COLL_RECV || dt__nccl_orders()) return e;
    if (begins) return *last ? cudaStreamWaitEvent(stream, *last, 0) : e;
    if (!*last) e = cudaEventCreateWithFlags(last, cudaEventDisableTiming);
    return e == cudaSuccess ? cudaEventRecord(*last, stream) : e;
}
static int dt__nccl_bad(dt_comm *c, const char *call, ncclResult_t r)
{
    return dt__comm_fail(c, DT_COMM_ERR_NET, c->rank, "rank %d: %s: %s (%.300s)", c->rank, call, ncclGetErrorString(r),
                         ncclGetLastError(NULL));
}
static int dt__nccl_cuda(dt_comm *c, const char *call, cudaError_t e)
{
    if (e == cudaSuccess) return 0;
    (void)cudaGetLastError();
    return dt__comm_fail(c, DT_COMM_ERR_NET, c->rank, "rank %d: %s: %s", c->rank, call, cudaGetErrorString(e));
}
static int dt__nccl_owns(dt_comm *c, const void *ptr)
{
    struct cudaPointerAttributes a;
    (void)c;
    memset(&a, 0, sizeof a);
    if (cudaPointerGetAttributes(&a, ptr) == cudaSuccess)
        return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
    (void)cudaGetLastError(); /* without a driver all memory is host memory */
    return 0;
}
static cudaStream_t dt__nccl_stream_of(dt_device *dev, void *stream) /* the CUDA stream of a stream of the device table */
{
    return (cudaStream_t)dt__cuda_stream(dev, stream);
}
static cudaStream_t dt__nccl_queue_of(dt_device *dev) /* the CUDA stream that this thread uses */
{
    return dt__nccl_stream_of(dev, dt__stream(dev));
}
static void dt__nccl_unref(dt__nccl *n) /* called with the lock held; releases it */
{
    bool last = --n->refs == 0;
    pthread_mutex_unlock(&n->lock);
    if (!last) return;
    pthread_mutex_destroy(&n->lock);
    pthread_cond_destroy(&n->cond);
    DT_COMM_FREE(n->to);
    DT_COMM_FREE(n);
}
static void dt__nccl_job_end(dt__nccl_job *j) /* frees the job */
{
    if (j->ready) (void)cudaEventDestroy(j->ready);
    if (j->begun) (void)cudaEventDestroy(j->begun);
    if (j->done) (void)cudaEventDestroy(j->done);
    DT_COMM_FREE(j->counts);
    DT_COMM_FREE(j);
}
static void dt__nccl_drop(dt__nccl_job *j) /* drops one reference */
{
    dt__nccl *n = j->n;
    pthread_mutex_lock(&n->lock);
    if (j->refs == 1) dt__nccl_turn_pass(j);
    if (--j->refs) {
        pthread_mutex_unlock(&n->lock);
        return;
    }
    if (n->quit) {
        dt__nccl_job_end(j);
    } else { /* its events are reused */
        j->next = n->spare;
        n->spare = j;
    }
    dt__nccl_unref(n);
}

/* ---- the watchdog */
static int64_t dt__nccl_wait(dt__nccl *n, double seconds) /* called with the lock held; returns the time, ns */
{
    int64_t         until = dt__comm_now() + dt__ns_of(seconds);
    struct timespec t;
    t = dt__timespec_of(until);
    pthread_cond_timedwait(&n->cond, &n->lock, &t);
    return dt__comm_now();
}
/* Iterates over the NCCL communicators; which: the number of the first that is considered. */
static dt__nccl_link *dt__nccl_next(dt__nccl *n, int *which)
{
    int size = n->c->size, i;
    while ((i = (*which)++) <= 2 * size) {
        dt__nccl_link *l = i ? &n->to[i - 1] : &n->all;
        if (l->comm || l->stream) return l;
    }
    return NULL;
}
static void dt__nccl_abort(dt__nccl *n) /* aborts all queued work; any thread */
{
    for (;;) {
        ncclComm_t comm = NULL;
        int        which = 0;
        pthread_mutex_lock(&n->lock);
        for (dt__nccl_link *l; !comm && (l = dt__nccl_next(n, &which)) != NULL;) {
            comm = l->comm;
            l->comm = NULL;
        }
        pthread_mutex_unlock(&n->lock);
        if (!comm) return;
        (void)ncclCommAbort(comm); /* may take long, so the lock is not held */
    }
}
/* After the last call, on all ranks: finalises and destroys the NCCL communicators, unless another thread aborts them. */
static void dt__nccl_finish(dt__nccl *n)
{
    int which = 0;
    pthread_mutex_lock(&n->lock);
    for (dt__nccl_link *l; (l = dt__nccl_next(n, &which)) != NULL;) {
        cudaStream_t stream = l->stream;
        ncclResult_t r = ncclInProgress;
        pthread_mutex_unlock(&n->lock);
        (void)cudaStreamSynchronize(stream);
        pthread_mutex_lock(&n->lock);
        if (l->comm) (void)ncclCommFinalize(l->comm);
        while (l->comm && ncclCommGetAsyncError(l->comm, &r) == ncclSuccess && r == ncclInProgress)
            dt__nccl_wait(n, 0.0005);
        if (l->comm) (void)ncclCommDestroy(l->comm);
        l->comm = NULL;
    }
    pthread_mutex_unlock(&n->lock);
}
/* The asynchronous state of the NCCL communicator. 0: no error; 1: busy; negative: failed, see text. */
static int dt__nccl_async(const dt__nccl_job *j, char *text, size_t nbytes)
{
    ncclComm_t   comm = j->link ? j->link->comm : NULL;
    ncclResult_t r = ncclSuccess, e = comm ? ncclCommGetAsyncError(comm, &r) : ncclSuccess;
    if (e == ncclSuccess) e = r;
    if (e == ncclSuccess || e == ncclInProgress) return e == ncclInProgress;
    snprintf(text, nbytes, "rank %d: %s #%" PRIu64 ": NCCL: %s (%.200s)", j->n->c->rank,
             dt_coll_name((dt_coll)j->coll), j->seq + 1, ncclGetErrorString(e), ncclGetLastError(comm));
    return DT_COMM_ERR_NET;
}
/* Checks all queued jobs and removes finished ones; called with the lock held. 0, or the status of a failure, see text. */
static int dt__nccl_look(dt__nccl *n, dt__nccl_job **over, char *text, size_t nbytes)
{
    int64_t now = dt__comm_now();
    bool    oldest = true;
    int     status = 0;
    for (dt__nccl_job **at = &n->queued; *at && !status;) {
        dt__nccl_job *j = *at;
        cudaError_t   e = cudaEventQuery(j->done);
        float         ms = 0;
        double        waited = dt__seconds_of(now - j->since);
        if (e == cudaSuccess) {
            if (cudaEventElapsedTime(&ms, j->begun, j->done) == cudaSuccess)
                __atomic_fetch_add(&n->c->engine->counters.device, (int64_t)((double)ms * DT__NS_PER_MS), __ATOMIC_RELAXED);
            *at = j->next;
            j->next = *over;
            *over = j;
            continue;
        }
        (void)cudaGetLastError();
        if (e != cudaErrorNotReady) {
            status = DT_COMM_ERR_NET;
            snprintf(text, nbytes, "rank %d: %s #%" PRIu64 " failed on its GPU: %s", n->c->rank,
                     dt_coll_name((dt_coll)j->coll), j->seq + 1, cudaGetErrorString(e));
        } else if ((status = dt__nccl_async(j, text, nbytes)) >= 0 && oldest && waited > n->c->timeout) {
            /* a rank whose GPU has not begun the job is at fault, and reports it first */
            bool begun = cudaEventQuery(j->ready) == cudaSuccess;
            (void)cudaGetLastError();
            status = !begun || waited > n->c->timeout + 1 ? DT_COMM_ERR_TIMEOUT : 0;
            if (status)
                snprintf(text, nbytes, "%s #%" PRIu64 " of %" PRId64 " %s was not done after %.1f s: rank %d %s",
                         dt_coll_name((dt_coll)j->coll), j->seq + 1, j->count, dt__comm_dtype_name(j->dtype),
                         n->c->timeout, n->c->rank,
                         begun ? "waits for it on its GPU" : "has earlier work running on its GPU");
        }
        if (status > 0) status = 0;
        oldest = false; /* later jobs may only be waiting for it */
        at = &j->next;
    }
    return status;
}
static void *dt__nccl_main(void *arg)
{
    enum { EVERY = 12 }; /* the GPU is queried only every 12th time, the communicator always */
    dt__nccl *n = (dt__nccl *)arg;
    char      text[600];
    (void)cudaSetDevice(n->dev->index);
    pthread_mutex_lock(&n->lock);
    for (int turn = 0; !n->quit; turn++) {
        dt__nccl_job *over = NULL;
        bool          failed = !dt__comm_ok(n->c);
        int           status = 0;
        if (!failed && turn % EVERY == EVERY - 1) status = dt__nccl_look(n, &over, text, sizeof text);
        pthread_mutex_unlock(&n->lock);
        for (dt__nccl_job *j; (j = over) != NULL;) {
            over = j->next;
            dt__nccl_drop(j);
        }
        if (status) dt__comm_fail(n->c, status, n->c->rank, "%s", text);
        if (failed || status) dt__nccl_abort(n);
        pthread_mutex_lock(&n->lock);
        while (!n->quit && !n->queued) pthread_cond_wait(&n->cond, &n->lock);
        if (!n->quit) dt__nccl_wait(n, 0.02);
    }
    pthread_mutex_unlock(&n->lock);
    if (dt__comm_ok(n->c)) dt__nccl_finish(n);
    else dt__nccl_abort(n);
    pthread_mutex_lock(&n->lock);
    n->ended = true;
    pthread_cond_broadcast(&n->cond);
    dt__nccl_unref(n);
    return NULL;
}
static dt__nccl *dt__nccl_new(dt_comm *c, dt_device *dev)
{
    dt__nccl          *n = (dt__nccl *)dt__comm_zeroed(1, sizeof *n);
    pthread_condattr_t how;
    sigset_t           all, before;
    if (n) n->to = (dt__nccl_link *)dt__comm_zeroed(2 * (size_t)c->size, sizeof *n->to);
    if (!n || !n->to) {
        DT_COMM_FREE(n);
        return NULL;
    }
    n->from = n->to + c->size;
    n->c = c;
    n->dev = dev;
    n->refs = 2;
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(&n->cond, &how);
    pthread_condattr_destroy(&how);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    n->watching = !pthread_create(&n->thread, NULL, dt__nccl_main, n);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (n->watching) return n;
    n->refs = 1;
    pthread_mutex_lock(&n->lock);
    dt__nccl_unref(n);
    return NULL;
}

/* ---- jobs */
static dt_device *dt__nccl_device(dt_comm *c, const void *ptr) /* the GPU of this memory; NULL: c has failed */
{
    struct cudaPointerAttributes a;
    dt__nccl                    *n = (dt__nccl *)c->devices;
    memset(&a, 0, sizeof a);
    if (dt__nccl_cuda(c, "cudaPointerGetAttributes", cudaPointerGetAttributes(&a, ptr))) return NULL;
    if (n && n->dev->index == a.device) return n->dev;
    if (n) {
        dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank,
                      "rank %d: a buffer is on cuda:%d, expected cuda:%d, where the first buffer of this communicator was",
                      c->rank, a.device, n->dev->index);
        return NULL;
    }
    dt_device *dev = dt_cuda(a.device);
    if (dev) return dev;
    dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s", c->rank, dt_error());
    return NULL;
}
static dt__nccl_job *dt__nccl_job_new(dt__nccl *n)
{
    dt__nccl_job *j;
    dt_comm      *c = n->c;
    pthread_mutex_lock(&n->lock);
    if ((j = n->spare) != NULL) n->spare = j->next;
    n->refs++;
    pthread_mutex_unlock(&n->lock);
    if (!j && (j = (dt__nccl_job *)dt__comm_zeroed(1, sizeof *j)) != NULL) {
        if (dt__nccl_cuda(c, "cudaEventCreate", cudaEventCreateWithFlags(&j->ready, cudaEventDisableTiming)) ||
            dt__nccl_cuda(c, "cudaEventCreate", cudaEventCreate(&j->begun)) ||
            dt__nccl_cuda(c, "cudaEventCreate", cudaEventCreate(&j->done))) {
            dt__nccl_job_end(j);
            j = NULL;
        }
    }
    if (!j) {
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: out of memory", c->rank);
        pthread_mutex_lock(&n->lock);
        dt__nccl_unref(n);
        return NULL;
    }
    DT_COMM_FREE(j->counts);
    j->counts = NULL;
    j->next = NULL;
    j->n = n;
    j->link = NULL;
    j->refs = 1;
    j->first = j->issued = j->told = j->two = j->in_turn = false;
    j->phase = 0;
    j->sub = NULL;
    memset(j->base.record, 0, sizeof j->base.record);
    return j;
}
static bool dt__nccl_is_message(const dt__nccl_job *j) { return j->coll == DT_COLL_SEND || j->coll == DT_COLL_RECV; }
/* Selects the NCCL communicator of a job. If it is new, its id is created: for messages by the sender, else by rank 0. */
static void dt__nccl_name(dt_comm *c, dt__nccl_job *j)
{
    dt__nccl    *n = j->n;
    bool         mine = j->coll == DT_COLL_SEND || (j->coll != DT_COLL_RECV && c->rank == 0);
    ncclUniqueId id;
    j->link = j->coll == DT_COLL_SEND ? &n->to[j->root] : j->coll == DT_COLL_RECV ? &n->from[j->root] : &n->all;
    j->first = !j->link->named;
    j->link->named = true;
    if (dt__nccl_is_message(j)) j->number = j->link->given++;
    if (j->coll == DT_COLL_SEND) memcpy(j->base.record + DT__NCCL_NUMBER, &j->number, sizeof j->number);
    if (!j->first || !mine) return;
    ncclResult_t r = ncclGetUniqueId(&id);
    j->base.record[0] = r == ncclSuccess ? 1 : 2;
    if (r == ncclSuccess) memcpy(j->base.record + DT__NCCL_ID, id.internal, sizeof id.internal);
    else
        snprintf(j->base.record + DT__NCCL_ID, sizeof j->base.record - DT__NCCL_ID, "ncclGetUniqueId: %s",
                 ncclGetErrorString(r));
}
/* Stores the counts of all ranks; a single count if they are equal. */
static int dt__nccl_count(dt_comm *c, dt__nccl_job *j, const int64_t *counts)
{
    bool equal = true;
    for (int i = 1; i < c->size; i++) equal = equal && counts[i] == counts[0];
    j->count = counts[0];
    if (equal) return 0;
    j->counts = (int64_t *)DT_COMM_MALLOC(2 * (size_t)c->size * sizeof *j->counts);
    if (!j->counts) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: out of memory", c->rank);
    for (int i = 0; i < c->size; i++) {
        j->counts[i] = counts[i];
        j->counts[c->size + i] = i ? j->counts[c->size + i - 1] + counts[i - 1] : 0;
    }
    return 0;
}
static int      dt__nccl_levels(dt_comm *c, dt__nccl *n);
static dt__job *dt__nccl_begin(dt_comm *c, const dt__call *a)
{
    dt_device *dev = dt__nccl_device(c, a->coll == DT_COLL_REDUCE_SCATTER ? a->in : a->out);
    dt__nccl  *n = (dt__nccl *)c->devices;
    if (!dev || dt__nccl_cuda(c, "cudaSetDevice", cudaSetDevice(dev->index))) return NULL;
    if (!n && dt__cuda_prepare(dev)) {
        dt__comm_fail(c, DT_COMM_ERR_NET, c->rank, "rank %d: %s", c->rank, dt_error());
        return NULL;
    }
    if (!n && (c->devices = n = dt__nccl_new(c, dev)) == NULL)
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: cannot get memory or a thread for NCCL", c->rank);
    if (!n || (a->coll == DT_COLL_ALLREDUCE && dt__nccl_levels(c, n))) return NULL;
    dt__nccl_job *j = dt__nccl_job_new(n);
    if (!j) return NULL;
    j->coll = (int)a->coll;
    j->dtype = a->dtype;
    j->op = a->op;
    j->root = a->root;
    j->in = (const char *)a->in;
    j->out = (char *)a->out;
    j->count = a->n;
    j->seq = c->seq;
    j->two = n->inside && a->coll == DT_COLL_ALLREDUCE;
    int bad = a->counts ? dt__nccl_count(c, j, a->counts) : 0;
    if (!j->two) dt__nccl_name(c, j);
    if (!bad && !dt__nccl_cuda(c, "cudaEventRecord", cudaEventRecord(j->ready, dt__nccl_queue_of(dev)))) {
        if (!dt__nccl_is_message(j) && !dt__nccl_within) dt__nccl_turn_take(j);
        return &j->base;
    }
    dt__nccl_drop(j);
    return NULL;
}
static ncclDataType_t dt__nccl_type(int dtype)
{
    switch (dtype) {
    case DT_COMM_F16: return ncclFloat16;
    case DT_COMM_BF16: return ncclBfloat16;
    case DT_COMM_I32: return ncclInt32;
    case DT_COMM_I64: return ncclInt64;
    case DT_COMM_U8: return ncclUint8;
    case DT_COMM_F64: return ncclFloat64;
    case DT_COMM_F32: return ncclFloat32;
    default: return ncclNumTypes; /* NCCL refuses it */
    }
}
static ncclRedOp_t dt__nccl_op(int op)
{
    return op == DT_COMM_MEAN   ? ncclAvg
           : op == DT_COMM_MIN  ? ncclMin
           : op == DT_COMM_MAX  ? ncclMax
           : op == DT_COMM_PROD ? ncclProd
                                : ncclSum;
}
/* Parts of unequal size: one reduction to each rank, or one broadcast from each rank. */
static ncclResult_t dt__nccl_parts(const dt__nccl_job *j, int rank, int size, ncclDataType_t t, ncclComm_t comm)
{
    size_t       e = dt__elem_nbytes(j->dtype);
    ncclResult_t r = ncclGroupStart(), end;
    for (int i = 0; i < size && r == ncclSuccess; i++) {
        char       *at = (j->coll == DT_COLL_ALLGATHER ? j->out : NULL) + (size_t)j->counts[size + i] * e;
        const char *from = j->in + (size_t)j->counts[size + i] * e;
        if (!j->counts[i]) continue;
        if (j->coll == DT_COLL_ALLGATHER)
            r = ncclBroadcast(i == rank && j->in ? j->in : at, at, (size_t)j->counts[i], t, i, comm, j->link->stream);
        else r = ncclReduce(from, j->out, (size_t)j->counts[i], t, dt__nccl_op(j->op), i, comm, j->link->stream);
    }
    end = ncclGroupEnd();
    return r == ncclSuccess ? end : r;
}
static ncclResult_t dt__nccl_call(const dt__nccl_job *j, int rank, int size, const char **name)
{
    static const char *const names[] = { "",           "ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                         "ncclBroadcast", "ncclReduce",    "",                  "",
                                         "",           "ncclSend",      "ncclRecv" };
    ncclDataType_t t = dt__nccl_type(j->dtype);
    ncclRedOp_t    op = dt__nccl_op(j->op);
    cudaStream_t   s = j->link->stream;
    ncclComm_t     comm = j->link->comm;
    size_t         n = (size_t)j->count;
    const char    *mine = j->in ? j->in : j->out + n * dt__elem_nbytes(j->dtype) * (size_t)rank;
    *name = names[j->coll];
    if (j->counts) return dt__nccl_parts(j, rank, size, t, comm);
    switch (j->coll) {
    case DT_COLL_ALLREDUCE: return ncclAllReduce(j->out, j->out, n, t, op, comm, s);
    case DT_COLL_REDUCE_SCATTER: return ncclReduceScatter(j->in, j->out, n, t, op, comm, s);
    case DT_COLL_ALLGATHER: return ncclAllGather(mine, j->out, n, t, comm, s);
    case DT_COLL_BROADCAST: return ncclBroadcast(j->out, j->out, n, t, j->root, comm, s);
    case DT_COLL_REDUCE: return ncclReduce(j->out, j->out, n, t, op, j->root, comm, s);
    case DT_COLL_SEND: return ncclSend(j->out, n, t, 1, comm, s);
    case DT_COLL_RECV: return ncclRecv(j->out, n, t, 0, comm, s);
    default: return ncclInvalidUsage;
    }
}
/* Called with the lock held: an abort takes the communicator out of the link. */
static int dt__nccl_open(dt_comm *c, dt__nccl_job *j)
{
    dt__nccl_link *l = j->link;
    ncclConfig_t   how = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId   id;
    bool           pair = dt__nccl_is_message(j);
    const char    *record = j->base.record;
    if (record[0] != 1)
        return dt__comm_fail(c, DT_COMM_ERR_NET, pair ? j->root : 0, "rank %d: %.200s",
                             pair && j->coll == DT_COLL_RECV ? j->root : pair ? c->rank : 0, record + DT__NCCL_ID);
    memcpy(id.internal, record + DT__NCCL_ID, sizeof id.internal);
    if (!l->stream && dt__nccl_cuda(c, "cudaStreamCreate", cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking)))
        return c->status;
    how.blocking = 0;
    ncclResult_t r = ncclCommInitRankConfig(&l->comm, pair ? 2 : c->size, id,
                                            pair ? j->coll == DT_COLL_RECV : c->rank, &how);
    if (r == ncclSuccess || r == ncclInProgress) return 0;
    l->comm = NULL;
    return dt__nccl_bad(c, "ncclCommInitRankConfig", r);
}
static int dt__nccl_queue(dt_comm *c, dt__nccl_job *j) /* called with the lock held */
{
    dt__nccl_link *l = j->link;
    const char    *call;
    char           text[600];
    uint32_t       number = j->number;
    if (dt__nccl_is_message(j) && !j->issued) {
        if (j->coll == DT_COLL_RECV) memcpy(&number, j->base.record + DT__NCCL_NUMBER, sizeof number);
        if (number != j->number)
            return dt__comm_fail(c, DT_COMM_ERR_MISMATCH, c->rank, "rank %d: receive %u of GPU memory from rank %d got its "
                                 "message %u: receive them in the order in which they are sent, whatever their tags",
                                 c->rank, (unsigned)j->number, j->root, (unsigned)number);
        if (l->queued != j->number) return 0; /* an earlier one is not queued yet */
    }
    if (!l->comm && !j->first) return dt__comm_fail(c, DT_COMM_ERR_STATE, c->rank, "rank %d: NCCL was aborted", c->rank);
    if (!l->comm && dt__nccl_open(c, j)) return c->status;
    int busy = dt__nccl_async(j, text, sizeof text);
    if (busy) return busy > 0 ? 0 : dt__comm_fail(c, busy, c->rank, "%s", text);
    if (!j->issued) {
        if (!dt__nccl_turn_is(j)) return 2; /* that one has a deadline of its own */
        j->issued = true;
        if (dt__nccl_cuda(c, "cudaStreamWaitEvent", cudaStreamWaitEvent(l->stream, j->ready, 0)) ||
            dt__nccl_cuda(c, "cudaStreamWaitEvent", dt__nccl_turn_chain(j, l->stream, true)) ||
            dt__nccl_cuda(c, "cudaEventRecord", cudaEventRecord(j->begun, l->stream)))
            return c->status;
        ncclResult_t r = dt__nccl_call(j, c->rank, c->size, &call);
        if (r == ncclInProgress) return 0;
        if (r != ncclSuccess && dt__nccl_async(j, text, sizeof text) < 0) /* an earlier call had already failed */
            return dt__comm_fail(c, DT_COMM_ERR_NET, c->rank, "%s", text);
        if (r != ncclSuccess) return dt__nccl_bad(c, call, r);
    }
    if (dt__nccl_cuda(c, "cudaEventRecord", cudaEventRecord(j->done, l->stream)) ||
        dt__nccl_cuda(c, "cudaEventRecord", dt__nccl_turn_chain(j, l->stream, false)))
        return c->status;
    if (dt__nccl_is_message(j)) l->queued++;
    return 1;
}
static int dt__nccl_two(dt_comm *c, dt__nccl_job *j);
static int dt__nccl_poll(dt_comm *c, dt__job *job)
{
    dt__nccl_job *j = (dt__nccl_job *)job;
    dt__nccl     *n = j->n;
    if (dt__nccl_cuda(c, "cudaSetDevice", cudaSetDevice(n->dev->index))) return c->status;
    int rc = !j->two ? 0 : dt__nccl_turn_is(j) ? dt__nccl_two(c, j) : 2;
    pthread_mutex_lock(&n->lock);
    if (!j->two) rc = dt__comm_ok(c) ? dt__nccl_queue(c, j) : c->status;
    if (rc == 1) {
        dt__nccl_job **at = &n->queued;
        while (*at) at = &(*at)->next;
        *at = j;
        j->next = NULL;
        j->told = true;
        j->refs++;
        j->since = dt__comm_now();
        pthread_cond_broadcast(&n->cond);
    }
    pthread_mutex_unlock(&n->lock);
    if (rc != 0 && rc != 2) dt__nccl_turn_pass(j);
    return rc;
}
static bool dt__nccl_test(dt__job *job)
{
    cudaError_t e = cudaEventQuery(((dt__nccl_job *)job)->done);
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e != cudaErrorNotReady;
}
static int dt__nccl_after(dt__job *job, int status)
{
    dt__nccl_job *j = (dt__nccl_job *)job;
    dt_device    *dev = j->n->dev;
    cudaError_t   e = status ? cudaSuccess : cudaSetDevice(dev->index);
    if (!status && e == cudaSuccess) e = cudaStreamWaitEvent(dt__nccl_queue_of(dev), j->done, 0);
    if (j->sub) (void)dt_work_wait(j->sub); /* its communicator has failed */
    if (status && dt__nccl_is_message(j) && !j->told && dt__comm_ok(j->n->c))
        dt__comm_fail(j->n->c, status, j->root, "rank %d: a message of GPU memory %s rank %d was given up: those after it "
                      "cannot be matched", j->n->c->rank, j->coll == DT_COLL_SEND ? "to" : "from", j->root);
    dt__nccl_drop(j);
    if (e == cudaSuccess) return 0;
    (void)cudaGetLastError();
    return dt__comm_bad(DT_COMM_ERR_NET, "cudaStreamWaitEvent: %s", cudaGetErrorString(e));
}
static int dt__nccl_alone(dt_comm *c, const dt__call *a)
{
    dt_device *dev = dt__nccl_device(c, a->coll == DT_COLL_REDUCE_SCATTER ? a->in : a->out);
    size_t     nbytes = (size_t)(a->counts ? a->counts[0] : a->n) * dt__elem_nbytes(a->dtype);
    if (!dev || dt__nccl_cuda(c, "cudaSetDevice", cudaSetDevice(dev->index))) return c->status;
    if (!a->in || a->in == a->out) return 0;
    return dt__nccl_cuda(c, "cudaMemcpyAsync",
                         cudaMemcpyAsync(a->out, a->in, nbytes, cudaMemcpyDeviceToDevice, dt__nccl_queue_of(dev)));
}
static void dt__nccl_close(dt_comm *c)
{
    dt__nccl *n = (dt__nccl *)c->devices;
    if (!n) return;
    int64_t until = dt__comm_now() + dt__ns_of(c->timeout + 1), now = 0;
    if (dt__comm_ok(c) && n->inside) dt_comm_free(n->inside), dt_comm_free(n->across);
    else if (n->inside) dt__comm_drop(n->inside), dt__comm_drop(n->across);
    (void)cudaSetDevice(n->dev->index);
    dt__nccl_turn_drop(n);
    pthread_mutex_lock(&n->lock);
    n->quit = true;
    pthread_cond_broadcast(&n->cond);
    while (!n->ended && now < until) now = dt__nccl_wait(n, 0.1);
    if (!n->ended) { /* a rank is gone, or a GPU hangs */
        pthread_mutex_unlock(&n->lock);
        dt__nccl_abort(n);
        pthread_mutex_lock(&n->lock);
        for (until = now + 5 * DT__NS_PER_S; !n->ended && now < until;) now = dt__nccl_wait(n, 0.1);
    }
    bool ended = n->ended;
    for (dt__nccl_job *j; (j = n->queued) != NULL;) {
        n->queued = j->next;
        pthread_mutex_unlock(&n->lock);
        dt__nccl_drop(j);
        pthread_mutex_lock(&n->lock);
    }
    for (dt__nccl_job *j; (j = n->spare) != NULL;) {
        n->spare = j->next;
        dt__nccl_job_end(j);
    }
    for (int i = 0; ended && i <= 2 * c->size; i++) {
        dt__nccl_link *l = i ? &n->to[i - 1] : &n->all;
        if (l->stream) (void)cudaStreamDestroy(l->stream);
        l->stream = NULL;
    }
    if (n->stream) dt_device_backend(n->dev)->stream_free(n->dev, n->stream);
    if (n->stage) (void)cudaFreeHost(n->stage);
    pthread_t thread = n->thread;
    c->devices = NULL;
    dt__nccl_unref(n);
    if (ended) pthread_join(thread, NULL);
    else pthread_detach(thread); /* it holds a reference to n and ends later */
}

/* ---- two levels: a reduce_scatter by NCCL inside each machine; each rank copies its part to the host and reduces it across
   machines by dt_comm.h; then an allgather by NCCL inside each machine. If the machines have different numbers of ranks,
   the part of the first rank of each machine is the whole vector. */
static int dt__nccl_levels(dt_comm *c, dt__nccl *n) /* collective, at the first call */
{
    int most = 0, least = c->size;
    if (n->inside || c->engine->algo != DT_ALGO_TWO_LEVEL || c->local_size == c->size) return 0;
    for (int i = 0; i < c->size; i++) {
        int k = 0;
        for (int r = 0; r < c->size; r++) k += c->host[r] == c->host[i];
        most = k > most ? k : most;
        least = k < least ? k : least;
    }
    n->equal = most == least;
    int rc = dt_comm_split(c, n->equal || c->local_rank == 0 ? c->local_rank : -1, c->rank, &n->across);
    if (!rc) rc = dt_comm_split(c, c->host[c->rank], c->rank, &n->inside);
    if (rc) return rc;
    n->stream = dt_device_backend(n->dev)->stream_new(n->dev);
    if (n->stream) return 0;
    return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: two levels: cannot create a stream", c->rank);
}
static int dt__nccl_sub(dt_comm *c, dt_comm *sub, const char *where)
{
    const char *why = dt_comm_error(sub);
    int         status = dt_comm_get_status(sub);
    return dt__comm_fail(c, status ? status : DT_COMM_ERR_STATE, -1, "two levels, %s: %s", where, why ? why : "failed");
}
/* The parts of the ranks of this machine; returns the number of elements of this rank, and their offset. */
static int64_t dt__nccl_part(const dt__nccl *n, int64_t count, int64_t *part, int64_t *at)
{
    int size = n->inside->size;
    for (int i = 0; i < size; i++)
        part[i] = n->equal ? count / size + (i < count % size) : i ? 0 : count;
    *at = 0;
    for (int i = 0; i < n->inside->rank; i++) *at += part[i];
    return part[n->inside->rank];
}
static int dt__nccl_stage(dt_comm *c, dt__nccl *n, size_t nbytes)
{
    if (nbytes <= n->stage_n) return 0;
    if (dt__nccl_cuda(c, "cudaStreamSynchronize", cudaStreamSynchronize(dt__nccl_stream_of(n->dev, n->stream))))
        return c->status; /* the old buffer must not be in use when it is replaced by a larger one */
    if (n->stage) (void)cudaFreeHost(n->stage);
    n->stage = NULL;
    n->stage_n = 0;
    if (dt__nccl_cuda(c, "cudaHostAlloc", cudaHostAlloc(&n->stage, nbytes, cudaHostAllocDefault))) return c->status;
    n->stage_n = nbytes;
    return 0;
}
/* As poll. 2: call again and restart the timeout: the communicators of the two levels have their own timeouts. */
static int dt__nccl_two_steps(dt_comm *c, dt__nccl_job *j, int64_t *part)
{
    dt__nccl    *n = j->n;
    cudaStream_t s = dt__nccl_stream_of(n->dev, n->stream);
    int64_t      at, mine = dt__nccl_part(n, j->count, part, &at);
    size_t       e = dt__elem_nbytes(j->dtype);
    char        *data = j->out + (size_t)at * e;
    int          op = j->op == DT_COMM_MEAN ? DT_COMM_SUM : j->op;
    dt_comm     *level = j->phase == 3 ? n->across : n->inside;
    if (j->sub) {
        if (!__atomic_load_n(&(j->sub)->finished, __ATOMIC_ACQUIRE)) return 2;
        int bad = dt_work_wait(j->sub);
        j->sub = NULL;
        if (bad) return dt__nccl_sub(c, level, j->phase == 3 ? "across machines" : "inside a machine");
    }
    switch (j->phase++) {
    case 0:
        if (dt__nccl_cuda(c, "cudaStreamWaitEvent", cudaStreamWaitEvent(s, j->ready, 0)) ||
            dt__nccl_cuda(c, "cudaEventRecord", cudaEventRecord(j->begun, s)))
            return c->status;
        j->sub = dt_comm_reduce_scatter_start(n->inside, j->out, data, 0, part, j->dtype, op);
        return j->sub ? 2 : dt__nccl_sub(c, n->inside, "inside a machine");
    case 1:
        if (mine && (dt__nccl_stage(c, n, (size_t)mine * e) ||
                     dt__nccl_cuda(c, "cudaMemcpyAsync",
                                   cudaMemcpyAsync(n->stage, data, (size_t)mine * e, cudaMemcpyDeviceToHost, s))))
            return c->status;
        j->since = dt__comm_now();
        return dt__nccl_cuda(c, "cudaEventRecord", cudaEventRecord(j->done, s)) ? c->status : 2;
    case 2:
        if (!dt__nccl_test(&j->base)) {
            j->phase = 2;
            if (dt__seconds_of(dt__comm_now() - j->since) < c->timeout) return 2;
            return dt__comm_fail(c, DT_COMM_ERR_TIMEOUT, c->rank, "two levels: rank %d waited %.1f s for its GPU",
                                 c->rank, c->timeout);
        }
        if (n->across && mine) j->sub = dt_comm_allreduce_start(n->across, n->stage, mine, j->dtype, op);
        return j->sub || !mine ? 2 : dt__nccl_sub(c, n->across, "across machines");
    case 3:
        if (mine && j->op == DT_COMM_MEAN) dt__reduce_scale(j->dtype, (char *)n->stage, mine, c->size);
        if (mine && dt__nccl_cuda(c, "cudaMemcpyAsync",
                                  cudaMemcpyAsync(data, n->stage, (size_t)mine * e, cudaMemcpyHostToDevice, s)))
            return c->status;
        j->sub = dt_comm_allgather_start(n->inside, NULL, j->out, 0, part, j->dtype);
        return j->sub ? 2 : dt__nccl_sub(c, n->inside, "inside a machine");
    case 4: return dt__nccl_cuda(c, "cudaEventRecord", cudaEventRecord(j->done, s)) ? c->status : 1;
    default: return dt__comm_fail(c, DT_COMM_ERR_STATE, c->rank, "rank %d: two levels: step %d", c->rank, j->phase - 1);
    }
}
static int dt__nccl_two(dt_comm *c, dt__nccl_job *j)
{
    int64_t *part = (int64_t *)DT_COMM_MALLOC((size_t)j->n->inside->size * sizeof *part);
    if (!part) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: out of memory", c->rank);
    void *before = dt_device_set_stream(j->n->dev, j->n->stream);
    dt__nccl_within = true;
    int rc = dt__nccl_two_steps(c, j, part);
    dt__nccl_within = false;
    (void)dt_device_set_stream(j->n->dev, before);
    DT_COMM_FREE(part);
    return rc;
}

/* ==================================================================================================== >>devices
   Blocks of several devices of this program, for the groups of dt_cuda.h. The calls for all devices form one NCCL group;
   each runs in the stream of its device, which keeps the order. */
static int dt__nccl_check(ncclResult_t r, const char *what)
{
    if (r == ncclSuccess) return 0;
    return dt_fail(DT_ERR_DEVICE, "cuda: %s: %s", what, ncclGetErrorString(r));
}
static void *dt__nccl_devices_begin(dt_device *const *dev, int n)
{
    ncclComm_t *comm = (ncclComm_t *)dt__alloc_zero((size_t)n * sizeof *comm);
    int        *index = (int *)dt_mem_alloc((size_t)n * sizeof *index);
    int         bad = comm && index ? 0 : dt_fail(DT_ERR_MEMORY, "cuda: out of memory for a group of %d devices", n);
    for (int i = 0; i < n && !bad; i++) bad = dt__cuda_prepare(dev[i]);
    for (int i = 0; i < n && !bad; i++) index[i] = dev[i]->index;
    if (!bad) bad = dt__nccl_check(ncclCommInitAll(comm, n, index), "ncclCommInitAll");
    dt_mem_free(index, (size_t)n * sizeof *index);
    if (!bad) return comm;
    dt_mem_free(comm, (size_t)n * sizeof *comm);
    return NULL;
}
static void dt__nccl_devices_end(void *comms, dt_device *const *dev, int n)
{
    ncclComm_t *comm = (ncclComm_t *)comms;
    bool        failed = false; /* a communicator whose work does not end can only be aborted */
    for (int i = 0; i < n; i++)
        failed |= cudaSetDevice(dev[i]->index) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
    for (int i = 0; i < n; i++)
        if (comm[i]) (void)(failed ? ncclCommAbort(comm[i]) : ncclCommDestroy(comm[i]));
    dt_mem_free(comm, (size_t)n * sizeof *comm);
}
static int dt__nccl_devices_calls(ncclComm_t *comm, dt_device *const *dev, int n, void *const *stream,
                                  const dt_view *block, int nblocks, bool sum)
{
    int bad = 0;
    for (int k = 0; k < nblocks * n && !bad; k++) {
        const dt_view *v = &block[k];
        int            i = k % n, f32 = v->dtype != DT_F16 && v->dtype != DT_BF16;
        cudaStream_t   s = dt__nccl_stream_of(dev[i], stream[i]);
        ncclDataType_t type = f32 ? ncclFloat32 : v->dtype == DT_F16 ? ncclFloat16 : ncclBfloat16;
        size_t         count = (size_t)v->shape[0], nbytes = count * dt_dtype_nbytes((dt_dtype)v->dtype);
        if (sum)
            bad = dt__nccl_check(ncclReduce(v->data, v->data, count, type, ncclSum, 0, comm[i], s), "ncclReduce");
        else bad = dt__nccl_check(ncclBroadcast(v->data, v->data, nbytes, ncclUint8, 0, comm[i], s), "ncclBroadcast");
    }
    return bad;
}
static int dt__nccl_devices_run(void *comms, dt_device *const *dev, int n, void *const *stream, const dt_view *block,
                                int nblocks, bool sum)
{
    ncclComm_t *comm = (ncclComm_t *)comms;
    int         bad = 0;
    for (int i = 0; i < n; i++) dt__nccl_turn_wait(dev[i]->index);
    for (int i = 0; i < n && !bad; i++) { /* errors of earlier calls */
        ncclResult_t was = ncclSuccess;
        bad = dt__nccl_check(ncclCommGetAsyncError(comm[i], &was), "ncclCommGetAsyncError");
        if (!bad) bad = dt__nccl_check(was, sum ? "before ncclReduce" : "before ncclBroadcast");
    }
    if (!bad) bad = dt__nccl_check(ncclGroupStart(), "ncclGroupStart");
    if (bad) return bad;
    bad = dt__nccl_devices_calls(comm, dev, n, stream, block, nblocks, sum);
    ncclResult_t end = ncclGroupEnd(); /* must be called even after a call that failed */
    return bad ? bad : dt__nccl_check(end, "ncclGroupEnd");
}

/* ==================================================================================================== >>register */
static const dt__device_transport         dt__nccl_transport = { dt__nccl_owns,  dt__nccl_begin, dt__nccl_poll, dt__nccl_test,
                                                  dt__nccl_after, dt__nccl_alone, dt__nccl_close };
static const dt__cuda_exchange dt__nccl_exchange = { dt__nccl_devices_begin, dt__nccl_devices_end,
                                                     dt__nccl_devices_run };
__attribute__((constructor)) static void dt__nccl_register(void)
{
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); /* see "One order" and "Loading" */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    *dt__device_transport_slot() = &dt__nccl_transport;
    dt__cuda_exchanged_by = &dt__nccl_exchange;
}
#ifdef __cplusplus
}
#endif
#endif /* DT_USE_CUDA && DT_USE_NCCL */
#endif /* DT_NCCL_IMPLEMENTATION */
