/* dt_pipe.h - v0.2.0 - one model split over ranks: grid, pipelines, tensor parallel, hybrid training */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_pipe.h"
    In every other file that uses it:           #include "dt_pipe.h"

    Link with -lpthread -lm -ldl. The other headers of dt must lie beside it.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_pipe.h"
    #include <stdio.h>

    static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
    {
        (void)user;
        x = dt_relu(dt_linear(m, "fc1", x, .out = 64));
        x = dt_stage(m, "second", x);              // the layers from here on are on the second rank
        return dt_mse_loss(dt_linear(m, "fc2", x, .out = 1), y);
    }
    static int rank_main(void *arg)
    {
        dt_comm      *c = dt_comm_init();
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1f);
        dt_pipeline  *p = dt_pipeline_new(m, c, .micro = 4);
        for (int i = 0; i < 100; i++) {
            dt_tensor *x = dt_normal(0, 1, DT_SHAPE(32, 8)), *y = dt_sum(x, .dims = DT_DIM(1), .keepdim = true);
            double     loss;
            dt_pipeline_backward(p, loss_of, NULL, x, y, &loss);
            dt_step(opt);
            if (dt_comm_rank(c) == 0 && i % 10 == 0) printf("%g\n", loss);
        }
        (void)arg;
        dt_pipeline_free(p);
        dt_model_free(m);
        dt_comm_free(c);
        return dt_check("pipeline");
    }
    int main(void) { return dt_spawn(2, rank_main, NULL); }

CONTENTS

    >>grid           ranks on three axes: data, pipe, tensor
    >>tensor         layers split over the ranks of an axis
    >>pipeline       making a pipeline, training with it; hybrid training on a grid
    >>profiles       what the layers of a model cost
    >>inside         private functions that tests use
    >>ghosts         implementation from here: tensors of other stages
    >>tracing_stages the plan: what crosses the cuts
    >>balancing      measuring a model, finding the cuts
    >>staging        how values reach other ranks: host, device, pinned memory
    >>moving_parts   messages between stages
    >>stages         forward and backward of a stage
    >>whole          what concerns the whole model: norms, checkpoints
    >>training       the public functions
    >>axes           the grid
    >>splitting      sums and parts over the tensor axis; verdicts on gradients
    >>hybrid         data, pipe and tensor axis together

ERRORS

    As in dt.h. An error of one rank is an error of all: they get DT_ERR_COMM with its message. A rank that dies or is stopped
    is named within the timeout of the communicator.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_PIPE_IMPLEMENTATION)
#define DT_PIPE_IMPLEMENTATION
#endif
#include "dt_dist.h"

#ifndef DT_PIPE_H_INCLUDED
#define DT_PIPE_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_pipe.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>grid
   The ranks of a communicator on three axes. Ranks that differ only on the data axis train the same part of the model with
   different samples; on the pipe axis they have different stages; on the tensor axis parts of the same layers.

       dt_grid  *g = dt_grid_new(c, .data = 2, .pipe = 2, .tensor = 2);             8 ranks
       dt_loader_new(set, .rank = dt_grid_rank(g, DT_AXIS_DATA), .world = dt_grid_size(g, DT_AXIS_DATA), ...)
       dt_pipeline *p = dt_hybrid_new(m, g, .micro = 4);

   The tensor axis is the innermost, then pipe, then data. Ranks are placed in the order of their machines, so the ranks of a
   machine are neighbours on the inner axes: the model is split inside a machine, the data across machines. */
typedef struct dt_grid dt_grid; /* ranks on three axes */
typedef enum dt_axis { DT_AXIS_DATA = 0, DT_AXIS_PIPE, DT_AXIS_TENSOR } dt_axis; /* of a grid */
enum { DT_AXES = 3 };
typedef struct dt_grid_opts {
    int dt__first DT_D;
    int data DT_D;   /* default: as many as the ranks are enough for */
    int pipe DT_D;   /* default 1 */
    int tensor DT_D; /* default 1 */
} dt_grid_opts;
/* Collective. The product must be the number of ranks of c. NULL: an error, on all ranks. */
DT_API dt_grid *dt_grid_new_with(dt_comm *c, dt_grid_opts o DT_OPT0(dt_grid_opts));
#ifdef DT__LIT
#define dt_grid_new(...) dt_grid_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_grid_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_grid_new dt_grid_new_with
#endif
DT_API void     dt_grid_free(dt_grid *g); /* before c, after what uses it */
DT_API dt_comm *dt_grid_comm(const dt_grid *g, dt_axis axis); /* the ranks that differ from this one only on the axis */
DT_API int      dt_grid_rank(const dt_grid *g, dt_axis axis);
DT_API int      dt_grid_size(const dt_grid *g, dt_axis axis);
DT_API int      dt_grid_at(const dt_grid *g, int data, int pipe, int tensor); /* the rank of c at this place; -1: none */
DT_API const char *dt_axis_name(dt_axis axis); /* "data" ... */
/* A line for each rank: its place and its machine; works like snprintf. */
DT_API size_t   dt_grid_describe(const dt_grid *g, char *buf, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>tensor
   Layers with .split (dt_nn.h) are divided between the ranks of c: each has an equal part of their parameters, and all compute
   with the same batch. Parameters keep their names; the parts have the bits that they have in the whole layer. Layers without
   .split are on all ranks, and stay equal. Sums over the ranks: one in the forward and one in the backward for an MLP or for an
   attention layer.

       dt_tensor_parallel *t = dt_tensor_parallel_new(m, c);        before the first forward
       x = dt_linear(m, "fc",   x, .out = 1024, .split = DT_SPLIT_OUT);
       x = dt_linear(m, "proj", dt_gelu(x), .out = 256, .split = DT_SPLIT_IN);
       dt_backward(loss); dt_step(opt);                             as on one rank

   dt_step clips by the norm of the whole model; LARS and LAMB use the norms of whole parameters. A gradient that is not finite
   on one rank is DT_ERR_NUMERIC on all, or with a dynamic loss scale an overflow on all. Checkpoints and dt_model_save hold the
   whole model: all ranks call them, rank 0 collects it in its memory and writes. Any layout can load them. Dropout draws what one
   rank would draw, if tensors of which each rank has a part go through dt_dropout_parts. All ranks must seed the model alike. */
typedef struct dt_tensor_parallel dt_tensor_parallel; /* layers with .split are divided between ranks */
DT_API dt_tensor_parallel *dt_tensor_parallel_new(dt_model *m, dt_comm *c); /* every rank of c calls it; NULL on error */
DT_API void dt_tensor_parallel_free(dt_tensor_parallel *t); /* may be called before or after dt_model_free */
/* Collectives of this rank so far in forwards and in backwards, and their bytes. */
typedef struct dt_tensor_parallel_stats {
    int64_t forward, backward, nbytes;
} dt_tensor_parallel_stats;
DT_API dt_tensor_parallel_stats dt_tensor_parallel_get_stats(const dt_tensor_parallel *t);

/* ---------------------------------------------------------------------------------------------------- >>pipeline
   The forward function stays the model: it is written as for one rank. Calls of dt_stage (dt_nn.h) cut it into stages. Each
   rank calls the whole function and computes only its own stage; tensors of the other stages have shapes and no values, and
   cost nothing. Whatever crosses a cut is sent: several tensors, residuals and skip connections, also over several stages.
   Each rank makes only the parameters of its stage, with the bits that they would have in the unsplit model. A parameter that
   two stages use (.shared) is on both ranks and stays equal.

   A batch is cut into .micro micro-batches, and the schedule (>>pipelines of dt_plan.h) says when each is computed where.
   The gradients are those of the mean loss, with the bits that one rank gets which computes the micro-batches one after the
   other with the same weights; only for a parameter that is on two ranks the order of the sum differs. Batch norms use the
   statistics of a micro-batch, as in GPipe. Dropout draws what it would draw on one rank.

   dt_step clips by the norm over all stages (.clip_norm). Checkpoints and dt_model_save hold the unsplit model: all ranks call
   them, rank 0 collects the values in its memory and writes; any number of ranks can load them.

   Values go where they are needed by the communicator: a model on a GPU of each rank and a communicator with .backend =
   DT_NCCL exchange them from GPU to GPU, with another communicator through pinned host memory.

   The forward must make the same calls each time; it cannot read values (dt_item) of other stages. The pipeline is made before
   the first forward, on all ranks of c; rank r computes the stages r, r + ranks, r + 2 ranks ... (with .chunks). */
typedef struct dt_pipeline dt_pipeline; /* a model cut over ranks */
/* Who finds the cuts. Measured: rank 0 runs forward and backward of a micro-batch a few times with a copy of the whole model,
   and dt_pipe_partition_new (dt_plan.h) makes the slowest stage as fast as possible. Estimated: for models that do not fit
   into the memory of one rank; nothing is computed, the times are those of FLOPs and bytes. Stages begin at calls of dt_stage
   if the forward has any, else at any layer. The rank 0 must be done within the timeout of the communicator. */
typedef enum dt_pipe_balance {
    DT_BALANCE_OFF = 0, /* the calls of dt_stage are the cuts */
    DT_BALANCE_MEASURED,
    DT_BALANCE_ESTIMATED
} dt_pipe_balance;
typedef struct dt_pipeline_opts {
    int          dt__first DT_D;
    int          micro DT_D;    /* micro-batches of a batch; default: one for each rank */
    dt_pipe_kind schedule DT_D; /* DT_PIPE_GPIPE, DT_PIPE_1F1B, DT_PIPE_INTERLEAVED, DT_PIPE_ZB_H1; default 1F1B */
    int          chunks DT_D;   /* stages of a rank; default 1, with DT_PIPE_INTERLEAVED 2 */
    bool         recompute DT_D; /* keep only what crosses the cuts, and compute the rest again before the backward: less
                                    memory, more time */
    dt_amp      *amp DT_D;      /* mixed precision: the loss is scaled; an overflow on one rank skips the step on all */
    dt_pipe_balance balance DT_D;
    int64_t      memory DT_D;   /* with .balance: bytes of a rank that a stage may need, with gradients and two states of the
                                   optimiser for each parameter; default 0: no limit */
} dt_pipeline_opts;
DT_API dt_pipeline *dt_pipeline_new_with(dt_model *m, dt_comm *c, dt_pipeline_opts o DT_OPT0(dt_pipeline_opts));
#ifdef DT__LIT
#define dt_pipeline_new(m, ...) \
    dt_pipeline_new_with(m, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pipeline_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_pipeline_new dt_pipeline_new_with
#endif
/* A pipeline over the pipe axis of a grid, with data parallel over its data axis and the layers with .split divided over its tensor
   axis: everything below works with it. x and y are the batch of this rank's place on the data axis, the same for all ranks that
   differ only on the other axes (compared by their SHA-256 when the shapes are new); gradients and losses are means over the
   data axis. Calls of dt_stage beyond what the pipe axis needs are an error, except on an axis of one rank, where they do nothing.
   There is one verdict on gradients that are not finite, one norm for .clip_norm, one checkpoint. An error of one rank becomes the
   error of all ranks of the grid. */
DT_API dt_pipeline *dt_hybrid_new_with(dt_model *m, dt_grid *g, dt_pipeline_opts o DT_OPT0(dt_pipeline_opts));
#ifdef DT__LIT
#define dt_hybrid_new(m, ...) dt_hybrid_new_with(m, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pipeline_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_hybrid_new dt_hybrid_new_with
#endif
DT_API void dt_pipeline_free(dt_pipeline *p); /* may be called before or after dt_model_free */

/* fn returns the loss, a mean over the samples of x and y. x and y are the whole batch, the same on all ranks; y may be NULL.
   Their first dimension must be a multiple of .micro. *loss, unless NULL: the mean loss, on all ranks. Then call dt_step. */
typedef dt_tensor *(*dt_pipeline_fn)(dt_model *m, dt_tensor *x, dt_tensor *y, void *user);
DT_API dt_status dt_pipeline_backward(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y, double *loss);
/* Forward only, without gradients: *value is the mean of what fn returns (a loss, or an accuracy), on all ranks. */
DT_API dt_status dt_pipeline_forward(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y, double *value);
DT_API int  dt_pipeline_stages(const dt_pipeline *p);
DT_API int  dt_pipeline_stage_of(const dt_pipeline *p, const char *parameter); /* its first stage; -1: no such parameter */
/* A text with a line for each stage (its rank, parameters, what crosses the cut before it), like snprintf; with .balance also
   the table of dt_pipe_partition_text. After the first dt_pipeline_backward. */
DT_API size_t dt_pipeline_describe(const dt_pipeline *p, char *buf, size_t nbytes);

/* ---------------------------------------------------------------------------------------------------- >>profiles
   What the layers of a model cost for x and y, for dt_pipe_partition_new (>>partitions of dt_plan.h). A layer begins with the
   call of a layer function of dt_nn.h and ends where the next one begins; the first one also has what the forward does before
   it. If the forward calls dt_stage, what lies between two of these calls counts as one layer. Times are the shortest of
   several runs. Estimated times count the FLOPs of the layer functions and the bytes of all results; backward: twice the
   forward. The model m is not changed: a copy with the same dtype, device and frozen parameters runs, so m may be new, and may
   not have a pipeline. */
typedef struct dt_pipe_profile {
    int            nlayers, nedges;
    dt_pipe_layer *layers;
    dt_pipe_edge  *edges; /* tensors that later layers use */
    char         (*dt__name)[64];
} dt_pipe_profile;
DT_API dt_pipe_profile *dt_pipe_profile_new(dt_model *m, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y,
                                            dt_pipe_balance how);
DT_API void             dt_pipe_profile_free(dt_pipe_profile *f); /* NULL is accepted */

/* The schedule as it ran in the last dt_pipeline_backward: when each step began and ended, for dt_pipe_svg. A step begins when
   what it needs has come: the time that it waited is idle. All ranks call it and get the same; NULL: an error. If the ranks are
   on several machines, their clocks are compared. On a GPU the host only queues the steps, and these are the times of that.
   Free it with dt_pipe_timing_free. */
DT_API const dt_pipe_schedule *dt_pipeline_schedule(const dt_pipeline *p);
DT_API dt_pipe_timing         *dt_pipeline_timing(dt_pipeline *p);
/* The same schedule if each step took the median time of its stage in `run`, and messages no time: dt_pipe_simulate. */
DT_API dt_pipe_timing         *dt_pipeline_planned(const dt_pipeline *p, const dt_pipe_timing *run);

#ifdef __cplusplus
}
#endif
#endif /* DT_PIPE_H_INCLUDED */

/* ---------------------------------------------------------------------------------------------------- >>inside */
#if defined(DT__WANT_INSIDE) && !defined(DT__PIPE_INSIDE)
#define DT__PIPE_INSIDE
#ifdef __cplusplus
extern "C" {
#endif
/* host: the machine of each of n ranks, numbered from 0. rank_at and host_at: what is at each place of a grid. */
DT__INSIDE void dt__grid_order(const int *host, int n, int *rank_at, int *host_at);
#ifdef __cplusplus
}
#endif
#endif /* DT__PIPE_INSIDE */

#if defined(DT_PIPE_IMPLEMENTATION) && !defined(DT__PIPE_IMPLEMENTED)
#define DT__PIPE_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__DIST_IMPLEMENTED)
#error "dt_pipe.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_PIPE_IMPLEMENTATION"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(PIPE);
DT__NEEDS(PIPE, DIST);
DT__NEEDS(PIPE, PLAN);

typedef struct dt__pline_made { /* a tensor of the forward: the plan is made of these */
    dt_tensor *memory; /* a handle on its memory, while the plan is made */
    int     stage, dtype, ndim;
    bool    grad;
    int64_t shape[DT_MAX_DIMS];
} dt__pline_made;
typedef struct dt__pline_used {
    int serial, stage;
} dt__pline_used;
typedef struct dt__pline_edge { /* a tensor that stage `to` needs of stage `from` */
    int     serial, from, to;
    int     back;   /* its gradient goes to this stage: the one before `to` that uses the tensor, or `from` */
    int     next;   /* the edge of the next stage that uses the tensor, whose gradient comes here first; -1: none */
    int     at;     /* its place among the inputs of `to` */
    bool    grad;
    int     dtype, ndim;
    int64_t shape[DT_MAX_DIMS], nbytes;
} dt__pline_edge;
typedef struct dt__pline_page { /* host memory for a message of a device: >>staging */
    struct dt__pline_page *next; /* of all pages */
    size_t                nbytes;
    void                  *ptr, *mark; /* mark: behind the last copy that was queued */
    bool                  used, busy; /* it belongs to a message; that copy may still run */
} dt__pline_page;
typedef struct dt__pline_cell { /* a value that comes from another stage */
    dt_work        *work; /* its receive, or NULL */
    dt_tensor      *t;    /* dense, on the device of the model; NULL: it has not come and no receive is posted */
    dt__pline_page *page; /* where it is received, unless NULL */
} dt__pline_cell;
typedef struct dt__pline_message {
    int  edge, micro;
    bool gradient;
} dt__pline_message;
typedef struct dt__pline_peer { /* what another rank sends to this one, in its order */
    dt__pline_message *list;
    int               n, cap, posted;
} dt__pline_peer;
typedef struct dt__pline_run { /* a micro-batch in a stage */
    dt__list       step, tape;
    dt__pline_cell *in;     /* of each input edge: the value; then for those with .next the gradient of later stages */
    dt__pline_cell *in_grad;
    dt__pline_cell *out_grad; /* of each output: its gradient */
    dt_tensor    **input, **output; /* the tensors of the forward */
    dt_tensor     *loss;
    bool           posted, posted_back;
} dt__pline_run;
typedef struct dt__pline_swap { /* a tensor whose values are hidden while another stage seems to use it */
    dt_tensor   *t;
    dt__storage *st;
    int64_t      offset, stride[DT_MAX_DIMS];
    int          layout;
    dt__node    *node;
    uint8_t      requires_grad;
} dt__pline_swap;
typedef struct dt__pline_mark { /* a place where the model may be cut: a layer or a dt_stage begins */
    bool   stage;  /* dt_stage */
    int    params; /* parameters that there were before */
    double flops;  /* of the layers before */
    char   name[64];
} dt__pline_mark;
typedef struct dt__pline_send {
    dt_work        *work; /* NULL: it waits for the copy to its page */
    dt_tensor      *t;    /* dense */
    dt__pline_page *page; /* or NULL */
    int             edge;
    bool            gradient;
} dt__pline_send;
/* How values reach other ranks: see >>staging. */
enum { DT__LINE_HOST = 0, DT__LINE_DEVICE, DT__LINE_PINNED, DT__LINE_COPIED };
/* How a forward of a stage is computed. */
enum { DT__LINE_WHOLE = 0, /* with a tape for the backward */
       DT__LINE_LIGHT,     /* .recompute: without; only the outputs are sent */
       DT__LINE_AGAIN };   /* ... the same again with a tape; the outputs are there already */
enum { DT__PIPE_OFF = 0, DT__PIPE_TRACE, DT__PIPE_RUN };
struct dt_pipeline {
    dt_model        *m;
    dt_comm         *c;
    dt_device       *dev;      /* of the model's values */
    dt_pipeline_opts o;
    int              rank, ranks, stages;
    dt_pipe_schedule *plan;
    dt__split        split;
    dt__staging      parts;
    dt__watch        watch;
    bool             told;     /* all ranks know the error of this rank */
    /* of dt_hybrid_new; NULL for an axis of one rank */
    dt_grid            *grid;
    dt_ddp             *ddp;
    dt_tensor_parallel *tensor;
    /* the present forward */
    int              mode, stage, now; /* now: the stage that is computed */
    int              how;      /* DT__LINE_... */
    int              count;    /* tensors so far */
    int              base;     /* tensors of earlier forwards: a serial is the base and the number in its forward */
    int              no_grad;  /* this stage has disabled gradients */
    dt__pline_run    *run;
    int              run_micro;
    dt_device       *device_before;
    dt__pline_swap   *swap;
    int              nswaps;
    int64_t          swap_cap;
    /* the plan; made for one shape of a micro-batch */
    bool             made_params;
    int64_t          xshape[DT_MAX_DIMS], yshape[DT_MAX_DIMS];
    int              xdims, ydims, xdtype, ydtype, training;
    dt__pline_made   *made;
    int64_t          made_cap;
    dt__pline_used   *used;
    int64_t          nused, used_cap;
    dt__pline_edge   *edge;     /* in the order of serial, then to */
    int              nedges;
    int             *nin, *nout;       /* of each stage: input edges; tensors that go out */
    int            **in, **out;        /* ... the edges; the first edge of each tensor that goes out */
    int             *params_at;        /* parameters that there were when the stage began, stages + 1 */
    uint8_t         *uses;             /* [parameter * stages + stage] */
    int              nuses;
    uint64_t         draws, thread_draws; /* Philox counters of one forward */
    dt__pline_run    *runs;     /* [chunk * micro + micro-batch] */
    int              way;       /* DT__LINE_HOST ... */
    dt__pline_peer   *peer;     /* DT__LINE_DEVICE: of each rank */
    dt__pline_page   *page;     /* all of them */
    void             *copies;   /* DT__LINE_PINNED: the stream of copies to the host */
    dt__pline_send   *send;
    int              nsends;
    int64_t          send_cap;
    char           (*stage_name)[64];
    /* .balance */
    int              layers, calls;   /* of the present forward: layers after the first one; calls of dt_stage */
    bool             marking, pieces; /* the trace notes the places; it counts pieces of the model, not stages */
    bool             at_stages;       /* the places are the calls of dt_stage; else the layers */
    dt__pline_mark   *mark;           /* [0]: the beginning; then the places */
    int              nmarks;
    int64_t          mark_cap;
    int             *cut;             /* of each stage: the piece with which it begins; NULL: the cuts are not known */
    dt_pipe_profile  *profile;        /* the names of the pieces; on rank 0 also what they cost */
    dt_pipe_partition *partition;
    /* dt_pipeline_timing */
    double          *step_time;       /* of the steps of this rank: begin, then end, in seconds of dt_trace_now */
    bool             timed;           /* a whole dt_pipeline_backward has run */
    uint64_t         waited;          /* nanoseconds that the present step has waited for messages */
};

static const char *dt__pline_text(const dt_pipeline *p, char *buf, size_t nbytes)
{
    snprintf(buf, nbytes, "stage %d (%s, rank %d)", p->now, p->stage_name && p->now < p->stages ? p->stage_name[p->now] : "?",
             p->now % p->ranks);
    return buf;
}
/* An error of a communicator, which names ranks of the job; grid NULL: it is not an axis. */
static int dt__axis_fail(const dt_grid *grid, dt_axis axis, const dt_comm *c, const char *call)
{
    const char *why = dt_comm_error(c);
    if (dt__err.code != DT_OK) return dt__err.code;
    return dt_fail(DT_ERR_COMM, "%s: %.900s%s%s%s", call, why ? why : "the communicator failed", grid ? " (" : "",
                   grid ? dt_axis_name(axis) : "", grid ? " axis)" : "");
}
static int dt__pline_comm_fail(dt_pipeline *p, const char *call)
{
    return dt__axis_fail(p->grid, DT_AXIS_PIPE, p->c, call);
}

DT__SLOW_BEGIN
/* ==================================================================================================== >>ghosts
   The forward of stage s calls the whole function of the program. Outside the stage the model and the thread are on the ghost
   device, so parameters and results are ghosts. An argument that is not a ghost there (the batch; results of stage s) becomes
   one until the forward ends: dt__pline_hide. In stage s an argument that is a ghost is given its values: those that were
   hidden, or those that came from another stage. The handle stays the same all the time, so the variables of the program need
   not change. */
static int dt__pline_number(const dt_pipeline *p, const dt_tensor *t) /* in this forward, from 1 on; 0: made before it */
{
    return t->serial > p->base && t->serial <= p->base + p->count ? t->serial - p->base : 0;
}
static bool dt__pline_active(const dt_pipeline *p) { return p->mode == DT__PIPE_RUN && p->stage == p->now; }
static dt__storage *dt__pline_nothing(void)
{
    int64_t      one = 1;
    dt_tensor   *g = dt__new("dt_stage", dt__ghost_device(), DT_F32, &one, 1, DT_LAYOUT_PLAIN);
    dt__storage *st = g ? g->st : NULL;
    if (!g) return NULL;
    __atomic_add_fetch(&st->refs, 1, __ATOMIC_RELAXED);
    dt__unref(g);
    return st;
}
static void dt__pline_hide(dt_pipeline *p, dt_tensor *t)
{
    dt__pline_swap *list = (dt__pline_swap *)dt__enlarge(p->swap, p->nswaps, &p->swap_cap, sizeof *list);
    dt__storage   *st = list ? dt__pline_nothing() : NULL;
    if (list) p->swap = list;
    if (!st) {
        dt_fail(DT_ERR_MEMORY, "dt_stage: out of memory");
        return;
    }
    dt__pline_swap *w = &p->swap[p->nswaps++];
    w->t = dt__ref(t);
    w->st = t->st;
    w->offset = t->offset;
    w->layout = t->layout;
    w->node = t->node;
    w->requires_grad = t->requires_grad;
    memcpy(w->stride, t->stride, sizeof w->stride);
    t->st = st;
    t->offset = 0;
    t->layout = DT_LAYOUT_PLAIN;
    t->node = NULL;
    t->requires_grad = p->mode == DT__PIPE_TRACE && t->leaf && w->requires_grad; /* a plan notes what needs a gradient */
    dt__dense_strides(t->stride, t->shape, t->ndim);
}
static void dt__pline_show(dt_pipeline *p, int k) /* ends dt__pline_hide */
{
    dt__pline_swap *w = &p->swap[k];
    dt_tensor     *t = w->t, *old = dt__alias(t); /* to release the ghost storage */
    if (!old) return;
    __atomic_sub_fetch(&t->st->refs, 1, __ATOMIC_RELAXED); /* old has taken it over */
    t->st = w->st;
    t->offset = w->offset;
    t->layout = w->layout;
    t->node = w->node;
    t->requires_grad = w->requires_grad;
    memcpy(t->stride, w->stride, sizeof t->stride);
    dt__unref(old);
    dt__unref(t);
    *w = p->swap[--p->nswaps];
}
static int dt__pline_arrive(dt_pipeline *p, dt__pline_cell *cell, const dt__pline_edge *e);
static void dt__pline_fill(dt_pipeline *p, dt_tensor *t) /* a ghost in the stage that is computed */
{
    char who[120];
    for (int k = p->nswaps - 1; k >= 0; k--)
        if (p->swap[k].t == t) {
            dt__pline_show(p, k);
            return;
        }
    int number = dt__pline_number(p, t);
    for (int k = 0; number && k < p->nin[p->now]; k++) {
        const dt__pline_edge *e = &p->edge[p->in[p->now][k]];
        if (e->serial != number) continue;
        dt__pline_cell *cell = &p->run->in[k];
        if (dt__pline_arrive(p, cell, e)) return;
        dt_tensor *old = dt__alias(t);
        if (!old) return;
        __atomic_sub_fetch(&t->st->refs, 1, __ATOMIC_RELAXED);
        t->st = cell->t->st;
        __atomic_add_fetch(&t->st->refs, 1, __ATOMIC_RELAXED);
        t->offset = cell->t->offset; /* of another stage of this rank it may be a part of a larger one */
        t->layout = DT_LAYOUT_PLAIN;
        dt__dense_strides(t->stride, t->shape, t->ndim);
        t->node = NULL;
        t->boundary = t->leaf = 1;
        t->requires_grad = e->grad;
        p->run->input[k] = dt__ref(t);
        dt__unref(old);
        if (p->how != DT__LINE_LIGHT) { /* else it is needed again */
            dt__unref(cell->t);
            cell->t = NULL;
        }
        return;
    }
    dt_fail(DT_ERR_STATE, number || t->serial < 0 ?
            "dt_stage: %s uses a %s %s of another stage that it did not use in the first forward; the forward must make the same "
            "calls each time" :
            "dt_stage: %s uses a %s %s that another stage made in an earlier forward; use it in the same stage, or make it again",
            dt__pline_text(p, who, sizeof who), t->serial < 0 ? "parameter" : "tensor", dt__text(t));
}
static const char *dt__pline_here(const dt_pipeline *p, char *buf, size_t nbytes) /* the stage of the program, in any mode */
{
    int s = p->stage < p->stages ? p->stage : p->stages - 1;
    snprintf(buf, nbytes, "stage %d (%s, rank %d)", s, s ? p->stage_name[s] : "first", s % p->ranks);
    return buf;
}
/* A gradient reaches the parameters of the model only: any other tensor is on all ranks, and would have a part on each. */
static void dt__pline_refuse_grad(dt_pipeline *p, const char *call, dt_tensor *t)
{
    char who[120];
    dt_fail(DT_ERR_GRAD, "%s: %s uses a tensor %s, which needs a gradient and was made outside the forward: the ranks would "
            "have different ones; make it with dt_parameter in the model of the pipeline, or pass dt_detach of it", call,
            dt__pline_here(p, who, sizeof who), dt__text(t));
}
/* A tensor may be changed in the stage that made it and its memory: other ranks have copies of what crosses a cut. */
static void dt__pline_write(void *user, const char *call, dt_tensor *t)
{
    dt_pipeline *p = (dt_pipeline *)user;
    char         who[120];
    int          number = dt__pline_number(p, t), other = -1;
    if (p->mode != DT__PIPE_TRACE || !p->made_params || p->pieces || t->serial < 0) return;
    for (int k = 0; k < p->count && other < 0; k++)
        if (p->made[k].memory && p->made[k].memory->st == t->st && p->made[k].stage != p->stage) other = p->made[k].stage;
    if (number && other < 0) return;
    dt__tls.split = NULL;
    if (other >= 0)
        dt_fail(DT_ERR_STATE, "%s: %s changes a tensor %s in place, whose memory stage %d (rank %d) has made, too: the other "
                "ranks have copies and would not see it; change a dt_clone() of it", call,
                dt__pline_here(p, who, sizeof who), dt__text(t), other, other % p->ranks);
    else
        dt_fail(DT_ERR_STATE, "%s: %s changes a tensor %s in place, which was made before the forward: only this rank would "
                "see it; change a dt_clone() of it, or make it a buffer of the model", call,
                dt__pline_here(p, who, sizeof who), dt__text(t));
    dt__tls.split = &p->split;
}
static bool dt__pline_reads(const char *call) /* does the call bring values to the program? */
{
    static const char *const calls[] = { "dt_item", "dt_copy_out", "dt_data_ptr", "dt_to_string" };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(call, calls[i])) return true;
    return false;
}
static void dt__pline_use(void *user, const char *call, dt_tensor *t)
{
    dt_pipeline *p = (dt_pipeline *)user;
    dt__tls.split = NULL;
    if (p->mode == DT__PIPE_TRACE) {
        int number = dt__pline_number(p, t);
        if (!number && p->c && t->serial >= 0 && t->requires_grad && !dt__is_ghost(t)) dt__pline_refuse_grad(p, call, t);
        if (number && p->made_params) {
            dt__pline_used *last = p->nused ? &p->used[p->nused - 1] : NULL;
            if (!last || last->serial != number || last->stage != p->stage) {
                dt__pline_used *list = (dt__pline_used *)dt__enlarge(p->used, p->nused, &p->used_cap, sizeof *list);
                if (list) {
                    p->used = list;
                    list[p->nused].serial = number;
                    list[p->nused++].stage = p->stage;
                } else dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
            }
        } else if (t->serial < 0 && p->made_params && p->stage < p->stages) {
            p->uses[(-t->serial - 1) * p->stages + p->stage] = 1;
        }
        if (dt__pline_reads(call))
            dt_fail(DT_ERR_STATE, "%s: called in a forward that is cut into stages: values of other stages are not on this "
                    "rank; return what the program needs from the forward", call);
        if (!dt__is_ghost(t)) dt__pline_hide(p, t);
    } else if (dt__pline_active(p)) {
        if (dt__is_ghost(t)) dt__pline_fill(p, t);
    } else if (!dt__is_ghost(t)) dt__pline_hide(p, t);
    dt__tls.split = &p->split;
}
static void dt__pline_new_tensor(void *user, dt_tensor *t)
{
    dt_pipeline *p = (dt_pipeline *)user;
    dt__tls.split = NULL;
    t->serial = p->base + ++p->count;
    if (p->mode == DT__PIPE_TRACE && p->made_params) {
        dt__pline_made *list = (dt__pline_made *)dt__enlarge(p->made, p->count - 1, &p->made_cap, sizeof *list);
        if (list) {
            dt__pline_made *k = &list[p->count - 1];
            p->made = list;
            memset(k, 0, sizeof *k);
            k->memory = dt__alias(t);
            k->stage = p->stage;
            k->dtype = t->dtype;
            k->ndim = t->ndim;
            k->grad = t->requires_grad;
            memcpy(k->shape, t->shape, sizeof k->shape);
        } else dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
    }
    if (dt__pline_active(p)) {
        for (int k = 0; k < p->nout[p->now]; k++)
            if (p->edge[p->out[p->now][k]].serial == p->count) {
                p->run->output[k] = dt__ref(t);
                const dt__pline_edge *e = &p->edge[p->out[p->now][k]];
                bool same = e->ndim == t->ndim && e->dtype == t->dtype &&
                            !memcmp(e->shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
                if (!same) {
                    char who[120], text[160];
                    snprintf(text, sizeof text, "%s", dt__shape_text(e->shape, e->ndim));
                    dt_fail(DT_ERR_SHAPE, "dt_stage: %s sends %s of %s to the next stage, which expects %s of %s as in the "
                            "first "
                            "forward", dt__pline_text(p, who, sizeof who), dt__text(t), dt_dtype_name((dt_dtype)t->dtype), text,
                            dt_dtype_name((dt_dtype)e->dtype));
                }
            }
    } else if (!dt__is_ghost(t)) dt__pline_hide(p, t);
    dt__tls.split = &p->split;
}

/* ==================================================================================================== >>tracing_stages
   The first forward makes all parameters on the ghost device, the second one notes for each tensor where it is made and where
   it is used. All ranks do the same and get the same plan; they compare its hash. Then the parameters of the own stages are
   made again, with the random numbers that were drawn for them. */
static int dt__pline_send_outputs(dt_pipeline *p);
static void dt__pline_enter(dt_pipeline *p) /* the stage begins: where is its device, and are gradients needed? */
{
    bool active = dt__pline_active(p), trace = p->mode == DT__PIPE_TRACE;
    p->m->device = active ? p->dev : dt__ghost_device();
    dt__tls.device = active ? p->device_before : dt__ghost_device();
    bool none = !active && !trace;
    if (none != (p->no_grad > 0)) {
        p->no_grad = none;
        dt__tls.no_grad += none ? 1 : -1;
    }
    dt__tls.generation++; /* what autocast has cast is of another stage */
}
static void dt__pline_name(char *to, size_t nbytes, const char *scope, const char *name)
{
    size_t n = strlen(scope), m = strlen(name), from = n + m < nbytes ? 0 : n + m - (nbytes - 1); /* the end says more */
    if (from > n) name += from - n;
    if (from < n) memcpy(to, scope + from, n - from);
    snprintf(to + (from < n ? n - from : 0), nbytes - (from < n ? n - from : 0), "%s", name);
}
static void dt__pline_mark_add(dt_pipeline *p, bool stage, const char *scope, const char *name)
{
    dt__pline_mark *list = (dt__pline_mark *)dt__enlarge(p->mark, p->nmarks, &p->mark_cap, sizeof *list);
    if (!list) {
        dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
        return;
    }
    p->mark = list;
    dt__pline_mark *k = &list[p->nmarks++];
    memset(k, 0, sizeof *k);
    k->stage = stage;
    k->params = p->m->nparams;
    for (int i = 0; i < p->m->nlayers; i++) k->flops += p->m->layer[i]->flops;
    dt__pline_name(k->name, sizeof k->name, scope, name);
}
/* With .balance: the forward comes to a layer or a call of dt_stage. */
static void dt__pline_place(dt_pipeline *p, bool stage, const char *scope, const char *name)
{
    char full[64];
    int  piece = stage ? ++p->calls : p->layers++;
    if (p->marking && !piece) dt__pline_name(p->mark[0].name, sizeof p->mark[0].name, scope, name);
    else if (p->marking) dt__pline_mark_add(p, stage, scope, name);
    if (p->marking || stage != p->at_stages || !piece) return;
    if (p->pieces) {
        p->stage = piece;
        return;
    }
    if (!p->cut || p->stage + 1 >= p->stages || piece != p->cut[p->stage + 1]) return;
    dt__pline_name(full, sizeof full, scope, name);
    if (strcmp(full, p->stage_name[p->stage + 1])) {
        dt_fail(DT_ERR_STATE, "dt_pipeline: stage %d begins with '%s'; this forward has '%s' there; it must make the same "
                "calls each time",
                p->stage + 1, p->stage_name[p->stage + 1], full);
        return;
    }
    if (dt__pline_active(p) && dt__pline_send_outputs(p)) return;
    p->stage++;
    dt__pline_enter(p);
}
static dt_tensor *dt__pline_stage(void *user, const char *name, dt_tensor *x)
{
    dt_pipeline *p = (dt_pipeline *)user;
    if (dt__err.code != DT_OK) return NULL;
    if (p->mode == DT__PIPE_OFF) {
        dt_fail(DT_ERR_STATE, "dt_stage '%s': the model has a pipeline: call dt_pipeline_backward or dt_pipeline_forward",
                name);
        return NULL;
    }
    if (p->o.balance) {
        dt__pline_place(p, true, "", name);
        return dt__err.code == DT_OK ? x : NULL;
    }
    if (p->grid && p->stages == 1) return x; /* the pipe axis has one rank: all stages are here */
    if (dt__pline_active(p) && dt__pline_send_outputs(p)) return NULL;
    p->stage++;
    if (p->mode == DT__PIPE_TRACE && p->stage < p->stages) {
        if (!p->made_params) p->params_at[p->stage] = p->m->nparams;
        snprintf(p->stage_name[p->stage], sizeof p->stage_name[0], "%s", name);
    }
    if (p->mode == DT__PIPE_RUN && p->stage >= p->stages) {
        dt_fail(DT_ERR_STATE, "dt_stage '%s': this forward has more stages than the first one; it must make the same calls "
                "each time", name);
        return NULL;
    }
    dt__pline_enter(p);
    return x;
}
static void dt__pline_layer(void *user, const char *scope, const char *name)
{
    dt_pipeline *p = (dt_pipeline *)user;
    if (p->o.balance && p->mode != DT__PIPE_OFF && dt__err.code == DT_OK) dt__pline_place(p, false, scope, name);
}

static void dt__pline_begin(dt_pipeline *p, int mode, int now, dt__pline_run *run)
{
    p->mode = mode;
    p->stage = 0;
    p->now = now;
    p->run = run;
    p->base = p->base < 1 << 30 ? p->base + p->count : 0;
    p->count = p->layers = p->calls = 0;
    p->no_grad = 0;
    p->device_before = dt__tls.device;
    p->m->forwards++;
    dt__pline_enter(p);
    dt__tls.split = &p->split;
}
static void dt__pline_end(dt_pipeline *p)
{
    dt__tls.split = NULL;
    if (p->no_grad) dt__tls.no_grad--;
    p->no_grad = 0;
    dt__tls.device = p->device_before;
    p->m->device = p->dev;
    p->mode = DT__PIPE_OFF;
    while (p->nswaps) dt__pline_show(p, p->nswaps - 1);
    dt__tls.generation++;
}
static void dt__pline_cell_free(dt__pline_cell *c)
{
    if (c->work) dt_work_wait(c->work);
    if (c->page) c->page->used = false;
    dt__unref(c->t);
    memset(c, 0, sizeof *c);
}
static void dt__pline_cells_free(dt__pline_cell *c, int n)
{
    for (int i = 0; c && i < n; i++) dt__pline_cell_free(&c[i]);
    dt_mem_free(c, (size_t)(n + 1) * sizeof *c);
}
static void dt__pline_runs_free(dt_pipeline *p)
{
    for (int k = 0; p->runs && k < p->o.chunks * p->o.micro; k++) {
        dt__pline_run *r = &p->runs[k];
        int           s = k / p->o.micro * p->ranks + p->rank;
        dt__pline_cells_free(r->in, p->nin[s]);
        dt__pline_cells_free(r->in_grad, p->nin[s]);
        dt__pline_cells_free(r->out_grad, p->nout[s]);
        for (int i = 0; r->input && i < p->nin[s]; i++) dt__unref(r->input[i]);
        for (int i = 0; r->output && i < p->nout[s]; i++) dt__unref(r->output[i]);
        dt_mem_free(r->input, (size_t)(p->nin[s] + 1) * sizeof *r->input);
        dt_mem_free(r->output, (size_t)(p->nout[s] + 1) * sizeof *r->output);
        dt__unref(r->loss);
        dt__step_swap(&r->step, &r->tape);
        dt__step_end();
        dt__step_swap(&r->step, &r->tape);
        dt__list_free(&r->step);
        dt__list_free(&r->tape);
    }
    dt_mem_free(p->runs, (size_t)(p->o.chunks * p->o.micro) * sizeof *p->runs);
    p->runs = NULL;
}
static void dt__pline_plan_free(dt_pipeline *p)
{
    if (p->nin) dt__pline_runs_free(p);
    for (int s = 0; s < p->stages; s++) {
        if (p->in) dt_mem_free(p->in[s], (size_t)(p->nin[s] + 1) * sizeof(int));
        if (p->out) dt_mem_free(p->out[s], (size_t)(p->nout[s] + 1) * sizeof(int));
        if (p->in) p->in[s] = NULL;
        if (p->out) p->out[s] = NULL;
    }
    dt_mem_free(p->edge, (size_t)(p->nedges + 1) * sizeof *p->edge);
    p->edge = NULL;
    p->nedges = 0;
    for (int r = 0; p->peer && r < p->ranks; r++) p->peer[r].n = 0;
}
static int dt__pline_used_order(const void *a, const void *b)
{
    const dt__pline_used *x = (const dt__pline_used *)a, *y = (const dt__pline_used *)b;
    return x->serial != y->serial ? (x->serial < y->serial ? -1 : 1) : (x->stage > y->stage) - (x->stage < y->stage);
}
static int dt__pline_peers(dt_pipeline *p);
static int dt__pline_edges(dt_pipeline *p) /* from what was noted to the plan */
{
    int n = 0;
    if (p->nused) qsort(p->used, (size_t)p->nused, sizeof *p->used, dt__pline_used_order);
    for (int64_t i = 0; i < p->nused; i++) { /* only those that cross, each stage once */
        const dt__pline_used *u = &p->used[i];
        if (u->stage <= p->made[u->serial - 1].stage || u->stage >= p->stages) continue;
        if (n && p->used[n - 1].serial == u->serial && p->used[n - 1].stage == u->stage) continue;
        p->used[n++] = *u;
    }
    p->edge = (dt__pline_edge *)dt__alloc_zero((size_t)(n + 1) * sizeof *p->edge);
    if (!p->edge) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
    p->nedges = n;
    for (int s = 0; s < p->stages; s++) p->nin[s] = p->nout[s] = 0;
    for (int i = 0; i < n; i++) {
        dt__pline_edge       *e = &p->edge[i];
        const dt__pline_made *k = &p->made[p->used[i].serial - 1];
        bool                 first = i == 0 || p->used[i - 1].serial != p->used[i].serial;
        e->serial = p->used[i].serial;
        e->from = k->stage;
        e->to = p->used[i].stage;
        e->back = first ? e->from : p->used[i - 1].stage;
        e->next = i + 1 < n && p->used[i + 1].serial == e->serial ? i + 1 : -1;
        e->grad = k->grad;
        e->dtype = k->dtype;
        e->ndim = k->ndim;
        memcpy(e->shape, k->shape, sizeof e->shape);
        int64_t numel = 1;
        for (int d = 0; d < e->ndim; d++) numel *= e->shape[d];
        e->nbytes = numel * (int64_t)dt__dtype_size[e->dtype];
        e->at = p->nin[e->to]++;
        p->nout[e->from] += first;
    }
    for (int s = 0; s < p->stages; s++) {
        p->in[s] = (int *)dt__alloc_zero((size_t)(p->nin[s] + 1) * sizeof(int));
        p->out[s] = (int *)dt__alloc_zero((size_t)(p->nout[s] + 1) * sizeof(int));
        if (!p->in[s] || !p->out[s]) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
        int a = 0, b = 0;
        for (int i = 0; i < n; i++) {
            if (p->edge[i].to == s) p->in[s][a++] = i;
            if (p->edge[i].from == s && p->edge[i].back == s) p->out[s][b++] = i;
        }
    }
    p->runs = (dt__pline_run *)dt__alloc_zero((size_t)(p->o.chunks * p->o.micro) * sizeof *p->runs);
    for (int k = 0; p->runs && k < p->o.chunks * p->o.micro; k++) {
        dt__pline_run *r = &p->runs[k];
        int           s = k / p->o.micro * p->ranks + p->rank;
        size_t        a = (size_t)p->nin[s] + 1, b = (size_t)p->nout[s] + 1;
        r->in = (dt__pline_cell *)dt__alloc_zero(a * sizeof *r->in);
        r->in_grad = (dt__pline_cell *)dt__alloc_zero(a * sizeof *r->in);
        r->out_grad = (dt__pline_cell *)dt__alloc_zero(b * sizeof *r->in);
        r->input = (dt_tensor **)dt__alloc_zero(a * sizeof *r->input);
        r->output = (dt_tensor **)dt__alloc_zero(b * sizeof *r->output);
        if (!r->in || !r->in_grad || !r->out_grad || !r->input || !r->output)
            return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
    }
    if (!p->runs) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
    return p->way == DT__LINE_DEVICE ? dt__pline_peers(p) : 0;
}
static uint64_t dt__pline_mix(uint64_t h, const void *data, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)data)[i]) * 1099511628211ull;
    return h;
}
static int dt__pline_same(dt_pipeline *p) /* do all ranks have the same plan? */
{
    uint64_t h = 1469598103934665603ull;
    for (int i = 0; i < p->nedges; i++) h = dt__pline_mix(h, &p->edge[i], sizeof p->edge[i]);
    for (int i = 0; i < p->m->nparams; i++) {
        h = dt__pline_mix(h, p->m->param[i]->name, strlen(p->m->param[i]->name) + 1);
        h = dt__pline_mix(h, p->m->param[i]->t->shape, sizeof p->m->param[i]->t->shape);
    }
    h = dt__pline_mix(h, p->stage_name, (size_t)p->stages * sizeof *p->stage_name);
    int64_t mine[4], all[4];
    mine[0] = (int64_t)(h >> 1);
    mine[1] = -mine[0];
    mine[2] = (p->o.micro * 16 + (int)p->o.schedule) * 2 + (p->way == DT__LINE_DEVICE);
    mine[3] = -mine[2];
    memcpy(all, mine, sizeof all);
    if (dt_comm_allreduce(p->c, all, 4, DT_COMM_I64, DT_COMM_MAX)) return dt__pline_comm_fail(p, "dt_pipeline");
    if (all[2] != -all[3])
        return dt_fail(DT_ERR_COMM, "dt_pipeline: the ranks have different options: this rank, %d, has .micro %d, the "
                       "schedule %s and its model on %s; give all the same", p->rank, p->o.micro,
                       dt_pipe_kind_name(p->o.schedule), p->dev->name);
    if (all[0] == -all[1]) return 0;
    return dt_fail(DT_ERR_COMM, "dt_pipeline: the ranks have different models or batches: rank %d has %d parameters, %d "
                   "stages and %d tensors that cross cuts, with the hash %016llx; the forward and the shapes of x and y must "
                   "be the same on all ranks",
                   p->rank, p->m->nparams, p->stages, p->nedges, (unsigned long long)h);
}
static bool dt__pline_owns(const dt_pipeline *p, int param, int rank)
{
    for (int s = rank; s < p->stages; s += p->ranks)
        if (p->uses[param * p->stages + s]) return true;
    return false;
}
static int dt__pline_params(dt_pipeline *p) /* makes the values of the parameters of this rank */
{
    dt_model *m = p->m;
    for (int i = 0; i < m->nparams && dt__err.code == DT_OK; i++) {
        if (!dt__pline_owns(p, i, p->rank)) continue;
        for (int r = 0; r < p->rank; r++) /* a parameter on several ranks counts in the norm of the first of them */
            if (dt__pline_owns(p, i, r)) m->param[i]->elsewhere = 1;
        dt__param_refill(m, m->param[i], p->dev);
    }
    return dt__err.code == DT_OK ? (int)dt_model_seal(m) : dt__err.code;
}
/* Runs the function with ghosts. The random numbers stay where they are; p->draws: how many one forward draws. */
static int dt__pline_walk(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y)
{
    dt__list  step = { NULL, 0, 0 }, tape = { NULL, 0, 0 };
    dt_model *m = p->m;
    dt_rng    thread = *dt_rng_default();
    uint64_t  at = m->rng.philox_offset;
    p->nused = 0;
    dt__step_swap(&step, &tape);
    snprintf(p->stage_name[0], sizeof p->stage_name[0], "first");
    dt__pline_begin(p, DT__PIPE_TRACE, -1, NULL);
    dt_tensor *loss = fn(m, x, y, user);
    int        found = p->stage + 1;
    dt__pline_end(p);
    for (int k = 0; p->made_params && k < p->count && k < p->made_cap; k++) {
        dt__unref(p->made[k].memory);
        p->made[k].memory = NULL;
    }
    if (dt__err.code == DT_OK && found != p->stages && !p->marking && !p->pieces)
        dt_fail(DT_ERR_STATE, "dt_pipeline: the forward has %d stages (%d calls of dt_stage), expected %d: %d ranks with "
                ".chunks = %d",
                found, found - 1, p->stages, p->ranks, p->o.chunks);
    if (dt__err.code == DT_OK && !loss)
        dt_fail(DT_ERR_ARG, "dt_pipeline: the function returned NULL without an error; expected the loss");
    if (dt__err.code == DT_OK && loss->numel != 1)
        dt_fail(DT_ERR_SHAPE, "dt_pipeline: the function returned a tensor %s; expected a loss of one element (dt_mean)",
                dt__text(loss));
    int number = dt__err.code == DT_OK ? dt__pline_number(p, loss) : 0, last = p->stages - 1;
    if (dt__err.code == DT_OK && !number)
        dt_fail(DT_ERR_STATE, "dt_pipeline: the function returned a tensor %s that it has not made; expected the loss",
                dt__text(loss));
    if (dt__err.code == DT_OK && p->made_params && !p->pieces && p->made[number - 1].stage != last)
        dt_fail(DT_ERR_STATE, "dt_pipeline: the function returned a tensor that stage %d has made; expected the loss, of the "
                "last stage, %d (%s, rank %d)", p->made[number - 1].stage, last, p->stage_name[last], last % p->ranks);
    dt__step_end();
    dt__step_swap(&step, &tape);
    dt__list_free(&step);
    dt__list_free(&tape);
    p->draws = m->rng.philox_offset - at;
    p->thread_draws = dt_rng_default()->philox_offset - thread.philox_offset;
    m->rng.philox_offset = at;
    *dt_rng_default() = thread;
    return dt__err.code;
}
static int dt__pline_balance(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y);
static int dt__pline_notes(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y) /* where can it be cut? */
{
    p->nmarks = 0;
    dt__pline_mark_add(p, false, "", "first");
    p->marking = dt__err.code == DT_OK;
    if (p->marking) dt__pline_walk(p, fn, user, x, y);
    p->marking = false;
    for (int i = 0; i < p->m->nparams; i++) p->m->param[i]->t->serial = 0; /* they are no tensors of a piece */
    return dt__err.code;
}
static int dt__pline_trace(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y)
{
    dt_model *m = p->m;
    bool      first = !p->made_params;
    dt__pline_plan_free(p);
    if (first) {
        int rc = p->o.balance ? dt__pline_notes(p, fn, user, x, y) : dt__pline_walk(p, fn, user, x, y);
        if (rc || (p->o.balance && dt__pline_balance(p, fn, user, x, y))) return dt__err.code;
        p->made_params = true;
        p->uses = (uint8_t *)dt__alloc_zero((size_t)(m->nparams * p->stages + 1));
        if (!p->uses) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
        p->nuses = m->nparams * p->stages + 1;
        for (int i = 0; i < m->nparams; i++) m->param[i]->t->serial = -(i + 1);
        p->params_at[p->stages] = m->nparams;
        for (int s = 0; s < p->stages; s++)
            for (int i = p->params_at[s]; i < p->params_at[s + 1]; i++) p->uses[i * p->stages + s] = 1;
    }
    if (!dt__pline_walk(p, fn, user, x, y)) dt__pline_edges(p);
    if (dt__err.code == DT_OK) dt__pline_same(p);
    if (dt__err.code == DT_OK && first) dt__pline_params(p);
    return dt__err.code;
}

/* ==================================================================================================== >>balancing
   The first forward with ghosts notes the places where the model may be cut. They divide it into pieces: piece 0 begins with
   the forward, piece i at place i. A second forward with ghosts notes in which piece each tensor is made and used. A copy of
   the model then runs on one rank without a pipeline; its layers call dt__meter_layer, its backward dt__meter_node. */
typedef struct dt__meter {
    dt_pipeline *p;
    int          piece, layers, calls, npieces;
    int64_t     *tape;   /* of each piece: nodes on the tape when it began */
    uint64_t     since;  /* the present piece began then */
    size_t       live;   /* bytes of tensors then */
    double      *forward, *backward; /* seconds of this run, of each piece */
    int64_t     *held;
} dt__meter;
static uint64_t dt__meter_now(const dt__meter *w)
{
    dt_synchronize(w->p->dev);
    return dt_trace_now();
}
static void dt__meter_place(dt__meter *w, bool stage)
{
    int piece = stage ? ++w->calls : w->layers++;
    if (stage != w->p->at_stages || !piece || piece >= w->npieces || dt__tls.in_backward) return;
    uint64_t now = dt__meter_now(w);
    size_t   live = dt_stats().live_bytes;
    w->forward[w->piece] = 1e-9 * (double)(now - w->since);
    w->held[w->piece] = live > w->live ? (int64_t)(live - w->live) : 0;
    w->piece = piece;
    w->tape[piece] = dt__tls.tape.n;
    w->live = live;
    w->since = now;
}
static void dt__meter_layer(void *user, const char *scope, const char *name)
{
    (void)scope, (void)name;
    dt__meter_place((dt__meter *)user, false);
}
static dt_tensor *dt__meter_stage(void *user, const char *name, dt_tensor *x)
{
    (void)name;
    dt__meter_place((dt__meter *)user, true);
    return x;
}
static void dt__meter_use(void *user, const char *call, dt_tensor *t) { (void)user, (void)call, (void)t; }
static void dt__meter_made(void *user, dt_tensor *t) { (void)user, (void)t; }
static void dt__meter_node(void *user, int64_t node)
{
    dt__meter *w = (dt__meter *)user;
    if (node >= 0 && (!w->piece || node >= w->tape[w->piece])) return;
    uint64_t now = dt__meter_now(w);
    w->backward[w->piece] += 1e-9 * (double)(now - w->since);
    w->since = now;
    while (w->piece && node < w->tape[w->piece]) w->piece--;
}
static int dt__meter_run(dt__meter *w, dt_model *m, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y)
{
    dt__list   step = { NULL, 0, 0 }, tape = { NULL, 0, 0 };
    dt__split  split;
    dt__timing timing;
    const dt__timing *before = dt__tls.timing;
    memset(&split, 0, sizeof split);
    memset(&timing, 0, sizeof timing);
    timing.user = w;
    timing.node = dt__meter_node;
    split.user = w;
    split.use = dt__meter_use;
    split.made = dt__meter_made;
    dt__step_swap(&step, &tape);
    w->piece = w->layers = w->calls = 0;
    w->tape[0] = 0;
    memset(w->backward, 0, (size_t)w->npieces * sizeof *w->backward);
    w->live = dt_stats().live_bytes;
    w->since = dt__meter_now(w);
    m->forwards++;
    dt_tensor *loss = fn(m, x, y, user);
    w->forward[w->piece] = 1e-9 * (double)(dt__meter_now(w) - w->since);
    size_t live = dt_stats().live_bytes;
    w->held[w->piece] = live > w->live ? (int64_t)(live - w->live) : 0;
    if (dt__err.code == DT_OK && w->piece + 1 != w->npieces)
        dt_fail(DT_ERR_STATE, "dt_pipeline: the first forward had %d places to cut, this one %d; it must make the same calls "
                "each time",
                w->npieces - 1, w->piece);
    if (dt__err.code == DT_OK && loss && loss->requires_grad) {
        dt_tensor *none = NULL;
        dt__tls.split = &split;
        dt__tls.timing = &timing;
        w->since = dt__meter_now(w);
        dt__backward(&loss, &none, 1, DT__BACK_ALL, false);
        dt__tls.timing = before;
        dt__tls.split = NULL;
    }
    dt__step_end();
    dt__step_swap(&step, &tape);
    dt__list_free(&step);
    dt__list_free(&tape);
    return dt__err.code;
}
static dt_model *dt__pline_copy(const dt_model *m, dt_device *dev) /* has no parameters yet */
{
    dt_model_opts o = DT__NO_OPTIONS;
    o.seed = 1;
    o.device = dev;
    o.dtype = m->dtype;
    dt_model *y = dt_model_new_with(o);
    for (int i = 0; y && i < m->nfrozen; i++)
        if (m->frozen[i].on) dt_model_freeze(y, m->frozen[i].pattern);
        else dt_model_unfreeze(y, m->frozen[i].pattern);
    if (!y) return NULL;
    y->norms_f32 = m->norms_f32;
    y->masters = m->masters;
    y->amp = m->amp;
    y->training = m->training;
    return y;
}
/* Runs a copy of the model; f->layers get the shortest times. Nothing that the program sees changes: the hooks of the thread
   (which would seal models) rest, its random numbers and its verdict on the last loss are as before. */
static int dt__pline_measure(dt_pipeline *p, dt_pipe_profile *f, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y)
{
    enum { RUNS = 6 }; /* the first one is not counted */
    size_t      n = (size_t)f->nlayers, each = 2 * sizeof(double) + 2 * sizeof(int64_t);
    dt__meter   w;
    dt__staging parts;
    int         used[DT__MAX_HOOKS];
    dt_rng      thread = *dt_rng_default();
    const char *bad_loss = dt__err.bad_loss;
    double      bad_value = dt__err.bad_loss_value;
    uint64_t    began = dt_trace_now();
    memset(&w, 0, sizeof w);
    memset(&parts, 0, sizeof parts);
    w.p = p;
    w.npieces = f->nlayers;
    w.forward = (double *)dt__alloc_zero(n * each);
    if (!w.forward) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the profile");
    w.backward = w.forward + n;
    w.tape = (int64_t *)(void *)(w.backward + n);
    w.held = w.tape + n;
    memcpy(used, dt__tls.hook_used, sizeof used);
    memset(dt__tls.hook_used, 0, sizeof used);
    dt_model *m = dt__pline_copy(p->m, p->dev);
    parts.user = &w;
    parts.layer = dt__meter_layer;
    parts.stage = dt__meter_stage;
    if (m) m->parts = &parts;
    for (int k = 0; m && k < RUNS && (k < 2 || dt_trace_now() - began < 2000000000u); k++) {
        if (dt__meter_run(&w, m, fn, user, x, y)) break;
        for (int i = 0; k && i < f->nlayers; i++) {
            dt_pipe_layer *l = &f->layers[i];
            if (k == 1 || w.forward[i] < l->forward) l->forward = w.forward[i];
            if (k == 1 || w.backward[i] < l->backward) l->backward = w.backward[i];
            l->held = w.held[i];
        }
        *dt_rng_default() = thread;
    }
    if (m) m->amp = NULL;
    if (m) m->parts = NULL;
    dt_model_free(m);
    memcpy(dt__tls.hook_used, used, sizeof used);
    *dt_rng_default() = thread;
    dt__err.bad_loss = bad_loss;
    dt__err.bad_loss_value = bad_value;
    dt_mem_free(w.forward, n * each);
    return dt__err.code;
}
/* FLOPs and bytes a second of this device: of a product of matrices, and of a sum. */
static int dt__pline_speed(dt_pipeline *p, double *flops, double *bytes)
{
    enum { SIDE = 384, NUMEL = 1 << 20, RUNS = 4 };
    dt__list     step = { NULL, 0, 0 }, tape = { NULL, 0, 0 };
    dt_make_opts o = DT__NO_OPTIONS;
    dt_shape     square, row;
    memset(&square, 0, sizeof square);
    memset(&row, 0, sizeof row);
    o.device = p->dev;
    square.ndim = 2;
    square.dim[0] = square.dim[1] = SIDE;
    row.ndim = 1;
    row.dim[0] = NUMEL;
    dt__step_swap(&step, &tape);
    dt_no_grad_begin();
    dt_tensor *a = dt_full_with(0.5, square, o), *b = dt_full_with(0.5, row, o);
    double     best[2] = { 1e9, 1e9 };
    for (int k = 0; k < 2 * RUNS && dt__err.code == DT_OK; k++) {
        dt_synchronize(p->dev);
        uint64_t at = dt_trace_now();
        if (k % 2) dt_add(b, b);
        else dt_matmul(a, a);
        dt_synchronize(p->dev);
        double s = 1e-9 * (double)(dt_trace_now() - at) + 1e-9;
        if (s < best[k % 2]) best[k % 2] = s;
    }
    dt_no_grad_end();
    dt__step_end();
    dt__step_swap(&step, &tape);
    dt__list_free(&step);
    dt__list_free(&tape);
    *flops = 2.0 * (double)SIDE * (double)SIDE * (double)SIDE / best[0];
    *bytes = 4.0 * (double)NUMEL / best[1];
    return dt__err.code;
}
static int64_t dt__pline_made_bytes(const dt__pline_made *k)
{
    int64_t n = (int64_t)dt__dtype_size[k->dtype];
    for (int d = 0; d < k->ndim; d++) n *= k->shape[d];
    return n;
}
DT_API void dt_pipe_profile_free(dt_pipe_profile *f)
{
    if (!f) return;
    dt_mem_free(f->layers, (size_t)(f->nlayers + 1) * sizeof *f->layers);
    dt_mem_free(f->dt__name, (size_t)(f->nlayers + 1) * sizeof *f->dt__name);
    dt_mem_free(f->edges, (size_t)(f->nedges + 1) * sizeof *f->edges);
    dt_mem_free(f, sizeof *f);
}
/* From the marks: the pieces, their names and parameters. */
static dt_pipe_profile *dt__pline_pieces(dt_pipeline *p)
{
    dt_pipe_profile *f = (dt_pipe_profile *)dt__alloc_zero(sizeof *f);
    int              n = 1, k = 0;
    p->at_stages = false;
    for (int i = 0; i < p->nmarks; i++) p->at_stages = p->at_stages || p->mark[i].stage;
    for (int i = 1; i < p->nmarks; i++) { /* keep those that count; [0] is the beginning */
        if (p->mark[i].stage != p->at_stages) continue;
        p->mark[n++] = p->mark[i];
    }
    p->nmarks = n;
    if (p->at_stages) snprintf(p->mark[0].name, sizeof p->mark[0].name, "first");
    if (f) {
        f->nlayers = n;
        f->layers = (dt_pipe_layer *)dt__alloc_zero((size_t)(n + 1) * sizeof *f->layers);
        f->dt__name = (char(*)[64])dt__alloc_zero((size_t)(n + 1) * sizeof *f->dt__name);
    }
    if (!f || !f->layers || !f->dt__name) {
        dt_pipe_profile_free(f);
        dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the profile");
        return NULL;
    }
    for (k = 0; k < n; k++) {
        dt_pipe_layer *l = &f->layers[k];
        int            end = k + 1 < n ? p->mark[k + 1].params : p->m->nparams;
        memcpy(f->dt__name[k], p->mark[k].name, sizeof f->dt__name[k]);
        l->name = f->dt__name[k];
        l->state = 3;
        for (int i = k ? p->mark[k].params : 0; i < end; i++)
            l->params += p->m->param[i]->t->numel * (int64_t)dt__dtype_size[p->m->param[i]->t->dtype];
    }
    return f;
}
/* What the pieces cost. Rank 0 calls it, or dt_pipe_profile_new. */
static int dt__pline_costs(dt_pipeline *p, dt_pipe_profile *f, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y)
{
    double  flops = 1, bytes = 1;
    int64_t n = 0;
    p->pieces = p->made_params = true;
    int rc = dt__pline_walk(p, fn, user, x, y);
    p->pieces = p->made_params = false;
    if (rc) return rc;
    if (p->nused) qsort(p->used, (size_t)p->nused, sizeof *p->used, dt__pline_used_order);
    for (int64_t i = 0; i < p->nused; i++) { /* the last use of each tensor */
        const dt__pline_used *u = &p->used[i];
        if (i + 1 < p->nused && p->used[i + 1].serial == u->serial) continue;
        if (u->stage > p->made[u->serial - 1].stage) p->used[n++] = *u;
    }
    if (n > INT_MAX - 1) return dt_fail(DT_ERR_ARG, "dt_pipeline: the model has too many tensors");
    f->edges = (dt_pipe_edge *)dt__alloc_zero((size_t)(n + 1) * sizeof *f->edges);
    if (!f->edges) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the profile");
    f->nedges = (int)n;
    for (int i = 0; i < f->nedges; i++) {
        const dt__pline_made *k = &p->made[p->used[i].serial - 1];
        f->edges[i].from = k->stage;
        f->edges[i].to = p->used[i].stage;
        f->edges[i].output = p->used[i].serial;
        f->edges[i].nbytes = dt__pline_made_bytes(k);
    }
    if (p->o.balance == DT_BALANCE_MEASURED) return dt__pline_measure(p, f, fn, user, x, y);
    if (dt__pline_speed(p, &flops, &bytes)) return dt__err.code;
    for (int i = 0; i < p->count; i++) f->layers[p->made[i].stage].held += dt__pline_made_bytes(&p->made[i]);
    for (int i = 0; i < f->nlayers; i++) {
        double until = 0;
        for (int k = 0; i + 1 == f->nlayers && k < p->m->nlayers; k++) until += p->m->layer[k]->flops;
        if (i + 1 < f->nlayers) until = p->mark[i + 1].flops;
        double work = until - (i ? p->mark[i].flops : 0);
        f->layers[i].forward = (work > 0 ? work : 0) / flops + (double)f->layers[i].held / bytes;
        f->layers[i].backward = 2 * f->layers[i].forward;
    }
    return 0;
}
/* Seconds of a message between ranks 0 and 1, and bytes a second. Called by all ranks; only these two have something to do. */
static int dt__pline_link(dt_pipeline *p, double *latency, double *bandwidth)
{
    enum { LARGE = 1 << 18, RUNS = 4 };
    dt_msg_opts o = DT__NO_OPTIONS;
    double      best[2] = { 1e9, 1e9 };
    int64_t     large = LARGE;
    *latency = *bandwidth = 0;
    if (p->ranks < 2 || p->rank > 1) return 0;
    o.tag = 1;
    dt_device *dev = p->way == DT__LINE_DEVICE ? p->dev : dt_cpu();
    dt_tensor *t = dt__new("dt_pipeline", dev, DT_U8, &large, 1, DT_LAYOUT_PLAIN);
    char      *buf = t ? (char *)t->st->ptr : NULL;
    if (!t || dt__fill(t, 0)) return dt__err.code;
    for (int k = 0; k < 2 * RUNS && dt__err.code == DT_OK; k++) {
        int64_t  n = k % 2 ? LARGE : 64;
        uint64_t at = dt_trace_now();
        int      bad = p->rank == 0 ? dt_comm_send_with(p->c, buf, n, DT_COMM_U8, 1, o) :
                                      dt_comm_recv_with(p->c, buf, n, DT_COMM_U8, 0, o);
        if (!bad)
            bad = p->rank == 0 ? dt_comm_recv_with(p->c, buf, n, DT_COMM_U8, 1, o) :
                                 dt_comm_send_with(p->c, buf, n, DT_COMM_U8, 0, o);
        if (bad) dt__pline_comm_fail(p, "dt_pipeline");
        dt_synchronize(dev);
        double s = 0.5e-9 * (double)(dt_trace_now() - at);
        if (s < best[k % 2]) best[k % 2] = s;
    }
    dt__unref(t);
    *latency = best[0];
    *bandwidth = (double)LARGE / fmax(best[1] - best[0], 0.5 * best[1] + 1e-9); /* other work may disturb one of them */
    return dt__err.code;
}
static bool dt__grid_leads(const dt_grid *g);
static int  dt__grid_spread(dt_grid *g, double *x, int64_t n);
static int dt__pline_balance(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y)
{
    enum { HEAD = 2, EACH = 11 };
    double latency, bandwidth;
    size_t n = (size_t)p->stages, nbytes = (HEAD + EACH * n) * sizeof(double);
    if (!p->profile) p->profile = dt__pline_pieces(p);
    if (!p->profile) return dt__err.code;
    int pieces = p->profile->nlayers;
    if (pieces < p->stages && p->at_stages)
        return dt_fail(DT_ERR_STATE, "dt_pipeline: the forward has %d calls of dt_stage, expected at least %d: %d ranks with "
                       ".chunks = %d have %d stages; use fewer ranks, or call dt_stage at more places or not at all",
                       pieces - 1, p->stages - 1, p->ranks, p->o.chunks, p->stages);
    if (pieces < p->stages)
        return dt_fail(DT_ERR_STATE, "dt_pipeline: the forward has %d layers, expected at least %d: %d ranks with .chunks = "
                       "%d have as many stages; use fewer ranks", pieces, p->stages, p->ranks, p->o.chunks);
    double *said = (double *)dt__alloc_zero(nbytes);
    if (!p->cut) p->cut = (int *)dt__alloc_zero(n * sizeof(int));
    if (!p->partition) p->partition = (dt_pipe_partition *)dt__comm_zeroed(1, sizeof *p->partition);
    if (p->partition) p->partition->stage = (dt_pipe_stage *)dt__comm_zeroed(n, sizeof *p->partition->stage);
    if (!said || !p->cut || !p->partition || !p->partition->stage)
        dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
    if (dt__err.code == DT_OK) dt__pline_link(p, &latency, &bandwidth);
    if (dt__err.code == DT_OK && p->rank == 0 && dt__grid_leads(p->grid) && !dt__pline_costs(p, p->profile, fn, user, x, y)) {
        dt_pipe_partition_opts o = DT__NO_OPTIONS;
        for (int i = 0; i < pieces && p->o.recompute; i++) p->profile->layers[i].backward += p->profile->layers[i].forward;
        o.layers = p->profile->layers;
        o.nlayers = pieces;
        o.edges = p->profile->edges;
        o.nedges = p->profile->nedges;
        o.ranks = p->ranks;
        o.chunks = p->o.chunks;
        o.kind = p->o.schedule;
        o.micro = p->o.micro;
        o.latency = latency;
        o.bandwidth = bandwidth;
        o.memory = p->o.memory;
        dt_pipe_partition *best = dt_pipe_partition_new_with(o);
        if (!best) dt_fail(DT_ERR_ARG, "dt_pipeline: %s", dt_plan_error());
        for (int s = 0; best && s < p->stages; s++) {
            const dt_pipe_stage *g = &best->stage[s];
            double *to = said + HEAD + EACH * s, value[EACH];
            value[0] = g->first, value[1] = g->last, value[2] = g->replicas, value[3] = g->held, value[4] = g->forward;
            value[5] = g->seconds, value[6] = (double)g->params, value[7] = (double)g->memory, value[8] = (double)g->in;
            value[9] = (double)g->out, value[10] = g->backward;
            memcpy(to, value, sizeof value);
        }
        if (best) said[0] = best->slowest, said[1] = best->seconds;
        dt_pipe_partition_free(best);
    }
    if (dt__err.code == DT_OK && p->rank == 0 && p->grid) dt__grid_spread(p->grid, said, (int64_t)(HEAD + EACH * n));
    if (dt__err.code == DT_OK && dt_comm_broadcast(p->c, said, (int64_t)(HEAD + EACH * n), DT_COMM_F64, 0))
        dt__pline_comm_fail(p, "dt_pipeline");
    double before = -1;
    for (int s = 0; s < p->stages && dt__err.code == DT_OK; s++) {
        const double  *v = said + HEAD + EACH * s;
        dt_pipe_stage *g = &p->partition->stage[s];
        if (!(v[0] > before && v[0] < pieces && v[1] >= v[0] && v[1] < pieces && (s || v[0] == 0))) {
            dt_fail(DT_ERR_COMM, "dt_pipeline: rank 0 found cuts that this rank, %d, does not have: stage %d from layer %g to "
                    "%g of %d; the forward must be the same on all ranks", p->rank, s, v[0], v[1], pieces);
            break;
        }
        before = v[0];
        g->first = (int)v[0], g->last = (int)v[1], g->replicas = (int)v[2], g->held = (int)v[3];
        g->forward = v[4], g->seconds = v[5], g->backward = v[10];
        g->params = (int64_t)v[6], g->memory = (int64_t)v[7], g->in = (int64_t)v[8], g->out = (int64_t)v[9];
        p->cut[s] = g->first;
        p->params_at[s] = s ? p->mark[g->first].params : 0;
        snprintf(p->stage_name[s], sizeof p->stage_name[0], "%s", p->profile->dt__name[g->first]);
    }
    if (dt__err.code == DT_OK) {
        p->partition->nstages = p->stages;
        p->partition->slowest = (int)said[0];
        p->partition->seconds = said[1];
    }
    dt_mem_free(said, nbytes);
    return dt__err.code;
}

/* ==================================================================================================== >>staging
   How values go from one rank to another:

     HOST     the host can read them: the transports of dt_comm.h take them where they are.
     DEVICE   the communicator accepts memory of the device (NCCL): they go from device to device. The host only queues.
     PINNED   another device with asynchronous copies: through pages, pinned memory that is kept for the next messages.
     COPIED   any other device: the same with dt__download and dt__upload.

   PINNED. To send, a page is filled on a stream of its own behind what the compute stream has now; when the mark behind that
   copy has passed, the message is started: dt__pline_sends_start, after each step, and waiting for the copy before the rank
   waits for a message of others, which may depend on it. A page that was received is copied by the compute stream, where its
   first use is, and is used again when the mark behind has passed. So the host waits for copies of what it sends, never for
   the whole device.

   DEVICE. NCCL ends a send when the other side has queued its receive, and matches the n-th send of a pair with the n-th
   receive (dt_nccl.h checks that). Each pair of ranks has a communicator and a stream for each direction. Both sides know the
   schedule and the edges, so the receiver queues its receives in the order in which the sender computes the messages: before
   it needs a message, it has queued all that this peer sends before it (dt__pline_peers). This cannot deadlock: a rank never
   waits for one of its sends before the end of the schedule. Assume that it waits in step t for message x of another rank. By
   then it has queued the receives of x and of all that come before x in their stream. They wait only for what was computed
   here before step t. The sends of all these are queued at the latest in the step that computes x, and wait only for what was
   computed before. The checker of dt_plan.h has proved that these steps, in the order of the schedule, do not wait for each
   other in a circle; this adds no others, since what is before x in its stream is computed before x. */
static int dt__pline_device_bad(dt_pipeline *p, int rc)
{
    if (!rc) return 0;
    return dt_fail((dt_status)rc, "dt_pipeline: a copy between the host and %s failed with status %d", p->dev->name, rc);
}
static bool dt__pline_later(const dt_backend *be) /* does it copy asynchronously? */
{
    return be->host_alloc && be->host_free && be->upload_later && be->download_later && be->mark && be->passed &&
           be->mark_free && be->order && be->stream_new;
}
static int dt__pline_way(dt_pipeline *p)
{
    const dt_backend *be = p->dev->be;
    int64_t           one = 1;
    if (p->dev == dt_cpu()) return DT__LINE_HOST;
    dt_tensor *t = p->c->device_transport ? dt__new("dt_pipeline_new", p->dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN) : NULL;
    bool       owned = t && p->c->device_transport->owns(p->c, t->st->ptr);
    dt__unref(t);
    if (owned) return DT__LINE_DEVICE;
    if (!dt__pline_later(be)) return DT__LINE_COPIED;
    p->copies = be->stream_new(p->dev);
    if (!p->copies) dt_fail(DT_ERR_DEVICE, "dt_pipeline_new: %s has no stream for copies", p->dev->name);
    return DT__LINE_PINNED;
}
static void dt__pline_page_free(dt_pipeline *p, dt__pline_page *g)
{
    const dt_backend *be = p->dev->be;
    bool              yes;
    for (dt__pline_page **at = &p->page; *at; at = &(*at)->next)
        if (*at == g) {
            *at = g->next;
            break;
        }
    if (g->busy) (void)be->passed(p->dev, g->mark, true, &yes);
    if (g->mark) be->mark_free(p->dev, g->mark);
    if (g->ptr && be->host_alloc && be->host_free) be->host_free(p->dev, g->ptr, g->nbytes);
    else dt_mem_free(g->ptr, g->nbytes);
    dt_mem_free(g, sizeof *g);
}
static dt__pline_page *dt__pline_page_take(dt_pipeline *p, int64_t nbytes) /* NULL after dt_fail */
{
    const dt_backend *be = p->dev->be;
    size_t            n = nbytes ? (size_t)nbytes : 1;
    dt__pline_page   *g = p->page;
    for (; g; g = g->next) {
        bool yes = true;
        if (g->used || g->nbytes != n) continue;
        if (g->busy && dt__pline_device_bad(p, be->passed(p->dev, g->mark, false, &yes))) return NULL;
        if (!yes) continue;
        g->busy = false;
        g->used = true;
        return g;
    }
    g = (dt__pline_page *)dt__alloc_zero(sizeof *g);
    if (g) g->ptr = be->host_alloc && be->host_free ? be->host_alloc(p->dev, n) : dt_mem_alloc(n);
    if (!g || !g->ptr) {
        dt_mem_free(g, sizeof *g);
        dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for a message of %lld bytes", (long long)nbytes);
        return NULL;
    }
    g->nbytes = n;
    g->used = true;
    g->next = p->page;
    p->page = g;
    return g;
}
static char *dt__pline_at(const dt_tensor *t) { return (char *)t->st->ptr + t->offset * (int64_t)dt__dtype_size[t->dtype]; }
static int64_t dt__pline_bytes(const dt_tensor *t) { return t->numel * (int64_t)dt__dtype_size[t->dtype]; }
/* A dense tensor to or from a rank; both wait for the message, not for the device. */
static int dt__pline_send_now(dt_pipeline *p, dt_tensor *t, int to, dt_msg_opts o)
{
    bool            apart = p->way == DT__LINE_PINNED || p->way == DT__LINE_COPIED;
    dt__pline_page *g = apart ? dt__pline_page_take(p, dt__pline_bytes(t)) : NULL;
    if (apart && (!g || dt__download(t, g->ptr))) {
        if (g) g->used = false;
        return dt__err.code;
    }
    int bad = dt_comm_send_with(p->c, g ? g->ptr : dt__pline_at(t), dt__pline_bytes(t), DT_COMM_U8, to, o);
    if (g) g->used = false;
    return bad ? dt__pline_comm_fail(p, "dt_pipeline_backward") : 0;
}
static int dt__pline_receive_now(dt_pipeline *p, dt_tensor *t, int from, dt_msg_opts o)
{
    bool            apart = p->way == DT__LINE_PINNED || p->way == DT__LINE_COPIED;
    dt__pline_page *g = apart ? dt__pline_page_take(p, dt__pline_bytes(t)) : NULL;
    if (apart && !g) return dt__err.code;
    if (dt_comm_recv_with(p->c, g ? g->ptr : dt__pline_at(t), dt__pline_bytes(t), DT_COMM_U8, from, o))
        dt__pline_comm_fail(p, "dt_pipeline_backward");
    else if (g) dt__upload(t, g->ptr);
    if (g) g->used = false;
    return dt__err.code;
}

/* ==================================================================================================== >>moving_parts
   The value of edge i goes with tag 2 i, its gradient with tag 2 i + 1. Micro-batches come in order on each edge. */
static dt__pline_run *dt__pline_run_of(dt_pipeline *p, int stage, int micro)
{
    return &p->runs[stage / p->ranks * p->o.micro + micro];
}
static dt_msg_opts dt__pline_tag(int edge, bool gradient)
{
    dt_msg_opts o = DT__NO_OPTIONS;
    o.tag = 2 * edge + gradient;
    return o;
}
/* Where the value of an edge belongs, or its gradient; this rank computes the stage that it goes to. */
static dt__pline_cell *dt__pline_cell_of(dt_pipeline *p, int edge, bool gradient, int micro)
{
    const dt__pline_edge *e = &p->edge[edge];
    int                  to = gradient ? e->back : e->to;
    dt__pline_run        *r = dt__pline_run_of(p, to, micro);
    if (!gradient) return &r->in[e->at];
    if (e->back != e->from) return &r->in_grad[p->edge[edge - 1].at];
    for (int k = 0; k < p->nout[to]; k++)
        if (p->out[to][k] == edge) return &r->out_grad[k];
    return NULL;
}
static int dt__pline_peer_add(dt_pipeline *p, int from, int edge, bool gradient, int micro)
{
    const dt__pline_edge *e = &p->edge[edge];
    dt__pline_peer       *q = &p->peer[from];
    int                  to = gradient ? e->back : e->to;
    if (to % p->ranks != p->rank) return 0;
    int64_t            cap = q->cap;
    dt__pline_message *list = (dt__pline_message *)dt__enlarge(q->list, q->n, &cap, sizeof *list);
    if (!list || cap > INT_MAX) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the plan");
    q->list = list;
    q->cap = (int)cap;
    list[q->n].edge = edge;
    list[q->n].gradient = gradient;
    list[q->n++].micro = micro;
    return 0;
}
/* What each other rank sends to this one, in the order in which dt__pline_send_outputs and dt__pline_backward send it there. */
static int dt__pline_peers(dt_pipeline *p)
{
    const dt_pipe_schedule *s = p->plan;
    for (int r = 0; r < p->ranks; r++)
        for (int64_t k = s->first[r]; k < s->first[r + 1] && r != p->rank && dt__err.code == DT_OK; k++) {
            const dt_pipe_step *t = &s->step[k];
            int                 stage = t->chunk * p->ranks + r;
            if (t->op == DT_PIPE_FORWARD)
                for (int n = 0; n < p->nout[stage]; n++)
                    for (int i = p->out[stage][n]; i >= 0; i = p->edge[i].next) dt__pline_peer_add(p, r, i, false, t->micro);
            else if (t->op != DT_PIPE_BACKWARD_WEIGHT)
                for (int n = 0; n < p->nin[stage]; n++)
                    if (p->edge[p->in[stage][n]].grad) dt__pline_peer_add(p, r, p->in[stage][n], true, t->micro);
        }
    return dt__err.code;
}
static int dt__pline_post_cell(dt_pipeline *p, dt__pline_cell *cell, int edge, bool gradient)
{
    const dt__pline_edge *e = &p->edge[edge];
    int                  from = (gradient ? e->to : e->from) % p->ranks;
    cell->t = dt__new("dt_pipeline", p->dev, e->dtype, e->shape, e->ndim, DT_LAYOUT_PLAIN);
    if (!cell->t) return dt__err.code;
    if (p->way == DT__LINE_PINNED || p->way == DT__LINE_COPIED) {
        cell->page = dt__pline_page_take(p, e->nbytes);
        if (!cell->page) return dt__err.code;
    }
    cell->work = dt_comm_recv_start_with(p->c, cell->page ? cell->page->ptr : cell->t->st->ptr, e->nbytes, DT_COMM_U8, from,
                                         dt__pline_tag(edge, gradient));
    return cell->work ? 0 : dt__pline_comm_fail(p, "dt_pipeline");
}
/* Posts a receive; train: gradients come, too. */
static int dt__pline_post(dt_pipeline *p, dt__pline_cell *cell, int edge, bool gradient, bool train)
{
    int from = (gradient ? p->edge[edge].to : p->edge[edge].from) % p->ranks;
    if (from == p->rank || cell->t) return 0; /* it is put there, or is posted */
    if (p->way != DT__LINE_DEVICE) return dt__pline_post_cell(p, cell, edge, gradient);
    dt__pline_peer *q = &p->peer[from]; /* with all that this rank sends before */
    while (q->posted < q->n && !cell->t && dt__err.code == DT_OK) {
        const dt__pline_message *x = &q->list[q->posted++];
        if (train || !x->gradient)
            dt__pline_post_cell(p, dt__pline_cell_of(p, x->edge, x->gradient, x->micro), x->edge, x->gradient);
    }
    if (!cell->t) dt_fail(DT_ERR_STATE, "dt_pipeline: rank %d does not send edge %d again in this schedule", from, edge);
    return dt__err.code;
}
static int dt__pline_send_start(dt_pipeline *p, dt__pline_send *s)
{
    const dt__pline_edge *e = &p->edge[s->edge];
    int                  to = (s->gradient ? e->back : e->to) % p->ranks;
    s->work = dt_comm_send_start_with(p->c, s->page ? s->page->ptr : dt__pline_at(s->t), e->nbytes, DT_COMM_U8, to,
                                      dt__pline_tag(s->edge, s->gradient));
    if (!s->work) return dt__pline_comm_fail(p, "dt_pipeline_backward");
    if (s->page) {
        dt__unref(s->t);
        s->t = NULL;
    }
    return 0;
}
static int dt__pline_sends_start(dt_pipeline *p, bool wait) /* those whose copies to the host are done; wait: for the copies */
{
    for (int i = 0; p->way == DT__LINE_PINNED && i < p->nsends && dt__err.code == DT_OK; i++) {
        dt__pline_send *s = &p->send[i];
        bool            yes = false;
        if (s->work) continue;
        if (dt__pline_device_bad(p, p->dev->be->passed(p->dev, s->page->mark, wait, &yes)) || !yes) break;
        s->page->busy = false;
        dt__pline_send_start(p, s);
    }
    return dt__err.code;
}
static int dt__pline_arrive(dt_pipeline *p, dt__pline_cell *cell, const dt__pline_edge *e) /* waits until it is there */
{
    if (!cell->t)
        return dt_fail(DT_ERR_STATE, "dt_pipeline: stage %d needs a tensor of stage %d before it was computed", e->to, e->from);
    if (!cell->work) return 0;
    if (dt__pline_sends_start(p, !dt_work_test(cell->work))) return dt__err.code;
    dt_work *w = cell->work;
    uint64_t since = dt_trace_now();
    cell->work = NULL;
    int bad = dt_work_wait(w);
    p->waited += dt_trace_now() - since;
    if (bad) return dt__pline_comm_fail(p, "dt_pipeline_backward");
    dt__pline_page *g = cell->page;
    cell->page = NULL;
    if (g && p->way == DT__LINE_PINNED) {
        const dt_backend *be = p->dev->be;
        int rc = be->upload_later(p->dev, dt__stream(p->dev), cell->t->st->ptr, g->ptr, (size_t)e->nbytes);
        if (!rc) rc = be->mark(p->dev, dt__stream(p->dev), &g->mark);
        g->busy = !rc;
        dt__pline_device_bad(p, rc);
    } else if (g) dt__upload(cell->t, g->ptr);
    if (g) g->used = false;
    return dt__err.code;
}
static void dt__pline_send_end(dt__pline_send *s)
{
    dt__unref(s->t);
    if (s->page) s->page->used = false;
}
static int dt__pline_sends_wait(dt_pipeline *p, bool all)
{
    int rc = 0, kept = 0;
    if (dt__pline_sends_start(p, all)) return dt__err.code;
    for (int i = 0; i < p->nsends; i++) {
        dt__pline_send *s = &p->send[i];
        if (!all && (!s->work || !dt_work_test(s->work))) {
            p->send[kept++] = *s;
            continue;
        }
        if (dt_work_wait(s->work)) rc = -1;
        dt__pline_send_end(s);
    }
    p->nsends = kept;
    return rc ? dt__pline_comm_fail(p, "dt_pipeline_backward") : 0;
}
static int dt__pline_send_one(dt_pipeline *p, int edge, bool gradient, int micro, dt_tensor *t)
{
    const dt__pline_edge *e = &p->edge[edge];
    const dt_backend     *be = p->dev->be;
    int                  to = gradient ? e->back : e->to, rc;
    dt_tensor           *d = dt__dense("dt_pipeline", t);
    if (d == t) { /* a handle of its own: that of the tape gives its memory up */
        d = dt__alias(t);
        dt__unref(t);
    }
    if (!d) return dt__err.code;
    if (to % p->ranks == p->rank) { /* another stage of this rank: put it into its cell */
        dt__pline_cell_of(p, edge, gradient, micro)->t = d;
        return 0;
    }
    dt__pline_send *list = (dt__pline_send *)dt__enlarge(p->send, p->nsends, &p->send_cap, sizeof *list);
    if (!list) {
        dt__unref(d);
        return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory");
    }
    p->send = list;
    dt__pline_send *s = &list[p->nsends];
    memset(s, 0, sizeof *s);
    s->t = d;
    s->edge = edge;
    s->gradient = gradient;
    if (p->way == DT__LINE_PINNED || p->way == DT__LINE_COPIED) s->page = dt__pline_page_take(p, e->nbytes);
    if (p->way == DT__LINE_PINNED && s->page) { /* dt__pline_sends_start sends it */
        rc = be->order(p->dev, p->copies, dt__stream(p->dev));
        if (!rc) rc = be->download_later(p->dev, p->copies, s->page->ptr, dt__pline_at(d), (size_t)e->nbytes);
        if (!rc) rc = be->mark(p->dev, p->copies, &s->page->mark);
        s->page->busy = !rc;
        dt__pline_device_bad(p, rc);
    } else if (s->page) dt__download(d, s->page->ptr);
    if (dt__err.code == DT_OK && p->way != DT__LINE_PINNED) dt__pline_send_start(p, s);
    if (dt__err.code == DT_OK) p->nsends++;
    else dt__pline_send_end(s);
    return dt__err.code;
}
static int dt__pline_send_outputs(dt_pipeline *p) /* the stage that is computed has ended */
{
    char who[120];
    if (p->how == DT__LINE_AGAIN) return 0; /* they have been sent */
    dt__tls.split = NULL;
    for (int k = 0; k < p->nout[p->now] && dt__err.code == DT_OK; k++) {
        dt_tensor *t = p->run->output[k];
        int        i = p->out[p->now][k];
        if (!t)
            dt_fail(DT_ERR_STATE, "dt_stage: %s has not made a tensor that it made in the first forward; the forward must "
                    "make the same calls each time", dt__pline_text(p, who, sizeof who));
        for (; i >= 0 && dt__err.code == DT_OK; i = p->edge[i].next) dt__pline_send_one(p, i, false, p->run_micro, t);
    }
    dt__tls.split = &p->split;
    return dt__err.code;
}

/* ==================================================================================================== >>stages */
static dt_tensor *dt__pline_slice(dt_tensor *t, int micro, int64_t n) /* a micro-batch of x or y; belongs to the step */
{
    if (!t) return NULL;
    return dt_narrow(t, 0, micro * n, n);
}
typedef struct dt__pline_job { /* a call of dt_pipeline_backward or dt_pipeline_forward */
    dt_pipeline_fn fn;
    void          *user;
    dt_tensor     *x, *y;
    int64_t        each;   /* samples of a micro-batch */
    bool           train;
    dt_tensor     *losses; /* of each micro-batch, f32: on the rank of the last stage */
    dt_tensor     *flags;  /* mixed precision: of each backward for weights, of each block: is a gradient not finite? */
    int            nflags; /* such backwards so far */
    double         scale;  /* of the loss, by mixed precision */
    dt__scaler    *scaler; /* ... or NULL */
    uint64_t       philox, thread_philox;
} dt__pline_job;
/* The host reads the losses at the end of the batch: on a device it would have to wait for each of them. */
static int dt__pline_keep_loss(dt_pipeline *p, dt__pline_job *j, dt__pline_run *r, dt_tensor *loss, bool note)
{
    char who[120];
    if (!loss || loss->numel != 1 || dt__is_ghost(loss))
        return dt_fail(DT_ERR_STATE, "dt_pipeline: %s: the function returned %s, expected the loss as in the first forward",
                       dt__pline_text(p, who, sizeof who),
                       !loss ? "NULL" : loss->numel != 1 ? dt__text(loss) : "a tensor of another stage");
    dt_no_grad_begin();
    dt_tensor *f = note ? dt_cast(loss, DT_F32) : NULL, *to = f ? dt__slice(j->losses, 0, p->run_micro, 1) : NULL;
    dt_no_grad_end();
    if (to) {
        to->ndim = f->ndim;
        for (int d = 0; d < f->ndim; d++) to->shape[d] = to->stride[d] = 1;
        dt__copy_to(to, f, 0);
        dt__unref(to);
    }
    r->loss = dt__ref(loss);
    return dt__err.code;
}
/* What the host must know of the values on the device, once for a batch. *sum: of the losses, on the rank of the last stage. */
static int dt__pline_read(dt_pipeline *p, dt__pline_job *j, double *sum)
{
    int    blocks = p->m->nblocks;
    size_t n = j->flags ? (size_t)j->flags->numel : 0, micro = (size_t)p->o.micro;
    float *v = (float *)dt_scratch((n > micro ? n : micro) * sizeof *v);
    *sum = 0;
    if (!v) return dt__err.code;
    if (j->losses && !dt__download(j->losses, v))
        for (int i = 0; i < p->o.micro; i++) *sum += (double)v[i] / p->o.micro;
    if (j->flags && dt__err.code == DT_OK && !dt__download(j->flags, v))
        for (int i = 0; i < j->nflags; i++) dt__amp_judge(p->m, j->scaler, v + i * blocks);
    return dt__err.code;
}
static int dt__pline_forward(dt_pipeline *p, dt__pline_job *j, int stage, int micro, int how)
{
    dt__pline_run *r = dt__pline_run_of(p, stage, micro);
    bool           no_grad = !j->train || how == DT__LINE_LIGHT;
    char          who[120];
    p->how = how;
    p->m->again = how == DT__LINE_AGAIN;
    dt__step_swap(&r->step, &r->tape);
    p->m->rng.philox_offset = j->philox + (uint64_t)micro * p->draws;
    dt_rng_default()->philox_offset = j->thread_philox + (uint64_t)micro * p->thread_draws;
    p->run_micro = micro;
    dt_tensor *x = dt__pline_slice(j->x, micro, j->each), *y = dt__pline_slice(j->y, micro, j->each);
    if (no_grad) dt_no_grad_begin();
    dt__pline_begin(p, DT__PIPE_RUN, stage, r);
    dt_tensor *loss = dt__err.code == DT_OK ? j->fn(p->m, x, y, j->user) : NULL;
    int        found = p->stage + 1;
    dt__pline_end(p);
    if (no_grad) dt_no_grad_end();
    p->m->again = 0;
    if (dt__err.code == DT_OK && found != p->stages)
        dt_fail(DT_ERR_STATE, "dt_pipeline: %s: this forward had %d stages, the first one %d; it must make the same calls "
                "each time",
                dt__pline_text(p, who, sizeof who), found, p->stages);
    if (dt__err.code == DT_OK && stage == p->stages - 1) dt__pline_keep_loss(p, j, r, loss, how != DT__LINE_AGAIN);
    if (j->train && how != DT__LINE_LIGHT && dt__err.code == DT_OK) dt__step_trim(p->dev);
    if (how == DT__LINE_LIGHT) { /* only what came from other stages stays, in r->in */
        for (int k = 0; k < p->nin[stage]; k++) {
            dt__unref(r->input[k]);
            r->input[k] = NULL;
        }
        for (int k = 0; k < p->nout[stage]; k++) {
            dt__unref(r->output[k]);
            r->output[k] = NULL;
        }
        dt__unref(r->loss);
        r->loss = NULL;
        dt__step_end();
    }
    dt__step_swap(&r->step, &r->tape);
    return dt__err.code;
}
static void dt__pline_run_end(dt_pipeline *p, dt__pline_run *r, int stage) /* the step of the run is in the thread */
{
    for (int k = 0; k < p->nin[stage]; k++) {
        dt__pline_cell_free(&r->in[k]);
        dt__pline_cell_free(&r->in_grad[k]);
        dt__unref(r->input[k]);
        r->input[k] = NULL;
    }
    for (int k = 0; k < p->nout[stage]; k++) {
        dt__pline_cell_free(&r->out_grad[k]);
        dt__unref(r->output[k]);
        r->output[k] = NULL;
    }
    dt__unref(r->loss);
    r->loss = NULL;
    r->posted = r->posted_back = false;
    dt__step_end();
}
static int dt__pline_backward(dt_pipeline *p, dt__pline_job *j, int stage, int micro, int part)
{
    dt__pline_run *r = dt__pline_run_of(p, stage, micro);
    int           n = 0, most = p->nout[stage] + 1;
    dt_tensor   **root = (dt_tensor **)dt__alloc_zero(2 * (size_t)most * sizeof *root), **grad = root + most, *seed = NULL;
    if (!root) return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory");
    dt__step_swap(&r->step, &r->tape);
    for (int k = 0; k < p->nout[stage] && part != DT__BACK_WEIGHTS && dt__err.code == DT_OK; k++) {
        const dt__pline_edge *e = &p->edge[p->out[stage][k]];
        if (!e->grad || !r->output[k]->requires_grad || dt__pline_arrive(p, &r->out_grad[k], e)) continue;
        root[n] = r->output[k];
        grad[n++] = r->out_grad[k].t;
        r->out_grad[k].t = NULL;
    }
    for (int k = 0; k < p->nin[stage] && part != DT__BACK_WEIGHTS && dt__err.code == DT_OK; k++) {
        /* later stages used it, too */
        const dt__pline_edge *e = &p->edge[p->in[stage][k]];
        if (!e->grad || e->next < 0 || dt__pline_arrive(p, &r->in_grad[k], &p->edge[e->next])) continue;
        dt__unref(r->input[k]->grad);
        r->input[k]->grad = r->in_grad[k].t;
        r->in_grad[k].t = NULL;
        r->input[k]->grad_state = DT__GRAD_SET;
    }
    if (stage == p->stages - 1 && part != DT__BACK_WEIGHTS && dt__err.code == DT_OK && r->loss->requires_grad) {
        seed = dt__new_like("dt_pipeline", r->loss, r->loss->dtype);
        if (seed) dt__fill(seed, j->scale / p->o.micro);
        root[n] = r->loss;
        grad[n++] = seed;
    }
    /* as dt_amp_backward does for each micro-batch: the gradients are added up in f32, without the scale */
    bool scaled = j->scaler && part != DT__BACK_INPUTS && dt__err.code == DT_OK;
    if (scaled) dt__amp_stash(p->m);
    if (n || part == DT__BACK_WEIGHTS) dt__backward(root, grad, n, part | (int)DT__BACK_FREE, false);
    if (j->scaler && p->o.amp->dynamic) dt__err.bad_loss = NULL; /* after an overflow the scaler decides */
    if (scaled && dt__err.code == DT_OK) {
        dt_tensor *flags = dt__slice(j->flags, 0, (int64_t)j->nflags++ * p->m->nblocks, p->m->nblocks);
        if (flags) dt__amp_take_back(p->m, j->scaler, flags);
        dt__unref(flags);
    }
    for (int k = 0; k < p->nin[stage] && part != DT__BACK_WEIGHTS && dt__err.code == DT_OK; k++) {
        const dt__pline_edge *e = &p->edge[p->in[stage][k]];
        dt_tensor           *t = r->input[k];
        if (!e->grad) continue;
        if (!t->grad || t->grad_state == DT__GRAD_EMPTY) { /* this backward has not reached it */
            if (!t->grad) t->grad = dt__new("dt_pipeline", p->dev, t->dtype, t->shape, t->ndim, DT_LAYOUT_PLAIN);
            if (!t->grad || dt__fill(t->grad, 0)) break;
        }
        dt__pline_send_one(p, p->in[stage][k], true, micro, t->grad);
        dt__unref(t->grad);
        t->grad = NULL;
    }
    if (part != DT__BACK_INPUTS) dt__pline_run_end(p, r, stage);
    dt__step_swap(&r->step, &r->tape);
    dt_mem_free(root, 2 * (size_t)most * sizeof *root);
    return dt__err.code;
}
/* Posts the receives of a step of the schedule. */
static int dt__pline_post_step(dt_pipeline *p, const dt_pipe_step *s, bool train)
{
    int           stage = s->chunk * p->ranks + p->rank;
    dt__pline_run *r = dt__pline_run_of(p, stage, s->micro);
    if (s->op == DT_PIPE_FORWARD && !r->posted) {
        r->posted = true;
        for (int k = 0; k < p->nin[stage] && dt__err.code == DT_OK; k++)
            dt__pline_post(p, &r->in[k], p->in[stage][k], false, train);
    } else if ((s->op == DT_PIPE_BACKWARD || s->op == DT_PIPE_BACKWARD_INPUT) && !r->posted_back) {
        r->posted_back = true;
        for (int k = 0; k < p->nout[stage] && dt__err.code == DT_OK; k++)
            if (p->edge[p->out[stage][k]].grad) dt__pline_post(p, &r->out_grad[k], p->out[stage][k], true, train);
        for (int k = 0; k < p->nin[stage] && dt__err.code == DT_OK; k++) {
            const dt__pline_edge *e = &p->edge[p->in[stage][k]];
            if (e->grad && e->next >= 0) dt__pline_post(p, &r->in_grad[k], e->next, true, train);
        }
    }
    return dt__err.code;
}
/* A parameter that is on several ranks: the first of them adds up the gradients in the order of the ranks. */
static int dt__pline_tied(dt_pipeline *p)
{
    dt_model *m = p->m;
    for (int i = 0; i < m->nparams && dt__err.code == DT_OK; i++) {
        dt__param *q = m->param[i];
        int        first = -1, owners = 0;
        if (q->buffer || q->frozen) continue;
        for (int r = 0; r < p->ranks; r++)
            if (dt__pline_owns(p, i, r)) {
                owners++;
                if (first < 0) first = r;
            }
        if (owners < 2 || !dt__pline_owns(p, i, p->rank)) continue;
        dt__mblock *b = q->block >= 0 ? &m->block[q->block] : NULL; /* mixed precision keeps gradients in mgrad */
        bool        apart = b && b->use_mgrad;
        dt_tensor  *g = apart ? dt__slice(b->mgrad, 0, q->offset, q->t->numel) : dt__ref(q->t->grad);
        dt_tensor  *there = g ? dt__new("dt_pipeline", p->dev, g->dtype, g->shape, g->ndim, DT_LAYOUT_PLAIN) : NULL, *d = NULL;
        dt_msg_opts o = dt__pline_tag(p->nedges + i, false);
        if (!there) dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory for the gradient of '%s'", q->name);
        else if (!apart && q->t->grad_state == DT__GRAD_EMPTY && dt__fill(g, 0)) {
        } else if (p->rank == first) {
            if (!apart) q->t->grad_state = DT__GRAD_SET;
            for (int r = first + 1; r < p->ranks && dt__err.code == DT_OK; r++)
                if (dt__pline_owns(p, i, r) && !dt__pline_receive_now(p, there, r, o)) dt__copy_to(g, there, 1);
            if (dt__err.code == DT_OK) d = dt__dense("dt_pipeline", g);
            for (int r = first + 1; r < p->ranks && dt__err.code == DT_OK; r++)
                if (dt__pline_owns(p, i, r)) dt__pline_send_now(p, d, r, o);
        } else {
            if (!apart) q->t->grad_state = DT__GRAD_SET;
            d = dt__dense("dt_pipeline", g);
            if (d && !dt__pline_send_now(p, d, first, o) && !dt__pline_receive_now(p, there, first, o))
                dt__copy_to(g, there, 0);
        }
        dt__unref(d);
        dt__unref(there);
        dt__unref(g);
    }
    return dt__err.code;
}

/* ==================================================================================================== >>whole
   The callbacks of dt__watch: what concerns the whole model. */
static void dt__pline_tell(dt_pipeline *p) /* an error of this rank becomes everyone's */
{
    if (p->told || !p->c || dt__err.code == DT_OK) return;
    p->told = true;
    dt_comm_abort(p->c, dt_error());
}
static void dt__pline_on_tell(void *user) { dt__pline_tell((dt_pipeline *)user); }
static void dt__pline_tell_all(dt_pipeline *p) /* ... of all axes */
{
    if (p->m) dt__watch_tell(p->m);
    dt__pline_tell(p);
}
static void dt__pline_on_step(void *user, dt_optimizer *opt)
{
    (void)opt;
    dt__pline_tell((dt_pipeline *)user);
}
static int dt__pline_agree(void *user, const char *call, int64_t *x, int n)
{
    dt_pipeline *p = (dt_pipeline *)user;
    return dt_comm_allreduce(p->c, x, n, DT_COMM_I64, DT_COMM_MAX) ? dt__pline_comm_fail(p, call) : 0;
}
static int dt__axes_differ(const char *call, const char *what, int64_t x, const int64_t *both)
{
    return dt_fail(DT_ERR_COMM, "%s: %s is %" PRId64 " on this rank, and between %" PRId64 " and %" PRId64 " on all; they must see the same "
                   "files: use a directory that they share", call, what, x, -both[1], both[0]);
}
static int dt__pline_same_on_all(void *user, const char *call, const char *what, int64_t x)
{
    int64_t both[2];
    both[0] = x;
    both[1] = -x;
    if (dt__pline_agree(user, call, both, 2)) return dt__err.code;
    return both[0] == -both[1] ? 0 : dt__axes_differ(call, what, x, both);
}
/* Before something is saved: numbers of parameters that are on other ranks. */
static int dt__pline_lead(void *user)
{
    dt_pipeline *p = (dt_pipeline *)user;
    dt_model    *m = p->m;
    int64_t      n = m->nparams + m->nopts * (1 + DT__MAX_GROUPS * DT__MAX_STATES), *x;
    x = (int64_t *)dt__alloc_zero((size_t)n * sizeof *x);
    if (!x) dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory");
    for (int i = 0; x && i < m->nparams; i++) x[i] = dt__is_ghost(m->param[i]->t) ? 0 : m->param[i]->steps;
    int64_t *steps = x ? x + m->nparams : NULL, *state = x ? steps + m->nopts : NULL;
    for (int i = 0; x && i < m->nopts; i++) steps[i] = m->opt[i]->steps;
    for (int i = 0; x && i < m->nblocks; i++)
        for (int k = 0; k < DT__MAX_STATES && m->block[i].opt >= 0; k++)
            if (m->block[i].state[k]) state[(m->block[i].opt * DT__MAX_GROUPS + m->block[i].group) * DT__MAX_STATES + k] = 1;
    int rc = x ? dt__pline_agree(p, "dt_checkpoint_save", x, (int)n) : DT_ERR_MEMORY;
    for (int i = 0; !rc && i < m->nparams; i++) m->param[i]->steps = x[i];
    for (int i = 0; !rc && i < m->nopts; i++) m->opt[i]->steps = steps[i];
    for (int i = 0; !rc && i < m->nblocks; i++) {
        unsigned slots = 0;
        for (int k = 0; k < DT__MAX_STATES && m->block[i].opt >= 0; k++)
            if (state[(m->block[i].opt * DT__MAX_GROUPS + m->block[i].group) * DT__MAX_STATES + k]) slots |= 1u << k;
        rc = dt__block_states(m, &m->block[i], slots);
    }
    dt_mem_free(x, (size_t)n * sizeof *x);
    return p->rank == 0;
}
/* Rank 0 of c has done something for all: its error becomes everyone's. Returns 1 if the communicator has failed. */
static int dt__axis_outcome(dt_comm *c, int rank, bool *told)
{
    char text[512];
    memset(text, 0, sizeof text);
    if (rank == 0 && dt__err.code != DT_OK) snprintf(text, sizeof text, "%s%.490s", strncmp(dt_error(), "rank 0: ", 8) ? "rank 0: " : "", dt_error());
    if (rank != 0 && dt__err.code != DT_OK && !*told) {
        *told = true;
        dt_comm_abort(c, dt_error());
    }
    if (dt_comm_broadcast(c, text, (int64_t)sizeof text, DT_COMM_U8, 0)) return 1;
    if (!text[0] || rank == 0) return 0;
    *told = true;
    text[sizeof text - 1] = 0;
    return dt_fail(DT_ERR_FILE, "%s", text);
}
static int dt__pline_outcome(void *user, const char *call)
{
    dt_pipeline *p = (dt_pipeline *)user;
    return dt__axis_outcome(p->c, p->rank, &p->told) > 0 ? dt__pline_comm_fail(p, call) : 0;
}
static dt_tensor *dt__pline_fetch(void *user, const char *call, dt_tensor *t)
{
    dt_pipeline *p = (dt_pipeline *)user;
    int64_t      have = dt__is_ghost(t) ? 0 : p->ranks - p->rank;
    if (dt__pline_agree(p, call, &have, 1)) return NULL;
    int         owner = p->ranks - (int)have;
    int64_t     nbytes = t->numel * (int64_t)dt__dtype_size[t->dtype];
    dt_msg_opts o = dt__pline_tag(p->nedges, true);
    if (have <= 0 || owner == 0 || (p->rank != 0 && p->rank != owner)) return NULL;
    dt_tensor *y = NULL;
    if (p->rank == 0) {
        y = dt__new(call, dt_cpu(), t->dtype, t->shape, t->ndim, DT_LAYOUT_PLAIN);
        if (y && !dt_comm_recv_with(p->c, y->st->ptr, nbytes, DT_COMM_U8, owner, o)) return y;
        dt__unref(y);
        dt__pline_comm_fail(p, call);
        return NULL;
    }
    dt_tensor      *d = dt__dense(call, t);
    dt__pline_page *g = d && p->dev != dt_cpu() ? dt__pline_page_take(p, nbytes) : NULL;
    if (d && (p->dev == dt_cpu() || (g && !dt__download(d, g->ptr))) &&
        dt_comm_send_with(p->c, g ? g->ptr : dt__pline_at(d), nbytes, DT_COMM_U8, 0, o))
        dt__pline_comm_fail(p, call);
    dt__unref(d);
    if (g) dt__pline_page_free(p, g);
    return NULL;
}
static int dt__pline_whole_norm(void *user, float *norm)
{
    dt_pipeline *p = (dt_pipeline *)user;
    double       sum = (double)*norm * (double)*norm;
    if (dt__err.code != DT_OK || dt_comm_allreduce(p->c, &sum, 1, DT_COMM_F64, DT_COMM_SUM))
        return dt__pline_comm_fail(p, "dt_step");
    *norm = (float)sqrt(sum);
    return 0;
}
static void dt__pline_gone(void *user) { ((dt_pipeline *)user)->m = NULL; }

/* ==================================================================================================== >>training */
static bool dt__pline_shaped(const dt_tensor *t, const int64_t *shape, int ndim, int dtype, int64_t each)
{
    if (!t) return ndim < 0;
    if (t->ndim != ndim || t->dtype != dtype || shape[0] != each) return false;
    for (int i = 1; i < ndim; i++)
        if (t->shape[i] != shape[i]) return false;
    return true;
}
static void dt__pline_shape(const dt_tensor *t, int64_t *shape, int *ndim, int *dtype, int64_t each)
{
    *ndim = t ? t->ndim : -1;
    *dtype = t ? t->dtype : 0;
    if (!t) return;
    memcpy(shape, t->shape, sizeof t->shape);
    shape[0] = each;
}
/* Checks the batch; makes the plan if it is new. */
static int dt__hybrid_same_batch(dt_pipeline *p, const char *call, dt_tensor *x, dt_tensor *y);
static int dt__pline_ready(dt_pipeline *p, const char *call, dt__pline_job *j)
{
    if (!p) return dt_fail(DT_ERR_ARG, "%s: the pipeline is NULL", call);
    if (!j->fn) return dt_fail(DT_ERR_ARG, "%s: the function is NULL", call);
    if (!dt__ok(call, "x", j->x) || (j->y && !dt__ok(call, "y", j->y))) return dt__err.code;
    int64_t n = j->x->ndim ? j->x->shape[0] : 0;
    if (n < 1 || n % p->o.micro || (j->y && (!j->y->ndim || j->y->shape[0] != n)))
        return dt_fail(DT_ERR_SHAPE, "%s: x is %s and y %s: the first dimension must be the same and a multiple of .micro, "
                       "%d; use another .batch or .micro, and .drop_last in the loader", call, dt__text(j->x),
                       j->y ? "has another one, or" : "is NULL", p->o.micro);
    j->each = n / p->o.micro;
    if (p->edge && p->training == p->m->training && dt__pline_shaped(j->x, p->xshape, p->xdims, p->xdtype, j->each) &&
        dt__pline_shaped(j->y, p->yshape, p->ydims, p->ydtype, j->each))
        return 0;
    if (p->grid && dt__hybrid_same_batch(p, call, j->x, j->y)) return dt__err.code;
    dt__list step = { NULL, 0, 0 }, tape = { NULL, 0, 0 };
    dt__step_swap(&step, &tape);
    dt_tensor *x = dt__pline_slice(j->x, 0, j->each), *y = dt__pline_slice(j->y, 0, j->each);
    int        rc = dt__pline_trace(p, j->fn, j->user, x, y);
    dt__step_end();
    dt__step_swap(&step, &tape);
    dt__list_free(&step);
    dt__list_free(&tape);
    dt__pline_shape(j->x, p->xshape, &p->xdims, &p->xdtype, j->each);
    dt__pline_shape(j->y, p->yshape, &p->ydims, &p->ydtype, j->each);
    p->training = p->m->training;
    return rc;
}
static void dt__pline_drop(dt_pipeline *p) /* after a failure: nothing of the step is kept */
{
    for (int i = 0; i < p->nsends; i++) {
        dt__pline_send *s = &p->send[i];
        bool            yes;
        if (s->work) dt_work_wait(s->work);
        else if (s->page && s->page->busy) (void)p->dev->be->passed(p->dev, s->page->mark, true, &yes);
        dt__pline_send_end(s);
    }
    p->nsends = 0;
    for (int k = 0; p->runs && k < p->o.chunks * p->o.micro; k++) {
        dt__pline_run *r = &p->runs[k];
        int           s = k / p->o.micro * p->ranks + p->rank;
        dt__step_swap(&r->step, &r->tape);
        dt__pline_run_end(p, r, s);
        dt__step_swap(&r->step, &r->tape);
    }
}
static int dt__pline_go(dt_pipeline *p, dt__pline_job *j)
{
    const dt_pipe_schedule *s = p->plan;
    for (int r = 0; p->peer && r < p->ranks; r++) p->peer[r].posted = 0;
    int64_t end = s->first[p->rank + 1], posted = s->first[p->rank], begin = posted;
    p->timed = false;
    for (int64_t k = posted; k < end && dt__err.code == DT_OK; k++) {
        const dt_pipe_step *t = &s->step[k];
        int                 stage = t->chunk * p->ranks + p->rank;
        for (; posted < end && posted <= k + DT_PIPE_AHEAD && dt__err.code == DT_OK; posted++)
            if (j->train || s->step[posted].op == DT_PIPE_FORWARD) dt__pline_post_step(p, &s->step[posted], j->train);
        uint64_t since = dt_trace_now();
        p->waited = 0;
        if (t->op == DT_PIPE_FORWARD) {
            dt__pline_forward(p, j, stage, t->micro, j->train && p->o.recompute ? (int)DT__LINE_LIGHT : (int)DT__LINE_WHOLE);
            if (!j->train && dt__err.code == DT_OK) {
                dt__pline_run *r = dt__pline_run_of(p, stage, t->micro);
                dt__step_swap(&r->step, &r->tape);
                dt__pline_run_end(p, r, stage);
                dt__step_swap(&r->step, &r->tape);
            }
        } else if (j->train) {
            if (p->o.recompute && t->op != DT_PIPE_BACKWARD_WEIGHT) dt__pline_forward(p, j, stage, t->micro, DT__LINE_AGAIN);
            int part = t->op == DT_PIPE_BACKWARD ? (int)DT__BACK_ALL :
                       t->op == DT_PIPE_BACKWARD_INPUT ? (int)DT__BACK_INPUTS : (int)DT__BACK_WEIGHTS;
            if (dt__err.code == DT_OK) dt__pline_backward(p, j, stage, t->micro, part);
        }
        p->step_time[2 * (k - begin)] = 1e-9 * (double)(since + p->waited);
        p->step_time[2 * (k - begin) + 1] = 1e-9 * (double)dt_trace_now();
        if (dt__err.code == DT_OK) dt__pline_sends_wait(p, false);
    }
    if (dt__err.code == DT_OK) dt__pline_sends_wait(p, true);
    p->timed = j->train && dt__err.code == DT_OK;
    return dt__err.code;
}
static int dt__hybrid_agree(dt_pipeline *p, const char *call, double *all);
static int dt__pline_call(dt_pipeline *p, const char *call, dt__pline_job *j, double *value)
{
    dt__scaler *s = NULL;
    if (dt__err.code != DT_OK) {
        if (p) dt__pline_tell_all(p);
        return dt__err.code;
    }
    int rc = dt__pline_ready(p, call, j);
    if (!rc) {
        j->scale = 1;
        if (p->o.amp && j->train) {
            j->scaler = s = &p->o.amp->scaler[0];
            j->scale = s->scale;
        }
        j->philox = p->m->rng.philox_offset;
        j->thread_philox = dt_rng_default()->philox_offset;
        int64_t micro = p->o.micro, flags = micro * p->o.chunks * p->m->nblocks;
        if ((p->stages - 1) % p->ranks == p->rank) j->losses = dt__new(call, p->dev, DT_F32, &micro, 1, DT_LAYOUT_PLAIN);
        if (s && flags) j->flags = dt__new(call, p->dev, DT_F32, &flags, 1, DT_LAYOUT_PLAIN);
        rc = dt__err.code;
    }
    if (!rc) rc = dt__pline_go(p, j);
    if (!rc && j->train && p->ddp) rc = dt__ddp_sum(p->ddp);
    if (!rc && j->train) rc = dt__pline_tied(p);
    double all[2] = { 0, 0 };
    if (!rc) rc = dt__pline_read(p, j, &all[0]);
    dt__unref(j->losses);
    dt__unref(j->flags);
    if (!rc && s) {
        s->used = 1;
        all[1] = s->found;
    }
    if (!rc) {
        p->m->rng.philox_offset = j->philox + (uint64_t)p->o.micro * p->draws;
        dt_rng_default()->philox_offset = j->thread_philox + (uint64_t)p->o.micro * p->thread_draws;
        if (dt_comm_allreduce(p->c, all, 2, DT_COMM_F64, DT_COMM_SUM)) rc = dt__pline_comm_fail(p, call);
    }
    if (!rc && p->grid) rc = dt__hybrid_agree(p, call, all);
    if (!rc && s && all[1] > 0) { /* one overflow is everyone's */
        s->found = 1;
        for (int i = 0; i < p->m->nopts; i++) p->m->opt[i]->skip = 1;
    }
    if (!rc && j->train && !s && !isfinite(all[0])) { /* then dt_step refuses on all ranks */
        dt__err.bad_loss = "the pipeline";
        dt__err.bad_loss_value = all[0];
    }
    if (!rc && value) *value = all[0];
    if (rc && p) {
        dt__pline_tell_all(p);
        if (p->nin) dt__pline_drop(p);
    }
    return rc;
}
static dt__pline_job dt__pline_job_of(dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y, bool train)
{
    dt__pline_job j;
    memset(&j, 0, sizeof j);
    j.fn = fn;
    j.user = user;
    j.x = x;
    j.y = y;
    j.train = train;
    return j;
}
DT_API dt_status dt_pipeline_backward(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y, double *loss)
{
    dt__pline_job j = dt__pline_job_of(fn, user, x, y, true);
    return (dt_status)dt__pline_call(p, "dt_pipeline_backward", &j, loss);
}
DT_API dt_status dt_pipeline_forward(dt_pipeline *p, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y, double *value)
{
    dt__pline_job j = dt__pline_job_of(fn, user, x, y, false);
    return (dt_status)dt__pline_call(p, "dt_pipeline_forward", &j, value);
}
static int dt__pline_alloc(dt_pipeline *p)
{
    size_t n = (size_t)p->stages;
    p->nin = (int *)dt__alloc_zero(n * sizeof(int));
    p->nout = (int *)dt__alloc_zero(n * sizeof(int));
    p->in = (int **)dt__alloc_zero(n * sizeof(int *));
    p->out = (int **)dt__alloc_zero(n * sizeof(int *));
    p->params_at = (int *)dt__alloc_zero((n + 1) * sizeof(int));
    p->stage_name = (char(*)[64])dt__alloc_zero(n * sizeof *p->stage_name);
    p->split.user = p->parts.user = p;
    p->split.use = dt__pline_use;
    p->split.made = dt__pline_new_tensor;
    p->split.write = dt__pline_write;
    p->parts.stage = dt__pline_stage;
    p->parts.layer = dt__pline_layer;
    if (p->nin && p->nout && p->in && p->out && p->params_at && p->stage_name) return 0;
    return dt_fail(DT_ERR_MEMORY, "dt_pipeline: out of memory");
}
DT_API dt_pipe_profile *dt_pipe_profile_new(dt_model *m, dt_pipeline_fn fn, void *user, dt_tensor *x, dt_tensor *y,
                                            dt_pipe_balance how)
{
    if (!dt__model_ok("dt_pipe_profile_new", m)) return NULL;
    if (!fn || m->parts || (how != DT_BALANCE_MEASURED && how != DT_BALANCE_ESTIMATED)) {
        dt_fail(DT_ERR_ARG, "dt_pipe_profile_new: %s", !fn ? "the function is NULL" :
                m->parts ? "the model has a pipeline; take another one" :
                           "expected DT_BALANCE_MEASURED or DT_BALANCE_ESTIMATED");
        return NULL;
    }
    if (!dt__ok("dt_pipe_profile_new", "x", x) || (y && !dt__ok("dt_pipe_profile_new", "y", y))) return NULL;
    dt_pipeline     *p = (dt_pipeline *)dt__alloc_zero(sizeof *p);
    dt_model        *ghost = p ? dt__pline_copy(m, m->device) : NULL;
    dt_pipe_profile *f = NULL;
    if (p && ghost) {
        p->m = ghost;
        p->dev = m->device;
        p->o.balance = how;
        p->o.micro = p->o.chunks = p->ranks = p->stages = 1;
        ghost->parts = &p->parts;
        if (!dt__pline_alloc(p) && !dt__pline_notes(p, fn, user, x, y)) f = dt__pline_pieces(p);
        if (f) dt__pline_costs(p, f, fn, user, x, y);
    } else if (!p) dt_fail(DT_ERR_MEMORY, "dt_pipe_profile_new: out of memory");
    dt_pipeline_free(p);
    if (ghost) ghost->amp = NULL;
    dt_model_free(ghost);
    if (dt__err.code == DT_OK) return f;
    dt_pipe_profile_free(f);
    return NULL;
}
static dt_pipeline *dt__pline_new(dt_model *m, dt_comm *c, dt_grid *grid, dt_pipeline_opts o)
{
    if (!dt__model_ok("dt_pipeline_new", m)) return NULL;
    if (!c || dt_comm_get_status(c)) {
        dt_fail(c ? DT_ERR_COMM : DT_ERR_ARG, "dt_pipeline_new: the communicator %s", c ? "has failed" : "is NULL");
        return NULL;
    }
    if (o.memory < 0 || (int)o.balance < 0 || o.balance > DT_BALANCE_ESTIMATED) {
        dt_fail(DT_ERR_ARG, "dt_pipeline_new: .memory is %lld and .balance %d: expected 0 or more bytes, and DT_BALANCE_OFF, "
                "DT_BALANCE_MEASURED or DT_BALANCE_ESTIMATED", (long long)o.memory, (int)o.balance);
        return NULL;
    }
    if (m->nparams || (m->watch && !grid) || m->parts) {
        dt_fail(DT_ERR_STATE, "dt_pipeline_new: the model %s; make the pipeline before the first forward, and one pipeline "
                "for a model", m->nparams ? "has parameters already" : m->watch ? dt__watch_taken(m) : "has a pipeline already");
        return NULL;
    }
    dt_pipeline *p = (dt_pipeline *)dt__alloc_zero(sizeof *p);
    if (!p) {
        dt_fail(DT_ERR_MEMORY, "dt_pipeline_new: out of memory");
        return NULL;
    }
    p->m = m;
    p->o = o;
    p->grid = grid;
    p->dev = m->device;
    p->rank = dt_comm_rank(c);
    p->ranks = dt_comm_size(c);
    if (!p->o.micro) p->o.micro = p->ranks;
    if (!p->o.chunks) p->o.chunks = p->o.schedule == DT_PIPE_INTERLEAVED ? 2 : 1;
    dt_pipe_opts s = DT__NO_OPTIONS;
    s.kind = p->o.schedule;
    s.ranks = p->ranks;
    s.chunks = p->o.chunks;
    s.micro = p->o.micro;
    p->plan = dt_pipe_schedule_new_with(s);
    if (!p->plan) {
        dt_fail(DT_ERR_ARG, "dt_pipeline_new: %s", dt_plan_error());
        dt_mem_free(p, sizeof *p);
        return NULL;
    }
    p->stages = p->ranks * p->o.chunks;
    p->step_time = (double *)dt__alloc_zero((size_t)(2 * p->plan->nsteps / p->ranks) * sizeof *p->step_time);
    if (!p->step_time) dt_fail(DT_ERR_MEMORY, "dt_pipeline_new: out of memory");
    else if (!dt__pline_alloc(p) && dt_comm_dup(c, &p->c)) dt_fail(DT_ERR_COMM, "dt_pipeline_new: %s", dt_comm_error(c));
    if (dt__err.code == DT_OK) p->way = dt__pline_way(p);
    if (p->way == DT__LINE_DEVICE) p->peer = (dt__pline_peer *)dt__alloc_zero((size_t)p->ranks * sizeof *p->peer);
    if (p->way == DT__LINE_DEVICE && !p->peer) dt_fail(DT_ERR_MEMORY, "dt_pipeline_new: out of memory");
    p->watch.user = p;
    p->watch.step = dt__pline_on_step;
    p->watch.agree = dt__pline_agree;
    p->watch.same = dt__pline_same_on_all;
    p->watch.lead = dt__pline_lead;
    p->watch.outcome = dt__pline_outcome;
    p->watch.fetch = dt__pline_fetch;
    p->watch.whole_norm = dt__pline_whole_norm;
    p->watch.tell = dt__pline_on_tell;
    p->watch.gone = dt__pline_gone;
    p->watch.kind = DT__WATCH_PIPE;
    if (dt__err.code == DT_OK) {
        m->parts = &p->parts;
        dt__watch_add(m, &p->watch);
        return p;
    }
    dt_pipeline_free(p);
    return NULL;
}
DT_API dt_pipeline *dt_pipeline_new_with(dt_model *m, dt_comm *c, dt_pipeline_opts o) { return dt__pline_new(m, c, NULL, o); }
DT_API void dt_pipeline_free(dt_pipeline *p)
{
    if (!p) return;
    size_t n = (size_t)p->stages;
    dt__pline_tell_all(p);
    dt_ddp_free(p->ddp);
    dt_tensor_parallel_free(p->tensor);
    if (p->nin) dt__pline_plan_free(p);
    if (p->m && p->m->parts == &p->parts) p->m->parts = NULL;
    if (p->m) dt__watch_remove(p->m, &p->watch);
    if (p->c) dt_comm_free(p->c);
    while (p->page) dt__pline_page_free(p, p->page);
    if (p->copies) p->dev->be->stream_free(p->dev, p->copies);
    for (int r = 0; p->peer && r < p->ranks; r++)
        dt_mem_free(p->peer[r].list, (size_t)p->peer[r].cap * sizeof *p->peer[r].list);
    dt_mem_free(p->peer, (size_t)p->ranks * sizeof *p->peer);
    if (p->step_time) dt_mem_free(p->step_time, (size_t)(2 * p->plan->nsteps / p->ranks) * sizeof *p->step_time);
    dt_pipe_schedule_free(p->plan);
    dt_mem_free(p->nin, n * sizeof(int));
    dt_mem_free(p->nout, n * sizeof(int));
    dt_mem_free(p->in, n * sizeof(int *));
    dt_mem_free(p->out, n * sizeof(int *));
    dt_mem_free(p->params_at, (n + 1) * sizeof(int));
    dt_mem_free(p->stage_name, n * sizeof *p->stage_name);
    dt_mem_free(p->cut, n * sizeof(int));
    dt_mem_free(p->mark, (size_t)p->mark_cap * sizeof *p->mark);
    dt_pipe_profile_free(p->profile);
    dt_pipe_partition_free(p->partition);
    dt_mem_free(p->uses, (size_t)p->nuses);
    dt_mem_free(p->made, (size_t)p->made_cap * sizeof *p->made);
    dt_mem_free(p->used, (size_t)p->used_cap * sizeof *p->used);
    dt_mem_free(p->swap, (size_t)p->swap_cap * sizeof *p->swap);
    dt_mem_free(p->send, (size_t)p->send_cap * sizeof *p->send);
    dt_mem_free(p, sizeof *p);
}
static dt_pipe_times dt__pline_units(void)
{
    dt_pipe_times o = DT__NO_OPTIONS;
    o.forward = o.backward_input = o.backward_weight = 1;
    return o;
}
/* By how much the clock of this rank is ahead of rank 0's, in seconds: half of the shortest of several ways there and back is
   the error. On one machine all ranks have the same clock. */
static int dt__pline_clock(dt_pipeline *p, double *ahead)
{
    enum { TURNS = 8 };
    dt_msg_opts o = DT__NO_OPTIONS;
    int64_t     hosts[2];
    *ahead = 0;
    hosts[0] = dt_comm_local_size(p->c) == p->ranks ? 0 : 1;
    if (dt__pline_agree(p, "dt_pipeline_timing", hosts, 1) || !hosts[0]) return dt__err.code;
    o.tag = 1;
    double shortest = 1e9;
    for (int r = 1; r < p->ranks && dt__err.code == DT_OK; r++)
        for (int k = 0; k < TURNS && (p->rank == 0 || p->rank == r) && dt__err.code == DT_OK; k++) {
            double there = 0, since = 1e-9 * (double)dt_trace_now();
            int    bad;
            if (p->rank == r) { /* asks rank 0 what time it is */
                bad = dt_comm_send_with(p->c, &there, 1, DT_COMM_F64, 0, o) ||
                      dt_comm_recv_with(p->c, &there, 1, DT_COMM_F64, 0, o);
                double now = 1e-9 * (double)dt_trace_now();
                if (now - since < shortest) {
                    shortest = now - since;
                    *ahead = 0.5 * (since + now) - there;
                }
            } else {
                bad = dt_comm_recv_with(p->c, &there, 1, DT_COMM_F64, r, o);
                there = 1e-9 * (double)dt_trace_now();
                bad = bad || dt_comm_send_with(p->c, &there, 1, DT_COMM_F64, r, o);
            }
            if (bad) dt__pline_comm_fail(p, "dt_pipeline_timing");
        }
    return dt__err.code;
}
DT_API const dt_pipe_schedule *dt_pipeline_schedule(const dt_pipeline *p) { return p ? p->plan : NULL; }
DT_API dt_pipe_timing *dt_pipeline_timing(dt_pipeline *p)
{
    if (dt__err.code != DT_OK) return NULL;
    if (!p || !p->timed) {
        dt_fail(DT_ERR_STATE, "dt_pipeline_timing: %s", p ? "call dt_pipeline_backward before" : "the pipeline is NULL");
        if (p) dt__pline_tell(p);
        return NULL;
    }
    const dt_pipe_schedule *s = p->plan;
    dt_pipe_timing *t = dt_pipe_simulate_with(s, dt__pline_units()); /* for its memory, and .held */
    int64_t         each = s->nsteps / p->ranks;
    size_t          nbytes = (size_t)(2 * (s->nsteps + each)) * sizeof(double);
    double         *all = (double *)dt__alloc_zero(nbytes), ahead = 0, first = 0, busy = 0;
    if (!t || !all) dt_fail(DT_ERR_MEMORY, "dt_pipeline_timing: out of memory");
    else if (!dt__pline_clock(p, &ahead)) {
        double *mine = all + 2 * s->nsteps;
        for (int64_t i = 0; i < 2 * each; i++) mine[i] = p->step_time[i] - ahead;
        if (dt_comm_allgather(p->c, mine, all, 2 * each, NULL, DT_COMM_F64)) dt__pline_comm_fail(p, "dt_pipeline_timing");
    }
    if (dt__err.code == DT_OK) {
        for (int64_t i = 0; i < s->nsteps; i++) first = i == 0 || all[2 * i] < first ? all[2 * i] : first;
        t->seconds = 0;
        memset(t->busy, 0, (size_t)t->ranks * sizeof *t->busy);
        for (int64_t i = 0; i < s->nsteps; i++) {
            t->start[i] = all[2 * i] - first;
            t->end[i] = all[2 * i + 1] - first;
            t->busy[i / each] += t->end[i] - t->start[i];
            busy += t->end[i] - t->start[i];
            if (t->end[i] > t->seconds) t->seconds = t->end[i];
        }
        t->bubble = t->seconds > 0 ? 1 - busy / (t->seconds * p->ranks) : 0;
    } else dt__pline_tell(p);
    dt_mem_free(all, nbytes);
    if (dt__err.code == DT_OK) return t;
    dt_pipe_timing_free(t);
    return NULL;
}
static int dt__pline_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
DT_API dt_pipe_timing *dt_pipeline_planned(const dt_pipeline *p, const dt_pipe_timing *run)
{
    enum { OPS = DT_PIPE_BACKWARD_WEIGHT + 1 };
    if (dt__err.code != DT_OK) return NULL;
    if (!p || !run || run->nsteps != p->plan->nsteps) {
        dt_fail(DT_ERR_ARG, "dt_pipeline_planned: the pipeline or the times are NULL, or the times are of another schedule");
        return NULL;
    }
    const dt_pipe_schedule *s = p->plan;
    size_t          n = (size_t)p->stages, room = (size_t)p->o.micro;
    double         *median = (double *)dt__alloc_zero((OPS * n + room) * sizeof *median);
    double         *list = median ? median + OPS * n : NULL;
    dt_pipe_timing *t = NULL;
    dt_pipe_times   o = dt__pline_units();
    for (int op = 1; median && op < (int)OPS; op++)
        for (int stage = 0; stage < p->stages; stage++) {
            size_t k = 0;
            for (int64_t i = s->first[stage % p->ranks]; i < s->first[stage % p->ranks + 1]; i++)
                if (s->step[i].op == op && s->step[i].chunk == stage / p->ranks && k < room)
                    list[k++] = run->end[i] - run->start[i];
            qsort(list, k, sizeof *list, dt__pline_order);
            if (k) median[(size_t)op * n + (size_t)stage] = list[k / 2];
        }
    for (size_t i = 0; median && i < n; i++) /* a step for both gradients has the sum of their times */
        median[DT_PIPE_BACKWARD_INPUT * n + i] += median[DT_PIPE_BACKWARD * n + i];
    if (median) {
        o.forwards = median + DT_PIPE_FORWARD * n;
        o.backward_inputs = median + DT_PIPE_BACKWARD_INPUT * n;
        o.backward_weights = median + DT_PIPE_BACKWARD_WEIGHT * n;
        t = dt_pipe_simulate_with(s, o);
        if (!t) dt_fail(DT_ERR_ARG, "dt_pipeline_planned: %s", dt_plan_error());
    } else dt_fail(DT_ERR_MEMORY, "dt_pipeline_planned: out of memory");
    dt_mem_free(median, (OPS * n + room) * sizeof *median);
    return t;
}
DT_API int dt_pipeline_stages(const dt_pipeline *p) { return p ? p->stages : 0; }
DT_API int dt_pipeline_stage_of(const dt_pipeline *p, const char *parameter)
{
    for (int i = 0; p && p->uses && parameter && i < p->m->nparams; i++)
        if (!strcmp(p->m->param[i]->name, parameter))
            for (int s = 0; s < p->stages; s++)
                if (p->uses[i * p->stages + s]) return s;
    return -1;
}
DT_API size_t dt_pipeline_describe(const dt_pipeline *p, char *buf, size_t nbytes)
{
    size_t len = 0;
    if (buf && nbytes) buf[0] = 0;
    for (int s = 0; p && p->uses && s < p->stages; s++) {
        int64_t params = 0, in = 0;
        for (int i = 0; i < p->m->nparams; i++)
            if (p->uses[i * p->stages + s] && !p->m->param[i]->buffer) params += p->m->param[i]->t->numel;
        for (int k = 0; k < p->nin[s]; k++) in += p->edge[p->in[s][k]].nbytes;
        int n = snprintf(buf && len < nbytes ? buf + len : NULL, buf && len < nbytes ? nbytes - len : 0,
                         "stage %d '%s': rank %d, %lld parameters, receives %d tensors, %lld bytes, for each micro-batch\n",
                         s, p->stage_name[s], s % p->ranks, (long long)params, p->nin[s], (long long)in);
        len += n > 0 ? (size_t)n : 0;
    }
    if (len && p->partition)
        len += dt_pipe_partition_text(p->partition, p->profile->layers, buf && len < nbytes ? buf + len : NULL,
                                      buf && len < nbytes ? nbytes - len : 0);
    return len;
}
/* ==================================================================================================== >>axes */
struct dt_grid {
    dt_comm *axis[DT_AXES];
    int      size[DT_AXES], at[DT_AXES], ranks;
    int     *rank_at;         /* of each place: the rank of the communicator that the grid was made of */
    int     *host;            /* ... and its machine */
};
DT_API const char *dt_axis_name(dt_axis axis)
{
    static const char *const names[] = { "data", "pipe", "tensor" };
    return (unsigned)axis < (unsigned)DT_AXES ? names[axis] : "?";
}
static int dt__grid_place(const dt_grid *g, const int *at) /* the tensor axis is the innermost */
{
    return (at[DT_AXIS_DATA] * g->size[DT_AXIS_PIPE] + at[DT_AXIS_PIPE]) * g->size[DT_AXIS_TENSOR] + at[DT_AXIS_TENSOR];
}
DT__INSIDE void dt__grid_order(const int *host, int n, int *rank_at, int *host_at)
{
    for (int h = 0, at = 0; at < n; h++) /* in the order of machines, then of ranks */
        for (int r = 0; r < n; r++) {
            if (host[r] != h) continue;
            host_at[at] = h;
            rank_at[at++] = r;
        }
}
static int dt__grid_sizes(dt_grid *g, dt_comm *c, dt_grid_opts o)
{
    int64_t rest, both[2 * DT_AXES];
    g->ranks = dt_comm_size(c);
    g->size[DT_AXIS_PIPE] = o.pipe ? o.pipe : 1;
    g->size[DT_AXIS_TENSOR] = o.tensor ? o.tensor : 1;
    g->size[DT_AXIS_DATA] = o.data;
    if (o.data < 0 || o.pipe < 0 || o.tensor < 0)
        return dt_fail(DT_ERR_ARG, "dt_grid_new: .data is %d, .pipe %d, .tensor %d: they must not be negative", o.data, o.pipe, o.tensor);
    rest = (int64_t)g->size[DT_AXIS_PIPE] * g->size[DT_AXIS_TENSOR];
    if (!o.data && g->ranks % rest == 0) g->size[DT_AXIS_DATA] = (int)(g->ranks / rest);
    for (int a = 0; a < DT_AXES; a++) both[a] = g->size[a], both[DT_AXES + a] = -both[a];
    if (dt_comm_allreduce(c, both, 2 * DT_AXES, DT_COMM_I64, DT_COMM_MAX)) return dt_fail(DT_ERR_COMM, "dt_grid_new: %s", dt_comm_error(c));
    for (int a = DT_AXES - 1; a >= 0; a--) /* .data may follow from the others */
        if (both[a] != -both[DT_AXES + a])
            return dt_fail(DT_ERR_ARG, "dt_grid_new: the ranks have different options: .%s is %d on this rank (%d), and between %" PRId64
                           " and %" PRId64 " on all; give all the same", dt_axis_name((dt_axis)a), g->size[a], dt_comm_rank(c),
                           -both[DT_AXES + a], both[a]);
    if (rest * g->size[DT_AXIS_DATA] != g->ranks || !g->size[DT_AXIS_DATA]) {
        char data[24] = "";
        if (g->size[DT_AXIS_DATA]) snprintf(data, sizeof data, "%d x ", g->size[DT_AXIS_DATA]);
        return dt_fail(DT_ERR_ARG, "dt_grid_new: data x pipe x tensor is %s%d x %d%s, but there are %d ranks; the product must be the "
                       "number of ranks", data, g->size[DT_AXIS_PIPE], g->size[DT_AXIS_TENSOR],
                       g->size[DT_AXIS_DATA] ? "" : ", which does not divide them", g->ranks);
    }
    return 0;
}
DT_API dt_grid *dt_grid_new_with(dt_comm *c, dt_grid_opts o)
{
    if (dt__err.code != DT_OK) return NULL;
    if (!c || dt_comm_get_status(c)) {
        dt_fail(c ? DT_ERR_COMM : DT_ERR_ARG, "dt_grid_new: the communicator %s", c ? "has failed" : "is NULL");
        return NULL;
    }
    dt_grid *g = (dt_grid *)dt__alloc_zero(sizeof *g);
    if (g) {
        g->ranks = dt_comm_size(c);
        g->rank_at = (int *)dt__alloc_zero((size_t)g->ranks * sizeof(int));
        g->host = (int *)dt__alloc_zero((size_t)g->ranks * sizeof(int));
    }
    int *hosts = (int *)dt__alloc_zero((size_t)dt_comm_size(c) * sizeof *hosts);
    if (!g || !g->rank_at || !g->host || !hosts) {
        dt_fail(DT_ERR_MEMORY, "dt_grid_new: out of memory");
        dt_comm_abort(c, dt_error());
    } else if (!dt__grid_sizes(g, c, o)) {
        int mine = 0;
        for (int r = 0; r < g->ranks; r++) hosts[r] = dt_comm_host(c, r);
        dt__grid_order(hosts, g->ranks, g->rank_at, g->host);
        while (g->rank_at[mine] != dt_comm_rank(c)) mine++;
        g->at[DT_AXIS_TENSOR] = mine % g->size[DT_AXIS_TENSOR];
        g->at[DT_AXIS_PIPE] = mine / g->size[DT_AXIS_TENSOR] % g->size[DT_AXIS_PIPE];
        g->at[DT_AXIS_DATA] = mine / g->size[DT_AXIS_TENSOR] / g->size[DT_AXIS_PIPE];
        for (int a = 0; a < DT_AXES && dt__err.code == DT_OK; a++) {
            int first[DT_AXES];
            memcpy(first, g->at, sizeof first);
            first[a] = 0;
            if (dt_comm_split(c, dt__grid_place(g, first), g->at[a], &g->axis[a])) dt_fail(DT_ERR_COMM, "dt_grid_new: %s", dt_comm_error(c));
        }
    }
    dt_mem_free(hosts, (size_t)dt_comm_size(c) * sizeof *hosts);
    if (dt__err.code == DT_OK) return g;
    dt_grid_free(g);
    return NULL;
}
DT_API void dt_grid_free(dt_grid *g)
{
    if (!g) return;
    for (int a = 0; a < DT_AXES; a++) {
        if (g->axis[a] && dt__err.code != DT_OK) dt_comm_abort(g->axis[a], dt_error());
        if (g->axis[a]) dt_comm_free(g->axis[a]);
    }
    dt_mem_free(g->rank_at, (size_t)g->ranks * sizeof(int));
    dt_mem_free(g->host, (size_t)g->ranks * sizeof(int));
    dt_mem_free(g, sizeof *g);
}
DT_API dt_comm *dt_grid_comm(const dt_grid *g, dt_axis axis) { return g && (unsigned)axis < (unsigned)DT_AXES ? g->axis[axis] : NULL; }
DT_API int dt_grid_rank(const dt_grid *g, dt_axis axis) { return g && (unsigned)axis < (unsigned)DT_AXES ? g->at[axis] : 0; }
DT_API int dt_grid_size(const dt_grid *g, dt_axis axis) { return g && (unsigned)axis < (unsigned)DT_AXES ? g->size[axis] : 1; }
DT_API int dt_grid_at(const dt_grid *g, int data, int pipe, int tensor)
{
    int at[DT_AXES];
    at[DT_AXIS_DATA] = data, at[DT_AXIS_PIPE] = pipe, at[DT_AXIS_TENSOR] = tensor;
    for (int a = 0; a < DT_AXES; a++)
        if (!g || at[a] < 0 || at[a] >= g->size[a]) return -1;
    return g->rank_at[dt__grid_place(g, at)];
}
DT_API size_t dt_grid_describe(const dt_grid *g, char *buf, size_t nbytes)
{
    size_t len = 0;
    if (buf && nbytes) buf[0] = 0;
    for (int i = 0; g && i < g->ranks; i++) {
        int t = i % g->size[DT_AXIS_TENSOR], p = i / g->size[DT_AXIS_TENSOR] % g->size[DT_AXIS_PIPE];
        int n = snprintf(buf && len < nbytes ? buf + len : NULL, buf && len < nbytes ? nbytes - len : 0,
                         "data %d, pipe %d, tensor %d: rank %d on machine %d\n", i / g->size[DT_AXIS_TENSOR] / g->size[DT_AXIS_PIPE], p, t,
                         g->rank_at[i], g->host[i]);
        len += n > 0 ? (size_t)n : 0;
    }
    return len;
}
static bool dt__grid_leads(const dt_grid *g) { return !g || (g->at[DT_AXIS_DATA] == 0 && g->at[DT_AXIS_TENSOR] == 0); }
/* Ranks of one place on the pipe axis get the numbers of the first of them. */
static int dt__grid_spread(dt_grid *g, double *x, int64_t n)
{
    static const dt_axis order[] = { DT_AXIS_TENSOR, DT_AXIS_DATA };
    for (int i = 0; i < 2; i++)
        if (dt_comm_broadcast(g->axis[order[i]], x, n, DT_COMM_F64, 0))
            return dt__axis_fail(g, order[i], g->axis[order[i]], "dt_pipeline");
    return 0;
}

/* ==================================================================================================== >>splitting
   All functions run on the thread that uses the model. reduce and gather are called by the layers of dt_nn.h, in the order of
   the forward and of the backward, which is the same on all ranks of the axis; the others by dt_step, checkpoints and the seal. */
struct dt_tensor_parallel {
    dt_model *m; /* NULL after the model was freed */
    dt_comm  *c; /* a duplicate */
    dt_grid  *grid;
    dt__split_axis  axis;
    dt__watch watch;
    bool      told, checks; /* checks: dt_step looks for gradients that are not finite, because no ddp does */
    dt_tensor_parallel_stats stats;
};
static int dt__tensor_fail(dt_tensor_parallel *t, const char *call)
{
    return dt__axis_fail(t->grid, DT_AXIS_TENSOR, t->c, call);
}
static char *dt__tensor_data(const dt_tensor *t)
{
    return (char *)t->st->ptr + t->offset * (int64_t)dt__dtype_size[t->dtype];
}
static void dt__tensor_count(dt_tensor_parallel *t, const dt_tensor *x)
{
    if (dt__tls.in_backward) t->stats.backward++;
    else t->stats.forward++;
    t->stats.nbytes += x->numel * (int64_t)dt__dtype_size[x->dtype];
}
/* A collective on tensors. On a device whose memory the communicator cannot use, through copies in host memory. `from` and `to` may be
   one tensor. */
static int dt__tensor_collective(dt_tensor_parallel *t, const char *what, const dt_tensor *from, dt_tensor *to, bool gather, bool max)
{
    size_t in = (size_t)from->numel * dt__dtype_size[from->dtype], out = gather ? in * (size_t)t->axis.size : in;
    bool   staged = from->st->dev != dt_cpu() && !dt_comm_options(t->c)->backend;
    char  *host = staged ? (char *)dt_mem_alloc(in + out) : NULL, *x = dt__tensor_data(from), *y = dt__tensor_data(to);
    int    rc = 0, bad = 0;
    dt__tensor_count(t, from);
    if (staged) {
        if (!host) return dt_fail(DT_ERR_MEMORY, "%s: out of memory for %zu bytes on their way to other ranks", what, in + out);
        x = host;
        y = gather ? host + in : host;
        rc = dt__download(from, x);
    }
    if (!rc) bad = gather ? dt_comm_allgather(t->c, x, y, from->numel, NULL, from->dtype)
                          : dt_comm_allreduce(t->c, y, from->numel, from->dtype, max ? DT_COMM_MAX : DT_COMM_SUM);
    if (bad) rc = dt__tensor_fail(t, what);
    if (!rc && staged) rc = dt__upload(to, y);
    dt_mem_free(host, in + out);
    return rc;
}
static int dt__tensor_reduce(void *user, const char *what, dt_tensor *x, bool max)
{
    return dt__tensor_collective((dt_tensor_parallel *)user, what, x, x, false, max);
}
static int dt__tensor_gather(void *user, const char *what, dt_tensor *all, const dt_tensor *x)
{
    return dt__tensor_collective((dt_tensor_parallel *)user, what, x, all, true, false);
}
static void dt__tensor_tell(void *user)
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    if (t->told || !t->c || dt__err.code == DT_OK) return;
    t->told = true;
    dt_comm_abort(t->c, dt_error());
}
static int dt__tensor_agree(void *user, const char *call, int64_t *x, int n)
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    return dt_comm_allreduce(t->c, x, n, DT_COMM_I64, DT_COMM_MAX) ? dt__tensor_fail(t, call) : 0;
}
static int dt__tensor_same(void *user, const char *call, const char *what, int64_t x)
{
    int64_t both[2];
    both[0] = x, both[1] = -x;
    if (dt__tensor_agree(user, call, both, 2)) return dt__err.code;
    return both[0] == -both[1] ? 0 : dt__axes_differ(call, what, x, both);
}
/* Is a gradient not finite? 1 + its place in m->order, or 0. */
static int dt__tensor_bad(dt_tensor_parallel *t, int64_t *bad)
{
    dt_model *m = t->m;
    int64_t   one = 1;
    int       rc = 0;
    for (int i = 0; i < m->nblocks && !rc && !*bad; i++) {
        const dt__mblock *b = &m->block[i];
        dt_tensor        *g = b->use_mgrad ? b->mgrad : b->b.grad, *flag;
        bool              any = false;
        for (int k = 0; k < b->n; k++) any = any || dt__has_grad(b, m->order[b->first + k]);
        if (!any || dt__is_ghost(b->b.value)) continue;
        flag = dt__new("dt_step", g->st->dev, DT_F32, &one, 1, DT_LAYOUT_PLAIN);
        if (!flag) return DT_ERR_MEMORY;
        for (int k = -1; k < b->n && !rc && !*bad; k++) { /* -1: the whole block; then, if there is one, parameter by parameter */
            const dt__param *p = k < 0 ? NULL : m->order[b->first + k];
            float            found = 0;
            dt_call          c;
            if (p && !dt__has_grad(b, p)) continue;
            rc = dt__fill(flag, 0);
            dt__call_begin(&c, DT_K_unscale);
            c.u.ew.a = 1;
            dt__out(&c, NULL);
            dt__out(&c, flag);
            dt__in(&c, g);
            if (p) dt__view_part(&c.in[0], p->offset, p->t->numel);
            if (!rc) rc = dt__go(g->st->dev, &c);
            if (!rc) rc = dt__download(flag, &found);
            if (!p && found == 0) break;
            if (p && found != 0) *bad = b->first + k + 1;
        }
        dt__unref(flag);
    }
    return rc;
}
static void dt__tensor_step(void *user, dt_optimizer *opt)
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    dt_model           *m = t->m;
    int64_t             x[2 + DT__MAX_LOSSES];
    (void)opt;
    if (dt__err.code != DT_OK) {
        dt__watch_tell(m);
        return;
    }
    if (!m->sealed) return;
    memset(x, 0, sizeof x);
    int n = m->amp ? m->amp->nlosses : 0, rank = t->axis.rank;
    for (int i = 0; i < n; i++) x[2 + i] = m->amp->scaler[i].found;
    if (!(m->amp && m->amp->dynamic) && t->checks) dt__tensor_bad(t, &x[0]);
    x[1] = x[0] ? rank + 1 : 0;
    x[0] = x[0] ? ((int64_t)(rank + 1) << 32 | x[0]) : 0;
    if (dt__err.code == DT_OK) dt__tensor_agree(t, "dt_step", x, 2 + n);
    for (int i = 0; i < n && dt__err.code == DT_OK; i++) {
        if (!x[2 + i] || m->amp->scaler[i].found) continue;
        m->amp->scaler[i].found = 1; /* one overflow is everyone's */
        for (int k = 0; k < m->nopts; k++) m->opt[k]->skip = 1;
    }
    int at = (int)(x[0] & 0xffffffff) - 1, bad = (int)(x[0] >> 32) - 1;
    if (dt__err.code == DT_OK && x[0]) {
        t->told = true; /* all ranks of the axis report this error */
        for (int i = 0; i < m->nblocks; i++) {
            dt_block_zero_grad(&m->block[i].b);
            m->block[i].use_mgrad = 0;
        }
        dt_fail(DT_ERR_NUMERIC, "dt_step: on rank %d of the tensor axis the gradient of '%s' is not finite; weights and optimiser are "
                "unchanged on all ranks: check the batch, use a smaller .lr, or set .clip_norm", bad,
                at >= 0 && at < m->norder && m->order[at] ? m->order[at]->name : "?");
    }
    if (dt__err.code != DT_OK) dt__watch_tell(m);
}
static int dt__tensor_lead(void *user) { return ((dt_tensor_parallel *)user)->axis.rank == 0; }
static int dt__tensor_outcome(void *user, const char *call)
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    return dt__axis_outcome(t->c, t->axis.rank, &t->told) > 0 ? dt__tensor_fail(t, call) : 0;
}
/* Parts are collected when they are added to an archive (dt__cut_whole): all ranks of the axis must come there. */
static dt_tensor *dt__tensor_fetch(void *user, const char *call, dt_tensor *x)
{
    (void)user, (void)call, (void)x;
    return NULL;
}
static int dt__tensor_whole_norm(void *user, float *norm)
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    double              sum = (double)*norm * (double)*norm;
    if (dt_comm_allreduce(t->c, &sum, 1, DT_COMM_F64, DT_COMM_SUM)) return dt__tensor_fail(t, "dt_step");
    *norm = (float)sqrt(sum);
    return 0;
}
static int dt__tensor_part_norms(void *user, const dt__run *run, dt_tensor *norms)
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    dt__param         **p = t->m->order + run->first;
    int                 n = 2 * run->nparams - 1, cut = 0, rc = 0;
    size_t              nbytes = (size_t)run->nparams * sizeof(double), all = (size_t)n * sizeof(float);
    for (int i = 0; i < run->nparams; i++) cut += p[i]->cut.parts > 0;
    if (!cut) return 0;
    float  *x = (float *)dt_mem_alloc(all);
    double *squares = (double *)dt_mem_alloc(nbytes);
    if (!x || !squares) rc = dt_fail(DT_ERR_MEMORY, "dt_step: out of memory for %d norms", n);
    if (!rc) rc = dt__download(norms, x);
    for (int i = 0, k = 0; i < run->nparams && !rc; i++)
        if (p[i]->cut.parts) squares[k++] = (double)x[2 * i] * (double)x[2 * i];
    if (!rc && dt_comm_allreduce(t->c, squares, cut, DT_COMM_F64, DT_COMM_SUM)) rc = dt__tensor_fail(t, "dt_step");
    for (int i = 0, k = 0; i < run->nparams && !rc; i++)
        if (p[i]->cut.parts) x[2 * i] = (float)sqrt(squares[k++]);
    if (!rc) rc = dt__upload(norms, x);
    dt_mem_free(x, all);
    dt_mem_free(squares, nbytes);
    return rc;
}
static void dt__tensor_gone(void *user) { ((dt_tensor_parallel *)user)->m = NULL; }
static int dt__tensor_on_seal(dt_model *m, void *user) /* user may be freed: it is valid only if m->watch has it */
{
    dt_tensor_parallel *t = (dt_tensor_parallel *)user;
    if (!dt__watch_find(m, user)) return 0;
    for (int i = 0; i < m->nparams; i++)
        if (!m->param[i]->cut.parts && t->axis.rank > 0) m->param[i]->elsewhere = 1;
    int rc = dt__same_models("dt_tensor_parallel", m, t->c, true);
    if (rc > 0) return dt__tensor_fail(t, "dt_tensor_parallel");
    if (rc && dt__err.code == DT_ERR_COMM) t->told = true; /* all ranks of the axis report this error */
    return rc;
}
static dt_tensor_parallel *dt__tensor_new(dt_model *m, dt_comm *c, dt_grid *grid)
{
    static const char call[] = "dt_tensor_parallel_new";
    if (!dt__model_ok(call, m)) return NULL;
    if (!c || dt_comm_get_status(c)) {
        dt_fail(c ? DT_ERR_COMM : DT_ERR_ARG, "%s: the communicator %s", call, c ? "has failed" : "is NULL");
        return NULL;
    }
    if (m->nparams || m->watch || m->parts) {
        dt_fail(DT_ERR_STATE, "%s: the model %s; call it before the first forward. With data or pipeline parallel together: dt_hybrid_new",
                call, m->nparams ? "has parameters already" : m->watch ? dt__watch_taken(m) : "has a pipeline already");
        return NULL;
    }
    dt_tensor_parallel *t = (dt_tensor_parallel *)dt__alloc_zero(sizeof *t);
    if (!t) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    if (dt_comm_dup(c, &t->c)) dt_fail(DT_ERR_COMM, "%s: %s", call, dt_comm_error(c));
    t->m = m;
    t->grid = grid;
    t->checks = true;
    t->axis.user = t->watch.user = t;
    t->axis.rank = dt_comm_rank(c);
    t->axis.size = dt_comm_size(c);
    t->axis.reduce = dt__tensor_reduce;
    t->axis.gather = dt__tensor_gather;
    t->watch.kind = DT__WATCH_SPLIT;
    t->watch.step = dt__tensor_step;
    t->watch.agree = dt__tensor_agree;
    t->watch.same = dt__tensor_same;
    t->watch.lead = dt__tensor_lead;
    t->watch.outcome = dt__tensor_outcome;
    t->watch.fetch = dt__tensor_fetch;
    t->watch.whole_norm = dt__tensor_whole_norm;
    t->watch.part_norms = dt__tensor_part_norms;
    t->watch.tell = dt__tensor_tell;
    t->watch.gone = dt__tensor_gone;
    if (dt__err.code == DT_OK && t->axis.size > 1) {
        dt__watch_add(m, &t->watch);
        m->axis = &t->axis;
        dt__model_on_seal(m, dt__tensor_on_seal, t);
    }
    if (dt__err.code == DT_OK) return t;
    dt_tensor_parallel_free(t);
    return NULL;
}
DT_API dt_tensor_parallel *dt_tensor_parallel_new(dt_model *m, dt_comm *c) { return dt__tensor_new(m, c, NULL); }
DT_API void dt_tensor_parallel_free(dt_tensor_parallel *t)
{
    if (!t) return;
    dt__tensor_tell(t);
    if (t->m && t->m->axis == &t->axis) t->m->axis = NULL;
    if (t->m) dt__watch_remove(t->m, &t->watch);
    if (t->c) dt_comm_free(t->c);
    dt_mem_free(t, sizeof *t);
}
DT_API dt_tensor_parallel_stats dt_tensor_parallel_get_stats(const dt_tensor_parallel *t)
{
    dt_tensor_parallel_stats none;
    memset(&none, 0, sizeof none);
    return t ? t->stats : none;
}

/* ==================================================================================================== >>hybrid */
static int dt__hybrid_agree(dt_pipeline *p, const char *call, double *all) /* the mean loss, one verdict on overflows */
{
    dt_comm *data = p->grid->axis[DT_AXIS_DATA];
    int64_t  found = all[1] > 0;
    if (p->ddp && dt_comm_allreduce(data, all, 1, DT_COMM_F64, DT_COMM_SUM)) return dt__axis_fail(p->grid, DT_AXIS_DATA, data, call);
    all[0] /= p->ddp ? p->grid->size[DT_AXIS_DATA] : 1;
    if (dt__watch_agree(p->m, call, &found, 1)) return dt__err.code;
    all[1] = (double)found;
    return 0;
}
static int dt__hybrid_hash(dt_sha256 *h, const char *call, dt_tensor *t)
{
    dt_tensor *d = t ? dt__dense(call, t) : NULL;
    size_t     nbytes = d ? (size_t)d->numel * dt__dtype_size[d->dtype] : 0;
    void      *host = d ? dt_mem_alloc(nbytes + 1) : NULL;
    int        rc = !t ? 0 : host ? dt__download(d, host) : dt_fail(DT_ERR_MEMORY, "%s: out of memory for a copy of the batch", call);
    if (!rc && host) dt_sha256_add(h, host, nbytes);
    dt_mem_free(host, nbytes + 1);
    dt__unref(d);
    return rc;
}
/* Ranks that differ only on the pipe or tensor axis must have the same samples. */
static int dt__hybrid_same_batch(dt_pipeline *p, const char *call, dt_tensor *x, dt_tensor *y)
{
    static const dt_axis axes[] = { DT_AXIS_PIPE, DT_AXIS_TENSOR };
    dt_sha256 h;
    uint8_t   sum[32], first[32];
    dt_sha256_begin(&h);
    if (dt__hybrid_hash(&h, call, x) || dt__hybrid_hash(&h, call, y)) return dt__err.code;
    dt_sha256_end(&h, sum);
    for (int i = 0; i < 2; i++) {
        dt_comm *c = p->grid->axis[axes[i]];
        int64_t  bad;
        memcpy(first, sum, sizeof first);
        if (dt_comm_broadcast(c, first, (int64_t)sizeof first, DT_COMM_U8, 0)) return dt__axis_fail(p->grid, axes[i], c, call);
        bad = memcmp(first, sum, sizeof sum) ? p->grid->at[axes[i]] : 0;
        if (dt_comm_allreduce(c, &bad, 1, DT_COMM_I64, DT_COMM_MAX)) return dt__axis_fail(p->grid, axes[i], c, call);
        if (bad)
            return dt_fail(DT_ERR_ARG, "%s: rank %d of the %s axis has other samples than rank 0 of it (their SHA-256 differs); give the loader "
                           ".rank and .world of the data axis: dt_grid_rank(g, DT_AXIS_DATA), dt_grid_size(g, DT_AXIS_DATA)", call, (int)bad,
                           dt_axis_name(axes[i]));
    }
    return 0;
}
static int dt__hybrid_same_options(dt_grid *g, const dt_pipeline_opts *o)
{
    static const char *const name[] = { "micro", "schedule", "chunks", "recompute", "balance" };
    enum { N = sizeof name / sizeof *name };
    int64_t both[2 * N];
    both[0] = o->micro, both[1] = (int64_t)o->schedule, both[2] = o->chunks, both[3] = o->recompute, both[4] = (int64_t)o->balance;
    for (int i = 0; i < N; i++) both[N + i] = -both[i];
    for (int a = 0; a < DT_AXES; a++)
        if (dt_comm_allreduce(g->axis[a], both, 2 * N, DT_COMM_I64, DT_COMM_MAX))
            return dt__axis_fail(g, (dt_axis)a, g->axis[a], "dt_hybrid_new");
    for (int i = 0; i < N; i++)
        if (both[i] != -both[N + i])
            return dt_fail(DT_ERR_ARG, "dt_hybrid_new: the ranks have different options: .%s is between %" PRId64 " and %" PRId64
                           "; give all ranks of the grid the same", name[i], -both[N + i], both[i]);
    return 0;
}
DT_API dt_pipeline *dt_hybrid_new_with(dt_model *m, dt_grid *g, dt_pipeline_opts o)
{
    dt_pipeline        *p = NULL;
    dt_ddp             *ddp = NULL;
    dt_tensor_parallel *t = NULL;
    dt_ddp_opts         d = DT__NO_OPTIONS;
    if (!dt__model_ok("dt_hybrid_new", m)) return NULL;
    if (!g) {
        dt_fail(DT_ERR_ARG, "dt_hybrid_new: the grid is NULL");
        return NULL;
    }
    if (m->nparams || m->watch || m->parts) {
        dt_fail(DT_ERR_STATE, "dt_hybrid_new: the model %s; call it before the first forward, once for a model",
                m->nparams ? "has parameters already" : m->watch ? dt__watch_taken(m) : "has a pipeline already");
        for (int a = 0; a < DT_AXES; a++) dt_comm_abort(g->axis[a], dt_error());
        return NULL;
    }
    dt__hybrid_same_options(g, &o);
    if (dt__err.code == DT_OK && g->size[DT_AXIS_TENSOR] > 1) t = dt__tensor_new(m, g->axis[DT_AXIS_TENSOR], g);
    if (dt__err.code == DT_OK && g->size[DT_AXIS_DATA] > 1) ddp = dt__ddp_make(m, g->axis[DT_AXIS_DATA], d, DT__DDP_DRIVEN);
    if (dt__err.code == DT_OK) p = dt__pline_new(m, g->axis[DT_AXIS_PIPE], g, o);
    if (p) {
        p->ddp = ddp;
        p->tensor = t;
        if (t) t->checks = !ddp;
        return p;
    }
    for (int a = 0; a < DT_AXES; a++) dt_comm_abort(g->axis[a], dt_error());
    dt_ddp_free(ddp);
    dt_tensor_parallel_free(t);
    return NULL;
}
DT__SLOW_END
#ifdef __cplusplus
}
#endif
#endif /* DT_PIPE_IMPLEMENTATION */
