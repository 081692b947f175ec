/* dtverify.c - does a program train the same model with any number of ranks?

       dtverify --workers 1,2,4 ./train --batch {240/world} --steps 50

   Runs the program with dtrun once for each number of ranks and compares the weights before every step: are their bits
   equal, and if not, how much do they differ? {world} in an argument is replaced by the number of ranks, {N/world} by N
   divided by it, so that the global batch stays the same. The program must use dt_ddp_new, also with one rank.
   Exit status: 0 equal up to rounding; 1 different, or a run failed; 2 a wrong command line.

   Synchronous training equals one large batch up to rounding, if nothing depends on the batch of a single rank. These
   depend on it: batch norm (unless .sync_batchnorm), dropout, augmentation by rank, a mean of means over unequal batches.
   With .slots of dt_ddp even the bits are equal.

       --workers LIST    numbers of ranks (1,2,4)
       --tolerance X     largest difference, relative to the norm of the weights (1e-3)
       --dtrun PATH      path of dtrun (in the directory of dtverify)
       --quiet           print only the verdict
       --help, --version */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DT_IMPLEMENTATION
#include "../dt_base.h"

enum { WORLDS = 64, SAMPLES = 64 };
typedef struct line { /* a line of the file that DT_VERIFY names: the weights before a step */
    long long step;
    char      sha[65];
    double    x[SAMPLES], norm;
    int       n;
} line;
typedef struct run {
    int   world;
    line *at;
    int   n, cap;
} run;

static const char help[] =
    "dtverify: does a program train the same model with any number of ranks?\n"
    "\n"
    "  dtverify [options] program [arguments]\n"
    "\n"
    "  --workers LIST    numbers of ranks (1,2,4)\n"
    "  --tolerance X     largest difference, relative to the norm of the weights (1e-3)\n"
    "  --dtrun PATH      path of dtrun (in the directory of dtverify)\n"
    "  --quiet           print only the verdict\n"
    "  --help, --version\n"
    "  --                ends the options\n"
    "\n"
    "In an argument {world} is replaced by the number of ranks, {N/world} by N divided by it. The program must use dt_ddp_new.\n"
    "Exit status: 0 equal up to rounding; 1 different, or a run failed; 2 a wrong command line.\n";

static int  quit_status = 2; /* 1 once the command line is known to be right */
static void quit(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void quit(const char *format, ...)
{
    va_list ap;
    fputs("dtverify: ", stderr);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(quit_status);
}
/* Replaces {world} and {N/world} in an argument. */
static char *fitted(const char *arg, int world)
{
    size_t cap = strlen(arg) + 64, n = 0;
    char  *out = (char *)malloc(cap);
    if (!out) quit("out of memory");
    while (*arg) {
        long long whole = 0;
        int       used = 0;
        if (!strncmp(arg, "{world}", 7)) {
            used = 7;
            whole = world;
        } else if (sscanf(arg, "{%lld/world}%n", &whole, &used) == 1 && used > 0) {
            if (whole % world) quit("%.60s: %lld is not divisible by %d ranks", arg, whole, world);
            whole /= world;
        }
        if (n + 32 >= cap && !(out = (char *)realloc(out, cap *= 2))) quit("out of memory");
        if (used > 0) n += (size_t)snprintf(out + n, cap - n, "%lld", whole);
        else out[n++] = *arg;
        arg += used > 0 ? used : 1;
    }
    out[n] = 0;
    return out;
}
static void start(const char *dtrun, int world, const char *file, char **argv, int quiet)
{
    int  n = 0, status, i = 0;
    char count[16];
    while (argv[n]) n++;
    char **a = (char **)calloc((size_t)n + 4, sizeof *a);
    if (!a) quit("out of memory");
    snprintf(count, sizeof count, "%d", world);
    a[i++] = (char *)(size_t)dtrun;
    a[i++] = (char *)(size_t) "-n";
    a[i++] = count;
    for (int k = 0; k < n; k++) a[i++] = fitted(argv[k], world);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("DT_VERIFY", file, 1);
        int null = quiet ? open("/dev/null", O_WRONLY) : -1;
        if (null >= 0) dup2(null, 1);
        execv(dtrun, a);
        fprintf(stderr, "dtverify: cannot run %s: %s\n", dtrun, strerror(errno));
        _exit(127);
    }
    if (pid < 0) quit("fork: %s", strerror(errno));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) quit("waitpid: %s", strerror(errno));
    if (status)
        quit("the program failed with %d ranks (status %d)", world, WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    for (int k = 3; k < i; k++) free(a[k]);
    free(a);
}
static void load(run *r, const char *file)
{
    FILE *f = fopen(file, "r");
    char  text[4096];
    if (!f) quit("with %d ranks the program recorded no weights: does it use dt_ddp_new?", r->world);
    while (fgets(text, sizeof text, f)) {
        line  l;
        char *end = text;
        int   used = 0;
        memset(&l, 0, sizeof l);
        if (sscanf(text, "%lld %64s%n", &l.step, l.sha, &used) != 2)
            quit("%s: found line '%.60s', expected: step hash numbers", file, text);
        double v[SAMPLES + 1];
        end = text + used;
        for (char *next;; end = next) {
            double x = strtod(end, &next);
            if (next == end || l.n > SAMPLES) break;
            v[l.n++] = x;
        }
        if (l.n < 1) quit("%s: found line '%.60s', expected numbers after the hash", file, text);
        l.norm = v[--l.n];
        memcpy(l.x, v, (size_t)l.n * sizeof *v);
        if (r->n == r->cap && !(r->at = (line *)realloc(r->at, (size_t)(r->cap = 2 * r->cap + 64) * sizeof *r->at)))
            quit("out of memory");
        r->at[r->n++] = l;
    }
    fclose(f);
    if (!r->n) quit("with %d ranks the program recorded no step: does it train?", r->world);
}
/* The largest difference of two lines, relative to the size of the weights. */
static double apart(const line *a, const line *b)
{
    double worst = fabs(a->norm - b->norm) / (1e-30 + fabs(a->norm)), size = 1e-30;
    if (a->n != b->n) return INFINITY;
    for (int i = 0; i < a->n; i++) size = fmax(size, fabs(a->x[i]));
    for (int i = 0; i < a->n; i++) worst = fmax(worst, fabs(a->x[i] - b->x[i]) / size);
    return isnan(a->norm) || isnan(b->norm) ? INFINITY : worst;
}
static int compare(const run *a, const run *b, double tolerance)
{
    double worst = 0, first = 0;
    int    same = a->n == b->n, from = -1;
    if (!same) {
        printf("%d and %d ranks: %d and %d steps\n", a->world, b->world, a->n - 1, b->n - 1);
        return 1;
    }
    for (int i = 0; i < a->n; i++) {
        double d = apart(&a->at[i], &b->at[i]);
        if (strcmp(a->at[i].sha, b->at[i].sha)) {
            if (from < 0) from = i, first = d;
            same = 0;
        }
        worst = fmax(worst, d);
    }
    if (same) printf("%d and %d ranks: the same bits in all %d steps\n", a->world, b->world, a->n - 1);
    else
        printf("%d and %d ranks: %s in %d steps; first difference (%.1e) after step %d, largest %.1e, at the end %.1e\n",
               a->world, b->world, worst <= tolerance ? "the same to rounding" : "NOT THE SAME", a->n - 1, first, from,
               worst, apart(&a->at[a->n - 1], &b->at[b->n - 1]));
    return !same && !(worst <= tolerance);
}
int main(int argc, char **argv)
{
    const char *workers = "1,2,4";
    char        dtrun[4096] = "", file[64] = "/tmp/dtverify.XXXXXX";
    double      tolerance = 1e-3;
    int         i = 1, quiet = 0, n = 0, bad = 0;
    run         r[WORLDS];
    memset(r, 0, sizeof r);
    const char *slash = strrchr(argv[0], '/');
    snprintf(dtrun, sizeof dtrun, "%.*sdtrun", slash ? (int)(slash - argv[0] + 1) : 0, argv[0]);
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return fputs(help, stdout) < 0;
        if (!strcmp(argv[i], "--version")) return puts("dtverify " DT_VERSION) < 0;
        if (!strcmp(argv[i], "--quiet")) {
            quiet = 1;
            continue;
        }
        if (strcmp(argv[i], "--workers") && strcmp(argv[i], "--tolerance") && strcmp(argv[i], "--dtrun"))
            quit("there is no option '%.80s'; dtverify --help lists the options", argv[i]);
        if (!value) quit("%s needs a value; dtverify --help lists the options", argv[i]);
        if (!strcmp(argv[i], "--workers")) workers = value;
        else if (!strcmp(argv[i], "--dtrun")) snprintf(dtrun, sizeof dtrun, "%s", value);
        else tolerance = atof(value);
        i++;
    }
    if (!(tolerance > 0)) quit("--tolerance must be above 0");
    if (i >= argc) quit("no program to run, expected for example: dtverify --workers 1,2,4 ./train --batch {240/world}");
    for (const char *p = workers; *p && n < WORLDS; n++) {
        char *end;
        long  w = strtol(p, &end, 10);
        if (w < 1 || w > 4096 || end == p || (*end && *end != ','))
            quit("--workers is %s, expected numbers of ranks from 1 to 4096, separated by commas", workers);
        r[n].world = (int)w;
        p = *end ? end + 1 : end;
    }
    for (int k = 0; k < n; k++)
        for (int a = i; a < argc; a++) free(fitted(argv[a], r[k].world)); /* what does not fit is said before anything runs */
    quit_status = 1;
    int fd = mkstemp(file);
    if (fd < 0) quit("%s: %s", file, strerror(errno));
    close(fd);
    for (int k = 0; k < n; k++) {
        unlink(file);
        start(dtrun, r[k].world, file, argv + i, quiet);
        load(&r[k], file);
    }
    unlink(file);
    for (int k = 1; k < n; k++) bad |= compare(&r[0], &r[k], tolerance);
    for (int k = 0; k < n; k++) free(r[k].at);
    printf("%s\n", bad ? "dtverify: the number of ranks changes what is trained" : "dtverify: the same training");
    return bad;
}
