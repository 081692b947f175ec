/* bench.h - shared by the benchmarks: the clock, medians, options, the FMA peak of a core */
#ifndef BENCH_H_INCLUDED
#define BENCH_H_INCLUDED

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

static inline double now(void) /* seconds */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static inline double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof v[0], by_value);
    return v[n / 2];
}

static inline const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}

/* the FMA peak of a core: a loop of FMAs that uses registers only */
#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("avx2,fma"))) static inline float fma_loop(int64_t n)
{
    __m256 x = _mm256_set1_ps(1e-9f), y = _mm256_set1_ps(0.5f), c0 = x, c1 = x, c2 = x, c3 = x, c4 = x, c5 = x, c6 = x;
    __m256 c7 = x, c8 = x, c9 = x, c10 = x, c11 = x;
    float  out[8];
#define F(c) __asm__ volatile("vfmadd231ps %1, %2, %0" : "+x"(c) : "x"(x), "x"(y))
    for (int64_t r = 0; r < n; r++) {
        F(c0); F(c1); F(c2); F(c3); F(c4); F(c5); F(c6); F(c7); F(c8); F(c9); F(c10); F(c11);
    }
#undef F
    c0 = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(c0, c1), _mm256_add_ps(c2, c3)),
                       _mm256_add_ps(_mm256_add_ps(c4, c5), _mm256_add_ps(c6, c7)));
    _mm256_storeu_ps(out, _mm256_add_ps(c0, _mm256_add_ps(_mm256_add_ps(c8, c9), _mm256_add_ps(c10, c11))));
    return out[0];
}
static inline double fma_round(void) /* GFLOP/s of one short round */
{
    static volatile float sink;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    double t = now();
    sink = fma_loop(20000);
    (void)sink;
    return 20000.0 * 12 * 16 / (now() - t) / 1e9;
}
#else
static inline double fma_round(void) { return 0; }
#endif

#endif /* BENCH_H_INCLUDED */
