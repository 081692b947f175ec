/* dt_comm.h - v0.1.0 - ranks, transports and collectives that are proved, for any C program; no tensor in it */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_comm.h"
    In every other file that uses it:           #include "dt_comm.h"

    Link with -lpthread -lm. Nothing else of dt is needed. For data over MPI: mpicc -DDT_USE_MPI (>>joining).

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_comm.h"
    #include <stdio.h>

    static int rank_main(void *arg)
    {
        dt_comm *c = dt_comm_init();
        float    x = (float)(dt_comm_rank(c) + 1);
        dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
        if (dt_comm_rank(c) == 0) printf("%g\n", x);
        (void)arg;
        return dt_comm_free(c);
    }
    int main(void) { return dt_spawn(4, rank_main, NULL); }

WHAT IT DOES NOT DO

    No encryption and no checksum of every frame: joining is authenticated, the network is trusted after that. No RDMA.

CONTENTS

    >>status         what calls return
    >>joining        a world of ranks
    >>asking         who is where
    >>collectives    collective calls, sends and receives
    >>work           asynchronous calls
    >>memory         buffers that ranks of a machine share
    >>watching       counts, the last operations
    >>plans          who sends what to whom: algorithms as lists of steps
    >>simulating     a thousand ranks in one thread, in virtual time; what a plan takes on a cluster
    >>inside         what the other headers' implementations use of this one
    >>basis          implementation from here: errors, clock, memory
    >>sockets        addresses, deadlines, reading and writing
    >>handshake      the challenge on every socket
    >>rendezvous     from the environment to a table of ranks
    >>control        the tree of control connections: deaths, aborts, questions
    >>reducing       sums and the other reductions, by dtype
    >>planning       the algorithms
    >>choosing       costs, and which algorithm is taken
    >>drawing        a plan as a picture
    >>shared         ranks of one machine: shared memory and threads
    >>tcp            streams between machines
    >>mpi            Open MPI
    >>engine         running plans, work in order, waiting
    >>api            the calls
    >>simulator      the engine in virtual time
    >>predicting     plans on a described cluster, without data

ERRORS

    No call aborts, exits or prints. A call returns 0 or a negative dt_comm_status; dt_comm_error(c) is the message,
    which names ranks, calls and the remedy. The first failure of a communicator is the failure of all its ranks: each
    gets the same status and message within a second, and every later call on it returns it at once. It can still be
    freed.

THREADS

    A communicator is used by one thread at a time; collectives are matched by the order of their start, which must be
    the same on all ranks. Different communicators may be used by different threads.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_COMM_IMPLEMENTATION)
#define DT_COMM_IMPLEMENTATION
#endif
#if defined(DT_COMM_IMPLEMENTATION) && !defined(DT__WANT_INSIDE)
#define DT__WANT_INSIDE
#endif
#include "dt_base.h"

#ifndef DT_COMM_H_INCLUDED
#define DT_COMM_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 1 || DT_VERSION_PATCH != 0
#error "dt_comm.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>status */
typedef enum dt_comm_status {
    DT_COMM_OK           = 0,
    DT_COMM_ERR_ARG      = -1, /* a wrong argument on this rank */
    DT_COMM_ERR_PEER     = -2, /* a rank died or left */
    DT_COMM_ERR_TIMEOUT  = -3, /* no progress for too long: the message names who did not come */
    DT_COMM_ERR_MISMATCH = -4, /* ranks called different things: the message shows both */
    DT_COMM_ERR_NET      = -5, /* a socket or file descriptor failed */
    DT_COMM_ERR_JOIN     = -6, /* the world did not come together */
    DT_COMM_ERR_MEMORY   = -7,
    DT_COMM_ERR_STATE    = -8, /* a call at the wrong time */
    DT_COMM_ERR_ABORT    = -9  /* dt_comm_abort was called */
} dt_comm_status;

typedef struct dt_comm dt_comm;
typedef struct dt_work dt_work;

/* The message of a communicator's failure, or of this thread's last failed call without one (dt_comm_init); NULL:
   none. */
DT_API const char *dt_comm_error(const dt_comm *c);
DT_API int         dt_comm_status_of(const dt_comm *c);  /* 0, or how it failed; NULL: as dt_comm_error */
DT_API int         dt_comm_failed_rank(const dt_comm *c); /* the rank at fault, or -1 */

/* ---------------------------------------------------------------------------------------------------- >>joining
   The world is read from, in this order: options; RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
   MASTER_PORT (PyTorch's env://; under torchrun, whose agent holds MASTER_PORT: DT_PORT or the port behind it);
   OMPI_COMM_WORLD_*; PMI and PMIX; SLURM_* (on several machines rank 0 is on the first of SLURM_STEP_NODELIST, unless
   MASTER_ADDR says where); none: a world of one. dt_comm_where tells which.

   Rank 0 listens at the master's address. Every connection, also later ones, begins with a mutual HMAC-SHA-256
   challenge over the job's token: .token_fd or DT_TOKEN_FD (inherited from the launcher), DT_TOKEN_FILE (mode 0600),
   under MPI a broadcast. Ranks of one machine without a token use one that only this user can read. Several machines
   without a token are refused unless .insecure or DT_INSECURE=1.

   MPI: in a program compiled with DT_USE_MPI (mpicc -DDT_USE_MPI) .transport = "mpi" or DT_COMM_TRANSPORT=mpi moves the
   data by MPI's messages. Rank, world, token and the address of rank 0 come by MPI: no variable is needed, and all
   ranks of the MPI job join. .algo = "native" or DT_COMM_ALGO=native takes MPI's own collectives (alltoall has none),
   each behind a small reduction by which the ranks see that they call the same. MPI is started if the program has not
   done so, and then ended by the last dt_comm_free; as it starts once in a process, a program that joins twice starts
   and ends it itself. What holds when a rank dies: Open MPI 4.1 ends the job, all ranks within 10 s; mpirun names the
   rank, or the error of survivors who were faster than mpirun. Under mpirun --enable-recovery the survivors get the
   error as with the other transports, and leave without MPI_Finalize. After a failure MPI may still write to the
   buffers of calls that had not ended: do not free them.

   GPUs: with .backend = DT_NCCL (dt_nccl.h, compiled with DT_USE_NCCL) buffers may be memory of a GPU, which NCCL moves;
   those of the host go as ever, in the same communicator. A call on a GPU's memory comes behind what its thread has
   queued on that GPU, and what the thread queues after it, or after dt_work_wait, comes behind the call: the host waits
   until all ranks have called it, not until it is done. So ranks that call different things, or do not come, get the
   same errors as ever, and NCCL never sees them. There are allreduce, broadcast, reduce, reduce_scatter, allgather, send
   and recv. A rank that dies, or a GPU that does not get on for the timeout, ends it on all ranks. The GPU is that of
   the first buffer. .algo = "two_level" on several machines: NCCL inside each, the network of dt_comm.h across.

   A launcher may hand over DT_LISTEN_FD, the socket of .listen_fd, to rank 0, and DT_REPORT_FD, a datagram socket, to
   every rank: when a communicator of the job fails, each rank sends which rank is at fault (tools/dtrun.c does both). */
enum { DT_NCCL = 1 }; /* .backend */
typedef struct dt_comm_opts {
    int         dt__first DT_D;
    int         rank DT_D, world DT_D;  /* world 0: the environment */
    int         local_rank DT_D, local_world DT_D;
    const char *addr DT_D;         /* of rank 0: name or address, IPv4 or IPv6 */
    int         port DT_D;
    int         listen_fd DT_D;    /* rank 0: bound and listening already; 0: none */
    int         token_fd DT_D;     /* 32 bytes are read from it; 0: none */
    const char *token_file DT_D;
    bool        insecure DT_D;
    const char *bind       DT_D; /* address to listen at; default: loopback if all are here, else the one that routes */
    const char *transport DT_D;    /* "auto": shared memory inside a machine, TCP across; "shm", "tcp", "mpi" */
    int         backend DT_D;      /* DT_NCCL: memory of GPUs, too */
    double      timeout DT_D;      /* seconds without progress; default 30 (DT_COMM_TIMEOUT) */
    double      join_timeout DT_D; /* default 120 */
    int64_t     epoch DT_D;        /* restarts so far: ranks of another one are refused (DT_RESTART) */
    bool        no_thread DT_D;    /* asynchronous work moves in test and wait only */
    int         streams DT_D;      /* TCP connections for each pair, the same on all ranks; default 1 */
    double      bandwidth DT_D, latency DT_D; /* TCP: keep to this (bytes/s, seconds), to try slow networks */
    const char *algo DT_D;         /* for all: "ring" ...; default DT_COMM_ALGO, else by cost */
    bool        ordered DT_D;      /* reductions by DT_ALGO_ORDERED, whatever algo says (DT_COMM_ORDERED=1) */
    const char *costs DT_D;        /* a table's file, which rank 0 reads for all; default DT_COMM_COSTS, else fixed */
} dt_comm_opts;
DT_API dt_comm *dt_comm_init_with(dt_comm_opts o DT_OPT0(dt_comm_opts)); /* NULL: dt_comm_error(NULL) tells */
#ifdef DT__LIT
#define dt_comm_init(...) dt_comm_init_with(DT__LIT(dt_comm_opts){ .dt__first = 0, __VA_ARGS__ })
#endif
/* Waits for the others to be done with it, at most the timeout; returns the communicator's status. */
DT_API int      dt_comm_free(dt_comm *c);
/* n ranks that are threads of this process; each thread then uses its own. */
DT_API int      dt_comm_threads_with(int n, dt_comm **out, dt_comm_opts o DT_OPT0(dt_comm_opts));
#ifdef DT__LIT
#define dt_comm_threads(n, out, ...) dt_comm_threads_with(n, out, DT__LIT(dt_comm_opts){ .dt__first = 0, __VA_ARGS__ })
#endif
/* Forks n ranks that run fn; dt_comm_init in them finds the world. Returns the first exit status that is not 0; when
   one rank dies the others get 10 s, then they are ended. A rank ends by quick_exit. Call it while the program has one
   thread. */
DT_API int      dt_spawn(int n, int (*fn)(void *arg), void *arg);
/* The same on each of several machines, node = 0 ...: n ranks here, of nodes * n. MASTER_ADDR and MASTER_PORT say where
   rank 0 is, DT_TOKEN_FILE (or DT_INSECURE=1) goes for all. */
DT_API int      dt_spawn_nodes(int nodes, int node, int n, int (*fn)(void *arg), void *arg);
/* Collective: ranks of one colour make a communicator, in the order of key, then rank. Colour negative: none (*out
   NULL). */
DT_API int      dt_comm_split(dt_comm *c, int colour, int key, dt_comm **out);
DT_API int      dt_comm_dup(dt_comm *c, dt_comm **out);
DT_API void     dt_comm_abort(dt_comm *c, const char *why); /* every rank gets it */
/* After a failure: the ranks that live, and call this within c's timeout, agree on who they are and get a communicator
   of them, in the order of their ranks; c can be freed before or after. All of them get the same members, or an error
   (dt_comm_error(NULL) tells). A rank that dies meanwhile is left out, too. One that is stopped, or does not answer, is
   given up by the world: when it goes on, all its calls are errors. One that only comes too late gets an error here.
   Takes milliseconds after deaths, and at most a few times the timeout. Half of the ranks or more out of reach (their
   machines do not answer; nobody knows that they died): an error, since they may think the same of this half. Not over
   MPI, which ends the job. */
DT_API int      dt_comm_shrink(dt_comm *c, dt_comm **out);

/* ---------------------------------------------------------------------------------------------------- >>asking */
DT_API int         dt_comm_rank(const dt_comm *c); /* 0 for NULL */
DT_API int         dt_comm_size(const dt_comm *c); /* 1 for NULL */
DT_API int         dt_comm_local_rank(const dt_comm *c);
DT_API int         dt_comm_local_size(const dt_comm *c);
DT_API int         dt_comm_host(const dt_comm *c, int rank); /* the number of its machine, from 0 */
DT_API const char *dt_comm_host_name(const dt_comm *c, int rank);
/* What it was made with; strings in it are the caller's of that time. All zero for NULL. */
DT_API const dt_comm_opts *dt_comm_options(const dt_comm *c);
DT_API const char *dt_comm_where(const dt_comm *c); /* "RANK and WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "options", ... */

/* ---------------------------------------------------------------------------------------------------- >>collectives */
typedef enum dt_comm_dtype { /* the first six are dt.h's dt_dtype */
    DT_COMM_F32 = 0, DT_COMM_F16, DT_COMM_BF16, DT_COMM_I32, DT_COMM_I64, DT_COMM_U8, DT_COMM_F64, DT_COMM_DTYPES
} dt_comm_dtype;
typedef enum dt_comm_op {
    DT_COMM_SUM = 0, DT_COMM_MEAN, DT_COMM_MIN, DT_COMM_MAX, DT_COMM_PROD, DT_COMM_OR, DT_COMM_OPS
} dt_comm_op;
/* In place, on n elements: every rank ends with the same bits. f16 and bf16 are added in f32. */
DT_API int dt_comm_allreduce(dt_comm *c, void *buf, int64_t n, int dtype, int op);
DT_API int dt_comm_broadcast(dt_comm *c, void *buf, int64_t n, int dtype, int root);
/* At the root; buf of the others stays as it is. */
DT_API int dt_comm_reduce(dt_comm *c, void *buf, int64_t n, int dtype, int op, int root);
/* counts: elements of each rank; NULL: n each. in: all segments, one behind the other; out: this rank's. */
DT_API int dt_comm_reduce_scatter(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype,
                                  int op);
/* in NULL: this rank's segment is in its place in out already */
DT_API int dt_comm_allgather(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype);
DT_API int dt_comm_gather(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype, int root);
DT_API int dt_comm_scatter(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype,
                           int root);
/* sends[r] elements to rank r, recvs[r] from it; NULL, NULL: n each */
DT_API int dt_comm_alltoall(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *sends,
                            const int64_t *recvs, int dtype);
DT_API int dt_comm_barrier(dt_comm *c);
DT_API int dt_comm_send(dt_comm *c, const void *buf, int64_t n, int dtype, int to);
DT_API int dt_comm_recv(dt_comm *c, void *buf, int64_t n, int dtype, int from);

/* ---------------------------------------------------------------------------------------------------- >>work
   The same, started and not waited for. buf must stay until the work is done. Every work is waited for once, which
   frees it; that may be after its communicator was freed, which ends all its work. NULL: an error, which
   dt_comm_error tells. */
DT_API dt_work *dt_comm_allreduce_start(dt_comm *c, void *buf, int64_t n, int dtype, int op);
DT_API dt_work *dt_comm_broadcast_start(dt_comm *c, void *buf, int64_t n, int dtype, int root);
DT_API dt_work *dt_comm_reduce_scatter_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                             int dtype, int op);
DT_API dt_work *dt_comm_allgather_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                        int dtype);
DT_API dt_work *dt_comm_send_start(dt_comm *c, const void *buf, int64_t n, int dtype, int to);
DT_API dt_work *dt_comm_recv_start(dt_comm *c, void *buf, int64_t n, int dtype, int from);
DT_API bool     dt_work_test(dt_work *w);  /* done, or failed */
/* Waits until it is done, and tells when it began and ended, in nanoseconds of CLOCK_MONOTONIC. It must still be waited
   for. Its status. */
DT_API int      dt_work_times(dt_work *w, int64_t *began, int64_t *ended);
DT_API int      dt_work_wait(dt_work *w);  /* its status; w is gone; on a GPU: what is queued next comes behind it */
/* Index of one that is done (on a GPU: queued), not yet waited for; -1: all are NULL. */
DT_API int      dt_work_wait_any(dt_work **w, int n);

/* ---------------------------------------------------------------------------------------------------- >>memory
   Memory that the ranks of a machine see: reduced in place, without copies. 64-byte aligned. Not collective. */
DT_API void *dt_comm_alloc(dt_comm *c, size_t nbytes); /* NULL: out of memory */
DT_API void  dt_comm_dealloc(dt_comm *c, void *ptr);

/* ---------------------------------------------------------------------------------------------------- >>watching */
typedef struct dt_comm_stats {
    int64_t calls, bytes;      /* collectives done; bytes this rank sent, over any transport */
    int64_t bytes_net;         /* of them through sockets */
    double  busy;              /* seconds in collectives */
} dt_comm_stats;
DT_API dt_comm_stats dt_comm_get_stats(const dt_comm *c);
/* The last 64 operations, a line each; like snprintf. When a communicator fails they go to the log (level 2), each
   behind "history: ". */
DT_API size_t dt_comm_history(const dt_comm *c, char *buf, size_t nbytes);
/* Whom this rank waited for in collectives: a rank came last if it began later than all others known, and more than
   1 ms after this one. It costs nothing: messages say how long their sender has been at it, and whom it knows to be
   late. Only durations are compared, so the clocks of machines do not matter. Out: n of them, who was waited for
   longest first; returns how many there are. */
typedef struct dt_comm_straggler {
    int     rank;
    int64_t last;              /* operations it came last to */
    double  waited, longest;   /* seconds this rank waited for it: in all, in one operation */
} dt_comm_straggler;
DT_API int    dt_comm_get_stragglers(const dt_comm *c, dt_comm_straggler *out, int n);
DT_API size_t dt_comm_stragglers(const dt_comm *c, char *buf, size_t nbytes); /* as text, a line each; like snprintf */
/* What links the ranks, the table of costs in use (rank 0's, on all ranks), and the algorithm of each collective from
   so many bytes on, as text; like snprintf. */
DT_API size_t dt_comm_explain(const dt_comm *c, char *buf, size_t nbytes);
/* Collective: measures the links that the communicator has, and reducing, and rank 0 writes a table to path (others may
   pass NULL); of other links it takes what the table in use says. Nothing changes until a communicator is made with
   this file as .costs. Takes a second or two, on ranks that do nothing else. 0, or negative and dt_comm_error(NULL). */
DT_API int    dt_comm_tune(dt_comm *c, const char *path);

/* ---------------------------------------------------------------------------------------------------- >>plans
   An algorithm is a pure function from (collective, rank, world, counts, topology) to a list of steps. A transport runs
   the steps; a checker proves them; a simulator says what they cost. Nothing else knows an algorithm.

   A rank works in two buffers: DT_PLAN_DATA, the vector of the collective, and DT_PLAN_SCRATCH, of plan.scratch
   elements. Steps are ordered by round. All steps of a round may run at the same time; a rank begins a round when its
   own steps of the round before are done. Within a round no step writes what another one reads or writes. Sends need no
   buffering: a send and its receive meet in matching order between each pair of ranks, and any pairing of rounds that
   waits only for that ends. Rounds have the same numbers on all ranks, for pictures and costs; a rank may have no step
   in one. No step is of no elements, except in a barrier, and in a round of SHARE: there all ranks of the machine meet,
   so each has one step. Operations are taken to be commutative; all ranks get the same bits.

   The vector: allreduce, broadcast, reduce: count elements. The others: the segments of all ranks one behind the other,
   counts[r] elements of rank r, on every rank; alltoall has world segments of what goes to each rank, and after it of
   what came from each (DATA has as many elements as the larger of both). Before the plan runs a rank's own contribution
   is in place (allgather, gather: its segment; scatter, broadcast: all of it at the root). Afterwards the result is:
   allreduce, broadcast, allgather, and reduce and gather at the root: all of DATA; reduce_scatter, scatter: its own
   segment. reduce leaves DATA of other ranks as it was, gather their own segment; other parts of DATA may change. */
typedef enum dt_coll {
    DT_COLL_BARRIER = 0, DT_COLL_ALLREDUCE, DT_COLL_REDUCE_SCATTER, DT_COLL_ALLGATHER, DT_COLL_BROADCAST,
    DT_COLL_REDUCE, DT_COLL_GATHER, DT_COLL_SCATTER, DT_COLL_ALLTOALL, DT_COLL_SEND, DT_COLL_RECV, DT_COLL_COUNT
} dt_coll;
typedef enum dt_algo {
    DT_ALGO_AUTO = 0,
    DT_ALGO_DIRECT,    /* one rank has all of it: gather to it, send from it */
    DT_ALGO_ALLTOALL,  /* every rank sends to every other: tiny messages */
    DT_ALGO_TREE,      /* binomial */
    DT_ALGO_RING,      /* with segments */
    DT_ALGO_DOUBLING,  /* recursive doubling */
    DT_ALGO_HALVING,   /* recursive halving, then doubling (Rabenseifner), with the fold for other than powers of two */
    DT_ALGO_BLOCKS,    /* binary blocks */
    DT_ALGO_TWO_LEVEL, /* inside each machine, across machines by shards, inside again */
    DT_ALGO_LEADER,    /* the same through one rank of each machine */
    DT_ALGO_SHARED,    /* in memory that all ranks see: each reduces its part of all vectors */
    DT_ALGO_BRUCK,     /* allgather, alltoall */
    DT_ALGO_CHAIN,     /* broadcast: a pipeline of segments */
    DT_ALGO_SCATTER,   /* broadcast: scatter, then allgather */
    DT_ALGO_PAIRS,     /* alltoall: one partner a round */
    DT_ALGO_NATIVE,    /* what the transport itself has (MPI, NCCL) */
    /* Reductions, only if asked for: one tree over the ranks for every element. The bits depend on the number of ranks
       alone, not on collective, count, transport or machines. It sends what a ring sends, in two rounds (and one of
       lg p that reduces), and needs a scratch of the vector's size. Beside auto, 2 and 4 ranks on 2 cores: 0.9 to 1.7
       times the time from 256 KiB on, 1.1 to 4 times below. */
    DT_ALGO_ORDERED,
    DT_ALGO_COUNT
} dt_algo;
enum { DT_PLAN_DATA = 0, DT_PLAN_SCRATCH = 1 };
typedef enum dt_step_kind {
    DT_STEP_SEND = 1,  /* buf[at..at+n) to peer */
    DT_STEP_RECV,      /* from peer to buf[at..) */
    DT_STEP_FOLD,      /* from peer, reduced into buf[at..); left: what comes is the left operand */
    DT_STEP_COPY,      /* buf[at..) := from_buf[from..), in a round without sends and receives */
    DT_STEP_REDUCE,    /* buf[at..) := buf op from_buf[from..), or with left from_buf op buf; such a round too */
    DT_STEP_SHARE      /* buf[at..) of all ranks of this machine: reduced in the order of ranks, written to all */
} dt_step_kind;
typedef struct dt_plan_step {
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
    int64_t       scratch; /* elements */
    int64_t       count;   /* of DATA */
} dt_plan;
typedef struct dt_plan_opts {
    int            rank, world;
    int64_t        count;   /* allreduce, broadcast, reduce; or the equal part of each rank */
    const int64_t *counts;  /* segments that differ; NULL: count each. alltoall: world x world, row s: what s sends */
    int            root;
    int64_t        segment; /* elements of a piece in pipelines; 0: whole */
    const int     *host;    /* the machine of each rank; NULL: one machine */
} dt_plan_opts;
/* 0, or a negative number and *why (a static text): -1: the algorithm cannot do this, -2: memory is out. p may be
   zeroed or used before; dt_plan_free frees. Alltoall by bruck needs equal counts, which dt_plan_can does not see. */
DT_API int  dt_plan_make(dt_plan *p, dt_coll coll, dt_algo algo, const dt_plan_opts *o, const char **why);
DT_API void dt_plan_free(dt_plan *p);
DT_API bool dt_plan_can(dt_coll coll, dt_algo algo, int world, const int *host); /* does it exist? */
DT_API const char *dt_coll_name(dt_coll c); /* "allreduce" ... */
DT_API const char *dt_algo_name(dt_algo a); /* "ring" ...: what DT_COMM_ALGO takes */
DT_API dt_algo     dt_algo_of(const char *name); /* DT_ALGO_COUNT: none */
/* SHARE steps as sends and receives, for transports without shared memory. */
DT_API int  dt_plan_lower(dt_plan *p, const int *host);

/* What a plan costs: seconds = alpha a message + beta a byte sent on a link + gamma a byte reduced or copied, by link
   class. On several machines link is the class between them: all ranks of a machine share its beta, and meet each
   other in shared memory (as threads if link says so). */
enum { DT_LINK_THREAD = 0, DT_LINK_SHM, DT_LINK_LOOP, DT_LINK_NET, DT_LINK_COUNT };
typedef struct dt_costs {
    double alpha[DT_LINK_COUNT], beta[DT_LINK_COUNT], gamma;
} dt_costs;
DT_API dt_costs dt_costs_default(void); /* the fixed table */
/* A table as a text file: a first line "dt costs 1"; for each of thread, shm, loopback and network a line with its
   name, picoseconds a message and femtoseconds a byte; a line "reducing" with femtoseconds a byte; a last line "end".
   Whole numbers, up to 10 s and 1 us; what follows a # is a remark. A file that is not so is refused:
   dt_comm_error(NULL) names line, what is there and what was expected. 0, or negative. */
DT_API int      dt_costs_load(dt_costs *t, const char *path);
DT_API int      dt_costs_save(const dt_costs *t, const char *path); /* whole or not at all */
/* The algorithm that the table says is fastest; the same on every rank and in every run. nbytes: of the vector. Among
   equals the first in dt_algo. *segment_bytes: 0, or what a chain takes. DT_ALGO_COUNT (cost: negative): none, or
   memory is out. */
DT_API dt_algo  dt_plan_choose(const dt_costs *t, dt_coll coll, int world, const int *host, int link, int64_t nbytes,
                               int64_t *segment_bytes);
DT_API double   dt_plan_cost(const dt_costs *t, dt_coll coll, dt_algo algo, int world, const int *host, int link,
                             int64_t nbytes, int64_t segment_bytes);
/* The table and the sizes at which the choice changes, as text; like snprintf. */
DT_API size_t   dt_plan_explain(const dt_costs *t, int world, const int *host, int link, char *buf, size_t nbytes);
/* A picture: ranks down (1024 at most), rounds across, an arrow for each message. 0, or negative: there is no such
   plan (-1), memory is out (-2), the file cannot be written (-3). */
DT_API int      dt_schedule_svg(const char *path, dt_coll coll, dt_algo algo, const dt_plan_opts *o);

/* ---------------------------------------------------------------------------------------------------- >>simulating
   Ranks in virtual time, in the thread that runs them: the engine, the checks of every frame and the control tree are
   the ones that run on sockets, with real values; the simulator carries their messages. A message takes a random time,
   so messages of different links pass each other; on a link they stay in order. Ranks can be stopped for a while and
   killed. One seed is one run, event for event. Times are in seconds of the simulator, from 0 on.

   Calls on a rank's communicator are those of >>collectives and >>work. Nothing moves until dt_sim_run, or until
   somebody waits: dt_work_wait runs the simulator. So start a call on every rank, then wait for each. */
typedef struct dt_sim dt_sim;
typedef struct dt_sim_opts {
    int         dt__first DT_D;
    int         world DT_D;   /* 1..4096 */
    const int  *host DT_D;    /* the machine of each rank; NULL: one */
    uint64_t    seed DT_D;
    double      timeout DT_D; /* of the communicators; default 30 */
    double      delay DT_D;   /* the longest time of a message; default 1e-3 */
    int         window DT_D;  /* messages that wait on a link before a send does; negative: none; 0: drawn */
    const char *algo DT_D;    /* as in dt_comm_opts; default: by cost */
} dt_sim_opts;
DT_API dt_sim  *dt_sim_new_with(dt_sim_opts o DT_OPT0(dt_sim_opts)); /* NULL: dt_comm_error(NULL) tells */
#ifdef DT__LIT
#define dt_sim_new(...) dt_sim_new_with(DT__LIT(dt_sim_opts){ .dt__first = 0, __VA_ARGS__ })
#endif
DT_API void     dt_sim_free(dt_sim *s); /* every work was waited for */
DT_API dt_comm *dt_sim_comm(dt_sim *s, int rank); /* the simulator's: it is not freed and cannot be split */
/* fn runs at that time on that rank, if it lives (later if it is stopped then): it starts calls. It must not wait. */
DT_API int      dt_sim_at(dt_sim *s, int rank, double when, void (*fn)(dt_comm *c, void *user), void *user);
DT_API int      dt_sim_pause(dt_sim *s, int rank, double when, double seconds); /* stopped: it does and says nothing */
DT_API int      dt_sim_kill(dt_sim *s, int rank, double when); /* its own works end with DT_COMM_ERR_PEER */
/* Until all calls have ended and all have heard of it, at most until that time. How many ranks are in a call still;
   negative: memory is out. */
DT_API int      dt_sim_run(dt_sim *s, double until);
DT_API double   dt_sim_now(const dt_sim *s);
DT_API uint64_t dt_sim_hash(const dt_sim *s, int64_t *events); /* of all events so far, and their number */

/* What a plan takes on a cluster, event by event, without data. A message begins when both sides are in its round and
   the sender's last one is over; it takes alpha and a time for each byte, at the pace of the slowest thing on its way:
   the link class of its ranks, the cards of the two machines, the switches. A card or switch is through with a message
   when it is through with all bytes that came to it before. A rank reduces beside sending and receiving. */
typedef struct dt_cluster {
    dt_costs   costs;       /* all 0: dt_costs_default() */
    int        near, far;   /* link class inside a machine and between machines; both 0: DT_LINK_SHM and DT_LINK_NET */
    double     nic;         /* seconds a byte, each way, of a machine's card, which its ranks share; 0: beta of far;
                               negative: each rank has its own */
    double     fabric;      /* seconds a byte through a switch, all its traffic together; 0: as much as comes */
    double     trunk;       /* seconds a byte, each way, from a switch to the others; 0: as much as comes */
    const int *switch_of;   /* of each machine, by its number in opts.host; NULL: one switch */
    int        element;     /* bytes of an element; 0: 4 */
} dt_cluster;
typedef struct dt_sim_cost {
    double  seconds;
    int64_t messages, bytes;   /* of all ranks */
    int64_t bytes_nic;         /* that left the machine that sent most */
    int64_t bytes_switch;      /* through the switch that had most */
    dt_algo algo;              /* the one taken, if auto was asked for */
} dt_sim_cost;
/* opts as for dt_plan_make, without rank. 0, or negative and *why as there. */
DT_API int      dt_sim_predict(dt_sim_cost *out, dt_coll coll, dt_algo algo, const dt_plan_opts *o,
                               const dt_cluster *k, const char **why);

#ifdef __cplusplus
}
#endif
#endif /* DT_COMM_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__COMM_INSIDE)
#define DT__COMM_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   What the implementation of dt_nccl.h uses of this one. */
#include <stdlib.h>
#ifndef DT_COMM_MALLOC
#define DT_COMM_MALLOC(nbytes) malloc(nbytes)
#define DT_COMM_REALLOC(ptr, nbytes) realloc(ptr, nbytes)
#define DT_COMM_FREE(ptr) free(ptr)
#endif

#ifdef __cplusplus
extern "C" {
#endif
typedef struct dt__world     dt__world;
typedef struct dt__transport dt__transport;

/* Memory that the host cannot touch is moved by a plane, if .backend names one. A work on it begins with a meeting of
   its ranks on the host, an exchange of cards: its frames are the work's, so they are compared as ever. Then the plane
   queues the work on the device, and with that it is done for the engine. */
enum { DT__CARD = 256 };
typedef struct dt__job {         /* a work on a device; more of it is the plane's */
    char card[DT__CARD];         /* collectives: the bits of all ranks, joined by or; messages: the sender's */
} dt__job;
typedef struct dt__call {
    const char    *name;
    dt_coll        coll;
    const void    *in;
    void          *out;
    int64_t        n;
    const int64_t *counts;
    int            dtype, op, root;
} dt__call;
typedef struct dt__plane {
    /* 1: memory of a device; 0: of the host */
    int (*owns)(dt_comm *c, const void *ptr);
    /* The caller's thread: the job comes behind what it has queued. root: of a message the peer. NULL after failing. */
    dt__job *(*begin)(dt_comm *c, const dt__call *a);
    /* The ranks have met. 1: it is queued; 0: call again; 2: the same, it minds the time itself; negative: failed. */
    int (*poll)(dt_comm *c, dt__job *j);
    bool (*test)(dt__job *j);    /* it was queued: is it done? */
    /* The caller's thread: what it queues next comes behind the job, if that has status 0. The job is gone. */
    int (*wait)(dt__job *j, int status);
    int (*alone)(dt_comm *c, const dt__call *a); /* a world of one */
    void (*close)(dt_comm *c);   /* at most about the timeout */
} dt__plane;

enum { DT__HISTORY = 64, DT__LATE = 1000000 }; /* operations remembered; ns that a rank may come after others */
struct dt_comm {
    dt__world  *world;           /* NULL: threads of one process, or alone */
    dt_comm    *next;
    uint64_t    id;
    int         rank, size;
    int        *member;          /* ranks in the world */
    int        *host;            /* machine of each rank, from 0 in the order of ranks */
    int         local_rank, local_size;
    double      timeout;
    const dt__transport *inside, *across; /* of this machine; of others */
    void       *shared, *tcp, *mpi;       /* what they keep */
    const dt__plane *plane;      /* of devices; NULL: none */
    void       *devices;         /* what it keeps */
    int         streams;
    bool        no_thread;
    bool        threads;         /* ranks are threads of this process */
    bool        ordered;         /* DT_ALGO_ORDERED for all that reduces */
    dt_comm_opts opts;
    uint64_t    splits;
    int32_t     round;           /* agreements so far: dt_comm_shrink */
    uint8_t    *alive;           /* of the last one: a bit for each rank of the world; NULL: none yet */
    double      bandwidth, latency;
    /* failing: the first one wins; text and rank are written before status */
    int32_t     status;          /* atomic */
    int32_t     failing;         /* atomic: somebody writes text */
    int         failed_rank;
    char        text[768];
    /* what this rank is doing, for others who ask: atomic */
    uint64_t    seq;             /* operations started */
    uint64_t    done;            /* operations finished */
    uint32_t    doing;           /* dt_coll + 1 of the running one; 0: in the program */
    int64_t     since;           /* ns */
    uint64_t    watched;         /* atomic: a rank waits in the operation before this one (>>control, dt__watch_take) */
    struct dt__note *note;       /* the last operations begun: in this rank's seat of the shared memory, or its own */
    struct dt__note *own_note;
    /* the collective under way: who came last */
    bool        slow;            /* this rank waits */
    int         late_rank;
    int64_t     began, late;     /* ns; late: after this rank */
    int         wake_fd;         /* eventfd: the engine sleeps in wait() on it; written when it must look again */
    struct dt__engine *engine;
};
static const char *const dt__comm_dtypes[] __attribute__((unused)) = { "f32", "f16", "bf16", "i32", "i64", "u8", "f64" };

DT__INSIDE void   *dt__comm_zeroed(size_t count, size_t nbytes); /* from DT_COMM_MALLOC */
DT__INSIDE int64_t dt__comm_now(void);                           /* ns */
DT__INSIDE int     dt__comm_bad(int status, const char *format, ...) DT__PRINTF(2, 3);
DT__INSIDE bool    dt__comm_ok(const dt_comm *c);
/* Fails on this rank, and tells all the others; returns the status. */
DT__INSIDE int     dt__comm_fail(dt_comm *c, int status, int rank, const char *format, ...) DT__PRINTF(4, 5);
DT__INSIDE void    dt__comm_drop(dt_comm *c); /* frees it, and waits for nobody */
DT__INSIDE size_t  dt__comm_size_of(int dtype);
DT__INSIDE void    dt__reduce_scale(int dtype, void *buf, int64_t n, int world);
DT__INSIDE int     dt__comm_algo(const dt_comm *c);               /* the algorithm asked for, or DT_ALGO_AUTO */
DT__INSIDE void    dt__comm_busy(dt_comm *c, double seconds);     /* adds to the time spent in collectives */
DT__INSIDE bool    dt__work_finished(const dt_work *w);           /* the engine is done with it */

/* The plane of .backend = DT_NCCL. dt_nccl.h sets it before main begins; NULL: it is not in the program. */
#ifdef DT_STATIC
static const dt__plane *dt__plane_nccl __attribute__((unused));
#else
extern __attribute__((visibility("hidden"))) const dt__plane *dt__plane_nccl;
#endif
#ifdef __cplusplus
}
#endif
#endif /* DT__COMM_INSIDE */

#if defined(DT_COMM_IMPLEMENTATION) && !defined(DT__COMM_IMPLEMENTED)
#define DT__COMM_IMPLEMENTED

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dt_comm.h: frames are memory as it lies; big-endian machines are not supported"
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(COMM);
DT__NEEDS(COMM, BASE);

/* ==================================================================================================== >>basis
   A world is this process's membership in a job: the table of ranks and the control connections. Communicators of it
   share it. A communicator has links of its own to each rank it talks to, so that order on a link is order of work. */
typedef struct dt__member { /* a rank of the world, as all know it after joining */
    int32_t  host, local;   /* the number of its machine; its rank there */
    int64_t  pid;
    uint8_t  host_id[16];   /* boot id and network namespace: equal means one machine */
    char     host_name[64];
    char     unix_name[32]; /* of its abstract Unix socket, without the leading NUL */
    uint8_t  addr[28];      /* sockaddr_in or sockaddr_in6 of its TCP listener */
    uint32_t addr_len;
} dt__member;
typedef struct dt__control dt__control;
struct dt__world {
    int32_t      refs;
    int          rank, size, nhosts, local_rank, local_size;
    int64_t      epoch;          /* of restarts */
    uint8_t      token[32];
    uint8_t      job[16];        /* drawn by rank 0: tells runs apart */
    dt__member  *member;
    double       timeout, join_timeout;
    char         where[64];
    int          listen_fd, unix_fd;
    int          report_fd;      /* the launcher's; 0: none */
    dt__control *control;
    dt_sim      *sim;            /* carries its messages; NULL: sockets do */
    const int64_t *clock;        /* the simulator's; NULL: the machine's */
    pthread_mutex_t lock;        /* guards comms and what arrived */
    dt_comm     *comms;          /* a list, through comm->next: dt__world_add, dt__world_remove */
    /* of the join and the control thread */
    int          ticket_fd, register_fd;
    int64_t      join_deadline;
    bool         joined;
    bool         mpi;            /* it came together by MPI, which moves its data */
    int          streams;        /* of each pair: checked while joining */
    bool         has_costs;      /* rank 0 has read a table, which all get */
    dt_costs     costs;
    char         costs_bad[400]; /* rank 0: why not; told to all */
};

/* What every message carries. Everything but rank, sent and late must be equal on both sides. */
typedef struct dt__frame {
    uint32_t magic, version;
    uint64_t comm;               /* id of the communicator */
    int64_t  epoch;
    uint64_t seq;                /* of the operation in its communicator */
    int64_t  count;
    uint64_t nbytes;             /* of this message */
    uint64_t sent;               /* ns: how long its sender had been at it; in notes and posts: when it began */
    int64_t  late;               /* ns: so much after the sender began late_rank (-1: none), as far as it knows */
    uint32_t step;               /* of the plan: its round */
    int32_t  rank;               /* the sender's, in the communicator */
    int32_t  root;
    int32_t  late_rank, zero;
    uint8_t  coll, algo, dtype, op;
} dt__frame;
enum { DT__FRAME_MAGIC = 0x6d637464, DT__FRAME_VERSION = 1 };

/* A message under way: the engine fills it, a link moves it along. */
typedef struct dt__msg {
    dt__frame head;              /* as this rank expects or sends it */
    char     *ptr;
    size_t    n, done;           /* payload bytes; how many are there */
    size_t    head_done;         /* of the header */
    bool      fold, left;        /* receive: reduce into ptr; what comes is the left operand */
    int       dtype, op;
    int       state;             /* the link's own; 0 to begin with */
} dt__msg;

/* A way to move messages between this rank and the others of a communicator. Messages of one pair and direction are
   moved one after the other, in the order in which they are given. All calls come from one thread at a time. */
struct dt__transport {
    const char *name;
    int  (*send)(dt_comm *c, int peer, dt__msg *m); /* 1: done, ptr is free again; 0: call again; negative: failed */
    int  (*recv)(dt_comm *c, int peer, dt__msg *m); /* the same; head is compared with dt__frame_ok */
    void (*wait)(dt_comm *c, double seconds);       /* until something may have moved, or the time is over; of across */
    void (*close)(dt_comm *c);
};

/* ---- memory: all of it from DT_COMM_MALLOC, which may not be malloc */
DT__INSIDE void *dt__comm_zeroed(size_t count, size_t nbytes)
{
    if (nbytes && count > SIZE_MAX / nbytes) return NULL;
    size_t n = count * nbytes;
    void  *p = DT_COMM_MALLOC(n ? n : 1);
    if (p) memset(p, 0, n);
    return p;
}
/* ---- errors, clock, log */
static __thread char dt__comm_text[768];
static __thread int  dt__comm_why; /* the status that goes with it */
static __thread const int64_t *dt__comm_clock; /* of the simulator whose events this thread runs */
DT__INSIDE int64_t   dt__comm_now(void) /* ns */
{
    struct timespec t;
    if (dt__comm_clock) return *dt__comm_clock;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
DT__INSIDE int dt__comm_bad(int status, const char *format, ...) /* of a call without a communicator: this thread's */
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(dt__comm_text, sizeof dt__comm_text, format, ap);
    va_end(ap);
    dt__comm_why = status;
    return status;
}
static void dt__world_report(const dt__world *w, int status, int rank, const char *text); /* >>rendezvous */
/* The communicator has failed; only the first time counts. Wakes its engine. Any thread. rank: in the communicator. */
static void dt__comm_failed(dt_comm *c, int status, int rank, const char *text)
{
    if (__atomic_exchange_n(&c->failing, 1, __ATOMIC_ACQ_REL)) return;
    snprintf(c->text, sizeof c->text, "%s", text);
    c->failed_rank = rank;
    __atomic_store_n(&c->status, status, __ATOMIC_RELEASE);
    if (c->world)
        dt__world_report(c->world, status, c->member && rank >= 0 && rank < c->size ? c->member[rank] : -1, text);
    uint64_t one = 1;
    if (c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) < 0) return; /* it is full: nobody sleeps */
}
DT__INSIDE bool dt__comm_ok(const dt_comm *c) { return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE) == 0; }

/* ---- what other sections provide */
/* >>rendezvous: joins; NULL after dt__comm_bad. Threads' worlds have none. */
static dt__world *dt__world_join(const dt_comm_opts *o);
static void       dt__world_unref(dt__world *w); /* the last one says goodbye and closes */
/* >>rendezvous: exchange n bytes of every rank of the world (over the control tree); collective */
static int        dt__world_allgather(dt__world *w, const void *in, size_t n, void *out);
/* >>control: the first of the local ranks hands a descriptor to the others (Unix socket, same user); collective among
   them. member: world ranks, all on this machine. fd: the first one's, or negative: it has none, and all hear it.
   Returns the descriptor, or negative after dt__comm_bad. */
static int        dt__world_pass_fd(dt__world *w, uint64_t comm, const int *member, int n, int fd);
/* >>control: a connected, authenticated, non-blocking socket to a rank of the world (peer) for a communicator: the
   lower rank dials (it blocks for at most the join timeout), the higher one takes what arrived: -1 not yet, -2 failed
   (dt__comm_failed is called). wake_fd is written when a connection for c arrives. */
static int        dt__world_link(dt__world *w, dt_comm *c, int peer, int stream);
/* >>control: tell every rank that communicator c has failed; returns after it was queued */
static void       dt__world_abort(dt__world *w, dt_comm *c, int status, int rank, const char *text);
/* >>control: c made no progress for its timeout in operation seq, waiting for 'peer' (in c; -1: unknown): find out
   who is at fault, fail c on all ranks. Operations count from 1: a rank with c->seq below seq has not called it.
   Returns at once; c fails within a second. */
static void       dt__world_ask(dt__world *w, dt_comm *c, uint64_t seq, int peer);
/* >>control: this rank waits in the collective of this frame: whoever calls another one under its number is found. */
static void       dt__world_watch(dt__world *w, const dt__frame *f);
/* >>control: a collective begins. If another one is awaited under its number, the communicator fails. */
static void       dt__world_begin(dt__world *w, dt_comm *c, const dt__frame *f);
/* >>control: this rank was away for long (stopped, perhaps): what others have told meanwhile is heard first */
static void       dt__world_settle(dt__world *w);
/* >>control: communicators that fail when one of their ranks dies, or one of their ranks says so. The id of a
   communicator is never used for another one of this world. */
static void       dt__world_add(dt__world *w, dt_comm *c);
static void       dt__world_remove(dt__world *w, dt_comm *c);
static int        dt__world_gone(dt__world *w, int rank); /* 0 alive, 1 died, 2 left, 3 out of reach */
/* >>control: an agreement among the ranks of *set (a bit for each rank of the world), one of several (round) of a
   communicator: *set becomes those that came and live, the same on all of them. built: what this rank has made of
   the last one's result, for nbuilt ranks (0: nothing); *all: everyone of the new set has made the same. 0, or negative
   after dt__comm_bad; within a few times the timeout. */
static int        dt__world_agree(dt__world *w, uint64_t comm, int round, double timeout, uint8_t *set, uint64_t built,
                                  int nbuilt, bool *all);
/* >>engine: is the header the expected one? If not, fails c (and all ranks) with a message that shows both, and
   returns false. */
static bool       dt__frame_ok(dt_comm *c, int peer, const dt__frame *want, const dt__frame *got);
/* >>engine: what is wrong with two ranks' frames, as text; the frames differ */
static void       dt__frame_differ(const dt__frame *a, const dt__frame *b, char *buf, size_t nbytes);
/* >>shared: what must be equal on all ranks, as a number; the frame of an operation that was begun, if it is known */
static uint64_t   dt__frame_print(const dt__frame *f);
static bool       dt__note_get(const struct dt__note *ring, uint64_t seq, dt__frame *f);
/* >>shared: the last operation that a rank of c (of this machine) began, and how many it has done; false: unknown */
static bool       dt__shared_last(const dt_comm *c, int rank, dt__frame *f, uint64_t *done);
/* >>reducing: dst := dst op src (or src op dst), n elements; any alignment of src */
static void       dt__fold(int dtype, int op, void *dst, const void *src, int64_t n, bool left);

/* ==================================================================================================== >>sockets
   Every descriptor is close-on-exec, every socket non-blocking; waiting is poll with a deadline (ns). */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { DT__ADDRS = 8 };
typedef struct dt__addr {
    union {
        struct sockaddr         any;
        struct sockaddr_in      v4;
        struct sockaddr_in6     v6;
        struct sockaddr_un      un;
        struct sockaddr_storage room;
    } u;
    socklen_t n;
} dt__addr;

static bool dt__comm_random(void *buf, size_t nbytes)
{
    uint8_t *p = (uint8_t *)buf;
    while (nbytes > 0) {
        ssize_t got = getrandom(p, nbytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        nbytes -= (size_t)got;
    }
    return true;
}
static int dt__poll_ms(int64_t deadline) /* rounded up */
{
    int64_t left = deadline - dt__comm_now();
    return left <= 0 ? 0 : left > 60000000000 ? 60000 : (int)((left + 999999) / 1000000);
}
/* 1: ready, or an error that the next call on it will tell; 0: the time is over */
static int dt__wait_fd(int fd, int events, int64_t deadline)
{
    for (;;) {
        struct pollfd p;
        p.fd = fd;
        p.events = (short)events;
        p.revents = 0;
        int n = poll(&p, 1, dt__poll_ms(deadline));
        if (n > 0) return 1;
        if (n < 0 && errno != EINTR) return 1;
        if (dt__comm_now() >= deadline) return 0;
    }
}
static void dt__comm_pause(int64_t ns)
{
    int64_t deadline = dt__comm_now() + ns;
    while (dt__comm_now() < deadline && poll(NULL, 0, dt__poll_ms(deadline)) < 0 && errno == EINTR) {}
}
static void dt__close(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
static const char *dt__addr_text(const dt__addr *a, char *buf, size_t nbytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->u.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->u.v4.sin_addr, host, sizeof host);
        snprintf(buf, nbytes, "%s:%d", host, ntohs(a->u.v4.sin_port));
    } else if (a->u.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a->u.v6.sin6_addr, host, sizeof host);
        snprintf(buf, nbytes, "[%s]:%d", host, ntohs(a->u.v6.sin6_port));
    } else snprintf(buf, nbytes, "a Unix socket");
    return buf;
}
static const char *dt__peer_text(int fd, char *buf, size_t nbytes)
{
    dt__addr a;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    if (getpeername(fd, &a.u.any, &a.n) != 0) snprintf(buf, nbytes, "a peer that has gone");
    else dt__addr_text(&a, buf, nbytes);
    return buf;
}
static int dt__addr_port(const dt__addr *a)
{
    return ntohs(a->u.any.sa_family == AF_INET6 ? a->u.v6.sin6_port : a->u.v4.sin_port);
}
static void dt__addr_set_port(dt__addr *a, int port)
{
    if (a->u.any.sa_family == AF_INET6) a->u.v6.sin6_port = htons((uint16_t)port);
    else a->u.v4.sin_port = htons((uint16_t)port);
}
static bool dt__addr_is_loopback(const dt__addr *a)
{
    if (a->u.any.sa_family == AF_INET) return ntohl(a->u.v4.sin_addr.s_addr) >> 24 == 127;
    return a->u.any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->u.v6.sin6_addr);
}
static bool dt__addr_is_any(const dt__addr *a)
{
    if (a->u.any.sa_family == AF_INET) return a->u.v4.sin_addr.s_addr == htonl(INADDR_ANY);
    return a->u.any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&a->u.v6.sin6_addr);
}
static void dt__addr_loopback(dt__addr *a, int port)
{
    memset(a, 0, sizeof *a);
    a->u.v4.sin_family = AF_INET;
    a->u.v4.sin_port = htons((uint16_t)port);
    a->u.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a->n = sizeof a->u.v4;
}
/* Takes an address as it lies in the table or came over a wire. */
static bool dt__addr_take(dt__addr *a, const uint8_t *bytes, uint32_t n)
{
    memset(a, 0, sizeof *a);
    if (n != sizeof a->u.v4 && n != sizeof a->u.v6) return false;
    memcpy(&a->u, bytes, n);
    a->n = (socklen_t)n;
    return a->u.any.sa_family == (n == sizeof a->u.v4 ? AF_INET : AF_INET6);
}
static void dt__addr_unix(dt__addr *a, const char *name) /* abstract: no file, gone with its owner */
{
    size_t n = strlen(name);
    memset(a, 0, sizeof *a);
    if (n > sizeof a->u.un.sun_path - 1) n = sizeof a->u.un.sun_path - 1;
    a->u.un.sun_family = AF_UNIX;
    memcpy(a->u.un.sun_path + 1, name, n);
    a->n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}
/* Addresses of a name; how many (at most DT__ADDRS), or 0 and *why. */
static int dt__addr_find(const char *name, int port, dt__addr *out, const char **why)
{
    struct addrinfo hints, *list = NULL;
    int             n = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    int e = getaddrinfo(name, NULL, &hints, &list);
    *why = e == EAI_SYSTEM ? strerror(errno) : gai_strerror(e);
    if (e != 0) return 0;
    for (struct addrinfo *i = list; i && n < DT__ADDRS; i = i->ai_next) {
        if (i->ai_family != AF_INET && i->ai_family != AF_INET6) continue;
        memset(&out[n], 0, sizeof out[n]);
        memcpy(&out[n].u, i->ai_addr, i->ai_addrlen);
        out[n].n = i->ai_addrlen;
        dt__addr_set_port(&out[n++], port);
    }
    freeaddrinfo(list);
    if (n == 0) *why = "it has no IPv4 or IPv6 address";
    return n;
}
/* The address of this machine that packets to the other one carry. */
static bool dt__addr_route(const dt__addr *to, dt__addr *out)
{
    int  fd = socket(to->u.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok;
    memset(out, 0, sizeof *out);
    out->n = sizeof out->u;
    ok = fd >= 0 && connect(fd, &to->u.any, to->n) == 0 && getsockname(fd, &out->u.any, &out->n) == 0;
    dt__close(&fd);
    if (ok) dt__addr_set_port(out, 0);
    return ok;
}
static int dt__socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }
static int dt__listen(const dt__addr *a) /* negative: errno */
{
    int fd = dt__socket(a->u.any.sa_family), on = 1, e;
    if (fd < 0) return -1;
    if (a->u.any.sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &a->u.any, a->n) == 0 && listen(fd, 1024) == 0) return fd;
    e = errno;
    close(fd);
    errno = e;
    return -1;
}
/* After the handshake: no delay of small messages, and a peer whose machine is gone is noticed. */
static void dt__sock_tune(int fd, double timeout)
{
    int on = 1, ms = (int)(timeout > 1e6 ? 1000000000 : timeout < 1 ? 1000 : timeout * 1000);
    int idle = ms / 3000 > 0 ? ms / 3000 : 1, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}
/* A connection that may still be under way (a later send or receive tells); negative: errno. */
static int dt__connect(const dt__addr *a)
{
    int fd = dt__socket(a->u.any.sa_family), e;
    if (fd < 0) return -1;
    if (connect(fd, &a->u.any, a->n) == 0 || errno == EINPROGRESS) return fd;
    e = errno; /* a Unix listener with a full queue: EAGAIN */
    close(fd);
    errno = e;
    return -1;
}
#ifndef DT__SEND_BYTES /* tests have other ends */
#define DT__SEND_BYTES(fd, ptr, nbytes) send(fd, ptr, nbytes, MSG_NOSIGNAL)
#define DT__RECV_BYTES(fd, ptr, nbytes) recv(fd, ptr, nbytes, 0)
#endif
/* Moves bytes without waiting: 1 all are moved, 0 not yet, -1 the connection is gone (errno; 0: it was closed). */
static int dt__send_some(int fd, const void *buf, size_t nbytes, size_t *done)
{
    while (*done < nbytes) {
        ssize_t n = DT__SEND_BYTES(fd, (const char *)buf + *done, nbytes - *done);
        if (n > 0) *done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        else return -1;
    }
    return 1;
}
static int dt__recv_some(int fd, void *buf, size_t nbytes, size_t *done)
{
    while (*done < nbytes) {
        ssize_t n = DT__RECV_BYTES(fd, (char *)buf + *done, nbytes - *done);
        if (n > 0) *done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        else {
            if (n == 0) errno = 0;
            return -1;
        }
    }
    return 1;
}
static bool dt__same_user(int fd) /* the process behind a Unix socket is this user's */
{
    struct { /* struct ucred, which only GNU mode has */
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } u;
    socklen_t n = sizeof u;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &u, &n) == 0 && u.uid == geteuid();
}

/* ==================================================================================================== >>handshake
   Three messages of fixed size on every socket, the accepting side first:
       S to C  magic, version, job, epoch, nonce
       C to S  magic, version, job, epoch, comm, rank, world, to, kind, stream, nonce, HMAC("dt1 c", both messages)
       S to C  status, a sentence if it is refused, HMAC("dt1 s", all three)
   The labels stop reflection, the nonces replay, the epoch a rank of an earlier start, 'to' a relay to another rank.
   The accepting side says why it refuses only to somebody who knows the token; to others it closes. Nothing is
   allocated. */
enum { DT__SHAKE_MAGIC = 0x314b5444, DT__SHAKE_VERSION = 1 }; /* "DTK1" */
enum { DT__KIND_REGISTER = 1, DT__KIND_TREE, DT__KIND_LINK, DT__KIND_FD, DT__KIND_NEWS };
typedef struct dt__hello_s {
    uint32_t magic, version;
    uint8_t  job[16];
    int64_t  epoch;
    uint8_t  nonce[32];
} dt__hello_s;
typedef struct dt__hello_c {
    uint32_t magic, version;
    uint8_t  job[16];
    int64_t  epoch;
    uint64_t comm;
    int32_t  rank, world, to, kind, stream, zero;
    uint8_t  nonce[32], mac[32];
} dt__hello_c;
typedef struct dt__hello_r {
    uint32_t magic;
    int32_t  status;
    char     text[184];
    uint8_t  mac[32];
} dt__hello_r;
typedef char
    dt__hello_sizes[sizeof(dt__hello_s) == 64 && sizeof(dt__hello_c) == 128 && sizeof(dt__hello_r) == 224 ? 1 : -1];

/* What a step returns. Negative: over. */
enum {
    DT__SHAKE_AGAIN = 0, /* wait for dt__shake_events */
    DT__SHAKE_DONE = 1,
    DT__SHAKE_DECIDE = 2, /* accepting side: c is authentic; call dt__shake_reply, then go on */
    DT__SHAKE_NET = -1,   /* the connection broke */
    DT__SHAKE_ALIEN = -2, /* something else than dt */
    DT__SHAKE_AUTH = -3,  /* another token */
    DT__SHAKE_VERSION_IS = -4,
    DT__SHAKE_JOB_IS = -5, /* another job, or an earlier start of this one */
    DT__SHAKE_REFUSED = -6 /* r.text tells */
};
typedef struct dt__shake {
    bool        server, any_job;
    int         state;
    size_t      done;
    uint8_t     token[32];
    dt__hello_s s;
    dt__hello_c c;
    dt__hello_r r;
} dt__shake;

static void dt__shake_mac(const dt__shake *h, bool reply, uint8_t out[32])
{
    dt__hmac m;
    dt__hmac_begin(&m, h->token, 32);
    dt__hmac_add(&m, reply ? "dt1 s" : "dt1 c", 5);
    dt__hmac_add(&m, &h->s, sizeof h->s);
    dt__hmac_add(&m, &h->c, reply ? sizeof h->c : offsetof(dt__hello_c, mac));
    if (reply) dt__hmac_add(&m, &h->r, offsetof(dt__hello_r, mac));
    dt__hmac_end(&m, out);
}
static bool dt__shake_server(dt__shake *h, const dt__world *w) /* false: no random numbers */
{
    memset(h, 0, sizeof *h);
    h->server = true;
    memcpy(h->token, w->token, 32);
    h->s.magic = DT__SHAKE_MAGIC;
    h->s.version = DT__SHAKE_VERSION;
    memcpy(h->s.job, w->job, 16);
    h->s.epoch = w->epoch;
    return dt__comm_random(h->s.nonce, 32);
}
static bool dt__shake_client(dt__shake *h, const dt__world *w, int to, int kind, uint64_t comm, int stream)
{
    memset(h, 0, sizeof *h);
    memcpy(h->token, w->token, 32);
    h->any_job = kind == DT__KIND_REGISTER; /* rank 0 draws the job's id; a rank that registers learns it */
    h->c.magic = DT__SHAKE_MAGIC;
    h->c.version = DT__SHAKE_VERSION;
    memcpy(h->c.job, w->job, 16);
    h->c.epoch = w->epoch;
    h->c.comm = comm;
    h->c.rank = w->rank;
    h->c.world = w->size;
    h->c.to = to;
    h->c.kind = kind;
    h->c.stream = stream;
    return dt__comm_random(h->c.nonce, 32);
}
/* Bytes that came: 1 all, 0 not yet, negative. What does not begin as dt does is known by its first bytes. */
static int dt__shake_recv(dt__shake *h, int fd, void *buf, size_t nbytes)
{
    int            got = dt__recv_some(fd, buf, nbytes, &h->done);
    const uint8_t *p = (const uint8_t *)buf;
    for (size_t i = 0; i < 4 && i < h->done; i++)
        if (p[i] != (uint8_t)((uint32_t)DT__SHAKE_MAGIC >> (8 * i))) return DT__SHAKE_ALIEN;
    if (got < 0) return DT__SHAKE_NET;
    if (got == 1) h->done = 0, h->state++;
    return got;
}
static int dt__shake_send(dt__shake *h, int fd, const void *buf, size_t nbytes)
{
    int got = dt__send_some(fd, buf, nbytes, &h->done);
    if (got < 0) return DT__SHAKE_NET;
    if (got == 1) h->done = 0, h->state++;
    return got;
}
static void dt__shake_reply(dt__shake *h, int status, const char *text)
{
    memset(&h->r, 0, sizeof h->r);
    h->r.magic = DT__SHAKE_MAGIC;
    h->r.status = status;
    snprintf(h->r.text, sizeof h->r.text, "%s", text);
    dt__shake_mac(h, true, h->r.mac);
    h->state = 3;
}
static int dt__shake_step_server(dt__shake *h, int fd)
{
    int     got;
    uint8_t mac[32];
    if (h->state == 0 && (got = dt__shake_send(h, fd, &h->s, sizeof h->s)) != 1) return got;
    if (h->state == 1) {
        if ((got = dt__shake_recv(h, fd, &h->c, sizeof h->c)) != 1) return got;
        dt__shake_mac(h, false, mac);
        if (!dt__same_secret(mac, h->c.mac, 32)) return DT__SHAKE_AUTH;
        return DT__SHAKE_DECIDE;
    }
    if (h->state == 3 && (got = dt__shake_send(h, fd, &h->r, sizeof h->r)) != 1) return got;
    return h->state != 4 ? DT__SHAKE_AGAIN : h->r.status ? DT__SHAKE_REFUSED : DT__SHAKE_DONE;
}
static int dt__shake_step_client(dt__shake *h, int fd)
{
    int     got;
    uint8_t mac[32];
    if (h->state == 0) {
        if ((got = dt__shake_recv(h, fd, &h->s, sizeof h->s)) != 1) return got;
        if (h->any_job) memcpy(h->c.job, h->s.job, 16);
        if (h->s.version == DT__SHAKE_VERSION) { /* a newer one gets its answer, to say the same on its side */
            if (memcmp(h->c.job, h->s.job, 16) != 0 || h->s.epoch < h->c.epoch) return DT__SHAKE_JOB_IS;
        }
        dt__shake_mac(h, false, h->c.mac);
    }
    if (h->state == 1) {
        if ((got = dt__shake_send(h, fd, &h->c, sizeof h->c)) != 1) return got;
        if (h->s.version != DT__SHAKE_VERSION) return DT__SHAKE_VERSION_IS;
    }
    if ((got = dt__shake_recv(h, fd, &h->r, sizeof h->r)) != 1) /* closed here: our answer did not please */
        return got == DT__SHAKE_NET ? DT__SHAKE_AUTH : got;
    dt__shake_mac(h, true, mac);
    if (!dt__same_secret(mac, h->r.mac, 32)) return DT__SHAKE_AUTH;
    h->r.text[sizeof h->r.text - 1] = 0;
    return h->r.status ? DT__SHAKE_REFUSED : DT__SHAKE_DONE;
}
static int dt__shake_step(dt__shake *h, int fd)
{
    return h->server ? dt__shake_step_server(h, fd) : dt__shake_step_client(h, fd);
}
static int dt__shake_events(const dt__shake *h)
{
    if (h->server) return h->state == 1 ? POLLIN : POLLOUT;
    return h->state == 1 ? POLLOUT : POLLIN;
}

/* ==================================================================================================== >>rendezvous
   Rank 0 listens, the others dial it, each sends its line of the table; when all are there each gets the whole table
   and dials its parent in the control tree. The world is joined when a first exchange has gone up and down the tree. */
enum { DT__TREE = 16, DT__CFRAME_MAX = 65536, DT__CTEXT = 700, DT__WORLD_MAX = 65536 };
enum { DT__CFRAME_MAGIC = 0x43435444 }; /* "DTCC" */
enum {
    /* clang-format off */
    DT__C_MEMBER = 1, DT__C_TABLE, DT__C_REFUSED, DT__C_MISSING, DT__C_COSTS, /* while joining */
    DT__C_SYNC, DT__C_GATHER_UP, DT__C_GATHER_DOWN, DT__C_GATHER_FAIL, DT__C_ABORT, DT__C_DEATH,
    DT__C_ASK, DT__C_PING, DT__C_PONG, DT__C_HOP_PING, DT__C_HOP_PONG, DT__C_NOTE, DT__C_WATCH,
    DT__C_AGREE_STATE, DT__C_AGREE_ORDER,
    DT__C_LEAVE_UP, DT__C_LEAVE_DOWN, DT__C_BYE
    /* clang-format on */
};
typedef struct dt__chead { /* of a control frame */
    uint32_t magic, kind, nbytes;
    int32_t  rank; /* whose */
} dt__chead;
typedef struct dt__ctable {
    int32_t total, first, n, zero;
} dt__ctable;
typedef struct dt__block { /* a frame to send, shared by the queues it is in; the bytes follow */
    int    refs;
    size_t nbytes;
} dt__block;

static const char *dt__costs_named(const dt_comm_opts *o); /* >>choosing: the file, or NULL */
static bool        dt__costs_sane(const dt_costs *t);
static void        dt__costs_slow(dt_costs *t, double bandwidth, double latency);
static int  dt__control_start(dt__world *w); /* negative: errno */
static void dt__control_end(dt__world *w);
static int  dt__control_adopt(dt__world *w, int fd,
                              int peer); /* a connection to the parent is now the control thread's */
static int  dt__control_wait_joined(dt__world *w, int64_t deadline, char *text, size_t nbytes);
static int  dt__gather(dt__world *w, const void *in, size_t n, void *out, int64_t deadline, char *text, size_t nbytes);
static dt__block *dt__block_new(int kind, int rank, const void *a, size_t na, const void *b, size_t nb);
static void       dt__block_unref(dt__block *b);

/* ---- the environment */
typedef struct dt__config {
    int      rank, world, local_world; /* local_world 0: unknown */
    bool     local;                    /* all ranks are on this machine */
    bool     ticket;                   /* rank 0 hands its address and a token to this user's processes here */
    char     name[64];                 /* of the Unix socket where it does */
    char     where[64];
    char     host[256]; /* of rank 0; "": unknown */
    int      port;
    int      listen_fd; /* -1: none */
    char     bind[256];
    bool     have_token;
    uint8_t  token[32];
    int64_t  epoch;
    int      report_fd; /* 0: none */
    double   timeout, join_timeout;
    int      streams;
    dt__addr addr[DT__ADDRS]; /* of rank 0 */
    int      naddr;
} dt__config;

/* A number and nothing else: 1 read, 0 not set, negative after dt__comm_bad. */
static int dt__env_int(const char *name, int64_t low, int64_t high, int64_t *out)
{
    const char *s = getenv(name), *p = s;
    int64_t     v = 0;
    if (!s) return 0;
    bool minus = *p == '-';
    p += minus;
    bool ok = *p != 0;
    for (; ok && *p; p++) {
        ok = *p >= '0' && *p <= '9' && v < INT64_MAX / 10 - 10;
        if (ok) v = v * 10 + (*p - '0');
    }
    if (minus) v = -v;
    if (ok && v >= low && v <= high) {
        *out = v;
        return 1;
    }
    return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.40s', expected a number from %" PRId64 " to %" PRId64,
                        name, s, low, high);
}
static int dt__env_seconds(const char *name, double *out)
{
    const char *s = getenv(name);
    char       *end;
    if (!s) return 0;
    double v = strtod(s, &end);
    if (*s && !*end && v > 0 && v < 1e7 && *s != ' ') {
        *out = v;
        return 1;
    }
    return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.40s', expected seconds above 0", name, s);
}
static int dt__env_missing(const char *name, const char *other)
{
    return dt__comm_bad(
        DT_COMM_ERR_ARG,
        "dt_comm_init: %s is not set, but %s is; set both, or RANK and WORLD_SIZE, or none for a world of one", name,
        other);
}
/* rank and world of a launcher's variables: 1, 0 if it was not this launcher, or negative. */
static int dt__config_launcher(dt__config *f, const char *rank, const char *size, const char *local_rank,
                               const char *local_size)
{
    int64_t v = 0;
    int     got = dt__env_int(size, 1, DT__WORLD_MAX, &v);
    if (got < 0) return got;
    if (got == 0) return getenv(rank) ? dt__env_missing(size, rank) : 0;
    f->world = (int)v;
    if ((got = dt__env_int(rank, 0, f->world - 1, &v)) < 0) return got;
    if (got == 0) return dt__env_missing(rank, size);
    f->rank = (int)v;
    if (local_size) {
        if ((got = dt__env_int(local_size, 1, f->world, &v)) < 0) return got;
        if (got) f->local_world = (int)v;
    }
    if (local_rank && (got = dt__env_int(local_rank, 0, (f->local_world ? f->local_world : f->world) - 1, &v)) < 0)
        return got;
    return 1;
}
/* Who tells rank and world; *id: what only the ranks of this job share (for the Unix socket), or NULL. */
static int dt__config_who(dt__config *f, const dt_comm_opts *o, char *id, size_t nbytes)
{
    int64_t nodes = 0;
    id[0] = 0;
    if (o->world != 0) {
        snprintf(f->where, sizeof f->where, "options");
        if (o->world < 1 || o->world > DT__WORLD_MAX)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .world is %d, expected 1 to %d", o->world,
                                DT__WORLD_MAX);
        if (o->rank < 0 || o->rank >= o->world)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .rank is %d, expected 0 to %d", o->rank, o->world - 1);
        if (o->local_world < 0 || o->local_world > o->world)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .local_world is %d, expected 0 to %d", o->local_world,
                                o->world);
        f->rank = o->rank;
        f->world = o->world;
        f->local_world = o->local_world;
        return 0;
    }
    int i = dt__launcher();
    if (i >= 0) {
        const char *by = dt__launcher_name(i, DT__LAUNCHER_RANK);
        int         got = dt__config_launcher(f, by, dt__launcher_name(i, DT__LAUNCHER_SIZE),
                                              dt__launcher_name(i, DT__LAUNCHER_LOCAL_RANK),
                                              dt__launcher_name(i, DT__LAUNCHER_LOCAL_SIZE));
        if (got < 0) return got;
        snprintf(f->where, sizeof f->where, "%s", i == 0 ? "RANK and WORLD_SIZE" : by);
        const char *a = NULL, *b = NULL;
        if (i == 1) {
            a = getenv("PMIX_NAMESPACE");
            if (!a) a = getenv("OMPI_MCA_ess_base_jobid");
        } else if (i >= 3) {
            const char *n = getenv("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
            if ((got = dt__env_int(n, 1, INT_MAX, &nodes)) < 0) return got;
            if (got && nodes == 1) f->local_world = f->world;
            a = getenv("SLURM_JOB_ID");
            b = getenv("SLURM_STEP_ID");
        }
        if (a) snprintf(id, nbytes, "%s %.80s %.80s", by, a, b ? b : "");
        else if (i == 1 || i == 2) snprintf(id, nbytes, "%s parent %d", by, (int)getppid());
        return 0;
    }
    snprintf(f->where, sizeof f->where, "no launcher: a world of one");
    f->world = f->local_world = 1;
    return 0;
}
static int dt__config_times(dt__config *f, const dt_comm_opts *o)
{
    int64_t v = 0;
    int     got;
    f->timeout = 30;
    f->join_timeout = 120;
    if (o->timeout < 0 || o->join_timeout < 0 || isnan(o->timeout) || isnan(o->join_timeout))
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: .timeout is %g and .join_timeout %g, expected seconds, 0: default",
                            o->timeout, o->join_timeout);
    if (o->timeout == 0 && dt__env_seconds("DT_COMM_TIMEOUT", &f->timeout) < 0) return -1;
    if (o->timeout > 0) f->timeout = o->timeout;
    if (o->join_timeout > 0) f->join_timeout = o->join_timeout;
    if (f->timeout > 1e7) f->timeout = 1e7;
    if (f->join_timeout > 1e7) f->join_timeout = 1e7;
    if (o->epoch == 0 && dt__env_int("DT_RESTART", 0, INT64_MAX / 20, &v) < 0) return -1;
    f->epoch = o->epoch ? o->epoch : v;
    if ((got = dt__env_int("DT_REPORT_FD", 1, INT_MAX, &v)) < 0) return got;
    if (got && o->world == 0) f->report_fd = (int)v;
    return 0;
}
/* The first name of a list as Slurm writes it: "n[07-12,20]-ib,login" is n07-ib. False: there is none, or it is too
   long. */
static bool dt__slurm_first(const char *list, char *out, size_t nbytes)
{
    size_t n = 0;
    bool   in = false, take = true;
    for (; *list && (in || *list != ','); list++) {
        if (*list == '[' || *list == ']') {
            in = *list == '[';
            take = true;
            continue;
        }
        if (in && (*list == '-' || *list == ',')) take = false; /* the others of the bracket */
        if (!take) continue;
        if (n + 1 >= nbytes) return false;
        out[n++] = *list;
    }
    out[n] = 0;
    return n > 0 && !in;
}
/* Slurm on several machines: rank 0 is on the first of them, at a port that the job's number gives. */
static void dt__config_slurm(dt__config *f)
{
    const char *list = getenv("SLURM_STEP_NODELIST"), *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (!list) list = getenv("SLURM_JOB_NODELIST");
    if (!list || !job || !getenv("SLURM_NTASKS") || f->local_world == f->world) return;
    if (!f->host[0] && !dt__slurm_first(list, f->host, sizeof f->host)) f->host[0] = 0;
    uint32_t h = 0;
    for (const char *p = job; *p; p++) h = h * 31 + (uint8_t)*p;
    for (const char *p = step ? step : ""; *p; p++) h = h * 31 + (uint8_t)*p;
    if (f->host[0] && !f->port) f->port = 16384 + (int)(h % 16384); /* below those that the system hands out */
}
/* Where rank 0 is. */
static int dt__config_master(dt__config *f, const dt_comm_opts *o, const char *id)
{
    const char *host = o->addr, *agent = getenv("TORCHELASTIC_USE_AGENT_STORE"), *why = "", *from = ".addr";
    int64_t     v = 0;
    int         got;
    f->listen_fd = -1;
    if (o->listen_fd > 0) f->listen_fd = o->listen_fd;
    else if (f->rank == 0 && o->world == 0) {
        if ((got = dt__env_int("DT_LISTEN_FD", 0, INT_MAX, &v)) < 0) return got;
        if (got) f->listen_fd = (int)v;
    }
    dt__addr at;
    memset(&at, 0, sizeof at);
    at.n = sizeof at.u;
    if (o->port < 0 || o->port > 65535)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .port is %d, expected 1 to 65535", o->port);
    if (o->port) f->port = o->port;
    else if ((got = dt__env_int("DT_PORT", 1, 65535, &v)) != 0) {
        if (got < 0) return got;
        f->port = (int)v;
    } else if ((got = dt__env_int("MASTER_PORT", 1, 65535, &v)) != 0) {
        if (got < 0) return got;
        f->port = (int)v;
        if (agent && strcmp(agent, "True") == 0 && ++f->port > 65535)
            return dt__comm_bad(DT_COMM_ERR_ARG,
                                "dt_comm_init: MASTER_PORT is '65535' and held by torchrun's agent, and there is "
                                "no port behind it: set DT_PORT");
    }
    if (!f->port && f->listen_fd >= 0 && getsockname(f->listen_fd, &at.u.any, &at.n) == 0) f->port = dt__addr_port(&at);
    if (!host || !*host) host = getenv(from = "DT_ADDR");
    if (!host || !*host) host = getenv(from = "MASTER_ADDR");
    if (host && strlen(host) >= sizeof f->host)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s has %zu bytes, expected fewer than 256", from,
                            strlen(host));
    snprintf(f->host, sizeof f->host, "%s", host ? host : "");
    if (strcmp(f->where, "SLURM_PROCID") == 0 || strcmp(f->where, "PMIX_RANK") == 0) {
        if (!f->host[0]) from = "SLURM_STEP_NODELIST";
        dt__config_slurm(f);
    }
    f->local = f->local_world == f->world;
    if (f->host[0]) {
        f->naddr = dt__addr_find(f->host, f->port, f->addr, &why);
        if (f->naddr == 0)
            return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %s is '%.100s': %s", from, f->host, why);
        bool loop = true;
        for (int i = 0; i < f->naddr; i++) loop = loop && dt__addr_is_loopback(&f->addr[i]);
        if (f->local && !loop) { /* all are here: nobody else needs to see the port */
            dt__addr_loopback(&f->addr[0], f->port);
            f->naddr = 1;
        }
        f->local = f->local || loop;
    } else if (f->listen_fd >= 0 || (f->port && f->local)) {
        dt__addr_loopback(&f->addr[0], f->port);
        f->naddr = 1;
    }
    if (f->naddr && (f->port || f->listen_fd >= 0)) return 0;
    if (f->local && id[0]) return 0; /* the Unix socket tells the address */
    const char *what = f->naddr ? "port" : "address";
    if (strcmp(f->where, "options") == 0)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: .world is %d, but the %s of rank 0 is unknown: set .addr and .port",
                            f->world, what);
    return dt__comm_bad(DT_COMM_ERR_ARG,
                        "dt_comm_init: %s is known from %s, but the %s of rank 0 is not: %s is not set; set "
                        "MASTER_ADDR and MASTER_PORT, or DT_ADDR and DT_PORT",
                        "the world", f->where, what, f->naddr ? "MASTER_PORT" : "MASTER_ADDR");
}

/* ---- the token */
static int dt__token_read_fd(int fd, const char *name, uint8_t token[32]) /* closes it */
{
    uint8_t buf[32];
    size_t  n = 0;
    int64_t deadline = dt__comm_now() + 5000000000;
    ssize_t whole = pread(fd, buf, 32, 0); /* a file: a program that is started behind this one reads it again */
    if (whole > 0) n = (size_t)whole;
    while (n < 32) {
        if (!dt__wait_fd(fd, POLLIN, deadline)) break;
        ssize_t got = read(fd, buf + n, 32 - n);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is %d: %s", name, fd, strerror(errno));
        if (got == 0) break;
        n += (size_t)got;
    }
    close(fd);
    if (n < 32)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is %d: it holds %zu bytes, expected a token of 32", name,
                            fd, n);
    memcpy(token, buf, 32);
    return 1;
}
static int dt__token_read_file(const char *path, const char *name, uint8_t token[32])
{
    struct stat s;
    uint8_t     buf[80];
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    ssize_t     n;
    if (fd < 0 || fstat(fd, &s) != 0) {
        int e = errno;
        dt__close(&fd);
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.200s': %s", name, path, strerror(e));
    }
    const char *bad = !S_ISREG(s.st_mode)     ? "it is not a regular file"
                      : s.st_uid != geteuid() ? "it belongs to another user"
                      : (s.st_mode & 077)     ? "others may read or write it; chmod 600 it"
                                              : NULL;
    n = bad ? 0 : read(fd, buf, sizeof buf);
    dt__close(&fd);
    if (bad) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %s is '%.200s': %s", name, path, bad);
    if (n == 32) {
        memcpy(token, buf, 32);
        return 1;
    }
    while (n > 64 && (buf[n - 1] == '\n' || buf[n - 1] == '\r' || buf[n - 1] == ' ')) n--;
    bool hex = n == 64;
    for (int i = 0; hex && i < 64; i++) {
        int c = buf[i], v = c >= '0' && c <= '9'   ? c - '0'
                            : c >= 'a' && c <= 'f' ? c - 'a' + 10
                            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                   : -1;
        hex = v >= 0;
        if (hex) token[i / 2] = (uint8_t)(i % 2 ? token[i / 2] << 4 | v : v);
    }
    if (hex) return 1;
    return dt__comm_bad(DT_COMM_ERR_ARG,
                        "dt_comm_init: %s is '%.200s': it holds %zd bytes, expected 32, or 64 hexadecimal digits", name,
                        path, n);
}
/* 1 a token was given, 0 none, negative. DT_TOKEN_FD is read once in a process: a second world has the same. */
static int dt__token_given(const dt_comm_opts *o, uint8_t token[32])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int64_t         kept_fd = -1;
    static uint8_t         kept[32];
    int64_t                fd = 0;
    const char            *path = o->token_file;
    if (o->token_fd > 0) return dt__token_read_fd(o->token_fd, ".token_fd", token);
    if (path && *path) return dt__token_read_file(path, ".token_file", token);
    int got = dt__env_int("DT_TOKEN_FD", 0, INT_MAX, &fd);
    if (got < 0) return got;
    if (got) {
        pthread_mutex_lock(&lock);
        if (kept_fd != fd && (got = dt__token_read_fd((int)fd, "DT_TOKEN_FD", kept)) > 0) kept_fd = fd;
        if (got > 0) memcpy(token, kept, 32);
        pthread_mutex_unlock(&lock);
        return got;
    }
    path = getenv("DT_TOKEN_FILE");
    return path ? dt__token_read_file(path, "DT_TOKEN_FILE", token) : 0;
}
static int dt__config_token(dt__config *f, const dt_comm_opts *o, const char *id)
{
    const char  *insecure = getenv("DT_INSECURE");
    dt_sha256 s;
    uint8_t      sum[32];
    char         text[320];
    int          got = dt__token_given(o, f->token);
    if (got < 0) return got;
    f->have_token = got > 0;
    f->ticket = f->local && (!f->have_token || !f->naddr);
    if (!f->have_token && !f->local && !o->insecure && !(insecure && strcmp(insecure, "1") == 0))
        return dt__comm_bad(
            DT_COMM_ERR_JOIN,
            "dt_comm_init: ranks of several machines (rank 0 at '%.100s') need a token: set "
            "DT_TOKEN_FILE (mode 0600) or DT_TOKEN_FD; or, if all are on this machine, LOCAL_WORLD_SIZE or a "
            "loopback address; or DT_INSECURE=1 on a network that you trust",
            f->host);
    /* the job's number where a launcher gives one, else the port, is what its ranks share */
    if (f->naddr) snprintf(text, sizeof text, "port %d epoch %" PRId64, f->port, f->epoch);
    else snprintf(text, sizeof text, "%s epoch %" PRId64, id, f->epoch);
    dt_sha256_begin(&s);
    dt_sha256_add(&s, text, strlen(text));
    dt_sha256_end(&s, sum);
    snprintf(f->name, sizeof f->name, "dt-%u-%02x%02x%02x%02x%02x%02x%02x%02x", (unsigned)geteuid(), sum[0], sum[1],
             sum[2], sum[3], sum[4], sum[5], sum[6], sum[7]);
    return 0;
}
/* What moves the data; NULL: auto. */
static const char *dt__transport_named(const dt_comm_opts *o)
{
    const char *how = o->transport ? o->transport : getenv("DT_COMM_TRANSPORT");
    return how && *how && strcmp(how, "auto") ? how : NULL;
}
static bool dt__transport_is(const dt_comm_opts *o, const char *name)
{
    const char *how = dt__transport_named(o);
    return how && strcmp(how, name) == 0;
}
#ifdef DT_USE_MPI
static int  dt__mpi_config(dt__config *f, const dt_comm_opts *o); /* >>mpi: of its own: no variable is needed */
static void dt__mpi_end(bool died);
#endif
static int dt__config_read(dt__config *f, const dt_comm_opts *o)
{
    char        id[256];
    const char *bound = o->bind && *o->bind ? o->bind : getenv("DT_BIND");
    int         got;
    memset(f, 0, sizeof *f);
    f->streams = o->streams > 0 ? o->streams : 1;
    if (dt__transport_is(o, "mpi")) {
#ifdef DT_USE_MPI
        snprintf(f->bind, sizeof f->bind, "%s", bound ? bound : "");
        return (got = dt__config_times(f, o)) < 0 ? got : dt__mpi_config(f, o);
#else
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "dt_comm_init: transport \"mpi\" is not in this program: compile it with mpicc "
                            "-DDT_USE_MPI (or -DDT_USE_MPI and MPI's flags), and start it with mpirun");
#endif
    }
    if ((got = dt__config_who(f, o, id, sizeof id)) < 0 || (got = dt__config_times(f, o)) < 0) return got;
    if (f->world == 1) return 0;
    if ((got = dt__config_master(f, o, id)) < 0 || (got = dt__config_token(f, o, id)) < 0) return got;
    snprintf(f->bind, sizeof f->bind, "%s", bound ? bound : "");
    return 0;
}

/* ---- the ticket: address and token of rank 0, for processes of this user on this machine. An abstract Unix socket
   needs no file, nothing stays after kill -9, and the kernel tells both sides the user at the other end. */
typedef struct dt__ticket {
    uint32_t magic, version;
    uint8_t  token[32], addr[28];
    uint32_t addr_len;
} dt__ticket;

/* 1 taken, 0 it has no address, negative: it is of another version. */
static int dt__ticket_read(dt__config *f, dt__world *w, const dt__ticket *t)
{
    if (t->magic != DT__SHAKE_MAGIC || t->version != DT__SHAKE_VERSION)
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 has another version of dt_comm.h: %u, expected %d",
                            (unsigned)t->version, DT__SHAKE_VERSION);
    if (!f->have_token) memcpy(w->token, t->token, 32);
    return dt__addr_take(&f->addr[0], t->addr, t->addr_len) ? (f->naddr = 1) : 0;
}
/* 1 taken, 0 nobody is there yet, negative. */
static int dt__ticket_take(dt__config *f, dt__world *w, int64_t deadline)
{
    dt__addr   a;
    dt__ticket t;
    size_t     done = 0;
    int        fd, got = 0;
    dt__addr_unix(&a, f->name);
    if ((fd = dt__connect(&a)) < 0) return 0;
    if (!dt__same_user(fd)) {
        dt__close(&fd);
        return dt__comm_bad(DT_COMM_ERR_JOIN,
                            "dt_comm_init: the Unix socket @%s, where rank 0 should be, belongs to another user",
                            f->name);
    }
    if (deadline > dt__comm_now() + 1000000000) deadline = dt__comm_now() + 1000000000;
    while ((got = dt__recv_some(fd, &t, sizeof t, &done)) == 0 && dt__wait_fd(fd, POLLIN, deadline)) {}
    dt__close(&fd);
    return got == 1 ? dt__ticket_read(f, w, &t) : 0;
}

/* ---- this rank's line of the table */
static void dt__host_id(uint8_t out[16])
{
    dt_sha256 s;
    struct stat  st;
    uint8_t      sum[32];
    char         boot[64] = "";
    int          fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t      n = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    dt__close(&fd);
    if (n <= 0) n = gethostname(boot, sizeof boot) == 0 ? (ssize_t)strnlen(boot, sizeof boot) : 0;
    dt_sha256_begin(&s);
    dt_sha256_add(&s, boot, (size_t)n);
    if (stat("/proc/self/ns/net", &st) == 0) {
        uint64_t ino = (uint64_t)st.st_ino;
        dt_sha256_add(&s, &ino, sizeof ino);
    }
    dt_sha256_end(&s, sum);
    memcpy(out, sum, 16);
}
static int dt__member_self(dt__world *w, dt__member *m)
{
    uint8_t  r[12];
    dt__addr a;
    memset(m, 0, sizeof *m);
    m->pid = (int64_t)getpid();
    dt__host_id(m->host_id);
    if (gethostname(m->host_name, sizeof m->host_name - 1) != 0) snprintf(m->host_name, sizeof m->host_name, "unknown");
    if (w->size == 1) return 0;
    for (int i = 0; i < 3; i++) { /* another one has drawn the same name: not in this universe, but it is cheap */
        if (!dt__comm_random(r, sizeof r)) break;
        snprintf(m->unix_name, sizeof m->unix_name, "dt-");
        for (int j = 0; j < 12; j++)
            snprintf(m->unix_name + 3 + 2 * j, sizeof m->unix_name - 3 - 2 * (size_t)j, "%02x", r[j]);
        dt__addr_unix(&a, m->unix_name);
        if ((w->unix_fd = dt__listen(&a)) >= 0) return 0;
    }
    return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: a Unix socket cannot be made: %s", strerror(errno));
}
static int dt__member_addr(dt__world *w, dt__member *m,
                           const dt__addr *instead) /* of the listener; instead of the wildcard */
{
    dt__addr a;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    if (getsockname(w->listen_fd, &a.u.any, &a.n) != 0 ||
        (a.u.any.sa_family != AF_INET && a.u.any.sa_family != AF_INET6))
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: descriptor %d is not a listening TCP socket", w->listen_fd);
    if (dt__addr_is_any(&a) && instead) {
        int port = dt__addr_port(&a);
        a = *instead;
        dt__addr_set_port(&a, port);
    }
    memcpy(m->addr, &a.u, a.n);
    m->addr_len = (uint32_t)a.n;
    return 0;
}
/* Rank 0's listener: given, or made. A port that another job is just leaving is waited for. */
static int dt__listen_master(const dt__config *f)
{
    dt__addr    a[DT__ADDRS];
    char        text[80];
    const char *why = "";
    int         n = f->naddr, fd, on = 0;
    socklen_t   len = sizeof on;
    if (f->listen_fd >= 0) {
        if (getsockopt(f->listen_fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) != 0 || !on)
            return dt__comm_bad(DT_COMM_ERR_ARG,
                                "dt_comm_init: DT_LISTEN_FD or .listen_fd is %d, which is not a listening socket",
                                f->listen_fd);
        fd = fcntl(f->listen_fd, F_DUPFD_CLOEXEC, 3); /* the given one stays, for a next world */
        if (fd < 0 || fcntl(f->listen_fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
            return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: descriptor %d: %s", f->listen_fd, strerror(errno));
        return fd;
    }
    memcpy(a, f->addr, sizeof a);
    if (f->bind[0] && (n = dt__addr_find(f->bind, f->port, a, &why)) == 0)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: the address to listen at is '%.100s': %s", f->bind, why);
    if (n == 0) dt__addr_loopback(&a[0], 0), n = 1;
    int64_t until = dt__comm_now() + 2000000000;
    for (;;) {
        for (int i = 0; i < n; i++)
            if ((fd = dt__listen(&a[i])) >= 0) return fd;
        if (errno != EADDRINUSE || dt__comm_now() > until) break;
        dt__comm_pause(10000000);
    }
    return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 cannot listen at %s: %s",
                        dt__addr_text(&a[0], text, sizeof text), strerror(errno));
}
static int dt__listen_own(dt__world *w, const dt__config *f, const dt__addr *master)
{
    dt__addr    a[DT__ADDRS];
    char        text[80];
    const char *why = "";
    if (f->bind[0]) {
        if (dt__addr_find(f->bind, 0, a, &why) == 0)
            return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: the address to listen at is '%.100s': %s", f->bind,
                                why);
    } else if (!dt__addr_route(master, &a[0]))
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: no route to rank 0 at %s: %s",
                            dt__addr_text(master, text, sizeof text), strerror(errno));
    if ((w->listen_fd = dt__listen(&a[0])) >= 0) return 0;
    return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: cannot listen at %s: %s",
                        dt__addr_text(&a[0], text, sizeof text), strerror(errno));
}

/* ---- dialing */
/* One try: a connected socket with the handshake done, or a negative DT__SHAKE_ value (NET: errno). Gives up when c
   fails. */
static int dt__dial(dt__world *w, const dt__addr *a, int to, int kind, uint64_t comm, int stream, int64_t deadline,
                    const dt_comm *c, dt__shake *h)
{
    int64_t now = dt__comm_now(), until = deadline < now + 5000000000 ? deadline : now + 5000000000;
    int     fd = dt__connect(a), got;
    if (fd < 0) return DT__SHAKE_NET;
    if (!dt__shake_client(h, w, to, kind, comm, stream)) {
        dt__close(&fd);
        return DT__SHAKE_NET;
    }
    while ((got = dt__shake_step(h, fd)) == DT__SHAKE_AGAIN) {
        now = dt__comm_now();
        if (now >= until || (c && !dt__comm_ok(c))) {
            errno = ETIMEDOUT;
            got = DT__SHAKE_NET;
            break;
        }
        dt__wait_fd(fd, dt__shake_events(h), c && until > now + 50000000 ? now + 50000000 : until);
    }
    if (got == DT__SHAKE_DONE) {
        if (a->u.any.sa_family != AF_UNIX) dt__sock_tune(fd, w->timeout);
        return fd;
    }
    int e = errno;
    close(fd);
    errno = e;
    return got;
}
static const char *dt__dial_text(int got, int e, const dt__shake *h, char *buf, size_t nbytes)
{
    switch (got) {
    case DT__SHAKE_NET: snprintf(buf, nbytes, "%s", e ? strerror(e) : "it closed the connection"); break;
    case DT__SHAKE_ALIEN: snprintf(buf, nbytes, "something else than dt answers there"); break;
    case DT__SHAKE_AUTH: snprintf(buf, nbytes, "it has another token than this rank"); break;
    case DT__SHAKE_VERSION_IS:
        snprintf(buf, nbytes, "it has version %u of the protocol, this rank %d: all ranks need the same dt_comm.h",
                 (unsigned)h->s.version, DT__SHAKE_VERSION);
        break;
    case DT__SHAKE_JOB_IS: snprintf(buf, nbytes, "another job, or an earlier start of this one, answers there"); break;
    default: snprintf(buf, nbytes, "it refuses: %s", h->r.text);
    }
    return buf;
}
/* Dials until somebody answers. What time may cure is tried again: nobody there, an earlier job at that port; a wrong
   token for a second and a half. c: gives up when it fails (may be NULL). */
static int dt__dial_until(dt__world *w, const dt__addr *a, int naddr, int to, int kind, uint64_t comm, int stream,
                          int64_t deadline, const dt_comm *c, char *text, size_t nbytes)
{
    dt__shake h;
    char      why[256], at[80];
    int64_t   wait = 1000000, strange = 0;
    for (int i = 0;; i++) {
        int got = dt__dial(w, &a[i % naddr], to, kind, comm, stream, deadline, c, &h), e = errno;
        if (got >= 0) {
            if (kind == DT__KIND_REGISTER) memcpy(w->job, h.s.job, 16);
            return got;
        }
        int64_t now = dt__comm_now();
        if (got == DT__SHAKE_AUTH || got == DT__SHAKE_ALIEN) {
            if (!strange) strange = now;
        } else strange = 0;
        if (got == DT__SHAKE_REFUSED || got == DT__SHAKE_VERSION_IS || (strange && now > strange + 1500000000) ||
            now >= deadline || (c && !dt__comm_ok(c))) {
            snprintf(text, nbytes, "rank %d at %s: %s", to, dt__addr_text(&a[i % naddr], at, sizeof at),
                     dt__dial_text(got, e, &h, why, sizeof why));
            return got == DT__SHAKE_NET && e == ECONNREFUSED ? DT_COMM_ERR_PEER : DT_COMM_ERR_JOIN;
        }
        if (i % naddr == naddr - 1) {
            dt__comm_pause(now + wait > deadline ? deadline - now : wait);
            wait = wait < 32000000 ? wait * 2 : wait;
        }
    }
}
/* Frames over a socket of the caller's, with waiting: 1, or 0 after the deadline, negative: gone or broken (errno). */
static int dt__cframe_send(int fd, int kind, int rank, const void *body, size_t n, int64_t deadline)
{
    dt__block *b = dt__block_new(kind, rank, body, n, NULL, 0);
    size_t     done = 0;
    int        got;
    if (!b) return -1;
    while ((got = dt__send_some(fd, b + 1, b->nbytes, &done)) == 0 && dt__wait_fd(fd, POLLOUT, deadline)) {}
    dt__block_unref(b);
    return got;
}
static int dt__cframe_recv(int fd, dt__chead *h, uint8_t *body, int64_t deadline)
{
    size_t done = 0;
    int    got;
    while ((got = dt__recv_some(fd, h, sizeof *h, &done)) == 0 && dt__wait_fd(fd, POLLIN, deadline)) {}
    if (got != 1) return got;
    errno = EPROTO;
    if (h->magic != (uint32_t)DT__CFRAME_MAGIC || h->nbytes > DT__CFRAME_MAX) return -1;
    done = 0;
    while ((got = dt__recv_some(fd, body, h->nbytes, &done)) == 0 && dt__wait_fd(fd, POLLIN, deadline)) {}
    return got;
}

/* Tells the launcher how a communicator failed here, so that it can tell the rank that failed first from those that
   lost it. Nobody waits for it. */
enum { DT__REPORT_MAGIC = 0x52525444, DT__REPORT_TEXT = 480 }; /* "DTRR" */
typedef struct dt__report {
    uint32_t magic;
    int32_t  status, rank, lost; /* rank of the world that tells; the one at fault, or -1 */
    char     text[DT__REPORT_TEXT];
} dt__report;
static void dt__world_report(const dt__world *w, int status, int rank, const char *text)
{
    dt__report r;
    if (w->report_fd <= 0) return;
    memset(&r, 0, sizeof r);
    r.magic = DT__REPORT_MAGIC;
    r.status = status;
    r.rank = w->rank;
    r.lost = rank;
    snprintf(r.text, sizeof r.text, "%s", text);
    if (send(w->report_fd, &r, sizeof r, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

/* ---- joining */
static void dt__table_finish(dt__world *w) /* machines are numbered in the order of ranks, so are the ranks of each */
{
    w->nhosts = w->local_size = 0;
    for (int r = 0; r < w->size; r++) {
        dt__member *m = &w->member[r];
        m->host = m->local = -1;
        m->host_name[sizeof m->host_name - 1] = m->unix_name[sizeof m->unix_name - 1] = 0;
    }
    for (int r = 0; r < w->size; r++) {
        if (w->member[r].host >= 0) continue;
        int n = 0;
        for (int s = r; s < w->size; s++)
            if (w->member[s].host < 0 && memcmp(w->member[s].host_id, w->member[r].host_id, 16) == 0) {
                w->member[s].host = w->nhosts;
                w->member[s].local = n++;
            }
        w->nhosts++;
    }
    for (int r = 0; r < w->size; r++) w->local_size += w->member[r].host == w->member[w->rank].host;
    w->local_rank = w->member[w->rank].local;
}
/* The table from rank 0, over the registering connection. */
static int dt__table_recv(dt__world *w, int fd, int64_t deadline)
{
    uint8_t   *body = (uint8_t *)DT_COMM_MALLOC(DT__CFRAME_MAX);
    char       missing[400] = "";
    dt__chead  h;
    dt__ctable t;
    int        have = 0, got, status = 0;
    if (!body) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    while (have < w->size && status == 0) {
        got = dt__cframe_recv(fd, &h, body, deadline);
        if (got == 0)
            status = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: the world is not complete after %g s: %s",
                                  w->join_timeout, missing[0] ? missing : "rank 0 is there, but says nothing");
        else if (got < 0)
            status = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 left while this rank was joining (%s); %s",
                                  errno ? strerror(errno) : "it closed the connection", missing);
        else if (h.kind == DT__C_REFUSED)
            status = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %.*s", (int)(h.nbytes < 700 ? h.nbytes : 700),
                                  (char *)body);
        else if (h.kind == DT__C_MISSING)
            snprintf(missing, sizeof missing, "%.*s", (int)(h.nbytes < 390 ? h.nbytes : 390), (char *)body);
        else if (h.kind == DT__C_COSTS && h.nbytes == sizeof w->costs) {
            memcpy(&w->costs, body, sizeof w->costs);
            w->has_costs = dt__costs_sane(&w->costs);
            if (!w->has_costs) status = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 sent broken costs");
        } else if (h.kind == DT__C_TABLE && h.nbytes >= sizeof t) {
            memcpy(&t, body, sizeof t);
            if (t.total != w->size || t.first != have || t.n < 1 || t.n > w->size - have ||
                h.nbytes != sizeof t + (size_t)t.n * sizeof(dt__member))
                status = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 sent a broken table");
            else memcpy(w->member + have, body + sizeof t, (size_t)t.n * sizeof(dt__member)), have += t.n;
        } else
            status = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 sent frame %u, expected the table",
                                  (unsigned)h.kind);
    }
    DT_COMM_FREE(body);
    return status;
}
static void dt__world_close(dt__world *w)
{
#ifdef DT_USE_MPI
    bool died = false;
    for (int r = 0; w->mpi && w->control && r < w->size; r++) died = died || dt__world_gone(w, r) == 1;
#endif
    if (w->control) dt__control_end(w);
    dt__close(&w->listen_fd);
    dt__close(&w->unix_fd);
    pthread_mutex_destroy(&w->lock);
    DT_COMM_FREE(w->member);
    memset(w->token, 0, sizeof w->token);
#ifdef DT_USE_MPI
    if (w->mpi) dt__mpi_end(died);
#endif
    DT_COMM_FREE(w);
}
static int dt__join_first(dt__world *w, dt__config *f, int64_t deadline) /* rank 0 */
{
    char text[768];
    w->listen_fd = dt__listen_master(f);
    if (w->listen_fd < 0) return -1;
    if (f->ticket && !f->have_token && !dt__comm_random(w->token, 32))
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: no random numbers");
    if (!dt__comm_random(w->job, 16)) return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: no random numbers");
    if (dt__member_self(w, &w->member[0]) < 0 || dt__member_addr(w, &w->member[0], f->naddr ? &f->addr[0] : NULL) < 0)
        return -1;
    if (f->ticket) {
        dt__addr a;
        int64_t  until = dt__comm_now() + 2000000000;
        dt__addr_unix(&a, f->name);
        while ((w->ticket_fd = dt__listen(&a)) < 0 && errno == EADDRINUSE && dt__comm_now() < until)
            dt__comm_pause(10000000);
        if (w->ticket_fd < 0)
            return dt__comm_bad(DT_COMM_ERR_JOIN,
                                "dt_comm_init: the Unix socket @%s: %s; does another job with this port join now?",
                                f->name, strerror(errno));
    }
    w->join_deadline = deadline;
    if (dt__control_start(w) < 0)
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: no control thread: %s", strerror(errno));
    if (dt__control_wait_joined(w, deadline + 1000000000, text, sizeof text) == 0) return 0;
    return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %s", text);
}
static int dt__join_other(dt__world *w, dt__config *f, int64_t deadline)
{
    dt__member self;
    dt__addr   a;
    char       text[400];
    int64_t    wait = 1000000;
    int        got = 0, fd, parent = (w->rank - 1) / DT__TREE;
    while (f->ticket && (got = dt__ticket_take(f, w, deadline)) == 0) {
        if (dt__comm_now() >= deadline)
            return dt__comm_bad(DT_COMM_ERR_JOIN,
                                "dt_comm_init: rank 0 did not come within %g s: nobody of this user at the Unix "
                                "socket @%s",
                                w->join_timeout, f->name);
        dt__comm_pause(wait);
        wait = wait < 32000000 ? wait * 2 : wait;
    }
    if (got < 0) return got;
    fd = dt__dial_until(w, f->addr, f->naddr, 0, DT__KIND_REGISTER, 0, w->streams - 1, deadline, NULL, text,
                        sizeof text);
    if (fd < 0)
        return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank %d cannot join (within %g s): %s", w->rank,
                            w->join_timeout, text);
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    dt__addr to = a;
    if (getsockname(fd, &a.u.any, &a.n) != 0 || getpeername(fd, &to.u.any, &to.n) != 0 ||
        dt__listen_own(w, f, &to) < 0 || dt__member_self(w, &self) < 0 || dt__member_addr(w, &self, &a) < 0) {
        if (!dt__comm_text[0]) dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: %s", strerror(errno));
        close(fd);
        return DT_COMM_ERR_NET;
    }
    got = 0;
    if (dt__cframe_send(fd, DT__C_MEMBER, w->rank, &self, sizeof self, deadline) != 1)
        got = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank 0 left while this rank was joining");
    if (got == 0)
        got = dt__table_recv(w, fd, deadline + 700000000); /* rank 0 decides first, and names who is missing */
    if (got < 0) {
        close(fd);
        return got;
    }
    dt__table_finish(w);
    w->register_fd = fd;
    if (dt__control_start(w) < 0)
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: no control thread: %s", strerror(errno));
    if (parent == 0) w->register_fd = -1;
    else {
        if (!dt__addr_take(&a, w->member[parent].addr, w->member[parent].addr_len))
            return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: the table has no address of rank %d", parent);
        fd = dt__dial_until(w, &a, 1, parent, DT__KIND_TREE, 0, 0, deadline + 700000000, NULL, text, sizeof text);
        if (fd < 0) return dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank %d cannot join: %s", w->rank, text);
    }
    return dt__control_adopt(w, fd, parent);
}
static dt__world *dt__world_new(const dt__config *f)
{
    dt__world *w = (dt__world *)DT_COMM_MALLOC(sizeof *w);
    if (w) {
        memset(w, 0, sizeof *w);
        w->member = (dt__member *)DT_COMM_MALLOC((size_t)f->world * sizeof *w->member);
    }
    if (!w || !w->member) {
        DT_COMM_FREE(w);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory for a world of %d ranks", f->world);
        return NULL;
    }
    memset(w->member, 0, (size_t)f->world * sizeof *w->member);
    w->refs = 1;
    w->rank = f->rank;
    w->size = f->world;
    w->epoch = f->epoch;
    w->report_fd = f->report_fd;
    w->timeout = f->timeout;
    w->join_timeout = f->join_timeout;
    w->listen_fd = w->unix_fd = w->ticket_fd = w->register_fd = -1;
    w->streams = f->streams;
    memcpy(w->token, f->token, 32);
    memcpy(w->where, f->where, sizeof w->where);
    pthread_mutex_init(&w->lock, NULL);
    return w;
}
static dt__world *dt__world_join(const dt_comm_opts *o)
{
    dt__config f;
    char       text[768];
    int64_t    begin = dt__comm_now(), deadline;
    dt__comm_text[0] = 0;
    if (dt__config_read(&f, o) < 0) return NULL;
    dt__world *w = dt__world_new(&f);
    if (w) w->mpi = dt__transport_is(o, "mpi");
#ifdef DT_USE_MPI
    if (!w && dt__transport_is(o, "mpi")) dt__close(&f.listen_fd), dt__mpi_end(true);
#endif
    if (!w) return NULL;
    memset(f.token, 0, sizeof f.token);
    deadline = begin + (int64_t)(w->join_timeout * 1e9);
    const char *costs = dt__costs_named(o);
    if (costs && w->rank == 0) { /* what is wrong with it all get to know when they have come */
        w->has_costs = dt_costs_load(&w->costs, costs) == 0;
        if (!w->has_costs) snprintf(w->costs_bad, sizeof w->costs_bad, "%.390s", dt__comm_text);
        else dt__comm_text[0] = 0;
    }
    if (w->rank == 0 && !w->costs_bad[0] && (o->bandwidth > 0 || o->latency > 0)) { /* slow links cost what they do */
        if (!w->has_costs) w->costs = dt_costs_default();
        w->has_costs = true;
        dt__costs_slow(&w->costs, o->bandwidth, o->latency);
    }
    if (w->size == 1) {
        if (w->costs_bad[0]) {
            dt__world_close(w);
            return NULL;
        }
        dt__member_self(w, &w->member[0]);
        dt__table_finish(w);
    } else {
        int got = w->rank == 0 ? dt__join_first(w, &f, deadline) : dt__join_other(w, &f, deadline);
        if (w->mpi) dt__close(&f.listen_fd); /* the world has its own */
        if (got == 0) { /* the first exchange */
            int64_t until = dt__comm_now() + 2000000000;
            got = dt__gather(w, NULL, 0, NULL, until > deadline + 700000000 ? until : deadline + 700000000, text,
                             sizeof text);
            if (got < 0) dt__comm_bad(got, "dt_comm_init: %s", text);
        }
        if (w->register_fd >= 0) { /* rank 0 may forget this connection */
            if (got == 0) dt__cframe_send(w->register_fd, DT__C_BYE, w->rank, NULL, 0, dt__comm_now() + 1000000000);
            dt__close(&w->register_fd);
        }
        if (got < 0) {
            memcpy(text, dt__comm_text, sizeof text);
            dt__world_close(w);
            memcpy(dt__comm_text, text, sizeof text);
            return NULL;
        }
    }
    dt__logf(3, "rank %d of %d (%s), machine %d of %d, %d ranks here, joined in %.0f ms", w->rank, w->size,
                 w->where, w->member[w->rank].host, w->nhosts, w->local_size, (double)(dt__comm_now() - begin) * 1e-6);
    return w;
}

/* ---- dt_spawn */
static void dt__setenv_int(const char *name, int v)
{
    char text[16];
    snprintf(text, sizeof text, "%d", v);
    setenv(name, text, 1);
}
/* port 0: one of several machines, where the environment says the rest */
#if !defined(__cplusplus) && !defined(__USE_ISOC11)
extern void quick_exit(int status) __attribute__((noreturn));
#endif
static void dt__spawn_child(int rank, int n, int first, int world, int port, int listen_fd, int token_fd, pid_t parent,
                            int (*fn)(void *), void *arg)
{
    static const char *const other[] = {
        "DT_ADDR", "DT_PORT", "DT_BIND", "DT_TOKEN_FILE", "DT_REPORT_FD", "TORCHELASTIC_USE_AGENT_STORE"
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126); /* it died before this line */
    dt__setenv_int("RANK", first + rank);
    dt__setenv_int("WORLD_SIZE", world);
    dt__setenv_int("LOCAL_RANK", rank);
    dt__setenv_int("LOCAL_WORLD_SIZE", n);
    unsetenv("DT_LISTEN_FD");
    for (size_t i = 0; i < sizeof other / sizeof *other && port; i++) unsetenv(other[i]);
    if (port) {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        dt__setenv_int("MASTER_PORT", port);
        dt__setenv_int("DT_TOKEN_FD", token_fd);
        if (rank == 0) dt__setenv_int("DT_LISTEN_FD", listen_fd);
        else close(listen_fd);
    } else {
        close(token_fd);
    }
    int status = fn(arg);
    fflush(NULL);
    quick_exit(status < 0 || status > 255 ? 1 : status); /* what the parent has for atexit is the parent's */
}
/* Waits for all; *first: the first status that is not 0. After it the others have so much time until SIGTERM, then
   SIGKILL. */
static void dt__spawn_wait(pid_t *pid, int n, int *first, int64_t grace, int64_t last)
{
    struct pollfd *p = (struct pollfd *)DT_COMM_MALLOC((size_t)n * sizeof *p);
    int64_t        end = INT64_MAX;
    int            left = n, stage = 0, status;
    for (int i = 0; p && i < n; i++) {
        p[i].fd = -1;
#ifdef SYS_pidfd_open
        p[i].fd = (int)syscall(SYS_pidfd_open, pid[i], 0);
#endif
        p[i].events = POLLIN;
    }
    while (left > 0) {
        bool blind = !p;
        for (int i = 0; i < n; i++) {
            if (pid[i] == 0) continue;
            pid_t got = waitpid(pid[i], &status, WNOHANG);
            if (got == 0 || (got < 0 && errno == EINTR)) {
                blind = blind || p[i].fd < 0;
                continue;
            }
            if (got < 0) status = 0; /* somebody else has waited for it */
            pid[i] = 0;
            left--;
            if (p) dt__close(&p[i].fd);
            status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            if (status && !*first) *first = status;
            if (status && stage == 0) stage = 1, end = dt__comm_now() + grace;
        }
        if (left == 0) break;
        if (stage && dt__comm_now() >= end) {
            for (int i = 0; i < n; i++)
                if (pid[i]) kill(pid[i], stage == 1 ? SIGTERM : SIGKILL);
            end = stage++ == 1 ? dt__comm_now() + last : INT64_MAX;
        }
        int ms = end == INT64_MAX ? -1 : dt__poll_ms(end);
        if (blind && (ms < 0 || ms > 5)) ms = 5;
        poll(p, p ? (nfds_t)n : 0, ms);
    }
    DT_COMM_FREE(p);
}
static int dt__spawn(const char *call, int nodes, int node, int n, int (*fn)(void *arg), void *arg)
{
    uint8_t  token[32];
    dt__addr a;
    int      first = 0, started = 0, listen_fd = -1, port = 0, tube[2], status = 0;
    pid_t    parent = getpid();
    if (n < 1 || n > 4096 || !fn)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %d ranks and %s, expected 1 to 4096 and a function", call, n,
                            fn ? "a function" : "NULL");
    pid_t *pid = (pid_t *)DT_COMM_MALLOC((size_t)n * sizeof *pid);
    bool   ok = pid && dt__comm_random(token, 32);
    if (ok && nodes == 1) {
        dt__addr_loopback(&a, 0);
        listen_fd = dt__listen(&a);
        ok = listen_fd >= 0 && getsockname(listen_fd, &a.u.any, &a.n) == 0;
        if (ok) port = dt__addr_port(&a);
    }
    if (!ok) {
        status = dt__comm_bad(DT_COMM_ERR_NET, "%s: no memory, socket or random numbers: %s", call, strerror(errno));
        DT_COMM_FREE(pid);
        dt__close(&listen_fd);
        return status;
    }
    fflush(NULL); /* else the ranks would write what is buffered once more */
    for (; started < n; started++) {
        if (syscall(SYS_pipe2, tube, O_CLOEXEC) != 0) break;
        pid_t child = write(tube[1], token, 32) == 32 ? fork() : -1;
        close(tube[1]);
        if (child == 0) {
            DT_COMM_FREE(pid);
            dt__spawn_child(started, n, node * n, nodes * n, port, listen_fd, tube[0], parent, fn, arg);
        }
        close(tube[0]);
        if (child < 0) break;
        pid[started] = child;
    }
    if (started < n) {
        status =
            dt__comm_bad(DT_COMM_ERR_NET, "%s: rank %d of %d cannot be started: %s", call, started, n, strerror(errno));
        for (int i = 0; i < started; i++) kill(pid[i], SIGKILL);
    }
    dt__close(&listen_fd);
    dt__spawn_wait(pid, started, &first, 10000000000, 2000000000);
    DT_COMM_FREE(pid);
    return status ? status : first;
}
DT_API int dt_spawn(int n, int (*fn)(void *arg), void *arg) { return dt__spawn("dt_spawn", 1, 0, n, fn, arg); }
DT_API int dt_spawn_nodes(int nodes, int node, int n, int (*fn)(void *arg), void *arg)
{
    const char *call = "dt_spawn_nodes";
    if (nodes < 1 || node < 0 || node >= nodes || nodes > INT_MAX / 4096)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: node %d of %d; nodes count from 0", call, node, nodes);
    if (nodes > 1 && (!getenv("MASTER_ADDR") || !getenv("MASTER_PORT")))
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %d machines need MASTER_ADDR and MASTER_PORT: where rank 0 is", call,
                            nodes);
    return dt__spawn(call, nodes, node, n, fn, arg);
}

/* ==================================================================================================== >>control
   One thread for each world owns its control connections: a tree, the parent of rank r is (r-1)/16. The end of a
   connection without goodbye is the death of its rank; every neighbour of the dead one sees it and tells its piece of
   the tree, so all hear it. Those below a dead rank dial the next living one above it (or the lowest living rank), so
   that the tree is one again. The lock of the world guards everything here; the thread lets go of it only in poll.

   Leaving: a rank whose world is no longer used says so upwards when all below it have; rank 0 releases them, so an
   inner rank stays as long as somebody below needs it. Who has waited for its timeout says goodbye and goes alone: that
   is not a death, but a communicator that still needs it will time out. After a failure the wait is a second at most.
   */
enum { DT__INQUIRIES = 8, DT__ABORTS = 256, DT__ARRIVED_MAX = 16384, DT__WATCHES = 64, DT__AGREEMENTS = 64 };
enum { DT__ALIVE = 0, DT__DIED = 1, DT__LEFT = 2, DT__LOST = 3 }; /* LOST: out of reach, perhaps not dead */
typedef struct dt__cgather {
    uint64_t seq, n, at; /* n: bytes of a rank; at: of this piece, in the rank's part (up) or in all (down) */
    int32_t  rank, zero;
} dt__cgather;
typedef struct dt__piece { /* of an exchange, as it came; the bytes follow */
    struct dt__piece *next;
    int               rank;
    uint64_t          at;
    size_t            n;
} dt__piece;
typedef struct dt__cabort { /* the text follows */
    uint64_t comm;
    int32_t  status, rank;
} dt__cabort;
typedef struct dt__cdeath { /* the text follows */
    int32_t rank, how;
} dt__cdeath;
typedef struct dt__cask { /* the members follow: ranks in the world */
    uint64_t comm, seq;
    double   timeout;
    int32_t  asker, peer, n;
    uint32_t doing;
} dt__cask;
typedef struct dt__cping {
    uint64_t id, comm;
} dt__cping;
typedef struct dt__cstate { /* what a rank does in a communicator: pong and note */
    uint64_t id, comm, seq, done;
    int64_t  age; /* ns since it began */
    int32_t  rank, has;
    uint32_t doing, zero;
} dt__cstate;

typedef struct dt__cagree { /* the bits of who is asked follow, then of who is in: see dt__agreement */
    uint64_t comm, built;
    double   timeout;
    int32_t  round, rank, root, accepted, nbuilt;
    uint8_t  joined, decided, all, order; /* order: DT__AGREE_ASK ... */
} dt__cagree;

typedef struct dt__queued {
    struct dt__queued *next;
    dt__block         *b;
} dt__queued;
typedef struct dt__conn {
    struct dt__conn *next;
    int              fd, kind, peer, slot;
    bool             shaking, broken, ready, bye, closing, local, said, shut;
    bool             probe, refused; /* only to see whether it can be reached; nobody listens there */
    int64_t          since, deadline; /* of the handshake */
    dt__shake        shake;
    dt__chead        head;
    size_t           head_done, body_done, body_cap;
    uint8_t         *body;
    dt__queued      *out, *last;
    size_t           out_done;
    dt__block       *later;      /* goes out when the handshake is done */
    int32_t          leave;      /* ranks below that want to leave */
    dt__cstate       note, told; /* the last one of the peer; of ours */
} dt__conn;
typedef struct dt__arrived {
    struct dt__arrived *next;
    int                 fd, kind, peer, stream;
    uint64_t            comm;
    int64_t             since;
} dt__arrived;
typedef struct dt__inquiry {
    int state; /* 0 free, 1 sent to the parent, 2 the parent is alive: wait for the verdict, 3 collecting answers */
    dt__cask    ask;
    int32_t    *member;
    dt__cstate *answer; /* of each rank of the world */
    uint64_t    id;
    int64_t     begin;
} dt__inquiry;
enum { DT__AGREE_ASK = 0, DT__AGREE_PROPOSE, DT__AGREE_DECIDE };
typedef struct dt__agreement { /* see dt__agree_step */
    uint64_t comm;             /* 0: free */
    int32_t  round;
    double   timeout;
    int64_t  begin, said;      /* ns; said: the last order of the root, the last state of a rank that waits */
    uint8_t *asked, *in;       /* bits; in: of what was accepted or decided. One block with the next three */
    bool     waiting, joined, decided, all;
    uint64_t built;
    int32_t  nbuilt, accepted; /* accepted: the root whose proposal it was, or -1 */
    /* at the root */
    uint8_t *came, *acked, *late;
    bool     proposed, same;   /* same: all who came have built the same */
    bool     any;              /* somebody came */
    uint64_t theirs;           /* what */
    int32_t  ntheirs;
    int64_t *heard;            /* of each rank of the world, ns; NULL: this rank is not the root */
} dt__agreement;
struct dt__control {
    pthread_t      thread;
    pthread_cond_t cond;
    bool           started, stop;
    int            wake;
    dt__conn      *conns, *parent, *healing;
    int            heal_tries;
    int            lost; /* how the last parent went */
    uint8_t       *gone; /* DT__ALIVE ... of each rank */
    int            ngone, ndied;
    char           first_death[256];
    int64_t        accept_after;
    int64_t        strangers_at; /* when one was last logged */
    int            strangers;    /* since then */
    /* registering, at rank 0 */
    bool         complete, join_failed;
    uint8_t     *there;
    int          nthere;
    char         join_text[768], refused[240];
    int64_t      missing_at;
    dt__arrived *arrived, *arrived_last;
    int          narrived;
    dt__block   *aborts[DT__ABORTS];
    int          naborts;
    /* exchanging: this rank's call; what rank 0 collects */
    uint64_t    gather_seq, gather_failed;
    bool        gathering;
    int         gather_state; /* 0 under way, 1 done, negative */
    uint8_t    *gather_out;
    uint64_t    gather_n, gather_got;
    char        gather_text[768];
    bool        root_on;
    dt__piece  *root_pieces; /* memory for what came, never for what was only announced */
    uint64_t   *root_have, root_seq, root_n;
    int         root_done;
    int64_t     root_deadline;
    dt__inquiry inquiry[DT__INQUIRIES];
    uint64_t    inquiry_id;
    dt__frame   watch[DT__WATCHES]; /* operations in which somebody waits: see dt__watch_take */
    dt__agreement agreement[DT__AGREEMENTS];
    int64_t     hop_since;       /* the parent was asked whether it lives; 0: it has answered */
    bool        expelled;        /* the others have given this rank up */
    uint64_t    turns, settling; /* times around the thread's loop; who waits for it */
    int64_t     note_at;
    dt__cstate  note;
    uint32_t    note_doing;
    /* leaving */
    bool    leaving, released, alone, goodbye;
    int64_t leave_deadline, release_deadline;
    int     leave_sent;
};

static void dt__control_gone(dt__world *w, int rank, int how, const char *text, const dt__conn *from);
static void dt__control_abort(dt__world *w, uint64_t comm, int status, int rank, const char *text,
                              const dt__conn *from);
static void dt__gather_fail(dt__world *w, uint64_t seq, const char *text, const dt__conn *from);
static void dt__control_heal(dt__world *w);
static void dt__control_expelled(dt__world *w, const char *why);
static void dt__agree_said(dt__world *w);
static void dt__inquiry_begin(dt__world *w, const dt__cask *ask, const int32_t *member, bool own);
/* >>simulator: there is something for what would be the control thread; a connection of the simulator's */
static void      dt__sim_stir(dt__world *w);
static dt__conn *dt__sim_dial(dt__world *w, int peer, int kind, dt__block *later);

/* ---- frames and connections */
static dt__block *dt__block_new(int kind, int rank, const void *a, size_t na, const void *b, size_t nb)
{
    dt__block *k = (dt__block *)DT_COMM_MALLOC(sizeof *k + sizeof(dt__chead) + na + nb);
    dt__chead  h;
    if (!k) return NULL;
    h.magic = DT__CFRAME_MAGIC;
    h.kind = (uint32_t)kind;
    h.nbytes = (uint32_t)(na + nb);
    h.rank = rank;
    k->refs = 1;
    k->nbytes = sizeof h + na + nb;
    uint8_t *p = (uint8_t *)(k + 1);
    memcpy(p, &h, sizeof h);
    if (na) memcpy(p + sizeof h, a, na);
    if (nb) memcpy(p + sizeof h + na, b, nb);
    return k;
}
static void dt__block_unref(dt__block *b)
{
    if (b && --b->refs == 0) DT_COMM_FREE(b);
}
static uint8_t *dt__block_body(dt__block *b) { return (uint8_t *)(b + 1) + sizeof(dt__chead); }
static void     dt__conn_queue(dt__conn *k, dt__block *b) /* does not take the caller's reference */
{
    dt__queued *q = b ? (dt__queued *)DT_COMM_MALLOC(sizeof *q) : NULL;
    if (!q) { /* what cannot be told is as bad as a lost connection */
        k->broken = true;
        return;
    }
    q->next = NULL;
    q->b = b;
    b->refs++;
    if (k->last) k->last->next = q;
    else k->out = q;
    k->last = q;
}
static void dt__conn_say(dt__conn *k, int kind, int rank, const void *body, size_t n)
{
    dt__block *b = dt__block_new(kind, rank, body, n, NULL, 0);
    dt__conn_queue(k, b);
    dt__block_unref(b);
}
static void dt__conn_pop(dt__conn *k) /* the first frame of the queue is sent, or will not be */
{
    dt__queued *q = k->out;
    k->out = q->next;
    if (!k->out) k->last = NULL;
    k->out_done = 0;
    dt__block_unref(q->b);
    DT_COMM_FREE(q);
}
static void dt__conn_flush(dt__conn *k)
{
    if (k->fd < 0) return; /* the simulator takes what is to be said */
    while (k->out && !k->broken) {
        int got = dt__send_some(k->fd, k->out->b + 1, k->out->b->nbytes, &k->out_done);
        if (got == 0) return;
        if (got < 0) {
            /* what the peer has sent is still to be read: its goodbye may be there */
            while (k->out) dt__conn_pop(k);
            return;
        }
        dt__conn_pop(k);
    }
    if (!k->out && k->closing && !k->shaking) k->broken = true;
}
static dt__conn *dt__conn_new(dt__world *w, int fd, int kind, int peer)
{
    dt__conn *k = (dt__conn *)DT_COMM_MALLOC(sizeof *k);
    if (!k) return NULL;
    memset(k, 0, sizeof *k);
    k->fd = fd;
    k->kind = kind;
    k->peer = peer;
    k->slot = -1;
    k->since = dt__comm_now();
    k->deadline = k->since + 5000000000;
    k->next = w->control->conns;
    w->control->conns = k;
    return k;
}
static void dt__conn_free(dt__conn *k)
{
    dt__close(&k->fd);
    while (k->out) dt__conn_pop(k);
    dt__block_unref(k->later);
    DT_COMM_FREE(k->body);
    DT_COMM_FREE(k);
}
static bool dt__conn_in_tree(const dt__conn *k) { return k->kind == DT__KIND_TREE && k->ready && !k->broken; }
static void dt__control_flood(dt__world *w, dt__block *b, const dt__conn *except)
{
    for (dt__conn *k = w->control->conns; b && k; k = k->next)
        if (k != except && dt__conn_in_tree(k)) dt__conn_queue(k, b);
}
static void dt__control_wake(dt__world *w)
{
    uint64_t one = 1;
    if (w->sim) dt__sim_stir(w);
    else if (write(w->control->wake, &one, sizeof one) < 0) return; /* full: it is awake */
}
static bool        dt__control_is_root(const dt__world *w) { return !w->control->parent && !w->control->healing; }
static const char *dt__who(const dt__world *w, int rank, char *buf, size_t nbytes)
{
    snprintf(buf, nbytes, "rank %d (%s, pid %" PRId64 ")", rank, w->member[rank].host_name, w->member[rank].pid);
    return buf;
}
/* As dt_coll_name; a note from another rank may hold any number. */
static const char *dt__coll_word(uint32_t coll)
{
    return coll ? dt_coll_name((dt_coll)(coll - 1)) : "an operation";
}
static void dt__control_stranger(dt__world *w, int fd, const char *why) /* a line a second at most */
{
    dt__control *ctl = w->control;
    char         at[80];
    ctl->strangers++;
    if (ctl->strangers_at && dt__comm_now() < ctl->strangers_at + 1000000000) return;
    dt__logf(2, "rank %d refused a connection from %s: %s (%d since the last such line)", w->rank,
                 dt__peer_text(fd, at, sizeof at), why, ctl->strangers);
    ctl->strangers_at = dt__comm_now();
    ctl->strangers = 0;
}
/* "rank 3, 5 and 9 more" */
static void dt__rank_list(char *buf, size_t nbytes, const int *rank, int n)
{
    size_t used = (size_t)snprintf(buf, nbytes, "%s ", n == 1 ? "rank" : "ranks");
    for (int i = 0; i < n && i < 8 && used < nbytes; i++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%d", i ? ", " : "", rank[i]);
    if (n > 8 && used < nbytes) snprintf(buf + used, nbytes - used, " and %d more", n - 8);
}

/* ---- registering: rank 0 until the table is complete */
static void dt__register_missing(dt__world *w, char *buf, size_t nbytes)
{
    int first[8] = { 0 }, n = 0;
    for (int r = 1; r < w->size; r++)
        if (!w->control->there[r]) {
            if (n < 8) first[n] = r;
            n++;
        }
    char list[160];
    dt__rank_list(list, sizeof list, first, n);
    if (n == 0) snprintf(buf, nbytes, "no rank is missing");
    else
        snprintf(buf, nbytes, "missing: %s (%d of %d are there)%s%s", list, w->size - n, w->size,
                 w->control->refused[0] ? "; refused: " : "", w->control->refused);
}
static void dt__register_fail(dt__world *w, const char *text)
{
    dt__control *ctl = w->control;
    if (ctl->complete || ctl->join_failed) return;
    ctl->join_failed = true;
    snprintf(ctl->join_text, sizeof ctl->join_text, "%s", text);
    dt__logf(1, "joining failed: %s", text);
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (k->kind == DT__KIND_REGISTER && !k->shaking && !k->broken) {
            dt__conn_say(k, DT__C_REFUSED, 0, text, strnlen(text, DT__CTEXT));
            k->bye = true;
        }
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__register_complete(dt__world *w)
{
    dt__control *ctl = w->control;
    dt__block   *b;
    int          each = (int)((DT__CFRAME_MAX - sizeof(dt__ctable)) / sizeof(dt__member));
    dt__table_finish(w);
    if (w->has_costs) {
        b = dt__block_new(DT__C_COSTS, 0, &w->costs, sizeof w->costs, NULL, 0);
        for (dt__conn *k = ctl->conns; k; k = k->next)
            if (k->kind == DT__KIND_REGISTER && k->ready) dt__conn_queue(k, b);
        dt__block_unref(b);
    }
    for (int at = 0; at < w->size; at += each) {
        dt__ctable t;
        memset(&t, 0, sizeof t);
        t.total = w->size;
        t.first = at;
        t.n = w->size - at < each ? w->size - at : each;
        b = dt__block_new(DT__C_TABLE, 0, &t, sizeof t, w->member + at, (size_t)t.n * sizeof(dt__member));
        for (dt__conn *k = ctl->conns; k; k = k->next)
            if (k->kind == DT__KIND_REGISTER && k->ready) dt__conn_queue(k, b);
        dt__block_unref(b);
    }
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (k->kind == DT__KIND_REGISTER && k->ready && (k->peer - 1) / DT__TREE == 0) k->kind = DT__KIND_TREE;
    ctl->complete = true;
    dt__close(&w->ticket_fd);
    pthread_cond_broadcast(&ctl->cond);
}
static bool dt__register_member(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    if (k->head.nbytes != sizeof(dt__member) || k->ready || ctl->complete) return false;
    if (ctl->join_failed) return true;
    dt__member *m = &w->member[k->peer];
    memcpy(m, k->body, sizeof *m);
    m->host_name[sizeof m->host_name - 1] = 0;
    k->ready = true;
    dt__logf(4, "rank %d (%s, pid %" PRId64 ") is there, %d of %d", k->peer, m->host_name, m->pid, ctl->nthere + 1,
                 w->size);
    if (++ctl->nthere < w->size) return true;
    if (w->costs_bad[0]) dt__register_fail(w, w->costs_bad);
    else dt__register_complete(w);
    return true;
}
static void dt__register_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    char         missing[480], text[768];
    if (w->rank != 0 || ctl->complete || ctl->join_failed) return;
    if (now >= w->join_deadline) {
        dt__register_missing(w, missing, sizeof missing);
        snprintf(text, sizeof text, "the world is not complete after %g s: %s", w->join_timeout, missing);
        dt__register_fail(w, text);
    } else if (now >= ctl->missing_at) {
        dt__register_missing(w, missing, sizeof missing);
        for (dt__conn *k = ctl->conns; ctl->missing_at && k; k = k->next)
            if (k->kind == DT__KIND_REGISTER && k->ready) dt__conn_say(k, DT__C_MISSING, 0, missing, strlen(missing));
        ctl->missing_at = now + 1000000000;
    }
}
static int dt__control_wait_joined(dt__world *w, int64_t deadline, char *text, size_t nbytes)
{
    dt__control *ctl = w->control;
    (void)deadline; /* the control thread keeps it */
    pthread_mutex_lock(&w->lock);
    while (!ctl->complete && !ctl->join_failed) pthread_cond_wait(&ctl->cond, &w->lock);
    snprintf(text, nbytes, "%s", ctl->join_text);
    bool ok = ctl->complete;
    pthread_mutex_unlock(&w->lock);
    return ok ? 0 : -1;
}

/* ---- accepting */
/* 0, or refused with a sentence. The peer knows the token. */
static int dt__control_admit(dt__world *w, const dt__conn *k, char *text, size_t nbytes)
{
    dt__control       *ctl = w->control;
    const dt__hello_c *c = &k->shake.c;
    int                bad = DT_COMM_ERR_JOIN;
    if (c->version != DT__SHAKE_VERSION)
        return snprintf(text, nbytes,
                        "rank %d has version %u of the protocol, rank %d has %d: all ranks need the same dt_comm.h",
                        c->rank, (unsigned)c->version, w->rank, DT__SHAKE_VERSION),
               bad;
    if (c->epoch != w->epoch)
        return snprintf(text, nbytes, "rank %d is of start %" PRId64 " of the job, rank %d of start %" PRId64, c->rank,
                        c->epoch, w->rank, w->epoch),
               bad;
    if (c->world != w->size)
        return snprintf(text, nbytes, "rank %d says the world has %d ranks, rank %d says %d", c->rank, c->world,
                        w->rank, w->size),
               bad;
    if (c->rank < 0 || c->rank >= w->size)
        return snprintf(text, nbytes, "rank %d is out of range: the world has ranks 0 to %d", c->rank, w->size - 1),
               bad;
    if (c->rank == w->rank) return snprintf(text, nbytes, "there is a rank %d already", c->rank), bad;
    if (c->to != w->rank)
        return snprintf(text, nbytes, "rank %d wants rank %d, this is rank %d", c->rank, c->to, w->rank), bad;
    if (memcmp(c->job, w->job, 16) != 0) return snprintf(text, nbytes, "rank %d is of another job", c->rank), bad;
    if (c->kind == DT__KIND_REGISTER) {
        if (w->rank != 0)
            return snprintf(text, nbytes, "rank %d cannot be registered here: this is rank %d", c->rank, w->rank), bad;
        if (ctl->complete || ctl->there[c->rank])
            return snprintf(text, nbytes, "there is a rank %d already%s", c->rank,
                            ctl->complete ? ": the world is complete" : ""),
                   bad;
        if (c->stream != w->streams - 1) /* the last of them */
            return snprintf(text, nbytes, "rank %d has .streams %lld, rank %d has %d: all ranks need the same", c->rank,
                            (long long)c->stream + 1, w->rank, w->streams),
                   bad;
        return 0;
    }
    if (w->rank == 0 && !ctl->complete) return snprintf(text, nbytes, "the world is not complete yet"), bad;
    if (ctl->gone[c->rank])
        return snprintf(text, nbytes, "rank %d has been declared %s", c->rank,
                        ctl->gone[c->rank] == DT__LEFT ? "gone" : "dead"),
               (int)DT_COMM_ERR_PEER;
    if (ctl->leaving && ctl->released) return snprintf(text, nbytes, "rank %d is leaving", w->rank), bad;
    if (c->kind == DT__KIND_TREE) {
        for (dt__conn *i = ctl->conns; i; i = i->next)
            if (i != k && i->kind == DT__KIND_TREE && i->peer == c->rank && !i->broken)
                return snprintf(text, nbytes, "rank %d is in the tree already", c->rank), bad;
        return c->rank > w->rank ? 0 : (snprintf(text, nbytes, "rank %d is not below rank %d", c->rank, w->rank), bad);
    }
    if ((c->kind == DT__KIND_LINK && !k->local) || (c->kind == DT__KIND_FD && k->local)) {
        if (ctl->narrived >= DT__ARRIVED_MAX)
            return snprintf(text, nbytes, "rank %d has too many connections that nobody wants", w->rank), bad;
        return 0;
    }
    if (c->kind == DT__KIND_NEWS) return 0;
    return snprintf(text, nbytes, "connections of kind %d are unknown", c->kind), bad;
}
static void dt__control_accept(dt__world *w, int listener, bool local)
{
    dt__control *ctl = w->control;
    for (int i = 0; i < 64; i++) {
        int fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        bool full = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
        if (fd < 0 && !full) return;
        int       npending = 0;
        dt__conn *oldest = NULL;
        for (dt__conn *k = ctl->conns; k; k = k->next) {
            if (!k->shaking || !k->shake.server || k->broken) continue;
            npending++;
            if (!oldest || k->since < oldest->since) oldest = k;
        }
        if (oldest && (full || npending >= w->size + 64)) {
            dt__control_stranger(w, oldest->fd, "too many that say nothing");
            oldest->broken = true;
            dt__close(&oldest->fd);
        }
        if (full) {
            if (!oldest) ctl->accept_after = dt__comm_now() + 20000000;
            return;
        }
        dt__conn *k = local && !dt__same_user(fd) ? NULL : dt__conn_new(w, fd, 0, -1);
        if (!k) {
            close(fd);
            continue;
        }
        k->local = local;
        k->shaking = true;
        if (!dt__shake_server(&k->shake, w)) k->broken = true;
    }
}
static void dt__control_ticket(dt__world *w)
{
    for (int i = 0; i < 64; i++) {
        int fd = (int)syscall(SYS_accept4, w->ticket_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) w->control->accept_after = dt__comm_now() + 20000000;
            return;
        }
        dt__ticket t;
        size_t     done = 0;
        memset(&t, 0, sizeof t);
        t.magic = DT__SHAKE_MAGIC;
        t.version = DT__SHAKE_VERSION;
        memcpy(t.token, w->token, 32);
        memcpy(t.addr, w->member[0].addr, sizeof t.addr);
        t.addr_len = w->member[0].addr_len;
        if (dt__same_user(fd)) dt__send_some(fd, &t, sizeof t, &done);
        else dt__control_stranger(w, fd, "another user asked for the token");
        close(fd);
    }
}
static void dt__control_sync(dt__world *w, dt__conn *k) /* a new neighbour hears what has happened */
{
    dt__control *ctl = w->control;
    for (int r = 0; r < w->size; r++)
        if (ctl->gone[r]) {
            char       text[256], who[160];
            dt__cdeath d;
            d.rank = r;
            d.how = ctl->gone[r];
            snprintf(text, sizeof text, "%s %s", dt__who(w, r, who, sizeof who), d.how == DT__LEFT ? "left" : "died");
            dt__block *b = dt__block_new(DT__C_DEATH, r, &d, sizeof d, text, strlen(text));
            dt__conn_queue(k, b);
            dt__block_unref(b);
        }
    for (int i = 0; i < ctl->naborts && i < DT__ABORTS; i++) dt__conn_queue(k, ctl->aborts[i]);
}
static void dt__conn_shaken(dt__world *w, dt__conn *k);
/* The handshake of a connection goes on. */
static void dt__conn_shake(dt__world *w, dt__conn *k)
{
    dt__control *ctl = w->control;
    char         text[184];
    int          got = dt__shake_step(&k->shake, k->fd);
    if (got == DT__SHAKE_DECIDE) {
        int status = dt__control_admit(w, k, text, sizeof text);
        if (status == 0) {
            k->kind = k->shake.c.kind;
            k->peer = k->shake.c.rank;
            text[0] = 0;
            if (k->kind == DT__KIND_REGISTER) ctl->there[k->peer] = 1;
        } else {
            dt__logf(2, "rank %d refused: %s", w->rank, text);
            if (!ctl->complete) snprintf(ctl->refused, sizeof ctl->refused, "%s", text);
        }
        dt__shake_reply(&k->shake, status, text);
        got = dt__shake_step(&k->shake, k->fd);
    }
    if (got == DT__SHAKE_AGAIN) return;
    if (got != DT__SHAKE_DONE) {
        k->refused = got == DT__SHAKE_NET && (errno == ECONNREFUSED || errno == ECONNRESET);
        if (got == DT__SHAKE_REFUSED && !k->shake.server && k->kind == DT__KIND_TREE &&
            k->shake.r.status == DT_COMM_ERR_PEER)
            dt__control_expelled(w, k->shake.r.text);
        if (k->shake.server && got != DT__SHAKE_REFUSED)
            dt__control_stranger(w, k->fd,
                                 got == DT__SHAKE_NET    ? "it went away"
                                 : got == DT__SHAKE_AUTH ? "it has another token"
                                                         : "it does not speak dt");
        k->broken = true;
        return;
    }
    dt__conn_shaken(w, k);
}
static void dt__conn_shaken(dt__world *w, dt__conn *k) /* both sides know each other */
{
    dt__control *ctl = w->control;
    k->shaking = false;
    if (!k->local) dt__sock_tune(k->fd, w->timeout);
    if (k->kind == DT__KIND_REGISTER && ctl->join_failed) { /* too late */
        dt__conn_say(k, DT__C_REFUSED, 0, ctl->join_text, strnlen(ctl->join_text, DT__CTEXT));
        k->bye = true;
    }
    if (k->shake.server && (k->kind == DT__KIND_LINK || k->kind == DT__KIND_FD)) {
        dt__arrived *a = (dt__arrived *)DT_COMM_MALLOC(sizeof *a);
        k->broken = true;
        if (!a) return;
        memset(a, 0, sizeof *a);
        a->fd = k->fd;
        a->kind = k->kind;
        a->peer = k->peer;
        a->comm = k->shake.c.comm;
        a->stream = k->shake.c.stream;
        a->since = dt__comm_now();
        k->fd = -1;
        if (ctl->arrived_last) ctl->arrived_last->next = a;
        else ctl->arrived = a;
        ctl->arrived_last = a;
        ctl->narrived++;
        /* who waits for it */
        for (dt_comm *c = w->comms; c; c = c->next) {
            uint64_t one = 1;
            if (c->id == a->comm && c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) < 0) break;
        }
        pthread_cond_broadcast(&ctl->cond);
    } else if (!k->shake.server && k->kind == DT__KIND_TREE) { /* the new parent */
        ctl->parent = k;
        ctl->healing = NULL;
        ctl->leave_sent = 0;
        ctl->hop_since = 0;
        ctl->heal_tries = 0;
        k->ready = true;
        dt__conn_say(k, DT__C_SYNC, w->rank, NULL, 0);
        dt__control_sync(w, k);
        dt__agree_said(w);
    } else if (!k->shake.server && k->later) {
        dt__conn_queue(k, k->later);
        k->closing = true;
    } else if (k->probe) k->broken = true; /* it is there */
}
/* A connection of the control thread's own. */
static dt__conn *dt__control_dial(dt__world *w, int peer, int kind, dt__block *later)
{
    dt__addr  a;
    dt__conn *k;
    if (w->sim) return dt__sim_dial(w, peer, kind, later);
    if (!dt__addr_take(&a, w->member[peer].addr, w->member[peer].addr_len)) return NULL;
    int fd = dt__connect(&a);
    if (fd < 0 || !(k = dt__conn_new(w, fd, kind, peer))) {
        dt__close(&fd);
        return NULL;
    }
    k->shaking = true;
    k->deadline = k->since + 1000000000;
    if (!dt__shake_client(&k->shake, w, peer, kind, 0, 0)) k->broken = true;
    if (later) {
        later->refs++;
        k->later = later;
    }
    return k;
}
/* The parent is gone: the next above that lives, or the lowest that lives; -1: that is this rank. */
static int dt__control_above(const dt__world *w)
{
    const uint8_t *gone = w->control->gone;
    for (int r = w->rank; r > 0;) {
        r = (r - 1) / DT__TREE;
        if (!gone[r]) return r;
    }
    for (int r = 0; r < w->rank; r++)
        if (!gone[r]) return r;
    return -1;
}
/* Is it on this machine, and stopped or no longer there? */
static bool dt__process_still(const dt__world *w, int rank)
{
    char    path[48], text[512];
    ssize_t n;
    if (w->sim || w->member[rank].host != w->member[w->rank].host) return false;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", w->member[rank].pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* behind the name */
    return end && end[1] == ' ' && strchr("TtZX", end[2]) != NULL;
}
/* A connection to rank could not be made. Nobody listens there: it died, or left as the one below it did. Else nobody
   knows. */
static void dt__control_unreached(dt__world *w, int rank, bool refused)
{
    char text[256], who[160];
    bool left = w->control->lost == DT__LEFT;
    refused = refused || dt__process_still(w, rank);
    w->control->heal_tries = 0;
    snprintf(text, sizeof text, "%s %s%s", dt__who(w, rank, who, sizeof who), left ? "left" : "died",
             refused ? "" : ", or cannot be reached");
    dt__control_gone(w, rank, left ? DT__LEFT : refused ? DT__DIED : DT__LOST, text, NULL);
}
static void dt__control_release(dt__world *w, const dt__conn *from) /* all below may go, and so may this rank */
{
    dt__block *b = dt__block_new(DT__C_LEAVE_DOWN, w->rank, NULL, 0, NULL, 0);
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    w->control->released = true;
    w->control->release_deadline = dt__comm_now() + 500000000;
}
static void dt__control_heal(dt__world *w)
{
    dt__control *ctl = w->control;
    while (!ctl->parent && !ctl->healing && !ctl->released && !ctl->expelled) {
        if (ctl->leaving && ctl->leave_sent) { /* all below are leaving, too: nobody needs a parent */
            dt__control_release(w, NULL);
            return;
        }
        int r = dt__control_above(w);
        if (r < 0) return;
        ctl->healing = dt__control_dial(w, r, DT__KIND_TREE, NULL);
        if (!ctl->healing) dt__control_unreached(w, r, errno == ECONNREFUSED);
    }
}

/* ---- deaths and aborts */
static void dt__comm_gone(dt__world *w, dt_comm *c, int rank, const char *text)
{
    char more[768];
    (void)w;
    for (int i = 0; i < c->size; i++)
        if (c->member[i] == rank) {
            if (i != rank) snprintf(more, sizeof more, "%.680s [rank %d of this communicator]", text, i);
            dt__comm_failed(c, DT_COMM_ERR_PEER, i, i == rank ? text : more);
            return;
        }
}
static void dt__control_gone(dt__world *w, int rank, int how, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cdeath   d;
    if (rank == w->rank) {
        dt__control_expelled(w, text);
        return;
    }
    if (ctl->gone[rank] || ctl->released) return;
    ctl->gone[rank] = (uint8_t)how;
    ctl->ngone++;
    if (how != DT__LEFT) {
        if (ctl->ndied++ == 0) snprintf(ctl->first_death, sizeof ctl->first_death, "%s", text);
        dt__logf(1, "rank %d: %s", w->rank, text);
        for (dt_comm *c = w->comms; c; c = c->next) dt__comm_gone(w, c, rank, text);
    } else dt__logf(3, "rank %d: %s", w->rank, text);
    d.rank = rank;
    d.how = how;
    dt__block *b = dt__block_new(DT__C_DEATH, rank, &d, sizeof d, text, strnlen(text, DT__CTEXT));
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    for (dt__conn *k = ctl->conns; k && how != DT__LEFT; k = k->next) { /* given up: it hears that if it goes on */
        if (k->peer != rank || k == from || !dt__conn_in_tree(k)) continue;
        if (k == ctl->parent) ctl->lost = DT__DIED;
        dt__conn_flush(k);
        k->bye = k->broken = true;
    }
    dt__gather_fail(w, ctl->gather_seq > ctl->root_seq ? ctl->gather_seq : ctl->root_seq, text, from);
    if (w->rank == 0 && !ctl->complete) dt__register_fail(w, text);
    pthread_cond_broadcast(&ctl->cond);
}
/* The others have given this rank up, and go on without it. */
static void dt__control_expelled(dt__world *w, const char *why)
{
    dt__control *ctl = w->control;
    char         text[DT__CTEXT + 1];
    if (ctl->expelled || ctl->released) return;
    snprintf(text, sizeof text, "the other ranks have given up this one, rank %d: %.500s", w->rank, why);
    dt__logf(1, "%s", text);
    ctl->expelled = true;
    ctl->gone[w->rank] = DT__DIED;
    ctl->ngone++;
    if (ctl->ndied++ == 0) snprintf(ctl->first_death, sizeof ctl->first_death, "%.255s", text);
    for (dt_comm *c = w->comms; c; c = c->next) dt__comm_gone(w, c, w->rank, text);
    for (dt__conn *k = ctl->conns; k; k = k->next)
        if (k->kind == DT__KIND_TREE) k->bye = k->broken = true;
    if (ctl->gathering && ctl->gather_state == 0) ctl->gather_state = DT_COMM_ERR_PEER;
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__control_doing(const dt__cstate *s, char *buf, size_t nbytes)
{
    if (!s->has) snprintf(buf, nbytes, "%s", "");
    else if (s->seq > s->done) snprintf(buf, nbytes, "; it was in %s #%" PRIu64, dt__coll_word(s->doing), s->seq);
    else if (s->seq)
        snprintf(buf, nbytes, "; it was in its program after %s #%" PRIu64, dt__coll_word(s->doing), s->seq);
    else snprintf(buf, nbytes, "; it was in its program, before its first call");
}
/* Notes are a quarter of a second old. What a rank of this machine did last is in the memory it shares with us. */
static void dt__control_seat(dt__world *w, int rank, dt__cstate *s)
{
    uint64_t latest = 0, done;
    for (dt_comm *c = w->comms; c; c = c->next)
        for (int i = 0; i < c->size; i++) {
            dt__frame f;
            if (c->member[i] != rank || !dt__shared_last(c, i, &f, &done) || f.sent < latest) continue;
            latest = f.sent;
            s->has = 1;
            s->comm = c->id;
            s->seq = f.seq + 1;
            s->done = done;
            s->doing = (uint32_t)f.coll + 1;
        }
}
/* A connection has ended. */
static void dt__conn_lost(dt__world *w, dt__conn *k, const char *how)
{
    dt__control *ctl = w->control;
    char         text[768], who[160], doing[120], missing[480];
    k->broken = true;
    if (k == ctl->parent) ctl->lost = k->bye ? DT__LEFT : DT__DIED;
    if (k->closing || k->bye || ctl->released || ctl->expelled || k->peer < 0) return;
    int error = errno;
    if (k->kind == DT__KIND_REGISTER && !ctl->complete) {
        ctl->there[k->peer] = 0;
        if (!k->ready) return; /* it has not said who it is: perhaps it did not like our answer */
        ctl->nthere--;
        dt__register_missing(w, missing, sizeof missing);
        snprintf(text, sizeof text, "%s left while joining; %s", dt__who(w, k->peer, who, sizeof who), missing);
        dt__register_fail(w, text);
        return;
    }
    if ((k->kind != DT__KIND_TREE && k->kind != DT__KIND_REGISTER) || !k->ready) return;
    dt__control_seat(w, k->peer, &k->note);
    dt__control_doing(&k->note, doing, sizeof doing);
    snprintf(text, sizeof text, "%s died (%s)%s", dt__who(w, k->peer, who, sizeof who), how, doing);
    bool far = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
    if (!(ctl->leaving && ctl->leave_sent && k == ctl->parent))
        dt__control_gone(w, k->peer, far ? DT__LOST : DT__DIED, text, k);
}
static bool dt__abort_heard(const dt__control *ctl, uint64_t comm)
{
    dt__cabort a;
    for (int i = 0; i < ctl->naborts && i < DT__ABORTS; i++) {
        memcpy(&a, dt__block_body(ctl->aborts[i]), sizeof a);
        if (a.comm == comm) return true;
    }
    return false;
}
static void dt__control_abort(dt__world *w, uint64_t comm, int status, int rank, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    dt__cabort   a;
    if (dt__abort_heard(ctl, comm)) return;
    a.comm = comm;
    a.status = status;
    a.rank = rank;
    dt__block *b = dt__block_new(DT__C_ABORT, w->rank, &a, sizeof a, text, strnlen(text, DT__CTEXT));
    if (!b) return;
    dt__block_unref(ctl->aborts[ctl->naborts % DT__ABORTS]);
    ctl->aborts[ctl->naborts % DT__ABORTS] = b;
    ctl->naborts = ctl->naborts + 1 < 2 * DT__ABORTS ? ctl->naborts + 1 : DT__ABORTS;
    for (dt_comm *c = w->comms; c; c = c->next)
        if (c->id == comm) dt__comm_failed(c, status, rank >= 0 && rank < c->size ? rank : -1, text);
    dt__control_flood(w, b, from);
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__world_abort_id(dt__world *w, uint64_t comm, int status, int rank, const char *text)
{
    if (!w || !w->control) return;
    pthread_mutex_lock(&w->lock);
    dt__control_abort(w, comm, status, rank, text, NULL);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}
static void dt__world_abort(dt__world *w, dt_comm *c, int status, int rank, const char *text)
{
    char cut[DT__CTEXT + 1];
    snprintf(cut, sizeof cut, "%s", text);
    dt__comm_failed(c, status, rank, cut);
    dt__world_abort_id(w, c->id, status, rank, cut);
}
/* The engine tells which communicators there are: they fail when one of their ranks dies. */
static void dt__world_add(dt__world *w, dt_comm *c)
{
    dt__control *ctl = w->control;
    char         text[DT__CTEXT + 1], who[160];
    dt__cabort   a;
    pthread_mutex_lock(&w->lock);
    c->next = w->comms;
    w->comms = c;
    for (int i = 0; ctl && i < ctl->naborts && i < DT__ABORTS; i++) {
        memcpy(&a, dt__block_body(ctl->aborts[i]), sizeof a);
        if (a.comm != c->id) continue;
        snprintf(text, sizeof text, "%.*s", (int)(ctl->aborts[i]->nbytes - sizeof(dt__chead) - sizeof a),
                 (char *)dt__block_body(ctl->aborts[i]) + sizeof a);
        dt__comm_failed(c, a.status, a.rank >= 0 && a.rank < c->size ? a.rank : -1, text);
    }
    for (int i = 0; ctl && i < c->size; i++)
        if (ctl->gone[c->member[i]]) {
            snprintf(text, sizeof text, "%s %s", dt__who(w, c->member[i], who, sizeof who),
                     ctl->gone[c->member[i]] == DT__LEFT ? "has left" : "died before");
            dt__comm_gone(w, c, c->member[i], text);
        }
    pthread_mutex_unlock(&w->lock);
    if (ctl) dt__control_wake(w); /* it notes what goes on in communicators */
}
static void dt__world_remove(dt__world *w, dt_comm *c)
{
    pthread_mutex_lock(&w->lock);
    for (dt_comm **p = &w->comms; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    if (w->control) { /* connections for it that nobody took */
        dt__arrived **p = &w->control->arrived, *last = NULL;
        while (*p) {
            dt__arrived *a = *p;
            if (a->comm == c->id) {
                *p = a->next;
                close(a->fd);
                DT_COMM_FREE(a);
                w->control->narrived--;
            } else last = a, p = &a->next;
        }
        w->control->arrived_last = last;
    }
    pthread_mutex_unlock(&w->lock);
}

static int dt__world_gone(dt__world *w, int rank) /* DT__ALIVE ..., as far as this rank knows */
{
    if (!w->control) return 0;
    pthread_mutex_lock(&w->lock);
    int gone = w->control->gone[rank];
    pthread_mutex_unlock(&w->lock);
    return gone;
}

/* ---- exchanging bytes over the tree: pieces go up to rank 0, which sends all of them down */
static void dt__gather_drop(dt__control *ctl) /* what rank 0 has collected */
{
    while (ctl->root_pieces) {
        dt__piece *p = ctl->root_pieces;
        ctl->root_pieces = p->next;
        DT_COMM_FREE(p);
    }
    ctl->root_on = false;
    ctl->root_done = 0;
}
static void dt__gather_fail(dt__world *w, uint64_t seq, const char *text, const dt__conn *from)
{
    dt__control *ctl = w->control;
    if (seq == 0 || seq <= ctl->gather_failed) return;
    if (!ctl->gathering && ctl->gather_seq >= seq && !ctl->root_on) return; /* it is done here */
    ctl->gather_failed = seq;
    snprintf(ctl->gather_text, sizeof ctl->gather_text, "%s", text);
    if (ctl->gathering && ctl->gather_seq == seq && ctl->gather_state == 0) ctl->gather_state = DT_COMM_ERR_PEER;
    dt__cgather g;
    memset(&g, 0, sizeof g);
    g.seq = seq;
    dt__block *b = dt__block_new(DT__C_GATHER_FAIL, w->rank, &g, sizeof g, text, strnlen(text, DT__CTEXT));
    dt__control_flood(w, b, from);
    dt__block_unref(b);
    dt__gather_drop(ctl);
    ctl->root_seq = ctl->root_seq > seq ? ctl->root_seq : seq;
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__gather_down(dt__world *w, const dt__cgather *g, const uint8_t *data, size_t n)
{
    dt__control *ctl = w->control;
    if (!ctl->gathering || g->seq != ctl->gather_seq || ctl->gather_state != 0) return;
    uint64_t all = ctl->gather_n * (uint64_t)w->size;
    if (g->n != ctl->gather_n || g->at != ctl->gather_got || n > all - g->at) {
        ctl->gather_state = DT_COMM_ERR_MISMATCH;
        snprintf(ctl->gather_text, sizeof ctl->gather_text,
                 "rank 0 sent %" PRIu64 " bytes of each rank, expected %" PRIu64, g->n, ctl->gather_n);
    } else {
        if (n) memcpy(ctl->gather_out + g->at, data, n);
        ctl->gather_got += n;
        if (ctl->gather_got < all) return;
        ctl->gather_state = 1;
    }
    pthread_cond_broadcast(&ctl->cond);
}
static void dt__gather_send_down(dt__world *w) /* rank 0 has all */
{
    dt__control *ctl = w->control;
    uint64_t     all = ctl->root_n * (uint64_t)w->size, at = 0;
    uint8_t     *buf = (uint8_t *)DT_COMM_MALLOC((size_t)all + 1);
    if (!buf) {
        dt__gather_fail(w, ctl->root_seq, "rank 0 is out of memory", NULL);
        return;
    }
    for (const dt__piece *p = ctl->root_pieces; p; p = p->next)
        memcpy(buf + (uint64_t)p->rank * ctl->root_n + p->at, p + 1, p->n);
    do {
        dt__cgather g;
        size_t      n = DT__CFRAME_MAX - sizeof g;
        memset(&g, 0, sizeof g);
        g.seq = ctl->root_seq;
        g.n = ctl->root_n;
        g.at = at;
        if (n > all - at) n = (size_t)(all - at);
        dt__block *b = dt__block_new(DT__C_GATHER_DOWN, 0, &g, sizeof g, buf + at, n);
        dt__control_flood(w, b, NULL);
        dt__gather_down(w, &g, buf + at, n);
        dt__block_unref(b);
        at += n;
    } while (at < all);
    DT_COMM_FREE(buf);
    dt__gather_drop(ctl);
}
/* A piece at rank 0. */
static void dt__gather_take(dt__world *w, const dt__cgather *g, const uint8_t *data, size_t n)
{
    dt__control *ctl = w->control;
    char         text[256];
    if (g->rank < 0 || g->rank >= w->size || g->seq <= ctl->gather_failed) return;
    if (!ctl->root_on) { /* the first piece of an exchange */
        if (g->seq <= ctl->root_seq) return;
        if (ctl->ngone) {
            ctl->root_seq = g->seq;
            dt__gather_fail(w, g->seq, ctl->ndied ? ctl->first_death : "a rank has left", NULL);
            return;
        }
        if (g->n > ((uint64_t)1 << 32) / (uint64_t)w->size) {
            snprintf(text, sizeof text, "rank %d exchanges %" PRIu64 " bytes, expected at most %" PRIu64, g->rank, g->n,
                     ((uint64_t)1 << 32) / (uint64_t)w->size);
            dt__gather_fail(w, g->seq, text, NULL);
            return;
        }
        ctl->root_seq = g->seq;
        ctl->root_n = g->n;
        ctl->root_on = true;
        for (int r = 0; r < w->size; r++) ctl->root_have[r] = UINT64_MAX; /* nothing came, not even 0 bytes */
        ctl->root_deadline = dt__comm_now() + (int64_t)(w->timeout * 1e9);
    }
    uint64_t have = ctl->root_have[g->rank] == UINT64_MAX ? 0 : ctl->root_have[g->rank];
    bool     more = ctl->root_have[g->rank] == UINT64_MAX || (have < ctl->root_n && n > 0); /* a rank ends once */
    if (g->seq != ctl->root_seq || g->n != ctl->root_n || g->at != have || n > g->n - have || !more) {
        snprintf(text, sizeof text,
                 "rank %d exchanges %" PRIu64 " bytes in exchange %" PRIu64 ", others %" PRIu64 " in %" PRIu64, g->rank,
                 g->n, g->seq, ctl->root_n, ctl->root_seq);
        dt__gather_fail(w, ctl->root_seq > g->seq ? ctl->root_seq : g->seq, text, NULL);
        return;
    }
    if (n) {
        dt__piece *p = (dt__piece *)DT_COMM_MALLOC(sizeof *p + n);
        if (!p) {
            dt__gather_fail(w, g->seq, "rank 0 is out of memory", NULL);
            return;
        }
        p->next = ctl->root_pieces;
        p->rank = g->rank;
        p->at = have;
        p->n = n;
        memcpy(p + 1, data, n);
        ctl->root_pieces = p;
    }
    ctl->root_have[g->rank] = have + n;
    if (have + n == g->n && ++ctl->root_done == w->size) dt__gather_send_down(w);
}
static void dt__gather_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    int          rank[8] = { 0 }, n = 0;
    char         list[160], text[256];
    if (!ctl->root_on || now < ctl->root_deadline) return;
    for (int r = 0; r < w->size; r++)
        if (ctl->root_have[r] == UINT64_MAX || ctl->root_have[r] < ctl->root_n) {
            if (n < 8) rank[n] = r;
            n++;
        }
    dt__rank_list(list, sizeof list, rank, n);
    snprintf(text, sizeof text, "an exchange of the world took longer than %g s: %s did not come", w->timeout, list);
    dt__gather_fail(w, ctl->root_seq, text, NULL);
}
static int dt__gather(dt__world *w, const void *in, size_t n, void *out, int64_t deadline, char *text, size_t nbytes)
{
    dt__control *ctl = w->control;
    size_t       at = 0;
    pthread_mutex_lock(&w->lock);
    while (ctl->gathering) pthread_cond_wait(&ctl->cond, &w->lock); /* another thread's */
    ctl->gather_seq++;
    ctl->gathering = true;
    ctl->gather_state = ctl->gather_seq <= ctl->gather_failed ? DT_COMM_ERR_PEER : 0;
    ctl->gather_out = (uint8_t *)out;
    ctl->gather_n = n;
    ctl->gather_got = 0;
    if (ctl->ngone) {
        ctl->gather_state = DT_COMM_ERR_PEER;
        snprintf(ctl->gather_text, sizeof ctl->gather_text, "%s", ctl->ndied ? ctl->first_death : "a rank has left");
    }
    do {
        dt__cgather g;
        size_t      piece = DT__CFRAME_MAX - sizeof g;
        memset(&g, 0, sizeof g);
        g.seq = ctl->gather_seq;
        g.n = n;
        g.at = at;
        g.rank = w->rank;
        if (piece > n - at) piece = n - at;
        if (ctl->gather_state != 0) break;
        if (w->rank == 0) dt__gather_take(w, &g, (const uint8_t *)in + at, piece);
        else if (ctl->parent) {
            dt__block *b = dt__block_new(DT__C_GATHER_UP, w->rank, &g, sizeof g, (const uint8_t *)in + at, piece);
            dt__conn_queue(ctl->parent, b);
            dt__block_unref(b);
        }
        at += piece;
    } while (at < n);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    pthread_mutex_lock(&w->lock);
    struct timespec t;
    t.tv_sec = (time_t)(deadline / 1000000000);
    t.tv_nsec = (long)(deadline % 1000000000);
    while (ctl->gather_state == 0)
        if (pthread_cond_timedwait(&ctl->cond, &w->lock, &t) == ETIMEDOUT && ctl->gather_state == 0) {
            dt__gather_fail(w, ctl->gather_seq, "an exchange of the world got no answer from rank 0", NULL);
            ctl->gather_state = DT_COMM_ERR_TIMEOUT;
        }
    int status = ctl->gather_state == 1 ? 0 : ctl->gather_state;
    if (status) snprintf(text, nbytes, "%s", ctl->gather_text);
    ctl->gathering = false;
    ctl->gather_out = NULL;
    pthread_cond_broadcast(&ctl->cond);
    pthread_mutex_unlock(&w->lock);
    return status;
}
static int dt__world_allgather(dt__world *w, const void *in, size_t n, void *out)
{
    char text[768];
    if (w->size == 1) {
        if (n) memcpy(out, in, n);
        return 0;
    }
    /* rank 0 gives up first, and names who is missing */
    int status =
        dt__gather(w, in, n, out, dt__comm_now() + (int64_t)(w->timeout * 1e9) + 1000000000, text, sizeof text);
    return status ? dt__comm_bad(status, "%s", text) : 0;
}

/* ---- who is at fault: rank 0 asks every rank what it does */
static void dt__state_of(dt__world *w, uint64_t comm, dt__cstate *s)
{
    s->rank = w->rank;
    for (dt_comm *c = w->comms; c; c = c->next) {
        if (c->id != comm) continue;
        s->has = 1;
        s->seq = __atomic_load_n(&c->seq, __ATOMIC_ACQUIRE);
        s->done = __atomic_load_n(&c->done, __ATOMIC_ACQUIRE);
        s->doing = __atomic_load_n(&c->doing, __ATOMIC_ACQUIRE);
        s->age = dt__comm_now() - __atomic_load_n(&c->since, __ATOMIC_ACQUIRE);
        if (s->doing == 0 && s->seq == s->done && w->control->note.comm == comm) s->doing = w->control->note_doing;
    }
}
static void dt__inquiry_free(dt__inquiry *q)
{
    DT_COMM_FREE(q->member);
    DT_COMM_FREE(q->answer);
    memset(q, 0, sizeof *q);
}
static int dt__ask_index(const dt__inquiry *q, int rank) /* in the communicator */
{
    for (int i = 0; i < q->ask.n; i++)
        if (q->member[i] == rank) return i;
    return q->ask.n == 0 ? rank : -1;
}
static size_t dt__ask_title(const dt__inquiry *q, char *buf, size_t nbytes)
{
    return (size_t)snprintf(buf, nbytes, "%s #%" PRIu64 " made no progress for %g s: ", dt__coll_word(q->ask.doing),
                            q->ask.seq, q->ask.timeout);
}
static void dt__inquiry_end(dt__world *w, dt__inquiry *q, int rank, const char *text)
{
    dt__cask a = q->ask;
    int      index = rank < 0 ? -1 : dt__ask_index(q, rank);
    dt__inquiry_free(q);
    dt__control_abort(w, a.comm, DT_COMM_ERR_TIMEOUT, index, text, NULL);
}
/* The last verdict, to those whom a silent rank cuts off: the ranks below it, and the one above it. */
static void dt__inquiry_news(dt__world *w, int silent)
{
    dt__control *ctl = w->control;
    if (ctl->naborts == 0) return;
    for (int k = 0; k <= DT__TREE; k++) {
        int r = k ? silent * DT__TREE + k : silent > 0 ? (silent - 1) / DT__TREE : -1;
        if (r < 0 || r >= w->size || r == w->rank || r == silent || ctl->gone[r]) continue;
        dt__control_dial(w, r, DT__KIND_NEWS, ctl->aborts[(ctl->naborts - 1) % DT__ABORTS]);
    }
}
static void dt__inquiry_one(dt__world *w, dt__inquiry *q, int rank) /* the one above does not answer */
{
    char   text[DT__CTEXT], who[160];
    size_t used = dt__ask_title(q, text, sizeof text);
    if (used < sizeof text)
        snprintf(text + used, sizeof text - used, "%s does not answer: it is stopped or unreachable",
                 dt__who(w, rank, who, sizeof who));
    dt__inquiry_end(w, q, rank, text);
    dt__inquiry_news(w, rank);
}
static void dt__inquiry_decide(dt__world *w, dt__inquiry *q)
{
    dt__control *ctl = w->control;
    char         text[DT__CTEXT], who[160];
    size_t       used = dt__ask_title(q, text, sizeof text);
    int          n = q->ask.n ? q->ask.n : w->size, named = 0, first = -1, silent[4], nsilent = 0;
    for (int i = 0; i < n; i++) { /* who did not answer, or the topmost above it that did not */
        int r = q->ask.n ? q->member[i] : i, top = r;
        if (q->answer[r].has >= 0 || ctl->gone[r]) continue;
        for (int up = r; up > 0;) {
            up = (up - 1) / DT__TREE;
            if (q->answer[up].has < 0 && !ctl->gone[up]) top = up;
        }
        for (int j = 0; j < nsilent; j++)
            if (silent[j] == top) top = -1;
        if (top < 0 || nsilent == 4) continue;
        silent[nsilent++] = top;
        if (used < sizeof text)
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s%s does not answer: it is stopped or unreachable",
                                 named++ ? "; " : "", dt__who(w, top, who, sizeof who));
        if (first < 0) first = top;
    }
    for (int i = 0; i < n && !nsilent && named < 4; i++) {
        int               r = q->ask.n ? q->member[i] : i;
        const dt__cstate *s = &q->answer[r];
        if (ctl->gone[r] || s->has == 0) {
            if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", named++ ? "; " : "",
                                         dt__who(w, r, who, sizeof who),
                                         ctl->gone[r] == DT__LEFT ? "has left"
                                         : ctl->gone[r]           ? "died"
                                                                  : "does not have this communicator (any more)");
        } else if (s->seq < q->ask.seq) {
            if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%s has not called it", named++ ? "; " : "",
                                         dt__who(w, r, who, sizeof who));
            if (used < sizeof text && s->seq > 0)
                used += (size_t)snprintf(text + used, sizeof text - used, " (last: %s #%" PRIu64 ", since %.1f s)",
                                         dt__coll_word(s->doing), s->seq, (double)s->age * 1e-9);
            else if (used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, " (nor anything before)");
        } else continue;
        if (first < 0) first = r;
    }
    if (!named && used < sizeof text) {
        first = q->ask.peer;
        if (first >= 0 && first < w->size)
            snprintf(text + used, sizeof text - used,
                     "all ranks have called it, but rank %d gets nothing from %s; is the way between them blocked?",
                     q->ask.asker, dt__who(w, first, who, sizeof who));
        else
            snprintf(text + used, sizeof text - used, "all ranks have called it, but rank %d does not get on",
                     q->ask.asker);
    }
    dt__inquiry_end(w, q, first, text);
    for (int j = 0; j < nsilent; j++) dt__inquiry_news(w, silent[j]);
}
static void dt__inquiry_begin(dt__world *w, const dt__cask *ask, const int32_t *member, bool own)
{
    dt__control *ctl = w->control;
    dt__inquiry *q = NULL;
    if (dt__abort_heard(ctl, ask->comm)) return;
    for (int i = 0; i < DT__INQUIRIES; i++) {
        dt__inquiry *s = &ctl->inquiry[i];
        if (s->state && s->ask.comm == ask->comm) {
            if (own && s->state != 3) s->ask.asker = w->rank; /* it is ours, too: see it to its end */
            return;
        }
        if (!s->state && !q) q = s;
    }
    if (!q) return;
    q->ask = *ask;
    q->begin = dt__comm_now();
    q->id = ++ctl->inquiry_id;
    q->member = (int32_t *)DT_COMM_MALLOC((size_t)ask->n * sizeof *member + 1);
    if (q->member && ask->n) memcpy(q->member, member, (size_t)ask->n * sizeof *member);
    if (!q->member) return;
    if (dt__control_is_root(w)) {
        q->answer = (dt__cstate *)DT_COMM_MALLOC((size_t)w->size * sizeof *q->answer);
        if (!q->answer) {
            dt__inquiry_free(q);
            return;
        }
        memset(q->answer, 0, (size_t)w->size * sizeof *q->answer);
        for (int r = 0; r < w->size; r++) q->answer[r].has = -1;
        q->answer[w->rank].has = 0;
        dt__state_of(w, ask->comm, &q->answer[w->rank]);
        q->state = 3;
        dt__cping p;
        p.id = q->id;
        p.comm = ask->comm;
        dt__block *b = dt__block_new(DT__C_PING, w->rank, &p, sizeof p, NULL, 0);
        dt__control_flood(w, b, NULL);
        dt__block_unref(b);
    } else {
        q->state = 1;
        if (ctl->parent) {
            dt__block *b = dt__block_new(DT__C_ASK, w->rank, ask, sizeof *ask, member, (size_t)ask->n * sizeof *member);
            dt__conn_queue(ctl->parent, b);
            dt__block_unref(b);
            dt__conn_say(ctl->parent, DT__C_HOP_PING, w->rank, NULL, 0);
        }
    }
}
static void dt__inquiry_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    for (int i = 0; i < DT__INQUIRIES; i++) {
        dt__inquiry *q = &ctl->inquiry[i];
        if (q->state == 3) {
            bool all = true;
            for (int j = 0; all && j < (q->ask.n ? q->ask.n : w->size); j++) {
                int r = q->ask.n ? q->member[j] : j;
                all = q->answer[r].has >= 0 || ctl->gone[r];
            }
            if (all || now >= q->begin + 500000000) dt__inquiry_decide(w, q);
        } else if (q->state == 1 && now >= q->begin + 400000000) {
            if (ctl->parent) dt__inquiry_one(w, q, ctl->parent->peer);
            else dt__inquiry_free(q);
        } else if (q->state == 2 && now >= q->begin + 850000000) dt__inquiry_one(w, q, 0);
    }
}
static void dt__world_ask(dt__world *w, dt_comm *c, uint64_t seq, int peer)
{
    dt__cask ask;
    memset(&ask, 0, sizeof ask);
    ask.comm = c->id;
    ask.seq = seq;
    ask.timeout = c->timeout;
    ask.doing = __atomic_load_n(&c->doing, __ATOMIC_RELAXED);
    ask.peer = peer >= 0 && peer < c->size ? c->member[peer] : -1;
    if (!w || !w->control) { /* nobody to ask */
        char text[200];
        snprintf(text, sizeof text, "%s #%" PRIu64 " made no progress for %g s", dt__coll_word(ask.doing), seq,
                 c->timeout);
        dt__comm_failed(c, DT_COMM_ERR_TIMEOUT, peer, text);
        return;
    }
    ask.asker = w->rank;
    ask.n = (size_t)c->size * sizeof(int32_t) + sizeof ask <= DT__CFRAME_MAX ? c->size : 0;
    pthread_mutex_lock(&w->lock);
    dt__inquiry_begin(w, &ask, (const int32_t *)c->member, true);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}

/* ---- calls that differ
   Ranks that call different things need not exchange a message. Who waits for long (dt__watch_after) floods the frame
   of its call over the tree, once. Every rank compares it with what it began itself under that number, or will begin:
   its notes of the last operations tell the one, 'watched' the other. A number that nobody else has used says nothing:
   those ranks have simply not come. */
static dt__frame *dt__watch_of(dt__control *ctl, const dt__frame *f)
{
    return &ctl->watch[(f->comm ^ f->seq * UINT64_C(0x9e3779b97f4a7c15)) >> 58 & (DT__WATCHES - 1)];
}
static void dt__watch_differ(dt__world *w, const dt__frame *a, const dt__frame *b)
{
    char text[DT__CTEXT + 1];
    dt__frame_differ(a, b, text, sizeof text);
    dt__control_abort(w, a->comm, DT_COMM_ERR_MISMATCH, b->rank, text, NULL);
}
static void dt__watch_take(dt__world *w, const dt__frame *f, const dt__conn *from) /* under the lock */
{
    dt__control *ctl = w->control;
    dt__frame   *seen = dt__watch_of(ctl, f), note;
    uint64_t     print = dt__frame_print(f);
    if (seen->magic && seen->comm == f->comm && seen->seq == f->seq) {
        if (dt__frame_print(seen) != print) dt__watch_differ(w, seen, f);
        return;
    }
    *seen = *f;
    for (dt_comm *c = w->comms; c; c = c->next) {
        if (c->id != f->comm) continue;
        /* whoever is second here, or in dt__world_begin, sees what the first one has written */
        uint64_t before = __atomic_load_n(&c->watched, __ATOMIC_RELAXED);
        __atomic_exchange_n(&c->watched, before > f->seq ? before : f->seq + 1, __ATOMIC_ACQ_REL);
        const struct dt__note *ring = (const struct dt__note *)__atomic_load_n(&c->note, __ATOMIC_ACQUIRE);
        if (ring && dt__note_get(ring, f->seq, &note) && dt__frame_print(&note) != print) {
            dt__watch_differ(w, f, &note);
            return;
        }
    }
    dt__block *b = dt__block_new(DT__C_WATCH, w->rank, f, sizeof *f, NULL, 0);
    dt__control_flood(w, b, from);
    dt__block_unref(b);
}
static void dt__world_watch(dt__world *w, const dt__frame *f)
{
    if (!w || !w->control) return;
    pthread_mutex_lock(&w->lock);
    dt__watch_take(w, f, NULL);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}
static void dt__world_begin(dt__world *w, dt_comm *c, const dt__frame *f)
{
    if (!w || !w->control || __atomic_fetch_add(&c->watched, 0, __ATOMIC_ACQ_REL) <= f->seq) return;
    pthread_mutex_lock(&w->lock);
    const dt__frame *seen = dt__watch_of(w->control, f);
    if (seen->magic && seen->comm == f->comm && seen->seq == f->seq && dt__frame_print(seen) != dt__frame_print(f))
        dt__watch_differ(w, seen, f);
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
}

static void dt__world_settle(dt__world *w)
{
    struct timespec t;
    int64_t         deadline = dt__comm_now() + 500000000;
    if (!w || !w->control || w->sim) return; /* the simulator delivers that first */
    t.tv_sec = (time_t)(deadline / 1000000000);
    t.tv_nsec = (long)(deadline % 1000000000);
    pthread_mutex_lock(&w->lock);
    uint64_t until = w->control->turns + 2; /* the one under way, and one that begins after now */
    w->control->settling++;
    while (w->control->turns < until) {
        dt__control_wake(w);
        if (pthread_cond_timedwait(&w->control->cond, &w->lock, &t) == ETIMEDOUT) break;
    }
    w->control->settling--;
    pthread_mutex_unlock(&w->lock);
}

/* ---- links and descriptors */
static int dt__arrived_take(dt__world *w, int kind, uint64_t comm, int peer, int stream) /* under the lock */
{
    dt__control *ctl = w->control;
    dt__arrived *before = NULL;
    for (dt__arrived *a = ctl->arrived; a; before = a, a = a->next) {
        if (a->kind != kind || a->comm != comm || a->peer != peer || a->stream != stream) continue;
        int fd = a->fd;
        if (before) before->next = a->next;
        else ctl->arrived = a->next;
        if (ctl->arrived_last == a) ctl->arrived_last = before;
        ctl->narrived--;
        DT_COMM_FREE(a);
        return fd;
    }
    return -1;
}
static void dt__arrived_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    double       keep = w->timeout > w->join_timeout ? w->timeout : w->join_timeout;
    while (ctl->arrived && now > ctl->arrived->since + (int64_t)(keep * 1e9)) {
        dt__arrived *a = ctl->arrived;
        dt__logf(2, "rank %d: nobody took the connection of rank %d for communicator %016" PRIx64, w->rank, a->peer,
                     a->comm);
        ctl->arrived = a->next;
        if (!ctl->arrived) ctl->arrived_last = NULL;
        ctl->narrived--;
        close(a->fd);
        DT_COMM_FREE(a);
    }
}
static int dt__world_link(dt__world *w, dt_comm *c, int peer, int stream)
{
    char     text[DT__CTEXT], why[400], who[160];
    dt__addr a;
    if (peer < 0 || peer >= w->size || peer == w->rank || !w->control) {
        dt__comm_failed(c, DT_COMM_ERR_ARG, -1, "a link needs another rank of the world");
        return -2;
    }
    if (!dt__comm_ok(c)) return -2;
    int index = -1;
    for (int i = 0; i < c->size; i++)
        if (c->member[i] == peer) index = i;
    pthread_mutex_lock(&w->lock);
    int gone = w->control->gone[peer],
        fd = peer < w->rank ? dt__arrived_take(w, DT__KIND_LINK, c->id, peer, stream) : -1;
    pthread_mutex_unlock(&w->lock);
    if (fd >= 0) return fd;
    if (gone) {
        snprintf(text, sizeof text, "%s %s", dt__who(w, peer, who, sizeof who), gone == DT__LEFT ? "has left" : "died");
        dt__world_abort(w, c, DT_COMM_ERR_PEER, index, text);
        return -2;
    }
    if (peer < w->rank) return -1;
    int64_t deadline = dt__comm_now() + (int64_t)(w->join_timeout * 1e9), soon = dt__comm_now() + 1000000000;
    if (!dt__addr_take(&a, w->member[peer].addr, w->member[peer].addr_len)) {
        dt__world_abort(w, c, DT_COMM_ERR_NET, index, "a rank has no address in the table");
        return -2;
    }
    /* nobody listens: it is dying, and the control tree will tell in a moment */
    fd = dt__dial_until(w, &a, 1, peer, DT__KIND_LINK, c->id, stream, soon < deadline ? soon : deadline, c, why,
                        sizeof why);
    if (fd < 0 && fd != DT_COMM_ERR_PEER && dt__comm_ok(c) && soon < deadline)
        fd = dt__dial_until(w, &a, 1, peer, DT__KIND_LINK, c->id, stream, deadline, c, why, sizeof why);
    if (fd >= 0) return fd;
    snprintf(text, sizeof text, "rank %d cannot connect to %s: %s", w->rank, dt__who(w, peer, who, sizeof who), why);
    dt__world_abort(w, c, fd == DT_COMM_ERR_PEER ? DT_COMM_ERR_PEER : DT_COMM_ERR_NET, index, text);
    return -2;
}
typedef struct dt__fd_msg { /* one byte, with room for a descriptor */
    union {
        size_t align; /* a cmsghdr's */
        char   room[CMSG_SPACE(4 * sizeof(int))];
    } u;
    struct msghdr m;
    struct iovec  v;
    char          byte;
} dt__fd_msg;
static void dt__fd_begin(dt__fd_msg *f, size_t descriptors)
{
    memset(f, 0, sizeof *f);
    f->byte = 'f';
    f->v.iov_base = &f->byte;
    f->v.iov_len = 1;
    f->m.msg_iov = &f->v;
    f->m.msg_iovlen = 1;
    f->m.msg_control = f->u.room;
    f->m.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
}
static int dt__fd_send(int to, int fd, int64_t deadline)
{
    dt__fd_msg f;
    dt__fd_begin(&f, 1);
    struct cmsghdr *h = CMSG_FIRSTHDR(&f.m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (fd < 0) f.m.msg_control = NULL, f.m.msg_controllen = 0; /* the byte alone: there is none */
    for (;;) {
        ssize_t n = sendmsg(to, &f.m, MSG_NOSIGNAL);
        if (n == 1) return 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && dt__wait_fd(to, POLLOUT, deadline)) continue;
        return -1;
    }
}
static int dt__fd_recv(int from) /* -1: not yet, -2: gone, -3: it has none */
{
    dt__fd_msg f;
    int        fd = -3;
    ssize_t    n;
    dt__fd_begin(&f, 4);
    do n = recvmsg(from, &f.m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return -1;
    if (n <= 0) return -2;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&f.m); h; h = CMSG_NXTHDR(&f.m, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS && h->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}
static int dt__fd_gone(dt__world *w, const int *member, int n) /* one of them, or -1; under the lock */
{
    for (int i = 0; i < n; i++)
        if (w->control->gone[member[i]]) return member[i];
    return -1;
}
static int dt__world_pass_fd(dt__world *w, uint64_t comm, const int *member, int n, int fd)
{
    char     text[400], who[160];
    int64_t  deadline = dt__comm_now() + (int64_t)(w->timeout * 1e9);
    dt__addr a;
    dt_comm *c;
    int      gone = -1, bad = -1;
    if (n < 1) return dt__comm_bad(DT_COMM_ERR_ARG, "passing a descriptor: %d ranks", n);
    if (n == 1) return fd;
    pthread_mutex_lock(&w->lock); /* the communicator that it is for fails when one of its ranks fails or dies */
    for (c = w->comms; c && c->id != comm;) c = c->next;
    pthread_mutex_unlock(&w->lock);
    if (member[0] == w->rank) {
        struct timespec t;
        for (int i = 1; i < n && gone < 0 && bad < 0; i++) {
            int to = -1;
            pthread_mutex_lock(&w->lock);
            while ((to = dt__arrived_take(w, DT__KIND_FD, comm, member[i], 0)) < 0 &&
                   (gone = dt__fd_gone(w, member, n)) < 0 && (!c || dt__comm_ok(c))) {
                t.tv_sec = (time_t)(deadline / 1000000000);
                t.tv_nsec = (long)(deadline % 1000000000);
                if (pthread_cond_timedwait(&w->control->cond, &w->lock, &t) == ETIMEDOUT) break;
            }
            pthread_mutex_unlock(&w->lock);
            if (to < 0 || dt__fd_send(to, fd, deadline) != 0) bad = member[i];
            dt__close(&to);
        }
        if (gone < 0 && bad < 0) return fd;
        if (gone < 0 && c && !dt__comm_ok(c)) return dt__comm_bad(c->status, "passing a descriptor: %.600s", c->text);
        if (gone >= 0)
            return dt__comm_bad(DT_COMM_ERR_PEER, "passing a descriptor: %s died or left",
                                dt__who(w, gone, who, sizeof who));
        return dt__comm_bad(DT_COMM_ERR_TIMEOUT, "passing a descriptor: %s did not come for it within %g s",
                            dt__who(w, bad, who, sizeof who), w->timeout);
    }
    dt__addr_unix(&a, w->member[member[0]].unix_name);
    int from = dt__dial_until(w, &a, 1, member[0], DT__KIND_FD, comm, 0, deadline, c, text, sizeof text);
    if (from < 0 && c && !dt__comm_ok(c)) return dt__comm_bad(c->status, "passing a descriptor: %.600s", c->text);
    if (from < 0) return dt__comm_bad(DT_COMM_ERR_PEER, "passing a descriptor: %s", text);
    int got = dt__same_user(from) ? -1 : -2;
    for (bool ended = false;;) { /* a connection that ends does not say why; the control tree does, in a moment */
        int64_t now = dt__comm_now(), next = now + (ended ? 1000000 : 50000000);
        if (!ended && got == -1) got = dt__fd_recv(from);
        if (got == -2 && !ended && now + 500000000 < deadline) deadline = now + 500000000;
        ended = got == -2;
        pthread_mutex_lock(&w->lock);
        gone = dt__fd_gone(w, member, n);
        pthread_mutex_unlock(&w->lock);
        if (got >= 0 || got == -3 || now >= deadline || gone >= 0 || (c && !dt__comm_ok(c))) break;
        if (ended) dt__comm_pause(next - now);
        else dt__wait_fd(from, POLLIN, next < deadline ? next : deadline);
    }
    dt__close(&from);
    if (got >= 0) return got;
    dt__who(w, gone >= 0 ? gone : member[0], who, sizeof who);
    if (got != -3 && gone < 0 && c && !dt__comm_ok(c))
        return dt__comm_bad(c->status, "passing a descriptor: %.600s", c->text);
    if (got == -3) return dt__comm_bad(DT_COMM_ERR_MEMORY, "passing a descriptor: %s could not make it", who);
    if (got == -2 || gone >= 0) return dt__comm_bad(DT_COMM_ERR_PEER, "passing a descriptor: %s died or left", who);
    return dt__comm_bad(DT_COMM_ERR_TIMEOUT, "passing a descriptor: %s sent none within %g s", who, w->timeout);
}

/* ---- agreeing on who is there
   A rank that wants to go on has a state: it came; whose proposal it accepted, and what; what is decided. It goes up
   the tree, again and again until there is a decision. The root (the lowest rank that lives) asks all for theirs, and
   when every asked rank has come, is gone or is too late, it proposes those who came. Each accepts, and the root
   decides when all of them who live have accepted. If the root dies the next one begins by asking: it must propose
   what the highest root before it had accepted anywhere, and decide what was decided anywhere.

   Why all get the same: a root decides S only when every member of S that lives has accepted S. A state names the root
   that its rank follows, and counts only there; who follows root b has given up all ranks below b, and accepts
   nothing from them any more. So a later root hears of S from every member of S that lives (one at least, or nobody
   is left to differ), and must propose it again. This is Paxos with ranks of roots as ballots, and all who live as
   the quorum.

   It needs to know who lives. The end of a connection is a death. Who is silent is given up (DT__LOST), is told so,
   and is refused from then on; but silence is no proof, both sides of a cut network might give up the other one. So
   those who are LOST must be fewer than those who are here (as many: the lowest of all must be here), else nobody goes
   on. A process of this machine that is seen to be stopped, or gone, and a port where nobody listens, are proofs. */
static bool dt__bit(const uint8_t *bits, int i) { return bits[i / 8] >> (i % 8) & 1; }
static void dt__bit_set(uint8_t *bits, int i) { bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8)); }
static int  dt__bits(const uint8_t *bits, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++) k += dt__bit(bits, i);
    return k;
}
static size_t dt__agree_nbytes(const dt__world *w) { return ((size_t)w->size + 7) / 8; }
static void   dt__agree_free(dt__agreement *e)
{
    DT_COMM_FREE(e->asked);
    DT_COMM_FREE(e->heard);
    memset(e, 0, sizeof *e);
}
static bool dt__agree_busy(const dt__agreement *e, int64_t now)
{
    return e->comm && !e->decided && (double)(now - e->begin) < 4e9 * e->timeout + 3e10;
}
static int64_t dt__agree_patience(const dt__agreement *e) /* ns of silence */
{
    double s = e->timeout / 4;
    return (int64_t)((s < 1 ? 1 : s > 5 ? 5 : s) * 1e9);
}
static int dt__agree_root(const dt__world *w) /* whom this rank follows */
{
    int r = 0;
    while (r < w->rank && w->control->gone[r]) r++;
    return r;
}
/* The agreement of this number, made if need be; NULL: no memory. */
static dt__agreement *dt__agree_of(dt__world *w, uint64_t comm, int round, double timeout, const uint8_t *asked)
{
    dt__agreement *e = NULL;
    size_t         nb = dt__agree_nbytes(w);
    for (int i = 0; i < DT__AGREEMENTS; i++) {
        dt__agreement *x = &w->control->agreement[i];
        if (x->comm == comm && x->round == round) return x;
        if (x->waiting) continue;
        if (!e || !x->comm || (e->comm && x->begin < e->begin)) e = x;
    }
    if (!e) return NULL;
    dt__agree_free(e);
    e->asked = (uint8_t *)dt__comm_zeroed(5, nb);
    if (!e->asked) return NULL;
    e->in = e->asked + nb;
    e->came = e->asked + 2 * nb;
    e->acked = e->asked + 3 * nb;
    e->late = e->asked + 4 * nb;
    memcpy(e->asked, asked, nb);
    e->comm = comm;
    e->round = round;
    e->timeout = timeout;
    e->begin = dt__comm_now();
    e->accepted = -1;
    return e;
}
static dt__cagree dt__agree_head(const dt__world *w, const dt__agreement *e, int order)
{
    dt__cagree a;
    memset(&a, 0, sizeof a);
    a.comm = e->comm;
    a.built = e->built;
    a.nbuilt = e->nbuilt;
    a.timeout = e->timeout;
    a.round = e->round;
    a.rank = w->rank;
    a.root = dt__agree_root(w);
    a.accepted = e->accepted;
    a.joined = e->joined;
    a.decided = e->decided;
    a.all = e->all;
    a.order = (uint8_t)order;
    return a;
}
static dt__block *dt__agree_block(dt__world *w, const dt__agreement *e, int kind, int order)
{
    dt__cagree a = dt__agree_head(w, e, order);
    size_t     nb = dt__agree_nbytes(w);
    dt__block *b = dt__block_new(kind, w->rank, &a, sizeof a, e->asked, 2 * nb); /* asked and in */
    return b;
}
static void dt__agree_tell(dt__world *w, dt__agreement *e, int order) /* the root, all others */
{
    dt__block *b = dt__agree_block(w, e, DT__C_AGREE_ORDER, order);
    dt__control_flood(w, b, NULL);
    dt__block_unref(b);
    e->said = dt__comm_now();
}
static void dt__agree_decide(dt__world *w, dt__agreement *e)
{
    e->decided = true;
    dt__agree_tell(w, e, DT__AGREE_DECIDE);
    pthread_cond_broadcast(&w->control->cond);
}
/* Who came and lives, if they may go on; nobody, if those whom nobody has seen die are too many. */
static void dt__agree_members(dt__world *w, dt__agreement *e)
{
    uint8_t *gone = w->control->gone;
    int      here = 0, lost = 0, lowest = -1;
    memset(e->in, 0, dt__agree_nbytes(w));
    for (int r = 0; r < w->size; r++) {
        if (!dt__bit(e->asked, r)) continue;
        if (gone[r] == DT__LOST && dt__process_still(w, r)) gone[r] = DT__DIED;
        bool is_lost = gone[r] == DT__LOST;
        if (gone[r] && !is_lost) continue;
        if (lowest < 0) lowest = is_lost;
        if (is_lost) lost++;
        else here++; /* who is late is here, too */
        if (!gone[r] && dt__bit(e->came, r)) dt__bit_set(e->in, r);
    }
    if (lost > here || (lost == here && lowest > 0)) memset(e->in, 0, dt__agree_nbytes(w));
}
/* At the root: is it time to propose, or to decide? */
static void dt__agree_step(dt__world *w, dt__agreement *e)
{
    const uint8_t *gone = w->control->gone;
    if (e->decided) return;
    for (int r = 0; r < w->size && !e->proposed; r++)
        if (dt__bit(e->asked, r) && !gone[r] && !dt__bit(e->came, r) && !dt__bit(e->late, r)) return;
    if (!e->proposed) {
        if (e->accepted < 0) {
            dt__agree_members(w, e);
            e->all = e->any && e->same && e->theirs && dt__bits(e->in, w->size) == e->ntheirs;
        }
        e->proposed = true;
        e->accepted = w->rank;
        dt__bit_set(e->acked, w->rank);
        dt__agree_tell(w, e, DT__AGREE_PROPOSE);
    }
    for (int r = 0; r < w->size; r++)
        if (dt__bit(e->in, r) && !gone[r] && !dt__bit(e->acked, r)) return;
    dt__agree_decide(w, e);
}
/* At the root: what a rank says; in: who is in what it accepted. */
static void dt__agree_take(dt__world *w, dt__agreement *e, const dt__cagree *a, const uint8_t *in)
{
    size_t nb = dt__agree_nbytes(w);
    if (!e->heard) { /* from now on this rank is the root */
        e->heard = (int64_t *)DT_COMM_MALLOC((size_t)w->size * sizeof *e->heard);
        if (!e->heard) return; /* it is said again */
        e->begin = dt__comm_now();
        for (int r = 0; r < w->size; r++) e->heard[r] = e->begin;
        if (e->joined) { /* its own state */
            dt__bit_set(e->came, w->rank);
            e->any = e->same = true;
            e->theirs = e->built;
            e->ntheirs = e->nbuilt;
        }
        if (!e->decided) dt__agree_tell(w, e, DT__AGREE_ASK);
    }
    e->heard[a->rank] = dt__comm_now();
    if (e->decided) {
        if (!a->decided && a->joined) dt__agree_tell(w, e, DT__AGREE_DECIDE);
        return;
    }
    if (a->decided) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        dt__agree_decide(w, e);
        return;
    }
    if (a->root != w->rank) return; /* it follows another one yet */
    if (a->joined && !dt__bit(e->came, a->rank)) {
        dt__bit_set(e->came, a->rank);
        if (!e->any) e->theirs = a->built, e->ntheirs = a->nbuilt;
        e->same = (!e->any || e->same) && a->built == e->theirs && a->nbuilt == e->ntheirs;
        e->any = true;
    }
    if (!e->proposed && a->accepted > e->accepted) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        e->accepted = a->accepted;
    }
    if (e->proposed && a->accepted == w->rank) dt__bit_set(e->acked, a->rank);
    dt__agree_step(w, e);
}
static void dt__agree_state(dt__world *w, dt__agreement *e) /* goes up; what is lost is said again */
{
    dt__control *ctl = w->control;
    e->said = dt__comm_now();
    if (dt__control_is_root(w)) {
        dt__cagree a = dt__agree_head(w, e, 0);
        dt__agree_take(w, e, &a, e->in);
    } else if (ctl->parent) {
        dt__block *b = dt__agree_block(w, e, DT__C_AGREE_STATE, 0);
        dt__conn_queue(ctl->parent, b);
        dt__block_unref(b);
    }
}
static void dt__agree_said(dt__world *w) /* there is a new parent */
{
    for (int i = 0; i < DT__AGREEMENTS; i++)
        if (w->control->agreement[i].waiting && !w->control->agreement[i].decided)
            dt__agree_state(w, &w->control->agreement[i]);
}
static void dt__agree_obey(dt__world *w, dt__agreement *e, const dt__cagree *a, const uint8_t *in)
{
    size_t nb = dt__agree_nbytes(w);
    if (!e->decided && a->order == DT__AGREE_DECIDE) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        e->decided = true;
        pthread_cond_broadcast(&w->control->cond);
    }
    if (!e->decided && a->order == DT__AGREE_PROPOSE && e->joined && a->root == dt__agree_root(w)) {
        memcpy(e->in, in, nb);
        e->all = a->all;
        e->accepted = a->root;
    }
    if (a->order != DT__AGREE_DECIDE) dt__agree_state(w, e);
}
static bool dt__agree_frame(dt__world *w, dt__conn *k, const uint8_t *p, size_t n) /* false: broken */
{
    dt__control *ctl = w->control;
    dt__cagree   a;
    size_t       nb = dt__agree_nbytes(w);
    if (n != sizeof a + 2 * nb) return false;
    memcpy(&a, p, sizeof a);
    const uint8_t *asked = p + sizeof a, *in = asked + nb;
    if (a.rank < 0 || a.rank >= w->size || a.root < 0 || a.root >= w->size || a.accepted < -1 ||
        a.accepted >= w->size || a.round < 0 || !a.comm || !(a.timeout > 0 && a.timeout < 1e8) ||
        a.order > DT__AGREE_DECIDE)
        return false;
    if (k->head.kind == DT__C_AGREE_STATE && !dt__control_is_root(w)) {
        if (!ctl->parent) return true; /* it is said again */
    } else {
        dt__agreement *e = dt__agree_of(w, a.comm, a.round, a.timeout, asked);
        if (!e) return true;
        if (k->head.kind == DT__C_AGREE_STATE) {
            dt__agree_take(w, e, &a, in);
            return true;
        }
        if (k != ctl->parent) return true; /* an order of one who is not above any more */
        dt__agree_obey(w, e, &a, in);
    }
    dt__block *b = dt__block_new((int)k->head.kind, a.rank, p, n, NULL, 0);
    if (k->head.kind == DT__C_AGREE_STATE) dt__conn_queue(ctl->parent, b);
    else dt__control_flood(w, b, k);
    dt__block_unref(b);
    return true;
}
/* A silent rank is given up. Those below it are cut off: they hear it directly. */
static void dt__control_expel(dt__world *w, int rank, double seconds)
{
    char       text[400], who[160];
    dt__cdeath d;
    bool       still = dt__process_still(w, rank);
    snprintf(text, sizeof text, "%s has not answered for %.1f s: it is %s, and was given up",
             dt__who(w, rank, who, sizeof who), seconds, still ? "stopped" : "stopped or out of reach");
    d.rank = rank;
    d.how = still ? DT__DIED : DT__LOST;
    dt__control_gone(w, rank, d.how, text, NULL);
    dt__block *b = dt__block_new(DT__C_DEATH, rank, &d, sizeof d, text, strlen(text));
    for (int k = 1; b && k <= DT__TREE; k++) {
        int r = rank * DT__TREE + k;
        if (r < w->size && r != w->rank && !w->control->gone[r]) dt__control_dial(w, r, DT__KIND_NEWS, b);
    }
    dt__block_unref(b);
}
/* The root looks for ranks that do not answer. Of those above each other the topmost is at fault. */
static void dt__agree_silent(dt__world *w, dt__agreement *e, int64_t now)
{
    dt__control *ctl = w->control;
    int64_t      patience = dt__agree_patience(e);
    for (int r = 0; r < w->size; r++) {
        if (!dt__bit(e->asked, r) || ctl->gone[r]) continue;
        int64_t quiet = r == w->rank ? 0 : now - e->heard[r];
        int     top = r;
        if (quiet > 300000000 && quiet < patience) { /* does anybody listen there? */
            bool asked = false;
            for (dt__conn *k = ctl->conns; k; k = k->next) asked = asked || (k->probe && k->peer == r);
            dt__conn *k = asked ? NULL : dt__control_dial(w, r, DT__KIND_NEWS, NULL);
            if (k) k->probe = true;
            else if (!asked && errno == ECONNREFUSED) dt__control_unreached(w, r, true);
        }
        if (quiet < patience) {
            if ((double)(now - e->begin) > e->timeout * 1e9 && !dt__bit(e->came, r)) dt__bit_set(e->late, r);
            continue;
        }
        for (int up = r; up > 0;) {
            up = (up - 1) / DT__TREE;
            if (up != w->rank && !ctl->gone[up] && now - e->heard[up] >= patience) top = up;
        }
        for (int i = 0; i < w->size; i++)
            if (i != top && now - e->heard[i] >= patience) e->heard[i] = now; /* perhaps only cut off by it */
        dt__control_expel(w, top, (double)patience * 1e-9);
        break;
    }
}
static void dt__agree_timers(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    int64_t      patience = 0;
    for (int i = 0; i < DT__AGREEMENTS; i++) {
        dt__agreement *e = &ctl->agreement[i];
        if (!dt__agree_busy(e, now)) continue;
        if (!patience || dt__agree_patience(e) < patience) patience = dt__agree_patience(e);
        if (dt__control_is_root(w)) {
            if (!e->heard) dt__agree_state(w, e);
            if (e->heard) dt__agree_silent(w, e, now);
            if (e->heard) dt__agree_step(w, e);
            if (e->heard && !e->decided && now - e->said > 200000000)
                dt__agree_tell(w, e, e->proposed ? DT__AGREE_PROPOSE : DT__AGREE_ASK);
        } else if (e->waiting && now - e->said > 200000000) dt__agree_state(w, e);
    }
    if (!patience || !ctl->parent) ctl->hop_since = 0;
    else if (!ctl->hop_since) { /* while something is to be agreed on, the one above must answer */
        ctl->hop_since = now;
        dt__conn_say(ctl->parent, DT__C_HOP_PING, w->rank, NULL, 0);
    } else if (now - ctl->hop_since > patience) {
        ctl->hop_since = 0;
        dt__control_expel(w, ctl->parent->peer, (double)patience * 1e-9);
    }
}
static int dt__world_agree(dt__world *w, uint64_t comm, int round, double timeout, uint8_t *set, uint64_t built,
                           int nbuilt, bool *all)
{
    dt__control    *ctl = w->control;
    struct timespec t;
    int64_t         deadline = dt__comm_now() + (int64_t)(timeout * 3e9) + INT64_C(10000000000);
    size_t          nb = dt__agree_nbytes(w);
    int             status = 0;
    t.tv_sec = (time_t)(deadline / 1000000000);
    t.tv_nsec = (long)(deadline % 1000000000);
    if (!ctl) return dt__comm_bad(DT_COMM_ERR_STATE, "there is nobody to agree with");
    pthread_mutex_lock(&w->lock);
    dt__agreement *e = dt__agree_of(w, comm, round, timeout, set);
    if (!e) status = dt__comm_bad(DT_COMM_ERR_MEMORY, "agreement: out of memory");
    else if (memcmp(e->asked, set, nb) != 0)
        status = dt__comm_bad(DT_COMM_ERR_MISMATCH, "rank %d asks other ranks for agreement %d than others do", w->rank,
                              round);
    else if (!e->decided) {
        e->waiting = e->joined = true;
        e->built = built;
        e->nbuilt = nbuilt;
        if (e->heard) { /* this is the root, and others came first */
            dt__bit_set(e->came, w->rank);
            if (!e->any) e->theirs = built, e->ntheirs = nbuilt;
            e->same = (!e->any || e->same) && built == e->theirs && nbuilt == e->ntheirs;
            e->any = true;
        }
        dt__agree_state(w, e);
    }
    if (!status) dt__control_wake(w);
    while (!status && !e->decided && !ctl->expelled)
        if (pthread_cond_timedwait(&ctl->cond, &w->lock, &t) == ETIMEDOUT) break;
    if (e) e->waiting = false;
    if (!status && ctl->expelled) status = dt__comm_bad(DT_COMM_ERR_PEER, "%s", ctl->first_death);
    else if (!status && !e->decided)
        status = dt__comm_bad(DT_COMM_ERR_TIMEOUT, "the ranks that live did not agree within %.0f s",
                              timeout * 3 + 10);
    if (!status) memcpy(set, e->in, nb), *all = e->all;
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- what comes over the tree */
/* false: the frame is broken. */
static bool dt__control_frame(dt__world *w, dt__conn *k)
{
    dt__control   *ctl = w->control;
    const uint8_t *p = k->body;
    size_t         n = k->head.nbytes;
    char           text[DT__CTEXT + 1];
    dt__block     *b;
    if (k->kind == DT__KIND_REGISTER) {
        if (k->head.kind == DT__C_MEMBER) return dt__register_member(w, k);
        k->bye = k->head.kind == DT__C_BYE && ctl->complete;
        return k->bye;
    }
    switch (k->head.kind) {
    case DT__C_SYNC:
        if (k->kind != DT__KIND_TREE || n != 0) return false;
        if (!k->ready) dt__control_sync(w, k);
        k->ready = true;
        return true;
    case DT__C_ABORT: {
        dt__cabort a;
        if (n < sizeof a || n > sizeof a + DT__CTEXT) return false;
        memcpy(&a, p, sizeof a);
        if (a.status >= 0 || a.status < -1000) return false;
        snprintf(text, sizeof text, "%.*s", (int)(n - sizeof a), (const char *)p + sizeof a);
        dt__control_abort(w, a.comm, a.status, a.rank, text, k);
        return true;
    }
    default: break;
    }
    if (k->head.kind != DT__C_DEATH && (k->kind != DT__KIND_TREE || !k->ready)) return false;
    switch (k->head.kind) {
    case DT__C_DEATH: { /* as news, too: to those whom a silent rank has cut off */
        dt__cdeath d;
        if (n < sizeof d || n > sizeof d + DT__CTEXT) return false;
        memcpy(&d, p, sizeof d);
        if (d.rank < 0 || d.rank >= w->size || (d.how != DT__DIED && d.how != DT__LEFT && d.how != DT__LOST))
            return false;
        snprintf(text, sizeof text, "%.*s", (int)(n - sizeof d), (const char *)p + sizeof d);
        dt__control_gone(w, d.rank, d.how, text, k);
        return true;
    }
    case DT__C_GATHER_UP:
    case DT__C_GATHER_DOWN:
    case DT__C_GATHER_FAIL: {
        dt__cgather g;
        if (n < sizeof g) return false;
        memcpy(&g, p, sizeof g);
        if (k->head.kind == DT__C_GATHER_FAIL) {
            snprintf(text, sizeof text, "%.*s",
                     (int)(n - sizeof g < (size_t)DT__CTEXT ? n - sizeof g : (size_t)DT__CTEXT),
                     (const char *)p + sizeof g);
            dt__gather_fail(w, g.seq, text, k);
        } else if (k->head.kind == DT__C_GATHER_UP && w->rank == 0) dt__gather_take(w, &g, p + sizeof g, n - sizeof g);
        else {
            b = dt__block_new((int)k->head.kind, k->head.rank, p, n, NULL, 0);
            if (k->head.kind == DT__C_GATHER_UP) {
                if (ctl->parent) dt__conn_queue(ctl->parent, b);
            } else {
                dt__control_flood(w, b, k);
                dt__gather_down(w, &g, p + sizeof g, n - sizeof g);
            }
            dt__block_unref(b);
        }
        return true;
    }
    case DT__C_ASK: {
        dt__cask a;
        int32_t *member;
        if (n < sizeof a) return false;
        memcpy(&a, p, sizeof a);
        if (a.n < 0 || (size_t)a.n > DT__CFRAME_MAX / sizeof(int32_t) ||
            n != sizeof a + (size_t)a.n * sizeof(int32_t) || a.asker < 0 || a.asker >= w->size)
            return false;
        member = (int32_t *)DT_COMM_MALLOC((size_t)a.n * sizeof *member + 1);
        if (!member) return true;
        memcpy(member, p + sizeof a, (size_t)a.n * sizeof *member);
        bool ok = true;
        for (int i = 0; i < a.n; i++) ok = ok && member[i] >= 0 && member[i] < w->size;
        if (ok) dt__inquiry_begin(w, &a, member, false);
        DT_COMM_FREE(member);
        return ok;
    }
    case DT__C_WATCH: {
        dt__frame f;
        if (n != sizeof f) return false;
        memcpy(&f, p, sizeof f);
        if (f.magic != (uint32_t)DT__FRAME_MAGIC || f.version != (uint32_t)DT__FRAME_VERSION) return false;
        if (f.epoch == w->epoch) dt__watch_take(w, &f, k);
        return true;
    }
    case DT__C_HOP_PING: dt__conn_say(k, DT__C_HOP_PONG, w->rank, NULL, 0); return true;
    case DT__C_AGREE_STATE:
    case DT__C_AGREE_ORDER: return dt__agree_frame(w, k, p, n);
    case DT__C_HOP_PONG:
        if (k == ctl->parent) ctl->hop_since = 0;
        for (int i = 0; i < DT__INQUIRIES; i++) {
            dt__inquiry *q = &ctl->inquiry[i];
            if (q->state != 1) continue;
            if (q->ask.asker == w->rank) q->state = 2;
            else dt__inquiry_free(q);
        }
        return true;
    case DT__C_PING: {
        dt__cping  q;
        dt__cstate s;
        if (n != sizeof q) return false;
        memcpy(&q, p, sizeof q);
        b = dt__block_new(DT__C_PING, k->head.rank, &q, sizeof q, NULL, 0);
        dt__control_flood(w, b, k);
        dt__block_unref(b);
        memset(&s, 0, sizeof s);
        s.id = q.id;
        s.comm = q.comm;
        dt__state_of(w, q.comm, &s);
        dt__conn_say(k, DT__C_PONG, w->rank, &s, sizeof s);
        return true;
    }
    case DT__C_PONG:
    case DT__C_NOTE: {
        dt__cstate s;
        if (n != sizeof s) return false;
        memcpy(&s, p, sizeof s);
        if (s.rank < 0 || s.rank >= w->size) return false;
        s.has = s.has != 0;
        if (k->head.kind == DT__C_NOTE) k->note = s;
        else if (ctl->parent) dt__conn_say(ctl->parent, DT__C_PONG, s.rank, &s, sizeof s);
        else
            for (int i = 0; i < DT__INQUIRIES; i++)
                if (ctl->inquiry[i].state == 3 && ctl->inquiry[i].id == s.id) ctl->inquiry[i].answer[s.rank] = s;
        return true;
    }
    case DT__C_LEAVE_UP:
        if (n != sizeof k->leave) return false;
        memcpy(&k->leave, p, sizeof k->leave);
        return k->leave > 0 && k->leave <= w->size;
    case DT__C_LEAVE_DOWN:
        if (k != ctl->parent) return false;
        if (ctl->leaving && !ctl->released) dt__control_release(w, k);
        k->bye = true;
        return true;
    case DT__C_BYE:
        k->bye = true;
        snprintf(text, sizeof text, "rank %d left", k->peer);
        dt__control_gone(w, k->peer, DT__LEFT, text, k);
        return true;
    default: return false;
    }
}
static void dt__conn_read(dt__world *w, dt__conn *k)
{
    for (int i = 0; i < 256 && !k->broken; i++) {
        int got = 1;
        if (k->head_done < sizeof k->head) got = dt__recv_some(k->fd, &k->head, sizeof k->head, &k->head_done);
        if (got == 1) {
            if (k->head.magic != (uint32_t)DT__CFRAME_MAGIC || k->head.nbytes > DT__CFRAME_MAX) {
                dt__conn_lost(w, k, "it sent a broken frame");
                return;
            }
            if (k->head.nbytes > k->body_cap) {
                uint8_t *body = (uint8_t *)DT_COMM_REALLOC(k->body, k->head.nbytes);
                if (!body) {
                    dt__conn_lost(w, k, "no memory for its frame");
                    return;
                }
                k->body = body;
                k->body_cap = k->head.nbytes;
            }
            got = dt__recv_some(k->fd, k->body, k->head.nbytes, &k->body_done);
        }
        if (got == 0) return;
        if (got < 0) {
            dt__conn_lost(w, k, errno ? strerror(errno) : "its connection ended");
            return;
        }
        k->head_done = k->body_done = 0;
        if (!dt__control_frame(w, k)) dt__conn_lost(w, k, "it sent a broken frame");
    }
}

/* ---- the thread */
static void dt__control_note(dt__world *w,
                             int64_t    now) /* neighbours know what this rank does, a quarter of a second old */
{
    dt__control *ctl = w->control;
    dt_comm     *latest = NULL;
    dt__cstate   s;
    if (!w->comms || now < ctl->note_at) return;
    ctl->note_at = now + 250000000;
    for (dt_comm *c = w->comms; c; c = c->next)
        if (!latest || __atomic_load_n(&c->since, __ATOMIC_RELAXED) > __atomic_load_n(&latest->since, __ATOMIC_RELAXED))
            latest = c;
    memset(&s, 0, sizeof s);
    s.comm = latest->id;
    if (ctl->note.comm != s.comm) ctl->note_doing = 0;
    dt__state_of(w, s.comm, &s);
    if (s.doing) ctl->note_doing = s.doing;
    s.age = 0;
    ctl->note = s;
    for (dt__conn *k = ctl->conns; k; k = k->next) /* who does not read gets no more of them */
        if (dt__conn_in_tree(k) && !k->out && memcmp(&s, &k->told, sizeof s) != 0) {
            dt__conn_say(k, DT__C_NOTE, w->rank, &s, sizeof s);
            k->told = s;
        }
}
static void dt__control_leave(dt__world *w, int64_t now)
{
    dt__control *ctl = w->control;
    if (!ctl->leaving) return;
    if (!ctl->released) {
        bool    all = true;
        int32_t total = 1;
        for (dt__conn *k = ctl->conns; k; k = k->next) {
            if (!dt__conn_in_tree(k) || k == ctl->parent || k->bye) continue;
            all = all && k->leave > 0;
            total += k->leave;
        }
        if (all && ctl->parent && total != ctl->leave_sent) {
            dt__conn_say(ctl->parent, DT__C_LEAVE_UP, w->rank, &total, sizeof total);
            ctl->leave_sent = total;
        }
        if (all && dt__control_is_root(w) && total + ctl->ngone >= w->size) {
            dt__control_release(w, NULL);
        } else if (now >= ctl->leave_deadline || ctl->expelled) {
            ctl->released = ctl->alone = ctl->goodbye = true;
            ctl->release_deadline = now + 500000000;
        }
    }
    if (!ctl->released) return;
    bool empty = true;
    for (dt__conn *k = ctl->conns; k; k = k->next) {
        if (k->shaking && !k->broken && ctl->join_failed) empty = false;
        if (k->shaking || k->broken) continue;
        if (ctl->goodbye && k->kind == DT__KIND_TREE && !k->said) { /* also to one that has just dialed */
            dt__conn_say(k, DT__C_BYE, w->rank, NULL, 0);
            k->said = true;
        }
        dt__conn_flush(k);
        empty = empty && (!k->out || k->broken);
        bool other = k->kind == DT__KIND_TREE || k->kind == DT__KIND_REGISTER;
        if (!k->out && ctl->alone && !k->shut && other) {
            /* what is unread here would turn the goodbye into a reset: read until the other side has closed */
            shutdown(k->fd, SHUT_WR);
            k->bye = k->shut = true;
        }
        if (ctl->alone && other && !k->broken) empty = false;
    }
    if (empty || now >= ctl->release_deadline) ctl->stop = true;
}
static int64_t dt__control_next(const dt__world *w, int64_t now) /* when there is something to do without news */
{
    const dt__control *ctl = w->control;
    int64_t            next = now + 10000000000;
#define DT__SOONER(t) next = (t) < next ? (t) : next
    for (const dt__conn *k = ctl->conns; k; k = k->next)
        if (k->shaking) DT__SOONER(k->deadline);
    if (w->rank == 0 && !ctl->complete && !ctl->join_failed) {
        DT__SOONER(w->join_deadline);
        DT__SOONER(ctl->missing_at);
    }
    if (ctl->accept_after > now) DT__SOONER(ctl->accept_after);
    if (ctl->root_on) DT__SOONER(ctl->root_deadline);
    for (int i = 0; i < DT__INQUIRIES; i++) {
        const dt__inquiry *q = &ctl->inquiry[i];
        if (q->state) DT__SOONER(q->begin + (q->state == 1 ? 400000000 : q->state == 2 ? 850000000 : 500000000));
    }
    if (w->comms) DT__SOONER(ctl->note_at);
    for (int i = 0; i < DT__AGREEMENTS; i++)
        if (dt__agree_busy(&ctl->agreement[i], now)) DT__SOONER(now + 50000000);
    if (ctl->leaving) DT__SOONER(ctl->released ? ctl->release_deadline : ctl->leave_deadline);
    if (ctl->join_failed && next > now + 10000000) next = now + 10000000;
#undef DT__SOONER
    return next;
}
static void dt__control_reap(dt__world *w)
{
    dt__control *ctl = w->control;
    for (dt__conn **p = &ctl->conns; *p;) {
        dt__conn *k = *p;
        if (!k->broken) {
            p = &k->next;
            continue;
        }
        *p = k->next;
        if (k == ctl->parent) ctl->parent = NULL;
        if (k == ctl->healing) {
            ctl->healing = NULL;
            /* closed in the handshake: it is dying, and soon nobody will listen there; or it has too many guests */
            bool again = !k->refused && dt__comm_now() < k->deadline && ctl->heal_tries++ < 20;
            if (!again && !ctl->expelled) dt__control_unreached(w, k->peer, k->refused);
            p = &ctl->conns; /* the flood may have broken others */
        }
        if (k->probe && k->refused) {
            dt__control_unreached(w, k->peer, true);
            p = &ctl->conns;
        }
        if (k->kind == DT__KIND_REGISTER && k->shaking && !ctl->complete && k->peer >= 0) ctl->there[k->peer] = 0;
        dt__conn_free(k);
    }
    if (w->rank != 0 && !ctl->parent && !ctl->healing && ctl->started && w->joined) dt__control_heal(w);
}
static int dt__control_polls(dt__world *w, struct pollfd **polls, int *cap, int64_t now)
{
    dt__control *ctl = w->control;
    int          n = 4;
    for (dt__conn *k = ctl->conns; k; k = k->next) n++;
    if (n > *cap) {
        struct pollfd *p = (struct pollfd *)DT_COMM_REALLOC(*polls, (size_t)(2 * n) * sizeof *p);
        if (p) *polls = p, *cap = 2 * n;
    }
    struct pollfd *p = *polls;
    /* those below wait until this rank can pass on what they say */
    bool open = !ctl->released && !ctl->join_failed && now >= ctl->accept_after && (w->rank == 0 || w->joined);
    if (*cap < 4) return 0;
    p[0].fd = ctl->wake;
    p[1].fd = open ? w->listen_fd : -1;
    p[2].fd = open ? w->unix_fd : -1;
    p[3].fd = open ? w->ticket_fd : -1;
    for (int i = 0; i < 4; i++) p[i].events = POLLIN, p[i].revents = 0;
    n = 4;
    for (dt__conn *k = ctl->conns; k; k = k->next) {
        k->slot = -1;
        if (n >= *cap) continue;
        k->slot = n;
        p[n].fd = k->fd;
        p[n].events = (short)(k->shaking ? dt__shake_events(&k->shake) : POLLIN | (k->out ? POLLOUT : 0));
        p[n++].revents = 0;
    }
    return n;
}
static void dt__control_timers(dt__world *w, int64_t now)
{
    for (dt__conn *k = w->control->conns; k; k = k->next)
        if (k->shaking && !k->broken && now >= k->deadline) {
            if (k->shake.server) dt__control_stranger(w, k->fd, "it took too long");
            k->broken = true;
        }
    dt__register_timers(w, now);
    dt__gather_timers(w, now);
    dt__inquiry_timers(w, now);
    dt__agree_timers(w, now);
    dt__arrived_timers(w, now);
    dt__control_note(w, now);
    dt__control_leave(w, now);
}
static void *dt__control_main(void *arg)
{
    dt__world     *w = (dt__world *)arg;
    dt__control   *ctl = w->control;
    struct pollfd *p = NULL;
    int            cap = 0;
    uint64_t       count;
    prctl(PR_SET_NAME, "dt control");
    pthread_mutex_lock(&w->lock);
    while (!ctl->stop) {
        int64_t now = dt__comm_now();
        for (dt__conn *k = ctl->conns; k; k = k->next)
            if (k->out && !k->shaking) dt__conn_flush(k);
        dt__control_reap(w);
        int n = dt__control_polls(w, &p, &cap, now);
        int ms = dt__poll_ms(dt__control_next(w, now));
        for (dt__conn *k = ctl->conns; k; k = k->next)
            if (k->broken) ms = 0;
        pthread_mutex_unlock(&w->lock);
        int ready = poll(p, (nfds_t)n, n ? ms : 10);
        pthread_mutex_lock(&w->lock);
        now = dt__comm_now();
        if (ready > 0) {
            if (p[0].revents && read(ctl->wake, &count, sizeof count) < 0) count = 0;
            for (dt__conn *k = ctl->conns; k; k = k->next) {
                if (k->slot < 0 || k->broken || !p[k->slot].revents) continue;
                if (k->shaking) dt__conn_shake(w, k);
                else if (p[k->slot].revents & ~POLLOUT) dt__conn_read(w, k);
            }
            if (p[1].revents) dt__control_accept(w, w->listen_fd, false);
            if (p[2].revents) dt__control_accept(w, w->unix_fd, true);
            if (p[3].revents && w->ticket_fd >= 0) dt__control_ticket(w);
        }
        dt__control_timers(w, now);
        ctl->turns++;
        if (ctl->settling) pthread_cond_broadcast(&ctl->cond);
    }
    pthread_mutex_unlock(&w->lock);
    DT_COMM_FREE(p);
    return NULL;
}
static void dt__control_free(dt__world *w)
{
    dt__control *ctl = w->control;
    while (ctl->conns) {
        dt__conn *k = ctl->conns;
        ctl->conns = k->next;
        dt__conn_free(k);
    }
    while (ctl->arrived) {
        dt__arrived *a = ctl->arrived;
        ctl->arrived = a->next;
        close(a->fd);
        DT_COMM_FREE(a);
    }
    for (int i = 0; i < DT__ABORTS; i++) dt__block_unref(ctl->aborts[i]);
    for (int i = 0; i < DT__INQUIRIES; i++) dt__inquiry_free(&ctl->inquiry[i]);
    for (int i = 0; i < DT__AGREEMENTS; i++) dt__agree_free(&ctl->agreement[i]);
    dt__close(&ctl->wake);
    dt__close(&w->ticket_fd);
    pthread_cond_destroy(&ctl->cond);
    DT_COMM_FREE(ctl->gone);
    DT_COMM_FREE(ctl->there);
    DT_COMM_FREE(ctl->root_have);
    dt__gather_drop(ctl);
    DT_COMM_FREE(ctl);
    w->control = NULL;
}
static int dt__control_new(dt__world *w) /* without its thread; negative: errno */
{
    dt__control       *ctl = (dt__control *)DT_COMM_MALLOC(sizeof *ctl);
    pthread_condattr_t attr;
    if (!ctl) return -1;
    memset(ctl, 0, sizeof *ctl);
    w->control = ctl;
    ctl->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ctl->gone = (uint8_t *)DT_COMM_MALLOC((size_t)w->size);
    ctl->there = (uint8_t *)DT_COMM_MALLOC((size_t)w->size);
    ctl->root_have = (uint64_t *)DT_COMM_MALLOC((size_t)w->size * sizeof *ctl->root_have);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&ctl->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (ctl->wake < 0 || !ctl->gone || !ctl->there || !ctl->root_have) {
        dt__control_free(w);
        return -1;
    }
    memset(ctl->gone, 0, (size_t)w->size);
    memset(ctl->there, 0, (size_t)w->size);
    ctl->there[0] = 1;
    ctl->nthere = 1;
    ctl->complete = w->rank != 0;
    ctl->missing_at = dt__comm_now() + 1000000000;
    return 0;
}
static int dt__control_start(dt__world *w)
{
    sigset_t all, old;
    int      e;
    if (dt__control_new(w) < 0) return -1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    w->control->started = true;
    e = pthread_create(&w->control->thread, NULL, dt__control_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e == 0) return 0;
    dt__control_free(w);
    errno = e;
    return -1;
}
static int dt__control_adopt(dt__world *w, int fd, int peer)
{
    pthread_mutex_lock(&w->lock);
    dt__conn *k = dt__conn_new(w, fd, DT__KIND_TREE, peer);
    if (k) {
        k->ready = true;
        w->control->parent = k;
        w->joined = true;
        dt__conn_say(k, DT__C_SYNC, w->rank, NULL, 0);
    }
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    if (k) return 0;
    close(fd);
    return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
}
static void dt__control_end(dt__world *w) /* at once; dt__world_unref leaves in good order */
{
    dt__control *ctl = w->control;
    pthread_mutex_lock(&w->lock);
    if (!ctl->leaving) { /* joining failed: what is said goes out, for a moment */
        ctl->leaving = ctl->released = ctl->alone = true;
        ctl->release_deadline = dt__comm_now() + 300000000;
    }
    pthread_mutex_unlock(&w->lock);
    dt__control_wake(w);
    pthread_join(ctl->thread, NULL);
    dt__control_free(w);
}
static void dt__world_unref(dt__world *w)
{
    if (!w || __atomic_sub_fetch(&w->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    if (w->control) {
        dt__control *ctl = w->control;
        pthread_mutex_lock(&w->lock);
        bool   hurt = ctl->ndied > 0 || ctl->naborts > 0;
        double wait = hurt && w->timeout > 1 ? 1 : w->timeout;
        ctl->leaving = true;
        ctl->leave_deadline = dt__comm_now() + (int64_t)(wait * 1e9);
        pthread_mutex_unlock(&w->lock);
        dt__control_wake(w);
    }
    dt__world_close(w);
}

/* ==================================================================================================== >>reducing
   One loop serves all: nsrc vectors are reduced from left to right and the result goes to ndst places. Halves are
   computed in f32 over all sources and rounded once, to nearest even. It is written over GNU vectors and compiled for
   16 bytes and for AVX2, with the same bits. A result that is not a number has all its bits set: so they do not depend
   on the operand that the compiler put first. min and max are NaN if an operand is; of -0 and +0 they take the right
   one. */
typedef void (*dt__reduce_fn)(int op, void *const *dst, int ndst, const void *const *src, int nsrc, int64_t n);
typedef void (*dt__reduce_scale_fn)(void *buf, int64_t n, int world);
typedef struct dt__reduce_table {
    const char         *name;
    dt__reduce_fn       many[DT_COMM_DTYPES];
    dt__reduce_scale_fn scale[DT_COMM_DTYPES];
} dt__reduce_table;

DT__INSIDE size_t dt__comm_size_of(int dtype)
{
    static const uint8_t nbytes[] = { 4, 2, 2, 4, 8, 1, 8 };
    return dtype >= 0 && dtype < DT_COMM_DTYPES ? nbytes[dtype] : 0;
}
/* Is there such a reduction? Bits of floats are not or-ed. */
static bool dt__reduce_can(int dtype, int op)
{
    if (dtype < 0 || dtype >= DT_COMM_DTYPES || op < 0 || op >= DT_COMM_OPS) return false;
    return op != DT_COMM_OR || dtype == DT_COMM_I32 || dtype == DT_COMM_I64 || dtype == DT_COMM_U8;
}

/* a := a op b; V: their type, M: integers of the same width, which compare as the dtype does. Integers are unsigned
   vectors: they wrap. */
#define DT__RED_SUM(a, b, V, M) a += b
#define DT__RED_PROD(a, b, V, M) a *= b
#define DT__RED_OR(a, b, V, M) a |= b
#define DT__RED_IMIN(a, b, V, M) a = (V)(((M)((M)a < (M)b) & (M)a) | (~(M)((M)a < (M)b) & (M)b))
#define DT__RED_IMAX(a, b, V, M) a = (V)(((M)((M)a > (M)b) & (M)a) | (~(M)((M)a > (M)b) & (M)b))
#define DT__RED_FMIN(a, b, V, M) a = (V)(((M)(a < b) & (M)a) | (~(M)(a < b) & (M)b) | (M)(a != a))
#define DT__RED_FMAX(a, b, V, M) a = (V)(((M)(a > b) & (M)a) | (~(M)(a > b) & (M)b) | (M)(a != a))
/* v := a vector at p; and back. S: the instruction set. */
#define DT__RED_LOAD(v, p, K, S) v = *(const dt__r##K##u_##S *)(p)
#define DT__RED_STORE(p, v, K, S) *(dt__r##K##u_##S *)(p) = v
#define DT__RED_LOAD_F32(v, p, S) DT__RED_LOAD(v, p, f, S)
#define DT__RED_STORE_F32(p, v, S) DT__RED_STORE(p, (dt__rf_##S)((dt__ri_##S)v | (dt__ri_##S)(v != v)), f, S)
#define DT__RED_LOAD_F64(v, p, S) DT__RED_LOAD(v, p, d, S)
#define DT__RED_STORE_F64(p, v, S) DT__RED_STORE(p, (dt__rd_##S)((dt__rl_##S)v | (dt__rl_##S)(v != v)), d, S)
#define DT__RED_LOAD_I32(v, p, S) DT__RED_LOAD(v, p, u, S)
#define DT__RED_STORE_I32(p, v, S) DT__RED_STORE(p, v, u, S)
#define DT__RED_LOAD_I64(v, p, S) DT__RED_LOAD(v, p, m, S)
#define DT__RED_STORE_I64(p, v, S) DT__RED_STORE(p, v, m, S)
#define DT__RED_LOAD_U8(v, p, S) DT__RED_LOAD(v, p, b, S)
#define DT__RED_STORE_U8(p, v, S) DT__RED_STORE(p, v, b, S)
/* Lanes of 16 bits at p as lanes of 32; and back, from the upper halves. */
#if defined(__x86_64__)
#define DT__RED_WIDEN_sse(p) \
    (dt__ru_sse) _mm_unpacklo_epi16(_mm_loadl_epi64((const __m128i *)(const void *)(p)), _mm_setzero_si128())
#define DT__RED_NARROW_sse(p, u)                                                                \
    do {                                                                                        \
        __m128i n_ = (__m128i)((dt__ri_sse)(u) >> 16);                                          \
        _mm_storel_epi64((__m128i *)(void *)(p), _mm_packs_epi32(n_, n_));                      \
    } while (0)
#else
#define DT__RED_WIDEN_sse(p) __builtin_convertvector(*(const dt__rhu_sse *)(p), dt__ru_sse)
#define DT__RED_NARROW_sse(p, u) *(dt__rhu_sse *)(p) = __builtin_convertvector((u) >> 16, dt__rh_sse)
#endif
#define DT__RED_WIDEN_avx2(p) (dt__ru_avx2) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define DT__RED_NARROW_avx2(p, u)                                                                               \
    do {                                                                                                        \
        __m256i n_ = (__m256i)((dt__ri_avx2)(u) >> 16);                                                         \
        _mm_storeu_si128((__m128i *)(void *)(p),                                                                \
                         _mm_packs_epi32(_mm256_castsi256_si128(n_), _mm256_extracti128_si256(n_, 1)));         \
    } while (0)
#define DT__RED_LOAD_BF16(v, p, S) v = (dt__rf_##S)(DT__RED_WIDEN_##S(p) << 16)
#define DT__RED_STORE_BF16(p, v, S)                                                         \
    do {                                                                                    \
        dt__ru_##S u_ = (dt__ru_##S)v;                                                      \
        u_ = (u_ + 0x7fffu + ((u_ >> 16) & 1u)) | (dt__ru_##S)(v != v);                     \
        DT__RED_NARROW_##S(p, u_);                                                          \
    } while (0)
/* f16 without an instruction for it. Subnormals: f32 arithmetic does the shifting and the rounding. */
#define DT__RED_LOAD_F16_sse(v, p)                                                                              \
    do {                                                                                                        \
        dt__ri_sse h_ = (dt__ri_sse)(DT__RED_WIDEN_sse(p));                                                     \
        dt__ri_sse e_ = (h_ & 0x7fff) << 13, big_ = (dt__ri_sse)(e_ >= 0x0f800000);                             \
        dt__ri_sse tiny_ = (dt__ri_sse)(e_ < 0x00800000), nan_ = (dt__ri_sse)(e_ > 0x0f800000);                 \
        dt__rf_sse low_ = (dt__rf_sse)(e_ | 0x38800000) - 0x1p-14f;                                             \
        e_ = (tiny_ & (dt__ri_sse)low_) | (~tiny_ & (e_ + 0x38000000 + (big_ & 0x38000000)));                   \
        v = (dt__rf_sse)(e_ | (nan_ & 0x00400000) | (dt__ri_sse)((dt__ru_sse)(h_ & 0x8000) << 16));             \
    } while (0)
#define DT__RED_STORE_F16_sse(p, v)                                                                             \
    do {                                                                                                        \
        dt__ru_sse u_ = (dt__ru_sse)v, s_ = (u_ >> 16) & 0x8000u;                                               \
        dt__ri_sse a_ = (dt__ri_sse)(u_ & 0x7fffffffu);                                                         \
        dt__ri_sse tiny_ = (dt__ri_sse)(a_ < 0x38800000), big_ = (dt__ri_sse)(a_ >= 0x477ff000);                \
        dt__ri_sse low_ = (dt__ri_sse)((dt__rf_sse)a_ + 0.5f) - 0x3f000000;                                     \
        dt__ri_sse mid_ = (dt__ri_sse)(((dt__ru_sse)a_ - 0x37fff001u + (((dt__ru_sse)a_ >> 13) & 1u)) >> 13);   \
        mid_ = (tiny_ & low_) | (~tiny_ & ((big_ & 0x7c00) | (~big_ & mid_)));                                  \
        u_ = (dt__ru_sse)mid_ | s_ | (dt__ru_sse)(v != v);                                                      \
        DT__RED_NARROW_sse(p, u_ << 16);                                                                        \
    } while (0)
#define DT__RED_LOAD_F16_avx2(v, p) \
    v = (dt__rf_avx2)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define DT__RED_STORE_F16_avx2(p, v)                                                                            \
    _mm_storeu_si128((__m128i *)(void *)(p),                                                                    \
                     _mm256_cvtps_ph((__m256)(dt__rf_avx2)((dt__ri_avx2)v | (dt__ri_avx2)(v != v)), 0))
#define DT__RED_LOAD_F16(v, p, S) DT__RED_LOAD_F16_##S(v, p)
#define DT__RED_STORE_F16(p, v, S) DT__RED_STORE_F16_##S(p, v)

/* Four vectors at a time, of NB bytes in memory; what is left goes through one on the stack. All sources of a place are
   read before it is written. */
#define DT__RED_LOOP(D, S, V, M, NB, OP)                                          \
    do {                                                                          \
        for (; i + 4 * (NB) <= end; i += 4 * (NB)) {                              \
            const char *s = (const char *)src[0] + i;                             \
            V           a0, a1, a2, a3, b0, b1, b2, b3;                           \
            DT__RED_LOAD_##D(a0, s, S);                                           \
            DT__RED_LOAD_##D(a1, s + (NB), S);                                    \
            DT__RED_LOAD_##D(a2, s + 2 * (NB), S);                                \
            DT__RED_LOAD_##D(a3, s + 3 * (NB), S);                                \
            for (int k = 1; k < nsrc; k++) {                                      \
                s = (const char *)src[k] + i;                                     \
                DT__RED_LOAD_##D(b0, s, S);                                       \
                DT__RED_LOAD_##D(b1, s + (NB), S);                                \
                DT__RED_LOAD_##D(b2, s + 2 * (NB), S);                            \
                DT__RED_LOAD_##D(b3, s + 3 * (NB), S);                            \
                OP(a0, b0, V, M);                                                 \
                OP(a1, b1, V, M);                                                 \
                OP(a2, b2, V, M);                                                 \
                OP(a3, b3, V, M);                                                 \
            }                                                                     \
            for (int k = 0; k < ndst; k++) {                                      \
                char *d = (char *)dst[k] + i;                                     \
                DT__RED_STORE_##D(d, a0, S);                                      \
                DT__RED_STORE_##D(d + (NB), a1, S);                               \
                DT__RED_STORE_##D(d + 2 * (NB), a2, S);                           \
                DT__RED_STORE_##D(d + 3 * (NB), a3, S);                           \
            }                                                                     \
        }                                                                         \
        for (; i < end; i += (NB)) {                                              \
            char   part[NB];                                                      \
            size_t m = end - i < (NB) ? end - i : (NB);                           \
            V      a, b;                                                          \
            memset(part, 0, sizeof part);                                         \
            memcpy(part, (const char *)src[0] + i, m);                            \
            DT__RED_LOAD_##D(a, part, S);                                         \
            for (int k = 1; k < nsrc; k++) {                                      \
                memcpy(part, (const char *)src[k] + i, m);                        \
                DT__RED_LOAD_##D(b, part, S);                                     \
                OP(a, b, V, M);                                                   \
            }                                                                     \
            DT__RED_STORE_##D(part, a, S);                                        \
            for (int k = 0; k < ndst; k++) memcpy((char *)dst[k] + i, part, m);   \
        }                                                                         \
    } while (0)
#define DT__RED_MANY(D, S, ATTR, V, M, NB, ELEM, MIN, MAX, OR)                                                       \
    ATTR static void dt__reduce_##D##_##S(int op, void *const *dst, int ndst, const void *const *src, int nsrc,     \
                                          int64_t n)                                                                 \
    {                                                                                                                \
        size_t i = 0, end = (size_t)n * (ELEM);                                                                      \
        switch (op) {                                                                                                \
        case DT_COMM_SUM:                                                                                            \
        case DT_COMM_MEAN: DT__RED_LOOP(D, S, V, M, NB, DT__RED_SUM); break;                                         \
        case DT_COMM_PROD: DT__RED_LOOP(D, S, V, M, NB, DT__RED_PROD); break;                                        \
        case DT_COMM_MIN: DT__RED_LOOP(D, S, V, M, NB, MIN); break;                                                  \
        case DT_COMM_MAX: DT__RED_LOOP(D, S, V, M, NB, MAX); break;                                                  \
        OR default : break;                                                                                          \
        }                                                                                                            \
    }
#define DT__RED_FLOATS(D, S, ATTR, V, M, NB, ELEM, T)                                                   \
    DT__RED_MANY(D, S, ATTR, V, M, NB, ELEM, DT__RED_FMIN, DT__RED_FMAX, )                              \
    ATTR static void dt__reduce_scale_##D##_##S(void *buf, int64_t n, int world)                        \
    {                                                                                                   \
        T      by = (T)world;                                                                           \
        size_t i = 0, end = (size_t)n * (ELEM);                                                         \
        V      a;                                                                                       \
        for (; i + (NB) <= end; i += (NB)) {                                                            \
            DT__RED_LOAD_##D(a, (char *)buf + i, S);                                                    \
            a /= by;                                                                                    \
            DT__RED_STORE_##D((char *)buf + i, a, S);                                                   \
        }                                                                                               \
        if (i < end) {                                                                                  \
            char part[NB];                                                                              \
            memset(part, 0, sizeof part);                                                               \
            memcpy(part, (char *)buf + i, end - i);                                                     \
            DT__RED_LOAD_##D(a, part, S);                                                               \
            a /= by;                                                                                    \
            DT__RED_STORE_##D(part, a, S);                                                              \
            memcpy((char *)buf + i, part, end - i);                                                     \
        }                                                                                               \
    }
#define DT__RED_INTS(D, S, ATTR, V, M, NB, ELEM)                                \
    DT__RED_MANY(D, S, ATTR, V, M, NB, ELEM, DT__RED_IMIN, DT__RED_IMAX,        \
                 case DT_COMM_OR : DT__RED_LOOP(D, S, V, M, NB, DT__RED_OR); break;)
#define DT__RED_TYPE(S, K, T, NB)                                  \
    typedef T dt__r##K##_##S __attribute__((vector_size(NB)));     \
    typedef T dt__r##K##u_##S __attribute__((vector_size(NB), aligned(1), may_alias));
#define DT__RED_INSTANCE(S, ATTR, NB)                                                                 \
    DT__RED_TYPE(S, f, float, NB)                                                                     \
    DT__RED_TYPE(S, i, int32_t, NB)                                                                   \
    DT__RED_TYPE(S, u, uint32_t, NB)                                                                  \
    DT__RED_TYPE(S, d, double, NB)                                                                    \
    DT__RED_TYPE(S, l, int64_t, NB)                                                                   \
    DT__RED_TYPE(S, m, uint64_t, NB)                                                                  \
    DT__RED_TYPE(S, b, uint8_t, NB)                                                                   \
    DT__RED_TYPE(S, h, uint16_t, (NB) / 2)                                                            \
    DT__RED_FLOATS(F32, S, ATTR, dt__rf_##S, dt__ri_##S, NB, 4, float)                                \
    DT__RED_FLOATS(F16, S, ATTR, dt__rf_##S, dt__ri_##S, (NB) / 2, 2, float)                          \
    DT__RED_FLOATS(BF16, S, ATTR, dt__rf_##S, dt__ri_##S, (NB) / 2, 2, float)                         \
    DT__RED_FLOATS(F64, S, ATTR, dt__rd_##S, dt__rl_##S, NB, 8, double)                               \
    DT__RED_INTS(I32, S, ATTR, dt__ru_##S, dt__ri_##S, NB, 4)                                         \
    DT__RED_INTS(I64, S, ATTR, dt__rm_##S, dt__rl_##S, NB, 8)                                         \
    DT__RED_INTS(U8, S, ATTR, dt__rb_##S, dt__rb_##S, NB, 1)                                          \
    static const dt__reduce_table dt__reduce_##S = {                                                  \
        #S,                                                                                           \
        { dt__reduce_F32_##S, dt__reduce_F16_##S, dt__reduce_BF16_##S, dt__reduce_I32_##S,            \
          dt__reduce_I64_##S, dt__reduce_U8_##S, dt__reduce_F64_##S },                                \
        { dt__reduce_scale_F32_##S, dt__reduce_scale_F16_##S, dt__reduce_scale_BF16_##S,              \
          dt__reduce_scale_I32, dt__reduce_scale_I64, dt__reduce_scale_U8, dt__reduce_scale_F64_##S } \
    };

/* Integers: towards zero. world is at least 1, so nothing overflows. */
#define DT__RED_SCALE_INTS(D, T)                                       \
    static void dt__reduce_scale_##D(void *buf, int64_t n, int world)  \
    {                                                                  \
        char *p = (char *)buf;                                         \
        for (int64_t i = 0; i < n; i++, p += sizeof(T)) {              \
            T x;                                                       \
            memcpy(&x, p, sizeof x);                                   \
            x = (T)(x / world);                                        \
            memcpy(p, &x, sizeof x);                                   \
        }                                                              \
    }
DT__RED_SCALE_INTS(I32, int32_t)
DT__RED_SCALE_INTS(I64, int64_t)
DT__RED_SCALE_INTS(U8, uint8_t)

DT__RED_INSTANCE(sse, , 16)
#if defined(__x86_64__) && !defined(DT_NO_AVX2)
DT__RED_INSTANCE(avx2, __attribute__((target("avx2,f16c"))), 32)
static bool dt__reduce_has_avx2(void)
{
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u); /* F16C */
}
#endif
static const dt__reduce_table *dt__reduce_best(void)
{
#if defined(__x86_64__) && !defined(DT_NO_AVX2)
    static const dt__reduce_table *best; /* whoever asks first finds out, and so may others at the same time */
    const dt__reduce_table        *t = __atomic_load_n(&best, __ATOMIC_RELAXED);
    if (t) return t;
    t = dt__reduce_has_avx2() ? &dt__reduce_avx2 : &dt__reduce_sse;
    __atomic_store_n(&best, t, __ATOMIC_RELAXED);
    return t;
#else
    return &dt__reduce_sse;
#endif
}

/* src[0] op src[1] op ... to each of dst, which may be one of the sources, in place. Any alignment. mean sums here. */
static void dt__reduce_many(int dtype, int op, void *const *dst, int ndst, const void *const *src, int nsrc, int64_t n)
{
    if (!dt__reduce_can(dtype, op) || n <= 0 || nsrc < 1) return;
    dt__reduce_best()->many[dtype](op, dst, ndst, src, nsrc, n);
}
static void dt__fold(int dtype, int op, void *dst, const void *src, int64_t n, bool left)
{
    const void *both[2];
    both[left ? 1 : 0] = dst;
    both[left ? 0 : 1] = src;
    dt__reduce_many(dtype, op, &dst, 1, both, 2, n);
}
/* The end of a mean: each element divided by world, not multiplied by 1/world, which would round twice. Halves in f32,
   integers towards zero. */
DT__INSIDE void dt__reduce_scale(int dtype, void *buf, int64_t n, int world)
{
    if (dtype < 0 || dtype >= DT_COMM_DTYPES || n <= 0 || world <= 1) return;
    dt__reduce_best()->scale[dtype](buf, n, world);
}

/* ==================================================================================================== >>planning
   Every algorithm numbers its rounds alike on all ranks, so that round k of one rank meets round k of its peers; a rank
   may have nothing to do in a round. A step of no elements is left out on both sides, except in a barrier. p: ranks,
   n: elements. Operands: a value that all ranks must share bit for bit is either made once and copied, or made
   everywhere with the same left and right operands. */
typedef struct dt__plan_machines {
    int  n, least, most; /* machines; ranks of the smallest and of the largest */
    int *of;             /* the machine of a rank */
    int *start, *rank;   /* machine m has rank[start[m]] .. rank[start[m + 1] - 1], ascending */
} dt__plan_machines;
typedef struct dt__plan_group {
    const int *who;   /* ranks */
    int        n, me; /* me: -1: not one of them */
} dt__plan_group;
typedef struct dt__plan_work {
    dt_plan            *p;
    const dt_plan_opts *o;
    int                 rank, world, round;
    int64_t             n;         /* elements of the vector */
    int64_t            *off, *cut; /* world + 1 each */
    int                *who;       /* world; first the ranks in their order */
    dt__plan_machines   hosts;     /* made when an algorithm needs it */
    const char         *why;       /* what went wrong first; nothing is added after it */
    bool                memory;    /* it was memory */
} dt__plan_work;
enum { DT__PLAN_WORLD = 1 << 22, DT__PLAN_ROUNDS = 1 << 26 };

static int dt__plan_log2(int n) /* floor */
{
    int k = 0;
    while (n >> (k + 1)) k++;
    return k;
}
static int dt__plan_log2_up(int n) { return n > 1 ? dt__plan_log2(n - 1) + 1 : 0; }
static int dt__plan_mod(int i, int n) { return i < 0 ? i + n : i >= n ? i - n : i; }
/* n elements in parts that differ by one at most: where part i begins */
static int64_t dt__plan_part(int64_t n, int parts, int i) { return n / parts * i + (n % parts < i ? n % parts : i); }
static void    dt__plan_parts(int64_t *off, int64_t base, int64_t n, int parts)
{
    for (int i = 0; i <= parts; i++) off[i] = base + dt__plan_part(n, parts, i);
}
static int dt__plan_reverse(int v, int bits)
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
    dt__plan_fail(w, "memory is out");
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
static void dt__plan_fold(dt__plan_work *w, int peer, int buf, int64_t at, int64_t end, bool left)
{
    dt_plan_step *s = dt__plan_add(w, end > at ? DT_STEP_FOLD : DT_STEP_RECV, peer, buf, at, end - at); /* barrier */
    if (s) s->left = left;
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
    if (n && slots > INT64_MAX / n) dt__plan_fail(w, "the scratch of this algorithm has more than 2^63 elements");
    else w->p->scratch = slots * n;
}
/* Room for so many more rounds? Pipelines of tiny segments may have too many. */
static bool dt__plan_room(dt__plan_work *w, int64_t rounds)
{
    if (rounds > DT__PLAN_ROUNDS - w->round) dt__plan_fail(w, "too many rounds: the segment is too small");
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
static bool dt__plan_machines_make(dt__plan_machines *m, int world, const int *host)
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
static void dt__plan_machines_free(dt__plan_machines *m)
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

/* ---- parts of algorithms: each moves w->round on by the same number on all ranks of the group, in it or not */

/* Binomial: ceil(lg p) rounds of n to member 0; lower members are left operands. Members that forward fold into buf. */
static void dt__plan_tree_up(dt__plan_work *w, const dt__plan_group *g, int first, int buf, int64_t n)
{
    int v = g->me;
    for (int bit = first; bit < g->n; bit <<= 1, w->round++) {
        if (v < 0 || v & (bit - 1)) continue;
        if (v & bit) dt__plan_send(w, g->who[v - bit], buf, 0, n);
        else if (v + bit < g->n) dt__plan_fold(w, g->who[v + bit], buf, 0, n, false);
    }
}
static void dt__plan_tree_down(dt__plan_work *w, const dt__plan_group *g, int64_t n)
{
    int v = g->me;
    for (int bit = (1 << dt__plan_log2_up(g->n)) >> 1; bit; bit >>= 1, w->round++) {
        if (v < 0 || v & (bit - 1)) continue;
        if (v & bit) dt__plan_recv(w, g->who[v - bit], DT_PLAN_DATA, 0, n);
        else if (v + bit < g->n) dt__plan_send(w, g->who[v + bit], DT_PLAN_DATA, 0, n);
    }
}
/* One turn of the ring, p - 1 rounds of one chunk (times pieces): member i sends first chunk i + own, then what came.
   With fold it ends with chunk i + own + 1 reduced; its operands stand in the order of the ring, the first left. */
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
    for (int t = 0; t < g->n - 1; t++) {
        int in = dt__plan_mod(out - 1, g->n);
        for (int64_t k = 0; k < pieces; k++, w->round++) {
            int64_t at = off[out] + k * segment, end = off[out + 1] - at > segment ? at + segment : off[out + 1];
            if (at < end) dt__plan_send(w, next, buf, at, end);
            at = off[in] + k * segment, end = off[in + 1] - at > segment ? at + segment : off[in + 1];
            if (at >= end) continue;
            if (fold) dt__plan_fold(w, prev, buf, at, end, true);
            else dt__plan_recv(w, prev, buf, at, end);
        }
        out = in;
    }
}
/* Of 2^k members: k rounds of n/2, n/4 ... until member i has one unit of the window reduced; the lower member's value
   is the left operand. near: the partner of the first round is the neighbour, and member i gets unit reverse(i); else
   the first is half the group away, and member i gets unit i. Unit u is off[u * stride] .. off[(u + 1) * stride]. */
static void dt__plan_halve(dt__plan_work *w, const dt__plan_group *g, const int64_t *off, int stride, bool near,
                           int *lo, int *hi)
{
    int k = dt__plan_log2(g->n);
    *lo = 0, *hi = g->n;
    for (int i = 0; i < k; i++, w->round++) {
        int m = near ? 1 << i : g->n >> (i + 1), mid = (*lo + *hi) / 2;
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
/* The way back: every member gets the whole window. */
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
/* The vectors of the others lie in scratch, in the order of members, my own in DATA: DATA becomes (x0 op x1) op x2 ...
   with every member's operands in the same places. p - 1 rounds without messages. */
static void dt__plan_in_order(dt__plan_work *w, int me, int members, int64_t at, int64_t n)
{
    for (int k = 1; k < members && !w->why; k++, w->round++) {
        if (k < me) dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_SCRATCH, 0, n, DT_PLAN_SCRATCH, k * n, false);
        else if (k == me) dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_DATA, at, n, DT_PLAN_SCRATCH, 0, true);
        else dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_DATA, at, n, DT_PLAN_SCRATCH, (k - 1) * n, false);
    }
}
/* The largest power of two of ranks; of the first 2 rem ranks the odd ones stay out. Operands keep the order of ranks.
   */
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
/* All to rank 0 or the root, which reduces in the order of ranks: p - 1 rounds of n, and one without messages if the
   root is another than 0. Other ranks' DATA stays. */
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
/* One round: the root sends its segment to each other rank (or all of the vector), or gets each one's. */
static void dt__plan_fan(dt__plan_work *w, int root, bool out, const int64_t *off, int from_buf)
{
    int kind = (w->rank == root) == out ? DT_STEP_SEND : DT_STEP_RECV;
    for (int k = 0; k < w->world; k++) {
        if (k == root || (w->rank != root && w->rank != k)) continue;
        int64_t at = off ? off[k] : 0, end = off ? off[k + 1] : w->n;
        dt__plan_add(w, kind, w->rank == root ? k : root, w->rank == root ? DT_PLAN_DATA : from_buf, at, end - at);
    }
    w->round++;
}

/* Of every element ((x0 x1) (x2 x3)) ((x4 x5) ...: a tree over the ranks that depends on their number only, so that all
   of allreduce, reduce and reduce_scatter have the same bits, whoever owns the element. One round in which each rank
   gets the others' parts of its segment, n (p-1)/p; ceil(lg p) rounds without messages; scratch of n (p-1)/p. Reduces
   in DATA, or with copy in scratch, and says where the result is. */
static int64_t dt__plan_ordered(dt__plan_work *w, const int64_t *off, bool copy)
{
    int     p = w->world, me = w->rank, own = me;
    int64_t k = off[me + 1] - off[me], at = copy ? (p - 1) * k : off[me];
    int     buf = copy ? DT_PLAN_SCRATCH : DT_PLAN_DATA;
    dt__plan_scratch(w, p - 1 + copy, k);
    if (copy) dt__plan_local(w, DT_STEP_COPY, buf, at, k, DT_PLAN_DATA, off[me], false);
    if (w->p->coll == DT_COLL_REDUCE) w->round++;
    for (int t = 1; t < p; t++) { /* each begins with another one */
        int to = dt__plan_mod(me + t, p), r = dt__plan_mod(me - t, p);
        dt__plan_send(w, to, DT_PLAN_DATA, off[to], off[to + 1]);
        dt__plan_recv(w, r, DT_PLAN_SCRATCH, (r - (r > me)) * k, (r - (r > me) + 1) * k);
    }
    w->round++;
    for (int s = 1; s < p; s *= 2, w->round++)
        for (int i = 0; i + s < p && k; i += 2 * s) { /* what is at own lies in buf, all else where it came */
            int64_t a = (i - (i > me)) * k, b = (i + s - (i + s > me)) * k;
            if (i + s == own) dt__plan_local(w, DT_STEP_REDUCE, buf, at, k, DT_PLAN_SCRATCH, a, true), own = i;
            else if (i == own) dt__plan_local(w, DT_STEP_REDUCE, buf, at, k, DT_PLAN_SCRATCH, b, false);
            else dt__plan_local(w, DT_STEP_REDUCE, DT_PLAN_SCRATCH, a, k, DT_PLAN_SCRATCH, b, false);
        }
    return at;
}

/* ---- allreduce */

/* One round of p - 1 messages of n to each rank, then p - 1 reductions on each; the order of ranks. */
static void dt__plan_allreduce_alltoall(dt__plan_work *w)
{
    dt__plan_scratch(w, w->world - 1, w->n);
    for (int t = 1; t < w->world && !w->why; t++) { /* each begins with another one */
        int     to = dt__plan_mod(w->rank + t, w->world), from = dt__plan_mod(w->rank - t, w->world);
        int64_t slot = (from < w->rank ? from : from - 1) * w->n;
        dt__plan_send(w, to, DT_PLAN_DATA, 0, w->n);
        dt__plan_recv(w, from, DT_PLAN_SCRATCH, slot, slot + w->n);
    }
    w->round++;
    dt__plan_in_order(w, w->rank, w->world, 0, w->n);
}
/* lg p rounds of n; else floor(lg p) + 2. The lower block of ranks is the left operand on both sides. */
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
/* 2 lg p rounds, 2 n (p-1)/p; else 3 + 2 lg p' rounds and 4n - 2n/p', p' = 2^floor(lg p): pairs share the folding of
   two vectors into one, and the one that stayed out gets the result at the end. Made once. */
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
    dt__plan_halve(w, &g, w->off, 1, true, &lo, &hi);
    dt__plan_unhalve(w, &g, w->off, 1, true, lo, hi);
    if (rem) {
        if (r < 2 * rem && r % 2) dt__plan_recv(w, r - 1, DT_PLAN_DATA, 0, w->n);
        if (r < 2 * rem && r % 2 == 0) dt__plan_send(w, r + 1, DT_PLAN_DATA, 0, w->n);
        w->round++;
    }
}
/* The set bits of p are blocks, the largest first. Each block halves; then each block's owners give their windows to
   those of the next larger block, the smallest first; the results come back; each block doubles. 2 lg B + 2 (k - 1)
   rounds for k blocks, the largest of B. Made once. */
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
    dt__plan_halve(w, &g, w->off, stride, true, &lo, &hi);
    w->round = base + dt__plan_log2(B);
    int64_t first = w->off[lo * stride], last = w->off[hi * stride];
    for (int way = 0; way < 2; way++) {
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
    w->round += dt__plan_log2(B) - dt__plan_log2(g.n); /* all blocks end together */
    dt__plan_unhalve(w, &g, w->off, stride, true, lo, hi);
    w->round = base + dt__plan_log2(B);
}
/* As many shards as the smallest machine has ranks, L. Inside a machine rank l reduces shard l, one partner a round;
   the ranks l of all H machines reduce their shard in a ring; inside again. 2 (M - 1) + 2 (H - 1) rounds, M the ranks
   of the largest machine; with M = L 2 n (p-1)/p, of which 2 (n/L)(H-1)/H a rank leave the machine. Made once. */
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
/* A tree to the first rank of each machine, the ring of these, a tree down: 2 ceil(lg M) + 2 (H - 1) rounds. Made
   once. */
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
static void dt__plan_allreduce(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    switch (w->p->algo) {
    case DT_ALGO_DIRECT: /* p - 1 rounds of n to rank 0, one of p - 1 messages from it; the order of ranks, made once */
        dt__plan_to_root(w, 0);
        dt__plan_fan(w, 0, true, NULL, DT_PLAN_DATA);
        break;
    case DT_ALGO_ALLTOALL: dt__plan_allreduce_alltoall(w); break;
    case DT_ALGO_TREE: /* 2 ceil(lg p) rounds of n; made once */
        dt__plan_tree_up(w, &g, 1, DT_PLAN_DATA, w->n);
        dt__plan_tree_down(w, &g, w->n);
        break;
    case DT_ALGO_RING: /* 2 (p - 1) rounds, 2 n (p-1)/p; chunk c begins with rank c; made once */
        dt__plan_parts(w->off, 0, w->n, w->world);
        dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, true, 0);
        dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, false, 1);
        break;
    case DT_ALGO_DOUBLING: dt__plan_allreduce_doubling(w); break;
    case DT_ALGO_HALVING: dt__plan_allreduce_halving(w); break;
    case DT_ALGO_BLOCKS: dt__plan_allreduce_blocks(w); break;
    case DT_ALGO_TWO_LEVEL: dt__plan_allreduce_two_level(w); break;
    case DT_ALGO_LEADER: dt__plan_allreduce_leader(w); break;
    case DT_ALGO_ORDERED: /* and each sends its segment to all: 2 rounds of p - 1 messages, 2 n (p-1)/p */
        dt__plan_parts(w->off, 0, w->n, w->world);
        dt__plan_ordered(w, w->off, false);
        for (int t = 1; t < w->world; t++) {
            int r = dt__plan_mod(w->rank - t, w->world);
            dt__plan_send(w, dt__plan_mod(w->rank + t, w->world), DT_PLAN_DATA, w->off[w->rank], w->off[w->rank + 1]);
            dt__plan_recv(w, r, DT_PLAN_DATA, w->off[r], w->off[r + 1]);
        }
        w->round++;
        break;
    default: /* shared: every rank has a step, if of no elements: all meet in the round */
        dt__plan_parts(w->off, 0, w->n, w->world);
        dt__plan_add(w, DT_STEP_SHARE, w->rank, DT_PLAN_DATA, w->off[w->rank], w->off[w->rank + 1] - w->off[w->rank]);
        w->round++;
        break;
    }
}

/* ---- the segments of all ranks */

/* Distances of half the group first, so that a rank ends with its own segment. Others than powers of two: an odd rank
   of the first pairs gives all it has to its neighbour first (n) and gets its segment from it last. */
static void dt__plan_scatter_halving(dt__plan_work *w)
{
    int            rem, lo, hi, r = w->rank;
    dt__plan_group g = dt__plan_power(w, &rem);
    if (rem) {
        if (r < 2 * rem && r % 2) dt__plan_send(w, r - 1, DT_PLAN_DATA, 0, w->n);
        if (r < 2 * rem && r % 2 == 0) dt__plan_fold(w, r + 1, DT_PLAN_DATA, 0, w->n, false);
        w->round++;
    }
    for (int v = 0; v <= g.n; v++) w->cut[v] = w->off[v < rem ? 2 * v : v + rem];
    dt__plan_halve(w, &g, w->cut, 1, false, &lo, &hi);
    if (rem) {
        if (r < 2 * rem && r % 2) dt__plan_recv(w, r - 1, DT_PLAN_DATA, w->off[r], w->off[r + 1]);
        if (r < 2 * rem && r % 2 == 0) dt__plan_send(w, r + 1, DT_PLAN_DATA, w->off[r + 1], w->off[r + 2]);
        w->round++;
    }
}
static void dt__plan_reduce_scatter(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    int            p = w->world, r = w->rank;
    switch (w->p->algo) {
    case DT_ALGO_DIRECT: /* p - 1 rounds of n, one of p - 1 messages; the order of ranks */
        dt__plan_to_root(w, 0);
        dt__plan_fan(w, 0, true, w->off, DT_PLAN_DATA);
        break;
    case DT_ALGO_RING: /* p - 1 rounds, n (p-1)/p; segment r begins with rank r + 1 */
        dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, true, -1);
        break;
    case DT_ALGO_HALVING: dt__plan_scatter_halving(w); break;
    case DT_ALGO_ORDERED: dt__plan_ordered(w, w->off, false); break;
    default: /* pairs: p - 1 rounds, n (p-1)/p; segment r is x_r op x_r+1 ..., round the ranks */
        for (int t = 1; t < p; t++, w->round++) {
            int to = dt__plan_mod(r - t, p);
            dt__plan_send(w, to, DT_PLAN_DATA, w->off[to], w->off[to + 1]);
            dt__plan_fold(w, dt__plan_mod(r + t, p), DT_PLAN_DATA, w->off[r], w->off[r + 1], false);
        }
        break;
    }
}
/* ceil(lg p) rounds, n (p-1)/p: round k sends the 2^k blocks from my own on to r - 2^k and gets the next ones. Scratch
   holds the blocks from my own on, round the ranks; at the end they go to their places. */
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
static void dt__plan_allgather(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    switch (w->p->algo) {
    case DT_ALGO_DIRECT: /* p - 1 segments to rank 0, then all of it to p - 1 ranks: 2 rounds */
        dt__plan_fan(w, 0, false, w->off, DT_PLAN_DATA);
        dt__plan_fan(w, 0, true, NULL, DT_PLAN_DATA);
        break;
    case DT_ALGO_RING: /* p - 1 rounds, n (p-1)/p */
        dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, false, 0);
        break;
    case DT_ALGO_DOUBLING: /* lg p rounds, n (p-1)/p */
        dt__plan_unhalve(w, &g, w->off, 1, false, w->rank, w->rank + 1);
        break;
    default: dt__plan_allgather_bruck(w); break;
    }
}
/* Segments of ranks first .. last - 1 behind the root, round the ranks: two messages where they pass the end. */
static void dt__plan_round_root(dt__plan_work *w, int kind, int peer, int first, int last)
{
    int a = first + w->o->root, b = last + w->o->root, p = w->world;
    if (a >= p) a -= p, b -= p;
    dt__plan_add(w, kind, peer, DT_PLAN_DATA, w->off[a], w->off[b < p ? b : p] - w->off[a]);
    if (b > p) dt__plan_add(w, kind, peer, DT_PLAN_DATA, 0, w->off[b - p]);
}
static dt__plan_group dt__plan_behind_root(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    for (int v = 0; v < w->world; v++) w->who[v] = dt__plan_mod(v + w->o->root, w->world);
    g.me = dt__plan_mod(w->rank - w->o->root, w->world);
    return g;
}
/* direct: one round of p - 1 messages at the root. tree: ceil(lg p) rounds, the segments of a subtree at once. */
static void dt__plan_gather_scatter(dt__plan_work *w, bool out)
{
    if (w->p->algo == DT_ALGO_DIRECT) {
        dt__plan_fan(w, w->o->root, out, w->off, DT_PLAN_DATA);
        return;
    }
    dt__plan_group g = dt__plan_behind_root(w);
    int            v = g.me, deep = dt__plan_log2_up(g.n);
    for (int i = 0; i < deep; i++, w->round++) {
        int bit = 1 << (out ? deep - 1 - i : i);
        if (v & (bit - 1)) continue;
        int child = v & bit ? v : v + bit, last = g.n - child > bit ? child + bit : g.n;
        if (child >= g.n) continue;
        dt__plan_round_root(w, (v == child) == out ? DT_STEP_RECV : DT_STEP_SEND, g.who[v ^ bit], child, last);
    }
}
/* pairs: p - 1 rounds; direct: one round of p - 1 messages. What comes stays in scratch until all of DATA is sent. */
static void dt__plan_alltoall(dt__plan_work *w)
{
    int64_t *out = w->off, *in = w->cut;
    int      p = w->world, r = w->rank;
    dt__plan_scratch(w, 1, in[p]);
    for (int t = 1; t < p; t++) {
        int to = dt__plan_mod(r + t, p), from = dt__plan_mod(r - t, p);
        dt__plan_send(w, to, DT_PLAN_DATA, out[to], out[to + 1]);
        dt__plan_recv(w, from, DT_PLAN_SCRATCH, in[from], in[from + 1]);
        if (w->p->algo == DT_ALGO_PAIRS) w->round++;
    }
    if (w->p->algo != DT_ALGO_PAIRS) w->round++;
    if (w->o->counts) { /* my own may move too */
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, in[r], in[r + 1] - in[r], DT_PLAN_DATA, out[r], false);
        w->round++;
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, 0, in[p], DT_PLAN_SCRATCH, 0, false);
    } else {
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, 0, in[r], DT_PLAN_SCRATCH, 0, false);
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, in[r + 1], in[p] - in[r + 1], DT_PLAN_SCRATCH, in[r + 1], false);
    }
    w->round++;
}
/* ceil(lg p) rounds, each of about n/2: round k moves the blocks whose distance to go has bit k by 2^k ranks. Scratch:
   the blocks by distance from 1 on, what is packed to be sent, what came. */
static void dt__plan_alltoall_bruck(dt__plan_work *w)
{
    int     p = w->world, r = w->rank, half = 0;
    int64_t c = w->off[1], packed;
    for (int m = 1; m < p; m <<= 1) { /* blocks with the bit */
        int k = p / (2 * m) * m + (p % (2 * m) > m ? p % (2 * m) - m : 0);
        if (k > half) half = k;
    }
    dt__plan_scratch(w, p - 1 + 2 * half, c);
    if (w->why) return;
    packed = (p - 1) * c;
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, 0, (p - 1 - r) * c, DT_PLAN_DATA, (r + 1) * c, false);
    dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, (p - 1 - r) * c, r * c, DT_PLAN_DATA, 0, false);
    w->round++;
    for (int m = 1; m < p; m <<= 1) {
        int64_t k = 0;
        for (int unpack = 0; unpack < 2; unpack++, w->round++) {
            k = 0;
            for (int b = m; b < p; b += 2 * m) {
                int64_t run = (p - b < m ? p - b : m) * c, at = (b - 1) * c, came = packed + half * c;
                if (unpack) dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, at, run, DT_PLAN_SCRATCH, came + k, false);
                else dt__plan_local(w, DT_STEP_COPY, DT_PLAN_SCRATCH, packed + k, run, DT_PLAN_SCRATCH, at, false);
                k += run;
            }
            if (unpack) continue;
            w->round++;
            dt__plan_send(w, dt__plan_mod(r + m, p), DT_PLAN_SCRATCH, packed, packed + k);
            dt__plan_recv(w, dt__plan_mod(r - m, p), DT_PLAN_SCRATCH, packed + half * c, packed + half * c + k);
        }
    }
    for (int b = 1; b < p; b++)
        dt__plan_local(w, DT_STEP_COPY, DT_PLAN_DATA, dt__plan_mod(r - b, p) * c, c, DT_PLAN_SCRATCH, (b - 1) * c,
                       false);
    w->round++;
}

/* ---- one root */

static void dt__plan_broadcast(dt__plan_work *w)
{
    if (w->p->algo == DT_ALGO_DIRECT) { /* one round of p - 1 messages of n */
        dt__plan_fan(w, w->o->root, true, NULL, DT_PLAN_DATA);
        return;
    }
    dt__plan_group g = dt__plan_behind_root(w);
    int            v = g.me, p = w->world;
    if (w->p->algo == DT_ALGO_TREE) { /* ceil(lg p) rounds of n */
        dt__plan_tree_down(w, &g, w->n);
    } else if (w->p->algo == DT_ALGO_CHAIN) { /* s + p - 2 rounds of n/s, s segments */
        int64_t seg = w->o->segment > 0 && w->o->segment < w->n ? w->o->segment : w->n;
        int64_t pieces = w->n / seg + (w->n % seg != 0);
        if (!dt__plan_room(w, pieces > DT__PLAN_ROUNDS ? pieces : pieces + p)) return;
        for (int64_t t = 0; t < pieces + p - 2; t++, w->round++) {
            int64_t in = t - v + 1, out = t - v;
            if (v < p - 1 && out >= 0 && out < pieces)
                dt__plan_send(w, g.who[v + 1], DT_PLAN_DATA, out * seg,
                              w->n - out * seg > seg ? (out + 1) * seg : w->n);
            if (v > 0 && in >= 0 && in < pieces)
                dt__plan_recv(w, g.who[v - 1], DT_PLAN_DATA, in * seg, w->n - in * seg > seg ? (in + 1) * seg : w->n);
        }
    } else { /* scatter by a tree, then the ring: ceil(lg p) + p - 1 rounds, about 2 n (p-1)/p */
        dt__plan_parts(w->off, 0, w->n, p);
        for (int bit = (1 << dt__plan_log2_up(p)) >> 1; bit; bit >>= 1, w->round++) {
            int child = v & bit ? v : v + bit, last = p - child > bit ? child + bit : p;
            if (v & (bit - 1) || child >= p) continue;
            if (v == child) dt__plan_recv(w, g.who[v - bit], DT_PLAN_DATA, w->off[child], w->off[last]);
            else dt__plan_send(w, g.who[child], DT_PLAN_DATA, w->off[child], w->off[last]);
        }
        dt__plan_ring(w, &g, DT_PLAN_DATA, w->off, w->o->segment, false, 0);
    }
}
static void dt__plan_reduce(dt__plan_work *w)
{
    if (w->p->algo == DT_ALGO_DIRECT) { /* p - 1 rounds of n; the order of ranks */
        dt__plan_to_root(w, w->o->root);
        return;
    }
    if (w->p->algo == DT_ALGO_ORDERED) { /* and each sends its segment to the root; it works in a copy */
        int     root = w->o->root, me = w->rank;
        dt__plan_parts(w->off, 0, w->n, w->world);
        int64_t at = dt__plan_ordered(w, w->off, me != root);
        for (int r = 0; r < w->world; r++) {
            if (r != root && me == root) dt__plan_recv(w, r, DT_PLAN_DATA, w->off[r], w->off[r + 1]);
            if (r == me && me != root) dt__plan_send(w, root, DT_PLAN_SCRATCH, at, at + w->off[r + 1] - w->off[r]);
        }
        w->round++;
        return;
    }
    dt__plan_group g = dt__plan_behind_root(w);
    if (w->p->algo == DT_ALGO_TREE) { /* ceil(lg p) rounds of n; the order of ranks from the root on */
        int  v = g.me;
        bool inner = v > 0 && v % 2 == 0 && v + 1 < g.n; /* forwards, and keeps its DATA */
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
    } else { /* ring: a turn in a copy, then the chunks to the root: p rounds, about 2 n (p-1)/p at the root */
        int buf = g.me ? DT_PLAN_SCRATCH : DT_PLAN_DATA;
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
}
static void dt__plan_barrier(dt__plan_work *w)
{
    dt__plan_group g = dt__plan_all(w);
    int            p = w->world, r = w->rank;
    if (w->p->algo == DT_ALGO_TREE) { /* 2 ceil(lg p) rounds */
        dt__plan_tree_up(w, &g, 1, DT_PLAN_DATA, 0);
        dt__plan_tree_down(w, &g, 0);
        return;
    }
    for (int m = 1; m < p; m <<= 1, w->round++) { /* ceil(lg p) rounds */
        dt__plan_send(w, dt__plan_mod(r + m, p), DT_PLAN_DATA, 0, 0);
        dt__plan_recv(w, dt__plan_mod(r - m, p), DT_PLAN_DATA, 0, 0);
    }
}

/* ---- making */
#define DT__PLAN_BIT(a) (1u << DT_ALGO_##a)
static unsigned dt__plan_algos(dt_coll c)
{
    switch (c) {
    case DT_COLL_BARRIER: return DT__PLAN_BIT(TREE) | DT__PLAN_BIT(BRUCK);
    case DT_COLL_ALLREDUCE:
        return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(ALLTOALL) | DT__PLAN_BIT(TREE) | DT__PLAN_BIT(RING) |
               DT__PLAN_BIT(DOUBLING) | DT__PLAN_BIT(HALVING) | DT__PLAN_BIT(BLOCKS) | DT__PLAN_BIT(TWO_LEVEL) |
               DT__PLAN_BIT(LEADER) | DT__PLAN_BIT(SHARED) | DT__PLAN_BIT(ORDERED);
    case DT_COLL_REDUCE_SCATTER:
        return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(RING) | DT__PLAN_BIT(HALVING) | DT__PLAN_BIT(PAIRS) |
               DT__PLAN_BIT(ORDERED);
    case DT_COLL_ALLGATHER:
        return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(RING) | DT__PLAN_BIT(DOUBLING) | DT__PLAN_BIT(BRUCK);
    case DT_COLL_BROADCAST:
        return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(TREE) | DT__PLAN_BIT(CHAIN) | DT__PLAN_BIT(SCATTER);
    case DT_COLL_REDUCE:
        return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(TREE) | DT__PLAN_BIT(RING) | DT__PLAN_BIT(ORDERED);
    case DT_COLL_GATHER:
    case DT_COLL_SCATTER: return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(TREE);
    case DT_COLL_ALLTOALL: return DT__PLAN_BIT(DIRECT) | DT__PLAN_BIT(PAIRS) | DT__PLAN_BIT(BRUCK);
    default: return 0;
    }
}
#undef DT__PLAN_BIT
/* NULL: it exists */
static const char *dt__plan_why_not(dt_coll coll, dt_algo algo, int world, const int *host)
{
    if ((int)coll < 0 || (int)coll >= (int)DT_COLL_COUNT || (int)algo < 0 || (int)algo >= (int)DT_ALGO_COUNT)
        return "no such collective or algorithm";
    if (coll == DT_COLL_SEND || coll == DT_COLL_RECV) return "send and recv have no plan";
    if (algo == DT_ALGO_AUTO) return "auto is not an algorithm: dt_plan_choose gives one";
    if (algo == DT_ALGO_NATIVE) return "native is the transport's own: it has no plan";
    if (!(dt__plan_algos(coll) >> (int)algo & 1u)) return "this collective has no such algorithm";
    if (world < 1 || world > DT__PLAN_WORLD) return "world is not in 1..2^22";
    if (coll == DT_COLL_ALLGATHER && algo == DT_ALGO_DOUBLING && world & (world - 1))
        return "allgather by doubling needs a power of two of ranks";
    if (algo == DT_ALGO_SHARED && !dt__plan_one_machine(world, host)) return "shared needs all ranks on one machine";
    return NULL;
}
/* The places of the segments, checked; alltoall: of what goes in off, of what comes in cut. */
static void dt__plan_segments(dt__plan_work *w)
{
    const dt_plan_opts *o = w->o;
    bool                a2a = w->p->coll == DT_COLL_ALLTOALL;
    w->off[0] = w->cut[0] = 0;
    for (int i = 0; i < w->world; i++) {
        const int64_t *c = o->counts;
        int64_t        a = !c ? o->count : a2a ? c[(int64_t)w->rank * w->world + i] : c[i];
        int64_t        b = !c ? o->count : a2a ? c[(int64_t)i * w->world + w->rank] : 0;
        if (a < 0 || b < 0) dt__plan_fail(w, "a count is negative");
        else if (a > INT64_MAX - w->off[i] || b > INT64_MAX - w->cut[i])
            dt__plan_fail(w, "the counts have a sum of more than 2^63");
        if (w->why) return;
        w->off[i + 1] = w->off[i] + a;
        w->cut[i + 1] = w->cut[i] + b;
    }
    w->n = w->off[w->world];
    w->p->count = a2a && w->cut[w->world] > w->n ? w->cut[w->world] : w->n;
}
static void dt__plan_run(dt__plan_work *w)
{
    dt_coll c = w->p->coll;
    bool    whole = c == DT_COLL_ALLREDUCE || c == DT_COLL_BROADCAST || c == DT_COLL_REDUCE;
    if (c == DT_COLL_BARRIER) {
        dt__plan_barrier(w);
        return;
    }
    if (whole) w->p->count = w->n = w->o->count;
    else dt__plan_segments(w);
    if (w->why || w->world == 1 || (!w->n && c != DT_COLL_ALLTOALL)) return;
    if (c == DT_COLL_ALLTOALL && w->p->algo == DT_ALGO_BRUCK && w->o->counts) {
        const int64_t *k = w->o->counts;
        for (int64_t i = 1; i < (int64_t)w->world * w->world; i++)
            if (k[i] != k[0]) dt__plan_fail(w, "alltoall by bruck needs equal counts");
        if (w->why) return;
    }
    switch (c) {
    case DT_COLL_ALLREDUCE: dt__plan_allreduce(w); break;
    case DT_COLL_REDUCE_SCATTER: dt__plan_reduce_scatter(w); break;
    case DT_COLL_ALLGATHER: dt__plan_allgather(w); break;
    case DT_COLL_BROADCAST: dt__plan_broadcast(w); break;
    case DT_COLL_REDUCE: dt__plan_reduce(w); break;
    case DT_COLL_GATHER: dt__plan_gather_scatter(w, false); break;
    case DT_COLL_SCATTER: dt__plan_gather_scatter(w, true); break;
    default:
        if (w->p->algo == DT_ALGO_BRUCK) dt__plan_alltoall_bruck(w);
        else dt__plan_alltoall(w);
        break;
    }
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
    p->nsteps = p->scratch = p->count = 0;
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
        if ((algo == DT_ALGO_TWO_LEVEL || algo == DT_ALGO_LEADER) &&
            !dt__plan_machines_make(&w.hosts, o->world, o->host))
            dt__plan_no_memory(&w);
    }
    if (!w.why) dt__plan_run(&w);
    p->rounds = w.round;
    dt__plan_machines_free(&w.hosts);
    if (w.off) DT_COMM_FREE(w.off);
    if (w.why) {
        p->nsteps = p->scratch = p->count = 0;
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
/* Each rank's part goes to it, which reduces in the order of ranks and sends the result to all: 2 rounds of p - 1
   messages of n/p and p - 1 rounds without, the bits of SHARE. */
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
        for (int t = 1; t < p->world && !w.why; t++) { /* each begins with another one */
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

DT_API const char *dt_coll_name(dt_coll c)
{
    static const char *const name[] = { "barrier", "allreduce", "reduce_scatter", "allgather", "broadcast", "reduce",
                                        "gather",  "scatter",   "alltoall",       "send",      "recv" };
    return (int)c >= 0 && (int)c < (int)DT_COLL_COUNT ? name[c] : "?";
}
DT_API const char *dt_algo_name(dt_algo a)
{
    static const char *const name[] = { "auto",    "direct",  "alltoall",  "tree",   "ring",   "doubling",
                                        "halving", "blocks",  "two_level", "leader", "shared", "bruck",
                                        "chain",   "scatter", "pairs",     "native",  "ordered" };
    return (int)a >= 0 && (int)a < (int)DT_ALGO_COUNT ? name[a] : "?";
}
DT_API dt_algo dt_algo_of(const char *name)
{
    for (int i = 0; name && i < (int)DT_ALGO_COUNT; i++)
        if (!strcmp(name, dt_algo_name((dt_algo)i))) return (dt_algo)i;
    return DT_ALGO_COUNT;
}

/* ==================================================================================================== >>choosing
   Closed formulas: the rounds of the plan one after the other, each as long as its slowest rank. A message takes alpha;
   a byte takes beta: inside a machine of the rank that sends or gets it, between machines of the machine, whose ranks
   share its one link. A byte reduced or copied takes gamma. On several machines `link` is the class between them, and
   ranks of one machine meet in shared memory (or as threads). Chunks are fractions here; the root is rank 0. */
typedef struct dt__cost_net {
    int               world, p2, rem; /* p2: the largest power of two, rem: the rest */
    double            ain, bin, aout, bout, gamma;
    dt__plan_machines hosts;
    double           *out, *in; /* bytes that leave and enter each machine in the round at hand */
    bool              crossing; /* a message goes to another machine */
    bool              inside;   /* one stays */
} dt__cost_net;

static bool dt__cost_open(dt__cost_net *t, const dt_costs *c, int world, const int *host, int link)
{
    bool one = dt__plan_one_machine(world, host);
    int  near = one || link < DT_LINK_SHM ? link : (int)DT_LINK_SHM;
    memset(t, 0, sizeof *t);
    t->world = world;
    t->p2 = 1 << dt__plan_log2(world);
    t->rem = world - t->p2;
    t->ain = c->alpha[near], t->bin = c->beta[near];
    t->aout = c->alpha[link], t->bout = c->beta[link];
    t->gamma = c->gamma;
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
static void dt__cost_edge(dt__cost_net *t, int from, int to, double b)
{
    int x = t->hosts.of[from], y = t->hosts.of[to];
    if (x == y) t->inside = true;
    else t->crossing = true, t->out[x] += b, t->in[y] += b;
}
/* The round of the edges named since the last one: a rank has k messages of b bytes at most */
static double dt__cost_round(dt__cost_net *t, double k, double b)
{
    double in = k * (t->ain + b * t->bin), out, most = 0;
    if (t->hosts.n == 1) return in;
    for (int i = 0; i < t->hosts.n; i++) {
        if (t->out[i] > most) most = t->out[i];
        if (t->in[i] > most) most = t->in[i];
        t->out[i] = t->in[i] = 0;
    }
    out = t->crossing ? k * t->aout + most * t->bout : 0;
    if (!t->inside) in = 0;
    t->inside = t->crossing = false;
    return in > out ? in : out;
}
static double dt__cost_shift(dt__cost_net *t, int d, double b) /* each rank to the one d further */
{
    for (int i = 0; t->hosts.n > 1 && i < t->world; i++) dt__cost_edge(t, i, dt__plan_mod(i + d, t->world), b);
    return dt__cost_round(t, 1, b);
}
/* Members v and v ^ m of the power of two, b bytes each; part > 0: the m units that v gives up, units of one segment of
   part bytes or, the first rem, of two. b is the most. */
static double dt__cost_swap(dt__cost_net *t, int m, double b, double part)
{
    for (int v = 0; t->hosts.n > 1 && v < t->p2; v++) {
        int u = v ^ m, first = u & ~(m - 1), two = t->rem - first < 0 ? 0 : t->rem - first < m ? t->rem - first : m;
        dt__cost_edge(t, v < t->rem ? 2 * v : v + t->rem, u < t->rem ? 2 * u : u + t->rem,
                      part > 0 ? part * (m + two) : b);
    }
    return dt__cost_round(t, 1, b);
}
static double dt__cost_fold(dt__cost_net *t, double b, bool both) /* odd ranks of the first pairs to even ones */
{
    for (int v = 0; t->hosts.n > 1 && v < t->rem; v++) {
        dt__cost_edge(t, 2 * v + 1, 2 * v, b);
        if (both) dt__cost_edge(t, 2 * v, 2 * v + 1, b);
    }
    return dt__cost_round(t, 1, b);
}
/* One level of the tree; part > 0: the segments of the subtree, of which the child of the root has most. */
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
static double dt__cost_fan(const dt__cost_net *t, double b) /* rank 0 to each other, or from each */
{
    int near = t->hosts.n > 1 ? t->hosts.start[t->hosts.of[0] + 1] - t->hosts.start[t->hosts.of[0]] : t->world;
    return (near - 1) * (t->ain + b * t->bin) + (t->world - near) * (t->aout + b * t->bout);
}
static double dt__cost_each(const dt__cost_net *t, double b, bool rounds) /* each to each, at once or in rounds */
{
    double most = 0, far_rounds = 0;
    for (int d = 1; rounds && t->hosts.n > 1 && d < t->world; d++) { /* those in which some message crosses */
        int i = 0;
        while (i < t->world && t->hosts.of[i] == t->hosts.of[dt__plan_mod(i + d, t->world)]) i++;
        far_rounds += i < t->world;
    }
    for (int i = 0; i < t->hosts.n; i++) {
        double k = t->hosts.n > 1 ? t->hosts.start[i + 1] - t->hosts.start[i] : t->world, far = t->world - k;
        double s = (k - 1) * (t->ain + b * t->bin) + far * t->aout + k * far * b * t->bout;
        if (rounds && far > 0)
            s = far_rounds * t->aout + k * far * b * t->bout + (t->world - 1 - far_rounds) * (t->ain + b * t->bin);
        if (s > most) most = s;
    }
    return most;
}
static double dt__cost_ring(dt__cost_net *t, double n, double segment)
{
    double b = n / t->world, pieces = segment > 0 && segment < b ? ceil(b / segment) : 1;
    return (t->world - 1) * pieces * dt__cost_shift(t, 1, b / pieces);
}
static double dt__cost_blocks(dt__cost_net *t, double n)
{
    double s = 0;
    int    p = t->world, B = t->p2, at = 0;
    for (int m = 1, k = 0; m < B; m <<= 1, k++) { /* inside the blocks; the largest is the slowest */
        double b = n / (2 << k);
        for (int r = 0, first = 0, bit = B; t->hosts.n > 1 && r < p; r++) {
            while (r >= first + (p & bit)) first += p & bit, bit >>= 1;
            if (bit > m) dt__cost_edge(t, r, first + ((r - first) ^ m), b);
        }
        s += 2 * dt__cost_round(t, 1, b) + b * t->gamma;
    }
    for (int big = B, bit = B >> 1; bit; bit >>= 1) { /* between a block and the next smaller one */
        if (!(p & bit)) continue;
        for (int j = 0; t->hosts.n > 1 && j < big; j++) dt__cost_edge(t, at + big + j % bit, at + j, n / big);
        s += 2 * dt__cost_round(t, big / bit, n / big) + n / big * t->gamma;
        at += big, big = bit;
    }
    return s;
}
static double dt__cost_allreduce(dt__cost_net *t, dt_algo algo, double n, double segment)
{
    double p = t->world, deep = dt__plan_log2_up(t->world), s = 0, g = t->gamma;
    int    m = t->hosts.least, most = t->hosts.most, h = t->hosts.n, last = dt__plan_log2(t->world);
    switch (algo) {
    case DT_ALGO_DIRECT: return 2 * dt__cost_fan(t, n) + (p - 1) * n * g;
    case DT_ALGO_ALLTOALL: return dt__cost_each(t, n, false) + (p - 1) * n * g;
    case DT_ALGO_TREE: return 2 * dt__cost_tree(t, n) + deep * n * g;
    case DT_ALGO_RING: return 2 * dt__cost_ring(t, n, segment) + n * (p - 1) / p * g;
    case DT_ALGO_DOUBLING:
        for (int k = 0; k < last; k++) s += dt__cost_swap(t, 1 << k, n, 0) + n * g;
        if (t->rem) s += 2 * dt__cost_fold(t, n, false) + n * g;
        return s;
    case DT_ALGO_HALVING:
        for (int k = 0; k < last; k++) s += 2 * dt__cost_swap(t, 1 << k, n / (2 << k), 0) + n / (2 << k) * g;
        if (t->rem) s += dt__cost_fold(t, n / 2, true) + dt__cost_fold(t, n / 2, false) + n / 2 * g;
        if (t->rem) s += dt__cost_fold(t, n, false);
        return s;
    case DT_ALGO_BLOCKS: return dt__cost_blocks(t, n);
    case DT_ALGO_TWO_LEVEL:
        s = 2 * (most - 1) * (t->ain + n / m * t->bin) + 2 * (h - 1) * (t->aout + n / h * t->bout);
        return s + ((most - 1) * n / m + (h - 1) * n / m / h) * g;
    case DT_ALGO_LEADER:
        deep = dt__plan_log2_up(most);
        s = 2 * deep * (t->ain + n * t->bin) + 2 * (h - 1) * (t->aout + n / h * t->bout);
        return s + (deep * n + (h - 1) * n / h) * g;
    case DT_ALGO_ORDERED: return 2 * dt__cost_each(t, n / p, false) + n * (p - 1) / p * g;
    default: /* shared: all meet before and after; each reads p - 1 parts and writes p - 1 */
        return 2 * deep * t->ain + n * (p - 1) / p * (g + t->bin);
    }
}
static double dt__cost_segments(dt__cost_net *t, dt_coll coll, dt_algo algo, double n, double segment)
{
    double p = t->world, g = t->gamma, s = 0, part = n / p;
    int    last = dt__plan_log2(t->world);
    if (coll == DT_COLL_REDUCE_SCATTER) {
        if (algo == DT_ALGO_DIRECT) return dt__cost_fan(t, n) + (p - 1) * n * g + dt__cost_fan(t, part);
        if (algo == DT_ALGO_RING) return dt__cost_ring(t, n, segment) + (p - 1) * part * g;
        if (algo == DT_ALGO_PAIRS) return dt__cost_each(t, part, true) + (p - 1) * part * g;
        if (algo == DT_ALGO_ORDERED) return dt__cost_each(t, part, false) + (p - 1) * part * g;
        for (int m = t->p2 >> 1; m; m >>= 1) { /* halving: the lowest units are two segments */
            double b = part * (m + (m < t->rem ? m : t->rem));
            s += dt__cost_swap(t, m, b, part) + b * g;
        }
        return t->rem ? s + dt__cost_fold(t, n, false) + n * g + dt__cost_fold(t, part, false) : s;
    }
    if (coll == DT_COLL_ALLGATHER) {
        if (algo == DT_ALGO_DIRECT) return dt__cost_fan(t, part) + dt__cost_fan(t, n);
        if (algo == DT_ALGO_RING) return dt__cost_ring(t, n, segment);
        for (int k = 0; k < last && algo == DT_ALGO_DOUBLING; k++) s += dt__cost_swap(t, 1 << k, (1 << k) * part, 0);
        if (algo == DT_ALGO_DOUBLING) return s;
        for (int m = 1; m < t->world; m <<= 1)
            s += dt__cost_shift(t, t->world - m, (m < t->world - m ? m : t->world - m) * part);
        return s + n * g;
    }
    if (coll == DT_COLL_ALLTOALL) {
        if (algo != DT_ALGO_BRUCK) return dt__cost_each(t, part, algo == DT_ALGO_PAIRS) + (p - 1) * part * g;
        for (int m = 1; m < t->world; m <<= 1) {
            int    over = t->world % (2 * m) - m;
            double b = part * (t->world / (2 * m) * m + (over > 0 ? over : 0));
            s += dt__cost_shift(t, m, b) + 2 * b * g;
        }
        return s + 2 * (p - 1) * part * g;
    }
    return algo == DT_ALGO_DIRECT ? dt__cost_fan(t, part) : dt__cost_subtrees(t, part); /* gather, scatter */
}
static double dt__cost_root(dt__cost_net *t, dt_coll coll, dt_algo algo, double n, double segment)
{
    double p = t->world, g = t->gamma, pieces = segment > 0 && segment < n ? ceil(n / segment) : 1;
    if (coll == DT_COLL_REDUCE) {
        if (algo == DT_ALGO_DIRECT) return dt__cost_fan(t, n) + (p - 1) * n * g;
        if (algo == DT_ALGO_TREE) return dt__cost_tree(t, n) + dt__plan_log2_up(t->world) * n * g;
        if (algo == DT_ALGO_ORDERED) return n * g + dt__cost_each(t, n / p, false) + dt__cost_fan(t, n / p);
        return n * g + dt__cost_ring(t, n, segment) + n * (p - 1) / p * g + dt__cost_fan(t, n / p);
    }
    if (algo == DT_ALGO_DIRECT) return dt__cost_fan(t, n);
    if (algo == DT_ALGO_TREE) return dt__cost_tree(t, n);
    if (algo == DT_ALGO_SCATTER) return dt__cost_subtrees(t, n / p) + dt__cost_ring(t, n, segment);
    double s = 0;
    for (int v = 1; v < t->world && pieces < 2 && t->hosts.n > 1; v++) { /* one link after the other */
        dt__cost_edge(t, v - 1, v, n);
        s += dt__cost_round(t, 1, n);
    }
    if (s > 0) return s;
    for (int v = 1; v < t->world && t->hosts.n > 1; v++) dt__cost_edge(t, v - 1, v, n / pieces);
    return (pieces + p - 2) * dt__cost_round(t, 1, n / pieces);
}
static double dt__cost_of(dt__cost_net *t, dt_coll coll, dt_algo algo, double n, double segment)
{
    if (t->world == 1) return 0;
    if (coll == DT_COLL_ALLREDUCE) return dt__cost_allreduce(t, algo, n, segment);
    if (coll == DT_COLL_BROADCAST || coll == DT_COLL_REDUCE) return dt__cost_root(t, coll, algo, n, segment);
    if (coll != DT_COLL_BARRIER) return dt__cost_segments(t, coll, algo, n, segment);
    double s = 0;
    if (algo == DT_ALGO_TREE) return 2 * dt__cost_tree(t, 0);
    for (int m = 1; m < t->world; m <<= 1) s += dt__cost_shift(t, m, 0);
    return s;
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
/* The segment at which a chain is fastest: sqrt((p - 2) n beta / alpha) pieces, of whole cache lines. */
static int64_t dt__cost_segment(const dt__cost_net *t, double n)
{
    double pieces = sqrt((t->world - 2) * n * t->bout / (t->aout > 0 ? t->aout : 1e-12)), b;
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
        int64_t seg = a == (int)DT_ALGO_CHAIN ? dt__cost_segment(t, (double)nbytes) : 0;
        double  s = dt__cost_of(t, coll, (dt_algo)a, (double)nbytes, (double)seg);
        if (best != DT_ALGO_COUNT && !(s < least * (1 - 1e-9))) continue; /* as good: the first */
        best = (dt_algo)a;
        least = s;
        *segment = seg;
    }
    return best;
}
static unsigned dt__cost_may(dt_coll coll, int world, const int *host, int link)
{
    unsigned may = 0; /* ordered is for those who ask */
    if (link < 0 || link >= (int)DT_LINK_COUNT) return 0;
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++)
        if (a != (int)DT_ALGO_ORDERED && dt_plan_can(coll, (dt_algo)a, world, host)) may |= 1u << a;
    if (link != DT_LINK_THREAD && link != DT_LINK_SHM) may &= ~(1u << DT_ALGO_SHARED);
    return may;
}
/* shared: ranks see one memory */
static dt_algo dt__cost_choose(const dt_costs *t, dt_coll coll, int world, const int *host, int link, bool shared,
                               int64_t nbytes, int64_t *segment_bytes)
{
    dt__cost_net net;
    int64_t      segment = 0;
    dt_algo      best = DT_ALGO_COUNT;
    unsigned     may = dt__cost_may(coll, world, host, link);
    if (!shared) may &= ~(1u << DT_ALGO_SHARED);
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
static void dt__cost_say(char *buf, size_t nbytes, size_t *len, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void dt__cost_say(char *buf, size_t nbytes, size_t *len, const char *format, ...)
{
    va_list a;
    va_start(a, format);
    int n = vsnprintf(*len < nbytes ? buf + *len : NULL, *len < nbytes ? nbytes - *len : 0, format, a);
    va_end(a);
    if (n > 0) *len += (size_t)n;
}
static const char *const dt__link_names[DT_LINK_COUNT] = { "thread", "shm", "loopback", "network" };
/* fixed: by collective, what is taken at any size; DT_ALGO_AUTO: by cost. NULL: all by cost, also shared. */
static size_t dt__explain(const dt_costs *t, int world, const int *host, int link, const dt_algo *fixed, char *buf,
                          size_t nbytes, size_t len)
{
    dt__cost_net net;
    if (world < 1 || world > DT__PLAN_WORLD || link < 0 || link >= (int)DT_LINK_COUNT) return len;
    if (!dt__cost_open(&net, t, world, host, link)) return len;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++)
        dt__cost_say(buf, nbytes, &len, "%-9s %8.2f us a message, %8.1f MB/s%s\n", dt__link_names[i], t->alpha[i] * 1e6,
                     t->beta[i] > 0 ? 1e-6 / t->beta[i] : 0.0, i == link ? "  <- used" : "");
    dt__cost_say(buf, nbytes, &len, "reducing            %15.1f MB/s\n%d ranks, %d machine%s; from so many bytes on:\n",
                 t->gamma > 0 ? 1e-6 / t->gamma : 0.0, world, net.hosts.n, net.hosts.n == 1 ? "" : "s");
    for (int c = 0; c < (int)DT_COLL_COUNT; c++) {
        unsigned may = dt__cost_may((dt_coll)c, world, host, link);
        int64_t  seg, from = 0, top = c == (int)DT_COLL_BARRIER ? 1 : (int64_t)1 << 40;
        if (!may) continue;
        if (fixed && fixed[c] != DT_ALGO_AUTO) {
            dt__cost_say(buf, nbytes, &len, "%-15s 0 %s\n", dt_coll_name((dt_coll)c), dt_algo_name(fixed[c]));
            continue;
        }
        if (fixed) may &= ~(1u << DT_ALGO_SHARED);
        dt_algo now = dt__cost_best(&net, (dt_coll)c, may, 0, &seg);
        dt__cost_say(buf, nbytes, &len, "%-15s 0 %s", dt_coll_name((dt_coll)c), dt_algo_name(now));
        for (int64_t n = 1; n < top; n *= 2) { /* between from and n the choice may change once */
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
            dt__cost_say(buf, nbytes, &len, ", %lld %s", (long long)hi, dt_algo_name(now));
        }
        dt__cost_say(buf, nbytes, &len, "\n");
    }
    dt__cost_close(&net);
    return len;
}
DT_API size_t dt_plan_explain(const dt_costs *t, int world, const int *host, int link, char *buf, size_t nbytes)
{
    if (nbytes) buf[0] = 0;
    return dt__explain(t, world, host, link, NULL, buf, nbytes, 0);
}

/* ---- tables in files: whole numbers, which no locale spells differently */
enum { DT__COSTS_MOST = 65536 };
static const char *dt__costs_named(const dt_comm_opts *o)
{
    const char *path = o->costs && *o->costs ? o->costs : getenv("DT_COMM_COSTS");
    return path && *path ? path : NULL;
}
static bool dt__costs_sane(const dt_costs *t)
{
    bool ok = t->gamma >= 0 && t->gamma <= 1e-6;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++)
        ok = ok && t->alpha[i] >= 0 && t->alpha[i] <= 10 && t->beta[i] >= 0 && t->beta[i] <= 1e-6;
    return ok;
}
static void dt__costs_slow(dt_costs *t, double bandwidth, double latency) /* sockets that keep to these */
{
    for (int i = DT_LINK_LOOP; i <= (int)DT_LINK_NET; i++) {
        if (bandwidth > 0 && 1 / bandwidth > t->beta[i]) t->beta[i] = 1 / bandwidth < 1e-6 ? 1 / bandwidth : 1e-6;
        if (latency > 0) t->alpha[i] = t->alpha[i] + latency < 10 ? t->alpha[i] + latency : 10;
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
static bool dt__costs_word(const char **p, const char *end, const char *word) /* the next one, if it is this one */
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
    unsigned                 seen = 0; /* a bit for each link, then reducing; and these */
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
            return dt__costs_bad(path, line, from, (size_t)(rest - from), "nothing behind 'end'");
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
            ok = (i == (int)DT_LINK_COUNT || dt__costs_number(&p, rest, INT64_C(10000000000000), 1e12, &t->alpha[i])) &&
                 dt__costs_number(&p, rest, 1000000000, 1e15, i == (int)DT_LINK_COUNT ? &t->gamma : &t->beta[i]) &&
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
DT_API int dt_costs_load(dt_costs *t, const char *path)
{
    dt_costs    got;
    struct stat st;
    char       *text;
    ssize_t     n = 0, k = 0;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), status;
    if (fd < 0) return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size >= DT__COSTS_MOST) {
        close(fd);
        return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': expected a file of less than %d bytes", path,
                            DT__COSTS_MOST);
    }
    text = (char *)DT_COMM_MALLOC(DT__COSTS_MOST);
    while (text && n < DT__COSTS_MOST && ((k = read(fd, text + n, (size_t)(DT__COSTS_MOST - n))) > 0 ||
                                          (k < 0 && errno == EINTR)))
        n += k > 0 ? k : 0;
    status = !text ? dt__comm_bad(DT_COMM_ERR_MEMORY, "costs in '%.120s': out of memory", path)
             : k < 0 ? dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': %s", path, strerror(errno))
                     : dt__costs_parse(&got, path, text, (size_t)n);
    close(fd);
    DT_COMM_FREE(text);
    if (status == 0) *t = got;
    return status;
}
DT_API int dt_costs_save(const dt_costs *t, const char *path)
{
    char   text[1024], beside[4200];
    size_t len = 0, done = 0;
    int    fd, e = 0;
    if (!dt__costs_sane(t))
        return dt__comm_bad(DT_COMM_ERR_ARG, "costs for '%.120s': a number is negative, no number, or above 10 s a "
                                             "message or 1 us a byte", path);
    dt__cost_say(text, sizeof text, &len, "dt costs 1\n# link, picoseconds a message, femtoseconds a byte\n");
    for (int i = 0; i < (int)DT_LINK_COUNT; i++)
        dt__cost_say(text, sizeof text, &len, "%s %lld %lld\n", dt__link_names[i],
                     (long long)(t->alpha[i] * 1e12 + 0.5), (long long)(t->beta[i] * 1e15 + 0.5));
    dt__cost_say(text, sizeof text, &len, "reducing %lld\nend\n", (long long)(t->gamma * 1e15 + 0.5));
    if (strlen(path) > 4096) return dt__comm_bad(DT_COMM_ERR_ARG, "costs: the path is too long");
    snprintf(beside, sizeof beside, "%s.%d.part", path, (int)getpid());
    fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': %s", beside, strerror(errno));
    while (done < len && !e) {
        ssize_t k = write(fd, text + done, len - done);
        if (k > 0) done += (size_t)k;
        else if (k == 0 || errno != EINTR) e = k == 0 ? EIO : errno;
    }
    if (!e && fsync(fd) != 0) e = errno;
    if (close(fd) != 0 && !e) e = errno;
    if (!e && rename(beside, path) != 0) e = errno;
    if (!e) return 0;
    unlink(beside);
    return dt__comm_bad(DT_COMM_ERR_ARG, "costs in '%.120s': %s", path, strerror(e));
}

/* ==================================================================================================== >>drawing
   Ranks are lines, rounds are columns. An arrow goes from the round of the send to that of its receive: blue for a
   copy, red for a value that is reduced. Squares are steps of a rank alone, a bar is a round in shared memory. */
enum { DT__PLAN_DRAWN = 1024 }; /* ranks */

typedef struct dt__plan_picture {
    FILE    *f;
    dt_plan *plan; /* of all ranks */
    int      world;
    double   left, top, wide, high; /* of a column, of a line */
    bool     labels;
    bool     text; /* now the labels, over all lines */
} dt__plan_picture;

/* The label stands near the sender, or, if that has several messages in the round, near the receiver. */
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
/* The k-th send of a rank to a peer meets the peer's k-th receive from it. next: where to look on, for each peer. */
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
    int64_t        messages = 0, elements = 0;
    int            talks = 0, rounds = 0;
    for (int r = 0; r < d->world; r++) {
        next[r] = 0;
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
            dt_algo_name(algo), d->world, (long long)p[0].count);
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
DT_API int dt_schedule_svg(const char *path, dt_coll coll, dt_algo algo, const dt_plan_opts *o)
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
        d.f = fopen(path, "w");
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

/* ==================================================================================================== >>shared
   Ranks of one machine share a segment of memory: processes a memfd, threads an anonymous mapping.

   Each rank has a seat there. To a shared operation every rank comes with a post: what it is about to do, and where its
   vector lies or, if it is short, the vector itself. There are two posts, used in turn: who writes the one of
   operation k+2 has seen everyone's post of k+1, and they came there after reading those of k.
     short      the vector is in the post: everyone reads all posts and reduces for itself. One meeting.
     direct     all vectors lie where all can see them: each rank reduces its part and writes it to all vectors.
     staged     other vectors pass through a few stages a rank, piece by piece. Each rank puts a piece there but for
                its own part, reduces that from all stages into all stages, and takes what the others left in its own.
   Plans (rings, trees ...) send through a channel for each ordered pair: a frame, and the payload in a few fragments
   or, if the receiver can see it, the place where it lies.

   Waiting spins, then yields, then sleeps on a word of the own seat; who publishes something looks whether anyone
   sleeps. */
#include <linux/falloc.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define DT__ALIGNED __attribute__((aligned(64)))
#if defined(__SANITIZE_THREAD__) /* which knows no fences */
#define DT__FENCE(word) ((void)__atomic_fetch_add(word, 0, __ATOMIC_SEQ_CST))
#else
#define DT__FENCE(word) __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
enum {
    DT__POST_FIRST = 48,         /* bytes beside the number in the first line */
    DT__POST_SHORT = 4096,
    DT__PIECE      = 64 << 10,   /* of a staged vector, at most */
    DT__PIECE_MIN  = 16 << 10,
    DT__STAGES     = 4,
    DT__OWN        = 4096,       /* fetched ahead of reducing */
    DT__FRAGMENT   = 64 << 10,
    DT__FRAGMENTS  = 8,
    DT__NOTES      = 64,
    DT__CORES      = 1024        /* that a mask of cores tells */
};
typedef struct dt__post {
    uint64_t  no;                /* of the shared operation, from 1; written last */
    uint64_t  print;             /* of what must be equal */
    uint8_t   first[DT__POST_FIRST];
    int64_t   at;                /* where the vector is: see dt__shared_see; -1: nowhere */
    dt__frame frame;
} dt__post;
typedef struct dt__note { /* an operation that was begun; frame.sent: when (ns, this machine's clock) */
    uint64_t  seq, print;   /* seq + 1, written last */
    dt__frame frame;
} dt__note;
typedef struct dt__seat {
    dt__post post[2] DT__ALIGNED;
    uint64_t put DT__ALIGNED;    /* pieces staged so far, in all operations */
    uint64_t part DT__ALIGNED;   /* pieces of which the own part is reduced */
    uint64_t taken DT__ALIGNED;  /* pieces of which all parts are taken: no stage is read any more */
    uint64_t fin DT__ALIGNED;    /* direct operations finished: their number */
    uint32_t bell DT__ALIGNED;   /* the futex */
    uint32_t asleep;
    uint64_t cores[DT__CORES / 64]; /* that the rank may use */
    uint32_t sat;                /* it has written them */
    uint32_t touching;           /* threads: this rank is at other ranks' memory */
    dt__note note[DT__NOTES] DT__ALIGNED;
    uint64_t begun, done;        /* collectives, so far */
    uint8_t  more[2][DT__POST_SHORT] DT__ALIGNED;
    uint8_t  stage[DT__STAGES][DT__PIECE] DT__ALIGNED;
} dt__seat;
typedef struct dt__channel { /* from one rank to another */
    uint64_t  head DT__ALIGNED; /* fragments sent */
    uint64_t  tail DT__ALIGNED; /* fragments taken */
    dt__frame frame DT__ALIGNED;
    int64_t   at;               /* where the payload lies; -1: in the fragments */
    uint8_t   data[DT__FRAGMENTS][DT__FRAGMENT] DT__ALIGNED;
} dt__channel;
typedef struct dt__hall { /* the beginning of the segment */
    uint32_t sleepers DT__ALIGNED;
    int32_t  refs;              /* threads */
    int32_t  failing DT__ALIGNED, status; /* of the communicator, for all ranks here; the first one wins */
    int32_t  rank;
    char     text[768];
    /* threads that agree on who is there: dt__threads_shrink */
    int32_t  lock;              /* guards the rest */
    int32_t  round, ncame, nin; /* decided so far; who came to the next; who were in the last */
    int64_t  deadline;
    uint64_t came[16];          /* a bit for each rank */
    struct {
        uint64_t in[16];
        int32_t  n;
        char    *base;          /* the segment of those who are in */
    } result[2];                /* of the last two rounds */
} dt__hall;
typedef char dt__hall_size[sizeof(dt__hall) <= 4096 ? 1 : -1];
typedef struct dt__lot { /* of the arena; a list by place */
    int64_t           at, n;
    bool              used;
    struct dt__lot *next;
} dt__lot;
typedef struct dt__shared {
    char     *base;
    size_t    nbytes;
    dt__hall *hall;
    int       n, me, fd;        /* ranks here; this one's number among them; -1: threads */
    int      *index, *rank;     /* number here of a rank of the communicator (-1: elsewhere), and back */
    size_t   *ready;            /* by number here: bytes of each fragment to it that have memory */
    uint64_t  no, pieces;       /* shared operations and staged pieces so far */
    int       spin;
    bool      owed;             /* see dt__shared_settle */
    int64_t   arena_at, arena_n; /* of this rank, in the segment */
    dt__lot *blocks;
    pthread_mutex_t lock;       /* guards blocks */
} dt__shared;

static size_t    dt__shared_seats(int n) { return 4096 + (size_t)n * sizeof(dt__seat); }
static dt__seat *dt__seat_of(const dt__shared *s, int i) { return (dt__seat *)(void *)(s->base + 4096) + i; }
static dt__channel *dt__channel_of(const dt__shared *s, int from, int to)
{
    return (dt__channel *)(void *)(s->base + dt__shared_seats(s->n)) + ((size_t)from * (size_t)s->n + (size_t)to);
}
static int64_t dt__shared_arenas(int n) /* where they begin */
{
    size_t at = dt__shared_seats(n) + (size_t)n * (size_t)n * sizeof(dt__channel);
    return (int64_t)((at + ((size_t)2 << 20) - 1) & ~(((size_t)2 << 20) - 1));
}
/* A place as others see it: threads see everything, processes what is in the segment. -1: they do not. */
static int64_t dt__shared_at(const dt__shared *s, const void *p, size_t nbytes)
{
    uintptr_t a = (uintptr_t)p, b = (uintptr_t)s->base;
    if (s->fd < 0) return (int64_t)a;
    return a >= b && a - b < s->nbytes && nbytes <= s->nbytes - (a - b) ? (int64_t)(a - b) : -1;
}
static char *dt__shared_see(const dt__shared *s, int64_t at)
{
    return s->fd < 0 ? (char *)(uintptr_t)at : s->base + at;
}

/* A failure that a rank of this machine has told here, taken over. */
static void dt__comm_look(const dt_comm *c)
{
    const dt__shared *s = (const dt__shared *)c->shared;
    int               status = s ? __atomic_load_n(&s->hall->status, __ATOMIC_ACQUIRE) : 0;
    if (status && dt__comm_ok(c)) dt__comm_failed((dt_comm *)(uintptr_t)c, status, s->hall->rank, s->hall->text);
}
static void dt__shared_fail(dt__shared *s, int status, int rank, const char *text)
{
    if (__atomic_exchange_n(&s->hall->failing, 1, __ATOMIC_SEQ_CST)) return;
    snprintf(s->hall->text, sizeof s->hall->text, "%s", text);
    s->hall->rank = rank;
    __atomic_store_n(&s->hall->status, status, __ATOMIC_RELEASE);
}
/* ---- waking and sleeping */
static void dt__futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
static void dt__shared_wake(dt__shared *s)
{
    for (int i = 0; i < s->n; i++) {
        dt__seat *t = dt__seat_of(s, i);
        if (i == s->me || !__atomic_load_n(&t->asleep, __ATOMIC_RELAXED)) continue;
        __atomic_add_fetch(&t->bell, 1, __ATOMIC_SEQ_CST);
        dt__futex_wake(&t->bell);
    }
}
/* Something was published. Who lies down at this moment may not see it, nor be seen: dt__shared_settle, before this
   rank waits or leaves, looks again behind a fence, which would hold up the work here. */
static void dt__shared_ring(dt__shared *s)
{
    s->owed = true;
    if (__builtin_expect(__atomic_load_n(&s->hall->sleepers, __ATOMIC_RELAXED) != 0, 0)) dt__shared_wake(s);
}
static void dt__shared_settle(dt__shared *s)
{
    if (!s->owed) return;
    s->owed = false;
    DT__FENCE(&s->hall->sleepers);
    if (__builtin_expect(__atomic_load_n(&s->hall->sleepers, __ATOMIC_RELAXED) != 0, 0)) dt__shared_wake(s);
}
/* Lines that are going to be read and written: they come once, as this core's own. */
static void dt__own_lines(char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(p[i]));
#else
        __builtin_prefetch(p + i, 1);
#endif
}
/* Around a last look: dt__shared_doze before it, dt__shared_sleep or dt__shared_rise after it. */
static uint32_t dt__shared_doze(dt__shared *s)
{
    dt__seat *t = dt__seat_of(s, s->me);
    uint32_t  bell = __atomic_load_n(&t->bell, __ATOMIC_ACQUIRE);
    __atomic_store_n(&t->asleep, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&s->hall->sleepers, 1, __ATOMIC_SEQ_CST);
    return bell;
}
static void dt__shared_rise(dt__shared *s)
{
    __atomic_store_n(&dt__seat_of(s, s->me)->asleep, 0, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&s->hall->sleepers, 1, __ATOMIC_RELAXED);
}
static void dt__shared_sleep(dt__shared *s, uint32_t bell, int64_t ns)
{
    struct timespec t;
    t.tv_sec = (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    syscall(SYS_futex, &dt__seat_of(s, s->me)->bell, FUTEX_WAIT, bell, &t, NULL, 0);
    dt__shared_rise(s);
}

/* ---- what ranks say they do */
static uint64_t dt__frame_print(const dt__frame *f) /* of what must be equal on all ranks */
{
    uint64_t h = (uint64_t)f->count * UINT64_C(0x9e3779b97f4a7c15);
    h ^= (uint64_t)f->coll | (uint64_t)f->dtype << 8 | (uint64_t)f->op << 16 | (uint64_t)f->algo << 24 |
         (uint64_t)(uint32_t)f->root << 32;
    h = (h ^ h >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    h ^= f->seq * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 32;
}
static void dt__note_put(dt__note *ring, const dt__frame *f)
{
    dt__note *n = &ring[f->seq % DT__NOTES];
#if defined(__SANITIZE_THREAD__)
    __atomic_exchange_n(&n->seq, 0, __ATOMIC_ACQ_REL);
#else
    __atomic_store_n(&n->seq, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* what follows stays behind it */
#endif
    n->print = dt__frame_print(f);
    n->frame = *f;
    __atomic_store_n(&n->seq, f->seq + 1, __ATOMIC_RELEASE);
}
/* False: not begun, or too long ago. */
static bool dt__note_get(const dt__note *ring, uint64_t seq, dt__frame *f)
{
    const dt__note *n = &ring[seq % DT__NOTES];
    if (__atomic_load_n(&n->seq, __ATOMIC_ACQUIRE) != seq + 1) return false;
    *f = n->frame;
    return __atomic_fetch_add((uint64_t *)(uintptr_t)&n->seq, 0, __ATOMIC_ACQ_REL) == seq + 1; /* else it moved on */
}
static bool dt__shared_last(const dt_comm *c, int rank, dt__frame *f, uint64_t *done)
{
    const dt__shared *s = (const dt__shared *)__atomic_load_n(&c->shared, __ATOMIC_ACQUIRE);
    if (!s || s->index[rank] < 0) return false;
    const dt__seat *t = dt__seat_of(s, s->index[rank]);
    uint64_t        begun = __atomic_load_n(&t->begun, __ATOMIC_ACQUIRE);
    *done = __atomic_load_n(&t->done, __ATOMIC_ACQUIRE);
    return begun && dt__note_get(t->note, begun - 1, f);
}
/* While waiting: has someone begun something else under this number? False: yes, and the communicator has failed. */
static bool dt__shared_agree(dt_comm *c, const dt__frame *mine)
{
    dt__shared *s = (dt__shared *)c->shared;
    uint64_t    print = dt__frame_print(mine);
    for (int i = 0; i < s->n; i++) {
        const dt__note *n = &dt__seat_of(s, i)->note[mine->seq % DT__NOTES];
        dt__frame       f;
        if (i == s->me || __atomic_load_n(&n->seq, __ATOMIC_ACQUIRE) != mine->seq + 1 || n->print == print) continue;
        if (!dt__note_get(dt__seat_of(s, i)->note, mine->seq, &f)) continue;
        if (!dt__frame_ok(c, s->rank[i], mine, &f)) return false;
    }
    return true;
}

/* Threads work in each other's vectors, which are their callers' again when a call has failed. So one who fails waits
   until nobody touches them (dt__shared_untouched), and nobody begins to when somebody has failed. False: one has. */
static bool dt__shared_touch(dt__shared *s)
{
    uint32_t *mine = &dt__seat_of(s, s->me)->touching;
    if (s->fd >= 0) return true;
    __atomic_exchange_n(mine, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&s->hall->failing, __ATOMIC_SEQ_CST)) return true;
    __atomic_store_n(mine, 0, __ATOMIC_RELEASE);
    return false;
}
static void dt__shared_leave(dt__shared *s)
{
    if (s->fd < 0) __atomic_store_n(&dt__seat_of(s, s->me)->touching, 0, __ATOMIC_RELEASE);
}
static void dt__shared_untouched(dt__shared *s) /* after dt__shared_fail */
{
    for (int i = 0; s->fd < 0 && i < s->n; i++)
        while (i != s->me && __atomic_load_n(&dt__seat_of(s, i)->touching, __ATOMIC_SEQ_CST)) sched_yield();
}
/* ---- memory of a segment: taken before it is touched, since what is not there then is a signal */
static bool dt__segment_take(int fd, int64_t at, int64_t n)
{
    while (n > 0) { /* in pieces: a signal undoes the one under way */
        int64_t k = n < 2 << 20 ? n : 2 << 20;
        if (syscall(SYS_fallocate, fd, 0, (off_t)at, (off_t)k) == 0) at += k, n -= k;
        else if (errno != EINTR) return false;
    }
    return true;
}
static bool dt__channel_take(dt_comm *c, dt__shared *s, int to, size_t n) /* n: bytes of a fragment */
{
    int64_t at = (int64_t)((char *)dt__channel_of(s, s->me, to)->data - s->base);
    size_t  k = 4096;
    if (s->fd < 0 || n <= s->ready[to]) return true;
    while (k < n) k *= 2;
    for (int i = 0; i < DT__FRAGMENTS; i++)
        if (!dt__segment_take(s->fd, at + (int64_t)i * DT__FRAGMENT, (int64_t)k)) {
            dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: no shared memory for messages to rank %d: %s",
                          c->rank, s->rank[to], strerror(errno));
            return false;
        }
    s->ready[to] = k;
    return true;
}

/* ---- channels */
static int dt__shared_send(dt_comm *c, int peer, dt__msg *m)
{
    dt__shared  *s = (dt__shared *)c->shared;
    dt__channel *h = dt__channel_of(s, s->me, s->index[peer]);
    uint64_t     tail = __atomic_load_n(&h->tail, __ATOMIC_ACQUIRE);
    if (m->state == 0) {
        if (h->head != tail) return 0; /* the message before is not taken yet */
        h->frame = m->head;
        h->at = m->n > 4096 ? dt__shared_at(s, m->ptr, m->n) : -1;
        if (h->at < 0 && m->n &&
            !dt__channel_take(c, s, s->index[peer], m->n < DT__FRAGMENT ? m->n : (size_t)DT__FRAGMENT))
            return c->status;
        m->state = 1;
        if (h->at >= 0 || !m->n) {
            __atomic_store_n(&h->head, h->head + 1, __ATOMIC_RELEASE);
            dt__shared_ring(s);
            m->done = m->n;
            if (h->at >= 0) m->state = 2; /* until it is taken */
        }
    }
    if (m->state == 2) return tail == h->head;
    bool moved = false;
    while (m->done < m->n && h->head - tail < DT__FRAGMENTS) {
        size_t k = m->n - m->done < DT__FRAGMENT ? m->n - m->done : (size_t)DT__FRAGMENT;
        memcpy(h->data[h->head % DT__FRAGMENTS], m->ptr + m->done, k);
        m->done += k;
        __atomic_store_n(&h->head, h->head + 1, __ATOMIC_RELEASE);
        tail = __atomic_load_n(&h->tail, __ATOMIC_ACQUIRE);
        moved = true;
    }
    if (moved) dt__shared_ring(s);
    return m->done == m->n;
}
static void dt__comm_copy(void *to, const void *from, size_t n) /* both may be NULL if there is nothing to copy */
{
    if (n) memcpy(to, from, n);
}
static void dt__msg_take(dt__msg *m, const void *src, size_t k) /* the next k bytes of the payload */
{
    if (m->fold) dt__fold(m->dtype, m->op, m->ptr + m->done, src, (int64_t)(k / dt__comm_size_of(m->dtype)), m->left);
    else dt__comm_copy(m->ptr + m->done, src, k);
    m->done += k;
}
static int dt__shared_recv(dt_comm *c, int peer, dt__msg *m)
{
    dt__shared  *s = (dt__shared *)c->shared;
    dt__channel *h = dt__channel_of(s, s->index[peer], s->me);
    uint64_t     head = __atomic_load_n(&h->head, __ATOMIC_ACQUIRE);
    if (head == h->tail) return 0;
    if (m->state == 0) {
        if (!dt__frame_ok(c, peer, &m->head, &h->frame)) return c->status;
        if (h->at >= 0) {
            if (!dt__shared_touch(s)) return 0;
            dt__msg_take(m, dt__shared_see(s, h->at), m->n);
            dt__shared_leave(s);
        }
        m->state = 1;
        if (h->at >= 0 || !m->n) {
            __atomic_store_n(&h->tail, h->tail + 1, __ATOMIC_RELEASE);
            dt__shared_ring(s);
            return 1;
        }
    }
    while (m->done < m->n && head != h->tail) {
        size_t k = m->n - m->done < DT__FRAGMENT ? m->n - m->done : (size_t)DT__FRAGMENT;
        dt__msg_take(m, h->data[h->tail % DT__FRAGMENTS], k);
        __atomic_store_n(&h->tail, h->tail + 1, __ATOMIC_RELEASE);
        head = __atomic_load_n(&h->head, __ATOMIC_ACQUIRE);
    }
    dt__shared_ring(s);
    return m->done == m->n;
}

/* ---- a segment */
static int64_t dt__arena_size(int n) /* of each of n ranks: what the machine has, at most 1/4 of 2^46 together */
{
    int64_t pages = (int64_t)sysconf(_SC_PHYS_PAGES), page = (int64_t)sysconf(_SC_PAGESIZE);
    int64_t ram = pages > 0 && page > 0 ? pages * page : INT64_C(1) << 34, most = (INT64_C(1) << 44) / n;
    const char *s = getenv("DT_COMM_ARENA"); /* MiB */
    if (s && atoll(s) > 0 && atoll(s) < INT64_C(1) << 40) ram = (int64_t)atoll(s) << 20;
    if (ram > most) ram = most;
    return (ram + (INT64_C(2) << 20) - 1) & ~((INT64_C(2) << 20) - 1);
}
/* A new segment of n ranks: seats, the heads of channels and a place for arenas. Negative: errno. */
static int dt__segment_new(int n)
{
    int64_t       seats = (int64_t)dt__shared_seats(n), fixed = dt__shared_arenas(n), arena = dt__arena_size(n);
    struct rlimit most;
    int           fd, e;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY) { /* a larger one would be a signal */
        int64_t room = most.rlim_cur > (rlim_t)INT64_MAX ? INT64_MAX : (int64_t)most.rlim_cur;
        errno = EFBIG;
        if (room < fixed) return -1;
        if (arena > (room - fixed) / n) arena = (room - fixed) / n & ~((INT64_C(2) << 20) - 1);
    }
    fd = (int)syscall(SYS_memfd_create, "dt", 1u /* close on exec */);
    if (fd < 0) return -1;
    bool ok = ftruncate(fd, (off_t)(fixed + n * arena)) == 0 && dt__segment_take(fd, 0, seats);
    for (int64_t i = 0; ok && i < (int64_t)n * n; i++)
        ok = dt__segment_take(fd, seats + i * (int64_t)sizeof(dt__channel), (int64_t)offsetof(dt__channel, data));
    if (ok) return fd;
    e = errno;
    close(fd);
    errno = e;
    return -1;
}
static int dt__shared_cores(uint64_t *set) /* that this thread may use; how many */
{
    uint64_t all[DT__CORES / 64];
    long     n = syscall(SYS_sched_getaffinity, 0, sizeof all, all);
    int      cores = 0;
    for (long i = 0; i < DT__CORES / 64; i++) {
        uint64_t word = i < n / 8 ? all[i] : 0;
        cores += __builtin_popcountll(word);
        if (set) set[i] = word;
    }
    return cores ? cores : 1;
}
/* Looks before the first yield. Ranks may be bound to a core each: together they need as many as they are. */
static int dt__shared_spin(dt__shared *s)
{
    uint64_t all[DT__CORES / 64];
    int      cores = 0;
    if (s->spin >= 0) return s->spin;
    memset(all, 0, sizeof all);
    for (int i = 0; i < s->n; i++) {
        const dt__seat *t = dt__seat_of(s, i);
        if (!__atomic_load_n(&t->sat, __ATOMIC_ACQUIRE)) return 0; /* not yet */
        for (int k = 0; k < DT__CORES / 64; k++) all[k] |= t->cores[k];
    }
    for (int k = 0; k < DT__CORES / 64; k++) cores += __builtin_popcountll(all[k]);
    s->spin = s->n <= cores || !cores ? 4000 : 0;
    return s->spin;
}
static void dt__shared_free(dt__shared *s)
{
    if (!s) return;
    for (dt__lot *b = s->blocks; b;) {
        dt__lot *next = b->next;
        DT_COMM_FREE(b);
        b = next;
    }
    bool last = s->base && (s->fd >= 0 || !__atomic_sub_fetch(&s->hall->refs, 1, __ATOMIC_ACQ_REL));
    if (last) munmap(s->base, s->nbytes);
    if (s->fd >= 0) close(s->fd);
    DT_COMM_FREE(s->index);
    DT_COMM_FREE(s->rank);
    DT_COMM_FREE(s->ready);
    pthread_mutex_destroy(&s->lock);
    DT_COMM_FREE(s);
}
/* The seat of c among its n ranks here (member: their ranks in c). base: of threads; else the segment of fd. */
static dt__shared *dt__shared_new(dt_comm *c, const int *local, int n, char *base, size_t nbytes, int fd)
{
    dt__shared *s = (dt__shared *)dt__comm_zeroed(1, sizeof *s);
    if (!s) return NULL;
    s->fd = fd;
    s->base = base;
    s->nbytes = nbytes;
    s->n = n;
    pthread_mutex_init(&s->lock, NULL);
    s->index = (int *)DT_COMM_MALLOC((size_t)c->size * sizeof *s->index);
    s->rank = (int *)DT_COMM_MALLOC((size_t)n * sizeof *s->rank);
    s->ready = (size_t *)dt__comm_zeroed((size_t)n, sizeof *s->ready);
    if (fd >= 0 && s->index && s->rank && s->ready) {
        void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        s->base = p == MAP_FAILED ? NULL : (char *)p;
    }
    if (!s->base || !s->index || !s->rank || !s->ready) {
        if (fd < 0) s->base = NULL; /* not ours to unmap */
        s->fd = -1;                 /* nor to close */
        dt__shared_free(s);
        return NULL;
    }
    s->hall = (dt__hall *)(void *)s->base;
    for (int i = 0; i < c->size; i++) s->index[i] = -1;
    for (int i = 0; i < n; i++) {
        s->rank[i] = local[i];
        s->index[local[i]] = i;
        if (local[i] == c->rank) s->me = i;
    }
    s->spin = -1;
    dt__shared_cores(dt__seat_of(s, s->me)->cores);
    __atomic_store_n(&dt__seat_of(s, s->me)->sat, 1u, __ATOMIC_RELEASE);
    __atomic_store_n(&c->note, (struct dt__note *)dt__seat_of(s, s->me)->note, __ATOMIC_RELEASE);
    if (fd >= 0) {
        s->arena_n = ((int64_t)nbytes - dt__shared_arenas(n)) / n;
        s->arena_at = dt__shared_arenas(n) + s->me * s->arena_n;
        madvise(s->base + s->arena_at, (size_t)s->arena_n, MADV_HUGEPAGE);
    }
    return s;
}

/* ---- the arena */
static void *dt__arena_alloc(dt__shared *s, size_t nbytes)
{
    int64_t    n = (int64_t)((nbytes + 63) & ~(size_t)63), align = n >= 4096 ? 4096 : 64;
    dt__lot *b, *last = NULL, *fresh = (dt__lot *)DT_COMM_MALLOC(sizeof *fresh);
    if (n >= 4096) n = (n + 4095) & ~INT64_C(4095);
    pthread_mutex_lock(&s->lock);
    for (b = s->blocks; b; last = b, b = b->next)
        if (!b->used && b->n >= n && b->at % align == 0) break;
    int64_t at = last ? (last->at + last->n + align - 1) / align * align : 0;
    if (fresh && b && b->n > n) { /* the rest stays free */
        fresh->at = b->at + n;
        fresh->n = b->n - n;
        fresh->used = false;
        fresh->next = b->next;
        b->next = fresh;
        b->n = n;
        fresh = NULL;
    } else if (fresh && !b && at <= s->arena_n && n <= s->arena_n - at) {
        b = fresh;
        fresh = NULL;
        b->at = at;
        b->n = n;
        b->next = NULL;
        if (last) last->next = b;
        else s->blocks = b;
    }
    if (b) b->used = true;
    pthread_mutex_unlock(&s->lock);
    DT_COMM_FREE(fresh);
    if (!b) return NULL;
    char *p = s->base + s->arena_at + b->at;
    if (!dt__segment_take(s->fd, s->arena_at + b->at, n)) {
        b->used = false;
        return NULL;
    }
    for (int64_t i = 0; i < n; i += 4096) *(volatile char *)(p + i) = 0;
    return p;
}
static bool dt__arena_free(dt__shared *s, void *ptr) /* false: it is not from here */
{
    int64_t at = dt__shared_at(s, ptr, 0) - s->arena_at;
    bool    found = false;
    pthread_mutex_lock(&s->lock);
    for (dt__lot *b = s->blocks, *last = NULL; b; last = b, b = b->next) {
        if (b->at != at || !b->used) continue;
        found = true;
        b->used = false;
        if (b->n >= 1 << 20)
            syscall(SYS_fallocate, s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(s->arena_at + b->at),
                             (off_t)b->n);
        dt__lot *next = b->next;
        if (next && !next->used && b->at + b->n == next->at) {
            b->n += next->n;
            b->next = next->next;
            DT_COMM_FREE(next);
        }
        if (last && !last->used && last->at + last->n == b->at) {
            last->n += b->n;
            last->next = b->next;
            DT_COMM_FREE(b);
        }
        break;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}
static const dt__transport dt__shared_transport = { "shm", dt__shared_send, dt__shared_recv, NULL, NULL };

/* ==================================================================================================== >>tcp
   A link is what goes to and comes from one peer, over c->streams sockets. A message is its header, then its payload,
   on stream 0. A payload of DT__TCP_STRIPE bytes or more is cut into one contiguous part for each stream; the header is
   on stream 0 only, and no stream is read before it is checked. Sends end when the kernel has all of it.

   A closed connection says that the peer is gone, but not why, nor whether somebody else went first. The control tree
   knows: the link waits for it DT__TCP_GRACE and fails the communicator itself only then.

   c->bandwidth is kept by a bucket that all links of the rank share, with two milliseconds in it; while something waits
   it fills without end, as a wire goes on sending while its rank computes. c->latency is kept by the receiver: a message
   is delivered so long after its last byte arrived, by the kernel's clock where it tells. Rank 0's are in the costs by
   which algorithms are chosen. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Every call on a socket. Tests put faults here, and their own ends of links below. */
#ifndef DT__SEND
#define DT__SEND(fd, msg, flags) sendmsg(fd, msg, flags)
#endif
#ifndef DT__RECV
#define DT__RECV(fd, msg, flags) recvmsg(fd, msg, flags)
#endif
#ifndef DT__POLL
#define DT__POLL(fds, n, timespec) (int)syscall(SYS_ppoll, fds, n, timespec, NULL, 0)
#endif
#ifndef DT__WORLD_LINK
#define DT__WORLD_LINK dt__world_link
#define DT__WORLD_ABORT dt__world_abort
#define DT__WORLD_ASK dt__world_ask
#define DT__FRAME_OK dt__frame_ok
#endif

enum {
    DT__TCP_STREAMS = 16,
    DT__TCP_STRIPE = 256 << 10,
    DT__TCP_STAGE = 256 << 10, /* for what is reduced on arrival */
    DT__TCP_SMALL = 4 << 10,   /* header and payload are read in one call up to here */
    DT__TCP_TURN = 1 << 20,    /* bytes that a call moves at most, so that both directions get on */
    DT__TCP_BUFFER = 4 << 20,  /* asked of the kernel, each way */
    DT__TCP_WAKE = 128 << 10,  /* of a long payload so much must be there to wake who sleeps beside a program */
    DT__TCP_GRACE = 500        /* ms */
};
typedef struct dt__tcp_way {       /* one direction of a link: the message under way */
    size_t   done[DT__TCP_STREAMS]; /* payload bytes of each stream's part */
    size_t   held[DT__TCP_STREAMS]; /* of them in the stage, not reduced yet */
    size_t   rest[DT__TCP_STREAMS]; /* still to come, of a stream that was found empty */
    uint32_t blocked;               /* streams that the last call found full or empty, a bit each */
    bool     more;                  /* it stopped before it was blocked */
    int64_t  ready;                 /* ns: nothing moves before; 0: at once */
} dt__tcp_way;
typedef struct dt__tcp_link {
    int         fd[DT__TCP_STREAMS]; /* -1: not open */
    int         peer;
    int         wake[DT__TCP_STREAMS]; /* bytes that must be there to wake a sleeper; 0: as it came, which is 1 */
    uint32_t    opening;             /* streams that are waited for */
    int64_t     died;                /* ns: when a socket was found closed; 0: it lives */
    int         error;               /* errno of that; 0: closed in order */
    int64_t     arrived;             /* ns: the last byte that came */
    size_t      ahead;               /* payload bytes in small that came with the header */
    dt__tcp_way in, out;
    dt__frame   got;
    char       *stage;
    char        small[DT__TCP_SMALL];
} dt__tcp_link;
typedef struct dt__tcp {
    dt__tcp_link **link;   /* by peer; NULL: not used yet */
    dt__tcp_link **used;   /* the same, one behind the other */
    int            nused, streams;
    int            sndbuf, rcvbuf; /* 0: the kernel's own */
    struct pollfd *poll;
    double         tokens; /* bytes that may be sent now; below 0: owed */
    bool           queued; /* something has waited for them since */
    int64_t        filled; /* ns */
    uint64_t       sent;   /* bytes, headers too: atomic */
} dt__tcp;

static int dt__tcp_status(const dt_comm *c) /* of a communicator that has failed */
{
    int status = __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    return status ? status : DT_COMM_ERR_NET;
}
/* Fails c on all ranks; returns the status. */
__attribute__((format(printf, 4, 5))) static int dt__tcp_fail(dt_comm *c, int status, int rank, const char *format, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (c->world) DT__WORLD_ABORT(c->world, c, status, rank, text);
    dt__comm_failed(c, status, rank, text);
    return dt__tcp_status(c);
}

/* A buffer above the system's limit is cut to it and no longer grows by itself: the kernel's own is better then. */
static int dt__tcp_buffer(const char *limit)
{
    char    text[32];
    int     fd = open(limit, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    return atol(text) >= DT__TCP_BUFFER ? DT__TCP_BUFFER : 0;
}
static dt__tcp *dt__tcp_of(dt_comm *c)
{
    dt__tcp *t = (dt__tcp *)c->tcp;
    size_t   n = (size_t)c->size;
    if (t) return t;
    t = (dt__tcp *)DT_COMM_MALLOC(sizeof *t);
    if (t) {
        memset(t, 0, sizeof *t);
        t->streams = c->streams < 1 ? 1 : c->streams > DT__TCP_STREAMS ? DT__TCP_STREAMS : c->streams;
        t->link = (dt__tcp_link **)DT_COMM_MALLOC(n * sizeof *t->link);
        t->used = (dt__tcp_link **)DT_COMM_MALLOC(n * sizeof *t->used);
    }
    if (!t || !t->link || !t->used) {
        if (t) DT_COMM_FREE(t->link), DT_COMM_FREE(t->used);
        DT_COMM_FREE(t);
        dt__tcp_fail(c, DT_COMM_ERR_MEMORY, c->rank, "tcp: no memory for the links of rank %d", c->rank);
        return NULL;
    }
    memset(t->link, 0, n * sizeof *t->link);
    t->sndbuf = dt__tcp_buffer("/proc/sys/net/core/wmem_max");
    t->rcvbuf = dt__tcp_buffer("/proc/sys/net/core/rmem_max");
    t->filled = dt__comm_now();
    __atomic_store_n(&c->tcp, (void *)t, __ATOMIC_RELEASE);
    return t;
}
static dt__tcp_link *dt__tcp_link_of(dt_comm *c, int peer)
{
    dt__tcp       *t = dt__tcp_of(c);
    dt__tcp_link  *l;
    struct pollfd *p;
    if (!t) return NULL;
    if (t->link[peer]) return t->link[peer];
    p = (struct pollfd *)DT_COMM_REALLOC(t->poll, (1 + (size_t)(t->nused + 1) * (size_t)t->streams) * sizeof *p);
    if (p) t->poll = p;
    l = p ? (dt__tcp_link *)DT_COMM_MALLOC(sizeof *l) : NULL;
    if (!l) {
        dt__tcp_fail(c, DT_COMM_ERR_MEMORY, c->rank, "tcp: no memory for the link from rank %d to %d", c->rank, peer);
        return NULL;
    }
    memset(l, 0, sizeof *l);
    for (int s = 0; s < DT__TCP_STREAMS; s++) l->fd[s] = -1;
    l->peer = peer;
    t->link[peer] = t->used[t->nused++] = l;
    return l;
}
/* What the kernel does not know to do is left: Unix sockets have no such options. */
static void dt__tcp_tune(dt_comm *c, dt__tcp *t, int fd)
{
    int one = 1, ms = c->timeout > 0 && c->timeout < 1e6 ? (int)(c->timeout * 1000) + 5000 : 0;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (t->sndbuf) (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &t->sndbuf, sizeof t->sndbuf);
    if (t->rcvbuf) (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &t->rcvbuf, sizeof t->rcvbuf);
    if (ms) (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms); /* the engine's question comes first */
    if (c->latency > 0) (void)setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
}
/* 1: stream s is open; 0: not yet; negative: failed */
static int dt__tcp_open(dt_comm *c, dt__tcp_link *l, int s)
{
    int fd;
    if (l->fd[s] >= 0) return 1;
    fd = DT__WORLD_LINK(c->world, c, c->member ? c->member[l->peer] : l->peer, s);
    if (fd < -1) return dt__tcp_status(c);
    l->opening = fd < 0 ? l->opening | 1u << s : l->opening & ~(1u << s);
    if (fd < 0) return 0;
    dt__tcp_tune(c, (dt__tcp *)c->tcp, fd);
    l->fd[s] = fd;
    return 1;
}
/* Where the part of stream s begins, in a payload of n bytes; that of 'streams' is n. Elements are whole in it. */
static size_t dt__tcp_part(size_t n, int streams, int s)
{
    size_t per = (n / (size_t)streams + 64) & ~(size_t)63;
    return s == streams || (size_t)s * per > n ? n : (size_t)s * per;
}

/* The peer has closed, or the network has: see above. 0: wait; negative: failed. */
static int dt__tcp_gone(dt_comm *c, dt__tcp_link *l, int error)
{
    const dt__world *w = c->world;
    const char      *host = w && w->member && c->member ? w->member[c->member[l->peer]].host_name : "";
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    if (!l->died) {
        l->died = dt__comm_now();
        l->error = error;
    }
    if (dt__comm_now() - l->died < (int64_t)DT__TCP_GRACE * 1000000) return 0;
    return dt__tcp_fail(c, DT_COMM_ERR_PEER, l->peer,
                        "rank %d%s%.64s%s is gone: its connection to rank %d was %s%s; its last output may tell why",
                        l->peer, host[0] ? " (" : "", host, host[0] ? ")" : "", c->rank,
                        l->error ? "lost: " : "closed in an operation", l->error ? strerror(l->error) : "");
}
static int dt__tcp_error(dt_comm *c, dt__tcp_link *l, int error, const char *call) /* of a socket call */
{
    switch (error) {
    case ECONNRESET:
    case EPIPE:
    case ETIMEDOUT:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EHOSTDOWN: return dt__tcp_gone(c, l, error);
    default:
        return dt__tcp_fail(c, DT_COMM_ERR_NET, l->peer, "tcp: %s between ranks %d and %d: %s", call, c->rank, l->peer,
                            strerror(error));
    }
}

/* How many of n bytes may be sent now; 0: not before *ready. */
static size_t dt__tcp_allowed(const dt_comm *c, dt__tcp *t, size_t n, int64_t *ready)
{
    double  burst = c->bandwidth * 2e-3;
    int64_t now;
    *ready = 0;
    if (c->bandwidth <= 0) return n;
    if (burst < 1448) burst = 1448;
    now = dt__comm_now();
    t->tokens += (double)(now - t->filled) * 1e-9 * c->bandwidth;
    t->filled = now;
    if (t->tokens > burst && !t->queued) t->tokens = burst; /* a wire does not save what it was not asked for */
    if (t->tokens > 0) return (double)n < burst ? n : (size_t)burst;
    t->queued = true;
    *ready = now + (int64_t)(-t->tokens / c->bandwidth * 1e9) + 1;
    return 0;
}
/* Moves what it can of stream s. 0, or negative: failed. */
static int dt__tcp_push(dt_comm *c, dt__tcp_link *l, int s, dt__msg *m, char *from, size_t n)
{
    dt__tcp     *t = (dt__tcp *)c->tcp;
    dt__tcp_way *w = &l->out;
    size_t       moved = 0;
    for (;;) {
        size_t        head = s == 0 ? sizeof m->head - m->head_done : 0, rest = n - w->done[s], may;
        struct iovec  v[2];
        struct msghdr mh;
        ssize_t       r;
        if (head + rest == 0) return 0;
        if (moved >= DT__TCP_TURN) {
            w->more = true;
            return 0;
        }
        may = dt__tcp_allowed(c, t, head + rest < DT__TCP_TURN ? head + rest : (size_t)DT__TCP_TURN, &w->ready);
        if (may == 0) return 0;
        memset(&mh, 0, sizeof mh);
        v[0].iov_base = (char *)&m->head + m->head_done;
        v[0].iov_len = head < may ? head : may;
        v[1].iov_base = from + w->done[s];
        v[1].iov_len = may - v[0].iov_len;
        mh.msg_iov = head ? v : v + 1;
        mh.msg_iovlen = head ? 2 : 1;
        r = DT__SEND(l->fd[s], &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            w->blocked |= 1u << s;
            return 0;
        }
        if (r < 0) return dt__tcp_error(c, l, errno, "send");
        t->tokens -= (double)r;
        t->queued = t->queued && (size_t)r < head + rest;
        moved += (size_t)r;
        __atomic_fetch_add(&t->sent, (uint64_t)r, __ATOMIC_RELAXED);
        if ((size_t)r < head) head = (size_t)r;
        m->head_done += head;
        w->done[s] += (size_t)r - head;
        m->done += (size_t)r - head;
    }
}
static int dt__tcp_send(dt_comm *c, int peer, dt__msg *m)
{
    dt__tcp_link *l;
    int           streams, r;
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    l = dt__tcp_link_of(c, peer);
    if (!l) return dt__tcp_status(c);
    if (m->state == 0) memset(l->out.done, 0, sizeof l->out.done);
    m->state = 1;
    l->out.blocked = 0;
    l->out.more = false;
    l->out.ready = 0;
    if (l->died) return dt__tcp_gone(c, l, 0);
    streams = m->n < DT__TCP_STRIPE ? 1 : ((dt__tcp *)c->tcp)->streams;
    for (int s = 0; s < streams; s++) {
        size_t at = dt__tcp_part(m->n, streams, s), end = dt__tcp_part(m->n, streams, s + 1);
        r = dt__tcp_open(c, l, s);
        if (r > 0) r = dt__tcp_push(c, l, s, m, m->ptr + at, end - at);
        if (r < 0) return r;
    }
    return m->head_done == sizeof m->head && m->done == m->n;
}

/* When the bytes that a call brought had arrived: the kernel stamps them by the clock of the day. */
static int64_t dt__tcp_stamp(struct msghdr *mh)
{
    int64_t now = dt__comm_now();
    for (struct cmsghdr *h = CMSG_FIRSTHDR(mh); h; h = CMSG_NXTHDR(mh, h))
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec at, day;
            int64_t         age;
            memcpy(&at, CMSG_DATA(h), sizeof at);
            clock_gettime(CLOCK_REALTIME, &day);
            age = ((int64_t)day.tv_sec - at.tv_sec) * 1000000000 + (day.tv_nsec - at.tv_nsec);
            if (age > 0 && age < (int64_t)10000000000) return now - age;
        }
    return now;
}
/* Reads into at most two places. *got: bytes, 0: none there. 0, or negative: failed; the peer may be gone. */
static int dt__tcp_read(dt_comm *c, dt__tcp_link *l, int s, struct iovec *v, int nv, size_t *got)
{
    union {
        struct cmsghdr align;
        char           bytes[CMSG_SPACE(sizeof(struct timespec))];
    } control;
    for (;;) {
        struct msghdr mh;
        ssize_t       r;
        *got = 0;
        memset(&mh, 0, sizeof mh);
        mh.msg_iov = v;
        mh.msg_iovlen = (size_t)nv;
        if (c->latency > 0) {
            mh.msg_control = control.bytes;
            mh.msg_controllen = sizeof control.bytes;
        }
        r = DT__RECV(l->fd[s], &mh, MSG_DONTWAIT);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            l->in.blocked |= 1u << s;
            return 0;
        }
        if (r < 0) return dt__tcp_error(c, l, errno, "receive");
        if (r == 0) return dt__tcp_gone(c, l, 0);
        *got = (size_t)r;
        if (c->latency > 0) {
            int64_t at = dt__tcp_stamp(&mh);
            if (at > l->arrived) l->arrived = at;
        }
        return 0;
    }
}
/* The header, and with it what came behind it of a small payload: into small, for it may not be ours. */
static int dt__tcp_head(dt_comm *c, dt__tcp_link *l, dt__msg *m)
{
    while (m->head_done < sizeof l->got) {
        struct iovec v[2];
        size_t       got, head = sizeof l->got - m->head_done;
        int          r;
        v[0].iov_base = (char *)&l->got + m->head_done;
        v[0].iov_len = head;
        v[1].iov_base = l->small;
        v[1].iov_len = m->n <= DT__TCP_SMALL ? m->n : 0;
        r = dt__tcp_read(c, l, 0, v, v[1].iov_len ? 2 : 1, &got);
        if (r < 0 || got == 0) return r;
        if (got > head) l->ahead = got - head;
        m->head_done += got < head ? got : head;
    }
    if (!DT__FRAME_OK(c, l->peer, &m->head, &l->got)) {
        dt__comm_failed(c, DT_COMM_ERR_MISMATCH, l->peer, "tcp: a message with a wrong header came");
        return dt__tcp_status(c);
    }
    if (l->got.nbytes != m->n)
        return dt__tcp_fail(c, DT_COMM_ERR_MISMATCH, l->peer,
                            "rank %d sends %" PRIu64 " bytes in round %u of operation %" PRIu64 ", rank %d expects %zu",
                            l->peer, l->got.nbytes, l->got.step, l->got.seq, c->rank, m->n);
    m->state = 2;
    return 0;
}
/* Reduces the whole elements among the bytes that are held at 'from'. */
static void dt__tcp_fold(dt__msg *m, dt__tcp_way *w, int s, char *to, char *from)
{
    size_t size = dt__comm_size_of(m->dtype), part = w->held[s] % size, whole = w->held[s] - part;
    if (!whole) return;
    dt__fold(m->dtype, m->op, to + w->done[s] - w->held[s], from, (int64_t)(whole / size), m->left);
    if (part) memmove(from, from + whole, part);
    w->held[s] = part;
}
static int dt__tcp_pull(dt_comm *c, dt__tcp_link *l, int s, dt__msg *m, char *to, size_t n)
{
    dt__tcp_way *w = &l->in;
    size_t       room = (DT__TCP_STAGE / (size_t)((dt__tcp *)c->tcp)->streams) & ~(size_t)63, moved = 0;
    char        *stage = m->n <= DT__TCP_SMALL ? l->small : l->stage ? l->stage + (size_t)s * room : NULL;
    if (m->n <= DT__TCP_SMALL) room = DT__TCP_SMALL;
    while (w->done[s] < n) {
        struct iovec v;
        size_t       got, rest = n - w->done[s];
        int          r;
        if (moved >= DT__TCP_TURN) {
            w->more = true;
            return 0;
        }
        v.iov_base = m->fold ? stage + w->held[s] : to + w->done[s];
        v.iov_len = rest < DT__TCP_TURN ? rest : (size_t)DT__TCP_TURN;
        if (m->fold && v.iov_len > room - w->held[s]) v.iov_len = room - w->held[s];
        r = dt__tcp_read(c, l, s, &v, 1, &got);
        w->rest[s] = rest;
        if (r < 0 || got == 0) return r;
        moved += got;
        w->done[s] += got;
        m->done += got;
        if (!m->fold) continue;
        w->held[s] += got;
        dt__tcp_fold(m, w, s, to, stage);
    }
    return 0;
}
/* What dt__tcp_head read too much is the beginning of the payload. */
static void dt__tcp_take(dt__tcp_link *l, dt__msg *m)
{
    if (!l->ahead) return;
    l->in.done[0] = m->done = l->ahead;
    if (m->fold) {
        l->in.held[0] = l->ahead;
        dt__tcp_fold(m, &l->in, 0, m->ptr, l->small);
    } else memcpy(m->ptr, l->small, l->ahead);
    l->ahead = 0;
}
static int dt__tcp_recv(dt_comm *c, int peer, dt__msg *m)
{
    dt__tcp_link *l;
    int           streams, r;
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    l = dt__tcp_link_of(c, peer);
    if (!l) return dt__tcp_status(c);
    l->in.blocked = 0;
    l->in.more = false;
    l->in.ready = 0;
    if (m->state == 0) {
        memset(&l->in, 0, sizeof l->in);
        l->ahead = 0;
        m->state = 1;
    }
    if (l->died) return dt__tcp_gone(c, l, 0);
    if (m->state == 1) {
        r = dt__tcp_open(c, l, 0);
        if (r > 0) r = dt__tcp_head(c, l, m);
        if (r < 0 || m->state == 1) return r;
        if (m->fold && m->n > DT__TCP_SMALL && !l->stage) {
            l->stage = (char *)DT_COMM_MALLOC(DT__TCP_STAGE);
            if (!l->stage)
                return dt__tcp_fail(c, DT_COMM_ERR_MEMORY, c->rank, "tcp: no memory for what rank %d gets", c->rank);
        }
        dt__tcp_take(l, m);
    }
    streams = m->n < DT__TCP_STRIPE ? 1 : ((dt__tcp *)c->tcp)->streams;
    for (int s = 0; s < streams; s++) {
        size_t at = dt__tcp_part(m->n, streams, s), end = dt__tcp_part(m->n, streams, s + 1);
        r = dt__tcp_open(c, l, s);
        if (r > 0) r = dt__tcp_pull(c, l, s, m, m->ptr + at, end - at);
        if (r < 0) return r;
    }
    if (m->done < m->n) return 0;
    if (c->latency > 0) l->in.ready = l->arrived + (int64_t)(c->latency * 1e9);
    if (l->in.ready && dt__comm_now() < l->in.ready) return 0;
    l->in.ready = 0;
    return 1;
}

static bool dt__aside(const dt_comm *c); /* >>engine */
/* Beside a program that computes each time it is woken counts: not for every packet of a long payload. */
static void dt__tcp_low(const dt_comm *c, dt__tcp_link *l, int s)
{
    size_t rest = l->in.rest[s];
    int    want = !dt__aside(c) || rest < DT__TCP_WAKE / 4 ? 1 : rest < DT__TCP_WAKE ? (int)rest : (int)DT__TCP_WAKE;
    if (want == (l->wake[s] ? l->wake[s] : 1)) return;
    if (setsockopt(l->fd[s], SOL_SOCKET, SO_RCVLOWAT, &want, sizeof want) == 0) l->wake[s] = want;
}
/* Sleeps on the sockets that the last calls found blocked, and on wake_fd. */
static void dt__tcp_wait(dt_comm *c, double seconds)
{
    dt__tcp        *t = dt__tcp_of(c);
    int64_t         now = dt__comm_now(), until;
    struct pollfd   alone, *p = t && t->poll ? t->poll : &alone;
    struct timespec ts;
    nfds_t          n = 0;
    int             woken = -1;
    if (!dt__comm_ok(c) || !(seconds > 0)) seconds = 0;
    until = now + (int64_t)((seconds < 3600 ? seconds : 3600) * 1e9);
    if (c->wake_fd >= 0) {
        woken = 0;
        p[n].fd = c->wake_fd;
        p[n++].events = POLLIN;
    }
    for (int i = 0; t && i < t->nused; i++) {
        dt__tcp_link *l = t->used[i];
        int64_t       at = until;
        if (l->died) at = l->died + (int64_t)DT__TCP_GRACE * 1000000;
        else if (l->in.more || l->out.more) at = now;
        else if (l->opening) at = now + 1000000;
        if (l->in.ready && l->in.ready < at) at = l->in.ready;
        if (l->out.ready && l->out.ready < at) at = l->out.ready;
        if (at < until) until = at;
        for (int s = 0; s < t->streams && !l->died; s++) {
            short events = (short)((l->out.blocked >> s & 1 ? POLLOUT : 0) | (l->in.blocked >> s & 1 ? POLLIN : 0));
            if (!events || l->fd[s] < 0) continue;
            if (events & POLLIN) dt__tcp_low(c, l, s);
            p[n].fd = l->fd[s];
            p[n++].events = events;
        }
    }
    if (until < now) until = now;
    ts.tv_sec = (time_t)((until - now) / 1000000000);
    ts.tv_nsec = (long)((until - now) % 1000000000);
    if (DT__POLL(p, n, &ts) > 0 && woken == 0 && (p[0].revents & POLLIN)) {
        uint64_t times;
        if (read(c->wake_fd, &times, sizeof times) < 0) return; /* somebody else took it */
    }
}
/* What was sent is still delivered: the kernel does it. */
static void dt__tcp_close(dt_comm *c)
{
    dt__tcp *t = (dt__tcp *)c->tcp;
    if (!t) return;
    __atomic_store_n(&c->tcp, (void *)NULL, __ATOMIC_RELEASE);
    for (int i = 0; i < t->nused; i++) {
        dt__tcp_link *l = t->used[i];
        for (int s = 0; s < t->streams; s++)
            if (l->fd[s] >= 0) {
                shutdown(l->fd[s], SHUT_WR);
                close(l->fd[s]);
            }
        DT_COMM_FREE(l->stage);
        DT_COMM_FREE(l);
    }
    DT_COMM_FREE(t->link);
    DT_COMM_FREE(t->used);
    DT_COMM_FREE(t->poll);
    DT_COMM_FREE(t);
}
/* Bytes sent through sockets, headers too. Any thread, while the communicator is there. */
static uint64_t dt__tcp_bytes(const dt_comm *c)
{
    const dt__tcp *t = (const dt__tcp *)__atomic_load_n(&c->tcp, __ATOMIC_ACQUIRE);
    return t ? __atomic_load_n(&t->sent, __ATOMIC_RELAXED) : 0;
}
static const dt__transport dt__transport_tcp = { "tcp", dt__tcp_send, dt__tcp_recv, dt__tcp_wait, dt__tcp_close };

/* ==================================================================================================== >>mpi
   The same messages through MPI, and MPI's own collectives as the algorithm `native`. Every communicator has an MPI
   communicator of its own with the same ranks. The first MPI message of a message is its header, with the payload
   behind it if that is small; a larger payload follows in pieces of DT__MPI_PIECE, received after the header was
   checked, a few at a time. They arrive in the order in which they were sent, so one tag is enough.

   Calls are made by one thread at a time, under a lock if MPI does not lock itself. A progress thread needs
   MPI_THREAD_SERIALIZED at least; MPI_THREAD_MULTIPLE, for which we ask, if meanwhile the program calls MPI or makes
   another communicator.

   MPI moves the data; the control tree of sockets is there all the same, with an address and a token that rank 0 sends
   by MPI. It costs a thread that sleeps, and gives what MPI before 5 has not: aborts that reach everyone, who is late
   and what it does, and a death that is known although no message of MPI fails. */
#ifdef DT_USE_MPI
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#include <sched.h>

enum { DT__MPI_SMALL = 4 << 10, DT__MPI_PIECE = 512 << 10, DT__MPI_PIECES = 4, DT__MPI_CHUNK = 1 << 28 };
typedef struct dt__mpi_way { /* one direction of a link */
    MPI_Request head, piece[DT__MPI_PIECES];
    size_t      posted; /* payload bytes that MPI has been told of */
    char       *stage;  /* of what is reduced on arrival: DT__MPI_PIECES pieces */
    char        small[sizeof(dt__frame) + DT__MPI_SMALL];
} dt__mpi_way;
typedef struct dt__mpi {
    MPI_Comm      comm;
    dt__mpi_way **in, **out; /* by peer; NULL: not used yet */
    int           idle;      /* waits since something moved */
    MPI_Request   request;   /* of MPI's own collectives: one at a time */
    uint64_t      mine[2], least[2]; /* what this rank calls, as a number and its complement; the least of all ranks */
    dt__frame    *frames;    /* of all ranks, when they differ */
} dt__mpi;

static struct {
    pthread_mutex_t lock; /* of all calls of MPI, below MPI_THREAD_MULTIPLE */
    pthread_mutex_t open; /* of starting and ending */
    int             users, level;
    bool            ours; /* we started it */
    MPI_Comm        all;
    MPI_Op          op[DT_COMM_DTYPES][DT_COMM_OPS]; /* those that MPI does not have, or not with our NaN */
} dt__mpi_job = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, 0, 0, false, MPI_COMM_NULL, { { 0 } } };

static void dt__mpi_lock(void)
{
    if (dt__mpi_job.level < MPI_THREAD_MULTIPLE) pthread_mutex_lock(&dt__mpi_job.lock);
}
static void dt__mpi_unlock(void)
{
    if (dt__mpi_job.level < MPI_THREAD_MULTIPLE) pthread_mutex_unlock(&dt__mpi_job.lock);
}
static const char *dt__mpi_text(int code, char *text) /* text: of MPI_MAX_ERROR_STRING */
{
    int n = 0;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) snprintf(text, 32, "MPI error %d", code);
    return text;
}
static int dt__mpi_bad(const char *call, int code) /* of a call without a communicator */
{
    char text[MPI_MAX_ERROR_STRING];
    return dt__comm_bad(DT_COMM_ERR_JOIN, "mpi: %s: %s", call, dt__mpi_text(code, text));
}
static int dt__mpi_error(dt_comm *c, int peer, const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    return dt__tcp_fail(c, DT_COMM_ERR_NET, peer, "mpi: %s on rank %d: %.300s", call, c->rank,
                        dt__mpi_text(code, text));
}

/* ---- operations of halves, and NaN in min and max: MPI gives left operand, right operand and result in two places */
#define DT__MPI_OP(D, OP)                                                                             \
    static void dt__mpi_op_##D##_##OP(void *in, void *inout, int *n, MPI_Datatype *type)              \
    {                                                                                                 \
        (void)type;                                                                                   \
        dt__fold(DT_COMM_##D, DT_COMM_##OP, inout, in, *n, true);                                     \
    }
DT__MPI_OP(F16, SUM)
DT__MPI_OP(F16, PROD)
DT__MPI_OP(F16, MIN)
DT__MPI_OP(F16, MAX)
DT__MPI_OP(BF16, SUM)
DT__MPI_OP(BF16, PROD)
DT__MPI_OP(BF16, MIN)
DT__MPI_OP(BF16, MAX)
DT__MPI_OP(F32, MIN)
DT__MPI_OP(F32, MAX)
DT__MPI_OP(F64, MIN)
DT__MPI_OP(F64, MAX)
static int dt__mpi_make_ops(void)
{
    static const struct {
        int                dtype, op;
        MPI_User_function *fn;
    } list[] = {
        { DT_COMM_F16, DT_COMM_SUM, dt__mpi_op_F16_SUM },   { DT_COMM_F16, DT_COMM_PROD, dt__mpi_op_F16_PROD },
        { DT_COMM_F16, DT_COMM_MIN, dt__mpi_op_F16_MIN },   { DT_COMM_F16, DT_COMM_MAX, dt__mpi_op_F16_MAX },
        { DT_COMM_BF16, DT_COMM_SUM, dt__mpi_op_BF16_SUM }, { DT_COMM_BF16, DT_COMM_PROD, dt__mpi_op_BF16_PROD },
        { DT_COMM_BF16, DT_COMM_MIN, dt__mpi_op_BF16_MIN }, { DT_COMM_BF16, DT_COMM_MAX, dt__mpi_op_BF16_MAX },
        { DT_COMM_F32, DT_COMM_MIN, dt__mpi_op_F32_MIN },   { DT_COMM_F32, DT_COMM_MAX, dt__mpi_op_F32_MAX },
        { DT_COMM_F64, DT_COMM_MIN, dt__mpi_op_F64_MIN },   { DT_COMM_F64, DT_COMM_MAX, dt__mpi_op_F64_MAX },
    };
    for (int d = 0; d < DT_COMM_DTYPES; d++) {
        for (int op = 0; op < DT_COMM_OPS; op++) dt__mpi_job.op[d][op] = MPI_OP_NULL;
        if (d == DT_COMM_F16 || d == DT_COMM_BF16) continue;
        dt__mpi_job.op[d][DT_COMM_SUM] = dt__mpi_job.op[d][DT_COMM_MEAN] = MPI_SUM;
        dt__mpi_job.op[d][DT_COMM_PROD] = MPI_PROD;
        if (d == DT_COMM_F32 || d == DT_COMM_F64) continue;
        dt__mpi_job.op[d][DT_COMM_MIN] = MPI_MIN;
        dt__mpi_job.op[d][DT_COMM_MAX] = MPI_MAX;
        dt__mpi_job.op[d][DT_COMM_OR] = MPI_BOR;
    }
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        MPI_Op *op = &dt__mpi_job.op[list[i].dtype][list[i].op];
        int     code = MPI_Op_create(list[i].fn, 1, op);
        if (code != MPI_SUCCESS) return dt__mpi_bad("MPI_Op_create", code);
        if (list[i].op == DT_COMM_SUM) dt__mpi_job.op[list[i].dtype][DT_COMM_MEAN] = *op;
    }
    return 0;
}
static void dt__mpi_free_ops(void)
{
    for (int d = 0; d < DT_COMM_DTYPES; d++)
        for (int k = 0; k < DT_COMM_OPS; k++) {
            MPI_Op *op = &dt__mpi_job.op[d][k];
            bool    own = d == DT_COMM_F16 || d == DT_COMM_BF16 ||
                       ((d == DT_COMM_F32 || d == DT_COMM_F64) && (k == DT_COMM_MIN || k == DT_COMM_MAX));
            if (own && k != DT_COMM_MEAN && *op != MPI_OP_NULL) MPI_Op_free(op);
        }
}

/* ---- joining */
/* Waits for a request of a call without a communicator. c: gives up when it fails (may be NULL). */
static int dt__mpi_until(const char *call, MPI_Request *request, int code, int64_t deadline, const dt_comm *c)
{
    int64_t pause = 1000;
    int     there = 0;
    while (code == MPI_SUCCESS) {
        dt__mpi_lock();
        code = MPI_Test(request, &there, MPI_STATUS_IGNORE);
        dt__mpi_unlock();
        if (code != MPI_SUCCESS) break;
        if (there) return 0;
        if (c && !dt__comm_ok(c)) return dt__comm_bad(dt__tcp_status(c), "dt_comm_init: %s", c->text);
        if (dt__comm_now() > deadline)
            return dt__comm_bad(DT_COMM_ERR_JOIN,
                                "dt_comm_init: mpi: %s did not end: a rank of the MPI job does not join; all of them "
                                "call dt_comm_init, each with transport \"mpi\"",
                                call);
        dt__comm_pause(pause);
        pause = pause < 1000000 ? pause * 2 : pause;
    }
    return dt__mpi_bad(call, code);
}
static int dt__mpi_begin(int64_t deadline)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int         begun = 0, ended = 0, code;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (ended)
        return dt__comm_bad(DT_COMM_ERR_STATE,
                            "dt_comm_init: mpi: MPI_Finalize has been called, and MPI starts once in a process; a "
                            "program that joins again calls MPI_Init_thread and MPI_Finalize itself");
    if (!begun) {
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &dt__mpi_job.level);
        if (code != MPI_SUCCESS) return dt__mpi_bad("MPI_Init_thread", code);
        dt__mpi_job.ours = true;
    } else MPI_Query_thread(&dt__mpi_job.level);
    code = MPI_Comm_idup(MPI_COMM_WORLD, &dt__mpi_job.all, &request);
    code = dt__mpi_until("MPI_Comm_idup", &request, code, deadline, NULL);
    if (code) {
        dt__mpi_job.all = MPI_COMM_NULL;
        return code;
    }
    MPI_Comm_set_errhandler(dt__mpi_job.all, MPI_ERRORS_RETURN);
    return dt__mpi_make_ops();
}
/* Starts MPI if the program has not; every user ends it once. The last one finalises what we have started, for which
   all ranks must come: not if one has died. */
static int dt__mpi_start(int64_t deadline)
{
    int r = 0;
    pthread_mutex_lock(&dt__mpi_job.open);
    if (dt__mpi_job.users == 0 && dt__mpi_job.all == MPI_COMM_NULL) r = dt__mpi_begin(deadline);
    if (r == 0) dt__mpi_job.users++;
    pthread_mutex_unlock(&dt__mpi_job.open);
    return r;
}
static void dt__mpi_end(bool died)
{
    pthread_mutex_lock(&dt__mpi_job.open);
    if (dt__mpi_job.users > 0 && --dt__mpi_job.users == 0 && dt__mpi_job.all != MPI_COMM_NULL && !died) {
        dt__mpi_free_ops();
        MPI_Comm_free(&dt__mpi_job.all);
        dt__mpi_job.all = MPI_COMM_NULL;
        if (dt__mpi_job.ours) MPI_Finalize();
    }
    pthread_mutex_unlock(&dt__mpi_job.open);
}
typedef struct dt__mpi_place { /* of a rank */
    uint8_t host_id[16];
    char    host_name[64];
} dt__mpi_place;
typedef struct dt__mpi_news { /* from rank 0 */
    uint8_t  token[32], addr[28];
    uint32_t addr_len;
    char     why[200]; /* "": all is well */
} dt__mpi_news;
/* Rank 0 listens: at loopback if all are here, else where .addr says, else where the way to another machine begins. */
static int dt__mpi_listen(dt__config *f, const dt_comm_opts *o, const dt__mpi_place *all, dt__mpi_news *news)
{
    const char *host = o->addr && *o->addr ? o->addr : getenv("DT_ADDR"), *why = "";
    dt__addr    a;
    int         other = 0;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    while (other < f->world && memcmp(all[other].host_id, all[0].host_id, 16) == 0) other++;
    if (f->local) dt__addr_loopback(&f->addr[0], f->port), f->naddr = 1;
    else if (host && *host) f->naddr = dt__addr_find(host, f->port, f->addr, &why);
    else if (dt__addr_find(all[other].host_name, 1, f->addr, &why) && dt__addr_route(&f->addr[0], &a))
        dt__addr_set_port(&a, f->port), f->addr[0] = a, f->naddr = 1;
    else f->naddr = dt__addr_find(all[0].host_name, f->port, f->addr, &why);
    if (f->naddr == 0)
        return dt__comm_bad(DT_COMM_ERR_JOIN,
                            "dt_comm_init: mpi: rank 0 finds no address at which the others reach it ('%.60s': %s): "
                            "set DT_ADDR",
                            host && *host ? host : all[0].host_name, why);
    if ((f->listen_fd = dt__listen_master(f)) < 0) return -1;
    a.n = sizeof a.u;
    if (getsockname(f->listen_fd, &a.u.any, &a.n) != 0 || !dt__comm_random(news->token, 32))
        return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: mpi: %s", strerror(errno));
    if (dt__addr_is_any(&a)) dt__addr_set_port(&f->addr[0], dt__addr_port(&a));
    else f->addr[0] = a;
    memcpy(news->addr, &f->addr[0].u, f->addr[0].n);
    news->addr_len = (uint32_t)f->addr[0].n;
    return 0;
}
/* Rank, world, token and the address of rank 0 by MPI: no variable is needed. Collective over the job. After success
   dt__mpi_end is called once, and listen_fd is the caller's to close. 0, or negative after dt__comm_bad. */
static int dt__mpi_config(dt__config *f, const dt_comm_opts *o)
{
    int64_t        deadline = dt__comm_now() + (int64_t)(f->join_timeout * 1e9), port = 0;
    int            r = dt__mpi_start(deadline), code, bad = 0;
    MPI_Request    request = MPI_REQUEST_NULL;
    dt__mpi_place  mine, *all = NULL;
    dt__mpi_news   news;
    if (r) return r;
    memset(&mine, 0, sizeof mine);
    memset(&news, 0, sizeof news);
    f->listen_fd = -1;
    snprintf(f->where, sizeof f->where, "MPI");
    MPI_Comm_rank(dt__mpi_job.all, &f->rank);
    MPI_Comm_size(dt__mpi_job.all, &f->world);
    if (f->world > DT__WORLD_MAX)
        bad = dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: %d ranks, expected 1 to %d", f->world, DT__WORLD_MAX);
    else if (o->port < 0 || o->port > 65535)
        bad = dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .port is %d, expected 1 to 65535", o->port);
    else if (!o->port) bad = dt__env_int("DT_PORT", 1, 65535, &port) < 0;
    f->port = o->port ? o->port : (int)port;
    if (f->world == 1) {
        if (bad) dt__mpi_end(false);
        return bad ? DT_COMM_ERR_ARG : 0;
    }
    dt__host_id(mine.host_id);
    if (gethostname(mine.host_name, sizeof mine.host_name - 1) != 0) mine.host_name[0] = 0;
    all = (dt__mpi_place *)DT_COMM_MALLOC((size_t)f->world * sizeof *all);
    if (!all) { /* the others wait for what this rank has not said, until their deadline */
        dt__mpi_end(true);
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: mpi: no memory for a table of %d ranks", f->world);
    }
    dt__mpi_lock();
    code = MPI_Iallgather(&mine, (int)sizeof mine, MPI_BYTE, all, (int)sizeof mine, MPI_BYTE, dt__mpi_job.all,
                          &request);
    dt__mpi_unlock();
    r = dt__mpi_until("MPI_Iallgather", &request, code, deadline, NULL);
    f->local = r == 0;
    for (int i = 1; r == 0 && i < f->world; i++)
        f->local = f->local && memcmp(all[i].host_id, all[0].host_id, 16) == 0;
    if (r == 0 && f->rank == 0) { /* what is wrong here all get to know */
        if (!bad) bad = dt__mpi_listen(f, o, all, &news) < 0;
        if (bad) snprintf(news.why, sizeof news.why, "%.190s", dt__comm_text);
    }
    DT_COMM_FREE(all);
    if (r == 0) {
        dt__mpi_lock();
        code = MPI_Ibcast(&news, (int)sizeof news, MPI_BYTE, 0, dt__mpi_job.all, &request);
        dt__mpi_unlock();
        r = dt__mpi_until("MPI_Ibcast", &request, code, deadline, NULL);
    }
    news.why[sizeof news.why - 1] = 0;
    if (r == 0 && news.why[0]) r = dt__comm_bad(DT_COMM_ERR_JOIN, "%s", news.why);
    else if (r == 0 && bad) r = DT_COMM_ERR_ARG;
    else if (r == 0 && f->rank && !dt__addr_take(&f->addr[0], news.addr, news.addr_len))
        r = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: mpi: rank 0 sent a broken address");
    f->naddr = 1;
    f->have_token = true;
    memcpy(f->token, news.token, 32);
    if (r) {
        dt__close(&f->listen_fd);
        dt__mpi_end(false);
    }
    return r;
}
/* All ranks of c have come here: each round a message to one further on and one from as far back. */
static int dt__mpi_meet(dt_comm *c, int64_t deadline)
{
    int tag = (int)(c->id % 32768);
    for (int m = 1; m < c->size; m <<= 1) {
        uint64_t    mine = c->id, got = 0;
        MPI_Request request[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
        int         to = c->member[(c->rank + m) % c->size], from = c->member[(c->rank + c->size - m) % c->size], r;
        dt__mpi_lock();
        int code = MPI_Irecv(&got, 1, MPI_UINT64_T, from, tag, dt__mpi_job.all, &request[0]);
        if (code == MPI_SUCCESS) code = MPI_Isend(&mine, 1, MPI_UINT64_T, to, tag, dt__mpi_job.all, &request[1]);
        dt__mpi_unlock();
        r = dt__mpi_until("MPI_Isend", &request[1], code, deadline, c);
        if (r == 0) r = dt__mpi_until("MPI_Irecv", &request[0], code, deadline, c);
        if (r == 0 && got != c->id)
            r = dt__comm_bad(DT_COMM_ERR_MISMATCH, "dt_comm_split: rank %d makes another communicator than rank %d",
                             from, c->member[c->rank]);
        if (r == 0) continue;
        dt__mpi_lock();
        for (int i = 0; i < 2; i++)
            if (request[i] != MPI_REQUEST_NULL) { /* got is on this stack: MPI must be done with it */
                MPI_Cancel(&request[i]);
                MPI_Wait(&request[i], MPI_STATUS_IGNORE);
            }
        dt__mpi_unlock();
        return r;
    }
    return 0;
}
/* Makes the MPI communicator of c; collective over its ranks, which are c->member of the job. threaded: a progress
   thread will make the calls. 0, or negative after dt__comm_bad. */
static int dt__mpi_open(dt_comm *c, bool threaded, int64_t deadline)
{
    dt__mpi  *t;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    size_t    n = (size_t)c->size;
    int       code, r = 0;
    if (threaded && dt__mpi_job.level < MPI_THREAD_SERIALIZED)
        return dt__comm_bad(DT_COMM_ERR_STATE,
                            "dt_comm_init: mpi: MPI was initialised without threads, and asynchronous work runs in "
                            "one: call MPI_Init_thread with MPI_THREAD_SERIALIZED or more, or set .no_thread");
    t = (dt__mpi *)DT_COMM_MALLOC(sizeof *t);
    if (t) {
        memset(t, 0, sizeof *t);
        t->comm = MPI_COMM_NULL;
        t->request = MPI_REQUEST_NULL;
        t->in = (dt__mpi_way **)DT_COMM_MALLOC(n * sizeof *t->in);
        t->out = (dt__mpi_way **)DT_COMM_MALLOC(n * sizeof *t->out);
        t->frames = (dt__frame *)DT_COMM_MALLOC((n + 1) * sizeof *t->frames);
    }
    if (!t || !t->in || !t->out || !t->frames)
        r = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: mpi: no memory for the links of rank %d", c->rank);
    else {
        memset(t->in, 0, n * sizeof *t->in);
        memset(t->out, 0, n * sizeof *t->out);
        r = dt__mpi_meet(c, deadline); /* what follows cannot be left */
    }
    if (r == 0) {
        dt__mpi_lock();
        code = MPI_Comm_group(dt__mpi_job.all, &all);
        if (code == MPI_SUCCESS) code = MPI_Group_incl(all, c->size, c->member, &some);
        if (code == MPI_SUCCESS) code = MPI_Comm_create_group(dt__mpi_job.all, some, (int)(c->id % 32768), &t->comm);
        if (code == MPI_SUCCESS) MPI_Comm_set_errhandler(t->comm, MPI_ERRORS_RETURN);
        if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
        if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
        dt__mpi_unlock();
        if (code != MPI_SUCCESS) r = dt__mpi_bad("MPI_Comm_create_group", code);
    }
    if (r) {
        if (t) DT_COMM_FREE(t->in), DT_COMM_FREE(t->out), DT_COMM_FREE(t->frames);
        DT_COMM_FREE(t);
        return r;
    }
    __atomic_store_n(&c->mpi, (void *)t, __ATOMIC_RELEASE);
    return 0;
}

/* ---- messages */
static dt__mpi_way *dt__mpi_way_of(dt_comm *c, dt__mpi_way **at)
{
    if (*at) return *at;
    *at = (dt__mpi_way *)DT_COMM_MALLOC(sizeof **at);
    if (!*at) {
        dt__tcp_fail(c, DT_COMM_ERR_MEMORY, c->rank, "mpi: no memory for a link of rank %d", c->rank);
        return NULL;
    }
    memset(*at, 0, sizeof **at);
    (*at)->head = MPI_REQUEST_NULL;
    for (int i = 0; i < DT__MPI_PIECES; i++) (*at)->piece[i] = MPI_REQUEST_NULL;
    return *at;
}
static size_t dt__mpi_piece(size_t n, size_t at) { return n - at < DT__MPI_PIECE ? n - at : (size_t)DT__MPI_PIECE; }
static int    dt__mpi_send_some(dt_comm *c, int peer, dt__msg *m)
{
    dt__mpi     *t = (dt__mpi *)c->mpi;
    dt__mpi_way *w = dt__mpi_way_of(c, &t->out[peer]);
    int          code = MPI_SUCCESS, there = 0;
    if (!w) return dt__tcp_status(c);
    if (m->state == 0) {
        size_t with = m->n <= DT__MPI_SMALL ? m->n : 0;
        memcpy(w->small, &m->head, sizeof m->head);
        if (with) memcpy(w->small + sizeof m->head, m->ptr, with);
        code = MPI_Isend(w->small, (int)(sizeof m->head + with), MPI_BYTE, peer, 0, t->comm, &w->head);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Isend", code);
        w->posted = m->done = with;
        m->state = 1;
    }
    for (;;) { /* slots in turn: post what fits, then see whether the oldest is done */
        size_t last = m->done / DT__MPI_PIECE;
        while (w->posted < m->n && w->posted / DT__MPI_PIECE < last + DT__MPI_PIECES) {
            size_t n = dt__mpi_piece(m->n, w->posted);
            code = MPI_Isend(m->ptr + w->posted, (int)n, MPI_BYTE, peer, 0, t->comm,
                             &w->piece[w->posted / DT__MPI_PIECE % DT__MPI_PIECES]);
            if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Isend", code);
            w->posted += n;
        }
        if (m->done == m->n) break;
        code = MPI_Test(&w->piece[last % DT__MPI_PIECES], &there, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Isend", code);
        if (!there) return 0;
        m->done += dt__mpi_piece(m->n, m->done);
        t->idle = 0;
    }
    code = MPI_Test(&w->head, &there, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Isend", code);
    if (!there) return 0;
    m->head_done = sizeof m->head;
    t->idle = 0;
    return 1;
}
static int dt__mpi_head(dt_comm *c, int peer, dt__msg *m, dt__mpi_way *w, int got)
{
    dt__frame f;
    memset(&f, 0, sizeof f);
    memcpy(&f, w->small, (size_t)got < sizeof f ? (size_t)got : sizeof f);
    if (!DT__FRAME_OK(c, peer, &m->head, &f)) {
        dt__comm_failed(c, DT_COMM_ERR_MISMATCH, peer, "mpi: a message with a wrong header came");
        return dt__tcp_status(c);
    }
    if (f.nbytes != m->n || (size_t)got != sizeof f + (m->n <= DT__MPI_SMALL ? m->n : 0))
        return dt__tcp_fail(c, DT_COMM_ERR_MISMATCH, peer,
                            "rank %d sends %" PRIu64 " bytes in round %u of operation %" PRIu64 ", rank %d expects %zu",
                            peer, f.nbytes, f.step, f.seq, c->rank, m->n);
    m->head_done = sizeof f;
    m->state = 2;
    if (m->n > DT__MPI_SMALL) return 0;
    if (m->fold)
        dt__fold(m->dtype, m->op, m->ptr, w->small + sizeof f, (int64_t)(m->n / dt__comm_size_of(m->dtype)), m->left);
    else if (m->n) memcpy(m->ptr, w->small + sizeof f, m->n);
    w->posted = m->done = m->n;
    return 0;
}
static int dt__mpi_recv_some(dt_comm *c, int peer, dt__msg *m)
{
    dt__mpi     *t = (dt__mpi *)c->mpi;
    dt__mpi_way *w = dt__mpi_way_of(c, &t->in[peer]);
    int          code, there = 0, got = 0, r;
    if (!w) return dt__tcp_status(c);
    if (m->state == 0) {
        code = MPI_Irecv(w->small, (int)sizeof w->small, MPI_BYTE, peer, 0, t->comm, &w->head);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Irecv", code);
        w->posted = m->done = 0;
        m->state = 1;
    }
    if (m->state == 1) {
        MPI_Status status;
        code = MPI_Test(&w->head, &there, &status);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Irecv", code);
        if (!there) return 0;
        MPI_Get_count(&status, MPI_BYTE, &got);
        t->idle = 0;
        r = dt__mpi_head(c, peer, m, w, got);
        if (r < 0) return r;
        if (m->fold && m->n > DT__MPI_SMALL && !w->stage) {
            w->stage = (char *)DT_COMM_MALLOC((size_t)DT__MPI_PIECES * DT__MPI_PIECE);
            if (!w->stage)
                return dt__tcp_fail(c, DT_COMM_ERR_MEMORY, c->rank, "mpi: no memory for what rank %d gets", c->rank);
        }
    }
    for (;;) {
        size_t last = m->done / DT__MPI_PIECE, slot = last % DT__MPI_PIECES, n = dt__mpi_piece(m->n, m->done);
        while (w->posted < m->n && w->posted / DT__MPI_PIECE < last + DT__MPI_PIECES) {
            size_t k = w->posted / DT__MPI_PIECE % DT__MPI_PIECES, take = dt__mpi_piece(m->n, w->posted);
            code = MPI_Irecv(m->fold ? w->stage + k * DT__MPI_PIECE : m->ptr + w->posted, (int)take, MPI_BYTE, peer, 0,
                             t->comm, &w->piece[k]);
            if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Irecv", code);
            w->posted += take;
        }
        if (m->done == m->n) return 1;
        code = MPI_Test(&w->piece[slot], &there, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Irecv", code);
        if (!there) return 0;
        if (m->fold)
            dt__fold(m->dtype, m->op, m->ptr + m->done, w->stage + slot * DT__MPI_PIECE,
                       (int64_t)(n / dt__comm_size_of(m->dtype)), m->left);
        m->done += n;
        t->idle = 0;
    }
}
static int dt__mpi_send(dt_comm *c, int peer, dt__msg *m)
{
    int r;
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    dt__mpi_lock();
    r = dt__mpi_send_some(c, peer, m);
    dt__mpi_unlock();
    return r;
}
static int dt__mpi_recv(dt_comm *c, int peer, dt__msg *m)
{
    int r;
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    dt__mpi_lock();
    r = dt__mpi_recv_some(c, peer, m);
    dt__mpi_unlock();
    return r;
}
/* MPI has nothing to sleep on: it is asked again soon, and then less and less often, up to a millisecond. */
static void dt__mpi_wait(dt_comm *c, double seconds)
{
    dt__mpi        *t = (dt__mpi *)c->mpi;
    struct pollfd   p;
    struct timespec ts;
    int             idle = t ? t->idle++ : 0;
    double          most = idle < 1000 ? 0 : idle < 2000 ? 5e-5 : 1e-3;
    if (t && t->idle > 1000000) t->idle = 2000;
    if (!dt__comm_ok(c) || !(seconds > 0)) return;
    if (seconds < most) most = seconds;
    if (most == 0) {
        sched_yield();
        return;
    }
    ts.tv_sec = 0;
    ts.tv_nsec = (long)(most * 1e9);
    p.fd = c->wake_fd;
    p.events = POLLIN;
    if (DT__POLL(&p, c->wake_fd >= 0 ? 1 : 0, &ts) > 0 && (p.revents & POLLIN)) {
        uint64_t times;
        if (read(c->wake_fd, &times, sizeof times) < 0) return;
    }
}
/* Of a message that never ended, in a communicator that has failed. */
static void dt__mpi_drop(MPI_Request *r)
{
    int there = 0;
    if (*r == MPI_REQUEST_NULL) return;
    if (MPI_Test(r, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there) return;
    MPI_Cancel(r);
    MPI_Request_free(r);
}
static void dt__mpi_close(dt_comm *c)
{
    dt__mpi *t = (dt__mpi *)c->mpi;
    if (!t) return;
    __atomic_store_n(&c->mpi, (void *)NULL, __ATOMIC_RELEASE);
    dt__mpi_lock();
    for (int k = 0; k < 2 * c->size; k++) {
        dt__mpi_way *w = k < c->size ? t->in[k] : t->out[k - c->size];
        bool         clean = dt__comm_ok(c);
        if (!w) continue;
        dt__mpi_drop(&w->head);
        for (int i = 0; i < DT__MPI_PIECES; i++) dt__mpi_drop(&w->piece[i]);
        if (clean) DT_COMM_FREE(w->stage), DT_COMM_FREE(w); /* else MPI may still write to it: it stays */
    }
    if (dt__comm_ok(c)) MPI_Comm_free(&t->comm); /* collective: not when somebody may be gone */
    dt__mpi_unlock();
    DT_COMM_FREE(t->in);
    DT_COMM_FREE(t->out);
    if (t->request == MPI_REQUEST_NULL) DT_COMM_FREE(t->frames), DT_COMM_FREE(t); /* else MPI may still use it */
}
static const dt__transport dt__transport_mpi = { "mpi", dt__mpi_send, dt__mpi_recv, dt__mpi_wait, dt__mpi_close };

/* ---- native: MPI's own collectives, which carry no headers. So every collective of such a communicator begins with a
   small reduction by which all ranks see whether they call the same. */
static MPI_Datatype dt__mpi_type(int dtype)
{
    switch (dtype) {
    case DT_COMM_F32: return MPI_FLOAT;
    case DT_COMM_F64: return MPI_DOUBLE;
    case DT_COMM_I32: return MPI_INT32_T;
    case DT_COMM_I64: return MPI_INT64_T;
    case DT_COMM_U8: return MPI_UINT8_T;
    default: return MPI_UINT16_T; /* halves, which only our own operations touch */
    }
}
/* MPI's counts and places are ints: does it have this one? The same on all ranks. */
static bool dt__mpi_has(int coll, int64_t total)
{
    switch (coll) {
    case DT_COLL_BARRIER:
    case DT_COLL_ALLREDUCE:
    case DT_COLL_BROADCAST:
    case DT_COLL_REDUCE: return true;
    case DT_COLL_REDUCE_SCATTER:
    case DT_COLL_ALLGATHER:
    case DT_COLL_GATHER:
    case DT_COLL_SCATTER: return total <= INT_MAX;
    default: return false;
    }
}
static int dt__mpi_test(dt_comm *c, const char *call, int code) /* 1, 0 not yet, negative */
{
    dt__mpi *t = (dt__mpi *)c->mpi;
    int      there = 0;
    if (code == MPI_SUCCESS) {
        dt__mpi_lock();
        code = MPI_Test(&t->request, &there, MPI_STATUS_IGNORE);
        dt__mpi_unlock();
    }
    if (code != MPI_SUCCESS) return dt__mpi_error(c, -1, call, code);
    if (there) t->idle = 0;
    return there;
}
/* Do all ranks call the same? *phase: 0 to begin with. 1: yes; 0: call again; negative: failed. */
static int dt__mpi_agree(dt_comm *c, const dt__frame *head, int *phase)
{
    dt__mpi *t = (dt__mpi *)c->mpi;
    int      code = MPI_SUCCESS, r;
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    if (*phase == 0) {
        t->mine[0] = dt__frame_print(head);
        t->mine[1] = ~t->mine[0];
        dt__mpi_lock();
        code = MPI_Iallreduce(t->mine, t->least, 2, MPI_UINT64_T, MPI_MIN, t->comm, &t->request);
        dt__mpi_unlock();
        *phase = 1;
    }
    if (*phase == 1) {
        if ((r = dt__mpi_test(c, "MPI_Iallreduce", code)) <= 0) return r;
        if (t->least[0] == ~t->least[1]) return 1; /* the least is the most */
        t->frames[c->size] = *head;
        dt__mpi_lock();
        code = MPI_Iallgather(&t->frames[c->size], (int)sizeof *head, MPI_BYTE, t->frames, (int)sizeof *head, MPI_BYTE,
                              t->comm, &t->request);
        dt__mpi_unlock();
        *phase = 2;
    }
    if ((r = dt__mpi_test(c, "MPI_Iallgather", code)) <= 0) return r;
    for (int i = 0; i < c->size && dt__comm_ok(c); i++)
        if (dt__frame_print(&t->frames[i]) != t->mine[0]) DT__FRAME_OK(c, i, head, &t->frames[i]);
    return dt__tcp_status(c);
}
/* MPI's own collective on data as plans have it: a vector of n elements, or the segments of all ranks one behind the
   other, of part[rank] elements that begin at part[size + rank]. mean sums: the caller divides. *done: elements before
   the piece under way, 0 to begin with, as *phase. 1: done; 0: call again; negative: failed. */
static int dt__mpi_native(dt_comm *c, int coll, char *data, int64_t n, const int *part, int dtype, int op, int root,
                          int *phase, int64_t *done)
{
    static const char *const call[] = { "MPI_Ibarrier",   "MPI_Iallreduce", "MPI_Ireduce_scatter", "MPI_Iallgatherv",
                                        "MPI_Ibcast",     "MPI_Ireduce",    "MPI_Igatherv",        "MPI_Iscatterv" };
    dt__mpi                 *t = (dt__mpi *)c->mpi;
    size_t                   size = dt__comm_size_of(dtype);
    MPI_Datatype             type = dt__mpi_type(dtype);
    bool reduces = coll == DT_COLL_ALLREDUCE || coll == DT_COLL_REDUCE || coll == DT_COLL_REDUCE_SCATTER, whole = !part;
    MPI_Op     how = reduces ? dt__mpi_job.op[dtype][op] : MPI_OP_NULL;
    const int *at = part ? part + c->size : NULL;
    if (!dt__comm_ok(c)) return dt__tcp_status(c);
    for (;;) {
        int   code = MPI_SUCCESS, r;
        int   k = (int)(n - *done < DT__MPI_CHUNK ? n - *done : (int64_t)DT__MPI_CHUNK);
        char *p = whole ? data + (size_t)*done * size : part[c->rank] ? data + (size_t)at[c->rank] * size : data;
        if (*phase == 0) {
            dt__mpi_lock();
            MPI_Request *q = &t->request;
            switch (coll) {
            case DT_COLL_BARRIER: code = MPI_Ibarrier(t->comm, q); break;
            case DT_COLL_ALLREDUCE: code = MPI_Iallreduce(MPI_IN_PLACE, p, k, type, how, t->comm, q); break;
            case DT_COLL_BROADCAST: code = MPI_Ibcast(p, k, type, root, t->comm, q); break;
            case DT_COLL_REDUCE:
                if (c->rank == root) code = MPI_Ireduce(MPI_IN_PLACE, p, k, type, how, root, t->comm, q);
                else code = MPI_Ireduce(p, NULL, k, type, how, root, t->comm, q);
                break;
            case DT_COLL_REDUCE_SCATTER:
                code = MPI_Ireduce_scatter(MPI_IN_PLACE, data, part, type, how, t->comm, q);
                break;
            case DT_COLL_ALLGATHER:
                code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, part, at, type, t->comm, q);
                break;
            case DT_COLL_GATHER:
                if (c->rank == root)
                    code = MPI_Igatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, part, at, type, root, t->comm, q);
                else code = MPI_Igatherv(p, part[c->rank], type, NULL, NULL, NULL, type, root, t->comm, q);
                break;
            default:
                if (c->rank == root)
                    code = MPI_Iscatterv(data, part, at, type, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, t->comm, q);
                else code = MPI_Iscatterv(NULL, NULL, NULL, type, p, part[c->rank], type, root, t->comm, q);
            }
            dt__mpi_unlock();
            *phase = 1;
        }
        if ((r = dt__mpi_test(c, call[coll], code)) <= 0) return r;
        *phase = 0;
        if (coll == DT_COLL_REDUCE_SCATTER && part[c->rank]) /* MPI leaves it at the beginning */
            memmove(p, data, (size_t)part[c->rank] * size);
        if (!whole || coll == DT_COLL_BARRIER) return 1;
        *done += k;
        if (*done >= n) return 1;
    }
}
#endif /* DT_USE_MPI */

/* ==================================================================================================== >>engine
   Work is done one after the other, in the order of its start. One thread at a time drives: the caller of a blocking
   call if nobody else does, else the communicator's own thread. Driving is looking again and again at the first work:
   a plan moves round by round through the transports; short and large reductions inside one machine have ways of
   their own (>>shared). Nothing blocks but dt__idle, which spins, yields, sleeps. */
struct dt_work {
    dt_comm   *c;                /* NULL: it was freed before this was waited for */
    dt_work   *next;
    dt_work   *before, *after;   /* in the list of those that were started and not waited for */
    dt__frame  head;
    int        dtype, op;
    int64_t    n;                /* elements of data */
    size_t     size;             /* of an element */
    char      *data;
    bool       shared;           /* done in >>shared, else by the plan */
    bool       native, agree;    /* done by MPI's own collective; first all ranks see that they call the same */
    int       *part;             /* for it: elements of each segment, then where each begins */
    const dt__plane *plane;      /* a work on a device: data is the card */
    dt__job   *job;
    bool       met;              /* the cards are exchanged */
    bool       own;              /* made by a start call */
    bool       pair;             /* a send or a receive: its message is one */
    bool       begun;
    dt__msg    one;
    bool       finished;         /* atomic */
    int        status;
    /* before and after */
    char      *temp;             /* data, if it is not the caller's */
    const char *in;              /* copied to data + in_at first */
    char      *out;              /* data + out_at is copied there afterwards */
    int64_t    in_at, in_n, out_at, out_n; /* elements */
    /* plan */
    dt_plan   *plan;
    bool       plan_own;
    int64_t    step, round_end;  /* steps of the round under way */
    bool       in_round;
    /* shared */
    int        phase, k;
    uint64_t   no, first;        /* number of the operation; pieces before it */
    int64_t    piece;            /* elements of one */
    int64_t    pieces, put, reduced, taken, done;
    bool       progress;         /* something moved in this look */
    bool       asked;            /* it is late: the others were asked */
    bool       watched;          /* it waits: the others were told in what */
    int64_t    started, moved;   /* ns: when it began, when something moved last */
    int64_t    ended;
};
typedef struct dt__waits { /* for one rank; atomic */
    int64_t last, waited, longest; /* ns */
} dt__waits;
typedef struct dt__past { /* for the history */
    uint64_t seq;
    int64_t  count, began, ended;
    int32_t  root, status;
    uint8_t  coll, dtype, op, algo;
} dt__past;
static bool dt__coll_reduces(int coll)
{
    return coll == DT_COLL_ALLREDUCE || coll == DT_COLL_REDUCE || coll == DT_COLL_REDUCE_SCATTER;
}
struct dt__engine {
    pthread_mutex_t lock;
    pthread_cond_t  cond;
    dt_work        *head, *tail, *kept;
    bool            driving, quit, has_thread;
    bool            aside;       /* it is driven by the thread of its own: the program may be computing */
    int             waiting;     /* threads of the program that wait for it, atomic */
    int             spin;        /* looks before the first yield where no memory is shared; -1: not known yet */
    pthread_t       thread;
    dt__msg        *msg;
    uint8_t        *over;
    int64_t         nmsg;
    int            *busy_send, *busy_recv; /* by rank: the turn in which a message of it did not move */
    int             turn;
    char           *scratch;
    size_t          scratch_n;
    dt_plan         plan[16];
    int64_t         plan_key[16][4];
    dt__past        past[DT__HISTORY];
    uint64_t        npast;
    bool            told;        /* the past is in the log */
    uint64_t       *sent, *got;  /* messages to and from each rank */
    dt_comm_stats   stats;
    dt__waits      *waits;       /* by rank */
    int             algo;        /* forced; DT_ALGO_AUTO: by cost */
    dt_costs        costs;
    bool            has_costs;   /* rank 0's, not the fixed ones */
};

static const char *const dt__comm_ops[] = { "sum", "mean", "min", "max", "prod", "or" };
DT__INSIDE int dt__comm_fail(dt_comm *c, int status, int rank, const char *format, ...)
{
    char    text[768];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    dt__comm_look(c);
    if (dt__comm_ok(c)) {
        if (c->shared) { /* who is first here tells the others */
            dt__shared_fail((dt__shared *)c->shared, status, rank, text);
            while (dt__comm_ok(c)) dt__comm_look(c);
            DT__FENCE(&((dt__shared *)c->shared)->hall->sleepers);
            dt__shared_wake((dt__shared *)c->shared);
        } else {
            dt__comm_failed(c, status, rank, text);
        }
        if (c->world) dt__world_abort(c->world, c, c->status, c->failed_rank, c->text);
    }
    return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}
static const char *dt__frame_text(const dt__frame *f, char *buf, size_t nbytes)
{
    snprintf(buf, nbytes, "%s #%" PRIu64 " of %" PRId64 " %s, %s, root %d, algorithm %s",
             dt_coll_name((dt_coll)f->coll), f->seq + 1, f->count,
             f->dtype < DT_COMM_DTYPES ? dt__comm_dtypes[f->dtype] : "?",
             f->op < DT_COMM_OPS ? dt__comm_ops[f->op] : "?", f->root, dt_algo_name((dt_algo)f->algo));
    return buf;
}
static void dt__frame_differ(const dt__frame *a, const dt__frame *b, char *buf, size_t nbytes)
{
    char x[200], y[200];
    snprintf(buf, nbytes, "ranks call different things: rank %d %s; rank %d %s", a->rank,
             dt__frame_text(a, x, sizeof x), b->rank, dt__frame_text(b, y, sizeof y));
}
static void dt__late_by(dt_comm *c, int rank, int64_t ns)
{
    /* clearly later than the last one: what came over several ranks is known less well */
    if (rank < 0 || rank >= c->size || rank == c->rank || ns < DT__LATE + c->late + c->late / 8) return;
    c->late = ns;
    c->late_rank = rank;
}
/* A frame has come while this rank waited: when did its sender begin, and the one that it knows to be last? */
static void dt__late_heard(dt_comm *c, const dt__frame *f)
{
    if (f->sent > (uint64_t)(INT64_MAX / 4)) return; /* no time of this world */
    int64_t ns = dt__comm_now() - c->began - (int64_t)f->sent;
    dt__late_by(c, f->rank, ns);
    if (f->late > 0 && f->late < INT64_MAX / 4) dt__late_by(c, f->late_rank, ns + f->late);
}
static bool dt__frame_ok(dt_comm *c, int peer, const dt__frame *want, const dt__frame *got)
{
    char text[480];
    if (got->magic != want->magic || got->version != want->version) {
        dt__comm_fail(c, DT_COMM_ERR_NET, peer,
                      "rank %d sent something that is no frame of this version (%08x, version %u)", peer, got->magic,
                      got->version);
        return false;
    }
    if (got->comm != want->comm || got->epoch != want->epoch) {
        dt__comm_fail(c, DT_COMM_ERR_MISMATCH, peer,
                      "rank %d sent a frame of communicator %" PRIx64 ", restart %" PRId64 "; expected %" PRIx64
                      ", restart %" PRId64,
                      peer, got->comm, got->epoch, want->comm, want->epoch);
        return false;
    }
    if (got->seq == want->seq && got->coll == want->coll && got->dtype == want->dtype && got->op == want->op &&
        got->root == want->root && got->count == want->count && got->algo == want->algo &&
        got->nbytes == want->nbytes && got->step == want->step) {
        if (c->slow && got->coll != DT_COLL_SEND) dt__late_heard(c, got);
        return true;
    }
    /* one of them has gone on: what it called under the other's number tells more */
    const dt__shared *s = (const dt__shared *)c->shared;
    dt__frame         a = *want, b = *got, note;
    bool              pair = want->coll == DT_COLL_SEND || got->coll == DT_COLL_SEND; /* numbered by themselves */
    if (!pair && got->seq < want->seq && c->note && dt__note_get(c->note, got->seq, &note)) a = note;
    if (!pair && got->seq > want->seq && s && s->index[peer] >= 0 &&
        dt__note_get(dt__seat_of(s, s->index[peer])->note, want->seq, &note))
        b = note;
    dt__frame_differ(&a, &b, text, sizeof text);
    dt__comm_fail(c, DT_COMM_ERR_MISMATCH, peer, "%s", text);
    return false;
}

/* ---- reductions in shared memory */
static int64_t dt__part_at(int64_t n, int p, int i, size_t size) /* parts of whole cache lines */
{
    int64_t line = 64 / (int64_t)size, lines = (n + line - 1) / line,
            at = lines / p * i + (i < lines % p ? i : lines % p);
    return at * line < n ? at * line : n;
}
static void dt__reduce_to(const dt_work *w, char **dst, int ndst, char **src, int nsrc, int64_t n)
{
    if (w->op != DT_COMM_MEAN) {
        dt__reduce_many(w->dtype, w->op, (void **)dst, ndst, (const void **)src, nsrc, n);
        return;
    }
    char    block[16384] DT__ALIGNED, *from[64], *one = block;
    int64_t most = (int64_t)(sizeof block / w->size);
    for (int64_t at = 0; at < n; at += most) {
        int64_t k = n - at < most ? n - at : most;
        for (int i = 0; i < nsrc; i++) from[i] = src[i] + (size_t)at * w->size;
        dt__reduce_many(w->dtype, DT_COMM_SUM, (void **)&one, 1, (const void **)from, nsrc, k);
        dt__reduce_scale(w->dtype, block, k, w->c->size);
        for (int i = 0; i < ndst; i++) memcpy(dst[i] + (size_t)at * w->size, block, (size_t)k * w->size);
    }
}
static bool dt__all_reached(const dt__shared *s, int64_t field, uint64_t value) /* field: its place in a seat */
{
    for (int i = 0; i < s->n; i++)
        if (__atomic_load_n((uint64_t *)(void *)((char *)dt__seat_of(s, i) + field), __ATOMIC_ACQUIRE) < value)
            return false;
    return true;
}
#define DT__REACHED(s, field, value) dt__all_reached(s, (int64_t)offsetof(dt__seat, field), value)
static void dt__shared_tell(dt__shared *s, uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    dt__shared_ring(s);
}
/* Where piece k of the work is: its number of elements; *at: where they begin; lo and hi: the part of rank i. */
static int64_t dt__piece_of(const dt__shared *s, const dt_work *w, int64_t k, int i, int64_t *at, int64_t *lo,
                            int64_t *hi)
{
    int64_t n;
    *at = k * w->piece;
    n = w->n - *at < w->piece ? w->n - *at : w->piece;
    *lo = dt__part_at(n, s->n, i, w->size);
    *hi = dt__part_at(n, s->n, i + 1, w->size);
    return n;
}
static char *dt__stage_of(const dt__shared *s, const dt_work *w, int64_t k, int i)
{
    return (char *)dt__seat_of(s, i)->stage[(w->first + (uint64_t)k) % DT__STAGES];
}
static bool dt__stage_free(const dt__shared *s, const dt_work *w) /* for the next piece */
{
    uint64_t no = w->first + (uint64_t)w->put + 1;
    return DT__REACHED(s, taken, no > DT__STAGES ? no - DT__STAGES : 0);
}
static void dt__stage_put(dt__shared *s, dt_work *w)
{
    int64_t at, lo, hi, n = dt__piece_of(s, w, w->put, s->me, &at, &lo, &hi);
    char   *to = dt__stage_of(s, w, w->put, s->me), *from = w->data + (size_t)at * w->size;
    memcpy(to, from, (size_t)lo * w->size);
    memcpy(to + (size_t)hi * w->size, from + (size_t)hi * w->size, (size_t)(n - hi) * w->size);
    w->put++;
    dt__shared_tell(s, &dt__seat_of(s, s->me)->put, w->first + (uint64_t)w->put);
}
/* x[i] of all ranks i := their reduction, n elements */
static void dt__reduce_all(const dt__shared *s, const dt_work *w, char *const *x, int64_t n)
{
    char   *at[64];
    int64_t most = DT__OWN / (int64_t)w->size;
    for (int64_t i = 0; i < n; i += most) {
        int64_t k = n - i < most ? n - i : most;
        for (int r = 0; r < s->n; r++) {
            at[r] = x[r] + (size_t)i * w->size;
            if (r != s->me) dt__own_lines(at[r], (size_t)k * w->size);
        }
        dt__reduce_to(w, at, s->n, at, s->n, k);
    }
}
static void dt__stage_reduce(dt__shared *s, dt_work *w)
{
    int64_t at, lo, hi;
    char   *x[64];
    dt__piece_of(s, w, w->reduced, s->me, &at, &lo, &hi);
    for (int i = 0; i < s->n; i++)
        x[i] = i == s->me ? w->data + (size_t)(at + lo) * w->size
                          : dt__stage_of(s, w, w->reduced, i) + (size_t)lo * w->size;
    dt__reduce_all(s, w, x, hi - lo);
    w->reduced++;
    dt__shared_tell(s, &dt__seat_of(s, s->me)->part, w->first + (uint64_t)w->reduced);
}
static void dt__stage_take(dt__shared *s, dt_work *w)
{
    int64_t at, lo, hi, n = dt__piece_of(s, w, w->taken, s->me, &at, &lo, &hi);
    char   *from = dt__stage_of(s, w, w->taken, s->me), *to = w->data + (size_t)at * w->size;
    dt__own_lines(from, (size_t)lo * w->size); /* the next piece goes there */
    memcpy(to, from, (size_t)lo * w->size);
    dt__own_lines(from + (size_t)hi * w->size, (size_t)(n - hi) * w->size);
    memcpy(to + (size_t)hi * w->size, from + (size_t)hi * w->size, (size_t)(n - hi) * w->size);
    w->taken++;
    dt__shared_tell(s, &dt__seat_of(s, s->me)->taken, w->first + (uint64_t)w->taken);
}
static int dt__shared_staged(dt__shared *s, dt_work *w) /* the oldest piece first: it is in the caches */
{
    if (w->taken < w->reduced && DT__REACHED(s, part, w->first + (uint64_t)w->taken + 1)) dt__stage_take(s, w);
    else if (w->reduced < w->put && DT__REACHED(s, put, w->first + (uint64_t)w->reduced + 1)) dt__stage_reduce(s, w);
    else if (w->put < w->pieces && dt__stage_free(s, w)) dt__stage_put(s, w);
    else return 0;
    w->progress = true;
    return w->taken == w->pieces;
}
static int dt__shared_direct(dt__shared *s, dt_work *w)
{
    dt__seat *me = dt__seat_of(s, s->me);
    char     *x[64];
    int64_t   lo = dt__part_at(w->n, s->n, s->me, w->size) + w->done, hi = dt__part_at(w->n, s->n, s->me + 1, w->size);
    int64_t   most = (1 << 20) / (int64_t)w->size;
    if (w->phase == 2) {
        int64_t n = hi - lo < most ? hi - lo : most;
        for (int i = 0; i < s->n; i++)
            x[i] = dt__shared_see(s, dt__seat_of(s, i)->post[w->no & 1].at) + (size_t)lo * w->size;
        if (!dt__shared_touch(s)) return 0;
        dt__reduce_all(s, w, x, n);
        dt__shared_leave(s);
        w->done += n;
        w->progress = true;
        if (lo + n < hi) return 0;
        dt__shared_tell(s, &me->fin, w->no + 1);
        w->phase = 3;
    }
    return DT__REACHED(s, fin, w->no + 1);
}
/* Short vectors: posts of operation no, and what they carry. */
static char *dt__short_of(const dt__shared *s, int i, uint64_t no, size_t nbytes)
{
    dt__seat *t = dt__seat_of(s, i);
    return nbytes <= DT__POST_FIRST ? (char *)t->post[no & 1].first : (char *)t->more[no & 1];
}
/* A few f32: the most frequent, and in scalars. A vector would be loaded across the stores of the own post, and wait
   for the line to come from the other core. The same bits as >>reducing. */
static void dt__short_sum(const dt__shared *s, uint64_t no, float *x, int n)
{
    for (int k = 0; k < n; k++) {
        float    v = 0, one;
        uint32_t nan = UINT32_MAX;
        for (int i = 0; i < s->n; i++) {
            if (i == s->me) one = x[k];
            else memcpy(&one, dt__seat_of(s, i)->post[no & 1].first + 4 * (size_t)k, sizeof one);
            v = i ? v + one : one;
        }
        if (v != v) memcpy(&v, &nan, sizeof v);
        memcpy(x + k, &v, sizeof v);
    }
}
static void dt__short_reduce(const dt_comm *c, uint64_t no, void *data, int64_t n, int dtype, int op, size_t size)
{
    const dt__shared *s = (const dt__shared *)c->shared;
    size_t            nbytes = (size_t)n * size;
    const void       *src[64];
    if (dtype == DT_COMM_F32 && op == DT_COMM_SUM && nbytes <= DT__POST_FIRST) {
        dt__short_sum(s, no, (float *)data, (int)n);
        return;
    }
    for (int i = 0; i < s->n; i++) {
        src[i] = dt__short_of(s, i, no, nbytes);
        for (size_t k = DT__POST_FIRST; i != s->me && k < nbytes; k += 64) /* all at once, not one after the other */
            __builtin_prefetch((const char *)src[i] + k);
    }
    dt__reduce_many(dtype, op, &data, 1, src, s->n, n);
    if (op == DT_COMM_MEAN) dt__reduce_scale(dtype, data, n, c->size);
}
/* Allreduce, and with n = 0 a barrier. 1: done, 0: call again, negative: failed. */
static int dt__shared_allreduce(dt_comm *c, dt_work *w)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__seat   *me = dt__seat_of(s, s->me);
    size_t      nbytes = (size_t)w->n * w->size;
    bool        small = nbytes <= DT__POST_SHORT;
    if (w->phase == 0) {
        dt__post *p = &me->post[s->no & 1];
        w->no = s->no++;
        p->print = dt__frame_print(&w->head);
        p->at = -1;
        if (small) {
            dt__comm_copy(dt__short_of(s, s->me, w->no, nbytes), w->data, nbytes);
        } else {
            size_t piece = (nbytes / DT__STAGES + 4095) & ~(size_t)4095; /* so that copying and reducing overlap */
            piece = piece < DT__PIECE_MIN ? (size_t)DT__PIECE_MIN : piece > DT__PIECE ? (size_t)DT__PIECE : piece;
            w->first = s->pieces;
            w->piece = (int64_t)(piece / w->size);
            w->pieces = (w->n + w->piece - 1) / w->piece;
            p->at = dt__shared_at(s, w->data, nbytes);
            if (p->at < 0 && dt__stage_free(s, w)) dt__stage_put(s, w);
        }
        p->frame = w->head;
        dt__shared_tell(s, &p->no, w->no + 1);
        w->phase = 1;
        w->k = 0;
    }
    if (w->phase == 1) {
        uint64_t print = dt__frame_print(&w->head);
        for (; w->k < s->n; w->k++) {
            const dt__post *p = &dt__seat_of(s, w->k)->post[w->no & 1];
            if (__atomic_load_n(&p->no, __ATOMIC_ACQUIRE) != w->no + 1) return 0;
            if (p->print != print && !dt__frame_ok(c, s->rank[w->k], &w->head, &p->frame)) return c->status;
        }
        for (int i = 0; c->slow && i < s->n; i++)
            dt__late_by(c, s->rank[i], (int64_t)dt__seat_of(s, i)->post[w->no & 1].frame.sent - c->began);
        w->progress = true;
        if (small) {
            if (w->n) dt__short_reduce(c, w->no, w->data, w->n, w->dtype, w->op, w->size);
            return 1;
        }
        bool direct = true;
        for (int i = 0; i < s->n; i++) direct = direct && dt__seat_of(s, i)->post[w->no & 1].at >= 0;
        w->phase = direct ? 2 : 4;
        if (!direct) s->pieces += (uint64_t)w->pieces;
    }
    return w->phase == 4 ? dt__shared_staged(s, w) : dt__shared_direct(s, w);
}

static void dt__engine_thread(dt_comm *c);
/* ---- plans */
static const dt__transport *dt__way(const dt_comm *c, int peer)
{
    return c->inside && c->host[peer] == c->host[c->rank] ? c->inside : c->across;
}
static int dt__round_begin(dt_comm *c, dt_work *w)
{
    struct dt__engine  *e = c->engine;
    const dt_plan_step *s = w->plan->step;
    int64_t             n = 0;
    while (w->step + n < w->plan->nsteps && s[w->step + n].round == s[w->step].round) n++;
    w->round_end = w->step + n;
    if (n > e->nmsg) {
        DT_COMM_FREE(e->msg);
        DT_COMM_FREE(e->over);
        e->msg = (dt__msg *)DT_COMM_MALLOC((size_t)n * sizeof *e->msg);
        e->over = (uint8_t *)DT_COMM_MALLOC((size_t)n);
        e->nmsg = e->msg && e->over ? n : 0;
        if (!e->nmsg) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: out of memory", c->rank);
    }
    uint64_t age = w->step ? (uint64_t)(dt__comm_now() - w->started) : 0;
    for (int64_t i = 0; i < n; i++) {
        const dt_plan_step *t = s + w->step + i;
        dt__msg            *m = e->msg + i;
        char               *base = t->buf == DT_PLAN_DATA ? w->data : e->scratch,
             *from = t->from_buf == DT_PLAN_DATA ? w->data : e->scratch;
        e->over[i] = 0;
        if (t->kind == DT_STEP_COPY) {
            dt__comm_copy(base + (size_t)t->at * w->size, from + (size_t)t->from * w->size, (size_t)t->n * w->size);
            e->over[i] = 1;
        } else if (t->kind == DT_STEP_REDUCE) {
            dt__fold(w->dtype, w->op, base + (size_t)t->at * w->size, from + (size_t)t->from * w->size, t->n, t->left);
            e->over[i] = 1;
        } else {
            memset(m, 0, sizeof *m);
            m->head = w->head;
            m->head.sent = age;
            m->head.late = c->late;
            m->head.late_rank = c->late_rank;
            m->head.step = (uint32_t)t->round;
            m->head.nbytes = (uint64_t)t->n * w->size;
            m->ptr = base + (size_t)t->at * w->size;
            m->n = (size_t)t->n * w->size;
            m->fold = t->kind == DT_STEP_FOLD;
            m->left = t->left != 0;
            m->dtype = w->dtype;
            m->op = w->op;
        }
    }
    w->in_round = true;
    return 0;
}
static int dt__plan_poll(dt_comm *c, dt_work *w)
{
    struct dt__engine *e = c->engine;
    while (w->step < w->plan->nsteps) {
        if (!w->in_round && dt__round_begin(c, w)) return c->status;
        const dt_plan_step *s = w->plan->step + w->step;
        bool                all = true;
        e->turn++;
        for (int64_t i = 0; i < w->round_end - w->step; i++) {
            if (e->over[i]) continue;
            dt__msg *m = e->msg + i;
            bool     out = s[i].kind == DT_STEP_SEND;
            int     *busy = (out ? e->busy_send : e->busy_recv) + s[i].peer;
            size_t   before = m->done + m->head_done;
            all = false;
            if (*busy == e->turn) continue; /* one before it has not moved */
            const dt__transport *t = dt__way(c, s[i].peer);
            int rc = out ? t->send(c, s[i].peer, m) : t->recv(c, s[i].peer, m);
            if (rc < 0) return rc;
            if (m->done + m->head_done != before || rc) w->progress = true;
            if (rc) {
                e->over[i] = 1;
                if (out) e->stats.bytes += (int64_t)m->n;
            } else {
                *busy = e->turn;
            }
        }
        for (int64_t i = 0; !all && i < w->round_end - w->step; i++)
            if (!e->over[i]) return 0;
        w->step = w->round_end;
        w->in_round = false;
    }
    return 1;
}

/* ---- work */
static int dt__work_poll(dt_comm *c, dt_work *w)
{
    int rc = 1;
#ifdef DT_USE_MPI
    if (w->agree && (rc = dt__mpi_agree(c, &w->head, &w->phase)) > 0) {
        w->agree = false;
        w->phase = 0;
        w->progress = true;
    }
    if (rc > 0 && w->native)
        rc = dt__mpi_native(c, w->head.coll, w->data, w->n, w->part, w->dtype, w->op, w->head.root, &w->phase,
                            &w->done);
    else
#endif
        if (rc > 0 && w->met) rc = w->plane->poll(c, w->job);
        else if (rc > 0) rc = w->shared ? dt__shared_allreduce(c, w) : dt__plan_poll(c, w);
    if (rc == 2 && w->met) { /* it has a deadline of its own */
        w->moved = dt__comm_now();
        rc = 0;
    } else if (rc > 0 && w->job && !w->met) {
        w->met = w->progress = true;
        rc = 0;
    }
    dt__comm_look(c); /* who was stopped for long finds all that it needs, and that the others have given up */
    int status = __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    return status ? status : rc;
}
/* No progress for the timeout: say who is at fault, or find out. */
static void dt__late(dt_comm *c, dt_work *w)
{
    char        who[200] = "", text[200];
    dt__shared *s = (dt__shared *)c->shared;
    dt__frame   last;
    int         rank = -1;
    if (w->asked && (double)(dt__comm_now() - w->moved) < c->timeout * 1e9 + 2e9) return;
    if (w->pair && !c->world) {
        int peer = w->plan->step->peer;
        dt__comm_fail(c, DT_COMM_ERR_TIMEOUT, peer, "rank %d: message #%" PRIu64 " %s rank %d did not move for %.1f s",
                      c->rank, w->head.seq + 1, w->plan->step->kind == DT_STEP_SEND ? "to" : "from", peer, c->timeout);
        return;
    }
    if (c->world && !w->asked) {
        w->asked = true;
        dt__world_ask(c->world, c, w->head.seq + 1, w->pair ? w->plan->step->peer : -1);
        return;
    }
    for (int i = 0; s && i < s->n; i++) {
        const dt__note *n = &dt__seat_of(s, i)->note[w->head.seq % DT__NOTES];
        uint64_t        seq = __atomic_load_n(&n->seq, __ATOMIC_ACQUIRE);
        size_t          k = strlen(who);
        if (seq >= w->head.seq + 1 || k > 150) continue;
        if (rank < 0) rank = s->rank[i];
        snprintf(who + k, sizeof who - k, "%s%d", k ? ", " : "", s->rank[i]);
        k = strlen(who);
        if (dt__shared_last(c, s->rank[i], &last, &seq))
            snprintf(who + k, sizeof who - k, " (last: %s #%" PRIu64 ")", dt_coll_name((dt_coll)last.coll),
                     last.seq + 1);
    }
    dt__comm_fail(c, DT_COMM_ERR_TIMEOUT, rank, "%s: nothing moved for %.1f s%s%s%s",
                  dt__frame_text(&w->head, text, sizeof text), c->timeout,
                  *who ? "; ranks that have not called it: " : "", who, *who ? "" : "; all ranks have called it");
}
/* One who was stopped may find all that it waited for, and must not go on when the others have given it up. */
static void dt__away(dt_comm *c, int64_t ns)
{
    if (c->across && (double)ns > c->timeout * 0.5e9) dt__world_settle(c->world);
}
static int64_t dt__watch_after(const dt_comm *c) /* ns without progress until others hear in what it waits */
{
    return c->timeout < 0.6 ? (int64_t)(c->timeout * 0.5e9) : 300000000;
}
static void dt__stuck(dt_comm *c, dt_work *w, int64_t now) /* a look found that nothing moved */
{
    if (!w->moved) w->moved = now;
    if (c->across && !w->pair && !w->watched && now - w->moved > dt__watch_after(c)) {
        w->watched = true;
        dt__world_watch(c->world, &w->head);
    }
    if ((double)(now - w->moved) > c->timeout * 1e9) dt__late(c, w);
}
/* Waiting: spins, yields, then sleeps; a sleeper looks once more between lying down and sleeping. Beside a program that
   computes it sleeps at once: the core is the program's. */
typedef struct dt__idler {
    int      turn;
    bool     dozing;
    uint32_t bell;
    int64_t  yielded; /* when it yielded last */
} dt__idler;
static bool dt__aside(const dt_comm *c) /* who drives does it beside a program that may be computing */
{
    return c->engine && c->engine->aside && !__atomic_load_n(&c->engine->waiting, __ATOMIC_RELAXED);
}
/* Looks before the first yield over sockets. Ranks that are bound to a core each do not share it. */
static int dt__socket_spin(const dt_comm *c)
{
    int *spin = &c->engine->spin;
    if (*spin < 0) {
        int cores = dt__shared_cores(NULL);
        if (cores == 1) cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
        *spin = c->local_size <= cores ? 200 : 0;
    }
    return *spin;
}
static void dt__idle(dt_comm *c, dt_work *w, dt__idler *d, bool progress)
{
    dt__shared *s = (dt__shared *)c->shared;
    int         spin = s ? dt__shared_spin(s) : dt__socket_spin(c), yields = 40;
    if (dt__aside(c)) spin = yields = 0;
    if (progress) {
        if (d->dozing) dt__shared_rise(s);
        d->dozing = false;
        d->turn = 0;
        d->yielded = 0;
        c->slow = false; /* what comes while it does not look may have been there for long */
        w->moved = 0;
        w->asked = false;
        return;
    }
    if (s) dt__shared_settle(s);
    if (d->dozing) { /* that was the last look */
        d->dozing = false;
        dt__shared_sleep(s, d->bell, 10000000);
        d->turn = spin + yields;
        return;
    }
    if (d->turn++ < spin) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    int64_t now = dt__comm_now();
    c->slow = true;
    if (s && !w->pair && (d->turn > spin + yields || (d->turn & 15) == 0) && !dt__shared_agree(c, &w->head)) return;
    dt__stuck(c, w, now);
    /* a yield that takes long went to somebody else's program: better sleep, and be woken */
    if (d->yielded && now - d->yielded > 50000 && d->turn < spin + yields) d->turn = spin + yields;
    d->yielded = now;
    if (d->turn < spin + yields) {
        sched_yield();
    } else if (c->across) {
        c->across->wait(c, s ? 0.0002 : 0.02);
        dt__away(c, dt__comm_now() - now);
    } else if (s) {
        d->bell = dt__shared_doze(s);
        d->dozing = true;
    }
}
/* Looks at a work until it is done; its status. */
static int dt__drive(dt_comm *c, dt_work *w)
{
    dt__idler d = { 0, false, 0, 0 };
    int       rc;
    for (;;) {
        w->progress = false;
        if ((rc = dt__work_poll(c, w)) != 0) break;
        dt__idle(c, w, &d, w->progress);
    }
    if (d.dozing) dt__shared_rise((dt__shared *)c->shared);
    if (c->shared) dt__shared_settle((dt__shared *)c->shared);
    return rc > 0 ? 0 : rc;
}
static void dt__past_add(dt_comm *c, const dt__frame *f, int64_t began, int64_t ended, int status)
{
    struct dt__engine *e = c->engine;
    dt__past          *p = &e->past[e->npast % DT__HISTORY];
    p->seq = f->seq;
    p->count = f->count;
    p->began = began;
    p->ended = ended;
    p->root = f->root;
    p->status = status;
    p->coll = f->coll;
    p->dtype = f->dtype;
    p->op = f->op;
    p->algo = f->algo;
    __atomic_store_n(&e->npast, e->npast + 1, __ATOMIC_RELEASE);
    e->stats.calls++;
    e->stats.busy += 1e-9 * (double)(ended - began);
}
static int dt__past_text(const dt_comm *c, uint64_t k, char *buf, size_t nbytes)
{
    const dt__past *p = &c->engine->past[k % DT__HISTORY];
    return snprintf(buf, nbytes, "rank %d: %s #%" PRIu64 " of %" PRId64 " %s, %s, root %d, %s, %.6f s, status %d",
                    c->rank, dt_coll_name((dt_coll)p->coll), p->seq + 1, p->count, dt__comm_dtypes[p->dtype],
                    dt__comm_ops[p->op], p->root, dt_algo_name((dt_algo)p->algo), 1e-9 * (double)(p->ended - p->began),
                    p->status);
}
static void dt__past_log(const dt_comm *c) /* the thread that drives, or none does: once */
{
    struct dt__engine *e = c->engine;
    char               text[256];
    if (e->told) return;
    e->told = true;
    for (uint64_t k = e->npast > DT__HISTORY ? e->npast - DT__HISTORY : 0; k < e->npast; k++) {
        dt__past_text(c, k, text, sizeof text);
        dt__logf(2, "history: %s", text);
    }
}
static void dt__work_end(dt_comm *c, dt_work *w, int status)
{
    struct dt__engine *e = c->engine;
    int64_t            now = dt__comm_now();
    /* one who was stopped, and finds all it waited for, must not go on alone */
    if (status && c->shared) {
        dt__shared_fail((dt__shared *)c->shared, status, c->failed_rank, c->text);
        dt__shared_untouched((dt__shared *)c->shared);
    }
    if (!status && !w->shared && w->op == DT_COMM_MEAN && dt__coll_reduces(w->head.coll) && w->out_n) {
        dt__reduce_scale(w->dtype, w->data + (size_t)w->out_at * w->size, w->out_n, c->size);
    }
    if (!status && w->out) dt__comm_copy(w->out, w->data + (size_t)w->out_at * w->size, (size_t)w->out_n * w->size);
    if (!status || !c->mpi) { /* else MPI may still write to it: it stays */
        DT_COMM_FREE(w->temp);
        DT_COMM_FREE(w->part);
    }
    w->temp = NULL;
    w->part = NULL;
    if (w->plan_own && w->plan) {
        dt_plan_free(w->plan);
        DT_COMM_FREE(w->plan);
    }
    w->plan = NULL;
    dt__past_add(c, &w->head, w->started, now, status);
    w->ended = now;
    __atomic_store_n(&c->doing, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&c->since, now, __ATOMIC_RELAXED);
    if (!w->pair) __atomic_store_n(&c->done, w->head.seq + 1, __ATOMIC_RELEASE);
    if (!w->pair && !status && c->late) {
        dt__waits *t = &e->waits[c->late_rank];
        __atomic_store_n(&t->last, t->last + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&t->waited, t->waited + c->late, __ATOMIC_RELAXED);
        if (c->late > t->longest) __atomic_store_n(&t->longest, c->late, __ATOMIC_RELAXED);
    }
    if (!w->pair && c->shared)
        __atomic_store_n(&dt__seat_of((dt__shared *)c->shared, ((dt__shared *)c->shared)->me)->done, w->head.seq + 1,
                         __ATOMIC_RELEASE);
    w->status = status;
    if (status) dt__past_log(c);
    /* one who was stopped, and finds all it waited for, must not go on alone */
    if (status && c->shared) dt__shared_fail((dt__shared *)c->shared, status, c->failed_rank, c->text);
}
static void dt__frame_fill(const dt_comm *c, dt__frame *f, int coll, int algo, int64_t count, int dtype, int op,
                           int root)
{
    f->magic = DT__FRAME_MAGIC;
    f->version = DT__FRAME_VERSION;
    f->comm = c->id;
    f->epoch = c->world ? c->world->epoch : 0;
    f->seq = c->seq;
    f->count = count;
    f->nbytes = f->sent = 0;
    f->late = 0;
    f->step = 0;
    f->rank = c->rank;
    f->root = root;
    f->late_rank = f->zero = 0;
    f->coll = (uint8_t)coll;
    f->algo = (uint8_t)algo;
    f->dtype = (uint8_t)dtype;
    f->op = (uint8_t)op;
}
static void dt__work_begin(dt_comm *c, dt_work *w)
{
    if (w->in) dt__comm_copy(w->data + (size_t)w->in_at * w->size, w->in, (size_t)w->in_n * w->size);
    size_t scratch = w->plan ? (size_t)w->plan->scratch * w->size : 0;
    if (scratch > c->engine->scratch_n) {
        DT_COMM_FREE(c->engine->scratch);
        c->engine->scratch = (char *)DT_COMM_MALLOC(scratch);
        c->engine->scratch_n = c->engine->scratch ? scratch : 0;
        if (!c->engine->scratch)
            dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: out of memory for %zu bytes of scratch", c->rank,
                          scratch);
    }
    w->started = dt__comm_now();
    w->head.sent = (uint64_t)w->started;
    if (c->since) dt__away(c, w->started - c->since);
    __atomic_store_n(&c->doing, (uint32_t)w->head.coll + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&c->since, w->started, __ATOMIC_RELAXED);
    if (w->pair) return;
    c->began = w->started;
    c->slow = false;
    c->late = 0;
    c->late_rank = -1;
    if (c->note && !(w->shared && w->phase)) dt__note_put(c->note, &w->head); /* dt__short has, and others read it */
    if (c->across) dt__world_begin(c->world, c, &w->head);
    if (!c->shared) return;
    __atomic_store_n(&dt__seat_of((dt__shared *)c->shared, ((dt__shared *)c->shared)->me)->begun, w->head.seq + 1,
                     __ATOMIC_RELEASE);
    if (w->shared) return; /* posts are compared by all */
    DT__FENCE(&((dt__shared *)c->shared)->hall->sleepers); /* of two who differ one sees it */
    dt__shared_agree(c, &w->head);
}
static void dt__work_over(dt_comm *c, dt_work *w, int status) /* the lock is held; w leaves the queue */
{
    struct dt__engine *e = c->engine;
    dt_work          **p = &e->head, *before = NULL;
    while (*p && *p != w) before = *p, p = &(*p)->next;
    if (*p) __atomic_store_n(p, w->next, __ATOMIC_RELEASE); /* dt__short looks at the head */
    if (e->tail == w) e->tail = before;
    w->status = status;
    __atomic_store_n(&w->finished, true, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&e->cond);
}
/* Sends and receives at the head of the queue move together: whoever sends first and receives then would wait for one
   that does the same. Messages of one pair and direction stay in order. One look, under the lock; the first work if it
   is not done. */
static dt_work *dt__pairs_look(dt_comm *c, bool *progress)
{
    struct dt__engine *e = c->engine;
    dt_work           *w[64];
    int                n = 0, rc[64];
    for (dt_work *x = e->head; x && x->pair && n < 64; x = x->next) w[n++] = x;
    pthread_mutex_unlock(&e->lock);
    *progress = false;
    e->turn++;
    for (int i = 0; i < n; i++) {
        const dt_plan_step *s = w[i]->plan->step;
        int                *busy = (s->kind == DT_STEP_SEND ? e->busy_send : e->busy_recv) + s->peer;
        rc[i] = 0;
        if (!w[i]->begun) dt__work_begin(c, w[i]);
        w[i]->begun = true;
        dt__comm_look(c);
        if (!dt__comm_ok(c)) rc[i] = c->status;
        if (rc[i] || *busy == e->turn) continue;
        size_t               before = w[i]->one.done + w[i]->one.head_done;
        const dt__transport *t = dt__way(c, s->peer);
        if (w[i]->met) rc[i] = w[i]->plane->poll(c, w[i]->job);
        else rc[i] = s->kind == DT_STEP_SEND ? t->send(c, s->peer, &w[i]->one) : t->recv(c, s->peer, &w[i]->one);
        if (rc[i] > 0 && w[i]->job && !w[i]->met) {
            w[i]->met = true;
            rc[i] = 0;
        }
        if (!rc[i]) *busy = e->turn;
        *progress = *progress || rc[i] || before != w[i]->one.done + w[i]->one.head_done;
        if (rc[i] > 0 && s->kind == DT_STEP_SEND) e->stats.bytes += (int64_t)w[i]->one.n;
    }
    for (int i = 0; i < n; i++)
        if (rc[i]) dt__work_end(c, w[i], rc[i] > 0 ? 0 : rc[i]);
    pthread_mutex_lock(&e->lock);
    dt_work *first = n && !rc[0] ? w[0] : NULL;
    for (int i = 0; i < n; i++)
        if (rc[i]) dt__work_over(c, w[i], w[i]->status);
    return first;
}
static void dt__pairs_run(dt_comm *c, dt_work *until) /* the lock is held */
{
    struct dt__engine *e = c->engine;
    dt__idler          d = { 0, false, 0, 0 };
    while (e->head && e->head->pair && !(until && until->finished)) {
        bool     progress;
        dt_work *first = dt__pairs_look(c, &progress);
        if (!first) continue;
        pthread_mutex_unlock(&e->lock);
        dt__idle(c, first, &d, progress);
        pthread_mutex_lock(&e->lock);
    }
    if (d.dozing) dt__shared_rise((dt__shared *)c->shared);
    if (c->shared) dt__shared_settle((dt__shared *)c->shared);
}
static const int64_t *dt__clock_of(const dt_comm *c) /* this thread's clock becomes that of c; the one before */
{
    const int64_t *before = dt__comm_clock;
    dt__comm_clock = c->world ? c->world->clock : NULL;
    return before;
}
/* Works of the queue until 'until' is done, or all of them. The caller holds the lock and is the one who drives. */
static void dt__engine_run(dt_comm *c, dt_work *until)
{
    struct dt__engine *e = c->engine;
    const int64_t     *clock = dt__clock_of(c);
    e->driving = true;
    e->aside = !until;
    while (e->head && !(until && until->finished)) {
        dt_work *w = e->head;
        if (w->pair) {
            dt__pairs_run(c, until);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        if (!w->begun) dt__work_begin(c, w);
        int rc = dt__comm_ok(c) ? dt__drive(c, w) : c->status;
        dt__work_end(c, w, rc);
        pthread_mutex_lock(&e->lock);
        dt__work_over(c, w, rc);
    }
    dt__comm_clock = clock;
    e->driving = false;
    if (e->head) pthread_cond_broadcast(&e->cond);
}
/* The same without waiting: until the first work does not get on. Its caller comes again. */
static void dt__engine_look(dt_comm *c)
{
    struct dt__engine *e = c->engine;
    dt_work           *w = NULL;
    bool               progress = false;
    const int64_t     *clock = dt__clock_of(c);
    e->driving = true;
    while (!w && e->head) {
        w = e->head;
        if (w->pair) {
            w = dt__pairs_look(c, &progress);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        if (!w->begun) dt__work_begin(c, w);
        w->begun = true;
        w->progress = false;
        int rc = dt__comm_ok(c) ? dt__work_poll(c, w) : c->status;
        if (rc) dt__work_end(c, w, rc > 0 ? 0 : rc);
        progress = w->progress;
        pthread_mutex_lock(&e->lock);
        if (rc) {
            dt__work_over(c, w, w->status);
            w = NULL;
        }
    }
    if (w) {
        int64_t now = dt__comm_now();
        if (progress) w->moved = now, w->asked = false;
        else if (!c->shared || w->pair || dt__shared_agree(c, &w->head)) dt__stuck(c, w, now);
    }
    dt__comm_clock = clock;
    e->driving = false;
    if (e->head) pthread_cond_broadcast(&e->cond);
}
static void *dt__engine_main(void *arg)
{
    dt_comm           *c = (dt_comm *)arg;
    struct dt__engine *e = c->engine;
    pthread_mutex_lock(&e->lock);
    while (!e->quit) {
        if (e->head && !e->driving) dt__engine_run(c, NULL);
        else pthread_cond_wait(&e->cond, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}
static void dt__engine_await(struct dt__engine *e) /* the lock is held; somebody else drives */
{
    __atomic_add_fetch(&e->waiting, 1, __ATOMIC_RELAXED);
    pthread_cond_wait(&e->cond, &e->lock);
    __atomic_sub_fetch(&e->waiting, 1, __ATOMIC_RELAXED);
}
/* Works that the program holds, so that they can outlive their communicator. The lock is held. */
static void dt__work_keep(struct dt__engine *e, dt_work *w)
{
    w->after = e->kept;
    if (w->after) w->after->before = w;
    e->kept = w;
}
static void dt__work_drop(struct dt__engine *e, dt_work *w)
{
    if (w->after) w->after->before = w->before;
    if (w->before) w->before->after = w->after;
    else e->kept = w->after;
}
/* Puts a work at the end of the queue. wait: until it is done; its status. */
static int dt__submit(dt_comm *c, dt_work *w, bool wait)
{
    struct dt__engine *e = c->engine;
    pthread_mutex_lock(&e->lock);
    if (e->tail) e->tail->next = w;
    else e->head = w;
    e->tail = w;
    if (!wait) {
        dt__work_keep(e, w);
        if (!e->has_thread && !c->no_thread) dt__engine_thread(c);
        pthread_cond_broadcast(&e->cond);
        pthread_mutex_unlock(&e->lock);
        return 0;
    }
    while (!w->finished) {
        if (!e->driving) dt__engine_run(c, w);
        else dt__engine_await(e);
    }
    pthread_mutex_unlock(&e->lock);
    return w->status;
}
static void dt__engine_thread(dt_comm *c) /* the lock is held */
{
    struct dt__engine *e = c->engine;
    sigset_t           all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->has_thread = !pthread_create(&e->thread, NULL, dt__engine_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ==================================================================================================== >>api */
static int dt__call_bad(dt_comm *c, const dt__call *a)
{
    char why[200];
    bool reduces = dt__coll_reduces(a->coll);
    why[0] = 0;
    if (a->dtype < 0 || a->dtype >= DT_COMM_DTYPES) snprintf(why, sizeof why, "dtype %d is none", a->dtype);
    else if (reduces && (a->op < 0 || a->op >= DT_COMM_OPS)) snprintf(why, sizeof why, "reduction %d is none", a->op);
    else if (reduces && !dt__reduce_can(a->dtype, a->op))
        snprintf(why, sizeof why, "%s of %s is not defined", dt__comm_ops[a->op], dt__comm_dtypes[a->dtype]);
    else if (a->n < 0 || a->n > INT64_MAX / 64 / c->size) snprintf(why, sizeof why, "%" PRId64 " elements", a->n);
    else if (a->root < 0 || a->root >= c->size)
        snprintf(why, sizeof why, "rank %d is out of range in a world of %d", a->root, c->size);
    for (int i = 0; a->counts && !why[0] && i < c->size; i++)
        if (a->counts[i] < 0 || a->counts[i] > INT64_MAX / 64 / c->size)
            snprintf(why, sizeof why, "%" PRId64 " elements of rank %d", a->counts[i], i);
    if (!why[0]) return 0;
    return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: %s", c->rank, a->name, why);
}
static int64_t dt__segment_at(const dt_comm *c, const dt__call *a, int rank) /* where the segment of a rank begins */
{
    int64_t at = 0;
    if (!a->counts) return a->n * rank;
    for (int i = 0; i < rank && i < c->size; i++) at += a->counts[i];
    return at;
}
/* What links the ranks. Over MPI the ranks of a machine are as near as in shared memory. */
static int dt__comm_link(const dt_comm *c)
{
    if (c->threads) return DT_LINK_THREAD;
    if (c->local_size < c->size) return DT_LINK_NET;
    return c->inside || (c->world && c->world->mpi) ? DT_LINK_SHM : DT_LINK_LOOP;
}
/* Can it be done in shared memory, by >>shared? */
static bool dt_sha256res(const dt_comm *c, dt_coll coll)
{
    return c->shared && c->local_size == c->size && c->size <= 64 &&
           (coll == DT_COLL_ALLREDUCE || coll == DT_COLL_BARRIER);
}
/* What is taken at any size; DT_ALGO_AUTO: by cost. total: elements of the vector, or of all segments */
static dt_algo dt__fixed(const dt_comm *c, dt_coll coll, int64_t total)
{
    dt_algo forced = (dt_algo)c->engine->algo;
    (void)total;
    if (c->ordered && dt__coll_reduces(coll)) return DT_ALGO_ORDERED;
#ifdef DT_USE_MPI
    if (forced == DT_ALGO_NATIVE && c->mpi && dt__mpi_has(coll, total)) return DT_ALGO_NATIVE;
#endif
    if (forced != DT_ALGO_AUTO && forced != DT_ALGO_SHARED && dt_plan_can(coll, forced, c->size, c->host))
        return forced;
    return dt_sha256res(c, coll) ? DT_ALGO_SHARED : DT_ALGO_AUTO;
}
static dt_algo dt__choose(const dt_comm *c, dt_coll coll, int64_t total, size_t size, int64_t *segment)
{
    dt_algo fixed = dt__fixed(c, coll, total);
    *segment = 0;
    return fixed != DT_ALGO_AUTO ? fixed
                                 : dt__cost_choose(&c->engine->costs, coll, c->size, c->host, dt__comm_link(c), false,
                                                   total * (int64_t)size, segment);
}
/* A plan from the cache, or one of the work's own. */
static int dt__plan_get(dt_comm *c, const dt__call *a, dt_work *w, dt_algo algo, int64_t segment, const int64_t *matrix)
{
    struct dt__engine *e = c->engine;
    const char        *why = NULL;
    dt_plan_opts       o;
    int64_t            key[4] = { (int64_t)a->coll << 8 | (int64_t)algo, a->n, a->root, segment };
    uint64_t           h = ((uint64_t)key[0] * 31 + (uint64_t)a->n) * 31 + (uint64_t)a->root;
    int                slot = (int)((h ^ h >> 17) & 15);
    memset(&o, 0, sizeof o);
    o.rank = c->rank;
    o.world = c->size;
    o.count = a->n;
    o.counts = matrix ? matrix : a->counts;
    o.root = a->root;
    o.segment = segment;
    o.host = c->host;
    if (!a->counts && !w->own) { /* works that are waited for use it one at a time */
        if (e->plan[slot].step && !memcmp(e->plan_key[slot], key, sizeof key)) {
            w->plan = &e->plan[slot];
            return 0;
        }
        dt_plan_free(&e->plan[slot]);
        w->plan = &e->plan[slot];
        memcpy(e->plan_key[slot], key, sizeof key);
    } else {
        w->plan = (dt_plan *)dt__comm_zeroed(1, sizeof *w->plan);
        w->plan_own = true;
    }
    if (w->plan && !dt_plan_make(w->plan, a->coll, algo, &o, &why)) return 0;
    if (w->plan && !w->plan_own) memset(w->plan, 0, sizeof *w->plan);
    return dt__comm_fail(c, why ? DT_COMM_ERR_ARG : DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: algorithm %s: %s",
                         c->rank, a->name, dt_algo_name(algo), why ? why : "out of memory");
}
static int dt__prepare_with(dt_comm *c, const dt__call *a, dt_work *w, const int64_t *matrix) /* alltoall: of counts */
{
    int64_t segment = 0, mine = a->counts ? a->counts[c->rank] : a->n, at = dt__segment_at(c, a, c->rank);
    int64_t all = dt__segment_at(c, a, c->size);
    bool    whole = a->coll == DT_COLL_ALLREDUCE || a->coll == DT_COLL_BROADCAST || a->coll == DT_COLL_REDUCE ||
                 a->coll == DT_COLL_BARRIER;
    bool    root = c->rank == a->root;
    w->c = c;
    w->dtype = a->dtype;
    w->op = a->op;
    w->size = dt__comm_size_of(a->dtype);
    w->n = whole ? a->n : all;
    w->data = (char *)a->out;
    dt_algo algo = matrix ? DT_ALGO_PAIRS : dt__choose(c, a->coll, w->n, w->size, &segment);
    dt__frame_fill(c, &w->head, a->coll, (int)algo, matrix ? -1 : w->n, a->dtype, a->op, a->root); /* -1: by rank */
    segment /= (int64_t)w->size;
    w->shared = algo == DT_ALGO_SHARED;
    w->native = algo == DT_ALGO_NATIVE;
    w->agree = c->engine->algo == DT_ALGO_NATIVE && c->mpi;
    switch (a->coll) {
    case DT_COLL_ALLREDUCE: w->out_n = a->n; break;
    case DT_COLL_REDUCE: w->out_n = root ? a->n : 0; break;
    case DT_COLL_REDUCE_SCATTER:
        w->temp = w->data = (char *)DT_COMM_MALLOC((size_t)all * w->size + 1);
        w->in = (const char *)a->in;
        w->in_n = all;
        w->out = (char *)a->out;
        w->out_at = at;
        w->out_n = mine;
        break;
    case DT_COLL_ALLGATHER:
        if (a->in) w->in = (const char *)a->in, w->in_at = at, w->in_n = mine;
        break;
    case DT_COLL_GATHER:
        if (!root) w->temp = w->data = (char *)DT_COMM_MALLOC((size_t)all * w->size + 1);
        if (a->in) w->in = (const char *)a->in, w->in_at = at, w->in_n = mine;
        break;
    case DT_COLL_SCATTER:
        w->data = (char *)(uintptr_t)a->in; /* the root only sends from it */
        if (!root) w->temp = w->data = (char *)DT_COMM_MALLOC((size_t)all * w->size + 1);
        w->out = (char *)a->out;
        w->out_at = at;
        w->out_n = mine;
        break;
    default: break;
    }
    if ((a->coll == DT_COLL_REDUCE_SCATTER || ((a->coll == DT_COLL_GATHER || a->coll == DT_COLL_SCATTER) && !root)) &&
        !w->data)
        return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
    if (w->native && !whole) {
        w->part = (int *)DT_COMM_MALLOC(2 * (size_t)c->size * sizeof *w->part);
        if (!w->part)
            return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
        for (int i = 0; i < c->size; i++) {
            w->part[i] = (int)(a->counts ? a->counts[i] : a->n);
            w->part[c->size + i] = i ? w->part[c->size + i - 1] + w->part[i - 1] : 0;
        }
    }
    __atomic_store_n(&c->seq, c->seq + 1, __ATOMIC_RELEASE); /* others ask */
    return w->shared || w->native ? 0 : dt__plan_get(c, a, w, algo, segment, matrix);
}
static int dt__prepare(dt_comm *c, const dt__call *a, dt_work *w) { return dt__prepare_with(c, a, w, NULL); }
/* ---- memory of devices */
static const char *dt__place_text(int device) { return device ? "a GPU's memory" : "the host's"; }
/* Is it a call on a device? 1, 0, or negative after dt__comm_fail. All ranks say the same, or their frames differ. */
static int dt__on_device(dt_comm *c, const dt__call *a)
{
    bool        scatters = a->coll == DT_COLL_REDUCE_SCATTER || a->coll == DT_COLL_SCATTER;
    const void *first = scatters ? a->in : a->out, *other = scatters ? a->out : a->in;
    int64_t     all = 0, mine = a->counts ? a->counts[c->rank] : a->n;
    if (!c->plane || a->coll == DT_COLL_BARRIER) return 0;
    for (int i = 0; i < c->size; i++) all += a->counts ? a->counts[i] : a->n;
    if (!all) return 0;
    int on = c->plane->owns(c, first), there = other && mine ? c->plane->owns(c, other) : on;
    if (on == there) return on;
    return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: one buffer is %s, the other %s: both must be alike",
                         c->rank, a->name, dt__place_text(on), dt__place_text(there));
}
static int dt__prepare_device(dt_comm *c, const dt__call *a, dt_work *w)
{
    int64_t  segment = 0;
    bool     there = a->coll == DT_COLL_ALLREDUCE || a->coll == DT_COLL_BROADCAST || a->coll == DT_COLL_REDUCE ||
                 a->coll == DT_COLL_REDUCE_SCATTER || a->coll == DT_COLL_ALLGATHER;
    dt__call meet = *a;
    w->c = c;
    if (!there || (dt__coll_reduces(a->coll) && a->op == DT_COMM_OR))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s%s is not there for memory of GPUs", c->rank,
                             a->name, there ? " with DT_COMM_OR" : "");
    w->job = c->plane->begin(c, a);
    if (!w->job) return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    w->plane = c->plane;
    w->data = w->job->card;
    w->n = DT__CARD;
    w->dtype = DT_COMM_U8;
    w->op = DT_COMM_OR;
    w->size = 1;
    meet.coll = DT_COLL_ALLREDUCE;
    meet.n = DT__CARD;
    meet.counts = NULL;
    meet.root = 0;
    dt_algo algo = dt__choose(c, DT_COLL_ALLREDUCE, DT__CARD, 1, &segment);
    if (algo == DT_ALGO_NATIVE) algo = DT_ALGO_TREE;
    dt__frame_fill(c, &w->head, a->coll, DT_ALGO_NATIVE, a->counts ? dt__segment_at(c, a, c->size) : a->n, a->dtype,
                   a->op, a->root);
    w->shared = algo == DT_ALGO_SHARED;
    __atomic_store_n(&c->seq, c->seq + 1, __ATOMIC_RELEASE);
    return w->shared ? 0 : dt__plan_get(c, &meet, w, algo, segment, NULL);
}
static int dt__job_wait(dt_work *w, int status) /* its status; the job is gone */
{
    if (!w->job) return status;
    int rc = w->plane->wait(w->job, status);
    w->job = NULL;
    return status ? status : rc;
}
static int dt__alone(const dt__call *a) /* a world of one */
{
    size_t n = (size_t)a->n * dt__comm_size_of(a->dtype);
    if (a->coll == DT_COLL_REDUCE_SCATTER || a->coll == DT_COLL_SCATTER || a->coll == DT_COLL_GATHER ||
        a->coll == DT_COLL_ALLGATHER) {
        if (a->counts) n = (size_t)a->counts[0] * dt__comm_size_of(a->dtype);
        if (a->in && n) memmove(a->out, a->in, n);
    }
    return 0;
}
/* A short vector, or none, of ranks that are all here: posted, and reduced if all come within a moment; on the caller's
   thread, past the queue if that is empty, with nothing written that nobody reads when all goes well. True: done. False
   and *posted: a work of the engine goes on from there, and writes and finds out the rest. */
enum { DT__SHORT_LOOKS = 1000 };
static int64_t dt__comm_coarse(void) /* ns; of ticks, so that sums of differences are right, not each of them */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
static bool dt__short(dt_comm *c, const dt__call *a, bool *posted)
{
    struct dt__engine *e = c->engine;
    dt__shared        *s = (dt__shared *)c->shared;
    size_t             size = dt__comm_size_of(a->dtype), nbytes = (size_t)a->n * size;
    if (!dt_sha256res(c, a->coll) || a->n > DT__POST_SHORT || nbytes > DT__POST_SHORT ||
        (e->algo != DT_ALGO_AUTO && e->algo != DT_ALGO_SHARED) || (c->ordered && dt__coll_reduces(a->coll)) ||
        __atomic_load_n(&e->head, __ATOMIC_ACQUIRE))
        return false;
    dt__seat *me = dt__seat_of(s, s->me);
    uint64_t  no = s->no++;
    dt__post *p = &me->post[no & 1];
    int64_t   began = dt__comm_coarse();
    /* who has slept wants to know how late this rank is */
    bool      slept = __atomic_load_n(&s->hall->sleepers, __ATOMIC_RELAXED) != 0;
    dt__frame_fill(c, &p->frame, a->coll, DT_ALGO_SHARED, a->n, a->dtype, a->op, a->root);
    p->frame.sent = (uint64_t)(slept ? dt__comm_now() : began);
    uint64_t print = p->print = dt__frame_print(&p->frame);
    p->at = -1;
    dt__comm_copy(dt__short_of(s, s->me, no, nbytes), a->out, nbytes);
    dt__shared_tell(s, &p->no, no + 1);
    *posted = true;
    dt__note_put(me->note, &p->frame);
    __atomic_store_n(&me->begun, p->frame.seq + 1, __ATOMIC_RELEASE);
    for (int i = 0, looks = dt__shared_spin(s) ? DT__SHORT_LOOKS : 0; i < s->n; i++) {
        const dt__post *q = &dt__seat_of(s, i)->post[no & 1];
        while (__atomic_load_n(&q->no, __ATOMIC_ACQUIRE) != no + 1)
            if (looks-- <= 0) return false;
        if (q->print != print) return false;
    }
    if (a->n) dt__short_reduce(c, no, a->out, a->n, a->dtype, a->op, size);
    dt__past_add(c, &p->frame, began, dt__comm_coarse(), 0);
    __atomic_store_n(&c->since, began, __ATOMIC_RELAXED);
    __atomic_store_n(&c->seq, p->frame.seq + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&c->done, p->frame.seq + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&me->done, p->frame.seq + 1, __ATOMIC_RELEASE);
    dt__shared_settle(s);
    /* all have read the next post: the lines that the next call writes, if it is like this one */
    dt__own_lines((char *)&me->post[s->no & 1], 64);
    if (nbytes > DT__POST_FIRST) dt__own_lines((char *)me->more[s->no & 1], nbytes);
    return true;
}
static int dt__call_do(dt_comm *c, const dt__call *a)
{
    dt_work w;
    if (!c) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: the communicator is NULL", a->name);
    dt__comm_look(c);
    if (!dt__comm_ok(c)) return c->status;
    if (dt__call_bad(c, a)) return c->status;
    int device = dt__on_device(c, a);
    if (device < 0) return device;
    if (c->size == 1) return device ? c->plane->alone(c, a) : dt__alone(a);
    bool posted = false;
    if (!device && (a->coll == DT_COLL_ALLREDUCE || a->coll == DT_COLL_BARRIER) &&
        dt__short(c, a, &posted)) {
        dt__comm_look(c); /* as in dt__work_poll */
        return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    }
    memset(&w, 0, sizeof w);
    int rc = device ? dt__prepare_device(c, a, &w) : dt__prepare(c, a, &w);
    if (rc) {
        dt__job_wait(&w, rc);
        DT_COMM_FREE(w.temp);
        return rc;
    }
    if (posted) {
        w.phase = 1;
        w.no = ((dt__shared *)c->shared)->no - 1;
    }
    return dt__job_wait(&w, dt__submit(c, &w, true));
}
static dt_work *dt__call_start(dt_comm *c, const dt__call *a)
{
    if (!c) {
        dt__comm_bad(DT_COMM_ERR_ARG, "%s: the communicator is NULL", a->name);
        return NULL;
    }
    int device = !dt__comm_ok(c) || dt__call_bad(c, a) ? -1 : dt__on_device(c, a);
    if (device < 0) return NULL;
    dt_work *w = (dt_work *)dt__comm_zeroed(1, sizeof *w);
    if (!w) {
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
        return NULL;
    }
    w->own = true;
    w->c = c;
    if (c->size == 1) {
        w->finished = true;
        w->status = device ? c->plane->alone(c, a) : dt__alone(a);
        pthread_mutex_lock(&c->engine->lock);
        dt__work_keep(c->engine, w);
        pthread_mutex_unlock(&c->engine->lock);
        return w;
    }
    if (device ? dt__prepare_device(c, a, w) : dt__prepare(c, a, w)) {
        dt__job_wait(w, c->status);
        DT_COMM_FREE(w->temp);
        if (w->plan_own) DT_COMM_FREE(w->plan);
        DT_COMM_FREE(w);
        return NULL;
    }
    dt__submit(c, w, false);
    return w;
}
static dt__call dt__call_of(const char *name, dt_coll coll, const void *in, void *out, int64_t n, const int64_t *counts,
                            int dtype, int op, int root)
{
    dt__call a;
    a.name = name;
    a.coll = coll;
    a.in = in;
    a.out = out;
    a.n = n;
    a.counts = counts;
    a.dtype = dtype;
    a.op = op;
    a.root = root;
    return a;
}
DT_API int dt_comm_allreduce(dt_comm *c, void *buf, int64_t n, int dtype, int op)
{
    dt__call a = dt__call_of("dt_comm_allreduce", DT_COLL_ALLREDUCE, NULL, buf, n, NULL, dtype, op, 0);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_broadcast(dt_comm *c, void *buf, int64_t n, int dtype, int root)
{
    dt__call a = dt__call_of("dt_comm_broadcast", DT_COLL_BROADCAST, NULL, buf, n, NULL, dtype, 0, root);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_reduce(dt_comm *c, void *buf, int64_t n, int dtype, int op, int root)
{
    dt__call a = dt__call_of("dt_comm_reduce", DT_COLL_REDUCE, NULL, buf, n, NULL, dtype, op, root);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_reduce_scatter(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype,
                                  int op)
{
    dt__call a = dt__call_of("dt_comm_reduce_scatter", DT_COLL_REDUCE_SCATTER, in, out, n, counts, dtype, op, 0);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_allgather(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype)
{
    dt__call a = dt__call_of("dt_comm_allgather", DT_COLL_ALLGATHER, in, out, n, counts, dtype, 0, 0);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_gather(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype, int root)
{
    dt__call a = dt__call_of("dt_comm_gather", DT_COLL_GATHER, in, out, n, counts, dtype, 0, root);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_scatter(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype, int root)
{
    dt__call a = dt__call_of("dt_comm_scatter", DT_COLL_SCATTER, in, out, n, counts, dtype, 0, root);
    return dt__call_do(c, &a);
}
DT_API int dt_comm_barrier(dt_comm *c)
{
    dt__call a = dt__call_of("dt_comm_barrier", DT_COLL_BARRIER, NULL, NULL, 0, NULL, DT_COMM_U8, 0, 0);
    return dt__call_do(c, &a);
}
DT_API dt_work *dt_comm_allreduce_start(dt_comm *c, void *buf, int64_t n, int dtype, int op)
{
    dt__call a = dt__call_of("dt_comm_allreduce_start", DT_COLL_ALLREDUCE, NULL, buf, n, NULL, dtype, op, 0);
    return dt__call_start(c, &a);
}
DT_API dt_work *dt_comm_broadcast_start(dt_comm *c, void *buf, int64_t n, int dtype, int root)
{
    dt__call a = dt__call_of("dt_comm_broadcast_start", DT_COLL_BROADCAST, NULL, buf, n, NULL, dtype, 0, root);
    return dt__call_start(c, &a);
}
DT_API dt_work *dt_comm_reduce_scatter_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                             int dtype, int op)
{
    dt__call a = dt__call_of("dt_comm_reduce_scatter_start", DT_COLL_REDUCE_SCATTER, in, out, n, counts, dtype, op, 0);
    return dt__call_start(c, &a);
}
DT_API dt_work *dt_comm_allgather_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                        int dtype)
{
    dt__call a = dt__call_of("dt_comm_allgather_start", DT_COLL_ALLGATHER, in, out, n, counts, dtype, 0, 0);
    return dt__call_start(c, &a);
}
DT_API bool dt_work_test(dt_work *w)
{
    if (!w || !w->c) return true;
    struct dt__engine *e = w->c->engine;
    if (!__atomic_load_n(&w->finished, __ATOMIC_ACQUIRE) && w->c->no_thread) {
        pthread_mutex_lock(&e->lock); /* nobody else moves it */
        if (!e->driving) dt__engine_look(w->c);
        pthread_mutex_unlock(&e->lock);
    }
    return __atomic_load_n(&w->finished, __ATOMIC_ACQUIRE) && (!w->job || w->status || w->plane->test(w->job));
}
static void dt__work_await(dt_work *w, bool last) /* last: it is not waited for again */
{
    struct dt__engine *e = w->c ? w->c->engine : NULL;
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    while (!w->finished) {
        if (!e->driving) dt__engine_run(w->c, w);
        else dt__engine_await(e);
    }
    if (last) dt__work_drop(e, w);
    pthread_mutex_unlock(&e->lock);
}
DT_API int dt_work_times(dt_work *w, int64_t *began, int64_t *ended)
{
    if (!w) return DT_COMM_ERR_ARG;
    dt__work_await(w, false);
    if (began) *began = w->started;
    if (ended) *ended = w->ended;
    return w->status;
}
DT_API int dt_work_wait(dt_work *w)
{
    if (!w) return DT_COMM_ERR_ARG;
    dt__work_await(w, true);
    int rc = dt__job_wait(w, w->status);
    DT_COMM_FREE(w);
    return rc;
}
DT_API int dt_work_wait_any(dt_work **w, int n)
{
    for (;;) {
        int last = -1;
        for (int i = 0; i < n; i++) {
            if (!w[i]) continue;
            if (__atomic_load_n(&w[i]->finished, __ATOMIC_ACQUIRE)) return i;
            last = i;
        }
        if (last < 0) return -1;
        struct dt__engine *e = w[last]->c->engine;
        pthread_mutex_lock(&e->lock);
        if (e->head && !e->driving) dt__engine_run(w[last]->c, e->head);
        else if (!w[last]->finished) dt__engine_await(e);
        pthread_mutex_unlock(&e->lock);
    }
}

/* ---- making and asking */
#ifndef DT_STATIC
const dt__plane *dt__plane_nccl;
#endif
DT__INSIDE int  dt__comm_algo(const dt_comm *c) { return c->engine->algo; }
DT__INSIDE void dt__comm_busy(dt_comm *c, double seconds) { c->engine->stats.busy += seconds; }
DT__INSIDE bool dt__work_finished(const dt_work *w) { return __atomic_load_n(&w->finished, __ATOMIC_ACQUIRE); }
static void dt__comm_delete(dt_comm *c)
{
    if (!c) return;
    struct dt__engine *e = c->engine;
    if (e) {
        pthread_mutex_lock(&e->lock);
        e->quit = true;
        pthread_cond_broadcast(&e->cond);
        pthread_mutex_unlock(&e->lock);
        if (e->has_thread) pthread_join(e->thread, NULL);
        while (e->head) { /* it has failed, and nobody drove them */
            dt_work *w = e->head;
            dt__work_end(c, w, c->status ? c->status : DT_COMM_ERR_STATE);
            dt__work_over(c, w, w->status);
        }
        for (dt_work *w = e->kept; w; w = w->after) w->c = NULL;
        if (c->status) dt__past_log(c); /* it failed between two calls */
        for (int i = 0; i < 16; i++) dt_plan_free(&e->plan[i]);
        DT_COMM_FREE(e->msg);
        DT_COMM_FREE(e->over);
        DT_COMM_FREE(e->busy_send);
        DT_COMM_FREE(e->busy_recv);
        DT_COMM_FREE(e->sent);
        DT_COMM_FREE(e->got);
        DT_COMM_FREE(e->waits);
        if (!c->mpi || dt__comm_ok(c)) DT_COMM_FREE(e->scratch); /* else MPI may still write to it: it stays */
        pthread_mutex_destroy(&e->lock);
        pthread_cond_destroy(&e->cond);
        DT_COMM_FREE(e);
    }
    if (c->plane) c->plane->close(c);
    if (c->across && c->across->close) c->across->close(c);
    dt__shared_free((dt__shared *)c->shared);
    if (c->wake_fd >= 0) close(c->wake_fd);
    DT_COMM_FREE(c->member);
    DT_COMM_FREE(c->host);
    DT_COMM_FREE(c->own_note);
    DT_COMM_FREE(c->alive);
    DT_COMM_FREE(c);
}
static dt_comm *dt__comm_new(int rank, int size, const dt_comm_opts *o) /* NULL after dt__comm_bad */
{
    dt_comm    *c = (dt_comm *)dt__comm_zeroed(1, sizeof *c);
    const char *env = getenv("DT_COMM_ALGO"), *t = getenv("DT_COMM_TIMEOUT"), *ordered = getenv("DT_COMM_ORDERED");
    if (!c) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
        return NULL;
    }
    c->rank = rank;
    c->size = size;
    c->failed_rank = -1;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->timeout = o->timeout > 0 ? o->timeout : t && atof(t) > 0 ? atof(t) : 30;
    c->opts = *o;
    c->no_thread = o->no_thread;
    c->ordered = o->ordered || (ordered && !strcmp(ordered, "1"));
    c->streams = o->streams > 0 ? o->streams : 1;
    c->bandwidth = o->bandwidth;
    c->latency = o->latency;
    c->local_size = size;
    c->local_rank = rank;
    struct dt__engine *e = c->engine = (struct dt__engine *)dt__comm_zeroed(1, sizeof *c->engine);
    c->host = (int *)dt__comm_zeroed((size_t)size, sizeof *c->host);
    c->member = (int *)dt__comm_zeroed((size_t)size, sizeof *c->member);
    if (e) {
        pthread_mutex_init(&e->lock, NULL);
        pthread_cond_init(&e->cond, NULL);
        e->busy_send = (int *)dt__comm_zeroed((size_t)size, sizeof *e->busy_send);
        e->busy_recv = (int *)dt__comm_zeroed((size_t)size, sizeof *e->busy_recv);
        e->sent = (uint64_t *)dt__comm_zeroed((size_t)size, sizeof *e->sent);
        e->got = (uint64_t *)dt__comm_zeroed((size_t)size, sizeof *e->got);
        e->waits = (dt__waits *)dt__comm_zeroed((size_t)size, sizeof *e->waits);
        e->costs = dt_costs_default();
        e->spin = -1;
    }
    const char *algo = o->algo ? o->algo : env;
    c->plane = o->backend == DT_NCCL ? dt__plane_nccl : NULL;
    if (o->backend && !c->plane) {
        dt__comm_bad(DT_COMM_ERR_ARG,
                     "dt_comm_init: .backend is %d; %s", o->backend,
                     o->backend == DT_NCCL ? "NCCL is not in this program: include dt_nccl.h and compile with "
                                             "-DDT_USE_CUDA -DDT_USE_NCCL" : "there is DT_NCCL");
    } else if (e && algo && *algo && (e->algo = (int)dt_algo_of(algo)) == DT_ALGO_COUNT) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: there is no algorithm \"%.60s\"", algo);
    } else if (e && c->host && c->member && e->busy_send && e->busy_recv && e->sent && e->got && e->waits &&
               c->wake_fd >= 0) {
        for (int i = 0; i < size; i++) c->member[i] = i;
        return c;
    } else {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory or descriptors");
    }
    dt__comm_delete(c);
    return NULL;
}
static size_t dt__threads_nbytes(int n) { return dt__shared_seats(n) + (size_t)n * (size_t)n * sizeof(dt__channel); }
static char  *dt__threads_segment(int n) /* of n ranks that are threads; NULL after dt__comm_bad */
{
    int   flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, dt__threads_nbytes(n), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_threads: out of memory");
        return NULL;
    }
    ((dt__hall *)p)->refs = n;
    return (char *)p;
}
/* One of them. NULL after dt__comm_bad: the others are told. */
static dt_comm *dt__threads_comm(char *base, int rank, int n, uint64_t id, const dt_comm_opts *o,
                                 const dt_costs *costs)
{
    int     *all = (int *)DT_COMM_MALLOC((size_t)n * sizeof *all);
    dt_comm *c = dt__comm_new(rank, n, o);
    for (int i = 0; all && i < n; i++) all[i] = i;
    if (c && all) {
        c->id = id;
        c->threads = true;
        c->opts = *o;
        if (costs) c->engine->costs = *costs, c->engine->has_costs = true;
        c->inside = &dt__shared_transport;
        c->shared = dt__shared_new(c, all, n, base, dt__threads_nbytes(n), -1);
    }
    DT_COMM_FREE(all);
    if (c && c->shared) return c;
    if (c) dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_threads: out of memory");
    dt__comm_delete(c);
    dt__hall *h = (dt__hall *)(void *)base;
    if (!__atomic_exchange_n(&h->failing, 1, __ATOMIC_ACQ_REL)) {
        snprintf(h->text, sizeof h->text, "rank %d could not set up its communicator", rank);
        h->rank = rank;
        __atomic_store_n(&h->status, (int32_t)DT_COMM_ERR_MEMORY, __ATOMIC_RELEASE);
    }
    if (!__atomic_sub_fetch(&h->refs, 1, __ATOMIC_ACQ_REL)) munmap(base, dt__threads_nbytes(n));
    return NULL;
}
DT_API int dt_comm_threads_with(int n, dt_comm **out, dt_comm_opts o)
{
    static uint64_t count;
    if (n < 1 || n > 1024 || !out) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_threads: %d threads", n);
    dt_costs    costs;
    const char *table = dt__costs_named(&o);
    if (table && dt_costs_load(&costs, table)) return DT_COMM_ERR_ARG;
    uint64_t id = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    char    *base = dt__threads_segment(n);
    bool     ok = base != NULL;
    for (int i = 0; base && i < n; i++)
        ok = (out[i] = dt__threads_comm(base, i, n, id, &o, table ? &costs : NULL)) != NULL && ok;
    if (ok) return 0;
    for (int i = 0; base && i < n; i++) dt__comm_delete(out[i]);
    return DT_COMM_ERR_MEMORY;
}
DT_API int dt_comm_free(dt_comm *c)
{
    if (!c) return 0;
    int rc = c->size > 1 && !dt_comm_status_of(c) ? dt_comm_barrier(c) : c->status;
    dt__world *w = c->world;
    if (w) dt__world_remove(w, c);
    dt__comm_delete(c);
    if (w) dt__world_unref(w);
    return rc;
}
DT_API const char *dt_comm_error(const dt_comm *c)
{
    if (!c) return dt__comm_text[0] ? dt__comm_text : NULL;
    return dt_comm_status_of(c) ? c->text : NULL;
}
DT_API int dt_comm_status_of(const dt_comm *c)
{
    if (c) dt__comm_look(c);
    return c ? __atomic_load_n(&c->status, __ATOMIC_ACQUIRE) : dt__comm_text[0] ? dt__comm_why : 0;
}
DT_API int dt_comm_failed_rank(const dt_comm *c) { return dt_comm_status_of(c) ? c->failed_rank : -1; }
DT_API void dt_comm_abort(dt_comm *c, const char *why)
{
    if (c) dt__comm_fail(c, DT_COMM_ERR_ABORT, c->rank, "rank %d: %s", c->rank, why ? why : "dt_comm_abort");
}
DT_API int dt_comm_rank(const dt_comm *c) { return c ? c->rank : 0; }
DT_API int dt_comm_size(const dt_comm *c) { return c ? c->size : 1; }
DT_API int dt_comm_local_rank(const dt_comm *c) { return c ? c->local_rank : 0; }
DT_API int dt_comm_local_size(const dt_comm *c) { return c ? c->local_size : 1; }
DT_API int dt_comm_host(const dt_comm *c, int rank) { return c && rank >= 0 && rank < c->size ? c->host[rank] : -1; }
DT_API void *dt_comm_alloc(dt_comm *c, size_t nbytes)
{
    dt__shared *s = c ? (dt__shared *)c->shared : NULL;
    void       *p = NULL;
    if (nbytes > (size_t)1 << 46) return NULL; /* no machine has it */
    if (s && s->fd >= 0) return dt__arena_alloc(s, nbytes ? nbytes : 1);
    return posix_memalign(&p, 64, nbytes ? nbytes : 1) ? NULL : p;
}
DT_API void dt_comm_dealloc(dt_comm *c, void *ptr)
{
    dt__shared *s = c ? (dt__shared *)c->shared : NULL;
    if (ptr && !(s && s->fd >= 0 && dt__arena_free(s, ptr))) free(ptr);
}

/* ---- all to all */
DT_API int dt_comm_alltoall(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *sends,
                            const int64_t *recvs, int dtype)
{
    dt__call a = dt__call_of("dt_comm_alltoall", DT_COLL_ALLTOALL, in, out, n, NULL, dtype, 0, 0);
    int64_t  going = 0, coming = 0, *matrix = NULL;
    if (!c) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: the communicator is NULL", a.name);
    if (!dt__comm_ok(c) || dt__call_bad(c, &a)) return c->status;
    if (!sends != !recvs)
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: sends and recvs are given together", c->rank,
                             a.name);
    for (int i = 0; i < c->size; i++) {
        if (sends && (sends[i] < 0 || recvs[i] < 0 || sends[i] > INT64_MAX / 64 / c->size ||
                      recvs[i] > INT64_MAX / 64 / c->size))
            return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank,
                                 "rank %d: %s: %" PRId64 " elements to and %" PRId64 " from rank %d", c->rank, a.name,
                                 sends[i], recvs[i], i);
        going += sends ? sends[i] : n;
        coming += sends ? recvs[i] : n;
    }
    if (c->plane && ((going && c->plane->owns(c, in)) || (coming && c->plane->owns(c, out))))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s is not there for memory of GPUs", c->rank, a.name);
    size_t  size = dt__comm_size_of(dtype);
    dt_work w;
    memset(&w, 0, sizeof w);
    if (c->size == 1) {
        memmove(out, in, (size_t)going * size);
        return 0;
    }
    w.own = true; /* a plan of its own */
    if (sends)
        matrix = (int64_t *)dt__comm_zeroed((size_t)c->size * (size_t)c->size, sizeof *matrix); /* one row and column */
    for (int i = 0; matrix && i < c->size; i++) {
        matrix[(size_t)c->rank * (size_t)c->size + (size_t)i] = sends[i];
        matrix[(size_t)i * (size_t)c->size + (size_t)c->rank] = recvs[i];
    }
    char *temp = (char *)DT_COMM_MALLOC((size_t)(going > coming ? going : coming) * size + 1);
    if (!temp || (sends && !matrix)) {
        DT_COMM_FREE(temp);
        DT_COMM_FREE(matrix);
        return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a.name);
    }
    a.counts = NULL;
    int rc = dt__prepare_with(c, &a, &w, matrix);
    DT_COMM_FREE(matrix);
    w.temp = w.data = temp;
    w.in = (const char *)in;
    w.in_n = going;
    w.out = (char *)out;
    w.out_n = coming;
    if (rc) {
        DT_COMM_FREE(temp);
        return rc;
    }
    return dt__submit(c, &w, true);
}

/* ---- one to one: numbered by pair and direction, not by communicator */
static dt_work *dt__pair_work(dt_comm *c, const char *name, const void *buf, int64_t n, int dtype, int peer, bool send)
{
    dt__call a = dt__call_of(name, DT_COLL_SEND, NULL, NULL, n, NULL, dtype, 0, peer);
    if (!c) {
        dt__comm_bad(DT_COMM_ERR_ARG, "%s: the communicator is NULL", name);
        return NULL;
    }
    if (!dt__comm_ok(c) || dt__call_bad(c, &a)) return NULL;
    if (peer == c->rank) {
        dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: to or from itself", c->rank, name);
        return NULL;
    }
    dt_work *w = (dt_work *)dt__comm_zeroed(1, sizeof *w);
    if (w) w->plan = (dt_plan *)dt__comm_zeroed(1, sizeof *w->plan);
    if (w && w->plan) w->plan->step = (dt_plan_step *)dt__comm_zeroed(1, sizeof *w->plan->step);
    if (!w || !w->plan || !w->plan->step) {
        if (w) DT_COMM_FREE(w->plan);
        DT_COMM_FREE(w);
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, name);
        return NULL;
    }
    w->c = c;
    w->own = w->plan_own = w->pair = true;
    w->dtype = dtype;
    w->size = dt__comm_size_of(dtype);
    w->n = n;
    w->data = (char *)(uintptr_t)buf;
    w->head.magic = DT__FRAME_MAGIC;
    w->head.version = DT__FRAME_VERSION;
    w->head.comm = c->id;
    w->head.epoch = c->world ? c->world->epoch : 0;
    w->head.seq = (send ? c->engine->sent : c->engine->got)[peer]++;
    w->head.count = n;
    w->head.rank = c->rank;
    w->head.root = send ? peer : c->rank; /* the receiver */
    w->head.coll = DT_COLL_SEND;
    w->head.dtype = (uint8_t)dtype;
    w->head.algo = DT_ALGO_DIRECT;
    w->plan->nsteps = 1;
    w->plan->step->kind = send ? DT_STEP_SEND : DT_STEP_RECV;
    w->plan->step->peer = peer;
    w->plan->step->n = n;
    w->one.head = w->head;
    w->one.ptr = w->data;
    w->one.n = (size_t)n * w->size;
    if (n && c->plane && c->plane->owns(c, buf)) {
        a.coll = send ? DT_COLL_SEND : DT_COLL_RECV;
        a.out = w->data;
        w->plane = c->plane;
        w->job = c->plane->begin(c, &a);
        w->one.head.algo = w->head.algo = DT_ALGO_NATIVE;
        w->one.ptr = w->data = w->job ? w->job->card : NULL;
        w->one.n = DT__CARD;
    }
    w->one.head.nbytes = w->one.n;
    if (!w->plane || w->job) return w;
    dt_plan_free(w->plan);
    DT_COMM_FREE(w->plan);
    DT_COMM_FREE(w);
    return NULL;
}
static int dt__pair_do(dt_comm *c, dt_work *w)
{
    if (!w) return c ? c->status : DT_COMM_ERR_ARG;
    int rc = dt__job_wait(w, dt__submit(c, w, true));
    DT_COMM_FREE(w);
    return rc;
}
DT_API int dt_comm_send(dt_comm *c, const void *buf, int64_t n, int dtype, int to)
{
    return dt__pair_do(c, dt__pair_work(c, "dt_comm_send", buf, n, dtype, to, true));
}
DT_API int dt_comm_recv(dt_comm *c, void *buf, int64_t n, int dtype, int from)
{
    return dt__pair_do(c, dt__pair_work(c, "dt_comm_recv", buf, n, dtype, from, false));
}
DT_API dt_work *dt_comm_send_start(dt_comm *c, const void *buf, int64_t n, int dtype, int to)
{
    dt_work *w = dt__pair_work(c, "dt_comm_send_start", buf, n, dtype, to, true);
    if (w) dt__submit(c, w, false);
    return w;
}
DT_API dt_work *dt_comm_recv_start(dt_comm *c, void *buf, int64_t n, int dtype, int from)
{
    dt_work *w = dt__pair_work(c, "dt_comm_recv_start", buf, n, dtype, from, false);
    if (w) dt__submit(c, w, false);
    return w;
}

/* ---- watching */
DT_API dt_comm_stats dt_comm_get_stats(const dt_comm *c)
{
    dt_comm_stats s;
    memset(&s, 0, sizeof s);
    if (c && c->engine) s = c->engine->stats;
    if (c && c->across) s.bytes_net = (int64_t)dt__tcp_bytes(c);
    return s;
}
DT_API size_t dt_comm_history(const dt_comm *c, char *buf, size_t nbytes)
{
    size_t at = 0;
    if (buf && nbytes) buf[0] = 0;
    if (!c || !c->engine) return 0;
    uint64_t n = __atomic_load_n(&c->engine->npast, __ATOMIC_ACQUIRE), from = n > DT__HISTORY ? n - DT__HISTORY : 0;
    for (uint64_t k = from; k < n; k++) {
        char text[256];
        dt__past_text(c, k, text, sizeof text);
        int len = snprintf(buf && at < nbytes ? buf + at : NULL, buf && at < nbytes ? nbytes - at : 0, "%s\n", text);
        at += len > 0 ? (size_t)len : 0;
    }
    return at;
}

static int dt__straggler_order(const void *a, const void *b)
{
    const dt_comm_straggler *x = (const dt_comm_straggler *)a, *y = (const dt_comm_straggler *)b;
    return x->waited > y->waited ? -1 : x->waited < y->waited ? 1 : x->rank - y->rank;
}
/* All of them, or NULL: none, or no memory. */
static dt_comm_straggler *dt__stragglers(const dt_comm *c, int *n)
{
    *n = 0;
    dt_comm_straggler *all = c ? (dt_comm_straggler *)DT_COMM_MALLOC((size_t)c->size * sizeof *all) : NULL;
    for (int r = 0; all && r < c->size; r++) {
        const dt__waits *t = &c->engine->waits[r];
        dt_comm_straggler *s = &all[*n];
        if (!(s->last = __atomic_load_n(&t->last, __ATOMIC_RELAXED))) continue;
        s->rank = r;
        s->waited = 1e-9 * (double)__atomic_load_n(&t->waited, __ATOMIC_RELAXED);
        s->longest = 1e-9 * (double)__atomic_load_n(&t->longest, __ATOMIC_RELAXED);
        ++*n;
    }
    if (*n) qsort(all, (size_t)*n, sizeof *all, dt__straggler_order);
    return all;
}
DT_API int dt_comm_get_stragglers(const dt_comm *c, dt_comm_straggler *out, int n)
{
    int                total;
    dt_comm_straggler *all = dt__stragglers(c, &total);
    for (int i = 0; i < total && i < n; i++) out[i] = all[i];
    DT_COMM_FREE(all);
    return total;
}
DT_API size_t dt_comm_stragglers(const dt_comm *c, char *buf, size_t nbytes)
{
    size_t             at = 0;
    int                n;
    dt_comm_straggler *all = dt__stragglers(c, &n);
    if (buf && nbytes) buf[0] = 0;
    for (int i = 0; i < n; i++)
        dt__cost_say(buf, buf ? nbytes : 0, &at,
                     "rank %d%s%s%s: came last to %" PRId64 " of %" PRIu64
                     " operations; rank %d waited %.6f s for it, %.6f s at most\n",
                     all[i].rank, c->world ? " (" : "", dt_comm_host_name(c, all[i].rank), c->world ? ")" : "",
                     all[i].last, __atomic_load_n(&c->done, __ATOMIC_ACQUIRE), c->rank, all[i].waited, all[i].longest);
    DT_COMM_FREE(all);
    return at;
}
DT_API size_t dt_comm_explain(const dt_comm *c, char *buf, size_t nbytes)
{
    dt_algo fixed[DT_COLL_COUNT];
    size_t  len = 0;
    if (nbytes) buf[0] = 0;
    if (!c) return 0;
    dt__cost_say(buf, nbytes, &len, "rank %d of %d, from %s; data: %s%s%s\n", c->rank, c->size, dt_comm_where(c),
                 c->size == 1 ? "none moves" : c->threads ? "one process" : c->inside ? "shared memory" : "",
                 c->inside && c->across ? " inside a machine, across " : "", c->across ? c->across->name : "");
    for (int first = 0, h = 0; first < c->size; first++) {
        int n = 0;
        if (c->host[first] != h) continue; /* machines are numbered in the order of ranks */
        for (int i = first; i < c->size; i++) n += c->host[i] == h;
        dt__cost_say(buf, nbytes, &len, "machine %d%s%s: %d of the ranks, the first is %d\n", h++, c->world ? ", " : "",
                     dt_comm_host_name(c, first), n, first);
    }
    dt__cost_say(buf, nbytes, &len, "algorithm: %s; costs: %s\n",
                 c->engine->algo == DT_ALGO_AUTO ? "by cost" : dt_algo_name((dt_algo)c->engine->algo),
                 c->engine->has_costs ? "rank 0's table" : "the fixed table");
    for (int i = 0; i < (int)DT_COLL_COUNT; i++) fixed[i] = dt__fixed(c, (dt_coll)i, 0);
    return dt__explain(&c->engine->costs, c->size, c->host, dt__comm_link(c), fixed, buf, nbytes, len);
}

/* ---- communicators of processes */
static uint64_t dt__id_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + 1;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) | 1;
}
/* The segment of the ranks of c on this machine: the first of them makes it. */
static int dt_sha256re(dt_comm *c, const int *local, int n)
{
    dt__world  *w = c->world;
    int        *world = (int *)DT_COMM_MALLOC((size_t)n * sizeof *world), fd = -1, e = 0;
    char        why[400];
    struct stat st;
    if (!world) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    for (int i = 0; i < n; i++) world[i] = c->member[local[i]];
    if (local[0] == c->rank && (fd = dt__segment_new(n)) < 0) e = errno;
    int got = dt__world_pass_fd(w, c->id, world, n, fd);
    DT_COMM_FREE(world);
    if (e)
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: rank %d: no shared memory for %d ranks: %s", c->rank, n,
                            strerror(e));
    if (got < 0) {
        snprintf(why, sizeof why, "%.390s", dt__comm_text);
        if (fd >= 0) close(fd);
        return dt__comm_bad(dt__comm_why, "dt_comm_init: rank %d has no shared memory: %s", c->rank, why);
    }
    dt__shared *s = fstat(got, &st) ? NULL : dt__shared_new(c, local, n, NULL, (size_t)st.st_size, got);
    __atomic_store_n(&c->shared, (void *)s, __ATOMIC_RELEASE); /* the control thread looks */
    if (!s) {
        e = errno;
        close(got);
        return dt__comm_bad(DT_COMM_ERR_MEMORY,
                            "dt_comm_init: rank %d cannot map %lld MiB of shared memory: %s; DT_COMM_ARENA=MiB sets "
                            "how much of it is for dt_comm_alloc",
                            c->rank, (long long)(st.st_size >> 20), strerror(e));
    }
    c->inside = &dt__shared_transport;
    return 0;
}
/* A communicator of some ranks of a world, in this order; NULL after dt__comm_bad. Takes a reference. */
static dt_comm *dt__comm_build(dt__world *w, const int *member, int n, uint64_t id, const dt_comm_opts *o)
{
    const char *how = dt__transport_named(o);
    int         rank = 0, nlocal = 0, *local = (int *)DT_COMM_MALLOC((size_t)n * sizeof *local), bad = 0;
    while (rank < n && member[rank] != w->rank) rank++;
    if (how && strcmp(how, "shm") && strcmp(how, "tcp") && !w->mpi) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: transport \"%.40s\"; there are auto, shm, tcp and mpi", how);
        bad = 1;
    }
    dt_comm *c = !bad && local ? dt__comm_new(rank, n, o) : NULL;
    if (!c) {
        DT_COMM_FREE(local);
        const char *why = dt__comm_text + (strncmp(dt__comm_text, "dt_comm_init: ", 14) == 0 ? 14 : 0);
        char        cut[DT__CTEXT + 1];
        snprintf(cut, sizeof cut, "rank %d could not set up its communicator: %.600s", rank, why);
        dt__world_abort_id(w, id, DT_COMM_ERR_JOIN, rank, cut); /* the others may be waiting for it */
        return NULL;
    }
    __atomic_add_fetch(&w->refs, 1, __ATOMIC_RELAXED);
    c->world = w;
    c->id = id;
    if (w->has_costs) c->engine->costs = w->costs, c->engine->has_costs = true;
    c->opts = *o;
    memcpy(c->member, member, (size_t)n * sizeof *member);
    c->local_size = 0;
    for (int i = 0, hosts = 0; i < n; i++) { /* machines in the order of ranks */
        int k = 0;
        while (k < i && w->member[member[k]].host != w->member[member[i]].host) k++;
        c->host[i] = k < i ? c->host[k] : hosts++;
        if (w->member[member[i]].host != w->member[w->rank].host) continue;
        if (i == rank) c->local_rank = nlocal;
        local[nlocal++] = i;
    }
    c->local_size = nlocal;
    bool tcp = how && !strcmp(how, "tcp");
    if (c->engine->algo == DT_ALGO_NATIVE && !w->mpi)
        bad = dt__comm_bad(DT_COMM_ERR_ARG,
                           "dt_comm_init: algorithm \"native\" is MPI's own: it needs transport \"mpi\"");
    if (how && !strcmp(how, "shm") && nlocal < n)
        bad = dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: transport \"shm\", but the ranks are on several machines");
    dt__world_add(w, c);
    if (!bad && nlocal > 1 && !tcp && !w->mpi) bad = dt_sha256re(c, local, nlocal);
    if (n > 1 && !w->mpi && (tcp || nlocal < n)) c->across = &dt__transport_tcp;
#ifdef DT_USE_MPI
    if (n > 1 && w->mpi) {
        int64_t until = dt__comm_now() + (int64_t)(w->join_timeout * 1e9);
        c->across = &dt__transport_mpi;
        if (!bad) bad = dt__mpi_open(c, !o->no_thread, until);
    }
#endif
    if (!bad && n > 1 && !c->shared) {
        c->own_note = (dt__note *)dt__comm_zeroed(DT__NOTES, sizeof *c->own_note);
        __atomic_store_n(&c->note, c->own_note, __ATOMIC_RELEASE);
        if (!c->own_note) bad = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    }
    DT_COMM_FREE(local);
    if (!bad) return c;
    dt__world_abort(w, c, bad, rank, dt__comm_text);
    dt__world_remove(w, c);
    dt__comm_delete(c);
    dt__world_unref(w);
    return NULL;
}
DT_API dt_comm *dt_comm_init_with(dt_comm_opts o)
{
    uint64_t   id = 0;
    dt__world *w = dt__world_join(&o);
    int       *all = w ? (int *)DT_COMM_MALLOC((size_t)w->size * sizeof *all) : NULL;
    dt_comm   *c = NULL;
    for (int i = 0; all && i < w->size; i++) all[i] = i;
    if (w) memcpy(&id, w->job, sizeof id);
    if (all) c = dt__comm_build(w, all, w->size, dt__id_mix(id, 0), &o);
    else if (w) dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    if (w && all && w->size > 1) { /* all have one, or none */
        int32_t mine = c ? 0 : 1;
        int     bad = dt__world_allgather(w, &mine, sizeof mine, all);
        for (int i = 0; c && !bad && i < w->size; i++)
            if (all[i])
                bad = dt__comm_ok(c) ? dt__comm_bad(DT_COMM_ERR_JOIN,
                                                    "dt_comm_init: rank %d could not set up its communicator", i)
                                     : dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %.700s", c->text);
        if (c && bad) {
            c->status = bad; /* it is not waited for */
            dt_comm_free(c);
            c = NULL;
        }
    }
    DT_COMM_FREE(all);
    if (w) dt__world_unref(w); /* the communicator holds it */
    return c;
}
/* Threads: the first of each part makes its memory, and tells all where it is. */
static int dt__threads_split(dt_comm *c, int n, const int *member, uint64_t id, dt_comm **out)
{
    int64_t *at = (int64_t *)DT_COMM_MALLOC((size_t)c->size * sizeof *at), mine = 0;
    int      rank = 0;
    while (rank < n && member[rank] != c->rank) rank++;
    if (n && !rank) mine = (int64_t)(uintptr_t)dt__threads_segment(n);
    int rc = at ? dt_comm_allgather(c, &mine, at, 1, NULL, DT_COMM_I64) : DT_COMM_ERR_MEMORY;
    if (!rc && n && at[member[0]])
        *out = dt__threads_comm((char *)(uintptr_t)at[member[0]], rank, n, id, &c->opts,
                                c->engine->has_costs ? &c->engine->costs : NULL);
    else if (mine) munmap((void *)(uintptr_t)mine, dt__threads_nbytes(n));
    DT_COMM_FREE(at);
    return rc;
}
DT_API int dt_comm_split(dt_comm *c, int colour, int key, dt_comm **out)
{
    int32_t mine[2] = { colour, key };
    if (!out) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_split: out is NULL");
    *out = NULL;
    if (!c) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_split: the communicator is NULL");
    int32_t *all = (int32_t *)DT_COMM_MALLOC((size_t)c->size * sizeof mine);
    int *member = (int *)DT_COMM_MALLOC((size_t)c->size * 2 * sizeof *member), *keys = member ? member + c->size : NULL,
        n = 0;
    if (!all || !member) {
        DT_COMM_FREE(all);
        DT_COMM_FREE(member);
        return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: dt_comm_split: out of memory", c->rank);
    }
    int rc = dt_comm_allgather(c, mine, all, 2, NULL, DT_COMM_I32);
    for (int i = 0; !rc && i < c->size; i++) { /* by key, then rank */
        int k = n;
        if (all[2 * i] != colour) continue;
        for (; k > 0 && keys[k - 1] > all[2 * i + 1]; k--) keys[k] = keys[k - 1], member[k] = member[k - 1];
        keys[k] = all[2 * i + 1];
        member[k] = c->member[i];
        n++;
    }
    uint64_t id = dt__id_mix(dt__id_mix(c->id, ++c->splits), (uint64_t)(uint32_t)colour);
    if (!rc && c->threads && c->size > 1) rc = dt__threads_split(c, colour < 0 ? 0 : n, member, id, out);
    else if (!rc && colour >= 0)
        *out = c->world ? dt__comm_build(c->world, member, n, id, &c->opts) : dt__comm_new(0, 1, &c->opts);
    if (!rc && colour >= 0 && !*out)
        rc = dt__comm_fail(c, dt__comm_why, c->rank, "rank %d: dt_comm_split: %s", c->rank, dt__comm_text);
    DT_COMM_FREE(all);
    DT_COMM_FREE(member);
    return rc;
}
/* Threads see each other's memory, so one lock makes the agreement: who comes last, or finds that the time is over,
   decides for all who have come. */
static int dt__threads_shrink(dt_comm *c, dt_comm **out)
{
    dt__hall *h = ((dt__shared *)c->shared)->hall;
    uint64_t  me = UINT64_C(1) << (c->rank % 64);
    int       n = 0, rank = 0, round = c->round++, slot = round & 1;
    char     *base = NULL;
    bool      here = false;
    for (;;) {
        while (__atomic_exchange_n(&h->lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
        if (h->round > round) break;
        if (!here && h->ncame == 0) {
            if (round == 0) h->nin = c->size;
            h->deadline = dt__comm_now() + (int64_t)(c->timeout * 1e9);
            memset(h->came, 0, sizeof h->came);
        }
        if (!here) h->came[c->rank / 64] |= me, h->ncame++;
        here = true;
        if (h->ncame == h->nin || dt__comm_now() >= h->deadline) {
            memcpy(h->result[slot].in, h->came, sizeof h->came);
            h->result[slot].n = h->nin = h->ncame;
            h->result[slot].base = dt__threads_segment(h->nin);
            h->ncame = 0;
            h->round = round + 1;
            break;
        }
        __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE);
        usleep(500);
    }
    if (here && h->round <= round + 2 && (h->result[slot].in[c->rank / 64] & me)) {
        n = h->result[slot].n;
        base = h->result[slot].base;
    }
    for (int i = 0; i < c->rank; i++) rank += h->result[slot].in[i / 64] >> (i % 64) & 1;
    __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE);
    if (!n)
        return dt__comm_bad(DT_COMM_ERR_TIMEOUT, "rank %d: dt_comm_shrink: it came too late: the others have gone on",
                            c->rank);
    if (!base) return dt__comm_bad(DT_COMM_ERR_MEMORY, "rank %d: dt_comm_shrink: out of memory", c->rank);
    *out = dt__threads_comm(base, rank, n, dt__id_mix(c->id, UINT64_C(1) << 32 | (uint64_t)round), &c->opts,
                            c->engine->has_costs ? &c->engine->costs : NULL);
    return *out ? 0 : DT_COMM_ERR_MEMORY;
}
DT__INSIDE void dt__comm_drop(dt_comm *c) /* nobody waits for anybody */
{
    if (!c) return;
    dt__comm_failed(c, DT_COMM_ERR_STATE, -1, "given up before it was used");
    dt_comm_free(c);
}
/* Agree on who is there, make a communicator of them, agree that all have it. If not (somebody died meanwhile), once
   more with those who are left. Its id is of this round, so what an earlier attempt left behind cannot be taken for
   it; the memory and the links are new. */
DT_API int dt_comm_shrink(dt_comm *c, dt_comm **out)
{
    char     text[sizeof dt__comm_text];
    uint64_t id = 0;
    if (!out) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_shrink: out is NULL");
    *out = NULL;
    if (!c) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_shrink: the communicator is NULL");
    if (c->threads && c->size > 1) return dt__threads_shrink(c, out);
    dt__world *w = c->world;
    if (w && w->mpi)
        return dt__comm_bad(DT_COMM_ERR_STATE, "dt_comm_shrink: MPI ends the job when a rank dies: use transport auto");
    if (!w || c->size == 1) {
        id = dt__id_mix(c->id, ++c->splits);
        *out = w ? dt__comm_build(w, c->member, 1, id, &c->opts) : dt__comm_new(0, 1, &c->opts);
        return *out ? 0 : DT_COMM_ERR_MEMORY;
    }
    int *member = (int *)DT_COMM_MALLOC((size_t)c->size * sizeof *member), n = 0, before = -1, same = 0, rc = 0;
    if (!c->alive && (c->alive = (uint8_t *)dt__comm_zeroed(1, dt__agree_nbytes(w))) != NULL)
        for (int i = 0; i < c->size; i++) dt__bit_set(c->alive, c->member[i]);
    if (!member || !c->alive) rc = dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory");
    for (bool all = false; !rc; before = n) {
        bool have = *out && dt__comm_ok(*out);
        rc = dt__world_agree(w, c->id, c->round++, c->timeout, c->alive, have ? id : 0, have ? n : 0, &all);
        if (!rc && all && have) break;
        dt__comm_drop(*out);
        *out = NULL;
        n = 0;
        for (int i = 0; !rc && i < c->size; i++)
            if (dt__bit(c->alive, c->member[i])) member[n++] = c->member[i];
        same = n == before ? same + 1 : 0;
        if (!rc && n == 0)
            rc = dt__comm_bad(DT_COMM_ERR_PEER, "half of the ranks or more are out of reach: they may have gone on "
                                                "without these; start again from the last checkpoint");
        else if (!rc && !dt__bit(c->alive, w->rank))
            rc = dt__comm_bad(DT_COMM_ERR_TIMEOUT, "it came too late: the others have gone on");
        else if (!rc && same == 3)
            rc = dt__comm_bad(DT_COMM_ERR_STATE, "%d ranks could not set up a communicator: %.400s", n,
                              dt__comm_text[0] ? dt__comm_text : "one of them failed");
        if (rc) break;
        id = dt__id_mix(dt__id_mix(c->id, UINT64_C(1) << 32), (uint64_t)c->round);
        *out = dt__comm_build(w, member, n, id, &c->opts);
    }
    if (rc) {
        snprintf(text, sizeof text, "rank %d: dt_comm_shrink: %.680s", c->rank, dt__comm_text);
        dt__comm_drop(*out);
        *out = NULL;
        dt__comm_bad(rc, "%s", text);
    }
    for (int i = 0, k = 0; !rc && i < c->size; i++)
        if (k < n && member[k] == c->member[i]) k++;
        else {
            static const char *const how[] = { "it came too late", "it died", "it left", "it is out of reach" };
            dt__logf(3, "rank %d goes on without rank %d: %s", c->rank, i,
                         how[dt__world_gone(w, c->member[i]) & 3]);
        }
    DT_COMM_FREE(member);
    return rc;
}
DT_API int dt_comm_dup(dt_comm *c, dt_comm **out) { return dt_comm_split(c, 0, c ? c->rank : 0, out); }
DT_API const char *dt_comm_host_name(const dt_comm *c, int rank)
{
    return c && c->world && rank >= 0 && rank < c->size ? c->world->member[c->member[rank]].host_name : "";
}
/* ---- tuning */
/* Round trips between two ranks, until 'most' are done or a second is over; the first says when. Half of the least, in
   seconds; negative: failed. */
static double dt__tune_trips(dt_comm *c, int a, int b, int64_t nbytes, int most, int64_t *buf)
{
    int64_t begin = dt__comm_now(), best = INT64_MAX;
    int     peer = c->rank == a ? b : a, rc = 0;
    for (int i = 0; !rc; i++) {
        int64_t t0 = dt__comm_now();
        buf[0] = i + 1 < most && (i < 3 || t0 - begin < 1000000000); /* another one follows */
        if (c->rank == a) rc = dt_comm_send(c, buf, nbytes, DT_COMM_U8, peer);
        if (!rc) rc = dt_comm_recv(c, buf, nbytes, DT_COMM_U8, peer);
        int64_t again = buf[0];
        if (!rc && c->rank == b) rc = dt_comm_send(c, buf, nbytes, DT_COMM_U8, peer);
        int64_t took = dt__comm_now() - t0;
        if (i && took < best) best = took;
        if (!again) break;
    }
    return rc ? -1 : (double)best * 0.5e-9;
}
/* The first two ranks of one machine, or of two machines, measure; all get it. 1: there are none. */
static int dt__tune_link(dt_comm *c, bool near, int64_t *buf, int64_t nbytes, double *alpha, double *beta)
{
    int    a = 0, b = 0, n = c->size;
    double got[2] = { 0, 0 };
    for (int k = 0; k < n * n && a == b; k++)
        if (k / n < k % n && (c->host[k / n] == c->host[k % n]) == near) a = k / n, b = k % n;
    if (a == b) return 1;
    if (c->rank == a || c->rank == b) {
        double little = dt__tune_trips(c, a, b, 8, 2000, buf), much = dt__tune_trips(c, a, b, nbytes, 20, buf);
        if (little < 0 || much < 0) return dt_comm_status_of(c);
        got[1] = much > little ? (much - little) / (double)(nbytes - 8) : 0;
        got[0] = little > 8 * got[1] ? little - 8 * got[1] : little;
    }
    int rc = dt_comm_broadcast(c, got, 2, DT_COMM_F64, a);
    *alpha = got[0] > 10 ? 10 : got[0];
    *beta = got[1] > 1e-6 ? 1e-6 : got[1];
    return rc;
}
static double dt__tune_reduce(char *buf, int64_t nbytes) /* seconds a byte */
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < 8; i++) {
        int64_t t0 = dt__comm_now();
        dt__fold(DT_COMM_F32, DT_COMM_SUM, buf, buf + nbytes / 2, nbytes / 8, false);
        int64_t took = dt__comm_now() - t0;
        if (i && took < best) best = took;
    }
    return (double)best * 1e-9 / (double)(nbytes / 2);
}
DT_API int dt_comm_tune(dt_comm *c, const char *path)
{
    enum { BYTES = 32 << 20 }; /* more than a core's own caches hold */
    if (!c) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_tune: the communicator is NULL");
    if (c->rank == 0 && (!path || !*path))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: dt_comm_tune: there is no path", c->rank);
    int64_t *buf = (int64_t *)DT_COMM_MALLOC(BYTES);
    if (!buf) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: dt_comm_tune: out of memory", c->rank);
    memset(buf, 0, BYTES);
    dt_costs t = c->engine->costs;
    int      far = dt__comm_link(c), near = c->local_size == c->size ? far : (int)DT_LINK_SHM;
    int      rc = dt_comm_barrier(c);
    if (rc >= 0 && c->size > 1) rc = dt__tune_link(c, true, buf, BYTES / 2, &t.alpha[near], &t.beta[near]);
    if (rc >= 0 && c->size > 1) rc = dt__tune_link(c, false, buf, BYTES / 8, &t.alpha[far], &t.beta[far]);
    if (rc >= 0 && c->rank == 0) t.gamma = dt__tune_reduce((char *)buf, BYTES);
    if (rc >= 0 || !c->mpi) DT_COMM_FREE(buf); /* else MPI may still write to it */
    if (rc < 0) return dt__comm_bad(rc, "dt_comm_tune: %s", c->text);
    int32_t bad = c->rank == 0 ? dt_costs_save(&t, path) : 0;
    rc = dt_comm_broadcast(c, &bad, 1, DT_COMM_I32, 0);
    if (rc) return dt__comm_bad(rc, "dt_comm_tune: %s", c->text);
    if (bad && c->rank) dt__comm_bad(bad, "dt_comm_tune: rank 0 could not write the table");
    return bad;
}
DT_API const dt_comm_opts *dt_comm_options(const dt_comm *c)
{
    static const dt_comm_opts none = DT__NO_OPTIONS;
    return c ? &c->opts : &none;
}
DT_API const char *dt_comm_where(const dt_comm *c) { return c && c->world ? c->world->where : "threads"; }

/* ==================================================================================================== >>simulator
   Every rank has a world, a control and a communicator as processes have, without threads and sockets. Events of all
   ranks are in one heap, ordered by time, then by number. A packet is a message on its way; a pipe is one direction of
   a control connection, and the two of a connection are neighbours in their array. The receiving rank looks a moment
   after something arrives, so several arrivals are one look. Time begins at a second: 0 means never in many places. */
enum { DT__SIM_WORLD = 4096, DT__SIM_BEGIN = 1000000000 };
enum { DT__SIM_LOOK = 1, DT__SIM_ARRIVE, DT__SIM_LATE, DT__SIM_TIMER, DT__SIM_FRAME, DT__SIM_ORDER }; /* events */
enum { DT__SIM_SAID = 1, DT__SIM_HELLO, DT__SIM_WELCOME, DT__SIM_REFUSED, DT__SIM_END };               /* in pipes */
enum { DT__SIM_CALL = 1, DT__SIM_PAUSE, DT__SIM_KILL };                                                /* orders */
typedef struct dt__sim_event {
    int64_t  at, first; /* first: when it was to be */
    uint64_t no;
    int32_t  kind, who; /* a rank, a pipe, an order */
} dt__sim_event;
typedef struct dt__sim_order {
    int     kind, rank;
    int64_t length;
    void  (*fn)(dt_comm *c, void *user);
    void   *user;
} dt__sim_order;
typedef struct dt__sim_packet { /* the payload follows */
    struct dt__sim_packet *next;
    int64_t                at;
    dt__frame              head;
} dt__sim_packet;
typedef struct dt__sim_link {
    dt__sim_packet *first, *last;
    int64_t         last_at;
    int             put, taken;
    bool            waiting; /* the sender, for room */
} dt__sim_link;
typedef struct dt__sim_frame {
    struct dt__sim_frame *next;
    int                   kind, value; /* hello: the kind of connection; refused: why, 0: nobody listens */
    dt__block            *b;
} dt__sim_frame;
typedef struct dt__sim_pipe {
    int            rank; /* where it leads */
    dt__conn      *conn; /* there; NULL: closed, or not yet accepted */
    dt__sim_frame *first, *last;
    int64_t        last_at;
} dt__sim_pipe;
typedef struct dt__sim_rank {
    dt__world world;
    dt_comm  *comm;
    int64_t   until, timer;            /* stopped until; when its control has something to do */
    bool      dead, looking, late;     /* a look, a look for lateness is in the heap */
    bool      stir, busy, called;      /* control has news; it is in a call; its caller, who drives it, should look */
} dt__sim_rank;
struct dt_sim {
    int            n, window;
    int64_t        now, delay;
    uint64_t       random, hash, nevents, no;
    dt__sim_event *heap;
    int64_t        nheap, heap_cap;
    dt__sim_rank  *rank;
    dt__member    *member;
    dt__sim_link **link; /* to x n + from */
    dt__sim_pipe  *pipe;
    int            npipes, pipe_cap;
    dt__sim_order *order;
    int            norders, order_cap;
    int            orders, frames, busy; /* that are to come; in pipes; ranks in calls */
    bool           running, memory;      /* memory is out */
};

static void *dt__sim_zeroed(size_t n, size_t size)
{
    void *p = DT_COMM_MALLOC(n * size);
    if (p) memset(p, 0, n * size);
    return p;
}
static uint64_t dt__sim_draw(dt_sim *s)
{
    s->random += UINT64_C(0x9e3779b97f4a7c15);
    return dt__id_mix(s->random, 0) >> 1;
}
static int64_t dt__sim_some(dt_sim *s, int64_t most) /* mostly short */
{
    double u = (double)(dt__sim_draw(s) >> 10) * 0x1p-53;
    return 1 + (int64_t)((double)most * u * u * u);
}
static void dt__sim_mix(dt_sim *s, uint64_t x) { s->hash = dt__id_mix(s->hash ^ x, x); }
static bool dt__sim_grow(dt_sim *s, void **p, int64_t *cap, int64_t n, size_t size) /* room for one behind n */
{
    if (n < *cap) return true;
    int64_t more = *cap ? 2 * *cap : 64;
    void   *q = more < INT32_MAX ? DT_COMM_REALLOC(*p, (size_t)more * size) : NULL;
    if (!q) s->memory = true;
    else *p = q, *cap = more;
    return q != NULL;
}
static bool dt__sim_before(const dt__sim_event *a, const dt__sim_event *b)
{
    if (a->at != b->at) return a->at < b->at;
    return a->first != b->first ? a->first < b->first : a->no < b->no; /* what had to wait longest */
}
static void dt__sim_push_since(dt_sim *s, int64_t at, int64_t first, int kind, int who)
{
    dt__sim_event e;
    void         *heap = s->heap;
    if (!dt__sim_grow(s, &heap, &s->heap_cap, s->nheap, sizeof e)) return;
    s->heap = (dt__sim_event *)heap;
    e.at = at > s->now ? at : s->now;
    e.first = first < e.at ? first : e.at;
    e.no = s->no++;
    e.kind = kind;
    e.who = who;
    int64_t i = s->nheap++;
    for (; i > 0 && dt__sim_before(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
}
static void dt__sim_push(dt_sim *s, int64_t at, int kind, int who)
{
    dt__sim_push_since(s, at, at > s->now ? at : s->now, kind, who);
}
static dt__sim_event dt__sim_pop(dt_sim *s)
{
    dt__sim_event top = s->heap[0], e = s->heap[--s->nheap];
    int64_t       i = 0;
    for (int64_t k = 1; k < s->nheap; i = k, k = 2 * k + 1) {
        if (k + 1 < s->nheap && dt__sim_before(&s->heap[k + 1], &s->heap[k])) k++;
        if (!dt__sim_before(&s->heap[k], &e)) break;
        s->heap[i] = s->heap[k];
    }
    s->heap[i] = e;
    return top;
}
static void dt__sim_wake(dt_sim *s, int rank, int64_t at)
{
    if (s->rank[rank].looking || s->rank[rank].dead) return;
    s->rank[rank].looking = true;
    dt__sim_push(s, at, DT__SIM_LOOK, rank);
}
static void dt__sim_stir(dt__world *w)
{
    dt__sim_rank *r = &w->sim->rank[w->rank];
    r->stir = true;
    dt__sim_wake(w->sim, w->rank, w->sim->now);
}

/* ---- the transport */
static dt__sim_link *dt__sim_link_of(dt_sim *s, int from, int to)
{
    dt__sim_link **l = &s->link[(size_t)to * (size_t)s->n + (size_t)from];
    if (!*l) *l = (dt__sim_link *)dt__sim_zeroed(1, sizeof **l);
    return *l;
}
static int dt__sim_put(dt_comm *c, dt__sim_link *l, int peer, const dt__msg *m)
{
    dt_sim         *s = c->world->sim;
    dt__sim_packet *p = l ? (dt__sim_packet *)DT_COMM_MALLOC(sizeof *p + m->n) : NULL;
    if (!p) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: the simulator is out of memory", c->rank);
    p->next = NULL;
    p->head = m->head;
    p->at = s->now + dt__sim_some(s, s->delay);
    if (p->at < l->last_at) p->at = l->last_at;
    l->last_at = p->at;
    if (m->n) memcpy(p + 1, m->ptr, m->n);
    if (l->last) l->last->next = p;
    else l->first = p;
    l->last = p;
    l->put++;
    dt__sim_push(s, p->at, DT__SIM_ARRIVE, peer);
    return 0;
}
static int dt__sim_send(dt_comm *c, int peer, dt__msg *m)
{
    dt_sim       *s = c->world->sim;
    dt__sim_link *l = dt__sim_link_of(s, c->rank, peer);
    if (!dt__comm_ok(c)) return c->status;
    if (s->rank[c->rank].until > s->now) return 0; /* stopped, and driven by its caller */
    if (!m->state) {
        int rc = dt__sim_put(c, l, peer, m);
        if (rc) return rc;
        m->state = l->put;
        m->head_done = sizeof m->head;
        m->done = m->n;
    }
    if (m->state - l->taken <= s->window) return 1;
    l->waiting = true;
    return 0;
}
static int dt__sim_recv(dt_comm *c, int peer, dt__msg *m)
{
    dt_sim         *s = c->world->sim;
    dt__sim_link   *l = s->link[(size_t)c->rank * (size_t)s->n + (size_t)peer];
    dt__sim_packet *p = l ? l->first : NULL;
    if (!dt__comm_ok(c)) return c->status;
    if (!p || p->at > s->now || s->rank[c->rank].until > s->now) return 0;
    if (!dt__frame_ok(c, peer, &m->head, &p->head)) return c->status;
    if (m->fold) dt__fold(m->dtype, m->op, m->ptr, p + 1, (int64_t)(m->n / dt__comm_size_of(m->dtype)), m->left);
    else if (m->n) memcpy(m->ptr, p + 1, m->n);
    m->head_done = sizeof m->head;
    m->done = m->n;
    dt__sim_mix(s, (uint64_t)peer << 32 | (uint64_t)c->rank);
    l->first = p->next;
    if (!l->first) l->last = NULL;
    l->taken++;
    DT_COMM_FREE(p);
    if (l->waiting) dt__sim_push(s, s->now + dt__sim_some(s, s->delay), DT__SIM_ARRIVE, peer);
    l->waiting = false;
    return 1;
}
static void dt__sim_events(dt_sim *s, int64_t until, int rank);
static void dt__sim_wait(dt_comm *c, double seconds) /* a blocking call runs the simulator */
{
    dt_sim *s = c->world->sim;
    if (s->memory) dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: the simulator is out of memory", c->rank);
    else if (s->running)
        dt__comm_fail(c, DT_COMM_ERR_STATE, c->rank,
                      "rank %d waits in a function of dt_sim_at, which may only start calls", c->rank);
    else dt__sim_events(s, s->now + (int64_t)(seconds * 1e9), c->rank);
}
static const dt__transport dt__transport_sim = { "sim", dt__sim_send, dt__sim_recv, dt__sim_wait, NULL };

/* ---- control connections */
static int dt__sim_pipes(dt_sim *s, int from, int to) /* the one back to `from`; the next one leads to `to` */
{
    int64_t cap = s->pipe_cap;
    void   *p = s->pipe;
    if (!dt__sim_grow(s, &p, &cap, s->npipes + 1, sizeof *s->pipe)) return -1;
    s->pipe = (dt__sim_pipe *)p;
    s->pipe_cap = (int)cap;
    memset(s->pipe + s->npipes, 0, 2 * sizeof *s->pipe);
    s->pipe[s->npipes].rank = from;
    s->pipe[s->npipes + 1].rank = to;
    s->npipes += 2;
    return s->npipes - 2;
}
static void dt__sim_say(dt_sim *s, int pipe, int kind, int value, dt__block *b) /* takes the reference */
{
    dt__sim_pipe  *p = &s->pipe[pipe];
    dt__sim_frame *f = (dt__sim_frame *)dt__sim_zeroed(1, sizeof *f);
    if (!f) {
        s->memory = true;
        dt__block_unref(b);
        return;
    }
    f->kind = kind;
    f->value = value;
    f->b = b;
    if (p->last) p->last->next = f;
    else p->first = f;
    p->last = f;
    int64_t at = s->now + dt__sim_some(s, s->delay);
    if (at > p->last_at) p->last_at = at;
    s->frames++;
    dt__sim_push(s, p->last_at, DT__SIM_FRAME, pipe);
}
static dt__conn *dt__sim_conn(dt__world *w, int kind, int peer, int pipe)
{
    dt__conn *k = pipe < 0 ? NULL : dt__conn_new(w, -1, kind, peer);
    if (!k) {
        w->sim->memory = true;
        return NULL;
    }
    k->local = true; /* there is no socket to tune */
    k->slot = pipe;
    w->sim->pipe[pipe].conn = k;
    return k;
}
static dt__conn *dt__sim_dial(dt__world *w, int peer, int kind, dt__block *later)
{
    int       pipe = dt__sim_pipes(w->sim, w->rank, peer);
    dt__conn *k = dt__sim_conn(w, kind, peer, pipe);
    if (!k) return NULL;
    k->shaking = true;
    k->deadline = k->since + 1000000000;
    if (later) later->refs++;
    k->later = later;
    dt__sim_say(w->sim, pipe + 1, DT__SIM_HELLO, kind, NULL);
    return k;
}
static void dt__sim_accept(dt__world *w, int pipe, int kind)
{
    dt_sim   *s = w->sim;
    char      text[184];
    dt__conn *k = dt__sim_conn(w, 0, -1, pipe);
    if (!k) return;
    k->shake.server = true;
    k->shake.c.version = DT__SHAKE_VERSION;
    k->shake.c.epoch = w->epoch;
    k->shake.c.world = w->size;
    k->shake.c.rank = s->pipe[pipe ^ 1].rank;
    k->shake.c.to = w->rank;
    k->shake.c.kind = kind;
    int status = dt__control_admit(w, k, text, sizeof text);
    if (status) {
        dt__sim_say(s, pipe ^ 1, DT__SIM_REFUSED, status,
                    dt__block_new(DT__C_REFUSED, w->rank, text, strlen(text) + 1, NULL, 0));
        k->broken = true;
        return;
    }
    k->kind = kind;
    k->peer = k->shake.c.rank;
    dt__conn_shaken(w, k);
    dt__sim_say(s, pipe ^ 1, DT__SIM_WELCOME, 0, NULL);
}
static void dt__sim_hear(dt__world *w, dt__conn *k, const dt__block *b)
{
    const dt__chead *h = (const dt__chead *)(const void *)(b + 1);
    if (h->nbytes > k->body_cap) {
        uint8_t *body = (uint8_t *)DT_COMM_REALLOC(k->body, h->nbytes);
        if (!body) {
            w->sim->memory = true;
            return;
        }
        k->body = body;
        k->body_cap = h->nbytes;
    }
    k->head = *h;
    if (h->nbytes) memcpy(k->body, h + 1, h->nbytes);
    if (!dt__control_frame(w, k)) dt__conn_lost(w, k, "it sent a broken frame");
}
static void dt__sim_frame_event(dt_sim *s, int pipe)
{
    dt__sim_pipe  *p = &s->pipe[pipe];
    dt__sim_rank  *r = &s->rank[p->rank];
    dt__sim_frame *f = p->first;
    dt__conn      *k = p->conn;
    p->first = f->next;
    if (!p->first) p->last = NULL;
    s->frames--;
    r->stir = true;
    if (r->dead) {
        if (f->kind == DT__SIM_HELLO) dt__sim_say(s, pipe ^ 1, DT__SIM_REFUSED, 0, NULL);
    } else if (f->kind == DT__SIM_HELLO) dt__sim_accept(&r->world, pipe, f->value);
    else if (k && f->kind == DT__SIM_SAID) dt__sim_hear(&r->world, k, f->b);
    else if (k && f->kind == DT__SIM_WELCOME) dt__conn_shaken(&r->world, k);
    else if (k && k->shaking) {
        k->broken = true;
        k->refused = f->kind == DT__SIM_REFUSED && !f->value;
        if (f->kind == DT__SIM_REFUSED && f->value == DT_COMM_ERR_PEER && f->b && k->kind == DT__KIND_TREE)
            dt__control_expelled(&r->world, (const char *)dt__block_body(f->b));
    } else if (k) dt__conn_lost(&r->world, k, "its connection ended");
    dt__block_unref(f->b);
    DT_COMM_FREE(f);
}
/* What control has to say goes out, what is broken is closed. */
static void dt__sim_settle(dt_sim *s, dt__sim_rank *r)
{
    dt__control *ctl = r->world.control;
    for (bool more = true; more;) {
        more = false;
        for (dt__conn *k = ctl->conns; k; k = k->next) {
            while (k->out && !k->shaking) {
                dt__queued *q = k->out;
                k->out = q->next;
                if (!k->out) k->last = NULL;
                if (k->slot >= 0) dt__sim_say(s, k->slot ^ 1, DT__SIM_SAID, 0, q->b);
                else dt__block_unref(q->b);
                DT_COMM_FREE(q);
            }
            if (k->closing && !k->shaking) k->broken = true;
            if (!k->broken || k->slot < 0) continue;
            dt__sim_say(s, k->slot ^ 1, DT__SIM_END, 0, NULL);
            s->pipe[k->slot].conn = NULL;
            k->slot = -1;
            more = true;
        }
        if (more) dt__control_reap(&r->world);
    }
    int64_t at = dt__control_next(&r->world, s->now);
    if (r->timer > s->now && r->timer <= at) return;
    r->timer = at > s->now ? at : s->now + 1;
    dt__sim_push(s, r->timer, DT__SIM_TIMER, r->world.rank);
}

/* ---- events */
static void dt__sim_after(dt_sim *s, dt__sim_rank *r)
{
    const dt_work *w = r->comm->engine->head;
    bool           busy = w && !r->dead;
    if (r->stir && !r->dead) dt__sim_settle(s, r);
    r->stir = false;
    s->busy += (int)busy - (int)r->busy;
    r->busy = busy;
    if (!busy || r->late) return;
    int64_t late = (int64_t)((r->comm->timeout + (w->asked ? 2 : 0)) * 1e9); /* see dt__stuck */
    if (!w->pair && !w->watched) late = dt__watch_after(r->comm);
    r->late = true;
    dt__sim_push(s, w->moved + late + 1000, DT__SIM_LATE, r->world.rank);
}
static void dt__sim_look(dt_sim *s, dt__sim_rank *r)
{
    struct dt__engine *e = r->comm->engine;
    pthread_mutex_lock(&e->lock);
    if (e->driving) r->called = true;
    else dt__engine_look(r->comm);
    pthread_mutex_unlock(&e->lock);
    dt__sim_after(s, r);
}
static void dt__sim_die(dt_sim *s, dt__sim_rank *r)
{
    int  me = r->world.rank;
    char text[80];
    if (r->dead) return;
    r->dead = true;
    for (dt__conn *k = r->world.control->conns; k; k = k->next)
        if (k->slot >= 0) dt__sim_say(s, k->slot ^ 1, DT__SIM_END, 0, NULL);
    for (int i = 0; i < s->n; i++) { /* some of what it sent last is lost */
        dt__sim_link *l = s->link[(size_t)i * (size_t)s->n + (size_t)me];
        if (!l || dt__sim_draw(s) & 1) continue;
        dt__sim_packet **p = &l->first, *last = NULL;
        while (*p && ((*p)->at <= s->now || dt__sim_draw(s) & 1)) last = *p, p = &last->next;
        for (dt__sim_packet *q = *p, *next; q; q = next) {
            next = q->next;
            DT_COMM_FREE(q);
        }
        *p = NULL;
        l->last = last;
    }
    snprintf(text, sizeof text, "rank %d was killed in the simulator", me);
    dt__comm_failed(r->comm, DT_COMM_ERR_PEER, me, text);
    dt__sim_look(s, r);
}
static void dt__sim_order_event(dt_sim *s, const dt__sim_order *o)
{
    dt__sim_rank *r = &s->rank[o->rank];
    s->orders--;
    if (o->kind == DT__SIM_KILL) dt__sim_die(s, r);
    else if (r->dead) return;
    else if (o->kind == DT__SIM_PAUSE) {
        if (s->now + o->length > r->until) r->until = s->now + o->length;
    } else {
        o->fn(r->comm, o->user);
        dt__sim_look(s, r);
    }
}
static void dt__sim_event_do(dt_sim *s, dt__sim_event e)
{
    int           kind = e.kind == DT__SIM_ORDER ? s->order[e.who].kind : 0;
    int           rank = e.kind == DT__SIM_FRAME ? s->pipe[e.who].rank : kind ? s->order[e.who].rank : e.who;
    dt__sim_rank *r = &s->rank[rank];
    s->now = e.at;
    s->nevents++;
    dt__sim_mix(s, (uint64_t)e.at);
    dt__sim_mix(s, (uint64_t)e.kind << 32 | (uint64_t)(uint32_t)e.who);
    if (r->until > s->now && !r->dead && kind != DT__SIM_KILL && kind != DT__SIM_PAUSE) {
        int64_t at = r->until + (e.kind != DT__SIM_FRAME); /* when it goes on; what it was told is heard first */
        dt__sim_push_since(s, at, e.first, e.kind, e.who); /* its calls stay in order, however often it is stopped */
        if (e.kind == DT__SIM_TIMER) r->timer = at;
        return;
    }
    if (e.kind == DT__SIM_ORDER) dt__sim_order_event(s, &s->order[e.who]);
    else if (e.kind == DT__SIM_FRAME) {
        dt__sim_frame_event(s, e.who);
        dt__sim_after(s, r);
        if (!dt__comm_ok(r->comm)) dt__sim_wake(s, rank, s->now);
    } else if (r->dead) return;
    else if (e.kind == DT__SIM_ARRIVE) dt__sim_wake(s, rank, s->now + dt__sim_some(s, s->delay / 2));
    else if (e.kind == DT__SIM_TIMER) {
        if (r->timer != e.at) return; /* another one is set */
        r->timer = 0;
        r->stir = true;
        dt__control_timers(&r->world, s->now);
        dt__sim_after(s, r);
    } else {
        if (e.kind == DT__SIM_LOOK) r->looking = false;
        else r->late = false;
        dt__sim_look(s, r);
    }
}
/* rank: one whose caller waits, or -1: until all is quiet. */
static void dt__sim_events(dt_sim *s, int64_t until, int rank)
{
    const int64_t *clock = dt__comm_clock;
    dt__comm_clock = &s->now;
    s->running = true;
    for (int i = 0; i < s->n; i++) { /* calls that were started meanwhile */
        dt__sim_rank *r = &s->rank[i];
        if (!r->comm->engine->head || r->busy || r->dead) continue;
        s->busy++;
        r->busy = true;
        dt__sim_wake(s, i, s->now + dt__sim_some(s, s->delay / 2));
    }
    if (rank >= 0) s->rank[rank].called = false;
    while (!s->memory && s->nheap && s->heap[0].at <= until) {
        if (rank < 0 ? !s->busy && !s->orders && !s->frames : s->rank[rank].called) break;
        dt__sim_event_do(s, dt__sim_pop(s));
    }
    if (s->now < until && (rank < 0 ? s->busy || s->orders || s->frames : !s->rank[rank].called)) s->now = until;
    s->running = false;
    dt__comm_clock = clock;
}

/* ---- the calls */
static bool dt__sim_rank_new(dt_sim *s, int i, const dt_sim_opts *o)
{
    dt__sim_rank *r = &s->rank[i];
    dt__world    *w = &r->world;
    static dt_comm_opts none; /* all 0 */
    dt_comm_opts  co = none;
    co.timeout = o->timeout > 0 ? o->timeout : 30;
    co.algo = o->algo ? o->algo : "auto"; /* the environment says nothing here */
    co.no_thread = true;
    w->refs = 1;
    w->rank = i;
    w->size = s->n;
    w->timeout = co.timeout;
    w->join_timeout = 120;
    w->member = s->member;
    w->listen_fd = w->unix_fd = w->ticket_fd = w->register_fd = -1;
    w->joined = true;
    w->sim = s;
    w->clock = &s->now;
    pthread_mutex_init(&w->lock, NULL);
    snprintf(w->where, sizeof w->where, "the simulator");
    r->comm = dt__comm_new(i, s->n, &co);
    if (!r->comm) return false;
    close(r->comm->wake_fd); /* nobody sleeps on it, and a thousand are many */
    r->comm->wake_fd = -1;
    if (dt__control_new(w)) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory or descriptors");
        return false;
    }
    dt__close(&w->control->wake);
    w->control->started = w->control->complete = true;
    w->control->note_at = s->now + 1 + (int64_t)(dt__sim_draw(s) % 250000000);
    r->comm->world = w;
    r->comm->id = 1;
    r->comm->across = s->n > 1 ? &dt__transport_sim : NULL;
    r->comm->note = r->comm->own_note = (dt__note *)dt__sim_zeroed(DT__NOTES, sizeof *r->comm->own_note);
    if (!r->comm->note) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
        return false;
    }
    r->comm->local_size = 0;
    for (int k = 0; k < s->n; k++) {
        r->comm->host[k] = s->member[k].host;
        if (s->member[k].host != s->member[i].host) continue;
        if (k == i) r->comm->local_rank = r->comm->local_size;
        r->comm->local_size++;
    }
    dt__world_add(w, r->comm);
    return true;
}
static bool dt__sim_tree(dt_sim *s) /* the control connections, as joining leaves them */
{
    for (int i = 1; i < s->n; i++) {
        int       up = (i - 1) / DT__TREE, pipe = dt__sim_pipes(s, i, up);
        dt__conn *below = dt__sim_conn(&s->rank[i].world, DT__KIND_TREE, up, pipe);
        dt__conn *above = below ? dt__sim_conn(&s->rank[up].world, DT__KIND_TREE, i, pipe + 1) : NULL;
        if (!above) return false;
        below->ready = above->ready = true;
        s->rank[i].world.control->parent = below;
    }
    return true;
}
DT_API dt_sim *dt_sim_new_with(dt_sim_opts o)
{
    int n = o.world;
    if (n < 1 || n > DT__SIM_WORLD || !(o.timeout >= 0) || !(o.delay >= 0) || o.delay > 1e6) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_new: world %d, timeout %g, delay %g", n, o.timeout, o.delay);
        return NULL;
    }
    dt_sim *s = (dt_sim *)dt__sim_zeroed(1, sizeof *s);
    if (s) {
        s->n = n;
        s->rank = (dt__sim_rank *)dt__sim_zeroed((size_t)n, sizeof *s->rank);
        s->member = (dt__member *)dt__sim_zeroed((size_t)n, sizeof *s->member);
        s->link = (dt__sim_link **)dt__sim_zeroed((size_t)n * (size_t)n, sizeof *s->link);
    }
    if (!s || !s->rank || !s->member || !s->link) {
        dt_sim_free(s);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
        return NULL;
    }
    const int64_t *clock = dt__comm_clock;
    bool           ok = true;
    dt__comm_clock = &s->now;
    s->now = DT__SIM_BEGIN;
    s->random = o.seed * UINT64_C(0xd1342543de82ef95) + 1;
    s->delay = (int64_t)((o.delay > 0 ? o.delay : 1e-3) * 1e9);
    s->window = o.window < 0 ? 0 : o.window ? o.window : (int)(dt__sim_draw(s) % 4) * (int)(dt__sim_draw(s) % 4);
    dt__plan_machines hosts;
    ok = dt__plan_machines_make(&hosts, n, o.host);
    for (int i = 0; ok && i < n; i++) {
        dt__member *m = &s->member[i];
        m->host = hosts.of[i];
        m->pid = 1000 + i;
        snprintf(m->host_name, sizeof m->host_name, "host%d", m->host);
    }
    if (ok) dt__plan_machines_free(&hosts);
    else dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
    for (int i = 0; ok && i < n; i++) ok = dt__sim_rank_new(s, i, &o);
    if (ok && !dt__sim_tree(s)) {
        ok = false;
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
    }
    dt__comm_clock = clock;
    if (ok) return s;
    dt_sim_free(s);
    return NULL;
}
DT_API void dt_sim_free(dt_sim *s)
{
    if (!s) return;
    for (int i = 0; s->rank && i < s->n; i++) {
        dt__sim_rank *r = &s->rank[i];
        dt__comm_delete(r->comm);
        if (r->world.control) dt__control_free(&r->world);
        if (r->world.sim) pthread_mutex_destroy(&r->world.lock);
    }
    for (size_t i = 0; s->link && i < (size_t)s->n * (size_t)s->n; i++) {
        if (!s->link[i]) continue;
        for (dt__sim_packet *p = s->link[i]->first, *next; p; p = next) {
            next = p->next;
            DT_COMM_FREE(p);
        }
        DT_COMM_FREE(s->link[i]);
    }
    for (int i = 0; i < s->npipes; i++)
        for (dt__sim_frame *f = s->pipe[i].first, *next; f; f = next) {
            next = f->next;
            dt__block_unref(f->b);
            DT_COMM_FREE(f);
        }
    DT_COMM_FREE(s->pipe);
    DT_COMM_FREE(s->order);
    DT_COMM_FREE(s->heap);
    DT_COMM_FREE(s->link);
    DT_COMM_FREE(s->member);
    DT_COMM_FREE(s->rank);
    DT_COMM_FREE(s);
}
DT_API dt_comm *dt_sim_comm(dt_sim *s, int rank) { return s && rank >= 0 && rank < s->n ? s->rank[rank].comm : NULL; }
static int dt__sim_order_add(dt_sim *s, int kind, int rank, double when, double length,
                             void (*fn)(dt_comm *c, void *user), void *user)
{
    if (!s || rank < 0 || rank >= s->n || !(when >= 0) || !(length >= 0) || when > 1e9 || length > 1e9)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim: rank %d at %g s for %g s", rank, when, length);
    int64_t cap = s->order_cap;
    void   *p = s->order;
    if (!dt__sim_grow(s, &p, &cap, s->norders, sizeof *s->order))
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim: out of memory");
    s->order = (dt__sim_order *)p;
    s->order_cap = (int)cap;
    dt__sim_order *o = &s->order[s->norders];
    o->kind = kind;
    o->rank = rank;
    o->length = (int64_t)(length * 1e9);
    o->fn = fn;
    o->user = user;
    s->orders++;
    dt__sim_push(s, DT__SIM_BEGIN + (int64_t)(when * 1e9), DT__SIM_ORDER, s->norders++);
    return s->memory ? dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim: out of memory") : 0;
}
DT_API int dt_sim_at(dt_sim *s, int rank, double when, void (*fn)(dt_comm *c, void *user), void *user)
{
    if (!fn) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_at: there is no function");
    return dt__sim_order_add(s, DT__SIM_CALL, rank, when, 0, fn, user);
}
DT_API int dt_sim_pause(dt_sim *s, int rank, double when, double seconds)
{
    return dt__sim_order_add(s, DT__SIM_PAUSE, rank, when, seconds, NULL, NULL);
}
DT_API int dt_sim_kill(dt_sim *s, int rank, double when)
{
    return dt__sim_order_add(s, DT__SIM_KILL, rank, when, 0, NULL, NULL);
}
DT_API int dt_sim_run(dt_sim *s, double until)
{
    if (!s || s->running || !(until >= 0))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_run: until %g, or from a function of dt_sim_at", until);
    dt__sim_events(s, DT__SIM_BEGIN + (int64_t)((until < 1e9 ? until : 1e9) * 1e9), -1);
    return s->memory ? dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_run: out of memory") : s->busy;
}
DT_API double   dt_sim_now(const dt_sim *s) { return s ? 1e-9 * (double)(s->now - DT__SIM_BEGIN) : 0; }
DT_API uint64_t dt_sim_hash(const dt_sim *s, int64_t *events)
{
    if (events) *events = s ? (int64_t)s->nevents : 0;
    return s ? s->hash : 0;
}

/* ==================================================================================================== >>predicting
   The plans of all ranks would not fit into memory: a run is one or two steps that come again and again, to a peer that
   moves on evenly. A rank has one message under way at a time, its first send of the round that is not over; the heap
   holds these messages by the time at which both sides are there. A receive that is posted is a byte in a table of
   pairs. Messages in a shared thing are mixed: each begins at once, and is through when all that came before it is. */
enum { DT__PRED_WORLD = 8192, DT__PRED_FOLD = 0x80 };
typedef struct dt__pred_run {
    int32_t count, group; /* group: steps in it, 1 or 2, of one round */
    int32_t round, by;    /* rounds from one to the next */
    int32_t kind[2], peer[2], move[2];
    int64_t n[2];
} dt__pred_run;
typedef struct dt__pred_at { /* a place in the steps of a rank */
    int64_t run;
    int32_t i, j;
} dt__pred_at;
typedef struct dt__pred_rank {
    dt__pred_at at, out;        /* the end of its round; its send under way */
    int64_t     last;           /* its last run, and one */
    double      began, end;     /* of its round: when; as far as it is known */
    double      cpu, in;        /* free from then on: reducing, receiving */
    double      ready;          /* to send its message */
    int64_t     n;              /* bytes of it */
    int32_t     peer, left;     /* of it, -1: none; messages of the round to come */
    bool        waiting, fold;  /* for the receive; it is reduced there */
} dt__pred_rank;
typedef struct dt__pred_key {
    double  t;
    int32_t rank;
} dt__pred_key;
typedef struct dt__pred {
    int            n, nhosts, nswitches;
    double         a[2], b[2], gamma, nic, fabric, trunk; /* near and far */
    int            size;
    int           *host, *sw;   /* of ranks; of machines */
    dt__pred_run  *run;
    int64_t        nruns, cap;
    dt__pred_rank *rank;
    uint8_t       *open;        /* receives posted: to x n + from */
    dt__pred_key  *heap;
    int            nheap;
    double        *free_at;     /* of cards out and in, of switches, of trunks up and down */
    int64_t       *out, *through; /* bytes of cards, of switches */
    int            meeting;     /* ranks in a round of SHARE */
    double         met;
    int64_t        met_n, messages, bytes;
    double         seconds;
    int            over;        /* ranks that are done */
} dt__pred;

static bool dt__pred_same(const dt__pred *d, const dt_plan_step *a, const dt_plan_step *b, int move)
{
    return a->kind == b->kind && a->n == b->n && (a->peer + (int64_t)move + d->n) % d->n == b->peer;
}
static int dt__pred_move(const dt_plan_step *a, const dt_plan_step *b, int n) /* the shorter way round */
{
    int m = a->kind > DT_STEP_FOLD ? 0 : b->peer - a->peer;
    return m > n / 2 ? m - n : m < -(n / 2) ? m + n : m;
}
/* How many times the g steps at s come, one behind the other; at most `most` steps. */
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
static void dt__pred_meet(dt__pred *d, int from, int to, double t) /* both sides are there */
{
    uint8_t *o = &d->open[(size_t)to * (size_t)d->n + (size_t)from];
    d->rank[from].fold = (*o & DT__PRED_FOLD) != 0;
    if ((--*o & (DT__PRED_FOLD - 1)) == 0) *o = 0;
    d->rank[from].waiting = false;
    dt__pred_push(d, from, t);
}
/* The next send of the round, at time t. */
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
/* A round of SHARE, which is of one machine: all meet, read the parts of all, write them to all, and meet again. */
static void dt__pred_share(dt__pred *d, double t, int64_t n)
{
    if (t > d->met) d->met = t;
    d->met_n += n;
    if (++d->meeting < d->n) return;
    double all = (double)d->met_n * (d->n - 1) / d->n;
    t = d->met + 2 * dt__plan_log2_up(d->n) * d->a[0] + all * (d->gamma + d->b[0]);
    d->meeting = 0;
    d->met_n = 0;
    d->met = 0;
    for (int i = 0; i < d->n; i++) dt__pred_enter(d, i, t);
}
/* A rank begins its next round, and those after it that are its own alone. */
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
/* n bytes enter a shared thing at t, among those of other messages: when the last one is through. */
static double dt__pred_through(double *free_at, double t, double nbytes, double per)
{
    return *free_at = (*free_at > t ? *free_at : t) + nbytes * per;
}
/* The message of a rank goes at t: when it is there. */
static double dt__pred_pass(dt__pred *d, int from, double t)
{
    dt__pred_rank *r = &d->rank[from], *q = &d->rank[r->peer];
    int            h = d->host[from], g = d->host[r->peer], far = h != g, x = d->sw[h], y = d->sw[g];
    double         n = (double)r->n, slow = 0, *f = d->free_at; /* cards, cards in, switches, trunks, trunks in */
    q->in = (q->in > t ? q->in : t) + d->a[far] + n * d->b[far];
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
    return fmax(q->in, slow + d->a[far]);
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
static const char *dt__pred_cluster(dt__pred *d, const dt_plan_opts *o, const dt_cluster *k) /* NULL: it is good */
{
    dt_costs c = k->costs;
    bool     none = c.gamma == 0;
    int      near = k->near, far = k->far;
    for (int i = 0; i < (int)DT_LINK_COUNT; i++) {
        if (!(c.alpha[i] >= 0) || !(c.beta[i] >= 0) || !(c.gamma >= 0)) return "a cost is negative";
        none = none && c.alpha[i] == 0 && c.beta[i] == 0;
    }
    if (none) c = dt_costs_default();
    if (!near && !far) near = DT_LINK_SHM, far = DT_LINK_NET;
    if (near < 0 || near >= (int)DT_LINK_COUNT || far < 0 || far >= (int)DT_LINK_COUNT) return "there is no such link";
    if (!(k->fabric >= 0) || !(k->trunk >= 0) || k->nic != k->nic) return "a bandwidth is negative";
    if (k->element < 0 || k->element > 64) return "an element has 1 to 64 bytes";
    d->a[0] = c.alpha[near], d->b[0] = c.beta[near];
    d->a[1] = c.alpha[far], d->b[1] = c.beta[far];
    d->gamma = c.gamma;
    d->nic = k->nic < 0 ? 0 : k->nic > 0 ? k->nic : c.beta[far];
    d->fabric = k->fabric;
    d->trunk = k->trunk;
    d->size = k->element ? k->element : 4;
    d->nhosts = d->nswitches = 1;
    for (int i = 0; i < o->world; i++) {
        int h = o->host ? o->host[i] : 0;
        if (h < 0 || h >= o->world) return "machines are numbers from 0 to world - 1 here";
        if (h >= d->nhosts) d->nhosts = h + 1;
    }
    for (int i = 0; k->switch_of && i < d->nhosts; i++) {
        if (k->switch_of[i] < 0 || k->switch_of[i] >= o->world) return "switches are numbers from 0 to world - 1 here";
        if (k->switch_of[i] >= d->nswitches) d->nswitches = k->switch_of[i] + 1;
    }
    return NULL;
}
static bool dt__pred_alloc(dt__pred *d, const dt_plan_opts *o, const dt_cluster *k)
{
    size_t n = (size_t)d->n, things = 2 * (size_t)d->nhosts + 3 * (size_t)d->nswitches;
    d->rank = (dt__pred_rank *)dt__sim_zeroed(n, sizeof *d->rank);
    d->open = (uint8_t *)dt__sim_zeroed(n, n);
    d->heap = (dt__pred_key *)dt__sim_zeroed(n + 1, sizeof *d->heap);
    d->host = (int *)dt__sim_zeroed(n + (size_t)d->nhosts, sizeof *d->host);
    d->free_at = (double *)dt__sim_zeroed(things, sizeof *d->free_at);
    d->out = (int64_t *)dt__sim_zeroed((size_t)(d->nhosts + d->nswitches), sizeof *d->out);
    if (!d->rank || !d->open || !d->heap || !d->host || !d->free_at || !d->out) return false;
    d->sw = d->host + d->n;
    d->through = d->out + d->nhosts;
    for (int i = 0; i < d->n; i++) d->host[i] = o->host ? o->host[i] : 0;
    for (int i = 0; i < d->nhosts; i++) d->sw[i] = k->switch_of ? k->switch_of[i] : 0;
    return true;
}
DT_API int dt_sim_predict(dt_sim_cost *out, dt_coll coll, dt_algo algo, const dt_plan_opts *o, const dt_cluster *k,
                          const char **why)
{
    static const char *const memory = "memory is out";
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
        bool     whole = coll == DT_COLL_ALLREDUCE || coll == DT_COLL_BROADCAST || coll == DT_COLL_REDUCE;
        c.alpha[DT_LINK_SHM] = d.a[0], c.beta[DT_LINK_SHM] = d.b[0];
        c.alpha[DT_LINK_NET] = d.a[1], c.beta[DT_LINK_NET] = d.b[1];
        c.gamma = d.gamma;
        for (int i = 0; i < o->world; i++) all += o->counts && coll != DT_COLL_ALLTOALL ? o->counts[i] : o->count;
        algo = dt_plan_choose(&c, coll, o->world, o->host, link, (whole ? o->count : all) * d.size, &segment);
        mine.segment = segment / d.size;
    }
    if (!text && !dt__pred_alloc(&d, o, k)) text = memory;
    for (int i = 0; !text && i < o->world; i++) {
        mine.rank = i;
        d.rank[i].at.run = d.nruns;
        d.rank[i].peer = -1;
        code = dt_plan_make(&p, coll, algo, &mine, &text);
        if (!code && p.count > INT64_MAX / 64 / o->world) text = "the vector is too long", code = -1;
        else if (!code && !dt__pred_pack(&d, &p)) text = memory;
        d.rank[i].last = d.nruns;
    }
    if (text == memory) code = -2;
    else if (!text && !dt__pred_events(&d)) text = "the plan does not end", code = -1;
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

#ifdef __cplusplus
}
#endif
#endif /* DT_COMM_IMPLEMENTATION */
