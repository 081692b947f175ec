/* The examples' reader of IDX files: what it gives, and that no broken file gets past it. */
#include "dt_test.h"

#include "../examples/example_data.h"

#include <dirent.h>
#include <sys/stat.h>

static char tmp[64];
static void tmp_make(void)
{
    strcpy(tmp, "/tmp/dt_example_data.XXXXXX");
    if (!mkdtemp(tmp)) tmp[0] = 0;
}
static void tmp_remove(void)
{
    DIR *d = opendir(tmp);
    char path[512];
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", tmp, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(tmp);
}
static const char *in_tmp(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", tmp, name);
    return path;
}
static void put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_tmp(name), "wb");
    if (f) fwrite(bytes, 1, n, f), fclose(f);
}
/* an IDX file: dimensions d0, d1, d2 as far as ndim, byte i of the data is i * 7 % mod; 'more' bytes too many */
static void put_idx(const char *name, int ndim, uint32_t d0, uint32_t d1, uint32_t d2, int mod, long more)
{
    unsigned char b[16 + 4096] = { 0, 0, 8, (unsigned char)ndim };
    uint32_t      d[3] = { d0, d1, d2 };
    size_t        n = 1, head = (size_t)(4 + 4 * ndim);
    for (int i = 0; i < ndim; i++) {
        for (int k = 0; k < 4; k++) b[4 + 4 * i + k] = (unsigned char)(d[i] >> (24 - 8 * k));
        n *= d[i];
    }
    n = (size_t)((long)n + more);
    for (size_t i = 0; i < n; i++) b[head + i] = (unsigned char)(i * 7 % (size_t)mod);
    put(name, b, head + n);
}
static void put_set(const char *images, const char *labels, uint32_t n, uint32_t side)
{
    put_idx(images, 3, n, side, side, side == 8 ? 17 : 256, 0);
    put_idx(labels, 1, n, 0, 0, 10, 0);
}
static void put_mnist(void)
{
    put_set("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 4, 28);
    put_set("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 2, 28);
}

struct example { int unused; };
UTEST_F_SETUP(example)
{
    (void)utest_fixture;
    tmp_make();
    ASSERT_TRUE(tmp[0] != 0);
}
UTEST_F_TEARDOWN(example)
{
    (void)utest_fixture, (void)utest_result;
    tmp_remove();
}

UTEST_F(example, the_digits_are_split_and_shown_at_28_by_28)
{
    (void)utest_fixture;
    example_data d;
    FILE        *seen = tmpfile();
    int          before = dup(2);
    char         line[512] = "";
    ASSERT_TRUE(seen != NULL);
    fflush(stderr);
    dup2(fileno(seen), 2);
    int rc = example_load(&d, tmp); /* nothing is there */
    dup2(before, 2);
    close(before);
    ASSERT_EQ(0, rc);
    rewind(seen);
    EXPECT_TRUE(fgets(line, sizeof line, seen) != NULL && strstr(line, "1797 digits of data/digits"));
    EXPECT_TRUE(fgets(line, sizeof line, seen) == NULL);
    fclose(seen);
    EXPECT_EQ(1437, d.train.n);
    EXPECT_EQ(360, d.test.n);

    static float x[1437 * EXAMPLE_PIXELS];
    int64_t      y[1437], index[1437];
    for (int i = 0; i < 1437; i++) index[i] = i;
    example_batch(&d.train, index, 1437, x, y);
    static const int first[8] = { 1, 2, 3, 4, 6, 7, 8, 9 }; /* the set begins 0, 1, 2 ... 9: 0 and 5 are for testing */
    for (int i = 0; i < 8; i++) EXPECT_EQ(first[i], y[i]);
    double sum = 0, squares = 0, n = 1437.0 * EXAMPLE_PIXELS;
    for (int64_t i = 0; i < 1437 * EXAMPLE_PIXELS; i++) sum += (double)x[i], squares += (double)x[i] * (double)x[i];
    EXPECT_NEAR(0, sum / n, 1e-5);
    EXPECT_NEAR(1, squares / n, 1e-5);

    index[0] = 0;
    example_batch(&d.test, index, 1, x, y);
    EXPECT_EQ(0, y[0]);
    /* its first image has 5 at (0, 2) and 13 at (0, 3): nine pixels each, behind a border of two */
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 3; c++) {
            EXPECT_NEAR(5 / 16.0, (double)x[(2 + r) * 28 + 8 + c] * d.std + d.mean, 1e-6);
            EXPECT_NEAR(13 / 16.0, (double)x[(2 + r) * 28 + 11 + c] * d.std + d.mean, 1e-6);
        }
    for (int i = 0; i < 28; i++) {
        EXPECT_NEAR(0, (double)x[1 * 28 + i] * d.std + d.mean, 1e-6);
        EXPECT_NEAR(0, (double)x[i * 28 + 26] * d.std + d.mean, 1e-6);
    }
    index[0] = 359;
    example_batch(&d.test, index, 1, x, y);
    EXPECT_EQ(9, y[0]); /* image 1795; the set ends 0, 8, 9, 8 */
    example_free(&d);
}

UTEST_F(example, four_files_of_mnist_are_taken_as_they_are)
{
    (void)utest_fixture;
    example_data d;
    float        x[2 * EXAMPLE_PIXELS];
    int64_t      y[2], index[2] = { 1, 0 };
    put_mnist();
    ASSERT_OK(example_load(&d, tmp));
    EXPECT_STREQ(tmp, d.from);
    EXPECT_EQ(4, d.train.n);
    EXPECT_EQ(2, d.test.n);
    example_batch(&d.test, index, 2, x, y);
    EXPECT_EQ(7, y[0]);
    EXPECT_EQ(0, y[1]);
    EXPECT_NEAR((EXAMPLE_PIXELS + 5) * 7 % 256 / 255.0, (double)x[5] * d.std + d.mean, 1e-6);
    EXPECT_NEAR(783 * 7 % 256 / 255.0, (double)x[EXAMPLE_PIXELS + 783] * d.std + d.mean, 1e-6);
    example_free(&d);
    EXPECT_TRUE(d.mem[0] == NULL);
}

UTEST_F(example, a_blank_set_has_no_infinities)
{
    (void)utest_fixture;
    example_data d;
    float        x[EXAMPLE_PIXELS];
    int64_t      index = 0;
    put_mnist();
    put_idx("train-images-idx3-ubyte", 3, 4, 28, 28, 1, 0);
    ASSERT_OK(example_load(&d, tmp));
    example_batch(&d.train, &index, 1, x, NULL);
    for (int i = 0; i < EXAMPLE_PIXELS; i++) EXPECT_EQ(0.0f, x[i]);
    example_free(&d);
}

UTEST_F(example, a_file_of_any_other_length_is_refused)
{
    (void)utest_fixture;
    example_data  d;
    int64_t       dim[3];
    unsigned char raw[8192];
    put_mnist();
    FILE *f = fopen(in_tmp("train-labels-idx1-ubyte"), "rb");
    ASSERT_TRUE(f != NULL);
    size_t all = fread(raw, 1, sizeof raw, f);
    fclose(f);
    ASSERT_EQ((size_t)12, all);
    for (size_t n = 0; n < all; n++) { /* cut after each byte */
        put("cut", raw, n);
        EXPECT_ERROR(example_idx(in_tmp("cut"), 1, dim), n < 8 ? "of its header" : "its header announces 4");
    }
    put_idx("train-labels-idx1-ubyte", 1, 4, 0, 0, 10, 1);
    EXPECT_ERROR(example_load(&d, tmp), "holds 5 bytes of data, its header announces 4");
    EXPECT_TRUE(d.mem[0] == NULL); /* nothing is left behind */
    put_idx("train-images-idx3-ubyte", 3, 4, 28, 28, 256, -1);
    EXPECT_ERROR(example_load(&d, tmp), "train-images-idx3-ubyte holds 3135 bytes");
}

UTEST_F(example, other_kinds_of_files_are_named)
{
    (void)utest_fixture;
    static const struct {
        unsigned char head[4];
        const char   *part;
    } kind[] = { { { 0x1f, 0x8b, 8, 0 }, "gzipped" },     { { 0, 0, 8, 3 }, "begins with 00000803, not with 00000801" },
                 { { 0, 0, 13, 1 }, "begins with 00000d01" }, { { 1, 0, 8, 1 }, "begins with 01000801" },
                 { { 0, 1, 8, 1 }, "begins with 00010801" }, { { 'P', 'K', 3, 4 }, "not an IDX file" } };
    unsigned char raw[16] = { 0 };
    int64_t       dim[3];
    for (size_t i = 0; i < sizeof kind / sizeof kind[0]; i++) {
        memcpy(raw, kind[i].head, 4);
        put("other", raw, sizeof raw);
        EXPECT_ERROR(example_idx(in_tmp("other"), 1, dim), kind[i].part);
    }
    EXPECT_ERROR(example_idx(tmp, 1, dim), "cannot read");
    EXPECT_ERROR(example_idx(in_tmp("nothing"), 1, dim), "No such file");
}

UTEST_F(example, dimensions_that_overflow_or_vanish_are_refused)
{
    (void)utest_fixture;
    int64_t       dim[3];
    unsigned char raw[16] = { 0, 0, 8, 3 };
    memset(raw + 4, 0xff, 12); /* 2^96 bytes */
    put("huge", raw, sizeof raw);
    EXPECT_ERROR(example_idx(in_tmp("huge"), 3, dim), "announces 18446744073709551615");
    memset(raw + 4, 0, 12);
    raw[4] = raw[8] = raw[12] = 0x80; /* 2^93: 0 in 64 bits */
    put("huge", raw, sizeof raw);
    EXPECT_ERROR(example_idx(in_tmp("huge"), 3, dim), "announces 18446744073709551615");
    memset(raw + 4, 0, 12);
    raw[7] = raw[15] = 1;
    put("none", raw, sizeof raw);
    EXPECT_ERROR(example_idx(in_tmp("none"), 3, dim), "is empty");
}

UTEST_F(example, images_and_labels_must_fit_each_other)
{
    (void)utest_fixture;
    example_data d;
    put_mnist();
    put_idx("train-labels-idx1-ubyte", 1, 5, 0, 0, 10, 0);
    EXPECT_ERROR(example_load(&d, tmp), "has 4 images");
    put_mnist();
    put_idx("t10k-labels-idx1-ubyte", 1, 2, 0, 0, 10, 0);
    put_idx("t10k-images-idx3-ubyte", 3, 2, 8, 8, 17, 0);
    EXPECT_ERROR(example_load(&d, tmp), "differ in size");
    put_idx("t10k-images-idx3-ubyte", 3, 2, 28, 27, 17, 0);
    EXPECT_ERROR(example_load(&d, tmp), "28 x 27");
    put_mnist();
    put_idx("t10k-labels-idx1-ubyte", 1, 2, 0, 0, 100, 0);
    EXPECT_OK(example_load(&d, tmp)); /* 0 and 7 */
    example_free(&d);
    put_idx("train-labels-idx1-ubyte", 1, 4, 0, 0, 100, 0);
    EXPECT_ERROR(example_load(&d, tmp), "label 2 of");
    put_mnist();
    unlink(in_tmp("t10k-labels-idx1-ubyte"));
    EXPECT_ERROR(example_load(&d, tmp), "t10k-labels-idx1-ubyte: No such file");
}

UTEST_F(example, nothing_is_loaded_while_an_error_is_pending)
{
    (void)utest_fixture;
    example_data d;
    put_mnist();
    dt_fail(DT_ERR_ARG, "an earlier one");
    EXPECT_EQ(DT_ERR_ARG, example_load(&d, tmp));
    EXPECT_STREQ("an earlier one", dt_error());
    EXPECT_TRUE(d.mem[0] == NULL);
    dt_error_clear();
}

UTEST_MAIN()
