/* bench_gemm: compares the CPU backend's gemm with OpenBLAS and BLIS, one and two threads, f32.
   Each result is checked before anything is timed (exit status 1 if it is wrong). The libraries take turns in many
   rounds, in every order equally often. A turn begins with a pause, in which the threads of the previous library (which
   spin for some milliseconds) go to sleep, and with untimed calls. The result is the median. A peer that is not
   installed is named and skipped.
     bench_gemm [--quick] [--transposes] [--threads N] [name, as in 512 or 16x100352x144]
   Link with -ldl -lm -lpthread; the peers are loaded with dlopen. */
#define _GNU_SOURCE
#ifndef BENCH_GEMM /* a development build defines it as the function to measure */
#define DT_IMPLEMENTATION
#include "../dt.h"
#define BENCH_GEMM(call) dt_device_backend(dt_cpu())->kernel[DT_K_gemm](dt_cpu(), call)
#endif
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                         const float *b, int ldb, float beta, float *c, int ldc);
typedef struct peer {
    const char *name;
    const char *files[3];
    const char *set_threads_name;
    sgemm_fn    sgemm;
    void (*set_threads)(int);        /* OpenBLAS */
    void (*set_threads_long)(long);  /* BLIS: dim_t */
} peer;

static peer peers[2] = {
    { "OpenBLAS", { "libopenblas.so.0", "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0", NULL },
      "openblas_set_num_threads", NULL, NULL, NULL },
    { "BLIS", { "libblis.so.4", "/usr/lib/x86_64-linux-gnu/blis-openmp/libblis.so.4", NULL },
      "bli_thread_set_num_threads", NULL, NULL, NULL },
};

static void load_peer(peer *p, int is_blis)
{
    for (int i = 0; p->files[i] && !p->sgemm; i++) {
        void *h = dlopen(p->files[i], RTLD_NOW | RTLD_LOCAL);
        void *f = h ? dlsym(h, "cblas_sgemm") : NULL, *s = h ? dlsym(h, p->set_threads_name) : NULL;
        if (!f || !s) continue;
        memcpy(&p->sgemm, &f, sizeof f);
        if (is_blis) memcpy(&p->set_threads_long, &s, sizeof s);
        else memcpy(&p->set_threads, &s, sizeof s);
    }
    if (!p->sgemm) printf("skip %s: %s is not installed\n", p->name, p->files[0]);
}

static void set_threads(int n)
{
    dt_set_num_threads(n);
    if (peers[0].set_threads) peers[0].set_threads(n);
    if (peers[1].set_threads_long) peers[1].set_threads_long(n);
}

typedef struct problem {
    int     m, n, k, ta, tb;
    float  *a, *b, *c;
    dt_call call;
} problem;

static float *matrix(int64_t n, uint32_t seed)
{
    float *p = NULL;
    if (posix_memalign((void **)&p, 64, (size_t)n * 4)) exit(1);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)seed * (1.0f / 2147483648.0f);
    }
    return p;
}

static void view(dt_view *v, void *data, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride)
{
    v->data = data;
    v->dtype = DT_F32;
    v->ndim = 2;
    v->shape[0] = rows, v->shape[1] = cols;
    v->stride[0] = row_stride, v->stride[1] = col_stride;
}

static void problem_new(problem *p, int m, int n, int k, int ta, int tb)
{
    memset(p, 0, sizeof *p);
    p->m = m, p->n = n, p->k = k, p->ta = ta, p->tb = tb;
    p->a = matrix((int64_t)m * k, 1);
    p->b = matrix((int64_t)k * n, 2);
    p->c = matrix((int64_t)m * n, 3);
    p->call.op = DT_K_gemm;
    p->call.nout = 1, p->call.nin = 2;
    p->call.u.gemm.alpha = 1;
    p->call.in[2].ndim = -1;
    view(&p->call.out[0], p->c, m, n, n, 1);
    view(&p->call.in[0], p->a, m, k, ta ? 1 : k, ta ? m : 1);
    view(&p->call.in[1], p->b, k, n, tb ? 1 : n, tb ? k : 1);
}
static void problem_free(problem *p)
{
    free(p->a);
    free(p->b);
    free(p->c);
}

static void run(problem *p, int who) /* 0: dt, 1: OpenBLAS, 2: BLIS */
{
    if (who == 0) {
        if (BENCH_GEMM(&p->call)) exit(1);
    } else {
        peers[who - 1].sgemm(101, p->ta ? 112 : 111, p->tb ? 112 : 111, p->m, p->n, p->k, 1.0f, p->a,
                             p->ta ? p->m : p->k, p->b, p->tb ? p->k : p->n, 0.0f, p->c, p->n);
    }
}

static int check(problem *p, const char *label) /* compares about 2000 elements, including the corners, with sums in double */
{
    int64_t total = (int64_t)p->m * p->n, step = total > 2000 ? total / 2000 | 1 : 1;
    for (int64_t i = 0; i < total; i++) p->c[i] = NAN;
    run(p, 0);
    for (int64_t e = 0; e < total + step; e += step) {
        int64_t at = e < total ? e : total - 1, i = at / p->n, j = at % p->n;
        double  sum = 0, size = 0;
        for (int64_t q = 0; q < p->k; q++) {
            double x = p->a[p->ta ? q * p->m + i : i * p->k + q], y = p->b[p->tb ? j * p->k + q : q * p->n + j];
            double t = x * y;
            sum += t;
            size += fabs(t);
        }
        if (!(fabs((double)p->c[at] - sum) <= 1.2e-7 * (8 + sqrt((double)p->k)) * size)) {
            printf("%s: WRONG at (%lld, %lld): %.9g, want %.9g\n", label, (long long)i, (long long)j,
                   (double)p->c[at], sum);
            return 1;
        }
    }
    for (int64_t i = 0; i < total; i++)
        if (isnan(p->c[i])) {
            printf("%s: WRONG: element %lld was not written\n", label, (long long)i);
            return 1;
        }
    return 0;
}

enum { MAX_ROUNDS = 101 };
static const char *only; /* the problem named on the command line, or NULL */
#define WARM 0.02               /* seconds of untimed calls at the start of a turn */
#define PAUSE (50L * NS_PER_MS) /* pause before them if there are several threads */
static int measure(const char *name, int m, int n, int k, int ta, int tb, int threads, double seconds)
{
    static double t[4][MAX_ROUNDS];
    static const int order[6][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 0, 2 }, { 2, 0, 1 }, { 1, 2, 0 }, { 0, 2, 1 } };
    problem       p;
    char          label[64];
    double        flop = 2.0 * m * n * k;
    int           reps = (int)(5e8 / flop) + 1, rounds = 0;
    if (only && strcmp(only, name) != 0) return 0;
    snprintf(label, sizeof label, "gemm-%s-%dt", name, threads);
    problem_new(&p, m, n, k, ta, tb);
    set_threads(threads);
    if (check(&p, label)) return 1;
    for (int who = 0; who < 3; who++)
        if (who == 0 || peers[who - 1].sgemm) run(&p, who);
    for (double begin = now(); rounds < MAX_ROUNDS && (rounds < 6 || now() - begin < seconds); rounds++) {
        for (int w = 0; w < 3; w++) {
            int who = order[rounds % 6][w];
            if (who && !peers[who - 1].sgemm) continue;
            struct timespec rest = { 0, PAUSE };
            if (threads > 1) nanosleep(&rest, NULL);
            double at = now();
            do run(&p, who);
            while (now() - at < WARM);
            at = now();
            for (int r = 0; r < reps; r++) run(&p, who);
            t[who][rounds] = (now() - at) / reps;
        }
        t[3][rounds] = fma_round();
    }
    double dt = flop / median(t[0], rounds) / 1e9, peak = median(t[3], rounds), best = 0;
    for (int w = 1; w < 3; w++) {
        if (!peers[w - 1].sgemm) continue;
        double x = flop / median(t[w], rounds) / 1e9;
        if (x > best) best = x;
        printf("%s: dt %.1f GFLOP/s, %s %.1f GFLOP/s, ratio %.2f\n", label, dt, peers[w - 1].name, x, dt / x);
    }
    printf("%s: dt %.1f GFLOP/s", label, dt);
    if (peak > 0) printf(", %.0f %% of %d x the FMA peak of a core", 100 * dt / (peak * threads), threads);
    if (best > 0) printf(", ratio to the better peer %.2f", dt / best);
    printf("\n");
    fflush(stdout);
    problem_free(&p);
    return 0;
}

int main(int argc, char **argv)
{
    static const int cube[] = { 64, 128, 256, 512, 1024, 2048 };
    double           seconds = 3;
    int              transposes = 0, bad = 0, only_threads = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) seconds = 0.15;
        else if (!strcmp(argv[i], "--transposes")) transposes = 1;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc) only_threads = atoi(argv[++i]);
        else if (argv[i][0] != '-') only = argv[i];
        else return fprintf(stderr, "bench_gemm: unknown option %s\n", argv[i]), 1;
    }
    load_peer(&peers[0], 0);
    load_peer(&peers[1], 1);
    double peak[21];
    for (int i = 0; i < 21; i++) peak[i] = fma_round();
    printf("FMA peak of one core: %.1f GFLOP/s\n", median(peak, 21));
    for (int threads = 1; threads <= 2; threads++) {
        if (only_threads && threads != only_threads) continue;
        for (size_t i = 0; i < sizeof cube / sizeof cube[0]; i++) {
            char name[16];
            snprintf(name, sizeof name, "%d", cube[i]);
            bad |= measure(name, cube[i], cube[i], cube[i], 0, 0, threads, seconds);
        }
        bad |= measure("64x1024x576", 64, 1024, 576, 0, 0, threads, seconds);
        bad |= measure("16x100352x144", 16, 100352, 144, 0, 0, threads, seconds);
        for (int t = 1; transposes && t < 4; t++) {
            static const char *const tname[] = { "", "512-ta", "512-tb", "512-tatb" };
            bad |= measure(tname[t], 512, 512, 512, t & 1, t >> 1, threads, seconds);
        }
    }
    return bad;
}
