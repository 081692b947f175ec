/* emu_nccl.c: collectives between devices of one process and of several processes of this machine, see emu.h. Becomes
   libnccl.so.2.

   An operation is work of its stream. It goes on when every rank's matching operation has come up in its stream, and
   not before: rank r leaves its input in a file, and every rank computes its own output from all of them. An operation
   that differs from another rank's in kind, count, type, reduction or root is reported at once as the hang or mix-up
   that it would be; one that others never issue is reported after DT_EMU_HANG seconds in which nothing happened
   anywhere. Each step of a reduction rounds to the type, starting at another rank in each part of the data, as a ring
   does.

   Files: /dev/shm/NAME (what all ranks see) and /dev/shm/NAME.RANK (the data of a rank), NAME from the unique id. They
   are unlinked as soon as all ranks have opened them. Results with bytes that some rank had never written count as
   never written. Of configurations there is blocking = 0: such a communicator is ncclInProgress until all ranks have
   come, and takes no operation before. Not modelled, and not defined: splitting, windows, registration, own
   reductions, other configurations. */
#include "emu.h"

#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64, MAGIC = 0x2cc1 };
enum { ALL_REDUCE, BROADCAST, REDUCE, REDUCE_SCATTER, ALL_GATHER, SEND, RECV };
static const char *const kind_name[] = {"ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclReduceScatter",
                                        "ncclAllGather", "ncclSend", "ncclRecv"};

/* ==================================================================================================== >>shared */
typedef struct signature { /* in which all ranks must agree */
    int32_t  kind, type, red, root;
    uint64_t count;
} signature;
typedef struct shared_rank {
    uint32_t  joined, opened, left;
    int32_t   pid, physical;
    uint64_t  beat;          /* moves while its process does */
    uint64_t  arrived, done; /* collectives that it has brought its input to; that it has its output of */
    signature sig;           /* of the last arrived */
    uint32_t  all_known;     /* all bytes of its input had been written; else a map follows them */
    uint64_t  nbytes;        /* of its input */
} shared_rank;
typedef struct shared_pair { /* messages from one rank to another */
    uint64_t sent, taken, count, nbytes;
    int32_t  type;
    uint32_t all_known;
} shared_pair;
typedef struct shared {
    uint32_t    nranks; /* set by the first */
    shared_rank rank[MOST_RANKS];
    shared_pair pair[MOST_RANKS][MOST_RANKS];
} shared;

#define GET(x) __atomic_load_n(&(x), __ATOMIC_ACQUIRE)
#define PUT(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELEASE)

typedef struct sub { /* one operation of a work */
    signature   sig;
    const void *in;
    void       *out;
    uint64_t    index; /* of the collectives of the communicator, or of the messages to or from the peer */
    bool        posted, done;
} sub;
typedef struct ncclComm comm;
typedef struct op_work {
    emu_work        w;
    comm           *c;
    struct op_work *next; /* of the communicator, in the order of their calls */
    uint64_t        order; /* of the host's calls, of all communicators */
    bool            given_up, started;
    int             nsubs;
    sub             subs[];
} op_work;
struct ncclComm {
    uint32_t     magic;
    comm        *next; /* of this process */
    shared      *sh;
    char         name[64];
    int          rank, nranks, device, fd[MOST_RANKS], references;
    ncclResult_t async;
    bool         aborted, gone, used;
    pthread_t    user; /* the thread that used it last */
    op_work     *first, **last;
    uint64_t     collectives, sent[MOST_RANKS], received[MOST_RANKS];
    uint64_t     beats[MOST_RANKS];
    char         error[256];
};
static comm *comms;
static _Thread_local char last_text[256];

static ncclResult_t fault(comm *c, ncclResult_t r, const char *format, ...) EMU_PRINTF(3, 4);
static ncclResult_t fault(comm *c, ncclResult_t r, const char *format, ...)
{
    va_list a;
    va_start(a, format);
    vsnprintf(last_text, sizeof last_text, format, a);
    va_end(a);
    if (c) memcpy(c->error, last_text, sizeof c->error);
    emu_note("nccl: %s", last_text);
    return r;
}
static bool is_comm(comm *c) { return c && c->magic == MAGIC && !c->gone; }

static size_t width(int type)
{
    static const unsigned char w[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return w[type];
}
static const char *type_name(int t)
{
    static const char *const n[] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32",
                                    "float64", "bfloat16"};
    return n[t];
}
static void describe(char *text, size_t n, const signature *s)
{
    snprintf(text, n, "%s of %llu %s (reduction %d, root or peer %d)", kind_name[s->kind], (unsigned long long)s->count,
             type_name(s->type), s->red, s->root);
}

/* ==================================================================================================== >>data */
static bool whole_write(int fd, const void *p, size_t n, off_t at)
{
    for (ssize_t k; n; p = (const char *)p + k, n -= (size_t)k, at += k)
        if ((k = pwrite(fd, p, n, at)) <= 0) return false;
    return true;
}
static bool whole_read(int fd, void *p, size_t n, off_t at)
{
    for (ssize_t k; n; p = (char *)p + k, n -= (size_t)k, at += k)
        if ((k = pread(fd, p, n, at)) <= 0) return false;
    return true;
}
/* Where a rank's file holds what it sends to a peer; collectives are at 0. Most of the file are holes. */
static off_t place(int peer) { return (off_t)(peer + 1) << 36; }

/* Bytes of a device into the file of this rank; false after emu_fail. */
static bool leave_data(comm *c, const void *p, size_t nbytes, off_t at, uint32_t *all_known, const char *who)
{
    unsigned char *known = malloc(nbytes + 1);
    void          *host = nbytes ? emu_bytes_known(c->device, p, nbytes, known, who) : known;
    bool           ok = host != NULL;
    if (ok) {
        *all_known = !memchr(known, 0, nbytes);
        ok = whole_write(c->fd[c->rank], host, nbytes, at);
        if (ok && !*all_known) ok = whole_write(c->fd[c->rank], known, nbytes, at + (off_t)nbytes);
        if (!ok) emu_fail(c->device, cudaErrorUnknown, "%s: /dev/shm: %s", who, strerror(errno));
    }
    free(known);
    return ok;
}
/* A part of what rank r left, and into known, by and, whether its bytes had been written. */
static bool fetch_data(comm *c, int r, void *out, unsigned char *known, size_t nbytes, off_t at, off_t map,
                       bool all_known)
{
    if (!whole_read(c->fd[r], out, nbytes, at)) {
        emu_fail(c->device, cudaErrorUnknown, "nccl: the data of rank %d cannot be read", r);
        return false;
    }
    if (!all_known) {
        unsigned char *k = malloc(nbytes + 1);
        whole_read(c->fd[r], k, nbytes, map);
        for (size_t i = 0; i < nbytes; i++) known[i] &= k[i];
        free(k);
    }
    return true;
}

#define COMBINE(T)                                                                                                     \
    {                                                                                                                  \
        T x, y;                                                                                                        \
        memcpy(&x, a, sizeof x);                                                                                       \
        memcpy(&y, b, sizeof y);                                                                                       \
        x = op == ncclProd  ? (T)(x * y)                                                                               \
            : op == ncclMax ? (x < y ? y : x)                                                                          \
            : op == ncclMin ? (y < x ? y : x)                                                                          \
                            : (T)(x + y);                                                                              \
        memcpy(a, &x, sizeof x);                                                                                       \
    }
#define DIVIDE(T)               \
    {                           \
        T x;                    \
        memcpy(&x, a, sizeof x); \
        x = (T)(x / (T)n);      \
        memcpy(a, &x, sizeof x); \
    }
static float combine_float(float x, float y, int op)
{
    return op == ncclProd ? x * y : op == ncclMax ? (x < y ? y : x) : op == ncclMin ? (y < x ? y : x) : x + y;
}
static void combine(char *a, const char *b, int type, int op)
{
    uint16_t h, g;
    switch (type) {
    case ncclInt8: COMBINE(int8_t) break;
    case ncclUint8: COMBINE(uint8_t) break;
    case ncclInt32: COMBINE(int32_t) break;
    case ncclUint32: COMBINE(uint32_t) break;
    case ncclInt64: COMBINE(int64_t) break;
    case ncclUint64: COMBINE(uint64_t) break;
    case ncclFloat32: COMBINE(float) break;
    case ncclFloat64: COMBINE(double) break;
    case ncclFloat16:
        memcpy(&h, a, 2), memcpy(&g, b, 2);
        h = emu_f32_to_f16(combine_float(emu_f16_to_f32(h), emu_f16_to_f32(g), op));
        memcpy(a, &h, 2);
        break;
    case ncclBfloat16:
        memcpy(&h, a, 2), memcpy(&g, b, 2);
        h = emu_f32_to_bf16(combine_float(emu_bf16_to_f32(h), emu_bf16_to_f32(g), op));
        memcpy(a, &h, 2);
        break;
    }
}
static void divide(char *a, int type, int n)
{
    uint16_t h;
    switch (type) {
    case ncclInt8: DIVIDE(int8_t) break;
    case ncclUint8: DIVIDE(uint8_t) break;
    case ncclInt32: DIVIDE(int32_t) break;
    case ncclUint32: DIVIDE(uint32_t) break;
    case ncclInt64: DIVIDE(int64_t) break;
    case ncclUint64: DIVIDE(uint64_t) break;
    case ncclFloat32: DIVIDE(float) break;
    case ncclFloat64: DIVIDE(double) break;
    case ncclFloat16:
        memcpy(&h, a, 2);
        h = emu_f32_to_f16(emu_f16_to_f32(h) / (float)n);
        memcpy(a, &h, 2);
        break;
    case ncclBfloat16:
        memcpy(&h, a, 2);
        h = emu_f32_to_bf16(emu_bf16_to_f32(h) / (float)n);
        memcpy(a, &h, 2);
        break;
    }
}

/* ==================================================================================================== >>operations */
/* Bytes that a rank brings and takes. */
static size_t bytes_in(const comm *c, const signature *s)
{
    size_t n = (size_t)s->count * width(s->type);
    return s->kind == REDUCE_SCATTER ? n * (size_t)c->nranks : s->kind == BROADCAST && c->rank != s->root ? 0 : n;
}
static size_t bytes_out(const comm *c, const signature *s)
{
    size_t n = (size_t)s->count * width(s->type);
    return s->kind == ALL_GATHER ? n * (size_t)c->nranks : s->kind == REDUCE && c->rank != s->root ? 0 : n;
}
static bool touch(const void *a, size_t n, const void *b, size_t m)
{
    return n && m && (uintptr_t)a < (uintptr_t)b + m && (uintptr_t)b < (uintptr_t)a + n;
}
/* Input and output may be apart, or lie as the documentation calls in place. */
static bool in_place(const comm *c, const sub *o)
{
    size_t part = (size_t)o->sig.count * width(o->sig.type) * (size_t)c->rank;
    switch (o->sig.kind) {
    case ALL_GATHER: return (uintptr_t)o->in == (uintptr_t)o->out + part;
    case REDUCE_SCATTER: return (uintptr_t)o->out == (uintptr_t)o->in + part;
    default: return o->in == o->out;
    }
}
static ncclResult_t broken(comm *c, op_work *w)
{
    if (!c->async) c->async = ncclInternalError;
    w->given_up = true;
    return ncclInternalError;
}
/* The input of a collective goes to the others, when they have all done with the one before. */
static void post(comm *c, op_work *w, sub *o)
{
    shared_rank *me = &c->sh->rank[c->rank];
    size_t       nin = bytes_in(c, &o->sig), nout = bytes_out(c, &o->sig);
    for (int r = 0; r < c->nranks; r++)
        if (GET(c->sh->rank[r].done) < o->index) return;
    if (touch(o->in, nin, o->out, nout) && !in_place(c, o)) {
        emu_fail(c->device, cudaErrorLaunchFailure, "%s: input and output overlap, and not as in place is", w->w.name);
        broken(c, w);
        return;
    }
    if (!leave_data(c, o->in, nin, 0, &me->all_known, w->w.name)) {
        broken(c, w);
        return;
    }
    /* until it is complete, the output is nothing that anybody may read */
    if (nout && !emu_bytes(c->device, o->out, nout, 0, w->w.name)) {
        broken(c, w);
        return;
    }
    if (nout && !touch(o->in, nin, o->out, nout)) emu_forget(c->device, o->out, nout);
    me->sig = o->sig;
    me->nbytes = nin;
    o->posted = true;
    PUT(me->arrived, o->index + 1);
    emu_wake();
}
static bool output(comm *c, const sub *o)
{
    const signature *s = &o->sig;
    size_t           nout = bytes_out(c, s), e = width(s->type), n = (size_t)s->count * e;
    unsigned char   *known = malloc(nout + 1);
    char            *out = malloc(nout + 1), *other = malloc(nout + 1), **part = NULL;
    bool             ok = true;
    memset(known, 1, nout);
    if (s->kind == ALL_GATHER || s->kind == BROADCAST) {
        for (int r = 0; ok && r < c->nranks; r++) {
            shared_rank *from = &c->sh->rank[r];
            if (s->kind == BROADCAST && r != s->root) continue;
            size_t to = s->kind == ALL_GATHER ? n * (size_t)r : 0;
            ok = fetch_data(c, r, out + to, known + to, n, 0, (off_t)from->nbytes, from->all_known);
        }
    } else if (nout) {
        off_t at = s->kind == REDUCE_SCATTER ? (off_t)n * c->rank : 0;
        part = calloc((size_t)c->nranks, sizeof *part);
        for (int r = 0; ok && r < c->nranks; r++) {
            shared_rank *from = &c->sh->rank[r];
            part[r] = malloc(n + 1);
            ok = fetch_data(c, r, part[r], known, n, at, at + (off_t)from->nbytes, from->all_known);
        }
        for (uint64_t i = 0; ok && i < s->count; i++) {
            uint64_t chunk = s->kind == REDUCE_SCATTER ? (uint64_t)c->rank : i * (uint64_t)c->nranks / s->count;
            int      first = (int)((chunk + 1) % (uint64_t)c->nranks);
            memcpy(out + i * e, part[first] + i * e, e);
            for (int k = 1; k < c->nranks; k++)
                combine(out + i * e, part[(first + k) % c->nranks] + i * e, s->type, s->red);
            if (s->red == ncclAvg) divide(out + i * e, s->type, c->nranks);
        }
        for (int r = 0; r < c->nranks; r++) free(part[r]);
        free(part);
    }
    if (ok && nout) {
        void *to = emu_bytes(c->device, o->out, nout, EMU_WRITE, kind_name[s->kind]);
        ok = to != NULL;
        if (ok) {
            memcpy(to, out, nout);
            emu_set_known(c->device, o->out, nout, known);
        }
    }
    free(known), free(out), free(other);
    return ok;
}
static void collective(comm *c, op_work *w, sub *o)
{
    char mine[128], theirs[128];
    if (!o->posted) post(c, w, o);
    if (!o->posted || w->given_up) return;
    for (int r = 0; r < c->nranks; r++)
        if (GET(c->sh->rank[r].arrived) <= o->index) return;
    for (int r = 0; r < c->nranks; r++) {
        if (!memcmp(&c->sh->rank[r].sig, &o->sig, sizeof o->sig)) continue;
        describe(mine, sizeof mine, &o->sig);
        describe(theirs, sizeof theirs, &c->sh->rank[r].sig);
        emu_fail(c->device, cudaErrorLaunchTimeout,
                 "nccl: operation %llu: rank %d has %s, rank %d has %s: GPUs would hang", (unsigned long long)o->index,
                 c->rank, mine, r, theirs);
        broken(c, w);
        PUT(c->sh->rank[c->rank].done, o->index + 1);
        return;
    }
    if (!output(c, o)) broken(c, w);
    o->done = true;
    PUT(c->sh->rank[c->rank].done, o->index + 1);
    emu_count(EMU_COLLECTIVES);
    emu_wake();
}
static void message(comm *c, op_work *w, sub *o)
{
    int          peer = o->sig.root;
    size_t       nbytes = (size_t)o->sig.count * width(o->sig.type);
    shared_pair *p = o->sig.kind == SEND ? &c->sh->pair[c->rank][peer] : &c->sh->pair[peer][c->rank];
    if (o->sig.kind == SEND) {
        if (!o->posted) {
            if (GET(p->taken) < o->index) return;
            if (!leave_data(c, o->in, nbytes, place(peer), &p->all_known, w->w.name)) {
                broken(c, w);
                return;
            }
            p->count = o->sig.count;
            p->type = o->sig.type;
            p->nbytes = nbytes;
            o->posted = true;
            PUT(p->sent, o->index + 1);
            emu_wake();
        }
        if (GET(p->taken) > o->index) o->done = true;
        return;
    }
    if (!o->posted) {
        o->posted = true;
        if (emu_bytes(c->device, o->out, nbytes, 0, w->w.name)) emu_forget(c->device, o->out, nbytes);
        else broken(c, w);
    }
    if (GET(p->sent) <= o->index) return;
    if (p->count != o->sig.count || p->type != o->sig.type) {
        emu_fail(c->device, cudaErrorLaunchTimeout,
                 "nccl: rank %d receives %llu %s of rank %d, which sends %llu %s: GPUs would hang", c->rank,
                 (unsigned long long)o->sig.count, type_name(o->sig.type), peer, (unsigned long long)p->count,
                 type_name(p->type));
        broken(c, w);
        return;
    }
    unsigned char *known = malloc(nbytes + 1);
    void          *to = emu_bytes(c->device, o->out, nbytes, EMU_WRITE, w->w.name);
    memset(known, 1, nbytes);
    if (!to || !fetch_data(c, peer, to, known, nbytes, place(c->rank), place(c->rank) + (off_t)nbytes, p->all_known))
        broken(c, w);
    else emu_set_known(c->device, o->out, nbytes, known);
    free(known);
    o->done = true;
    PUT(p->taken, o->index + 1);
    emu_count(EMU_COLLECTIVES);
    emu_wake();
}
/* DT_EMU_NCCL=hang:RANK:N or fail:RANK:N: the N-th collective of that rank, from 0, never ends, or ends with an
   asynchronous error. Asked once. */
static bool told_to(const comm *c, const sub *o, const char *what)
{
    static char kind[8];
    static int  rank = -2, n;
    const char *text = rank == -2 ? getenv("DT_EMU_NCCL") : NULL;
    if (rank == -2) rank = -1;
    if (text && sscanf(text, "%4[a-z]:%d:%d", kind, &rank, &n) != 3) {
        emu_fail(-1, cudaErrorUnknown, "DT_EMU_NCCL=%s: it is hang:RANK:N or fail:RANK:N", text);
        rank = -1;
    }
    return rank == c->rank && o->sig.kind < SEND && o->index == (uint64_t)n && !strcmp(kind, what);
}
/* ---- room for the kernels of collectives, see DT_EMU_NCCL_ROOM. Messages need none, but start in order, too. */
static int version(void)
{
    const char *v = getenv("DT_EMU_NCCL_VERSION");
    return v ? atoi(v) : NCCL_VERSION_CODE;
}
static op_work *in_the_way(const op_work *w) /* of what has not started yet; NULL: nothing */
{
    static int  most = -1;
    static bool ordered;
    int         n = 0;
    op_work    *found = NULL;
    if (most < 0) {
        const char *room = getenv("DT_EMU_NCCL_ROOM"), *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
        most = room ? atoi(room) : 0;
        ordered = order && !strcmp(order, "1") && version() >= 22600;
    }
    if (!most) return NULL;
    for (comm *c = comms; c; c = c->next)
        for (op_work *v = c->device == w->c->device && !c->aborted ? c->first : NULL; v; v = v->next) {
            if (v == w || v->given_up) continue;
            if (!v->started && ordered && v->order < w->order) return v;
            if (!v->started || v->subs[0].sig.kind >= SEND) continue;
            n++;
            found = v;
        }
    return w->subs[0].sig.kind < SEND && n >= most ? found : NULL;
}
static int op_run(emu_work *ew)
{
    op_work *w = (op_work *)ew;
    comm    *c = w->c;
    bool     all = true, waiting = false;
    if (c->aborted || w->given_up) {
        for (int i = 0; i < w->nsubs; i++) /* nobody knows what they hold */
            if (!w->subs[i].done && !emu_sticky(c->device) && w->subs[i].sig.kind != SEND &&
                bytes_out(c, &w->subs[i].sig))
                emu_forget(c->device, w->subs[i].out, bytes_out(c, &w->subs[i].sig));
        return EMU_DONE;
    }
    if (c->first != w) return EMU_BLOCKED; /* in the order of the calls, whatever the streams */
    for (op_work *v; !w->started && (v = in_the_way(w)) != NULL;) {
        uint64_t before = emu_progress();
        if (!v->started) emu_advance(v->w.stream, v->w.at);
        if (emu_progress() == before) return EMU_BLOCKED;
    }
    w->started = true;
    for (int i = 0; i < w->nsubs && !w->given_up; i++) {
        sub *o = &w->subs[i];
        if (told_to(c, o, "hang")) return EMU_BLOCKED;
        if (told_to(c, o, "fail")) {
            fault(c, ncclRemoteError, "as it was told");
            c->async = ncclRemoteError;
            return EMU_BLOCKED; /* until it is aborted */
        }
        if (!o->done && o->sig.kind >= SEND) message(c, w, o);
        else if (!o->done && !waiting) collective(c, w, o);
        if (!o->done && o->sig.kind < SEND) waiting = true;
        all &= o->done;
    }
    return all || w->given_up ? EMU_DONE : EMU_BLOCKED;
}
static void release(comm *c)
{
    if (--c->references) return;
    for (comm **at = &comms; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    for (int r = 0; r < c->nranks; r++)
        if (c->fd[r] >= 0) close(c->fd[r]);
    if (c->sh) munmap(c->sh, sizeof *c->sh);
    c->magic = 0;
    free(c);
}
static void op_drop(emu_work *ew)
{
    op_work *w = (op_work *)ew;
    comm    *c = w->c;
    for (op_work **at = &c->first; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            if (!w->next) c->last = at;
            break;
        }
    free(w);
    release(c);
}
/* Gets the ranks of this process to where they can go on. */
static void kick_all(const char *name)
{
    bool again = true;
    while (again) {
        again = false;
        for (comm *c = comms; c; c = c->next) {
            op_work *w = c->first;
            if (strcmp(c->name, name) || !w) continue;
            uint64_t before = emu_progress();
            c->references++;
            emu_advance(w->w.stream, w->w.at);
            again |= emu_progress() != before;
            bool last = c->references == 1;
            release(c);
            if (last) break; /* the list has changed under us */
        }
    }
}
static void look(comm *c) /* have other processes moved? */
{
    for (int r = 0; r < c->nranks; r++) {
        uint64_t b = GET(c->sh->rank[r].beat);
        if (b != c->beats[r]) {
            c->beats[r] = b;
            if (c->sh->rank[r].pid != (int32_t)getpid()) emu_wake_for_others();
        }
    }
}
static void op_kick(emu_work *w)
{
    comm *c = ((op_work *)w)->c;
    char  name[8][sizeof c->name];
    int   n = 0;
    look(c);
    for (comm *o = comms; o && !((op_work *)w)->started && n < 8; o = o->next) /* one of these is in the way */
        if (o != c && o->device == c->device && o->first) memcpy(name[n++], o->name, sizeof c->name);
    for (int i = 0; i < n; i++) kick_all(name[i]);
    kick_all(c->name);
}
static void op_hang(emu_work *ew)
{
    op_work *w = (op_work *)ew;
    comm    *c = w->c;
    char     what[128], who[256] = "";
    sub     *o = w->subs;
    while (o < w->subs + w->nsubs - 1 && o->done) o++;
    describe(what, sizeof what, &o->sig);
    op_work *v = w->started || c->first != w ? NULL : in_the_way(w);
    if (c->first != w) snprintf(who, sizeof who, "an operation of the same communicator before it");
    else if (v)
        snprintf(who, sizeof who, "room on its GPU, where operation %llu of another communicator, %s, %s", (unsigned long long)v->subs[0].index,
                 v->w.name, v->started ? "runs and waits for other ranks" : "is to start before it");
    else if (o->sig.kind >= SEND) snprintf(who, sizeof who, "rank %d", o->sig.root);
    else
        for (int r = 0, n = 0; r < c->nranks; r++)
            if (GET(c->sh->rank[r].arrived) <= o->index && r != c->rank && n < 200)
                n += snprintf(who + n, sizeof who - (size_t)n, "%srank %d", n ? ", " : "", r);
    bool other = v != NULL; /* one of two communicators has the room that the other one waits for */
    for (comm *d = comms; d && w->started; d = d->next) other |= d != c && d->device == c->device && d->first && in_the_way(d->first) == w;
    emu_fail(c->device, cudaErrorLaunchTimeout, "nccl: rank %d hangs in operation %llu, %s, waiting for %s%s", c->rank,
             (unsigned long long)o->index, what, *who ? who : "the others to take its result",
             other ? ": the ranks use the communicators in different orders" : "");
    broken(c, w);
}

/* ---- other processes: they may wait for work here that nobody here waits for, so a thread has an eye on them */
static bool helping;
static void *helper(void *arg)
{
    (void)arg;
    for (;;) {
        struct timespec t = {0, 500000};
        nanosleep(&t, NULL);
        emu_lock();
        for (comm *c = comms; c; c = c->next) {
            bool wanted = false;
            if (c->gone || c->aborted) continue;
            PUT(c->sh->rank[c->rank].beat, emu_progress());
            look(c);
            for (int r = 0; r < c->nranks && c->first; r++) {
                wanted |= GET(c->sh->rank[r].arrived) > GET(c->sh->rank[c->rank].done);
                wanted |= GET(c->sh->pair[r][c->rank].sent) > GET(c->sh->pair[r][c->rank].taken);
                wanted |= c->first->nsubs && c->first->subs[0].posted;
            }
            if (wanted) {
                kick_all(c->name);
                break;
            }
        }
        emu_unlock();
    }
    return NULL;
}

/* ==================================================================================================== >>groups */
ncclResult_t ncclGetVersion(int *v)
{
    if (!v) return ncclInvalidArgument;
    *v = version();
    return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
    }
}
const char *ncclGetLastError(ncclComm_t c) { return is_comm(c) && *c->error ? c->error : last_text; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static unsigned count;
    struct timespec t;
    if (!id) return ncclInvalidArgument;
    clock_gettime(CLOCK_REALTIME, &t);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "dtemu-%d-%u-%llx", (int)getpid(),
             __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED),
             (unsigned long long)t.tv_sec * 1000000000u + (unsigned long long)t.tv_nsec);
    return ncclSuccess;
}
static void file_name(char *out, size_t n, const char *name, int rank)
{
    if (rank < 0) snprintf(out, n, "/%s", name);
    else snprintf(out, n, "/%s.%d", name, rank);
}
static void unlink_all(const char *name, int nranks)
{
    char path[128];
    for (int r = -1; r < nranks; r++) {
        file_name(path, sizeof path, name, r);
        shm_unlink(path);
    }
}
/* Makes itself known to the others; does not wait. */
static ncclResult_t join(comm **out, int nranks, const ncclUniqueId *id, int rank, int device)
{
    char     path[128];
    uint32_t none = 0;
    int      fd;
    if (!out || nranks < 1 || nranks > MOST_RANKS || rank < 0 || rank >= nranks)
        return fault(NULL, ncclInvalidArgument, "rank %d of %d", rank, nranks);
    if (strncmp(id->internal, "dtemu-", 6) || !memchr(id->internal, 0, 60))
        return fault(NULL, ncclInvalidArgument, "a unique id that ncclGetUniqueId has not made");
    comm *c = calloc(1, sizeof *c);
    *c = (comm){.magic = MAGIC, .rank = rank, .nranks = nranks, .device = device, .references = 1};
    c->last = &c->first;
    for (int r = 0; r < MOST_RANKS; r++) c->fd[r] = -1;
    memcpy(c->name, id->internal, sizeof c->name - 1);
    file_name(path, sizeof path, c->name, -1);
    fd = shm_open(path, O_CREAT | O_RDWR, 0600);
    if (fd >= 0 && !ftruncate(fd, sizeof(shared)))
        c->sh = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    file_name(path, sizeof path, c->name, rank);
    c->fd[rank] = shm_open(path, O_CREAT | O_RDWR, 0600);
    if (!c->sh || c->sh == MAP_FAILED || c->fd[rank] < 0) {
        ncclResult_t r = fault(NULL, ncclSystemError, "/dev/shm%s: %s", path, strerror(errno));
        c->sh = c->sh == MAP_FAILED ? NULL : c->sh;
        release(c);
        return r;
    }
    if (!__atomic_compare_exchange_n(&c->sh->nranks, &none, (uint32_t)nranks, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE) &&
        none != (uint32_t)nranks) {
        release(c);
        return fault(NULL, ncclInvalidArgument, "%d ranks here, %u at another rank", nranks, none);
    }
    c->sh->rank[rank].pid = getpid();
    c->sh->rank[rank].physical = emu_physical(device);
    if (__atomic_exchange_n(&c->sh->rank[rank].joined, 1, __ATOMIC_ACQ_REL)) {
        release(c);
        return fault(NULL, ncclInvalidUsage, "rank %d is there twice", rank);
    }
    c->next = comms;
    comms = c;
    *out = c;
    return ncclSuccess;
}
/* Waits for all ranks. The lock is held, and let go of while it waits. */
static ncclResult_t meet(comm *c)
{
    double begun = emu_seconds();
    char   path[128];
    bool   other_process = false;
    int    there = 0;
    for (;;) {
        there = 0;
        for (int r = 0; r < c->nranks; r++) there += GET(c->sh->rank[r].joined) != 0;
        if (there == c->nranks) break;
        if (c->aborted) {
            unlink_all(c->name, c->nranks);
            return ncclInternalError;
        }
        if (emu_seconds() - begun > emu_hang_seconds()) {
            emu_fail(-1, cudaErrorUnknown,
                     "ncclCommInitRank: rank %d waits, %d of %d ranks are there: it would hang (ranks of "
                     "one thread need ncclGroupStart and ncclGroupEnd)",
                     c->rank, there, c->nranks);
            unlink_all(c->name, c->nranks);
            return fault(c, ncclInternalError, "not all ranks came");
        }
        emu_pause(500);
    }
    for (int r = 0; r < c->nranks; r++) {
        other_process |= c->sh->rank[r].pid != (int32_t)getpid();
        for (int s = 0; s < r; s++)
            if (c->sh->rank[r].physical == c->sh->rank[s].physical) {
                unlink_all(c->name, c->nranks);
                return fault(c, ncclInvalidUsage, "duplicate GPU: ranks %d and %d are both on device %d", s, r,
                             c->sh->rank[r].physical);
            }
        if (c->fd[r] >= 0) continue;
        file_name(path, sizeof path, c->name, r);
        c->fd[r] = shm_open(path, O_RDWR, 0600);
        if (c->fd[r] < 0) return fault(c, ncclSystemError, "/dev/shm%s: %s", path, strerror(errno));
    }
    PUT(c->sh->rank[c->rank].opened, 1);
    while (c->rank == 0) {
        there = 0;
        for (int r = 0; r < c->nranks; r++) there += GET(c->sh->rank[r].opened) != 0;
        if (there == c->nranks || c->aborted || emu_seconds() - begun > 2 * emu_hang_seconds()) break;
        for (comm *d = comms; d; d = d->next) /* those of this thread's group wait for us */
            if (d != c && !strcmp(d->name, c->name) && !GET(d->sh->rank[d->rank].opened) &&
                pthread_equal(d->user, pthread_self()))
                return ncclInProgress;
        emu_pause(500);
    }
    if (c->rank == 0) unlink_all(c->name, c->nranks);
    if (other_process && !helping) {
        pthread_t t;
        helping = !pthread_create(&t, NULL, helper, NULL);
        if (!helping) return fault(c, ncclSystemError, "no thread");
        pthread_detach(t);
    }
    return ncclSuccess;
}
static ncclResult_t meet_all(comm **list, int n)
{
    ncclResult_t first = ncclSuccess;
    bool         late[MOST_RANKS] = {false};
    for (int i = 0; i < n; i++) list[i]->user = pthread_self();
    for (int pass = 0; pass < 2; pass++) /* rank 0 unlinks when the others have opened */
        for (int i = 0; i < n; i++) {
            if (pass && !late[i]) continue;
            ncclResult_t r = meet(list[i]);
            if (r == ncclInProgress) late[i] = true;
            else if (r && !first) first = r;
        }
    return first;
}

typedef struct pending { /* of a group */
    comm        *c, **out;
    sub          o;
    cudaStream_t stream;
} pending;
static _Thread_local pending *group;
static _Thread_local int      ngroup, group_room, depth;
static _Thread_local ncclResult_t group_error;

static pending *group_add(void)
{
    if (ngroup == group_room) group = realloc(group, (size_t)(group_room = 2 * group_room + 16) * sizeof *group);
    memset(&group[ngroup], 0, sizeof *group);
    return &group[ngroup++];
}
static ncclResult_t usable(void)
{
    cudaError_t e = emu_usable();
    return e ? fault(NULL, ncclUnhandledCudaError, "CUDA: %s", cudaGetErrorString(e)) : ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int nranks, ncclUniqueId id, int rank)
{
    comm        *c = NULL;
    ncclResult_t r;
    emu_lock();
    r = usable();
    if (!r) r = join(&c, nranks, &id, rank, emu_device());
    if (!r && depth) {
        pending *p = group_add();
        p->c = c;
        p->out = out;
    } else if (!r) {
        r = meet_all(&c, 1);
        if (r) release(c);
        else *out = c;
    }
    if (r && depth) group_error = r;
    emu_unlock();
    return r;
}
static void *meet_later(void *arg)
{
    comm *c = arg;
    emu_lock();
    ncclResult_t r = c->aborted ? ncclInternalError : meet_all(&c, 1);
    if (c->async == ncclInProgress) c->async = r;
    release(c);
    emu_unlock();
    return NULL;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    ncclConfig_t plain = NCCL_CONFIG_INITIALIZER, given = config ? *config : plain;
    comm        *c = NULL;
    pthread_t    t;
    if (given.size != plain.size || given.magic != plain.magic || given.version != plain.version)
        return fault(NULL, ncclInvalidArgument, "the configuration was not made by NCCL_CONFIG_INITIALIZER");
    bool blocking = given.blocking != 0;
    given.blocking = plain.blocking;
    if (memcmp(&given, &plain, sizeof plain)) return fault(NULL, ncclInvalidUsage, "more than blocking is not modelled");
    if (blocking) return ncclCommInitRank(out, nranks, id, rank);
    if (depth) return fault(NULL, ncclInvalidUsage, "blocking = 0 in a group is not modelled");
    emu_lock();
    ncclResult_t r = usable();
    if (!r) r = join(&c, nranks, &id, rank, emu_device());
    if (!r) {
        c->async = ncclInProgress;
        c->references++;
        if (pthread_create(&t, NULL, meet_later, c)) r = fault(NULL, ncclSystemError, "no thread");
        else pthread_detach(t);
    }
    if (!r) *out = c;
    emu_unlock();
    return r ? r : ncclInProgress;
}
ncclResult_t ncclCommInitAll(ncclComm_t *out, int n, const int *devices)
{
    ncclUniqueId id;
    comm        *list[MOST_RANKS];
    ncclResult_t r;
    int          made = 0;
    if (!out || n < 1 || n > EMU_MAX_DEVICES) return fault(NULL, ncclInvalidArgument, "%d devices", n);
    ncclGetUniqueId(&id);
    emu_lock();
    r = usable();
    for (int i = 0; !r && i < n; i++) {
        int d = devices ? devices[i] : i;
        if (d < 0 || d >= emu_devices()) r = fault(NULL, ncclInvalidUsage, "no device %d", d);
        else if (!(r = join(&list[i], n, &id, i, d))) made++;
    }
    if (!r) r = meet_all(list, n);
    else if (made) unlink_all(list[0]->name, n);
    for (int i = 0; i < made; i++) {
        if (r) release(list[i]);
        else out[i] = list[i];
    }
    emu_unlock();
    return r;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *n)
{
    if (!is_comm(c) || !n) return ncclInvalidArgument;
    *n = c->nranks;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *d)
{
    if (!is_comm(c) || !d) return ncclInvalidArgument;
    *d = c->device;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank)
{
    if (!is_comm(c) || !rank) return ncclInvalidArgument;
    *rank = c->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *r)
{
    if (!is_comm(c) || !r) return ncclInvalidArgument;
    emu_lock();
    *r = c->async;
    emu_unlock();
    return ncclSuccess;
}
/* Until its operations are complete, which takes the other ranks. */
ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    if (!is_comm(c)) return ncclInvalidArgument;
    emu_lock();
    c->references++;
    while (c->first && !c->aborted) emu_wait(c->first->w.stream, c->first->w.at);
    ncclResult_t r = c->async;
    release(c);
    emu_unlock();
    return r;
}
ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!c) return ncclSuccess;
    if (!is_comm(c)) return ncclInvalidArgument;
    ncclCommFinalize(c);
    emu_lock();
    c->gone = true;
    release(c);
    emu_unlock();
    return ncclSuccess;
}
/* Its operations end where they are. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    if (!c) return ncclSuccess;
    if (!is_comm(c)) return ncclInvalidArgument;
    emu_lock();
    c->aborted = c->gone = true;
    emu_wake();
    release(c);
    emu_unlock();
    return ncclSuccess;
}

/* ==================================================================================================== >>calls */
/* All operations of one communicator in a group are one work. */
static ncclResult_t submit(pending *list, int n, comm *c)
{
    int          nsubs = 0;
    cudaStream_t stream = NULL;
    bool         have = false;
    for (int i = 0; i < n; i++) {
        if (list[i].c != c || list[i].out) continue;
        if (have && list[i].stream != stream)
            return fault(c, ncclInvalidUsage, "several streams for one communicator in one group are not modelled");
        stream = list[i].stream;
        have = true;
        nsubs++;
    }
    op_work *w = calloc(1, sizeof *w + (size_t)nsubs * sizeof(sub));
    w->w = (emu_work){.run = op_run, .drop = op_drop, .kick = op_kick, .hang = op_hang};
    static uint64_t order;
    w->c = c;
    w->order = ++order;
    for (int i = 0; i < n; i++) {
        if (list[i].c != c || list[i].out) continue;
        sub *o = &w->subs[w->nsubs++];
        *o = list[i].o;
        o->index = o->sig.kind == SEND   ? c->sent[o->sig.root]++
                   : o->sig.kind == RECV ? c->received[o->sig.root]++
                                         : c->collectives++;
    }
    w->w.name = kind_name[w->subs[0].sig.kind];
    c->references++;
    *c->last = w;
    c->last = &w->next;
    /* known to the communicator before it is queued: it may run at once */
    cudaError_t e = emu_queue(stream, &w->w);
    return e ? fault(c, ncclUnhandledCudaError, "CUDA: %s", cudaGetErrorString(e)) : ncclSuccess;
}
/* A thread that has several ranks must issue their operations as a group. */
static bool alone(pending *list, int n, comm *c)
{
    for (comm *d = comms; d; d = d->next) {
        bool in = false;
        if (d == c || strcmp(d->name, c->name) || !d->used || d->gone || !pthread_equal(d->user, pthread_self()))
            continue;
        for (int i = 0; i < n; i++) in |= list[i].c == d;
        if (!in) {
            emu_fail(c->device, cudaErrorLaunchTimeout,
                     "nccl: one thread issues operations of ranks %d and %d one after another, not as a group: it "
                     "would hang",
                     d->rank, c->rank);
            return false;
        }
    }
    return true;
}
static ncclResult_t issue(pending *list, int n)
{
    ncclResult_t first = ncclSuccess;
    for (int i = 0; i < n && !first; i++) {
        comm *c = list[i].c;
        bool  before = false;
        for (int j = 0; j < i; j++) before |= list[j].c == c && !list[j].out;
        if (before || list[i].out) continue;
        if (!alone(list, n, c)) return ncclInvalidUsage;
    }
    for (int i = 0; i < n && !first; i++) {
        comm *c = list[i].c;
        bool  before = false;
        for (int j = 0; j < i; j++) before |= list[j].c == c && !list[j].out;
        if (before || list[i].out) continue;
        c->used = true;
        c->user = pthread_self();
        first = submit(list, n, c);
    }
    return first;
}
ncclResult_t ncclGroupStart(void)
{
    depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t r = group_error;
    comm        *list[MOST_RANKS];
    int          n = 0;
    if (!depth) return fault(NULL, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--depth) return ncclSuccess;
    emu_lock();
    for (int i = 0; i < ngroup && n < MOST_RANKS; i++)
        if (group[i].out) list[n++] = group[i].c;
    if (!r && n) r = meet_all(list, n);
    for (int i = 0; i < ngroup; i++) {
        if (!group[i].out) continue;
        if (r) release(group[i].c);
        else *group[i].out = group[i].c;
    }
    if (!r) r = issue(group, ngroup);
    ngroup = 0;
    group_error = ncclSuccess;
    emu_unlock();
    return r;
}
static ncclResult_t call(int kind, const void *in, void *out, size_t count, ncclDataType_t type, int red, int root,
                         comm *c, cudaStream_t stream)
{
    ncclResult_t r = ncclSuccess;
    int          device = -1;
    emu_lock();
    if (!is_comm(c)) r = fault(NULL, ncclInvalidArgument, "%s: no communicator", kind_name[kind]);
    else if ((unsigned)type > ncclBfloat16)
        r = fault(c, ncclInvalidArgument, "%s: type %d is not modelled", kind_name[kind], (int)type);
    else if ((unsigned)red > ncclAvg)
        r = fault(c, ncclInvalidArgument, "%s: reduction %d is not modelled", kind_name[kind], red);
    else if (root < 0 || root >= c->nranks)
        r = fault(c, ncclInvalidArgument, "%s: rank %d of %d", kind_name[kind], root, c->nranks);
    else if (c->async) r = fault(c, ncclInvalidUsage, "%s: the communicator has failed", kind_name[kind]);
    else if (!(r = usable())) {
        /* the default stream: of the device that is current now, not when the group ends */
        if (emu_stream_check(&stream, &device)) device = -1;
        if (device != c->device)
            r = fault(c, ncclInvalidUsage, "%s: the stream is not of device %d", kind_name[kind], c->device);
    }
    if (!r && count) {
        signature s = {kind, (int32_t)type, red, root, count};
        sub       o = {.sig = s, .in = in, .out = out};
        if ((bytes_in(c, &s) && kind != RECV && !in) || (bytes_out(c, &s) && kind != SEND && !out))
            r = fault(c, ncclInvalidArgument, "%s: a pointer is NULL", kind_name[kind]);
        else if (depth) {
            pending *p = group_add();
            p->c = c;
            p->o = o;
            p->stream = stream;
        } else {
            pending p = {.c = c, .o = o, .stream = stream};
            r = issue(&p, 1);
        }
    }
    if (r && depth) group_error = r;
    emu_unlock();
    return r;
}
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t red, ncclComm_t c,
                           cudaStream_t stream)
{
    return call(ALL_REDUCE, in, out, count, type, (int)red, 0, c, stream);
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream)
{
    return call(BROADCAST, in, out, count, type, 0, root, c, stream);
}
ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t stream)
{
    return call(BROADCAST, buffer, buffer, count, type, 0, root, c, stream);
}
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t red, int root,
                        ncclComm_t c, cudaStream_t stream)
{
    return call(REDUCE, in, out, count, type, (int)red, root, c, stream);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t red,
                               ncclComm_t c, cudaStream_t stream)
{
    return call(REDUCE_SCATTER, in, out, count, type, (int)red, 0, c, stream);
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream)
{
    return call(ALL_GATHER, in, out, count, type, 0, 0, c, stream);
}
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    return call(SEND, in, NULL, count, type, 0, peer, c, stream);
}
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    return call(RECV, NULL, out, count, type, 0, peer, c, stream);
}
