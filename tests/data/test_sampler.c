/* test_sampler.c: samplers deal what PyTorch deals, an epoch goes on with any world size without losing or repeating an
   item, and sets made of sets read what they are made of.
   Contents: >>golden >>turns >>stretches >>weights >>refused >>sets >>moments >>memory */
#include "dt_test.h"

#include "dt_data.h"
#include "golden/sampler.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

enum { MOST = 4096 };
static uint64_t digest(uint64_t h, int64_t x) { return (h ^ (uint64_t)x) * 0x100000001B3u; }
#define DIGEST 0xCBF29CE484222325u
#define COUNT(a) ((int64_t)(sizeof(a) / sizeof *(a)))

static dt_cursor place(const dt_sampler_opts *o, int64_t epoch)
{
    dt_cursor c;
    memset(&c, 0, sizeof c);
    c.seed = (int64_t)o->seed;
    c.epoch = epoch;
    return c;
}
static uint64_t rng_state;
static void     draws_begin(void) { rng_state = 88172645463325252u; }
static int64_t  draw(int64_t below) /* xorshift64 */
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (int64_t)((rng_state >> 11) % (uint64_t)below);
}

/* ==================================================================================================== >>golden */
static dt_sampler *golden_sampler(const golden_deal *g, int64_t rank)
{
    dt_sampler *s = dt_sampler_new(g->n, .shuffle = g->shuffle, .seed = g->seed, .rank = (int)rank,
                                   .world = (int)g->world, .drop_last = g->drop);
    dt_cursor   c = dt_sampler_cursor(s, 0);
    c.epoch = g->epoch;
    dt_sampler_seek(s, &c);
    return s;
}
UTEST(golden, distributed_sampler_in_full)
{
    for (int64_t k = 0; k < COUNT(golden_small); k++)
        for (int64_t r = 0; r < golden_small[k].world; r++) {
            const golden_deal *g = &golden_small[k];
            dt_sampler        *s = golden_sampler(g, r);
            ASSERT_EQ(g->count, dt_sampler_count(s));
            ASSERT_EQ(g->count, dt_sampler_most(s));
            for (int64_t i = 0; i < g->count; i++)
                ASSERT_EQ((int64_t)golden_small_value[g->at + r * g->count + i], dt_sampler_at(s, i));
            ASSERT_EQ(-1, dt_sampler_at(s, g->count));
            ASSERT_EQ(-1, dt_sampler_at(s, -1));
            dt_sampler_free(s);
        }
    EXPECT_OK(0);
}
UTEST(golden, distributed_sampler_by_digest)
{
    for (int64_t k = 0; k < COUNT(golden_large); k++)
        for (int64_t r = 0; r < golden_large[k].world; r++) {
            const golden_deal *g = &golden_large[k];
            dt_sampler        *s = golden_sampler(g, r);
            uint64_t           h = DIGEST;
            ASSERT_EQ(g->count, dt_sampler_count(s));
            for (int64_t i = 0; i < g->count; i++) h = digest(h, dt_sampler_at(s, i));
            ASSERT_EQ(golden_large_value[g->at + r], h);
            dt_sampler_free(s);
        }
    EXPECT_OK(0);
}
static void golden_weights(int64_t kind, int64_t n, double *w)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = kind == 0   ? 1
               : kind == 1 ? 1.0 / (double)(i + 1)
               : kind == 2 ? 0.1 * (double)((i * 7 + 1) % 13)
               : kind == 3 ? (i % 5 ? 1e-300 * (double)(i % 3) : 1e300 / (double)(i + 1))
                           : (i == n / 2 ? 3 : 0);
}
UTEST(golden, weighted_random_sampler)
{
    static double w[1000];
    for (int64_t k = 0; k < COUNT(golden_draws); k++) {
        const golden_draw *g = &golden_draws[k];
        golden_weights(g->kind, g->n, w);
        for (int64_t epoch = 0; epoch < 2 && g->seed >= (uint64_t)epoch; epoch++) { /* what counts is seed + epoch */
            dt_sampler *s = dt_sampler_new(g->n, .seed = g->seed - (uint64_t)epoch, .weight = w, .draws = g->draws);
            dt_cursor   c = dt_sampler_cursor(s, 0);
            uint64_t    h = DIGEST;
            c.epoch = epoch;
            ASSERT_OK(dt_sampler_seek(s, &c));
            ASSERT_EQ(g->draws, dt_sampler_count(s));
            for (int64_t i = 0; i < g->draws; i++) h = digest(h, dt_sampler_at(s, i));
            ASSERT_EQ(g->digest, h);
            dt_sampler_free(s);
        }
    }
}
UTEST(golden, random_split)
{
    for (int64_t k = 0; k < COUNT(golden_parts); k++) {
        const golden_part *g = &golden_parts[k];
        int32_t           *x = (int32_t *)malloc((size_t)(g->n + 1) * sizeof *x);
        dt_dataset        *out[5];
        for (int64_t i = 0; i < g->n; i++) x[i] = (int32_t)i;
        dt_dataset *s = dt_arrays(x, g->n, .x_dtype = DT_I32);
        ASSERT_OK(dt_dataset_split(s, g->part, (int)g->parts, g->seed, out));
        dt_dataset_free(s); /* the parts hold it */
        for (int64_t p = 0; p < g->parts; p++) {
            uint64_t h = DIGEST;
            ASSERT_EQ(g->count[p], dt_dataset_len(out[p]));
            for (int64_t i = 0; i < g->count[p]; i++) {
                int32_t v = -1;
                ASSERT_OK(dt_dataset_get(out[p], i, &v, NULL));
                h = digest(h, v);
            }
            ASSERT_EQ(g->digest[p], h);
            dt_dataset_free(out[p]);
        }
        free(x);
    }
}

/* ==================================================================================================== >>turns */
typedef struct tally { /* of an epoch: how often each item was taken, and in which order by whom at the last */
    int64_t seen[MOST], total;
} tally;
/* World ranks go on from *at: each takes 'batches' batches (-1: all there are). What they take is counted; *at becomes
   the place behind it, on which all ranks must agree, and *took the number that each took. */
static void go_on(int *utest_result, int64_t n, dt_sampler_opts o, int world, dt_cursor *at, int64_t batches,
                  int64_t batch, tally *t, int64_t *took)
{
    dt_cursor next, got;
    int64_t   taken = 0, out[64];
    memset(&next, 0, sizeof next);
    for (int r = 0; r < world; r++) {
        o.rank = r;
        o.world = world;
        dt_sampler *s = dt_sampler_new_with(n, o);
        EXPECT_OK(dt_sampler_seek(s, at));
        EXPECT_TRUE(dt_sampler_count(s) <= dt_sampler_most(s));
        EXPECT_TRUE(o.no_pad || dt_sampler_count(s) == dt_sampler_most(s));
        int64_t k = 0, m;
        for (taken = 0; taken < dt_sampler_most(s) && (batches < 0 || k < batches); k++) {
            m = dt_sampler_batch(s, k, batch, false, out);
            for (int64_t i = 0; i < m; i++) {
                if (out[i] < 0 || out[i] >= n) {
                    EXPECT_TRUE_MSG(false, "an item out of range");
                    continue;
                }
                t->seen[out[i]]++;
                t->total++;
            }
            taken += batch;
            if (taken > dt_sampler_most(s)) taken = dt_sampler_most(s);
        }
        got = dt_sampler_cursor(s, taken);
        if (r == 0) next = got;
        EXPECT_EQ(0, memcmp(&next, &got, sizeof got));
        dt_sampler_free(s);
    }
    *at = next;
    *took = taken;
}
static void check_epoch(int *utest_result, int64_t n, dt_sampler_opts o, int last_world, const tally *t)
{
    int64_t never = 0, extra = 0;
    for (int64_t i = 0; i < n; i++) {
        never += t->seen[i] == 0;
        extra += t->seen[i] > 1 ? t->seen[i] - 1 : 0;
    }
    EXPECT_EQ(t->total, n - never + extra);
    if (!o.drop_last) EXPECT_EQ(0, never);
    if (o.drop_last || o.no_pad) EXPECT_EQ(0, extra);
    if (o.drop_last) EXPECT_TRUE(never < last_world);
    if (!o.contiguous) EXPECT_TRUE(extra < last_world);
}
UTEST(turns, every_item_once_though_the_world_size_changes)
{
    draws_begin();
    for (int round = 0; round < 1500 && !*utest_result; round++) {
        int64_t         n = round % 4 ? draw(60) : draw(MOST), batch = 1 + draw(7);
        int             world[3] = { 1 + (int)draw(7), 1 + (int)draw(7), 1 + (int)draw(7) }, w = 0;
        dt_sampler_opts o = { .shuffle = round % 2, .seed = (uint64_t)draw(1 << 20), .drop_last = round % 3 == 1,
                              .no_pad = round % 3 == 2 };
        dt_cursor       at = place(&o, draw(3));
        int64_t         epoch = at.epoch, before = 0;
        tally           t;
        memset(&t, 0, sizeof t);
        for (w = 0; w < 3 && at.epoch == epoch; w++) {
            int64_t took;
            go_on(utest_result, n, o, world[w], &at, w < 2 ? draw(5) : -1, batch, &t, &took);
            if (at.epoch != epoch) break;
            EXPECT_EQ(before + took * world[w], at.position);
            for (int64_t i = 0; i < n; i++) EXPECT_TRUE(t.seen[i] <= 1); /* nothing is repeated before the end */
            before = at.position;
        }
        EXPECT_EQ(epoch + 1, at.epoch);
        EXPECT_EQ(0, at.position);
        check_epoch(utest_result, n, o, world[w < 3 ? w : 2], &t);
    }
}
UTEST(turns, padding_is_the_front_of_the_whole_list)
{
    dt_sampler *whole = dt_sampler_new(23, .shuffle = true, .seed = 9);
    for (int64_t position = 0; position <= 23; position++)
        for (int world = 1; world < 9; world++)
            for (int r = 0; r < world; r++) {
                dt_sampler *s = dt_sampler_new(23, .shuffle = true, .seed = 9, .rank = r, .world = world);
                dt_cursor   c = dt_sampler_cursor(s, 0);
                c.position = position;
                ASSERT_OK(dt_sampler_seek(s, &c));
                ASSERT_EQ((23 - position + world - 1) / world, dt_sampler_count(s));
                for (int64_t i = 0; i < dt_sampler_count(s); i++)
                    ASSERT_TRUE(dt_sampler_at(whole, (position + r + i * world) % 23) == dt_sampler_at(s, i));
                dt_sampler_free(s);
            }
    dt_sampler_free(whole);
}
UTEST(turns, the_same_world_goes_on_as_if_nothing_had_happened)
{
    for (int contiguous = 0; contiguous < 2; contiguous++)
        for (int mode = 0; mode < 3; mode++)
            for (int r = 0; r < 4; r++) {
                static const int64_t shard[] = { 0, 5, 5, 17, 20, 31, 37 };
                dt_sampler_opts      o = { .shuffle = true, .seed = 3, .rank = r, .world = 4, .drop_last = mode == 1,
                                           .no_pad = mode == 2, .contiguous = contiguous, .shard = shard,
                                           .nshards = 6 };
                dt_sampler          *a = dt_sampler_new_with(37, o), *b = dt_sampler_new_with(37, o);
                dt_cursor            c = place(&o, 4);
                ASSERT_OK(dt_sampler_seek(a, &c));
                for (int64_t taken = 0; taken < dt_sampler_most(a); taken++) {
                    c = dt_sampler_cursor(a, taken);
                    ASSERT_EQ(4, c.epoch);
                    ASSERT_OK(dt_sampler_seek(b, &c));
                    ASSERT_EQ(dt_sampler_most(a) - taken, dt_sampler_most(b));
                    int64_t left = dt_sampler_count(a) - taken;
                    ASSERT_EQ(left > 0 ? left : 0, dt_sampler_count(b));
                    for (int64_t i = 0; i < left; i++) ASSERT_EQ(dt_sampler_at(a, taken + i), dt_sampler_at(b, i));
                    dt_cursor from_b = dt_sampler_cursor(b, 1), from_a = dt_sampler_cursor(a, taken + 1);
                    ASSERT_EQ(0, memcmp(&from_a, &from_b, sizeof from_a));
                }
                ASSERT_EQ(5, dt_sampler_cursor(a, dt_sampler_most(a)).epoch);
                dt_sampler_free(a);
                dt_sampler_free(b);
            }
}
UTEST(turns, batches)
{
    int64_t     out[4] = { 7, 7, 7, 7 };
    dt_sampler *s = dt_sampler_new(10);
    EXPECT_EQ(4, dt_sampler_batch(s, 1, 4, true, out));
    for (int64_t i = 0; i < 4; i++) EXPECT_EQ(4 + i, out[i]);
    EXPECT_EQ(2, dt_sampler_batch(s, 2, 4, false, out));
    EXPECT_EQ(8, out[0]);
    EXPECT_EQ(9, out[1]);
    EXPECT_EQ(6, out[2]); /* not touched */
    EXPECT_EQ(0, dt_sampler_batch(s, 2, 4, true, out));
    EXPECT_EQ(0, dt_sampler_batch(s, 3, 4, false, out));
    EXPECT_EQ(0, dt_sampler_batch(s, 2, 5, false, out));
    EXPECT_EQ(0, dt_sampler_batch(s, INT64_MAX, 4, false, out));
    EXPECT_EQ(10, dt_sampler_batch(s, 0, INT64_MAX, false, NULL)); /* it counts only */
    EXPECT_OK(0);
    EXPECT_ERROR(dt_sampler_batch(s, -1, 4, false, out) - 1, "batch -1 of 4 items"); /* 0, and an error */
    EXPECT_ERROR(dt_sampler_batch(s, 0, 0, false, out) - 1, "batch 0 of 0 items");
    dt_sampler_free(s);
}
UTEST(turns, the_end_of_an_epoch_is_the_beginning_of_the_next)
{
    dt_sampler *s = dt_sampler_new(10, .world = 4, .drop_last = true, .seed = UINT64_MAX);
    dt_cursor   c = dt_sampler_cursor(s, 1);
    EXPECT_EQ(-1, c.seed);
    EXPECT_EQ(10, c.n);
    EXPECT_EQ(4, c.position);
    c = dt_sampler_cursor(s, 2); /* two are left: no round for four */
    EXPECT_EQ(1, c.epoch);
    EXPECT_EQ(0, c.position);
    c.position = 8;
    EXPECT_OK(dt_sampler_seek(s, &c));
    EXPECT_EQ(0, dt_sampler_count(s));
    EXPECT_EQ(2, dt_sampler_cursor(s, 0).epoch);
    dt_sampler_free(s);
    for (int contiguous = 0; contiguous < 2; contiguous++) { /* nothing at all */
        s = dt_sampler_new(0, .world = 3, .rank = 2, .shuffle = true, .contiguous = contiguous);
        EXPECT_OK(s);
        EXPECT_EQ(0, dt_sampler_count(s));
        EXPECT_EQ(0, dt_sampler_most(s));
        EXPECT_EQ(-1, dt_sampler_at(s, 0));
        EXPECT_EQ(1, dt_sampler_cursor(s, 0).epoch);
        dt_sampler_free(s);
    }
}

/* ==================================================================================================== >>stretches */
UTEST(stretches, every_item_once_though_the_world_size_changes)
{
    draws_begin();
    for (int round = 0; round < 1500 && !*utest_result; round++) {
        int64_t         n = round % 4 ? draw(60) : draw(MOST), batch = 1 + draw(4), shard[12], nshards = draw(12);
        dt_sampler_opts o = { .shuffle = round % 2, .seed = (uint64_t)draw(1 << 20), .drop_last = round % 3 == 1,
                              .no_pad = round % 3 == 2, .contiguous = true, .shard = shard, .nshards = nshards };
        shard[0] = 0;
        for (int64_t k = 1; k <= nshards; k++) shard[k] = shard[k - 1] + draw(n - shard[k - 1] + 1) / 2;
        if (nshards) shard[nshards] = n;
        if (!nshards) o.shard = NULL;
        dt_cursor at = place(&o, draw(3));
        int64_t   epoch = at.epoch, changes = draw(DT_CURSOR_PAST + 1), before = 0, took = 0;
        int       world = 0, same = 0;
        tally     t;
        memset(&t, 0, sizeof t);
        for (int64_t k = 0; at.epoch == epoch && k <= changes + 2; k++) {
            int64_t done = 0;
            if (at.npast < changes || !world) world = 1 + (int)draw(7); /* then the world stays as it is */
            same = at.world == world;
            before = at.position;
            go_on(utest_result, n, o, world, &at, k < changes + 2 ? draw(4) : -1, batch, &t, &took);
            if (at.epoch != epoch) break;
            EXPECT_TRUE(at.position >= before + (took > 0) && at.position <= n);
            EXPECT_TRUE(at.npast <= changes);
            for (int64_t i = 0; i < n; i++) done += t.seen[i] > 0;
            EXPECT_EQ(done, at.position); /* it counts the items that are gone */
        }
        EXPECT_EQ(epoch + 1, at.epoch);
        int64_t never = 0, extra = 0;
        for (int64_t i = 0; i < n; i++) {
            never += t.seen[i] == 0;
            extra += t.seen[i] > 1 ? t.seen[i] - 1 : 0;
        }
        if (!o.drop_last) EXPECT_EQ(0, never);
        if (o.drop_last || o.no_pad) EXPECT_EQ(0, extra);
        if (o.drop_last && before && !same) EXPECT_TRUE(never < world);
    }
}
UTEST(stretches, cut_between_files_and_shuffled_in_themselves)
{
    static const int64_t shard[] = { 0, 10, 30, 35, 60, 100 }, cut2[] = { 0, 60, 100 }, cut4[] = { 0, 30, 35, 60, 100 },
                         cut6[] = { 0, 16, 33, 50, 66, 83, 100 }, cut5[] = { 0, 10, 30, 35, 60, 100 };
    static const struct {
        int            world;
        const int64_t *cut;
    } want[] = { { 2, cut2 }, { 4, cut4 }, { 5, cut5 }, { 6, cut6 } };
    for (int k = 0; k < 4; k++)
        for (int r = 0; r < want[k].world; r++) {
            int64_t         from = want[k].cut[r], n = want[k].cut[r + 1] - from, longest = 0, perm[100];
            dt_sampler_opts o = { .shuffle = true, .seed = 77, .rank = r, .world = want[k].world, .contiguous = true,
                                  .shard = shard, .nshards = 5 };
            dt_sampler     *s = dt_sampler_new_with(100, o);
            dt_cursor       c = place(&o, 5);
            uint32_t        word[4];
            dt_rng          g;
            dt_philox(82, (uint64_t)r, word);
            dt_rng_seed(&g, word[0]);
            dt_rng_randperm(&g, perm, n);
            for (int i = 0; i < want[k].world; i++)
                if (want[k].cut[i + 1] - want[k].cut[i] > longest) longest = want[k].cut[i + 1] - want[k].cut[i];
            ASSERT_OK(dt_sampler_seek(s, &c));
            ASSERT_EQ(longest, dt_sampler_count(s));
            for (int64_t i = 0; i < longest; i++) ASSERT_TRUE(from + perm[i % n] == dt_sampler_at(s, i));
            dt_sampler_free(s);
        }
}
UTEST(stretches, the_nearest_file_is_the_cut)
{
    static const int64_t below[] = { 0, 10, 40, 90, 100 }, above[] = { 0, 30, 60, 100 }, between[] = { 0, 40, 60, 100 };
    static const int64_t one_each[] = { 0, 1, 2, 3, 100 }, late[] = { 0, 97, 98, 99, 100 };
    static const struct {
        const int64_t *shard;
        int64_t        nshards;
        int            world, rank;
        int64_t        from;
    } t[] = { { below, 4, 2, 1, 40 },    { above, 3, 2, 1, 60 },    { between, 3, 2, 1, 40 }, { one_each, 4, 3, 1, 2 },
              { one_each, 4, 3, 2, 3 }, { one_each, 4, 4, 2, 2 }, { late, 4, 3, 1, 97 },     { late, 4, 3, 2, 98 } };
    for (int k = 0; k < COUNT(t); k++) {
        dt_sampler *s = dt_sampler_new(100, .rank = t[k].rank, .world = t[k].world, .contiguous = true,
                                       .shard = t[k].shard, .nshards = t[k].nshards);
        EXPECT_EQ(t[k].from, dt_sampler_at(s, 0));
        dt_sampler_free(s);
    }
}
UTEST(stretches, who_has_nothing_repeats_what_there_is)
{
    static const int64_t shard[] = { 0, 0, 3 };
    for (int r = 0; r < 5; r++) { /* three items, five ranks */
        dt_sampler *s = dt_sampler_new(3, .rank = r, .world = 5, .contiguous = true);
        EXPECT_EQ(1, dt_sampler_count(s));
        EXPECT_EQ((int64_t)(r < 2 ? 0 : r < 4 ? (r == 2 ? 0 : 1) : 2), dt_sampler_at(s, 0));
        dt_sampler_free(s);
    }
    dt_sampler *s = dt_sampler_new(3, .rank = 0, .world = 2, .contiguous = true, .shard = shard, .nshards = 2);
    EXPECT_EQ(3, dt_sampler_count(s)); /* an empty file */
    for (int64_t i = 0; i < 3; i++) EXPECT_EQ(i, dt_sampler_at(s, i));
    dt_sampler_free(s);
    s = dt_sampler_new(3, .rank = 0, .world = 2, .contiguous = true, .shard = shard, .nshards = 2, .no_pad = true);
    EXPECT_EQ(0, dt_sampler_count(s));
    EXPECT_EQ(3, dt_sampler_most(s));
    EXPECT_EQ(2, dt_sampler_cursor(s, 2).position);
    dt_sampler_free(s);
}
/* 12 items, no shuffle: 3 ranks have 0-3 4-7 8-11 and take one each; 2 ranks have 1 2 3 5 | 6 7 9 10 11 and take two */
UTEST(stretches, what_is_left_is_cut_anew_in_order)
{
    static const int64_t rest2[2][5] = { { 1, 2, 3, 5, 1 }, { 6, 7, 9, 10, 11 } }, rest4[] = { 3, 5, 9, 10, 11 };
    dt_sampler          *a = dt_sampler_new(12, .world = 3, .contiguous = true);
    dt_cursor            c = dt_sampler_cursor(a, 1), d = c;
    EXPECT_EQ(3, c.position);
    EXPECT_EQ(3, c.world);
    EXPECT_EQ(0, c.npast);
    for (int r = 0; r < 2; r++) {
        dt_sampler *b = dt_sampler_new(12, .rank = r, .world = 2, .contiguous = true);
        EXPECT_OK(dt_sampler_seek(b, &c));
        EXPECT_EQ(5, dt_sampler_count(b));
        for (int64_t i = 0; i < 5; i++) EXPECT_EQ(rest2[r][i], dt_sampler_at(b, i));
        dt_cursor none = dt_sampler_cursor(b, 0); /* who takes nothing leaves no trace */
        EXPECT_EQ(0, memcmp(&none, &c, sizeof c));
        d = dt_sampler_cursor(b, 2);
        dt_sampler_free(b);
    }
    EXPECT_EQ(7, d.position);
    EXPECT_EQ(2, d.world);
    EXPECT_EQ(1, d.npast);
    EXPECT_EQ(3, d.past[0]);
    EXPECT_EQ(3, d.past[1]);
    for (int r = 0; r < 4; r++) {
        dt_sampler *b = dt_sampler_new(12, .rank = r, .world = 4, .contiguous = true, .no_pad = true);
        EXPECT_OK(dt_sampler_seek(b, &d));
        EXPECT_EQ((int64_t)(r == 3 ? 2 : 1), dt_sampler_count(b));
        EXPECT_EQ(rest4[r], dt_sampler_at(b, 0));
        dt_sampler_free(b);
    }
    dt_sampler_free(a);
}
/* stretches of 6, 2 and 2; each rank took three, two of them repeating: nobody can take as many as the shortest has */
UTEST(stretches, what_was_padded_goes_on_without_padding)
{
    static const int64_t shard[] = { 0, 6, 8, 10 };
    dt_sampler_opts      o = { .world = 3, .contiguous = true, .shard = shard, .nshards = 3 };
    dt_sampler          *a = dt_sampler_new_with(10, o);
    dt_cursor            c = dt_sampler_cursor(a, 3);
    EXPECT_EQ(7, c.position);
    o.drop_last = true;
    dt_sampler *b = dt_sampler_new_with(10, o);
    EXPECT_EQ(2, dt_sampler_count(b));
    EXPECT_OK(dt_sampler_seek(b, &c));
    EXPECT_EQ(0, dt_sampler_count(b));
    EXPECT_EQ(0, dt_sampler_most(b));
    EXPECT_EQ(1, dt_sampler_cursor(b, 0).epoch);
    dt_sampler_free(a);
    dt_sampler_free(b);
}
UTEST(stretches, more_changes_of_world_than_the_cursor_holds)
{
    dt_sampler *s[2] = { dt_sampler_new(1000, .world = 2, .contiguous = true),
                         dt_sampler_new(1000, .world = 3, .contiguous = true) };
    dt_cursor   c = dt_sampler_cursor(s[0], 1);
    for (int k = 1; k <= DT_CURSOR_PAST; k++) {
        ASSERT_OK(dt_sampler_seek(s[k % 2], &c));
        c = dt_sampler_cursor(s[k % 2], 1);
        EXPECT_EQ(k, c.npast);
    }
    EXPECT_ERROR(dt_sampler_seek(s[0], &c), "changes more than 5 times in epoch 0; end it with 3 ranks");
    EXPECT_OK(dt_sampler_seek(s[1], &c));
    c.epoch++;
    c.position = c.world = c.npast = 0;
    EXPECT_OK(dt_sampler_seek(s[0], &c));
    dt_sampler_free(s[0]);
    dt_sampler_free(s[1]);
}

/* ==================================================================================================== >>weights */
UTEST(weights, ranks_take_turns_in_what_is_drawn)
{
    static double w[50];
    golden_weights(2, 50, w);
    for (int mode = 0; mode < 3; mode++) {
        dt_sampler *whole = dt_sampler_new(50, .seed = 4, .weight = w, .draws = 71);
        ASSERT_EQ(71, dt_sampler_count(whole));
        for (int r = 0; r < 4; r++) {
            dt_sampler *s = dt_sampler_new(50, .seed = 4, .weight = w, .draws = 71, .rank = r, .world = 4,
                                           .drop_last = mode == 1, .no_pad = mode == 2);
            ASSERT_EQ((int64_t)(mode == 0 ? 18 : mode == 1 ? 17 : r < 3 ? 18 : 17), dt_sampler_count(s));
            for (int64_t i = 0; i < dt_sampler_count(s); i++)
                ASSERT_TRUE(dt_sampler_at(whole, (r + 4 * i) % 71) == dt_sampler_at(s, i));
            dt_cursor c = dt_sampler_cursor(s, 15);
            ASSERT_EQ(60, c.position);
            ASSERT_OK(dt_sampler_seek(whole, &c));
            ASSERT_EQ(11, dt_sampler_count(whole));
            ASSERT_OK(dt_sampler_seek(whole, &(dt_cursor){ .seed = 4 }));
            dt_sampler_free(s);
        }
        dt_sampler_free(whole);
    }
    dt_sampler *s = dt_sampler_new(50, .weight = w); /* as many draws as items */
    EXPECT_EQ(50, dt_sampler_count(s));
    dt_sampler_free(s);
    s = dt_sampler_new(0, .weight = w, .draws = 9);
    EXPECT_OK(s);
    EXPECT_EQ(0, dt_sampler_count(s));
    dt_sampler_free(s);
}
UTEST(weights, an_item_of_weight_zero_is_never_drawn)
{
    double  w[5] = { 0, 2, 0, 1, 0 };
    int64_t got[5] = { 0 };
    for (uint64_t seed = 0; seed < 300; seed++) {
        dt_sampler *s = dt_sampler_new(5, .seed = seed, .weight = w, .draws = seed % 2 ? 1 : 20);
        for (int64_t i = 0; i < dt_sampler_count(s); i++) got[dt_sampler_at(s, i)]++;
        dt_sampler_free(s);
    }
    EXPECT_EQ(0, got[0] + got[2] + got[4]);
    EXPECT_NEAR(2.0 / 3, (double)got[1] / 3150, 0.03);
}
UTEST(weights, refused)
{
    double w[3] = { 1, 0, -0.5 };
    EXPECT_ERROR(dt_sampler_new(3, .weight = w), "dt_sampler_new: .weight[2] is -0.5, expected a finite number");
    w[2] = (double)NAN;
    EXPECT_ERROR(dt_sampler_new(3, .weight = w), ".weight[2] is ");
    w[2] = (double)INFINITY;
    EXPECT_ERROR(dt_sampler_new(3, .weight = w), ".weight[2] is inf");
    w[0] = w[2] = 0;
    EXPECT_ERROR(dt_sampler_new(3, .weight = w), "the 3 weights add up to 0");
    EXPECT_ERROR(dt_sampler_new(3, .weight = w, .draws = 1), "the 3 weights add up to 0");
    w[0] = w[1] = DBL_MAX;
    EXPECT_ERROR(dt_sampler_new(3, .weight = w), "the 3 weights add up to inf");
    EXPECT_ERROR(dt_sampler_new(3, .weight = w, .contiguous = true), ".contiguous");
    EXPECT_ERROR(dt_sampler_new(3, .weight = w, .draws = -1), ".draws is -1");
    EXPECT_ERROR(dt_sampler_new(3, .draws = 2), ".draws is 2, but there is no .weight");
}

/* ==================================================================================================== >>refused */
UTEST(refused, options)
{
    int64_t shard[] = { 0, 4, 10 };
    EXPECT_ERROR(dt_sampler_new(-1), "n is -1");
    EXPECT_ERROR(dt_sampler_new(5, .world = -2), ".world is -2");
    EXPECT_ERROR(dt_sampler_new(5, .rank = 1), ".rank is 1, expected 0 to 0");
    EXPECT_ERROR(dt_sampler_new(5, .rank = -1, .world = 4), ".rank is -1, expected 0 to 3");
    EXPECT_ERROR(dt_sampler_new(5, .rank = 4, .world = 4), ".rank is 4");
    EXPECT_ERROR(dt_sampler_new(5, .no_pad = true, .drop_last = true), ".no_pad");
    EXPECT_ERROR(dt_sampler_new(10, .contiguous = true, .nshards = 2), ".shard is NULL");
    EXPECT_ERROR(dt_sampler_new(10, .contiguous = true, .shard = shard, .nshards = -2), ".nshards is -2");
    EXPECT_ERROR(dt_sampler_new(11, .contiguous = true, .shard = shard, .nshards = 2), ".shard[2] is 10, expected n");
    shard[1] = 11;
    EXPECT_ERROR(dt_sampler_new(10, .contiguous = true, .shard = shard, .nshards = 2), ".shard[1] is 11");
    shard[1] = -1;
    EXPECT_ERROR(dt_sampler_new(10, .contiguous = true, .shard = shard, .nshards = 2), ".shard[1] is -1");
    shard[0] = 1;
    EXPECT_ERROR(dt_sampler_new(10, .contiguous = true, .shard = shard, .nshards = 2), ".shard[0] is 1, expected 0");
    EXPECT_ERROR(dt_sampler_new(INT64_MAX), "memory");
}
UTEST(refused, cursors)
{
    dt_sampler *s = dt_sampler_new(10, .seed = 5, .shuffle = true);
    dt_cursor   good = dt_sampler_cursor(s, 3), c = good;
    EXPECT_OK(dt_sampler_seek(s, &c));
    c.n = 0; /* not known */
    EXPECT_OK(dt_sampler_seek(s, &c));
    int64_t at = dt_sampler_at(s, 0);
    c = good, c.seed = 6;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "dt_sampler_seek: the cursor's seed is 6, the sampler's 5");
    c = good, c.n = 11;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "is one of 11 items, the sampler has 10");
    c = good, c.epoch = -1;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "epoch is -1");
    c.epoch = INT64_MAX;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "epoch is 9223372036854775807");
    c = good, c.position = -1;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "position is -1, expected 0 to 10");
    c.position = 11;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "position is 11, expected 0 to 10");
    c = good, c.world = 2;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "of a .contiguous sampler (of 2 ranks), this sampler is not .contiguous");
    EXPECT_EQ(at, dt_sampler_at(s, 0)); /* it is where it was */
    EXPECT_EQ(7, dt_sampler_count(s));
    EXPECT_ERROR(dt_sampler_cursor(s, -1).epoch - 1, "-1 items are taken");
    dt_sampler_free(s);
}
UTEST(refused, cursors_of_stretches)
{
    static const int64_t shard[] = { 0, 6, 8, 10 };
    dt_sampler_opts      o = { .world = 3, .rank = 2, .contiguous = true, .shard = shard, .nshards = 3 };
    dt_sampler          *s = dt_sampler_new_with(10, o);
    dt_cursor            good = dt_sampler_cursor(s, 1), c = good;
    EXPECT_EQ(3, good.position);
    c.world = 0;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "not of a .contiguous sampler");
    c.world = -3;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "a world of -3 ranks");
    c.world = INT64_C(1) << 40;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "a world of 1099511627776 ranks");
    c = good, c.position = 4;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "the cursor's 3 ranks cannot have taken 4 of 10 items");
    c.position = 7; /* 3 + 2 + 2 */
    EXPECT_OK(dt_sampler_seek(s, &c));
    EXPECT_EQ(3, dt_sampler_count(s));
    c = good, c.npast = -1;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "npast is -1");
    c.npast = DT_CURSOR_PAST + 1;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "npast is 6");
    c.npast = 1;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "a world of 0 ranks");
    c.past[0] = 2, c.past[1] = 4; /* 2 ranks have 6 and 4, and took 2 each: 4, which is behind 3 */
    EXPECT_ERROR(dt_sampler_seek(s, &c), "3 ranks got from position 4 to 3");
    c.position = 10;
    EXPECT_OK(dt_sampler_seek(s, &c));
    EXPECT_EQ(0, dt_sampler_count(s));
    c.position = 0;
    EXPECT_ERROR(dt_sampler_seek(s, &c), "at position 0");
    c = good, c.world = INT_MAX, c.position = 10; /* more ranks than items: a round takes all */
    dt_sampler_free(s);
    s = dt_sampler_new(10, .world = 3, .contiguous = true, .shuffle = true);
    EXPECT_OK(dt_sampler_seek(s, &c));
    EXPECT_EQ(0, dt_sampler_count(s));
    dt_sampler_free(s);
}
UTEST(refused, null_is_accepted)
{
    dt_cursor   c, zero;
    dt_sampler *s = dt_sampler_new(3);
    memset(&zero, 0, sizeof zero);
    c = dt_sampler_cursor(NULL, 5);
    EXPECT_EQ(0, memcmp(&c, &zero, sizeof c));
    EXPECT_EQ(0, dt_sampler_count(NULL) + dt_sampler_most(NULL) + dt_sampler_batch(NULL, 0, 1, false, NULL));
    EXPECT_EQ(-1, dt_sampler_at(NULL, 0));
    dt_sampler_free(NULL);
    EXPECT_OK(0);
    EXPECT_ERROR(dt_sampler_seek(NULL, &c), "the sampler is NULL");
    EXPECT_ERROR(dt_sampler_seek(s, NULL), "the cursor is NULL");
    EXPECT_ERROR(dt_dataset_range(NULL, 0, 0), "dt_dataset_range: the dataset is NULL");
    EXPECT_ERROR(dt_dataset_subset(NULL, NULL, 0), "dt_dataset_subset: the dataset is NULL");
    EXPECT_ERROR(dt_dataset_concat(NULL, 1), "sets is NULL");
    EXPECT_ERROR(dt_dataset_split(NULL, NULL, 0, 0, NULL), "dt_dataset_split: the dataset is NULL");
    EXPECT_ERROR(dt_dataset_mean_std(NULL, NULL, NULL, 1), "dt_dataset_mean_std: the dataset is NULL");
    dt_sampler_free(s);
}

/* ==================================================================================================== >>sets */
static int32_t set_x[200];
static uint8_t set_y[200];
/* n items of x from 'from' on, y = x mod 7 */
static dt_dataset *numbers(int64_t from, int64_t n)
{
    for (int i = 0; i < 200; i++) {
        set_x[i] = i;
        set_y[i] = (uint8_t)(i % 7);
    }
    return dt_arrays(set_x + from, n, .x_dtype = DT_I32, .y = set_y + from, .y_dtype = DT_U8, .classes = 7);
}
static void check_items(int *utest_result, const dt_dataset *s, const int64_t *want, int64_t n)
{
    EXPECT_EQ(n, dt_dataset_len(s));
    EXPECT_EQ(7, dt_dataset_item_info(s).classes);
    EXPECT_TRUE(dt_dataset_item_info(s).y_dtype == DT_I64 && dt_dataset_item_info(s).x_dtype == DT_I32);
    for (int64_t i = 0; i < n; i++) {
        int32_t x = -1;
        int64_t y = -1;
        EXPECT_OK(dt_dataset_get(s, i, &x, &y));
        EXPECT_EQ(want[i], (int64_t)x);
        EXPECT_TRUE(y == want[i] % 7);
    }
    EXPECT_ERROR(dt_dataset_get(s, n, set_x, NULL), "out of range");
    EXPECT_ERROR(dt_dataset_get(s, -1, set_x, NULL), "out of range");
}
UTEST(sets, parts_and_joins_in_any_order)
{
    static const int64_t pick[] = { 3, 0, 3, 4 }, in_range[] = { 22, 23, 24 }, in_subset[] = { 23, 20, 23, 24 };
    static const int64_t in_join[] = { 23, 20, 23, 24, 150, 151, 22, 23, 24 }, nested[] = { 24, 151, 23 };
    static const int64_t outer[] = { 3, 5, 0 };
    size_t               before = dt_stats().host_bytes;
    dt_dataset          *s = numbers(20, 5), *more = numbers(150, 2), *none = dt_dataset_range(s, 5, 0);
    dt_dataset          *range = dt_dataset_range(s, 2, 3), *subset = dt_dataset_subset(s, pick, 4);
    dt_dataset          *all[] = { none, subset, none, more, range, none };
    dt_dataset          *join = dt_dataset_concat(all, 6), *deep = dt_dataset_subset(join, outer, 3);
    dt_dataset          *deeper = dt_dataset_range(deep, 0, 3), *empty = dt_dataset_concat(&none, 1);
    dt_dataset          *nothing = dt_dataset_subset(s, NULL, 0), *twice[] = { deeper, join, deeper };
    dt_dataset          *both = dt_dataset_concat(twice, 3);
    int32_t              x = 0;
    dt_dataset_free(s); /* who needs it holds it */
    dt_dataset_free(more);
    dt_dataset_free(none);
    check_items(utest_result, range, in_range, 3);
    check_items(utest_result, subset, in_subset, 4);
    check_items(utest_result, join, in_join, 9);
    check_items(utest_result, deeper, nested, 3);
    check_items(utest_result, empty, NULL, 0);
    check_items(utest_result, nothing, NULL, 0);
    EXPECT_EQ(6, dt_dataset_shards(join));
    EXPECT_EQ(4, dt_dataset_shard(join, 3));
    EXPECT_EQ(9, dt_dataset_shard(join, 6));
    EXPECT_EQ(15, dt_dataset_len(both));
    EXPECT_OK(dt_dataset_get(both, 12, &x, NULL));
    EXPECT_EQ(24, x);
    dt_dataset_free(range);
    dt_dataset_free(subset);
    dt_dataset_free(join);
    dt_dataset_free(deep);
    dt_dataset_free(deeper);
    dt_dataset_free(empty);
    dt_dataset_free(nothing);
    dt_dataset_free(both);
    EXPECT_EQ(before, dt_stats().host_bytes);
}
UTEST(sets, refused)
{
    static const int64_t bad[] = { 0, 4, 5 }, negative[] = { 0, -1 };
    dt_dataset          *s = numbers(0, 5), *out[2] = { NULL, NULL };
    EXPECT_ERROR(dt_dataset_range(s, 2, 4), "4 items from 2 on are out of range; the dataset has 5");
    EXPECT_ERROR(dt_dataset_range(s, -1, 2), "from -1");
    EXPECT_ERROR(dt_dataset_range(s, 6, 0), "from 6");
    EXPECT_ERROR(dt_dataset_range(s, 1, -1), "-1 items");
    EXPECT_ERROR(dt_dataset_range(s, 1, INT64_MAX), "out of range");
    EXPECT_ERROR(dt_dataset_subset(s, bad, 3), "index[2] is 5, expected 0 to 4");
    EXPECT_ERROR(dt_dataset_subset(s, negative, 2), "index[1] is -1");
    EXPECT_ERROR(dt_dataset_subset(s, bad, -1), "n is -1");
    EXPECT_ERROR(dt_dataset_subset(s, NULL, 1), "index is NULL");
    EXPECT_ERROR(dt_dataset_concat(out, 0), "0 sets");
    EXPECT_ERROR(dt_dataset_concat(out, 1), "set 0 is NULL");
    static float f[64];
    dt_dataset  *plain[] = { dt_arrays(f, 4, .x_shape = DT_SHAPE(2, 3)), NULL };
    struct {
        dt_dataset *set;
        const char *message;
    } other[] = {
        { NULL, "set 1 is NULL" },
        { dt_arrays(f, 4, .x_shape = DT_SHAPE(3, 2)), "x of set 1 is f32 (3, 2), of set 0 f32 (2, 3)" },
        { dt_arrays(f, 4, .x_shape = DT_SHAPE(6)), "x of set 1 is f32 (6)" },
        { dt_arrays(f, 4, .x_shape = DT_SHAPE(2, 3, 1)), "x of set 1 is f32 (2, 3, 1)" },
        { dt_arrays(f, 4, .x_shape = DT_SHAPE(2, 3), .x_dtype = DT_BF16), "x of set 1 is bf16 (2, 3)" },
        { dt_arrays(f, 4, .x_shape = DT_SHAPE(2, 3), .y = f), "set 1 has a y, set 0 has no y" },
    };
    for (int k = 0; k < COUNT(other); k++) {
        plain[1] = other[k].set;
        EXPECT_ERROR(dt_dataset_concat(plain, 2), other[k].message);
        dt_dataset_free(other[k].set);
    }
    dt_dataset_free(plain[0]);
    plain[0] = s;
    plain[1] = dt_arrays(set_x, 5, .x_dtype = DT_I32, .y = set_y, .y_dtype = DT_U8, .classes = 8);
    EXPECT_ERROR(dt_dataset_concat(plain, 2), "set 1 has 8 classes, set 0 has 7");
    dt_dataset_free(plain[1]);
    plain[1] = dt_arrays(set_x, 5, .x_dtype = DT_I32, .y = set_y, .y_dtype = DT_U8);
    EXPECT_ERROR(dt_dataset_concat(plain, 2), "y of set 1 is u8 (), of set 0 i64 ()");
    dt_dataset_free(plain[1]);
    dt_dataset_free(s);
}
UTEST(sets, splits_refused)
{
    static const struct {
        double      part[3];
        int         n;
        const char *message;
    } bad[] = {
        { { 3, 3 }, 2, "the parts add up to 6, expected 5 whole items or fractions that add up to 1" },
        { { 2, 2 }, 2, "add up to 4" },
        { { 0.5, 0.4 }, 2, "add up to 0.9" },
        { { 2.5, 2.5 }, 2, "add up to 5" },
        { { 0.5, 0.51 }, 2, "add up to 1.01" },
        { { 5, -1, 1 }, 3, "part[1] is -1" },
        { { 0.5, (double)NAN }, 2, "part[1] is " },
        { { (double)INFINITY }, 1, "part[0] is inf" },
        { { 1e300 }, 1, "add up to 1e+300" },
        { { 1 }, 0, "there are no parts" },
    };
    dt_dataset *s = numbers(0, 5), *out[3] = { s, s, s };
    for (int k = 0; k < COUNT(bad); k++)
        EXPECT_ERROR(dt_dataset_split(s, bad[k].part, bad[k].n, 0, out), bad[k].message);
    EXPECT_TRUE(out[0] == s && out[1] == s && out[2] == s);
    EXPECT_ERROR(dt_dataset_split(s, NULL, 1, 0, out), "part is NULL");
    EXPECT_ERROR(dt_dataset_split(s, bad[0].part, 1, 0, NULL), "out is NULL");
    double nearly[] = { 1.0 / 3, 1.0 / 3, 0.3333334 }; /* adds up to a little more than 1 */
    EXPECT_OK(dt_dataset_split(s, nearly, 3, 0, out));
    EXPECT_EQ(2, dt_dataset_len(out[0]));
    EXPECT_EQ(2, dt_dataset_len(out[1]));
    EXPECT_EQ(1, dt_dataset_len(out[2]));
    for (int k = 0; k < 3; k++) dt_dataset_free(out[k]);
    dt_dataset_free(s);
    static uint8_t big[2000000]; /* what is too much becomes visible with many items */
    dt_dataset    *b = dt_arrays(big, 2000000, .x_dtype = DT_U8);
    double         over[] = { 0.5, 0.5000009 };
    EXPECT_ERROR(dt_dataset_split(b, over, 2, 0, out), "too much for 2000000 items");
    dt_dataset_free(b);
}

/* ==================================================================================================== >>moments */
static void naive(const double *v, int64_t n, int64_t channels, int64_t plane, int64_t c, double *mean, double *std)
{
    long double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < plane; k++) sum += (long double)v[(i * channels + c) * plane + k];
    sum /= (long double)(n * plane);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < plane; k++) {
            long double d = (long double)v[(i * channels + c) * plane + k] - sum;
            squares += d * d;
        }
    *mean = (double)sum;
    *std = sqrt((double)(squares / (long double)(n * plane)));
}
UTEST(moments, by_channel_of_bytes_and_numbers)
{
    enum { N = 50, C = 3, P = 20, ALL = N * C * P };
    static uint8_t u[ALL];
    static float   f[ALL];
    static int64_t l[ALL];
    static double  vu[ALL], vf[ALL], vl[ALL];
    draws_begin();
    for (int i = 0; i < ALL; i++) {
        u[i] = (uint8_t)(draw(200) + i / P % C * 20);
        f[i] = (float)(1000 + (double)draw(1000) / 997);
        l[i] = draw(1000) - 500;
        vu[i] = u[i] / 255.0;
        vf[i] = (double)f[i];
        vl[i] = (double)l[i];
    }
    struct {
        dt_dataset *set;
        double     *v;
        int         channels;
    } t[] = {
        { dt_arrays(u, N, .x_dtype = DT_U8, .x_shape = DT_SHAPE(C, 4, 5)), vu, C },
        { dt_arrays(f, N, .x_shape = DT_SHAPE(C, 5, 4)), vf, C },
        { dt_arrays(l, N, .x_dtype = DT_I64, .x_shape = DT_SHAPE(C, 10, 2)), vl, C },
        { dt_arrays(u, N, .x_dtype = DT_U8, .x_shape = DT_SHAPE(C * P)), vu, 1 },
        { dt_arrays(f, N * P * C), vf, 1 },
    };
    for (int k = 0; k < 5; k++) {
        double mean[C], std[C], wm, ws;
        ASSERT_OK(dt_dataset_mean_std(t[k].set, mean, std, t[k].channels));
        for (int c = 0; c < t[k].channels; c++) {
            naive(t[k].v, N, t[k].channels, C * P / t[k].channels, c, &wm, &ws);
            EXPECT_NEAR(wm, mean[c], 1e-13 * (fabs(wm) + ws));
            EXPECT_NEAR(ws, std[c], 1e-11 * ws);
        }
        EXPECT_OK(dt_dataset_mean_std(t[k].set, NULL, std, t[k].channels));
        EXPECT_OK(dt_dataset_mean_std(t[k].set, mean, NULL, t[k].channels));
        EXPECT_ERROR(dt_dataset_mean_std(t[k].set, mean, std, 2), "2 channels are requested; x of shape (");
        EXPECT_ERROR(dt_dataset_mean_std(t[k].set, mean, std, 0), "0 channels");
        dt_dataset_free(t[k].set);
    }
}
UTEST(moments, halves_constants_and_almost_constants)
{
    static uint16_t half[4] = { 0x3c00, 0x4000, 0x4200, 0x4400 }, brain[4] = { 0x3f80, 0x4000, 0x4040, 0x4080 };
    static uint8_t  same[100000];
    double          mean, std;
    dt_dataset     *s = dt_arrays(half, 4, .x_dtype = DT_F16), *b = dt_arrays(brain, 4, .x_dtype = DT_BF16);
    EXPECT_OK(dt_dataset_mean_std(s, &mean, &std, 1)); /* 1 2 3 4 */
    EXPECT_TRUE(mean == 2.5 && fabs(std - sqrt(1.25)) < 1e-15);
    EXPECT_OK(dt_dataset_mean_std(b, &mean, &std, 1));
    EXPECT_TRUE(mean == 2.5 && fabs(std - sqrt(1.25)) < 1e-15);
    dt_dataset_free(s);
    dt_dataset_free(b);
    memset(same, 255, sizeof same);
    s = dt_arrays(same, 1000, .x_dtype = DT_U8, .x_shape = DT_SHAPE(100));
    EXPECT_OK(dt_dataset_mean_std(s, &mean, &std, 1));
    EXPECT_TRUE(mean == 1 && std == 0);
    same[77] = 254;
    EXPECT_OK(dt_dataset_mean_std(s, &mean, &std, 1));
    EXPECT_NEAR(sqrt(1e-5 * (1 - 1e-5)) / 255, std, 1e-15);
    dt_dataset_free(s);
    s = dt_arrays(same, 0, .x_dtype = DT_U8);
    EXPECT_ERROR(dt_dataset_mean_std(s, &mean, &std, 1), "the dataset has no items");
    dt_dataset_free(s);
}
static int counted_get(void *user, int64_t i, void *x, void *y)
{
    (void)y;
    if (i == *(int64_t *)user) return dt_fail(DT_ERR_FILE, "the disk is gone");
    *(uint8_t *)x = (uint8_t)i;
    return 0;
}
UTEST(moments, of_selections_and_of_what_cannot_be_read)
{
    static const int64_t pick[] = { 9, 8, 10, 11, 12, 0 };
    int64_t              fails = -1;
    double               mean = -1, std = -1;
    dt_dataset          *s = dt_source(.n = 20, .x_dtype = DT_U8, .get = counted_get, .user = &fails);
    dt_dataset          *a = numbers(0, 20), *p[] = { dt_dataset_subset(s, pick, 6), dt_dataset_range(s, 1, 3) };
    dt_dataset          *join = dt_dataset_concat(p, 2), *q = dt_dataset_subset(a, pick, 6);
    EXPECT_OK(dt_dataset_mean_std(join, &mean, &std, 1)); /* 9 8 10 11 12 0 1 2 3 */
    EXPECT_NEAR(56.0 / 9 / 255, mean, 1e-15);
    EXPECT_NEAR(sqrt(524.0 / 9 - 56.0 * 56 / 81) / 255, std, 1e-14);
    EXPECT_OK(dt_dataset_mean_std(q, &mean, &std, 1)); /* i32: as they are */
    EXPECT_NEAR(50.0 / 6, mean, 1e-14);
    fails = 3;
    mean = -1;
    EXPECT_ERROR(dt_dataset_mean_std(join, &mean, &std, 1), "the disk is gone");
    EXPECT_TRUE(mean == -1);
    dt_dataset_free(s);
    dt_dataset_free(a);
    dt_dataset_free(p[0]);
    dt_dataset_free(p[1]);
    dt_dataset_free(join);
    dt_dataset_free(q);
}

/* ==================================================================================================== >>memory */
UTEST(memory, epochs_allocate_nothing)
{
    static const int64_t shard[] = { 0, 300, 700, 1000 };
    static double        w[1000];
    size_t               before = dt_stats().host_bytes;
    golden_weights(1, 1000, w);
    dt_sampler_opts o = { .shuffle = true, .world = 3, .contiguous = true, .shard = shard, .nshards = 3 }, two = o;
    two.world = 2;
    dt_sampler *s[] = { dt_sampler_new(1000, .shuffle = true, .world = 3),
                        dt_sampler_new(1000, .weight = w, .world = 3), dt_sampler_new_with(1000, o),
                        dt_sampler_new_with(1000, two) };
    int64_t     allocs = dt_stats().host_allocs, out[32];
    for (int64_t epoch = 0; epoch < 5; epoch++)
        for (int k = 0; k < 4; k++) {
            dt_cursor c = dt_sampler_cursor(s[k], dt_sampler_most(s[k]));
            EXPECT_EQ(epoch + 1, c.epoch);
            EXPECT_OK(dt_sampler_seek(s[k], &c));
            EXPECT_EQ(32, dt_sampler_batch(s[k], 1, 32, true, out));
            c = dt_sampler_cursor(s[k], 50);
            EXPECT_OK(dt_sampler_seek(s[k == 3 ? 2 : k], &c)); /* also dealt anew */
            EXPECT_OK(dt_sampler_seek(s[k], &c));
        }
    EXPECT_EQ(allocs, dt_stats().host_allocs);
    for (int k = 0; k < 4; k++) dt_sampler_free(s[k]);
    EXPECT_EQ(before, dt_stats().host_bytes);
}
static int64_t everything(void) /* 25, or an error is pending */
{
    static const double  w[] = { 1, 2, 3 }, part[] = { 0.5, 0.3, 0.2 };
    static const int64_t shard[] = { 0, 1, 3 }, pick[] = { 1, 2, 3 };
    dt_sampler          *a = dt_sampler_new(3, .weight = w);
    dt_sampler          *b = dt_sampler_new(3, .contiguous = true, .shard = shard, .nshards = 2);
    dt_dataset          *s = numbers(0, 20), *out[3] = { NULL, NULL, NULL }, *r, *p, *pair[2], *join;
    double               mean;
    dt_status            split = dt_dataset_split(s, part, 3, 1, out);
    for (int k = 0; k < 3 && split != DT_OK; k++)
        if (out[k]) return 0; /* all or nothing */
    pair[0] = r = dt_dataset_range(s, 0, 2);
    pair[1] = p = dt_dataset_subset(s, pick, 3);
    join = dt_dataset_concat(pair, 2);
    dt_dataset_mean_std(join, &mean, NULL, 1);
    int64_t total = dt_sampler_count(b) + dt_sampler_count(a) - 1 + dt_dataset_len(s);
    dt_sampler_free(a);
    dt_sampler_free(b);
    for (int k = 0; k < 3; k++) dt_dataset_free(out[k]);
    dt_dataset_free(s);
    dt_dataset_free(r);
    dt_dataset_free(p);
    dt_dataset_free(join);
    return total;
}
UTEST(memory, every_failing_allocation_is_an_error_and_leaks_nothing)
{
    dt_test_budget b;
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_test_budget_set(&b, -1));
    EXPECT_EQ(25, everything());
    EXPECT_OK(0);
    EXPECT_EQ(0u, (unsigned)b.live);
    int64_t total = b.calls;
    EXPECT_TRUE(total > 20);
    for (int64_t n = 0; n < total && !*utest_result; n++) {
        b.left = n;
        everything();
        b.left = -1;
        EXPECT_TRUE(dt_error() && dt_error_code() == DT_ERR_MEMORY && strstr(dt_error(), "memory"));
        dt_error_clear();
        EXPECT_EQ(0u, (unsigned)b.live);
    }
    EXPECT_OK(dt_set_allocator(NULL));
}
