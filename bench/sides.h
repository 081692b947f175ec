/* sides.h - programs (sides) that are measured in turn. Each is started with pipes as stdin and stdout. It prints
   "begin", five lines "loss X" and "ready"; then "rate X" for each line it reads; at the end of its input "memory X". */
#ifndef SIDES_H_INCLUDED
#define SIDES_H_INCLUDED

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { MAX_ROUNDS = 64, LOSSES = 5 };

typedef struct side {
    pid_t pid;
    FILE *in, *out;
    double begin, first; /* seconds from the start of the process to the begin and the end of its first step */
    double loss[LOSSES], rate[MAX_ROUNDS], memory;
} side;
static inline int start(side *s, char **argv, int keep_pages)
{
    int    to[2], from[2];
    double t = now();
    if (pipe(to) || pipe(from)) return -1;
    s->pid = fork();
    if (s->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        for (int i = 3; i < 64; i++) close(i);
        if (keep_pages) {
            setenv("MALLOC_TRIM_THRESHOLD_", "4294967296", 1);
            setenv("MALLOC_MMAP_THRESHOLD_", "4294967296", 1);
        }
        execvp(argv[0], argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    s->in = fdopen(to[1], "w");
    s->out = fdopen(from[0], "r");
    char line[128];
    if (!s->in || !s->out || !fgets(line, sizeof line, s->out) || strcmp(line, "begin\n")) return -1;
    s->begin = now() - t;
    for (int i = 0; i < LOSSES; i++) {
        if (!fgets(line, sizeof line, s->out) || sscanf(line, "loss %lf", &s->loss[i]) != 1)
            return -1;
        if (i == 0) s->first = now() - t;
    }
    return fgets(line, sizeof line, s->out) && !strcmp(line, "ready\n") ? 0 : -1;
}
static inline int turn(side *s, int round)
{
    char line[128];
    fputs("go\n", s->in);
    fflush(s->in);
    return fgets(line, sizeof line, s->out) && sscanf(line, "rate %lf", &s->rate[round]) == 1 ? 0 : -1;
}
static inline void finish(side *s)
{
    char line[128];
    int  status;
    if (s->in) fclose(s->in);
    if (s->out && fgets(line, sizeof line, s->out)) sscanf(line, "memory %lf", &s->memory);
    if (s->out) fclose(s->out);
    if (s->pid > 0) waitpid(s->pid, &status, 0);
}
static inline double middle(const double *v, int n) /* the median; does not change v */
{
    double s[MAX_ROUNDS];
    memcpy(s, v, (size_t)n * sizeof *s);
    return median(s, n);
}
static inline double ratio_of(const side *a, const side *b, int n)
{
    double r[MAX_ROUNDS];
    for (int i = 0; i < n; i++) r[i] = a->rate[i] / b->rate[i];
    return median(r, n);
}
#endif /* SIDES_H_INCLUDED */
