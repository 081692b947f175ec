/* dt_dist.h - v0.2.0 - one model on many ranks: data parallel training over dt_comm.h */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_dist.h"
    In every other file that uses it:           #include "dt_dist.h"

    dt.h, dt_cpu.h, dt_nn.h, dt_data.h and dt_comm.h must be in the same directory. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_dist.h"
    #include <stdio.h>

    static int trainer(void *arg)
    {
        dt_comm      *c = dt_comm_init();
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
        dt_ddp       *ddp = dt_ddp_new(m, c);
        for (int i = 0; i < 100; i++) {
            dt_tensor *x = dt_normal(0, 1, DT_SHAPE(32, 4)), *y = dt_sum(x, .dims = DT_DIM(1), .keepdim = true);
            dt_backward(dt_mse_loss(dt_linear(m, "fc", x, .out = 1), y));
            dt_step(opt);
        }
        if (dt_comm_rank(c) == 0) printf("%.2f\n", dt_item(dt_sum(dt_model_find(m, "fc.weight"))));
        dt_ddp_free(ddp);
        dt_optimizer_free(opt);
        dt_model_free(m);
        dt_comm_free(c);
        (void)arg;
        return dt_check("trainer");
    }
    int main(void) { return dt_spawn(2, trainer, NULL); }

WHAT IT DOES NOT DO

    No model or pipeline parallelism: see dt_pipe.h. No parameter server: see dt_serve.h. Every rank computes the whole model. One thread of each rank trains it (or, with
    dt_parallel, the threads that dt_parallel starts).

CONTENTS

    >>ddp            distributed data parallel: gradients are averaged while the backward runs
    >>hooks          a bucket's way: functions that take the place of the allreduce
    >>sharding       each rank keeps a part of states, gradients and parameters (ZeRO)
    >>compress       gradients in fewer bytes: f16, bf16, top-k, random-k, DGC, sign, 1-bit, QSGD, PowerSGD, auto
    >>feeding        rank 0 reads the data for all ranks
    >>parallel       one process, several devices, each of which computes a part of the batch
    >>inside         private functions that dt_pipe.h, dt_serve.h and dt_elastic.h use
    >>models         implementation from here: propagating errors, comparing and broadcasting models
    >>buckets        gradients in the order in which they become ready
    >>ways           calling hooks; their state
    >>squeezing      the hook of .compress
    >>backward       a backward and its collectives
    >>shards         sharding: units, their memory, gathering; the callbacks of dt__sharding
    >>slots          sums that do not depend on the number of ranks
    >>syncnorm       batch norm over all ranks
    >>attach         attaching a ddp to a model; public functions
    >>feed           double-buffered messages with batches
    >>replicas       dt_parallel: one thread and one replica of the model for each device

ERRORS

    As in dt.h. In addition, errors propagate between ranks: when a rank with a pending error next calls dt_step or
    dt_ddp_free, its message is sent to all others, and they get DT_ERR_COMM with that message. If a rank dies, or calls
    other collectives than the others, all ranks get DT_ERR_COMM with dt_comm.h's message within a second. If ranks have
    different numbers of batches, the message names the rank that has ended its training (also to that rank, in
    dt_ddp_free), the step of this rank, and the remedy.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_DIST_IMPLEMENTATION)
#define DT_DIST_IMPLEMENTATION
#endif
#include "dt_nn.h"
#include "dt_data.h"
#include "dt_comm.h"
#ifdef DT_DIST_IMPLEMENTATION
#include "dt_cpu.h"
#endif

#ifndef DT_DIST_H_INCLUDED
#define DT_DIST_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_dist.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>ddp
   Like torch.nn.parallel.DistributedDataParallel: every rank has the whole model and its own batches. dt_backward
   replaces each rank's gradients by the mean over all ranks, so the weights stay bit for bit the same on all ranks.
   It takes four lines:

       dt_comm *c   = dt_comm_init();
       dt_ddp  *ddp = dt_ddp_new(m, c);                  before or after the first forward
       ... dt_loader_new(set, .rank = dt_comm_rank(c), .world = dt_comm_size(c), ...)
       dt_ddp_free(ddp); dt_comm_free(c);

   Parameters and buffers get rank 0's values when they are created (those that exist already: in dt_ddp_new). When the
   model is sealed, all ranks must have the same parameters: names, shapes, dtypes; an error names the first difference.
   Gradients are stored in buckets, in reverse order of creation, in memory of dt_comm_alloc. The allreduce of a bucket
   starts when its last gradient is complete and runs while the backward continues. Parameters that a backward does not
   reach count as ready at once; those that no rank reached have no gradient. The collectives run on a duplicate of c, so
   the program may use c itself.

   A gradient that is not finite on any rank is DT_ERR_NUMERIC on all ranks; the message names the rank and the
   parameter, and the step changes nothing. (Under dt_amp with a dynamic scale it is an overflow: all ranks skip the
   step.)

   tools/dtverify compares runs of a program with different numbers of ranks. With DT_VERIFY=FILE in the environment
   rank 0 writes a line to FILE before each step and in dt_ddp_free: the step, the SHA-256 of the weights, 64 of the
   weights, their norm. It is an error if the weights of two ranks differ by a bit.

   In a world of one rank (or if c is NULL) training works as without a ddp. Free a ddp before its communicator.

   Models on GPUs: one GPU for each rank, and a communicator with .backend = DT_NCCL (dt_nccl.h). NCCL sums buckets on
   its own stream, concurrently with the backward. The host does not wait for the GPU, except once a step to learn
   whether all gradients were finite (with .no_check: never). */
typedef struct dt_ddp dt_ddp; /* data parallel training of one model */
typedef struct dt_compress { /* see >>compress */
    const char *kind DT_D;   /* NULL or "none": no compression */
    double ratio     DT_D;   /* topk, randomk: default 0.01; dgc: 0.001 */
    int levels       DT_D;   /* qsgd: 1 to 32767, default 127 */
    int64_t bucket   DT_D;   /* qsgd: elements that share a norm, default 512 */
    int rank         DT_D;   /* powersgd: default 1, at most 64 */
    int64_t start    DT_D;   /* the first step that is compressed; default 1000 for powersgd, else 0; -1: 0 */
    double min_rate  DT_D;   /* powersgd: default 2 */
    double momentum  DT_D;   /* dgc: default 0.9 */
    double clip      DT_D;   /* dgc: default 0, no clipping */
    int64_t warmup   DT_D;   /* dgc: default 0 */
    int feedback     DT_D;   /* 1: error feedback, -1: none; default: as said above */
    uint64_t seed    DT_D;   /* randomk, qsgd, powersgd */
    double margin    DT_D;   /* auto: default 0.05 */
    int64_t every    DT_D;   /* auto: default 1000 */
} dt_compress;
typedef struct dt_ddp_opts {
    int dt__first          DT_D;
    double first_bucket_mb DT_D; /* size in MiB of the bucket that is ready first; default 1 */
    double bucket_mb       DT_D; /* size in MiB of the others; default 25 */
    bool no_buffers        DT_D; /* do not broadcast rank 0's buffers (running statistics) after each backward */
    bool sync_batchnorm    DT_D; /* see below */
    int slots              DT_D; /* > 0: see dt_ddp_slots */
    bool no_check          DT_D; /* do not check that gradients are finite */
    int shard              DT_D; /* 1, 2 or 3: see >>sharding; 0: every rank has everything */
    const char *state_dir  DT_D; /* with .shard: optimiser states are in mapped files in this directory */
    dt_compress compress   DT_D; /* gradients in fewer bytes: see >>compress */
} dt_ddp_opts;
/* every rank calls it; NULL on error */
DT_API dt_ddp *dt_ddp_new_with(dt_model *m, dt_comm *c, dt_ddp_opts o DT_OPT0(dt_ddp_opts));
#ifdef DT__LIT
#define dt_ddp_new(m, ...) dt_ddp_new_with(m, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_ddp_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_ddp_new dt_ddp_new_with
#endif
DT_API void     dt_ddp_free(dt_ddp *d); /* before the model; every rank calls it */
DT_API dt_comm *dt_ddp_comm(const dt_ddp *d); /* the communicator passed to dt_ddp_new */

/* Gradient accumulation: between dt_ddp_no_sync(d, true) and dt_ddp_no_sync(d, false) gradients accumulate on this rank
   without communication; the next backward averages the accumulated gradients. All ranks must do the same. */
DT_API void dt_ddp_no_sync(dt_ddp *d, bool on);
/* The loss of this rank's next backward is a mean over n samples (or tokens): its gradients are weighted by n, and the
   sum is divided by the sum of all ranks' n. Either all ranks call it before a backward or no rank does. n == 0: this
   rank contributes nothing, as with dt_ddp_skip. */
DT_API dt_status dt_ddp_samples(dt_ddp *d, double n);
/* Ranks with different numbers of batches: all continue while any rank has data.
       for (;;) {
           bool have = dt_loader_next(in, &b);
           if (!dt_ddp_more(d, have)) break;
           if (have) dt_backward(loss of b); else dt_ddp_skip(d);
           dt_step(opt);
       }
   dt_ddp_skip replaces a backward: this rank contributes no gradients and weight 0; the mean is over the other ranks. */
DT_API bool      dt_ddp_more(dt_ddp *d, bool have); /* collective; false after an error */
DT_API dt_status dt_ddp_skip(dt_ddp *d);
/* The weighted mean over all ranks, sum(value * weight) / sum(weight), for exact metrics. Collective; NaN after an
   error. */
DT_API double dt_ddp_mean(dt_ddp *d, double value, double weight);
/* Broadcasts rank 0's parameters and buffers, for example after the program changed them. Collective. */
DT_API dt_status dt_ddp_broadcast(dt_ddp *d);
/* Names of the parameters that the last backward of this rank did not reach, one per line; works like snprintf. */
DT_API size_t dt_ddp_unused(const dt_ddp *d, char *buf, size_t nbytes);

/* Slots: results that are bit for bit the same for any number of ranks. .slots = S: the global batch of a step is S
   micro-batches (slots), at least as many as there are ranks. Rank r does the backwards of the slots from r * S / world to
   (r + 1) * S / world - 1 (rounded down) before a dt_step. Each slot's gradient is computed separately, and all S are added
   as the leaves of one fixed binary tree. Costs: communication does not overlap with the backward, and S / world times
   the gradients are stored and sent. Results that depend on the batch (batch norm) or on the rank (dropout) still
   differ. f32 only. A slot must get the same samples in every world: use a loader for each slot, with .rank = slot and
   .world = S. */
DT_API int dt_ddp_slots(const dt_ddp *d, int *first, int *n); /* returns S; this rank has slots first .. first + n - 1 */

/* .sync_batchnorm: like torch.nn.SyncBatchNorm. In training, batch norms of the model compute their statistics, and the
   gradients of these, over the samples of all ranks with equal weight: n ranks with batches of b give the result of one
   rank with a batch of n * b. All ranks must run the same batch norms in the same order (a branch that one rank does
   not take is an error after the communicator's timeout). A rank may have an empty batch. If dt_ddp_samples is used, it
   must be called before the first backward of an accumulation. dt_ddp_skip takes part with zero samples in the batch
   norms that this rank's last step ran, so all steps must run the same ones; it needs a communicator with a thread (not
   .no_thread). With .no_buffers the running statistics of a rank that skips are not updated. On a GPU the others
   wait for each batch norm at its place, so a rank cannot skip the step after parameters were frozen or unfrozen; and batch norms
   between dt_no_grad_begin and dt_no_grad_end are no part of a step: a rank that skips runs them itself. */

/* Where the time goes: sums, in seconds, over all backwards that were synchronised. */
typedef struct dt_ddp_stats {
    int64_t steps;
    double  period;   /* from the end of one backward to the end of the next */
    double  backward; /* from the begin of a backward to its end, without waits for collectives in it and after it */
    double  waited;   /* waits for collectives that a slower rank had not begun yet: see dt_work_waited */
    double  exposed;  /* the other waits for collectives: the communication that overlap did not hide */
    double  comm;     /* T2: duration of the collectives, without the time in which a rank had not begun them */
    double  ready;    /* from the begin of a backward to the start of the first bucket */
    double  hook;     /* in the functions of the hook, without waits; part of backward and exposed */
    int64_t bytes;    /* of gradients that were summed */
    int64_t sent;     /* of these, bytes that were given to collectives: fewer with a hook that compresses */
    int     buckets;
} dt_ddp_stats;
DT_API dt_ddp_stats dt_ddp_get_stats(const dt_ddp *d);
/* One line with the means per step, without the first: T1 (compute), T2 (communication), the exposed part of T2, the time in which this rank
   waited for slower ranks, the bound max(T1, T2); works like snprintf. A trace (DT_TRACE) shows each bucket's allreduce on a
   track beside the backward's ops, and on the track "ddp waits" where the backward waited: "exposed" for communication,
   "waits for rank 3" for a slower rank. */
DT_API size_t dt_ddp_report(const dt_ddp *d, char *buf, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>hooks
   A bucket's way from the gradients of each rank to their mean is a struct of functions. Without a hook it is one allreduce. A
   hook replaces it, for example to send fewer bytes:

       static int start(dt_ddp_bucket *b, dt_work **work, void *user)
       {
           *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
           return *work ? 0 : -1;
       }
       ...
       dt_ddp_set_hook(ddp, .name = "my allreduce", .start = start);

   The bucket's memory holds what this rank contributes: its gradients times .share, so that the sum over all ranks is the
   mean. When the last gradient of the bucket is complete, start is called. It begins a collective on b->comm, in b->data or
   in memory of its own, and gives its work, or NULL if it needs none. When the work is done, after the backward, finish is
   called (NULL: there is nothing to do), and leaves the sum in b->data, with the same bits on all ranks. Buckets start in
   the order of .index on all ranks.

   Several collectives, each of which needs the result of the one before: with .stages = n up to n of them. finish may start
   a work, too; when that is done, finish is called again, with the next b->stage. The collectives of each stage have a
   communicator of their own, so a bucket goes to its next stage while the backward runs, as soon as its work is done on
   this rank; on a GPU when two buckets have begun after it. Their order is that of the buckets within each stage.

   Values that are not finite: hooks get finite values only, because DDP checks them before. If a rank has others, start
   gets zeros there, and the step changes nothing (under dt_amp with a dynamic scale it is an overflow). A hook sets
   b->nonfinite if it finds such a case itself, for example a value that f16 cannot hold: in start on any rank, in finish
   only from what is the same on all ranks. It then sends zeros. After all buckets, end is called for each of them and says
   whether the step counts; if not, the hook's state goes back to what it was before start.

   State: b->state belongs to the hook, NULL at first; gone is called when the bucket ceases to exist, and frees it. .saved
   tells what of it goes into checkpoints. Before new buckets are made (a parameter was unfrozen) its values are carried
   over by the same function.

   Gradient accumulation: hooks see only the synchronised backward, with all that was accumulated (with half gradients under
   dt_amp earlier backwards are added up in f32, and their sum takes no hook). A rank that skips contributes zeros, so hooks run
   on it, too. In a world of one rank no hook is called. Hooks run on the thread of dt_backward. They must not call DDP.

   Errors: a hook returns 0, or a negative number, best after dt_fail. Then the training ends on all ranks, with a message
   that names the rank, the bucket and its parameters. All ranks must have the same hook: name, .stages and .sums are
   compared at the first backward. So .name tells also the options. On a GPU b->data is device memory, and works are queued
   on streams: use b->grad. */
typedef struct dt_ddp_part { /* a parameter in a bucket */
    const char *name;
    dt_shape    shape;
    int64_t     offset, numel; /* in elements of the bucket; what is between two parameters is 0 */
} dt_ddp_part;
typedef struct dt_ddp_bucket {
    int                index, buckets; /* number 0 is ready first */
    bool               last;           /* it is number buckets - 1 */
    int                parts;          /* its parameters, in the order of their memory */
    const dt_ddp_part *part;
    void              *data;  /* its memory */
    dt_tensor         *grad;  /* the same as a tensor of one dimension */
    int64_t            n;     /* elements */
    int                dtype; /* f32, or f16 or bf16 with mixed precision */
    dt_comm           *comm;  /* for the collective of this call; NULL: there are no more stages */
    int                stage; /* 0: start; then the number of collectives that are done */
    int                rank, world;
    int64_t            step;       /* number of synchronised backwards before this one; the same on all ranks */
    double             share;      /* factor of this rank: 1/world, or samples/all samples; 0: it skips */
    double             loss_scale; /* of dt_amp, in the gradients; else 1 */
    double  seconds;   /* in finish: that the last collective took, without waiting for ranks that began it later */
    bool    nonfinite; /* set by the hook: see above */
    void   *state;     /* of the hook */
    int64_t sent; /* set by the hook, for reports: bytes given to collectives in this step; default: those of data */
    double  lost; /* set by the hook, for reports: norm of what was not sent / norm of what was to be sent */
} dt_ddp_bucket;
typedef struct dt_ddp_state dt_ddp_state; /* what a hook keeps from step to step */
typedef struct dt_ddp_hook {
    int dt__first    DT_D;
    const char *name DT_D; /* kind and options, up to 159 characters; ranks compare it; default "hook" */
    int (*start)(dt_ddp_bucket *b, dt_work **work, void *user) DT_D;
    int (*finish)(dt_ddp_bucket *b, dt_work **work, void *user) DT_D;
    void (*end)(dt_ddp_bucket *b, bool counts, void *user) DT_D;
    int (*saved)(dt_ddp_bucket *b, dt_ddp_state *s, void *user) DT_D;
    void (*gone)(dt_ddp_bucket *b, void *user) DT_D;
    void *user DT_D;
    int stages DT_D; /* the most collectives of a bucket, one after the other; default 1, at most 8 */
    /* the result is the plain sum of all ranks' values, also of values that are not finite: then they are checked as without
       a hook, and with dt_ddp_samples the division by all samples comes after it */
    bool sums DT_D;
} dt_ddp_hook;
/* On all ranks, before the first backward, once. A ddp with .slots has no hooks. DT_OK, or an error. */
DT_API dt_status dt_ddp_set_hook_with(dt_ddp *d, dt_ddp_hook h);
#ifdef DT__LIT
#define dt_ddp_set_hook(d, ...) dt_ddp_set_hook_with(d, DT__LIT(dt_ddp_hook){ .dt__first = 0, __VA_ARGS__ })
#else /* C++17: options as a struct */
#define dt_ddp_set_hook dt_ddp_set_hook_with
#endif
/* Calls for .saved, which is called for each bucket, and which makes each array (zero) before it names it. It must name the
   same ones in the same order when state is saved and when it is loaded; integers are loaded at once, so what follows may
   depend on them. name: letters, digits and '_'. kind: */
enum {
    DT_DDP_SAME = 0, /* the array is the same on all ranks */
    DT_DDP_OWN /* each rank has its own: checkpoints have all of them, which rank 0 gathers in its memory. If a checkpoint is
                  resumed with another number of ranks, each one gets the mean share: the sum of all / ranks */
};
/* x: n values. part: those of a parameter; -1: of the whole bucket, one for each of its elements (n is b->n). */
DT_API int dt_ddp_state_array(dt_ddp_state *s, const char *name, int part, float *x, int64_t n, int kind);
DT_API int dt_ddp_state_integer(dt_ddp_state *s, const char *name, int64_t *x); /* the same on all ranks */

/* ---------------------------------------------------------------------------------------------------- >>sharding
   .shard of dt_ddp_new, as ZeRO and PyTorch's FSDP: of what every rank has in DDP, each of N ranks keeps 1/N.

       .shard = 1   optimiser states and f32 master weights
       .shard = 2   and gradients
       .shard = 3   and parameters

   The program stays as it is. Parameters keep their names and shapes. Each bucket of gradients is reduced by a reduce_scatter
   while the backward goes on, each rank updates its ranges, and parameters are gathered: with 1 and 2 after dt_step, while the
   next forward begins, in the order of its use; with 3 layer by layer before use, one layer ahead in the order of the step
   before, and again in the backward. With 3 a layer's memory is given back when two other layers have been used after it.

   Reading a parameter gathers it if it is not there, with 3 always: dt_copy_out, dt_item and every op are collective then, so all
   ranks read the same parameters in the same order, also in an evaluation. So are dt_grad of a reduced gradient, dt_model_save,
   dt_model_load, dt_checkpoint_... and dt_ddp_free. A rank that uses other layers than the others, or does not make a forward, is
   an error on all ranks, at the latest after the communicator's timeout; it names the parameters.

   Bits: results are those of DDP without .shard on the same communicator, for every optimiser and level of mixed precision, if
   both sum in the same order. They do if all ranks are on one machine (in the order of ranks), if there are two ranks, and on a
   communicator with .ordered. Elsewhere auto may choose other algorithms for reduce_scatter than for allreduce, and the last bits of sums differ.

   Norms (clipping, LARS, LAMB) are made of parts of 16384 elements of a parameter, and shards are cut between parts. Each part is
   computed by one rank, and all ranks combine all parts in the same order: every element counts once, and the bits do not depend on the number
   of ranks. So a parameter of fewer elements is on one rank.

   With dt_ddp_no_sync gradients stay whole on each rank until the synchronised backward. Hooks see whole buckets; with f16
   and bf16 of .compress halves are reduced by a reduce_scatter, the other methods send what they send without .shard. What a
   hook keeps (the residuals of error feedback) is whole on each rank. Refused are .slots, and dt_ddp_broadcast after the
   seal. Until the seal (the first backward) a rank has the whole model.

   dt_ddp_skip with 3: the others gather layers in their forward, so the rank repeats the gathers of its own last step. That
   must have been a whole one: in the first two steps, also after parameters were frozen or unfrozen, every rank needs data.
   If the others use other layers than in that step, it is an error on all ranks. What the program does with parameters
   between two backwards beside the forward it does in each step, or between dt_no_grad_begin and dt_no_grad_end.

   Memory of a rank, for P parameters in blocks, N ranks, an optimiser with s states (Adam 2), without activations and buffers:
       f32                        1: 8 P + 4 s P/N                2: 4 P + (4 + 4 s) P/N       3: (8 + 4 s) P/N
       O2, halves with masters    1: 4 P + (8 + 4 s) P/N          2: 2 P + (10 + 4 s) P/N      3: (12 + 4 s) P/N
   (O2 with Adam: 16 P, 4 P + 16 P/N, 2 P + 18 P/N, 20 P/N; a term 4 P/N more than in the ZeRO paper, for f32 gradients.) Beside it
   there are buckets in use: gradients of up to three buckets with 2 and 3, parameters of up to four layers with 3.

   Checkpoints: all ranks write their ranges into one file at the same time, in the format and with the names of a model that is
   not sharded. So any number of ranks with any .shard reads it, and so does PyTorch. It gets its name when all ranks have synced their parts.

   .state_dir: each rank has its states in files there, which are mapped. They have no name, so they vanish with the process.
   Not for models on GPUs.

   On GPUs (.backend = DT_NCCL) all arrays are in their memory, and reduce_scatter and allgather go by NCCL. */
typedef struct dt_ddp_memory { /* of this rank, in bytes, as allocated now */
    int64_t parameters; /* in blocks; with .shard = 3 the ranges */
    int64_t gradients;  /* with .shard 2 and 3 the ranges */
    int64_t masters;    /* f32 master weights, and f32 gradients of mixed precision */
    int64_t states;     /* of optimisers, also in files */
    int64_t buckets;    /* parameters and gradients that are whole for a while */
    int64_t formula;    /* parameters + gradients + masters + states by the formula: with exactly 1/N of each */
} dt_ddp_memory;
DT_API dt_ddp_memory dt_ddp_get_memory(const dt_ddp *d); /* all 0 before the seal */
/* ---------------------------------------------------------------------------------------------------- >>compress
   Gradients in fewer bytes: .compress of dt_ddp_new is a hook of the kind above. docs/compression.md says what each method
   does and when it pays.

       dt_ddp *ddp = dt_ddp_new(m, c, .compress = { "auto" });
       dt_ddp *ddp = dt_ddp_new(m, c, .compress = { .kind = "powersgd", .rank = 4 });

     .kind        sent                                                              bytes of a rank, n elements, p ranks
     "f16"        each element as f16; a value of 65520 or more ends the step           allreduce of 2 n
     "bf16"       each element as bf16                                                  allreduce of 2 n
     "topk"       the .ratio of each parameter's elements that is largest               8 k to each of p - 1
     "randomk"    a .ratio of all elements, the same on all ranks, drawn in each step   allreduce of 4 k
     "dgc"        deep gradient compression: top-k of the accumulated velocity          8 k to each of p - 1
     "sign"       the sign of each element and a parameter's mean |x|                   n/8 to each of p - 1
     "onebit"     as sign, with one mean for x >= 0 and one for x < 0                   n/8 to each of p - 1
     "qsgd"       multiples of norm/.levels, rounded at random: the mean is right       n bits/8 to each of p - 1
     "powersgd"   matrices as products of rank .rank; others as they are                two allreduces: rows, columns * rank
     "auto"       what measured time says: see below

   Error feedback: what a rank does not send is added to what it sends in the next step. It is on for the methods that are
   biased (topk, randomk, sign, onebit, powersgd); dgc has its own. State is in checkpoints. All ranks always have the same
   weights, bit for bit.

   "dgc" has the momentum inside: give the optimiser none. Each rank's velocity u = .momentum u + g is added up until it is
   sent; where it was sent both begin again at 0. .clip limits the norm of each parameter's gradient on each rank to
   .clip/sqrt(ranks). .warmup = steps: in four equal parts 25, 6.25, 1.5625 and 0.390625 % are sent (as long as it is more
   than .ratio). Vectors (biases) are sent whole.

   "powersgd": a parameter (out, ...) is a matrix of out rows. It is sent as P Q^T where that is at least .min_rate times
   smaller. Steps before .start are sent whole.

   "auto" never keeps what does not pay. Steps of the training itself are measured: each bucket's collective and its
   computing on all ranks, without compression and with bf16 (and powersgd, if .rank is set), in turn; then whole steps with
   the best of each bucket, and without any. Compression stays on for a bucket only if it wins by .margin in its own time,
   and if whole steps are faster by half of it. That is repeated every .every steps. All ranks decide the same, from the
   slowest rank's medians. Only methods that keep the accuracy are tried; the others change the training and are the user's
   decision.

   Gradients in f16 or bf16 (dt_amp at O2 and O3) are sent as they are with "f16", "bf16" and "auto". On GPUs there are f16
   and bf16. */

/* A line for each bucket: the method, bytes given to the collective and without compression, bytes that this rank sent to
   others in a step (in an allreduce by a ring), the error (norm of what was not sent / norm of what was to be sent on this
   rank, in every 64th step), and for "auto" the measured times and why it decided so. Works like snprintf; "" without
   .compress. */
DT_API size_t dt_ddp_compress_report(const dt_ddp *d, char *buf, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>feeding
   There are three ways to give the ranks their data: every rank reads its part of files that all can access
   (dt_loader_new with .rank, .world), each rank has its own files (.contiguous), or rank 0 reads for all ranks:

       dt_feed *in = dt_feed_new(set, c, .batch = 100, .shuffle = true);    set: on rank 0; NULL on the other ranks
       while (dt_feed_epoch(in) < 5)
           for (dt_batch b; dt_feed_next(in, &b); ) ...

   The batches are the same, in the same order, as those of dt_loader_new with the same options. They are sent while the
   ranks compute on the batch before. If reading a batch fails on rank 0, dt_feed_next reports the error for that batch
   on all ranks. dt_feed_new, dt_feed_next and dt_feed_free are collective. */
typedef struct dt_feed dt_feed; /* rank 0 reads for all */
/* every rank calls it; only rank 0 needs the set */
DT_API dt_feed        *dt_feed_new_with(dt_dataset *set, dt_comm *c, dt_loader_opts o DT_OPT0(dt_loader_opts));
#ifdef DT__LIT
#define dt_feed_new(set, ...) dt_feed_new_with(set, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_loader_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_feed_new dt_feed_new_with
#endif
DT_API void       dt_feed_free(dt_feed *f); /* NULL is accepted */
DT_API bool       dt_feed_next(dt_feed *f, dt_batch *b); /* as dt_loader_next, but .item is NULL and .sha256 empty */
DT_API int64_t    dt_feed_epoch(const dt_feed *f);       /* as dt_loader_epoch */
DT_API int64_t    dt_feed_batches(const dt_feed *f);     /* as dt_loader_batches */
DT_API dt_cursor *dt_feed_cursor(dt_feed *f); /* after the last batch; may be set before the first dt_feed_next */
DT_API dt_tensor *dt_feed_state(dt_feed *f);  /* as a tensor, for dt_checkpoint_add_tensor(c, "data.cursor", ...) */

/* ---------------------------------------------------------------------------------------------------- >>parallel
   Like torch.nn.DataParallel: one process uses several devices, which are threads of the CPU or GPUs. The program
   supplies a function that computes the loss of a part of a batch:

       static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
       {
           return dt_cross_entropy(net(m, x), y);
       }
       ...
       dt_parallel *p = dt_parallel_new(m, .devices = 4);
       for (dt_batch b; dt_loader_next(in, &b);) {
           dt_parallel_backward(p, loss_of, NULL, b.x, b.y, &loss);
           dt_step(opt);
       }
       dt_parallel_free(p);

   x and y are split along dimension 0 as torch.chunk does: into parts of ceil(n / devices), the last one smaller; a
   small batch has fewer parts than there are devices. fn is called for all parts concurrently: for the first on the
   calling thread with m itself, for the others on other threads with replicas, which are models that share m's
   parameters and have their own gradients and buffers. fn returns the mean loss of its part. The resulting gradients of
   m and the loss are those of the whole batch; gradients accumulate as in dt_backward. With dt_amp this call replaces
   dt_amp_backward (one loss only). The program then calls dt_step as usual.

   A model on a GPU: if m is on cuda:0, dt_parallel_new(m, .devices = 2) uses cuda:0 and cuda:1; .on names others. x and
   y may be on the CPU or on any of the devices. Each part is copied to the device that computes it; while fn runs, this
   is the default device. A replica has its own memory on its device: it receives m's parameters and buffers before each
   forward, and its gradients are added to m's, each block of them in one message. Master weights and optimiser states
   are on the first device only. The host does not wait for a device unless the loss is requested.

   The first call runs the first part alone, because it creates the parameters. fn must use m only through its argument,
   and must not change what user points to without a lock. Each device of the CPU computes with one thread. Two runs with
   the same number of devices give the same bits (on GPUs: if their backend is set to be deterministic).

   Batch norm: each device uses the statistics of its part; the running statistics are those of the first device. Random
   numbers: the first device draws as without dt_parallel. In each call the generators of a replica (dt_dropout) and of
   its thread (dt_op_dropout, dt_normal) are seeded from a draw of the model's generator, so they give other numbers than
   a single device would draw.

   An error on any device is reported by the call with the device's number; the model then has no gradients. A model that
   has a ddp cannot be used. */
typedef struct dt_parallel dt_parallel; /* one process, several devices */
typedef struct dt_parallel_opts {
    int dt__first DT_D;
    int devices   DT_D; /* default: on the CPU dt_get_num_threads(), otherwise the model's device and all after it */
    /* the .devices devices, all of one backend, the model's device first. Default: the model's device and the next ones */
    dt_device *const *on DT_D;
} dt_parallel_opts;
DT_API dt_parallel *dt_parallel_new_with(dt_model *m, dt_parallel_opts o DT_OPT0(dt_parallel_opts));
#ifdef DT__LIT
#define dt_parallel_new(...) \
    dt_parallel_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_parallel_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_parallel_new dt_parallel_new_with
#endif
DT_API void dt_parallel_free(dt_parallel *p); /* may be called before or after dt_model_free */
DT_API int  dt_parallel_devices(const dt_parallel *p);
typedef dt_tensor *(*dt_parallel_fn)(dt_model *m, dt_tensor *x, dt_tensor *y, void *user);
/* y and loss may be NULL. */
DT_API dt_status dt_parallel_backward(dt_parallel *p, dt_parallel_fn fn, void *user, dt_tensor *x, dt_tensor *y,
                                      double *loss);

#ifdef __cplusplus
}
#endif
#endif /* DT_DIST_H_INCLUDED */

/* ---------------------------------------------------------------------------------------------------- >>inside
   Private functions that dt_pipe.h, dt_serve.h and dt_elastic.h use. */
#if defined(DT__WANT_INSIDE) && !defined(DT__DIST_INSIDE)
#define DT__DIST_INSIDE
#ifdef __cplusplus
extern "C" {
#endif
typedef struct dt__ddp_fingerprint { /* the properties of a parameter that must be equal on all ranks */
    int64_t  shape[DT_MAX_DIMS]; /* of the whole */
    uint64_t values;             /* a hash of them, if they must be equal, too */
    int32_t  ndim, dtype, flags, index, dim, parts; /* parts, along dim: see dt__portion */
    char     name[128]; /* only its last 127 characters if it is longer */
} dt__ddp_fingerprint;
#define DT__DDP_HASH 1469598103934665603ull
DT__INSIDE uint64_t            dt__ddp_hash(uint64_t hash, const void *data, size_t nbytes); /* FNV-1a; start with DT__DDP_HASH */
DT__INSIDE dt__ddp_fingerprint dt__ddp_fingerprint_of(const dt__param *p, int index);
DT__INSIDE const char         *dt__ddp_fingerprint_text(const dt__ddp_fingerprint *k, char *buf, size_t nbytes);
DT__INSIDE int                 dt__ddp_same_fingerprint(const dt__ddp_fingerprint *a, const dt__ddp_fingerprint *b);
DT__INSIDE int dt__same_models(const char *call, dt_model *m, dt_comm *c, bool values);
DT__INSIDE void dt__drop_grads(dt_model *m); /* what a step that is given up has computed */
/* DT__DDP_DRIVEN: of a model that is also cut into stages or split; the pipeline calls dt__ddp_sum after its backwards.
   DT__DDP_ELASTIC: when a rank dies while the parameters are made, this rank makes the others alone: the next backward fails. If one
   dies in this call, it returns NULL without an error. */
enum { DT__DDP_PLAIN = 0, DT__DDP_DRIVEN, DT__DDP_ELASTIC };
DT__INSIDE dt_ddp *dt__ddp_make(dt_model *m, dt_comm *c, dt_ddp_opts o, int how);
DT__INSIDE int dt__ddp_sum(dt_ddp *d);
DT__INSIDE int dt__ddp_lost(const dt_ddp *d); /* why a communicator of d does not go on: a dt_comm_status; 0: all do */
/* dt_ddp_free after a rank has died: no call to the others. Values of a sharded model that are not here get any bits, and its
   optimiser states go: a load gives both back. */
DT__INSIDE void dt__ddp_drop(dt_ddp *d);
#ifdef __cplusplus
}
#endif
#endif /* DT__DIST_INSIDE */

#if defined(DT_DIST_IMPLEMENTATION) && !defined(DT__DIST_IMPLEMENTED)
#define DT__DIST_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__NN_IMPLEMENTED)
#error "dt_dist.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_DIST_IMPLEMENTATION"
#endif

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(DIST);
DT__NEEDS(DIST, NN);
DT__NEEDS(DIST, DATA);
DT__NEEDS(DIST, COMM);
DT__NEEDS(DIST, CPU);


typedef struct dt__bucket { /* a range of a block's gradients, summed by one allreduce */
    int      block;
    int      first, n;   /* its parameters: m->order[first .. first + n) */
    int64_t  at, length; /* range of elements in the block, including the gaps between parameters */
    int64_t  numel;      /* of its parameters, without gaps */
    int      last;       /* index in m->param of its parameter that was created first, which is ready last */
    int      waiting;    /* number of its gradients that the backward has not completed yet */
    int           stage;      /* the collective that runs: 0 ...; -1: it has not started, or is finished */
    bool          begun;      /* the hook's start was called in this step */
    uint64_t      call;       /* number of its first collective in this step */
    dt_work      *work;       /* of the stage, or NULL */
    dt_ddp_bucket pub;        /* what hooks see */
    int64_t       t0, t1;     /* ns: begin and end of its collectives in the last step */
    int64_t       times, took, hidden, sent; /* sums: steps, ns of collectives, ns before the end of the backward, bytes */
} dt__bucket;

/* The info that each rank sends to all others when its backward begins: words of 64 bits. */
enum { DT__INFO_WEIGHT, DT__INFO_REACH, DT__INFO_MODE, DT__INFO_BUCKETS, DT__INFO_USE, DT__INFO_MEMBER, DT__INFO_WORDS = DT__INFO_MEMBER + 3 };
/* DT__INFO_MODE. All ranks that do not skip must have the same mode. */
enum { DT__MODE_MEAN = 0, DT__MODE_WEIGHTED = 1, DT__MODE_SKIP = 2 };
enum { DT__DDP_STAGES = 8 };
/* dt_ddp.phase */
enum { DT__DDP_IDLE = 0, DT__DDP_BACKWARD, DT__DDP_SKIP };

/* ---- sharding. A unit is a bucket of a sharded model: its values and gradients. */
/* dt_ddp.walk: what | index << DT__WALK_BITS. Index of a batch norm: twice its channels, and 1 more in a backward */
enum { DT__WALK_VALUE, DT__WALK_BEGIN, DT__WALK_GRAD, DT__WALK_START, DT__WALK_NORM, DT__WALK_BITS = 3 };
typedef struct dt__room { /* memory for a unit that is whole for a while */
    dt_tensor *t;         /* 1-d */
    bool       used;
} dt__room;
struct dt__unit;
typedef struct dt__unit_lazy {
    dt__lazy         lazy; /* first */
    struct dt__unit *u;
} dt__unit_lazy;
typedef enum dt__unit_state {
    DT__UNIT_HERE = 0, /* the memory is there and valid */
    DT__UNIT_GONE,     /* values: to be gathered. Gradients: there are none, the memory (if any) may be overwritten */
    DT__UNIT_COMING,   /* values: `work` gathers them */
    DT__UNIT_CUT       /* gradients: reduced, only this rank's range is valid */
} dt__unit_state;
typedef struct dt__unit {
    dt_ddp        *d;
    int            index, block, first, n; /* as of its bucket */
    int64_t        at, length;
    int            dtype;
    int64_t       *count;        /* elements of each rank; the range of this rank begins at `mine` in the unit, */
    int64_t        mine, own_at; /* and at own_at in arrays that hold only ranges */
    dt_tensor     *value, *grad; /* 1-d, length elements: the storages of its parameters and their gradients */
    dt_tensor     *own_value, *own_grad; /* .shard = 3, >= 2: arrays of the block that hold only ranges */
    dt__unit_lazy  lazy_value, lazy_grad;
    dt__unit_state vstate, gstate;
    int            vroom, groom; /* index of the room, or -1 */
    dt_work       *work;
    uint32_t version; /* of the values when they were gathered: the program has changed them since if it differs */
} dt__unit;

struct dt_ddp {
    dt_model   *m;        /* NULL after the model was freed */
    dt_comm    *user, *c; /* the program's communicator and our duplicate of it; both NULL in a world of one */
    dt__watch   watch;
    dt_ddp_opts o;
    int         rank, world;
    int         on_device;   /* the model is on a device whose memory the host cannot access */
    int         hook;        /* from dt_grad_hooks_add on the thread that called dt_ddp_new, or -1 */
    uint64_t    serial;      /* the hook's name for the ddp: see dt__hooked_ddp */
    dt_ddp     *next_hooked;
    int         error_known; /* all ranks know our error: do not send it again */
    int         driven;      /* a pipeline calls dt__ddp_sum after its backwards; there are no hooks */
    int         elastic, torn; /* torn: a rank has died while the parameters were made */
    int         dropped;     /* dt__ddp_drop: sharded values that are not here are not gathered any more */
    int         no_sync;     /* between dt_ddp_no_sync(d, true) and dt_ddp_no_sync(d, false) */
    int         unsummed;    /* number of backwards under no_sync since the last synchronised one */
    /* the buckets' way */
    dt_ddp_hook         way;
    char                way_name[160];
    int                 way_set;                /* by the program or an option: not the allreduce */
    int                 agreed;                 /* all ranks are known to have the same hook */
    dt_comm            *staged[DT__DDP_STAGES]; /* communicators of the stages from 1 on: staged[stage - 1] */
    dt_ddp_part        *part;                   /* by m->order */
    struct dt__squeeze *squeeze;                /* of .compress, or NULL */
    int64_t             synced;                 /* number of synchronised backwards */
    float              *packed; /* for a checkpoint: arrays of all ranks (rank 0) or of this one; NULL outside a save */
    int64_t             npacked; /* of each rank */
    /* buckets */
    int         version; /* of the model's blocks when the buckets were made; 0: there are no buckets yet */
    dt__bucket *bucket;
    int         nbuckets, next, bucket_cap; /* next: the first bucket that is not started */
    int        *of;    /* by m->order: index of its bucket */
    uint8_t    *reach; /* by m->order: 1 if it has a gradient, or will have one; first of this rank, later of any rank */
    int         norder;
    /* the current backward */
    int        phase;
    int        info_received;
    double     weight;        /* from dt_ddp_samples; negative if it was not called */
    double     before, after; /* factors of gradients before and after the sum */
    int64_t   *info;          /* DT__INFO_WORDS of each rank */
    dt_work   *info_work;
    uint64_t   reach_hash;
    int64_t   *bad; /* for each rank: -1 if all was finite; m->order of its first gradient that is not finite; norder:
                       its loss; norder + 1 + i: a gradient of bucket i; norder + 1 + nbuckets + i: the hook cannot send
                       bucket i */
    dt_work   *bad_work;
    dt_tensor *flag;    /* f32 (1) */
    dt_tensor *flags;   /* on_device: f32, for each bucket: not 0 if a gradient is not finite */
    dt_tensor *staging; /* u8: contiguous copies of the model's buffers; NULL if they are not broadcast */
    dt_work   *staging_work;
    int        staging_root;
    /* slots */
    int     slot;  /* the next slot of this rank */
    int64_t total; /* elements of all blocks */
    float  *send, *gather;
    size_t  send_nbytes, gather_nbytes;
    /* sharding */
    dt__sharding shards;
    dt_comm     *gathers;         /* a duplicate for gathering: its order is that of the layers */
    dt__unit    *unit, *old_unit; /* old_unit: while the model is packed anew */
    int          nunits, nold;
    dt__room    *room;
    int          nrooms, room_cap;
    int          ending;     /* dt_ddp_free: the model becomes whole */
    int          recent[3];  /* .shard = 3: units whose values were used last, the latest first; -1: none */
    int          ahead;      /* the unit that is gathered before it is used, or -1 */
    int         *use, *used; /* units in the order of use: in this step, and in the one before */
    int          nuse, nused, use_at;
    int          use_cap, used_cap;
    int          use_said;   /* .shard 1 and 2: so many of `use` all ranks have, in this order, if use_agreed: see dt__info_receive */
    bool         use_agreed;
    int         *walk, *walked; /* for dt_ddp_skip: see dt__walk_record. Since the last backward, and in that one */
    int          nwalk, nwalked, walk_cap, walked_cap;
    int          walk_version;  /* of the model's blocks, in walked; 0: there is none */
    bool         walking;       /* dt_ddp_skip repeats it */
    /* batch norm over all ranks */
    dt_comm      *norm; /* a second duplicate, since buckets run on c meanwhile; NULL without .sync_batchnorm */
    dt__norm_sync sync;
    double       *stats_buf;
    size_t        stats_nbytes;
    /* For each collective of this step and of the step before: its number of channels, negative for one of a backward */
    int64_t      *norm_calls, *norm_calls_prev;
    int64_t       nnorm_calls, nnorm_calls_prev, norm_calls_cap, norm_calls_prev_cap;
    double       *skip_buf; /* zeros that a rank that skips contributes */
    size_t        skip_nbytes;
    dt_tensor    *skip_device; /* on_device: the same, f32 */
    dt_work     **skip_work;
    int64_t       nskip, skip_cap;
    int64_t       skip_at, skip_counts; /* on_device: how much of skip_device and skip_buf is taken */
    /* verification and statistics */
    FILE        *verify; /* rank 0: the file of DT_VERIFY */
    int          verifying;
    int64_t      verified;
    int64_t      steps; /* calls of dt_step */
    dt_ddp_stats stats, first;   /* first: after the first step, which has no period */
    double       busy; /* dt_comm_stats.busy - .waited of c at t_begin */
    uint64_t     t_begin, t_walked, t_last; /* ns: begin of the backward, its end (0: not yet), end of the last synchronised one */
    uint64_t     t_mark;         /* ns: since then, or since t_walked, the waits are not in the trace yet */
    uint64_t     stalled, waited; /* ns in this backward: all waits before t_walked; waits for slower ranks */
};

DT__SLOW_BEGIN
/* ==================================================================================================== >>models
   Threads of all sections up to >>attach: the thread that called dt_ddp_new runs everything, in its own calls or in
   hooks that dt_backward and dt_step run on it. Another thread may call dt_ddp_free when that thread has finished. The communicators have their own threads; the two sides meet only in
   dt_work objects, so there is no lock here. */
/* Where this rank is, in words of the training. */
static const char *dt__ddp_place(const dt_ddp *d, const char *call, char *buf, size_t nbytes)
{
    if (!strcmp(call, "dt_ddp_free"))
        snprintf(buf, nbytes, "after step %" PRId64, d->steps);
    else if (!strcmp(call, "dt_backward") && d->nbuckets && !d->o.slots)
        snprintf(buf, nbytes, "in step %" PRId64 " (%d of %d gradient buckets started)", d->steps + 1, d->next, d->nbuckets);
    else
        snprintf(buf, nbytes, "in step %" PRId64, d->steps + 1);
    return buf;
}
/* Ranks made different calls. dt_comm.h's text has the calls; the training's step and the remedy are added here. */
static const char *dt__way_where(const dt_ddp *d, int bucket, char *buf, size_t nbytes)
{
    const dt_ddp_bucket *k = &d->bucket[bucket].pub;
    snprintf(buf, nbytes, "bucket %d of %d (parameters '%.100s' to '%.100s')", k->index, k->buckets, k->part[0].name,
             k->part[k->parts - 1].name);
    return buf;
}
/* The bucket whose first collective is the one that differs between ranks, or -1. What has not started yet is counted on. */
static int dt__way_differs(const dt_ddp *d)
{
    uint64_t differs = 0;
    if (d->way_set && d->nbuckets) dt__comm_calls(d->c, &differs);
    for (int i = d->next - 1; i >= 0 && differs; i--) {
        if (!d->bucket[i].begun || d->bucket[i].call > differs) continue;
        uint64_t at = (uint64_t)i + (differs - d->bucket[i].call);
        return at < (uint64_t)d->nbuckets ? (int)at : -1;
    }
    return -1;
}
static int dt__ddp_mismatch(const dt_ddp *d, const char *call, int left, const char *why)
{
    char place[100], where[320];
    int  bucket = left < 0 ? dt__way_differs(d) : -1;
    if (bucket >= 0)
        return dt_fail(DT_ERR_COMM,
                       "%s: the hook '%s' started different collectives on different ranks for %s; it must start the "
                       "same ones, of "
                       "the same length, on all ranks (%s)",
                       call, d->way_name, dt__way_where(d, bucket, where, sizeof where), why);
    dt__ddp_place(d, call, place, sizeof place);
    if (left == d->rank)
        return dt_fail(DT_ERR_COMM,
                       "%s: this rank (%d) has ended its training %s, but other ranks continue: the ranks have different "
                       "numbers of batches. Give all loaders the same number (.drop_last, and no .no_pad), or loop with "
                       "dt_ddp_more and dt_ddp_skip (%s)",
                       call, d->rank, place, why);
    if (left >= 0)
        return dt_fail(DT_ERR_COMM,
                       "%s: rank %d has ended its training (it has no more batches), but this rank (%d) is %s. Give all "
                       "loaders the same number of batches (.drop_last, and no .no_pad), or loop with dt_ddp_more and "
                       "dt_ddp_skip (%s)",
                       call, left, d->rank, place, why);
    return dt_fail(DT_ERR_COMM,
                   "%s: this rank (%d) is %s, another rank is elsewhere in its training. All ranks must make the same "
                   "calls of DDP in the same order: dt_backward, dt_ddp_skip, dt_ddp_more, dt_ddp_mean, dt_ddp_no_sync "
                   "(%s)",
                   call, d->rank, place, why);
}
static void dt__ddp_abort(dt_ddp *d, const char *why)
{
    dt_comm_abort(d->c, why);
    dt_comm_abort(d->norm, why);
    dt_comm_abort(d->gathers, why);
    for (int s = 0; s + 1 < DT__DDP_STAGES; s++) dt_comm_abort(d->staged[s], why);
}
static int dt__ddp_comm_fail(dt_ddp *d, const char *call)
{
    if (dt__err.code != DT_OK) return dt__err.code;
    const dt_comm *failed = d->c && dt_comm_error(d->c) ? d->c : d->norm && dt_comm_error(d->norm) ? d->norm : NULL;
    for (int s = 0; s + 1 < DT__DDP_STAGES && !failed; s++)
        if (d->staged[s] && dt_comm_error(d->staged[s])) failed = d->staged[s];
    if (!failed && d->gathers && dt_comm_error(d->gathers)) failed = d->gathers;
    const char    *why = failed ? dt_comm_error(failed) : d->elastic ? dt_comm_error(NULL) : NULL;
    int            left = dt__comm_left(failed), mismatch = left >= 0 || (failed && failed->status == DT_COMM_ERR_MISMATCH);
    d->error_known = 1; /* the rank that failed has informed all others */
    if (d->norm || d->staged[0] || d->gathers) dt__ddp_abort(d, why); /* wake ranks that wait in another communicator */
    if (mismatch && !d->driven) return dt__ddp_mismatch(d, call, left, why);
    return dt_fail(DT_ERR_COMM, "%s: %s%s", call, why ? why : "the communicator failed", d->driven ? " (data axis)" : "");
}
/* Sends a pending error of this rank to all ranks, once. */
static void dt__ddp_send_error(dt_ddp *d)
{
    if (d->error_known || !d->c || dt__err.code == DT_OK) return;
    d->error_known = 1;
    dt__ddp_abort(d, dt_error());
}
static int dt__ddp_alone(const dt_ddp *d) { return !d->c; }

DT__INSIDE uint64_t dt__ddp_hash(uint64_t hash, const void *data, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211ull;
    return hash;
}
DT__INSIDE dt__ddp_fingerprint dt__ddp_fingerprint_of(const dt__param *p, int index)
{
    dt__ddp_fingerprint k;
    memset(&k, 0, sizeof k);
    k.ndim = p->t->ndim;
    k.dtype = p->t->dtype;
    k.flags = p->buffer | p->frozen << 1 | (p->init ? 1 : 0) << 2;
    k.index = index;
    dt_shape whole = dt__param_shape(p);
    for (int i = 0; i < p->t->ndim; i++) k.shape[i] = whole.dim[i];
    k.dim = p->cut.dim;
    k.parts = p->cut.parts;
    size_t n = strlen(p->name), cut = n >= sizeof k.name ? n - sizeof k.name + 1 : 0;
    memcpy(k.name, p->name + cut, n - cut);
    return k;
}
DT__INSIDE const char *dt__ddp_fingerprint_text(const dt__ddp_fingerprint *k, char *buf, size_t nbytes)
{
    if (!k->name[0]) {
        snprintf(buf, nbytes, "nothing");
    } else {
        char part[64] = "", values[48] = "";
        if (k->parts) snprintf(part, sizeof part, ", split into %d along dimension %d", (int)k->parts, (int)k->dim);
        if (k->values) snprintf(values, sizeof values, ", values %016" PRIx64, k->values);
        snprintf(buf, nbytes, "%s '%s' %s %s%s%s%s", k->flags & 1 ? "buffer" : "parameter", k->name,
                 dt_dtype_name((dt_dtype)k->dtype), dt__shape_text(k->shape, k->ndim),
                 k->flags & 2   ? ", frozen"
                 : k->flags & 4 ? ", with an f32 master"
                                : "", part, values);
    }
    return buf;
}
DT__INSIDE int dt__ddp_same_fingerprint(const dt__ddp_fingerprint *a, const dt__ddp_fingerprint *b)
{
    return !memcmp(a, b, sizeof *a);
}
static int dt__ddp_differs(dt_ddp *d, const dt__ddp_fingerprint *mine, const dt__ddp_fingerprint *theirs, int rank)
{
    char a[320], b[320];
    int  rc =
        dt_fail(DT_ERR_COMM, "dt_ddp: the models differ: number %d is %s on rank %d, %s on rank %d; create the same "
                "parameters in the same order on all ranks", mine->index + 1, dt__ddp_fingerprint_text(mine, a, sizeof a),
                d->rank, dt__ddp_fingerprint_text(theirs, b, sizeof b), rank);
    dt__ddp_send_error(d);
    return rc;
}
/* A rank may use several devices only if all have the memory of the host: over NCCL it has one. */
static int dt__ddp_place_ok(dt_ddp *d, const dt__param *p)
{
    const dt_device *dev = p->t->st->dev;
    if (d->on_device ? dev == d->m->device : dt__is_host(dev)) return 0;
    if (d->on_device)
        dt_fail(DT_ERR_DEVICE, "dt_ddp: '%s' is on %s and the model on %s: over NCCL a rank uses one device; leave out the "
                "device scopes, and start one rank for each device", p->name, dev->name, d->m->device->name);
    else
        dt_fail(DT_ERR_DEVICE, "dt_ddp: '%s' is on %s, whose memory this communicator cannot read; with several devices on a "
                "rank all must have the memory of the host; otherwise use one device a rank and .backend = DT_NCCL", p->name,
                dev->name);
    dt__ddp_send_error(d);
    return dt__err.code;
}
/* Checks that a parameter or buffer has the same fingerprint on rank 0, then takes rank 0's value. */
static int dt__ddp_sync_param(dt_ddp *d, const dt__param *p, int index)
{
    if (dt__ddp_place_ok(d, p)) return dt__err.code;
    dt__ddp_fingerprint mine = dt__ddp_fingerprint_of(p, index), theirs = mine;
    if (dt_comm_broadcast(d->c, &theirs, (int64_t)sizeof theirs, DT_COMM_U8, 0)) return dt__ddp_comm_fail(d, "dt_ddp");
    if (!dt__ddp_same_fingerprint(&mine, &theirs)) return dt__ddp_differs(d, &mine, &theirs, 0);
    dt_tensor *part[2] = { p->t, p->init };
    for (int i = 0; i < 2; i++) {
        if (!part[i] || !part[i]->numel) continue;
        char *data = (char *)part[i]->st->ptr + part[i]->offset * (int64_t)dt__dtype_size[part[i]->dtype];
        if (dt_comm_broadcast(d->c, data, part[i]->numel * (int64_t)dt__dtype_size[part[i]->dtype], DT_COMM_U8, 0))
            return dt__ddp_comm_fail(d, "dt_ddp");
    }
    return 0;
}
/* A call has failed: because a rank has died? Then there is no error, and this rank makes the rest of its model alone. News of the death may
   reach the communicators a moment later than the call that failed. */
static bool dt__ddp_tears(dt_ddp *d)
{
    int64_t until = dt__comm_now() + 100 * DT__NS_PER_MS;
    for (; d->elastic && dt__err.code == DT_ERR_COMM && !d->torn && dt__comm_now() < until; dt__comm_pause(DT__NS_PER_MS)) {
        int status = dt__ddp_lost(d);
        d->torn = status == DT_COMM_ERR_PEER || status == DT_COMM_ERR_TIMEOUT;
        if (d->torn) break;
    }
    if (d->torn) (void)dt_error(), dt_error_clear();
    return d->torn;
}
static int dt__param_index(const dt_model *m, const dt__param *p)
{
    for (int i = 0; i < m->nparams; i++)
        if (m->param[i] == p) return i;
    return -1;
}
static int dt__ddp_on_param(void *user, dt__param *p)
{
    dt_ddp *d = (dt_ddp *)user;
    if (dt__ddp_alone(d) || dt__is_ghost(p->t) || d->torn) return 0;
    int rc = dt__ddp_sync_param(d, p, dt__param_index(d->m, p));
    return rc && dt__ddp_tears(d) ? 0 : rc;
}
/* All ranks of c must have the same list of parameters, and with `values` the same bits in those that are not split. The first
   difference between rank 0 and the lowest rank that differs from it is reported, on all ranks. Returns 0, a negative status after
   dt_fail, or 1 if the communicator has failed. */
static dt__ddp_fingerprint dt__model_fingerprint(const dt_model *m, int i, bool values)
{
    const dt__param    *p = m->param[i];
    dt__ddp_fingerprint k = dt__ddp_fingerprint_of(p, i);
    size_t              nbytes = (size_t)p->t->numel * dt__dtype_size[p->t->dtype];
    if (!values || p->cut.parts || dt__is_ghost(p->t) || dt__err.code != DT_OK) return k;
    void *host = dt_scratch(nbytes + 1);
    if (host && !dt__download(p->t, host)) k.values = dt__ddp_hash(DT__DDP_HASH, host, nbytes) | 1;
    return k;
}
DT__INSIDE int dt__same_models(const char *call, dt_model *m, dt_comm *c, bool values)
{
    uint64_t hash = DT__DDP_HASH;
    int      rank = dt_comm_rank(c), world = dt_comm_size(c);
    for (int i = 0; i < m->nparams; i++) {
        dt__ddp_fingerprint k = dt__model_fingerprint(m, i, values);
        hash = dt__ddp_hash(hash, &k, sizeof k);
    }
    int64_t *all = (int64_t *)dt_mem_alloc((size_t)world * 2 * sizeof *all), mine[2];
    if (!all) return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    mine[0] = (int64_t)hash;
    mine[1] = m->nparams;
    int rc = dt_comm_allgather(c, mine, all, 2, NULL, DT_COMM_I64) ? 1 : 0;
    int other = 0, most = m->nparams;
    for (int r = world - 1; r > 0 && !rc; r--)
        if (all[2 * r] != all[0] || all[2 * r + 1] != all[1]) other = r;
    if (other) most = (int)(all[1] > all[2 * other + 1] ? all[1] : all[2 * other + 1]);
    dt_mem_free(all, (size_t)world * 2 * sizeof *all);
    if (rc || !other) return rc;
    for (int i = 0; i < most && !rc; i++) { /* all ranks see both lists and stop at the same difference */
        dt__ddp_fingerprint k[2];
        for (int side = 0; side < 2 && !rc; side++) {
            int root = side ? other : 0;
            memset(&k[side], 0, sizeof k[side]);
            k[side].index = i;
            if (rank == root && i < m->nparams) k[side] = dt__model_fingerprint(m, i, values);
            if (dt_comm_broadcast(c, &k[side], (int64_t)sizeof k[side], DT_COMM_U8, root)) rc = 1;
        }
        if (rc || dt__ddp_same_fingerprint(&k[0], &k[1])) continue;
        char x[400], y[400];
        rc = dt_fail(DT_ERR_COMM, "%s: the models differ: number %d is %s on rank 0, %s on rank %d; create the same "
                     "parameters in the same order on all ranks%s", call, i + 1, dt__ddp_fingerprint_text(&k[0], x, sizeof x),
                     dt__ddp_fingerprint_text(&k[1], y, sizeof y), other, values ? ", from the same seed" : "");
    }
    return rc;
}
static int dt__ddp_same_models(dt_ddp *d) /* when the model is sealed */
{
    int rc = dt__same_models("dt_ddp", d->m, d->c, false);
    if (rc > 0) return dt__ddp_comm_fail(d, "dt_ddp");
    if (rc && dt__err.code == DT_ERR_COMM) d->error_known = 1; /* all ranks report this error */
    return rc;
}
/* Compares the models, then broadcasts rank 0's parameters, buffers and master weights. */
static int dt__ddp_sync_model(dt_ddp *d)
{
    dt_model *m = d->m;
    int       rc = dt__ddp_same_models(d);
    for (int i = 0; i < m->nparams && !rc; i++) rc = dt__ddp_sync_param(d, m->param[i], i);
    for (int i = 0; i < m->nblocks && !rc; i++) {
        dt_tensor *t = m->block[i].master;
        if (t && dt_comm_broadcast(d->c, (char *)t->st->ptr + t->offset * 4, t->numel, DT_COMM_F32, 0))
            rc = dt__ddp_comm_fail(d, "dt_ddp");
    }
    return rc;
}

/* ==================================================================================================== >>buckets
   A bucket is a range of one of the model's blocks that ends between two parameters. Collectives must start in the same
   order on all ranks, whatever the order in which gradients become ready. Therefore buckets are sorted by their 'last'
   parameter, the latest created first, which is the order in which a backward normally completes them. */
typedef struct dt__ddp_memory {
    dt_comm *c;
    void    *ptr;
    dt_device *dev;
    size_t     nbytes;
} dt__ddp_memory;
static void dt__ddp_release(void *user)
{
    dt__ddp_memory *k = (dt__ddp_memory *)user;
    dt_comm_dealloc(k->c, k->ptr);
    dt__count_live(k->dev, k->nbytes, false);
    dt_mem_free(k, sizeof *k);
}
/* A tensor of dev in memory that the ranks of a machine share; on_device: in memory of the device */
static dt_tensor *dt__ddp_alloc(dt_ddp *d, dt_device *dev, int dtype, int64_t n)
{
    if (d->on_device) return dt__new("dt_ddp", dev, dtype, &n, 1, DT_LAYOUT_PLAIN);
    dt__ddp_memory *k = (dt__ddp_memory *)dt_mem_alloc(sizeof *k);
    if (!k) return NULL;
    k->c = d->c;
    k->ptr = dt_comm_alloc(d->c, (size_t)n * dt__dtype_size[dtype]);
    dt_tensor *t = k->ptr ? dt__adopt("dt_ddp", dev, k->ptr, dtype, &n, 1) : NULL;
    if (!t) {
        if (k->ptr) dt_comm_dealloc(k->c, k->ptr);
        dt_mem_free(k, sizeof *k);
        return NULL;
    }
    k->dev = dev;
    k->nbytes = (size_t)n * dt__dtype_size[dtype];
    dt__count_live(dev, k->nbytes, true);
    t->st->release = dt__ddp_release;
    t->st->user = k;
    return t;
}
/* Memory for a block's gradients; NULL: the default. */
static dt_tensor *dt__ddp_grads(void *user, dt_device *dev, int dtype, int64_t n)
{
    dt_ddp *d = (dt_ddp *)user;
    /* sharded gradients: the whole block is there only while it is made */
    return dt__ddp_alone(d) || d->o.slots || d->on_device || d->ending || d->o.shard > 1 ? NULL
                                                                                         : dt__ddp_alloc(d, dev, dtype, n);
}
static void dt__ways_reset(dt_ddp *d);
static void dt__buckets_free(dt_ddp *d)
{
    dt__ways_reset(d);
    for (int i = 0; i < d->nbuckets; i++) dt__unref(d->bucket[i].pub.grad);
    dt_mem_free(d->part, (size_t)d->norder * sizeof *d->part);
    d->part = NULL;
    dt_mem_free(d->bucket, (size_t)d->bucket_cap * sizeof *d->bucket);
    dt_mem_free(d->of, (size_t)d->norder * sizeof *d->of);
    dt_mem_free(d->reach, (size_t)d->norder);
    d->bucket = NULL;
    d->of = NULL;
    d->reach = NULL;
    d->nbuckets = d->bucket_cap = d->norder = d->version = 0;
}
static int dt__bucket_order(const void *a, const void *b)
{
    int x = ((const dt__bucket *)a)->last, y = ((const dt__bucket *)b)->last;
    return (x < y) - (x > y);
}
static bool dt__ddp_buffer(const dt__param *p) { return p->buffer && !dt__is_ghost(p->t); } /* a pipeline: other ranks have the rest */
static int64_t dt__buffer_nbytes(const dt_tensor *t) /* in d->staging: aligned to 64 bytes */
{
    return (t->numel * (int64_t)dt__dtype_size[t->dtype] + 63) & ~(int64_t)63;
}
static int dt__bucket_publish(dt_ddp *d, int i) /* what a hook sees of it */
{
    dt__bucket    *b = &d->bucket[i];
    dt_ddp_bucket *k = &b->pub;
    for (int j = b->first; j < b->first + b->n; j++) {
        const dt__param *p = d->m->order[j];
        d->of[j] = i;
        d->part[j].name = p->name;
        d->part[j].shape = dt_shape_of(p->t);
        d->part[j].offset = p->offset - b->at;
        d->part[j].numel = p->t->numel;
    }
    b->stage = -1;
    k->index = i;
    k->buckets = d->nbuckets;
    k->last = i == d->nbuckets - 1;
    k->parts = b->n;
    k->part = &d->part[b->first];
    k->n = b->length;
    k->dtype = d->m->order[b->first]->t->dtype;
    k->rank = d->rank;
    k->world = d->world;
    if (!d->way_set || dt__ddp_alone(d)) return 0;
    k->grad = d->unit ? dt__ref(d->unit[i].grad) : dt__slice(d->m->block[b->block].b.grad, 0, b->at, b->length);
    return k->grad ? 0 : (int)DT_ERR_MEMORY;
}
static bool dt__same_layer(const dt__param *a, const dt__param *b)
{
    const char *x = strrchr(a->name, '.'), *y = strrchr(b->name, '.');
    return x && y && x - a->name == y - b->name && !strncmp(a->name, b->name, (size_t)(x - a->name));
}
#define DT__UNIT_LEAST 65536 /* bytes: smaller layers are gathered together */
/* Cuts the blocks into buckets and sorts these; returns how many there are. With .shard = 3 a layer is in one bucket. */
static int dt__buckets_cut(const dt_ddp *d, dt__bucket *bucket)
{
    const dt_model *m = d->m;
    double          first = (d->o.first_bucket_mb > 0 ? d->o.first_bucket_mb : 1) * 1048576;
    double          rest = (d->o.bucket_mb > 0 ? d->o.bucket_mb : 25) * 1048576, limit = first;
    bool            layers = d->o.shard == 3 && !dt__ddp_alone(d);
    int             n = 0;
    for (int i = 0; i < m->nblocks; i++) {
        const dt__mblock *mb = &m->block[i];
        dt__bucket       *b = NULL;
        if (mb->n && dt__is_ghost(m->order[mb->first]->t)) continue;
        for (int k = 0; k < mb->n; k++) {
            const dt__param *p = m->order[mb->first + k];
            double           size = (double)dt__dtype_size[p->t->dtype];
            bool             full = !b || (double)(b->numel + p->t->numel) * size > limit;
            if (b && layers) {
                full = full || (double)b->numel * size >= (limit < DT__UNIT_LEAST ? limit : DT__UNIT_LEAST);
                full = full && !dt__same_layer(m->order[mb->first + k - 1], p);
            }
            if (full) {
                if (b) limit = rest;
                b = &bucket[n++];
                b->block = i;
                b->first = mb->first + k;
                b->at = p->offset;
            }
            b->n++;
            b->numel += p->t->numel;
            b->length = p->offset + p->t->numel - b->at;
            b->last = dt__param_index(m, p);
        }
    }
    qsort(bucket, (size_t)n, sizeof *bucket, dt__bucket_order);
    return n;
}
static int dt__buckets_make(dt_ddp *d)
{
    dt_model *m = d->m;
    int       n = 0;
    dt__buckets_free(d);
    for (int i = 0; i < m->nblocks; i++) n += m->block[i].n;
    d->norder = d->bucket_cap = n;
    d->bucket = (dt__bucket *)dt__alloc_zero((size_t)n * sizeof *d->bucket);
    d->of = (int *)dt__alloc_zero((size_t)n * sizeof *d->of);
    d->reach = (uint8_t *)dt__alloc_zero((size_t)n);
    d->part = (dt_ddp_part *)dt__alloc_zero((size_t)n * sizeof *d->part);
    if (!d->bucket || !d->of || !d->reach || !d->part)
        return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for %d buckets", n);
    d->nbuckets = dt__buckets_cut(d, d->bucket);
    d->total = 0;
    for (int i = 0; i < d->nbuckets; i++)
        if (dt__bucket_publish(d, i)) return DT_ERR_MEMORY;
    for (int i = 0; i < m->nblocks; i++) d->total += m->block[i].numel; /* includes gaps; used by slots */
    int64_t nbytes = 0, buckets = d->nbuckets;
    for (int i = 0; i < m->nparams; i++)
        if (dt__ddp_buffer(m->param[i])) nbytes += dt__buffer_nbytes(m->param[i]->t);
    dt__unref(d->staging);
    dt__unref(d->flags);
    d->staging = d->flags = NULL;
    if (nbytes && !d->o.no_buffers && !dt__ddp_alone(d)) {
        d->staging = dt__ddp_alloc(d, m->device, DT_U8, nbytes);
        if (!d->staging) return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for %" PRId64 " bytes of buffers", nbytes);
    }
    if (d->on_device && buckets) {
        d->flags = dt__new("dt_ddp", m->device, DT_F32, &buckets, 1, DT_LAYOUT_PLAIN);
        if (!d->flags) return DT_ERR_MEMORY;
    }
    d->version = m->version;
    return 0;
}
/* Its gradients: the tensor, and where they begin in it. Sharded: those of its unit, whose memory is there then, or an error is
   pending. */
static dt_tensor *dt__bucket_grad(const dt_ddp *d, const dt__bucket *b, int64_t *at)
{
    *at = d->unit ? 0 : b->at;
    if (!d->unit) return d->m->block[b->block].b.grad;
    dt__lazy *lazy = d->unit[b - d->bucket].grad->st->lazy;
    if (lazy) lazy->touch(lazy);
    return d->unit[b - d->bucket].grad;
}
static char *dt__bucket_data(const dt_ddp *d, const dt__bucket *b)
{
    int64_t          at;
    const dt_tensor *g = dt__bucket_grad(d, b, &at);
    return (char *)g->st->ptr + (g->offset + at) * (int64_t)dt__dtype_size[g->dtype];
}
/* Multiplies elements at .. at + n - 1 of t by scale, in place. Element flag_at of flag becomes 1 if one of them is not
   finite. The flags may be of another device than t only if both have the memory of the host. */
static int dt__ddp_scale_flag(dt_ddp *d, dt_tensor *t, int64_t at, int64_t n, double scale, dt_tensor *flag,
                              int64_t flag_at)
{
    dt_call c;
    int     rc = 0;
    if (flag || t->dtype == DT_F32) {
        dt__call_begin(&c, DT_K_unscale);
        c.u.ew.a = scale;
        if (t->dtype == DT_F32) dt__view_part(dt__out(&c, t), at, n);
        else dt__out(&c, NULL);
        dt__view_part(dt__out(&c, flag ? flag : d->flag), flag ? flag_at : 0, 1);
        dt__view_part(dt__in(&c, t), at, n);
        rc = dt__go(t->st->dev, &c);
    }
    if (!rc && t->dtype != DT_F32 && scale != 1) {
        dt__call_begin(&c, DT_K_unary);
        c.u.ew.fn = DT_U_AFFINE;
        c.u.ew.a = scale;
        dt__view_part(dt__out(&c, t), at, n);
        dt__view_part(dt__in(&c, t), at, n);
        rc = dt__go(t->st->dev, &c);
    }
    return rc;
}
/* The same; waits for the result: *bad becomes 1 if an element is not finite. bad NULL: not checked */
static int dt__ddp_scale(dt_ddp *d, dt_tensor *t, int64_t at, int64_t n, double scale, int *bad)
{
    float found = 0;
    if (!n) return 0;
    int rc = bad ? dt__fill(d->flag, 0) : 0;
    if (!rc) rc = dt__ddp_scale_flag(d, t, at, n, scale, bad ? d->flag : NULL, 0);
    if (rc || !bad) return rc;
    rc = dt__download(d->flag, &found);
    *bad = found != 0;
    return rc;
}

/* ==================================================================================================== >>ways
   A bucket's way in a step. Its stage is the number of the collective that runs, -1: none does.

       -1 -> 0         its last gradient is complete: start
       s -> s + 1      collective s is done, and no bucket before it is in a stage below s + 1: finish, which gave another work
       s -> -1         finish gave no work

   dt__ways_advance moves what can move without waiting, whenever a gradient becomes complete; dt__ddp_drain moves the rest after
   the backward, stage by stage. So every stage has its collectives in the order of the buckets, on a communicator of its
   own: ranks may be at different stages of different buckets. On a GPU they may not, because the collectives of all communicators
   have one order there (dt_nccl.h): a bucket moves when two buckets have begun after it. */
static int  dt__ddp_wait(dt_ddp *d, dt_work *w);
static void dt__unit_reduced(dt__unit *u);
static dt_work *dt__unit_sum(dt_ddp *d, const dt_ddp_bucket *b, void *x, void *out, int dtype);
static int  dt__shards_begin(dt_ddp *d);
static void dt__walk_record(dt_ddp *d, int what, int index);
static void dt__walk_end(dt_ddp *d);
static int  dt__shard_masters(dt_ddp *d, dt__mblock *b);
static int  dt__way_allreduce(dt_ddp_bucket *b, dt_work **work, void *user) /* DDP's own way */
{
    (void)user;
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
    return *work ? 0 : (int)DT_ERR_COMM;
}
/* The hook failed on this rank: the message goes to all. If the communicator failed, all ranks have its message. */
static int dt__way_fail(dt_ddp *d, const dt__bucket *b, int rc)
{
    char      where[320], why[700];
    dt_status code = dt__err.code;
    bool      failed = dt_comm_get_status(d->c) != 0;
    for (int s = 0; s + 1 < d->way.stages; s++) failed = failed || dt_comm_get_status(d->staged[s]);
    if (code == DT_OK && (failed || !d->way_set)) return dt__ddp_comm_fail(d, "dt_backward");
    if (code != DT_OK) snprintf(why, sizeof why, "%.690s", dt_error());
    else snprintf(why, sizeof why, "it returned %d and no error message; call dt_fail to say why", rc);
    dt_error_clear();
    dt_fail(code != DT_OK ? code : DT_ERR_STATE, "dt_backward: the hook '%s' failed on rank %d for %s: %s", d->way_name,
            d->rank, dt__way_where(d, b->pub.index, where, sizeof where), why);
    dt__ddp_send_error(d);
    return dt__err.code;
}
static int dt__way_call(dt_ddp *d, dt__bucket *b) /* start or finish, by b->stage */
{
    dt_ddp_bucket *k = &b->pub;
    dt_work       *w = NULL;
    uint64_t       t0 = dt_trace_now();
    void          *data = k->data = dt__bucket_data(d, b);
    int            rc = 0;
    k->stage = b->stage;
    k->comm = b->stage >= d->way.stages ? NULL : b->stage ? d->staged[b->stage - 1] : d->c;
    if (!b->stage) rc = d->way.start(k, &w, d->way.user);
    else if (d->way.finish) rc = d->way.finish(k, &w, d->way.user);
    d->stats.hook += (double)(dt_trace_now() - t0) / (double)DT__NS_PER_S;
    b->work = w;
    if (!rc && dt__err.code == DT_OK && (k->n != b->length || k->data != data))
        rc = dt_fail(DT_ERR_STATE,
                     "it changed the bucket: %" PRId64 " elements%s, expected %" PRId64 "; the sum must be in .data",
                     k->n, k->data != data ? " at another place" : "", b->length);
    if (!rc && dt__err.code == DT_OK && w && b->stage >= d->way.stages)
        rc = dt_fail(DT_ERR_STATE, "it started collective number %d, .stages is %d; set .stages", b->stage + 1,
                     d->way.stages);
    k->n = b->length;
    if (rc || dt__err.code != DT_OK) return dt__way_fail(d, b, rc);
    if (b->stage && !w) b->stage = -1;
    return 0;
}
static int dt__way_next(dt_ddp *d, dt__bucket *b) /* waits for its work, if there is one, and goes on */
{
    if (b->work) {
        int64_t  t0 = 0, t1 = 0;
        char     name[64];
        dt_work *w = b->work;
        b->work = NULL;
        dt_work_times(w, &t0, &t1);
        b->pub.seconds = (double)(t1 - t0 - dt_work_waited(w, NULL)) / (double)DT__NS_PER_S;
        if (dt__ddp_wait(d, w)) return dt__ddp_comm_fail(d, "dt_backward");
        if (b->stage) snprintf(name, sizeof name, "stage %d of bucket %d", b->stage, b->pub.index);
        else snprintf(name, sizeof name, "bucket %d, %" PRId64 " elements", b->pub.index, b->numel);
        dt_trace_span("ddp buckets", name, (uint64_t)t0, (uint64_t)t1);
        if (!b->stage) b->t0 = t0, b->times++;
        b->t1 = t1;
        b->took += t1 - t0;
        int64_t walked = d->t_walked && (int64_t)d->t_walked < t1 ? (int64_t)d->t_walked : t1;
        b->hidden += walked > t0 ? walked - t0 : 0;
    }
    b->stage++;
    if (dt__way_call(d, b)) return dt__err.code;
    if (d->unit && b->stage < 0) dt__unit_reduced(&d->unit[b->pub.index]);
    return 0;
}
static int dt__ways_advance(dt_ddp *d)
{
    int least = DT__DDP_STAGES, rc = 0; /* the least stage of the buckets before */
    if (d->o.shard == 3) return 0;      /* see dt__grad_room */
    if (d->on_device) {
        int flying = 0, oldest = -1;
        for (int i = d->next - 1; i >= 0; i--)
            if (d->bucket[i].stage >= 0) flying++, oldest = i;
        return d->way.stages > 1 && flying > 2 ? dt__way_next(d, &d->bucket[oldest]) : 0;
    }
    for (int i = 0; i < d->next && d->way.stages > 1 && !rc; i++) {
        dt__bucket *b = &d->bucket[i];
        while (!rc && b->stage >= 0 && b->stage < least && (!b->work || dt_work_test(b->work))) rc = dt__way_next(d, b);
        if (b->stage >= 0 && b->stage < least) least = b->stage;
    }
    return rc;
}
/* After all collectives, or after an error: does the step count? */
static bool dt__ways_counts(const dt_ddp *d)
{
    bool counts = dt__err.code == DT_OK;
    for (int r = 0; r < d->world; r++) counts = counts && d->bad[r] < 0;
    for (int i = 0; i < d->nbuckets; i++) counts = counts && !d->bucket[i].pub.nonfinite;
    return counts;
}
static void dt__ways_end(dt_ddp *d, bool counts)
{
    for (int i = 0; i < d->nbuckets; i++) {
        dt__bucket *b = &d->bucket[i];
        if (b->begun && d->way.end) d->way.end(&b->pub, counts, d->way.user);
        if (b->begun && counts) d->stats.sent += b->pub.sent, b->sent += b->pub.sent;
        b->begun = false;
    }
}
static void dt__ways_reset(dt_ddp *d) /* the hook's states begin anew */
{
    for (int i = 0; i < d->nbuckets; i++) {
        if (d->way.gone) d->way.gone(&d->bucket[i].pub, d->way.user);
        d->bucket[i].pub.state = NULL;
    }
}
/* Before the first step of this ddp: all ranks must have the same hook. Makes the communicators of its stages. */
static int dt__way_agree(dt_ddp *d)
{
    char     text[2][224];
    int64_t *all = (int64_t *)dt_mem_alloc((size_t)d->world * sizeof *all);
    int      other = 0, rc = 0;
    if (!all) return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory");
    memset(text, 0, sizeof text);
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof text[i], "%s'%s' with %d stage%s%s", d->way_set ? "" : "no hook but ", d->way_name,
                 d->way.stages, d->way.stages > 1 ? "s" : "", d->way_set && d->way.sums ? " and .sums" : "");
    int64_t mine = (int64_t)dt__ddp_hash(DT__DDP_HASH, text[0], sizeof text[0]);
    if (dt_comm_allgather(d->c, &mine, all, 1, NULL, DT_COMM_I64)) rc = dt__ddp_comm_fail(d, "dt_backward");
    for (int r = d->world - 1; r > 0 && !rc; r--)
        if (all[r] != all[0]) other = r;
    dt_mem_free(all, (size_t)d->world * sizeof *all);
    for (int i = 0; i < 2 && other && !rc; i++)
        if (dt_comm_broadcast(d->c, text[i], (int64_t)sizeof text[i], DT_COMM_U8, i ? other : 0))
            rc = dt__ddp_comm_fail(d, "dt_backward");
    if (other && !rc) {
        d->error_known = 1; /* all ranks report this error */
        for (int i = 0; i < 2; i++) text[i][sizeof text[i] - 1] = 0;
        return dt_fail(
            DT_ERR_COMM,
            "dt_backward: the ranks have different hooks: rank 0 has %s, rank %d has %s; set the same hook, with "
            "the same options, on all ranks before the first backward",
            text[0], other, text[1]);
    }
    for (int s = 0; s + 1 < d->way.stages && !rc; s++)
        if (dt_comm_dup(d->c, &d->staged[s])) rc = dt__ddp_comm_fail(d, "dt_backward");
    d->agreed = !rc;
    return rc;
}

/* ---- state of hooks. One walk over all buckets for each of: */
enum {
    DT__STATE_COUNT, /* how many values this rank has of its own */
    DT__STATE_PACK,  /* copies them, one behind the other */
    DT__STATE_SAVE,  /* gives all to a visitor */
    DT__STATE_LOAD,  /* takes all from a visitor */
    DT__STATE_KEEP,  /* copies all, by name */
    DT__STATE_BACK   /* takes those back that still exist */
};
typedef struct dt__kept {
    struct dt__kept *next;
    char            *name;
    float           *x;
    int64_t          n, integer;
} dt__kept;
struct dt_ddp_state {
    int         mode;
    dt_ddp     *d;
    dt__bucket *b;
    dt__visit  *v;
    float      *pack;
    int64_t     at, world; /* world: of the checkpoint */
    dt__kept   *kept;
};
static void dt__kept_free(dt__kept *k)
{
    while (k) {
        dt__kept *next = k->next;
        dt__free_text(k->name);
        dt_mem_free(k->x, (size_t)k->n * sizeof *k->x + 1);
        dt_mem_free(k, sizeof *k);
        k = next;
    }
}
/* x NULL: an integer. NULL: out of memory, or not there */
static dt__kept *dt__kept_get(dt_ddp_state *s, const char *name, const float *x, int64_t n)
{
    dt__kept *k = s->kept;
    if (s->mode == DT__STATE_BACK) {
        while (k && (strcmp(k->name, name) || k->n != n || !k->x != !x)) k = k->next;
        return k;
    }
    k = (dt__kept *)dt__alloc_zero(sizeof *k);
    if (!k) return NULL;
    k->next = s->kept;
    s->kept = k; /* from here on dt__kept_free frees it */
    k->name = dt__joined("", 0, name, NULL);
    k->n = n;
    if (x && !(k->x = (float *)dt_mem_alloc((size_t)n * sizeof *x + 1))) k->n = 0;
    return k->name && (!x || k->x) ? k : NULL;
}
static int dt__state_tensor(dt_ddp_state *s, const char *name, float *x, int64_t n) /* of a checkpoint */
{
    dt_tensor *t = dt__new("dt_ddp", dt_cpu(), DT_F32, &n, 1, DT_LAYOUT_PLAIN);
    int        rc = t ? 0 : (int)DT_ERR_MEMORY;
    if (!rc && !s->v->loading) rc = dt__upload(t, x);
    if (!rc) rc = s->v->tensor(s->v, name, t);
    if (!rc && s->v->loading) rc = dt__download(t, x);
    dt__unref(t);
    return rc;
}
/* An array of own values of ranks from .. to - 1, with these names; loading: their sum times scale */
static int dt__state_ranks(dt_ddp_state *s, char *name, size_t nbytes, float *x, int64_t n, int64_t from, int64_t to)
{
    const dt_ddp *d = s->d;
    size_t        len = strlen(name);
    bool          several = s->v->loading && to - from > 1;
    float        *one = several ? (float *)dt_mem_alloc((size_t)n * sizeof *one) : NULL;
    int           rc = several && !one ? dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the state of a hook") : 0;
    if (several) memset(x, 0, (size_t)n * sizeof *x);
    for (int64_t r = from; r < to && !rc; r++) {
        snprintf(name + len, nbytes - len, ".%" PRId64, r);
        if (several) {
            rc = dt__state_tensor(s, name, one, n);
            for (int64_t i = 0; i < n && !rc; i++) x[i] += one[i];
        } else if (!s->v->loading && d->packed) rc = dt__state_tensor(s, name, d->packed + r * d->npacked + s->at, n);
        else rc = dt__state_tensor(s, name, x, n);
    }
    for (int64_t i = 0; i < n && !rc && s->v->loading && s->world != d->world; i++) x[i] /= (float)d->world;
    dt_mem_free(one, several ? (size_t)n * sizeof *one : 0);
    return rc;
}
static int dt__state_cut(dt_ddp_state *s, const char *what, int part, float *x, int64_t n, int kind)
{
    const dt_ddp *d = s->d;
    const char   *of = s->b->pub.part[part].name;
    size_t        nbytes = strlen(what) + strlen(of) + 32;
    dt__kept     *k;
    int           rc = 0;
    if (!n) return 0;
    if (s->mode == DT__STATE_COUNT || s->mode == DT__STATE_PACK) {
        if (kind == DT_DDP_OWN && s->mode == DT__STATE_PACK) memcpy(s->pack + s->at, x, (size_t)n * sizeof *x);
        if (kind == DT_DDP_OWN) s->at += n;
        return 0;
    }
    char *name = (char *)dt_mem_alloc(nbytes);
    if (!name) return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for a name");
    snprintf(name, nbytes, "ddp.%s.%s", what, of);
    if (s->mode == DT__STATE_KEEP || s->mode == DT__STATE_BACK) {
        k = dt__kept_get(s, name, x, n);
        if (k && s->mode == DT__STATE_KEEP) memcpy(k->x, x, (size_t)n * sizeof *x);
        else if (k) memcpy(x, k->x, (size_t)n * sizeof *x);
        else if (s->mode == DT__STATE_KEEP)
            rc = dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the state of a hook");
    } else if (kind != DT_DDP_OWN) {
        rc = dt__state_tensor(s, name, x, n);
    } else if (s->mode == DT__STATE_LOAD) {
        bool same = s->world == d->world;
        rc = dt__state_ranks(s, name, nbytes, x, n, same ? d->rank : 0, same ? d->rank + 1 : s->world);
    } else {
        bool all = d->packed || d->unit; /* sharded: every rank names all of them, rank 0 writes them */
        rc = dt__state_ranks(s, name, nbytes, x, n, all ? 0 : d->rank, all ? d->world : d->rank + 1);
        s->at += n;
    }
    dt_mem_free(name, nbytes);
    return rc;
}
DT_API int dt_ddp_state_array(dt_ddp_state *s, const char *name, int part, float *x, int64_t n, int kind)
{
    const char *call = "dt_ddp_state_array";
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!s || !name || !x)
        return dt_fail(DT_ERR_ARG, "%s: %s is NULL", call, !s ? "the state" : !name ? "the name" : "x");
    const dt_ddp_bucket *k = &s->b->pub;
    if (part < -1 || part >= k->parts || n < 0 || (part < 0 && n != k->n) ||
        (kind != DT_DDP_SAME && kind != DT_DDP_OWN) || strlen(name) > 64)
        return dt_fail(DT_ERR_ARG,
                       "%s: '%.64s' of parameter %d, %" PRId64
                       " values, kind %d: expected a parameter from 0 to %d, or -1 and "
                       "%" PRId64 " values, and a name of up to 64 characters",
                       call, name, part, n, kind, k->parts - 1, k->n);
    if (part >= 0) return dt__state_cut(s, name, part, x, n, kind);
    int rc = 0;
    for (int i = 0; i < k->parts && !rc; i++)
        rc = dt__state_cut(s, name, i, x + k->part[i].offset, k->part[i].numel, kind);
    return rc;
}
DT_API int dt_ddp_state_integer(dt_ddp_state *s, const char *name, int64_t *x)
{
    char      key[128];
    dt__kept *k;
    if (dt__err.code != DT_OK) return dt__err.code;
    if (!s || !name || !x || strlen(name) > 64)
        return dt_fail(DT_ERR_ARG, "dt_ddp_state_integer: a NULL, or a name of more than 64 characters");
    snprintf(key, sizeof key, "ddp.bucket.%d.%s", s->b->pub.index, name);
    if (s->mode == DT__STATE_SAVE) return s->v->integer(s->v, key, x);
    if (s->mode == DT__STATE_LOAD) return s->v->has(s->v, key) ? s->v->integer(s->v, key, x) : 0;
    if (s->mode != DT__STATE_KEEP && s->mode != DT__STATE_BACK) return 0;
    k = dt__kept_get(s, key, NULL, 0);
    if (k && s->mode == DT__STATE_BACK) *x = k->integer;
    else if (k) k->integer = *x;
    else if (s->mode == DT__STATE_KEEP) return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the state of a hook");
    return 0;
}
static int dt__state_walk(dt_ddp *d, dt_ddp_state *s)
{
    int rc = 0;
    s->d = d;
    for (int i = 0; i < d->nbuckets && d->way.saved && !rc; i++) {
        s->b = &d->bucket[i];
        rc = d->way.saved(&s->b->pub, s, d->way.user);
        if (!rc) rc = dt__err.code;
        if (rc && dt__err.code == DT_OK)
            rc = dt_fail(DT_ERR_STATE, ".saved of the hook '%s' returned %d", d->way_name, rc);
    }
    return rc;
}
static int
dt__buckets_update(dt_ddp *d) /* makes new buckets if the model's blocks have changed; hooks keep their state */
{
    dt_ddp_state s;
    if (d->version == d->m->version) return 0;
    memset(&s, 0, sizeof s);
    s.mode = DT__STATE_KEEP;
    int rc = dt__state_walk(d, &s);
    if (!rc) rc = dt__buckets_make(d);
    s.mode = DT__STATE_BACK;
    if (!rc && s.kept) rc = dt__state_walk(d, &s);
    dt__kept_free(s.kept);
    return rc;
}
static int dt__ddp_collect(void *user, const char *call) /* dt__watch.collect: rank 0 gets the arrays of all ranks */
{
    dt_ddp      *d = (dt_ddp *)user;
    dt_ddp_state s;
    memset(&s, 0, sizeof s);
    if (dt__ddp_alone(d) || !d->way.saved) return 0;
    int rc = dt__buckets_update(d);
    s.mode = DT__STATE_COUNT;
    if (!rc) rc = dt__state_walk(d, &s);
    size_t nbytes = (size_t)s.at * sizeof(float);
    d->npacked = s.at;
    if (!rc && !s.at) return 0;
    s.pack = rc ? NULL : (float *)dt_mem_alloc(nbytes);
    if (s.pack && d->rank == 0) d->packed = (float *)dt_mem_alloc(nbytes * (size_t)d->world);
    if (!rc && (!s.pack || (d->rank == 0 && !d->packed)))
        rc = dt_fail(DT_ERR_MEMORY, "%s: out of memory for the state of the hook '%s': %zu bytes of each rank", call,
                     d->way_name, nbytes);
    s.mode = DT__STATE_PACK;
    s.at = 0;
    if (!rc) rc = dt__state_walk(d, &s);
    if (rc) dt__ddp_send_error(d);
    else if (dt_comm_gather(d->c, s.pack, d->packed, d->npacked, NULL, DT_COMM_F32, 0)) rc = dt__ddp_comm_fail(d, call);
    dt_mem_free(s.pack, s.pack ? nbytes : 0);
    return rc;
}
static void dt__ddp_collected(dt_ddp *d) /* the checkpoint is written */
{
    dt_mem_free(d->packed, (size_t)d->npacked * (size_t)d->world * sizeof *d->packed);
    d->packed = NULL;
}
static int dt__ddp_arrays(void *user, dt__visit *v) /* dt__watch.arrays */
{
    dt_ddp *d = (dt_ddp *)user;
    int64_t hash = (int64_t)(dt__ddp_hash(DT__DDP_HASH, d->way_name, strlen(d->way_name)) >> 1), was = hash,
            step = d->synced;
    dt_ddp_state s;
    memset(&s, 0, sizeof s);
    s.mode = v->loading ? DT__STATE_LOAD : DT__STATE_SAVE;
    s.v = v;
    s.world = d->world;
    if (dt__ddp_alone(d) || !d->way_set) return 0;
    int rc = dt__buckets_update(d);
    if (!rc && v->loading && !v->has(v, "ddp.hook")) { /* saved without a hook */
        dt__ways_reset(d);
        return 0;
    }
    v->bounded = true;
    v->low = 0;
    v->high = INT64_MAX;
    if (!rc) rc = v->integer(v, "ddp.hook", &was);
    if (!rc) rc = v->integer(v, "ddp.step", &step);
    v->low = 1;
    v->high = 1 << 20;
    if (!rc) rc = v->integer(v, "ddp.world", &s.world);
    v->bounded = false;
    if (rc) return rc;
    d->synced = step;
    if (was == hash) return dt__state_walk(d, &s);
    dt__logf(DT_LOG_WARN,
             "dt_checkpoint_resume: the checkpoint has the state of another hook than '%s', which therefore begins "
             "without state",
             d->way_name);
    dt__ways_reset(d);
    return 0;
}

/* ==================================================================================================== >>squeezing
   .compress: a hook. A bucket's state is a dt__squeezed. What a step changes in it is written to the other one of two arrays
   (rest, velocity, q); dt__squeeze_end makes that the current one if the step counts. So a step that does not count leaves no
   trace. Residuals are in units of the loss scale that they were computed with, .scale.

   A rank's message of top-k, sign, 1-bit and QSGD is one dt_codec_encode of each parameter, one behind the other; all ranks
   gather the messages of all and add them up in the order of ranks. f16, bf16 and random-k encode the bucket as one array,
   whose payload is summed by an allreduce. */
enum {
    DT__SQ_NONE,
    DT__SQ_F16,
    DT__SQ_BF16,
    DT__SQ_TOPK,
    DT__SQ_RANDOMK,
    DT__SQ_DGC,
    DT__SQ_SIGN,
    DT__SQ_ONEBIT,
    DT__SQ_QSGD,
    DT__SQ_POWERSGD,
    DT__SQ_AUTO,
    DT__SQ_KINDS
};
static const struct dt__squeeze_about { /* by kind */
    const char *name;
    int         codec;   /* -1: none */
    bool        biased;  /* error feedback by default */
    bool        gathers; /* messages of each parameter, gathered; else the payload of the bucket is summed */
} dt__squeeze_about[DT__SQ_KINDS] = { { "none", -1, false, false },
                                      { "f16", DT_CODEC_F16, false, false },
                                      { "bf16", DT_CODEC_BF16, false, false },
                                      { "topk", DT_CODEC_TOPK, true, true },
                                      { "randomk", DT_CODEC_RANDOMK, true, false },
                                      { "dgc", DT_CODEC_TOPK, false, true },
                                      { "sign", DT_CODEC_SIGN, true, true },
                                      { "onebit", DT_CODEC_ONEBIT, true, true },
                                      { "qsgd", DT_CODEC_QSGD, false, true },
                                      { "powersgd", -1, true, false },
                                      { "auto", -1, false, false } };
enum { DT__SQ_RANKS = 64, DT__SQ_SAMPLE = 64 }; /* the largest .rank; the error is computed in every so many steps */
enum { DT__SQ_CANDIDATES = 3, DT__SQ_TURNS = 5, DT__SQ_AGAIN = 3, DT__SQ_WARM = 2 }; /* auto: how many */
enum { DT__AUTO_WARM, DT__AUTO_BUCKETS, DT__AUTO_STEPS, DT__AUTO_HOLD }; /* what auto does: see dt__auto_end */
typedef struct dt__squeeze { /* .user of the hook */
    dt_ddp     *d;
    dt_compress o; /* with defaults */
    int         kind;
    bool        feedback;
    /* auto */
    int      ncandidates, candidate[DT__SQ_CANDIDATES]; /* the first is none */
    int      phase, turns;
    int64_t  at;                                /* steps of this phase */
    uint64_t last;                              /* ns: the end of the step before */
    double   period[2][DT__SQ_TURNS], steps[2]; /* seconds of whole steps without and with compression; their medians */
    bool     won;                               /* ... the second is enough shorter */
    int64_t  rounds;                            /* measurements so far */
} dt__squeeze;
typedef struct dt__matrix {      /* of powersgd: a parameter */
    int64_t rows, columns, p, q; /* p, q: where its P and Q begin, both transposed; rows 0: sent whole, at p */
    int     rank;
} dt__matrix;
typedef struct dt__squeezed { /* a bucket */
    int         kind;         /* of this step */
    int         chosen;       /* auto: until the next measurement */
    int         now;          /* the current one of two arrays */
    bool        changed;      /* this step has written the other ones */
    bool        dirty;        /* rest may hold something */
    float      *rest[2], *velocity[2], *q[2];
    double      scale;
    float      *x;           /* half gradients as f32; NULL: the gradients are */
    char       *wire;        /* message of this rank; gathers: of all ranks */
    int64_t     nwire, each; /* bytes of wire, of one rank's message */
    int64_t    *at;          /* gathers: where each parameter's message begins */
    dt__matrix *matrix;
    int64_t     np, nq;                     /* values of all P, with what is sent whole, and of all Q */
    float      *wide;                       /* powersgd: what the second collective sums */
    dt_comm    *c, *c2;                     /* wire, wide were allocated there */
    dt_tensor  *half;                       /* on a GPU */
    bool        sampled;                    /* this step tells lost */
    double      all, lost, cpu, collective; /* squares of what is to be sent; see dt_ddp_bucket; seconds of this step */
    int64_t     given, whole;               /* bytes given to collectives, and without compression; of the last compressed step */
    int64_t     on_wire, on_wire_last;      /* bytes that this rank sends to others; of the last compressed step that counts */
    double cost[DT__SQ_CANDIDATES][DT__SQ_TURNS], median[DT__SQ_CANDIDATES]; /* auto */
} dt__squeezed;

DT__SLOW_END
/* ---- powersgd's arithmetic. A sum of the first two functions is this rank's own; what the last two give must be the same bits
   on all ranks, so products are exact in f64 and sums have one order, whatever a compiler contracts. */
typedef float  dt__sqf __attribute__((vector_size(16)));
typedef double dt__sqd __attribute__((vector_size(32)));
typedef double dt__sqw __attribute__((vector_size(16), may_alias));
static float   dt__squeeze_dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n;) {
        int64_t end = n - i > 4096 ? i + 4096 : n;
        dt__sqf s[4] = { { 0 }, { 0 }, { 0 }, { 0 } }, x, y;
        for (; end - i >= 16; i += 16)
            for (int k = 0; k < 4; k++) {
                memcpy(&x, a + i + 4 * k, sizeof x);
                memcpy(&y, b + i + 4 * k, sizeof y);
                s[k] += x * y;
            }
        s[0] = (s[0] + s[1]) + (s[2] + s[3]);
        sum += ((double)s[0][0] + (double)s[0][1]) + ((double)s[0][2] + (double)s[0][3]);
        for (; i < end; i++) sum += (double)a[i] * (double)b[i];
    }
    return (float)sum;
}
static void dt__squeeze_add(float *y, float a, const float *x, int64_t n) /* y += a x */
{
    dt__sqf k = { a, a, a, a }, u, v;
    int64_t i = 0;
    for (; n - i >= 4; i += 4) {
        memcpy(&u, y + i, sizeof u);
        memcpy(&v, x + i, sizeof v);
        u += k * v;
        memcpy(y + i, &u, sizeof u);
    }
    for (; i < n; i++) y[i] += a * x[i];
}
/* m := the rows of P Q^T; p: rank vectors of length rows, q: rank vectors of length columns */
static void dt__squeeze_product(float *m, const float *p, const float *q, int64_t rows, int64_t columns, int rank)
{
    double wide[DT__SQ_RANKS][64] __attribute__((aligned(16))), sum[8];
    for (int64_t j = 0; j < columns; j += 64) {
        int64_t n = columns - j < 64 ? columns - j : 64;
        memset(wide, 0, sizeof wide);
        for (int k = 0; k < rank; k++)
            for (int64_t v = 0; v < n; v++) wide[k][v] = (double)q[k * columns + j + v];
        for (int64_t i = 0; i < rows; i++)
            for (int64_t v = 0; v < n; v += 8) {
                dt__sqw s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
                for (int k = 0; k < rank; k++) {
                    double         a = (double)p[k * rows + i];
                    dt__sqw        b = { a, a };
                    const dt__sqw *w = (const dt__sqw *)(const void *)(wide[k] + v);
                    s0 += b * w[0];
                    s1 += b * w[1];
                    s2 += b * w[2];
                    s3 += b * w[3];
                }
                memcpy(sum, &s0, sizeof s0);
                memcpy(sum + 2, &s1, sizeof s1);
                memcpy(sum + 4, &s2, sizeof s2);
                memcpy(sum + 6, &s3, sizeof s3);
                if (n - v >= 8)
                    for (int t = 0; t < 8; t++) m[i * columns + j + v + t] = (float)sum[t];
                else
                    for (int64_t t = 0; v + t < n; t++) m[i * columns + j + v + t] = (float)sum[t];
            }
    }
}
static double dt__squeeze_inner(const float *a, const float *b, int64_t n)
{
    dt__sqd s = { 0, 0, 0, 0 };
    int64_t i = 0;
    for (; n - i >= 4; i += 4) {
        dt__sqd x = { (double)a[i], (double)a[i + 1], (double)a[i + 2], (double)a[i + 3] };
        dt__sqd y = { (double)b[i], (double)b[i + 1], (double)b[i + 2], (double)b[i + 3] };
        s += x * y;
    }
    double sum = (s[0] + s[1]) + (s[2] + s[3]);
    for (; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}
/* Makes the rank vectors orthonormal, in place, by Gram-Schmidt in two passes. A vector of which the others leave nothing but
   rounding errors becomes 0, or, with a seed, a random one. */
static void dt__squeeze_orthonormal(float *x, int64_t n, int rank, const uint64_t *seed)
{
    for (int k = 0; k < rank; k++) {
        float *v = x + k * n;
        for (int turn = 0; turn < (seed ? 2 : 1); turn++) {
            double was = sqrt(dt__squeeze_inner(v, v, n)), is = was;
            for (int pass = 0; pass < 2; pass++)
                for (int j = 0; j < k; j++) {
                    double a = dt__squeeze_inner(v, x + j * n, n);
                    for (int64_t i = 0; i < n; i++) v[i] = (float)__builtin_fma(-a, (double)x[j * n + i], (double)v[i]);
                }
            is = sqrt(dt__squeeze_inner(v, v, n));
            bool gone = !(is > 1e-5 * was) || !(is > 1e-37);
            for (int64_t i = 0; i < n; i++) v[i] = gone ? 0 : (float)((double)v[i] / is);
            if (!gone || !seed) break;
            for (int64_t i = 0; i < n; i++)
                v[i] = (float)((double)(dt__id_mix(*seed + (uint64_t)k, (uint64_t)i) >> 40) / 8388608.0 - 1.0);
        }
    }
}
static double dt__squeeze_squares(const float *a, const float *b, int64_t n) /* of a + b; b may be NULL */
{
    double s[4] = { 0, 0, 0, 0 };
    for (int64_t i = 0; i < n; i++) {
        double x = b ? (double)a[i] + (double)b[i] : (double)a[i];
        s[i & 3] += x * x;
    }
    return (s[0] + s[1]) + (s[2] + s[3]);
}
static bool dt__squeeze_finite(const float *x, int64_t n)
{
    dt__sqf bad = { 0 }, v; /* 0 * x is NaN if x is not finite */
    float   last = 0;
    int64_t i = 0;
    for (; n - i >= 4; i += 4) {
        memcpy(&v, x + i, sizeof v);
        bad += 0 * v;
    }
    for (; i < n; i++) last += 0 * x[i];
    return bad[0] == 0 && bad[1] == 0 && bad[2] == 0 && bad[3] == 0 && last == 0;
}
static void dt__squeeze_widen(float *x, const void *half, int dtype, int64_t n)
{
    const uint16_t *h = (const uint16_t *)half;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)h[i] << 16;
        if (dtype == DT_F16) x[i] = dt__f16_to_f32(h[i]);
        else memcpy(&x[i], &u, sizeof u);
    }
}
static bool dt__squeeze_narrow(void *half, const float *x, int dtype, int64_t n) /* false: the half type cannot hold a value */
{
    uint16_t *h = (uint16_t *)half, infinite = dtype == DT_F16 ? 0x7c00 : 0x7f80;
    bool      finite = true;
    for (int64_t i = 0; i < n; i++) {
        h[i] = dtype == DT_F16 ? dt__f32_to_f16(x[i]) : dt__f32_to_bf16(x[i]);
        finite = finite && (h[i] & infinite) != infinite;
    }
    return finite;
}

/* ---- memory */
static int dt__squeeze_memory(void)
{
    return dt_fail(DT_ERR_MEMORY,
                   "out of memory for compressing it; use smaller buckets (.bucket_mb), or no .compress");
}
static int dt__squeeze_pair(float *x[2], int64_t n) /* two arrays of n zeros, unless they exist */
{
    for (int i = 0; i < 2; i++)
        if (!x[i] && !(x[i] = (float *)dt__alloc_zero((size_t)n * sizeof **x + 1))) return dt__squeeze_memory();
    return 0;
}
static void dt__squeeze_pair_free(float *x[2], int64_t n)
{
    for (int i = 0; i < 2; i++) dt_mem_free(x[i], (size_t)n * sizeof **x + 1);
    x[0] = x[1] = NULL;
}
static int dt__squeeze_wire(char **p, dt_comm **owner, dt_comm *c, int64_t *have, int64_t n)
{
    if (*p && (!have || *have >= n)) return 0;
    if (*p) dt_comm_dealloc(*owner, *p);
    *p = (char *)dt_comm_alloc(*owner = c, (size_t)n + 64);
    if (have) *have = *p ? n : 0;
    return *p ? 0 : dt__squeeze_memory();
}
static void dt__squeeze_gone(dt_ddp_bucket *b, void *user)
{
    dt__squeezed *s = (dt__squeezed *)b->state;
    (void)user;
    if (!s) return;
    dt__squeeze_pair_free(s->rest, b->n);
    dt__squeeze_pair_free(s->velocity, b->n);
    dt__squeeze_pair_free(s->q, s->nq);
    dt_mem_free(s->x, s->x ? (size_t)b->n * sizeof *s->x : 0);
    if (s->wire) dt_comm_dealloc(s->c, s->wire);
    if (s->wide) dt_comm_dealloc(s->c2, s->wide);
    dt_mem_free(s->at, s->at ? (size_t)(b->parts + 1) * sizeof *s->at : 0);
    dt_mem_free(s->matrix, s->matrix ? (size_t)b->parts * sizeof *s->matrix : 0);
    dt__unref(s->half);
    dt_mem_free(s, sizeof *s);
}
static int dt__squeeze_matrices(const dt__squeeze *z, const dt_ddp_bucket *b, dt__squeezed *s)
{
    s->matrix = (dt__matrix *)dt__alloc_zero((size_t)b->parts * sizeof *s->matrix);
    if (!s->matrix) return dt__squeeze_memory();
    for (int i = 0; i < b->parts; i++) {
        const dt_ddp_part *t = &b->part[i];
        dt__matrix        *m = &s->matrix[i];
        int64_t            rows = t->shape.ndim > 1 ? t->shape.dim[0] : 0, columns = rows ? t->numel / rows : 0;
        int64_t            rank = z->o.rank < rows ? z->o.rank : rows;
        if (rank > columns) rank = columns;
        m->p = s->np;
        m->q = s->nq;
        if (rank > 0 && (double)(rows + columns) * (double)rank * z->o.min_rate < (double)t->numel) {
            m->rows = rows;
            m->columns = columns;
            m->rank = (int)rank;
            s->np += rows * rank;
            s->nq += columns * rank;
        } else s->np += t->numel;
    }
    return dt__squeeze_pair(s->q, s->nq);
}
static dt__squeezed *dt__squeeze_get(const dt__squeeze *z, dt_ddp_bucket *b) /* the state of a bucket, or NULL */
{
    dt__squeezed *s = (dt__squeezed *)b->state;
    int           rc = 0;
    if (s) return s;
    b->state = s = (dt__squeezed *)dt__alloc_zero(sizeof *s);
    if (!s) {
        dt__squeeze_memory();
        return NULL;
    }
    s->scale = 1;
    s->lost = -1;
    bool powers = z->kind == DT__SQ_POWERSGD;
    for (int i = 0; i < z->ncandidates; i++) powers = powers || z->candidate[i] == DT__SQ_POWERSGD;
    if (b->dtype != DT_F32 && !z->d->on_device && !(s->x = (float *)dt_mem_alloc((size_t)b->n * sizeof *s->x)))
        rc = dt__squeeze_memory();
    if (!rc && powers) rc = dt__squeeze_matrices(z, b, s);
    if (!rc && (z->feedback || powers)) rc = dt__squeeze_pair(s->rest, b->n);
    if (!rc && z->kind == DT__SQ_DGC) rc = dt__squeeze_pair(s->rest, b->n) || dt__squeeze_pair(s->velocity, b->n);
    return rc ? NULL : s;
}
static void dt__squeeze_rescale(dt__squeezed *s, int64_t n, double scale) /* residuals follow the loss scale */
{
    float k = (float)(scale / s->scale);
    for (int64_t i = 0; i < n && k != 1; i++) {
        if (s->rest[0]) s->rest[s->now][i] *= k;
        if (s->velocity[0]) s->velocity[s->now][i] *= k;
    }
    s->scale = scale;
}

/* ---- a step */
static dt_codec dt__squeeze_codec(const dt__squeeze *z, const dt_ddp_bucket *b, int kind, int part)
{
    dt_codec c;
    DT__CLEAR(c);
    c.kind = dt__squeeze_about[kind].codec;
    c.ratio = z->o.ratio;
    c.levels = z->o.levels;
    c.bucket = z->o.bucket;
    c.seed = z->o.seed;
    if (kind == DT__SQ_RANDOMK) c.seed = dt__id_mix(z->o.seed, (uint64_t)b->index);
    if (kind == DT__SQ_QSGD)
        c.seed = dt__id_mix(dt__id_mix(z->o.seed, (uint64_t)(b->index * 4096 + part)), (uint64_t)b->rank);
    if (kind != DT__SQ_DGC) return c;
    for (int i = 1; i <= 4 && z->o.warmup; i++) /* 25, 6.25, 1.5625, 0.390625 % */
        if (b->step - z->o.start < (z->o.warmup * i + 3) / 4) {
            double warm = 1.0 / (double)(1 << 2 * i);
            if (warm > c.ratio) c.ratio = warm;
            break;
        }
    if (b->part[part].shape.ndim < 2) c.ratio = 1; /* vectors go whole */
    return c;
}
static int dt__squeeze_comm_failed(void) /* a codec refused what it should not */
{
    return dt_fail(DT_ERR_COMM, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "a codec failed");
}
/* What this rank sends of a part, or of the bucket (part -1): encoded to out. rest NULL: no error feedback. */
static int dt__squeeze_encode(const dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, int part, float *x, char *out,
                              int64_t nout)
{
    int64_t  at = part < 0 ? 0 : b->part[part].offset, n = part < 0 ? b->n : b->part[part].numel;
    dt_codec c = dt__squeeze_codec(z, b, s->kind, part);
    float   *rest = z->feedback ? s->rest[1 - s->now] + at : NULL, scale = 1;
    if (s->kind == DT__SQ_RANDOMK && !rest) scale = (float)(1 / c.ratio);
    int64_t rc = dt__codec_encode_to(&c, x + at, n, rest ? s->rest[s->now] + at : NULL, rest, scale, (uint64_t)b->step,
                                     out, nout);
    if (rc == DT_COMM_ERR_NONFINITE) { /* zeros go, and the step does not count */
        b->nonfinite = true;
        memset(x + at, 0, (size_t)n * sizeof *x);
        rc = dt__codec_encode_to(&c, x + at, n, NULL, NULL, 1, (uint64_t)b->step, out, nout);
    }
    return rc < 0 ? dt__squeeze_comm_failed() : 0;
}
static int dt__squeeze_decode(const dt__squeeze *z, dt_ddp_bucket *b, const dt__squeezed *s, int part, const char *in,
                              int64_t nin, float *x, bool add)
{
    int64_t  at = part < 0 ? 0 : b->part[part].offset, n = part < 0 ? b->n : b->part[part].numel;
    dt_codec c = dt__squeeze_codec(z, b, s->kind, part);
    int      rc = dt_codec_decode(&c, in, nin, x + at, n, add);
    if (rc != DT_COMM_ERR_NONFINITE) return rc ? dt__squeeze_comm_failed() : 0;
    b->nonfinite = true; /* of a sum that is the same on all ranks */
    memset(x + at, 0, (size_t)n * sizeof *x);
    return 0;
}
/* In some steps, before the collective: the norms of what is to be sent, and of what is not. */
static void dt__squeeze_measure(const dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, const float *x)
{
    bool   dgc = s->kind == DT__SQ_DGC, gathers = dt__squeeze_about[s->kind].gathers;
    double lost = 0;
    if (!s->sampled || b->nonfinite) return;
    if (!dgc) s->all = dt__squeeze_squares(x, z->feedback ? s->rest[s->now] : NULL, b->n);
    if (dgc || z->feedback) lost = dt__squeeze_squares(s->rest[1 - s->now], NULL, b->n);
    float *sent = dgc || z->feedback ? NULL : (float *)dt_mem_alloc((size_t)b->n * sizeof *sent);
    if (sent) {
        memset(sent, 0, (size_t)b->n * sizeof *sent);
        for (int i = 0; i < (gathers ? b->parts : 1); i++) {
            const char *from = gathers ? s->wire + s->each * b->rank + s->at[i] : s->wire;
            dt__squeeze_decode(z, b, s, gathers ? i : -1, from, gathers ? s->at[i + 1] - s->at[i] : s->each, sent,
                               false);
        }
        for (int64_t i = 0; i < b->n; i++) sent[i] -= x[i];
        lost = dt__squeeze_squares(sent, NULL, b->n);
        dt_mem_free(sent, (size_t)b->n * sizeof *sent);
    }
    s->lost = s->all > 0 ? sqrt(lost / s->all) : 0;
}
/* DGC: the velocity of a part, and what of it was not sent yet, in the other arrays. Vectors: the velocity is what is sent. */
static void dt__dgc_gather(const dt__squeeze *z, const dt_ddp_bucket *b, dt__squeezed *s, int part, const float *x)
{
    const dt_ddp_part *t = &b->part[part];
    const float       *g = x + t->offset, *u0 = s->velocity[s->now] + t->offset, *v0 = s->rest[s->now] + t->offset;
    float             *u = s->velocity[1 - s->now] + t->offset, *v = s->rest[1 - s->now] + t->offset;
    double             keep = z->o.momentum, k = 1;
    if (z->o.clip > 0 && b->share > 0) { /* the gradient itself, without share and loss scale */
        double norm = sqrt(dt__squeeze_squares(g, NULL, t->numel)) / (b->share * b->loss_scale),
               most = z->o.clip / sqrt((double)b->world);
        if (norm > most) k = most / norm;
    }
    for (int64_t i = 0; i < t->numel; i++) {
        u[i] = (float)(keep * (double)u0[i] + k * (double)g[i]);
        v[i] = t->shape.ndim < 2 ? u[i] : v0[i] + u[i];
    }
}
static void dt__dgc_mask(const dt_ddp_bucket *b, dt__squeezed *s, int part, const char *message, int64_t nbytes)
{
    const dt_ddp_part *t = &b->part[part];
    int64_t            k = (nbytes - DT_CODEC_HEADER) / 8;
    float             *u = s->velocity[1 - s->now] + t->offset, *v = s->rest[1 - s->now] + t->offset;
    for (int64_t i = 0; i < k; i++) {
        uint32_t at;
        memcpy(&at, message + DT_CODEC_HEADER + 4 * i, sizeof at);
        v[at] = 0;
        if (t->shape.ndim > 1) u[at] = 0; /* momentum factor masking */
    }
}
static int dt__squeeze_gathered(dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, float *x, dt_work **work)
{
    bool dgc = s->kind == DT__SQ_DGC;
    int  rc = 0;
    if (!s->at && !(s->at = (int64_t *)dt__alloc_zero((size_t)(b->parts + 1) * sizeof *s->at)))
        return dt__squeeze_memory();
    for (int i = 0; i < b->parts; i++) {
        dt_codec c = dt__squeeze_codec(z, b, s->kind, i);
        int64_t  nbytes = dt_codec_bound(&c, b->part[i].numel);
        if (nbytes < 0) return dt__squeeze_comm_failed();
        s->at[i + 1] = s->at[i] + nbytes;
    }
    s->each = s->at[b->parts];
    if (dt__squeeze_wire(&s->wire, &s->c, b->comm, &s->nwire, s->each * b->world)) return dt__err.code;
    char *mine = s->wire + s->each * b->rank;
    for (int i = 0; i < b->parts && !rc; i++) {
        char   *out = mine + s->at[i];
        int64_t n = s->at[i + 1] - s->at[i];
        if (dgc) dt__dgc_gather(z, b, s, i, x);
        if (dgc && s->sampled)
            s->all += dt__squeeze_squares(s->rest[1 - s->now] + b->part[i].offset, NULL, b->part[i].numel);
        rc = dt__squeeze_encode(z, b, s, i, dgc ? s->rest[1 - s->now] : x, out, n);
        if (!rc && dgc) dt__dgc_mask(b, s, i, out, n);
    }
    if (rc) return rc;
    dt__squeeze_measure(z, b, s, x);
    *work = dt_comm_allgather_start(b->comm, NULL, s->wire, s->each, NULL, DT_COMM_U8);
    b->sent = s->each;
    s->on_wire = s->each * (b->world - 1);
    return *work ? 0 : DT_ERR_COMM;
}
/* What each rank sends in an allreduce, or in half of one */
static int64_t dt__squeeze_ring(const dt_ddp_bucket *b, int64_t nbytes, bool half)
{
    return (half ? 1 : 2) * nbytes * (b->world - 1) / b->world;
}
static int dt__squeeze_summed(dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, float *x, dt_work **work)
{
    dt_codec c = dt__squeeze_codec(z, b, s->kind, -1);
    s->each = dt_codec_bound(&c, b->n);
    if (s->each < 0) return dt__squeeze_comm_failed();
    if (dt__squeeze_wire(&s->wire, &s->c, b->comm, &s->nwire, s->each)) return dt__err.code;
    if (dt__squeeze_encode(z, b, s, -1, x, s->wire, s->each)) return dt__err.code;
    dt__squeeze_measure(z, b, s, x);
    char   *payload = s->wire + DT_CODEC_HEADER;
    int64_t nbytes = s->each - DT_CODEC_HEADER;
    if (s->kind != DT__SQ_RANDOMK) *work = dt__unit_sum(z->d, b, payload, NULL, s->kind == DT__SQ_F16 ? DT_F16 : DT_BF16);
    else *work = dt_comm_allreduce_start(b->comm, payload, nbytes / 4, DT_COMM_F32, DT_COMM_SUM);
    b->sent = nbytes;
    s->on_wire = dt__squeeze_ring(b, nbytes, z->d->unit && s->kind != DT__SQ_RANDOMK);
    return *work ? 0 : DT_ERR_COMM;
}
/* PowerSGD: M = gradient + rest, in the other rest. P = M Q is summed, then Q = M^T P with P orthonormal; P Q^T replaces
   the sum of all M. Each rank keeps what of its own M is not in it, M - P (M^T P)^T: the sum of these is the sum of all M
   less P Q^T. (What M less the mean of all would leave is also right in the sum, but grows with the differences between
   ranks.) */
static int dt__powersgd_start(dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, const float *x, dt_work **work)
{
    float *m = s->rest[1 - s->now], *q = s->q[1 - s->now];
    if (dt__squeeze_wire(&s->wire, &s->c, b->comm, &s->nwire, s->np * 4)) return dt__err.code;
    float *p = (float *)(void *)s->wire;
    for (int64_t i = 0; i < b->n; i++) m[i] = z->feedback ? x[i] + s->rest[s->now][i] : x[i];
    if (s->sampled) s->all = dt__squeeze_squares(m, NULL, b->n);
    memcpy(q, s->q[s->now], (size_t)s->nq * sizeof *q);
    for (int i = 0; i < b->parts; i++) {
        const dt__matrix *k = &s->matrix[i];
        const float      *a = m + b->part[i].offset;
        uint64_t          seed = dt__id_mix(z->o.seed + 1, (uint64_t)b->step * 65536 + (uint64_t)i);
        if (!k->rows) memcpy(p + k->p, a, (size_t)b->part[i].numel * sizeof *p);
        else dt__squeeze_orthonormal(q + k->q, k->columns, k->rank, &seed);
        for (int r = 0; r < k->rank; r++)
            for (int64_t row = 0; row < k->rows; row++)
                p[k->p + r * k->rows + row] =
                    dt__squeeze_dot(a + row * k->columns, q + k->q + r * k->columns, k->columns);
    }
    if (!dt__squeeze_finite(p, s->np)) {
        b->nonfinite = true;
        memset(p, 0, (size_t)s->np * sizeof *p);
    }
    *work = dt_comm_allreduce_start(b->comm, p, s->np, DT_COMM_F32, DT_COMM_SUM);
    b->sent = (s->np + s->nq) * 4;
    s->on_wire = dt__squeeze_ring(b, b->sent, false);
    return *work ? 0 : DT_ERR_COMM;
}
static int dt__powersgd_middle(dt_ddp_bucket *b, dt__squeezed *s, dt_work **work)
{
    float *p = (float *)(void *)s->wire, *m = s->rest[1 - s->now];
    char  *wide = (char *)s->wide;
    int    rc = dt__squeeze_wire(&wide, &s->c2, b->comm, NULL, s->nq * 4);
    s->wide = (float *)(void *)wide;
    if (rc) return rc;
    if (!dt__squeeze_finite(p, s->np)) {
        b->nonfinite = true;
        memset(p, 0, (size_t)s->np * sizeof *p);
    }
    memset(s->wide, 0, (size_t)s->nq * sizeof *s->wide);
    for (int i = 0; i < b->parts; i++) {
        const dt__matrix *k = &s->matrix[i];
        if (!k->rows) continue;
        dt__squeeze_orthonormal(p + k->p, k->rows, k->rank, NULL);
        for (int64_t row = 0; row < k->rows; row++)
            for (int r = 0; r < k->rank; r++)
                dt__squeeze_add(s->wide + k->q + r * k->columns, p[k->p + r * k->rows + row],
                                m + b->part[i].offset + row * k->columns, k->columns);
    }
    memcpy(s->q[1 - s->now], s->wide, (size_t)s->nq * sizeof *s->wide); /* this rank's own */
    *work = dt_comm_allreduce_start(b->comm, s->wide, s->nq, DT_COMM_F32, DT_COMM_SUM);
    return *work ? 0 : DT_ERR_COMM;
}
static void dt__powersgd_finish(dt_ddp_bucket *b, dt__squeezed *s, float *x)
{
    float *p = (float *)(void *)s->wire, *m = s->rest[1 - s->now], *q = s->q[1 - s->now];
    if (!dt__squeeze_finite(s->wide, s->nq)) {
        b->nonfinite = true;
        memset(s->wide, 0, (size_t)s->nq * sizeof *s->wide);
    }
    for (int i = 0; i < b->parts; i++) {
        const dt__matrix *k = &s->matrix[i];
        int64_t           at = b->part[i].offset, n = b->part[i].numel;
        if (k->rows) dt__squeeze_product(x + at, p + k->p, s->wide + k->q, k->rows, k->columns, k->rank);
        else memcpy(x + at, p + k->p, (size_t)n * sizeof *x);
        if (!dt__squeeze_finite(x + at, n)) b->nonfinite = true;
        for (int64_t row = 0; row < k->rows; row++)
            for (int r = 0; r < k->rank; r++)
                dt__squeeze_add(m + at + row * k->columns, -p[k->p + r * k->rows + row], q + k->q + r * k->columns,
                                k->columns);
        if (!k->rows) memset(m + at, 0, (size_t)n * sizeof *m);
    }
    memcpy(q, s->wide, (size_t)s->nq * sizeof *q);
    if (s->sampled) s->lost = s->all > 0 ? sqrt(dt__squeeze_squares(m, NULL, b->n) / s->all) : 0;
}
/* Without compression in this step: what was kept before goes along. */
static int dt__squeeze_whole(const dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, float *x, dt_work **work)
{
    for (int64_t i = 0; i < b->n; i++) x[i] += s->rest[s->now][i];
    memset(s->rest[1 - s->now], 0, (size_t)b->n * sizeof *x);
    if (s->x && !dt__squeeze_narrow(b->data, s->x, b->dtype, b->n)) b->nonfinite = true;
    *work = dt__unit_sum(z->d, b, b->data, NULL, b->dtype);
    s->on_wire = dt__squeeze_ring(b, b->sent, z->d->unit != NULL);
    return *work ? 0 : DT_ERR_COMM;
}
static int dt__squeeze_device(const dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s,
                              dt_work **work) /* f16, bf16 on a GPU */
{
    int dtype = s->kind == DT__SQ_F16 ? DT_F16 : DT_BF16;
    if (!b->index && dt__fill(z->d->flag, 0)) return DT_ERR_MEMORY;
    if (!s->half && !(s->half = dt__new("dt_ddp", b->grad->st->dev, dtype, &b->n, 1, DT_LAYOUT_PLAIN)))
        return DT_ERR_MEMORY;
    if (dt__copy_to(s->half, b->grad, 0)) return dt__err.code ? (int)dt__err.code : (int)DT_ERR_MEMORY;
    *work = dt__unit_sum(z->d, b, s->half->st->ptr, NULL, dtype);
    b->sent = 2 * b->n;
    s->on_wire = dt__squeeze_ring(b, b->sent, z->d->unit != NULL);
    return *work ? 0 : DT_ERR_COMM;
}
static int dt__squeeze_kind(const dt__squeeze *z, const dt_ddp_bucket *b, const dt__squeezed *s) /* of this step */
{
    int kind = z->kind;
    if (b->step < z->o.start) return DT__SQ_NONE;
    if (kind == DT__SQ_AUTO) {
        if (z->phase == DT__AUTO_BUCKETS) kind = z->candidate[z->at % z->ncandidates];
        else if (z->phase == DT__AUTO_STEPS) kind = z->at % 2 ? s->chosen : DT__SQ_NONE;
        else kind = z->phase == DT__AUTO_HOLD && z->won ? s->chosen : DT__SQ_NONE;
    }
    if ((kind == DT__SQ_F16 || kind == DT__SQ_BF16) && b->dtype != DT_F32) return DT__SQ_NONE;
    if (kind == DT__SQ_POWERSGD && !s->nq) return DT__SQ_NONE; /* no matrix is worth it */
    return kind;
}
static int dt__squeeze_begin(dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, dt_work **work)
{
    float *x = s->x ? s->x : (float *)b->data;
    if (s->kind == DT__SQ_NONE && (!s->dirty || z->d->on_device)) {
        *work = dt__unit_sum(z->d, b, b->data, NULL, b->dtype);
        return *work ? 0 : (int)DT_ERR_COMM;
    }
    if (z->d->on_device) return dt__squeeze_device(z, b, s, work);
    if (s->x) dt__squeeze_widen(s->x, b->data, b->dtype, b->n);
    dt__squeeze_rescale(s, b->n, b->loss_scale);
    s->changed = s->kind != DT__SQ_NONE ? z->feedback || s->kind == DT__SQ_DGC || s->kind == DT__SQ_POWERSGD : s->dirty;
    if (s->changed && s->nq && s->kind != DT__SQ_POWERSGD) /* auto: Q goes on with the next step of powersgd */
        memcpy(s->q[1 - s->now], s->q[s->now], (size_t)s->nq * sizeof(float));
    if (s->kind == DT__SQ_NONE) return dt__squeeze_whole(z, b, s, x, work);
    if (s->kind == DT__SQ_POWERSGD) return dt__powersgd_start(z, b, s, x, work);
    return dt__squeeze_about[s->kind].gathers ? dt__squeeze_gathered(z, b, s, x, work)
                                              : dt__squeeze_summed(z, b, s, x, work);
}
static int dt__squeeze_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    dt__squeeze  *z = (dt__squeeze *)user;
    uint64_t      t0 = dt_trace_now();
    dt__squeezed *s = dt__squeeze_get(z, b);
    if (!s) return DT_ERR_MEMORY;
    s->kind = dt__squeeze_kind(z, b, s);
    s->collective = s->all = 0;
    s->changed = false;
    s->whole = b->sent;
    s->sampled = s->kind && !z->d->on_device && (b->step % DT__SQ_SAMPLE == 0 || s->lost < 0) &&
                 (z->kind != DT__SQ_AUTO || z->phase == DT__AUTO_HOLD);
    int rc = dt__squeeze_begin(z, b, s, work);
    b->lost = s->lost > 0 ? s->lost : 0;
    if (s->kind) s->given = b->sent;
    s->cpu = (double)(dt_trace_now() - t0) / (double)DT__NS_PER_S;
    return rc;
}
static int dt__squeeze_done(dt__squeeze *z, dt_ddp_bucket *b, dt__squeezed *s, dt_work **work)
{
    float *x = s->x ? s->x : (float *)b->data;
    int    rc = 0;
    if (s->kind == DT__SQ_NONE) return 0;
    if (z->d->on_device) { /* f16 may have become infinite: that shows in the sums, on all ranks */
        float found = 0;
        rc = dt__copy_to(b->grad, s->half, 0);
        if (!rc)
            rc = dt__ddp_scale_flag(z->d, b->grad, 0, b->n, 1, z->d->flag, 0);
        if (!rc && b->last) rc = dt__download(z->d->flag, &found);
        if (!rc && b->last && found != 0) b->nonfinite = true;
        return rc;
    }
    if (s->kind == DT__SQ_POWERSGD) {
        if (b->stage == 1) return dt__powersgd_middle(b, s, work);
        dt__powersgd_finish(b, s, x);
    } else if (dt__squeeze_about[s->kind].gathers) {
        memset(x, 0, (size_t)b->n * sizeof *x); /* also between parameters */
        for (int i = 0; i < b->parts && !rc; i++)
            for (int r = 0; r < b->world && !rc; r++)
                rc =
                    dt__squeeze_decode(z, b, s, i, s->wire + s->each * r + s->at[i], s->at[i + 1] - s->at[i], x, r > 0);
    } else if (z->d->unit && s->kind != DT__SQ_RANDOMK) { /* see dt__squeeze_agree */
        const dt__unit *u = &z->d->unit[b->index];
        int64_t         n = u->count[b->rank];
        dt__squeeze_widen(x + u->mine, s->wire + DT_CODEC_HEADER + 2 * u->mine, s->kind == DT__SQ_F16 ? DT_F16 : DT_BF16, n);
        if (!dt__squeeze_finite(x + u->mine, n)) b->nonfinite = true;
    } else rc = dt__squeeze_decode(z, b, s, -1, s->wire, s->each, x, false);
    if (!rc && s->x && !dt__squeeze_narrow(b->data, s->x, b->dtype, b->n)) b->nonfinite = true;
    return rc;
}
/* After all buckets. A sharded rank sees its own range of a sum of halves: a value that is not finite there is told to all. */
static int dt__squeeze_agree(dt_ddp *d)
{
    int64_t bad = 0;
    bool    halves = false;
    for (int i = 0; i < d->nbuckets && d->unit; i++) {
        const dt__squeezed *s = (const dt__squeezed *)d->bucket[i].pub.state;
        halves = halves || (s && (s->kind == DT__SQ_F16 || s->kind == DT__SQ_BF16));
        if (d->bucket[i].pub.nonfinite && !bad) bad = d->nbuckets - i;
    }
    if (!halves) return 0;
    if (dt_comm_allreduce(d->c, &bad, 1, DT_COMM_I64, DT_COMM_MAX)) return dt__ddp_comm_fail(d, "dt_backward");
    if (bad) d->bucket[d->nbuckets - bad].pub.nonfinite = true;
    return 0;
}
static int dt__squeeze_finish(dt_ddp_bucket *b, dt_work **work, void *user)
{
    dt__squeeze  *z = (dt__squeeze *)user;
    dt__squeezed *s = (dt__squeezed *)b->state;
    uint64_t      t0 = dt_trace_now();
    s->collective += b->seconds;
    int rc = dt__squeeze_done(z, b, s, work);
    s->cpu += (double)(dt_trace_now() - t0) / (double)DT__NS_PER_S;
    return rc;
}

DT__SLOW_BEGIN
/* ---- auto: phases and what moves between them. All ranks count the same steps and decide from the same numbers.

       WARM       a few steps without compression, in which memory is touched for the first time
       BUCKETS    the candidates in turn, for all buckets; then each bucket gets the one with the shortest time, or none
       STEPS      without compression and with what was chosen, in turn; then all keep it, or none
       HOLD       .every steps, then BUCKETS again, with fewer turns */
static double dt__auto_median(const double *x, int n)
{
    double y[DT__SQ_TURNS];
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && y[k - 1] > x[i]; k--) y[k] = y[k - 1];
        y[k] = x[i];
    }
    return n % 2 ? y[n / 2] : (y[n / 2 - 1] + y[n / 2]) / 2;
}
static int dt__auto_agree(dt__squeeze *z, double *x, int64_t n) /* of all ranks the largest */
{
    return dt_comm_allreduce(z->d->c, x, n, DT_COMM_F64, DT_COMM_MAX) ? dt__ddp_comm_fail(z->d, "dt_backward") : 0;
}
static int dt__auto_buckets(dt__squeeze *z, bool *any)
{
    dt_ddp *d = z->d;
    int64_t n = (int64_t)d->nbuckets * z->ncandidates;
    double *x = (double *)dt_mem_alloc((size_t)n * sizeof *x);
    if (!x) return dt__squeeze_memory();
    for (int64_t i = 0; i < n; i++) {
        const dt__squeezed *s = (const dt__squeezed *)d->bucket[i / z->ncandidates].pub.state;
        x[i] = dt__auto_median(s->cost[i % z->ncandidates], z->turns);
    }
    int rc = dt__auto_agree(z, x, n);
    *any = false;
    for (int i = 0; i < d->nbuckets && !rc; i++) {
        dt__squeezed *s = (dt__squeezed *)d->bucket[i].pub.state;
        int           best = 0;
        for (int k = 0; k < z->ncandidates; k++) {
            s->median[k] = x[i * z->ncandidates + k];
            if (s->median[k] < (best ? s->median[best] : s->median[0] * (1 - z->o.margin))) best = k;
        }
        s->chosen = z->candidate[best];
        *any = *any || best;
    }
    dt_mem_free(x, (size_t)n * sizeof *x);
    return rc;
}
static int dt__auto_steps(dt__squeeze *z)
{
    for (int k = 0; k < 2; k++) z->steps[k] = dt__auto_median(z->period[k], z->turns);
    int rc = dt__auto_agree(z, z->steps, 2);
    z->won = z->steps[1] < z->steps[0] * (1 - 0.5 * z->o.margin);
    return rc;
}
static void dt__auto_phase(dt__squeeze *z, int phase)
{
    z->phase = phase;
    z->at = 0;
    if (phase == DT__AUTO_BUCKETS) z->turns = z->rounds ? DT__SQ_AGAIN : DT__SQ_TURNS;
    if (phase == DT__AUTO_HOLD) z->rounds++;
}
static int dt__auto_end(dt__squeeze *z) /* after a step that counts, of all buckets */
{
    dt_ddp  *d = z->d;
    uint64_t now = dt_trace_now();
    double   period = z->last ? (double)(now - z->last) / (double)DT__NS_PER_S : 0;
    int64_t  turn = z->at++;
    bool     any = false;
    int      rc = 0;
    z->last = now;
    switch (z->phase) {
    case DT__AUTO_WARM:
        if (z->at >= DT__SQ_WARM) dt__auto_phase(z, DT__AUTO_BUCKETS);
        break;
    case DT__AUTO_BUCKETS:
        for (int i = 0; i < d->nbuckets; i++) {
            dt__squeezed *s = (dt__squeezed *)d->bucket[i].pub.state;
            s->cost[turn % z->ncandidates][turn / z->ncandidates] = s->cpu + s->collective;
        }
        if (z->at < (int64_t)z->turns * z->ncandidates) break;
        rc = dt__auto_buckets(z, &any);
        z->won = false;
        z->steps[0] = z->steps[1] = 0;
        dt__auto_phase(z, any ? DT__AUTO_STEPS : DT__AUTO_HOLD);
        break;
    case DT__AUTO_STEPS:
        z->period[turn % 2][turn / 2] = period;
        if (z->at < 2 * (int64_t)z->turns) break;
        rc = dt__auto_steps(z);
        dt__auto_phase(z, DT__AUTO_HOLD);
        break;
    default:
        if (z->at >= z->o.every) dt__auto_phase(z, DT__AUTO_BUCKETS);
    }
    return rc;
}
static void dt__squeeze_end(dt_ddp_bucket *b, bool counts, void *user)
{
    dt__squeeze  *z = (dt__squeeze *)user;
    dt__squeezed *s = (dt__squeezed *)b->state;
    if (s && counts && s->changed) {
        s->now = 1 - s->now;
        s->dirty = z->feedback && s->kind;
    }
    if (s && counts && s->kind) s->on_wire_last = s->on_wire;
    if (b->last && counts && z->kind == DT__SQ_AUTO && b->step >= z->o.start) dt__auto_end(z);
}
static int dt__squeeze_saved(dt_ddp_bucket *b, dt_ddp_state *state, void *user)
{
    dt__squeeze  *z = (dt__squeeze *)user;
    dt__squeezed *s = dt__squeeze_get(z, b);
    int64_t       chosen = s ? s->chosen : 0, hold = z->phase == DT__AUTO_HOLD ? z->at : z->o.every, won = z->won;
    if (!s) return DT_ERR_MEMORY;
    dt__squeeze_rescale(s, b->n, 1);
    int rc = 0;
    if (s->rest[0]) rc = dt_ddp_state_array(state, "rest", -1, s->rest[s->now], b->n, DT_DDP_OWN);
    if (!rc && s->velocity[0]) rc = dt_ddp_state_array(state, "velocity", -1, s->velocity[s->now], b->n, DT_DDP_OWN);
    for (int i = 0; i < b->parts && s->matrix && !rc; i++)
        if (s->matrix[i].rows)
            rc = dt_ddp_state_array(state, "q", i, s->q[s->now] + s->matrix[i].q,
                                    s->matrix[i].columns * s->matrix[i].rank, DT_DDP_SAME);
    s->dirty = s->rest[0] && z->feedback;
    if (z->kind != DT__SQ_AUTO || rc) return rc;
    rc = dt_ddp_state_integer(state, "chosen", &chosen);
    if (!rc && !b->index) rc = dt_ddp_state_integer(state, "won", &won);
    if (!rc && !b->index) rc = dt_ddp_state_integer(state, "held", &hold);
    if (rc || (state->mode != DT__STATE_LOAD && state->mode != DT__STATE_BACK)) return rc;
    s->chosen = chosen > DT__SQ_NONE && chosen < DT__SQ_AUTO ? (int)chosen : (int)DT__SQ_NONE;
    if (b->index) return 0;
    bool known = state->mode == DT__STATE_BACK ? z->phase == DT__AUTO_HOLD : hold >= 0 && hold < z->o.every;
    z->won = won != 0 && known;
    if (state->mode == DT__STATE_LOAD) z->rounds = known;
    dt__auto_phase(z, known ? DT__AUTO_HOLD : DT__AUTO_WARM);
    z->at = known ? hold : 0;
    return 0;
}

/* ---- options */
static int dt__squeeze_options(const char *call, dt__squeeze *z)
{
    dt_compress *o = &z->o;
    const char  *why = NULL;
    z->kind = o->kind ? -1 : (int)DT__SQ_NONE;
    for (int i = 0; i < DT__SQ_KINDS && o->kind; i++)
        if (!strcmp(o->kind, dt__squeeze_about[i].name)) z->kind = i;
    if (z->kind < 0)
        return dt_fail(DT_ERR_ARG,
                       "%s: .compress is '%.40s', expected none, f16, bf16, topk, randomk, dgc, sign, onebit, qsgd, "
                       "powersgd or auto",
                       call, o->kind);
    bool powers = z->kind == DT__SQ_POWERSGD || (z->kind == DT__SQ_AUTO && o->rank);
    if (!(o->ratio >= 0 && o->ratio <= 1)) why = ".ratio must be from 0 to 1";
    else if (o->levels < 0 || o->levels > 32767) why = ".levels must be from 1 to 32767";
    else if (o->bucket < 0 || o->bucket > INT32_MAX) why = ".bucket must be from 1 to 2147483647";
    else if (o->rank < 0 || o->rank > DT__SQ_RANKS) why = ".rank must be from 1 to 64";
    else if (o->start < -1 || o->warmup < 0 || o->every < 0)
        why = ".start must be -1 or more, .warmup and .every 0 or more";
    else if (!(o->min_rate >= 0 && o->min_rate < 1e6)) why = ".min_rate must be 0 or more";
    else if (!(o->momentum >= 0 && o->momentum < 1)) why = ".momentum must be from 0 to 1";
    else if (!(o->clip >= 0) || !isfinite(o->clip)) why = ".clip must be 0 or more";
    else if (!(o->margin >= 0 && o->margin < 1)) why = ".margin must be from 0 to 1";
    else if (o->feedback < -1 || o->feedback > 1) why = ".feedback must be 1, -1, or 0 for the default";
    if (why) return dt_fail(DT_ERR_ARG, "%s: .compress: %s", call, why);
    if (!o->ratio) o->ratio = z->kind == DT__SQ_DGC ? 0.001 : 0.01;
    if (!o->levels) o->levels = 127;
    if (!o->bucket) o->bucket = 512;
    if (!o->start) o->start = z->kind == DT__SQ_POWERSGD ? 1000 : 0;
    if (o->start < 0) o->start = 0;
    if (!o->min_rate) o->min_rate = 2;
    if (!o->momentum) o->momentum = 0.9;
    if (!o->margin) o->margin = 0.05;
    if (!o->every) o->every = 1000;
    z->feedback =
        o->feedback ? o->feedback > 0 : dt__squeeze_about[z->kind].biased || (z->kind == DT__SQ_AUTO && powers);
    if (z->kind == DT__SQ_DGC) z->feedback = false; /* it has its own */
    if (z->kind == DT__SQ_AUTO) {
        z->candidate[z->ncandidates++] = DT__SQ_NONE;
        z->candidate[z->ncandidates++] = DT__SQ_BF16;
        if (o->rank) z->candidate[z->ncandidates++] = DT__SQ_POWERSGD;
    }
    if (!o->rank) o->rank = 1;
    return 0;
}
static int dt__way_set(dt_ddp *d, const char *call, dt_ddp_hook h);
static int dt__squeeze_attach(dt_ddp *d) /* .compress becomes the hook */
{
    static const char call[] = "dt_ddp_new";
    dt__squeeze       z;
    dt_ddp_hook       h;
    char              name[160];
    memset((void *)&z, 0, sizeof z);
    memset((void *)&h, 0, sizeof h);
    z.d = d;
    z.o = d->o.compress;
    if (dt__squeeze_options(call, &z)) return dt__err.code;
    if (!z.kind) return 0;
    if (d->on_device && z.kind != DT__SQ_F16 && z.kind != DT__SQ_BF16)
        return dt_fail(DT_ERR_DEVICE,
                       "%s: .compress = '%s' computes on the CPU, and the model is on %s; use f16 or bf16", call,
                       z.o.kind, d->m->device->name);
    if (d->on_device && z.feedback)
        return dt_fail(DT_ERR_DEVICE, "%s: .compress has no .feedback on a GPU; leave it out", call);
    if (!(d->squeeze = (dt__squeeze *)dt__alloc_zero(sizeof z)))
        return dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    *d->squeeze = z;
    int    n = snprintf(name, sizeof name, "compress %s%s, from step %" PRId64, z.o.kind,
                     z.feedback ? " with feedback" : "", z.o.start);
    size_t at = n > 0 ? (size_t)n : 0, left = sizeof name - at;
    bool   powers = z.kind == DT__SQ_POWERSGD || z.ncandidates > 2;
    switch (z.kind) {
    case DT__SQ_TOPK: snprintf(name + at, left, ", ratio %g", z.o.ratio); break;
    case DT__SQ_RANDOMK: snprintf(name + at, left, ", ratio %g, seed %" PRIu64, z.o.ratio, z.o.seed); break;
    case DT__SQ_DGC:
        snprintf(name + at, left, ", ratio %g, momentum %g, clip %g, warmup %" PRId64, z.o.ratio, z.o.momentum,
                 z.o.clip, z.o.warmup);
        break;
    case DT__SQ_QSGD: snprintf(name + at, left, ", levels %d, bucket %" PRId64, z.o.levels, z.o.bucket); break;
    case DT__SQ_POWERSGD:
        snprintf(name + at, left, ", rank %d, min_rate %g, seed %" PRIu64, z.o.rank, z.o.min_rate, z.o.seed);
        break;
    case DT__SQ_AUTO:
        snprintf(name + at, left, ", rank %d, margin %g, every %" PRId64, powers ? z.o.rank : 0, z.o.margin, z.o.every);
        break;
    default: break; /* f16, bf16, sign, 1-bit have no more options */
    }
    h.name = name;
    h.start = dt__squeeze_start;
    h.finish = dt__squeeze_finish;
    h.end = dt__squeeze_end;
    h.saved = dt__squeeze_saved;
    h.gone = dt__squeeze_gone;
    h.user = d->squeeze;
    h.stages = powers ? 2 : 1;
    return dt__way_set(d, call, h);
}

/* ---- the report */
static void dt__squeeze_bytes(char buf[24], int64_t n)
{
    if (n < 10240) snprintf(buf, 24, "%" PRId64 " B", n);
    else if (n < (10 << 20)) snprintf(buf, 24, "%.1f KiB", (double)n / 1024);
    else snprintf(buf, 24, "%.1f MiB", (double)n / 1048576);
}
static void dt__squeeze_line(const dt__squeeze *z, const dt__bucket *b, dt__text_out *t)
{
    const dt__squeezed *s = (const dt__squeezed *)b->pub.state;
    char                whole[24], given[24], wire[24];
    dt__emitf(t, "bucket %d, '%s' to '%s', %" PRId64 " elements: ", b->pub.index, b->pub.part[0].name,
              b->pub.part[b->pub.parts - 1].name, b->numel);
    if (!s || (!s->given && z->kind != DT__SQ_AUTO)) {
        dt__emitf(t, "not compressed yet\n");
        return;
    }
    bool kept = z->kind != DT__SQ_AUTO || (z->phase == DT__AUTO_HOLD && z->won && s->chosen);
    int  kind = z->kind == DT__SQ_AUTO ? s->chosen : s->kind;
    dt__squeeze_bytes(whole, s->whole);
    dt__squeeze_bytes(given, s->given);
    dt__squeeze_bytes(wire, s->on_wire_last);
    if (kept)
        dt__emitf(t, "%s, %s of %s, ratio %.1f, %s sent by this rank, error %.2g", dt__squeeze_about[kind].name, given,
                  whole, s->given ? (double)s->whole / (double)s->given : 0.0, wire, b->pub.lost);
    else if (z->kind == DT__SQ_AUTO && z->phase != DT__AUTO_HOLD) dt__emitf(t, "is being measured");
    else dt__emitf(t, "not compressed, %s", whole);
    if (z->kind == DT__SQ_AUTO && z->rounds && s->median[0] > 0) {
        dt__emitf(t, "; ");
        for (int k = 0; k < z->ncandidates; k++)
            dt__emitf(t, "%s%s %.3f ms", k ? ", " : "measured: ", dt__squeeze_about[z->candidate[k]].name,
                      1e3 * s->median[k]);
        if (!s->chosen) dt__emitf(t, ": none is %g %% faster", 100 * z->o.margin);
    }
    dt__emitf(t, "\n");
}

/* ==================================================================================================== >>backward
   Callers: dt_backward runs the hooks dt__ddp_begin, dt__ddp_ready (once for each completed gradient) and dt__ddp_end on
   the thread that called it. dt_ddp_skip calls the same functions without a backward.

   Phases:
       DT__DDP_IDLE        no backward of this model runs
       DT__DDP_BACKWARD    from dt__ddp_begin to dt__ddp_end
       DT__DDP_SKIP        inside dt_ddp_skip

   Collectives of a synchronised backward, in this order on all ranks:
       1. allgather of the info of each rank (weight, hash of reach, mode, number of buckets)
       2. allreduce of the reach bitmaps, only if their hashes differ
       3. broadcast of the model's buffers from the lowest rank that does not skip
       4. allreduce of each bucket
       5. allgather of bad: which rank found a value that is not finite
   1, 3, 4 and 5 are asynchronous; dt__ddp_finish waits for them after the backward. */
/* Waits for a collective and adds to the statistics where the time went: for a slower rank, or for communication. */
static int dt__ddp_wait(dt_ddp *d, dt_work *w)
{
    char     name[40];
    int      rank;
    int64_t  began = 0;
    uint64_t t0 = dt_trace_now();
    dt_work_times(w, &began, NULL);
    uint64_t until = (uint64_t)(began + dt_work_waited(w, &rank)), from = d->t_walked ? d->t_mark : t0;
    int      rc = dt_work_wait(w);
    uint64_t t1 = dt_trace_now(), since = (uint64_t)began > t0 ? (uint64_t)began : t0;
    if (until > t1) until = t1;
    if (since < until) {
        snprintf(name, sizeof name, "waits for rank %d", rank);
        if (since > from) dt_trace_span("ddp waits", "exposed", from, since);
        dt_trace_span("ddp waits", name, since, until);
        d->waited += until - since;
        from = until;
    }
    if (d->t_walked) d->t_mark = from;
    else dt_trace_span("ddp waits", "exposed", from, t1);
    if (!d->t_walked) d->stalled += t1 - t0;
    return rc;
}
static void dt__ddp_meter(int64_t *words) /* what dt_plot.h shows of this rank */
{
    dt__pace m;
    size_t     peak = 0;
    if (dt__measured.memory) dt__measured.memory(&peak);
    m.rate = (float)dt__measured.rate;
    m.memory = (float)((double)peak / 1048576);
    m.data = (float)(1e-9 * (double)dt__measured.data);
    m.exposed = (float)(1e-9 * (double)dt__measured.exposed);
    m.waited = (float)(1e-9 * (double)dt__measured.waited);
    m.total = (float)(1e-9 * (double)dt__measured.total);
    memcpy(words, &m, sizeof m);
}
static int dt__info_send(dt_ddp *d)
{
    int      skip = d->phase == DT__DDP_SKIP;
    uint64_t hash = dt__ddp_hash(DT__DDP_HASH, d->reach, (size_t)d->norder);
    if (skip) hash = d->reach_hash; /* of all ranks in the step before */
    d->reach_hash = hash;
    int64_t *mine = d->info + (int64_t)d->rank * DT__INFO_WORDS;
    double   w = skip ? 0 : d->weight < 0 ? 1 : d->weight;
    memcpy(&mine[DT__INFO_WEIGHT], &w, sizeof w);
    mine[DT__INFO_REACH] = (int64_t)hash;
    mine[DT__INFO_MODE] = skip ? DT__MODE_SKIP : d->weight < 0 ? DT__MODE_MEAN : DT__MODE_WEIGHTED;
    mine[DT__INFO_BUCKETS] = d->nbuckets;
    mine[DT__INFO_USE] = (int64_t)dt__ddp_hash(DT__DDP_HASH, d->use, (size_t)d->nuse * sizeof *d->use);
    dt__ddp_meter(&mine[DT__INFO_MEMBER]);
    d->use_said = d->nuse;
    d->use_agreed = true;
    d->info_received = 0;
    d->info_work = dt_comm_allgather_start(d->c, NULL, d->info, DT__INFO_WORDS, NULL, DT_COMM_I64);
    return d->info_work ? 0 : dt__ddp_comm_fail(d, "dt_backward");
}
static int dt__reach_merge(dt_ddp *d) /* reach becomes the union over all ranks */
{
    dt_work *w = dt_comm_allreduce_start(d->c, d->reach, d->norder, DT_COMM_U8, DT_COMM_OR);
    if (!w || dt__ddp_wait(d, w)) return dt__ddp_comm_fail(d, "dt_backward");
    d->reach_hash = dt__ddp_hash(DT__DDP_HASH, d->reach, (size_t)d->norder);
    return 0;
}
/* A view of a block with the shape of t, starting at element at; the caller owns it. */
static dt_tensor *dt__block_view(dt_tensor *block, const dt_tensor *t, int64_t at)
{
    dt_tensor *w = dt__alias(block);
    if (!w) return NULL;
    w->offset = at;
    w->ndim = t->ndim;
    w->numel = t->numel;
    memcpy(w->shape, t->shape, sizeof w->shape);
    dt__dense_strides(w->stride, w->shape, w->ndim);
    return w;
}
/* Copies all buffers of the model to d->staging (out) or back. */
static int dt__buffers_copy(dt_ddp *d, int out)
{
    int64_t at = 0;
    int     rc = 0;
    for (int i = 0; i < d->m->nparams && !rc; i++) {
        dt_tensor *t = d->m->param[i]->t, *v;
        if (!dt__ddp_buffer(d->m->param[i]) || !t->numel) continue;
        if (!(v = dt__block_view(d->staging, t, at / (int64_t)dt__dtype_size[t->dtype]))) return DT_ERR_MEMORY;
        v->dtype = t->dtype;
        rc = out ? dt__copy_to(v, t, 0) : dt__copy_to(t, v, 0);
        dt__unref(v);
        at += dt__buffer_nbytes(t);
    }
    return rc;
}
static int dt__buffers_broadcast(dt_ddp *d, int root)
{
    if (!d->staging) return 0;
    d->staging_root = root;
    if (d->rank == root && dt__buffers_copy(d, 1)) return dt__err.code;
    d->staging_work = dt_comm_broadcast_start(d->c, d->staging->st->ptr, d->staging->numel, DT_COMM_U8, root);
    return d->staging_work ? 0 : dt__ddp_comm_fail(d, "dt_backward");
}
/* Waits for the info of all ranks. It gives the factors of the gradients, and the rank that broadcasts its buffers. */
static int dt__info_receive(dt_ddp *d)
{
    if (d->info_received) return 0;
    d->info_received = 1;
    dt_work *w = d->info_work;
    d->info_work = NULL;
    if (dt__ddp_wait(d, w)) return dt__ddp_comm_fail(d, "dt_backward");
    double         total = 0, mine = 0;
    int            root = -1, differ = 0;
    const int64_t *zero = d->info;
    for (int r = 0; r < d->world; r++) {
        const int64_t *k = d->info + (int64_t)r * DT__INFO_WORDS;
        double         weight;
        memcpy(&weight, &k[DT__INFO_WEIGHT], sizeof weight);
        total += weight;
        if (r == d->rank) mine = weight;
        if (root < 0 && k[DT__INFO_MODE] != DT__MODE_SKIP) root = r;
        if (k[DT__INFO_REACH] != zero[DT__INFO_REACH]) differ = 1;
        if (k[DT__INFO_USE] != zero[DT__INFO_USE]) d->use_agreed = false;
    }
    if (root < 0)
        return dt_fail(DT_ERR_STATE, "dt_ddp_skip: all ranks skip this step, expected one with data; end the loop when "
                                     "dt_ddp_more returns false");
    int64_t mode = d->info[(int64_t)root * DT__INFO_WORDS + DT__INFO_MODE];
    for (int r = 0; r < d->world; r++) {
        const int64_t *k = d->info + (int64_t)r * DT__INFO_WORDS;
        if (k[DT__INFO_MODE] != DT__MODE_SKIP && k[DT__INFO_MODE] != mode)
            return dt_fail(DT_ERR_COMM,
                           "dt_ddp_samples: rank %d called it before this backward, rank %d did not; call it on all "
                           "ranks or on no rank",
                           k[DT__INFO_MODE] ? r : root, k[DT__INFO_MODE] ? root : r);
        if (k[DT__INFO_BUCKETS] != zero[DT__INFO_BUCKETS])
            return dt_fail(DT_ERR_COMM,
                           "dt_ddp: rank 0 has %" PRId64 " buckets, rank %d has %" PRId64
                           "; the options of dt_ddp_new and the frozen parameters must be the same on all ranks",
                           zero[DT__INFO_BUCKETS], r, k[DT__INFO_BUCKETS]);
    }
    if (!(total > 0))
        return dt_fail(DT_ERR_ARG, "dt_ddp_samples: all ranks together have %g samples in this step, expected more than "
                                   "0; skip the step on all ranks", total);
    d->after = 1;
    if (mode == DT__MODE_MEAN) {
        d->before = mine / total;
    } else {
        d->before = mine;
        d->after = 1 / total;
    }
    if (differ && dt__reach_merge(d)) return dt__err.code;
    return dt__buffers_broadcast(d, root);
}
/* If this backward gives t no gradient, its part of the bucket becomes zero. */
static int dt__ddp_zero_unreached(dt_tensor *t)
{
    if (!t->grad || t->grad_state != DT__GRAD_EMPTY) return 0;
    int rc = dt__fill(t->grad, 0);
    t->grad_state = DT__GRAD_UNREACHED;
    return rc;
}
/* Finds the parameter whose gradient is not finite. The first one found in a step is kept. */
static int dt__ddp_find_bad(dt_ddp *d, dt_tensor *g, int64_t begin, int first,
                            int n) /* begin: where g begins in its block */
{
    int rc = 0;
    for (int k = first; k < first + n && !rc && d->bad[d->rank] < 0; k++) {
        const dt__param *p = d->m->order[k];
        int              here = 0;
        rc = dt__ddp_scale(d, g, p->offset - begin, p->t->numel, 1, &here);
        if (here) d->bad[d->rank] = k;
    }
    return rc;
}
static int dt__ddp_fill(dt_tensor *g, int64_t at, int64_t n, double x)
{
    dt_tensor *v = dt__slice(g, 0, at, n);
    int        rc = v ? dt__fill(v, x) : (int)DT_ERR_MEMORY;
    dt__unref(v);
    return rc;
}
static int dt__bucket_start(dt_ddp *d, dt__bucket *b)
{
    dt_model  *m = d->m;
    int64_t    at;
    dt__walk_record(d, DT__WALK_START, (int)(b - d->bucket));
    dt_tensor *g = dt__bucket_grad(d, b, &at);
    int        bad = 0, rc = dt__info_receive(d), halves = g->dtype != DT_F32;
    if (rc || (d->driven && m->block[b->block].use_mgrad)) return rc;
    for (int k = 0; k < b->n && !rc; k++) rc = dt__ddp_zero_unreached(m->order[b->first + k]->t);
    /* f16 and bf16 are divided before the sum, so that it cannot overflow; and what a hook gets is a share of the mean */
    double scale = halves || !d->way.sums ? d->before * d->after : d->before;
    if (!rc && d->on_device) rc = dt__ddp_scale_flag(d, g, at, b->length, scale, d->flags, b - d->bucket);
    else if (!rc) rc = dt__ddp_scale(d, g, at, b->length, scale, d->o.no_check ? NULL : &bad);
    if (!rc && bad) rc = dt__ddp_find_bad(d, g, b->at - at, b->first, b->n);
    if (!rc && bad && !d->way.sums) rc = dt__ddp_fill(g, at, b->length, 0);
    if (rc) return rc;
    if (b == d->bucket) d->stats.ready += (double)(dt_trace_now() - d->t_begin) / (double)DT__NS_PER_S;
    d->stats.bytes += b->length * (int64_t)dt__dtype_size[g->dtype];
    dt_ddp_bucket *k = &b->pub;
    dt_amp        *amp = m->amp;
    k->step = d->synced;
    k->share = scale;
    k->loss_scale = !amp                       ? 1
                    : d->phase == DT__DDP_SKIP ? amp->scaler[0].scale
                    : amp->scale_now > 0       ? amp->scale_now
                                               : 1;
    k->nonfinite = false;
    k->sent = b->length * (int64_t)dt__dtype_size[g->dtype];
    k->lost = 0;
    b->begun = true;
    b->stage = 0;
    b->call = dt__comm_calls(d->c, NULL) + 1;
    if (dt__way_call(d, b)) return dt__err.code;
    if (k->nonfinite && d->bad[d->rank] < 0) d->bad[d->rank] = d->norder + 1 + d->nbuckets + k->index;
    return 0;
}
/* Reads the flags of all buckets from the device: once a step, after all buckets are queued. dt__ddp_nonfinite finds the
   parameter later, in the sum, where the value shows on all ranks. */
static int dt__flags_read(dt_ddp *d)
{
    size_t nbytes = (size_t)d->nbuckets * sizeof(float);
    float *found = (float *)dt_mem_alloc(nbytes + 1);
    int    rc = found ? dt__download(d->flags, found) : dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory");
    for (int i = d->nbuckets - 1; i >= 0 && !rc; i--)
        if (found[i] != 0) d->bad[d->rank] = d->norder + 1 + i;
    dt_mem_free(found, nbytes + 1);
    return rc;
}
static int dt__buckets_start_ready(dt_ddp *d) /* in order, up to the first bucket that is not ready */
{
    int rc = 0;
    while (!rc && d->next < d->nbuckets && !d->bucket[d->next].waiting) {
        rc = dt__bucket_start(d, &d->bucket[d->next++]);
        if (!rc && d->on_device) rc = dt__ways_advance(d); /* at the same places on all ranks */
    }
    if (!rc && !d->on_device) rc = dt__ways_advance(d);
    if (rc || d->next < d->nbuckets || d->bad_work) return rc;
    if (dt__err.bad_loss && d->bad[d->rank] < 0) d->bad[d->rank] = d->norder;
    if (d->on_device && !d->o.no_check && (rc = dt__flags_read(d)) != 0) return rc;
    d->bad_work = dt_comm_allgather_start(d->c, NULL, d->bad, 1, NULL, DT_COMM_I64);
    return d->bad_work ? 0 : dt__ddp_comm_fail(d, "dt_backward");
}
/* Waits for all collectives that were started, even after an error. */
static int dt__ddp_drain(dt_ddp *d)
{
    int      rc = 0;
    dt_work *late[3];
    late[0] = d->info_work;
    late[1] = d->staging_work;
    late[2] = NULL;
    d->info_work = d->staging_work = NULL;
    for (int i = 0; i < 2; i++)
        if (late[i] && dt__ddp_wait(d, late[i])) rc = 1;
    for (int stage = 0; stage < d->way.stages; stage++) /* on all ranks in this order */
        for (int i = 0; i < d->nbuckets; i++)
            if (!rc && dt__err.code == DT_OK && d->bucket[i].stage == stage && dt__way_next(d, &d->bucket[i])) rc = 1;
    for (int i = 0; i < d->nbuckets; i++) { /* after an error */
        dt__bucket *b = &d->bucket[i];
        if (b->work && dt__ddp_wait(d, b->work)) rc = 1;
        b->work = NULL;
        b->stage = -1;
    }
    if (d->bad_work && dt__ddp_wait(d, d->bad_work)) rc = 1;
    d->bad_work = NULL;
    for (int64_t i = 0; i < d->nskip; i++)
        if (dt_work_wait(d->skip_work[i])) rc = 1;
    d->nskip = 0;
    return rc ? dt__ddp_comm_fail(d, "dt_backward") : 0;
}
DT__INSIDE void dt__drop_grads(dt_model *m)
{
    for (int i = 0; i < m->nblocks; i++) {
        dt_block_zero_grad(&m->block[i].b);
        m->block[i].use_mgrad = m->block[i].use_mwhole = 0;
        for (int k = 0; k < m->block[i].n; k++) m->order[m->block[i].first + k]->reached = 0;
    }
}
/* Is an element of p's summed gradient not finite? Sharded: one of this rank's ranges */
static int dt__sum_bad(dt_ddp *d, int block, const dt__param *p, int *bad)
{
    const dt__mblock *b = &d->m->block[block];
    int               rc = 0, here = 0;
    *bad = 0;
    if (!b->cut) return dt__ddp_scale(d, b->b.grad, p->offset, p->t->numel, 1, bad);
    for (int k = 0; k < b->nranges && !rc; k++) {
        int64_t lo = p->offset > b->range[k].lo ? p->offset : b->range[k].lo, hi = p->offset + p->t->numel;
        if (hi > b->range[k].hi) hi = b->range[k].hi;
        int64_t at = b->cut & DT__CUT_GRAD ? b->range[k].at + (lo - b->range[k].lo) : lo;
        if (lo < hi) rc = dt__ddp_scale(d, b->b.grad, at, hi - lo, 1, &here);
        *bad = *bad || here;
    }
    return rc;
}
static int dt__ddp_nonfinite(dt_ddp *d)
{
    int bad = -1, sum = -1;
    for (int r = d->world - 1; r >= 0; r--)
        if (d->bad[r] >= 0) bad = r;
    for (int i = d->nbuckets - 1; i >= 0; i--)
        if (d->bucket[i].pub.nonfinite && bad < 0) sum = i;
    if ((bad < 0 && sum < 0) || (d->m->amp && d->m->amp->dynamic)) return 0;
    if (bad >= 0 && d->bad[bad] > d->norder + d->nbuckets) sum = (int)(d->bad[bad] - d->norder - 1 - d->nbuckets);
    if (sum >= 0) { /* a hook says so */
        char where[320], of[40];
        snprintf(of, sizeof of, "rank %d", bad);
        dt__drop_grads(d->m);
        d->error_known = 1; /* all ranks report this error */
        return dt_fail(
            DT_ERR_NUMERIC,
            "dt_backward: the hook '%s' cannot send %s of %s: a value is too large for it; weights and optimiser are "
            "unchanged on all ranks: use a smaller .lr or loss scale, or set .clip_norm",
            d->way_name, dt__way_where(d, sum, where, sizeof where), bad >= 0 ? of : "all ranks");
    }
    bool loss = d->bad[bad] == d->norder;
    if (d->bad[bad] > d->norder) { /* a bucket on the device: find the parameter */
        const dt__bucket *b = &d->bucket[d->bad[bad] - d->norder - 1];
        int64_t found = INT64_MAX;
        for (int k = b->n - 1, here = 0; k >= 0; k--) {
            if (dt__sum_bad(d, b->block, d->m->order[b->first + k], &here)) return dt__err.code;
            if (here) found = b->first + k;
        }
        /* sharded: each rank has seen its ranges of the sum */
        if (d->unit && dt_comm_allreduce(d->c, &found, 1, DT_COMM_I64, DT_COMM_MIN)) return dt__ddp_comm_fail(d, "dt_backward");
        d->bad[bad] = found < d->norder ? found : b->first;
    }
    dt__drop_grads(d->m);
    d->error_known = 1; /* all ranks report this error */
    return dt_fail(DT_ERR_NUMERIC,
                   "dt_backward: on rank %d the %s%s%s is not finite; weights and optimiser are unchanged "
                   "on all ranks: check its batch, use a smaller .lr, or set .clip_norm",
                   bad, loss ? "loss" : "gradient of '", loss ? "" : d->m->order[d->bad[bad]]->name, loss ? "" : "'");
}
/* Multiplies the gradients of a block; sharded: this rank's ranges. */
static int dt__ddp_scale_block(dt_ddp *d, dt__mblock *b, double scale)
{
    int rc = 0;
    if (!b->cut || b->cut & DT__CUT_GRAD) return dt__ddp_scale(d, b->b.grad, 0, b->b.grad->numel, scale, NULL);
    for (int k = 0; k < b->nranges && !rc; k++)
        rc = dt__ddp_scale(d, b->b.grad, b->range[k].lo, b->range[k].hi - b->range[k].lo, scale, NULL);
    return rc;
}
/* Mixed precision accumulates gradients of backwards under no_sync in f32 (mgrad; sharded: mwhole): sums these over the ranks. */
static int dt__ddp_sum_masters(dt_ddp *d)
{
    int rc = 0;
    for (int i = 0; i < d->m->nblocks && !rc; i++) {
        dt__mblock *b = &d->m->block[i];
        dt_tensor  *g = b->cut ? b->mwhole : b->mgrad;
        if (!d->unsummed || !(b->cut ? b->use_mwhole : b->use_mgrad)) continue;
        rc = dt__ddp_scale(d, g, 0, g->numel, d->before * d->after, NULL);
        if (rc) break;
        dt_work *w = dt_comm_allreduce_start(d->c, (float *)g->st->ptr + g->offset, g->numel, DT_COMM_F32, DT_COMM_SUM);
        if (!w || dt__ddp_wait(d, w)) rc = dt__ddp_comm_fail(d, "dt_backward");
        if (!rc && b->cut) rc = dt__shard_masters(d, b);
    }
    return rc;
}
static int64_t dt__first_own(const dt__mblock *b) /* an element of the gradients that this rank looks at, if it has any */
{
    int k = 0;
    while (k < b->nranges && b->range[k].hi == b->range[k].lo) k++;
    return k < b->nranges && !(b->cut & DT__CUT_GRAD) ? b->range[k].lo : 0;
}
static int dt__ddp_finish(dt_ddp *d)
{
    dt_model *m = d->m;
    int       staged = d->staging_work != NULL, rc = dt__ddp_drain(d);
    if (!rc && d->squeeze) rc = dt__squeeze_agree(d);
    bool      counts = !rc && dt__ways_counts(d);
    dt__ways_end(d, counts);
    d->synced++;
    if (rc) return rc;
    /* a hook sent zeros in place of what is not finite: mixed precision looks for an overflow in the gradients */
    for (int i = 0; i < m->nblocks && !rc && !counts && !d->way.sums; i++)
        if (m->block[i].b.grad->numel) rc = dt__ddp_fill(m->block[i].b.grad, dt__first_own(&m->block[i]), 1, (double)INFINITY);
    if (staged && d->rank != d->staging_root) rc = dt__buffers_copy(d, 0);
    for (int i = 0; i < m->nblocks && !rc && d->after != 1 && d->way.sums; i++)
        if (m->block[i].b.grad->dtype == DT_F32) rc = dt__ddp_scale_block(d, &m->block[i], d->after);
    for (int i = 0; i < d->norder; i++) {
        dt_tensor *t = m->order[i]->t;
        t->grad_state = d->reach[i] ? DT__GRAD_SET : DT__GRAD_UNREACHED;
    }
    if (!rc) rc = dt__ddp_sum_masters(d);
    d->unsummed = 0;
    d->shards.unsummed = false;
    return rc ? rc : dt__ddp_nonfinite(d);
}
/* The ddps that exist. The hook on a thread names its ddp by a number, because the program may free the ddp on another thread:
   then the hook finds nothing here, and goes. */
static struct {
    pthread_mutex_t lock; /* protects the rest */
    dt_ddp         *first;
    uint64_t        count;
} dt__hooked = { PTHREAD_MUTEX_INITIALIZER, NULL, 0 };
static void dt__ddp_begin(void *user);
static bool dt__ddp_hook_here(const dt_ddp *d) /* does this thread have its hook? */
{
    const dt__ctx *t = &dt__tls;
    return d->hook >= 0 && t->hook_used[d->hook] && t->hook[d->hook].begin == dt__ddp_begin &&
           t->hook[d->hook].user == (void *)(uintptr_t)d->serial;
}
static dt_ddp *dt__hooked_ddp(void *user) /* the ddp of a hook of this thread; NULL: it is gone, and the hook is removed */
{
    dt__ctx *t = &dt__tls;
    pthread_mutex_lock(&dt__hooked.lock);
    dt_ddp *d = dt__hooked.first;
    while (d && d->serial != (uint64_t)(uintptr_t)user) d = d->next_hooked;
    pthread_mutex_unlock(&dt__hooked.lock);
    for (int i = 0; !d && i < DT__MAX_HOOKS; i++)
        if (t->hook_used[i] && t->hook[i].begin == dt__ddp_begin && t->hook[i].user == user) t->hook_used[i] = 0;
    return d;
}
static int dt__ddp_hook(dt_ddp *d, dt_grad_hooks h)
{
    dt__ctx *t = &dt__tls;
    for (int i = 0; i < DT__MAX_HOOKS; i++) /* hooks of ddps that are gone */
        if (t->hook_used[i] && t->hook[i].begin == dt__ddp_begin) dt__hooked_ddp(t->hook[i].user);
    pthread_mutex_lock(&dt__hooked.lock);
    d->serial = ++dt__hooked.count;
    d->next_hooked = dt__hooked.first;
    dt__hooked.first = d;
    pthread_mutex_unlock(&dt__hooked.lock);
    h.user = (void *)(uintptr_t)d->serial;
    d->hook = dt_grad_hooks_add(&h);
    return d->hook < 0 ? d->hook : 0;
}
static void dt__ddp_unhook(dt_ddp *d)
{
    pthread_mutex_lock(&dt__hooked.lock);
    for (dt_ddp **at = &dt__hooked.first; *at; at = &(*at)->next_hooked)
        if (*at == d) {
            *at = d->next_hooked;
            break;
        }
    pthread_mutex_unlock(&dt__hooked.lock);
    if (dt__ddp_hook_here(d)) dt_grad_hooks_remove(d->hook);
    d->hook = -1;
}
static double dt__ddp_busy(const dt_ddp *d) /* seconds of communication so far */
{
    dt_comm_stats s = dt_comm_get_stats(d->c);
    double        busy = s.busy - s.waited;
    for (int i = 0; i + 1 < d->way.stages && d->staged[i]; i++) {
        s = dt_comm_get_stats(d->staged[i]);
        busy += s.busy - s.waited;
    }
    return busy;
}
/* Enters phase DT__DDP_BACKWARD or DT__DDP_SKIP. Returns 0, 1 if the backward does not involve this model, or a negative
   status. */
static int dt__ddp_start_step(dt_ddp *d, int phase)
{
    dt_model *m = d->m;
    int       ours = phase == DT__DDP_SKIP || d->driven;
    for (int i = 0; i < m->nparams && !ours; i++) ours = dt_grad_pending(m->param[i]->t);
    if (!ours) return 1;
    if (dt_model_seal(m)) return dt__err.code;
    if (d->torn) return dt__ddp_comm_fail(d, "dt_backward");
    if (dt__buckets_update(d) || (!d->agreed && !dt__ddp_alone(d) && dt__way_agree(d)))
        return dt__err.code;
    d->phase = phase;
    d->next = 0;
    if (d->unit && dt__shards_begin(d)) return dt__err.code;
    if (d->flags && dt__fill(d->flags, 0)) return dt__err.code;
    if (!d->slot) d->bad[d->rank] = -1;
    d->t_begin = dt_trace_now();
    d->t_walked = d->stalled = d->waited = 0;
    d->busy = dt__ddp_busy(d);
    return 0;
}
static void dt__ddp_begin(void *user)
{
    dt_ddp   *d = dt__hooked_ddp(user);
    dt_model *m = d ? d->m : NULL;
    int       rc = m && dt__err.code == DT_OK ? dt__ddp_start_step(d, DT__DDP_BACKWARD) : 1;
    if (rc < 0) dt__ddp_send_error(d);
    if (rc || d->no_sync || d->o.slots || dt__ddp_alone(d)) return;
    dt__walk_record(d, DT__WALK_BEGIN, 0);
    for (int i = 0; i < d->nbuckets; i++) {
        dt__bucket *b = &d->bucket[i];
        b->waiting = 0;
        for (int k = b->first; k < b->first + b->n; k++) {
            dt_tensor *t = m->order[k]->t;
            bool       pending = dt_grad_pending(t);
            b->waiting += pending;
            d->reach[k] = pending || dt__has_grad(&m->block[b->block], m->order[k]);
        }
    }
    if (dt__info_send(d)) return;
    dt__buckets_start_ready(d);
}
static void dt__ddp_ready(void *user, dt_tensor *p)
{
    dt_ddp *d = dt__hooked_ddp(user);
    if (!d || d->phase == DT__DDP_IDLE || d->no_sync || d->o.slots || dt__ddp_alone(d) || dt__err.code != DT_OK) return;
    for (int i = 0; i < d->m->nblocks; i++) {
        const dt__mblock *b = &d->m->block[i];
        if (!p->group || (void *)p->group != b->b.dt__group) continue;
        d->bucket[d->of[b->first + p->group_slot]].waiting--;
        dt__buckets_start_ready(d);
        return;
    }
}
static int  dt__slots_store(dt_ddp *d);
static int  dt__slots_own(const dt_ddp *d, int r);
static void dt__syncnorm_end_step(dt_ddp *d);
static void dt__ddp_end_step(dt_ddp *d, dt_status status)
{
    int phase = d->phase;
    if (phase == DT__DDP_IDLE) return;
    d->phase = DT__DDP_IDLE;
    d->t_walked = d->t_mark = dt_trace_now();
    if (phase == DT__DDP_BACKWARD) dt__syncnorm_end_step(d);
    if (status != DT_OK || dt__err.code != DT_OK) {
        dt__ddp_send_error(d);
        if (!dt__ddp_alone(d)) {
            dt__ddp_drain(d);
            dt__ways_end(d, false);
            d->nwalk = 0; /* the forward of the next step begins a new one */
        }
        return;
    }
    if (d->o.slots) {
        if (dt__slots_store(d)) dt__ddp_send_error(d);
        return;
    }
    if (d->no_sync || dt__ddp_alone(d)) {
        d->unsummed++;
        d->shards.unsummed = true;
        return;
    }
    if (d->next < d->nbuckets)
        dt_fail(DT_ERR_STATE, "dt_backward: bucket %d of %d did not become ready in this backward; this is a bug in dt",
                d->next, d->nbuckets);
    if (dt__err.code == DT_OK) dt__ddp_finish(d);
    dt__walk_end(d);
    dt__ddp_send_error(d);
    d->weight = -1;
    uint64_t now = dt_trace_now();
    if (dt_error_code() != DT_OK) return;
    dt_trace_span("ddp waits", "exposed", d->t_mark, now);
    d->stats.steps++;
    dt__measured.waited += (int64_t)d->waited;
    dt__measured.exposed += (int64_t)(d->stalled + (now - d->t_walked) - d->waited);
    d->stats.waited += (double)d->waited / (double)DT__NS_PER_S;
    d->stats.exposed += (double)(d->stalled + (now - d->t_walked) - d->waited) / (double)DT__NS_PER_S;
    d->stats.backward += (double)(d->t_walked - d->t_begin - d->stalled) / (double)DT__NS_PER_S;
    if (d->t_last) d->stats.period += (double)(now - d->t_last) / (double)DT__NS_PER_S;
    d->stats.comm += dt__ddp_busy(d) - d->busy;
    if (!d->t_last) d->first = d->stats;
    d->t_last = now;
}
static void dt__ddp_end(void *user, dt_status status)
{
    dt_ddp *d = dt__hooked_ddp(user);
    if (d) dt__ddp_end_step(d, status);
}
/* Of a ddp that a pipeline drives: sums the gradients of all its backwards of this step. Those that mixed precision has added up in
   f32 are in mgrad; the buckets of these blocks have nothing to send. */
DT__INSIDE int dt__ddp_sum(dt_ddp *d)
{
    dt_model *m = d->m;
    if (dt__ddp_alone(d)) return 0;
    if (dt__ddp_start_step(d, DT__DDP_BACKWARD)) return dt__err.code;
    for (int i = 0; i < d->nbuckets; i++) {
        dt__bucket *b = &d->bucket[i];
        b->waiting = 0;
        for (int k = b->first; k < b->first + b->n; k++) d->reach[k] = dt__has_grad(&m->block[b->block], m->order[k]);
    }
    d->unsummed = 1;
    if (!dt__info_send(d)) dt__buckets_start_ready(d);
    dt__ddp_end_step(d, dt_error_code());
    return dt__err.code;
}
/* DT_VERIFY: writes a line about the current weights and compares their hash with rank 0's. */
static void dt__ddp_verify(dt_ddp *d)
{
    dt_model *m = d->m;
    dt_sha256 s;
    uint8_t   sum[32], first[32];
    double    norm = 0;
    int64_t   n = 0, at = 0, total = 0;
    char      line[2048];
    if (!d->verifying || !m || !m->sealed || dt__err.code != DT_OK) return;
    for (int i = 0; i < m->nparams; i++) total += m->param[i]->buffer ? 0 : m->param[i]->t->numel;
    int len = snprintf(line, sizeof line, "%" PRId64 " ", d->verified++), text = len + 64;
    dt_sha256_begin(&s);
    for (int i = 0; i < m->nparams; i++) {
        const dt_tensor *t = m->param[i]->t;
        size_t           nbytes = (size_t)t->numel * dt__dtype_size[t->dtype];
        if (m->param[i]->buffer) continue;
        char *p = (char *)dt_scratch(nbytes + 1);
        if (!p || dt__download(t, p)) return;
        dt_sha256_add(&s, p, nbytes);
        for (int64_t k = 0; k < t->numel; k++, at++) {
            double x = dt__element(p, t->dtype, k);
            norm += x * x;
            if (n >= 64 || at < n * total / 64) continue;
            n++;
            text += snprintf(line + text, sizeof line - (size_t)text, " %.9g", x);
        }
    }
    dt_sha256_end(&s, sum);
    for (int i = 0; i < 32; i++) {
        static const char hex[] = "0123456789abcdef";
        line[len + 2 * i] = hex[sum[i] >> 4];
        line[len + 2 * i + 1] = hex[sum[i] & 15];
    }
    memcpy(first, sum, sizeof first);
    if (d->c && dt_comm_broadcast(d->c, first, 32, DT_COMM_U8, 0)) dt__ddp_comm_fail(d, "DT_VERIFY");
    else if (memcmp(first, sum, 32))
        dt_fail(DT_ERR_COMM, "DT_VERIFY: before step %" PRId64 " rank %d has other weights than rank 0, expected the same "
                "bits", d->verified, d->rank);
    if (d->verify && (fprintf(d->verify, "%s %.17g\n", line, sqrt(norm)) < 0 || fflush(d->verify)))
        dt_fail(DT_ERR_FILE, "DT_VERIFY: cannot write: %s", strerror(errno));
}
static void dt__ddp_step(void *user, dt_optimizer *opt)
{
    dt_ddp *d = (dt_ddp *)user;
    (void)opt;
    if (dt__err.code == DT_OK && !dt__ddp_alone(d) && !d->driven && !dt__ddp_hook_here(d))
        dt_fail(DT_ERR_STATE, "dt_step: this is another thread than that of dt_ddp_new, whose backwards alone sum the gradients of "
                              "all ranks; call dt_ddp_new on the thread that trains");
    if (dt__err.code == DT_OK && d->o.slots && d->slot)
        dt_fail(DT_ERR_STATE, "dt_step: %d of this rank's %d slots have had their backward; run one for each before the "
                "step", d->slot, dt__slots_own(d, d->rank));
    if (dt__err.code == DT_OK && d->no_sync && !dt__ddp_alone(d))
        dt_fail(DT_ERR_STATE, "dt_step: called inside dt_ddp_no_sync; call dt_ddp_no_sync(d, false) before the last "
                              "backward of a step");
    dt__ddp_verify(d);
    dt__ddp_send_error(d);
    d->steps++;
}

/* ==================================================================================================== >>shards
   A unit is what one bucket is without sharding: consecutive parameters of a block, their values and their gradients, each in a
   storage of its own. The unit is cut into a range for each rank. This rank's ranges of all units of a block are, one behind the
   other, what it has of the block's states, masters and f32 gradients; with .shard >= 2 of the gradients, with 3 of the values.

   Values, .shard 1 and 2: the memory is whole and stays. After a step each rank has updated its ranges of it; the unit is COMING
   until its allgather, which was started in dt_step, is done. The first use waits for it.
   Values, .shard 3: GONE until they are used, HERE in a room, and GONE again when two other units have been used after them. What
   happens depends only on the sequence of units that are used, never on time, so it is the same on all ranks.
   Gradients: HERE while a backward writes them, CUT when they are reduced. With .shard >= 2 their memory is a room, from the first
   write to the end of the reduce_scatter. A CUT gradient that is read, or added to, is gathered first.

   All of it runs on the thread that trains; dt.h calls touch before it uses the memory of a storage (dt__lazy). */
static void dt__value_touch(dt__lazy *l);
static void dt__grad_touch(dt__lazy *l);
static void dt__gone_touch(dt__lazy *l)
{
    (void)l;
    dt_fail(DT_ERR_STATE,
            "this tensor was sharded, and its ddp has gone, or failed, before it was gathered; load a checkpoint");
}
static dt__lazy dt__gone = { dt__gone_touch };
static int64_t  dt__tensor_nbytes(const dt_tensor *t) { return t ? t->numel * (int64_t)dt__dtype_size[t->dtype] : 0; }
static char    *dt__tensor_at(const dt_tensor *t, int64_t at)
{
    return (char *)t->st->ptr + (t->offset + at) * (int64_t)dt__dtype_size[t->dtype];
}
static int dt__copy_part(dt_tensor *dst, int64_t dst_at, dt_tensor *src, int64_t src_at, int64_t n)
{
    dt_tensor *y = n ? dt__slice(dst, 0, dst_at, n) : NULL, *x = y ? dt__slice(src, 0, src_at, n) : NULL;
    int        rc = !n ? 0 : x ? dt__copy_to(y, x, 0) : (int)DT_ERR_MEMORY;
    dt__unref(x);
    dt__unref(y);
    return rc;
}
static bool dt__unit_new(const dt__unit *u) /* false: of the model before it is packed anew */
{
    return u >= u->d->unit && u < u->d->unit + u->d->nunits;
}
static size_t      dt__unit_nbytes(const dt__unit *u) { return (size_t)u->length * dt__dtype_size[u->dtype]; }
static const char *dt__unit_text(const dt__unit *u, char *buf, size_t nbytes)
{
    const dt_model *m = u->d->m;
    if (!dt__unit_new(u)) snprintf(buf, nbytes, "parameters of the model as it was before");
    else if (u->n == 1) snprintf(buf, nbytes, "'%.100s'", m->order[u->first]->name);
    else snprintf(buf, nbytes, "'%.100s' to '%.100s'", m->order[u->first + u->n - 1]->name, m->order[u->first]->name);
    return buf;
}
static int dt__gather_fail(dt__unit *u, const char *call)
{
    dt_ddp *d = u->d;
    char    text[2][240], mine[240], why[600];
    int     rank[2], tag[2];
    if (dt__err.code != DT_OK) return dt__err.code;
    dt__unit_text(u, mine, sizeof mine);
    if (dt__comm_left(d->gathers) >= 0) return dt__ddp_comm_fail(d, call);
    if (dt__comm_tags(d->gathers, rank, tag) && tag[0] > 0 && tag[0] <= d->nunits && tag[1] > 0 &&
        tag[1] <= d->nunits) {
        for (int i = 0; i < 2; i++) dt__unit_text(&d->unit[tag[i] - 1], text[i], sizeof text[i]);
        d->error_known = 1;
        snprintf(why, sizeof why, "%s", dt_comm_error(d->gathers));
        dt__ddp_abort(d, why);
        return dt_fail(
            DT_ERR_COMM,
            "%s: rank %d uses the parameters %s, rank %d uses %s: all ranks of a sharded model must use the same "
            "layers in the same order%s",
            call, rank[0], text[0], rank[1], text[1],
            d->walking ? " (this rank skips: it repeats the layers of its last backward)" : "");
    }
    snprintf(why, sizeof why, "%.500s",
             dt_comm_error(d->gathers) ? dt_comm_error(d->gathers) : "the communicator failed");
    d->error_known = 1;
    dt__ddp_abort(d, why);
    return dt_fail(
        DT_ERR_COMM,
        "%s: rank %d gathers the parameters %s, and not all other ranks do: all ranks of a sharded model must make "
        "the same forwards, backwards and steps, and read the same parameters (%s)",
        call, d->rank, mine, why);
}

/* ---- rooms */
static int dt__room_take(dt_ddp *d, size_t nbytes) /* its index, or -1 after dt_fail */
{
    int best = -1, smaller = -1;
    for (int i = 0; i < d->nrooms; i++) {
        if (d->room[i].used || !d->room[i].t) continue;
        if ((size_t)d->room[i].t->numel < nbytes) smaller = i;
        else if (best < 0 || d->room[i].t->numel < d->room[best].t->numel) best = i;
    }
    if (best < 0 && smaller >= 0) { /* in its place a larger one */
        dt__unref(d->room[smaller].t);
        d->room[smaller].t = dt__ddp_alloc(d, d->m->device, DT_U8, (int64_t)nbytes);
        best = d->room[smaller].t ? smaller : -1;
    } else if (best < 0) {
        for (int i = 0; i < d->nrooms && best < 0; i++)
            if (!d->room[i].t) best = i;
        if (best < 0 && d->nrooms < 2 * (d->nunits + d->nold) + 8) best = d->nrooms++;
        if (best >= 0) d->room[best].t = dt__ddp_alloc(d, d->m->device, DT_U8, (int64_t)nbytes);
        if (best >= 0 && !d->room[best].t) best = -1;
    }
    if (best >= 0) d->room[best].used = true;
    else dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for %zu bytes of a bucket (DT_COMM_ARENA limits them)", nbytes);
    return best;
}
static void dt__room_give(dt_ddp *d, int *room)
{
    if (*room >= 0) d->room[*room].used = false;
    *room = -1;
}

/* ---- values */
static int dt__value_start(dt__unit *u) /* its gathering */
{
    dt_ddp  *d = u->d;
    bool     rooms = u->own_value != NULL;
    uint32_t version = u->value->st->version;
    if (rooms && u->vroom < 0) {
        u->vroom = dt__room_take(d, dt__unit_nbytes(u));
        if (u->vroom < 0) return DT_ERR_MEMORY;
        u->value->st->ptr = d->room[u->vroom].t->st->ptr;
    }
    u->version = version;
    if (d->dropped) {
        u->vstate = DT__UNIT_HERE;
        if (!u->own_value) u->value->st->lazy = NULL;
        return 0;
    }
    u->work = dt__allgather_tagged(d->gathers, rooms ? dt__tensor_at(u->own_value, u->own_at) : NULL, u->value->st->ptr,
                                   u->count, u->dtype, u->index + 1);
    if (!u->work) return dt__gather_fail(u, "dt_ddp");
    u->vstate = DT__UNIT_COMING;
    return 0;
}
static int dt__value_wait(dt__unit *u)
{
    dt_work *w = u->work;
    if (u->vstate != DT__UNIT_COMING) return 0;
    u->work = NULL;
    u->vstate = DT__UNIT_HERE;
    if (!u->own_value) u->value->st->lazy = NULL;
    return dt_work_wait(w) && !u->d->dropped ? dt__gather_fail(u, "dt_ddp") : 0;
}
/* What the program changed in the values goes to this rank's range. */
static int dt__value_keep(dt__unit *u)
{
    dt__lazy *lazy = u->value->st->lazy;
    if (!u->own_value || u->vstate != DT__UNIT_HERE || u->value->st->version == u->version) return 0;
    u->version = u->value->st->version;
    u->value->st->lazy = NULL; /* it is no use of the unit */
    int rc = dt__copy_part(u->own_value, u->own_at, u->value, u->mine, u->count[u->d->rank]);
    u->value->st->lazy = lazy;
    return rc;
}
static void dt__value_drop(dt__unit *u) /* .shard = 3 */
{
    if (u->vstate == DT__UNIT_COMING) dt__value_wait(u);
    if (dt__err.code == DT_OK) dt__value_keep(u);
    u->vstate = DT__UNIT_GONE;
    dt__room_give(u->d, &u->vroom);
    u->value->st->ptr = NULL;
}
static bool dt__list_add(int **list, int *n, int *cap, int x)
{
    int64_t room = *cap;
    int    *at = *n < 1 << 16 ? (int *)dt__enlarge(*list, *n, &room, sizeof *at) : NULL;
    if (!at) return false;
    *list = at;
    *cap = (int)room;
    at[(*n)++] = x;
    return true;
}
static void dt__use_record(dt_ddp *d, int unit) /* what is not in the list is not gathered ahead */
{
    dt__list_add(&d->use, &d->nuse, &d->use_cap, unit);
}
/* .shard = 3: what a rank did since its last synchronised backward that others wait for, in order. A rank that skips repeats
   it: used values, the begin of the backward, memory of gradients (which may wait for buckets), buckets that started. Values
   that are used without gradients, as in an evaluation, are no part of a step: a rank that skips reads them itself.
   On a GPU with the batch norms, and also without .shard = 3 where the order of several communicators is not that of the buckets
   alone: all ranks must begin the collectives of all communicators in one order there (dt_nccl.h). */
static bool dt__walk_kept(const dt_ddp *d)
{
    if (d->o.shard == 3) return d->unit != NULL;
    return d->on_device && !d->driven && (d->norm || (d->o.shard && d->way.stages > 1)) && !dt__ddp_alone(d);
}
static void dt__walk_record(dt_ddp *d, int what, int index)
{
    int x = what | index << DT__WALK_BITS;
    if (!dt__walk_kept(d) || d->nwalk < 0) return;
    if ((what == DT__WALK_VALUE || what == DT__WALK_NORM) && dt__tls.no_grad && !dt__tls.in_backward && !d->walking) return;
    if (what == DT__WALK_VALUE && d->nwalk && d->walk[d->nwalk - 1] == x) return;
    /* too long, or out of memory: none until the next backward */
    if (!dt__list_add(&d->walk, &d->nwalk, &d->walk_cap, x)) d->nwalk = -1;
}
static void dt__walk_end(dt_ddp *d) /* the backward has ended */
{
    int *list = d->walked, cap = d->walked_cap;
    d->walked = d->walk;
    d->walked_cap = d->walk_cap;
    d->nwalked = d->nwalk;
    d->walk_version = d->nwalk > 0 ? d->m->version : 0;
    d->walk = list;
    d->walk_cap = cap;
    d->nwalk = 0;
}
static int dt__use_next(dt_ddp *d, int unit) /* the unit that was used after this one in the step before, or -1 */
{
    for (int turn = 0, i = d->use_at; turn < d->nused; turn++, i++) {
        if (i >= d->nused) i = 0;
        if (d->used[i] != unit) continue;
        d->use_at = i + 1;
        return i + 1 < d->nused ? d->used[i + 1] : -1;
    }
    return -1;
}
static void dt__value_touch(dt__lazy *l)
{
    dt__unit *u = ((dt__unit_lazy *)l)->u;
    dt_ddp   *d = u->d;
    if (dt__err.code != DT_OK) return;
    if (!dt__unit_new(u) || !u->own_value) { /* once */
        if (dt__unit_new(u)) dt__use_record(d, u->index);
        if (u->vstate == DT__UNIT_GONE && dt__value_start(u)) return;
        dt__value_wait(u);
        return;
    }
    dt__walk_record(d, DT__WALK_VALUE, u->index);
    if (u->vstate == DT__UNIT_HERE && d->recent[0] == u->index) return;
    dt__use_record(d, u->index);
    int next = dt__use_next(d, u->index);
    if (u->vstate == DT__UNIT_GONE && dt__value_start(u)) return;
    if (d->ahead == u->index) d->ahead = -1;
    if (next >= 0 && next != d->ahead && d->unit[next].vstate == DT__UNIT_GONE) {
        if (d->ahead >= 0) dt__value_drop(&d->unit[d->ahead]);
        d->ahead = -1;
        if (dt__err.code != DT_OK || dt__value_start(&d->unit[next])) return;
        d->ahead = next;
    }
    if (dt__value_wait(u)) return;
    int k = 0;
    while (k < 2 && d->recent[k] != u->index) k++;
    if (d->recent[k] >= 0 && d->recent[k] != u->index) dt__value_drop(&d->unit[d->recent[k]]);
    for (; k > 0; k--) d->recent[k] = d->recent[k - 1];
    d->recent[0] = u->index;
}

/* ---- gradients */
static int dt__grad_gaps(dt__unit *u) /* zeros between the parameters */
{
    int rc = 0;
    for (int k = u->first + 1; k < u->first + u->n && !rc; k++) {
        const dt__param *p = u->d->m->order[k - 1], *q = u->d->m->order[k];
        int64_t          end = p->offset + p->t->numel;
        if (q->offset > end) rc = dt__ddp_fill(u->grad, end - u->at, q->offset - end, 0);
    }
    return rc;
}
static int dt__grad_room(dt__unit *u)
{
    dt_ddp *d = u->d;
    /* Wait for a bucket if two are on their way. With .shard = 3 ranks also wait for each other's gathers meanwhile. So a
       bucket begins its later collectives only here and in dt__ddp_drain: these are the same places between the gathers on
       all ranks. */
    while (d->phase != DT__DDP_IDLE && !d->no_sync) {
        int flying = 0, oldest = -1;
        for (int i = 0; i < d->next; i++) {
            const dt__bucket *b = &d->bucket[i];
            if (b->stage < 0) continue;
            if (d->way.stages == 1 && b->work && dt_work_test(b->work)) flying += 2;
            flying++;
            if (oldest < 0) oldest = i;
        }
        if (flying < 2) break;
        if (dt__way_next(d, &d->bucket[oldest])) return dt__err.code;
    }
    u->groom = dt__room_take(d, dt__unit_nbytes(u));
    if (u->groom < 0) return DT_ERR_MEMORY;
    u->grad->st->ptr = d->room[u->groom].t->st->ptr;
    return 0;
}
static int dt__grad_gather(dt__unit *u)
{
    dt_ddp *d = u->d;
    if (u->own_grad && u->groom < 0 && dt__grad_room(u)) return dt__err.code;
    dt_work *w = dt__allgather_tagged(d->gathers, u->own_grad ? dt__tensor_at(u->own_grad, u->own_at) : NULL,
                                      u->grad->st->ptr, u->count, u->dtype, u->index + 1);
    u->gstate = DT__UNIT_HERE;
    if (!u->own_grad) u->grad->st->lazy = NULL;
    u->version = u->grad->st->version;
    return !w || dt_work_wait(w) ? dt__gather_fail(u, "dt_ddp") : 0;
}
static void dt__grad_touch(dt__lazy *l)
{
    dt__unit *u = ((dt__unit_lazy *)l)->u;
    if (dt__err.code != DT_OK || u->gstate == DT__UNIT_HERE) return;
    if (u->gstate == DT__UNIT_CUT) {
        dt__grad_gather(u);
        return;
    }
    u->gstate = DT__UNIT_HERE;
    if (u->d->phase != DT__DDP_IDLE && !u->d->no_sync) dt__walk_record(u->d, DT__WALK_GRAD, u->index);
    if (!dt__grad_room(u)) dt__grad_gaps(u);
}
static void dt__grad_drop(dt__unit *u, dt__unit_state state)
{
    u->gstate = state;
    if (u->own_grad) {
        dt__room_give(u->d, &u->groom);
        u->grad->st->ptr = NULL;
    } else {
        u->grad->st->lazy = state == DT__UNIT_CUT ? &u->lazy_grad.lazy : NULL;
    }
}
static void dt__unit_reduced(dt__unit *u)
{
    if (u->d->way_set && u->own_grad) /* a hook has left the sum in the bucket, or this rank's range of it */
        dt__copy_part(u->own_grad, u->own_at, u->grad, u->mine, u->count[u->d->rank]);
    dt__grad_drop(u, DT__UNIT_CUT);
}
/* The sum of x over the ranks; sharded: this rank's range of it. x: of the bucket's length. out NULL: in place */
static dt_work *dt__unit_sum(dt_ddp *d, const dt_ddp_bucket *b, void *x, void *out, int dtype)
{
    if (!d->unit) return dt_comm_allreduce_start(b->comm, x, b->n, dtype, DT_COMM_SUM);
    const dt__unit *u = &d->unit[b->index];
    if (!out) out = (char *)x + (size_t)u->mine * dt__dtype_size[dtype];
    return dt_comm_reduce_scatter_start(b->comm, x, out, 0, u->count, dtype, DT_COMM_SUM);
}
static int dt__way_scatter(dt_ddp_bucket *b, dt_work **work, void *user) /* the way of a sharded model */
{
    dt_ddp   *d = (dt_ddp *)user;
    dt__unit *u = &d->unit[b->index];
    *work = dt__unit_sum(d, b, b->data, u->own_grad ? dt__tensor_at(u->own_grad, u->own_at) : NULL, b->dtype);
    return *work ? 0 : (int)DT_ERR_COMM;
}
/* Before a backward: gradients that it adds to become whole, the others go. */
static int dt__shards_begin(dt_ddp *d)
{
    dt_model *m = d->m;
    int       rc = 0;
    for (int i = 0; i < m->nblocks && d->no_sync; i++)
        if (m->block[i].use_mgrad)
            return dt_fail(
                DT_ERR_STATE,
                "dt_backward: with .shard and half gradients a backward under dt_ddp_no_sync cannot follow a "
                "synchronised one in the same step; synchronise the last backward only");
    for (int i = 0; i < d->nunits && !rc; i++) {
        dt__unit *u = &d->unit[i];
        bool      set = false;
        for (int k = u->first; k < u->first + u->n; k++)
            set = set || (m->order[k]->t->grad && m->order[k]->t->grad_state == DT__GRAD_SET);
        if (!set && !(d->unsummed && u->gstate == DT__UNIT_HERE)) dt__grad_drop(u, DT__UNIT_GONE);
        else if (set && u->gstate == DT__UNIT_CUT) rc = dt__grad_gather(u);
    }
    return rc;
}
static int dt__shard_masters(dt_ddp *d, dt__mblock *b) /* mwhole is summed: this rank keeps its ranges */
{
    int rc = 0;
    if (!b->mgrad) b->mgrad = d->shards.array(d, "dt_backward", b->own, false);
    for (int k = 0; k < b->nranges && b->mgrad && !rc; k++)
        rc = dt__copy_part(b->mgrad, b->range[k].at, b->mwhole, b->range[k].lo, b->range[k].hi - b->range[k].lo);
    dt__unref(b->mwhole);
    b->mwhole = NULL;
    b->use_mwhole = 0;
    b->use_mgrad = b->mgrad != NULL;
    return b->mgrad ? rc : (int)DT_ERR_MEMORY;
}

/* ---- cutting */
static void dt__units_free(dt_ddp *d, dt__unit **units, int *n)
{
    for (int i = 0; i < *n; i++) {
        dt__unit *u = &(*units)[i];
        if (u->work) dt_work_wait(u->work);
        for (int k = 0; k < 2; k++) { /* someone may still have the tensors */
            dt_tensor *t = k ? u->grad : u->value;
            bool       rooms = (k ? u->own_grad : u->own_value) != NULL;
            if (t) t->st->lazy = rooms ? &dt__gone : NULL;
            if (t && rooms) t->st->ptr = NULL;
        }
        dt__room_give(d, &u->vroom);
        dt__room_give(d, &u->groom);
        dt__unref(u->value);
        dt__unref(u->grad);
        dt__unref(u->own_value);
        dt__unref(u->own_grad);
        dt_mem_free(u->count, (size_t)d->world * sizeof *u->count);
    }
    dt_mem_free(*units, (size_t)*n * sizeof **units);
    *units = NULL;
    *n = 0;
}
/* The place nearest to `target` elements from the begin of the unit where a part of a norm begins; or the end. */
static int64_t dt__unit_place(const dt__unit *u, double target)
{
    const dt_model *m = u->d->m;
    int64_t         below = 0, above = u->length;
    for (int k = u->first; k < u->first + u->n; k++) {
        const dt__param *p = m->order[k];
        int64_t          at = p->offset - u->at, most = (p->t->numel - 1) / DT__NORM_PART;
        if ((double)at > target) {
            if (at < above) above = at;
            break;
        }
        int64_t part = (int64_t)((target - (double)at) / DT__NORM_PART);
        below = at + (part < most ? part : most) * DT__NORM_PART;
        above = part < most ? below + DT__NORM_PART : u->length;
    }
    return target - (double)below < (double)above - target ? below : above;
}
static int
dt__unit_cut(dt__unit *u,
             double   *carry) /* carry: by how much earlier units gave each rank and those before it too little */
{
    dt_ddp *d = u->d;
    int64_t from = 0;
    u->count = (int64_t *)dt__alloc_zero((size_t)d->world * sizeof *u->count);
    if (!u->count) return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory");
    for (int r = 0; r < d->world; r++) {
        double  want = (double)u->length * (r + 1) / d->world + carry[r];
        double  target = want < (double)from ? (double)from : want > (double)u->length ? (double)u->length : want;
        int64_t end = r + 1 < d->world ? dt__unit_place(u, target) : u->length;
        if (end < from) end = from;
        if (r == d->rank) u->mine = from;
        u->count[r] = end - from;
        if (r + 1 < d->world) carry[r] = want - (double)end;
        from = end;
    }
    return 0;
}
static int dt__shards_ranges(dt_ddp *d, int block) /* of a block, in the order of its elements */
{
    dt__mblock *b = &d->m->block[block];
    int         n = 0;
    for (int i = 0; i < d->nunits; i++) n += d->unit[i].block == block;
    b->nranges = n;
    b->range = (dt__range *)dt__alloc_zero((size_t)n * sizeof *b->range);
    if (!b->range) {
        b->nranges = 0;
        return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory");
    }
    b->own = 0;
    int64_t done = -1;
    for (int k = 0; k < n; k++) {
        dt__unit *u = NULL;
        for (int i = 0; i < d->nunits; i++)
            if (d->unit[i].block == block && d->unit[i].at > done && (!u || d->unit[i].at < u->at)) u = &d->unit[i];
        done = u->at;
        u->own_at = b->own;
        b->range[k].lo = u->at + u->mine;
        b->range[k].hi = b->range[k].lo + u->count[d->rank];
        b->range[k].at = b->own;
        b->own += u->count[d->rank];
    }
    b->cut = DT__CUT_STATE;
    if (d->o.shard >= 2) b->cut |= DT__CUT_GRAD;
    if (d->o.shard >= 3) b->cut |= DT__CUT_VALUE;
    return 0;
}
static int dt__unit_rebind(dt_tensor *t, dt_tensor *to, int64_t at) /* t gets the storage of `to`, from element at on */
{
    dt_tensor *v = dt__alias(to);
    if (!v) return DT_ERR_MEMORY;
    dt__storage *old = t->st;
    to->st->version = old->version;
    t->st = v->st;
    v->st = old;
    t->offset = at;
    dt__unref(v);
    return 0;
}
/* A parameter that is in no block any more, because it is frozen: its values get memory of their own, on every rank. */
static int dt__unit_leave(dt__param *p)
{
    dt_tensor *t = p->t, *y = dt__new("dt_ddp", t->st->dev, t->dtype, t->shape, t->ndim, DT_LAYOUT_PLAIN);
    int        rc = y ? dt__copy_to(y, t, 0) : (int)DT_ERR_MEMORY;
    if (!rc) rc = dt__unit_rebind(t, y, 0);
    dt__unref(y);
    dt__unref(t->grad);
    t->grad = NULL;
    t->grad_state = DT__GRAD_EMPTY;
    return rc;
}
static int dt__shards_cut(void *user) /* dt__sharding.cut */
{
    dt_ddp   *d = (dt_ddp *)user;
    dt_model *m = d->m;
    int       n = 0, rc = 0;
    dt__units_free(d, &d->old_unit, &d->nold);
    for (int i = 0; i < d->nunits && !rc; i++) { /* what the program changed, and what is on its way */
        if (d->unit[i].vstate == DT__UNIT_COMING) rc = dt__value_wait(&d->unit[i]);
        if (!rc) rc = dt__value_keep(&d->unit[i]);
    }
    d->old_unit = d->unit;
    d->nold = d->nunits;
    d->unit = NULL;
    d->nunits = 0;
    d->recent[0] = d->recent[1] = d->recent[2] = d->ahead = -1;
    d->nuse = d->nused = d->use_at = d->walk_version = 0;
    if (d->o.shard == 3) d->nwalk = dt__tls.tape.n ? -1 : 0; /* -1: there was no unit yet in a part of the forward */
    for (int i = 0; i < m->nparams && !rc; i++)
        if (m->param[i]->old_block >= 0 && m->param[i]->block < 0 && !m->param[i]->buffer && d->nold)
            rc = dt__unit_leave(m->param[i]);
    if (rc || d->ending) return rc;
    for (int i = 0; i < m->nblocks; i++) n += m->block[i].n;
    for (int i = 0; i < m->nparams; i++) {
        const dt__param *p = m->param[i];
        if (p->block >= 0 && p->t->st->dev != m->device)
            return dt_fail(DT_ERR_DEVICE,
                           "dt_ddp_new: .shard needs a model on one device; parameter '%s' is on %s, the model on %s", p->name,
                           p->t->st->dev->name, m->device->name);
        if (p->cut.parts)
            return dt_fail(DT_ERR_STATE, "dt_ddp_new: .shard cannot be used with a tensor axis: '%s' is split already; leave out one of them", p->name);
    }
    size_t      nbytes = (size_t)n * sizeof(dt__bucket);
    dt__bucket *bucket = (dt__bucket *)dt__alloc_zero(nbytes + 1);
    double     *carry = (double *)dt__alloc_zero((size_t)d->world * sizeof *carry);
    int         nb = bucket && carry ? dt__buckets_cut(d, bucket) : 0;
    d->unit = (dt__unit *)dt__alloc_zero((size_t)nb * sizeof *d->unit);
    dt__room *room = (dt__room *)dt__alloc_zero((size_t)(2 * (nb + d->nold) + 8) * sizeof *room);
    if (!bucket || !carry || !d->unit || !room) rc = dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for %d buckets", n);
    if (!rc) {
        if (d->nrooms) memcpy((void *)room, d->room, (size_t)d->nrooms * sizeof *room);
        dt_mem_free(d->room, (size_t)d->room_cap * sizeof *room);
        d->room = room;
        d->room_cap = 2 * (nb + d->nold) + 8;
        d->nunits = nb;
    }
    for (int i = 0; i < nb && !rc; i++) {
        dt__unit *u = &d->unit[i];
        u->d = d;
        u->index = i;
        u->block = bucket[i].block;
        u->first = bucket[i].first;
        u->n = bucket[i].n;
        u->at = bucket[i].at;
        u->length = bucket[i].length;
        u->dtype = m->order[u->first]->t->dtype;
        u->vroom = u->groom = -1;
        u->lazy_value.lazy.touch = dt__value_touch;
        u->lazy_grad.lazy.touch = dt__grad_touch;
        u->lazy_value.u = u->lazy_grad.u = u;
        rc = dt__unit_cut(u, carry);
    }
    for (int i = 0; i < m->nblocks && !rc; i++) rc = dt__shards_ranges(d, i);
    dt_mem_free(bucket, nbytes + 1);
    dt_mem_free(carry, (size_t)d->world * sizeof *carry);
    return rc;
}
static void dt__hold_release(void *user) { dt__unref((dt_tensor *)user); }
/* A tensor of n elements with a storage of its own: memory of `of` from element at on, or (of NULL) none yet. */
static dt_tensor *dt__unit_tensor(dt_device *dev, dt_tensor *of, int64_t at, int dtype, int64_t n)
{
    dt_tensor *t = dt__adopt("dt_ddp", dev, of ? dt__tensor_at(of, at) : NULL, dtype, &n, 1);
    if (!t || !of) return t;
    t->st->release = dt__hold_release;
    t->st->user = dt__ref(of);
    return t;
}
static int dt__unit_bind(dt__unit *u, dt__mblock *b, dt_tensor *value, dt_tensor *grad, bool unsummed)
{
    dt_ddp *d = u->d;
    bool    set = false;
    int     rc = 0;
    for (int k = u->first; k < u->first + u->n; k++) set = set || d->m->order[k]->t->grad_state != DT__GRAD_EMPTY;
    u->value = dt__unit_tensor(d->m->device, d->o.shard < 3 ? b->b.value : NULL, u->at, u->dtype, u->length);
    u->grad = dt__unit_tensor(d->m->device, d->o.shard < 2 ? b->b.grad : NULL, u->at, u->dtype, u->length);
    if (!u->value || !u->grad) return DT_ERR_MEMORY;
    if (d->o.shard >= 3) u->own_value = dt__ref(value);
    if (d->o.shard >= 2) u->own_grad = dt__ref(grad);
    for (int k = u->first; k < u->first + u->n && !rc; k++) {
        dt__param *p = d->m->order[k];
        rc = dt__unit_rebind(p->t, u->value, p->offset - u->at);
        if (!rc) rc = dt__unit_rebind(p->t->grad, u->grad, p->offset - u->at);
    }
    u->version = u->value->st->version;
    if (u->own_value) {
        u->vstate = DT__UNIT_GONE;
        u->value->st->lazy = &u->lazy_value.lazy;
    }
    u->gstate = !set ? DT__UNIT_GONE : unsummed || !u->own_grad ? DT__UNIT_HERE : DT__UNIT_CUT;
    if (!u->own_grad) return rc;
    u->grad->st->lazy = &u->lazy_grad.lazy;
    if (!rc && set && unsummed && !(rc = dt__grad_room(u))) rc = dt__copy_part(u->grad, 0, b->b.grad, u->at, u->length);
    return rc;
}
static int dt__shards_bind(void *user, dt__mblock *b) /* dt__sharding.bind */
{
    dt_ddp *d = (dt_ddp *)user;
    int     block = (int)(b - d->m->block), rc = 0, dtype = b->b.value->dtype;
    if (d->ending) return 0;
    dt_tensor *value = dt__ddp_alloc(d, d->m->device, dtype, d->o.shard >= 3 ? b->own : b->numel);
    dt_tensor *grad = d->o.shard >= 2 ? dt__ddp_alloc(d, d->m->device, dtype, b->own) : NULL;
    if (!value || (d->o.shard >= 2 && !grad))
        rc = dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the parameters (DT_COMM_ARENA limits them)");
    if (!rc && d->o.shard < 3) rc = dt__copy_part(value, 0, b->b.value, 0, b->numel);
    if (!rc && grad && b->own) rc = dt__fill(grad, 0);
    for (int k = 0; k < b->nranges && !rc; k++) {
        const dt__range *g = &b->range[k];
        if (d->o.shard >= 3) rc = dt__copy_part(value, g->at, b->b.value, g->lo, g->hi - g->lo);
        if (grad && !rc) rc = dt__copy_part(grad, g->at, b->b.grad, g->lo, g->hi - g->lo);
    }
    if (!rc && d->o.shard < 3) { /* the units refer to the new memory */
        dt_tensor *old = b->b.value;
        value->st->version = old->st->version;
        b->b.value = value;
        value = NULL;
        dt__unref(old);
    }
    for (int i = 0; i < d->nunits && !rc; i++)
        if (d->unit[i].block == block) rc = dt__unit_bind(&d->unit[i], b, value, grad, d->unsummed > 0);
    if (!rc && value) {
        dt__unref(b->b.value);
        b->b.value = dt__ref(value);
    }
    if (!rc && grad) {
        dt__unref(b->b.grad);
        b->b.grad = dt__ref(grad);
    }
    dt__unref(value);
    dt__unref(grad);
    if (block == d->m->nblocks - 1 && !rc) {
        dt__units_free(d, &d->old_unit, &d->nold);
        for (int i = 0; i < d->nrooms; i++) /* of the old units */
            if (!d->room[i].used && d->room[i].t) {
                dt__unref(d->room[i].t);
                d->room[i].t = NULL;
            }
        dt__device_trim(d->m->device); /* the whole blocks */
    }
    return rc;
}

/* ---- states: in memory, or in files that have no name */
typedef struct dt__state_map {
    void  *at;
    size_t nbytes;
} dt__state_map;
static void dt__state_unmap(void *user)
{
    dt__state_map *k = (dt__state_map *)user;
    munmap(k->at, k->nbytes);
    dt_mem_free(k, sizeof *k);
}
static int dt__state_file(const dt_ddp *d, const char *call, size_t nbytes) /* a descriptor, or -1 after dt_fail */
{
    static int count;
    char       path[600];
    int        fd = -1;
    for (int tries = 0; fd < 0 && tries < 100; tries++) {
        int n = snprintf(path, sizeof path, "%s/dt-states-%ld-%d-%d", d->o.state_dir, (long)getpid(), d->rank,
                         __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
        if (n < 0 || (size_t)n >= sizeof path) {
            dt_fail(DT_ERR_ARG, "%s: .state_dir is too long: %zu characters, expected at most 500", call,
                    strlen(d->o.state_dir));
            return -1;
        }
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST && errno != EINTR) break;
    }
    if (fd < 0) {
        dt_fail(DT_ERR_FILE,
                "%s: .state_dir %.300s: rank %d cannot make a file there: %s; it must be a directory that can be "
                "written to",
                call, d->o.state_dir, d->rank, strerror(errno));
        return -1;
    }
    unlink(path); /* it is gone when the process ends, however that ends */
    int e = nbytes ? posix_fallocate(fd, 0, (off_t)nbytes) : 0;
    if (!e) return fd;
    close(fd);
    dt_fail(DT_ERR_FILE,
            "%s: .state_dir %.300s: rank %d cannot get %zu bytes for optimiser states: %s; free space there, or use "
            "another "
            "directory",
            call, d->o.state_dir, d->rank, nbytes, strerror(e));
    return -1;
}
typedef struct dt__exact {
    void   *at;
    size_t nbytes, live;
} dt__exact;
static void dt__exact_release(void *user)
{
    dt__exact *k = (dt__exact *)user;
    dt_mem_free(k->at, k->nbytes);
    dt__count_live(dt_cpu(), k->live, false);
    dt_mem_free(k, sizeof *k);
}
static dt_tensor *dt__shards_memory(const char *call, int64_t n) /* n f32, zero, without what size classes would add */
{
    dt__exact *k = (dt__exact *)dt__alloc_zero(sizeof *k);
    dt_tensor *t = NULL;
    if (k) k->live = (size_t)n * 4;
    if (k) k->at = dt__alloc_zero(k->nbytes = (size_t)n * 4 + 64);
    if (k && k->at) t = dt__adopt(call, dt_cpu(), (char *)k->at + (64 - (uintptr_t)k->at % 64) % 64, DT_F32, &n, 1);
    if (t) {
        dt__count_live(dt_cpu(), k->live, true);
        t->st->release = dt__exact_release;
        t->st->user = k;
        return t;
    }
    if (k) dt_mem_free(k->at, k->nbytes);
    dt_mem_free(k, sizeof *k);
    dt_fail(DT_ERR_MEMORY, "%s: out of memory for %" PRId64 " bytes of a shard", call, n * 4);
    return NULL;
}
static dt_tensor *dt__shards_array(void *user, const char *call, int64_t n, bool state) /* dt__sharding.array */
{
    dt_ddp    *d = (dt_ddp *)user;
    dt_tensor *t = NULL;
    if (d->on_device) {
        t = dt__new(call, d->m->device, DT_F32, &n, 1, DT_LAYOUT_PLAIN);
        if (!t || !n || !dt__fill(t, 0)) return t;
        dt__unref(t);
        return NULL;
    }
    if (!d->o.state_dir || !n || !state) return dt__shards_memory(call, n);
    dt__state_map *k = (dt__state_map *)dt_mem_alloc(sizeof *k);
    int            fd = k ? dt__state_file(d, call, (size_t)n * sizeof(float)) : -1;
    if (!k) dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    if (fd >= 0) {
        k->nbytes = (size_t)n * sizeof(float);
        k->at = mmap(NULL, k->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (k->at == MAP_FAILED)
            dt_fail(DT_ERR_FILE, "%s: .state_dir %.300s: mmap of %zu bytes: %s", call, d->o.state_dir, k->nbytes,
                    strerror(errno));
        else t = dt__adopt(call, dt_cpu(), k->at, DT_F32, &n, 1);
        if (!t && k->at != MAP_FAILED) munmap(k->at, k->nbytes);
        close(fd);
    }
    if (t) {
        t->st->release = dt__state_unmap;
        t->st->user = k;
    } else {
        dt_mem_free(k, k ? sizeof *k : 0);
    }
    return t;
}

/* ---- the rest of dt__sharding */
static int dt__shards_sum(void *user, const char *call, float *x, int64_t n)
{
    dt_ddp *d = (dt_ddp *)user;
    return d->dropped ? 0 : dt_comm_allreduce(d->c, x, n, DT_COMM_F32, DT_COMM_SUM) ? dt__ddp_comm_fail(d, call) : 0;
}
static int dt__shards_most(void *user, const char *call, int64_t *x, int n)
{
    dt_ddp *d = (dt_ddp *)user;
    return d->dropped ? 0 : dt_comm_allreduce(d->c, x, n, DT_COMM_I64, DT_COMM_MAX) ? dt__ddp_comm_fail(d, call) : 0;
}
static int dt__shards_merge(void *user, const char *call, void *x, size_t nbytes)
{
    dt_ddp *d = (dt_ddp *)user;
    return d->dropped ? 0 : dt_comm_allreduce(d->c, x, (int64_t)nbytes, DT_COMM_U8, DT_COMM_OR) ? dt__ddp_comm_fail(d, call) : 0;
}
static int dt__shards_tell(void *user, const char *call, void *x, size_t nbytes, int root)
{
    dt_ddp *d = (dt_ddp *)user;
    return d->dropped ? 0 : dt_comm_broadcast(d->c, x, (int64_t)nbytes, DT_COMM_U8, root) ? dt__ddp_comm_fail(d, call) : 0;
}
static int dt__shards_outcome(void *user, const char *call)
{
    dt_ddp *d = (dt_ddp *)user;
    int64_t who = dt__err.code != DT_OK ? d->world - d->rank : 0, code;
    char    text[512];
    if (d->dropped) return dt__err.code;
    if (dt_comm_get_status(d->c)) return dt__ddp_comm_fail(d, call);
    if (dt_comm_allreduce(d->c, &who, 1, DT_COMM_I64, DT_COMM_MAX)) return dt__ddp_comm_fail(d, call);
    if (!who) return 0;
    int root = d->world - (int)who;
    memset(text, 0, sizeof text);
    code = dt__err.code;
    if (d->rank == root) snprintf(text, sizeof text, "%.500s", dt_error());
    if (dt_comm_broadcast(d->c, text, (int64_t)sizeof text, DT_COMM_U8, root) ||
        dt_comm_broadcast(d->c, &code, 1, DT_COMM_I64, root))
        return dt__ddp_comm_fail(d, call);
    d->error_known = 1;
    text[sizeof text - 1] = 0;
    return d->rank == root ? dt__err.code : dt_fail((dt_status)code, "rank %d: %s", root, text);
}
static int dt__shards_settle(void *user) /* dt__sharding.settle */
{
    dt_ddp *d = (dt_ddp *)user;
    int     rc = 0;
    for (int i = 0; i < d->nunits && !rc; i++) {
        dt__unit *u = &d->unit[i];
        rc = dt__value_wait(u); /* others may still read this rank's range */
        if (!rc) rc = dt__value_keep(u);
    }
    return rc;
}
static int dt__value_updated(dt_ddp *d, dt__unit *u, int opt)
{
    if (d->m->block[u->block].opt != opt || u->vstate != DT__UNIT_HERE) return 0;
    u->value->st->version++;
    u->value->st->lazy = &u->lazy_value.lazy;
    return dt__value_start(u);
}
static int dt__shards_stepped(void *user, dt_optimizer *opt) /* dt__sharding.stepped */
{
    dt_ddp *d = (dt_ddp *)user;
    int     rc = 0;
    if (d->o.shard < 3 && !opt) return 0; /* a load has filled the values, too */
    if (d->o.shard < 3 && !d->use_agreed) d->nuse = d->nused = 0;
    if (opt && d->nuse) { /* the order of this step is that of the next */
        int *list = d->used, cap = d->used_cap;
        d->used = d->use;
        d->used_cap = d->use_cap;
        d->nused = d->o.shard < 3 ? d->use_said : d->nuse;
        d->use = list;
        d->use_cap = cap;
        d->nuse = d->use_at = 0;
    }
    if (d->o.shard < 3) {
        for (int i = 0; i < d->nused && !rc; i++) rc = dt__value_updated(d, &d->unit[d->used[i]], opt->index);
        for (int i = d->nunits - 1; i >= 0 && !rc; i--) rc = dt__value_updated(d, &d->unit[i], opt->index);
        return rc;
    }
    for (int i = 0; i < d->nunits; i++) {
        dt__unit *u = &d->unit[i];
        u->version = ++u->value->st->version; /* nothing to keep */
        if (u->vstate != DT__UNIT_GONE) dt__value_drop(u);
    }
    d->recent[0] = d->recent[1] = d->recent[2] = d->ahead = -1;
    if (opt && d->nused && dt__err.code == DT_OK && !dt__value_start(&d->unit[d->used[0]])) d->ahead = d->used[0];
    return dt__err.code;
}
static int dt__shards_owner(void *user, const dt__mblock *b, int64_t at, int64_t *end) /* dt__sharding.owner */
{
    dt_ddp *d = (dt_ddp *)user;
    int     block = (int)(b - d->m->block);
    *end = at;
    for (int i = 0; i < d->nunits; i++) {
        const dt__unit *u = &d->unit[i];
        if (u->block != block || at < u->at || at >= u->at + u->length) continue;
        *end = u->at;
        for (int r = 0; r < d->world; r++)
            if (at < (*end += u->count[r])) return r;
    }
    return -1;
}
/* All ranks must have the same .shard; then the model is sharded, at once or when it is sealed. */
static int dt__shards_attach(dt_ddp *d)
{
    dt_model *m = d->m;
    int       fd = -1;
    if (!d->o.shard) return 0;
    if (d->o.state_dir && (fd = dt__state_file(d, "dt_ddp_new", 0)) >= 0) close(fd);
    if (dt__shards_outcome(d, "dt_ddp_new")) return dt__err.code;
    if (dt_comm_dup(d->user, &d->gathers)) return dt_fail(DT_ERR_COMM, "dt_ddp_new: %s", dt_comm_error(d->user));
    d->recent[0] = d->recent[1] = d->recent[2] = d->ahead = -1;
    if (!d->way_set) { /* .compress has set a hook */
        d->way.start = dt__way_scatter;
        d->way.user = d;
        snprintf(d->way_name, sizeof d->way_name, "reduce_scatter");
    }
    d->shards.user = d;
    d->shards.rank = d->rank;
    d->shards.cut = dt__shards_cut;
    d->shards.bind = dt__shards_bind;
    d->shards.array = dt__shards_array;
    d->shards.sum = dt__shards_sum;
    d->shards.most = dt__shards_most;
    d->shards.merge = dt__shards_merge;
    d->shards.tell = dt__shards_tell;
    d->shards.outcome = dt__shards_outcome;
    d->shards.settle = dt__shards_settle;
    d->shards.stepped = dt__shards_stepped;
    d->shards.owner = dt__shards_owner;
    m->shards = &d->shards;
    return 0;
}
/* dt_ddp_free: the model becomes whole again; states go. After an error the other ranks cannot help. */
static void dt__shards_end(dt_ddp *d)
{
    dt_model *m = d->m;
    bool      well = dt__err.code == DT_OK && (d->dropped || (!dt_comm_get_status(d->c) && !dt_comm_get_status(d->gathers)));
    if (!m || m->shards != &d->shards) return;
    for (int i = 0; i < m->nblocks && m->sealed; i++)
        for (int k = 0; k < DT__MAX_STATES; k++) {
            if (m->block[i].state[k] && m->block[i].opt >= 0) m->opt[m->block[i].opt]->lost = true;
            dt__unref(m->block[i].state[k]);
            m->block[i].state[k] = NULL;
        }
    d->ending = 1;
    if (m->sealed) {
        for (int i = 0; i < d->nunits; i++) dt__grad_drop(&d->unit[i], DT__UNIT_GONE);
        dt__drop_grads(m);
    }
    if (m->sealed && well) dt__model_pack(m);
    m->shards = NULL;
    if (!m->sealed || well) return;
    m->lost = 1;
    for (int i = 0; i < d->nunits; i++) {
        dt__unit *u = &d->unit[i];
        if (u->work) dt_work_wait(u->work);
        u->work = NULL;
        if (!u->own_value) u->value->st->lazy = NULL;
    }
    for (int i = 0; i < m->nblocks; i++) { /* what is left: values, with .shard 1 and 2 */
        dt__mblock *b = &m->block[i];
        dt_tensor **part[3];
        part[0] = &b->master;
        part[1] = &b->mgrad;
        part[2] = &b->mwhole;
        for (int k = 0; k < 3; k++) {
            dt__unref(*part[k]);
            *part[k] = NULL;
        }
        b->cut &= DT__CUT_VALUE;
        for (int k = 0; k < 2 && b->cut && !d->on_device; k++) { /* this rank's ranges leave the communicator's memory */
            dt_tensor **at = k ? &b->b.grad : &b->b.value, *old = *at;
            *at = dt__new("dt_ddp_free", old->st->dev, old->dtype, old->shape, old->ndim, DT_LAYOUT_PLAIN);
            if (*at && old->numel) memcpy((*at)->st->ptr, dt__tensor_at(old, 0), (size_t)dt__tensor_nbytes(old));
            dt__unref(old);
        }
    }
}
static void dt__shards_free(dt_ddp *d)
{
    dt__units_free(d, &d->old_unit, &d->nold);
    dt__units_free(d, &d->unit, &d->nunits);
    for (int i = 0; i < d->nrooms; i++) dt__unref(d->room[i].t);
    dt_mem_free(d->room, (size_t)d->room_cap * sizeof *d->room);
    dt_mem_free(d->use, (size_t)d->use_cap * sizeof *d->use);
    dt_mem_free(d->used, (size_t)d->used_cap * sizeof *d->used);
    dt_mem_free(d->walk, (size_t)d->walk_cap * sizeof *d->walk);
    dt_mem_free(d->walked, (size_t)d->walked_cap * sizeof *d->walked);
    dt_comm_free(d->gathers);
}
DT_API dt_ddp_memory dt_ddp_get_memory(const dt_ddp *d)
{
    dt_ddp_memory   k;
    const dt_model *m = d ? d->m : NULL;
    memset(&k, 0, sizeof k);
    if (!m || !m->sealed) return k;
    double f = 0, world = d->unit ? d->world : 1;
    for (int i = 0; i < m->nblocks; i++) {
        const dt__mblock *b = &m->block[i];
        double            n = (double)b->numel, size = (double)dt__dtype_size[b->b.value->dtype], states = 0;
        k.parameters += dt__tensor_nbytes(b->b.value);
        k.gradients += dt__tensor_nbytes(b->b.grad);
        k.masters += dt__tensor_nbytes(b->master) + dt__tensor_nbytes(b->mgrad) + dt__tensor_nbytes(b->mwhole);
        for (int s = 0; s < DT__MAX_STATES; s++) {
            k.states += dt__tensor_nbytes(b->state[s]);
            states += b->state[s] != NULL;
        }
        f += n * size * (1 / (b->cut & DT__CUT_VALUE ? world : 1) + 1 / (b->cut & DT__CUT_GRAD ? world : 1));
        f += n * 4 * (states + (b->master != NULL) + (b->mgrad != NULL)) / (b->cut ? world : 1) +
             (double)dt__tensor_nbytes(b->mwhole);
    }
    for (int i = 0; i < d->nrooms; i++) k.buckets += dt__tensor_nbytes(d->room[i].t);
    k.formula = (int64_t)f;
    return k;
}

/* ==================================================================================================== >>slots
   Every rank owns one segment of the vector of all gradients. After each backward the slot's gradients are copied to
   the send buffer, sorted by owner. After the last slot an alltoall gives each owner all slots' values of its segment;
   it adds them as the leaves of one fixed tree, and an allgather distributes the means. */
static int dt__slots_first(const dt_ddp *d, int r) { return (int)((int64_t)d->o.slots * r / d->world); }
static int dt__slots_own(const dt_ddp *d, int r) { return dt__slots_first(d, r + 1) - dt__slots_first(d, r); }
static int64_t dt__slots_offset(const dt_ddp *d, int r) /* where the segment of rank r begins */
{
    return d->total / d->world * r + d->total % d->world * r / d->world;
}
static void dt__slots_add(float *x, int64_t n, int lo, int hi) /* x + lo * n := the sum of lo .. hi - 1 */
{
    if (hi - lo < 2) return;
    int mid = lo + (hi - lo) / 2;
    dt__slots_add(x, n, lo, mid);
    dt__slots_add(x, n, mid, hi);
    float *a = x + (int64_t)lo * n, *b = x + (int64_t)mid * n;
    for (int64_t i = 0; i < n; i++) a[i] += b[i];
}
static int dt__slots_alloc(dt_ddp *d)
{
    int64_t mine = dt__slots_offset(d, d->rank + 1) - dt__slots_offset(d, d->rank);
    size_t  send = (size_t)dt__slots_own(d, d->rank) * (size_t)d->total * sizeof(float);
    size_t  gather = (size_t)d->o.slots * (size_t)mine * sizeof(float);
    if (d->send && d->send_nbytes == send && d->gather_nbytes == gather) return 0;
    dt_mem_free(d->send, d->send_nbytes);
    dt_mem_free(d->gather, d->gather_nbytes);
    d->send = (float *)dt_mem_alloc(d->send_nbytes = send);
    d->gather = (float *)dt_mem_alloc(d->gather_nbytes = gather);
    return d->send && d->gather ? 0 : dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for %d slots", d->o.slots);
}
/* Copies elements from .. from + n - 1 of the vector of all gradients to vec (out) or from it. */
static int dt__slots_copy(dt_ddp *d, float *vec, int64_t from, int64_t n, int out)
{
    int64_t at = 0;
    int     rc = 0;
    for (int i = 0; i < d->m->nblocks; i++) {
        const dt_tensor *g = d->m->block[i].b.grad;
        int64_t          lo = from > at ? from : at, hi = from + n < at + g->numel ? from + n : at + g->numel;
        float           *here = (float *)g->st->ptr + g->offset + (lo - at), *there = vec + (lo - from);
        dt_device       *dev = g->st->dev;
        size_t           nbytes = lo < hi ? (size_t)(hi - lo) * sizeof *vec : 0;
        if (nbytes && !rc && out) rc = dev->be->download(dev, dt__stream(dev), there, here, nbytes);
        if (nbytes && !rc && !out) rc = dev->be->upload(dev, dt__stream(dev), here, there, nbytes);
        at += g->numel;
    }
    return rc;
}
static int dt__slots_exchange(dt_ddp *d)
{
    int      per = dt__slots_own(d, d->rank), rc = 0;
    int64_t  mine = dt__slots_offset(d, d->rank + 1) - dt__slots_offset(d, d->rank);
    int64_t *count = (int64_t *)dt_mem_alloc((size_t)d->world * 3 * sizeof *count);
    float   *all = (float *)dt_mem_alloc((size_t)d->total * sizeof *all + 1);
    if (!count || !all) rc = dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the sum of %d slots", d->o.slots);
    for (int r = 0; r < d->world && !rc; r++) {
        count[r] = dt__slots_offset(d, r + 1) - dt__slots_offset(d, r);
        count[d->world + r] = count[r] * per;
        count[2 * d->world + r] = mine * dt__slots_own(d, r);
    }
    if (!rc && dt_comm_alltoall(d->c, d->send, d->gather, 0, count + d->world, count + 2 * d->world, DT_COMM_F32))
        rc = dt__ddp_comm_fail(d, "dt_backward");
    if (!rc) {
        dt__slots_add(d->gather, mine, 0, d->o.slots);
        for (int64_t i = 0; i < mine; i++) d->gather[i] *= 1.0f / (float)d->o.slots;
        if (dt_comm_allgather(d->c, d->gather, all, 0, count, DT_COMM_F32)) rc = dt__ddp_comm_fail(d, "dt_backward");
    }
    if (!rc) rc = dt__slots_copy(d, all, 0, d->total, 0);
    dt_mem_free(count, (size_t)d->world * 3 * sizeof *count);
    dt_mem_free(all, (size_t)d->total * sizeof *all + 1);
    return rc;
}
static int dt__slots_store(dt_ddp *d) /* stores the gradients of a backward; after the last slot of a step: sums all */
{
    dt_model *m = d->m;
    int       per = dt__slots_own(d, d->rank), rc = dt__slots_alloc(d), bad = 0;
    for (int i = 0; i < m->nblocks && !rc; i++) {
        if (m->block[i].b.grad->dtype != DT_F32)
            rc = dt_fail(DT_ERR_DTYPE, "dt_ddp: .slots needs f32 gradients; a block of the model has %s",
                         dt_dtype_name((dt_dtype)m->block[i].b.grad->dtype));
        for (int k = 0; k < m->block[i].n && !rc; k++) {
            dt_tensor *t = m->order[m->block[i].first + k]->t;
            d->reach[m->block[i].first + k] |= t->grad_state == DT__GRAD_SET;
            rc = dt__ddp_zero_unreached(t);
        }
        if (!rc) rc = dt__ddp_scale(d, m->block[i].b.grad, 0, m->block[i].b.grad->numel, 1, &bad);
        if (!rc && bad) rc = dt__ddp_find_bad(d, m->block[i].b.grad, 0, m->block[i].first, m->block[i].n);
    }
    if (rc) return rc;
    for (int r = 0; r < d->world && !rc; r++) { /* for rank r: its segment of one slot after the other */
        int64_t from = dt__slots_offset(d, r), n = dt__slots_offset(d, r + 1) - from;
        rc = dt__slots_copy(d, d->send + from * per + (int64_t)d->slot * n, from, n, 1);
    }
    if (rc) return rc;
    dt__drop_grads(d->m);
    if (++d->slot < per) return 0;
    d->slot = 0;
    if (dt__ddp_alone(d)) {
        dt__slots_add(d->send, d->total, 0, per);
        for (int64_t i = 0; i < d->total; i++) d->send[i] *= 1.0f / (float)d->o.slots;
        rc = dt__slots_copy(d, d->send, 0, d->total, 0);
    } else {
        rc = dt__slots_exchange(d);
        if (!rc && dt__reach_merge(d)) rc = dt__err.code;
        if (!rc && dt_comm_allgather(d->c, NULL, d->bad, 1, NULL, DT_COMM_I64))
            rc = dt__ddp_comm_fail(d, "dt_backward");
    }
    for (int i = 0; i < d->norder && !rc; i++)
        m->order[i]->t->grad_state = d->reach[i] ? DT__GRAD_SET : DT__GRAD_UNREACHED;
    for (int i = 0; i < d->norder; i++) d->reach[i] = 0;
    return rc ? rc : dt__ddp_nonfinite(d);
}

/* ==================================================================================================== >>syncnorm
   Forward: an allgather distributes each rank's mean, sum of squared deviations and count; each rank merges them in the
   order of ranks by Chan's formula. Backward: the sums of dy and dy * xhat are added over the ranks, weighted as the
   losses are in the mean that the ddp computes. A rank that skips needs no results: it starts all collectives of a step
   at once, asynchronously, and waits for them together with the buckets. So the other ranks never wait for it in the
   middle of their step. On a GPU it starts each at its place among the collectives of the other communicators: dt__walk_repeat. */
static double *dt__syncnorm_alloc(double **room, size_t *nbytes, int64_t n)
{
    size_t need = (size_t)n * sizeof **room;
    if (need > *nbytes) {
        dt_mem_free(*room, *nbytes);
        *room = (double *)dt_mem_alloc(need);
        *nbytes = *room ? need : 0;
    }
    if (!*room) dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the statistics of a batch norm");
    return *room;
}
static int dt__syncnorm_record(dt_ddp *d, int64_t channels)
{
    int64_t *p = (int64_t *)dt__enlarge(d->norm_calls, d->nnorm_calls, &d->norm_calls_cap, sizeof *p);
    if (!p) return dt_fail(DT_ERR_MEMORY, "dt_ddp: out of memory for the statistics of a batch norm");
    d->norm_calls = p;
    d->norm_calls[d->nnorm_calls++] = channels;
    if (!d->on_device) return 0;
    if ((channels < 0 ? -channels : channels) >> 26) d->nwalk = -1; /* a rank that skips repeats no walk */
    else dt__walk_record(d, DT__WALK_NORM, (int)(channels < 0 ? 1 - 2 * channels : 2 * channels));
    return 0;
}
static void dt__syncnorm_end_step(dt_ddp *d) /* this step's collectives become those of the step before */
{
    int64_t *p = d->norm_calls_prev, cap = d->norm_calls_prev_cap;
    d->norm_calls_prev = d->norm_calls;
    d->nnorm_calls_prev = d->nnorm_calls;
    d->norm_calls_prev_cap = d->norm_calls_cap;
    d->norm_calls = p;
    d->nnorm_calls = 0;
    d->norm_calls_cap = cap;
}
static float *dt__syncnorm_data(dt_tensor *t) { return (float *)t->st->ptr + t->offset; } /* f32 */
static void   dt__syncnorm_running(dt_tensor *t, const double *x, double scale, double k) /* t += k (scale x - t) */
{
    for (int64_t i = 0; t && i < t->numel; i++) {
        int64_t at = t->offset + i;
        float   v = (float)__builtin_fma(k, scale * x[i], (1 - k) * dt__element(t->st->ptr, t->dtype, at));
        if (t->dtype == DT_F32) ((float *)t->st->ptr)[at] = v;
        else ((uint16_t *)t->st->ptr)[at] = t->dtype == DT_F16 ? dt__f32_to_f16(v) : dt__f32_to_bf16(v);
    }
}
static int dt__syncnorm_too_few(void)
{
    return dt_fail(DT_ERR_SHAPE, "batch norm: one value per channel on all ranks together; training needs more: use a "
                                 "larger batch or image");
}
/* on_device: hosts exchange the counts, devices the statistics. With w_r = count_r / sum of counts, the mean is
   sum w_r mean_r and the variance sum w_r (var_r + (mean_r - mean)^2). */
static dt_shape dt__syncnorm_shape(int64_t a, int64_t b, int64_t c)
{
    dt_shape s;
    memset(&s, 0, sizeof s);
    s.ndim = c ? 3 : 2;
    s.dim[0] = a;
    s.dim[1] = b;
    s.dim[2] = c;
    return s;
}
static dt_tensor *dt__syncnorm_gather(dt_ddp *d, dt_tensor *mean, dt_tensor *var, int64_t n) /* (world, 2, ch) */
{
    int64_t      ch = mean->numel;
    dt_make_opts mo;
    DT__CLEAR(mo);
    mo.device = mean->st->dev;
    dt_tensor *all = dt_zeros_with(dt__syncnorm_shape(d->world, 2, ch), mo);
    dt_tensor *mine = all ? dt_narrow(all, 0, d->rank, 1) : NULL;
    if (n && mine) {
        dt_copy(dt_narrow(mine, 1, 0, 1), mean);
        dt_copy(dt_narrow(mine, 1, 1, 1), var);
    }
    if (dt__err.code != DT_OK) return NULL;
    if (dt_comm_allgather(d->norm, NULL, all->st->ptr, 2 * ch, NULL, DT_COMM_F32)) {
        dt__ddp_comm_fail(d, "batch norm");
        return NULL;
    }
    return all;
}
static void dt__syncnorm_running_device(dt_tensor *t, dt_tensor *x, double scale, double k)
{
    if (t && x) dt_copy(t, dt_add(dt_mul_scalar(t, 1 - k), dt_mul_scalar(x, k * scale)));
}
static int64_t dt__syncnorm_stats_device(dt_ddp *d, dt_tensor *mean, dt_tensor *var, int64_t n, dt_tensor *rm,
                                      dt_tensor *rv, double momentum)
{
    int64_t       ch = mean->numel, total = 0;
    double       *room = dt__syncnorm_alloc(&d->stats_buf, &d->stats_nbytes, 2 * d->world);
    int64_t      *count = (int64_t *)room;
    float        *share = (float *)(room + d->world);
    dt_reduce_opts ro;
    dt_make_opts   mo;
    if (!room || dt__syncnorm_record(d, ch)) return dt__err.code;
    if (dt_comm_allgather(d->norm, &n, count, 1, NULL, DT_COMM_I64)) return dt__ddp_comm_fail(d, "batch norm");
    for (int r = 0; r < d->world; r++) total += count[r];
    for (int r = 0; r < d->world; r++) share[r] = total ? (float)((double)count[r] / (double)total) : 0;
    DT__CLEAR(ro);
    DT__CLEAR(mo);
    ro.dims = DT_DIM(0);
    mo.device = mean->st->dev;
    dt_no_grad_begin();
    dt_tensor *all = dt__syncnorm_gather(d, mean, var, n), *w = dt_from_with(share, dt__syncnorm_shape(d->world, 1, 0), mo);
    dt_tensor *means = all ? dt_reshape(dt_narrow(all, 1, 0, 1), dt__syncnorm_shape(d->world, ch, 0)) : NULL;
    dt_tensor *vars = all ? dt_reshape(dt_narrow(all, 1, 1, 1), dt__syncnorm_shape(d->world, ch, 0)) : NULL;
    if (means && vars && w && total > 1) {
        dt_tensor *m = dt_sum_with(dt_mul(means, w), ro), *off = dt_sub(means, m);
        dt_tensor *v = dt_sum_with(dt_mul(dt_add(vars, dt_mul(off, off)), w), ro);
        dt_copy(mean, m);
        dt_copy(var, v);
        dt__syncnorm_running_device(rm, m, 1, momentum);
        dt__syncnorm_running_device(rv, v, (double)total / (double)(total - 1), momentum);
    }
    dt_no_grad_end();
    if (dt__err.code == DT_OK && total == 1) dt__syncnorm_too_few();
    return dt__err.code == DT_OK ? total : (int64_t)dt__err.code;
}
static int64_t dt__syncnorm_stats(void *user, dt_tensor *mean, dt_tensor *var, int64_t n, dt_tensor *rm, dt_tensor *rv,
                                  double momentum)
{
    dt_ddp *d = (dt_ddp *)user;
    if (d->on_device) return dt__syncnorm_stats_device(d, mean, var, n, rm, rv, momentum);
    int64_t ch = mean->numel, each = 2 * ch + 1;
    double *all = dt__syncnorm_alloc(&d->stats_buf, &d->stats_nbytes, each * d->world), *sq = all + ch, total;
    if (!all || dt__syncnorm_record(d, ch)) return dt__err.code;
    double *mine = all + each * d->rank;
    memset(mine, 0, (size_t)each * sizeof *mine);
    for (int64_t i = 0; i < ch && n; i++) {
        mine[i] = (double)dt__syncnorm_data(mean)[i];
        mine[ch + i] = (double)dt__syncnorm_data(var)[i] * (double)n;
    }
    mine[2 * ch] = (double)n;
    if (dt_comm_allgather(d->norm, NULL, all, each, NULL, DT_COMM_F64)) return dt__ddp_comm_fail(d, "batch norm");
    total = all[2 * ch];
    for (int r = 1; r < d->world; r++) {
        const double *b = all + each * r, nb = b[2 * ch], share = nb / (total + nb);
        if (!(nb > 0)) continue;
        for (int64_t i = 0; i < ch; i++) {
            double delta = b[i] - all[i];
            sq[i] = __builtin_fma(delta * delta, total * share, sq[i] + b[ch + i]);
            all[i] = __builtin_fma(delta, share, all[i]);
        }
        total += nb;
    }
    if (total == 1) return dt__syncnorm_too_few();
    if (!(total > 0)) return 0;
    for (int64_t i = 0; i < ch; i++) {
        dt__syncnorm_data(mean)[i] = (float)all[i];
        dt__syncnorm_data(var)[i] = (float)(sq[i] / total);
    }
    dt__syncnorm_running(rm, all, 1, momentum);
    dt__syncnorm_running(rv, sq, 1 / (total - 1), momentum);
    return (int64_t)total;
}
static int dt__syncnorm_sums(void *user, dt_tensor *sums)
{
    dt_ddp *d = (dt_ddp *)user;
    double  weight = d->weight < 0 ? 1 : d->weight, back = weight > 0 ? 1 / weight : 0;
    if (d->on_device) {
        if (dt__syncnorm_record(d, -sums->numel / 2)) return dt__err.code;
        int rc = weight > 0 ? dt__ddp_scale(d, sums, 0, sums->numel, weight, NULL) : dt__fill(sums, 0);
        if (!rc && dt_comm_allreduce(d->norm, dt__syncnorm_data(sums), sums->numel, DT_COMM_F32, DT_COMM_SUM))
            rc = dt__ddp_comm_fail(d, "dt_backward: batch norm");
        return rc ? rc : dt__ddp_scale(d, sums, 0, sums->numel, back, NULL);
    }
    double *all = dt__syncnorm_alloc(&d->stats_buf, &d->stats_nbytes, sums->numel);
    float  *x = dt__syncnorm_data(sums);
    if (!all || dt__syncnorm_record(d, -sums->numel / 2)) return dt__err.code;
    for (int64_t i = 0; i < sums->numel; i++) all[i] = weight > 0 ? weight * (double)x[i] : 0;
    if (dt_comm_allreduce(d->norm, all, sums->numel, DT_COMM_F64, DT_COMM_SUM))
        return dt__ddp_comm_fail(d, "dt_backward: batch norm");
    for (int64_t i = 0; i < sums->numel; i++) x[i] = (float)(back * all[i]);
    return 0;
}
static int dt__syncnorm_skip_started(dt_ddp *d, dt_work *w)
{
    if (!w) return dt__ddp_comm_fail(d, "dt_ddp_skip");
    d->skip_work[d->nskip++] = w;
    return 0;
}
static int dt__syncnorm_skip_room(dt_ddp *d, int64_t calls, int64_t n) /* zeros in host memory, and room for works */
{
    if (dt_comm_options(d->norm)->no_thread)
        return dt_fail(DT_ERR_STATE, "dt_ddp_skip: .sync_batchnorm needs a communicator with a thread, this one has "
                                     ".no_thread; call dt_comm_init without it");
    double *at = dt__syncnorm_alloc(&d->skip_buf, &d->skip_nbytes, n);
    if (d->skip_cap < 2 * calls) {
        dt_mem_free(d->skip_work, (size_t)d->skip_cap * sizeof *d->skip_work);
        d->skip_work = (dt_work **)dt_mem_alloc(2 * (size_t)calls * sizeof *d->skip_work);
        d->skip_cap = d->skip_work ? 2 * calls : 0;
    }
    if (!at || !d->skip_cap) return dt_fail(DT_ERR_MEMORY, "dt_ddp_skip: out of memory");
    memset(at, 0, (size_t)n * sizeof *at);
    return 0;
}
static int dt__syncnorm_skip(dt_ddp *d) /* begins the collectives of the batch norms of this rank's last step; not on a GPU */
{
    int64_t n = 0;
    if (!d->norm || !d->nnorm_calls_prev) return 0;
    for (int64_t i = 0; i < d->nnorm_calls_prev; i++) {
        int64_t ch = d->norm_calls_prev[i];
        n += ch < 0 ? -2 * ch : (2 * ch + 1) * d->world;
    }
    if (dt__syncnorm_skip_room(d, d->nnorm_calls_prev, n)) return dt__err.code;
    double *at = d->skip_buf;
    for (int64_t i = 0; i < d->nnorm_calls_prev; i++) {
        int64_t  ch = d->norm_calls_prev[i], each = 2 * (ch < 0 ? -ch : ch) + (ch > 0);
        dt_work *w = ch < 0 ? dt_comm_allreduce_start(d->norm, at, each, DT_COMM_F64, DT_COMM_SUM)
                            : dt_comm_allgather_start(d->norm, NULL, at, each, NULL, DT_COMM_F64);
        if (dt__syncnorm_skip_started(d, w)) return dt__err.code;
        at += ch < 0 ? each : each * d->world;
    }
    return 0;
}
/* On a GPU dt__walk_repeat begins each at its place between the collectives of the other communicators. The memory for those in
   walked, from there on: */
static int dt__syncnorm_skip_memory(dt_ddp *d, int from)
{
    int64_t n = 0, calls = 0;
    for (int i = from; i < d->nwalked; i++) {
        int64_t index = d->walked[i] >> DT__WALK_BITS;
        if ((d->walked[i] & ((1 << DT__WALK_BITS) - 1)) != DT__WALK_NORM) continue;
        n += index & 1 ? 2 * (index >> 1) : (2 * (index >> 1) + 1) * d->world;
        calls++;
    }
    if (!calls) return 0;
    if (dt__syncnorm_skip_room(d, calls, n)) return dt__err.code;
    d->skip_at = d->skip_counts = 0;
    if (!d->skip_device || d->skip_device->numel < n) {
        dt__unref(d->skip_device);
        d->skip_device = dt__new("dt_ddp_skip", d->m->device, DT_F32, &n, 1, DT_LAYOUT_PLAIN);
    }
    return !d->skip_device || dt__fill(d->skip_device, 0) ? (int)DT_ERR_MEMORY : 0;
}
/* Contributes a count of 0 from the host and zeros from the device. */
static int dt__syncnorm_skip_next(dt_ddp *d, int index)
{
    int64_t each = 2 * (int64_t)(index >> 1);
    float  *at = dt__syncnorm_data(d->skip_device) + d->skip_at;
    dt__walk_record(d, DT__WALK_NORM, index);
    if (index & 1) {
        d->skip_at += each;
        return dt__syncnorm_skip_started(d, dt_comm_allreduce_start(d->norm, at, each, DT_COMM_F32, DT_COMM_SUM));
    }
    int64_t *counts = (int64_t *)(void *)d->skip_buf + d->skip_counts;
    d->skip_at += each * d->world;
    d->skip_counts += d->world;
    int rc = dt__syncnorm_skip_started(d, dt_comm_allgather_start(d->norm, NULL, counts, 1, NULL, DT_COMM_I64));
    return rc ? rc : dt__syncnorm_skip_started(d, dt_comm_allgather_start(d->norm, NULL, at, each, NULL, DT_COMM_F32));
}
/* .sync_batchnorm must be the same on all ranks. */
static int dt__syncnorm_attach(dt_ddp *d)
{
    int64_t on = d->o.sync_batchnorm | d->o.shard << 1, *all = d->info;
    if (dt_comm_allgather(d->c, &on, all, 1, NULL, DT_COMM_I64)) return dt__ddp_comm_fail(d, "dt_ddp_new");
    for (int r = 1; r < d->world; r++) {
        if (all[r] == all[0]) continue;
        d->error_known = 1; /* all ranks report this error */
        if (all[r] >> 1 != all[0] >> 1)
            return dt_fail(DT_ERR_COMM, "dt_ddp_new: rank 0 has .shard = %d, rank %d has %d; set the same on all ranks",
                           (int)(all[0] >> 1), r, (int)(all[r] >> 1));
        return dt_fail(DT_ERR_COMM, "dt_ddp_new: rank %d has .sync_batchnorm, rank %d has not; set it on all ranks or on "
                       "no rank", all[0] ? 0 : r, all[0] ? r : 0);
    }
    if (!(on & 1)) return 0;
    if (dt_comm_dup(d->user, &d->norm)) return dt_fail(DT_ERR_COMM, "dt_ddp_new: %s", dt_comm_error(d->user));
    d->sync.user = d;
    d->sync.stats = dt__syncnorm_stats;
    d->sync.sums = dt__syncnorm_sums;
    d->watch.norm = &d->sync;
    return 0;
}
static void dt__syncnorm_free(dt_ddp *d)
{
    for (int64_t i = 0; i < dt__tls.tape.n; i++) { /* a later backward through these nodes must fail, not use freed memory */
        dt__node *n = (dt__node *)dt__tls.tape.at[i];
        if (n->user == (void *)&d->sync) n->user = NULL;
    }
    dt_mem_free(d->stats_buf, d->stats_nbytes);
    dt_mem_free(d->skip_buf, d->skip_nbytes);
    dt__unref(d->skip_device);
    dt_mem_free(d->skip_work, (size_t)d->skip_cap * sizeof *d->skip_work);
    dt_mem_free(d->norm_calls, (size_t)d->norm_calls_cap * sizeof *d->norm_calls);
    dt_mem_free(d->norm_calls_prev, (size_t)d->norm_calls_prev_cap * sizeof *d->norm_calls_prev);
    dt_comm_free(d->norm);
}

/* ---- for the live view and the report: dt__meters */
static int dt__ddp_member(void *user, int rank, dt__pace *m)
{
    const dt_ddp *d = (const dt_ddp *)user;
    memset(m, 0, sizeof *m);
    if (rank >= 0 && rank < d->world && d->info) memcpy(m, &d->info[(int64_t)rank * DT__INFO_WORDS + DT__INFO_MEMBER], sizeof *m);
    return d->world;
}
static void dt__say_number(dt__text_buf *b, const char *name, double x)
{
    dt__text_put(b, name);
    dt__text_json_number(b, x);
}
static void dt__ddp_tell_meters(void *user, uint64_t since, dt__text_buf *b)
{
    enum { SLOW = 32, MOST = 512 };
    const dt_ddp     *d = (const dt_ddp *)user;
    dt_comm_straggler slow[SLOW];
    int               n = d->c ? dt_comm_get_stragglers(d->c, slow, SLOW) : 0;
    dt__text_put(b, ",\"compress\":");
    dt__text_json(b, d->way_set ? d->way_name : NULL);
    dt__say_number(b, ",\"overlap\":{\"steps\":", (double)d->stats.steps);
    dt__say_number(b, ",\"communication\":", d->stats.comm);
    dt__say_number(b, ",\"exposed\":", d->stats.exposed);
    dt__say_number(b, ",\"waited\":", d->stats.waited);
    dt__say_number(b, ",\"walked\":", 1e-6 * (double)((int64_t)d->t_walked - (int64_t)since));
    dt__text_put(b, "},\"buckets\":[");
    for (int i = 0; i < d->nbuckets && i < MOST && d->version; i++) {
        const dt__bucket *k = &d->bucket[i];
        double            times = k->times ? (double)k->times : 1;
        dt__say_number(b, i ? ",{\"bytes\":" : "{\"bytes\":", (double)k->numel * (double)dt__elem_nbytes(k->pub.dtype));
        dt__say_number(b, ",\"sent\":", (double)k->sent / times);
        dt__say_number(b, ",\"ms\":", 1e-6 * (double)k->took / times);
        dt__say_number(b, ",\"hidden\":", k->took > 0 ? (double)k->hidden / (double)k->took : 0);
        dt__text_put(b, ",\"first\":");
        dt__text_json(b, k->pub.parts > 0 ? k->pub.part[0].name : NULL);
        dt__text_put(b, ",\"last\":");
        dt__text_json(b, k->pub.parts > 0 ? k->pub.part[k->pub.parts - 1].name : NULL);
        if (k->times && k->t1 > k->t0) {
            dt__say_number(b, ",\"from\":", 1e-6 * (double)(k->t0 - (int64_t)since));
            dt__say_number(b, ",\"to\":", 1e-6 * (double)(k->t1 - (int64_t)since));
        }
        dt__text_put(b, "}");
    }
    dt__text_put(b, "],\"stragglers\":[");
    for (int i = 0; i < n && i < SLOW; i++) {
        dt__say_number(b, i ? ",{\"rank\":" : "{\"rank\":", slow[i].rank);
        dt__say_number(b, ",\"last\":", (double)slow[i].last);
        dt__say_number(b, ",\"waited\":", slow[i].waited);
        dt__say_number(b, ",\"longest\":", slow[i].longest);
        dt__text_put(b, "}");
    }
    dt__text_put(b, "]");
}

/* ==================================================================================================== >>attach
   The callbacks of dt__watch, by which dt_nn.h lets the ranks agree on checkpoints, and the public functions. */
static int dt__ddp_agree(void *user, const char *call, int64_t *x, int n)
{
    dt_ddp *d = (dt_ddp *)user;
    return d->c && dt_comm_allreduce(d->c, x, n, DT_COMM_I64, DT_COMM_MAX) ? dt__ddp_comm_fail(d, call) : 0;
}
static int dt__ddp_same(void *user, const char *call, const char *what, int64_t x)
{
    dt_ddp *d = (dt_ddp *)user;
    if (dt__ddp_alone(d)) return 0;
    int64_t *all = (int64_t *)dt_mem_alloc((size_t)d->world * sizeof *all);
    int      rc = all ? 0 : dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    if (!rc && dt_comm_allgather(d->c, &x, all, 1, NULL, DT_COMM_I64)) rc = dt__ddp_comm_fail(d, call);
    for (int r = 1; r < d->world && !rc; r++) {
        if (all[r] == all[0]) continue;
        d->error_known = 1; /* all ranks report this error */
        rc = dt_fail(DT_ERR_COMM, "%s: %s is %" PRId64 " on rank 0, %" PRId64 " on rank %d; all ranks must see the same "
                     "files: use a directory that they share", call, what, all[0], all[r], r);
    }
    dt_mem_free(all, (size_t)d->world * sizeof *all);
    return rc;
}
static int dt__ddp_lead(void *user) { return ((dt_ddp *)user)->rank == 0; }
/* Rank 0 has done something for all ranks: its error, if any, becomes the error of every rank. */
static int dt__ddp_outcome(void *user, const char *call)
{
    dt_ddp *d = (dt_ddp *)user;
    char    text[512];
    if (dt__ddp_alone(d)) return 0;
    dt__ddp_collected(d);
    memset(text, 0, sizeof text);
    if (d->rank == 0 && dt__err.code != DT_OK) snprintf(text, sizeof text, "%.500s", dt_error());
    if (dt_comm_broadcast(d->c, text, (int64_t)sizeof text, DT_COMM_U8, 0)) return dt__ddp_comm_fail(d, call);
    if (!text[0] || d->rank == 0) return 0;
    d->error_known = 1;
    text[sizeof text - 1] = 0;
    return dt_fail(DT_ERR_FILE, "rank 0: %s", text);
}
static void dt__ddp_tell(void *user) { dt__ddp_send_error((dt_ddp *)user); }
static void dt__ddp_gone(void *user)
{
    dt_ddp *d = (dt_ddp *)user;
    if (d->m->shards == &d->shards) d->m->shards = NULL;
    d->m = NULL;
}
static dt_ddp *dt__ddp_ok(const char *call, dt_ddp *d)
{
    if (dt__err.code != DT_OK) return NULL;
    if (!d) dt_fail(DT_ERR_ARG, "%s: the ddp is NULL", call);
    else if (!d->m) dt_fail(DT_ERR_STATE, "%s: the model was freed; call it before dt_model_free", call);
    else if (dt__tls.in_backward) dt_fail(DT_ERR_STATE, "%s: called inside a backward; call it before or after", call);
    return dt__err.code == DT_OK ? d : NULL;
}
static int dt__ddp_attach(dt_ddp *d)
{
    dt_model *m = d->m;
    int64_t   one = 1;
    d->info = (int64_t *)dt__alloc_zero((size_t)d->world * DT__INFO_WORDS * sizeof *d->info);
    d->bad = (int64_t *)dt_mem_alloc((size_t)d->world * sizeof *d->bad);
    d->flag = dt__new("dt_ddp_new", m->device, DT_F32, &one, 1, DT_LAYOUT_PLAIN);
    if (!d->info || !d->bad || !d->flag) return dt_fail(DT_ERR_MEMORY, "dt_ddp_new: out of memory");
    for (int r = 0; r < d->world; r++) d->bad[r] = -1;
    if (d->user && d->world > 1 && dt_comm_dup(d->user, &d->c)) {
        const char *why = dt_comm_error(d->user); /* of a tolerant one only the call has failed */
        return dt_fail(DT_ERR_COMM, "dt_ddp_new: %s", why ? why : dt_comm_error(NULL));
    }
    if (d->c && dt__syncnorm_attach(d)) return dt__err.code;
    memset(d->info, 0, (size_t)d->world * DT__INFO_WORDS * sizeof *d->info);
    d->watch.user = d;
    d->watch.made = dt__ddp_on_param;
    d->watch.grads = dt__ddp_grads;
    d->watch.step = dt__ddp_step;
    d->watch.agree = dt__ddp_agree;
    d->watch.same = dt__ddp_same;
    d->watch.lead = dt__ddp_lead;
    d->watch.outcome = dt__ddp_outcome;
    d->watch.tell = dt__ddp_tell;
    d->watch.collect = dt__ddp_collect;
    d->watch.arrays = dt__ddp_arrays;
    d->watch.gone = dt__ddp_gone;
    d->watch.kind = DT__WATCH_DDP;
    dt__watch_add(m, &d->watch);
    if (d->c && m->nparams && dt__ddp_sync_model(d)) return dt__err.code;
    if (d->c && dt__shards_attach(d)) return dt__err.code;
    if (m->sealed && d->c && (!d->on_device || d->o.shard) && dt__model_pack(m)) return dt__err.code;
    const char *path = getenv("DT_VERIFY"), *why = NULL;
    d->verifying = path && *path;
    if (d->verifying && d->rank == 0) {
        int fd = dt__file_create(AT_FDCWD, path, O_WRONLY | O_TRUNC, &why);
        if (fd >= 0 && !(d->verify = fdopen(fd, "w"))) {
            why = strerror(errno);
            close(fd);
        }
        if (!d->verify) return dt_fail(DT_ERR_FILE, "dt_ddp_new: DT_VERIFY: cannot write %.300s: %s", path, why);
    }
    if (d->driven) return 0;
    dt_grad_hooks h;
    h.begin = dt__ddp_begin;
    h.ready = dt__ddp_ready;
    h.end = dt__ddp_end;
    h.user = NULL;
    if (dt__ddp_hook(d, h)) return dt__err.code;
    dt__measured.team = d;
    dt__measured.pace = dt__ddp_member;
    dt__measured.tell = dt__ddp_tell_meters;
    return 0;
}
static void dt__ddp_leaves(const dt_ddp *d) /* the report takes what it wants of it */
{
    if (dt__measured.team != d) return;
    if (dt__measured.watcher && dt__measured.team_ends) dt__measured.team_ends(dt__measured.watcher);
    dt__measured.team = NULL;
}
static int dt__ddp_on_seal(dt_model *m, void *user) /* user may be freed: it is valid only if m->watch has it */
{
    dt_ddp *d = (dt_ddp *)user;
    if (!dt__watch_find(m, user) || dt__ddp_alone(d) || d->torn) return 0;
    int rc = dt__ddp_same_models(d);
    return rc && dt__ddp_tears(d) ? 0 : rc;
}
DT__INSIDE dt_ddp *dt__ddp_make(dt_model *m, dt_comm *c, dt_ddp_opts o, int how)
{
    const char *call = "dt_ddp_new";
    int         world = dt_comm_size(c), driven = how == DT__DDP_DRIVEN;
    if (!dt__model_ok(call, m)) return NULL;
    if (m->watch && !driven) dt_fail(DT_ERR_STATE, "%s: the model %s", call, dt__watch_taken(m));
    else if (!dt__is_host(m->device) && world > 1 && !dt_comm_options(c)->backend)
        dt_fail(DT_ERR_DEVICE, "%s: the model is on %s; make the communicator with .backend = DT_NCCL", call,
                m->device->name);
    else if (dt_comm_get_status(c)) dt_fail(DT_ERR_COMM, "%s: the communicator has failed: %s", call, dt_comm_error(c));
    else if (o.slots < 0 || (o.slots && o.slots < world))
        dt_fail(DT_ERR_ARG, "%s: .slots is %d; it must be at least the number of ranks, %d", call, o.slots, world);
    else if (o.slots && o.sync_batchnorm)
        dt_fail(DT_ERR_ARG, "%s: .slots cannot be used with .sync_batchnorm: each slot is computed separately", call);
    else if (o.slots && m->amp)
        dt_fail(DT_ERR_ARG, "%s: .slots cannot be used with mixed precision; leave out one of them", call);
    else if (o.shard < 0 || o.shard > 3)
        dt_fail(DT_ERR_ARG,
                "%s: .shard is %d; it must be 1 (optimiser states), 2 (and gradients), 3 (and parameters), or 0", call,
                o.shard);
    else if (o.shard && o.slots)
        dt_fail(DT_ERR_ARG,
                "%s: .shard cannot be used with .slots, whose sum every rank needs whole; leave out one of them", call);
    else if (o.shard && driven)
        dt_fail(DT_ERR_ARG, "%s: .shard cannot be used with a pipeline; leave out one of them", call);
    else if (o.shard && dt__is_host(m->device) && m->device != dt_cpu())
        dt_fail(DT_ERR_DEVICE, "%s: .shard needs a model on the CPU or on a GPU, this one is on %s; leave out .shard", call,
                m->device->name);
    else if (o.state_dir && !o.shard) dt_fail(DT_ERR_ARG, "%s: .state_dir needs .shard", call);
    else if (o.state_dir && m->device != dt_cpu())
        dt_fail(DT_ERR_DEVICE,
                "%s: .state_dir maps files into the memory of the host, and the model is on %s; leave it out", call,
                m->device->name);
    else if (o.first_bucket_mb < 0 || o.bucket_mb < 0 || o.first_bucket_mb > 65536 || o.bucket_mb > 65536)
        dt_fail(DT_ERR_ARG, "%s: buckets of %g and %g MiB; they must be between 0 and 65536", call, o.first_bucket_mb,
                o.bucket_mb);
    dt_ddp *d = dt__err.code == DT_OK ? (dt_ddp *)dt__alloc_zero(sizeof *d) : NULL;
    if (!d) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call); /* has no effect if an error is pending already */
        return NULL;
    }
    d->m = m;
    d->user = c;
    d->o = o;
    d->rank = dt_comm_rank(c);
    d->world = world;
    d->on_device = !dt__is_host(m->device);
    d->hook = -1;
    d->driven = driven;
    d->elastic = how == DT__DDP_ELASTIC;
    d->weight = -1;
    d->way.start = dt__way_allreduce;
    d->way.stages = 1;
    d->way.sums = true;
    snprintf(d->way_name, sizeof d->way_name, "allreduce");
    if (dt__squeeze_attach(d) || dt__ddp_attach(d) || dt__model_on_seal(m, dt__ddp_on_seal, d)) {
        (void)dt__ddp_tears(d);
        dt_ddp_free(d);
        return NULL;
    }
    return d;
}
DT_API dt_ddp *dt_ddp_new_with(dt_model *m, dt_comm *c, dt_ddp_opts o) { return dt__ddp_make(m, c, o, DT__DDP_PLAIN); }
DT_API void dt_ddp_free(dt_ddp *d)
{
    if (!d) return;
    dt_model *m = d->m;
    dt__ddp_leaves(d);
    dt__ddp_verify(d);
    if (d->verify) fclose(d->verify);
    dt__ddp_send_error(d);
    /* a rank that still trains makes other calls: then this rank, too, gets an error that says so */
    if (dt__err.code == DT_OK && d->c && !dt_comm_get_status(d->c) && (!d->norm || !dt_comm_get_status(d->norm)) &&
        (!d->gathers || !dt_comm_get_status(d->gathers)) &&
        (dt__comm_leave(d->norm) || (d->gathers && dt__comm_leave(d->gathers)) || dt__comm_leave(d->c)))
        dt__ddp_comm_fail(d, "dt_ddp_free");
    dt__ddp_unhook(d);
    if (d->c) dt__shards_end(d);
    if (m && dt__watch_find(m, d)) {
        dt__watch_remove(m, &d->watch);
        for (int64_t i = 0; i < m->on_seal.n; i++) {
            dt__on_seal *s = (dt__on_seal *)m->on_seal.at[i];
            if (s->user == d) s->user = NULL;
        }
        bool gone = m->nblocks && m->block[0].cut & DT__CUT_VALUE; /* values that were not gathered */
        if (m->nblocks && d->c && !d->on_device && !gone) { /* move the gradients out of the communicator's memory */
            dt_status code = dt__err.code;
            dt__err.code = DT_OK;
            dt__model_pack(m);
            if (code != DT_OK) dt__err.code = code;
            for (int i = 0; i < m->nparams; i++) { /* gradients of frozen parameters still refer to that memory */
                dt_tensor *t = m->param[i]->t;
                if (m->param[i]->block >= 0 || !t->grad) continue;
                dt__unref(t->grad);
                t->grad = NULL;
                t->grad_state = DT__GRAD_EMPTY;
            }
        }
    }
    dt__unref(d->staging);
    dt__unref(d->flags);
    dt__buckets_free(d);
    dt_mem_free(d->squeeze, d->squeeze ? sizeof *d->squeeze : 0);
    dt_mem_free(d->info, (size_t)d->world * DT__INFO_WORDS * sizeof *d->info);
    dt_mem_free(d->bad, (size_t)d->world * sizeof *d->bad);
    dt_mem_free(d->send, d->send_nbytes);
    dt_mem_free(d->gather, d->gather_nbytes);
    dt__ddp_collected(d);
    dt__unref(d->flag);
    dt__syncnorm_free(d);
    dt__shards_free(d);
    for (int s = 0; s + 1 < DT__DDP_STAGES; s++) dt_comm_free(d->staged[s]);
    dt_comm_free(d->c);
    dt_mem_free(d, sizeof *d);
}
static int dt__comm_lost(const dt_comm *c) /* why its collectives end; 0: they do not */
{
    int status = c ? dt_comm_get_status(c) : 0;
    if (c && !status) status = dt__comm_halted(c, UINT64_MAX);
    for (int i = 0; c && c->world && c->members && !status && i < c->size; i++) /* the control thread may be about to tell it */
        if (dt__world_gone(c->world, c->member[i])) status = DT_COMM_ERR_PEER;
    return status;
}
DT__INSIDE int dt__ddp_lost(const dt_ddp *d)
{
    const dt_comm *all[4 + DT__DDP_STAGES];
    int            lost = 0;
    memset(all, 0, sizeof all);
    all[0] = d->user;
    all[1] = d->c;
    all[2] = d->norm;
    all[3] = d->gathers;
    for (int s = 0; s + 1 < DT__DDP_STAGES; s++) all[4 + s] = d->staged[s];
    for (int i = 0; i < 4 + DT__DDP_STAGES; i++) { /* a death comes before what this rank did because of it: dt__ddp_abort */
        int status = dt__comm_lost(all[i]);
        if (status == DT_COMM_ERR_PEER || status == DT_COMM_ERR_TIMEOUT) return status;
        if (!lost) lost = status;
    }
    return lost;
}
DT__INSIDE void dt__ddp_drop(dt_ddp *d)
{
    if (!d) return;
    d->verifying = 0;
    d->error_known = d->dropped = 1;
    const dt_comm *own[3];
    own[0] = d->c;
    own[1] = d->norm;
    own[2] = d->gathers;
    for (int i = 0; i < 3; i++) /* what they say is dealt with: not to be logged */
        if (own[i]) (void)dt_comm_error(own[i]);
    for (int s = 0; s + 1 < DT__DDP_STAGES; s++)
        if (d->staged[s]) (void)dt_comm_error(d->staged[s]);
    dt_ddp_free(d);
}
static int dt__way_set(dt_ddp *d, const char *call, dt_ddp_hook h)
{
    const char *name = h.name ? h.name : "hook";
    if (!h.start) return dt_fail(DT_ERR_ARG, "%s: .start is NULL", call);
    if (strlen(name) >= sizeof d->way_name || h.stages < 0 || h.stages > DT__DDP_STAGES)
        return dt_fail(DT_ERR_ARG, "%s: .name has %zu characters and .stages is %d; expected up to %zu and 0 to %d", call,
                       strlen(name), h.stages, sizeof d->way_name - 1, DT__DDP_STAGES);
    if (d->o.slots)
        return dt_fail(DT_ERR_STATE, "%s: .slots has an order of its own for sums, which the hook '%s' would replace; leave out "
                       "one of them", call, name);
    if (d->way_set)
        return dt_fail(DT_ERR_STATE, "%s: this ddp has the hook '%s' already; set one hook, once", call, d->way_name);
    if (d->version || d->agreed)
        return dt_fail(DT_ERR_STATE, "%s: the first backward has begun; set the hook right after dt_ddp_new", call);
    if (d->o.no_check && !h.sums)
        return dt_fail(DT_ERR_STATE, "%s: with .no_check gradients are not checked, but the hook '%s' relies on finite ones; leave "
                       "out .no_check", call, name);
    d->way = h;
    if (!d->way.stages) d->way.stages = 1;
    snprintf(d->way_name, sizeof d->way_name, "%s", name);
    d->way.name = d->way_name;
    d->way_set = 1;
    return 0;
}
DT_API dt_status dt_ddp_set_hook_with(dt_ddp *d, dt_ddp_hook h)
{
    return dt__ddp_ok("dt_ddp_set_hook", d) ? (dt_status)dt__way_set(d, "dt_ddp_set_hook", h) : dt_error_code();
}
DT_API dt_comm *dt_ddp_comm(const dt_ddp *d) { return d ? d->user : NULL; }
DT_API void     dt_ddp_no_sync(dt_ddp *d, bool on)
{
    if (d && d->o.slots && on)
        dt_fail(DT_ERR_STATE, "dt_ddp_no_sync: with .slots gradients are summed once a step anyway; leave out the call");
    else if (d) d->no_sync = on;
}
DT_API dt_status dt_ddp_samples(dt_ddp *d, double n)
{
    if (!dt__ddp_ok("dt_ddp_samples", d)) return dt_error_code();
    if (!(n >= 0) || !isfinite(n) || d->o.slots)
        return (dt_status)dt_fail(DT_ERR_ARG, "dt_ddp_samples: %g samples%s", n,
                                  d->o.slots ? " with .slots, where all slots have the same weight; leave out the call"
                                             : ", expected a finite number, 0 or more");
    d->weight = n;
    return DT_OK;
}
DT_API bool dt_ddp_more(dt_ddp *d, bool have)
{
    int32_t any = have;
    if (d) dt__ddp_send_error(d);
    if (!dt__ddp_ok("dt_ddp_more", d)) return false;
    if (d->c && dt_comm_allreduce(d->c, &any, 1, DT_COMM_I32, DT_COMM_MAX)) {
        dt__ddp_comm_fail(d, "dt_ddp_more");
        return false;
    }
    return any != 0;
}
/* ---- a rank without data: its buckets hold zeros */
static int dt__skip_begin(dt_ddp *d)
{
    if ((d->m->amp && dt__amp_stash(d->m)) || dt__ddp_start_step(d, DT__DDP_SKIP)) return dt__err.code;
    for (int i = 0; i < d->nbuckets; i++) d->bucket[i].waiting = 1;
    for (int i = 0; i < d->m->nblocks; i++) dt_block_zero_grad(&d->m->block[i].b);
    return dt__err.code;
}
static int dt__skip_start(dt_ddp *d, int n) /* the first n buckets, unless they have started */
{
    for (int i = 0; i < n && i < d->nbuckets; i++) d->bucket[i].waiting = 0;
    return dt__buckets_start_ready(d);
}
/* Takes part in the gathers and batch norms of the others' forward and backward, which are those of this rank's last step;
   buckets start between them as they did there. What the program has used since that step is done already. */
static int dt__walk_repeat(dt_ddp *d)
{
    int at = 0, rc = 0;
    if (d->o.shard != 3 && (!d->walk_version || d->walk_version != d->m->version))
        return dt_fail(DT_ERR_STATE,
                       "dt_ddp_skip: on a GPU with %s a rank that skips repeats the collectives of its last step, but there was "
                       "none since parameters were sharded, frozen or unfrozen; give every rank data in the step after that",
                       d->norm ? ".sync_batchnorm" : "a hook of several stages and .shard");
    if (!d->walk_version || d->walk_version != d->m->version)
        return dt_fail(DT_ERR_STATE,
                       "dt_ddp_skip: with .shard = 3 a rank that skips repeats the gathers of its last step, but there was "
                       "none with a whole forward since parameters were sharded, frozen or unfrozen; give every rank data "
                       "in the first two steps from then on");
    while (at < d->nwalk && at < d->nwalked && d->walk[at] == d->walked[at]) at++;
    if (at < d->nwalk) at = d->nwalk = 0;
    d->walking = true;
    if (d->on_device) rc = dt__syncnorm_skip_memory(d, at);
    else rc = dt__syncnorm_skip(d);
    for (; at < d->nwalked && !rc && dt__err.code == DT_OK; at++) {
        int       what = d->walked[at] & ((1 << DT__WALK_BITS) - 1), index = d->walked[at] >> DT__WALK_BITS;
        dt__unit *u = what == DT__WALK_VALUE || what == DT__WALK_GRAD ? &d->unit[index] : NULL;
        if (what == DT__WALK_NORM) rc = dt__syncnorm_skip_next(d, index);
        else if (what == DT__WALK_VALUE) dt__value_touch(&u->lazy_value.lazy);
        else if (what == DT__WALK_GRAD) dt__grad_touch(&u->lazy_grad.lazy);
        else if (what == DT__WALK_START) rc = dt__skip_start(d, index + 1);
        else if (!(rc = dt__skip_begin(d))) {
            dt__walk_record(d, DT__WALK_BEGIN, 0);
            if (d->m->version != d->walk_version)
                rc = dt_fail(DT_ERR_STATE,
                             "dt_ddp_skip: parameters were frozen or unfrozen since this rank's last step, which .shard = 3 "
                             "repeats; give every rank data in the two steps after that");
            if (!rc) rc = dt__info_send(d);
        }
    }
    d->walking = false;
    return rc ? rc : dt__err.code;
}
DT_API dt_status dt_ddp_skip(dt_ddp *d)
{
    if (!dt__ddp_ok("dt_ddp_skip", d)) return dt_error_code();
    if (dt__ddp_alone(d) || d->o.slots || d->no_sync)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_ddp_skip: %s",
                                  d->no_sync   ? "called inside dt_ddp_no_sync; call dt_ddp_no_sync(d, false) first"
                                  : d->o.slots ? "called with .slots; every slot needs a backward"
                                               : "called in a world of one rank, where no other rank has data");
    if (!d->m->sealed)
        return (dt_status)dt_fail(DT_ERR_STATE,
                                  "dt_ddp_skip: the model has had no backward on this rank, expected one; the first step "
                                  "needs data on every rank");
    dt_amp *amp = d->m->amp;
    if (amp && amp->nlosses != 1)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_ddp_skip: mixed precision with %d losses, expected 1", amp->nlosses);
    if (d->o.shard == 3 || dt__walk_kept(d)) {
        if (dt__walk_repeat(d) && d->phase == DT__DDP_IDLE) {
            dt__ddp_send_error(d);
            dt__ddp_drain(d);
        }
    } else if (!dt__skip_begin(d) && !dt__syncnorm_skip(d) && !dt__info_send(d)) dt__skip_start(d, d->nbuckets);
    dt__ddp_end_step(d, dt_error_code());
    if (amp && dt__err.code == DT_OK && !dt__amp_take_back(d->m, &amp->scaler[0], NULL)) amp->scaler[0].used = 1;
    return dt_error_code();
}
DT_API double dt_ddp_mean(dt_ddp *d, double value, double weight)
{
    double x[2];
    x[0] = weight != 0 ? value * weight : 0;
    x[1] = weight;
    if (d) dt__ddp_send_error(d);
    if (!dt__ddp_ok("dt_ddp_mean", d)) return (double)NAN;
    if (d->c && dt_comm_allreduce(d->c, x, 2, DT_COMM_F64, DT_COMM_SUM)) {
        dt__ddp_comm_fail(d, "dt_ddp_mean");
        return (double)NAN;
    }
    return x[0] / x[1];
}
DT_API dt_status dt_ddp_broadcast(dt_ddp *d)
{
    if (!dt__ddp_ok("dt_ddp_broadcast", d)) return dt_error_code();
    if (d->unit)
        return (dt_status)dt_fail(
            DT_ERR_STATE,
            "dt_ddp_broadcast: the model is sharded; change parameters on all ranks in the same way, or save "
            "and load them");
    if (d->c) dt__ddp_sync_model(d);
    return dt_error_code();
}
DT_API size_t dt_ddp_unused(const dt_ddp *d, char *buf, size_t nbytes)
{
    size_t at = 0;
    if (buf && nbytes) buf[0] = 0;
    for (int i = 0; d && d->m && d->version == d->m->version && i < d->norder; i++) {
        if (d->reach[i]) continue;
        int n = snprintf(buf && at < nbytes ? buf + at : NULL, buf && at < nbytes ? nbytes - at : 0, "%s\n",
                         d->m->order[i]->name);
        if (n > 0) at += (size_t)n;
    }
    return at;
}
DT_API int dt_ddp_slots(const dt_ddp *d, int *first, int *n)
{
    if (first) *first = d ? dt__slots_first(d, d->rank) : 0;
    if (n) *n = d ? dt__slots_own(d, d->rank) : 0;
    return d ? d->o.slots : 0;
}
DT_API dt_ddp_stats dt_ddp_get_stats(const dt_ddp *d)
{
    dt_ddp_stats s;
    memset(&s, 0, sizeof s);
    if (!d) return s;
    s = d->stats;
    s.buckets = d->nbuckets;
    return s;
}
DT_API size_t dt_ddp_compress_report(const dt_ddp *d, char *buf, size_t nbytes)
{
    dt__text_out       t;
    const dt__squeeze *z = d ? d->squeeze : NULL;
    t.buf = buf;
    t.nbytes = buf ? nbytes : 0;
    t.len = 0;
    dt__emit(&t, "");
    for (int i = 0; z && d->m && i < d->nbuckets; i++) dt__squeeze_line(z, &d->bucket[i], &t);
    if (!z || z->kind != DT__SQ_AUTO) return t.len;
    if (z->phase != DT__AUTO_HOLD) dt__emitf(&t, "auto: measures, step %" PRId64 " of this phase\n", z->at + 1);
    else if (z->steps[0] > 0)
        dt__emitf(
            &t,
            "auto: whole steps take %.3f ms without compression, %.3f ms with it: it is %s (it must be %g %% faster)\n",
            1e3 * z->steps[0], 1e3 * z->steps[1], z->won ? "on" : "off", 50 * z->o.margin);
    else dt__emitf(&t, "auto: %s\n", z->won ? "on, as decided before the checkpoint" : "off, no bucket gains by it");
    dt__emitf(&t, "auto: the next measurement is in %" PRId64 " steps\n",
              z->phase == DT__AUTO_HOLD ? z->o.every - z->at : (int64_t)0);
    return t.len;
}
DT_API size_t dt_ddp_report(const dt_ddp *d, char *buf, size_t nbytes)
{
    dt_ddp_stats s = dt_ddp_get_stats(d), none;
    memset(&none, 0, sizeof none);
    const dt_ddp_stats *f = s.steps > 1 ? &d->first : &none; /* a period is from one step to the next: the first has none */
    double n = s.steps > f->steps ? (double)(s.steps - f->steps) : 1, period = s.period / n, t2 = (s.comm - f->comm) / n;
    double exposed = (s.exposed - f->exposed) / n, waited = (s.waited - f->waited) / n, t1 = period - exposed - waited;
    if (t1 < 0) t1 = 0;
    int k = snprintf(buf, nbytes,
                     "step %.3f ms: T1 %.3f ms compute, T2 %.3f ms communication of %.2f MiB in %d buckets, %.3f ms of it "
                     "exposed; %.3f ms waiting for slower ranks; bound max(T1, T2) %.3f ms, without overlap %.3f ms",
                     1e3 * period, 1e3 * t1, 1e3 * t2, (double)(s.bytes - f->bytes) / n / 1048576, s.buckets, 1e3 * exposed,
                     1e3 * waited, 1e3 * (t1 > t2 ? t1 : t2), 1e3 * (t1 + t2));
    return k > 0 ? (size_t)k : 0;
}

/* ==================================================================================================== >>feed
   Rank 0 has a loader for each rank. A frame is a message of a header, x and y. All frames have the same length, so a
   rank can post the receive of the next frame before it knows what it contains. Each rank has two frames (double
   buffering): the program uses the batch of one while the other is sent or received.

   Threads: the thread that called dt_feed_new runs everything; all ranks call in the same order. Transfers run on the
   communicator's thread, and a frame must not be touched until its dt_work has ended. There is no lock.

   States:
       DT__FEED_NEW        no frames yet; the program may set the cursor
       DT__FEED_RUNNING    after the first dt_feed_next
       DT__FEED_FAILED     after an error; every further dt_feed_next fails */
enum { DT__FEED_NEW = 0, DT__FEED_RUNNING, DT__FEED_FAILED };
enum { DT__FEED_BATCH = 1, DT__FEED_END, DT__FEED_ERROR }; /* kinds of frames: a batch, end of an epoch, error text */
typedef struct dt__feed_head {
    int64_t   kind, n, epoch, index, next_epoch;
    int64_t   x_dtype, x_ndim, y_dtype, y_ndim; /* y_ndim is -1 if there is no y */
    int64_t   x_shape[DT_MAX_DIMS], y_shape[DT_MAX_DIMS];
    dt_cursor cursor;
    char      text[512];
} dt__feed_head;
struct dt_feed {
    dt_comm       *c;                   /* a duplicate of the program's; NULL in a world of one */
    int            rank, world, frames; /* frames: 2 * world on rank 0, otherwise 2 */
    dt_loader_opts o;
    dt_loader    **in;                  /* rank 0: a loader for each rank */
    dt_cursor      cursor;
    dt_tensor     *cursor_tensor;       /* for dt_feed_state, or NULL */
    int64_t        batches, epoch;
    size_t         length, x_nbytes;    /* bytes of a frame; bytes reserved for x in it */
    char         **frame;               /* [0 or 1][rank] on rank 0, [0 or 1] elsewhere */
    dt_work      **work;                /* transfer of each frame, or NULL */
    int            state;
    int            current;             /* 0 or 1: the frames of the next dt_feed_next */
};
enum { DT__FEED_HEAD = (int)((sizeof(dt__feed_head) + 63) & ~(size_t)63) }; /* offset of x in a frame */
static char *dt__feed_x(const char *frame) { return (char *)(uintptr_t)frame + DT__FEED_HEAD; }
static int dt__feed_fail(dt_feed *f, const char *call)
{
    const char *why = f->c ? dt_comm_error(f->c) : NULL;
    f->state = DT__FEED_FAILED;
    return dt_fail(DT_ERR_COMM, "%s: %s", call, why ? why : "the communicator failed");
}
static size_t dt__feed_bytes(int64_t dtype, int64_t ndim, const int64_t *shape) /* SIZE_MAX if they are invalid */
{
    size_t n = 1;
    if (ndim < 0 || ndim > DT_MAX_DIMS || dtype < 0 || dtype >= DT_DTYPE_COUNT) return SIZE_MAX;
    n = dt__dtype_size[dtype];
    for (int64_t i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, (size_t)shape[i], &n)) return SIZE_MAX;
    return n;
}
/* Rank 0: packs the next batch of rank r, or the loader's error, into its frame. */
static void dt__feed_pack(dt_feed *f, int r, char *frame)
{
    dt__feed_head *h = (dt__feed_head *)(void *)frame;
    dt_batch       b;
    memset(h, 0, sizeof *h);
    bool more = dt_loader_next(f->in[r], &b);
    h->kind = more ? DT__FEED_BATCH : DT__FEED_END;
    h->next_epoch = dt_loader_epoch(f->in[r]);
    h->cursor = *dt_loader_cursor(f->in[r]);
    if (more) {
        h->n = b.n;
        h->epoch = b.epoch;
        h->index = b.index;
        h->x_dtype = b.x->dtype;
        h->x_ndim = b.x->ndim;
        memcpy(h->x_shape, b.x->shape, sizeof h->x_shape);
        h->y_ndim = b.y ? b.y->ndim : -1;
        if (b.y) {
            h->y_dtype = b.y->dtype;
            memcpy(h->y_shape, b.y->shape, sizeof h->y_shape);
        }
        size_t xn = dt_nbytes(b.x), yn = b.y ? dt_nbytes(b.y) : 0,
               room = f->length - (size_t)(dt__feed_x(frame) - frame);
        if (xn > f->x_nbytes || yn > room - f->x_nbytes)
            dt_fail(DT_ERR_SHAPE, "dt_feed_next: a batch of %zu bytes, expected at most the %zu of a frame", xn + yn,
                    room);
        else if (!dt_copy_out(b.x, dt__feed_x(frame), xn) && b.y) dt_copy_out(b.y, dt__feed_x(frame) + f->x_nbytes, yn);
        dt_free(b.x);
        if (b.y) dt_free(b.y);
    }
    if (dt__err.code == DT_OK) return;
    h->kind = DT__FEED_ERROR;
    snprintf(h->text, sizeof h->text, "%.500s", dt_error());
    dt_error_clear();
}
/* Starts the transfer of frames 'which' (0 or 1) of all ranks. If a loader fails, its error goes to all ranks. */
static int dt__feed_exchange(dt_feed *f, int which)
{
    static const dt_msg_opts plain = DT__NO_OPTIONS;
    int n = f->rank ? 1 : f->world, first = which * n, rc = 0;
    for (int i = first; i < first + n; i++) {
        if (f->work[i] && dt_work_wait(f->work[i])) rc = 1;
        f->work[i] = NULL;
    }
    for (int r = 0; r < n && f->rank == 0 && !rc; r++) dt__feed_pack(f, r, f->frame[first + r]);
    for (int r = 0; r < n && f->rank == 0 && !rc; r++) {
        const dt__feed_head *h = (const dt__feed_head *)(const void *)f->frame[first + r];
        if (h->kind != DT__FEED_ERROR) continue;
        for (int k = 0; k < n; k++)
            if (k != r) memcpy(f->frame[first + k], h, sizeof *h);
        break;
    }
    for (int i = first + (f->rank == 0); i < first + n && !rc; i++) {
        f->work[i] = f->rank ? dt_comm_recv_start_with(f->c, f->frame[i], (int64_t)f->length, DT_COMM_U8, 0, plain)
                             : dt_comm_send_start_with(f->c, f->frame[i], (int64_t)f->length, DT_COMM_U8, i - first, plain);
        if (!f->work[i]) rc = 1;
    }
    return rc ? dt__feed_fail(f, "dt_feed_next") : 0;
}
static int dt__feed_start(dt_feed *f)
{
    int64_t room[2] = { 0, 0 };
    f->state = DT__FEED_RUNNING;
    if (f->rank == 0) { /* the shape of an item determines the length of a frame */
        for (int r = 0; r < f->world; r++) *dt_loader_cursor(f->in[r]) = f->cursor;
        dt_item_info k = dt_dataset_item_info(dt_loader_dataset(f->in[0]));
        size_t       each =
            dt__feed_bytes(k.x_dtype == DT_U8 && !f->o.raw ? DT_F32 : k.x_dtype, k.x_shape.ndim, k.x_shape.dim);
        size_t y = dt__feed_bytes(DT_I64, k.y_shape.ndim, k.y_shape.dim);
        size_t n = (size_t)(f->o.batch > 0 ? f->o.batch : 1);
        size_t xn, yn;
        if (each == SIZE_MAX || y == SIZE_MAX || __builtin_mul_overflow(each, n, &xn) ||
            __builtin_mul_overflow(y, n, &yn) || xn > (size_t)1 << 40 || yn > (size_t)1 << 40)
            xn = yn = 0;
        room[0] = (int64_t)((xn + 63) & ~(size_t)63);
        room[1] = (int64_t)yn;
    }
    if (f->c && dt_comm_broadcast(f->c, room, 2, DT_COMM_I64, 0)) return dt__feed_fail(f, "dt_feed_next");
    for (int i = 0; i < 2; i++)
        if (room[i] < 0 || room[i] > (INT64_C(1) << 40) + 64) {
            int rc = dt_fail(DT_ERR_COMM, "dt_feed_next: rank 0 announced frames of %" PRId64 " bytes; do all ranks run the same "
                             "version?", room[i]);
            dt_comm_abort(f->c, dt_error());
            f->state = DT__FEED_FAILED;
            return rc;
        }
    f->x_nbytes = (size_t)room[0];
    f->length = (size_t)DT__FEED_HEAD + f->x_nbytes + (size_t)room[1];
    for (int i = 0; i < f->frames; i++) {
        f->frame[i] = (char *)dt_comm_alloc(f->c, f->length);
        if (!f->frame[i]) {
            int rc = dt_fail(DT_ERR_MEMORY, "dt_feed_next: out of memory for a frame of %zu bytes", f->length);
            dt_comm_abort(f->c, dt_error());
            f->state = DT__FEED_FAILED;
            return rc;
        }
    }
    return dt__feed_exchange(f, 0);
}
static bool dt__feed_unpack(dt_feed *f, const char *frame, dt_batch *b)
{
    dt__feed_head h;
    memcpy(&h, frame, sizeof h);
    h.text[sizeof h.text - 1] = 0;
    if (h.kind == DT__FEED_END) {
        f->epoch = h.next_epoch;
        f->cursor = h.cursor;
        return false;
    }
    size_t xn = dt__feed_bytes(h.x_dtype, h.x_ndim, h.x_shape);
    size_t yn = h.y_ndim < 0 ? 0 : dt__feed_bytes(h.y_dtype, h.y_ndim, h.y_shape);
    size_t room = f->length - (size_t)(dt__feed_x(frame) - frame) - f->x_nbytes;
    if (h.kind != DT__FEED_BATCH || xn > f->x_nbytes || yn > room || h.x_ndim < 1 || h.n < 0 || h.n > h.x_shape[0]) {
        f->state = DT__FEED_FAILED;
        dt_fail(DT_ERR_FILE, "dt_feed_next: rank 0: %s",
                h.kind == DT__FEED_ERROR ? h.text : "it sent an invalid frame; do all ranks run the same version?");
        return false;
    }
    f->epoch = h.next_epoch;
    f->cursor = h.cursor;
    dt_shape     s;
    dt_make_opts o;
    DT__CLEAR(o);
    for (int k = 0; k < (h.y_ndim < 0 ? 1 : 2); k++) {
        memset(&s, 0, sizeof s);
        s.ndim = (int)(k ? h.y_ndim : h.x_ndim);
        memcpy(s.dim, k ? h.y_shape : h.x_shape, (size_t)s.ndim * sizeof *s.dim);
        o.dtype = (dt_dtype)(k ? h.y_dtype : h.x_dtype);
        dt_tensor *t = dt_from_with(dt__feed_x(frame) + (k ? f->x_nbytes : 0), s, o);
        if (k) b->y = t;
        else b->x = t;
    }
    b->n = h.n;
    b->epoch = h.epoch;
    b->index = h.index;
    return dt__err.code == DT_OK;
}
DT_API bool dt_feed_next(dt_feed *f, dt_batch *b)
{
    if (b) memset(b, 0, sizeof *b);
    if (dt__err.code != DT_OK) return false;
    if (!f || !b) dt_fail(DT_ERR_ARG, "dt_feed_next: the %s is NULL", f ? "batch" : "feed");
    else if (f->state == DT__FEED_FAILED)
        dt_fail(DT_ERR_STATE, "dt_feed_next: the feed has failed before; free it and call dt_feed_new");
    if (dt__err.code != DT_OK || (f->state == DT__FEED_NEW && dt__feed_start(f))) return false;
    int at = f->rank ? f->current : f->current * f->world;
    if (f->work[at]) {
        int rc = dt_work_wait(f->work[at]);
        f->work[at] = NULL;
        if (rc) {
            dt__feed_fail(f, "dt_feed_next");
            return false;
        }
    }
    int64_t kind = ((const dt__feed_head *)(const void *)f->frame[at])->kind;
    if (kind == DT__FEED_BATCH || kind == DT__FEED_END) {
        if (dt__feed_exchange(f, 1 - f->current)) return false;
    }
    f->current = 1 - f->current;
    return dt__feed_unpack(f, f->frame[at], b);
}
DT_API dt_feed *dt_feed_new_with(dt_dataset *set, dt_comm *c, dt_loader_opts o)
{
    const char *call = "dt_feed_new";
    dt_feed    *f = dt__err.code == DT_OK ? (dt_feed *)dt__alloc_zero(sizeof *f) : NULL;
    char        text[512];
    if (!f) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    f->rank = dt_comm_rank(c);
    f->world = dt_comm_size(c);
    f->o = o;
    f->frames = f->rank ? 2 : 2 * f->world;
    f->frame = (char **)dt__alloc_zero((size_t)f->frames * sizeof *f->frame);
    f->work = (dt_work **)dt__alloc_zero((size_t)f->frames * sizeof *f->work);
    f->in = (dt_loader **)dt__alloc_zero((size_t)f->world * sizeof *f->in);
    if (!f->frame || !f->work || !f->in) dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
    if (f->world > 1 && dt_comm_dup(c, &f->c)) dt_fail(DT_ERR_COMM, "%s: %s", call, dt_comm_error(c));
    if (f->rank == 0 && (o.no_pad || o.contiguous || o.world > 1))
        dt_fail(DT_ERR_ARG, "%s: .no_pad, .contiguous or .world is set; a feed gives every rank the same number of "
                "batches, leave them out", call);
    for (int r = 0; r < f->world && f->rank == 0 && dt__err.code == DT_OK; r++) {
        o.rank = r;
        o.world = f->world;
        f->in[r] = dt_loader_new_with(set, o);
    }
    if (f->in[0]) {
        f->batches = dt_loader_batches(f->in[0]);
        f->cursor = *dt_loader_cursor(f->in[0]);
    }
    memset(text, 0, sizeof text);
    if (f->rank == 0 && dt__err.code != DT_OK) snprintf(text, sizeof text, "%.500s", dt_error());
    if (f->c && (dt_comm_broadcast(f->c, text, (int64_t)sizeof text, DT_COMM_U8, 0) ||
                 dt_comm_broadcast(f->c, &f->batches, 1, DT_COMM_I64, 0) ||
                 dt_comm_broadcast(f->c, &f->cursor, (int64_t)sizeof f->cursor, DT_COMM_U8, 0)))
        dt__feed_fail(f, call);
    text[sizeof text - 1] = 0;
    if (f->rank && text[0]) dt_fail(DT_ERR_FILE, "%s: rank 0: %s", call, text);
    f->epoch = f->cursor.epoch;
    if (dt__err.code == DT_OK) return f;
    dt_feed_free(f);
    return NULL;
}
DT_API void dt_feed_free(dt_feed *f)
{
    if (!f) return;
    /* an error that made the feed fail is known to all ranks already */
    if (f->c && dt__err.code != DT_OK && f->state != DT__FEED_FAILED) dt_comm_abort(f->c, dt_error());
    for (int i = 0; i < f->frames; i++) {
        if (f->work && f->work[i]) dt_work_wait(f->work[i]);
        if (f->frame) dt_comm_dealloc(f->c, f->frame[i]);
    }
    for (int r = 0; f->in && r < f->world; r++) dt_loader_free(f->in[r]);
    if (f->cursor_tensor) dt_free(f->cursor_tensor);
    dt_mem_free(f->frame, (size_t)f->frames * sizeof *f->frame);
    dt_mem_free(f->work, (size_t)f->frames * sizeof *f->work);
    dt_mem_free(f->in, (size_t)f->world * sizeof *f->in);
    dt_comm_free(f->c);
    dt_mem_free(f, sizeof *f);
}
DT_API int64_t dt_feed_epoch(const dt_feed *f)
{
    return !f || dt__err.code != DT_OK ? INT64_MAX : f->state == DT__FEED_NEW ? f->cursor.epoch : f->epoch;
}
DT_API int64_t    dt_feed_batches(const dt_feed *f) { return f ? f->batches : 0; }
DT_API dt_cursor *dt_feed_cursor(dt_feed *f) { return f ? &f->cursor : NULL; }
DT_API dt_tensor *dt_feed_state(dt_feed *f)
{
    if (!f || f->cursor_tensor) return f ? f->cursor_tensor : NULL;
    dt_from_blob_opts o;
    DT__CLEAR(o);
    o.dtype = DT_I64;
    f->cursor_tensor = dt_from_blob_with(&f->cursor, dt__shape1((int64_t)(sizeof f->cursor / sizeof(int64_t))), o);
    if (f->cursor_tensor) dt_keep(f->cursor_tensor);
    return f->cursor_tensor;
}

/* ==================================================================================================== >>replicas
   A replica is a model whose parameters are other tensors on the same memory, so its tape gives it its own gradients.
   These are laid out as the model's blocks and are added to them block by block, in the order of devices. On devices
   other than the CPU a replica has its own memory, with the same blocks: the backend's group calls broadcast the values
   and sum the gradients in the compute streams, so the host need not wait.

   Threads. The caller runs every dt_parallel_ function and computes the first part itself. One thread for each further
   device runs dt__part_thread until dt_parallel_free.

   Lock. dt_parallel.lock protects generation, left and quit. To start a call, the caller writes the fields of the call
   and of the parts, then increments generation and signals 'go'; until left is 0 again (condition 'done') these fields
   belong to the threads, each of which accesses its own part only.

   States of a thread:
       waiting      for a generation it has not seen, or quit
       running      dt__part_run, without the lock
       done         it has decremented left, and waits again */
#define DT__MAX_DEVICES 256
#define DT__PARALLEL_NEEDS \
    "dt_parallel copies the whole model to each device: leave out the device scopes (dt_device_begin) or dt_parallel"

typedef struct dt__part { /* a device: its thread, its replica and its part of the current batch */
    dt_parallel *p;
    pthread_t    thread;
    dt_device   *dev;
    void        *stream; /* the caller's stream on dev; the thread uses it too */
    dt_model    *m;      /* the replica; NULL for the first device, which uses the model itself */
    dt_tensor  **value;  /* for each block of the model: the replica's values; NULL: they are the model's memory */
    dt_tensor  **grad;   /* for each block of the model: the replica's gradients */
    dt_tensor  **order;  /* for each entry of m->order: the replica's parameter */
    int          nblocks, norder;
    int          reached; /* the backward reached a parameter of the block that is being reduced */
    dt_tensor   *x, *y;
    dt_tensor   *share; /* on dev: weight * loss of this part */
    double       weight, loss;
    uint64_t     seed[2];
    dt_status    code;
    char         message[1024];
    const char  *bad_loss;
    double       bad_loss_value;
} dt__part;
struct dt_parallel {
    dt_model       *m;
    dt__part       *part;
    int             devices, threads;
    int             own_memory; /* replicas have their own memory */
    void           *group;      /* of the backend; NULL: the backend has no group calls, or there is one device */
    dt_tensor     **item;       /* item[k * devices + i]: the k-th tensor that the devices exchange, on device i */
    dt_view        *view;       /* views of these */
    size_t          item_cap;   /* allocated length of item and view */
    int             version;    /* of the model when the replicas were made; -1: never */
    long            pid;
    int             busy;       /* inside dt_parallel_backward */
    pthread_mutex_t lock;
    pthread_cond_t  go, done;
    uint64_t        generation; /* number of calls that gave the threads work */
    int             left;       /* threads that have not finished this call */
    int             quit;
    /* of the current call */
    int            parts;
    dt_parallel_fn fn;
    void          *user;
    dt_autocast    autocast;
    dt_device     *device;
    double         scale;
    int            want_loss;
};

static void dt__replica_free(dt__part *d)
{
    dt_model_free(d->m);
    for (int i = 0; i < d->nblocks; i++) {
        dt__unref(d->value[i]);
        dt__unref(d->grad[i]);
    }
    dt_mem_free(d->value, (size_t)d->nblocks * sizeof *d->value);
    dt_mem_free(d->grad, (size_t)d->nblocks * sizeof *d->grad);
    dt_mem_free(d->order, (size_t)d->norder * sizeof *d->order);
    d->m = NULL;
    d->value = d->grad = d->order = NULL;
    d->nblocks = d->norder = 0;
}
static dt_tensor *dt__replica_value(dt__part *d, const dt__param *p)
{
    if (!d->p->own_memory) return p->buffer ? dt__new_like("dt_parallel", p->t, p->t->dtype) : dt__alias(p->t);
    if (p->block >= 0) return dt__block_view(d->value[p->block], p->t, p->offset);
    return dt__new("dt_parallel", d->dev, p->t->dtype, p->t->shape, p->t->ndim, DT_LAYOUT_PLAIN);
}
static int dt__replica_param(dt__part *d, const dt__param *p)
{
    dt_model   *r = d->m;
    dt__param **list = (dt__param **)dt__enlarge(r->param, r->nparams, &r->param_cap, sizeof *list);
    if (list) r->param = list;
    dt__param *q = list ? (dt__param *)dt__alloc_zero(sizeof *q) : NULL;
    if (!q) return DT_ERR_MEMORY;
    q->name = dt__joined("", 0, p->name, NULL);
    q->hash = p->hash;
    q->t = dt__replica_value(d, p);
    q->buffer = p->buffer;
    q->frozen = p->frozen;
    q->keep_f32 = p->keep_f32;
    q->block = q->opt = q->group = -1;
    r->param[r->nparams++] = q; /* from here on the replica owns q */
    if (!q->name || !q->t) return DT_ERR_MEMORY;
    q->t->leaf = p->t->leaf;
    q->t->requires_grad = p->t->requires_grad;
    return dt__table_add(&r->param_table, &r->param_slots, q->name, q->hash, r->nparams - 1);
}
static int dt__replica_layer(dt_model *r, const dt_model *m, const dt__layer *l)
{
    dt__layer *k = dt__layer_new(r, l->kind, l->name, dt__name_hash("", 0, l->name));
    if (!k || dt__layer_room(k, l->np)) return DT_ERR_MEMORY;
    k->own = l->own;
    for (int i = 0; i < l->np; i++)
        if (l->p[i]) k->p[i] = r->param[dt__param_index(m, l->p[i])];
    return 0;
}
static int dt__replica_blocks(dt__part *d, const dt_model *m)
{
    size_t n = (size_t)m->nblocks;
    int    norder = 0;
    for (int i = 0; i < m->nblocks; i++) norder += m->block[i].n;
    d->value = (dt_tensor **)dt__alloc_zero(n * sizeof *d->value);
    d->grad = (dt_tensor **)dt__alloc_zero(n * sizeof *d->grad);
    d->order = (dt_tensor **)dt__alloc_zero((size_t)norder * sizeof *d->order);
    if (!d->value || !d->grad || !d->order) {
        dt_mem_free(d->value, n * sizeof *d->value);
        dt_mem_free(d->grad, n * sizeof *d->grad);
        dt_mem_free(d->order, (size_t)norder * sizeof *d->order);
        d->value = d->grad = d->order = NULL;
        return DT_ERR_MEMORY;
    }
    d->nblocks = m->nblocks;
    d->norder = norder;
    for (int i = 0; i < m->nblocks; i++) {
        const dt_tensor *v = m->block[i].b.value, *g = m->block[i].b.grad;
        d->grad[i] = dt__new("dt_parallel", d->dev, g->dtype, g->shape, 1, DT_LAYOUT_PLAIN);
        if (d->p->own_memory) d->value[i] = dt__new("dt_parallel", d->dev, v->dtype, v->shape, 1, DT_LAYOUT_PLAIN);
        if (!d->grad[i] || (d->p->own_memory && !d->value[i])) return DT_ERR_MEMORY;
        if (dt__fill(d->grad[i], 0)) return DT_ERR_MEMORY; /* gaps between parameters must stay 0 */
    }
    return 0;
}
static int dt__replica_grads(dt__part *d, const dt_model *m)
{
    for (int k = 0; k < d->norder; k++) {
        const dt__param *p = m->order[k];
        dt_tensor       *t = d->m->param[dt__param_index(m, p)]->t;
        t->grad = dt__block_view(d->grad[p->block], t, p->offset);
        if (!t->grad) return DT_ERR_MEMORY;
        t->grad_state = DT__GRAD_EMPTY;
        d->order[k] = t;
    }
    return 0;
}
static int dt__replica_make(dt__part *d, const dt_model *m)
{
    dt_model_opts o;
    DT__CLEAR(o);
    o.dtype = m->dtype;
    o.device = d->dev;
    dt__replica_free(d);
    dt_model *r = d->m = dt_model_new_with(o);
    int       rc = r ? dt__replica_blocks(d, m) : DT_ERR_MEMORY;
    if (r) r->timed = DT__TIMED_NEVER; /* its layers run on a thread of its own, its optimiser is that of m */
    if (!rc) r->norms_f32 = m->norms_f32;
    for (int i = 0; i < m->nparams && !rc; i++) rc = dt__replica_param(d, m->param[i]);
    for (int i = 0; i < m->nlayers && !rc; i++) rc = dt__replica_layer(r, m, m->layer[i]);
    if (!rc) r->sealed = 1;
    if (!rc) rc = dt__replica_grads(d, m);
    return rc ? dt_fail(DT_ERR_MEMORY, "dt_parallel: out of memory for a replica") : 0;
}

/* ---- exchanges between devices that have their own memory */
static void dt__exchange_free(dt_parallel *p)
{
    dt_mem_free(p->item, p->item_cap * sizeof *p->item);
    dt_mem_free(p->view, p->item_cap * sizeof *p->view);
    p->item = NULL;
    p->view = NULL;
    p->item_cap = 0;
}
static int dt__exchange_alloc(dt_parallel *p)
{
    size_t room = ((size_t)p->m->nblocks + (size_t)p->m->nparams + 1) * (size_t)p->devices;
    if (room <= p->item_cap) return 0;
    dt__exchange_free(p);
    p->item = (dt_tensor **)dt__alloc_zero(room * sizeof *p->item);
    p->view = p->item ? (dt_view *)dt__alloc_zero(room * sizeof *p->view) : NULL;
    if (p->view) p->item_cap = room;
    else dt_mem_free(p->item, room * sizeof *p->item);
    if (!p->view) p->item = NULL;
    return p->view ? 0 : dt_fail(DT_ERR_MEMORY, "dt_parallel: out of memory for a list of blocks");
}
/* For the first n items: adds the other devices' tensors to the first device's (sum), or copies the first device's to the
   others. */
static int dt__exchange_run(dt_parallel *p, int n, int sum)
{
    const dt_backend *be = p->part[0].dev->be;
    void             *stream[DT__MAX_DEVICES];
    int               rc = 0;
    for (int i = 0; i < p->devices; i++) stream[i] = p->part[i].stream;
    for (int k = 0; k < n * p->devices && p->group; k++) {
        dt_view *v = &p->view[k];
        dt__view_of(v, p->item[k]);
        v->layout = DT_LAYOUT_PLAIN;
        v->ndim = 1;
        v->shape[0] = p->item[k]->numel;
        v->stride[0] = 1;
    }
    if (p->group) {
        if (n) rc = (sum ? be->group_sum : be->group_broadcast)(p->group, stream, p->view, n);
        return rc ? dt_fail((dt_status)rc, "dt_parallel: a %s of %d devices failed with status %d",
                            sum ? "sum" : "broadcast", p->devices, rc)
                  : 0;
    }
    for (int k = 0; k < n * p->devices && !rc; k++) { /* through the host */
        dt_tensor *root = p->item[k - k % p->devices], *to = sum ? root : p->item[k];
        if (p->item[k] == root) continue;
        dt_tensor *here = dt__cross("dt_parallel", sum ? p->item[k] : root, to->st->dev);
        rc = here ? dt__copy_to(to, here, sum) : DT_ERR_MEMORY;
        dt__unref(here);
    }
    return rc;
}
/* Broadcasts the model's blocks, and its parameters and buffers outside blocks, to the replicas. */
static int dt__replicas_broadcast(dt_parallel *p)
{
    dt_model *m = p->m;
    int       n = 0;
    for (int i = 0; i < m->nblocks; i++, n++)
        for (int r = 0; r < p->devices; r++)
            p->item[n * p->devices + r] = r ? p->part[r].value[i] : m->block[i].b.value;
    for (int i = 0; i < m->nparams; i++) {
        if (m->param[i]->block >= 0) continue;
        for (int r = 0; r < p->devices; r++)
            p->item[n * p->devices + r] = r ? p->part[r].m->param[i]->t : m->param[i]->t;
        n++;
    }
    return dt__exchange_run(p, n, 0);
}
/* Makes the replicas anew if the model has changed, and prepares them: no gradients, the model's buffers, new seeds. */
static int dt__replicas_prepare(dt_parallel *p)
{
    dt_model *m = p->m;
    uint32_t  r[4];
    uint64_t  draw;
    int       rc = p->version == m->version ? 0 : dt__model_one_device("dt_parallel_backward", m, DT__PARALLEL_NEEDS);
    for (int i = 1; i < p->devices && !rc && p->version != m->version; i++) rc = dt__replica_make(&p->part[i], m);
    if (!rc && p->own_memory && p->version != m->version) rc = dt__exchange_alloc(p);
    p->version = rc ? -1 : m->version;
    draw = rc ? 0 : dt_rng_u64(&m->rng);
    for (int i = 1; i < p->devices && !rc; i++) {
        dt__part *d = &p->part[i];
        dt_model *c = d->m;
        c->training = m->training;
        c->amp = m->amp;
        c->scope_len = c->scope_depth = c->nplaces = 0;
        c->scope[0] = 0;
        for (int k = 0; k < d->norder; k++) d->order[k]->grad_state = DT__GRAD_EMPTY;
        for (int k = 0; k < m->nparams && !rc && !p->own_memory && i < p->parts; k++)
            if (m->param[k]->buffer) rc = dt__copy_to(c->param[k]->t, m->param[k]->t, 0);
        dt_philox(draw, (uint64_t)i, r);
        d->seed[0] = (uint64_t)r[0] << 32 | r[1];
        d->seed[1] = (uint64_t)r[2] << 32 | r[3];
    }
    return rc || !p->own_memory ? rc : dt__replicas_broadcast(p);
}
/* The tensor to which a device writes its share of the loss; NULL after dt_fail. */
static dt_tensor *dt__part_share(dt__part *d)
{
    int64_t one = 1;
    if (!d->share) d->share = dt__new("dt_parallel_backward", d->dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN);
    return d->share;
}
static void dt__part_loss(dt__part *d, dt_tensor *loss) /* f32, one element */
{
    dt_call c;
    if (!d->p->own_memory) d->loss = dt_item(loss);
    if (!d->p->own_memory || !d->p->want_loss || !loss || !dt__part_share(d)) return;
    dt__call_begin(&c, DT_K_unary);
    c.u.ew.fn = DT_U_AFFINE;
    c.u.ew.a = d->weight;
    dt__out(&c, d->share);
    dt_view *x = dt__in(&c, loss);
    x->layout = DT_LAYOUT_PLAIN;
    x->ndim = 1;
    x->shape[0] = x->stride[0] = 1;
    dt__go(d->dev, &c);
}

static void dt__part_run(dt__part *d, dt_model *m)
{
    dt_parallel *p = d->p;
    dt_tensor   *loss = p->fn(m, d->x, d->y, p->user);
    d->loss = 0;
    if (dt__err.code == DT_OK && !loss) dt_fail(DT_ERR_ARG, "dt_parallel_backward: fn returned NULL, expected a loss");
    if (dt__err.code == DT_OK && dt__ok("dt_parallel_backward", "the result of fn", loss) && loss->numel != 1)
        dt_fail(DT_ERR_GRAD, "dt_parallel_backward: fn returned %s; the loss of a part is its mean, one element",
                dt__text(loss));
    if (dt__err.code == DT_OK && p->own_memory && loss->st->dev != d->dev)
        dt_fail(DT_ERR_DEVICE, "dt_parallel_backward: fn returned a loss on %s; this part is computed on %s",
                loss->st->dev->name, d->dev->name);
    if (dt__err.code == DT_OK) {
        dt_make_opts     mo;
        dt_backward_opts bo;
        DT__CLEAR(mo);
        DT__CLEAR(bo);
        mo.device = loss->st->dev;
        loss = dt_cast(loss, DT_F32);
        dt__part_loss(d, loss);
        bo.grad = loss ? dt_full_with(d->weight * p->scale, dt_shape_of(loss), mo) : NULL;
        if (bo.grad) dt_backward_with(loss, bo);
    }
    d->code = dt__err.code;
    if (d->code != DT_OK) memcpy(d->message, dt__err.message, sizeof d->message);
    d->bad_loss = dt__err.bad_loss;
    d->bad_loss_value = dt__err.bad_loss_value;
}
static void *dt__part_thread(void *arg)
{
    dt__part    *d = (dt__part *)arg;
    dt_parallel *p = d->p;
    uint64_t     seen = 0;
    dt__pool_alone(1); /* kernels called by this thread do not use the thread pool */
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->generation == seen && !p->quit) pthread_cond_wait(&p->go, &p->lock);
        if (p->quit) break;
        seen = p->generation;
        if (d - p->part >= p->parts) continue;
        pthread_mutex_unlock(&p->lock);
        dt__tls.autocast = p->autocast;
        dt__tls.device = p->own_memory ? d->dev : p->device;
        if (p->own_memory) dt_device_set_stream(d->dev, d->stream);
        dt__tls.no_grad = 0;
        dt_rng_seed(&d->m->rng, d->seed[0]);
        dt_manual_seed(d->seed[1]);
        dt__part_run(d, d->m);
        dt_error_clear();
        dt_end();
        pthread_mutex_lock(&p->lock);
        if (--p->left == 0) pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}
static int dt__parts_start(dt_parallel *p)
{
    if (p->parts < 2) return 0;
    if (dt__replicas_prepare(p)) return dt__err.code;
    pthread_mutex_lock(&p->lock);
    p->left = p->parts - 1;
    p->generation++;
    pthread_cond_broadcast(&p->go);
    pthread_mutex_unlock(&p->lock);
    return 0;
}
static void dt__parts_wait(dt_parallel *p)
{
    pthread_mutex_lock(&p->lock);
    while (p->left) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
/* x on the part's device: x itself if it is there, otherwise a copy. Takes ownership of x; NULL after dt_fail. */
static dt_tensor *dt__part_fetch(dt__part *d, dt_tensor *x)
{
    if (!x || x->st->dev == d->dev) return x;
    dt_tensor *y = dt__cross("dt_parallel_backward", x, d->dev);
    dt__unref(x);
    return y;
}
/* Splits the batch as torch.chunk does: parts of ceil(n / devices). */
static int dt__parts_cut(dt_parallel *p, dt_tensor *x, dt_tensor *y)
{
    int64_t n = x->shape[0], each = (n + p->devices - 1) / p->devices, at = 0;
    if (dt__make_plain(x) || (y && dt__make_plain(y))) return dt__err.code;
    p->parts = 0;
    do {
        dt__part *d = &p->part[p->parts++];
        int64_t   len = n - at < each ? n - at : each;
        d->x = dt__slice(x, 0, at, len);
        d->y = y ? dt__slice(y, 0, at, len) : NULL;
        d->weight = n ? (double)len / (double)n : 1;
        d->code = DT_OK;
        d->bad_loss = NULL;
        if (p->own_memory) d->x = dt__part_fetch(d, d->x);
        if (p->own_memory) d->y = dt__part_fetch(d, d->y);
        if (!d->x || (y && !d->y)) return DT_ERR_MEMORY;
        at += len;
    } while (at < n);
    return 0;
}
/* Prepares the sum of a block: unreached gradients of the replica and of the model become zero if any is reached. */
static int dt__replica_complete(dt__part *d, const dt_model *m, const dt__mblock *b)
{
    dt_tensor **t = d->order + b->first;
    int         rc = 0;
    d->reached = 0;
    for (int k = 0; k < b->n; k++) d->reached |= t[k]->grad_state != DT__GRAD_EMPTY;
    for (int k = 0; k < b->n && d->reached && !rc; k++) {
        dt_tensor *to = m->order[b->first + k]->t;
        rc = dt__ddp_zero_unreached(to);
        if (t[k]->grad_state == DT__GRAD_EMPTY) rc = rc || dt__fill(t[k]->grad, 0);
        else to->grad_state = DT__GRAD_SET;
    }
    return rc;
}
/* Adds the replicas' gradients to the model's. With own_memory, all devices take part in the group call for each block
   that any device has reached, including devices without a part of this batch: a group call needs all its devices. */
static int dt__parts_reduce(dt_parallel *p)
{
    dt_model *m = p->m;
    int       n = 0, rc = 0, last = p->own_memory ? p->devices : p->parts;
    if (p->parts < 2) return 0;
    for (int i = 0; i < m->nblocks && !rc; i++) {
        const dt__mblock *b = &m->block[i];
        int               any = 0;
        for (int r = 1; r < last && !rc; r++) {
            rc = dt__replica_complete(&p->part[r], m, b);
            any |= p->part[r].reached;
            if (!rc && p->part[r].reached && !p->own_memory) rc = dt__copy_to(b->b.grad, p->part[r].grad[i], 1);
        }
        if (!any || !p->own_memory) continue;
        for (int r = 0; r < last && !rc; r++) {
            p->item[n * last + r] = r ? p->part[r].grad[i] : b->b.grad;
            if (r && !p->part[r].reached) rc = dt__fill(p->part[r].grad[i], 0);
        }
        n++;
    }
    if (!p->own_memory || rc) return rc;
    for (int r = 0; r < last && !rc && p->want_loss; r++) {
        p->item[n * last + r] = dt__part_share(&p->part[r]);
        rc = !p->part[r].share ? DT_ERR_MEMORY : r < p->parts ? 0 : dt__fill(p->part[r].share, 0);
    }
    return rc ? rc : dt__exchange_run(p, n + p->want_loss, 1);
}
/* Takes the error of the first device that failed, or the first loss that is not finite, as the caller's; computes the
   loss of the whole batch. */
static int dt__parts_errors(dt_parallel *p, double *loss)
{
    *loss = 0;
    for (int i = 0; i < p->parts; i++) {
        const dt__part *d = &p->part[i];
        if (i && d->code != DT_OK && p->own_memory) dt_fail(d->code, "device %d (%s): %s", i, d->dev->name, d->message);
        if (i && d->code != DT_OK) dt_fail(d->code, "device %d: %s", i, d->message); /* no effect after the line above */
        if (!dt__err.bad_loss && d->bad_loss) {
            dt__err.bad_loss = d->bad_loss;
            dt__err.bad_loss_value = d->bad_loss_value;
        }
        *loss += d->weight * d->loss;
    }
    return dt__err.code;
}
static int dt__parallel_check(const char *call, dt_parallel *p, dt_parallel_fn fn, dt_tensor *x, dt_tensor *y)
{
    if (!p || !fn) return dt_fail(DT_ERR_ARG, "%s: %s is NULL", call, p ? "fn" : "the dt_parallel");
    if (!dt__ok(call, "x", x) || (y && !dt__ok(call, "y", y))) return dt__err.code;
    if (x->ndim < 1 || (y && (y->ndim < 1 || y->shape[0] != x->shape[0])))
        return dt_fail(DT_ERR_SHAPE, "%s: x is %s, y %s: both are split along dimension 0, which must be the same", call,
                       dt__text(x), y ? dt__text(y) : "NULL");
    if (x->requires_grad || (y && y->requires_grad))
        return dt_fail(DT_ERR_GRAD, "%s: x or y requires a gradient, which is not supported; dt_detach() it", call);
    if (dt__tls.in_backward || p->busy)
        return dt_fail(DT_ERR_STATE, "%s: called inside %s; call it outside fn and hooks", call,
                       p->busy ? "itself" : "a backward");
    if (p->m->device != p->part[0].dev)
        return dt_fail(DT_ERR_STATE, "%s: the model is on %s; at dt_parallel_new it was on %s: call dt_parallel_new again",
                       call, p->m->device->name, p->part[0].dev->name);
    if (p->m->watch)
        return dt_fail(DT_ERR_STATE, "%s: the model has a ddp: a rank uses one device; use either ddp or parallel", call);
    if (p->m->amp && p->m->amp->nlosses != 1)
        return dt_fail(DT_ERR_STATE, "%s: mixed precision with %d losses, expected 1", call, p->m->amp->nlosses);
    if (p->pid != (long)getpid())
        return dt_fail(DT_ERR_STATE, "%s: the process has forked since dt_parallel_new and its threads do not exist here; "
                       "call dt_parallel_new after the fork", call);
    return 0;
}
/* After all parts: errors, the sum of gradients, the loss of the whole batch. */
static int dt__parts_finish(dt_parallel *p, double *loss)
{
    dt_amp *amp = p->m->amp;
    int     rc = dt__parts_errors(p, loss);
    if (!rc) rc = dt__parts_reduce(p);
    if (!rc && amp) {
        if (amp->dynamic) dt__err.bad_loss = NULL; /* not an error: the scaler handles the overflow */
        rc = dt__amp_take_back(p->m, &amp->scaler[0], NULL);
        amp->scaler[0].used = 1;
    }
    if (!rc && p->own_memory && p->want_loss) {
        *loss = dt_item(p->part[0].share);
        rc = dt__err.code;
    }
    return rc;
}
DT_API dt_status dt_parallel_backward(dt_parallel *p, dt_parallel_fn fn, void *user, dt_tensor *x, dt_tensor *y,
                                      double *loss)
{
    double all = 0;
    if (loss) *loss = (double)NAN;
    if (dt__err.code != DT_OK || dt__parallel_check("dt_parallel_backward", p, fn, x, y)) return dt_error_code();
    dt_model *m = p->m;
    int       first = !m->sealed, job = dt__pool_alone(-1), rc;
    p->fn = fn;
    p->user = user;
    p->autocast = dt__tls.autocast;
    p->device = dt__tls.device;
    p->scale = m->amp ? m->amp->scaler[0].scale : 1;
    p->want_loss = loss != NULL;
    p->busy = 1;
    for (int i = 0; i < p->devices; i++) p->part[i].stream = dt__stream(p->part[i].dev);
    rc = dt__parts_cut(p, x, y);
    if (!rc && m->amp) rc = dt__amp_stash(m);
    if (!rc && !first) rc = dt__parts_start(p);
    if (!rc) {
        dt__pool_alone(job || (p->parts > 1 && !first));
        if (p->own_memory) dt__tls.device = p->part[0].dev;
        dt__part_run(&p->part[0], m);
        dt__pool_alone(job);
        dt__tls.device = p->device;
        if (first && dt__err.code == DT_OK) dt__parts_start(p);
        dt__parts_wait(p);
        rc = dt__parts_finish(p, &all);
    }
    if (rc) dt__drop_grads(m);
    for (int i = 0; i < p->parts; i++) {
        dt__unref(p->part[i].x);
        dt__unref(p->part[i].y);
        p->part[i].x = p->part[i].y = NULL;
    }
    p->busy = 0;
    if (rc) dt_fail(DT_ERR_MEMORY, "dt_parallel_backward: out of memory"); /* no effect if an error is pending already */
    else if (loss) *loss = all;
    return dt_error_code();
}

/* ---- construction */
/* Fills dev and returns the number of devices; a negative status after dt_fail. */
static int dt__parallel_choose(const char *call, dt_model *m, dt_parallel_opts o, dt_device **dev)
{
    const dt_backend *be = m->device->be;
    int               cpu = m->device == dt_cpu(), first = m->device->index, n = o.devices;
    int               there = be->count && be->device ? be->count() : first + 1;
    if (!n && !o.on) n = cpu ? dt_get_num_threads() : there - first;
    if (n < 1 || n > DT__MAX_DEVICES)
        return dt_fail(DT_ERR_ARG, "%s: .devices is %d, expected 1 to %d", call, n, DT__MAX_DEVICES);
    if (!o.on && !cpu && first + n > there)
        return dt_fail(DT_ERR_DEVICE, "%s: .devices is %d, from %s on; %s", call, n, m->device->name,
                       be->count && be->device ? "there are fewer; set a smaller .devices" : "name them in .on");
    for (int i = 0; i < n; i++) {
        dev[i] = o.on ? o.on[i] : cpu || !i ? m->device : be->device(first + i);
        if (!dev[i]) return dt_fail(DT_ERR_ARG, "%s: device %d of %d in .on is NULL", call, i, n);
        if (strcmp(dev[i]->be->name, be->name))
            return dt_fail(DT_ERR_DEVICE, "%s: .on has %s and %s, expected devices of one backend", call, dev[0]->name,
                           dev[i]->name);
        for (int k = 0; k < i && o.on; k++)
            if (dev[k] == dev[i])
                return dt_fail(DT_ERR_ARG, "%s: .on has %s twice%s", call, dev[i]->name,
                               cpu ? "; on the CPU .devices is enough: they are threads" : "");
    }
    if (dev[0] != m->device)
        return dt_fail(DT_ERR_DEVICE, "%s: the model is on %s and .on begins with %s; they must be the same", call,
                       m->device->name, dev[0]->name);
    return n;
}
static int dt__parallel_threads(dt_parallel *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* our threads block all signals: the program's threads handle them */
    for (p->threads = 1; p->threads < p->devices; p->threads++)
        if (pthread_create(&p->part[p->threads].thread, NULL, dt__part_thread, &p->part[p->threads])) break;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (p->threads == p->devices) return 0;
    return dt_fail(DT_ERR_MEMORY, "dt_parallel_new: cannot start thread %d of %d; set a smaller .devices", p->threads,
                   p->devices);
}
DT_API dt_parallel *dt_parallel_new_with(dt_model *m, dt_parallel_opts o)
{
    dt_device *dev[DT__MAX_DEVICES];
    int        n = dt__model_ok("dt_parallel_new", m) ? dt__parallel_choose("dt_parallel_new", m, o, dev) : -1;
    if (n < 0 || (n > 1 && dt__model_one_device("dt_parallel_new", m, DT__PARALLEL_NEEDS))) return NULL;
    dt_parallel *p = (dt_parallel *)dt__alloc_zero(sizeof *p);
    if (p) p->part = (dt__part *)dt__alloc_zero((size_t)n * sizeof *p->part);
    if (!p || !p->part) {
        dt_mem_free(p, sizeof *p);
        dt_fail(DT_ERR_MEMORY, "dt_parallel_new: out of memory");
        return NULL;
    }
    p->m = m;
    p->devices = n;
    p->own_memory = m->device != dt_cpu();
    p->version = -1;
    p->pid = (long)getpid();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->go, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < n; i++) {
        p->part[i].p = p;
        p->part[i].dev = dev[i];
    }
    const dt_backend *be = dev[0]->be;
    if (p->own_memory && n > 1 && be->group_new) p->group = be->group_new(dev, n);
    if (dt__err.code == DT_OK && !dt__parallel_threads(p)) return p;
    dt_parallel_free(p);
    return NULL;
}
DT_API void dt_parallel_free(dt_parallel *p)
{
    if (!p) return;
    bool ours = p->pid == (long)getpid(); /* after a fork the threads do not exist in this process */
    if (ours) {
        pthread_mutex_lock(&p->lock);
        p->quit = 1;
        pthread_cond_broadcast(&p->go);
        pthread_mutex_unlock(&p->lock);
        for (int i = 1; i < p->threads; i++) pthread_join(p->part[i].thread, NULL);
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->go);
        pthread_cond_destroy(&p->done);
        if (p->group) p->part[0].dev->be->group_free(p->group);
    }
    for (int i = 1; i < p->devices; i++) dt__replica_free(&p->part[i]);
    for (int i = 0; i < p->devices; i++) dt__unref(p->part[i].share);
    dt__exchange_free(p);
    dt_mem_free(p->part, (size_t)p->devices * sizeof *p->part);
    dt_mem_free(p, sizeof *p);
}
DT_API int dt_parallel_devices(const dt_parallel *p) { return p ? p->devices : 0; }
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_DIST_IMPLEMENTATION */
