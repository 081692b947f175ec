/* test_partition.c: the partition of a model into the stages of a pipeline equals the best of all partitions, on random chains
   and graphs, with and without replicas and a limit of memory; cuts where few bytes cross; what is refused; the table.
   run: long, asan-later, -O1 */
#include "harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static const char *said(void) { return dt_plan_error() ? dt_plan_error() : ""; }

/* ---- brute force: every set of cuts, and with replicas every way to give the devices to the stages. Written from the
   formulas of the manual; it shares no code with dt_plan.h. */
typedef struct force {
    const dt_pipe_partition_opts *o;
    int                           cut[12], with[12], n; /* stage i: layers cut[i] .. cut[i + 1] - 1 on with[i] devices */
    double                        seconds, bytes, memory; /* the best so far; memory: the least largest stage */
    bool                          fits;
    long                          tried;
} force;
static double bytes_at(const dt_pipe_partition_opts *o, int j) /* what crosses the cut before layer j */
{
    double sum = 0;
    if (j == 0 || j == o->nlayers) return 0;
    if (!o->nedges) return (double)o->layers[j - 1].out;
    for (int i = 0; i < o->nedges; i++) {
        const dt_pipe_edge *e = &o->edges[i];
        bool                seen = e->from >= j || e->to < j;
        for (int k = 0; k < i; k++) {
            const dt_pipe_edge *q = &o->edges[k];
            if (q->from == e->from && q->output == e->output && q->from < j && q->to >= j) seen = true;
        }
        if (!seen) sum += (double)e->nbytes;
    }
    return sum;
}
static double message_at(const dt_pipe_partition_opts *o, int j)
{
    double n = bytes_at(o, j);
    return n > 0 ? 2 * o->latency + 2 * n / o->bandwidth : 0;
}
static void force_judge(force *f)
{
    const dt_pipe_partition_opts *o = f->o;
    double                        slowest = 0, bytes = 0, largest = 0;
    int                           before = 0;
    f->tried++;
    for (int i = 0; i < f->n; i++) {
        double work = 0, params = 0, fixed = 0, held = 0, in = message_at(o, f->cut[i]), out = message_at(o, f->cut[i + 1]), t;
        int    r = f->with[i], rest = o->ranks - before, flight = (o->micro + r - 1) / r;
        for (int l = f->cut[i]; l < f->cut[i + 1]; l++) {
            const dt_pipe_layer *y = &o->layers[l];
            work += y->forward + y->backward;
            params += (double)y->params;
            fixed += (double)y->params * (1 + y->state);
            held += (double)y->held;
        }
        if (o->kind == DT_PIPE_1F1B && (!o->micro || (rest + r - 1) / r < flight)) flight = (rest + r - 1) / r;
        if (o->kind == DT_PIPE_ZB_H1 && (!o->micro || (o->ranks + r - 1) / r < flight)) flight = (o->ranks + r - 1) / r;
        t = work + in + out;
        if (o->overlap) t = work > in ? work > out ? work : out : in > out ? in : out;
        t = t / r + 2.0 * (r - 1) * (o->latency + params / r / o->bandwidth) / (o->micro ? o->micro : r);
        if (t > slowest) slowest = t;
        if (fixed + held * flight > largest) largest = fixed + held * flight;
        bytes += bytes_at(o, f->cut[i]);
        before += r;
    }
    if (largest < f->memory) f->memory = largest;
    if (o->memory && largest > (double)o->memory) return;
    f->fits = true;
    if (slowest < f->seconds * (1 - 1e-9)) f->seconds = slowest, f->bytes = bytes;
    else if (slowest <= f->seconds * (1 + 1e-9) && bytes < f->bytes) f->bytes = bytes;
}
static void force_all(force *f, int left) /* adds a stage in every way; left: devices */
{
    const dt_pipe_partition_opts *o = f->o;
    int                           at = f->n ? f->cut[f->n] : 0;
    if (at == o->nlayers || !left) {
        if (at == o->nlayers && !left) force_judge(f);
        return;
    }
    for (int next = at + 1; next <= o->nlayers; next++) {
        if (next < o->nlayers && o->layers[next - 1].with_next) continue;
        for (int r = 1; r <= (o->replicate ? left : 1); r++) {
            f->cut[f->n] = at;
            f->cut[f->n + 1] = next;
            f->with[f->n++] = r;
            force_all(f, left - r);
            f->n--;
        }
    }
}
static void random_model(dt_pipe_layer *l, int n, dt_pipe_edge *e, int *nedges)
{
    memset(l, 0, (size_t)n * sizeof *l);
    for (int i = 0; i < n; i++) {
        l[i].forward = draw(10);
        l[i].backward = draw(20);
        l[i].out = draw(4) * draw(40);
        l[i].params = draw(3) * draw(50);
        l[i].state = draw(4);
        l[i].held = draw(30);
        l[i].with_next = draw(6) == 0;
    }
    if (!nedges) return;
    *nedges = 0;
    for (int i = 0; i + 1 < n; i++)
        for (int k = 1 + draw(3); k > 0; k--) {
            dt_pipe_edge x = { .from = i, .to = draw(3) ? i + 1 : i + 1 + draw(n - i - 1), .output = draw(2), .nbytes = 0 };
            x.nbytes = (i * 7 + x.output * 3) % 11 * 8; /* the same for all readers of a tensor */
            e[(*nedges)++] = x;
        }
    for (int i = *nedges - 1; i > 0; i--) { /* in any order */
        int          k = draw(i + 1);
        dt_pipe_edge x = e[i];
        e[i] = e[k], e[k] = x;
    }
}
typedef struct tally {
    int fits, tight, not_at_all, refused;
} tally;
/* "" or what is wrong */
static const char *compare(dt_pipe_partition_opts o, tally *count)
{
    static char        text[900];
    force              f;
    double             bytes = 0, slowest = 0;
    int                next = 0, devices = 0;
    dt_pipe_partition *p = dt_pipe_partition_new_with(o);
    memset(&f, 0, sizeof f);
    f.o = &o;
    f.seconds = f.bytes = f.memory = INFINITY;
    force_all(&f, o.ranks);
    text[0] = 0;
#define WRONG(...)                                                                                                          \
    do {                                                                                                                    \
        int n = snprintf(text, sizeof text, "%d layers, %d edges, %d ranks, kind %d, micro %d, memory %d, replicate %d: ",  \
                         o.nlayers, o.nedges, o.ranks, (int)o.kind, o.micro, (int)o.memory, o.replicate);                   \
        snprintf(text + n, sizeof text - (size_t)n, __VA_ARGS__);                                                           \
        goto out;                                                                                                           \
    } while (0)
    if (!f.tried) {
        count->refused++;
        if (p || !strstr(said(), "take fewer ranks")) WRONG("too many stages: %s", p ? "a partition" : said());
        goto out;
    }
    if (!f.fits) {
        char needs[64];
        snprintf(needs, sizeof needs, "needs %d bytes", (int)f.memory);
        count->not_at_all++;
        if (p || !strstr(said(), needs) || !strstr(said(), "layers")) WRONG("%s, but: %s", needs, p ? "a partition" : said());
        goto out;
    }
    if (!p) WRONG("%s", said());
    count->fits++;
    if (o.memory) count->tight++;
    for (int i = 0; i < p->nstages; i++) {
        const dt_pipe_stage *s = &p->stage[i];
        if (s->first != next || s->last < s->first) WRONG("stage %d begins with layer %d", i, s->first);
        next = s->last + 1;
        devices += s->replicas;
        if (next < o.nlayers && o.layers[s->last].with_next) WRONG("cut after layer %d, which goes with the next", s->last);
        if (s->in != (int64_t)bytes_at(&o, s->first) || s->out != (int64_t)bytes_at(&o, next)) WRONG("bytes of stage %d", i);
        if (o.memory && s->memory > o.memory) WRONG("stage %d needs %d bytes", i, (int)s->memory);
        double forward = 0, backward = 0;
        for (int k = s->first; k <= s->last; k++) forward += o.layers[k].forward, backward += o.layers[k].backward;
        if (s->forward != forward || s->backward != backward) WRONG("work of stage %d", i);
        bytes += (double)s->in;
        if (s->seconds > slowest) slowest = s->seconds;
    }
    if (next != o.nlayers || devices != o.ranks) WRONG("%d layers, %d devices in it", next, devices);
    if (p->seconds != slowest || p->stage[p->slowest].seconds != slowest) WRONG("slowest is stage %d", p->slowest);
    if (fabs(p->seconds - f.seconds) > 1e-9 * f.seconds) WRONG("%.12g seconds, possible %.12g", p->seconds, f.seconds);
    if (bytes > f.bytes) WRONG("%.12g bytes cross, possible %.12g", bytes, f.bytes);
out:
    dt_pipe_partition_free(p);
    return text;
}
static dt_pipe_partition_opts random_opts(const dt_pipe_layer *l, int n)
{
    static const dt_pipe_kind kind[] = { DT_PIPE_1F1B, DT_PIPE_GPIPE, DT_PIPE_ZB_H1 };
    dt_pipe_partition_opts    o;
    memset(&o, 0, sizeof o);
    o.layers = l;
    o.nlayers = n;
    o.ranks = 1 + draw(5);
    o.kind = kind[draw(3)];
    o.micro = o.kind == DT_PIPE_GPIPE || draw(2) ? 1 + draw(8) : 0;
    o.bandwidth = 1 << draw(6);
    o.latency = draw(3);
    o.memory = draw(2) ? 0 : 100 + draw(1500);
    o.overlap = draw(3) == 0;
    return o;
}
UTEST(partition, equals_brute_force_on_chains)
{
    dt_pipe_layer l[10];
    tally         t = { 0, 0, 0, 0 };
    draw_state = 11;
    for (int i = 0; i < (dt_test_quick() ? 1000 : 5000); i++) {
        int n = 1 + draw(10);
        random_model(l, n, NULL, NULL);
        ASSERT_STREQ("", compare(random_opts(l, n), &t));
    }
    EXPECT_TRUE(t.fits > 500 && t.tight > 100 && t.not_at_all > 50 && t.refused > 50);
}
UTEST(partition, equals_brute_force_on_graphs)
{
    dt_pipe_layer l[10];
    dt_pipe_edge  e[40];
    tally         t = { 0, 0, 0, 0 };
    draw_state = 12;
    for (int i = 0; i < (dt_test_quick() ? 1000 : 5000); i++) {
        int n = 2 + draw(9);
        dt_pipe_partition_opts o = random_opts(l, n);
        random_model(l, n, e, &o.nedges);
        o.edges = e;
        ASSERT_STREQ("", compare(o, &t));
    }
    EXPECT_TRUE(t.fits > 500 && t.tight > 100 && t.not_at_all > 50);
}
UTEST(partition, equals_brute_force_with_replicas)
{
    dt_pipe_layer l[8];
    dt_pipe_edge  e[32];
    tally         t = { 0, 0, 0, 0 };
    int           several = 0;
    draw_state = 13;
    for (int i = 0; i < (dt_test_quick() ? 1000 : 5000); i++) {
        int n = 2 + draw(6);
        dt_pipe_partition_opts o = random_opts(l, n);
        random_model(l, n, e, draw(2) ? &o.nedges : NULL);
        o.edges = e;
        o.replicate = true;
        o.ranks = 1 + draw(6);
        ASSERT_STREQ("", compare(o, &t));
        dt_pipe_partition *p = dt_pipe_partition_new_with(o);
        if (p && p->nstages > 1 && p->nstages < o.ranks) several++;
        dt_pipe_partition_free(p);
    }
    EXPECT_TRUE(t.fits > 500 && t.tight > 100 && several > 100);
}

/* What the partition promises is what the schedule needs: m times the slowest stage, and the way through the pipeline. */
UTEST(partition, agrees_with_virtual_time)
{
    dt_pipe_layer l[12];
    double        f[4], b[4];
    draw_state = 5;
    for (int n = 0; n < 200; n++) {
        int m = 4 * (1 + draw(8));
        random_model(l, 12, NULL, NULL);
        for (int i = 0; i < 12; i++) l[i].with_next = false, l[i].forward++;
        dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 12, .ranks = 4, .micro = m);
        ASSERT_TRUE(p != NULL);
        double once = 0;
        for (int i = 0; i < 4; i++) {
            f[i] = p->stage[i].forward;
            b[i] = p->stage[i].backward;
            once += f[i] + b[i];
        }
        dt_pipe_schedule *s = dt_pipe_schedule_new(.ranks = 4, .micro = m);
        dt_pipe_timing   *t = dt_pipe_simulate(s, .forwards = f, .backward_inputs = b);
        ASSERT_TRUE(t != NULL);
        EXPECT_TRUE(t->seconds >= m * p->seconds && t->seconds <= (m - 1) * p->seconds + once);
        for (int i = 0; i < 4; i++) EXPECT_EQ(t->held[i], p->stage[i].held);
        dt_pipe_timing_free(t);
        dt_pipe_schedule_free(s);
        dt_pipe_partition_free(p);
    }
}

/* A U-Net: skip connections over the whole width. The few bytes cross where it is narrow, and a residual block is not cut. */
UTEST(partition, cuts_a_branching_model_where_few_bytes_cross)
{
    dt_pipe_layer l[12];
    dt_pipe_edge  e[32];
    int           n = 0;
    memset(l, 0, sizeof l);
    for (int i = 0; i < 12; i++) {
        l[i].forward = l[i].backward = 1;
        l[i].params = 1000;
    }
    for (int i = 0; i < 11; i++) /* blocks of three layers; inside a block two tensors cross, between blocks one */
        e[n++] = (dt_pipe_edge){ .from = i, .to = i + 1, .nbytes = 1000 };
    for (int b = 0; b < 4; b++) {
        int from = b ? 3 * b - 1 : 0;
        e[n++] = (dt_pipe_edge){ .from = from, .to = 3 * b + 2, .nbytes = 1000 };
    }
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 12, .edges = e, .nedges = n, .ranks = ranks,
                                                     .kind = DT_PIPE_1F1B, .micro = 8, .bandwidth = 1e3, .latency = 1e-3);
        ASSERT_TRUE(p != NULL);
        for (int i = 0; i + 1 < p->nstages; i++) {
            EXPECT_EQ(1000, p->stage[i].out);
            EXPECT_EQ(2, p->stage[i].last % 3);
        }
        dt_pipe_partition_free(p);
    }
    e[n++] = (dt_pipe_edge){ .from = 2, .to = 11, .output = 1, .nbytes = 500 }; /* a skip: crosses every cut behind layer 2 */
    dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 12, .edges = e, .nedges = n, .ranks = 4,
                                                 .kind = DT_PIPE_1F1B, .micro = 8, .bandwidth = 1e3);
    ASSERT_TRUE(p != NULL);
    EXPECT_EQ(1500, p->stage[0].out);
    EXPECT_EQ(1500, p->stage[2].out);
    EXPECT_EQ(0, p->stage[3].out);
    dt_pipe_partition_free(p);
}
/* Of equally fast partitions the one is taken whose cuts are crossed by the fewest bytes, of these the one with the latest. */
UTEST(partition, of_equals_the_fewest_bytes)
{
    dt_pipe_layer l[6];
    memset(l, 0, sizeof l);
    l[0].forward = 100;
    for (int i = 0; i < 6; i++) l[i].out = i == 1 ? 5 : 50;
    dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 6, .ranks = 3, .kind = DT_PIPE_1F1B);
    ASSERT_TRUE(p != NULL);
    EXPECT_EQ(1, p->stage[0].last);
    EXPECT_EQ(4, p->stage[1].last);
    dt_pipe_partition_free(p);
}
/* The memory of an interleaved rank: its chunks together, at the peak of its schedule. Every layer holds 1 byte, so that is the
   number of micro-batches that it holds. */
UTEST(partition, interleaved_counts_the_chunks_of_a_rank)
{
    dt_pipe_layer l[8];
    memset(l, 0, sizeof l);
    for (int i = 0; i < 8; i++) l[i].forward = 1, l[i].held = 1, l[i].params = 100;
    dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 8, .ranks = 4, .chunks = 2,
                                                 .kind = DT_PIPE_INTERLEAVED, .micro = 8);
    ASSERT_TRUE(p != NULL);
    EXPECT_EQ(8, p->nstages);
    for (int i = 0; i < 8; i++) {
        EXPECT_EQ(2 * 4 + 3 - 2 * (i % 4), p->stage[i].held);
        EXPECT_EQ(200 + p->stage[i].held, p->stage[i].memory);
    }
    dt_pipe_partition_free(p);
    EXPECT_TRUE(dt_pipe_partition_new(.layers = l, .nlayers = 8, .ranks = 4, .chunks = 2, .kind = DT_PIPE_INTERLEAVED,
                                      .micro = 8, .memory = 210) == NULL);
    EXPECT_TRUE_MSG(strstr(said(), "rank 0 needs 211 bytes"), said());
    p = dt_pipe_partition_new(.layers = l, .nlayers = 8, .ranks = 4, .chunks = 2, .kind = DT_PIPE_INTERLEAVED, .micro = 8,
                              .memory = 211);
    EXPECT_TRUE(p != NULL);
    dt_pipe_partition_free(p);
}
UTEST(partition, refuses_with_a_remedy)
{
    dt_pipe_layer l[3];
    dt_pipe_edge  e[2];
    memset(l, 0, sizeof l);
    memset(e, 0, sizeof e);
    l[1].name = "conv<1>";
    dt_pipe_partition_opts good;
    memset(&good, 0, sizeof good);
    good.layers = l;
    good.nlayers = 3;
    good.ranks = 2;
    good.kind = DT_PIPE_1F1B;
#define REFUSED(what, text)                              \
    do {                                                 \
        dt_pipe_partition_opts o = good;                 \
        what;                                            \
        EXPECT_TRUE(dt_pipe_partition_new_with(o) == NULL); \
        EXPECT_TRUE_MSG(strstr(said(), text), said());   \
    } while (0)
    REFUSED(o.layers = NULL, "layers is NULL");
    REFUSED(o.nlayers = 0, "expected 1 to 65536 layers");
    REFUSED(o.nlayers = 65537, "nlayers is 65537");
    REFUSED(o.ranks = 0, "ranks is 0");
    REFUSED(o.ranks = 4097, "ranks is 4097");
    REFUSED(o.ranks = 4, "4 stages, but there are only 3 layers");
    REFUSED(o.kind = DT_PIPE_GPIPE, "say how many");
    REFUSED(o.micro = -1, "micro is -1");
    REFUSED(o.nedges = 1, "edges is NULL");
    REFUSED(o.nedges = -1, "nedges is -1");
    REFUSED(o.bandwidth = -1, "bandwidth is -1");
    REFUSED(o.bandwidth = 1e-300, "at least 0.001");
    REFUSED(o.latency = NAN, "latency");
    REFUSED(o.memory = -1, "memory");
    REFUSED(o.kind = DT_PIPE_INTERLEAVED, "micro is 0");
    REFUSED((o.kind = DT_PIPE_INTERLEAVED, o.micro = 2, o.ranks = 1, o.replicate = true), "replicate");
    REFUSED(o.chunks = 2, "DT_PIPE_INTERLEAVED");
    l[1].backward = INFINITY;
    REFUSED((void)o, "layer 'conv<1>': its times are 0 and inf");
    l[1].backward = 0;
    l[2].state = -1;
    REFUSED((void)o, "layer 2: bytes");
    l[2].state = 0;
    l[0].with_next = l[1].with_next = true;
    REFUSED((void)o, "can be cut into 1 parts at most");
    l[0].with_next = l[1].with_next = false;
    good.edges = e;
    good.nedges = 2;
    REFUSED((void)o, "topological order");
    e[0].to = e[1].to = 3;
    REFUSED((void)o, "topological order");
    e[0].to = e[1].to = 2;
    e[0].nbytes = 5;
    REFUSED((void)o, "one tensor has one size");
    e[1].nbytes = e[0].nbytes = INT64_MAX / 4;
    REFUSED((void)o, "sum up to");
    e[1].nbytes = e[0].nbytes = 7;
    dt_pipe_partition *p = dt_pipe_partition_new_with(good);
    EXPECT_TRUE(p != NULL);
    dt_pipe_partition_free(p);
    dt_pipe_partition_free(NULL);
    l[0].params = l[1].params = l[2].params = INT64_MAX;
    l[1].held = INT64_MAX;
    REFUSED(o.memory = 1000, "no partition fits into 1000 bytes");
}
UTEST(partition, survives_exhausted_memory)
{
    dt_pipe_layer l[6];
    dt_pipe_edge  e[1] = { { .from = 0, .to = 5, .nbytes = 3 } };
    bool          done = false;
    memset(l, 0, sizeof l);
    for (long n = 1; n < 40 && !done; n++) {
        alloc_fail_at = n;
        alloc_calls = 0;
        dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 6, .edges = e, .nedges = 1, .ranks = 2,
                                                     .chunks = 2, .kind = DT_PIPE_INTERLEAVED, .micro = 4);
        done = p != NULL;
        if (!done) EXPECT_TRUE_MSG(strstr(said(), "out of memory"), said());
        dt_pipe_partition_free(p);
    }
    alloc_fail_at = 0;
    EXPECT_TRUE(done);
}
UTEST(partition, table)
{
    dt_pipe_layer l[3];
    char          text[2000], tiny[10];
    memset(l, 0, sizeof l);
    l[0].name = "embedding", l[0].forward = 0.001, l[0].backward = 0.002, l[0].params = 4000000, l[0].out = 8192;
    l[0].state = 3;
    l[1].name = "block", l[1].forward = 0.004, l[1].backward = 0.008, l[1].params = 1000, l[1].out = 100, l[1].held = 50000;
    l[2].name = NULL, l[2].forward = 0.001, l[2].backward = 0.002;
    dt_pipe_partition *p = dt_pipe_partition_new(.layers = l, .nlayers = 3, .ranks = 2, .kind = DT_PIPE_1F1B, .micro = 4,
                                                 .bandwidth = 1e8, .latency = 1e-4);
    ASSERT_TRUE(p != NULL);
    size_t n = dt_pipe_partition_text(p, l, text, sizeof text);
    EXPECT_EQ(strlen(text), n);
    EXPECT_EQ(n, dt_pipe_partition_text(p, l, tiny, sizeof tiny));
    EXPECT_EQ((size_t)9, strlen(tiny));
    EXPECT_EQ(n, dt_pipe_partition_text(p, l, NULL, 0));
    if (getenv("DT_TEST_SHOW")) puts(text);
    EXPECT_TRUE_MSG(strstr(text, "'embedding' to 'block'") && strstr(text, "2 to 2"), text);
    EXPECT_TRUE_MSG(strstr(text, "<- slowest") && strstr(text, "100 bytes") && strstr(text, "16.1 MB"), text);
    dt_pipe_partition_free(p);
}
