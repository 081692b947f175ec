/* test_data_gzip.c: gzipped IDX files, with zlib: what is packed comes out; what is damaged, truncated or larger than
   it says is refused, and memory follows what has come, not what is announced.
   run: asan-only, zlib */
#if __has_include(<zlib.h>)
#define DT_USE_ZLIB
#endif
#define DT_DATA_IMPLEMENTATION /* with DT_USE_ZLIB */
#include "dt_data.h"

#include "dt_test.h"
#include "temp_files.h"

#include <stdint.h>
#include <string.h>

UTEST_MAIN()

#ifndef DT_USE_ZLIB
UTEST(gzip, zlib) { UTEST_SKIP("zlib.h is not installed: gzipped files are not tested"); }
#else
#define LLVMFuzzerTestOneInput fuzz_gzip
#include "fuzz/fuzz_gzip.c"
#undef LLVMFuzzerTestOneInput

static size_t pack(uint8_t *out, size_t room, const void *p, size_t n) { return fuzz_member(out, room, p, n, 6); }
/* n images of 2x2 whose bytes count up */
static size_t images(uint8_t *out, int n)
{
    uint8_t head[16] = { 0, 0, 8, 3, 0, 0, (uint8_t)(n >> 8), (uint8_t)n, 0, 0, 0, 2, 0, 0, 0, 2 };
    memcpy(out, head, 16);
    for (int i = 0; i < 4 * n; i++) out[16 + i] = (uint8_t)(i * 7 + i / 256);
    return 16 + 4 * (size_t)n;
}

UTEST(gzip, mnist_with_gz_is_the_same_set)
{
    static uint8_t x[80016], z[100000];
    uint8_t        y[8 + 20000] = { 0, 0, 8, 1, 0, 0, 20000 >> 8, 20000 & 255 }, got[4];
    char          *dir = temp_dir();
    int            before = temp_fds();
    int64_t        label;
    size_t         n = images(x, 20000), packed;
    for (int i = 0; i < 20000; i++) y[8 + i] = (uint8_t)(i % 10);
    packed = pack(z, sizeof z, x, n / 3); /* in three members, as gzip takes them */
    packed += pack(z + packed, sizeof z - packed, x + n / 3, n / 3);
    packed += pack(z + packed, sizeof z - packed, x + 2 * (n / 3), n - 2 * (n / 3));
    temp_put(dir, "train-images-idx3-ubyte.gz", z, packed);
    packed = pack(z, sizeof z, y, sizeof y);
    temp_put(dir, "train-labels-idx1-ubyte.gz", z, packed);
    dt_dataset *s = dt_mnist_open(dir, DT_TRAIN);
    ASSERT_OK(s);
    ASSERT_EQ(20000, (int)dt_dataset_len(s));
    EXPECT_EQ(before, temp_fds()); /* they are held in memory */
    for (int i = 0; i < 20000; i++) {
        EXPECT_OK(dt_dataset_get(s, i, got, &label));
        EXPECT_TRUE(label == i % 10);
        ASSERT_EQ(0, memcmp(got, x + 16 + 4 * i, 4));
    }
    dt_dataset_free(s);
    packed = pack(z, sizeof z, x, n);
    s = dt_idx_open(temp_put(dir, "no-suffix", z, packed)); /* known by its first bytes */
    EXPECT_EQ(20000, (int)dt_dataset_len(s));
    dt_dataset_free(s);
    memset(z + packed, 0, 500); /* padding of a tape */
    s = dt_idx_open(temp_put(dir, "padded", z, packed + 500));
    EXPECT_EQ(20000, (int)dt_dataset_len(s));
    dt_dataset_free(s);
    y[8] = 77;
    packed = pack(z, sizeof z, y, sizeof y);
    temp_put(dir, "train-labels-idx1-ubyte.gz", z, packed);
    EXPECT_ERROR(dt_mnist_open(dir, DT_TRAIN), "train-labels-idx1-ubyte.gz, byte 8: label 77, expected 0 to 9");
    temp_remove(dir);
}

UTEST(gzip, damage)
{
    uint8_t x[500] = { 0 }, z[1000], c[1000];
    char   *dir = temp_dir();
    int     before = temp_fds(), opened = 0;
    size_t  n = images(x, 100), packed = pack(z, sizeof z, x, n);
    for (size_t k = 0; k < packed; k++) EXPECT_ERROR(dt_idx_open(temp_put(dir, "cut.gz", z, k)), "cut.gz");
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "cut.gz", z, packed - 1)), "truncated: its gzip stream breaks off after");
    for (size_t k = 0; k < packed * 8;
         k++) { /* time and system in the header, bits behind the last code: nobody's business */
        memcpy(c, z, packed);
        c[k / 8] ^= (uint8_t)(1 << k % 8);
        dt_dataset *s = dt_idx_open(temp_put(dir, "bit.gz", c, packed));
        if (s) {
            EXPECT_EQ(100, (int)dt_dataset_len(s));
            EXPECT_OK(dt_dataset_get(s, 99, c, NULL));
            EXPECT_EQ(0, memcmp(c, x + n - 4, 4)); /* the sum tells: the images are right */
        } else EXPECT_EQ((int)DT_ERR_FILE, (int)dt_error_code());
        opened += s != NULL;
        dt_dataset_free(s);
        dt_error_clear();
    }
    EXPECT_GE(opened, 6 * 8);
    memcpy(c, z, packed);
    c[packed] = 'x';
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "more.gz", c, packed + 1)), "78 after the end of the gzip stream");
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "plain.gz", x, n)), "plain.gz, byte 2: the gzip stream is damaged");
    packed = pack(z, sizeof z, x, n - 1);
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "short.gz", z, packed)), "it unpacks to 415 bytes, its header expects 416");
    packed = pack(z, sizeof z, x, n + 1);
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "long.gz", z, packed)),
                 "unpacks to more than the 416 bytes its header expects");
    packed = pack(z, sizeof z, x, 7);
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "head.gz", z, packed)),
                 "it unpacks to 7 bytes, its header expects at least 8");
    packed = pack(z, sizeof z, "hello world", 11);
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "text.gz", z, packed)), "text.gz begins with 68 65 6c 6c, expected 00 00");
    EXPECT_EQ(before, temp_fds());
    temp_remove(dir);
}

UTEST(gzip, memory_follows_what_has_come)
{
    static uint8_t big[4000000], z[2000000];
    uint8_t        head[12] = { 0, 0, 14, 2, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1 };
    char          *dir = temp_dir();
    dt_test_budget   c;
    size_t         packed = pack(z, sizeof z, head, 12);
    ASSERT_EQ(0, dt_test_budget_set(&c, -1));
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "huge.gz", z, packed)), "bytes of gzip cannot hold that");
    EXPECT_LT((unsigned)c.peak, (1u << 20));
    memset(big, 0, 12); /* announces 3 MB, of which 1 MB comes */
    big[2] = 8, big[3] = 1, big[5] = 0x2d, big[6] = 0xc6, big[7] = 0xc0;
    for (int i = 8; i < 1000000; i++) big[i] = (uint8_t)((uint32_t)i * 2654435761u >> 13);
    packed = pack(z, sizeof z, big, 1000000);
    c.peak = c.live;
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "less.gz", z, packed)),
                 "it unpacks to 1000000 bytes, its header expects 3000008");
    EXPECT_LT((unsigned)c.peak, (2u << 20));
    memset(big + 8, 0, sizeof big - 8);
    big[4] = big[5] = 0; /* announces 50 KB, 4 MB come */
    packed = pack(z, sizeof z, big, 4000000);
    c.peak = c.live;
    EXPECT_ERROR(dt_idx_open(temp_put(dir, "bomb.gz", z, packed)), "more than the 50888 bytes");
    EXPECT_LT((unsigned)c.peak, (1u << 20));
    big[5] = 0x2d;
    packed = pack(z, sizeof z, big, 3000008);
    c.peak = c.live;
    dt_dataset *s = dt_idx_open(temp_put(dir, "right.gz", z, packed));
    EXPECT_EQ(3000000, (int)dt_dataset_len(s));
    EXPECT_LT((unsigned)c.peak, 2u * 3000000);
    dt_dataset_free(s);
    int64_t total = c.calls;
    EXPECT_EQ(0, temp_budget_end(&c));
    for (int64_t k = 0; k < total; k++) { /* each allocation fails in turn */
        ASSERT_EQ(0, dt_test_budget_set(&c, k));
        s = dt_idx_open(temp_in(dir, "right.gz"));
        if (!s) EXPECT_EQ((int)DT_ERR_MEMORY, (int)dt_error_code());
        dt_dataset_free(s);
        dt_error_clear();
        EXPECT_EQ(0, temp_budget_end(&c));
        if (c.calls <= k) break;
    }
    temp_remove(dir);
}

UTEST(gzip, corpus) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "gzip"), fuzz_gzip), 15); }
#endif
