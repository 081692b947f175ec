/* test_harness.c - the harness itself: exit codes, filters, time-outs, XML, tensor comparisons, forked ranks.
   The program runs itself with DT_HARNESS_CHILD set; then the tests of the sets "fix" and "many" are the ones that
   exist, most of which fail by intent, and the others do not. With another utest.h (make UTEST=dir) it is skipped.
   run: alone, asan-later */
#include "dt_test.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef UTEST_OF_DT
UTEST(harness, of_dt) { UTEST_SKIP("it tests tests/utest.h, and another utest.h is used"); }
UTEST_MAIN()
#else
/* ==================================================================================================== >>fix
   What the child runs. */
UTEST(fix, passes) { EXPECT_EQ(1, 1); }
UTEST(fix, fails) { EXPECT_EQ_MSG(41, 42, "<&\"msg\">"); }
UTEST(fix, skips) { UTEST_SKIP("not today"); }
UTEST(fix, asserts)
{
    ASSERT_TRUE(false);
    printf("went on\n");
}
UTEST(fix, crashes)
{
    signal(SIGABRT, SIG_DFL);
    abort();
}
UTEST(fix, exits) { exit(0); }
UTEST(fix, spins)
{
    for (volatile int i = 0;;) i = i + 1;
}

static void *wait_for_ever(void *arg)
{
    for (;;) pause();
    return arg;
}
UTEST(fix, joins) /* a test that waits for a thread that never ends, its own signals blocked */
{
    pthread_t t;
    sigset_t  all;
    ASSERT_EQ(0, pthread_create(&t, NULL, wait_for_ever, NULL));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_join(t, NULL);
}

UTEST(fix, blocks) /* a test whose only thread takes no signals */
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (;;) pause();
}

static void fail_1000_times(int *utest_result)
{
    for (int i = 0; i < 1000; i++) EXPECT_TRUE(i < 0);
}
static void *fail_often(void *arg)
{
    fail_1000_times((int *)arg);
    return NULL;
}
UTEST(fix, fails_in_threads)
{
    pthread_t t[2];
    for (int i = 0; i < 2; i++) ASSERT_EQ(0, pthread_create(&t[i], NULL, fail_often, utest_result));
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
}

struct many {
    int unused;
};
UTEST_I_SETUP(many) { utest_fixture->unused = 0; }
UTEST_I_TEARDOWN(many) { EXPECT_EQ(0, utest_fixture->unused); }
UTEST_I(many, fails, 300) { EXPECT_EQ((size_t)300, utest_index); }

UTEST(fix, types)
{
    unsigned char u8 = 200;
    int64_t       i64 = INT64_MIN;
    EXPECT_EQ(u8, 201);
    EXPECT_EQ(i64, (int64_t)0);
    EXPECT_EQ(UINT64_MAX, (uint64_t)0);
    EXPECT_EQ(0.1f, 0.2f);
    EXPECT_LT(0.1, -2.5);
    EXPECT_NE((void *)0, (void *)0);
    EXPECT_STREQ("left", "right");
    EXPECT_NEAR(1.0, 1.5, 0.25);
}

static dt_tensor *numbers(dt_dtype dtype, int64_t from) /* (2, 3): from, from + 1, ... */
{
    dt_make_opts o = { 0 };
    o.dtype = dtype;
    return dt_reshape(dt_arange_with((double)from, (double)from + 6, 1, o), DT_SHAPE(2, 3));
}
UTEST(fix, close)
{
    float want[6] = { 0, 1, 2, 3, 4.5f, 5.25f };
    EXPECT_CLOSE(numbers(DT_F32, 0), want, 6, 0.1, 0);
    dt_end();
}
UTEST(fix, close_half)
{
    double want[6] = { 0, 1, 2, 3, 4, 5.015625 };
    EXPECT_CLOSE_D(numbers(DT_F16, 0), want, 6, 0, dt_test_rtol(DT_F16, 1));
    dt_end();
}
UTEST(fix, close_nan)
{
    float want[6] = { 0, 1, NAN, 3, 4, 5 };
    EXPECT_CLOSE(numbers(DT_F32, 0), want, 6, 1e30, 1e30);
    dt_end();
}
UTEST(fix, close_count)
{
    float want[6] = { 0, 1, 2, 3, 4, 5 };
    EXPECT_CLOSE(numbers(DT_F32, 0), want, 5, 1, 1);
    dt_end();
}
UTEST(fix, ints)
{
    int64_t want[6] = { 0, 1, 2, 3, 4, 6 };
    EXPECT_INTS(numbers(DT_I64, 0), want, 6);
    dt_end();
}
UTEST(fix, bits)
{
    EXPECT_SAME_BITS(numbers(DT_F32, 0), dt_add_scalar(numbers(DT_F32, 0), 0x1p-20));
    dt_end();
}
UTEST(fix, bits_dtype)
{
    EXPECT_SAME_BITS(numbers(DT_F32, 0), numbers(DT_BF16, 0));
    dt_end();
}
UTEST(fix, shape)
{
    EXPECT_SHAPE(numbers(DT_F32, 0), DT_SHAPE(3, 2));
    dt_end();
}
UTEST(fix, null)
{
    EXPECT_CLOSE(dt_reshape(numbers(DT_F32, 0), DT_SHAPE(5)), NULL, 5, 0, 0);
    EXPECT_TRUE(dt_error() == NULL);
    dt_end();
}
UTEST(fix, no_error)
{
    EXPECT_ERROR(numbers(DT_F32, 0), "anything");
    dt_end();
}
UTEST(fix, other_error)
{
    EXPECT_ERROR(dt_reshape(numbers(DT_F32, 0), DT_SHAPE(5)), "no such words");
    dt_end();
}
UTEST(fix, not_ok)
{
    EXPECT_OK(dt_reshape(numbers(DT_F32, 0), DT_SHAPE(5)));
    dt_end();
}

static int mixed_ranks(int rank, void *arg)
{
    (void)arg;
    if (rank == 1) return 7;
    if (rank == 2) raise(SIGKILL);
    if (rank == 3) wait_for_ever(NULL);
    return 0;
}
UTEST(fix, ranks) { EXPECT_EQ(0, dt_test_ranks(5, 1.0, mixed_ranks, NULL)); }

/* ==================================================================================================== >>child */
typedef struct child {
    int  status; /* exit status, or -signal */
    char text[200000];
} child;

static child run; /* one at a time */

/* Runs this program with up to 3 flags; env: NAME=value or NULL. Its output, stderr as well, lands in run.text. */
static int start(const char *env, const char *a, const char *b, const char *c)
{
    int    fd[2], status;
    size_t used = 0;
    char   self[4096];
    memset(&run, 0, sizeof run);
    run.status = -1000;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len <= 0 || pipe(fd) != 0) return run.status;
    self[len] = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char *argv[5], *set = env ? strdup(env) : NULL;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        setenv("DT_HARNESS_CHILD", "1", 1);
        if (set) putenv(set);
        argv[0] = self;
        argv[1] = (char *)(uintptr_t)a;
        argv[2] = (char *)(uintptr_t)b;
        argv[3] = (char *)(uintptr_t)c;
        argv[4] = NULL;
        execv(self, argv);
        _exit(127);
    }
    close(fd[1]);
    for (ssize_t n; (n = read(fd[0], run.text + used, sizeof run.text - 1 - used)) > 0;) used += (size_t)n;
    close(fd[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return run.status;
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return run.status;
}

static int has(const char *part)
{
    if (strstr(run.text, part)) return 1;
    printf("   '%s' is not in the output of the child:\n%.4000s\n", part, run.text);
    return 0;
}

static int count(const char *part)
{
    int n = 0;
    for (const char *p = run.text; (p = strstr(p, part)) != NULL; p++) n++;
    return n;
}

static const char *last_line(void)
{
    size_t n = strlen(run.text);
    if (n > 0 && run.text[n - 1] == '\n') run.text[--n] = 0;
    const char *p = strrchr(run.text, '\n');
    return p ? p + 1 : run.text;
}

/* ==================================================================================================== >>main flags */
UTEST(harness, a_pass_exits_with_0)
{
    ASSERT_EQ(0, start(NULL, "--filter=fix.passes", NULL, NULL));
    EXPECT_TRUE(has("[ RUN      ] fix.passes\n[       OK ] fix.passes ("));
    EXPECT_TRUE(has("[==========] Running 1 test cases.\n"));
    EXPECT_TRUE(has("[==========] 1 test cases ran.\n[  PASSED  ] 1 tests.\n"));
    EXPECT_STREQ("1 passed, 0 failed, 0 skipped", last_line());
}

UTEST(harness, a_failure_exits_with_1_and_shows_both_values)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.fails", NULL, NULL));
    EXPECT_TRUE(has("Expected : 41 == 42"));
    EXPECT_TRUE(has("Message : <&\"msg\">"));
    EXPECT_TRUE(has("[  FAILED  ] fix.fails"));
    EXPECT_STREQ("0 passed, 1 failed, 0 skipped", last_line());
}

UTEST(harness, three_hundred_failures_exit_with_1)
{
    ASSERT_EQ(1, start(NULL, "--filter=many.*", NULL, NULL));
    EXPECT_EQ(300, count("[ RUN      ] many.fails/"));
    EXPECT_STREQ("0 passed, 300 failed, 0 skipped", last_line());
}

UTEST(harness, a_skip_exits_with_0)
{
    ASSERT_EQ(0, start(NULL, "--filter=fix.skips", NULL, NULL));
    EXPECT_TRUE(has("Skipped : 'not today'"));
    EXPECT_STREQ("0 passed, 0 failed, 1 skipped", last_line());
}

UTEST(harness, an_assert_leaves_the_test)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.asserts", NULL, NULL));
    EXPECT_EQ(0, count("went on"));
}

UTEST(harness, a_filter_without_a_match_exits_with_1)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.nothing*", NULL, NULL));
    EXPECT_TRUE(has("'fix.nothing*' matches no test"));
}

UTEST(harness, a_filter_takes_stars_anywhere_and_no_parts)
{
    ASSERT_EQ(0, start(NULL, "--list-tests", "--filter=f*x.*_h*f", NULL));
    EXPECT_STREQ("fix.close_half", last_line());
    EXPECT_EQ(1, start(NULL, "--filter=fix.pass", NULL, NULL));
    EXPECT_EQ(1, start(NULL, "--filter=", NULL, NULL));
}

UTEST(harness, an_unknown_flag_exits_with_1)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.passes", "--fliter=fix.fails", NULL));
    EXPECT_TRUE(has("--fliter"));
    EXPECT_EQ(0, count("[ RUN "));
    EXPECT_EQ(1, start(NULL, "--random-order=banana", NULL, NULL));
    EXPECT_EQ(1, start(NULL, "fix.passes", NULL, NULL));
}

UTEST(harness, help_and_list_exit_with_0)
{
    ASSERT_EQ(0, start(NULL, "--help", NULL, NULL));
    EXPECT_TRUE(has("--random-order"));
    ASSERT_EQ(0, start(NULL, "--list-tests", NULL, NULL));
    EXPECT_TRUE(has("fix.passes\n"));
    EXPECT_TRUE(has("many.fails/299\n"));
    EXPECT_EQ(0, count("[ RUN "));
}

UTEST(harness, random_order_prints_a_seed_that_repeats_it)
{
    char first[20000], flag[64];
    ASSERT_EQ(1, start(NULL, "--filter=many.*", "--random-order", NULL));
    const char *seed = strstr(run.text, "--random-order=");
    ASSERT_TRUE(seed != NULL);
    ASSERT_EQ(1, sscanf(seed, "%63s", flag));
    snprintf(first, sizeof first, "%s", strstr(run.text, "[  FAILED  ] 300 tests, listed below:"));
    ASSERT_EQ(1, start(NULL, "--filter=many.*", flag, NULL));
    EXPECT_TRUE(has(first));
    ASSERT_EQ(1, start(NULL, "--filter=many.*", "--random-order=1", NULL));
    EXPECT_EQ(0, count(first)); /* one order in 300! */
}

/* ==================================================================================================== >>bad ends */
UTEST(harness, a_crash_names_its_test)
{
    EXPECT_NE(0, start(NULL, "--filter=fix.*s", NULL, NULL)); /* passes, fails, skips, asserts, crashes */
    const char *run_line = strstr(run.text, "[ RUN      ] fix.crashes\n");
    ASSERT_TRUE(run_line != NULL);
    EXPECT_TRUE(strstr(run_line + 1, "[ RUN ") == NULL);
    EXPECT_TRUE(strstr(run.text, " passed, ") == NULL);
}

UTEST(harness, an_exit_inside_a_test_is_a_failure)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.exits", NULL, NULL));
    EXPECT_TRUE(has("fix.exits called exit"));
    EXPECT_STREQ("0 passed, 1 failed, 0 skipped", last_line());
}

/* Whether the child was ended by the watchdog in this test. ThreadSanitizer keeps signals from a loop that calls
   nothing: there the kernel's timer ends it, and the [ RUN ] line is what names it. */
static int killed_in(const char *test)
{
    char text[128];
    snprintf(text, sizeof text, "[ RUN      ] %s\n", test);
    if (run.status == -SIGKILL) return has(text);
    snprintf(text, sizeof text, "%s did not end in time and was killed", test);
    return run.status == 1 && has(text) && strcmp(last_line(), "0 passed, 1 failed, 0 skipped") == 0;
}

UTEST(harness, an_endless_test_is_killed_and_named)
{
    int64_t start_ns = dt_test_ns();
    start("DT_TEST_TIMEOUT=0.2", "--filter=fix.spins", NULL, NULL);
    EXPECT_TRUE(killed_in("fix.spins"));
#if !defined(__SANITIZE_THREAD__)
    EXPECT_EQ(1, run.status);
#endif
    EXPECT_LT((double)(dt_test_ns() - start_ns) * 1e-9, 30.0 * dt_test_slow());
}

UTEST(harness, the_slow_factor_scales_the_limit)
{
    start("DT_TEST_SLOW=0.002", "--filter=fix.spins", NULL, NULL); /* 60 s * 0.002 */
    EXPECT_TRUE(killed_in("fix.spins"));
}

UTEST(harness, an_endless_test_with_threads_is_killed_and_named)
{
    start("DT_TEST_TIMEOUT=0.2", "--filter=fix.joins", NULL, NULL);
    EXPECT_TRUE(killed_in("fix.joins"));
}

UTEST(harness, an_endless_test_that_blocks_signals_is_killed)
{
    int status = start("DT_TEST_TIMEOUT=0.1", "--filter=fix.blocks", NULL, NULL);
    EXPECT_TRUE(status == -SIGKILL || status == 1); /* 1: a library's own thread took the signal */
    EXPECT_TRUE(has("[ RUN      ] fix.blocks\n"));
}

UTEST(harness, failures_of_threads_are_counted_and_not_all_shown)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.fails_in_threads", NULL, NULL));
    EXPECT_TRUE(has("further failures of the test are not shown"));
    EXPECT_EQ((int)UTEST_SHOWN_MAX, count("Expected : true\n"));
    EXPECT_STREQ("0 passed, 1 failed, 0 skipped", last_line());
}

/* ==================================================================================================== >>xml */
struct xml {
    char path[64], flag[96], text[20000];
};
UTEST_F_SETUP(xml)
{
    snprintf(utest_fixture->path, sizeof utest_fixture->path, "/tmp/dt_harness_XXXXXX");
    int fd = mkstemp(utest_fixture->path);
    ASSERT_GE(fd, 0);
    close(fd);
    snprintf(utest_fixture->flag, sizeof utest_fixture->flag, "--output=%s", utest_fixture->path);
}
UTEST_F_TEARDOWN(xml) { EXPECT_EQ(0, unlink(utest_fixture->path)); }

static void read_xml(struct xml *x)
{
    FILE *f = fopen(x->path, "r");
    if (!f) return;
    x->text[fread(x->text, 1, sizeof x->text - 1, f)] = 0;
    fclose(f);
}

/* Tags nest and close, attributes are quoted, & starts a known entity; 0 or the place that is wrong plus one. */
static long malformed(const char *s)
{
    char        open[16][32];
    int         depth = 0;
    const char *p = s;
    if (strncmp(p, "<?xml", 5) != 0 || !(p = strstr(p, "?>"))) return 1;
    for (p += 2; *p;) {
        const char *at = p;
        char        name[32] = "";
        if (*p != '<') {
            if (*p++ == '&') return at - s + 1;
            continue;
        }
        int closing = p[1] == '/', n = 0;
        p += 1 + closing;
        if (sscanf(p, "%31[a-z]%n", name, &n) != 1) return at - s + 1;
        for (p += n; *p && *p != '>' && *p != '/'; p++) {
            if (*p != '"') continue;
            for (p++; *p && *p != '"'; p++)
                if (*p == '<' || (*p == '&' && strncmp(p, "&lt;", 4) && strncmp(p, "&gt;", 4) &&
                                  strncmp(p, "&#10;", 5) && strncmp(p, "&amp;", 5) && strncmp(p, "&quot;", 6)))
                    return p - s + 1;
        }
        int empty = *p == '/';
        p += empty;
        if (*p++ != '>') return at - s + 1;
        if (closing && (depth == 0 || strcmp(open[--depth], name) != 0)) return at - s + 1;
        if (!closing && !empty) {
            if (depth == 16) return at - s + 1;
            snprintf(open[depth++], sizeof open[0], "%s", name);
        }
    }
    return depth == 0 ? 0 : p - s + 1;
}

UTEST_F(xml, carries_failures_and_skips)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.*ils", utest_fixture->flag, NULL));
    read_xml(utest_fixture);
    EXPECT_EQ(0, malformed(utest_fixture->text));
    EXPECT_TRUE(strstr(utest_fixture->text, "tests=\"1\" failures=\"000001\"") != NULL);
    EXPECT_TRUE(strstr(utest_fixture->text, "classname=\"fix\" name=\"fails\"") != NULL);
    EXPECT_TRUE(strstr(utest_fixture->text, "Expected : 41 == 42") != NULL);
    EXPECT_TRUE(strstr(utest_fixture->text, "Message : &lt;&amp;&quot;msg&quot;&gt;") != NULL);
    ASSERT_EQ(0, start(NULL, "--filter=fix.skips", utest_fixture->flag, NULL));
    read_xml(utest_fixture);
    EXPECT_EQ(0, malformed(utest_fixture->text));
    EXPECT_TRUE(strstr(utest_fixture->text, "<skipped message=\"") != NULL);
}

UTEST_F(xml, is_whole_after_a_crash_and_names_the_test)
{
    EXPECT_NE(0, start(NULL, "--filter=fix.*s", utest_fixture->flag, NULL));
    read_xml(utest_fixture);
    EXPECT_EQ(0, malformed(utest_fixture->text));
    EXPECT_TRUE(strstr(utest_fixture->text, "name=\"passes\"") != NULL);
    EXPECT_TRUE(strstr(utest_fixture->text, "name=\"crashes\" time=\"0.000000\"><failure message=\"did not finish") !=
                NULL);
}

UTEST_F(xml, the_check_of_it_can_fail)
{
    (void)utest_fixture;
    EXPECT_NE(0, malformed("<a/>"));
    EXPECT_EQ(0, malformed("<?xml?><a><b c=\"&amp;\"/></a>"));
    EXPECT_NE(0, malformed("<?xml?><a><b></a></b>"));
    EXPECT_NE(0, malformed("<?xml?><a b=\"&\"/>"));
    EXPECT_NE(0, malformed("<?xml?><a><b>"));
}

UTEST(harness, an_output_that_cannot_be_written_exits_with_1)
{
    EXPECT_EQ(1, start(NULL, "--output=/nowhere/at/all.xml", "--filter=fix.passes", NULL));
}

/* ==================================================================================================== >>values */
UTEST(values, of_each_type_are_shown)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.types", NULL, NULL));
    EXPECT_TRUE(has("(200 == 201)"));
    EXPECT_TRUE(has("(-9223372036854775808 == 0)"));
    EXPECT_TRUE(has("(18446744073709551615 == 0)"));
    EXPECT_TRUE(has("(0.100000001 == 0.200000003)"));
    EXPECT_TRUE(has("(0.10000000000000001 < -2.5)"));
    EXPECT_TRUE(has("\"left\" and \"right\""));
    EXPECT_TRUE(has("1 and 1.5, apart by 0.5 > 0.25"));
}

UTEST(tensors, that_agree_pass)
{
    float   want[6] = { 0, 1, 2, 3, 4, 5 };
    int64_t ints[6] = { 0, 1, 2, 3, 4, 5 };
    ASSERT_SHAPE(numbers(DT_F32, 0), DT_SHAPE(2, 3));
    EXPECT_CLOSE(numbers(DT_F32, 0), want, 6, 0, 0);
    EXPECT_CLOSE(numbers(DT_F16, 0), want, 6, 0, 0);
    EXPECT_CLOSE(numbers(DT_BF16, 0), want, 6, 0, 0);
    EXPECT_CLOSE_TO(numbers(DT_BF16, 0), numbers(DT_I32, 0), 0, 0);
    EXPECT_INTS(numbers(DT_I32, 0), ints, 6);
    EXPECT_INTS(numbers(DT_U8, 0), ints, 6);
    EXPECT_SAME_BITS(numbers(DT_F16, 1), numbers(DT_F16, 1));
    EXPECT_ERROR(dt_reshape(numbers(DT_F32, 0), DT_SHAPE(5)), "reshape");
    EXPECT_OK(numbers(DT_F32, 0));
    dt_end();
}

UTEST(tensors, that_differ_name_the_worst_element)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.close", NULL, NULL));
    EXPECT_TRUE(has("worst at [1, 1] (element 4 of 6): got 4, want 4.5, apart by 0.5, allowed 0.1; 2 wrong"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.close_half", NULL, NULL));
    EXPECT_TRUE(has("worst at [1, 2] (element 5 of 6): got 5, want 5.015625"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.close_nan", NULL, NULL));
    EXPECT_TRUE(has("worst at [0, 2] (element 2 of 6): got 2, want nan"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.close_count", NULL, NULL));
    EXPECT_TRUE(has("6 elements, not 5"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.ints", NULL, NULL));
    EXPECT_TRUE(has("first at [1, 2] (element 5 of 6): got 5, want 6"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.bits", NULL, NULL));
    EXPECT_TRUE(has("first at [0, 0] (element 0 of 6): 0 and 9.53674316e-07; 6 differ"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.bits_dtype", NULL, NULL));
    EXPECT_TRUE(has("dtypes f32 and bf16"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.shape", NULL, NULL));
    EXPECT_TRUE(has("shape (2, 3), not (3, 2)"));
}

UTEST(tensors, errors_are_told_and_cleared)
{
    ASSERT_EQ(1, start(NULL, "--filter=fix.null", NULL, NULL));
    EXPECT_TRUE(has("the tensor is NULL"));
    EXPECT_TRUE(has("   Message : "));
    EXPECT_EQ(1, count("Failure"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.no_error", NULL, NULL));
    EXPECT_TRUE(has("no error"));
    ASSERT_EQ(1, start(NULL, "--filter=fix.other_error", NULL, NULL));
    EXPECT_TRUE(has("the message lacks \"no such words\""));
    ASSERT_EQ(1, start(NULL, "--filter=fix.not_ok", NULL, NULL));
    EXPECT_TRUE(has("it failed"));
}

UTEST(tensors, tolerances_follow_the_dtype)
{
    EXPECT_EQ(dt_test_eps(DT_F32), 1.1920928955078125e-07);
    EXPECT_LT(dt_test_rtol(DT_F32, 1), dt_test_rtol(DT_F32, 100));
    EXPECT_LT(dt_test_rtol(DT_F32, 100), dt_test_rtol(DT_F16, 100));
    EXPECT_LT(dt_test_rtol(DT_F16, 100), dt_test_rtol(DT_BF16, 100));
    EXPECT_EQ(dt_test_rtol(DT_I32, 100), 0.0);
    EXPECT_EQ(dt_test_half(0x3c00), 1.0);
    EXPECT_EQ(dt_test_half(0x0001), 0x1p-24);
    EXPECT_EQ(dt_test_half(0xfbff), -65504.0);
    EXPECT_TRUE(isinf(dt_test_half(0x7c00)) && isnan(dt_test_half(0x7e00)));
}

/* ==================================================================================================== >>ranks */
DT_TEST_RANK(add_rank)
{
    EXPECT_EQ(3, *(int *)arg);
    EXPECT_TRUE(rank >= 0 && rank < 4);
}

UTEST(ranks, that_all_return_0_pass)
{
    int three = 3;
    EXPECT_EQ(0, dt_test_ranks(4, 10, add_rank, &three));
    EXPECT_EQ(0, dt_test_ranks(0, 10, add_rank, &three));
}

UTEST(ranks, that_fail_crash_or_hang_are_named)
{
    int64_t start_ns = dt_test_ns();
    ASSERT_EQ(1, start(NULL, "--filter=fix.ranks", NULL, NULL));
    EXPECT_TRUE(has("Rank 1 of 5 failed: exit status 7"));
    EXPECT_TRUE(has("Rank 2 of 5 was killed by signal 9"));
    EXPECT_TRUE(has("Rank 3 of 5 did not end within"));
    EXPECT_EQ(3, count("   Rank "));
    EXPECT_LT((double)(dt_test_ns() - start_ns) * 1e-9, 30 * dt_test_slow());
}

/* ==================================================================================================== >>main */
UTEST_STATE();

int main(int argc, char **argv)
{
    int    in_child = getenv("DT_HARNESS_CHILD") != NULL;
    size_t n = 0;
    for (size_t i = 0; i < utest_state.tests_length; i++) {
        struct utest_test_state_s t = utest_state.tests[i];
        int                       for_child = strncmp(t.name, "fix.", 4) == 0 || strncmp(t.name, "many.", 5) == 0;
        if (for_child == in_child) utest_state.tests[n++] = t;
        else free(t.name);
    }
    utest_state.tests_length = n;
    return utest_main(argc, (const char *const *)argv);
}
#endif /* UTEST_OF_DT */
