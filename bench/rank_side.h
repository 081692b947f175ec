/* rank_side.h - the ranks' part of benchmarks in turns (turns.h), shared by the ranks of dt, of Open MPI and of bare loops

   Protocol: a rank connects to the driver's Unix socket and sends "NAME RANK". Then it waits for commands, one a line:

       use WORD                        choose a kind of memory or an algorithm; answer: ok, or no if it is unknown
       check BYTES                     one call on known numbers; answer: ok, or wrong
       run BYTES WARM CALLS BATCH GAP  WARM untimed calls, then CALLS timed ones; answer: begin and end of each, in ns
                                       of the monotonic clock

   The rank rewrites its buffer before each call, if it has a function for that. With BATCH > 1 one timed entry is BATCH consecutive calls and the
   rewriting between them: this is for small sizes, where reading the clock takes as long as the call. GAP untimed calls
   follow each timed entry: so a few short calls sample a longer time. The ranks of peer_allreduce.py follow the same
   protocol. */
#ifndef BENCH_RANK_SIDE_H_INCLUDED
#define BENCH_RANK_SIDE_H_INCLUDED

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CALLS = 128, RANK_NS_PER_S = 1000000000 };
typedef struct rank_side {
    int rank, world;
    int (*use)(struct rank_side *s, const char *word);
    float *(*buffer)(struct rank_side *s, size_t nbytes); /* returns the same memory for every call of that size */
    int (*call)(struct rank_side *s, float *x, size_t n); /* returns 0, or an error */
    void (*write)(float *x, size_t n, float value);       /* before each call; NULL: nothing */
    int (*check)(struct rank_side *s, float *x, size_t n); /* calls once; 0: the result is right */
    void *self;
} rank_side;

static inline int64_t rank_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * RANK_NS_PER_S + t.tv_nsec;
}
static inline int rank_run(rank_side *s, FILE *to, float *x, size_t n, int warm, int calls, int batch, int gap)
{
    int64_t when[MOST_CALLS][2];
    if (calls < 1 || calls > MOST_CALLS) return -1;
    for (int i = -warm; i < calls; i++) {
        if (s->write) s->write(x, n, (float)(i & 3));
        int64_t t = rank_ns();
        if (s->call(s, x, n)) return -1;
        for (int k = 1; k < batch; k++) {
            if (s->write) s->write(x, n, (float)(k & 3));
            if (s->call(s, x, n)) return -1;
        }
        if (i >= 0) when[i][1] = rank_ns(), when[i][0] = t;
        for (int k = 0; i >= 0 && k < gap; k++) {
            if (s->write) s->write(x, n, (float)(k & 3));
            if (s->call(s, x, n)) return -1;
        }
    }
    for (int i = 0; i < calls; i++) fprintf(to, "%lld %lld ", (long long)when[i][0], (long long)when[i][1]);
    fprintf(to, "\n");
    return 0;
}
/* Serves commands until the driver closes the socket. Returns 0, or 1 after an error. */
static inline int rank_serve(rank_side *s, const char *path, const char *name)
{
    struct sockaddr_un a;
    int                fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char               line[256], word[64];
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) return 1;
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    if (!in || !out) return 1;
    fprintf(out, "%s %d\n", name, s->rank);
    fflush(out);
    while (fgets(line, sizeof line, in)) {
        long long nbytes;
        int       warm, calls, batch, gap, bad = 1;
        if (sscanf(line, "use %63s", word) == 1) {
            fprintf(out, s->use && !s->use(s, word) ? "ok\n" : "no\n");
            bad = 0;
        } else if (sscanf(line, "check %lld", &nbytes) == 1) {
            float *x = s->buffer(s, (size_t)nbytes);
            bad = !x || s->check(s, x, (size_t)nbytes / sizeof *x);
            fprintf(out, bad ? "wrong\n" : "ok\n");
            bad = 0;
        } else if (sscanf(line, "run %lld %d %d %d %d", &nbytes, &warm, &calls, &batch, &gap) == 5) {
            float *x = s->buffer(s, (size_t)nbytes);
            bad = !x || rank_run(s, out, x, (size_t)nbytes / sizeof *x, warm, calls, batch, gap);
        }
        if (bad) return 1;
        fflush(out);
    }
    fclose(in);
    fclose(out);
    return 0;
}

#endif /* BENCH_RANK_SIDE_H_INCLUDED */
