/* dt_sim.h - v0.2.0 - a thousand ranks in one process and in virtual time, with deaths and pauses from a seed */
/*
DO THIS

    In one C or C++ file of your program:       #define DT_IMPLEMENTATION
                                                #include "dt_sim.h"
    In every other file that uses it:           #include "dt_sim.h"

    Link with -lpthread -lm. dt_comm.h and the headers that it includes must lie beside it.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_sim.h"
    #include <stdio.h>

    int main(void)
    {
        enum { N = 64 };
        float    x[N];
        dt_work *work[N];
        int      bad = 0;
        dt_sim  *s = dt_sim_new(.world = N, .seed = 7);
        for (int i = 0; i < N; i++) {
            x[i] = 1;
            work[i] = dt_comm_allreduce_start(dt_sim_comm(s, i), &x[i], 1, DT_COMM_F32, DT_COMM_SUM);
        }
        for (int i = 0; i < N; i++) bad |= dt_work_wait(work[i]) || (int)x[i] != N;
        printf("%d ranks, %g s of virtual time\n", N, dt_sim_now(s));
        dt_sim_free(s);
        return bad;
    }

WHAT IT DOES NOT DO

    It does not predict times: messages take random times. dt_plan_predict in dt_plan.h predicts how long a plan takes.

CONTENTS

    >>simulating     the simulator, its events and its time
    >>simulator      implementation from here: the engine in virtual time

MACROS

    DT_SIM_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION

ERRORS

    As in dt_comm.h. dt_comm_error(NULL) says why dt_sim_new returned NULL or another call of this header failed.

THREADS

    A simulator and its communicators are used by one thread, and by the programs of its ranks (dt_sim_start), each of which
    has a thread of its own. One of them runs at a time.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_SIM_IMPLEMENTATION)
#define DT_SIM_IMPLEMENTATION
#endif
#include "dt_comm.h"

#ifndef DT_SIM_H_INCLUDED
#define DT_SIM_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_sim.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>simulating
   Ranks in virtual time, all in one process. The engine, the checks of every frame and the control tree are the code that
   runs on sockets, with real data; the simulator carries their messages. A message takes a random time. Messages on
   different links can overtake each other; on one link they stay in order. Ranks can be paused and killed. The same seed
   gives the same run, event for event. Times are in seconds of virtual time, from 0 on.

   The calls on a rank's communicator are those of >>collectives and >>work in dt_comm.h. Events happen only in dt_sim_run
   and in calls that wait, such as dt_work_wait. So start a call on every rank, then wait for each. Or give each rank a program
   (dt_sim_start), as it has in a process of its own: it waits in its calls, makes communicators of its first one
   (dt_comm_shrink, dt_comm_split, dt_comm_dup) and frees them. So whole trainings run in the simulator:
   dt_elastic_new(.base = c). */
typedef struct dt_sim dt_sim; /* ranks in virtual time */
typedef struct dt_sim_opts {
    int         dt__first DT_D;
    int         world DT_D;   /* 1..4096 */
    const int  *host DT_D;    /* the machine of each rank; NULL: one machine */
    uint64_t    seed DT_D;
    double      timeout DT_D; /* seconds, of the communicators; default 30 */
    double      delay DT_D;   /* seconds: the longest time of a message; default 1e-3 */
    int         window DT_D;  /* messages on a link before a send blocks; negative: every send blocks; 0: random */
    const char *algo DT_D;    /* as in dt_comm_opts; default: by cost */
    bool        tolerant DT_D; /* as in dt_comm_opts */
    int         room DT_D;    /* as in dt_comm_opts: for dt_sim_join */
} dt_sim_opts;
DT_API dt_sim  *dt_sim_new_with(dt_sim_opts o DT_OPT0(dt_sim_opts)); /* NULL on error: see dt_comm_error(NULL) */
#ifdef DT__LIT
#define dt_sim_new(...) dt_sim_new_with(DT__LIT(dt_sim_opts){ .dt__first = 0, __VA_ARGS__ })
#else /* C++17: options as a struct, or none */
#define dt_sim_new dt_sim_new_with
#endif
DT_API void     dt_sim_free(dt_sim *s); /* every work must have been waited for */
DT_API dt_comm *dt_sim_comm(dt_sim *s, int rank); /* owned by the simulator: only a program may free or split it. NULL: it has
                                                     not joined, or its program has freed it */
/* Runs fn at time `when` on a rank, unless it is dead; if the rank is paused then, when it continues. fn may start calls,
   but must not wait. */
DT_API int      dt_sim_at(dt_sim *s, int rank, double when, void (*fn)(dt_comm *c, void *user), void *user);
/* Runs fn at time `when` on a rank, once in its life, on a thread of its own: the program of this rank. It may wait, in all
   calls of its communicator and of those that it makes of it, and it may free that communicator, too: then the rank leaves. One
   thread runs at a time: the turn passes when a program waits, so the same seed gives the same run. When the rank is killed all
   its calls fail, and fn must return; until then it may seem to go on (dt_sim_dead). Newcomers: call it in the fn of
   dt_sim_join. */
DT_API int      dt_sim_start(dt_sim *s, int rank, double when, void (*fn)(dt_comm *c, void *user), void *user);
DT_API bool     dt_sim_dead(const dt_sim *s, int rank); /* it was killed, or is about to be */
DT_API int      dt_sim_pause(dt_sim *s, int rank, double when, double seconds); /* it does nothing and sends nothing */
DT_API int      dt_sim_kill(dt_sim *s, int rank, double when); /* its works end with DT_COMM_ERR_PEER */
/* It dies before it sends frame number n of its messages from now on (1: the next one). A message is one frame or several: a large one is
   offered, granted and sent in pieces. dt_sim_frames: how many it has sent so far. */
DT_API int      dt_sim_kill_before(dt_sim *s, int rank, int64_t n);
DT_API int64_t  dt_sim_frames(const dt_sim *s, int rank);
/* The same for packets of any kind: those of collectives and messages of all its communicators, and control frames. With fn the
   rank does not die: fn is called as in dt_sim_at, for example to let another one join at this moment. Several may be set. */
DT_API int      dt_sim_before(dt_sim *s, int rank, int64_t n, void (*fn)(dt_comm *c, void *user), void *user);
DT_API int64_t  dt_sim_sent(const dt_sim *s, int rank); /* packets so far */
/* At time `when` another rank wants to join, after a dt_comm_accept of the lowest living rank; on the machine of rank 0. When it
   has joined, fn is called as in dt_sim_at. If it is refused, nothing happens. name may be NULL. */
DT_API int      dt_sim_join(dt_sim *s, double when, const char *name, int64_t incarnation, void (*fn)(dt_comm *c, void *user), void *user);
/* Runs until all calls and programs have ended and all control messages are delivered, at most until time `until`. Returns how
   many ranks are still in a call or in their program; negative: out of memory. */
DT_API int      dt_sim_run(dt_sim *s, double until);
DT_API double   dt_sim_now(const dt_sim *s);
DT_API uint64_t dt_sim_hash(const dt_sim *s, int64_t *events); /* a hash of all events so far, and their number */

#ifdef __cplusplus
}
#endif
#endif /* DT_SIM_H_INCLUDED */


#if defined(DT_SIM_IMPLEMENTATION) && !defined(DT__SIM_IMPLEMENTED)
#define DT__SIM_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__COMM_IMPLEMENTED)
#error "dt_sim.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_SIM_IMPLEMENTATION"
#endif
#include <errno.h>
#include <semaphore.h>
#include <sys/eventfd.h>

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(SIM);
DT__NEEDS(SIM, COMM);
DT__NEEDS(SIM, MSG);
DT__NEEDS(SIM, NET);
DT__NEEDS(SIM, PLAN);

DT__SLOW_BEGIN
/* ==================================================================================================== >>simulator
   Everything runs on the thread that calls dt_sim_run or waits for a work; there are no locks. Every rank has a world, a
   control state and a communicator as a process has, but no sockets. Times are in nanoseconds.

   A program has a thread. dt__sim_turn gives it the turn and waits until it is back (back); dt__sim_rest, in which all waits of the program end up, gives it back and waits (go). So one thread runs at a time, and virtual time passes in events
   only. A waiting program gets the turn when its time is over (WAKE), when a communicator that it drives should poll, or when
   something happened in its control (listens). What a killed rank sends is dropped; its communicators have failed, so its
   program ends by itself.

   A link is one direction between two ranks in one communicator. Those that are freed stay, closed, until the end.

   Events of all ranks are in one heap, ordered by time, then by number. A packet is a message in transit on a link. A
   pipe is one direction of a control connection; the two pipes of a connection are neighbours in their array, so that
   pipe ^ 1 is the other direction. A rank polls a moment after an arrival, so that several arrivals are one poll. */
enum { DT__SIM_WORLD = 4096, DT__SIM_FIRST = 1 }; /* the largest number of ranks; the id of the first communicator */
#define DT__SIM_GRACE (500 * DT__NS_PER_MS)   /* after the end of a link: its reason should come by the control tree first */
#define DT__SIM_BEGIN DT__NS_PER_S            /* virtual time begins at 1 s: a time of 0 means "never" in dt_net.h */
#define DT__SIM_MOST_SECONDS 1e9              /* limit of times in calls */
#define DT__SIM_SHAKE_NS DT__NS_PER_S         /* a connection must be accepted within this time */
#define DT__SIM_NOTE_NS (250 * DT__NS_PER_MS) /* the first periodic note of a rank is sent within this time */
enum { /* events */
    DT__SIM_LOOK = 1, /* a rank polls its engine */
    DT__SIM_ARRIVE,   /* a packet, or room on a link, has arrived at a rank */
    DT__SIM_LATE,     /* a rank polls to find out that it makes no progress */
    DT__SIM_TIMER,    /* a timer of a rank's control */
    DT__SIM_FRAME,    /* a frame has arrived at the end of a pipe */
    DT__SIM_WAKE,     /* a program has waited for as long as it wanted */
    DT__SIM_ORDER     /* dt_sim_at, dt_sim_pause, dt_sim_kill */
};
enum { /* frames in pipes */
    DT__SIM_SAID = 1, /* a control message */
    DT__SIM_HELLO,    /* opens a connection */
    DT__SIM_WELCOME,  /* accepts it */
    DT__SIM_REFUSED,  /* refuses it */
    DT__SIM_END       /* closes it */
};
enum { DT__SIM_CALL = 1, DT__SIM_PAUSE, DT__SIM_KILL, DT__SIM_JOIN, DT__SIM_START }; /* orders */
typedef struct dt__sim_event {
    int64_t  at, first; /* when it happens; when it would have happened if its rank had not been paused */
    uint64_t no;
    int32_t  kind, who; /* who: a rank, a pipe or an order, by kind */
} dt__sim_event;
typedef struct dt__sim_order {
    int     kind, rank;
    int64_t length, before; /* ns of a pause; 0, or it happens before the rank sends packet number `before` */
    void  (*fn)(dt_comm *c, void *user);
    void   *user;
    dt__member row;  /* of a rank that joins */
} dt__sim_order;
typedef struct dt__sim_packet { /* the payload follows the struct */
    struct dt__sim_packet *next;
    int64_t                at;
    dt__frame              head; /* of a collective */
    dt__mhead              mail; /* of a message */
} dt__sim_packet;
typedef struct dt__sim_link { /* from one rank to another in a communicator */
    struct dt__sim_link *next;  /* the same ranks in another communicator */
    uint64_t        comm;
    dt__sim_packet *first, *last;
    int64_t         last_at;    /* arrival of the last packet: later ones do not overtake it */
    int             put, taken; /* packets sent and received so far */
    bool            waiting;    /* the sender waits for room */
    bool            closed;     /* the receiver has freed its communicator */
    int64_t         ended;      /* ns: when the receiver sees that the sender has freed its communicator or died; 0: never */
} dt__sim_link;
typedef struct dt__sim_frame {
    struct dt__sim_frame *next;
    int                   kind, value; /* value: of HELLO the kind of connection; of REFUSED the status, 0: the rank is dead */
    dt__block            *b;
} dt__sim_frame;
typedef struct dt__sim_pipe {
    int            rank; /* the receiving rank */
    dt__conn      *conn; /* the receiver's connection; NULL: closed, or not yet accepted */
    dt__sim_frame *first, *last;
    int64_t        last_at;
    int            order; /* to a rank that joins: the order + 1. Its number is DT__SIM_NOBODY until rank 0 has given it one */
} dt__sim_pipe;
typedef struct dt__sim_rank {
    dt__world world;
    dt_comm  *comm;                    /* the first one, which its program may have freed: dt__sim_first. NULL: it has not joined */
    dt__cwelcome hello;                /* while it joins: dt__welcome_take */
    uint8_t     *gone;
    int          have, owner;          /* owner: dt__sim_pipe.order */
    int64_t   until, timer;            /* it is paused until; when the next timer of its control expires */
    bool      born, dead, left;        /* it has joined; it was killed or has left; it has left */
    bool      doomed;                  /* it is about to be killed: it only seems to send */
    int64_t   frames, doom;            /* frames of messages that it has sent; it dies before this one, 0: it does not */
    int64_t   sent;                    /* packets of any kind that it has sent */
    int       awaited;                 /* orders that happen before one of them */
    bool      looking;                 /* an event LOOK is in the heap */
    int64_t   late;                    /* when the next event LATE happens; 0: there is none. Others in the heap do nothing */
    bool      stir;                    /* its control has something to send or to close */
    bool      busy;                    /* it is in a call */
    bool      called;                  /* the thread that waits in a call of this rank should poll */
    /* its program: dt_sim_start */
    pthread_t thread;
    sem_t     go;                      /* the turn is the program's */
    void    (*fn)(dt_comm *c, void *user);
    void     *user;
    bool      runs, waits;             /* its thread exists; it waits for its turn */
    bool      listens;                 /* it waits for its control */
    bool      ended;                   /* fn has returned */
    int64_t   wake;                    /* ns: when its wait ends at the latest */
} dt__sim_rank;
struct dt_sim {
    int            n, window;            /* n: with those that may join; rank[n] is nobody */
    dt_sim_opts    opts;
    int64_t        now, delay;
    uint64_t       random, hash, nevents, no;
    dt__sim_event *heap;
    int64_t        nheap, heap_cap;
    dt__sim_rank  *rank;
    dt__member    *member;
    int            nhosts;
    dt__sim_link **link; /* [to * n + from]; behind them the lanes of messages; NULL until it is used */
    dt__sim_pipe  *pipe;
    int            npipes, pipe_cap;
    dt__sim_order *order;
    int            norders, order_cap;
    int            orders, frames, busy; /* orders to come; frames in pipes; ranks in calls */
    int            programs;             /* that have not ended */
    sem_t          back;                 /* the turn is that of the thread that processes the events */
    bool           running;              /* events are being processed */
    bool           over;                 /* it is being freed */
    bool           memory;               /* memory is exhausted */
};

static __thread dt__sim_rank *dt__sim_self; /* the rank whose program runs on this thread; NULL: it is no program */

static dt_comm *dt__sim_first(const dt__sim_rank *r) /* its first communicator; NULL: it has not joined, or has freed it */
{
    dt_comm *c = r->world.comms;
    while (c && c != r->comm) c = c->next;
    return c;
}
static uint64_t dt__sim_draw(dt_sim *s)
{
    s->random += UINT64_C(0x9e3779b97f4a7c15);
    return dt__id_mix(s->random, 0) >> 1;
}
static int64_t dt__sim_some(dt_sim *s, int64_t most) /* 1 .. most ns, mostly short */
{
    double u = (double)(dt__sim_draw(s) >> 10) * 0x1p-53;
    return 1 + (int64_t)((double)most * u * u * u);
}
static void dt__sim_mix(dt_sim *s, uint64_t x) { s->hash = dt__id_mix(s->hash ^ x, x); }
static bool dt__sim_grow(dt_sim *s, void **p, int64_t *cap, int64_t n, size_t size) /* makes room for element n */
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
    return a->first != b->first ? a->first < b->first : a->no < b->no; /* what was delayed longest comes first */
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
    if (s->rank[rank].looking || s->rank[rank].dead || !s->rank[rank].born) return;
    s->rank[rank].looking = true;
    dt__sim_push(s, at, DT__SIM_LOOK, rank);
}
static void dt__sim_stir(dt__world *w)
{
    dt__sim_rank *r = &((dt_sim *)w->sim)->rank[w->rank];
    r->stir = true;
    dt__sim_wake((dt_sim *)w->sim, w->rank, ((dt_sim *)w->sim)->now);
}

/* ---- the transport */
/* Peers are ranks of c; links connect ranks of the world. */
static dt__sim_link **dt__sim_link_at(const dt_comm *c, int from, int to, bool mail)
{
    dt_sim        *s = (dt_sim *)c->world->sim;
    size_t         n = (size_t)s->n;
    dt__sim_link **l = &s->link[(mail ? n * n : 0) + (size_t)c->member[to] * n + (size_t)c->member[from]];
    while (*l && (*l)->comm != c->id) l = &(*l)->next;
    return l;
}
static dt__sim_link *dt__sim_link_of(const dt_comm *c, int from, int to, bool mail)
{
    dt__sim_link **l = dt__sim_link_at(c, from, to, mail);
    if (!*l && (*l = (dt__sim_link *)dt__comm_zeroed(1, sizeof **l)) != NULL) (*l)->comm = c->id;
    return *l;
}
/* A rank is about to send something: orders that happen before it. False: it sends no more. */
static bool dt__sim_sends(dt_sim *s, int rank)
{
    dt__sim_rank *r = &s->rank[rank];
    r->sent++;
    for (int i = 0; r->awaited && i < s->norders; i++) {
        if (s->order[i].rank != rank || s->order[i].before != r->sent) continue;
        r->awaited--;
        s->orders++;
        r->doomed = r->doomed || s->order[i].kind == DT__SIM_KILL;
        dt__sim_push(s, s->now, DT__SIM_ORDER, i);
    }
    return !r->doomed && !r->dead;
}
static int dt__sim_put(dt_comm *c, dt__sim_link *l, int peer, const dt__frame *head, const dt__mhead *mail, const void *ptr, size_t n)
{
    dt_sim         *s = (dt_sim *)c->world->sim;
    dt__sim_packet *p = l ? (dt__sim_packet *)DT_COMM_MALLOC(sizeof *p + n) : NULL;
    if (!p) return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: the simulator is out of memory", c->rank);
    p->next = NULL;
    if (head) p->head = *head;
    if (mail) p->mail = *mail;
    if (!dt__sim_sends(s, c->world->rank) || l->closed) {
        DT_COMM_FREE(p);
        l->put++;
        return 0;
    }
    p->at = s->now + dt__sim_some(s, s->delay);
    if (p->at < l->last_at) p->at = l->last_at;
    l->last_at = p->at;
    if (n) memcpy(p + 1, ptr, n);
    if (l->last) l->last->next = p;
    else l->first = p;
    l->last = p;
    l->put++;
    dt__sim_push(s, p->at, DT__SIM_ARRIVE, c->member[peer]);
    return 0;
}
static int dt__sim_send(dt_comm *c, int peer, dt__msg *m)
{
    dt_sim       *s = (dt_sim *)c->world->sim;
    dt__sim_link *l = dt__sim_link_of(c, c->rank, peer, false);
    if (!dt__comm_ok(c)) return c->status;
    if (s->rank[c->world->rank].until > s->now) return 0; /* paused: only its caller polls it */
    if (!m->state) {
        int rc = dt__sim_put(c, l, peer, &m->head, NULL, m->ptr, m->n);
        if (rc) return rc;
        m->state = l->put;
        m->head_done = sizeof m->head;
        m->done = m->n;
    }
    if (l->closed || m->state - l->taken <= s->window) return 1;
    l->waiting = true;
    return 0;
}
static void dt__sim_taken(dt_sim *s, dt__sim_link *l, int peer, int rank) /* the first packet of a link was received */
{
    dt__sim_packet *p = l->first;
    dt__sim_mix(s, (uint64_t)peer << 32 | (uint64_t)rank);
    l->first = p->next;
    if (!l->first) l->last = NULL;
    l->taken++;
    DT_COMM_FREE(p);
    if (l->waiting) dt__sim_push(s, s->now + dt__sim_some(s, s->delay), DT__SIM_ARRIVE, peer);
    l->waiting = false;
}
static int dt__sim_recv(dt_comm *c, int peer, dt__msg *m)
{
    dt_sim         *s = (dt_sim *)c->world->sim;
    dt__sim_link   *l = *dt__sim_link_at(c, peer, c->rank, false);
    dt__sim_packet *p = l ? l->first : NULL;
    if (!dt__comm_ok(c)) return c->status;
    if (s->rank[c->world->rank].until > s->now) return 0;
    if (!p && l && l->ended && l->ended <= s->now)
        return dt__transport_fail(c, DT_COMM_ERR_PEER, peer,
                                  "rank %d is gone: its connection to rank %d was closed in an operation", peer, c->rank);
    if (!p || p->at > s->now) return 0;
    if (!dt__frame_ok(c, peer, &m->head, &p->head)) return c->status;
    if (m->fold) dt__fold(m->dtype, m->op, m->ptr, p + 1, (int64_t)(m->n / dt__elem_nbytes(m->dtype)), m->left);
    else if (m->n) memcpy(m->ptr, p + 1, m->n);
    m->head_done = sizeof m->head;
    m->done = m->n;
    dt__sim_taken(s, l, c->member[peer], c->world->rank);
    return 1;
}
/* ---- the lane of messages: small sizes, so that tests meet large messages */
static int dt__sim_order_add(dt_sim *s, int kind, int rank, double when, double seconds, void (*fn)(dt_comm *c, void *user), void *user);
enum { DT__SIM_EAGER = 256, DT__SIM_CHUNK = 512 };
static int dt__sim_lane_put(dt_comm *c, int peer, dt__outgoing *o)
{
    dt_sim       *s = (dt_sim *)c->world->sim;
    dt__sim_link *l = dt__sim_link_of(c, c->rank, peer, true);
    if (!dt__comm_ok(c)) return c->status;
    if (s->rank[c->world->rank].until > s->now) return 0;
    if (l && !l->closed && l->put - l->taken > s->window) {
        l->waiting = true;
        return 0;
    }
    dt__sim_rank *r = &s->rank[c->world->rank];
    if (r->doom && r->frames + 1 >= r->doom) { /* it ends now; until that event it only seems to send */
        if (r->frames + 1 == r->doom) dt__sim_order_add(s, DT__SIM_KILL, c->world->rank, dt_sim_now(s), 0, NULL, NULL);
        r->frames = r->doom;
        o->done = sizeof o->head + o->n;
        return 1;
    }
    r->frames++;
    int rc = dt__sim_put(c, l, peer, NULL, &o->head, o->ptr, o->n);
    o->done = sizeof o->head + o->n;
    return rc ? rc : 1;
}
static void dt__sim_lane_poll(dt_comm *c)
{
    dt_sim *s = (dt_sim *)c->world->sim;
    if (s->rank[c->world->rank].until > s->now) return;
    for (int peer = 0; peer < dt__comm_room(c); peer++) {
        dt__sim_link *l = *dt__sim_link_at(c, peer, c->rank, true);
        while (l && l->first && l->first->at <= s->now && dt__comm_ok(c)) {
            dt__sim_packet *p = l->first;
            dt__mhead       h = p->mail;
            if (((const dt__mail *)c->mail)->peer[peer].over) { /* too late: nobody waits for it */
                dt__sim_taken(s, l, c->member[peer], c->world->rank);
                continue;
            }
            char *to = dt__mail_want(c, peer, &h);
            if (!to) return;
            dt__comm_copy(to, p + 1, dt__mhead_payload(&h));
            dt__sim_taken(s, l, c->member[peer], c->world->rank);
            dt__mail_came(c, peer, &h);
        }
    }
}
static bool dt__sim_lane_ended(dt_comm *c, int peer)
{
    const dt__sim_link *l = *dt__sim_link_at(c, peer, c->rank, true);
    return !l || !l->first;
}
static const dt__lane dt__lane_sim = { "sim", DT__SIM_EAGER, DT__SIM_CHUNK, false, NULL, dt__sim_lane_put, dt__sim_lane_poll,
                                       NULL, NULL, NULL, dt__sim_lane_ended, NULL, NULL };
__attribute__((constructor)) static void dt__sim_register(void) { dt__lane_register(&dt__lane_sim); }
static void dt__sim_events(dt_sim *s, int64_t until, int rank);
/* The program gives the turn back, until somebody calls or for ns of virtual time. */
static void dt__sim_rest(dt_sim *s, dt__sim_rank *r, int64_t ns)
{
    r->wake = s->now + (ns > 0 ? ns : 1);
    r->waits = true;
    dt__sim_push(s, r->wake, DT__SIM_WAKE, r->world.rank);
    sem_post(&s->back);
    while (sem_wait(&r->go) && errno == EINTR) {}
}
static void dt__sim_pause_program(int64_t ns) { dt__sim_rest((dt_sim *)dt__sim_self->world.sim, dt__sim_self, ns); }
static void dt__sim_wait(dt_comm *c, double seconds) /* a blocking call runs the simulator meanwhile */
{
    dt_sim *s = (dt_sim *)c->world->sim;
    if (dt__sim_self && !s->memory) dt__sim_rest(s, dt__sim_self, (int64_t)(seconds * DT__NS_PER_S));
    else if (s->memory) dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: the simulator is out of memory", c->rank);
    else if (s->running)
        dt__comm_fail(c, DT_COMM_ERR_STATE, c->rank,
                      "rank %d: a function of dt_sim_at waits; it may only start calls: wait outside of it", c->rank);
    else dt__sim_events(s, s->now + (int64_t)(seconds * DT__NS_PER_S), c->world->rank);
}
/* As at the end of a TCP connection: what is on its way arrives; a moment later the receiver knows that nothing more comes. */
static void dt__sim_link_end(dt_sim *s, dt__sim_link *l, int to)
{
    if (l->ended) return;
    l->ended = (l->last_at > s->now ? l->last_at : s->now) + DT__SIM_GRACE;
    dt__sim_push(s, l->ended, DT__SIM_ARRIVE, to);
}
static void dt__sim_close(dt_comm *c) /* nobody takes packets for it any more: its peers do not wait for that */
{
    dt_sim *s = (dt_sim *)c->world->sim;
    for (int k = 0; k < 2 * c->size && !s->over; k++) {
        dt__sim_link *l = k / 2 == c->rank ? NULL : dt__sim_link_of(c, k / 2, c->rank, k & 1);
        if (!l) continue;
        l->closed = true;
        while (l->first) dt__sim_taken(s, l, c->member[k / 2], c->world->rank);
        if (l->waiting) dt__sim_push(s, s->now + dt__sim_some(s, s->delay), DT__SIM_ARRIVE, c->member[k / 2]);
        l->waiting = false;
        if (!(k & 1) && (l = dt__sim_link_of(c, c->rank, k / 2, false)) != NULL) dt__sim_link_end(s, l, c->member[k / 2]);
    }
}
static const dt__transport dt__transport_sim = {
    "sim", DT__REACH_ALL, false, false, NULL, dt__sim_send, dt__sim_recv, NULL, dt__sim_wait, dt__sim_close,
    NULL, NULL, NULL, NULL, NULL, NULL
};

/* ---- control connections */
static int dt__sim_pipes(dt_sim *s, int from, int to) /* returns the pipe to `from`; the next one leads to `to` */
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
static void dt__sim_say(dt_sim *s, int pipe, int kind, int value, dt__block *b) /* takes over the reference to b */
{
    dt__sim_pipe  *p = &s->pipe[pipe];
    bool           goes = kind == DT__SIM_END || kind == DT__SIM_REFUSED || dt__sim_sends(s, s->pipe[pipe ^ 1].rank);
    dt__sim_frame *f = goes ? (dt__sim_frame *)dt__comm_zeroed(1, sizeof *f) : NULL;
    if (!f) {
        s->memory = s->memory || goes;
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
        ((dt_sim *)w->sim)->memory = true;
        return NULL;
    }
    k->local = true; /* no socket options to set */
    k->slot = pipe;
    ((dt_sim *)w->sim)->pipe[pipe].conn = k;
    return k;
}
static dt__conn *dt__sim_dial(dt__world *w, int peer, int kind, dt__block *later)
{
    int       pipe = dt__sim_pipes((dt_sim *)w->sim, w->rank, peer);
    dt__conn *k = dt__sim_conn(w, kind, peer, pipe);
    if (!k) return NULL;
    k->state = DT__CONN_HANDSHAKE;
    k->deadline = k->since + DT__SIM_SHAKE_NS;
    if (later) later->refs++;
    k->later = later;
    dt__sim_say((dt_sim *)w->sim, pipe + 1, DT__SIM_HELLO, kind, NULL);
    return k;
}
static void dt__sim_accept(dt__world *w, int pipe, int kind)
{
    dt_sim   *s = (dt_sim *)w->sim;
    char      text[184];
    dt__conn *k = dt__sim_conn(w, 0, -1, pipe);
    if (!k) return;
    k->shake.server = true;
    k->shake.c.version = DT__SHAKE_VERSION;
    k->shake.c.epoch = w->epoch;
    k->shake.c.world = w->start;
    k->shake.c.zero = w->room > w->start ? w->room : 0;
    k->shake.c.rank = s->pipe[pipe ^ 1].rank;
    k->shake.c.to = w->rank;
    k->shake.c.kind = kind;
    if (kind == DT__KIND_TREE && k->shake.c.rank >= w->start)
        k->shake.c.comm = dt__row_id(&s->rank[k->shake.c.rank].world.member[k->shake.c.rank]);
    int status = dt__control_admit(w, k, text, sizeof text);
    if (status) {
        dt__sim_say(s, pipe ^ 1, DT__SIM_REFUSED, status,
                    dt__block_new(DT__C_REFUSED, w->rank, text, strlen(text) + 1, NULL, 0));
        dt__conn_break(k);
        return;
    }
    k->kind = kind;
    k->peer = k->shake.c.rank;
    dt__conn_established(w, k);
    dt__sim_say(s, pipe ^ 1, DT__SIM_WELCOME, 0, NULL);
}
static void dt__sim_hear(dt__world *w, dt__conn *k, const dt__block *b)
{
    const dt__chead *h = (const dt__chead *)(const void *)(b + 1);
    if (h->nbytes > k->body_cap) {
        uint8_t *body = (uint8_t *)DT_COMM_REALLOC(k->body, h->nbytes);
        if (!body) {
            ((dt_sim *)w->sim)->memory = true;
            return;
        }
        k->body = body;
        k->body_cap = h->nbytes;
    }
    k->head = *h;
    if (h->nbytes) memcpy(k->body, h + 1, h->nbytes);
    if (!dt__control_frame(w, k)) dt__conn_lost(w, k, "it sent a broken frame");
}
/* A rank wants to join: the head gets its row. */
static void dt__sim_accept_join(dt__world *w, int pipe, const dt__block *row)
{
    dt_sim   *s = (dt_sim *)w->sim;
    char      text[184];
    dt__conn *k = dt__sim_conn(w, DT__KIND_JOIN, -1, pipe);
    if (!k) return;
    k->shake.server = true;
    k->shake.c.version = DT__SHAKE_VERSION;
    k->shake.c.kind = DT__KIND_JOIN;
    if (dt__control_admit(w, k, text, sizeof text)) {
        dt__conn_break(k);
        return;
    }
    dt__conn_established(w, k);
    dt__sim_hear(w, k, row);
    if (k->peer >= 0) s->pipe[pipe ^ 1].rank = k->peer;
}
static bool dt__sim_rank_new(dt_sim *s, int i, const uint8_t *gone);
/* Frames to a rank that joins: when the table is complete, it begins. */
static void dt__sim_birth(dt_sim *s, int pipe, const dt__sim_frame *f)
{
    dt__sim_pipe  *p = &s->pipe[pipe];
    dt__sim_rank  *r = &s->rank[p->rank];
    int            rank = p->rank;
    if (rank == s->n || f->kind != DT__SIM_SAID || r->have < 0) return;
    const dt__chead *h = (const dt__chead *)(const void *)(f->b + 1);
    if (p->order < r->owner) return;
    if (p->order > r->owner) { /* the head died while another one joined there under this number: that one is lost */
        DT_COMM_FREE(r->gone);
        r->gone = NULL;
        r->have = 0;
        r->owner = p->order;
    }
    if (!r->world.client) r->world.client = s->rank[0].world.client;
    int got = dt__welcome_take(&r->world, h, dt__block_body(f->b), &r->hello, &r->gone, &r->have);
    if (got == 0) return;
    if (got < 0 || !dt__sim_rank_new(s, rank, r->gone)) {
        s->memory = true;
        return;
    }
    r->comm->round = r->hello.round;
    dt__conn *k = dt__sim_conn(&r->world, DT__KIND_TREE, h->rank, pipe);
    if (!k) return;
    k->state = DT__CONN_READY;
    r->world.control->parent = k;
    const dt__sim_order *o = &s->order[p->order - 1];
    if (o->fn) o->fn(r->comm, o->user);
    dt__sim_wake(s, rank, s->now);
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
    } else if (!r->born) {
        if (f->kind == DT__SIM_HELLO) dt__sim_say(s, pipe ^ 1, DT__SIM_REFUSED, DT_COMM_ERR_JOIN, NULL); /* not yet */
        else dt__sim_birth(s, pipe, f);
    } else if (f->kind == DT__SIM_HELLO && f->b) dt__sim_accept_join(&r->world, pipe, f->b);
    else if (f->kind == DT__SIM_HELLO) dt__sim_accept(&r->world, pipe, f->value);
    else if (k && f->kind == DT__SIM_SAID) dt__sim_hear(&r->world, k, f->b);
    else if (k && f->kind == DT__SIM_WELCOME) dt__conn_established(&r->world, k);
    else if (k && k->state == DT__CONN_HANDSHAKE) {
        dt__conn_break(k);
        k->refused = f->kind == DT__SIM_REFUSED && !f->value;
        if (f->kind == DT__SIM_REFUSED && f->value == DT_COMM_ERR_PEER && f->b && k->kind == DT__KIND_TREE)
            dt__control_expelled(&r->world, (const char *)dt__block_body(f->b));
    } else if (k) dt__conn_lost(&r->world, k, "its connection ended");
    dt__block_unref(f->b);
    DT_COMM_FREE(f);
}
/* Sends what a rank's control has queued, closes broken connections, and sets the next timer. */
static void dt__sim_settle(dt_sim *s, dt__sim_rank *r)
{
    dt__control *ctl = r->world.control;
    for (bool more = true; more;) {
        more = false;
        for (dt__conn *k = ctl->conns; k; k = k->next) {
            while (k->out && dt__conn_last_state(k) != DT__CONN_HANDSHAKE) {
                dt__queued *q = k->out;
                k->out = q->next;
                if (!k->out) k->last = NULL;
                if (k->slot >= 0) dt__sim_say(s, k->slot ^ 1, DT__SIM_SAID, 0, q->b);
                else dt__block_unref(q->b);
                DT_COMM_FREE(q);
            }
            if (k->state == DT__CONN_CLOSING) dt__conn_break(k);
            if (k->state != DT__CONN_BROKEN || k->slot < 0) continue;
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
/* Is the rank in a call? Receives without a deadline, and handlers, do not count. */
static bool dt__sim_comm_in_call(const dt_comm *c)
{
    const dt__mail *m = (const dt__mail *)c->mail;
    bool timed = m && (m->nqueue || m->fresh.next != &m->fresh || m->dated.next != &m->dated || m->own.next != &m->own);
    return c->engine->head || (m && (m->npending || m->dirty)) || timed;
}
static bool dt__sim_in_call(const dt__sim_rank *r)
{
    const dt_comm *c = r->world.comms;
    while (c && !dt__sim_comm_in_call(c)) c = c->next;
    return c != NULL;
}
/* After anything that happened on a rank: its control messages go out, and an event is set for when it would be late. */
static void dt__sim_after(dt_sim *s, dt__sim_rank *r)
{
    bool    busy = !r->dead && dt__sim_in_call(r);
    int64_t at = INT64_MAX;
    if (!r->born) return;
    if (r->stir && !r->dead) dt__sim_settle(s, r);
    r->stir = false;
    s->busy += (int)busy - (int)r->busy;
    r->busy = busy;
    if (r->dead) return;
    for (dt_comm *c = r->world.comms; c; c = c->next) {
        const dt__coll_work *w = c->engine->head;
        int64_t              next = c->mail ? dt__mail_next(c) : INT64_MAX;
        if (next < at) at = next;
        if (!w) continue;
        int64_t late = (int64_t)((c->timeout + (w->asked ? DT__ASK_SECONDS : 0)) * DT__NS_PER_S); /* as in dt__stuck */
        if (!w->watched) late = dt__watch_after(c);
        if (w->moved + late < at) at = w->moved + late;
    }
    if (at == INT64_MAX || (r->late && r->late <= at + DT__NS_PER_US)) return;
    r->late = at + DT__NS_PER_US > s->now ? at + DT__NS_PER_US : s->now;
    dt__sim_push(s, r->late, DT__SIM_LATE, r->world.rank);
}
static void dt__sim_look(dt_sim *s, dt__sim_rank *r)
{
    for (dt_comm *c = r->world.comms; c; c = c->next)
        if (c->engine->drive) r->called = true;
        else if (c->mail) dt__engine_look(c);
    dt__sim_after(s, r);
}
/* The program's turn, until it waits or ends. Then what it has started on communicators that it does not wait for begins. */
static void dt__sim_turn(dt_sim *s, dt__sim_rank *r)
{
    r->waits = r->called = false;
    sem_post(&r->go);
    while (sem_wait(&s->back) && errno == EINTR) {}
    for (dt_comm *c = r->world.comms; c && !r->dead; c = c->next)
        if (!c->engine->drive && c->mail && dt__sim_comm_in_call(c)) dt__engine_look(c);
    r->stir = true;
    dt__sim_after(s, r);
}
static void *dt__sim_program(void *arg)
{
    dt__sim_rank *r = (dt__sim_rank *)arg;
    dt_sim       *s = (dt_sim *)r->world.sim;
    while (sem_wait(&r->go) && errno == EINTR) {}
    dt__sim_self = r;
    dt__net_clock = &s->now;
    dt__net_pause = dt__sim_pause_program;
    r->fn(r->comm, r->user);
    r->ended = true;
    s->programs--;
    sem_post(&s->back);
    return NULL;
}
static void dt__sim_die(dt_sim *s, dt__sim_rank *r)
{
    int  me = r->world.rank;
    char text[80];
    if (r->dead) return;
    r->dead = true;
    dt__sim_mix(s, (uint64_t)me);
    for (dt__conn *k = r->world.control->conns; k; k = k->next)
        if (k->slot >= 0) dt__sim_say(s, k->slot ^ 1, DT__SIM_END, 0, NULL);
    for (int k = 0; k < 2 * s->n; k++) { /* some of its last packets are lost */
        for (dt__sim_link *l = s->link[(size_t)k * (size_t)s->n + (size_t)me]; l; l = l->next) {
            if (dt__sim_draw(s) & 1) continue;
            dt__sim_packet **p = &l->first, *last = NULL;
            while (*p && ((*p)->at <= s->now || dt__sim_draw(s) & 1)) last = *p, p = &last->next;
            for (dt__sim_packet *q = *p, *next; q; q = next) {
                next = q->next;
                DT_COMM_FREE(q);
            }
            *p = NULL;
            l->last = last;
        }
        for (dt__sim_link *l = s->link[(size_t)k * (size_t)s->n + (size_t)me]; l && k < s->n; l = l->next)
            if (l->comm != DT__SIM_FIRST) dt__sim_link_end(s, l, k); /* the first one's collectives end with the news */
    }
    snprintf(text, sizeof text, "rank %d was killed in the simulator", me);
    r->world.control->expelled = true; /* its program ends with its next call */
    snprintf(r->world.control->first_death, sizeof r->world.control->first_death, "%s", text);
    for (dt_comm *c = r->world.comms; c; c = c->next) dt__comm_failed(c, DT_COMM_ERR_PEER, c->rank, text);
    dt__sim_look(s, r);
    r->called = true;
}
/* The program has freed the last communicator of its rank, which so leaves. */
static void dt__sim_leave(dt__world *w)
{
    dt_sim       *s = (dt_sim *)w->sim;
    dt__sim_rank *r = &s->rank[w->rank];
    if (r->dead) return;
    dt__sim_settle(s, r);
    for (dt__conn *k = w->control->conns; k; k = k->next)
        if (k->slot >= 0) dt__sim_say(s, k->slot ^ 1, DT__SIM_END, 0, NULL), s->pipe[k->slot].conn = NULL, k->slot = -1;
    r->dead = r->left = true;
    dt__sim_after(s, r);
}
static void dt__sim_control_wait(dt__world *w, int64_t until)
{
    dt_sim *s = (dt_sim *)w->sim;
    if (!dt__sim_self) return;
    dt__sim_self->listens = true;
    dt__sim_rest(s, dt__sim_self, until - s->now);
    dt__sim_self->listens = false;
}
static void dt__sim_begin(dt_sim *s, dt__sim_rank *r, const dt__sim_order *o)
{
    r->fn = o->fn;
    r->user = o->user;
    if (sem_init(&r->go, 0, 0) || pthread_create(&r->thread, NULL, dt__sim_program, r)) {
        s->memory = true;
        return;
    }
    r->runs = true;
    s->programs++;
    dt__sim_turn(s, r);
}
static void dt__sim_order_event(dt_sim *s, const dt__sim_order *o, int number)
{
    dt__sim_rank *r = &s->rank[o->rank];
    s->orders--;
    if (o->kind == DT__SIM_JOIN) {
        int        head = 0;
        while (head + 1 < s->n && s->rank[head].dead) head++;
        int        pipe = dt__sim_pipes(s, s->n, head);
        dt__block *b = pipe < 0 ? NULL : dt__block_new(DT__C_MEMBER, -1, &o->row, sizeof o->row, NULL, 0);
        if (!b) s->memory = true;
        if (b) s->pipe[pipe].order = number + 1, dt__sim_say(s, pipe + 1, DT__SIM_HELLO, DT__KIND_JOIN, b);
        return;
    }
    if (!r->born) return; /* it has not joined */
    if (o->kind == DT__SIM_KILL) dt__sim_die(s, r);
    else if (r->dead) return;
    else if (o->kind == DT__SIM_PAUSE) {
        if (s->now + o->length > r->until) r->until = s->now + o->length;
    } else if (o->kind == DT__SIM_START) {
        if (!r->runs && dt__sim_first(r)) dt__sim_begin(s, r, o);
    } else if (dt__sim_first(r)) {
        o->fn(r->comm, o->user);
        dt__sim_look(s, r);
    }
}
static int dt__sim_event_rank(const dt_sim *s, dt__sim_event e)
{
    return e.kind == DT__SIM_FRAME ? s->pipe[e.who].rank : e.kind == DT__SIM_ORDER ? s->order[e.who].rank : e.who;
}
static void dt__sim_event_do(dt_sim *s, dt__sim_event e)
{
    int           kind = e.kind == DT__SIM_ORDER ? s->order[e.who].kind : 0;
    int           rank = dt__sim_event_rank(s, e);
    dt__sim_rank *r = &s->rank[rank];
    s->now = e.at;
    s->nevents++;
    dt__sim_mix(s, (uint64_t)e.at);
    dt__sim_mix(s, (uint64_t)e.kind << 32 | (uint64_t)(uint32_t)e.who);
    if (r->until > s->now && !r->dead && kind != DT__SIM_KILL && kind != DT__SIM_PAUSE) {
        int64_t at = r->until + (e.kind != DT__SIM_FRAME); /* when it continues; control frames come first */
        dt__sim_push_since(s, at, e.first, e.kind, e.who); /* its calls stay in order, however often it is paused */
        if (e.kind == DT__SIM_TIMER) r->timer = at;
        return;
    }
    if (e.kind == DT__SIM_ORDER) {
        dt__sim_order o = s->order[e.who]; /* the array may grow meanwhile */
        dt__sim_order_event(s, &o, e.who);
    } else if (e.kind == DT__SIM_WAKE) r->called = r->called || (r->waits && e.first == r->wake);
    else if (e.kind == DT__SIM_FRAME) {
        dt__sim_frame_event(s, e.who);
        dt__sim_after(s, r);
        for (dt_comm *c = r->world.comms; c && r->born; c = c->next)
            if (c->mail && (!dt__comm_ok(c) || dt__mail_stale(c))) dt__sim_wake(s, rank, s->now);
    } else if (r->dead) return;
    else if (e.kind == DT__SIM_ARRIVE) dt__sim_wake(s, rank, s->now + dt__sim_some(s, s->delay / 2));
    else if (e.kind == DT__SIM_TIMER) {
        if (r->timer != e.at) return; /* it was replaced by another timer */
        r->timer = 0;
        r->stir = true;
        dt__control_timers(&r->world, s->now);
        dt__sim_after(s, r);
    } else {
        if (e.kind == DT__SIM_LOOK) r->looking = false;
        else if (r->late != e.first) return; /* an earlier one was set meanwhile */
        else r->late = 0;
        dt__sim_look(s, r);
    }
}
/* Is something left that will happen? */
static bool dt__sim_goes_on(const dt_sim *s) { return s->busy || s->orders || s->frames || s->programs; }
/* Processes events until time `until`; stops earlier when the caller that waits in `rank` should poll, or with rank -1 when
   no call, order or control frame is left. */
static void dt__sim_events(dt_sim *s, int64_t until, int rank)
{
    const int64_t *clock = dt__net_clock;
    dt__net_clock = &s->now;
    s->running = true;
    for (int i = 0; i < s->n; i++) { /* calls that were started or cancelled since the last time */
        dt__sim_rank *r = &s->rank[i];
        bool          busy = !r->dead && dt__sim_in_call(r);
        if (busy && !r->busy) dt__sim_wake(s, i, s->now + dt__sim_some(s, s->delay / 2));
        s->busy += (int)busy - (int)r->busy;
        r->busy = busy;
    }
    if (rank >= 0) s->rank[rank].called = false;
    while (!s->memory && s->nheap && s->heap[0].at <= until) {
        if (rank < 0 ? !dt__sim_goes_on(s) : s->rank[rank].called) break;
        dt__sim_event e = dt__sim_pop(s);
        dt__sim_rank *r = &s->rank[dt__sim_event_rank(s, e)];
        dt__sim_event_do(s, e);
        if (r->listens && (e.kind == DT__SIM_FRAME || e.kind == DT__SIM_TIMER)) r->called = true;
        if (r->called && r->waits && (r->until <= s->now || r->dead)) dt__sim_turn(s, r);
    }
    if (s->now < until && (rank < 0 ? dt__sim_goes_on(s) : !s->rank[rank].called)) s->now = until;
    s->running = false;
    dt__net_clock = clock;
}

/* ---- making and freeing, the calls */
static const dt__sim_ops dt__sim_wires = { dt__sim_stir, dt__sim_dial, dt__sim_control_wait, dt__sim_leave,
                                           &dt__transport_sim };
static bool dt__sim_rank_new(dt_sim *s, int i, const uint8_t *gone) /* gone: of a rank that joins, see dt__cwelcome; else NULL */
{
    dt__sim_rank *r = &s->rank[i];
    dt__world    *w = &r->world;
    const dt_sim_opts *o = &s->opts;
    static dt_comm_opts none; /* all zero */
    dt_comm_opts  co = none;
    co.timeout = o->timeout > 0 ? o->timeout : 30;
    co.algo = o->algo ? o->algo : "auto"; /* so that DT_COMM_ALGO is not read */
    co.no_thread = true;
    co.tolerant = w->tolerant = o->tolerant;
    co.room = o->room;
    w->refs = 1; /* of the first communicator, which a program may free */
    w->rank = i;
    w->start = o->world;
    w->room = s->n;
    if (!gone) w->size = o->world, w->member = s->member;
    w->timeout = co.timeout;
    w->join_timeout = 120;
    w->nhosts = s->nhosts;
    w->listen_fd = w->unix_fd = w->ticket_fd = -1;
    w->joined = true;
    w->sim = s;
    w->sim_ops = &dt__sim_wires;
    w->clock = &s->now;
    pthread_mutex_init(&w->lock, NULL);
    snprintf(w->where, sizeof w->where, "the simulator");
    int size = gone ? i + 1 : o->world;
    r->comm = dt__comm_new(i, size, &co);
    if (!r->comm) return false;
    w->client = r->comm->client;
    close(r->comm->wake_fd); /* not used here, and descriptors are limited */
    r->comm->wake_fd = -1;
    if (dt__control_new(w)) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory or descriptors");
        return false;
    }
    dt__close(&w->control->wake);
    w->control->started = true;
    w->control->join = DT__JOIN_COMPLETE;
    w->control->note_at = s->now + 1 + (int64_t)(dt__sim_draw(s) % (uint64_t)DT__SIM_NOTE_NS);
    for (int k = 0; gone && k < size; k++) {
        w->control->gone[k] = gone[2 * k];
        w->control->ngone += gone[2 * k] != 0;
        r->comm->members->how[k] = gone[2 * k + 1];
        snprintf(r->comm->members->why[k], sizeof r->comm->members->why[k], "rank %d went before", k);
        r->comm->members->changes = 1;
    }
    r->comm->first = s->n > o->world;
    if (r->comm->members) r->comm->members->start = o->world;
    r->comm->world = w;
    r->comm->id = DT__SIM_FIRST;
    r->comm->across = s->n > 1 ? &dt__transport_sim : NULL;
    r->comm->engine->aside = true; /* time passes only in waits: it does not spin before one */
    r->comm->note = r->comm->own_note = (dt__note *)dt__comm_zeroed(DT__NOTES, sizeof *r->comm->own_note);
    if (!r->comm->note) {
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
        return false;
    }
    r->comm->local_size = 0;
    for (int k = 0; k < size; k++) {
        r->comm->host[k] = w->member[k].host;
        if (w->member[k].host != w->member[i].host) continue;
        if (k == i) r->comm->local_rank = r->comm->local_size;
        r->comm->local_size++;
    }
    dt__world_add(w, r->comm);
    r->born = true;
    return dt__mail_open(r->comm) == 0;
}
static bool dt__sim_tree(dt_sim *s) /* the tree of control connections, as after joining */
{
    for (int i = 1; i < s->opts.world; i++) {
        int       up = (i - 1) / DT__TREE, pipe = dt__sim_pipes(s, i, up);
        dt__conn *below = dt__sim_conn(&s->rank[i].world, DT__KIND_TREE, up, pipe);
        dt__conn *above = below ? dt__sim_conn(&s->rank[up].world, DT__KIND_TREE, i, pipe + 1) : NULL;
        if (!above) return false;
        below->state = above->state = DT__CONN_READY;
        s->rank[i].world.control->parent = below;
    }
    return true;
}
DT_API dt_sim *dt_sim_new_with(dt_sim_opts o)
{
    int n = o.tolerant && o.room > o.world ? o.room : o.world;
    if (o.world < 1 || n > DT__SIM_WORLD || !(o.timeout >= 0) || !(o.delay >= 0) || o.delay > 1e6) {
        dt__comm_bad(DT_COMM_ERR_ARG,
                     "dt_sim_new: world is %d, timeout %g, delay %g; expected a world of 1 to %d, a timeout of 0 s or more, "
                     "a delay of 0 to 1e6 s",
                     o.world, o.timeout, o.delay, DT__SIM_WORLD);
        return NULL;
    }
    dt_sim *s = (dt_sim *)dt__comm_zeroed(1, sizeof *s);
    if (s) {
        sem_init(&s->back, 0, 0);
        s->n = n;
        s->opts = o;
        s->rank = (dt__sim_rank *)dt__comm_zeroed((size_t)n + 1, sizeof *s->rank);
        s->member = (dt__member *)dt__comm_zeroed((size_t)n, sizeof *s->member);
        s->link = (dt__sim_link **)dt__comm_zeroed(2 * (size_t)n * (size_t)n, sizeof *s->link);
    }
    if (!s || !s->rank || !s->member || !s->link) {
        dt_sim_free(s);
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
        return NULL;
    }
    const int64_t *clock = dt__net_clock;
    bool           ok = true;
    dt__net_clock = &s->now;
    s->now = DT__SIM_BEGIN;
    s->random = o.seed * UINT64_C(0xd1342543de82ef95) + 1;
    s->delay = (int64_t)((o.delay > 0 ? o.delay : 1e-3) * DT__NS_PER_S);
    s->window = o.window < 0 ? 0 : o.window ? o.window : (int)(dt__sim_draw(s) % 4) * (int)(dt__sim_draw(s) % 4);
    dt__plan_machines hosts;
    ok = dt__plan_machines_make(&hosts, o.world, o.host);
    for (int i = 0; ok && i < o.world; i++) {
        dt__member *m = &s->member[i];
        m->host = hosts.of[i];
        if (m->host >= s->nhosts) s->nhosts = m->host + 1;
        memcpy(m->host_id, &m->host, sizeof m->host);
        m->pid = 1000 + i;
        snprintf(m->host_name, sizeof m->host_name, "host%d", m->host);
    }
    if (ok) dt__plan_machines_free(&hosts);
    else dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
    for (int i = 0; ok && i < o.world; i++) ok = dt__sim_rank_new(s, i, NULL);
    if (ok && !dt__sim_tree(s)) {
        ok = false;
        dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_new: out of memory");
    }
    dt__net_clock = clock;
    if (ok) return s;
    dt_sim_free(s);
    return NULL;
}
DT_API void dt_sim_free(dt_sim *s)
{
    if (!s) return;
    const int64_t *clock = dt__net_clock;
    dt__net_clock = &s->now;
    s->over = true;
    for (int i = 0; s->rank && i < s->n; i++) { /* programs end: all their calls fail */
        dt__sim_rank *r = &s->rank[i];
        if (r->runs && !r->ended) dt__sim_die(s, r);
        while (r->runs && !r->ended) {
            if (s->now < r->wake) s->now = r->wake;
            dt__sim_turn(s, r);
        }
        if (!r->runs) continue;
        pthread_join(r->thread, NULL);
        sem_destroy(&r->go);
    }
    dt__net_clock = clock;
    sem_destroy(&s->back);
    for (int i = 0; s->rank && i < s->n; i++) {
        dt__sim_rank *r = &s->rank[i];
        if (!r->born || dt__sim_first(r)) dt__comm_delete(r->comm);
        if (r->world.control) dt__control_free(&r->world);
        if (r->world.sim) pthread_mutex_destroy(&r->world.lock);
        if (r->world.member != s->member) DT_COMM_FREE(r->world.member);
        DT_COMM_FREE(r->gone);
    }
    for (size_t i = 0; s->link && i < 2 * (size_t)s->n * (size_t)s->n; i++) {
        for (dt__sim_link *l = s->link[i], *after; l; l = after) {
            after = l->next;
            for (dt__sim_packet *p = l->first, *next; p; p = next) {
                next = p->next;
                DT_COMM_FREE(p);
            }
            DT_COMM_FREE(l);
        }
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
DT_API dt_comm *dt_sim_comm(dt_sim *s, int rank) { return s && rank >= 0 && rank < s->n ? dt__sim_first(&s->rank[rank]) : NULL; }
static int dt__sim_order_add(dt_sim *s, int kind, int rank, double when, double length,
                             void (*fn)(dt_comm *c, void *user), void *user)
{
    if (!s || rank < 0 || rank >= s->n || !(when >= 0) || !(length >= 0) || when > DT__SIM_MOST_SECONDS ||
        length > DT__SIM_MOST_SECONDS)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim: rank %d of %d at %g s for %g s; expected times of 0 to %g s", rank,
                            s ? s->n : 0, when, length, DT__SIM_MOST_SECONDS);
    int64_t cap = s->order_cap;
    void   *p = s->order;
    if (!dt__sim_grow(s, &p, &cap, s->norders, sizeof *s->order))
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim: out of memory");
    s->order = (dt__sim_order *)p;
    s->order_cap = (int)cap;
    dt__sim_order *o = &s->order[s->norders];
    o->kind = kind;
    o->rank = rank;
    o->length = (int64_t)(length * DT__NS_PER_S);
    o->fn = fn;
    o->user = user;
    o->before = 0;
    s->orders++;
    dt__sim_push(s, DT__SIM_BEGIN + (int64_t)(when * DT__NS_PER_S), DT__SIM_ORDER, s->norders++);
    return s->memory ? dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim: out of memory") : 0;
}
DT_API int dt_sim_at(dt_sim *s, int rank, double when, void (*fn)(dt_comm *c, void *user), void *user)
{
    if (!fn) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_at: fn is NULL");
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
DT_API int dt_sim_kill_before(dt_sim *s, int rank, int64_t n)
{
    if (!s || rank < 0 || rank >= s->n || n < 1) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_kill_before: rank %d, frame %" PRId64 "; expected 1 or more", rank, n);
    s->rank[rank].doom = s->rank[rank].frames + n;
    return 0;
}
DT_API int dt_sim_start(dt_sim *s, int rank, double when, void (*fn)(dt_comm *c, void *user), void *user)
{
    if (!fn) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_start: fn is NULL");
    return dt__sim_order_add(s, DT__SIM_START, rank, when, 0, fn, user);
}
DT_API int dt_sim_before(dt_sim *s, int rank, int64_t n, void (*fn)(dt_comm *c, void *user), void *user)
{
    int64_t cap = s ? s->order_cap : 0;
    void   *p = s ? s->order : NULL;
    if (!s || rank < 0 || rank >= s->n || n < 1)
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_before: rank %d, packet %" PRId64 "; expected 1 or more", rank, n);
    if (!dt__sim_grow(s, &p, &cap, s->norders, sizeof *s->order))
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_before: out of memory");
    s->order = (dt__sim_order *)p;
    s->order_cap = (int)cap;
    dt__sim_order *o = &s->order[s->norders++];
    memset(o, 0, sizeof *o);
    o->kind = fn ? DT__SIM_CALL : DT__SIM_KILL;
    o->rank = rank;
    o->before = s->rank[rank].sent + n;
    o->fn = fn;
    o->user = user;
    s->rank[rank].awaited++;
    return 0;
}
DT_API int64_t dt_sim_sent(const dt_sim *s, int rank) { return s && rank >= 0 && rank < s->n ? s->rank[rank].sent : 0; }
DT_API bool dt_sim_dead(const dt_sim *s, int rank)
{
    return s && rank >= 0 && rank < s->n && ((s->rank[rank].dead && !s->rank[rank].left) || s->rank[rank].doomed);
}
DT_API int64_t dt_sim_frames(const dt_sim *s, int rank) { return s && rank >= 0 && rank < s->n ? s->rank[rank].frames : 0; }
DT_API int dt_sim_join(dt_sim *s, double when, const char *name, int64_t incarnation, void (*fn)(dt_comm *c, void *user), void *user)
{
    if (name && strlen(name) > 47) return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_join: the name has more than 47 bytes");
    int rc = dt__sim_order_add(s, DT__SIM_JOIN, 0, when, 0, fn, user);
    if (rc) return rc;
    dt__member *m = &s->order[s->norders - 1].row;
    memset(m, 0, sizeof *m);
    memcpy(m->host_id, s->member[0].host_id, sizeof m->host_id);
    memcpy(m->host_name, s->member[0].host_name, sizeof m->host_name);
    m->pid = 1000000 + s->norders;
    snprintf(m->name, sizeof m->name, "%s", name ? name : "");
    m->incarnation = incarnation;
    return 0;
}
DT_API int dt_sim_run(dt_sim *s, double until)
{
    if (!s || s->running || !(until >= 0))
        return dt__comm_bad(DT_COMM_ERR_ARG, "dt_sim_run: %s",
                            !s ? "the simulator is NULL" : s->running ? "called from a function of dt_sim_at: return first"
                                                                      : "until is negative or NaN");
    dt__sim_events(s, DT__SIM_BEGIN + (int64_t)((until < DT__SIM_MOST_SECONDS ? until : DT__SIM_MOST_SECONDS) *
                                                DT__NS_PER_S), -1);
    if (s->memory) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_sim_run: out of memory");
    return s->busy > s->programs ? s->busy : s->programs;
}
DT_API double   dt_sim_now(const dt_sim *s) { return s ? DT__S_PER_NS * (double)(s->now - DT__SIM_BEGIN) : 0; }
DT_API uint64_t dt_sim_hash(const dt_sim *s, int64_t *events)
{
    if (events) *events = s ? (int64_t)s->nevents : 0;
    return s ? s->hash : 0;
}
DT__SLOW_END

#ifdef __cplusplus
}
#endif
#endif /* DT_SIM_IMPLEMENTATION */
