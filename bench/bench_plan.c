/* Predicts steps of training on several ranks from a profile of one rank, and measures them: make bench-plan

       bench_plan --part NET [--out DIR] [--rounds N] [--rows a,b,..] [--seconds N]    measures rows of one net; adds them to DIR (build/plan)
       bench_plan --table [--out DIR]                                   predicts all rows of DIR, one table, in Markdown
       bench_plan --calibrate                                           as dtplan --calibrate

   A part calibrates the machine (tools/calibrate.h: it knows no model). Then its sides take turns of about half a second: one rank,
   which writes its profile (DT_PROFILE), one rank with a micro-batch (its profile is for pipelines), and one job for each row: two ranks
   of one thread that train the same net. What is predicted of a row knows the profile of the one rank, the calibration, and of
   slowed links the rate that they were slowed to. A measured step is the median of the turns. A turn in which other programs had
   more than 5 % of the cores (/proc/stat less what the side used) is disturbed: it is measured again, and not used. A part
   ends after --seconds (200). Each part has its own profile and calibration; a row that several parts measured has the median
   of their measured steps and that of their predicted steps.

   rows:  ddp-shm ddp-tcp        data parallel, shared memory and TCP over loopback
          ddp-100MB ddp-25MB     ... over TCP that the transport slows to 100 and 25 MB/s (dt_comm_opts.bandwidth)
          ddp-tbf                ... between two network namespaces, 400 Mbit/s by tbf
          zero1-shm zero3-shm zero1-100MB zero3-100MB   sharded states; sharded parameters
          pipe-shm pipe-100MB    the model cut into two stages, 4 micro-batches, 1F1B
          ps-shm ps-100MB        a parameter server: both ranks are workers and servers
          two-level              four ranks on two namespaces, two each, 400 Mbit/s: more ranks than cores are shown, and not scored */
#define DT_IMPLEMENTATION
#include "../tests/ranks.h"

#include "../dt_pipe.h"
#include "../dt_serve.h"
#include "../dt_scale.h"
#include "../tests/lab.h"
#include "../tools/calibrate.h"
#include "nets.h"

#include "sides.h"

#include <sys/stat.h>

UTEST_STATE();

/* ---- nets and rows */
static dt_tensor *mlp16(dt_model *m, dt_tensor *x) /* gradients of 16 MiB */
{
    x = dt_linear(m, "0", x, .out = 1504, .act = DT_ACT_RELU);
    x = dt_linear(m, "2", x, .out = 1504, .act = DT_ACT_RELU);
    x = dt_linear(m, "4", x, .out = 496, .act = DT_ACT_RELU);
    return dt_linear(m, "6", x, .out = 10);
}
static const work  wide = { "mlp16", "images/s", mlp16, { 2, { 64, 784 } }, 64, "default", { 0, 0 } };
static const work *work_of(const char *name)
{
    for (int i = 0; i < NWORKS; i++)
        if (!strcmp(works[i].name, name)) return &works[i];
    return !strcmp(name, wide.name) ? &wide : NULL;
}
typedef enum row_kind { ONE, ONE_MICRO, DDP, ZERO1, ZERO3, PIPE, STORE } row_kind;
typedef struct row {
    const char *name;
    row_kind    kind;
    int         ranks, tcp;
    double      slowed; /* bytes/s; 0: no */
    int         mbit;   /* of tbf between namespaces; 0: no namespaces */
} row;
static const row rows[] = {
    { "one", ONE, 1, 0, 0, 0 },
    { "micro", ONE_MICRO, 1, 0, 0, 0 }, /* a rank of a pipeline computes a quarter of the batch at once */
    { "ddp-shm", DDP, 2, 0, 0, 0 },
    { "ddp-tcp", DDP, 2, 1, 0, 0 },
    { "ddp-100MB", DDP, 2, 1, 100e6, 0 },
    { "ddp-25MB", DDP, 2, 1, 25e6, 0 },
    { "ddp-tbf", DDP, 2, 1, 0, 400 },
    { "zero1-shm", ZERO1, 2, 0, 0, 0 },
    { "zero3-shm", ZERO3, 2, 0, 0, 0 },
    { "zero1-100MB", ZERO1, 2, 1, 100e6, 0 },
    { "zero3-100MB", ZERO3, 2, 1, 100e6, 0 },
    { "pipe-shm", PIPE, 2, 0, 0, 0 },
    { "pipe-100MB", PIPE, 2, 1, 100e6, 0 },
    { "ps-shm", STORE, 2, 0, 0, 0 },
    { "ps-100MB", STORE, 2, 1, 100e6, 0 },
    { "two-level", DDP, 4, 0, 0, 400 },
};
enum { ROWS = sizeof rows / sizeof *rows, MICRO = 4 };
#define DISTURBED 0.05
static const row *row_of(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}

/* ---- a side: the ranks of a row; rank 0 follows the protocol of sides.h, its "rate" is steps a second */
typedef struct job {
    const work *w;
    const row  *r;
} job;
static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    return dt_cross_entropy(((const work *)user)->net(m, x), dt_reshape(y, DT_SHAPE(-1)));
}
static double trained(worker *k, dt_pipeline *p) /* one step; its loss */
{
    double loss = 0;
    if (!p) return one_step(k);
    dt_tensor *y = k->w->items > dt_size(k->x, 0) ? dt_reshape(k->y, dt_shape_of(k->x)) : k->y; /* labels of tokens */
    dt_pipeline_backward(p, loss_of, (void *)(size_t)k->w, k->x, y, &loss);
    dt_step(k->opt);
    return loss;
}
static int serve(const job *j, dt_comm *c)
{
    int          rank = dt_comm_rank(c);
    worker       k;
    char         line[64];
    dt_ddp      *d = NULL;
    dt_ps       *ps = NULL;
    dt_ps_model *pm = NULL;
    dt_pipeline *p = NULL;
    work         part = *j->w;
    if (j->r->kind == ONE_MICRO) part.items /= MICRO, part.shape.dim[0] /= MICRO;
    dt_set_num_threads(1);
    begin(&k, &part, 0);
    if (j->r->kind == DDP) d = dt_ddp_new(k.m, c);
    if (j->r->kind == ZERO1) d = dt_ddp_new(k.m, c, .shard = 1);
    if (j->r->kind == ZERO3) d = dt_ddp_new(k.m, c, .shard = 3);
    if (j->r->kind == PIPE) p = dt_pipeline_new(k.m, c, .micro = MICRO, .balance = DT_BALANCE_MEASURED);
    if (j->r->kind == STORE) {
        ps = dt_ps_new(c);
        pm = dt_ps_attach(k.m, k.opt, ps);
    }
    if (rank == 0) printf("begin\n"), fflush(stdout);
    double each = 0;
    for (int i = 0; i < LOSSES; i++) {
        each = now();
        double loss = trained(&k, p);
        each = now() - each;
        if (rank == 0) printf("loss %.9g\n", loss), fflush(stdout);
    }
    if (rank == 0) printf("ready\n"), fflush(stdout);
    for (;;) {
        int64_t n = rank == 0 && fgets(line, sizeof line, stdin) ? (int64_t)(0.4 / each) + 2 : 0;
        if (c) dt_comm_broadcast(c, &n, 1, DT_COMM_I64, 0);
        if (n <= 0 || dt_error()) break;
        if (j->r->ranks == 1) { /* the pause before this turn belongs to no step: one with an evaluation is not in the profile */
            dt_model_eval(k.m);
            dt_no_grad_begin();
            j->w->net(k.m, k.x);
            dt_no_grad_end();
            dt_end();
            dt_model_train(k.m);
        }
        trained(&k, p); /* the caches are warm again */
        if (c) dt_comm_barrier(c);
        double t = now(), busy = calibrate_busy_cores(), used = calibrate_used(RUSAGE_SELF);
        for (int64_t i = 0; i < n; i++) trained(&k, p);
        if (c) dt_comm_barrier(c);
        used = calibrate_used(RUSAGE_SELF) - used;
        t = now() - t;
        busy = calibrate_busy_cores() - busy;
        if (c) dt_comm_allreduce(c, &used, 1, DT_COMM_F64, DT_COMM_SUM);
        if (rank == 0) printf("rate %.9g %.6f\n", (double)n / t, (busy - used) / (t * calibrate_cores())), fflush(stdout);
    }
    if (rank == 0) printf("memory 0\n"), fflush(stdout);
    dt_pipeline_free(p);
    dt_ps_detach(pm);
    int bad = ps ? dt_ps_free(ps) != 0 : 0;
    dt_ddp_free(d);
    dt_optimizer_free(k.opt);
    dt_model_free(k.m);
    bad |= c ? dt_comm_free(c) != 0 : 0;
    return dt_check("bench_plan") || bad;
}
static int side_rank(void *user)
{
    const job   *j = (const job *)user;
    dt_comm_opts o;
    memset((void *)&o, 0, sizeof o);
    o.transport = j->r->tcp ? "tcp" : "auto";
    o.bandwidth = j->r->slowed;
    o.timeout = 600; /* a side waits while the others take their turns */
    dt_comm *c = j->r->ranks > 1 ? dt_comm_init_with(o) : NULL;
    if (j->r->ranks > 1 && !c) return fprintf(stderr, "bench_plan: %s\n", dt_comm_error(NULL)), 1;
    return serve(j, c);
}
static const job *the_job; /* of the lab's ranks */
static int        lab_side(lab *l, int rank)
{
    int machine = lab_machine(l, rank);
    if (rank % (l->ranks / 2) == 0 &&
        sh("tc qdisc add dev cable%d root tbf rate %dmbit burst 64kb latency 100ms", machine, the_job->r->mbit))
        return NOT_HERE;
    dt_comm *c = lab_join(l, rank);
    return c ? serve(the_job, c) : 1;
}
static int side_main(const char *net, const char *name)
{
    job j;
    j.w = work_of(net);
    j.r = row_of(name);
    if (!j.w || !j.r) return 2;
    if (j.r->mbit) {
        lab l = lab_of(lab_side, j.r->ranks);
        l.seconds = 900;
        l.timeout = 600;
        the_job = &j;
        return lab_run(&l);
    }
    return j.r->ranks > 1 ? dt_spawn(j.r->ranks, side_rank, &j) : side_rank(&j);
}

/* ---- measuring the rows of a net */
typedef struct measured {
    side   s;
    bool   on;
    int    calm, turns; /* s.rate has those of the calm turns */
    double others;      /* the most that other programs had in a calm turn */
} measured;
static int turn_of(measured *m) /* one turn; 0: calm, 1: disturbed, negative: it failed */
{
    char   line[128];
    double rate, others;
    fputs("go\n", m->s.in);
    fflush(m->s.in);
    if (!fgets(line, sizeof line, m->s.out) || sscanf(line, "rate %lf %lf", &rate, &others) != 2) return -1;
    m->turns++;
    if (others > DISTURBED || m->calm == MAX_ROUNDS) return 1;
    m->others = fmax(m->others, others);
    m->s.rate[m->calm++] = rate;
    return 0;
}
static int free_number(const char *out, const char *net) /* of the part that is measured now */
{
    char path[1024];
    for (int n = 1;; n++) {
        snprintf(path, sizeof path, "%s/%s.%d.cluster", out, net, n);
        if (access(path, F_OK)) return n;
    }
}
static int part(const char *self, const char *net, const char *out, int rounds, const char *only, double seconds)
{
    static measured m[ROWS];
    char            path[1024], list[1024];
    calibration     c, again;
    FILE           *f;
    double          begin = now();
    int             number = free_number(out, net), missing = 1;
    snprintf(list, sizeof list, ",%s,", only);
    if (calibrate(&c, 9, stderr)) return fprintf(stderr, "bench_plan: the calibration failed\n"), 1;
    for (int i = 0; i < ROWS; i++) {
        char  name[40];
        char *argv[] = { (char *)(size_t)self, (char *)(size_t) "--side", (char *)(size_t)net,
                         (char *)(size_t)rows[i].name, NULL };
        snprintf(name, sizeof name, ",%s,", rows[i].name);
        m[i].on = rows[i].ranks == 1 || !*only || strstr(list, name);
        if (!m[i].on) continue;
        snprintf(path, sizeof path, "%s/%s.%d.%s", out, net, number, rows[i].name);
        if (rows[i].ranks == 1) setenv("DT_PROFILE", path, 1), setenv("DT_PROFILE_STEPS", "2000", 1);
        else unsetenv("DT_PROFILE");
        m[i].on = start(&m[i].s, argv, 0) == 0;
        if (!m[i].on) fprintf(stderr, "bench_plan: %s: %s did not start: it has no row\n", net, rows[i].name);
        unsetenv("DT_PROFILE");
    }
    for (int r = 0; missing && r < 3 * rounds + 1 && now() - begin < seconds; r++) { /* the first round is a warm-up */
        missing = 0;
        for (int k = 0; k < ROWS; k++) {
            int             i = (k + r) % ROWS;
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other sides' spinning threads go to sleep */
            if (!m[i].on || m[i].calm >= rounds) continue;
            nanosleep(&pause, NULL);
            m[i].on = turn_of(&m[i]) >= 0;
            if (!m[i].on) fprintf(stderr, "bench_plan: %s: %s failed in round %d\n", net, rows[i].name, r);
            if (r == 0) m[i].calm = 0;
            missing += m[i].on && m[i].calm < rounds;
        }
    }
    for (int i = 0; i < ROWS; i++)
        if (m[i].s.pid) finish(&m[i].s);
    for (int i = 0; i < 3 && c.others > DISTURBED; i++) {
        fprintf(stderr, "bench_plan: other programs had %.0f %% of the cores during the calibration: again\n", 100 * c.others);
        if (calibrate(&again, 9, NULL) == 0 && again.others < c.others) c = again;
    }
    if (c.others > DISTURBED) return fprintf(stderr, "bench_plan: there is no calibration of a calm machine: no rows\n"), 1;
    snprintf(path, sizeof path, "%s/rows", out);
    f = fopen(path, "a");
    if (!f) return perror(path), 1;
    for (int i = 0; i < ROWS; i++) {
        if (!m[i].on) continue;
        if (m[i].calm < 2)
            fprintf(stderr, "bench_plan: %s: %s: %d of %d turns were calm: it has no row\n", net, rows[i].name, m[i].calm, m[i].turns);
        if (m[i].calm < 2) continue;
        double step = 1 / middle(m[i].s.rate, m[i].calm);
        fprintf(f, "%s %d %s %.9g\n", net, number, rows[i].name, step);
        printf("%s %s: a step takes %.3f ms (%d calm turns of %d, others at most %.1f %%)\n", net, rows[i].name, 1e3 * step,
               m[i].calm, m[i].turns, 100 * m[i].others);
    }
    fclose(f);
    snprintf(path, sizeof path, "%s/%s.%d.cluster", out, net, number);
    f = fopen(path, "w");
    if (!f) return perror(path), 1;
    calibrate_print(f, &c);
    fclose(f);
    return 0;
}

/* ---- predicting */
static char *slurp(const char *dir, const char *net, int number, const char *what, size_t *n)
{
    char  path[1024];
    char *text = (char *)malloc(1 << 20);
    snprintf(path, sizeof path, "%s/%s.%d.%s", dir, net, number, what);
    FILE *f = fopen(path, "r");
    if (!f || !text) return free(text), NULL;
    *n = fread(text, 1, (1 << 20) - 1, f);
    text[*n] = 0;
    fclose(f);
    return text;
}
/* The calibration as it was printed */
static bool read_machine(const char *text, calibration *c)
{
    memset((void *)c, 0, sizeof *c);
    const char *p = strstr(text, "# together 2 ");
    double      ns, busy;
    if (!p || sscanf(p, "# together 2 products %lf 1MiB %lf 4MiB %lf 16MiB %lf 64MiB %lf", &c->compute[2],
                     &c->memory[2][0], &c->memory[2][1], &c->memory[2][2], &c->memory[2][3]) != 5)
        return false;
    if (!(p = strstr(text, "# speed ")) ||
        sscanf(p, "# speed %lfFLOP/s copy %lfB/s sum %lfB/s spread %lf", &c->flops, &c->copy, &c->sum, &c->spread) != 4)
        return false;
    if (!(p = strstr(text, "# moved ")) || sscanf(p, "# moved 1MiB %lfB/s 4MiB %lfB/s 16MiB %lfB/s 64MiB %lfB/s", &c->moved[0],
                                                  &c->moved[1], &c->moved[2], &c->moved[3]) != 4)
        return false;
    for (int tcp = 0; tcp < 2; tcp++) {
        char            key[64];
        calibrate_link *l = &c->allreduce[tcp];
        snprintf(key, sizeof key, "link %s allreduce ranks 2 latency ", calibrate_links[tcp]);
        if (!(p = strstr(text, key)) ||
            sscanf(p + strlen(key), "%lfns rate %lfB/s busy %lf 1MiB %lfB/s 4MiB %lfB/s 16MiB %lfB/s", &ns, &l->rate, &busy,
                   &l->sized[0], &l->sized[1], &l->sized[2]) != 6)
            return false;
        l->latency = 1e-9 * ns;
        l->busy = busy;
        snprintf(key, sizeof key, "link %s send ranks 2 latency ", calibrate_links[tcp]);
        if (!(p = strstr(text, key)) || sscanf(p + strlen(key), "%lfns rate %lfB/s", &ns, &c->send[tcp].rate) != 2) return false;
        c->send[tcp].latency = 1e-9 * ns;
    }
    return true;
}
/* The rate of the size nearest to a bucket of this model */
static double rate_of(const calibrate_link *l, const dt_scale_model *m)
{
    double nbytes = fmin((double)dt_scale_model_sums(m).params * m->gradient_bytes, 25 << 20);
    int    i = 0;
    while (i + 1 < CALIBRATE_SIZES && nbytes > sqrt((double)calibrate_sizes[i] * calibrate_sizes[i + 1]) * 1048576) i++;
    return l->sized[i];
}
/* m: the profile of one rank; of a pipeline, with the micro-batch. full: with the whole batch */
static double predict(const row *r, const dt_scale_model *m, const dt_scale_model *full, const calibration *c, double working_set)
{
    dt_scale_cluster      k;
    dt_scale_opts         o;
    int                   tcp = r->tcp || r->mbit;
    const calibrate_link *l = &c->allreduce[tcp];
    double                best = rate_of(l, full);
    double                rate = r->slowed > 0 ? fmin(r->slowed, best)
                                 : r->mbit     ? r->mbit * 1e6 / 8 * 1448 / 1514
                                               : best; /* TCP in Ethernet frames */
    memset((void *)&o, 0, sizeof o);
    dt_scale_cluster_default(&k);
    k.machines = 1;
    k.per_machine = r->ranks;
    k.device.bandwidth = 0; /* what reducing costs is in the figures of the allreduce */
    k.reduce = 0;
    k.intra.latency =
        l->latency / 2; /* an allreduce of two ranks has two rounds, in which each sends half of its buffer */
    k.intra.rate = calibrate_link_rate(rate);
    k.intra.burst = r->slowed > 0 ? 2e-3 * r->slowed : r->mbit ? 64e3 : 0; /* of the transport's bucket; of tbf's */
    int set = 0;
    while (set + 1 < CALIBRATE_SETS && working_set > calibrate_sets[set] * 1048576.0) set++;
    k.device.speed = c->flops;
    k.together = c->compute[2];
    k.stream = c->moved[set];
    k.crowded = c->memory[2][set];
    k.sharing = r->ranks; /* whatever the link is, they are on this machine */
    k.busy = l->busy * rate / best; /* while a slowed link waits, the core is free */
    k.spread = c->spread;
    if (r->ranks > calibrate_cores()) { /* they take turns on the cores */
        double cores = (double)calibrate_cores() / r->ranks;
        k.together *= cores;
        k.crowded = cores * k.crowded;
    }
    if (r->kind == PIPE) {
        k.intra.latency = c->send[tcp].latency;
        k.intra.rate = r->slowed > 0 ? fmin(r->slowed, c->send[tcp].rate) : c->send[tcp].rate;
    } else if (r->kind == STORE || tcp) { /* machines of one rank each, or two: links of TCP */
        k.machines = 2;
        k.per_machine = r->ranks / 2;
        k.inter.latency = r->kind == STORE ? c->send[tcp].latency : k.intra.latency;
        k.inter.rate = rate;
        k.inter.burst = k.intra.burst;
        k.intra.rate = calibrate_link_rate(rate_of(&c->allreduce[0], full));
        k.intra.latency = c->allreduce[0].latency / 2;
        k.shared = true;
        if (r->kind == STORE) k.reduce = 1 / c->sum;
    }
    o.model = m;
    o.cluster = &k;
    o.batch = full->batch;
    o.layout.data = r->kind == PIPE ? 1 : r->ranks;
    o.layout.pipe = r->kind == PIPE ? 2 : 1;
    o.layout.tensor = 1;
    o.layout.zero = r->kind == ZERO1 ? 1 : r->kind == ZERO3 ? 3 : 0;
    o.layout.micro = r->kind == PIPE ? MICRO : 1;
    o.layout.schedule = DT_PIPE_1F1B;
    o.servers = r->kind == STORE ? 2 : 0;
    o.serving = r->kind == STORE ? DT_SCALE_BESIDE : 0;
    if (r->kind == STORE) o.overlap = DT_NO; /* dt_ps_attach pushes in dt_step, after the backward: dt_serve.h */
    dt_scale_prediction *p = dt_scale_predict(&o);
    double               step = p ? p->step : -1;
    if (!p) fprintf(stderr, "bench_plan: %s: %s\n", r->name, dt_plan_error());
    dt_scale_prediction_free(p);
    return step;
}
enum { PARTS_MOST = 64, CELLS_MOST = 512 };
typedef struct cell {
    char       net[64];
    const row *r;
    int        n;
    double     step[PARTS_MOST], guess[PARTS_MOST];
} cell;
static double half(const double *v, int n) /* the median; does not change v */
{
    double s[CELLS_MOST];
    memcpy(s, v, (size_t)n * sizeof *s);
    qsort(s, (size_t)n, sizeof *s, by_value);
    return n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
}
static int guess(const char *out, const char *net, int number, const row *r, double *step)
{
    size_t          np = 0, nq = 0, nm = 0;
    char           *profile = slurp(out, net, number, "one", &np), *micro = slurp(out, net, number, "micro", &nq),
                   *machine = slurp(out, net, number, "cluster", &nm);
    calibration     c;
    dt_scale_model *m = profile ? dt_scale_profile_parse(net, profile, np) : NULL;
    dt_scale_model *q = micro ? dt_scale_profile_parse(net, micro, nq) : NULL;
    const char     *of = r->kind == PIPE ? micro : profile, *peak = of ? strstr(of, "# peak ") : NULL;
    bool            bad = !m || !q || !peak || !machine || !read_machine(machine, &c);
    if (bad)
        fprintf(stderr, "bench_plan: %s %s: no profile or calibration of part %d: %s\n", net, r->name, number,
                m && q ? "" : dt_plan_error());
    else
        *step = r->kind == ONE         ? m->step
                : r->kind == ONE_MICRO ? q->step
                                       : predict(r, r->kind == PIPE ? q : m, m, &c, atof(peak + 7));
    dt_scale_model_free(m);
    dt_scale_model_free(q);
    free(profile);
    free(micro);
    free(machine);
    return bad;
}
static int table(const char *out)
{
    static cell cells[CELLS_MOST];
    double      error[CELLS_MOST], step;
    int         n = 0, ncells = 0, number;
    char        net[64], name[64], path[1024];
    snprintf(path, sizeof path, "%s/rows", out);
    FILE *f = fopen(path, "r");
    if (!f) return perror(path), 1;
    while (fscanf(f, "%63s %d %63s %lf", net, &number, name, &step) == 4) {
        const row *r = row_of(name);
        int        i = 0;
        while (i < ncells && (cells[i].r != r || strcmp(cells[i].net, net) != 0)) i++;
        if (!r || i == CELLS_MOST || cells[i].n == PARTS_MOST) return fprintf(stderr, "bench_plan: %s: too many rows, or unknown ones\n", path), 1;
        if (i == ncells) cells[ncells].r = r, snprintf(cells[ncells++].net, sizeof net, "%s", net);
        cells[i].step[cells[i].n] = step;
        if (guess(out, net, number, r, &cells[i].guess[cells[i].n++])) return 1;
    }
    fclose(f);
    printf("| net | row | parts | measured | predicted | error |\n|---|---|--:|--:|--:|--:|\n");
    for (int w = 0; w < NWORKS + 1; w++)
        for (int k = 0; k < ROWS; k++)
            for (int i = 0; i < ncells; i++) {
                const row *r = cells[i].r;
                if (r != &rows[k] || strcmp(cells[i].net, w < NWORKS ? works[w].name : wide.name) != 0 ||
                    (w < NWORKS && strcmp(works[w].mode, "default") != 0))
                    continue;
                bool   scored = r->ranks == 2;
                double took = half(cells[i].step, cells[i].n), e = half(cells[i].guess, cells[i].n) / took - 1;
                if (scored) error[n++] = fabs(e);
                printf("| %s | %s | %d | %.2f ms | %.2f ms | %+.0f %%%s |\n", cells[i].net, r->name, cells[i].n, 1e3 * took,
                       1e3 * (1 + e) * took, 100 * e,
                       r->ranks == 1 ? " (its profile)"
                       : scored      ? ""
                                     : " (not scored)");
            }
    if (!n) return 1;
    printf("\n%d rows: median error %.1f %% (goal: 10), 90th percentile %.1f %% (goal: 25)\n", n, 100 * half(error, n),
           100 * (qsort(error, (size_t)n, sizeof *error, by_value), error[(int)ceil(0.9 * n) - 1]));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--side")) return side_main(argv[2], argv[3]);
    const char *out = option(argc, argv, "--out", "build/plan"), *net = option(argc, argv, "--part", "");
    int         rounds = atoi(option(argc, argv, "--rounds", "7"));
    if (argc > 1 && !strcmp(argv[1], "--table")) return table(out);
    if (argc > 1 && !strcmp(argv[1], "--calibrate")) {
        calibration c;
        if (calibrate(&c, 0, stderr)) return 1;
        calibrate_print(stdout, &c);
        return 0;
    }
    if (!work_of(net) || rounds < 1 || rounds >= MAX_ROUNDS)
        return fprintf(
                   stderr,
                   "bench_plan: --part convnet, resnet20, mlp16 or gpt, or --table, or --calibrate; --rounds 1 to %d\n",
                   MAX_ROUNDS - 1),
               2;
    signal(SIGPIPE, SIG_IGN);
    setenv("DT_LOG", "error", 0);
    mkdir(out, 0777);
    return part(argv[0], net, out, rounds, option(argc, argv, "--rows", ""), atof(option(argc, argv, "--seconds", "200")));
}
