/* test_pipelines.c: schedules of pipelines, proved by dt_pipe_check for every number of ranks and micro-batches; that this
   check flags every schedule that runs wrong and no other, judged by a simulation with tagged values; formulas of memory and
   idle time; virtual time against a clock that ticks; pictures.
   Contents: >>proofs >>mutants >>time >>refused >>picture
   run: long, asan-later, -O1 */
#include "harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long alloc_fail_at, alloc_calls; /* the n-th allocation fails; 0: none */
static bool alloc_fails(void) { return alloc_fail_at && ++alloc_calls == alloc_fail_at; }
#define DT_COMM_MALLOC(n) (alloc_fails() ? NULL : malloc(n))
#define DT_COMM_REALLOC(p, n) (alloc_fails() ? NULL : realloc(p, n))
#define DT_COMM_FREE(p) free(p)
#define DT_PLAN_IMPLEMENTATION
#include "dt_comm.h"

UTEST_MAIN()

static uint64_t draw_state = 1;
static int      draw(int below) /* xorshift64* */
{
    draw_state ^= draw_state >> 12;
    draw_state ^= draw_state << 25;
    draw_state ^= draw_state >> 27;
    return (int)((draw_state * 0x2545F4914F6CDD1Du) >> 33) % (below > 0 ? below : 1);
}
static dt_pipe_opts opts_of(dt_pipe_kind kind, int p, int v, int m)
{
    dt_pipe_opts o;
    memset(&o, 0, sizeof o);
    o.kind = kind;
    o.ranks = p;
    o.chunks = kind == DT_PIPE_INTERLEAVED ? v : 1;
    o.micro = m;
    return o;
}
static const char *said(void) { return dt_plan_error() ? dt_plan_error() : ""; }

/* ==================================================================================================== >>proofs */
/* the table of the manual, written down once more: micro-batches held, times chunks; idle time of a rank */
static int64_t held_of(const dt_pipe_opts *o, int r)
{
    int p = o->ranks, m = o->micro, v = o->chunks;
    switch (o->kind) {
    case DT_PIPE_GPIPE: return m;
    case DT_PIPE_1F1B: return p - r < m ? p - r : m;
    case DT_PIPE_INTERLEAVED: return v * p + p - 1 - 2 * r < v * m ? v * p + p - 1 - 2 * r : v * m;
    default: return p < m ? p : m;
    }
}
static double idle_of(const dt_pipe_opts *o, double f, double b, double w)
{
    int p = o->ranks, m = o->micro;
    switch (o->kind) {
    case DT_PIPE_INTERLEAVED: return (p - 1) * (f + b + w) / o->chunks;
    case DT_PIPE_ZB_H1: return m >= p ? (p - 1) * (f + b - w) : (p - 1) * (f + b) - (m - 1) * w;
    default: return (p - 1) * (f + b + w);
    }
}
/* "" or what is wrong */
static const char *prove(dt_pipe_opts o, double f, double b, double w)
{
    static char       text[700];
    dt_pipe_schedule *s = dt_pipe_schedule_new_with(o);
    dt_pipe_timing   *t = NULL;
    double            idle = idle_of(&o, f, b, w), all = o.micro * (f + b + w) + idle;
    text[0] = 0;
#define WRONG(...)                                                                                                      \
    do {                                                                                                                \
        int n = snprintf(text, sizeof text, "%s, %d ranks, %d chunks, %d micro-batches, F %g B %g W %g: ",              \
                         dt_pipe_kind_name(o.kind), o.ranks, o.chunks, o.micro, f, b, w);                               \
        snprintf(text + n, sizeof text - (size_t)n, __VA_ARGS__);                                                       \
        goto out;                                                                                                       \
    } while (0)
    if (!s) WRONG("%s", said());
    if (dt_pipe_check(s)) WRONG("%s", said());
    t = dt_pipe_simulate(s, .forward = f / o.chunks, .backward_input = b / o.chunks, .backward_weight = w / o.chunks);
    if (!t) WRONG("%s", said());
    for (int r = 0; r < o.ranks; r++) {
        if (t->held[r] != held_of(&o, r)) WRONG("rank %d holds %d", r, (int)t->held[r]);
        if (dt_pipe_held(o, r) != t->held[r]) WRONG("dt_pipe_held of rank %d is %d", r, (int)dt_pipe_held(o, r));
        if (fabs(t->busy[r] - o.micro * (f + b + w)) > 1e-9 * all) WRONG("rank %d is busy for %g", r, t->busy[r]);
    }
    if (o.kind == DT_PIPE_ZB_H1 && (w > f || w > b)) {
        if (dt_pipe_bubble(o, f, b, w) != -1) WRONG("there is a formula");
        goto out;
    }
    if (fabs(t->seconds - all) > 1e-9 * all) WRONG("%g seconds, expected %g", t->seconds, all);
    if (fabs(dt_pipe_bubble(o, f, b, w) - idle) > 1e-9 * all) WRONG("dt_pipe_bubble %g", dt_pipe_bubble(o, f, b, w));
    if (fabs(t->bubble - idle / all) > 1e-9) WRONG("bubble %g, expected %g", t->bubble, idle / all);
out:
    dt_pipe_timing_free(t);
    dt_pipe_schedule_free(s);
    return text;
}
#define PROVE(...) ASSERT_STREQ("", prove(__VA_ARGS__))
static const double fbw[][3] = { { 1, 1, 1 }, { 2, 3, 1 }, { 3, 2, 2 }, { 5, 1, 1 }, { 1, 4, 0 }, { 1, 2, 3 } };

UTEST(proofs, every_number_of_ranks_and_micro_batches)
{
    int n = 0;
    draw_state = 3;
    for (int p = 1; p <= 64; p += dt_test_quick() && p >= 8 ? 14 : 1)
        for (int m = p; m <= 128; m += dt_test_quick() && m >= 2 * p ? 1 + m / 3 : 1)
            for (int k = 0; k < (int)DT_PIPE_KIND_COUNT; k++)
                for (int v = 2; v <= (k == DT_PIPE_INTERLEAVED ? 5 : 2); v++) {
                    if (k == DT_PIPE_INTERLEAVED && m % p) continue;
                    const double *t = fbw[draw(6)];
                    PROVE(opts_of((dt_pipe_kind)k, p, v, m), t[0], t[1], t[2]);
                    n++;
                }
    ASSERT_TRUE(n > (dt_test_quick() ? 500 : 20000));
}
UTEST(proofs, one_rank_one_micro_batch_and_fewer_micro_batches_than_ranks)
{
    for (int p = 1; p <= 20; p++)
        for (int m = 1; m <= p; m++)
            for (int k = 0; k < (int)DT_PIPE_KIND_COUNT; k++)
                for (int i = 0; i < 6; i++)
                    if (k != DT_PIPE_INTERLEAVED || m % p == 0)
                        PROVE(opts_of((dt_pipe_kind)k, p, 3, m), fbw[i][0], fbw[i][1], fbw[i][2]);
    PROVE(opts_of(DT_PIPE_INTERLEAVED, 1, 7, 1), 1, 1, 1);
}
UTEST(proofs, the_largest)
{
    PROVE(opts_of(DT_PIPE_1F1B, 1024, 1, 3), 1, 1, 1);
    PROVE(opts_of(DT_PIPE_ZB_H1, 3, 1, 65536), 2, 2, 1);
    PROVE(opts_of(DT_PIPE_INTERLEAVED, 2, 1024, 4), 1, 1, 1);
    PROVE(opts_of(DT_PIPE_GPIPE, 1, 1, 65536), 1, 1, 1);
}
/* The k-th message from one rank to another is the k-th that this one receives from it. */
UTEST(proofs, messages_between_two_ranks_arrive_in_order)
{
    int64_t seen = 0;
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 4 * p; m++)
            for (int k = 0; k < (int)DT_PIPE_KIND_COUNT; k++)
                for (int v = 2; v <= 4; v++) {
                    if (k == DT_PIPE_INTERLEAVED ? m % p != 0 : v > 2) continue;
                    dt_pipe_schedule *s = dt_pipe_schedule_new_with(opts_of((dt_pipe_kind)k, p, v, m));
                    ASSERT_TRUE(s != NULL);
                    for (int from = 0; from < p; from++)
                        for (int to = 0; to < p; to++) {
                            dt_pipe_message a, b;
                            int64_t         i = s->first[from], j = s->first[to];
                            for (;; i++, j++, seen++) {
                                while (i < s->first[from + 1] && !(dt_pipe_output(s, from, &s->step[i], &a) && a.to == to)) i++;
                                while (j < s->first[to + 1] && !(dt_pipe_input(s, to, &s->step[j], &b) && b.from == from)) j++;
                                if (i == s->first[from + 1] || j == s->first[to + 1]) break;
                                ASSERT_TRUE(a.from == from && b.to == to && a.stage == b.stage && a.micro == b.micro &&
                                            a.gradient == b.gradient);
                            }
                            ASSERT_TRUE(i == s->first[from + 1] && j == s->first[to + 1]); /* none is left */
                        }
                    dt_pipe_schedule_free(s);
                }
    EXPECT_TRUE(seen > 10000);
}
/* What the manual says of buffers for sends: one is enough for all kinds but interleaved. */
UTEST(proofs, only_interleaved_needs_two_buffers_for_sends)
{
    for (int p = 2; p <= 9; p++)
        for (int m = p; m <= 4 * p; m += p)
            for (int k = 0; k < (int)DT_PIPE_KIND_COUNT; k++) {
                dt_pipe_schedule *s = dt_pipe_schedule_new_with(opts_of((dt_pipe_kind)k, p, 2, m));
                dt_pipe_timing   *one = dt_pipe_simulate(s, .forward = 1, .sends = 1);
                dt_pipe_timing   *two = dt_pipe_simulate(s, .forward = 1, .sends = DT_PIPE_SENDS);
                EXPECT_TRUE(two != NULL);
                if (k != DT_PIPE_INTERLEAVED) EXPECT_TRUE(one != NULL);
                else if (m > p) EXPECT_TRUE(one == NULL);
                dt_pipe_timing_free(one);
                dt_pipe_timing_free(two);
                dt_pipe_schedule_free(s);
            }
}

/* ==================================================================================================== >>mutants
   The judge runs a schedule with values that carry tags: a stage hashes what it gets, so a result shows which values met
   where and in which order. Between neighbouring stages there is a first-in first-out channel each way, without names on
   the messages; a send waits for its receive, a rank has two buffers. It shares no code with the checker. */
enum { MAX_STAGES = 24, MAX_MICRO = 16 };
typedef struct channel { /* what one stage has sent to a neighbour */
    uint64_t value[4 * MAX_MICRO];
    int      sent, taken;
} channel;
typedef struct stage_state {
    uint64_t forwards, inputs, weights; /* hashes over all micro-batches, in the order in which they came */
    uint64_t x[MAX_MICRO], y[MAX_MICRO], dy[MAX_MICRO];
    bool     has_x[MAX_MICRO], has_dy[MAX_MICRO];
    channel  up, down; /* to the next stage, to the previous one */
} stage_state;
typedef struct judge {
    const dt_pipe_schedule *s;
    int                     nstages;
    stage_state             stage[MAX_STAGES];
    int64_t                 pc[MAX_STAGES];
    bool                    got[MAX_STAGES]; /* the rank has received the input of its next step, in: */
    uint64_t                in[MAX_STAGES];
    channel                *buffer[MAX_STAGES][2]; /* channel of the send in each buffer, and which one it is there */
    int                     number[MAX_STAGES][2];
    int                     nsends[MAX_STAGES];
} judge;
static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
    return a ^ (a >> 29);
}
static uint64_t out_of(int stage, uint64_t x) { return mix(mix(17, (uint64_t)stage), x); }
static uint64_t back_of(int stage, uint64_t x, uint64_t dy) { return mix(mix(mix(23, (uint64_t)stage), x), dy); }
/* 1: the rank did a step; 0: it has to wait, or is at its end; -1: its step cannot be done at all */
static int judge_step(judge *j, int rank)
{
    const dt_pipe_schedule *s = j->s;
    if (j->pc[rank] == s->first[rank + 1]) return 0;
    dt_pipe_step step = s->step[j->pc[rank]];
    if (step.op < DT_PIPE_FORWARD || step.op > DT_PIPE_BACKWARD_WEIGHT || step.chunk < 0 || step.chunk >= s->chunks ||
        step.micro < 0 || step.micro >= s->micro)
        return -1;
    int          at = step.chunk * s->ranks + rank, k = step.micro;
    stage_state *g = &j->stage[at];
    if (step.op == DT_PIPE_BACKWARD_WEIGHT) {
        if (!g->has_x[k] || !g->has_dy[k]) return -1;
        g->weights = mix(g->weights, back_of(at, g->x[k], g->dy[k]));
        g->has_x[k] = g->has_dy[k] = false;
        j->pc[rank]++;
        return 1;
    }
    bool     forward = step.op == DT_PIPE_FORWARD, edge_in = forward ? at == 0 : at == j->nstages - 1;
    bool     edge_out = forward ? at == j->nstages - 1 : at == 0, same = s->ranks == 1;
    channel *from = edge_in ? NULL : forward ? &j->stage[at - 1].up : &j->stage[at + 1].down;
    channel *to = edge_out ? NULL : forward ? &g->up : &g->down;
    if (edge_in && forward) j->in[rank] = mix(5, (uint64_t)k);
    else if (edge_in) {
        if (!g->has_x[k]) return -1;
        j->in[rank] = mix(7, g->y[k]); /* the gradient of the loss */
    } else if (!j->got[rank]) {
        if (from->taken == from->sent) return same ? -1 : 0;
        j->in[rank] = from->value[from->taken++];
        j->got[rank] = true;
    }
    if (to && !same) {
        int      b = j->nsends[rank] % 2;
        channel *c = j->buffer[rank][b];
        if (c && c->taken <= j->number[rank][b]) return 0; /* the send in this buffer has not been received */
    }
    if (to && to->sent == 4 * MAX_MICRO) return -1;
    uint64_t v = j->in[rank];
    if (forward) {
        if (g->has_x[k]) return -1;
        g->forwards = mix(g->forwards, v);
        g->x[k] = v;
        g->has_x[k] = true;
        v = g->y[k] = out_of(at, v);
    } else {
        if (!g->has_x[k] || g->has_dy[k]) return -1;
        uint64_t dx = back_of(at, g->x[k], v);
        g->inputs = mix(g->inputs, dx);
        if (step.op == DT_PIPE_BACKWARD) g->weights = mix(g->weights, dx), g->has_x[k] = false;
        else g->dy[k] = v, g->has_dy[k] = true;
        v = dx;
    }
    if (to) {
        j->buffer[rank][j->nsends[rank] % 2] = to;
        j->number[rank][j->nsends[rank] % 2] = to->sent;
        j->nsends[rank] += !same;
        to->value[to->sent++] = v;
    }
    j->got[rank] = false;
    j->pc[rank]++;
    return 1;
}
static bool runs_right(const dt_pipe_schedule *s)
{
    static judge j;
    bool         moved = true;
    memset(&j, 0, sizeof j);
    j.s = s;
    j.nstages = s->ranks * s->chunks;
    for (int r = 0; r < s->ranks; r++) j.pc[r] = s->first[r];
    while (moved) {
        moved = false;
        for (int r = 0; r < s->ranks; r++)
            for (int did; (did = judge_step(&j, r)) != 0; moved = true)
                if (did < 0) return false;
    }
    for (int r = 0; r < s->ranks; r++)
        if (j.pc[r] < s->first[r + 1]) return false;
    uint64_t forwards[MAX_STAGES] = { 0 }, inputs[MAX_STAGES] = { 0 };
    for (int k = 0; k < s->micro; k++) { /* without a pipeline */
        uint64_t x[MAX_STAGES + 1], dy;
        x[0] = mix(5, (uint64_t)k);
        for (int i = 0; i < j.nstages; i++) {
            forwards[i] = mix(forwards[i], x[i]);
            x[i + 1] = out_of(i, x[i]);
        }
        dy = mix(7, x[j.nstages]);
        for (int i = j.nstages - 1; i >= 0; i--) {
            dy = back_of(i, x[i], dy);
            inputs[i] = mix(inputs[i], dy);
        }
    }
    for (int i = 0; i < j.nstages; i++) {
        const stage_state *g = &j.stage[i];
        if (g->forwards != forwards[i] || g->inputs != inputs[i] || g->weights != inputs[i]) return false;
        if (g->up.sent != g->up.taken || g->down.sent != g->down.taken) return false;
    }
    return true;
}

/* a copy with room for more steps; then one change */
static dt_pipe_schedule *copy_of(const dt_pipe_schedule *s, int room)
{
    dt_pipe_schedule *c = (dt_pipe_schedule *)malloc(sizeof *c);
    *c = *s;
    c->first = (int64_t *)malloc(((size_t)s->ranks + 1) * sizeof *c->first);
    c->step = (dt_pipe_step *)malloc((size_t)(s->nsteps + room) * sizeof *c->step);
    memcpy(c->first, s->first, ((size_t)s->ranks + 1) * sizeof *c->first);
    memcpy(c->step, s->step, (size_t)s->nsteps * sizeof *c->step);
    return c;
}
static void drop_step(dt_pipe_schedule *s, int r, int64_t i)
{
    memmove(s->step + i, s->step + i + 1, (size_t)(s->nsteps - i - 1) * sizeof *s->step);
    for (s->nsteps--; r < s->ranks; r++) s->first[r + 1]--;
}
static void insert_step(dt_pipe_schedule *s, int r, int64_t i, dt_pipe_step step)
{
    memmove(s->step + i + 1, s->step + i, (size_t)(s->nsteps - i) * sizeof *s->step);
    s->step[i] = step;
    for (s->nsteps++; r < s->ranks; r++) s->first[r + 1]++;
}
enum { DROPPED, DOUBLED, SWAPPED, NEIGHBOURS, MOVED, OTHER_MICRO, OTHER_OP, OTHER_RANK, SPLIT, LATER, MUTATIONS };
static void mutate(dt_pipe_schedule *s, int how)
{
    int     r = draw(s->ranks);
    int64_t n = s->first[r + 1] - s->first[r];
    if (n < 2) return;
    int64_t      a = s->first[r] + draw((int)n), b = s->first[r] + draw((int)n), near = a + 1 < s->first[r + 1] ? a + 1 : a - 1;
    dt_pipe_step step = s->step[a];
    switch (how) {
    case DROPPED: drop_step(s, r, a); break;
    case DOUBLED: insert_step(s, r, b, step); break;
    case SWAPPED: s->step[a] = s->step[b], s->step[b] = step; break;
    case NEIGHBOURS: s->step[a] = s->step[near], s->step[near] = step; break;
    case MOVED: drop_step(s, r, a), insert_step(s, r, b < s->first[r + 1] ? b : b - 1, step); break;
    case OTHER_MICRO: s->step[a].micro = draw(s->micro); break;
    case OTHER_OP: s->step[a].op = (int16_t)(1 + draw(4)); break;
    case OTHER_RANK: drop_step(s, r, a), r = draw(s->ranks), insert_step(s, r, s->first[r], step); break;
    case LATER: /* behind steps of other ops, chunks and micro-batches: each stage still takes all in order */
        for (b = 1 + draw(12); b > 0 && a + 1 < s->first[r + 1]; b--, a++) {
            dt_pipe_step next = s->step[a + 1];
            if (next.chunk == step.chunk && (next.op == step.op || next.micro == step.micro)) break;
            s->step[a] = next, s->step[a + 1] = step;
        }
        break;
    case SPLIT: /* a whole backward in two parts; legal if the second comes in time */
        if (step.op != DT_PIPE_BACKWARD) break;
        s->step[a].op = DT_PIPE_BACKWARD_INPUT;
        step.op = DT_PIPE_BACKWARD_WEIGHT;
        b = a + 1 + draw(2);
        insert_step(s, r, b < s->first[r + 1] ? b : s->first[r + 1], step);
        break;
    }
}
UTEST(mutants, the_check_flags_those_that_run_wrong_and_no_other)
{
    int right[MUTATIONS] = { 0 }, wrong[MUTATIONS] = { 0 }, stuck = 0, rights = 0;
    draw_state = 20261118;
    for (int n = 0; n < 10000; n++) {
        dt_pipe_kind kind = (dt_pipe_kind)draw(DT_PIPE_KIND_COUNT);
        int          p = 1 + draw(6), v = 2 + draw(2), m = kind == DT_PIPE_INTERLEAVED ? p * (1 + draw(12 / p)) : 1 + draw(12);
        dt_pipe_schedule *s = dt_pipe_schedule_new_with(opts_of(kind, p, v, m)), *c;
        ASSERT_TRUE(s != NULL);
        ASSERT_TRUE(runs_right(s));
        int how = n % MUTATIONS;
        c = copy_of(s, 8);
        mutate(c, how);
        if (draw(8) == 0) mutate(c, draw(MUTATIONS));
        bool good = runs_right(c);
        int  status = dt_pipe_check(c);
        if (good) right[how]++, rights++;
        else wrong[how]++;
        if (good != (status == 0)) {
            printf("mutant %d: %s, %d ranks, %d chunks, %d micro-batches, mutation %d: runs %s, the check says %s\n", n,
                   dt_pipe_kind_name(kind), p, s->chunks, m, how, good ? "right" : "wrong", status ? said() : "good");
            EXPECT_TRUE(false);
        }
        if (status && strstr(said(), "deadlock")) stuck++;
        if (status) EXPECT_TRUE_MSG(strstr(said(), "rank ") && strstr(said(), "step"), said());
        free(c->step);
        free(c->first);
        free(c);
        dt_pipe_schedule_free(s);
        if (*utest_result == UTEST_TEST_FAILURE) break;
    }
    printf("right %d of 10000, deadlocks %d\n", rights, stuck);
    EXPECT_TRUE(rights > 1000 && stuck > 50);
    EXPECT_TRUE(right[NEIGHBOURS] > 50 && wrong[NEIGHBOURS] > 50 && right[MOVED] > 20 && right[SPLIT] > 100);
    EXPECT_TRUE(wrong[DROPPED] > 900 && wrong[DOUBLED] > 900 && wrong[SWAPPED] > 500 && right[LATER] > 100);
}

/* ==================================================================================================== >>time
   A clock that ticks: whole seconds, every rank looked at in every second until nothing changes. */
enum { NEVER = 1 << 28 };
typedef struct ticking {
    int     f[MAX_STAGES], b[MAX_STAGES], w[MAX_STAGES], x[MAX_STAGES]; /* seconds of each stage; x: of a message from it on */
    int     sends;
    int64_t pc[MAX_STAGES];
    int     until[MAX_STAGES];                  /* the end of the rank's last step */
    int     up[MAX_STAGES][MAX_MICRO], down[MAX_STAGES][MAX_MICRO];         /* when sent */
    int     up_in[MAX_STAGES][MAX_MICRO], down_in[MAX_STAGES][MAX_MICRO];   /* when arrived, at the sender's index */
    int    *sent_end[MAX_STAGES][4 * MAX_STAGES * MAX_MICRO];               /* arrival of each send of the rank, in order */
    int     nsends[MAX_STAGES];
    bool    again;                              /* something happened in this second: look at all ranks once more */
} ticking;
static bool tick(ticking *c, const dt_pipe_schedule *s, int r, int now, double *start) /* begins a step */
{
    int last = s->ranks * s->chunks - 1;
    if (c->pc[r] == s->first[r + 1] || c->until[r] > now) return false;
    dt_pipe_step t = s->step[c->pc[r]];
    int          at = t.chunk * s->ranks + r, k = t.micro, apart = s->ranks > 1;
    int          takes = t.op == DT_PIPE_FORWARD ? c->f[at] : t.op == DT_PIPE_BACKWARD ? c->b[at] + c->w[at]
                         : t.op == DT_PIPE_BACKWARD_INPUT ? c->b[at] : c->w[at];
    int *sent = NULL, *in = NULL, wait = 0, *out = NULL, *out_in = NULL;
    if (t.op == DT_PIPE_FORWARD && at > 0) sent = &c->up[at - 1][k], in = &c->up_in[at - 1][k], wait = c->x[at - 1];
    if (t.op == DT_PIPE_FORWARD && at < last) out = &c->up[at][k], out_in = &c->up_in[at][k];
    if ((t.op == DT_PIPE_BACKWARD || t.op == DT_PIPE_BACKWARD_INPUT) && at < last)
        sent = &c->down[at + 1][k], in = &c->down_in[at + 1][k], wait = c->x[at];
    if ((t.op == DT_PIPE_BACKWARD || t.op == DT_PIPE_BACKWARD_INPUT) && at > 0)
        out = &c->down[at][k], out_in = &c->down_in[at][k];
    if (sent && *sent > now) return false;
    if (sent && *in == NEVER) {
        *in = (c->sends && apart && c->until[r] > *sent ? c->until[r] : *sent) + (apart ? wait : 0);
        c->again = true;
    }
    if (sent && *in > now) return false;
    if (out && apart && c->sends && c->nsends[r] >= c->sends && *c->sent_end[r][c->nsends[r] - c->sends] > now) return false;
    start[c->pc[r]++] = now;
    c->until[r] = now + takes;
    if (out) *out = now + takes;
    if (out && apart) c->sent_end[r][c->nsends[r]++] = out_in;
    return true;
}
static int tick_all(ticking *c, const dt_pipe_schedule *s, double *start) /* seconds; -1: it does not end */
{
    int left = s->ranks, end = 0;
    for (int r = 0; r < s->ranks; r++) c->pc[r] = s->first[r], c->until[r] = 0, c->nsends[r] = 0;
    for (int i = 0; i < MAX_STAGES; i++)
        for (int k = 0; k < MAX_MICRO; k++) c->up[i][k] = c->down[i][k] = c->up_in[i][k] = c->down_in[i][k] = NEVER;
    for (int now = 0; left && now < 20000; now++) {
        do {
            c->again = false;
            for (int r = 0; r < s->ranks; r++)
                while (tick(c, s, r, now, start)) c->again = true;
        } while (c->again);
        left = 0;
        for (int r = 0; r < s->ranks; r++) left += c->pc[r] < s->first[r + 1];
    }
    for (int r = 0; r < s->ranks; r++) end = c->until[r] > end ? c->until[r] : end;
    return left ? -1 : end;
}
UTEST(time, equals_a_clock_that_ticks)
{
    static ticking c;
    double         start[MAX_STAGES * MAX_MICRO * 3], f[MAX_STAGES], b[MAX_STAGES], w[MAX_STAGES], x[MAX_STAGES];
    int            ended = 0;
    draw_state = 7;
    for (int n = 0; n < (dt_test_quick() ? 300 : 6000); n++) {
        dt_pipe_kind kind = (dt_pipe_kind)draw(DT_PIPE_KIND_COUNT);
        int          p = 1 + draw(7), v = 2 + draw(2), m = kind == DT_PIPE_INTERLEAVED ? p * (1 + draw(12 / p)) : 1 + draw(14);
        bool         even = draw(2) != 0, light = draw(3) == 0;
        int          one[4] = { draw(9), draw(9), draw(9), draw(4) };
        dt_pipe_schedule *s = dt_pipe_schedule_new_with(opts_of(kind, p, v, m));
        ASSERT_TRUE(s != NULL);
        for (int i = 0; i < p * s->chunks; i++) {
            f[i] = c.f[i] = even ? one[0] : draw(9);
            b[i] = c.b[i] = even ? one[1] : draw(9);
            w[i] = c.w[i] = even ? one[2] : draw(9);
            x[i] = c.x[i] = light ? 0 : even ? one[3] : draw(4);
        }
        c.sends = draw(4);
        dt_pipe_timing *t = even ? dt_pipe_simulate(s, .forward = one[0], .backward_input = one[1], .backward_weight = one[2],
                                                    .transfer = light ? 0 : one[3], .sends = c.sends)
                                 : dt_pipe_simulate(s, .forwards = f, .backward_inputs = b, .backward_weights = w,
                                                    .transfers = x, .sends = c.sends);
        int             all = tick_all(&c, s, start);
        ASSERT_EQ(all < 0, t == NULL);
        if (t) {
            ended++;
            ASSERT_EQ(all, t->seconds);
            for (int64_t i = 0; i < s->nsteps; i++) ASSERT_EQ(start[i], t->start[i]);
        }
        dt_pipe_timing_free(t);
        dt_pipe_schedule_free(s);
    }
    EXPECT_TRUE(ended > 200);
}
static double seconds_of(dt_pipe_kind kind, int m, int v, double f, double b, double w, double x)
{
    dt_pipe_opts      o = opts_of(kind, 4, v, m);
    dt_pipe_schedule *s = dt_pipe_schedule_new_with(o);
    dt_pipe_timing   *t = dt_pipe_simulate(s, .forward = f / o.chunks, .backward_input = b / o.chunks,
                                           .backward_weight = w / o.chunks, .transfer = x);
    double            seconds = t ? t->seconds : -1;
    dt_pipe_timing_free(t);
    dt_pipe_schedule_free(s);
    return seconds;
}
/* Without time for messages, and with a message that takes 1/50 of a forward. */
UTEST(time, interleaved_and_zb_h1_are_not_slower_than_1f1b_at_4_stages)
{
    for (int m = 4; m <= 64; m += 4)
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 2; k++) {
                double f = fbw[i][0], b = fbw[i][1], w = fbw[i][2], x = k * f / 50;
                double base = seconds_of(DT_PIPE_1F1B, m, 1, f, b, w, x), most = base * (1 + 1e-12);
                EXPECT_TRUE(base > 0);
                for (int v = 2; v <= 4; v++) EXPECT_TRUE(seconds_of(DT_PIPE_INTERLEAVED, m, v, f, b, w, x) <= most);
                EXPECT_TRUE(seconds_of(DT_PIPE_ZB_H1, m, 1, f, b, w, x) <= most);
                if (!k && w > 0) EXPECT_TRUE(seconds_of(DT_PIPE_ZB_H1, m, 1, f, b, w, x) < base);
            }
}

/* ==================================================================================================== >>refused */
UTEST(refused, options_with_a_remedy)
{
    static const struct {
        dt_pipe_opts o;
        const char  *text;
    } bad[] = { { { .kind = DT_PIPE_INTERLEAVED, .ranks = 4, .chunks = 2, .micro = 10 }, "take 8 or 12 micro-batches" },
                { { .kind = DT_PIPE_INTERLEAVED, .ranks = 4, .chunks = 2, .micro = 3 }, "take 4 or 8 micro-batches" },
                { { .kind = DT_PIPE_INTERLEAVED, .ranks = 4, .chunks = 1, .micro = 8 }, "take DT_PIPE_1F1B" },
                { { .kind = DT_PIPE_1F1B, .ranks = 4, .chunks = 2, .micro = 8 }, "take DT_PIPE_INTERLEAVED" },
                { { .kind = DT_PIPE_1F1B, .ranks = 0, .micro = 8 }, "ranks is 0: expected 1 to 4096" },
                { { .kind = DT_PIPE_1F1B, .ranks = 4097, .micro = 8 }, "ranks is 4097" },
                { { .kind = DT_PIPE_1F1B, .ranks = -1, .micro = 8 }, "ranks is -1" },
                { { .kind = DT_PIPE_GPIPE, .ranks = 2, .micro = 0 }, "micro is 0: expected 1 to 65536" },
                { { .kind = DT_PIPE_GPIPE, .ranks = 2, .micro = 65537 }, "micro is 65537" },
                { { .kind = DT_PIPE_GPIPE, .ranks = 2, .chunks = -1, .micro = 1 }, "chunks is -1" },
                { { .kind = DT_PIPE_INTERLEAVED, .ranks = 2, .chunks = 1025, .micro = 2 }, "chunks is 1025" },
                { { .kind = DT_PIPE_INTERLEAVED, .ranks = 1024, .chunks = 1024, .micro = 65536 }, "more than 2^30 steps" },
                { { .kind = (dt_pipe_kind)4, .ranks = 2, .micro = 2 }, "kind is 4" },
                { { .kind = (dt_pipe_kind)-1, .ranks = 2, .micro = 2 }, "kind is -1" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT_TRUE(dt_pipe_schedule_new_with(bad[i].o) == NULL);
        EXPECT_TRUE_MSG(strstr(said(), bad[i].text) && strstr(said(), "dt_pipe_schedule_new"), said());
        EXPECT_TRUE(dt_pipe_held(bad[i].o, 0) < 0);
        EXPECT_TRUE(dt_pipe_bubble(bad[i].o, 1, 1, 1) < 0);
    }
    EXPECT_TRUE(dt_pipe_held(opts_of(DT_PIPE_1F1B, 4, 1, 8), 4) < 0);
    EXPECT_TRUE(dt_pipe_bubble(opts_of(DT_PIPE_1F1B, 4, 1, 8), 1, -1, 1) < 0);
    EXPECT_STREQ("interleaved", dt_pipe_kind_name(DT_PIPE_INTERLEAVED));
    EXPECT_STREQ("?", dt_pipe_kind_name((dt_pipe_kind)99));
    EXPECT_EQ((int)DT_PIPE_ZB_H1, (int)dt_pipe_kind_find("zb_h1"));
    EXPECT_EQ((int)DT_PIPE_KIND_COUNT, (int)dt_pipe_kind_find("1f2b"));
    EXPECT_EQ((int)DT_PIPE_KIND_COUNT, (int)dt_pipe_kind_find(NULL));
}
UTEST(refused, schedules_by_hand_and_times)
{
    dt_pipe_step     step[] = { { DT_PIPE_FORWARD, 0, 0 }, { DT_PIPE_BACKWARD, 0, 0 } };
    int64_t          first[] = { 0, 2 };
    dt_pipe_schedule s = { .ranks = 1, .chunks = 1, .micro = 1, .nsteps = 2, .first = first, .step = step };
    EXPECT_EQ(0, dt_pipe_check(&s));
    EXPECT_TRUE(dt_pipe_check(NULL) < 0);
    step[1].micro = 1;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    EXPECT_STREQ("pipeline schedule: rank 0, step 1 (backward, chunk 0, micro-batch 1): expected a micro-batch from 0 to 0",
                 said());
    step[1].micro = INT32_MIN;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    step[1].micro = 0;
    step[1].chunk = -7;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    step[1].chunk = 0;
    step[1].op = 99;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    step[1].op = DT_PIPE_BACKWARD;
    first[1] = 1;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    s.nsteps = 1;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    EXPECT_TRUE_MSG(strstr(said(), "rank 0 ends after 1 steps without the gradient of inputs"), said());
    EXPECT_TRUE(dt_pipe_simulate(&s, .forward = 1) == NULL);
    s.nsteps = first[1] = 2;
    s.ranks = 5000;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    s.ranks = 1;
    s.micro = -1;
    EXPECT_TRUE(dt_pipe_check(&s) < 0);
    s.micro = 1;
    EXPECT_TRUE(dt_pipe_simulate(&s, .forward = -1) == NULL);
    EXPECT_TRUE(dt_pipe_simulate(&s, .backward_weight = NAN) == NULL);
    EXPECT_TRUE(dt_pipe_simulate(&s, .transfer = INFINITY) == NULL);
    EXPECT_TRUE(dt_pipe_simulate(&s, .sends = 65) == NULL);
    EXPECT_TRUE(dt_pipe_simulate(&s, .sends = -1) == NULL);
    EXPECT_TRUE(dt_pipe_simulate(NULL) == NULL);
    dt_pipe_timing *t = dt_pipe_simulate(&s);
    ASSERT_TRUE(t != NULL);
    EXPECT_EQ(0.0, t->seconds);
    EXPECT_EQ(0.0, t->bubble);
    dt_pipe_timing_free(t);
    dt_pipe_timing_free(NULL);
    dt_pipe_schedule_free(NULL);
}
UTEST(refused, garbage)
{
    dt_pipe_schedule *s = dt_pipe_schedule_new(.kind = DT_PIPE_INTERLEAVED, .ranks = 3, .micro = 6);
    ASSERT_TRUE(s != NULL);
    for (int r = 0; r <= 3; r++) { /* the borders of ranks */
        static const int64_t wrong[] = { INT64_MIN, -(INT64_C(1) << 40), -1, 1, 71, 73, INT64_C(1) << 40, INT64_MAX };
        int64_t              kept = s->first[r];
        for (int n = 0; n < 8; n++) {
            s->first[r] = wrong[n];
            ASSERT_TRUE(dt_pipe_check(s) < 0);
            ASSERT_TRUE(dt_pipe_simulate(s, .forward = 1) == NULL);
        }
        s->first[r] = kept;
    }
    ASSERT_EQ(0, dt_pipe_check(s));
    for (int n = 0; n < 2000; n++) {
        for (int64_t i = 0; i < s->nsteps; i++) {
            s->step[i].op = (int16_t)(n % 2 ? draw(5) : draw(65536) - 32768);
            s->step[i].chunk = (int16_t)(n % 3 ? draw(2) : draw(65536) - 32768);
            s->step[i].micro = n % 5 ? draw(6) : (int32_t)(draw(INT32_MAX) - INT32_MAX / 2) * 2;
        }
        ASSERT_TRUE(dt_pipe_check(s) < 0);
        ASSERT_TRUE(dt_pipe_simulate(s, .forward = 1) == NULL);
    }
    dt_pipe_schedule_free(s);
}
UTEST(refused, when_memory_is_exhausted)
{
    int done = 0;
    for (long n = 1; n < 40 && !done; n++) {
        alloc_fail_at = n;
        alloc_calls = 0;
        dt_pipe_schedule *s = dt_pipe_schedule_new(.kind = DT_PIPE_INTERLEAVED, .ranks = 3, .micro = 6);
        int               status = s ? dt_pipe_check(s) : -1;
        dt_pipe_timing   *t = status == 0 ? dt_pipe_simulate(s, .forward = 1) : NULL;
        done = t != NULL;
        if (!done) EXPECT_TRUE_MSG(strstr(said(), "out of memory"), said());
        dt_pipe_timing_free(t);
        dt_pipe_schedule_free(s);
    }
    alloc_fail_at = 0;
    EXPECT_TRUE(done);
}

/* ==================================================================================================== >>picture */
UTEST(picture, has_a_box_for_each_step)
{
    char        path[] = "/tmp/dt_pipe.XXXXXX", line[512];
    int         fd = mkstemp(path), boxes = 0, numbers = 0, rows = 0, found = 0;
    ASSERT_TRUE(fd >= 0);
    close(fd);
    dt_pipe_schedule *s = dt_pipe_schedule_new(.kind = DT_PIPE_ZB_H1, .ranks = 4, .micro = 8);
    dt_pipe_timing   *t = dt_pipe_simulate(s, .forward = 1, .backward_input = 1, .backward_weight = 1);
    ASSERT_EQ(0, dt_pipe_svg(path, s, t));
    FILE *f = fopen(path, "r");
    ASSERT_TRUE(f != NULL);
    while (fgets(line, sizeof line, f)) {
        boxes += !strncmp(line, "<rect class=\"f\"", 15) || !strncmp(line, "<rect class=\"i\"", 15) ||
                 !strncmp(line, "<rect class=\"w\"", 15) || !strncmp(line, "<rect class=\"f ", 15) ||
                 !strncmp(line, "<rect class=\"i ", 15) || !strncmp(line, "<rect class=\"w ", 15);
        numbers += !strncmp(line, "<text class=\"n\"", 15);
        rows += strstr(line, ">rank ") != NULL;
        found += strstr(line, "zb_h1: 4 ranks, 8 micro-batches") || strstr(line, "</svg>") ||
                 strstr(line, ">27 seconds, of which 11.1 % idle (bubble)<");
    }
    fclose(f);
    EXPECT_EQ(4 * 8 * 3 + 3, boxes); /* and the legend */
    EXPECT_EQ(4 * 8 * 3, numbers);
    EXPECT_EQ(4, rows);
    EXPECT_EQ(3, found);
    EXPECT_TRUE(dt_pipe_svg("/nonexistent/x.svg", s, t) < 0);
    EXPECT_TRUE_MSG(strstr(said(), "cannot create '/nonexistent/x.svg'"), said());
    EXPECT_TRUE(dt_pipe_svg(path, s, NULL) < 0);
    EXPECT_TRUE(dt_pipe_svg(NULL, s, t) < 0);
    EXPECT_TRUE(dt_pipe_svg(path, NULL, t) < 0);
    if (access("/dev/full", W_OK) == 0) {
        EXPECT_TRUE(dt_pipe_svg("/dev/full", s, t) < 0);
        EXPECT_TRUE_MSG(strstr(said(), "cannot write"), said());
    }
    dt_pipe_timing *zero = dt_pipe_simulate(s); /* no step takes time: an empty picture */
    EXPECT_EQ(0, dt_pipe_svg(path, s, zero));
    dt_pipe_timing_free(zero);
    dt_pipe_timing_free(t);
    dt_pipe_schedule_free(s);
    s = dt_pipe_schedule_new(.kind = DT_PIPE_GPIPE, .ranks = 2, .micro = 60000);
    t = dt_pipe_simulate(s, .forward = 1);
    EXPECT_TRUE(dt_pipe_svg(path, s, t) < 0);
    EXPECT_TRUE_MSG(strstr(said(), "at most 200000"), said());
    dt_pipe_timing_free(t);
    dt_pipe_schedule_free(s);
    unlink(path);
}
