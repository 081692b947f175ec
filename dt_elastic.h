/* dt_elastic.h - v0.2.0 - training that goes on when ranks die, and that others can join */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_elastic.h"
    In every other file that uses it:           #include "dt_elastic.h"

    dt_dist.h and the headers that it includes must be in the same directory. Link with -lm -lpthread.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_elastic.h"
    #include <stdio.h>

    static float x[64][4], y[64][1];
    static int   trainer(void *arg)
    {
        for (int i = 0; i < 64; i++) y[i][0] = x[i][i % 4] = (float)i / 64;
        dt_dataset   *set = dt_arrays(x, 64, .x_shape = DT_SHAPE(4), .y = y, .y_dtype = DT_F32, .y_shape = DT_SHAPE(1));
        dt_loader    *in = dt_loader_new(set, .batch = 8, .shuffle = true);
        dt_model     *m = dt_model_new(.seed = 1);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
        dt_elastic   *e = dt_elastic_new(m, opt, in, .min = 1, .max = 4);
        while (dt_elastic_epoch(e) < 5)
            for (dt_batch b; dt_elastic_next(e, &b);) {
                dt_backward(dt_mse_loss(dt_linear(m, "fc", b.x, .out = 1), b.y));
                dt_elastic_step(e);
            }
        if (dt_elastic_rank(e) == 0) printf("%d steps\n", (int)dt_elastic_steps(e));
        dt_elastic_free(e);
        dt_loader_free(in);
        dt_optimizer_free(opt);
        dt_model_free(m);
        dt_dataset_free(set);
        (void)arg;
        return dt_check("trainer");
    }
    int main(void) { return dt_spawn(2, trainer, NULL); }

WHAT IT DOES NOT DO

    It does not start processes: a launcher does (tools/dtrun.c --min, --max). It does not heal pipelines, tensor parallel
    models, parameter servers, jobs over MPI, nor models on GPUs.

CONTENTS

    >>elastic        training with members that come and go
    >>reports        implementation from here: what the launcher is told
    >>members        agreeing on the members; the state of a training
    >>handing        giving a member the state of another
    >>forming        from a change of the members to the next step
    >>calls          the public functions

ERRORS

    As in dt.h. The death of another member is no error: the step is repeated without it. A member that has an error of its own
    leaves the group, and the others go on.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_ELASTIC_IMPLEMENTATION)
#define DT_ELASTIC_IMPLEMENTATION
#endif
#include "dt_dist.h"

#ifndef DT_ELASTIC_H_INCLUDED
#define DT_ELASTIC_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_elastic.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>elastic
   Data parallel training (dt_dist.h) on members that come and go. dt_elastic_new makes the communicator and the ddp; the loop
   takes batches from dt_elastic_next and ends each step with dt_elastic_step:

       dt_elastic *e = dt_elastic_new(m, opt, in, .min = 2, .max = 8);
       while (dt_elastic_epoch(e) < epochs)
           for (dt_batch b; dt_elastic_next(e, &b);) {
               dt_backward(loss of b);
               dt_elastic_step(e);
           }
       dt_elastic_free(e);

   A step is committed when dt_elastic_step has updated the weights. When a member dies, the backward of the others ends without
   an update. They agree on who is left and on the newest committed step; a member that is one step behind gets the state of
   another one. The samples of the epoch that no committed step has used are divided anew, so each is used once, and the loop
   goes on: dt_elastic_step has returned false, dt_elastic_next gives the next batch. If nothing can go on, it returns false
   with an error pending.

   A process that starts with DT_ELASTIC_JOIN=HOST:PORT in its environment (dtrun sets it), or .join, becomes a member between
   two steps. Its first batch only makes the model: it has no effect. Then it gets weights, optimiser state, mixed
   precision, schedulers, random numbers and position from another member.

   The loader is made without .rank and .world. Its epochs have each sample once: the last step of an epoch may have fewer
   samples, or none on some members, and each sample has the same weight (with .drop_last, .slots and .shard = 3 as their
   manuals say). Not with .contiguous. All members must make the same calls between steps.

   With .ddp.slots = S the results do not depend on the number of members or on who dies when, bit for bit: a step has S batches
   of the loader, whoever computes them. dt_elastic_next then gives several batches for a step, and dt_elastic_step returns
   true for the last one.

   A member that does not answer for the timeout of the communicator (.comm.timeout, default 30 s) is given up. If it continues, its
   next call fails and says at which step it was given up. A member that is only slower than that stays.

   With .ddp.shard each member's part of the state has a copy on its right neighbour. If both die at once, the others go on from
   the newest checkpoint in .checkpoint: dt_elastic_steps goes back to its step. It should hold the loader and the scheduler
   (dt_loader_checkpoint, .scheduler), and the program saves it with dt_checkpoint_tick after dt_elastic_step. The lowest rank reads it for all.

   Without a launcher and without .min and .max this is training on one rank, or on the ranks that dt_comm_init finds. */
typedef struct dt_elastic dt_elastic; /* one member of a training that heals */
typedef struct dt_elastic_opts {
    int dt__first DT_D;
    int min       DT_D,
        max       DT_D; /* members; default: DT_ELASTIC=MIN:MAX, which dtrun sets; else 1, and the ranks of the start */
    int room      DT_D; /* processes that can be members during the whole job; default 4096 */
    double wait   DT_D; /* seconds to wait with fewer members than min; default DT_ELASTIC_WAIT, else 60 */
    const char *join          DT_D; /* HOST:PORT of the group; default DT_ELASTIC_JOIN */
    dt_scheduler *scheduler   DT_D; /* dt_elastic_step makes a step of it, too */
    dt_checkpoint *checkpoint DT_D; /* saved if the job ends early: below the minimum, or the launcher has died. Read if a part of the
                                       sharded state is lost */
    dt_ddp_opts ddp           DT_D; /* as for dt_ddp_new */
    dt_comm_opts comm         DT_D; /* as for dt_comm_init */
    dt_comm *base             DT_D; /* a tolerant communicator with .room that exists, for example of dt_sim.h. Its members are
                                       those of the start, or it has joined them. Then .join, .room and .comm do not count.
                                       dt_elastic_free frees it; the caller does if dt_elastic_new fails */
} dt_elastic_opts;
/* joins or founds the group; NULL on error */
DT_API dt_elastic *dt_elastic_new_with(dt_model *m, dt_optimizer *opt, dt_loader *in,
                                       dt_elastic_opts o DT_OPT0(dt_elastic_opts));
#ifdef DT__LIT
#define dt_elastic_new(m, opt, ...) \
    dt_elastic_new_with(m, opt, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_elastic_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_elastic_new dt_elastic_new_with
#endif
/* Leaves the group, when all members have finished this member's last step. The others go on, if they still train. Before the model
   and the loader are freed. */
DT_API void dt_elastic_free(dt_elastic *e);
/* The next batch of this member. It returns false once at the end of each epoch, as dt_loader_next does, once when a newcomer has become
   a member, and while an error is pending. */
DT_API bool dt_elastic_next(dt_elastic *e, dt_batch *b);
/* This member leaves in order before its next step: dt_elastic_next returns false, without an error, and dt_elastic_epoch INT64_MAX.
   It may be called in a signal handler. */
DT_API void dt_elastic_leave(dt_elastic *e);
DT_API bool dt_elastic_step(dt_elastic *e); /* after the backward. true: a step is committed */
DT_API int64_t
dt_elastic_epoch(const dt_elastic *e); /* of the next step; INT64_MAX while an error is pending, so that loops end */
DT_API int64_t dt_elastic_steps(const dt_elastic *e); /* committed so far, by the group */
DT_API int dt_elastic_rank(const dt_elastic *e); /* in the present group: it may change in dt_elastic_next and _step */
DT_API int dt_elastic_size(const dt_elastic *e);
DT_API dt_ddp *
dt_elastic_ddp(const dt_elastic *e); /* until the next dt_elastic_next or _step; NULL: none at the moment */
/* Where others join (HOST:PORT of the leader, which is rank 0): for .join. Works like snprintf. "" on other ranks. */
DT_API size_t dt_elastic_address(const dt_elastic *e, char *buf, size_t nbytes);
typedef struct dt_elastic_stats {
    int64_t generation;    /* changes of the members, the start included */
    int64_t deaths, joins; /* that this member has seen, also departures */
    int64_t refused;       /* newcomers that did not fit */
    int64_t received;      /* bytes of state that this member got from another one */
    double  healing,
        longest; /* seconds from the end of a step's collectives to the next step: the last one, the longest one */
} dt_elastic_stats;
DT_API dt_elastic_stats dt_elastic_get_stats(const dt_elastic *e);

#ifdef __cplusplus
}
#endif
#endif /* DT_ELASTIC_H_INCLUDED */

#if defined(DT_ELASTIC_IMPLEMENTATION) && !defined(DT__ELASTIC_IMPLEMENTED)
#define DT__ELASTIC_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__DIST_IMPLEMENTED)
#error \
    "dt_elastic.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_ELASTIC_IMPLEMENTATION"
#endif
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(ELASTIC);
DT__NEEDS(ELASTIC, DIST);
DT__NEEDS(ELASTIC, DATA);
DT__NEEDS(ELASTIC, NN);
DT__NEEDS(ELASTIC, COMM);

/* What each member tells all others when a group forms: words of 64 bits. The first ones must be equal: dt__elastic_names. */
enum {
    DT__EW_VERSION = 0,
    DT__EW_ITEMS,
    DT__EW_SEED,
    DT__EW_BATCH,
    DT__EW_SLOTS,
    DT__EW_SHARD,
    DT__EW_OPTIMIZERS,
    DT__EW_OPTIMIZER,
    DT__EW_EQUAL,                /* the number of those above */
    DT__EW_MODEL = DT__EW_EQUAL, /* a hash of its parameters; 0: it has none yet */
    DT__EW_STEP,
    DT__EW_WHOLE,
    DT__EW_SEALED,
    DT__EW_EPOCH,
    DT__EW_POSITION,
    DT__EW_GENERATION,
    DT__EW_MEMBER,
    DT__EW_NEW,
    DT__EW_TOP,
    DT__EW_ORPHAN,
    DT__EW_CUT,
    DT__EW_CUT_RANK,
    DT__EW_CUT_WORLD,
    DT__EW_OWN0,
    DT__EW_OWN1,
    DT__EW_LEFT0,
    DT__EW_LEFT1,
    DT__EW_FULL,
    DT__EW_CHECKPOINT,
    DT__EW_MAX,
    DT__EW_EXCHANGED,
    DT__EW_WORDS
};
#ifndef DT__ON_WORDS /* tests replace it: a member may say what is not so */
#define DT__ON_WORDS(w) ((void)(w))
#endif
static const char *const dt__elastic_names[DT__EW_EQUAL] = { "version of dt",        "number of items of the dataset",
                                                             "seed of the loader",   "batch of the loader",
                                                             ".ddp.slots",           ".ddp.shard",
                                                             "number of optimisers", "kind of the optimiser" };
typedef enum dt__elastic_state {
    DT__EL_OUT = 0, /* no member of a group: it is a newcomer, or the group was not formed yet */
    DT__EL_WARM,    /* it computes a batch alone, to make the model */
    DT__EL_IN,      /* it has a group and a ddp */
    DT__EL_OVER     /* an error: it has left */
} dt__elastic_state;
struct dt_elastic {
    dt_model         *m;
    dt_optimizer     *opt;
    dt_loader        *in;
    dt_elastic_opts   o;
    dt_checkpoint    *kept;  /* of what a member gives to another: dt__state_new */
    dt_comm          *base;  /* all processes that ever were members: tolerant, with room; never used for collectives */
    dt_comm          *group; /* the present members; NULL: none */
    dt_ddp           *ddp;
    dt__elastic_state state;
    bool              newcomer; /* it has to join; or it has joined and not yet got a state */
    bool              grouped;  /* it was in a group, if only for a moment: the others do not take it for a newcomer any more */
    bool              whole;    /* its state is that of a committed step, or was given to it */
    bool              entered;  /* dt__elastic_enter was called */
    bool              plain;    /* the members do not change */
    bool              orphan;   /* the launcher has died */
    bool              done;     /* DONE was reported */
    /* .ddp.shard: see >>handing */
    dt__parcel      *mine[2], *left[2]; /* by step & 1 */
    int64_t          cut;               /* the generation that has made them; 0: there are none */
    bool             exchanged;         /* all of them had sent their parts once: since then they may have made updates */
    int              cut_rank, cut_world;
    int              full_fd, scratch; /* files in memory, or -1: the whole state of full_step; for making a parcel */
    int64_t          full_step;
    int              leaving; /* atomic: dt_elastic_leave was called */
    int              top;     /* the highest number in base that ever was in a group; later ones are newcomers */
    int64_t         *id;      /* DT_MEMBER of each member of base; -1: unknown */
    int64_t          generation, step, member;
    dt_cursor        at;          /* after the last committed step */
    dt_cursor        next;        /* after the step that runs */
    int64_t          k;           /* committed steps since the split */
    dt__share        share;       /* what was left of the epoch at the split */
    int              slot, own;   /* batches of this step that this member has had; that it has in a step */
    int64_t          epoch_said;  /* dt_elastic_next has returned false for all epochs before this one */
    int              report_fd;   /* 0: no launcher */
    int64_t          reported;    /* ns */
    int64_t          short_since; /* ns: since when there are fewer than min; 0: there are enough */
    uint64_t         t_lost;      /* when the step failed; 0: it did not */
    dt_elastic_stats stats;
};

DT__SLOW_BEGIN
/* ==================================================================================================== >>reports */
static bool dt__elastic_leads(const dt_elastic *e) { return e->group && dt_comm_rank(e->group) == 0; }
static void dt__elastic_report_now(dt_elastic *e, int kind, int64_t about, const char *text)
{
    dt__elastic_report r;
    if (e->report_fd <= 0) return;
    memset(&r, 0, sizeof r);
    r.magic = DT__ELASTIC_MAGIC;
    r.kind = (uint32_t)kind;
    r.member = e->member;
    r.about = about;
    r.generation = e->generation;
    r.step = e->step;
    r.members = dt_elastic_size(e);
    r.min = e->o.min;
    r.max = e->o.max;
    r.want = e->o.max > r.members && !e->done && kind != DT__EL_FAILED ? e->o.max - r.members : 0;
    dt_elastic_address(e, r.address, sizeof r.address);
    snprintf(r.text, sizeof r.text, "%s", text ? text : "");
    int64_t until = dt__comm_now() + 100 * DT__NS_PER_MS;
    bool last = kind == DT__EL_DONE || kind == DT__EL_FAILED || kind == DT__EL_RETRY; /* they are not repeated later */
    ssize_t n;
    while ((n = send(e->report_fd, &r, sizeof r, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 && last && errno == EAGAIN &&
           dt__comm_now() < until)
        dt__comm_pause(DT__NS_PER_MS);
    if (n < 0 && (errno == ECONNREFUSED || errno == ENOTCONN || errno == EPIPE || errno == ECONNRESET))
        e->orphan = true;
    e->reported = dt__comm_now();
}
/* Once a second: tells the launcher that this member lives, and learns whether the launcher does. */
static void dt__elastic_beat(dt_elastic *e)
{
    if (e->report_fd > 0 && dt__comm_now() - e->reported >= DT__NS_PER_S)
        dt__elastic_report_now(e, dt__elastic_leads(e) ? DT__EL_STATE : DT__EL_ALIVE, -1, NULL);
}
/* What has happened to members, for the launcher and the log. */
static void dt__elastic_event(dt_elastic *e, const dt_comm_event *v)
{
    uint64_t now = dt_trace_now();
    bool     joined = v->kind == DT_MEMBER_JOINED;
    if (joined) e->stats.joins++;
    else e->stats.deaths++;
    if (joined || v->rank >= e->o.room) return; /* JOINED is reported when it takes part */
    dt_trace_span("elastic", v->kind == DT_MEMBER_LEFT ? "a member left" : "a member died", now, now + 1000);
    if (dt_comm_rank(e->base) != dt__world_head(e->base->world)) return;
    dt__logf(v->kind == DT_MEMBER_LEFT ? DT_LOG_INFO : DT_LOG_WARN, "elastic: after step %" PRId64 ": %s", e->step,
             v->why);
    dt__elastic_report_now(e, v->kind == DT_MEMBER_LEFT ? DT__EL_LEFT : DT__EL_GONE, e->id[v->rank], v->why);
}
static void dt__elastic_events(dt_elastic *e)
{
    dt_comm_event v;
    dt_event_opts at_once;
    DT__CLEAR(at_once);
    while (!e->plain && e->base && dt_comm_next_event_with(e->base, &v, at_once) > 0) dt__elastic_event(e, &v);
}

/* ==================================================================================================== >>members
   One communicator, base, knows all processes that ever were members: it is tolerant and has room. It is used for
   dt_comm_shrink only, which is the one agreement on who is a member. Its result, group, has the collectives of this header;
   the ddp has a duplicate of group. When a member dies, or when a newcomer is to take part, all members call dt_comm_shrink
   of base again. A newcomer calls it when it sees that the others do. */
static void dt__elastic_ungroup(dt_elastic *e)
{
    dt__ddp_drop(e->ddp);
    e->ddp = NULL;
    dt_comm_free(e->group);
    e->group = NULL;
}
static void dt__elastic_over(dt_elastic *e) /* an error is pending: leaves at once, so that the others need not wait */
{
    char text[400];
    if (e->state == DT__EL_OVER) return;
    snprintf(text, sizeof text, "%s", dt_error() ? dt_error() : "");
    if (e->state != DT__EL_OUT || !e->newcomer) dt__elastic_report_now(e, DT__EL_FAILED, -1, text);
    e->state = DT__EL_OVER;
    dt__elastic_ungroup(e);
    dt_comm_free(e->base);
    e->base = NULL;
}
static void dt__elastic_drop_grads(dt_model *m)
{
    dt__drop_grads(m);
    for (int i = 0; m->amp && i < m->amp->nlosses; i++) m->amp->scaler[i].used = 0;
}
static uint64_t dt__elastic_model_hash(const dt_model *m) /* 0: it has no parameters yet */
{
    uint64_t h = DT__DDP_HASH;
    for (int i = 0; i < m->nparams; i++) {
        dt__ddp_fingerprint k = dt__ddp_fingerprint_of(m->param[i], i);
        h = dt__ddp_hash(h, &k, sizeof k);
    }
    return m->nparams ? h | 1 : 0;
}
static void dt__elastic_words(dt_elastic *e, int64_t *w)
{
    const dt_loader_opts *lo = dt__loader_options(e->in);
    memset(w, 0, DT__EW_WORDS * sizeof *w);
    w[DT__EW_VERSION] = DT_VERSION_MAJOR * 1000000 + DT_VERSION_MINOR * 1000 + DT_VERSION_PATCH;
    w[DT__EW_ITEMS] = dt_dataset_len(dt_loader_dataset(e->in));
    w[DT__EW_SEED] = (int64_t)lo->seed;
    w[DT__EW_BATCH] = lo->batch;
    w[DT__EW_SLOTS] = e->o.ddp.slots;
    w[DT__EW_SHARD] = e->o.ddp.shard;
    w[DT__EW_OPTIMIZERS] = e->m->nopts;
    strncpy((char *)&w[DT__EW_OPTIMIZER], dt__optim_about_of(e->opt, 0).call + 3,
            sizeof w[0] - 1); /* of "dt_sgd" ... */
    w[DT__EW_MODEL] = (int64_t)dt__elastic_model_hash(e->m);
    w[DT__EW_STEP] = e->step;
    w[DT__EW_WHOLE] = e->whole;
    w[DT__EW_SEALED] = e->m->sealed;
    w[DT__EW_EPOCH] = e->at.epoch;
    w[DT__EW_POSITION] = e->at.position;
    w[DT__EW_GENERATION] = e->generation;
    w[DT__EW_MEMBER] = e->member;
    w[DT__EW_NEW] = e->newcomer;
    w[DT__EW_TOP] = e->top;
    w[DT__EW_ORPHAN] = e->orphan;
    w[DT__EW_CUT] = e->cut;
    w[DT__EW_CUT_RANK] = e->cut_rank;
    w[DT__EW_CUT_WORLD] = e->cut_world;
    for (int k = 0; k < 2; k++) {
        w[DT__EW_OWN0 + k] = e->mine[k] ? e->mine[k]->step : -1;
        w[DT__EW_LEFT0 + k] = e->left[k] ? e->left[k]->step : -1;
    }
    w[DT__EW_FULL] = e->full_fd >= 0 ? e->full_step : -1;
    w[DT__EW_CHECKPOINT] = e->o.checkpoint != NULL;
    w[DT__EW_MAX] = e->o.max;
    w[DT__EW_EXCHANGED] = e->exchanged;
    DT__ON_WORDS(w);
}
/* A call has failed: because the group no longer goes on? Then the next one is formed. The control thread tells one communicator after the
   other of a death, so this one may hear of it a moment later than the one that failed. */
static bool dt__elastic_lost(const dt_elastic *e)
{
    int64_t until = dt__comm_now() + 100 * DT__NS_PER_MS;
    for (; !e->plain; dt__comm_pause(DT__NS_PER_MS)) {
        int status = e->group ? dt_comm_get_status(e->group) : 0;
        if (!status && e->group) status = dt__comm_halted(e->group, UINT64_MAX);
        if (!status && e->ddp) status = dt__ddp_lost(e->ddp);
        if (status == DT_COMM_ERR_PEER || status == DT_COMM_ERR_TIMEOUT) return true;
        if (dt__comm_now() > until) return false; /* another status may be what this rank did because of the death: dt__ddp_abort */
    }
    return false;
}
static const char *dt__elastic_why(const dt_elastic *e) /* a call of the group has failed */
{
    const char *why = dt_comm_error(e->group);
    if (!why) why = dt_comm_error(NULL);
    return why ? why : "a member has gone";
}
static bool dt__elastic_knocks(const dt_elastic *e) /* does a newcomer wait? */
{
    for (int r = e->top + 1; r < dt__comm_known(e->base); r++)
        if (dt__members_how(e->base, r, NULL, 0) == DT__ALIVE) return true;
    return false;
}
static int dt__elastic_given_up(dt_elastic *e, const char *why)
{
    return dt_fail(DT_ERR_COMM, "dt_elastic: this member (rank %d) was given up at step %" PRId64 ": %s",
                   dt_comm_rank(e->base), e->step, why ? why : "it did not answer");
}

/* ==================================================================================================== >>handing
   The state of a member is the file that a checkpoint would be, in memory. It goes as one message over the group.

   Sharded: after each update a member sends its part of that file (a parcel) to its right neighbour, before the step is
   committed; a small allreduce tells that all have done so. Parts of the last two steps are kept, since a death may come when
   some have made the update and others have not. So when a member dies there is a step of which all parts are there: those of
   the living, and that of the dead one at its neighbour. All members get all parts, make the file of them (full), and load it;
   the next ddp cuts it anew. The full file is kept until parcels of the new group are exchanged. If a part is lost, the file is
   made of a checkpoint. */
static dt_msg_opts dt__elastic_tag(int tag)
{
    dt_msg_opts o;
    DT__CLEAR(o);
    o.tag = tag;
    return o;
}
static int dt__elastic_memory(void)
{
    int fd = (int)syscall(SYS_memfd_create, "dt-state", 1u /* close-on-exec */);
    if (fd < 0) dt_fail(DT_ERR_MEMORY, "dt_elastic: a file in memory for the state: %s", strerror(errno));
    return fd;
}
static int dt__elastic_give(dt_elastic *e, const int *to, int n) /* 0; 1: the group is lost; negative after dt_fail */
{
    int     fd = dt__elastic_memory(), rc = fd < 0 ? dt__err.code : 0;
    int64_t head[2];
    void   *p = MAP_FAILED;
    if (rc) return rc;
    *dt_loader_cursor(e->in) = e->at;
    rc = dt__state_write("dt_elastic", e->kept, fd, e->at.epoch, e->step);
    head[0] = rc ? 0 : (int64_t)lseek(fd, 0, SEEK_END);
    head[1] = e->step;
    if (!rc && (p = mmap(NULL, (size_t)head[0], PROT_READ, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = dt_fail(DT_ERR_MEMORY, "dt_elastic: %" PRId64 " bytes of state: %s", head[0], strerror(errno));
    for (int i = 0; i < n && !rc; i++)
        if (dt_comm_send_with(e->group, head, 2, DT_COMM_I64, to[i], dt__elastic_tag(0)) ||
            dt_comm_send_with(e->group, p, head[0], DT_COMM_U8, to[i], dt__elastic_tag(1)))
            rc = 1;
    if (p != MAP_FAILED) munmap(p, (size_t)head[0]);
    close(fd);
    return rc;
}
static int dt__elastic_take(dt_elastic *e, int from)
{
    int64_t head[2] = { 0, 0 };
    if (dt_comm_recv_with(e->group, head, 2, DT_COMM_I64, from, dt__elastic_tag(0))) return 1;
    int   fd = dt__elastic_memory();
    void *p = MAP_FAILED;
    if (fd < 0) return dt__err.code;
    if (head[0] <= 0 || ftruncate(fd, (off_t)head[0]) ||
        (p = mmap(NULL, (size_t)head[0], PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        int e0 = errno;
        close(fd);
        return dt_fail(DT_ERR_MEMORY, "dt_elastic: no memory for %" PRId64 " bytes of state: %s", head[0],
                       strerror(e0));
    }
    int rc = dt_comm_recv_with(e->group, p, head[0], DT_COMM_U8, from, dt__elastic_tag(1)) ? 1 : 0;
    munmap(p, (size_t)head[0]);
    if (rc) {
        close(fd);
        return 1;
    }
    e->whole = false; /* until all of it is there */
    if (dt__state_read("dt_elastic", e->kept, fd)) return dt__err.code;
    e->at = *dt_loader_cursor(e->in);
    e->step = head[1];
    e->whole = true;
    e->stats.received += head[0];
    return 0;
}

static void dt__elastic_parcel_free(dt__parcel **p)
{
    if (*p) dt_mem_free(*p, (size_t)(*p)->nbytes);
    *p = NULL;
}
static void dt__elastic_parcels_free(dt_elastic *e)
{
    for (int k = 0; k < 2; k++) dt__elastic_parcel_free(&e->mine[k]), dt__elastic_parcel_free(&e->left[k]);
    e->cut = 0;
    e->exchanged = false;
}
static void dt__elastic_close(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
/* This member's part of a step goes to the right neighbour. 0: all members have done so; 1: the group is lost. */
static int dt__elastic_exchange(dt_elastic *e, int64_t step, int64_t epoch)
{
    int n = dt_elastic_size(e), me = dt_elastic_rank(e), right = (me + 1) % n, before = (me + n - 1) % n,
        k = (int)(step & 1);
    int64_t  size[2] = { 0, 0 };
    uint64_t t0 = dt_trace_now();
    dt_work *w[2];
    if (!e->o.ddp.shard || n < 2 || !e->m->shards) return 0;
    if (e->cut != e->generation) {
        dt__elastic_parcels_free(e);
        e->cut = e->generation;
        e->cut_rank = me;
        e->cut_world = n;
    }
    dt__elastic_parcel_free(&e->mine[k]);
    dt__elastic_parcel_free(&e->left[k]);
    if (e->scratch < 0 && (e->scratch = dt__elastic_memory()) < 0) return dt__err.code;
    if (ftruncate(e->scratch, 0) || lseek(e->scratch, 0, SEEK_SET))
        return dt_fail(DT_ERR_FILE, "dt_elastic: a file in memory: %s", strerror(errno));
    dt__parcel *p = dt__state_parcel("dt_elastic", e->kept, e->scratch, epoch, step);
    if (!p) return dt__err.code;
    e->mine[k] = p;
    size[0] = p->nbytes;
    w[0] = dt_comm_send_start_with(e->group, &size[0], 1, DT_COMM_I64, right, dt__elastic_tag(0));
    w[1] = dt_comm_send_start_with(e->group, p, p->nbytes, DT_COMM_U8, right, dt__elastic_tag(1));
    int rc = !w[0] || !w[1] || dt_comm_recv_with(e->group, &size[1], 1, DT_COMM_I64, before, dt__elastic_tag(0));
    dt__parcel *q = !rc && size[1] > 0 ? (dt__parcel *)dt_mem_alloc((size_t)size[1]) : NULL;
    if (!rc && !q)
        rc = dt_fail(DT_ERR_MEMORY, "dt_elastic: out of memory for %" PRId64 " bytes of the state of rank %d", size[1],
                     before);
    if (!rc && dt_comm_recv_with(e->group, q, size[1], DT_COMM_U8, before, dt__elastic_tag(1))) rc = 1;
    for (int i = 0; i < 2; i++)
        if (w[i] && dt_work_wait(w[i]) && !rc) rc = 1;
    if (!rc && (!dt__parcel_ok(q, size[1]) || q->step != step))
        rc = dt_fail(DT_ERR_COMM, "dt_elastic: rank %d sent no valid part of its state of step %" PRId64, before, step);
    if (rc) {
        if (q) dt_mem_free(q, (size_t)size[1]);
        return rc;
    }
    e->left[k] = q;
    if (dt_comm_allreduce(e->group, &size[0], 1, DT_COMM_I64, DT_COMM_MAX)) return 1;
    e->exchanged = true;
    dt__elastic_parcel_free(&e->mine[!k]);
    dt__elastic_parcel_free(&e->left[!k]);
    dt__elastic_close(&e->full_fd);
    dt_trace_span("elastic", "parts to the neighbour", t0, dt_trace_now());
    return 0;
}
static int dt__elastic_holder(const int64_t *all, int n, int64_t cut, int part, int world, int64_t step,
                              bool *left) /* or -1 */
{
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < n; r++) {
            const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
            int            has = k ? (part + 1) % world : part, first = k ? DT__EW_LEFT0 : DT__EW_OWN0;
            if (w[DT__EW_CUT] != cut || w[DT__EW_CUT_RANK] != has || (w[first] != step && w[first + 1] != step))
                continue;
            *left = k;
            return r;
        }
    return -1;
}
static int dt__elastic_gather_parts(dt_elastic *e, const int64_t *all, int64_t cut, int world, int64_t step)
{
    int         n = dt_comm_size(e->group), me = dt_comm_rank(e->group), rc = 0, fd = -1;
    size_t      nbytes = 0;
    uint8_t    *base = (uint8_t *)MAP_FAILED;
    dt__parcel *first = NULL;
    for (int part = 0; part < world && !rc; part++) {
        bool        left = false;
        int         h = dt__elastic_holder(all, n, cut, part, world, step, &left);
        dt__parcel *p = h == me ? (left ? e->left : e->mine)[step & 1] : NULL;
        int64_t     size = p ? p->nbytes : 0;
        if (dt_comm_broadcast(e->group, &size, 1, DT_COMM_I64, h)) rc = 1;
        dt__parcel *q = !rc && size > 0 ? (dt__parcel *)dt_mem_alloc((size_t)size) : NULL;
        if (!rc && !q)
            rc = dt_fail(DT_ERR_MEMORY, "dt_elastic: out of memory for %" PRId64 " bytes of a part of the state", size);
        if (!rc && h == me) memcpy((void *)q, p, (size_t)size);
        if (!rc && dt_comm_broadcast(e->group, q, size, DT_COMM_U8, h)) rc = 1;
        if (!rc && !dt__parcel_ok(q, size))
            rc = dt_fail(DT_ERR_COMM, "dt_elastic: rank %d sent no valid part of the state of step %" PRId64, h, step);
        if (!rc && part == 0) {
            nbytes = (size_t)(q->head + q->data);
            if ((fd = dt__elastic_memory()) < 0) rc = dt__err.code;
            else if (ftruncate(fd, (off_t)nbytes) ||
                     (base = (uint8_t *)mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
                         (uint8_t *)MAP_FAILED)
                rc =
                    dt_fail(DT_ERR_MEMORY, "dt_elastic: no memory for %zu bytes of state: %s", nbytes, strerror(errno));
        }
        if (!rc && !dt__parcel_put(q, part ? first : q, base))
            rc = dt_fail(DT_ERR_COMM, "dt_elastic: the parts of the state of step %" PRId64 " do not fit together",
                         step);
        if (part == 0) first = q;
        else if (q) dt_mem_free(q, (size_t)size);
    }
    if (first) dt_mem_free(first, (size_t)first->nbytes);
    if (!rc) dt__parcels_end(base, nbytes);
    if (base != (uint8_t *)MAP_FAILED) munmap(base, nbytes);
    if (rc) dt__elastic_close(&fd);
    if (rc) return rc;
    dt__elastic_close(&e->full_fd);
    e->full_fd = fd;
    e->full_step = step;
    return 0;
}
static int dt__elastic_share_full(dt_elastic *e, int source, int64_t step) /* one member has the whole file */
{
    struct stat st;
    int64_t     size = 0;
    int         rc = 0, fd = e->full_fd, me = dt_comm_rank(e->group);
    void       *p = MAP_FAILED;
    if (me == source && !fstat(fd, &st)) size = (int64_t)st.st_size;
    if (dt_comm_broadcast(e->group, &size, 1, DT_COMM_I64, source)) return 1;
    if (me != source && (fd = dt__elastic_memory()) < 0) return dt__err.code;
    if ((me != source && ftruncate(fd, (off_t)size)) ||
        (p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = dt_fail(DT_ERR_MEMORY, "dt_elastic: no memory for %" PRId64 " bytes of state: %s", size, strerror(errno));
    if (!rc && dt_comm_broadcast(e->group, p, size, DT_COMM_U8, source)) rc = 1;
    if (p != MAP_FAILED) munmap(p, (size_t)size);
    if (me == source) return rc;
    if (rc) {
        close(fd);
        return rc;
    }
    dt__elastic_close(&e->full_fd);
    e->full_fd = fd;
    e->full_step = step;
    return 0;
}
static int dt__elastic_read_checkpoint(dt_elastic *e) /* into full_fd; 1, 0: there is none, or a negative status */
{
    dt_cursor *at = dt_loader_cursor(e->in);
    int64_t    epoch = 0, step = 0;
    int        fd = dt__elastic_memory();
    if (fd < 0) return dt__err.code;
    at->position = -1; /* to see whether the checkpoint has the loader's position */
    int rc = dt_checkpoint_resume(e->o.checkpoint, &epoch, &step);
    if (rc <= 0 || at->position < 0) {
        *at = e->at;
        at->epoch = epoch;
        at->position = 0;
    }
    if (rc > 0 && dt__state_write("dt_elastic", e->kept, fd, epoch, step)) rc = dt__err.code;
    if (rc <= 0) {
        close(fd);
        return rc;
    }
    dt__elastic_close(&e->full_fd);
    e->full_fd = fd;
    e->full_step = step;
    return 1;
}
/* A part of the sharded state is lost: one member reads the newest checkpoint for all. */
static int dt__elastic_go_back(dt_elastic *e, const int64_t *all, int lost, int *source, int64_t *step)
{
    int     n = dt_comm_size(e->group), me = dt_comm_rank(e->group), from = 0;
    int64_t got[2] = { 0, 0 };
    while (from < n &&
           (!all[(int64_t)from * DT__EW_WORDS + DT__EW_CHECKPOINT] || all[(int64_t)from * DT__EW_WORDS + DT__EW_NEW]))
        from++;
    if (me == from) {
        got[0] = dt__elastic_read_checkpoint(e);
        got[1] = e->full_step;
    }
    if (from < n && dt_comm_broadcast(e->group, got, 2, DT_COMM_I64, from)) return 1;
    if (got[0] < 0 && me == from) return dt__err.code;
    if (got[0] <= 0)
        return dt_fail(
            DT_ERR_COMM,
            "dt_elastic: rank %d and its neighbour, which had a copy of its part of the sharded state, died at once, and %s; "
            "start again from a checkpoint",
            lost,
            from == n   ? "there is no .checkpoint to go on from"
            : got[0] < 0 ? "the newest checkpoint cannot be read"
                         : "no checkpoint was saved yet");
    *source = from;
    *step = got[1];
    if (me == 0)
        dt__logf(DT_LOG_WARN,
                 "elastic: rank %d and its neighbour, which had a copy of its part of the sharded state, died at once: the "
                 "others go on from step %" PRId64 " of the newest checkpoint",
                 lost, got[1]);
    return 0;
}
/* Was the last group sharded? Then all members load the newest step of which all parts are there. 0: it was not, or done. */
static int dt__elastic_sync_parts(dt_elastic *e, const int64_t *all, bool *done)
{
    int     n = dt_comm_size(e->group), world = 0, source = -1, rc = 0, lost = -1;
    int64_t cut = 0, full = -1, step = -1;
    bool    exchanged = false;
    *done = false;
    for (int r = 0; r < n; r++) {
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        if (w[DT__EW_CUT] > cut) cut = w[DT__EW_CUT], world = (int)w[DT__EW_CUT_WORLD];
        if (w[DT__EW_FULL] > full) full = w[DT__EW_FULL], source = r;
    }
    if (!cut && source < 0) return 0;
    for (int r = 0; r < n; r++) {
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        exchanged = exchanged || (w[DT__EW_CUT] == cut && w[DT__EW_EXCHANGED]);
    }
    for (int r = 0; r < n && cut; r++)
        for (int k = DT__EW_OWN0; k <= DT__EW_LEFT1; k++) {
            int64_t t = all[(int64_t)r * DT__EW_WORDS + k];
            bool    have = t > step && all[(int64_t)r * DT__EW_WORDS + DT__EW_CUT] == cut, left;
            for (int part = 0; part < world && have; part++)
                if (dt__elastic_holder(all, n, cut, part, world, t, &left) < 0) have = false, lost = part;
            if (have) step = t;
        }
    uint64_t t0 = dt_trace_now();
    if (step < 0 && source < 0 && !exchanged && e->o.ddp.shard < 3) { /* a death before the first update: all have the values */
        dt__elastic_parcels_free(e);
        return 0;
    }
    if (step < 0 && source < 0 && (rc = dt__elastic_go_back(e, all, lost, &source, &full)) != 0) return rc;
    rc = full >= step ? dt__elastic_share_full(e, source, full) : dt__elastic_gather_parts(e, all, cut, world, step);
    if (rc) return rc;
    int fd = dup(e->full_fd);
    e->whole = false;
    if (fd < 0 || dt__state_read("dt_elastic", e->kept, fd))
        return fd < 0 ? dt_fail(DT_ERR_FILE, "dt_elastic: dup: %s", strerror(errno)) : dt__err.code;
    e->at = *dt_loader_cursor(e->in);
    e->step = e->full_step;
    e->whole = *done = true;
    if (e->at.epoch < e->epoch_said) e->epoch_said = e->at.epoch; /* of an older checkpoint */
    dt__elastic_parcels_free(e);
    dt_trace_span("elastic", "hand-over", t0, dt_trace_now());
    return 0;
}

/* ==================================================================================================== >>forming
   All of these functions return 0; 1 if the group is lost, and the next one is to be formed; or a negative status after
   dt_fail. */
enum { DT__EL_AGAIN = 1 };
static int dt__elastic_shrink(dt_elastic *e)
{
    uint64_t t0 = dt_trace_now();
    dt__elastic_ungroup(e);
    dt__elastic_events(e);
    int rc = e->plain ? dt_comm_dup(e->base, &e->group) : dt_comm_shrink(e->base, &e->group);
    dt_trace_span("elastic", "agreement", t0, dt_trace_now());
    if (!rc) e->grouped = true;
    if (!rc) return 0;
    if (e->plain) return dt_fail(DT_ERR_COMM, "dt_elastic_new: %s", dt_comm_error(e->base));
    if (rc == DT_COMM_ERR_TIMEOUT && e->newcomer && !e->grouped)
        return DT__EL_AGAIN; /* too late for this one: it is asked for the next */
    if (dt_comm_get_status(e->base)) return dt__elastic_given_up(e, dt_comm_error(e->base));
    return dt__elastic_given_up(e, dt_comm_error(NULL));
}
/* A newcomer that does not fit: all members say why; it leaves. */
static int dt__elastic_refuse(dt_elastic *e, const int64_t *all)
{
    int            n = dt_comm_size(e->group), me = dt_comm_rank(e->group);
    const int64_t *zero = all;
    char           text[400];
    bool           full = zero[DT__EW_MAX] && n > zero[DT__EW_MAX]; /* the last newcomer is one too many */
    for (int i = 1; i < n; i++) {
        int            r = full ? n - i : i, k = 0;
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        while (k < DT__EW_EQUAL && w[k] == zero[k]) k++;
        if (full && !w[DT__EW_NEW]) continue;
        bool model = k == DT__EW_EQUAL && w[DT__EW_NEW] && w[DT__EW_MODEL] != zero[DT__EW_MODEL] &&
                     zero[DT__EW_SEALED] && w[DT__EW_SEALED];
        if (k == DT__EW_EQUAL && !model && !full) continue;
        if (full)
            snprintf(text, sizeof text,
                     "dt_elastic: the group is full: a newcomer would be number %d of at most %" PRId64
                     " members; start the job with a larger .max",
                     n, zero[DT__EW_MAX]);
        else if (model) {
            int rc = dt__same_models("dt_elastic", e->m, e->group, false);
            if (rc > 0) return DT__EL_AGAIN;
            snprintf(text, sizeof text, "%.390s", dt_error() ? dt_error() : "the models differ");
            if (rc < 0 && !(r == me)) dt_error_clear();
        } else if (k == DT__EW_OPTIMIZER)
            snprintf(
                text, sizeof text,
                "dt_elastic: a newcomer does not fit: its optimiser is dt_%.7s, that of the group is dt_%.7s; start it "
                "as the others",
                (const char *)&w[k], (const char *)&zero[k]);
        else
            snprintf(text, sizeof text,
                     "dt_elastic: a newcomer does not fit: its %s is %" PRId64 ", that of the group is %" PRId64
                     "; start it as the others",
                     dt__elastic_names[k], w[k], zero[k]);
        e->stats.refused++;
        if (r == me) {
            if (full || !model) dt_fail(DT_ERR_COMM, "%s", text);
            return dt__err.code;
        }
        if (me == 0) {
            dt__logf(DT_LOG_WARN, "%s", text);
            dt__elastic_report_now(e, DT__EL_REFUSED, w[DT__EW_MEMBER], text);
        }
        return w[DT__EW_NEW] ? DT__EL_AGAIN : dt_fail(DT_ERR_COMM, "%s", text);
    }
    return 0;
}
/* Waits for others with fewer than min. */
static int dt__elastic_short(dt_elastic *e)
{
    dt_comm_event v;
    dt_event_opts patience;
    char          text[200], saved[64] = "";
    int           n = dt_comm_size(e->group);
    int64_t       now = dt__comm_now();
    if (n >= e->o.min) return e->short_since = 0;
    if (!e->short_since) {
        e->short_since = now;
        snprintf(text, sizeof text, "%d of at least %d members are left: the others wait up to %g s for new ones", n,
                 e->o.min, e->o.wait);
        if (dt__elastic_leads(e)) dt__logf(DT_LOG_WARN, "elastic: %s", text);
        if (dt__elastic_leads(e)) dt__elastic_report_now(e, DT__EL_SHORT, -1, text);
    }
    DT__CLEAR(patience);
    double left = e->o.wait - dt__seconds_of(now - e->short_since);
    while (left > 0 && !e->orphan) {
        patience.timeout = left < 1 ? left : 1;
        int got = dt_comm_next_event_with(e->base, &v, patience);
        if (got < 0) return dt__elastic_given_up(e, dt_comm_error(e->base));
        if (got > 0 || dt__elastic_knocks(e)) {
            if (got > 0) dt__elastic_event(e, &v);
            return DT__EL_AGAIN;
        }
        dt__elastic_beat(e);
        left = e->o.wait - dt__seconds_of(dt__comm_now() - e->short_since);
    }
    if (e->o.checkpoint && e->whole && dt__elastic_leads(e)) {
        dt__elastic_ungroup(e);
        *dt_loader_cursor(e->in) = e->at;
        if (dt_checkpoint_save(e->o.checkpoint, e->at.epoch, e->step)) return dt__err.code;
        snprintf(saved, sizeof saved, "; step %" PRId64 " is in the checkpoint", e->step);
    }
    return dt_fail(DT_ERR_COMM, "below the minimum: %d of at least %d members for %g s%s; start more, or lower .min", n,
                   e->o.min, e->o.wait, saved);
}
/* Did the member with words a cut the end of the epoch (dt__elastic_split), where the one with words b has not yet? */
static bool dt__elastic_ahead(const int64_t *a, const int64_t *b)
{
    return a[DT__EW_STEP] == b[DT__EW_STEP] && a[DT__EW_EPOCH] == b[DT__EW_EPOCH] + 1 && !a[DT__EW_POSITION] && b[DT__EW_POSITION];
}
static void dt__elastic_catch_up(dt_elastic *e, const int64_t *all) /* then all do */
{
    int64_t mine[DT__EW_WORDS] = { 0 };
    mine[DT__EW_STEP] = e->step;
    mine[DT__EW_EPOCH] = e->at.epoch;
    mine[DT__EW_POSITION] = e->at.position;
    for (int r = 0; r < dt_comm_size(e->group); r++) {
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        if (!w[DT__EW_WHOLE] || !dt__elastic_ahead(w, mine)) continue;
        e->at.epoch++;
        e->at.position = 0;
        return;
    }
}
static int dt__elastic_split(dt_elastic *e)
{
    const dt_loader_opts *lo = dt__loader_options(e->in);
    int                   first = dt_elastic_rank(e), world = dt_elastic_size(e), own = 1;
    if (e->o.ddp.slots) {
        world = e->o.ddp.slots;
        dt_ddp_slots(e->ddp, &first, &own);
    }
    e->own = own;
    e->slot = 0;
    e->k = 0;
    for (;;) {
        int rc = dt__loader_split(e->in, first, own, world, !lo->drop_last && !e->o.ddp.slots && e->o.ddp.shard != 3, &e->at,
                                  &e->share);
        if (rc || e->share.steps || !e->at.position) return rc;
        e->at.epoch++; /* .drop_last: with more members than before, the rest of the epoch is no whole step */
        e->at.position = 0;
    }
}
/* Members that call the functions of this header alike are never more than one step apart, and at the same place of the epoch. Those
   that are not where most are (if as many are here as there: where the lowest rank is) leave with an error; the others go on. */
static bool dt__elastic_near(const int64_t *a, const int64_t *b, bool place)
{
    if (!place) return a[DT__EW_STEP] == b[DT__EW_STEP] || a[DT__EW_STEP] == b[DT__EW_STEP] + 1;
    return a[DT__EW_STEP] != b[DT__EW_STEP] /* it is given the state of the newest */ || dt__elastic_ahead(a, b) || dt__elastic_ahead(b, a) ||
           (a[DT__EW_EPOCH] == b[DT__EW_EPOCH] && a[DT__EW_POSITION] == b[DT__EW_POSITION]);
}
static int dt__elastic_differ(dt_elastic *e, const int64_t *all)
{
    int     n = dt_comm_size(e->group), me = dt_comm_rank(e->group);
    int64_t newest = -1;
    for (int r = 0; r < n; r++) {
        const int64_t *a = all + (int64_t)r * DT__EW_WORDS;
        if (a[DT__EW_WHOLE] && a[DT__EW_STEP] > newest) newest = a[DT__EW_STEP];
    }
    for (int place = 0; place < 2; place++) {
        int most = 0, from = -1, odd = 0;
        for (int r = 0; r < n; r++) {
            const int64_t *a = all + (int64_t)r * DT__EW_WORDS;
            int            near = 0;
            for (int k = 0; k < n && a[DT__EW_WHOLE] && (!place || a[DT__EW_STEP] == newest); k++)
                near += all[(int64_t)k * DT__EW_WORDS + DT__EW_WHOLE] && dt__elastic_near(all + (int64_t)k * DT__EW_WORDS, a, place);
            if (near > most) most = near, from = r;
        }
        for (int r = 0; r < n && from >= 0; r++) {
            const int64_t *a = all + (int64_t)r * DT__EW_WORDS, *b = all + (int64_t)from * DT__EW_WORDS;
            char           text[400];
            if (!a[DT__EW_WHOLE] || dt__elastic_near(a, b, place)) continue;
            if (!place)
                snprintf(text, sizeof text,
                         "dt_elastic: rank %d has committed %" PRId64 " steps, rank %d %" PRId64
                         ": members are never more than one step apart; all of them must call dt_elastic_step after each backward",
                         r, a[DT__EW_STEP], from, b[DT__EW_STEP]);
            else
                snprintf(text, sizeof text,
                         "dt_elastic: ranks %d and %d have both committed step %" PRId64 ", but are at items %" PRId64 " and %" PRId64
                         " of the epoch; all members must make the same calls",
                         from, r, a[DT__EW_STEP], b[DT__EW_POSITION], a[DT__EW_POSITION]);
            if (r == me) return dt_fail(DT_ERR_COMM, "%s", text);
            if (odd++ == 0 && me == from) dt__logf(DT_LOG_WARN, "%s; the others go on without rank %d", text, r);
        }
        if (odd) return DT__EL_AGAIN;
    }
    return 0;
}
/* Who has the newest committed step gives it to those who have not. */
static int dt__elastic_sync(dt_elastic *e, const int64_t *all)
{
    int     n = dt_comm_size(e->group), me = dt_comm_rank(e->group), source = -1, needy = 0, rc = 0;
    int64_t newest = -1;
    bool    fresh = true; /* nobody has made the model: the ddp gives all the values of rank 0 */
    for (int r = 0; r < n; r++) {
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        if (w[DT__EW_WHOLE] && w[DT__EW_STEP] > newest) newest = w[DT__EW_STEP], source = r;
        fresh = fresh && !w[DT__EW_WHOLE] && !w[DT__EW_MODEL];
    }
    if (fresh) return 0;
    if ((rc = dt__elastic_differ(e, all)) != 0) return rc;
    for (int r = 0; r < n && source < 0; r++)
        if (all[(int64_t)r * DT__EW_WORDS + DT__EW_SEALED] && !all[(int64_t)r * DT__EW_WORDS + DT__EW_NEW]) source = r;
    if (source < 0) source = 0;
    int *to = (int *)dt_mem_alloc((size_t)n * sizeof *to);
    if (!to) return dt_fail(DT_ERR_MEMORY, "dt_elastic: out of memory");
    for (int r = 0; r < n; r++) {
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        if (r != source && !(w[DT__EW_WHOLE] && w[DT__EW_STEP] == newest)) to[needy++] = r;
    }
    uint64_t t0 = dt_trace_now();
    if (!rc && me == source && needy) rc = dt__elastic_give(e, to, needy);
    bool mine = false;
    for (int i = 0; i < needy; i++) mine = mine || to[i] == me;
    if (!rc && mine) rc = dt__elastic_take(e, source);
    if (!rc && (mine || (me == source && needy))) dt_trace_span("elastic", "hand-over", t0, dt_trace_now());
    if (!rc) e->whole = e->whole || me == source;
    dt_mem_free(to, (size_t)n * sizeof *to);
    return rc;
}
static void dt__elastic_settled(dt_elastic *e, const int64_t *all) /* the leader tells the launcher */
{
    dt_accept_opts accept;
    int            n = dt_comm_size(e->group);
    for (int r = 0; r < n; r++) {
        const int64_t *w = all + (int64_t)r * DT__EW_WORDS;
        int            number = e->group->world ? e->group->member[r] : r;
        if (w[DT__EW_TOP] > e->top) e->top = (int)w[DT__EW_TOP];
        if (number > e->top) e->top = number;
        if (w[DT__EW_GENERATION] > e->generation) e->generation = w[DT__EW_GENERATION];
        if (number < e->o.room) e->id[number] = w[DT__EW_MEMBER];
    }
    e->generation++;
    e->stats.generation = e->generation;
    if (!dt__elastic_leads(e)) return;
    DT__CLEAR(accept);
    accept.bind = e->o.comm.bind ? e->o.comm.bind : getenv("DT_BIND");
    if (!e->plain) dt_comm_accept_with(e->base, accept);
    for (int r = 0; r < n; r++)
        if (all[(int64_t)r * DT__EW_WORDS + DT__EW_NEW])
            dt__elastic_report_now(e, DT__EL_JOINED, all[(int64_t)r * DT__EW_WORDS + DT__EW_MEMBER], NULL);
    dt__elastic_report_now(e, DT__EL_STATE, -1, NULL);
}
static int dt__elastic_form_once(dt_elastic *e)
{
    int64_t mine[DT__EW_WORDS], *all = NULL;
    int     rc = dt__elastic_shrink(e), n = rc ? 0 : dt_comm_size(e->group);
    bool    unsealed = false, sealed = false, old = false, done = false;
    if (rc) return rc;
    dt__elastic_events(e);
    dt__elastic_words(e, mine);
    if (!(all = (int64_t *)dt_mem_alloc((size_t)n * sizeof mine)))
        return dt_fail(DT_ERR_MEMORY, "dt_elastic: out of memory");
    if (dt_comm_allgather(e->group, mine, all, DT__EW_WORDS, NULL, DT_COMM_I64))
        rc = dt__elastic_lost(e) ? (int)DT__EL_AGAIN : dt__elastic_given_up(e, dt_comm_error(NULL));
    for (int r = 0; r < n && !rc; r++) {
        old = old || !all[(int64_t)r * DT__EW_WORDS + DT__EW_NEW];
        unsealed = unsealed || !all[(int64_t)r * DT__EW_WORDS + DT__EW_SEALED];
        sealed =
            sealed || all[(int64_t)r * DT__EW_WORDS + DT__EW_SEALED] || all[(int64_t)r * DT__EW_WORDS + DT__EW_MODEL];
    }
    if (!rc && !old) { /* nobody has the state of the training */
        dt__elastic_report_now(e, DT__EL_RETRY, e->member, "the members of the group have gone");
        rc = dt_fail(
            DT_ERR_COMM,
            "dt_elastic: joined the group at %.100s, but its members have gone; start again with its present address",
            e->o.join);
    }
    if (!rc) rc = dt__elastic_refuse(e, all);
    if (!rc) dt__elastic_settled(e, all);
    if (!rc) rc = dt__elastic_short(e);
    if (!rc && unsealed && sealed) { /* a member died in the first step: those without a whole model make it alone */
        e->state = e->m->sealed ? DT__EL_IN : DT__EL_WARM;
        rc = e->m->sealed ? (int)DT__EL_AGAIN : 0;
    } else if (!rc && !(rc = dt__elastic_sync_parts(e, all, &done)) && (done || !(rc = dt__elastic_sync(e, all)))) {
        uint64_t t0 = dt_trace_now();
        e->ddp = dt__ddp_make(e->m, e->group, e->o.ddp, DT__DDP_ELASTIC);
        if (!e->ddp) rc = dt__err.code != DT_OK ? (int)dt__err.code : (int)DT__EL_AGAIN;
        dt_trace_span("elastic", "ddp", t0, dt_trace_now());
        if (!rc) dt__elastic_catch_up(e, all);
        if (!rc) rc = dt__elastic_split(e);
        if (!rc && e->m->sealed && e->whole) rc = dt__elastic_exchange(e, e->step, e->at.epoch);
        if (rc == DT__EL_AGAIN && !dt__elastic_lost(e)) rc = dt__elastic_given_up(e, dt_comm_error(NULL));
        if (!rc) e->state = DT__EL_IN, e->newcomer = false;
    }
    dt_mem_free(all, (size_t)n * sizeof mine);
    return rc;
}
static int dt__elastic_form(dt_elastic *e)
{
    enum { TRIES = 4096 };
    int rc = DT__EL_AGAIN;
    for (int tries = 0; rc == DT__EL_AGAIN && tries < TRIES; tries++) {
        rc = dt__elastic_form_once(e);
        if (rc == DT__EL_AGAIN && dt__err.code != DT_OK) rc = dt__err.code;
        if (rc == DT__EL_AGAIN && e->newcomer && !e->group) { /* until the others form the next group */
            int got = dt__world_asked(e->base->world, e->base->id, e->base->round, e->o.wait);
            if (got <= 0) rc = dt__elastic_given_up(e, "the group has gone");
        }
    }
    if (rc == DT__EL_AGAIN)
        rc = dt_fail(DT_ERR_COMM, "dt_elastic: no group in %d tries; this is a bug in dt", TRIES);
    if (e->t_lost) {
        e->stats.healing = (double)(dt_trace_now() - e->t_lost) / (double)DT__NS_PER_S;
        if (e->stats.healing > e->stats.longest) e->stats.longest = e->stats.healing;
        e->t_lost = 0;
    }
    if (rc) dt__elastic_over(e);
    return rc;
}
static int dt__elastic_known(dt_elastic *e) /* base is there: memory for what is known of its members */
{
    e->o.room = dt__comm_room(e->base);
    if (!(e->id = (int64_t *)dt_mem_alloc((size_t)e->o.room * sizeof *e->id)))
        return dt_fail(DT_ERR_MEMORY, "dt_elastic: out of memory");
    for (int i = 0; i < e->o.room; i++) e->id[i] = -1;
    return 0;
}
static int dt__elastic_await(dt_elastic *e) /* until the others take this newcomer up */
{
    int got = dt__world_asked(e->base->world, e->base->id, e->base->round, e->o.wait);
    if (got > 0) return 0;
    dt__elastic_report_now(e, DT__EL_RETRY, e->member, "the group did not take it up");
    return dt_fail(DT_ERR_COMM, "dt_elastic: joined the group at %.100s, but %s; start again with its present address",
                   e->o.join, got < 0 ? "its members have gone" : "it did not end a step in time");
}
static int dt__elastic_enter(dt_elastic *e) /* a newcomer, whose model is made, becomes a member of base */
{
    char         host[256], *colon;
    const char  *to = e->o.join;
    dt_comm_opts o = e->o.comm;
    e->entered = true;
    if (e->base) return dt__elastic_await(e);
    snprintf(host, sizeof host, "%s", to[0] == '[' ? to + 1 : to);
    if ((colon = strrchr(host, ':')) != NULL) *colon = 0;
    if (colon && colon > host && colon[-1] == ']') colon[-1] = 0;
    o.addr = host;
    o.port = colon ? atoi(colon + 1) : 0;
    o.tolerant = true;
    if (!o.join_timeout) o.join_timeout = 3;
    if (!colon || o.port < 1 || o.port > 65535)
        return dt_fail(DT_ERR_ARG, "dt_elastic_new: the address of the group is '%.100s', expected HOST:PORT", to);
    e->base = dt_comm_join_with(o);
    if (!e->base) {
        dt__elastic_report_now(e, DT__EL_RETRY, e->member, dt_comm_error(NULL));
        return dt_fail(DT_ERR_COMM, "dt_elastic: cannot join the group at %.100s: %s", to, dt_comm_error(NULL));
    }
    return dt__elastic_known(e) ? dt__err.code : dt__elastic_await(e);
}
/* Before each step: does a newcomer wait, has the launcher died? All members decide the same. */
static int dt__elastic_meet(dt_elastic *e)
{
    int64_t  w[2];
    uint64_t t0 = dt_trace_now();
    dt__elastic_beat(e);
    if (e->plain) return 0;
    w[0] = dt__elastic_knocks(e);
    w[1] = e->orphan;
    if (dt_comm_size(e->group) > 1 && dt_comm_allreduce(e->group, w, 2, DT_COMM_I64, DT_COMM_MAX))
        return dt__elastic_lost(e) ? (int)DT__EL_AGAIN : dt__elastic_given_up(e, dt_comm_error(e->group));
    if (w[1]) {
        char saved[64] = "";
        bool lead = dt__elastic_leads(e);
        dt__elastic_ungroup(e);
        *dt_loader_cursor(e->in) = e->at;
        if (e->o.checkpoint && e->whole && lead && dt_checkpoint_save(e->o.checkpoint, e->at.epoch, e->step))
            return dt__err.code;
        if (e->o.checkpoint) snprintf(saved, sizeof saved, "; step %" PRId64 " is in the checkpoint", e->step);
        return dt_fail(DT_ERR_STATE, "dt_elastic: the launcher has died: the training ends after step %" PRId64 "%s",
                       e->step, saved);
    }
    if (!w[0]) return 0;
    dt_trace_span("elastic", "newcomers", t0, dt_trace_now());
    return DT__EL_AGAIN;
}

/* ==================================================================================================== >>calls */
static int dt__elastic_range(dt_elastic *e) /* min and max, from the options or the launcher */
{
    const char *s = getenv("DT_ELASTIC"), *wait = getenv("DT_ELASTIC_WAIT");
    char       *end = NULL;
    if (!e->o.min && !e->o.max && s && *s) {
        long low = strtol(s, &end, 10), high = *end == ':' ? strtol(end + 1, &end, 10) : -1;
        if (*end || low < 1 || high < low || high > 65536)
            return dt_fail(DT_ERR_ARG,
                           "dt_elastic_new: DT_ELASTIC is '%.80s', expected MIN:MAX, 1 or more, such as 2:8", s);
        e->o.min = (int)low;
        e->o.max = (int)high;
    }
    e->plain = !e->o.min && !e->o.max && !e->newcomer && !e->base;
    if (e->base) e->o.room = dt__comm_room(e->base);
    if (e->o.min < 0 || e->o.max < 0 || (e->o.max && e->o.min > e->o.max))
        return dt_fail(DT_ERR_ARG,
                       "dt_elastic_new: .min is %d and .max %d, expected 1 or more, and .min not above .max", e->o.min,
                       e->o.max);
    if (!e->o.min) e->o.min = 1;
    if (!e->o.wait) e->o.wait = wait && *wait ? strtod(wait, &end) : 60;
    if (!(e->o.wait > 0 && e->o.wait < 1e7))
        return dt_fail(DT_ERR_ARG, "dt_elastic_new: .wait (DT_ELASTIC_WAIT) is %g, expected seconds, more than 0",
                       e->o.wait);
    if (!e->o.room) e->o.room = 4096;
    if (e->o.room < e->o.max || e->o.room > DT__ROOM_MOST)
        return dt_fail(DT_ERR_ARG, "dt_elastic_new: .room is %d, expected at least .max, %d, and at most %d", e->o.room,
                       e->o.max, DT__ROOM_MOST);
    return 0;
}
static int dt__elastic_open(dt_elastic *e)
{
    const dt_loader_opts *lo = dt__loader_options(e->in);
    const char           *s = getenv("DT_MEMBER"), *fd = getenv("DT_REPORT_FD");
    dt_checkpoint_opts    k;
    DT__CLEAR(k);
    if ((e->base = e->o.base) != NULL) {
        if (!e->base->world || !e->base->members || !e->base->first)
            return dt_fail(DT_ERR_ARG, "dt_elastic_new: .base is not tolerant or has no .room; make it by dt_sim_new or "
                                       "dt_comm_init with .tolerant and .room");
        e->o.join = e->base->rank < e->base->members->start ? NULL : ".base";
    } else if (!e->o.join) e->o.join = getenv("DT_ELASTIC_JOIN");
    e->newcomer = e->o.join && *e->o.join;
    if (dt__elastic_range(e)) return dt__err.code;
    if (lo->world > 1 || lo->contiguous)
        return dt_fail(
            DT_ERR_ARG,
            "dt_elastic_new: the loader has %s; it must be one of the whole dataset, which dt_elastic divides",
            lo->world > 1 ? ".world" : ".contiguous");
    if (e->o.ddp.slots && e->o.max > e->o.ddp.slots)
        return dt_fail(DT_ERR_ARG,
                       "dt_elastic_new: .max is %d, but .ddp.slots is %d: there are at most as many members as slots",
                       e->o.max, e->o.ddp.slots);
    k.model = e->m;
    k.scheduler = e->o.scheduler;
    if (!(e->kept = dt__state_new("dt_elastic_new", k)) || dt_loader_checkpoint(e->in, e->kept)) return dt__err.code;
    e->at = *dt_loader_cursor(e->in);
    e->epoch_said = e->at.epoch;
    if (fd && *fd) e->report_fd = atoi(fd);
    e->member = s && *s ? strtoll(s, NULL, 10) : -1;
    if (e->newcomer) {
        e->state = e->m->sealed ? DT__EL_OUT : DT__EL_WARM;
        return e->base ? dt__elastic_known(e) : 0;
    }
    dt_comm_opts o = e->o.comm;
    o.tolerant = !e->plain;
    o.room = e->plain ? 0 : e->o.room;
    if (!e->base && !(e->base = dt_comm_init_with(o))) return dt_fail(DT_ERR_COMM, "dt_elastic_new: %s", dt_comm_error(NULL));
    if (!e->o.max) e->o.max = dt_comm_size(e->base);
    if (e->o.max < dt_comm_size(e->base))
        return dt_fail(DT_ERR_ARG, "dt_elastic_new: .max is %d, but the job starts with %d ranks", e->o.max,
                       dt_comm_size(e->base));
    if (e->member < 0) e->member = dt_comm_rank(e->base);
    return dt__elastic_known(e);
}
DT_API dt_elastic *dt_elastic_new_with(dt_model *m, dt_optimizer *opt, dt_loader *in, dt_elastic_opts o)
{
    if (dt__err.code != DT_OK || !dt__model_ok("dt_elastic_new", m)) return NULL;
    if (!opt || !in) dt_fail(DT_ERR_ARG, "dt_elastic_new: the %s is NULL", opt ? "loader" : "optimiser");
    else if (m->watch) dt_fail(DT_ERR_STATE, "dt_elastic_new: the model %s", dt__watch_taken(m));
    dt_elastic *e = dt__err.code == DT_OK ? (dt_elastic *)dt__alloc_zero(sizeof *e) : NULL;
    if (!e) {
        dt_fail(DT_ERR_MEMORY, "dt_elastic_new: out of memory"); /* has no effect if an error is pending already */
        return NULL;
    }
    e->m = m;
    e->opt = opt;
    e->in = in;
    e->o = o;
    e->full_fd = e->scratch = -1;
    if (!dt__elastic_open(e)) return e;
    if (o.base) e->base = NULL; /* it stays the caller's */
    dt_elastic_free(e);
    return NULL;
}
/* An error is pending, or the group is lost. true: a new group is there, and the step is repeated. */
static bool dt__elastic_heal(dt_elastic *e)
{
    if (e->state == DT__EL_OVER) return false;
    if (dt__err.code != DT_OK &&
        (e->plain || e->state != DT__EL_IN || dt__err.code != DT_ERR_COMM || !dt__elastic_lost(e))) {
        dt__elastic_over(e);
        return false;
    }
    e->t_lost = dt_trace_now();
    (void)dt_error(); /* it is dealt with: not to be logged */
    dt_error_clear();
    dt_end();
    e->slot = 0;
    dt__ddp_drop(e->ddp);
    e->ddp = NULL;
    if (e->m->sealed) dt__elastic_drop_grads(e->m);
    return !dt__elastic_form(e);
}
/* The training ends. A member may have committed a step that others have not; if it left then, and another one died, they would make
   the step again without it. So it stays until all members have come to a step, or to the end, after it. */
static void dt__elastic_last(dt_elastic *e)
{
    e->done = true;
    dt__elastic_report_now(e, DT__EL_DONE, -1, NULL);
    for (int rc = DT__EL_AGAIN; rc == DT__EL_AGAIN && !e->plain;)
        if ((rc = dt__elastic_meet(e)) == DT__EL_AGAIN && !dt__elastic_heal(e)) rc = -1;
    (void)dt_error(); /* the training of this member is over: what happens to the others is theirs */
    dt_error_clear();
}
DT_API void dt_elastic_free(dt_elastic *e)
{
    if (!e) return;
    if (dt__err.code == DT_OK && e->state == DT__EL_IN && !e->done) dt__elastic_last(e);
    else if (dt__err.code != DT_OK && e->state != DT__EL_OVER) dt__elastic_over(e);
    dt__elastic_ungroup(e);
    dt_comm_free(e->base);
    dt__elastic_parcels_free(e);
    dt__elastic_close(&e->full_fd);
    dt__elastic_close(&e->scratch);
    dt_checkpoint_free(e->kept);
    dt_mem_free(e->id, e->id ? (size_t)e->o.room * sizeof *e->id : 0);
    dt_mem_free(e, sizeof *e);
}
/* The samples of a step are not the same number on all members at the end of an epoch. */
static int dt__elastic_weigh(dt_elastic *e, bool have, int64_t n)
{
    int64_t left = e->share.items - e->k * e->share.batch * dt_elastic_size(e);
    if (e->o.ddp.slots || e->o.ddp.shard == 3 || dt_elastic_size(e) == 1 || dt__loader_options(e->in)->drop_last)
        return 0;
    if (left >= e->share.batch * dt_elastic_size(e)) return 0;
    if (have) return (int)dt_ddp_samples(e->ddp, (double)n);
    dt_ddp_samples(e->ddp, 0);
    return (int)dt_ddp_skip(e->ddp);
}
static void dt__elastic_after(dt_elastic *e) /* the cursor after the step that begins */
{
    int64_t world = e->o.ddp.slots ? e->o.ddp.slots : dt_elastic_size(e);
    e->next = e->at;
    e->next.position += e->share.batch * world;
    if (e->k + 1 < e->share.steps) return;
    e->next.position = 0;
    e->next.epoch++;
}
DT_API bool dt_elastic_next(dt_elastic *e, dt_batch *b)
{
    if (b) memset(b, 0, sizeof *b);
    if (!e || !b) {
        dt_fail(DT_ERR_ARG, "dt_elastic_next: the %s is NULL", e ? "batch" : "elastic");
        return false;
    }
    for (;;) {
        if (dt__err.code != DT_OK && !dt__elastic_heal(e)) return false;
        if (e->state == DT__EL_OVER && e->leaving) return false;
        if (e->state == DT__EL_OVER) {
            dt_fail(DT_ERR_STATE, "dt_elastic_next: this member has left the group, after an error");
            return false;
        }
        if (e->state == DT__EL_WARM) { /* any batch will do */
            if (dt_loader_next(e->in, b) || dt_loader_next(e->in, b)) return true;
            dt_fail(DT_ERR_STATE, "dt_elastic_next: the loader has no batch"); /* no effect if an error is pending */
            dt__elastic_over(e);
            return false;
        }
        if (e->state == DT__EL_OUT) {
            if (e->newcomer && !e->entered && dt__elastic_enter(e)) {
                dt__elastic_over(e);
                return false;
            }
            bool begins = e->newcomer;
            if (dt__elastic_form(e)) return false;
            if (!begins) continue;
            e->epoch_said = e->at.epoch;
            return false; /* the training may be over: the loop over epochs looks */
        }
        if (e->at.epoch > e->epoch_said) {
            e->epoch_said = e->at.epoch;
            return false;
        }
        if (!e->slot && __atomic_load_n(&e->leaving, __ATOMIC_ACQUIRE)) {
            e->state = DT__EL_OVER;
            dt__elastic_ungroup(e);
            dt_comm_free(e->base);
            e->base = NULL;
            return false;
        }
        if (!e->slot) {
            int rc = dt__elastic_meet(e);
            if (rc < 0) {
                dt__elastic_over(e);
                return false;
            }
            if (rc) {
                if (!dt__elastic_heal(e)) return false;
                continue;
            }
            if (e->k == e->share.steps && dt__elastic_split(e)) continue;
            if (!e->share.steps) {
                dt_fail(DT_ERR_STATE, "dt_elastic_next: the dataset is too small: an epoch has no step with %d members",
                        dt_elastic_size(e));
                continue;
            }
            dt__elastic_after(e);
        }
        bool have = dt_loader_next(e->in, b);
        if (dt__err.code == DT_OK) dt__elastic_weigh(e, have, b->n);
        if (have && dt__err.code == DT_OK) return true;
        if (dt__err.code == DT_OK) { /* the others have the last samples of the epoch */
            e->slot = e->own - 1;
            dt_elastic_step(e);
        }
    }
}
DT_API bool dt_elastic_step(dt_elastic *e)
{
    if (!e) {
        dt_fail(DT_ERR_ARG, "dt_elastic_step: the elastic is NULL");
        return false;
    }
    if (e->state == DT__EL_WARM && dt__err.code == DT_OK) {
        dt_end();
        if (dt_model_seal(e->m)) return false;
        dt__elastic_drop_grads(e->m);
        e->state = DT__EL_OUT;
        return false;
    }
    if (dt__err.code == DT_OK && e->state != DT__EL_IN)
        dt_fail(DT_ERR_STATE, "dt_elastic_step: there is no step; call it after dt_elastic_next and dt_backward");
    if (dt__err.code == DT_OK && ++e->slot < e->own) return false;
    e->slot = 0;
    /* the first update: until now nobody could have parts of this state, and a death in what follows would lose one */
    if (dt__err.code == DT_OK && e->cut != e->generation && dt__elastic_exchange(e, e->step, e->at.epoch) == DT__EL_AGAIN)
        dt_fail(DT_ERR_COMM, "dt_elastic_step: %s", dt__elastic_why(e));
    if (dt__err.code == DT_OK) dt_step(e->opt);
    if (dt__err.code == DT_OK && e->o.scheduler) dt_scheduler_step(e->o.scheduler);
    if (dt__err.code == DT_OK && dt__elastic_exchange(e, e->step + 1, e->next.epoch) == DT__EL_AGAIN)
        dt_fail(DT_ERR_COMM, "dt_elastic_step: %s", dt__elastic_why(e));
    if (dt__err.code != DT_OK) {
        dt__elastic_heal(e);
        return false;
    }
    e->step++;
    e->k++;
    e->at = e->next;
    e->whole = true;
    return true;
}
DT_API int64_t dt_elastic_epoch(const dt_elastic *e)
{
    return e && dt__err.code == DT_OK && e->state != DT__EL_OVER ? e->at.epoch : INT64_MAX;
}
DT_API void dt_elastic_leave(dt_elastic *e)
{
    if (e) __atomic_store_n(&e->leaving, 1, __ATOMIC_RELEASE);
}
DT_API int64_t dt_elastic_steps(const dt_elastic *e) { return e ? e->step : 0; }
DT_API int     dt_elastic_rank(const dt_elastic *e) { return e && e->group ? dt_comm_rank(e->group) : 0; }
DT_API int     dt_elastic_size(const dt_elastic *e) { return e && e->group ? dt_comm_size(e->group) : 1; }
DT_API dt_ddp *dt_elastic_ddp(const dt_elastic *e) { return e ? e->ddp : NULL; }
DT_API size_t  dt_elastic_address(const dt_elastic *e, char *buf, size_t nbytes)
{
    if (e && dt__elastic_leads(e) && !e->plain) return dt_comm_address(e->base, buf, nbytes);
    if (buf && nbytes) *buf = 0;
    return 0;
}
DT_API dt_elastic_stats dt_elastic_get_stats(const dt_elastic *e)
{
    dt_elastic_stats none;
    memset(&none, 0, sizeof none);
    return e ? e->stats : none;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_ELASTIC_IMPLEMENTATION */
