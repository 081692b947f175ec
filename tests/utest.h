/* utest.h - a test harness with the macros and flags of utest.h (github.com/sheredom/utest.h), written anew

       #include "utest.h"
       UTEST(set, name)
       {
           ASSERT_TRUE(1);     // leaves the test when it fails
           EXPECT_EQ(2, 1 + 1); // goes on
       }
       UTEST_MAIN()

   UTEST_F (fixture) and UTEST_I (fixture, run n times) as documented there; the body of a UTEST_I sees utest_index too.
   Own main: UTEST_STATE(); and utest_main(argc, argv).

   What holds here beyond it: the exit status is 1 when a test failed, a filter matches nothing, or a flag is
   unknown, else 0. stdout is line-buffered, so the last [ RUN ] line names a test that crashed. A test that runs longer
   than 60 s is named and ends the program with status 1. DT_TEST_TIMEOUT=seconds sets another limit;
   DT_TEST_SLOW=factor scales it. --random-order prints its seed. The XML of --output is whole at any time: after a
   crash or a time-out it names the test that did not finish. The last line of the output is "N passed, N failed, N
   skipped".

   Linux, gcc or clang, C99 and up or C++11 and up. Include it first (strict modes need _GNU_SOURCE). */
#ifndef UTEST_H_INCLUDED
#define UTEST_H_INCLUDED
#define UTEST_OF_DT 1 /* tests/harness.h uses more of this file than its macros */

#if defined(_FEATURES_H) && !defined(__USE_MISC)
#error "utest.h: a libc header was included before it in strict mode; include utest.h first or define _GNU_SOURCE"
#endif
#if !defined(_FEATURES_H) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define UTEST_UNUSED __attribute__((unused))

/* ==================================================================================================== >>state */
enum { UTEST_TEST_PASSED = 0, UTEST_TEST_FAILURE = 1, UTEST_TEST_SKIPPED = 2 };
enum { UTEST_LOG_MAX = 16384, UTEST_SHOWN_MAX = 50 }; /* of one test: bytes kept for the XML, failures printed */

typedef void (*utest_testcase_t)(int *utest_result, size_t utest_index);

struct utest_test_state_s {
    utest_testcase_t func;
    char            *name;
    size_t           index;
    int              result;
};

struct utest_state_s {
    struct utest_test_state_s *tests;
    size_t                     tests_length;
    FILE                      *output;
    long                       output_counts; /* where the counts stand in the XML */
    int                        passed, failed, skipped;
    const char                *running; /* the test that runs, or NULL */
    pid_t                      pid;
    double                     limit; /* seconds a test may take */
    long                       timer[2];
    int                        lock;  /* guards what follows: tests may fail from several threads */
    int                        failures;
    size_t                     log_length;
    char                       log[UTEST_LOG_MAX]; /* what the running test reported */
};

#ifdef __cplusplus
extern "C" {
#endif
extern struct utest_state_s utest_state;
#ifdef __cplusplus
}
#endif

/* Scales deadlines: DT_TEST_SLOW=4 for a slow machine or an instrumented build. */
static UTEST_UNUSED double utest_slow(void)
{
    const char *s = getenv("DT_TEST_SLOW");
    double      f = s ? strtod(s, NULL) : 1.0;
    return f > 0 ? f : 1.0;
}

static UTEST_UNUSED int64_t utest_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static UTEST_UNUSED void utest_register(utest_testcase_t func, const char *name, size_t index, int indexed)
{
    size_t                     n = utest_state.tests_length, len = strlen(name) + 32;
    struct utest_test_state_s *t =
        (struct utest_test_state_s *)realloc((void *)utest_state.tests, (n + 1) * sizeof *utest_state.tests);
    char *copy = (char *)malloc(len);
    if (!t || !copy) {
        fprintf(stderr, "utest: out of memory while registering %s\n", name);
        exit(1);
    }
    if (indexed) snprintf(copy, len, "%s/%lu", name, (unsigned long)index);
    else snprintf(copy, len, "%s", name);
    t[n].func = func;
    t[n].name = copy;
    t[n].index = index;
    t[n].result = UTEST_TEST_PASSED;
    utest_state.tests = t;
    utest_state.tests_length = n + 1;
}

/* ==================================================================================================== >>report
   A failure goes to stdout and to the log of the running test, from where it gets into the XML. */
static UTEST_UNUSED __attribute__((format(printf, 1, 2))) void utest_say(const char *format, ...)
{
    size_t  room = UTEST_LOG_MAX - utest_state.log_length;
    va_list a;
    va_start(a, format);
    int n = vsnprintf(utest_state.log + utest_state.log_length, room, format, a);
    va_end(a);
    if (n > 0) utest_state.log_length += (size_t)n < room ? (size_t)n : room - 1;
    va_start(a, format);
    vprintf(format, a);
    va_end(a);
}

static UTEST_UNUSED void utest_lock(void)
{
    while (__atomic_exchange_n(&utest_state.lock, 1, __ATOMIC_ACQUIRE)) {}
}
static UTEST_UNUSED void utest_unlock(void) { __atomic_store_n(&utest_state.lock, 0, __ATOMIC_RELEASE); }

/* expected and actual are texts; message is the user's, NULL or "" for none. */
static UTEST_UNUSED void utest_failure(int *result, const char *file, int line, const char *expected,
                                       const char *actual, const char *message)
{
    __atomic_store_n(result, (int)UTEST_TEST_FAILURE, __ATOMIC_RELAXED);
    utest_lock();
    if (utest_state.failures < UTEST_SHOWN_MAX) {
        utest_say("%s:%d: Failure\n  Expected : %s\n    Actual : %s\n", file, line, expected, actual);
        if (message && *message) utest_say("   Message : %s\n", message);
    } else if (utest_state.failures == UTEST_SHOWN_MAX) {
        utest_say("%s:%d: Failure; this and further failures of the test are not shown\n", file, line);
    }
    utest_state.failures++;
    utest_unlock();
}

static UTEST_UNUSED void utest_skip(int *result, const char *message)
{
    if (*result != UTEST_TEST_FAILURE) *result = UTEST_TEST_SKIPPED;
    utest_lock();
    utest_say("   Skipped : '%s'\n", message);
    utest_unlock();
}

/* ==================================================================================================== >>values
   UTEST_SHOW_(v) is the text of a number or a pointer of any type; one function per kind of type. */
typedef struct utest_text {
    char s[64];
} utest_text;

static UTEST_UNUSED utest_text utest_show_i(long long v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%lld", v);
    return t;
}
static UTEST_UNUSED utest_text utest_show_u(unsigned long long v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%llu", v);
    return t;
}
static UTEST_UNUSED utest_text utest_show_f(float v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%.9g", (double)v);
    return t;
}
static UTEST_UNUSED utest_text utest_show_d(double v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%.17g", v);
    return t;
}
static UTEST_UNUSED utest_text utest_show_l(long double v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%.21Lg", v);
    return t;
}
static UTEST_UNUSED utest_text utest_show_p(const volatile void *v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%p", (void *)(uintptr_t)v);
    return t;
}
static UTEST_UNUSED utest_text utest_show_bool(bool v)
{
    utest_text t;
    snprintf(t.s, sizeof t.s, "%s", v ? "true" : "false");
    return t;
}

#ifdef __cplusplus
static UTEST_UNUSED utest_text utest_show(bool v) { return utest_show_bool(v); }
static UTEST_UNUSED utest_text utest_show(char v) { return utest_show_i(v); }
static UTEST_UNUSED utest_text utest_show(signed char v) { return utest_show_i(v); }
static UTEST_UNUSED utest_text utest_show(unsigned char v) { return utest_show_u(v); }
static UTEST_UNUSED utest_text utest_show(short v) { return utest_show_i(v); }
static UTEST_UNUSED utest_text utest_show(unsigned short v) { return utest_show_u(v); }
static UTEST_UNUSED utest_text utest_show(int v) { return utest_show_i(v); }
static UTEST_UNUSED utest_text utest_show(unsigned v) { return utest_show_u(v); }
static UTEST_UNUSED utest_text utest_show(long v) { return utest_show_i(v); }
static UTEST_UNUSED utest_text utest_show(unsigned long v) { return utest_show_u(v); }
static UTEST_UNUSED utest_text utest_show(long long v) { return utest_show_i(v); }
static UTEST_UNUSED utest_text utest_show(unsigned long long v) { return utest_show_u(v); }
static UTEST_UNUSED utest_text utest_show(float v) { return utest_show_f(v); }
static UTEST_UNUSED utest_text utest_show(double v) { return utest_show_d(v); }
static UTEST_UNUSED utest_text utest_show(long double v) { return utest_show_l(v); }
static UTEST_UNUSED utest_text utest_show(const volatile void *v) { return utest_show_p(v); }
#define UTEST_SHOW_(v) utest_show(v)
#define UTEST_AUTO_(name, x) auto name = (x)
#else
/* gcc and clang know _Generic in C99 too; __extension__ keeps -Wpedantic quiet about it. */
#define UTEST_SHOW_(v)                                                                                            \
    (__extension__ _Generic((v), bool: utest_show_bool, char: utest_show_i, signed char: utest_show_i,            \
                            short: utest_show_i, int: utest_show_i, long: utest_show_i, long long: utest_show_i,  \
                            unsigned char: utest_show_u, unsigned short: utest_show_u, unsigned: utest_show_u,    \
                            unsigned long: utest_show_u, unsigned long long: utest_show_u, float: utest_show_f,   \
                            double: utest_show_d, long double: utest_show_l, default: utest_show_p)(v))
/* the comma makes a pointer of an array */
#define UTEST_AUTO_(name, x) __typeof__(((void)0, (x))) name = (x)
#endif

/* As in the public utest.h, numbers of different signedness give a warning. */
#ifdef __clang__
#define UTEST_QUIET_ \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wfloat-equal\"")
#define UTEST_LOUD_ _Pragma("clang diagnostic pop")
#else
#define UTEST_QUIET_ \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wfloat-equal\"")
#define UTEST_LOUD_ _Pragma("GCC diagnostic pop")
#endif

/* ==================================================================================================== >>checks
   Each macro evaluates its arguments once. leave does nothing for EXPECT_ and is return for ASSERT_. As in the public
   utest.h, both are for functions that return nothing. */
#define UTEST_EXPECT_ if (0) return
#define UTEST_ASSERT_ return

#define UTEST_BOOL_(x, want, text, msg, leave)                                                               \
    do {                                                                                                     \
        if (((x) ? 1 : 0) != (want)) {                                                                        \
            utest_failure(utest_result, __FILE__, __LINE__, (want) ? "true" : "false", text, msg);           \
            leave;                                                                                           \
        }                                                                                                    \
    } while (0)

#define UTEST_CMP_(x, op, y, xtext, ytext, msg, leave)                                                       \
    do {                                                                                                     \
        UTEST_QUIET_                                                                                         \
        UTEST_AUTO_(utest_x_, x);                                                                            \
        UTEST_AUTO_(utest_y_, y);                                                                            \
        if (!(utest_x_ op utest_y_)) {                                                                       \
            utest_cmp_failure(utest_result, __FILE__, __LINE__, xtext " " #op " " ytext,                     \
                              UTEST_SHOW_(utest_x_), #op, UTEST_SHOW_(utest_y_), msg);                       \
            leave;                                                                                           \
        }                                                                                                    \
        UTEST_LOUD_                                                                                          \
    } while (0)

#define UTEST_STR_(x, y, bounded, n, want, text, msg, leave)                                                 \
    do {                                                                                                     \
        if (utest_str_failure(utest_result, __FILE__, __LINE__, text, x, y, bounded, (size_t)(n), want, msg)) { \
            leave;                                                                                           \
        }                                                                                                    \
    } while (0)

#define UTEST_NEAR_(x, y, eps, text, msg, leave)                                                             \
    do {                                                                                                     \
        if (utest_near_failure(utest_result, __FILE__, __LINE__, text, (double)(x), (double)(y),             \
                               (double)(eps), msg)) {                                                        \
            leave;                                                                                           \
        }                                                                                                    \
    } while (0)

static UTEST_UNUSED void utest_cmp_failure(int *result, const char *file, int line, const char *text, utest_text x,
                                           const char *op, utest_text y, const char *message)
{
    char actual[160];
    snprintf(actual, sizeof actual, "not (%s %s %s)", x.s, op, y.s);
    utest_failure(result, file, line, text, actual, message);
}

static UTEST_UNUSED int utest_str_failure(int *result, const char *file, int line, const char *text, const char *x,
                                          const char *y, int bounded, size_t n, int want_equal, const char *message)
{
    char actual[1024];
    int  equal = x && y ? (bounded ? strncmp(x, y, n) : strcmp(x, y)) == 0 : x == y;
    if (equal == want_equal) return 0;
    snprintf(actual, sizeof actual, "\"%.480s\" and \"%.480s\"", x ? x : "(null)", y ? y : "(null)");
    utest_failure(result, file, line, text, actual, message);
    return 1;
}

static UTEST_UNUSED int utest_near_failure(int *result, const char *file, int line, const char *text, double x,
                                           double y, double eps, const char *message)
{
    char actual[160];
    if (x == y || fabs(x - y) <= eps) return 0; /* a NaN fails both */
    snprintf(actual, sizeof actual, "%.17g and %.17g, apart by %.9g > %.9g", x, y, fabs(x - y), eps);
    utest_failure(result, file, line, text, actual, message);
    return 1;
}

#define EXPECT_TRUE(x) UTEST_BOOL_(x, 1, "false: " #x, "", UTEST_EXPECT_)
#define EXPECT_FALSE(x) UTEST_BOOL_(x, 0, "true: " #x, "", UTEST_EXPECT_)
#define EXPECT_EQ(x, y) UTEST_CMP_(x, ==, y, #x, #y, "", UTEST_EXPECT_)
#define EXPECT_NE(x, y) UTEST_CMP_(x, !=, y, #x, #y, "", UTEST_EXPECT_)
#define EXPECT_LT(x, y) UTEST_CMP_(x, <, y, #x, #y, "", UTEST_EXPECT_)
#define EXPECT_LE(x, y) UTEST_CMP_(x, <=, y, #x, #y, "", UTEST_EXPECT_)
#define EXPECT_GT(x, y) UTEST_CMP_(x, >, y, #x, #y, "", UTEST_EXPECT_)
#define EXPECT_GE(x, y) UTEST_CMP_(x, >=, y, #x, #y, "", UTEST_EXPECT_)
#define EXPECT_STREQ(x, y) UTEST_STR_(x, y, 0, 0, 1, #x " equals " #y, "", UTEST_EXPECT_)
#define EXPECT_STRNE(x, y) UTEST_STR_(x, y, 0, 0, 0, #x " differs from " #y, "", UTEST_EXPECT_)
#define EXPECT_STRNEQ(x, y, n) UTEST_STR_(x, y, 1, n, 1, #x " equals " #y " over " #n, "", UTEST_EXPECT_)
#define EXPECT_STRNNE(x, y, n) UTEST_STR_(x, y, 1, n, 0, #x " differs from " #y " over " #n, "", UTEST_EXPECT_)
#define EXPECT_NEAR(x, y, eps) UTEST_NEAR_(x, y, eps, #x " is near " #y, "", UTEST_EXPECT_)

#define EXPECT_TRUE_MSG(x, msg) UTEST_BOOL_(x, 1, "false: " #x, msg, UTEST_EXPECT_)
#define EXPECT_FALSE_MSG(x, msg) UTEST_BOOL_(x, 0, "true: " #x, msg, UTEST_EXPECT_)
#define EXPECT_EQ_MSG(x, y, msg) UTEST_CMP_(x, ==, y, #x, #y, msg, UTEST_EXPECT_)
#define EXPECT_NE_MSG(x, y, msg) UTEST_CMP_(x, !=, y, #x, #y, msg, UTEST_EXPECT_)
#define EXPECT_LT_MSG(x, y, msg) UTEST_CMP_(x, <, y, #x, #y, msg, UTEST_EXPECT_)
#define EXPECT_LE_MSG(x, y, msg) UTEST_CMP_(x, <=, y, #x, #y, msg, UTEST_EXPECT_)
#define EXPECT_GT_MSG(x, y, msg) UTEST_CMP_(x, >, y, #x, #y, msg, UTEST_EXPECT_)
#define EXPECT_GE_MSG(x, y, msg) UTEST_CMP_(x, >=, y, #x, #y, msg, UTEST_EXPECT_)
#define EXPECT_STREQ_MSG(x, y, msg) UTEST_STR_(x, y, 0, 0, 1, #x " equals " #y, msg, UTEST_EXPECT_)
#define EXPECT_STRNE_MSG(x, y, msg) UTEST_STR_(x, y, 0, 0, 0, #x " differs from " #y, msg, UTEST_EXPECT_)
#define EXPECT_STRNEQ_MSG(x, y, n, msg) UTEST_STR_(x, y, 1, n, 1, #x " equals " #y " over " #n, msg, UTEST_EXPECT_)
#define EXPECT_STRNNE_MSG(x, y, n, msg) \
    UTEST_STR_(x, y, 1, n, 0, #x " differs from " #y " over " #n, msg, UTEST_EXPECT_)
#define EXPECT_NEAR_MSG(x, y, eps, msg) UTEST_NEAR_(x, y, eps, #x " is near " #y, msg, UTEST_EXPECT_)

#define ASSERT_TRUE(x) UTEST_BOOL_(x, 1, "false: " #x, "", UTEST_ASSERT_)
#define ASSERT_FALSE(x) UTEST_BOOL_(x, 0, "true: " #x, "", UTEST_ASSERT_)
#define ASSERT_EQ(x, y) UTEST_CMP_(x, ==, y, #x, #y, "", UTEST_ASSERT_)
#define ASSERT_NE(x, y) UTEST_CMP_(x, !=, y, #x, #y, "", UTEST_ASSERT_)
#define ASSERT_LT(x, y) UTEST_CMP_(x, <, y, #x, #y, "", UTEST_ASSERT_)
#define ASSERT_LE(x, y) UTEST_CMP_(x, <=, y, #x, #y, "", UTEST_ASSERT_)
#define ASSERT_GT(x, y) UTEST_CMP_(x, >, y, #x, #y, "", UTEST_ASSERT_)
#define ASSERT_GE(x, y) UTEST_CMP_(x, >=, y, #x, #y, "", UTEST_ASSERT_)
#define ASSERT_STREQ(x, y) UTEST_STR_(x, y, 0, 0, 1, #x " equals " #y, "", UTEST_ASSERT_)
#define ASSERT_STRNE(x, y) UTEST_STR_(x, y, 0, 0, 0, #x " differs from " #y, "", UTEST_ASSERT_)
#define ASSERT_STRNEQ(x, y, n) UTEST_STR_(x, y, 1, n, 1, #x " equals " #y " over " #n, "", UTEST_ASSERT_)
#define ASSERT_STRNNE(x, y, n) UTEST_STR_(x, y, 1, n, 0, #x " differs from " #y " over " #n, "", UTEST_ASSERT_)
#define ASSERT_NEAR(x, y, eps) UTEST_NEAR_(x, y, eps, #x " is near " #y, "", UTEST_ASSERT_)

#define ASSERT_TRUE_MSG(x, msg) UTEST_BOOL_(x, 1, "false: " #x, msg, UTEST_ASSERT_)
#define ASSERT_FALSE_MSG(x, msg) UTEST_BOOL_(x, 0, "true: " #x, msg, UTEST_ASSERT_)
#define ASSERT_EQ_MSG(x, y, msg) UTEST_CMP_(x, ==, y, #x, #y, msg, UTEST_ASSERT_)
#define ASSERT_NE_MSG(x, y, msg) UTEST_CMP_(x, !=, y, #x, #y, msg, UTEST_ASSERT_)
#define ASSERT_LT_MSG(x, y, msg) UTEST_CMP_(x, <, y, #x, #y, msg, UTEST_ASSERT_)
#define ASSERT_LE_MSG(x, y, msg) UTEST_CMP_(x, <=, y, #x, #y, msg, UTEST_ASSERT_)
#define ASSERT_GT_MSG(x, y, msg) UTEST_CMP_(x, >, y, #x, #y, msg, UTEST_ASSERT_)
#define ASSERT_GE_MSG(x, y, msg) UTEST_CMP_(x, >=, y, #x, #y, msg, UTEST_ASSERT_)
#define ASSERT_STREQ_MSG(x, y, msg) UTEST_STR_(x, y, 0, 0, 1, #x " equals " #y, msg, UTEST_ASSERT_)
#define ASSERT_STRNE_MSG(x, y, msg) UTEST_STR_(x, y, 0, 0, 0, #x " differs from " #y, msg, UTEST_ASSERT_)
#define ASSERT_STRNEQ_MSG(x, y, n, msg) UTEST_STR_(x, y, 1, n, 1, #x " equals " #y " over " #n, msg, UTEST_ASSERT_)
#define ASSERT_STRNNE_MSG(x, y, n, msg) \
    UTEST_STR_(x, y, 1, n, 0, #x " differs from " #y " over " #n, msg, UTEST_ASSERT_)
#define ASSERT_NEAR_MSG(x, y, eps, msg) UTEST_NEAR_(x, y, eps, #x " is near " #y, msg, UTEST_ASSERT_)

#define UTEST_SKIP(msg)                \
    do {                               \
        utest_skip(utest_result, msg); \
        return;                        \
    } while (0)

/* ==================================================================================================== >>tests */
#define UTEST_ON_START_(name)                                            \
    static void name(void) __attribute__((constructor, used)); \
    static void name(void)

#define UTEST(SET, NAME)                                                                                     \
    static void utest_body_##SET##_##NAME(int *utest_result);                                                \
    static void utest_run_##SET##_##NAME(int *utest_result, size_t utest_index)                              \
    {                                                                                                        \
        (void)utest_index;                                                                                   \
        utest_body_##SET##_##NAME(utest_result);                                                             \
    }                                                                                                        \
    UTEST_ON_START_(utest_register_##SET##_##NAME)                                                           \
    {                                                                                                        \
        utest_register(utest_run_##SET##_##NAME, #SET "." #NAME, 0, 0);                                      \
    }                                                                                                        \
    static void utest_body_##SET##_##NAME(int *utest_result UTEST_UNUSED)

#define UTEST_F_SETUP(FIXTURE) \
    static void utest_f_setup_##FIXTURE(int *utest_result UTEST_UNUSED, struct FIXTURE *utest_fixture UTEST_UNUSED)
#define UTEST_F_TEARDOWN(FIXTURE) \
    static void utest_f_teardown_##FIXTURE(int *utest_result UTEST_UNUSED, struct FIXTURE *utest_fixture UTEST_UNUSED)

/* A failed (or skipping) set-up leaves body and tear-down out; a failed body does not leave out the tear-down. */
#define UTEST_F(FIXTURE, NAME)                                                                               \
    static void utest_body_##FIXTURE##_##NAME(int *utest_result, struct FIXTURE *utest_fixture);             \
    static void utest_run_##FIXTURE##_##NAME(int *utest_result, size_t utest_index)                          \
    {                                                                                                        \
        struct FIXTURE fixture;                                                                              \
        (void)utest_index;                                                                                   \
        memset((void *)&fixture, 0, sizeof fixture);                                                         \
        utest_f_setup_##FIXTURE(utest_result, &fixture);                                                     \
        if (*utest_result != UTEST_TEST_PASSED) return;                                                      \
        utest_body_##FIXTURE##_##NAME(utest_result, &fixture);                                               \
        utest_f_teardown_##FIXTURE(utest_result, &fixture);                                                  \
    }                                                                                                        \
    UTEST_ON_START_(utest_register_##FIXTURE##_##NAME)                                                       \
    {                                                                                                        \
        utest_register(utest_run_##FIXTURE##_##NAME, #FIXTURE "." #NAME, 0, 0);                              \
    }                                                                                                        \
    static void utest_body_##FIXTURE##_##NAME(int *utest_result UTEST_UNUSED,                                \
                                              struct FIXTURE *utest_fixture UTEST_UNUSED)

#define UTEST_I_SETUP(FIXTURE)                                                                                      \
    static void utest_i_setup_##FIXTURE(int *utest_result UTEST_UNUSED, struct FIXTURE *utest_fixture UTEST_UNUSED, \
                                        size_t utest_index UTEST_UNUSED)
#define UTEST_I_TEARDOWN(FIXTURE)                                                                      \
    static void utest_i_teardown_##FIXTURE(int *utest_result UTEST_UNUSED,                             \
                                           struct FIXTURE *utest_fixture UTEST_UNUSED, size_t utest_index UTEST_UNUSED)

#define UTEST_I(FIXTURE, NAME, INDEX)                                                                        \
    static void utest_body_##FIXTURE##_##NAME(int *utest_result, struct FIXTURE *utest_fixture,              \
                                              size_t utest_index);                                           \
    static void utest_run_##FIXTURE##_##NAME(int *utest_result, size_t utest_index)                          \
    {                                                                                                        \
        struct FIXTURE fixture;                                                                              \
        memset((void *)&fixture, 0, sizeof fixture);                                                         \
        utest_i_setup_##FIXTURE(utest_result, &fixture, utest_index);                                        \
        if (*utest_result != UTEST_TEST_PASSED) return;                                                      \
        utest_body_##FIXTURE##_##NAME(utest_result, &fixture, utest_index);                                  \
        utest_i_teardown_##FIXTURE(utest_result, &fixture, utest_index);                                     \
    }                                                                                                        \
    UTEST_ON_START_(utest_register_##FIXTURE##_##NAME)                                                       \
    {                                                                                                        \
        for (size_t i = 0; i < (size_t)(INDEX); i++)                                                         \
            utest_register(utest_run_##FIXTURE##_##NAME, #FIXTURE "." #NAME, i, 1);                          \
    }                                                                                                        \
    static void utest_body_##FIXTURE##_##NAME(int *utest_result UTEST_UNUSED,                                \
                                              struct FIXTURE *utest_fixture UTEST_UNUSED,                    \
                                              size_t utest_index UTEST_UNUSED)

#define UTEST_STATE() struct utest_state_s utest_state
#define UTEST_MAIN()                          \
    UTEST_STATE();                            \
    int main(int argc, char *argv[])          \
    {                                         \
        return utest_main(argc, (const char *const *)argv); \
    }

/* ==================================================================================================== >>watchdog
   SIGALRM ends the program when a test is over its time. The handler uses only async-signal-safe calls. Where it does
   not get through (every thread blocks signals, ThreadSanitizer defers them) a second timer lets the kernel kill the
   program a little later; the last [ RUN ] line names the test. A test that calls exit() in the process of the harness
   has not passed: the exit handler turns its status into 1. */
static UTEST_UNUSED void utest_write(const char *s)
{
    for (size_t n = strlen(s); n > 0;) {
        ssize_t k = write(1, s, n);
        if (k <= 0) return;
        s += k;
        n -= (size_t)k;
    }
}

static UTEST_UNUSED void utest_write_number(int v)
{
    char  buf[16];
    char *p = buf + sizeof buf;
    *--p = 0;
    do *--p = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    utest_write(p);
}

static UTEST_UNUSED void utest_write_end(const char *why)
{
    utest_write("\n[  FAILED  ] ");
    utest_write(utest_state.running);
    utest_write(why);
    utest_write("; the tests after it did not run\n");
    utest_write_number(utest_state.passed);
    utest_write(" passed, ");
    utest_write_number(utest_state.failed + 1);
    utest_write(" failed, ");
    utest_write_number(utest_state.skipped);
    utest_write(" skipped\n");
}

static UTEST_UNUSED void utest_on_alarm(int sig)
{
    (void)sig;
    if (!utest_state.running || getpid() != utest_state.pid) return;
    utest_write_end(" did not end in time and was killed (DT_TEST_TIMEOUT, DT_TEST_SLOW)");
    _exit(1);
}

static UTEST_UNUSED void utest_on_exit(void)
{
    if (!utest_state.running || getpid() != utest_state.pid) return;
    fflush(stdout);
    utest_write_end(" called exit");
    _exit(1);
}

static UTEST_UNUSED void utest_timer(int signal_number, long *id, double seconds)
{
    struct sigevent   ev;
    struct itimerspec it;
    memset(&ev, 0, sizeof ev);
    memset(&it, 0, sizeof it);
    if (*id < 0) { /* by system call: it needs no library in any libc, and the id is an int */
        int made = 0;
        ev.sigev_notify = SIGEV_SIGNAL;
        ev.sigev_signo = signal_number;
        if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &ev, &made) != 0) return;
        *id = made;
    }
    it.it_value.tv_sec = (time_t)seconds;
    it.it_value.tv_nsec = (long)((seconds - (double)it.it_value.tv_sec) * 1e9);
    syscall(SYS_timer_settime, (int)*id, 0, &it, NULL);
}

static UTEST_UNUSED void utest_alarm(double seconds) /* 0: no more */
{
    utest_timer(SIGALRM, &utest_state.timer[0], seconds);
    utest_timer(SIGKILL, &utest_state.timer[1], seconds > 0 ? 1.5 * seconds + 1 : 0);
}

static UTEST_UNUSED void utest_watch(void)
{
    const char      *s = getenv("DT_TEST_TIMEOUT");
    double           limit = s ? strtod(s, NULL) : 0;
    struct sigaction sa;
    utest_state.timer[0] = utest_state.timer[1] = -1;
    utest_state.limit = (limit > 0 ? limit : 60) * utest_slow();
    if (utest_state.limit < 0.001) utest_state.limit = 0.001;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = utest_on_alarm;
    sigemptyset(&sa.sa_mask);
    sigaction(SIGALRM, &sa, NULL);
    atexit(utest_on_exit);
}

/* ==================================================================================================== >>xml
   JUnit. The file is whole after each write: an entry goes over the closing tags, which follow it again. Before a test
   runs its entry says that it did not finish; what it did replaces that. Counts have fixed width for the same
   reason. */
static const char utest_xml_end[] UTEST_UNUSED = "</testsuite>\n</testsuites>\n";

static UTEST_UNUSED void utest_xml_text(FILE *f, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '&') fputs("&amp;", f);
        else if (c == '<') fputs("&lt;", f);
        else if (c == '>') fputs("&gt;", f);
        else if (c == '"') fputs("&quot;", f);
        else if (c == '\n') fputs("&#10;", f);
        else fputc((c < 32 && c != '\t') || c > 126 ? '?' : c, f);
    }
}

static UTEST_UNUSED void utest_xml_counts(int failed, int skipped)
{
    fseek(utest_state.output, utest_state.output_counts, SEEK_SET);
    fprintf(utest_state.output, "failures=\"%06d\" errors=\"000000\" skipped=\"%06d\"", failed, skipped);
}

static UTEST_UNUSED void utest_xml_begin(const char *program, int ntests)
{
    FILE *f = utest_state.output;
    fprintf(f, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"");
    utest_xml_text(f, program);
    fprintf(f, "\" tests=\"%d\" ", ntests);
    utest_state.output_counts = ftell(f);
    utest_xml_counts(0, 0);
    fprintf(f, ">\n");
}

/* An entry at 'at'; returns the place after it. result < 0: the test starts. */
static UTEST_UNUSED long utest_xml_entry(long at, const char *name, double seconds, int result)
{
    FILE       *f = utest_state.output;
    const char *dot = strchr(name, '.');
    const char *log = result < 0 ? "did not finish: crashed, or ran out of time" : utest_state.log;
    fseek(f, at, SEEK_SET);
    fprintf(f, "<testcase classname=\"%.*s\" name=\"", dot ? (int)(dot - name) : 0, name);
    utest_xml_text(f, dot ? dot + 1 : name);
    fprintf(f, "\" time=\"%.6f\">", seconds);
    if (result != UTEST_TEST_PASSED) {
        fprintf(f, "<%s message=\"", result == UTEST_TEST_SKIPPED ? "skipped" : "failure");
        utest_xml_text(f, log);
        fprintf(f, "\"/>");
    }
    fprintf(f, "</testcase>\n");
    long after = ftell(f);
    fputs(utest_xml_end, f);
    fflush(f);
    if (ftruncate(fileno(f), (off_t)ftell(f)) != 0) perror("utest: --output");
    utest_xml_counts(utest_state.failed + (result < 0), utest_state.skipped);
    fflush(f);
    return after;
}

/* ==================================================================================================== >>main */
struct utest_options {
    const char *filter, *output;
    int         list, shuffle;
    uint64_t    seed;
};

static UTEST_UNUSED int utest_match(const char *pattern, const char *name) /* '*' stands for any characters */
{
    for (; *pattern; pattern++, name++) {
        if (*pattern == '*') {
            while (pattern[1] == '*') pattern++;
            for (;; name++) {
                if (utest_match(pattern + 1, name)) return 1;
                if (!*name) return 0;
            }
        }
        if (*pattern != *name) return 0;
    }
    return !*name;
}

static UTEST_UNUSED void utest_help(void)
{
    printf("Options:\n"
           "  --help                  show this text\n"
           "  --filter=<filter>       run the tests whose name matches; '*' stands for anything (conv.*)\n"
           "  --list-tests            print the names, one per line\n"
           "  --output=<file>         write a JUnit XML file as well\n"
           "  --enable-mixed-units    accepted; times are always shown in fitting units\n"
           "  --random-order[=<seed>] shuffle the tests; the seed is printed\n"
           "Environment: DT_TEST_TIMEOUT=seconds a test may take (60), DT_TEST_SLOW=factor on it (1)\n");
}

static UTEST_UNUSED uint64_t utest_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* -1: go on; else the exit status */
static UTEST_UNUSED int utest_parse(struct utest_options *o, int argc, const char *const argv[])
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--help") == 0) {
            utest_help();
            return 0;
        }
        if (strncmp(a, "--filter=", 9) == 0) {
            o->filter = a + 9;
        } else if (strncmp(a, "--output=", 9) == 0) {
            o->output = a + 9;
        } else if (strcmp(a, "--list-tests") == 0) {
            o->list = 1;
        } else if (strcmp(a, "--random-order") == 0) {
            o->shuffle = 1;
            o->seed = ((uint64_t)utest_ns() ^ ((uint64_t)getpid() << 20)) & 0xffffffffu;
        } else if (strncmp(a, "--random-order=", 15) == 0) {
            char *end;
            o->shuffle = 1;
            o->seed = strtoull(a + 15, &end, 10);
            if (!a[15] || *end) {
                printf("utest: the seed in '%s' is not a number\n", a);
                return 1;
            }
        } else if (strcmp(a, "--enable-mixed-units") != 0) {
            printf("utest: unknown flag '%s'; --help lists the flags\n", a);
            return 1;
        }
    }
    return -1;
}

/* The chosen tests move to the front; returns how many. */
static UTEST_UNUSED size_t utest_select(const struct utest_options *o)
{
    size_t   n = 0;
    uint64_t r = o->seed;
    for (size_t i = 0; i < utest_state.tests_length; i++) {
        struct utest_test_state_s t = utest_state.tests[i];
        if (o->filter && !utest_match(o->filter, t.name)) continue;
        utest_state.tests[i] = utest_state.tests[n];
        utest_state.tests[n++] = t;
    }
    for (size_t i = n; o->shuffle && i > 1; i--) {
        size_t                    j = (size_t)(utest_random(&r) % i);
        struct utest_test_state_s t = utest_state.tests[i - 1];
        utest_state.tests[i - 1] = utest_state.tests[j];
        utest_state.tests[j] = t;
    }
    return n;
}

static UTEST_UNUSED const char *utest_tag(int result)
{
    static const char *const plain[3] = { "[       OK ]", "[  FAILED  ]", "[  SKIPPED ]" };
    static const char *const color[3] = { "\033[32m[       OK ]\033[0m", "\033[31m[  FAILED  ]\033[0m",
                                          "\033[33m[  SKIPPED ]\033[0m" };
    return isatty(1) ? color[result] : plain[result];
}

static UTEST_UNUSED void utest_run(struct utest_test_state_s *t, long *xml_at)
{
    utest_state.failures = 0;
    utest_state.log_length = 0;
    utest_state.log[0] = 0;
    printf("[ RUN      ] %s\n", t->name);
    fflush(stdout);
    if (utest_state.output) utest_xml_entry(*xml_at, t->name, 0, -1);
    utest_state.running = t->name;
    utest_alarm(utest_state.limit);
    int64_t start = utest_ns();
    t->func(&t->result, t->index);
    double seconds = (double)(utest_ns() - start) * 1e-9;
    utest_alarm(0);
    utest_state.running = NULL;
    if (t->result == UTEST_TEST_FAILURE) utest_state.failed++;
    else if (t->result == UTEST_TEST_SKIPPED) utest_state.skipped++;
    else utest_state.passed++;
    if (utest_state.output) *xml_at = utest_xml_entry(*xml_at, t->name, seconds, t->result);
    const char *unit = seconds < 1e-6 ? "ns" : seconds < 1e-3 ? "us" : seconds < 1 ? "ms" : "s";
    double      scale = seconds < 1e-6 ? 1e9 : seconds < 1e-3 ? 1e6 : seconds < 1 ? 1e3 : 1;
    printf("%s %s (%.3g%s)\n", utest_tag(t->result), t->name, seconds * scale, unit);
}

static UTEST_UNUSED void utest_summary(size_t n)
{
    printf("[==========] %lu test cases ran.\n", (unsigned long)n);
    printf("[  PASSED  ] %d tests.\n", utest_state.passed);
    for (int r = UTEST_TEST_SKIPPED; r >= UTEST_TEST_FAILURE; r--) {
        int count = r == UTEST_TEST_SKIPPED ? utest_state.skipped : utest_state.failed;
        if (count == 0) continue;
        printf("%s %d tests, listed below:\n", utest_tag(r), count);
        for (size_t i = 0; i < n; i++)
            if (utest_state.tests[i].result == r) printf("%s %s\n", utest_tag(r), utest_state.tests[i].name);
    }
    printf("%d passed, %d failed, %d skipped\n", utest_state.passed, utest_state.failed, utest_state.skipped);
    fflush(stdout);
}

static UTEST_UNUSED void utest_free(void)
{
    for (size_t i = 0; i < utest_state.tests_length; i++) free(utest_state.tests[i].name);
    free((void *)utest_state.tests);
    utest_state.tests = NULL;
    utest_state.tests_length = 0;
}

static UTEST_UNUSED int utest_run_all(const struct utest_options *o, const char *program)
{
    size_t n = utest_select(o);
    long   xml_at = 0;
    if (o->list) {
        for (size_t i = 0; i < n; i++) printf("%s\n", utest_state.tests[i].name);
        return 0;
    }
    if (n == 0) {
        if (o->filter) printf("utest: the filter '%s' matches no test\n", o->filter);
        else printf("utest: the program has no tests\n");
        return 1;
    }
    if (o->output) {
        utest_state.output = fopen(o->output, "w+");
        if (!utest_state.output) {
            printf("utest: cannot write '%s': %s\n", o->output, strerror(errno));
            return 1;
        }
        utest_xml_begin(program, (int)n);
        xml_at = ftell(utest_state.output);
    }
    printf("[==========] Running %lu test cases.\n", (unsigned long)n);
    if (o->shuffle) printf("[  RANDOM  ] again in this order: --random-order=%" PRIu64 "\n", o->seed);
    for (size_t i = 0; i < n; i++) utest_run(&utest_state.tests[i], &xml_at);
    if (utest_state.output) fclose(utest_state.output);
    utest_summary(n);
    return utest_state.failed > 0;
}

static UTEST_UNUSED int utest_main(int argc, const char *const argv[])
{
    struct utest_options o;
    memset(&o, 0, sizeof o);
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    utest_state.pid = getpid();
    utest_watch();
    int status = utest_parse(&o, argc, argv);
    if (status < 0) status = utest_run_all(&o, argc > 0 ? argv[0] : "tests");
    utest_free();
    return status;
}

#endif /* UTEST_H_INCLUDED */
