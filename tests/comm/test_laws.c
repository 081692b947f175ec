/* test_laws.c: the laws of messages. Random programs of sends, receives, views, probes, cancels, deadlines, calls and
   collectives run in the simulator, on threads and on processes. Each seed is a program. Every message is received once,
   whole and in its order, or was cancelled; every wait ends. A failure names its seed, and SEED=n runs it alone.
   By hand: situations that a random program seldom meets.
   Contents: >>programs >>choosing >>players >>verdicts >>simulator >>ranks >>situations
   run: alone, long, asan-later, -O1 */
#define DT__WANT_INSIDE
#define _GNU_SOURCE
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dt_sim.h"

UTEST_MAIN()

/* ==================================================================================================== >>programs
   A program has phases. In a phase every rank runs its operations in the order of their times, which are global: an
   operation that waits has a later time than the starts that it needs, on all ranks. So a program always ends: of all
   operations that are left, the one with the earliest time can run.

   How a rank receives in a phase:
     - by streams: a stream is a sender and a tag. A receive may have wildcards if only its stream matches them.
     - by classes: all receives are from any rank with a tag, or from a rank with any tag, or from any rank with any tag.
     - loosely: receives match what they like. Only those are waited for that end by themselves.
   The phase ends with a settlement: a rank waits for all its sends, then all exchange what became of each message, then a
   rank receives what is still to come, and cancels receives that are left over. */
enum { RANKS = 16, PHASES = 3, BYTES_EXTRA = 16 };
enum { TAG_EXTRA = 90, TAG_LONG = 95, TAG_DRAIN = 99, SERVE_AT_ONCE = 1, SERVE_NEXT, SERVE_NOBODY };
enum { BY_STREAMS, BY_CLASSES, LOOSELY };
enum { SEND = 1, RECV, VIEW, CALL, COLL };                               /* items */
enum { START = 1, RUN, WAIT, TEST, CANCEL, PROBE, FREE, SERVE, REPLY, SETTLE }; /* operations */
enum { WAIT_IT, WAIT_ANY, WAIT_TEST, WAITS };                            /* ways of waiting */
enum { BY_COPY = 0, BY_DONE = 1, REFUSED = 2, LATER = 4 };               /* what a server does with a request */
typedef struct message {
    double  when;
    int     from, to, tag, phase;
    int     seq, id;     /* number in its stream, in its phase; index */
    int64_t n;           /* elements */
    int     dtype;
    bool    sure;        /* nobody cancels it */
} message;
typedef struct item { /* an asynchronous call */
    int     kind, rank, phase;
    int     peer, tag;   /* of receives: the pattern */
    int     from, with;  /* by streams: the sender and the tag of what comes; -1: unknown */
    int     message;     /* of a send */
    int64_t n;           /* elements of the buffer; of a call: bytes of the request */
    int     dtype;
    double  timeout;
    bool    info, alloc, loose;
    int64_t nout;        /* of a call: bytes of the reply; of a broadcast: the root */
    int     how, no;     /* of a call: what the server does; of a collective: which one; its number */
} item;
typedef struct op {
    double when;
    int    kind, item, how; /* how: the way of waiting; of a probe: the pattern */
    int    peer, tag;
} op;
typedef struct program {
    uint64_t seed, random;
    int      n;
    size_t   eager, chunk, most; /* of the lane; bytes of the longest message */
    double   moment;     /* seconds: the shortest timeouts of receives */
    bool     calls;
    int      phases, mode[PHASES][RANKS], dtype[PHASES][RANKS];
    message *m;
    int      nm, cap_m, first[PHASES + 1]; /* messages of a phase */
    item    *it;
    int      ni, cap_i;
    op      *op[RANKS];
    int      nop[RANKS], cap_o[RANKS];
    int      call[256], ncalls; /* items */
} program;

static int    below(uint64_t *s, int n) { return n > 0 ? (int)(dt_test_random(s) % (uint64_t)n) : 0; }
static double part(uint64_t *s) { return (double)(dt_test_random(s) >> 11) * 0x1p-53; }
static double later(uint64_t *s, double t) /* in the same phase */
{
    double end = (double)(int)t + 0.999, u = part(s);
    return t + (end - t) * u * u;
}
static size_t size_of(int dtype) { return dt__elem_nbytes(dtype); }
static size_t bytes_of(const message *m) { return (size_t)m->n * size_of(m->dtype); }
static bool   large(const program *p, const message *m)
{
    return bytes_of(m) > (m->from == m->to && p->eager > 4096 ? 4096 : p->eager); /* at least those that are */
}
static void *grown(void *p, int n, int *cap, size_t size)
{
    if (n < *cap) return p;
    *cap = *cap ? 2 * *cap : 64;
    p = realloc(p, (size_t)*cap * size);
    if (!p) abort();
    return p;
}
static int item_new(program *p, int kind, int rank, int phase)
{
    p->it = (item *)grown(p->it, p->ni, &p->cap_i, sizeof *p->it);
    item *i = &p->it[p->ni];
    memset(i, 0, sizeof *i);
    i->kind = kind;
    i->rank = rank;
    i->phase = phase;
    i->message = i->from = i->with = -1;
    return p->ni++;
}
static op *op_new(program *p, int rank, double when, int kind, int it)
{
    p->op[rank] = (op *)grown(p->op[rank], p->nop[rank], &p->cap_o[rank], sizeof(op));
    op *o = &p->op[rank][p->nop[rank]++];
    memset(o, 0, sizeof *o);
    o->when = when;
    o->kind = kind;
    o->item = it;
    o->how = kind == WAIT || kind == RUN ? below(&p->random, WAITS + 2) % WAITS : 0;
    return o;
}
static void fill(void *to, size_t n, uint64_t key)
{
    char *p = (char *)to;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t x = (key + i) * UINT64_C(0x9e3779b97f4a7c15);
        x ^= x >> 29;
        memcpy(p + i, &x, n - i < 8 ? n - i : 8);
    }
}
static uint64_t key_of(const program *p, int id) { return (p->seed + 1) * UINT64_C(0xbf58476d1ce4e5b9) ^ (uint64_t)id << 20; }
static void     message_fill(const program *p, const message *m, void *to)
{
    int32_t head[4] = { m->from, m->tag, m->seq, m->id };
    fill(to, bytes_of(m), key_of(p, m->id));
    if (bytes_of(m) >= sizeof head) memcpy(to, head, sizeof head);
}

/* ==================================================================================================== >>choosing */
static int64_t choose_n(program *p, int dtype)
{
    uint64_t *s = &p->random;
    size_t    each = size_of(dtype), n;
    switch (below(s, 10)) {
    case 0: n = 0; break;
    case 1: n = each; break;
    case 2: n = (size_t)below(s, 64); break;
    case 3: n = p->eager - (size_t)below(s, 17); break;
    case 4: n = p->eager + (size_t)below(s, 17); break;
    case 5: n = 4096 - 8 + (size_t)below(s, 17); break; /* around the limit of messages to oneself */
    case 6: n = p->chunk * (size_t)(1 + below(s, 3)) + (size_t)below(s, 17) - 8; break;
    case 7: n = (size_t)below(s, (int)p->most); break;
    default: n = (size_t)below(s, (int)p->eager); break;
    }
    if (n > p->most) n = p->most;
    if (p->most > 10000 && below(s, 80) == 0) n = ((size_t)1 << 20) + (size_t)below(s, 1 << 20);
    return (int64_t)(n / each);
}
static int message_new(program *p, int phase, int from, int to, int tag, bool sure)
{
    p->m = (message *)grown(p->m, p->nm, &p->cap_m, sizeof *p->m);
    message *m = &p->m[p->nm];
    memset(m, 0, sizeof *m);
    m->when = phase + 0.999 * part(&p->random);
    m->from = from;
    m->to = to;
    m->tag = tag;
    m->phase = phase;
    m->dtype = p->dtype[phase][to];
    m->n = choose_n(p, m->dtype);
    m->sure = sure;
    return p->nm++;
}
static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double *times(program *p, int phase, int n) /* n times of a phase, in order */
{
    double *t = (double *)malloc(((size_t)n + 1) * sizeof *t);
    if (!t) abort();
    for (int i = 0; i < n; i++) t[i] = phase + 0.999 * part(&p->random);
    qsort(t, (size_t)n, sizeof *t, by_time);
    return t;
}
/* The send of a message: met is the time from which on it surely has its receive; -1: never for sure. */
static void choose_send(program *p, const message *m, double met, double given_back)
{
    uint64_t *s = &p->random;
    int       it = item_new(p, SEND, m->from, m->phase);
    item     *i = &p->it[it];
    double    sure = !large(p, m) ? m->when : met < 0 ? -1 : met > given_back ? met : given_back;
    i->peer = m->to;
    i->tag = m->tag;
    i->message = m->id;
    i->n = m->n;
    i->dtype = m->dtype;
    i->alloc = below(s, 3) == 0;
    i->loose = sure < 0 || !m->sure;
    if (!m->sure && below(s, 3) == 0) i->timeout = p->moment * (0.1 + 3 * part(s));
    if (sure >= 0 && sure <= m->when && m->sure && below(s, 2)) {
        op_new(p, m->from, m->when, RUN, it);
        return;
    }
    op_new(p, m->from, m->when, START, it);
    if (sure >= 0 && m->sure) op_new(p, m->from, later(s, sure > m->when ? sure : m->when), WAIT, it);
    for (int k = below(s, 3); k > 0; k--) op_new(p, m->from, later(s, m->when), TEST, it);
    if (!m->sure && !(i->timeout > 0 && below(s, 2))) op_new(p, m->from, later(s, m->when), CANCEL, it);
}
/* A receive that will surely be met from time met on. Returns the time when its memory is given back. */
static double choose_recv(program *p, int rank, int phase, double when, double met, int peer, int tag, int64_t n, bool info)
{
    uint64_t *s = &p->random;
    bool      view = below(s, 6) == 0, now = met <= when && below(s, 2);
    int       it = item_new(p, view ? VIEW : RECV, rank, phase);
    item     *i = &p->it[it];
    double    done = now ? when : later(s, met > when ? met : when);
    i->peer = peer;
    i->tag = tag;
    i->dtype = p->dtype[phase][rank];
    i->n = n;
    i->info = info || below(s, 2);
    if (i->info) i->n += below(s, 20);
    op_new(p, rank, when, now ? RUN : START, it);
    for (int k = below(s, 3); k > 0 && !now; k--) op_new(p, rank, when + (done - when) * part(s), TEST, it);
    if (!now) op_new(p, rank, done, WAIT, it);
    if (!view) return done;
    done = later(s, done);
    op_new(p, rank, done, FREE, it);
    return done;
}
/* Receives that match what they like, may come to nothing, and end in the settlement at the latest. */
static void choose_loose(program *p, int rank, int phase, int peer, int tag, int64_t n)
{
    uint64_t *s = &p->random;
    double    when = phase + 0.999 * part(s);
    int       it = item_new(p, below(s, 6) ? RECV : VIEW, rank, phase);
    item     *i = &p->it[it];
    if (tag == TAG_EXTRA) i->kind = RECV; /* the sender may wait for the end of it */
    i->peer = peer;
    i->tag = tag;
    i->dtype = p->dtype[phase][rank];
    i->n = n;
    i->info = true;
    i->loose = true;
    if (below(s, 5) == 0) i->timeout = p->moment * (0.1 + 3 * part(s));
    if (i->timeout > 0 && i->kind == RECV && below(s, 3) == 0) {
        op_new(p, rank, when, RUN, it);
        return;
    }
    op_new(p, rank, when, START, it);
    for (int k = below(s, 3); k > 0; k--) op_new(p, rank, later(s, when), TEST, it);
    if (below(s, 3) == 0) op_new(p, rank, later(s, when), CANCEL, it);
    if (i->timeout > 0 && below(s, 2)) op_new(p, rank, later(s, when), WAIT, it);
}
static bool same_stream(const message *a, const message *b) { return a->from == b->from && a->tag == b->tag; }
static int  match(int peer, int tag, int from, int with) { return (peer == DT_ANY || peer == from) && (tag == DT_ANY || tag == with); }
static int64_t longest(message **in, int n)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        if (in[i]->n > most) most = in[i]->n;
    return most;
}
static void choose_streams(program *p, int rank, int phase, message **in, int n)
{
    uint64_t *s = &p->random;
    for (int i = 0; i < n; i++) {
        message *m = in[i];
        bool     first = true, alone[4] = { true, true, true, true };
        for (int k = 0; k < n; k++) {
            if (k < i && same_stream(in[k], m)) first = false;
            for (int any = 0; any < 4; any++)
                if (!same_stream(in[k], m) && match(any & 1 ? DT_ANY : m->from, any & 2 ? DT_ANY : m->tag, in[k]->from, in[k]->tag))
                    alone[any] = false;
        }
        if (!first) continue;
        int count = 0;
        for (int k = i; k < n; k++) count += same_stream(in[k], m);
        double *t = times(p, phase, count);
        for (int k = i, no = 0; k < n; k++) {
            if (!same_stream(in[k], m)) continue;
            if (m->tag == TAG_EXTRA) { /* nobody relies on these */
                choose_send(p, in[k], -1, 0);
                if (below(s, 2)) choose_loose(p, rank, phase, m->from, m->tag, longest(in, n));
                continue;
            }
            int any = below(s, 2) ? 0 : below(s, 4);
            if (!alone[any]) any = 0;
            double when = t[no++];
            if (m->tag == TAG_LONG) { /* posted in the first phase */
                int it = item_new(p, RECV, rank, phase);
                p->it[it].peer = m->from;
                p->it[it].tag = m->tag;
                p->it[it].dtype = in[k]->dtype;
                p->it[it].n = in[k]->n;
                p->it[it].info = below(s, 2);
                p->it[it].from = m->from;
                p->it[it].with = m->tag;
                p->it[it].timeout = DT_FOREVER;
                op_new(p, rank, 1e-6 * (1 + in[k]->seq), START, it);
                op_new(p, rank, later(s, in[k]->when), WAIT, it);
                choose_send(p, in[k], in[k]->when, 0);
                continue;
            }
            double met = in[k]->when > when ? in[k]->when : when;
            double done = choose_recv(p, rank, phase, when, in[k]->when, any & 1 ? DT_ANY : m->from, any & 2 ? DT_ANY : m->tag,
                                      in[k]->n, false);
            p->it[p->ni - 1].from = m->from;
            p->it[p->ni - 1].with = m->tag;
            choose_send(p, in[k], met, p->it[p->ni - 1].kind == VIEW ? done : 0);
        }
        free(t);
    }
}
static void choose_classes(program *p, int rank, int phase, message **in, int n)
{
    int by = below(&p->random, 3); /* 0: tags; 1: senders; 2: all */
    for (int i = 0; i < n; i++) {
        message *m = in[i];
        bool     first = true;
        int      count = 0, no = 0;
        int64_t  most = 0;
        double   last = 0, back = 0;
        for (int k = 0; k < n; k++) {
            bool same = by == 0 ? in[k]->tag == m->tag : by == 1 ? in[k]->from == m->from : true;
            if (!same) continue;
            if (k < i) first = false;
            if (in[k]->n > most) most = in[k]->n;
            count++;
        }
        if (!first) continue;
        double *t = times(p, phase, count);
        for (int k = i; k < n; k++) {
            bool same = by == 0 ? in[k]->tag == m->tag : by == 1 ? in[k]->from == m->from : true;
            if (!same) continue;
            double done = choose_recv(p, rank, phase, t[no], in[k]->when, by == 1 ? m->from : DT_ANY, by == 0 ? m->tag : DT_ANY, most, true);
            if (t[no] > last) last = t[no];
            if (p->it[p->ni - 1].kind == VIEW && done > back) back = done;
            no++;
        }
        for (int k = i; k < n; k++) {
            bool same = by == 0 ? in[k]->tag == m->tag : by == 1 ? in[k]->from == m->from : true;
            if (same) choose_send(p, in[k], last > in[k]->when ? last : in[k]->when, back);
        }
        free(t);
    }
}
static void choose_loosely(program *p, int rank, int phase, message **in, int n)
{
    uint64_t *s = &p->random;
    for (int i = 0; i < n; i++) choose_send(p, in[i], -1, 0);
    for (int i = n + below(s, 4); i > 0; i--) {
        int any = below(s, 4), k = below(s, n ? n : 1);
        int peer = n && below(s, 8) ? in[k]->from : below(s, p->n), tag = n && below(s, 8) ? in[k]->tag : below(s, 3);
        choose_loose(p, rank, phase, any & 1 ? DT_ANY : peer, any & 2 ? DT_ANY : tag, longest(in, n));
    }
}
static void choose_probes(program *p, int rank, int phase, message **in, int n)
{
    uint64_t *s = &p->random;
    for (int i = below(s, 5); i > 0 && n; i--) {
        const message *m = in[below(s, n)];
        op            *o = op_new(p, rank, phase + 0.999 * part(s), PROBE, -1);
        o->peer = below(s, 3) ? m->from : DT_ANY;
        o->tag = below(s, 3) ? m->tag : DT_ANY;
        o->how = below(s, 2);
    }
}
static void choose_collectives(program *p, int phase)
{
    uint64_t *s = &p->random;
    int       n = below(s, 4);
    for (int k = 0; k < n; k++) {
        double  when[RANKS], last = 0;
        bool    together = below(s, 3) == 0; /* all wait in it */
        int     kind = below(s, 3), root = below(s, p->n);
        int64_t count = below(s, p->most > 10000 ? 20000 : 300);
        for (int r = 0; r < p->n; r++) {
            when[r] = phase + 0.999 * (k + (together ? 0.5 : part(s))) / n;
            if (when[r] > last) last = when[r];
        }
        for (int r = 0; r < p->n; r++) {
            int it = item_new(p, COLL, r, phase);
            p->it[it].how = kind;
            p->it[it].no = phase * 16 + k;
            p->it[it].n = count;
            p->it[it].nout = root;
            op_new(p, r, when[r], together ? RUN : START, it);
            if (!together) op_new(p, r, later(s, last), WAIT, it);
        }
    }
}
static int choose_call(program *p, int phase, int from, int to, int tag, int how)
{
    int   it = item_new(p, CALL, from, phase);
    item *i = &p->it[it];
    int64_t n = choose_n(p, DT_COMM_U8);
    i->peer = to;
    i->tag = tag;
    i->n = n < 12 ? 12 : n;
    i->nout = choose_n(p, DT_COMM_U8);
    i->how = how;
    i->no = p->ncalls;
    p->call[p->ncalls++] = it;
    i->alloc = below(&p->random, 3) == 0;
    return it;
}
static void choose_calls(program *p, int phase)
{
    uint64_t *s = &p->random;
    for (int i = below(s, p->n); i > 0; i--) { /* answered at once */
        int    from = below(s, p->n), to = below(s, p->n), how = below(s, 4) ? below(s, 2) : REFUSED;
        int    it = choose_call(p, phase, from, to, SERVE_AT_ONCE, how);
        double when = phase + 0.999 * part(s);
        if (below(s, 2)) op_new(p, from, when, RUN, it);
        else {
            op_new(p, from, when, START, it);
            op_new(p, from, later(s, when), WAIT, it);
        }
    }
    for (int to = 0; to < p->n; to++) { /* answered by a program that waits for requests */
        int n = below(s, 3) ? 0 : below(s, 4);
        if (!n) continue;
        double *t = times(p, phase, n), at = 0;
        int     it[4], from[4];
        for (int k = 0; k < n; k++) {
            from[k] = below(s, p->n);
            it[k] = choose_call(p, phase, from[k], to, SERVE_NEXT, below(s, 3) ? below(s, 2) : below(s, 2) ? REFUSED : LATER);
            op_new(p, from[k], t[k], START, it[k]);
            at = later(s, t[k] > at ? t[k] : at);
            op_new(p, to, at, SERVE, -1);
        }
        at = later(s, at);
        op_new(p, to, at, REPLY, -1);
        for (int k = 0; k < n; k++) op_new(p, from[k], later(s, at), WAIT, it[k]);
        free(t);
    }
    for (int i = below(s, 3); i > 0; i--) { /* nobody answers */
        int    from = below(s, p->n), it = choose_call(p, phase, from, below(s, p->n), SERVE_NOBODY, BY_COPY);
        double when = phase + 0.999 * part(s);
        if (below(s, 2)) p->it[it].timeout = p->moment * (0.1 + 3 * part(s));
        op_new(p, from, when, START, it);
        if (p->it[it].timeout > 0) op_new(p, from, later(s, when), WAIT, it);
        else op_new(p, from, later(s, when), CANCEL, it);
    }
}
static int message_by_time(const void *a, const void *b) { return by_time(&((const message *)a)->when, &((const message *)b)->when); }
static int op_by_time(const void *a, const void *b)
{
    const op *x = (const op *)a, *y = (const op *)b;
    if (x->when != y->when) return x->when < y->when ? -1 : 1;
    return x->kind != y->kind ? x->kind - y->kind : x->item - y->item;
}
static void choose_phase(program *p, int phase)
{
    static const int tags[] = { 0, 1, 7, 1000000, INT32_MAX };
    static const int dtypes[] = { DT_COMM_U8, DT_COMM_F16, DT_COMM_I32, DT_COMM_F64 };
    uint64_t        *s = &p->random;
    bool             last = phase == p->phases - 1;
    p->first[phase] = p->nm;
    for (int r = 0; r < p->n; r++) {
        int from[4], ntags = 1 + below(s, 3), tag = below(s, 3), senders = 1 + below(s, 4), n = below(s, 14);
        int mode = p->mode[phase][r] = last && phase ? BY_STREAMS : below(s, 4) ? below(s, 3) : BY_STREAMS;
        p->dtype[phase][r] = dtypes[below(s, 4)];
        for (int k = 0; k < senders; k++) from[k] = below(s, p->n);
        for (int k = 0; k < n; k++)
            message_new(p, phase, from[below(s, senders)], r, tags[tag + below(s, ntags)], mode != LOOSELY || below(s, 4));
        if (mode == BY_STREAMS && below(s, 2))
            for (int k = 1 + below(s, 4), f = below(s, p->n); k > 0; k--) message_new(p, phase, f, r, TAG_EXTRA, false);
        if (last && phase)
            for (int k = below(s, 3), f = below(s, p->n); k > 0; k--) message_new(p, phase, f, r, TAG_LONG, true);
    }
    int      n = p->nm - p->first[phase];
    message *m = p->m + p->first[phase], **in = (message **)malloc(((size_t)n + 1) * sizeof *in);
    if (!in) abort();
    if (n) qsort(m, (size_t)n, sizeof *m, message_by_time);
    for (int i = 0; i < n; i++) {
        m[i].id = p->first[phase] + i;
        for (int k = 0; k < i; k++) m[i].seq += m[k].to == m[i].to && same_stream(&m[k], &m[i]);
    }
    for (int r = 0; r < p->n; r++) {
        int k = 0;
        for (int i = 0; i < n; i++)
            if (m[i].to == r) in[k++] = &m[i];
        if (p->mode[phase][r] == BY_STREAMS) choose_streams(p, r, phase, in, k);
        else if (p->mode[phase][r] == BY_CLASSES) choose_classes(p, r, phase, in, k);
        else choose_loosely(p, r, phase, in, k);
        choose_probes(p, r, phase, in, k);
    }
    free(in);
    choose_collectives(p, phase);
    if (p->calls) choose_calls(p, phase);
    for (int r = 0; r < p->n; r++) op_new(p, r, phase + 0.9999, SETTLE, -1);
}
static program *program_new(uint64_t seed, int n, size_t eager, size_t chunk, double moment)
{
    program *p = (program *)calloc(1, sizeof *p);
    if (!p) abort();
    p->seed = seed;
    p->random = seed * 1000003 + (uint64_t)n;
    p->n = n;
    p->eager = eager;
    p->chunk = chunk;
    p->most = 4 * eager > 4 * chunk ? 4 * eager : 4 * chunk;
    if (p->most > 256 << 10) p->most = 256 << 10;
    if (p->most < 5000) p->most = 5000;
    p->moment = moment;
    p->calls = below(&p->random, 3) != 0;
    p->phases = 1 + below(&p->random, PHASES);
    for (int i = 0; i < p->phases; i++) choose_phase(p, i);
    p->first[p->phases] = p->nm;
    for (int r = 0; r < n; r++) qsort(p->op[r], (size_t)p->nop[r], sizeof(op), op_by_time);
    return p;
}
static void program_free(program *p)
{
    for (int r = 0; r < p->n; r++) free(p->op[r]);
    free(p->m);
    free(p->it);
    free(p);
}

/* ==================================================================================================== >>players
   A player runs the program of one rank. It waits in calls (block), or returns when it would wait and is called again: so
   players of the simulator run in turn. */
typedef struct state { /* of an item */
    dt_work    *w;
    char       *buf, *out;
    size_t      nbytes;  /* of buf */
    dt_msg_info info;
    dt_msg_view view;
    bool        started, done, cancelled; /* cancelled: dt_work_cancel returned true */
    bool        claimed;
    int         status;
    int64_t     posted, ended, cancelled_at; /* events of the player */
} state;
typedef struct player {
    const program *p;
    dt_comm       *c;
    dt_sim        *sim;     /* NULL: the clock is real */
    int            rank;
    bool           block, faults;
    state        **st;
    item          *more;    /* receives that the program does not have */
    int            nmore, cap_more, cap_st;
    int            pc, phase, stage;
    int64_t        event;
    uint64_t       random;
    dt_work       *fence;
    int32_t       *code;    /* by message of the phase: DELIVERED, CANCELLED */
    bool           known;   /* code is complete */
    int            expected, received;
    dt_request    *late[256];
    int            nlate, served[256], handler_bad;
    bool           over, bad;
    int            log[32][3], nlog;
    double         ended_at; /* simulator: when it was over */
    char           what[900];
} player;
#define BROKEN "a law of messages is broken"
enum { DELIVERED = 1, CANCELLED };
enum { BEGIN, JOINED, PLAYING, SETTLING, LEAVING }; /* stages */

static const char *const op_name[] = { "-", "start", "run", "wait", "test", "cancel", "probe", "free", "serve", "reply", "settle" };
static const char *const item_name[] = { "-", "send", "recv", "view", "call", "coll" };
static const item *item_of(const player *l, int i) { return i < l->p->ni ? &l->p->it[i] : &l->more[i - l->p->ni]; }
static int         items(const player *l) { return l->p->ni + l->nmore; }
static __attribute__((format(printf, 2, 3))) int wrong(player *l, const char *format, ...)
{
    va_list a;
    if (l->bad) return 0;
    l->bad = true;
    int n = snprintf(l->what, sizeof l->what, "seed %d, %d ranks, rank %d, phase %d: ", (int)l->p->seed, l->p->n, l->rank, l->phase);
    va_start(a, format);
    vsnprintf(l->what + n, sizeof l->what - (size_t)n, format, a);
    va_end(a);
    return 0;
}
static void logged(player *l, int kind, int it, int result)
{
    int *e = l->log[l->nlog++ % 32];
    e[0] = kind;
    e[1] = it;
    e[2] = result;
}
static void trace(const player *l) /* the last operations */
{
    dt_test_say("    %s\n", l->what);
    for (int k = l->nlog > 24 ? l->nlog - 24 : 0; k < l->nlog; k++) {
        const int *e = l->log[k % 32];
        if (e[1] < 0) {
            dt_test_say("      %-6s = %d\n", op_name[e[0]], e[2]);
            continue;
        }
        const item *i = item_of(l, e[1]);
        dt_test_say("      %-6s %s %d: peer %d, tag %d, %lld of %zu bytes%s = %d\n", op_name[e[0]], item_name[i->kind], e[1], i->peer,
                    i->tag, (long long)i->n, i->kind == CALL ? 1 : size_of(i->dtype), i->info ? ", info" : "", e[2]);
    }
}
static state *state_of(player *l, int i)
{
    while (items(l) >= l->cap_st) {
        int cap = l->cap_st ? 2 * l->cap_st : 256;
        l->st = (state **)realloc(l->st, (size_t)cap * sizeof *l->st);
        if (!l->st) abort();
        memset(l->st + l->cap_st, 0, (size_t)(cap - l->cap_st) * sizeof *l->st);
        l->cap_st = cap;
    }
    if (!l->st[i] && !(l->st[i] = (state *)calloc(1, sizeof(state)))) abort();
    return l->st[i];
}
static char *memory(size_t n)
{
    char *p = (char *)malloc(n ? n : 1);
    if (!p) abort();
    return p;
}
static void state_free(player *l, int i)
{
    state *s = i < l->cap_st ? l->st[i] : NULL;
    if (!s) return;
    if (item_of(l, i)->alloc) dt_comm_dealloc(l->c, s->buf);
    else free(s->buf);
    free(s->out);
    free(s);
    l->st[i] = NULL;
}
static bool receives(const item *i) { return i->kind == RECV || i->kind == VIEW; }
static bool has_info(const item *i) { return i->kind == VIEW || i->info; }

/* ---- collectives */
static int32_t coll_value(const item *i, int rank, int64_t k) { return (int32_t)(rank * 7 + k * 3 + i->no); }
static void    coll_fill(const player *l, const item *i, state *s)
{
    int64_t  n = i->how == 2 ? i->n * l->p->n : i->n, at = i->how == 2 ? i->n * l->rank : 0;
    int32_t *x = (int32_t *)(void *)(s->buf = memory(s->nbytes = (size_t)n * sizeof *x));
    for (int64_t k = 0; k < i->n; k++) x[at + k] = coll_value(i, l->rank, k);
}
static bool coll_right(const player *l, const item *i, const state *s)
{
    const int32_t *x = (const int32_t *)(const void *)s->buf;
    int            n = l->p->n;
    for (int64_t k = 0; k < i->n; k++) {
        if (i->how == 0 && x[k] != n * coll_value(i, 0, k) + 7 * n * (n - 1) / 2) return false;
        if (i->how == 1 && x[k] != coll_value(i, (int)i->nout, k)) return false;
        for (int r = 0; i->how == 2 && r < n; r++)
            if (x[r * i->n + k] != coll_value(i, r, k)) return false;
    }
    return true;
}
/* ---- calls */
static void call_fill(const player *l, const item *i, state *s)
{
    int32_t head[3] = { i->no, (int32_t)i->nout, i->how };
    s->nbytes = (size_t)i->n;
    s->buf = i->alloc ? (char *)dt_comm_alloc(l->c, s->nbytes) : memory(s->nbytes);
    if (!s->buf) abort();
    fill(s->buf, s->nbytes, key_of(l->p, 500000 + i->no));
    memcpy(s->buf, head, sizeof head);
    s->out = memory((size_t)i->nout + BYTES_EXTRA);
    memset(s->out, 0xa5, (size_t)i->nout + BYTES_EXTRA);
}
static void respond(dt_request *q)
{
    const player *l = (const player *)q->user;
    int32_t       head[3];
    memcpy(head, q->data, sizeof head);
    if (head[2] == REFUSED) {
        dt_request_refuse(q, "the server does not like it");
        return;
    }
    char *reply = memory((size_t)head[1]);
    fill(reply, (size_t)head[1], key_of(l->p, 600000 + head[0]));
    if (head[2] == BY_DONE) dt_request_reply(q, reply, head[1], .done = free, .user = reply);
    else {
        dt_request_reply(q, reply, head[1]);
        free(reply);
    }
}
static void answer(dt_request *q) /* may run on the progress thread */
{
    player *l = (player *)q->user;
    int32_t head[3] = { 0, 0, 0 };
    if (q->n >= (int64_t)sizeof head) memcpy(head, q->data, sizeof head);
    const item *i = q->n >= 12 && head[0] >= 0 && head[0] < l->p->ncalls ? &l->p->it[l->p->call[head[0]]] : NULL;
    bool        ok = i && i->n == q->n && i->nout == head[1] && i->how == head[2] && i->rank == q->from && i->tag == q->tag;
    char       *want = memory((size_t)q->n);
    fill(want, (size_t)q->n, key_of(l->p, 500000 + head[0]));
    ok = ok && !memcmp(want + 12, (const char *)q->data + 12, (size_t)q->n - 12);
    free(want);
    if (!ok) {
        __atomic_add_fetch(&l->handler_bad, 1, __ATOMIC_RELAXED);
        dt_request_refuse(q, "a broken request");
        return;
    }
    __atomic_add_fetch(&l->served[head[0]], 1, __ATOMIC_RELAXED);
    if (head[2] == LATER) l->late[l->nlate++] = q;
    else respond(q);
}
static void reply_late(player *l)
{
    for (int k = 0; k < l->nlate; k++) respond(l->late[k]);
    l->nlate = 0;
}

/* ---- what an item may end with, and what it leaves */
static void check_call(player *l, int it, const item *i, const state *s)
{
    size_t n = (size_t)i->nout;
    if (i->how == REFUSED && i->tag != SERVE_NOBODY) {
        if (s->status == 0) wrong(l, "call %d was refused, but returned 0", it);
        return;
    }
    char *want = memory(n);
    fill(want, n, key_of(l->p, 600000 + i->no));
    if (s->status == 0 && i->tag == SERVE_NOBODY) wrong(l, "call %d that nobody serves returned 0", it);
    else if (s->status == 0 && s->info.n != i->nout) wrong(l, "call %d: %lld bytes came of %zu", it, (long long)s->info.n, n);
    else if (s->status == 0 && memcmp(want, s->out, n)) wrong(l, "call %d: the reply is wrong", it);
    free(want);
    for (int k = 0; k < BYTES_EXTRA; k++)
        if ((uint8_t)s->out[n + (size_t)k] != 0xa5) wrong(l, "call %d: bytes behind the reply were written", it);
}
static void check_error_text(player *l, int it, int status)
{
    const char *e = dt_comm_error(NULL);
    const char *want = status == DT_COMM_ERR_TIMEOUT ? "timeout" : status == DT_COMM_ERR_CANCELLED ? "cancelled" : "does not like it";
    if (dt_comm_get_status(l->c)) return;
    if (!e || !strstr(e, want)) wrong(l, "item %d ended with status %d, but dt_comm_error(NULL) is: %s", it, status, e ? e : "NULL");
}
static void ended(player *l, int it, int status)
{
    const item *i = item_of(l, it);
    state      *s = state_of(l, it);
    s->w = NULL;
    s->done = true;
    s->status = status;
    s->ended = ++l->event;
    bool may = status == 0 || (status == DT_COMM_ERR_TIMEOUT && i->timeout > 0 && i->timeout < 1e6) ||
               (status == DT_COMM_ERR_CANCELLED && s->cancelled) ||
               (status == DT_COMM_ERR_REMOTE && i->kind == CALL && i->how == REFUSED);
    if (!may && !dt_comm_get_status(l->c)) wrong(l, "%s %d ended with status %d", item_name[i->kind], it, status);
    if (!may && status != dt_comm_get_status(l->c)) wrong(l, "%s %d ended otherwise than the communicator, with %d", item_name[i->kind], it, status);
    if (may && status) check_error_text(l, it, status);
    if (status == 0 && s->cancelled && (receives(i) || i->kind == CALL)) wrong(l, "%s %d was cancelled, but received something", item_name[i->kind], it);
    if (i->kind == SEND) memset(s->buf, 0xdd, s->nbytes); /* nobody may read it any more */
    if (i->kind == CALL) {
        check_call(l, it, i, s);
        memset(s->buf, 0xdd, s->nbytes);
    }
    if (i->kind == COLL && !status && !coll_right(l, i, s)) wrong(l, "collective %d has a wrong result", i->no);
    if (i->kind == SEND || i->kind == CALL || i->kind == COLL) {
        if (i->alloc) dt_comm_dealloc(l->c, s->buf);
        else free(s->buf);
        s->buf = NULL;
    }
    if (receives(i) && !status) l->received++;
}
static void finish(player *l, int it) { ended(l, it, dt_work_wait(state_of(l, it)->w)); }
static bool pending(const player *l, int i)
{
    return i < l->cap_st && l->st[i] && l->st[i]->started && !l->st[i]->done && l->st[i]->w;
}
static void view_return(player *l, int it)
{
    const item *i = item_of(l, it);
    state      *s = state_of(l, it);
    if (i->kind != VIEW || !s->done || s->status || s->buf) return;
    bool valid = !dt_comm_get_status(l->c); /* else its memory may be gone */
    s->nbytes = valid ? (size_t)s->view.info.n * size_of(i->dtype) : 0;
    s->buf = memory(s->nbytes);
    s->claimed = !valid;
    if (s->view.info.n && !s->view.data) wrong(l, "view %d has %lld elements, but no data", it, (long long)s->view.info.n);
    else if (s->nbytes) memcpy(s->buf, s->view.data, s->nbytes);
    s->info = s->view.info;
    dt_comm_view_free(l->c, &s->view);
}

/* ---- starting */
static void prepare(player *l, const item *i, state *s)
{
    s->started = true;
    s->posted = ++l->event;
    if (i->kind == SEND) {
        const message *m = &l->p->m[i->message];
        s->nbytes = bytes_of(m);
        s->buf = i->alloc ? (char *)dt_comm_alloc(l->c, s->nbytes) : memory(s->nbytes);
        if (!s->buf) abort();
        message_fill(l->p, m, s->buf);
    } else if (i->kind == RECV) {
        s->nbytes = (size_t)i->n * size_of(i->dtype);
        s->buf = memory(s->nbytes + BYTES_EXTRA);
        memset(s->buf, 0xa5, s->nbytes + BYTES_EXTRA);
    } else if (i->kind == CALL) call_fill(l, i, s);
    else if (i->kind == COLL) coll_fill(l, i, s);
}
static bool start(player *l, int it)
{
    const item *i = item_of(l, it);
    state      *s = state_of(l, it);
    dt_msg_opts o = { 0 };
    prepare(l, i, s);
    o.tag = i->tag;
    o.timeout = i->timeout;
    if (i->info || i->kind == CALL) o.info = &s->info;
    switch (i->kind) {
    case SEND: s->w = dt_comm_send_start_with(l->c, s->buf, i->n, i->dtype, i->peer, o); break;
    case RECV: s->w = dt_comm_recv_start_with(l->c, s->buf, i->n, i->dtype, i->peer, o); break;
    case VIEW: s->w = dt_comm_recv_view_start_with(l->c, &s->view, i->dtype, i->peer, o); break;
    case CALL: s->w = dt_comm_call_start_with(l->c, i->peer, i->tag, s->buf, i->n, s->out, i->nout, o); break;
    default:
        s->w = i->how == 0   ? dt_comm_allreduce_start(l->c, s->buf, i->n, DT_COMM_I32, DT_COMM_SUM)
               : i->how == 1 ? dt_comm_broadcast_start(l->c, s->buf, i->n, DT_COMM_I32, (int)i->nout)
                             : dt_comm_allgather_start(l->c, NULL, s->buf, i->n, NULL, DT_COMM_I32);
    }
    if (s->w) return true;
    s->started = false;
    if (!dt_comm_get_status(l->c)) wrong(l, "%s %d: no work, but the communicator has not failed", item_name[i->kind], it);
    return false;
}
static void run(player *l, int it) /* the calls that wait */
{
    const item *i = item_of(l, it);
    state      *s = state_of(l, it);
    int         rc = 0;
    dt_msg_opts o = { 0 };
    prepare(l, i, s);
    o.tag = i->tag;
    o.timeout = i->timeout;
    if (i->info) o.info = &s->info;
    switch (i->kind) {
    case SEND: rc = dt_comm_send_with(l->c, s->buf, i->n, i->dtype, i->peer, o); break;
    case RECV: rc = dt_comm_recv_with(l->c, s->buf, i->n, i->dtype, i->peer, o); break;
    case VIEW: rc = dt_comm_recv_view_with(l->c, &s->view, i->dtype, i->peer, o); break;
    case CALL: rc = dt_comm_call_with(l->c, i->peer, i->tag, s->buf, i->n, s->out, i->nout, &s->info.n, o); break;
    default:
        rc = i->how == 0   ? dt_comm_allreduce(l->c, s->buf, i->n, DT_COMM_I32, DT_COMM_SUM)
             : i->how == 1 ? dt_comm_broadcast(l->c, s->buf, i->n, DT_COMM_I32, (int)i->nout)
                           : dt_comm_allgather(l->c, NULL, s->buf, i->n, NULL, DT_COMM_I32);
    }
    ended(l, it, rc);
}

/* ---- waiting: 1: done; 0: call again */
static bool any_of(player *l, int first, int n, bool wait) /* first, unless -1, and up to n others; false: none is done yet */
{
    enum { MOST = 512 };
    dt_work *w[MOST];
    int      at[MOST], k = 0, from = below(&l->random, items(l));
    if (first >= 0) at[k] = first, w[k++] = l->st[first]->w;
    for (int j = 0; j < items(l) && k < MOST - 1 && k < n; j++) {
        int i = (from + j) % items(l);
        if (i != first && pending(l, i)) at[k] = i, w[k++] = l->st[i]->w;
    }
    if (first < 0 && l->fence) at[k] = -1, w[k++] = l->fence;
    bool ready = wait;
    for (int j = 0; j < k && !ready; j++) ready = dt_work_test(w[j]);
    if (!ready) return false;
    int got = dt_work_wait_any(w, k);
    if (got < 0 || got >= k || !dt_work_test(w[got])) return wrong(l, "dt_work_wait_any returned %d of %d, which is not done", got, k);
    if (at[got] >= 0) finish(l, at[got]);
    return true;
}
static int wait_for(player *l, int it, int how)
{
    state *s = state_of(l, it);
    if (!s->started || s->done) return 1;
    if (how == WAIT_ANY) {
        while (!s->done && !l->bad)
            if (!any_of(l, it, 1 + below(&l->random, 6), l->block)) return 0;
        return 1;
    }
    if (!l->block && !dt_work_test(s->w)) return 0;
    if (l->block && how == WAIT_TEST && !l->sim)
        while (!dt_work_test(s->w)) sched_yield();
    finish(l, it);
    return 1;
}
static bool fence_start(player *l, int n)
{
    l->fence = dt_comm_allreduce_start(l->c, l->code, n, DT_COMM_I32, DT_COMM_SUM);
    return l->fence != NULL;
}
static int fence_end(player *l) /* 1: it is done, or failed */
{
    if (!l->fence) return 1;
    if (!l->block && !dt_work_test(l->fence)) return 0;
    int rc = dt_work_wait(l->fence);
    l->fence = NULL;
    if (rc && rc != dt_comm_get_status(l->c)) wrong(l, "a collective ended with %d", rc);
    return 1;
}
static int more_new(player *l, int peer, int tag)
{
    const program *p = l->p;
    l->more = (item *)grown(l->more, l->nmore, &l->cap_more, sizeof *l->more);
    item *i = &l->more[l->nmore++];
    memset(i, 0, sizeof *i);
    i->kind = RECV;
    i->rank = l->rank;
    i->phase = l->phase;
    i->peer = peer;
    i->tag = tag;
    i->message = i->from = i->with = -1;
    i->dtype = p->dtype[l->phase][l->rank];
    i->info = i->loose = true;
    for (int k = p->first[l->phase]; k < p->first[l->phase + 1]; k++)
        if (p->m[k].to == l->rank && p->m[k].n > i->n) i->n = p->m[k].n;
    return items(l) - 1;
}
/* ---- probing: what it tells is a message of this phase; by streams, the next one that no receive was posted for */
static int probe(player *l, const op *o)
{
    const program *p = l->p;
    dt_msg_info    info;
    dt_msg_opts    how = { 0 };
    memset(&info, 0, sizeof info);
    how.tag = o->tag;
    if (l->block && o->how) how.timeout = p->moment;
    int rc = dt_comm_probe_with(l->c, &info, o->peer, how);
    logged(l, PROBE, -1, rc);
    if (rc < 0 && !dt_comm_get_status(l->c)) return wrong(l, "dt_comm_probe returned %d", rc);
    if (rc <= 0) return 1;
    int  posted = 0;
    bool strict = p->mode[l->phase][l->rank] == BY_STREAMS && info.tag != TAG_EXTRA, found = false;
    for (int i = 0; i < p->ni; i++)
        posted += receives(&p->it[i]) && p->it[i].from == info.from && p->it[i].with == info.tag && p->it[i].phase == l->phase &&
                  i < l->cap_st && l->st[i] && l->st[i]->started && p->it[i].rank == l->rank;
    for (int k = p->first[l->phase]; k < p->first[l->phase + 1] && !found; k++) {
        const message *m = &p->m[k];
        found = m->to == l->rank && m->from == info.from && m->tag == info.tag && m->n == info.n && m->dtype == info.dtype &&
                (!strict || m->seq == posted);
    }
    if (!found || !match(o->peer, o->tag, info.from, info.tag))
        return wrong(l, "dt_comm_probe from %d, tag %d tells of %lld elements of dtype %d from rank %d with tag %d after %d receives", o->peer,
                     o->tag, (long long)info.n, info.dtype, info.from, info.tag, posted);
    if (p->mode[l->phase][l->rank] == LOOSELY && o->how) {
        int it = more_new(l, info.from, info.tag);
        if (start(l, it)) logged(l, START, it, 0);
    }
    return 1;
}
static void cancel(player *l, int it)
{
    const item *i = item_of(l, it);
    state      *s = state_of(l, it);
    if (!pending(l, it)) return;
    int64_t now = ++l->event;
    bool    did = dt_work_cancel(s->w);
    logged(l, CANCEL, it, did);
    if (did && !s->cancelled) s->cancelled = true, s->cancelled_at = now;
    if (did && receives(i) && !dt_work_test(s->w)) wrong(l, "%s %d is cancelled, but not done", item_name[i->kind], it);
}
static int check_phase(player *l);

/* The end of a phase: 1: over; 0: call again. */
static int settle_some(player *l) /* whether something happened */
{
    int did = 0;
    for (int i = 0; i < items(l); i++) {
        const item *t = item_of(l, i);
        if (t->rank != l->rank || t->phase != l->phase || i >= l->cap_st || !l->st[i]) continue;
        if (pending(l, i) && dt_work_test(l->st[i]->w)) finish(l, i), did = 1;
        if (t->kind == VIEW) view_return(l, i);
    }
    return did;
}
static int settle(player *l)
{
    const program *p = l->p;
    int            first = p->first[l->phase], n = p->first[l->phase + 1] - first;
    if (l->stage == PLAYING) {
        l->stage = SETTLING;
        l->known = false;
        l->expected = 0;
        reply_late(l);
        for (int i = 0; i < p->ni; i++)
            if (p->it[i].rank == l->rank && p->it[i].phase == l->phase && p->it[i].tag == TAG_EXTRA && pending(l, i)) cancel(l, i);
    }
    while (!l->bad && !dt_comm_get_status(l->c)) {
        int did = settle_some(l), sends = 0, drains = 0;
        for (int i = 0; i < items(l); i++) {
            const item *t = item_of(l, i);
            if (!pending(l, i) || t->phase != l->phase) continue;
            sends += !receives(t);
            drains += i >= p->ni && t->peer == DT_ANY && t->tag == DT_ANY;
        }
        if (!sends && !l->fence && !l->known) {
            free(l->code);
            l->code = (int32_t *)calloc((size_t)n + 1, sizeof *l->code);
            for (int i = 0; i < p->ni; i++)
                if (p->it[i].kind == SEND && p->it[i].rank == l->rank && p->it[i].phase == l->phase)
                    l->code[p->it[i].message - first] = l->st[i]->status == 0 ? DELIVERED : CANCELLED;
            if (!fence_start(l, n)) return 1;
            did = 1;
        }
        if (l->fence && dt_work_test(l->fence)) {
            fence_end(l);
            l->known = true;
            did = 1;
            for (int k = 0; k < n; k++) l->expected += p->m[first + k].to == l->rank && l->code[k] == DELIVERED;
        }
        if (!drains && (p->mode[l->phase][l->rank] == LOOSELY || (l->known && l->received < l->expected)) &&
            !(l->known && l->received >= l->expected)) {
            int it = more_new(l, DT_ANY, DT_ANY);
            if (!start(l, it)) return 1;
            did = 1;
        }
        if (l->known && l->received >= l->expected) break;
        if (did) continue;
        if (!l->block) return 0;
        if (!below(&l->random, 4) && !l->sim) sched_yield();
        else any_of(l, -1, 500, true);
    }
    if (l->bad || dt_comm_get_status(l->c)) return 1;
    for (int i = 0; i < items(l); i++) {
        if (!pending(l, i) || item_of(l, i)->phase != l->phase) continue;
        cancel(l, i);
        finish(l, i);
        if (!l->st[i]->status) wrong(l, "all messages were received, but receive %d has met one more", i);
    }
    return check_phase(l);
}

/* ---- operations */
static int abandon(player *l) /* the communicator has failed, or a law is broken: all works must end */
{
    if (l->bad && !dt_comm_get_status(l->c)) dt_comm_abort(l->c, BROKEN);
    reply_late(l);
    for (int i = 0; i < items(l); i++) {
        if (!pending(l, i)) continue;
        if (!l->block && !dt_work_test(l->st[i]->w)) return 0;
        finish(l, i);
    }
    if (!fence_end(l)) return 0;
    for (int i = 0; i < items(l); i++)
        if (i < l->cap_st && l->st[i]) view_return(l, i);
    if (!l->faults) wrong(l, "the communicator failed: %s", dt_comm_error(l->c) ? dt_comm_error(l->c) : "no message");
    l->over = true;
    return 1;
}
static int serve(player *l)
{
    int rc = dt_comm_serve_next(l->c, !l->block ? 0 : below(&l->random, 2) ? DT_FOREVER : l->p->moment);
    if (rc < 0 && rc != dt_comm_get_status(l->c)) wrong(l, "dt_comm_serve_next returned %d", rc);
    return rc != 0;
}
static int operate(player *l, const op *o) /* 1: done; 0: call again */
{
    int rc = 1;
    switch (o->kind) {
    case START: start(l, o->item); break;
    case RUN:
        if (l->block && !(o->how == WAIT_ANY)) {
            run(l, o->item);
            break;
        }
        if (!state_of(l, o->item)->started && !start(l, o->item)) break;
        rc = wait_for(l, o->item, o->how);
        break;
    case WAIT: rc = wait_for(l, o->item, o->how); break;
    case TEST:
        if (pending(l, o->item) && dt_work_test(l->st[o->item]->w)) finish(l, o->item);
        break;
    case CANCEL: cancel(l, o->item); break;
    case PROBE: probe(l, o); break;
    case FREE: view_return(l, o->item); break;
    case SERVE:
        do rc = serve(l);
        while (!rc && l->block);
        break;
    case REPLY: reply_late(l); break;
    default: rc = settle(l); break;
    }
    if (rc && o->kind != PROBE && o->kind != CANCEL)
        logged(l, o->kind, o->item, o->item >= 0 && l->st[o->item] && l->st[o->item]->done ? l->st[o->item]->status : 1);
    return rc;
}
static int play(player *l, int most) /* at most so many operations; 1: over */
{
    const program *p = l->p;
    while (!l->over && most-- > 0) {
        if (l->bad || dt_comm_get_status(l->c)) return abandon(l);
        if (l->stage == BEGIN) {
            /* without handlers no receive waits, and a small message may take the shortest way: dt__mail_recv_now */
            dt_comm_serve(l->c, SERVE_AT_ONCE, p->calls ? answer : NULL, .user = l, .at_once = true);
            dt_comm_serve(l->c, SERVE_NEXT, p->calls ? answer : NULL, .user = l);
            l->code = (int32_t *)calloc(1, sizeof *l->code);
            l->stage = JOINED;
            fence_start(l, 1);
        }
        if (l->stage == JOINED || l->stage == LEAVING) {
            if (!fence_end(l)) return 0;
            if (dt_comm_get_status(l->c)) continue;
            if (l->stage == LEAVING) l->phase++, l->pc++, l->received = 0;
            l->stage = PLAYING;
            l->over = l->phase == p->phases;
            continue;
        }
        if (!operate(l, &p->op[l->rank][l->pc])) return 0;
        if (p->op[l->rank][l->pc].kind != SETTLE) l->pc++;
        else if (!l->bad && !dt_comm_get_status(l->c)) {
            l->stage = LEAVING;
            fence_start(l, 1);
        }
    }
    return l->over;
}
static player *player_new(const program *p, int rank, dt_comm *c, dt_sim *sim, bool block)
{
    player *l = (player *)calloc(1, sizeof *l);
    if (!l) abort();
    l->p = p;
    l->rank = rank;
    l->c = c;
    l->sim = sim;
    l->block = block;
    l->random = p->seed * 77 + (uint64_t)rank;
    return l;
}
static void player_free(player *l)
{
    for (int i = 0; i < items(l); i++) state_free(l, i);
    free(l->st);
    free(l->more);
    free(l->code);
    free(l);
}

/* ==================================================================================================== >>verdicts */
static void where_from(const player *l, int it, int *from, int *tag)
{
    const item *i = item_of(l, it);
    *from = has_info(i) ? l->st[it]->info.from : i->from;
    *tag = has_info(i) ? l->st[it]->info.tag : i->with;
}
static bool whole(player *l, int it, const message *m, bool say) /* is it this message? */
{
    const item  *i = item_of(l, it);
    const state *s = l->st[it];
    char        *want = memory(bytes_of(m));
    int64_t      n = has_info(i) ? s->info.n : i->n;
    bool         ok = n == m->n && (!has_info(i) || s->info.dtype == m->dtype);
    message_fill(l->p, m, want);
    if (ok) ok = !memcmp(want, s->buf, bytes_of(m));
    if (!ok && say) {
        int32_t head[4] = { -1, -1, -1, -1 };
        if (s->nbytes >= sizeof head) memcpy(head, s->buf, sizeof head);
        wrong(l, "receive %d should have message %d (number %d from rank %d with tag %d, %lld elements); it has %lld elements; the first words "
              "say: number %d from rank %d with tag %d", it, m->id, m->seq, m->from, m->tag, (long long)m->n, (long long)n, head[2], head[0], head[1]);
    }
    free(want);
    return ok;
}
static bool untouched(const state *s, size_t from)
{
    for (size_t k = from; k < s->nbytes + BYTES_EXTRA; k++)
        if ((uint8_t)s->buf[k] != 0xa5) return false;
    return true;
}
static void check_buffers(player *l)
{
    for (int i = 0; i < items(l); i++) {
        const item  *t = item_of(l, i);
        const state *s = i < l->cap_st ? l->st[i] : NULL;
        if (t->kind != RECV || t->phase != l->phase || !s || !s->done || !s->buf) continue;
        bool failed = s->status && s->status != DT_COMM_ERR_TIMEOUT && s->status != DT_COMM_ERR_CANCELLED;
        if (failed && !untouched(s, s->nbytes)) wrong(l, "receive %d wrote behind its buffer", i);
        else if (!failed && s->status && !untouched(s, 0)) wrong(l, "receive %d ended with status %d, but its buffer was written", i, s->status);
        else if (!s->status && !untouched(s, t->info ? (size_t)s->info.n * size_of(t->dtype) : s->nbytes))
            wrong(l, "receive %d wrote behind its message", i);
    }
}
/* A message goes to the receive that was posted first. */
static void check_first(player *l)
{
    for (int i = 0; i < items(l); i++) {
        const item  *t = item_of(l, i);
        const state *s = i < l->cap_st ? l->st[i] : NULL;
        if (!receives(t) || t->phase != l->phase || !s || !s->done || s->status != DT_COMM_ERR_CANCELLED) continue;
        for (int k = 0; k < items(l); k++) {
            const state *o = k < l->cap_st ? l->st[k] : NULL;
            int          from, tag;
            if (!receives(item_of(l, k)) || item_of(l, k)->phase != l->phase || !o || !o->done || o->status) continue;
            where_from(l, k, &from, &tag);
            if (match(t->peer, t->tag, from, tag) && s->posted < o->posted && o->ended < s->cancelled_at)
                wrong(l, "receive %d waited for a message of rank %d with tag %d when receive %d, posted later, got it", i, from, tag, k);
        }
    }
}
static int next_received(const player *l, int from, int tag) /* of this stream: the first one posted that is not claimed */
{
    int best = -1;
    for (int i = 0; i < items(l); i++) {
        const item *t = item_of(l, i);
        int         f, g;
        if (!receives(t) || t->phase != l->phase || i >= l->cap_st || !l->st[i] || !l->st[i]->done || l->st[i]->status || l->st[i]->claimed) continue;
        where_from(l, i, &f, &g);
        if (f == from && g == tag && (best < 0 || l->st[i]->posted < l->st[best]->posted)) best = i;
    }
    return best;
}
static void check_received(player *l, const int32_t *code, bool all) /* all: every message must be there */
{
    const program *p = l->p;
    int            first = p->first[l->phase], last = p->first[l->phase + 1];
    for (int k = first; k < last && !l->bad; k++) {
        const message *m = &p->m[k];
        if (m->to != l->rank || (all ? code[k - first] != DELIVERED : code && code[k - first] == CANCELLED)) continue;
        int i = next_received(l, m->from, m->tag);
        if (i < 0 && all)
            wrong(l, "message %d (number %d from rank %d with tag %d, %lld elements) is lost", k, m->seq, m->from, m->tag, (long long)m->n);
        if (i >= 0 && whole(l, i, m, all)) l->st[i]->claimed = true;
    }
    for (int i = 0; i < items(l) && !l->bad; i++) {
        const item *t = item_of(l, i);
        int         from, tag;
        if (!receives(t) || t->phase != l->phase || i >= l->cap_st || !l->st[i] || !l->st[i]->done || l->st[i]->status || l->st[i]->claimed) continue;
        int32_t head[4] = { -1, -1, -1, -1 };
        where_from(l, i, &from, &tag);
        if (l->st[i]->nbytes >= sizeof head) memcpy(head, l->st[i]->buf, sizeof head);
        wrong(l, "receive %d has a message from rank %d with tag %d that was cancelled, not sent, or received before; its first words: number "
              "%d from rank %d with tag %d", i, from, tag, head[2], head[0], head[1]);
    }
}
static void check_served(player *l)
{
    const program *p = l->p;
    for (int k = 0; k < p->ncalls && !l->bad; k++) {
        const item *i = &p->it[p->call[k]];
        int         served = __atomic_load_n(&l->served[k], __ATOMIC_RELAXED), want = i->peer == l->rank && i->phase == l->phase && i->tag != SERVE_NOBODY;
        if (i->phase == l->phase && served != want) wrong(l, "call %d of rank %d was served %d times", k, i->rank, served);
    }
    if (__atomic_load_n(&l->handler_bad, __ATOMIC_RELAXED)) wrong(l, "a request was broken");
}
static int check_phase(player *l)
{
    dt_msg_info info;
    settle_some(l); /* views */
    check_received(l, l->code, true);
    check_first(l);
    check_buffers(l);
    check_served(l);
    if (!l->bad && dt_comm_probe(l->c, &info, DT_ANY, .tag = DT_ANY) == 1)
        wrong(l, "a message from rank %d with tag %d, %lld elements, is left", info.from, info.tag, (long long)info.n);
    for (int i = 0; i < items(l); i++) /* memory of the phase */
        if (item_of(l, i)->phase == l->phase && i < l->cap_st && l->st[i] && l->st[i]->done) {
            free(l->st[i]->buf);
            free(l->st[i]->out);
            l->st[i]->buf = l->st[i]->out = NULL;
        }
    return 1;
}

static void only(int *first, int *n) /* SEED: one seed */
{
    const char *one = getenv("SEED");
    if (one) *first = atoi(one), *n = 1;
}
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
static int seeds(int all, int some, int few) { return !dt_test_quick() ? all : dt_test_slow() > 1 ? few : some; }

/* ==================================================================================================== >>simulator */
enum { CALM, CALM_TOO, STOPS, DEATH };
typedef struct team {
    program  *p;
    dt_sim   *sim;
    player   *l[RANKS];
    int       fault, dead;
    double    when;
    char      what[1200];
} team;
#define SIM_TIMEOUT 2.0
static void tick(dt_comm *c, void *user)
{
    player *l = (player *)user;
    double  d = part(&l->random);
    (void)c;
    if (l->over) return;
    if (play(l, 1 + below(&l->random, 4))) l->ended_at = dt_sim_now(l->sim);
    else dt_sim_at(l->sim, l->rank, dt_sim_now(l->sim) + 5e-4 * d * d * d, tick, l);
}
static bool team_wrong(team *t, const char *what, int rank)
{
    snprintf(t->what, sizeof t->what, "seed %d, %d ranks: %s, rank %d; fault %d, rank %d, at %g s; now %g s", (int)t->p->seed, t->p->n, what, rank,
             t->fault, t->dead, t->when, dt_sim_now(t->sim));
    return false;
}
static bool player_right(team *t, player *l)
{
    dt_comm       *c = l->c;
    const program *p = t->p;
    if (l->rank == t->dead && !l->over && !abandon(l)) return team_wrong(t, "a work of the dead rank has not ended", l->rank);
    if (l->rank == t->dead) return true;
    if (l->bad) return snprintf(t->what, sizeof t->what, "%s", l->what), false;
    if (!l->over) return team_wrong(t, "the program of a rank has not ended", l->rank);
    if (t->fault != DEATH) {
        const dt__mail *m = (const dt__mail *)c->mail;
        if (dt_comm_get_status(c)) return team_wrong(t, "the communicator has failed", l->rank);
        if (m->nposted != (p->calls ? 2 : 0) || m->nwild != m->nposted || m->npending) return team_wrong(t, "messages are pending in the end", l->rank);
        if (!m->narrived && m->memory) return team_wrong(t, "memory is held, but no message", l->rank);
        return true;
    }
    if (dt_comm_get_status(c) != DT_COMM_ERR_PEER || dt_comm_failed_rank(c) != t->dead) return team_wrong(t, "a rank does not name the dead one", l->rank);
    if (l->phase == p->phases) return true;
    int      first = p->first[l->phase], n = p->first[l->phase + 1] - first;
    int32_t *code = (int32_t *)calloc((size_t)n + 1, sizeof *code);
    for (int i = 0; i < p->ni; i++) {
        const player *from = t->l[p->it[i].rank];
        if (p->it[i].kind != SEND || p->it[i].phase != l->phase || i >= from->cap_st || !from->st[i]) continue;
        int status = from->st[i]->done ? from->st[i]->status : 0;
        if (status == DT_COMM_ERR_TIMEOUT || status == DT_COMM_ERR_CANCELLED) code[p->it[i].message - first] = CANCELLED;
    }
    if (l->stage == PLAYING || l->stage == SETTLING) {
        check_received(l, code, false);
        check_first(l);
        check_buffers(l);
    }
    free(code);
    return !l->bad || (snprintf(t->what, sizeof t->what, "%s", l->what), false);
}
static bool team_run(team *t, int seed, int n, uint64_t *hash)
{
    uint64_t random = (uint64_t)seed * 31 + 7;
    int64_t  events = 0;
    memset(t, 0, sizeof *t);
    t->p = program_new((uint64_t)seed, n, 256, 512, 1e-3);
    t->fault = seed % 4;
    t->dead = -1;
    t->sim = dt_sim_new(.world = n, .seed = (uint64_t)seed, .timeout = SIM_TIMEOUT, .delay = seed % 7 ? 1e-3 : 2e-2);
    if (!t->sim) return team_wrong(t, "no simulator", 0);
    int caller = below(&random, 3) ? -1 : below(&random, n); /* one rank waits in its calls */
    for (int r = 0; r < n; r++) {
        t->l[r] = player_new(t->p, r, dt_sim_comm(t->sim, r), t->sim, r == caller);
        t->l[r]->faults = t->fault == DEATH;
        if (r != caller) dt_sim_at(t->sim, r, 1e-3 * part(&random), tick, t->l[r]);
    }
    for (int k = below(&random, 4); k > 0 && t->fault >= STOPS; k--)
        dt_sim_pause(t->sim, below(&random, n), 0.1 * part(&random), 0.28 * SIM_TIMEOUT * part(&random));
    if (t->fault == DEATH) {
        t->dead = below(&random, n);
        t->when = 0.1 * part(&random) * part(&random);
        dt_sim_kill(t->sim, t->dead, t->when);
    }
    if (caller >= 0) play(t->l[caller], INT32_MAX);
    int  left = dt_sim_run(t->sim, 60);
    bool ok = left == 0 || team_wrong(t, "ranks are in a call still", left);
    for (int r = 0; r < n && ok; r++) ok = !t->l[r]->bad || strstr(t->l[r]->what, BROKEN) || player_right(t, t->l[r]); /* first the cause */
    for (int r = 0; r < n && ok; r++) ok = player_right(t, t->l[r]);
    for (int r = 0; r < n && !ok; r++)
        if (t->l[r]->bad && !strstr(t->l[r]->what, BROKEN)) trace(t->l[r]);
    if (ok && t->fault == DEATH)
        for (int r = 0; r < n && ok; r++)
            if (t->l[r]->ended_at > t->when + SIM_TIMEOUT + 4) ok = team_wrong(t, "a rank took long to end", r);
    *hash = dt_sim_hash(t->sim, &events) + (uint64_t)events;
    for (int r = 0; r < n; r++) {
        if (!ok && !t->l[r]->over) { /* what is left must be waited for all the same */
            dt_comm_abort(t->l[r]->c, "the test gives up");
            t->l[r]->block = true;
            abandon(t->l[r]);
        }
    }
    for (int r = 0; r < n; r++) player_free(t->l[r]);
    dt_sim_free(t->sim);
    program_free(t->p);
    return ok;
}
static void team_runs(int n, int count, int *utest_result)
{
    int first = 0, failed = 0;
    only(&first, &count);
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL); /* ranks that fail log what they did */
    for (int seed = first; seed < first + count && failed < 6; seed++) {
        team     t;
        uint64_t hash = 0, again = 1;
        bool     ok = team_run(&t, seed, n, &hash);
        if (!ok) failed++, dt_test_say("    simulator: %s\n", t.what);
        if (ok && seed % 5 == 0) {
            team_run(&t, seed, n, &again);
            EXPECT_EQ_MSG(hash, again, "the same seed is another run");
        }
    }
    EXPECT_EQ(0, failed);
}
UTEST(laws, simulator_8_ranks) { team_runs(8, seeds(1000, 100, 20), utest_result); }
UTEST(laws, simulator_3_ranks) { team_runs(3, seeds(1000, 60, 20), utest_result); }
UTEST(laws, simulator_2_ranks) { team_runs(2, seeds(1000, 60, 20), utest_result); }

/* ==================================================================================================== >>ranks
   The same programs on threads, and on processes over shared memory and TCP. One communicator for all seeds. */
typedef struct crew {
    const char *transport; /* NULL: threads */
    int         n, first, count;
    bool        no_thread;
    size_t      eager, chunk;
    dt_comm    *c;
    int         bad;
} crew;
static int crew_play(const crew *w, dt_comm *c)
{
    int bad = 0;
    for (int seed = w->first; seed < w->first + w->count && !bad; seed++) {
        program *p = program_new((uint64_t)seed, w->n, w->eager, w->chunk, 2e-3);
        player  *l = player_new(p, dt_comm_rank(c), c, NULL, true);
        play(l, INT32_MAX);
        if (l->bad) bad = 1;
        if (l->bad && !strstr(l->what, BROKEN)) trace(l);
        player_free(l);
        program_free(p);
    }
    return bad;
}
static int crew_process(void *arg)
{
    crew    *w = (crew *)arg;
    dt_comm *c = dt_comm_init(.transport = w->transport, .timeout = 15 * dt_test_slow(), .no_thread = w->no_thread);
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    int bad = crew_play(w, c);
    dt_comm_free(c);
    fflush(stdout);
    return bad;
}
static void *crew_thread(void *arg)
{
    crew *w = (crew *)arg;
    w->bad = crew_play(w, w->c);
    dt_comm_free(w->c);
    return NULL;
}
static int crew_threads(crew w)
{
    crew      all[RANKS];
    pthread_t thread[RANKS];
    dt_comm  *c[RANKS];
    int       bad = 0;
    if (dt_comm_threads(w.n, c, .timeout = 15 * dt_test_slow(), .no_thread = w.no_thread)) return 1;
    for (int i = 0; i < w.n; i++) {
        all[i] = w;
        all[i].c = c[i];
        pthread_create(&thread[i], NULL, crew_thread, &all[i]);
    }
    for (int i = 0; i < w.n; i++) {
        pthread_join(thread[i], NULL);
        bad += all[i].bad;
    }
    return bad;
}
static void crew_runs(const char *transport, int n, int count, bool no_thread, int *utest_result)
{
    bool tcp = transport && !strcmp(transport, "tcp");
    crew w = { transport, n, 0, count, no_thread, (size_t)(tcp ? 64 << 10 : 16 << 10), (size_t)(tcp ? 1 << 20 : 32 << 10), NULL, 0 };
    only(&w.first, &w.count);
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL);
    EXPECT_EQ(0, transport ? dt_spawn(n, crew_process, &w) : crew_threads(w));
}
UTEST(laws, threads)
{
    crew_runs(NULL, 8, seeds(100, 10, 3), false, utest_result);
    crew_runs(NULL, 3, seeds(100, 5, 2), true, utest_result);
}
UTEST(laws, threads_more_than_8) { crew_runs(NULL, 11, seeds(50, 3, 1), false, utest_result); }
UTEST(laws, shared_memory)
{
    crew_runs("shm", 8, seeds(100, 6, 2), false, utest_result);
    crew_runs("shm", 2, seeds(100, 4, 1), true, utest_result);
}
UTEST(laws, tcp)
{
    crew_runs("tcp", 8, seeds(100, 5, 2), false, utest_result);
    crew_runs("tcp", 2, seeds(100, 4, 1), true, utest_result);
}

/* ---- deaths: a process is killed at a random operation; all calls of the others end, and they name it */
typedef struct outcome { /* in memory that the ranks share with the test */
    int     ready, status[RANKS], failed[RANKS], bad[RANKS];
    int64_t killed, ended[RANKS]; /* ns */
} outcome;
typedef struct death {
    const char *transport;
    int         seed, n, victim;
    outcome    *o;
} death;
static outcome *outcome_new(void)
{
    void *p = mmap(NULL, sizeof(outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return (outcome *)p;
}
static void die(outcome *o)
{
    __atomic_store_n(&o->killed, dt_test_ns(), __ATOMIC_RELEASE);
    kill(getpid(), SIGKILL);
}
static void survived(outcome *o, dt_comm *c, int bad)
{
    int rank = dt_comm_rank(c);
    o->ended[rank] = dt_test_ns();
    o->status[rank] = dt_comm_get_status(c);
    o->failed[rank] = dt_comm_failed_rank(c);
    o->bad[rank] = bad;
}
static void check_survivors(const outcome *o, int n, int victim, int *utest_result)
{
    for (int r = 0; r < n; r++) {
        if (r == victim) continue;
        EXPECT_EQ(0, o->bad[r]);
        EXPECT_EQ((int)DT_COMM_ERR_PEER, o->status[r]);
        EXPECT_EQ(victim, o->failed[r]);
        EXPECT_LT(1e-9 * (double)(o->ended[r] - o->killed), 2 * dt_test_slow());
    }
}
static int death_process(void *arg)
{
    const death *d = (const death *)arg;
    dt_comm     *c = dt_comm_init(.transport = d->transport, .timeout = 15 * dt_test_slow());
    bool         tcp = !strcmp(d->transport, "tcp");
    if (!c) return 1;
    int      rank = dt_comm_rank(c);
    uint64_t random = (uint64_t)d->seed * 19 + 3;
    program *p = program_new((uint64_t)d->seed, d->n, (size_t)(tcp ? 64 << 10 : 16 << 10), (size_t)(tcp ? 1 << 20 : 32 << 10), 2e-3);
    player  *l = player_new(p, rank, c, NULL, true);
    l->faults = true;
    if (rank == d->victim) {
        play(l, 2 + below(&random, p->nop[rank]));
        die(d->o);
    }
    play(l, INT32_MAX);
    survived(d->o, c, l->bad);
    if (l->bad) trace(l);
    else if (l->stage == PLAYING || l->stage == SETTLING) {
        check_received(l, NULL, false);
        check_first(l);
        check_buffers(l);
        d->o->bad[rank] = l->bad;
        if (l->bad) trace(l);
    }
    player_free(l);
    program_free(p);
    dt_comm_free(c);
    fflush(stdout);
    return 0;
}
static void deaths(const char *transport, int count, int *utest_result)
{
    int first = 0;
    only(&first, &count);
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL);
    for (int seed = first; seed < first + count; seed++) {
        uint64_t random = (uint64_t)seed + 5;
        death    d = { transport, seed, 5, below(&random, 5), outcome_new() };
        EXPECT_NE(0, dt_spawn(d.n, death_process, &d));
        check_survivors(d.o, d.n, d.victim, utest_result);
        munmap(d.o, sizeof *d.o);
        if (*utest_result) {
            printf("    seed %d over %s, rank %d dies\n", seed, transport, d.victim);
            break;
        }
    }
}
UTEST(laws, a_process_is_killed)
{
    deaths("shm", seeds(25, 2, 1), utest_result);
    deaths("tcp", seeds(25, 2, 1), utest_result);
}

/* ==================================================================================================== >>situations
   A situation is a function that every rank runs; it returns how many things were wrong. */
typedef int (*situation)(dt_comm *c, int rank);
typedef struct scene {
    situation    fn;
    dt_comm_opts o;
    dt_comm     *c;
    int          bad;
} scene;
#define CHECK(x) ((x) ? 0 : (printf("    rank %d, line %d: not %s: %s\n", rank, __LINE__, #x, dt_comm_error(c) ? dt_comm_error(c) : ""), 1))
enum { LARGE_ONE = 200 << 10, SMALL_ONE = 100 }; /* bytes */

static int scene_process(void *arg)
{
    scene   *w = (scene *)arg;
    dt_comm *c = dt_comm_init_with(w->o);
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    int bad = w->fn(c, dt_comm_rank(c));
    dt_comm_free(c);
    fflush(stdout);
    return bad != 0;
}
static void *scene_thread(void *arg)
{
    scene *w = (scene *)arg;
    w->bad = w->fn(w->c, dt_comm_rank(w->c));
    dt_comm_free(w->c);
    return NULL;
}
static int on_threads(int n, situation fn, dt_comm_opts o)
{
    scene     w[RANKS];
    pthread_t thread[RANKS];
    dt_comm  *c[RANKS];
    int       bad = 0;
    if (o.timeout == 0) o.timeout = 10 * dt_test_slow();
    if (dt_comm_threads_with(n, c, o)) return 1;
    for (int i = 0; i < n; i++) {
        w[i].fn = fn;
        w[i].c = c[i];
        pthread_create(&thread[i], NULL, scene_thread, &w[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        bad += w[i].bad;
    }
    if (bad) printf("    on threads\n");
    return bad;
}
static int on_processes(int n, situation fn, dt_comm_opts o, const char *transport)
{
    scene w = { fn, o, NULL, 0 };
    w.o.transport = transport;
    if (o.timeout == 0) w.o.timeout = 10 * dt_test_slow();
    int bad = dt_spawn(n, scene_process, &w);
    if (bad) printf("    over %s\n", transport);
    return bad;
}
static int everywhere_with(int n, situation fn, dt_comm_opts o)
{
    if (!getenv("DT_LOG")) dt_set_log(no_log, NULL);
    return on_processes(n, fn, o, "shm") + on_processes(n, fn, o, "tcp") + on_threads(n, fn, o);
}
static int everywhere(int n, situation fn)
{
    dt_comm_opts none = { 0 };
    return everywhere_with(n, fn, none);
}
static int with_and_without_thread(int n, situation fn)
{
    dt_comm_opts o = { 0 };
    o.no_thread = true;
    return everywhere(n, fn) + everywhere_with(n, fn, o);
}
static double seconds_since(int64_t ns) { return 1e-9 * (double)(dt_test_ns() - ns); }
static bool   all_bytes(const char *p, size_t n, char value)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != value) return false;
    return true;
}

/* ---- many at a time */
static int many(dt_comm *c, int rank, int n) /* n receives wait, every other one from any rank; messages come in another order */
{
    int       bad = 0;
    dt_work **w = (dt_work **)calloc((size_t)n, sizeof(dt_work *));
    int      *x = (int *)calloc((size_t)n, sizeof(int));
    for (int i = 0; i < n && !rank && !bad; i++) {
        w[i] = dt_comm_recv_start(c, &x[i], 1, DT_COMM_I32, i % 2 ? DT_ANY : 1, .tag = i);
        bad += CHECK(w[i] != NULL);
    }
    bad += CHECK(!dt_comm_barrier(c)); /* they hold nothing back */
    for (int i = 0; i < n && rank == 1 && !bad; i++) {
        int tag = (int)((int64_t)i * 7919 % n), value = tag + 5; /* 7919 is prime: every tag once */
        bad += CHECK(!dt_comm_send(c, &value, 1, DT_COMM_I32, 0, .tag = tag));
    }
    for (int i = n - 1; i >= 0 && !rank && !bad; i--) bad += CHECK(!dt_work_wait(w[i])) + CHECK(x[i] == i + 5);
    free(w);
    free(x);
    return bad;
}
static int many_65(dt_comm *c, int rank) { return many(c, rank, 65); }
static int many_10000(dt_comm *c, int rank) { return many(c, rank, 10000); }
UTEST(situation, pending_receives_65) { EXPECT_EQ(0, with_and_without_thread(2, many_65)); }
UTEST(situation, pending_receives_10000) { EXPECT_EQ(0, everywhere(2, many_10000)); }

static int both_ways(dt_comm *c, int rank) /* 65 large sends each way before any receive */
{
    enum { N = 65, TAGS = 5 };
    int      bad = 0, other = 1 - rank;
    size_t   n = 40000;
    char    *x = (char *)malloc(N * n), *y = (char *)malloc(N * n);
    dt_work *s[N], *r[N];
    for (int i = 0; i < N; i++) {
        fill(x + (size_t)i * n, n, (uint64_t)(rank * 100 + i));
        s[i] = dt_comm_send_start(c, x + (size_t)i * n, (int64_t)n, DT_COMM_U8, other, .tag = i % TAGS);
    }
    bad += CHECK(!dt_comm_barrier(c));
    for (int i = 0; i < N; i++) r[i] = dt_comm_recv_start(c, y + (size_t)i * n, (int64_t)n, DT_COMM_U8, other, .tag = TAGS - 1 - i % TAGS);
    for (int i = 0; i < N; i++) bad += CHECK(!dt_work_wait(r[i])) + CHECK(!dt_work_wait(s[i]));
    for (int i = 0; i < N && !bad; i++) { /* the k-th receive of a tag has the k-th message with it */
        fill(x, n, (uint64_t)(other * 100 + i / TAGS * TAGS + TAGS - 1 - i % TAGS));
        bad += CHECK(!memcmp(x, y + (size_t)i * n, n));
    }
    free(x);
    free(y);
    return bad;
}
UTEST(situation, large_sends_65_both_ways_before_any_receive) { EXPECT_EQ(0, with_and_without_thread(2, both_ways)); }

/* ---- collectives. A receive is posted; its rank is in a collective when the sender, which comes later, sends. */
static int early(dt_comm *c, int rank)
{
    int   bad = 0;
    char *x = (char *)calloc(1, LARGE_ONE);
    if (!rank) bad += CHECK(!dt_comm_recv(c, x, 1, DT_COMM_U8, 1)); /* so that there is a link */
    else bad += CHECK(!dt_comm_send(c, x, 1, DT_COMM_U8, 0));
    for (int turn = 0; turn < 3 && !bad; turn++) {
        int n = turn ? LARGE_ONE : SMALL_ONE;
        if (!rank) {
            dt_work *w = dt_comm_recv_start(c, x, n, DT_COMM_U8, 1, .tag = 3);
            bad += CHECK(!dt_comm_barrier(c)) + CHECK(!dt_comm_barrier(c)) + CHECK(!dt_work_wait(w));
            bad += CHECK(all_bytes(x, (size_t)n, (char)(turn + 1)));
        } else {
            memset(x, turn + 1, (size_t)n);
            bad += CHECK(!dt_comm_barrier(c)) + CHECK(!dt_comm_send(c, x, n, DT_COMM_U8, 0, .tag = 3)) + CHECK(!dt_comm_barrier(c));
        }
    }
    free(x);
    return bad;
}
UTEST(situation, an_early_receive_is_met_while_its_rank_is_in_a_collective) { EXPECT_EQ(0, with_and_without_thread(2, early)); }

static void echo(dt_request *q) { dt_request_reply(q, q->data, q->n); }
static int  served(dt_comm *c, int rank) /* the caller comes to the collective when it has its reply */
{
    int   bad = 0;
    char *x = (char *)malloc(LARGE_ONE), *y = (char *)calloc(1, LARGE_ONE);
    fill(x, LARGE_ONE, 5);
    if (!rank) bad += CHECK(!dt_comm_serve(c, 9, echo, .at_once = true));
    bad += CHECK(!dt_comm_barrier(c));
    for (int k = 0; k < 3 && rank == 1; k++) {
        int64_t got = 0, n = k ? LARGE_ONE : SMALL_ONE;
        bad += CHECK(!dt_comm_call(c, 0, 9, x, n, y, LARGE_ONE, &got)) + CHECK(got == n && !memcmp(x, y, (size_t)n));
    }
    bad += CHECK(!dt_comm_barrier(c));
    free(x);
    free(y);
    return bad;
}
UTEST(situation, a_handler_serves_while_its_rank_is_in_a_collective) { EXPECT_EQ(0, with_and_without_thread(2, served)); }

/* ---- cancelling. The receiver computes when the send is cancelled; what it gets agrees with what the sender is told. */
static int slow_receiver(dt_comm *c, int rank)
{
    int   bad = 0;
    char *x = (char *)malloc(LARGE_ONE), *y = (char *)malloc(LARGE_ONE);
    for (int turn = 0; turn < (dt_test_quick() ? 2 : 6) && !bad; turn++) {
        int status = 0, met = 0;
        bad += CHECK(!dt_comm_barrier(c));
        if (!rank) {
            memset(x, 1, LARGE_ONE);
            memset(y, 2, LARGE_ONE);
            dt_work *w = dt_comm_send_start(c, x, LARGE_ONE, DT_COMM_U8, 1, .tag = 6);
            for (int k = 0; k < turn * 1000; k++) dt_work_test(w);
            bool took = dt_work_cancel(w);
            status = dt_work_wait(w);
            bad += CHECK(status == 0 || (took && status == DT_COMM_ERR_CANCELLED && dt_comm_error(NULL)));
            memset(x, 3, LARGE_ONE); /* it is the program's again */
            bad += CHECK(!dt_comm_send(c, y, LARGE_ONE, DT_COMM_U8, 1, .tag = 6)) + CHECK(!dt_comm_send(c, &status, 1, DT_COMM_I32, 1, .tag = 7));
        } else {
            int64_t t = dt_test_ns();
            while (seconds_since(t) < 0.02) {}
            bad += CHECK(!dt_comm_recv(c, x, LARGE_ONE, DT_COMM_U8, 0, .tag = 6));
            met = x[0] == 1;
            bad += CHECK(all_bytes(x, LARGE_ONE, met ? 1 : 2));
            if (met) bad += CHECK(!dt_comm_recv(c, x, LARGE_ONE, DT_COMM_U8, 0, .tag = 6)) + CHECK(all_bytes(x, LARGE_ONE, 2));
            bad += CHECK(!dt_comm_recv(c, &status, 1, DT_COMM_I32, 0, .tag = 7)) + CHECK(met == (status == 0));
        }
    }
    free(x);
    free(y);
    return bad;
}
UTEST(situation, a_large_send_to_a_slow_receiver_is_cancelled) { EXPECT_EQ(0, with_and_without_thread(2, slow_receiver)); }

/* A call that nobody serves ends alone: by its timeout, cancelled. Its memory is the program's again, and the communicator goes
   on for longer than its own timeout. */
static int lonely_call(dt_comm *c, int rank)
{
    int   bad = 0, over = 0;
    char *x = (char *)malloc(LARGE_ONE), y[8];
    for (int large_one = 0; large_one < 2 && !rank; large_one++) {
        int64_t n = large_one ? LARGE_ONE : SMALL_ONE, got = 1;
        memset(x, 1, LARGE_ONE);
        bad += CHECK(dt_comm_call(c, 1, 4, x, n, y, 8, &got, .timeout = 0.05) == DT_COMM_ERR_TIMEOUT) + CHECK(dt_comm_error(NULL) && !got);
        dt_work *w = dt_comm_call_start(c, 1, 4, x, n, y, 8);
        bad += CHECK(dt_work_cancel(w)) + CHECK(dt_work_wait(w) == DT_COMM_ERR_CANCELLED) + CHECK(dt_comm_error(NULL) != NULL);
    }
    free(x);
    for (int64_t t = dt_test_ns(); !over && !bad && !dt_test_quick();) {
        over = !rank && seconds_since(t) > 1.5 * dt_comm_options(c)->timeout;
        bad += CHECK(!dt_comm_broadcast(c, &over, 1, DT_COMM_I32, 0));
        usleep(20000);
    }
    return bad;
}
UTEST(situation, a_call_that_nobody_serves_ends_alone)
{
    dt_comm_opts o = { 0 };
    o.timeout = dt_test_slow();
    EXPECT_EQ(0, everywhere_with(2, lonely_call, o));
}
UTEST(situation, a_call_that_nobody_serves_ends_alone_in_virtual_time)
{
    char     x[2000], y[8];
    dt_sim  *s = dt_sim_new(.world = 2, .seed = 1, .timeout = 2);
    dt_comm *c = dt_sim_comm(s, 0);
    for (int i = 0; i < 4; i++) {
        dt_work *w = dt_comm_call_start(c, 1, 4, x, i / 2 ? 2000 : 20, y, 8, .timeout = i % 2 ? 0.05 : 0);
        dt_sim_run(s, i + 0.01);
        if (i % 2 == 0) EXPECT_TRUE(dt_work_cancel(w));
        EXPECT_EQ(0, dt_sim_run(s, i + 0.2));
        EXPECT_EQ((int)(i % 2 ? DT_COMM_ERR_TIMEOUT : DT_COMM_ERR_CANCELLED), dt_work_wait(w));
        EXPECT_TRUE(dt_comm_error(NULL) != NULL);
        EXPECT_EQ(0, ((const dt__mail *)c->mail)->npending);
    }
    EXPECT_EQ(2, ((const dt__mail *)dt_sim_comm(s, 1)->mail)->narrived); /* the small ones */
    EXPECT_EQ(0, dt_sim_run(s, 20));
    EXPECT_EQ(0, dt_comm_get_status(c));
    dt_sim_free(s);
}

/* A reply may be shorter than its memory. One that comes when the call has ended is thrown away; the server hears that its data
   is not needed any more. */
static dt_request *asked_for;
static void        keep(dt_request *q) { asked_for = q; }
static void        count_done(void *user) { ++*(int *)user; }
UTEST(situation, replies_that_are_short_or_late)
{
    static const char answer_data[2000];
    for (int i = 0; i < 4; i++) {
        int             n = i / 2 ? 2000 : 20, done = 0;
        bool            late = i % 2;
        char            x[20] = { 0 }, y[3000];
        dt_sim         *s = dt_sim_new(.world = 2, .seed = 1, .timeout = 2);
        const dt__mail *m = (const dt__mail *)dt_sim_comm(s, 0)->mail;
        EXPECT_EQ(0, dt_comm_serve(dt_sim_comm(s, 1), 4, keep, .at_once = true));
        dt_work *w = dt_comm_call_start(dt_sim_comm(s, 0), 1, 4, x, 20, y, 3000, .timeout = late ? 0.05 : 0);
        asked_for = NULL;
        dt_sim_run(s, 0.2);
        ASSERT_TRUE(asked_for != NULL);
        EXPECT_EQ(late, dt_work_test(w));
        EXPECT_EQ(0, dt_request_reply(asked_for, answer_data, n, .done = count_done, .user = &done));
        dt_work *next[2] = { dt_comm_recv_start(dt_sim_comm(s, 0), y + 2500, 1, DT_COMM_U8, 1), /* it comes behind the reply */
                             dt_comm_send_start(dt_sim_comm(s, 1), x, 1, DT_COMM_U8, 0) };
        dt_sim_run(s, 0.4);
        for (int k = 0; k < 2; k++) EXPECT_EQ(0, dt_work_wait(next[k]));
        EXPECT_EQ(1, done);
        EXPECT_EQ(late ? (int)DT_COMM_ERR_TIMEOUT : 0, dt_work_wait(w));
        if (late) EXPECT_TRUE(dt_comm_error(NULL) != NULL);
        EXPECT_TRUE(!m->narrived && !m->memory && !m->nposted && !m->npending);
        dt_sim_free(s);
    }
}

/* ---- views */
static int held(dt_comm *c, int rank) /* a sender waits until the view is given back, if it is read in place */
{
    const char *transport = dt_comm_options(c)->transport;
    bool        in_place = !transport || !strcmp(transport, "shm");
    int         bad = 0;
    if (!rank) {
        char *x = (char *)dt_comm_alloc(c, LARGE_ONE);
        memset(x, 4, LARGE_ONE);
        dt_work *w = dt_comm_send_start(c, x, LARGE_ONE, DT_COMM_U8, 1);
        bad += CHECK(!dt_comm_barrier(c));
        for (int k = 0; k < 1000 && in_place; k++) bad += CHECK(!dt_work_test(w));
        bad += CHECK(!dt_comm_barrier(c)) + CHECK(dt_work_wait(w) == 0);
        dt_comm_dealloc(c, x);
    } else {
        dt_msg_view v;
        bad += CHECK(!dt_comm_recv_view(c, &v, DT_COMM_U8, 0)) + CHECK(v.info.n == LARGE_ONE) + CHECK(!dt_comm_barrier(c));
        bad += CHECK(!dt_comm_barrier(c)) + CHECK(all_bytes((const char *)v.data, LARGE_ONE, 4));
        dt_comm_view_free(c, &v);
        dt_comm_view_free(c, &v); /* once more does nothing */
    }
    return bad + CHECK(!dt_comm_barrier(c));
}
UTEST(situation, a_view_is_held_while_its_sender_waits) { EXPECT_EQ(0, with_and_without_thread(2, held)); }

/* ---- deadlines */
static int silent(dt_comm *c, int rank)
{
    int bad = 0, x = 0, late = 0;
    if (!rank) {
        dt_work *w = dt_comm_recv_start(c, &late, 1, DT_COMM_I32, 1, .tag = 2); /* without a deadline of its own */
        int64_t  t = dt_test_ns();
        bad += CHECK(dt_comm_recv(c, &x, 1, DT_COMM_I32, DT_ANY, .tag = DT_ANY, .timeout = 0.05) == DT_COMM_ERR_TIMEOUT);
        bad += CHECK(seconds_since(t) >= 0.05 && seconds_since(t) < 1 + dt_test_slow());
        const char *e = dt_comm_error(NULL);
        bad += CHECK(e && strstr(e, "any rank, any tag")) + CHECK(!dt_comm_get_status(c));
        for (int r = 1; r < 3; r++) bad += CHECK(!dt_comm_send(c, &r, 1, DT_COMM_I32, r));
        bad += CHECK(!dt_work_wait(w)) + CHECK(late == 1);
    } else {
        bad += CHECK(!dt_comm_recv(c, &x, 1, DT_COMM_I32, 0)) + CHECK(x == rank);
        if (rank == 1) bad += CHECK(!dt_comm_send(c, &x, 1, DT_COMM_I32, 0, .tag = 2));
    }
    return bad + CHECK(!dt_comm_barrier(c));
}
UTEST(situation, a_receive_from_any_rank_when_all_are_silent) { EXPECT_EQ(0, with_and_without_thread(3, silent)); }

UTEST(situation, a_short_deadline_beside_a_long_one_in_virtual_time)
{
    for (int own = 0; own < 2; own++) { /* the long one is the communicator's, or its own */
        int      x = 0, y = 0;
        dt_sim  *s = dt_sim_new(.world = 2, .seed = 1, .timeout = 20);
        dt_comm *c = dt_sim_comm(s, 0);
        dt_work *slow = dt_comm_recv_start(c, &x, 1, DT_COMM_I32, 1, .timeout = own ? 10 : 0), *fast;
        EXPECT_EQ(1, dt_sim_run(s, 0.01));
        fast = dt_comm_recv_start(c, &y, 1, DT_COMM_I32, DT_ANY, .tag = 7, .timeout = 0.05);
        EXPECT_EQ(1, dt_sim_run(s, 0.1));
        EXPECT_TRUE(dt_work_test(fast));
        if (!dt_work_test(fast)) dt_work_cancel(fast); /* so that it ends */
        EXPECT_EQ((int)DT_COMM_ERR_TIMEOUT, dt_work_wait(fast));
        EXPECT_TRUE(dt_comm_error(NULL) != NULL);
        EXPECT_TRUE(dt_work_cancel(slow));
        EXPECT_EQ((int)DT_COMM_ERR_CANCELLED, dt_work_wait(slow));
        EXPECT_TRUE(dt_comm_error(NULL) != NULL);
        dt_sim_free(s);
    }
}
UTEST(situation, any_of_works_of_several_ranks_in_virtual_time)
{
    int      x = 3, y[2] = { 0, 0 };
    dt_sim  *s = dt_sim_new(.world = 3, .seed = 1);
    dt_work *w[2] = { dt_comm_recv_start(dt_sim_comm(s, 1), &y[0], 1, DT_COMM_I32, 0), dt_comm_recv_start(dt_sim_comm(s, 2), &y[1], 1, DT_COMM_I32, 0) };
    dt_work *send = dt_comm_send_start(dt_sim_comm(s, 0), &x, 1, DT_COMM_I32, 2);
    EXPECT_EQ(1, dt_work_wait_any(w, 2));
    EXPECT_EQ(3, y[1]);
    EXPECT_TRUE(dt_work_cancel(w[0]));
    EXPECT_EQ(0, dt_work_wait(send));
    EXPECT_EQ(0, dt_work_wait(w[1]));
    EXPECT_EQ((int)DT_COMM_ERR_CANCELLED, dt_work_wait(w[0]));
    EXPECT_TRUE(dt_comm_error(NULL) != NULL);
    dt_sim_free(s);
}

/* ---- memory: the error names the rank and the option */
static int limit_named(dt_comm *c, int rank, int who)
{
    char        name[32];
    const char *e = dt_comm_error(c);
    snprintf(name, sizeof name, "rank %d", who);
    return CHECK(dt_comm_get_status(c) == DT_COMM_ERR_MEMORY) + CHECK(e && strstr(e, ".message_memory")) + CHECK(e && strstr(e, name)) +
           CHECK(dt_comm_failed_rank(c) == who);
}
static int many_offers(dt_comm *c, int rank) /* of large messages that nobody receives */
{
    enum { N = 80 };
    dt_work *w[N];
    char    *x = (char *)calloc(1, LARGE_ONE);
    int      bad = 0, n = 0, wrong_end = 0;
    while (rank && n < N && (w[n] = dt_comm_send_start(c, x, LARGE_ONE, DT_COMM_U8, 0, .tag = n)) != NULL) n++;
    while (!dt_comm_get_status(c)) dt_comm_barrier(c);
    for (int i = 0; i < n; i++) wrong_end += dt_work_wait(w[i]) == 0;
    bad += CHECK(!wrong_end) + limit_named(c, rank, 0);
    free(x);
    return bad;
}
static int large_view(dt_comm *c, int rank) /* a view of a message that is larger than the limit */
{
    char       *x = (char *)calloc(1, LARGE_ONE);
    dt_msg_view v;
    int         bad = 0;
    if (rank) bad += CHECK(dt_comm_recv_view(c, &v, DT_COMM_U8, 0) == DT_COMM_ERR_MEMORY);
    else bad += CHECK(dt_comm_send(c, x, LARGE_ONE, DT_COMM_U8, 1) == DT_COMM_ERR_MEMORY);
    bad += limit_named(c, rank, 1);
    free(x);
    return bad;
}
UTEST(situation, too_much_memory_for_messages)
{
    dt_comm_opts o = { 0 };
    o.message_memory = 30000;
    EXPECT_EQ(0, everywhere_with(5, many_offers, o));
    EXPECT_EQ(0, on_processes(2, large_view, o, "shm") + on_processes(2, large_view, o, "tcp"));
}

/* ---- the end of a communicator */
static int  warnings;
static void count_warnings(void *user, int level, const char *text)
{
    (void)user;
    if (level == DT_LOG_WARN && strstr(text, "4 messages that were never received") && strstr(text, "from rank 0 with tag"))
        __atomic_add_fetch(&warnings, 1, __ATOMIC_RELAXED);
}
static int unreceived(dt_comm *c, int rank)
{
    dt_comm    *d = NULL;
    dt_msg_info info;
    int         bad = 0;
    char       *x = (char *)calloc(1, LARGE_ONE);
    dt_work    *w = NULL, *r = NULL;
    bad += CHECK(!dt_comm_dup(c, &d));
    if (bad) return bad;
    if (!rank) {
        w = dt_comm_send_start(d, x, LARGE_ONE, DT_COMM_U8, 1, .tag = 1);
        for (int k = 0; k < 3; k++) bad += CHECK(!dt_comm_send(d, x, SMALL_ONE, DT_COMM_U8, 1, .tag = 2 + k));
    } else {
        r = dt_comm_recv_start(d, x, 1, DT_COMM_U8, 0, .tag = 77); /* nothing comes */
        for (int tag = 1; tag < 5; tag++) bad += CHECK(dt_comm_probe(d, &info, DT_ANY, .tag = tag, .timeout = DT_FOREVER) == 1);
    }
    bad += CHECK(!dt_comm_free(d));
    if (w) bad += CHECK(dt_work_test(w)) + CHECK(!dt_work_cancel(w)) + CHECK(dt_work_wait(w) < 0); /* works may outlive their communicator */
    if (r) bad += CHECK(dt_work_test(r)) + CHECK(dt_work_wait(r) < 0);
    dt_comm_error(NULL);
    free(x);
    return bad;
}
static int unreceived_warned(dt_comm *c, int rank)
{
    warnings = 0;
    dt_set_log(count_warnings, NULL);
    return unreceived(c, rank) + CHECK(warnings == (rank == 1));
}
UTEST(situation, messages_that_were_never_received_are_told_at_the_end)
{
    dt_comm_opts o = { 0 };
    EXPECT_EQ(0, on_processes(2, unreceived_warned, o, "shm") + on_processes(2, unreceived_warned, o, "tcp"));
    warnings = 0;
    dt_set_log(count_warnings, NULL);
    EXPECT_EQ(0, on_threads(2, unreceived, o)); /* AddressSanitizer finds what is not freed */
    EXPECT_EQ(1, warnings);
    dt_set_log(no_log, NULL);
}
static int  never_taken(dt_comm *c, int rank) /* requests that no dt_comm_serve_next takes, and calls that end with the communicator */
{
    int      bad = 0;
    char     y[8];
    dt_work *w = NULL;
    char    *x = (char *)calloc(1, LARGE_ONE);
    dt_comm *d = NULL;
    bad += CHECK(!dt_comm_dup(c, &d));
    if (bad) return bad;
    if (!rank) bad += CHECK(!dt_comm_serve(d, 1, echo));
    bad += CHECK(!dt_comm_barrier(d));
    if (rank) w = dt_comm_call_start(d, 0, 1, x, rank == 1 ? SMALL_ONE : LARGE_ONE, y, 8);
    for (int k = 0; k < 20; k++) bad += CHECK(!dt_comm_barrier(d));
    bad += CHECK(!dt_comm_free(d));
    if (w) bad += CHECK(dt_work_wait(w) < 0);
    dt_comm_error(NULL);
    free(x);
    return bad;
}
UTEST(situation, requests_that_nobody_takes_end_with_the_communicator) { EXPECT_EQ(0, everywhere(3, never_taken)); }

/* ---- two communicators */
static int two(dt_comm *c, int rank)
{
    dt_comm *d = NULL;
    int      bad = 0, x[2] = { 0, 0 };
    bad += CHECK(!dt_comm_dup(c, &d));
    for (int turn = 0; turn < 6 && !bad; turn++) {
        int first = turn % 2, value = turn + 10, go = 0;
        if (!rank) {
            dt_work *w[3] = { dt_comm_recv_start(c, &x[0], 1, DT_COMM_I32, 1), NULL, dt_comm_recv_start(d, &x[1], 1, DT_COMM_I32, DT_ANY) };
            bad += CHECK(!dt_comm_send(c, &go, 1, DT_COMM_I32, 1, .tag = 1));
            int i = dt_work_wait_any(w, 3);
            bad += CHECK(i == 2 * first) + CHECK(!dt_work_wait(w[2 * first])) + CHECK(x[first] == value);
            w[2 * first] = NULL;
            bad += CHECK(!dt_comm_send(d, &go, 1, DT_COMM_I32, 1, .tag = 2));
            i = dt_work_wait_any(w, 3);
            bad += CHECK(i == 2 - 2 * first) + CHECK(!dt_work_wait(w[2 - 2 * first])) + CHECK(x[1 - first] == value + 1);
        } else {
            int next = value + 1;
            bad += CHECK(!dt_comm_recv(c, &go, 1, DT_COMM_I32, 0, .tag = 1)) + CHECK(!dt_comm_send(first ? d : c, &value, 1, DT_COMM_I32, 0));
            bad += CHECK(!dt_comm_recv(d, &go, 1, DT_COMM_I32, 0, .tag = 2)) + CHECK(!dt_comm_send(first ? c : d, &next, 1, DT_COMM_I32, 0));
        }
    }
    return bad + CHECK(!dt_comm_free(d));
}
UTEST(situation, any_of_works_of_two_communicators) { EXPECT_EQ(0, with_and_without_thread(2, two)); }

/* ---- no progress thread: dt_work_test alone drives everything */
static int tests_only(dt_comm *c, int rank)
{
    int      bad = 0, other = 1 - rank, ended_ones = 0;
    char    *x = (char *)malloc(LARGE_ONE), *y = (char *)calloc(1, LARGE_ONE);
    int32_t  sum = 1, a = 5 + rank, b = 0;
    memset(x, 1 + rank, LARGE_ONE);
    dt_work *w[5] = { dt_comm_recv_start(c, y, LARGE_ONE, DT_COMM_U8, other, .tag = 1), dt_comm_send_start(c, x, LARGE_ONE, DT_COMM_U8, other, .tag = 1),
                      dt_comm_allreduce_start(c, &sum, 1, DT_COMM_I32, DT_COMM_SUM), dt_comm_send_start(c, &a, 1, DT_COMM_I32, other),
                      dt_comm_recv_start(c, &b, 1, DT_COMM_I32, DT_ANY, .tag = DT_ANY) };
    while (ended_ones != 31)
        for (int i = 0; i < 5; i++)
            if (!(ended_ones >> i & 1) && dt_work_test(w[i])) ended_ones |= 1 << i;
    for (int i = 0; i < 5; i++) bad += CHECK(!dt_work_wait(w[i]));
    bad += CHECK(sum == 2) + CHECK(b == 5 + other) + CHECK(all_bytes(y, LARGE_ONE, (char)(1 + other)));
    free(x);
    free(y);
    return bad;
}
UTEST(situation, without_a_thread_tests_drive_everything)
{
    dt_comm_opts o = { 0 };
    o.no_thread = true;
    EXPECT_EQ(0, everywhere_with(2, tests_only, o));
}

/* ---- frames that a rank of this version never sends: the communicator fails, and nothing is written */
static dt__mhead frame(int kind, uint64_t id, int64_t at, uint64_t n)
{
    dt__mhead h;
    memset(&h, 0, sizeof h);
    h.mark = DT__M_MARK;
    h.kind = (uint8_t)kind;
    h.dtype = DT_COMM_U8;
    h.id = id;
    h.at = at;
    h.n = n;
    return h;
}
static bool feed(dt_comm *c, int peer, dt__mhead h) /* a frame without data, or with 0xee; false: c has failed */
{
    char *to = dt__mail_want(c, peer, &h);
    if (to) memset(to, 0xee, dt__mhead_payload(&h));
    if (to) dt__mail_came(c, peer, &h);
    return to && !dt_comm_get_status(c);
}
enum { FRAME_BYTES = 2000 };
static uint64_t granted(dt_comm *c, char *to, dt_work **w) /* a large receive from rank 1 that has its offer; returns its number */
{
    *w = dt_comm_recv_start(c, to, FRAME_BYTES, DT_COMM_U8, 1, .tag = 0);
    return feed(c, 1, frame(DT__M_LARGE, 77, -1, FRAME_BYTES)) ? ((const dt__req *)(const void *)*w)->id : 0;
}
UTEST(situation, frames_that_no_rank_sends)
{
    static const char *const name[] = { "position behind", "position before", "too many bytes", "too many after some", "no bytes", "number used before",
                                        "number of another rank", "no number", "grant without offer", "read of another rank's offer", "mark", "kind 0",
                                        "kind 99", "small one too large", "tag", "space", "dtype", "half an element", "large one too large" };
    for (int i = 0; i < (int)(sizeof name / sizeof name[0]); i++) {
        char      to[FRAME_BYTES + 16];
        dt_sim   *s = dt_sim_new(.world = 3, .seed = 1, .timeout = 20);
        dt_comm  *c = dt_sim_comm(s, 0);
        dt_work  *w = NULL, *out = NULL;
        dt__mhead h;
        int       peer = 1;
        memset(to, 0xa5, sizeof to);
        uint64_t id = granted(c, to, &w);
        ASSERT_TRUE(id != 0);
        h = frame(DT__M_DATA, id, 0, 100);
        switch (i) {
        case 0: h.at = 8; break;
        case 1: h.at = -1; break;
        case 2: h.n = FRAME_BYTES + 1; break;
        case 3:
            ASSERT_TRUE(feed(c, 1, h));
            h.at = 100;
            h.n = FRAME_BYTES - 99;
            break;
        case 4: h.n = 0; break;
        case 5: /* the receive is done, and another one has its number now */
            ASSERT_TRUE(feed(c, 1, frame(DT__M_DATA, id, 0, FRAME_BYTES)));
            EXPECT_EQ(0, dt_work_wait(w));
            memset(to, 0xa5, sizeof to);
            ASSERT_EQ((uint32_t)id, (uint32_t)granted(c, to, &w));
            break;
        case 6: peer = 2; break;
        case 7: h.id = 12345; break;
        case 8: h = frame(DT__M_GRANT, id, 1, 0); break;
        case 9:
            out = dt_comm_send_start(c, to, FRAME_BYTES, DT_COMM_U8, 2);
            ASSERT_EQ((int)DT__REQ_OFFERED, (int)((const dt__req *)(const void *)out)->state);
            h = frame(DT__M_READ, ((const dt__req *)(const void *)out)->id, 0, 0);
            break;
        case 10: h.mark = 0; break;
        case 11: h.kind = 0; break;
        case 12: h.kind = 99; break;
        case 13: h = frame(DT__M_EAGER, 0, 0, 1 << 20); break;
        case 14: h = frame(DT__M_EAGER, 0, 0, 8), h.tag = -1; break;
        case 15: h = frame(DT__M_EAGER, 0, 0, 8), h.space = DT__SPACES; break;
        case 16: h = frame(DT__M_EAGER, 0, 0, 8), h.dtype = 99; break;
        case 17: h = frame(DT__M_EAGER, 0, 0, 7), h.dtype = DT_COMM_I32; break;
        default: h = frame(DT__M_LARGE, 5, -1, UINT64_MAX); break;
        }
        bool ok = feed(c, peer, h);
        EXPECT_FALSE_MSG(ok, name[i]);
        EXPECT_TRUE_MSG(dt_comm_get_status(c) == DT_COMM_ERR_NET && dt_comm_failed_rank(c) == peer, name[i]);
        for (int k = i == 3 ? 100 : 0; k < (int)sizeof to; k++)
            if ((uint8_t)to[k] != 0xa5) {
                EXPECT_TRUE_MSG(false, name[i]);
                break;
            }
        if (ok) dt_comm_abort(c, "the test goes on");
        EXPECT_TRUE(dt_work_wait(w) < 0);
        if (out) EXPECT_TRUE(dt_work_wait(out) < 0);
        dt_sim_free(s);
    }
}
UTEST(situation, a_peer_that_takes_no_answers)
{
    dt_sim   *s = dt_sim_new(.world = 2, .seed = 1, .timeout = 20);
    dt_comm  *c = dt_sim_comm(s, 0);
    dt__mhead h = frame(DT__M_LARGE, 1, -1, 1000);
    int       n = 0;
    ((dt__mail *)c->mail)->limit = 30000;
    h.space = DT__SPACE_REPLY; /* of a call that has ended: answered at once */
    while (n < 10000 && feed(c, 1, h)) n++, h.id++;
    EXPECT_TRUE(n > 100 && n < 1000);
    EXPECT_EQ((int)DT_COMM_ERR_MEMORY, dt_comm_get_status(c));
    EXPECT_EQ(1, dt_comm_failed_rank(c));
    dt_sim_free(s);
}

/* ---- a payload that looks like frames of the ring's next round, at every cell that a frame may begin at */
static int like_frames(dt_comm *c, int rank)
{
    uint64_t random = 11, at = 0, lap = dt__ring_ncells(2);
    char     x[4000], y[4000];
    int      bad = 0, ack = 0;
    for (int k = 0; k < 1500 && !bad; k++) { /* some rounds of the ring */
        uint64_t left = lap - at % lap; /* at the end of the ring: one cell more than there is, or as many as there are */
        size_t   n = left < 60 ? DT__RING_CELL * (size_t)(left + k % 2) - 8 - sizeof(dt__mhead) : 8 * (size_t)below(&random, (int)sizeof x / 8), first = DT__RING_CELL - 8 - sizeof(dt__mhead);
        uint64_t cells = (8 + sizeof(dt__mhead) + n + DT__RING_CELL - 1) / DT__RING_CELL;
        if (cells > lap - at % lap) at += lap - at % lap; /* it begins at the start of the ring */
        memset(x, k, n);
        for (uint64_t i = 1; i < cells; i++) {
            uint64_t no = at + i + lap + 1;
            size_t   offset = first + (size_t)(i - 1) * DT__RING_CELL;
            if (offset + 8 <= n) memcpy(x + offset, &no, 8);
        }
        at += cells;
        if (!rank) bad += CHECK(!dt_comm_send(c, x, (int64_t)n, DT_COMM_U8, 1)) + CHECK(!dt_comm_recv(c, &ack, 1, DT_COMM_I32, 1)) + CHECK(ack == k);
        else {
            dt_work *w = dt_comm_recv_start(c, y, (int64_t)n, DT_COMM_U8, 0);
            bad += CHECK(!dt_work_wait(w)) + CHECK(!memcmp(x, y, n)) + CHECK(dt_comm_probe(c, NULL, 0) == 0) + CHECK(!dt_comm_send(c, &k, 1, DT_COMM_I32, 0));
        }
    }
    return bad;
}
UTEST(situation, payloads_that_look_like_frames)
{
    dt_comm_opts o = { 0 };
    EXPECT_EQ(0, on_processes(2, like_frames, o, "shm") + on_threads(2, like_frames, o));
}

/* ---- a death: receives without a deadline end on all survivors */
static int forever(void *arg)
{
    const death *d = (const death *)arg;
    dt_comm     *c = dt_comm_init(.transport = d->transport, .timeout = 20 * dt_test_slow());
    if (!c) return 1;
    int      rank = dt_comm_rank(c), bad = 0, x[4];
    char    *big = (char *)calloc(1, LARGE_ONE);
    dt_work *w[4] = { NULL, NULL, NULL, NULL };
    if (rank != d->victim) {
        w[0] = dt_comm_recv_start(c, &x[0], 1, DT_COMM_I32, d->victim, .timeout = DT_FOREVER);
        w[1] = dt_comm_recv_start(c, &x[1], 1, DT_COMM_I32, DT_ANY, .tag = DT_ANY, .timeout = DT_FOREVER);
        w[2] = dt_comm_recv_start(c, &x[2], 1, DT_COMM_I32, (d->victim + 1) % d->n, .tag = 5, .timeout = DT_FOREVER);
        w[3] = dt_comm_send_start(c, big, LARGE_ONE, DT_COMM_U8, d->victim, .tag = 6, .timeout = DT_FOREVER);
    }
    __atomic_add_fetch(&d->o->ready, 1, __ATOMIC_SEQ_CST);
    if (rank == d->victim) {
        while (__atomic_load_n(&d->o->ready, __ATOMIC_SEQ_CST) < d->n) usleep(1000);
        if (d->seed % 2) dt_comm_recv(c, big, LARGE_ONE, DT_COMM_U8, DT_ANY, .tag = 6); /* it has been in the middle of it */
        die(d->o);
    }
    for (int i = 3; i >= 0; i--) bad += w[i] && dt_work_wait(w[i]) == 0 && !(i == 3 && d->seed % 2);
    survived(d->o, c, bad);
    free(big);
    dt_comm_free(c);
    return 0;
}
UTEST(situation, a_process_is_killed_when_others_wait_without_a_deadline)
{
    dt_set_log(no_log, NULL);
    for (int i = 0; i < (dt_test_quick() ? 2 : 8); i++) {
        death d = { i / 2 % 2 ? "tcp" : "shm", i, 4, (i * 3 + 1) % 4, outcome_new() };
        if (dt_test_quick()) d.transport = i % 2 ? "tcp" : "shm";
        EXPECT_NE(0, dt_spawn(d.n, forever, &d));
        check_survivors(d.o, d.n, d.victim, utest_result);
        munmap(d.o, sizeof *d.o);
    }
}
