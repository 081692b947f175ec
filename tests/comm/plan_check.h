/* plan_check.h: proves the plans of all ranks of a collective, without running them

       plan_set s = plan_set_make(DT_COLL_ALLREDUCE, DT_ALGO_RING, &opts);  // the plans of opts.world ranks
       plan_report r;
       if (!plan_check(&s, &r)) puts(r.why);
       plan_set_free(&s);

   What is proved, for these plans:
   - every step is in its buffers; none writes to IN; in a round no step writes what another one reads or writes; local
     steps and messages are not in one round; rounds ascend
   - messages of each ordered pair of ranks match in order and length, none is left over, and with sends that wait for
     their receive every rank gets to its end
   - the result is what the contract in dt_comm.h says. Buffers are lists of runs of elements; a run holds the element
     of the vector that it stands for, which ranks are in it (each once: a mask to 64 ranks, beyond it a sum of 64-bit
     keys) and a hash of the expression with its left and right operands. So counts may be huge. An allreduce must leave
     the same expressions on all ranks: the same bits; DT_ALGO_ORDERED its one tree. Reading what nobody wrote is an
     error.
   - a barrier: every rank knows at its end that every other one has begun

   plan_report also holds what the plans cost: rounds, elements, and seconds by a table of costs. */
#ifndef PLAN_CHECK_H_INCLUDED
#define PLAN_CHECK_H_INCLUDED

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dt_comm.h"

#define PLAN_UNUSED __attribute__((unused))

typedef struct plan_set {
    dt_coll      coll;
    dt_algo      algo;
    dt_plan_opts o;
    dt_plan     *plan; /* o.world; NULL: they cannot be made */
    const char  *why;
} plan_set;

typedef struct plan_report {
    char     why[256];               /* of the first error */
    int64_t  messages, steps, folds; /* folds: messages that are reduced */
    int      rounds;                 /* in which some rank sends */
    int64_t  sent, most_sent;        /* elements, of all ranks and of the one that sends most */
    int64_t  most_out;               /* elements that one rank sends to other machines */
    int64_t  path, reduced;          /* elements moved and reduced if each round is as long as its longest rank */
    double   seconds;                /* if costs were given */
    uint64_t bits;                   /* allreduce, reduce, reduce_scatter: a hash of the expressions of the result */
} plan_report;

static PLAN_UNUSED void plan_set_free(plan_set *s)
{
    for (int r = 0; s->plan && r < s->o.world; r++) dt_plan_free(&s->plan[r]);
    free(s->plan);
    s->plan = NULL;
}
static PLAN_UNUSED plan_set plan_set_make(dt_coll coll, dt_algo algo, const dt_plan_opts *o)
{
    plan_set s;
    memset(&s, 0, sizeof s);
    s.coll = coll;
    s.algo = algo;
    s.o = *o;
    s.plan = (dt_plan *)calloc((size_t)o->world, sizeof *s.plan);
    int64_t *column = (int64_t *)calloc((size_t)o->world, sizeof *column);
    for (int r = 0; s.plan && r < o->world; r++) {
        dt_plan_opts mine = *o;
        mine.rank = r;
        if (coll == DT_COLL_ALLTOALL && o->counts) { /* a rank knows what it sends and receives, no more */
            for (int k = 0; k < o->world; k++) column[k] = o->counts[(int64_t)k * o->world + r];
            mine.counts = NULL;
            mine.sends = o->counts + (int64_t)r * o->world;
            mine.recvs = column;
        }
        if (dt_plan_make(&s.plan[r], coll, algo, &mine, &s.why)) {
            plan_set_free(&s);
            break;
        }
    }
    free(column);
    return s;
}

/* ==================================================================================================== >>values */
typedef struct plan_value {
    uint64_t expr, set, mask; /* expr 0: nothing was written */
    int64_t  e;               /* the element at the beginning of the run */
} plan_value;
typedef struct plan_run {
    int64_t    at; /* up to the next run's */
    plan_value v;
} plan_run;
typedef struct plan_buffer {
    plan_run *run;
    int64_t   n, cap, end;
} plan_buffer;
enum { PLAN_BUFFERS = 3 }; /* DT_PLAN_DATA, DT_PLAN_SCRATCH, DT_PLAN_IN */
typedef struct plan_check_s {
    const plan_set *s;
    plan_report    *r;
    int             world;
    plan_buffer    *buf;   /* PLAN_BUFFERS a rank */
    int64_t        *first; /* the number of a rank's first step */
    int64_t        *mate;  /* of a step: the number of the step that it meets */
    uint8_t        *posted;
    int64_t        *at, *end; /* of a rank: the steps of its round */
    int64_t        *open;     /* of them not done */
    int            *ready, nready;
    plan_run       *tmp; /* what a message carries */
    int64_t         ntmp, captmp;
    uint64_t       *knows, *said; /* barrier: bits of ranks; as it was when the round began */
    bool            bad;
} plan_check_s;

static PLAN_UNUSED __attribute__((format(printf, 2, 3))) bool plan_bad(plan_check_s *c, const char *format, ...)
{
    va_list a;
    va_start(a, format);
    if (!c->bad) vsnprintf(c->r->why, sizeof c->r->why, format, a);
    va_end(a);
    c->bad = true;
    return false;
}
static uint64_t plan_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static plan_value plan_leaf(int rank, int64_t e)
{
    plan_value v;
    v.expr = plan_mix((uint64_t)rank + 1) | 1;
    v.set = plan_mix(~(uint64_t)rank);
    v.mask = rank < 64 ? (uint64_t)1 << rank : 0;
    v.e = e;
    return v;
}
static plan_value plan_none(void)
{
    plan_value v;
    memset(&v, 0, sizeof v);
    return v;
}
static void *plan_grow(void *p, int64_t *cap, int64_t need, size_t size)
{
    if (need <= *cap) return p;
    while (*cap < need) *cap = *cap ? *cap * 2 : 8;
    p = realloc(p, (size_t)*cap * size);
    if (!p) abort();
    return p;
}
static int64_t plan_find(const plan_buffer *b, int64_t at) /* the run that holds it */
{
    int64_t lo = 0, hi = b->n;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (b->run[mid].at <= at) lo = mid;
        else hi = mid;
    }
    return lo;
}
/* A run begins at `at` afterwards; its number. at == end: the number of runs. */
static int64_t plan_split(plan_buffer *b, int64_t at)
{
    if (at >= b->end) return b->n;
    int64_t i = plan_find(b, at);
    if (b->run[i].at == at) return i;
    b->run = (plan_run *)plan_grow(b->run, &b->cap, b->n + 1, sizeof *b->run);
    memmove(&b->run[i + 2], &b->run[i + 1], (size_t)(b->n - i - 1) * sizeof *b->run);
    b->run[i + 1].at = at;
    b->run[i + 1].v = b->run[i].v;
    b->run[i + 1].v.e += at - b->run[i].at;
    b->n++;
    return i + 1;
}
static void plan_fill(plan_buffer *b, int64_t at, int64_t n, plan_value v)
{
    if (!n) return;
    plan_split(b, at);
    int64_t j = plan_split(b, at + n), i = plan_find(b, at);
    memmove(&b->run[i + 1], &b->run[j], (size_t)(b->n - j) * sizeof *b->run);
    b->n -= j - i - 1;
    b->run[i].v = v;
}
/* Takes n elements into c->tmp, places from 0 on; neighbours that continue each other become one. */
static bool plan_take(plan_check_s *c, const plan_buffer *b, int64_t at, int64_t n)
{
    c->ntmp = 0;
    for (int64_t i = n ? plan_find(b, at) : b->n; i < b->n && b->run[i].at < at + n; i++) {
        int64_t    from = b->run[i].at < at ? at : b->run[i].at;
        plan_value v = b->run[i].v;
        if (!v.expr) return false;
        v.e += from - b->run[i].at;
        if (c->ntmp) {
            plan_run *l = &c->tmp[c->ntmp - 1];
            if (l->v.expr == v.expr && l->v.set == v.set && l->v.e + (from - at - l->at) == v.e) continue;
        }
        c->tmp = (plan_run *)plan_grow(c->tmp, &c->captmp, c->ntmp + 1, sizeof *c->tmp);
        c->tmp[c->ntmp].at = from - at;
        c->tmp[c->ntmp++].v = v;
    }
    return true;
}
static void plan_put(plan_check_s *c, plan_buffer *b, int64_t at, int64_t n)
{
    if (c->ntmp == 1) {
        plan_fill(b, at, n, c->tmp[0].v);
        return;
    }
    int64_t i = plan_split(b, at), j = plan_split(b, at + n), more = c->ntmp - (j - i);
    b->run = (plan_run *)plan_grow(b->run, &b->cap, b->n + (more > 0 ? more : 0), sizeof *b->run);
    memmove(&b->run[i + c->ntmp], &b->run[j], (size_t)(b->n - j) * sizeof *b->run);
    b->n += more;
    for (int64_t k = 0; k < c->ntmp; k++) {
        b->run[i + k].at = at + c->tmp[k].at;
        b->run[i + k].v = c->tmp[k].v;
    }
}
static uint64_t plan_pair(uint64_t left, uint64_t right) { return plan_mix(plan_mix(left) * 3 + right) | 1; }
/* buf := buf op tmp, or tmp op buf with left */
static bool plan_join(plan_check_s *c, plan_buffer *b, int64_t at, int64_t n, bool left, int rank)
{
    plan_split(b, at);
    plan_split(b, at + n);
    for (int64_t k = 0; k < c->ntmp; k++) plan_split(b, at + c->tmp[k].at);
    int64_t k = 0;
    for (int64_t i = plan_find(b, at); i < b->n && b->run[i].at < at + n; i++) {
        while (k + 1 < c->ntmp && c->tmp[k + 1].at <= b->run[i].at - at) k++;
        plan_value *v = &b->run[i].v, in = c->tmp[k].v;
        in.e += b->run[i].at - at - c->tmp[k].at;
        if (!v->expr) return plan_bad(c, "rank %d reduces into elements that nobody wrote", rank);
        if (v->e != in.e)
            return plan_bad(c, "rank %d reduces element %lld with element %lld", rank, (long long)v->e,
                            (long long)in.e);
        if (v->mask & in.mask)
            return plan_bad(c, "rank %d counts rank %d twice", rank, __builtin_ctzll(v->mask & in.mask));
        uint64_t l = left ? in.expr : v->expr, r = left ? v->expr : in.expr;
        v->expr = plan_pair(l, r);
        v->set += in.set;
        v->mask |= in.mask;
    }
    return true;
}

/* ==================================================================================================== >>steps */
static bool plan_talks(const dt_plan_step *s) { return s->kind >= DT_STEP_SEND && s->kind <= DT_STEP_FOLD; }
static bool plan_in_place(const dt_plan_step *s) /* a FOLD whose own operand is where its result goes */
{
    return s->kind == DT_STEP_FOLD && s->buf == s->from_buf && s->at == s->from;
}
static const dt_plan_step *plan_step(const plan_check_s *c, int rank, int64_t number)
{
    return &c->s->plan[rank].step[number - c->first[rank]];
}
typedef struct plan_access {
    int64_t lo, hi;
    int     buf, write;
} plan_access;
static int plan_access_order(const void *x, const void *y)
{
    const plan_access *a = (const plan_access *)x, *b = (const plan_access *)y;
    if (a->buf != b->buf) return a->buf < b->buf ? -1 : 1;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}
static int64_t plan_nelements(const dt_plan *p, int buf)
{
    return buf == DT_PLAN_DATA ? p->count : buf == DT_PLAN_SCRATCH ? p->scratch : p->input;
}
static bool plan_check_range(plan_check_s *c, int rank, int64_t i, int buf, int64_t at, int64_t n, bool write)
{
    if (buf < 0 || buf >= PLAN_BUFFERS) return plan_bad(c, "rank %d step %lld: no such buffer", rank, (long long)i);
    if (write && buf == DT_PLAN_IN) return plan_bad(c, "rank %d step %lld writes to its input", rank, (long long)i);
    int64_t end = plan_nelements(&c->s->plan[rank], buf);
    if (at < 0 || n < 0 || n > end || at > end - n)
        return plan_bad(c, "rank %d step %lld: [%lld, +%lld) is outside its buffer of %lld", rank, (long long)i,
                        (long long)at, (long long)n, (long long)end);
    return true;
}
static bool plan_check_steps(plan_check_s *c, int rank)
{
    const dt_plan *p = &c->s->plan[rank];
    plan_access   *a = NULL;
    int64_t        cap = 0, na = 0, begin = 0;
    bool           talk = false, alone = false, share = false, barrier = c->s->coll == DT_COLL_BARRIER;
    for (int64_t i = 0; i <= p->nsteps && p->nsteps && !c->bad; i++) {
        const dt_plan_step *s = &p->step[i];
        if (i == p->nsteps || (i && s->round != s[-1].round)) { /* the end of a round */
            int64_t any = INT64_MIN, write = INT64_MIN;
            if (talk + alone + share > 1) plan_bad(c, "rank %d round %d: messages and local steps", rank, s[-1].round);
            if (na > 1) qsort(a, (size_t)na, sizeof *a, plan_access_order);
            for (int64_t k = 0; k < na; k++) {
                if (k && a[k].buf != a[k - 1].buf) any = write = INT64_MIN;
                if (a[k].lo < (a[k].write ? any : write))
                    plan_bad(c, "rank %d round %d: two steps at element %lld", rank, s[-1].round, (long long)a[k].lo);
                if (a[k].hi > any) any = a[k].hi;
                if (a[k].write && a[k].hi > write) write = a[k].hi;
            }
            na = 0, begin = i;
            talk = alone = share = false;
            if (i == p->nsteps) break;
        }
        if (s->round < 0 || s->round >= p->rounds || (i > begin && s->round < s[-1].round) ||
            (begin == i && i && s->round <= s[-1].round)) {
            plan_bad(c, "rank %d step %lld: round %d of %d", rank, (long long)i, s->round, p->rounds);
            break;
        }
        if (s->kind < DT_STEP_SEND || s->kind > DT_STEP_SHARE || s->left < 0 || s->left > 1) {
            plan_bad(c, "rank %d step %lld: kind %d, left %d", rank, (long long)i, s->kind, s->left);
            break;
        }
        if (s->left && s->kind != DT_STEP_FOLD && s->kind != DT_STEP_REDUCE)
            plan_bad(c, "rank %d step %lld: left, and nothing is reduced", rank, (long long)i);
        if (!plan_check_range(c, rank, i, s->buf, s->at, s->n, s->kind != DT_STEP_SEND)) break;
        if (barrier ? s->n || !plan_talks(s) || s->kind == DT_STEP_FOLD : !s->n && s->kind != DT_STEP_SHARE)
            plan_bad(c, "rank %d step %lld: %lld elements", rank, (long long)i, (long long)s->n);
        if (plan_talks(s) && (s->peer < 0 || s->peer >= c->world || s->peer == rank))
            plan_bad(c, "rank %d step %lld: peer %d", rank, (long long)i, s->peer);
        a = (plan_access *)plan_grow(a, &cap, na + 2, sizeof *a);
        a[na].buf = s->buf, a[na].lo = s->at, a[na].hi = s->at + s->n, a[na].write = s->kind != DT_STEP_SEND;
        na += s->n > 0;
        if (s->kind >= DT_STEP_FOLD && s->kind <= DT_STEP_REDUCE) {
            if (!plan_check_range(c, rank, i, s->from_buf, s->from, s->n, false)) break;
            a[na].buf = s->from_buf, a[na].lo = s->from, a[na].hi = s->from + s->n, a[na].write = 0;
            na += s->n > 0 && !plan_in_place(s);
        }
        if (s->kind == DT_STEP_COPY || s->kind == DT_STEP_REDUCE) alone = true;
        else if (s->kind == DT_STEP_SHARE) share = true;
        else talk = true;
    }
    free(a);
    return !c->bad;
}
/* The k-th send of s to d meets the k-th receive of d from s. Steps are sorted by peer, sends apart from receives. */
static bool plan_match(plan_check_s *c)
{
    int      w = c->world;
    int64_t *sends = (int64_t *)calloc((size_t)w * ((size_t)w + 1), sizeof *sends), *fill;
    int64_t  total = c->first[w], *list = (int64_t *)malloc((size_t)(total ? total : 1) * sizeof *list);
    if (!sends || !list) abort();
    fill = (int64_t *)malloc((size_t)w * sizeof *fill);
    if (!fill) abort();
    for (int r = 0; r < w; r++) { /* where the sends of r to each peer begin in list */
        int64_t *at = sends + (int64_t)r * (w + 1);
        for (int64_t i = 0; i < c->s->plan[r].nsteps; i++)
            if (c->s->plan[r].step[i].kind == DT_STEP_SEND) at[c->s->plan[r].step[i].peer + 1]++;
        at[0] = c->first[r];
        for (int k = 0; k < w; k++) at[k + 1] += at[k];
        for (int k = 0; k < w; k++) fill[k] = at[k];
        for (int64_t i = 0; i < c->s->plan[r].nsteps; i++)
            if (c->s->plan[r].step[i].kind == DT_STEP_SEND) list[fill[c->s->plan[r].step[i].peer]++] = c->first[r] + i;
    }
    for (int r = 0; r < w && !c->bad; r++) {
        for (int k = 0; k < w; k++) fill[k] = sends[(int64_t)k * (w + 1) + r];
        for (int64_t i = 0; i < c->s->plan[r].nsteps && !c->bad; i++) {
            const dt_plan_step *s = &c->s->plan[r].step[i];
            if (s->kind != DT_STEP_RECV && s->kind != DT_STEP_FOLD) continue;
            int64_t k = fill[s->peer]++;
            if (k >= sends[(int64_t)s->peer * (w + 1) + r + 1]) {
                plan_bad(c, "rank %d step %lld: rank %d sends it nothing more", r, (long long)i, s->peer);
                break;
            }
            if (plan_step(c, s->peer, list[k])->n != s->n)
                plan_bad(c, "rank %d sends %lld elements, rank %d step %lld takes %lld", s->peer,
                         (long long)plan_step(c, s->peer, list[k])->n, r, (long long)i, (long long)s->n);
            c->mate[list[k]] = c->first[r] + i;
            c->mate[c->first[r] + i] = list[k];
        }
        for (int k = 0; k < w && !c->bad; k++)
            if (fill[k] != sends[(int64_t)k * (w + 1) + r + 1])
                plan_bad(c, "rank %d sends more to rank %d than it takes", k, r);
    }
    free(sends);
    free(list);
    free(fill);
    return !c->bad;
}

/* ==================================================================================================== >>running */
static plan_buffer *plan_buf(plan_check_s *c, int rank, int buf) { return &c->buf[PLAN_BUFFERS * rank + buf]; }
static void         plan_ready(plan_check_s *c, int rank) { c->ready[c->nready++] = rank; }
static void         plan_done(plan_check_s *c, int rank)
{
    if (--c->open[rank] == 0) plan_ready(c, rank);
}
static void plan_move(plan_check_s *c, int from, int64_t send, int to, int64_t recv)
{
    const dt_plan_step *s = plan_step(c, from, send), *r = plan_step(c, to, recv);
    int64_t             words = (c->world + 63) / 64;
    if (c->knows)
        for (int64_t k = 0; k < words; k++) c->knows[to * words + k] |= c->said[from * words + k];
    if (s->n) {
        if (r->kind == DT_STEP_FOLD && !plan_in_place(r)) { /* the own operand first goes to its place */
            if (!plan_take(c, plan_buf(c, to, r->from_buf), r->from, r->n)) {
                plan_bad(c, "rank %d step %lld reads what nobody wrote", to, (long long)(recv - c->first[to]));
                return;
            }
            plan_put(c, plan_buf(c, to, r->buf), r->at, r->n);
        }
        if (!plan_take(c, plan_buf(c, from, s->buf), s->at, s->n)) {
            plan_bad(c, "rank %d step %lld sends what nobody wrote", from, (long long)(send - c->first[from]));
            return;
        }
        if (r->kind == DT_STEP_FOLD) plan_join(c, plan_buf(c, to, r->buf), r->at, r->n, r->left, to);
        else plan_put(c, plan_buf(c, to, r->buf), r->at, r->n);
    }
    plan_done(c, from);
    plan_done(c, to);
}
/* All ranks of a machine are in a round of SHARE: each step reads the buffers of all and writes to all. */
static void plan_share(plan_check_s *c, int rank)
{
    const int *host = c->s->o.host;
    int        w = c->world;
    for (int r = 0; r < w; r++) {
        if (host && host[r] != host[rank]) continue;
        if (c->at[r] >= c->end[r] || plan_step(c, r, c->at[r])->kind != DT_STEP_SHARE || !c->open[r])
            return; /* not there */
    }
    for (int r = 0; r < w && !c->bad; r++) {
        if (host && host[r] != host[rank]) continue;
        for (int64_t i = c->at[r]; i < c->end[r] && !c->bad; i++) {
            const dt_plan_step *s = plan_step(c, r, i);
            for (int q = 0; q < w; q++) { /* disjoint parts: what is written was not written in this round */
                if ((host && host[q] != host[rank]) || q == r) continue;
                for (int64_t j = c->at[q]; j < c->end[q]; j++) {
                    const dt_plan_step *x = plan_step(c, q, j);
                    if (s->n && x->n && x->buf == s->buf && x->at < s->at + s->n && s->at < x->at + x->n)
                        plan_bad(c, "ranks %d and %d share the same elements", r, q);
                }
            }
            plan_buffer acc;
            memset(&acc, 0, sizeof acc);
            acc.end = s->n;
            acc.run = (plan_run *)plan_grow(NULL, &acc.cap, 1, sizeof *acc.run);
            acc.n = 1;
            acc.run[0].at = 0;
            acc.run[0].v = plan_none();
            bool one = false;
            for (int q = 0; q < w && s->n && !c->bad; q++) {
                if (host && host[q] != host[rank]) continue;
                if (!plan_take(c, plan_buf(c, q, s->buf), s->at, s->n))
                    plan_bad(c, "rank %d shares what nobody wrote", q);
                else if (one) plan_join(c, &acc, 0, s->n, false, r);
                else plan_put(c, &acc, 0, s->n);
                one = true;
            }
            if (s->n && !c->bad) plan_take(c, &acc, 0, s->n);
            for (int q = 0; q < w && s->n && !c->bad; q++)
                if (!host || host[q] == host[rank]) plan_put(c, plan_buf(c, q, s->buf), s->at, s->n);
            free(acc.run);
        }
    }
    for (int r = 0; r < w; r++)
        if (!host || host[r] == host[rank]) {
            c->open[r] = 0;
            plan_ready(c, r);
        }
}
static void plan_enter(plan_check_s *c, int rank) /* the next round of the rank */
{
    const dt_plan *p = &c->s->plan[rank];
    int64_t        i = c->end[rank], last = c->first[rank] + p->nsteps, words = (c->world + 63) / 64;
    c->at[rank] = i;
    while (i < last && plan_step(c, rank, i)->round == plan_step(c, rank, c->at[rank])->round) i++;
    c->end[rank] = i;
    c->open[rank] = i - c->at[rank];
    if (!c->open[rank]) return; /* the end */
    if (c->knows) memcpy(c->said + rank * words, c->knows + rank * words, (size_t)words * sizeof *c->said);
    if (plan_step(c, rank, c->at[rank])->kind == DT_STEP_SHARE) {
        plan_share(c, rank);
        return;
    }
    for (i = c->at[rank]; i < c->end[rank] && !c->bad; i++) {
        const dt_plan_step *s = plan_step(c, rank, i);
        c->posted[i] = 1;
        if (s->kind == DT_STEP_SEND) {
            if (c->posted[c->mate[i]]) plan_move(c, rank, i, s->peer, c->mate[i]);
        } else if (plan_talks(s)) {
            if (c->posted[c->mate[i]]) plan_move(c, s->peer, c->mate[i], rank, i);
        } else {
            if (!plan_take(c, plan_buf(c, rank, s->from_buf), s->from, s->n))
                plan_bad(c, "rank %d step %lld reads what nobody wrote", rank, (long long)(i - c->first[rank]));
            else if (s->kind == DT_STEP_COPY) plan_put(c, plan_buf(c, rank, s->buf), s->at, s->n);
            else plan_join(c, plan_buf(c, rank, s->buf), s->at, s->n, s->left, rank);
            plan_done(c, rank);
        }
    }
}
static void plan_run_all(plan_check_s *c)
{
    for (int r = 0; r < c->world; r++) {
        c->end[r] = c->first[r];
        plan_ready(c, r);
    }
    while (c->nready && !c->bad) plan_enter(c, c->ready[--c->nready]);
    for (int r = 0; r < c->world && !c->bad; r++)
        if (c->open[r]) plan_bad(c, "rank %d waits for ever in round %d", r, plan_step(c, r, c->at[r])->round);
}

/* ==================================================================================================== >>result */
static int64_t plan_count(const plan_set *s, int a, int b) /* of rank a; alltoall: from a to b */
{
    if (!s->o.counts) return s->o.count;
    return s->coll == DT_COLL_ALLTOALL ? s->o.counts[(int64_t)a * s->o.world + b] : s->o.counts[a];
}
static bool plan_whole(dt_coll c) { return c == DT_COLL_ALLREDUCE || c == DT_COLL_BROADCAST || c == DT_COLL_REDUCE; }
static int64_t plan_own(const plan_set *s, int r, int64_t at) /* where the own segment of rank r is in DATA */
{
    bool passes = s->coll == DT_COLL_GATHER || s->coll == DT_COLL_SCATTER;
    return s->coll == DT_COLL_REDUCE_SCATTER || (passes && r != s->o.root) ? 0 : at;
}
static void plan_begin(plan_check_s *c)
{
    const plan_set *s = c->s;
    int64_t         at = 0;
    for (int r = 0; r < c->world; r++) {
        for (int b = 0; b < PLAN_BUFFERS; b++) {
            plan_buffer *x = plan_buf(c, r, b);
            x->end = plan_nelements(&s->plan[r], b);
            x->run = (plan_run *)plan_grow(NULL, &x->cap, 1, sizeof *x->run);
            x->n = x->end > 0;
            x->run[0].at = 0;
            x->run[0].v = plan_none();
        }
        plan_buffer *d = plan_buf(c, r, DT_PLAN_DATA);
        int64_t      n = plan_whole(s->coll) || s->coll == DT_COLL_BARRIER ? 0 : plan_count(s, r, 0), out = 0;
        switch (s->coll) {
        case DT_COLL_BARRIER: break;
        case DT_COLL_ALLGATHER:
        case DT_COLL_GATHER: plan_fill(d, plan_own(s, r, at), n, plan_leaf(r, at)); break;
        case DT_COLL_REDUCE_SCATTER: plan_fill(plan_buf(c, r, DT_PLAN_IN), 0, s->plan[r].input, plan_leaf(r, 0)); break;
        case DT_COLL_BROADCAST:
        case DT_COLL_SCATTER:
            if (r == s->o.root) plan_fill(d, 0, d->end, plan_leaf(r, 0));
            break;
        case DT_COLL_ALLTOALL:
            for (int k = 0; k < c->world; k++) out += plan_count(s, r, k);
            plan_fill(plan_buf(c, r, DT_PLAN_IN), 0, out, plan_leaf(r, 0));
            break;
        default: plan_fill(d, 0, d->end, plan_leaf(r, 0)); break;
        }
        at += n;
    }
}
/* [at, at+n) of rank's DATA must be v, with elements from v.e on; any expression if expr is 0 */
static bool plan_expect(plan_check_s *c, int rank, int64_t at, int64_t n, plan_value v)
{
    const plan_buffer *b = plan_buf(c, rank, DT_PLAN_DATA);
    for (int64_t i = n ? plan_find(b, at) : b->n; i < b->n && b->run[i].at < at + n; i++) {
        const plan_value *x = &b->run[i].v;
        int64_t           from = b->run[i].at > at ? b->run[i].at : at;
        if (!x->expr || x->set != v.set || x->mask != v.mask || x->e + (from - b->run[i].at) != v.e + (from - at) ||
            (v.expr && x->expr != v.expr))
            return plan_bad(c, "rank %d: element %lld is not the result", rank, (long long)from);
    }
    return true;
}
static plan_value plan_sum(int world, int64_t e)
{
    plan_value v = plan_none();
    for (int r = 0; r < world; r++) {
        v.set += plan_leaf(r, 0).set;
        v.mask |= plan_leaf(r, 0).mask;
    }
    v.e = e;
    return v;
}
static uint64_t plan_tree(int world) /* ((x0 x1) (x2 x3)) ...: what DT_ALGO_ORDERED promises, for every element */
{
    uint64_t *x = (uint64_t *)calloc((size_t)world + 1, sizeof *x), all;
    for (int r = 0; r < world; r++) x[r] = plan_leaf(r, 0).expr;
    for (int s = 1; s < world; s *= 2)
        for (int i = 0; i + s < world; i += 2 * s) x[i] = plan_pair(x[i], x[i + s]);
    all = x[0];
    free(x);
    return all;
}
/* The same expression everywhere as on rank 0 */
static bool plan_same_bits(plan_check_s *c, int rank)
{
    const plan_buffer *a = plan_buf(c, 0, DT_PLAN_DATA), *b = plan_buf(c, rank, DT_PLAN_DATA);
    int64_t            i = 0, j = 0;
    while (i < a->n && j < b->n) {
        int64_t ea = i + 1 < a->n ? a->run[i + 1].at : a->end, eb = j + 1 < b->n ? b->run[j + 1].at : b->end;
        if (a->run[i].v.expr != b->run[j].v.expr)
            return plan_bad(c, "rank %d reduces element %lld in another order than rank 0", rank,
                            (long long)(a->run[i].at > b->run[j].at ? a->run[i].at : b->run[j].at));
        if (ea <= eb) i++;
        if (eb <= ea) j++;
    }
    return true;
}
static bool plan_result(plan_check_s *c)
{
    const plan_set *s = c->s;
    int             w = c->world, root = s->o.root;
    int64_t         at = 0, *row = (int64_t *)calloc(w > 0 ? (size_t)w : 1, sizeof *row);
    plan_value      sum = plan_sum(w, 0);
    if (s->algo == DT_ALGO_ORDERED) sum.expr = plan_tree(w);
    for (int r = 0; r < w && !c->bad; r++) {
        int64_t n = plan_whole(s->coll) || s->coll == DT_COLL_BARRIER ? s->o.count : plan_count(s, r, 0);
        switch (s->coll) {
        case DT_COLL_ALLREDUCE:
            plan_expect(c, r, 0, n, sum);
            if (!c->bad) plan_same_bits(c, r);
            break;
        case DT_COLL_REDUCE:
            if (r == root) plan_expect(c, r, 0, n, sum);
            else plan_expect(c, r, 0, n, plan_leaf(r, 0));
            break;
        case DT_COLL_BROADCAST: plan_expect(c, r, 0, n, plan_leaf(root, 0)); break;
        case DT_COLL_REDUCE_SCATTER:
            sum.e = at;
            plan_expect(c, r, 0, n, sum);
            if (n && !c->bad) c->r->bits = plan_mix(c->r->bits) ^ plan_buf(c, r, DT_PLAN_DATA)->run[0].v.expr;
            break;
        case DT_COLL_SCATTER:
            plan_expect(c, r, plan_own(s, r, at), n, plan_leaf(root, at));
            if (r == root && !c->bad) plan_expect(c, r, 0, s->plan[r].count, plan_leaf(root, 0));
            break;
        case DT_COLL_ALLGATHER:
        case DT_COLL_GATHER: {
            int64_t a = 0;
            for (int k = 0; k < w && !c->bad; a += plan_count(s, k, 0), k++)
                if (s->coll == DT_COLL_ALLGATHER || r == root)
                    plan_expect(c, r, a, plan_count(s, k, 0), plan_leaf(k, a));
            if (!c->bad && s->coll == DT_COLL_GATHER) plan_expect(c, r, plan_own(s, r, at), n, plan_leaf(r, at));
            break;
        }
        case DT_COLL_ALLTOALL: {
            int64_t a = 0;
            for (int k = 0; k < w && !c->bad; k++) {
                int64_t m = plan_count(s, k, r);
                plan_expect(c, r, a, m, plan_leaf(k, row[k]));
                row[k] += m;
                a += m;
            }
            break;
        }
        default:
            for (int k = 0; k < w && !c->bad; k++)
                if (!(c->knows[(int64_t)r * ((w + 63) / 64) + k / 64] >> (k % 64) & 1))
                    plan_bad(c, "rank %d ends before rank %d begins", r, k);
            break;
        }
        at += n;
    }
    const plan_buffer *b = plan_buf(c, s->coll == DT_COLL_REDUCE ? root : 0, DT_PLAN_DATA);
    uint64_t           last = 0;
    for (int64_t i = 0; s->coll != DT_COLL_REDUCE_SCATTER && i < b->n; last = b->run[i++].v.expr)
        if (!i || b->run[i].v.expr != last)
            c->r->bits = plan_mix(c->r->bits + (uint64_t)b->run[i].at) ^ b->run[i].v.expr;
    free(row);
    return !c->bad;
}

/* ==================================================================================================== >>costs
   Rounds one after the other, each as long as its longest rank. */
static PLAN_UNUSED void plan_measure(const plan_set *s, const dt_costs *t, int link, int64_t elem, plan_report *rep)
{
    int      w = s->o.world, rounds = 0, machines = 0;
    int64_t *next = (int64_t *)calloc((size_t)w, sizeof *next), *away = (int64_t *)calloc((size_t)w, sizeof *away);
    int     *of = (int *)calloc((size_t)w, sizeof *of);
    double  *bytes = (double *)calloc(2 * (size_t)w, sizeof *bytes), g = t ? t->gamma : 0;
    for (int r = 0; r < w; r++) { /* machines by number */
        int q = 0;
        while (s->o.host && q < r && s->o.host[q] != s->o.host[r]) q++;
        of[r] = !s->o.host ? 0 : q < r ? of[q] : machines++;
        if (s->plan[r].rounds > rounds) rounds = s->plan[r].rounds;
        rep->steps += s->plan[r].nsteps;
    }
    int    near = machines <= 1 || link < DT_LINK_SHM ? link : (int)DT_LINK_SHM;
    double ai = t ? t->alpha[near] : 0, bi = t ? t->beta[near] : 0, ao = t ? t->alpha[link] : 0,
           bo = t ? t->beta[link] : 0;
    for (int k = 0; k < rounds; k++) {
        int64_t path = 0, reduced = 0;
        double  slow = 0;
        bool    any = false;
        for (int pass = 0; pass < 2; pass++) { /* first what leaves and enters the machines */
            for (int r = 0; r < w; r++) {
                int64_t i = next[r], out = 0, in = 0, fold = 0, touched = 0, far[2] = { 0, 0 };
                double  sec[2] = { 0, 0 };
                for (; i < s->plan[r].nsteps && s->plan[r].step[i].round == k; i++) {
                    const dt_plan_step *x = &s->plan[r].step[i];
                    int                 way = x->kind != DT_STEP_SEND;
                    double              b = (double)x->n * (double)elem;
                    if (x->kind == DT_STEP_FOLD || x->kind == DT_STEP_REDUCE) fold += x->n;
                    if (x->kind >= DT_STEP_FOLD && x->kind <= DT_STEP_REDUCE) touched += x->n;
                    if (!plan_talks(x)) continue;
                    *(way ? &in : &out) += x->n;
                    any = true;
                    if (of[r] == of[x->peer]) sec[way] += ai + b * bi;
                    else {
                        sec[way] += ao;
                        far[way]++;
                        if (!pass) bytes[2 * of[r] + way] += b;
                        if (!pass && !way) away[r] += x->n;
                    }
                    rep->messages += pass && !way;
                    rep->folds += pass && x->kind == DT_STEP_FOLD;
                }
                if (!pass) continue;
                next[r] = i;
                for (int way = 0; way < 2; way++)
                    if (far[way]) sec[way] += bytes[2 * of[r] + way] * bo;
                double s2 = (sec[0] > sec[1] ? sec[0] : sec[1]) + (double)touched * (double)elem * g;
                if (s2 > slow) slow = s2;
                if (out > path) path = out;
                if (in > path) path = in;
                if (fold > reduced) reduced = fold;
                rep->sent += out;
            }
        }
        memset(bytes, 0, 2 * (size_t)w * sizeof *bytes);
        rep->rounds += any;
        rep->path += path;
        rep->reduced += reduced;
        rep->seconds += slow;
    }
    for (int r = 0; r < w; r++) {
        int64_t sent = 0;
        for (int64_t i = 0; i < s->plan[r].nsteps; i++)
            sent += s->plan[r].step[i].kind == DT_STEP_SEND ? s->plan[r].step[i].n : 0;
        if (sent > rep->most_sent) rep->most_sent = sent;
        if (away[r] > rep->most_out) rep->most_out = away[r];
    }
    free(next);
    free(away);
    free(of);
    free(bytes);
}

static PLAN_UNUSED bool plan_check(const plan_set *s, plan_report *rep)
{
    plan_check_s c;
    int          w = s->o.world;
    memset(rep, 0, sizeof *rep);
    memset(&c, 0, sizeof c);
    if (!s->plan || w < 1) {
        snprintf(rep->why, sizeof rep->why, "no plan: %s", s->why ? s->why : "?");
        return false;
    }
    c.s = s;
    c.r = rep;
    c.world = w;
    c.first = (int64_t *)calloc((size_t)w + 1, sizeof *c.first);
    for (int r = 0; r < w; r++) {
        const dt_plan *p = &s->plan[r];
        c.first[r + 1] = c.first[r] + p->nsteps;
        if (p->rank != r || p->world != w || p->coll != s->coll || p->algo != s->algo)
            plan_bad(&c, "rank %d: another plan", r);
        if (p->rounds != s->plan[0].rounds)
            plan_bad(&c, "rank %d has %d rounds, rank 0 %d", r, p->rounds, s->plan[0].rounds);
        if (!c.bad) plan_check_steps(&c, r);
    }
    size_t total = (size_t)c.first[w] + 1, n = (size_t)w, words = (n + 63) / 64;
    c.mate = (int64_t *)calloc(total, sizeof *c.mate);
    c.posted = (uint8_t *)calloc(total, 1);
    c.at = (int64_t *)calloc(3 * n, sizeof *c.at);
    c.ready = (int *)calloc(2 * n + 2, sizeof *c.ready);
    c.buf = (plan_buffer *)calloc(PLAN_BUFFERS * n, sizeof *c.buf);
    if (!c.mate || !c.posted || !c.at || !c.ready || !c.buf) abort();
    c.end = c.at + n;
    c.open = c.end + n;
    if (s->coll == DT_COLL_BARRIER) {
        c.knows = (uint64_t *)calloc(2 * n * words, sizeof *c.knows);
        c.said = c.knows + n * words;
        for (size_t r = 0; r < n; r++) c.knows[r * words + r / 64] |= (uint64_t)1 << (r % 64);
    }
    if (!c.bad && plan_match(&c)) {
        plan_begin(&c);
        plan_run_all(&c);
        if (!c.bad) plan_result(&c);
    }
    for (int i = 0; i < PLAN_BUFFERS * w; i++) free(c.buf[i].run);
    free(c.first);
    free(c.mate);
    free(c.posted);
    free(c.at);
    free(c.ready);
    free(c.buf);
    free(c.knows);
    free(c.tmp);
    return !c.bad;
}

#endif /* PLAN_CHECK_H_INCLUDED */
