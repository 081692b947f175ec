/* dt_ps.h - v0.2.0 - a parameter server: arrays on servers, pushed and pulled by workers; no tensor in it */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_ps.h"
    In every other file that uses it:           #include "dt_ps.h"

    Link with -lpthread -lm. dt_comm.h and the headers that it includes must lie beside it; no other header of dt is needed.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_ps.h"
    #include <stdio.h>

    static int rank_main(void *arg)
    {
        dt_comm *c = dt_comm_init();
        dt_ps   *ps = dt_ps_new(c);
        float    w[4] = { 0 }, g[4] = { 1, 2, 3, 4 };
        dt_ps_init(ps, 0, w, 4, DT_COMM_F32, .rule = DT_PS_SUM);
        for (int i = 0; i < 10; i++) dt_ps_push_pull(ps, 0, g, w, 4, DT_COMM_F32);
        if (dt_comm_rank(c) == 0) printf("%g\n", w[3]);
        (void)arg;
        int rc = dt_ps_free(ps);
        return dt_comm_free(c) || rc;
    }
    int main(void) { return dt_spawn(4, rank_main, NULL); }

WHAT IT DOES NOT DO

    No sparse keys (rows of a table by number), no encryption. A server applies its updates on one thread.

CONTENTS

    >>store          making a store, its roles and its discipline
    >>exchanging     init, push, pull, waiting
    >>knowing        versions, staleness, wasted work
    >>inside         what tests and the headers above use of this one
    >>coordinator    implementation from here: which pushes make an update. Pure functions
    >>server         the arrays of a server, and its requests
    >>replicas       copies of servers, and what happens when one dies
    >>worker         the calls
    >>machines       two levels: the workers of a machine, and its one exchange with the servers

ERRORS

    No call aborts, exits or prints. A call returns 0 or a negative dt_comm_status, or NULL; dt_ps_error(ps) is the message. A
    push or pull that a server refuses (an unknown key, another length or dtype, weights of a version that does not exist yet)
    changes nothing, and the store can be used on.

MEMORY

    A server has each of its arrays once, and while workers read old values twice. A large push is read where the worker has it, if
    that is memory of this machine that both can see. Else it has memory of its own until its update, and the server keeps that
    memory for the next push: at most 16 areas, with together half of .message_memory of the communicator, and none for longer
    than two seconds without use.

THREADS

    A store is used by one thread at a time; servers work on the progress thread of the communicator, or while a call of the
    program waits. dt_ps_cancelled may be called by any thread.

MACROS

    DT_PS_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_PS_IMPLEMENTATION)
#define DT_PS_IMPLEMENTATION
#endif
#include "dt_comm.h"

#ifndef DT_PS_H_INCLUDED
#define DT_PS_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_ps.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>store
   A store is a set of arrays that lie on servers. Workers push to an array (a gradient, mostly) and pull it (weights). Arrays of up
   to .big elements are on one server, chosen by load; larger ones are cut into ranges, one on each server.

   Arrays that are pushed together form a group, and a group has a version: the number of its updates so far. The discipline says
   which pushes make an update, and when a worker gets the new values. P workers, g: what they push:

     mode                  the servers update when              the other workers
     DT_PS_SYNC            all have pushed                      -
     DT_PS_K_SYNC          the first K workers have pushed      are cancelled; all go on with the new values
     DT_PS_K_BATCH_SYNC    K pushes have come, of any workers   are cancelled; one that has pushed goes on with the same values
     DT_PS_K_ASYNC         K workers have pushed                go on with old values; the K get the new ones
     DT_PS_K_BATCH_ASYNC   K pushes have come, of any workers   go on; one that has pushed gets the present values
     DT_PS_ASYNC           one has pushed                       go on
     DT_PS_SSP             one has pushed                       wait while they are more than .staleness pushes ahead of the slowest
     DT_PS_SSP_CLOCK       all have done their push number c    the same; an update is made of the pushes number c of all

   (Dutta et al. 2018; stale synchronous parallel: Ho et al. 2013. Backup workers, Chen et al. 2016: DT_PS_K_SYNC with K less
   than P.) The pushes of an update are added in the order of the workers, so the same pushes give the same bits. An update is
   the mean of its pushes for a function of the program, and their sum with DT_PS_SUM and DT_PS_ASSIGN.

   Updates and answers of a group are done in the same order by all its servers. So a worker that pushes and pulls in one call
   gets the values of one version, never a mixture.

   Workers that join later. On a tolerant communicator with .room, a process that has joined (dt_comm_join) makes the store with
   the same options, calls dt_ps_init for the keys that exist (same arguments, the values stay), pulls, and pushes as the others
   do. It is a worker with a new number, and takes part in a group from its first pull or push of it: from then on DT_PS_SYNC waits
   for it. This also holds for a worker that comes back under its name with a higher incarnation: its earlier self has died, so
   its batch is given out again, and what it still sends is refused.

   CODECS. With .codec the pushes of a group are encoded (dt_codec_encode of dt_comm.h, with scale 1), each part that goes to a server
   by itself; the server decodes it and goes on as without. All arrays of the group are f32. Pulls are not encoded.
     - Error feedback: the worker keeps a residual of each array, and encodes push + residual. QSGD has none. The residual costs a
       worker two floats an element. It is not in checkpoints, and is lost when the worker leaves.
     - A push that is not used (DT_PS_CANCELLED, DT_PS_STALE) leaves the residual as it was before: the gradient is wasted with its
       batch, as without a codec, and nothing else is. So does a call that fails, though its push may have been used if only the
       answer was lost.
     - A value that is not finite, or too large for the codec, is DT_COMM_ERR_NONFINITE; nothing is pushed, and nothing changes.
     - A part whose elements are all -0, which adds nothing to a sum, is not sent; its residual stays.
     - step of dt_codec_encode is the number of this worker's pushes of the group that were not thrown away. QSGD draws other numbers
       for each worker and key.
     - One push of a group can be under way: the next one waits until the verdict of the one before is known. So dt_ps_push waits
       for the update of the push before it if the discipline does.

   TWO LEVELS. With .two_level the workers of a machine add their pushes up in its memory, and one of them, the first, pushes the sum to
   the servers and gives the answer to the others. Less goes through the network: one push and one pull a machine.
     - Every push and pull of a group is made by all workers of a machine together; it waits for those that have not left, rest or
       died. A machine whose workers all only pull, pulls. If some push and some pull, those that push are added up. The worker that
       speaks for the others must live: if it dies, their calls fail with DT_COMM_ERR_PEER.
     - For the discipline a machine is what a worker is without it: K, .staleness, the statistics and verdicts are of machines. The
       mean of an update is that of the pushes of workers, so machines count by how many of their workers have pushed. DT_PS_SYNC
       gives the same values as without two levels, but for the order of the sums: first within each machine, then over machines.
     - A codec encodes the sum of a machine. If that fails, its workers get DT_COMM_ERR_REMOTE with the text.
     - Batches: a machine gets a number b, and its worker i, counted from 0, computes batch b * W + i (this is dt_ps_info.batch). W is
       the most workers that a machine has. So .batches is rounded up to a multiple of W, and where a machine has fewer workers, or
       one of them has gone, its numbers are not computed.
     - Workers cannot join later: dt_ps_new refuses a rank that has joined the communicator. */
typedef enum dt_ps_mode { /* when the servers update */
    DT_PS_SYNC = 0, DT_PS_K_SYNC, DT_PS_K_BATCH_SYNC, DT_PS_K_ASYNC, DT_PS_K_BATCH_ASYNC, DT_PS_ASYNC, DT_PS_SSP, DT_PS_SSP_CLOCK,
    DT_PS_MODES
} dt_ps_mode;
enum { DT_PS_SERVERS = 64, DT_PS_KEYS = 1 << 20, DT_PS_STATES = 4 }; /* the most servers; keys; arrays of state of an update function */
typedef struct dt_ps dt_ps; /* arrays on servers */
typedef struct dt_ps_discipline {
    int         dt__first DT_D;
    int         mode DT_D;           /* DT_PS_SYNC ... */
    int         k DT_D;              /* of the K modes; default 1 */
    int         staleness DT_D;      /* DT_PS_SSP...: how many pushes a worker may be ahead of the slowest */
    int         max_staleness DT_D;  /* > 0: pushes that are older are dropped; the worker gets new values */
    bool        scale_by_staleness DT_D; /* a push that is n > 1 versions old counts 1 / n (Zhang et al. 2015) */
    bool        drop_batches DT_D;   /* the batch of a push that was cancelled or dropped is not given out again, only counted */
    int64_t     batches DT_D;        /* batch numbers to give out: 0 .. batches - 1; default: no limit. See dt_ps_info.batch */
    dt_codec    codec DT_D;          /* pushes are sent in this form; default: as they are. See CODECS below */
} dt_ps_discipline;
typedef struct dt_ps_opts { /* the same on all ranks */
    int         dt__first DT_D;
    int         servers DT_D;        /* 0: every rank is a worker and a server (of the first 64); n: the last n ranks are servers only */
    const int  *roles DT_D;          /* instead: of each rank DT_PS_IS_WORKER, DT_PS_IS_SERVER, both or 0. See dt_ps_roles. Ranks that
                                        join later are workers, and are not in it */
    int         mode DT_D;           /* these eight: as in dt_ps_discipline, for groups that dt_ps_group does not name */
    int         k DT_D;
    int         staleness DT_D;
    int         max_staleness DT_D;
    bool        scale_by_staleness DT_D;
    bool        drop_batches DT_D;
    int64_t     batches DT_D;
    dt_codec    codec DT_D;
    bool        fail_on_death DT_D;  /* tolerant communicators: the death of a worker is everyone's error; default: the others go on */
    int         replicas DT_D;       /* 1: a server that dies takes its arrays with it; 2: each server has a copy on the next one. See below */
    int64_t     big DT_D;            /* elements: larger arrays are cut over all servers; default 1000000 */
    double      timeout DT_D;        /* seconds without an answer; default: that of the communicator */
    const char *record DT_D;         /* dt_ps_free writes the order of updates to FILE.S on each server S */
    const char *replay DT_D;         /* the files of a .record with the same ranks: updates are made of the same pushes in the same order */
    bool        two_level DT_D;      /* the workers of a machine push together: see TWO LEVELS above */
    const int  *machines DT_D;       /* .two_level: of each rank the number of its machine; default: what the communicator knows */
} dt_ps_opts;
/* The store uses c until dt_ps_free; the program may make other calls on it, with tags below DT_PS_TAG. If c is tolerant, a worker
   may die. This call does not wait for other ranks, except on a rank that has joined later: all servers must know it. NULL on error:
   see dt_comm_error(NULL). */
enum { DT_PS_TAG = 1 << 29 };
/* Servers that die. With .replicas = 2, a tolerant communicator and 2 servers or more, the rank of server s + 1 (of the last server: that
   of server 0) has a copy of what server s holds. A server carries out a request, and answers it, when the copy has it. When server s
   dies, the copy takes over its arrays and its part in all groups, and the workers send it what was not answered. No push is
   lost or used twice, and the values are those of a run without the death, bit for bit. From then on these arrays, and those that
   had their copy on the rank that died, have no copy: dt_ps_stats.replicas is 1, and the log says so. If their last holder dies, too,
   all calls for them fail with the name of the server and its arrays. The functions of dt_ps_on_update run for copies, too. A copy needs the
   memory of a server; in modes other than DT_PS_SYNC it also keeps the values that each worker was last sent. Requests wait for a server
   that is stopped, as they do without replicas. Not with .two_level, not with dt_ps_on_measure, and not on a communicator with .room. */
DT_API dt_ps *dt_ps_new_with(dt_comm *c, dt_ps_opts o DT_OPT0(dt_ps_opts));
enum { DT_PS_IS_WORKER = 1, DT_PS_IS_SERVER = 2 };
/* Collective: asks all ranks for their role and writes it to roles, which has room for all. It is that of the variable DT_ROLE
   (dtrun --servers) or DMLC_ROLE (launchers of ps-lite): worker, server or scheduler; a rank without them is both. */
DT_API int  dt_ps_roles(dt_comm *c, int *roles);
#ifdef DT__LIT
#define dt_ps_new(...) dt_ps_new_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_ps_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_ps_new dt_ps_new_with
#endif
DT_API int  dt_ps_free(dt_ps *ps);   /* a rank that is a server waits until all workers have called it, or have gone */
DT_API int  dt_ps_serve(dt_ps *ps);  /* a rank that is a server only, or nothing (a scheduler): the same wait, without freeing */
DT_API const char *dt_ps_error(const dt_ps *ps); /* why the last call failed; NULL: it did not */
DT_API int  dt_ps_worker(const dt_ps *ps);  /* the number of this worker; -1: it is a server only */
DT_API int  dt_ps_workers(const dt_ps *ps); /* how many there were at the start; those that join later have higher numbers */
DT_API int  dt_ps_server(const dt_ps *ps);  /* the number of this server; -1: it is a worker only */
DT_API int  dt_ps_servers(const dt_ps *ps);
DT_API dt_comm *dt_ps_comm(const dt_ps *ps);

/* What a server does with an update of a part of an array: value has n elements, elements at .. at + n - 1 of an array of total.
   state: arrays of n floats, zero at first. grad: the mean of the pushes, f32. It runs on the servers. Returns 0, or negative:
   then the group fails with the text of dt_comm_error(NULL). It must not wait. */
typedef struct dt_ps_part {
    int      key, dtype;
    int64_t  at, n, total;
    int64_t  version;                /* of the group, before this update */
    void    *value;
    float   *state[DT_PS_STATES];
    int      label;                  /* of dt_ps_init */
    int64_t *count;                  /* a number for the function, 0 at first */
    bool     copy;                   /* .replicas: this is the copy of another server's part. The update of a part and that of its copy must give
                                        the same values: a function that remembers something remembers it for parts and copies apart */
    double   measured;               /* the sum over the whole group: see dt_ps_on_measure */
} dt_ps_part;
typedef int (*dt_ps_update_fn)(const dt_ps_part *p, const float *grad, void *user);
/* On every server, before the first push: the function of the arrays with DT_PS_UPDATE. nstate: arrays of state that it needs. */
DT_API int  dt_ps_on_update(dt_ps *ps, dt_ps_update_fn fn, void *user, int nstate);
/* On every server, before the first dt_ps_init: for updates that need a number of the whole group, such as the norm of its gradient.
   Before an update, fn is called once for each part with DT_PS_UPDATE of the group on this server, in the order of dt_ps_init.
   What it returns is added up on each server, and then over the servers, in their order. The update function gets the
   sum as dt_ps_part.measured: the same bits on all servers. This costs two messages for each server and update. It must not wait. */
typedef double (*dt_ps_measure_fn)(const dt_ps_part *p, const float *grad, void *user);
DT_API int  dt_ps_on_measure(dt_ps *ps, dt_ps_measure_fn fn, void *user);

/* ---------------------------------------------------------------------------------------------------- >>exchanging */
typedef enum dt_ps_rule {
    DT_PS_ASSIGN = 0, /* value = the sum of the pushes */
    DT_PS_SUM,        /* value += the sum of the pushes */
    DT_PS_UPDATE,     /* f32 arrays: the function of dt_ps_on_update */
    DT_PS_RULES
} dt_ps_rule;
typedef struct dt_ps_init_opts {
    int dt__first DT_D;
    int rule DT_D;    /* DT_PS_ASSIGN ... */
    int group DT_D;   /* > 0: arrays with this number are pushed together, in one call; default: the array is a group of its own */
    bool whole DT_D;  /* it is never cut, however large, and the function of DT_PS_UPDATE gets all its elements in one call; default: a
                         range of them in each */
    int label DT_D;   /* a number for the function of dt_ps_on_update */
} dt_ps_init_opts;
/* The discipline of the group with this number, if it is not that of dt_ps_new: all workers call it before the first dt_ps_init of
   the group, with the same arguments. It does not wait. */
DT_API int dt_ps_group_with(dt_ps *ps, int group, dt_ps_discipline o DT_OPT0(dt_ps_discipline));
#ifdef DT__LIT
#define dt_ps_group(ps, ...) dt_ps_group_with(ps, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_ps_discipline, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_ps_group dt_ps_group_with
#endif
/* All workers call it for every key, with the same arguments; the values are those of worker 0 (others may pass NULL). Returns when
   the array is there. Key: 0 .. DT_PS_KEYS - 1. */
DT_API int dt_ps_init_with(dt_ps *ps, int key, const void *data, int64_t n, int dtype, dt_ps_init_opts o DT_OPT0(dt_ps_init_opts));
#ifdef DT__LIT
#define dt_ps_init(ps, key, data, n, ...) \
    dt_ps_init_with(ps, key, data, n, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_ps_init_opts, __VA_ARGS__, ))
#else
#define dt_ps_init dt_ps_init_with
#endif
typedef enum dt_ps_verdict { /* what became of a push */
    DT_PS_NONE = 0,  /* there was no push */
    DT_PS_USED,      /* it is in the values */
    DT_PS_KEPT,      /* it will be in an update; the worker goes on */
    DT_PS_CANCELLED, /* others came first: it was thrown away */
    DT_PS_STALE      /* it was older than .max_staleness: it was thrown away */
} dt_ps_verdict;
typedef struct dt_ps_info {
    int     verdict;   /* dt_ps_verdict */
    bool    fresh;     /* values were pulled. False if this worker has them already: after DT_PS_KEPT of DT_PS_K_BATCH_SYNC, and
                          in a replay */
    int64_t version;   /* of the values that this worker has now */
    int64_t staleness; /* of the push: updates between its values and its own */
    int64_t batch;     /* the number of the batch that this worker should compute next, counted over all workers; -1: no more. Each
                          number is used by exactly one push that became part of an update, unless .drop_batches is set */
    int     k;
} dt_ps_info;
/* Pushes and pulls the arrays of one group, all of them, in the order of their keys. The push of item i is NULL for all items or for
   none; the same is true of pull. The memory must stay valid until dt_ps_wait. */
typedef struct dt_ps_item {
    int         key, dtype;
    int64_t     n;
    const void *push;
    void       *pull;
} dt_ps_item;
typedef struct dt_ps_op dt_ps_op;
DT_API dt_ps_op *dt_ps_exchange_start(dt_ps *ps, const dt_ps_item *item, int nitems);
DT_API int  dt_ps_wait(dt_ps_op *op, dt_ps_info *info); /* frees op. info may be NULL */
DT_API bool dt_ps_test(dt_ps_op *op);
/* Instead of dt_ps_wait, as dt_work_then: it frees op and calls fn when it is done. */
DT_API int  dt_ps_then(dt_ps_op *op, void (*fn)(void *user, int status, const dt_ps_info *info), void *user);
/* One array that is a group of its own. A pull after a push of the same worker waits for the update that contains the push, except where
   the discipline answers before that update (the verdict is DT_PS_KEPT): with DT_PS_K_BATCH_SYNC and DT_PS_K_BATCH_ASYNC until K
   pushes have come, with DT_PS_SSP_CLOCK until all workers have done this push, and in a replay. Nor is a push in the values if it
   was cancelled or too old. */
DT_API int  dt_ps_push(dt_ps *ps, int key, const void *data, int64_t n, int dtype);
DT_API int  dt_ps_pull(dt_ps *ps, int key, void *data, int64_t n, int dtype);
DT_API int  dt_ps_push_pull(dt_ps *ps, int key, const void *in, void *out, int64_t n, int dtype);
DT_API dt_ps_op *dt_ps_pull_async(dt_ps *ps, int key, void *data, int64_t n, int dtype);
DT_API int  dt_ps_barrier(dt_ps *ps); /* of the workers that are alive */
/* Has what this worker computes for group (of key) become useless? Then it should stop, pull, and begin anew. It does not wait. */
DT_API bool dt_ps_cancelled(const dt_ps *ps, int key);
DT_API int  dt_ps_set_k(dt_ps *ps, int key, int k); /* from the next push on */
/* on: the group goes on without this worker, as if it had left; it must not push or pull the group meanwhile. false: it takes
   part again, with the batch that it had; its next call for the group must be a pull. .two_level: false waits for all workers of
   the machine that rest. */
DT_API int  dt_ps_rest(dt_ps *ps, int key, bool on);

/* Reads and writes arrays apart from their group, for checkpoints: which: the number of a state, DT_PS_VALUE, or DT_PS_COUNT (one
   int64_t: dt_ps_part.count). While workers push, the parts of an array may be of different versions: call dt_ps_barrier first. */
enum { DT_PS_VALUE = -1, DT_PS_COUNT = -2 };
DT_API int  dt_ps_get_state(dt_ps *ps, int key, int which, void *data);
DT_API int  dt_ps_set_state(dt_ps *ps, int key, int which, const void *data);
/* Where a group is, for checkpoints: cursor[0]: its version, cursor[1]: the first batch that was never given out, then the batches
   that were given out and are in no update. *n: how many numbers; at most max are written. Setting it is possible on a group
   that has no update yet; it gives worker i the batch cursor[2 + i], or the next one after the last. Pull before the next push. */
DT_API int  dt_ps_get_cursor(dt_ps *ps, int key, int64_t *cursor, int64_t max, int64_t *n);
DT_API int  dt_ps_set_cursor(dt_ps *ps, int key, const int64_t *cursor, int64_t n);

/* ---------------------------------------------------------------------------------------------------- >>knowing */
enum { DT_PS_HISTOGRAM = 64 };
typedef struct dt_ps_stats { /* of a group, from its coordinator */
    int64_t version;                     /* updates */
    int64_t used, stale, cancelled;      /* pushes: in updates; dropped as too old; cancelled, also before they were pushed */
    int64_t staleness;                   /* sum over the used pushes */
    int64_t histogram[DT_PS_HISTOGRAM];  /* used pushes by staleness; the last also counts all above */
    int64_t first, last;                 /* ns: when the first and the last update were made */
    int64_t waiting;                     /* batches that will be given out again */
    int     k, workers;                  /* K; workers that are alive; .two_level: machines */
    int     replicas;                    /* how many ranks hold each array; the fewest of all parts */
} dt_ps_stats;
DT_API int dt_ps_get_stats(dt_ps *ps, int key, dt_ps_stats *out); /* of one array, on its servers */

#ifdef __cplusplus
}
#endif
#endif /* DT_PS_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__PS_INSIDE)
#define DT__PS_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   The coordinator of a group: it hears of pushes and pulls one after the other and says what is to be done. No message, no
   clock and no array in it: the servers run it, and so do the tests of its laws. */
#ifdef __cplusplus
extern "C" {
#endif
enum { DT__PS_OUT = 0, DT__PS_RUNS, DT__PS_WAITS }; /* a worker: not there; computes; has pushed and waits for an answer */
typedef struct dt__ps_learner {
    int     state;
    int64_t seq;               /* of the request that it waits with */
    int64_t version;           /* of the values that it has */
    int64_t clock;             /* pushes so far */
    int64_t batch;             /* what it computes; -1: none */
    int     verdict;           /* of its last push */
    int64_t staleness;
    bool    told;              /* it was told that its work is cancelled */
    bool    fresh;             /* it is out, and its first request lets it take part */
    int64_t replay;            /* the next of its entries in the log; -1: none */
    int     workers;           /* whose pushes its next push is the sum of; 1 but for machines */
} dt__ps_learner;
typedef struct dt__ps_push { /* that waits for its update */
    int     learner;
    float   weight;            /* in the update: 1 / pushes of workers, less for stale ones. Sums ignore it */
    int64_t workers;
    int64_t seq, version, batch;
    int64_t due;               /* pushes of one update have the same: the clock (DT_PS_SSP_CLOCK), the update (replay), or 0 */
} dt__ps_push;
enum { DT__PS_APPLY = 1, DT__PS_ANSWER, DT__PS_CANCEL, DT__PS_DROP, DT__PS_FORGET }; /* FORGET: by the server, for a worker that has gone */
typedef struct dt__ps_act { /* what is to be done, in order */
    int     kind, learner;     /* APPLY: pushes first .. first + n - 1 of `used` make version `version` */
    int     first, n;
    int64_t seq, version;      /* ANSWER and DROP: of its request. APPLY: seq 1: it is made in two steps, see dt__ps_measure */
    dt_ps_info info;           /* ANSWER */
} dt__ps_act;
typedef struct dt__ps_entry { /* of a log: a push that became part of an update */
    uint32_t learner;
    float    weight;
    int64_t  version, update, batch; /* of its values; the version that it was applied to */
} dt__ps_entry;
typedef struct dt__ps_coord {
    int     mode, k, bound, max_staleness;
    bool    scale, drop_batches;
    int     nlearners, nruns, nwaits;
    dt__ps_learner *learner;
    int64_t version;
    dt__ps_push *pending;
    int     npending, pending_cap;
    dt__ps_act *act;
    int     nacts, act_cap;
    dt__ps_push *used;
    int     nused, used_cap;
    int64_t next_batch, nbatches; /* nbatches 0: no limit */
    int64_t *pool;             /* batches to be given out again */
    int     pool_first, npool, pool_cap;
    dt_ps_stats stats;
    dt__ps_entry *log;         /* recorded, or to be replayed */
    int64_t *after;            /* replay: the next entry of the same worker; -1: none */
    int64_t nlog, log_cap, log_at;
    bool    record, replay;
    bool    joint;             /* the workers of a machine: an update is made when all wait, with a push or without. See dt__ps_joint_begin */
    bool    memory, differs;   /* the group has failed: no memory; the run is not that of the log */
} dt__ps_coord;
DT__INSIDE bool dt__ps_coord_init(dt__ps_coord *d, const dt_ps_discipline *o, int learners); /* false: out of memory */
DT__INSIDE void dt__ps_coord_free(dt__ps_coord *d);
DT__INSIDE void dt__ps_coord_push(dt__ps_coord *d, int learner, int64_t seq, int64_t version); /* it must run, version <= d->version */
DT__INSIDE void dt__ps_coord_pull(dt__ps_coord *d, int learner, int64_t seq); /* it must run */
DT__INSIDE void dt__ps_coord_leave(dt__ps_coord *d, int learner);
DT__INSIDE void dt__ps_coord_join(dt__ps_coord *d, int learner); /* it must be out */
DT__INSIDE bool dt__ps_coord_room(dt__ps_coord *d, int learners); /* for more, which are out and fresh; false: out of memory */
DT__INSIDE void dt__ps_coord_set_k(dt__ps_coord *d, int k);
DT__INSIDE int  dt__ps_coord_replay(dt__ps_coord *d, const dt__ps_entry *log, int64_t n); /* 0, or negative after dt__comm_bad */

DT__INSIDE bool dt__ps_copies(const dt_ps *ps); /* .replicas = 2 */
DT__INSIDE void dt__ps_on_free(dt_ps *ps, void (*fn)(void *user), void *user); /* when the store is freed, after its last update */
/* *learner: the number of this worker, or of its machine; *most: the most workers of a machine, or 1; returns its number there, or 0 */
DT__INSIDE int dt__ps_place_of(const dt_ps *ps, int *learner, int *most);
DT__INSIDE int  dt__ps_most(const dt_ps *ps); /* the most workers that there can be: numbers are lower */
DT__INSIDE int  dt__ps_ranks(const dt_ps *ps); /* ranks of the communicator at the start */
/* A worker that has joined takes part in a group from now on; group: as in dt_ps_init. *info: its version, batch and k. wait: returns when
   all other workers of the group have pushed and wait, except those that wait here, too. 1: there is no such group. */
DT__INSIDE int  dt__ps_enter(dt_ps *ps, int group, bool wait, dt_ps_info *info);
#ifdef __cplusplus
}
#endif
#endif /* DT__PS_INSIDE */

#if defined(DT_PS_IMPLEMENTATION) && !defined(DT__PS_IMPLEMENTED)
#define DT__PS_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__COMM_IMPLEMENTED)
#error "dt_ps.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_PS_IMPLEMENTATION"
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(PS);
DT__NEEDS(PS, COMM);
DT__NEEDS(PS, MSG);
DT__NEEDS(PS, NET);

/* ==================================================================================================== >>coordinator
   A push waits in `pending` until an update takes it. The rule of all modes but SSP: when enough pushes wait, or when nobody
   computes any more, they make an update. So DT_PS_SYNC is DT_PS_K_SYNC with an endless K, and the death of a worker that
   others wait for needs no rule of its own. Everything is done in the order of the workers' numbers. */
static bool dt__ps_room(dt__ps_coord *d, void **p, int n, int *cap, size_t size) /* makes room for element n */
{
    if (n < *cap) return true;
    int   more = *cap ? 2 * *cap : 16;
    void *q = more < INT32_MAX / 2 ? DT_COMM_REALLOC(*p, (size_t)more * size) : NULL;
    if (!q) d->memory = true;
    else *p = q, *cap = more;
    return q != NULL;
}
static dt__ps_act *dt__ps_act_add(dt__ps_coord *d, int kind, int learner) /* NULL: out of memory */
{
    void *p = d->act;
    if (!dt__ps_room(d, &p, d->nacts, &d->act_cap, sizeof *d->act)) return NULL;
    d->act = (dt__ps_act *)p;
    dt__ps_act *a = &d->act[d->nacts++];
    memset(a, 0, sizeof *a);
    a->kind = kind;
    a->learner = learner;
    return a;
}
static void dt__ps_pool_add(dt__ps_coord *d, int64_t batch)
{
    void *p = d->pool;
    if (batch < 0) return;
    if (d->pool_first && d->npool == d->pool_cap) {
        memmove(d->pool, d->pool + d->pool_first, (size_t)(d->npool - d->pool_first) * sizeof *d->pool);
        d->npool -= d->pool_first;
        d->pool_first = 0;
    }
    if (!dt__ps_room(d, &p, d->npool, &d->pool_cap, sizeof *d->pool)) return;
    d->pool = (int64_t *)p;
    d->pool[d->npool++] = batch;
}
static int64_t dt__ps_batch(dt__ps_coord *d)
{
    if (d->pool_first < d->npool) {
        int64_t b = d->pool[d->pool_first++];
        if (d->pool_first == d->npool) d->pool_first = d->npool = 0;
        return b;
    }
    return d->nbatches && d->next_batch >= d->nbatches ? -1 : d->next_batch++;
}
/* The work of a learner is not used: its batch returns to the pool. */
static void dt__ps_waste(dt__ps_coord *d, dt__ps_learner *l, int64_t *counter)
{
    (*counter)++;
    if (!d->drop_batches) dt__ps_pool_add(d, l->batch);
    l->batch = -1;
}
static void dt__ps_answer(dt__ps_coord *d, int learner, int verdict, bool fresh)
{
    dt__ps_learner *l = &d->learner[learner];
    dt__ps_act     *a = dt__ps_act_add(d, DT__PS_ANSWER, learner);
    if (!a) return;
    if (l->state == DT__PS_WAITS) d->nwaits--, d->nruns++;
    l->state = DT__PS_RUNS;
    if (fresh) l->version = d->version;
    l->told = false;
    if (d->replay) l->batch = l->replay < 0 ? -1 : d->log[l->replay].batch;
    else if (l->batch < 0) l->batch = dt__ps_batch(d);
    a->seq = l->seq;
    a->version = l->version;
    a->info.verdict = verdict;
    a->info.fresh = fresh;
    a->info.version = l->version;
    a->info.staleness = verdict == DT_PS_NONE ? 0 : l->staleness;
    a->info.batch = l->batch;
    a->info.k = d->k;
}
static int dt__ps_before(const void *x, const void *y)
{
    const dt__ps_push *a = (const dt__ps_push *)x, *b = (const dt__ps_push *)y;
    if (a->learner != b->learner) return a->learner < b->learner ? -1 : 1;
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}
static void dt__ps_record(dt__ps_coord *d, const dt__ps_push *p)
{
    if (!d->record || d->replay) return; /* a replay has its log already */
    if (d->nlog == d->log_cap) {
        int64_t       more = d->log_cap ? 2 * d->log_cap : 1024;
        dt__ps_entry *q = (dt__ps_entry *)DT_COMM_REALLOC(d->log, (size_t)more * sizeof *q);
        if (!q) {
            d->memory = true;
            return;
        }
        d->log = q;
        d->log_cap = more;
    }
    dt__ps_entry *e = &d->log[d->nlog++];
    e->learner = (uint32_t)p->learner;
    e->weight = p->weight;
    e->version = p->version;
    e->update = d->version;
    e->batch = p->batch;
}
static void dt__ps_update(dt__ps_coord *d, int64_t due) /* of the pending pushes that are due */
{
    int     n = 0, rest = 0;
    int64_t workers = 0;
    for (int i = 0; i < d->npending; i++)
        if (d->pending[i].due == due) n++, workers += d->pending[i].workers;
    for (int i = 0; i < n; i++) {
        void *p = d->used;
        if (!dt__ps_room(d, &p, d->nused + i, &d->used_cap, sizeof *d->used)) return;
        d->used = (dt__ps_push *)p;
    }
    dt__ps_act *a = dt__ps_act_add(d, DT__PS_APPLY, -1);
    if (!a) return;
    dt__ps_push *set = d->used + d->nused;
    n = 0;
    for (int i = 0; i < d->npending; i++)
        if (d->pending[i].due == due) set[n++] = d->pending[i];
        else d->pending[rest++] = d->pending[i];
    d->npending = rest;
    if (n > 1) qsort(set, (size_t)n, sizeof *set, dt__ps_before);
    a->first = d->nused;
    a->n = n;
    d->nused += n;
    for (int i = 0; i < n; i++) {
        int64_t old = d->version - set[i].version;
        set[i].weight = 1.0f / (float)workers;
        if (d->scale && old > 1) set[i].weight /= (float)old;
        if (d->replay) set[i].weight = d->log[d->log_at + i].weight;
        dt__ps_record(d, &set[i]);
        d->stats.used++;
        d->stats.staleness += old;
        d->stats.histogram[old < DT_PS_HISTOGRAM ? old : DT_PS_HISTOGRAM - 1]++;
        dt__ps_learner *l = &d->learner[set[i].learner];
        if (l->seq != set[i].seq) continue; /* DT_PS_SSP_CLOCK: it waits with a later push */
        l->verdict = DT_PS_USED;
        l->staleness = old;
    }
    a->version = ++d->version;
}
/* Who computes with old values is told to stop. */
static void dt__ps_cancel_rest(dt__ps_coord *d)
{
    for (int i = 0; d->nruns && i < d->nlearners; i++) {
        dt__ps_learner *l = &d->learner[i];
        if (l->state != DT__PS_RUNS || l->version == d->version || l->told) continue;
        l->told = true;
        dt__ps_waste(d, l, &d->stats.cancelled);
        dt__ps_act *a = dt__ps_act_add(d, DT__PS_CANCEL, i);
        if (a) a->version = d->version;
    }
}
static int64_t dt__ps_slowest(const dt__ps_coord *d)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < d->nlearners; i++)
        if (d->learner[i].state != DT__PS_OUT && d->learner[i].clock < least) least = d->learner[i].clock;
    return least;
}
static void dt__ps_replay_step(dt__ps_coord *d);
/* Something has changed: does it make an update? */
static void dt__ps_decide(dt__ps_coord *d)
{
    if (d->replay) {
        dt__ps_replay_step(d);
        return;
    }
    if (d->joint) {
        if (d->nruns || (!d->nwaits && !d->npending)) return;
        dt__ps_update(d, 0);
        for (int i = 0; i < d->nlearners; i++)
            if (d->learner[i].state == DT__PS_WAITS) dt__ps_answer(d, i, d->learner[i].verdict, true);
        return;
    }
    if (d->mode == DT_PS_SSP || d->mode == DT_PS_SSP_CLOCK) {
        int64_t slowest = dt__ps_slowest(d);
        if (d->mode == DT_PS_SSP_CLOCK)
            for (;;) { /* clocks that all have done */
                int64_t c = INT64_MAX;
                for (int i = 0; i < d->npending; i++) c = d->pending[i].due < c ? d->pending[i].due : c;
                if (c >= slowest) break;
                int before = d->npending;
                dt__ps_update(d, c);
                if (d->npending == before) return; /* out of memory */
            }
        for (int i = 0; i < d->nlearners; i++) {
            dt__ps_learner *l = &d->learner[i];
            if (l->state == DT__PS_WAITS && l->clock - slowest <= d->bound) dt__ps_answer(d, i, l->verdict, true);
        }
        return;
    }
    bool sync = d->mode <= DT_PS_K_BATCH_SYNC, batch = d->mode == DT_PS_K_BATCH_SYNC || d->mode == DT_PS_K_BATCH_ASYNC;
    int  need = d->mode == DT_PS_SYNC ? INT32_MAX : d->mode == DT_PS_ASYNC ? 1 : d->k;
    int  active = batch ? d->nruns + d->nwaits : d->nruns; /* who may still push; with K_BATCH modes nobody waits for long */
    if (!d->npending || (d->npending < need && active)) return;
    int first = d->nused;
    dt__ps_update(d, 0);
    for (int i = first; i < d->nused; i++) {
        int l = d->used[i].learner;
        if (d->learner[l].state == DT__PS_WAITS && d->learner[l].seq == d->used[i].seq) dt__ps_answer(d, l, DT_PS_USED, true);
    }
    if (sync) dt__ps_cancel_rest(d);
}
static void dt__ps_push_drop(dt__ps_coord *d, int learner, int verdict)
{
    dt__ps_act *a = dt__ps_act_add(d, DT__PS_DROP, learner);
    if (!a) return;
    a->seq = d->learner[learner].seq;
    d->learner[learner].verdict = verdict;
}
DT__INSIDE void dt__ps_coord_push(dt__ps_coord *d, int learner, int64_t seq, int64_t version)
{
    dt__ps_learner     *l = &d->learner[learner];
    const dt__ps_entry *e = d->replay && l->replay >= 0 ? &d->log[l->replay] : NULL;
    int64_t             old = d->version - version;
    bool                sync = d->mode <= DT_PS_K_BATCH_SYNC, ssp = d->mode == DT_PS_SSP || d->mode == DT_PS_SSP_CLOCK;
    bool                first = l->version < 0;
    if (d->mode == DT_PS_SSP_CLOCK) old += l->clock - dt__ps_slowest(d); /* updates that come before its own */
    l->seq = seq;
    l->version = version;
    l->clock++;
    l->staleness = old;
    l->state = DT__PS_WAITS;
    d->nruns--;
    d->nwaits++;
    if (d->replay && (!e || e->version != version)) {
        /* The log has no push of these values. It may have been dropped when the log was recorded: it is dropped again. A first
           push may come before this worker has asked for values. */
        if (e ? version < e->version : first || sync || d->max_staleness) {
            d->stats.cancelled++;
            dt__ps_push_drop(d, learner, DT_PS_CANCELLED);
        } else d->differs = true;
        dt__ps_decide(d);
        return;
    }
    if (!d->replay && !d->joint && ((sync && old) || (d->max_staleness && old > d->max_staleness))) {
        if (!l->told) dt__ps_waste(d, l, sync ? &d->stats.cancelled : &d->stats.stale); /* else it was counted then */
        dt__ps_push_drop(d, learner, sync ? DT_PS_CANCELLED : DT_PS_STALE);
        if (!ssp) dt__ps_answer(d, learner, l->verdict, true);
        dt__ps_decide(d);
        return;
    }
    void *p = d->pending;
    if (!dt__ps_room(d, &p, d->npending, &d->pending_cap, sizeof *d->pending)) return;
    d->pending = (dt__ps_push *)p;
    dt__ps_push *q = &d->pending[d->npending++];
    q->learner = learner;
    q->seq = seq;
    q->version = version;
    q->due = e ? e->update : d->mode == DT_PS_SSP_CLOCK ? l->clock - 1 : 0;
    q->batch = l->batch;
    q->workers = l->workers;
    q->weight = 1;
    l->batch = -1;
    l->verdict = DT_PS_KEPT;
    if (e) l->replay = d->after[l->replay];
    else if (d->mode == DT_PS_SSP) dt__ps_update(d, 0);
    dt__ps_decide(d);
    if (d->replay || l->state != DT__PS_WAITS || l->seq != seq) return;
    if (d->mode == DT_PS_K_BATCH_SYNC) dt__ps_answer(d, learner, DT_PS_KEPT, false);
    else if (d->mode == DT_PS_K_BATCH_ASYNC) dt__ps_answer(d, learner, DT_PS_KEPT, true);
}
DT__INSIDE void dt__ps_coord_pull(dt__ps_coord *d, int learner, int64_t seq)
{
    dt__ps_learner *l = &d->learner[learner];
    l->seq = seq;
    if (!d->replay && !d->joint) {
        dt__ps_answer(d, learner, DT_PS_NONE, true);
        return;
    }
    l->state = DT__PS_WAITS;
    l->verdict = DT_PS_NONE;
    d->nruns--;
    d->nwaits++;
    dt__ps_decide(d);
}
DT__INSIDE void dt__ps_coord_leave(dt__ps_coord *d, int learner)
{
    dt__ps_learner *l = &d->learner[learner];
    if (l->state == DT__PS_OUT) return;
    if (l->state == DT__PS_RUNS) {
        d->nruns--;
        dt__ps_pool_add(d, l->batch);
    } else d->nwaits--;
    l->batch = -1;
    l->state = DT__PS_OUT;
    dt__ps_decide(d);
}
DT__INSIDE void dt__ps_coord_join(dt__ps_coord *d, int learner)
{
    dt__ps_learner *l = &d->learner[learner];
    int64_t         slowest = dt__ps_slowest(d);
    l->state = DT__PS_RUNS;
    l->version = d->replay ? -1 : d->version;
    l->clock = slowest == INT64_MAX ? 0 : slowest;
    l->batch = -1;
    l->told = l->fresh = false;
    d->nruns++;
}
DT__INSIDE bool dt__ps_coord_room(dt__ps_coord *d, int learners)
{
    if (learners <= d->nlearners) return true;
    dt__ps_learner *l = (dt__ps_learner *)DT_COMM_REALLOC(d->learner, (size_t)learners * sizeof *l);
    if (!l) return false;
    d->learner = l;
    for (int i = d->nlearners; i < learners; i++) {
        memset(&l[i], 0, sizeof *l);
        l[i].state = DT__PS_OUT;
        l[i].fresh = true;
        l[i].batch = l[i].replay = -1;
        l[i].workers = 1;
    }
    d->nlearners = learners;
    return true;
}
DT__INSIDE void dt__ps_coord_set_k(dt__ps_coord *d, int k)
{
    d->k = k;
    dt__ps_decide(d);
}
DT__INSIDE bool dt__ps_coord_init(dt__ps_coord *d, const dt_ps_discipline *o, int learners)
{
    memset(d, 0, sizeof *d);
    d->mode = o->mode;
    d->k = o->k > 0 ? o->k : 1;
    d->bound = o->staleness;
    d->max_staleness = o->max_staleness;
    d->scale = o->scale_by_staleness;
    d->drop_batches = o->drop_batches;
    d->nbatches = o->batches;
    d->learner = (dt__ps_learner *)dt__comm_zeroed((size_t)(learners ? learners : 1), sizeof *d->learner);
    if (!d->learner) return false;
    d->nlearners = d->nruns = learners;
    for (int i = 0; i < learners; i++) {
        d->learner[i].state = DT__PS_RUNS;
        d->learner[i].batch = dt__ps_batch(d);
        d->learner[i].replay = -1;
        d->learner[i].workers = 1;
    }
    return true;
}
DT__INSIDE void dt__ps_coord_free(dt__ps_coord *d)
{
    DT_COMM_FREE(d->learner);
    DT_COMM_FREE(d->pending);
    DT_COMM_FREE(d->act);
    DT_COMM_FREE(d->used);
    DT_COMM_FREE(d->pool);
    DT_COMM_FREE(d->log);
    DT_COMM_FREE(d->after);
    memset(d, 0, sizeof *d);
}
/* ---- replay. The log has the pushes of all updates in order. A worker gets the values of exactly the version that its next
   push in the log was computed with. So update u is made when its pushes are there, and everybody who needs version u has it.
   The versions of a worker never decrease; so who computes can push, and nobody waits for values that are no more. */
DT__INSIDE int dt__ps_coord_replay(dt__ps_coord *d, const dt__ps_entry *log, int64_t n)
{
    for (int i = 0; i < d->nlearners; i++) d->learner[i].version = 0;
    for (int64_t i = 0; i < n; i++) {
        bool next = i && log[i].update == log[i - 1].update + 1, same = i ? log[i].update == log[i - 1].update : log[i].update == 0;
        if (log[i].learner >= (uint32_t)d->nlearners || (!next && !same) || log[i].batch < -1 ||
            log[i].version > log[i].update || log[i].version < d->learner[log[i].learner].version)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_new: .replay: entry %" PRId64 " of the log is impossible: worker %u of %d, version %" PRId64
                                ", update %" PRId64, i, (unsigned)log[i].learner, d->nlearners, log[i].version, log[i].update);
        d->learner[log[i].learner].version = log[i].version;
    }
    d->log = (dt__ps_entry *)DT_COMM_MALLOC((size_t)(n ? n : 1) * sizeof *log);
    d->after = (int64_t *)DT_COMM_MALLOC((size_t)(n ? n : 1) * sizeof *d->after);
    if (!d->log || !d->after) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_ps_new: out of memory for a log of %" PRId64 " entries", n);
    if (n) memcpy(d->log, log, (size_t)n * sizeof *log);
    d->nlog = n;
    d->replay = true;
    for (int i = 0; i < d->nlearners; i++) d->learner[i].replay = -1;
    for (int64_t i = n; i-- > 0;) {
        d->after[i] = d->learner[log[i].learner].replay;
        d->learner[log[i].learner].replay = i;
    }
    for (int i = 0; i < d->nlearners; i++) {
        d->learner[i].version = -1; /* it has not pulled */
        d->learner[i].batch = d->learner[i].replay < 0 ? -1 : log[d->learner[i].replay].batch;
    }
    return 0;
}
static void dt__ps_replay_answer(dt__ps_coord *d, int learner)
{
    const dt__ps_learner *l = &d->learner[learner];
    int64_t               version = l->replay >= 0 ? d->log[l->replay].version : d->log_at == d->nlog ? d->version : INT64_MAX;
    if (l->state != DT__PS_WAITS || version > d->version) return;
    if (version == d->version) dt__ps_answer(d, learner, l->verdict, true);
    else if (version == l->version) dt__ps_answer(d, learner, l->verdict, false); /* it has them; the servers have newer ones */
    else d->differs = true;
}
/* Will this worker yet need the values of the present version? */
static bool dt__ps_replay_needs(const dt__ps_coord *d, const dt__ps_learner *l)
{
    int64_t i = l->replay;
    while (i >= 0 && d->log[i].version < d->version) i = d->after[i];
    return i >= 0 && d->log[i].version == d->version && (l->state != DT__PS_RUNS || l->version != d->version);
}
static void dt__ps_replay_step(dt__ps_coord *d)
{
    while (!d->differs) {
        int64_t end = d->log_at;
        int     due = 0;
        bool    ready = end < d->nlog, gone = false;
        for (int i = 0; i < d->npending; i++) due += d->pending[i].due == d->version;
        while (end < d->nlog && d->log[end].update == d->version) end++;
        ready = ready && due == end - d->log_at;
        for (int i = 0; i < d->nlearners; i++) {
            const dt__ps_learner *l = &d->learner[i];
            dt__ps_replay_answer(d, i);
            if (l->state != DT__PS_OUT) ready = ready && !dt__ps_replay_needs(d, l);
            else gone = gone || (l->replay >= 0 && d->log[l->replay].update == d->version);
        }
        if (gone && d->nwaits) d->differs = true; /* this update needs a push of a worker that has gone */
        if (!ready || d->differs) return;
        dt__ps_update(d, d->version);
        if (d->memory) return;
        d->log_at = end;
    }
}

/* ==================================================================================================== >>server
   A request of a worker has parts: one for each array of the group on this server. Small ones lie in the request, large ones are
   messages with tags of their own, which are read where they are. When all parts of a request are there, it is staged, and the
   server says so to the coordinator of the group: one of the servers. The coordinator hears from all servers of the group, decides
   (>>coordinator), and all of them do what it says, in the same order: apply pushes, answer workers. On one server these are
   function calls; between servers they are calls of dt_comm.h, DT__PS_STAGED and DT__PS_ORDER.

   Everything here runs on the thread that drives the communicator (handlers, and functions of dt_work_then): no locks. */
enum { DT__PS_MAGIC = 0x73707464, DT__PS_INLINE = 4096, DT__PS_PARTS = 1 << 20 };
enum { DT__PS_AREAS = 16, DT__PS_AREA = 1 << 18 }; /* areas that are kept, at most; bytes of one, at least. See dt__ps_area_new */
enum { /* tags of calls: what is asked of a server, and by DT__PS_NOTICE of a worker */
    DT__PS_INIT = DT_PS_TAG, DT__PS_SET, DT__PS_READY, DT__PS_EXCHANGE, DT__PS_STAGED, DT__PS_ORDER, DT__PS_BYE, DT__PS_BARRIER, DT__PS_ASK, DT__PS_END, DT__PS_NOTICE,
    DT__PS_STATE, DT__PS_PLACE, DT__PS_HELLO,
    DT__PS_FORWARD, DT__PS_LINK, DT__PS_DIED, /* >>replicas */
    DT__PS_COPY = 32, /* added to these: the request is for the copy on this rank */
    DT__PS_WATCH = DT_PS_TAG + 64, DT__PS_DATA = DT_PS_TAG + 128
};
enum { DT__PS_HAS_PUSH = 1, DT__PS_WANTS = 2,  /* flags: of an exchange */
       DT__PS_BAD = 4, DT__PS_HOLDS = 8, DT__PS_REFUSED = 16, DT__PS_LEFT = 32, /* of DT__PS_STAGED: see dt__ps_hear */
       DT__PS_MEASURED = 64 }; /* of DT__PS_STAGED: a double of this server follows; of DT__PS_ORDER: the sum of all */
enum { DT__PS_REFUSE = 100,    /* acts of the server, beside those of >>coordinator: a request that a server does not have is refused by all; */
       DT__PS_TAKE };          /* a push without a pull is answered, as its verdict is known: of groups with a codec */
enum { DT__PS_ASK_STATS = 1, DT__PS_ASK_K, DT__PS_ASK_WHY, DT__PS_ASK_REST, DT__PS_ASK_JOIN, DT__PS_ASK_CURSOR, DT__PS_ASK_WHERE,
       DT__PS_ASK_ENTER, DT__PS_ASK_ALONE };
enum { DT__PS_HERE = 0, DT__PS_HAS_LEFT, DT__PS_HAS_DIED, DT__PS_NOT_YET }; /* dt_ps.gone; NOT_YET: a number for a worker that may join */
enum { DT__PS_CUT = -1 };      /* of a key, in place of its server: it is cut over all servers */
typedef struct dt__ps_head {   /* of requests */
    uint32_t magic, flags;
    int32_t  group, worker;
    int64_t  seq, version;
    uint64_t servers;          /* a bit for each server that gets a part of this request */
    int32_t  nparts, what;     /* what: of an exchange: how many workers its push is of; 0: one */
    int64_t  number;           /* .replicas: of the calls of this worker. Of an exchange: the oldest of its group that has not ended */
} dt__ps_head;
typedef struct dt__ps_wire {   /* a part in a request or an answer */
    int32_t key, dtype;
    int64_t at, n, nbytes;     /* elements; bytes of the payload */
    int32_t tag, rule;         /* tag: of the message with the payload; DT__PS_FOLLOWS: it follows the parts, at a multiple of 8
                                  bytes; DT__PS_THERE: the server has written it to where it is wanted */
    int64_t see;               /* of a request: where the values are wanted, as dt__shared_at says; -1: the server cannot write there */
} dt__ps_wire;
enum { DT__PS_FOLLOWS = -1, DT__PS_THERE = -2 };
typedef struct dt__ps_asks {   /* DT__PS_INIT */
    dt__ps_head head;
    dt__ps_wire array;         /* at: 0 */
    int32_t  mode, k, staleness, max_staleness; /* the discipline of the group */
    int32_t  scale, drop, whole, fail;          /* 0 or 1 */
    int32_t  nservers, nworkers;
    int32_t  coordinator, label;                /* DT__PS_SET: the server that coordinates the group */
    int64_t  big, batches;
    int64_t  given;            /* 1: the group has a discipline of its own, by dt_ps_group */
    int64_t  replicas;
    int32_t  codec, levels;    /* of its codec */
    double   ratio;
    int64_t  bucket;
    uint64_t seed;
    int32_t  outer_server, outer_coordinator;   /* two levels: what the machine's first worker was told */
} dt__ps_asks;
typedef struct dt__ps_where {  /* the answer */
    int32_t server, coordinator; /* of the array, or DT__PS_CUT; of its group */
    int32_t outer_server, outer_coordinator;
} dt__ps_where;
typedef struct dt__ps_buf { int readers; bool old; void *p; } dt__ps_buf; /* old: its array has another one now */
typedef struct dt__ps_held {   /* a part of an array on this server */
    dt_ps_part  part;
    int         rule, group;
    bool        whole;         /* an update is made of all elements at once */
    uint64_t    stamp;         /* of the last request with it */
    int64_t     count;         /* part.count */
    float      *mean;          /* of the pushes of an update that is made in two steps; NULL: there was none yet */
    dt__ps_buf *buf;
} dt__ps_held;
typedef struct dt__ps_input {  /* a part of a request */
    dt__ps_wire  wire;
    dt__ps_held *held;
    const char  *data;         /* what was pushed; NULL: nothing */
    char        *own;          /* data, if it is a copy, or decoded */
    int64_t      nown;         /* bytes of own */
    dt_msg_view  view;         /* data, if it is a message that is read where it is */
    int64_t      viewed;       /* bytes of view that count in ps->viewed */
    dt_msg_info  info;         /* of a message to own */
    dt_work     *work;         /* its receive */
    char        *to;           /* where the values are wanted; NULL: this server cannot write there */
    bool         there;        /* they are there */
    struct dt_ps *ps;
    struct dt__ps_request *of;
} dt__ps_input;
typedef struct dt__ps_request {
    struct dt__ps_request *next; /* of the same worker and group */
    struct dt__ps_group   *group;
    dt__ps_head   head;
    dt_request   *q;           /* NULL: it is answered */
    dt__ps_input *in;
    int           missing;     /* messages of parts that have not come */
    bool          staged;      /* the coordinator was told of it */
    bool          done;        /* its push is in an update, was dropped, or there was none */
} dt__ps_request;
typedef struct dt__ps_line {   /* the coordinator: a request of a worker that is not staged everywhere, or has to wait */
    struct dt__ps_line *next;
    dt__ps_head head;
    uint64_t    staged;        /* servers that have it, or have refused it */
    bool        refused;       /* by one of them */
} dt__ps_line;
/* Acts of a group are done in their order. An update may need something first: then its group pauses, and what comes after it waits. */
enum { DT__PS_FOR_TOTAL = 1,   /* the numbers of all servers are added up: see dt__ps_measure */
       DT__PS_FOR_EXCHANGE };  /* two levels: the machine's exchange with the servers: see dt__ps_joint_begin */
typedef struct dt__ps_order {
    struct dt__ps_order *next;
    int          at, nacts;    /* at: the act that is next */
    bool         begun;        /* the first step of an update at `at` is done */
    dt__ps_act  *act;
    dt__ps_push *used;
} dt__ps_order;
typedef struct dt__ps_group {
    int            id, coordinator; /* the number of its server */
    dt__ps_held  **held;
    int            nheld, held_cap;
    dt__ps_request **request;  /* by worker: first in, first out */
    int64_t       *fed;        /* by worker: the last request that coord has heard of. Other servers: INT64_MAX: no more are taken */
    char           bad[400];   /* why it has failed; "": it has not */
    dt__ps_order  *order;      /* what is to be done, in order */
    bool           runs;       /* acts are being done: new ones wait */
    int            pause;      /* what the first of order waits for: DT__PS_FOR_TOTAL ...; 0: nothing */
    dt_codec       codec;      /* of its pushes */
    /* the coordinator */
    bool           here;
    uint64_t       servers;    /* that hold arrays of it: each request goes to all of them */
    dt__ps_coord   coord;
    dt__ps_line  **line;       /* by worker, in the order of seq */
    uint64_t      *left;       /* by worker: servers that get no more requests of it */
    dt_request   **alone;      /* by worker: its DT__PS_ASK_ALONE; NULL: nobody has asked */
    bool           busy;       /* acts are being done: new ones wait */
    uint64_t       measured;   /* servers whose number of the present update is here: */
    double         number[DT_PS_SERVERS];
    struct dt__ps_group *next;
    /* two levels, the inner store: see dt__ps_joint_begin */
    struct dt_ps  *ps;
    bool           starting;   /* that exchange is being started */
    bool           out, moving; /* the machine rests; it is about to begin or to end that */
    dt_request   **resting, **joining; /* by worker: its DT__PS_ASK_REST or JOIN, which is answered after that */
} dt__ps_group;
typedef struct dt__ps_name {   /* the first server: what it knows of a key */
    dt__ps_asks asks;
    dt__ps_where where;
    bool        ready;
    char        bad[300];      /* why it is not, and will not be */
    dt_request **waiting;      /* by worker: its DT__PS_INIT */
} dt__ps_name;
typedef struct dt__ps_map { void **at; int n; } dt__ps_map; /* by key */
typedef struct dt__ps_area { char *p; int64_t n; bool old; } dt__ps_area; /* old: it was kept at the last tick, too */
struct dt_ps {
    dt_comm    *c;
    dt_ps_opts  o;
    int         size, nworkers, nservers, worker, server; /* size, nworkers: the most that there can be */
    int         start, ranks;  /* at the start: workers, ranks of the communicator */
    int         server_rank[DT_PS_SERVERS];
    int        *worker_rank;   /* by worker */
    int        *worker_of;     /* by rank; -1: it is none */
    double      timeout;
    int         tag;           /* of the next message with a part; atomic */
    char        said[600];
    bool        bad;           /* said is set */
    int         pending;       /* operations and messages of which a function is still to be called, and the store itself; atomic */
    int         idle;          /* pending is 0; atomic, as over */
    /* the worker */
    pthread_mutex_t lock;      /* guards ops; keys and teams against dt_ps_cancelled and notices: one thread of the program changes them */
    struct dt_ps_op *ops;      /* all that are not freed */
    dt__ps_map  keys;          /* dt__ps_key */
    dt__ps_map  teams;         /* dt__ps_team, by group id */
    dt__ps_map  disciplines;   /* dt_ps_discipline, by the number of a group */
    /* the server */
    dt__ps_map  held, names;   /* dt__ps_held; dt__ps_name */
    dt__ps_map  groups;        /* dt__ps_group, by group id */
    dt__ps_group *all;
    int64_t     load[DT_PS_SERVERS]; /* bytes; of the first server */
    uint64_t    stamp;         /* of the last request */
    int64_t     viewed;        /* bytes of messages that are read where they are */
    dt__ps_area area[DT__PS_AREAS]; /* memory of pushes that is free: the one that was used last is the last */
    int         nareas;
    int64_t     kept;          /* bytes of them */
    dt_work    *timer;         /* a receive that ends at the next tick: see dt__ps_tick */
    char        nothing;
    dt_request *early[4];      /* DT__PS_SET of arrays with DT_PS_UPDATE that came before dt_ps_on_update; worker 0 has one at a time */
    int         nearly;
    struct dt__ps_setting *setting; /* .replicas: new arrays of which the coordinator has not answered yet */
    bool        settled;       /* the program has gone on without dt_ps_on_update */
    uint8_t    *gone;          /* by worker: DT__PS_HERE ... */
    dt_work   **watch;         /* by rank: ends when it dies */
    struct dt__ps_watcher *watcher;
    int         ngone;
    int         ntells;        /* calls to other servers and to workers that have not ended */
    uint64_t    ended, dead;   /* servers that have nothing more to say, or have died; only the latter */
    bool        said_end;      /* this one has said so to the others */
    int         over;          /* all workers have gone, and all servers have ended */
    bool        closing;
    char        death[300];    /* .fail_on_death: of whom */
    dt_ps_update_fn fn;
    void       *user;
    dt_ps_measure_fn measure;
    void       *measure_user;
    void      (*freed)(void *user); /* of dt__ps_on_free */
    void       *freed_user;
    int         nstate;
    float      *sum;           /* of an update */
    int64_t     nsum;
    dt_request **barrier;      /* by worker; the first server */
    /* two levels: see >>machines */
    struct dt_ps *outer;       /* of an inner store: that of the machines. NULL: it is none */
    struct dt_ps *inner;       /* of an outer store, on workers */
    int         base;          /* is added to all tags */
    int         number, total; /* of this worker; of workers, on all machines */
    int        *machine_of;    /* of an outer store, by rank: whose worker it is; -1: it is none */
    int        *crew;          /* of an outer store, by machine: its workers at the start */
    int         most;          /* the largest of them */
    bool        at_barrier;    /* of an inner store: the machine is at the barrier of machines */
    /* .replicas = 2 */
    uint64_t    away;          /* servers whose rank has gone; atomic */
    int64_t     asked;         /* the number of the last call of this worker */
    bool        sending, resend; /* a thread is in dt__ps_calls_go; it must look again. Under lock */
    struct dt_ps *copy;        /* of the server before this one */
    struct dt_ps *main;        /* a copy: the store that it belongs to */
    struct dt__ps_rep *rep;    /* of a server and of a copy */
};
static void *dt__ps_map_get(const dt__ps_map *m, int key) { return key >= 0 && key < m->n ? m->at[key] : NULL; }
static bool  dt__ps_map_put(dt__ps_map *m, int key, void *p)
{
    if (key >= m->n) {
        int    n = key < 32 ? 64 : 2 * key;
        void **q = (void **)DT_COMM_REALLOC(m->at, (size_t)n * sizeof *q);
        if (!q) return false;
        memset(q + m->n, 0, (size_t)(n - m->n) * sizeof *q);
        m->at = q;
        m->n = n;
    }
    m->at[key] = p;
    return true;
}
static bool dt__ps_away(const dt_ps *ps, int server) /* has its rank gone? */
{
    if (ps->main) ps = ps->main;
    return __atomic_load_n(&ps->away, __ATOMIC_ACQUIRE) >> server & 1;
}
static int dt__ps_group_id(int key, int group) { return group > 0 ? 2 * group + 1 : 2 * key; } /* even: an array of its own */
/* The range of an array on a server: equal ranges, at multiples of 64 elements. */
static void dt__ps_range(const dt_ps *ps, int64_t total, int server, int where, int64_t *at, int64_t *n)
{
    int64_t unit = (total + 63) / 64, first = unit / ps->nservers * server, end = unit / ps->nservers * (server + 1), rest = unit % ps->nservers;
    first += server < rest ? server : rest;
    end += server + 1 < rest ? server + 1 : rest;
    first = first * 64 < total ? first * 64 : total; /* there may be more servers than units */
    end = end * 64 < total ? end * 64 : total;
    *at = where == DT__PS_CUT ? first : 0;
    *n = where == DT__PS_CUT ? end - first : server == where ? total : 0;
}
static DT__PRINTF(3, 4) int dt__ps_say(dt_ps *ps, int status, const char *format, ...) /* ps NULL: not a call of the program */
{
    char    text[sizeof ps->said];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (ps) {
        memcpy(ps->said, text, sizeof text);
        ps->bad = true;
    }
    return dt__comm_bad(status, "%s", text);
}
static void dt__ps_count(dt_ps *ps, int n)
{
    if (ps->main) ps = ps->main;
    if (__atomic_add_fetch(&ps->pending, n, __ATOMIC_ACQ_REL) == 0) __atomic_store_n(&ps->idle, 1, __ATOMIC_RELEASE); /* ps may be gone now */
}
static void dt__ps_over_look(dt_ps *ps);
static bool dt__ps_rep_idle(const dt_ps *ps);
typedef struct dt__ps_letter { dt_ps *ps; int64_t unused; } dt__ps_letter; /* what is told follows */
static void dt__ps_told(void *user, int status)
{
    dt__ps_letter *t = (dt__ps_letter *)user;
    dt_ps         *ps = t->ps;
    (void)status; /* who does not hear it has gone, and that is noticed elsewhere */
    DT_COMM_FREE(t);
    ps->ntells--;
    dt__ps_over_look(ps);
    dt__ps_count(ps, -1);
}
static void *dt__ps_letter_new(dt_ps *ps, size_t n) /* where to write what is told; NULL: the communicator has failed */
{
    dt__ps_letter *t = (dt__ps_letter *)DT_COMM_MALLOC(sizeof *t + n);
    if (!t) {
        dt_comm_abort(ps->c, "dt_ps: out of memory");
        return NULL;
    }
    t->ps = ps;
    return t + 1;
}
static bool dt__ps_post_new(dt_ps *ps, int rank, int tag, const void *letter, size_t n);
static void dt__ps_tell(dt_ps *ps, int rank, int tag, void *letter, size_t n) /* a call whose answer does not matter */
{
    dt__ps_letter *t = (dt__ps_letter *)letter - 1;
    dt_msg_opts    o = DT__NO_OPTIONS;
    if (ps->rep && dt__ps_post_new(ps, rank, tag, letter, n)) {
        DT_COMM_FREE(t);
        return;
    }
    o.timeout = ps->timeout;
    dt__ps_count(ps, 1);
    ps->ntells++;
    dt_work *w = dt_comm_call_start_with(ps->c, rank, ps->base + tag, letter, (int64_t)n, NULL, 0, o);
    if (w) dt_work_then(w, dt__ps_told, t);
    else dt__ps_told(t, DT_COMM_ERR_STATE);
}

/* ---- arrays */
static void dt__ps_buf_leave(dt_ps *ps, dt__ps_buf *b) /* a reader has ended */
{
    if (--b->readers || !b->old) return;
    dt_comm_dealloc(ps->c, b->p);
    DT_COMM_FREE(b);
}
static dt__ps_buf *dt__ps_buf_new(dt_ps *ps, size_t n)
{
    dt__ps_buf *b = (dt__ps_buf *)dt__comm_zeroed(1, sizeof *b);
    if (b && !(b->p = dt_comm_alloc(ps->c, n))) {
        DT_COMM_FREE(b);
        b = NULL;
    }
    return b;
}
static void dt__ps_buf_free(dt_ps *ps, dt__ps_buf *b)
{
    if (!b) return;
    b->old = true;
    b->readers++;
    dt__ps_buf_leave(ps, b);
}
static void dt__ps_held_free(dt_ps *ps, dt__ps_held *h)
{
    if (!h) return;
    dt__ps_buf_free(ps, h->buf);
    for (int i = 0; i < DT_PS_STATES; i++) dt_comm_dealloc(ps->c, h->part.state[i]);
    dt_comm_dealloc(ps->c, h->mean);
    DT_COMM_FREE(h);
}
/* Workers may still be reading the values: then the update goes to a copy. */
static bool dt__ps_writable(dt_ps *ps, dt__ps_held *h)
{
    size_t      n = (size_t)h->part.n * dt__elem_nbytes(h->part.dtype);
    dt__ps_buf *b = h->buf;
    if (!b->readers) return true;
    dt__ps_buf *fresh = dt__ps_buf_new(ps, n);
    if (!fresh) return false;
    if (h->rule != DT_PS_ASSIGN) memcpy(fresh->p, b->p, n);
    b->old = true;
    h->buf = fresh;
    h->part.value = fresh->p;
    return true;
}
/* Pushes may be read in the memory of other threads, unless the communicator is tolerant. When it fails, those threads wait for the
   end of this before they return. */
static bool dt__ps_touch(dt_ps *ps) { return !ps->c->shared || ps->c->members || dt__shared_touch((dt__shared *)ps->c->shared); }
static void dt__ps_untouch(dt_ps *ps)
{
    if (ps->c->shared && !ps->c->members) dt__shared_leave((dt__shared *)ps->c->shared);
}
/* Updates a part: block by block, so that what is added up, updated and given to workers stays in the cache meanwhile. to: where
   workers of this machine want the new values. */
enum { DT__PS_BLOCK = 65536, DT__PS_PAST = 1 << 20 }; /* bytes: of a block; of a part that is written past the caches */
static bool dt__ps_among(const char *p, const char *const *list, int n)
{
    int i = 0;
    while (i < n && list[i] != p) i++;
    return i < n;
}
static void dt__ps_mean(float *sum, const char *const *src, size_t offset, const float *weight, int nsrc, bool equal, int64_t m) /* of m elements */
{
    if (!equal) {
        memset(sum, 0, (size_t)m * sizeof *sum);
        for (int i = 0; i < nsrc; i++) {
            const float *x = (const float *)(const void *)(src[i] + offset);
            for (int64_t k = 0; k < m; k++) sum[k] += weight[i] * x[k];
        }
        return;
    }
    const void *from[64];
    void       *dst = sum;
    int         i = 0, nfrom = 0;
    do { /* at most 64 at a time: the sum so far is then the first of the next */
        while (i < nsrc && nfrom < 64) from[nfrom++] = src[i++] + offset;
        if (nfrom == 1) memmove(sum, from[0], (size_t)m * sizeof *sum);
        else dt__reduce_many(DT_COMM_F32, DT_COMM_SUM, &dst, 1, from, nfrom, m);
        from[0] = sum;
        nfrom = 1;
    } while (i < nsrc);
    if (weight[0] != 1)
        for (int64_t k = 0; k < m; k++) sum[k] *= weight[0];
}
/* mean: that of the pushes, if it was computed before; then src is not used. */
static int dt__ps_apply_part(dt_ps *ps, dt__ps_held *h, const char *const *src, const float *weight, int nsrc, bool equal, const float *mean,
                             char *const *to, int nto)
{
    const void *from[64];
    void       *dst[65];
    int64_t     n = h->part.n, block = DT__PS_BLOCK / (int64_t)dt__elem_nbytes(h->part.dtype), m;
    size_t      size = dt__elem_nbytes(h->part.dtype);
    bool        update = h->rule == DT_PS_UPDATE, past = (size_t)n * size >= DT__PS_PAST;
    int         rc = 0;
    int64_t     count = h->count;
    if (h->whole && block < n) block = n;
    if (!dt__ps_writable(ps, h)) return dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory for key %d", h->part.key);
    if ((update || past) && block > ps->nsum) {
        float *p = (float *)dt_comm_alloc(ps->c, (size_t)block * sizeof(int64_t));
        if (!p) return dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory for an update of key %d", h->part.key);
        dt_comm_dealloc(ps->c, ps->sum);
        ps->sum = p;
        ps->nsum = block;
    }
    for (int64_t at = 0; at < n && !rc; at += m) {
        m = n - at < block ? n - at : block;
        size_t offset = (size_t)at * size, bytes = (size_t)m * size;
        char  *value = (char *)h->part.value + offset;
        if (!dt__ps_touch(ps)) return dt__comm_bad(DT_COMM_ERR_STATE, "the communicator has failed");
        if (update && !mean) dt__ps_mean(ps->sum, src, offset, weight, nsrc, equal, m);
        if (!update) { /* at most 64 at a time: the sum so far is then the first of the next */
            int  i = 0, nfrom = 0, ndst = 1;
            bool last = false;
            dst[0] = past ? (char *)ps->sum : value;
            if (h->rule == DT_PS_SUM) from[nfrom++] = value;
            while (!last) {
                while (i < nsrc && nfrom < 64) from[nfrom++] = src[i++] + offset;
                last = i == nsrc;
                for (int k = 0; last && k < nto; k++)
                    if (!past || dt__ps_among(to[k], src, nsrc)) dst[ndst++] = to[k] + offset;
                if (nfrom == 1 && ndst == 1) memmove(dst[0], from[0], bytes);
                else dt__reduce_many(h->part.dtype, DT_COMM_SUM, dst, ndst, from, nfrom, m);
                from[0] = dst[0];
                nfrom = 1;
            }
        }
        if (!update && past) {
            dt__copy_past(value, (const char *)ps->sum, bytes);
            for (int k = 0; k < nto; k++)
                if (!dt__ps_among(to[k], src, nsrc)) dt__copy_past(to[k] + offset, (const char *)ps->sum, bytes);
        }
        if (!update) {
            dt__ps_untouch(ps);
            continue;
        }
        dt_ps_part part = h->part;
        part.copy = ps->main != NULL;
        part.at += at;
        part.n = m;
        part.value = value;
        for (int i = 0; i < DT_PS_STATES; i++)
            if (part.state[i]) part.state[i] += at;
        h->count = count; /* every block begins with the same */
        rc = ps->fn(&part, mean ? mean + at : ps->sum, ps->user);
        for (int k = 0; k < nto && !rc; k++)
            if (past) dt__copy_past(to[k] + offset, value, bytes);
            else memcpy(to[k] + offset, value, bytes);
        dt__ps_untouch(ps);
    }
    return rc;
}

/* ---- memory of pushes that are not read where they are. The next push of the same array has the same length, and malloc would get a
   large area from the kernel each time, page by page. So areas of DT__PS_AREA bytes and more are kept: DT__PS_AREAS of them, with
   together no more than half of the memory for messages. Those that nobody uses for one to two seconds are freed (dt__ps_tick). */
static int64_t dt__ps_limit(const dt_ps *ps) { return ps->c->opts.message_memory > 0 ? ps->c->opts.message_memory : INT64_C(1) << 28; }
static char *dt__ps_area_take(dt_ps *ps, int i)
{
    char *p = ps->area[i].p;
    ps->kept -= ps->area[i].n;
    ps->nareas--;
    memmove(ps->area + i, ps->area + i + 1, (size_t)(ps->nareas - i) * sizeof *ps->area);
    return p;
}
static char *dt__ps_area_new(dt_ps *ps, int64_t n)
{
    for (int i = ps->nareas - 1; i >= 0; i--)
        if (ps->area[i].n == n) return dt__ps_area_take(ps, i);
    return (char *)DT_COMM_MALLOC(n ? (size_t)n : 1);
}
static void dt__ps_timer(dt_ps *ps);
static void dt__ps_area_free(dt_ps *ps, char *p, int64_t n)
{
    int64_t most = dt__ps_limit(ps) / 2;
    if (!p || n < DT__PS_AREA || n > most || ps->closing) {
        DT_COMM_FREE(p);
        return;
    }
    while (ps->nareas == DT__PS_AREAS || n > most - ps->kept) DT_COMM_FREE(dt__ps_area_take(ps, 0));
    dt__ps_area *a = &ps->area[ps->nareas++];
    a->p = p;
    a->n = n;
    a->old = false;
    ps->kept += n;
    dt__ps_timer(ps);
}
static void dt__ps_areas_end(dt_ps *ps, bool all) /* of all, or of those that were not used since the last call */
{
    for (int i = ps->nareas - 1; i >= 0; i--)
        if (all || ps->area[i].old) DT_COMM_FREE(dt__ps_area_take(ps, i));
        else ps->area[i].old = true;
}

/* ---- requests */
static void dt__ps_input_free(dt_ps *ps, dt__ps_input *in)
{
    if (in->work) return; /* own and view are in use; dt__ps_part_came frees them */
    dt__ps_area_free(ps, in->own, in->nown);
    in->own = NULL;
    in->data = NULL;
    if (in->view.data || in->view.dt__hold || in->view.dt__id) dt_comm_view_free(ps->c, &in->view);
    memset(&in->view, 0, sizeof in->view);
    ps->viewed -= in->viewed;
    in->viewed = 0;
}
static void dt__ps_request_free(dt_ps *ps, dt__ps_request *r) /* it is in no list */
{
    for (int i = 0; i < r->head.nparts; i++) dt__ps_input_free(ps, &r->in[i]);
    if (r->q) dt_request_refuse(r->q, "the parameter server has ended");
    DT_COMM_FREE(r->in);
    DT_COMM_FREE(r);
}
static dt__ps_request *dt__ps_find(dt__ps_group *g, int worker, int64_t seq)
{
    dt__ps_request *r = g->request[worker];
    while (r && r->head.seq != seq) r = r->next;
    return r;
}
static void dt__ps_tidy(dt_ps *ps, dt__ps_group *g, int worker) /* frees the first requests, if nothing is left to do */
{
    dt__ps_request *r;
    while ((r = g->request[worker]) != NULL && r->done && r->staged && !r->q && !r->missing) {
        g->request[worker] = r->next;
        dt__ps_request_free(ps, r);
    }
}
/* Nothing more is done with a request: its receives end, it is refused unless it is answered. It stays in its list. */
static void dt__ps_drop(dt_ps *ps, dt__ps_request *r, const char *why)
{
    dt_request *q = r->q;
    r->q = NULL;
    r->done = true;
    r->missing++; /* it stays while its receives end */
    for (int i = 0; i < r->head.nparts; i++)
        if (r->in[i].work) dt_work_cancel(r->in[i].work);
    r->missing--;
    for (int i = 0; i < r->head.nparts; i++) dt__ps_input_free(ps, &r->in[i]);
    if (q) dt_request_refuse(q, why);
}
typedef struct dt__ps_sending { dt_ps *ps; dt__ps_buf *buf; } dt__ps_sending;
static void dt__ps_sent(void *user, int status)
{
    dt__ps_sending *s = (dt__ps_sending *)user;
    (void)status;
    dt__ps_buf_leave(s->ps, s->buf);
    dt__ps_count(s->ps, -1);
    DT_COMM_FREE(s);
}
static bool dt__ps_send(dt_ps *ps, int rank, int tag, dt__ps_buf *buf, int64_t nbytes)
{
    dt__ps_sending *s = (dt__ps_sending *)DT_COMM_MALLOC(sizeof *s);
    dt_msg_opts     o = DT__NO_OPTIONS;
    if (!s) return false;
    o.tag = tag;
    o.timeout = ps->timeout;
    s->ps = ps;
    s->buf = buf;
    s->buf->readers++;
    dt__ps_count(ps, 1);
    dt_work *w = dt_comm_send_start_with(ps->c, buf->p, nbytes, DT_COMM_U8, rank, o);
    if (w) dt_work_then(w, dt__ps_sent, s);
    else dt__ps_sent(s, DT_COMM_ERR_STATE);
    return w != NULL;
}
static bool dt__ps_later(dt_ps *ps, dt_request *q, int tag, dt__ps_buf *buf, int64_t nbytes, bool *ok);
static bool dt__ps_value(dt_ps *ps, dt_request *q, int tag, dt__ps_held *h) /* values for the worker that asks; a copy keeps them for later */
{
    int64_t nbytes = h->part.n * (int64_t)dt__elem_nbytes(h->part.dtype);
    bool    ok = true;
    return ps->rep && dt__ps_later(ps, q, tag, h->buf, nbytes, &ok) ? ok : dt__ps_send(ps, q->from, tag, h->buf, nbytes);
}
static int dt__ps_next_tag(dt_ps *ps) /* the messages of a rank, as server and as worker, have tags of their own */
{
    return ps->base + DT__PS_DATA + (__atomic_fetch_add(ps->main ? &ps->main->tag : &ps->tag, 1, __ATOMIC_RELAXED) & ((1 << 27) - 1));
}
typedef struct dt__ps_answer_head { dt_ps_info info; int32_t nparts, zero; } dt__ps_answer_head;
static size_t dt__ps_up8(size_t n) { return (n + 7) & ~(size_t)7; }
static void   dt__ps_free_it(void *p) { DT_COMM_FREE(p); }
static void   dt__ps_reply(dt_ps *ps, dt__ps_request *r, const dt_ps_info *info, bool values)
{
    int    n = values ? r->head.nparts : 0;
    size_t total = sizeof(dt__ps_answer_head) + (size_t)n * sizeof(dt__ps_wire), at = total;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)r->in[i].held->part.n * dt__elem_nbytes(r->in[i].held->part.dtype);
        if (bytes <= DT__PS_INLINE && !r->in[i].there) total += dt__ps_up8(bytes);
    }
    char               *buf = (char *)DT_COMM_MALLOC(total);
    dt__ps_answer_head *head = (dt__ps_answer_head *)(void *)buf;
    dt_request         *q = r->q;
    r->q = NULL;
    if (!buf) {
        dt_request_refuse(q, "the server is out of memory");
        return;
    }
    memset(head, 0, sizeof *head);
    head->info = *info;
    head->nparts = n;
    for (int i = 0; i < n; i++) {
        dt__ps_held *h = r->in[i].held;
        dt__ps_wire *w = (dt__ps_wire *)(void *)(buf + sizeof *head) + i;
        memset(w, 0, sizeof *w);
        w->key = h->part.key;
        w->dtype = h->part.dtype;
        w->at = h->part.at;
        w->n = h->part.n;
        w->nbytes = h->part.n * (int64_t)dt__elem_nbytes(w->dtype);
        w->tag = DT__PS_FOLLOWS;
        if (r->in[i].there) w->tag = DT__PS_THERE;
        else if (w->nbytes > DT__PS_INLINE) w->tag = dt__ps_next_tag(ps);
        else {
            memcpy(buf + at, h->part.value, (size_t)w->nbytes);
            memset(buf + at + w->nbytes, 0, dt__ps_up8((size_t)w->nbytes) - (size_t)w->nbytes);
            at += dt__ps_up8((size_t)w->nbytes);
        }
        if (w->tag >= 0 && !dt__ps_value(ps, q, w->tag, h)) {
            DT_COMM_FREE(buf);
            dt_request_refuse(q, "the server is out of memory");
            return;
        }
    }
    dt_reply_opts o = DT__NO_OPTIONS;
    o.done = dt__ps_free_it;
    o.user = buf;
    dt_request_reply_with(q, buf, (int64_t)total, o);
}
/* The push of a request stays after its answer, or its group waits: it must not lie in the worker's memory any more. */
static bool dt__ps_keep(dt_ps *ps, dt__ps_request *r)
{
    for (int i = 0; i < r->head.nparts; i++) {
        dt__ps_input *in = &r->in[i];
        if (!in->data || in->own) continue;
        char *own = dt__ps_area_new(ps, in->wire.nbytes);
        if (!own) return false;
        for (int64_t at = 0, step = 1 << 20; at < in->wire.nbytes && dt__ps_touch(ps); at += step) { /* not touched: the communicator has failed */
            memcpy(own + at, in->data + at, (size_t)(in->wire.nbytes - at < step ? in->wire.nbytes - at : step));
            dt__ps_untouch(ps);
        }
        dt__ps_input_free(ps, in);
        in->own = own;
        in->nown = in->wire.nbytes;
        in->data = own;
    }
    return true;
}
/* How many bytes the push of n elements has. */
static int64_t dt__ps_nbytes(const dt_codec *codec, int64_t n, int dtype)
{
    return !codec->kind ? n * (int64_t)dt__elem_nbytes(dtype) : n ? dt_codec_bound(codec, n) : 0;
}
/* The push of a part has come: it is decoded, if its group has a codec. A part with elements and no bytes is -0. Returns 0, or negative
   after dt__comm_bad; then nothing has changed. */
static int dt__ps_decode(dt_ps *ps, const dt_codec *codec, dt__ps_input *in)
{
    int64_t n = in->wire.n, nbytes = n * (int64_t)sizeof(float);
    int     rc = 0;
    if (!codec->kind || !n) return 0;
    float *out = (float *)(void *)dt__ps_area_new(ps, nbytes);
    if (!out) return dt__comm_bad(DT_COMM_ERR_MEMORY, "the server is out of memory");
    if (!in->wire.nbytes)
        for (int64_t i = 0; i < n; i++) out[i] = -0.0f;
    else if (!dt__ps_touch(ps)) rc = dt__comm_bad(DT_COMM_ERR_STATE, "the communicator has failed");
    else {
        rc = dt_codec_decode(codec, in->data, in->wire.nbytes, out, n, false);
        dt__ps_untouch(ps);
    }
    if (rc) {
        dt__ps_area_free(ps, (char *)out, nbytes);
        return rc;
    }
    dt__ps_input_free(ps, in); /* what has come */
    in->own = (char *)out;
    in->nown = nbytes;
    in->data = in->own;
    return 0;
}
static void dt__ps_group_fail(dt_ps *ps, dt__ps_group *g, const char *why);
static void dt__ps_run(dt_ps *ps, dt__ps_group *g);
static void dt__ps_alone_end(dt_ps *ps, dt__ps_group *g, int worker, const char *why);
static void dt__ps_barrier_look(dt_ps *ps);
static void dt__ps_barrier_passed(dt_ps *ps, dt__ps_group *g, int status);
static void dt__ps_outer_call(dt_ps *ps, dt__ps_group *g, int server, int tag, int what, void (*fn)(dt_ps *ps, dt__ps_group *g, int status));
static void dt__ps_end(dt_ps *ps);
static int  dt__ps_replay_load(dt_ps *ps, dt__ps_group *g);
static dt_reply_opts dt__ps_no_reply(void)
{
    dt_reply_opts o = DT__NO_OPTIONS;
    return o;
}

/* ---- what the coordinator says is done */
/* What was pushed for array k of the group, and its weights. False: the group has failed. */
static bool dt__ps_sources(dt_ps *ps, dt__ps_group *g, int k, const dt__ps_push *push, int n, const char **src, float *weight, bool *equal)
{
    const dt__ps_held *h = g->held[k];
    *equal = true;
    for (int i = 0; i < n; i++) {
        dt__ps_request *r = dt__ps_find(g, push[i].learner, push[i].seq);
        int             p = r && k < r->head.nparts && r->in[k].held == h ? k : 0; /* mostly the same order */
        while (r && p < r->head.nparts && r->in[p].held != h) p++;
        if (!r || p == r->head.nparts || !r->in[p].data || r->done) {
            dt__ps_group_fail(ps, g, "an update of a push that this server does not have");
            return false;
        }
        src[i] = r->in[p].data;
        weight[i] = push[i].weight;
        *equal = *equal && weight[i] == weight[0];
    }
    return true;
}
/* next: what comes after the update. Workers that are answered then, and whose memory this server can write, get their values now. */
static void dt__ps_do_apply(dt_ps *ps, dt__ps_group *g, const dt__ps_push *push, int n, int64_t version, bool measured, const dt__ps_act *next, int nnext)
{
    dt__ps_request *given[64];
    char           *to[64];
    int             ngiven = 0, nto;
    const char *few[64], **src = few;
    float       some[64], *weight = some;
    bool        equal = true;
    if (g->bad[0]) return;
    if (n > 64) {
        src = (const char **)DT_COMM_MALLOC((size_t)n * sizeof *src);
        weight = (float *)DT_COMM_MALLOC((size_t)n * sizeof *weight);
    }
    if (!src || !weight) dt__ps_group_fail(ps, g, "out of memory");
    for (int i = 0; i < nnext && next[i].kind != DT__PS_APPLY && ngiven < 64; i++) {
        dt__ps_request *r = next[i].kind == DT__PS_ANSWER && next[i].info.fresh ? dt__ps_find(g, next[i].learner, next[i].seq) : NULL;
        bool used = r && !(r->head.flags & DT__PS_HAS_PUSH); /* else its push may lie where the values are wanted */
        for (int k = 0; r && k < n && !used; k++) used = push[k].learner == next[i].learner && push[k].seq == next[i].seq;
        if (r && r->q && r->head.flags & DT__PS_WANTS && used) given[ngiven++] = r;
    }
    for (int k = 0; k < g->nheld && !g->bad[0]; k++) {
        dt__ps_held *h = g->held[k];
        if (!dt__ps_sources(ps, g, k, push, n, src, weight, &equal)) break;
        nto = 0;
        for (int i = 0; i < ngiven; i++)
            for (int p = 0; p < given[i]->head.nparts; p++) {
                dt__ps_input *in = &given[i]->in[p];
                if (in->held != h || !in->to) continue;
                to[nto++] = in->to;
                in->there = true;
            }
        h->part.version = version - 1;
        if (dt__ps_apply_part(ps, h, src, weight, n, equal, measured && h->rule == DT_PS_UPDATE ? h->mean : NULL, to, nto)) {
            char text[400];
            snprintf(text, sizeof text, "the update of key %d on server %d failed: %.250s", h->part.key, ps->server,
                     dt_comm_error(NULL) ? dt_comm_error(NULL) : "the function returned an error");
            dt__ps_group_fail(ps, g, text);
        }
        h->part.version = version;
    }
    if (src != few) DT_COMM_FREE(src);
    if (weight != some) DT_COMM_FREE(weight);
    for (int i = 0; i < n; i++) {
        dt__ps_request *r = dt__ps_find(g, push[i].learner, push[i].seq);
        if (!r) continue;
        r->done = true;
        for (int p = 0; p < r->head.nparts; p++) dt__ps_input_free(ps, &r->in[p]);
        dt__ps_tidy(ps, g, push[i].learner);
    }
}
static void dt__ps_do_answer(dt_ps *ps, dt__ps_group *g, const dt__ps_act *a)
{
    dt__ps_request *r = dt__ps_find(g, a->learner, a->seq);
    if (!r) return;
    if (!(r->head.flags & DT__PS_HAS_PUSH)) r->done = true;
    if (r->q) {
        if (!r->done && !dt__ps_keep(ps, r)) {
            dt__ps_group_fail(ps, g, "out of memory for a push"); /* r is gone now */
            return;
        }
        dt__ps_reply(ps, r, &a->info, (r->head.flags & DT__PS_WANTS) && a->info.fresh);
    }
    dt__ps_tidy(ps, g, a->learner);
}
static void dt__ps_do_drop(dt_ps *ps, dt__ps_group *g, int worker, int64_t seq)
{
    dt__ps_request *r = dt__ps_find(g, worker, seq);
    if (!r) return;
    r->done = true;
    for (int p = 0; p < r->head.nparts; p++) dt__ps_input_free(ps, &r->in[p]);
    dt__ps_tidy(ps, g, worker);
}
static void dt__ps_do_take(dt_ps *ps, dt__ps_group *g, const dt__ps_act *a)
{
    dt__ps_request *r = dt__ps_find(g, a->learner, a->seq);
    if (!r || !r->q) return;
    if (!r->done && !dt__ps_keep(ps, r)) dt__ps_group_fail(ps, g, "out of memory for a push"); /* r is gone now */
    else {
        dt__ps_reply(ps, r, &a->info, false);
        dt__ps_tidy(ps, g, a->learner);
    }
}
static void dt__ps_do_refuse(dt_ps *ps, dt__ps_group *g, int worker, int64_t seq)
{
    dt__ps_request *r = dt__ps_find(g, worker, seq);
    if (!r) return;
    dt__ps_drop(ps, r, "another server has refused this call, or has not got it");
    dt__ps_tidy(ps, g, worker);
}
/* A worker has gone: its requests after seq, which the coordinator has not counted, are forgotten. */
static void dt__ps_do_forget(dt_ps *ps, dt__ps_group *g, int worker, int64_t seq)
{
    if (!g->here) g->fed[worker] = INT64_MAX; /* this server may not have noticed yet */
    for (dt__ps_request *r = g->request[worker]; r; r = r->next) {
        dt_request *q = r->q;
        if (r->head.seq > seq || !(r->head.flags & DT__PS_HAS_PUSH)) {
            r->staged = true;
            dt__ps_drop(ps, r, "this worker has gone");
        } else if (q) {
            if (!r->done && !dt__ps_keep(ps, r)) {
                dt__ps_group_fail(ps, g, "out of memory for a push");
                break;
            }
            r->q = NULL;
            dt_request_refuse(q, "this worker has gone");
        }
    }
    dt__ps_tidy(ps, g, worker);
}
static void dt__ps_group_told(dt_ps *ps, const dt__ps_group *g, int server, int tag) /* that it has failed */
{
    dt__ps_head *h = (dt__ps_head *)dt__ps_letter_new(ps, sizeof *h + sizeof g->bad);
    if (!h) return;
    memset(h, 0, sizeof *h);
    h->magic = DT__PS_MAGIC;
    h->group = g->id;
    h->flags = DT__PS_BAD;
    memcpy(h + 1, g->bad, sizeof g->bad);
    dt__ps_tell(ps, ps->server_rank[server], tag, h, sizeof *h + sizeof g->bad);
}
static void dt__ps_group_fail(dt_ps *ps, dt__ps_group *g, const char *why)
{
    if (!g->bad[0]) {
        snprintf(g->bad, sizeof g->bad, "%s", why && *why ? why : "it failed");
        if (!g->here && !(ps->dead >> g->coordinator & 1)) dt__ps_group_told(ps, g, g->coordinator, DT__PS_STAGED); /* which tells the others */
        for (int s = 0; g->here && s < ps->nservers; s++)
            if (s != ps->server && g->servers >> s & 1 && !(ps->dead >> s & 1)) dt__ps_group_told(ps, g, s, DT__PS_ORDER);
    }
    for (int i = 0; i < ps->nworkers; i++) {
        for (dt__ps_request *r = g->request[i]; r; r = r->next) {
            r->staged = true;
            dt__ps_drop(ps, r, g->bad);
        }
        dt__ps_tidy(ps, g, i);
        dt__ps_alone_end(ps, g, i, g->bad);
    }
    if (g->pause == DT__PS_FOR_TOTAL) g->pause = 0; /* an exchange of the machine ends by itself */
    dt__ps_run(ps, g); /* what waits finds nothing to do */
    dt__ps_over_look(ps);
}
/* Does what the coordinator of g, on this server, has decided; and tells the other servers. */
static void dt__ps_carry_out(dt_ps *ps, dt__ps_group *g)
{
    dt__ps_coord *d = &g->coord;
    size_t        n = sizeof(dt__ps_head) + (size_t)d->nacts * sizeof *d->act + (size_t)d->nused * sizeof *d->used;
    if (d->stats.version != d->version) {
        d->stats.last = dt__comm_now();
        if (!d->stats.version) d->stats.first = d->stats.last;
        d->stats.version = d->version;
    }
    for (int i = 0; i < d->nacts; i++)
        if (d->act[i].kind == DT__PS_APPLY) d->act[i].seq = ps->measure != NULL;
    for (int s = 0; s < ps->nservers && !g->bad[0]; s++) {
        if (s == ps->server || !(g->servers >> s & 1)) continue;
        dt__ps_head *h = (dt__ps_head *)dt__ps_letter_new(ps, n);
        if (!h) break;
        memset(h, 0, sizeof *h);
        h->magic = DT__PS_MAGIC;
        h->group = g->id;
        h->nparts = d->nacts;
        h->what = d->nused;
        memcpy(h + 1, d->act, (size_t)d->nacts * sizeof *d->act);
        if (d->nused) memcpy((char *)(h + 1) + (size_t)d->nacts * sizeof *d->act, d->used, (size_t)d->nused * sizeof *d->used);
        dt__ps_tell(ps, ps->server_rank[s], DT__PS_ORDER, h, n);
    }
}
static void dt__ps_cancel(dt_ps *ps, dt__ps_group *g, const dt__ps_act *a) /* by the coordinator's server */
{
    if (ps->gone[a->learner]) return; /* after its farewell nobody there would take the call */
    dt__ps_head *h = (dt__ps_head *)dt__ps_letter_new(ps, sizeof *h);
    if (!h) return;
    memset(h, 0, sizeof *h);
    h->magic = DT__PS_MAGIC;
    h->group = g->id;
    h->version = a->version;
    dt__ps_tell(ps, ps->worker_rank[a->learner], DT__PS_NOTICE, h, sizeof *h);
}
/* ---- updates in two steps (dt_ps_on_measure). A server that comes to an update computes the means of the pushes and its number, tells
   it to the coordinator, and pauses: what else is to be done waits. The coordinator adds the numbers of all servers of the group
   and tells them the sum; then they make the update and go on. If a server dies meanwhile, the group fails, which ends the pause. */
static void dt__ps_measured(dt_ps *ps, dt__ps_group *g, int server, double x);
static double dt__ps_measure(dt_ps *ps, dt__ps_group *g, const dt__ps_push *push, int n, int64_t version)
{
    const char *few[64], **src = few;
    float       some[64], *weight = some;
    double      sum = 0;
    bool        equal = true;
    if (n > 64) {
        src = (const char **)DT_COMM_MALLOC((size_t)n * sizeof *src);
        weight = (float *)DT_COMM_MALLOC((size_t)n * sizeof *weight);
    }
    if (!src || !weight) dt__ps_group_fail(ps, g, "out of memory");
    for (int k = 0; k < g->nheld && !g->bad[0]; k++) {
        dt__ps_held *h = g->held[k];
        int64_t      total = h->part.n, block = DT__PS_BLOCK / (int64_t)sizeof(float);
        if (h->rule != DT_PS_UPDATE || !dt__ps_sources(ps, g, k, push, n, src, weight, &equal)) continue;
        if (!h->mean && !(h->mean = (float *)dt_comm_alloc(ps->c, (size_t)(total ? total : 1) * sizeof *h->mean))) {
            dt__ps_group_fail(ps, g, "out of memory for the mean of pushes");
            break;
        }
        for (int64_t at = 0; at < total; at += block) {
            if (!dt__ps_touch(ps)) {
                dt__ps_group_fail(ps, g, "the communicator has failed");
                break;
            }
            dt__ps_mean(h->mean + at, src, (size_t)at * sizeof(float), weight, n, equal, total - at < block ? total - at : block);
            dt__ps_untouch(ps);
        }
        h->part.version = version - 1;
        if (!g->bad[0]) sum += ps->measure(&h->part, h->mean, ps->measure_user);
    }
    if (src != few) DT_COMM_FREE(src);
    if (weight != some) DT_COMM_FREE(weight);
    return sum;
}
/* Before the update of a: tells the number of this server, and pauses until the total is known. */
static void dt__ps_measure_begin(dt_ps *ps, dt__ps_group *g, const dt__ps_act *a, const dt__ps_push *used)
{
    if (g->bad[0] || !g->nheld) return;
    if ((a->seq != 0) != (ps->measure != NULL)) {
        dt__ps_group_fail(ps, g, "dt_ps_on_measure must be called on all servers, before dt_ps_init");
        return;
    }
    if (!ps->measure) return;
    double x = dt__ps_measure(ps, g, used + a->first, a->n, a->version);
    if (g->bad[0]) return;
    g->pause = DT__PS_FOR_TOTAL;
    if (g->here) {
        dt__ps_measured(ps, g, ps->server, x);
        return;
    }
    dt__ps_head *h = ps->dead >> g->coordinator & 1 ? NULL : (dt__ps_head *)dt__ps_letter_new(ps, sizeof *h + sizeof x);
    if (!h) return;
    memset(h, 0, sizeof *h);
    h->magic = DT__PS_MAGIC;
    h->group = g->id;
    h->flags = DT__PS_MEASURED;
    memcpy(h + 1, &x, sizeof x);
    dt__ps_tell(ps, ps->server_rank[g->coordinator], DT__PS_STAGED, h, sizeof *h + sizeof x);
}
static void dt__ps_totalled(dt_ps *ps, dt__ps_group *g, double total);
static void dt__ps_measured(dt_ps *ps, dt__ps_group *g, int server, double x) /* the coordinator: a server has its number */
{
    double total = 0;
    g->number[server] = x;
    g->measured |= (uint64_t)1 << server;
    if (g->bad[0] || g->servers & ~g->measured) return;
    g->measured = 0;
    for (int s = 0; s < ps->nservers; s++)
        if (g->servers >> s & 1) total += g->number[s];
    for (int s = 0; s < ps->nservers; s++) {
        if (s == ps->server || !(g->servers >> s & 1) || ps->dead >> s & 1) continue;
        dt__ps_head *h = (dt__ps_head *)dt__ps_letter_new(ps, sizeof *h + sizeof total);
        if (!h) return;
        memset(h, 0, sizeof *h);
        h->magic = DT__PS_MAGIC;
        h->group = g->id;
        h->flags = DT__PS_MEASURED;
        memcpy(h + 1, &total, sizeof total);
        dt__ps_tell(ps, ps->server_rank[s], DT__PS_ORDER, h, sizeof *h + sizeof total);
    }
    dt__ps_totalled(ps, g, total);
}
static void dt__ps_joint_begin(dt_ps *ps, dt__ps_group *g, dt__ps_order *o, const dt__ps_act *a);
static void dt__ps_do_one(dt_ps *ps, dt__ps_group *g, dt__ps_order *o) /* the act at o->at, or the first step of it */
{
    const dt__ps_act *a = &o->act[o->at];
    if (a->kind == DT__PS_APPLY && !ps->outer && !o->begun) {
        o->begun = true;
        dt__ps_measure_begin(ps, g, a, o->used);
        return;
    }
    o->begun = false;
    o->at++;
    switch (a->kind) {
    case DT__PS_APPLY:
        if (ps->outer && !g->bad[0]) dt__ps_joint_begin(ps, g, o, a);
        else dt__ps_do_apply(ps, g, o->used + a->first, a->n, a->version, a->seq != 0, a + 1, o->nacts - o->at);
        break;
    case DT__PS_ANSWER: dt__ps_do_answer(ps, g, a); break;
    case DT__PS_DROP: dt__ps_do_drop(ps, g, a->learner, a->seq); break;
    case DT__PS_FORGET: dt__ps_do_forget(ps, g, a->learner, a->seq); break;
    case DT__PS_REFUSE: dt__ps_do_refuse(ps, g, a->learner, a->seq); break;
    case DT__PS_TAKE: dt__ps_do_take(ps, g, a); break;
    case DT__PS_CANCEL: if (g->here) dt__ps_cancel(ps, g, a); break;
    default: break;
    }
}
static void dt__ps_order_free(dt__ps_order *o)
{
    DT_COMM_FREE(o->act);
    DT_COMM_FREE(o->used);
    DT_COMM_FREE(o);
}
/* Does the orders of a group until one pauses, or none is left. */
static void dt__ps_run(dt_ps *ps, dt__ps_group *g)
{
    if (g->runs) return;
    g->runs = true;
    while (g->order && !g->pause) {
        dt__ps_order *o = g->order;
        if (o->at < o->nacts) {
            dt__ps_do_one(ps, g, o);
            continue;
        }
        g->order = o->next;
        dt__ps_order_free(o);
    }
    g->runs = false;
}
static void dt__ps_pump(dt_ps *ps, dt__ps_group *g);
static void dt__ps_go_on(dt_ps *ps, dt__ps_group *g) /* a pause has ended */
{
    if (g->runs) return; /* it goes on by itself */
    dt__ps_run(ps, g);
    if (g->here) dt__ps_pump(ps, g);
    dt__ps_over_look(ps);
}
/* New acts come after those that wait. This takes act and used, also if it fails. */
static void dt__ps_do(dt_ps *ps, dt__ps_group *g, dt__ps_act *act, int nacts, dt__ps_push *used)
{
    dt__ps_order **p = &g->order, *o = (dt__ps_order *)dt__comm_zeroed(1, sizeof *o);
    if (!o) {
        DT_COMM_FREE(act);
        DT_COMM_FREE(used);
        dt__ps_group_fail(ps, g, "out of memory");
        return;
    }
    o->act = act;
    o->nacts = nacts;
    o->used = used;
    while (*p) p = &(*p)->next;
    *p = o;
    dt__ps_run(ps, g);
}
static void dt__ps_totalled(dt_ps *ps, dt__ps_group *g, double total) /* the update that waits has its total */
{
    if (g->pause != DT__PS_FOR_TOTAL) return;
    for (int k = 0; k < g->nheld; k++) g->held[k]->part.measured = total;
    g->pause = 0;
    dt__ps_go_on(ps, g);
}
static void dt__ps_line_drop(dt__ps_group *g, int worker) /* the first of its lines */
{
    dt__ps_line *t = g->line[worker];
    g->line[worker] = t->next;
    if (t->head.seq > g->fed[worker]) g->fed[worker] = t->head.seq;
    DT_COMM_FREE(t);
}
/* A server reports the requests of a worker in their order. So if it has reported a later one, it will not have this one. */
static bool dt__ps_lost(const dt__ps_group *g, const dt__ps_line *t)
{
    uint64_t later = g->left[t->head.worker];
    for (const dt__ps_line *n = t->next; n; n = n->next) later |= n->staged;
    return (t->head.servers & ~t->staged & ~later) == 0;
}
/* Does the coordinator get something of this worker? Then its answers come first: the same order on all servers. */
static bool dt__ps_feed(dt_ps *ps, dt__ps_group *g, int w)
{
    dt__ps_coord *d = &g->coord;
    dt__ps_line  *t = g->line[w];
    if (!t) {
        if (!ps->gone[w] || d->learner[w].state == DT__PS_OUT || (g->servers & ~g->left[w])) return false;
        dt__ps_coord_leave(d, w);
        return true;
    }
    bool whole = t->staged == t->head.servers;
    if (whole ? t->refused || t->head.version > d->version : dt__ps_lost(g, t)) {
        dt__ps_act *a = dt__ps_act_add(d, DT__PS_REFUSE, w);
        if (a) a->seq = t->head.seq;
        dt__ps_line_drop(g, w);
        return true;
    }
    if (whole && d->learner[w].fresh) dt__ps_coord_join(d, w);
    if (!whole || d->learner[w].state != DT__PS_RUNS) return false;
    dt__ps_head h = t->head;
    dt__ps_line_drop(g, w);
    if (!(h.flags & DT__PS_HAS_PUSH)) {
        dt__ps_coord_pull(d, w, h.seq);
        return true;
    }
    d->learner[w].workers = h.what ? h.what : 1;
    dt__ps_coord_push(d, w, h.seq, h.version);
    if (g->codec.kind && !(h.flags & DT__PS_WANTS)) {
        dt__ps_act *a = dt__ps_act_add(d, DT__PS_TAKE, w);
        if (!a) return true;
        a->seq = h.seq;
        a->info.verdict = d->learner[w].verdict;
        a->info.version = h.version;
        a->info.batch = -1;
        a->info.k = d->k;
    }
    return true;
}
static bool dt__ps_all_left(dt_ps *ps, const dt__ps_group *g)
{
    if (ps->ngone < ps->nworkers) return false;
    for (int w = 0; w < ps->nworkers; w++)
        if (ps->gone[w] != DT__PS_NOT_YET && (g->servers & ~g->left[w])) return false;
    return true;
}
static void dt__ps_joint_look(dt_ps *ps, dt__ps_group *g);
/* Workers that wait until the others have pushed: see dt__ps_enter. */
static void dt__ps_alone_end(dt_ps *ps, dt__ps_group *g, int worker, const char *why)
{
    dt_request *q = g->alone ? g->alone[worker] : NULL;
    if (!q) return;
    g->alone[worker] = NULL;
    (void)ps;
    dt_request_refuse(q, why);
}
static void dt__ps_alone_look(dt__ps_group *g)
{
    dt__ps_coord *d = &g->coord;
    int           asks = 0;
    if (!g->alone || g->bad[0]) return;
    for (int i = 0; i < d->nlearners; i++) asks += g->alone[i] && d->learner[i].state == DT__PS_RUNS;
    for (int i = 0; d->nruns <= asks && i < d->nlearners; i++) {
        dt_request *q = g->alone[i];
        g->alone[i] = NULL;
        if (q) dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    }
}
/* Gives the coordinator what has come, and does what it says, until nothing more happens. */
static void dt__ps_pump(dt_ps *ps, dt__ps_group *g)
{
    dt__ps_coord *d = &g->coord;
    if (g->busy || g->pause == DT__PS_FOR_EXCHANGE) return;
    g->busy = true;
    for (bool more = true; more;) {
        more = false;
        for (int w = 0; w < ps->nworkers && !g->bad[0] && !more; w++) more = dt__ps_feed(ps, g, w);
        if (!more && !g->bad[0] && dt__ps_all_left(ps, g)) /* those whom the rest waits for have left */
            for (int w = 0; w < ps->nworkers; w++) {
                while (g->line[w]) dt__ps_line_drop(g, w);
                dt__ps_coord_leave(d, w);
            }
        if ((d->memory || d->differs) && !g->bad[0])
            dt__ps_group_fail(ps, g, d->memory ? "the coordinator is out of memory" : "replay: the workers do not push what the log says");
        if (!d->nacts) continue;
        dt__ps_carry_out(ps, g);
        /* acts may be added while these are done */
        dt__ps_act  *act = d->act;
        dt__ps_push *used = d->used;
        int          nacts = d->nacts;
        d->act = NULL;
        d->used = NULL;
        d->nacts = d->act_cap = d->nused = d->used_cap = 0;
        dt__ps_do(ps, g, act, nacts, used);
        more = g->pause != DT__PS_FOR_EXCHANGE; /* the machine's next version is not known yet */
    }
    g->busy = false;
    if (g->pause == DT__PS_FOR_EXCHANGE) return;
    dt__ps_alone_look(g);
    if (ps->outer) dt__ps_joint_look(ps, g);
    if (ps->ngone == ps->nworkers) dt__ps_over_look(ps);
}

/* ---- logs of updates. A server writes FILE.S, S its number: the groups that it coordinates, each with its entries. */
typedef struct dt__ps_section { char magic[8]; int32_t group, nworkers; int64_t n; } dt__ps_section;
static int dt__ps_log_path(const dt_ps *ps, const char *file, char *path, size_t n)
{
    int len = snprintf(path, n, "%s.%d", file, ps->server);
    return len > 0 && (size_t)len < n ? 0 : dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps: the path %s is too long", file);
}
static int dt__ps_log_write(dt_ps *ps)
{
    char        path[1024];
    const char *why = NULL;
    if (!ps->o.record) return 0;
    int rc = dt__ps_log_path(ps, ps->o.record, path, sizeof path);
    int fd = rc ? -1 : dt__file_create(AT_FDCWD, path, O_WRONLY | O_TRUNC, &why);
    if (rc) return dt__ps_say(ps, rc, "%s", dt_comm_error(NULL));
    if (fd < 0) return dt__ps_say(ps, DT_COMM_ERR_NET, "dt_ps_free: .record: cannot write %s: %s", path, why ? why : strerror(errno));
    FILE *f = fdopen(fd, "wb");
    bool  ok = f != NULL;
    for (dt__ps_group *g = ps->all; g && ok; g = g->next) {
        dt__ps_section s;
        if (!g->here) continue;
        memcpy(s.magic, "dtpslog1", 8);
        s.group = g->id;
        s.nworkers = ps->start;
        s.n = g->coord.replay ? g->coord.log_at : g->coord.nlog;
        ok = fwrite(&s, sizeof s, 1, f) == 1 && fwrite(g->coord.log, sizeof *g->coord.log, (size_t)s.n, f) == (size_t)s.n;
    }
    if (f && fclose(f)) ok = false;
    if (!f) close(fd);
    return ok ? 0 : dt__ps_say(ps, DT_COMM_ERR_NET, "dt_ps_free: .record: cannot write %s: %s", path, strerror(errno));
}
static int dt__ps_replay_load(dt_ps *ps, dt__ps_group *g)
{
    char           path[1024];
    dt__ps_section s;
    dt__ps_entry  *log = NULL;
    int            rc = dt__ps_log_path(ps, ps->o.replay, path, sizeof path);
    FILE          *f = rc ? NULL : fopen(path, "rb");
    bool           found = false;
    if (rc) return rc;
    if (!f) return dt__comm_bad(DT_COMM_ERR_NET, "dt_ps: .replay: cannot read %s: %s", path, strerror(errno));
    while (!found && fread(&s, sizeof s, 1, f) == 1) {
        if (memcmp(s.magic, "dtpslog1", 8) || s.n < 0 || s.n > INT64_MAX / 64) break;
        found = s.group == g->id && s.nworkers == ps->start;
        if (!found && fseek(f, (long)(s.n * (int64_t)sizeof *log), SEEK_CUR)) break;
    }
    int64_t at = found ? (int64_t)ftell(f) : 0, end = found && !fseek(f, 0, SEEK_END) ? (int64_t)ftell(f) : 0;
    if (!found || (end - at) / (int64_t)sizeof *log < s.n || fseek(f, (long)at, SEEK_SET))
        rc = dt__comm_bad(DT_COMM_ERR_NET, "dt_ps: .replay: %s has no whole log of group %d with %d workers", path, g->id, ps->start);
    if (!rc && !(log = (dt__ps_entry *)DT_COMM_MALLOC((size_t)(s.n ? s.n : 1) * sizeof *log))) rc = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_ps: .replay: out of memory");
    if (!rc && fread(log, sizeof *log, (size_t)s.n, f) != (size_t)s.n) rc = dt__comm_bad(DT_COMM_ERR_NET, "dt_ps: .replay: cannot read %s", path);
    fclose(f);
    if (!rc) rc = dt__ps_coord_replay(&g->coord, log, s.n);
    DT_COMM_FREE(log);
    return rc;
}
static dt_codec dt__ps_codec_of(const dt__ps_asks *a)
{
    dt_codec c = DT__NO_OPTIONS;
    c.kind = a->codec;
    c.ratio = a->ratio;
    c.levels = a->levels;
    c.bucket = a->bucket;
    c.seed = a->seed;
    return c;
}
static bool dt__ps_codec_ok(const dt__ps_asks *a, int64_t n) /* of a request: can it encode n elements? */
{
    dt_codec c = dt__ps_codec_of(a);
    return !c.kind || (a->array.dtype == DT_COMM_F32 && dt_codec_bound(&c, n) >= 0);
}
/* Makes the group if it is new. NULL: out of memory, or the log to be replayed cannot be read. */
static dt__ps_group *dt__ps_group_of(dt_ps *ps, const dt__ps_asks *a)
{
    int           id = a->head.group;
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, id);
    size_t        n = (size_t)ps->nworkers;
    if (g) return g;
    g = (dt__ps_group *)dt__comm_zeroed(1, sizeof *g);
    if (!g) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory");
        return NULL;
    }
    g->id = id;
    g->coordinator = a->coordinator;
    g->here = g->coordinator == ps->server;
    g->request = (dt__ps_request **)dt__comm_zeroed(n, sizeof *g->request);
    g->line = (dt__ps_line **)dt__comm_zeroed(n, sizeof *g->line);
    g->fed = (int64_t *)dt__comm_zeroed(n, sizeof *g->fed);
    dt_ps_discipline d = DT__NO_OPTIONS;
    d.mode = a->mode;
    d.k = a->k;
    d.staleness = a->staleness;
    d.max_staleness = a->max_staleness;
    d.scale_by_staleness = a->scale != 0;
    d.drop_batches = a->drop != 0;
    d.batches = a->batches;
    g->codec = dt__ps_codec_of(a);
    g->ps = ps;
    if (ps->outer) { /* the discipline is that of machines */
        dt_ps_discipline plain = DT__NO_OPTIONS;
        d = plain;
        g->codec = plain.codec;
        g->resting = (dt_request **)dt__comm_zeroed(n, sizeof *g->resting);
        g->joining = (dt_request **)dt__comm_zeroed(n, sizeof *g->joining);
    }
    g->left = (uint64_t *)dt__comm_zeroed(n, sizeof *g->left);
    bool ok = g->request && g->line && g->fed && g->left && (!ps->outer || (g->resting && g->joining)) && (!g->here || dt__ps_coord_init(&g->coord, &d, ps->start)) &&
              dt__ps_map_put(&ps->groups, id, g);
    if (!ok) dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory");
    else if (g->here && ps->o.replay && dt__ps_replay_load(ps, g)) ok = false;
    else if (g->here && !dt__ps_coord_room(&g->coord, ps->nworkers)) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory");
        ok = false;
    }
    g->coord.record = g->here && ps->o.record != NULL;
    g->coord.joint = ps->outer != NULL;
    if (!ok) {
        if (dt__ps_map_get(&ps->groups, id)) ps->groups.at[id] = NULL;
        DT_COMM_FREE(g->request);
        DT_COMM_FREE(g->line);
        DT_COMM_FREE(g->fed);
        DT_COMM_FREE(g->left);
        DT_COMM_FREE(g->resting);
        DT_COMM_FREE(g->joining);
        dt__ps_coord_free(&g->coord);
        DT_COMM_FREE(g);
        return NULL;
    }
    g->next = ps->all;
    ps->all = g;
    for (int i = 0; g->here && i < ps->nworkers; i++)
        if (ps->gone[i]) dt__ps_coord_leave(&g->coord, i);
    return g;
}
static void dt__ps_group_free(dt_ps *ps, dt__ps_group *g)
{
    for (int i = 0; i < ps->nworkers; i++) {
        dt__ps_alone_end(ps, g, i, "the parameter server has ended");
        for (dt__ps_request *r = g->request[i], *next; r; r = next) {
            next = r->next;
            dt__ps_request_free(ps, r);
        }
        for (dt__ps_line *t = g->line[i], *next; t; t = next) {
            next = t->next;
            DT_COMM_FREE(t);
        }
    }
    dt__ps_coord_free(&g->coord);
    DT_COMM_FREE(g->request);
    DT_COMM_FREE(g->line);
    DT_COMM_FREE(g->fed);
    DT_COMM_FREE(g->left);
    DT_COMM_FREE(g->alone);
    for (dt__ps_order *o = g->order, *next; o; o = next) {
        next = o->next;
        dt__ps_order_free(o);
    }
    DT_COMM_FREE(g->held);
    for (int i = 0; g->resting && i < ps->nworkers; i++) {
        if (g->resting[i]) dt_request_refuse(g->resting[i], "the parameter server has ended");
        if (g->joining[i]) dt_request_refuse(g->joining[i], "the parameter server has ended");
    }
    DT_COMM_FREE(g->resting);
    DT_COMM_FREE(g->joining);
    DT_COMM_FREE(g);
}
static DT__PRINTF(2, 3) void dt__ps_refuse(dt_request *q, const char *format, ...)
{
    char    text[400];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    dt_request_refuse(q, text);
}
static bool dt__ps_head_sent(dt_ps *ps, dt_request *q, dt__ps_head *h, size_t n) /* n bytes at least, from the worker that it says */
{
    if (q->n >= (int64_t)n && n >= sizeof *h) memcpy(h, q->data, sizeof *h);
    if (q->n < (int64_t)n || n < sizeof *h || h->magic != DT__PS_MAGIC || (uintptr_t)q->data % 8) {
        dt__ps_refuse(q, "server %d: rank %d sent %" PRId64 " bytes that are no request of dt_ps.h of this version", ps->server, q->from, q->n);
        return false;
    }
    /* two levels: every worker of a machine may ask for what changes no update */
    int  kind = q->tag - ps->base;
    bool open = ps->machine_of && (kind == DT__PS_ASK || kind == DT__PS_STATE || kind == DT__PS_PLACE);
    if (h->worker < 0 || h->worker >= ps->nworkers || (ps->worker_rank[h->worker] != q->from && !(open && q->from < ps->ranks && ps->machine_of[q->from] == h->worker))) {
        dt__ps_refuse(q, "server %d: rank %d speaks as worker %d, which it is not", ps->server, q->from, h->worker);
        return false;
    }
    return true;
}
static bool dt__ps_head_from(dt_ps *ps, dt_request *q, dt__ps_head *h, size_t n) /* ... which takes part */
{
    static const char *const why[] = { "", "left the store", "been declared dead", "not called dt_ps_new" };
    if (!dt__ps_head_sent(ps, q, h, n)) return false;
    if (!ps->gone[h->worker]) return true;
    dt__ps_refuse(q, "server %d: worker %d (rank %d) has %s", ps->server, h->worker, q->from, why[ps->gone[h->worker]]);
    return false;
}
static bool dt__ps_head_of(dt_ps *ps, dt_request *q, dt__ps_head *h, size_t n)
{
    if (!dt__ps_head_from(ps, q, h, n)) return false;
    if (!ps->death[0]) return true;
    dt_request_refuse(q, ps->death);
    return false;
}
static bool dt__ps_from_server(dt_ps *ps, dt_request *q, dt__ps_head *h)
{
    int s = 0;
    while (s < ps->nservers && ps->server_rank[s] != q->from) s++;
    if (q->n >= (int64_t)sizeof *h) memcpy(h, q->data, sizeof *h);
    if (s < ps->nservers && q->n >= (int64_t)sizeof *h && h->magic == DT__PS_MAGIC && (uintptr_t)q->data % 8 == 0) return true;
    dt__ps_refuse(q, "server %d: rank %d is no server, or its message is broken", ps->server, q->from);
    return false;
}
/* ---- staging */
/* The coordinator's server hears from a server that it has a request of a worker; with DT__PS_REFUSED: that it has refused it; with
   DT__PS_LEFT: that no more requests of the worker come there. A server says this in the order of seq. */
static void dt__ps_hear(dt_ps *ps, dt__ps_group *g, const dt__ps_head *h, int server)
{
    dt__ps_line **p = &g->line[h->worker], *t;
    uint64_t      bit = (uint64_t)1 << server;
    if (h->flags & DT__PS_LEFT) g->left[h->worker] |= bit;
    else {
        if (ps->gone[h->worker] >= DT__PS_HAS_DIED || g->bad[0] || h->seq <= g->fed[h->worker]) return;
        if (h->servers != g->servers) { /* it is not a request of this group */
            dt__ps_act *a = dt__ps_act_add(&g->coord, DT__PS_REFUSE, h->worker);
            if (a) a->seq = h->seq;
            dt__ps_pump(ps, g);
            return;
        }
        while (*p && (*p)->head.seq < h->seq) p = &(*p)->next;
        t = *p;
        if (!t || t->head.seq != h->seq) {
            t = (dt__ps_line *)dt__comm_zeroed(1, sizeof *t);
            if (!t) {
                dt__ps_group_fail(ps, g, "the coordinator is out of memory");
                return;
            }
            t->head = *h;
            t->next = *p;
            *p = t;
        }
        t->staged |= bit;
        uint32_t kind = DT__PS_HAS_PUSH | DT__PS_WANTS;
        if (h->flags & DT__PS_REFUSED || (h->flags & kind) != (t->head.flags & kind) || h->version != t->head.version || h->servers != t->head.servers ||
            h->what != t->head.what)
            t->refused = true;
    }
    dt__ps_pump(ps, g);
}
static void dt__ps_say_to(dt_ps *ps, int coordinator, const dt__ps_head *h) /* h goes to dt__ps_hear of that server */
{
    if (coordinator == ps->server) {
        dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h->group);
        if (g) dt__ps_hear(ps, g, h, ps->server);
        return;
    }
    if (ps->dead >> coordinator & 1) return;
    dt__ps_head *t = (dt__ps_head *)dt__ps_letter_new(ps, sizeof *t);
    if (!t) return;
    *t = *h;
    dt__ps_tell(ps, ps->server_rank[coordinator], DT__PS_STAGED, t, sizeof *t);
}
static void dt__ps_staged(dt_ps *ps, dt__ps_group *g, int worker) /* says which requests are whole, or dropped, in their order */
{
    for (;;) {
        dt__ps_request *r = g->request[worker];
        while (r && r->staged) r = r->next;
        if (!r || (r->missing && !r->done)) break;
        dt__ps_head h = r->head;
        r->staged = true;
        if (r->done) h.flags |= DT__PS_REFUSED;
        else if (r->q && !(h.flags & DT__PS_WANTS) && !g->codec.kind) { /* only a push: it is answered now; with a codec see DT__PS_TAKE */
            dt_ps_info info;
            memset(&info, 0, sizeof info);
            info.verdict = DT_PS_KEPT;
            info.version = h.version;
            info.batch = -1;
            if (!dt__ps_keep(ps, r)) {
                dt__ps_group_fail(ps, g, "out of memory for a push");
                return;
            }
            dt__ps_reply(ps, r, &info, false);
        }
        dt__ps_say_to(ps, g->coordinator, &h); /* the list may be another one now */
    }
    dt__ps_tidy(ps, g, worker);
}
static void dt__ps_part_came(void *user, int status)
{
    dt__ps_input   *in = (dt__ps_input *)user;
    dt__ps_request *r = in->of;
    dt_ps          *ps = in->ps;
    dt__ps_group   *g = r->group;
    int             worker = r->head.worker;
    bool            view = !in->own, right = !status && (view ? in->view.info.n : in->info.n) == in->wire.nbytes;
    in->work = NULL;
    if (r->done || !right) dt__ps_input_free(ps, in);
    else in->data = view ? (const char *)in->view.data : in->own;
    bool decoded = r->done || !right || !dt__ps_decode(ps, &g->codec, in);
    if (!r->done && (!right || !decoded)) { /* the worker has gone, or sends another length than it said, or what is not of the codec */
        char why[400];
        snprintf(why, sizeof why, "server %d: the values of key %d did not come: %.200s", ps->server, in->wire.key,
                 (status || !decoded) && dt_comm_error(NULL) ? dt_comm_error(NULL) : "another length");
        dt__ps_input_free(ps, in);
        dt__ps_drop(ps, r, why);
    }
    r->missing--;
    dt__ps_staged(ps, g, worker);
    dt__ps_count(ps, -1);
}
/* A tick, one a second while there is something to do: the send of a message that is read where it is has not ended, and must not wait
   for the update as long as that may take; and memory that was kept and not used is freed. */
static void dt__ps_tick(void *user, int status)
{
    dt_ps *ps = (dt_ps *)user;
    ps->timer = NULL;
    for (dt__ps_group *g = ps->all; g && status == DT_COMM_ERR_TIMEOUT && ps->viewed; g = g->next)
        for (int w = 0; w < ps->nworkers && !g->bad[0]; w++)
            for (dt__ps_request *r = g->request[w]; r; r = r->next)
                if (!r->done && !dt__ps_keep(ps, r)) {
                    dt__ps_group_fail(ps, g, "out of memory for a push");
                    break;
                }
    if (status == DT_COMM_ERR_TIMEOUT) dt__ps_areas_end(ps, false);
    if (status == DT_COMM_ERR_TIMEOUT && (ps->viewed || ps->nareas)) dt__ps_timer(ps);
    dt__ps_count(ps, -1);
}
static void dt__ps_timer(dt_ps *ps)
{
    dt_msg_opts o = DT__NO_OPTIONS;
    if (ps->timer || ps->closing) return;
    o.tag = ps->base + DT__PS_WATCH + 1;
    o.timeout = ps->timeout / 4 < 1 ? ps->timeout / 4 : 1;
    ps->timer = dt_comm_recv_start_with(ps->c, &ps->nothing, 1, DT_COMM_U8, dt_comm_rank(ps->c), o);
    if (!ps->timer) return; /* the communicator has failed, or is out of memory: sends end at their timeout */
    dt__ps_count(ps, 1);
    dt_work_then(ps->timer, dt__ps_tick, ps);
}
static bool dt__ps_part_receive(dt_ps *ps, dt__ps_input *in)
{
    const dt_comm *c = ps->c;
    int            from = ps->worker_rank[in->of->head.worker];
    bool           near = from == c->rank || (!c->members && c->shared && (!c->host || c->host[from] == c->host[c->rank]));
    dt_msg_opts    o = DT__NO_OPTIONS;
    o.tag = in->wire.tag;
    o.timeout = ps->timeout;
    /* A message of this machine can be read where it is; if not, a view needs the memory for messages: no more than a part of it. */
    if (near && in->wire.nbytes <= dt__ps_limit(ps) / 4 - ps->viewed) {
        in->viewed = in->wire.nbytes;
        ps->viewed += in->viewed;
        dt__ps_timer(ps);
        in->work = dt_comm_recv_view_start_with(ps->c, &in->view, DT_COMM_U8, from, o);
    } else {
        o.info = &in->info;
        in->own = dt__ps_area_new(ps, in->wire.nbytes);
        in->nown = in->wire.nbytes;
        if (in->own) in->work = dt_comm_recv_start_with(ps->c, in->own, in->wire.nbytes, DT_COMM_U8, from, o);
    }
    return in->work != NULL;
}
static const char *dt__ps_dtype(int dtype) { return dtype >= 0 && dtype < DT_COMM_DTYPES ? dt__comm_dtype_name(dtype) : "an unknown dtype"; }
/* Checks part i of a request; *at: where its payload is, or would be, if it is inline. */
static dt__ps_held *dt__ps_part_ok(dt_ps *ps, dt_request *q, const dt__ps_head *h, const dt__ps_wire *w, const dt_codec *codec, size_t *at)
{
    dt__ps_held *held = (dt__ps_held *)dt__ps_map_get(&ps->held, w->key);
    bool         push = (h->flags & DT__PS_HAS_PUSH) != 0;
    if (!held) {
        dt__ps_refuse(q, "server %d: key %d does not exist here: all workers must call dt_ps_init for it first", ps->server, w->key);
        return NULL;
    }
    if (held->group != h->group) {
        dt__ps_refuse(q, "server %d: key %d is not in the group of this request: push and pull all keys of a group in one call", ps->server, w->key);
        return NULL;
    }
    if (w->at != held->part.at || w->n != held->part.n || w->dtype != held->part.dtype) {
        dt__ps_refuse(q, "server %d: key %d has elements %" PRId64 " to %" PRId64 " of %s here; worker %d sends or wants %" PRId64 " to %" PRId64 " of %s",
                      ps->server, w->key, held->part.at, held->part.at + held->part.n - 1, dt__ps_dtype(held->part.dtype), h->worker, w->at,
                      w->at + w->n - 1, dt__ps_dtype(w->dtype));
        return NULL;
    }
    int64_t nbytes = dt__ps_nbytes(codec, w->n, w->dtype);
    if (push && w->nbytes != nbytes && !(codec->kind && !w->nbytes)) {
        dt__ps_refuse(q, "server %d: key %d: a push of %" PRId64 " bytes for %" PRId64 " elements of %s; with codec %s they have %" PRId64, ps->server, w->key,
                      w->nbytes, w->n, dt__ps_dtype(w->dtype), dt_codec_name(codec->kind), nbytes);
        return NULL;
    }
    if (push && w->tag < 0) {
        if ((w->nbytes > DT__PS_INLINE && !ps->rep) || w->nbytes < 0 || q->n < (int64_t)*at || q->n - (int64_t)*at < w->nbytes) {
            dt__ps_refuse(q, "server %d: key %d: the request is shorter than it says", ps->server, w->key);
            return NULL;
        }
        *at += dt__ps_up8((size_t)w->nbytes);
    } else if (push && ps->rep) { /* dt__ps_gather has received them, if they came */
        dt__ps_refuse(q, "server %d: the values of key %d did not come", ps->server, w->key);
        return NULL;
    } else if (push && (w->tag - ps->base < DT__PS_DATA || w->tag - ps->base > DT__PS_DATA + (1 << 27))) {
        dt__ps_refuse(q, "server %d: key %d: tag %d", ps->server, w->key, w->tag);
        return NULL;
    }
    return held;
}
/* Where a worker of this machine wants the values of h. Small ones go with the answer. */
static char *dt__ps_see(dt_ps *ps, int from, int64_t at, const dt__ps_held *h)
{
    size_t n = (size_t)h->part.n * dt__elem_nbytes(h->part.dtype);
    if (n <= DT__PS_INLINE || ps->c->members) return NULL;
    if (from == ps->c->rank) return (char *)(uintptr_t)at;
    return ps->c->shared ? dt__shared_see((dt__shared *)ps->c->shared, at, n) : NULL;
}
/* A request is refused. If other servers have a part of it, the coordinator hears of it. */
static void dt__ps_exchange_bad(dt_ps *ps, const dt__ps_head *h)
{
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h->group);
    dt__ps_head   t = *h;
    t.flags |= DT__PS_REFUSED;
    if (g && h->servers & (h->servers - 1)) dt__ps_say_to(ps, g->coordinator, &t);
}
static bool dt__ps_group_possible(int id, int key) /* key -1: any */
{
    return id & 1 ? id >= 3 && id < 2 * DT_PS_KEYS : key >= 0 ? id == 2 * key : id >= 0 && id < 2 * DT_PS_KEYS;
}
static dt__ps_request *dt__ps_exchange_new(dt_ps *ps, dt__ps_group *g, dt_request *q, const dt__ps_head *h) /* NULL: refused */
{
    const dt__ps_wire *wire = (const dt__ps_wire *)(const void *)((const char *)q->data + sizeof *h);
    size_t             at = sizeof *h + (size_t)h->nparts * sizeof *wire;
    dt__ps_request    *r = (dt__ps_request *)dt__comm_zeroed(1, sizeof *r);
    if (r) r->in = (dt__ps_input *)dt__comm_zeroed((size_t)(h->nparts ? h->nparts : 1), sizeof *r->in);
    if (!r || !r->in) {
        DT_COMM_FREE(r);
        dt_request_refuse(q, "the server is out of memory");
        return NULL;
    }
    r->group = g;
    r->head = *h;
    ps->stamp++;
    for (int i = 0; i < h->nparts; i++) {
        dt__ps_input *in = &r->in[i];
        size_t        here = at;
        in->of = r;
        in->ps = ps;
        in->wire = wire[i];
        in->held = dt__ps_part_ok(ps, q, h, &in->wire, &g->codec, &at);
        bool bad = in->held && in->held->stamp == ps->stamp;
        if (bad) dt__ps_refuse(q, "server %d: key %d is twice in one call", ps->server, in->wire.key);
        else if (in->held && (h->flags & DT__PS_HAS_PUSH) && in->wire.tag < 0) {
            in->data = (const char *)q->data + here;
            bad = dt__ps_decode(ps, &g->codec, in) != 0;
            if (bad) dt__ps_refuse(q, "server %d: key %d: the push of worker %d cannot be decoded: %.250s", ps->server, in->wire.key, h->worker,
                                   dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
        }
        if (!in->held || bad) { /* it is refused: nothing has changed */
            for (int k = 0; k <= i; k++) dt__ps_input_free(ps, &r->in[k]);
            DT_COMM_FREE(r->in);
            DT_COMM_FREE(r);
            return NULL;
        }
        in->held->stamp = ps->stamp;
        if (h->flags & DT__PS_WANTS && in->wire.see >= 0) in->to = dt__ps_see(ps, q->from, in->wire.see, in->held);
    }
    r->q = q;
    return r;
}
static void dt__ps_on_exchange(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_head_of(ps, q, &h, sizeof h)) return;
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h.group);
    if (h.nparts < 0 || h.nparts > DT__PS_PARTS || (size_t)q->n < sizeof h + (size_t)h.nparts * sizeof(dt__ps_wire) || !(h.flags & 3) || h.flags & ~3u ||
        h.what < 0 || h.what > (ps->crew ? ps->crew[h.worker] : 1) || !(h.servers >> ps->server & 1) || (ps->nservers < 64 && h.servers >> ps->nservers) || !dt__ps_group_possible(h.group, -1) || h.seq < 1 ||
        h.version < 0) {
        dt__ps_refuse(q, "server %d: the request of worker %d is broken", ps->server, h.worker);
        return;
    }
    int64_t newest = g && g->nheld ? g->held[0]->part.version : 0, last = -1;
    for (dt__ps_request *r = g ? g->request[h.worker] : NULL; r; r = r->next) last = r->head.seq;
    bool push = (h.flags & DT__PS_HAS_PUSH) != 0, old = g && (h.seq <= last || h.seq <= g->fed[h.worker]);
    dt__ps_request *r = NULL;
    if (!g && h.nparts) { /* the first key says what is wrong */
        dt__ps_wire wire;
        size_t      at = (size_t)q->n;
        memcpy(&wire, (const char *)q->data + sizeof h, sizeof wire);
        dt_codec none = DT__NO_OPTIONS;
        h.flags &= ~(uint32_t)DT__PS_HAS_PUSH; /* what was pushed does not matter */
        if (dt__ps_part_ok(ps, q, &h, &wire, &none, &at)) dt__ps_refuse(q, "server %d: key %d is in another group", ps->server, wire.key);
    } else if (!g) dt__ps_refuse(q, "server %d: there is no such group of keys: call dt_ps_init first", ps->server);
    else if (g->bad[0]) dt_request_refuse(q, g->bad);
    else if (h.servers & ps->dead) dt__ps_refuse(q, "server %d (rank %d) has gone", __builtin_ctzll(h.servers & ps->dead),
                                                 ps->server_rank[__builtin_ctzll(h.servers & ps->dead)]);
    else if (old || (push && h.version > newest))
        dt__ps_refuse(q, "server %d: worker %d says that its values have version %" PRId64 " and its request is number %" PRId64
                      "; the newest version is %" PRId64 ", the last request was number %" PRId64, ps->server, h.worker, h.version, h.seq, newest,
                      last > g->fed[h.worker] ? last : g->fed[h.worker]);
    else if (h.nparts != g->nheld)
        dt__ps_refuse(q, "server %d: worker %d pushes or pulls %d of the %d keys of a group on this server: all must be in one call", ps->server,
                      h.worker, h.nparts, g->nheld);
    else r = dt__ps_exchange_new(ps, g, q, &h);
    if (!r) { /* q is gone now */
        if (!old) dt__ps_exchange_bad(ps, &h);
        return;
    }
    dt__ps_request **p = &g->request[h.worker];
    while (*p) p = &(*p)->next;
    *p = r;
    r->missing = 1; /* r stays while its receives are posted */
    for (int i = 0; i < h.nparts && !r->done; i++) {
        dt__ps_input *in = &r->in[i];
        if (!push || in->wire.tag < 0) continue;
        r->missing++;
        dt__ps_count(ps, 1);
        if (dt__ps_part_receive(ps, in)) dt_work_then(in->work, dt__ps_part_came, in);
        else {
            dt__comm_bad(DT_COMM_ERR_MEMORY, "the server is out of memory");
            dt__ps_part_came(in, DT_COMM_ERR_MEMORY);
        }
    }
    r->missing--;
    dt__ps_staged(ps, g, h.worker);
}
static const char *dt__ps_why(const dt_ps *ps);
static int dt__ps_server_of(const dt_ps *ps, int rank)
{
    for (int s = 0; s < ps->nservers; s++)
        if (ps->server_rank[s] == rank) return s;
    return -1;
}
static void dt__ps_on_staged(dt_request *q) /* of another server: see dt__ps_hear */
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_from_server(ps, q, &h)) return;
    int           server = dt__ps_server_of(ps, q->from);
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h.group);
    bool          about = h.flags & (DT__PS_BAD | DT__PS_HOLDS | DT__PS_MEASURED); /* the group, not a worker */
    double        number = 0;
    size_t        room = (size_t)q->n - sizeof h;
    if (!g || !g->here || (h.flags & DT__PS_MEASURED && (room != sizeof number || !(g->servers >> server & 1))) || (!about && (h.worker < 0 || h.worker >= ps->nworkers || h.seq < 0 || h.version < 0))) {
        dt__ps_refuse(q, "server %d does not coordinate group %d", ps->server, h.group);
        return;
    }
    char bad[400] = "";
    if (h.flags & DT__PS_BAD) memcpy(bad, (const char *)q->data + sizeof h, (size_t)q->n - sizeof h < 399 ? (size_t)q->n - sizeof h : 399);
    if (h.flags & DT__PS_MEASURED) memcpy(&number, (const char *)q->data + sizeof h, sizeof number);
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    if (h.flags & DT__PS_BAD) dt__ps_group_fail(ps, g, bad);
    else if (h.flags & DT__PS_MEASURED) dt__ps_measured(ps, g, server, number);
    else if (h.flags & DT__PS_HOLDS) {
        g->servers |= (uint64_t)1 << server;
        dt__ps_head *t = ps->rep ? (dt__ps_head *)dt__ps_letter_new(ps, sizeof *t) : NULL; /* else the reply says that it is known */
        if (!t) return;
        *t = h;
        dt__ps_tell(ps, ps->server_rank[server], DT__PS_ORDER, t, sizeof *t);
    } else dt__ps_hear(ps, g, &h, server);
}
static void dt__ps_set_known(dt_ps *ps, int key);
static bool dt__ps_order_ok(const dt_ps *ps, const dt__ps_head *h, const dt__ps_act *act, const dt__ps_push *used)
{
    for (int i = 0; i < h->nparts; i++) {
        const dt__ps_act *a = &act[i];
        if (a->kind == DT__PS_APPLY ? a->first < 0 || a->n < 1 || a->n > h->what || a->first > h->what - a->n : a->learner < 0 || a->learner >= ps->nworkers)
            return false;
    }
    for (int i = 0; i < h->what; i++)
        if (used[i].learner < 0 || used[i].learner >= ps->nworkers) return false;
    return true;
}
static void dt__ps_on_order(dt_request *q) /* the coordinator has decided */
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_from_server(ps, q, &h)) return;
    dt__ps_group      *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h.group);
    size_t             room = (size_t)q->n - sizeof h;
    bool               ok = g && !g->here && ps->server_rank[g->coordinator] == q->from;
    const dt__ps_act  *act = (const dt__ps_act *)(const void *)((const char *)q->data + sizeof h);
    if (ok && h.flags & DT__PS_BAD) {
        char bad[400] = "";
        memcpy(bad, act, room < 399 ? room : 399);
        if (!g->bad[0]) snprintf(g->bad, sizeof g->bad, "%s", bad[0] ? bad : "it failed"); /* so it is not told to the coordinator */
        dt__ps_group_fail(ps, g, g->bad);
    } else if (ok && ps->rep && h.flags & DT__PS_HOLDS) dt__ps_set_known(ps, h.what);
    else if (ok && h.flags & DT__PS_MEASURED) {
        double total = 0;
        ok = room == sizeof total && (g->pause == DT__PS_FOR_TOTAL || g->bad[0]);
        if (ok) memcpy(&total, act, sizeof total);
        if (ok) dt__ps_totalled(ps, g, total);
    } else if (ok) {
        ok = h.nparts >= 0 && h.what >= 0 && (size_t)h.nparts <= room / sizeof *act &&
             room == (size_t)h.nparts * sizeof *act + (size_t)h.what * sizeof(dt__ps_push) &&
             dt__ps_order_ok(ps, &h, act, (const dt__ps_push *)(const void *)(act + h.nparts));
        size_t       nact = (size_t)h.nparts * sizeof *act, nused = (size_t)h.what * sizeof(dt__ps_push);
        dt__ps_act  *mine = ok ? (dt__ps_act *)DT_COMM_MALLOC(nact ? nact : 1) : NULL;
        dt__ps_push *used = ok ? (dt__ps_push *)DT_COMM_MALLOC(nused ? nused : 1) : NULL;
        if (mine && used) {
            memcpy(mine, act, nact);
            memcpy(used, act + h.nparts, nused);
            dt__ps_do(ps, g, mine, h.nparts, used);
        } else {
            DT_COMM_FREE(mine);
            DT_COMM_FREE(used);
            if (ok) dt__ps_group_fail(ps, g, "out of memory");
        }
    }
    if (ok) dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    else dt__ps_refuse(q, "server %d: an order that it cannot understand", ps->server);
}
/* ---- workers that leave or die */
static void dt__ps_group_gone(dt_ps *ps, dt__ps_group *g, int worker, int how)
{
    for (dt__ps_request *r = g->request[worker]; r; r = r->next) {
        dt_request *q = r->q;
        if (!r->staged) dt__ps_drop(ps, r, "this worker has gone");
        else if (q) {
            if (!r->done && !dt__ps_keep(ps, r)) {
                dt__ps_group_fail(ps, g, "out of memory for a push");
                break;
            }
            r->q = NULL;
            dt_request_refuse(q, "this worker has left the store");
        }
    }
    dt__ps_staged(ps, g, worker);
    dt__ps_head h;
    memset(&h, 0, sizeof h);
    h.magic = DT__PS_MAGIC;
    h.group = g->id;
    h.worker = worker;
    h.flags = DT__PS_LEFT;
    if (g->here && how == DT__PS_HAS_DIED) {
        while (g->line[worker]) {
            dt__ps_line *t = g->line[worker];
            g->line[worker] = t->next;
            DT_COMM_FREE(t);
        }
        dt__ps_act *a = dt__ps_act_add(&g->coord, DT__PS_FORGET, worker);
        if (a) a->seq = g->fed[worker];
        dt__ps_coord_leave(&g->coord, worker);
        g->left[worker] = ~(uint64_t)0; /* what other servers have of it does not count. A newcomer that died may be unknown to them */
    }
    if (g->here) dt__ps_alone_end(ps, g, worker, "this worker has gone");
    dt__ps_say_to(ps, g->coordinator, &h);
}
static void dt__ps_worker_gone(dt_ps *ps, int worker, int how, const char *why)
{
    if (ps->gone[worker] || ps->closing) return;
    ps->gone[worker] = (uint8_t)how;
    ps->ngone++;
    if (how == DT__PS_HAS_DIED) {
        if (!ps->main) dt__logf(1, "dt_ps: server %d: worker %d has gone: %s", ps->server, worker, why);
        if (ps->o.fail_on_death && !ps->death[0])
            snprintf(ps->death, sizeof ps->death, "worker %d has gone, and .fail_on_death is set: %.200s", worker, why);
    }
    for (dt__ps_group *g = ps->all; g; g = g->next) {
        if (ps->death[0] && g->here) dt__ps_group_fail(ps, g, ps->death);
        dt__ps_group_gone(ps, g, worker, how);
    }
    for (int i = 0; i < ps->names.n; i++) { /* worker 0 cannot bring values any more */
        dt__ps_name *n = (dt__ps_name *)ps->names.at[i];
        for (int k = 0; n && k < ps->nworkers; k++) {
            if (!n->waiting[k] || n->ready || (worker && k != worker && !ps->death[0])) continue;
            dt_request *q = n->waiting[k];
            n->waiting[k] = NULL;
            if (ps->death[0]) dt_request_refuse(q, ps->death);
            else dt__ps_refuse(q, "key %d has no values: worker 0 has gone before it brought them", i);
        }
    }
    for (int k = 0; k < ps->nworkers; k++) {
        if (!ps->barrier[k] || (k != worker && !ps->death[0])) continue;
        dt_request *q = ps->barrier[k];
        ps->barrier[k] = NULL;
        dt_request_refuse(q, ps->death[0] ? ps->death : "this worker has gone");
    }
    dt__ps_barrier_look(ps);
    dt__ps_over_look(ps);
}
/* Orders may still be on their way between servers when the last worker has left. So a server says to the others when it has
   nothing more to say, and ends when it has heard this from all. */
static void dt__ps_over_look(dt_ps *ps) /* not before the last worker has gone, and all of them from all servers of each group */
{
    uint64_t all = ps->nservers == 64 ? ~(uint64_t)0 : ((uint64_t)1 << ps->nservers) - 1;
    if (ps->main) ps = ps->main; /* a copy ends with its store */
    if (ps->server < 0 || ps->ngone < ps->nworkers || ps->ntells || (ps->rep && !dt__ps_rep_idle(ps))) return;
    for (const dt__ps_group *g = ps->all; g && !ps->said_end; g = g->next) /* its coordinator may still have orders */
        if (g->order) return;
        else if (g->here && !g->bad[0] && (g->busy || !dt__ps_all_left(ps, g))) return;
    if (!ps->said_end) {
        ps->said_end = true;
        ps->ended |= (uint64_t)1 << ps->server;
        ps->ntells++; /* not before the last of them is told */
        for (int s = 0; s < ps->nservers; s++) {
            if (s == ps->server || ps->dead >> s & 1) continue;
            dt__ps_head *h = (dt__ps_head *)dt__ps_letter_new(ps, sizeof *h);
            if (!h) return;
            memset(h, 0, sizeof *h);
            h->magic = DT__PS_MAGIC;
            dt__ps_tell(ps, ps->server_rank[s], DT__PS_END, h, sizeof *h);
        }
        if (--ps->ntells) return;
    }
    if ((ps->ended & all) == all) __atomic_store_n(&ps->over, 1, __ATOMIC_RELEASE);
}
static void dt__ps_on_end(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_from_server(ps, q, &h)) return;
    ps->ended |= (uint64_t)1 << dt__ps_server_of(ps, q->from);
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    dt__ps_over_look(ps);
}
static void dt__ps_name_bad(dt_ps *ps, dt__ps_name *n, const char *why) /* those who wait for the array hear that it will not be there */
{
    snprintf(n->bad, sizeof n->bad, "%.290s", why);
    for (int i = 0; i < ps->nworkers; i++) {
        dt_request *q = n->waiting[i];
        n->waiting[i] = NULL;
        if (q) dt_request_refuse(q, n->bad);
    }
}
static void dt__ps_rep_close(dt_ps *ps);
static void dt__ps_server_lost(dt_ps *ps, int server, const char *why) /* nobody has its arrays any more */
{
    char text[400];
    ps->dead |= (uint64_t)1 << server;
    snprintf(text, sizeof text, "server %d (rank %d) has gone, and the values that only it had are lost: start again from a checkpoint. %.200s", server,
             ps->server_rank[server], why);
    if (!ps->main) dt__logf(1, "dt_ps: server %d: %s", ps->server, text);
    for (dt__ps_group *g = ps->all; g; g = g->next)
        if (g->servers >> server & 1 || g->coordinator == server) dt__ps_group_fail(ps, g, text);
    if (ps->setting) dt__ps_rep_close(ps); /* new arrays: their coordinator may be lost */
    for (int i = 0; i < ps->names.n; i++) { /* what waits for an array there */
        dt__ps_name *n = (dt__ps_name *)ps->names.at[i];
        if (n && !n->ready && (n->where.server == server || n->where.server == DT__PS_CUT)) dt__ps_name_bad(ps, n, text);
    }
    dt__ps_over_look(ps);
}
static void dt__ps_rep_gone(dt_ps *ps, int server, const char *why);
static void dt__ps_rep_died(dt_ps *ps, int worker, const char *why);
static void dt__ps_server_gone(dt_ps *ps, int server, const char *why)
{
    if (ps->closing || ps->ended >> server & 1) return;
    ps->ended |= (uint64_t)1 << server;
    if (ps->rep) dt__ps_rep_gone(ps, server, why);
    else dt__ps_server_lost(ps, server, why);
}
/* Two levels: a worker that does not speak for its machine has died. The machine goes on without it, unless .fail_on_death is set. */
static void dt__ps_member_died(dt_ps *ps, int rank, const char *why)
{
    if (ps->closing || ps->death[0]) return;
    snprintf(ps->death, sizeof ps->death, "the worker of rank %d has gone, and .fail_on_death is set: %.200s", rank, why);
    for (dt__ps_group *g = ps->all; g; g = g->next)
        if (g->here) dt__ps_group_fail(ps, g, ps->death);
    for (int i = 0; i < ps->names.n; i++) {
        dt__ps_name *n = (dt__ps_name *)ps->names.at[i];
        if (n && !n->ready) dt__ps_name_bad(ps, n, ps->death);
    }
    for (int k = 0; k < ps->nworkers; k++) {
        dt_request *q = ps->barrier[k];
        ps->barrier[k] = NULL;
        if (q) dt_request_refuse(q, ps->death);
    }
}
typedef struct dt__ps_watcher { dt_ps *ps; int rank; char byte; } dt__ps_watcher;
static void dt__ps_watched(void *user, int status)
{
    dt__ps_watcher *w = (dt__ps_watcher *)user;
    dt_ps          *ps = w->ps;
    char            why[300];
    ps->watch[w->rank] = NULL;
    snprintf(why, sizeof why, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "it died");
    if (status == DT_COMM_ERR_PEER && !dt_comm_get_status(ps->c)) {
        if (ps->worker_of[w->rank] >= 0 && ps->rep) dt__ps_rep_died(ps, ps->worker_of[w->rank], why);
        else if (ps->worker_of[w->rank] >= 0) dt__ps_worker_gone(ps, ps->worker_of[w->rank], DT__PS_HAS_DIED, why);
        else if (ps->machine_of && ps->machine_of[w->rank] >= 0 && ps->o.fail_on_death) dt__ps_member_died(ps, w->rank, why);
        for (int s = 0; s < ps->nservers; s++)
            if (ps->server_rank[s] == w->rank) dt__ps_server_gone(ps, s, why);
    } else if (status && status != DT_COMM_ERR_CANCELLED) __atomic_store_n(&ps->over, 1, __ATOMIC_RELEASE); /* the communicator has failed */
    dt__ps_count(ps, -1);
}
static int dt__ps_watch(dt_ps *ps, int rank) /* 0, or a status */
{
    dt_msg_opts m = DT__NO_OPTIONS;
    m.tag = ps->base + DT__PS_WATCH;
    m.timeout = DT_FOREVER;
    ps->watcher[rank].ps = ps;
    ps->watcher[rank].rank = rank;
    ps->watch[rank] = dt_comm_recv_start_with(ps->c, &ps->watcher[rank].byte, 1, DT_COMM_U8, rank, m);
    if (!ps->watch[rank]) return dt_comm_get_status(NULL);
    dt__ps_count(ps, 1);
    dt_work_then(ps->watch[rank], dt__ps_watched, &ps->watcher[rank]);
    return 0;
}
/* A worker that has joined the communicator comes to the store. It is out of all groups until its first request. */
static void dt__ps_on_hello(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    const char *why = NULL;
    if (!dt__ps_head_sent(ps, q, &h, sizeof h)) return;
    if (ps->death[0]) why = ps->death;
    else if (ps->o.replay) why = "a replay has the workers of its log; nobody can join";
    else if (ps->closing || ps->said_end || ps->ngone == ps->nworkers) why = "the store has ended: all workers have left it";
    else if (ps->gone[h.worker] && ps->gone[h.worker] != DT__PS_NOT_YET) why = "a worker with this number has gone: join the communicator again";
    if (why || !ps->gone[h.worker]) {
        if (why) dt__ps_refuse(q, "server %d: worker %d (rank %d) cannot join: %.300s", ps->server, h.worker, q->from, why);
        else dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        return;
    }
    int from = q->from;
    ps->gone[h.worker] = DT__PS_HERE;
    ps->ngone--;
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    if (dt__ps_watch(ps, from)) dt__ps_worker_gone(ps, h.worker, DT__PS_HAS_DIED, dt__ps_why(ps) ? dt__ps_why(ps) : "it cannot be watched");
}
static void dt__ps_on_bye(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_head_from(ps, q, &h, sizeof h)) return;
    dt__ps_worker_gone(ps, h.worker, DT__PS_HAS_LEFT, "it left");
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
}
static void dt__ps_barrier_look(dt_ps *ps)
{
    int n = 0, alive = ps->nworkers - ps->ngone;
    for (int i = 0; i < ps->nworkers; i++) n += ps->barrier[i] != NULL;
    if (!n || n < alive || ps->at_barrier) return;
    if (ps->outer) {
        ps->at_barrier = true;
        dt__ps_outer_call(ps, NULL, 0, DT__PS_BARRIER, 0, dt__ps_barrier_passed);
        return;
    }
    for (int i = 0; i < ps->nworkers; i++) {
        dt_request *q = ps->barrier[i];
        ps->barrier[i] = NULL;
        if (q) dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    }
}
static void dt__ps_on_barrier(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_head_of(ps, q, &h, sizeof h)) return;
    if (ps->barrier[h.worker]) dt_request_refuse(ps->barrier[h.worker], "this worker has called the barrier again"); /* it had given up */
    ps->barrier[h.worker] = q;
    dt__ps_barrier_look(ps);
}
/* ---- keys */
static bool dt__ps_options_same(const dt__ps_asks *a, const dt__ps_asks *b)
{
    return a->mode == b->mode && a->k == b->k && a->staleness == b->staleness && a->max_staleness == b->max_staleness && a->nservers == b->nservers &&
           a->nworkers == b->nworkers && a->scale == b->scale && a->drop == b->drop && a->fail == b->fail && a->big == b->big && a->batches == b->batches &&
           a->codec == b->codec && a->levels == b->levels && a->ratio == b->ratio && a->bucket == b->bucket && a->seed == b->seed;
}
static dt_ps_discipline dt__ps_discipline_of(const dt_ps *ps, int group) /* group: as in dt_ps_init */
{
    const dt_ps_discipline *own = group > 0 ? (const dt_ps_discipline *)dt__ps_map_get(&ps->disciplines, group) : NULL;
    dt_ps_discipline        d = DT__NO_OPTIONS;
    if (own) return *own;
    d.mode = ps->o.mode;
    d.k = ps->o.k;
    d.staleness = ps->o.staleness;
    d.max_staleness = ps->o.max_staleness;
    d.scale_by_staleness = ps->o.scale_by_staleness;
    d.drop_batches = ps->o.drop_batches;
    d.batches = ps->o.batches;
    d.codec = ps->o.codec;
    return d;
}
static void dt__ps_asks_fill(const dt_ps *ps, dt__ps_asks *a, int key, int64_t n, int dtype, int rule, int group)
{
    dt_ps_discipline d = dt__ps_discipline_of(ps, group);
    memset(a, 0, sizeof *a);
    a->head.magic = DT__PS_MAGIC;
    a->head.worker = ps->worker;
    a->head.group = dt__ps_group_id(key, group);
    a->array.key = key;
    a->array.dtype = dtype;
    a->array.n = n;
    a->array.rule = rule;
    a->mode = d.mode;
    a->k = d.k;
    a->staleness = d.staleness;
    a->max_staleness = d.max_staleness;
    a->scale = d.scale_by_staleness;
    a->drop = d.drop_batches;
    a->batches = ps->most > 1 ? d.batches / ps->most + (d.batches % ps->most != 0) : d.batches;
    a->codec = d.codec.kind;
    a->levels = d.codec.levels;
    a->ratio = d.codec.ratio;
    a->bucket = d.codec.bucket;
    a->seed = d.codec.seed;
    a->fail = ps->o.fail_on_death;
    a->nservers = ps->nservers;
    a->nworkers = ps->nworkers;
    a->big = ps->o.big;
    a->replicas = ps->o.replicas;
    a->given = group > 0 && dt__ps_map_get(&ps->disciplines, group);
}
static void dt__ps_place(dt_ps *ps, dt__ps_name *n) /* chooses the server of an array, and the coordinator if its group is new */
{
    const dt__ps_wire *w = &n->asks.array;
    int64_t            bytes = w->n * (int64_t)dt__elem_nbytes(w->dtype);
    int                id = n->asks.head.group, least = 0;
    for (int i = 1; i < ps->nservers; i++)
        if (ps->load[i] < ps->load[least]) least = i;
    n->where.server = w->n > ps->o.big && ps->nservers > 1 && !n->asks.whole ? DT__PS_CUT : least;
    for (int i = 0; i < ps->nservers; i++)
        if (n->where.server == DT__PS_CUT) ps->load[i] += bytes / ps->nservers;
        else if (n->where.server == i) ps->load[i] += bytes;
    n->where.coordinator = n->where.server == DT__PS_CUT ? (id / 2) % ps->nservers : n->where.server;
    for (int i = 0; id & 1 && i < ps->names.n; i++) {
        const dt__ps_name *first = (const dt__ps_name *)ps->names.at[i];
        if (!first || first == n || first->asks.head.group != id) continue;
        n->where.coordinator = first->where.coordinator;
        break;
    }
}
static void dt__ps_on_init(dt_request *q) /* the first server: where is, or will be, this array? */
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_asks a;
    if (!dt__ps_head_of(ps, q, &a.head, sizeof a)) return;
    memcpy(&a, q->data, sizeof a);
    int          key = a.array.key;
    dt__ps_name *n = (dt__ps_name *)dt__ps_map_get(&ps->names, key);
    if (ps->server || key < 0 || key >= DT_PS_KEYS || a.array.n < 0 || a.array.n > INT64_MAX / 64 || a.array.dtype < 0 ||
        a.array.dtype >= DT_COMM_DTYPES || a.array.rule < 0 || a.array.rule >= DT_PS_RULES || !dt__ps_group_possible(a.head.group, key) ||
        a.mode < 0 || a.mode >= DT_PS_MODES || a.k < 1 || a.staleness < 0 || a.max_staleness < 0 || a.batches < 0 || !dt__ps_codec_ok(&a, 0)) {
        dt__ps_refuse(q, "server 0: the request of worker %d is broken", a.head.worker);
        return;
    }
    if (a.nservers != ps->nservers || a.nworkers != ps->nworkers || a.big != ps->o.big || a.fail != (int)ps->o.fail_on_death ||
        a.replicas != ps->o.replicas) {
        dt__ps_refuse(q, "dt_ps_new has other options on worker %d than on server 0: %d servers and %d, .big %" PRId64 " and %" PRId64
                      ", .fail_on_death %d and %d, .replicas %d and %d", a.head.worker, a.nservers, ps->nservers, a.big, ps->o.big, a.fail,
                      (int)ps->o.fail_on_death, (int)a.replicas, ps->o.replicas);
        return;
    }
    dt__ps_asks own;
    dt__ps_asks_fill(ps, &own, key, 0, 0, 0, 0);
    if (!a.given && !dt__ps_options_same(&a, &own)) {
        dt__ps_refuse(q, "dt_ps_new has other options on worker %d than on server 0: mode %d with k %d and codec %s, and mode %d with k %d and codec %s, for "
                      "example", a.head.worker, a.mode, a.k, dt_codec_name(a.codec), own.mode, own.k, dt_codec_name(own.codec));
        return;
    }
    if (n) {
        const dt__ps_wire *w = &n->asks.array;
        char               why[300] = "";
        if (w->n != a.array.n || w->dtype != a.array.dtype || w->rule != a.array.rule || n->asks.head.group != a.head.group || n->asks.whole != a.whole ||
            n->asks.label != a.label)
            snprintf(why, sizeof why, "two calls of dt_ps_init for key %d differ: worker %d has %" PRId64 " elements of %s with rule %d in group %d, worker %d has %"
                     PRId64 " of %s with rule %d in group %d", key, a.head.worker, a.array.n, dt__ps_dtype(a.array.dtype), a.array.rule, a.head.group / 2,
                     n->asks.head.worker, w->n, dt__ps_dtype(w->dtype), w->rule, n->asks.head.group / 2);
        else if (!dt__ps_options_same(&a, &n->asks))
            snprintf(why, sizeof why, "the discipline of key %d differs: worker %d has mode %d with k %d and codec %s, worker %d has mode %d with k %d and codec "
                     "%s: the options of dt_ps_new and dt_ps_group must be the same on all ranks", key, a.head.worker, a.mode, a.k, dt_codec_name(a.codec),
                     n->asks.head.worker, n->asks.mode, n->asks.k, dt_codec_name(n->asks.codec));
        if (why[0]) {
            if (!a.head.worker && !n->ready) dt__ps_name_bad(ps, n, why); /* without worker 0 there will be no values */
            dt_request_refuse(q, why);
            return;
        }
        if (!a.head.worker) { /* it tries again */
            n->bad[0] = 0;
            n->where.outer_server = a.outer_server;
            n->where.outer_coordinator = a.outer_coordinator;
        }
        if (n->bad[0]) {
            dt_request_refuse(q, n->bad);
            return;
        }
    } else {
        n = (dt__ps_name *)dt__comm_zeroed(1, sizeof *n);
        if (n) n->waiting = (dt_request **)dt__comm_zeroed((size_t)ps->nworkers, sizeof *n->waiting);
        if (!n || !n->waiting || !dt__ps_map_put(&ps->names, key, n)) {
            if (n) DT_COMM_FREE(n->waiting);
            DT_COMM_FREE(n);
            dt_request_refuse(q, "the server is out of memory");
            return;
        }
        n->asks = a;
        n->where.outer_server = a.outer_server;
        n->where.outer_coordinator = a.outer_coordinator;
        dt__ps_place(ps, n);
    }
    if (a.head.worker && !n->ready && ps->gone[0]) {
        dt__ps_refuse(q, "key %d has no values: worker 0 has gone before it brought them", key);
        return;
    }
    if (a.head.worker == 0 || n->ready) {
        dt_request_reply_with(q, &n->where, sizeof n->where, dt__ps_no_reply());
        return;
    }
    if (n->waiting[a.head.worker]) dt_request_refuse(n->waiting[a.head.worker], "this worker has asked again"); /* it had given up */
    n->waiting[a.head.worker] = q;
}
static void dt__ps_on_ready(dt_request *q) /* the first server: all servers have the values, or cannot get them */
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_head_of(ps, q, &h, sizeof h)) return;
    dt__ps_name *n = (dt__ps_name *)dt__ps_map_get(&ps->names, h.what);
    if (!n || h.worker || ps->server || n->ready) {
        dt__ps_refuse(q, "server %d: key %d is not known or has values already, or worker %d is not worker 0", ps->server, h.what, h.worker);
        return;
    }
    if (h.flags & DT__PS_BAD) {
        char bad[300] = "";
        memcpy(bad, (const char *)q->data + sizeof h, (size_t)q->n - sizeof h < 299 ? (size_t)q->n - sizeof h : 299);
        dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        dt__ps_name_bad(ps, n, bad[0] ? bad : "worker 0 could not bring the values");
        return;
    }
    n->ready = true;
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    for (int i = 0; i < ps->nworkers; i++) {
        dt_request *w = n->waiting[i];
        n->waiting[i] = NULL;
        if (w) dt_request_reply_with(w, &n->where, sizeof n->where, dt__ps_no_reply());
    }
}
typedef struct dt__ps_setting {
    struct dt__ps_setting *next; /* in ps->setting */
    dt_ps *ps; dt_request *q; dt__ps_held *held; dt_msg_info info; int64_t nbytes; dt__ps_head head;
} dt__ps_setting;
static void dt__ps_set_told(void *user, int status) /* the coordinator knows that this server has a part of the group, or there is nothing to tell */
{
    dt__ps_setting *s = (dt__ps_setting *)user;
    dt_ps          *ps = s->ps;
    if (status) dt__ps_refuse(s->q, "server %d: the coordinator of key %d does not answer: %.200s", ps->server, s->held->part.key,
                              dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
    else {
        dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, s->held->group);
        for (int w = 0; w < ps->nworkers; w++)
            if (ps->gone[w] && ps->gone[w] != DT__PS_NOT_YET) dt__ps_group_gone(ps, g, w, ps->gone[w]); /* they have left before it was there */
        dt_request_reply_with(s->q, NULL, 0, dt__ps_no_reply());
    }
    DT_COMM_FREE(s);
    ps->ntells--;
    dt__ps_over_look(ps);
    dt__ps_count(ps, -1);
}
static void dt__ps_set_known(dt_ps *ps, int key)
{
    dt__ps_setting **p = &ps->setting, *s;
    while (*p && (*p)->held->part.key != key) p = &(*p)->next;
    if (!(s = *p)) return;
    *p = s->next;
    dt__ps_set_told(s, 0);
}
static const char *dt__ps_set_add(dt_ps *ps, dt__ps_held *held) /* NULL, or why not */
{
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, held->group);
    if (dt__ps_map_get(&ps->held, held->part.key)) return "it has values already";
    if (g->nheld == g->held_cap) {
        int           more = g->held_cap ? 2 * g->held_cap : 4;
        dt__ps_held **p = (dt__ps_held **)DT_COMM_REALLOC(g->held, (size_t)more * sizeof *p);
        if (p) g->held = p, g->held_cap = more;
    }
    if (g->nheld == g->held_cap || !dt__ps_map_put(&ps->held, held->part.key, held)) return "the server is out of memory";
    if (g->nheld) held->part.version = g->held[0]->part.version;
    g->held[g->nheld++] = held;
    return NULL;
}
static void dt__ps_set_came(void *user, int status)
{
    dt__ps_setting *s = (dt__ps_setting *)user;
    dt_ps          *ps = s->ps;
    const char     *why = status ? (dt_comm_error(NULL) ? dt_comm_error(NULL) : "?") : s->info.n != s->nbytes ? "another length" : dt__ps_set_add(ps, s->held);
    if (why) {
        dt__ps_refuse(s->q, "server %d: the values of key %d did not come: %.200s", ps->server, s->held->part.key, why);
        dt__ps_held_free(ps, s->held);
        DT_COMM_FREE(s);
        dt__ps_count(ps, -1);
        return;
    }
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, s->held->group);
    ps->ntells++;
    if (g->here) {
        g->servers |= (uint64_t)1 << ps->server;
        dt__ps_set_told(s, 0);
        return;
    }
    dt_msg_opts o = DT__NO_OPTIONS;
    o.timeout = ps->timeout;
    memset(&s->head, 0, sizeof s->head);
    s->head.magic = DT__PS_MAGIC;
    s->head.group = g->id;
    s->head.flags = DT__PS_HOLDS;
    s->head.what = s->held->part.key;
    if (ps->rep) { /* the answer is an order: dt__ps_set_known */
        s->next = ps->setting;
        ps->setting = s;
        dt__ps_say_to(ps, g->coordinator, &s->head);
        return;
    }
    dt_work *w = dt_comm_call_start_with(ps->c, ps->server_rank[g->coordinator], ps->base + DT__PS_STAGED, &s->head, sizeof s->head, NULL, 0, o);
    if (w) dt_work_then(w, dt__ps_set_told, s);
    else dt__ps_set_told(s, DT_COMM_ERR_STATE);
}
static void dt__ps_on_set(dt_request *q) /* worker 0 brings the values of an array: a part for this server */
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_asks a;
    if (!dt__ps_head_of(ps, q, &a.head, sizeof a)) return;
    memcpy(&a, q->data, sizeof a);
    const dt__ps_wire *w = &a.array;
    int64_t            at, n, where = a.head.what;
    if (a.head.worker || w->key < 0 || w->key >= DT_PS_KEYS || w->dtype < 0 || w->dtype >= DT_COMM_DTYPES || w->rule < 0 || w->rule >= DT_PS_RULES ||
        a.head.seq < 0 || a.head.seq > INT64_MAX / 64 || where < DT__PS_CUT || where >= ps->nservers || !dt__ps_group_possible(a.head.group, w->key) ||
        w->tag < -1 || a.coordinator < 0 || a.coordinator >= ps->nservers || a.mode < 0 || a.mode >= DT_PS_MODES || a.k < 1 || a.staleness < 0 ||
        a.max_staleness < 0 || a.batches < 0 || !dt__ps_codec_ok(&a, w->n)) {
        dt__ps_refuse(q, "server %d: the request of worker %d is broken", ps->server, a.head.worker);
        return;
    }
    dt__ps_range(ps, a.head.seq, ps->server, (int)where, &at, &n);
    if (at != w->at || n != w->n || w->nbytes != n * (int64_t)dt__elem_nbytes(w->dtype)) {
        dt__ps_refuse(q, "server %d: key %d: elements %" PRId64 " to %" PRId64 " do not belong here", ps->server, w->key, w->at, w->at + w->n - 1);
        return;
    }
    if (dt__ps_map_get(&ps->held, w->key)) {
        dt__ps_refuse(q, "server %d: key %d has values already", ps->server, w->key);
        return;
    }
    int rule = ps->outer ? (int)DT_PS_ASSIGN : w->rule; /* the machine's sum; the servers have the rule */
    if (rule == DT_PS_UPDATE && w->dtype == DT_COMM_F32 && !ps->fn && !ps->settled && ps->nearly < 4) { /* see dt__ps_settle */
        ps->early[ps->nearly++] = q;
        return;
    }
    if (rule == DT_PS_UPDATE && (!ps->fn || w->dtype != DT_COMM_F32)) {
        dt__ps_refuse(q, "server %d: key %d has the rule DT_PS_UPDATE: %s", ps->server, w->key,
                      w->dtype == DT_COMM_F32 ? "call dt_ps_on_update on every server, before dt_ps_init and dt_ps_serve" : "its dtype must be f32");
        return;
    }
    dt__ps_held    *h = (dt__ps_held *)dt__comm_zeroed(1, sizeof *h);
    dt__ps_setting *s = (dt__ps_setting *)DT_COMM_MALLOC(sizeof *s);
    bool            ok = h && s && (h->buf = dt__ps_buf_new(ps, (size_t)w->nbytes)) != NULL;
    for (int i = 0; ok && rule == DT_PS_UPDATE && i < ps->nstate; i++) {
        size_t bytes = (size_t)n * sizeof(float);
        h->part.state[i] = (float *)dt_comm_alloc(ps->c, bytes);
        ok = h->part.state[i] != NULL;
        if (ok && bytes) memset(h->part.state[i], 0, bytes);
    }
    if (!ok || !dt__ps_group_of(ps, &a)) {
        dt__ps_held_free(ps, h);
        DT_COMM_FREE(s);
        dt__ps_refuse(q, "server %d: key %d: %s", ps->server, w->key, ok && dt_comm_error(NULL) ? dt_comm_error(NULL) : "out of memory");
        return;
    }
    h->part.key = w->key;
    h->part.dtype = w->dtype;
    h->part.at = at;
    h->part.n = n;
    h->part.total = a.head.seq;
    h->part.value = h->buf->p;
    h->part.label = a.label;
    h->part.count = &h->count;
    h->rule = rule;
    h->whole = a.whole != 0;
    h->group = a.head.group;
    s->ps = ps;
    s->q = q;
    s->held = h;
    s->nbytes = w->nbytes;
    memset(&s->info, 0, sizeof s->info);
    dt__ps_count(ps, 1);
    if (w->tag < 0) {
        s->info.n = q->n - (int64_t)sizeof a;
        if (s->info.n == w->nbytes && w->nbytes) memcpy(h->part.value, (const char *)q->data + sizeof a, (size_t)w->nbytes);
        dt__ps_set_came(s, 0);
        return;
    }
    dt_msg_opts o = DT__NO_OPTIONS;
    o.info = &s->info;
    o.tag = w->tag;
    o.timeout = ps->timeout;
    dt_work *work = dt_comm_recv_start_with(ps->c, h->part.value, w->nbytes, DT_COMM_U8, q->from, o);
    if (work) dt_work_then(work, dt__ps_set_came, s);
    else dt__ps_set_came(s, DT_COMM_ERR_MEMORY);
}
static void dt__ps_on_ask(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_head_of(ps, q, &h, sizeof h)) return;
    if (h.what == DT__PS_ASK_WHERE) { /* the first server: who coordinates this group? -1: there is no such group */
        int32_t at = -1;
        for (int i = 0; i < ps->names.n && at < 0; i++) {
            const dt__ps_name *n = (const dt__ps_name *)ps->names.at[i];
            if (n && n->ready && n->asks.head.group == h.group) at = n->where.coordinator;
        }
        dt_request_reply_with(q, &at, sizeof at, dt__ps_no_reply());
        return;
    }
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h.group);
    if (!g || !g->here) {
        dt__ps_refuse(q, "server %d does not coordinate group %d", ps->server, h.group);
        return;
    }
    dt__ps_coord *d = &g->coord;
    if (h.what == DT__PS_ASK_STATS) {
        dt_ps_stats s = d->stats;
        s.k = d->k;
        s.workers = d->nruns + d->nwaits;
        s.waiting = d->npool - d->pool_first;
        s.replicas = ps->rep ? 2 : 1;
        for (int i = 0; i < ps->nservers && ps->rep; i++)
            if (g->servers >> i & 1 && (dt__ps_away(ps, i) || dt__ps_away(ps, (i + 1) % ps->nservers))) s.replicas = 1;
        dt_request_reply_with(q, &s, sizeof s, dt__ps_no_reply());
    } else if (h.what == DT__PS_ASK_K) {
        if (h.seq < 1 || h.seq > INT32_MAX) {
            dt__ps_refuse(q, "K is %" PRId64 "; expected 1 or more", h.seq);
            return;
        }
        dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        dt__ps_coord_set_k(d, (int)h.seq);
        dt__ps_pump(ps, g);
    } else if (h.what == DT__PS_ASK_REST || h.what == DT__PS_ASK_JOIN) {
        dt__ps_learner *l = &d->learner[h.worker];
        int64_t         batch = l->batch;
        bool            out = h.what == DT__PS_ASK_REST;
        if (l->state != (out ? DT__PS_RUNS : DT__PS_OUT)) {
            dt__ps_refuse(q, "worker %d rests already, takes part already, or has a push under way", h.worker);
            return;
        }
        if (ps->worker_rank[h.worker] != q->from) {
            dt__ps_refuse(q, "rank %d does not speak for machine %d", q->from, h.worker);
            return;
        }
        if (ps->outer) { /* dt__ps_joint_look answers it */
            dt_request **p = out ? &g->resting[h.worker] : &g->joining[h.worker];
            if (*p) dt_request_refuse(*p, "this worker has asked again"); /* it had given up */
            *p = q;
            if (out) dt__ps_coord_leave(d, h.worker);
            dt__ps_pump(ps, g);
            return;
        }
        dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        l->batch = -1; /* it stays the worker's */
        if (out) dt__ps_coord_leave(d, h.worker);
        else dt__ps_coord_join(d, h.worker);
        l->batch = batch;
        dt__ps_pump(ps, g);
    } else if (h.what == DT__PS_ASK_ENTER) {
        dt__ps_learner *l = &d->learner[h.worker];
        dt_ps_info      info;
        if (l->fresh) {
            dt__ps_coord_join(d, h.worker);
            l->batch = dt__ps_batch(d);
        }
        memset(&info, 0, sizeof info);
        info.version = l->version;
        info.batch = l->batch;
        info.k = d->k;
        dt_request_reply_with(q, &info, sizeof info, dt__ps_no_reply());
    } else if (h.what == DT__PS_ASK_ALONE) {
        if (!g->alone) g->alone = (dt_request **)dt__comm_zeroed((size_t)ps->nworkers, sizeof *g->alone);
        if (!g->alone || g->bad[0]) {
            dt_request_refuse(q, g->alone ? g->bad : "the server is out of memory");
            return;
        }
        dt__ps_alone_end(ps, g, h.worker, "this worker has asked again");
        g->alone[h.worker] = q;
        dt__ps_alone_look(g);
    } else if (h.what == DT__PS_ASK_CURSOR) {
        int64_t  max = 2 + (int64_t)ps->nworkers + d->npending + (d->npool - d->pool_first), n = 2;
        int64_t *x = (int64_t *)DT_COMM_MALLOC((size_t)max * sizeof *x);
        dt_reply_opts o = DT__NO_OPTIONS;
        if (!x) {
            dt_request_refuse(q, "the server is out of memory");
            return;
        }
        x[0] = d->version;
        x[1] = d->next_batch;
        for (int i = 0; i < ps->nworkers; i++)
            if (d->learner[i].batch >= 0) x[n++] = d->learner[i].batch;
        for (int i = 0; i < d->npending; i++)
            if (d->pending[i].batch >= 0) x[n++] = d->pending[i].batch;
        for (int i = d->pool_first; i < d->npool; i++) x[n++] = d->pool[i];
        o.done = dt__ps_free_it;
        o.user = x;
        dt_request_reply_with(q, x, n * (int64_t)sizeof *x, o);
    } else {
        char text[400];
        int  at = snprintf(text, sizeof text, "update %" PRId64 " waits for", d->version), named = 0;
        for (int i = 0; i < ps->nworkers && at < 300; i++)
            if (d->learner[i].state == DT__PS_RUNS && i != h.worker) at += snprintf(text + at, sizeof text - (size_t)at, "%s worker %d (rank %d)", named++ ? "," : "", i, ps->worker_rank[i]);
        if (!named) snprintf(text, sizeof text, "%s", g->pause == DT__PS_FOR_EXCHANGE ? "the machine waits for the servers, or for other machines" :
                             g->pause ? "a server has not told its number (dt_ps_on_measure)" : "nobody else computes");
        dt_request_reply_with(q, text, (int64_t)strlen(text), dt__ps_no_reply());
    }
}

/* ---- arrays apart from their groups. A request is for elements seq .. seq + array.n - 1 of an array; a write has the bytes after it. */
static void dt__ps_on_state(dt_request *q)
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_asks a;
    if (!dt__ps_head_of(ps, q, &a.head, sizeof a)) return;
    memcpy(&a, q->data, sizeof a);
    const dt__ps_wire *w = &a.array;
    dt__ps_held       *h = (dt__ps_held *)dt__ps_map_get(&ps->held, w->key);
    int                which = a.head.what;
    bool               write = (a.head.flags & DT__PS_HAS_PUSH) != 0;
    if (!h || which < DT_PS_COUNT || which >= DT_PS_STATES || (which >= 0 && !h->part.state[which])) {
        dt__ps_refuse(q, "server %d: key %d does not exist here, or has no state %d", ps->server, w->key, which);
        return;
    }
    int64_t n = which == DT_PS_COUNT ? 1 : h->part.n, first = which == DT_PS_COUNT ? 0 : h->part.at, at = w->at < first ? -1 : w->at - first;
    size_t  size = which == DT_PS_COUNT ? sizeof h->count : which == DT_PS_VALUE ? dt__elem_nbytes(h->part.dtype) : sizeof(float);
    if (at < 0 || w->n < 0 || at > n || w->n > n - at || (write && (q->n - (int64_t)sizeof a) / (int64_t)size < w->n)) {
        dt__ps_refuse(q, "server %d: key %d: elements %" PRId64 " to %" PRId64 " are not here", ps->server, w->key, w->at, w->at + w->n - 1);
        return;
    }
    if (write && which == DT_PS_VALUE && !dt__ps_writable(ps, h)) {
        dt_request_refuse(q, "the server is out of memory");
        return;
    }
    char  *base = which == DT_PS_COUNT ? (char *)&h->count : which == DT_PS_VALUE ? (char *)h->part.value : (char *)h->part.state[which];
    char  *p = base + (size_t)at * size;
    size_t bytes = (size_t)w->n * size;
    if (write && bytes) memcpy(p, (const char *)q->data + sizeof a, bytes);
    dt_request_reply_with(q, p, write ? 0 : (int64_t)bytes, dt__ps_no_reply());
}
static void dt__ps_on_place(dt_request *q) /* the version of a group, and at its coordinator its batches */
{
    dt_ps      *ps = (dt_ps *)q->user;
    dt__ps_head h;
    if (!dt__ps_head_of(ps, q, &h, sizeof h)) return;
    dt__ps_group *g = (dt__ps_group *)dt__ps_map_get(&ps->groups, h.group);
    int64_t       n = (q->n - (int64_t)sizeof h) / (int64_t)sizeof(int64_t), x = 0;
    const char   *at = (const char *)q->data + sizeof h;
    if (!g || h.version < 0 || h.version > INT64_MAX / 64 || h.seq < 0 || h.seq > INT64_MAX / 64 || n > (1 << 24)) {
        dt__ps_refuse(q, "server %d: there is no such group, or its place is impossible", ps->server);
        return;
    }
    if ((g->nheld && g->held[0]->part.version) || (g->here && (g->coord.version || g->coord.npending || g->coord.replay))) {
        dt__ps_refuse(q, "server %d: the group has updates already", ps->server);
        return;
    }
    for (int i = 0; i < g->nheld; i++) g->held[i]->part.version = h.version;
    if (g->here) {
        dt__ps_coord *d = &g->coord;
        d->version = d->stats.version = h.version;
        d->next_batch = h.seq;
        d->pool_first = d->npool = 0;
        for (int64_t i = 0; i < n; i++) {
            memcpy(&x, at + (size_t)i * sizeof x, sizeof x);
            dt__ps_pool_add(d, x);
        }
        for (int i = 0; i < d->nlearners; i++) d->learner[i].batch = d->learner[i].state == DT__PS_OUT ? -1 : dt__ps_batch(d);
    }
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
}

/* ==================================================================================================== >>replicas
   With .replicas = 2 a server carries out steps, one after the other. A step is a request of a worker that changes something, a
   message of another server, or the death of a worker; all of the handlers above depend on nothing else. The rank of the next
   server has a copy: another dt_ps with the same code, which carries out the same steps in the same order, and whose answers
   and messages go nowhere. A server sends each step to its copy (DT__PS_FORWARD), and carries it out when the copy has it. So the
   copy knows everything that can follow from what a server has said.

   A server dies: its copy becomes active. Workers send their requests that were not answered again. The copy recognises them by worker
   and number: it gives the answer that it has kept, or will give it. It keeps an answer until a later request of the worker says
   that it has come. Servers number their messages to each other (DT__PS_LINK): a message is kept until it is answered, which is
   when the copy of the receiver has it, is sent again to whoever is the receiver then, and is taken once. A server tells its copy
   which of them were answered.

   The parts of a request that are messages of their own are received first (dt__ps_gather): a step has everything in it. Requests of
   one worker stay in order. Requests that only read are no steps. Handlers get a dt_request whose answer comes to dt__ps_step_answer.

   Everything runs on the thread that drives the communicator. */
typedef struct dt__ps_fwd {    /* a request DT__PS_FORWARD: a step. Of each server the last message that it has answered follows, then the step */
    dt__ps_head head;          /* worker: -1: the step is not of a worker */
    int64_t number, n;         /* of the step; its bytes */
    int64_t order;             /* the step is this message of server `sender` */
    int32_t sender, tag, from;
    int32_t message;           /* the tag of the message with the bytes; -1: they follow */
} dt__ps_fwd;
typedef struct dt__ps_link { uint32_t magic; int32_t from; int64_t number; int32_t tag, zero; } dt__ps_link; /* between servers; the letter follows */
typedef struct dt__ps_kept { int tag; dt__ps_buf *buf; int64_t nbytes; } dt__ps_kept; /* values of an answer */
typedef struct dt__ps_piece { struct dt__ps_step *step; dt_msg_info info; int64_t nbytes; } dt__ps_piece; /* a message that belongs to a step */
typedef struct dt__ps_step {
    struct dt__ps_step *next;
    dt_request  q;             /* what the handler sees */
    dt_ps      *ps;
    dt_request *real;          /* who waits for the answer; NULL: nobody yet. Of a copy: the server that forwards it */
    int64_t     number, order;
    int         worker, sender; /* -1: it is not of a worker; of a server */
    dt__ps_head head;          /* of a worker */
    char       *block;         /* room for a dt__ps_fwd, then q.data */
    size_t      front;
    dt__ps_piece *piece;
    int64_t     nraw;          /* bytes of the request as it came; it is in raw while pieces are missing */
    char       *raw;
    int         missing;       /* pieces that have not come */
    bool        bad;           /* one of them did not come */
    bool        held;          /* the copy has it, or there is none */
    bool        answered, refused;
    int         users;         /* the lists; messages that use its memory */
    char       *reply;
    int64_t     nreply;
    dt__ps_kept *kept;
    int         nkept;
    char        broken;        /* the copy says that it is not whole */
    dt_msg_info info;          /* ... */
} dt__ps_step;
typedef struct dt__ps_post {   /* a message to another server that is not answered */
    struct dt__ps_post *next;
    dt_ps      *ps;
    int         to, holder;    /* holder: whose rank it was sent to; -1: it is not under way */
    char        early;         /* the answer: the one before it has not come */
    dt_msg_info info;
    size_t      n;
    dt__ps_link link;          /* the letter follows */
} dt__ps_post;
typedef struct dt__ps_rep {
    bool         active;       /* a server; a copy that has taken over */
    bool         busy;         /* steps are being done */
    bool         broken;       /* a copy that has lost a step */
    int          backup;       /* the server whose rank has the copy; -1: there is none */
    int64_t      number;       /* of the last step in the log */
    dt__ps_step *coming;       /* steps that are not in the log: pieces, or steps before them, are missing */
    dt__ps_step *first, *last; /* the log: steps that are not done */
    dt__ps_step *open;         /* done, but not answered */
    dt__ps_step *kept;         /* answered, but nobody has asked */
    dt__ps_post *post[DT_PS_SERVERS]; /* by receiver, in order */
    int64_t      posted[DT_PS_SERVERS], heard[DT_PS_SERVERS]; /* the last message to; from */
    dt_request **waiting;      /* requests for a copy that has not taken over yet */
    int          nwaiting, waiting_cap;
    uint64_t     died;         /* servers that died before they ended */
    uint8_t     *dead_worker;  /* by worker: its rank has died */
} dt__ps_rep;
static dt_ps *dt__ps_main(dt_ps *ps) { return ps->main ? ps->main : ps; }
static int dt__ps_holder(const dt_ps *ps, int server) /* the server whose rank holds it; -1: nobody */
{
    int next = (server + 1) % ps->nservers;
    return !dt__ps_away(ps, server) ? server : ps->o.replicas == 2 && !dt__ps_away(ps, next) ? next : -1;
}
static void dt__ps_gone_away(dt_ps *ps, int server) { __atomic_or_fetch(&dt__ps_main(ps)->away, (uint64_t)1 << server, __ATOMIC_ACQ_REL); }
static int  dt__ps_tag_at(int tag, int server, int holder) { return holder == server ? tag : tag + (int)DT__PS_COPY; }

/* ---- steps */
static dt_request_fn dt__ps_handler_of(int tag);
static void dt__ps_steps_do(dt_ps *ps);
static int  dt__ps_step_answer(dt_request *q, const void *data, int64_t n, const dt_reply_opts *o, bool refuse);
static dt__ps_step *dt__ps_step_new(dt_ps *ps, int tag, int from, size_t n) /* NULL: out of memory */
{
    dt__ps_step *s = (dt__ps_step *)dt__comm_zeroed(1, sizeof *s);
    size_t       front = sizeof(dt__ps_fwd) + (size_t)ps->nservers * sizeof(int64_t);
    if (!s) return NULL;
    s->block = n < SIZE_MAX / 2 ? (char *)DT_COMM_MALLOC(front + n) : NULL;
    if (!s->block) {
        DT_COMM_FREE(s);
        return NULL;
    }
    s->front = front;
    s->ps = ps;
    s->worker = s->sender = -1;
    s->users = 1;
    s->q.from = from;
    s->q.tag = tag;
    s->q.data = s->block + front;
    s->q.n = (int64_t)n;
    s->q.c = ps->c;
    s->q.user = ps;
    s->q.dt__answer = dt__ps_step_answer;
    return s;
}
static void dt__ps_step_leave(dt__ps_step *s)
{
    if (--s->users) return;
    for (int i = 0; i < s->nkept; i++) dt__ps_buf_leave(s->ps, s->kept[i].buf);
    DT_COMM_FREE(s->kept);
    DT_COMM_FREE(s->reply);
    DT_COMM_FREE(s->piece);
    DT_COMM_FREE(s->raw);
    DT_COMM_FREE(s->block);
    DT_COMM_FREE(s);
}
static void dt__ps_step_unlink(dt__ps_step **list, dt__ps_step *s)
{
    while (*list && *list != s) list = &(*list)->next;
    if (*list) *list = s->next;
    s->next = NULL;
}
static void dt__ps_real_answer(dt_request *real, const void *data, int64_t n, const dt_reply_opts *o, bool refuse)
{
    char text[401];
    if (!refuse) {
        dt_request_reply_with(real, data, n, *o);
        return;
    }
    snprintf(text, sizeof text, "%.*s", (int)(n < 400 ? n : 400), (const char *)data);
    dt_request_refuse(real, text);
}
static int dt__ps_step_answer(dt_request *q, const void *data, int64_t n, const dt_reply_opts *o, bool refuse)
{
    dt__ps_step *s = DT__OWNER(dt__ps_step, q, q);
    dt_ps       *ps = s->ps;
    dt_request  *real = s->real;
    dt__ps_step_unlink(&ps->rep->open, s);
    s->real = NULL;
    if (real) {
        dt__ps_real_answer(real, data, n, o, refuse);
        dt__ps_step_leave(s);
        return 0;
    }
    if (s->worker >= 0 && ps->gone[s->worker] != DT__PS_HAS_DIED) s->reply = (char *)DT_COMM_MALLOC(n ? (size_t)n : 1); /* the worker may ask for it */
    if (s->reply && n) memcpy(s->reply, data, (size_t)n);
    if (o->done) o->done(o->user);
    if (!s->reply) {
        dt__ps_step_leave(s);
        return 0;
    }
    s->nreply = n;
    s->answered = true;
    s->refused = refuse;
    if (s->users == 1) {
        DT_COMM_FREE(s->block);
        s->block = NULL;
        s->q.data = NULL;
    }
    s->next = ps->rep->kept;
    ps->rep->kept = s;
    return 0;
}
static bool dt__ps_later(dt_ps *ps, dt_request *q, int tag, dt__ps_buf *buf, int64_t nbytes, bool *ok) /* false: send them now */
{
    if (!q->dt__answer) return false;
    dt__ps_step *s = DT__OWNER(dt__ps_step, q, q);
    if (s->real) return false;
    if (s->worker < 0 || ps->gone[s->worker] == DT__PS_HAS_DIED) return true;
    dt__ps_kept *p = (dt__ps_kept *)DT_COMM_REALLOC(s->kept, (size_t)(s->nkept + 1) * sizeof *p);
    *ok = p != NULL;
    if (!p) return true;
    s->kept = p;
    p[s->nkept].tag = tag;
    p[s->nkept].buf = buf;
    p[s->nkept++].nbytes = nbytes;
    buf->readers++;
    return true;
}
static bool dt__ps_step_is(const dt__ps_step *s, int tag, const dt__ps_head *h)
{
    return s->worker == h->worker && s->q.tag == tag &&
           (tag == DT__PS_EXCHANGE ? s->head.group == h->group && s->head.seq == h->seq : s->head.number == h->number);
}
static dt__ps_step *dt__ps_step_find(dt_ps *ps, int tag, const dt__ps_head *h)
{
    dt__ps_step *list[3];
    list[0] = ps->rep->first;
    list[1] = ps->rep->open;
    list[2] = ps->rep->kept;
    for (int i = 0; i < 3; i++)
        for (dt__ps_step *s = list[i]; s; s = s->next)
            if (dt__ps_step_is(s, tag, h)) return s;
    return NULL;
}
static void dt__ps_step_claim(dt__ps_step *s, dt_request *real) /* a worker asks again, for a step that is here */
{
    dt_ps        *ps = s->ps;
    dt_reply_opts o = DT__NO_OPTIONS;
    if (s->real) dt_request_refuse(s->real, "this worker has asked again"); /* it had given up */
    s->real = real;
    if (!s->answered) return;
    s->real = NULL;
    dt__ps_step_unlink(&ps->rep->kept, s);
    for (int i = 0; i < s->nkept; i++) dt__ps_send(ps, real->from, s->kept[i].tag, s->kept[i].buf, s->kept[i].nbytes); /* else the worker waits in vain, and says so */
    dt__ps_real_answer(real, s->reply, s->nreply, &o, s->refused);
    dt__ps_step_leave(s);
}
static void dt__ps_kept_drop(dt_ps *ps, const dt__ps_step *by) /* a step of a worker says which answers have come */
{
    dt__ps_step **p = &ps->rep->kept;
    while (*p) {
        dt__ps_step *s = *p;
        bool ask = s->q.tag != DT__PS_EXCHANGE, same = ask == (by->q.tag != DT__PS_EXCHANGE);
        bool old = by->q.tag == DT__PS_BYE || by->q.tag == DT__PS_DIED ||
                   (same && (ask ? s->head.number < by->head.number : s->head.group == by->head.group && s->head.seq < by->head.number));
        if (s->worker != by->head.worker || !old) {
            p = &s->next;
            continue;
        }
        *p = s->next;
        dt__ps_step_leave(s);
    }
}
/* May it be done? Values for an array with DT_PS_UPDATE wait for dt_ps_on_update, as in dt__ps_on_set; so do the steps after them. */
static bool dt__ps_step_ready(const dt_ps *ps, const dt__ps_step *s)
{
    const dt__ps_asks *a = (const dt__ps_asks *)s->q.data;
    if (!s->held) return false;
    return s->q.tag != DT__PS_SET || ps->fn || ps->settled || s->q.n < (int64_t)sizeof *a || a->array.rule != DT_PS_UPDATE;
}
static void dt__ps_steps_do(dt_ps *ps)
{
    dt__ps_rep *r = ps->rep;
    if (r->busy) return;
    r->busy = true;
    while (r->first && dt__ps_step_ready(ps, r->first)) {
        dt__ps_step *s = r->first;
        dt_request  *real = s->worker < 0 ? s->real : NULL;
        r->first = s->next;
        if (!r->first) r->last = NULL;
        if (real) { /* of a server: it need not keep the message any more */
            s->real = NULL;
            dt_request_reply_with(real, NULL, 0, dt__ps_no_reply());
        }
        if (s->worker >= 0 || s->q.tag == DT__PS_DIED) dt__ps_kept_drop(ps, s);
        s->next = r->open;
        r->open = s;
        if (s->q.tag == DT__PS_DIED) {
            dt__ps_worker_gone(ps, s->head.worker, DT__PS_HAS_DIED, (const char *)s->q.data + sizeof s->head);
            dt__ps_step_unlink(&r->open, s);
            dt__ps_step_leave(s);
        } else dt__ps_handler_of(s->q.tag)(&s->q); /* s may be gone now */
    }
    r->busy = false;
    dt__ps_over_look(ps);
}
/* ---- a server: steps go to the copy */
static void dt__ps_alone(dt_ps *ps, const char *why)
{
    dt__ps_rep *r = ps->rep;
    if (r->backup < 0) return;
    dt__logf(1, "dt_ps: server %d goes on without a copy: %s", ps->server, why);
    r->backup = -1;
    for (dt__ps_step *s = r->first; s; s = s->next) s->held = true;
    dt__ps_steps_do(ps);
}
static void dt__ps_forward(dt__ps_step *s);
static void dt__ps_forwarded(void *user, int status)
{
    dt__ps_step *s = (dt__ps_step *)user;
    dt_ps       *ps = s->ps;
    char         why[300];
    snprintf(why, sizeof why, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
    if (!status && s->info.n) dt__ps_alone(ps, "the rank of the next server could not keep a request"); /* it will not take over then */
    else if (!status) {
        s->held = true;
        dt__ps_steps_do(ps);
    } else if (status == DT_COMM_ERR_PEER && !dt_comm_get_status(ps->c)) dt__ps_alone(ps, why);
    else if (status == DT_COMM_ERR_TIMEOUT && !s->held && !ps->closing && ps->rep->backup >= 0) dt__ps_forward(s); /* it is stopped; going on without it would not be safe */
    dt__ps_step_leave(s); /* DT_COMM_ERR_REMOTE: the copy has taken over. This server was declared dead, and says nothing more */
    dt__ps_over_look(ps);
    dt__ps_count(ps, -1);
}
static void dt__ps_forward_sent(void *user, int status)
{
    dt__ps_step *s = (dt__ps_step *)user;
    dt_ps       *ps = s->ps;
    (void)status; /* the call says it, too */
    dt__ps_step_leave(s);
    dt__ps_count(ps, -1);
}
static void dt__ps_forward(dt__ps_step *s)
{
    dt_ps      *ps = s->ps;
    dt__ps_fwd *f = (dt__ps_fwd *)(void *)s->block;
    int64_t    *answered = (int64_t *)(void *)(f + 1);
    int         rank = ps->server_rank[ps->rep->backup];
    bool        large = s->q.n > DT__PS_INLINE;
    dt_msg_opts o = DT__NO_OPTIONS, so = DT__NO_OPTIONS;
    memset(f, 0, sizeof *f);
    f->head.magic = DT__PS_MAGIC;
    f->head.worker = s->worker;
    f->number = s->number;
    f->order = s->order;
    f->n = s->q.n;
    f->sender = s->sender;
    f->tag = s->q.tag;
    f->from = s->q.from;
    f->message = large ? dt__ps_next_tag(ps) : -1;
    for (int i = 0; i < ps->nservers; i++) answered[i] = ps->rep->post[i] ? ps->rep->post[i]->link.number - 1 : ps->rep->posted[i];
    o.timeout = so.timeout = ps->timeout;
    o.info = &s->info;
    s->info.n = 0;
    s->users++;
    dt__ps_count(ps, 1);
    dt_work *w = dt_comm_call_start_with(ps->c, rank, DT__PS_FORWARD, s->block, (int64_t)s->front + (large ? 0 : s->q.n), &s->broken, 1, o);
    if (w && large) {
        so.tag = f->message;
        s->users++;
        dt__ps_count(ps, 1);
        dt_work *send = dt_comm_send_start_with(ps->c, s->q.data, s->q.n, DT_COMM_U8, rank, so);
        if (send) dt_work_then(send, dt__ps_forward_sent, s);
        else dt__ps_forward_sent(s, DT_COMM_ERR_MEMORY);
    }
    if (w) dt_work_then(w, dt__ps_forwarded, s);
    else dt__ps_forwarded(s, dt_comm_get_status(NULL) == DT_COMM_ERR_PEER ? DT_COMM_ERR_PEER : DT_COMM_ERR_STATE);
}
static void dt__ps_admit(dt__ps_step *s) /* the next in the log of a server */
{
    dt__ps_rep *r = s->ps->rep;
    s->number = ++r->number;
    s->next = NULL;
    if (r->last) r->last->next = s;
    else r->first = s;
    r->last = s;
    if (s->sender >= 0) r->heard[s->sender] = s->order;
    s->held = r->backup < 0;
    if (s->held) dt__ps_steps_do(s->ps);
    else dt__ps_forward(s);
}
/* ---- steps that come */
static dt__ps_step *dt__ps_next_step(const dt__ps_rep *r) /* one that is whole, and whose turn it is; NULL: there is none */
{
    for (dt__ps_step *s = r->coming; s; s = s->next) {
        bool turn = !s->missing && (r->active || s->number == r->number + 1);
        for (const dt__ps_step *e = r->coming; r->active && e != s && turn; e = e->next) turn = e->worker != s->worker;
        if (turn) return s;
    }
    return NULL;
}
static void dt__ps_arrived(dt_ps *ps) /* such steps go to the log */
{
    dt__ps_rep *r = ps->rep;
    for (dt__ps_step *s; (s = dt__ps_next_step(r)) != NULL;) {
        dt__ps_step_unlink(&r->coming, s);
        if (!r->active) {
            memcpy(&s->head, s->q.data, sizeof s->head);
            r->number++;
            if (r->last) r->last->next = s;
            else r->first = s;
            r->last = s;
            if (s->sender >= 0) r->heard[s->sender] = s->order;
            s->held = true;
            dt__ps_steps_do(ps);
            continue;
        }
        if (s->bad) { /* as it came: the handler refuses it, and says so to the coordinator */
            memcpy(s->block + s->front, s->raw, (size_t)s->nraw);
            s->q.n = s->nraw;
        }
        dt__ps_step *same = dt__ps_step_find(ps, s->q.tag, &s->head);
        if (!same) dt__ps_admit(s);
        else {
            dt__ps_step_claim(same, s->real);
            dt__ps_step_leave(s);
        }
    }
}
static void dt__ps_coming_add(dt__ps_step *s)
{
    dt__ps_step **p = &s->ps->rep->coming;
    while (*p) p = &(*p)->next;
    *p = s;
    s->next = NULL;
}
static void dt__ps_broken(dt_ps *ps, dt_request *q) /* a copy cannot keep a step: from now on it is none */
{
    dt_reply_opts o = DT__NO_OPTIONS;
    ps->rep->broken = true;
    dt__logf(1, "dt_ps: rank %d: the copy of server %d is not whole, and will not be used: out of memory, or a message did not come", ps->c->rank, ps->server);
    dt_request_reply_with(q, "x", 1, o);
}
static void dt__ps_piece_came(void *user, int status)
{
    dt__ps_piece *p = (dt__ps_piece *)user;
    dt__ps_step  *s = p->step;
    dt_ps        *ps = s->ps;
    s->missing--;
    if (status || p->info.n != p->nbytes) s->bad = true;
    if (ps->main && s->number && s->real && !s->missing) { /* of a copy: the server wants to know */
        dt_request *real = s->real;
        s->real = NULL;
        if (s->bad && status == DT_COMM_ERR_PEER) dt_request_refuse(real, "the server has died"); /* it has not done this step */
        else if (s->bad) dt__ps_broken(ps, real);
        else dt_request_reply_with(real, NULL, 0, dt__ps_no_reply());
    }
    if (s->number && (s->bad || ps->rep->active)) dt__ps_step_unlink(&ps->rep->coming, s), dt__ps_step_leave(s);
    else dt__ps_arrived(ps);
    dt__ps_count(ps, -1);
}
static void dt__ps_piece_get(dt__ps_step *s, dt__ps_piece *p, char *to, int64_t nbytes, int from, int tag)
{
    dt_ps      *ps = s->ps;
    dt_msg_opts o = DT__NO_OPTIONS;
    o.tag = tag;
    o.timeout = ps->timeout;
    o.info = &p->info;
    p->step = s;
    p->nbytes = nbytes;
    dt__ps_count(ps, 1);
    dt_work *w = dt_comm_recv_start_with(ps->c, to, nbytes, DT_COMM_U8, from, o);
    if (w) dt_work_then(w, dt__ps_piece_came, p);
    else dt__ps_piece_came(p, DT_COMM_ERR_MEMORY);
}
/* Where the bytes of a request go: those that followed it, and those that are messages, one behind the other. */
static int dt__ps_gather_plan(const dt_request *q, int tag, size_t *first, size_t *total) /* how many messages; 0: none, or the request is broken */
{
    const dt__ps_head *h = (const dt__ps_head *)q->data;
    size_t             at, n = (size_t)q->n;
    int                count = 0;
    if (tag == DT__PS_SET) {
        const dt__ps_asks *a = (const dt__ps_asks *)q->data;
        if (n != sizeof *a || a->array.tag < DT__PS_DATA || a->array.nbytes < 0 || a->array.nbytes > INT64_MAX / 64) return 0;
        *first = sizeof *a;
        *total = sizeof *a + (size_t)a->array.nbytes;
        return 1;
    }
    const dt__ps_wire *w = (const dt__ps_wire *)(const void *)(h + 1);
    if (tag != DT__PS_EXCHANGE || !(h->flags & DT__PS_HAS_PUSH) || h->nparts < 0 || h->nparts > DT__PS_PARTS ||
        (n - sizeof *h) / sizeof *w < (size_t)h->nparts)
        return 0;
    *first = *total = at = sizeof *h + (size_t)h->nparts * sizeof *w;
    for (int i = 0; i < h->nparts; i++) {
        if (w[i].nbytes < 0 || w[i].nbytes > INT64_MAX / 64 || *total > SIZE_MAX / 4) return 0;
        size_t up = dt__ps_up8((size_t)w[i].nbytes);
        *total += up;
        if (w[i].tag >= DT__PS_DATA) count++;
        else if (w[i].tag >= 0 || at > n || n - at < (size_t)w[i].nbytes) return 0;
        else at += up;
    }
    return count;
}
static dt__ps_step *dt__ps_gather(dt_ps *ps, dt_request *q, int tag) /* NULL: out of memory */
{
    size_t       first = 0, total = 0, n = (size_t)q->n, at, from;
    int          count = dt__ps_gather_plan(q, tag, &first, &total);
    dt__ps_step *s = dt__ps_step_new(ps, tag, q->from, count ? (total > n ? total : n) : n);
    if (!s) return NULL;
    memcpy(&s->head, q->data, sizeof s->head);
    s->worker = s->head.worker;
    s->real = q;
    char *to = s->block + s->front;
    memcpy(to, q->data, n);
    if (!count) {
        dt__ps_coming_add(s);
        return s;
    }
    s->piece = (dt__ps_piece *)dt__comm_zeroed((size_t)count, sizeof *s->piece);
    s->raw = (char *)DT_COMM_MALLOC(n);
    if (!s->piece || !s->raw) {
        dt__ps_step_leave(s);
        return NULL;
    }
    memcpy(s->raw, q->data, n);
    s->nraw = q->n;
    s->q.n = (int64_t)total;
    s->missing = count;
    dt__ps_coming_add(s);
    if (tag == DT__PS_SET) {
        dt__ps_asks *a = (dt__ps_asks *)(void *)to;
        int          message = a->array.tag;
        a->array.tag = -1;
        dt__ps_piece_get(s, s->piece, to + first, a->array.nbytes, q->from, message);
        return s;
    }
    dt__ps_wire *w = (dt__ps_wire *)(void *)(to + sizeof(dt__ps_head));
    const dt__ps_wire *was = (const dt__ps_wire *)(const void *)(s->raw + sizeof(dt__ps_head));
    int nparts = s->head.nparts;
    at = from = first;
    s->users++; /* s stays while its receives are posted */
    for (int i = 0; i < nparts; i++) {
        size_t up = dt__ps_up8((size_t)was[i].nbytes);
        w[i].tag = DT__PS_FOLLOWS;
        if (was[i].tag < 0) {
            memcpy(to + at, s->raw + from, (size_t)was[i].nbytes);
            from += up;
        }
        at += up;
    }
    at = first;
    for (int i = 0, k = 0; i < nparts; i++) {
        if (was[i].tag >= 0) dt__ps_piece_get(s, &s->piece[k++], to + at, was[i].nbytes, q->from, was[i].tag);
        at += dt__ps_up8((size_t)was[i].nbytes);
    }
    dt__ps_step_leave(s);
    return s;
}
/* There is no memory for a request. Others may have their part of it, and wait for this one: this rank ends, and the copy takes over. */
static void dt__ps_give_up(dt_ps *ps, dt_request *q)
{
    dt_comm_abort(ps->c, "dt_ps: out of memory");
    dt_request_refuse(q, "the server is out of memory");
}
static void dt__ps_take_link(dt_ps *ps, dt_request *q) /* a message of another server */
{
    dt__ps_link l;
    dt__ps_rep *r = ps->rep;
    if (q->n >= (int64_t)sizeof l) memcpy(&l, q->data, sizeof l);
    if (q->n < (int64_t)(sizeof l + sizeof(dt__ps_head)) || l.magic != DT__PS_MAGIC || l.from < 0 || l.from >= ps->nservers || l.number < 1 ||
        (l.tag != DT__PS_STAGED && l.tag != DT__PS_ORDER) ||
        (q->from != ps->server_rank[l.from] && q->from != ps->server_rank[(l.from + 1) % ps->nservers])) {
        dt__ps_refuse(q, "server %d: rank %d is no server, or its message is broken", ps->server, q->from);
        return;
    }
    if (l.number <= r->heard[l.from]) { /* it was here before; if the copy does not have it yet, the answer waits */
        dt__ps_step *s = r->first;
        while (s && (s->sender != l.from || s->order != l.number)) s = s->next;
        if (s && s->real) dt_request_refuse(s->real, "sent again");
        if (s) s->real = q;
        else dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        return;
    }
    if (l.number > r->heard[l.from] + 1) { /* a large message before it was lost with its sender: both come again */
        dt_request_reply_with(q, "x", 1, dt__ps_no_reply());
        return;
    }
    dt__ps_step *s = dt__ps_step_new(ps, l.tag, ps->server_rank[l.from], (size_t)q->n - sizeof l);
    if (!s) {
        dt__ps_give_up(ps, q);
        return;
    }
    memcpy(s->block + s->front, (const char *)q->data + sizeof l, (size_t)q->n - sizeof l);
    s->sender = l.from;
    s->order = l.number;
    s->real = q;
    dt__ps_admit(s);
}
static void dt__ps_take(dt_request *q) /* all requests for servers */
{
    dt_ps      *store = (dt_ps *)q->user, *ps = store;
    int         tag = q->tag;
    dt__ps_head h;
    if (tag >= (int)DT_PS_TAG + (int)DT__PS_COPY) tag -= (int)DT__PS_COPY, ps = store->copy;
    dt__ps_rep *r = ps->rep;
    bool        ended = store->ended >> ps->server & 1 && !(store->rep->died >> ps->server & 1);
    if (!r->active && ended) { /* that server has nothing more to say, and so has this one */
        if (tag == DT__PS_LINK || tag == DT__PS_BYE) dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        else dt__ps_refuse(q, "server %d has ended", ps->server);
        return;
    }
    if (!r->active) { /* who asks knows earlier than this rank that the server has died */
        if (r->nwaiting == r->waiting_cap) {
            int          more = r->waiting_cap ? 2 * r->waiting_cap : 16;
            dt_request **p = (dt_request **)DT_COMM_REALLOC(r->waiting, (size_t)more * sizeof *p);
            if (p) r->waiting = p, r->waiting_cap = more;
        }
        if (r->nwaiting < r->waiting_cap) r->waiting[r->nwaiting++] = q;
        else dt__ps_give_up(ps, q);
        return;
    }
    q->user = ps;
    q->tag = tag;
    if (r->broken && tag == DT__PS_BYE) dt__ps_on_bye(q);
    else if (r->broken && tag == DT__PS_LINK) dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    else if (r->broken)
        dt__ps_refuse(q, "server %d (rank %d) has gone, and its copy is not whole: start again from a checkpoint", ps->server, ps->server_rank[ps->server]);
    else if (tag == DT__PS_LINK) dt__ps_take_link(ps, q);
    if (r->broken || tag == DT__PS_LINK) return;
    bool valid = q->n >= (int64_t)sizeof h;
    if (valid) memcpy(&h, q->data, sizeof h);
    valid = valid && h.magic == DT__PS_MAGIC && h.worker >= 0 && h.worker < ps->nworkers && ps->worker_rank[h.worker] == q->from;
    dt__ps_step *same = valid && ps->gone[h.worker] == DT__PS_HAS_LEFT ? dt__ps_step_find(ps, tag, &h) : NULL; /* its farewell, again */
    if (same) {
        dt__ps_step_claim(same, q);
        return;
    }
    if (!dt__ps_head_from(ps, q, &h, sizeof h)) return;
    if ((tag == DT__PS_ASK && (h.what == DT__PS_ASK_STATS || h.what == DT__PS_ASK_WHY || h.what == DT__PS_ASK_CURSOR)) ||
        (tag == DT__PS_STATE && !(h.flags & DT__PS_HAS_PUSH))) {
        dt__ps_handler_of(tag)(q);
        return;
    }
    if (dt__ps_gather(ps, q, tag)) dt__ps_arrived(ps);
    else dt__ps_give_up(ps, q);
}
static void dt__ps_on_forward(dt_request *q) /* a copy gets a step */
{
    dt_ps      *store = (dt_ps *)q->user, *ps = store->copy;
    dt__ps_rep *r = ps->rep;
    dt__ps_fwd  f;
    size_t      front = sizeof f + (size_t)ps->nservers * sizeof(int64_t);
    if (q->n >= (int64_t)front) memcpy(&f, q->data, sizeof f);
    if (q->n < (int64_t)front || f.head.magic != DT__PS_MAGIC || q->from != ps->server_rank[ps->server] || f.n < 0 || f.n > INT64_MAX / 64 || f.number < 1 ||
        (f.message < 0 ? q->n - (int64_t)front != f.n : f.message < DT__PS_DATA) || f.sender < -1 || f.sender >= ps->nservers || f.head.worker < -1 ||
        f.head.worker >= ps->nworkers || (f.tag != DT__PS_DIED && !dt__ps_handler_of(f.tag)) || f.from < 0 || f.from >= ps->size ||
        f.n < (int64_t)sizeof(dt__ps_head)) {
        dt__ps_refuse(q, "rank %d is not the server before this one, or its message is broken", q->from);
        return;
    }
    if (r->active || r->broken) { /* broken: the server knows it */
        dt__ps_refuse(q, "rank %d has taken over server %d", ps->c->rank, ps->server);
        return;
    }
    const int64_t *answered = (const int64_t *)(const void *)((const char *)q->data + sizeof f);
    for (int i = 0; i < ps->nservers; i++)
        while (r->post[i] && r->post[i]->link.number <= answered[i]) {
            dt__ps_post *p = r->post[i];
            r->post[i] = p->next;
            DT_COMM_FREE(p);
        }
    for (dt__ps_step *s = r->coming; s; s = s->next) {
        if (s->number != f.number) continue;
        if (s->real) dt_request_refuse(s->real, "sent again");
        s->real = s->missing ? q : NULL;
        if (s->missing) return;
        f.number = r->number; /* it is here */
    }
    if (f.number <= r->number) {
        dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
        return;
    }
    dt__ps_step *s = dt__ps_step_new(ps, f.tag, f.from, (size_t)f.n);
    if (s && f.message >= 0) s->piece = (dt__ps_piece *)dt__comm_zeroed(1, sizeof *s->piece);
    if (!s || (f.message >= 0 && !s->piece)) {
        if (s) dt__ps_step_leave(s);
        dt__ps_broken(ps, q);
        return;
    }
    s->number = f.number;
    s->order = f.order;
    s->sender = f.sender;
    s->worker = f.head.worker;
    dt__ps_coming_add(s);
    if (f.message >= 0) {
        s->missing = 1;
        s->real = q;
        dt__ps_piece_get(s, s->piece, s->block + s->front, f.n, q->from, f.message);
        return;
    }
    memcpy(s->block + s->front, (const char *)q->data + front, (size_t)f.n);
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    dt__ps_arrived(ps);
}
/* ---- messages between servers */
static void dt__ps_posts_send(dt_ps *ps, int to);
static void dt__ps_posted(void *user, int status)
{
    dt__ps_post  *p = (dt__ps_post *)user;
    dt_ps        *ps = p->ps, *store = dt__ps_main(ps);
    dt__ps_post **list = &ps->rep->post[p->to];
    int           to = p->to, holder = p->holder;
    bool          early = !status && p->info.n, again = early || status == DT_COMM_ERR_PEER || status == DT_COMM_ERR_TIMEOUT;
    bool          ended = store->ended >> to & 1 && !(store->rep->died >> to & 1);
    p->holder = -1;
    if (status == DT_COMM_ERR_PEER) dt__ps_gone_away(ps, holder);
    if (!again || ended || ps->closing || dt_comm_get_status(ps->c)) {
        while (*list && *list != p) list = &(*list)->next;
        if (*list) *list = p->next;
        DT_COMM_FREE(p);
    }
    if (!early) dt__ps_posts_send(ps, to); /* else when the one before it has ended */
    dt__ps_over_look(ps);
    dt__ps_count(ps, -1);
}
static void dt__ps_posts_send(dt_ps *ps, int to) /* what is not under way, in order */
{
    dt__ps_rep *r = ps->rep;
    while (r->active && !ps->closing && !dt_comm_get_status(ps->c)) { /* a call may end at once, in dt_work_then */
        int          holder = dt__ps_holder(ps, to);
        dt__ps_post *p = r->post[to];
        dt_msg_opts  o = DT__NO_OPTIONS;
        for (; p && p->holder >= 0; p = p->next)
            if (p->holder != holder) return; /* to one that has gone: its end comes first */
        for (const dt__ps_post *e = p; e; e = e->next)
            if (e->holder >= 0 && e->holder != holder) return;
        if (!p) return;
        if (holder < 0) { /* nobody is there */
            r->post[to] = p->next;
            DT_COMM_FREE(p);
            continue;
        }
        o.timeout = ps->timeout;
        o.info = &p->info;
        p->info.n = 0;
        p->holder = holder;
        dt__ps_count(ps, 1);
        dt_work *w = dt_comm_call_start_with(ps->c, ps->server_rank[holder], dt__ps_tag_at(DT__PS_LINK, to, holder), &p->link,
                                             (int64_t)(sizeof p->link + p->n), &p->early, 1, o);
        if (w) dt_work_then(w, dt__ps_posted, p);
        else dt__ps_posted(p, DT_COMM_ERR_STATE);
    }
}
static bool dt__ps_post_new(dt_ps *ps, int rank, int tag, const void *letter, size_t n) /* false: it is no such message */
{
    dt__ps_rep *r = ps->rep;
    if (tag == DT__PS_NOTICE) return !r->active;
    if (tag != DT__PS_STAGED && tag != DT__PS_ORDER) return false;
    int           to = dt__ps_server_of(ps, rank);
    dt__ps_post **p = &r->post[to], *t = (dt__ps_post *)dt__comm_zeroed(1, sizeof *t + n);
    if (!t) {
        dt_comm_abort(ps->c, "dt_ps: out of memory");
        return true;
    }
    while (*p) p = &(*p)->next;
    *p = t;
    t->ps = ps;
    t->to = to;
    t->holder = -1;
    t->n = n;
    t->link.magic = DT__PS_MAGIC;
    t->link.from = ps->server;
    t->link.number = ++r->posted[to];
    t->link.tag = tag;
    memcpy(t + 1, letter, n);
    dt__ps_posts_send(ps, to);
    return true;
}
/* ---- deaths */
static void dt__ps_died_step(dt_ps *ps, int worker, const char *why)
{
    size_t       n = strlen(why) + 1, room = n < sizeof(dt__ps_head) ? sizeof(dt__ps_head) : n;
    dt__ps_step *s = dt__ps_step_new(ps, DT__PS_DIED, ps->worker_rank[worker], sizeof(dt__ps_head) + room);
    if (!s) {
        dt_comm_abort(ps->c, "dt_ps: out of memory");
        return;
    }
    memset(s->block + s->front, 0, sizeof(dt__ps_head) + room);
    s->head.magic = DT__PS_MAGIC;
    s->head.worker = worker;
    memcpy(s->block + s->front, &s->head, sizeof s->head);
    memcpy(s->block + s->front + sizeof s->head, why, n);
    dt__ps_admit(s);
}
static void dt__ps_rep_died(dt_ps *ps, int worker, const char *why) /* the rank of a worker */
{
    if (ps->closing) return;
    ps->rep->dead_worker[worker] = 1;
    dt__ps_died_step(ps, worker, why);
    if (ps->copy->rep->active) dt__ps_died_step(ps->copy, worker, why);
}
static void dt__ps_take_over(dt_ps *ps, const char *why) /* a copy */
{
    dt__ps_rep *r = ps->rep;
    dt_ps      *store = ps->main;
    dt__logf(1, "dt_ps: rank %d takes over server %d, which has no copy now: %s", ps->c->rank, ps->server, why);
    for (dt__ps_step *s = r->coming, *next; s; s = next) { /* steps before them are missing: the server has not done them */
        next = s->next;
        if (s->real) dt_request_refuse(s->real, "the server has died");
        s->real = NULL;
        if (s->missing) continue; /* dt__ps_piece_came frees it */
        dt__ps_step_unlink(&r->coming, s);
        dt__ps_step_leave(s);
    }
    r->active = true;
    if (r->broken)
        for (dt__ps_group *g = ps->all; g; g = g->next) dt__ps_group_fail(ps, g, "a server has died, and its copy is not whole: start again from a checkpoint");
    for (int i = 0; i < ps->nworkers; i++)
        if (store->rep->dead_worker[i]) dt__ps_died_step(ps, i, "it died");
    for (int i = 0; i < ps->nservers; i++) dt__ps_posts_send(ps, i);
    for (int i = 0; i < r->nwaiting; i++) {
        r->waiting[i]->user = store;
        dt__ps_take(r->waiting[i]);
    }
    r->nwaiting = 0;
}
static void dt__ps_rep_gone(dt_ps *ps, int server, const char *why) /* the rank of a server */
{
    dt_ps *copy = ps->copy;
    ps->rep->died |= (uint64_t)1 << server;
    dt__ps_gone_away(ps, server);
    if (ps->rep->backup == server) dt__ps_alone(ps, why);
    for (int s = 0; s < ps->nservers; s++) {
        uint64_t both = (uint64_t)1 << s | (uint64_t)1 << (s + 1) % ps->nservers;
        if ((ps->rep->died & both) != both || ps->dead >> s & 1) continue;
        dt__ps_server_lost(ps, s, why);
        dt__ps_server_lost(copy, s, why);
    }
    if (copy->server == server) dt__ps_take_over(copy, why);
    for (int s = 0; s < ps->nservers; s++) {
        dt__ps_posts_send(ps, s);
        dt__ps_posts_send(copy, s);
    }
    dt__ps_over_look(ps);
}
static bool dt__ps_machine_idle(const dt_ps *ps)
{
    const dt__ps_rep *r = ps->rep;
    if (ps->ngone < ps->nworkers || r->busy || r->first || r->coming || ps->ntells) return false;
    for (int i = 0; i < ps->nservers; i++)
        if (r->post[i]) return false;
    for (const dt__ps_group *g = ps->all; g; g = g->next)
        if (g->here && !g->bad[0] && (g->busy || !dt__ps_all_left((dt_ps *)(uintptr_t)ps, g))) return false;
    return true;
}
static bool dt__ps_rep_idle(const dt_ps *ps) { return dt__ps_machine_idle(ps) && (!ps->copy->rep->active || dt__ps_machine_idle(ps->copy)); }
static void dt__ps_rep_settled(dt_ps *ps) /* dt_ps_on_update was called, or the program has gone on without */
{
    ps->copy->fn = ps->fn;
    ps->copy->user = ps->user;
    ps->copy->nstate = ps->nstate;
    ps->copy->settled = ps->settled;
    dt__ps_steps_do(ps);
    dt__ps_steps_do(ps->copy);
}
static void dt__ps_rep_close(dt_ps *ps) /* what only another server could end */
{
    while (ps->setting) {
        dt__ps_setting *s = ps->setting;
        ps->setting = s->next;
        dt__ps_set_told(s, DT_COMM_ERR_STATE);
    }
}
static bool dt__ps_rep_new(dt_ps *ps) /* false: out of memory */
{
    ps->rep = (dt__ps_rep *)dt__comm_zeroed(1, sizeof *ps->rep);
    if (ps->rep) ps->rep->backup = -1;
    if (ps->main || !ps->rep) return ps->rep != NULL;
    dt_ps *copy = ps->copy = (dt_ps *)DT_COMM_MALLOC(sizeof *copy);
    if (!copy) return false;
    ps->rep->active = true;
    ps->rep->backup = (ps->server + 1) % ps->nservers;
    ps->rep->dead_worker = (uint8_t *)dt__comm_zeroed((size_t)ps->nworkers, 1);
    memcpy((void *)copy, ps, sizeof *copy);
    copy->copy = NULL;
    copy->rep = NULL;
    copy->main = ps;
    copy->worker = -1;
    copy->server = (ps->server + ps->nservers - 1) % ps->nservers;
    copy->watch = NULL;
    copy->watcher = NULL;
    copy->machine_of = copy->crew = NULL;
    pthread_mutex_init(&copy->lock, NULL);
    copy->gone = (uint8_t *)dt__comm_zeroed((size_t)ps->nworkers, 1);
    copy->barrier = (dt_request **)dt__comm_zeroed((size_t)ps->nworkers, sizeof *copy->barrier);
    return dt__ps_rep_new(copy) && ps->rep->dead_worker && copy->gone && copy->barrier;
}
static void dt__ps_rep_free(dt_ps *ps)
{
    dt__ps_rep *r = ps->rep;
    if (!r) return;
    dt__ps_step *list[4];
    list[0] = r->coming;
    list[1] = r->first;
    list[2] = r->open;
    list[3] = r->kept;
    for (int i = 0; i < 4; i++)
        for (dt__ps_step *s = list[i], *next; s; s = next) {
            next = s->next;
            if (s->real) dt_request_refuse(s->real, "the parameter server has ended");
            s->real = NULL;
            dt__ps_step_leave(s);
        }
    for (int i = 0; i < ps->nservers; i++)
        for (dt__ps_post *p = r->post[i], *next; p; p = next) {
            next = p->next;
            DT_COMM_FREE(p);
        }
    for (int i = 0; i < r->nwaiting; i++) dt_request_refuse(r->waiting[i], "the parameter server has ended");
    DT_COMM_FREE(r->waiting);
    DT_COMM_FREE(r->dead_worker);
    DT_COMM_FREE(r);
    ps->rep = NULL;
}

/* ==================================================================================================== >>worker
   An operation is a call to each server that has a part of the group's arrays. When all answers are there, large parts are received
   directly to their place. The thread that drives the communicator moves it on; the program waits for `done`. */
typedef struct dt__ps_bytes { int64_t at, n; } dt__ps_bytes;
typedef struct dt__ps_key {
    dt__ps_wire wire;          /* at: 0; n: of the whole array */
    int         server;        /* or DT__PS_CUT */
    int         group;         /* id */
    /* groups with a codec, from the first push on. The thread that starts a push writes them, and servers read code until it has ended */
    float      *residual[2];   /* that of the pushes so far, [team->now], and what it will be if the next one is used. NULL: the codec has none */
    char       *code;          /* a push, encoded: the parts for all servers */
    dt__ps_bytes *coded;    /* by server: bytes of code */
} dt__ps_key;
typedef struct dt__ps_team {   /* a group, as its workers see it */
    int      id, coordinator;
    int     *key;
    int      nkeys, keys_cap;
    int64_t  seq;
    int64_t  version;          /* of the values that this worker has; atomic */
    int64_t  newest;           /* it was told of this version: atomic */
    dt_codec codec;
    int      settled;          /* no push is under way, or there is no codec; atomic: it orders the two that follow */
    int      now;              /* 0 or 1: which residual counts */
    uint64_t pushes;           /* that were not thrown away */
} dt__ps_team;
typedef struct dt__ps_out {    /* a message with a part of a push */
    struct dt__ps_call *call;
    dt_work  *work;            /* NULL: it has ended */
} dt__ps_out;
enum { DT__PS_CALL_NONE = 0, DT__PS_CALL_WAITS, DT__PS_CALL_SENT }; /* neither; it waits for its turn; it is under way */
typedef struct dt__ps_try { struct dt__ps_call *call; int no; } dt__ps_try;
typedef struct dt__ps_call {   /* to one server */
    dt_ps_op   *op;
    int         server;
    int         holder;        /* the server whose rank was asked: server, or the one with its copy */
    int         no;            /* 1: it was asked again, after a death */
    int         state;         /* .replicas: DT__PS_CALL_... */
    dt__ps_try  attempt[2];
    char       *in, *out;
    int64_t     nin, nout;
    dt_msg_info info;
    dt__ps_out *send;
    int         nsends;
} dt__ps_call;
enum { DT__PS_DONE = 1, DT__PS_THEN }; /* phase: all has ended; fn will be called */
struct dt_ps_op {
    dt_ps       *ps;
    dt_ps_op    *next, **link; /* in ps->ops; link: what points to it */
    dt__ps_team *team;
    dt_ps_item  *item;
    int          nitems;
    bool         coded;        /* it has a push, encoded */
    dt__ps_call *call;
    int          ncalls;
    int          left;         /* calls and messages that have not ended; atomic */
    int          status;       /* the first that is not 0, or that of a server that has gone; atomic */
    int          phase;        /* DT__PS_DONE ...; atomic */
    int64_t      seq;
    dt_ps_info   info;
    char         said[600];
    void       (*fn)(void *user, int status, const dt_ps_info *info);
    void        *user;
};
static void dt__ps_op_free(dt_ps_op *op)
{
    if (op->link) {
        pthread_mutex_lock(&op->ps->lock);
        *op->link = op->next;
        if (op->next) op->next->link = op->link;
        pthread_mutex_unlock(&op->ps->lock);
    }
    for (int i = 0; i < op->ncalls; i++) {
        DT_COMM_FREE(op->call[i].in);
        DT_COMM_FREE(op->call[i].out);
        DT_COMM_FREE(op->call[i].send);
    }
    DT_COMM_FREE(op->call);
    DT_COMM_FREE(op->item);
    DT_COMM_FREE(op);
}
static void dt__ps_op_bad(dt_ps_op *op, int status, const char *why)
{
    pthread_mutex_lock(&op->ps->lock);
    if (!op->status || (op->status == DT_COMM_ERR_REMOTE && status == DT_COMM_ERR_PEER)) { /* the latter knows which arrays are lost */
        snprintf(op->said, sizeof op->said, "%s", why ? why : "the communicator has failed");
        __atomic_store_n(&op->status, status, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&op->ps->lock);
}
static void dt__ps_op_run(dt_ps_op *op)
{
    void (*fn)(void *user, int status, const dt_ps_info *info) = op->fn;
    void      *user = op->user;
    int        status = op->status;
    dt_ps_info info = op->info;
    if (status) dt__comm_bad(status, "%s", op->said);
    dt__ps_op_free(op);
    fn(user, status, &info);
}
static void dt__ps_op_less(dt_ps_op *op) /* one of its calls and messages has ended */
{
    dt_ps *ps = op->ps;
    if (__atomic_sub_fetch(&op->left, 1, __ATOMIC_ACQ_REL)) return;
    if (!op->status && op->info.fresh && op->info.version > __atomic_load_n(&op->team->version, __ATOMIC_RELAXED))
        __atomic_store_n(&op->team->version, op->info.version, __ATOMIC_RELEASE);
    if (op->coded) { /* a push that was thrown away leaves the residual as it was */
        if (!op->status && (op->info.verdict == DT_PS_USED || op->info.verdict == DT_PS_KEPT)) op->team->now ^= 1, op->team->pushes++;
        __atomic_store_n(&op->team->settled, 1, __ATOMIC_RELEASE);
    }
    int zero = 0;
    if (!__atomic_compare_exchange_n(&op->phase, &zero, DT__PS_DONE, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) dt__ps_op_run(op);
    dt__ps_count(ps, -1); /* op may be gone now */
}
static const char *dt__ps_why(const dt_ps *ps) /* of a call that has just ended */
{
    const char *why = dt_comm_error(ps->c);
    return why ? why : dt_comm_error(NULL);
}
/* A server has gone for good: which arrays went with it. */
static void dt__ps_lost_text(dt_ps *ps, int server, char *text, size_t n, const char *why)
{
    int at = snprintf(text, n, "server %d (rank %d)", server, ps->server_rank[server]), listed = 0, more = 0;
    if (ps->o.replicas == 2) at += snprintf(text + at, n - (size_t)at, " and its copy (rank %d)", ps->server_rank[(server + 1) % ps->nservers]);
    at += snprintf(text + at, n - (size_t)at, "%s gone, with", ps->o.replicas == 2 ? " have" : " has");
    pthread_mutex_lock(&ps->lock);
    for (int i = 0; i < ps->keys.n; i++) {
        const dt__ps_key *k = (const dt__ps_key *)ps->keys.at[i];
        int64_t           first, m;
        if (!k || (k->server != DT__PS_CUT && k->server != server)) continue;
        dt__ps_range(ps, k->wire.n, server, k->server, &first, &m);
        if ((size_t)at + 120 > n / 2) more++;
        else at += snprintf(text + at, n - (size_t)at, "%s key %d (elements %" PRId64 " to %" PRId64 ")", listed++ ? "," : "", i, first, first + m - 1);
    }
    pthread_mutex_unlock(&ps->lock);
    if (more) at += snprintf(text + at, n - (size_t)at, " and %d more", more);
    snprintf(text + at, n - (size_t)at, "%s: start again from a checkpoint. %.150s", listed ? "" : " no array that this worker knows", why ? why : "");
}
static void dt__ps_call_bad(dt__ps_call *k, int status)
{
    dt_ps *ps = k->op->ps;
    char   text[600];
    if (status == DT_COMM_ERR_PEER && !dt_comm_get_status(ps->c)) dt__ps_lost_text(ps, k->server, text, sizeof text, dt__ps_why(ps));
    else snprintf(text, sizeof text, "server %d (rank %d): %.500s", k->server, ps->server_rank[k->server], dt__ps_why(ps) ? dt__ps_why(ps) : "no answer");
    dt__ps_op_bad(k->op, status, text);
}
static void dt__ps_calls_go(dt_ps *ps);
static void dt__ps_call_queue(dt__ps_call *k)
{
    pthread_mutex_lock(&k->op->ps->lock);
    k->state = DT__PS_CALL_WAITS;
    pthread_mutex_unlock(&k->op->ps->lock);
}
static void dt__ps_call_ended(dt__ps_call *k)
{
    pthread_mutex_lock(&k->op->ps->lock);
    k->state = DT__PS_CALL_NONE;
    pthread_mutex_unlock(&k->op->ps->lock);
    dt__ps_calls_go(k->op->ps);
}
/* .replicas: the rank that was asked has gone. The one with its copy is asked: false: there is none. */
static bool dt__ps_call_again(dt__ps_call *k, int status)
{
    dt_ps *ps = k->op->ps;
    if (status != DT_COMM_ERR_PEER || ps->o.replicas != 2 || k->no || dt_comm_get_status(ps->c)) return false;
    dt__ps_gone_away(ps, k->holder);
    if (dt__ps_holder(ps, k->server) < 0) return false;
    k->no = 1;
    __atomic_add_fetch(&k->op->left, 1, __ATOMIC_ACQ_REL);
    dt__ps_call_queue(k);
    return true;
}
static void dt__ps_value_came(void *user, int status)
{
    const dt__ps_try *t = (const dt__ps_try *)user;
    dt__ps_call      *k = t->call;
    dt_ps            *ps = k->op->ps;
    bool              again = status && t->no == k->no && dt__ps_call_again(k, status);
    if (status && t->no == k->no && !again) dt__ps_call_bad(k, status); /* else they come again */
    dt__ps_op_less(k->op);
    if (again) dt__ps_calls_go(ps);
}
static void dt__ps_answered(void *user, int status)
{
    dt__ps_call        *k = (dt__ps_call *)user;
    dt_ps_op           *op = k->op;
    dt_ps              *ps = op->ps;
    dt__ps_answer_head *h = (dt__ps_answer_head *)(void *)k->out;
    if (status && dt__ps_call_again(k, status)) {
        dt__ps_op_less(op);
        dt__ps_calls_go(ps);
        return;
    }
    if (ps->o.replicas == 2) dt__ps_call_ended(k);
    if (status) {
        dt__ps_call_bad(k, status);
        for (int i = 0; i < k->nsends; i++) /* the server does not want them any more */
            if (k->send[i].work) dt_work_cancel(k->send[i].work);
        dt__ps_op_less(op);
        return;
    }
    int64_t at = (int64_t)sizeof *h;
    int     item = 0;
    bool    ok = k->info.n >= at && h->nparts >= 0 && h->nparts <= op->nitems && (k->info.n - at) / (int64_t)sizeof(dt__ps_wire) >= h->nparts;
    if (ok) op->info = h->info; /* the same from all servers */
    at += ok ? h->nparts * (int64_t)sizeof(dt__ps_wire) : 0;
    for (int i = 0; ok && i < h->nparts; i++) {
        const dt__ps_wire *w = (const dt__ps_wire *)(const void *)(h + 1) + i;
        while (item < op->nitems && op->item[item].key != w->key) item++; /* in the order of the request */
        size_t size = w->dtype >= 0 && w->dtype < DT_COMM_DTYPES ? dt__elem_nbytes(w->dtype) : 1;
        ok = item < op->nitems && (op->item[item].pull || !w->n) && w->dtype == op->item[item].dtype && w->at >= 0 && w->n >= 0 &&
             w->at <= op->item[item].n && w->n <= op->item[item].n - w->at && w->nbytes == w->n * (int64_t)size &&
             (w->tag != DT__PS_FOLLOWS || (at <= k->info.n && k->info.n - at >= w->nbytes));
        if (!ok) break;
        if (!w->n) continue;
        char *to = (char *)op->item[item].pull + (size_t)w->at * size;
        if (w->tag == DT__PS_THERE) continue;
        if (w->tag < 0) {
            memcpy(to, k->out + at, (size_t)w->nbytes);
            at += (int64_t)dt__ps_up8((size_t)w->nbytes);
            continue;
        }
        dt_msg_opts o = DT__NO_OPTIONS;
        o.tag = w->tag;
        o.timeout = ps->timeout;
        __atomic_add_fetch(&op->left, 1, __ATOMIC_ACQ_REL);
        dt_work *work = dt_comm_recv_start_with(ps->c, to, w->nbytes, DT_COMM_U8, ps->server_rank[k->holder], o);
        k->attempt[k->no].call = k;
        k->attempt[k->no].no = k->no;
        if (work) dt_work_then(work, dt__ps_value_came, &k->attempt[k->no]);
        else dt__ps_value_came(&k->attempt[k->no], DT_COMM_ERR_MEMORY);
    }
    if (!ok) dt__ps_op_bad(op, DT_COMM_ERR_MISMATCH, "dt_ps: the answer of a server is broken: do all ranks have the same version of dt?");
    dt__ps_op_less(op);
}
static void dt__ps_pushed(void *user, int status) /* a part was sent; if not, the server refuses the request, or has done so */
{
    dt__ps_out *s = (dt__ps_out *)user;
    s->work = NULL;
    bool told = status == DT_COMM_ERR_PEER && s->call->op->ps->o.replicas == 2; /* the call ends with it, too, and is made again */
    if (status && status != DT_COMM_ERR_CANCELLED && status != DT_COMM_ERR_TIMEOUT && !told) dt__ps_call_bad(s->call, status);
    dt__ps_op_less(s->call->op);
}
static dt__ps_team *dt__ps_team_of(const dt_ps *ps, int key)
{
    const dt__ps_key *k = (const dt__ps_key *)dt__ps_map_get(&ps->keys, key);
    return k ? (dt__ps_team *)dt__ps_map_get(&ps->teams, k->group) : NULL;
}
static int dt__ps_worker_ok(dt_ps *ps, const char *call)
{
    if (!ps) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: the store is NULL", call);
    ps->bad = false;
    if (ps->outer) ps->outer->bad = false;
    if (ps->worker < 0) return dt__ps_say(ps, DT_COMM_ERR_STATE, "%s: rank %d is a server only: it calls dt_ps_serve", call, dt_comm_rank(ps->c));
    int rc = dt_comm_get_status(ps->c);
    return rc ? dt__ps_say(ps, rc, "%s: %s", call, dt_comm_error(ps->c)) : 0;
}
static int dt__ps_items_ok(dt_ps *ps, const char *call, const dt_ps_item *item, int n, dt__ps_team **team)
{
    int rc = dt__ps_worker_ok(ps, call);
    if (rc) return rc;
    if (n < 1 || !item) return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: no arrays", call);
    *team = dt__ps_team_of(ps, item[0].key);
    for (int i = 0; i < n; i++) {
        const dt__ps_key *k = (const dt__ps_key *)dt__ps_map_get(&ps->keys, item[i].key);
        if (!k) return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: key %d does not exist: call dt_ps_init first, on all workers", call, item[i].key);
        if (k->wire.n != item[i].n || k->wire.dtype != item[i].dtype)
            return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: key %d has %" PRId64 " elements of %s; the call has %" PRId64 " of %s", call, item[i].key, k->wire.n,
                              dt__ps_dtype(k->wire.dtype), item[i].n, dt__ps_dtype(item[i].dtype));
        if (k->group != (*team)->id)
            return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: keys %d and %d are not in one group", call, item[0].key, item[i].key);
        if (item[i].n && ((!item[i].push) != (!item[0].push) || (!item[i].pull) != (!item[0].pull) || (!item[i].push && !item[i].pull)))
            return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: key %d: push or pull is NULL", call, item[i].key);
        if (i && item[i].key <= item[i - 1].key)
            return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: keys %d and %d: they must ascend", call, item[i - 1].key, item[i].key);
    }
    if (n != (*team)->nkeys)
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: %d of the %d keys of a group: all of them must be in one call", call, n, (*team)->nkeys);
    return 0;
}
static int64_t dt__ps_show(dt_ps *ps, int server, const void *p, size_t n) /* as dt__ps_wire.see */
{
    dt_comm *c = ps->c;
    if (c->members) return -1;
    if (server == c->rank) return (int64_t)(uintptr_t)p;
    if (!c->shared || (c->host && c->host[server] != c->host[c->rank])) return -1;
    return dt__shared_at((const dt__shared *)c->shared, p, n);
}
/* ---- pushes with a codec */
static bool dt__ps_code_room(dt_ps *ps, const dt__ps_team *t, dt__ps_key *k) /* false: out of memory */
{
    size_t n = (size_t)k->wire.n, total = 0;
    if (k->coded) return true;
    k->coded = (dt__ps_bytes *)dt__comm_zeroed((size_t)ps->nservers, sizeof *k->coded);
    for (int s = 0; s < ps->nservers && k->coded; s++) {
        int64_t at, m;
        dt__ps_range(ps, k->wire.n, s, k->server, &at, &m);
        k->coded[s].at = (int64_t)total;
        total += dt__ps_up8((size_t)dt__ps_nbytes(&t->codec, m, DT_COMM_F32));
    }
    bool feedback = t->codec.kind != DT_CODEC_QSGD;
    for (int i = 0; i < 2 && feedback; i++) k->residual[i] = (float *)dt__comm_zeroed(n ? n : 1, sizeof(float));
    k->code = (char *)dt_comm_alloc(ps->c, total ? total : 1);
    if (k->coded && k->code && (!feedback || (k->residual[0] && k->residual[1]))) return true;
    dt_comm_dealloc(ps->c, k->code);
    DT_COMM_FREE(k->residual[0]);
    DT_COMM_FREE(k->residual[1]);
    DT_COMM_FREE(k->coded);
    k->code = NULL;
    k->residual[0] = k->residual[1] = NULL;
    k->coded = NULL;
    return false;
}
static bool dt__ps_all_minus(const float *p, int64_t n) /* -0: the neutral element of a sum */
{
    const uint32_t minus = 0x80000000u;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(p + i, &minus, sizeof minus)) return false;
    return true;
}
static dt_codec dt__ps_codec_for(const dt_codec *codec, int worker, int key) /* errors of QSGD should not be the same everywhere */
{
    dt_codec c = *codec;
    if (c.kind == DT_CODEC_QSGD) c.seed += (uint64_t)worker * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)key * UINT64_C(0xc2b2ae3d27d4eb4f);
    return c;
}
/* Encodes a push; the residuals count when it is known that the push does. Returns 0, or negative after dt__ps_say of say. */
static int dt__ps_encode(dt_ps *ps, dt_ps *say, const char *call, dt__ps_team *t, const dt_ps_item *item, int nitems)
{
    if (!__atomic_load_n(&t->settled, __ATOMIC_ACQUIRE)) dt__comm_until(ps->c, &t->settled, DT_FOREVER);
    if (!__atomic_load_n(&t->settled, __ATOMIC_ACQUIRE)) { /* in a handler, or the communicator has failed */
        int rc = dt_comm_get_status(ps->c);
        return dt__ps_say(say, rc ? rc : (int)DT_COMM_ERR_STATE, "%s: key %d: the push before this one has not ended, and a codec needs its verdict: %s", call,
                          item[0].key, dt__ps_why(ps) ? dt__ps_why(ps) : "wait for it first");
    }
    for (int i = 0; i < nitems; i++) {
        dt__ps_key *k = (dt__ps_key *)dt__ps_map_get(&ps->keys, item[i].key);
        dt_codec    codec = dt__ps_codec_for(&t->codec, ps->worker, item[i].key);
        if (!dt__ps_code_room(ps, t, k)) return dt__ps_say(say, DT_COMM_ERR_MEMORY, "%s: key %d: out of memory for a push with codec %s", call, item[i].key,
                                                           dt_codec_name(codec.kind));
        float *residual = k->residual[!t->now];
        if (residual && item[i].n) memcpy(residual, k->residual[t->now], (size_t)item[i].n * sizeof(float));
        for (int s = 0; s < ps->nservers; s++) {
            int64_t at, n;
            dt__ps_range(ps, k->wire.n, s, k->server, &at, &n);
            const float *in = (const float *)item[i].push + (n ? at : 0);
            k->coded[s].n = 0;
            if (dt__ps_all_minus(in, n)) continue;
            int64_t got = dt_codec_encode(&codec, in, n, residual ? residual + at : NULL, 1.0f, t->pushes, k->code + k->coded[s].at,
                                          dt__ps_nbytes(&codec, n, DT_COMM_F32));
            if (got < 0) {
                char why[500];
                snprintf(why, sizeof why, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
                return dt__ps_say(say, (int)got, "%s: key %d, elements %" PRId64 " to %" PRId64 ": %s", call, item[i].key, at, at + n - 1, why);
            }
            k->coded[s].n = got;
        }
    }
    return 0;
}
/* What is sent to a server of item's array, elements at .. at + n - 1. */
static const char *dt__ps_payload(const dt__ps_team *t, const dt__ps_key *k, const dt_ps_item *item, int server, int64_t at, int64_t n, int64_t *nbytes)
{
    *nbytes = t->codec.kind ? k->coded[server].n : n * (int64_t)dt__elem_nbytes(item->dtype);
    return t->codec.kind ? k->code + k->coded[server].at : (const char *)item->push + (size_t)at * dt__elem_nbytes(item->dtype);
}
static void dt__ps_call_go(dt__ps_call *k, int holder) /* sends a request, and the parts that are messages of their own */
{
    dt_ps_op          *op = k->op;
    dt_ps             *ps = op->ps;
    const dt__ps_head *h = (const dt__ps_head *)(const void *)k->in;
    const dt__ps_wire *w = (const dt__ps_wire *)(const void *)(h + 1);
    dt_msg_opts        o = DT__NO_OPTIONS;
    o.timeout = ps->timeout;
    o.info = &k->info;
    int rank = ps->server_rank[holder];
    dt_work *work = dt_comm_call_start_with(ps->c, rank, ps->base + dt__ps_tag_at(DT__PS_EXCHANGE, k->server, holder), k->in, k->nin, k->out, k->nout, o);
    for (int i = 0, item_no = 0; work && i < h->nparts; i++) {
        if (w[i].tag < 0) continue;
        while (op->item[item_no].key != w[i].key) item_no++;
        dt__ps_out *out = &k->send[k->nsends++];
        dt_msg_opts so = DT__NO_OPTIONS;
        so.timeout = ps->timeout;
        so.tag = w[i].tag;
        __atomic_add_fetch(&op->left, 1, __ATOMIC_ACQ_REL);
        pthread_mutex_lock(&ps->lock);
        const dt__ps_key *key = (const dt__ps_key *)dt__ps_map_get(&ps->keys, w[i].key);
        pthread_mutex_unlock(&ps->lock);
        int64_t     nbytes;
        const char *from = dt__ps_payload(op->team, key, &op->item[item_no], k->server, w[i].at, w[i].n, &nbytes);
        dt_work    *send = dt_comm_send_start_with(ps->c, from, nbytes, DT_COMM_U8, rank, so);
        out->call = k;
        out->work = send;
        if (send) dt_work_then(send, dt__ps_pushed, out);
        else dt__ps_pushed(out, DT_COMM_ERR_MEMORY);
    }
    if (work) dt_work_then(work, dt__ps_answered, k);
    else dt__ps_answered(k, dt_comm_get_status(ps->c) ? dt_comm_get_status(ps->c) : (int)DT_COMM_ERR_MEMORY);
}
/* .replicas: after a death calls that were made before it end one after the other. They are made again in their order, and later ones wait for
   them: a server takes the requests of a worker for a group in the order of seq. */
static dt__ps_call *dt__ps_call_next(dt_ps *ps, int *holder) /* the next that can be sent; NULL: none */
{
    for (dt_ps_op *op = ps->ops; op; op = op->next)
        for (int i = 0; i < op->ncalls; i++) {
            dt__ps_call *k = &op->call[i];
            bool         first = k->state == DT__PS_CALL_WAITS;
            *holder = dt__ps_holder(ps, k->server);
            if (*holder < 0) *holder = k->server; /* it ends at once */
            for (const dt_ps_op *e = ps->ops; e && first; e = e->next)
                for (int j = 0; j < e->ncalls && first && e->team == op->team && e->seq < op->seq; j++) {
                    const dt__ps_call *b = &e->call[j];
                    if (b->server == k->server) first = b->state == DT__PS_CALL_NONE || (b->state == DT__PS_CALL_SENT && b->holder == *holder);
                }
            if (first) return k;
        }
    return NULL;
}
static void dt__ps_calls_go(dt_ps *ps) /* by the thread of the program, and by the one that drives the communicator */
{
    int holder;
    dt__ps_count(ps, 1); /* the store stays meanwhile */
    pthread_mutex_lock(&ps->lock);
    bool mine = !ps->sending;
    ps->resend = true;
    ps->sending = true;
    while (mine && ps->resend) {
        ps->resend = false;
        for (dt__ps_call *k; (k = dt__ps_call_next(ps, &holder)) != NULL;) {
            k->state = DT__PS_CALL_SENT;
            k->holder = holder;
            pthread_mutex_unlock(&ps->lock);
            dt__ps_call_go(k, holder); /* its operation may be gone now */
            pthread_mutex_lock(&ps->lock);
        }
    }
    if (mine) ps->sending = false;
    pthread_mutex_unlock(&ps->lock);
    dt__ps_count(ps, -1); /* ps may be gone now */
}
/* say: where a message is kept, or NULL. workers: how many the push is of. version: of the values that it was computed with; -1: those that
   this worker has */
static dt_ps_op *dt__ps_begin(dt_ps *ps, dt_ps *say, const char *call, dt__ps_team *team, const dt_ps_item *item, int nitems, int workers, int64_t version)
{
    bool      push = item[0].push != NULL, pull = item[0].pull != NULL;
    uint64_t  servers = 0;
    dt_ps_op *op = (dt_ps_op *)dt__comm_zeroed(1, sizeof *op);
    for (int i = 0; i < nitems; i++) {
        const dt__ps_key *k = (const dt__ps_key *)dt__ps_map_get(&ps->keys, item[i].key);
        if (!item[i].n) push = push || item[i].push != NULL, pull = pull || item[i].pull != NULL;
        servers |= k->server == DT__PS_CUT ? (ps->nservers == 64 ? ~(uint64_t)0 : ((uint64_t)1 << ps->nservers) - 1) : (uint64_t)1 << k->server;
    }
    bool coded = push && team->codec.kind;
    if (op && coded && dt__ps_encode(ps, say, call, team, item, nitems)) {
        DT_COMM_FREE(op);
        return NULL;
    }
    if (op) {
        op->ps = ps;
        op->team = team;
        op->coded = coded;
        op->ncalls = __builtin_popcountll(servers);
        op->nitems = nitems;
        op->item = (dt_ps_item *)DT_COMM_MALLOC((size_t)nitems * sizeof *item);
        op->call = (dt__ps_call *)dt__comm_zeroed((size_t)op->ncalls, sizeof *op->call);
    }
    bool ok = op && op->item && op->call;
    if (ok) memcpy(op->item, item, (size_t)nitems * sizeof *item);
    for (int s = 0, c = 0; ok && s < ps->nservers; s++) {
        if (!(servers >> s & 1)) continue;
        dt__ps_call *k = &op->call[c++];
        size_t       nin = sizeof(dt__ps_head), nout = sizeof(dt__ps_answer_head);
        int          large = 0;
        for (int i = 0; i < nitems; i++) {
            const dt__ps_key *key = (const dt__ps_key *)dt__ps_map_get(&ps->keys, item[i].key);
            int64_t           at, n;
            if (key->server != DT__PS_CUT && key->server != s) continue;
            dt__ps_range(ps, key->wire.n, s, key->server, &at, &n);
            size_t  bytes = (size_t)n * dt__elem_nbytes(key->wire.dtype);
            int64_t sent = 0;
            if (push) dt__ps_payload(team, key, &item[i], s, at, n, &sent);
            nin += sizeof(dt__ps_wire) + (sent <= DT__PS_INLINE ? dt__ps_up8((size_t)sent) : 0);
            nout += sizeof(dt__ps_wire) + (pull && bytes <= DT__PS_INLINE ? dt__ps_up8(bytes) : 0);
            large += sent > DT__PS_INLINE;
        }
        k->op = op;
        k->server = s;
        k->nin = (int64_t)nin;
        k->nout = (int64_t)nout;
        k->in = (char *)DT_COMM_MALLOC(nin);
        k->out = (char *)DT_COMM_MALLOC(nout);
        k->send = (dt__ps_out *)dt__comm_zeroed((size_t)(large ? large : 1) * (size_t)ps->o.replicas, sizeof *k->send);
        ok = k->in && k->out && k->send;
    }
    if (!ok) {
        if (op) {
            if (!op->call) op->ncalls = 0;
            dt__ps_op_free(op);
        }
        dt__ps_say(say, DT_COMM_ERR_MEMORY, "%s: out of memory", call);
        return NULL;
    }
    if (version < 0) version = __atomic_load_n(&team->version, __ATOMIC_ACQUIRE); /* an operation before this one may end now: the same for all servers */
    int64_t oldest = op->seq = ++team->seq;
    if (coded) __atomic_store_n(&team->settled, 0, __ATOMIC_RELAXED);
    op->left = 1;
    pthread_mutex_lock(&ps->lock);
    for (dt_ps_op *e = ps->o.replicas == 2 ? ps->ops : NULL; e; e = e->next)
        if (e->team == team && e->seq < oldest && __atomic_load_n(&e->left, __ATOMIC_ACQUIRE)) oldest = e->seq;
    op->next = ps->ops;
    op->link = &ps->ops;
    if (op->next) op->next->link = &op->next;
    ps->ops = op;
    pthread_mutex_unlock(&ps->lock);
    dt__ps_count(ps, 1);
    for (int c = 0; c < op->ncalls; c++) {
        dt__ps_call *k = &op->call[c];
        dt__ps_head *h = (dt__ps_head *)(void *)k->in;
        memset(h, 0, sizeof *h);
        h->magic = DT__PS_MAGIC;
        h->flags = (push ? (uint32_t)DT__PS_HAS_PUSH : 0u) | (pull ? (uint32_t)DT__PS_WANTS : 0u);
        h->group = team->id;
        h->worker = ps->worker;
        h->seq = team->seq;
        h->version = version;
        h->servers = servers;
        h->what = push ? workers : 0;
        h->number = oldest;
        dt__ps_wire *w = (dt__ps_wire *)(void *)(h + 1);
        int          parts = 0;
        for (int i = 0; i < nitems; i++) {
            const dt__ps_key *key = (const dt__ps_key *)dt__ps_map_get(&ps->keys, item[i].key);
            if (key->server != DT__PS_CUT && key->server != k->server) continue;
            memset(&w[parts], 0, sizeof *w);
            dt__ps_range(ps, key->wire.n, k->server, key->server, &w[parts].at, &w[parts].n);
            w[parts].key = item[i].key;
            w[parts].dtype = item[i].dtype;
            if (push) dt__ps_payload(team, key, &item[i], k->server, w[parts].at, w[parts].n, &w[parts].nbytes);
            w[parts].tag = push && w[parts].nbytes > DT__PS_INLINE ? dt__ps_next_tag(ps) : (int32_t)DT__PS_FOLLOWS;
            w[parts].see = pull ? dt__ps_show(ps, ps->server_rank[k->server], (char *)item[i].pull + (size_t)w[parts].at * dt__elem_nbytes(item[i].dtype),
                                              (size_t)w[parts].n * dt__elem_nbytes(item[i].dtype)) : -1;
            parts++;
        }
        h->nparts = parts;
        char *payload = (char *)(w + parts);
        parts = 0;
        for (int i = 0; push && i < nitems; i++) {
            const dt__ps_key *key = (const dt__ps_key *)dt__ps_map_get(&ps->keys, item[i].key);
            if (key->server != DT__PS_CUT && key->server != k->server) continue;
            const dt__ps_wire *x = &w[parts++];
            if (x->tag >= 0) continue;
            int64_t nbytes;
            const char *from = dt__ps_payload(team, key, &item[i], k->server, x->at, x->n, &nbytes);
            if (nbytes) memcpy(payload, from, (size_t)nbytes);
            memset(payload + nbytes, 0, dt__ps_up8((size_t)x->nbytes) - (size_t)nbytes);
            payload += dt__ps_up8((size_t)x->nbytes);
        }
        k->holder = k->server;
        __atomic_add_fetch(&op->left, 1, __ATOMIC_ACQ_REL);
        if (ps->o.replicas == 2) dt__ps_call_queue(k), dt__ps_calls_go(ps);
        else dt__ps_call_go(k, k->server);
    }
    dt__ps_op_less(op);
    return op;
}
static dt_ps_op *dt__ps_start(dt_ps *ps, const char *call, const dt_ps_item *item, int nitems)
{
    dt__ps_team *team = NULL;
    return dt__ps_items_ok(ps, call, item, nitems, &team) ? NULL : dt__ps_begin(ps, ps, call, team, item, nitems, 1, -1);
}
DT_API dt_ps_op *dt_ps_exchange_start(dt_ps *ps, const dt_ps_item *item, int nitems) { return dt__ps_start(ps, "dt_ps_exchange_start", item, nitems); }
DT_API bool dt_ps_test(dt_ps_op *op)
{
    if (!op || __atomic_load_n(&op->phase, __ATOMIC_ACQUIRE)) return true;
    dt__comm_until(op->ps->c, &op->phase, 0);
    return __atomic_load_n(&op->phase, __ATOMIC_ACQUIRE) != 0;
}
DT_API int dt_ps_then(dt_ps_op *op, void (*fn)(void *user, int status, const dt_ps_info *info), void *user)
{
    int zero = 0;
    if (!op || !fn) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_then: the operation or the function is NULL");
    op->fn = fn;
    op->user = user;
    if (!__atomic_compare_exchange_n(&op->phase, &zero, DT__PS_THEN, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) dt__ps_op_run(op);
    return 0;
}
static void dt__ps_head_fill(const dt_ps *ps, dt__ps_head *h, int group, int what)
{
    memset(h, 0, sizeof *h);
    h->magic = DT__PS_MAGIC;
    h->worker = ps->worker;
    h->group = group;
    h->what = what;
}
/* Asks who holds this server: in begins with a dt__ps_head. part: a message of npart bytes with tag `message` goes with it. */
static int dt__ps_ask_with(dt_ps *ps, int server, int tag, void *in, int64_t nin, void *out, int64_t nout, int64_t *got, double timeout, const void *part,
                           int64_t npart, int message)
{
    char why[600];
    int  rc = 0;
    ((dt__ps_head *)in)->number = ++ps->asked;
    for (;;) {
        dt_msg_opts o = DT__NO_OPTIONS;
        dt_work    *send = NULL;
        int         holder = ps->o.replicas == 2 ? dt__ps_holder(ps, server) : server;
        if (holder < 0) holder = server; /* it ends at once */
        o.timeout = timeout;
        o.tag = message;
        if (part && !(send = dt_comm_send_start_with(ps->c, part, npart, DT_COMM_U8, ps->server_rank[holder], o))) return dt_comm_get_status(NULL);
        o.tag = 0;
        rc = dt_comm_call_with(ps->c, ps->server_rank[holder], ps->base + dt__ps_tag_at(tag, server, holder), in, nin, out, nout, got, o);
        snprintf(why, sizeof why, "%s", rc && dt__ps_why(ps) ? dt__ps_why(ps) : "");
        if (send && rc) dt_work_cancel(send);
        int sent = send ? dt_work_wait(send) : 0;
        if (!rc && sent && sent != DT_COMM_ERR_PEER) return sent;
        if (rc != DT_COMM_ERR_PEER || dt_comm_get_status(ps->c)) break;
        dt__ps_gone_away(ps, holder);
        if (ps->o.replicas == 2 && dt__ps_holder(ps, server) >= 0) continue; /* another one */
        dt__ps_lost_text(ps, server, why, sizeof why, dt__ps_why(ps));
        break;
    }
    return rc ? dt__comm_bad(rc, "%s", why) : 0;
}
static int dt__ps_ask(dt_ps *ps, int server, int tag, void *in, int64_t nin, void *out, int64_t nout, int64_t *got, double timeout)
{
    return dt__ps_ask_with(ps, server, tag, in, nin, out, nout, got, timeout, NULL, 0, 0);
}
/* Nobody answered in time: the coordinator says whom it waits for. */
static void dt__ps_explain(dt_ps *ps, dt_ps_op *op)
{
    dt__ps_head h;
    char        text[401];
    int64_t     n = 0;
    dt__ps_head_fill(ps, &h, op->team->id, DT__PS_ASK_WHY);
    if (dt_comm_get_status(ps->c) || dt__ps_ask(ps, op->team->coordinator, DT__PS_ASK, &h, sizeof h, text, 400, &n, 2)) return;
    text[n < 0 ? 0 : n > 400 ? 400 : n] = 0;
    snprintf(op->said, sizeof op->said, "no answer within %g s: %s", ps->timeout, text);
}
DT_API int dt_ps_wait(dt_ps_op *op, dt_ps_info *info)
{
    if (!op) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_wait: the operation is NULL");
    dt_ps   *ps = op->ps;
    uint64_t t0 = dt__nanoseconds();
    if (!__atomic_load_n(&op->phase, __ATOMIC_ACQUIRE)) dt__comm_until(ps->c, &op->phase, DT_FOREVER);
    if (!__atomic_load_n(&op->phase, __ATOMIC_ACQUIRE)) return dt__ps_say(ps, DT_COMM_ERR_STATE, "dt_ps_wait: %s", dt__ps_why(ps)); /* in a handler */
    dt__measured.exposed += (int64_t)(dt__nanoseconds() - t0);
    int status = op->status;
    if (status == DT_COMM_ERR_TIMEOUT) dt__ps_explain(ps, op);
    if (info) *info = op->info;
    if (!status && op->info.verdict == DT_PS_USED)
        dt__measured.stale[op->info.staleness < 0 ? 0 : op->info.staleness < DT__METER_STALE ? op->info.staleness : DT__METER_STALE - 1]++;
    if (!status && op->info.verdict == DT_PS_STALE) dt__measured.dropped++;
    ps->bad = false;
    if (status) dt__ps_say(ps, status, "%s", op->said);
    dt__ps_op_free(op);
    return status;
}
static int dt__ps_one(dt_ps *ps, const char *call, int key, const void *in, void *out, int64_t n, int dtype, dt_ps_info *info)
{
    dt_ps_item item;
    item.key = key;
    item.dtype = dtype;
    item.n = n;
    item.push = in;
    item.pull = out;
    dt_ps_op *op = dt__ps_start(ps, call, &item, 1);
    return op ? dt_ps_wait(op, info) : dt_comm_get_status(NULL);
}
static const void *dt__ps_in(const void *data, int64_t n) { return data || n ? data : ""; } /* an empty array may be NULL */
DT_API int dt_ps_push(dt_ps *ps, int key, const void *data, int64_t n, int dtype) { return dt__ps_one(ps, "dt_ps_push", key, dt__ps_in(data, n), NULL, n, dtype, NULL); }
DT_API int dt_ps_pull(dt_ps *ps, int key, void *data, int64_t n, int dtype) 
{
    return dt__ps_one(ps, "dt_ps_pull", key, NULL, (void *)(uintptr_t)dt__ps_in(data, n), n, dtype, NULL);
}
DT_API int dt_ps_push_pull(dt_ps *ps, int key, const void *in, void *out, int64_t n, int dtype)
{
    return dt__ps_one(ps, "dt_ps_push_pull", key, dt__ps_in(in, n), (void *)(uintptr_t)dt__ps_in(out, n), n, dtype, NULL);
}
DT_API dt_ps_op *dt_ps_pull_async(dt_ps *ps, int key, void *data, int64_t n, int dtype)
{
    dt_ps_item item;
    item.key = key;
    item.dtype = dtype;
    item.n = n;
    item.push = NULL;
    item.pull = (void *)(uintptr_t)dt__ps_in(data, n);
    return dt__ps_start(ps, "dt_ps_pull_async", &item, 1);
}
DT_API int dt_ps_barrier(dt_ps *ps)
{
    dt__ps_head h;
    int         rc = dt__ps_worker_ok(ps, "dt_ps_barrier");
    if (rc) return rc;
    dt__ps_head_fill(ps, &h, 0, 0);
    rc = dt__ps_ask(ps, 0, DT__PS_BARRIER, &h, sizeof h, NULL, 0, NULL, ps->timeout);
    return rc ? dt__ps_say(ps, rc, "dt_ps_barrier: %s", dt__ps_why(ps)) : 0;
}
DT_API bool dt_ps_cancelled(const dt_ps *ps, int key)
{
    if (!ps) return false;
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&ps->lock;
    pthread_mutex_lock(lock);
    const dt__ps_team *t = dt__ps_team_of(ps, key);
    pthread_mutex_unlock(lock);
    return t && __atomic_load_n(&t->newest, __ATOMIC_ACQUIRE) > __atomic_load_n(&t->version, __ATOMIC_ACQUIRE);
}
static void dt__ps_pass_on(dt_ps *ps, const dt__ps_head *h);
static void dt__ps_on_notice(dt_request *q) /* the work on old values is useless */
{
    dt_ps       *ps = (dt_ps *)q->user;
    dt__ps_head  h;
    dt__ps_team *t;
    if (!dt__ps_from_server(ps, q, &h)) return;
    pthread_mutex_lock(&ps->lock);
    t = (dt__ps_team *)dt__ps_map_get(&ps->teams, h.group);
    pthread_mutex_unlock(&ps->lock);
    if (t && (ps->server_rank[t->coordinator] == q->from || ps->o.replicas == 2) && h.version > __atomic_load_n(&t->newest, __ATOMIC_RELAXED))
        __atomic_store_n(&t->newest, h.version, __ATOMIC_RELEASE);
    if (t && ps->inner && ps->server_rank[t->coordinator] == q->from) dt__ps_pass_on(ps->inner, &h);
    dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
}
static dt_ps *dt__ps_far(dt_ps *ps) /* two levels: who speaks with the servers */
{
    if (!ps || !ps->outer) return ps;
    ps->bad = false;
    return ps->outer;
}
DT_API int dt_ps_set_k(dt_ps *ps, int key, int k)
{
    ps = dt__ps_far(ps);
    dt__ps_head h;
    int         rc = dt__ps_worker_ok(ps, "dt_ps_set_k");
    dt__ps_team *t = rc ? NULL : dt__ps_team_of(ps, key);
    if (rc) return rc;
    if (!t || k < 1) return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_set_k: key %d does not exist, or K is %d; expected 1 or more", key, k);
    dt__ps_head_fill(ps, &h, t->id, DT__PS_ASK_K);
    h.seq = k;
    rc = dt__ps_ask(ps, t->coordinator, DT__PS_ASK, &h, sizeof h, NULL, 0, NULL, ps->timeout);
    return rc ? dt__ps_say(ps, rc, "dt_ps_set_k: %s", dt__ps_why(ps)) : 0;
}
DT_API int dt_ps_get_stats(dt_ps *ps, int key, dt_ps_stats *out)
{
    ps = dt__ps_far(ps);
    dt__ps_head h;
    int64_t     n = 0;
    int         rc = dt__ps_worker_ok(ps, "dt_ps_get_stats");
    dt__ps_team *t = rc ? NULL : dt__ps_team_of(ps, key);
    if (rc) return rc;
    if (!t || !out) return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_get_stats: key %d does not exist, or out is NULL", key);
    dt__ps_head_fill(ps, &h, t->id, DT__PS_ASK_STATS);
    rc = dt__ps_ask(ps, t->coordinator, DT__PS_ASK, &h, sizeof h, out, sizeof *out, &n, ps->timeout);
    if (!rc && n != (int64_t)sizeof *out) rc = DT_COMM_ERR_MISMATCH;
    return rc ? dt__ps_say(ps, rc, "dt_ps_get_stats: %s", dt__ps_why(ps)) : 0;
}

DT_API int dt_ps_rest(dt_ps *ps, int key, bool on)
{
    dt__ps_head  h;
    int          rc = dt__ps_worker_ok(ps, "dt_ps_rest");
    dt__ps_team *t = rc ? NULL : dt__ps_team_of(ps, key);
    if (rc) return rc;
    if (!t) return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_rest: key %d does not exist", key);
    dt__ps_head_fill(ps, &h, t->id, on ? DT__PS_ASK_REST : DT__PS_ASK_JOIN);
    rc = dt__ps_ask(ps, t->coordinator, DT__PS_ASK, &h, sizeof h, NULL, 0, NULL, ps->timeout);
    return rc ? dt__ps_say(ps, rc, "dt_ps_rest: %s", dt__ps_why(ps)) : 0;
}
/* Moves an array piece by piece: a request must fit in the memory for messages. */
enum { DT__PS_PIECE = 1 << 17 }; /* elements */
static int dt__ps_state(dt_ps *ps, const char *call, int key, int which, char *data, bool write)
{
    ps = dt__ps_far(ps);
    int               rc = dt__ps_worker_ok(ps, call);
    const dt__ps_key *k = rc ? NULL : (const dt__ps_key *)dt__ps_map_get(&ps->keys, key);
    if (rc) return rc;
    if (!k || which < DT_PS_COUNT || which >= DT_PS_STATES || (k->wire.n && !data))
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "%s: key %d does not exist, state %d is not one, or data is NULL", call, key, which);
    size_t       size = which == DT_PS_COUNT ? sizeof(int64_t) : which == DT_PS_VALUE ? dt__elem_nbytes(k->wire.dtype) : sizeof(float);
    dt__ps_asks *a = (dt__ps_asks *)DT_COMM_MALLOC(sizeof *a + (write ? (size_t)DT__PS_PIECE * size : 0));
    if (!a) return dt__ps_say(ps, DT_COMM_ERR_MEMORY, "%s: out of memory", call);
    for (int s = 0; s < ps->nservers && !rc; s++) {
        int64_t at, n, got = 0;
        if (k->server != DT__PS_CUT && k->server != s) continue;
        dt__ps_range(ps, k->wire.n, s, k->server, &at, &n);
        if (which == DT_PS_COUNT && (n || k->server == s)) at = 0, n = 1;
        for (int64_t end = at + n; at < end && !rc; at += n) {
            n = end - at < DT__PS_PIECE ? end - at : (int64_t)DT__PS_PIECE;
            size_t bytes = (size_t)n * size;
            memset(a, 0, sizeof *a);
            dt__ps_head_fill(ps, &a->head, k->group, which);
            a->head.flags = write ? (uint32_t)DT__PS_HAS_PUSH : (uint32_t)DT__PS_WANTS;
            a->array.key = key;
            a->array.at = at;
            a->array.n = n;
            if (write) memcpy(a + 1, data + (size_t)at * size, bytes);
            rc = dt__ps_ask(ps, s, DT__PS_STATE, a, (int64_t)(sizeof *a + (write ? bytes : 0)), write ? NULL : data + (size_t)at * size,
                            write ? 0 : (int64_t)bytes, &got, ps->timeout);
            if (!rc && !write && got != (int64_t)bytes) rc = dt__comm_bad(DT_COMM_ERR_MISMATCH, "the answer of server %d is broken", s);
        }
    }
    DT_COMM_FREE(a);
    return rc ? dt__ps_say(ps, rc, "%s: key %d: %s", call, key, dt__ps_why(ps)) : 0;
}
DT_API int dt_ps_get_state(dt_ps *ps, int key, int which, void *data) { return dt__ps_state(ps, "dt_ps_get_state", key, which, (char *)data, false); }
DT_API int dt_ps_set_state(dt_ps *ps, int key, int which, const void *data)
{
    return dt__ps_state(ps, "dt_ps_set_state", key, which, (char *)(uintptr_t)data, true);
}
DT_API int dt_ps_get_cursor(dt_ps *ps, int key, int64_t *cursor, int64_t max, int64_t *n)
{
    ps = dt__ps_far(ps);
    dt__ps_head  h;
    int          rc = dt__ps_worker_ok(ps, "dt_ps_get_cursor");
    dt__ps_team *t = rc ? NULL : dt__ps_team_of(ps, key);
    int64_t      got = 0, room = (1 << 16) * (int64_t)sizeof *cursor;
    if (rc) return rc;
    if (!t || !cursor || max < 0 || !n) return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_get_cursor: key %d does not exist, or an argument is NULL", key);
    int64_t *all = (int64_t *)DT_COMM_MALLOC((size_t)room);
    if (!all) return dt__ps_say(ps, DT_COMM_ERR_MEMORY, "dt_ps_get_cursor: out of memory");
    dt__ps_head_fill(ps, &h, t->id, DT__PS_ASK_CURSOR);
    rc = dt__ps_ask(ps, t->coordinator, DT__PS_ASK, &h, sizeof h, all, room, &got, ps->timeout);
    *n = got / (int64_t)sizeof *cursor;
    if (!rc && *n < 2) rc = dt__comm_bad(DT_COMM_ERR_MISMATCH, "the answer of the coordinator is broken");
    int64_t most = ps->most > 1 ? ps->most : 1, have = *n; /* of machines: their numbers stand for those of their workers */
    for (int64_t i = 0; i < have && !rc; i++)
        for (int64_t k = 0, times = i < 2 ? 1 : most; k < times; k++) {
            int64_t at = i < 2 ? i : 2 + (i - 2) * most + k;
            if (at < max) cursor[at] = i == 0 ? all[i] : all[i] * most + k;
        }
    *n = 2 + (have - 2) * most;
    DT_COMM_FREE(all);
    return rc ? dt__ps_say(ps, rc, "dt_ps_get_cursor: %s", dt__ps_why(ps)) : 0;
}
DT_API int dt_ps_set_cursor(dt_ps *ps, int key, const int64_t *cursor, int64_t n)
{
    ps = dt__ps_far(ps);
    int          rc = dt__ps_worker_ok(ps, "dt_ps_set_cursor");
    dt__ps_team *t = rc ? NULL : dt__ps_team_of(ps, key);
    uint64_t     servers = 0;
    if (rc) return rc;
    if (!t || !cursor || n < 2 || n > (1 << 20) || cursor[0] < 0 || cursor[1] < 0)
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_set_cursor: key %d does not exist, or the cursor is impossible", key);
    int64_t most = ps->most > 1 ? ps->most : 1, left = (n - 2) % most;
    for (int64_t i = 2; i < n && !left; i++) left = cursor[i] % most != (i - 2) % most || cursor[i] / most != cursor[i - (i - 2) % most] / most;
    if (left)
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_set_cursor: .two_level: the batches that are in no update are not those of machines with %d workers: go on "
                          "without .two_level, or with the machines that it is of", ps->most);
    n = 2 + (n - 2) / most;
    size_t bytes = (size_t)(n - 2) * sizeof *cursor;
    dt__ps_head *h = (dt__ps_head *)DT_COMM_MALLOC(sizeof *h + bytes);
    if (!h) return dt__ps_say(ps, DT_COMM_ERR_MEMORY, "dt_ps_set_cursor: out of memory");
    dt__ps_head_fill(ps, h, t->id, 0);
    h->version = cursor[0];
    h->seq = (cursor[1] + most - 1) / most;
    for (int64_t i = 0; i < n - 2; i++) ((int64_t *)(void *)(h + 1))[i] = cursor[2 + i * most] / most;
    for (int i = 0; i < t->nkeys; i++) {
        const dt__ps_key *k = (const dt__ps_key *)dt__ps_map_get(&ps->keys, t->key[i]);
        servers |= k->server == DT__PS_CUT ? (ps->nservers == 64 ? ~(uint64_t)0 : ((uint64_t)1 << ps->nservers) - 1) : (uint64_t)1 << k->server;
    }
    for (int s = 0; s < ps->nservers && !rc; s++)
        if (servers >> s & 1) rc = dt__ps_ask(ps, s, DT__PS_PLACE, h, (int64_t)(sizeof *h + bytes), NULL, 0, NULL, ps->timeout);
    DT_COMM_FREE(h);
    return rc ? dt__ps_say(ps, rc, "dt_ps_set_cursor: %s", dt__ps_why(ps)) : 0;
}
/* ---- keys */
static void dt__ps_rep_settled(dt_ps *ps);
/* A server may get values for an array with DT_PS_UPDATE before its program has come to dt_ps_on_update: they wait. But if the
   program goes on without it, they are refused. */
static void dt__ps_early(dt_ps *ps)
{
    int         n = ps->nearly;
    dt_request *q[4];
    memcpy(q, ps->early, sizeof q);
    ps->nearly = 0;
    for (int i = 0; i < n; i++) dt__ps_on_set(q[i]);
    if (ps->rep) dt__ps_rep_settled(ps);
}
static void dt__ps_settle(void *user) /* by dt__comm_drive */
{
    dt_ps *ps = (dt_ps *)user;
    ps->settled = true;
    dt__ps_early(ps);
}
static int dt__ps_bring(dt_ps *ps, const dt__ps_asks *asks, int where, int coordinator, const void *data) /* worker 0 brings the values to the servers */
{
    int rc = 0;
    for (int i = 0; i < ps->nservers && !rc; i++) {
        int     s = (coordinator + i) % ps->nservers; /* the coordinator first: the others report to it */
        int64_t at, n;
        if (where != DT__PS_CUT && s != where) continue;
        dt__ps_range(ps, asks->array.n, s, where, &at, &n);
        size_t       bytes = (size_t)n * dt__elem_nbytes(asks->array.dtype), inl = bytes <= DT__PS_INLINE ? bytes : 0;
        const char  *from = (const char *)data + (size_t)at * dt__elem_nbytes(asks->array.dtype);
        dt__ps_asks *a = (dt__ps_asks *)DT_COMM_MALLOC(sizeof *a + inl);
        if (!a) return dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory");
        *a = *asks;
        a->head.seq = asks->array.n;
        a->head.what = where;
        a->coordinator = coordinator;
        a->array.at = at;
        a->array.n = n;
        a->array.nbytes = (int64_t)bytes;
        a->array.tag = inl == bytes ? -1 : dt__ps_next_tag(ps);
        if (inl) memcpy(a + 1, from, inl);
        rc = dt__ps_ask_with(ps, s, DT__PS_SET, a, (int64_t)(sizeof *a + inl), NULL, 0, NULL, ps->timeout, inl == bytes ? NULL : from, (int64_t)bytes,
                             a->array.tag);
        DT_COMM_FREE(a);
    }
    return rc;
}
static dt__ps_team *dt__ps_team_new(dt_ps *ps, int id, int coordinator, dt_codec codec) /* NULL: out of memory */
{
    dt__ps_team *t = (dt__ps_team *)dt__comm_zeroed(1, sizeof *t);
    if (!t) return NULL;
    t->id = id;
    t->coordinator = coordinator;
    t->codec = codec;
    t->settled = 1;
    if (dt__ps_map_put(&ps->teams, id, t)) return t;
    DT_COMM_FREE(t);
    return NULL;
}
static bool dt__ps_team_add(dt_ps *ps, const dt__ps_asks *a, const dt__ps_where *where)
{
    dt__ps_key  *k = (dt__ps_key *)dt__comm_zeroed(1, sizeof *k);
    dt__ps_team *t = (dt__ps_team *)dt__ps_map_get(&ps->teams, a->head.group);
    if (!t) {
        dt_codec none = DT__NO_OPTIONS;
        t = dt__ps_team_new(ps, a->head.group, where->coordinator, ps->outer ? none : dt__ps_codec_of(a));
    }
    if (t && t->nkeys == t->keys_cap) {
        int  more = t->keys_cap ? 2 * t->keys_cap : 4;
        int *p = (int *)DT_COMM_REALLOC(t->key, (size_t)more * sizeof *p);
        if (p) t->key = p, t->keys_cap = more;
    }
    if (!k || !t || t->nkeys == t->keys_cap || !dt__ps_map_put(&ps->keys, a->array.key, k)) {
        DT_COMM_FREE(k);
        return false;
    }
    t->key[t->nkeys++] = a->array.key;
    k->wire = a->array;
    k->server = where->server;
    k->group = a->head.group;
    return true;
}
typedef struct dt__ps_adding { dt_ps *ps; const dt__ps_asks *asks; const dt__ps_where *where; bool added; } dt__ps_adding;
static void dt__ps_add(void *user) /* by dt__comm_drive, because exchanges of a machine begin on the thread that drives; or not */
{
    dt__ps_adding *x = (dt__ps_adding *)user;
    pthread_mutex_lock(&x->ps->lock);
    x->added = dt__ps_team_add(x->ps, x->asks, x->where);
    pthread_mutex_unlock(&x->ps->lock);
}
/* told: two levels: what the servers have answered to this machine; NULL: nothing. why: the servers have refused it, and this machine should
   know; or NULL. *found: the answer */
static int dt__ps_init_one(dt_ps *ps, int key, const void *data, int64_t n, int dtype, dt_ps_init_opts o, const dt__ps_where *told, const char *refused,
                           dt__ps_where *found)
{
    dt__ps_asks a;
    dt__ps_where where;
    int         rc = dt__ps_worker_ok(ps, "dt_ps_init");
    int64_t     got = 0;
    memset(&where, 0, sizeof where);
    if (rc) return rc;
    if (key < 0 || key >= DT_PS_KEYS || n < 0 || n > INT64_MAX / 64 || dtype < 0 || dtype >= DT_COMM_DTYPES || o.rule < 0 || o.rule >= DT_PS_RULES ||
        o.group < 0 || o.group >= DT_PS_KEYS || (n && !data && !ps->worker))
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_init: key %d (0 to %d), %" PRId64 " elements, dtype %d, rule %d, group %d%s", key, DT_PS_KEYS - 1, n, dtype,
                          o.rule, o.group, n && !data && !ps->worker ? ": worker 0 passes NULL instead of the values" : "");
    if (dt__ps_map_get(&ps->keys, key)) return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_init: key %d exists already", key);
    dt_ps_discipline d = dt__ps_discipline_of(ps, o.group);
    if (d.codec.kind && dtype != DT_COMM_F32)
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_init: key %d has dtype %s, and the pushes of its group have codec %s, which is for f32: give it a group "
                          "without a codec (dt_ps_group)", key, dt__ps_dtype(dtype), dt_codec_name(d.codec.kind));
    if (d.codec.kind && dt_codec_bound(&d.codec, n) < 0) {
        char why[300];
        snprintf(why, sizeof why, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_init: key %d: .codec: %s", key, why);
    }
    if (o.rule == DT_PS_UPDATE && ps->server >= 0) dt__comm_drive(ps->c, dt__ps_settle, ps);
    dt__ps_asks_fill(ps, &a, key, n, dtype, o.rule, o.group);
    a.whole = o.whole;
    a.label = o.label;
    if (told) a.outer_server = told->server, a.outer_coordinator = told->coordinator;
    rc = dt__ps_ask(ps, 0, DT__PS_INIT, &a, sizeof a, &where, sizeof where, &got, ps->timeout);
    if (!rc && (got != (int64_t)sizeof where || where.server < DT__PS_CUT || where.server >= ps->nservers || where.coordinator < 0 ||
                where.coordinator >= ps->nservers))
        rc = dt__comm_bad(DT_COMM_ERR_MISMATCH, "the answer of server 0 is broken: do all ranks have the same version of dt?");
    if (!rc && ps->worker == 0) {
        rc = refused ? dt__comm_bad(DT_COMM_ERR_REMOTE, "%s", refused) : dt__ps_bring(ps, &a, where.server, where.coordinator, data);
        if (rc) { /* those who wait for it should know */
            struct { dt__ps_head head; char why[300]; } letter;
            char why[600];
            memset(&letter, 0, sizeof letter);
            snprintf(why, sizeof why, "%s", dt__ps_why(ps) ? dt__ps_why(ps) : "?");
            dt__ps_head_fill(ps, &letter.head, a.head.group, key);
            letter.head.flags = DT__PS_BAD;
            snprintf(letter.why, sizeof letter.why, "worker 0 could not bring the values: %.250s", why);
            if (!dt_comm_get_status(ps->c)) dt__ps_ask(ps, 0, DT__PS_READY, &letter, sizeof letter, NULL, 0, NULL, 2);
            return dt__ps_say(ps, rc, "dt_ps_init: key %d: %s", key, why);
        }
        a.head.what = key;
        rc = dt__ps_ask(ps, 0, DT__PS_READY, &a.head, sizeof a.head, NULL, 0, NULL, ps->timeout);
        a.head.what = 0;
    }
    if (rc == DT_COMM_ERR_TIMEOUT && ps->worker)
        return dt__ps_say(ps, rc, "dt_ps_init: key %d: worker 0 has not brought its values within %g s: does it call dt_ps_init, too?", key, ps->timeout);
    if (rc) return dt__ps_say(ps, rc, "dt_ps_init: key %d: %s", key, dt__ps_why(ps));
    dt__ps_adding adding = { ps, &a, &where, false };
    if (ps->inner) dt__comm_drive(ps->c, dt__ps_add, &adding);
    else dt__ps_add(&adding);
    if (found) *found = where;
    return adding.added ? 0 : dt__ps_say(ps, DT_COMM_ERR_MEMORY, "dt_ps_init: out of memory");
}
/* Two levels: the first worker of a machine makes the key on the servers, and then with the workers of its machine. */
static int dt__ps_init_both(dt_ps *ps, int key, const void *data, int64_t n, int dtype, dt_ps_init_opts o)
{
    dt_ps       *outer = ps->outer;
    dt__ps_where where;
    void        *zeros = NULL;
    int          rc = 0;
    memset(&where, 0, sizeof where);
    if (!ps->worker) {
        rc = dt__ps_init_one(outer, key, data, n, dtype, o, NULL, NULL, &where);
        if (!rc && !data && n && !(data = zeros = dt__comm_zeroed((size_t)n, dt__elem_nbytes(dtype))))
            rc = dt__ps_say(outer, DT_COMM_ERR_MEMORY, "dt_ps_init: key %d: out of memory", key);
        if (rc == DT_COMM_ERR_ARG) return rc; /* as on all workers */
        if (rc) {
            char why[600];
            snprintf(why, sizeof why, "%s", outer->said);
            dt__ps_init_one(ps, key, "", n, dtype, o, &where, why, NULL);
            return dt__ps_say(ps, rc, "%s", why);
        }
        rc = dt__ps_init_one(ps, key, data, n, dtype, o, &where, NULL, NULL);
        DT_COMM_FREE(zeros);
        return rc;
    }
    if (o.rule == DT_PS_UPDATE && outer->server >= 0) dt__comm_drive(ps->c, dt__ps_settle, outer);
    rc = dt__ps_init_one(ps, key, NULL, n, dtype, o, NULL, NULL, &where);
    if (rc) return rc;
    dt__ps_asks a;
    dt__ps_asks_fill(outer, &a, key, n, dtype, o.rule, o.group);
    where.server = where.outer_server;
    where.coordinator = where.outer_coordinator;
    dt__ps_adding adding = { outer, &a, &where, false };
    if (where.server >= DT__PS_CUT && where.server < outer->nservers && where.coordinator >= 0 && where.coordinator < outer->nservers)
        dt__comm_drive(ps->c, dt__ps_add, &adding);
    return adding.added ? 0 : dt__ps_say(ps, DT_COMM_ERR_MEMORY, "dt_ps_init: key %d: out of memory, or the answer of rank %d is broken", key, ps->server_rank[0]);
}
DT_API int dt_ps_init_with(dt_ps *ps, int key, const void *data, int64_t n, int dtype, dt_ps_init_opts o)
{
    return ps && ps->outer ? dt__ps_init_both(ps, key, data, n, dtype, o) : dt__ps_init_one(ps, key, data, n, dtype, o, NULL, NULL, NULL);
}

static const char *dt__ps_discipline_bad(const dt_ps_discipline *d) /* NULL: it is right */
{
    return d->mode < 0 || d->mode >= DT_PS_MODES ? ".mode is not a dt_ps_mode" : d->k < 0 ? ".k is negative" : d->staleness < 0 ? ".staleness is negative"
         : d->max_staleness < 0 ? ".max_staleness is negative" : d->batches < 0 ? ".batches is negative"
         : dt_codec_bound(&d->codec, 0) < 0 ? ".codec is not valid: its kind, ratio, levels or bucket" : NULL;
}
DT_API int dt_ps_group_with(dt_ps *ps, int group, dt_ps_discipline o)
{
    int         rc = dt__ps_worker_ok(ps, "dt_ps_group");
    const char *why = dt__ps_discipline_bad(&o);
    if (rc) return rc;
    if (group < 1 || group >= DT_PS_KEYS || why)
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_group: %s", why ? why : "the number of the group must be 1 or more, and less than DT_PS_KEYS");
    if (dt__ps_map_get(&ps->teams, dt__ps_group_id(0, group)) || dt__ps_map_get(&ps->disciplines, group))
        return dt__ps_say(ps, DT_COMM_ERR_STATE, "dt_ps_group: group %d has arrays, or a discipline, already", group);
    dt_ps_discipline *d = (dt_ps_discipline *)DT_COMM_MALLOC(sizeof *d);
    if (!o.k) o.k = 1;
    if (d) *d = o;
    if (d && dt__ps_map_put(&ps->disciplines, group, d)) {
        rc = ps->outer ? dt_ps_group_with(ps->outer, group, o) : 0;
        if (!rc) return 0;
        ps->disciplines.at[group] = NULL;
    }
    DT_COMM_FREE(d);
    return dt__ps_say(ps, DT_COMM_ERR_MEMORY, "dt_ps_group: out of memory");
}

/* ==================================================================================================== >>machines
   Two levels. A worker has two stores. The inner one is of its machine: all workers of the machine, and the first of them as its server;
   its tags are others (base). The outer one is that of the servers, whose workers are the first workers of the machines. The program has
   the inner one in its hands. An exchange goes to the inner server. Its coordinator (joint) makes an update when all workers of the
   machine wait: the sum of what they have pushed. Then, before the answers, it begins an exchange of this sum with the outer servers
   (dt__ps_joint_begin), and when that has ended it gives its answer to the workers (dt__ps_joint_done). Meanwhile the group is busy.

   Calls that concern no update (statistics, K, states, cursors) go from each worker to the outer servers directly. The barrier and
   resting are gathered by the inner server, and passed on when they hold for the whole machine.

   All of this runs on the thread that drives the communicator: no locks. */
typedef struct dt__ps_errand { /* a call of the inner server to an outer one */
    dt_ps        *ps;
    dt__ps_group *g;
    void        (*fn)(dt_ps *ps, dt__ps_group *g, int status);
    dt__ps_head   head;
} dt__ps_errand;
static void dt__ps_errand_done(void *user, int status)
{
    dt__ps_errand *e = (dt__ps_errand *)user;
    dt_ps         *ps = e->ps;
    e->fn(ps, e->g, status);
    DT_COMM_FREE(e);
    ps->ntells--;
    dt__ps_over_look(ps);
    dt__ps_count(ps, -1);
}
static void dt__ps_outer_call(dt_ps *ps, dt__ps_group *g, int server, int tag, int what, void (*fn)(dt_ps *ps, dt__ps_group *g, int status))
{
    dt__ps_errand *e = (dt__ps_errand *)DT_COMM_MALLOC(sizeof *e);
    dt_msg_opts    o = DT__NO_OPTIONS;
    if (!e) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "rank %d is out of memory", dt_comm_rank(ps->c));
        fn(ps, g, DT_COMM_ERR_MEMORY);
        return;
    }
    e->ps = ps;
    e->g = g;
    e->fn = fn;
    dt__ps_head_fill(ps->outer, &e->head, g ? g->id : 0, what);
    o.timeout = ps->timeout;
    dt__ps_count(ps, 1);
    ps->ntells++;
    dt_work *w = dt_comm_call_start_with(ps->c, ps->outer->server_rank[server], ps->outer->base + tag, &e->head, sizeof e->head, NULL, 0, o);
    if (w) dt_work_then(w, dt__ps_errand_done, e);
    else dt__ps_errand_done(e, DT_COMM_ERR_STATE);
}
static const char *dt__ps_outer_why(void) { return dt_comm_error(NULL) ? dt_comm_error(NULL) : "the communicator has failed"; }
static void dt__ps_barrier_passed(dt_ps *ps, dt__ps_group *g, int status)
{
    char why[400];
    (void)g;
    if (status) snprintf(why, sizeof why, "%s", dt__ps_outer_why());
    ps->at_barrier = false;
    for (int i = 0; i < ps->nworkers; i++) {
        dt_request *q = ps->barrier[i];
        ps->barrier[i] = NULL;
        if (q && status) dt_request_refuse(q, why);
        else if (q) dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    }
}
static void dt__ps_pass_on(dt_ps *ps, const dt__ps_head *h) /* the work of this machine is useless */
{
    for (int i = 0; ps->server >= 0 && i < ps->nworkers; i++) {
        dt__ps_head *t = ps->gone[i] ? NULL : (dt__ps_head *)dt__ps_letter_new(ps, sizeof *t);
        if (!t) continue;
        *t = *h;
        dt__ps_tell(ps, ps->worker_rank[i], DT__PS_NOTICE, t, sizeof *t);
    }
}
static void dt__ps_rest_answer(dt_ps *ps, dt__ps_group *g, const char *why)
{
    for (int i = 0; i < 2 * ps->nworkers; i++) {
        dt_request **p = i < ps->nworkers ? &g->resting[i] : &g->joining[i - ps->nworkers], *q = *p;
        bool         waits = i >= ps->nworkers && g->coord.learner[i - ps->nworkers].state == DT__PS_OUT; /* for others of the machine */
        if (!q || (waits && !why)) continue;
        *p = NULL;
        if (why) dt_request_refuse(q, why);
        else dt_request_reply_with(q, NULL, 0, dt__ps_no_reply());
    }
}
static void dt__ps_joint_moved(dt_ps *ps, dt__ps_group *g, int status)
{
    char why[400];
    g->moving = false;
    if (!status) g->out = !g->out;
    else { /* those who have asked are where they were */
        snprintf(why, sizeof why, "%s", dt__ps_outer_why());
        for (int i = 0; i < ps->nworkers; i++) {
            int state = g->coord.learner[i].state;
            if (g->resting[i] && !ps->gone[i] && state == DT__PS_OUT) dt__ps_coord_join(&g->coord, i);
            else if (g->joining[i]) dt__ps_coord_leave(&g->coord, i);
        }
        dt__ps_rest_answer(ps, g, why);
    }
    dt__ps_pump(ps, g);
}
/* Does the machine take part as its workers do? If all of them rest, it rests. Those who rest begin again together: else one of them would
   be an exchange ahead of the others. */
static void dt__ps_joint_look(dt_ps *ps, dt__ps_group *g)
{
    const dt__ps_team *t = (const dt__ps_team *)dt__ps_map_get(&ps->outer->teams, g->id);
    dt__ps_coord      *d = &g->coord;
    bool               all = true;
    if (g->moving || g->busy || g->order) return;
    for (int i = 0; i < ps->nworkers; i++) all = all && (ps->gone[i] || d->learner[i].state != DT__PS_OUT || g->joining[i]);
    for (int i = 0; i < ps->nworkers && all; i++)
        if (g->joining[i] && !ps->gone[i] && d->learner[i].state == DT__PS_OUT) dt__ps_coord_join(d, i);
    bool in = d->nruns + d->nwaits > 0;
    if (in != g->out || g->bad[0] || ps->ngone == ps->nworkers || !t) {
        dt__ps_rest_answer(ps, g, g->bad[0] ? g->bad : NULL);
        return;
    }
    g->moving = true;
    dt__ps_outer_call(ps, g, t->coordinator, DT__PS_ASK, in ? DT__PS_ASK_JOIN : DT__PS_ASK_REST, dt__ps_joint_moved);
}
/* ---- exchanges */
static int dt__ps_item_before(const void *x, const void *y) { return ((const dt_ps_item *)x)->key < ((const dt_ps_item *)y)->key ? -1 : 1; }
static void dt__ps_joint_done(void *user, int status, const dt_ps_info *info)
{
    dt__ps_group      *g = (dt__ps_group *)user;
    dt_ps             *ps = g->ps;
    const dt__ps_team *t = (const dt__ps_team *)dt__ps_map_get(&ps->outer->teams, g->id);
    int64_t            version = g->nheld ? g->held[0]->part.version : 0, most = ps->outer->most;
    char               why[400] = "";
    if (status) snprintf(why, sizeof why, "%s", dt__ps_outer_why());
    int64_t now = status ? (t ? __atomic_load_n(&t->version, __ATOMIC_ACQUIRE) : 0) : info->version;
    if (now > version) version = now;
    for (int i = 0; i < g->nheld; i++) g->held[i]->part.version = version;
    g->coord.version = version;
    for (int i = 0; i < ps->nworkers; i++) g->coord.learner[i].version = version;
    dt__ps_order *o = g->order; /* it pauses for this */
    for (int i = o->at; i < o->nacts && o->act[i].kind != DT__PS_APPLY; i++) {
        dt__ps_act     *a = &o->act[i];
        dt__ps_request *r = a->kind == DT__PS_ANSWER ? dt__ps_find(g, a->learner, a->seq) : NULL;
        if (!r) continue;
        if (status) {
            a->kind = 0;
            dt__ps_drop(ps, r, why);
            dt__ps_tidy(ps, g, a->learner);
            continue;
        }
        a->version = info->version;
        a->info = *info;
        if (!(r->head.flags & DT__PS_HAS_PUSH)) a->info.verdict = DT_PS_NONE, a->info.staleness = 0;
        if (info->batch >= 0) a->info.batch = info->batch * most + a->learner;
    }
    g->pause = 0;
    if (!g->starting) dt__ps_go_on(ps, g);
    dt__ps_count(ps, -1);
}
static void dt__ps_joint_begin(dt_ps *ps, dt__ps_group *g, dt__ps_order *o, const dt__ps_act *a) /* a: of o, before o->at */
{
    const dt__ps_push *push = o->used + a->first;
    dt__ps_team       *t = (dt__ps_team *)dt__ps_map_get(&ps->outer->teams, g->id);
    int                n = a->n;
    int64_t            version = INT64_MAX;
    bool               pull = false;
    for (int i = o->at; i < o->nacts && o->act[i].kind != DT__PS_APPLY; i++) {
        const dt__ps_request *r = o->act[i].kind == DT__PS_ANSWER ? dt__ps_find(g, o->act[i].learner, o->act[i].seq) : NULL;
        pull = pull || (r && r->q && r->head.flags & DT__PS_WANTS);
    }
    for (int i = 0; i < n; i++) version = push[i].version < version ? push[i].version : version; /* the oldest of them */
    if (n) dt__ps_do_apply(ps, g, push, n, a->version, false, NULL, 0);
    if (g->bad[0] || (!n && !pull)) return;
    dt_ps_item *item = t && t->nkeys == g->nheld ? (dt_ps_item *)DT_COMM_MALLOC((size_t)g->nheld * sizeof *item) : NULL;
    for (int i = 0; item && i < g->nheld; i++) {
        dt__ps_held *h = g->held[i];
        if (!n && !dt__ps_writable(ps, h)) { /* n: the update has seen to it that nobody reads the values */
            dt__ps_group_fail(ps, g, "out of memory for a pull");
            DT_COMM_FREE(item);
            return;
        }
        item[i].key = h->part.key;
        item[i].dtype = h->part.dtype;
        item[i].n = h->part.n;
        item[i].push = n ? h->part.value : NULL;
        item[i].pull = pull ? h->part.value : NULL;
    }
    if (item) qsort(item, (size_t)g->nheld, sizeof *item, dt__ps_item_before);
    g->pause = DT__PS_FOR_EXCHANGE;
    g->starting = true;
    dt__ps_count(ps, 1);
    dt_ps_op *op = item ? dt__ps_begin(ps->outer, NULL, "dt_ps_exchange_start", t, item, g->nheld, n, n ? version : -1) : NULL;
    if (op) dt_ps_then(op, dt__ps_joint_done, g);
    else {
        dt_ps_info none;
        memset(&none, 0, sizeof none);
        if (!item) dt__comm_bad(DT_COMM_ERR_STATE, "rank %d is out of memory, or has not got all keys of this group yet", dt_comm_rank(ps->c));
        dt__ps_joint_done(g, dt_comm_get_status(NULL) ? dt_comm_get_status(NULL) : (int)DT_COMM_ERR_STATE, &none);
    }
    g->starting = false;
    DT_COMM_FREE(item);
}

/* ---- making and freeing a store */
static void dt__ps_close(void *user) /* by dt__comm_drive */
{
    dt_ps *ps = (dt_ps *)user;
    ps->closing = true;
    if (ps->outer) ps->outer->inner = NULL;
    if (ps->rep) dt__ps_rep_close(ps);
    if (ps->copy) {
        ps->copy->closing = true;
        dt__ps_rep_close(ps->copy);
        if (ps->copy->timer) dt_work_cancel(ps->copy->timer);
    }
    if (ps->timer) dt_work_cancel(ps->timer);
    for (int i = 0; i < ps->size; i++)
        if (ps->watch[i]) dt_work_cancel(ps->watch[i]);
}
static const struct { int tag; dt_request_fn fn; } dt__ps_handlers[] = {
    { DT__PS_INIT, dt__ps_on_init }, { DT__PS_SET, dt__ps_on_set }, { DT__PS_READY, dt__ps_on_ready }, { DT__PS_EXCHANGE, dt__ps_on_exchange },
    { DT__PS_STAGED, dt__ps_on_staged }, { DT__PS_ORDER, dt__ps_on_order }, { DT__PS_BYE, dt__ps_on_bye }, { DT__PS_BARRIER, dt__ps_on_barrier },
    { DT__PS_ASK, dt__ps_on_ask }, { DT__PS_END, dt__ps_on_end }, { DT__PS_STATE, dt__ps_on_state }, { DT__PS_PLACE, dt__ps_on_place },
    { DT__PS_HELLO, dt__ps_on_hello }
};
enum { DT__PS_HANDLERS = sizeof dt__ps_handlers / sizeof *dt__ps_handlers };
static dt_request_fn dt__ps_handler_of(int tag)
{
    int i = 0;
    while (i < DT__PS_HANDLERS && dt__ps_handlers[i].tag != tag) i++;
    return i < DT__PS_HANDLERS ? dt__ps_handlers[i].fn : NULL;
}
static int dt__ps_serve_tag(dt_ps *ps, int tag, dt_request_fn fn)
{
    dt_serve_opts o = DT__NO_OPTIONS;
    o.user = ps;
    o.at_once = true;
    return dt_comm_serve_with(ps->c, ps->base + tag, fn, o);
}
static int dt__ps_serve_all(dt_ps *ps, bool on) /* the calls for servers */
{
    int rc = 0;
    for (int i = 0; i < DT__PS_HANDLERS && (!rc || !on); i++) {
        int  tag = dt__ps_handlers[i].tag;
        bool link = tag == DT__PS_STAGED || tag == DT__PS_ORDER, both = ps->rep && tag != DT__PS_END;
        if (link && both) tag = DT__PS_LINK;
        rc = dt__ps_serve_tag(ps, tag, !on ? NULL : both ? dt__ps_take : dt__ps_handlers[i].fn);
        if (both && !rc) rc = dt__ps_serve_tag(ps, tag + (int)DT__PS_COPY, on ? dt__ps_take : NULL);
    }
    if (ps->rep && !rc) rc = dt__ps_serve_tag(ps, DT__PS_FORWARD, on ? dt__ps_on_forward : NULL);
    return rc;
}
static void dt__ps_delete(dt_ps *ps)
{
    if (ps->copy) {
        ps->copy->worker_rank = ps->copy->worker_of = NULL; /* the store's */
        dt__ps_delete(ps->copy);
    }
    for (dt__ps_group *g = ps->all, *next; g; g = next) {
        next = g->next;
        dt__ps_group_free(ps, g);
    }
    for (int i = 0; i < ps->held.n; i++) dt__ps_held_free(ps, (dt__ps_held *)ps->held.at[i]);
    for (int i = 0; i < ps->names.n; i++) {
        dt__ps_name *n = (dt__ps_name *)ps->names.at[i];
        for (int k = 0; n && k < ps->nworkers; k++)
            if (n->waiting[k]) dt_request_refuse(n->waiting[k], "the parameter server has ended");
        if (n) DT_COMM_FREE(n->waiting);
        DT_COMM_FREE(n);
    }
    for (int i = 0; i < ps->teams.n; i++) {
        dt__ps_team *t = (dt__ps_team *)ps->teams.at[i];
        if (t) DT_COMM_FREE(t->key);
        DT_COMM_FREE(t);
    }
    for (int i = 0; i < ps->keys.n; i++) {
        dt__ps_key *k = (dt__ps_key *)ps->keys.at[i];
        if (!k) continue;
        dt_comm_dealloc(ps->c, k->code);
        DT_COMM_FREE(k->residual[0]);
        DT_COMM_FREE(k->residual[1]);
        DT_COMM_FREE(k->coded);
        DT_COMM_FREE(k);
    }
    for (int i = 0; i < ps->disciplines.n; i++) DT_COMM_FREE(ps->disciplines.at[i]);
    DT_COMM_FREE(ps->disciplines.at);
    for (int i = 0; ps->barrier && i < ps->nworkers; i++)
        if (ps->barrier[i]) dt_request_refuse(ps->barrier[i], "the parameter server has ended");
    for (int i = 0; i < ps->nearly; i++) dt_request_refuse(ps->early[i], "the parameter server has ended");
    pthread_mutex_destroy(&ps->lock);
    dt_comm_dealloc(ps->c, ps->sum);
    dt__ps_areas_end(ps, true);
    DT_COMM_FREE(ps->keys.at);
    DT_COMM_FREE(ps->teams.at);
    DT_COMM_FREE(ps->held.at);
    DT_COMM_FREE(ps->names.at);
    DT_COMM_FREE(ps->groups.at);
    dt__ps_rep_free(ps);
    DT_COMM_FREE(ps->gone);
    DT_COMM_FREE(ps->worker_rank);
    DT_COMM_FREE(ps->worker_of);
    DT_COMM_FREE(ps->watch);
    DT_COMM_FREE(ps->watcher);
    DT_COMM_FREE(ps->barrier);
    DT_COMM_FREE(ps->machine_of);
    DT_COMM_FREE(ps->crew);
    if (ps->freed && !ps->main) ps->freed(ps->freed_user);
    DT_COMM_FREE(ps);
}
DT_API int dt_ps_roles(dt_comm *c, int *roles)
{
    static const struct { const char *name; int role; } known[] = { { "worker", DT_PS_IS_WORKER }, { "server", DT_PS_IS_SERVER }, { "scheduler", 0 } };
    const char *text = getenv("DT_ROLE"), *from = "DT_ROLE";
    int         role = DT_PS_IS_WORKER | DT_PS_IS_SERVER, bad = 0;
    if (!c || !roles) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_roles: the communicator or the array is NULL");
    if (!text || !*text) text = getenv("DMLC_ROLE"), from = "DMLC_ROLE";
    if (text && *text) {
        role = -1;
        for (int i = 0; i < 3; i++)
            if (!strcmp(text, known[i].name)) role = known[i].role;
    }
    int rc = dt_comm_allgather(c, &role, roles, 1, NULL, DT_COMM_I32);
    for (int i = 0; i < dt_comm_size(c) && !rc; i++) bad += roles[i] < 0 || roles[i] > 3;
    if (rc) return rc;
    if (role < 0) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_roles: %s is '%.40s'; expected worker, server or scheduler", from, text);
    return bad ? dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_roles: DT_ROLE or DMLC_ROLE of another rank is unknown") : 0;
}
static int dt__ps_hello(dt_ps *ps) /* to all servers, of a worker that has joined later */
{
    dt__ps_head h;
    char        why[600];
    int         rc = 0, s = 0;
    dt__ps_head_fill(ps, &h, 0, 0);
    for (; s < ps->nservers && !rc; s++) {
        rc = dt__ps_ask(ps, s, DT__PS_HELLO, &h, sizeof h, NULL, 0, NULL, ps->timeout);
        if (rc == DT_COMM_ERR_PEER && dt__members_how(ps->c, ps->server_rank[s], NULL, 0)) rc = 0; /* a server that has gone */
    }
    if (!rc) return 0;
    snprintf(why, sizeof why, "%s", dt__ps_why(ps) ? dt__ps_why(ps) : "?");
    for (int i = 0; i + 1 < s && !dt_comm_get_status(ps->c); i++) dt__ps_ask(ps, i, DT__PS_BYE, &h, sizeof h, NULL, 0, NULL, 2);
    return dt__comm_bad(rc, "%s", why);
}
DT__INSIDE int dt__ps_enter(dt_ps *ps, int group, bool wait, dt_ps_info *info)
{
    dt__ps_head h;
    int32_t     at = -1;
    int64_t     got = 0;
    int         rc = dt__ps_worker_ok(ps, "dt_ps"), id = dt__ps_group_id(0, group);
    if (rc) return rc;
    dt__ps_head_fill(ps, &h, id, DT__PS_ASK_WHERE);
    rc = dt__ps_ask(ps, 0, DT__PS_ASK, &h, sizeof h, &at, sizeof at, &got, ps->timeout);
    if (!rc && (got != (int64_t)sizeof at || at >= ps->nservers)) rc = dt__comm_bad(DT_COMM_ERR_MISMATCH, "the answer of server 0 is broken");
    if (!rc && at < 0) return 1;
    h.what = DT__PS_ASK_ENTER;
    if (!rc) rc = dt__ps_ask(ps, at, DT__PS_ASK, &h, sizeof h, info, sizeof *info, &got, ps->timeout);
    if (!rc && got != (int64_t)sizeof *info) rc = dt__comm_bad(DT_COMM_ERR_MISMATCH, "the answer of server %d is broken", (int)at);
    h.what = DT__PS_ASK_ALONE;
    if (!rc && wait) rc = dt__ps_ask(ps, at, DT__PS_ASK, &h, sizeof h, NULL, 0, NULL, ps->timeout);
    if (rc) return dt__ps_say(ps, rc, "joining group %d: %s", group, dt__ps_why(ps) ? dt__ps_why(ps) : "?");
    dt__ps_asks a;
    dt__ps_asks_fill(ps, &a, 0, 0, 0, 0, group);
    dt__ps_team *t = (dt__ps_team *)dt__ps_map_get(&ps->teams, id);
    pthread_mutex_lock(&ps->lock);
    if (!t) t = dt__ps_team_new(ps, id, at, dt__ps_codec_of(&a));
    pthread_mutex_unlock(&ps->lock);
    if (!t) return dt__ps_say(ps, DT_COMM_ERR_MEMORY, "joining group %d: out of memory", group);
    __atomic_store_n(&t->version, info->version, __ATOMIC_RELEASE);
    return 0;
}
typedef struct dt__ps_level { /* what dt__ps_make needs to know of two levels */
    dt_ps *outer;              /* of an inner store */
    int   *machine_of, *crew;  /* of an outer store, which frees them */
    int    most;
} dt__ps_level;
static int dt__ps_start_size(const dt_comm *c) { return c && c->members ? c->members->start : dt_comm_size(c); } /* ranks at the start */
static dt_ps *dt__ps_make(dt_comm *c, dt_ps_opts o, const int *roles, dt__ps_level level)
{
    int size = dt__ps_start_size(c), rank = dt_comm_rank(c), room = c->members && !o.two_level ? c->members->room : size;
    dt_ps *ps = (dt_ps *)dt__comm_zeroed(1, sizeof *ps);
    if (ps) {
        ps->c = c;
        ps->o = o;
        if (!ps->o.k) ps->o.k = 1;
        if (!ps->o.replicas) ps->o.replicas = 1;
        if (!ps->o.big) ps->o.big = 1000000;
        ps->o.roles = NULL;
        ps->o.machines = NULL;
        ps->outer = level.outer;
        ps->machine_of = level.machine_of;
        ps->crew = level.crew;
        ps->most = level.most;
        ps->base = ps->outer ? 1 << 28 : 0;
        ps->worker = ps->server = -1;
        ps->worker_rank = (int *)dt__comm_zeroed((size_t)room, sizeof(int));
        ps->worker_of = (int *)dt__comm_zeroed((size_t)room, sizeof(int));
        for (int i = 0; ps->worker_rank && ps->worker_of && i < size; i++) {
            int role = roles[i];
            ps->worker_of[i] = -1;
            if (role & DT_PS_IS_WORKER) {
                if (i == rank) ps->worker = ps->nworkers;
                ps->worker_of[i] = ps->nworkers;
                ps->worker_rank[ps->nworkers++] = i;
            }
            if (role & DT_PS_IS_SERVER && ps->nservers < DT_PS_SERVERS) {
                if (i == rank) ps->server = ps->nservers;
                ps->server_rank[ps->nservers++] = i;
            }
        }
        ps->start = ps->total = ps->nworkers;
        for (int i = size; ps->worker_rank && ps->worker_of && i < room; i++) { /* ranks that may join */
            if (i == rank) ps->worker = ps->nworkers;
            ps->worker_of[i] = ps->nworkers;
            ps->worker_rank[ps->nworkers++] = i;
        }
        ps->number = ps->worker;
        ps->timeout = o.timeout > 0 ? o.timeout : c->timeout;
        ps->pending = 1;
        pthread_mutex_init(&ps->lock, NULL);
        ps->gone = (uint8_t *)dt__comm_zeroed((size_t)ps->nworkers, 1);
        ps->size = room;
        ps->ranks = size;
        ps->watch = (dt_work **)dt__comm_zeroed((size_t)room, sizeof *ps->watch);
        ps->watcher = (dt__ps_watcher *)dt__comm_zeroed((size_t)room, sizeof *ps->watcher);
        ps->barrier = (dt_request **)dt__comm_zeroed((size_t)ps->nworkers, sizeof *ps->barrier);
    }
    if (!ps || !ps->worker_rank || !ps->worker_of || !ps->gone || !ps->watch || !ps->watcher || !ps->barrier ||
        (ps->server >= 0 && ps->o.replicas == 2 && !dt__ps_rep_new(ps))) {
        if (ps) dt__ps_delete(ps);
        else {
            DT_COMM_FREE(level.machine_of);
            DT_COMM_FREE(level.crew);
        }
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_ps_new: out of memory");
        return NULL;
    }
    int rc = 0;
    for (int i = ps->start; i < ps->nworkers; i++) ps->gone[i] = DT__PS_NOT_YET, ps->ngone++;
    for (int i = 0; ps->server >= 0 && i < size && !rc; i++)
        if (i != rank) rc = dt__ps_watch(ps, i);
    if (ps->server >= 0 && !rc) rc = dt__ps_serve_all(ps, true);
    if (!rc && ps->worker >= 0) rc = dt__ps_serve_tag(ps, DT__PS_NOTICE, dt__ps_on_notice);
    if (!rc && ps->worker >= ps->start) rc = dt__ps_hello(ps);
    if (rc) {
        char text[600];
        snprintf(text, sizeof text, "%s", dt__ps_why(ps) ? dt__ps_why(ps) : "out of memory");
        dt__ps_end(ps);
        dt__comm_bad(rc, "dt_ps_new: %s", text);
        return NULL;
    }
    return ps;
}
/* Two levels: on a worker an inner store of its machine, whose outer store is that of the machines; else only this. */
static dt_ps *dt__ps_new_both(dt_comm *c, dt_ps_opts o, const int *roles)
{
    int          size = dt__ps_start_size(c), rank = dt_comm_rank(c), nmachines = 0, number = -1, total = 0, most = 1;
    const int   *host = o.machines ? o.machines : c->host; /* NULL: threads of one process */
    dt__ps_level level;
    int         *outer_role = (int *)dt__comm_zeroed((size_t)size, sizeof(int)), *inner_role = (int *)dt__comm_zeroed((size_t)size, sizeof(int));
    memset(&level, 0, sizeof level);
    level.machine_of = (int *)dt__comm_zeroed((size_t)size, sizeof(int));
    level.crew = (int *)dt__comm_zeroed((size_t)size, sizeof(int));
    if (!outer_role || !inner_role || !level.machine_of || !level.crew) {
        DT_COMM_FREE(outer_role);
        DT_COMM_FREE(inner_role);
        DT_COMM_FREE(level.machine_of);
        DT_COMM_FREE(level.crew);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_ps_new: out of memory");
        return NULL;
    }
    for (int i = 0; i < size; i++) { /* machines are numbered in the order of their first workers */
        int first = 0;
        level.machine_of[i] = -1;
        outer_role[i] = roles[i] & DT_PS_IS_SERVER;
        if (!(roles[i] & DT_PS_IS_WORKER)) continue;
        if (i == rank) number = total;
        total++;
        while (first < i && !(roles[first] & DT_PS_IS_WORKER && (host ? host[first] == host[i] : true))) first++;
        level.machine_of[i] = first < i ? level.machine_of[first] : nmachines++;
        if (first == i) outer_role[i] |= DT_PS_IS_WORKER;
        if (++level.crew[level.machine_of[i]] > most) most = level.crew[level.machine_of[i]];
    }
    int here = level.machine_of[rank];
    for (int i = 0; i < size; i++)
        if (here >= 0 && level.machine_of[i] == here) inner_role[i] = DT_PS_IS_WORKER | (outer_role[i] & DT_PS_IS_WORKER ? (int)DT_PS_IS_SERVER : 0);
    level.most = most;
    dt_ps *outer = dt__ps_make(c, o, outer_role, level), *inner = NULL;
    memset(&level, 0, sizeof level);
    level.outer = outer;
    dt_ps_opts inside = o;
    inside.record = inside.replay = NULL;
    if (outer && here >= 0) {
        outer->worker = here; /* it asks for its machine; the first worker of the machine speaks for it */
        inner = dt__ps_make(c, inside, inner_role, level);
        if (inner) {
            inner->number = number;
            inner->total = total;
            outer->inner = inner;
        } else {
            char why[600];
            snprintf(why, sizeof why, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
            if (!(inner_role[rank] & DT_PS_IS_SERVER)) outer->worker = -1;
            dt__ps_end(outer);
            outer = NULL;
            dt__comm_bad(DT_COMM_ERR_STATE, "%s", why);
        }
    }
    if (outer && here < 0) outer->total = total;
    DT_COMM_FREE(outer_role);
    DT_COMM_FREE(inner_role);
    return inner ? inner : outer;
}
DT_API dt_ps *dt_ps_new_with(dt_comm *c, dt_ps_opts o)
{
    int size = dt__ps_start_size(c);
    if (!c) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_new: the communicator is NULL");
        return NULL;
    }
    dt_ps_discipline d = DT__NO_OPTIONS;
    d.mode = o.mode;
    d.k = o.k;
    d.staleness = o.staleness;
    d.max_staleness = o.max_staleness;
    d.batches = o.batches;
    d.codec = o.codec;
    const char *why = dt__ps_discipline_bad(&d);
    int         nservers = 0, nworkers = 0, most = size - 1 < DT_PS_SERVERS ? size - 1 : (int)DT_PS_SERVERS;
    for (int i = 0; o.roles && i < size; i++) nservers += (o.roles[i] & DT_PS_IS_SERVER) != 0, nworkers += (o.roles[i] & DT_PS_IS_WORKER) != 0;
    if (o.big < 0 || !(o.timeout >= 0)) why = ".big or .timeout is negative";
    if (!o.roles && (o.servers < 0 || o.servers > most)) why = ".servers is out of range: at least one rank must be a worker, and 64 can be servers";
    if (o.roles && (o.servers || !nservers || !nworkers)) why = ".roles has no worker or no server, or .servers is given, too";
    if (!o.roles) nservers = o.servers ? o.servers : size;
    if (!why && (o.replicas < 0 || o.replicas > 2)) why = ".replicas must be 1 (no copies) or 2";
    if (!why && o.replicas == 2 && nservers < 2) why = ".replicas = 2 needs 2 servers or more";
    if (!why && o.replicas == 2 && !c->members) why = ".replicas = 2 needs a communicator that survives deaths: make it with .tolerant = true";
    if (!why && o.replicas == 2 && c->members->room > size)
        why = ".replicas = 2 is not possible on a communicator that others may join: make it without .room, or leave out .replicas";
    if (!why && o.replicas == 2 && o.two_level) why = ".replicas = 2 is not possible with .two_level: leave out one of them";
    if (why) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_new: %s (.servers %d of %d ranks, .mode %d, .k %d, .replicas %d)", why, o.servers, size, o.mode, o.k, o.replicas);
        return NULL;
    }
    if (o.two_level && dt_comm_rank(c) >= size) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_new: .two_level: rank %d has joined later, and the machines have the workers of the start (ranks 0 to %d): "
                     "make the store without .two_level if workers are to join", dt_comm_rank(c), size - 1);
        return NULL;
    }
    int *role = (int *)dt__comm_zeroed((size_t)size, sizeof(int));
    if (!role) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_ps_new: out of memory");
        return NULL;
    }
    for (int i = 0; i < size; i++)
        role[i] = o.roles ? o.roles[i] : !o.servers ? DT_PS_IS_WORKER | DT_PS_IS_SERVER : i < size - o.servers ? DT_PS_IS_WORKER : DT_PS_IS_SERVER;
    dt__ps_level level;
    memset(&level, 0, sizeof level);
    dt_ps *ps = o.two_level ? dt__ps_new_both(c, o, role) : dt__ps_make(c, o, role, level);
    DT_COMM_FREE(role);
    return ps;
}
/* No more requests; then everything that was started is waited for, and the store is freed. */
static void dt__ps_end(dt_ps *ps)
{
    dt__comm_drive(ps->c, dt__ps_close, ps);
    if (ps->server >= 0) dt__ps_serve_all(ps, false);
    if (ps->worker >= 0) dt__ps_serve_tag(ps, DT__PS_NOTICE, NULL);
    dt__ps_count(ps, -1);
    if (!__atomic_load_n(&ps->idle, __ATOMIC_ACQUIRE) && !dt__comm_until(ps->c, &ps->idle, DT_FOREVER)) return; /* in a handler: it stays */
    while (ps->ops) dt__ps_op_free(ps->ops);
    dt__ps_delete(ps);
}
static int dt__ps_serve(dt_ps *ps);
DT_API int dt_ps_serve(dt_ps *ps)
{
    if (!ps) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_serve: the store is NULL");
    ps = dt__ps_far(ps);
    return dt__ps_serve(ps);
}
static int dt__ps_serve(dt_ps *ps)
{
    ps->bad = false;
    if (ps->server < 0 && ps->worker >= 0) return dt__ps_say(ps, DT_COMM_ERR_STATE, "dt_ps_serve: rank %d is no server", dt_comm_rank(ps->c));
    if (ps->server < 0) { /* a scheduler: the first server says when all is over */
        dt_msg_opts o = DT__NO_OPTIONS;
        char        byte;
        o.tag = DT__PS_WATCH;
        o.timeout = DT_FOREVER;
        int bad = dt_comm_recv_with(ps->c, &byte, 1, DT_COMM_U8, ps->server_rank[0], o);
        if (bad == DT_COMM_ERR_PEER && ps->o.replicas == 2) bad = dt_comm_recv_with(ps->c, &byte, 1, DT_COMM_U8, ps->server_rank[1], o);
        return bad ? dt__ps_say(ps, bad, "dt_ps_serve: %s", dt__ps_why(ps)) : 0;
    }
    dt__comm_drive(ps->c, dt__ps_settle, ps);
    if (!__atomic_load_n(&ps->over, __ATOMIC_ACQUIRE)) dt__comm_until(ps->c, &ps->over, DT_FOREVER);
    int rc = dt_comm_get_status(ps->c);
    return rc ? dt__ps_say(ps, rc, "dt_ps_serve: %s", dt_comm_error(ps->c)) : 0;
}
static int dt__ps_free_one(dt_ps *ps)
{
    int  rc = dt_comm_get_status(ps->c), left = 0;
    char why[600] = "";
    if (rc) snprintf(why, sizeof why, "%s", dt_comm_error(ps->c));
    pthread_mutex_lock(&ps->lock);
    for (const dt_ps_op *op = ps->ops; op; op = op->next) left += __atomic_load_n(&op->phase, __ATOMIC_ACQUIRE) != DT__PS_THEN;
    pthread_mutex_unlock(&ps->lock);
    for (int s = 0; s < ps->nservers && ps->worker >= 0; s++) {
        dt__ps_head h;
        if (dt_comm_get_status(ps->c)) break;
        dt__ps_head_fill(ps, &h, 0, 0);
        bool moved = dt__ps_away(ps, s);
        int  bad = dt__ps_ask(ps, s, DT__PS_BYE, &h, sizeof h, NULL, 0, NULL, ps->timeout);
        if (bad && !moved && dt__ps_away(ps, s) && !dt_comm_get_status(ps->c)) bad = 0; /* it died meanwhile; its copy may have ended before */
        if (!bad || bad == DT_COMM_ERR_PEER || rc) continue;
        rc = bad;
        snprintf(why, sizeof why, "server %d (rank %d): %.500s", s, ps->server_rank[s], dt__ps_why(ps) ? dt__ps_why(ps) : "?");
    }
    if (ps->server >= 0 && !dt_comm_get_status(ps->c)) {
        int bad = dt__ps_serve(ps);
        if (!bad) bad = dt__ps_log_write(ps);
        if (!bad && ps->copy && ps->copy->rep->active && (bad = dt__ps_log_write(ps->copy)) != 0) snprintf(ps->said, sizeof ps->said, "%s", ps->copy->said);
        if (bad && !rc) rc = bad, snprintf(why, sizeof why, "%s", ps->said);
        bool first = (ps->server == 0 && !ps->outer) || (ps->copy && ps->copy->rep->active && ps->copy->server == 0);
        for (int i = 0; first && i < ps->size; i++) { /* a scheduler waits for it */
            dt_msg_opts o = DT__NO_OPTIONS;
            bool        server = false;
            for (int k = 0; k < ps->nservers; k++) server = server || ps->server_rank[k] == i;
            o.tag = DT__PS_WATCH;
            o.timeout = ps->timeout;
            if (!server && ps->worker_of[i] < 0 && (!ps->machine_of || ps->machine_of[i] < 0)) dt_comm_send_with(ps->c, "", 1, DT_COMM_U8, i, o);
        }
    }
    if (!rc && left) {
        rc = DT_COMM_ERR_STATE;
        snprintf(why, sizeof why, "%d operations were not waited for; they have ended, and their memory is not used any more", left);
    }
    dt__ps_end(ps);
    return rc ? dt__comm_bad(rc, "dt_ps_free: %s", why) : 0;
}
DT_API int dt_ps_free(dt_ps *ps)
{
    if (!ps) return 0;
    if (!ps->outer) return dt__ps_free_one(ps);
    dt_ps *outer = ps->outer;
    bool   first = !ps->worker;
    int    rc = dt__ps_free_one(ps); /* the first worker of a machine waits until the others have left */
    char   why[600] = "";
    if (rc) snprintf(why, sizeof why, "%s", dt_comm_error(NULL) ? dt_comm_error(NULL) : "?");
    if (!first) outer->worker = -1; /* it says no farewell for its machine */
    int also = dt__ps_free_one(outer);
    return rc ? dt__comm_bad(rc, "%s", why) : also;
}
DT_API const char *dt_ps_error(const dt_ps *ps)
{
    return !ps ? dt_comm_error(NULL) : ps->bad ? ps->said : ps->outer && ps->outer->bad ? ps->outer->said : NULL;
}
DT_API int dt_ps_worker(const dt_ps *ps) { return ps ? ps->number : -1; }
DT_API int dt_ps_workers(const dt_ps *ps) { return ps ? ps->total : 0; }
DT_API int dt_ps_server(const dt_ps *ps) { return !ps ? -1 : ps->outer ? ps->outer->server : ps->server; }
DT__INSIDE int dt__ps_most(const dt_ps *ps) { return ps->outer ? ps->total : ps->nworkers; }
DT__INSIDE int dt__ps_ranks(const dt_ps *ps) { return ps->ranks; }
DT__INSIDE int dt__ps_place_of(const dt_ps *ps, int *learner, int *most)
{
    *learner = ps->outer ? ps->outer->worker : ps->worker;
    *most = ps->outer ? ps->outer->most : 1;
    return ps->outer ? ps->worker : 0;
}
typedef struct dt__ps_updater { dt_ps *ps; dt_ps_update_fn fn; void *user; int nstate; bool late; } dt__ps_updater;
static void dt__ps_set_updater(void *user) /* by dt__comm_drive */
{
    dt__ps_updater *u = (dt__ps_updater *)user;
    dt_ps          *ps = u->ps;
    u->late = false;
    for (int i = 0; i < ps->held.n; i++) {
        const dt__ps_held *h = (const dt__ps_held *)ps->held.at[i];
        u->late = u->late || (h && h->rule == DT_PS_UPDATE);
    }
    if (u->late) return; /* their state was allocated for another function */
    ps->user = u->user;
    ps->nstate = u->nstate;
    ps->fn = u->fn;
    dt__ps_early(ps);
}
typedef struct dt__ps_measurer { dt_ps *ps; dt_ps_measure_fn fn; void *user; bool late; } dt__ps_measurer;
static void dt__ps_set_measurer(void *user) /* by dt__comm_drive */
{
    dt__ps_measurer *u = (dt__ps_measurer *)user;
    u->late = u->ps->all != NULL;
    if (u->late) return;
    u->ps->measure_user = u->user;
    u->ps->measure = u->fn;
}
DT_API int dt_ps_on_measure(dt_ps *ps, dt_ps_measure_fn fn, void *user)
{
    if (!ps) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_on_measure: the store is NULL");
    ps = dt__ps_far(ps);
    if (!fn) return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_on_measure: the function is NULL");
    if (ps->o.replicas == 2)
        return dt__ps_say(ps, DT_COMM_ERR_STATE, "dt_ps_on_measure: not possible with .replicas = 2: leave out one of them (an optimiser with .clip_norm "
                          "and several servers needs this call)");
    dt__ps_measurer u;
    u.ps = ps;
    u.fn = fn;
    u.user = user;
    ps->bad = false;
    dt__comm_drive(ps->c, dt__ps_set_measurer, &u);
    return u.late ? dt__ps_say(ps, DT_COMM_ERR_STATE, "dt_ps_on_measure: there are arrays already: call it after dt_ps_new, before any dt_ps_init") : 0;
}
DT_API int dt_ps_servers(const dt_ps *ps) { return !ps ? 0 : ps->outer ? ps->outer->nservers : ps->nservers; }
DT_API dt_comm *dt_ps_comm(const dt_ps *ps) { return ps ? ps->c : NULL; }
DT__INSIDE bool dt__ps_copies(const dt_ps *ps) { return ps->o.replicas == 2; }
DT__INSIDE void dt__ps_on_free(dt_ps *ps, void (*fn)(void *user), void *user)
{
    if (ps->outer) ps = ps->outer;
    ps->freed = fn;
    ps->freed_user = user;
}
DT_API int dt_ps_on_update(dt_ps *ps, dt_ps_update_fn fn, void *user, int nstate)
{
    if (!ps) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_ps_on_update: the store is NULL");
    ps = dt__ps_far(ps);
    if (!fn || nstate < 0 || nstate > DT_PS_STATES)
        return dt__ps_say(ps, DT_COMM_ERR_ARG, "dt_ps_on_update: the function is NULL, or %d arrays of state; expected 0 to %d", nstate, DT_PS_STATES);
    dt__ps_updater u;
    u.ps = ps;
    u.fn = fn;
    u.user = user;
    u.nstate = nstate;
    ps->bad = false;
    dt__comm_drive(ps->c, dt__ps_set_updater, &u);
    return u.late ? dt__ps_say(ps, DT_COMM_ERR_STATE, "dt_ps_on_update: there are arrays with DT_PS_UPDATE already: call it after dt_ps_new") : 0;
}

#ifdef __cplusplus
}
#endif
#endif /* DT_PS_IMPLEMENTATION */
