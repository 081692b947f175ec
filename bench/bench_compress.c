/* Measures training steps with compressed gradients, beside dense ones and beside PyTorch's hooks: make bench-compress

       bench_compress [--parts links,picture,draw] [--links shm,pace,tbf] [--ranks 2,4] [--mbit 100,1000] [--rounds 20] [--seconds 0.25]
                      [--batch 32] [--methods f16,topk,...] [--python PATH] [--csv build/compress.csv] [--picture build/compress.svg]
                      [--picture-mbit 30,100,300,1000,3000,10000]

   Results are appended to the CSV file, and "draw" draws from it what is there, the last row of each: so the parts can be measured one
   by one (make bench-compress PART="--parts picture --picture-mbit 30,100").

   An MLP with 4 MiB of gradients, SGD, one thread a rank. Each method has a model of its own in the same processes; the methods take turns
   of --seconds, and so do PyTorch's DDP without a hook, with fp16_compress_hook and with powerSGD_hook on gloo (bench/peer_compress.py), in
   processes of their own, if --python has torch. A result is the median of the rounds, a ratio the median of the rounds' ratios to
   dense (of dt; PyTorch's to its own dense). Before: all ranks have the same weights after five steps, bit for bit; losses are finite, and those of
   f16 and bf16 within 1 % of dense; PyTorch's dense losses are dt's. auto trains until it has decided.

     shm    2 ranks on shared memory; with PyTorch
     pace   ranks over TCP on loopback, each with .bandwidth; without PyTorch. A communicator has its own budget, so the two stages of powersgd
            may overlap more than on a link
     tbf    two machines (network namespaces), half of the ranks on each, whose cable tbf limits; with PyTorch. Needs root or user
            namespaces, ip and tc

   Targets: auto at least 0.95 of dense everywhere, and faster where bf16 is by its bytes: where half of dense's bytes at the link's
   speed are more than 5 % of a step. The picture: step time over bandwidth for each method, 2 ranks, pace. The part "picture" measures
   that, without PyTorch, and judges auto, too. */
#define DT__WANT_INSIDE
#include "../tests/ranks.h"

#include "dt_dist.h"
#include "dt_plot.h"
#include "../tests/lab.h"

#include "bench.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>

UTEST_STATE();

enum { ROUNDS = 64, SIDES = 16, POINTS = 16, TORCH = 3 };
static const char *const method_names[] = { "dense", "f16",    "bf16", "topk",     "randomk", "dgc",
                                            "sign",  "onebit", "qsgd", "powersgd", "auto" };
static const char *const torch_names[TORCH] = { "torch-dense", "torch-fp16", "torch-powersgd" };
enum { METHODS = (int)(sizeof method_names / sizeof *method_names) };

typedef struct side {
    const char   *name;
    bool          torch;
    dt_model     *m;
    dt_optimizer *opt;
    dt_ddp       *d;
    double        loss[5], each; /* seconds of a step */
    double        fewer;         /* times fewer bytes on the link */
} side;
typedef struct job { /* shared by the ranks */
    char   link[8], methods[128], python[256], store[64], csv[256];
    int    ranks, rounds, batch, nsides;
    double mbit, seconds; /* mbit 0: no limit */
    bool   torch;         /* with PyTorch */
    char   name[SIDES][32], said[4096];
    double took[SIDES][ROUNDS], fewer[SIDES]; /* seconds of a step */
    bool   is_torch[SIDES];
} job;

/* ---- a rank */
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "0", x, .out = 784, .act = DT_ACT_RELU);
    x = dt_linear(m, "2", x, .out = 544, .act = DT_ACT_RELU);
    return dt_linear(m, "4", x, .out = 10);
}
static dt_compress method(const char *name)
{
    dt_compress c;
    memset((void *)&c, 0, sizeof c);
    if (strcmp(name, "dense")) c.kind = name;
    c.start = -1;
    c.every = 1000000; /* auto: one decision, before the turns */
    if (!strcmp(name, "powersgd")) c.rank = 4;
    return c;
}
static double step(side *s, dt_tensor *x, dt_tensor *y)
{
    dt_tensor *loss = dt_cross_entropy(net(s->m, x), y);
    double     value = dt_item(loss);
    dt_backward(loss);
    dt_step(s->opt);
    return value;
}
static uint64_t weights_hash(dt_model *m)
{
    uint64_t          h = 1469598103934665603ull;
    dt_parameter_info p;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        const unsigned char *b = (const unsigned char *)dt_data_ptr(p.value);
        for (size_t k = 0; k < dt_nbytes(p.value); k++) h = (h ^ b[k]) * 1099511628211ull;
    }
    return h;
}
static bool check(side *s, dt_comm *c, dt_tensor *x, dt_tensor *y, const side *dense)
{
    int64_t mine, all[16];
    for (int i = 0; i < 5; i++) s->loss[i] = dt_ddp_mean(s->d, step(s, x, y), 1);
    mine = (int64_t)weights_hash(s->m);
    if (dt_error() || dt_comm_allgather(c, &mine, all, 1, NULL, DT_COMM_I64)) return false;
    for (int r = 0; r < dt_comm_size(c); r++)
        if (all[r] != mine)
            return fprintf(stderr, "bench_compress: %s: ranks have different weights\n", s->name), false;
    bool half = !strcmp(s->name, "f16") || !strcmp(s->name, "bf16");
    for (int i = 0; i < 5; i++)
        if (!isfinite(s->loss[i]) || (half && fabs(s->loss[i] - dense->loss[i]) > 0.01 * (1 + fabs(dense->loss[i]))))
            return fprintf(stderr, "bench_compress: %s: step %d: loss %g, dense %g\n", s->name, i, s->loss[i],
                           dense->loss[i]),
                   false;
    return true;
}
/* PyTorch's rank: a process that follows the protocol of peer_compress.py */
typedef struct peer {
    pid_t pid;
    FILE *in, *out;
} peer;
static bool peer_start(peer *p, const job *j, int rank, const char *interface)
{
    char line[128], number[3][16];
    int  to[2], from[2];
    if (pipe(to) || pipe(from)) return false;
    snprintf(number[0], 16, "%d", rank);
    snprintf(number[1], 16, "%d", j->ranks);
    snprintf(number[2], 16, "%d", j->batch);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(to[0], 0);
        dup2(from[1], 1);
        for (int i = 3; i < 256; i++) close(i);
        setenv("GLOO_SOCKET_IFNAME", interface, 1);
        setenv("OMP_NUM_THREADS", "1", 1);
        execlp(j->python, j->python, "bench/peer_compress.py", number[0], number[1], number[2], j->store, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p->in = fdopen(to[1], "w");
    p->out = fdopen(from[0], "r");
    return p->pid > 0 && p->in && p->out && fgets(line, sizeof line, p->out) && !strcmp(line, "ready\n");
}
static bool peer_ask(peer *p, int hook, int steps, double *seconds, double *loss)
{
    char line[256];
    fprintf(p->in, "%d %d\n", hook, steps);
    fflush(p->in);
    return fgets(line, sizeof line, p->out) && sscanf(line, "%lf %lf", seconds, loss) == 2;
}
static void peer_end(peer *p)
{
    if (p->in) fclose(p->in);
    if (p->out) fclose(p->out);
    if (p->pid > 0) waitpid(p->pid, NULL, 0);
    memset(p, 0, sizeof *p);
}
/* Of all ranks the largest; negative after an error. */
static double slowest(dt_comm *c, double x) { return dt_comm_allreduce(c, &x, 1, DT_COMM_F64, DT_COMM_MAX) ? -1 : x; }
static double turn(side *s, peer *p, dt_comm *c, dt_tensor *x, dt_tensor *y, int steps)
{
    double t = 0, loss;
    dt_comm_barrier(c);
    if (s->torch) {
        if (!peer_ask(p, s->name[6] == 'd' ? 0 : s->name[6] == 'f' ? 1 : 2, steps, &t, &loss)) t = INFINITY; /* on all ranks */
    } else {
        t = now();
        for (int i = 0; i < steps; i++) step(s, x, y);
        t = now() - t;
    }
    return dt_error() ? -1 : slowest(c, t) / steps;
}
/* Bytes that a rank sends, relative to a dense ring. */
static double times_fewer(const side *s, int world)
{
    static const char *const gathers[] = { "topk", "dgc", "sign", "onebit", "qsgd" };
    dt_ddp_stats             t = dt_ddp_get_stats(s->d);
    double                   k = t.sent > 0 ? (double)t.bytes / (double)t.sent : 1;
    for (int i = 0; i < 5; i++)
        if (!strcmp(s->name, gathers[i])) k *= 2.0 / world;
    return k;
}
static int measure(job *j, dt_comm *c, const char *interface)
{
    static side s[SIDES];
    peer        p;
    dt_rng      r;
    int64_t     label[4096];
    int         rank = dt_comm_rank(c), n = 0, bad = 0;
    memset(&p, 0, sizeof p);
    memset((void *)s, 0, sizeof s);
    dt_set_num_threads(1);
    dt_rng_seed(&r, 2 + (uint64_t)rank);
    for (int i = 0; i < j->batch; i++) label[i] = i % 10;
    dt_tensor *x = dt_keep(dt_normal(0, 1, DT_SHAPE(j->batch, 784), .rng = &r)),
              *y = dt_keep(dt_from(label, DT_SHAPE(j->batch), .dtype = DT_I64));
    for (int i = 0; i < METHODS; i++) {
        if (i && j->methods[0] && !strstr(j->methods, method_names[i])) continue;
        s[n].name = method_names[i];
        s[n].m = dt_model_new(.seed = 1);
        s[n].opt = dt_sgd(s[n].m, .lr = 0.01, .momentum = strcmp(s[n].name, "dgc") ? 0.9 : 0);
        s[n].d = dt_ddp_new(s[n].m, c, .compress = method(s[n].name));
        bad = bad || dt_error() || !check(&s[n], c, x, y, &s[0]);
        n++;
    }
    for (int i = 0; i < n && !bad; i++) { /* auto decides */
        char text[8192];
        for (int k = 0; k < 60 && !strcmp(s[i].name, "auto"); k++) step(&s[i], x, y);
        if (!strcmp(s[i].name, "auto")) dt_ddp_compress_report(s[i].d, text, sizeof text);
        else continue;
        bad = bad || dt_error() || strstr(text, "measures") != NULL;
        if (rank == 0) snprintf(j->said, sizeof j->said, "%.4000s", text);
    }
    if (j->torch && !bad) {
        double seconds = 0, loss = 0;
        bool   up = peer_start(&p, j, rank, interface);
        for (int k = 0; k < 5 && up; k++) {
            up = peer_ask(&p, 0, 1, &seconds, &loss);
            if (up && dt_comm_size(c) > 1) loss = dt_ddp_mean(s[0].d, loss, 1);
            if (up && !(fabs(loss - s[0].loss[k]) <= 2e-4 * (1 + fabs(loss)))) {
                fprintf(stderr, "bench_compress: step %d: dt %.9g, PyTorch %.9g: expected the same loss\n", k,
                        s[0].loss[k], loss);
                up = false;
            }
        }
        double down = slowest(c, !up);
        if (down && rank == 0)
            fprintf(stderr, "bench_compress: PyTorch does not run here (--python %s): its rows are left out\n",
                    j->python);
        for (int i = 0; i < TORCH && !down; i++) {
            s[n].name = torch_names[i];
            s[n++].torch = true;
        }
    }
    for (int i = 0; i < n && !bad; i++) { /* warm-up, and how long a step takes */
        bad = turn(&s[i], &p, c, x, y, 4) < 0;
        s[i].each = turn(&s[i], &p, c, x, y, 2);
        bad = bad || s[i].each <= 0;
        if (s[i].each < INFINITY) continue;
        if (rank == 0) fprintf(stderr, "bench_compress: %s failed: it and what follows is left out\n", s[i].name);
        n = i;
    }
    for (int k = 0; k < j->rounds && !bad; k++)
        for (int i = 0; i < n && !bad; i++) {
            int    at = (i + k) % n, steps = (int)(j->seconds / s[at].each) + 1;
            double t = turn(&s[at], &p, c, x, y, steps);
            bad = t < 0 || t == INFINITY;
            if (rank == 0) j->took[at][k] = t;
        }
    for (int i = 0; i < n && rank == 0; i++) {
        snprintf(j->name[i], sizeof j->name[i], "%s", s[i].name);
        j->is_torch[i] = s[i].torch;
        j->fewer[i] = s[i].torch ? 0 : times_fewer(&s[i], j->ranks);
    }
    if (rank == 0) j->nsides = n;
    peer_end(&p);
    for (int i = 0; i < n; i++) {
        dt_ddp_free(s[i].d);
        dt_optimizer_free(s[i].opt);
        dt_model_free(s[i].m);
    }
    if (dt_error() || dt_comm_error(c))
        fprintf(stderr, "bench_compress: rank %d: %s\n", rank, dt_error() ? dt_error() : dt_comm_error(c));
    dt_error_clear();
    return bad;
}

/* ---- links */
static int spawned(void *arg)
{
    job         *j = (job *)arg;
    dt_comm_opts o;
    memset((void *)&o, 0, sizeof o);
    o.transport = j->mbit > 0 ? "tcp" : "shm";
    o.bandwidth = j->mbit * 1e6 / 8;
    dt_comm *c = dt_comm_init_with(o);
    if (!c) return fprintf(stderr, "bench_compress: %s\n", dt_comm_error(NULL)), 1;
    int bad = measure(j, c, "lo");
    dt_comm_free(c);
    return bad;
}
static job *the_job; /* of lab_rank */
static int  lab_rank(lab *l, int rank)
{
    int  machine = lab_machine(l, rank);
    char interface[16];
    if (rank % (l->ranks / 2) == 0 &&
        sh("tc qdisc add dev cable%d root tbf rate %gmbit burst 64kb latency 100ms", machine, the_job->mbit))
        return NOT_HERE;
    snprintf(interface, sizeof interface, "cable%d", machine);
    dt_comm *c = lab_join(l, rank);
    if (!c) return 1;
    int bad = measure(the_job, c, interface);
    dt_comm_free(c);
    return bad;
}
static int run(job *j)
{
    snprintf(j->store, sizeof j->store, "/tmp/bench_compress_%d_%lld", (int)getpid(), (long long)(now() * 1e6));
    j->nsides = 0;
    int rc;
    if (!strcmp(j->link, "tbf")) {
        lab l = lab_of(lab_rank, j->ranks);
        the_job = j;
        l.seconds = 3600;
        l.timeout = 120;
        rc = lab_run(&l);
    } else rc = dt_spawn(j->ranks, spawned, j);
    unlink(j->store);
    return rc;
}
static double middle(const double *x, int n)
{
    double v[ROUNDS];
    memcpy(v, x, (size_t)n * sizeof *v);
    return median(v, n);
}
/* A row: link,ranks,mbit,method,step_ms,ratio_to_dense,rounds */
static int append(const job *j, const char *name, double ms, double ratio)
{
    struct stat st;
    bool        fresh = stat(j->csv, &st) || !st.st_size;
    FILE       *f = fopen(j->csv, "a");
    if (f && fresh) fprintf(f, "link,ranks,mbit,method,step_ms,ratio_to_dense,rounds\n");
    if (f) fprintf(f, "%s,%d,%g,%s,%.4f,%.4f,%d\n", j->link, j->ranks, j->mbit, name, ms, ratio, j->rounds);
    return !f || fclose(f) ? (fprintf(stderr, "bench_compress: cannot write %s\n", j->csv), 1) : 0;
}
static int judge(const job *j)
{
    char where[64];
    int  failed = 0, torch = -1;
    if (j->mbit > 0) snprintf(where, sizeof where, "%s-%gMbit-%d", j->link, j->mbit, j->ranks);
    else snprintf(where, sizeof where, "%s-%d", j->link, j->ranks);
    double dense = middle(j->took[0], j->rounds),
           link = j->mbit > 0 ? 2.0 * (j->ranks - 1) / j->ranks * 4.2e6 * 8 / (j->mbit * 1e6) : 0;
    for (int i = 0; i < j->nsides; i++) {
        double      ratio[ROUNDS];
        const char *note = "";
        if (j->is_torch[i] && torch < 0) torch = i;
        int own = j->is_torch[i] ? torch : 0;
        for (int k = 0; k < j->rounds; k++) ratio[k] = j->took[own][k] / j->took[i][k];
        double m = median(ratio, j->rounds);
        failed |= append(j, j->name[i], 1e3 * middle(j->took[i], j->rounds), m);
        if (!strcmp(j->name[i], "auto")) {
            bool should = link / 2 > 0.05 * dense;
            note = m < 0.95          ? "  (below the target)"
                   : should && m < 1 ? "  (below the target: it should be faster)"
                                     : "";
            failed |= m < 0.95;
        }
        if (i == 0) printf("compress-%s-dense: dt %.2f ms\n", where, 1e3 * dense);
        else if (j->is_torch[i])
            printf("compress-%s-%s: PyTorch %.2f ms, its dense %.2f ms, ratio %.2f; dt's dense is %.2f times faster\n",
                   where, j->name[i], 1e3 * middle(j->took[i], j->rounds), 1e3 * middle(j->took[own], j->rounds), m,
                   middle(j->took[i], j->rounds) / dense);
        else
            printf("compress-%s-%s: dt %.2f ms, dense %.2f ms, ratio %.2f, %.1f times fewer bytes sent%s\n", where,
                   j->name[i], 1e3 * middle(j->took[i], j->rounds), 1e3 * dense, m, j->fewer[i], note);
    }
    if (j->said[0]) printf("%s", j->said);
    fflush(stdout);
    return failed;
}
static int measure_picture(job *j, const char *list)
{
    int failed = 0;
    snprintf(j->link, sizeof j->link, "pace");
    j->ranks = 2;
    j->torch = false;
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        j->mbit = atof(at);
        if (j->mbit <= 0 || run(j))
            return fprintf(stderr, "bench_compress: the picture at %g Mbit/s failed\n", j->mbit), 1;
        failed |= judge(j);
    }
    return failed;
}
static int draw(const char *csv, const char *path) /* rows of pace with 2 ranks */
{
    static double    x[METHODS][POINTS], y[METHODS][POINTS];
    static const int color[METHODS] = { 1, 2, 2 + 16, 3, 4, 3 + 16, 6, 6 + 16, 5, 7, 8 };
    dt_series        series[METHODS];
    dt_plot       plot;
    char          line[256], link[16], name[32];
    double        mbit, ms;
    int           ranks, n = 0;
    FILE         *f = fopen(csv, "r");
    memset((void *)series, 0, sizeof series);
    memset((void *)&plot, 0, sizeof plot);
    while (f && fgets(line, sizeof line, f)) {
        int m = 0, i = 0;
        if (sscanf(line, "%15[^,],%d,%lf,%31[^,],%lf", link, &ranks, &mbit, name, &ms) != 5 || strcmp(link, "pace") || ranks != 2) continue;
        while (m < METHODS && strcmp(name, method_names[m])) m++;
        if (m == METHODS) continue;
        while (i < series[m].n && x[m][i] < mbit) i++;
        if (i == series[m].n || x[m][i] > mbit) { /* a new point, in the order of bandwidth */
            if (series[m].n == POINTS) continue;
            memmove(&x[m][i + 1], &x[m][i], (size_t)(series[m].n - i) * sizeof x[m][i]);
            memmove(&y[m][i + 1], &y[m][i], (size_t)(series[m].n - i) * sizeof y[m][i]);
            series[m].n++;
        }
        x[m][i] = mbit;
        y[m][i] = ms;
    }
    if (f) fclose(f);
    for (int m = 0; m < METHODS; m++) {
        if (!series[m].n) continue;
        series[n] = series[m];
        series[n].name = method_names[m];
        series[n].x = x[m];
        series[n].y = y[m];
        series[n].dots = true;
        series[n].color = color[m] & 15; /* of two of a kind the second is pale */
        series[n].light = color[m] > 15;
        n++;
    }
    plot.title = "Step time with compressed gradients, 4 MiB, 2 ranks";
    plot.x_label = "bandwidth, Mbit/s";
    plot.y_label = "step, ms";
    plot.series = series;
    plot.nseries = n;
    plot.log_x = true;
    plot.log_y = DT_YES;
    if (!n) return fprintf(stderr, "bench_compress: %s has no rows for the picture\n", csv), 1;
    if (dt_svg_plot(path, &plot)) return fprintf(stderr, "bench_compress: %s\n", dt_error()), 1;
    printf("compress-picture: %s\n", path);
    return 0;
}
int main(int argc, char **argv)
{
    const char *links = option(argc, argv, "--links", "shm,pace,tbf"), *ranks = option(argc, argv, "--ranks", "2,4");
    const char *mbits = option(argc, argv, "--mbit", "100,1000"), *parts = option(argc, argv, "--parts", "links,picture,draw");
    job *j = (job *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int  failed = 0;
    if (j == MAP_FAILED) return 1;
    j->rounds = atoi(option(argc, argv, "--rounds", "20"));
    j->seconds = atof(option(argc, argv, "--seconds", "0.25"));
    j->batch = atoi(option(argc, argv, "--batch", "32"));
    snprintf(j->methods, sizeof j->methods, "%s", option(argc, argv, "--methods", ""));
    snprintf(j->python, sizeof j->python, "%s", option(argc, argv, "--python", "python3"));
    if (j->rounds < 1 || j->rounds > ROUNDS || j->batch < 1 || j->batch > 4096 || !(j->seconds >= 0))
        return fprintf(stderr, "bench_compress: --rounds must be 1 to %d, --batch 1 to 4096\n", ROUNDS), 2;
    signal(SIGPIPE, SIG_IGN);
    static const char *const link[] = { "shm", "pace", "tbf" };
    snprintf(j->csv, sizeof j->csv, "%s", option(argc, argv, "--csv", "build/compress.csv"));
    for (int l = 0; l < 3 && strstr(parts, "links"); l++)
        for (int n = 2; n <= 4 && strstr(links, link[l]); n += 2)
            for (const char *at = mbits; *at && strchr(ranks, '0' + n) && (l || n == 2);
                 at += strcspn(at, ","), at += *at == ',') {
                snprintf(j->link, sizeof j->link, "%s", link[l]);
                j->ranks = n;
                j->mbit = l ? atof(at) : 0;
                j->torch = l != 1;
                int rc = run(j);
                if (rc)
                    printf("compress-%s-%d: not measured: %s\n", link[l], n,
                           l == 2 ? "namespaces are not permitted, ip or tc is not installed, or a rank failed"
                                  : "a rank failed");
                failed |= rc ? 1 : judge(j);
                if (!l) break;
            }
    if (strstr(parts, "picture")) failed |= measure_picture(j, option(argc, argv, "--picture-mbit", "30,100,300,1000,3000,10000"));
    if (strstr(parts, "draw")) failed |= draw(j->csv, option(argc, argv, "--picture", "build/compress.svg"));
    return failed;
}
