/* test_feed.c: the ways of data to the ranks: a path they share, files of their own, rank 0 reading for all
   run: alone */
#include "dt_test.h"

#include "dt_dist.h"
#include "crew.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

UTEST_MAIN()

enum { N = 45, SIDE = 6 };
static uint8_t     image[N][SIDE * SIDE], label[N];
static dt_dataset *images(void)
{
    for (int i = 0; i < N; i++) {
        label[i] = (uint8_t)(i % 10);
        for (int k = 0; k < SIDE * SIDE; k++) image[i][k] = (uint8_t)(i * 5 + k);
    }
    return dt_arrays(image, N, .x_dtype = DT_U8, .x_shape = DT_SHAPE(1, SIDE, SIDE), .y = label, .y_dtype = DT_U8,
                     .classes = 10);
}
static bool same(dt_tensor *a, dt_tensor *b)
{
    static uint8_t x[2][65536];
    size_t         n = dt_nbytes(a);
    if (!a || !b || n != dt_nbytes(b) || n > sizeof x[0] || dt_dtype_of(a) != dt_dtype_of(b)) return !a && !b;
    dt_copy_out(a, x[0], n);
    dt_copy_out(b, x[1], n);
    return !memcmp(x[0], x[1], n);
}
/* each batch is that of a loader that reads for itself; kind: shuffled and augmented, in order, drop_last */
static void alike(crew *k)
{
    int            kind = *(int *)k->arg;
    dt_dataset    *set = images();
    dt_loader_opts o;
    memset((void *)&o, 0, sizeof o);
    o.batch = 4;
    o.shuffle = kind != 1;
    o.drop_last = kind == 2;
    o.seed = 5;
    o.workers = kind == 0 ? 2 : 0;
    o.flip = kind == 0;
    o.crop = kind == 0 ? 2 : 0;
    o.raw = kind == 2;
    dt_feed *in = dt_feed_new_with(k->rank == 0 ? set : NULL, k->c, o);
    o.rank = k->rank;
    o.world = k->world;
    dt_loader *own = dt_loader_new_with(set, o);
    crew_check(k, dt_feed_batches(in) == dt_loader_batches(own) && dt_feed_epoch(in) == 0, "batches");
    int64_t count = 0, epoch = 0;
    while (dt_feed_epoch(in) < 3) {
        for (dt_batch a, b; dt_feed_next(in, &a); dt_end(), count++) {
            crew_check(k, dt_loader_next(own, &b) && a.n == b.n && a.epoch == b.epoch && a.index == b.index,
                       "its place");
            crew_check(k, same(a.x, b.x) && same(a.y, b.y), "the batch");
            crew_check(k, !memcmp(dt_feed_cursor(in), dt_loader_cursor(own), sizeof(dt_cursor)), "the cursor");
            crew_check(k, dt_feed_epoch(in) == dt_loader_epoch(own), "the epoch after it");
        }
        dt_batch b;
        crew_check(k, !dt_loader_next(own, &b), "the end of an epoch");
        epoch++;
    }
    crew_check(k, count == 3 * dt_loader_batches(own) && epoch == 3, "all of them");
    dt_feed_free(in); /* with a batch on its way */
    dt_loader_free(own);
    dt_dataset_free(set);
}
UTEST(feed, hands_out_what_a_loader_of_the_rank_would)
{
    for (int kind = 0; kind < 3; kind++) {
        EXPECT_EQ(0, crew_run("shm", 2, alike, &kind));
        EXPECT_EQ(0, crew_run("tcp", 3, alike, &kind));
    }
    int kind = 0;
    EXPECT_EQ(0, crew_run("shm", 1, alike, &kind));
}
static void taken_up(crew *k)
{
    dt_dataset    *set = images();
    dt_loader_opts o;
    memset((void *)&o, 0, sizeof o);
    o.batch = 4;
    o.shuffle = true;
    float     first[2][64 * SIDE * SIDE];
    dt_cursor place;
    for (int run = 0; run < 2; run++) { /* the batch behind the third, without and with a stop before it */
        dt_feed *in = dt_feed_new_with(k->rank == 0 ? set : NULL, k->c, o);
        dt_batch b;
        if (run) memcpy(dt_feed_cursor(in), &place, sizeof place);
        for (int i = 0; i < (run ? 0 : 3); i++) dt_feed_next(in, &b);
        place = *dt_feed_cursor(in);
        crew_check(k, dt_feed_state(in) && dt_numel(dt_feed_state(in)) * 8 == (int64_t)sizeof place, "state");
        crew_check(k, dt_feed_next(in, &b) && b.n == 3, "a batch");
        dt_copy_out(b.x, first[run], dt_nbytes(b.x));
        dt_end();
        dt_feed_free(in);
    }
    crew_check(k, !memcmp(first[0], first[1], 3 * SIDE * SIDE * sizeof(float)), "the same batch");
    dt_dataset_free(set);
}
UTEST(feed, goes_on_where_a_cursor_says) { EXPECT_EQ(0, crew_run("shm", 3, taken_up, NULL)); }
static int broken(void *user, int64_t i, void *x, void *y)
{
    (void)user, (void)y;
    if (i == 9) return dt_fail(DT_ERR_FILE, "item 9 is torn");
    memset(x, (int)i, 16);
    return 0;
}
static void fails(crew *k)
{
    dt_dataset *set = dt_source(.get = broken, .n = 12, .x_dtype = DT_U8, .x_shape = DT_SHAPE(16));
    dt_feed    *in = dt_feed_new(k->rank == 0 ? set : NULL, k->c, .batch = 2);
    int         n = 0;
    for (dt_batch b; dt_feed_next(in, &b); dt_end()) n++;
    crew_check(k,
               dt_error_code() == DT_ERR_FILE && strstr(dt_error(), "rank 0: ") && strstr(dt_error(), "item 9 is torn"),
               "everyone's error");
    crew_check(k, n == 2, "at the batch it concerns"); /* of 2 ranks: items 8 and 9 are in the third */
    dt_feed_free(in);
    dt_error_clear();
    in = dt_feed_new(NULL, k->c, .batch = 2);
    crew_check(k, !in && dt_error_code() != DT_OK, "no set");
    dt_error_clear();
    dt_dataset_free(set);
}
UTEST(feed, passes_an_error_on_to_all)
{
    EXPECT_EQ(0, crew_run("shm", 2, fails, NULL));
    EXPECT_EQ(0, crew_run("tcp", 2, fails, NULL));
}
static void leaves(crew *k)
{
    dt_dataset *set = images();
    dt_feed    *in = dt_feed_new(k->rank == 0 ? set : NULL, k->c, .batch = 2);
    int         n = 0;
    for (dt_batch b; dt_feed_next(in, &b) && n < 1000; dt_end()) {
        if (++n == 3 && k->rank == 1) raise(SIGKILL);
        dt_comm_barrier(k->c);
    }
    crew_check(k, dt_error_code() == DT_ERR_COMM || dt_comm_get_status(k->c), "an error");
    dt_error_clear();
    dt_feed_free(in);
    dt_error_clear();
    dt_dataset_free(set);
    k->box->number[k->rank] = 1;
}
UTEST(feed, ends_when_a_rank_dies)
{
    crew_box *box = crew_box_new();
    EXPECT_EQ(100, crew_run_in(box, "tcp", 3, leaves, NULL));
    EXPECT_TRUE(box->number[0] && box->number[2]);
    munmap(box, sizeof *box);
}
