/* test_lessons.c: the short examples as they are built: each ends well (it does so only if its loss fell), says what it is to say,
   lists its options with --help and refuses others. Longer ones are in test_examples.c.
   run: alone, asan-later */
#include "dt_test.h"
#include "temp_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

UTEST_MAIN()

/* Runs build/examples/line in this directory; its output and errors. Returns its exit status. */
static int run(const char *line, char *out, size_t nbytes)
{
    char command[5000];
    snprintf(command, sizeof command, "timeout -k 5 %.0f build/examples/%s 2>&1", 100 * dt_test_slow(), line);
    FILE  *f = popen(command, "r");
    size_t n = f ? fread(out, 1, nbytes - 1, f) : 0;
    out[n] = 0;
    int status = f ? pclose(f) : -1;
    return status >= 0 && status < 256 * 128 ? status / 256 : 255;
}
static char out[65536];

UTEST(lessons, each_does_what_it_says)
{
    static const char *const lessons[][2] = {
        { "tensors", "the last dimension of a must equal the second to last of b" },
        { "autograd --steps 200", "gradients agree with differences: yes" },
        { "custom_op --steps 100", "gradients agree with differences: yes" },
        { "mlp --epochs 2", "test accuracy " },
        { "amp_levels --epochs 1", "O3 " },
        { "amp_levels --epochs 1 --dtype bf16", "O3 " },
        { "ddp --epochs 2", "1 process: loss " },
        { "two_level", "        64 " },
        { "compression --epochs 1 --mbit 400", "auto " },
        { "hybrid --epochs 1", "difference of the losses: " },
        { "hybrid --epochs 1 --data 2 --pipe 1", "data 2 x pipe 1 x tensor 2: loss " },
        { "large_batch --epochs 2 --seeds 1 --target 50", "one cycle, " },
        { "embed --frames 300", "\n0 bytes are still held" },
        { "cpp --steps 100", "the product of two numbers: loss " },
        { "spirals", "" },
        { "allreduce 2", "by 2 ranks" },
    };
    for (size_t i = 0; i < sizeof lessons / sizeof *lessons; i++) {
        int status = run(lessons[i][0], out, sizeof out);
        EXPECT_TRUE_MSG(status == 0 && strstr(out, lessons[i][1]), (printf("    %s: status %d\n%s\n", lessons[i][0], status, out), lessons[i][0]));
    }
}
UTEST(lessons, vae_draws_digits)
{
    char       *dir = temp_dir(), line[4200], head[16] = "";
    snprintf(line, sizeof line, "vae --epochs 2 --out '%s/vae.pgm'", dir);
    EXPECT_TRUE_MSG(run(line, out, sizeof out) == 0, out);
    FILE *f = fopen(temp_in(dir, "vae.pgm"), "rb");
    ASSERT_TRUE(f && fread(head, 1, 15, f) == 15);
    fseek(f, 0, SEEK_END);
    EXPECT_TRUE(!strcmp(head, "P5\n64 64\n255\n\0") || !strncmp(head, "P5\n64 64\n255\n", 13));
    EXPECT_EQ(13 + 64 * 64, (int)ftell(f));
    fclose(f);
    snprintf(line, sizeof line, "vae --epochs 1 --out '%s/none/vae.pgm'", dir);
    EXPECT_EQ(1, run(line, out, sizeof out));
    EXPECT_TRUE(strstr(out, "No such file") != NULL);
    temp_remove(dir);
}
UTEST(lessons, options_are_listed_and_others_refused)
{
    static const char *const names[] = { "tensors", "autograd", "custom_op", "mlp", "vae", "amp_levels", "ddp", "two_level", "compression", "hybrid",
                                         "large_batch", "embed", "cpp", "spirals", "allreduce" };
    char line[100];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(line, sizeof line, "%s --help", names[i]);
        EXPECT_EQ(0, run(line, out, sizeof out));
        EXPECT_TRUE_MSG(!strncmp(out, names[i], strlen(names[i])), out);
        snprintf(line, sizeof line, "%s --no-such-option", names[i]);
        EXPECT_EQ(2, run(line, out, sizeof out));
        EXPECT_TRUE_MSG(strstr(out, "there is no option --no-such-option") != NULL, out);
    }
}
UTEST(lessons, bad_values_are_refused)
{
    static const char *const bad[][2] = {
        { "amp_levels --dtype f8", "expected f16 or bf16" },   { "two_level --gbit 0", "more than 0" },
        { "two_level --per-machine 100", "1 to 16" },          { "compression --mbit -1", "more than 0" },
        { "hybrid --pipe 0", "take 1 and more" },              { "hybrid --data 3", "divides the batch of 64" },
        { "large_batch --target 101", "--target 0 to 100" },   { "mlp --epochs many", "expected a whole number" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        EXPECT_EQ(2, run(bad[i][0], out, sizeof out));
        EXPECT_TRUE_MSG(strstr(out, bad[i][1]) != NULL, out);
    }
    EXPECT_EQ(1, run("mlp --data nowhere", out, sizeof out));
    EXPECT_TRUE_MSG(strstr(out, "nowhere/digits-images-idx3-ubyte") != NULL, out);
}
