/* Generation with a GPT-2 of 124 million parameters and a cache of keys and values, beside PyTorch and beside the bandwidth of memory:
   make bench-generate

       bench_generate [--threads 1,2] [--rounds N] [--tokens N] [--python PATH]

   The model of examples/models.h gets random weights, in f32, as a file that PyTorch reads, too. All sides continue the same prompt of 16
   tokens, always with the most probable token. First their tokens must be equal. Then they take turns of --tokens tokens (48). PyTorch
   is there twice: transformers' GPT2LMHeadModel with its cache, and a loop of plain calls (addmm, scaled_dot_product_attention, a
   cache that is written in place); the ratio is to the faster one. A token reads each weight once, so no program makes more tokens
   than bandwidth / bytes of weights; the bandwidth is that of the same number of threads reading memory, the best of all rounds. */
#define DT_IMPLEMENTATION
#include "dt_layers.h"
#include "examples/models.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "sides.h"

enum { PROMPT = 16, MOST = 512, LAYERS = 12, HEADS = 12, HEAD_DIM = 64, VOCAB = 50257 };
static const char *const file = "build/gpt2-124m.safetensors";

/* Writes n tokens behind the prompt; returns the seconds from the first to the last. */
static double generate(dt_model *m, dt_kv_cache **cache, int64_t *ids, int n)
{
    double t = 0;
    for (int i = 0; i < PROMPT; i++) ids[i] = (i * 7919 + 11) % VOCAB;
    for (int i = 0; i < LAYERS; i++) dt_kv_cache_truncate(cache[i], 0);
    dt_no_grad_begin();
    for (int i = 0, at = 0; i < n; i++) {
        int        len = PROMPT + i - at;
        dt_tensor *y = gpt2(m, dt_from(ids + at, DT_SHAPE(1, len), .dtype = DT_I64), TRANSFORMER_OPTS(.cache = cache));
        at += len;
        ids[at] = (int64_t)dt_item(dt_argmax(dt_select(dt_select(y, 0, 0), 0, len - 1)));
        dt_end();
        if (i == 0) t = now();
    }
    dt_no_grad_end();
    return now() - t;
}
static int run_worker(int threads, int tokens)
{
    char         line[64];
    int64_t      ids[PROMPT + MOST];
    dt_kv_cache *cache[LAYERS];
    dt_set_num_threads(threads);
    for (int i = 0; i < LAYERS; i++) cache[i] = dt_kv_cache_new(1, HEADS, PROMPT + MOST, HEAD_DIM);
    dt_model *m = dt_model_new(.seed = 1);
    dt_model_load(m, file);
    dt_model_eval(m);
    printf("begin\n");
    fflush(stdout);
    generate(m, cache, ids, tokens);
    for (int i = 0; i < LOSSES; i++) printf("loss %lld\n", (long long)ids[PROMPT + i * (tokens - 1) / (LOSSES - 1)]);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        printf("rate %.9g\n", (tokens - 1) / generate(m, cache, ids, tokens));
        fflush(stdout);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("memory %.3f\n", (double)u.ru_maxrss / 1024);
    for (int i = 0; i < LAYERS; i++) dt_kv_cache_free(cache[i]);
    dt_model_free(m);
    return dt_check("bench_generate");
}
static int make_file(void)
{
    struct stat s;
    if (stat(file, &s) == 0) return 0;
    int64_t   id = 0;
    dt_model *m = dt_model_new(.seed = 1);
    dt_no_grad_begin();
    gpt2(m, dt_from(&id, DT_SHAPE(1, 1), .dtype = DT_I64), TRANSFORMER_OPTS(.layers = 0));
    dt_end();
    dt_no_grad_end();
    /* larger weights than the initial ones, so that tokens differ clearly */
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        if (dt_model_get(m, i, &p) && dt_ndim(p.value) == 2) dt_add_to(p.value, dt_clone(p.value), 1.5);
    }
    dt_end();
    dt_model_save(m, file);
    dt_model_free(m);
    return dt_check("bench_generate");
}

/* ---- bandwidth */
typedef float wide __attribute__((vector_size(32), aligned(32)));
enum { STREAMS = 4 }; /* a core reads several places at once faster than one */
typedef struct reader {
    pthread_t   thread;
    const wide *from;
    size_t      n; /* a multiple of 2 STREAMS */
    float       sum;
} reader;
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void *read_all(void *arg)
{
    reader     *r = arg;
    wide        s[2 * STREAMS] = { { 0 } };
    size_t      n = r->n / STREAMS;
    const wide *p = r->from;
    for (size_t i = 0; i + 2 <= n; i += 2)
#pragma GCC unroll 4
        for (size_t k = 0; k < STREAMS; k++) s[2 * k] += p[k * n + i], s[2 * k + 1] += p[k * n + i + 1];
    for (int k = 1; k < 2 * STREAMS; k++) s[0] += s[k];
    r->sum = s[0][0] + s[0][5];
    return NULL;
}
/* Bytes a second of so many threads that read a block as large as the weights. The caller reads, too. */
static double bandwidth(const char *block, size_t nbytes, int threads)
{
    reader r[2];
    size_t part = nbytes / (size_t)threads / 4096 * 4096;
    double t = now();
    for (int i = 0; i < threads; i++) {
        r[i].from = (const wide *)(const void *)(block + (size_t)i * part);
        r[i].n = part / sizeof(wide);
        if (i) pthread_create(&r[i].thread, NULL, read_all, &r[i]);
    }
    read_all(&r[0]);
    for (int i = 1; i < threads; i++) pthread_join(r[i].thread, NULL);
    static volatile float sink;
    for (int i = 0; i < threads; i++) sink = sink + r[i].sum;
    return (double)part * threads / (now() - t);
}

static int compare(const char *threads, int rounds, const char *tokens, const char *self, const char *python)
{
    static side  all[3];
    char         peer[] = "bench/peer_generate.py";
    int          bad = 0, n = atoi(threads);
    double       best = 0;
    const double weights = 4.0 * (124439808 - 1024 * 768); /* of the table of positions one row is read */
    size_t       nbytes = (size_t)weights / 4096 * 4096;
    char        *block = aligned_alloc(1 << 21, (nbytes + (1 << 21) - 1) >> 21 << 21);
    if (!block) return 1;
    madvise(block, nbytes, MADV_HUGEPAGE);
    memset(block, 0, nbytes);
    memset(all, 0, sizeof all);
    char *ours[] = { (char *)self, (char *)"--worker", (char *)threads, (char *)tokens, NULL };
    char *loop[] = { (char *)python, peer, (char *)"plain", (char *)file, (char *)threads, (char *)tokens, NULL };
    char *library[] = { (char *)python, peer, (char *)"transformers", (char *)file, (char *)threads, (char *)tokens, NULL };
    char **commands[] = { ours, loop, library };
    const char *const names[] = { "dt", "PyTorch", "transformers" };
    for (int i = 0; i < 3 && !bad; i++) {
        bad = start(&all[i], commands[i], 0);
        if (bad) fprintf(stderr, "bench_generate: %s did not start\n", names[i]);
    }
    for (int i = 1; i < 3 && !bad; i++)
        for (int k = 0; k < LOSSES && !bad; k++)
            if (all[0].loss[k] != all[i].loss[k]) {
                fprintf(stderr, "bench_generate: token %d: dt %g, %s %g: expected the same\n", k, all[0].loss[k], names[i],
                        all[i].loss[k]);
                bad = 1;
            }
    for (int r = 0; r < rounds + 1 && !bad; r++) { /* the first round is a warm-up */
        for (int k = 0; k < 4; k++) {
            double b = bandwidth(block, nbytes, n);
            best = b > best ? b : best;
        }
        for (int i = 0; i < 3 && !bad; i++) {
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other side's spinning threads go to sleep */
            nanosleep(&pause, NULL);
            bad = turn(&all[(i + r) % 3], r ? r - 1 : 0);
        }
    }
    for (int i = 0; i < 3; i++) finish(&all[i]);
    free(block);
    if (bad) return 1;
    int    fast = middle(all[1].rate, rounds) >= middle(all[2].rate, rounds) ? 1 : 2;
    double rate = middle(all[0].rate, rounds), bound = best / weights, ratio = ratio_of(&all[0], &all[fast], rounds);
    printf("generate-gpt2-124m-%st: dt %.2f tokens/s, PyTorch %.2f tokens/s, ratio %.2f%s\n", threads, rate,
           middle(all[fast].rate, rounds), ratio, ratio < 1 ? "  (below the target)" : "");
    printf("    plain loop %.2f, transformers %.2f tokens/s; %.2f GB/s read, so at most %.2f tokens/s: %.2f of the bound%s\n",
           middle(all[1].rate, rounds), middle(all[2].rate, rounds), best / 1e9, bound, rate / bound,
           rate / bound < 0.9 ? "  (below the target)" : "");
    fflush(stdout);
    return 0;
}
int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--worker")) return run_worker(atoi(argv[2]), atoi(argv[3]));
    const char *threads = option(argc, argv, "--threads", "1,2"), *tokens = option(argc, argv, "--tokens", "48");
    int         rounds = atoi(option(argc, argv, "--rounds", "5"));
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 5;
    if (atoi(tokens) < LOSSES || atoi(tokens) > MOST) tokens = "48";
    signal(SIGPIPE, SIG_IGN);
    if (make_file()) return 1;
    int failed = 0;
    for (int t = 1; t <= 2; t++)
        if (strchr(threads, '0' + t))
            failed |= compare(t == 1 ? "1" : "2", rounds, tokens, argv[0], option(argc, argv, "--python", "python3"));
    return failed;
}
