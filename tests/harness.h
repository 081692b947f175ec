/* harness.h - what dt's tests use beside the documented macros of utest.h; it works with any utest.h

   dt's own tests/utest.h and the public one (github.com/sheredom/utest.h) have the same macros. `make test-quick UTEST=dir`
   compiles the tests with dir/utest.h. So a test uses UTEST, UTEST_F, UTEST_I, UTEST_SKIP, UTEST_MAIN, UTEST_STATE,
   utest_main, EXPECT_ and ASSERT_, and the names below; nothing else of tests/utest.h.

       dt_test_ns()                 monotonic time in nanoseconds
       dt_test_slow()               the factor on deadlines: DT_TEST_SLOW=4 for a slow machine or an instrumented build
       dt_test_quick()              DT_TEST_QUICK is set: fewer sizes, for slow instruments
       dt_test_random(&state)       a random number of 64 bits
       dt_test_say(format, ...)     prints; tests/utest.h adds it to the XML, too
       dt_test_failure(...)         reports a failure: for macros that compare things utest.h does not know
       DT_TEST_UNUSED               on a function or a parameter that may stay unused

   What the public utest.h asks of a test, because of how its macros are written:
       EXPECT_EQ and its relatives compare numbers of one signedness. Pointers are compared by EXPECT_TRUE(a == b). A
       percent sign in their arguments would be read as a printf format. EXPECT_STREQ fails for NULL. EXPECT_NEAR fails for
       infinities. A test without a check needs (void)utest_result, a fixture that is not used (void)utest_fixture. The body
       of a UTEST_I has no utest_index.

   Include it first (strict modes need _GNU_SOURCE). */
#ifndef DT_TEST_HARNESS_H_INCLUDED
#define DT_TEST_HARNESS_H_INCLUDED

#if defined(_FEATURES_H) && !defined(__USE_MISC)
#error "harness.h: a libc header was included before it in strict mode; include harness.h first or define _GNU_SOURCE"
#endif
#if !defined(_FEATURES_H) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

/* in <>: "utest.h" would be the one in this directory, whatever -I says */
#include <utest.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DT_TEST_UNUSED __attribute__((unused))

static DT_TEST_UNUSED bool dt_test_quick(void) { return getenv("DT_TEST_QUICK") != NULL; }

static DT_TEST_UNUSED double dt_test_slow(void)
{
    const char *s = getenv("DT_TEST_SLOW");
    double      f = s ? strtod(s, NULL) : 1.0;
    return f > 0 ? f : 1.0;
}

static DT_TEST_UNUSED int64_t dt_test_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static DT_TEST_UNUSED uint64_t dt_test_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static DT_TEST_UNUSED __attribute__((format(printf, 1, 2))) void dt_test_say(const char *format, ...)
{
    char    text[4096];
    va_list a;
    va_start(a, format);
    vsnprintf(text, sizeof text, format, a);
    va_end(a);
#ifdef UTEST_OF_DT
    utest_lock();
    utest_say("%s", text);
    utest_unlock();
#else
    printf("%s", text);
#endif
}

/* expected and actual are texts; message is added unless it is NULL or "". Tests may fail from several threads. */
static DT_TEST_UNUSED void dt_test_failure(int *result, const char *file, int line, const char *expected,
                                           const char *actual, const char *message)
{
#ifdef UTEST_OF_DT
    utest_failure(result, file, line, expected, actual, message);
#else
    bool more = message && *message;
    __atomic_store_n(result, 1, __ATOMIC_RELAXED);
    printf("%s:%d: Failure\n  Expected : %s\n    Actual : %s\n%s%s%s", file, line, expected, actual,
           more ? "   Message : " : "", more ? message : "", more ? "\n" : "");
#endif
}

#ifndef UTEST_OF_DT
/* The last [ RUN ] line names a test that crashed, and a forked process does not print again what was printed before. */
static __attribute__((constructor, used)) void dt_test_line_buffer(void) { setvbuf(stdout, NULL, _IOLBF, BUFSIZ); }
#endif

#endif /* DT_TEST_HARNESS_H_INCLUDED */
