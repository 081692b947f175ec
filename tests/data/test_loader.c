/* test_loader.c: batches, their order, augmentation, the place of a training in its data, errors of workers */
#include "dt_test.h"
#include "dt_data.h"
#include "dt_nn.h"
#include "fake_device.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_MAIN()

enum { N = 103, C = 3, H = 6, W = 5, ITEM = C * H * W };
static uint8_t image[N][ITEM], label[N];

static dt_dataset *images(void)
{
    for (int i = 0; i < N; i++) {
        label[i] = (uint8_t)(i % 10);
        for (int k = 0; k < ITEM; k++) image[i][k] = (uint8_t)(i * 7 + k * 3 + 1);
    }
    return dt_arrays(image, N, .x_dtype = DT_U8, .x_shape = DT_SHAPE(C, H, W), .y = label, .y_dtype = DT_U8,
                     .classes = 10);
}
static dt_status next_of(dt_loader *in, dt_batch *b) { return dt_loader_next(in, b) ? DT_OK : dt_error_code(); }
static const float *floats(dt_tensor *t) /* until the next call */
{
    static float v[4096];
    return t && dt_nbytes(t) <= sizeof v && dt_copy_out(t, v, dt_nbytes(t)) == DT_OK ? v : NULL;
}
static uint64_t fold(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(1099511628211);
    return h;
}
/* every byte and item number that comes out of an epoch, in its order */
static uint64_t epoch_hash(dt_loader *in)
{
    uint64_t h = 14695981039346656037u;
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        const float *x = floats(b.x);
        h = fold(h, b.item, (size_t)b.n * 8);
        if (x) h = fold(h, x, dt_nbytes(b.x));
        const float *y = floats(b.y);
        if (y) h = fold(h, y, dt_nbytes(b.y));
    }
    return h;
}

/* ==================================================================================================== values */
UTEST(values, bytes_become_floats_as_pytorch_computes_them)
{
    static const double mean[3] = { 0.4914, 0.4822, 0.4465 }, std[3] = { 0.247, 0.243, 0.261 };
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 4, .mean = { 0.4914, 0.4822, 0.4465 }, .std = { 0.247, 0.243, 0.261 });
    dt_batch    b;
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_SHAPE(b.x, DT_SHAPE(4, C, H, W));
    EXPECT_EQ(DT_F32, (int)dt_dtype_of(b.x));
    EXPECT_INTS(b.y, ((int64_t[]){ 0, 1, 2, 3 }), 4);
    const float *x = floats(b.x);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < ITEM; k++) {
            int   c = k / (H * W);
            float want = ((float)image[i][k] / 255.0f - (float)mean[c]) / (float)std[c];
            EXPECT_EQ(want, x[i * ITEM + k]);
        }
    dt_end();
    dt_loader_free(in);
    in = dt_loader_new(s, .batch = 2); /* nothing asked for: 0..1 */
    EXPECT_TRUE(dt_loader_dataset(in) == s && dt_loader_dataset(NULL) == NULL);
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ((float)image[1][5] / 255.0f, floats(b.x)[ITEM + 5]);
    dt_end();
    dt_loader_free(in);
    in = dt_loader_new(s, .batch = 2, .max_value = 16, .mean = { 0.5 }, .std = { 0.25 }); /* for all channels */
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(((float)image[1][ITEM - 1] / 16.0f - 0.5f) / 0.25f, floats(b.x)[2 * ITEM - 1]);
    dt_end();
    dt_loader_free(in);
    in = dt_loader_new(s, .batch = 2, .raw = true);
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(DT_U8, (int)dt_dtype_of(b.x));
    EXPECT_EQ(0, memcmp(floats(b.x), image, 2 * ITEM));
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

UTEST(values, floats_are_normalised_and_other_dtypes_pass)
{
    static float   v[5][7];
    static int32_t t[5];
    for (int i = 0; i < 35; i++) v[i / 7][i % 7] = (float)i * 0.3f;
    for (int i = 0; i < 5; i++) t[i] = 10 * i;
    dt_dataset *s = dt_arrays(v, 5, .x_shape = DT_SHAPE(7), .y = t, .y_dtype = DT_I32, .y_shape = DT_SCALAR);
    dt_loader  *in = dt_loader_new(s, .batch = 5, .mean = { 2 }, .std = { 4 });
    dt_batch    b;
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_SHAPE(b.x, DT_SHAPE(5, 7));
    for (int i = 0; i < 35; i++) EXPECT_TRUE(floats(b.x)[i] == (v[i / 7][i % 7] - 2.0f) / 4.0f);
    EXPECT_EQ(DT_I32, (int)dt_dtype_of(b.y));
    EXPECT_INTS(b.y, ((int64_t[]){ 0, 10, 20, 30, 40 }), 5);
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
    s = dt_arrays(t, 5, .x_dtype = DT_I32, .x_shape = DT_SCALAR);
    in = dt_loader_new(s, .batch = 3);
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_INTS(b.x, ((int64_t[]){ 0, 10, 20 }), 3);
    EXPECT_TRUE(b.y == NULL);
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

/* ==================================================================================================== order */
UTEST(order, an_epoch_ends_once_and_the_next_one_begins)
{
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 10, .workers = 2);
    EXPECT_EQ(11, dt_loader_batches(in));
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        dt_batch b;
        int64_t  at = 0;
        EXPECT_EQ(epoch, dt_loader_epoch(in));
        while (dt_loader_next(in, &b)) {
            EXPECT_EQ(epoch, b.epoch);
            EXPECT_EQ(at / 10, b.index);
            EXPECT_EQ(at + 10 < N ? 10 : N - at, b.n);
            EXPECT_EQ(b.n, dt_size(b.x, 0));
            for (int64_t i = 0; i < b.n; i++) EXPECT_EQ(at + i, b.item[i]);
            at += b.n;
            EXPECT_EQ(at < N ? epoch : epoch + 1, dt_loader_epoch(in));
            dt_end();
        }
        EXPECT_EQ(N, at);
    }
    dt_loader_free(in);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

UTEST(order, batches_by_number_are_those_of_the_epochs)
{
    static int64_t want[60][10];
    static double  sum[60];
    dt_dataset    *s = images();
    for (int last = 0; last < 2; last++)
        for (int workers = 0; workers < 3; workers++) {
            dt_loader *in = dt_loader_new(s, .batch = 10, .shuffle = true, .seed = 3, .drop_last = last, .flip = true);
            dt_loader *get = dt_loader_new(s, .batch = 10, .shuffle = true, .seed = 3, .drop_last = last, .flip = true, .workers = workers);
            int64_t    per = dt_loader_batches(in), n = 0;
            dt_batch   b;
            while (n < 3 * per)
                while (n < 3 * per && dt_loader_next(in, &b)) {
                    memcpy(want[n], b.item, (size_t)b.n * sizeof *b.item);
                    sum[n++] = dt_item(dt_sum(dt_cast(b.x, DT_F32)));
                    dt_end();
                }
            for (int64_t i = 0; i < 2 * n; i++) { /* in order, then backwards and crosswise */
                int64_t k = i < n ? i : i * 7 % n;
                ASSERT_TRUE(dt_loader_get(get, k, &b));
                EXPECT_TRUE(b.epoch == k / per && b.index == k % per);
                EXPECT_EQ(0, memcmp(want[k], b.item, (size_t)b.n * sizeof *b.item));
                EXPECT_EQ(sum[k], dt_item(dt_sum(dt_cast(b.x, DT_F32))));
                dt_end();
            }
            EXPECT_ERROR(dt_loader_get(get, -1, &b) ? 0 : -1, "a number of 0 or more");
            dt_loader_free(in);
            dt_loader_free(get);
        }
    dt_loader *two = dt_loader_new(s, .batch = 10, .world = 2);
    dt_batch   b;
    EXPECT_ERROR(dt_loader_get(two, 0, &b) ? 0 : -1, "a loader of one rank");
    dt_loader_free(two);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

UTEST(order, does_not_depend_on_workers_or_prefetch)
{
    static const int workers[] = { 0, 1, 2, 4, 3 }, prefetch[] = { 0, 1, 2, 7, 16 };
    dt_dataset      *s = images();
    uint64_t         want[3] = { 0, 0, 0 };
    for (int k = 0; k < 5; k++) {
        dt_loader *in =
            dt_loader_new(s, .batch = 8, .shuffle = true, .seed = 5, .workers = workers[k], .prefetch = prefetch[k],
                          .crop = 2, .flip = true, .cutout = 3, .drop_last = k > 9);
        for (int e = 0; e < 3; e++) {
            uint64_t h = epoch_hash(in);
            if (k == 0) want[e] = h;
            EXPECT_EQ(want[e], h);
        }
        dt_loader_free(in);
    }
    EXPECT_NE(want[0], want[1]);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

UTEST(order, ranks_share_an_epoch_and_show_different_digests)
{
    dt_dataset *s = images();
    int         seen[N] = { 0 };
    char        sum[2][65];
    for (int rank = 0; rank < 2; rank++) {
        dt_loader *in = dt_loader_new(s, .batch = 9, .shuffle = true, .rank = rank, .world = 2, .no_pad = true,
                                      .digest = true, .workers = rank);
        for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
            for (int64_t i = 0; i < b.n; i++) seen[b.item[i]]++;
            if (b.index == 0) memcpy(sum[rank], b.sha256, 65);
        }
        dt_loader_free(in);
    }
    for (int i = 0; i < N; i++) EXPECT_EQ(1, seen[i]);
    EXPECT_EQ(64u, (unsigned)strlen(sum[0]));
    EXPECT_NE(0, strcmp(sum[0], sum[1]));
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

UTEST(order, ranks_read_stretches_of_their_own)
{
    dt_dataset *s = images(),
               *part[3] = { dt_dataset_range(s, 0, 30), dt_dataset_range(s, 30, 40), dt_dataset_range(s, 70, 33) };
    dt_dataset *joined = dt_dataset_concat(part, 3);
    static const int64_t from[] = { 0, 30, 70, N };
    for (int rank = 0; rank < 3; rank++) {
        dt_loader *in = dt_loader_new(joined, .batch = 7, .shuffle = true, .rank = rank, .world = 3, .contiguous = true,
                                      .workers = 2);
        EXPECT_EQ(6, dt_loader_batches(in)); /* the longest has 40: the others begin again */
        for (int e = 0; e < 2; e++) {
            int64_t seen[N] = { 0 }, order[N], n = 0;
            for (dt_batch b; dt_loader_next(in, &b); dt_end())
                for (int64_t i = 0; i < b.n; i++) {
                    EXPECT_TRUE(b.item[i] >= from[rank] && b.item[i] < from[rank + 1]);
                    order[n++] = b.item[i];
                    seen[b.item[i]]++;
                }
            EXPECT_EQ(40, n);
            for (int64_t i = from[rank]; i < from[rank + 1]; i++) EXPECT_TRUE(seen[i] == 1 || seen[i] == 2);
            EXPECT_NE(order[0] + 2, order[2]); /* shuffled */
        }
        dt_loader_free(in);
    }
    for (int i = 0; i < 3; i++) dt_dataset_free(part[i]);
    dt_dataset_free(joined);
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}
UTEST(order, items_are_drawn_by_weight)
{
    double      weight[N] = { 0 };
    int         seen[N] = { 0 };
    dt_dataset *s = images();
    weight[7] = 1;
    weight[90] = 3;
    dt_loader *in = dt_loader_new(s, .batch = 50, .weight = weight, .draws = 4000, .workers = 1);
    for (dt_batch b; dt_loader_next(in, &b); dt_end())
        for (int64_t i = 0; i < b.n; i++) seen[b.item[i]]++;
    EXPECT_EQ(4000, seen[7] + seen[90]);
    EXPECT_TRUE(abs(seen[90] - 3000) < 200);
    dt_loader_free(in);
    dt_dataset_free(s);
}

UTEST(order, the_digest_is_of_the_bytes_that_are_handed_out)
{
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 5, .shuffle = true, .digest = true, .workers = 1);
    dt_batch    b;
    dt_sha256   h;
    uint8_t     sum[32];
    char        hex[65];
    ASSERT_TRUE(dt_loader_next(in, &b));
    dt_sha256_begin(&h);
    dt_sha256_add(&h, floats(b.x), dt_nbytes(b.x));
    dt_sha256_add(&h, floats(b.y), dt_nbytes(b.y));
    dt_sha256_end(&h, sum);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    EXPECT_STREQ(hex, b.sha256);
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
}

UTEST(order, short_sets_and_dropped_ends)
{
    static const struct { int64_t n, batch, batches; bool drop;
    } t[] = {
        { 0, 4, 0, false }, { 1, 4, 1, false }, { 3, 4, 0, true },
        { 4, 4, 1, true },  { 9, 4, 3, false }, { 9, 4, 2, true },
    };
    dt_dataset *all = images();
    for (int k = 0; k < 6; k++)
        for (int workers = 0; workers < 3; workers += 2) {
            dt_dataset *s = dt_dataset_range(all, 5, t[k].n);
            dt_loader  *in = dt_loader_new(s, .batch = t[k].batch, .drop_last = t[k].drop, .workers = workers);
            int64_t     n = 0;
            EXPECT_EQ(t[k].batches, dt_loader_batches(in));
            for (int e = 0; e < 3; e++) {
                EXPECT_EQ(e, dt_loader_epoch(in));
                for (dt_batch b; dt_loader_next(in, &b); dt_end()) n++;
            }
            EXPECT_EQ(3 * t[k].batches, n);
            dt_loader_free(in);
            dt_dataset_free(s);
        }
    dt_dataset_free(all);
    EXPECT_FALSE(dt_error());
}

/* ==================================================================================================== augmentation */
/* what the manual says, written the slow way round */
static void augmented(float *out, const uint8_t *in, int crop, bool flip, int cut, uint64_t key, int64_t item)
{
    uint32_t d[4], e[4];
    int      oy = 0, ox = 0;
    dt_philox(key, 2 * (uint64_t)item, d);
    dt_philox(key, 2 * (uint64_t)item + 1, e);
    if (crop) oy = (int)(((uint64_t)d[0] * (uint64_t)(2 * crop + 1)) >> 32) - crop;
    if (crop) ox = (int)(((uint64_t)d[1] * (uint64_t)(2 * crop + 1)) >> 32) - crop;
    int cy = (int)(((uint64_t)e[0] * H) >> 32), cx = (int)(((uint64_t)e[1] * W) >> 32);
    for (int c = 0; c < C; c++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                int   sx = (flip && d[2] >> 31 ? W - 1 - x : x) + ox, sy = y + oy;
                bool  inside = sx >= 0 && sx < W && sy >= 0 && sy < H;
                bool  hole =
                    cut && y >= cy - cut / 2 && y < cy - cut / 2 + cut && x >= cx - cut / 2 && x < cx - cut / 2 + cut;
                float v = (float)(inside ? in[(c * H + sy) * W + sx] : 0) / 255.0f;
                out[(c * H + y) * W + x] = hole ? 0 : (v - 0.5f) / 0.25f;
            }
}
static uint64_t epoch_key(uint64_t seed, uint64_t epoch) /* the finaliser of SplitMix64 */
{
    uint64_t x = seed + UINT64_C(0x9e3779b97f4a7c15) * (epoch + 1);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
UTEST(augmentation, crop_flip_and_cutout_of_seed_epoch_and_item_alone)
{
    static const struct { int crop, cut; bool flip; } t[] = {
        { 0, 0, true }, { 1, 0, false }, { 2, 0, true }, { 0, 3, false }, { 9, 4, true }, { 4, 100, false },
    };
    dt_dataset *s = images();
    for (int k = 0; k < 6; k++) {
        dt_loader *in = dt_loader_new(s, .batch = 1 + 6 * k, .shuffle = k % 2 == 0, .seed = 77, .workers = k % 3,
                                      .crop = t[k].crop, .flip = t[k].flip, .cutout = t[k].cut, .mean = { 0.5 },
                                      .std = { 0.25 });
        for (uint64_t e = 0; e < 2; e++)
            for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
                const float *x = floats(b.x);
                for (int64_t i = 0; i < b.n; i++) {
                    float want[ITEM];
                    augmented(want, image[b.item[i]], t[k].crop, t[k].flip, t[k].cut, epoch_key(77, e), b.item[i]);
                    EXPECT_EQ(0, memcmp(want, x + i * ITEM, sizeof want));
                }
            }
        dt_loader_free(in);
    }
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}
UTEST(augmentation, raw_bytes_and_floats_move_too)
{
    static float v[N][ITEM];
    dt_dataset  *s = images();
    for (int i = 0; i < N * ITEM; i++) v[i / ITEM][i % ITEM] = (float)image[i / ITEM][i % ITEM] / 255.0f;
    dt_dataset *f = dt_arrays(v, N, .x_shape = DT_SHAPE(C, H, W));
    dt_loader  *a = dt_loader_new(s, .batch = 20, .crop = 2, .flip = true);
    dt_loader  *r = dt_loader_new(s, .batch = 20, .crop = 2, .flip = true, .raw = true);
    dt_loader  *p = dt_loader_new(f, .batch = 20, .crop = 2, .flip = true);
    dt_loader *q = dt_loader_new(f, .batch = 20, .crop = 2, .flip = true, .std = { 1 }); /* the same through division */
    dt_batch    ba, br, bp, bq;
    ASSERT_TRUE(dt_loader_next(a, &ba));
    ASSERT_TRUE(dt_loader_next(r, &br));
    ASSERT_TRUE(dt_loader_next(p, &bp));
    ASSERT_TRUE(dt_loader_next(q, &bq));
    EXPECT_SAME_BITS(ba.x, bp.x);
    EXPECT_SAME_BITS(ba.x, bq.x);
    EXPECT_CLOSE_TO(dt_mul_scalar(dt_cast(br.x, DT_F32), 1.0 / 255), ba.x, 1e-7, 1e-6);
    dt_end();
    dt_loader_free(a);
    dt_loader_free(r);
    dt_loader_free(p);
    dt_loader_free(q);
    dt_dataset_free(f);
    dt_dataset_free(s);
}
UTEST(augmentation, half_are_flipped_and_every_offset_occurs)
{
    enum { MANY = 4000 };
    static uint8_t dot[3 * 3];
    int            where[9] = { 0 }, flipped = 0;
    dot[4] = 255; /* in the middle of 3 x 3: a crop moves it anywhere */
    static uint8_t many[MANY][9];
    for (int i = 0; i < MANY; i++) memcpy(many[i], dot, 9);
    dt_dataset *s = dt_arrays(many, MANY, .x_dtype = DT_U8, .x_shape = DT_SHAPE(1, 3, 3));
    dt_loader  *in = dt_loader_new(s, .batch = 400, .crop = 1);
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        const float *x = floats(b.x);
        for (int64_t i = 0; i < 400 * 9; i++) where[i % 9] += x[i] > 0;
    }
    for (int i = 0; i < 9; i++) EXPECT_TRUE(abs(where[i] - MANY / 9) < 120);
    dt_loader_free(in);
    for (int i = 0; i < MANY; i++) many[i][3] = 200, many[i][4] = 0;
    in = dt_loader_new(s, .batch = 400, .flip = true);
    for (dt_batch b; dt_loader_next(in, &b); dt_end())
        for (int64_t i = 0; i < 400; i++) flipped += floats(b.x)[i * 9 + 5] > 0;
    EXPECT_TRUE(abs(flipped - MANY / 2) < 200);
    dt_loader_free(in);
    dt_dataset_free(s);
}

static int twice(void *user, const dt_sample *d, void *x)
{
    int64_t n = 1;
    for (int i = 0; i < d->shape.ndim; i++) n *= d->shape.dim[i];
    if (d->item == *(int64_t *)user) return dt_fail(DT_ERR_ARG, "item %d is not liked", (int)d->item);
    if (d->dtype != DT_F32 || d->seed != 9) return -1;
    for (int64_t i = 0; i < n; i++) ((float *)x)[i] *= 2;
    return 0;
}
UTEST(augmentation, a_transform_of_the_program)
{
    dt_dataset *s = images();
    int64_t     bad = -1;
    dt_batch    b;
    dt_loader  *in = dt_loader_new(s, .batch = 3, .seed = 9, .transform = twice, .user = &bad);
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ((float)image[2][8] / 255.0f * 2, floats(b.x)[2 * ITEM + 8]);
    dt_end();
    dt_loader_free(in);
    bad = 7;
    in = dt_loader_new(s, .batch = 3, .seed = 9, .transform = twice, .user = &bad, .workers = 2);
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_ERROR(next_of(in, &b), "item 7 is not liked");
    EXPECT_TRUE(dt_loader_next(in, &b)); /* cleared: it goes on behind the batch that failed */
    EXPECT_EQ(9, b.item[0]);
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
}

/* ==================================================================================================== the place */
UTEST(place, a_run_is_taken_up_anywhere_by_any_world)
{
    dt_dataset *s = images();
    for (int shuffle = 0; shuffle < 2; shuffle++)
        for (int k = 0; k < 8; k += 3) {
            int       seen[N] = { 0 };
            dt_cursor at;
            memset(&at, 0, sizeof at);
            for (int rank = 0; rank < 3; rank++) { /* 3 ranks take k batches of 4 */
                dt_loader *in = dt_loader_new(s, .batch = 4, .shuffle = shuffle, .seed = 3, .rank = rank, .world = 3,
                                              .workers = rank, .prefetch = 1 + rank);
                dt_batch b;
                for (int i = 0; i < k && dt_loader_next(in, &b); i++, dt_end())
                    for (int64_t q = 0; q < b.n; q++) seen[b.item[q]]++;
                if (rank) EXPECT_EQ(0, memcmp(&at, dt_loader_cursor(in), sizeof at));
                at = *dt_loader_cursor(in);
                EXPECT_EQ(12 * k, at.position);
                dt_loader_free(in);
            }
            for (int rank = 0; rank < 2; rank++) { /* 2 ranks do the rest */
                dt_loader *in = dt_loader_new(s, .batch = 5, .shuffle = shuffle, .seed = 3, .rank = rank, .world = 2,
                                              .no_pad = true, .workers = 2 - rank);
                *dt_loader_cursor(in) = at;
                for (dt_batch b; dt_loader_next(in, &b); dt_end())
                    for (int64_t q = 0; q < b.n; q++) seen[b.item[q]]++;
                EXPECT_EQ(1, dt_loader_epoch(in));
                dt_loader_free(in);
            }
            for (int i = 0; i < N; i++) EXPECT_EQ(1, seen[i]);
        }
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}
UTEST(place, moving_in_the_middle_of_an_epoch_throws_away_what_was_fetched)
{
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 10, .workers = 3, .prefetch = 5);
    dt_batch    b;
    EXPECT_TRUE(dt_loader_next(in, &b));
    dt_cursor first = *dt_loader_cursor(in);
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(20, b.item[0]);
    *dt_loader_cursor(in) = first;
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(10, b.item[0]);
    dt_loader_cursor(in)->position = 100;
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(100, b.item[0]);
    EXPECT_EQ(3, b.n);
    dt_loader_cursor(in)->epoch = 4; /* also where the end of an epoch waits to be told */
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(4, b.epoch);
    dt_loader_cursor(in)->n = 99;
    EXPECT_ERROR(next_of(in, &b), "99");
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
}

/* a batch takes a while: it is under way when the place moves */
static int unhurried(void *user, int64_t i, void *x, void *y)
{
    uint64_t until = dt_trace_now() + UINT64_C(500000);
    (void)user, (void)y;
    while (dt_trace_now() < until) {
    }
    *(float *)x = (float)i;
    return 0;
}
UTEST(place, moving_waits_for_batches_under_way)
{
    dt_dataset *s = dt_source(.n = 500, .x_shape = DT_SCALAR, .get = unhurried);
    dt_loader  *in = dt_loader_new(s, .batch = 5, .workers = 3, .prefetch = 6);
    dt_batch    b;
    for (int64_t k = 0; k < 20; k++) {
        dt_loader_cursor(in)->position = 20 * k;
        ASSERT_TRUE(dt_loader_next(in, &b));
        EXPECT_EQ(20 * k, b.item[0]);
        EXPECT_EQ((float)(20 * k + 4), floats(b.x)[4]);
        ASSERT_TRUE(dt_loader_next(in, &b));
        EXPECT_EQ(20 * k + 5, b.item[0]);
        dt_end();
    }
    dt_loader_free(in);
    dt_dataset_free(s);
}

static dt_tensor *net(dt_model *m, dt_tensor *x) { return dt_linear(m, "fc", dt_flatten(x), .out = 10); }
UTEST(place, a_checkpoint_holds_it)
{
    char        dir[] = "/tmp/dt_loader_XXXXXX", path[64];
    int64_t     want[6] = { 0 }, step = 0, epoch = 0;
    dt_dataset *s = images();
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    for (int part = 0; part < 2; part++) {
        dt_model      *m = dt_model_new(.seed = 1);
        dt_optimizer  *opt = dt_sgd(m, .lr = 0.01);
        dt_loader     *in = dt_loader_new(s, .batch = part ? 30 : 10, .shuffle = true, .seed = 8, .workers = 1 + part);
        dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
        EXPECT_OK(dt_loader_checkpoint(in, c));
        EXPECT_EQ(part, dt_checkpoint_resume(c, &epoch, &step));
        EXPECT_EQ(4 * part, step);
        dt_batch b;
        for (int i = 0; i < (part ? 1 : 7) && dt_loader_next(in, &b); i++) {
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            if (!part && i >= 4) memcpy(want + (i - 4) * 2, b.item, 16); /* what it must begin with again */
            if (part) {
                EXPECT_EQ(0, memcmp(want, b.item, 16));
                EXPECT_EQ(0, memcmp(want + 2, b.item + 10, 16));
                EXPECT_EQ(0, memcmp(want + 4, b.item + 20, 16));
            }
            dt_step(opt);
            if (!part && ++step == 4) EXPECT_OK(dt_checkpoint_save(c, dt_loader_epoch(in), step));
        }
        dt_loader_free(in); /* before the checkpoint that refers to its cursor */
        dt_checkpoint_free(c);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    snprintf(path, sizeof path, "%s/ckpt-00000004.safetensors", dir);
    EXPECT_EQ(0, remove(path));
    EXPECT_EQ(0, rmdir(dir));
    dt_dataset_free(s);
    EXPECT_FALSE(dt_error());
}

/* ==================================================================================================== errors */
static int broken(void *user, int64_t i, void *x, void *y)
{
    memset(x, (int)i, 8);
    *(uint8_t *)y = (uint8_t)(i % 3);
    if (i == ((int64_t *)user)[0]) return ((int64_t *)user)[1] ? dt_fail(DT_ERR_FILE, "tape 4 is torn") : -5;
    return 0;
}
static void count_free(void *user) { ((int64_t *)user)[2]++; }
UTEST(errors, of_a_callback_come_with_their_batch)
{
    for (int workers = 0; workers < 3; workers++) {
        int64_t     how[3] = { 25, 1, 0 };
        dt_dataset *s = dt_source(.n = 60, .x_dtype = DT_U8, .x_shape = DT_SHAPE(8), .has_y = true, .y_dtype = DT_U8,
                                  .classes = 3, .get = broken, .free = count_free, .user = how);
        dt_loader  *in = dt_loader_new(s, .batch = 10, .workers = workers);
        dt_batch    b;
        EXPECT_TRUE(dt_loader_next(in, &b));
        EXPECT_TRUE(dt_loader_next(in, &b));
        EXPECT_ERROR(next_of(in, &b), "tape 4 is torn");
        EXPECT_TRUE(b.x == NULL);
        EXPECT_TRUE(dt_loader_next(in, &b));
        EXPECT_EQ(30, b.item[0]);
        dt_end();
        dt_loader_free(in);
        how[1] = 0;
        in = dt_loader_new(s, .batch = 50, .workers = workers);
        EXPECT_ERROR(next_of(in, &b), "item 25 with status -5");
        dt_loader_free(in);
        EXPECT_EQ(0, how[2]);
        dt_dataset_free(s);
        EXPECT_EQ(1, how[2]);
    }
}
UTEST(errors, a_label_out_of_range_is_named)
{
    dt_dataset *s = images();
    label[42] = 10;
    dt_loader *in = dt_loader_new(s, .batch = 10, .workers = 1);
    dt_batch   b;
    for (int i = 0; i < 4; i++) EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_ERROR(next_of(in, &b), "item 42: label 10, expected 0 to 9");
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
}
UTEST(errors, of_options)
{
    static float v[4][3];
    dt_dataset  *s = images(), *f = dt_arrays(v, 4, .x_shape = DT_SHAPE(3));
    dt_batch     b;
    dt_allocator half = { NULL, NULL, NULL };
    EXPECT_ERROR(dt_loader_new(NULL, .batch = 1), "dataset is NULL");
    EXPECT_ERROR(dt_loader_new(s, .batch = -1), "-1");
    EXPECT_ERROR(dt_loader_new(s, .workers = -2), "-2");
    EXPECT_ERROR(dt_loader_new(s, .prefetch = -3), "-3");
    EXPECT_ERROR(dt_loader_new(s, .batch = INT64_MAX / 2), "too large");
    EXPECT_ERROR(dt_loader_new(f, .crop = 1), "(3) of f32");
    EXPECT_ERROR(dt_loader_new(s, .crop = -1), "pixels");
    EXPECT_ERROR(dt_loader_new(s, .mean = { 1 }, .raw = true), ".raw");
    EXPECT_ERROR(dt_loader_new(s, .std = { 1, -1 }), "channel 1");
    EXPECT_ERROR(dt_loader_new(s, .mean = { NAN }), "channel 0");
    EXPECT_ERROR(dt_loader_new(s, .rank = 2, .world = 2), "2");
    EXPECT_ERROR(dt_loader_new(s, .buffers = &half), "alloc and free");
    EXPECT_ERROR(next_of(NULL, &b), "loader is NULL");
    EXPECT_ERROR(dt_loader_state(NULL), "loader is NULL");
    dt_loader_free(NULL);
    EXPECT_EQ(INT64_MAX, dt_loader_epoch(NULL));
    dt_loader *in = dt_loader_new(s, .batch = 4);
    dt_fail(DT_ERR_ARG, "elsewhere");
    EXPECT_FALSE(dt_loader_next(in, &b));
    EXPECT_EQ(INT64_MAX, dt_loader_epoch(in)); /* a loop over epochs ends */
    EXPECT_STREQ("elsewhere", dt_error());
    dt_error_clear();
    EXPECT_TRUE(dt_loader_next(in, &b));
    EXPECT_EQ(0, b.item[0]);
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(f);
    dt_dataset_free(s);
}
typedef struct pair {
    dt_dataset *set;
    dt_loader  *in;
} pair;
DT_TEST_RANK(forked)
{
    pair    *p = (pair *)arg;
    dt_batch b;
    EXPECT_ERROR(next_of(p->in, &b), "made before a fork");
    dt_loader_free(p->in);
    dt_dataset_free(p->set);
}
UTEST(errors, after_a_fork_there_is_an_error_and_no_hang)
{
    pair p;
    p.set = images();
    p.in = dt_loader_new(p.set, .batch = 10, .workers = 2);
    EXPECT_EQ(0, dt_test_ranks(1, 20, forked, &p));
    dt_loader_free(p.in);
    dt_dataset_free(p.set);
}

/* ==================================================================================================== memory */
UTEST(memory, batches_may_be_kept_and_outlive_the_loader)
{
    dt_empty_cache();
    size_t      before = dt_stats().host_bytes;
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 10, .workers = 2, .prefetch = 2);
    dt_tensor  *kept[11];
    int         n = 0;
    for (dt_batch b; dt_loader_next(in, &b); n++) { /* more than are fetched ahead: no stall */
        kept[n] = dt_keep(b.x);
        dt_end();
    }
    EXPECT_EQ(11, n);
    dt_loader_free(in);
    for (int i = 0; i < n; i++) EXPECT_EQ((float)image[10 * i][3] / 255.0f, floats(kept[i])[3]);
    for (int i = 0; i < n; i++) dt_free(kept[i]);
    dt_dataset_free(s);
    dt_empty_cache();
    EXPECT_EQ((unsigned)before, (unsigned)dt_stats().host_bytes);
    EXPECT_FALSE(dt_error());
}
UTEST(memory, batches_are_reused)
{
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 10, .shuffle = true, .workers = 2, .crop = 1);
    dt_batch    b;
    int64_t     before = 0;
    for (int e = 0; e < 30; e++) {
        while (dt_loader_next(in, &b)) dt_end();
        if (e == 2) before = dt_stats().host_allocs;
    }
    /* 297 batches: at most prefetch + workers + 1 are alive, and of some this may be the first time */
    EXPECT_TRUE(dt_stats().host_allocs - before <= 7 * 6);
    dt_loader_free(in);
    dt_dataset_free(s);
}
typedef struct counted {
    int64_t calls, live;
    void   *last;
} counted;
static void *counted_alloc(void *user, size_t n)
{
    counted *c = (counted *)user;
    void    *p = NULL;
    if (posix_memalign(&p, 64, n)) return NULL;
    __atomic_add_fetch(&c->calls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&c->live, (int64_t)n, __ATOMIC_RELAXED);
    return p;
}
static void counted_free(void *user, void *p, size_t n)
{
    __atomic_sub_fetch(&((counted *)user)->live, (int64_t)n, __ATOMIC_RELAXED);
    free(p);
}
UTEST(memory, buffers_come_from_the_hook)
{
    counted      c = { 0, 0, NULL };
    dt_allocator a = { counted_alloc, counted_free, &c };
    dt_dataset  *s = images();
    dt_loader   *in = dt_loader_new(s, .batch = 10, .buffers = &a, .workers = 1);
    EXPECT_NE(0u, (unsigned)(epoch_hash(in) != 0));
    EXPECT_TRUE(c.calls >= 2);
    EXPECT_TRUE(c.live >= 10 * ITEM * 4 + 80);
    dt_loader_free(in);
    EXPECT_EQ(0, c.live);
    dt_dataset_free(s);
}
UTEST(memory, batches_go_to_a_device)
{
    fake_device *fake = fake_device_new(0);
    dt_device   *dev = fake->dev;
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 10, .device = dev, .workers = 1);
    dt_batch    b;
    ASSERT_TRUE(dt_loader_next(in, &b));
    EXPECT_TRUE(dt_device_of(b.x) == dev && dt_device_of(b.y) == dev);
    EXPECT_EQ((float)image[9][ITEM - 1] / 255.0f, floats(b.x)[10 * ITEM - 1]);
    dt_end();
    dt_loader_free(in);
    dt_dataset_free(s);
    EXPECT_OK(fake_device_free(fake));
    EXPECT_FALSE(dt_error());
}
static void some_batches(int workers)
{
    dt_dataset *s = images();
    dt_loader  *in = dt_loader_new(s, .batch = 40, .shuffle = true, .workers = workers, .mean = { 0.5 });
    dt_batch    b;
    for (int i = 0; i < 4 && in; i++) {
        dt_loader_next(in, &b);
        dt_end();
    }
    dt_loader_free(in);
    dt_dataset_free(s);
    dt_end();
    dt_empty_cache();
}
UTEST(memory, every_failing_allocation_is_an_error_and_leaks_nothing)
{
    dt_test_budget b;
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_test_budget_set(&b, -1));
    for (int workers = 0; workers < 2; workers++) {
        b.calls = 0;
        b.left = -1;
        some_batches(workers);
        int64_t total = b.calls;
        for (int64_t n = 0; n < total; n++) {
            b.left = n;
            some_batches(workers);
            EXPECT_TRUE(!dt_error() || dt_error_code() == DT_ERR_MEMORY || dt_error_code() == DT_ERR_STATE);
            dt_error_clear();
            EXPECT_EQ(0, b.live);
        }
        EXPECT_TRUE(total > 10);
    }
    EXPECT_OK(dt_set_allocator(NULL));
}

/* ==================================================================================================== time */
static int slow(void *user, int64_t i, void *x, void *y)
{
    uint64_t until = dt_trace_now() + UINT64_C(20000000);
    (void)user;
    (void)y;
    while (dt_trace_now() < until) {
    }
    *(float *)x = (float)i;
    return 0;
}
static char warned[1024];
static void hear(void *user, int level, const char *text)
{
    (void)user;
    if (level == DT_LOG_WARN) snprintf(warned, sizeof warned, "%s", text);
}
UTEST(time, a_loader_that_is_behind_says_so_and_what_it_would_take)
{
    dt_dataset *s = dt_source(.n = 60, .x_shape = DT_SCALAR, .get = slow);
    dt_loader  *in = dt_loader_new(s, .batch = 6, .workers = 1);
    char        line[400];
    EXPECT_EQ(0u, (unsigned)dt_loader_report(in, 0, line, sizeof line));
    dt_set_log(hear, NULL);
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
    }
    dt_set_log(NULL, NULL);
    dt_loader_stats t = dt_loader_get_stats(in);
    EXPECT_EQ(10, t.batches);
    EXPECT_EQ(60, t.items);
    EXPECT_TRUE(t.behind);
    EXPECT_TRUE(t.wait > 1.0 && t.busy >= 1.2);
    EXPECT_TRUE(t.able <= 50.1 && t.needed > t.able);
    EXPECT_TRUE(dt_loader_report(in, 0, line, sizeof line) < sizeof line);
    EXPECT_TRUE(strstr(line, "the data are the bottleneck") != NULL);
    EXPECT_TRUE(strstr(warned, "epoch 0: data 1") || strstr(warned, "epoch 0: data 9"));
    dt_loader_reset_stats(in);
    EXPECT_EQ(0, dt_loader_get_stats(in).items);
    dt_loader_free(in);
    dt_dataset_free(s);
}
UTEST(time, of_the_trainer_is_compute_or_communication)
{
    static float v[40];
    dt_dataset  *s = dt_arrays(v, 40, .x_shape = DT_SCALAR);
    dt_loader   *in = dt_loader_new(s, .batch = 4, .workers = 1);
    char         line[400];
    float        sink;
    uint64_t     t0 = dt_trace_now();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) slow(NULL, 0, &sink, NULL);
    double          all = 1e-9 * (double)(dt_trace_now() - t0);
    dt_loader_stats t = dt_loader_get_stats(in);
    EXPECT_TRUE(t.elsewhere >= 0.18); /* what follows an epoch's last batch may be anything */
    EXPECT_TRUE(t.wait + t.elsewhere <= all);
    EXPECT_TRUE(t.needed <= 36 / 0.18 + 0.001);
    dt_loader_report(in, t.elsewhere / 2, line, sizeof line);
    EXPECT_TRUE(strstr(line, "communication ") != NULL);
    dt_loader_free(in);
    dt_dataset_free(s);
}

/* ==================================================================================================== SHA-256 */
static const char *sha(const void *p, size_t n, size_t piece)
{
    static char hex[65];
    uint8_t     out[32];
    dt_sha256   s;
    dt_sha256_begin(&s);
    for (size_t at = 0; at < n; at += piece) dt_sha256_add(&s, (const char *)p + at, n - at < piece ? n - at : piece);
    dt_sha256_end(&s, out);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", out[i]);
    return hex;
}
UTEST(sha256, the_standards_vectors)
{
    static char a[1000000], many[130];
    EXPECT_STREQ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", sha("", 0, 1));
    EXPECT_STREQ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", sha("abc", 3, 3));
    EXPECT_STREQ("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
                 sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 5));
    memset(a, 'a', sizeof a);
    EXPECT_STREQ("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", sha(a, sizeof a, 777));
    for (size_t i = 0; i < sizeof many; i++) many[i] = (char)i;
    for (size_t n = 0; n <= sizeof many; n++) { /* lengths about the block's, in pieces of any size */
        char whole[65];
        strcpy(whole, sha(many, n, n + 1));
        for (size_t piece = 1; piece <= n; piece += 7) EXPECT_STREQ(whole, sha(many, n, piece));
    }
}

