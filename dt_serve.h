/* dt_serve.h - v0.2.0 - a model on a parameter server */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_serve.h"
    In every other file that uses it:           #include "dt_serve.h"

    dt_dist.h, dt_ps.h and the headers that they include must lie beside it. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_serve.h"
    #include <stdio.h>

    static int rank_main(void *arg)
    {
        dt_comm      *c = dt_comm_init();
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
        dt_ps        *store = dt_ps_new(c);                        // every rank is a worker and a server
        dt_ps_model  *pm = dt_ps_attach(m, opt, store);
        for (int i = 0; i < 100; i++) {
            dt_tensor *x = dt_normal(0, 1, DT_SHAPE(32, 4)), *y = dt_sum(x, .dims = DT_DIM(1), .keepdim = true);
            dt_backward(dt_mse_loss(dt_linear(m, "fc", x, .out = 1), y));
            dt_step(opt);
        }
        if (dt_ps_worker(store) == 0) printf("%.2f\n", dt_item(dt_sum(dt_model_find(m, "fc.weight"))));
        dt_ps_detach(pm);
        dt_ps_free(store);
        dt_optimizer_free(opt);
        dt_model_free(m);
        dt_comm_free(c);
        (void)arg;
        return dt_check("worker");
    }
    int main(void) { return dt_spawn(2, rank_main, NULL); }

WHAT IT DOES NOT DO

    No update function of the program: the servers run the optimisers of dt_nn.h (dt_ps_on_update of dt_ps.h has functions of the
    program, without a model). Pushes do not overlap with the backward. Models on GPUs pass their gradients through the host.

CONTENTS

    >>attach         parameters and optimiser on the servers of dt_ps.h
    >>serving        implementation from here: threads, keys, states; the types
    >>updates        what a server does with the pushes of an update
    >>agreements     sums over all workers that are alive
    >>values         parameters and buffers, on the host
    >>seal           comparing models; the arrays of an exchange
    >>exchange       dt_step: pushing, waiting, pulling
    >>cancelling     a backward that others made useless
    >>collecting     what all workers do together during the training
    >>saving         checkpoints
    >>calls          the public functions

ERRORS

    As in dt.h. An error of the store is DT_ERR_COMM with its message, on all workers. A worker whose own program fails is
    missing to the others, who go on, or fail if the store has .fail_on_death.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_SERVE_IMPLEMENTATION)
#define DT_SERVE_IMPLEMENTATION
#endif
#include "dt_dist.h"
#include "dt_ps.h"

#ifndef DT_SERVE_H_INCLUDED
#define DT_SERVE_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_serve.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>attach
   A model whose parameters and optimiser are on the servers of a store (dt_ps.h). dt_ps_attach takes the place of dt_ddp_new;
   the training loop stays as it is:

       dt_comm     *c = dt_comm_init();
       dt_ps       *store = dt_ps_new(c, .servers = 1);
       dt_ps_model *pm = dt_ps_attach(m, opt, store, .mode = DT_PS_K_ASYNC, .k = 3);
       if (dt_ps_worker(store) < 0) dt_ps_serve(store);            a rank that is a server only
       else
           for (int64_t n; (n = dt_ps_next_batch(pm)) >= 0;) {
               dt_batch b;
               dt_loader_get(in, n, &b);
               dt_backward(dt_cross_entropy(net(m, b.x), b.y));
               dt_step(opt);                                       pushes the gradients, pulls the new parameters
           }
       dt_ps_detach(pm); dt_ps_free(store); dt_comm_free(c);

   All ranks call dt_ps_attach, with the same options, optimiser and groups; on the servers the optimiser's options and
   .scheduler are what counts. Add groups first. Parameters and buffers get worker 0's values when they are created. When the
   model is sealed, all workers must have the same parameters, all of them of this optimiser or frozen.

   dt_step(opt) pushes all gradients, in f32 and without loss scale, waits as the discipline says (>>store of dt_ps.h), and
   pulls the parameters. The servers make the update, with the kernels of dt_step: the optimiser of the worker does nothing. An
   update of several pushes uses their mean: the sum in the order of the workers, times 1/n. So P workers with DT_PS_SYNC give
   the bits of one process that adds P gradients in this order; a ddp with .slots = P adds them as a tree, which is the same
   for P = 2. A parameter that no push of an update has a gradient for does not change. .clip_value limits the mean. .clip_norm
   limits the norm of the whole mean. With several servers each adds up the squares of its part, and the sum over the servers, in
   double, gives the norm: the same on all servers, but not the same bits as that of one process. LARS and LAMB need norms of
   whole parameters, so their parameters are not cut over servers.

   .scheduler: the servers use a copy of it, whose step is the number of the update; the program does not step it. After each
   dt_step the scheduler of a worker is where the servers are, too, so dt_optimizer_lr is right. Other changes of the
   optimiser's options (dt_optimizer_set_lr) do not reach the servers.

   Cancellation (DT_PS_K_SYNC, DT_PS_K_BATCH_SYNC): when others have made the update, dt_backward stops before the next layer
   and returns DT_OK; gradients are dropped, and dt_step only pulls.

   A gradient that is not finite is DT_ERR_NUMERIC on that worker, and nothing is pushed. Under dt_amp with a dynamic scale the
   worker reduces its scale and pulls only: it computes the same batch again.

   With .codec = { .kind = DT_CODEC_TOPK, .ratio = 0.1 } a tenth of the gradients is sent, the largest of each parameter, and the rest
   is added to those of the next step. Parameters come back whole. What was not sent is not in checkpoints: a resumed training
   begins without it. A gradient that is too large for the codec (f16) is DT_ERR_NUMERIC, and nothing is pushed.

   Workers may die, and join later, if the communicator is tolerant (with .room). The others go on, unless the store has
   .fail_on_death: then dt_step is an error everywhere. A process that has joined (dt_comm_join) makes store, model and optimiser as
   the others did and calls dt_ps_attach, which waits until the others have had their first backward. With DT_PS_SYNC it also
   waits until all others are in dt_step; from this update on they wait for the newcomer, also in dt_ps_collect and when
   checkpoints are written. With the other modes the newcomer takes no part in these: its dt_ps_collect only pulls, it writes no
   checkpoint, and the others do not wait for it; what it pushes while a checkpoint is written may be in some parameters of the file and
   not in others. A newcomer does not call dt_checkpoint_resume.

   Buffers (running statistics of batch norms) stay with each worker. dt_ps_collect and checkpoints give all workers those of
   the first worker that is alive, or with .average_buffers the mean of all (integers: the first worker's). */
typedef struct dt_ps_model dt_ps_model; /* a model whose parameters are on servers */
typedef struct dt_ps_attach_opts {
    int           dt__first DT_D;
    int           mode DT_D;          /* these eight: as in dt_ps_discipline */
    int           k DT_D;
    int           staleness DT_D;
    int           max_staleness DT_D;
    bool          scale_by_staleness DT_D;
    bool          drop_batches DT_D;
    int64_t       batches DT_D;
    dt_codec      codec DT_D;         /* of the gradients on their way to the servers, with error feedback: CODECS in dt_ps.h */
    dt_scheduler *scheduler DT_D;     /* of the optimiser, before its first step; not a plateau scheduler */
    bool          average_buffers DT_D;
} dt_ps_attach_opts;
/* Collective over the ranks of the store's communicator that are there at the start. The model needs the thread that calls it, as
   with dt_ddp_new. The store serves one model, and all its keys. NULL on error. */
DT_API dt_ps_model *dt_ps_attach_with(dt_model *m, dt_optimizer *opt, dt_ps *store,
                                      dt_ps_attach_opts o DT_OPT0(dt_ps_attach_opts));
#ifdef DT__LIT
#define dt_ps_attach(m, opt, ...) dt_ps_attach_with(m, opt, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_ps_attach_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_ps_attach dt_ps_attach_with
#endif
DT_API void dt_ps_detach(dt_ps_model *pm); /* the model keeps its values; servers go on until dt_ps_free. Before or after it */
/* The number of the batch to compute next, counted over all workers; -1: no more (.batches), or an error is pending. After -1
   the other workers do not wait for this one any more. */
DT_API int64_t    dt_ps_next_batch(dt_ps_model *pm);
DT_API dt_ps_info dt_ps_model_info(const dt_ps_model *pm); /* of the last dt_step: version, staleness, batch, verdict */
DT_API dt_status  dt_ps_model_stats(dt_ps_model *pm, dt_ps_stats *out); /* as dt_ps_get_stats: updates, staleness, wasted work. After a dt_backward */
/* Has the batch of this worker become useless? dt_backward asks by itself; for what takes long before it. It does not wait. */
DT_API bool       dt_ps_model_cancelled(const dt_ps_model *pm);
/* Collective over the workers that are alive: waits for all; then all have the newest parameters, and the same buffers. For
   evaluations during the training, and after it. */
DT_API dt_status  dt_ps_collect(dt_ps_model *pm);
/* Checkpoints (dt_checkpoint of dt_nn.h) work as with a ddp: all workers make the calls, each at the same number of its own
   steps, and the first worker that is alive writes. With .signals a signal to one worker reaches all at their next tick. The
   file is that of one process: whole parameters, the optimiser's states, and the numbers of the version and of the batches.
   Workers resume before their first dt_step; servers need no call. Other numbers of workers and servers may resume it. With
   DT_PS_SYNC the training continues bit for bit if the number of workers is the same; with the other modes pushes that waited
   for an update are computed again. */

#ifdef __cplusplus
}
#endif
#endif /* DT_SERVE_H_INCLUDED */

#if defined(DT_SERVE_IMPLEMENTATION) && !defined(DT__SERVE_IMPLEMENTED)
#define DT__SERVE_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__DIST_IMPLEMENTED)
#error "dt_serve.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_SERVE_IMPLEMENTATION"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(SERVE);
DT__NEEDS(SERVE, DIST);
DT__NEEDS(SERVE, NN);
DT__NEEDS(SERVE, PS);

DT__SLOW_BEGIN
/* ==================================================================================================== >>serving
   The worker's thread runs everything but the functions whose name begins with dt__server_: these run on the thread that
   drives the communicator, and touch only their dt__server, which belongs to the store.

   Keys of the store: DT__SERVE_TALK for agreements between workers, DT__SERVE_COUNT, DT__SERVE_ABOUT for newcomers (a hash of the
   options, which is there when the model is sealed), then one for each parameter and buffer of the model, in the order of creation,
   and with .clip_norm and one server one that is updated last.

   A gradient that consists of -0 only means that the worker has none for this parameter: sums of them are -0, too, and -0 + x
   is x. In a real gradient every 64th element that is -0 becomes 0 before the push. (A part of an array on a server begins at
   a multiple of 64 elements.)

   States: attached -> bound (the model is sealed, all keys exist) -> started (the servers have the values of a resume). */
enum { DT__SERVE_TALK, DT__SERVE_COUNT, DT__SERVE_ABOUT, DT__SERVE_KEYS }; /* keys */
enum { DT__SERVE_PARAMETERS = 1, DT__SERVE_BUFFERS, DT__SERVE_AGREEMENTS }; /* groups of keys */
enum { DT__SERVE_NOTHING, DT__SERVE_TRAINED, DT__SERVE_FROZEN, DT__SERVE_BUFFER };
enum { DT__SERVE_LAST = -1 };  /* the label of the key that is updated last */
enum { DT__TALK_WORDS = 4, DT__TALK_BYTES = 512 };
typedef struct dt__server_part { /* .clip_norm: an update waits until all its gradients are there */
    dt_ps_part p;
    float     *grad;
    int64_t    cap;
    bool       none;           /* no worker had a gradient */
} dt__server_part;
typedef struct dt__server {
    struct dt__server *copy;   /* the same for copies of another server's arrays (.replicas of dt_ps_new), whose version may be another one */
    dt_optimizer *opt;         /* private copies */
    dt_scheduler *scheduler;
    int           dense[DT__MAX_STATES]; /* state k of the optimiser is state dense[k] of the store; -1: not needed */
    int           nstate;
    bool          clips;       /* .clip_norm, and this is the only server */
    bool          measures;    /* .clip_norm, and there are several */
    float        *temp, *grad;
    int64_t       ntemp, ngrad;
    dt__server_part *part;
    int64_t       nparts, part_cap;
    float        *norm;
    int64_t       norm_cap;
} dt__server;
typedef struct dt__served { int kind, label; } dt__served; /* a parameter or buffer of the model */
typedef struct dt__served_block { /* where gradients and values of a block are on the host */
    float     *grad, *value;
    dt_tensor *grad_copy, *value_copy; /* f32, on the CPU; NULL: no copies are needed */
} dt__served_block;
struct dt_ps_model {
    dt_model     *m;           /* NULL after the model was freed */
    dt_optimizer *opt;
    dt_ps        *store;
    dt_ps_attach_opts o;
    dt__watch     watch;
    int           worker, workers; /* workers: the most that there can be */
    bool          newcomer;    /* it has joined later */
    bool          apart;       /* ... and takes no part in agreements */
    int           lead;        /* the first worker that is alive: it speaks for all */
    int           hook;
    uint64_t      serial;      /* the hook's name for it */
    dt_ps_model  *next_hooked;
    dt__served   *served;      /* by index in m->param */
    int64_t       served_cap;
    int           nserved;
    dt__served_block *block;
    int           nblocks;
    dt_ps_item   *item;        /* of the trained parameters, in the order of keys */
    dt__param   **of;          /* their parameters; NULL: the key that is updated last */
    int           nitems;
    dt_ps_item   *buffer_item;
    int           nbuffer_items;
    int           dense[DT__MAX_STATES];
    int           version;     /* of the model's blocks, when item was made */
    int           bound, started, loaded;
    int           in_backward; /* of this model */
    int           stopped;     /* a backward of this step was cancelled */
    int           resting;     /* 1: during a collective; 2: it had its last batch */
    dt_ps_info    info;
    int64_t       next;        /* batch */
    int64_t      *cursor;      /* of the last save or resume: see dt_ps_get_cursor */
    int64_t       ncursor, cursor_cap;
    int64_t      *talk_out, *talk_in;
    int64_t       ntalk;
    int64_t       asked;       /* requests for a checkpoint so far: see dt__serve_tick */
    float         one[2];      /* pushed and pulled for keys without values */
};

/* ==================================================================================================== >>updates
   What a server does with the pushes of an update. */
static float *dt__server_room(float **p, int64_t *cap, int64_t n)
{
    if (n <= *cap) return *p;
    dt_mem_free(*p, (size_t)*cap * sizeof **p);
    *p = (float *)dt_mem_alloc((size_t)n * sizeof **p);
    *cap = *p ? n : 0;
    if (!*p) dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory for an update of %" PRId64 " elements", n);
    return *p;
}
static bool dt__server_none(const float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &g[i], sizeof bits);
        if (bits != 0x80000000u) return false;
    }
    return true;
}
static int dt__server_apply(dt__server *s, const dt_ps_part *p, const float *grad, const float *gscale)
{
    dt__raw_update  r;
    dt__optim_about a = dt__optim_about_of(s->opt, p->label);
    memset(&r, 0, sizeof r);
    r.group = p->label;
    r.n = p->n;
    r.t = *p->count + 1;
    r.value = (float *)p->value;
    for (int k = 0; k < DT__MAX_STATES; k++) r.state[k] = s->dense[k] >= 0 ? p->state[s->dense[k]] : NULL;
    r.grad = grad;
    r.gscale = gscale;
    r.temp = a.temp ? dt__server_room(&s->temp, &s->ntemp, p->n) : NULL;
    if (dt__err.code != DT_OK || dt__optim_raw(s->opt, &r)) return dt__err.code;
    if (a.counts) ++*p->count;
    return 0;
}
/* The norms are those of the parts of parameters, in the order of runs, as in dt_step: consecutive parameters of a group, the last
   one first, that have a gradient and an equal number of updates; there is a 0 between the parameters of a run. */
static int dt__server_run(dt__server *s, int64_t from, int64_t to,
                          int64_t *nnorms) /* parts from .. to, downwards, of one label */
{
    int rc = 0;
    for (int64_t i = from; i >= to && !rc; i--) {
        const dt__server_part *q = &s->part[i];
        if (q->p.label != s->part[from].p.label) continue;
        if (i < from) s->norm[(*nnorms)++] = 0;
        rc = dt__raw_parts(s->norm + *nnorms, q->grad, q->p.n);
        *nnorms += dt__norm_parts(q->p.n);
    }
    return rc;
}
static int dt__server_clip(dt__server *s) /* all gradients of an update are there */
{
    int64_t nnorms = 0, most = 0;
    float   scale = 0;
    int     rc = 0;
    for (int64_t i = 0; i < s->nparts; i++) most += dt__norm_parts(s->part[i].p.n) + 1;
    if (!dt__server_room(&s->norm, &s->norm_cap, most)) return DT_ERR_MEMORY;
    for (int64_t i = s->nparts - 1; i >= 0 && !rc; i--) { /* labels in the order of their last parameter */
        bool first = true;
        int  label = s->part[i].p.label;
        for (int64_t k = s->nparts - 1; k > i; k--) first = first && s->part[k].p.label != label;
        for (int64_t k = i, begin = -1, end = -1; first && k >= -1 && !rc; k--) {
            const dt__server_part *q = k >= 0 ? &s->part[k] : NULL;
            if (q && q->p.label != label) continue;
            bool on = q && !q->none && (begin < 0 || *s->part[begin].p.count == *q->p.count);
            if (begin >= 0 && !on) {
                rc = dt__server_run(s, begin, end, &nnorms);
                begin = -1;
                on = q && !q->none;
            }
            if (on && begin < 0) begin = k;
            end = k;
        }
    }
    if (!rc && nnorms) rc = dt__raw_norm(&scale, s->norm, nnorms);
    if (!rc) rc = dt__raw_clip(&scale, s->opt->group[0].clip_norm);
    for (int64_t i = 0; i < s->nparts && !rc; i++)
        if (!s->part[i].none) rc = dt__server_apply(s, &s->part[i].p, s->part[i].grad, &scale);
    s->nparts = 0;
    return rc;
}
static int dt__server_part_add(dt__server *s, const dt_ps_part *p, const float *grad, bool none)
{
    if (s->nparts == s->part_cap) {
        int64_t          cap = s->part_cap ? 2 * s->part_cap : 64;
        dt__server_part *q = (dt__server_part *)dt__alloc_zero((size_t)cap * sizeof *q);
        if (!q) return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
        if (s->part_cap) memcpy((void *)q, s->part, (size_t)s->part_cap * sizeof *q);
        dt_mem_free(s->part, (size_t)s->part_cap * sizeof *q);
        s->part = q;
        s->part_cap = cap;
    }
    dt__server_part *q = &s->part[s->nparts];
    if (!none && p->n && !dt__server_room(&q->grad, &q->cap, p->n)) return DT_ERR_MEMORY;
    if (!none && p->n) memcpy(q->grad, grad, (size_t)p->n * sizeof *grad);
    q->p = *p;
    q->none = none;
    s->nparts++;
    return none || !(s->opt->group[0].clip_value > 0) ? 0 : dt__raw_clamp(q->grad, p->n, s->opt->group[0].clip_value);
}
/* dt_ps_measure_fn: the sum of the squares of a gradient, limited by .clip_value */
static double dt__server_measure(const dt_ps_part *p, const float *grad, void *user)
{
    const dt__server *s = (const dt__server *)user;
    double            sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 }, limit = s->opt->group[0].clip_value;
    if (p->label == DT__SERVE_LAST || dt__server_none(grad, p->n)) return 0;
    for (int64_t i = 0; i < p->n; i++) {
        double x = grad[i];
        if (limit > 0) x = x > limit ? limit : x < -limit ? -limit : x;
        sum[i % 8] += x * x;
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}
static int dt__server_part_update(dt__server *s, const dt_ps_part *p, const float *grad)
{
    double limit = s->opt->group[0].clip_value;
    if (p->label != DT__SERVE_LAST && (p->label < 0 || p->label >= s->opt->ngroups))
        return dt_fail(DT_ERR_STATE, "key %d has the label %d, the optimiser has %d groups", p->key, p->label, s->opt->ngroups);
    while (s->scheduler && dt_scheduler_steps(s->scheduler) < p->version)
        if (dt_scheduler_step(s->scheduler)) return dt__err.code;
    if (p->label == DT__SERVE_LAST) return s->clips ? dt__server_clip(s) : 0;
    bool none = dt__server_none(grad, p->n);
    if (s->clips) return dt__server_part_add(s, p, grad, none);
    if (none) return 0;
    if (limit > 0) {
        float *x = dt__server_room(&s->grad, &s->ngrad, p->n);
        if (!x) return DT_ERR_MEMORY;
        memcpy(x, grad, (size_t)p->n * sizeof *x);
        if (dt__raw_clamp(x, p->n, limit)) return dt__err.code;
        grad = x;
    }
    float scale = (float)sqrt(p->measured);
    if (s->measures && dt__raw_clip(&scale, s->opt->group[0].clip_norm)) return dt__err.code;
    return dt__server_apply(s, p, grad, s->measures ? &scale : NULL);
}
static int dt__server_update(const dt_ps_part *p, const float *grad, void *user) /* dt_ps_update_fn */
{
    dt__pending before = dt__err; /* without a progress thread this is the thread that trains */
    int       rc;
    memset(&dt__err, 0, sizeof dt__err);
    rc = dt__server_part_update(p->copy ? ((dt__server *)user)->copy : (dt__server *)user, p, grad);
    if (rc || dt__err.code != DT_OK)
        rc = dt__comm_bad(DT_COMM_ERR_STATE, "%s", dt__err.code != DT_OK ? dt__err.message : "the update failed");
    dt__err = before;
    return rc;
}
static void dt__server_free(void *user)
{
    dt__server *s = (dt__server *)user;
    if (!s) return;
    dt__server_free(s->copy);
    for (int64_t i = 0; i < s->part_cap; i++) dt_mem_free(s->part[i].grad, (size_t)s->part[i].cap * sizeof(float));
    dt_mem_free(s->part, (size_t)s->part_cap * sizeof *s->part);
    dt_mem_free(s->temp, (size_t)s->ntemp * sizeof(float));
    dt_mem_free(s->grad, (size_t)s->ngrad * sizeof(float));
    dt_mem_free(s->norm, (size_t)s->norm_cap * sizeof(float));
    dt_scheduler_free(s->scheduler);
    dt_optimizer_free(s->opt);
    dt_mem_free(s, sizeof *s);
}
static int dt__serve_states(const dt_optimizer *opt, int *dense) /* which states the store needs; how many */
{
    unsigned slots = 0;
    int      n = 0;
    for (int g = 0; g < opt->ngroups; g++) slots |= dt__optim_about_of(opt, g).slots;
    for (int k = 0; k < DT__MAX_STATES; k++) dense[k] = slots >> k & 1u ? n++ : -1;
    return n;
}
static dt__server *dt__server_make(const dt_ps *store, const dt_optimizer *opt, const dt_scheduler *scheduler) /* NULL: out of memory */
{
    dt__server *s = (dt__server *)dt__alloc_zero(sizeof *s);
    if (s) s->opt = dt__optimizer_copy(opt);
    if (s && s->opt && scheduler) s->scheduler = dt__scheduler_copy(scheduler, s->opt);
    if (!s || !s->opt || (scheduler && !s->scheduler)) {
        dt__server_free(s);
        return NULL;
    }
    s->clips = opt->group[0].clip_norm > 0 && dt_ps_servers(store) == 1;
    s->measures = opt->group[0].clip_norm > 0 && !s->clips;
    s->nstate = dt__serve_states(opt, s->dense);
    return s;
}
static int dt__server_new(dt_ps *store, const dt_optimizer *opt, const dt_scheduler *scheduler)
{
    dt__server *s = dt__server_make(store, opt, scheduler);
    if (s && dt__ps_copies(store)) s->copy = dt__server_make(store, opt, scheduler);
    if (!s || (dt__ps_copies(store) && !s->copy)) {
        dt__server_free(s);
        return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
    }
    if ((s->measures && dt_ps_on_measure(store, dt__server_measure, s)) || dt_ps_on_update(store, dt__server_update, s, s->nstate)) {
        dt__server_free(s);
        return dt_fail(DT_ERR_COMM, "dt_ps_attach: %s", dt_ps_error(store));
    }
    dt__ps_on_free(store, dt__server_free, s);
    return 0;
}

/* ==================================================================================================== >>agreements
   Sums over all workers that are alive. */
static int dt__serve_fail(dt_ps_model *pm, const char *call)
{
    const char *why = dt_ps_error(pm->store);
    return dt_fail(DT_ERR_COMM, "%s: %s", call, why ? why : dt_comm_error(NULL) ? dt_comm_error(NULL) : "the store failed");
}
static int dt__serve_exchange(dt_ps_model *pm, const char *call, const dt_ps_item *item, int n, dt_ps_info *info)
{
    dt_ps_op *op = dt_ps_exchange_start(pm->store, item, n);
    if (!op && dt_comm_get_status(NULL) == DT_COMM_ERR_NONFINITE) { /* too large for the codec, with what was not sent before */
        dt__optim_clear(pm->opt);
        return dt_fail(DT_ERR_NUMERIC, "%s: on worker %d a gradient cannot be encoded; nothing was pushed: %s", call, pm->worker, dt_ps_error(pm->store));
    }
    return !op || dt_ps_wait(op, info) ? dt__serve_fail(pm, call) : 0;
}
static int dt__serve_talk(dt_ps_model *pm, const char *call)
{
    dt_ps_item item;
    item.key = DT__SERVE_TALK;
    item.dtype = DT_COMM_I64;
    item.n = pm->ntalk;
    item.push = pm->talk_out;
    item.pull = pm->talk_in;
    int rc = dt__serve_exchange(pm, call, &item, 1, NULL);
    memset(pm->talk_out, 0, (size_t)pm->ntalk * sizeof *pm->talk_out);
    return rc;
}
/* all: DT__TALK_WORDS of each worker, the last of which is 1 if it takes part */
static int dt__serve_gather(dt_ps_model *pm, const char *call, const int64_t *x, int n)
{
    int64_t *mine = pm->talk_out + (int64_t)pm->worker * DT__TALK_WORDS;
    for (int i = 0; i < n && i < DT__TALK_WORDS - 1; i++) mine[i] = x[i];
    mine[DT__TALK_WORDS - 1] = 1;
    int rc = dt__serve_talk(pm, call);
    if (!rc)
        for (pm->lead = 0; pm->lead < pm->worker && !pm->talk_in[pm->lead * DT__TALK_WORDS + DT__TALK_WORDS - 1];) pm->lead++;
    return rc;
}
static int dt__serve_share(dt_ps_model *pm, const char *call, int root, void *data, size_t nbytes) /* at most DT__TALK_BYTES */
{
    int64_t at = (int64_t)pm->workers * DT__TALK_WORDS;
    if (pm->worker == root) memcpy(pm->talk_out + at, data, nbytes);
    int rc = dt__serve_talk(pm, call);
    if (!rc) memcpy(data, pm->talk_in + at, nbytes);
    return rc;
}
static int dt__serve_agree(void *user, const char *call, int64_t *x, int n)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    int          rc = dt__serve_gather(pm, call, x, n);
    for (int w = 0; w < pm->workers && !rc; w++)
        for (int i = 0; i < n; i++) {
            int64_t y = pm->talk_in[w * DT__TALK_WORDS + i];
            if (pm->talk_in[w * DT__TALK_WORDS + DT__TALK_WORDS - 1] && y > x[i]) x[i] = y;
        }
    return rc;
}
static int dt__serve_same(void *user, const char *call, const char *what, int64_t x)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    if (pm->newcomer)
        return dt_fail(DT_ERR_STATE, "%s: worker %d has joined later and has its values from the store: it does not resume", call,
                       pm->worker);
    int          rc = dt__serve_gather(pm, call, &x, 1), first = -1;
    for (int w = 0; w < pm->workers && !rc; w++) {
        const int64_t *y = pm->talk_in + w * DT__TALK_WORDS;
        if (!y[DT__TALK_WORDS - 1]) continue;
        if (first < 0) first = w;
        if (y[0] != pm->talk_in[first * DT__TALK_WORDS])
            rc = dt_fail(DT_ERR_COMM,
                         "%s: %s is %" PRId64 " on worker %d, %" PRId64
                         " on worker %d; all workers must see the same files: use "
                         "a directory that they share",
                         call, what, pm->talk_in[first * DT__TALK_WORDS], first, y[0], w);
    }
    return rc;
}

/* ==================================================================================================== >>values
   Parameters and buffers, on the host. */
static bool dt__serve_direct(const dt_tensor *t) { return t->dtype == DT_F32 && t->st->dev == dt_cpu(); }
static float *dt__serve_ptr(const dt_tensor *t) { return (float *)t->st->ptr + t->offset; }
/* Copies a dense tensor to the host as f32 (floats) or as it is (other dtypes), or back. data: numel elements. */
static int dt__serve_copy(dt_tensor *t, void *data, int out)
{
    int64_t n = t->numel;
    if (!n) return 0;
    if (t->dtype == DT_F32 || !dt__is_float(t->dtype)) return out ? dt__download(t, data) : dt__upload(t, data);
    dt_tensor *flat = dt__alias(t), *here = NULL, *host = dt__adopt("dt_ps_attach", dt_cpu(), data, DT_F32, &n, 1);
    int        rc = flat && host ? 0 : DT_ERR_MEMORY;
    if (!rc) {
        flat->ndim = 1;
        flat->shape[0] = n;
        flat->stride[0] = 1;
        if (t->st->dev == dt_cpu()) rc = out ? dt__copy_to(host, flat, 0) : dt__copy_to(flat, host, 0);
        else {
            here = dt__cross("dt_ps_attach", out ? flat : host, out ? dt_cpu() : t->st->dev);
            rc = !here ? DT_ERR_MEMORY : out ? dt__copy_to(host, here, 0) : dt__copy_to(flat, here, 0);
        }
    }
    dt__unref(here);
    dt__unref(flat);
    dt__unref(host);
    return rc;
}
static int dt__serve_value(dt_ps_model *pm, dt__param *p, float *data, int out) /* the f32 value, and from it the half one */
{
    dt_tensor *t = dt__param_source(pm->m, p);
    int        rc = t ? dt__serve_copy(t, data, out) : (int)dt_error_code();
    if (!rc && !out) {
        if (t != p->t) rc = dt_copy(p->t, t) ? (int)dt_error_code() : 0;
        else dt__write_ok("dt_step", p->t);
    }
    if (t && t->step) dt_free(t);
    return rc;
}
static void *dt__serve_host(const dt__param *p, size_t *nbytes) /* memory for its value */
{
    size_t size = dt__is_float(p->t->dtype) ? sizeof(float) : dt__dtype_size[p->t->dtype];
    *nbytes = (size_t)p->t->numel * size;
    void *data = dt_mem_alloc(*nbytes ? *nbytes : 1);
    if (!data) dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory for '%s'", p->name);
    return data;
}
static int dt__serve_key(int index) { return DT__SERVE_KEYS + index; }
static dt__served dt__serve_kind(const dt_ps_model *pm, const dt__param *p)
{
    dt__served s;
    s.label = p->buffer || p->frozen ? 0 : dt__optimizer_claims(pm->opt, p->name);
    s.kind = !p->t->numel ? DT__SERVE_NOTHING : p->buffer ? DT__SERVE_BUFFER : p->frozen ? DT__SERVE_FROZEN : DT__SERVE_TRAINED;
    return s;
}
static int dt__serve_init(dt_ps_model *pm, int key, const void *data, int64_t n, int dtype, int rule, int group, bool whole,
                          int label)
{
    dt_ps_init_opts o = DT__NO_OPTIONS;
    o.rule = rule;
    o.group = group;
    o.whole = whole;
    o.label = label;
    return dt_ps_init_with(pm->store, key, data, n, dtype, o);
}
/* Everyone's error, before the training has begun. */
static int dt__serve_abort(dt_ps_model *pm)
{
    if (dt__err.code != DT_OK) dt_comm_abort(dt_ps_comm(pm->store), dt_error());
    return dt__err.code;
}
/* A parameter or buffer is new: all workers get worker 0's value. */
static int dt__serve_param(dt_ps_model *pm, dt__param *p, int index)
{
    dt__served *list = (dt__served *)dt__enlarge(pm->served, pm->nserved, &pm->served_cap, sizeof *list),
               s = dt__serve_kind(pm, p);
    if (!list) return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
    pm->served = list;
    if (s.label < 0)
        return dt_fail(
            DT_ERR_STATE,
            "dt_ps_attach: the parameter '%s' is not one of the optimiser's (.params); a store serves one optimiser, "
            "which has all parameters that are not frozen",
            p->name);
    pm->served[pm->nserved++] = s;
    if (s.kind == DT__SERVE_NOTHING) return 0;
    size_t nbytes;
    void  *data = dt__serve_host(p, &nbytes);
    int    rc = data ? 0 : DT_ERR_MEMORY, floats = dt__is_float(p->t->dtype);
    if (!rc)
        rc = s.kind == DT__SERVE_TRAINED || floats ? dt__serve_value(pm, p, (float *)data, 1) : dt__serve_copy(p->t, data, 1);
    if (!rc && dt__serve_init(pm, dt__serve_key(index), data, p->t->numel, floats ? (int)DT_COMM_F32 : p->t->dtype,
                              s.kind == DT__SERVE_TRAINED ? DT_PS_UPDATE : DT_PS_ASSIGN,
                              s.kind == DT__SERVE_TRAINED  ? (int)DT__SERVE_PARAMETERS
                              : s.kind == DT__SERVE_BUFFER ? (int)DT__SERVE_BUFFERS
                                                           : 0,
                              s.kind == DT__SERVE_TRAINED && dt__optim_about_of(pm->opt, s.label).whole, s.label))
        rc = dt_fail(DT_ERR_COMM, "dt_ps_attach: number %d, '%s' %s: %s", index + 1, p->name, dt__text(p->t),
                     dt_ps_error(pm->store));
    if (!rc && pm->worker && dt_ps_get_state(pm->store, dt__serve_key(index), DT_PS_VALUE, data))
        rc = dt__serve_fail(pm, "dt_ps_attach");
    if (!rc && pm->worker) rc = floats ? dt__serve_value(pm, p, (float *)data, 0) : dt__serve_copy(p->t, data, 0);
    dt_mem_free(data, nbytes ? nbytes : 1);
    return rc;
}
static int dt__serve_made(void *user, dt__param *p)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    return dt__serve_param(pm, p, pm->m->nparams - 1) ? dt__serve_abort(pm) : 0;
}

/* ==================================================================================================== >>seal
   Comparing models; the arrays of an exchange. */
static int dt__serve_compare(dt_ps_model *pm) /* as dt__ddp_same_models */
{
    dt_model *m = pm->m;
    uint64_t  hash = DT__DDP_HASH;
    int64_t   mine[2];
    for (int i = 0; i < m->nparams; i++) {
        dt__ddp_fingerprint k = dt__ddp_fingerprint_of(m->param[i], i);
        hash = dt__ddp_hash(hash, &k, sizeof k);
    }
    mine[0] = (int64_t)(hash >> 1);
    mine[1] = m->nparams;
    if (dt__serve_gather(pm, "dt_ps_attach", mine, 2)) return dt__err.code;
    int     first = -1, other = -1;
    int64_t most = 0;
    for (int w = 0; w < pm->workers; w++) {
        const int64_t *x = pm->talk_in + w * DT__TALK_WORDS;
        if (!x[DT__TALK_WORDS - 1]) continue;
        if (first < 0) first = w;
        if (other < 0 && memcmp(x, pm->talk_in + first * DT__TALK_WORDS, 2 * sizeof *x)) other = w;
        if (x[1] > most && (w == first || w == other)) most = x[1];
    }
    for (int i = 0; other >= 0 && i < most; i++) {
        dt__ddp_fingerprint k[2];
        for (int side = 0; side < 2; side++) {
            memset(&k[side], 0, sizeof k[side]);
            if (i < m->nparams) k[side] = dt__ddp_fingerprint_of(m->param[i], i);
            if (dt__serve_share(pm, "dt_ps_attach", side ? other : first, &k[side], sizeof k[side])) return dt__err.code;
        }
        if (dt__ddp_same_fingerprint(&k[0], &k[1])) continue;
        char a[320], b[320];
        return dt_fail(
            DT_ERR_COMM,
            "dt_ps_attach: the models differ: number %d is %s on worker %d, %s on worker %d; create the same parameters in "
            "the same order on all workers",
            i + 1, dt__ddp_fingerprint_text(&k[0], a, sizeof a), first, dt__ddp_fingerprint_text(&k[1], b, sizeof b), other);
    }
    return 0;
}
static void dt__serve_items_free(dt_ps_model *pm)
{
    for (int i = 0; i < pm->nblocks; i++) {
        dt__unref(pm->block[i].grad_copy);
        dt__unref(pm->block[i].value_copy);
    }
    dt_mem_free(pm->block, (size_t)pm->nblocks * sizeof *pm->block);
    dt_mem_free(pm->item, (size_t)pm->nitems * sizeof *pm->item);
    dt_mem_free(pm->of, (size_t)pm->nitems * sizeof *pm->of);
    dt_mem_free(pm->buffer_item, (size_t)pm->nbuffer_items * sizeof *pm->buffer_item);
    pm->block = NULL;
    pm->item = pm->buffer_item = NULL;
    pm->of = NULL;
    pm->nblocks = pm->nitems = pm->nbuffer_items = 0;
}
static dt_tensor *dt__serve_staging(int64_t n)
{
    dt_tensor *t = dt__new("dt_ps_attach", dt_cpu(), DT_F32, &n, 1, DT_LAYOUT_PLAIN);
    if (t) dt__fill(t, 0);
    return t;
}
static int dt__serve_last(const dt_ps_model *pm) /* is there a key that is updated last? One server clips by the norm when it comes */
{
    return pm->opt->group[0].clip_norm > 0 && dt_ps_servers(pm->store) == 1;
}
/* The arrays of an exchange. Again after the blocks of the model have changed. */
static int dt__serve_items(dt_ps_model *pm)
{
    dt_model *m = pm->m;
    int       n = 0, nb = 0, last = dt__serve_last(pm);
    dt__serve_items_free(pm);
    for (int i = 0; i < m->nparams; i++) {
        dt__served s = dt__serve_kind(pm, m->param[i]);
        if (s.kind != pm->served[i].kind ||
            (s.kind == DT__SERVE_TRAINED && (s.label != pm->served[i].label || m->param[i]->opt != pm->opt->index)))
            return dt_fail(
                DT_ERR_STATE,
                "dt_ps_attach: the parameter '%s' %s; freeze parameters, add groups and make optimisers before the first "
                "forward",
                m->param[i]->name,
                s.kind != pm->served[i].kind         ? "was frozen or unfrozen after its creation"
                : m->param[i]->opt != pm->opt->index ? "belongs to another optimiser of the model"
                                                     : "has another group than at its creation");
        n += s.kind == DT__SERVE_TRAINED;
        nb += s.kind == DT__SERVE_BUFFER;
    }
    if (!n) return dt_fail(DT_ERR_STATE, "dt_ps_attach: the model has no parameters that the optimiser could update");
    pm->nitems = n + last;
    pm->nbuffer_items = nb ? nb + 1 : 0;
    pm->nblocks = m->nblocks;
    pm->item = (dt_ps_item *)dt__alloc_zero((size_t)pm->nitems * sizeof *pm->item);
    pm->of = (dt__param **)dt__alloc_zero((size_t)pm->nitems * sizeof *pm->of);
    pm->block = (dt__served_block *)dt__alloc_zero((size_t)pm->nblocks * sizeof *pm->block);
    pm->buffer_item = (dt_ps_item *)dt__alloc_zero((size_t)(pm->nbuffer_items ? pm->nbuffer_items : 1) * sizeof *pm->item);
    if (!pm->nbuffer_items) dt_mem_free(pm->buffer_item, sizeof *pm->item), pm->buffer_item = NULL;
    if (!pm->item || !pm->of || !pm->block || (nb && !pm->buffer_item))
        return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
    n = 0;
    for (int i = 0; i < m->nparams; i++) {
        if (pm->served[i].kind != DT__SERVE_TRAINED) continue;
        pm->item[n].key = dt__serve_key(i);
        pm->item[n].dtype = DT_COMM_F32;
        pm->item[n].n = m->param[i]->t->numel;
        pm->of[n++] = m->param[i];
    }
    if (last) {
        pm->item[n].key = dt__serve_key(m->nparams);
        pm->item[n].dtype = DT_COMM_F32;
        pm->item[n].n = 1;
    }
    pm->version = m->version;
    return 0;
}
static int64_t dt__serve_hash(const dt_ps_model *pm) /* of all that must be the same on all ranks */
{
    uint64_t  h = DT__DDP_HASH;
    const int number[] = { pm->o.mode,
                           pm->o.k,
                           pm->o.staleness,
                           pm->o.max_staleness,
                           pm->o.scale_by_staleness,
                           pm->o.drop_batches,
                           pm->o.average_buffers,
                           pm->opt->ngroups,
                           pm->o.codec.kind,
                           pm->o.codec.levels,
                           pm->o.scheduler != NULL };
    h = dt__ddp_hash(h, number, sizeof number);
    h = dt__ddp_hash(h, &pm->o.batches, sizeof pm->o.batches);
    h = dt__ddp_hash(h, &pm->o.codec.ratio, sizeof pm->o.codec.ratio);
    h = dt__ddp_hash(h, &pm->o.codec.bucket, sizeof pm->o.codec.bucket);
    h = dt__ddp_hash(h, &pm->o.codec.seed, sizeof pm->o.codec.seed);
    h = dt__optimizer_hash(pm->opt, dt__ddp_hash, h);
    if (pm->o.scheduler) h = dt__scheduler_hash(pm->o.scheduler, dt__ddp_hash, h);
    return (int64_t)h;
}
static int dt__serve_bind(dt_ps_model *pm)
{
    float zero = 0;
    int64_t about = dt__serve_hash(pm);
    if ((!pm->newcomer && dt__serve_compare(pm)) || dt__serve_items(pm)) return dt__err.code;
    if (dt__serve_last(pm) && dt__serve_init(pm, dt__serve_key(pm->m->nparams), &zero, 1, DT_COMM_F32,
                                                          DT_PS_UPDATE, DT__SERVE_PARAMETERS, true, DT__SERVE_LAST))
        return dt__serve_fail(pm, "dt_ps_attach");
    if (pm->nbuffer_items &&
        dt__serve_init(pm, DT__SERVE_COUNT, &zero, 1, DT_COMM_F32, DT_PS_ASSIGN, DT__SERVE_BUFFERS, true, 0))
        return dt__serve_fail(pm, "dt_ps_attach");
    if (!pm->newcomer && dt__serve_init(pm, DT__SERVE_ABOUT, &about, 1, DT_COMM_I64, DT_PS_ASSIGN, 0, true, 0))
        return dt__serve_fail(pm, "dt_ps_attach");
    pm->bound = 1;
    return 0;
}
static int dt__serve_on_seal(dt_model *m, void *user) /* user may be freed: it is valid only if m->watch has it */
{
    dt_ps_model *pm = (dt_ps_model *)user;
    if (!dt__watch_find(m, user)) return 0;
    return dt__serve_bind(pm) ? dt__serve_abort(pm) : 0;
}

/* ==================================================================================================== >>exchange
   Dt_step: pushing, waiting, pulling. */
static int dt__serve_prepare(dt_ps_model *pm, bool push) /* where the gradients and values of the blocks are */
{
    dt_model *m = pm->m;
    int       rc = 0;
    if (pm->version != m->version && dt__serve_items(pm)) return dt__err.code;
    for (int i = 0; i < pm->nblocks && !rc; i++) {
        const dt__mblock *b = &m->block[i];
        dt__served_block *s = &pm->block[i];
        dt_tensor        *g = b->use_mgrad ? b->mgrad : b->b.grad, *v = b->master ? b->master : b->b.value;
        bool              copy = !dt__serve_direct(g);
        if (!dt__serve_direct(v) && !s->value_copy && !(s->value_copy = dt__serve_staging(v->numel))) return DT_ERR_MEMORY;
        s->value = dt__serve_ptr(s->value_copy ? s->value_copy : v);
        if (push && copy && !s->grad_copy && !(s->grad_copy = dt__serve_staging(g->numel))) return DT_ERR_MEMORY;
        if (push && copy) rc = dt__serve_copy(g, dt__serve_ptr(s->grad_copy), 1);
        if (push) s->grad = dt__serve_ptr(copy ? s->grad_copy : g);
    }
    for (int i = 0; i < pm->nitems && !rc; i++) {
        const dt__param *p = pm->of[i];
        if (!p) {
            pm->item[i].push = push ? &pm->one[0] : NULL;
            pm->item[i].pull = &pm->one[1];
            continue;
        }
        pm->item[i].push = push ? pm->block[p->block].grad + p->offset : NULL;
        pm->item[i].pull = pm->block[p->block].value + p->offset;
    }
    return rc;
}
/* Marks the gradients that this worker does not have, and checks the others. 1: there are none at all. */
static int dt__serve_grads(dt_ps_model *pm)
{
    int any = 0;
    for (int i = pm->nitems - 1; i >= 0; i--) { /* in the order of backward */
        dt__param *p = pm->of[i];
        if (!p) continue;
        float  *g = pm->block[p->block].grad + p->offset;
        int64_t n = p->t->numel;
        bool    has = dt__has_grad(&pm->m->block[p->block], p), finite = true;
        for (int64_t k = 0; k < n; k += has ? 64 : 1) {
            uint32_t bits;
            memcpy(&bits, &g[k], sizeof bits);
            if (!has) g[k] = -0.0f;
            else if (bits == 0x80000000u) g[k] = 0;
        }
        if (!has) continue;
        any = 1;
        if (dt__raw_finite(g, n, &finite)) return dt__err.code;
        if (!finite) {
            dt__optim_clear(pm->opt);
            return dt_fail(
                DT_ERR_NUMERIC,
                "dt_step: on worker %d the gradient of '%s' is not finite; nothing was pushed: check its batch, use a "
                "smaller .lr, or set .clip_value",
                pm->worker, p->name);
        }
    }
    return any ? 0 : 1;
}
static int dt__serve_landed(dt_ps_model *pm) /* new values have come */
{
    dt_model *m = pm->m;
    int       rc = 0;
    for (int i = 0; i < pm->nblocks && !rc; i++) {
        const dt__mblock *b = &m->block[i];
        dt_tensor        *v = b->master ? b->master : b->b.value;
        if (!dt__write_ok("dt_step", v) || (b->master && !dt__write_ok("dt_step", b->b.value))) return dt__err.code;
        if (pm->block[i].value_copy) rc = dt__serve_copy(v, pm->block[i].value, 0);
        if (!rc && b->master) rc = dt__copy_to(b->b.value, b->master, 0);
    }
    return rc;
}
static int dt__serve_follow(dt_ps_model *pm) /* the optimiser and the scheduler of this worker are where the servers are */
{
    pm->opt->steps = pm->info.version;
    while (pm->o.scheduler && dt_scheduler_steps(pm->o.scheduler) < pm->info.version)
        if (dt_scheduler_step(pm->o.scheduler)) return dt__err.code;
    return 0;
}
static int dt__serve_pull(dt_ps_model *pm, const char *call) /* and push, if dt__serve_prepare was told so */
{
    if (dt__serve_exchange(pm, call, pm->item, pm->nitems, &pm->info)) return dt__err.code;
    pm->next = pm->info.batch;
    if (pm->info.fresh && dt__serve_landed(pm)) return dt__err.code;
    return dt__serve_follow(pm);
}
static int dt__serve_upload(dt_ps_model *pm) /* one worker, after a resume: values, states, counts */
{
    dt_model *m = pm->m;
    int       rc = 0;
    for (int i = 0; i < pm->nitems && !rc; i++) {
        dt__param *p = pm->of[i];
        if (!p) continue;
        dt__mblock     *b = &m->block[p->block];
        dt__optim_about a = dt__optim_about_of(pm->opt, p->group);
        size_t          nbytes;
        float          *data = (float *)dt__serve_host(p, &nbytes);
        int64_t         count = p->steps;
        if (!data) return dt__err.code;
        rc = dt__serve_value(pm, p, data, 1);
        if (!rc && dt_ps_set_state(pm->store, pm->item[i].key, DT_PS_VALUE, data)) rc = dt__serve_fail(pm, "dt_step");
        for (int k = 0; k < DT__MAX_STATES && !rc; k++) {
            if (!(a.slots >> k & 1u) || !b->state[k]) continue;
            dt_tensor *t = dt__slice(b->state[k], 0, p->offset, p->t->numel);
            rc = t ? dt__serve_copy(t, data, 1) : DT_ERR_MEMORY;
            dt__unref(t);
            if (!rc && dt_ps_set_state(pm->store, pm->item[i].key, pm->dense[k], data)) rc = dt__serve_fail(pm, "dt_step");
        }
        if (!rc && dt_ps_set_state(pm->store, pm->item[i].key, DT_PS_COUNT, &count)) rc = dt__serve_fail(pm, "dt_step");
        dt_mem_free(data, nbytes);
    }
    if (!rc && dt_ps_set_cursor(pm->store, pm->item[0].key, pm->cursor, pm->ncursor)) rc = dt__serve_fail(pm, "dt_step");
    return rc;
}
static int dt__serve_start(dt_ps_model *pm) /* before the first push: what was resumed goes to the servers */
{
    if (pm->started) return 0;
    if (pm->loaded) {
        if (dt__serve_gather(pm, "dt_step", NULL, 0)) return dt__err.code;
        if (pm->worker == pm->lead && dt__serve_upload(pm)) return dt__serve_abort(pm);
        if (dt__serve_gather(pm, "dt_step", NULL, 0) || dt__serve_prepare(pm, false) || dt__serve_pull(pm, "dt_step"))
            return dt__err.code;
    }
    pm->started = 1;
    return 0;
}
static bool dt__serve_hook_here(const dt_ps_model *pm);
static int  dt__serve_update(dt_ps_model *pm)
{
    dt_model *m = pm->m;
    bool      push = !pm->stopped && !pm->opt->skip;
    if (dt__serve_start(pm)) return dt__err.code;
    if (push && dt__err.bad_loss) return 0; /* dt_step refuses */
    if (dt__serve_prepare(pm, push)) return dt__err.code;
    int rc = push ? dt__serve_grads(pm) : 0;
    if (rc) return rc > 0 ? 0 : rc; /* > 0: dt_step says that there is no gradient */
    if (dt__serve_pull(pm, "dt_step")) return dt__err.code;
    for (int i = 0; m->amp && pm->stopped && i < m->amp->nlosses; i++) m->amp->scaler[i].used = m->amp->scaler[i].found = 0;
    pm->opt->skip = 1; /* the update was made elsewhere */
    return 0;
}
static void dt__serve_step(void *user, dt_optimizer *opt)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    if (dt__err.code != DT_OK) return;
    if (pm->worker < 0)
        dt_fail(DT_ERR_STATE, "dt_step: rank %d is a server only, and trains nothing: it calls dt_ps_serve",
                dt_comm_rank(dt_ps_comm(pm->store)));
    else if (opt != pm->opt)
        dt_fail(DT_ERR_STATE, "dt_step: the store serves another optimiser of this model; a store serves one");
    else if (!dt__serve_hook_here(pm))
        dt_fail(DT_ERR_STATE,
                "dt_step: this is another thread than that of dt_ps_attach; call dt_ps_attach on the thread that trains");
    else if (pm->resting)
        dt_fail(DT_ERR_STATE, "dt_step: dt_ps_next_batch has returned -1: this worker has no more batches; end the loop");
    else if (pm->bound) dt__serve_update(pm);
    pm->stopped = 0;
}

/* ==================================================================================================== >>cancelling
   A backward that others made useless. */
static struct {
    pthread_mutex_t lock; /* protects the rest */
    dt_ps_model    *first;
    uint64_t        count;
} dt__served_models = { PTHREAD_MUTEX_INITIALIZER, NULL, 0 };
static void dt__serve_begin(void *user);
static bool dt__serve_hook_here(const dt_ps_model *pm)
{
    const dt__ctx *t = &dt__tls;
    return pm->hook >= 0 && t->hook_used[pm->hook] && t->hook[pm->hook].begin == dt__serve_begin &&
           t->hook[pm->hook].user == (void *)(uintptr_t)pm->serial;
}
static dt_ps_model *dt__serve_hooked(void *user) /* NULL: it is gone, and the hook is removed */
{
    dt__ctx *t = &dt__tls;
    pthread_mutex_lock(&dt__served_models.lock);
    dt_ps_model *pm = dt__served_models.first;
    while (pm && pm->serial != (uint64_t)(uintptr_t)user) pm = pm->next_hooked;
    pthread_mutex_unlock(&dt__served_models.lock);
    for (int i = 0; !pm && i < DT__MAX_HOOKS; i++)
        if (t->hook_used[i] && t->hook[i].begin == dt__serve_begin && t->hook[i].user == user) t->hook_used[i] = 0;
    return pm && pm->m ? pm : NULL;
}
static void dt__serve_look(dt_ps_model *pm) /* is the work of this backward still wanted? */
{
    if (!pm->stopped && dt_ps_cancelled(pm->store, pm->item[0].key)) pm->stopped = 1;
    if (pm->stopped) dt_backward_stop();
}
static void dt__serve_begin(void *user)
{
    dt_ps_model *pm = dt__serve_hooked(user);
    int          ours = 0;
    if (!pm || dt__err.code != DT_OK) return;
    for (int i = 0; i < pm->m->nparams && !ours; i++) ours = dt_grad_pending(pm->m->param[i]->t);
    if (!ours || dt_model_seal(pm->m) || !pm->bound) return;
    pm->in_backward = 1;
    dt__serve_look(pm);
}
static void dt__serve_ready(void *user, dt_tensor *p)
{
    dt_ps_model *pm = dt__serve_hooked(user);
    (void)p;
    if (pm && pm->in_backward && dt__err.code == DT_OK) dt__serve_look(pm);
}
static void dt__serve_end(void *user, dt_status status)
{
    dt_ps_model *pm = dt__serve_hooked(user);
    (void)status;
    if (!pm || !pm->in_backward) return;
    pm->in_backward = 0;
    if (pm->stopped) dt__drop_grads(pm->m);
}
static int dt__serve_hook(dt_ps_model *pm)
{
    dt__ctx      *t = &dt__tls;
    dt_grad_hooks h;
    for (int i = 0; i < DT__MAX_HOOKS; i++)
        if (t->hook_used[i] && t->hook[i].begin == dt__serve_begin) dt__serve_hooked(t->hook[i].user);
    pthread_mutex_lock(&dt__served_models.lock);
    pm->serial = ++dt__served_models.count;
    pm->next_hooked = dt__served_models.first;
    dt__served_models.first = pm;
    pthread_mutex_unlock(&dt__served_models.lock);
    h.begin = dt__serve_begin;
    h.ready = dt__serve_ready;
    h.end = dt__serve_end;
    h.user = (void *)(uintptr_t)pm->serial;
    pm->hook = dt_grad_hooks_add(&h);
    return pm->hook < 0 ? pm->hook : 0;
}
static void dt__serve_unhook(dt_ps_model *pm)
{
    pthread_mutex_lock(&dt__served_models.lock);
    for (dt_ps_model **at = &dt__served_models.first; *at; at = &(*at)->next_hooked)
        if (*at == pm) {
            *at = pm->next_hooked;
            break;
        }
    pthread_mutex_unlock(&dt__served_models.lock);
    if (dt__serve_hook_here(pm)) dt_grad_hooks_remove(pm->hook);
    pm->hook = -1;
}

/* ==================================================================================================== >>collecting
   Collectives during the training. The workers need not have the same number of pushes behind them: so that nobody waits
   for the push of a worker that waits here, it rests meanwhile. (DT_PS_SYNC: all have; DT_PS_ASYNC: nobody waits for pushes.) */
static int dt__serve_meet(dt_ps_model *pm, const char *call)
{
    bool rest = pm->bound && !pm->resting && pm->o.mode != DT_PS_SYNC && pm->o.mode != DT_PS_ASYNC;
    if (rest && dt_ps_rest(pm->store, pm->item[0].key, true)) return dt__serve_fail(pm, call);
    if (rest) pm->resting = 1;
    return dt__serve_gather(pm, call, NULL, 0);
}
static int dt__serve_part(dt_ps_model *pm, const char *call) /* the end of what dt__serve_meet began */
{
    if (pm->resting != 1) return 0;
    pm->resting = 0;
    if (dt_ps_rest(pm->store, pm->item[0].key, false)) return dt__serve_fail(pm, call);
    return dt__serve_prepare(pm, false) || dt__serve_pull(pm, call) ? (int)dt__err.code : 0;
}
static int dt__serve_fetch(dt_ps_model *pm, const char *call, bool states) /* the newest values; the optimiser's states */
{
    int rc = 0;
    for (int i = 0; i < pm->nitems && !rc; i++) {
        dt__param *p = pm->of[i];
        size_t     nbytes;
        if (!p) continue;
        dt__mblock     *b = &pm->m->block[p->block];
        dt__optim_about a = dt__optim_about_of(pm->opt, p->group);
        float          *data = (float *)dt__serve_host(p, &nbytes);
        if (!data) return dt__err.code;
        if (dt_ps_get_state(pm->store, pm->item[i].key, DT_PS_VALUE, data)) rc = dt__serve_fail(pm, call);
        if (!rc) rc = dt__serve_value(pm, p, data, 0);
        if (!rc && states && dt_ps_get_state(pm->store, pm->item[i].key, DT_PS_COUNT, &p->steps)) rc = dt__serve_fail(pm, call);
        if (!rc && states) rc = dt__block_states(pm->m, b, a.slots);
        for (int k = 0; k < DT__MAX_STATES && !rc && states; k++) {
            if (!(a.slots >> k & 1u)) continue;
            dt_tensor *t = dt__slice(b->state[k], 0, p->offset, p->t->numel);
            if (!t) rc = DT_ERR_MEMORY;
            else if (dt_ps_get_state(pm->store, pm->item[i].key, pm->dense[k], data)) rc = dt__serve_fail(pm, call);
            else rc = dt__serve_copy(t, data, 0);
            dt__unref(t);
        }
        dt_mem_free(data, nbytes);
    }
    return rc;
}
/* All workers: the buffers of the first worker, or the mean. The store adds what is pushed; those who have nothing to say push
   zeros. */
static int dt__serve_buffers(dt_ps_model *pm, const char *call)
{
    dt_model *m = pm->m;
    size_t    total = 0;
    int       rc = 0, n = 1;
    float     count[2];
    if (!pm->nbuffer_items) return 0;
    for (int i = 0; i < m->nparams; i++)
        if (pm->served[i].kind == DT__SERVE_BUFFER) total += ((size_t)m->param[i]->t->numel * 8 + 15) & ~(size_t)7;
    char *out = (char *)dt__alloc_zero(total), *in = (char *)dt__alloc_zero(total);
    if (!out || !in) rc = dt_fail(DT_ERR_MEMORY, "%s: out of memory for buffers", call);
    count[0] = pm->worker == pm->lead || pm->o.average_buffers ? 1.0f : 0.0f;
    count[1] = 0;
    pm->buffer_item[0].key = DT__SERVE_COUNT;
    pm->buffer_item[0].dtype = DT_COMM_F32;
    pm->buffer_item[0].n = 1;
    pm->buffer_item[0].push = &count[0];
    pm->buffer_item[0].pull = &count[1];
    size_t at = 0;
    for (int i = 0; i < m->nparams && !rc; i++) {
        dt_tensor *t = m->param[i]->t;
        if (pm->served[i].kind != DT__SERVE_BUFFER) continue;
        dt_ps_item *q = &pm->buffer_item[n++];
        bool        floats = dt__is_float(t->dtype);
        q->key = dt__serve_key(i);
        q->dtype = floats ? (int)DT_COMM_F32 : t->dtype;
        q->n = t->numel;
        q->push = out + at;
        q->pull = in + at;
        if (pm->worker == pm->lead || (floats && pm->o.average_buffers)) rc = dt__serve_copy(t, out + at, 1);
        at += ((size_t)t->numel * 8 + 15) & ~(size_t)7;
    }
    if (!rc) rc = dt__serve_exchange(pm, call, pm->buffer_item, pm->nbuffer_items, NULL);
    at = 0;
    for (int i = 0; i < m->nparams && !rc && count[1] > 0; i++) {
        dt_tensor *t = m->param[i]->t;
        if (pm->served[i].kind != DT__SERVE_BUFFER) continue;
        float *x = (float *)(void *)(in + at);
        for (int64_t k = 0; dt__is_float(t->dtype) && count[1] > 1 && k < t->numel; k++) x[k] /= count[1];
        if (!dt__write_ok(call, t)) rc = dt__err.code;
        else rc = dt__serve_copy(t, in + at, 0);
        at += ((size_t)t->numel * 8 + 15) & ~(size_t)7;
    }
    dt_mem_free(out, total);
    dt_mem_free(in, total);
    return rc;
}

/* ==================================================================================================== >>saving
   Checkpoints. */
static int dt__serve_cursor_room(dt_ps_model *pm, int64_t n)
{
    if (n <= pm->cursor_cap) return 0;
    int64_t *p = (int64_t *)dt__alloc_zero((size_t)n * sizeof *p);
    if (!p) return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
    if (pm->ncursor) memcpy(p, pm->cursor, (size_t)pm->ncursor * sizeof *p);
    dt_mem_free(pm->cursor, (size_t)pm->cursor_cap * sizeof *p);
    pm->cursor = p;
    pm->cursor_cap = n;
    return 0;
}
static int dt__serve_cursor(dt_ps_model *pm, const char *call)
{
    int64_t n = 0;
    for (;;) {
        if (dt_ps_get_cursor(pm->store, pm->item[0].key, pm->cursor, pm->cursor_cap, &n)) return dt__serve_fail(pm, call);
        if (n <= pm->cursor_cap) break;
        if (dt__serve_cursor_room(pm, n)) return dt__err.code;
    }
    pm->ncursor = n;
    return 0;
}
static int dt__serve_lead(void *user) /* collective, before a checkpoint is written: one worker has all that the servers have */
{
    dt_ps_model *pm = (dt_ps_model *)user;
    const char  *call = "dt_checkpoint_save";
    if (pm->apart) return 0;
    bool lead = !dt__serve_meet(pm, call) && !dt__serve_buffers(pm, call) && pm->worker == pm->lead;
    if (lead && pm->bound && pm->started && !dt__serve_fetch(pm, call, true)) dt__serve_cursor(pm, call);
    if (lead && dt__err.code == DT_OK && pm->ncursor >= 2) {
        pm->info.version = pm->cursor[0];
        dt__serve_follow(pm);
    }
    return lead;
}
static int dt__serve_outcome(void *user, const char *call)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    char         text[DT__TALK_BYTES];
    dt__pending  before = dt__err;
    if (pm->apart) return dt__err.code;
    memset(text, 0, sizeof text);
    if (pm->worker == pm->lead && dt__err.code != DT_OK) snprintf(text, sizeof text, "%.500s", dt_error());
    dt__err.code = DT_OK; /* the others wait for this worker */
    int rc = dt__serve_share(pm, call, pm->lead, text, sizeof text);
    if (!rc) rc = dt__serve_part(pm, call);
    text[sizeof text - 1] = 0;
    if (before.code != DT_OK) dt__err = before;
    else if (!rc && text[0] && pm->worker != pm->lead) rc = dt_fail(DT_ERR_FILE, "worker %d: %s", pm->lead, text);
    return rc;
}
/* dt__watch.agree: x[0]: a checkpoint is due, x[1]: stop after it. With DT_PS_SYNC all workers are at the same step. With the
   other modes nobody waits here: a worker that wants a checkpoint writes a request to the store, and the others find it at their
   next tick. A request is twice its number, plus 1 to stop. */
static int dt__serve_tick(void *user, const char *call, int64_t *x, int n)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    int64_t      now = 0, want = 2 * (pm->asked + 1) + (n > 1 && x[1]);
    if (pm->o.mode == DT_PS_SYNC) return dt__serve_agree(pm, call, x, n);
    if (dt_ps_get_state(pm->store, DT__SERVE_TALK, DT_PS_COUNT, &now)) return dt__serve_fail(pm, call);
    if ((x[0] || (n > 1 && x[1])) && now < want) {
        if (dt_ps_set_state(pm->store, DT__SERVE_TALK, DT_PS_COUNT, &want)) return dt__serve_fail(pm, call);
        now = want;
    }
    x[0] = pm->apart ? 0 : x[0];
    if (now / 2 > pm->asked) {
        x[0] = !pm->apart;
        if (n > 1) x[1] = now & 1;
        pm->asked = now / 2;
    }
    return 0;
}
static void dt__serve_first_batch(dt_ps_model *pm) /* as the coordinator gives them out: W numbers to each machine, one to each worker */
{
    int     learner, most, at = dt__ps_place_of(pm->store, &learner, &most);
    int64_t n = pm->ncursor >= 2 ? (pm->ncursor - 2) / most : 0, next = pm->ncursor >= 2 ? pm->cursor[1] : 0, all = pm->o.batches;
    pm->next = learner < n ? pm->cursor[2 + (int64_t)learner * most] : ((next + most - 1) / most + (learner - n)) * most;
    pm->next += at;
    if (all && pm->next >= (all + most - 1) / most * most) pm->next = -1;
}
static int dt__serve_visit(void *user, dt__visit *v)
{
    dt_ps_model *pm = (dt_ps_model *)user;
    int64_t      x[3] = { 0, 0, 0 };
    char         name[48];
    int          rc = 0;
    if (v->loading && pm->started)
        return dt_fail(DT_ERR_STATE,
                       "dt_checkpoint_resume: the training on the store has begun; resume before the first dt_step");
    if (!v->loading && pm->ncursor >= 2) x[0] = pm->cursor[0], x[1] = pm->cursor[1], x[2] = pm->ncursor - 2;
    if (v->loading && !v->has(v, "ps.version")) x[0] = pm->opt->steps; /* of a training without a store */
    else {
        v->bounded = true;
        v->low = 0;
        v->high = INT64_MAX / 64;
        rc = v->integer(v, "ps.version", &x[0]);
        if (!rc) rc = v->integer(v, "ps.next", &x[1]);
        v->high = 1 << 20;
        if (!rc) rc = v->integer(v, "ps.batches", &x[2]);
        if (!rc && x[2] > 1 << 20) rc = dt_fail(DT_ERR_STATE, "dt_checkpoint: %" PRId64 " batches are not in an update", x[2]);
        v->high = INT64_MAX / 64;
    }
    if (!rc && v->loading) rc = dt__serve_cursor_room(pm, x[2] + 2);
    for (int64_t i = 0; i < x[2] && !rc; i++) {
        snprintf(name, sizeof name, "ps.batch.%" PRId64, i);
        rc = v->integer(v, name, &pm->cursor[2 + i]);
    }
    v->bounded = false;
    if (rc || !v->loading) return rc;
    pm->cursor[0] = x[0];
    pm->cursor[1] = x[1];
    pm->ncursor = x[2] + 2;
    pm->loaded = 1;
    dt__serve_first_batch(pm);
    return 0;
}
static void dt__serve_gone(void *user) { ((dt_ps_model *)user)->m = NULL; }

/* ==================================================================================================== >>calls
   The public functions. */
/* A number of each rank that was there at the start. Members may join a tolerant communicator meanwhile, which halts its collectives:
   then messages go to rank 0, and from it to all. */
enum { DT__SERVE_TAG = DT_PS_TAG + 96 };
static int dt__serve_ranks(dt_ps_model *pm, int64_t mine, int64_t *all)
{
    dt_comm    *c = dt_ps_comm(pm->store);
    int         rank = dt_comm_rank(c), size = dt__ps_ranks(pm->store), rc = 0;
    dt_msg_opts o = DT__NO_OPTIONS;
    o.tag = DT__SERVE_TAG;
    if (dt_comm_event_fd(c) < 0) rc = dt_comm_allgather(c, &mine, all, 1, NULL, DT_COMM_I64);
    else if (rank) {
        rc = dt_comm_send_with(c, &mine, 1, DT_COMM_I64, 0, o);
        if (!rc) rc = dt_comm_recv_with(c, all, size, DT_COMM_I64, 0, o);
    } else {
        all[0] = mine;
        for (int r = 1; r < size && !rc; r++) rc = dt_comm_recv_with(c, &all[r], 1, DT_COMM_I64, r, o);
        for (int r = 1; r < size && !rc; r++) rc = dt_comm_send_with(c, all, size, DT_COMM_I64, r, o);
    }
    const char *why = dt_comm_error(c) ? dt_comm_error(c) : dt_comm_error(NULL);
    return rc ? dt_fail(DT_ERR_COMM, "dt_ps_attach: %s", why ? why : "the communicator failed") : 0;
}
static int dt__serve_options(dt_ps_model *pm, bool compare) /* all ranks must have the same; they wait for each other */
{
    int       size = dt__ps_ranks(pm->store), rc = 0;
    int64_t   mine = dt__serve_hash(pm), *all = (int64_t *)dt_mem_alloc((size_t)size * sizeof *all);
    if (!all) return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
    rc = dt__serve_ranks(pm, mine, all);
    for (int r = 1; r < size && !rc && compare; r++)
        if (all[r] != all[0])
            rc = dt_fail(DT_ERR_COMM,
                         "dt_ps_attach: rank %d has other options than rank 0: the optimiser, its groups and options, the "
                         "scheduler, and "
                         "the options of dt_ps_attach must be the same on all ranks",
                         r);
    dt_mem_free(all, (size_t)size * sizeof *all);
    return rc;
}
/* A newcomer takes part from now on. With DT_PS_SYNC all workers make the same calls between two updates. When all others have pushed
   and wait for the newcomer's push, none of them is in an agreement: then it enters these, too. */
static int dt__serve_enter(dt_ps_model *pm)
{
    int64_t    about = 0, now = 0;
    dt_ps_info none;
    bool       sync = pm->o.mode == DT_PS_SYNC;
    if (dt__serve_init(pm, DT__SERVE_ABOUT, NULL, 1, DT_COMM_I64, DT_PS_ASSIGN, 0, true, 0) ||
        dt_ps_get_state(pm->store, DT__SERVE_ABOUT, DT_PS_VALUE, &about))
        return dt__serve_fail(pm, "dt_ps_attach");
    if (about != dt__serve_hash(pm))
        return dt_fail(DT_ERR_COMM,
                       "dt_ps_attach: worker %d, which has joined later, has other options than the others: the optimiser, its "
                       "groups and options, the scheduler, and the options of dt_ps_attach must be the same on all ranks",
                       pm->worker);
    if (dt__ps_enter(pm->store, DT__SERVE_PARAMETERS, sync, &pm->info)) return dt__serve_fail(pm, "dt_ps_attach");
    pm->next = pm->info.batch;
    pm->apart = !sync;
    if (sync && (dt__ps_enter(pm->store, DT__SERVE_BUFFERS, false, &none) < 0 ||
                 dt__ps_enter(pm->store, DT__SERVE_AGREEMENTS, false, &none) < 0))
        return dt__serve_fail(pm, "dt_ps_attach");
    if (dt_ps_get_state(pm->store, DT__SERVE_TALK, DT_PS_COUNT, &now)) return dt__serve_fail(pm, "dt_ps_attach");
    pm->asked = now / 2;
    return dt__serve_follow(pm);
}
static int dt__serve_worker(dt_ps_model *pm) /* what only workers do */
{
    dt_ps_discipline d = DT__NO_OPTIONS, sync = DT__NO_OPTIONS;
    d.mode = pm->o.mode;
    d.k = pm->o.k;
    d.staleness = pm->o.staleness;
    d.max_staleness = pm->o.max_staleness;
    d.scale_by_staleness = pm->o.scale_by_staleness;
    d.drop_batches = pm->o.drop_batches;
    d.batches = pm->o.batches;
    d.codec = pm->o.codec;
    sync.mode = DT_PS_SYNC;
    pm->ntalk = (int64_t)pm->workers * DT__TALK_WORDS + DT__TALK_BYTES / 8;
    pm->talk_out = (int64_t *)dt__alloc_zero((size_t)pm->ntalk * sizeof *pm->talk_out);
    pm->talk_in = (int64_t *)dt__alloc_zero((size_t)pm->ntalk * sizeof *pm->talk_in);
    if (!pm->talk_out || !pm->talk_in || dt__serve_cursor_room(pm, 2 + pm->workers))
        return dt_fail(DT_ERR_MEMORY, "dt_ps_attach: out of memory");
    if (dt_ps_group_with(pm->store, DT__SERVE_PARAMETERS, d) || dt_ps_group_with(pm->store, DT__SERVE_BUFFERS, sync) ||
        dt_ps_group_with(pm->store, DT__SERVE_AGREEMENTS, sync) ||
        dt__serve_init(pm, DT__SERVE_TALK, pm->talk_out, pm->ntalk, DT_COMM_I64, DT_PS_ASSIGN, DT__SERVE_AGREEMENTS, true, 0))
        return dt__serve_fail(pm, "dt_ps_attach");
    if (!pm->newcomer) dt__serve_first_batch(pm);
    else if (dt__serve_enter(pm)) return dt__err.code;
    for (int i = 0; i < pm->m->nparams; i++)
        if (dt__serve_param(pm, pm->m->param[i], i)) return dt__serve_abort(pm);
    return dt__serve_hook(pm);
}
static int dt__serve_attach(dt_ps_model *pm)
{
    dt_model *m = pm->m;
    if (!pm->newcomer && dt__serve_options(pm, true)) return dt__err.code;
    if (dt_ps_server(pm->store) >= 0 && dt__server_new(pm->store, pm->opt, pm->o.scheduler)) return dt__serve_abort(pm);
    if (!pm->newcomer && dt__serve_options(pm, false)) return dt__err.code; /* the servers are ready */
    dt__serve_states(pm->opt, pm->dense);
    pm->watch.user = pm;
    pm->watch.step = dt__serve_step;
    pm->watch.gone = dt__serve_gone;
    if (pm->worker >= 0) {
        pm->watch.made = dt__serve_made;
        pm->watch.agree = dt__serve_tick;
        pm->watch.same = dt__serve_same;
        pm->watch.lead = dt__serve_lead;
        pm->watch.outcome = dt__serve_outcome;
        pm->watch.visit = dt__serve_visit;
    }
    pm->watch.kind = DT__WATCH_STORE;
    dt__watch_add(m, &pm->watch);
    if (pm->worker < 0) return 0;
    return dt__serve_worker(pm) ? (int)dt__err.code : dt__model_on_seal(m, dt__serve_on_seal, pm);
}
DT_API dt_ps_model *dt_ps_attach_with(dt_model *m, dt_optimizer *opt, dt_ps *store, dt_ps_attach_opts o)
{
    const char *call = "dt_ps_attach", *why = NULL;
    if (!dt__model_ok(call, m)) return NULL;
    if (!opt || !store) dt_fail(DT_ERR_ARG, "%s: the %s is NULL", call, opt ? "store" : "optimiser");
    else if (opt->m != m)
        dt_fail(DT_ERR_ARG, "%s: the optimiser belongs to another model; pass the model that it was made for", call);
    else if (m->watch) dt_fail(DT_ERR_STATE, "%s: the model %s", call, dt__watch_taken(m));
    else if (opt->steps)
        dt_fail(DT_ERR_STATE,
                "%s: the optimiser has made %" PRId64 " steps, which the servers do not know: save a checkpoint, and "
                "resume it after dt_ps_attach",
                call, opt->steps);
    else if (o.scheduler && !dt__scheduler_serves(o.scheduler, opt, &why)) dt_fail(DT_ERR_ARG, "%s: .scheduler: %s", call, why);
    else if (dt_comm_get_status(dt_ps_comm(store)))
        dt_fail(DT_ERR_COMM, "%s: the communicator has failed: %s", call, dt_comm_error(dt_ps_comm(store)));
    if (dt__err.code != DT_OK) return NULL;
    dt_ps_model *pm = (dt_ps_model *)dt__alloc_zero(sizeof *pm);
    if (!pm) {
        dt_fail(DT_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    pm->m = m;
    pm->opt = opt;
    pm->store = store;
    pm->o = o;
    pm->worker = dt_ps_worker(store);
    pm->workers = dt__ps_most(store);
    pm->newcomer = pm->worker >= dt_ps_workers(store);
    pm->hook = -1;
    pm->next = -1;
    if (!dt__serve_attach(pm)) return pm;
    dt_ps_detach(pm);
    return NULL;
}
DT_API void dt_ps_detach(dt_ps_model *pm)
{
    if (!pm) return;
    dt_model *m = pm->m;
    dt__serve_unhook(pm);
    if (m && dt__watch_find(m, pm)) {
        dt__watch_remove(m, &pm->watch);
        for (int64_t i = 0; i < m->on_seal.n; i++) {
            dt__on_seal *s = (dt__on_seal *)m->on_seal.at[i];
            if (s->user == pm) s->user = NULL;
        }
    }
    dt__serve_items_free(pm);
    dt_mem_free(pm->served, (size_t)pm->served_cap * sizeof *pm->served);
    dt_mem_free(pm->cursor, (size_t)pm->cursor_cap * sizeof *pm->cursor);
    dt_mem_free(pm->talk_out, (size_t)pm->ntalk * sizeof *pm->talk_out);
    dt_mem_free(pm->talk_in, (size_t)pm->ntalk * sizeof *pm->talk_in);
    dt_mem_free(pm, sizeof *pm);
}
static bool dt__serve_ok(const char *call, const dt_ps_model *pm)
{
    if (dt__err.code != DT_OK) return false;
    if (!pm) dt_fail(DT_ERR_ARG, "%s: the dt_ps_model is NULL", call);
    else if (!pm->m) dt_fail(DT_ERR_STATE, "%s: the model was freed; call it before dt_model_free", call);
    else if (pm->worker < 0) dt_fail(DT_ERR_STATE, "%s: this rank is a server only: it calls dt_ps_serve", call);
    else if (dt__tls.in_backward) dt_fail(DT_ERR_STATE, "%s: called inside a backward; call it before or after", call);
    return dt__err.code == DT_OK;
}
DT_API int64_t dt_ps_next_batch(dt_ps_model *pm)
{
    if (!dt__serve_ok("dt_ps_next_batch", pm)) return -1;
    if (pm->next < 0 && pm->bound && !pm->resting) {
        if (dt_ps_rest(pm->store, pm->item[0].key, true)) dt__serve_fail(pm, "dt_ps_next_batch");
        pm->resting = 2;
    }
    return pm->next;
}
DT_API dt_status dt_ps_model_stats(dt_ps_model *pm, dt_ps_stats *out)
{
    if (!pm || !pm->nitems || !out)
        return (dt_status)dt_fail(DT_ERR_STATE, "dt_ps_model_stats: there is no attached model, it has had no backward yet, or out is NULL");
    if (dt_ps_get_stats(pm->store, pm->item[0].key, out)) dt__serve_fail(pm, "dt_ps_model_stats");
    return dt_error_code();
}
DT_API bool dt_ps_model_cancelled(const dt_ps_model *pm) { return pm && pm->nitems && dt_ps_cancelled(pm->store, pm->item[0].key); }
DT_API dt_ps_info dt_ps_model_info(const dt_ps_model *pm)
{
    dt_ps_info none;
    memset(&none, 0, sizeof none);
    return pm ? pm->info : none;
}
DT_API dt_status dt_ps_collect(dt_ps_model *pm)
{
    const char *call = "dt_ps_collect";
    if (!dt__serve_ok(call, pm)) return dt_error_code();
    if (!pm->bound)
        return (dt_status)dt_fail(DT_ERR_STATE, "%s: the model has had no backward yet; there is nothing to collect", call);
    if (pm->apart) return (dt_status)dt__serve_fetch(pm, call, false);
    if (dt__serve_meet(pm, call) || dt__serve_buffers(pm, call) || dt__serve_fetch(pm, call, false)) return dt_error_code();
    if (!dt__serve_gather(pm, call, NULL, 0)) dt__serve_part(pm, call);
    return dt_error_code();
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_SERVE_IMPLEMENTATION */
