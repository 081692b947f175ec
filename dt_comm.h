/* dt_comm.h - v0.2.0 - ranks, transports and collectives that are proved, for any C program; no tensor in it */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_comm.h"
    In every other file that uses it:           #include "dt_comm.h"

    Link with -lpthread -lm. dt_net.h (how ranks find each other), dt_msg.h (messages), dt_plan.h (the algorithms) and
    dt_base.h must lie beside it; no other header of dt is needed. For data over MPI include dt_mpi.h.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

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

    No encryption and no checksum of frames: joining is authenticated, after that the network is trusted. No RDMA.

CONTENTS

    >>communicators  making, splitting, freeing them
    >>asking         rank, size, machines
    >>collectives    collective calls
    >>sending        messages, requests and replies
    >>work           asynchronous calls
    >>memory         buffers that ranks of a machine share
    >>watching       statistics, history, stragglers, the choice of algorithms
    >>codecs         vectors of floats in fewer bytes: f16, bf16, top-k, random-k, sign, 1-bit, QSGD; error feedback
    >>inside         what the headers above use of this one
    >>reducing       implementation from here: sums and the other reductions, by dtype
    >>encoding       the codecs
    >>engine         running plans, work in order, waiting
    >>api            the calls

ERRORS

    No call aborts, exits or prints. A call returns 0 or a negative dt_comm_status; dt_comm_error(c) is the message,
    which names ranks, calls and what to do. The first failure of a communicator is the failure of all its ranks: each
    gets the same status and message within a second, and every later call on the communicator returns this status at
    once. The communicator can still be freed.

THREADS

    A communicator is used by one thread at a time. Collectives are matched by the order in which they are started, which
    must be the same on all ranks. Different communicators may be used by different threads. The calls of >>asking and
    >>watching (but not dt_comm_tune), dt_comm_error, dt_comm_get_status, dt_comm_failed_rank and dt_comm_abort may come
    from any thread at any time while the communicator exists.

MACROS

    DT_COMM_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION
    DT_COMM_MALLOC, DT_COMM_REALLOC, DT_COMM_FREE  memory of communicators (define all three or none); default malloc

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_COMM_IMPLEMENTATION)
#define DT_COMM_IMPLEMENTATION
#endif
#include "dt_plan.h"
#include "dt_msg.h"

#ifndef DT_COMM_H_INCLUDED
#define DT_COMM_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_comm.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>communicators */
/* Why the communicator failed. c NULL: why the last call of this thread without a communicator failed, such as
   dt_comm_init. NULL if there was no failure. */
DT_API const char *dt_comm_error(const dt_comm *c);
DT_API int         dt_comm_get_status(const dt_comm *c);  /* 0 or a dt_comm_status; c NULL: as dt_comm_error */
DT_API int         dt_comm_failed_rank(const dt_comm *c); /* the rank at fault; -1 if it is not known */

DT_API dt_comm *dt_comm_init_with(dt_comm_opts o DT_OPT0(dt_comm_opts)); /* NULL on error: see dt_comm_error(NULL) */
#ifdef DT__LIT
#define dt_comm_init(...) dt_comm_init_with(DT__LIT(dt_comm_opts){ .dt__first = 0, __VA_ARGS__ })
#else /* C++17: options as a struct, or none */
#define dt_comm_init dt_comm_init_with
#endif
/* Waits until all ranks call it, at most for the timeout, and frees the communicator. Returns its status. */
DT_API int      dt_comm_free(dt_comm *c);
/* n ranks that are threads of this process: out[i] is the communicator of rank i, for one thread each. */
DT_API int      dt_comm_threads_with(int n, dt_comm **out, dt_comm_opts o DT_OPT0(dt_comm_opts));
#ifdef DT__LIT
#define dt_comm_threads(n, out, ...) dt_comm_threads_with(n, out, DT__LIT(dt_comm_opts){ .dt__first = 0, __VA_ARGS__ })
#else /* C++17: options as a struct, or none */
#define dt_comm_threads dt_comm_threads_with
#endif
/* Collective: the ranks of one colour get a communicator, in the order of key, then rank. A rank with a negative colour
   gets NULL in *out. */
DT_API int      dt_comm_split(dt_comm *c, int colour, int key, dt_comm **out);
DT_API int      dt_comm_dup(dt_comm *c, dt_comm **out);
DT_API void     dt_comm_abort(dt_comm *c, const char *why); /* fails on every rank with this message */
/* After a failure: the surviving ranks that call this within c's timeout agree on their members and get a communicator of
   them, in the order of their ranks. c can be freed before or after. All of them get the same members, or an error (see
   dt_comm_error(NULL)).
     - A rank that dies during the call is left out, too.
     - A rank that is stopped or does not answer is expelled: when it continues, all its calls fail.
     - A rank that calls too late gets an error from this call.
     - If half of the ranks or more are unreachable (their machines do not answer, and it is not known that they died),
       the call fails, because those ranks may do the same without this half.
   It takes milliseconds if ranks died, and at most a few times the timeout. Over MPI it fails: MPI ends the job. */
DT_API int      dt_comm_shrink(dt_comm *c, dt_comm **out);

/* Tolerant communicators (.tolerant of dt_comm_init and dt_comm_threads): for groups that survive their members, such as task
   farms and servers. The death or departure of a member is an event, and not a failure:
     - A message to or from this member ends with DT_COMM_ERR_PEER; dt_comm_error(NULL) names the member and says why. What it
       has sent whole can still be received, also afterwards. A receive with DT_ANY goes on waiting, unless a large message of
       this member was already arriving in its buffer.
     - All other messages go on. A message that fails for another reason (a timeout, a length or dtype that its receive does
       not expect) ends alone with its status. A message that did not suit its receive stays for another one.
     - Collectives end with DT_COMM_ERR_PEER on all members, also running ones: dt_comm_shrink makes a communicator of the rest,
       which is tolerant, too. After a timeout or a mismatch of a collective the same is true with that status.
     - dt_comm_free does not wait for the others, only until what was sent has left, at most 0.4 s: the member leaves, which is
       an event for the others.
     - dt_comm_abort, and a failure from which a member cannot go on (such as no memory), fails the communicator on this member
       only; for the others it has died. A member that breaks the protocol is expelled: its calls fail, too.
   A stopped member is not dead: messages with it time out. Large messages are always copied through the rings or sockets, never
   read in place. dt_comm_dup and dt_comm_split of a tolerant communicator give tolerant ones. Over MPI .tolerant is an error,
   for MPI ends the job when a rank dies, and so it is with .backend. */
typedef struct dt_event_opts {
    int    dt__first DT_D;
    double timeout DT_D; /* seconds to wait for an event; default 0: it does not wait; DT_FOREVER */
} dt_event_opts;
/* The next event, in the order in which this rank learned of them; each comes once. 1: *out is an event; 0: none came within
   .timeout; negative: the communicator has failed, or is not tolerant. Events that are not read need no more memory than
   the table of members. While it waits, messages move. */
DT_API int dt_comm_next_event_with(dt_comm *c, dt_comm_event *out, dt_event_opts o DT_OPT0(dt_event_opts));
#ifdef DT__LIT
#define dt_comm_next_event(c, ...) \
    dt_comm_next_event_with(c, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_event_opts, __VA_ARGS__, ))
#else
#define dt_comm_next_event dt_comm_next_event_with
#endif
/* Members that join later. A communicator that others may join is made with .room, the most members that it can ever have: those
   that have gone keep their numbers. Rank 0 (the lowest living rank) calls dt_comm_accept; from then on dt_comm_join, in another process, makes it a
   member with the next number. It is authenticated as the others were at the start. For all others it is an event
   (DT_MEMBER_JOINED), and dt_comm_size grows. Collectives are halted then, too: dt_comm_shrink, called by all members, makes a
   communicator of them. If others call it already, a new member takes part, or gets DT_COMM_ERR_TIMEOUT (too late) and calls it
   again with them. Messages with the new member go through sockets, also inside a machine. While .room is larger than
   the number of ranks at the start, ranks of one machine look at sockets while they wait, which costs up to 0.2 ms.
   A member with a .name may come back under a higher .incarnation and gets a new number; its earlier self, if it still
   lives, is expelled. One that comes with an incarnation that is not higher than all before it is refused.
   When rank 0 dies, the lowest living rank takes its place: after a dt_comm_shrink of all it calls dt_comm_accept, and others join
   at its address (dt_comm_address, .invitation). A member that joined just before the death, and of which no other has heard, gets
   DT_COMM_ERR_PEER within a few seconds.
   Only the communicator of dt_comm_init or dt_comm_threads can be joined, not one of dt_comm_dup, _split or _shrink. */
typedef struct dt_accept_opts {
    int         dt__first DT_D;
    bool        closed DT_D;       /* nobody may join any more, until the next call */
    const char *bind DT_D;         /* a world that started with one rank: the address to listen at; default: loopback */
    int         port DT_D;         /* ... and the port; default: any */
    char       *invitation DT_D;   /* 160 bytes: a text for .invitation of dt_comm_join is written there. It contains the token:
                                      give it to those who may join, by a pipe, a file or the environment */
} dt_accept_opts;
DT_API int      dt_comm_accept_with(dt_comm *c, dt_accept_opts o DT_OPT0(dt_accept_opts));
/* Where this rank listens, as HOST:PORT with a numeric address; "" if it does not. Works like snprintf. */
DT_API size_t   dt_comm_address(const dt_comm *c, char *buf, size_t nbytes);
/* Joins the group of which .invitation, or .addr and .port with a token (.token_file ...), says where rank 0 is. Of the other
   options .timeout, .join_timeout, .bind, .name, .incarnation, .message_memory and .no_thread count, and .transport, which
   dt_comm_shrink uses: as that of the others. NULL on error: see dt_comm_error(NULL). A thread joins its
   process's dt_comm_threads with .beside, after a dt_comm_accept of any member. */
DT_API dt_comm *dt_comm_join_with(dt_comm_opts o DT_OPT0(dt_comm_opts));
#ifdef DT__LIT
#define dt_comm_accept(...) \
    dt_comm_accept_with(DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_accept_opts, __VA_ARGS__, ))
#define dt_comm_join(...) dt_comm_join_with(DT__LIT(dt_comm_opts){ .dt__first = 0, __VA_ARGS__ })
#else
#define dt_comm_accept dt_comm_accept_with
#define dt_comm_join dt_comm_join_with
#endif
/* A descriptor for poll(2): readable while an event waits. It belongs to c: do not read or close it. -1: c is not tolerant. */
DT_API int dt_comm_event_fd(const dt_comm *c);

/* ---------------------------------------------------------------------------------------------------- >>asking */
DT_API int         dt_comm_rank(const dt_comm *c); /* 0 for NULL */
DT_API int         dt_comm_size(const dt_comm *c); /* 1 for NULL */
DT_API int         dt_comm_local_rank(const dt_comm *c); /* number among the ranks of this machine */
DT_API int         dt_comm_local_size(const dt_comm *c); /* ranks of this machine */
DT_API int         dt_comm_host(const dt_comm *c, int rank); /* the number of its machine, from 0; -1: no such rank */
DT_API const char *dt_comm_host_name(const dt_comm *c, int rank); /* of the machine of a rank; NULL: there is no such rank */
/* The options of dt_comm_init; its strings are the caller's pointers of that time. All zero for NULL. */
DT_API const dt_comm_opts *dt_comm_options(const dt_comm *c);
DT_API const char *dt_comm_launcher(const dt_comm *c); /* "RANK and WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "options", ... */

/* ---------------------------------------------------------------------------------------------------- >>collectives */
typedef enum dt_comm_dtype { /* the first six are dt.h's dt_dtype */
    DT_COMM_F32 = 0, DT_COMM_F16, DT_COMM_BF16, DT_COMM_I32, DT_COMM_I64, DT_COMM_U8, DT_COMM_F64, DT_COMM_DTYPES
} dt_comm_dtype;
typedef enum dt_comm_op { /* how elements are combined */
    DT_COMM_SUM = 0, DT_COMM_MEAN, DT_COMM_MIN, DT_COMM_MAX, DT_COMM_PROD, DT_COMM_OR, DT_COMM_OPS
} dt_comm_op;
/* In place, on n elements. Every rank gets the same bits. f16 and bf16 are added in f32. */
DT_API int dt_comm_allreduce(dt_comm *c, void *buf, int64_t n, int dtype, int op);
DT_API int dt_comm_broadcast(dt_comm *c, void *buf, int64_t n, int dtype, int root);
/* The result is at the root; buf of the other ranks does not change. */
DT_API int dt_comm_reduce(dt_comm *c, void *buf, int64_t n, int dtype, int op, int root);
/* counts[r]: elements of rank r's segment; NULL: n each. in: the segments of all ranks in their order; out: this rank's. out
   may be this rank's segment of in. */
DT_API int dt_comm_reduce_scatter(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype,
                                  int op);
/* in NULL: this rank's segment is already at its place in out */
DT_API int dt_comm_allgather(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype);
DT_API int dt_comm_gather(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype, int root);
DT_API int dt_comm_scatter(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts, int dtype,
                           int root);
/* sends[r] elements go to rank r, recvs[r] come from it; both NULL: n each */
DT_API int dt_comm_alltoall(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *sends,
                            const int64_t *recvs, int dtype);
DT_API int dt_comm_barrier(dt_comm *c);

/* ---------------------------------------------------------------------------------------------------- >>sending
   Messages from one rank to another, which may be itself. A receive gets the first message that came from its rank (or
   DT_ANY) with its tag (or DT_ANY); messages of one sender with one tag are received in the order in which they were sent.
   Nothing else is ordered: a receive that waits holds back neither other messages nor collectives. Any number may be
   pending, within .message_memory of dt_comm_init.

   A receive of n elements takes a message of exactly n elements of its dtype; with .info it takes any message of at most n
   and tells what it was. Other messages fail the communicator on all ranks, and so does a message that makes no progress
   for the timeout of the communicator. With a .timeout of its own, a message that does not meet its counterpart in time
   ends alone, with DT_COMM_ERR_TIMEOUT (dt_comm_error(NULL) says which), and the communicator goes on. DT_FOREVER: it waits
   until its counterpart comes, it is cancelled, or the communicator fails.

   A small message (up to 16 KiB in shared memory, 64 KiB over sockets) is sent when the call returns, or the work is done,
   whether there is a receive for it or not. A larger one waits for its receive and goes directly to its buffer: from
   dt_comm_alloc memory, inside a machine, with one copy; from other memory with one if the kernel lets ranks read each
   other's memory (see docs/architecture.md), else with two. */
typedef struct dt_msg_opts {
    int          dt__first DT_D;
    int          tag DT_D;     /* 0 or more; of a receive also DT_ANY */
    double       timeout DT_D; /* seconds; default: that of the communicator; DT_FOREVER: none */
    dt_msg_info *info DT_D;    /* receives: what came; valid when the receive is done */
} dt_msg_opts;
/* n elements to rank `to` */
DT_API int dt_comm_send_with(dt_comm *c, const void *buf, int64_t n, int dtype, int to, dt_msg_opts o DT_OPT0(dt_msg_opts));
/* n elements from rank `from`, or DT_ANY */
DT_API int dt_comm_recv_with(dt_comm *c, void *buf, int64_t n, int dtype, int from, dt_msg_opts o DT_OPT0(dt_msg_opts));
/* Receives a message where it is: a large one from dt_comm_alloc memory of a rank of this machine is not copied at all. The
   sender's call is done when the view is given back. A view is invalid when the communicator has failed or is freed. */
DT_API int dt_comm_recv_view_with(dt_comm *c, dt_msg_view *out, int dtype, int from, dt_msg_opts o DT_OPT0(dt_msg_opts));
DT_API void dt_comm_view_free(dt_comm *c, dt_msg_view *v);
/* Is there a message for such a receive? 1: yes, *info tells what it is; 0: no. It does not wait, unless .timeout is set.
   Negative: the communicator has failed. */
DT_API int dt_comm_probe_with(dt_comm *c, dt_msg_info *info, int from, dt_msg_opts o DT_OPT0(dt_msg_opts));
#ifdef DT__LIT
#define dt_comm_send(c, buf, n, dtype, ...) \
    dt_comm_send_with(c, buf, n, dtype, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_recv(c, buf, n, dtype, ...) \
    dt_comm_recv_with(c, buf, n, dtype, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_recv_view(c, out, dtype, ...) \
    dt_comm_recv_view_with(c, out, dtype, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_probe(c, info, ...) \
    dt_comm_probe_with(c, info, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#else /* C++17: options as a struct, or none */
#define dt_comm_send dt_comm_send_with
#define dt_comm_recv dt_comm_recv_with
#define dt_comm_recv_view dt_comm_recv_view_with
#define dt_comm_probe dt_comm_probe_with
#endif

/* Requests and replies, for those who write servers. dt_comm_call sends `in` to another rank, or this one, and waits for the
   reply. The tags of calls are apart from those of messages. out: at most nout bytes; *got, unless NULL: how many came.
   DT_COMM_ERR_REMOTE: the other rank refused; dt_comm_error(NULL) has its words. */
DT_API int dt_comm_call_with(dt_comm *c, int to, int tag, const void *in, int64_t nin, void *out, int64_t nout, int64_t *got,
                             dt_msg_opts o DT_OPT0(dt_msg_opts));
struct dt_reply_opts;
typedef struct dt_request { /* a call that has come in */
    int         from, tag;
    const void *data;
    int64_t     n;          /* bytes */
    dt_comm    *c;
    void       *user;       /* as given to dt_comm_serve */
    struct dt__request *dt__inside; /* private */
    int       (*dt__answer)(struct dt_request *q, const void *data, int64_t n, const struct dt_reply_opts *o, bool refuse); /* private: of a
                               request that another header has made, and that did not come as a message */
} dt_request;
/* A handler answers a request once, with dt_request_reply or dt_request_refuse: at once or later, from any handler or, while
   no call of this communicator runs, from the program. The request, its data included, is valid until then. Handlers get the
   requests of one rank with one tag in the order in which they were sent. */
typedef void (*dt_request_fn)(dt_request *q);
typedef struct dt_serve_opts {
    int   dt__first DT_D;
    void *user DT_D;
    bool  at_once DT_D; /* the handler runs when a request comes: on the progress thread, or on a thread of the program that
                           waits in a call of this communicator. It must not wait. Default: in dt_comm_serve_next */
} dt_serve_opts;
/* From now on fn serves the calls with this tag; NULL: nobody does, and calls with this tag wait for their timeout. */
DT_API int dt_comm_serve_with(dt_comm *c, int tag, dt_request_fn fn, dt_serve_opts o DT_OPT0(dt_serve_opts));
/* Waits for a request and runs its handler on this thread. 1: done; 0: none came within the timeout (seconds, or DT_FOREVER);
   negative: the communicator has failed. */
DT_API int dt_comm_serve_next(dt_comm *c, double timeout);
typedef struct dt_reply_opts {
    int   dt__first DT_D;
    void (*done)(void *user) DT_D; /* data is not copied: it stays valid until done is called, which must not wait */
    void *user DT_D;
} dt_reply_opts;
DT_API int dt_request_reply_with(dt_request *q, const void *data, int64_t n, dt_reply_opts o DT_OPT0(dt_reply_opts));
DT_API int dt_request_refuse(dt_request *q, const char *why); /* the call returns DT_COMM_ERR_REMOTE */
#ifdef DT__LIT
#define dt_comm_call(c, to, tag, in, nin, out, nout, ...) \
    dt_comm_call_with(c, to, tag, in, nin, out, nout, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_serve(c, tag, ...) \
    dt_comm_serve_with(c, tag, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_serve_opts, __VA_ARGS__, ))
#define dt_request_reply(q, data, ...) \
    dt_request_reply_with(q, data, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_reply_opts, __VA_ARGS__, ))
#else
#define dt_comm_call dt_comm_call_with
#define dt_comm_serve dt_comm_serve_with
#define dt_request_reply dt_request_reply_with
#endif

/* ---------------------------------------------------------------------------------------------------- >>work
   Asynchronous calls: they start the operation and return a work. buf must stay valid until the work is done. Each work
   must be waited for exactly once, with dt_work_wait, which frees it. This may be after the communicator was freed, which
   ends all its works. NULL on error: see dt_comm_error. */
DT_API dt_work *dt_comm_allreduce_start(dt_comm *c, void *buf, int64_t n, int dtype, int op);
DT_API dt_work *dt_comm_broadcast_start(dt_comm *c, void *buf, int64_t n, int dtype, int root);
DT_API dt_work *dt_comm_reduce_scatter_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                             int dtype, int op);
DT_API dt_work *dt_comm_allgather_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                        int dtype);
DT_API dt_work *dt_comm_send_start_with(dt_comm *c, const void *buf, int64_t n, int dtype, int to,
                                        dt_msg_opts o DT_OPT0(dt_msg_opts));
DT_API dt_work *dt_comm_recv_start_with(dt_comm *c, void *buf, int64_t n, int dtype, int from,
                                        dt_msg_opts o DT_OPT0(dt_msg_opts));
DT_API dt_work *dt_comm_recv_view_start_with(dt_comm *c, dt_msg_view *out, int dtype, int from,
                                             dt_msg_opts o DT_OPT0(dt_msg_opts));
DT_API dt_work *dt_comm_call_start_with(dt_comm *c, int to, int tag, const void *in, int64_t nin, void *out, int64_t nout,
                                        dt_msg_opts o DT_OPT0(dt_msg_opts)); /* .info tells how much came */
#ifdef DT__LIT
#define dt_comm_send_start(c, buf, n, dtype, ...) \
    dt_comm_send_start_with(c, buf, n, dtype, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_recv_start(c, buf, n, dtype, ...) \
    dt_comm_recv_start_with(c, buf, n, dtype, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_recv_view_start(c, out, dtype, ...) \
    dt_comm_recv_view_start_with(c, out, dtype, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#define dt_comm_call_start(c, to, tag, in, nin, out, ...) \
    dt_comm_call_start_with(c, to, tag, in, nin, out, DT__HEAD(__VA_ARGS__, ), DT__OPTS(dt_msg_opts, __VA_ARGS__, ))
#else
#define dt_comm_send_start dt_comm_send_start_with
#define dt_comm_recv_start dt_comm_recv_start_with
#define dt_comm_recv_view_start dt_comm_recv_view_start_with
#define dt_comm_call_start dt_comm_call_start_with
#endif
/* Takes a message back. It must still be waited for: its status is DT_COMM_ERR_CANCELLED, or 0 if the message had met its
   counterpart before. false: it has, or the work is no message. A large send ends when the receiver has confirmed it. */
DT_API bool     dt_work_cancel(dt_work *w);
DT_API bool     dt_work_test(dt_work *w);  /* true if it is done or failed */
/* Waits until the work is done; *began and *ended are in nanoseconds of CLOCK_MONOTONIC. Returns its status. It does not
   free the work. */
DT_API int      dt_work_times(dt_work *w, int64_t *began, int64_t *ended);
/* Of that time, how long this rank waited for one that had not begun the operation yet, in nanoseconds; the rest is
   communication. *rank (unless NULL): that rank; -1: none. 0 if all ranks began within 1 ms, as far as this rank knows, and
   for sends and receives. It waits as dt_work_times does. */
DT_API int64_t  dt_work_waited(dt_work *w, int *rank);
DT_API int      dt_work_wait(dt_work *w);  /* its status; frees w. On a GPU: what is queued next runs after it */
/* Waits for any: the index of a work that is done (on a GPU: queued); -1 if all are NULL. The works may be of different
   communicators. It does not free the work. */
DT_API int      dt_work_wait_any(dt_work **w, int n);
/* Instead of waiting, for those who write servers: when the message or call w has ended, fn(user, status) is called, on the
   thread that drives the communicator then, as a handler with .at_once is: it must not wait, and may start other calls. If w
   has ended already, fn is called before this call returns. w is freed. In fn dt_comm_error(NULL) says why the status is
   negative. When the communicator is freed, fn is called with a negative status. Returns 0, or negative if w is a collective
   or on device memory; then w is as before. */
DT_API int      dt_work_then(dt_work *w, void (*fn)(void *user, int status), void *user);

/* ---------------------------------------------------------------------------------------------------- >>memory
   Memory that all ranks of a machine map: it is reduced in place, without copies. 64-byte aligned. Not collective.
   DT_COMM_ARENA limits what a rank may allocate in a communicator (MiB); default: the memory of the machine. */
DT_API void *dt_comm_alloc(dt_comm *c, size_t nbytes); /* NULL: out of memory */
DT_API void  dt_comm_dealloc(dt_comm *c, void *ptr);

/* ---------------------------------------------------------------------------------------------------- >>watching */
typedef struct dt_comm_stats {
    int64_t calls, bytes;      /* operations done; bytes this rank sent, over any transport */
    int64_t bytes_net;         /* bytes this rank sent through sockets */
    double  busy;              /* seconds in collectives */
    double  waited;            /* of these, seconds in which this rank waited for ranks that began later: dt_work_waited */
} dt_comm_stats;
DT_API dt_comm_stats dt_comm_get_stats(const dt_comm *c); /* since the communicator was made */
/* The last 64 operations, a line each; returns the length as snprintf does. When a communicator fails they go to the log
   (level 3, shown by DT_LOG=info; level 4 if a member of a tolerant one has gone), each after "history: ". */
DT_API size_t dt_comm_history(const dt_comm *c, char *buf, size_t nbytes);
/* Stragglers: the ranks that this rank waited for in collectives. A rank came last if it began later than all others that
   this rank heard of, and more than 1 ms after this rank. It needs no extra messages: every message says how long ago its
   sender began the operation, and which rank the sender knows to be the last. Only durations are compared, so the clocks
   of machines may differ. Writes at most n to out, the one with the longest wait first; returns how many there are. */
typedef struct dt_comm_straggler {
    int     rank;
    int64_t last;              /* number of operations in which it came last */
    double  waited, longest;   /* seconds this rank waited for it: total, and most in one operation */
} dt_comm_straggler;
DT_API int    dt_comm_get_stragglers(const dt_comm *c, dt_comm_straggler *out, int n);
DT_API size_t dt_comm_stragglers(const dt_comm *c, char *buf, size_t nbytes); /* as text, a line each */
/* As text: the links between ranks, the table of costs in use (rank 0's, on all ranks), and the algorithms of each
   collective with the size in bytes from which on each is used. Returns the length as snprintf does. */
DT_API size_t dt_comm_explain(const dt_comm *c, char *buf, size_t nbytes);
/* Collective: measures the links of the communicator and the speed of reducing; rank 0 writes a table of costs to path
   (other ranks may pass NULL). Links that the communicator does not have keep the numbers of the table in use. The table
   is used by communicators that are made with this file as .costs. It takes 1 to 2 seconds if the ranks do nothing else.
   Returns 0, or a negative status: see dt_comm_error(NULL). */
DT_API int    dt_comm_tune(dt_comm *c, const char *path);

/* ---------------------------------------------------------------------------------------------------- >>codecs
   Vectors of floats, such as gradients, in fewer bytes. A codec C sends C(p) in place of p. With error feedback the rest stays
   with the sender and is added to its next vector:

       p = in * scale + residual;    C(p) is sent;    residual = p - C(p)

     kind               C(p)                                                                        bytes for n floats
     DT_CODEC_NONE      p                                                                           4 n
     DT_CODEC_F16       p as f16, to nearest even                                                   2 n
     DT_CODEC_BF16      p as bf16, to nearest even                                                  2 n
     DT_CODEC_TOPK      the k elements with the largest |p|, 0 elsewhere; of equal ones the first   8 k
     DT_CODEC_RANDOMK   k elements that seed and step choose, 0 elsewhere                           4 k
     DT_CODEC_SIGN      mean |p| with the sign of p, + for 0 (EF-signSGD)                           n/8
     DT_CODEC_ONEBIT    the mean of all p >= 0, or of all p < 0 (1-bit SGD)                         n/8
     DT_CODEC_QSGD      a multiple of norm/levels: |p| rounded up or down at random so that the     n/8 bits + 4 n/bucket
                        mean of C(p) is p. norm: of a bucket of elements; bits: 1 + those of levels

   and DT_CODEC_HEADER bytes for each. k is ratio * n, rounded, and at least 1. The calls depend on their arguments alone and
   give the same bits on every machine; they allocate nothing, and any thread may call them.
     - Top-k, random-k, sign and 1-bit need a residual, or much of the gradient is lost. QSGD needs none, and with few levels
       a residual would grow.
     - Random-k: if seed and step are the same on all ranks, these send the same elements. It does not enlarge them: without a
       residual pass a scale of n/k, which makes the mean of C(p) equal to p.
     - QSGD: give each rank another seed, or the errors of the ranks do not cancel.
     - What follows the header of none, f16, bf16 and random-k is an array (f32, f16, bf16, f32), which dt_comm_allreduce can
       sum where it is. */
typedef enum dt_codec_kind { /* how a vector is made smaller */
    DT_CODEC_NONE = 0, DT_CODEC_F16, DT_CODEC_BF16, DT_CODEC_TOPK, DT_CODEC_RANDOMK, DT_CODEC_SIGN, DT_CODEC_ONEBIT,
    DT_CODEC_QSGD, DT_CODECS
} dt_codec_kind;
enum { DT_CODEC_HEADER = 32 }; /* bytes: kind, n and what the decoder needs to know */
typedef struct dt_codec {
    int      kind DT_D;   /* DT_CODEC_... */
    double   ratio DT_D;  /* top-k, random-k: k/n, up to 1; default 0.01 */
    int      levels DT_D; /* QSGD: 1 to 32767; default 127, which is 8 bits an element */
    int64_t  bucket DT_D; /* QSGD: elements that share a norm; default 512 */
    uint64_t seed DT_D;   /* random-k, QSGD */
} dt_codec;
DT_API const char *dt_codec_name(int kind); /* "none", "f16", "bf16", "topk", "randomk", "sign", "onebit", "qsgd"; "?" */
/* How many bytes dt_codec_encode writes for n floats; negative: an invalid codec or n, see dt_comm_error(NULL). */
DT_API int64_t dt_codec_bound(const dt_codec *codec, int64_t n);
/* Writes C(in * scale + residual) to out, which has room for nout bytes, and the rest to residual. residual NULL: no error
   feedback; else it begins with zeros. step: random-k and QSGD draw other numbers in each step. The arrays do not overlap.
   Returns the number of bytes. C(p) + residual = p: exactly for none, f16, bf16, top-k and random-k, else up to the rounding
   of one subtraction. DT_COMM_ERR_NONFINITE: an element of p, or of C(p), is not finite (f16: 65520 or more); residual is
   as before, and out is undefined. Mixed precision skips such a step. */
DT_API int64_t dt_codec_encode(const dt_codec *codec, const float *in, int64_t n, float *residual, float scale, uint64_t step,
                               void *out, int64_t nout);
/* out := C(p), or with add out += C(p), of n floats. Top-k with add takes time for k elements only. codec: as the sender's,
   but ratio of top-k may differ. The bytes may come from anywhere: all of them are checked first. Returns 0, or, with out as
   before, DT_COMM_ERR_MISMATCH: these bytes are not those of this codec and n; DT_COMM_ERR_NONFINITE: a value is not finite. */
DT_API int dt_codec_decode(const dt_codec *codec, const void *in, int64_t nin, float *out, int64_t n, bool add);

#ifdef __cplusplus
}
#endif
#endif /* DT_COMM_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__COMM_INSIDE)
#define DT__COMM_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   What dt_sim.h, dt_mpi.h and dt_nccl.h use of this header: works and the engine, reductions, transports of devices. */
#ifdef __cplusplus
extern "C" {
#endif
typedef struct dt__call {
    const char    *name;
    dt_coll        coll;
    const void    *in;
    void          *out;
    int64_t        n;
    const int64_t *counts;
    const int64_t *sends, *recvs; /* alltoall with counts; else NULL */
    int            dtype, op, root;
    int            tag; /* of a call without a root: what it is about; all ranks must have the same. 0: nothing */
} dt__call;

/* Device memory, which the host cannot access, is moved by a device transport, if .backend names one. A work on it has
   two parts. First the ranks exchange records on the host, by an allreduce or a message; its frames are those of the
   work, so they are compared as for any other work. Then the device transport queues the work on the device, and the
   engine takes the work as done. */
enum { DT__RECORD = 256 }; /* bytes */
typedef struct dt__job {         /* a work on a device; the device transport's own struct begins with it */
    char record[DT__RECORD];     /* collectives: the records of all ranks, combined with bitwise or; messages: the sender's */
} dt__job;
typedef struct dt__device_transport {
    /* 1: device memory; 0: host memory */
    int (*owns)(dt_comm *c, const void *ptr);
    /* On the caller's thread: the job runs after what this thread has queued. For a message a->root is the peer. NULL
       after dt__comm_fail. */
    dt__job *(*begin)(dt_comm *c, const dt__call *a);
    /* The records are exchanged. 1: the job is queued; 0: call again; 2: call again, and do not count this time towards
       the timeout, the device transport has a deadline of its own; negative: failed. */
    int (*poll)(dt_comm *c, dt__job *j);
    bool (*test)(dt__job *j);    /* the job is queued: is it done? */
    /* On the caller's thread: what this thread queues next runs after the job, if status is 0. Frees the job. */
    int (*wait)(dt__job *j, int status);
    int (*alone)(dt_comm *c, const dt__call *a); /* a world of one rank */
    void (*close)(dt_comm *c);   /* may take about the timeout */
} dt__device_transport;
DT__INSIDE const dt__device_transport **dt__device_transport_slot(void); /* set by dt_nccl.h's implementation */

/* How long the engine waits; see also DT__LATE. */
#define DT__S_PER_NS 1e-9
#define DT__ASK_SECONDS 2                          /* answers to "why are you late?" may take this long after the timeout */
#define DT__WATCH_NS (300 * DT__NS_PER_MS)         /* without progress until the other ranks are told what it waits in */
#define DT__SLEEP_NS (10 * DT__NS_PER_MS)          /* longest sleep in shared memory before it looks again */
#define DT__SLOW_YIELD_NS (50 * DT__NS_PER_US)     /* a yield that takes longer ran another program */
#define DT__NO_YIELD_NS (2 * DT__NS_PER_US)        /* a yield that takes less ran nothing */
#define DT__CROWD_GAP_NS (2 * DT__NS_PER_MS)       /* a yield, or a few polls, that take longer: the cores are crowded */
#define DT__CROWD_SPIN_NS (50 * DT__NS_PER_US)     /* longest spin on crowded cores */
#define DT__CROWD_SPIN_LARGE_NS (300 * DT__NS_PER_US) /* the same over sockets, for a vector of more than DT__CROWD_LARGE bytes */
#define DT__CROWD_LARGE 65536
#define DT__SOCKET_SECONDS 0.02                    /* longest sleep on sockets */
#define DT__SOCKET_SHARED_SECONDS 0.0002           /* the same if shared memory must be polled, too */

enum {
    DT__PLAN_CACHE = 16,   /* plans; a power of two */
    DT__YIELDS = 40,       /* before a rank that waits sleeps */
    DT__VAIN = 6,          /* the most that dt__engine.vain becomes */
    DT__SHARED_RANKS = 64  /* the largest number of ranks that reduce in shared memory */
};
/* How a work on host memory is done. */
typedef enum dt__way {
    DT__BY_PLAN = 0, /* steps of a plan, through the transports */
    DT__BY_SHARED,   /* allreduce, reduce_scatter and barrier of one machine, in shared memory: see dt__shared_allreduce */
    DT__BY_NATIVE    /* MPI's own collective */
} dt__way;

typedef struct dt__coll_work {   /* a collective call */
    dt_work    w;
    struct dt__coll_work *next;  /* in the queue; under the engine's lock */
    dt__frame  head;             /* what is compared between ranks */
    int        dtype, op;
    int64_t    n;                /* elements of data */
    size_t     size;             /* bytes of an element */
    char      *data;
    dt__way    way;
    bool       agree;            /* before an MPI collective all ranks compare their frames */
    int       *part;             /* for MPI: elements of each segment, then where each begins */
    bool       arrived;          /* a work on a device, whose data is the record: the records are exchanged */
    bool       begun;
    /* buffers */
    const char *input;           /* DT_PLAN_IN: the caller's, only read */
    char      *temp;             /* data, if it is not the caller's; NULL if it is */
    const char *in;              /* copied to data + in_at first, unless NULL */
    char      *out;              /* data + out_at is copied there at the end, unless NULL */
    int64_t    in_at, in_n, out_at, out_n; /* elements */
    /* DT__BY_PLAN */
    dt_plan   *plan;
    bool       plan_own;         /* not from the cache: freed with the work */
    int64_t    step, round_end;  /* the first step of this round, and one past its last */
    bool       in_round;
    /* DT__BY_SHARED; the MPI transport also uses phase and done */
    int        phase, k;         /* DT__POST ..; ranks whose post was compared */
    bool       scatters;         /* reduce_scatter */
    char      *scatter;          /* where this rank's segment goes, which begins at scatter_at; NULL: only the plan can do it */
    int64_t    scatter_at, scatter_n;
    uint64_t   no, first;        /* number of the operation; number of pieces before it */
    int64_t    piece;            /* elements of a piece */
    int64_t    pieces, put, reduced, taken, done;
    int        nstages;          /* stages in use */
    /* progress */
    bool       progress;         /* this poll moved something */
    bool       asked;            /* no progress for the timeout: the other ranks were asked why */
    bool       watched;          /* no progress for a while: the other ranks were told what it waits in */
    int64_t    moved;            /* ns: when it last made progress, 0 if it made some in the last poll */
    int64_t    late;             /* ns: how long it waited for late_rank, which began later; at most its duration */
    int        late_rank;        /* -1: none */
} dt__coll_work;
typedef struct dt__waits { /* how long this rank waited for one other; atomic */
    int64_t last, waited, longest; /* operations; ns */
} dt__waits;
typedef struct dt__past { /* an operation in the history */
    uint64_t seq;
    int64_t  count, began, ended;
    int32_t  root, status;
    uint8_t  coll, dtype, op, algo;
} dt__past;
typedef struct dt__past_slot { /* the driver writes it while others read it: see dt__past_put */
    uint64_t no;                 /* number of the operation, from 1; 0: it is being written */
    uint64_t word[6];
} dt__past_slot;
typedef struct dt__counters { /* of dt_comm_stats; atomic, each has one writer */
    int64_t calls, bytes, busy;  /* busy: ns; by the driver */
    int64_t waited;              /* ns; by the driver */
    int64_t device;              /* ns on a device; by the device transport */
} dt__counters;
struct dt__engine {
    pthread_mutex_t lock;
    pthread_cond_t  cond;
    dt__coll_work  *head, *tail; /* the queue of collectives */
    dt_work        *kept;        /* works that the program has not waited for */
    dt__chain        devices;     /* messages of device memory that the device transport must queue */
    dt__req       **reqs;        /* all requests of start calls, in use or not; by the driver */
    int64_t         nreqs, reqs_cap;
    dt__req        *own_reqs;    /* those not in use, linked by w.after; by the thread that uses the communicator */
    dt__req        *free_reqs;   /* the same, by the driver */
    dt__req        *returned;    /* the same, from any thread; atomic */
    struct dt__handler *handlers; /* of dt_comm_serve */
    struct dt__request *first_request, *last_request; /* requests for dt_comm_serve_next */
    uint32_t        calls;       /* atomic: number of dt_comm_call so far */
    bool            has_thread;
    int             drive;       /* atomic: 1: a thread is the driver */
    int             quit;        /* atomic; set under the lock */
    bool            aside;       /* the engine's own thread drives: the program may be computing */
    bool            announced;   /* that thread sleeps, and other ranks have to wake it: dt__shared_doze; by the driver */
    int             watch;       /* atomic: what that thread does, DT__AWAKE ... */
    int             lazy;        /* atomic: dt__engine_lazy, when the program last stopped driving */
    uint32_t        entries;     /* atomic: how often the program has become the driver since there is such a thread */
    int             waiting;     /* atomic: threads of the program that want to drive */
    int64_t         now;         /* ns, coarse: when messages of this poll are done; 0: not known yet; by the driver */
    bool            unsaid;      /* works have finished since dt__any_tell; by the driver */
    dt__pollset     set;         /* of the program's thread */
    int             spin;        /* polls before the first yield without shared memory; -1: not determined yet */
    int             vain;        /* spins are shorter by this power of 2: dt__idle_end */
    pthread_t       thread;
    dt__msg        *msg;         /* messages of the round */
    uint8_t        *over;        /* which of them are complete */
    int64_t         nmsg;        /* size of both */
    int            *busy_send, *busy_recv; /* by rank: the turn in which a message to or from it did not move */
    int             turn;
    char           *scratch;
    size_t          scratch_n;   /* bytes */
    dt_plan         plan[DT__PLAN_CACHE];
    int64_t         plan_key[DT__PLAN_CACHE][4];
    dt__past_slot   past[DT__HISTORY];
    uint64_t        npast;       /* operations in all; the last DT__HISTORY are in past; atomic */
    bool            told;        /* the history has been logged */
    dt__counters    counters;
    dt__waits      *waits;       /* by rank */
    int             algo;        /* of option or environment; DT_ALGO_AUTO: by cost */
    dt_costs        costs;
    bool            has_costs;   /* costs is rank 0's table, not the fixed one */
};

/* src[0] op src[1] op ... is written to each of dst, which may be among the sources. Any alignment. mean only sums here. */
DT__INSIDE void dt__reduce_many(int dtype, int op, void *const *dst, int ndst, const void *const *src, int nsrc, int64_t n);
/* dst := dst op src, or with left src op dst; n elements, any alignment */
DT__INSIDE void dt__fold(int dtype, int op, void *dst, const void *src, int64_t n, bool left);
DT__INSIDE void dt__reduce_scale(int dtype, void *buf, int64_t n, int world);
DT__INSIDE dt_comm *dt__comm_new(int rank, int size, const dt_comm_opts *o); /* NULL after dt__comm_bad */
DT__INSIDE void dt__comm_delete(dt_comm *c);
DT__INSIDE void dt__comm_drop(dt_comm *c); /* frees it without waiting for the other ranks */
DT__INSIDE uint64_t dt__id_mix(uint64_t a, uint64_t b);
DT__INSIDE void dt__engine_look(dt_comm *c);
DT__INSIDE bool dt__frame_ok(dt_comm *c, int peer, const dt__frame *want, const dt__frame *got);
DT__INSIDE int dt__comm_leave(dt_comm *c);
DT__INSIDE int dt__comm_left(const dt_comm *c);
/* As dt_codec_encode, but residual stays as it is, and the rest goes to rest. Both or none are NULL; they may be the same. */
DT__INSIDE int64_t dt__codec_encode_to(const dt_codec *codec, const float *in, int64_t n, const float *residual,
                                       float *rest, float scale, uint64_t step, void *out, int64_t nout);
/* Collectives so far; *differs: the number of the one that differed between ranks, or 0 */
DT__INSIDE uint64_t dt__comm_calls(const dt_comm *c, uint64_t *differs);
/* dt_comm_allgather_start with a tag (1 ...): it is an error if the ranks have different ones. */
DT__INSIDE dt_work *dt__allgather_tagged(dt_comm *c, const void *in, void *out, const int64_t *counts, int dtype, int tag);
/* After a failure because ranks differ: the tags of two that gathered different things. false: it was something else. */
DT__INSIDE bool dt__comm_tags(const dt_comm *c, int rank[2], int tag[2]);
DT__INSIDE int64_t dt__watch_after(const dt_comm *c); /* ns without progress until the others are told what it waits in */
DT__INSIDE const char *dt__comm_dtype_name(int dtype);
/* Drives c until *flag, which is atomic, is not 0, at most for so many seconds (0: one look), or until c has failed and all its
   messages have ended. false: this is a handler, which must not wait; c has failed. */
DT__INSIDE bool dt__comm_until(dt_comm *c, const int *flag, double seconds);
DT__INSIDE void dt__comm_drive(dt_comm *c, void (*fn)(void *user), void *user); /* runs fn as a handler: nothing else of c runs meanwhile */

#ifdef __cplusplus
}
#endif
#endif /* DT__COMM_INSIDE */

#if defined(DT_COMM_IMPLEMENTATION) && !defined(DT__COMM_IMPLEMENTED)
#define DT__COMM_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__NET_IMPLEMENTED)
#error "dt_comm.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_COMM_IMPLEMENTATION"
#endif
#include <fcntl.h>
#include <sys/stat.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(COMM);
DT__NEEDS(COMM, PLAN);
DT__NEEDS(COMM, MSG);
DT__NEEDS(COMM, NET);
DT__NEEDS(COMM, BASE);

/* ==================================================================================================== >>reducing
   One loop does every reduction: nsrc vectors are reduced from left to right and the result is written to ndst vectors.
   f16 and bf16 are computed in f32 over all sources and rounded once, to nearest even. The loop is written with GNU
   vectors and compiled for 16 bytes and for AVX2, with the same bits; the 16-byte loop also does what remains after the
   AVX2 loop's blocks. A NaN result has all its bits set, so that they do not depend on which operand the compiler put
   first. min and max are NaN if an operand is; of -0 and +0 they take the right one. */
/* Reduces bytes i .. end - 1 of each vector. */
typedef void (*dt__reduce_fn)(int op, void *const *dst, int ndst, const void *const *src, int nsrc, size_t i, size_t end);
typedef void (*dt__reduce_scale_fn)(void *buf, int64_t n, int world);
typedef struct dt__reduce_table {
    const char         *name;
    dt__reduce_fn       many[DT_COMM_DTYPES];
    dt__reduce_scale_fn scale[DT_COMM_DTYPES];
} dt__reduce_table;

/* Bitwise or is not defined for floating point. */
static bool dt__reduce_can(int dtype, int op)
{
    if (dtype < 0 || dtype >= DT_COMM_DTYPES || op < 0 || op >= DT_COMM_OPS) return false;
    return op != DT_COMM_OR || dtype == DT_COMM_I32 || dtype == DT_COMM_I64 || dtype == DT_COMM_U8;
}

/* a := a op b. V: their type; M: integers of the same width that compare as the dtype does. Integer vectors are unsigned,
   so sums wrap around. */
#define DT__RED_SUM(a, b, V, M) a += b
#define DT__RED_PROD(a, b, V, M) a *= b
#define DT__RED_OR(a, b, V, M) a |= b
#define DT__RED_IMIN(a, b, V, M) a = (V)(((M)((M)a < (M)b) & (M)a) | (~(M)((M)a < (M)b) & (M)b))
#define DT__RED_IMAX(a, b, V, M) a = (V)(((M)((M)a > (M)b) & (M)a) | (~(M)((M)a > (M)b) & (M)b))
#define DT__RED_FMIN(a, b, V, M) a = (V)(((M)(a < b) & (M)a) | (~(M)(a < b) & (M)b) | (M)(a != a))
#define DT__RED_FMAX(a, b, V, M) a = (V)(((M)(a > b) & (M)a) | (~(M)(a > b) & (M)b) | (M)(a != a))
/* v := the vector at p, and the reverse. S: the instruction set. */
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
/* 16-bit lanes at p to 32-bit lanes; and back from the upper halves. */
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
#define DT__RED_WIDEN_avx2(p) __builtin_convertvector(*(const dt__rhu_avx2 *)(p), dt__ru_avx2)
#define DT__RED_NARROW_avx2(p, u)                                                                              \
    do {                                                                                                       \
        dt__ri_avx2 n_ = (dt__ri_avx2)(u) >> 16;                                                               \
        _mm_storeu_si128((__m128i *)(void *)(p),                                                               \
                         _mm_packs_epi32((__m128i)__builtin_shufflevector(n_, n_, 0, 1, 2, 3),                 \
                                         (__m128i)__builtin_shufflevector(n_, n_, 4, 5, 6, 7)));               \
    } while (0)
#define DT__RED_LOAD_BF16(v, p, S) v = (dt__rf_##S)(DT__RED_WIDEN_##S(p) << 16)
#define DT__RED_STORE_BF16(p, v, S)                                                         \
    do {                                                                                    \
        dt__ru_##S u_ = (dt__ru_##S)v;                                                      \
        u_ = (u_ + 0x7fffu + ((u_ >> 16) & 1u)) | (dt__ru_##S)(v != v);                     \
        DT__RED_NARROW_##S(p, u_);                                                          \
    } while (0)
/* f16 conversion without an instruction for it. For subnormals f32 arithmetic does the shifting and the rounding. */
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
#define DT__RED_LOAD_F16_avx2(v, p) v = (dt__rf_avx2)__builtin_ia32_vcvtph2ps256(*(const dt__rsu_avx2 *)(p))
#define DT__RED_STORE_F16_avx2(p, v) \
    *(dt__rsu_avx2 *)(p) = (dt__rs_avx2)__builtin_ia32_vcvtps2ph256((dt__rf_avx2)((dt__ri_avx2)v | (dt__ri_avx2)(v != v)), 0)
#define DT__RED_LOAD_F16(v, p, S) DT__RED_LOAD_F16_##S(v, p)
#define DT__RED_STORE_F16(p, v, S) DT__RED_STORE_F16_##S(p, v)

/* One vector of NB bytes at a time; an incomplete last one goes through the stack. All sources of an element are read
   before it is written. */
#define DT__RED_LOOP_sse(D, S, V, M, NB, OP)                                     \
    for (; i < end; i += (NB)) {                                                 \
        char   part[NB];                                                         \
        bool   whole = end - i >= (NB);                                          \
        size_t m = whole ? (NB) : end - i;                                       \
        V      a, b;                                                             \
        if (!whole) memset(part, 0, sizeof part);                                \
        if (!whole) memcpy(part, (const char *)src[0] + i, m);                   \
        DT__RED_LOAD_##D(a, whole ? (const char *)src[0] + i : part, S);         \
        for (int k = 1; k < nsrc; k++) {                                         \
            if (!whole) memcpy(part, (const char *)src[k] + i, m);               \
            DT__RED_LOAD_##D(b, whole ? (const char *)src[k] + i : part, S);     \
            OP(a, b, V, M);                                                      \
        }                                                                        \
        for (int k = 0; k < ndst; k++) {                                         \
            DT__RED_STORE_##D(whole ? (char *)dst[k] + i : part, a, S);          \
            if (!whole) memcpy((char *)dst[k] + i, part, m);                     \
        }                                                                        \
    }
/* Four vectors at a time; DT__RED_LOOP_sse does the rest. */
#define DT__RED_LOOP_avx2(D, S, V, M, NB, OP)                                 \
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
    }
#define DT__RED_REST_sse(D)
#define DT__RED_REST_avx2(D) \
    if (i < end) dt__reduce_##D##_sse(op, dst, ndst, src, nsrc, i, end);
#define DT__RED_MANY(D, S, ATTR, V, M, NB, MIN, MAX, OR)                                                         \
    ATTR static void dt__reduce_##D##_##S(int op, void *const *dst, int ndst, const void *const *src, int nsrc,  \
                                          size_t i, size_t end)                                                  \
    {                                                                                                            \
        switch (op) {                                                                                            \
        case DT_COMM_SUM:                                                                                        \
        case DT_COMM_MEAN: DT__RED_LOOP_##S(D, S, V, M, NB, DT__RED_SUM) break;                                  \
        case DT_COMM_PROD: DT__RED_LOOP_##S(D, S, V, M, NB, DT__RED_PROD) break;                                 \
        case DT_COMM_MIN: DT__RED_LOOP_##S(D, S, V, M, NB, MIN) break;                                           \
        case DT_COMM_MAX: DT__RED_LOOP_##S(D, S, V, M, NB, MAX) break;                                           \
        OR default : break; /* dt__reduce_can has refused it */                                                  \
        }                                                                                                        \
        DT__RED_REST_##S(D)                                                                                      \
    }
#define DT__RED_FLOATS(D, S, ATTR, V, M, NB, ELEM, T)                                                   \
    DT__RED_MANY(D, S, ATTR, V, M, NB, DT__RED_FMIN, DT__RED_FMAX, )                                    \
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
#define DT__RED_INTS(D, S, ATTR, V, M, NB)                                \
    DT__RED_MANY(D, S, ATTR, V, M, NB, DT__RED_IMIN, DT__RED_IMAX,        \
                 case DT_COMM_OR : DT__RED_LOOP_##S(D, S, V, M, NB, DT__RED_OR) break;)
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
    DT__RED_TYPE(S, s, short, (NB) / 2)                                                               \
    DT__RED_FLOATS(F32, S, ATTR, dt__rf_##S, dt__ri_##S, NB, 4, float)                                \
    DT__RED_FLOATS(F16, S, ATTR, dt__rf_##S, dt__ri_##S, (NB) / 2, 2, float)                          \
    DT__RED_FLOATS(BF16, S, ATTR, dt__rf_##S, dt__ri_##S, (NB) / 2, 2, float)                         \
    DT__RED_FLOATS(F64, S, ATTR, dt__rd_##S, dt__rl_##S, NB, 8, double)                               \
    DT__RED_INTS(I32, S, ATTR, dt__ru_##S, dt__ri_##S, NB)                                            \
    DT__RED_INTS(I64, S, ATTR, dt__rm_##S, dt__rl_##S, NB)                                            \
    DT__RED_INTS(U8, S, ATTR, dt__rb_##S, dt__rb_##S, NB)                                             \
    static const dt__reduce_table dt__reduce_##S = {                                                  \
        #S,                                                                                           \
        { dt__reduce_F32_##S, dt__reduce_F16_##S, dt__reduce_BF16_##S, dt__reduce_I32_##S,            \
          dt__reduce_I64_##S, dt__reduce_U8_##S, dt__reduce_F64_##S },                                \
        { dt__reduce_scale_F32_##S, dt__reduce_scale_F16_##S, dt__reduce_scale_BF16_##S,              \
          dt__reduce_scale_I32, dt__reduce_scale_I64, dt__reduce_scale_U8, dt__reduce_scale_F64_##S } \
    };

/* Integer division rounds towards zero. world is at least 1, so it cannot overflow. */
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
    static const dt__reduce_table *best; /* several threads may store the same value */
    const dt__reduce_table        *t = __atomic_load_n(&best, __ATOMIC_RELAXED);
    if (t) return t;
    t = dt__reduce_has_avx2() ? &dt__reduce_avx2 : &dt__reduce_sse;
    __atomic_store_n(&best, t, __ATOMIC_RELAXED);
    return t;
#else
    return &dt__reduce_sse;
#endif
}

DT__INSIDE void dt__reduce_many(int dtype, int op, void *const *dst, int ndst, const void *const *src, int nsrc, int64_t n)
{
    if (!dt__reduce_can(dtype, op) || n <= 0 || nsrc < 1) return;
    dt__reduce_best()->many[dtype](op, dst, ndst, src, nsrc, 0, (size_t)n * dt__elem_nbytes(dtype));
}
DT__INSIDE void dt__fold(int dtype, int op, void *dst, const void *src, int64_t n, bool left)
{
    const void *both[2];
    both[left ? 1 : 0] = dst;
    both[left ? 0 : 1] = src;
    dt__reduce_many(dtype, op, &dst, 1, both, 2, n);
}
/* The last step of a mean: each element is divided by world, not multiplied by 1/world, which would round twice. f16 and
   bf16 are divided in f32; integers round towards zero. */
DT__INSIDE void dt__reduce_scale(int dtype, void *buf, int64_t n, int world)
{
    if (dtype < 0 || dtype >= DT_COMM_DTYPES || n <= 0 || world <= 1) return;
    dt__reduce_best()->scale[dtype](buf, n, world);
}

/* ==================================================================================================== >>encoding
   A vector goes through in blocks of DT__CODEC_BLOCK elements. p of a block is computed again in each pass, so no memory for n
   elements is needed. Encoding is at most these passes:
     measure   all of p is finite; what the codec has to know of all of it (means, norms, the k-th largest). It writes neither
               residual nor anything that depends on a later pass, so a refusal leaves residual as it was.
     write     the bytes; the block is then read back as a decoder does, and residual = p - that.
   Products and sums whose bits could depend on whether the compiler contracts a*b + c are exact in f64, or are integers. Sums
   over a vector have a fixed order: DT__CODEC_LANES partial sums, by index.

   The wire: dt__codec_head, then the payload:
     none, f16, bf16   n elements
     top-k             k indices (u32, ascending), k values (f32)
     random-k          k values; dt__randomk_pick tells their indices
     sign, 1-bit       a bit for each element, 1: negative; lowest bit first
     QSGD              the norm of each bucket (f32), then level * 2 + sign of each element in 1 + bits(levels) bits
   Bits that are left over in the last byte are 0. Numbers are in the byte order of the sender: a decoder of another order does
   not find the magic number. */
enum { DT__CODEC_BLOCK = 1024, DT__CODEC_LANES = 8, DT__CODEC_LEVELS = 32767 };
#define DT__CODEC_MAGIC 0x31435444u /* "DTC1" */
#define DT__CODEC_MOST (INT64_MAX / 64)
#define DT__CODEC_INF 0x7f800000u /* bits of |p| from which on it is not finite */
typedef struct dt__codec_head {
    uint32_t magic, kind;
    int64_t  n;
    uint64_t step;
    union {
        uint64_t k;        /* top-k */
        uint64_t seed;     /* random-k */
        float    value[2]; /* sign, 1-bit: of elements >= 0, of elements < 0 */
        uint32_t qsgd[2];  /* levels, elements of a bucket */
    } u;
} dt__codec_head;
typedef char dt__codec_head_size[sizeof(dt__codec_head) == DT_CODEC_HEADER ? 1 : -1];
typedef struct dt__codec_table {
    const char *name;
    /* p := in * scale + residual */
    void (*product)(float *p, const float *in, const float *residual, float scale, int64_t n);
    uint32_t (*top)(const float *p, int64_t n);                                   /* bits of the largest |p| */
    int64_t (*sums)(double above[8], double below[8], const float *p, int64_t n); /* adds p >= 0 and p < 0; how many are < 0 */
    void (*signs)(char *bits, const float *p, int64_t n);                         /* 1: p < 0 */
    void (*narrow[2])(char *half, const float *p, int64_t n);                     /* f16, bf16 */
    void (*widen[2])(float *p, const char *half, int64_t n);
} dt__codec_table;
typedef struct dt__codec_run { /* one call */
    const dt__codec_table *table;
    const char            *call;
    dt_codec               c;       /* with defaults */
    int64_t                n, k;    /* elements; those that are sent */
    int64_t                nbytes;  /* of the payload */
    int                    bits;    /* QSGD: of an element */
    int64_t                buckets; /* QSGD */
    const float           *in, *residual; /* encode */
    float                  scale;
    dt__codec_head         head;
    uint64_t               key;   /* random-k, QSGD: of dt__codec_draw */
    int64_t                at;    /* top-k, random-k: elements so far */
    uint32_t               least; /* top-k: bits of the k-th largest |p| */
    int64_t                ties;  /* top-k: how many with these bits are still to be sent */
    float                  p[DT__CODEC_BLOCK], sent[DT__CODEC_BLOCK];
} dt__codec_run;

/* The product is exact in f64. With a scale of 1 or -1 f32 gives the same bits. */
static void dt__codec_product_sse(float *p, const float *in, const float *residual, float scale, int64_t n)
{
    if (residual && scale == 1.0f)
        for (int64_t i = 0; i < n; i++) p[i] = residual[i] + in[i];
    else if (residual && scale == -1.0f)
        for (int64_t i = 0; i < n; i++) p[i] = residual[i] - in[i];
    else if (residual)
        for (int64_t i = 0; i < n; i++) p[i] = (float)((double)in[i] * (double)scale + (double)residual[i]);
    else
        for (int64_t i = 0; i < n; i++) p[i] = in[i] * scale;
}
static inline uint32_t dt__codec_abs(const float *p) /* bits of |p|: they compare as |p| does; NaN is above infinity */
{
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u & 0x7fffffffu;
}
static uint32_t dt__codec_top_sse(const float *p, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++)
        if (dt__codec_abs(p + i) > top) top = dt__codec_abs(p + i);
    return top;
}
/* Element i belongs to partial sum i modulo 8. */
static int64_t dt__codec_sums_sse(double above[8], double below[8], const float *p, int64_t n)
{
    int64_t negative = 0;
    for (int64_t i = 0; i < n; i++) {
        above[i & 7] += (double)(p[i] < 0 ? 0 : p[i]);
        below[i & 7] += (double)(p[i] < 0 ? p[i] : 0);
        negative += p[i] < 0;
    }
    return negative;
}
static void dt__codec_signs_sse(char *bits, const float *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        unsigned byte = 0;
        for (int64_t l = 0; l < 8 && i + l < n; l++) byte |= (unsigned)(p[i + l] < 0) << l;
        bits[i >> 3] = (char)byte;
    }
}
/* The conversions of >>reducing; an incomplete last vector goes through the stack. */
#define DT__CODEC_HALF_sse(D)                                                     \
    static void dt__codec_narrow_##D##_sse(char *half, const float *p, int64_t n) \
    {                                                                             \
        for (int64_t i = 0; i < n; i += 4) {                                      \
            char       part[8];                                                   \
            float      last[4] = { 0, 0, 0, 0 };                                  \
            bool       whole = n - i >= 4;                                        \
            dt__rf_sse v;                                                         \
            if (!whole) memcpy(last, p + i, (size_t)(n - i) * sizeof *p);         \
            DT__RED_LOAD_F32(v, whole ? p + i : last, sse);                       \
            DT__RED_STORE_##D(whole ? half + 2 * i : part, v, sse);               \
            if (!whole) memcpy(half + 2 * i, part, (size_t)(n - i) * 2);          \
        }                                                                         \
    }                                                                             \
    static void dt__codec_widen_##D##_sse(float *p, const char *half, int64_t n)  \
    {                                                                             \
        for (int64_t i = 0; i < n; i += 4) {                                      \
            char       part[8] = { 0 };                                           \
            float      last[4];                                                   \
            bool       whole = n - i >= 4;                                        \
            dt__rf_sse v;                                                         \
            if (!whole) memcpy(part, half + 2 * i, (size_t)(n - i) * 2);          \
            DT__RED_LOAD_##D(v, whole ? half + 2 * i : part, sse);                \
            DT__RED_STORE(whole ? p + i : last, v, f, sse);                       \
            if (!whole) memcpy(p + i, last, (size_t)(n - i) * sizeof *p);         \
        }                                                                         \
    }
DT__CODEC_HALF_sse(F16)
DT__CODEC_HALF_sse(BF16)
static const dt__codec_table dt__codec_sse = { "sse",
    dt__codec_product_sse, dt__codec_top_sse, dt__codec_sums_sse, dt__codec_signs_sse,
    { dt__codec_narrow_F16_sse, dt__codec_narrow_BF16_sse }, { dt__codec_widen_F16_sse, dt__codec_widen_BF16_sse } };
#if defined(__x86_64__) && !defined(DT_NO_AVX2)
#define DT__CODEC_AVX2 __attribute__((target("avx2,f16c"))) static
DT__CODEC_AVX2 void dt__codec_product_avx2(float *p, const float *in, const float *residual, float scale, int64_t n)
{
    int64_t i = 0;
    double  by = (double)scale;
    if (residual && scale == 1.0f)
        for (; i + 8 <= n; i += 8)
            *(dt__rfu_avx2 *)(p + i) = *(const dt__rfu_avx2 *)(residual + i) + *(const dt__rfu_avx2 *)(in + i);
    else if (residual && scale == -1.0f)
        for (; i + 8 <= n; i += 8)
            *(dt__rfu_avx2 *)(p + i) = *(const dt__rfu_avx2 *)(residual + i) - *(const dt__rfu_avx2 *)(in + i);
    else if (residual)
        for (; i + 4 <= n; i += 4) {
            dt__rd_avx2 a = __builtin_convertvector(*(const dt__rfu_sse *)(in + i), dt__rd_avx2);
            dt__rd_avx2 b = __builtin_convertvector(*(const dt__rfu_sse *)(residual + i), dt__rd_avx2);
            *(dt__rfu_sse *)(p + i) = __builtin_convertvector(a * by + b, dt__rf_sse);
        }
    else
        for (; i + 8 <= n; i += 8) *(dt__rfu_avx2 *)(p + i) = *(const dt__rfu_avx2 *)(in + i) * scale;
    dt__codec_product_sse(p + i, in + i, residual ? residual + i : NULL, scale, n - i);
}
DT__CODEC_AVX2 uint32_t dt__codec_top_avx2(const float *p, int64_t n)
{
    dt__ri_avx2 top = { 0, 0, 0, 0, 0, 0, 0, 0 };
    int64_t     i = 0;
    for (; i + 8 <= n; i += 8) {
        dt__ri_avx2 a = (dt__ri_avx2) * (const dt__rfu_avx2 *)(p + i) & 0x7fffffff, more = (dt__ri_avx2)(a > top);
        top = (more & a) | (~more & top);
    }
    uint32_t most = dt__codec_top_sse(p + i, n - i);
    for (int k = 0; k < 8; k++)
        if ((uint32_t)top[k] > most) most = (uint32_t)top[k];
    return most;
}
DT__CODEC_AVX2 int64_t dt__codec_sums_avx2(double above[8], double below[8], const float *p, int64_t n)
{
    dt__rd_avx2 sum[4] = { *(const dt__rdu_avx2 *)above, *(const dt__rdu_avx2 *)(above + 4), *(const dt__rdu_avx2 *)below,
                           *(const dt__rdu_avx2 *)(below + 4) };
    dt__ri_sse  count = { 0, 0, 0, 0 }; /* n is at most DT__CODEC_BLOCK */
    int64_t     i = 0;
    for (; i + 8 <= n; i += 8)
        for (int h = 0; h < 2; h++) {
            dt__rf_sse v = *(const dt__rfu_sse *)(p + i + 4 * h);
            dt__ri_sse less = (dt__ri_sse)(v < 0.0f);
            sum[h] += __builtin_convertvector((dt__rf_sse)((dt__ri_sse)v & ~less), dt__rd_avx2);
            sum[2 + h] += __builtin_convertvector((dt__rf_sse)((dt__ri_sse)v & less), dt__rd_avx2);
            count -= less;
        }
    for (int h = 0; h < 2; h++) {
        *(dt__rdu_avx2 *)(above + 4 * h) = sum[h];
        *(dt__rdu_avx2 *)(below + 4 * h) = sum[2 + h];
    }
    return count[0] + count[1] + count[2] + count[3] + dt__codec_sums_sse(above, below, p + i, n - i);
}
DT__CODEC_AVX2 void dt__codec_signs_avx2(char *bits, const float *p, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        bits[i >> 3] = (char)__builtin_ia32_movmskps256((dt__rf_avx2)(*(const dt__rfu_avx2 *)(p + i) < 0.0f));
    dt__codec_signs_sse(bits + (i >> 3), p + i, n - i);
}
#define DT__CODEC_HALF_avx2(D)                                                             \
    DT__CODEC_AVX2 void dt__codec_narrow_##D##_avx2(char *half, const float *p, int64_t n) \
    {                                                                                      \
        int64_t i = 0;                                                                     \
        for (; i + 8 <= n; i += 8) {                                                       \
            dt__rf_avx2 v;                                                                 \
            DT__RED_LOAD_F32(v, p + i, avx2);                                              \
            DT__RED_STORE_##D(half + 2 * i, v, avx2);                                      \
        }                                                                                  \
        dt__codec_narrow_##D##_sse(half + 2 * i, p + i, n - i);                            \
    }                                                                                      \
    DT__CODEC_AVX2 void dt__codec_widen_##D##_avx2(float *p, const char *half, int64_t n)  \
    {                                                                                      \
        int64_t i = 0;                                                                     \
        for (; i + 8 <= n; i += 8) {                                                       \
            dt__rf_avx2 v;                                                                 \
            DT__RED_LOAD_##D(v, half + 2 * i, avx2);                                       \
            DT__RED_STORE(p + i, v, f, avx2);                                              \
        }                                                                                  \
        dt__codec_widen_##D##_sse(p + i, half + 2 * i, n - i);                             \
    }
DT__CODEC_HALF_avx2(F16)
DT__CODEC_HALF_avx2(BF16)
static const dt__codec_table dt__codec_avx2 = { "avx2",
    dt__codec_product_avx2, dt__codec_top_avx2, dt__codec_sums_avx2, dt__codec_signs_avx2,
    { dt__codec_narrow_F16_avx2, dt__codec_narrow_BF16_avx2 }, { dt__codec_widen_F16_avx2, dt__codec_widen_BF16_avx2 } };
static const dt__codec_table *dt__codec_best(void)
{
    return dt__reduce_best() == &dt__reduce_avx2 ? &dt__codec_avx2 : &dt__codec_sse;
}
#else
static const dt__codec_table *dt__codec_best(void) { return &dt__codec_sse; }
#endif

/* 64 random bits, from a key and a number: SplitMix64 */
static inline uint64_t dt__codec_draw(uint64_t key, uint64_t i)
{
    uint64_t x = key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
static uint64_t dt__codec_key(uint64_t seed, uint64_t step) { return dt__codec_draw(dt__codec_draw(seed, 0), step); }

DT_API const char *dt_codec_name(int kind)
{
    static const char *const name[DT_CODECS] = { "none", "f16", "bf16", "topk", "randomk", "sign", "onebit", "qsgd" };
    return kind >= 0 && kind < DT_CODECS ? name[kind] : "?";
}
/* Fills in defaults and sizes. 0, or DT_COMM_ERR_ARG. */
static int dt__codec_begin(dt__codec_run *r, const char *call, const dt_codec *codec, int64_t n)
{
    if (!codec) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: the codec is NULL", call);
    dt_codec c = *codec;
    if (c.kind < 0 || c.kind >= DT_CODECS)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: codec.kind is %d: expected 0 to %d, a dt_codec_kind", call, c.kind,
                            DT_CODECS - 1);
    bool    sparse = c.kind == DT_CODEC_TOPK || c.kind == DT_CODEC_RANDOMK;
    int64_t most = sparse ? (int64_t)UINT32_MAX : DT__CODEC_MOST;
    if (n < 0 || n > most)
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %" PRId64 " elements: codec %s takes 0 to %" PRId64, call, n,
                            dt_codec_name(c.kind), most);
    if (c.ratio == 0) c.ratio = 0.01;
    if (c.levels == 0) c.levels = 127;
    if (c.bucket == 0) c.bucket = 512;
    if (sparse && !(c.ratio > 0 && c.ratio <= 1))
        return dt__comm_bad(DT_COMM_ERR_ARG, "%s: codec.ratio is %g: expected more than 0, at most 1", call, c.ratio);
    if (c.kind == DT_CODEC_QSGD && (c.levels < 1 || c.levels > DT__CODEC_LEVELS || c.bucket < 1 || c.bucket > INT32_MAX))
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "%s: codec.levels is %d, .bucket %" PRId64 ": expected levels of 1 to %d, a bucket of 1 to %d",
                            call, c.levels, c.bucket, DT__CODEC_LEVELS, INT32_MAX);
    r->table = dt__codec_best();
    r->call = call;
    r->c = c;
    r->n = r->k = n;
    r->bits = 1;
    r->buckets = 0;
    r->at = 0;
    switch (c.kind) {
    case DT_CODEC_NONE: r->nbytes = 4 * n; break;
    case DT_CODEC_F16:
    case DT_CODEC_BF16: r->nbytes = 2 * n; break;
    case DT_CODEC_TOPK:
    case DT_CODEC_RANDOMK:
        r->k = (int64_t)(c.ratio * (double)n + 0.5);
        if (r->k < 1) r->k = 1;
        if (r->k > n) r->k = n;
        r->nbytes = (c.kind == DT_CODEC_TOPK ? 8 : 4) * r->k;
        break;
    default: /* sign, 1-bit, QSGD */
        if (c.kind == DT_CODEC_QSGD) {
            while (c.levels >> (r->bits - 1)) r->bits++;
            r->buckets = (n + c.bucket - 1) / c.bucket;
        }
        r->nbytes = 4 * r->buckets + (n * r->bits + 7) / 8;
    }
    return 0;
}
DT_API int64_t dt_codec_bound(const dt_codec *codec, int64_t n)
{
    dt__codec_run r;
    int           bad = dt__codec_begin(&r, "dt_codec_bound", codec, n);
    return bad ? bad : DT_CODEC_HEADER + r.nbytes;
}

/* ---- the write pass of each codec, and its counterpart: elements i to i + m - 1, which begin a byte */
static void dt__bits_get(float *p, const char *from, const float value[2], int64_t m)
{
    for (int64_t j = 0; j < m; j++) p[j] = value[(unsigned char)from[j >> 3] >> (j & 7) & 1];
}
static float dt__codec_norm(const char *payload, int64_t bucket)
{
    float norm;
    memcpy(&norm, payload + 4 * bucket, sizeof norm);
    return norm;
}
static inline int64_t dt__codec_min(int64_t a, int64_t b) { return a < b ? a : b; }
/* |p| levels / norm in units of 2^-32; adding 32 random bits rounds it up with the probability of its fraction. */
static void dt__qsgd_put(const dt__codec_run *r, char *payload, const float *p, int64_t i, int64_t m)
{
    unsigned char *to = (unsigned char *)payload + 4 * r->buckets + i * r->bits / 8;
    uint64_t       held = 0, levels = (uint64_t)r->c.levels;
    int            have = 0;
    for (int64_t j = 0; j < m;) {
        int64_t bucket = (i + j) / r->c.bucket, end = dt__codec_min(m, (bucket + 1) * r->c.bucket - i);
        double  norm = (double)dt__codec_norm(payload, bucket), by = norm > 0 ? (double)levels / norm * 4294967296.0 : 0;
        for (; j < end; j++) {
            double   a = (double)p[j];
            uint64_t level = ((uint64_t)(int64_t)(fabs(a) * by) + (dt__codec_draw(r->key, (uint64_t)(i + j)) >> 32)) >> 32;
            if (level > levels) level = levels; /* a rounding error above the norm */
            held |= (level << 1 | (a < 0)) << have;
            have += r->bits;
            if (have < 32) continue;
            for (int b = 0; b < 4; b++) to[b] = (unsigned char)(held >> 8 * b);
            to += 4;
            held >>= 32;
            have -= 32;
        }
    }
    for (; have > 0; have -= 8, held >>= 8) *to++ = (unsigned char)held;
}
/* p NULL: only tells whether all levels are valid */
static bool dt__qsgd_get(const dt__codec_run *r, float *p, const char *payload, int64_t i, int64_t m)
{
    const unsigned char *from = (const unsigned char *)payload + 4 * r->buckets + i * r->bits / 8,
                        *last = (const unsigned char *)payload + r->nbytes - 1;
    uint32_t mask = ((uint32_t)1 << r->bits) - 1;
    for (int64_t j = 0; j < m;) {
        int64_t bucket = (i + j) / r->c.bucket, end = dt__codec_min(m, (bucket + 1) * r->c.bucket - i);
        double  unit = (double)dt__codec_norm(payload, bucket) / (double)r->c.levels;
        for (; j < end; j++) {
            const unsigned char *at = from + (j * r->bits >> 3); /* an element touches at most 3 bytes */
            uint32_t             held = at[0];
            if (at < last) held |= (uint32_t)at[1] << 8;
            if (at + 1 < last) held |= (uint32_t)at[2] << 16;
            held = held >> (j * r->bits & 7) & mask;
            int      level = (int)(held >> 1);
            float    value = (float)(unit * (double)level);
            uint32_t u;
            if (level > r->c.levels) return false;
            memcpy(&u, &value, sizeof u);
            u ^= held << 31; /* not a branch: signs are random */
            if (p) memcpy(p + j, &u, sizeof u);
        }
    }
    return true;
}
/* The elements of random-k among i to i + m - 1, in order: selection sampling (Knuth, algorithm S). Returns how many. */
static int dt__randomk_pick(dt__codec_run *r, int64_t i, int64_t m, uint16_t which[DT__CODEC_BLOCK])
{
    int picked = 0;
    for (int64_t j = 0; j < m && r->at + picked < r->k; j++) {
        uint64_t draw = dt__codec_draw(r->key, (uint64_t)(i + j)) >> 32;
        if ((int64_t)(draw * (uint64_t)(r->n - i - j) >> 32) < r->k - r->at - picked) which[picked++] = (uint16_t)j;
    }
    return picked;
}
static void dt__randomk_put(dt__codec_run *r, char *payload, const float *p, int64_t i, int64_t m)
{
    uint16_t which[DT__CODEC_BLOCK];
    int      picked = dt__randomk_pick(r, i, m, which);
    memset(r->sent, 0, (size_t)m * sizeof *p);
    for (int j = 0; j < picked; j++, r->at++) {
        memcpy(payload + 4 * r->at, p + which[j], 4);
        r->sent[which[j]] = p[which[j]];
    }
}
static void dt__topk_put(dt__codec_run *r, char *payload, const float *p, int64_t i, int64_t m)
{
    memset(r->sent, 0, (size_t)m * sizeof *p);
    for (int64_t j = 0; j < m; j++) {
        uint32_t a = dt__codec_abs(p + j), index = (uint32_t)(i + j);
        if (a < r->least || (a == r->least && r->ties-- <= 0)) continue;
        memcpy(payload + 4 * r->at, &index, 4);
        memcpy(payload + 4 * (r->k + r->at), p + j, 4);
        r->at++;
        r->sent[j] = p[j];
    }
}
/* A block of all but top-k and random-k. */
static void dt__codec_get(const dt__codec_run *r, float *p, const char *payload, int64_t i, int64_t m)
{
    switch (r->c.kind) {
    case DT_CODEC_NONE: memcpy(p, payload + 4 * i, (size_t)m * 4); break;
    case DT_CODEC_F16:
    case DT_CODEC_BF16: r->table->widen[r->c.kind == DT_CODEC_BF16](p, payload + 2 * i, m); break;
    case DT_CODEC_SIGN:
    case DT_CODEC_ONEBIT: dt__bits_get(p, payload + i / 8, r->head.u.value, m); break;
    case DT_CODEC_QSGD: dt__qsgd_get(r, p, payload, i, m); break;
    default: break; /* top-k, random-k: their callers do not come here */
    }
}
/* Writes a block; for top-k and random-k also to r->sent. */
static void dt__codec_put(dt__codec_run *r, char *payload, const float *p, int64_t i, int64_t m)
{
    switch (r->c.kind) {
    case DT_CODEC_NONE: memcpy(payload + 4 * i, p, (size_t)m * 4); break;
    case DT_CODEC_F16:
    case DT_CODEC_BF16: r->table->narrow[r->c.kind == DT_CODEC_BF16](payload + 2 * i, p, m); break;
    case DT_CODEC_TOPK: dt__topk_put(r, payload, p, i, m); break;
    case DT_CODEC_RANDOMK: dt__randomk_put(r, payload, p, i, m); break;
    case DT_CODEC_SIGN:
    case DT_CODEC_ONEBIT: r->table->signs(payload + i / 8, p, m); break;
    case DT_CODEC_QSGD: dt__qsgd_put(r, payload, p, i, m); break;
    default: break; /* dt__codec_begin has refused it */
    }
}

/* ---- the measure pass */
/* p from element i on, *m of them */
static const float *dt__codec_block(dt__codec_run *r, int64_t i, int64_t *m)
{
    *m = dt__codec_min(r->n - i, DT__CODEC_BLOCK);
    if (!r->residual && r->scale == 1.0f) return r->in + i;
    r->table->product(r->p, r->in + i, r->residual ? r->residual + i : NULL, r->scale, *m);
    return r->p;
}
static uint32_t dt__codec_more(const dt__codec_run *r, uint32_t top, const float *p, int64_t m)
{
    uint32_t most = r->table->top(p, m);
    return most > top ? most : top;
}
/* Bits of |p| that the codec cannot send. */
static uint32_t dt__codec_limit(const dt__codec_run *r)
{
    return r->c.kind == DT_CODEC_F16 ? 0x477ff000u : r->c.kind == DT_CODEC_BF16 ? 0x7f7f8000u : DT__CODEC_INF;
}
static int dt__codec_refuse(dt__codec_run *r) /* p has such an element: says which */
{
    for (int64_t i = 0, m; i < r->n; i += m) {
        const float *p = dt__codec_block(r, i, &m);
        for (int64_t j = 0; j < m; j++)
            if (dt__codec_abs(p + j) >= dt__codec_limit(r))
                return dt__comm_bad(DT_COMM_ERR_NONFINITE,
                                    "%s: element %" PRId64 " of %" PRId64
                                    " is %g (%g * scale %g + residual %g), which %s; skip this step, or "
                                    "use a smaller scale",
                                    r->call, i + j, r->n, (double)p[j], (double)r->in[i + j], (double)r->scale,
                                    r->residual ? (double)r->residual[i + j] : 0.0,
                                    dt__codec_abs(p + j) >= DT__CODEC_INF ? "is not finite"
                                    : r->c.kind == DT_CODEC_F16           ? "f16 cannot hold (its largest is 65504)"
                                                                          : "bf16 cannot hold (its largest is 3.3895e38)");
    }
    return DT_COMM_ERR_NONFINITE; /* not reached, unless another thread changes the arrays */
}
static double dt__codec_sum(const double lane[DT__CODEC_LANES])
{
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}
/* Sign, 1-bit: the two values that are sent. A mean is between the least and the largest of its elements, so it is finite. */
static uint32_t dt__codec_means(dt__codec_run *r)
{
    double   above[DT__CODEC_LANES] = { 0 }, below[DT__CODEC_LANES] = { 0 };
    int64_t  negative = 0;
    uint32_t top = 0;
    for (int64_t i = 0, m; i < r->n; i += m) {
        const float *p = dt__codec_block(r, i, &m);
        top = dt__codec_more(r, top, p, m);
        negative += r->table->sums(above, below, p, m);
    }
    double a = dt__codec_sum(above), b = dt__codec_sum(below);
    if (r->c.kind == DT_CODEC_SIGN) {
        r->head.u.value[0] = r->n ? (float)((a - b) / (double)r->n) : 0;
        r->head.u.value[1] = -r->head.u.value[0];
    } else {
        r->head.u.value[0] = r->n > negative ? (float)(a / (double)(r->n - negative)) : 0;
        r->head.u.value[1] = negative ? (float)(b / (double)negative) : 0;
    }
    return top;
}
/* QSGD: the norms. A norm is at least the largest |p| of its bucket: rounding is monotone. */
static uint32_t dt__codec_norms(dt__codec_run *r, char *payload, int64_t *large)
{
    double   sum = 0;
    uint32_t top = 0;
    int64_t  bucket = 0, left = r->c.bucket;
    *large = -1;
    for (int64_t i = 0, m; i < r->n; i += m) {
        const float *p = dt__codec_block(r, i, &m);
        top = dt__codec_more(r, top, p, m);
        for (int64_t j = 0; j < m; j++) {
            sum += (double)p[j] * (double)p[j]; /* exact products: contraction changes nothing */
            if (--left && i + j + 1 < r->n) continue;
            float norm = (float)sqrt(sum);
            if (dt__codec_abs(&norm) >= DT__CODEC_INF && *large < 0) *large = bucket;
            memcpy(payload + 4 * bucket, &norm, sizeof norm);
            bucket++;
            sum = 0;
            left = r->c.bucket;
        }
    }
    return top;
}
/* Top-k: the bits of the k-th largest |p|, exactly, by digits of 11, 10 and 10 bits from the highest on. A pass counts the
   digits of the elements that agree with the digits found so far. */
static uint32_t dt__codec_select(dt__codec_run *r)
{
    static const int shift[3] = { 20, 10, 0 }, width[3] = { 2048, 1024, 1024 };
    uint32_t         count[2][2048], top = 0;
    r->least = 0;
    r->ties = r->k;
    for (int d = 0; d < 3; d++) {
        uint32_t above = d ? r->least >> shift[d - 1] : 0, mask = (uint32_t)width[d] - 1;
        memset(count, 0, sizeof count);
        for (int64_t i = 0, m; i < r->n; i += m) {
            const float *p = dt__codec_block(r, i, &m);
            if (d == 0) { /* two counters: neighbours often have the same digit, and an increment waits for the one before */
                top = dt__codec_more(r, top, p, m);
                for (int64_t j = 0; j < m; j++) count[j & 1][dt__codec_abs(p + j) >> 20]++;
            } else
                for (int64_t j = 0; j < m; j++) {
                    uint32_t a = dt__codec_abs(p + j);
                    if (a >> shift[d - 1] == above) count[0][a >> shift[d] & mask]++;
                }
        }
        if (top >= DT__CODEC_INF) break;
        int digit = width[d] - 1;
        for (; digit > 0; digit--) {
            int64_t here = (int64_t)count[0][digit] + count[1][digit];
            if (here >= r->ties) break;
            r->ties -= here;
        }
        r->least |= (uint32_t)digit << shift[d];
    }
    return top;
}
static uint32_t dt__codec_scan(dt__codec_run *r)
{
    uint32_t top = 0;
    for (int64_t i = 0, m; i < r->n; i += m) {
        const float *p = dt__codec_block(r, i, &m);
        top = dt__codec_more(r, top, p, m);
    }
    return top;
}

/* ---- the calls */
DT_API int64_t dt_codec_encode(const dt_codec *codec, const float *in, int64_t n, float *residual, float scale, uint64_t step,
                               void *out, int64_t nout)
{
    return dt__codec_encode_to(codec, in, n, residual, residual, scale, step, out, nout);
}
DT__INSIDE int64_t dt__codec_encode_to(const dt_codec *codec, const float *in, int64_t n, const float *residual,
                                       float *rest, float scale, uint64_t step, void *out, int64_t nout)
{
    dt__codec_run r;
    char         *payload = (char *)out + DT_CODEC_HEADER;
    uint32_t      top = 0;
    int64_t       large = -1;
    int           bad = dt__codec_begin(&r, "dt_codec_encode", codec, n);
    if (bad) return bad;
    if ((n && !in) || !out) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %s is NULL", r.call, out ? "in" : "out");
    if (nout < DT_CODEC_HEADER + r.nbytes)
        return dt__comm_bad(DT_COMM_ERR_ARG,
                            "%s: out has %" PRId64 " bytes, codec %s needs %" PRId64 " for %" PRId64
                            " floats: see dt_codec_bound",
                            r.call, nout, dt_codec_name(r.c.kind), DT_CODEC_HEADER + r.nbytes, n);
    memset(&r.head, 0, sizeof r.head);
    r.head.magic = DT__CODEC_MAGIC;
    r.head.kind = (uint32_t)r.c.kind;
    r.head.n = n;
    r.head.step = step;
    r.key = dt__codec_key(r.c.seed, step);
    r.in = in;
    r.residual = residual;
    r.scale = scale;
    bool measured = true;
    switch (r.c.kind) {
    case DT_CODEC_TOPK:
        top = dt__codec_select(&r);
        r.head.u.k = (uint64_t)r.k;
        break;
    case DT_CODEC_SIGN:
    case DT_CODEC_ONEBIT: top = dt__codec_means(&r); break;
    case DT_CODEC_QSGD:
        top = dt__codec_norms(&r, payload, &large);
        r.head.u.qsgd[0] = (uint32_t)r.c.levels;
        r.head.u.qsgd[1] = (uint32_t)r.c.bucket;
        break;
    default: /* without a residual the write pass looks itself */
        if (r.c.kind == DT_CODEC_RANDOMK) r.head.u.seed = r.c.seed;
        measured = residual != NULL;
        if (measured) top = dt__codec_scan(&r);
    }
    if (top >= dt__codec_limit(&r)) return dt__codec_refuse(&r);
    if (large >= 0)
        return dt__comm_bad(DT_COMM_ERR_NONFINITE,
                            "%s: the norm of bucket %" PRId64
                            " is larger than f32 can hold; skip this step, or use a smaller scale",
                            r.call, large);
    bool sparse = r.c.kind == DT_CODEC_TOPK || r.c.kind == DT_CODEC_RANDOMK;
    for (int64_t i = 0, m; i < n; i += m) {
        const float *p = dt__codec_block(&r, i, &m);
        if (!measured) top = dt__codec_more(&r, top, p, m);
        dt__codec_put(&r, payload, p, i, m);
        if (!rest) continue;
        if (!sparse) dt__codec_get(&r, r.sent, payload, i, m);
        r.table->product(rest + i, r.sent, p, -1.0f, m); /* p - sent */
    }
    if (top >= dt__codec_limit(&r)) return dt__codec_refuse(&r);
    memcpy(out, &r.head, sizeof r.head);
    return DT_CODEC_HEADER + r.nbytes;
}

/* The header of the bytes is that of this codec and n. Of top-k it tells k. */
static int dt__codec_check_head(dt__codec_run *r, int64_t nin)
{
    const dt__codec_head *h = &r->head;
    if (h->magic != DT__CODEC_MAGIC || h->kind >= DT_CODECS)
        return dt__comm_bad(DT_COMM_ERR_MISMATCH,
                            "%s: these bytes are not from dt_codec_encode of this version (magic %08x, kind %u)", r->call,
                            h->magic, h->kind);
    if (h->kind != (uint32_t)r->c.kind || h->n != r->n)
        return dt__comm_bad(DT_COMM_ERR_MISMATCH,
                            "%s: the sender used codec %s for %" PRId64 " floats, here codec %s for %" PRId64
                            " floats is expected",
                            r->call, dt_codec_name((int)h->kind), h->n, dt_codec_name(r->c.kind), r->n);
    if (h->kind == DT_CODEC_TOPK) {
        if (h->u.k > (uint64_t)r->n)
            return dt__comm_bad(DT_COMM_ERR_MISMATCH, "%s: top %" PRIu64 " of %" PRId64 " floats", r->call, h->u.k, r->n);
        r->k = (int64_t)h->u.k;
        r->nbytes = 8 * r->k;
    }
    if (h->kind == DT_CODEC_RANDOMK && h->u.seed != r->c.seed)
        return dt__comm_bad(DT_COMM_ERR_MISMATCH,
                            "%s: the sender's codec.seed is %" PRIu64 ", here it is %" PRIu64
                            ": random-k needs one seed on all ranks",
                            r->call, h->u.seed, r->c.seed);
    if (h->kind == DT_CODEC_QSGD && (h->u.qsgd[0] != (uint32_t)r->c.levels || h->u.qsgd[1] != (uint32_t)r->c.bucket))
        return dt__comm_bad(
            DT_COMM_ERR_MISMATCH,
            "%s: the sender's codec has %u levels and buckets of %u, here it has %d levels and buckets of %" PRId64, r->call,
            h->u.qsgd[0], h->u.qsgd[1], r->c.levels, r->c.bucket);
    if (nin != DT_CODEC_HEADER + r->nbytes)
        return dt__comm_bad(DT_COMM_ERR_MISMATCH, "%s: %" PRId64 " bytes, but codec %s of %" PRId64 " floats%s has %" PRId64,
                            r->call, nin, dt_codec_name(r->c.kind), r->n, h->kind == DT_CODEC_RANDOMK ? " with this ratio" : "",
                            DT_CODEC_HEADER + r->nbytes);
    return 0;
}
static bool dt__codec_finite(dt__codec_run *r, const char *from, int64_t n) /* n f32, at any address */
{
    for (int64_t i = 0, m; i < n; i += m) {
        m = dt__codec_min(n - i, DT__CODEC_BLOCK);
        memcpy(r->p, from + 4 * i, (size_t)m * 4);
        if (r->table->top(r->p, m) >= DT__CODEC_INF) return false;
    }
    return true;
}
static int dt__codec_damaged(const dt__codec_run *r, const char *what)
{
    return dt__comm_bad(DT_COMM_ERR_MISMATCH, "%s: %s in the bytes of codec %s: they are damaged, or not from dt_codec_encode",
                        r->call, what, dt_codec_name(r->c.kind));
}
static int dt__codec_check(dt__codec_run *r, const char *payload) /* the payload, and the values in the header */
{
    const float *value = r->head.u.value;
    int64_t      bits = r->n * r->bits; /* sign, 1-bit, QSGD */
    bool         finite = true;
    switch (r->c.kind) {
    case DT_CODEC_NONE:
    case DT_CODEC_RANDOMK: finite = dt__codec_finite(r, payload, r->k); break;
    case DT_CODEC_F16:
    case DT_CODEC_BF16:
        for (int64_t i = 0, m; i < r->n && finite; i += m) {
            m = dt__codec_min(r->n - i, DT__CODEC_BLOCK);
            dt__codec_get(r, r->p, payload, i, m);
            finite = r->table->top(r->p, m) < DT__CODEC_INF;
        }
        break;
    case DT_CODEC_TOPK:
        for (int64_t j = 0, before = -1; j < r->k; j++) {
            uint32_t index;
            memcpy(&index, payload + 4 * j, 4);
            if ((int64_t)index <= before) return dt__codec_damaged(r, "the indices are not ascending");
            if ((int64_t)index >= r->n) return dt__codec_damaged(r, "an index is too large");
            before = (int64_t)index;
        }
        finite = dt__codec_finite(r, payload + 4 * r->k, r->k);
        break;
    case DT_CODEC_SIGN:
    case DT_CODEC_ONEBIT:
        finite = dt__codec_abs(value) < DT__CODEC_INF && dt__codec_abs(value + 1) < DT__CODEC_INF;
        if (finite && (value[0] < 0 || value[1] > 0)) return dt__codec_damaged(r, "a value has the wrong sign");
        break;
    default: /* QSGD */
        finite = dt__codec_finite(r, payload, r->buckets);
        for (int64_t b = 0; b < r->buckets && finite; b++)
            if (dt__codec_norm(payload, b) < 0) return dt__codec_damaged(r, "a norm is negative");
        if ((r->c.levels & (r->c.levels + 1)) != 0 && !dt__qsgd_get(r, NULL, payload, 0, r->n))
            return dt__codec_damaged(r, "a level is too large");
    }
    if (!finite)
        return dt__comm_bad(DT_COMM_ERR_NONFINITE,
                            "%s: a value is not finite in the bytes of codec %s: a sum was too large, or they are damaged",
                            r->call, dt_codec_name(r->c.kind));
    if (r->c.kind >= DT_CODEC_SIGN && (bits & 7) && (unsigned char)payload[r->nbytes - 1] >> (bits & 7))
        return dt__codec_damaged(r, "bits behind the last element are set");
    return 0;
}
static void dt__topk_get(const dt__codec_run *r, float *out, const char *payload, bool add)
{
    if (!add) memset(out, 0, (size_t)r->n * sizeof *out);
    for (int64_t j = 0; j < r->k; j++) {
        uint32_t index;
        float    value;
        memcpy(&index, payload + 4 * j, 4);
        memcpy(&value, payload + 4 * (r->k + j), 4);
        out[index] = add ? out[index] + value : value;
    }
}
static void dt__randomk_get(dt__codec_run *r, float *out, const char *payload, bool add)
{
    uint16_t which[DT__CODEC_BLOCK];
    if (!add) memset(out, 0, (size_t)r->n * sizeof *out);
    for (int64_t i = 0, m; i < r->n && r->at < r->k; i += m) {
        m = dt__codec_min(r->n - i, DT__CODEC_BLOCK);
        int picked = dt__randomk_pick(r, i, m, which);
        for (int j = 0; j < picked; j++, r->at++) {
            float value, *to = out + i + which[j];
            memcpy(&value, payload + 4 * r->at, 4);
            *to = add ? *to + value : value;
        }
    }
}
DT_API int dt_codec_decode(const dt_codec *codec, const void *in, int64_t nin, float *out, int64_t n, bool add)
{
    dt__codec_run r;
    const char   *payload = (const char *)in + DT_CODEC_HEADER;
    int           bad = dt__codec_begin(&r, "dt_codec_decode", codec, n);
    if (bad) return bad;
    if (!in || (n && !out)) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %s is NULL", r.call, in ? "out" : "in");
    if (nin < DT_CODEC_HEADER)
        return dt__comm_bad(DT_COMM_ERR_MISMATCH, "%s: %" PRId64 " bytes are not even a header, which has %d", r.call, nin,
                            DT_CODEC_HEADER);
    memcpy(&r.head, in, sizeof r.head);
    r.key = dt__codec_key(r.c.seed, r.head.step);
    if ((bad = dt__codec_check_head(&r, nin)) != 0 || (bad = dt__codec_check(&r, payload)) != 0) return bad;
    if (r.c.kind == DT_CODEC_TOPK) dt__topk_get(&r, out, payload, add);
    else if (r.c.kind == DT_CODEC_RANDOMK) dt__randomk_get(&r, out, payload, add);
    else
        for (int64_t i = 0, m; i < n; i += m) {
            m = dt__codec_min(n - i, DT__CODEC_BLOCK);
            dt__codec_get(&r, add ? r.sent : out + i, payload, i, m);
            if (add) dt__fold(DT_COMM_F32, DT_COMM_SUM, out + i, r.sent, m, false);
        }
    return 0;
}

/* ==================================================================================================== >>engine
   Works are done one after the other, in the order in which they were started. Only sends and receives at the head of
   the queue progress together.

   Threads. One thread at a time drives the engine (engine.driving): the thread of a blocking call or of dt_work_wait if
   no other drives, else the engine's own thread, which the first asynchronous call starts. The others wait on
   engine.cond. Driving means polling the first work until it is done. Polls do not block; between polls dt__idle spins,
   yields or sleeps.

   Locks. engine.lock protects the queue (head, tail, next), kept, quit and has_thread. All other fields of the engine, and
   works that have begun, belong to the driver (drive, watch, waiting are atomic). head is also read without the lock
   (dt__short): it is stored with release order.

   States of a work:
     queued      dt__submit has put it at the end of the queue
     begun       dt__work_begin: its input is copied, the other ranks can see that this rank has called it
     polled      dt__work_poll until it returns 1 (done) or a negative status. A work on a device is polled first for
                 the exchange of records, then (arrived) for the device transport.
     ended       dt__work_end: the result is copied out, history and statistics are updated
     finished    dt__work_over: it is out of the queue and its waiters are woken; dt_work_wait frees it */
DT__INSIDE const char *dt__comm_dtype_name(int dtype)
{
    return dtype == DT_COMM_F64 ? "f64" : dt_dtype_name((dt_dtype)dtype);
}
static const char *const dt__comm_ops[] = { "sum", "mean", "min", "max", "prod", "or" };
static bool        dt__frame_frees(const dt__frame *f) { return f->coll == DT_COLL_BARRIER && f->root == DT__ROOT_FREE; }
static const char *dt__frame_text(const dt__frame *f, char *buf, size_t nbytes)
{
    if (dt__frame_frees(f)) snprintf(buf, nbytes, "dt_comm_free, its call #%" PRIu64, f->seq + 1);
    else
        snprintf(buf, nbytes, "%s #%" PRIu64 " of %" PRId64 " %s, %s, %s %d, algorithm %s",
                 dt_coll_name((dt_coll)f->coll), f->seq + 1, f->count, dt__comm_dtype_name(f->dtype),
                 f->op < DT_COMM_OPS ? dt__comm_ops[f->op] : "?", f->coll == DT_COLL_ALLGATHER && f->root ? "tag" : "root", f->root,
                 dt_algo_name((dt_algo)f->algo));
    return buf;
}
/* Both ranks of a mismatch, and the others by the control connections, get this text and nothing else. dt__comm_left
   finds in it the rank that called dt_comm_free, dt__comm_calls the number of the call. */
#define DT__LEFT_WORDS " left with dt_comm_free"
static void dt__frame_differ(const dt__frame *a, const dt__frame *b, char *buf, size_t nbytes)
{
    char             x[200], y[200];
    const dt__frame *left = dt__frame_frees(a) ? a : dt__frame_frees(b) ? b : NULL, *other = left == a ? b : a;
    if (left)
        snprintf(buf, nbytes,
                 "ranks call different things: rank %d" DT__LEFT_WORDS " (its call #%" PRIu64 "), rank %d is in %s; all ranks "
                 "must make the same calls before dt_comm_free",
                 left->rank, left->seq + 1, other->rank, dt__frame_text(other, y, sizeof y));
    else
        snprintf(buf, nbytes, "ranks call different things: rank %d %s; rank %d %s", a->rank,
                 dt__frame_text(a, x, sizeof x), b->rank, dt__frame_text(b, y, sizeof y));
}
DT__INSIDE int dt__comm_left(const dt_comm *c) /* the rank that left too early with dt_comm_free, or -1 */
{
    const char *end = c && dt_comm_get_status(c) ? strstr(c->text, DT__LEFT_WORDS) : NULL, *at = end;
    while (end && at > c->text && at[-1] >= '0' && at[-1] <= '9') at--;
    return at == end ? -1 : atoi(at);
}
DT__INSIDE bool dt__comm_tags(const dt_comm *c, int rank[2], int tag[2])
{
    const char *at = dt_comm_get_status(c) == DT_COMM_ERR_MISMATCH ? strstr(c->text, "rank ") : NULL;
    if (!at || sscanf(at, "rank %d", &rank[0]) != 1 || !(at = strstr(at, ", tag ")) || sscanf(at, ", tag %d", &tag[0]) != 1) return false;
    return (at = strstr(at, "; rank ")) != NULL && sscanf(at, "; rank %d", &rank[1]) == 1 && (at = strstr(at, ", tag ")) != NULL &&
           sscanf(at, ", tag %d", &tag[1]) == 1;
}
DT__INSIDE uint64_t dt__comm_calls(const dt_comm *c, uint64_t *differs)
{
    const char *at = dt_comm_get_status(c) == DT_COMM_ERR_MISMATCH ? strchr(c->text, '#') : NULL;
    if (differs) *differs = at ? (uint64_t)strtoull(at + 1, NULL, 10) : 0;
    return __atomic_load_n(&c->seq, __ATOMIC_ACQUIRE);
}
static void dt__late_by(dt_comm *c, int rank, int64_t ns)
{
    /* it must be clearly later than the last straggler: a time that was passed on by other ranks is less exact */
    if (rank < 0 || rank >= c->size || rank == c->rank || ns < DT__LATE + c->late + c->late / 8) return;
    c->late = ns;
    c->late_rank = rank;
}
/* A frame arrived while this rank waited: it says when its sender began, and the last rank that the sender knows of. */
static void dt__late_heard(dt_comm *c, const dt__frame *f)
{
    if (f->sent > (uint64_t)(INT64_MAX / 4)) return; /* implausible: ignore it */
    int64_t ns = dt__comm_now() - c->began - (int64_t)f->sent;
    dt__late_by(c, f->rank, ns);
    if (f->late > 0 && f->late < INT64_MAX / 4) dt__late_by(c, f->late_rank, ns + f->late);
}
DT__INSIDE bool dt__frame_ok(dt_comm *c, int peer, const dt__frame *want, const dt__frame *got)
{
    char text[480];
    if (got->magic != want->magic || got->version != want->version) {
        dt__comm_fail(c, DT_COMM_ERR_NET, peer,
                      "rank %d sent a frame with magic %08x, version %u; expected %08x, version %u: all ranks must use the "
                      "same version of dt",
                      peer, got->magic, got->version, want->magic, want->version);
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
    /* if one rank is ahead, name what it called under the number of the other's call */
    const dt__shared *s = (const dt__shared *)c->shared;
    dt__frame         a = *want, b = *got, note;
    bool              pair = want->coll == DT_COLL_SEND || got->coll == DT_COLL_SEND; /* these have numbers of their own */
    if (!pair && got->seq < want->seq && c->note && dt__note_get(c->note, got->seq, &note)) a = note;
    if (!pair && got->seq > want->seq && s && s->index[peer] >= 0 &&
        dt__note_get(dt__slot_of(s, s->index[peer])->note, want->seq, &note))
        b = note;
    dt__frame_differ(&a, &b, text, sizeof text);
    dt__comm_fail(c, DT_COMM_ERR_MISMATCH, peer, "%s", text);
    return false;
}

/* ---- reductions in shared memory. Each rank has a slot, which it alone writes (dt__rank_slot in dt_net.h). It announces
   progress by a counter in its slot, and the others wait for it (DT__REACHED). In operation `no` a rank writes its post,
   waits until all ranks have posted and compares the frames; then
     short vectors (DT__POST_SHORT)   are in the posts: each rank reduces all of them
     direct                           all vectors are in memory from dt_comm_alloc: each rank reduces its part of all
                                      vectors in place
     staged                           each rank copies piece after piece to its stage buffers (put), reduces its part of
                                      all stages (part), and copies the result back (taken) */
enum { /* dt__coll_work.phase */
    DT__POST = 0,    /* write the post */
    DT__COMPARE,     /* wait for all posts and compare them */
    DT__DIRECT,      /* reduce in place */
    DT__DIRECT_END,  /* wait until all ranks have */
    DT__STAGED       /* put, reduce and take pieces */
};
static int64_t dt__part_at(int64_t n, int p, int i, size_t size) /* where part i begins: parts are whole cache lines */
{
    int64_t line = 64 / (int64_t)size, lines = (n + line - 1) / line,
            at = lines / p * i + (i < lines % p ? i : lines % p);
    return at * line < n ? at * line : n;
}
static void dt__reduce_to(const dt__coll_work *w, char **dst, int ndst, char **src, int nsrc, int64_t n)
{
    if (w->op != DT_COMM_MEAN) {
        dt__reduce_many(w->dtype, w->op, (void **)dst, ndst, (const void **)src, nsrc, n);
        return;
    }
    char    block[16384] DT__ALIGNED, *from[DT__SHARED_RANKS], *one = block;
    int64_t most = (int64_t)(sizeof block / w->size);
    for (int64_t at = 0; at < n; at += most) {
        int64_t k = n - at < most ? n - at : most;
        for (int i = 0; i < nsrc; i++) from[i] = src[i] + (size_t)at * w->size;
        dt__reduce_many(w->dtype, DT_COMM_SUM, (void **)&one, 1, (const void **)from, nsrc, k);
        dt__reduce_scale(w->dtype, block, k, w->w.c->size);
        for (int i = 0; i < ndst; i++) memcpy(dst[i] + (size_t)at * w->size, block, (size_t)k * w->size);
    }
}
static bool dt__all_reached(const dt__shared *s, int64_t field, uint64_t value) /* field: offset of a counter in a slot */
{
    for (int i = 0; i < s->n; i++)
        if (__atomic_load_n((uint64_t *)(void *)((char *)dt__slot_of(s, i) + field), __ATOMIC_ACQUIRE) < value)
            return false;
    return true;
}
#define DT__REACHED(s, field, value) dt__all_reached(s, (int64_t)offsetof(dt__rank_slot, field), value)
static void dt__shared_tell(dt__shared *s, uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    dt__shared_ring(s);
}
/* Piece k of the work: returns its elements; *at: where it begins; *lo and *hi: the part of it that rank i reduces. */
static int64_t dt__piece_of(const dt__shared *s, const dt__coll_work *w, int64_t k, int i, int64_t *at, int64_t *lo,
                            int64_t *hi)
{
    int64_t n;
    *at = k * w->piece;
    n = w->n - *at < w->piece ? w->n - *at : w->piece;
    *lo = dt__part_at(n, s->n, i, w->size);
    *hi = dt__part_at(n, s->n, i + 1, w->size);
    return n;
}
static char *dt__stage_of(const dt__shared *s, const dt__coll_work *w, int64_t k, int i)
{
    return s->stages + (size_t)i * DT__STAGE_SPAN + (w->first + (uint64_t)k) % (uint64_t)w->nstages * DT__PIECE;
}
/* Is there a stage for the next piece? A piece that this rank has taken was reduced by all ranks, so nobody uses its stage. */
static bool dt__stage_free(const dt__coll_work *w) { return w->put - w->taken < w->nstages; }
static void dt__stage_put(dt__shared *s, dt__coll_work *w)
{
    int64_t at, lo, hi, n = dt__piece_of(s, w, w->put, s->me, &at, &lo, &hi);
    char   *to = dt__stage_of(s, w, w->put, s->me), *from = w->data + (size_t)at * w->size;
    memcpy(to, from, (size_t)lo * w->size);
    memcpy(to + (size_t)hi * w->size, from + (size_t)hi * w->size, (size_t)(n - hi) * w->size);
    w->put++;
    dt__shared_tell(s, &dt__slot_of(s, s->me)->put, w->first + (uint64_t)w->put);
}
/* All vectors x[0] .. x[s->n - 1] := their reduction, n elements */
static void dt__reduce_all(const dt__shared *s, const dt__coll_work *w, char *const *x, int64_t n)
{
    char   *at[DT__SHARED_RANKS];
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
static void dt__stage_reduce(dt__shared *s, dt__coll_work *w)
{
    int64_t at, lo, hi;
    char   *x[DT__SHARED_RANKS];
    dt__piece_of(s, w, w->reduced, s->me, &at, &lo, &hi);
    for (int i = 0; i < s->n; i++)
        x[i] = i == s->me ? w->data + (size_t)(at + lo) * w->size
                          : dt__stage_of(s, w, w->reduced, i) + (size_t)lo * w->size;
    dt__reduce_all(s, w, x, hi - lo);
    w->reduced++;
    dt__shared_tell(s, &dt__slot_of(s, s->me)->part, w->first + (uint64_t)w->reduced);
}
static void dt__stage_take(dt__shared *s, dt__coll_work *w)
{
    int64_t at, lo, hi, n = dt__piece_of(s, w, w->taken, s->me, &at, &lo, &hi);
    char   *from = dt__stage_of(s, w, w->taken, s->me), *to = w->data + (size_t)at * w->size;
    dt__own_lines(from, (size_t)lo * w->size); /* the next piece will be written there */
    memcpy(to, from, (size_t)lo * w->size);
    dt__own_lines(from + (size_t)hi * w->size, (size_t)(n - hi) * w->size);
    memcpy(to + (size_t)hi * w->size, from + (size_t)hi * w->size, (size_t)(n - hi) * w->size);
    w->taken++;
}
static int dt__shared_staged(dt__shared *s, dt__coll_work *w) /* the oldest piece first, as it is in the caches */
{
    if (w->taken < w->reduced && DT__REACHED(s, part, w->first + (uint64_t)w->taken + 1)) dt__stage_take(s, w);
    else if (w->reduced < w->put && DT__REACHED(s, put, w->first + (uint64_t)w->reduced + 1)) dt__stage_reduce(s, w);
    else if (w->put < w->pieces && dt__stage_free(w)) dt__stage_put(s, w);
    else return 0;
    w->progress = true;
    return w->taken == w->pieces;
}
static int dt__shared_direct(dt_comm *c, dt__shared *s, dt__coll_work *w)
{
    dt__rank_slot *me = dt__slot_of(s, s->me);
    char     *x[DT__SHARED_RANKS], *to = w->scatter_n ? w->scatter + (size_t)w->done * w->size : NULL;
    int64_t   lo = (w->scatters ? w->scatter_at : dt__part_at(w->n, s->n, s->me, w->size)) + w->done;
    int64_t   hi = w->scatters ? w->scatter_at + w->scatter_n : dt__part_at(w->n, s->n, s->me + 1, w->size);
    int64_t   most = (1 << 20) / (int64_t)w->size; /* elements in one poll */
    if (w->phase == DT__DIRECT) {
        int64_t n = hi - lo < most ? hi - lo : most;
        for (int i = 0; i < s->n; i++) {
            char *v = dt__shared_see(s, dt__slot_of(s, i)->post[w->no & 1].at, (size_t)w->n * w->size);
            if (!v) return dt__shared_unseen(c, s->rank[i], (size_t)w->n * w->size);
            x[i] = v + (size_t)lo * w->size;
        }
        if (!dt__shared_touch(s)) return 0;
        if (w->scatters && n > 0) dt__reduce_to(w, &to, 1, x, s->n, n);
        else if (!w->scatters) dt__reduce_all(s, w, x, n);
        dt__shared_leave(s);
        w->done += n;
        w->progress = true;
        if (lo + n < hi) return 0;
        dt__shared_tell(s, &me->fin, w->no + 1);
        w->phase = DT__DIRECT_END;
    }
    return DT__REACHED(s, fin, w->no + 1);
}
/* The short vector of rank i in operation no: in its post, or beside it if it is longer. */
static char *dt__short_of(const dt__shared *s, int i, uint64_t no, size_t nbytes)
{
    dt__rank_slot *t = dt__slot_of(s, i);
    return nbytes <= DT__POST_FIRST ? (char *)t->post[no & 1].first : (char *)t->more[no & 1];
}
/* The sum of a few f32, the most frequent case, with scalars: a vector load would overlap the recent stores of the own
   post and stall until its cache line is back from the other core. The same bits as >>reducing. */
static void dt__short_sum(const dt__shared *s, uint64_t no, float *x, int n)
{
    for (int k = 0; k < n; k++) {
        float    v = 0, one;
        uint32_t nan = UINT32_MAX;
        for (int i = 0; i < s->n; i++) {
            if (i == s->me) one = x[k];
            else memcpy(&one, dt__slot_of(s, i)->post[no & 1].first + 4 * (size_t)k, sizeof one);
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
    const void       *src[DT__SHARED_RANKS];
    if (dtype == DT_COMM_F32 && op == DT_COMM_SUM && nbytes <= DT__POST_FIRST) {
        dt__short_sum(s, no, (float *)data, (int)n);
        return;
    }
    for (int i = 0; i < s->n; i++) {
        src[i] = dt__short_of(s, i, no, nbytes);
        for (size_t k = DT__POST_FIRST; i != s->me && k < nbytes; k += 64) /* all lines at once */
            __builtin_prefetch((const char *)src[i] + k);
    }
    dt__reduce_many(dtype, op, &data, 1, src, s->n, n);
    if (op == DT_COMM_MEAN) dt__reduce_scale(dtype, data, n, c->size);
}
/* Allreduce, or with n = 0 a barrier, or reduce_scatter (w->scatter), which is done directly, in the order of ranks as an allreduce
   is, or by its plan if a rank's vector is not in memory that the others see. Returns 1: done, 0: call again, negative: failed. */
static int dt__shared_allreduce(dt_comm *c, dt__coll_work *w)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__rank_slot   *me = dt__slot_of(s, s->me);
    size_t      nbytes = (size_t)w->n * w->size;
    bool        small = nbytes <= DT__POST_SHORT && !w->scatters;
    if (w->phase == DT__POST && w->scatters) {
        dt__post *p = &me->post[s->no & 1];
        w->no = s->no++;
        p->print = dt__frame_print(&w->head);
        p->at = dt__shared_at(s, w->input, nbytes);
        if (!w->scatter && w->scatter_n) p->at = DT__UNSEEN;
        p->frame = w->head;
        dt__shared_tell(s, &p->no, w->no + 1);
        w->phase = DT__COMPARE;
        w->k = 0;
    } else if (w->phase == DT__POST) {
        dt__post *p = &me->post[s->no & 1];
        w->no = s->no++;
        p->print = dt__frame_print(&w->head);
        p->at = DT__UNSEEN;
        if (small) {
            dt__comm_copy(dt__short_of(s, s->me, w->no, nbytes), w->data, nbytes);
        } else {
            /* several pieces, so that copying and reducing overlap */
            size_t piece = (nbytes / DT__STAGES + 4095) & ~(size_t)4095;
            piece = piece < DT__PIECE_MIN ? (size_t)DT__PIECE_MIN : piece > DT__PIECE ? (size_t)DT__PIECE : piece;
            w->first = s->pieces;
            w->nstages = s->nstages;
            w->piece = (int64_t)(piece / w->size);
            w->pieces = (w->n + w->piece - 1) / w->piece;
            p->at = dt__shared_at(s, w->data, nbytes);
            s->shares_core = s->shares_core && dt__crowd_known(s);
            if (p->at < 0 && s->shares_core) p->at = DT__UNSEEN_CROWDED;
            if (p->at < 0 && !dt__shared_stage(c, s, w->nstages)) return c->status;
            if (p->at < 0) dt__stage_put(s, w);
        }
        p->frame = w->head;
        dt__shared_tell(s, &p->no, w->no + 1);
        w->phase = DT__COMPARE;
        w->k = 0;
    }
    if (w->phase == DT__COMPARE) {
        uint64_t print = dt__frame_print(&w->head);
        for (; w->k < s->n; w->k++) {
            const dt__post *p = &dt__slot_of(s, w->k)->post[w->no & 1];
            if (__atomic_load_n(&p->no, __ATOMIC_ACQUIRE) != w->no + 1) return 0;
            if (p->print != print && !dt__frame_ok(c, s->rank[w->k], &w->head, &p->frame)) return c->status;
        }
        for (int i = 0; c->slow && i < s->n; i++)
            dt__late_by(c, s->rank[i], (int64_t)dt__slot_of(s, i)->post[w->no & 1].frame.sent - c->began);
        w->progress = true;
        if (small) {
            if (w->n) dt__short_reduce(c, w->no, w->data, w->n, w->dtype, w->op, w->size);
            return 1;
        }
        bool direct = true, crowded = false;
        for (int i = 0; i < s->n; i++) {
            int64_t at = dt__slot_of(s, i)->post[w->no & 1].at;
            direct = direct && at >= 0;
            crowded = crowded || at == DT__UNSEEN_CROWDED;
        }
        if (w->scatters) {
            w->way = direct ? DT__BY_SHARED : DT__BY_PLAN;
            w->phase = DT__DIRECT;
            if (direct) w->out = NULL; /* no copy at the end */
            return 0;
        }
        w->phase = direct ? DT__DIRECT : DT__STAGED;
        if (!direct && !dt__shared_stage(c, s, w->nstages)) return c->status;
        if (!direct) { /* all ranks see the same posts, so they choose the same number of stages */
            s->pieces += (uint64_t)w->pieces;
            s->nstages = crowded ? DT__STAGES_MOST : DT__STAGES;
        }
    }
    return w->phase == DT__STAGED ? dt__shared_staged(s, w) : dt__shared_direct(c, s, w);
}

/* ---- plans */
static bool dt__has_native(const dt_comm *c) { return c->across && c->across->native; }
/* After a failure the transport may still write to buffers of calls that had not ended: they are not freed. */
static bool dt__late_writes(const dt_comm *c) { return c->across && c->across->late_writes; }
static const dt__transport *dt__transport_to(const dt_comm *c, int peer)
{
    return c->inside && c->host[peer] == c->host[c->rank] ? c->inside : c->across;
}
static void dt__counter_add(int64_t *counter, int64_t n) /* one thread writes it, any thread may read it */
{
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}
static char *dt__plan_buf(const struct dt__engine *e, const dt__coll_work *w, int buf)
{
    return buf == DT_PLAN_DATA ? w->data : buf == DT_PLAN_SCRATCH ? e->scratch : (char *)(uintptr_t)w->input;
}
static int dt__round_begin(dt_comm *c, dt__coll_work *w)
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
    uint64_t age = w->step ? (uint64_t)(dt__comm_now() - w->w.started) : 0;
    for (int64_t i = 0; i < n; i++) {
        const dt_plan_step *t = s + w->step + i;
        dt__msg            *m = e->msg + i;
        char               *at = dt__plan_buf(e, w, t->buf) + (size_t)t->at * w->size;
        const char         *from = dt__plan_buf(e, w, t->from_buf) + (size_t)t->from * w->size;
        e->over[i] = 0;
        /* transports reduce in place: the own operand of a FOLD first goes to its place */
        if ((t->kind == DT_STEP_COPY || t->kind == DT_STEP_FOLD) && at != from)
            dt__comm_copy(at, from, (size_t)t->n * w->size);
        if (t->kind == DT_STEP_COPY) {
            e->over[i] = 1;
        } else if (t->kind == DT_STEP_REDUCE) {
            dt__fold(w->dtype, w->op, at, from, t->n, t->left);
            e->over[i] = 1;
        } else {
            memset(m, 0, sizeof *m);
            m->head = w->head;
            m->head.sent = age;
            m->head.late = c->late;
            m->head.late_rank = c->late_rank;
            m->head.step = (uint32_t)t->round;
            m->head.nbytes = (uint64_t)t->n * w->size;
            m->ptr = at;
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
static int dt__plan_poll(dt_comm *c, dt__coll_work *w)
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
            if (*busy == e->turn) continue; /* messages of a pair stay in order */
            const dt__transport *t = dt__transport_to(c, s[i].peer);
            int rc = out ? t->send(c, s[i].peer, m) : t->recv(c, s[i].peer, m);
            if (rc < 0) return rc;
            if (m->done + m->head_done != before || rc) w->progress = true;
            if (rc) {
                e->over[i] = 1;
                if (out) dt__counter_add(&e->counters.bytes, (int64_t)m->n);
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
static int dt__work_poll(dt_comm *c, dt__coll_work *w)
{
    int rc = 1;
    if (w->agree && (rc = c->across->agree(c, &w->head, &w->phase)) > 0) {
        w->agree = false;
        w->phase = 0;
        w->progress = true;
    }
    if (rc > 0 && w->way == DT__BY_NATIVE)
        rc = c->across->native(c, w->head.coll, w->data, w->n, w->part, w->dtype, w->op, w->head.root, &w->phase, &w->done);
    else if (rc > 0 && w->arrived) rc = w->w.device_transport->poll(c, w->w.job);
    else if (rc > 0) rc = w->way == DT__BY_SHARED ? dt__shared_allreduce(c, w) : dt__plan_poll(c, w);
    if (rc == 2 && w->arrived) { /* the device transport has a deadline of its own */
        w->moved = dt__comm_now();
        rc = 0;
    } else if (rc > 0 && w->w.job && !w->arrived) {
        w->arrived = w->progress = true;
        rc = 0;
    }
    dt__comm_look(c); /* a rank that was stopped may find all its data, but must see that the others gave it up */
    int status = __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    if (!status) status = dt__comm_halted(c, w->head.seq);
    return status ? status : rc;
}
/* No progress for the timeout: first asks the other ranks why, then fails and names the ranks at fault. */
static void dt__late(dt_comm *c, dt__coll_work *w)
{
    char        who[200] = "", text[200];
    dt__shared *s = (dt__shared *)c->shared;
    dt__frame   last;
    int         rank = -1;
    if (w->asked && (double)(dt__comm_now() - w->moved) < c->timeout * DT__NS_PER_S + DT__ASK_SECONDS * DT__NS_PER_S) return;
    if (c->world && !w->asked) {
        w->asked = true;
        dt__world_ask(c->world, c, w->head.seq + 1, -1, 0, 0);
        return;
    }
    for (int i = 0; s && i < s->n; i++) {
        const dt__note *n = &dt__slot_of(s, i)->note[w->head.seq % DT__NOTES];
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
    dt__comm_fail(c, DT_COMM_ERR_TIMEOUT, rank, "%s: no progress for %.1f s, the timeout%s%s%s",
                  dt__frame_text(&w->head, text, sizeof text), c->timeout,
                  *who ? "; ranks that have not called it: " : "", who, *who ? "" : "; all ranks have called it");
}
/* This rank did not poll for ns. If that was long, the other ranks may have given it up: it asks before it continues with
   data that has arrived meanwhile. */
static void dt__away(dt_comm *c, int64_t ns)
{
    if (c->across && (double)ns > c->timeout * (0.5 * DT__NS_PER_S)) dt__world_settle(c->world);
}
DT__INSIDE int64_t dt__watch_after(const dt_comm *c)
{
    return c->timeout < 0.6 ? (int64_t)(c->timeout * (0.5 * DT__NS_PER_S)) : DT__WATCH_NS;
}
/* A poll at `now` made no progress: are the collective at the head of the queue, or messages, overdue? */
static void dt__stuck(dt_comm *c, int64_t now)
{
    dt__coll_work *w = __atomic_load_n(&c->engine->head, __ATOMIC_ACQUIRE);
    if (c->mail) dt__mail_overdue(c, now);
    if (!w) return;
    if (!w->moved) w->moved = now;
    if (c->across && !w->watched && now - w->moved > dt__watch_after(c)) {
        w->watched = true;
        dt__world_watch(c->world, &w->head);
    }
    if ((double)(now - w->moved) > c->timeout * DT__NS_PER_S) dt__late(c, w);
}
/* Waiting between polls: spin, then yield, then sleep. In shared memory a rank first announces that it will sleep (dozing)
   and polls once more, so that no wake-up is lost. The engine's own thread sleeps at once while the program may be
   computing: the core belongs to the program.

   On crowded cores (>>shared in dt_net.h) it never yields. It spins for a moment, but not if a rank that it waits for is on
   the same core; then it sleeps. Spinning first matters: a core on which all ranks sleep goes to the other program. */
typedef struct dt__idler {
    int      turn;    /* polls without progress; on crowded cores 0 while it spins */
    bool     dozing;  /* announced that it will sleep */
    uint32_t bell;    /* the value to sleep on */
    int64_t  yielded; /* ns: when it last yielded or looked at the clock; on crowded cores: when it began to spin; 0: never */
} dt__idler;
static bool dt__aside(const dt_comm *c) /* the driver runs beside a program that may be computing */
{
    return c->engine && c->engine->aside && !__atomic_load_n(&c->engine->waiting, __ATOMIC_RELAXED);
}
static void dt__relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}
/* Polls before the first yield over sockets: 0 if ranks share cores. Ranks bound to one core each do not. */
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
/* What w (NULL: a message) waits for in shared memory: see dt__rank_slot.want. On crowded cores it waits until the other ranks have come as
   far as this one, so that each turn on a core does more. That cannot block: for this they need nothing from this rank. */
static void dt__work_wants(const dt__coll_work *w, bool crowded, uint64_t *want)
{
    memset(want, 0, DT__COUNTERS * sizeof *want);
    if (!w || w->way != DT__BY_SHARED || w->arrived) return;
    uint64_t put = w->first + (uint64_t)w->put, reduced = w->first + (uint64_t)w->reduced,
             taken = w->first + (uint64_t)w->taken;
    if (w->phase == DT__COMPARE) want[DT__POST_EVEN + (int)(w->no & 1)] = w->no + 1;
    if (w->phase == DT__DIRECT_END) want[DT__FIN] = w->no + 1;
    if (w->phase != DT__STAGED) return;
    if (w->reduced < w->put) want[DT__PUT] = crowded ? put : reduced + 1;
    if (w->taken < w->reduced) want[DT__PART] = crowded ? reduced : taken + 1;
}
/* The cores are crowded: does this rank go on spinning? */
static bool dt__crowd_spins(dt_comm *c, const dt__coll_work *w, dt__idler *d, int64_t now)
{
    dt__shared *s = (dt__shared *)c->shared;
    uint64_t    want[DT__COUNTERS];
    bool        large = !s && w && w->head.count * (int64_t)w->size > DT__CROWD_LARGE; /* the next bytes are on their way */
    if (d->turn) return false;
    if (!d->yielded) d->yielded = now;
    if (now - d->yielded > (large ? DT__CROWD_SPIN_LARGE_NS : DT__CROWD_SPIN_NS)) return false;
    if (!s) return dt__socket_spin(c) > 0;
    dt__work_wants(w, true, want);
    if (!dt__shared_gives_way(s, want)) return true;
    s->shares_core = true;
    return false;
}
/* What the sockets of c wait for, and until when at the latest. */
static void dt__wait_set(dt_comm *c, dt__pollset *set, int64_t now)
{
    dt__mail *m = (dt__mail *)c->mail;
    int64_t   next = dt__mail_next(c);
    set->n = 0;
    set->until = now + (int64_t)((c->shared ? DT__SOCKET_SHARED_SECONDS : DT__SOCKET_SECONDS) * DT__NS_PER_S);
    if (next < set->until) set->until = next;
    if (c->across->fds) c->across->fds(c, set);
    if (m && m->across && m->across->fds) m->across->fds(c, set);
}
/* Announces that this rank will sleep. Frames of messages wake the rank that they are for in any case; without a collective
   nothing else needs to. */
static uint32_t dt__doze(dt_comm *c, int64_t now)
{
    dt__shared *s = (dt__shared *)c->shared;
    uint64_t    want[DT__COUNTERS];
    const dt__coll_work *w = __atomic_load_n(&c->engine->head, __ATOMIC_ACQUIRE); /* the program may submit one meanwhile */
    dt__work_wants(w, !dt__crowd_ends(s, now), want);
    if (!w) want[DT__FIN] = UINT64_MAX;
    return dt__shared_doze(s, want);
}
static int dt__idle_spin(const dt_comm *c) /* polls before the first yield */
{
    if (dt__aside(c)) return 0;
    return (c->shared ? dt__shared_spin((dt__shared *)c->shared) : dt__socket_spin(c)) >> c->engine->vain;
}
/* A wait has ended: after progress, or for good. If a yield that ran something has ended it, the rank that this one waited for
   shares its core, and spinning was in vain: spin less in the next waits. */
static void dt__idle_end(const dt_comm *c, dt__idler *d)
{
    int spin = dt__idle_spin(c), *vain = &c->engine->vain;
    if (d->dozing) dt__shared_rise((dt__shared *)c->shared);
    d->dozing = false;
    if (!spin || !d->turn || d->turn >= spin + DT__YIELDS) return;
    if (d->turn > spin && dt__comm_now() - d->yielded > DT__NO_YIELD_NS) *vain += *vain < DT__VAIN;
    else *vain -= *vain > 0;
}
enum { DT__MOVED_COLLECTIVE = 1, DT__MOVED_MESSAGE = 2 }; /* what a poll has moved */
static void dt__idle(dt_comm *c, dt__idler *d, int moved)
{
    dt__shared    *s = (dt__shared *)c->shared;
    dt__coll_work *w = c->engine->head;
    int            spin = dt__idle_spin(c), yields = dt__aside(c) ? 0 : DT__YIELDS;
    int64_t        now = 0;
    if (moved) {
        dt__idle_end(c, d);
        d->turn = 0;
        d->yielded = 0;
        c->slow = false; /* a frame that arrives now may have waited for this rank: its age says nothing */
        if (w && (moved & DT__MOVED_COLLECTIVE)) {
            w->moved = 0;
            w->asked = false;
        }
        return;
    }
    if (s) dt__shared_settle(s);
    if (d->dozing) { /* the poll after the announcement found nothing */
        d->dozing = false;
        dt__shared_sleep(s, d->bell, DT__SLEEP_NS);
        d->turn = spin + yields;
        return;
    }
    if (d->turn < spin + yields && (d->turn >= spin || (d->turn & 63) == 0) && (d->turn || dt__crowd_known(s))) {
        now = dt__comm_now();
        if (d->turn && d->yielded && now - d->yielded > DT__CROWD_GAP_NS) dt__crowd_gap(s, now);
        if (dt__crowd_ends(s, now)) {
            if (d->turn < spin) d->yielded = now;
        } else if (dt__crowd_spins(c, w, d, now)) {
            dt__relax();
            return;
        } else {
            d->turn = spin + yields;
        }
    }
    if (d->turn++ < spin) {
        dt__relax();
        return;
    }
    if (!now) now = dt__comm_now();
    c->slow = true;
    if (s && w && (d->turn > spin + yields || (d->turn & 15) == 0) && !dt__shared_agree(c, &w->head)) return;
    dt__stuck(c, now);
    /* a long yield means that another program runs on this core: sleep and be woken instead */
    if (d->turn > spin + 1 && now - d->yielded > DT__SLOW_YIELD_NS && d->turn < spin + yields) d->turn = spin + yields;
    d->yielded = now;
    if (d->turn < spin + yields) {
        sched_yield();
        return;
    }
    d->yielded = 0;
    if (c->across && c->across->wait) {
        c->across->wait(c, s ? DT__SOCKET_SHARED_SECONDS : DT__SOCKET_SECONDS);
        dt__away(c, dt__comm_now() - now);
    } else if (c->across) {
        dt__wait_set(c, &c->engine->set, now);
        dt__pollset_wait(c, &c->engine->set);
        dt__away(c, dt__comm_now() - now);
    } else if (s) {
        d->bell = dt__doze(c, now);
        d->dozing = true;
    } else { /* a world of one, which waits for a message to itself */
        struct timespec t = dt__timespec_of(DT__NS_PER_MS);
        nanosleep(&t, NULL);
    }
}
/* Operation `no` in its slot. A reader never waits: if `no` is not the same after it has read the words, the slot was
   overwritten meanwhile. A word is stored with release and read with acquire order, so whoever reads a new word also sees
   that `no` has changed. */
static void dt__past_put(dt__past_slot *s, uint64_t no, const dt__past *p)
{
    uint64_t call = (uint64_t)p->coll | (uint64_t)p->dtype << 8 | (uint64_t)p->op << 16 | (uint64_t)p->algo << 24;
    __atomic_store_n(&s->no, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&s->word[0], p->seq, __ATOMIC_RELEASE);
    __atomic_store_n(&s->word[1], (uint64_t)p->count, __ATOMIC_RELEASE);
    __atomic_store_n(&s->word[2], (uint64_t)p->began, __ATOMIC_RELEASE);
    __atomic_store_n(&s->word[3], (uint64_t)p->ended, __ATOMIC_RELEASE);
    __atomic_store_n(&s->word[4], (uint64_t)(uint32_t)p->root | (uint64_t)(uint32_t)p->status << 32, __ATOMIC_RELEASE);
    __atomic_store_n(&s->word[5], call, __ATOMIC_RELEASE);
    __atomic_store_n(&s->no, no, __ATOMIC_RELEASE);
}
static bool dt__past_get(const dt__past_slot *s, uint64_t no, dt__past *p) /* false: it was overwritten */
{
    uint64_t word[sizeof s->word / 8];
    if (__atomic_load_n(&s->no, __ATOMIC_ACQUIRE) != no) return false;
    for (size_t i = 0; i < sizeof word / 8; i++) word[i] = __atomic_load_n(&s->word[i], __ATOMIC_ACQUIRE);
    p->seq = word[0];
    p->count = (int64_t)word[1];
    p->began = (int64_t)word[2];
    p->ended = (int64_t)word[3];
    p->root = (int32_t)(uint32_t)word[4];
    p->status = (int32_t)(uint32_t)(word[4] >> 32);
    p->coll = (uint8_t)word[5];
    p->dtype = (uint8_t)(word[5] >> 8);
    p->op = (uint8_t)(word[5] >> 16);
    p->algo = (uint8_t)(word[5] >> 24);
    return __atomic_load_n(&s->no, __ATOMIC_RELAXED) == no;
}
static void dt__past_add(dt_comm *c, const dt__frame *f, int64_t began, int64_t ended, int status)
{
    struct dt__engine *e = c->engine;
    dt__past           p;
    p.seq = f->seq;
    p.count = f->count;
    p.began = began;
    p.ended = ended;
    p.root = f->root;
    p.status = status;
    p.coll = f->coll;
    p.dtype = f->dtype;
    p.op = f->op;
    p.algo = f->algo;
    dt__past_put(&e->past[e->npast % DT__HISTORY], e->npast + 1, &p);
    __atomic_store_n(&e->npast, e->npast + 1, __ATOMIC_RELEASE);
    dt__counter_add(&e->counters.calls, 1);
    dt__counter_add(&e->counters.busy, ended - began);
}
/* Operation k, from 0. False: it was overwritten. */
static bool dt__past_text(const dt_comm *c, uint64_t k, char *buf, size_t nbytes)
{
    dt__past p;
    if (!dt__past_get(&c->engine->past[k % DT__HISTORY], k + 1, &p)) return false;
    double took = DT__S_PER_NS * (double)(p.ended - p.began);
    if (p.coll == DT_COLL_SEND || p.coll == DT_COLL_RECV) /* seq is the tag */
        snprintf(buf, nbytes, "rank %d: %s of %" PRId64 " %s %s rank %d, tag %" PRIu64 ", %.6f s, status %d", c->rank,
                 dt_coll_name((dt_coll)p.coll), p.count, dt__comm_dtype_name(p.dtype), p.coll == DT_COLL_SEND ? "to" : "from", p.root,
                 p.seq, took, p.status);
    else
        snprintf(buf, nbytes, "rank %d: %s #%" PRIu64 " of %" PRId64 " %s, %s, root %d, %s, %.6f s, status %d", c->rank,
                 p.root == DT__ROOT_FREE ? "dt_comm_free" : dt_coll_name((dt_coll)p.coll), p.seq + 1, p.count,
                 dt__comm_dtype_name(p.dtype), dt__comm_ops[p.op], p.root, dt_algo_name((dt_algo)p.algo), took, p.status);
    return true;
}
/* A call with no communicator. If dt_comm_init or dt_comm_join has failed on this thread, its reason stays in the message: a
   program that looks at its end only is told the cause. */
static int dt__comm_null(const char *call)
{
    static const char null[] = "the communicator is NULL";
    char              text[sizeof dt__said.text];
    const char       *why = strstr(dt__said.text, null);
    why = why && !strncmp(why + sizeof null - 1, ", because ", 10) ? why + sizeof null + 9 : dt__said.text;
    if (strncmp(why, "dt_comm_init: ", 14) && strncmp(why, "dt_comm_join: ", 14)) return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %s", call, null);
    snprintf(text, sizeof text, "%s", why);
    return dt__comm_bad(DT_COMM_ERR_ARG, "%s: %s, because %.600s", call, null, text);
}
static void dt__past_log(const dt_comm *c) /* once; called by the driver, or when there is none */
{
    struct dt__engine *e = c->engine;
    char               text[256];
    int                level = dt__comm_halted(c, UINT64_MAX) == DT_COMM_ERR_PEER ? 4 : 3; /* a death that is tolerated */
    if (e->told) return;
    e->told = true;
    for (uint64_t k = e->npast > DT__HISTORY ? e->npast - DT__HISTORY : 0; k < e->npast; k++) {
        if (dt__past_text(c, k, text, sizeof text)) dt__logf(level, "history: %s", text);
    }
}
/* The failure goes to shared memory: a rank that was stopped and finds all its data must not continue alone. Callers may
   free their buffers after it. */
static void dt__fail_shared(dt_comm *c, int status)
{
    if (!status || !c->shared) return;
    /* a member that left has finished earlier collectives, and the others may do so, too: the control connections tell them */
    if (c->members && dt__comm_ok(c) && !dt__comm_halted(c, 0) && ((dt__shared *)c->shared)->fd >= 0) return;
    dt__shared_fail((dt__shared *)c->shared, status, c->failed_rank, dt__comm_ok(c) && c->members ? c->members->text : c->text);
    dt__shared_untouched((dt__shared *)c->shared);
}
static void dt__work_end(dt_comm *c, dt__coll_work *w, int status)
{
    struct dt__engine *e = c->engine;
    int64_t            now = dt__comm_now();
    dt__fail_shared(c, status);
    if (!status && w->way != DT__BY_SHARED && w->op == DT_COMM_MEAN && dt__coll_of(w->head.coll)->reduces && w->out_n) {
        dt__reduce_scale(w->dtype, w->data + (size_t)w->out_at * w->size, w->out_n, c->size);
    }
    if (!status && w->out) dt__comm_copy(w->out, w->data + (size_t)w->out_at * w->size, (size_t)w->out_n * w->size);
    if (!status || !dt__late_writes(c)) { /* otherwise the transport may still write to it: leaked on purpose */
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
    dt__past_add(c, &w->head, w->w.started, now, status);
    w->w.ended = now;
    __atomic_store_n(&c->doing, 0u, __ATOMIC_RELAXED);
    __atomic_store_n(&c->since, now, __ATOMIC_RELAXED);
    __atomic_store_n(&c->done, w->head.seq + 1, __ATOMIC_RELEASE);
    w->late_rank = -1;
    if (!status && c->late) {
        dt__waits *t = &e->waits[c->late_rank];
        w->late_rank = c->late_rank;
        w->late = c->late < now - w->w.started ? c->late : now - w->w.started;
        dt__counter_add(&e->counters.waited, w->late);
        __atomic_store_n(&t->last, t->last + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&t->waited, t->waited + c->late, __ATOMIC_RELAXED);
        if (c->late > t->longest) __atomic_store_n(&t->longest, c->late, __ATOMIC_RELAXED);
    }
    if (c->shared)
        __atomic_store_n(&dt__slot_of((dt__shared *)c->shared, ((dt__shared *)c->shared)->me)->done, w->head.seq + 1,
                         __ATOMIC_RELEASE);
    w->w.status = status;
    if (status) dt__past_log(c);
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
static void dt__work_begin(dt_comm *c, dt__coll_work *w)
{
    w->begun = true;
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
    w->w.started = dt__comm_now();
    w->head.sent = (uint64_t)w->w.started;
    if (c->since) dt__away(c, w->w.started - c->since);
    __atomic_store_n(&c->doing, (uint32_t)w->head.coll + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&c->since, w->w.started, __ATOMIC_RELAXED);
    c->began = w->w.started;
    c->slow = false;
    c->late = 0;
    c->late_rank = -1;
    if (c->note && !(w->way == DT__BY_SHARED && w->phase)) dt__note_put(c->note, &w->head); /* else dt__short has done it */
    if (c->across) dt__world_begin(c->world, c, &w->head);
    if (!c->shared) return;
    __atomic_store_n(&dt__slot_of((dt__shared *)c->shared, ((dt__shared *)c->shared)->me)->begun, w->head.seq + 1,
                     __ATOMIC_RELEASE);
    if (w->way == DT__BY_SHARED) return; /* all ranks compare the posts */
    DT__FENCE(&((dt__shared *)c->shared)->head->sleepers); /* of two ranks whose calls differ at least one sees it */
    dt__shared_agree(c, &w->head);
}

/* ---- driving */
/* Threads in dt_work_wait_any over several communicators wait here. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t  cond;
    int             waiting; /* atomic */
} dt__any = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
static void dt__work_finished(dt_work *w, int status) /* by the driver. A work that was made by a start call may be gone now */
{
    w->status = status;
    w->c->engine->unsaid = true;
    __atomic_store_n(&w->finished, true, __ATOMIC_RELEASE);
}
/* By the driver, after works have finished: one fence for all of them. */
static void dt__any_tell(struct dt__engine *e)
{
    if (!e->unsaid) return;
    e->unsaid = false;
    DT__FENCE(&dt__any.waiting);
    if (__builtin_expect(__atomic_load_n(&dt__any.waiting, __ATOMIC_RELAXED) == 0, 1)) return;
    pthread_mutex_lock(&dt__any.lock);
    pthread_cond_broadcast(&dt__any.cond);
    pthread_mutex_unlock(&dt__any.lock);
}
static void dt__work_over(dt_comm *c, dt__coll_work *w, int status) /* takes w, the head, out of the queue */
{
    struct dt__engine *e = c->engine;
    pthread_mutex_lock(&e->lock);
    __atomic_store_n(&e->head, w->next, __ATOMIC_RELEASE); /* dt__short reads the head without the lock */
    if (e->tail == w) e->tail = NULL;
    pthread_mutex_unlock(&e->lock);
    dt__work_finished(&w->w, status);
}
static void dt__message_past(dt_comm *c, bool send, int64_t n, int dtype, int peer, int tag, int64_t began, int64_t ended, int status);
static void dt__message_done(dt_comm *c, dt_work *w)
{
    struct dt__engine *e = c->engine;
    dt__req           *q = (dt__req *)(void *)w;
    if (w->job && !w->status) { /* the records are exchanged: the device transport continues */
        q->link.next = NULL;
        dt__chain_add(&e->devices, &q->link);
        return;
    }
    if (!e->now) e->now = dt__comm_coarse();
    int64_t now = e->now;
    int     dtype = q->dtype & ~DT__M_DEVICE;
    if (q->send && !w->status) dt__counter_add(&e->counters.bytes, (int64_t)q->n);
    w->ended = now;
    if (!w->started || w->started > now) w->started = now;
    size_t n = q->send || (q->plain && !w->status) ? q->n : q->total;
    dt__message_past(c, q->send, dt__elements(n, dtype), dtype, q->peer, q->tag, w->started, now, w->status);
    dt__work_finished(w, w->status);
}
/* Messages of device memory whose records were exchanged. */
static int dt__devices_poll(dt_comm *c)
{
    struct dt__engine *e = c->engine;
    int                moved = 0;
    for (dt__chain *l = e->devices.next, *next; l != &e->devices; l = next) {
        dt__req *q = DT__OWNER(dt__req, link, l);
        next = l->next;
        int rc = dt__comm_ok(c) ? q->w.device_transport->poll(c, q->w.job) : c->status;
        if (rc == 0 || rc == 2) continue;
        dt__chain_remove(l);
        dt__work_finished(&q->w, rc > 0 ? 0 : rc);
        moved = DT__MOVED_MESSAGE;
    }
    return moved;
}
static bool dt__engine_busy(const dt_comm *c)
{
    const struct dt__engine *e = c->engine;
    return __atomic_load_n(&e->head, __ATOMIC_ACQUIRE) || dt__mail_active((const dt__mail *)c->mail) || e->devices.next != &e->devices;
}
static int dt__engine_poll_all(dt_comm *c)
{
    struct dt__engine *e = c->engine;
    dt__coll_work     *w = __atomic_load_n(&e->head, __ATOMIC_ACQUIRE);
    int                moved = 0;
    if (w) {
        if (!w->begun) dt__work_begin(c, w);
        w->progress = false;
        int rc = !dt__comm_ok(c) ? c->status : dt__comm_halted(c, w->head.seq);
        if (!rc) rc = dt__work_poll(c, w);
        if (w->progress || rc) moved = DT__MOVED_COLLECTIVE;
        if (rc) {
            dt__work_end(c, w, rc > 0 ? 0 : rc);
            dt__work_over(c, w, w->w.status);
        }
        if (moved || !dt__mail_hint(c)) return moved;
    } else {
        dt__comm_look(c);
    }
    if (!c->mail) return moved;
    if (dt__comm_ok(c) && dt__mail_poll(c)) moved |= DT__MOVED_MESSAGE;
    if (e->devices.next != &e->devices) moved |= dt__devices_poll(c);
    if (!dt__comm_ok(c) && dt__mail_active((const dt__mail *)c->mail)) {
        dt__fail_shared(c, c->status);
        dt__mail_fail(c, c->status);
        dt__past_log(c);
        moved |= DT__MOVED_MESSAGE;
    }
    return moved;
}
/* Polls the collective at the head of the queue, and messages, once. By the driver. Returns DT__MOVED_... */
static int dt__engine_poll(dt_comm *c)
{
    c->engine->now = 0;
    int moved = dt__engine_poll_all(c);
    dt__any_tell(c->engine);
    c->engine->now = 0;
    return moved;
}
static const int64_t *dt__clock_of(const dt_comm *c) /* sets this thread's clock to that of c; returns the previous one */
{
    const int64_t *before = dt__net_clock;
    dt__net_clock = c->world ? c->world->clock : NULL;
    return before;
}
/* ---- the driver. One thread at a time: drive is 1. It alone uses mail, requests and plans, without locks. The lock is for
   the queue of collectives, and for threads that wait for each other. */
static __thread const dt_comm *dt__serving; /* this thread runs a handler of this communicator, as its driver */
static bool dt__drive_try(struct dt__engine *e)
{
    int zero = 0;
    return __atomic_compare_exchange_n(&e->drive, &zero, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
/* No fence between the store and the load, for it would cost as much as a small message: so this thread may miss that another
   has just begun to wait. That one looks again by itself (DT__LOOK_NS). */
#define DT__LOOK_NS (5 * DT__NS_PER_MS)
static void dt__drive_end(struct dt__engine *e)
{
    __atomic_store_n(&e->drive, 0, __ATOMIC_RELEASE);
    if (__builtin_expect(__atomic_load_n(&e->waiting, __ATOMIC_RELAXED) == 0, 1)) return; /* see dt__drive_wait */
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->cond);
    pthread_mutex_unlock(&e->lock);
}
static int dt__engine_doze(struct dt__engine *e, int64_t ns) /* waits on cond; the lock is held */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)ns;
    if (t.tv_nsec >= DT__NS_PER_S) t.tv_nsec -= DT__NS_PER_S, t.tv_sec++;
    return pthread_cond_timedwait(&e->cond, &e->lock, &t);
}
static void dt__drive_wait(struct dt__engine *e) /* until this thread is the driver */
{
    __atomic_add_fetch(&e->waiting, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&e->lock);
    while (!dt__drive_try(e)) dt__engine_doze(e, DT__LOOK_NS);
    pthread_mutex_unlock(&e->lock);
    __atomic_sub_fetch(&e->waiting, 1, __ATOMIC_SEQ_CST);
}
static bool dt__handler_waits(dt_comm *c, const char *call) /* then c has failed */
{
    if (__builtin_expect(dt__serving != c, 1)) return false;
    dt__comm_fail(c, DT_COMM_ERR_STATE, c->rank, "rank %d: %s: a handler of dt_comm_serve with .at_once must not wait: start it, and wait elsewhere",
                  c->rank, call);
    return true;
}
static void dt__engine_entered(dt_comm *c) /* by the new driver: others need not wake the progress thread for it */
{
    struct dt__engine *e = c->engine;
    e->aside = false;
    e->now = 0;
    if (!e->announced) return;
    e->announced = false;
    dt__shared_rise((dt__shared *)c->shared);
}
/* Makes this thread the driver. Without a progress thread no other thread can be it. */
static void dt__engine_enter(dt_comm *c)
{
    struct dt__engine *e = c->engine;
    if (dt__serving == c) return; /* a handler: this thread is the driver */
    if (!e->has_thread) {
        e->drive = 1;
        e->now = 0;
        return;
    }
    __atomic_store_n(&e->entries, __atomic_load_n(&e->entries, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    if (!dt__drive_try(e)) dt__drive_wait(e);
    dt__engine_entered(c);
}
enum { DT__AWAKE = 0, DT__NAPS, DT__RESTS, DT__SLEEPS }; /* the progress thread: it will look again soon; it must be woken if
                                                            something is to be done; the same, by dt__engine_wake */
static bool dt__engine_try(dt_comm *c) /* becomes the driver if no other thread drives, or will soon */
{
    struct dt__engine *e = c->engine;
    if (dt__serving == c || (e->has_thread && __atomic_load_n(&e->watch, __ATOMIC_RELAXED) != DT__NAPS) || !dt__drive_try(e)) return false;
    dt__engine_entered(c);
    return true;
}
/* Only messages are pending, and no handler runs on the progress thread: while the program calls dt again and again, and so
   drives, the progress thread need not be woken for each of them. It looks once in a while, and drives if the program did
   not come in between. By the driver. */
#define DT__NAP_NS (200 * DT__NS_PER_US)
#define DT__NAP_MOST_NS (4 * DT__NAP_NS) /* while the program comes all the time */
static bool dt__engine_lazy(const dt_comm *c)
{
    const struct dt__engine *e = c->engine;
    const dt__mail          *m = (const dt__mail *)c->mail;
    return !__atomic_load_n(&e->head, __ATOMIC_RELAXED) && m && !m->nserved && e->devices.next == &e->devices;
}
static void dt__engine_wake(dt_comm *c) /* wakes the progress thread from its sleep */
{
    uint64_t one = 1;
    if (!c->across && c->shared) dt__shared_wake_self((dt__shared *)c->shared);
    else if (c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) < 0) return; /* the counter is full: it wakes anyway */
}
static void dt__engine_kick(dt_comm *c) /* the progress thread has something to do */
{
    struct dt__engine *e = c->engine;
    pthread_mutex_lock(&e->lock);
    int watch = __atomic_exchange_n(&e->watch, DT__AWAKE, __ATOMIC_SEQ_CST);
    if (watch != DT__AWAKE) pthread_cond_broadcast(&e->cond);
    pthread_mutex_unlock(&e->lock);
    if (watch == DT__SLEEPS) dt__engine_wake(c);
}
static bool dt__engine_needs(int watch, bool lazy) /* must it be kicked, if something is pending? */
{
    return watch == DT__RESTS || watch == DT__SLEEPS || (watch == DT__NAPS && !lazy);
}
static void dt__engine_leave(dt_comm *c)
{
    struct dt__engine *e = c->engine;
    if (dt__serving == c) return;
    if (c->shared) dt__shared_settle((dt__shared *)c->shared);
    dt__any_tell(e);
    if (!e->has_thread) {
        e->drive = 0;
        return;
    }
    bool busy = dt__engine_busy(c), lazy = dt__engine_lazy(c), sleeps_on = false;
    __atomic_store_n(&e->lazy, lazy, __ATOMIC_RELAXED);
    if (busy && !c->across && c->shared && !e->head && __atomic_load_n(&e->watch, __ATOMIC_RELAXED) == DT__SLEEPS) {
        dt__doze(c, dt__comm_now()); /* it can sleep on: announce that, then look for what came in between */
        e->announced = true;
        sleeps_on = !dt__mail_hint(c);
    }
    dt__drive_end(e);
    /* The progress thread rests if it found nothing to do as the driver: then that is seen here. If it rests because it found
       another driver, it looks again by itself. */
    if (busy && !sleeps_on && dt__engine_needs(__atomic_load_n(&e->watch, __ATOMIC_ACQUIRE), lazy)) dt__engine_kick(c);
}
/* Drives until the work is finished. The caller is the driver. */
static void dt__engine_run(dt_comm *c, const dt_work *until)
{
    const int64_t *clock = dt__clock_of(c);
    dt__idler      d = { 0, false, 0, 0 };
    for (;;) {
        int moved = dt__engine_poll(c);
        if (__atomic_load_n(&until->finished, __ATOMIC_RELAXED)) break;
        dt__idle(c, &d, moved);
    }
    dt__idle_end(c, &d);
    dt__net_clock = clock;
}
/* Drives without waiting, until nothing moves. Called again and again by the simulator and by dt_work_test. */
DT__INSIDE void dt__engine_look(dt_comm *c)
{
    const int64_t *clock = dt__clock_of(c);
    int            moved = 0, last = 0;
    while ((last = dt__engine_poll(c)) != 0) moved |= last;
    dt__coll_work *w = c->engine->head;
    int64_t        now = dt__comm_now();
    if (w && (moved & DT__MOVED_COLLECTIVE)) w->moved = now, w->asked = false;
    if (!w || !c->shared || dt__shared_agree(c, &w->head)) dt__stuck(c, now);
    if (c->shared) dt__shared_settle((dt__shared *)c->shared);
    dt__net_clock = clock;
}
/* The progress thread. It drives while something is to be done and no thread of the program drives. It sleeps without being
   the driver, so that the program never waits for it to wake up. */
static bool dt__engine_rest(struct dt__engine *e, int how, int64_t ns) /* until it is kicked, or for ns; false: the end */
{
    pthread_mutex_lock(&e->lock);
    if (ns) __atomic_store_n(&e->watch, how, __ATOMIC_SEQ_CST); /* else the caller has done it */
    for (int rc = 0; !rc && !e->quit && __atomic_load_n(&e->watch, __ATOMIC_SEQ_CST) == how;)
        rc = ns ? dt__engine_doze(e, ns) : pthread_cond_wait(&e->cond, &e->lock);
    __atomic_store_n(&e->watch, DT__AWAKE, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&e->lock);
    return !__atomic_load_n(&e->quit, __ATOMIC_ACQUIRE);
}
static void dt__engine_sleep(dt_comm *c, dt__pollset *set, uint32_t bell) /* by the driver, which it is no longer then */
{
    struct dt__engine *e = c->engine;
    bool               announced = e->announced; /* from now on others may change it */
    __atomic_store_n(&e->watch, DT__SLEEPS, __ATOMIC_SEQ_CST);
    dt__drive_end(e);
    if (!__atomic_load_n(&e->waiting, __ATOMIC_SEQ_CST) && !__atomic_load_n(&e->quit, __ATOMIC_SEQ_CST)) {
        if (c->across && c->across->wait) c->across->wait(c, DT__SOCKET_SECONDS);
        else if (c->across) dt__pollset_wait(c, set);
        else if (announced) dt__shared_sleep_on((dt__shared *)c->shared, bell, DT__SLEEP_NS);
        else dt__comm_pause(DT__NS_PER_MS);
    }
    __atomic_store_n(&e->watch, DT__AWAKE, __ATOMIC_SEQ_CST);
}
static void *dt__engine_main(void *arg)
{
    dt_comm           *c = (dt_comm *)arg;
    struct dt__engine *e = c->engine;
    dt__pollset        set = { NULL, 0, 0, 0 };
    uint32_t           seen = __atomic_load_n(&e->entries, __ATOMIC_RELAXED) - 1;
    int64_t            nap = DT__NAP_NS;
    while (!__atomic_load_n(&e->quit, __ATOMIC_ACQUIRE)) {
        uint32_t entries = __atomic_load_n(&e->entries, __ATOMIC_RELAXED);
        bool     wanted = __atomic_load_n(&e->waiting, __ATOMIC_RELAXED) != 0;
        if (wanted || (entries != seen && __atomic_load_n(&e->lazy, __ATOMIC_RELAXED))) {
            seen = entries;
            dt__engine_rest(e, DT__NAPS, nap);
            if (nap < DT__NAP_MOST_NS) nap *= 2;
            continue;
        }
        nap = DT__NAP_NS;
        if (!dt__drive_try(e)) { /* the program drives */
            dt__engine_rest(e, DT__RESTS, DT__LOOK_NS);
            continue;
        }
        dt__engine_entered(c);
        if (!dt__engine_busy(c)) {
            __atomic_store_n(&e->watch, DT__RESTS, __ATOMIC_SEQ_CST); /* before somebody else can start something */
            dt__drive_end(e);
            dt__engine_rest(e, DT__RESTS, 0);
            continue;
        }
        e->aside = true;
        int      moved = dt__engine_poll(c);
        uint32_t bell = 0;
        dt__coll_work *w = __atomic_load_n(&e->head, __ATOMIC_ACQUIRE); /* the program may submit another meanwhile */
        if (!moved) {
            c->slow = true;
            if (c->shared) dt__shared_settle((dt__shared *)c->shared);
            if (!w || !c->shared || dt__shared_agree(c, &w->head)) dt__stuck(c, dt__comm_now());
            if (c->across && c->across->fds) dt__wait_set(c, &set, dt__comm_now());
            if (!c->across && c->shared) {
                bell = dt__doze(c, dt__comm_now());
                moved = dt__engine_poll(c); /* what came before the announcement */
                if (moved || !dt__engine_busy(c)) dt__shared_rise((dt__shared *)c->shared), moved = 1;
                else e->announced = true;
            }
        } else if (w && (moved & DT__MOVED_COLLECTIVE)) {
            c->slow = false;
            w->moved = 0;
            w->asked = false;
        }
        if (moved) dt__drive_end(e);
        else dt__engine_sleep(c, &set, bell);
    }
    DT_COMM_FREE(set.p);
    return NULL;
}
/* The list of works that the program has not waited for: they may outlive their communicator. The lock is held. */
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
    w->before = w->after = NULL;
}
static void dt__engine_thread(dt_comm *c) /* starts the engine's own thread, without signals; the lock is held */
{
    struct dt__engine *e = c->engine;
    sigset_t           all, before;
    if (e->has_thread || c->no_thread) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e->has_thread = !pthread_create(&e->thread, NULL, dt__engine_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
/* Waits for a work; the thread drives. */
static void dt__work_run(dt_comm *c, const dt_work *w)
{
    if (__atomic_load_n(&w->finished, __ATOMIC_ACQUIRE)) return;
    dt__engine_enter(c);
    if (!__atomic_load_n(&w->finished, __ATOMIC_ACQUIRE)) dt__engine_run(c, w);
    dt__engine_leave(c);
}
/* Puts a collective at the end of the queue. wait: returns its status when it is done; else returns 0 at once. */
static int dt__submit(dt_comm *c, dt__coll_work *w, bool wait)
{
    struct dt__engine *e = c->engine;
    w->w.kind = DT__WORK_COLLECTIVE;
    pthread_mutex_lock(&e->lock);
    if (e->tail) e->tail->next = w;
    else __atomic_store_n(&e->head, w, __ATOMIC_RELEASE);
    e->tail = w;
    if (!wait) {
        dt__work_keep(e, &w->w);
        dt__engine_thread(c);
    }
    pthread_mutex_unlock(&e->lock);
    if (wait) {
        dt__work_run(c, &w->w);
        return w->w.status;
    }
    __atomic_store_n(&e->lazy, 0, __ATOMIC_RELAXED);
    dt__engine_kick(c);
    return 0;
}

/* ==================================================================================================== >>api */
/* ---- callbacks for dt_net.h. Rank 0 sends its table of costs to every rank that joins, as the settings. */
static const char *dt__costs_named(const dt_comm_opts *o) /* the path of the table; NULL: no file is given */
{
    const char *path = o->costs && *o->costs ? o->costs : getenv("DT_COMM_COSTS");
    return path && *path ? path : NULL;
}
static int dt__costs_settings(const dt_comm_opts *o, void *settings, size_t nbytes)
{
    const char *path = dt__costs_named(o);
    bool        slow = o->bandwidth > 0 || o->latency > 0; /* links that are slowed down on purpose */
    dt_costs    t = dt_costs_default();
    if ((!path && !slow) || nbytes < sizeof t) return 0;
    if (path && dt_costs_load(&t, path)) return -1;
    if (slow) dt__costs_slow(&t, o->bandwidth, o->latency);
    memcpy(settings, &t, sizeof t);
    return (int)sizeof t;
}
static bool dt__costs_settings_ok(const void *settings, size_t nbytes)
{
    dt_costs t;
    if (nbytes != sizeof t) return false;
    memcpy(&t, settings, sizeof t);
    return dt__costs_sane(&t);
}
static const char      *dt__coll_named(int coll) { return dt_coll_name((dt_coll)coll); }
static const dt__client dt__comm_client = { dt__frame_ok, dt__frame_differ, dt__coll_named,   dt__aside,
                                            dt__fold,     dt__costs_settings,   dt__costs_settings_ok, dt__message_done };

/* The largest count of a segment: the bytes of all segments stay below 2^63. */
static int64_t dt__most_elements(const dt_comm *c) { return INT64_MAX / 64 / c->size; }
static int     dt__call_bad(dt_comm *c, const dt__call *a)
{
    char    why[200];
    bool    reduces = dt__coll_of((int)a->coll)->reduces;
    int64_t most = dt__most_elements(c);
    why[0] = 0;
    if (a->dtype < 0 || a->dtype >= DT_COMM_DTYPES)
        snprintf(why, sizeof why, "dtype %d is not a dt_comm_dtype (0 to %d)", a->dtype, DT_COMM_DTYPES - 1);
    else if (reduces && (a->op < 0 || a->op >= DT_COMM_OPS))
        snprintf(why, sizeof why, "op %d is not a dt_comm_op (0 to %d)", a->op, DT_COMM_OPS - 1);
    else if (reduces && !dt__reduce_can(a->dtype, a->op))
        snprintf(why, sizeof why, "%s of %s is not defined", dt__comm_ops[a->op], dt__comm_dtype_name(a->dtype));
    else if (a->n < 0 || a->n > most)
        snprintf(why, sizeof why, "%" PRId64 " elements; expected 0 to %" PRId64, a->n, most);
    else if (dt__coll_of((int)a->coll)->root && (a->root < 0 || a->root >= c->size))
        snprintf(why, sizeof why, "rank %d is out of range in a world of %d", a->root, c->size);
    for (int i = 0; a->counts && !why[0] && i < c->size; i++)
        if (a->counts[i] < 0 || a->counts[i] > most)
            snprintf(why, sizeof why, "%" PRId64 " elements of rank %d; expected 0 to %" PRId64, a->counts[i], i, most);
    if (!why[0] && !a->sends != !a->recvs) snprintf(why, sizeof why, "sends and recvs are given together, or both are NULL");
    for (int i = 0; a->sends && !why[0] && i < c->size; i++)
        if (a->sends[i] < 0 || a->recvs[i] < 0 || a->sends[i] > most || a->recvs[i] > most)
            snprintf(why, sizeof why, "%" PRId64 " elements to and %" PRId64 " from rank %d; expected 0 to %" PRId64, a->sends[i],
                     a->recvs[i], i, most);
    if (!why[0] && a->sends && a->sends[c->rank] != a->recvs[c->rank])
        snprintf(why, sizeof why, "%" PRId64 " elements to and %" PRId64 " from this rank itself; expected the same number",
                 a->sends[c->rank], a->recvs[c->rank]);
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
/* The class of the links between ranks. Over MPI the ranks of a machine count as in shared memory. */
static int dt__comm_link(const dt_comm *c)
{
    if (c->threads) return DT_LINK_THREAD;
    if (c->local_size < c->size) return DT_LINK_NET;
    const dt__transport *t = c->inside ? c->inside : c->world ? c->world->joined_by : NULL;
    return t && t->fast_local ? DT_LINK_SHM : DT_LINK_LOOP;
}
/* Can dt__shared_allreduce do it? All ranks must be on this machine. */
static bool dt__comm_shares(const dt_comm *c, dt_coll coll)
{
    return c->shared && c->local_size == c->size && c->size == ((dt__shared *)c->shared)->n && c->size <= DT__SHARED_RANKS &&
           (coll == DT_COLL_ALLREDUCE || coll == DT_COLL_BARRIER);
}
/* The algorithm at any size, or DT_ALGO_AUTO: by cost. total: elements of the vector, or of all segments. */
static dt_algo dt__fixed(const dt_comm *c, dt_coll coll, int64_t total)
{
    dt_algo forced = (dt_algo)c->engine->algo;
    if (c->ordered && dt__coll_of((int)coll)->reduces) return DT_ALGO_ORDERED;
    if (forced == DT_ALGO_NATIVE && dt__has_native(c) && c->across->has(coll, total)) return DT_ALGO_NATIVE;
    if (forced != DT_ALGO_AUTO && forced != DT_ALGO_SHARED && dt_plan_can(coll, forced, c->size, c->host))
        return forced;
    return dt__comm_shares(c, coll) ? DT_ALGO_SHARED : DT_ALGO_AUTO;
}
static dt_algo dt__choose(const dt_comm *c, dt_coll coll, int64_t total, size_t size, int64_t *segment)
{
    dt_algo fixed = dt__fixed(c, coll, total);
    *segment = 0;
    return fixed != DT_ALGO_AUTO ? fixed
                                 : dt__cost_choose(&c->engine->costs, coll, c->size, c->host, dt__comm_link(c), false,
                                                   total * (int64_t)size, segment);
}
/* A plan from the cache, or one that belongs to the work. */
static int dt__plan_get(dt_comm *c, const dt__call *a, dt__coll_work *w, dt_algo algo, int64_t segment)
{
    struct dt__engine *e = c->engine;
    const char        *why = NULL;
    dt_plan_opts       o;
    int                root = a->root == DT__ROOT_FREE ? 0 : a->root; /* a barrier has no root */
    int64_t            key[4] = { (int64_t)a->coll << 8 | (int64_t)algo, a->n, root, segment };
    uint64_t           h = ((uint64_t)key[0] * 31 + (uint64_t)a->n) * 31 + (uint64_t)root;
    int                slot = (int)((h ^ h >> 17) & (DT__PLAN_CACHE - 1));
    memset(&o, 0, sizeof o);
    o.rank = c->rank;
    o.world = c->size;
    o.count = a->n;
    o.counts = a->counts;
    o.sends = a->sends;
    o.recvs = a->recvs;
    o.root = root;
    o.segment = segment;
    o.host = c->host;
    if (!a->counts && !a->sends && !w->w.own) { /* blocking calls use a cached plan one at a time */
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
static bool dt__overlap(const char *a, size_t na, const char *b, size_t nb)
{
    return na && nb && (uintptr_t)a < (uintptr_t)b + nb && (uintptr_t)b < (uintptr_t)a + na;
}
/* The buffers of alltoall */
static int dt__prepare_alltoall(dt_comm *c, const dt__call *a, dt__coll_work *w)
{
    size_t going = (size_t)w->plan->input * w->size, coming = (size_t)w->plan->count * w->size;
    w->input = (const char *)a->in;
    w->data = (char *)a->out;
    if ((going && !a->in) || (coming && !a->out))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: %s is NULL; expected a buffer of %zu bytes", c->rank, a->name,
                             a->in ? "out" : "in", a->in ? coming : going);
    if (!dt__overlap(w->data, coming, w->input, going)) return 0;
    w->temp = w->data = (char *)DT_COMM_MALLOC(coming);
    w->out = (char *)a->out;
    w->out_n = w->plan->count;
    return w->temp ? 0 : dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
}
/* The buffers of reduce_scatter, gather and scatter. all: elements of all segments; the own one begins at `at` and has
   `mine`. At the root of gather and scatter all segments are in the caller's buffer. Elsewhere the plan says how many
   elements it needs in DATA: if these are the own segment only, DATA is the caller's buffer. Else DATA is allocated and the
   own segment is copied. MPI's own collectives need all segments in DATA. */
static int dt__prepare_segments(dt_comm *c, const dt__call *a, dt__coll_work *w, int64_t all, int64_t at, int64_t mine)
{
    bool        reduces = a->coll == DT_COLL_REDUCE_SCATTER, gathers = a->coll == DT_COLL_GATHER;
    bool        root = !reduces && c->rank == a->root, planned = w->way == DT__BY_PLAN;
    const char *in = (const char *)a->in;
    char       *out = (char *)a->out;
    int64_t     need = root ? mine : planned ? w->plan->count : all, own = planned && !root ? 0 : at;
    size_t      before = (size_t)at * w->size; /* bytes of the segments before the own one */
    if (gathers && !root && !in && out) in = out + before; /* it is at its place */
    w->data = root != gathers ? (char *)(uintptr_t)in : out; /* in is only read: the root of scatter, others in gather */
    bool direct = need == mine;
    if ((direct && mine && !w->data) || (reduces && all && !in))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: %s is NULL; expected a buffer of %" PRId64 " elements",
                             c->rank, a->name, root != gathers || (reduces && !in) ? "in" : "out",
                             root || (reduces && !in) ? all : mine);
    if (reduces && out != in + before && dt__overlap(out, (size_t)mine * w->size, in, (size_t)all * w->size)) direct = false;
    if (!direct) w->temp = w->data = (char *)DT_COMM_MALLOC((size_t)need * w->size + 1);
    if (!direct && !w->temp)
        return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
    if (reduces && planned) w->input = in;
    else if (reduces) w->in = in, w->in_n = all;
    else if (gathers && in && (root ? in != out + before : !direct)) w->in = in, w->in_at = own, w->in_n = mine;
    if (gathers) return 0;
    if (root ? out != in + before : !direct) w->out = out;
    w->out_at = own;
    w->out_n = mine;
    return 0;
}
static int dt__prepare(dt_comm *c, const dt__call *a, dt__coll_work *w)
{
    int64_t segment = 0, mine = a->counts ? a->counts[c->rank] : a->n, at = dt__segment_at(c, a, c->rank);
    int64_t all = dt__segment_at(c, a, c->size);
    bool    whole = dt__coll_of((int)a->coll)->vector != DT__COLL_SEGMENTS;
    bool    root = c->rank == a->root;
    w->w.c = c;
    w->dtype = a->dtype;
    w->op = a->op;
    w->size = dt__elem_nbytes(a->dtype);
    w->n = whole ? a->n : all;
    w->data = (char *)a->out;
    dt_algo algo = a->sends ? DT_ALGO_PAIRS : dt__choose(c, a->coll, w->n, w->size, &segment);
    dt__frame_fill(c, &w->head, a->coll, (int)algo, a->sends ? -1 : w->n, a->dtype, a->op, a->tag ? a->tag : a->root); /* -1: they differ */
    segment /= (int64_t)w->size;
    w->way = algo == DT_ALGO_SHARED ? DT__BY_SHARED : algo == DT_ALGO_NATIVE ? DT__BY_NATIVE : DT__BY_PLAN;
    w->agree = c->engine->algo == DT_ALGO_NATIVE && dt__has_native(c);
    switch (a->coll) {
    case DT_COLL_ALLREDUCE: w->out_n = a->n; break;
    case DT_COLL_REDUCE: w->out_n = root ? a->n : 0; break;
    case DT_COLL_REDUCE_SCATTER:
    case DT_COLL_GATHER:
    case DT_COLL_SCATTER:
    case DT_COLL_ALLTOALL: break; /* below, when the plan is made */
    case DT_COLL_ALLGATHER:
        if (a->in) w->in = (const char *)a->in, w->in_at = at, w->in_n = mine;
        break;
    case DT_COLL_BARRIER:
    case DT_COLL_BROADCAST: break;
    case DT_COLL_SEND:
    case DT_COLL_RECV:
    case DT_COLL_COUNT:
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: %s is not a collective", c->rank, a->name,
                             dt_coll_name(a->coll));
    }
    if (w->way == DT__BY_NATIVE && !whole) {
        w->part = (int *)DT_COMM_MALLOC(2 * (size_t)c->size * sizeof *w->part);
        if (!w->part)
            return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
        for (int i = 0; i < c->size; i++) {
            w->part[i] = (int)(a->counts ? a->counts[i] : a->n);
            w->part[c->size + i] = i ? w->part[c->size + i - 1] + w->part[i - 1] : 0;
        }
    }
    __atomic_store_n(&c->seq, c->seq + 1, __ATOMIC_RELEASE); /* the control thread reads it */
    int rc = w->way != DT__BY_PLAN ? 0 : dt__plan_get(c, a, w, algo, segment);
    if (rc) return rc;
    if (a->coll == DT_COLL_ALLTOALL) return dt__prepare_alltoall(c, a, w);
    bool segments = a->coll == DT_COLL_REDUCE_SCATTER || a->coll == DT_COLL_GATHER || a->coll == DT_COLL_SCATTER;
    if (segments && (rc = dt__prepare_segments(c, a, w, all, at, mine)) != 0) return rc;
    bool free_choice = !c->ordered && (c->engine->algo == DT_ALGO_AUTO || c->engine->algo == DT_ALGO_SHARED);
    if (a->coll == DT_COLL_REDUCE_SCATTER && w->way == DT__BY_PLAN && free_choice && all && dt__comm_shares(c, DT_COLL_ALLREDUCE)) {
        const char *in = (const char *)a->in, *out = (const char *)a->out;
        bool overlap = mine && out != in + (size_t)at * w->size && dt__overlap(out, (size_t)mine * w->size, in, (size_t)all * w->size);
        w->way = DT__BY_SHARED;
        w->scatters = true;
        w->scatter = overlap ? NULL : (char *)a->out;
        w->scatter_at = at;
        w->scatter_n = mine;
    }
    return 0;
}
/* ---- memory of devices */
static const char *dt__place_text(int device) { return device ? "GPU memory" : "host memory"; }
/* Is it a call on device memory? 1, 0, or negative after dt__comm_fail. If ranks differ in this, their frames differ. */
static int dt__on_device(dt_comm *c, const dt__call *a)
{
    bool        scatters = a->coll == DT_COLL_REDUCE_SCATTER || a->coll == DT_COLL_SCATTER;
    const void *first = scatters ? a->in : a->out, *other = scatters ? a->out : a->in;
    int64_t     all = 0, mine = a->counts ? a->counts[c->rank] : a->n;
    if (!c->device_transport || a->coll == DT_COLL_BARRIER) return 0;
    for (int i = 0; i < c->size; i++) all += a->sends ? a->recvs[i] : a->counts ? a->counts[i] : a->n;
    for (int i = 0; a->sends && i < c->size; i++) mine = i ? mine + a->sends[i] : a->sends[i];
    if (a->sends && !all) first = other, all = mine; /* it only sends */
    if (!all) return 0;
    int on = c->device_transport->owns(c, first), there = other && mine ? c->device_transport->owns(c, other) : on;
    if (on == there) return on;
    return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s: one buffer is in %s, the other in %s: put both in one",
                         c->rank, a->name, dt__place_text(on), dt__place_text(there));
}
static int dt__prepare_device(dt_comm *c, const dt__call *a, dt__coll_work *w)
{
    int64_t  segment = 0;
    bool     there = dt__coll_of((int)a->coll)->gpu;
    dt__call meet = *a;
    w->w.c = c;
    if (!there || (dt__coll_of((int)a->coll)->reduces && a->op == DT_COMM_OR))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: %s%s is not supported for GPU memory: copy it to the host",
                             c->rank, a->name, there ? " with DT_COMM_OR" : "");
    w->w.job = c->device_transport->begin(c, a);
    if (!w->w.job) return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    w->w.device_transport = c->device_transport;
    w->data = w->w.job->record;
    w->n = DT__RECORD;
    w->dtype = DT_COMM_U8;
    w->op = DT_COMM_OR;
    w->size = 1;
    meet.coll = DT_COLL_ALLREDUCE;
    meet.n = DT__RECORD;
    meet.counts = NULL;
    meet.root = 0;
    dt_algo algo = dt__choose(c, DT_COLL_ALLREDUCE, DT__RECORD, 1, &segment);
    if (algo == DT_ALGO_NATIVE) algo = DT_ALGO_TREE;
    dt__frame_fill(c, &w->head, a->coll, DT_ALGO_NATIVE, a->counts ? dt__segment_at(c, a, c->size) : a->n, a->dtype,
                   a->op, a->tag ? a->tag : a->root);
    w->way = algo == DT_ALGO_SHARED ? DT__BY_SHARED : DT__BY_PLAN;
    __atomic_store_n(&c->seq, c->seq + 1, __ATOMIC_RELEASE);
    return w->way == DT__BY_SHARED ? 0 : dt__plan_get(c, &meet, w, algo, segment);
}
static int dt__halted_said(const dt_comm *c) /* a tolerant communicator: collectives are halted. Returns the status */
{
    return dt__comm_bad(c->members->halted, "%s", c->members->text); /* text does not change any more */
}
static int dt__job_wait(dt_work *w, int status) /* returns the status, leaves a message, frees the job if there is one */
{
    if (status && w->kind == DT__WORK_COLLECTIVE && w->c && dt__comm_ok(w->c) && dt__comm_halted(w->c, UINT64_MAX))
        dt__halted_said(w->c);
    if (!w->job) return status;
    int rc = w->device_transport->wait(w->job, status);
    w->job = NULL;
    return status ? status : rc;
}
static void dt__unprepare(dt__coll_work *w, int status) /* it could not be prepared */
{
    dt__job_wait(&w->w, status);
    DT_COMM_FREE(w->temp);
    DT_COMM_FREE(w->part);
    if (!w->plan_own || !w->plan) return;
    dt_plan_free(w->plan);
    DT_COMM_FREE(w->plan);
}
static int dt__alone(const dt__call *a) /* a world of one rank */
{
    size_t n = (size_t)a->n * dt__elem_nbytes(a->dtype);
    if (dt__coll_of((int)a->coll)->vector == DT__COLL_SEGMENTS) {
        if (a->counts || a->sends) n = (size_t)(a->counts ? a->counts : a->sends)[0] * dt__elem_nbytes(a->dtype);
        if (a->in && n) memmove(a->out, a->in, n);
    }
    return 0;
}
/* The fast path for short vectors and barriers when all ranks are on one machine. It runs on the caller's thread and
   bypasses the queue, which must be empty: it posts, waits for a moment for the posts of the others, and reduces. It
   leaves out all bookkeeping that is only needed when something goes wrong. Returns true: done. False with *posted: the
   post is written, and a work of the engine must continue from there (DT__COMPARE). */
enum { DT__SHORT_LOOKS = 1000 }; /* polls */
static bool dt__short(dt_comm *c, const dt__call *a, bool *posted)
{
    struct dt__engine *e = c->engine;
    dt__shared        *s = (dt__shared *)c->shared;
    size_t             size = dt__elem_nbytes(a->dtype), nbytes = (size_t)a->n * size;
    if (!dt__comm_shares(c, a->coll) || a->n > DT__POST_SHORT || nbytes > DT__POST_SHORT ||
        (e->algo != DT_ALGO_AUTO && e->algo != DT_ALGO_SHARED) || (c->ordered && dt__coll_of((int)a->coll)->reduces) ||
        __atomic_load_n(&e->head, __ATOMIC_ACQUIRE))
        return false;
    dt__rank_slot *me = dt__slot_of(s, s->me);
    uint64_t  no = s->no++;
    dt__post *p = &me->post[no & 1];
    int64_t   began = dt__comm_coarse();
    /* a rank that has slept needs the exact time at which this rank began */
    bool      slept = __atomic_load_n(&s->head->sleepers, __ATOMIC_RELAXED) != 0;
    dt__frame_fill(c, &p->frame, a->coll, DT_ALGO_SHARED, a->n, a->dtype, a->op, a->root);
    p->frame.sent = (uint64_t)(slept ? dt__comm_now() : began);
    uint64_t print = p->print = dt__frame_print(&p->frame);
    p->at = -1;
    dt__comm_copy(dt__short_of(s, s->me, no, nbytes), a->out, nbytes);
    dt__shared_tell(s, &p->no, no + 1);
    *posted = true;
    dt__note_put(me->note, &p->frame);
    __atomic_store_n(&me->begun, p->frame.seq + 1, __ATOMIC_RELEASE);
    int all = dt__shared_spin(s) ? DT__SHORT_LOOKS >> e->vain : 0, looks = all;
    for (int i = 0; i < s->n; i++) {
        const dt__post *q = &dt__slot_of(s, i)->post[no & 1];
        while (__atomic_load_n(&q->no, __ATOMIC_ACQUIRE) != no + 1)
            if (looks-- <= 0) return false;
        if (q->print != print) return false;
    }
    if (__builtin_expect(e->vain != 0, 0) && looks < all) e->vain--; /* spinning was not in vain */
    if (a->n) dt__short_reduce(c, no, a->out, a->n, a->dtype, a->op, size);
    dt__past_add(c, &p->frame, began, dt__comm_coarse(), 0);
    __atomic_store_n(&c->since, began, __ATOMIC_RELAXED);
    __atomic_store_n(&c->seq, p->frame.seq + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&c->done, p->frame.seq + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&me->done, p->frame.seq + 1, __ATOMIC_RELEASE);
    dt__shared_settle(s);
    /* all ranks have read the older post: fetch its lines, which the next call will write if it is like this one */
    dt__own_lines((char *)&me->post[s->no & 1], 64);
    if (nbytes > DT__POST_FIRST) dt__own_lines((char *)me->more[s->no & 1], nbytes);
    return true;
}
static int dt__call_do(dt_comm *c, const dt__call *a)
{
    dt__coll_work w;
    if (!c) return dt__comm_null(a->name);
    dt__comm_look(c);
    if (!dt__comm_ok(c)) return c->status;
    if (dt__comm_halted(c, c->seq)) return dt__halted_said(c);
    int bad = dt__call_bad(c, a);
    if (bad) return bad;
    if (dt__handler_waits(c, a->name)) return c->status;
    int device = dt__on_device(c, a);
    if (device < 0) return device;
    if (c->size == 1) return device ? c->device_transport->alone(c, a) : dt__alone(a);
    bool posted = false;
    if (!device && (a->coll == DT_COLL_ALLREDUCE || a->coll == DT_COLL_BARRIER)) {
        dt__engine_enter(c);
        bool done = dt__short(c, a, &posted);
        dt__engine_leave(c);
        if (done) {
            dt__comm_look(c); /* as in dt__work_poll */
            return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
        }
    }
    memset(&w, 0, sizeof w);
    int rc = device ? dt__prepare_device(c, a, &w) : dt__prepare(c, a, &w);
    if (rc) {
        dt__unprepare(&w, rc);
        return rc;
    }
    if (posted) {
        w.phase = DT__COMPARE;
        w.no = ((dt__shared *)c->shared)->no - 1;
    }
    return dt__job_wait(&w.w, dt__submit(c, &w, true));
}
static dt_work *dt__call_start(dt_comm *c, const dt__call *a)
{
    if (!c) {
        dt__comm_null(a->name);
        return NULL;
    }
    if (dt__comm_ok(c) && dt__comm_halted(c, c->seq)) {
        dt__halted_said(c);
        return NULL;
    }
    int device = !dt__comm_ok(c) || dt__call_bad(c, a) ? -1 : dt__on_device(c, a);
    if (device < 0) return NULL;
    dt__coll_work *w = (dt__coll_work *)dt__comm_zeroed(1, sizeof *w);
    if (!w) {
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: %s: out of memory", c->rank, a->name);
        return NULL;
    }
    w->w.own = true;
    w->w.c = c;
    w->w.kind = DT__WORK_COLLECTIVE;
    if (c->size == 1) {
        w->w.finished = true;
        w->w.status = device ? c->device_transport->alone(c, a) : dt__alone(a);
        pthread_mutex_lock(&c->engine->lock);
        dt__work_keep(c->engine, &w->w);
        pthread_mutex_unlock(&c->engine->lock);
        return &w->w;
    }
    int rc = device ? dt__prepare_device(c, a, w) : dt__prepare(c, a, w);
    if (rc) {
        dt__unprepare(w, rc);
        DT_COMM_FREE(w);
        return NULL;
    }
    dt__submit(c, w, false);
    return &w->w;
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
    a.sends = a.recvs = NULL;
    a.dtype = dtype;
    a.op = op;
    a.root = root;
    a.tag = 0;
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
DT_API int dt_comm_alltoall(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *sends,
                            const int64_t *recvs, int dtype)
{
    dt__call a = dt__call_of("dt_comm_alltoall", DT_COLL_ALLTOALL, in, out, n, NULL, dtype, 0, 0);
    a.sends = sends;
    a.recvs = recvs;
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
DT__INSIDE dt_work *dt__allgather_tagged(dt_comm *c, const void *in, void *out, const int64_t *counts, int dtype, int tag)
{
    dt__call a = dt__call_of("dt_comm_allgather_start", DT_COLL_ALLGATHER, in, out, 0, counts, dtype, 0, 0);
    a.tag = tag;
    return dt__call_start(c, &a);
}
DT_API dt_work *dt_comm_allgather_start(dt_comm *c, const void *in, void *out, int64_t n, const int64_t *counts,
                                        int dtype)
{
    dt__call a = dt__call_of("dt_comm_allgather_start", DT_COLL_ALLGATHER, in, out, n, counts, dtype, 0, 0);
    return dt__call_start(c, &a);
}
static void dt__req_free(dt_comm *c, dt__req *q, bool own);
static void dt__message_posted(dt_comm *c);
DT_API bool dt_work_test(dt_work *w)
{
    if (!w || !w->c) return true;
    if (!__atomic_load_n(&w->finished, __ATOMIC_ACQUIRE) && dt__engine_try(w->c)) {
        dt__engine_look(w->c);
        dt__engine_leave(w->c);
    }
    return __atomic_load_n(&w->finished, __ATOMIC_ACQUIRE) && (!w->job || w->status || w->device_transport->test(w->job));
}
DT_API int dt_work_times(dt_work *w, int64_t *began, int64_t *ended)
{
    if (!w) return DT_COMM_ERR_ARG;
    if (w->c) dt__work_run(w->c, w);
    if (began) *began = w->started;
    if (ended) *ended = w->ended;
    return w->status;
}
DT_API int64_t dt_work_waited(dt_work *w, int *rank)
{
    if (rank) *rank = -1;
    if (!w || dt_work_times(w, NULL, NULL) || w->kind != DT__WORK_COLLECTIVE) return 0;
    const dt__coll_work *k = (const dt__coll_work *)(void *)w;
    if (rank && k->late) *rank = k->late_rank;
    return k->late;
}
/* A message ended alone: the thread that waits for it learns why. */
static void dt__message_said(const dt__req *q, int status)
{
    char peer[32], tag[32], why[DT__WHY];
    if (status == DT_COMM_ERR_REMOTE) dt__comm_bad(status, "%s to rank %d: %s", q->call, q->peer, q->said ? q->said : "refused");
    if (status == DT_COMM_ERR_MISMATCH && q->said) dt__comm_bad(status, "%s", q->said);
    if (status == DT_COMM_ERR_PEER && q->w.c && q->w.c->members && q->peer >= 0) {
        dt__members_how(q->w.c, q->peer, why, sizeof why);
        dt__comm_bad(status, "%s %s rank %d: %s", q->call, q->send ? "to" : "from", q->peer, why);
    }
    if (status != DT_COMM_ERR_TIMEOUT && status != DT_COMM_ERR_CANCELLED) return;
    snprintf(tag, sizeof tag, q->tag < 0 ? "any tag" : "tag %d", q->tag);
    if (status == DT_COMM_ERR_TIMEOUT && q->said) {
        dt__comm_bad(status, "%s %s %s, %s: %s", q->call, q->send ? "to" : "from", dt__rank_or_any(q->peer, peer, sizeof peer), tag, q->said);
        return;
    }
    dt__comm_bad(status, "%s %s %s, %s: %s", q->call, q->send ? "to" : "from", dt__rank_or_any(q->peer, peer, sizeof peer), tag,
                 status == DT_COMM_ERR_TIMEOUT ? "it did not meet its counterpart within its timeout" : "cancelled");
}
static int dt__work_done(dt_work *w) /* returns the status of a work that is finished, and frees it if it is its own */
{
    dt_comm *c = w->c;
    int      rc = dt__job_wait(w, w->status);
    if (w->kind == DT__WORK_MESSAGE && rc && (!c || dt__comm_ok(c))) dt__message_said((dt__req *)(void *)w, rc);
    if (!w->own) return rc;
    if (c && w->kind == DT__WORK_MESSAGE) {
        dt__req_free(c, (dt__req *)(void *)w, dt__serving != c);
        return rc;
    }
    if (c) {
        pthread_mutex_lock(&c->engine->lock);
        dt__work_drop(c->engine, w);
        pthread_mutex_unlock(&c->engine->lock);
    } else if (w->kind == DT__WORK_MESSAGE) { /* it has outlived its communicator */
        dt__req *q = (dt__req *)(void *)w;
        if (!q->plain) DT_COMM_FREE(q->said);
        DT_COMM_FREE(q->block);
        return rc;
    }
    DT_COMM_FREE(w);
    return rc;
}
DT_API int dt_work_wait(dt_work *w)
{
    if (!w) return DT_COMM_ERR_ARG;
    if (w->c && !__atomic_load_n(&w->finished, __ATOMIC_ACQUIRE)) {
        if (dt__handler_waits(w->c, "dt_work_wait")) return w->c->status;
        dt__work_run(w->c, w);
    }
    return dt__work_done(w);
}
DT_API bool dt_work_cancel(dt_work *w)
{
    if (!w || !w->c || w->kind != DT__WORK_MESSAGE || __atomic_load_n(&w->finished, __ATOMIC_ACQUIRE) || w->job) return false;
    dt_comm       *c = w->c;
    const int64_t *clock = dt__clock_of(c);
    dt__engine_enter(c);
    bool did = !w->finished && dt__mail_cancel(c, (dt__req *)(void *)w, DT_COMM_ERR_CANCELLED);
    if (did && !w->finished && dt__serving != c) dt__engine_poll(c);
    dt__engine_leave(c);
    dt__net_clock = clock;
    return did;
}
static void dt__then_run(dt_comm *c, dt__req *q) /* by the driver */
{
    void (*fn)(void *user, int status) = q->then;
    void          *user = q->user;
    const dt_comm *before = dt__serving;
    dt__serving = c;
    fn(user, dt__work_done(&q->w));
    dt__serving = before;
}
static void dt__then_done(dt_comm *c, dt__req *q)
{
    dt__message_done(c, &q->w);
    dt__then_run(c, q);
}
DT_API int dt_work_then(dt_work *w, void (*fn)(void *user, int status), void *user)
{
    if (!w || !fn || w->kind != DT__WORK_MESSAGE || w->job)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_work_then: %s", !w ? "the work is NULL" : !fn ? "the function is NULL"
                                                                                         : "it is for messages and calls of host memory");
    dt_comm *c = w->c;
    dt__req *q = (dt__req *)(void *)w;
    if (!c) { /* the communicator was freed */
        int status = dt__work_done(w);
        fn(user, status);
        return 0;
    }
    const int64_t *clock = dt__clock_of(c);
    dt__engine_enter(c);
    q->then = fn;
    q->user = user;
    if (w->finished) dt__then_run(c, q);
    else {
        q->plain = false;
        q->done_fn = dt__then_done;
    }
    dt__message_posted(c);
    dt__net_clock = clock;
    return 0;
}
static int dt__any_done(dt_work **w, int n, bool *none)
{
    *none = true;
    for (int i = 0; i < n; i++) {
        if (!w[i]) continue;
        *none = false;
        if (!w[i]->c || __atomic_load_n(&w[i]->finished, __ATOMIC_SEQ_CST)) return i;
    }
    return -1;
}
/* One communicator: this thread drives it. Several: their progress threads do, and this thread waits for any of them;
   those without a thread it polls itself. */
DT_API int dt_work_wait_any(dt_work **w, int n)
{
    bool none, several = false, poll = false;
    int  i = dt__any_done(w, n, &none);
    if (i >= 0 || none) return i;
    dt_comm *c = NULL;
    for (int k = 0; k < n; k++) {
        if (!w[k]) continue;
        several = several || (c && c != w[k]->c);
        c = w[k]->c;
        poll = poll || !c->engine->has_thread;
    }
    if (!several) {
        const int64_t *clock = dt__clock_of(c);
        dt__idler      d = { 0, false, 0, 0 };
        dt__engine_enter(c);
        while ((i = dt__any_done(w, n, &none)) < 0) dt__idle(c, &d, dt__engine_poll(c));
        dt__idle_end(c, &d);
        dt__engine_leave(c);
        dt__net_clock = clock;
        return i;
    }
    __atomic_add_fetch(&dt__any.waiting, 1, __ATOMIC_SEQ_CST);
    for (int k = 0; k < n; k++)
        if (w[k] && w[k]->c->engine->has_thread) { /* this thread does not drive: so no naps */
            __atomic_store_n(&w[k]->c->engine->lazy, 0, __ATOMIC_RELAXED);
            dt__engine_kick(w[k]->c);
        }
    for (int turn = 0; (i = dt__any_done(w, n, &none)) < 0; turn++) {
        struct timespec t;
        bool waited = false;
        for (int k = 0; k < n; k++) {
            if (!w[k] || w[k]->c->engine->has_thread || dt_work_test(w[k])) continue;
            const dt__transport *by = w[k]->c->across;
            if (by && by->wait) by->wait(w[k]->c, 2e-4), waited = true; /* the simulator's time passes in it */
        }
        if (waited) continue;
        if (turn < 1000 && poll) {
            sched_yield();
            continue;
        }
        pthread_mutex_lock(&dt__any.lock);
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += poll ? 200000 : 20000000; /* ns */
        if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
        if (dt__any_done(w, n, &none) < 0) pthread_cond_timedwait(&dt__any.cond, &dt__any.lock, &t);
        pthread_mutex_unlock(&dt__any.lock);
    }
    __atomic_sub_fetch(&dt__any.waiting, 1, __ATOMIC_SEQ_CST);
    return i;
}

/* ---- messages */
/* A call of this rank is wrong: the communicator fails; a tolerant one goes on, and only the call has failed. */
static DT__PRINTF(3, 4) int dt__misuse(dt_comm *c, int status, const char *format, ...)
{
    char    text[700];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return c->members ? dt__comm_bad(status, "%s", text) : dt__comm_fail(c, status, c->rank, "%s", text);
}
static void dt__req_free(dt_comm *c, dt__req *q, bool own) /* own: by the thread that uses the communicator */
{
    struct dt__engine *e = c->engine;
    dt__req           *first = __atomic_load_n(&e->returned, __ATOMIC_RELAXED);
    if (__builtin_expect(!q->plain && q->said, 0)) DT_COMM_FREE(q->said);
    if (own) {
        q->w.after = (dt_work *)(void *)e->own_reqs;
        e->own_reqs = q;
        return;
    }
    do q->w.after = (dt_work *)(void *)first;
    while (!__atomic_compare_exchange_n(&e->returned, &first, q, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}
/* Field by field: memset of so many bytes is a slow instruction with some compilers. */
static inline void dt__req_clear(dt__req *q, bool only_work)
{
    q->w.c = NULL;
    q->w.before = q->w.after = NULL;
    q->w.device_transport = NULL;
    q->w.job = NULL;
    q->w.started = q->w.ended = 0;
    q->w.status = 0;
    q->w.kind = 0;
    q->w.own = q->w.finished = false;
    q->plain = only_work;
    if (only_work) return;
    q->said = NULL;
    q->partner = NULL;
    q->place = 0;
    q->link.prev = q->link.next = q->wait.prev = q->wait.next = NULL;
    q->ptr = NULL;
    q->n = q->total = 0;
    q->order = q->id = q->remote = 0;
    q->since = 0;
    q->timeout = 0;
    q->info = NULL;
    q->view = NULL;
    q->done_fn = NULL;
    q->call = NULL;
    q->short_ok = false;
    q->peer = q->tag = 0;
    q->why = 0;
    q->space = q->dtype = q->state = 0;
    q->send = q->cancel = q->asked = false;
    q->ref = q->moved = 0;
    q->peek = false;
}
/* By the driver. NULL: too many, or out of memory. only_work: its message is done already, nobody reads the rest. */
static dt__req *dt__req_take(dt_comm *c, bool only_work)
{
    struct dt__engine *e = c->engine;
    dt__req          **list = dt__serving != c && e->own_reqs ? &e->own_reqs : &e->free_reqs, *q = *list;
    if (!q) q = __atomic_exchange_n(&e->returned, (dt__req *)NULL, __ATOMIC_ACQUIRE); /* all of them */
    if (q) *list = (dt__req *)(void *)q->w.after;
    else {
        if ((e->nreqs + 1) * (int64_t)sizeof *q > ((const dt__mail *)c->mail)->limit) return NULL;
        if (e->nreqs == e->reqs_cap) {
            int64_t   n = e->reqs_cap ? 2 * e->reqs_cap : 64;
            dt__req **all = (dt__req **)DT_COMM_REALLOC(e->reqs, (size_t)n * sizeof *all);
            if (!all) return NULL;
            e->reqs = all;
            e->reqs_cap = n;
        }
        void *block;
        if (!(q = (dt__req *)dt__line_malloc(sizeof *q, &block))) return NULL;
        q->block = block;
        e->reqs[e->nreqs++] = q;
    }
    dt__req_clear(q, only_work);
    q->w.own = true;
    return q;
}
static void dt__req_none(dt_comm *c, const char *call) /* dt__req_take has returned NULL */
{
    int64_t limit = ((const dt__mail *)c->mail)->limit, n = c->engine->nreqs;
    if ((n + 1) * (int64_t)sizeof(dt__req) > limit)
        dt__misuse(c, DT_COMM_ERR_MEMORY,
                   "rank %d: %s: %" PRId64 " messages are pending and fill the memory for messages, %" PRId64
                   " bytes: wait for some of them, or raise .message_memory",
                   c->rank, call, n, limit);
    else dt__misuse(c, DT_COMM_ERR_MEMORY, "rank %d: %s: out of memory", c->rank, call);
}
typedef struct dt__message { /* what a call wants */
    const char  *call;
    const void  *buf;
    int64_t      n;
    int          dtype, peer;
    dt_msg_view *view;
    bool         send;
} dt__message;
static int dt__message_bad(dt_comm *c, const dt__message *a, const dt_msg_opts *o) /* 0, or the status after dt__misuse */
{
    char why[160];
    why[0] = 0;
    if (a->dtype < 0 || a->dtype >= DT_COMM_DTYPES)
        snprintf(why, sizeof why, "dtype %d is not a dt_comm_dtype (0 to %d)", a->dtype, DT_COMM_DTYPES - 1);
    else if (a->n < 0 || a->n > INT64_MAX / 64)
        snprintf(why, sizeof why, "%" PRId64 " elements; expected 0 to %" PRId64, a->n, INT64_MAX / 64);
    else if ((a->peer < 0 || a->peer >= dt__comm_known(c)) && (a->send || a->peer != DT_ANY))
        snprintf(why, sizeof why, "rank %d is out of range in a world of %d", a->peer, dt__comm_known(c));
    else if (o->tag < 0 && (a->send || o->tag != DT_ANY))
        snprintf(why, sizeof why, "tag %d; expected 0 or more%s", o->tag, a->send ? "" : ", or DT_ANY");
    else if (!(o->timeout >= 0)) snprintf(why, sizeof why, ".timeout is %g; expected seconds, or DT_FOREVER", o->timeout);
    else if (!a->buf && a->n && !a->view) snprintf(why, sizeof why, "the buffer is NULL");
    if (!why[0]) return 0;
    return dt__misuse(c, DT_COMM_ERR_ARG, "rank %d: %s: %s", c->rank, a->call, why);
}
static int dt__message_device(dt_comm *c, dt__req *q) /* device memory: the message carries a record. 0, or the status */
{
    if (q->tag < 0 || q->peer == DT_ANY || q->peer == c->rank)
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank,
                             "rank %d: %s: GPU memory goes to and from another, known rank, with a known tag", c->rank, q->call);
    dt__call a;
    memset(&a, 0, sizeof a);
    a.name = q->call;
    a.coll = q->send ? DT_COLL_SEND : DT_COLL_RECV;
    a.out = q->ptr;
    a.dtype = q->dtype;
    a.n = (int64_t)(q->n / dt__elem_nbytes(q->dtype));
    a.root = q->peer;
    q->ref = a.n;
    q->w.device_transport = c->device_transport;
    q->w.job = c->device_transport->begin(c, &a);
    if (!q->w.job) return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    q->ptr = q->w.job->record;
    q->n = DT__RECORD;
    q->dtype |= DT__M_DEVICE;
    return 0;
}
static int dt__message_fill(dt_comm *c, dt__req *q, const dt__message *a, const dt_msg_opts *o)
{
    q->w.c = c;
    q->w.kind = DT__WORK_MESSAGE;
    q->call = a->call;
    q->ptr = (char *)(uintptr_t)a->buf;
    q->n = (size_t)a->n * dt__elem_nbytes(a->dtype);
    q->dtype = (uint8_t)a->dtype;
    q->peer = a->peer;
    q->tag = o->tag;
    q->timeout = o->timeout;
    q->info = o->info;
    q->view = a->view;
    q->send = a->send;
    if (__builtin_expect(c->device_transport != NULL, 0) && q->n && !q->view && c->device_transport->owns(c, q->ptr))
        return dt__message_device(c, q);
    return 0;
}
static void dt__message_past(dt_comm *c, bool send, int64_t n, int dtype, int peer, int tag, int64_t began, int64_t ended, int status)
{
    dt__frame f;
    f.seq = (uint64_t)(tag < 0 ? 0 : tag);
    f.dtype = (uint8_t)dtype;
    f.count = n;
    f.root = peer;
    f.coll = send ? DT_COLL_SEND : DT_COLL_RECV;
    f.op = f.algo = 0;
    dt__past_add(c, &f, began, ended, status);
}
/* Small messages inside a machine, in most cases: no request, no clock. 1: done; 0: not possible; negative: failed. */
static int dt__message_now(dt_comm *c, const dt__message *a, const dt_msg_opts *o)
{
    size_t n = (size_t)a->n * dt__elem_nbytes(a->dtype);
    if (!c->shared || c->device_transport || a->peer < 0 || a->view || o->info || o->tag < 0) return 0;
    if (a->send) {
        if (!dt__mail_send_now(c, a->peer, o->tag, a->dtype, a->buf, n)) return 0;
        dt__counter_add(&c->engine->counters.bytes, (int64_t)n);
    } else {
        int looks = dt__shared_spin((dt__shared *)c->shared) ? DT__SHORT_LOOKS >> c->engine->vain : 0;
        if (!dt__mail_recv_now(c, a->peer, o->tag, a->dtype, (void *)(uintptr_t)a->buf, n, looks)) return 0;
        dt__comm_look(c); /* as in dt__work_poll */
    }
    dt__message_past(c, a->send, a->n, a->dtype, a->peer, o->tag, 0, 0, 0);
    int status = __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    return status ? status : 1;
}
static int dt__message_do(dt_comm *c, const dt__message *a, const dt_msg_opts *o)
{
    dt__req q;
    if (!c) return dt__comm_null(a->call);
    if (!dt__comm_ok(c)) return c->status;
    int rc = dt__message_bad(c, a, o);
    if (rc) return rc;
    if (dt__handler_waits(c, a->call)) return c->status;
    dt__engine_enter(c);
    rc = dt__message_now(c, a, o);
    if (rc) {
        dt__engine_leave(c);
        return rc > 0 ? 0 : rc;
    }
    memset(&q, 0, sizeof q);
    rc = dt__message_fill(c, &q, a, o);
    if (rc) {
        dt__engine_leave(c);
        return rc;
    }
    __atomic_store_n(&c->doing, (uint32_t)(a->send ? DT_COLL_SEND : DT_COLL_RECV) + 1, __ATOMIC_RELAXED);
    if (dt__net_clock || c->world) {
        const int64_t *clock = dt__clock_of(c);
        dt__mail_post(c, &q);
        dt__net_clock = clock;
    } else dt__mail_post(c, &q);
    if (!q.w.finished) dt__engine_run(c, &q.w);
    __atomic_store_n(&c->doing, 0u, __ATOMIC_RELAXED);
    dt__engine_leave(c);
    rc = q.w.status;
    if (rc || q.w.job) {
        rc = dt__work_done(&q.w);
        DT_COMM_FREE(q.said);
    }
    return rc;
}
/* Messages of start calls are posted: somebody has to drive. The caller is the driver, and is it no longer. */
static void dt__message_posted(dt_comm *c)
{
    struct dt__engine *e = c->engine;
    if (!e->has_thread && !c->no_thread && dt__engine_busy(c)) {
        pthread_mutex_lock(&e->lock);
        dt__engine_thread(c);
        pthread_mutex_unlock(&e->lock);
    }
    dt__engine_leave(c);
}
static dt_work *dt__message_start(dt_comm *c, const dt__message *a, const dt_msg_opts *o)
{
    if (!c) {
        dt__comm_null(a->call);
        return NULL;
    }
    if (!dt__comm_ok(c) || dt__message_bad(c, a, o)) return NULL;
    dt__engine_enter(c);
    const int64_t *clock = dt__clock_of(c);
    bool           now = a->send && dt__message_now(c, a, o) > 0;
    dt__req       *q = dt__req_take(c, now);
    if (!q) dt__req_none(c, a->call);
    else if (now) {
        q->w.c = c;
        q->w.kind = DT__WORK_MESSAGE;
        q->w.started = q->w.ended = dt__comm_coarse();
        q->w.finished = true;
    } else if (dt__message_fill(c, q, a, o)) { /* device memory */
        dt__req_free(c, q, false);
        q = NULL;
    } else dt__mail_post(c, q);
    dt__message_posted(c);
    dt__net_clock = clock;
    return q ? &q->w : NULL;
}
static dt__message dt__message_of(const char *call, const void *buf, int64_t n, int dtype, int peer, dt_msg_view *view, bool send)
{
    dt__message a;
    a.call = call;
    a.buf = buf;
    a.n = n;
    a.dtype = dtype;
    a.peer = peer;
    a.view = view;
    a.send = send;
    return a;
}
DT_API int dt_comm_send_with(dt_comm *c, const void *buf, int64_t n, int dtype, int to, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_send", buf, n, dtype, to, NULL, true);
    return dt__message_do(c, &a, &o);
}
DT_API int dt_comm_recv_with(dt_comm *c, void *buf, int64_t n, int dtype, int from, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_recv", buf, n, dtype, from, NULL, false);
    return dt__message_do(c, &a, &o);
}
DT_API int dt_comm_recv_view_with(dt_comm *c, dt_msg_view *out, int dtype, int from, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_recv_view", NULL, 0, dtype, from, out, false);
    if (!out) return c ? dt__misuse(c, DT_COMM_ERR_ARG, "rank %d: dt_comm_recv_view: out is NULL", c->rank) : DT_COMM_ERR_ARG;
    memset(out, 0, sizeof *out);
    return dt__message_do(c, &a, &o);
}
DT_API dt_work *dt_comm_send_start_with(dt_comm *c, const void *buf, int64_t n, int dtype, int to, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_send_start", buf, n, dtype, to, NULL, true);
    return dt__message_start(c, &a, &o);
}
DT_API dt_work *dt_comm_recv_start_with(dt_comm *c, void *buf, int64_t n, int dtype, int from, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_recv_start", buf, n, dtype, from, NULL, false);
    return dt__message_start(c, &a, &o);
}
DT_API dt_work *dt_comm_recv_view_start_with(dt_comm *c, dt_msg_view *out, int dtype, int from, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_recv_view_start", NULL, 0, dtype, from, out, false);
    if (!out) {
        if (c) dt__misuse(c, DT_COMM_ERR_ARG, "rank %d: dt_comm_recv_view_start: out is NULL", c->rank);
        return NULL;
    }
    memset(out, 0, sizeof *out);
    return dt__message_start(c, &a, &o);
}
DT_API void dt_comm_view_free(dt_comm *c, dt_msg_view *v)
{
    if (!c || !v || !(v->dt__hold || v->dt__id)) return;
    const int64_t *clock = dt__clock_of(c);
    dt__engine_enter(c);
    dt__view_free(c, v);
    if (dt__serving != c) dt__engine_poll(c); /* a handler runs in a poll */
    dt__engine_leave(c);
    dt__net_clock = clock;
}
DT_API int dt_comm_probe_with(dt_comm *c, dt_msg_info *info, int from, dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_probe", info, 0, DT_COMM_U8, from, NULL, false);
    dt_msg_info unread;
    if (!c) return dt__comm_null("dt_comm_probe");
    dt__comm_look(c);
    if (!dt__comm_ok(c)) return c->status;
    int bad = dt__message_bad(c, &a, &o);
    if (bad) return bad;
    const int64_t *clock = dt__clock_of(c);
    dt__idler      d = { 0, false, 0, 0 };
    bool           there = false;
    int64_t        end = 0;
    dt__engine_enter(c);
    for (int moved = 1;;) {
        there = dt__mail_probe(c, from, o.tag, info ? info : &unread);
        if (there || !dt__comm_ok(c)) break;
        if (from >= 0 && ((const dt__mail *)c->mail)->peer[from].over) break; /* nothing more comes */
        if (!moved) { /* it has looked at least once */
            int64_t now = dt__comm_now();
            if (!end) end = o.timeout >= DT_FOREVER ? INT64_MAX : now + dt__ns_of(o.timeout);
            if (now >= end) break;
            dt__idle(c, &d, 0);
        } else dt__idle(c, &d, moved);
        moved = dt__engine_poll(c);
    }
    dt__idle_end(c, &d);
    dt__engine_leave(c);
    dt__net_clock = clock;
    return there ? 1 : __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}

DT__INSIDE void dt__comm_drive(dt_comm *c, void (*fn)(void *user), void *user)
{
    const int64_t *clock = dt__clock_of(c);
    const dt_comm *before = dt__serving;
    dt__engine_enter(c);
    dt__serving = c;
    fn(user);
    dt__serving = before;
    dt__message_posted(c);
    dt__net_clock = clock;
}
DT__INSIDE bool dt__comm_until(dt_comm *c, const int *flag, double seconds)
{
    if (dt__handler_waits(c, "a call that waits")) return false;
    const int64_t *clock = dt__clock_of(c);
    dt__idler      d = { 0, false, 0, 0 };
    int64_t        end = 0;
    dt__engine_enter(c);
    for (;;) {
        if (__atomic_load_n(flag, __ATOMIC_ACQUIRE)) break;
        int moved = dt__engine_poll(c);
        if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) || (!moved && !dt__comm_ok(c))) break;
        if (!moved) {
            int64_t now = dt__comm_now();
            if (!end) end = seconds >= DT_FOREVER ? INT64_MAX : now + dt__ns_of(seconds);
            if (now >= end) break;
        }
        dt__idle(c, &d, moved);
    }
    dt__idle_end(c, &d);
    dt__engine_leave(c);
    dt__net_clock = clock;
    return true;
}

/* ---- requests and replies. A handler's receive is posted again when a request has come. */
typedef struct dt__request {
    dt_request    q;           /* what the handler sees */
    dt_msg_view   view;
    dt__req       req;         /* the receive; then the send of the reply */
    struct dt__handler *by;
    struct dt__request *next;  /* in the queue of requests that wait for dt_comm_serve_next */
    char         *copy;
    dt_reply_opts o;
} dt__request;
typedef struct dt__handler {
    struct dt__handler *next;
    int           tag;
    dt_request_fn fn;
    void         *user;
    bool          at_once;
    dt__request  *posted;
    dt__request  *first, *last; /* requests that have come and whose turn has not: see dt__request_came */
    bool          busy;
} dt__handler;
static void dt__request_came(dt_comm *c, dt__req *r);
static void dt__request_free(dt__request *t)
{
    dt__view_free(t->req.w.c, &t->view); /* unless it was answered */
    DT_COMM_FREE(t->copy);
    DT_COMM_FREE(t);
}
static void dt__handler_post(dt_comm *c, dt__handler *h) /* by the driver */
{
    dt__request *t = (dt__request *)dt__comm_zeroed(1, sizeof *t);
    if (!t) {
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: dt_comm_serve: out of memory", c->rank);
        return;
    }
    t->by = h;
    t->q.dt__inside = t;
    h->posted = t;
    t->req.w.c = c;
    t->req.w.kind = DT__WORK_MESSAGE;
    t->req.call = "dt_comm_serve";
    t->req.peer = DT_ANY;
    t->req.tag = h->tag;
    t->req.space = DT__SPACE_CALL;
    t->req.dtype = DT_COMM_U8;
    t->req.timeout = DT_FOREVER;
    t->req.view = &t->view;
    t->req.done_fn = dt__request_came;
    dt__mail_post(c, &t->req);
}
static void dt__request_run(dt_comm *c, dt__request *t) /* by the driver */
{
    const dt_comm *before = dt__serving;
    dt__serving = c;
    t->by->fn(&t->q);
    dt__serving = before;
}
static void dt__request_turn(dt_comm *c, dt__request *t) /* by the driver */
{
    struct dt__engine *e = c->engine;
    dt__handler       *h = t->by;
    t->next = NULL;
    t->q.from = t->view.info.from;
    t->q.tag = h->tag;
    t->q.data = t->view.data;
    t->q.n = t->view.info.n;
    t->q.c = c;
    t->q.user = h->user;
    if (!h->fn) dt__request_free(t); /* removed meanwhile: the call waits for its timeout */
    else if (h->at_once) dt__request_run(c, t);
    else {
        if (e->last_request) e->last_request->next = t;
        else e->first_request = t;
        e->last_request = t;
    }
}
/* A receive that is posted may find a request that waits, and so end in here again. The first of these calls runs the handlers
   of all, so that they run in the order in which the requests came. */
static void dt__request_came(dt_comm *c, dt__req *r)
{
    dt__request *t = DT__OWNER(dt__request, req, r);
    dt__handler *h = t->by;
    h->posted = NULL;
    if (r->w.status) { /* the communicator has failed, or the handler was removed, or the caller has gone */
        bool alone = r->w.status == DT_COMM_ERR_PEER || r->w.status == DT_COMM_ERR_TIMEOUT; /* tolerant: only this request has ended */
        dt__request_free(t);
        if (!alone) return;
    } else {
        t->next = NULL;
        if (h->first) h->last->next = t;
        else h->first = t;
        h->last = t;
    }
    if (h->busy) return;
    h->busy = true;
    for (;;) {
        if (!h->posted && h->fn && dt__comm_ok(c)) dt__handler_post(c, h);
        if (!(t = h->first)) break;
        h->first = t->next;
        dt__request_turn(c, t);
    }
    h->busy = false;
}
static void dt__reply_sent(dt_comm *c, dt__req *r)
{
    dt__request *t = DT__OWNER(dt__request, req, r);
    (void)c;
    if (t->o.done) t->o.done(t->o.user);
    dt__request_free(t);
}
static int dt__request_answer(dt_request *q, const void *data, int64_t n, const dt_reply_opts *o, bool refuse)
{
    if (q && q->dt__answer) return q->dt__answer(q, data, n, o, refuse);
    if (!q || !q->dt__inside || n < 0 || (n && !data))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_request_reply: the request was answered before, or the data is NULL");
    dt__request *t = q->dt__inside;
    dt_comm     *c = q->c;
    int64_t      number = t->req.ref;
    const int64_t *clock = dt__clock_of(c);
    dt__engine_enter(c);
    if (!o->done && n) {
        t->copy = (char *)DT_COMM_MALLOC((size_t)n);
        if (t->copy) memcpy(t->copy, data, (size_t)n);
        else dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: dt_request_reply: out of memory", c->rank);
    }
    int peer = q->from;
    dt__view_free(c, &t->view);
    q->dt__inside = NULL;
    memset(&t->req, 0, sizeof t->req);
    t->o = *o;
    t->req.w.c = c;
    t->req.w.kind = DT__WORK_MESSAGE;
    t->req.call = "dt_request_reply";
    t->req.send = true;
    t->req.peer = peer;
    t->req.tag = (int32_t)number;
    t->req.space = DT__SPACE_REPLY;
    t->req.dtype = DT_COMM_U8;
    t->req.ref = refuse;
    t->req.ptr = o->done ? (char *)(uintptr_t)data : t->copy;
    t->req.n = (size_t)n;
    t->req.done_fn = dt__reply_sent;
    int rc = __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    if (rc) dt__reply_sent(c, &t->req);
    else dt__mail_post(c, &t->req); /* t may be gone now */
    dt__engine_leave(c);
    dt__net_clock = clock;
    return rc;
}
DT_API int dt_request_reply_with(dt_request *q, const void *data, int64_t n, dt_reply_opts o)
{
    return dt__request_answer(q, data, n, &o, false);
}
DT_API int dt_request_refuse(dt_request *q, const char *why)
{
    dt_reply_opts o = DT__NO_OPTIONS;
    if (!why || !*why) why = "refused";
    return dt__request_answer(q, why, (int64_t)strnlen(why, 400), &o, true);
}
DT_API int dt_comm_serve_with(dt_comm *c, int tag, dt_request_fn fn, dt_serve_opts o)
{
    if (!c) return dt__comm_null("dt_comm_serve");
    if (!dt__comm_ok(c)) return c->status;
    if (tag < 0) return dt__misuse(c, DT_COMM_ERR_ARG, "rank %d: dt_comm_serve: tag %d; expected 0 or more", c->rank, tag);
    struct dt__engine *e = c->engine;
    dt__mail          *m = (dt__mail *)c->mail;
    dt__engine_enter(c);
    dt__handler *h = e->handlers;
    while (h && h->tag != tag) h = h->next;
    if (!h && fn && (h = (dt__handler *)dt__comm_zeroed(1, sizeof *h)) != NULL) {
        h->next = e->handlers;
        e->handlers = h;
    }
    if (h) {
        m->nserved += (fn && o.at_once) - (h->fn && h->at_once);
        h->tag = tag;
        h->fn = fn;
        h->user = o.user;
        h->at_once = o.at_once;
        if (!fn && h->posted) dt__mail_cancel(c, &h->posted->req, DT_COMM_ERR_CANCELLED);
        else if (fn && !h->posted) dt__handler_post(c, h);
    } else if (fn) dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: dt_comm_serve: out of memory", c->rank);
    if (fn && o.at_once && !e->has_thread && !c->no_thread) {
        pthread_mutex_lock(&e->lock);
        dt__engine_thread(c);
        pthread_mutex_unlock(&e->lock);
    }
    dt__engine_leave(c);
    return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}
DT_API int dt_comm_serve_next(dt_comm *c, double timeout)
{
    if (!c || !(timeout >= 0)) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_serve_next: the communicator is NULL, or the timeout %g", timeout);
    struct dt__engine *e = c->engine;
    const int64_t     *clock = dt__clock_of(c);
    dt__idler          d = { 0, false, 0, 0 };
    int64_t            end = timeout >= DT_FOREVER ? INT64_MAX : dt__comm_now() + dt__ns_of(timeout);
    dt__engine_enter(c);
    while (!e->first_request && dt__comm_ok(c)) {
        int moved = dt__engine_poll(c);
        if (e->first_request) break;
        if (!moved && dt__comm_now() >= end) break;
        dt__idle(c, &d, moved);
    }
    dt__idle_end(c, &d);
    dt__request *t = e->first_request;
    if (t) e->first_request = t->next;
    if (!e->first_request) e->last_request = NULL;
    dt__engine_leave(c);
    dt__net_clock = clock;
    if (t && dt__comm_ok(c)) {
        t->by->fn(&t->q);
        return 1;
    }
    if (t) dt__request_free(t);
    return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}
static void dt__request_sent(dt_comm *c, dt__req *q) /* the request of a call: nobody waits for it */
{
    dt__req_free(c, q, false);
}
DT_API dt_work *dt_comm_call_start_with(dt_comm *c, int to, int tag, const void *in, int64_t nin, void *out, int64_t nout,
                                        dt_msg_opts o)
{
    dt__message a = dt__message_of("dt_comm_call", in, nin, DT_COMM_U8, to, NULL, true);
    dt__message b = dt__message_of("dt_comm_call", out, nout, DT_COMM_U8, to, NULL, false);
    dt_msg_opts plain = o;
    if (!c) {
        dt__comm_null("dt_comm_call");
        return NULL;
    }
    plain.tag = tag;
    if (!dt__comm_ok(c) || dt__message_bad(c, &a, &plain) || dt__message_bad(c, &b, &plain)) return NULL;
    dt__engine_enter(c);
    dt__req *q = dt__req_take(c, false), *r = q ? dt__req_take(c, false) : NULL;
    if (!r) {
        if (q) dt__req_free(c, q, false);
        dt__req_none(c, "dt_comm_call");
        dt__engine_leave(c);
        return NULL;
    }
    int number = (int)(__atomic_add_fetch(&c->engine->calls, 1, __ATOMIC_RELAXED) & INT32_MAX);
    dt__message_fill(c, q, &a, &plain);
    q->info = NULL;
    q->space = DT__SPACE_CALL;
    q->ref = number;
    q->done_fn = dt__request_sent;
    plain.tag = number;
    dt__message_fill(c, r, &b, &plain);
    r->space = DT__SPACE_REPLY;
    r->short_ok = true;
    const int64_t *clock = dt__clock_of(c);
    dt__mail_post(c, r); /* first: the reply of a handler on this rank comes at once */
    if (r->w.finished) dt__request_sent(c, q); /* out of memory */
    else {
        q->partner = r;
        r->partner = q;
        dt__mail_post(c, q);
    }
    dt__message_posted(c);
    dt__net_clock = clock;
    return &r->w;
}
DT_API int dt_comm_call_with(dt_comm *c, int to, int tag, const void *in, int64_t nin, void *out, int64_t nout, int64_t *got,
                             dt_msg_opts o)
{
    dt_msg_info info;
    memset(&info, 0, sizeof info);
    if (!o.info) o.info = &info;
    dt_work *w = dt_comm_call_start_with(c, to, tag, in, nin, out, nout, o);
    if (!w) return !c ? (int)DT_COMM_ERR_ARG : c->status ? c->status : dt__said.why;
    int rc = dt_work_wait(w);
    if (got) *got = rc ? 0 : o.info->n;
    return rc;
}

DT__SLOW_BEGIN
/* ---- making and asking */
DT__INSIDE const dt__device_transport **dt__device_transport_slot(void)
{
    static const dt__device_transport *device_transport;
    return &device_transport;
}
DT__INSIDE void dt__comm_delete(dt_comm *c)
{
    if (!c) return;
    struct dt__engine *e = c->engine;
    if (e) {
        pthread_mutex_lock(&e->lock);
        __atomic_store_n(&e->quit, 1, __ATOMIC_SEQ_CST);
        pthread_cond_broadcast(&e->cond);
        pthread_mutex_unlock(&e->lock);
        if (e->has_thread) {
            dt__engine_wake(c);
            pthread_join(e->thread, NULL);
            e->has_thread = false;
        }
        int ended = c->status ? c->status : DT_COMM_ERR_STATE;
        while (e->head) { /* the communicator failed, and these were not driven */
            dt__coll_work *w = e->head;
            dt__work_end(c, w, ended);
            dt__work_over(c, w, w->w.status);
        }
        dt__mail_fail(c, ended);
        for (dt__chain *l = e->devices.next, *next; l && l != &e->devices; l = next) {
            next = l->next;
            dt__chain_remove(l);
            dt__work_finished(&DT__OWNER(dt__req, link, l)->w, ended);
        }
        dt__any_tell(e);
        for (dt_work *w = e->kept; w; w = w->after) w->c = NULL;
        for (dt__handler *h = e->handlers, *next; h; h = next) {
            next = h->next;
            DT_COMM_FREE(h);
        }
        for (dt__request *t = e->first_request, *next; t; t = next) {
            next = t->next;
            dt__request_free(t);
        }
        dt__req *unused[3];
        unused[0] = e->own_reqs;
        unused[1] = e->free_reqs;
        unused[2] = e->returned;
        for (int i = 0; i < 3; i++)
            for (dt__req *q = unused[i]; q; q = (dt__req *)(void *)q->w.after) q->w.kind = 0;
        for (int64_t i = 0; i < e->nreqs; i++)
            if (e->reqs[i]->w.kind) e->reqs[i]->w.c = NULL; /* dt_work_wait will free it */
            else DT_COMM_FREE(e->reqs[i]->block);
        DT_COMM_FREE(e->reqs);
        DT_COMM_FREE(e->set.p);
        dt__mail_close(c);
        if (c->status) dt__past_log(c); /* if it failed between two calls it is not logged yet */
        for (int i = 0; i < DT__PLAN_CACHE; i++) dt_plan_free(&e->plan[i]);
        DT_COMM_FREE(e->msg);
        DT_COMM_FREE(e->over);
        DT_COMM_FREE(e->busy_send);
        DT_COMM_FREE(e->busy_recv);
        DT_COMM_FREE(e->waits);
        if (!dt__late_writes(c) || dt__comm_ok(c)) DT_COMM_FREE(e->scratch); /* else MPI may still write to it: it stays */
        pthread_mutex_destroy(&e->lock);
        pthread_cond_destroy(&e->cond);
        DT_COMM_FREE(e);
    }
    if (c->device_transport) c->device_transport->close(c);
    if (c->across && c->across->close) c->across->close(c);
    if (c->inside && c->inside->close) c->inside->close(c);
    if (c->wake_fd >= 0) close(c->wake_fd);
    dt__members_free(c->members);
    DT_COMM_FREE(c->member);
    DT_COMM_FREE(c->host);
    DT_COMM_FREE(c->own_note);
    DT_COMM_FREE(c->alive);
    DT_COMM_FREE(c);
}
DT__INSIDE dt_comm *dt__comm_new(int rank, int size, const dt_comm_opts *o) /* NULL after dt__comm_bad */
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
    c->links_arrived = 1; /* some may have arrived before */
    c->client = &dt__comm_client;
    c->no_thread = o->no_thread;
    c->ordered = o->ordered || (ordered && !strcmp(ordered, "1"));
    c->streams = o->streams > 0 ? o->streams : 1;
    c->bandwidth = o->bandwidth;
    c->latency = o->latency;
    c->local_size = size;
    c->local_rank = rank;
    int room = o->tolerant && o->room > size ? o->room : size;
    if (o->tolerant) c->members = dt__members_new(size, room);
    struct dt__engine *e = c->engine = (struct dt__engine *)dt__comm_zeroed(1, sizeof *c->engine);
    c->host = (int *)dt__comm_zeroed((size_t)room, sizeof *c->host);
    c->member = (int *)dt__comm_zeroed((size_t)room, sizeof *c->member);
    if (e) {
        pthread_mutex_init(&e->lock, NULL);
        pthread_condattr_t how;
        pthread_condattr_init(&how);
        pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
        pthread_cond_init(&e->cond, &how);
        pthread_condattr_destroy(&how);
        e->busy_send = (int *)dt__comm_zeroed((size_t)room, sizeof *e->busy_send);
        e->busy_recv = (int *)dt__comm_zeroed((size_t)room, sizeof *e->busy_recv);
        dt__chain_init(&e->devices);
        e->waits = (dt__waits *)dt__comm_zeroed((size_t)room, sizeof *e->waits);
        e->costs = dt_costs_default();
        e->spin = -1;
    }
    const char *algo = o->algo ? o->algo : env;
    c->device_transport = o->backend == DT_NCCL ? *dt__device_transport_slot() : NULL;
    if (o->backend && o->tolerant) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: .tolerant with .backend: NCCL does not survive its members");
    } else if (o->backend && !c->device_transport) {
        dt__comm_bad(DT_COMM_ERR_ARG,
                     "dt_comm_init: .backend is %d; %s", o->backend,
                     o->backend == DT_NCCL ? "NCCL is not in this program: include dt_nccl.h and compile with "
                                             "-DDT_USE_CUDA -DDT_USE_NCCL" : "expected 0 or DT_NCCL");
    } else if (e && algo && *algo && (e->algo = (int)dt_algo_find(algo)) == DT_ALGO_COUNT) {
        char         all[256];
        dt__text_out names = { all, sizeof all, 0 };
        for (int i = 0; i < (int)DT_ALGO_COUNT; i++) dt__emitf(&names, "%s%s", i ? ", " : "", dt_algo_name((dt_algo)i));
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: there is no algorithm \"%.60s\"; there are %s", algo, all);
    } else if (e && c->host && c->member && e->busy_send && e->busy_recv && e->waits &&
               c->wake_fd >= 0 && (c->members || !o->tolerant)) {
        for (int i = 0; i < room; i++) c->member[i] = i;
        return c;
    } else {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory or descriptors");
    }
    dt__comm_delete(c);
    return NULL;
}
static dt_comm *dt__comm_alone(const dt_comm_opts *o) /* a communicator of one rank without a world; NULL after dt__comm_bad */
{
    dt_comm *c = dt__comm_new(0, 1, o);
    if (!c || !dt__mail_open(c)) return c;
    dt__comm_delete(c);
    return NULL;
}
static size_t dt__threads_nbytes(int n) { return (size_t)dt__shared_arenas(n); }
static int    dt__threads_room(int n, const dt_comm_opts *o) { return o->tolerant && o->room > n ? o->room : n; }
static char  *dt__threads_segment(int n, int room) /* memory of n ranks that are threads, up to room; NULL after dt__comm_bad */
{
    int   flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = mmap(NULL, dt__threads_nbytes(room), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_threads: out of memory");
        return NULL;
    }
    ((dt__segment_head *)p)->refs = n;
    ((dt__segment_head *)p)->nmembers = ((dt__segment_head *)p)->nstart = n;
    return (char *)p;
}
/* The communicator of one of them. NULL after dt__comm_bad, and the other ranks are told. */
static dt_comm *dt__threads_comm(char *base, int rank, int n, uint64_t id, const dt_comm_opts *o,
                                 const dt_costs *costs)
{
    int      room = dt__threads_room(n, o);
    int     *all = (int *)DT_COMM_MALLOC((size_t)room * sizeof *all);
    dt_comm *c = dt__comm_new(rank, n, o);
    for (int i = 0; all && i < room; i++) all[i] = i;
    if (c && all) {
        c->first = o->room > 0;
        c->id = id;
        c->threads = true;
        c->opts = *o;
        if (costs) c->engine->costs = *costs, c->engine->has_costs = true;
        c->inside = dt__transport_get("threads");
        c->shared = dt__shared_new(c, all, room, base, dt__threads_nbytes(room), -1);
    }
    DT_COMM_FREE(all);
    if (c && c->shared && !dt__mail_open(c)) {
        if (c->members) dt__threads_enter(c);
        return c;
    }
    if (c && !c->shared) dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_threads: out of memory");
    dt__comm_delete(c);
    dt__segment_head *h = (dt__segment_head *)(void *)base;
    if (!__atomic_exchange_n(&h->failing, 1, __ATOMIC_ACQ_REL)) {
        snprintf(h->text, sizeof h->text, "rank %d could not set up its communicator", rank);
        h->rank = rank;
        __atomic_store_n(&h->status, (int32_t)DT_COMM_ERR_MEMORY, __ATOMIC_RELEASE);
    }
    if (!__atomic_sub_fetch(&h->refs, 1, __ATOMIC_ACQ_REL)) munmap(base, dt__threads_nbytes(room));
    return NULL;
}
/* The communicator of a thread that joins: number `rank` of those in the segment of s. NULL after dt__comm_bad. */
static dt_comm *dt__threads_comm_joined(const dt__shared *s, int rank, const dt_comm *by, const dt_comm_opts *o)
{
    int     *all = (int *)DT_COMM_MALLOC((size_t)s->n * sizeof *all);
    dt_comm *c = dt__comm_new(rank, rank + 1, o);
    for (int i = 0; all && i < s->n; i++) all[i] = i;
    if (c && all) {
        c->first = c->threads = true;
        c->id = by->id;
        c->inside = dt__transport_get("threads");
        c->shared = dt__shared_new(c, all, s->n, s->base, s->nbytes, -1);
        c->members->start = s->head->nstart;
        dt__members_halt(c, DT_COMM_ERR_STATE, 0, "members have joined: dt_comm_shrink makes a communicator of all of them for collectives");
    }
    DT_COMM_FREE(all);
    if (c && c->shared && !dt__mail_open(c)) return c;
    if (c && c->shared) __atomic_add_fetch(&s->head->refs, 1, __ATOMIC_ACQ_REL); /* which deleting c takes back */
    else dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_join: out of memory");
    dt__comm_delete(c);
    return NULL;
}
DT_API int dt_comm_threads_with(int n, dt_comm **out, dt_comm_opts o)
{
    static uint64_t count;
    if (n < 1 || n > 1024 || o.room < 0 || o.room > 1024 || !out)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_threads: n is %d, .room %d, out is %s; expected 1 to 1024 and an array", n, o.room,
                            out ? "an array" : "NULL");
    dt_costs    costs;
    const char *table = dt__costs_named(&o);
    if (table && dt_costs_load(&costs, table)) return DT_COMM_ERR_ARG;
    uint64_t id = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    char    *base = dt__threads_segment(n, dt__threads_room(n, &o));
    bool     ok = base != NULL;
    for (int i = 0; base && i < n; i++)
        ok = (out[i] = dt__threads_comm(base, i, n, id, &o, table ? &costs : NULL)) != NULL && ok;
    if (ok) return 0;
    for (int i = 0; base && i < n; i++) dt__comm_delete(out[i]);
    return DT_COMM_ERR_MEMORY;
}
/* The first half of dt_comm_free: waits until all ranks are there. After it dt_comm_error(c) can still be read. */
DT__INSIDE int dt__comm_leave(dt_comm *c)
{
    dt__call a = dt__call_of("dt_comm_free", DT_COLL_BARRIER, NULL, NULL, 0, NULL, DT_COMM_U8, 0, DT__ROOT_FREE);
    if (!c || c->left || c->size == 1 || dt_comm_get_status(c)) return c ? __atomic_load_n(&c->status, __ATOMIC_ACQUIRE) : 0;
    c->left = true;
    if (c->members) return 0; /* it leaves in dt_comm_free, without waiting */
    return dt__call_do(c, &a);
}
/* A member of a tolerant communicator leaves. What it has sent is on its way: small messages of start calls are sent first. */
static void dt__members_leave(dt_comm *c)
{
    char text[300], who[200];
    if (dt__comm_ok(c)) {
        const int64_t *clock = dt__clock_of(c);
        int64_t        end = dt__comm_now() + 100 * DT__NS_PER_MS;
        dt__engine_enter(c);
        while (dt__mail_sending(c) && dt__comm_ok(c) && dt__comm_now() < end)
            if (!dt__engine_poll(c)) dt__comm_pause(DT__NS_PER_MS / 4);
        dt__engine_leave(c);
        dt__net_clock = clock;
    }
    snprintf(text, sizeof text, "%s left", dt__comm_who(c, c->rank, true, who, sizeof who));
    dt__members_part(c, c->rank, DT__LEFT, text);
    if (c->threads && c->shared) dt__threads_leave(c);
}
DT_API int dt_comm_free(dt_comm *c)
{
    dt__log_unread();
    if (!c) return 0;
    int rc = dt__comm_leave(c);
    if (rc && !__atomic_load_n(&c->error_read, __ATOMIC_RELAXED)) dt__logf(DT_LOG_ERROR, "%s", c->text);
    dt__world *w = c->world;
    if (c->members) dt__members_leave(c);
    if (w) dt__world_remove(w, c);
    dt__comm_delete(c);
    if (w) dt__world_unref(w);
    return rc;
}
DT_API const char *dt_comm_error(const dt_comm *c)
{
    if (!c) return dt__said.text[0] ? dt__said.text : NULL;
    if (!dt_comm_get_status(c)) return NULL;
    __atomic_store_n(&((dt_comm *)(uintptr_t)c)->error_read, 1, __ATOMIC_RELAXED);
    return c->text;
}
DT_API int dt_comm_get_status(const dt_comm *c)
{
    if (c) dt__comm_look(c);
    return c ? __atomic_load_n(&c->status, __ATOMIC_ACQUIRE) : dt__said.text[0] ? dt__said.why : 0;
}
DT_API int dt_comm_failed_rank(const dt_comm *c) { return dt_comm_get_status(c) ? c->failed_rank : -1; }
DT_API void dt_comm_abort(dt_comm *c, const char *why)
{
    if (c) dt__comm_fail(c, DT_COMM_ERR_ABORT, c->rank, "rank %d: %s", c->rank, why ? why : "dt_comm_abort");
}
static int dt__said_by(const char *call) /* the message of a function that dt_comm_init calls, too, names this call instead */
{
    char text[sizeof dt__said.text];
    if (strncmp(dt__said.text, "dt_comm_init: ", 14)) return dt__said.why;
    snprintf(text, sizeof text, "%s", dt__said.text + 12);
    return dt__comm_bad(dt__said.why, "%s%.700s", call, text);
}
DT_API int dt_comm_accept_with(dt_comm *c, dt_accept_opts o)
{
    const char *why = !c ? "the communicator is NULL" : !c->members || !c->first ? "the communicator was not made with .tolerant and .room"
                      : c->world && c->rank != dt__world_head(c->world) ? "only the lowest living rank accepts members" : NULL;
    if (why) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_accept: %s", why);
    if (!dt__comm_ok(c)) return c->status;
    if (!c->threads && dt__world_accept(c->world, !o.closed, o.bind, o.port, o.invitation,
                                        o.invitation ? (size_t)DT__INVITATION : 0))
        return dt__said_by("dt_comm_accept");
    if (!c->threads) return 0;
    __atomic_store_n(&((dt__shared *)c->shared)->head->accepting, !o.closed, __ATOMIC_RELEASE);
    return 0;
}
DT_API size_t dt_comm_address(const dt_comm *c, char *buf, size_t nbytes)
{
    if (c && c->world) return dt__world_address(c->world, buf, nbytes);
    if (buf && nbytes) *buf = 0;
    return 0;
}
/* A thread joins. All under the lock of the segment, so numbers are announced in their order. */
static dt_comm *dt__threads_join(const dt_comm_opts *how)
{
    dt_comm *by = how->beside, *c = NULL;
    char     why[300] = "";
    if (!by->threads || !by->members || !by->first || !dt__comm_ok(by)) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_join: .beside is not a communicator of dt_comm_threads with .tolerant and .room, or has failed");
        return NULL;
    }
    dt__shared       *s = (dt__shared *)by->shared;
    dt__segment_head *h = s->head;
    dt_comm_opts      o = by->opts;
    dt__head_lock(h);
    int rank = h->nmembers;
    if (!__atomic_load_n(&h->accepting, __ATOMIC_ACQUIRE)) snprintf(why, sizeof why, "the group is closed: no member has called dt_comm_accept");
    else if (rank >= s->n) snprintf(why, sizeof why, "the group is full: it has had %d members, the most that .room allows", s->n);
    for (int i = rank - 1; i >= 0 && !why[0] && how->name && *how->name; i--)
        if (!strcmp(dt__slot_of(s, i)->name, how->name) && dt__slot_of(s, i)->incarnation >= how->incarnation)
            snprintf(why, sizeof why, "\"%.47s\" of incarnation %" PRId64 " comes too late: rank %d was incarnation %" PRId64
                     "; a member that comes back needs a higher one", how->name, how->incarnation, i, dt__slot_of(s, i)->incarnation);
    if (why[0]) {
        dt__head_unlock(h);
        dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_join: %s", why);
        return NULL;
    }
    dt__rank_slot *t = dt__slot_of(s, rank);
    snprintf(t->name, sizeof t->name, "%s", how->name ? how->name : "");
    t->incarnation = how->incarnation;
    o.no_thread = how->no_thread;
    if (how->timeout > 0) o.timeout = how->timeout;
    __atomic_add_fetch(&h->refs, 1, __ATOMIC_ACQ_REL);
    c = dt__threads_comm_joined(s, rank, by, &o);
    if (c) {
        h->nmembers = rank + 1;
        c->round = h->round;
        t->comm = c;
        for (int i = 0; i < rank; i++) {
            dt__rank_slot *other = dt__slot_of(s, i);
            c->members->how[i] = (uint8_t)other->gone;
            memcpy(c->members->why[i], other->gone_why, sizeof other->gone_why);
            if (other->gone) c->members->changes = 1;
            if (other->comm) dt__members_joined(other->comm, rank);
        }
    } else __atomic_sub_fetch(&h->refs, 1, __ATOMIC_ACQ_REL);
    dt__head_unlock(h);
    for (int i = 0; c && i < rank && how->name && *how->name; i++) /* its earlier self */
        if (!strcmp(dt__slot_of(s, i)->name, how->name)) dt__members_part(c, i, DT__DIED, "it is replaced by a higher incarnation of itself");
    return c;
}
DT_API int dt_comm_event_fd(const dt_comm *c) { return c && c->members ? c->members->fd : -1; }
DT_API int dt_comm_next_event_with(dt_comm *c, dt_comm_event *out, dt_event_opts o)
{
    if (!c || !out || !c->members || !(o.timeout >= 0))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_next_event: %s",
                            !c ? "the communicator is NULL" : !out ? "out is NULL" : !c->members ? "the communicator was not made with .tolerant"
                                                                                           : ".timeout is negative or NaN");
    if (dt__members_next(c, out)) {
        if (out->kind != DT_MEMBER_JOINED || out->rank < dt_comm_size(c)) return 1;
        dt__engine_enter(c); /* from now on dt_comm_size counts it */
        dt__mail_members(c);
        dt__engine_leave(c);
        return 1;
    }
    if (o.timeout <= 0 || !dt__comm_ok(c)) return __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
    const int64_t *clock = dt__clock_of(c);
    dt__idler      d = { 0, false, 0, 0 };
    int64_t        end = o.timeout >= DT_FOREVER ? INT64_MAX : dt__comm_now() + dt__ns_of(o.timeout);
    bool           any = false;
    dt__engine_enter(c);
    while (!(any = dt__members_next(c, out)) && dt__comm_ok(c)) {
        int moved = dt__engine_poll(c);
        if (!moved && dt__comm_now() >= end) break;
        dt__idle(c, &d, moved);
    }
    dt__idle_end(c, &d);
    if (any) dt__mail_members(c);
    dt__engine_leave(c);
    dt__net_clock = clock;
    return any ? 1 : __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}
DT_API int dt_comm_rank(const dt_comm *c) { return c ? c->rank : 0; }
DT_API int dt_comm_size(const dt_comm *c) { return c ? __atomic_load_n(&c->size, __ATOMIC_ACQUIRE) : 1; }
DT_API int dt_comm_local_rank(const dt_comm *c) { return c ? c->local_rank : 0; }
DT_API int dt_comm_local_size(const dt_comm *c) { return c ? c->local_size : 1; }
DT_API int dt_comm_host(const dt_comm *c, int rank) { return c && rank >= 0 && rank < dt_comm_size(c) ? c->host[rank] : -1; }
DT_API void *dt_comm_alloc(dt_comm *c, size_t nbytes)
{
    dt__shared *s = c ? (dt__shared *)c->shared : NULL;
    void       *p = NULL;
    if (nbytes > (size_t)1 << 46) return NULL; /* more than any machine has; sums below cannot overflow */
    if (s && s->fd >= 0) return dt__arena_alloc(s, nbytes ? nbytes : 1);
    return posix_memalign(&p, 64, nbytes ? nbytes : 1) ? NULL : p;
}
DT_API void dt_comm_dealloc(dt_comm *c, void *ptr)
{
    dt__shared *s = c ? (dt__shared *)c->shared : NULL;
    if (ptr && !(s && s->fd >= 0 && dt__arena_free(s, ptr))) free(ptr);
}

/* ---- watching */
DT_API dt_comm_stats dt_comm_get_stats(const dt_comm *c)
{
    dt_comm_stats s;
    memset(&s, 0, sizeof s);
    if (c && c->engine) {
        const dt__counters *k = &c->engine->counters;
        s.calls = __atomic_load_n(&k->calls, __ATOMIC_RELAXED);
        s.bytes = __atomic_load_n(&k->bytes, __ATOMIC_RELAXED);
        s.busy = DT__S_PER_NS * (double)(__atomic_load_n(&k->busy, __ATOMIC_RELAXED) + __atomic_load_n(&k->device, __ATOMIC_RELAXED));
        s.waited = DT__S_PER_NS * (double)__atomic_load_n(&k->waited, __ATOMIC_RELAXED);
    }
    if (c && c->across && c->across->bytes) s.bytes_net = (int64_t)c->across->bytes(c);
    return s;
}
DT_API size_t dt_comm_history(const dt_comm *c, char *buf, size_t nbytes)
{
    dt__text_out o = { buf, buf ? nbytes : 0, 0 };
    if (buf && nbytes) buf[0] = 0;
    if (!c || !c->engine) return 0;
    uint64_t n = __atomic_load_n(&c->engine->npast, __ATOMIC_ACQUIRE), from = n > DT__HISTORY ? n - DT__HISTORY : 0;
    for (uint64_t k = from; k < n; k++) {
        char text[256];
        if (dt__past_text(c, k, text, sizeof text)) dt__emitf(&o, "%s\n", text);
    }
    return o.len;
}

static int dt__straggler_order(const void *a, const void *b)
{
    const dt_comm_straggler *x = (const dt_comm_straggler *)a, *y = (const dt_comm_straggler *)b;
    return x->waited > y->waited ? -1 : x->waited < y->waited ? 1 : x->rank - y->rank;
}
/* All stragglers; *n: how many. NULL if c is NULL or memory is exhausted. */
static dt_comm_straggler *dt__stragglers(const dt_comm *c, int *n)
{
    *n = 0;
    dt_comm_straggler *all = c ? (dt_comm_straggler *)DT_COMM_MALLOC((size_t)c->size * sizeof *all) : NULL;
    for (int r = 0; all && r < c->size; r++) {
        const dt__waits *t = &c->engine->waits[r];
        dt_comm_straggler *s = &all[*n];
        if (!(s->last = __atomic_load_n(&t->last, __ATOMIC_RELAXED))) continue;
        s->rank = r;
        s->waited = DT__S_PER_NS * (double)__atomic_load_n(&t->waited, __ATOMIC_RELAXED);
        s->longest = DT__S_PER_NS * (double)__atomic_load_n(&t->longest, __ATOMIC_RELAXED);
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
    dt__text_out       o = { buf, buf ? nbytes : 0, 0 };
    int                n;
    dt_comm_straggler *all = dt__stragglers(c, &n);
    if (buf && nbytes) buf[0] = 0;
    for (int i = 0; i < n; i++)
        dt__emitf(&o,
                  "rank %d%s%s%s: came last to %" PRId64 " of %" PRIu64
                     " operations; rank %d waited %.6f s for it, %.6f s at most\n",
                     all[i].rank, c->world ? " (" : "", dt_comm_host_name(c, all[i].rank), c->world ? ")" : "",
                     all[i].last, __atomic_load_n(&c->done, __ATOMIC_ACQUIRE), c->rank, all[i].waited, all[i].longest);
    DT_COMM_FREE(all);
    return o.len;
}
DT_API size_t dt_comm_explain(const dt_comm *c, char *buf, size_t nbytes)
{
    dt_algo      fixed[DT_COLL_COUNT];
    dt__text_out o = { buf, nbytes, 0 };
    if (nbytes) buf[0] = 0;
    if (!c) return 0;
    dt__emitf(&o, "rank %d of %d, from %s; data: %s%s%s\n", c->rank, c->size, dt_comm_launcher(c),
                 c->size == 1 ? "no transfers" : c->threads ? "one process" : c->inside ? "shared memory" : "",
                 c->inside && c->across ? " inside a machine, across " : "", c->across ? c->across->name : "");
    for (int first = 0, h = 0; first < c->size; first++) {
        int n = 0;
        if (c->host[first] != h) continue; /* machines are numbered in the order of ranks */
        for (int i = first; i < c->size; i++) n += c->host[i] == h;
        dt__emitf(&o, "machine %d%s%s: %d of the ranks, the first is %d\n", h++, c->world ? ", " : "",
                     dt_comm_host_name(c, first), n, first);
    }
    dt__emitf(&o, "algorithm: %s; costs: %s\n",
                 c->engine->algo == DT_ALGO_AUTO ? "by cost" : dt_algo_name((dt_algo)c->engine->algo),
                 c->engine->has_costs ? "rank 0's table" : "the fixed table");
    for (int i = 0; i < (int)DT_COLL_COUNT; i++) fixed[i] = dt__fixed(c, (dt_coll)i, 0);
    dt__explain(&c->engine->costs, c->size, c->host, dt__comm_link(c), fixed, &o);
    return o.len;
}

/* ---- communicators of processes */
DT__INSIDE uint64_t dt__id_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + 1;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) | 1;
}
/* A communicator of n ranks of a world, in the order of member. It takes a reference to the world. NULL after
   dt__comm_bad. gone: of a rank that joins later, see dt__cwelcome; else NULL. */
static dt_comm *dt__comm_build(dt__world *w, const int *member, int n, uint64_t id, const dt_comm_opts *o, const uint8_t *gone)
{
    const dt__transport *named = NULL; /* NULL: auto */
    int rank = 0, nlocal = 0, bad;
    int *local = (int *)dt__comm_zeroed((size_t)n + (size_t)__atomic_load_n(&w->nhosts, __ATOMIC_ACQUIRE), sizeof *local);
    int *number = local ? local + n : NULL; /* by machine of the world: its number in c, from 1 */
    while (rank < n && member[rank] != w->rank) rank++;
    if (w->sim) named = w->sim_ops->transport;
    bad = w->sim ? 0 : dt__world_transport(w, o, &named);
    if (!bad && !local) bad = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory for %d ranks", n);
    dt_comm *c = !bad ? dt__comm_new(rank, n, o) : NULL;
    if (!c) {
        DT_COMM_FREE(local);
        const char *why = dt__said.text + (strncmp(dt__said.text, "dt_comm_init: ", 14) == 0 ? 14 : 0);
        char        cut[DT__CTEXT + 1];
        snprintf(cut, sizeof cut, "rank %d could not set up its communicator: %.600s", rank, why);
        dt__world_abort_id(w, id, DT_COMM_ERR_JOIN, rank, cut); /* the other ranks may wait for it */
        return NULL;
    }
    __atomic_add_fetch(&w->refs, 1, __ATOMIC_RELAXED);
    c->world = w;
    c->id = id;
    c->engine->aside = w->sim != NULL; /* its time passes only in waits: it does not spin before one */
    if (w->nsettings == sizeof c->engine->costs) {
        memcpy(&c->engine->costs, w->settings, w->nsettings);
        c->engine->has_costs = true;
    }
    c->opts = *o;
    memcpy(c->member, member, (size_t)n * sizeof *member);
    c->local_size = 0;
    for (int i = 0, hosts = 0; i < n; i++) { /* machines are numbered in the order of ranks */
        int *k = &number[w->member[member[i]].host];
        if (!*k) *k = ++hosts;
        c->host[i] = *k - 1;
        if (w->member[member[i]].host != w->member[w->rank].host) continue;
        if (i == rank) c->local_rank = nlocal;
        local[nlocal++] = i;
    }
    c->local_size = nlocal;
    const dt__transport *inside = !named ? dt__transport_auto(DT__REACH_HOST) : named->reach == DT__REACH_HOST ? named : NULL;
    const dt__transport *across = !named ? dt__transport_auto(DT__REACH_ALL) : named->reach == DT__REACH_ALL ? named : NULL;
    if (c->engine->algo == DT_ALGO_NATIVE && !(across && across->native))
        bad = dt__comm_bad(DT_COMM_ERR_ARG,
                           "dt_comm_init: algorithm \"native\" is MPI's own: it needs transport \"mpi\"");
    if (!across && nlocal < n)
        bad = dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_init: transport \"%s\", but the ranks are on several machines",
                           named->name);
    bool open = c->members && c->members->room > n; /* others may join: by sockets */
    if (open && !across) across = dt__transport_auto(DT__REACH_ALL);
    c->first = o->room > 0;
    for (int i = 0; gone && i < n; i++) c->members->how[i] = gone[2 * i + 1] <= DT__LOST ? gone[2 * i + 1] : (uint8_t)DT__DIED;
    for (int i = 0; gone && i < n; i++)
        if (c->members->how[i])
            snprintf(c->members->why[i], sizeof c->members->why[i], "rank %d (%.64s) %s before this rank joined", i, w->member[i].host_name,
                     c->members->how[i] == DT__LEFT ? "left" : "died");
    if (gone) c->members->changes = 1;
    dt__world_add(w, c);
    if (!bad && inside && nlocal > 1 && (bad = inside->open(c, local, nlocal)) == 0) c->inside = inside;
    if (across && (n > 1 || open) && (named || nlocal < n || open)) {
        c->across = across;
        if (!bad && across->open) bad = across->open(c, local, nlocal);
    }
    if (!bad && n > 1 && !c->shared) {
        c->own_note = (dt__note *)dt__comm_zeroed(DT__NOTES, sizeof *c->own_note);
        __atomic_store_n(&c->note, c->own_note, __ATOMIC_RELEASE);
        if (!c->own_note) bad = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    }
    if (!bad) bad = dt__mail_open(c);
    DT_COMM_FREE(local);
    if (!bad) return c;
    dt__world_abort(w, c, bad, rank, dt__said.text);
    dt__world_remove(w, c);
    dt__comm_delete(c);
    dt__world_unref(w);
    return NULL;
}
DT_API dt_comm *dt_comm_init_with(dt_comm_opts o)
{
    uint64_t   id = 0;
    dt__world *w = dt__world_join(&o, &dt__comm_client);
    int       *all = w ? (int *)DT_COMM_MALLOC((size_t)w->size * sizeof *all) : NULL;
    dt_comm   *c = NULL;
    for (int i = 0; all && i < w->size; i++) all[i] = i;
    if (w) memcpy(&id, w->job, sizeof id);
    if (all) c = dt__comm_build(w, all, w->size, dt__id_mix(id, 0), &o, NULL);
    else if (w) dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory");
    if (w && all && w->size > 1) { /* if one rank failed, all fail */
        int64_t failed = 0;
        int     who = 0, bad = dt__world_meet(w, c ? 0 : 1, &failed, &who);
        if (c && !bad && failed)
            bad = dt__comm_ok(c) ? dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: rank %d could not set up its communicator", who)
                                 : dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: %.700s", c->text);
        if (c && bad) {
            c->status = bad; /* so dt_comm_free does not wait for the others */
            dt_comm_free(c);
            c = NULL;
        }
    }
    DT_COMM_FREE(all);
    if (w) dt__world_unref(w); /* the communicator holds it */
    return c;
}
DT_API dt_comm *dt_comm_join_with(dt_comm_opts o)
{
    uint8_t *gone = NULL;
    int32_t  round = 0;
    uint64_t id = 0;
    dt_comm *c = NULL;
    if ((o.name && strlen(o.name) > 47) || o.incarnation < 0) {
        dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_join: .name has up to 47 bytes, .incarnation is 0 or more");
        return NULL;
    }
    if (o.beside) return dt__threads_join(&o);
    dt__world *w = dt__world_enter(&o, &dt__comm_client, &round, &gone);
    if (!w) dt__said_by("dt_comm_join");
    if (!w) return NULL;
    int *all = (int *)DT_COMM_MALLOC((size_t)w->room * sizeof *all), size = w->rank + 1; /* others may have joined since */
    const char *transport = o.transport; /* of communicators that are made of this one */
    o.tolerant = true;
    o.transport = "tcp";
    o.room = w->room;
    for (int i = 0; all && i < size; i++) all[i] = i;
    memcpy(&id, w->job, sizeof id);
    if (all) c = dt__comm_build(w, all, size, dt__id_mix(id, 0), &o, gone);
    else dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_join: out of memory");
    if (c) {
        c->round = round;
        c->opts.transport = transport;
        c->members->start = w->start;
        dt__members_halt(c, DT_COMM_ERR_STATE, 0, "members have joined: dt_comm_shrink makes a communicator of all of them for collectives");
    } else dt__said_by("dt_comm_join");
    DT_COMM_FREE(all);
    DT_COMM_FREE(gone);
    dt__world_unref(w); /* the communicator holds it */
    return c;
}
static dt_comm_opts dt__opts_closed(const dt_comm *c) /* the options of c for another communicator, which nobody can join */
{
    dt_comm_opts o = c->opts;
    o.room = 0;
    return o;
}
/* dt_comm_split of threads: the first rank of each colour maps the memory and sends its address to all. */
static int dt__threads_split(dt_comm *c, int n, const int *member, uint64_t id, dt_comm **out)
{
    dt_comm_opts o = dt__opts_closed(c);
    int64_t *at = (int64_t *)DT_COMM_MALLOC((size_t)c->size * sizeof *at), mine = 0;
    int      rank = 0;
    while (rank < n && member[rank] != c->rank) rank++;
    if (n && !rank) mine = (int64_t)(uintptr_t)dt__threads_segment(n, n);
    int rc = at ? dt_comm_allgather(c, &mine, at, 1, NULL, DT_COMM_I64) : DT_COMM_ERR_MEMORY;
    if (!rc && n && at[member[0]])
        *out = dt__threads_comm((char *)(uintptr_t)at[member[0]], rank, n, id, &o,
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
    if (!c) return dt__comm_null("dt_comm_split");
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
    uint64_t     id = dt__id_mix(dt__id_mix(c->id, ++c->splits), (uint64_t)(uint32_t)colour);
    dt_comm_opts o = dt__opts_closed(c);
    if (!rc && c->threads && c->size > 1) rc = dt__threads_split(c, colour < 0 ? 0 : n, member, id, out);
    else if (!rc && colour >= 0)
        *out = c->world ? dt__comm_build(c->world, member, n, id, &o, NULL) : dt__comm_alone(&o);
    if (!rc && colour >= 0 && !*out)
        rc = dt__comm_fail(c, dt__said.why, c->rank, "rank %d: dt_comm_split: %s", c->rank, dt__said.text);
    DT_COMM_FREE(all);
    DT_COMM_FREE(member);
    return rc;
}
/* dt_comm_shrink of threads: they share memory, so a spin lock is enough to agree. The last rank to arrive, or the first
   that finds the deadline passed, decides for all that have arrived. The lock is held for a few instructions and one mmap,
   and its holder cannot be stopped alone, so waiting for it needs no deadline. */
enum { DT__SHRINK_POLL_US = 500 };
static int dt__threads_shrink(dt_comm *c, dt_comm **out)
{
    dt__segment_head *h = ((dt__shared *)c->shared)->head;
    uint64_t  me = UINT64_C(1) << (c->rank % 64);
    int       n = 0, rank = 0, round = c->round++, slot = round & 1;
    char     *base = NULL;
    bool      here = false;
    for (;;) {
        while (__atomic_exchange_n(&h->lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
        if (h->round > round) break;
        if (!here && h->ncame == 0) {
            if (round == 0) h->nin = c->size;
            h->deadline = dt__comm_now() + (int64_t)(c->timeout * DT__NS_PER_S);
            memset(h->came, 0, sizeof h->came);
        }
        if (!here) h->came[c->rank / 64] |= me, h->ncame++;
        here = true;
        if (c->members) { /* those that have gone are not waited for */
            h->nin = 0;
            for (int i = 0; i < h->nmembers; i++) {
                const dt__rank_slot *t = dt__slot_of((dt__shared *)c->shared, i);
                h->nin += (t->comm && !t->gone) || (h->came[i / 64] >> (i % 64) & 1);
            }
        }
        if (h->ncame == h->nin || dt__comm_now() >= h->deadline) {
            memcpy(h->result[slot].in, h->came, sizeof h->came);
            h->result[slot].n = h->nin = h->ncame;
            h->result[slot].base = dt__threads_segment(h->nin, h->nin);
            h->ncame = 0;
            h->round = round + 1;
            break;
        }
        __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE);
        usleep(DT__SHRINK_POLL_US);
    }
    if (here && h->round <= round + 2 && (h->result[slot].in[c->rank / 64] & me)) {
        n = h->result[slot].n;
        base = h->result[slot].base;
    }
    for (int i = 0; i < c->rank; i++) rank += h->result[slot].in[i / 64] >> (i % 64) & 1;
    __atomic_store_n(&h->lock, 0, __ATOMIC_RELEASE);
    if (!n)
        return dt__comm_bad(DT_COMM_ERR_TIMEOUT, "rank %d: dt_comm_shrink: called too late: the other ranks went on without it",
                            c->rank);
    if (!base) return dt__comm_bad(DT_COMM_ERR_MEMORY, "rank %d: dt_comm_shrink: out of memory", c->rank);
    dt_comm_opts o = dt__opts_closed(c);
    *out = dt__threads_comm(base, rank, n, dt__id_mix(c->id, UINT64_C(1) << 32 | (uint64_t)round), &o,
                            c->engine->has_costs ? &c->engine->costs : NULL);
    return *out ? 0 : DT_COMM_ERR_MEMORY;
}
DT__INSIDE void dt__comm_drop(dt_comm *c)
{
    if (!c) return;
    dt__comm_failed(c, DT_COMM_ERR_STATE, -1, "given up before it was used");
    (void)dt_comm_error(c); /* not to be logged */
    dt_comm_free(c);
}
/* The surviving ranks agree on the members, make a communicator of them, and agree that all have it. If not (a rank died
   meanwhile) they repeat it with the ranks that are left. The id contains the number of the round, so frames of an
   earlier attempt are not mistaken for its own; memory and connections are new. */
DT_API int dt_comm_shrink(dt_comm *c, dt_comm **out)
{
    char     text[sizeof dt__said.text];
    uint64_t id = 0;
    if (!out) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_comm_shrink: out is NULL");
    *out = NULL;
    if (!c) return dt__comm_null("dt_comm_shrink");
    if (c->threads && (c->size > 1 || c->first)) return dt__threads_shrink(c, out);
    dt__world *w = c->world;
    if (w && w->joined_by)
        return dt__comm_bad(DT_COMM_ERR_STATE, "dt_comm_shrink: MPI ends the job when a rank dies: use transport auto");
    dt_comm_opts o = dt__opts_closed(c);
    bool         open = w && c->members && c->first && c->members->room > w->start; /* members may know of different newcomers */
    int          size = open ? c->members->room : c->size;
    if (!w || !w->control || (size == 1 && !open)) {
        id = dt__id_mix(c->id, ++c->splits);
        *out = w ? dt__comm_build(w, &w->rank, 1, id, &o, NULL) : dt__comm_alone(&o);
        return *out ? 0 : DT_COMM_ERR_MEMORY;
    }
    int *member = (int *)DT_COMM_MALLOC((size_t)size * sizeof *member), n = 0, before = -1, same = 0, rc = 0;
    if (!c->alive && (c->alive = (uint8_t *)dt__comm_zeroed(1, dt__agree_nbytes(w))) != NULL)
        for (int i = 0; i < size; i++) dt__bit_set(c->alive, c->member[i]);
    if (open && c->alive) /* those that came since the last time, too; a number that nobody has counts as gone */
        for (int i = 0; i < size; i++) dt__bit_set(c->alive, i);
    if (!member || !c->alive) rc = dt__comm_bad(DT_COMM_ERR_MEMORY, "out of memory");
    for (bool all = false; !rc; before = n) {
        bool have = *out && dt__comm_ok(*out);
        rc = dt__world_agree(w, c->id, c->round++, c->timeout, c->alive, have ? id : 0, have ? n : 0, &all);
        if (!rc && all && have) break;
        dt__comm_drop(*out);
        *out = NULL;
        n = 0;
        for (int i = 0; !rc && i < size; i++)
            if (dt__bit(c->alive, c->member[i])) member[n++] = c->member[i];
        same = n == before ? same + 1 : 0;
        if (!rc && n == 0)
            rc = dt__comm_bad(DT_COMM_ERR_PEER, "half of the ranks or more are unreachable: they may have gone on "
                                                "without this half; start again from the last checkpoint");
        else if (!rc && !dt__bit(c->alive, w->rank))
            rc = dt__comm_bad(DT_COMM_ERR_TIMEOUT, "called too late: the other ranks went on without it");
        else if (!rc && same == 3)
            rc = dt__comm_bad(DT_COMM_ERR_STATE, "%d ranks could not set up a communicator: %.400s", n,
                              dt__said.text[0] ? dt__said.text : "one of them failed");
        if (rc) break;
        id = dt__id_mix(dt__id_mix(c->id, UINT64_C(1) << 32), (uint64_t)c->round);
        *out = dt__comm_build(w, member, n, id, &o, NULL);
    }
    if (rc) {
        snprintf(text, sizeof text, "rank %d: dt_comm_shrink: %.680s", c->rank, dt__said.text);
        dt__comm_drop(*out);
        *out = NULL;
        dt__comm_bad(rc, "%s", text);
    }
    for (int i = 0, k = 0; !rc && i < dt__comm_known(c); i++)
        if (k < n && member[k] == c->member[i]) k++;
        else {
            static const char *const how[] = { "it was too late", "it died", "it left", "it is unreachable" };
            dt__logf(3, "rank %d goes on without rank %d: %s", c->rank, i,
                         how[dt__world_gone(w, c->member[i]) & 3]);
        }
    DT_COMM_FREE(member);
    return rc;
}
DT_API int dt_comm_dup(dt_comm *c, dt_comm **out) { return dt_comm_split(c, 0, c ? c->rank : 0, out); }
DT_API const char *dt_comm_host_name(const dt_comm *c, int rank)
{
    return c && c->world && rank >= 0 && rank < dt_comm_size(c) ? c->world->member[c->member[rank]].host_name : "";
}
/* ---- tuning */
/* Round trips between ranks a and b, until `most` are done or a second has passed; rank a decides. Returns half of the
   shortest in seconds; negative if it failed. */
static double dt__tune_trips(dt_comm *c, int a, int b, int64_t nbytes, int most, int64_t *buf)
{
    static const dt_msg_opts plain = DT__NO_OPTIONS;
    int64_t begin = dt__comm_now(), best = INT64_MAX;
    int     peer = c->rank == a ? b : a, rc = 0;
    for (int i = 0; !rc; i++) {
        int64_t t0 = dt__comm_now();
        buf[0] = i + 1 < most && (i < 3 || t0 - begin < DT__NS_PER_S); /* 1: another one follows */
        if (c->rank == a) rc = dt_comm_send_with(c, buf, nbytes, DT_COMM_U8, peer, plain);
        if (!rc) rc = dt_comm_recv_with(c, buf, nbytes, DT_COMM_U8, peer, plain);
        int64_t again = buf[0];
        if (!rc && c->rank == b) rc = dt_comm_send_with(c, buf, nbytes, DT_COMM_U8, peer, plain);
        int64_t took = dt__comm_now() - t0;
        if (i && took < best) best = took;
        if (!again) break;
    }
    return rc ? -1 : (double)best * (0.5 * DT__S_PER_NS);
}
/* The first two ranks on one machine (near), or on two, measure their link, and all ranks get the result. Returns 1 if
   there are no such ranks, else 0 or a negative status. */
static int dt__tune_link(dt_comm *c, bool near, int64_t *buf, int64_t nbytes, double *alpha, double *beta)
{
    int    a = 0, b = 0, n = c->size;
    double got[2] = { 0, 0 };
    for (int k = 0; k < n * n && a == b; k++)
        if (k / n < k % n && (c->host[k / n] == c->host[k % n]) == near) a = k / n, b = k % n;
    if (a == b) return 1;
    if (c->rank == a || c->rank == b) {
        double little = dt__tune_trips(c, a, b, 8, 2000, buf), much = dt__tune_trips(c, a, b, nbytes, 20, buf);
        if (little < 0 || much < 0) return dt_comm_get_status(c);
        got[1] = much > little ? (much - little) / (double)(nbytes - 8) : 0;
        got[0] = little > 8 * got[1] ? little - 8 * got[1] : little;
    }
    int rc = dt_comm_broadcast(c, got, 2, DT_COMM_F64, a);
    *alpha = got[0] > DT__COSTS_MOST_LATENCY ? DT__COSTS_MOST_LATENCY : got[0];
    *beta = got[1] > DT__COSTS_MOST_PER_BYTE ? DT__COSTS_MOST_PER_BYTE : got[1];
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
    return (double)best * DT__S_PER_NS / (double)(nbytes / 2);
}
DT_API int dt_comm_tune(dt_comm *c, const char *path)
{
    enum { BYTES = 32 << 20 }; /* more than the caches of a core */
    if (!c) return dt__comm_null("dt_comm_tune");
    if (c->rank == 0 && (!path || !*path))
        return dt__comm_fail(c, DT_COMM_ERR_ARG, c->rank, "rank %d: dt_comm_tune: path is %s; expected a file name", c->rank,
                             path ? "empty" : "NULL");
    int64_t *buf = (int64_t *)DT_COMM_MALLOC(BYTES);
    if (!buf) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: dt_comm_tune: out of memory", c->rank);
    memset(buf, 0, BYTES);
    dt_costs t = c->engine->costs;
    int      far = dt__comm_link(c), near = c->local_size == c->size ? far : (int)DT_LINK_SHM;
    int      rc = dt_comm_barrier(c);
    if (rc >= 0 && c->size > 1) rc = dt__tune_link(c, true, buf, BYTES / 2, &t.alpha[near], &t.beta[near]);
    if (rc >= 0 && c->size > 1) rc = dt__tune_link(c, false, buf, BYTES / 8, &t.alpha[far], &t.beta[far]);
    if (rc >= 0 && c->rank == 0) t.gamma = dt__tune_reduce((char *)buf, BYTES);
    if (rc >= 0 || !dt__late_writes(c)) DT_COMM_FREE(buf); /* else MPI may still write to it */
    if (rc < 0) return dt__comm_bad(rc, "dt_comm_tune: %s", c->text);
    int32_t bad = c->rank == 0 ? dt_costs_save(&t, path) : 0;
    rc = dt_comm_broadcast(c, &bad, 1, DT_COMM_I32, 0);
    if (rc) return dt__comm_bad(rc, "dt_comm_tune: %s", c->text);
    if (bad && c->rank) dt__comm_bad(bad, "dt_comm_tune: rank 0 could not write the table of costs: see its message");
    return bad;
}
DT_API const dt_comm_opts *dt_comm_options(const dt_comm *c)
{
    static const dt_comm_opts none = DT__NO_OPTIONS;
    return c ? &c->opts : &none;
}
DT_API const char *dt_comm_launcher(const dt_comm *c) { return c && c->world ? c->world->where : "threads"; }
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_COMM_IMPLEMENTATION */
