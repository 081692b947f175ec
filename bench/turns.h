/* turns.h - the driver of benchmarks whose sides are jobs of several ranks, measured in turn

   A side is one implementation with its ranks: processes that block between measurements (the protocol is in
   rank_side.h). First each side proves that its results are right. Then the sides take turns, because the latency between
   cores changes from second to second: a result is the median of the rounds, a ratio the median of the rounds' ratios.

   Define THE_BENCH, the name of the program, before. dt_comm.h must be included with DT__WANT_INSIDE. */
#ifndef BENCH_TURNS_H_INCLUDED
#define BENCH_TURNS_H_INCLUDED

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "bench.h"
#include "rank_side.h"

enum { MOST_ROUNDS = 64, MOST_SIZES = 32, MOST_RANKS = 16, MOST_COLUMNS = 40, MOST_SIDES = 20 };

static const char the_bench[] = THE_BENCH;
static char       the_path[128]; /* of the driver's socket */
static pid_t      the_driver;

/* Binds each rank to its own core if there are enough cores, as mpirun does. */
static void pin(int rank, int world)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < world) return;
    for (int i = 0, k = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && k++ == rank) CPU_SET(i, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* ---- sides */
typedef struct side {
    char  name[32];
    int   world, nfd;
    pid_t pid[MOST_RANKS];
    int   npid;
    FILE *in[MOST_RANKS], *out[MOST_RANKS];
    bool  up;
} side;
static side sides[MOST_SIDES];
static int  nsides;

static pid_t child(char *const *argv) /* forks and runs argv; if it is NULL, returns 0 in the child */
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != the_driver) _exit(1);
    for (int i = 3; i < 256; i++) close(i);
    if (!argv) return 0;
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    if (!getenv("BENCH_VERBOSE")) dup2(null, 1), dup2(null, 2);
    execvp(argv[0], argv);
    _exit(127);
}
static bool side_dead(side *s) /* has one of its processes ended? */
{
    for (int i = 0; i < s->npid; i++)
        if (s->pid[i] > 0 && waitpid(s->pid[i], NULL, WNOHANG) == s->pid[i]) {
            s->pid[i] = 0;
            return true;
        }
    return false;
}
static int side_join(side *s, int listener) /* waits up to 60 s for its ranks to connect */
{
    double until = now() + 60;
    while (s->nfd < s->world) {
        struct pollfd p = { listener, POLLIN, 0 };
        char          line[64], name[32];
        int           rank;
        if (poll(&p, 1, 100) <= 0) {
            if (side_dead(s) || now() > until) return -1;
            continue;
        }
        int   fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        FILE *in = fd < 0 ? NULL : fdopen(fd, "r"), *out = fd < 0 ? NULL : fdopen(dup(fd), "w");
        if (!in || !out || !fgets(line, sizeof line, in) || sscanf(line, "%31s %d", name, &rank) != 2) return -1;
        if (strcmp(name, s->name) || rank < 0 || rank >= s->world || s->in[rank]) return -1;
        s->in[rank] = in;
        s->out[rank] = out;
        s->nfd++;
    }
    s->up = true;
    return 0;
}
static void side_end(side *s)
{
    for (int i = 0; i < s->world; i++) {
        if (s->in[i]) fclose(s->in[i]);
        if (s->out[i]) fclose(s->out[i]);
        s->in[i] = s->out[i] = NULL;
    }
    double t = now();
    for (int i = 0; i < s->npid; i++) {
        while (s->pid[i] > 0 && waitpid(s->pid[i], NULL, WNOHANG) == 0) {
            struct timespec ms = { 0, NS_PER_MS };
            nanosleep(&ms, NULL);
            if (now() - t > 10) kill(s->pid[i], SIGTERM), t = INFINITY; /* once */
        }
        s->pid[i] = 0;
    }
    s->up = false;
}
static void side_lost(side *s)
{
    fprintf(stderr, "%s: %s with %d ranks did not answer within 60 s; it is left out from here on\n", the_bench, s->name,
            s->world);
    for (int i = 0; i < s->npid; i++)
        if (s->pid[i] > 0) kill(s->pid[i], SIGTERM);
    side_end(s);
}
/* Sends a line to all ranks and reads their answers, which are 64 * MOST_CALLS bytes apart; NULL if the side has failed */
static char *side_ask(side *s, const char *format, ...)
{
    static char answer[MOST_RANKS][64 * MOST_CALLS];
    va_list     ap;
    if (!s->up) return NULL;
    for (int i = 0; i < s->world; i++) {
        va_start(ap, format);
        vfprintf(s->out[i], format, ap);
        va_end(ap);
        fflush(s->out[i]);
    }
    for (int i = 0; i < s->world; i++) {
        struct pollfd p = { fileno(s->in[i]), POLLIN, 0 };
        if (poll(&p, 1, 60000) <= 0 || !fgets(answer[i], sizeof answer[i], s->in[i])) {
            side_lost(s);
            return NULL;
        }
    }
    return answer[0];
}
static bool side_says_ok(side *s, const char *answer)
{
    for (int i = 0; answer && i < s->world; i++)
        if (strcmp(answer + (size_t)i * 64 * MOST_CALLS, "ok\n")) return false;
    return answer != NULL;
}
/* The duration of each call in seconds; false if the side has failed */
static bool side_times(side *s, int64_t nbytes, int warm, int calls, int batch, int gap, double *time)
{
    char *answer = side_ask(s, "run %lld %d %d %d %d\n", (long long)nbytes, warm, calls, batch, gap);
    int   at[MOST_RANKS] = { 0 };
    for (int k = 0; answer && k < calls; k++) {
        long long from = 0, to = 0, t0, t1;
        for (int i = 0; i < s->world; i++) {
            int used = 0;
            if (sscanf(answer + (size_t)i * 64 * MOST_CALLS + at[i], "%lld %lld %n", &t0, &t1, &used) != 2)
                return false;
            at[i] += used;
            if (t0 > from) from = t0;
            if (t1 > to) to = t1;
        }
        time[k] = (double)(to - from) / NS_PER_S / batch;
    }
    return answer != NULL;
}
/* Median duration of a call in seconds; negative if the side has failed */
static double side_run(side *s, int64_t nbytes, int warm, int calls, int batch)
{
    double time[MOST_CALLS];
    return side_times(s, nbytes, warm, calls, batch, 0, time) ? median(time, calls) : -1;
}
static void side_new(side *s, const char *name, int world)
{
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->world = world;
}
/* Starts Open MPI's ranks. The name chooses how they talk: "mpi", "mpi-none" (no single-copy transfers), "mpi-tcp". */
static inline void side_mpi(side *s, const char *program)
{
    const char *v[40];
    char        text[12];
    int         n = 0;
    snprintf(text, sizeof text, "%d", s->world);
    v[n++] = "mpirun";
    v[n++] = "--allow-run-as-root";
    v[n++] = "--oversubscribe";
    v[n++] = "-n";
    v[n++] = text;
    v[n++] = "--mca", v[n++] = "pml", v[n++] = "ob1";
    v[n++] = "--mca", v[n++] = "btl", v[n++] = strcmp(s->name, "mpi-tcp") ? "self,vader" : "self,tcp";
    if (!strcmp(s->name, "mpi-tcp")) v[n++] = "--mca", v[n++] = "btl_tcp_if_include", v[n++] = "lo";
    if (!strcmp(s->name, "mpi-none")) v[n++] = "--mca", v[n++] = "btl_vader_single_copy_mechanism", v[n++] = "none";
    if (s->world > dt__shared_cores(NULL)) v[n++] = "--mca", v[n++] = "mpi_yield_when_idle", v[n++] = "1";
    v[n++] = program;
    v[n++] = the_path;
    v[n++] = s->name;
    v[n] = NULL;
    s->pid[s->npid++] = child((char *const *)(uintptr_t)v);
}
/* Waits for its ranks; if they do not come, says so and ends it. */
static void side_up(side *s, int listener, const char *missing)
{
    if (!side_join(s, listener)) return;
    if (missing) printf("%s is missing with %d ranks: skipped\n", missing, s->world);
    else fprintf(stderr, "%s: %s with %d ranks did not start\n", the_bench, s->name, s->world);
    for (int i = 0; i < s->npid; i++)
        if (s->pid[i] > 0) kill(s->pid[i], SIGTERM);
    side_end(s);
}
static side *side_find(const char *name, int world)
{
    for (int i = 0; i < nsides; i++)
        if (!strcmp(sides[i].name, name) && sides[i].world == world && sides[i].up) return &sides[i];
    return NULL;
}

/* ---- measuring */
typedef struct column { /* a side with one choice of "use", and its results */
    const char *label, *use; /* use is NULL if the side has no choice */
    side       *s;
    bool        tcp, shm, dt, peer;
    bool        unchecked;
    int64_t     least, most; /* bytes: sizes that it is measured at; 0: any */
    double      time[MOST_SIZES]; /* seconds for each size; 0 if there is no result */
    double      turn[MOST_ROUNDS];
} column;
static int64_t sizes[MOST_SIZES];
static int     nsizes, rounds = 9, failures;

static const char *size_text(int64_t n)
{
    static char text[4][24];
    static int  k;
    char       *t = text[k++ & 3];
    if (n >= 1 << 20 && n % (1 << 20) == 0) snprintf(t, 24, "%lldMiB", (long long)(n >> 20));
    else if (n >= 1024 && n % 1024 == 0) snprintf(t, 24, "%lldKiB", (long long)(n >> 10));
    else snprintf(t, 24, "%lldB", (long long)n);
    return t;
}
/* Measures all columns at one size, in turn. A column without a side, or with wrong results, gets none. */
static void measure(column *c, int n, int k, int nrounds, double budget)
{
    int  calls[MOST_COLUMNS], batch[MOST_COLUMNS], warm[MOST_COLUMNS];
    bool on[MOST_COLUMNS];
    for (int i = 0; i < n; i++) {
        const char *use = c[i].use;
        on[i] = c[i].s && c[i].s->up && (!c[i].least || sizes[k] >= c[i].least) && (!c[i].most || sizes[k] <= c[i].most) &&
                (!use || side_says_ok(c[i].s, side_ask(c[i].s, "use %s\n", use)));
        if (on[i] && !c[i].unchecked && !side_says_ok(c[i].s, side_ask(c[i].s, "check %lld\n", (long long)sizes[k]))) {
            fprintf(stderr, "%s: %s, %d ranks, %s: wrong results\n", the_bench, c[i].label, c[i].s->world, size_text(sizes[k]));
            failures++;
            on[i] = false;
        }
        double t = on[i] ? side_run(c[i].s, sizes[k], 1, 3, 1) : -1;
        on[i] = on[i] && t > 0;
        double most = sizes[k] <= 1024 ? 100e-6 / t : 1;
        batch[i] = most < 1 ? 1 : most > 100 ? 100 : (int)most;
        most = on[i] ? budget / t / batch[i] : 1;
        calls[i] = most < 2 ? 2 : most > MOST_CALLS ? MOST_CALLS : (int)most;
        warm[i] = calls[i] > 20 ? 5 : 1;
    }
    for (int r = 0; r < nrounds; r++)
        for (int j = 0; j < n; j++) {
            int i = (j + r) % n;
            if (on[i] && c[i].use) on[i] = side_says_ok(c[i].s, side_ask(c[i].s, "use %s\n", c[i].use));
            if (!on[i]) continue;
            c[i].turn[r] = side_run(c[i].s, sizes[k], warm[i], calls[i], batch[i]);
            on[i] = c[i].turn[r] > 0;
        }
    for (int i = 0; i < n; i++) {
        double v[MOST_ROUNDS];
        memcpy(v, c[i].turn, sizeof v);
        c[i].time[k] = on[i] ? median(v, nrounds) : 0;
    }
}
static double ratio(const column *a, const column *b, int nrounds) /* for the size measured last */
{
    double v[MOST_ROUNDS];
    for (int r = 0; r < nrounds; r++) v[r] = a->turn[r] / b->turn[r];
    return median(v, nrounds);
}
static const char *verdict(double r, double least)
{
    return r < least ? "  (below the target)" : "";
}
static const column *best_peer(const column *c, int n, int world, bool tcp, int k)
{
    const column *best = NULL;
    for (int i = 0; i < n; i++)
        if (c[i].peer && (tcp ? c[i].tcp : c[i].shm) && c[i].s && c[i].s->world == world && c[i].time[k] > 0 &&
            (!best || c[i].time[k] < best->time[k]))
            best = &c[i];
    return best;
}
static int numbers(const char *text, int64_t least, int64_t *v, int most)
{
    int n = 0;
    for (char *end; *text && n < most; text = *end ? end + 1 : end) {
        v[n] = strtoll(text, &end, 10);
        if (end == text) break;
        if (v[n] >= least) n++;
    }
    return n;
}
static int listen_at(char *dir)
{
    struct sockaddr_un a;
    int                fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(the_path, sizeof the_path, "%s/driver", dir);
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%.100s", the_path);
    return fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !listen(fd, 64) ? fd : -1;
}
static void remove_all(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

#endif /* BENCH_TURNS_H_INCLUDED */
