/* dt_plan.h - v0.2.0 - collectives and pipelines as plans: who does and sends what, what it costs, how it looks */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_plan.h"
    In every other file that uses it:           #include "dt_plan.h"

    Link with -lm. dt_base.h must lie beside it. dt_comm.h runs these plans.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_plan.h"
    #include <stdio.h>
    #include <string.h>

    int main(void)
    {
        dt_plan      p;
        dt_plan_opts o;
        const char  *why = "";
        int64_t      sent = 0;
        memset(&p, 0, sizeof p);
        memset(&o, 0, sizeof o);
        o.world = 4;
        o.count = 1000;
        if (dt_plan_make(&p, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &why)) return 1;
        for (int64_t i = 0; i < p.nsteps; i++)
            if (p.step[i].kind == DT_STEP_SEND) sent += p.step[i].n;
        printf("rank 0 of 4 sends %d elements in %d rounds\n", (int)sent, p.rounds);
        dt_plan_free(&p);
        return sent != 1500;
    }

WHAT IT DOES NOT DO

    It runs no plan: no sockets, no threads, no data. Every call is a pure function of its arguments; only the calls that
    take a path read or write a file.

CONTENTS

    >>plans          collectives and algorithms, plans as lists of steps
    >>costs          what a plan costs, and which algorithm is chosen
    >>predicting     how long a plan takes on a described cluster
    >>pipelines      schedules of pipelines: steps, messages, time, pictures
    >>partitions     cutting a model into the stages of a pipeline
    >>inside         what the headers above use of this one
    >>planning       implementation from here: the algorithms
    >>choosing       the cost of each algorithm, the table of algorithms, the choice
    >>drawing        a plan as a picture
    >>timing         event-driven simulation of a plan on a described cluster
    >>schedules      pipelines: generators, formulas, the proof, virtual time, the picture
    >>cutting        the partition of a model by dynamic programming

ADDING AN ALGORITHM

    1. Add a row to DT__ALGORITHMS in >>plans. A new algorithm goes to the end: the numbers are part of the wire format.
    2. For each collective marked in the row write dt__plan_COLLECTIVE_NAME in >>planning, which makes the plan, and
       dt__cost_COLLECTIVE_NAME in >>choosing, which estimates its time.
    Enum, name, dt_plan_can, dt_plan_make, dt_plan_cost and the choice by cost come from the row. If a function is
    missing the header does not compile.

ADDING A SCHEDULE OF A PIPELINE

    Add a row to DT__PIPE_KINDS in >>pipelines, and write dt__pipe_make_NAME, dt__pipe_held_NAME and dt__pipe_bubble_NAME in
    >>schedules. Enum, name, options, the proof, virtual time and pictures come from the row. tests/comm/test_pipelines.c
    proves it: add its formulas there.

MACROS

    DT_PLAN_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION
    DT_COMM_MALLOC, DT_COMM_REALLOC, DT_COMM_FREE  memory of plans (define all three or none); default malloc

ERRORS

    A call returns 0 or a negative number, or an object or NULL. dt_plan_make and dt_plan_predict set *why to a static
    text; the calls of pipelines, and those that read and write tables of costs, leave a message for dt_plan_error.

THREADS

    All calls are thread-safe.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_PLAN_IMPLEMENTATION)
#define DT_PLAN_IMPLEMENTATION
#endif
#include "dt_base.h"

#ifndef DT_PLAN_H_INCLUDED
#define DT_PLAN_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_plan.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>plans
   An algorithm is a pure function from (collective, rank, world, counts, topology) to a list of steps, the plan of one
   rank. A transport runs the steps, a checker proves them, a simulator says how long they take. No other code knows
   how an algorithm works.

   Buffers. A rank works in three: DT_PLAN_DATA, the vector of the collective, which has plan.count elements;
   DT_PLAN_SCRATCH, which has plan.scratch elements; and DT_PLAN_IN, the input of reduce_scatter and alltoall, which has
   plan.input elements and is never written.

   Rounds. Steps are ordered by round. All steps of a round may run at the same time: within a round no step writes
   what another step reads or writes. A rank begins a round when its own steps of the previous round are done. Rounds
   have the same numbers on all ranks, for pictures and costs; a rank may have no step in a round.

   Messages. Between each pair of ranks the k-th send meets the k-th receive. A send needs no buffer: a plan also ends
   if every send waits for its receive. No step has 0 elements, with two exceptions: a barrier, and a round of SHARE, in
   which every rank of the machine has a step because all of them meet.

   Bits. Operations are assumed to be commutative. All ranks get the same bits.

   The vector (DATA):
     allreduce, broadcast, reduce    count elements on every rank
     alltoall                        one segment from each rank. IN has one segment for each rank.
     allgather; gather, scatter      the segments of all ranks in the order of ranks, counts[r] elements for rank r
     at the root
     reduce_scatter; gather,         the own segment; behind it the segments that the rank receives and passes on, if
     scatter at other ranks          any. IN of reduce_scatter has the segments of all ranks in the order of ranks.
   Before the plan runs, a rank's own contribution is in place: its segment for allgather and gather; at the root all
   of DATA for scatter and broadcast; IN for reduce_scatter and alltoall. Afterwards the result is
     in all of DATA                  allreduce, broadcast, allgather, alltoall; reduce and gather at the root
     in the rank's own segment       reduce_scatter, scatter
   Reduce leaves DATA unchanged on other ranks than the root. Gather leaves the own segment unchanged there, and scatter all
   of DATA at the root. Other parts of DATA may change. */

/* The collectives, one row each: X(enum, name, vector, root, reduces, gpu).
     vector     EMPTY: no data; WHOLE: count elements on every rank; SEGMENTS: one segment per rank; MESSAGE: one sender
                and one receiver, without a plan
     root       it has a root (MESSAGE: the other rank)
     reduces    it has an operation, such as sum
     gpu        it works on the memory of GPUs, through NCCL
   The numbers are part of the wire format. */
#define DT__COLLECTIVES(X)                                                \
    X(BARRIER,        barrier,        EMPTY,    false, false, false)      \
    X(ALLREDUCE,      allreduce,      WHOLE,    false, true,  true)       \
    X(REDUCE_SCATTER, reduce_scatter, SEGMENTS, false, true,  true)       \
    X(ALLGATHER,      allgather,      SEGMENTS, false, false, true)       \
    X(BROADCAST,      broadcast,      WHOLE,    true,  false, true)       \
    X(REDUCE,         reduce,         WHOLE,    true,  true,  true)       \
    X(GATHER,         gather,         SEGMENTS, true,  false, false)      \
    X(SCATTER,        scatter,        SEGMENTS, true,  false, false)      \
    X(ALLTOALL,       alltoall,       SEGMENTS, false, false, false)      \
    X(SEND,           send,           MESSAGE,  true,  false, true)       \
    X(RECV,           recv,           MESSAGE,  true,  false, true)
#define DT__COLL_ENUM(E, ...) DT_COLL_##E,
typedef enum dt_coll { /* DT_COLL_BARRIER = 0, DT_COLL_ALLREDUCE ... DT_COLL_RECV */
    DT__COLLECTIVES(DT__COLL_ENUM)
    DT_COLL_COUNT
} dt_coll;

/* The algorithms, one row each: X(enum, name, needs, then a column for each collective with a plan).
     DT_ALGO_AUTO        dt_plan_choose takes the algorithm with the lowest cost
     DT_ALGO_DIRECT      one rank exchanges messages with all others
     DT_ALGO_ALLTOALL    every rank sends its vector to every other; for tiny vectors
     DT_ALGO_TREE        binomial tree
     DT_ALGO_RING        ring of chunks, in pieces of opts.segment elements
     DT_ALGO_DOUBLING    recursive doubling
     DT_ALGO_HALVING     recursive halving, then recursive doubling (Rabenseifner)
     DT_ALGO_BLOCKS      binary blocks: halving and doubling in blocks of a power of two of ranks
     DT_ALGO_TWO_LEVEL   inside each machine, then across machines by shards, then inside again
     DT_ALGO_LEADER      the same through one rank of each machine
     DT_ALGO_SHARED      in memory that all ranks map: each rank reduces its part of all vectors
     DT_ALGO_BRUCK       Bruck: distances 1, 2, 4 ...; as a barrier this is the dissemination barrier
     DT_ALGO_CHAIN       pipeline of segments from rank to rank
     DT_ALGO_SCATTER     scatter by a tree, then allgather by a ring
     DT_ALGO_PAIRS       one partner a round
     DT_ALGO_NATIVE      the transport's own collective (MPI, NCCL)
     DT_ALGO_ORDERED     only if asked for: one tree over the ranks for every element. The bits depend on the number of
                         ranks alone, not on collective, count, transport or machines. It sends as many bytes as a ring,
                         in two rounds with messages and ceil(lg p) rounds that reduce, and needs a scratch of the
                         vector's size. Time relative to auto, 2 and 4 ranks on 2 cores: 0.9 to 1.7 times from 256 KiB
                         on, 1.1 to 4 times below.
   needs: ANY        nothing
          NO_PLAN    a word for options, not an algorithm with plans
          MACHINES   the lists of ranks of each machine
          MEMORY     all ranks on one machine with shared memory; auto takes it only there
          SEGMENT    auto also chooses the segment
          ASKED      auto never takes it
   column: no; yes; pow2: only if the number of ranks is a power of two; equal: only if all counts are equal.
   The numbers are part of the wire format, and among equal costs the first row wins: add new rows at the end. */
#define DT__ALGORITHMS(X)                                                                                   \
    /*                                barrier                   broadcast                        */         \
    /*                                |    allreduce            |    reduce                      */         \
    /*                                |    |    reduce_scatter  |    |    gather                 */         \
    /*                                |    |    |    allgather  |    |    |    scatter  alltoall */         \
    X(AUTO,      auto,      NO_PLAN,  no,  no,  no,  no,        no,  no,  no,  no,      no)                 \
    X(DIRECT,    direct,    ANY,      no,  yes, yes, yes,       yes, yes, yes, yes,     yes)                \
    X(ALLTOALL,  alltoall,  ANY,      no,  yes, no,  no,        no,  no,  no,  no,      no)                 \
    X(TREE,      tree,      ANY,      yes, yes, no,  no,        yes, yes, yes, yes,     no)                 \
    X(RING,      ring,      ANY,      no,  yes, yes, yes,       no,  yes, no,  no,      no)                 \
    X(DOUBLING,  doubling,  ANY,      no,  yes, no,  pow2,      no,  no,  no,  no,      no)                 \
    X(HALVING,   halving,   ANY,      no,  yes, yes, no,        no,  no,  no,  no,      no)                 \
    X(BLOCKS,    blocks,    ANY,      no,  yes, no,  no,        no,  no,  no,  no,      no)                 \
    X(TWO_LEVEL, two_level, MACHINES, no,  yes, no,  no,        no,  no,  no,  no,      no)                 \
    X(LEADER,    leader,    MACHINES, no,  yes, no,  no,        no,  no,  no,  no,      no)                 \
    X(SHARED,    shared,    MEMORY,   no,  yes, no,  no,        no,  no,  no,  no,      no)                 \
    X(BRUCK,     bruck,     ANY,      yes, no,  no,  yes,       no,  no,  no,  no,      equal)              \
    X(CHAIN,     chain,     SEGMENT,  no,  no,  no,  no,        yes, no,  no,  no,      no)                 \
    X(SCATTER,   scatter,   ANY,      no,  no,  no,  no,        yes, no,  no,  no,      no)                 \
    X(PAIRS,     pairs,     ANY,      no,  no,  yes, no,        no,  no,  no,  no,      yes)                \
    X(NATIVE,    native,    NO_PLAN,  no,  no,  no,  no,        no,  no,  no,  no,      no)                 \
    X(ORDERED,   ordered,   ASKED,    no,  yes, yes, no,        no,  yes, no,  no,      no)
#define DT__ALGO_ENUM(E, ...) DT_ALGO_##E,
typedef enum dt_algo { /* DT_ALGO_AUTO = 0, DT_ALGO_DIRECT ... DT_ALGO_ORDERED */
    DT__ALGORITHMS(DT__ALGO_ENUM)
    DT_ALGO_COUNT
} dt_algo;

enum { DT_PLAN_DATA = 0, DT_PLAN_SCRATCH = 1, DT_PLAN_IN = 2 };
typedef enum dt_step_kind {
    DT_STEP_SEND = 1,  /* sends buf[at..at+n) to peer */
    DT_STEP_RECV,      /* receives from peer into buf[at..at+n) */
    DT_STEP_FOLD,      /* buf[at..at+n) := from_buf[from..from+n) op what is received from peer, or with left received op
                          from_buf; often from_buf[from] is the same place as buf[at] */
    DT_STEP_COPY,      /* buf[at..at+n) := from_buf[from..from+n); in a round without messages */
    DT_STEP_REDUCE,    /* buf := buf op from_buf, or with left from_buf op buf, ranges as COPY; in a round without messages */
    DT_STEP_SHARE      /* buf[at..at+n) of all ranks of this machine, reduced in the order of ranks and written to all */
} dt_step_kind;
typedef struct dt_plan_step { /* one step of a rank */
    int32_t kind, round, peer;
    int16_t buf, from_buf;
    int32_t left;
    int32_t dt__pad;
    int64_t at, n, from;
} dt_plan_step;
typedef struct dt_plan {
    dt_coll       coll;
    dt_algo       algo;
    int           rank, world;
    int           rounds;
    int64_t       nsteps, cap;
    dt_plan_step *step;
    int64_t       scratch; /* elements of SCRATCH */
    int64_t       count;   /* elements of DATA on this rank */
    int64_t       input;   /* elements of IN */
} dt_plan;
typedef struct dt_plan_opts {
    int            rank, world;
    int64_t        count;   /* allreduce, broadcast, reduce: elements of the vector; others: of each segment */
    const int64_t *counts;  /* elements of each segment; NULL: count each. alltoall: world x world, row s: what rank s sends */
    const int64_t *sends;   /* alltoall, instead of counts: elements that rank sends to each rank, */
    const int64_t *recvs;   /* and receives from each. Not for dt_plan_svg and dt_plan_predict, which make the plans of all */
    int            root;
    int64_t        segment; /* elements of a piece in ring, leader and chain; 0: not cut into pieces */
    const int     *host;    /* the machine of each rank; NULL: one machine */
} dt_plan_opts;
/* Makes the plan of rank o->rank. p is zeroed or holds an earlier plan; dt_plan_free frees it. Returns 0, or a negative
   number and a static text in *why: -1: the algorithm cannot do this, -2: out of memory. Alltoall by bruck needs equal
   counts, which dt_plan_can does not check; dt_plan_make checks those of this rank. */
DT_API int  dt_plan_make(dt_plan *p, dt_coll coll, dt_algo algo, const dt_plan_opts *o, const char **why);
DT_API void dt_plan_free(dt_plan *p);
DT_API bool dt_plan_can(dt_coll coll, dt_algo algo, int world, const int *host); /* is there a plan? */
DT_API const char *dt_coll_name(dt_coll c); /* "allreduce" ...; "?" if c is not a collective */
DT_API const char *dt_algo_name(dt_algo a); /* "ring" ..., as in DT_COMM_ALGO; "?" if a is not an algorithm */
DT_API dt_algo     dt_algo_find(const char *name); /* DT_ALGO_COUNT if no algorithm has this name */
/* Replaces SHARE steps by sends and receives with the same bits, for transports without shared memory. Returns 0, -1: the
   plan is not one that dt_plan_make made, or -2: out of memory. */
DT_API int  dt_plan_lower(dt_plan *p, const int *host);

/* ---------------------------------------------------------------------------------------------------- >>costs
   The cost model, by class of link: alpha seconds a message + beta seconds a byte sent + gamma seconds a byte reduced or
   copied. On several machines `link` is the class between machines; the ranks of a machine share its beta, and exchange
   data with each other through shared memory (as threads if link is DT_LINK_THREAD). */
enum { DT_LINK_THREAD = 0, DT_LINK_SHM, DT_LINK_LOOP, DT_LINK_NET, DT_LINK_COUNT };
typedef struct dt_costs {
    double alpha[DT_LINK_COUNT], beta[DT_LINK_COUNT], gamma;
} dt_costs;
DT_API dt_costs dt_costs_default(void); /* a fixed table */
/* A table as a text file. The first line is "dt costs 1". Each of thread, shm, loopback and network has a line with its
   name, picoseconds a message and femtoseconds a byte. A line "reducing" has femtoseconds a byte. The last line is
   "end". Numbers are whole, at most 10 s a message and 1 us a byte; a # begins a remark. Any other file is refused:
   dt_plan_error() names the line, what was found and what was expected. Both calls return 0 or a negative number. */
DT_API const char *dt_plan_error(void); /* why the last call of this thread that leaves a message failed; NULL if none did */
DT_API int      dt_costs_load(dt_costs *t, const char *path);
DT_API int      dt_costs_save(const dt_costs *t, const char *path); /* atomic: a failed call leaves an old file as it was */
/* The algorithm with the lowest cost for a vector of nbytes bytes; the same on every rank and in every run. Of equal
   costs the first in dt_algo wins. *segment_bytes: the segment of a chain in bytes, 0 for other algorithms. Returns
   DT_ALGO_COUNT (dt_plan_cost: a negative number) if there is no algorithm or memory is exhausted. */
DT_API dt_algo  dt_plan_choose(const dt_costs *t, dt_coll coll, int world, const int *host, int link, int64_t nbytes,
                               int64_t *segment_bytes);
DT_API double   dt_plan_cost(const dt_costs *t, dt_coll coll, dt_algo algo, int world, const int *host, int link,
                             int64_t nbytes, int64_t segment_bytes); /* seconds */
/* The table of costs, and the sizes at which the choice changes, as text. Returns the length as snprintf does. */
DT_API size_t   dt_plan_explain(const dt_costs *t, int world, const int *host, int link, char *buf, size_t nbytes);
/* Draws the plan of all ranks (at most 1024): a line for each rank, a column for each round, an arrow for each message.
   Returns 0, -1: there is no such plan, -2: out of memory, -3: the file cannot be written. */
DT_API int      dt_plan_svg(const char *path, dt_coll coll, dt_algo algo, const dt_plan_opts *o);

/* ---------------------------------------------------------------------------------------------------- >>predicting
   How long a plan takes on a cluster: a simulation event by event, without data. A message begins when both ranks are in
   its round and the sender's previous message has been sent. It takes alpha, and then for each byte the time of the
   slowest resource on its way: the link class of its ranks, the network cards of the two machines, the switches. Cards
   and switches are shared first come, first served: a message has passed when all bytes that arrived before it have. A
   rank reduces while it sends and receives. */
typedef struct dt_cluster {
    dt_costs   costs;       /* all 0: dt_costs_default() */
    int        near, far;   /* link class inside a machine and between machines; both 0: DT_LINK_SHM and DT_LINK_NET */
    double     nic;         /* seconds a byte, in each direction, of a machine's network card, which its ranks share; 0:
                               beta of far; negative: each rank has a card of its own */
    double     fabric;      /* seconds a byte of a switch, for all its traffic together; 0: no limit */
    double     trunk;       /* seconds a byte, in each direction, from a switch to the others; 0: no limit */
    const int *switch_of;   /* the switch of each machine, by its number in opts.host; NULL: one switch */
    int        element;     /* bytes of an element; 0: 4 */
} dt_cluster;
typedef struct dt_plan_prediction {
    double  seconds;
    int64_t messages, bytes;   /* of all ranks */
    int64_t bytes_nic;         /* sent by the machine that sent most to other machines */
    int64_t bytes_switch;      /* through the switch with the most traffic */
    dt_algo algo;              /* the algorithm; with DT_ALGO_AUTO the one that was chosen */
} dt_plan_prediction;
/* opts as for dt_plan_make; rank is ignored. Returns 0, or a negative number and *why as dt_plan_make does. */
DT_API int      dt_plan_predict(dt_plan_prediction *out, dt_coll coll, dt_algo algo, const dt_plan_opts *o,
                               const dt_cluster *k, const char **why);

/* ---------------------------------------------------------------------------------------------------- >>pipelines
   A pipeline splits a model into stages and a batch into micro-batches. A schedule is data, like a plan: for each rank
   the list of its steps. An executor runs it, dt_pipe_check proves it, dt_pipe_simulate says how long it takes.

   Stages. p ranks with v chunks each have p v stages. Chunk c of rank r is stage c p + r, so the next stage is on the next
   rank, around. F, B, W: seconds of the forward, of the gradient of the inputs and of the gradient of the weights, of one
   micro-batch on one rank (all its chunks); m: micro-batches. If all stages take the same time, and messages none:

     kind                     idle time of a rank                  micro-batches held by rank r
     DT_PIPE_1F1B             (p-1) (F+B+W)                        min(p - r, m)
     DT_PIPE_GPIPE            (p-1) (F+B+W)                        m
     DT_PIPE_INTERLEAVED      (p-1) (F+B+W) / v                    min((v p + p - 1 - 2 r) / v, m); needs m % p = 0
     DT_PIPE_ZB_H1            (p-1) (F+B) - (min(p, m) - 1) W      min(p, m); the idle time holds if W <= F and W <= B

   1F1B alternates forwards and backwards. GPipe runs all forwards first and so holds more. Interleaved is 1F1B with several
   smaller stages on a rank. ZB-H1 (zero bubble) computes the gradients of the weights apart, later, when the rank would
   wait. A micro-batch is held from the beginning of its forward to the end of the gradient of its weights.

   Messages. One rule gives them for any schedule, dt_pipe_input and dt_pipe_output: the forward of stage s sends its output
   to the rank of stage s + 1, the gradient of the inputs goes to the rank of stage s - 1. A message is sent when its step
   has ended, and received before the step that needs it begins. A rank receives for its next step only. It has
   DT_PIPE_SENDS buffers for sends, used in turn: a step that sends begins when the send that had its buffer has ended. A send
   ends only with its receive. dt_pipe_check proves that all ranks get to the end under this rule, which is the strictest
   that all four kinds obey: with one buffer interleaved schedules do not end. In all four kinds the k-th message from one
   rank to another is also the k-th that this other rank receives from it, so messages need no names. */
/* The kinds, one row each: X(enum, name, steps of a stage and micro-batch, needs several chunks) */
#define DT__PIPE_KINDS(X)                      \
    X(1F1B,        1f1b,        2, false)      \
    X(GPIPE,       gpipe,       2, false)      \
    X(INTERLEAVED, interleaved, 2, true)       \
    X(ZB_H1,       zb_h1,       3, false)
#define DT__PIPE_ENUM(E, ...) DT_PIPE_##E,
typedef enum dt_pipe_kind { /* DT_PIPE_1F1B = 0 ... DT_PIPE_ZB_H1 */
    DT__PIPE_KINDS(DT__PIPE_ENUM)
    DT_PIPE_KIND_COUNT
} dt_pipe_kind;
enum { DT_PIPE_SENDS = 2 };
enum { /* dt_pipe_step.op */
    DT_PIPE_FORWARD = 1,
    DT_PIPE_BACKWARD,       /* both gradients, of inputs and weights */
    DT_PIPE_BACKWARD_INPUT, /* of inputs only; DT_PIPE_BACKWARD_WEIGHT of the same micro-batch follows later */
    DT_PIPE_BACKWARD_WEIGHT
};
typedef struct dt_pipe_step {
    int16_t op, chunk;
    int32_t micro;
} dt_pipe_step;
typedef struct dt_pipe_schedule {
    dt_pipe_kind  kind;
    int           ranks, chunks, micro;
    int64_t       nsteps; /* of all ranks */
    int64_t      *first;  /* rank r has step[first[r]] .. step[first[r + 1] - 1]; ranks + 1 elements */
    dt_pipe_step *step;
} dt_pipe_schedule;
typedef struct dt_pipe_opts {
    int          dt__first DT_D;
    dt_pipe_kind kind DT_D;
    int          ranks DT_D;  /* 1 to 4096 */
    int          chunks DT_D; /* of a rank; 0: 1, with DT_PIPE_INTERLEAVED 2. At most 1024 */
    int          micro DT_D;  /* micro-batches, 1 to 65536; may be fewer than ranks */
} dt_pipe_opts;
/* The schedule of all ranks; NULL: dt_plan_error says why. */
DT_API dt_pipe_schedule *dt_pipe_schedule_new_with(dt_pipe_opts o DT_OPT0(dt_pipe_opts));
DT_API void              dt_pipe_schedule_free(dt_pipe_schedule *s); /* NULL is accepted */
DT_API const char       *dt_pipe_kind_name(dt_pipe_kind k); /* "1f1b", "gpipe", "interleaved", "zb_h1"; "?" for others */
DT_API dt_pipe_kind      dt_pipe_kind_find(const char *name); /* DT_PIPE_KIND_COUNT if no kind has this name */
/* Micro-batches that a rank holds at most, times chunks: each stage of the rank counts for itself. -1: bad options. */
DT_API int64_t           dt_pipe_held(dt_pipe_opts o, int rank);
/* The most bytes that a rank has at once, beside its parameters, their gradients, states of the optimiser and the batch: what
   it holds of all micro-batches, what the present step needs beside, what is received early, and what the step before has sent
   and is perhaps not received yet. stage has an element for each stage of the schedule. A negative number: dt_plan_error says
   why. */
typedef struct dt_pipe_bytes { /* of one micro-batch in a stage */
    int64_t kept;     /* held after its forward: what the backward needs, also the inputs that came from other stages */
    int64_t between;  /* held after a DT_PIPE_BACKWARD_INPUT, until its weights are done */
    int64_t forward, backward, input, weight; /* the most that the step has, with what is held of this micro-batch: of
                                                 DT_PIPE_FORWARD, _BACKWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT */
    int64_t in, grad; /* received from other ranks before a forward, and before a backward: part of kept and backward */
    int64_t sent;     /* outputs for other ranks that are not part of kept */
} dt_pipe_bytes;
enum { DT_PIPE_AHEAD = 2 }; /* the receives of so many steps are posted before they are needed */
DT_API int64_t           dt_pipe_memory(const dt_pipe_schedule *s, int rank, const dt_pipe_bytes *stage);
/* The idle time of a rank in seconds by the formula above, for F, B and W of all ranks; no time for messages. -1: bad
   options, or no formula holds (ZB-H1 with W > min(F, B)): simulate then. */
DT_API double            dt_pipe_bubble(dt_pipe_opts o, double forward, double backward_input, double backward_weight);

typedef struct dt_pipe_message {
    int  from, to; /* ranks. If they are equal nothing is sent: the step before left the values on this rank */
    int  stage;    /* the sender's */
    int  micro;
    bool gradient; /* false: the output of the stage; true: the gradient of its input */
} dt_pipe_message;
/* What a step of this rank needs from another stage before it begins, and what it sends when it has ended. False: nothing. */
DT_API bool dt_pipe_input(const dt_pipe_schedule *s, int rank, const dt_pipe_step *step, dt_pipe_message *m);
DT_API bool dt_pipe_output(const dt_pipe_schedule *s, int rank, const dt_pipe_step *step, dt_pipe_message *m);
/* Proves a schedule, of dt_pipe_schedule_new or made by hand; its kind does not matter. Every stage does the forward of each
   micro-batch once, then its gradient of inputs, then or with it its gradient of weights, each in the order of micro-batches;
   and with the messages above every rank gets to its end. Returns 0, or a negative number, and dt_plan_error names the
   rank, the step (from 0) and why. */
DT_API int  dt_pipe_check(const dt_pipe_schedule *s);

typedef struct dt_pipe_times { /* seconds of one stage and micro-batch; arrays have an element for each stage */
    int           dt__first DT_D;
    double        forward DT_D, backward_input DT_D, backward_weight DT_D; /* of every stage, unless an array is given */
    const double *forwards DT_D, *backward_inputs DT_D, *backward_weights DT_D;
    double        transfer DT_D;   /* of a message between ranks. Ranks compute meanwhile; messages do not share a link */
    const double *transfers DT_D;  /* an element for each stage but the last: from it to the next one, and back */
    int           sends DT_D;      /* buffers for sends, 1 to 64: a message begins when sender and receiver are ready, as
                                      described above. 0: any number, and a message begins when its step has ended */
} dt_pipe_times;
typedef struct dt_pipe_timing {
    int      ranks;
    int64_t  nsteps;
    double   seconds;     /* until the last step of all ranks has ended */
    double   bubble;      /* idle part of the time of all ranks, 0 to 1 */
    double  *busy;        /* of each rank: seconds that it computes */
    int64_t *held;        /* of each rank: as dt_pipe_held */
    double  *start, *end; /* of each step, in the order of the schedule */
} dt_pipe_timing;
/* Runs a schedule in virtual time. NULL: dt_plan_error says why, for example that the schedule does not end. */
DT_API dt_pipe_timing *dt_pipe_simulate_with(const dt_pipe_schedule *s, dt_pipe_times t DT_OPT0(dt_pipe_times));
DT_API void            dt_pipe_timing_free(dt_pipe_timing *t); /* NULL is accepted */
/* Draws a simulated schedule: a row for each rank, a box for each step with the number of its micro-batch. Returns 0 or a
   negative number, and dt_plan_error says why. At most 200000 steps. */
DT_API int             dt_pipe_svg(const char *path, const dt_pipe_schedule *s, const dt_pipe_timing *t);
#ifdef DT__LIT
#define dt_pipe_schedule_new(...) dt_pipe_schedule_new_with(DT__ONLY(dt_pipe_opts, __VA_ARGS__))
#define dt_pipe_simulate(...) \
    dt_pipe_simulate_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_pipe_times, __VA_ARGS__, ))
#else /* C++17: options as a struct */
#define dt_pipe_schedule_new dt_pipe_schedule_new_with
#define dt_pipe_simulate dt_pipe_simulate_with
#endif

/* ---------------------------------------------------------------------------------------------------- >>partitions
   Cuts a model into the stages of a pipeline so that the slowest stage is as fast as possible, within the memory of a
   device. The result is exact, by dynamic programming. Among partitions with the same slowest stage the one is taken
   whose cuts are crossed by the fewest bytes; among those the one whose last stages have the fewest devices and layers.

   Layers are in the order in which they run. Without edges they are a chain: .out bytes of each layer go to the next one.
   With edges they are a graph without cycles in topological order. A tensor crosses every cut between its layer and the
   last layer that reads it, once in each cut, however many layers read it. Stages pass on what later stages need.

   Seconds of a stage, for one micro-batch:
       work        forward + backward of its layers
       messages    at each of its two cuts 2 (latency + bytes that cross / bandwidth): the values, and their gradients;
                   0 if nothing crosses
       one device  work + messages; with .overlap the largest of work and the messages at either cut
       r replicas  one device / r + 2 (r - 1) (latency + params / (r bandwidth)) / N, a ring allreduce of the gradients
                   every N = .micro micro-batches; .micro = 0: every r, as PipeDream does
   Memory of each device of a stage: params (1 + state) + held bytes of the micro-batches in flight. In flight are, limited by
   ceil(micro / r): GPipe all, ZB-H1 ceil(devices / r), 1F1B ceil(devices of this stage and all later ones / r). */
typedef struct dt_pipe_layer {
    const char *name DT_D;      /* for the table and messages; NULL: the layer's number */
    double      forward DT_D, backward DT_D; /* seconds for one micro-batch */
    int64_t     out DT_D;       /* bytes of its output for one micro-batch; not used if there are edges */
    int64_t     params DT_D;    /* bytes of its parameters */
    double      state DT_D;     /* bytes for each byte of parameters: gradient and optimiser state. Adam in f32: 3 */
    int64_t     held DT_D;      /* bytes that it keeps of one micro-batch from forward to backward, its input included */
    bool        with_next DT_D; /* this layer and the next one are in the same stage */
} dt_pipe_layer;
typedef struct dt_pipe_edge {
    int     from DT_D, to DT_D; /* layers, from < to */
    int     output DT_D;        /* which output of `from`: edges with equal from and output are one tensor */
    int64_t nbytes DT_D;        /* for one micro-batch */
} dt_pipe_edge;
typedef struct dt_pipe_partition_opts {
    int                  dt__first DT_D;
    const dt_pipe_layer *layers DT_D;
    int                  nlayers DT_D;  /* 1 to 65536 */
    const dt_pipe_edge  *edges DT_D;
    int                  nedges DT_D;
    int                  ranks DT_D;    /* devices, 1 to 4096 */
    int                  chunks DT_D;   /* stages of a device, with DT_PIPE_INTERLEAVED; 0: as in dt_pipe_opts */
    bool                 replicate DT_D; /* a stage may have several devices; any number of stages. Else there are ranks times
                                           chunks stages. Not with DT_PIPE_INTERLEAVED */
    bool                 overlap DT_D;  /* messages take no time of the devices */
    dt_pipe_kind         kind DT_D;     /* the schedule, which says how many micro-batches are in flight */
    int                  micro DT_D;    /* micro-batches, up to 65536; 0: any number, not with DT_PIPE_GPIPE */
    double               bandwidth DT_D; /* of a link between devices, bytes a second; 0: bytes take no time */
    double               latency DT_D;  /* seconds a message */
    int64_t              memory DT_D;   /* bytes of each device; 0: no limit. With DT_PIPE_INTERLEAVED the limit is only
                                           checked: a partition that fits may exist although the fastest one does not fit */
} dt_pipe_partition_opts;
typedef struct dt_pipe_stage {
    int     first, last; /* layers */
    int     replicas;    /* devices */
    int     held;        /* micro-batches in flight on each of them; interleaved: of all stages of the rank together */
    double  forward, backward; /* seconds of its layers for one micro-batch */
    double  seconds;     /* with messages and replicas, as above */
    int64_t params, memory; /* bytes of parameters; of each device (interleaved: with all its stages) */
    int64_t in, out;     /* bytes that cross the cuts before and after it */
} dt_pipe_stage;
typedef struct dt_pipe_partition {
    int            nstages;
    int            slowest; /* a stage */
    double         seconds; /* of that stage */
    dt_pipe_stage *stage;
} dt_pipe_partition;
/* NULL: dt_plan_error says why; if the memory is too small, which stage of the partition with the smallest largest stage
   needs how much. The time is at most proportional to layers^2 x ranks, with .replicate to layers^2 x ranks^2. */
DT_API dt_pipe_partition *dt_pipe_partition_new_with(dt_pipe_partition_opts o DT_OPT0(dt_pipe_partition_opts));
DT_API void               dt_pipe_partition_free(dt_pipe_partition *p); /* NULL is accepted */
/* A table with a line for each stage: its layers, work, memory, and what crosses the cut after it. layers: those of the
   options. Returns the length as snprintf does. */
DT_API size_t             dt_pipe_partition_text(const dt_pipe_partition *p, const dt_pipe_layer *layers, char *buf,
                                                 size_t nbytes);
#ifdef DT__LIT
#define dt_pipe_partition_new(...) dt_pipe_partition_new_with(DT__ONLY(dt_pipe_partition_opts, __VA_ARGS__))
#else /* C++17: options as a struct */
#define dt_pipe_partition_new dt_pipe_partition_new_with
#endif

#ifdef __cplusplus
}
#endif
#endif /* DT_PLAN_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__PLAN_INSIDE)
#define DT__PLAN_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   What dt_comm.h, dt_sim.h and dt_mpi.h use of this header. */
#ifdef __cplusplus
extern "C" {
#endif
typedef enum dt__coll_vector { DT__COLL_EMPTY, DT__COLL_WHOLE, DT__COLL_SEGMENTS, DT__COLL_MESSAGE } dt__coll_vector;
typedef struct dt__coll_traits { /* a row of DT__COLLECTIVES */
    const char     *name;
    dt__coll_vector vector;
    bool            root, reduces, gpu;
} dt__coll_traits;
DT__INSIDE const dt__coll_traits *dt__coll_of(int coll); /* all false and "?" if there is no such collective */

typedef struct dt__plan_machines {
    int  n, least, most; /* number of machines; ranks of the smallest and of the largest */
    int *of;             /* of[r]: the machine of rank r */
    int *start, *rank;   /* machine m has rank[start[m]] .. rank[start[m + 1] - 1], ascending */
} dt__plan_machines;
DT__INSIDE bool dt__plan_machines_make(dt__plan_machines *m, int world, const int *host);
DT__INSIDE void dt__plan_machines_free(dt__plan_machines *m);
/* As dt_plan_choose; shared: algorithms in shared memory may be chosen */
DT__INSIDE dt_algo dt__cost_choose(const dt_costs *t, dt_coll coll, int world, const int *host, int link, bool shared,
                                   int64_t nbytes, int64_t *segment_bytes);
/* fixed: the algorithm that a collective uses at any size; DT_ALGO_AUTO: by cost without shared memory. NULL: all by
   cost, also in shared memory. */
DT__INSIDE void dt__explain(const dt_costs *t, int world, const int *host, int link, const dt_algo *fixed,
                            dt__text_out *o);
#define DT__COSTS_MOST_LATENCY 10.0   /* seconds a message */
#define DT__COSTS_MOST_PER_BYTE 1e-6  /* seconds a byte */
DT__INSIDE bool dt__costs_sane(const dt_costs *t); /* no number is negative, NaN or above these limits */
/* Costs of sockets that are limited to bandwidth bytes a second, and delayed by latency seconds; 0: no limit */
DT__INSIDE void dt__costs_slow(dt_costs *t, double bandwidth, double latency);

#ifdef __cplusplus
}
#endif
#endif /* DT__PLAN_INSIDE */

#if defined(DT_PLAN_IMPLEMENTATION) && !defined(DT__PLAN_IMPLEMENTED)
#define DT__PLAN_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__BASE_IMPLEMENTED)
#error "dt_plan.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_PLAN_IMPLEMENTATION"
#endif
#include <fcntl.h>
#include <sys/stat.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(PLAN);
DT__NEEDS(PLAN, BASE);

DT__SLOW_BEGIN
/* ==================================================================================================== >>planning
   A generator dt__plan_COLLECTIVE_ALGORITHM adds the steps of rank w->rank to w->p and counts rounds in w->round. It
   numbers rounds alike on all ranks, so that round k of one rank meets round k of its peers; a rank may have no step in a
   round. dt__plan_add leaves out steps of 0 elements, on both sides, except in a barrier and in SHARE.

   The comment of a generator says: its rounds; "Sent": how many elements a rank sends in all; "Order": the order of the
   operands; "Scratch": elements, if it needs any. p: number of ranks, n: elements of the vector (of all segments
   together), lg: the logarithm to base 2, x_r: the contribution of rank r.

   All ranks must get the same bits. So either each element is reduced on one rank and then copied ("reduced once"), or
   every rank reduces it with the same operands in the same order. */
typedef struct dt__plan_group { /* some ranks, which an algorithm numbers as members 0 .. n - 1 */
    const int *who;   /* the rank of each member */
    int        n, me; /* me: the member that this rank is; -1: it is not in the group */
} dt__plan_group;
typedef struct dt__plan_work {
    dt_plan            *p;
    const dt_plan_opts *o;
    int                 rank, world, round;
    int64_t             n;         /* elements of the vector */
    int64_t            *off, *cut; /* where segments or chunks begin; world + 1 elements each */
    int                *who;       /* world elements for groups; at first who[i] == i */
    dt__plan_machines   hosts;     /* only for algorithms that need MACHINES */
    const char         *why;       /* the first error, or NULL; after an error no steps are added */
    bool                memory;    /* the error is that memory is exhausted */
} dt__plan_work;
enum { DT__PLAN_WORLD = 1 << 22, DT__PLAN_ROUNDS = 1 << 26 }; /* limits */

static int dt__plan_log2(int n) /* rounded down */
{
    int k = 0;
    while (n >> (k + 1)) k++;
    return k;
}
static int dt__plan_log2_up(int n) { return n > 1 ? dt__plan_log2(n - 1) + 1 : 0; }
static int dt__plan_mod(int i, int n) { return i < 0 ? i + n : i >= n ? i - n : i; }
/* n elements are cut into parts whose sizes differ by at most one: where part i begins */
static int64_t dt__plan_part(int64_t n, int parts, int i) { return n / parts * i + (n % parts < i ? n % parts : i); }
static void    dt__plan_parts(int64_t *off, int64_t base, int64_t n, int parts)
{
    for (int i = 0; i <= parts; i++) off[i] = base + dt__plan_part(n, parts, i);
}
static int dt__plan_reverse(int v, int bits) /* the order of the lowest bits reversed */
{
    int r = 0;
    for (int i = 0; i < bits; i++) r |= ((v >> i) & 1) << (bits - 1 - i);
    return r;
}

static void dt__plan_fail(dt__plan_work *w, const char *why)
{
    if (!w->why) w->why = why;
}
static void dt__plan_no_memory(dt__plan_work *w)
{
    if (!w->why) w->memory = true;
    dt__plan_fail(w, "out of memory");
}
static dt_plan_step *dt__plan_add(dt__plan_work *w, int kind, int peer, int buf, int64_t at, int64_t n)
{
    dt_plan *p = w->p;
    if (w->why || (!n && p->coll != DT_COLL_BARRIER && kind != DT_STEP_SHARE)) return NULL;
    if (p->nsteps == p->cap) {
        int64_t cap = p->cap ? p->cap * 2 : 64;
        void   *q = (size_t)cap > SIZE_MAX / 2 / sizeof *p->step
                        ? NULL
                        : DT_COMM_REALLOC(p->step, (size_t)cap * sizeof *p->step);
        if (!q) {
            dt__plan_no_memory(w);
            return NULL;
        }
        p->step = (dt_plan_step *)q;
        p->cap = cap;
    }
    dt_plan_step *s = &p->step[p->nsteps++];
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->round = w->round;
    s->peer = peer;
    s->buf = (int16_t)buf;
    s->at = at;
    s->n = n;
    return s;
}
static void dt__plan_send(dt__plan_work *w, int peer, int buf, int64_t at, int64_t end)
{
    dt__plan_add(w, DT_STEP_SEND, peer, buf, at, end - at);
}
static void dt__plan_recv(dt__plan_work *w, int peer, int buf, int64_t at, int64_t end)
{
    dt__plan_add(w, DT_STEP_RECV, peer, buf, at, end - at);
}
/* buf[at..at+n) := from_buf[from..from+n) op received */
static void dt__plan_fold_from(dt__plan_work *w, int peer, int buf, int64_t at, int64_t n, int from_buf, int64_t from,
                               bool left)
{
    int           kind = n ? DT_STEP_FOLD : DT_STEP_RECV; /* a barrier has no elements to reduce */
    dt_plan_step *s = dt__plan_add(w, kind, peer, buf, at, n);
    if (!s || !n) return;
    s->from_buf = (int16_t)from_buf;
    s->from = from;
    s->left = left;
}
static void dt__plan_fold(dt__plan_work *w, int peer, int buf, int64_t at, int64_t end, bool left) /* in place */
{
    dt__plan_fold_from(w, peer, buf, at, end - at, buf, at, left);
}
static void dt__plan_local(dt__plan_work *w, int kind, int buf, int64_t at, int64_t n, int from_buf, int64_t from,
                           bool left)
{
    dt_plan_step *s = dt__plan_add(w, kind, w->rank, buf, at, n);
    if (!s) return;
    s->from_buf = (int16_t)from_buf;
    s->from = from;
    s->left = left;
}
static void dt__plan_scratch(dt__plan_work *w, int64_t slots, int64_t n)
{
    if (n && slots > INT64_MAX / n) dt__plan_fail(w, "this algorithm needs a scratch of 2^63 elements or more");
    else w->p->scratch = slots * n;
}
/* Fails if so many more rounds are too many, as in a pipeline of tiny segments. */
static bool dt__plan_room(dt__plan_work *w, int64_t rounds)
{
    if (rounds > DT__PLAN_ROUNDS - w->round) dt__plan_fail(w, "too many rounds: the segment is too small; take a larger one");
    return !w->why;
}
static dt__plan_group dt__plan_all(const dt__plan_work *w)
{
    dt__plan_group g;
    g.who = w->who;
    g.n = w->world;
    g.me = w->rank;
    return g;
}

/* ---- machines */
typedef struct dt__plan_pair {
    int host, rank;
} dt__plan_pair;
static int dt__plan_pair_order(const void *a, const void *b)
{
    const dt__plan_pair *x = (const dt__plan_pair *)a, *y = (const dt__plan_pair *)b;
    if (x->host != y->host) return x->host < y->host ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}
DT__INSIDE bool dt__plan_machines_make(dt__plan_machines *m, int world, const int *host)
{
    size_t n = (size_t)world;
    memset(m, 0, sizeof *m);
    m->of = (int *)DT_COMM_MALLOC((3 * n + 1) * sizeof(int));
    dt__plan_pair *pair = (dt__plan_pair *)DT_COMM_MALLOC(n * sizeof *pair);
    if (!m->of || !pair) {
        if (m->of) DT_COMM_FREE(m->of);
        if (pair) DT_COMM_FREE(pair);
        m->of = NULL;
        return false;
    }
    m->start = m->of + n;
    m->rank = m->start + n + 1;
    for (int i = 0; i < world; i++) {
        pair[i].host = host ? host[i] : 0;
        pair[i].rank = i;
    }
    qsort(pair, n, sizeof *pair, dt__plan_pair_order);
    for (int i = 0; i < world; i++) {
        if (!i || pair[i].host != pair[i - 1].host) m->start[m->n++] = i;
        m->rank[i] = pair[i].rank;
        m->of[pair[i].rank] = m->n - 1;
    }
    m->start[m->n] = world;
    m->least = world;
    for (int i = 0; i < m->n; i++) {
        int k = m->start[i + 1] - m->start[i];
        if (k < m->least) m->least = k;
        if (k > m->most) m->most = k;
    }
    DT_COMM_FREE(pair);
    return true;
}
DT__INSIDE void dt__plan_machines_free(dt__plan_machines *m)
{
    if (m->of) DT_COMM_FREE(m->of);
    m->of = NULL;
}
static bool dt__plan_one_machine(int world, const int *host)
{
    for (int i = 1; host && i < world; i++)
        if (host[i] != host[0]) return false;
    return true;
}
static dt__plan_group dt__plan_my_machine(const dt__plan_work *w)
{
    const dt__plan_machines *m = &w->hosts;
    int                      h = m->of[w->rank];
    dt__plan_group           g;
    g.who = m->rank + m->start[h];
    g.n = m->start[h + 1] - m->start[h];
    g.me = 0;
    while (g.who[g.me] != w->rank) g.me++;
    return g;
}

/* ---- parts of algorithms. Each advances w->round by the same number on all ranks, also on those not in the group. */

/* Binomial tree to member 0, from distance `first` on: ceil(lg p) rounds with messages of n if first is 1. A member
   reduces what it receives into buf. Order: lower members are the left operands. */
static void dt__plan_tree_up(dt__plan_work *w, const dt__plan_group *g, int first, int buf, int64_t n)
{
    int v = g->me;
    for (int bit = first; bit < g->n; bit <<= 1, w->round++) {
        if (v < 0 || v & (bit - 1)) continue;
        if (v & bit) dt__plan_send(w, g->who[v - bit], buf, 0, n);
        else if (v + bit < g->n) dt__plan_fold(w, g->who[v + bit], buf, 0, n, false);
    }
}
/* Binomial tree from member 0: ceil(lg p) rounds with messages of n. */
static void dt__plan_tree_down(dt__plan_work *w, const dt__plan_group *g, int64_t n)
{
    int v = g->me;
    for (int bit = (1 << dt__plan_log2_up(g->n)) >> 1; bit; bit >>= 1, w->round++) {
        if (v < 0 || v & (bit - 1)) continue;
        if (v & bit) dt__plan_recv(w, g->who[v - bit], DT_PLAN_DATA, 0, n);
        else if (v + bit < g->n) dt__plan_send(w, g->who[v + bit], DT_PLAN_DATA, 0, n);
    }
}
/* Once around the ring: p - 1 rounds with one chunk each; each round is several if chunks are cut into pieces of
   `segment` elements. Chunk c is off[c] .. off[c + 1] of buf. Member i first sends chunk i + own to member i + 1, then what
   it received. With fold, member i ends with chunk i + own + 1 reduced. Order: around the ring; the received value is
   the left operand. In place, or with buf IN: a chunk on its way is in scratch, which has two chunks, so that one is sent
   while the next is received; the last one goes to DATA. */
static void dt__plan_ring(dt__plan_work *w, const dt__plan_group *g, int buf, const int64_t *off, int64_t segment,
                          bool fold, int own)
{
    int64_t most = 0, pieces = 1;
    for (int i = 0; i < g->n; i++)
        if (off[i + 1] - off[i] > most) most = off[i + 1] - off[i];
    if (segment > 0 && most > segment) pieces = most / segment + (most % segment != 0);
    if (pieces == 1) segment = most;
    if (!dt__plan_room(w, pieces > DT__PLAN_ROUNDS ? pieces : pieces * (g->n - 1))) return;
    if (g->me < 0) {
        w->round += (int)pieces * (g->n - 1);
        return;
    }
    int next = g->who[dt__plan_mod(g->me + 1, g->n)], prev = g->who[dt__plan_mod(g->me - 1, g->n)];
    int out = dt__plan_mod(g->me + own, g->n);
    if (buf == DT_PLAN_IN) dt__plan_scratch(w, g->n > 3 ? 2 : g->n - 2, most);
    for (int t = 0; t < g->n - 1; t++) {
        int in = dt__plan_mod(out - 1, g->n), to = t == g->n - 2 ? (int)DT_PLAN_DATA : (int)DT_PLAN_SCRATCH;
        for (int64_t k = 0; k < pieces; k++, w->round++) {
            int64_t at = off[out] + k * segment, end = off[out + 1] - at > segment ? at + segment : off[out + 1];
            int64_t slot = (t & 1 ? most : 0) + k * segment, other = (t & 1 ? 0 : most) + k * segment;
            if (at < end && t && buf == DT_PLAN_IN) dt__plan_send(w, next, DT_PLAN_SCRATCH, other, other + end - at);
            else if (at < end) dt__plan_send(w, next, buf, at, end);
            at = off[in] + k * segment, end = off[in + 1] - at > segment ? at + segment : off[in + 1];
            if (at >= end) continue;
            if (buf == DT_PLAN_IN)
                dt__plan_fold_from(w, prev, to, to == DT_PLAN_DATA ? k * segment : slot, end - at, DT_PLAN_IN, at, true);
            else if (fold) dt__plan_fold(w, prev, buf, at, end, true);
            else dt__plan_recv(w, prev, buf, at, end);
        }
        out = in;
    }
}
/* Recursive halving in a group of 2^k members: k rounds with messages of n/2, n/4 ... After it member i has one unit,
   reduced. The partner of the first round is the neighbour, and member i gets unit reverse(i). Unit u is off[u * stride]
   .. off[(u + 1) * stride]; *lo and *hi are the member's unit and the next. Order: the lower member's value is the left
   operand. */
static void dt__plan_halve(dt__plan_work *w, const dt__plan_group *g, const int64_t *off, int stride, int *lo, int *hi)
{
    *lo = 0, *hi = g->n;
    for (int m = 1; m < g->n; m <<= 1, w->round++) {
        int mid = (*lo + *hi) / 2;
        if (g->me < 0) continue;
        int     peer = g->who[g->me ^ m];
        int64_t a = off[*lo * stride], b = off[mid * stride], c = off[*hi * stride];
        if (g->me & m) {
            dt__plan_send(w, peer, DT_PLAN_DATA, a, b);
            dt__plan_fold(w, peer, DT_PLAN_DATA, b, c, true);
            *lo = mid;
        } else {
            dt__plan_send(w, peer, DT_PLAN_DATA, b, c);
            dt__plan_fold(w, peer, DT_PLAN_DATA, a, b, false);
            *hi = mid;
        }
    }
}
/* Recursive doubling: from one unit each, every member gets all units. near: the inverse of dt__plan_halve; else the last
   partner is half the group away, and member i has unit i. */
static void dt__plan_unhalve(dt__plan_work *w, const dt__plan_group *g, const int64_t *off, int stride, bool near,
                             int lo, int hi)
{
    for (int i = dt__plan_log2(g->n) - 1; i >= 0; i--, w->round++) {
        int m = near ? 1 << i : g->n >> (i + 1), wide = hi - lo;
        if (g->me < 0) continue;
        int peer = g->who[g->me ^ m], other = g->me & m ? lo - wide : hi;
        dt__plan_send(w, peer, DT_PLAN_DATA, off[lo * stride], off[hi * stride]);
        dt__plan_recv(w, peer, DT_PLAN_DATA, off[other * stride], off[(other + wide) * stride]);
        if (other < lo) lo = other;
        else hi = other + wide;
    }
}
/* Scratch has the vectors of the other members in their order, DATA the own one. DATA becomes ((x0 op x1) op x2) ..., with
   the same operands on every member. p - 1 rounds without messages. */
static void dt__plan_in_order(dt__plan_work *w, int me, int members, int64_t at, int64_t n)
{
    for (int k = 1; k < members && !w->why; k++, w->round++) {
        if (k < me) dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_SCRATCH, 0, n, DT_PLAN_SCRATCH, k * n, false);
        else if (k == me) dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_DATA, at, n, DT_PLAN_SCRATCH, 0, true);
        else dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_DATA, at, n, DT_PLAN_SCRATCH, (k - 1) * n, false);
    }
}
/* A group of the largest power of two of ranks: of the first 2 rem ranks the odd ones are not in it. Members are in the
   order of ranks. */
static dt__plan_group dt__plan_power(dt__plan_work *w, int *rem)
{
    dt__plan_group g;
    g.n = 1 << dt__plan_log2(w->world);
    *rem = w->world - g.n;
    for (int v = 0; v < g.n; v++) w->who[v] = v < *rem ? 2 * v : v + *rem;
    g.who = w->who;
    g.me = w->rank >= 2 * *rem ? w->rank - *rem : w->rank % 2 ? -1 : w->rank / 2;
    return g;
}
/* All ranks send their vector to the root, which reduces in ascending order of ranks: p - 1 rounds with a message of n,
   and one without messages if the root is not rank 0. DATA of the other ranks does not change. */
static void dt__plan_to_root(dt__plan_work *w, int root)
{
    if (root) dt__plan_scratch(w, w->rank == root, w->n);
    for (int k = root ? 0 : 1; k < w->world; k++, w->round++) {
        if (w->rank == k && k != root) dt__plan_send(w, root, DT_PLAN_DATA, 0, w->n);
        if (w->rank != root) continue;
        if (k == root) dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_DATA, 0, w->n, DT_PLAN_SCRATCH, 0, true);
        else if (!k) dt__plan_recv(w, k, DT_PLAN_SCRATCH, 0, w->n);
        else dt__plan_fold(w, k, k < root ? DT_PLAN_SCRATCH : DT_PLAN_DATA, 0, w->n, false);
    }
}
/* One round: the root sends to each other rank (out), or receives from each, its segment; off NULL: the whole vector.
   alone: the other rank's DATA is its segment, not the segments of all ranks. */
static void dt__plan_fan(dt__plan_work *w, int root, bool out, const int64_t *off, bool alone)
{
    int kind = (w->rank == root) == out ? DT_STEP_SEND : DT_STEP_RECV;
    for (int k = 0; k < w->world; k++) {
        if (k == root || (w->rank != root && w->rank != k)) continue;
        int64_t at = off ? off[k] : 0, n = off ? off[k + 1] - at : w->n;
        dt__plan_add(w, kind, w->rank == root ? k : root, DT_PLAN_DATA, alone && w->rank != root ? 0 : at, n);
    }
    w->round++;
}

/* reduce_scatter in an order that depends on the number of ranks only: every element is ((x0 x1) (x2 x3)) ((x4 x5) ...,
   whichever rank reduces it. So allreduce, reduce and reduce_scatter give the same bits.
   Rounds: one in which each rank receives the other ranks' parts of its segment, then ceil(lg p) without messages; with
   reduce and reduce_scatter one that copies before them. Sent: n (p-1)/p by each rank. Scratch: the same.
   The vector is in `from`, DATA or IN. The result is in DATA, or with copy in scratch; returns where it begins. */
static int64_t dt__plan_ordered(dt__plan_work *w, const int64_t *off, int from, bool copy)
{
    int     p = w->world, me = w->rank, own = me;
    int64_t k = off[me + 1] - off[me], at = copy ? (p - 1) * k : from == DT_PLAN_IN ? 0 : off[me];
    int     buf = copy ? DT_PLAN_SCRATCH : DT_PLAN_DATA;
    dt__plan_scratch(w, p - 1 + copy, k);
    if (copy || from != DT_PLAN_DATA) dt__plan_local(w, DT_STEP_COPY, buf, at, k, from, off[me], false);
    if (w->p->coll != DT_COLL_ALLREDUCE) w->round++;
    for (int t = 1; t < p; t++) { /* every rank begins with another peer */
        int to = dt__plan_mod(me + t, p), r = dt__plan_mod(me - t, p);
        dt__plan_send(w, to, from, off[to], off[to + 1]);
        dt__plan_recv(w, r, DT_PLAN_SCRATCH, (r - (r > me)) * k, (r - (r > me) + 1) * k);
    }
    w->round++;
    for (int s = 1; s < p; s *= 2, w->round++)
        for (int i = 0; i + s < p && k; i += 2 * s) { /* partial result `own` is in buf, the others in scratch */
            int64_t a = (i - (i > me)) * k, b = (i + s - (i + s > me)) * k;
            if (i + s == own) dt__plan_local(w, DT_STEP_REDUCE, buf, at, k, DT_PLAN_SCRATCH, a, true), own = i;
            else if (i == own) dt__plan_local(w, DT_STEP_REDUCE, buf, at, k, DT_PLAN_SCRATCH, b, false);
            else dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_SCRATCH, a, k, DT_PLAN_SCRATCH, b, false);
        }
    return at;
}

/* ---- allreduce */

/* Rounds: p - 1 in which one rank sends n to rank 0, then one in which rank 0 sends n to all.
   Sent: n by each rank, (p - 1) n by rank 0. Order: ascending ranks, reduced on rank 0 only. */
static void dt__plan_allreduce_direct(dt__plan_work *w)
{
    dt__plan_to_root(w, 0);
    dt__plan_fan(w, 0, true, NULL, false);
}
/* Rounds: one with p - 1 messages of n from each rank, then p - 1 without messages.
   Sent: (p - 1) n by each rank. Order: ascending ranks, the same on every rank. Scratch: (p - 1) n. */
static void dt__plan_allreduce_alltoall(dt__plan_work *w)
{
    dt__plan_scratch(w, w->world - 1, w->n);
    for (int t = 1; t < w->world && !w->why; t++) { /* every rank begins with another peer */
        int     to = dt__plan_mod(w->rank + t, w->world), from = dt__plan_mod(w->rank - t, w->world);
        int64_t slot = (from < w->rank ? from : from - 1) * w->n;
        dt__plan_send(w, to, DT_PLAN_DATA, 0, w->n);
        dt__plan_recv(w, from, DT_PLAN_SCRATCH, slot, slot + w->n);
    }
    w->round++;
    dt__plan_in_order(w, w->rank, w->world, 0, w->n);
}
/* Rounds: 2 ceil(lg p) with messages of n: up the tree to rank 0, then down.
   Sent: n by a leaf, n ceil(lg p) by rank 0. Order: the lower block of ranks is the left operand, reduced once. */
static void dt__plan_allreduce_tree(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    dt__plan_tree_up(w, &g, 1, DT_PLAN_DATA, w->n);
    dt__plan_tree_down(w, &g, w->n);
}
/* Rounds: 2 (p - 1) with messages of n/p; with opts.segment each of them in pieces: reduce_scatter, then allgather.
   Sent: 2 n (p-1)/p by each rank, the least possible. Order: chunk c is x_c op x_c+1 op ... around the ring, reduced
   once. */
static void dt__plan_allreduce_ring(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    dt__plan_parts(w->off, 0, w->n, w->world);
    dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, true, 0);
    dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, false, 1);
}
/* Recursive doubling: in exchange k a rank and its partner at distance 2^k swap vectors and both reduce.
   Rounds: lg p with messages of n, each followed by one that reduces. If p is not a power of two: floor(lg p) + 2; of
   the first pairs the odd rank gives its vector to the even one first and gets the result last.
   Sent: n lg p by each rank; if p is not a power of two at most n (floor(lg p) + 1). Order: the lower block of ranks is
   the left operand on both sides. Scratch: n. */
static void dt__plan_allreduce_doubling(dt__plan_work *w)
{
    int            rem, r = w->rank;
    dt__plan_group g = dt__plan_power(w, &rem);
    dt__plan_scratch(w, 1, w->n);
    if (rem) {
        if (r < 2 * rem && r % 2) dt__plan_send(w, r - 1, DT_PLAN_DATA, 0, w->n);
        if (r < 2 * rem && r % 2 == 0) dt__plan_fold(w, r + 1, DT_PLAN_DATA, 0, w->n, false);
        w->round++;
    }
    for (int m = 1; m < g.n; m <<= 1, w->round += 2) {
        if (g.me < 0) continue;
        dt__plan_send(w, g.who[g.me ^ m], DT_PLAN_DATA, 0, w->n);
        dt__plan_recv(w, g.who[g.me ^ m], DT_PLAN_SCRATCH, 0, w->n);
        w->round++;
        dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_DATA, 0, w->n, DT_PLAN_SCRATCH, 0, (g.me & m) != 0);
        w->round--;
    }
    if (rem) {
        if (r < 2 * rem && r % 2) dt__plan_recv(w, r - 1, DT_PLAN_DATA, 0, w->n);
        if (r < 2 * rem && r % 2 == 0) dt__plan_send(w, r + 1, DT_PLAN_DATA, 0, w->n);
        w->round++;
    }
}
/* Rabenseifner: recursive halving (n/2, n/4 ... n/p), then the same way back.
   Rounds: 2 lg p. Sent: 2 n (p-1)/p by each rank. If p is not a power of two, p' = 2^floor(lg p): 3 + 2 lg p' rounds,
   and at most 7n/2 - 2n/p' by each rank. The first p - p' pairs first reduce two vectors to one: each rank of a pair
   reduces one half, and the odd one sends its half to the even one. The odd rank gets the result in the last round.
   Order: the lower rank is the left operand at each level, reduced once. */
static void dt__plan_allreduce_halving(dt__plan_work *w)
{
    int            rem, lo, hi, r = w->rank;
    dt__plan_group g = dt__plan_power(w, &rem);
    int64_t        mid = dt__plan_part(w->n, 2, 1);
    if (rem) {
        if (r < 2 * rem && r % 2) {
            dt__plan_send(w, r - 1, DT_PLAN_DATA, 0, mid);
            dt__plan_fold(w, r - 1, DT_PLAN_DATA, mid, w->n, true);
            w->round++;
            dt__plan_send(w, r - 1, DT_PLAN_DATA, mid, w->n);
            w->round--;
        } else if (r < 2 * rem) {
            dt__plan_send(w, r + 1, DT_PLAN_DATA, mid, w->n);
            dt__plan_fold(w, r + 1, DT_PLAN_DATA, 0, mid, false);
            w->round++;
            dt__plan_recv(w, r + 1, DT_PLAN_DATA, mid, w->n);
            w->round--;
        }
        w->round += 2;
    }
    dt__plan_parts(w->off, 0, w->n, g.n);
    dt__plan_halve(w, &g, w->off, 1, &lo, &hi);
    dt__plan_unhalve(w, &g, w->off, 1, true, lo, hi);
    if (rem) {
        if (r < 2 * rem && r % 2) dt__plan_recv(w, r - 1, DT_PLAN_DATA, 0, w->n);
        if (r < 2 * rem && r % 2 == 0) dt__plan_send(w, r + 1, DT_PLAN_DATA, 0, w->n);
        w->round++;
    }
}
/* Binary blocks: each set bit of p is a block of that many ranks, the largest first.
   1. Recursive halving inside each block.
   2. From the smallest block on, each block sends its reduced windows to the next larger one, which reduces them.
   3. The results go back, from the largest block to the smallest.
   4. Recursive doubling inside each block.
   Rounds: 2 lg B + 2 (k - 1) for k blocks, the largest of B ranks. Sent: at most 2n by each rank.
   Order: inside a block as in halving; the larger block, which has the lower ranks, is the left operand; reduced once. */
static void dt__plan_allreduce_blocks(dt__plan_work *w)
{
    int start[32], size[32], blocks = 0, mine = 0, lo = 0, hi = 0, B, at = 0;
    for (int bit = 1 << dt__plan_log2(w->world); bit; bit >>= 1) {
        if (!(w->world & bit)) continue;
        start[blocks] = at, size[blocks] = bit;
        if (w->rank >= at) mine = blocks;
        at += bit, blocks++;
    }
    B = size[0];
    dt__plan_parts(w->off, 0, w->n, B);
    dt__plan_group g;
    g.who = w->who + start[mine];
    g.n = size[mine];
    g.me = w->rank - start[mine];
    int stride = B / g.n, base = w->round;
    dt__plan_halve(w, &g, w->off, stride, &lo, &hi);
    w->round = base + dt__plan_log2(B);
    int64_t first = w->off[lo * stride], last = w->off[hi * stride];
    for (int way = 0; way < 2; way++) { /* 0: to the larger blocks, 1: back */
        for (int i = 1; i < blocks; i++, w->round++) {
            int x = way ? i : blocks - i, s = size[x], big = size[x - 1], bits = dt__plan_log2(big); /* x and x - 1 */
            if (mine == x) {
                for (int j = g.me; j < big; j += s) {
                    int     u = dt__plan_reverse(j, bits) * (B / big);
                    int64_t a = w->off[u], b = w->off[u + B / big];
                    if (way) dt__plan_recv(w, start[x - 1] + j, DT_PLAN_DATA, a, b);
                    else dt__plan_send(w, start[x - 1] + j, DT_PLAN_DATA, a, b);
                }
            } else if (mine == x - 1) {
                if (way) dt__plan_send(w, start[x] + g.me % s, DT_PLAN_DATA, first, last);
                else dt__plan_fold(w, start[x] + g.me % s, DT_PLAN_DATA, first, last, false);
            }
        }
    }
    base = w->round;
    w->round += dt__plan_log2(B) - dt__plan_log2(g.n); /* all blocks end in the same round */
    dt__plan_unhalve(w, &g, w->off, stride, true, lo, hi);
    w->round = base + dt__plan_log2(B);
}
/* Two levels: there are as many shards as the smallest machine has ranks, L. M: ranks of the largest machine, H:
   machines.
   1. Inside a machine rank l < L reduces shard l, with one partner a round: M - 1 rounds.
   2. The ranks l of all machines reduce shard l in a ring: 2 (H - 1) rounds.
   3. Inside a machine rank l sends shard l to all: M - 1 rounds.
   Sent: 2 n (p-1)/p by each rank if M = L, of which 2 (n/L) (H-1)/H leave the machine.
   Order: inside a machine the own value, then the following ranks, around; between machines around the ring; reduced
   once. */
static void dt__plan_allreduce_two_level(dt__plan_work *w)
{
    const dt__plan_machines *m = &w->hosts;
    dt__plan_group           g = dt__plan_my_machine(w), ring;
    int                      L = m->least, me = g.me;
    dt__plan_parts(w->off, 0, w->n, L);
    for (int t = 1; t < m->most; t++, w->round++) {
        if (t >= g.n) continue;
        int to = dt__plan_mod(me - t, g.n), from = dt__plan_mod(me + t, g.n);
        if (to < L) dt__plan_send(w, g.who[to], DT_PLAN_DATA, w->off[to], w->off[to + 1]);
        if (me < L) dt__plan_fold(w, g.who[from], DT_PLAN_DATA, w->off[me], w->off[me + 1], false);
    }
    int shard = me < L ? me : 0;
    for (int h = 0; h < m->n; h++) w->who[h] = m->rank[m->start[h] + shard];
    ring.who = w->who;
    ring.n = m->n;
    ring.me = me < L ? m->of[w->rank] : -1;
    dt__plan_parts(w->cut, w->off[shard], w->off[shard + 1] - w->off[shard], m->n);
    dt__plan_ring(w, &ring, DT_PLAN_DATA, w->cut, 0, true, 0);
    dt__plan_ring(w, &ring, DT_PLAN_DATA, w->cut, 0, false, 1);
    for (int t = 1; t < m->most; t++, w->round++) {
        if (t >= g.n) continue;
        int to = dt__plan_mod(me + t, g.n), from = dt__plan_mod(me - t, g.n);
        if (me < L) dt__plan_send(w, g.who[to], DT_PLAN_DATA, w->off[me], w->off[me + 1]);
        if (from < L) dt__plan_recv(w, g.who[from], DT_PLAN_DATA, w->off[from], w->off[from + 1]);
    }
}
/* A tree to the first rank of each machine, a ring of these leaders, a tree down. M: ranks of the largest machine, H:
   machines. Rounds: 2 ceil(lg M) + 2 (H - 1). Sent: 2 n (H-1)/H leave each machine; a leader also sends n ceil(lg M)
   inside. Order: the lower block of ranks is the left operand in the tree, then around the ring; reduced once. */
static void dt__plan_allreduce_leader(dt__plan_work *w)
{
    const dt__plan_machines *m = &w->hosts;
    dt__plan_group           g = dt__plan_my_machine(w), ring;
    int                      base = w->round, deep = dt__plan_log2_up(m->most);
    dt__plan_tree_up(w, &g, 1, DT_PLAN_DATA, w->n);
    w->round = base + deep;
    for (int h = 0; h < m->n; h++) w->who[h] = m->rank[m->start[h]];
    ring.who = w->who;
    ring.n = m->n;
    ring.me = g.me ? -1 : m->of[w->rank];
    dt__plan_parts(w->cut, 0, w->n, m->n);
    dt__plan_ring(w, &ring, DT_PLAN_DATA, w->cut, w->o->segment, true, 0);
    dt__plan_ring(w, &ring, DT_PLAN_DATA, w->cut, w->o->segment, false, 1);
    base = w->round;
    dt__plan_tree_down(w, &g, w->n);
    w->round = base + deep;
}
/* One round without messages: rank r reduces part r of all vectors and writes it to all. Every rank has a step, also one
   of 0 elements: all ranks meet in the round. Each rank reads n/p from each other rank and writes n/p to each.
   Order: ascending ranks, reduced once. */
static void dt__plan_allreduce_shared(dt__plan_work *w)
{
    dt__plan_parts(w->off, 0, w->n, w->world);
    dt__plan_add(w, DT_STEP_SHARE, w->rank, DT_PLAN_DATA, w->off[w->rank], w->off[w->rank + 1] - w->off[w->rank]);
    w->round++;
}
/* reduce_scatter by ordered, then a round in which each rank sends its segment to all.
   Rounds: 2 with p - 1 messages of n/p from each rank, and ceil(lg p) without messages.
   Sent: 2 n (p-1)/p by each rank. Order: see dt__plan_ordered; reduced once. */
static void dt__plan_allreduce_ordered(dt__plan_work *w)
{
    dt__plan_parts(w->off, 0, w->n, w->world);
    dt__plan_ordered(w, w->off, DT_PLAN_DATA, false);
    for (int t = 1; t < w->world; t++) {
        int r = dt__plan_mod(w->rank - t, w->world);
        dt__plan_send(w, dt__plan_mod(w->rank + t, w->world), DT_PLAN_DATA, w->off[w->rank], w->off[w->rank + 1]);
        dt__plan_recv(w, r, DT_PLAN_DATA, w->off[r], w->off[r + 1]);
    }
    w->round++;
}

/* ---- reduce_scatter: off[r] .. off[r + 1] of IN is the segment of rank r. The result is at the beginning of DATA. IN is not
   written: the first FOLD of an element takes it from IN and puts it to another place. */

/* Rounds: p - 1 in which one rank sends n to rank 0, then one in which rank 0 sends each rank its segment.
   Sent: n by each rank, n (p-1)/p by rank 0. Order: ascending ranks. DATA of rank 0: n. */
static void dt__plan_reduce_scatter_direct(dt__plan_work *w)
{
    if (!w->rank) w->p->count = w->n;
    for (int k = 1; k < w->world; k++, w->round++) {
        if (w->rank == k) dt__plan_send(w, 0, DT_PLAN_IN, 0, w->n);
        if (!w->rank) dt__plan_fold_from(w, k, DT_PLAN_DATA, 0, w->n, k == 1 ? DT_PLAN_IN : DT_PLAN_DATA, 0, false);
    }
    dt__plan_fan(w, 0, true, w->off, true);
}
/* Rounds: p - 1, with opts.segment in pieces. Sent: n (p-1)/p by each rank.
   Order: segment r is x_r+1 op x_r+2 op ... op x_r, around the ring. Scratch: the largest segment once with 3 ranks, twice
   with more. */
static void dt__plan_reduce_scatter_ring(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    dt__plan_ring(w, &g, DT_PLAN_IN, w->off, w->o->segment, true, -1);
}
/* Recursive halving, the partner at half the group's distance first, so that a rank ends with its own segment.
   Rounds: lg p. Sent: n (p-1)/p by each rank. If p is not a power of two: floor(lg p) + 2 rounds; of the first pairs the
   odd rank sends its vector to the even one first and gets its segment from it last; at most n by each rank.
   Order: the lower rank is the left operand at each level. Scratch: the half that a rank keeps in the first round, if
   there are several; n on the even rank of a pair, whose DATA also has the segment of the odd one. */
static void dt__plan_reduce_scatter_halving(dt__plan_work *w)
{
    int            rem, lo = 0, hi, r = w->rank, buf = DT_PLAN_IN; /* buf: where the vector is */
    int64_t        base = 0;                                       /* the element at the beginning of buf */
    dt__plan_group g = dt__plan_power(w, &rem);
    bool           even = r < 2 * rem && r % 2 == 0;
    for (int v = 0; v <= g.n; v++) w->cut[v] = w->off[v < rem ? 2 * v : v + rem];
    if (rem && g.me < 0) dt__plan_send(w, r - 1, DT_PLAN_IN, 0, w->n);
    if (even) {
        dt__plan_scratch(w, 1, w->n);
        w->p->count = w->off[r + 2] - w->off[r];
        dt__plan_fold_from(w, r + 1, DT_PLAN_SCRATCH, 0, w->n, DT_PLAN_IN, 0, false);
        buf = DT_PLAN_SCRATCH;
    }
    if (rem) w->round++;
    hi = g.n;
    for (int m = g.n >> 1; m; m >>= 1, w->round++) {
        int mid = (lo + hi) / 2;
        if (g.me < 0) continue;
        bool    up = g.me & m; /* it keeps the upper half */
        int     peer = g.who[g.me ^ m], from = buf;
        int64_t keep = w->cut[up ? mid : lo], n = w->cut[up ? hi : mid] - keep, give = w->cut[up ? lo : mid], was = base;
        dt__plan_send(w, peer, buf, give - base, w->cut[up ? mid : hi] - base);
        if (buf == DT_PLAN_IN && m > 1) dt__plan_scratch(w, 1, n), base = keep;
        buf = m > 1 ? DT_PLAN_SCRATCH : DT_PLAN_DATA;
        dt__plan_fold_from(w, peer, buf, m > 1 ? keep - base : 0, n, from, keep - was, up);
        if (up) lo = mid;
        else hi = mid;
    }
    if (!rem) return;
    if (g.me < 0) dt__plan_recv(w, r - 1, DT_PLAN_DATA, 0, w->off[r + 1] - w->off[r]);
    if (even) dt__plan_send(w, r + 1, DT_PLAN_DATA, w->off[r + 1] - w->off[r], w->off[r + 2] - w->off[r]);
    w->round++;
}
/* Rounds: p - 1, another partner in each. Sent: n (p-1)/p by each rank.
   Order: segment r is x_r op x_r+1 op ..., around the ranks. */
static void dt__plan_reduce_scatter_pairs(dt__plan_work *w)
{
    int     p = w->world, r = w->rank;
    int64_t n = w->off[r + 1] - w->off[r];
    for (int t = 1; t < p; t++, w->round++) {
        int to = dt__plan_mod(r - t, p), from = dt__plan_mod(r + t, p);
        dt__plan_send(w, to, DT_PLAN_IN, w->off[to], w->off[to + 1]);
        if (t == 1) dt__plan_fold_from(w, from, DT_PLAN_DATA, 0, n, DT_PLAN_IN, w->off[r], false);
        else dt__plan_fold(w, from, DT_PLAN_DATA, 0, n, false);
    }
}
/* Rounds, bytes and order: see dt__plan_ordered. */
static void dt__plan_reduce_scatter_ordered(dt__plan_work *w) { dt__plan_ordered(w, w->off, DT_PLAN_IN, false); }

/* ---- allgather */

/* Rounds: one in which all segments go to rank 0, then one in which rank 0 sends n to all.
   Sent: n/p by each rank, (p - 1) n by rank 0. */
static void dt__plan_allgather_direct(dt__plan_work *w)
{
    dt__plan_fan(w, 0, false, w->off, false);
    dt__plan_fan(w, 0, true, NULL, false);
}
/* Rounds: p - 1, with opts.segment in pieces. Sent: n (p-1)/p by each rank. */
static void dt__plan_allgather_ring(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, false, 0);
}
/* Rounds: lg p; p is a power of two. Sent: n (p-1)/p by each rank. */
static void dt__plan_allgather_doubling(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    dt__plan_unhalve(w, &g, w->off, 1, false, w->rank, w->rank + 1);
}
/* Scratch holds the segments in the order of ranks from the own one on, around the ranks. Round k sends the first 2^k of
   them to rank r - 2^k and receives the next ones from rank r + 2^k. At the end they are copied to their places.
   Rounds: ceil(lg p) with messages, and two that copy. Sent: n (p-1)/p by each rank. Scratch: n. */
static void dt__plan_allgather_bruck(dt__plan_work *w)
{
    int      p = w->world, r = w->rank;
    int64_t *at = w->cut, own = w->off[r + 1] - w->off[r];
    dt__plan_scratch(w, 1, w->n);
    for (int j = 0; j <= p; j++) at[j] = r + j <= p ? w->off[r + j] - w->off[r] : w->n - w->off[r] + w->off[r + j - p];
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, 0, own, DT_PLAN_DATA, w->off[r], false);
    w->round++;
    for (int m = 1; m < p; m <<= 1, w->round++) {
        int k = m < p - m ? m : p - m;
        dt__plan_send(w, dt__plan_mod(r - m, p), DT_PLAN_SCRATCH, 0, at[k]);
        dt__plan_recv(w, dt__plan_mod(r + m, p), DT_PLAN_SCRATCH, at[m], at[m + k]);
    }
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, w->off[r + 1], w->n - w->off[r + 1], DT_PLAN_SCRATCH, own, false);
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, 0, w->off[r], DT_PLAN_SCRATCH, w->n - w->off[r], false);
    w->round++;
}

/* ---- gather and scatter */

/* All ranks, numbered from the root on around the ranks: member 0 is the root. */
static dt__plan_group dt__plan_from_root(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    for (int v = 0; v < w->world; v++) w->who[v] = dt__plan_mod(v + w->o->root, w->world);
    g.me = dt__plan_mod(w->rank - w->o->root, w->world);
    return g;
}
/* Where the segment of rank k begins in DATA: at the root in the order of ranks; at other ranks the own segment is the first,
   the others follow around the ranks. */
static int64_t dt__plan_place(const dt__plan_work *w, int k)
{
    int64_t own = w->rank == w->o->root ? 0 : w->off[w->rank];
    return w->off[k] >= own ? w->off[k] - own : w->off[k] - own + w->n;
}
/* The segments of members first .. last - 1 of dt__plan_from_root: two messages if they wrap around the last rank. */
static void dt__plan_add_members(dt__plan_work *w, int kind, int peer, int first, int last)
{
    int a = first + w->o->root, b = last + w->o->root, p = w->world;
    if (a >= p) a -= p, b -= p;
    dt__plan_add(w, kind, peer, DT_PLAN_DATA, dt__plan_place(w, a), w->off[b < p ? b : p] - w->off[a]);
    if (b > p) dt__plan_add(w, kind, peer, DT_PLAN_DATA, dt__plan_place(w, 0), w->off[b - p]);
}
/* A binomial tree; a message holds the segments of a whole subtree. out: from the root (scatter), else to it (gather). DATA of
   a rank other than the root has the segments of its subtree. */
static void dt__plan_subtrees(dt__plan_work *w, bool out)
{
    dt__plan_group g = dt__plan_from_root(w);
    int            v = g.me, deep = dt__plan_log2_up(g.n);
    for (int i = v + 1; v && i < g.n && i - v < (v & -v); i++) w->p->count += w->off[g.who[i] + 1] - w->off[g.who[i]];
    for (int i = 0; i < deep; i++, w->round++) {
        int bit = 1 << (out ? deep - 1 - i : i);
        if (v & (bit - 1)) continue;
        int child = v & bit ? v : v + bit, last = g.n - child > bit ? child + bit : g.n;
        if (child >= g.n) continue;
        dt__plan_add_members(w, (v == child) == out ? DT_STEP_RECV : DT_STEP_SEND, g.who[v ^ bit], child, last);
    }
}
/* Rounds: one with p - 1 messages at the root. Sent: its segment by each rank. */
static void dt__plan_gather_direct(dt__plan_work *w) { dt__plan_fan(w, w->o->root, false, w->off, true); }
/* Rounds: ceil(lg p). Sent: by each rank the segments of its subtree, at most about n/2; the root receives n (p-1)/p. */
static void dt__plan_gather_tree(dt__plan_work *w) { dt__plan_subtrees(w, false); }
/* Rounds: one with p - 1 messages at the root. Sent: n (p-1)/p by the root. */
static void dt__plan_scatter_direct(dt__plan_work *w) { dt__plan_fan(w, w->o->root, true, w->off, true); }
/* Rounds: ceil(lg p). Sent: n (p-1)/p by the root, by others the segments of their subtree without their own. */
static void dt__plan_scatter_tree(dt__plan_work *w) { dt__plan_subtrees(w, true); }

/* ---- alltoall: off holds the segments to send, cut those to receive */

/* Segments go from IN to DATA; the last round copies the own one. rounds: one partner a round, else all at once. */
static void dt__plan_exchange(dt__plan_work *w, bool rounds)
{
    int64_t *out = w->off, *in = w->cut;
    int      p = w->world, r = w->rank;
    for (int t = 1; t < p; t++) {
        int to = dt__plan_mod(r + t, p), from = dt__plan_mod(r - t, p);
        dt__plan_send(w, to, DT_PLAN_IN, out[to], out[to + 1]);
        dt__plan_recv(w, from, DT_PLAN_DATA, in[from], in[from + 1]);
        if (rounds) w->round++;
    }
    if (!rounds) w->round++;
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, in[r], in[r + 1] - in[r], DT_PLAN_IN, out[r], false);
    w->round++;
}
/* Rounds: one with p - 1 messages from each rank, and one that copies. Sent: n (p-1)/p by each rank. */
static void dt__plan_alltoall_direct(dt__plan_work *w) { dt__plan_exchange(w, false); }
/* Rounds: p - 1, another partner in each, and one that copies. Sent: n (p-1)/p by each rank. */
static void dt__plan_alltoall_pairs(dt__plan_work *w) { dt__plan_exchange(w, true); }
/* Round k moves the blocks whose distance to go has bit k by 2^k ranks.
   Rounds: ceil(lg p) with messages of about n/2, each between one that packs and one that unpacks. Sent: about
   (n/2) lg p by each rank. Scratch: the blocks by distance from 1 on, what is packed, what was received. */
static void dt__plan_alltoall_bruck(dt__plan_work *w)
{
    int     p = w->world, r = w->rank, largest = 0;
    int64_t c = w->off[1], packed;
    for (int m = 1; m < p; m <<= 1) { /* largest: the largest number of blocks that one round moves */
        int k = p / (2 * m) * m + (p % (2 * m) > m ? p % (2 * m) - m : 0);
        if (k > largest) largest = k;
    }
    dt__plan_scratch(w, p - 1 + 2 * largest, c);
    if (w->why) return;
    packed = (p - 1) * c;
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, 0, (p - 1 - r) * c, DT_PLAN_IN, (r + 1) * c, false);
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, (p - 1 - r) * c, r * c, DT_PLAN_IN, 0, false);
    w->round++;
    for (int m = 1; m < p; m <<= 1) {
        int64_t k = 0;
        for (int unpack = 0; unpack < 2; unpack++, w->round++) {
            k = 0;
            for (int b = m; b < p; b += 2 * m) {
                int64_t run = (p - b < m ? p - b : m) * c, at = (b - 1) * c, came = packed + largest * c;
                if (unpack) dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, at, run, DT_PLAN_SCRATCH, came + k, false);
                else dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, packed + k, run, DT_PLAN_SCRATCH, at, false);
                k += run;
            }
            if (unpack) continue;
            w->round++;
            dt__plan_send(w, dt__plan_mod(r + m, p), DT_PLAN_SCRATCH, packed, packed + k);
            dt__plan_recv(w, dt__plan_mod(r - m, p), DT_PLAN_SCRATCH, packed + largest * c, packed + largest * c + k);
        }
    }
    for (int b = 1; b < p; b++)
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, dt__plan_mod(r - b, p) * c, c, DT_PLAN_SCRATCH, (b - 1) * c,
                       false);
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, r * c, c, DT_PLAN_IN, r * c, false);
    w->round++;
}

/* ---- broadcast */

/* Rounds: one with p - 1 messages of n. Sent: (p - 1) n by the root. */
static void dt__plan_broadcast_direct(dt__plan_work *w) { dt__plan_fan(w, w->o->root, true, NULL, false); }
/* Rounds: ceil(lg p) with messages of n. Sent: n ceil(lg p) by the root. */
static void dt__plan_broadcast_tree(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_from_root(w);
    dt__plan_tree_down(w, &g, w->n);
}
/* Rounds: s + p - 2 with messages of n/s, for s segments of opts.segment elements. Sent: n by each rank but the last. */
static void dt__plan_broadcast_chain(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_from_root(w);
    int            v = g.me, p = w->world;
    int64_t        seg = w->o->segment > 0 && w->o->segment < w->n ? w->o->segment : w->n;
    int64_t        pieces = w->n / seg + (w->n % seg != 0);
    if (!dt__plan_room(w, pieces > DT__PLAN_ROUNDS ? pieces : pieces + p)) return;
    for (int64_t t = 0; t < pieces + p - 2; t++, w->round++) {
        int64_t in = t - v + 1, out = t - v;
        if (v < p - 1 && out >= 0 && out < pieces)
            dt__plan_send(w, g.who[v + 1], DT_PLAN_DATA, out * seg, w->n - out * seg > seg ? (out + 1) * seg : w->n);
        if (v > 0 && in >= 0 && in < pieces)
            dt__plan_recv(w, g.who[v - 1], DT_PLAN_DATA, in * seg, w->n - in * seg > seg ? (in + 1) * seg : w->n);
    }
}
/* Scatter by a tree, then allgather by a ring (van de Geijn).
   Rounds: ceil(lg p) + p - 1. Sent: about 2 n (p-1)/p by the root, at most about n (p-1)/p + n/2 by others. */
static void dt__plan_broadcast_scatter(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_from_root(w);
    int            v = g.me, p = w->world;
    dt__plan_parts(w->off, 0, w->n, p);
    for (int bit = (1 << dt__plan_log2_up(p)) >> 1; bit; bit >>= 1, w->round++) {
        int child = v & bit ? v : v + bit, last = p - child > bit ? child + bit : p;
        if (v & (bit - 1) || child >= p) continue;
        if (v == child) dt__plan_recv(w, g.who[v - bit], DT_PLAN_DATA, w->off[child], w->off[last]);
        else dt__plan_send(w, g.who[child], DT_PLAN_DATA, w->off[child], w->off[last]);
    }
    dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, false, 0);
}

/* ---- reduce: other ranks than the root keep their DATA, so those that forward reduce in scratch */

/* Rounds: p - 1 with one message of n to the root, and one without messages if the root is not rank 0.
   Sent: n by each rank. Order: ascending ranks. Scratch: n at a root other than 0. */
static void dt__plan_reduce_direct(dt__plan_work *w) { dt__plan_to_root(w, w->o->root); }
/* Rounds: ceil(lg p) with messages of n, and one without messages after the first. Sent: n by each rank but the root.
   Order: ascending from the root on, around the ranks; the lower block is the left operand. Scratch: n on inner
   nodes of the tree. */
static void dt__plan_reduce_tree(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_from_root(w);
    int            v = g.me;
    bool           inner = v > 0 && v % 2 == 0 && v + 1 < g.n; /* it forwards, and keeps its DATA */
    if (inner) {
        dt__plan_scratch(w, 1, w->n);
        dt__plan_recv(w, g.who[v + 1], DT_PLAN_SCRATCH, 0, w->n);
        w->round++;
        dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_SCRATCH, 0, w->n, DT_PLAN_DATA, 0, true);
        w->round--;
    } else if (v % 2) {
        dt__plan_send(w, g.who[v - 1], DT_PLAN_DATA, 0, w->n);
    } else if (v + 1 < g.n) {
        dt__plan_fold(w, g.who[v + 1], DT_PLAN_DATA, 0, w->n, false);
    }
    w->round += 2;
    dt__plan_tree_up(w, &g, 2, inner ? DT_PLAN_SCRATCH : DT_PLAN_DATA, w->n);
}
/* reduce_scatter by a ring in a copy of DATA, then the chunks go to the root.
   Rounds: one that copies, p with messages. Sent: about n by each rank; the root receives about 2 n (p-1)/p.
   Order: chunk c is reduced around the ring and ends at member c from the root on. Scratch: n. */
static void dt__plan_reduce_ring(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_from_root(w);
    int            buf = g.me ? DT_PLAN_SCRATCH : DT_PLAN_DATA;
    dt__plan_parts(w->off, 0, w->n, w->world);
    if (g.me) dt__plan_scratch(w, 1, w->n);
    if (g.me) dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, 0, w->n, DT_PLAN_DATA, 0, false);
    w->round++;
    dt__plan_ring(w, &g, buf, w->off, w->o->segment, true, -1);
    for (int v = 1; v < g.n; v++) {
        if (!g.me) dt__plan_recv(w, g.who[v], DT_PLAN_DATA, w->off[v], w->off[v + 1]);
        else if (g.me == v) dt__plan_send(w, w->o->root, DT_PLAN_SCRATCH, w->off[v], w->off[v + 1]);
    }
    w->round++;
}
/* reduce_scatter by ordered in a copy of the segment, then the segments go to the root.
   Rounds: one that copies, 2 with messages, ceil(lg p) that reduce. Sent: about n by each rank. Order: see
   dt__plan_ordered. Scratch: n. */
static void dt__plan_reduce_ordered(dt__plan_work *w)
{
    int root = w->o->root, me = w->rank;
    dt__plan_parts(w->off, 0, w->n, w->world);
    int64_t at = dt__plan_ordered(w, w->off, DT_PLAN_DATA, me != root);
    for (int r = 0; r < w->world; r++) {
        if (r != root && me == root) dt__plan_recv(w, r, DT_PLAN_DATA, w->off[r], w->off[r + 1]);
        if (r == me && me != root) dt__plan_send(w, root, DT_PLAN_SCRATCH, at, at + w->off[r + 1] - w->off[r]);
    }
    w->round++;
}

/* ---- barrier: messages of 0 elements */

/* Rounds: 2 ceil(lg p): up the tree to rank 0, then down. */
static void dt__plan_barrier_tree(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    dt__plan_tree_up(w, &g, 1, DT_PLAN_DATA, 0);
    dt__plan_tree_down(w, &g, 0);
}
/* Dissemination: rounds: ceil(lg p); in round k a rank signals the one 2^k further. */
static void dt__plan_barrier_bruck(dt__plan_work *w)
{
    int p = w->world, r = w->rank;
    for (int m = 1; m < p; m <<= 1, w->round++) {
        dt__plan_send(w, dt__plan_mod(r + m, p), DT_PLAN_DATA, 0, 0);
        dt__plan_recv(w, dt__plan_mod(r - m, p), DT_PLAN_DATA, 0, 0);
    }
}

/* ---- making */

/* A cell and a row of the table of algorithms; the table itself is at the end of >>choosing, after the cost functions. */
enum {
    DT__PLAN_ANY = 0,
    DT__PLAN_NO_PLAN = 1,
    DT__PLAN_MACHINES = 2,
    DT__PLAN_MEMORY = 4,
    DT__PLAN_SEGMENT = 8,
    DT__PLAN_ASKED = 16,
    DT__PLAN_POWER_OF_TWO = 32,
    DT__PLAN_EQUAL_COUNTS = 64
};
struct dt__cost_net;
typedef struct dt__plan_cell {
    void (*make)(dt__plan_work *w); /* NULL: the collective does not have this algorithm */
    double (*cost)(struct dt__cost_net *t, double n);
    unsigned needs; /* DT__PLAN_POWER_OF_TWO, DT__PLAN_EQUAL_COUNTS */
} dt__plan_cell;
typedef struct dt__plan_row {
    const char   *name;
    unsigned      needs; /* DT__PLAN_NO_PLAN .. DT__PLAN_ASKED */
    dt__plan_cell cell[DT_COLL_SEND]; /* by collective; send and recv have no plan */
} dt__plan_row;
static const dt__plan_row *dt__plan_row_of(dt_algo algo);
static const dt__plan_cell *dt__plan_cell_of(dt_coll coll, dt_algo algo) { return &dt__plan_row_of(algo)->cell[coll]; }

/* Why there is no such plan, or NULL if there is. */
static const char *dt__plan_why_not(dt_coll coll, dt_algo algo, int world, const int *host)
{
    if ((int)coll < 0 || (int)coll >= (int)DT_COLL_COUNT || (int)algo < 0 || (int)algo >= (int)DT_ALGO_COUNT)
        return "no such collective or algorithm";
    if (dt__coll_of((int)coll)->vector == DT__COLL_MESSAGE) return "send and recv have no plan";
    if (dt__plan_row_of(algo)->needs & DT__PLAN_NO_PLAN)
        return algo == DT_ALGO_AUTO ? "auto is not an algorithm: dt_plan_choose gives one"
                                    : "native is the transport's own: it has no plan";
    const dt__plan_cell *cell = dt__plan_cell_of(coll, algo);
    if (!cell->make) return "this collective has no such algorithm";
    if (world < 1 || world > DT__PLAN_WORLD) return "world is not in 1..2^22";
    if (cell->needs & DT__PLAN_POWER_OF_TWO && world & (world - 1))
        return "for this collective the algorithm needs a number of ranks that is a power of two";
    if (dt__plan_row_of(algo)->needs & DT__PLAN_MEMORY && !dt__plan_one_machine(world, host))
        return "this algorithm needs all ranks on one machine";
    return NULL;
}
/* Checks the segments and finds where each begins: in off, and for alltoall those to receive in cut. */
static void dt__plan_segments(dt__plan_work *w)
{
    const dt_plan_opts *o = w->o;
    bool                a2a = w->p->coll == DT_COLL_ALLTOALL, equal = true;
    const int64_t      *c = o->counts, *sends = a2a ? o->sends : NULL, *recvs = a2a ? o->recvs : NULL;
    w->off[0] = w->cut[0] = 0;
    if (!sends != !recvs) dt__plan_fail(w, "sends and recvs are given together, or both are NULL");
    else if (sends && sends[w->rank] != recvs[w->rank]) dt__plan_fail(w, "sends and recvs differ in the segment of the rank itself");
    for (int i = 0; i < w->world && !w->why; i++) {
        int64_t a = sends ? sends[i] : !c ? o->count : a2a ? c[(int64_t)w->rank * w->world + i] : c[i];
        int64_t b = recvs ? recvs[i] : !c ? o->count : a2a ? c[(int64_t)i * w->world + w->rank] : 0;
        equal = equal && a == b && a == (i ? w->off[1] : a);
        if (a < 0 || b < 0) dt__plan_fail(w, "a count is negative");
        else if (a > INT64_MAX - w->off[i] || b > INT64_MAX - w->cut[i])
            dt__plan_fail(w, "the sum of the counts is 2^63 or more");
        if (w->why) return;
        w->off[i + 1] = w->off[i] + a;
        w->cut[i + 1] = w->cut[i] + b;
    }
    if (dt__plan_cell_of(w->p->coll, w->p->algo)->needs & DT__PLAN_EQUAL_COUNTS && !equal) /* only alltoall has this need */
        dt__plan_fail(w, "alltoall by bruck needs equal counts");
    if (w->why) return;
    dt_coll coll = w->p->coll;
    w->n = w->off[w->world];
    w->p->count = a2a ? w->cut[w->world] : w->n;
    if (coll == DT_COLL_REDUCE_SCATTER || a2a) w->p->input = w->n;
    if (coll == DT_COLL_REDUCE_SCATTER || ((coll == DT_COLL_GATHER || coll == DT_COLL_SCATTER) && w->rank != o->root))
        w->p->count = w->off[w->rank + 1] - w->off[w->rank]; /* a generator that needs more adds it */
}
static void dt__plan_run(dt__plan_work *w)
{
    const dt__plan_cell *cell = dt__plan_cell_of(w->p->coll, w->p->algo);
    switch (dt__coll_of((int)w->p->coll)->vector) {
    case DT__COLL_EMPTY: cell->make(w); return;
    case DT__COLL_WHOLE: w->p->count = w->n = w->o->count; break;
    case DT__COLL_SEGMENTS: dt__plan_segments(w); break;
    case DT__COLL_MESSAGE: dt__plan_fail(w, "send and recv have no plan"); break;
    }
    if (!w->why && w->world == 1 && w->p->input) {
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, 0, w->p->input, DT_PLAN_IN, 0, false);
        w->round++;
    }
    if (w->why || w->world == 1 || (!w->n && w->p->coll != DT_COLL_ALLTOALL)) return;
    cell->make(w);
}
DT_API int dt_plan_make(dt_plan *p, dt_coll coll, dt_algo algo, const dt_plan_opts *o, const char **why)
{
    dt__plan_work w;
    const char   *none = dt__plan_why_not(coll, algo, o->world, o->host);
    memset(&w, 0, sizeof w);
    p->coll = coll;
    p->algo = algo;
    p->rank = w.rank = o->rank;
    p->world = w.world = o->world;
    p->rounds = 0;
    p->nsteps = p->scratch = p->count = p->input = 0;
    w.p = p;
    w.o = o;
    if (none) dt__plan_fail(&w, none);
    else if (o->rank < 0 || o->rank >= o->world) dt__plan_fail(&w, "rank is not in 0..world-1");
    else if (o->root < 0 || o->root >= o->world) dt__plan_fail(&w, "root is not in 0..world-1");
    else if (o->count < 0) dt__plan_fail(&w, "a count is negative");
    else if (o->segment < 0) dt__plan_fail(&w, "the segment is negative");
    if (!w.why) {
        size_t n = (size_t)o->world;
        w.off = (int64_t *)DT_COMM_MALLOC(2 * (n + 1) * sizeof(int64_t) + n * sizeof(int));
        if (!w.off) dt__plan_no_memory(&w);
    }
    if (!w.why) {
        w.cut = w.off + o->world + 1;
        w.who = (int *)(void *)(w.cut + o->world + 1);
        for (int i = 0; i < o->world; i++) w.who[i] = i;
        if (dt__plan_row_of(algo)->needs & DT__PLAN_MACHINES && !dt__plan_machines_make(&w.hosts, o->world, o->host))
            dt__plan_no_memory(&w);
    }
    if (!w.why) dt__plan_run(&w);
    p->rounds = w.round;
    dt__plan_machines_free(&w.hosts);
    if (w.off) DT_COMM_FREE(w.off);
    if (w.why) {
        p->nsteps = p->scratch = p->count = p->input = 0;
        p->rounds = 0;
    }
    if (why) *why = w.why;
    return !w.why ? 0 : w.memory ? -2 : -1;
}
DT_API void dt_plan_free(dt_plan *p)
{
    if (p->step) DT_COMM_FREE(p->step);
    memset(p, 0, sizeof *p);
}
DT_API bool dt_plan_can(dt_coll coll, dt_algo algo, int world, const int *host)
{
    return !dt__plan_why_not(coll, algo, world, host);
}
/* The parts of all vectors go to the rank that reduces them; it reduces in ascending order of ranks, as SHARE does, and
   sends the result to all. Rounds: 2 with p - 1 messages of n/p from each rank, p - 1 without messages. */
DT_API int dt_plan_lower(dt_plan *p, const int *host)
{
    dt__plan_work w;
    dt_plan       q;
    int64_t       shares = 0, first, mine;
    for (int64_t i = 0; i < p->nsteps; i++) shares += p->step[i].kind == DT_STEP_SHARE;
    if (!shares) return 0;
    if (p->coll != DT_COLL_ALLREDUCE || p->algo != DT_ALGO_SHARED || p->nsteps != 1) return -1;
    if (!dt__plan_one_machine(p->world, host)) return -1;
    first = dt__plan_part(p->count, p->world, p->rank);
    mine = dt__plan_part(p->count, p->world, p->rank + 1) - first;
    if (p->step[0].at != first || p->step[0].n != mine) return -1;
    q = *p;
    q.nsteps = q.cap = 0;
    q.step = NULL;
    memset(&w, 0, sizeof w);
    w.p = &q;
    w.rank = p->rank;
    w.world = p->world;
    dt__plan_scratch(&w, p->world - 1, mine);
    for (int back = 0; back < 2; back++) {
        for (int t = 1; t < p->world && !w.why; t++) { /* every rank begins with another peer */
            int     to = dt__plan_mod(p->rank + t, p->world), from = dt__plan_mod(p->rank - t, p->world);
            int64_t slot = (from < p->rank ? from : from - 1) * mine, n = p->count;
            if (back) dt__plan_send(&w, to, DT_PLAN_DATA, first, first + mine);
            else
                dt__plan_send(&w, to, DT_PLAN_DATA, dt__plan_part(n, p->world, to), dt__plan_part(n, p->world, to + 1));
            if (!back) dt__plan_recv(&w, from, DT_PLAN_SCRATCH, slot, slot + mine);
            else
                dt__plan_recv(&w, from, DT_PLAN_DATA, dt__plan_part(n, p->world, from),
                              dt__plan_part(n, p->world, from + 1));
        }
        w.round++;
        if (!back) dt__plan_in_order(&w, p->rank, p->world, first, mine);
    }
    if (w.why) {
        if (q.step) DT_COMM_FREE(q.step);
        return w.memory ? -2 : -1;
    }
    q.rounds = w.round;
    DT_COMM_FREE(p->step);
    *p = q;
    return 0;
}

/* ==================================================================================================== >>choosing
   Closed formulas for the time of each plan: the sum of its rounds, each as long as its slowest rank. A message takes
   alpha. A byte takes beta: inside a machine of the rank that sends or receives it, between machines of the machine,
   whose ranks share one link. A byte reduced or copied takes gamma. On several machines `link` is the class between them,
   and ranks of one machine use shared memory (or are threads). Chunks are fractions here; the root is rank 0.

   dt__cost_COLLECTIVE_ALGORITHM(t, n) is the time in seconds for a vector of n bytes. A function that models messages
   between machines names them with dt__cost_edge; dt__cost_round then returns the time of the round and forgets them. */
typedef struct dt__cost_net {
    int               world, p2, rem; /* p2: the largest power of two of ranks; rem: world - p2 */
    double            near_latency, near_per_byte; /* inside a machine: seconds a message, seconds a byte */
    double            far_latency, far_per_byte;   /* between machines */
    double            reduce_per_byte;             /* seconds a byte reduced or copied */
    double            segment;                     /* bytes of a piece in pipelines; 0: not cut into pieces */
    dt__plan_machines hosts;
    double           *out, *in; /* bytes that leave and enter each machine in this round */
    bool              crossing; /* this round has a message between machines */
    bool              inside;   /* this round has a message inside a machine */
} dt__cost_net;

static bool dt__cost_open(dt__cost_net *t, const dt_costs *c, int world, const int *host, int link)
{
    bool one = dt__plan_one_machine(world, host);
    int  near = one || link < DT_LINK_SHM ? link : (int)DT_LINK_SHM;
    memset(t, 0, sizeof *t);
    t->world = world;
    t->p2 = 1 << dt__plan_log2(world);
    t->rem = world - t->p2;
    t->near_latency = c->alpha[near], t->near_per_byte = c->beta[near];
    t->far_latency = c->alpha[link], t->far_per_byte = c->beta[link];
    t->reduce_per_byte = c->gamma;
    t->hosts.n = 1;
    t->hosts.least = t->hosts.most = world;
    if (one) return true;
    if (!dt__plan_machines_make(&t->hosts, world, host)) return false;
    t->out = (double *)DT_COMM_MALLOC(2 * (size_t)t->hosts.n * sizeof(double));
    if (!t->out) {
        dt__plan_machines_free(&t->hosts);
        return false;
    }
    t->in = t->out + t->hosts.n;
    for (int i = 0; i < 2 * t->hosts.n; i++) t->out[i] = 0;
    return true;
}
static void dt__cost_close(dt__cost_net *t)
{
    dt__plan_machines_free(&t->hosts);
    if (t->out) DT_COMM_FREE(t->out);
}

/* ---- rounds and parts of algorithms */

/* One message of b bytes inside a machine, and between machines. */
static double dt__cost_near(const dt__cost_net *t, double b) { return t->near_latency + b * t->near_per_byte; }
static double dt__cost_far(const dt__cost_net *t, double b) { return t->far_latency + b * t->far_per_byte; }
static void   dt__cost_edge(dt__cost_net *t, int from, int to, double b)
{
    int x = t->hosts.of[from], y = t->hosts.of[to];
    if (x == y) t->inside = true;
    else t->crossing = true, t->out[x] += b, t->in[y] += b;
}
/* The round of the messages named with dt__cost_edge. A rank has at most k messages of b bytes. */
static double dt__cost_round(dt__cost_net *t, double k, double b)
{
    double in = k * dt__cost_near(t, b), out, most = 0;
    if (t->hosts.n == 1) return in;
    for (int i = 0; i < t->hosts.n; i++) {
        if (t->out[i] > most) most = t->out[i];
        if (t->in[i] > most) most = t->in[i];
        t->out[i] = t->in[i] = 0;
    }
    out = t->crossing ? k * t->far_latency + most * t->far_per_byte : 0;
    if (!t->inside) in = 0;
    t->inside = t->crossing = false;
    return in > out ? in : out;
}
static double dt__cost_shift(dt__cost_net *t, int d, double b) /* each rank sends to the one d further */
{
    for (int i = 0; t->hosts.n > 1 && i < t->world; i++) dt__cost_edge(t, i, dt__plan_mod(i + d, t->world), b);
    return dt__cost_round(t, 1, b);
}
/* Members v and v ^ m of the power of two swap b bytes. part > 0: v gives up m units; a unit is one segment of part
   bytes, or two for the first rem units, and b is the largest message. */
static double dt__cost_swap(dt__cost_net *t, int m, double b, double part)
{
    for (int v = 0; t->hosts.n > 1 && v < t->p2; v++) {
        int u = v ^ m, first = u & ~(m - 1), two = t->rem - first < 0 ? 0 : t->rem - first < m ? t->rem - first : m;
        dt__cost_edge(t, v < t->rem ? 2 * v : v + t->rem, u < t->rem ? 2 * u : u + t->rem,
                      part > 0 ? part * (m + two) : b);
    }
    return dt__cost_round(t, 1, b);
}
static double dt__cost_fold(dt__cost_net *t, double b, bool both) /* odd ranks of the first pairs send to even ones */
{
    for (int v = 0; t->hosts.n > 1 && v < t->rem; v++) {
        dt__cost_edge(t, 2 * v + 1, 2 * v, b);
        if (both) dt__cost_edge(t, 2 * v, 2 * v + 1, b);
    }
    return dt__cost_round(t, 1, b);
}
/* One level of the binomial tree. part > 0: a message has the segments of its subtree; b is the largest. */
static double dt__cost_level(dt__cost_net *t, int bit, double b, double part)
{
    int p = t->world;
    for (int v = 0; t->hosts.n > 1 && v + bit < p; v += 2 * bit)
        dt__cost_edge(t, v + bit, v, part > 0 ? part * (bit < p - v - bit ? bit : p - v - bit) : b);
    return dt__cost_round(t, 1, b);
}
static double dt__cost_tree(dt__cost_net *t, double b)
{
    double s = 0;
    for (int bit = 1; bit < t->world; bit <<= 1) s += dt__cost_level(t, bit, b, 0);
    return s;
}
static double dt__cost_subtrees(dt__cost_net *t, double part)
{
    double s = 0;
    for (int bit = 1; bit < t->world; bit <<= 1)
        s += dt__cost_level(t, bit, part * (bit < t->world - bit ? bit : t->world - bit), part);
    return s;
}
static double dt__cost_fan(const dt__cost_net *t, double b) /* rank 0 sends b bytes to each other rank, or receives them */
{
    int near = t->hosts.n > 1 ? t->hosts.start[t->hosts.of[0] + 1] - t->hosts.start[t->hosts.of[0]] : t->world;
    return (near - 1) * dt__cost_near(t, b) + (t->world - near) * dt__cost_far(t, b);
}
static double dt__cost_each(const dt__cost_net *t, double b, bool rounds) /* each sends to each, at once or in rounds */
{
    double most = 0, far_rounds = 0;
    for (int d = 1; rounds && t->hosts.n > 1 && d < t->world; d++) { /* rounds with a message between machines */
        int i = 0;
        while (i < t->world && t->hosts.of[i] == t->hosts.of[dt__plan_mod(i + d, t->world)]) i++;
        far_rounds += i < t->world;
    }
    for (int i = 0; i < t->hosts.n; i++) {
        double k = t->hosts.n > 1 ? t->hosts.start[i + 1] - t->hosts.start[i] : t->world, far = t->world - k;
        double s = (k - 1) * dt__cost_near(t, b) + far * t->far_latency + k * far * b * t->far_per_byte;
        if (rounds && far > 0)
            s = far_rounds * t->far_latency + k * far * b * t->far_per_byte +
                (t->world - 1 - far_rounds) * dt__cost_near(t, b);
        if (s > most) most = s;
    }
    return most;
}
static double dt__cost_ring(dt__cost_net *t, double n)
{
    double b = n / t->world, pieces = t->segment > 0 && t->segment < b ? ceil(b / t->segment) : 1;
    return (t->world - 1) * pieces * dt__cost_shift(t, 1, b / pieces);
}

/* ---- barrier */
static double dt__cost_barrier_tree(dt__cost_net *t, double n)
{
    (void)n;
    return 2 * dt__cost_tree(t, 0);
}
static double dt__cost_barrier_bruck(dt__cost_net *t, double n)
{
    double s = 0;
    (void)n;
    for (int m = 1; m < t->world; m <<= 1) s += dt__cost_shift(t, m, 0);
    return s;
}

/* ---- allreduce */
static double dt__cost_allreduce_direct(dt__cost_net *t, double n)
{
    double p = t->world;
    return 2 * dt__cost_fan(t, n) + (p - 1) * n * t->reduce_per_byte;
}
static double dt__cost_allreduce_alltoall(dt__cost_net *t, double n)
{
    double p = t->world;
    return dt__cost_each(t, n, false) + (p - 1) * n * t->reduce_per_byte;
}
static double dt__cost_allreduce_tree(dt__cost_net *t, double n)
{
    double deep = dt__plan_log2_up(t->world);
    return 2 * dt__cost_tree(t, n) + deep * n * t->reduce_per_byte;
}
static double dt__cost_allreduce_ring(dt__cost_net *t, double n)
{
    double p = t->world;
    return 2 * dt__cost_ring(t, n) + n * (p - 1) / p * t->reduce_per_byte;
}
static double dt__cost_allreduce_doubling(dt__cost_net *t, double n)
{
    double s = 0;
    for (int m = 1; m < t->p2; m <<= 1) s += dt__cost_swap(t, m, n, 0) + n * t->reduce_per_byte;
    if (t->rem) s += 2 * dt__cost_fold(t, n, false) + n * t->reduce_per_byte;
    return s;
}
static double dt__cost_allreduce_halving(dt__cost_net *t, double n)
{
    double s = 0, g = t->reduce_per_byte;
    for (int k = 0; 1 << k < t->p2; k++) s += 2 * dt__cost_swap(t, 1 << k, n / (2 << k), 0) + n / (2 << k) * g;
    if (t->rem) s += dt__cost_fold(t, n / 2, true) + dt__cost_fold(t, n / 2, false) + n / 2 * g;
    if (t->rem) s += dt__cost_fold(t, n, false);
    return s;
}
static double dt__cost_allreduce_blocks(dt__cost_net *t, double n)
{
    double s = 0;
    int    p = t->world, B = t->p2, at = 0;
    for (int m = 1, k = 0; m < B; m <<= 1, k++) { /* inside the blocks; the largest is the slowest */
        double b = n / (2 << k);
        for (int r = 0, first = 0, bit = B; t->hosts.n > 1 && r < p; r++) {
            while (r >= first + (p & bit)) first += p & bit, bit >>= 1;
            if (bit > m) dt__cost_edge(t, r, first + ((r - first) ^ m), b);
        }
        s += 2 * dt__cost_round(t, 1, b) + b * t->reduce_per_byte;
    }
    for (int big = B, bit = B >> 1; bit; bit >>= 1) { /* between a block and the next smaller one */
        if (!(p & bit)) continue;
        for (int j = 0; t->hosts.n > 1 && j < big; j++) dt__cost_edge(t, at + big + j % bit, at + j, n / big);
        s += 2 * dt__cost_round(t, big / bit, n / big) + n / big * t->reduce_per_byte;
        at += big, big = bit;
    }
    return s;
}
static double dt__cost_allreduce_two_level(dt__cost_net *t, double n)
{
    int    L = t->hosts.least, most = t->hosts.most, h = t->hosts.n;
    double s = 2 * (most - 1) * dt__cost_near(t, n / L) + 2 * (h - 1) * dt__cost_far(t, n / h);
    return s + ((most - 1) * n / L + (h - 1) * n / L / h) * t->reduce_per_byte;
}
static double dt__cost_allreduce_leader(dt__cost_net *t, double n)
{
    int    h = t->hosts.n;
    double deep = dt__plan_log2_up(t->hosts.most);
    double s = 2 * deep * dt__cost_near(t, n) + 2 * (h - 1) * dt__cost_far(t, n / h);
    return s + (deep * n + (h - 1) * n / h) * t->reduce_per_byte;
}
/* All ranks meet before and after; each reads p - 1 parts and writes p - 1. */
static double dt__cost_allreduce_shared(dt__cost_net *t, double n)
{
    double p = t->world, deep = dt__plan_log2_up(t->world);
    return 2 * deep * t->near_latency + n * (p - 1) / p * (t->reduce_per_byte + t->near_per_byte);
}
static double dt__cost_allreduce_ordered(dt__cost_net *t, double n)
{
    double p = t->world;
    return 2 * dt__cost_each(t, n / p, false) + n * (p - 1) / p * t->reduce_per_byte;
}

/* ---- reduce_scatter */
static double dt__cost_reduce_scatter_direct(dt__cost_net *t, double n)
{
    double p = t->world, part = n / p;
    return dt__cost_fan(t, n) + (p - 1) * n * t->reduce_per_byte + dt__cost_fan(t, part);
}
static double dt__cost_reduce_scatter_ring(dt__cost_net *t, double n)
{
    double p = t->world, part = n / p;
    return dt__cost_ring(t, n) + (p - 1) * part * t->reduce_per_byte;
}
static double dt__cost_reduce_scatter_pairs(dt__cost_net *t, double n)
{
    double p = t->world, part = n / p;
    return dt__cost_each(t, part, true) + (p - 1) * part * t->reduce_per_byte;
}
static double dt__cost_reduce_scatter_ordered(dt__cost_net *t, double n)
{
    double p = t->world, part = n / p;
    return dt__cost_each(t, part, false) + p * part * t->reduce_per_byte;
}
static double dt__cost_reduce_scatter_halving(dt__cost_net *t, double n)
{
    double p = t->world, g = t->reduce_per_byte, s = 0, part = n / p;
    for (int m = t->p2 >> 1; m; m >>= 1) { /* the lowest units are two segments */
        double b = part * (m + (m < t->rem ? m : t->rem));
        s += dt__cost_swap(t, m, b, part) + b * g;
    }
    return t->rem ? s + dt__cost_fold(t, n, false) + n * g + dt__cost_fold(t, part, false) : s;
}

/* ---- allgather */
static double dt__cost_allgather_direct(dt__cost_net *t, double n)
{
    double p = t->world;
    return dt__cost_fan(t, n / p) + dt__cost_fan(t, n);
}
static double dt__cost_allgather_ring(dt__cost_net *t, double n) { return dt__cost_ring(t, n); }
static double dt__cost_allgather_doubling(dt__cost_net *t, double n)
{
    double p = t->world, s = 0, part = n / p;
    for (int m = 1; m < t->p2; m <<= 1) s += dt__cost_swap(t, m, m * part, 0);
    return s;
}
static double dt__cost_allgather_bruck(dt__cost_net *t, double n)
{
    double p = t->world, s = 0, part = n / p;
    for (int m = 1; m < t->world; m <<= 1)
        s += dt__cost_shift(t, t->world - m, (m < t->world - m ? m : t->world - m) * part);
    return s + n * t->reduce_per_byte;
}

/* ---- gather, scatter, alltoall */
static double dt__cost_gather_direct(dt__cost_net *t, double n) { return dt__cost_fan(t, n / t->world); }
static double dt__cost_gather_tree(dt__cost_net *t, double n) { return dt__cost_subtrees(t, n / t->world); }
static double dt__cost_scatter_direct(dt__cost_net *t, double n) { return dt__cost_fan(t, n / t->world); }
static double dt__cost_scatter_tree(dt__cost_net *t, double n) { return dt__cost_subtrees(t, n / t->world); }
static double dt__cost_alltoall_direct(dt__cost_net *t, double n)
{
    double p = t->world, part = n / p;
    return dt__cost_each(t, part, false) + part * t->reduce_per_byte;
}
static double dt__cost_alltoall_pairs(dt__cost_net *t, double n)
{
    double p = t->world, part = n / p;
    return dt__cost_each(t, part, true) + part * t->reduce_per_byte;
}
static double dt__cost_alltoall_bruck(dt__cost_net *t, double n)
{
    double p = t->world, g = t->reduce_per_byte, s = 0, part = n / p;
    for (int m = 1; m < t->world; m <<= 1) {
        int    over = t->world % (2 * m) - m;
        double b = part * (t->world / (2 * m) * m + (over > 0 ? over : 0));
        s += dt__cost_shift(t, m, b) + 2 * b * g;
    }
    return s + (2 * p - 1) * part * g;
}

/* ---- broadcast */
static double dt__cost_broadcast_direct(dt__cost_net *t, double n) { return dt__cost_fan(t, n); }
static double dt__cost_broadcast_tree(dt__cost_net *t, double n) { return dt__cost_tree(t, n); }
static double dt__cost_broadcast_scatter(dt__cost_net *t, double n)
{
    double p = t->world;
    return dt__cost_subtrees(t, n / p) + dt__cost_ring(t, n);
}
static double dt__cost_broadcast_chain(dt__cost_net *t, double n)
{
    double p = t->world, s = 0, pieces = t->segment > 0 && t->segment < n ? ceil(n / t->segment) : 1;
    for (int v = 1; v < t->world && pieces < 2 && t->hosts.n > 1; v++) { /* one link after the other */
        dt__cost_edge(t, v - 1, v, n);
        s += dt__cost_round(t, 1, n);
    }
    if (s > 0) return s;
    for (int v = 1; v < t->world && t->hosts.n > 1; v++) dt__cost_edge(t, v - 1, v, n / pieces);
    return (pieces + p - 2) * dt__cost_round(t, 1, n / pieces);
}

/* ---- reduce */
static double dt__cost_reduce_direct(dt__cost_net *t, double n)
{
    double p = t->world;
    return dt__cost_fan(t, n) + (p - 1) * n * t->reduce_per_byte;
}
static double dt__cost_reduce_tree(dt__cost_net *t, double n)
{
    return dt__cost_tree(t, n) + dt__plan_log2_up(t->world) * n * t->reduce_per_byte;
}
static double dt__cost_reduce_ring(dt__cost_net *t, double n)
{
    double p = t->world, g = t->reduce_per_byte;
    return n * g + dt__cost_ring(t, n) + n * (p - 1) / p * g + dt__cost_fan(t, n / p);
}
static double dt__cost_reduce_ordered(dt__cost_net *t, double n)
{
    double p = t->world;
    return n * t->reduce_per_byte + dt__cost_each(t, n / p, false) + dt__cost_fan(t, n / p);
}

/* ---- the tables, from DT__COLLECTIVES and DT__ALGORITHMS. A cell "yes" names dt__plan_COLLECTIVE_ALGORITHM and
   dt__cost_COLLECTIVE_ALGORITHM. */
#define DT__COLL_TRAITS(E, name, vector, root, reduces, gpu) { #name, DT__COLL_##vector, root, reduces, gpu },
#define DT__PLAN_CELL_no(f) { NULL, NULL, 0 }
#define DT__PLAN_CELL_yes(f) { dt__plan_##f, dt__cost_##f, 0 }
#define DT__PLAN_CELL_pow2(f) { dt__plan_##f, dt__cost_##f, DT__PLAN_POWER_OF_TWO }
#define DT__PLAN_CELL_equal(f) { dt__plan_##f, dt__cost_##f, DT__PLAN_EQUAL_COUNTS }
#define DT__PLAN_ROW(E, name, needs, barrier, allreduce, reduce_scatter, allgather, broadcast, reduce, gather, scatter, \
                     alltoall)                                                                                           \
    { #name,                                                                                                             \
      DT__PLAN_##needs,                                                                                                  \
      { DT__PLAN_CELL_##barrier(barrier_##name), DT__PLAN_CELL_##allreduce(allreduce_##name),                            \
        DT__PLAN_CELL_##reduce_scatter(reduce_scatter_##name), DT__PLAN_CELL_##allgather(allgather_##name),              \
        DT__PLAN_CELL_##broadcast(broadcast_##name), DT__PLAN_CELL_##reduce(reduce_##name),                              \
        DT__PLAN_CELL_##gather(gather_##name), DT__PLAN_CELL_##scatter(scatter_##name),                                  \
        DT__PLAN_CELL_##alltoall(alltoall_##name) } },
DT__INSIDE const dt__coll_traits *dt__coll_of(int coll)
{
    static const dt__coll_traits table[DT_COLL_COUNT] = { DT__COLLECTIVES(DT__COLL_TRAITS) };
    static const dt__coll_traits unknown = { "?", DT__COLL_EMPTY, false, false, false };
    return coll >= 0 && coll < (int)DT_COLL_COUNT ? &table[coll] : &unknown;
}
/* The columns of DT__ALGORITHMS are the collectives in the order of dt_coll: this does not compile if they are not. */
typedef char dt__plan_columns_ok[(int)DT_COLL_BARRIER == 0 && (int)DT_COLL_ALLREDUCE == 1 &&
                                 (int)DT_COLL_REDUCE_SCATTER == 2 && (int)DT_COLL_ALLGATHER == 3 &&
                                 (int)DT_COLL_BROADCAST == 4 && (int)DT_COLL_REDUCE == 5 && (int)DT_COLL_GATHER == 6 &&
                                 (int)DT_COLL_SCATTER == 7 && (int)DT_COLL_ALLTOALL == 8 && (int)DT_COLL_SEND == 9 ? 1 : -1];
typedef char dt__plan_bits_ok[(int)DT_ALGO_COUNT <= 32 ? 1 : -1]; /* dt__cost_may has a bit for each */
static const dt__plan_row *dt__plan_row_of(dt_algo algo) /* algo is one of dt_algo */
{
    static const dt__plan_row table[DT_ALGO_COUNT] = { DT__ALGORITHMS(DT__PLAN_ROW) };
    return &table[algo];
}
#undef DT__COLL_TRAITS
#undef DT__PLAN_CELL_no
#undef DT__PLAN_CELL_yes
#undef DT__PLAN_CELL_pow2
#undef DT__PLAN_CELL_equal
#undef DT__PLAN_ROW
DT_API const char *dt_coll_name(dt_coll c) { return dt__coll_of((int)c)->name; }
DT_API const char *dt_algo_name(dt_algo a)
{
    return (int)a >= 0 && (int)a < (int)DT_ALGO_COUNT ? dt__plan_row_of(a)->name : "?";
}
DT_API dt_algo dt_algo_find(const char *name)
{
    for (int i = 0; name && i < (int)DT_ALGO_COUNT; i++)
        if (!strcmp(name, dt_algo_name((dt_algo)i))) return (dt_algo)i;
    return DT_ALGO_COUNT;
}

/* ---- the choice */
static double dt__cost_of(dt__cost_net *t, dt_coll coll, dt_algo algo, double n, double segment)
{
    if (t->world == 1) return 0;
    t->segment = segment;
    return dt__plan_cell_of(coll, algo)->cost(t, n);
}
DT_API dt_costs dt_costs_default(void)
{
    static const double alpha[DT_LINK_COUNT] = { 0.3e-6, 0.4e-6, 12e-6, 30e-6 };
    static const double rate[DT_LINK_COUNT] = { 8e9, 6e9, 2.5e9, 1.2e8 };
    dt_costs            c;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++) {
        c.alpha[i] = alpha[i];
        c.beta[i] = 1 / rate[i];
    }
    c.gamma = 1 / 8e9;
    return c;
}
DT_API double dt_plan_cost(const dt_costs *t, dt_coll coll, dt_algo algo, int world, const int *host, int link,
                           int64_t nbytes, int64_t segment_bytes)
{
    dt__cost_net net;
    if (!dt_plan_can(coll, algo, world, host) || link < 0 || link >= (int)DT_LINK_COUNT || nbytes < 0) return -1;
    if (!dt__cost_open(&net, t, world, host, link)) return -1;
    double s = dt__cost_of(&net, coll, algo, (double)nbytes, (double)segment_bytes);
    dt__cost_close(&net);
    return s;
}
/* The segment in bytes at which a chain is fastest: sqrt((p - 2) n beta / alpha) pieces, of whole cache lines. 0: one
   piece. */
static int64_t dt__cost_segment(const dt__cost_net *t, double n)
{
    double pieces = sqrt((t->world - 2) * n * t->far_per_byte / (t->far_latency > 0 ? t->far_latency : 1e-12)), b;
    if (!(pieces > 1.5)) return 0;
    b = ceil(n / pieces / 64) * 64;
    return b < n ? (int64_t)b : 0;
}
static dt_algo dt__cost_best(dt__cost_net *t, dt_coll coll, unsigned may, int64_t nbytes, int64_t *segment)
{
    dt_algo best = DT_ALGO_COUNT;
    double  least = 0;
    *segment = 0;
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) {
        if (!(may >> a & 1u)) continue;
        int64_t seg = dt__plan_row_of((dt_algo)a)->needs & DT__PLAN_SEGMENT ? dt__cost_segment(t, (double)nbytes) : 0;
        double  s = dt__cost_of(t, coll, (dt_algo)a, (double)nbytes, (double)seg);
        if (best != DT_ALGO_COUNT && !(s < least * (1 - 1e-9))) continue; /* of equal costs the first wins */
        best = (dt_algo)a;
        least = s;
        *segment = seg;
    }
    return best;
}
/* The algorithms that auto may take, a bit each. shared: also those in shared memory, if the link is. */
static unsigned dt__cost_may(dt_coll coll, int world, const int *host, int link, bool shared)
{
    unsigned may = 0;
    if (link < 0 || link >= (int)DT_LINK_COUNT) return 0;
    if (link != DT_LINK_THREAD && link != DT_LINK_SHM) shared = false;
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) {
        unsigned needs = dt__plan_row_of((dt_algo)a)->needs;
        if (needs & DT__PLAN_ASKED || (needs & DT__PLAN_MEMORY && !shared)) continue;
        if (dt_plan_can(coll, (dt_algo)a, world, host)) may |= 1u << a;
    }
    return may;
}
DT__INSIDE dt_algo dt__cost_choose(const dt_costs *t, dt_coll coll, int world, const int *host, int link, bool shared,
                                   int64_t nbytes, int64_t *segment_bytes)
{
    dt__cost_net net;
    int64_t      segment = 0;
    dt_algo      best = DT_ALGO_COUNT;
    unsigned     may = dt__cost_may(coll, world, host, link, shared);
    if (may && dt__cost_open(&net, t, world, host, link)) {
        best = dt__cost_best(&net, coll, may, nbytes > 0 ? nbytes : 0, &segment);
        dt__cost_close(&net);
    }
    if (segment_bytes) *segment_bytes = segment;
    return best;
}
DT_API dt_algo dt_plan_choose(const dt_costs *t, dt_coll coll, int world, const int *host, int link, int64_t nbytes,
                              int64_t *segment_bytes)
{
    return dt__cost_choose(t, coll, world, host, link, true, nbytes, segment_bytes);
}
static const char *const dt__link_names[DT_LINK_COUNT] = { "thread", "shm", "loopback", "network" };
DT__INSIDE void dt__explain(const dt_costs *t, int world, const int *host, int link, const dt_algo *fixed,
                            dt__text_out *o)
{
    dt__cost_net net;
    if (world < 1 || world > DT__PLAN_WORLD || link < 0 || link >= (int)DT_LINK_COUNT) return;
    if (!dt__cost_open(&net, t, world, host, link)) return;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++)
        dt__emitf(o, "%-9s %8.2f us a message, %8.1f MB/s%s\n", dt__link_names[i], t->alpha[i] * 1e6,
                     t->beta[i] > 0 ? 1e-6 / t->beta[i] : 0.0, i == link ? "  <- used" : "");
    dt__emitf(o, "reducing            %15.1f MB/s\n%d ranks, %d machine%s; from so many bytes on:\n",
                 t->gamma > 0 ? 1e-6 / t->gamma : 0.0, world, net.hosts.n, net.hosts.n == 1 ? "" : "s");
    for (int c = 0; c < (int)DT_COLL_COUNT; c++) {
        unsigned may = dt__cost_may((dt_coll)c, world, host, link, !fixed);
        int64_t  seg, from = 0, top = dt__coll_of(c)->vector == DT__COLL_EMPTY ? 1 : (int64_t)1 << 40;
        if (!may) continue;
        if (fixed && fixed[c] != DT_ALGO_AUTO) {
            dt__emitf(o, "%-15s 0 %s\n", dt_coll_name((dt_coll)c), dt_algo_name(fixed[c]));
            continue;
        }
        dt_algo now = dt__cost_best(&net, (dt_coll)c, may, 0, &seg);
        dt__emitf(o, "%-15s 0 %s", dt_coll_name((dt_coll)c), dt_algo_name(now));
        for (int64_t n = 1; n < top; n *= 2) { /* assumes that the choice changes at most once between from and n */
            dt_algo next = dt__cost_best(&net, (dt_coll)c, may, n, &seg);
            int64_t lo = from, hi = n;
            from = n;
            if (next == now) continue;
            while (hi - lo > 1) {
                int64_t mid = lo + (hi - lo) / 2;
                if (dt__cost_best(&net, (dt_coll)c, may, mid, &seg) == now) lo = mid;
                else hi = mid;
            }
            now = next;
            dt__emitf(o, ", %lld %s", (long long)hi, dt_algo_name(now));
        }
        dt__emitf(o, "\n");
    }
    dt__cost_close(&net);
}
DT_API size_t dt_plan_explain(const dt_costs *t, int world, const int *host, int link, char *buf, size_t nbytes)
{
    dt__text_out o = { buf, nbytes, 0 };
    if (nbytes) buf[0] = 0;
    dt__explain(t, world, host, link, NULL, &o);
    return o.len;
}

/* ---- tables of costs in files: whole numbers, which are the same text in every locale */
enum { DT__COSTS_MOST = 65536 }; /* bytes of a file */
#define DT__PS_PER_S 1e12        /* files have picoseconds a message */
#define DT__FS_PER_S 1e15        /* and femtoseconds a byte */
DT__INSIDE bool dt__costs_sane(const dt_costs *t)
{
    bool ok = t->gamma >= 0 && t->gamma <= DT__COSTS_MOST_PER_BYTE;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++)
        ok = ok && t->alpha[i] >= 0 && t->alpha[i] <= DT__COSTS_MOST_LATENCY && t->beta[i] >= 0 &&
             t->beta[i] <= DT__COSTS_MOST_PER_BYTE;
    return ok;
}
DT__INSIDE void dt__costs_slow(dt_costs *t, double bandwidth, double latency)
{
    for (int i = DT_LINK_LOOP; i <= (int)DT_LINK_NET; i++) {
        if (bandwidth > 0 && 1 / bandwidth > t->beta[i]) t->beta[i] = fmin(1 / bandwidth, DT__COSTS_MOST_PER_BYTE);
        if (latency > 0) t->alpha[i] = fmin(t->alpha[i] + latency, DT__COSTS_MOST_LATENCY);
    }
}
static int dt__costs_bad(const char *path, int line, const char *found, size_t n, const char *expected)
{
    char shown[44];
    if (n > 40) n = 40;
    for (size_t i = 0; i < n; i++) shown[i] = found[i] >= ' ' && found[i] < 127 ? found[i] : '?';
    shown[n] = 0;
    return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s', line %d: found '%s', expected %s", path, line, shown,
                        expected);
}
static bool dt__costs_word(const char **p, const char *end, const char *word) /* skips the next word if it is this one */
{
    const char *q = *p;
    size_t      n = strlen(word);
    while (q < end && *q == ' ') q++;
    if ((size_t)(end - q) < n || memcmp(q, word, n) != 0 || (q + n < end && q[n] != ' ')) return false;
    *p = q + n;
    return true;
}
static bool dt__costs_number(const char **p, const char *end, int64_t most, double unit, double *out)
{
    const char *q = *p;
    int64_t     v = 0;
    while (q < end && *q == ' ') q++;
    const char *first = q;
    for (; q < end && *q >= '0' && *q <= '9' && v <= most; q++) v = v * 10 + (*q - '0');
    if (q == first || v > most || (q < end && *q != ' ')) return false;
    *p = q;
    *out = (double)v / unit;
    return true;
}
static int dt__costs_parse(dt_costs *t, const char *path, const char *text, size_t n)
{
    static const char *const last = "a line for each of thread, shm, loopback, network and reducing, then 'end'";
    const char              *end = text + n;
    unsigned                 seen = 0; /* a bit for each link, one for reducing, then begun and over */
    const unsigned           every = (2u << DT_LINK_COUNT) - 1, begun = 2u << DT_LINK_COUNT, over = 4u << DT_LINK_COUNT;
    int                      line = 0;
    while (text < end) {
        const char *stop = (const char *)memchr(text, '\n', (size_t)(end - text)), *p = text, *from = text;
        const char *rest = stop ? stop : end, *cut = (const char *)memchr(p, '#', (size_t)(rest - p));
        bool        ok = false;
        text = stop ? stop + 1 : end;
        line++;
        if (cut) rest = cut;
        while (rest > p && (rest[-1] == ' ' || rest[-1] == '\r')) rest--;
        while (p < rest && *p == ' ') p++;
        if (p == rest) continue;
        if (!(seen & begun)) {
            if (!dt__costs_word(&p, rest, "dt") || !dt__costs_word(&p, rest, "costs") ||
                !dt__costs_word(&p, rest, "1") || p != rest)
                return dt__costs_bad(path, line, from, (size_t)(rest - from), "'dt costs 1'");
            seen |= begun;
            continue;
        }
        if (seen & over)
            return dt__costs_bad(path, line, from, (size_t)(rest - from), "no more lines after 'end'");
        if (dt__costs_word(&p, rest, "end")) {
            if (p != rest || (seen & every) != every)
                return dt__costs_bad(path, line, from, (size_t)(rest - from), last);
            seen |= over;
            continue;
        }
        for (int i = 0; i <= (int)DT_LINK_COUNT && !ok; i++) {
            if (!dt__costs_word(&p, rest, i < (int)DT_LINK_COUNT ? dt__link_names[i] : "reducing")) continue;
            if (seen & 1u << i)
                return dt__costs_bad(path, line, from, (size_t)(rest - from), "each link, and reducing, once");
            ok = (i == (int)DT_LINK_COUNT || dt__costs_number(&p, rest, INT64_C(10000000000000), DT__PS_PER_S, &t->alpha[i])) &&
                 dt__costs_number(&p, rest, 1000000000, DT__FS_PER_S, i == (int)DT_LINK_COUNT ? &t->gamma : &t->beta[i]) &&
                 p == rest;
            if (!ok)
                return dt__costs_bad(path, line, from, (size_t)(rest - from),
                                     i == (int)DT_LINK_COUNT
                                         ? "'reducing' and femtoseconds a byte, 0 to 1000000000"
                                         : "a link, picoseconds a message (0 to 10000000000000) and femtoseconds a "
                                           "byte (0 to 1000000000), whole numbers");
            seen |= 1u << i;
        }
        if (!ok)
            return dt__costs_bad(path, line, from, (size_t)(rest - from),
                                 "thread, shm, loopback, network, reducing or end");
    }
    if (seen & over) return 0;
    return dt__costs_bad(path, line + 1, "the end of the file", 19, seen & begun ? last : "'dt costs 1'");
}
DT_API const char *dt_plan_error(void) { return dt__said.text[0] ? dt__said.text : NULL; }
DT_API int dt_costs_load(dt_costs *t, const char *path)
{
    dt_costs    got;
    struct stat st;
    char       *text;
    ssize_t     n = 0, k = 0;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), status;
    if (fd < 0) return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': cannot open the file: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size >= DT__COSTS_MOST) {
        close(fd);
        return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': it is not a regular file of less than %d bytes", path,
                            DT__COSTS_MOST);
    }
    text = (char *)DT_COMM_MALLOC(DT__COSTS_MOST);
    while (text && n < DT__COSTS_MOST && ((k = read(fd, text + n, (size_t)(DT__COSTS_MOST - n))) > 0 ||
                                          (k < 0 && errno == EINTR)))
        n += k > 0 ? k : 0;
    status = !text ? dt__comm_bad(DT_COMM_ERR_MEMORY, "costs in '%.120s': out of memory", path)
             : k < 0 ? dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': cannot read the file: %s", path, strerror(errno))
                     : dt__costs_parse(&got, path, text, (size_t)n);
    close(fd);
    DT_COMM_FREE(text);
    if (status == 0) *t = got;
    return status;
}
DT_API int dt_costs_save(const dt_costs *t, const char *path)
{
    char         text[1024], beside[4200];
    dt__text_out o = { text, sizeof text, 0 };
    size_t       done = 0;
    int          fd, e = 0;
    const char  *why = NULL;
    if (!dt__costs_sane(t))
        return dt__comm_bad(DT_COMM_ERR_ARG, "costs for '%.120s': a number is negative, NaN, or above 10 s a message or "
                                             "1 us a byte", path);
    dt__emitf(&o, "dt costs 1\n# link, picoseconds a message, femtoseconds a byte\n");
    for (int i = 0; i < (int)DT_LINK_COUNT; i++)
        dt__emitf(&o, "%s %lld %lld\n", dt__link_names[i],
                     (long long)(t->alpha[i] * DT__PS_PER_S + 0.5), (long long)(t->beta[i] * DT__FS_PER_S + 0.5));
    dt__emitf(&o, "reducing %lld\nend\n", (long long)(t->gamma * DT__FS_PER_S + 0.5));
    if (strlen(path) > 4096)
        return dt__comm_bad(DT_COMM_ERR_ARG, "costs: the path has %zu bytes, more than 4096", strlen(path));
    snprintf(beside, sizeof beside, "%s.%d.part", path, (int)getpid());
    fd = dt__file_create(AT_FDCWD, beside, O_WRONLY | O_TRUNC, &why);
    if (fd < 0) return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': cannot create the file: %s", beside, why);
    while (done < o.len && !e) {
        ssize_t k = write(fd, text + done, o.len - done);
        if (k > 0) done += (size_t)k;
        else if (k == 0 || errno != EINTR) e = k == 0 ? EIO : errno;
    }
    if (!e && fsync(fd) != 0) e = errno;
    if (close(fd) != 0 && !e) e = errno;
    if (!e && rename(beside, path) != 0) e = errno;
    if (!e) return 0;
    unlink(beside);
    return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': cannot write the file: %s", path, strerror(e));
}

/* ==================================================================================================== >>drawing
   Ranks are lines, rounds are columns. An arrow goes from the round of the send to the round of its receive: blue for a
   copy, red for a value that is reduced. A square is a local step, a bar is a round in shared memory. */
enum { DT__PLAN_DRAWN = 1024 }; /* the largest number of ranks */

typedef struct dt__plan_picture {
    FILE    *f;
    dt_plan *plan; /* one of each rank */
    int      world;
    double   left, top, wide, high; /* margins; width of a column, height of a line; pixels */
    bool     labels;
    bool     text; /* the second pass, which draws the labels over all lines */
} dt__plan_picture;

/* The label is near the sender, or near the receiver if the sender has several messages in the round. */
static void dt__plan_draw_message(const dt__plan_picture *d, const dt_plan_step *s, int from, const dt_plan_step *r,
                                  bool several)
{
    bool   fold = r->kind == DT_STEP_FOLD;
    double x0 = d->left + d->wide * (s->round + 0.12), y0 = d->top + d->high * from;
    double x1 = d->left + d->wide * (r->round + 0.88), y1 = d->top + d->high * s->peer;
    if (!d->text) {
        fprintf(d->f, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" marker-end=\"url(#%s)\"/>\n",
                fold ? "fold" : "copy", x0, y0, x1, y1, fold ? "f" : "c");
        return;
    }
    if (!s->n) return;
    double down = y1 > y0 ? 10 : -10;
    fprintf(d->f, "<text class=\"n\" x=\"%.1f\" y=\"%.1f\">", several ? x1 - 20 : x0 + 17,
            (several ? y1 - down : y0 + down) + 3);
    if (s->n == 1) fprintf(d->f, "%lld</text>\n", (long long)s->at);
    else fprintf(d->f, "%lld-%lld</text>\n", (long long)s->at, (long long)(s->at + s->n - 1));
}
static void dt__plan_draw_local(const dt__plan_picture *d, const dt_plan_step *s, int rank)
{
    double x = d->left + d->wide * (s->round + 0.5), y = d->top + d->high * rank;
    if (d->text) {
        if (s->kind == DT_STEP_SHARE && s->n)
            fprintf(d->f, "<text class=\"n\" x=\"%.1f\" y=\"%.1f\">%lld-%lld</text>\n", x + 24, y + 3, (long long)s->at,
                    (long long)(s->at + s->n - 1));
        return;
    }
    if (s->kind != DT_STEP_SHARE)
        fprintf(d->f, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>\n",
                s->kind == DT_STEP_REDUCE ? "reduce" : "move", x - 3.5, y - 3.5);
    else if (!rank)
        fprintf(d->f, "<rect class=\"share\" x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"%.1f\"/>\n", x - 5, d->top - 6,
                d->high * (d->world - 1) + 12);
}
/* The k-th send of a rank to a peer meets the peer's k-th receive from it. next[peer]: the step of the peer at which to
   continue the search. */
static void dt__plan_draw_sends(const dt__plan_picture *d, int rank, int64_t *next)
{
    memset(next, 0, (size_t)d->world * sizeof *next);
    for (int64_t i = 0; i < d->plan[rank].nsteps; i++) {
        const dt_plan_step *s = &d->plan[rank].step[i];
        if (s->kind != DT_STEP_SEND) {
            if (s->kind > DT_STEP_FOLD) dt__plan_draw_local(d, s, rank);
            continue;
        }
        const dt_plan *q = &d->plan[s->peer];
        int64_t       *k = &next[s->peer];
        while (*k < q->nsteps &&
               (q->step[*k].peer != rank || (q->step[*k].kind != DT_STEP_RECV && q->step[*k].kind != DT_STEP_FOLD)))
            ++*k;
        bool several = (i > 0 && s[-1].kind == DT_STEP_SEND && s[-1].round == s->round) ||
                       (i + 1 < d->plan[rank].nsteps && s[1].kind == DT_STEP_SEND && s[1].round == s->round);
        if (*k < q->nsteps) dt__plan_draw_message(d, s, rank, &q->step[(*k)++], several);
    }
}
static void dt__plan_draw(dt__plan_picture *d, dt_coll coll, dt_algo algo, int64_t *next)
{
    const dt_plan *p = d->plan;
    int64_t        messages = 0, elements = 0, vector = 0;
    int            talks = 0, rounds = 0;
    for (int r = 0; r < d->world; r++) {
        next[r] = 0;
        if (p[r].count > vector) vector = p[r].count;
        if (p[r].input > vector) vector = p[r].input;
        if (p[r].rounds > rounds) rounds = p[r].rounds;
    }
    for (int k = 0; k < rounds; k++) {
        bool any = false;
        for (int r = 0; r < d->world; r++) {
            for (; next[r] < p[r].nsteps && p[r].step[next[r]].round == k; next[r]++) {
                const dt_plan_step *s = &p[r].step[next[r]];
                if (s->kind != DT_STEP_SEND) continue;
                any = true;
                messages++;
                elements += s->n;
            }
        }
        talks += any;
    }
    d->left = 64;
    d->top = 74;
    d->labels = messages <= 160;
    d->high = d->labels || d->world <= 16 ? 34 : 22;
    d->wide = d->labels ? 110 : rounds > 64 ? 34 : 64;
    double w = d->left + d->wide * rounds + 30, h = d->top + d->high * d->world + 10;
    if (w < 620) w = 620;
    fprintf(d->f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n", w,
            h, w, h);
    fprintf(d->f, "<style>text{font:12px sans-serif;fill:#333}.t{font-size:15px;font-weight:bold}"
                  ".n{font-size:10px;text-anchor:middle;stroke:#fff;stroke-width:3px;paint-order:stroke}"
                  ".rank{stroke:#bbb}.round{stroke:#eee}.copy{stroke:#2468b4;stroke-width:1.4}"
                  ".fold{stroke:#c8321e;stroke-width:1.4}.reduce{fill:#c8321e}.move{fill:#2468b4}"
                  ".share{fill:#c8321e;fill-opacity:0.4}</style>\n");
    fprintf(d->f, "<defs>");
    for (int i = 0; i < 2; i++)
        fprintf(d->f,
                "<marker id=\"%s\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
                "orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"%s\"/></marker>",
                i ? "f" : "c", i ? "#c8321e" : "#2468b4");
    fprintf(d->f, "</defs>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n", w, h);
    fprintf(d->f, "<text class=\"t\" x=\"14\" y=\"24\">%s by %s: %d ranks, %lld elements</text>\n", dt_coll_name(coll),
            dt_algo_name(algo), d->world, (long long)vector);
    fprintf(d->f,
            "<text x=\"14\" y=\"43\">%d rounds with messages, %lld messages, %lld elements sent. Red: reduced, blue: "
            "copied.</text>\n",
            talks, (long long)messages, (long long)elements);
    for (int k = 0; k <= rounds; k++) {
        double x = d->left + d->wide * k;
        fprintf(d->f, "<line class=\"round\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, d->top - 12, x,
                h - 22);
        if (k < rounds && (rounds <= 64 || k % 8 == 0))
            fprintf(d->f, "<text class=\"n\" x=\"%.1f\" y=\"%.1f\">%d</text>\n", x + d->wide / 2, d->top - 14, k);
    }
    for (int r = 0; r < d->world; r++) {
        double y = d->top + d->high * r;
        fprintf(d->f, "<text x=\"14\" y=\"%.1f\">rank %d</text>\n", y + 4, r);
        fprintf(d->f, "<line class=\"rank\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", d->left, y,
                d->left + d->wide * rounds, y);
    }
    for (int pass = 0; pass < (d->labels ? 2 : 1); pass++) {
        d->text = pass == 1;
        for (int r = 0; r < d->world; r++) dt__plan_draw_sends(d, r, next);
    }
    fprintf(d->f, "</svg>\n");
}
DT_API int dt_plan_svg(const char *path, dt_coll coll, dt_algo algo, const dt_plan_opts *o)
{
    dt__plan_picture d;
    int64_t         *next;
    int              code = 0;
    if (o->world < 1 || o->world > DT__PLAN_DRAWN) return -1;
    memset(&d, 0, sizeof d);
    d.world = o->world;
    d.plan = (dt_plan *)DT_COMM_MALLOC((size_t)o->world * (sizeof *d.plan + sizeof *next));
    if (!d.plan) return -2;
    memset(d.plan, 0, (size_t)o->world * sizeof *d.plan);
    next = (int64_t *)(void *)(d.plan + o->world);
    for (int r = 0; r < o->world && !code; r++) {
        dt_plan_opts mine = *o;
        mine.rank = r;
        code = dt_plan_make(&d.plan[r], coll, algo, &mine, NULL);
    }
    if (!code) {
        const char *why;
        int         fd = dt__file_create(AT_FDCWD, path, O_WRONLY | O_TRUNC, &why);
        if (fd >= 0 && !(d.f = fdopen(fd, "w"))) close(fd);
        if (!d.f) code = -3;
    }
    if (d.f) {
        dt__plan_draw(&d, coll, algo, next);
        if (ferror(d.f)) code = -3;
        if (fclose(d.f)) code = -3;
    }
    for (int r = 0; r < o->world; r++) dt_plan_free(&d.plan[r]);
    DT_COMM_FREE(d.plan);
    return code;
}

/* ==================================================================================================== >>timing
   Runs. The plans of all ranks would not fit into memory, so they are compressed: a run is one or two steps that repeat,
   each time with the same kind and size, a constant number of rounds later and a constant number of ranks further.

   Events. A rank has at most one message in transit: the first send of its round that is not complete. The heap holds
   these messages, ordered by the time at which both sides are ready. A posted receive is a count in a table of pairs of
   ranks. A shared resource (card, switch, trunk) is a time from which on it is free: a message starts at once, and has
   passed when all messages that entered before it have. */
enum { DT__PRED_WORLD = 8192, DT__PRED_FOLD = 0x80 }; /* largest world; in dt__pred.open: the receives reduce */
typedef struct dt__pred_run {
    int32_t count, group; /* repetitions; steps in each, 1 or 2, of one round */
    int32_t round, by;    /* the first round; rounds from one repetition to the next */
    int32_t kind[2], peer[2], move[2]; /* move: ranks from the peer of one repetition to that of the next */
    int64_t n[2];         /* bytes */
} dt__pred_run;
typedef struct dt__pred_at { /* a position in the steps of a rank */
    int64_t run;
    int32_t i, j; /* repetition, step of the group */
} dt__pred_at;
typedef struct dt__pred_rank {
    dt__pred_at at, out;        /* the end of its round; where to look for its next send */
    int64_t     last;           /* one past its last run */
    double      began, end;     /* its round: when it began; when it ends, as far as is known */
    double      cpu, in;        /* from when on it is free to reduce, to receive */
    double      ready;          /* when it was ready to send its message */
    int64_t     n;              /* bytes of its message */
    int32_t     peer, left;     /* receiver of its message, -1 if it has none; messages left in the round */
    bool        waiting, fold;  /* its message waits for the receive; its message is reduced there */
} dt__pred_rank;
typedef struct dt__pred_key {
    double  t;
    int32_t rank;
} dt__pred_key;
typedef struct dt__pred {
    int            n, nhosts, nswitches;
    double         latency[2], per_byte[2];   /* seconds a message, a byte; [0] inside a machine, [1] between machines */
    double         gamma, nic, fabric, trunk; /* seconds a byte */
    int            size;        /* bytes of an element */
    int           *host, *sw;   /* machine of each rank; switch of each machine */
    dt__pred_run  *run;
    int64_t        nruns, cap;
    dt__pred_rank *rank;
    uint8_t       *open;        /* [to * n + from]: number of posted receives, | DT__PRED_FOLD */
    dt__pred_key  *heap;
    int            nheap;
    double        *free_at;     /* by resource: cards out, cards in, switches, trunks up, trunks down */
    int64_t       *out, *through; /* bytes by machine, by switch */
    int            meeting;     /* ranks that have entered the round of SHARE */
    double         met;         /* when the last of them did */
    int64_t        met_n, messages, bytes;
    double         seconds;
    int            over;        /* ranks whose plan is complete */
} dt__pred;

static bool dt__pred_same(const dt__pred *d, const dt_plan_step *a, const dt_plan_step *b, int move)
{
    return a->kind == b->kind && a->n == b->n && (a->peer + (int64_t)move + d->n) % d->n == b->peer;
}
/* Ranks from the peer of a to that of b, the shorter way around. */
static int dt__pred_move(const dt_plan_step *a, const dt_plan_step *b, int n)
{
    int m = a->kind > DT_STEP_FOLD ? 0 : b->peer - a->peer;
    return m > n / 2 ? m - n : m < -(n / 2) ? m + n : m;
}
/* How many times the g steps at s repeat; at most `most` steps are looked at. */
static int64_t dt__pred_repeat(const dt__pred *d, const dt_plan_step *s, int64_t most, int g, int *move)
{
    int64_t i = 0;
    if (most < 2 * g || (g == 2 && s[0].round != s[1].round)) return 1;
    for (int j = 0; j < g; j++) move[j] = dt__pred_move(s + j, s + g + j, d->n);
    int by = s[g].round - s[0].round;
    for (; i + 2 * g <= most; i += g)
        for (int j = 0; j < g; j++)
            if (s[i + g + j].round - s[i + j].round != by || !dt__pred_same(d, s + i + j, s + i + g + j, move[j]))
                return i / g + 1;
    return i / g + 1;
}
static bool dt__pred_pack(dt__pred *d, const dt_plan *p)
{
    for (int64_t i = 0; i < p->nsteps;) {
        const dt_plan_step *s = p->step + i;
        int                 one[2] = { 0, 0 }, two[2] = { 0, 0 };
        int64_t             a = dt__pred_repeat(d, s, p->nsteps - i, 1, one);
        int64_t             b = dt__pred_repeat(d, s, p->nsteps - i, 2, two);
        int                 g = b > 1 && 2 * b > a ? 2 : 1;
        if (d->nruns == d->cap) {
            int64_t cap = d->cap ? 2 * d->cap : 1024;
            void   *q = DT_COMM_REALLOC(d->run, (size_t)cap * sizeof *d->run);
            if (!q) return false;
            d->run = (dt__pred_run *)q;
            d->cap = cap;
        }
        dt__pred_run *r = &d->run[d->nruns++];
        memset(r, 0, sizeof *r);
        r->group = g;
        r->count = (int32_t)(g == 2 ? b : a);
        r->round = s->round;
        r->by = r->count > 1 ? s[g].round - s->round : 0;
        for (int j = 0; j < g; j++) {
            r->kind[j] = s[j].kind;
            r->peer[j] = s[j].peer;
            r->move[j] = r->count < 2 ? 0 : g == 2 ? two[j] : one[j];
            r->n[j] = s[j].n * d->size;
        }
        i += (int64_t)r->count * g;
    }
    return true;
}
static int dt__pred_peer(const dt__pred *d, const dt__pred_run *r, dt__pred_at at)
{
    int64_t p = r->peer[at.j] + (int64_t)at.i * r->move[at.j];
    if (p >= 0 && p < d->n) return (int)p;
    p %= d->n;
    return (int)(p < 0 ? p + d->n : p);
}
static int  dt__pred_round(const dt__pred_run *r, dt__pred_at at) { return r->round + at.i * r->by; }
static void dt__pred_next(const dt__pred_run *r, dt__pred_at *at)
{
    if (++at->j < r->group) return;
    at->j = 0;
    if (++at->i < r->count) return;
    at->i = 0;
    at->run++;
}

/* ---- messages by time */
static bool dt__pred_before(dt__pred_key a, dt__pred_key b) { return a.t != b.t ? a.t < b.t : a.rank < b.rank; }
static void dt__pred_push(dt__pred *d, int rank, double t)
{
    dt__pred_key k;
    int          i = d->nheap++;
    k.t = t;
    k.rank = rank;
    for (; i > 0 && dt__pred_before(k, d->heap[(i - 1) / 4]); i = (i - 1) / 4) d->heap[i] = d->heap[(i - 1) / 4];
    d->heap[i] = k;
}
static void dt__pred_pop(dt__pred *d)
{
    int          i = 0;
    dt__pred_key k = d->heap[--d->nheap];
    for (int c = 1; c < d->nheap; c = 4 * i + 1) {
        int best = c, end = c + 4 < d->nheap ? c + 4 : d->nheap;
        for (int j = c + 1; j < end; j++)
            if (dt__pred_before(d->heap[j], d->heap[best])) best = j;
        if (!dt__pred_before(d->heap[best], k)) break;
        d->heap[i] = d->heap[best];
        i = best;
    }
    d->heap[i] = k;
}
static void dt__pred_meet(dt__pred *d, int from, int to, double t) /* both sides are ready at t */
{
    uint8_t *o = &d->open[(size_t)to * (size_t)d->n + (size_t)from];
    d->rank[from].fold = (*o & DT__PRED_FOLD) != 0;
    if ((--*o & (DT__PRED_FOLD - 1)) == 0) *o = 0;
    d->rank[from].waiting = false;
    dt__pred_push(d, from, t);
}
/* The rank takes the next send of its round at time t. */
static void dt__pred_send(dt__pred *d, int rank, double t)
{
    dt__pred_rank *r = &d->rank[rank];
    for (r->peer = -1; r->out.run != r->at.run || r->out.i != r->at.i || r->out.j != r->at.j;) {
        const dt__pred_run *s = &d->run[r->out.run];
        dt__pred_at         at = r->out;
        dt__pred_next(s, &r->out);
        if (s->kind[at.j] != DT_STEP_SEND) continue;
        r->peer = dt__pred_peer(d, s, at);
        r->n = s->n[at.j];
        r->ready = t;
        r->waiting = true;
        if (d->open[(size_t)r->peer * (size_t)d->n + (size_t)rank])
            dt__pred_meet(d, rank, r->peer, t > d->rank[r->peer].began ? t : d->rank[r->peer].began);
        return;
    }
}
static void dt__pred_enter(dt__pred *d, int rank, double t);
/* A round of SHARE on one machine: all ranks meet, read the parts of all, write to all, and meet again. */
static void dt__pred_share(dt__pred *d, double t, int64_t n)
{
    if (t > d->met) d->met = t;
    d->met_n += n;
    if (++d->meeting < d->n) return;
    double all = (double)d->met_n * (d->n - 1) / d->n;
    t = d->met + 2 * dt__plan_log2_up(d->n) * d->latency[0] + all * (d->gamma + d->per_byte[0]);
    d->meeting = 0;
    d->met_n = 0;
    d->met = 0;
    for (int i = 0; i < d->n; i++) dt__pred_enter(d, i, t);
}
/* A rank begins its next round at t, and then the following rounds as long as they have local steps only. */
static void dt__pred_enter(dt__pred *d, int rank, double t)
{
    dt__pred_rank *r = &d->rank[rank];
    while (r->at.run < r->last) {
        const dt__pred_run *s = &d->run[r->at.run];
        int                 round = dt__pred_round(s, r->at), sends = 0;
        int64_t             share = -1;
        r->out = r->at;
        r->began = r->end = r->cpu = t;
        r->left = 0;
        for (; r->at.run < r->last && dt__pred_round(s, r->at) == round; s = &d->run[r->at.run]) {
            int kind = s->kind[r->at.j], peer;
            if (kind == DT_STEP_SEND) sends++;
            else if (kind == DT_STEP_SHARE) share = s->n[r->at.j];
            else if (kind > DT_STEP_FOLD) r->end = r->cpu += (double)s->n[r->at.j] * d->gamma;
            else {
                peer = dt__pred_peer(d, s, r->at);
                uint8_t *o = &d->open[(size_t)rank * (size_t)d->n + (size_t)peer];
                *o = (uint8_t)((*o + 1) | (kind == DT_STEP_FOLD ? DT__PRED_FOLD : 0));
                r->left++;
                dt__pred_rank *q = &d->rank[peer];
                if (q->waiting && q->peer == rank) dt__pred_meet(d, peer, rank, q->ready > t ? q->ready : t);
            }
            dt__pred_next(s, &r->at);
        }
        r->left += sends;
        if (share >= 0) {
            dt__pred_share(d, t, share);
            return;
        }
        if (sends) dt__pred_send(d, rank, t);
        if (r->left) return;
        t = r->end;
    }
    if (t > d->seconds) d->seconds = t;
    d->over++;
}
/* nbytes enter a shared resource at t: when the last byte has passed. per: seconds a byte. */
static double dt__pred_through(double *free_at, double t, double nbytes, double per)
{
    return *free_at = (*free_at > t ? *free_at : t) + nbytes * per;
}
/* The message of a rank starts at t: when it arrives. */
static double dt__pred_pass(dt__pred *d, int from, double t)
{
    dt__pred_rank *r = &d->rank[from], *q = &d->rank[r->peer];
    int            h = d->host[from], g = d->host[r->peer], far = h != g, x = d->sw[h], y = d->sw[g];
    double         n = (double)r->n, slow = 0, *f = d->free_at; /* advances over cards, switches, trunks */
    q->in = (q->in > t ? q->in : t) + d->latency[far] + n * d->per_byte[far];
    d->messages++;
    d->bytes += r->n;
    if (!far) return q->in;
    for (int i = 0; i < 2 && d->nic > 0; i++)
        slow = fmax(slow, dt__pred_through(&f[i ? d->nhosts + g : h], t, n, d->nic));
    f += 2 * d->nhosts;
    for (int i = 0; i < 1 + (x != y) && d->fabric > 0; i++)
        slow = fmax(slow, dt__pred_through(&f[i ? y : x], t, n, d->fabric));
    f += d->nswitches;
    for (int i = 0; i < 2 && x != y && d->trunk > 0; i++)
        slow = fmax(slow, dt__pred_through(&f[i ? d->nswitches + y : x], t, n, d->trunk));
    d->out[h] += r->n;
    d->through[x] += r->n;
    if (x != y) d->through[y] += r->n;
    return fmax(q->in, slow + d->latency[far]);
}
static bool dt__pred_events(dt__pred *d)
{
    for (int i = 0; i < d->n; i++) dt__pred_enter(d, i, 0);
    while (d->nheap) {
        int            from = d->heap[0].rank, to = d->rank[from].peer;
        double         sent = dt__pred_pass(d, from, d->heap[0].t), t = sent;
        dt__pred_rank *r = &d->rank[from], *q = &d->rank[to];
        dt__pred_pop(d);
        if (t > r->end) r->end = t;
        r->left--;
        if (r->fold) t = (t > q->cpu ? t : q->cpu) + (double)r->n * d->gamma, q->cpu = t;
        if (t > q->end) q->end = t;
        q->left--;
        if (r->left) dt__pred_send(d, from, sent);
        else r->peer = -1, dt__pred_enter(d, from, r->end);
        if (!q->left) dt__pred_enter(d, to, q->end);
    }
    return d->over == d->n;
}
static const char *dt__pred_cluster(dt__pred *d, const dt_plan_opts *o, const dt_cluster *k) /* why it is refused, or NULL */
{
    dt_costs c = k->costs;
    bool     none = c.gamma == 0;
    int      near = k->near, far = k->far;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++) {
        if (!(c.alpha[i] >= 0) || !(c.beta[i] >= 0) || !(c.gamma >= 0)) return "a cost is negative or NaN";
        none = none && c.alpha[i] == 0 && c.beta[i] == 0;
    }
    if (none) c = dt_costs_default();
    if (!near && !far) near = DT_LINK_SHM, far = DT_LINK_NET;
    if (near < 0 || near >= (int)DT_LINK_COUNT || far < 0 || far >= (int)DT_LINK_COUNT)
        return "near or far is not a link class: take DT_LINK_THREAD .. DT_LINK_NET";
    if (!(k->fabric >= 0) || !(k->trunk >= 0) || k->nic != k->nic) return "nic is NaN, or fabric or trunk is negative";
    if (k->element < 0 || k->element > 64) return "element is not in 0..64 bytes";
    d->latency[0] = c.alpha[near], d->per_byte[0] = c.beta[near];
    d->latency[1] = c.alpha[far], d->per_byte[1] = c.beta[far];
    d->gamma = c.gamma;
    d->nic = k->nic < 0 ? 0 : k->nic > 0 ? k->nic : c.beta[far];
    d->fabric = k->fabric;
    d->trunk = k->trunk;
    d->size = k->element ? k->element : 4;
    d->nhosts = d->nswitches = 1;
    for (int i = 0; i < o->world; i++) {
        int h = o->host ? o->host[i] : 0;
        if (h < 0 || h >= o->world) return "host: a machine is not in 0..world-1";
        if (h >= d->nhosts) d->nhosts = h + 1;
    }
    for (int i = 0; k->switch_of && i < d->nhosts; i++) {
        if (k->switch_of[i] < 0 || k->switch_of[i] >= o->world) return "switch_of: a switch is not in 0..world-1";
        if (k->switch_of[i] >= d->nswitches) d->nswitches = k->switch_of[i] + 1;
    }
    return NULL;
}
static bool dt__pred_alloc(dt__pred *d, const dt_plan_opts *o, const dt_cluster *k)
{
    size_t n = (size_t)d->n, things = 2 * (size_t)d->nhosts + 3 * (size_t)d->nswitches;
    d->rank = (dt__pred_rank *)dt__comm_zeroed(n, sizeof *d->rank);
    d->open = (uint8_t *)dt__comm_zeroed(n, n);
    d->heap = (dt__pred_key *)dt__comm_zeroed(n + 1, sizeof *d->heap);
    d->host = (int *)dt__comm_zeroed(n + (size_t)d->nhosts, sizeof *d->host);
    d->free_at = (double *)dt__comm_zeroed(things, sizeof *d->free_at);
    d->out = (int64_t *)dt__comm_zeroed((size_t)(d->nhosts + d->nswitches), sizeof *d->out);
    if (!d->rank || !d->open || !d->heap || !d->host || !d->free_at || !d->out) return false;
    d->sw = d->host + d->n;
    d->through = d->out + d->nhosts;
    for (int i = 0; i < d->n; i++) d->host[i] = o->host ? o->host[i] : 0;
    for (int i = 0; i < d->nhosts; i++) d->sw[i] = k->switch_of ? k->switch_of[i] : 0;
    return true;
}
DT_API int dt_plan_predict(dt_plan_prediction *out, dt_coll coll, dt_algo algo, const dt_plan_opts *o, const dt_cluster *k,
                          const char **why)
{
    static const char *const memory = "out of memory";
    dt__pred                 d;
    dt_plan                  p;
    const char              *text = NULL;
    int                      code = -1;
    memset(&d, 0, sizeof d);
    memset(&p, 0, sizeof p);
    memset(out, 0, sizeof *out);
    d.n = o->world;
    if (o->world < 1 || o->world > DT__PRED_WORLD) text = "world is not in 1..8192";
    else text = dt__pred_cluster(&d, o, k);
    dt_plan_opts mine = *o;
    if (!text && algo == DT_ALGO_AUTO) {
        dt_costs c = dt_costs_default();
        int64_t  all = 0, segment = 0;
        bool     one = dt__plan_one_machine(o->world, o->host);
        int      link = one ? (int)DT_LINK_SHM : (int)DT_LINK_NET;
        bool     whole = dt__coll_of((int)coll)->vector == DT__COLL_WHOLE;
        c.alpha[DT_LINK_SHM] = d.latency[0], c.beta[DT_LINK_SHM] = d.per_byte[0];
        c.alpha[DT_LINK_NET] = d.latency[1], c.beta[DT_LINK_NET] = d.per_byte[1];
        c.gamma = d.gamma;
        for (int i = 0; i < o->world; i++) all += o->counts ? o->counts[i] : o->count; /* alltoall: of rank 0 */
        algo = dt_plan_choose(&c, coll, o->world, o->host, link, (whole ? o->count : all) * d.size, &segment);
        mine.segment = segment / d.size;
    }
    if (!text && !dt__pred_alloc(&d, o, k)) text = memory;
    for (int i = 0; !text && i < o->world; i++) {
        mine.rank = i;
        d.rank[i].at.run = d.nruns;
        d.rank[i].peer = -1;
        code = dt_plan_make(&p, coll, algo, &mine, &text);
        if (!code && (p.count > INT64_MAX / 64 / o->world || p.input > INT64_MAX / 64 / o->world))
            text = "the vector is too long: world times its elements must stay below 2^57", code = -1;
        else if (!code && !dt__pred_pack(&d, &p)) text = memory;
        d.rank[i].last = d.nruns;
    }
    if (text == memory) code = -2;
    else if (!text && !dt__pred_events(&d)) text = "the plan does not end: a send or receive has no partner", code = -1;
    if (!text) {
        out->seconds = d.seconds;
        out->messages = d.messages;
        out->bytes = d.bytes;
        out->algo = algo;
        for (int i = 0; i < d.nhosts; i++) out->bytes_nic = d.out[i] > out->bytes_nic ? d.out[i] : out->bytes_nic;
        for (int i = 0; i < d.nswitches; i++)
            out->bytes_switch = d.through[i] > out->bytes_switch ? d.through[i] : out->bytes_switch;
    }
    dt_plan_free(&p);
    DT_COMM_FREE(d.run);
    DT_COMM_FREE(d.rank);
    DT_COMM_FREE(d.open);
    DT_COMM_FREE(d.heap);
    DT_COMM_FREE(d.host);
    DT_COMM_FREE(d.free_at);
    DT_COMM_FREE(d.out);
    if (why) *why = text;
    return text ? code : 0;
}
/* ==================================================================================================== >>schedules
   A generator dt__pipe_make_KIND adds the steps of rank w->rank. dt__pipe_held_KIND and dt__pipe_bubble_KIND are the formulas
   of the table in >>pipelines. */
enum { DT__PIPE_RANKS = 4096, DT__PIPE_CHUNKS = 1024, DT__PIPE_MICRO = 65536, DT__PIPE_SENDS = 64 }; /* limits */
#define DT__PIPE_STEPS ((int64_t)1 << 30) /* the largest number of steps of all ranks */

typedef struct dt__pipe_work {
    dt_pipe_step *at; /* where the next step goes */
    int           rank, ranks, chunks, micro;
} dt__pipe_work;
static int dt__pipe_least(int a, int b) { return a < b ? a : b; }
static void dt__pipe_add(dt__pipe_work *w, int op, int chunk, int micro)
{
    w->at->op = (int16_t)op;
    w->at->chunk = (int16_t)chunk;
    w->at->micro = micro;
    w->at++;
}

/* All forwards, then all backwards. */
static void dt__pipe_make_gpipe(dt__pipe_work *w)
{
    for (int i = 0; i < w->micro; i++) dt__pipe_add(w, DT_PIPE_FORWARD, 0, i);
    for (int i = 0; i < w->micro; i++) dt__pipe_add(w, DT_PIPE_BACKWARD, 0, i);
}
/* p - 1 - r forwards, so that each later rank has work; then pairs of a forward and a backward; then the other backwards. */
static void dt__pipe_make_1f1b(dt__pipe_work *w)
{
    int ahead = dt__pipe_least(w->ranks - 1 - w->rank, w->micro);
    for (int i = 0; i < ahead; i++) dt__pipe_add(w, DT_PIPE_FORWARD, 0, i);
    for (int i = 0; i < w->micro; i++) {
        if (ahead + i < w->micro) dt__pipe_add(w, DT_PIPE_FORWARD, 0, ahead + i);
        dt__pipe_add(w, DT_PIPE_BACKWARD, 0, i);
    }
}
/* 1F1B over virtual steps: p micro-batches on chunk 0, the same on chunk 1 and so on, then the next p. Backwards begin with
   the last chunk. */
static void dt__pipe_virtual(dt__pipe_work *w, int64_t k, bool forward)
{
    int64_t round = (int64_t)w->ranks * w->chunks;
    int     chunk = (int)(k % round / w->ranks), micro = (int)(k / round * w->ranks + k % w->ranks);
    if (forward) dt__pipe_add(w, DT_PIPE_FORWARD, chunk, micro);
    else dt__pipe_add(w, DT_PIPE_BACKWARD, w->chunks - 1 - chunk, micro);
}
static void dt__pipe_make_interleaved(dt__pipe_work *w)
{
    int64_t all = (int64_t)w->micro * w->chunks;
    int64_t ahead = 2 * (int64_t)(w->ranks - 1 - w->rank) + (int64_t)(w->chunks - 1) * w->ranks;
    if (ahead > all) ahead = all;
    for (int64_t k = 0; k < ahead; k++) dt__pipe_virtual(w, k, true);
    for (int64_t k = 0; k < all; k++) {
        if (ahead + k < all) dt__pipe_virtual(w, ahead + k, true);
        dt__pipe_virtual(w, k, false);
    }
}
/* The order of 1F1B. Rank r computes the gradient of the weights of micro-batch i - r after the gradient of the inputs of i,
   and what is left at the end: so all ranks hold p micro-batches, and the last ranks have work when the others still wait. */
static void dt__pipe_make_zb_h1(dt__pipe_work *w)
{
    int ahead = dt__pipe_least(w->ranks - 1 - w->rank, w->micro), weights = 0;
    for (int i = 0; i < ahead; i++) dt__pipe_add(w, DT_PIPE_FORWARD, 0, i);
    for (int i = 0; i < w->micro; i++) {
        if (ahead + i < w->micro) dt__pipe_add(w, DT_PIPE_FORWARD, 0, ahead + i);
        dt__pipe_add(w, DT_PIPE_BACKWARD_INPUT, 0, i);
        if (i >= w->rank) dt__pipe_add(w, DT_PIPE_BACKWARD_WEIGHT, 0, weights++);
    }
    while (weights < w->micro) dt__pipe_add(w, DT_PIPE_BACKWARD_WEIGHT, 0, weights++);
}

static int64_t dt__pipe_held_gpipe(const dt_pipe_opts *o, int rank)
{
    (void)rank;
    return o->micro;
}
static int64_t dt__pipe_held_1f1b(const dt_pipe_opts *o, int rank) { return dt__pipe_least(o->ranks - rank, o->micro); }
static int64_t dt__pipe_held_interleaved(const dt_pipe_opts *o, int rank)
{
    int64_t p = o->ranks, v = o->chunks, most = v * p + p - 1 - 2 * rank, all = v * o->micro;
    return most < all ? most : all;
}
static int64_t dt__pipe_held_zb_h1(const dt_pipe_opts *o, int rank)
{
    (void)rank;
    return dt__pipe_least(o->ranks, o->micro);
}

static double dt__pipe_bubble_gpipe(const dt_pipe_opts *o, double f, double b, double w)
{
    return (o->ranks - 1) * (f + b + w);
}
static double dt__pipe_bubble_1f1b(const dt_pipe_opts *o, double f, double b, double w)
{
    return (o->ranks - 1) * (f + b + w);
}
static double dt__pipe_bubble_interleaved(const dt_pipe_opts *o, double f, double b, double w)
{
    return (o->ranks - 1) * (f + b + w) / o->chunks;
}
static double dt__pipe_bubble_zb_h1(const dt_pipe_opts *o, double f, double b, double w)
{
    return w > f || w > b ? -1 : (o->ranks - 1) * (f + b) - (dt__pipe_least(o->ranks, o->micro) - 1) * w;
}

typedef struct dt__pipe_row {
    const char *name;
    int         ops;    /* steps of a stage and micro-batch */
    bool        chunks; /* needs 2 chunks or more; else 1 */
    void (*make)(dt__pipe_work *w);
    int64_t (*held)(const dt_pipe_opts *o, int rank);
    double (*bubble)(const dt_pipe_opts *o, double f, double b, double w);
} dt__pipe_row;
static const dt__pipe_row *dt__pipe_row_of(int kind) /* NULL: there is no such kind */
{
#define DT__PIPE_ROW(E, name, ops, chunks) \
    { #name, ops, chunks, dt__pipe_make_##name, dt__pipe_held_##name, dt__pipe_bubble_##name },
    static const dt__pipe_row row[DT_PIPE_KIND_COUNT] = { DT__PIPE_KINDS(DT__PIPE_ROW) };
#undef DT__PIPE_ROW
    return kind >= 0 && kind < (int)DT_PIPE_KIND_COUNT ? &row[kind] : NULL;
}
DT_API const char *dt_pipe_kind_name(dt_pipe_kind k) { return dt__pipe_row_of((int)k) ? dt__pipe_row_of((int)k)->name : "?"; }
DT_API dt_pipe_kind dt_pipe_kind_find(const char *name)
{
    int k = 0;
    while (k < (int)DT_PIPE_KIND_COUNT && (!name || strcmp(name, dt__pipe_row_of(k)->name) != 0)) k++;
    return (dt_pipe_kind)k;
}

/* Fills in defaults. Returns 0 or DT_COMM_ERR_ARG. */
static int dt__pipe_options(dt_pipe_opts *o, const char *call)
{
    const dt__pipe_row *row = dt__pipe_row_of((int)o->kind);
    if (!row)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: kind is %d: expected DT_PIPE_1F1B (0) to %d, a dt_pipe_kind", call,
                            (int)o->kind, (int)DT_PIPE_KIND_COUNT - 1);
    if (o->ranks < 1 || o->ranks > DT__PIPE_RANKS)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: ranks is %d: expected 1 to %d", call, o->ranks, (int)DT__PIPE_RANKS);
    if (o->micro < 1 || o->micro > DT__PIPE_MICRO)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: micro is %d: expected 1 to %d micro-batches", call, o->micro,
                            (int)DT__PIPE_MICRO);
    if (!o->chunks) o->chunks = row->chunks ? 2 : 1;
    if (row->chunks ? o->chunks < 2 || o->chunks > DT__PIPE_CHUNKS : o->chunks != 1)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: chunks is %d: %s needs %s", call, o->chunks, row->name,
                            row->chunks ? "2 to 1024 chunks a rank; with one chunk take DT_PIPE_1F1B"
                                        : "one chunk a rank; for several take DT_PIPE_INTERLEAVED");
    if (row->chunks && o->micro % o->ranks)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "%s: %d micro-batches on %d ranks: %s needs a multiple of the ranks; take %d or %d "
                            "micro-batches, or DT_PIPE_1F1B", call, o->micro, o->ranks, row->name,
                            o->micro < o->ranks ? o->ranks : o->micro - o->micro % o->ranks,
                            (o->micro / o->ranks + (o->micro < o->ranks ? 2 : 1)) * o->ranks);
    if ((int64_t)o->ranks * o->chunks * o->micro > DT__PIPE_STEPS / row->ops)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "%s: %d ranks x %d chunks x %d micro-batches are more than 2^30 steps; take fewer chunks or "
                            "micro-batches", call, o->ranks, o->chunks, o->micro);
    return 0;
}
DT_API dt_pipe_schedule *dt_pipe_schedule_new_with(dt_pipe_opts o)
{
    if (dt__pipe_options(&o, "dt_pipe_schedule_new")) return NULL;
    const dt__pipe_row *row = dt__pipe_row_of((int)o.kind);
    int64_t             each = (int64_t)o.chunks * o.micro * row->ops;
    dt_pipe_schedule   *s = (dt_pipe_schedule *)dt__comm_zeroed(1, sizeof *s);
    if (s) s->first = (int64_t *)dt__comm_zeroed((size_t)o.ranks + 1, sizeof *s->first);
    if (s) s->step = (dt_pipe_step *)DT_COMM_MALLOC((size_t)(each * o.ranks) * sizeof *s->step);
    if (!s || !s->first || !s->step) {
        dt_pipe_schedule_free(s);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_pipe_schedule_new: out of memory for %lld steps", (long long)(each * o.ranks));
        return NULL;
    }
    s->kind = o.kind;
    s->ranks = o.ranks;
    s->chunks = o.chunks;
    s->micro = o.micro;
    s->nsteps = each * o.ranks;
    for (int r = 0; r < o.ranks; r++) {
        dt__pipe_work w;
        w.at = s->step + r * each;
        w.rank = r;
        w.ranks = o.ranks;
        w.chunks = o.chunks;
        w.micro = o.micro;
        row->make(&w);
        s->first[r + 1] = w.at - s->step;
    }
    return s;
}
DT_API void dt_pipe_schedule_free(dt_pipe_schedule *s)
{
    if (!s) return;
    DT_COMM_FREE(s->first);
    DT_COMM_FREE(s->step);
    DT_COMM_FREE(s);
}
DT_API int64_t dt_pipe_held(dt_pipe_opts o, int rank)
{
    if (dt__pipe_options(&o, "dt_pipe_held")) return -1;
    if (rank < 0 || rank >= o.ranks)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_held: rank is %d: expected 0 to %d", rank, o.ranks - 1);
    return dt__pipe_row_of((int)o.kind)->held(&o, rank);
}
DT_API double dt_pipe_bubble(dt_pipe_opts o, double forward, double backward_input, double backward_weight)
{
    if (dt__pipe_options(&o, "dt_pipe_bubble")) return -1;
    if (!(forward >= 0) || !(backward_input >= 0) || !(backward_weight >= 0))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_bubble: a time is negative or NaN");
    return dt__pipe_row_of((int)o.kind)->bubble(&o, forward, backward_input, backward_weight);
}

/* ---- messages */
static int dt__pipe_stage(const dt_pipe_schedule *s, int rank, const dt_pipe_step *t) { return t->chunk * s->ranks + rank; }
DT_API int64_t dt_pipe_memory(const dt_pipe_schedule *s, int rank, const dt_pipe_bytes *stage)
{
    int64_t held = 0, most = 0, sent = 0;
    if (!s || !stage || rank < 0 || rank >= s->ranks)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_memory: %s", !s ? "the schedule is NULL" : !stage ? "the bytes are NULL" :
                            "there is no such rank");
    for (int64_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
        const dt_pipe_bytes *b = &stage[dt__pipe_stage(s, rank, &s->step[i])];
        int                  op = s->step[i].op;
        bool                 weight = op == DT_PIPE_BACKWARD_WEIGHT;
        int64_t              before = op == DT_PIPE_FORWARD ? 0 : weight ? b->between : b->kept, now = held - before;
        now += op == DT_PIPE_FORWARD ? b->forward : op == DT_PIPE_BACKWARD ? b->backward : weight ? b->weight : b->input;
        for (int64_t k = i + 1; k <= i + DT_PIPE_AHEAD && k < s->first[rank + 1]; k++) {
            const dt_pipe_bytes *next = &stage[dt__pipe_stage(s, rank, &s->step[k])];
            now += s->step[k].op == DT_PIPE_FORWARD ? next->in : s->step[k].op != DT_PIPE_BACKWARD_WEIGHT ? next->grad : 0;
        }
        most = now + sent > most ? now + sent : most;
        sent = op == DT_PIPE_FORWARD ? b->sent : weight ? 0 : b->in; /* outputs; gradients of the inputs */
        held += (op == DT_PIPE_FORWARD ? b->kept : op == DT_PIPE_BACKWARD_INPUT ? b->between : 0) - before;
    }
    return most;
}
static bool dt__pipe_message_of(const dt_pipe_schedule *s, int stage, int to, const dt_pipe_step *t, dt_pipe_message *m)
{
    if (stage < 0 || to < 0 || stage >= s->ranks * s->chunks || to >= s->ranks * s->chunks) return false;
    m->from = stage % s->ranks;
    m->to = to % s->ranks;
    m->stage = stage;
    m->micro = t->micro;
    m->gradient = to < stage;
    return true;
}
DT_API bool dt_pipe_input(const dt_pipe_schedule *s, int rank, const dt_pipe_step *t, dt_pipe_message *m)
{
    int at = dt__pipe_stage(s, rank, t);
    if (t->op == DT_PIPE_BACKWARD_WEIGHT) return false;
    return dt__pipe_message_of(s, t->op == DT_PIPE_FORWARD ? at - 1 : at + 1, at, t, m);
}
DT_API bool dt_pipe_output(const dt_pipe_schedule *s, int rank, const dt_pipe_step *t, dt_pipe_message *m)
{
    int at = dt__pipe_stage(s, rank, t);
    if (t->op == DT_PIPE_BACKWARD_WEIGHT) return false;
    return dt__pipe_message_of(s, at, t->op == DT_PIPE_FORWARD ? at + 1 : at - 1, t, m);
}

/* ---- checking. First the steps of each rank by themselves, then a run of all ranks. */
static const char *dt__pipe_op_name(int op)
{
    static const char *const name[] = { "?", "forward", "backward", "gradient of inputs", "gradient of weights" };
    return name[op >= DT_PIPE_FORWARD && op <= DT_PIPE_BACKWARD_WEIGHT ? op : 0];
}
static int dt__pipe_wrong(const dt_pipe_schedule *s, int rank, int64_t i, const char *format, ...) DT__PRINTF(4, 5);
static int dt__pipe_wrong(const dt_pipe_schedule *s, int rank, int64_t i, const char *format, ...)
{
    char                why[256];
    const dt_pipe_step *t = &s->step[i];
    va_list             ap;
    va_start(ap, format);
    vsnprintf(why, sizeof why, format, ap);
    va_end(ap);
    return dt__comm_bad(DT_COMM_ERR_ARG, "pipeline schedule: rank %d, step %lld (%s, chunk %d, micro-batch %d): %s", rank,
                        (long long)(i - s->first[rank]), dt__pipe_op_name(t->op), t->chunk, (int)t->micro, why);
}
/* done: 3 counters for each stage, of forwards, gradients of inputs, gradients of weights. In order, so they are also the
   next micro-batch. */
static int dt__pipe_check_step(const dt_pipe_schedule *s, int rank, int64_t i, int *done)
{
    const dt_pipe_step *t = &s->step[i];
    if (t->op < DT_PIPE_FORWARD || t->op > DT_PIPE_BACKWARD_WEIGHT)
        return dt__pipe_wrong(s, rank, i, "op is %d: expected DT_PIPE_FORWARD (1) to DT_PIPE_BACKWARD_WEIGHT (4)", t->op);
    if (t->chunk < 0 || t->chunk >= s->chunks)
        return dt__pipe_wrong(s, rank, i, "expected a chunk from 0 to %d", s->chunks - 1);
    if (t->micro < 0 || t->micro >= s->micro)
        return dt__pipe_wrong(s, rank, i, "expected a micro-batch from 0 to %d", s->micro - 1);
    int *mine = done + 3 * (int64_t)dt__pipe_stage(s, rank, t);
    for (int k = 0; k < 3; k++) { /* the counters that this op advances */
        if (k == 0 ? t->op != DT_PIPE_FORWARD : k == 1 ? t->op != DT_PIPE_BACKWARD && t->op != DT_PIPE_BACKWARD_INPUT
                                                       : t->op != DT_PIPE_BACKWARD && t->op != DT_PIPE_BACKWARD_WEIGHT)
            continue;
        if (mine[k] > t->micro) return dt__pipe_wrong(s, rank, i, "it was done before; remove it");
        if (mine[k] < t->micro)
            return dt__pipe_wrong(s, rank, i, "micro-batch %d must come first: a stage takes them in order", mine[k]);
        if (k && mine[k - 1] <= t->micro)
            return dt__pipe_wrong(s, rank, i, "its %s must come before it", k == 1 ? "forward" : "gradient of inputs");
        mine[k]++;
    }
    dt_pipe_message m;
    if (dt_pipe_input(s, rank, t, &m) && m.from == m.to && done[3 * (int64_t)m.stage + m.gradient] <= t->micro)
        return dt__pipe_wrong(s, rank, i, "the %s of stage %d on the same rank must come before it",
                              m.gradient ? "gradient of inputs" : "forward", m.stage);
    return 0;
}
static int dt__pipe_shape(const dt_pipe_schedule *s, const char *call) /* sizes, so that no array is left */
{
    if (!s) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: the schedule is NULL", call);
    bool ok = s->ranks >= 1 && s->ranks <= DT__PIPE_RANKS && s->chunks >= 1 && s->chunks <= DT__PIPE_CHUNKS && s->micro >= 1 &&
              s->micro <= DT__PIPE_MICRO && s->nsteps >= 0 && s->nsteps <= DT__PIPE_STEPS && s->first &&
              (s->step || !s->nsteps) && s->first[0] == 0 && s->first[s->ranks] == s->nsteps;
    for (int r = 0; ok && r < s->ranks; r++) ok = s->first[r] <= s->first[r + 1];
    if (ok) return 0;
    return dt__comm_bad(DT_COMM_ERR_ARG, "%s: this is no schedule: expected 1 to 4096 ranks, 1 to 1024 chunks, 1 to 65536 "
                        "micro-batches, at most 2^30 steps, and first[] ascending from 0 to nsteps", call);
}
static int dt__pipe_check_steps(const dt_pipe_schedule *s)
{
    static const char *const what[] = { "forward", "gradient of inputs", "gradient of weights" };
    int64_t                  stages = (int64_t)s->ranks * s->chunks;
    int                      status = 0;
    int                     *done = (int *)dt__comm_zeroed((size_t)stages * 3, sizeof *done);
    if (!done) return dt__comm_bad(DT_COMM_ERR_MEMORY, "pipeline schedule: out of memory for %lld stages", (long long)stages);
    for (int r = 0; r < s->ranks && !status; r++)
        for (int64_t i = s->first[r]; i < s->first[r + 1] && !status; i++) status = dt__pipe_check_step(s, r, i, done);
    for (int64_t k = 0; k < 3 * stages && !status; k++)
        if (done[k] < s->micro)
            status = dt__comm_bad(DT_COMM_ERR_ARG,
                                  "pipeline schedule: rank %d ends after %lld steps without the %s of chunk %d, micro-batch "
                                  "%d; add it", (int)(k / 3 % s->ranks),
                                  (long long)(s->first[k / 3 % s->ranks + 1] - s->first[k / 3 % s->ranks]), what[k % 3],
                                  (int)(k / 3 / s->ranks), done[k]);
    DT_COMM_FREE(done);
    return status;
}

/* ---- running in virtual time. A rank runs until its next step waits for a message or for a buffer; the step of another
   rank that ends this makes it run again. Every message has one sender and one receiver and buffers are used in turn, so
   times do not depend on the order in which ranks are visited. */
typedef struct dt__pipe_rank {
    int64_t at;        /* its next step */
    double  t;         /* when its last step ended */
    double  arrived;   /* when the input of its next step arrived, if received */
    int64_t waits;     /* the message that it waits for; -1: none */
    int64_t nsent;     /* messages */
    bool    received, queued, blocked; /* blocked: it waits for a buffer */
} dt__pipe_rank;
typedef struct dt__pipe_run {
    const dt_pipe_schedule *s;
    const dt_pipe_times    *times; /* NULL: everything takes no time */
    int                     sends;
    dt__pipe_rank          *rank;
    int                    *queue, nqueue;
    double                 *sent;  /* when each message was sent; -1: not yet */
    double                 *free_at; /* of each buffer of each rank: when its send ended; -1: not yet */
    int64_t                *holds; /* the message in each buffer */
    dt_pipe_timing         *out;   /* NULL: not wanted */
} dt__pipe_run;
static int64_t dt__pipe_key(const dt_pipe_schedule *s, const dt_pipe_message *m)
{
    return ((int64_t)m->stage * 2 + m->gradient) * s->micro + m->micro;
}
static double dt__pipe_transfer(const dt__pipe_run *d, const dt_pipe_message *m)
{
    if (!d->times) return 0;
    return d->times->transfers ? d->times->transfers[m->gradient ? m->stage - 1 : m->stage] : d->times->transfer;
}
static double dt__pipe_seconds(const dt_pipe_times *t, int stage, int op)
{
    if (!t) return 0;
    double f = t->forwards ? t->forwards[stage] : t->forward;
    double b = t->backward_inputs ? t->backward_inputs[stage] : t->backward_input;
    double w = t->backward_weights ? t->backward_weights[stage] : t->backward_weight;
    return op == DT_PIPE_FORWARD ? f : op == DT_PIPE_BACKWARD ? b + w : op == DT_PIPE_BACKWARD_INPUT ? b : w;
}
static void dt__pipe_wake(dt__pipe_run *d, int rank)
{
    if (d->rank[rank].queued) return;
    d->rank[rank].queued = true;
    d->queue[d->nqueue++] = rank;
}
/* The receiver takes a message that was sent. In limited mode that ends the send and frees its buffer. */
static void dt__pipe_receive(dt__pipe_run *d, dt__pipe_rank *r, const dt_pipe_message *m, int64_t key)
{
    double sent = d->sent[key], begun = d->sends && r->t > sent ? r->t : sent;
    r->arrived = begun + dt__pipe_transfer(d, m);
    r->received = true;
    r->waits = -1;
    for (int k = 0; k < d->sends; k++) {
        int64_t b = (int64_t)m->from * d->sends + k;
        if (d->holds[b] != key) continue;
        d->holds[b] = -1;
        d->free_at[b] = r->arrived;
        if (d->rank[m->from].blocked) dt__pipe_wake(d, m->from);
        return;
    }
}
/* Runs the rank's next step. False: it has to wait, or there is none. */
static bool dt__pipe_advance(dt__pipe_run *d, int rank)
{
    const dt_pipe_schedule *s = d->s;
    dt__pipe_rank          *r = &d->rank[rank];
    dt_pipe_message         in, out;
    if (r->at == s->first[rank + 1]) return false;
    const dt_pipe_step *t = &s->step[r->at];
    bool                has = dt_pipe_input(s, rank, t, &in) && in.from != in.to;
    bool                sends = dt_pipe_output(s, rank, t, &out) && out.from != out.to;
    r->blocked = false;
    if (has && !r->received) {
        int64_t key = dt__pipe_key(s, &in);
        r->waits = key;
        if (d->sent[key] < 0) return false;
        dt__pipe_receive(d, r, &in, key);
    }
    double  start = has && r->arrived > r->t ? r->arrived : r->t;
    int64_t buffer = d->sends ? (int64_t)rank * d->sends + r->nsent % d->sends : 0;
    if (sends && d->sends) {
        r->blocked = d->holds[buffer] >= 0;
        if (r->blocked) return false;
        if (d->free_at[buffer] > start) start = d->free_at[buffer];
    }
    double takes = dt__pipe_seconds(d->times, dt__pipe_stage(s, rank, t), t->op);
    r->t = start + takes;
    if (d->out) {
        d->out->start[r->at] = start;
        d->out->end[r->at] = r->t;
        d->out->busy[rank] += takes;
        if (r->t > d->out->seconds) d->out->seconds = r->t;
    }
    r->at++;
    r->received = false;
    if (!sends) return true;
    int64_t key = dt__pipe_key(s, &out);
    d->sent[key] = r->t;
    r->nsent++;
    if (d->sends) d->holds[buffer] = key;
    if (d->rank[out.to].waits == key) dt__pipe_wake(d, out.to);
    return true;
}
static void dt__pipe_run_free(dt__pipe_run *d)
{
    DT_COMM_FREE(d->rank);
    DT_COMM_FREE(d->queue);
    DT_COMM_FREE(d->sent);
    DT_COMM_FREE(d->free_at);
    DT_COMM_FREE(d->holds);
}
static int dt__pipe_stuck(const dt__pipe_run *d) /* the message for ranks that wait for each other */
{
    const dt_pipe_schedule *s = d->s;
    int                     rank = 0;
    dt_pipe_message         m;
    while (d->rank[rank].at == s->first[rank + 1]) rank++;
    const dt__pipe_rank *r = &d->rank[rank];
    if (r->waits < 0 || !dt_pipe_input(s, rank, &s->step[r->at], &m))
        return dt__pipe_wrong(s, rank, r->at,
                              "deadlock: its %d buffers for sends are full, and no rank receives; change the order of steps",
                              d->sends);
    return dt__pipe_wrong(s, rank, r->at,
                          "deadlock: it waits for the %s of stage %d from rank %d, which waits before its step %lld; change "
                          "the order of steps", m.gradient ? "gradient" : "output", m.stage, m.from,
                          (long long)(d->rank[m.from].at - s->first[m.from]));
}
/* The steps were checked. sends: 0: no limit. */
static int dt__pipe_go(const dt_pipe_schedule *s, const dt_pipe_times *times, int sends, dt_pipe_timing *out)
{
    dt__pipe_run d;
    size_t       n = (size_t)s->ranks, messages = n * (size_t)s->chunks * 2 * (size_t)s->micro;
    int          status = 0;
    memset(&d, 0, sizeof d);
    d.s = s;
    d.times = times;
    d.sends = sends;
    d.out = out;
    d.rank = (dt__pipe_rank *)dt__comm_zeroed(n, sizeof *d.rank);
    d.queue = (int *)dt__comm_zeroed(n, sizeof *d.queue);
    d.sent = (double *)DT_COMM_MALLOC(messages * sizeof *d.sent);
    d.free_at = (double *)dt__comm_zeroed(n * (size_t)sends, sizeof *d.free_at);
    d.holds = (int64_t *)dt__comm_zeroed(n * (size_t)sends, sizeof *d.holds);
    if (!d.rank || !d.queue || !d.sent || !d.free_at || !d.holds) {
        dt__pipe_run_free(&d);
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "pipeline schedule: out of memory for %lld messages", (long long)messages);
    }
    for (size_t i = 0; i < messages; i++) d.sent[i] = -1;
    for (size_t i = 0; i < n * (size_t)sends; i++) d.holds[i] = -1;
    for (int r = s->ranks - 1; r >= 0; r--) {
        d.rank[r].at = s->first[r];
        d.rank[r].waits = -1;
        dt__pipe_wake(&d, r);
    }
    while (d.nqueue) {
        int rank = d.queue[--d.nqueue];
        d.rank[rank].queued = false;
        while (dt__pipe_advance(&d, rank)) {}
    }
    for (int r = 0; r < s->ranks && !status; r++)
        if (d.rank[r].at < s->first[r + 1]) status = dt__pipe_stuck(&d);
    dt__pipe_run_free(&d);
    return status;
}
DT_API int dt_pipe_check(const dt_pipe_schedule *s)
{
    int status = dt__pipe_shape(s, "dt_pipe_check");
    if (!status) status = dt__pipe_check_steps(s);
    return status ? status : dt__pipe_go(s, NULL, DT_PIPE_SENDS, NULL);
}
#define DT__PIPE_LONGEST 1e9 /* seconds of a step or message, so that sums stay finite */
static bool dt__pipe_bad_time(double one, const double *each, int64_t n)
{
    for (int64_t i = 0; each && i < n; i++)
        if (!(each[i] >= 0 && each[i] <= DT__PIPE_LONGEST)) return true;
    return !each && !(one >= 0 && one <= DT__PIPE_LONGEST);
}
DT_API dt_pipe_timing *dt_pipe_simulate_with(const dt_pipe_schedule *s, dt_pipe_times t)
{
    dt_pipe_timing *out = NULL;
    if (dt__pipe_shape(s, "dt_pipe_simulate")) return NULL;
    int64_t stages = (int64_t)s->ranks * s->chunks;
    if (dt__pipe_bad_time(t.forward, t.forwards, stages) || dt__pipe_bad_time(t.backward_input, t.backward_inputs, stages) ||
        dt__pipe_bad_time(t.backward_weight, t.backward_weights, stages) ||
        dt__pipe_bad_time(t.transfer, t.transfers, stages - 1)) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_simulate: a time is not a number of seconds from 0 to 1e9");
        return NULL;
    }
    if (t.sends < 0 || t.sends > DT__PIPE_SENDS) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_simulate: sends is %d: expected 0 (no limit) to %d", t.sends,
                     (int)DT__PIPE_SENDS);
        return NULL;
    }
    if (dt__pipe_check_steps(s)) return NULL;
    out = (dt_pipe_timing *)dt__comm_zeroed(1, sizeof *out);
    if (out) out->busy = (double *)dt__comm_zeroed((size_t)s->ranks, sizeof *out->busy);
    if (out) out->held = (int64_t *)dt__comm_zeroed((size_t)s->ranks, sizeof *out->held);
    if (out) out->start = (double *)dt__comm_zeroed((size_t)s->nsteps, sizeof *out->start);
    if (out) out->end = (double *)dt__comm_zeroed((size_t)s->nsteps, sizeof *out->end);
    if (!out || !out->busy || !out->held || !out->start || !out->end) {
        dt_pipe_timing_free(out);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_pipe_simulate: out of memory for %lld steps", (long long)s->nsteps);
        return NULL;
    }
    out->ranks = s->ranks;
    out->nsteps = s->nsteps;
    if (dt__pipe_go(s, &t, t.sends, out)) {
        dt_pipe_timing_free(out);
        return NULL;
    }
    double busy = 0;
    for (int r = 0; r < s->ranks; r++) {
        int64_t now = 0;
        busy += out->busy[r];
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++) {
            now += s->step[i].op == DT_PIPE_FORWARD;
            if (now > out->held[r]) out->held[r] = now;
            now -= s->step[i].op == DT_PIPE_BACKWARD || s->step[i].op == DT_PIPE_BACKWARD_WEIGHT;
        }
    }
    out->bubble = out->seconds > 0 ? fmax(0, 1 - busy / (out->seconds * s->ranks)) : 0;
    return out;
}
DT_API void dt_pipe_timing_free(dt_pipe_timing *t)
{
    if (!t) return;
    DT_COMM_FREE(t->busy);
    DT_COMM_FREE(t->held);
    DT_COMM_FREE(t->start);
    DT_COMM_FREE(t->end);
    DT_COMM_FREE(t);
}
/* ---- the picture. Time goes to the right; numbers are written without printf's %f, which depends on the locale. */
enum { DT__PIPE_DRAWN = 200000 }; /* the largest number of steps */
static void dt__pipe_px(FILE *f, const char *key, double x) /* key="x", with one decimal */
{
    long long tenth = (long long)(x * 10 + 0.5);
    fprintf(f, " %s=\"%lld.%d\"", key, tenth / 10, (int)(tenth % 10));
}
static void dt__pipe_box(FILE *f, const char *what, double x, double y, double w, double h)
{
    fprintf(f, "<rect class=\"%s\"", what);
    dt__pipe_px(f, "x", x);
    dt__pipe_px(f, "y", y);
    dt__pipe_px(f, "width", w > 0.5 ? w : 0.5);
    dt__pipe_px(f, "height", h);
    fprintf(f, "/>\n");
}
static void dt__pipe_label(FILE *f, const char *what, double x, double y, const char *text)
{
    fprintf(f, "<text class=\"%s\"", what);
    dt__pipe_px(f, "x", x);
    dt__pipe_px(f, "y", y);
    fprintf(f, ">%s</text>\n", text);
}
static void dt__pipe_draw(FILE *f, const dt_pipe_schedule *s, const dt_pipe_timing *t)
{
    static const char *const words[] = { "?", "forward", "backward", "gradient of inputs", "gradient of weights" };
    static const char *const of[] = { "?", "f", "b", "i", "w" };
    char                     text[200], number[40];
    double                   least = 0, left = 70, top = 66, high = s->ranks <= 32 ? 24 : 14, scale, x, y;
    bool                     used[5] = { false, false, false, false, false };
    for (int64_t i = 0; i < s->nsteps; i++) {
        double d = t->end[i] - t->start[i];
        if (d > 0 && (!(least > 0) || d < least)) least = d;
        used[s->step[i].op] = true;
    }
    scale = least > 0 ? 26 / least : 0;
    if (t->seconds * scale > 1400) scale = 1400 / t->seconds; /* pixels */
    double w = left + t->seconds * scale + 110, h = top + (high + 4) * s->ranks + 44;
    if (w < 640) w = 640;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n", (int)w, (int)h,
            (int)w, (int)h);
    fprintf(f, "<style>text{font:12px sans-serif;fill:#333}.t{font-size:15px;font-weight:bold}"
               ".n{font-size:10px;text-anchor:middle;fill:#fff}.d{font-size:10px;text-anchor:middle;fill:#333}"
               ".idle{fill:#eceef1}.f{fill:#2461a8}.b{fill:#2d8a57}.i{fill:#2f8f9d}.w{fill:#d2601a}.s{stroke:#fff}"
               ".p{fill-opacity:0.55}</style>\n");
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", (int)w, (int)h);
    snprintf(text, sizeof text, "%s: %d rank%s", dt_pipe_kind_name(s->kind), s->ranks, s->ranks == 1 ? "" : "s");
    if (s->chunks > 1) snprintf(text + strlen(text), sizeof text - strlen(text), " with %d chunks each", s->chunks);
    snprintf(text + strlen(text), sizeof text - strlen(text), ", %d micro-batch%s", s->micro, s->micro == 1 ? "" : "es");
    dt__pipe_label(f, "t", 14, 24, text);
    int tenth = (int)(t->bubble * 1000 + 0.5);
    snprintf(text, sizeof text, "%s seconds, of which %d.%d %% idle (bubble)", dt__number(number, sizeof number, t->seconds, 6),
             tenth / 10, tenth % 10);
    dt__pipe_label(f, "", 14, 43, text);
    dt__pipe_label(f, "", left + t->seconds * scale + 12, top - 8, "most held");
    for (int r = 0; r < s->ranks; r++) {
        y = top + (high + 4) * r;
        snprintf(text, sizeof text, "rank %d", r);
        dt__pipe_label(f, "", 14, y + high / 2 + 4, text);
        dt__pipe_box(f, "idle", left, y, t->seconds * scale, high);
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++) {
            const dt_pipe_step *e = &s->step[i];
            double              wide = (t->end[i] - t->start[i]) * scale;
            bool                pale = e->chunk % 2 != 0;
            if (!(t->end[i] > t->start[i])) continue;
            snprintf(text, sizeof text, "%s%s%s", of[e->op], wide >= 5 ? " s" : "", pale ? " p" : "");
            dt__pipe_box(f, text, left + t->start[i] * scale, y, wide, high);
            snprintf(text, sizeof text, "%d", (int)e->micro);
            if (wide >= 7 * (double)strlen(text) + 3 && high > 12)
                dt__pipe_label(f, pale ? "d" : "n", left + t->start[i] * scale + wide / 2, y + high / 2 + 4, text);
        }
        snprintf(text, sizeof text, "%lld", (long long)t->held[r]);
        if (s->chunks > 1) snprintf(text + strlen(text), sizeof text - strlen(text), " / %d", s->chunks);
        dt__pipe_label(f, "", left + t->seconds * scale + 12, y + high / 2 + 4, text);
    }
    x = left, y = top + (high + 4) * s->ranks + 14;
    for (int op = DT_PIPE_FORWARD; op <= (int)DT_PIPE_BACKWARD_WEIGHT; op++) {
        if (!used[op]) continue;
        dt__pipe_box(f, of[op], x, y, 14, 14);
        dt__pipe_label(f, "", x + 20, y + 11, words[op]);
        x += 40 + 7 * (double)strlen(words[op]);
    }
    if (s->chunks > 1) dt__pipe_label(f, "", x, y + 11, "pale: chunks 1, 3 ...");
    fprintf(f, "</svg>\n");
}
DT_API int dt_pipe_svg(const char *path, const dt_pipe_schedule *s, const dt_pipe_timing *t)
{
    const char *why = "out of memory";
    int         status = dt__pipe_shape(s, "dt_pipe_svg"), e = 0;
    if (status) return status;
    if (!path || !t || t->ranks != s->ranks || t->nsteps != s->nsteps || !(t->seconds >= 0) || !isfinite(t->seconds))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_svg: the path is NULL, or the times are not those of this schedule: pass "
                                             "what dt_pipe_simulate returned for it");
    if (s->nsteps > DT__PIPE_DRAWN)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_svg: %lld steps: expected at most %d; draw fewer ranks or micro-batches",
                            (long long)s->nsteps, (int)DT__PIPE_DRAWN);
    status = dt__pipe_check_steps(s);
    if (status) return status;
    int   fd = dt__file_create(AT_FDCWD, path, O_WRONLY | O_TRUNC, &why);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !f) close(fd);
    if (!f) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_svg: cannot create '%.120s': %s", path, why);
    errno = 0;
    dt__pipe_draw(f, s, t);
    if (ferror(f)) e = errno ? errno : EIO;
    if (fclose(f) && !e) e = errno ? errno : EIO;
    return e ? dt__comm_bad(DT_COMM_ERR_ARG, "dt_pipe_svg: cannot write '%.120s': %s", path, strerror(e)) : 0;
}

/* ==================================================================================================== >>cutting
   best[d][j]: the value of the best cut of layers 0 .. j - 1 into stages that use d devices. A stage of layers k .. j - 1 with
   r devices follows best[d - r][k]. Work and memory grow as k falls, so the search over k ends when either alone is too
   much. Three values are minimised in turn with the same loop:
     TIME     the slowest stage
     BYTES    the sum of what crosses the cuts, of partitions whose slowest stage is not slower
     MEMORY   the largest memory of a stage, without a limit: for the message if nothing fits
   Bytes are doubles: sums cannot overflow, and are exact up to 2^53. */
enum { DT__CUTS_LAYERS = 65536, DT__CUTS_TIME = 0, DT__CUTS_BYTES, DT__CUTS_MEMORY };
typedef struct dt__cuts {
    const dt_pipe_partition_opts *o;
    int                           n, devices; /* layers; devices, or stages if each has one */
    double                       *cross;      /* bytes that cross the cut before layer j; 0 for j = 0 and n */
    double                       *best;       /* [d * (n + 1) + j] */
    int32_t                      *from, *with; /* k and r of the best */
    double                        most;       /* BYTES: the slowest stage allowed */
} dt__cuts;
typedef struct dt__cuts_sum { /* of the layers of a stage */
    double work, params, fixed, held;
} dt__cuts_sum;
static void dt__cuts_add(dt__cuts_sum *u, const dt_pipe_layer *l)
{
    u->work += l->forward + l->backward;
    u->params += (double)l->params;
    u->fixed += ceil((double)l->params * (1 + l->state));
    u->held += (double)l->held;
}
static bool dt__cuts_may(const dt__cuts *d, int j) { return j == 0 || j == d->n || !d->o->layers[j - 1].with_next; }
static double dt__cuts_message(const dt__cuts *d, int j)
{
    if (!(d->cross[j] > 0)) return 0;
    return 2 * (d->o->latency + (d->o->bandwidth > 0 ? d->cross[j] / d->o->bandwidth : 0));
}
static double dt__cuts_seconds(const dt__cuts *d, const dt__cuts_sum *u, int k, int j, int r)
{
    const dt_pipe_partition_opts *o = d->o;
    double                        a = dt__cuts_message(d, k), b = dt__cuts_message(d, j);
    double                        one = o->overlap ? fmax(u->work, fmax(a, b)) : u->work + a + b;
    if (r == 1) return one;
    double sync = 2.0 * (r - 1) * (o->latency + (o->bandwidth > 0 ? u->params / r / o->bandwidth : 0));
    return one / r + sync / (o->micro > 0 ? o->micro : r);
}
static int dt__cuts_up(int a, int b) { return a / b + (a % b != 0); }
/* Micro-batches in flight on each of the r devices of a stage with so many devices before it. Interleaved: of one stage, an
   upper bound that only the table uses until dt__cuts_interleaved has the exact number. */
static int dt__cuts_flight(const dt__cuts *d, int before, int r)
{
    const dt_pipe_partition_opts *o = d->o;
    int                           all = o->micro > 0 ? dt__cuts_up(o->micro, r) : INT_MAX, n = all;
    if (o->kind == DT_PIPE_1F1B) n = dt__cuts_up(d->devices - before, r);
    else if (o->kind == DT_PIPE_ZB_H1) n = dt__cuts_up(d->devices, r);
    return n < all ? n : all;
}
static double dt__cuts_memory(const dt__cuts_sum *u, int flight) { return u->fixed + (u->held > 0 ? u->held * flight : 0); }
static bool dt__cuts_limited(const dt__cuts *d) { return d->o->memory > 0 && d->o->kind != DT_PIPE_INTERLEAVED; }

/* The best stage that ends before layer j and uses the last r of d->devices' first `used` devices. */
static void dt__cuts_try(dt__cuts *d, int what, int used, int j, int r)
{
    size_t       row = (size_t)d->n + 1, at = (size_t)used * row + (size_t)j;
    int          flight = dt__cuts_flight(d, used - r, r);
    dt__cuts_sum u;
    memset(&u, 0, sizeof u);
    for (int k = j - 1; k >= 0; k--) {
        dt__cuts_add(&u, &d->o->layers[k]);
        double memory = dt__cuts_memory(&u, flight), before = d->best[(size_t)(used - r) * row + (size_t)k], value;
        if (what == DT__CUTS_MEMORY ? memory > d->best[at] : dt__cuts_limited(d) && memory > (double)d->o->memory) return;
        if (what != DT__CUTS_MEMORY && u.work / r > (what == DT__CUTS_TIME ? d->best[at] : d->most)) return;
        if (!dt__cuts_may(d, k) || !(before < INFINITY)) continue;
        double seconds = dt__cuts_seconds(d, &u, k, j, r);
        if (what == DT__CUTS_BYTES && seconds > d->most) continue;
        value = what == DT__CUTS_TIME    ? fmax(before, seconds)
                : what == DT__CUTS_BYTES ? before + d->cross[k]
                                        : fmax(before, memory);
        if (!(value < d->best[at])) continue;
        d->best[at] = value;
        d->from[at] = k;
        d->with[at] = r;
    }
}
static double dt__cuts_all(dt__cuts *d, int what)
{
    size_t row = (size_t)d->n + 1, end = (size_t)d->devices * row + (size_t)d->n;
    for (size_t i = 0; i < ((size_t)d->devices + 1) * row; i++) d->best[i] = INFINITY;
    d->best[0] = 0;
    for (int used = 1; used <= d->devices; used++)
        for (int j = used == d->devices ? d->n : 1; j <= d->n; j++) {
            if (!dt__cuts_may(d, j)) continue;
            for (int r = 1; r <= (d->o->replicate ? used : 1); r++) dt__cuts_try(d, what, used, j, r);
        }
    return d->best[end];
}
static int64_t dt__cuts_bytes(double x) { return x < 4e18 ? (int64_t)x : INT64_C(4000000000000000000); }
/* The stages of the last dt__cuts_all, in p. */
static void dt__cuts_read(const dt__cuts *d, dt_pipe_partition *p)
{
    size_t row = (size_t)d->n + 1;
    int    used = d->devices, j = d->n;
    p->nstages = 0;
    for (; j > 0; p->nstages++) {
        size_t at = (size_t)used * row + (size_t)j;
        used -= d->with[at];
        j = d->from[at];
    }
    used = d->devices, j = d->n;
    for (int i = p->nstages - 1; i >= 0; i--) {
        dt_pipe_stage *s = &p->stage[i];
        dt__cuts_sum    u;
        size_t         at = (size_t)used * row + (size_t)j;
        int            k = d->from[at];
        memset(&u, 0, sizeof u);
        s->forward = s->backward = 0;
        for (int l = j - 1; l >= k; l--) {
            dt__cuts_add(&u, &d->o->layers[l]);
            s->forward += d->o->layers[l].forward;
            s->backward += d->o->layers[l].backward;
        }
        s->first = k;
        s->last = j - 1;
        s->replicas = d->with[at];
        used -= s->replicas;
        s->held = dt__cuts_flight(d, used, s->replicas);
        s->seconds = dt__cuts_seconds(d, &u, k, j, s->replicas);
        s->params = dt__cuts_bytes(u.params);
        s->memory = dt__cuts_bytes(dt__cuts_memory(&u, s->held));
        s->in = dt__cuts_bytes(d->cross[k]);
        s->out = dt__cuts_bytes(d->cross[j]);
        j = k;
    }
    p->slowest = 0;
    for (int i = 1; i < p->nstages; i++)
        if (p->stage[i].seconds > p->stage[p->slowest].seconds) p->slowest = i;
    p->seconds = p->stage[p->slowest].seconds;
}
static dt_pipe_opts dt__cuts_schedule(const dt_pipe_partition_opts *o)
{
    dt_pipe_opts q;
    q.dt__first = 0;
    q.kind = o->kind;
    q.ranks = o->ranks;
    q.chunks = o->chunks;
    q.micro = o->micro;
    return q;
}
/* Interleaved: the memory of a rank is that of all its stages. Its steps in order show how much it holds at most. */
static int dt__cuts_interleaved(const dt__cuts *d, dt_pipe_partition *p)
{
    const dt_pipe_partition_opts *o = d->o;
    dt_pipe_opts                  q = dt__cuts_schedule(o);
    double           *held = (double *)dt__comm_zeroed((size_t)p->nstages, sizeof *held); /* of one micro-batch, by stage */
    dt_pipe_schedule *s = held ? dt_pipe_schedule_new_with(q) : NULL;
    if (!s) {
        DT_COMM_FREE(held);
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_pipe_partition_new: out of memory for the schedule of %d ranks", o->ranks);
    }
    for (int r = 0; r < o->ranks; r++) {
        double fixed = 0, now = 0, most = 0;
        for (int i = r; i < p->nstages; i += o->ranks) {
            dt__cuts_sum u;
            memset(&u, 0, sizeof u);
            for (int l = p->stage[i].first; l <= p->stage[i].last; l++) dt__cuts_add(&u, &o->layers[l]);
            fixed += u.fixed;
            held[i] = u.held;
        }
        for (int64_t i = s->first[r]; i < s->first[r + 1]; i++) {
            double one = held[dt__pipe_stage(s, r, &s->step[i])];
            now += s->step[i].op == DT_PIPE_FORWARD ? one : -one;
            if (now > most) most = now;
        }
        for (int i = r; i < p->nstages; i += o->ranks) {
            p->stage[i].held = (int)dt_pipe_held(q, r);
            p->stage[i].memory = dt__cuts_bytes(fixed + most);
        }
    }
    dt_pipe_schedule_free(s);
    DT_COMM_FREE(held);
    return 0;
}

/* ---- options */
static const char *dt__cuts_name(const dt_pipe_layer *layers, int i, char number[16]) /* for messages and the table */
{
    if (layers && layers[i].name) return dt__show(layers[i].name);
    snprintf(number, 16, "%d", i);
    return number;
}
static const char *dt__cuts_size(double nbytes, char text[40])
{
    static const char *const unit[] = { "bytes", "KB", "MB", "GB", "TB", "PB" };
    int                      k = 0;
    while (k < 5 && nbytes >= 1e4) nbytes /= 1e3, k++;
    char number[24];
    snprintf(text, 40, "%s %s", dt__number(number, sizeof number, nbytes, nbytes < 100 && k ? 3 : 4), unit[k]);
    return text;
}
static int dt__cuts_options(dt_pipe_partition_opts *o)
{
    static const char *const call = "dt_pipe_partition_new";
    char                     number[16];
    if (!o->layers || o->nlayers < 1 || o->nlayers > DT__CUTS_LAYERS)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %s; expected 1 to %d layers, and nlayers is %d", call,
                            o->layers ? "wrong number of layers" : "layers is NULL", (int)DT__CUTS_LAYERS, o->nlayers);
    if (o->nedges < 0 || (o->nedges && !o->edges))
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: nedges is %d and edges %s; expected an array of nedges edges", call,
                            o->nedges, o->edges ? "is not NULL" : "is NULL");
    dt_pipe_opts q = dt__cuts_schedule(o);
    if (!q.micro && o->kind != DT_PIPE_INTERLEAVED) q.micro = 1; /* not known, and not needed */
    if (dt__pipe_options(&q, call)) return DT_COMM_ERR_ARG;
    o->chunks = q.chunks;
    if (o->kind == DT_PIPE_GPIPE && !o->micro)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: micro is 0: gpipe holds all micro-batches; say how many there are", call);
    if (o->kind == DT_PIPE_INTERLEAVED && o->replicate)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: replicate does not go with interleaved; take DT_PIPE_1F1B", call);
    if (!(o->bandwidth >= 0) || (o->bandwidth > 0 && o->bandwidth < 1e-3))
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: bandwidth is %g: expected bytes a second, 0 (bytes take no time) or at least "
                                             "0.001", call, o->bandwidth);
    if (dt__pipe_bad_time(o->latency, NULL, 0) || o->memory < 0)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: latency is %g and memory %lld: expected seconds from 0 to 1e9, and 0 (no "
                                             "limit) bytes or more", call, o->latency, (long long)o->memory);
    for (int i = 0; i < o->nlayers; i++) {
        const dt_pipe_layer *l = &o->layers[i];
        if (dt__pipe_bad_time(l->forward, NULL, 0) || dt__pipe_bad_time(l->backward, NULL, 0))
            return dt__comm_bad(DT_COMM_ERR_ARG, "%s: layer %s: its times are %g and %g; expected seconds from 0 to 1e9", call,
                                dt__cuts_name(o->layers, i, number), l->forward, l->backward);
        if (l->out < 0 || l->params < 0 || l->held < 0 || !(l->state >= 0) || !(l->state <= 1e6))
            return dt__comm_bad(DT_COMM_ERR_ARG, "%s: layer %s: bytes are negative, or state is not in 0 .. 1e6", call,
                                dt__cuts_name(o->layers, i, number));
    }
    return 0;
}
static int dt__cuts_edge_order(const void *a, const void *b)
{
    const dt_pipe_edge *x = (const dt_pipe_edge *)a, *y = (const dt_pipe_edge *)b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->output != y->output) return x->output < y->output ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}
/* What crosses each cut. A tensor crosses those up to its last reader. */
static int dt__cuts_crossing(dt__cuts *d)
{
    static const char *const      call = "dt_pipe_partition_new";
    const dt_pipe_partition_opts *o = d->o;
    for (int j = 1; j < d->n; j++) d->cross[j] = o->nedges ? 0 : (double)o->layers[j - 1].out;
    if (!o->nedges) return 0;
    size_t        n = (size_t)o->nedges;
    dt_pipe_edge *e = n > SIZE_MAX / sizeof *e ? NULL : (dt_pipe_edge *)DT_COMM_MALLOC(n * sizeof *e);
    int64_t      *step = (int64_t *)dt__comm_zeroed((size_t)d->n + 1, sizeof *step), sum = 0; /* step: change at each cut */
    int           status = 0;
    if (!e || !step) status = dt__comm_bad(DT_COMM_ERR_MEMORY, "%s: out of memory for %d edges", call, o->nedges);
    for (size_t i = 0; i < n && !status; i++) {
        const dt_pipe_edge *x = &o->edges[i];
        if (x->from < 0 || x->to >= d->n || x->from >= x->to || x->nbytes < 0)
            status = dt__comm_bad(DT_COMM_ERR_ARG,
                                  "%s: edge %d from layer %d to layer %d of %lld bytes; expected 0 <= from < to < %d (layers "
                                  "in topological order) and no negative bytes", call, (int)i, x->from, x->to,
                                  (long long)x->nbytes, d->n);
        else if (x->nbytes > INT64_MAX / 4 - sum)
            status = dt__comm_bad(DT_COMM_ERR_ARG, "%s: the bytes of the edges sum up to 2^61 or more", call);
        else {
            sum += x->nbytes;
            e[i] = *x;
        }
    }
    if (!status) qsort(e, n, sizeof *e, dt__cuts_edge_order);
    for (size_t i = 0; i < n && !status; i++) {
        bool more = i + 1 < n && e[i + 1].from == e[i].from && e[i + 1].output == e[i].output;
        if (more && e[i + 1].nbytes != e[i].nbytes)
            status = dt__comm_bad(DT_COMM_ERR_ARG,
                                  "%s: output %d of layer %d has edges of %lld and of %lld bytes; one tensor has one size, "
                                  "another tensor needs another .output", call, e[i].output, e[i].from,
                                  (long long)e[i].nbytes, (long long)e[i + 1].nbytes);
        if (more) continue; /* the last edge of a tensor goes furthest */
        step[e[i].from + 1] += e[i].nbytes;
        step[e[i].to + 1] -= e[i].nbytes;
    }
    for (int j = 1; j < d->n && !status; j++) {
        step[j] += step[j - 1];
        d->cross[j] = (double)step[j];
    }
    DT_COMM_FREE(e);
    DT_COMM_FREE(step);
    return status;
}
/* The stage that needs most is named; with interleaved the rank, which has several stages. */
static int dt__cuts_too_large(const dt__cuts *d, const dt_pipe_partition *p)
{
    const dt_pipe_partition_opts *o = d->o;
    char                          a[40], b[40], c[40], e[40], one[16], two[16];
    int                           i = 0;
    dt__cuts_sum                   u;
    memset(&u, 0, sizeof u);
    for (int k = 1; k < p->nstages; k++)
        if (p->stage[k].memory > p->stage[i].memory) i = k;
    const dt_pipe_stage *s = &p->stage[i];
    if (o->kind == DT_PIPE_INTERLEAVED)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_pipe_partition_new: the fastest partition does not fit into %s: rank %d needs %s for its %d "
                            "chunks, the first with layers %s to %s; take more ranks, smaller micro-batches, or DT_PIPE_1F1B",
                            dt__cuts_size((double)o->memory, a), i % o->ranks, dt__cuts_size((double)s->memory, b), o->chunks,
                            dt__cuts_name(o->layers, s->first, one), dt__cuts_name(o->layers, s->last, two));
    for (int l = s->first; l <= s->last; l++) dt__cuts_add(&u, &o->layers[l]);
    return dt__comm_bad(DT_COMM_ERR_ARG,
                        "dt_pipe_partition_new: no partition fits into %s: in the one with the smallest largest stage, stage "
                        "%d, layers %s to %s, needs %s: %s of parameters and their state, and %s for each of %d micro-batches; "
                        "take more ranks, or fewer or smaller micro-batches",
                        dt__cuts_size((double)o->memory, a), i, dt__cuts_name(o->layers, s->first, one),
                        dt__cuts_name(o->layers, s->last, two), dt__cuts_size((double)s->memory, b), dt__cuts_size(u.fixed, c),
                        dt__cuts_size(u.held, e), s->held);
}
static int dt__cuts_solve(dt__cuts *d, dt_pipe_partition *p)
{
    int status = dt__cuts_crossing(d), parts = 1;
    for (int j = 1; j < d->n; j++) parts += dt__cuts_may(d, j);
    if (status) return status;
    if (!d->o->replicate && parts < d->devices)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_pipe_partition_new: %d stages, but %d layers can be cut into %d parts at most; take fewer "
                            "ranks or chunks, or mark fewer layers with_next", d->devices, d->n, parts);
    double least = dt__cuts_all(d, DT__CUTS_TIME);
    if (!(least < INFINITY)) {
        dt__cuts_all(d, DT__CUTS_MEMORY);
        dt__cuts_read(d, p);
        return dt__cuts_too_large(d, p);
    }
    dt__cuts_read(d, p); /* stands if the sums of the second search are rounded differently */
    d->most = least * (1 + 1e-12);
    if (dt__cuts_all(d, DT__CUTS_BYTES) < INFINITY) dt__cuts_read(d, p);
    if (d->o->kind != DT_PIPE_INTERLEAVED) return 0;
    status = dt__cuts_interleaved(d, p);
    for (int i = 0; i < p->nstages && !status && d->o->memory > 0; i++)
        if (p->stage[i].memory > d->o->memory) return dt__cuts_too_large(d, p);
    return status;
}
DT_API dt_pipe_partition *dt_pipe_partition_new_with(dt_pipe_partition_opts o)
{
    dt__cuts            d;
    dt_pipe_partition *p = NULL;
    if (dt__cuts_options(&o)) return NULL;
    memset(&d, 0, sizeof d);
    d.o = &o;
    d.n = o.nlayers;
    d.devices = o.ranks * o.chunks;
    if (!o.replicate && d.devices > o.nlayers) {
        dt__comm_bad(DT_COMM_ERR_ARG,
                     "dt_pipe_partition_new: %d stages, but there are only %d layers; take fewer ranks or chunks", d.devices,
                     o.nlayers);
        return NULL;
    }
    size_t row = (size_t)d.n + 1, all = row * ((size_t)d.devices + 1);
    d.cross = (double *)dt__comm_zeroed(row, sizeof *d.cross);
    d.best = (double *)dt__comm_zeroed(all, sizeof *d.best);
    d.from = (int32_t *)dt__comm_zeroed(all, sizeof *d.from);
    d.with = (int32_t *)dt__comm_zeroed(all, sizeof *d.with);
    p = (dt_pipe_partition *)dt__comm_zeroed(1, sizeof *p);
    if (p) p->stage = (dt_pipe_stage *)dt__comm_zeroed((size_t)d.devices, sizeof *p->stage);
    int status = 0;
    if (!d.cross || !d.best || !d.from || !d.with || !p || !p->stage)
        status = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_pipe_partition_new: out of memory for %d layers and %d stages", d.n,
                              d.devices);
    else status = dt__cuts_solve(&d, p);
    DT_COMM_FREE(d.cross);
    DT_COMM_FREE(d.best);
    DT_COMM_FREE(d.from);
    DT_COMM_FREE(d.with);
    if (!status) return p;
    dt_pipe_partition_free(p);
    return NULL;
}
DT_API void dt_pipe_partition_free(dt_pipe_partition *p)
{
    if (!p) return;
    DT_COMM_FREE(p->stage);
    DT_COMM_FREE(p);
}
DT_API size_t dt_pipe_partition_text(const dt_pipe_partition *p, const dt_pipe_layer *layers, char *buf, size_t nbytes)
{
    dt__text_out o = { buf, nbytes, 0 };
    char         a[40], b[40], c[40], one[16], two[16], number[24];
    double       all = 0;
    if (nbytes) buf[0] = 0;
    dt__emitf(&o, "stage devices  work ms  with messages  share   parameters       memory  crosses the cut after it  layers\n");
    for (int i = 0; i < p->nstages; i++) all += p->stage[i].forward + p->stage[i].backward;
    for (int i = 0; i < p->nstages; i++) {
        const dt_pipe_stage *s = &p->stage[i];
        double               work = s->forward + s->backward;
        dt__emitf(&o, "%5d %7d %8s", i, s->replicas, dt__number(number, sizeof number, work * 1e3, 4));
        dt__emitf(&o, " %14s %5d%% %12s %12s %25s  ", dt__number(number, sizeof number, s->seconds * 1e3, 4),
                  all > 0 ? (int)(100 * work / all + 0.5) : 0, dt__cuts_size((double)s->params, a),
                  dt__cuts_size((double)s->memory, b), i + 1 < p->nstages ? dt__cuts_size((double)s->out, c) : "-");
        dt__emitf(&o, "%s to %s%s\n", dt__cuts_name(layers, s->first, one), dt__cuts_name(layers, s->last, two),
                  i == p->slowest ? "  <- slowest" : "");
    }
    return o.len;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_PLAN_IMPLEMENTATION */
