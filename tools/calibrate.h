/* calibrate.h - measures a machine, without any model, for tools/dtplan: what processes reach together, memory, and the links
   between two ranks: shared memory and TCP

       calibration c;
       if (calibrate(&c, 0, stderr)) ...         0: done; a quarter of a minute. turns: 0 is the default; progress: a line for each
                                                 part, or NULL
       calibrate_print(stdout, &c);              a cluster of this machine alone, for dtplan --cluster

   What two processes reach together limits data parallel training on CPUs before any communication: they share caches, memory
   and often the clock of their cores. Every figure is a median of short turns, in which the sides alternate: the speed of a
   shared machine drifts. It must run while the program has only one thread. */
#ifndef CALIBRATE_H_INCLUDED
#define CALIBRATE_H_INCLUDED

#include "dt.h"
#include "dt_comm.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALIBRATE_PROCESSES = 8, CALIBRATE_TURNS = 15, CALIBRATE_CALLS = 101, CALIBRATE_SETS = 4, CALIBRATE_SIZES = 3 };
static const int calibrate_sets[CALIBRATE_SETS] = { 1, 4, 16, 64 }; /* MiB: working sets of a process */
static const int calibrate_sizes[CALIBRATE_SIZES] = { 1, 4, 16 };   /* MiB: buffers of an allreduce */
typedef struct calibrate_link {                                     /* time(n bytes) = latency + n / rate */
    double latency, rate;                                           /* seconds; bytes of one rank's buffer a second, 4 MiB */
    double sized[CALIBRATE_SIZES]; /* allreduce only: the same of each size of calibrate_sizes; larger ones leave the caches */
    double busy; /* allreduce only: how long a rank's core cannot compute, in parts of the transfer's time. Above 1: the transfer
                    takes longer beside computing, because the core that computes also carries it */
} calibrate_link;
typedef struct calibration {
    int cores, turns;
    /* [n]: speed of each of n processes, in parts of one alone: products of matrices in the cache; y += x in memory of each size */
    double         compute[CALIBRATE_PROCESSES + 1], memory[CALIBRATE_PROCESSES + 1][CALIBRATE_SETS];
    double         moved[CALIBRATE_SETS]; /* bytes a second of one alone that y += x reads and writes */
    double         flops;                 /* operations a second of one alone, in these products */
    double         copy, sum;             /* bytes a second: memcpy; y += x, bytes of x */
    double         spread;                /* standard deviation of the time of a fixed piece of work, in parts of it */
    double         others;                /* what other programs had of the cores meanwhile, in parts of all of them */
    calibrate_link send[2], allreduce[2]; /* shared memory; TCP over loopback */
} calibration;
static const char *const calibrate_links[2] = { "shm", "tcp" };

static double calibrate_now(void) { return 1e-9 * (double)dt_trace_now(); }
static int    calibrate_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double calibrate_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, calibrate_order);
    return v[n / 2];
}
static int calibrate_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* ---- what other programs do meanwhile */
static double calibrate_busy_cores(void) /* seconds of all cores, of all programs and of the host, since the machine started */
{
    unsigned long long t[8] = { 0 };
    FILE              *f = fopen("/proc/stat", "r");
    int n = f ? fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) : 0;
    if (f) fclose(f);
    return n == 8 ? (double)(t[0] + t[1] + t[2] + t[7]) / (double)sysconf(_SC_CLK_TCK) : 0;
}
static double calibrate_used(int who) /* RUSAGE_SELF or RUSAGE_CHILDREN */
{
    struct rusage u;
    if (getrusage(who, &u)) return 0;
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* ---- pieces of work: a product of matrices that are in the cache; y += x, with another part of the working set each time */
enum { CALIBRATE_SIDE = 256, CALIBRATE_PART = 1 << 18 };
typedef float calibrate_vector __attribute__((vector_size(32), may_alias));
typedef struct calibrate_work {
    dt_tensor *a, *b;
    float     *x;  /* the largest working set: pairs of parts of x and y */
    size_t     at; /* bytes */
} calibrate_work;
static int calibrate_begin(calibrate_work *w)
{
    dt_set_num_threads(1);
    dt_no_grad_begin();
    w->a = dt_keep(dt_full(0.5, DT_SHAPE(CALIBRATE_SIDE, CALIBRATE_SIDE)));
    w->b = dt_keep(dt_full(0.5, DT_SHAPE(CALIBRATE_SIDE, CALIBRATE_SIDE)));
    w->x = (float *)aligned_alloc(64, (size_t)calibrate_sets[CALIBRATE_SETS - 1] << 20);
    w->at = 0;
    if (!w->x) return -1;
    memset(w->x, 0, (size_t)calibrate_sets[CALIBRATE_SETS - 1] << 20);
    return dt_error_code();
}
static void calibrate_add(float *y, const float *x, size_t nbytes)
{
    calibrate_vector       *to = (calibrate_vector *)(void *)y;
    const calibrate_vector *from = (const calibrate_vector *)(const void *)x;
    for (size_t i = 0; i < nbytes / sizeof *to; i++) to[i] += from[i];
}
static void calibrate_do(calibrate_work *w, int set) /* -1: the product */
{
    if (set < 0) {
        dt_matmul(w->a, w->b);
        dt_end();
        return;
    }
    char *at = (char *)w->x + w->at % ((size_t)calibrate_sets[set] << 20);
    calibrate_add((float *)(void *)at, (const float *)(const void *)(at + CALIBRATE_PART), CALIBRATE_PART);
    w->at += 2 * CALIBRATE_PART;
}

/* ---- processes that do not communicate */
typedef struct calibrate_child {
    pid_t pid;
    int   to, from;
} calibrate_child;
static void
calibrate_serve(int in, int out) /* the child: a byte names the work; the answer is how often it did it in a second */
{
    calibrate_work w;
    char           kind;
    bool           bad = calibrate_begin(&w) != 0;
    while (!bad && read(in, &kind, 1) == 1) {
        double t = calibrate_now(), rate = 0;
        int    n = 0;
        while (calibrate_now() - t < 0.06) calibrate_do(&w, kind == 'c' ? -1 : kind - '0'), n++;
        rate = n / (calibrate_now() - t);
        bad = dt_error() || write(out, &rate, sizeof rate) != (ssize_t)sizeof rate;
    }
    _exit(bad);
}
static int calibrate_fork(calibrate_child *c, int n)
{
    for (int i = 0; i < n; i++) {
        int to[2], from[2];
        if (pipe(to) || pipe(from)) return -1;
        fflush(NULL);
        c[i].pid = fork();
        if (c[i].pid < 0) return -1;
        if (!c[i].pid) {
            for (int k = 0; k < i; k++) close(c[k].to), close(c[k].from);
            close(to[1]);
            close(from[0]);
            calibrate_serve(to[0], from[1]);
        }
        close(to[0]);
        close(from[1]);
        c[i].to = to[1];
        c[i].from = from[0];
    }
    return 0;
}
static double calibrate_turn(calibrate_child *c, int n,
                             char kind) /* the mean rate of the first n at once; negative: failed */
{
    double rate, sum = 0;
    for (int i = 0; i < n; i++)
        if (write(c[i].to, &kind, 1) != 1) return -1;
    for (int i = 0; i < n; i++) {
        if (read(c[i].from, &rate, sizeof rate) != (ssize_t)sizeof rate) return -1;
        sum += rate;
    }
    return sum / n;
}
static int calibrate_together(calibration *c)
{
    calibrate_child child[CALIBRATE_PROCESSES];
    double          ratio[CALIBRATE_TURNS], alone[CALIBRATE_TURNS], sum = 0, square = 0;
    int             n = c->cores < CALIBRATE_PROCESSES ? c->cores : CALIBRATE_PROCESSES, rc = calibrate_fork(child, n);
    for (int set = -1; set < CALIBRATE_SETS && !rc; set++)
        for (int k = 1; k <= n && !rc; k++) {
            for (int t = -1; t < c->turns && !rc; t++) {
                char   kind = (char)(set < 0 ? 'c' : '0' + set);
                double one = calibrate_turn(child, 1, kind), all = calibrate_turn(child, k, kind);
                rc = one > 0 && all > 0 ? 0 : -1;
                if (t >= 0) ratio[t] = all / one, alone[t] = one;
            }
            *(set < 0 ? &c->compute[k] : &c->memory[k][set]) = fmin(1, calibrate_median(ratio, c->turns));
            if (set >= 0 && k == 1) c->moved[set] = 3.0 * CALIBRATE_PART * calibrate_median(alone, c->turns);
            if (set < 0 && k == 1) {
                for (int t = 0; t < c->turns; t++) sum += alone[t] / c->turns;
                for (int t = 0; t < c->turns; t++)
                    square += (alone[t] / sum - 1) * (alone[t] / sum - 1) / (c->turns - 1);
                c->spread = sqrt(square);
                c->flops = sum * 2.0 * CALIBRATE_SIDE * CALIBRATE_SIDE * CALIBRATE_SIDE;
            }
        }
    for (int i = 0; i < n; i++) {
        close(child[i].to);
        close(child[i].from);
        waitpid(child[i].pid, NULL, 0);
    }
    return rc;
}
static int calibrate_memory(calibration *c)
{
    enum { LARGE = 1 << 26 };
    char  *a = (char *)aligned_alloc(64, LARGE), *b = (char *)aligned_alloc(64, LARGE);
    double copy[CALIBRATE_TURNS], sum[CALIBRATE_TURNS];
    int    rc = a && b ? 0 : -1;
    if (!rc) memset(a, 1, LARGE), memset(b, 2, LARGE);
    for (int t = 0; t < c->turns && !rc; t++) {
        double at = calibrate_now();
        memcpy(b, a, LARGE);
        copy[t] = LARGE / (calibrate_now() - at);
        at = calibrate_now();
        calibrate_add((float *)(void *)b, (const float *)(const void *)a, LARGE);
        sum[t] = LARGE / (calibrate_now() - at);
    }
    free(a);
    free(b);
    if (rc) return rc;
    c->copy = calibrate_median(copy, c->turns);
    c->sum = calibrate_median(sum, c->turns);
    return 0;
}

/* ---- links between two ranks */
typedef struct calibrate_job {
    int            tcp, turns;
    calibrate_link send, allreduce; /* in shared memory: rank 0 writes them */
} calibrate_job;
static double calibrate_ping(dt_comm *c, char *buf, int64_t n, int times) /* one way: half of a median round trip */
{
    double took[CALIBRATE_CALLS];
    for (int i = -2; i < times; i++) {
        double t = calibrate_now();
        if (dt_comm_rank(c) == 0) {
            dt_comm_send(c, buf, n, DT_COMM_U8, 1);
            dt_comm_recv(c, buf, n, DT_COMM_U8, 1);
        } else {
            dt_comm_recv(c, buf, n, DT_COMM_U8, 0);
            dt_comm_send(c, buf, n, DT_COMM_U8, 0);
        }
        if (i >= 0) took[i] = (calibrate_now() - t) / 2;
    }
    return calibrate_median(took, times);
}
/* A median allreduce of n bytes: from the time the last rank enters to the time the last one leaves, by their common clock. */
static double calibrate_all(dt_comm *c, float *x, int64_t n, int times)
{
    double took[CALIBRATE_CALLS];
    for (int i = -2; i < times; i++) {
        memset(x, 0, (size_t)n); /* gradients were just computed */
        dt_comm_barrier(c);
        double t = calibrate_now();
        dt_comm_allreduce(c, x, n / 4, DT_COMM_F32, DT_COMM_SUM);
        double when[2];
        when[0] = t;
        when[1] = calibrate_now();
        dt_comm_allreduce(c, when, 2, DT_COMM_F64, DT_COMM_MAX);
        if (i >= 0) took[i] = when[1] - when[0];
    }
    return calibrate_median(took, times);
}
/* What a transfer in the background takes from computing: both ranks compute a fixed work that is longer than the transfer, with it
   and without it, in turns. */
static double calibrate_busy(dt_comm *c, float *x, int64_t n, double seconds, int turns)
{
    calibrate_work w;
    double         extra[CALIBRATE_TURNS];
    int64_t        times = 1;
    if (calibrate_begin(&w)) return -1;
    double t = calibrate_now();
    for (int i = 0; i < 20; i++) calibrate_do(&w, -1);
    times = (int64_t)(3 * seconds / ((calibrate_now() - t) / 20)) + 1;
    dt_comm_broadcast(c, &times, 1, DT_COMM_I64, 0);
    for (int k = -1; k < turns; k++) {
        double took[2];
        for (int with = 0; with < 2; with++) {
            memset(x, 0, (size_t)n);
            dt_comm_barrier(c);
            t = calibrate_now();
            dt_work *work = with ? dt_comm_allreduce_start(c, x, n / 4, DT_COMM_F32, DT_COMM_SUM) : NULL;
            for (int64_t i = 0; i < times; i++) calibrate_do(&w, -1);
            if (work) dt_work_wait(work);
            took[with] = calibrate_now() - t;
        }
        if (k >= 0) extra[k] = (took[1] - took[0]) / seconds;
    }
    double busy = calibrate_median(extra, turns);
    return busy < 0 ? 0 : busy > 10 ? 10 : busy;
}
static int calibrate_rank(void *user)
{
    enum { LARGE = 4 << 20, MOST = 16 << 20 };
    calibrate_job *j = (calibrate_job *)user;
    dt_comm_opts   o;
    memset((void *)&o, 0, sizeof o);
    o.transport = calibrate_links[j->tcp];
    dt_comm *c = dt_comm_init_with(o);
    float   *x = c ? (float *)dt_comm_alloc(c, MOST) : NULL;
    if (!x) return 1;
    memset(x, 0, MOST);
    calibrate_link s, a;
    s.latency = calibrate_ping(c, (char *)x, 64, CALIBRATE_CALLS);
    s.rate = LARGE / fmax(1e-9, calibrate_ping(c, (char *)x, LARGE, 21) - s.latency);
    a.latency = calibrate_all(c, x, 64, CALIBRATE_CALLS);
    double each = calibrate_all(c, x, LARGE, 21);
    a.rate = LARGE / fmax(1e-9, each - a.latency);
    for (int i = 0; i < CALIBRATE_SIZES; i++) {
        int64_t n = (int64_t)calibrate_sizes[i] << 20;
        a.sized[i] = n == LARGE ? a.rate : (double)n / fmax(1e-9, calibrate_all(c, x, n, 11) - a.latency);
        s.sized[i] = 0;
    }
    a.busy = calibrate_busy(c, x, LARGE, each, j->turns);
    s.busy = a.busy;
    if (dt_comm_rank(c) == 0) j->send = s, j->allreduce = a;
    int bad = dt_comm_get_status(c) || dt_error();
    if (bad) fprintf(stderr, "calibrate: %s\n", dt_error() ? dt_error() : dt_comm_error(c));
    dt_comm_dealloc(c, x);
    return dt_comm_free(c) || bad;
}
static int calibrate_links_of(calibration *c, int tcp)
{
    calibrate_job *j =
        (calibrate_job *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED) return -1;
    memset((void *)j, 0, sizeof *j);
    j->tcp = tcp;
    j->turns = c->turns;
    int rc = dt_spawn(2, calibrate_rank, j);
    c->send[tcp] = j->send;
    c->allreduce[tcp] = j->allreduce;
    munmap((void *)j, sizeof *j);
    return rc;
}

static int calibrate(calibration *c, int turns, FILE *progress)
{
    memset((void *)c, 0, sizeof *c);
    c->turns = turns > 1 && turns < CALIBRATE_TURNS ? turns : CALIBRATE_TURNS;
    c->cores = calibrate_cores();
    double busy = calibrate_busy_cores(), used = calibrate_used(RUSAGE_SELF) + calibrate_used(RUSAGE_CHILDREN), t = calibrate_now();
    if (progress) fprintf(progress, "calibrate: %d cores: what processes reach together\n", c->cores);
    if (calibrate_together(c)) return -1;
    if (progress) fprintf(progress, "calibrate: memory\n");
    if (calibrate_memory(c)) return -1;
    for (int tcp = 0; tcp < 2; tcp++) {
        if (progress) fprintf(progress, "calibrate: the link %s of two ranks\n", calibrate_links[tcp]);
        if (calibrate_links_of(c, tcp)) return -1;
    }
    used = calibrate_used(RUSAGE_SELF) + calibrate_used(RUSAGE_CHILDREN) - used;
    c->others = fmax(0, calibrate_busy_cores() - busy - used) / ((calibrate_now() - t) * c->cores);
    return 0;
}
/* The rate of a link between two ranks of a machine with which the planner's allreduce takes as long as a measured one of this rate */
static double calibrate_link_rate(double rate)
{
    enum { NBYTES = 4 << 20 };
    dt_costs t;
    double   least = INFINITY;
    memset((void *)&t, 0, sizeof t);
    for (int i = 0; i < (int)DT_LINK_COUNT; i++) t.beta[i] = 1 / rate;
    for (int a = 0; a < (int)DT_ALGO_COUNT; a++) {
        double s = a == (int)DT_ALGO_AUTO
                       ? -1
                       : dt_plan_cost(&t, DT_COLL_ALLREDUCE, (dt_algo)a, 2, NULL, DT_LINK_SHM, NBYTES, 0);
        if (s > 0 && s < least) least = s;
    }
    return rate * least / (NBYTES / rate);
}
/* This machine as a cluster of one: what dtplan --cluster reads. The figures as they were measured are remarks. */
static void calibrate_print(FILE *f, const calibration *c)
{
    static const char *const ops[2] = { "send", "allreduce" };
    long                     pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    int                      n = c->cores < CALIBRATE_PROCESSES ? c->cores : CALIBRATE_PROCESSES;
    fprintf(f, "dt cluster 1\ndevice core speed %.0fFLOP/s memory %.0fB bandwidth %.0fB/s\nmachines 1\ndevices %d\n",
            c->flops, (double)pages * (double)page / c->cores, 3 * c->sum, c->cores);
    fprintf(f, "intra shm rate %.0fB/s latency %.0fns\n", calibrate_link_rate(c->allreduce[0].rate),
            1e9 * c->allreduce[0].latency / 2);
    fprintf(f, "inter loopback rate %.0fB/s latency %.0fns\n", c->allreduce[1].rate, 1e9 * c->allreduce[1].latency / 2);
    if (n > 1)
        fprintf(f, "stream rate %.0fB/s together %.2f%%\n", c->moved[CALIBRATE_SETS - 1],
                fmax(0.01, 100 * c->memory[n][CALIBRATE_SETS - 1]));
    if (n > 1) fprintf(f, "together %.2f%%\nbusy %.1f%%\n", 100 * c->compute[n], 100 * fmin(1, c->allreduce[0].busy));
    fprintf(f, "spread %.2f%%\n", 100 * fmin(c->spread, 1));
    for (int k = 2; k <= n; k++) {
        fprintf(f, "# together %d products %.4f", k, c->compute[k]);
        for (int i = 0; i < CALIBRATE_SETS; i++) fprintf(f, " %dMiB %.4f", calibrate_sets[i], c->memory[k][i]);
        fprintf(f, "\n");
    }
    fprintf(f, "# speed %.0fFLOP/s copy %.0fB/s sum %.0fB/s spread %.4f others %.4f\n", c->flops, c->copy, c->sum, c->spread,
            c->others);
    fprintf(f, "# moved");
    for (int i = 0; i < CALIBRATE_SETS; i++) fprintf(f, " %dMiB %.0fB/s", calibrate_sets[i], c->moved[i]);
    fprintf(f, "\n");
    for (int tcp = 0; tcp < 2; tcp++)
        for (int k = 0; k < 2; k++) {
            const calibrate_link *l = k ? &c->allreduce[tcp] : &c->send[tcp];
            fprintf(f, "# link %s %s ranks 2 latency %.0fns rate %.0fB/s busy %.3f", calibrate_links[tcp], ops[k],
                    1e9 * l->latency, l->rate, l->busy);
            for (int i = 0; k && i < CALIBRATE_SIZES; i++) fprintf(f, " %dMiB %.0fB/s", calibrate_sizes[i], l->sized[i]);
            fprintf(f, "\n");
        }
    fprintf(f, "end\n");
}
#endif /* CALIBRATE_H_INCLUDED */
