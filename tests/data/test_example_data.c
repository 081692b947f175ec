/* What the examples share: options, and the digits at the size of a net. */
#include "dt_test.h"

#include "dt_data.h"
#include "examples/example_data.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char tmp[64];
static const char *in_tmp(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", tmp, name);
    return path;
}
/* an IDX file of n items of d x d bytes, or of one byte each (d 0); byte i of the data is i % 10 */
static void put_idx(const char *name, int n, int d)
{
    unsigned char b[16 + 1024] = { 0, 0, 8, (unsigned char)(d ? 3 : 1), 0, 0, 0, (unsigned char)n };
    int           head = d ? 16 : 8, all = n * (d ? d * d : 1);
    FILE         *f = fopen(in_tmp(name), "wb");
    if (d) b[11] = b[15] = (unsigned char)d;
    for (int i = 0; i < all; i++) b[head + i] = (unsigned char)(i % 10);
    if (f) fwrite(b, 1, (size_t)(head + all), f), fclose(f);
}

struct example {
    dt_dataset *train, *test;
};
UTEST_F_SETUP(example)
{
    utest_fixture->train = utest_fixture->test = NULL;
    strcpy(tmp, "/tmp/dt_example_data.XXXXXX");
    ASSERT_TRUE(mkdtemp(tmp) != NULL);
}
UTEST_F_TEARDOWN(example)
{
    (void)utest_result;
    dt_dataset_free(utest_fixture->train);
    dt_dataset_free(utest_fixture->test);
    unlink(in_tmp("digits-images-idx3-ubyte"));
    unlink(in_tmp("digits-labels-idx1-ubyte"));
    unlink(in_tmp("packed.gz"));
    rmdir(tmp);
}

UTEST_F(example, the_digits_are_split_and_shown_at_28_by_28)
{
    struct example *e = utest_fixture;
    static float    x[28][28];
    int64_t         y;
    ASSERT_OK(example_digits("data/digits", 1, 28, 3, &e->train, &e->test));
    EXPECT_EQ(1437, dt_dataset_len(e->train));
    EXPECT_EQ(360, dt_dataset_len(e->test));
    static const int first[8] = { 1, 2, 3, 4, 6, 7, 8, 9 }; /* the set begins 0, 1, 2 ... 9: 0 and 5 are for testing */
    for (int i = 0; i < 8; i++) {
        ASSERT_OK(dt_dataset_get(e->train, i, x, &y));
        EXPECT_EQ(first[i], y);
    }
    ASSERT_OK(dt_dataset_get(e->test, 359, x, &y));
    EXPECT_EQ(9, y); /* image 1795; the set ends 0, 8, 9, 8 */
    ASSERT_OK(dt_dataset_get(e->test, 0, x, &y));
    EXPECT_EQ(0, y);
    /* its first image has 5 at (0, 2) and 13 at (0, 3): nine pixels each, behind a border of two */
    for (int r = 2; r < 5; r++)
        for (int c = 0; c < 3; c++) {
            EXPECT_EQ(5 / 16.0f, x[r][8 + c]);
            EXPECT_EQ(13 / 16.0f, x[r][11 + c]);
        }
    for (int i = 0; i < 28; i++) {
        EXPECT_EQ(0.0f, x[1][i]);
        EXPECT_EQ(0.0f, x[26][i]);
        EXPECT_EQ(0.0f, x[i][1]);
        EXPECT_EQ(0.0f, x[i][26]);
    }
}

UTEST_F(example, every_channel_shows_the_whole_digit)
{
    struct example *e = utest_fixture;
    static float    x[3][32][32];
    put_idx("digits-images-idx3-ubyte", 6, 8);
    put_idx("digits-labels-idx1-ubyte", 6, 0);
    ASSERT_OK(example_digits(tmp, 3, 32, 4, &e->train, &e->test));
    ASSERT_EQ(4, dt_dataset_len(e->train));
    ASSERT_EQ(2, dt_dataset_len(e->test));
    ASSERT_OK(dt_dataset_get(e->test, 0, x, NULL));
    for (int k = 0; k < 3 * 32 * 32; k++) {
        int r = k / 32 % 32 / 4, c = k % 32 / 4;
        float want = (float)((8 * r + c) % 10) / 16;
        EXPECT_EQ(want, (&x[0][0][0])[k]);
    }
}

UTEST_F(example, digits_of_another_size_and_missing_ones_are_errors)
{
    struct example *e = utest_fixture;
    EXPECT_ERROR(example_digits(tmp, 1, 28, 3, &e->train, &e->test), "digits-images-idx3-ubyte");
    put_idx("digits-images-idx3-ubyte", 6, 9);
    put_idx("digits-labels-idx1-ubyte", 6, 0);
    EXPECT_ERROR(example_digits(tmp, 1, 28, 3, &e->train, &e->test), "are not u8 of shape (8, 8)");
    put_idx("digits-images-idx3-ubyte", 6, 8);
    dt_fail(DT_ERR_ARG, "an earlier one");
    EXPECT_EQ(DT_ERR_ARG, example_digits(tmp, 1, 28, 3, &e->train, &e->test));
    EXPECT_STREQ("an earlier one", dt_error());
    EXPECT_TRUE(e->train == NULL && e->test == NULL);
    dt_error_clear();
}

UTEST_F(example, files_are_found_gzipped_or_not)
{
    (void)utest_fixture;
    put_idx("digits-images-idx3-ubyte", 1, 8);
    put_idx("packed.gz", 1, 8);
    EXPECT_TRUE(example_has_digits(tmp));
    EXPECT_TRUE(example_has(tmp, "packed"));
    EXPECT_FALSE(example_has(tmp, "nothing"));
}

UTEST(example_option, is_the_word_behind_its_name)
{
    char  p[] = "program", name[] = "--data", value[] = "--lr";
    char *argv[] = { p, name, value };
    EXPECT_STREQ("--lr", example_option(3, argv, "--data", "x"));
    EXPECT_STREQ("x", example_option(3, argv, "--lr", "x")); /* nothing is behind it */
    EXPECT_STREQ("x", example_option(3, argv, "--batch", "x"));
}

/* The exit status of a program with this help and up to two words on its command line. */
static int parsed(const char *help, const char *a, const char *b)
{
    char  text[3][64], *argv[4] = { text[0], text[1], text[2], NULL };
    int   argc = 1 + (a != NULL) + (b != NULL);
    snprintf(text[0], sizeof text[0], "program");
    snprintf(text[1], sizeof text[1], "%s", a ? a : "");
    snprintf(text[2], sizeof text[2], "%s", b ? b : "");
    return example_options(argc, argv, help);
}
UTEST(example_options, are_the_words_with_dashes_in_the_help)
{
    const char *help = "program [options]: text\n    --steps N   10   --lr X   (--rate X is the same) as --flag, of\n    --out FILE  a file\n";
    EXPECT_EQ(-1, parsed(help, NULL, NULL));
    EXPECT_EQ(-1, parsed(help, "--flag", NULL));
    EXPECT_EQ(-1, parsed(help, "--steps", "-3"));
    EXPECT_EQ(-1, parsed(help, "--rate", "1e-3"));
    EXPECT_EQ(-1, parsed(help, "--out", "--flag")); /* a value may begin with dashes */
    EXPECT_EQ(0, parsed(help, "--help", NULL));
    EXPECT_EQ(2, parsed(help, "--step", "3"));
    EXPECT_EQ(2, parsed(help, "--stepss", "3"));
    EXPECT_EQ(2, parsed(help, "--", NULL));
    EXPECT_EQ(2, parsed(help, "--an-option-that-is-longer-than-all-that-there-are", NULL));
    EXPECT_EQ(2, parsed(help, "--steps", NULL));
    EXPECT_EQ(2, parsed(help, "--steps", "3.5"));
    EXPECT_EQ(2, parsed(help, "--steps", ""));
    EXPECT_EQ(2, parsed(help, "--lr", "small"));
    EXPECT_EQ(2, parsed(help, "3", NULL));
    EXPECT_EQ(-1, parsed("program [N]: text\n", "3", NULL));
    EXPECT_EQ(2, parsed("program [N]: text\n", "-3", NULL));
}

UTEST_MAIN()
