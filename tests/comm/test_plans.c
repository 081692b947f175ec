/* test_plans.c: the plans of dt_comm.h, proved by plan_check.h for every collective and algorithm, many worlds, counts,
   roots and machines; that the proof fails when it must; costs and the choice; pictures.
   Contents: >>proofs >>machines >>formulas >>broken >>refused >>choice >>picture
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

#include "plan_check.h"

UTEST_MAIN()

static const int64_t HUGE_COUNT = ((int64_t)1 << 33) + 5;

static bool     quick(void) { return getenv("DT_TEST_QUICK") != NULL; }
static uint64_t draw_state = 1;
static uint32_t draw(uint32_t below) /* xorshift64* */
{
    draw_state ^= draw_state >> 12;
    draw_state ^= draw_state << 25;
    draw_state ^= draw_state >> 27;
    return (uint32_t)((draw_state * 0x2545F4914F6CDD1Du) >> 33) % (below ? below : 1);
}
static dt_plan_opts opts_of(int world, int64_t count)
{
    dt_plan_opts o;
    memset(&o, 0, sizeof o);
    o.world = world;
    o.count = count;
    return o;
}
/* "" or what is wrong */
static const char *prove(dt_coll coll, dt_algo algo, const dt_plan_opts *o, plan_report *rep)
{
    static char text[512];
    plan_report here;
    plan_set    s = plan_set_make(coll, algo, o);
    bool        good = plan_check(&s, rep ? rep : &here);
    snprintf(text, sizeof text, "%s %s world %d count %lld root %d segment %lld: %s", dt_coll_name(coll),
             dt_algo_name(algo), o->world, (long long)o->count, o->root, (long long)o->segment,
             (rep ? rep : &here)->why);
    if (good && rep) plan_measure(&s, NULL, 0, 1, rep);
    plan_set_free(&s);
    return good ? "" : text;
}
#define PROVE(...) ASSERT_STREQ("", prove(__VA_ARGS__))
#define EACH_ALGO(a, coll, world, host)          \
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) \
        if (dt_plan_can(coll, (dt_algo)a, world, host))

/* 1..64, then some of the large ones; with DT_TEST_QUICK few */
static int worlds(int *list, bool large)
{
    static const int few[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33 };
    static const int more[] = { 100, 127, 128, 129 };
    int              n = 0;
    for (int i = 0; quick() && i < (int)(sizeof few / sizeof *few); i++) list[n++] = few[i];
    for (int p = 1; !quick() && p <= 64; p++) list[n++] = p;
    for (int i = 0; large && !quick() && i < 4; i++) list[n++] = more[i];
    return n;
}

/* ==================================================================================================== >>proofs */
static bool whole(dt_coll c) { return c == DT_COLL_ALLREDUCE || c == DT_COLL_BROADCAST || c == DT_COLL_REDUCE; }
static bool rooted(int c)
{
    return c == DT_COLL_BROADCAST || c == DT_COLL_REDUCE || c == DT_COLL_GATHER || c == DT_COLL_SCATTER;
}

UTEST(proofs, every_world_and_count_of_whole_vectors)
{
    static const dt_coll coll[] = { DT_COLL_ALLREDUCE, DT_COLL_BROADCAST, DT_COLL_REDUCE };
    int                  list[80], n = worlds(list, true);
    for (int i = 0; i < n; i++) {
        int     p = list[i];
        int64_t counts[] = { 0, 1, p - 1, p, p + 1, 3 * p + 2, HUGE_COUNT };
        for (int c = 0; c < 3; c++) EACH_ALGO(a, coll[c], p, NULL)
        for (int k = 0; k < 7; k++)
            for (int root = 0; root < (rooted(coll[c]) && p > 1 ? 3 : 1); root++) {
                dt_plan_opts o = opts_of(p, counts[k]);
                o.root = root == 0 ? 0 : root == 1 ? p - 1 : p / 2;
                PROVE(coll[c], (dt_algo)a, &o, NULL);
            }
    }
}

/* counts of some shapes: equal, random with zeros, one rank has all, none has any */
static void shape_counts(int64_t *counts, int64_t n, int shape)
{
    for (int64_t i = 0; i < n; i++) counts[i] = shape == 0 ? draw(3) * draw(9) : shape == 1 ? 0 : 1000 + draw(5);
    if (shape == 1) counts[draw((uint32_t)n)] = HUGE_COUNT;
}
UTEST(proofs, every_world_and_count_of_segments)
{
    static const dt_coll coll[] = { DT_COLL_REDUCE_SCATTER, DT_COLL_ALLGATHER, DT_COLL_GATHER, DT_COLL_SCATTER };
    int                  list[80], n = worlds(list, true);
    for (int i = 0; i < n; i++) {
        int      p = list[i];
        int64_t  counts[] = { 0, 1, 3, HUGE_COUNT };
        int64_t *differ = (int64_t *)malloc((size_t)p * sizeof *differ);
        for (int c = 0; c < 4; c++) EACH_ALGO(a, coll[c], p, NULL)
        for (int k = 0; k < 7; k++) {
            dt_plan_opts o = opts_of(p, k < 4 ? counts[k] : 0);
            if (k >= 4) {
                shape_counts(differ, p, k - 4);
                o.counts = differ;
            }
            if (rooted(coll[c])) o.root = (int)draw((uint32_t)p);
            PROVE(coll[c], (dt_algo)a, &o, NULL);
        }
        free(differ);
    }
}
UTEST(proofs, every_world_of_alltoall_and_barrier)
{
    int list[80], n = worlds(list, true);
    for (int i = 0; i < n; i++) {
        int      p = list[i];
        int64_t  counts[] = { 0, 1, 3, HUGE_COUNT };
        int64_t *differ = (int64_t *)malloc((size_t)p * (size_t)p * sizeof *differ);
        EACH_ALGO(a, DT_COLL_ALLTOALL, p, NULL)
        for (int k = 0; k < 7; k++) {
            dt_plan_opts o = opts_of(p, k < 4 ? counts[k] : 0);
            if (k >= 4) {
                shape_counts(differ, (int64_t)p * p, k - 4);
                if (a == DT_ALGO_BRUCK)
                    for (int64_t j = 0; j < (int64_t)p * p; j++) differ[j] = 7;
                o.counts = differ;
            }
            PROVE(DT_COLL_ALLTOALL, (dt_algo)a, &o, NULL);
        }
        EACH_ALGO(a, DT_COLL_BARRIER, p, NULL)
        {
            dt_plan_opts o = opts_of(p, 0);
            plan_report  rep;
            PROVE(DT_COLL_BARRIER, (dt_algo)a, &o, &rep);
            EXPECT_EQ((a == DT_ALGO_TREE ? 2 : 1) * dt__plan_log2_up(p), rep.rounds);
        }
        free(differ);
    }
}
/* the matrix of all counts, for pictures and predictions, gives the plans that each rank makes of its own counts */
UTEST(proofs, alltoall_by_a_matrix_and_by_own_counts)
{
    for (int p = 1; p <= 9; p++) {
        int64_t      differ[81];
        dt_plan_opts o = opts_of(p, 0);
        dt_plan      x;
        memset(&x, 0, sizeof x);
        shape_counts(differ, (int64_t)p * p, 0);
        o.counts = differ;
        plan_set s = plan_set_make(DT_COLL_ALLTOALL, DT_ALGO_PAIRS, &o);
        for (o.rank = 0; o.rank < p; o.rank++) {
            const dt_plan *y = &s.plan[o.rank];
            ASSERT_EQ(0, dt_plan_make(&x, DT_COLL_ALLTOALL, DT_ALGO_PAIRS, &o, NULL));
            EXPECT_TRUE(x.count == y->count && x.input == y->input && x.rounds == y->rounds && x.nsteps == y->nsteps);
            EXPECT_EQ(0, x.scratch);
            EXPECT_TRUE(x.nsteps == 0 || !memcmp(x.step, y->step, (size_t)x.nsteps * sizeof *x.step));
        }
        plan_set_free(&s);
        dt_plan_free(&x);
    }
}
UTEST(proofs, segments_of_pipelines)
{
    int list[80], n = worlds(list, false);
    for (int i = 0; i < n; i++) {
        int p = list[i];
        for (int k = 0; k < 4; k++) {
            dt_plan_opts o = opts_of(p, 3 * p + 2);
            plan_report  cut, plain;
            o.segment = k == 0 ? 1 : k == 1 ? 2 : k == 2 ? 3 : p;
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &cut);
            PROVE(DT_COLL_BROADCAST, DT_ALGO_SCATTER, &o, NULL);
            PROVE(DT_COLL_REDUCE, DT_ALGO_RING, &o, NULL);
            o.count = 5; /* of each rank */
            PROVE(DT_COLL_REDUCE_SCATTER, DT_ALGO_RING, &o, NULL);
            PROVE(DT_COLL_ALLGATHER, DT_ALGO_RING, &o, NULL);
            o.count = 3 * p + 2;
            o.root = p / 2;
            PROVE(DT_COLL_BROADCAST, DT_ALGO_CHAIN, &o, NULL);
            o.root = 0;
            o.segment = 0;
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &plain);
            EXPECT_EQ(plain.sent, cut.sent);
            EXPECT_EQ(plain.most_sent, cut.most_sent);
            EXPECT_EQ(plain.bits, cut.bits);
            EXPECT_GE(cut.rounds, plain.rounds);
        }
    }
}
static const char *thousand(dt_coll c)
{
    const char *bad = "";
    EACH_ALGO(a, c, 1000, NULL)
    {
        dt_plan_opts o = opts_of(1000, whole(c) ? 3002 : 3);
        o.root = rooted(c) ? 617 : 0;
        if (!*bad) bad = prove(c, (dt_algo)a, &o, NULL);
    }
    return bad;
}
UTEST(proofs, a_thousand_ranks_allreduce)
{
    if (quick()) UTEST_SKIP("DT_TEST_QUICK");
    ASSERT_STREQ("", thousand(DT_COLL_ALLREDUCE));
}
UTEST(proofs, a_thousand_ranks_alltoall)
{
    if (quick()) UTEST_SKIP("DT_TEST_QUICK");
    ASSERT_STREQ("", thousand(DT_COLL_ALLTOALL));
}
UTEST(proofs, a_thousand_ranks_others)
{
    if (quick()) UTEST_SKIP("DT_TEST_QUICK");
    for (int c = 0; c < (int)DT_COLL_SEND; c++)
        if (c != (int)DT_COLL_ALLREDUCE && c != (int)DT_COLL_ALLTOALL) ASSERT_STREQ("", thousand((dt_coll)c));
}
/* shared memory, its lowering, alltoall and direct reduce in the order of ranks: the same bits */
UTEST(proofs, shared_and_lowered)
{
    int list[80], n = worlds(list, true);
    for (int i = 0; i < n; i++) {
        int     p = list[i];
        int64_t counts[] = { 0, 1, p - 1, 3 * p + 2, HUGE_COUNT };
        for (int k = 0; k < 5; k++) {
            dt_plan_opts o = opts_of(p, counts[k]);
            plan_report  rep, direct, all;
            plan_set     s = plan_set_make(DT_COLL_ALLREDUCE, DT_ALGO_SHARED, &o);
            ASSERT_TRUE(plan_check(&s, &rep));
            for (int r = 0; r < p; r++) {
                EXPECT_EQ(p > 1 && counts[k] ? 1 : 0, s.plan[r].nsteps);
                ASSERT_EQ(0, dt_plan_lower(&s.plan[r], NULL));
                for (int64_t j = 0; j < s.plan[r].nsteps; j++) ASSERT_NE((int)DT_STEP_SHARE, s.plan[r].step[j].kind);
            }
            plan_report low;
            bool        good = plan_check(&s, &low);
            plan_set_free(&s);
            ASSERT_STREQ("", good ? "" : low.why);
            EXPECT_EQ(rep.bits, low.bits);
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_DIRECT, &o, &direct);
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_ALLTOALL, &o, &all);
            EXPECT_EQ(rep.bits, direct.bits);
            EXPECT_EQ(rep.bits, all.bits);
        }
    }
}

/* reduce by direct has them too, whatever the root */
UTEST(proofs, the_order_of_ranks_at_any_root)
{
    for (int p = 2; p <= 9; p++)
        for (int root = 0; root < p; root++) {
            dt_plan_opts o = opts_of(p, 5);
            plan_report  all, one;
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_DIRECT, &o, &all);
            o.root = root;
            PROVE(DT_COLL_REDUCE, DT_ALGO_DIRECT, &o, &one);
            EXPECT_EQ(all.bits, one.bits);
        }
}
UTEST(proofs, one_order_whatever_the_machines_root_and_count) /* of DT_ALGO_ORDERED, and what it sends */
{
    int list[80], host[160], n = worlds(list, false);
    for (int i = 0; i < n; i++) {
        int          p = list[i];
        dt_plan_opts o = opts_of(p, 4 * p);
        plan_report  r, same;
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_ORDERED, &o, &r);
        EXPECT_EQ(p > 1 ? 2 : 0, r.rounds);
        EXPECT_EQ((int64_t)2 * 4 * (p - 1) * p, r.sent); /* as a ring */
        EXPECT_EQ((int64_t)4 * (p - 1), r.reduced);
        o.host = host;
        for (int k = 0; k < 3; k++) {
            for (int q = 0; q < p; q++) host[q] = k == 0 ? q / 3 : k == 1 ? q % 2 : q;
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_ORDERED, &o, &same);
            EXPECT_EQ(r.bits, same.bits);
        }
        for (o.root = 0; o.root < p; o.root += 1 + p / 3) {
            PROVE(DT_COLL_REDUCE, DT_ALGO_ORDERED, &o, &same);
            EXPECT_EQ(r.bits, same.bits);
        }
    }
}
/* reduce_scatter: the expression of the segment of rank r, as the comments of the algorithms say */
static uint64_t halved(int p, int v, int m) /* at member v of the power of two, before the exchange at distance m */
{
    int q = 1 << dt__plan_log2(p), rem = p - q, u = v ^ (2 * m);
    if (2 * m < q) return plan_pair(halved(p, v < u ? v : u, 2 * m), halved(p, v < u ? u : v, 2 * m));
    return v >= rem ? plan_leaf(v + rem, 0).expr : plan_pair(plan_leaf(2 * v, 0).expr, plan_leaf(2 * v + 1, 0).expr);
}
static uint64_t scattered(int p, int algo, int r)
{
    int      q = 1 << dt__plan_log2(p), rem = p - q, v = r < 2 * rem ? r / 2 : r - rem;
    int      first = algo == DT_ALGO_RING ? r + 1 : algo == DT_ALGO_PAIRS ? r : 0;
    uint64_t x = plan_leaf(first % p, 0).expr;
    if (algo == DT_ALGO_ORDERED) return plan_tree(p);
    if (algo == DT_ALGO_HALVING) return plan_pair(halved(p, v & ~1, 1), halved(p, v | 1, 1));
    for (int k = 1; k < p; k++) x = plan_pair(x, plan_leaf((first + k) % p, 0).expr);
    return x;
}
UTEST(proofs, the_order_of_reduce_scatter)
{
    int list[80], n = worlds(list, false);
    for (int i = 0; i < n; i++)
        EACH_ALGO(a, DT_COLL_REDUCE_SCATTER, list[i], NULL)
        {
            dt_plan_opts o = opts_of(list[i], 3);
            plan_report  rep;
            uint64_t     bits = 0;
            if (list[i] < 2) continue;
            PROVE(DT_COLL_REDUCE_SCATTER, (dt_algo)a, &o, &rep);
            for (int r = 0; r < list[i]; r++) bits = plan_mix(bits) ^ scattered(list[i], a, r);
            EXPECT_TRUE_MSG(bits == rep.bits, dt_algo_name((dt_algo)a));
        }
}
/* What a rank needs beside its input and its result */
UTEST(proofs, memory_of_segments)
{
    for (int p = 2; p <= 17; p++)
        for (int r = 0; r < p; r++) {
            dt_plan_opts o = opts_of(p, 10);
            dt_plan      x;
            int          power = (p & (p - 1)) == 0, v = (r - p / 2 + p) % p, below = v & -v; /* members of its subtree */
            if (below > p - v) below = p - v;
            memset(&x, 0, sizeof x);
            o.rank = r;
            o.root = p / 2;
            ASSERT_EQ(0, dt_plan_make(&x, DT_COLL_REDUCE_SCATTER, DT_ALGO_RING, &o, NULL));
            EXPECT_EQ(10 * p, x.input);
            EXPECT_EQ(10, x.count);
            EXPECT_EQ(p == 2 ? 0 : p == 3 ? 10 : 20, x.scratch);
            ASSERT_EQ(0, dt_plan_make(&x, DT_COLL_REDUCE_SCATTER, DT_ALGO_PAIRS, &o, NULL));
            EXPECT_EQ(10, x.count);
            EXPECT_EQ(0, x.scratch);
            ASSERT_EQ(0, dt_plan_make(&x, DT_COLL_REDUCE_SCATTER, DT_ALGO_HALVING, &o, NULL));
            if (power) EXPECT_EQ(10, x.count);
            if (power) EXPECT_EQ(p > 2 ? 5 * p : 0, x.scratch);
            ASSERT_EQ(0, dt_plan_make(&x, DT_COLL_GATHER, DT_ALGO_TREE, &o, NULL));
            EXPECT_EQ(10 * (v ? below : p), x.count);
            EXPECT_EQ(0, x.input + x.scratch);
            ASSERT_EQ(0, dt_plan_make(&x, DT_COLL_SCATTER, DT_ALGO_DIRECT, &o, NULL));
            EXPECT_EQ(v ? 10 : 10 * p, x.count);
            dt_plan_free(&x);
        }
}
UTEST(proofs, chunks_differ_by_one_at_most)
{
    static const dt_algo algo[] = { DT_ALGO_RING, DT_ALGO_SHARED };
    for (int p = 2; p <= 20; p++)
        for (int64_t n = p; n < 4 * p; n++)
            for (int a = 0; a < 2; a++) {
                dt_plan_opts o = opts_of(p, n);
                plan_set     s = plan_set_make(DT_COLL_ALLREDUCE, algo[a], &o);
                for (int r = 0; r < p; r++)
                    for (int64_t i = 0; i < s.plan[r].nsteps; i++) {
                        EXPECT_GE(s.plan[r].step[i].n, n / p);
                        EXPECT_LE(s.plan[r].step[i].n, (n + p - 1) / p);
                    }
                plan_set_free(&s);
            }
}

/* ==================================================================================================== >>machines */
enum { TOPOLOGIES = 8 };
/* equal blocks, unequal blocks, interleaved, one rank a machine, one machine, random, one alone, numbers downwards */
static void topology(int *host, int p, int k)
{
    for (int r = 0; r < p; r++)
        host[r] = k == 0   ? r / 4
                  : k == 1 ? (r < p / 2       ? -7
                              : r < p - p / 5 ? 1000
                                              : 3)
                  : k == 2 ? r % 3
                  : k == 3 ? 5 * r
                  : k == 4 ? 42
                  : k == 5 ? (int)draw(4)
                  : k == 6 ? (r == p / 2)
                           : -(r / 3);
}
UTEST(machines, two_level_and_leader)
{
    static const dt_algo algo[] = { DT_ALGO_TWO_LEVEL, DT_ALGO_LEADER };
    int                  list[80], n = worlds(list, true), host[1000];
    if (!quick()) list[n++] = 1000;
    for (int i = 0; i < n; i++) {
        int     p = list[i];
        int64_t counts[] = { 0, 1, p - 1, p, p + 1, 3 * p + 2, HUGE_COUNT };
        for (int t = 0; t < TOPOLOGIES; t++) {
            topology(host, p, t);
            for (int k = 0; k < 7; k++)
                for (int a = 0; a < 2; a++) {
                    if (p == 1000 && (k != 5 || (t != 0 && t != 2 && t != 5))) continue;
                    dt_plan_opts o = opts_of(p, counts[k]);
                    o.host = host;
                    PROVE(DT_COLL_ALLREDUCE, algo[a], &o, NULL);
                }
        }
    }
}
/* H machines of L ranks: rounds and elements as the books say; only n/L (H-1)/H twice leaves by a rank */
UTEST(machines, what_leaves_a_machine)
{
    int host[64];
    for (int L = 1; L <= 8; L++)
        for (int H = 1; H <= 8; H++) {
            int          p = L * H;
            int64_t      n = 840 * 840;
            plan_report  two, lead;
            dt_plan_opts o = opts_of(p, n);
            for (int r = 0; r < p; r++) host[r] = r / L;
            o.host = host;
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_TWO_LEVEL, &o, &two);
            PROVE(DT_COLL_ALLREDUCE, DT_ALGO_LEADER, &o, &lead);
            EXPECT_EQ(2 * (L - 1) + 2 * (H - 1), two.rounds);
            EXPECT_EQ(2 * n / p * (p - 1), two.path);
            EXPECT_EQ(n / p * (p - 1), two.reduced);
            EXPECT_EQ(2 * (n / L / H) * (H - 1), two.most_out);
            EXPECT_EQ(2 * dt__plan_log2_up(L) + 2 * (H - 1), lead.rounds);
            EXPECT_EQ(2 * n / H * (H - 1), lead.most_out);
        }
}

/* ==================================================================================================== >>formulas */
UTEST(formulas, allreduce)
{
    int list[80], n = worlds(list, true);
    for (int i = 0; i < n; i++) {
        int64_t p = list[i], m = 2048 * p, lg = dt__plan_log2((int)p), up = dt__plan_log2_up((int)p),
                q = (int64_t)1 << lg;
        dt_plan_opts o = opts_of((int)p, m);
        plan_report  r;
        if (p == 1) continue;
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, &r);
        EXPECT_EQ(2 * (p - 1), r.rounds);
        EXPECT_EQ(2 * m / p * (p - 1), r.path);
        EXPECT_EQ(2 * m / p * (p - 1), r.most_sent);
        EXPECT_EQ(2 * m * (p - 1), r.sent); /* every rank the same */
        EXPECT_EQ(m / p * (p - 1), r.reduced);
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_DOUBLING, &o, &r);
        EXPECT_EQ(lg + (p > q ? 2 : 0), r.rounds);
        EXPECT_EQ(m * lg + (p > q ? 2 * m : 0), r.path);
        EXPECT_EQ(m * lg + (p > q ? m : 0), r.reduced);
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_HALVING, &o, &r);
        EXPECT_EQ(p > q ? 3 + 2 * lg : 2 * lg, r.rounds);
        EXPECT_EQ(p > q ? 4 * m - 2 * m / q : 2 * m / p * (p - 1), r.path);
        EXPECT_EQ(p > q ? m / 2 * 3 - m / q : m / p * (p - 1), r.reduced);
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_TREE, &o, &r);
        EXPECT_EQ(2 * up, r.rounds);
        EXPECT_EQ(2 * m * up, r.path);
        EXPECT_EQ(m * up, r.reduced);
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_BLOCKS, &o, &r);
        int64_t blocks = __builtin_popcountll((unsigned long long)p), path = m / q * (q - 1), reduced = path;
        for (int64_t b = q >> 1, big = q; b; b >>= 1)
            if (p & b) path += m / b, reduced += m / big, big = b;
        EXPECT_EQ(2 * lg + 2 * (blocks - 1), r.rounds);
        EXPECT_EQ(2 * path, r.path);
        EXPECT_EQ(reduced, r.reduced);
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_ALLTOALL, &o, &r);
        EXPECT_EQ(1, r.rounds);
        EXPECT_EQ((p - 1) * m, r.path);
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_DIRECT, &o, &r);
        EXPECT_EQ(p, r.rounds);
        EXPECT_EQ(2 * (p - 1) * m, r.path);
    }
}
UTEST(formulas, published_binary_blocks) /* elements on the path over n, in thousandths */
{
    static const int known[][2] = { { 6, 2500 },   { 12, 2250 }, { 24, 2125 }, { 96, 2031 },
                                    { 100, 2531 }, { 7, 4500 },  { 31, 5625 } };
    for (int i = 0; i < 7; i++) {
        int64_t      n = 64 * 1000;
        dt_plan_opts o = opts_of(known[i][0], n);
        plan_report  r;
        PROVE(DT_COLL_ALLREDUCE, DT_ALGO_BLOCKS, &o, &r);
        EXPECT_EQ(known[i][1], r.path * 1000 / n);
    }
}
UTEST(formulas, segments_and_roots)
{
    int list[80], n = worlds(list, true);
    for (int i = 0; i < n; i++) {
        int64_t      p = list[i], c = 60, m = c * p, up = dt__plan_log2_up((int)p);
        bool         power = (p & (p - 1)) == 0;
        dt_plan_opts o = opts_of((int)p, c), w = opts_of((int)p, m);
        plan_report  r;
        if (p == 1) continue;
        PROVE(DT_COLL_REDUCE_SCATTER, DT_ALGO_RING, &o, &r);
        EXPECT_EQ(p - 1, r.rounds);
        EXPECT_EQ(c * (p - 1), r.path);
        EXPECT_EQ(c * (p - 1), r.most_sent);
        EXPECT_EQ(c * (p - 1), r.reduced);
        PROVE(DT_COLL_REDUCE_SCATTER, DT_ALGO_PAIRS, &o, &r);
        EXPECT_EQ(p - 1, r.rounds);
        EXPECT_EQ(c * (p - 1), r.path);
        PROVE(DT_COLL_REDUCE_SCATTER, DT_ALGO_HALVING, &o, &r);
        EXPECT_EQ(power ? up : up + 1, r.rounds);
        if (power) EXPECT_EQ(c * (p - 1), r.path);
        PROVE(DT_COLL_ALLGATHER, DT_ALGO_RING, &o, &r);
        EXPECT_EQ(p - 1, r.rounds);
        EXPECT_EQ(c * (p - 1), r.path);
        PROVE(DT_COLL_ALLGATHER, DT_ALGO_BRUCK, &o, &r);
        EXPECT_EQ(up, r.rounds);
        EXPECT_EQ(c * (p - 1), r.path);
        EXPECT_EQ(c * (p - 1), r.most_sent);
        EXPECT_EQ(p * up, r.messages);
        if (power) PROVE(DT_COLL_ALLGATHER, DT_ALGO_DOUBLING, &o, &r);
        if (power) EXPECT_EQ(up, r.rounds);
        if (power) EXPECT_EQ(c * (p - 1), r.path);
        PROVE(DT_COLL_BROADCAST, DT_ALGO_TREE, &w, &r);
        EXPECT_EQ(up, r.rounds);
        EXPECT_EQ(m * up, r.path);
        PROVE(DT_COLL_BROADCAST, DT_ALGO_SCATTER, &w, &r);
        EXPECT_EQ(up + p - 1, r.rounds);
        if (power) EXPECT_EQ(2 * c * (p - 1), r.path);
        w.segment = c;
        PROVE(DT_COLL_BROADCAST, DT_ALGO_CHAIN, &w, &r);
        EXPECT_EQ(p + p - 2, r.rounds);
        EXPECT_EQ(c * (p + p - 2), r.path);
        w.segment = 0;
        PROVE(DT_COLL_REDUCE, DT_ALGO_TREE, &w, &r);
        EXPECT_EQ(up, r.rounds);
        EXPECT_EQ(m * (up + (p > 3)), r.reduced); /* the root's first and others' are in two rounds */
        PROVE(DT_COLL_GATHER, DT_ALGO_TREE, &o, &r);
        EXPECT_EQ(up, r.rounds);
        EXPECT_EQ(c * (p - 1), r.path);
        PROVE(DT_COLL_ALLTOALL, DT_ALGO_PAIRS, &o, &r);
        EXPECT_EQ(p - 1, r.rounds);
        EXPECT_EQ(c * (p - 1), r.path);
        PROVE(DT_COLL_ALLTOALL, DT_ALGO_BRUCK, &o, &r);
        EXPECT_EQ(up, r.rounds);
        if (power) EXPECT_EQ(m / 2 * up, r.path);
    }
}
/* one rank's plan of 4096: steps in proportion to the world, made at once */
UTEST(formulas, a_large_world_is_quick)
{
    dt_plan p;
    int64_t t0 = dt_test_ns();
    memset(&p, 0, sizeof p);
    for (int c = 0; c < (int)DT_COLL_SEND; c++) EACH_ALGO(a, (dt_coll)c, 4096, NULL)
        {
            dt_plan_opts o = opts_of(4096, 1000003);
            o.rank = 77;
            ASSERT_EQ(0, dt_plan_make(&p, (dt_coll)c, (dt_algo)a, &o, NULL));
            EXPECT_LE(p.nsteps, 5 * 4096);
        }
    dt_plan_free(&p);
    EXPECT_LT(dt_test_ns() - t0, 1000000000 * (int64_t)dt_test_slow());
}

/* ==================================================================================================== >>broken
   A plan with one step made wrong must not pass. Equivalent are, if they pass:
   - the steps of every round stay the same but for their order
   - two steps of a rank that differ by their peer alone change places: two messages with the same elements go out, or
     two operands of a value that one rank makes come in, in the other order; two signals of a barrier
   - a send takes the same elements from DATA of which scratch has a copy (reduce by ring, allgather by bruck)
   - reduce: of two operands that one rank takes, one to keep and one to fold, the other is kept
   - a copy into scratch, or a reduction there, is one element longer, and nobody reads it
   Not tried, as it means nothing: the buffer of no elements, the left operand of a value that one rank makes, an
   earlier round for a step that needs nothing of the round before. */
enum { DROP, TWICE, SHIFT, LENGTH, FROM, PEER, SWAP, KIND, BUFFER, LEFT, EARLIER, MUTATIONS };
static const char *const mutation_name[MUTATIONS] = { "drop", "twice", "shift",  "length", "from",   "peer",
                                                      "swap", "kind",  "buffer", "left",   "earlier" };

static int  step_order(const void *a, const void *b) { return memcmp(a, b, sizeof(dt_plan_step)); }
static bool same_steps(const dt_plan *a, const dt_plan *b) /* but for the order in rounds */
{
    if (a->nsteps != b->nsteps) return false;
    size_t        n = (size_t)a->nsteps;
    dt_plan_step *x = (dt_plan_step *)malloc(n * sizeof *x), *y = (dt_plan_step *)malloc(n * sizeof *y);
    memcpy(x, a->step, n * sizeof *x);
    memcpy(y, b->step, n * sizeof *y);
    qsort(x, n, sizeof *x, step_order);
    qsort(y, n, sizeof *y, step_order);
    bool same = !memcmp(x, y, n * sizeof *x);
    free(x);
    free(y);
    return same;
}
/* false: this step cannot be made wrong so */
static bool mutate(dt_plan *p, int how, bool *same)
{
    int64_t       i = draw((uint32_t)p->nsteps), j = draw((uint32_t)p->nsteps);
    dt_plan_step *s = &p->step[i], *t = &p->step[j];
    bool          alone = s->kind == DT_STEP_COPY || s->kind == DT_STEP_REDUCE;
    int           by = draw(2) ? 1 : -1;
    switch (how) {
    case DROP: memmove(s, s + 1, (size_t)(--p->nsteps - i) * sizeof *s); return true;
    case TWICE:
        p->step = (dt_plan_step *)realloc(p->step, (size_t)(p->nsteps + 1) * sizeof *s);
        memmove(p->step + i + 1, p->step + i, (size_t)(p->nsteps++ - i) * sizeof *s);
        p->cap = p->nsteps;
        return true;
    case SHIFT: s->at += by; return true;
    case LENGTH:
        s->n += by;
        *same = by > 0 && alone && s->buf == DT_PLAN_SCRATCH;
        return true;
    case FROM: s->from += by; return alone || s->kind == DT_STEP_FOLD;
    case PEER: s->peer = (s->peer + 1) % p->world; return plan_talks(s);
    case SWAP:
        if (!plan_talks(s) || !plan_talks(t) || s->peer == t->peer) return false;
        by = s->peer, s->peer = t->peer, t->peer = by;
        *same = (s->kind == t->kind && s->buf == t->buf && s->at == t->at && s->n == t->n) ||
                (p->coll == DT_COLL_REDUCE && s->kind != DT_STEP_SEND && t->kind != DT_STEP_SEND && s->n == t->n);
        return true;
    case KIND: s->kind = 1 + (s->kind - 1 + 1 + (int)draw(5)) % 6; return true;
    case BUFFER:
        s->buf = (int16_t)((s->buf + 1 + (int)draw(2)) % 3);
        *same = (s->kind == DT_STEP_SEND && ((p->coll == DT_COLL_REDUCE && p->algo == DT_ALGO_RING) ||
                                             (p->coll == DT_COLL_ALLGATHER && p->algo == DT_ALGO_BRUCK)));
        return s->n > 0;
    case LEFT: s->left = !s->left; return s->kind == DT_STEP_REDUCE && p->coll == DT_COLL_ALLREDUCE;
    default: /* its round does not wait for the one before */
        if (!i || s[-1].round == s->round) return false;
        s->round = s[-1].round;
        return p->coll == DT_COLL_ALLREDUCE && (p->algo == DT_ALGO_HALVING || p->algo == DT_ALGO_DOUBLING);
    }
}
UTEST(broken, every_mutation_is_found)
{
    int tried[MUTATIONS] = { 0 }, found[MUTATIONS] = { 0 }, equal[MUTATIONS] = { 0 };
    draw_state = 20;
    for (int turn = 0; turn < (quick() ? 400 : 4000); turn++) {
        int c = (int)draw(DT_COLL_SEND), world = 2 + (int)draw(12);
        EACH_ALGO(a, (dt_coll)c, world, NULL)
        {
            int          how = (int)draw(MUTATIONS), rank = (int)draw((uint32_t)world), host[16];
            dt_plan_opts o = opts_of(world, whole((dt_coll)c) ? 3 * world + 2 : 1 + (int)draw(4));
            plan_report  rep;
            if (c == DT_COLL_ALLREDUCE && a != DT_ALGO_SHARED) topology(host, world, (int)draw(TOPOLOGIES));
            if (c == DT_COLL_ALLREDUCE && a != DT_ALGO_SHARED) o.host = host;
            if (rooted(c)) o.root = (int)draw((uint32_t)world);
            if (draw(3) == 0) o.segment = 2;
            plan_set s = plan_set_make((dt_coll)c, (dt_algo)a, &o), was = plan_set_make((dt_coll)c, (dt_algo)a, &o);
            bool     same = false;
            if (s.plan[rank].nsteps && mutate(&s.plan[rank], how, &same)) {
                tried[how]++;
                if (same_steps(&s.plan[rank], &was.plan[rank])) equal[how]++;
                else if (!plan_check(&s, &rep)) found[how]++;
                else if (same) equal[how]++;
                else
                    printf("not found: %s in %s %s world %d count %lld rank %d root %d segment %lld\n",
                           mutation_name[how], dt_coll_name((dt_coll)c), dt_algo_name((dt_algo)a), world,
                           (long long)o.count, rank, o.root, (long long)o.segment);
            }
            plan_set_free(&s);
            plan_set_free(&was);
        }
    }
    for (int how = 0; how < MUTATIONS; how++) {
        printf("             %-8s %4d tried, %4d found, %d equivalent\n", mutation_name[how], tried[how], found[how],
               equal[how]);
        EXPECT_GT(found[how], 0);
        EXPECT_EQ(tried[how], found[how] + equal[how]);
    }
}

/* ==================================================================================================== >>refused */
static const char *refusal(dt_coll coll, dt_algo algo, const dt_plan_opts *o)
{
    dt_plan     p;
    const char *why = NULL;
    memset(&p, 0, sizeof p);
    int code = dt_plan_make(&p, coll, algo, o, &why);
    if (!code && why) why = "made, and a reason";
    else if (!code) why = "";
    else if (p.nsteps || p.rounds) why = "refused, and there are steps";
    dt_plan_free(&p);
    return why ? why : "(none)";
}
UTEST(refused, with_a_reason)
{
    dt_plan_opts o = opts_of(6, 10);
    int          two[] = { 0, 0, 0, 1, 1, 1 };
    int64_t      bad[] = { 1, 2, -3, 4, 5, 6 }, big[] = { INT64_MAX, 1, 0, 0, 0, 0 };
    EXPECT_STREQ("", refusal(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o));
    EXPECT_STREQ("auto is not an algorithm: dt_plan_choose gives one", refusal(DT_COLL_ALLREDUCE, DT_ALGO_AUTO, &o));
    EXPECT_STREQ("native is the transport's own: it has no plan", refusal(DT_COLL_ALLREDUCE, DT_ALGO_NATIVE, &o));
    EXPECT_STREQ("send and recv have no plan", refusal(DT_COLL_SEND, DT_ALGO_DIRECT, &o));
    EXPECT_STREQ("this collective has no such algorithm", refusal(DT_COLL_ALLREDUCE, DT_ALGO_BRUCK, &o));
    EXPECT_STREQ("no such collective or algorithm", refusal((dt_coll)99, DT_ALGO_RING, &o));
    EXPECT_STREQ("no such collective or algorithm", refusal(DT_COLL_ALLREDUCE, DT_ALGO_COUNT, &o));
    EXPECT_STREQ("for this collective the algorithm needs a number of ranks that is a power of two",
                 refusal(DT_COLL_ALLGATHER, DT_ALGO_DOUBLING, &o));
    o.host = two;
    EXPECT_STREQ("this algorithm needs all ranks on one machine", refusal(DT_COLL_ALLREDUCE, DT_ALGO_SHARED, &o));
    o.host = NULL;
    o.counts = bad;
    EXPECT_STREQ("a count is negative", refusal(DT_COLL_ALLGATHER, DT_ALGO_RING, &o));
    o.counts = big;
    EXPECT_STREQ("the sum of the counts is 2^63 or more", refusal(DT_COLL_ALLGATHER, DT_ALGO_RING, &o));
    o.counts = NULL;
    int64_t differ[36];
    for (int i = 0; i < 36; i++) differ[i] = i == 35;
    o.counts = differ;
    o.rank = 5; /* a rank looks at its own counts */
    EXPECT_STREQ("alltoall by bruck needs equal counts", refusal(DT_COLL_ALLTOALL, DT_ALGO_BRUCK, &o));
    o.counts = NULL;
    o.sends = o.recvs = differ + 30;
    EXPECT_STREQ("alltoall by bruck needs equal counts", refusal(DT_COLL_ALLTOALL, DT_ALGO_BRUCK, &o));
    EXPECT_STREQ("", refusal(DT_COLL_ALLTOALL, DT_ALGO_PAIRS, &o));
    o.recvs = differ;
    EXPECT_STREQ("sends and recvs differ in the segment of the rank itself", refusal(DT_COLL_ALLTOALL, DT_ALGO_PAIRS, &o));
    o.recvs = NULL;
    EXPECT_STREQ("sends and recvs are given together, or both are NULL", refusal(DT_COLL_ALLTOALL, DT_ALGO_PAIRS, &o));
    o.sends = NULL;
    o.rank = 0;
    o.count = INT64_MAX / 3;
    EXPECT_STREQ("", refusal(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o));
    EXPECT_STREQ("this algorithm needs a scratch of 2^63 elements or more",
                 refusal(DT_COLL_ALLREDUCE, DT_ALGO_ALLTOALL, &o));
    EXPECT_STREQ("the sum of the counts is 2^63 or more", refusal(DT_COLL_ALLGATHER, DT_ALGO_RING, &o));
    o.count = HUGE_COUNT;
    o.segment = 1;
    EXPECT_STREQ("too many rounds: the segment is too small; take a larger one", refusal(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o));
    EXPECT_STREQ("too many rounds: the segment is too small; take a larger one", refusal(DT_COLL_BROADCAST, DT_ALGO_CHAIN, &o));
    o.segment = -1;
    EXPECT_STREQ("the segment is negative", refusal(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o));
    o.segment = 0;
    o.count = -1;
    EXPECT_STREQ("a count is negative", refusal(DT_COLL_ALLREDUCE, DT_ALGO_RING, &o));
    o.count = 1;
    o.root = 6;
    EXPECT_STREQ("root is not in 0..world-1", refusal(DT_COLL_BROADCAST, DT_ALGO_TREE, &o));
    o.root = 0;
    o.rank = 6;
    EXPECT_STREQ("rank is not in 0..world-1", refusal(DT_COLL_BROADCAST, DT_ALGO_TREE, &o));
    o.world = 0;
    EXPECT_STREQ("world is not in 1..2^22", refusal(DT_COLL_BROADCAST, DT_ALGO_TREE, &o));
}
UTEST(refused, lowering_of_another_plan)
{
    int          two[] = { 0, 1, 0 };
    dt_plan_opts o = opts_of(3, 10);
    dt_plan      p;
    memset(&p, 0, sizeof p);
    ASSERT_EQ(0, dt_plan_make(&p, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o, NULL));
    EXPECT_EQ(0, dt_plan_lower(&p, NULL)); /* nothing to do */
    ASSERT_EQ(0, dt_plan_make(&p, DT_COLL_ALLREDUCE, DT_ALGO_SHARED, &o, NULL));
    EXPECT_EQ(-1, dt_plan_lower(&p, two));
    p.step[0].at++;
    EXPECT_EQ(-1, dt_plan_lower(&p, NULL));
    EXPECT_EQ(1, p.nsteps);
    dt_plan_free(&p);
}
/* the n-th allocation fails: an error, and nothing is left behind (AddressSanitizer looks) */
UTEST(refused, memory_runs_out)
{
    int            host[] = { 0, 1, 0, 1, 2, 2, 2, 0, 1 };
    const dt_costs t = dt_costs_default();
    char           dir[] = "/tmp/dt_plans.XXXXXX", path[64];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/a.svg", dir);
    for (long k = 1; k < 40; k++) {
        dt_plan_opts o = opts_of(9, 100);
        dt_plan      p;
        const char  *why = NULL;
        int          code[5];
        memset(&p, 0, sizeof p);
        o.host = host;
        o.segment = 1; /* many steps */
        alloc_fail_at = k;
        alloc_calls = 0;
        code[0] = dt_plan_make(&p, DT_COLL_ALLREDUCE, DT_ALGO_LEADER, &o, &why);
        if (code[0]) EXPECT_STREQ("out of memory", why);
        alloc_calls = 0;
        code[1] = dt_plan_svg(path, DT_COLL_ALLREDUCE, DT_ALGO_TWO_LEVEL, &o);
        alloc_calls = 0;
        code[2] = dt_plan_choose(&t, DT_COLL_ALLREDUCE, 9, host, DT_LINK_NET, 100, NULL) == DT_ALGO_COUNT ? -2 : 0;
        alloc_calls = 0;
        code[3] = dt_plan_cost(&t, DT_COLL_ALLREDUCE, DT_ALGO_RING, 9, host, DT_LINK_NET, 100, 0) < 0 ? -2 : 0;
        alloc_fail_at = 0;
        o.host = NULL;
        o.count = 3000;
        ASSERT_EQ(0, dt_plan_make(&p, DT_COLL_ALLREDUCE, DT_ALGO_SHARED, &o, NULL));
        alloc_fail_at = k;
        alloc_calls = 0;
        code[4] = dt_plan_lower(&p, NULL);
        alloc_fail_at = 0;
        if (code[4]) EXPECT_EQ(1, p.nsteps); /* as it was */
        for (int i = 0; i < 5; i++) EXPECT_TRUE(code[i] == (k == 1 ? -2 : code[i]) && (code[i] == 0 || code[i] == -2));
        if (k == 39)
            for (int i = 0; i < 5; i++) EXPECT_EQ(0, i == 1 ? 0 : code[i]);
        dt_plan_free(&p);
    }
    unlink(path);
    rmdir(dir);
}
UTEST(refused, names)
{
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) EXPECT_EQ(a, (int)dt_algo_find(dt_algo_name((dt_algo)a)));
    EXPECT_EQ((int)DT_ALGO_COUNT, (int)dt_algo_find("rings"));
    EXPECT_EQ((int)DT_ALGO_COUNT, (int)dt_algo_find(NULL));
    EXPECT_STREQ("allreduce", dt_coll_name(DT_COLL_ALLREDUCE));
    EXPECT_STREQ("recv", dt_coll_name(DT_COLL_RECV));
    EXPECT_STREQ("?", dt_coll_name(DT_COLL_COUNT));
}

/* ==================================================================================================== >>choice */
static double measured(dt_coll coll, dt_algo algo, const dt_plan_opts *o, int link, int64_t elem)
{
    plan_report    rep;
    const dt_costs t = dt_costs_default();
    plan_set       s = plan_set_make(coll, algo, o);
    memset(&rep, 0, sizeof rep);
    plan_measure(&s, &t, link, elem, &rep);
    plan_set_free(&s);
    return rep.seconds;
}
/* the formulas and the plans' own rounds, for all algorithms, on one machine and on several */
UTEST(choice, formulas_are_the_plans_costs)
{
    static const int world[] = { 2, 3, 4, 6, 7, 8, 12, 16, 24 };
    const dt_costs   t = dt_costs_default();
    int              host[32];
    for (int i = 0; i < 9; i++)
        for (int c = 0; c < (int)DT_COLL_SEND; c++)
            for (int big = 0; big < 2; big++)
                for (int m = 0; m < 3; m++) { /* one machine, machines of 4 in a row, in turns */
                    int p = world[i], link = m ? DT_LINK_NET : DT_LINK_LOOP;
                    for (int r = 0; r < p; r++) host[r] = m == 1 ? r / 4 : m == 2 ? r % 3 : 0;
                    EACH_ALGO(a, (dt_coll)c, p, host)
                    {
                        int64_t      n = (big ? 65536 : 64) * p; /* elements of the vector, 4 bytes */
                        dt_plan_opts o = opts_of(p, c == DT_COLL_BARRIER ? 0 : whole((dt_coll)c) ? n : n / p);
                        int64_t      seg = a == DT_ALGO_CHAIN && m == 0 ? n / 16 : 0;
                        if (a == DT_ALGO_SHARED) continue; /* no messages */
                        o.host = host;
                        o.segment = seg;
                        double is = measured((dt_coll)c, (dt_algo)a, &o, link, 4);
                        double says = dt_plan_cost(&t, (dt_coll)c, (dt_algo)a, p, host, link,
                                                   c == DT_COLL_BARRIER ? 0 : n * 4, seg * 4);
                        double off = fabs(says - is) / is;
                        /* reduce by tree: the root's first fold is a round before the others', which the formula
                           does not count; blocks: the last of several messages is folded when all are sent, which the
                           measure does not */
                        double may = m                                          ? 0.02
                                     : c == DT_COLL_REDUCE && a == DT_ALGO_TREE ? 0.12
                                     : a == DT_ALGO_BLOCKS                      ? 0.05
                                                                                : 0.001;
                        if (off > may || getenv("DT_TEST_VERBOSE"))
                            printf("%s %s world %d machines %d n %lld: plan %.3g s, formula %.3g s\n",
                                   dt_coll_name((dt_coll)c), dt_algo_name((dt_algo)a), p, m, (long long)n, is, says);
                        EXPECT_LE(off, may);
                    }
                }
}
static dt_algo choose(int world, const int *host, int link, int64_t nbytes)
{
    const dt_costs t = dt_costs_default();
    return dt_plan_choose(&t, DT_COLL_ALLREDUCE, world, host, link, nbytes, NULL);
}
UTEST(choice, changes_with_the_size)
{
    int host[64];
    EXPECT_EQ((int)DT_ALGO_DOUBLING, (int)choose(8, NULL, DT_LINK_LOOP, 8));
    EXPECT_EQ((int)DT_ALGO_DOUBLING, (int)choose(64, NULL, DT_LINK_NET, 8));
    EXPECT_EQ((int)DT_ALGO_ALLTOALL, (int)choose(3, NULL, DT_LINK_LOOP, 8));
    EXPECT_EQ((int)DT_ALGO_HALVING, (int)choose(8, NULL, DT_LINK_LOOP, 100 << 20));
    EXPECT_EQ((int)DT_ALGO_RING, (int)choose(7, NULL, DT_LINK_LOOP, 100 << 20));
    EXPECT_EQ((int)DT_ALGO_SHARED, (int)choose(8, NULL, DT_LINK_SHM, 100 << 20));
    EXPECT_EQ((int)DT_ALGO_SHARED, (int)choose(2, NULL, DT_LINK_THREAD, 100 << 20));
    for (int r = 0; r < 64; r++) host[r] = r / 4;
    EXPECT_EQ((int)DT_ALGO_TWO_LEVEL, (int)choose(12, host, DT_LINK_NET, 100 << 20)); /* 3 machines of 4 */
    EXPECT_EQ((int)DT_ALGO_TWO_LEVEL, (int)choose(28, host, DT_LINK_NET, 100 << 20));
    for (int r = 0; r < 64; r++) host[r] = r % 3;
    EXPECT_EQ((int)DT_ALGO_TWO_LEVEL, (int)choose(12, host, DT_LINK_NET, 100 << 20));
    EXPECT_NE((int)DT_ALGO_TWO_LEVEL, (int)choose(12, host, DT_LINK_NET, 8));
}
/* the one chosen costs least, exists, and its plan is right */
UTEST(choice, is_the_least)
{
    const dt_costs t = dt_costs_default();
    int            host[40];
    for (int p = 1; p <= 40; p += quick() ? 7 : 1)
        for (int link = 0; link < (int)DT_LINK_COUNT; link++)
            for (int c = 0; c < (int)DT_COLL_SEND; c++)
                for (int64_t n = 4; n <= 4 << 24; n *= 64)
                    for (int m = 0; m < 2; m++) {
                        int64_t seg = -1;
                        for (int r = 0; r < p; r++) host[r] = m ? r % 5 : 0;
                        dt_algo best = dt_plan_choose(&t, (dt_coll)c, p, host, link, n, &seg);
                        ASSERT_TRUE(dt_plan_can((dt_coll)c, best, p, host));
                        double cost = dt_plan_cost(&t, (dt_coll)c, best, p, host, link, n, seg);
                        EXPECT_GE(seg, 0);
                        EXPECT_GE(cost, 0);
                        EXPECT_TRUE(best == DT_ALGO_CHAIN || seg == 0);
                        if (best == DT_ALGO_SHARED) EXPECT_TRUE(link <= DT_LINK_SHM && (m == 0 || p < 2));
                        EACH_ALGO(a, (dt_coll)c, p, host)
                        if (a != (int)DT_ALGO_ORDERED && (a != (int)DT_ALGO_SHARED || link <= DT_LINK_SHM))
                            EXPECT_LE(cost, dt_plan_cost(&t, (dt_coll)c, (dt_algo)a, p, host, link, n, 0) * (1 + 1e-6));
                    }
    EXPECT_EQ((int)DT_ALGO_COUNT, (int)dt_plan_choose(&t, DT_COLL_SEND, 4, NULL, 0, 8, NULL));
    EXPECT_EQ((int)DT_ALGO_COUNT, (int)dt_plan_choose(&t, DT_COLL_REDUCE, 4, NULL, 9, 8, NULL));
    EXPECT_LT(dt_plan_cost(&t, DT_COLL_ALLREDUCE, DT_ALGO_NATIVE, 4, NULL, 0, 8, 0), 0);
}
UTEST(choice, a_chain_has_segments)
{
    const dt_costs t = dt_costs_default();
    int64_t        seg = 0;
    ASSERT_EQ((int)DT_ALGO_CHAIN, (int)dt_plan_choose(&t, DT_COLL_BROADCAST, 5, NULL, DT_LINK_NET, 64 << 20, &seg));
    EXPECT_GT(seg, (64 << 10));
    EXPECT_LT(seg, (16 << 20));
    EXPECT_LT(dt_plan_cost(&t, DT_COLL_BROADCAST, DT_ALGO_CHAIN, 5, NULL, DT_LINK_NET, 64 << 20, seg),
              0.5 * dt_plan_cost(&t, DT_COLL_BROADCAST, DT_ALGO_CHAIN, 5, NULL, DT_LINK_NET, 64 << 20, 0));
}
UTEST(choice, is_explained)
{
    const dt_costs t = dt_costs_default();
    char           text[4096], part[40];
    size_t         n = dt_plan_explain(&t, 8, NULL, DT_LINK_LOOP, text, sizeof text);
    ASSERT_LT(n, sizeof text);
    EXPECT_EQ(strlen(text), n);
    if (getenv("DT_TEST_VERBOSE")) fputs(text, stdout);
    char *at = strstr(text, "allreduce ");
    ASSERT_TRUE(at != NULL);
    char name[2][32];
    int  size;
    ASSERT_TRUE(sscanf(at, "allreduce 0 %31[a-z_], %d %31[a-z_]", name[0], &size, name[1]) == 3);
    EXPECT_STREQ(name[0], dt_algo_name(choose(8, NULL, DT_LINK_LOOP, size - 1))); /* exactly there */
    EXPECT_STREQ(name[1], dt_algo_name(choose(8, NULL, DT_LINK_LOOP, size)));
    EXPECT_EQ(n, dt_plan_explain(&t, 8, NULL, DT_LINK_LOOP, part, sizeof part));
    EXPECT_EQ(0, strncmp(text, part, sizeof part - 1));
    EXPECT_EQ(0, part[sizeof part - 1]);
    EXPECT_EQ(n, dt_plan_explain(&t, 8, NULL, DT_LINK_LOOP, NULL, 0));
}

/* ==================================================================================================== >>picture */
static int occurs(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text++) n++;
    return n;
}
/* an arrow for each message, a line for each rank; tags are closed */
UTEST(picture, has_every_message)
{
    char  dir[] = "/tmp/dt_plans.XXXXXX", path[64];
    char *text = (char *)malloc(1 << 22);
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/a.svg", dir);
    for (int p = 1; p <= 32; p += p < 9 ? 1 : 23)
        for (int c = 0; c < (int)DT_COLL_SEND; c++) EACH_ALGO(a, (dt_coll)c, p, NULL)
            {
                dt_plan_opts o = opts_of(p, c == DT_COLL_BARRIER ? 0 : whole((dt_coll)c) ? 3 * p : 2);
                plan_report  rep;
                PROVE((dt_coll)c, (dt_algo)a, &o, &rep);
                ASSERT_EQ(0, dt_plan_svg(path, (dt_coll)c, (dt_algo)a, &o));
                FILE *f = fopen(path, "r");
                ASSERT_TRUE(f != NULL);
                size_t n = fread(text, 1, (1 << 22) - 1, f);
                text[n] = 0;
                fclose(f);
                EXPECT_EQ(rep.messages, occurs(text, "marker-end"));
                EXPECT_EQ(rep.folds, occurs(text, "\"fold\""));
                EXPECT_EQ(p, occurs(text, ">rank "));
                EXPECT_EQ(1, occurs(text, "</svg>"));
                EXPECT_EQ(occurs(text, "<text"), occurs(text, "</text>"));
                EXPECT_EQ(0, occurs(text, "nan"));
                char title[64];
                snprintf(title, sizeof title, ">%s by %s: %d ranks", dt_coll_name((dt_coll)c), dt_algo_name((dt_algo)a),
                         p);
                EXPECT_EQ(1, occurs(text, title));
                snprintf(title, sizeof title, ">%d rounds with messages, %lld messages, %lld elements sent", rep.rounds,
                         (long long)rep.messages, (long long)rep.sent);
                EXPECT_EQ(1, occurs(text, title));
            }
    unlink(path);
    dt_plan_opts o = opts_of(4, 8);
    snprintf(path, sizeof path, "%s/none/a.svg", dir);
    EXPECT_LT(dt_plan_svg(path, DT_COLL_ALLREDUCE, DT_ALGO_RING, &o), 0);
    EXPECT_LT(dt_plan_svg(path, DT_COLL_ALLREDUCE, DT_ALGO_BRUCK, &o), 0);
    if (!access("/dev/full", W_OK)) EXPECT_LT(dt_plan_svg("/dev/full", DT_COLL_ALLREDUCE, DT_ALGO_RING, &o), 0);
    rmdir(dir);
    free(text);
}
