/* dt_msg.h - v0.2.0 - messages between ranks, matched by sender and tag: the layer under servers and pipelines */
/*
DO THIS

    Include dt_comm.h, which builds on this header: its dt_comm_send, dt_comm_recv, dt_comm_probe, dt_comm_call and
    dt_comm_serve are the calls. This header has their types, and the code that matches and moves messages.

        In one C or C++ file of your program:   #define DT_IMPLEMENTATION
                                                #include "dt_comm.h"
        In every other file that uses it:       #include "dt_comm.h"

    dt_net.h and dt_base.h must be in the same directory.

    If the linker does not find dt__define_DT_IMPLEMENTATION_in_one_file_or_link_dt_c, that one file is missing:
    define the macro in one file, or link dt.c.

A COMPLETE PROGRAM

    #define DT_IMPLEMENTATION
    #include "dt_comm.h"
    #include <stdio.h>

    static int rank_main(void *arg)
    {
        dt_comm    *c = dt_comm_init();
        float       x[100] = { 1 };
        dt_msg_info from;
        if (dt_comm_rank(c) > 0) dt_comm_send(c, x, dt_comm_rank(c), DT_COMM_F32, 0, .tag = 7);
        else
            for (int i = 1; i < dt_comm_size(c) && !dt_comm_recv(c, x, 100, DT_COMM_F32, DT_ANY, .tag = 7, .info = &from); i++)
                printf("%d numbers from rank %d\n", (int)from.n, from.from);
        (void)arg;
        return dt_comm_free(c);
    }
    int main(void) { return dt_spawn(4, rank_main, NULL); }

WHAT IT DOES NOT DO

    No order between messages with different tags, or of different senders. No checksums.

CONTENTS

    >>messages       what a message carries
    >>inside         what other dt headers use of this one
    >>matching       implementation from here: receives and arrivals, found by sender and tag
    >>protocol       from the call to frames, and back
    >>rings          lanes through shared memory
    >>streams        lanes through sockets

MACROS

    DT_MSG_IMPLEMENTATION  this header's part of DT_IMPLEMENTATION

ERRORS, THREADS

    As in dt_comm.h.

LICENCE

    MIT, see LICENSE.
*/
#if defined(DT_IMPLEMENTATION) && !defined(DT_LINKED) && !defined(DT_MSG_IMPLEMENTATION)
#define DT_MSG_IMPLEMENTATION
#endif
#include "dt_net.h"

#ifndef DT_MSG_H_INCLUDED
#define DT_MSG_H_INCLUDED

#if DT_VERSION_MAJOR != 0 || DT_VERSION_MINOR != 2 || DT_VERSION_PATCH != 0
#error "dt_msg.h: dt_base.h beside it is of another version; copy all headers of one version"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------- >>messages */
typedef struct dt_work dt_work; /* an asynchronous call: see dt_comm.h */
enum { DT_ANY = -1 };      /* a receive or probe: from any rank, with any tag */
#define DT_FOREVER 1e30    /* .timeout: no deadline. A failure of the communicator still ends the call */
typedef struct dt_msg_info { /* what a message is */
    int     from, tag;
    int64_t n;             /* elements */
    int     dtype;
} dt_msg_info;
typedef struct dt_msg_view { /* a received message that is read where it lies: dt_comm_recv_view */
    const void *data;
    dt_msg_info info;
    void       *dt__hold;  /* private */
    uint64_t    dt__id;
} dt_msg_view;

#ifdef __cplusplus
}
#endif
#endif /* DT_MSG_H_INCLUDED */

#if defined(DT__WANT_INSIDE) && !defined(DT__MSG_INSIDE)
#define DT__MSG_INSIDE
/* ---------------------------------------------------------------------------------------------------- >>inside
   Works and requests; the mail of a communicator; lanes, which carry its frames. */
#ifdef __cplusplus
extern "C" {
#endif
/* What every asynchronous call has. The struct of a collective (dt__coll_work in dt_comm.h) and that of a message (dt__req)
   begin with it. */
enum { DT__WORK_COLLECTIVE = 1, DT__WORK_MESSAGE };
struct dt_work {
    dt_comm *c;                /* NULL: the communicator was freed before this work was waited for */
    dt_work *before, *after; /* works that were not waited for; under the engine's lock */
    const struct dt__device_transport *device_transport; /* a work on a device; NULL on the host */
    struct dt__job *job;
    int64_t  started, ended;   /* ns */
    int      status;
    uint8_t  kind;             /* DT__WORK_... */
    bool     own;              /* made by a start call: dt_work_wait frees it */
    bool     finished;         /* atomic */
};

/* The header of a frame. A frame is a header and, of some kinds, a payload. */
enum {
    DT__M_EAGER = 1, /* a small message: n bytes follow */
    DT__M_LARGE,     /* a large message is offered; at: where it is in shared memory; -1: the receiver cannot read it;
                        below: at address -2 - at of the sender (dt__peek) */
    DT__M_GRANT,     /* a receive for offer id is there: send it; at: the receiver's number for it */
    DT__M_DATA,      /* n bytes of the message that the receiver numbered id, from offset at on; they follow */
    DT__M_READ,      /* the receiver has read the offer id in place */
    DT__M_CANCEL,    /* the sender takes its offer back */
    DT__M_CANCELLED, /* the receiver has forgotten it. If it had granted or read it before, it does not answer */
    DT__M_SKIP,      /* rings: continue at the beginning */
    DT__M_DROP,      /* tolerant: offer id ends in the middle; at 0: of the sender of this frame, 1: of its receiver */
    DT__M_KINDS
};
enum { DT__SPACE_USER = 0, DT__SPACE_CALL, DT__SPACE_REPLY, DT__SPACES }; /* tags of different spaces do not match */
enum { DT__M_MARK = 0xd7, DT__M_DEVICE = 0x80 }; /* DEVICE: in dtype; the payload is a record of device memory */
typedef struct dt__mhead {
    uint8_t  mark, kind, space, dtype;
    int32_t  tag;
    uint64_t n;
    uint64_t id;
    int64_t  at;
    int64_t  ref; /* of a message: the number of a call; the elements of a message of device memory */
} dt__mhead;
typedef char dt__mhead_size[sizeof(dt__mhead) == 40 ? 1 : -1];
typedef struct dt__outgoing { /* a frame that is being sent */
    dt__mhead   head;
    const char *ptr;
    size_t      n, done; /* bytes of the payload; bytes of header and payload that have moved */
} dt__outgoing;

typedef struct dt__key dt__key;
typedef struct dt__chain { /* an element of a list; the lists of a key, and of the mail, are rings with a sentinel */
    struct dt__chain *prev, *next;
} dt__chain;
/* States of a message. */
enum {
    DT__REQ_NEW = 0,
    DT__REQ_POSTED,  /* receive: waits for a message */
    DT__REQ_TAKING,  /* receive: the payload of a small message arrives */
    DT__REQ_GRANTED, /* receive: waits for data of a large message */
    DT__REQ_COPYING, /* receive: copies from where the sender has it */
    DT__REQ_QUEUED,  /* send: waits for its turn */
    DT__REQ_SENDING, /* send: its frame is moving */
    DT__REQ_OFFERED, /* send: waits for the receiver */
    DT__REQ_DATA,    /* send: its data moves */
    DT__REQ_ENDING   /* reply of a call that ends alone: waits until the request does not use the caller's memory any more */
};
/* In cache lines. A small message for a receive that is `plain` touches the first two only: with thousands of receives each
   line more is a cache miss. */
typedef struct dt__req {
    dt_work  w;
    dt__chain link;            /* in a list of a peer: queued, data; or copying; or with the receives of the same key */
    struct dt__req *chain;     /* a receive that waits and is the first of its key: the next of its bucket */
    char    *ptr;
    size_t   n;                /* bytes of the buffer */
    int32_t  peer, tag;
    uint8_t  space, dtype, state;
    bool     send, cancel, asked, peek;
    bool     short_ok;         /* receive: the message may be shorter, also without info */
    uint32_t place;            /* in m->queue, from 1 on; 0: not there */
    bool     plain;            /* has no info, view, done_fn, partner, id, said: nobody needs to look. Else it may have */
    int16_t  why;              /* the status of a send that is being cancelled */
    struct dt__req *partner;   /* of a call: the reply of this request, the request of this reply, until one of them has ended */
    size_t   total;            /* receive: bytes of the message; not set if it is plain and ended well: then they are n */
    uint64_t id;               /* this rank's number of a large message; 0: none */
    uint64_t order;            /* receives match in this order */
    dt_msg_info *info;         /* receive: where to tell what came; NULL: the message must have n bytes */
    dt_msg_view *view;         /* receive: where to tell where it is */
    void    (*done_fn)(dt_comm *c, struct dt__req *q); /* called by the driver instead of waking waiters; NULL: none */
    int64_t  ref;              /* as in the frame */
    dt__chain wait;            /* in one of the lists of the mail, until it is finished; or it is in the queue: place */
    char    *said;             /* the words of a rank that refused a call */
    int64_t  since;            /* ns: when it was posted or last moved; 0: just now, or it is in the queue */
    double   timeout;          /* its own, seconds; 0: the communicator's */
    const char *call;          /* the name of the call, for messages */
    int64_t  moved;            /* receive of a large message: ns, when data last came */
    uint64_t remote;           /* large messages: the other rank's number */
    size_t   done;             /* large messages: bytes that have moved */
    const char *from;          /* receive in place: where the payload is, if `peek` in the memory of the sender */
    void    *block;            /* what was allocated for it: it begins at a cache line */
    void   (*then)(void *user, int status); /* of dt_work_then */
    void    *user;
} dt__req;
typedef char dt__req_lines[offsetof(dt__req, partner) <= 128 ? 1 : -1];
/* An element of the queue of messages that wait with the timeout of the communicator, oldest first. Leaving it touches no
   other message. */
typedef struct dt__waiting {
    dt__req *q;                /* NULL: it has left */
    int64_t  since;            /* ns: when its time began; -1: not yet */
} dt__waiting;
typedef struct dt__arrival { /* a message that no receive has taken; the payload of a small one follows */
    dt__chain  link[4];         /* in the lists of four keys: bit 0: any rank; bit 1: any tag */
    dt__mhead head;
    int32_t   peer;
    uint8_t   size_class;
    bool      linked;
} dt__arrival;
struct dt__key {               /* a cache line */
    dt__key *chain;            /* the next of its bucket, or of the free ones */
    int32_t  peer, tag;
    int32_t  space;
    dt__chain arrived;
    void    *block;            /* what was allocated for it */
};
typedef struct dt__notice { /* a frame without payload that waits to be sent */
    struct dt__notice *next;
    dt__mhead          head;
} dt__notice;
typedef struct dt__mail_peer {
    const struct dt__lane *lane;
    struct dt__mail_peer  *next_dirty; /* peers with something to send */
    dt__chain     queued, data;         /* sends in order; granted sends */
    dt__notice  *first, *last;
    dt__outgoing      out;                  /* the frame that is moving */
    dt__req     *out_req;              /* its message; NULL: a notice */
    bool         moving, dirty, pushing, data_last;
    int          nlarge;               /* large messages from this peer that are being copied or sent */
    int          crowd;                /* not 0: large messages from this peer have come while others were copied */
    dt__req     *in_req;               /* the message whose payload arrives */
    dt__arrival *in_arrival;
    int64_t      moved;                /* ns: when something that takes long last moved to this peer */
    int          rank;
    bool         gone, over;           /* tolerant: it has gone; nothing more comes from it */
    int64_t      gone_at;              /* ns */
    char        *spill;                /* tolerant: the rest of a frame whose message has ended */
    char        *sink;                 /* ... and where the payload of such a message arrives; lane->chunk bytes */
} dt__mail_peer;
enum { DT__ARRIVAL_CLASSES = 12 };     /* buffers of 64 bytes << class are kept */
typedef struct dt__mail {
    dt__mail_peer *peer;       /* by rank */
    dt__mail_peer *dirty;
    void          *rings, *streams; /* private data of the lanes inside and across; of MPI and the simulator in streams */
    const struct dt__lane *inside, *across;
    dt__key      **bucket, *free_keys;
    dt__key       *last_key;   /* the one that was last looked up: often the next, too */
    size_t         nbuckets, nkeys; /* a power of two */
    dt__req      **posted;     /* buckets of the receives that wait; of each key the first */
    dt__req      **last_posted; /* the bucket that was last looked up: often the next, too */
    size_t         posted_cap, nfirst; /* buckets, a power of two; receives in them */
    dt__notice    *free_notices;
    int64_t        nnotices;   /* that wait to be sent */
    dt__arrival   *free_arrivals[DT__ARRIVAL_CLASSES]; /* linked by link[0].next */
    size_t         cached;     /* bytes in them */
    dt__waiting   *queue;      /* most messages that are not finished; a ring */
    uint64_t       first, end; /* positions in it */
    uint64_t       undated;    /* the time of those from this position on has not begun */
    uint32_t       queue_cap, nqueue, nfresh; /* a power of 2; messages in it; those of them without a time */
    dt__chain       fresh, dated, own, forever; /* the others: without a time; by time; own timeout, by time; no timeout */
    dt__chain       copying;
    void         **number;     /* messages by number */
    uint32_t      *turn;       /* how often the number was used */
    uint32_t       nnumbers, numbers_cap, free_number;
    uint64_t       order;
    int64_t        memory, limit; /* bytes held for messages; at most */
    int            nwild, nposted, narrived; /* receives with DT_ANY; all; arrivals */
    int            npending;   /* messages that are not finished, but receives that wait */
    int            nserved;    /* handlers that run on the progress thread */
    uint64_t       taken;      /* links that have been taken: see c->links_arrived */
    uint32_t       changes;    /* tolerant: as in c->members, when it was last looked at; less than that while a member is going */
    int            ngoing;     /* members that have gone, but are not over */
    bool           progress;   /* something moved in this poll */
} dt__mail;

/* A lane carries frames between this rank and others, in order. The driver calls these functions. */
typedef struct dt__lane {
    const char *name;          /* of its transport */
    size_t eager, chunk;       /* bytes of the largest small message; of the payload of a DATA frame */
    bool   visible;            /* the receiver can read memory of the sender: dt__shared_at, dt__peek */
    int  (*open)(dt_comm *c, dt__mail *m); /* 0, or negative after dt__comm_bad */
    int  (*put)(dt_comm *c, int peer, dt__outgoing *o); /* 1: sent; 0: call again; negative: c has failed */
    void (*poll)(dt_comm *c); /* calls dt__mail_want and dt__mail_came for frames that have come */
    bool (*hint)(dt_comm *c);  /* cheap: may a frame have come? NULL: unknown without a poll */
    void (*fds)(dt_comm *c, dt__pollset *set); /* what to wait for; NULL: nothing */
    void (*close)(dt_comm *c);
    /* Tolerant communicators; NULL if there is nothing to do. */
    bool (*ended)(dt_comm *c, int peer); /* a peer that has gone: has everything that it sent been taken? */
    void (*forget)(dt_comm *c, int peer); /* a peer that has gone: nothing more comes or goes */
    void (*redirect)(dt_comm *c, int peer, char *to); /* the rest of the payload that arrives now goes there */
} dt__lane;
DT__INSIDE void dt__lane_register(const dt__lane *l); /* of a transport in another header */

DT__INSIDE int  dt__mail_open(dt_comm *c); /* 0, or negative after dt__comm_bad */
DT__INSIDE void dt__mail_close(dt_comm *c);
/* A frame has come from a peer: where its payload goes (not NULL if it has none). NULL: c has failed. */
DT__INSIDE char *dt__mail_want(dt_comm *c, int peer, const dt__mhead *h);
DT__INSIDE void dt__mail_came(dt_comm *c, int peer, const dt__mhead *h); /* the payload is there */
static inline __attribute__((unused)) size_t dt__mhead_payload(const dt__mhead *h)
{
    return h->kind == DT__M_EAGER || h->kind == DT__M_DATA ? (size_t)h->n : 0;
}
static inline __attribute__((unused)) void *dt__line_malloc(size_t n, void **block) /* at the beginning of a cache line */
{
    *block = DT_COMM_MALLOC(n + 63);
    return *block ? (void *)(((uintptr_t)*block + 63) & ~(uintptr_t)63) : NULL;
}
static inline __attribute__((unused)) int64_t dt__elements(size_t nbytes, int dtype) /* sizes are powers of 2 */
{
    return (int64_t)(nbytes >> __builtin_ctz((unsigned)dt__elem_nbytes(dtype)));
}
DT__INSIDE const char *dt__rank_or_any(int rank, char *buf, size_t nbytes); /* "rank 3" or "any rank" */
/* By the driver. */
DT__INSIDE void dt__mail_post(dt_comm *c, dt__req *q);
DT__INSIDE bool dt__mail_poll(dt_comm *c); /* true: something moved */
/* The shortest way of a small message through shared memory, without a request. 1: done; 0: post a request instead. */
DT__INSIDE int  dt__mail_send_now(dt_comm *c, int peer, int tag, int dtype, const void *ptr, size_t n);
DT__INSIDE int  dt__mail_recv_now(dt_comm *c, int peer, int tag, int dtype, void *ptr, size_t n, int looks);
DT__INSIDE bool dt__mail_hint(dt_comm *c);
DT__INSIDE bool dt__mail_probe(dt_comm *c, int peer, int tag, dt_msg_info *info);
DT__INSIDE bool dt__mail_cancel(dt_comm *c, dt__req *q, int why); /* false: it is too late */
DT__INSIDE void dt__mail_overdue(dt_comm *c, int64_t now);
DT__INSIDE int64_t dt__mail_next(dt_comm *c); /* ns: when dt__mail_overdue must be called; INT64_MAX: never */
DT__INSIDE void dt__mail_fail(dt_comm *c, int status); /* ends all messages */
DT__INSIDE bool dt__mail_sending(const dt_comm *c); /* are there messages that only wait for their turn? */
DT__INSIDE bool dt__mail_members(dt_comm *c); /* tolerant: ends the messages with members that have gone. True: something ended */
static inline __attribute__((unused)) bool dt__mail_stale(const dt_comm *c) /* must dt__mail_members be called? */
{
    const dt__mail *m = (const dt__mail *)c->mail;
    return c->members && m && (m->ngoing || __atomic_load_n(&c->members->changes, __ATOMIC_ACQUIRE) != m->changes);
}
DT__INSIDE void dt__view_free(dt_comm *c, dt_msg_view *v);
DT__INSIDE void dt__copy_past(char *to, const char *from, size_t n); /* past the caches: for what is not read soon */
/* Is there something that only a poll can move? Receives that wait count, too. */
static inline __attribute__((unused)) bool dt__mail_active(const dt__mail *m)
{
    return m && (m->npending || m->nposted || m->dirty || m->nserved);
}
static inline __attribute__((unused)) void dt__chain_add(dt__chain *list, dt__chain *l) /* at the end */
{
    l->prev = list->prev;
    l->next = list;
    list->prev->next = l;
    list->prev = l;
}
static inline __attribute__((unused)) void dt__chain_remove(dt__chain *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    l->prev = l->next = NULL;
}
static inline __attribute__((unused)) void dt__chain_init(dt__chain *list) { list->prev = list->next = list; }
#define DT__OWNER(type, field, p) ((type *)(void *)((char *)(p) - offsetof(type, field)))

#ifdef __cplusplus
}
#endif
#endif /* DT__MSG_INSIDE */

#if defined(DT_MSG_IMPLEMENTATION) && !defined(DT__MSG_IMPLEMENTED)
#define DT__MSG_IMPLEMENTED
#if defined(DT_STATIC) && !defined(DT__NET_IMPLEMENTED)
#error "dt_msg.h: with DT_STATIC all implementations are in one file: define DT_IMPLEMENTATION instead of DT_MSG_IMPLEMENTATION"
#endif
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif
DT__PRESENT(MSG);
DT__NEEDS(MSG, NET);
DT__NEEDS(MSG, BASE);

/* ==================================================================================================== >>matching
   The driver of a communicator (dt_comm.h, >>engine) owns its mail: one thread at a time calls what follows, without locks.

   A key is a sender, a tag and a space; sender and tag may be DT_ANY.

   Receives that wait are in a hash table: of each key the first one, and the later ones of this key in a ring with it, in
   order. A message looks for the receives of at most four keys and takes the one that was posted first. No memory but that
   of the receive is touched.

   Messages that arrived and no receive has taken are in the lists of four keys: (sender, tag), (any, tag), (sender, any),
   (any, any). These keys are in another hash table. So a receive finds the first message that matches it in one look-up,
   whatever else is pending. */
static dt__mail *dt__mail_of(const dt_comm *c) { return (dt__mail *)c->mail; }
static bool dt__chain_empty(const dt__chain *list) { return list->next == list; }
/* The upper bits of a product with the golden ratio: all bits of the tag count, and tags with equal distances spread evenly.
   nbuckets: a power of 2, 2 or more. */
static size_t dt__key_hash(size_t nbuckets, int peer, int tag, int space)
{
    uint64_t h = ((uint64_t)((uint32_t)peer << 2 | (uint32_t)space) << 32 | (uint32_t)tag) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(h >> (__builtin_clzll(nbuckets) + 1));
}
static bool dt__key_is(const dt__key *k, int peer, int tag, int space) { return k->tag == tag && k->peer == peer && k->space == space; }
static dt__key *dt__key_find(dt__mail *m, int peer, int tag, int space) /* NULL: there is none */
{
    dt__key *k = m->last_key;
    if (k && dt__key_is(k, peer, tag, space)) return k;
    k = m->bucket[dt__key_hash(m->nbuckets, peer, tag, space)];
    while (k && !dt__key_is(k, peer, tag, space)) k = k->chain;
    if (k) m->last_key = k;
    return k;
}
/* Removes keys that have no messages; if most have some, makes the table larger. */
static void dt__keys_tidy(dt__mail *m)
{
    m->last_key = NULL;
    for (size_t i = 0; i < m->nbuckets; i++)
        for (dt__key **p = &m->bucket[i]; *p;) {
            dt__key *k = *p;
            if (!dt__chain_empty(&k->arrived)) {
                p = &k->chain;
                continue;
            }
            *p = k->chain;
            k->chain = m->free_keys;
            m->free_keys = k;
            m->nkeys--;
        }
    if (m->nkeys <= m->nbuckets / 2) return;
    size_t    n = 2 * m->nbuckets, old = m->nbuckets;
    dt__key **b = (dt__key **)dt__comm_zeroed(n, sizeof *b), **before = m->bucket;
    if (!b) return; /* longer chains, that is all */
    m->bucket = b;
    m->nbuckets = n;
    for (size_t i = 0; i < old; i++)
        for (dt__key *k = before[i], *next; k; k = next) {
            size_t h = dt__key_hash(m->nbuckets, k->peer, k->tag, k->space);
            next = k->chain;
            k->chain = b[h];
            b[h] = k;
        }
    DT_COMM_FREE(before);
}
static dt__key *dt__key_make(dt__mail *m, int peer, int tag, int space) /* NULL: out of memory */
{
    dt__key *k = dt__key_find(m, peer, tag, space);
    if (k) return k;
    if (m->nkeys >= m->nbuckets) dt__keys_tidy(m);
    k = m->free_keys;
    if (k) m->free_keys = k->chain;
    else {
        void *block;
        if (!(k = (dt__key *)dt__line_malloc(sizeof *k, &block))) return NULL;
        k->block = block;
    }
    size_t h = dt__key_hash(m->nbuckets, peer, tag, space);
    k->peer = peer;
    k->tag = tag;
    k->space = space;
    dt__chain_init(&k->arrived);
    k->chain = m->bucket[h];
    m->bucket[h] = k;
    m->nkeys++;
    return k;
}
static bool dt__req_has(const dt__req *q, int peer, int tag, int space)
{
    return q->tag == tag && q->peer == peer && q->space == space;
}
/* Where the first receive of a key is; the end of its bucket: there is none. */
static inline dt__req **dt__posted_find(dt__mail *m, int peer, int tag, int space)
{
    dt__req **p = m->last_posted;
    if (*p && dt__req_has(*p, peer, tag, space)) return p; /* a branch that is guessed right does not wait for the hash */
    p = m->last_posted = &m->posted[dt__key_hash(m->posted_cap, peer, tag, space)];
    while (*p && !dt__req_has(*p, peer, tag, space)) p = &(*p)->chain;
    return p;
}
static void dt__posted_grow(dt__mail *m)
{
    size_t    n = 2 * m->posted_cap;
    dt__req **to = (dt__req **)dt__comm_zeroed(n, sizeof *to);
    if (!to) return; /* longer buckets, that is all */
    for (size_t i = 0; i < m->posted_cap; i++)
        for (dt__req *q = m->posted[i], *next; q; q = next) {
            dt__req **p = &to[dt__key_hash(n, q->peer, q->tag, q->space)];
            next = q->chain;
            q->chain = *p;
            *p = q;
        }
    DT_COMM_FREE(m->posted);
    m->posted = m->last_posted = to;
    m->posted_cap = n;
}
static void dt__posted_add(dt__mail *m, dt__req *q)
{
    if (m->nfirst >= m->posted_cap) dt__posted_grow(m);
    dt__req **p = dt__posted_find(m, q->peer, q->tag, q->space);
    if (*p) dt__chain_add(&(*p)->link, &q->link);
    else {
        dt__chain_init(&q->link);
        q->chain = NULL;
        *p = q;
        m->nfirst++;
    }
    m->nposted++;
    m->nwild += q->peer == DT_ANY || q->tag == DT_ANY;
}
/* A receive does not wait any more: it is pending from now on. p: as dt__posted_find returns it. */
static inline void dt__posted_take(dt__mail *m, dt__req **p, dt__req *q)
{
    if (*p == q && dt__chain_empty(&q->link)) {
        *p = q->chain;
        m->nfirst--;
    } else if (*p == q) { /* the next one takes its place */
        *p = DT__OWNER(dt__req, link, q->link.next);
        (*p)->chain = q->chain;
    }
    dt__chain_remove(&q->link);
    m->nposted--;
    m->nwild -= q->peer == DT_ANY || q->tag == DT_ANY;
    m->npending++;
}
/* The receive for a message: of those that match, the one that was posted first. It does not wait any more. */
static dt__req *dt__match_posted(dt__mail *m, int peer, const dt__mhead *h)
{
    if (!m->nposted) return NULL;
    dt__req **best = dt__posted_find(m, peer, h->tag, h->space), *q;
    for (int any = 1; any < 4 && __builtin_expect(m->nwild, 0); any++) {
        dt__req **p = dt__posted_find(m, any & 1 ? DT_ANY : peer, any & 2 ? DT_ANY : h->tag, h->space);
        if (*p && (!*best || (*p)->order < (*best)->order)) best = p;
    }
    if ((q = *best) != NULL) dt__posted_take(m, best, q);
    return q;
}
static dt__arrival *dt__arrival_first(dt__mail *m, int peer, int tag, int space) /* NULL: no such message is there */
{
    const dt__key *k = m->narrived ? dt__key_find(m, peer, tag, space) : NULL;
    int            which = (peer == DT_ANY) | (tag == DT_ANY) << 1;
    if (!k || dt__chain_empty(&k->arrived)) return NULL;
    return DT__OWNER(dt__arrival, link, k->arrived.next - which);
}
static bool dt__arrival_link(dt__mail *m, dt__arrival *a) /* false: out of memory */
{
    for (int any = 0; any < 4; any++) {
        dt__key *k = dt__key_make(m, any & 1 ? DT_ANY : a->peer, any & 2 ? DT_ANY : a->head.tag, a->head.space);
        if (!k) {
            while (any-- > 0) dt__chain_remove(&a->link[any]);
            return false;
        }
        dt__chain_add(&k->arrived, &a->link[any]);
    }
    a->linked = true;
    m->narrived++;
    return true;
}
static void dt__arrival_unlink(dt__mail *m, dt__arrival *a)
{
    for (int any = 0; any < 4 && a->linked; any++) dt__chain_remove(&a->link[any]);
    m->narrived -= a->linked;
    a->linked = false;
}
/* ---- memory. Buffers of small messages are kept for later ones. */
enum { DT__ARRIVALS_KEPT = 1 << 20 }; /* bytes */
static char  *dt__arrival_data(dt__arrival *a) { return (char *)(a + 1); }
static size_t dt__arrival_nbytes(const dt__arrival *a)
{
    return a->size_class < DT__ARRIVAL_CLASSES ? (size_t)64 << a->size_class
           : a->head.kind == DT__M_LARGE       ? 0
                                               : (size_t)a->head.n;
}
static dt__arrival *dt__arrival_new(dt__mail *m, int peer, const dt__mhead *h, size_t n) /* n: bytes of payload to hold */
{
    dt__arrival *a;
    int          k = 0;
    while (k < DT__ARRIVAL_CLASSES && (size_t)64 << k < n) k++;
    size_t room = k < DT__ARRIVAL_CLASSES ? (size_t)64 << k : n;
    if (k < DT__ARRIVAL_CLASSES && (a = m->free_arrivals[k]) != NULL) {
        m->free_arrivals[k] = (dt__arrival *)(void *)a->link[0].next;
        m->cached -= room + sizeof *a;
    } else if (!(a = (dt__arrival *)DT_COMM_MALLOC(sizeof *a + room))) return NULL;
    m->memory += (int64_t)(room + sizeof *a);
    a->head = *h;
    a->peer = peer;
    a->size_class = (uint8_t)k;
    a->linked = false;
    if (k == DT__ARRIVAL_CLASSES) { /* so that dt__arrival_nbytes returns it */
        a->head.kind = DT__M_EAGER;
        a->head.n = n;
    }
    return a;
}
static void dt__arrival_free(dt__mail *m, dt__arrival *a)
{
    size_t room = dt__arrival_nbytes(a);
    dt__arrival_unlink(m, a);
    m->memory -= (int64_t)(room + sizeof *a);
    if (a->size_class < DT__ARRIVAL_CLASSES && m->cached + room + sizeof *a <= DT__ARRIVALS_KEPT) {
        a->link[0].next = (dt__chain *)(void *)m->free_arrivals[a->size_class];
        m->free_arrivals[a->size_class] = a;
        m->cached += room + sizeof *a;
    } else DT_COMM_FREE(a);
}
/* ---- numbers of large messages: an index and, above it, how often the index was used, from 1 on */
static bool dt__number_new(dt__mail *m, dt__req *q)
{
    if (m->free_number == UINT32_MAX) { /* none is free */
        uint32_t  n = m->numbers_cap ? 2 * m->numbers_cap : 16;
        void    **p = n < 1u << 30 ? (void **)DT_COMM_REALLOC(m->number, n * sizeof *p) : NULL;
        uint32_t *t = p ? (uint32_t *)DT_COMM_REALLOC(m->turn, n * sizeof *t) : NULL;
        if (p) m->number = p;
        if (t) m->turn = t;
        if (!p || !t) return false;
        for (uint32_t i = m->numbers_cap; i < n; i++) { /* a free number holds the next free one */
            m->number[i] = (void *)(uintptr_t)(i + 1 < n ? i + 1 : UINT32_MAX);
            m->turn[i] = 0;
        }
        m->free_number = m->numbers_cap;
        m->numbers_cap = n;
    }
    uint32_t i = m->free_number;
    m->free_number = (uint32_t)(uintptr_t)m->number[i];
    m->number[i] = q;
    m->turn[i] = (m->turn[i] + 2) | 1; /* odd: in use */
    q->id = (uint64_t)m->turn[i] << 32 | i;
    q->plain = false;
    return true;
}
static void dt__number_free(dt__mail *m, dt__req *q)
{
    uint32_t i = (uint32_t)q->id;
    m->number[i] = (void *)(uintptr_t)m->free_number;
    m->turn[i]++;
    m->free_number = i;
    q->id = 0;
}
static dt__req *dt__number_find(const dt__mail *m, uint64_t id, int peer) /* NULL: no message with this peer has it */
{
    uint32_t i = (uint32_t)id;
    if (i >= m->numbers_cap || m->turn[i] != (uint32_t)(id >> 32) || !(m->turn[i] & 1)) return NULL;
    dt__req *q = (dt__req *)m->number[i];
    return q->peer == peer || (!q->send && q->peer == DT_ANY) ? q : NULL;
}

/* ==================================================================================================== >>protocol
   Frames travel on lanes, one for each peer, which keep them in order. A message of at most lane->eager bytes is one frame
   (EAGER), and the send is done when the lane has it. The receiver copies it to the buffer of the receive that matches it,
   or keeps it. A larger message is only offered (LARGE). When the receiver has a receive for it,
     - and can see the sender's memory (threads; dt_comm_alloc inside a machine), it copies it from there, or hands out a
       view, and says so (READ): then the send is done; the same if the kernel lets it read the sender's own memory;
     - otherwise it says so (GRANT), and the sender sends the payload in DATA frames, directly to the receiver's buffer.
   So small messages never wait behind large ones that nobody receives, and the memory for messages that no receive has
   taken is limited (m->limit).

   States of a message are DT__REQ_...; a message that is not finished is in m->queue, or in one of m's lists fresh, dated,
   own, forever. */
static void dt__notice_send(dt_comm *c, int peer, int kind, uint64_t id, int64_t at);
static void dt__peer_push(dt_comm *c, dt__mail_peer *p);
static void dt__mail_abandon(dt_comm *c, dt__req *q, int status);
static void dt__mail_expel(dt_comm *c, int peer, const char *text);
static void dt__req_date(dt__mail *m, dt__req *q, int64_t since);
static bool dt__peek_may(dt_comm *c, int peer); /* >>rings */
static bool dt__peek(dt_comm *c, int peer, void *to, const char *from, size_t n);

DT__INSIDE const char *dt__rank_or_any(int rank, char *buf, size_t nbytes)
{
    if (rank == DT_ANY) snprintf(buf, nbytes, "any rank");
    else snprintf(buf, nbytes, "rank %d", rank);
    return buf;
}
static int dt__mail_memory(dt_comm *c, const char *what)
{
    return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: out of memory for %s", c->rank, what);
}
/* ---- the queue of messages that wait */
static dt__waiting *dt__queue_at(const dt__mail *m, uint64_t at) { return &m->queue[at & (m->queue_cap - 1)]; }
static dt__waiting *dt__queue_first(dt__mail *m) /* NULL: it is empty */
{
    if (!m->nqueue) return NULL;
    while (!dt__queue_at(m, m->first)->q) m->first++;
    if (m->undated < m->first) m->undated = m->first;
    return dt__queue_at(m, m->first);
}
static inline void dt__queue_remove(dt__mail *m, dt__req *q)
{
    dt__waiting *t = &m->queue[q->place - 1];
    if (t->since < 0) {
        m->nfresh--;
        if (t == dt__queue_at(m, m->end - 1)) m->end--;
    } else if (!q->w.started) q->w.started = t->since;
    t->q = NULL;
    q->place = 0;
    if (--m->nqueue == 0) m->first = m->undated = m->end = 0; /* the same memory again: it is in the cache */
}
/* Makes room at the end: closes the gaps or, if there are few, makes it larger. false: out of memory. */
static bool dt__queue_room(dt__mail *m)
{
    if (dt__queue_first(m) && m->end - m->first < m->queue_cap) return true;
    uint32_t     old = m->queue_cap, n = !old ? 64 : m->nqueue > old / 2 ? 2 * old : old;
    dt__waiting *to = m->queue;
    uint64_t     at = n == old ? m->first : 0;
    if (n != old && (n > UINT32_MAX / 4 || !(to = (dt__waiting *)DT_COMM_MALLOC(n * sizeof *to)))) return false;
    uint64_t first = at;
    for (uint64_t i = m->first; i < m->end; i++) {
        dt__waiting t = *dt__queue_at(m, i);
        if (!t.q) continue;
        to[at & (n - 1)] = t;
        t.q->place = (uint32_t)(at++ & (n - 1)) + 1;
    }
    if (to != m->queue) DT_COMM_FREE(m->queue);
    m->queue = to;
    m->queue_cap = n;
    m->first = first;
    m->end = at;
    m->undated = at - m->nfresh;
    return true;
}
static inline bool dt__queue_add(dt__mail *m, dt__req *q) /* false: out of memory */
{
    if (m->end - m->first == m->queue_cap && !dt__queue_room(m)) return false;
    dt__waiting *t = dt__queue_at(m, m->end);
    t->q = q;
    t->since = -1;
    q->place = (uint32_t)(m->end++ & (m->queue_cap - 1)) + 1;
    m->nqueue++;
    m->nfresh++;
    return true;
}
static void dt__queue_date(dt__mail *m, int64_t now) /* the time of all begins */
{
    for (; m->undated < m->end; m->undated++) dt__queue_at(m, m->undated)->since = now;
    m->nfresh = 0;
}
static inline void dt__req_leave(dt__mail *m, dt__req *q) /* the queue, or the list, in which it waits */
{
    if (q->place) dt__queue_remove(m, q);
    else if (q->wait.next) dt__chain_remove(&q->wait);
}
static void dt__req_finish(dt_comm *c, dt__req *q, int status) /* q was pending, not posted */
{
    dt__mail *m = dt__mail_of(c);
    dt__req_leave(m, q);
    if (q->state == DT__REQ_GRANTED || q->state == DT__REQ_COPYING) m->peer[q->peer].nlarge--;
    m->npending--;
    m->progress = true;
    q->w.status = status;
    if (q->plain) {
        c->client->message_done(c, &q->w);
        return;
    }
    dt__req *partner = q->partner;
    if (partner) partner->partner = q->partner = NULL;
    if (q->id) dt__number_free(m, q);
    if (status && q->view && q->view->dt__hold) dt__view_free(c, q->view); /* a large message that has not arrived whole */
    if (q->done_fn) q->done_fn(c, q);
    else c->client->message_done(c, &q->w); /* q may be gone now */
    if (partner && partner->state == DT__REQ_ENDING) dt__req_finish(c, partner, partner->why);
}
static void dt__req_wait(dt__mail *m, dt__req *q) /* it will take some time: from now on its deadline counts */
{
    if (q->place || q->wait.next || (q->timeout <= 0 && dt__queue_add(m, q))) return;
    dt__chain_add(q->timeout >= DT_FOREVER ? &m->forever : &m->fresh, &q->wait);
}
static void dt__req_tell(dt__req *q, int peer, const dt__mhead *h)
{
    dt_msg_info i;
    if (q->plain && h->kind == DT__M_EAGER) return; /* nobody will ask */
    i.from = peer;
    i.tag = h->tag;
    i.dtype = h->dtype & ~DT__M_DEVICE;
    i.n = h->dtype & DT__M_DEVICE ? h->ref : dt__elements((size_t)h->n, i.dtype);
    if (q->info) *q->info = i;
    if (q->view) q->view->info = i;
    q->total = (size_t)h->n;
    q->remote = h->id;
    q->ref = h->ref;
}
static void dt__req_say(dt__req *q, const char *text) /* why it ends alone; without memory the words are lost */
{
    size_t n = strlen(text) + 1;
    q->plain = false;
    DT_COMM_FREE(q->said);
    q->said = (char *)DT_COMM_MALLOC(n);
    if (q->said) memcpy(q->said, text, n);
}
/* The message does not suit the receive: the communicator has failed, or if it is tolerant: q has ended. */
static void dt__req_misfit(dt_comm *c, dt__req *q, int peer, const dt__mhead *h)
{
    int  dtype = h->dtype & ~DT__M_DEVICE;
    bool device = (h->dtype & DT__M_DEVICE) != 0;
    char from[32], text[400];
    size_t each = dt__elem_nbytes(q->dtype & ~DT__M_DEVICE);
    if (device != ((q->dtype & DT__M_DEVICE) != 0))
        snprintf(text, sizeof text,
                 "ranks call different things: rank %d sends %s memory, %s of rank %d receives into %s memory: both must be the same",
                 peer, device ? "GPU" : "host", q->call, c->rank, device ? "host" : "GPU");
    else
        snprintf(text, sizeof text,
                 "ranks call different things: rank %d sends %" PRId64 " elements of %s with tag %d; %s of rank %d from %s "
                 "expects %s%" PRId64 " of %s%s",
                 peer, device ? h->ref : (int64_t)(h->n / dt__elem_nbytes(dtype)), dtype == 6 ? "f64" : dt_dtype_name((dt_dtype)dtype),
                 h->tag, q->call, c->rank, dt__rank_or_any(q->peer, from, sizeof from), q->info ? "at most " : "",
                 q->dtype & DT__M_DEVICE ? q->ref : (int64_t)(q->n / each),
                 (q->dtype & ~DT__M_DEVICE) == 6 ? "f64" : dt_dtype_name((dt_dtype)(q->dtype & ~DT__M_DEVICE)),
                 q->info ? "" : "; a receive with .info takes shorter messages");
    if (c->members) dt__req_say(q, text);
    int status = c->members ? (int)DT_COMM_ERR_MISMATCH : dt__comm_fail(c, DT_COMM_ERR_MISMATCH, peer, "%s", text);
    dt__req_finish(c, q, status);
}
static inline bool dt__req_fits(dt_comm *c, dt__req *q, int peer, const dt__mhead *h)
{
    bool size = h->n == q->n || (!q->plain && (q->view || ((q->info || q->short_ok) && h->n < q->n)));
    if (size && h->dtype == q->dtype && (!(h->dtype & DT__M_DEVICE) || h->ref == q->ref)) return true;
    dt__req_misfit(c, q, peer, h);
    return false;
}
/* ---- receiving */
/* Where n bytes of a peer are that this rank can read: NULL if it cannot, or if `at` is not a place in the shared memory. */
static char *dt__range_see(const dt_comm *c, int peer, int64_t at, size_t n)
{
    if (peer == c->rank) return (char *)(uintptr_t)at;
    return c->shared ? dt__shared_see((dt__shared *)c->shared, at, n) : NULL;
}
static void dt__copy_begin(dt_comm *c, dt__req *q, int peer, const char *from, bool peek)
{
    dt__mail *m = dt__mail_of(c);
    q->state = DT__REQ_COPYING;
    q->from = from;
    q->peek = peek;
    q->peer = peer;
    m->peer[peer].nlarge++;
    dt__chain_add(&m->copying, &q->link);
    dt__req_wait(m, q);
    m->progress = true;
}
static void dt__large_grant(dt_comm *c, dt__req *q, int peer) /* the sender sends the offer q->remote */
{
    dt__mail *m = dt__mail_of(c);
    m->peer[peer].nlarge += q->state != DT__REQ_COPYING;
    q->state = DT__REQ_GRANTED;
    q->peer = peer;
    if (!dt__number_new(m, q)) {
        dt__mail_memory(c, "a large message");
        dt__req_finish(c, q, c->status);
        return;
    }
    dt__req_wait(m, q);
    dt__notice_send(c, peer, DT__M_GRANT, q->remote, (int64_t)q->id);
}
/* A receive has met the offer of a large message, which suits it. */
static void dt__large_begin(dt_comm *c, dt__req *q, int peer, const dt__mhead *h)
{
    dt__mail *m = dt__mail_of(c);
    dt__req_tell(q, peer, h);
    q->done = 0;
    char *there = h->at >= 0 ? dt__range_see(c, peer, h->at, (size_t)h->n) : NULL;
    if (h->at >= 0 && !there) {
        dt__transport_fail(c, DT_COMM_ERR_NET, peer, "rank %d cannot read the message that rank %d offers in shared memory: %s", c->rank, peer,
                           strerror(errno));
        dt__req_finish(c, q, c->status);
    } else if (h->at >= 0 && q->view) { /* the reader gives it back with dt_comm_view_free */
        q->view->data = there;
        q->view->dt__hold = NULL;
        q->view->dt__id = h->id;
        dt__req_finish(c, q, 0);
    } else if (h->at >= 0) dt__copy_begin(c, q, peer, there, false);
    else {
        dt__arrival *a = NULL;
        if (q->view) {
            if ((int64_t)h->n > m->limit - m->memory || h->n > (uint64_t)INT64_MAX / 2)
                dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank,
                              "rank %d: %s: a message of %" PRIu64 " bytes from rank %d does not fit in the memory for "
                              "messages, %" PRId64 " bytes: raise .message_memory",
                              c->rank, q->call, h->n, peer, m->limit);
            else if (!(a = dt__arrival_new(m, peer, h, (size_t)h->n))) dt__mail_memory(c, "a large message");
            if (!a) {
                dt__req_finish(c, q, c->status);
                return;
            }
            q->ptr = dt__arrival_data(a);
            q->view->data = q->ptr;
            q->view->dt__hold = a;
        }
        /* if there are several, the sender sends them: two cores copy more than one */
        dt__mail_peer *p = &m->peer[peer];
        p->crowd = p->nlarge ? 8 : p->crowd ? p->crowd - 1 : 0;
        if (h->at < -1 && !p->crowd && dt__peek_may(c, peer)) dt__copy_begin(c, q, peer, (const char *)(uintptr_t)(-2 - h->at), true);
        else dt__large_grant(c, q, peer);
    }
}
/* A receive has met a message that arrived before it. */
static void dt__arrival_deliver(dt_comm *c, dt__req *q, dt__arrival *a)
{
    dt__mail *m = dt__mail_of(c);
    if (!dt__req_fits(c, q, a->peer, &a->head)) {
        if (!c->members || a->head.space == DT__SPACE_REPLY) dt__arrival_free(m, a);
        else if (!a->linked && !dt__arrival_link(m, a)) dt__mail_memory(c, "a message"); /* another receive may take it */
        return;
    }
    dt__arrival_unlink(m, a);
    if (a->head.kind == DT__M_LARGE) {
        dt__mhead h = a->head;
        int       peer = a->peer;
        dt__arrival_free(m, a);
        dt__large_begin(c, q, peer, &h);
        return;
    }
    dt__req_tell(q, a->peer, &a->head);
    if (q->view) {
        q->view->data = dt__arrival_data(a);
        q->view->dt__hold = a;
    } else {
        dt__comm_copy(q->ptr, dt__arrival_data(a), (size_t)a->head.n);
        dt__arrival_free(m, a);
    }
    dt__req_finish(c, q, 0);
}
/* NULL: c has failed or, if it is tolerant, has expelled the peer. */
static char *dt__frame_broken(dt_comm *c, int peer, const dt__mhead *h)
{
    if (c->members) {
        char text[300], who[200];
        snprintf(text, sizeof text, "%s sent an invalid message frame to rank %d (mark %02x, kind %u, space %u, tag %d) and is expelled",
                 dt__comm_who(c, peer, true, who, sizeof who), c->rank, h->mark, h->kind, h->space, h->tag);
        dt__mail_expel(c, peer, text);
        return NULL;
    }
    dt__transport_fail(c, DT_COMM_ERR_NET, peer,
                       "rank %d sent an invalid message frame: mark %02x, kind %u, space %u, tag %d, %" PRIu64
                       " bytes; all ranks must use the same version of dt",
                       peer, h->mark, h->kind, h->space, h->tag, h->n);
    return NULL;
}
static inline bool dt__message_ok(const dt__mail_peer *p, const dt__mhead *h) /* of EAGER and LARGE frames */
{
    size_t each = dt__elem_nbytes(h->dtype & ~DT__M_DEVICE);
    return h->space < DT__SPACES && h->tag >= 0 && each && (h->dtype & DT__M_DEVICE || (h->n & (each - 1)) == 0) &&
           (h->kind == DT__M_EAGER ? h->n <= p->lane->eager : h->n <= (uint64_t)INT64_MAX / 2);
}
/* Tolerant: the payload of a message that has ended goes there. */
static char *dt__mail_sink(dt_comm *c, dt__mail_peer *p)
{
    if (!p->sink && !(p->sink = (char *)DT_COMM_MALLOC(p->lane->chunk > p->lane->eager ? p->lane->chunk : p->lane->eager)))
        dt__mail_memory(c, "a message that has ended");
    return p->sink;
}
DT__INSIDE char *dt__mail_want(dt_comm *c, int peer, const dt__mhead *h)
{
    dt__mail      *m = dt__mail_of(c);
    dt__mail_peer *p = &m->peer[peer];
    static char    nothing[8];
    if (h->mark != DT__M_MARK) return dt__frame_broken(c, peer, h);
    if (h->kind == DT__M_EAGER) {
        if (!dt__message_ok(p, h)) return dt__frame_broken(c, peer, h);
        bool     refusal = h->space == DT__SPACE_REPLY && h->ref;
        dt__req *q = dt__match_posted(m, peer, h);
        while (q && !refusal && !dt__req_fits(c, q, peer, h)) {
            if (!c->members) return NULL;
            q = dt__match_posted(m, peer, h);
        }
        p->in_req = q;
        if (q) q->state = DT__REQ_TAKING;
        if (q && (q->plain || !q->view) && !refusal) return h->n ? q->ptr : nothing;
        if (!q && (int64_t)(h->n + sizeof(dt__arrival)) > m->limit - m->memory) {
            dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank,
                          "rank %d holds %" PRId64 " bytes of messages and requests, the limit (.message_memory); a message from rank "
                          "%d with tag %d does not fit: receive messages earlier, or raise the limit",
                          c->rank, m->limit, peer, h->tag);
            return NULL;
        }
        p->in_arrival = dt__arrival_new(m, peer, h, (size_t)h->n);
        if (p->in_arrival) return dt__arrival_data(p->in_arrival);
        dt__mail_memory(c, "a message");
        if (q) dt__req_finish(c, q, c->status);
        p->in_req = NULL;
        return NULL;
    }
    if (h->kind == DT__M_DATA) {
        dt__req *q = dt__number_find(m, h->id, peer);
        if (!q && c->members && h->n <= p->lane->chunk) return dt__mail_sink(c, p);
        if (!q || q->send || q->state != DT__REQ_GRANTED || h->at < 0 || (uint64_t)h->at != q->done ||
            h->n > q->total - q->done || h->n == 0)
            return dt__frame_broken(c, peer, h);
        p->in_req = q;
        return q->ptr + q->done;
    }
    if (h->kind == DT__M_LARGE ? dt__message_ok(p, h) && (!c->members || peer == c->rank || h->at == -1)
                               : (h->kind >= DT__M_GRANT && h->kind <= DT__M_CANCELLED) || (h->kind == DT__M_DROP && c->members))
        return nothing;
    return dt__frame_broken(c, peer, h);
}
static void dt__large_came(dt_comm *c, int peer, const dt__mhead *h)
{
    dt__mail *m = dt__mail_of(c);
    dt__req  *q;
    while ((q = dt__match_posted(m, peer, h)) != NULL) {
        if (dt__req_fits(c, q, peer, h)) dt__large_begin(c, q, peer, h);
        else if (c->members) continue;
        return;
    }
    if (h->space == DT__SPACE_REPLY) { /* the call has given up: the sender needs to know nothing but that it is done */
        dt__notice_send(c, peer, DT__M_READ, h->id, 0);
        return;
    }
    dt__arrival *a = (int64_t)sizeof *a > m->limit - m->memory ? NULL : dt__arrival_new(m, peer, h, 0);
    if (!a || !dt__arrival_link(m, a)) dt__mail_memory(c, "messages that nobody receives: receive them earlier, or raise .message_memory");
}
static void dt__reply_refused(dt_comm *c, dt__req *q, dt__arrival *a) /* the payload of a refusal is its text */
{
    size_t n = (size_t)a->head.n;
    q->said = (char *)DT_COMM_MALLOC(n + 1);
    if (q->said) {
        memcpy(q->said, dt__arrival_data(a), n);
        q->said[n] = 0;
    }
    dt__arrival_free(dt__mail_of(c), a);
    dt__req_finish(c, q, DT_COMM_ERR_REMOTE);
}
static void dt__offer_forget(dt__mail *m, int peer, uint64_t id) /* 0: all offers of large messages of this peer */
{
    for (int space = 0; space < DT__SPACES; space++) {
        const dt__key *k = dt__key_find(m, peer, DT_ANY, space);
        for (dt__chain *l = k ? k->arrived.next : NULL, *next; l && l != &k->arrived; l = next) {
            dt__arrival *a = DT__OWNER(dt__arrival, link, l - 2);
            next = l->next;
            if (a->head.kind == DT__M_LARGE && (!id || a->head.id == id)) dt__arrival_free(m, a);
        }
    }
}
static void dt__drop_came(dt_comm *c, int peer, const dt__mhead *h) /* tolerant: the other side has given a large message up */
{
    dt__mail *m = dt__mail_of(c);
    if (h->at) { /* one that this rank sends */
        dt__req *q = dt__number_find(m, h->id, peer);
        if (!q || !q->send) return;
        dt__req_say(q, "the receiver gave it up: it made no progress for its timeout");
        dt__mail_abandon(c, q, DT_COMM_ERR_TIMEOUT);
        return;
    }
    dt__offer_forget(m, peer, h->id);
    for (uint32_t i = 0; i < m->numbers_cap; i++) {
        dt__req *q = m->turn[i] & 1 ? (dt__req *)m->number[i] : NULL;
        if (!q || q->send || q->peer != peer || q->remote != h->id) continue;
        dt__req_say(q, "the sender gave it up: it made no progress for its timeout");
        dt__req_finish(c, q, DT_COMM_ERR_TIMEOUT);
        return;
    }
}
DT__INSIDE void dt__mail_came(dt_comm *c, int peer, const dt__mhead *h)
{
    dt__mail      *m = dt__mail_of(c);
    dt__mail_peer *p = &m->peer[peer];
    dt__req       *q = p->in_req;
    m->progress = true;
    p->in_req = NULL;
    switch (h->kind) {
    case DT__M_EAGER: {
        dt__arrival *a = p->in_arrival;
        p->in_arrival = NULL;
        if (!q && !a) return; /* tolerant: its receive has ended */
        if (!q && !(q = dt__match_posted(m, peer, h))) { /* a receive may have been posted while it arrived */
            if (h->space == DT__SPACE_REPLY) dt__arrival_free(m, a); /* the call has given up */
            else if (!dt__arrival_link(m, a)) dt__mail_memory(c, "a message");
            return;
        }
        if (a && h->space == DT__SPACE_REPLY && h->ref) {
            dt__reply_refused(c, q, a);
            return;
        }
        if (a) {
            dt__arrival_deliver(c, q, a);
            return;
        }
        dt__req_tell(q, peer, h);
        dt__req_finish(c, q, 0);
        return;
    }
    case DT__M_LARGE: dt__large_came(c, peer, h); return;
    case DT__M_DATA:
        if (!q) return; /* tolerant: its receive has ended */
        q->done += (size_t)h->n;
        q->moved = dt__comm_coarse();
        if (q->done == q->total) dt__req_finish(c, q, 0);
        return;
    default: break;
    }
    if (h->kind == DT__M_CANCEL) { /* if it is not found it was received, and the sender hears of that */
        for (int space = 0; space < DT__SPACES; space++) {
            const dt__key *k = dt__key_find(m, peer, DT_ANY, space);
            for (dt__chain *l = k ? k->arrived.next : NULL; l && l != &k->arrived; l = l->next) {
                dt__arrival *a = DT__OWNER(dt__arrival, link, l - 2);
                if (a->head.kind != DT__M_LARGE || a->head.id != h->id) continue;
                dt__arrival_free(m, a);
                dt__notice_send(c, peer, DT__M_CANCELLED, h->id, 0);
                return;
            }
        }
        return;
    }
    if (h->kind == DT__M_DROP) {
        dt__drop_came(c, peer, h);
        return;
    }
    q = dt__number_find(m, h->id, peer);
    if (c->members && (!q || (q->send && q->state == DT__REQ_DATA && h->kind == DT__M_CANCELLED))) { /* it has ended here */
        if (h->kind == DT__M_GRANT) dt__notice_send(c, peer, DT__M_DROP, h->id, 0);
        return;
    }
    if (!q || !q->send || q->state != DT__REQ_OFFERED) {
        dt__frame_broken(c, peer, h);
    } else if (h->kind == DT__M_GRANT) {
        q->remote = (uint64_t)h->at;
        q->state = DT__REQ_DATA;
        q->done = 0;
        dt__chain_add(&p->data, &q->link);
        dt__peer_push(c, p);
    } else if (h->kind == DT__M_READ) dt__req_finish(c, q, 0);
    else dt__req_finish(c, q, q->why); /* CANCELLED */
}
enum { DT__COPY_STEP = 1 << 20 }; /* bytes that one poll copies of a message */
/* Copies past the caches: faster if there is more than they hold. */
DT__INSIDE void dt__copy_past(char *to, const char *from, size_t n)
{
#if defined(__SSE2__)
    size_t head = (16 - ((uintptr_t)to & 15)) & 15, page = 4096;
    if (n >= 2 * page) {
        memcpy(to, from, head);
        to += head, from += head, n -= head;
        for (; n >= page; to += page, from += page, n -= page) {
            for (size_t k = page; k < 2 * page && n >= 2 * page; k += 64) _mm_prefetch(from + k, _MM_HINT_T0);
            for (size_t k = 0; k < page; k += 64) {
                __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + k)),
                        b = _mm_loadu_si128((const __m128i *)(const void *)(from + k + 16)),
                        d = _mm_loadu_si128((const __m128i *)(const void *)(from + k + 32)),
                        e = _mm_loadu_si128((const __m128i *)(const void *)(from + k + 48));
                _mm_stream_si128((__m128i *)(void *)(to + k), a);
                _mm_stream_si128((__m128i *)(void *)(to + k + 16), b);
                _mm_stream_si128((__m128i *)(void *)(to + k + 32), d);
                _mm_stream_si128((__m128i *)(void *)(to + k + 48), e);
            }
        }
        _mm_sfence();
    }
#endif
    dt__comm_copy(to, from, n);
}
static void dt__copy_some(dt_comm *c, dt__req *q)
{
    dt__shared *s = (dt__shared *)c->shared;
    size_t      n = q->total - q->done < DT__COPY_STEP ? q->total - q->done : (size_t)DT__COPY_STEP;
    bool        far = s && q->peer != c->rank;
    if (far && !dt__shared_touch(s)) return;
    if (q->peek && !dt__peek(c, q->peer, q->ptr + q->done, q->from + q->done, n)) { /* never again: then the sender sends it */
        dt__chain_remove(&q->link);
        q->done = 0;
        dt__large_grant(c, q, q->peer);
        return;
    }
    if (!q->peek && n >= DT__COPY_STEP / 2 && dt__mail_of(c)->peer[q->peer].nlarge > 1)
        dt__copy_past(q->ptr + q->done, q->from + q->done, n);
    else if (!q->peek) dt__comm_copy(q->ptr + q->done, q->from + q->done, n);
    if (far) dt__shared_leave(s);
    /* A sender that has failed may use its memory for other things: it has said so before. */
    if (far && __atomic_load_n(&s->head->failing, __ATOMIC_ACQUIRE)) return;
    q->done += n;
    q->moved = dt__comm_coarse();
    dt__mail_of(c)->progress = true;
    if (q->done < q->total) return;
    dt__chain_remove(&q->link);
    int peer = q->peer;
    uint64_t id = q->remote;
    dt__req_finish(c, q, 0);
    dt__notice_send(c, peer, DT__M_READ, id, 0);
}
/* ---- sending */
static void dt__peer_dirty(dt__mail *m, dt__mail_peer *p)
{
    if (p->dirty) return;
    p->dirty = true;
    p->next_dirty = m->dirty;
    m->dirty = p;
}
static void dt__mhead_fill(dt__mhead *h, int kind, uint64_t id, int64_t at)
{
    h->mark = DT__M_MARK;
    h->kind = (uint8_t)kind;
    h->space = h->dtype = 0;
    h->tag = 0;
    h->n = 0;
    h->id = id;
    h->at = at;
    h->ref = 0;
}
static void dt__notice_send(dt_comm *c, int peer, int kind, uint64_t id, int64_t at)
{
    dt__mail      *m = dt__mail_of(c);
    dt__mail_peer *p = &m->peer[peer];
    dt__notice    *t = m->free_notices;
    if (p->gone) return;
    if ((m->nnotices + 1) * (int64_t)sizeof *t > m->limit) {
        dt__comm_fail(c, DT_COMM_ERR_MEMORY, peer, "rank %d sends messages and does not take the answers of rank %d: %" PRId64 " wait", peer,
                      c->rank, m->nnotices);
        return;
    }
    if (t) m->free_notices = t->next;
    else if (!(t = (dt__notice *)DT_COMM_MALLOC(sizeof *t))) {
        dt__mail_memory(c, "a notice");
        return;
    }
    m->nnotices++;
    dt__mhead_fill(&t->head, kind, id, at);
    t->next = NULL;
    if (p->last) p->last->next = t;
    else p->first = t;
    p->last = t;
    dt__peer_dirty(m, p); /* the poll sends it: the caller may be inside of the lane */
}
/* The first frame of a message: all of it, or an offer. */
static bool dt__send_frame(dt_comm *c, dt__mail_peer *p, dt__req *q)
{
    dt__mail *m = dt__mail_of(c);
    dt__outgoing  *o = &p->out;
    bool      small = q->n <= p->lane->eager;
    dt__mhead_fill(&o->head, small ? DT__M_EAGER : DT__M_LARGE, 0, 0);
    o->head.ref = q->ref;
    o->head.space = q->space;
    o->head.dtype = q->dtype;
    o->head.tag = q->tag;
    o->head.n = q->n;
    o->ptr = q->ptr;
    o->n = small ? q->n : 0;
    o->done = 0;
    if (!small) {
        if (!dt__number_new(m, q)) return false;
        o->head.id = q->id;
        o->head.at = p->rank == c->rank ? (int64_t)(uintptr_t)q->ptr
                     : p->lane->visible && !c->members ? dt__shared_at((const dt__shared *)c->shared, q->ptr, q->n)
                                        : -1;
        if (o->head.at < 0 && p->lane->visible && !c->members) o->head.at = -2 - (int64_t)(uintptr_t)q->ptr;
    }
    p->out_req = q;
    p->moving = true;
    q->state = DT__REQ_SENDING;
    return true;
}
static bool dt__peer_next(dt_comm *c, dt__mail_peer *p) /* prepares the next frame; false: there is none */
{
    dt__mail *m = dt__mail_of(c);
    bool      queued = !dt__chain_empty(&p->queued), data = !dt__chain_empty(&p->data);
    if (p->first) {
        dt__notice *t = p->first;
        p->first = t->next;
        if (!p->first) p->last = NULL;
        p->out.head = t->head;
        p->out.ptr = NULL;
        p->out.n = p->out.done = 0;
        p->out_req = NULL;
        t->next = m->free_notices;
        m->free_notices = t;
        m->nnotices--;
    } else if (data && (!queued || !p->data_last)) { /* messages and data in turn */
        dt__req *q = DT__OWNER(dt__req, link, p->data.next);
        size_t   n = q->n - q->done < p->lane->chunk ? q->n - q->done : p->lane->chunk;
        dt__mhead_fill(&p->out.head, DT__M_DATA, q->remote, (int64_t)q->done);
        p->out.head.n = p->out.n = n;
        p->out.ptr = q->ptr + q->done;
        p->out.done = 0;
        p->out_req = q;
        p->data_last = true;
    } else if (queued) {
        dt__req *q = DT__OWNER(dt__req, link, p->queued.next);
        dt__chain_remove(&q->link);
        p->data_last = false;
        if (!dt__send_frame(c, p, q)) {
            dt__mail_memory(c, "a large message");
            dt__req_finish(c, q, c->status);
            return false;
        }
    } else return false;
    p->moving = true;
    return true;
}
static void dt__peer_sent(dt_comm *c, dt__mail_peer *p) /* the frame is sent */
{
    dt__mail *m = dt__mail_of(c);
    dt__req  *q = p->out_req;
    p->moving = false;
    if (p->spill) DT_COMM_FREE(p->spill), p->spill = NULL;
    if (p->out.head.kind != DT__M_EAGER || !dt__chain_empty(&p->queued)) p->moved = dt__comm_coarse();
    m->progress = true;
    p->out_req = NULL;
    if (!q) return;
    if (p->out.head.kind == DT__M_EAGER) dt__req_finish(c, q, 0);
    else if (p->out.head.kind == DT__M_LARGE) {
        /* on a lane to itself the receive may be done already, and q with it */
        if (dt__number_find(m, p->out.head.id, p->rank) != q) return;
        q->state = DT__REQ_OFFERED;
        if (q->cancel) dt__notice_send(c, p->rank, DT__M_CANCEL, q->id, 0);
    } else {
        q->done += p->out.n;
        if (q->done < q->n) return;
        dt__chain_remove(&q->link);
        dt__req_finish(c, q, 0);
    }
}
enum { DT__PUSH_STEP = 1 << 20 }; /* bytes to one peer between two looks at what comes */
static void dt__peer_push(dt_comm *c, dt__mail_peer *p)
{
    dt__mail *m = dt__mail_of(c);
    size_t    moved = 0;
    if (p->gone) return;
    if (p->pushing) return; /* a handler on the lane to this rank itself has sent something: the loop below finds it */
    p->pushing = true;
    while (dt__comm_ok(c) && !p->gone && (p->moving || dt__peer_next(c, p))) {
        size_t before = p->out.done;
        int    rc = moved < DT__PUSH_STEP ? p->lane->put(c, p->rank, &p->out) : 0;
        if (rc == 0) {
            if (p->out.done != before) m->progress = true, p->moved = dt__comm_coarse();
            dt__peer_dirty(m, p);
        }
        if (rc <= 0) break;
        moved += p->out.n;
        dt__peer_sent(c, p);
    }
    p->pushing = false;
}
/* A message to this rank itself: its frames go straight to the receiving side. */
static int dt__self_put(dt_comm *c, int peer, dt__outgoing *o)
{
    dt__mhead h = o->head; /* *o may be used again in dt__mail_came */
    char     *to = dt__mail_want(c, peer, &h);
    if (!to) return dt__transport_status(c);
    if (o->n) memcpy(to, o->ptr, o->n);
    if (h.kind == DT__M_LARGE && o == &dt__mail_of(c)->peer[peer].out) dt__mail_of(c)->peer[peer].out_req->state = DT__REQ_OFFERED;
    dt__mail_came(c, peer, &h);
    return 1;
}
static const dt__lane dt__lane_self = { "self", 4096, (size_t)1 << 40, true, NULL, dt__self_put, NULL, NULL, NULL, NULL, NULL, NULL, NULL };

DT__INSIDE void dt__mail_post(dt_comm *c, dt__req *q)
{
    dt__mail *m = dt__mail_of(c);
    if (!q->send) {
        dt__arrival *a = dt__arrival_first(m, q->peer, q->tag, q->space);
        q->order = ++m->order;
        q->plain = !q->info && !q->view && !q->done_fn && q->space == DT__SPACE_USER;
        if (a) {
            m->npending++;
            dt__arrival_deliver(c, q, a);
            return;
        }
        if (q->peer >= 0 && m->peer[q->peer].over) {
            m->npending++;
            dt__req_finish(c, q, DT_COMM_ERR_PEER);
            return;
        }
        q->state = DT__REQ_POSTED;
        dt__posted_add(m, q);
        dt__req_wait(m, q);
        return;
    }
    dt__mail_peer *p = &m->peer[q->peer];
    m->npending++;
    if (p->gone || (__builtin_expect(dt__mail_stale(c), 0) && dt__members_how(c, q->peer, NULL, 0))) {
        dt__req_finish(c, q, DT_COMM_ERR_PEER);
        return;
    }
    q->state = DT__REQ_QUEUED;
    dt__chain_add(&p->queued, &q->link);
    dt__req_wait(m, q);
    if (!p->dirty) dt__peer_push(c, p);
}
static void dt__mail_push(dt_comm *c) /* sends what waits to be sent */
{
    dt__mail      *m = dt__mail_of(c);
    dt__mail_peer *p = m->dirty;
    m->dirty = NULL;
    for (dt__mail_peer *next; p; p = next) { /* those that are not done are dirty again */
        next = p->next_dirty;
        p->dirty = false;
        if (dt__comm_ok(c)) dt__peer_push(c, p);
    }
}
DT__INSIDE bool dt__mail_poll(dt_comm *c)
{
    dt__mail *m = dt__mail_of(c);
    m->progress = false;
    if (m->inside && m->inside->poll) m->inside->poll(c);
    if (__builtin_expect(dt__mail_stale(c), 0)) dt__mail_members(c);
    if (m->across && m->across->poll && dt__comm_ok(c)) m->across->poll(c);
    for (dt__chain *l = m->copying.next, *next; l != &m->copying && dt__comm_ok(c); l = next) {
        next = l->next;
        dt__copy_some(c, DT__OWNER(dt__req, link, l));
    }
    dt__mail_push(c);
    return m->progress;
}
DT__INSIDE bool dt__mail_hint(dt_comm *c) /* cheap: is there something to do? */
{
    dt__mail *m = dt__mail_of(c);
    if (!m) return false;
    if (m->npending || m->dirty || dt__mail_stale(c)) return true;
    if (m->inside && (!m->inside->hint || m->inside->hint(c))) return true; /* without a hint only a poll can tell */
    return m->across && (!m->across->hint || m->across->hint(c));
}
DT__INSIDE bool dt__mail_probe(dt_comm *c, int peer, int tag, dt_msg_info *info)
{
    const dt__arrival *a = dt__arrival_first(dt__mail_of(c), peer, tag, DT__SPACE_USER);
    if (!a) return false;
    info->from = a->peer;
    info->tag = a->head.tag;
    info->dtype = a->head.dtype & ~DT__M_DEVICE;
    info->n = a->head.dtype & DT__M_DEVICE ? a->head.ref : (int64_t)(a->head.n / dt__elem_nbytes(info->dtype));
    return true;
}
static void dt__posted_remove(dt__mail *m, dt__req *q) /* a receive that waits is pending from now on */
{
    dt__posted_take(m, dt__posted_find(m, q->peer, q->tag, q->space), q);
}
static void dt__posted_end(dt_comm *c, dt__req *q, int status) /* ends a receive that waits */
{
    dt__posted_remove(dt__mail_of(c), q);
    dt__req_finish(c, q, status);
}
DT__INSIDE bool dt__mail_cancel(dt_comm *c, dt__req *q, int why)
{
    dt__mail *m = dt__mail_of(c);
    switch (q->state) {
    case DT__REQ_POSTED:
        if (q->partner) { /* a call: its request may still use the caller's memory */
            dt__posted_remove(m, q);
            q->state = DT__REQ_ENDING;
            q->cancel = true;
            q->why = (int16_t)why;
            dt__mail_cancel(c, q->partner, why);
        } else dt__posted_end(c, q, why);
        return true;
    case DT__REQ_ENDING: return true;
    case DT__REQ_QUEUED:
        dt__chain_remove(&q->link);
        dt__req_finish(c, q, why);
        return true;
    case DT__REQ_OFFERED: /* the answer is CANCELLED, or the receiver takes it after all */
    case DT__REQ_SENDING:
        if (q->n <= m->peer[q->peer].lane->eager) return false;
        if (q->cancel) return true;
        q->cancel = true;
        q->why = (int16_t)why;
        if (q->state == DT__REQ_OFFERED) dt__notice_send(c, q->peer, DT__M_CANCEL, q->id, 0);
        return true;
    default: return false;
    }
}
DT__INSIDE void dt__view_free(dt_comm *c, dt_msg_view *v)
{
    if (v->dt__hold) dt__arrival_free(dt__mail_of(c), (dt__arrival *)v->dt__hold);
    else if (v->dt__id) dt__notice_send(c, v->info.from, DT__M_READ, v->dt__id, 0);
    memset(v, 0, sizeof *v);
}
/* ---- members that go, and messages that end in the middle: tolerant communicators only. Large messages are never read in
   place there, so a message can end at any time: only frames use its memory. */
/* q ends although its peer may still use it: what is left of its frame is copied, its offer is taken back. */
static void dt__mail_abandon(dt_comm *c, dt__req *q, int status)
{
    dt__mail      *m = dt__mail_of(c);
    dt__mail_peer *p = q->peer >= 0 ? &m->peer[q->peer] : NULL;
    dt__req       *request = q->partner && q->state == DT__REQ_ENDING ? q->partner : NULL;
    if (request) { /* a call that ends: its request uses the caller's memory */
        dt__mail_abandon(c, request, status);
        return;
    }
    if (q->state == DT__REQ_POSTED && q->partner) {
        dt__posted_remove(m, q);
        q->state = DT__REQ_ENDING;
        q->cancel = true;
        q->why = (int16_t)status;
        dt__mail_abandon(c, q->partner, status); /* ends q, too */
        return;
    }
    if (q->state == DT__REQ_POSTED) {
        dt__posted_end(c, q, status);
        return;
    }
    if (p && p->out_req == q) { /* its frame is moving */
        p->out_req = NULL;
        if (p->out.done == 0) p->moving = false; /* nothing of it has left */
        else if (p->moving && p->out.n && !p->gone) {
            p->spill = (char *)DT_COMM_MALLOC(p->out.n);
            if (!p->spill) {
                dt__mail_memory(c, "a message that has ended");
                return;
            }
            memcpy(p->spill, p->out.ptr, p->out.n);
            p->out.ptr = p->spill;
        }
    }
    if (p && p->in_req == q) { /* its payload arrives */
        p->in_req = NULL;
        if (!p->gone && !p->in_arrival) {
            char *to = dt__mail_sink(c, p);
            if (!to) return; /* c has failed */
            if (p->lane->redirect) p->lane->redirect(c, p->rank, to);
        }
    }
    if (q->link.next) dt__chain_remove(&q->link);
    if (q->send && q->id && q->peer == c->rank) dt__offer_forget(m, c->rank, q->id);
    else if (q->send && q->id) dt__notice_send(c, q->peer, DT__M_DROP, q->id, 0);
    if (!q->send && q->state == DT__REQ_GRANTED) dt__notice_send(c, q->peer, DT__M_DROP, q->remote, 1);
    dt__req_finish(c, q, status);
}
/* The peer breaks the protocol: all members are told that it is out. */
static void dt__mail_expel(dt_comm *c, int peer, const char *text)
{
    dt__members_part(c, peer, DT__DIED, text); /* the next poll ends its messages: a lane may be in use now */
}
/* Rare events walk through all messages, while some of them end: then all are in lists. */
static void dt__queue_empty(dt__mail *m)
{
    for (const dt__waiting *t; (t = dt__queue_first(m)) != NULL;) {
        dt__req *q = t->q;
        int64_t  since = t->since;
        dt__queue_remove(m, q);
        if (since < 0) dt__chain_add(&m->fresh, &q->wait);
        else dt__req_date(m, q, since);
    }
}
static bool dt__of_peer(const dt__req *q, int peer, bool send) { return q->peer == peer && q->send == send; }
/* Ends all messages to (send) or from this peer. */
static void dt__peer_end(dt_comm *c, int peer, bool send)
{
    dt__mail  *m = dt__mail_of(c);
    dt__chain *list[4];
    list[0] = &m->fresh;
    list[1] = &m->dated;
    list[2] = &m->own;
    list[3] = &m->forever;
    dt__queue_empty(m);
    for (int i = 0; i < 4; i++)
        for (dt__chain *l = list[i]->next; l != list[i];) {
            dt__req *q = DT__OWNER(dt__req, wait, l);
            if (!dt__of_peer(q, peer, send) || (q->state == DT__REQ_ENDING && !send)) l = l->next;
            else {
                if (q->state == DT__REQ_POSTED) dt__posted_end(c, q, DT_COMM_ERR_PEER);
                else dt__mail_abandon(c, q, DT_COMM_ERR_PEER);
                l = list[i]->next; /* others may have ended with it */
            }
        }
}
#define DT__GOING_NS DT__NS_PER_S /* the last frames of a member that has gone are waited for no longer */
static void dt__peer_gone(dt_comm *c, dt__mail_peer *p, int64_t now)
{
    dt__mail *m = dt__mail_of(c);
    p->gone = true;
    p->gone_at = now;
    m->ngoing++;
    dt__peer_end(c, p->rank, true);
    p->moving = false;
    p->out_req = NULL;
    for (dt__notice *t = p->first, *next; t; t = next) {
        next = t->next;
        t->next = m->free_notices;
        m->free_notices = t;
        m->nnotices--;
    }
    p->first = p->last = NULL;
}
static void dt__peer_over(dt_comm *c, dt__mail_peer *p)
{
    dt__mail *m = dt__mail_of(c);
    p->over = true;
    m->ngoing--;
    if (p->in_arrival) dt__arrival_free(m, p->in_arrival);
    p->in_arrival = NULL;
    dt__peer_end(c, p->rank, false);
    p->in_req = NULL;
    dt__offer_forget(m, p->rank, 0);
    if (p->lane->forget) p->lane->forget(c, p->rank);
}
DT__INSIDE bool dt__mail_sending(const dt_comm *c)
{
    const dt__mail *m = dt__mail_of(c);
    for (int i = 0; m && i < c->size; i++) {
        const dt__mail_peer *p = &m->peer[i];
        if (!p->gone && i != c->rank && (p->moving || p->first || !dt__chain_empty(&p->queued))) return true;
    }
    return false;
}
DT__INSIDE bool dt__mail_members(dt_comm *c)
{
    dt__mail *m = dt__mail_of(c);
    int64_t   now = dt__comm_now();
    bool      any = false;
    uint32_t  changes = __atomic_load_n(&c->members->changes, __ATOMIC_ACQUIRE);
    if (changes != m->changes) {
        m->changes = changes;
        for (int size = dt__comm_known(c), i = c->size; i < size; i++) {
            if (c->world) c->host[i] = c->world->member[c->member[i]].host; /* its row does not change */
            __atomic_store_n(&c->size, i + 1, __ATOMIC_RELEASE);
            m->taken = 0; /* its connection may have arrived before */
            any = true;
        }
        for (int i = 0; i < c->size; i++)
            if (i != c->rank && !m->peer[i].gone && dt__members_how(c, i, NULL, 0)) dt__peer_gone(c, &m->peer[i], now), any = true;
    }
    for (int i = 0; m->ngoing && i < c->size; i++) {
        dt__mail_peer *p = &m->peer[i];
        if (!p->gone || p->over) continue;
        if (p->lane->ended && !p->lane->ended(c, i) && now - p->gone_at < DT__GOING_NS) continue;
        dt__peer_over(c, p);
        any = true;
    }
    m->progress = m->progress || any;
    return any;
}
/* ---- deadlines. Looked at while the driver waits, not in its first polls: most messages need no clock. */
static int64_t dt__req_end(const dt__req *q) { return q->since + (q->timeout > 0 ? dt__ns_of(q->timeout) : 0); }
static void    dt__req_date(dt__mail *m, dt__req *q, int64_t since) /* its time begins; both lists are sorted by dt__req_end */
{
    dt__req_leave(m, q);
    q->since = since;
    if (!q->w.started) q->w.started = since;
    dt__chain *list = q->timeout > 0 ? &m->own : &m->dated, *l = list->prev;
    while (l != list && dt__req_end(DT__OWNER(dt__req, wait, l)) > dt__req_end(q)) l = l->prev; /* usually none */
    dt__chain_add(l->next, &q->wait); /* before the one after l */
}
static void dt__req_late(dt_comm *c, dt__req *q, int64_t now) /* it has not moved for the timeout of the communicator */
{
    char peer[32];
    bool blame = q->peer >= 0 && q->peer != c->rank;
    if (c->members) { /* it ends alone */
        dt__mail_abandon(c, q, DT_COMM_ERR_TIMEOUT);
        return;
    }
    if (c->world && !q->asked && q->peer != c->rank) {
        q->asked = true;
        dt__world_ask(c->world, c, 0, q->peer, q->send ? DT__ASK_SEND : DT__ASK_RECV, q->tag);
        return;
    }
    if (c->world && q->asked && now - q->since < dt__ns_of(c->timeout) + 2 * DT__NS_PER_S) return;
    dt__comm_fail(c, DT_COMM_ERR_TIMEOUT, blame ? q->peer : -1, "rank %d: %s %s %s (tag %d) made no progress for %g s, the timeout",
                  c->rank, q->call, q->send ? "to" : "from", dt__rank_or_any(q->peer, peer, sizeof peer), q->tag, c->timeout);
}
DT__INSIDE void dt__mail_overdue(dt_comm *c, int64_t now)
{
    dt__mail *m = dt__mail_of(c);
    int64_t   patience = dt__ns_of(c->timeout);
    bool      ask = false;
    while (!dt__chain_empty(&m->fresh)) dt__req_date(m, DT__OWNER(dt__req, wait, m->fresh.next), now);
    dt__queue_date(m, now);
    for (const dt__waiting *t; (t = dt__queue_first(m)) != NULL && now - t->since > patience;)
        dt__req_date(m, t->q, t->since); /* late: the rest is done in the list */
    while (!dt__chain_empty(&m->own)) {
        dt__req *q = DT__OWNER(dt__req, wait, m->own.next);
        if (now < dt__req_end(q)) break;
        dt__mail_cancel(c, q, DT_COMM_ERR_TIMEOUT);
        if (m->own.next != &q->wait) continue; /* it has ended, and its memory may be in use for something else */
        q->timeout = 0; /* it moves, or waits for an answer: from now on the timeout of the communicator counts */
        dt__req_date(m, q, now);
        ask = true;
    }
    if (ask) dt__mail_push(c); /* the driver may sleep after this */
    while (!dt__chain_empty(&m->dated) && dt__comm_ok(c)) {
        dt__req *q = DT__OWNER(dt__req, wait, m->dated.next);
        int64_t  moved = q->send ? m->peer[q->peer].moved : q->moved;
        if (now - q->since <= patience) break;
        if (moved > q->since && now - moved <= patience) { /* it has moved, or messages before it have */
            q->asked = false;
            dt__req_date(m, q, moved);
            continue;
        }
        dt__req_late(c, q, now);
        if (!c->members) break;
    }
}
DT__INSIDE int64_t dt__mail_next(dt_comm *c)
{
    dt__mail *m = dt__mail_of(c);
    int64_t   at = INT64_MAX;
    if (!m) return at;
    if (!dt__chain_empty(&m->fresh) || m->nfresh) return 0;
    for (int i = 0; m->ngoing && i < c->size; i++)
        if (m->peer[i].gone && !m->peer[i].over && m->peer[i].gone_at + DT__GOING_NS < at) at = m->peer[i].gone_at + DT__GOING_NS;
    if (!dt__chain_empty(&m->dated)) {
        const dt__req *q = DT__OWNER(dt__req, wait, m->dated.next);
        int64_t due = q->since + dt__ns_of(c->timeout) + (q->asked ? 2 * DT__NS_PER_S : 0) + DT__NS_PER_US;
        if (due < at) at = due;
    }
    const dt__waiting *t = dt__queue_first(m);
    if (t) {
        int64_t due = t->since + dt__ns_of(c->timeout) + DT__NS_PER_US;
        if (due < at) at = due;
    }
    if (!dt__chain_empty(&m->own)) {
        const dt__req *q = DT__OWNER(dt__req, wait, m->own.next);
        if (dt__req_end(q) < at) at = dt__req_end(q);
    }
    return at;
}
DT__INSIDE void dt__mail_fail(dt_comm *c, int status)
{
    dt__mail *m = dt__mail_of(c);
    dt__chain *list[4];
    if (!m) return;
    list[0] = &m->fresh;
    list[1] = &m->dated;
    list[2] = &m->own;
    list[3] = &m->forever;
    dt__queue_empty(m);
    for (int i = 0; i < 4; i++)
        while (!dt__chain_empty(list[i])) {
            dt__req *q = DT__OWNER(dt__req, wait, list[i]->next);
            if (q->state == DT__REQ_POSTED) {
                dt__posted_end(c, q, status);
                continue;
            }
            if (q->link.next) dt__chain_remove(&q->link);
            dt__req_finish(c, q, status);
        }
    for (int i = 0; i < c->size; i++) {
        m->peer[i].in_req = m->peer[i].out_req = NULL;
        m->peer[i].dirty = false;
    }
    m->dirty = NULL; /* nothing is left to do: the mail is not active any more */
    if (m->nserved) m->nserved = 0;
}
/* ---- opening and closing */
enum { DT__LANES = 8 };
static const dt__lane *dt__lane_registered[DT__LANES];
DT__INSIDE void dt__lane_register(const dt__lane *l)
{
    for (int i = 0; i < DT__LANES; i++)
        if (!dt__lane_registered[i] || dt__lane_registered[i] == l) {
            dt__lane_registered[i] = l;
            return;
        }
}
static const dt__lane *dt__lane_named(const char *name);
DT__INSIDE int dt__mail_open(dt_comm *c)
{
    dt__mail *m = (dt__mail *)dt__comm_zeroed(1, sizeof *m);
    int       bad = 0;
    if (m) {
        m->nbuckets = 64;
        m->bucket = (dt__key **)dt__comm_zeroed(m->nbuckets, sizeof *m->bucket);
        m->posted_cap = 64;
        m->posted = m->last_posted = (dt__req **)dt__comm_zeroed(m->posted_cap, sizeof *m->posted);
        m->peer = (dt__mail_peer *)dt__comm_zeroed((size_t)dt__comm_room(c), sizeof *m->peer);
    }
    if (!m || !m->bucket || !m->posted || !m->peer) {
        if (m) DT_COMM_FREE(m->bucket), DT_COMM_FREE(m->posted), DT_COMM_FREE(m->peer);
        DT_COMM_FREE(m);
        return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory for messages");
    }
    m->free_number = UINT32_MAX;
    m->limit = c->opts.message_memory > 0 ? c->opts.message_memory : INT64_C(1) << 28;
    dt__chain_init(&m->fresh);
    dt__chain_init(&m->dated);
    dt__chain_init(&m->own);
    dt__chain_init(&m->forever);
    dt__chain_init(&m->copying);
    c->mail = m;
    m->inside = c->inside ? dt__lane_named(c->inside->name) : NULL;
    m->across = c->across ? dt__lane_named(c->across->name) : NULL;
    for (int i = 0; i < dt__comm_room(c); i++) { /* those that join later, too: they are threads, or use sockets */
        dt__mail_peer *p = &m->peer[i];
        bool           near = c->threads || (i < c->size && c->host[i] == c->host[c->rank]);
        p->rank = i;
        p->lane = i == c->rank ? &dt__lane_self : m->inside && near ? m->inside : m->across;
        dt__chain_init(&p->queued);
        dt__chain_init(&p->data);
    }
    if (m->inside && m->inside->open) bad = m->inside->open(c, m);
    if (!bad && m->across && m->across->open) bad = m->across->open(c, m);
    return bad;
}
DT__INSIDE void dt__mail_close(dt_comm *c)
{
    dt__mail *m = dt__mail_of(c);
    if (!m) return;
    if (m->narrived && dt__comm_ok(c)) {
        const dt__arrival *a = dt__arrival_first(m, DT_ANY, DT_ANY, DT__SPACE_USER);
        if (a)
            dt__logf(2, "rank %d frees a communicator with %d messages that were never received, the first from rank %d with tag %d",
                     c->rank, m->narrived, a->peer, a->head.tag);
    }
    if (m->inside && m->inside->close) m->inside->close(c);
    if (m->across && m->across->close) m->across->close(c);
    for (int i = 0; i < dt__comm_room(c); i++) {
        dt__mail_peer *p = &m->peer[i];
        for (dt__notice *t = p->first, *next; t; t = next) {
            next = t->next;
            DT_COMM_FREE(t);
        }
        if (p->in_arrival) dt__arrival_free(m, p->in_arrival);
        DT_COMM_FREE(p->spill);
        DT_COMM_FREE(p->sink);
    }
    for (int space = 0; space < DT__SPACES; space++)
        for (dt__arrival *a; (a = dt__arrival_first(m, DT_ANY, DT_ANY, space)) != NULL;) dt__arrival_free(m, a);
    for (int k = 0; k < DT__ARRIVAL_CLASSES; k++)
        for (dt__arrival *a = m->free_arrivals[k], *next; a; a = next) {
            next = (dt__arrival *)(void *)a->link[0].next;
            DT_COMM_FREE(a);
        }
    for (dt__notice *t = m->free_notices, *next; t; t = next) {
        next = t->next;
        DT_COMM_FREE(t);
    }
    for (size_t i = 0; i < m->nbuckets; i++)
        for (dt__key *k = m->bucket[i], *next; k; k = next) {
            next = k->chain;
            DT_COMM_FREE(k->block);
        }
    for (dt__key *k = m->free_keys, *next; k; k = next) {
        next = k->chain;
        DT_COMM_FREE(k->block);
    }
    DT_COMM_FREE(m->bucket);
    DT_COMM_FREE(m->posted);
    DT_COMM_FREE(m->peer);
    DT_COMM_FREE(m->queue);
    DT_COMM_FREE(m->number);
    DT_COMM_FREE(m->turn);
    DT_COMM_FREE(m);
    c->mail = NULL;
}

/* ==================================================================================================== >>rings
   A ring of cells for each ordered pair of ranks of a machine, in their shared segment. A frame takes whole cells: its
   number, the header, the payload. The sender writes the number last; it is the position of the cell + 1, and positions
   only grow. Before that it clears the number of the cell behind the frame, so the receiver never takes old bytes for a
   frame. A frame that does not fit before the end of the ring begins at its start, after a SKIP frame.

   The sender takes memory for the ring before its first frame and then sets its byte in the row of the receiver; the
   receiver looks at rings only after that. With more than DT__RINGS_FEW ranks a sender sets the byte for every frame, so
   that the receiver looks at one row instead of all rings. */
enum { DT__RINGS_FEW = 8 };
typedef struct dt__pair { /* with another rank of this machine */
    dt__ring *out, *in;
    uint64_t  head, room;      /* outgoing: position of the next frame; the receiver's tail as last seen */
    uint64_t  tail;            /* incoming: position of the next frame */
    int64_t   proved;          /* ns: when its proof was last read; 0: never */
    bool      opened;          /* outgoing: memory is there */
    uint8_t   open;            /* incoming: the sender has sent something; 2: something may be there */
    bool      no_peek;         /* its memory cannot be read */
} dt__pair;
typedef struct dt__rings {
    uint64_t  ncells;          /* of each ring, a power of 2 */
    dt__pair *pair;            /* by index of the rank on this machine */
    int      *list, nlist;     /* incoming rings that are open */
    uint8_t   proof[DT__PROOF]; /* as in this rank's slot */
} dt__rings;
typedef struct dt__cell {
    uint64_t  no;
    dt__mhead head;
    char      payload[DT__RING_CELL - 8 - sizeof(dt__mhead)];
} dt__cell;
typedef char dt__cell_size[sizeof(dt__cell) == DT__RING_CELL ? 1 : -1];
enum { DT__RING_EAGER = 16 << 10, DT__RING_CHUNK = 32 << 10 };

static dt__rings *dt__rings_of(const dt_comm *c) { return (dt__rings *)dt__mail_of(c)->rings; }
static dt__cell *dt__ring_cell(const dt__rings *r, dt__ring *g, uint64_t at)
{
    return (dt__cell *)(void *)((char *)g->cell + (at & (r->ncells - 1)) * DT__RING_CELL);
}
static uint64_t dt__ring_cells(size_t payload) { return (offsetof(dt__cell, payload) + payload + DT__RING_CELL - 1) / DT__RING_CELL; }
static int      dt__rings_open(dt_comm *c, dt__mail *m)
{
    const dt__shared *s = (const dt__shared *)c->shared;
    size_t            n = (size_t)s->n;
    dt__rings        *r = (dt__rings *)dt__comm_zeroed(1, sizeof *r + n * (sizeof(dt__pair) + sizeof(int)));
    if (!r) return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory for messages");
    r->ncells = dt__ring_ncells(s->n);
    r->pair = (dt__pair *)(void *)(r + 1);
    r->list = (int *)(void *)(r->pair + n);
    for (int i = 0; i < s->n; i++) {
        r->pair[i].out = dt__ring_of(s, s->me, i);
        r->pair[i].in = dt__ring_of(s, i, s->me);
    }
    m->rings = r;
    if (s->fd < 0) return 0;
    dt__rank_slot *slot = dt__slot_of(s, s->me);
    if (!dt__comm_random(r->proof, sizeof r->proof)) return dt__comm_bad(DT_COMM_ERR_NET, "dt_comm_init: getrandom failed");
    memcpy(slot->proof, r->proof, sizeof r->proof);
    slot->proof_at = (uint64_t)(uintptr_t)r->proof;
    __atomic_store_n(&slot->pid, (int32_t)getpid(), __ATOMIC_RELEASE); /* 0 before */
    return 0;
}
static void dt__rings_close(dt_comm *c)
{
    dt__mail *m = dt__mail_of(c);
    DT_COMM_FREE(m->rings);
    m->rings = NULL;
}
/* ---- reading the memory of another process. The kernel allows it to processes of the same user, unless the machine forbids
   it; then messages go through the rings. The number of a process may come to mean another process, though not soon: if the
   last proof is old, it is read after the message. It is random bytes at an address that the rank has told; they must be
   those in its slot. */
#define DT__PROOF_NS (100 * DT__NS_PER_MS)
#ifndef DT__VM_READ /* tests replace it */
#define DT__VM_READ(pid, to, from) ((ssize_t)syscall(SYS_process_vm_readv, pid, to, 1ul, from, 1ul, 0ul))
#endif
static bool dt__peek_may(dt_comm *c, int peer)
{
    const dt__shared *s = (const dt__shared *)c->shared;
    const dt__rings  *r = dt__rings_of(c);
    return r && s->fd >= 0 && s->index[peer] >= 0 && !r->pair[s->index[peer]].no_peek &&
           __atomic_load_n(&dt__slot_of(s, s->index[peer])->pid, __ATOMIC_ACQUIRE) > 0;
}
static bool dt__peek_at(int pid, void *to, uint64_t from, size_t n)
{
    struct iovec here, there;
    here.iov_base = to;
    there.iov_base = (void *)(uintptr_t)from;
    here.iov_len = there.iov_len = n;
    return DT__VM_READ(pid, &here, &there) == (ssize_t)n;
}
static bool dt__peek(dt_comm *c, int peer, void *to, const char *from, size_t n) /* false: it is not possible */
{
    const dt__shared    *s = (const dt__shared *)c->shared;
    dt__pair            *p = &dt__rings_of(c)->pair[s->index[peer]];
    const dt__rank_slot *t = dt__slot_of(s, s->index[peer]);
    uint8_t              proof[DT__PROOF];
    bool                 ok = dt__peek_at(t->pid, to, (uint64_t)(uintptr_t)from, n);
    int64_t              now = dt__comm_coarse();
    if (ok && (!p->proved || now - p->proved > DT__PROOF_NS)) {
        ok = dt__peek_at(t->pid, proof, t->proof_at, sizeof proof) && !memcmp(proof, t->proof, sizeof proof);
        p->proved = now;
    }
    p->no_peek = !ok;
    return ok;
}
static int dt__ring_put(dt_comm *c, int peer, dt__outgoing *o)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__rings  *r = dt__rings_of(c);
    int         to = s->index[peer];
    dt__pair   *p = &r->pair[to];
    uint64_t    need = dt__ring_cells(o->n), at = p->head, left = r->ncells - (at & (r->ncells - 1));
    uint64_t    skip = need > left ? left : 0;
    if (!p->opened) {
        if (!dt__segment_take(s->fd, (int64_t)((char *)p->out - s->base), (int64_t)dt__ring_nbytes(s->n)))
            return dt__comm_fail(c, DT_COMM_ERR_MEMORY, c->rank, "rank %d: cannot allocate shared memory for messages to rank %d: %s",
                                 c->rank, peer, strerror(errno));
    }
    if (at + skip + need + 1 - p->room > r->ncells) {
        p->room = __atomic_load_n(&p->out->tail, __ATOMIC_ACQUIRE);
        if (at + skip + need + 1 - p->room > r->ncells) return 0;
    }
    if (skip) {
        dt__cell *e = dt__ring_cell(r, p->out, at);
        e->head.kind = DT__M_SKIP;
        __atomic_store_n(&dt__ring_cell(r, p->out, at + skip)->no, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&e->no, at + 1, __ATOMIC_RELEASE);
        at += skip;
    }
    dt__cell *e = dt__ring_cell(r, p->out, at), *next = dt__ring_cell(r, p->out, at + need);
    e->head = o->head;
    if (o->n) memcpy((char *)e + offsetof(dt__cell, payload), o->ptr, o->n);
    __atomic_store_n(&next->no, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&e->no, at + 1, __ATOMIC_RELEASE);
    p->head = at + need;
    o->done = sizeof o->head + o->n;
    if (need <= 64) dt__own_lines((char *)next, 128); /* the next frame will be written there */
    if (!p->opened || s->n > DT__RINGS_FEW) {
        p->opened = true;
        __atomic_store_n(dt__ring_row(s, to) + s->me, 1, __ATOMIC_RELEASE);
    }
    dt__shared_ring_to(s, to);
    return 1;
}
/* A frame with n bytes of payload was used: its cells are free. Returns the position of the next. */
static uint64_t dt__ring_used(dt__shared *s, const dt__rings *r, int from, size_t n)
{
    dt__pair *p = &r->pair[from];
    uint64_t  before = p->tail, at = before + dt__ring_cells(n);
    p->tail = at;
    __atomic_store_n(&p->in->tail, at, __ATOMIC_RELEASE);
    /* the sender may wait for room: not for every small frame */
    if (n > DT__RING_CELL || (at ^ before) & ~(r->ncells / 4 - 1)) dt__shared_ring_to(s, from);
    return at;
}
/* Takes all frames of one sender. */
static void dt__ring_drain(dt_comm *c, dt__shared *s, dt__rings *r, int from)
{
    dt__pair *p = &r->pair[from];
    uint64_t  at = p->tail;
    int       peer = s->rank[from];
    for (;;) {
        dt__cell *e = dt__ring_cell(r, p->in, at);
        if (__atomic_load_n(&e->no, __ATOMIC_ACQUIRE) != at + 1) break;
        dt__mhead h = e->head;
        if (h.kind == DT__M_SKIP) {
            at += r->ncells - (at & (r->ncells - 1));
            p->tail = at;
            continue;
        }
        size_t n = dt__mhead_payload(&h);
        char  *to = n <= DT__RING_CHUNK ? dt__mail_want(c, peer, &h) : dt__frame_broken(c, peer, &h);
        if (!to) return; /* c has failed, or the peer is expelled */
        dt__comm_copy(to, (char *)e + offsetof(dt__cell, payload), n);
        at = dt__ring_used(s, r, from, n);
        dt__mail_came(c, peer, &h);
        if (!dt__comm_ok(c)) return;
    }
}
/* Rings that were opened, or with many ranks: that have something. */
static bool dt__rings_row(dt__shared *s, dt__rings *r, bool look)
{
    uint8_t *row = dt__ring_row(s, s->me);
    bool     any = false;
    for (int i = 0; i < s->n; i += 8) {
        uint64_t word = __atomic_load_n((uint64_t *)(void *)(row + i), __ATOMIC_ACQUIRE); /* rows are whole words */
        if (!word) continue;
        if (look) return true;
        for (int k = i; k < i + 8 && k < s->n; k++) {
            if (!__atomic_load_n(row + k, __ATOMIC_ACQUIRE)) continue;
            __atomic_exchange_n(row + k, 0, __ATOMIC_SEQ_CST); /* before the ring is read */
            if (!r->pair[k].open) r->list[r->nlist++] = k;
            r->pair[k].open = 2;
            any = true;
        }
    }
    return any;
}
static void dt__rings_poll(dt_comm *c)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__rings  *r = dt__rings_of(c);
    dt__rings_row(s, r, false);
    for (int i = 0; i < r->nlist && dt__comm_ok(c); i++) {
        int from = r->list[i];
        if (s->n > DT__RINGS_FEW && r->pair[from].open != 2) continue;
        r->pair[from].open = 1;
        if (dt__mail_of(c)->peer[s->rank[from]].over) continue; /* what it wrote after it was expelled */
        dt__ring_drain(c, s, r, from);
    }
}
static bool dt__rings_ended(dt_comm *c, int peer) /* takes what the peer has written before it went */
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__rings  *r = dt__rings_of(c);
    dt__rings_row(s, r, false);
    if (r->pair[s->index[peer]].open) dt__ring_drain(c, s, r, s->index[peer]);
    return true;
}
static bool dt__rings_hint(dt_comm *c)
{
    dt__shared *s = (dt__shared *)c->shared;
    dt__rings  *r = dt__rings_of(c);
    if (dt__rings_row(s, r, true)) return true;
    for (int i = 0; i < r->nlist && s->n <= DT__RINGS_FEW; i++) {
        const dt__pair *p = &r->pair[r->list[i]];
        if (__atomic_load_n(&dt__ring_cell(r, p->in, p->tail)->no, __ATOMIC_ACQUIRE) == p->tail + 1) return true;
    }
    return false;
}
DT__INSIDE int dt__mail_send_now(dt_comm *c, int peer, int tag, int dtype, const void *ptr, size_t n)
{
    dt__mail      *m = dt__mail_of(c);
    dt__mail_peer *p = &m->peer[peer];
    dt__outgoing   o;
    if (!m->rings || p->lane != m->inside || n > DT__RING_EAGER || p->dirty || p->gone || dt__mail_stale(c) ||
        p->moving || p->first || !dt__chain_empty(&p->queued) ||
        !dt__chain_empty(&p->data))
        return 0;
    dt__mhead_fill(&o.head, DT__M_EAGER, 0, 0);
    o.head.dtype = (uint8_t)dtype;
    o.head.tag = tag;
    o.head.n = n;
    o.ptr = (const char *)ptr;
    o.n = n;
    o.done = 0;
    return dt__ring_put(c, peer, &o) == 1;
}
DT__INSIDE int dt__mail_recv_now(dt_comm *c, int peer, int tag, int dtype, void *ptr, size_t n, int looks)
{
    dt__mail      *m = dt__mail_of(c);
    dt__shared    *s = (dt__shared *)c->shared;
    dt__rings     *r = (dt__rings *)m->rings;
    if (!m->rings || m->peer[peer].lane != m->inside || m->nposted || m->narrived || m->npending || m->dirty) return 0;
    int from = s->index[peer];
    dt__pair *p = &r->pair[from];
    if (!p->open) return 0; /* the first message */
    uint64_t  at = p->tail;
    dt__cell *e = dt__ring_cell(r, p->in, at);
    while (__atomic_load_n(&e->no, __ATOMIC_ACQUIRE) != at + 1)
        if (looks-- <= 0) return 0;
    if (e->head.kind != DT__M_EAGER || e->head.tag != tag || e->head.n != n || e->head.space != DT__SPACE_USER ||
        e->head.dtype != dtype || e->head.mark != DT__M_MARK)
        return 0;
    const char *from_at = (const char *)e + offsetof(dt__cell, payload);
    for (size_t k = DT__RING_CELL; k < n && k < 4096; k += 64) __builtin_prefetch(from_at + k); /* all lines at once */
    dt__comm_copy(ptr, from_at, n);
    dt__ring_used(s, r, from, n);
    return 1;
}
static const dt__lane dt__lane_rings = { "shm", DT__RING_EAGER, DT__RING_CHUNK, true, dt__rings_open, dt__ring_put,
                                         dt__rings_poll, dt__rings_hint, NULL, dt__rings_close, dt__rings_ended, NULL, NULL };

/* ==================================================================================================== >>streams
   One socket for each pair of ranks that exchange messages, beside those of collectives: so neither waits for the other.
   The control thread dials it when one of the two wants to send, and hands it over (dt__world_link). Frames follow each
   other. What arrives is read into a buffer; the rest of a payload goes directly to where it belongs. */
#ifndef DT__SEND
#define DT__SEND(fd, msg, flags) sendmsg(fd, msg, flags)
#endif
#ifndef DT__RECV
#define DT__RECV(fd, msg, flags) recvmsg(fd, msg, flags)
#endif
enum { DT__STREAM_BUFFER = 64 << 10, DT__STREAM_EAGER = 64 << 10, DT__STREAM_CHUNK = 1 << 20, DT__STREAM_DIRECT = 4 << 10 };
typedef struct dt__wire {
    int       fd, peer;       /* -1: not open yet */
    bool      wanted;         /* this rank has something to send */
    bool      full;           /* the socket takes no more */
    int64_t   died;           /* ns: when it was found closed; 0: it is open */
    int       error;
    size_t    from, to;       /* the bytes in buf that are not used yet */
    bool      have;           /* head is complete, its payload goes to dest */
    dt__mhead head;
    char     *dest;
    size_t    need, got;
    int64_t   ready;          /* c->latency: when the frame counts as arrived; 0: not set */
    int64_t   send_at;        /* c->bandwidth: when more may be sent; 0: now */
    uint8_t   buf[DT__STREAM_BUFFER];
} dt__wire;
typedef struct dt__wires {
    dt__wire   **of, **used; /* by peer; without gaps */
    int            nused;
    struct pollfd *poll;
} dt__wires;

static int dt__wires_open(dt_comm *c, dt__mail *m)
{
    size_t       n = (size_t)dt__comm_room(c);
    dt__wires *t = (dt__wires *)dt__comm_zeroed(1, sizeof *t);
    if (t) {
        t->of = (dt__wire **)dt__comm_zeroed(n, sizeof *t->of);
        t->used = (dt__wire **)dt__comm_zeroed(n, sizeof *t->used);
        t->poll = (struct pollfd *)dt__comm_zeroed(n, sizeof *t->poll);
    }
    m->streams = t;
    if (t && t->of && t->used && t->poll) return 0;
    return dt__comm_bad(DT_COMM_ERR_MEMORY, "dt_comm_init: out of memory for messages");
}
/* Tolerant: closing a socket with unread bytes would destroy what this rank has sent last. So what the peers still send is
   read, until they have closed their side too, but not for long: a peer may be busy. */
static void dt__wires_finish(dt__wires *t)
{
    int64_t end = dt__comm_now() + 250 * DT__NS_PER_MS;
    for (bool more = true; more && dt__comm_now() < end;) {
        int n = 0;
        more = false;
        for (int i = 0; i < t->nused; i++) {
            dt__wire *l = t->used[i];
            ssize_t   got = -1;
            while (l->fd >= 0 && !l->died && ((got = recv(l->fd, l->buf, sizeof l->buf, MSG_DONTWAIT)) > 0 || (got < 0 && errno == EINTR))) {}
            if (l->fd < 0 || l->died || got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
                l->died = 1;
                continue;
            }
            t->poll[n].fd = l->fd;
            t->poll[n].events = POLLIN;
            t->poll[n++].revents = 0;
            more = true;
        }
        if (more && poll(t->poll, (nfds_t)n, 10) < 0 && errno != EINTR) return;
    }
}
static void dt__wires_close(dt_comm *c)
{
    dt__mail    *m = dt__mail_of(c);
    dt__wires *t = (dt__wires *)m->streams;
    if (!t) return;
    for (int i = 0; i < t->nused; i++)
        if (t->used[i]->fd >= 0) shutdown(t->used[i]->fd, SHUT_WR);
    if (c->members) dt__wires_finish(t);
    for (int i = 0; i < t->nused; i++) {
        dt__close(&t->used[i]->fd);
        DT_COMM_FREE(t->used[i]);
    }
    DT_COMM_FREE(t->of);
    DT_COMM_FREE(t->used);
    DT_COMM_FREE(t->poll);
    DT_COMM_FREE(t);
    m->streams = NULL;
}
static dt__wire *dt__wire_of(dt_comm *c, int peer) /* NULL: c has failed */
{
    dt__wires *t = (dt__wires *)dt__mail_of(c)->streams;
    if (t->of[peer]) return t->of[peer];
    dt__wire *l = (dt__wire *)DT_COMM_MALLOC(sizeof *l);
    if (!l) {
        dt__mail_memory(c, "a link");
        return NULL;
    }
    memset(l, 0, offsetof(dt__wire, buf));
    l->fd = -1;
    l->peer = peer;
    t->of[peer] = t->used[t->nused++] = l;
    return l;
}
static void dt__wire_set(dt_comm *c, dt__wire *l, int fd)
{
    if (l->fd >= 0 || dt__mail_of(c)->peer[l->peer].over) { /* the pair has a link already */
        close(fd);
        return;
    }
    dt__tcp_tune_fd(c, l->peer, fd);
    l->fd = fd;
}
#define DT__WIRE_PATIENCE (2 * DT__NS_PER_S) /* tolerant: from the end of a connection until its peer is expelled */
/* The connection has ended. The control connections tell why; that is waited for, if this rank needs the peer. */
static int dt__wire_gone(dt_comm *c, dt__wire *l, int error)
{
    if (!l->died) l->died = dt__comm_now(), l->error = error;
    if (!dt__comm_ok(c)) return dt__transport_status(c);
    char who[200], me[80];
    if (c->members) { /* messages may be lost: a peer that has not gone by then is expelled */
        if (dt__mail_of(c)->peer[l->peer].gone || dt__comm_now() - l->died < DT__WIRE_PATIENCE) return 0;
        char text[300];
        snprintf(text, sizeof text, "%s is expelled: its connection for messages to rank %d %s%s", dt__comm_who(c, l->peer, true, who, sizeof who),
                 c->rank, l->error ? "was lost: " : "was closed", l->error ? strerror(l->error) : "");
        dt__mail_expel(c, l->peer, text);
        return 0;
    }
    if (!l->wanted || dt__comm_now() - l->died < 500 * DT__NS_PER_MS) return 0;
    return dt__transport_fail(c, DT_COMM_ERR_PEER, l->peer, "%s is gone: its connection for messages to %s %s%s",
                              dt__comm_who(c, l->peer, true, who, sizeof who), dt__comm_who(c, c->rank, false, me, sizeof me),
                              l->error ? "was lost: " : "was closed", l->error ? strerror(l->error) : "");
}
static int dt__wire_put(dt_comm *c, int peer, dt__outgoing *o)
{
    dt__wire *l = dt__wire_of(c, peer);
    if (!l) return dt__transport_status(c);
    l->wanted = true;
    l->full = false;
    l->send_at = 0;
    if (l->fd < 0) {
        int fd = dt__world_link(c->world, c, c->member[peer], DT__STREAM_MAIL);
        if (fd == DT__FD_FAILED) return dt__transport_status(c);
        if (fd < 0) return 0;
        dt__wire_set(c, l, fd);
    }
    if (l->died) return dt__wire_gone(c, l, 0);
    for (size_t all = sizeof o->head + o->n; o->done < all;) {
        struct iovec  v[2];
        struct msghdr mh;
        size_t        head = o->done < sizeof o->head ? sizeof o->head - o->done : 0;
        size_t        may = dt__tcp_may_send(c, all - o->done, &l->send_at);
        if (may == 0) return 0;
        memset(&mh, 0, sizeof mh);
        v[0].iov_base = (char *)&o->head + o->done;
        v[0].iov_len = head < may ? head : may;
        v[1].iov_base = (char *)(uintptr_t)(head ? o->ptr : o->ptr + (o->done - sizeof o->head));
        v[1].iov_len = may - v[0].iov_len;
        mh.msg_iov = head ? v : v + 1;
        mh.msg_iovlen = !head || !v[1].iov_len ? 1 : 2;
        ssize_t n = DT__SEND(l->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            l->full = true;
            return 0;
        }
        if (n < 0 && c->members) return 0; /* what the peer has sent last is read first: that finds the end of the connection */
        if (n < 0) return dt__wire_gone(c, l, errno);
        dt__tcp_count_sent(c, (size_t)n, all - o->done);
        o->done += (size_t)n;
    }
    l->wanted = false;
    return 1;
}
/* Reads what there is: into the buffer or, with dest, first there. Bytes read; 0: nothing, or the connection has ended. */
static size_t dt__wire_read(dt_comm *c, dt__wire *l, char *dest, size_t rest)
{
    struct iovec  v[2];
    struct msghdr mh;
    if (l->from == l->to) l->from = l->to = 0;
    else if (l->from && l->to == sizeof l->buf) {
        memmove(l->buf, l->buf + l->from, l->to - l->from);
        l->to -= l->from;
        l->from = 0;
    }
    memset(&mh, 0, sizeof mh);
    v[0].iov_base = dest;
    v[0].iov_len = rest;
    v[1].iov_base = l->buf + l->to;
    v[1].iov_len = sizeof l->buf - l->to;
    mh.msg_iov = dest ? v : v + 1;
    mh.msg_iovlen = dest ? 2 : 1;
    for (;;) {
        ssize_t n = DT__RECV(l->fd, &mh, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) {
            dt__wire_gone(c, l, n < 0 ? errno : 0);
            return 0;
        }
        size_t direct = !dest ? 0 : (size_t)n < rest ? (size_t)n : rest;
        l->got += direct;
        l->to += (size_t)n - direct;
        return (size_t)n;
    }
}
static void dt__wire_take(dt_comm *c, dt__wire *l)
{
    bool empty = false; /* the last read has emptied the socket, as far as is known */
    while (dt__comm_ok(c) && !l->died) {
        if (!l->have) {
            if (l->to - l->from < sizeof l->head) {
                if (empty) return;
                size_t n = dt__wire_read(c, l, NULL, 0);
                if (n == 0) return;
                dt__mail_of(c)->progress = true;
                empty = l->to < sizeof l->buf;
                continue;
            }
            memcpy(&l->head, l->buf + l->from, sizeof l->head);
            l->from += sizeof l->head;
            l->need = dt__mhead_payload(&l->head);
            l->got = 0;
            if (l->need > DT__STREAM_CHUNK || !(l->dest = dt__mail_want(c, l->peer, &l->head))) {
                if (dt__comm_ok(c) && !dt__mail_of(c)->peer[l->peer].gone) dt__frame_broken(c, l->peer, &l->head);
                if (!l->died) l->died = dt__comm_now(); /* tolerant: the peer is expelled */
                return;
            }
            l->have = true;
            if (c->latency > 0) l->ready = 0;
        }
        if (l->got < l->need && l->from < l->to) {
            size_t n = l->to - l->from < l->need - l->got ? l->to - l->from : l->need - l->got;
            memcpy(l->dest + l->got, l->buf + l->from, n);
            l->got += n;
            l->from += n;
        }
        if (l->got < l->need) {
            if (empty) return;
            bool   direct = l->need - l->got >= DT__STREAM_DIRECT;
            size_t n = dt__wire_read(c, l, direct ? l->dest + l->got : NULL, l->need - l->got);
            if (n == 0) return;
            dt__mail_of(c)->progress = true;
            continue;
        }
        if (c->latency > 0) {
            if (!l->ready) l->ready = dt__comm_now() + dt__ns_of(c->latency);
            if (dt__comm_now() < l->ready) return;
            l->ready = 0;
        }
        l->have = false;
        dt__mail_came(c, l->peer, &l->head);
    }
}
static bool dt__wires_arrived(const dt_comm *c)
{
    return c->world && __atomic_load_n(&c->links_arrived, __ATOMIC_ACQUIRE) != dt__mail_of(c)->taken;
}
static bool dt__wires_hint(dt_comm *c) /* whether a socket has something only a poll tells */
{
    return ((const dt__wires *)dt__mail_of(c)->streams)->nused > 0 || dt__wires_arrived(c);
}
static void dt__wires_poll(dt_comm *c)
{
    dt__mail    *m = dt__mail_of(c);
    dt__wires *t = (dt__wires *)m->streams;
    if (dt__wires_arrived(c)) {
        m->taken = __atomic_load_n(&c->links_arrived, __ATOMIC_ACQUIRE);
        for (int peer, fd; (fd = dt__world_links(c->world, c, &peer)) >= 0;) {
            dt__wire *l = dt__wire_of(c, peer);
            if (l) dt__wire_set(c, l, fd);
            else close(fd);
            m->progress = true;
        }
    }
    int n = 0;
    for (int i = 0; t->nused > 2 && i < t->nused; i++) { /* one call finds out which of many have something */
        t->poll[i].fd = t->used[i]->died || (t->used[i]->have && t->used[i]->ready) ? -1 : t->used[i]->fd;
        t->poll[i].events = POLLIN;
        t->poll[i].revents = 0;
        n = i + 1;
    }
    if (n && poll(t->poll, (nfds_t)n, 0) < 0) return;
    for (int i = 0; i < t->nused && dt__comm_ok(c); i++) {
        dt__wire *l = t->used[i];
        if (l->fd < 0) continue;
        if (l->died) {
            if (l->wanted || c->members) dt__wire_gone(c, l, 0);
            continue;
        }
        if (n > i && !t->poll[i].revents && !l->ready && l->from == l->to) continue;
        dt__wire_take(c, l);
    }
}
static void dt__wires_fds(dt_comm *c, dt__pollset *set)
{
    dt__wires *t = (dt__wires *)dt__mail_of(c)->streams;
    for (int i = 0; i < t->nused; i++) {
        const dt__wire *l = t->used[i];
        int64_t patience = c->members ? DT__WIRE_PATIENCE : 500 * DT__NS_PER_MS;
        if (l->died && l->wanted && l->died + patience < set->until) set->until = l->died + patience;
        if (l->ready && l->ready < set->until) set->until = l->ready;
        if (l->send_at && l->send_at < set->until) set->until = l->send_at;
        if (l->fd >= 0 && !l->died && !l->ready) dt__pollset_add(set, l->fd, l->full ? POLLIN | POLLOUT : POLLIN);
    }
}
static bool dt__wire_ended(dt_comm *c, int peer) /* the peer has gone: it has closed the connection, and all is read */
{
    const dt__wires *t = (const dt__wires *)dt__mail_of(c)->streams;
    const dt__wire  *l = t->of[peer];
    return !dt__wires_arrived(c) && (!l || l->fd < 0 || l->died);
}
static void dt__wire_forget(dt_comm *c, int peer)
{
    dt__wires *t = (dt__wires *)dt__mail_of(c)->streams;
    dt__wire  *l = t->of[peer];
    if (!l) return;
    for (int i = 0; i < t->nused; i++)
        if (t->used[i] == l) t->used[i] = t->used[--t->nused];
    t->of[peer] = NULL;
    dt__close(&l->fd);
    DT_COMM_FREE(l);
}
static void dt__wire_redirect(dt_comm *c, int peer, char *to)
{
    dt__wire *l = ((dt__wires *)dt__mail_of(c)->streams)->of[peer];
    if (l && l->have) l->dest = to;
}
static const dt__lane dt__lane_streams = { "tcp", DT__STREAM_EAGER, DT__STREAM_CHUNK, false, dt__wires_open, dt__wire_put,
                                           dt__wires_poll, dt__wires_hint, dt__wires_fds, dt__wires_close, dt__wire_ended,
                                           dt__wire_forget, dt__wire_redirect };
static const dt__lane *dt__lane_named(const char *name)
{
    if (strcmp(name, "shm") == 0 || strcmp(name, "threads") == 0) return &dt__lane_rings;
    if (strcmp(name, "tcp") == 0) return &dt__lane_streams;
    for (int i = 0; i < DT__LANES; i++)
        if (dt__lane_registered[i] && strcmp(dt__lane_registered[i]->name, name) == 0) return dt__lane_registered[i];
    return &dt__lane_streams; /* a transport without a lane: messages go through sockets */
}

#ifdef __cplusplus
}
#endif
#endif /* DT_MSG_IMPLEMENTATION */
