/* dt_mpi.h - v0.2.0 - Open MPI under the communicators of dt_comm.h */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_mpi.h"
    Compile with mpicc -DDT_USE_MPI. Without DT_USE_MPI this header is dt_comm.h and nothing more.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_mpi.h"
    #include <stdio.h>

    int main(void)
    {
    #ifdef DT_USE_MPI
        dt_comm *c = dt_comm_init(.transport = "mpi");
    #else
        dt_comm *c = dt_comm_init();
    #endif
        float x = 1;
        if (!c) return fprintf(stderr, "%s\n", dt_comm_error(NULL)) > 0;
        dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
        if (dt_comm_rank(c) == 0) printf("%g ranks\n", x);
        return dt_comm_free(c);
    }

WHAT IT DOES NOT DO

    It adds no calls: .transport = "mpi" of dt_comm_init, or DT_COMM_TRANSPORT=mpi, selects MPI. dt_net.h, >>joining,
    describes the differences. No dt_comm_shrink, since Open MPI 4.1 ends the job when a rank dies.

CONTENTS

    >>mpi            Open MPI

MACROS

    DT_USE_MPI             mpi.h is available, and the program is linked with MPI
    DT_MPI_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION

ERRORS, THREADS

    As in dt_comm.h. A progress thread needs MPI_THREAD_SERIALIZED at least.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_MPI_IMPLEMENTATION)
#define DT_MPI_IMPLEMENTATION
#endif
#include "dt_comm.h"

#ifndef DT_MPI_H_INCLUDED
#define DT_MPI_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_mpi.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#endif /* DT_MPI_H_INCLUDED */

#if defined(DT_MPI_IMPLEMENTATION) && defined(DT_USE_MPI) && !defined(DT__MPI_IMPLEMENTED)
#define DT__MPI_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__COMM_IMPLEMENTED)
#error "dt_mpi.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_MPI_IMPLEMENTATION"
#endif
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#include <sched.h>
#include <sys/syscall.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(MPI);
DT__NEEDS(MPI, COMM);
DT__NEEDS(MPI, NET);
DT__NEEDS(MPI, BASE);

/* ==================================================================================================== >>mpi
   A transport that sends the messages of dt_comm.h by MPI, and MPI's own collectives as the algorithm `native`. Every
   communicator has its own MPI communicator with the same ranks. A message begins with an MPI message that has the header
   and, if it is small, the payload. A larger payload follows in pieces of DT__MPI_PIECE bytes; they are received after the
   header was checked, up to DT__MPI_PIECES at a time. MPI keeps the order of messages, so one tag is enough.

   Threads: the thread that drives a communicator calls MPI. Below MPI_THREAD_MULTIPLE dt__mpi_job.lock allows one call at a
   time; dt__mpi_job.open protects starting and ending MPI. A progress thread needs at least MPI_THREAD_SERIALIZED. It needs
   MPI_THREAD_MULTIPLE, which we request, if the program calls MPI or uses another communicator at the same time.

   MPI moves only the data. The control tree of sockets (dt_net.h, >>control) exists as with other transports; rank 0 sends
   its address and the token by MPI. The tree costs a sleeping thread. It provides what MPI before version 5 does not have:
   aborts that reach all ranks, reports on late ranks, and notice of a death even if no MPI call fails. */

enum { DT__MPI_SMALL = 4 << 10, DT__MPI_PIECE = 512 << 10, DT__MPI_PIECES = 4, DT__MPI_CHUNK = 1 << 28 };
typedef struct dt__mpi_direction { /* one direction of a link */
    MPI_Request head, piece[DT__MPI_PIECES];
    size_t      posted; /* payload bytes for which sends or receives were posted */
    char       *stage;  /* buffer for data that is reduced on arrival: DT__MPI_PIECES pieces */
    char        small[sizeof(dt__frame) + DT__MPI_SMALL];
} dt__mpi_direction;
typedef struct dt__mpi {
    MPI_Comm      comm;
    dt__mpi_direction **in, **out; /* by peer; NULL: not used yet */
    int           idle;      /* number of waits since something moved */
    MPI_Request   request;   /* of a native collective; one at a time */
    uint64_t      mine[2], least[2]; /* fingerprint of this rank's call and its complement; the minimum over all ranks */
    dt__frame    *frames;    /* of all ranks, gathered if their calls differ */
} dt__mpi;

static struct {
    pthread_mutex_t lock; /* held during every MPI call, below MPI_THREAD_MULTIPLE */
    pthread_mutex_t open; /* held while MPI is started or ended */
    int             users, level;
    bool            ours; /* dt called MPI_Init_thread */
    MPI_Comm        all;
    MPI_Op          op[DT_COMM_DTYPES][DT_COMM_OPS]; /* own operations where MPI has none, or treats NaN differently */
} dt__mpi_job = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, 0, 0, false, MPI_COMM_NULL, { { 0 } } };

static void dt__mpi_lock(void)
{
    if (dt__mpi_job.level < MPI_THREAD_MULTIPLE) pthread_mutex_lock(&dt__mpi_job.lock);
}
static void dt__mpi_unlock(void)
{
    if (dt__mpi_job.level < MPI_THREAD_MULTIPLE) pthread_mutex_unlock(&dt__mpi_job.lock);
}
static const char *dt__mpi_text(int code, char *text) /* text: MPI_MAX_ERROR_STRING bytes */
{
    int n = 0;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) snprintf(text, 32, "MPI error %d", code);
    return text;
}
static int dt__mpi_bad(const char *call, int code) /* a call failed before there is a communicator */
{
    char text[MPI_MAX_ERROR_STRING];
    return dt__comm_bad(DT_COMM_ERR_JOIN, "mpi: %s: %s", call, dt__mpi_text(code, text));
}
static int dt__mpi_error(dt_comm *c, int peer, const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    return dt__transport_fail(c, DT_COMM_ERR_NET, peer, "mpi: %s on rank %d: %.300s", call, c->rank,
                        dt__mpi_text(code, text));
}

/* ---- own operations: 16-bit floats, and NaN in min and max. In MPI 'inout' is the right operand and the result. */
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
/* Waits for a request of a call while joining. Stops when c fails (c may be NULL). */
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
        if (c && !dt__comm_ok(c)) return dt__comm_bad(dt__transport_status(c), "dt_comm_init: %s", c->text);
        if (dt__comm_now() > deadline)
            return dt__comm_bad(DT_COMM_ERR_JOIN,
                                "dt_comm_init: mpi: %s did not end: a rank of the MPI job does not join; all of them must "
                                "call dt_comm_init with transport \"mpi\"",
                                call);
        dt__comm_pause(pause);
        pause = pause < DT__NS_PER_MS ? pause * 2 : pause;
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
                            "dt_comm_init: mpi: MPI_Finalize has been called, and MPI can start only once in a process; a "
                            "program that joins twice must call MPI_Init_thread and MPI_Finalize itself");
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
/* Starts MPI if the program has not; each user calls dt__mpi_end once. The last one calls MPI_Finalize if dt started MPI,
   but not if a rank has died: MPI_Finalize is collective. */
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
typedef struct dt__mpi_location { /* where a rank runs */
    uint8_t host_id[16];
    char    host_name[64];
} dt__mpi_location;
typedef struct dt__mpi_rendezvous { /* what rank 0 broadcasts: its address and the token */
    uint8_t  token[32], addr[28];
    uint32_t addr_len;
    char     why[200]; /* why rank 0 failed; "": it did not */
} dt__mpi_rendezvous;
/* Rank 0 listens: at loopback if all ranks are on this machine, else at .addr, else at the address of the route to another
   machine. */
static int dt__mpi_listen(dt__config *f, const dt_comm_opts *o, const dt__mpi_location *all, dt__mpi_rendezvous *news)
{
    const char *host = o->addr && *o->addr ? o->addr : getenv("DT_ADDR"), *why = "";
    dt__addr    a;
    int         other = 0;
    memset(&a, 0, sizeof a);
    a.n = sizeof a.u;
    while (other < f->world && memcmp(all[other].host_id, all[0].host_id, 16) == 0) other++;
    if (f->local) dt__addr_loopback(&f->addr[0], f->port), f->naddr = 1;
    else if (host && *host) f->naddr = dt__addr_find_by(host, f->port, f->addr, &why, f->deadline);
    else if (dt__addr_find_by(all[other].host_name, 1, f->addr, &why, f->deadline) && dt__addr_route(&f->addr[0], &a))
        dt__addr_set_port(&a, f->port), f->addr[0] = a, f->naddr = 1;
    else f->naddr = dt__addr_find_by(all[0].host_name, f->port, f->addr, &why, f->deadline);
    if (f->naddr == 0)
        return dt__comm_bad(DT_COMM_ERR_JOIN,
                            "dt_comm_init: mpi: rank 0 finds no address at which the others can reach it ('%.60s': %s): "
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
/* Gets rank, world, token and the address of rank 0 by MPI; no environment variable is needed. Collective over the job.
   After success the caller must call dt__mpi_end once and close listen_fd. 0, or negative after dt__comm_bad. */
static int dt__mpi_config(dt__config *f, const dt_comm_opts *o)
{
    int64_t        deadline = dt__comm_now() + dt__ns_of(f->join_timeout), port = 0;
    int            r = dt__mpi_start(deadline), code, bad = 0;
    MPI_Request    request = MPI_REQUEST_NULL;
    dt__mpi_location  mine, *all = NULL;
    dt__mpi_rendezvous   news;
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
    all = (dt__mpi_location *)DT_COMM_MALLOC((size_t)f->world * sizeof *all);
    if (!all) { /* the other ranks wait for this one until their deadline */
        dt__mpi_end(true);
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: mpi: out of memory for a table of %d ranks", f->world);
    }
    dt__mpi_lock();
    code = MPI_Iallgather(&mine, (int)sizeof mine, MPI_BYTE, all, (int)sizeof mine, MPI_BYTE, dt__mpi_job.all,
                          &request);
    dt__mpi_unlock();
    r = dt__mpi_until("MPI_Iallgather", &request, code, deadline, NULL);
    f->local = r == 0;
    for (int i = 1; r == 0 && i < f->world; i++)
        f->local = f->local && memcmp(all[i].host_id, all[0].host_id, 16) == 0;
    if (r == 0 && f->rank == 0) { /* an error here is sent to all ranks */
        if (!bad) bad = dt__mpi_listen(f, o, all, &news) < 0;
        if (bad) snprintf(news.why, sizeof news.why, "%.190s", dt__said.text);
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
        r = dt__comm_bad(DT_COMM_ERR_JOIN, "dt_comm_init: mpi: rank 0 sent an invalid address");
    f->naddr = 1;
    f->have_token = true;
    memcpy(f->token, news.token, 32);
    if (r) {
        dt__close(&f->listen_fd);
        dt__mpi_end(false);
    }
    return r;
}
/* A barrier with a deadline over the ranks of c (dissemination: in round k a message to the rank 2^k ahead). */
static int dt__mpi_synchronise(dt_comm *c, int64_t deadline)
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
            r = dt__comm_bad(DT_COMM_ERR_MISMATCH, "dt_comm_split: rank %d creates another communicator than rank %d",
                             from, c->member[c->rank]);
        if (r == 0) continue;
        dt__mpi_lock();
        for (int i = 0; i < 2; i++)
            if (request[i] != MPI_REQUEST_NULL) { /* 'got' is on the stack: MPI must not write to it later */
                MPI_Cancel(&request[i]);
                MPI_Wait(&request[i], MPI_STATUS_IGNORE);
            }
        dt__mpi_unlock();
        return r;
    }
    return 0;
}
/* Creates the MPI communicator of c; collective over its ranks. 0, or negative after dt__comm_bad. */
static int dt__mpi_open(dt_comm *c, const int *local, int nlocal)
{
    bool      threaded = !c->opts.no_thread; /* a progress thread will make the calls */
    int64_t   deadline = dt__comm_now() + dt__ns_of(c->world->join_timeout);
    dt__mpi  *t;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    size_t    n = (size_t)c->size;
    int       code, r = 0;
    (void)local;
    (void)nlocal;
    if (threaded && dt__mpi_job.level < MPI_THREAD_SERIALIZED)
        return dt__comm_bad(DT_COMM_ERR_STATE,
                            "dt_comm_init: mpi: MPI was initialised without threads, but dt needs a progress thread: "
                            "call MPI_Init_thread with MPI_THREAD_SERIALIZED or higher, or set .no_thread");
    t = (dt__mpi *)DT_COMM_MALLOC(sizeof *t);
    if (t) {
        memset(t, 0, sizeof *t);
        t->comm = MPI_COMM_NULL;
        t->request = MPI_REQUEST_NULL;
        t->in = (dt__mpi_direction **)DT_COMM_MALLOC(n * sizeof *t->in);
        t->out = (dt__mpi_direction **)DT_COMM_MALLOC(n * sizeof *t->out);
        t->frames = (dt__frame *)DT_COMM_MALLOC((n + 1) * sizeof *t->frames);
    }
    if (!t || !t->in || !t->out || !t->frames)
        r = dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: mpi: out of memory for the links of rank %d", c->rank);
    else {
        memset(t->in, 0, n * sizeof *t->in);
        memset(t->out, 0, n * sizeof *t->out);
        r = dt__mpi_synchronise(c, deadline); /* MPI_Comm_create_group has no timeout: be sure that all ranks call it */
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
    __atomic_store_n(&c->across_data, (void *)t, __ATOMIC_RELEASE);
    return 0;
}

/* ---- messages */
static dt__mpi_direction *dt__mpi_direction_of(dt_comm *c, dt__mpi_direction **at)
{
    if (*at) return *at;
    *at = (dt__mpi_direction *)DT_COMM_MALLOC(sizeof **at);
    if (!*at) {
        dt__transport_fail(c, DT_COMM_ERR_MEMORY, c->rank, "mpi: out of memory for a link of rank %d", c->rank);
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
    dt__mpi     *t = (dt__mpi *)c->across_data;
    dt__mpi_direction *w = dt__mpi_direction_of(c, &t->out[peer]);
    int          code = MPI_SUCCESS, there = 0;
    if (!w) return dt__transport_status(c);
    if (m->state == DT__MSG_NEW) {
        size_t with = m->n <= DT__MPI_SMALL ? m->n : 0;
        memcpy(w->small, &m->head, sizeof m->head);
        if (with) memcpy(w->small + sizeof m->head, m->ptr, with);
        code = MPI_Isend(w->small, (int)(sizeof m->head + with), MPI_BYTE, peer, 0, t->comm, &w->head);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Isend", code);
        w->posted = m->done = with;
        m->state = DT__MSG_BODY;
    }
    for (;;) { /* the slots are a ring: post as many pieces as fit, then test the oldest */
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
static int dt__mpi_head(dt_comm *c, int peer, dt__msg *m, dt__mpi_direction *w, int got)
{
    dt__frame f;
    memset(&f, 0, sizeof f);
    memcpy(&f, w->small, (size_t)got < sizeof f ? (size_t)got : sizeof f);
    if (!dt__frame_ok(c, peer, &m->head, &f)) {
        dt__comm_failed(c, DT_COMM_ERR_MISMATCH, peer, "mpi: received a message with an unexpected header");
        return dt__transport_status(c);
    }
    if (f.nbytes != m->n || (size_t)got != sizeof f + (m->n <= DT__MPI_SMALL ? m->n : 0))
        return dt__transport_fail(c, DT_COMM_ERR_MISMATCH, peer,
                            "rank %d sends %" PRIu64 " bytes in round %u of operation %" PRIu64 ", rank %d expects %zu",
                            peer, f.nbytes, f.step, f.seq, c->rank, m->n);
    m->head_done = sizeof f;
    m->state = DT__MSG_BODY;
    if (m->n > DT__MPI_SMALL) return 0;
    if (m->fold)
        dt__fold(m->dtype, m->op, m->ptr, w->small + sizeof f, (int64_t)(m->n / dt__elem_nbytes(m->dtype)), m->left);
    else if (m->n) memcpy(m->ptr, w->small + sizeof f, m->n);
    w->posted = m->done = m->n;
    return 0;
}
static int dt__mpi_recv_some(dt_comm *c, int peer, dt__msg *m)
{
    dt__mpi     *t = (dt__mpi *)c->across_data;
    dt__mpi_direction *w = dt__mpi_direction_of(c, &t->in[peer]);
    int          code, there = 0, got = 0, r;
    if (!w) return dt__transport_status(c);
    if (m->state == DT__MSG_NEW) {
        code = MPI_Irecv(w->small, (int)sizeof w->small, MPI_BYTE, peer, 0, t->comm, &w->head);
        if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Irecv", code);
        w->posted = m->done = 0;
        m->state = DT__MSG_HEAD;
    }
    if (m->state == DT__MSG_HEAD) {
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
                return dt__transport_fail(c, DT_COMM_ERR_MEMORY, c->rank, "mpi: rank %d: out of memory for a receive buffer",
                                          c->rank);
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
                       (int64_t)(n / dt__elem_nbytes(m->dtype)), m->left);
        m->done += n;
        t->idle = 0;
    }
}
static int dt__mpi_send(dt_comm *c, int peer, dt__msg *m)
{
    int r;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    dt__mpi_lock();
    r = dt__mpi_send_some(c, peer, m);
    dt__mpi_unlock();
    return r;
}
static int dt__mpi_recv(dt_comm *c, int peer, dt__msg *m)
{
    int r;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    dt__mpi_lock();
    r = dt__mpi_recv_some(c, peer, m);
    dt__mpi_unlock();
    return r;
}
/* ---- the lane of messages (dt_msg.h). A frame is an MPI message with tag 1: the header and a small payload. The payload of a
   DATA frame is a second one with tag 2, received directly where it belongs. MPI keeps the order for each tag. */
enum { DT__MPI_LANE_EAGER = 16 << 10, DT__MPI_LANE_OUT = 8 };
typedef struct dt__mpi_frame { /* a frame that MPI has not taken yet */
    MPI_Request request[2];
    bool        used;
    char        bytes[sizeof(dt__mhead) + DT__MPI_LANE_EAGER];
} dt__mpi_frame;
typedef struct dt__mpi_lane {
    dt__mpi_frame out[DT__MPI_LANE_OUT];
    MPI_Request   in;           /* of a payload that arrives */
    int           in_peer;      /* from whom; -1: none */
    dt__mhead     head;
    char          bytes[sizeof(dt__mhead) + DT__MPI_LANE_EAGER];
} dt__mpi_lane;
static int dt__mpi_lane_open(dt_comm *c, dt__mail *m)
{
    dt__mpi_lane *t = (dt__mpi_lane *)dt__comm_zeroed(1, sizeof *t);
    (void)c;
    if (!t) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: mpi: out of memory for messages");
    for (int i = 0; i < DT__MPI_LANE_OUT; i++) t->out[i].request[0] = t->out[i].request[1] = MPI_REQUEST_NULL;
    t->in = MPI_REQUEST_NULL;
    t->in_peer = -1;
    m->streams = t;
    return 0;
}
/* Small frames are done when MPI has a copy of them; of DATA frames the payload must have left the caller's buffer. */
static int dt__mpi_lane_put(dt_comm *c, int peer, dt__outgoing *o)
{
    dt__mpi      *t = (dt__mpi *)c->across_data;
    dt__mpi_lane *l = (dt__mpi_lane *)((dt__mail *)c->mail)->streams;
    dt__mpi_frame *f = NULL;
    int           code = MPI_SUCCESS, there = 0;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    dt__mpi_lock();
    for (int i = 0; i < DT__MPI_LANE_OUT && !f; i++) {
        dt__mpi_frame *g = &l->out[i];
        if (g->used && MPI_Testall(2, g->request, &there, MPI_STATUSES_IGNORE) == MPI_SUCCESS && there) g->used = false;
        if (o->done ? g->used && o->done == 1 + (size_t)i : !g->used) f = g;
    }
    if (o->done) { /* a DATA frame under way; done holds its place */
        dt__mpi_unlock();
        return f ? 0 : 1;
    }
    if (!f) {
        dt__mpi_unlock();
        return 0;
    }
    bool   data = o->head.kind == DT__M_DATA;
    size_t with = data ? 0 : o->n;
    memcpy(f->bytes, &o->head, sizeof o->head);
    if (with) memcpy(f->bytes + sizeof o->head, o->ptr, with);
    code = MPI_Isend(f->bytes, (int)(sizeof o->head + with), MPI_BYTE, peer, 1, t->comm, &f->request[0]);
    if (code == MPI_SUCCESS && data) code = MPI_Isend(o->ptr, (int)o->n, MPI_BYTE, peer, 2, t->comm, &f->request[1]);
    f->used = true;
    t->idle = 0;
    dt__mpi_unlock();
    if (code != MPI_SUCCESS) return dt__mpi_error(c, peer, "MPI_Isend", code);
    if (!data) return 1;
    o->done = 1 + (size_t)(f - l->out);
    return 0;
}
static void dt__mpi_lane_poll(dt_comm *c)
{
    dt__mpi      *t = (dt__mpi *)c->across_data;
    dt__mpi_lane *l = (dt__mpi_lane *)((dt__mail *)c->mail)->streams;
    for (int turn = 0; turn < 64 && dt__comm_ok(c); turn++) {
        int        code, there = 0, n = 0;
        MPI_Status status;
        memset(&status, 0, sizeof status);
        dt__mpi_lock();
        if (l->in_peer >= 0) code = MPI_Test(&l->in, &there, MPI_STATUS_IGNORE);
        else {
            code = MPI_Iprobe(MPI_ANY_SOURCE, 1, t->comm, &there, &status);
            if (code == MPI_SUCCESS && there) code = MPI_Get_count(&status, MPI_BYTE, &n);
            if (code == MPI_SUCCESS && there && n <= (int)sizeof l->bytes)
                code = MPI_Recv(l->bytes, (int)sizeof l->bytes, MPI_BYTE, status.MPI_SOURCE, 1, t->comm, MPI_STATUS_IGNORE);
        }
        dt__mpi_unlock();
        if (code != MPI_SUCCESS) {
            dt__mpi_error(c, l->in_peer, "MPI_Iprobe", code);
            return;
        }
        if (!there) return;
        t->idle = 0;
        if (l->in_peer >= 0) {
            int peer = l->in_peer;
            l->in_peer = -1;
            dt__mail_came(c, peer, &l->head);
            continue;
        }
        int peer = status.MPI_SOURCE;
        memset(&l->head, 0, sizeof l->head);
        memcpy(&l->head, l->bytes, (size_t)n < sizeof l->head ? (size_t)n : sizeof l->head);
        size_t payload = dt__mhead_payload(&l->head);
        bool   data = l->head.kind == DT__M_DATA;
        if (n < (int)sizeof l->head || (!data && (size_t)n != sizeof l->head + payload)) l->head.mark = 0;
        char *to = dt__mail_want(c, peer, &l->head);
        if (!to) return;
        if (!data) {
            dt__comm_copy(to, l->bytes + sizeof l->head, payload);
            dt__mail_came(c, peer, &l->head);
            continue;
        }
        dt__mpi_lock();
        code = MPI_Irecv(to, (int)payload, MPI_BYTE, peer, 2, t->comm, &l->in);
        dt__mpi_unlock();
        if (code != MPI_SUCCESS) {
            dt__mpi_error(c, peer, "MPI_Irecv", code);
            return;
        }
        l->in_peer = peer;
    }
}
static void dt__mpi_cancel(MPI_Request *r);
static void dt__mpi_lane_close(dt_comm *c)
{
    dt__mail     *m = (dt__mail *)c->mail;
    dt__mpi_lane *l = (dt__mpi_lane *)m->streams;
    if (!l) return;
    bool idle = l->in_peer < 0; /* MPI uses none of its buffers */
    dt__mpi_lock();
    dt__mpi_cancel(&l->in);
    for (int i = 0; i < 2 * DT__MPI_LANE_OUT; i++) {
        MPI_Request *r = &l->out[i / 2].request[i % 2];
        int          there = 1;
        if (*r != MPI_REQUEST_NULL) MPI_Test(r, &there, MPI_STATUS_IGNORE);
        if (!there) idle = false, dt__mpi_cancel(r); /* nobody has received it */
    }
    dt__mpi_unlock();
    if (idle) DT_COMM_FREE(l);
    m->streams = NULL;
}
static const dt__lane dt__lane_mpi = { "mpi", DT__MPI_LANE_EAGER, DT__MPI_PIECE, false, dt__mpi_lane_open, dt__mpi_lane_put,
                                       dt__mpi_lane_poll, NULL, NULL, dt__mpi_lane_close, NULL, NULL, NULL };
/* MPI has no descriptor to sleep on, so it is polled: first at once (yielding), then every 50 us, then every 1 ms. */
static void dt__mpi_wait(dt_comm *c, double seconds)
{
    dt__mpi        *t = (dt__mpi *)c->across_data;
    struct pollfd   p;
    struct timespec ts;
    int             idle = t ? t->idle++ : 0;
    double          most = idle < 1000 ? 0 : idle < 2000 ? 5e-5 : 1e-3; /* seconds */
    if (t && t->idle > 1000000) t->idle = 2000;
    if (!dt__comm_ok(c) || !(seconds > 0)) return;
    if (seconds < most) most = seconds;
    if (most == 0) {
        sched_yield();
        return;
    }
    ts = dt__timespec_of(dt__ns_of(most));
    p.fd = c->wake_fd;
    p.events = POLLIN;
    if ((int)syscall(SYS_ppoll, &p, c->wake_fd >= 0 ? 1 : 0, &ts, NULL, 0) > 0 && (p.revents & POLLIN)) {
        uint64_t times;
        if (read(c->wake_fd, &times, sizeof times) < 0) return;
    }
}
/* Drops the request of an unfinished message, in a communicator that has failed. */
static void dt__mpi_cancel(MPI_Request *r)
{
    int there = 0;
    if (*r == MPI_REQUEST_NULL) return;
    if (MPI_Test(r, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there) return;
    MPI_Cancel(r);
    MPI_Request_free(r);
}
static void dt__mpi_close(dt_comm *c)
{
    dt__mpi *t = (dt__mpi *)c->across_data;
    if (!t) return;
    __atomic_store_n(&c->across_data, (void *)NULL, __ATOMIC_RELEASE);
    dt__mpi_lock();
    for (int k = 0; k < 2 * c->size; k++) {
        dt__mpi_direction *w = k < c->size ? t->in[k] : t->out[k - c->size];
        bool         clean = dt__comm_ok(c);
        if (!w) continue;
        dt__mpi_cancel(&w->head);
        for (int i = 0; i < DT__MPI_PIECES; i++) dt__mpi_cancel(&w->piece[i]);
        if (clean) DT_COMM_FREE(w->stage), DT_COMM_FREE(w); /* else not freed: MPI may still write to it */
    }
    if (dt__comm_ok(c)) MPI_Comm_free(&t->comm); /* collective: not after a failure, when a rank may be gone */
    dt__mpi_unlock();
    DT_COMM_FREE(t->in);
    DT_COMM_FREE(t->out);
    if (t->request == MPI_REQUEST_NULL) DT_COMM_FREE(t->frames), DT_COMM_FREE(t); /* else MPI may still use it */
}

/* ---- native: MPI's own collectives. They carry no headers, so a small reduction before each collective checks that all
   ranks make the same call. */
static MPI_Datatype dt__mpi_type(int dtype)
{
    switch (dtype) {
    case DT_COMM_F32: return MPI_FLOAT;
    case DT_COMM_F64: return MPI_DOUBLE;
    case DT_COMM_I32: return MPI_INT32_T;
    case DT_COMM_I64: return MPI_INT64_T;
    case DT_COMM_U8: return MPI_UINT8_T;
    case DT_COMM_F16:
    case DT_COMM_BF16: return MPI_UINT16_T; /* only our own operations compute with them */
    default: return MPI_DATATYPE_NULL; /* MPI refuses it */
    }
}
/* Does MPI have this collective? Its counts and offsets are ints. The answer is the same on all ranks. */
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
static int dt__mpi_test(dt_comm *c, const char *call, int code) /* 1: done; 0: not yet; negative: failed */
{
    dt__mpi *t = (dt__mpi *)c->across_data;
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
/* Do all ranks make the same call? *phase: 0 at the start. 1: yes; 0: call again; negative: failed. */
static int dt__mpi_agree(dt_comm *c, const dt__frame *head, int *phase)
{
    dt__mpi *t = (dt__mpi *)c->across_data;
    int      code = MPI_SUCCESS, r;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
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
        if (t->least[0] == ~t->least[1]) return 1; /* minimum == maximum: all fingerprints are equal */
        t->frames[c->size] = *head;
        dt__mpi_lock();
        code = MPI_Iallgather(&t->frames[c->size], (int)sizeof *head, MPI_BYTE, t->frames, (int)sizeof *head, MPI_BYTE,
                              t->comm, &t->request);
        dt__mpi_unlock();
        *phase = 2;
    }
    if ((r = dt__mpi_test(c, "MPI_Iallgather", code)) <= 0) return r;
    for (int i = 0; i < c->size && dt__comm_ok(c); i++)
        if (dt__frame_print(&t->frames[i]) != t->mine[0]) dt__frame_ok(c, i, head, &t->frames[i]);
    return dt__transport_status(c);
}
/* MPI's own collective. data is laid out as for plans: a vector of n elements, or the segments of all ranks, where rank r has
   part[r] elements that begin at part[size + r]. DT_COMM_MEAN only sums: the caller divides. *done: elements before the
   current chunk; *done and *phase are 0 at the start. 1: done; 0: call again; negative: failed. */
static int dt__mpi_native(dt_comm *c, int coll, char *data, int64_t n, const int *part, int dtype, int op, int root,
                          int *phase, int64_t *done)
{
    static const char *const call[] = { "MPI_Ibarrier",   "MPI_Iallreduce", "MPI_Ireduce_scatter", "MPI_Iallgatherv",
                                        "MPI_Ibcast",     "MPI_Ireduce",    "MPI_Igatherv",        "MPI_Iscatterv" };
    dt__mpi                 *t = (dt__mpi *)c->across_data;
    size_t                   size = dt__elem_nbytes(dtype);
    MPI_Datatype             type = dt__mpi_type(dtype);
    bool reduces = coll == DT_COLL_ALLREDUCE || coll == DT_COLL_REDUCE || coll == DT_COLL_REDUCE_SCATTER, whole = !part;
    MPI_Op     how = reduces ? dt__mpi_job.op[dtype][op] : MPI_OP_NULL;
    const int *at = part ? part + c->size : NULL;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
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
            case DT_COLL_SCATTER:
                if (c->rank == root)
                    code = MPI_Iscatterv(data, part, at, type, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, t->comm, q);
                else code = MPI_Iscatterv(NULL, NULL, NULL, type, p, part[c->rank], type, root, t->comm, q);
                break;
            default: /* dt__mpi_has says no to it */
                dt__mpi_unlock();
                return dt__transport_fail(c, DT_COMM_ERR_STATE, c->rank, "mpi: MPI has no collective number %d", coll);
            }
            dt__mpi_unlock();
            *phase = 1;
        }
        if ((r = dt__mpi_test(c, call[coll], code)) <= 0) return r;
        *phase = 0;
        if (coll == DT_COLL_REDUCE_SCATTER && part[c->rank]) /* MPI writes the result to the beginning of data */
            memmove(p, data, (size_t)part[c->rank] * size);
        if (!whole || coll == DT_COLL_BARRIER) return 1;
        *done += k;
        if (*done >= n) return 1;
    }
}

static const dt__transport dt__transport_mpi = {
    "mpi", DT__REACH_ALL, true, true, dt__mpi_open, dt__mpi_send, dt__mpi_recv, NULL, dt__mpi_wait, dt__mpi_close,
    NULL, dt__mpi_config, dt__mpi_end, dt__mpi_has, dt__mpi_agree, dt__mpi_native
};
__attribute__((constructor)) static void dt__mpi_register(void)
{
    dt__transport_register(&dt__transport_mpi);
    dt__lane_register(&dt__lane_mpi);
}

#ifdef __cplusplus
}
#endif
#endif /* DT_MPI_IMPLEMENTATION */
