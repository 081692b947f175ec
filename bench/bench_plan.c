/* Predicts steps of training on several ranks from a profile of one rank, and measures them: make bench-plan

       bench_plan --part NET [--out DIR] [--rounds N] [--rows a,b,..]    measures the rows of one net; adds to DIR (build/plan)
       bench_plan --table [--out DIR]                                   predicts all rows of DIR, one table, in Markdown

   A part first calibrates the machine (tools/calibrate.h: it knows no model). Then its sides take turns of about half a second: one rank,
   which writes its profile (DT_PROFILE), and one job for each row: two ranks of one thread that train the same net. What is predicted
   of a row knows the profile of the one rank, the calibration, and of slowed links the rate that they were slowed to. A measured
   step is the median of the turns. A part takes less than six minutes.

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
static const work wide = { "mlp16", "images/s", mlp16, { 2, { 64, 784 } }, 64, "default", { 0, 0 } };
static const work *work_of(const char *name)
{
    for (int i = 0; i < NWORKS; i++)
        if (!strcmp(works[i].name, name)) return &works[i];
    return !strcmp(name, wide.name) ? &wide : NULL;
}
typedef enum row_kind { ONE, DDP, ZERO1, ZERO3, PIPE, STORE } row_kind;
typedef struct row {
    const char *name;
    row_kind    kind;
    int         ranks, tcp;
    double      slowed; /* bytes/s; 0: no */
    int         mbit;   /* of tbf between namespaces; 0: no namespaces */
} row;
static const row rows[] = {
    { "one", ONE, 1, 0, 0, 0 },              { "ddp-shm", DDP, 2, 0, 0, 0 },          { "ddp-tcp", DDP, 2, 1, 0, 0 },
    { "ddp-100MB", DDP, 2, 1, 100e6, 0 },    { "ddp-25MB", DDP, 2, 1, 25e6, 0 },      { "ddp-tbf", DDP, 2, 1, 0, 400 },
    { "zero1-shm", ZERO1, 2, 0, 0, 0 },      { "zero3-shm", ZERO3, 2, 0, 0, 0 },      { "zero1-100MB", ZERO1, 2, 1, 100e6, 0 },
    { "zero3-100MB", ZERO3, 2, 1, 100e6, 0 }, { "pipe-shm", PIPE, 2, 0, 0, 0 },        { "pipe-100MB", PIPE, 2, 1, 100e6, 0 },
    { "ps-shm", STORE, 2, 0, 0, 0 },         { "ps-100MB", STORE, 2, 1, 100e6, 0 },   { "two-level", DDP, 4, 0, 0, 400 },
};
enum { ROWS = sizeof rows / sizeof *rows, MICRO = 4 };
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
    return dt_cross_entropy(((const work *)user)->net(m, x), y);
}
static double trained(worker *k, dt_pipeline *p) /* one step; its loss */
{
    double loss = 0;
    if (!p) return one_step(k);
    dt_pipeline_backward(p, loss_of, (void *)(size_t)k->w, k->x, k->y, &loss);
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
    dt_set_num_threads(1);
    begin(&k, j->w, 0);
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
        int64_t n = rank == 0 && fgets(line, sizeof line, stdin) ? (int64_t)(0.5 / each) + 4 : 0;
        if (c) dt_comm_broadcast(c, &n, 1, DT_COMM_I64, 0);
        if (n <= 0 || dt_error()) break;
        if (j->r->kind == ONE) { /* the pause before this turn belongs to no step: one with an evaluation is not in the profile */
            dt_model_eval(k.m);
            dt_no_grad_begin();
            j->w->net(k.m, k.x);
            dt_no_grad_end();
            dt_end();
            dt_model_train(k.m);
        }
        trained(&k, p); /* the caches are warm again */
        if (c) dt_comm_barrier(c);
        double t = now();
        for (int64_t i = 0; i < n; i++) trained(&k, p);
        if (c) dt_comm_barrier(c);
        if (rank == 0) printf("rate %.9g\n", (double)n / (now() - t)), fflush(stdout);
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
static int part(const char *self, const char *net, const char *out, int rounds, const char *only)
{
    static side s[ROWS];
    char        path[1024], list[1024];
    bool        on[ROWS];
    calibration c;
    snprintf(list, sizeof list, ",%s,", only);
    snprintf(path, sizeof path, "%s/%s.machine", out, net);
    if (calibrate(&c, stderr)) return fprintf(stderr, "bench_plan: the calibration failed\n"), 1;
    FILE *f = fopen(path, "w");
    if (!f) return perror(path), 1;
    calibrate_print(f, &c);
    fclose(f);
    for (int i = 0; i < ROWS; i++) {
        char  name[40];
        char *argv[] = { (char *)(size_t)self, (char *)(size_t)"--side", (char *)(size_t)net, (char *)(size_t)rows[i].name, NULL };
        snprintf(name, sizeof name, ",%s,", rows[i].name);
        on[i] = i == 0 || !*only || strstr(list, name);
        if (!on[i]) continue;
        snprintf(path, sizeof path, "%s/%s.profile", out, net);
        if (i == 0) setenv("DT_PROFILE", path, 1), setenv("DT_PROFILE_STEPS", "2000", 1);
        else unsetenv("DT_PROFILE");
        on[i] = start(&s[i], argv, 0) == 0;
        if (!on[i]) fprintf(stderr, "bench_plan: %s: %s did not start: it has no row\n", net, rows[i].name);
        unsetenv("DT_PROFILE");
    }
    for (int r = 0; r < rounds + 1; r++) /* the first round is a warm-up */
        for (int k = 0; k < ROWS; k++) {
            int             i = (k + r) % ROWS;
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other sides' spinning threads go to sleep */
            if (!on[i]) continue;
            nanosleep(&pause, NULL);
            on[i] = turn(&s[i], r ? r - 1 : 0) == 0;
            if (!on[i]) fprintf(stderr, "bench_plan: %s: %s failed in round %d\n", net, rows[i].name, r);
        }
    snprintf(path, sizeof path, "%s/rows", out);
    f = fopen(path, "a");
    for (int i = 0; i < ROWS; i++) {
        finish(&s[i]);
        if (!on[i] || !f) continue;
        double step = 1 / middle(s[i].rate, rounds);
        fprintf(f, "%s %s %.9g\n", net, rows[i].name, step);
        printf("%s %s: a step takes %.3f ms\n", net, rows[i].name, 1e3 * step);
    }
    return f && !fclose(f) ? 0 : 1;
}

/* ---- predicting */
static char *slurp(const char *dir, const char *net, const char *what, size_t *n)
{
    char  path[1024];
    char *text = (char *)malloc(1 << 20);
    snprintf(path, sizeof path, "%s/%s%s", dir, net, what);
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
    const char *p = strstr(text, "together 2 ");
    double      ns, busy;
    if (!p || sscanf(p, "together 2 compute %lf 1MiB %lf 4MiB %lf 16MiB %lf 64MiB %lf", &c->compute[2], &c->memory[2][0],
                     &c->memory[2][1], &c->memory[2][2], &c->memory[2][3]) != 5) return false;
    if (!(p = strstr(text, "\ncompute ")) || sscanf(p, "\ncompute %lf", &c->flops) != 1) return false;
    for (int tcp = 0; tcp < 2; tcp++) {
        char key[64];
        snprintf(key, sizeof key, "link %s allreduce ranks 2 latency ", calibrate_links[tcp]);
        if (!(p = strstr(text, key)) || sscanf(p + strlen(key), "%lfns rate %lfB/s busy %lf", &ns, &c->allreduce[tcp].rate, &busy) != 3)
            return false;
        c->allreduce[tcp].latency = 1e-9 * ns;
        c->allreduce[tcp].busy = busy;
    }
    return (p = strstr(text, "\nspread ")) && sscanf(p, "\nspread %lf", &c->spread) == 1;
}
/* What two ranks of this model reach together: the part of its time that products at the calibrated speed would need is slowed
   as products are, the rest as sums over its working set, the peak of its memory. */
static double together_of(const calibration *c, const dt_scale_model *m, double working_set)
{
    double flops = 3 * dt_scale_model_sums(m).flops * m->batch, share = fmin(1, flops / c->flops / (m->forward + m->backward));
    int    set = 0;
    while (set + 1 < CALIBRATE_SETS && working_set > calibrate_sets[set] * 1048576.0) set++;
    return 1 / (share / c->compute[2] + (1 - share) / c->memory[2][set]);
}
static double predict(const row *r, const dt_scale_model *m, const calibration *c, double working_set)
{
    dt_scale_cluster     k;
    dt_scale_opts        o;
    dt_scale_model       copy = *m;
    const calibrate_link *l = &c->allreduce[r->tcp || r->mbit ? 1 : 0];
    double rate = r->slowed > 0 ? fmin(r->slowed, l->rate) : r->mbit ? r->mbit * 1e6 / 8 * 1448 / 1514 : l->rate; /* TCP in Ethernet frames */
    memset((void *)&o, 0, sizeof o);
    dt_scale_cluster_default(&k);
    k.machines = 1;
    k.per_machine = r->ranks;
    k.device.bandwidth = 0; /* what reducing costs is in the figures of the allreduce */
    k.reduce = 0;
    k.intra.latency = l->latency / 2; /* an allreduce of two ranks has two rounds, in which each sends half of its buffer */
    k.intra.rate = rate;
    k.together = together_of(c, m, working_set);
    k.busy = l->busy * rate / l->rate; /* while a slowed link waits, the core is free */
    k.spread = c->spread;
    if (r->ranks > calibrate_cores()) k.together *= (double)calibrate_cores() / r->ranks;
    if (r->kind == STORE || r->mbit) { /* machines of one rank each, or two */
        k.machines = 2;
        k.per_machine = r->ranks / 2;
        k.inter = k.intra;
        k.intra.rate = c->allreduce[0].rate;
        k.intra.latency = c->allreduce[0].latency / 2;
        k.shared = true;
        for (int i = 0; i < copy.nlayers && k.per_machine == 1; i++) { /* they share this machine all the same */
            copy.layer[i].forward /= k.together;
            copy.layer[i].backward /= k.together;
            copy.layer[i].ready /= k.together;
        }
        if (k.per_machine == 1) copy.forward /= k.together, copy.backward /= k.together, copy.update /= k.together;
    }
    o.model = &copy;
    o.cluster = &k;
    o.batch = m->batch;
    o.layout.data = r->kind == PIPE ? 1 : r->ranks;
    o.layout.pipe = r->kind == PIPE ? 2 : 1;
    o.layout.tensor = 1;
    o.layout.zero = r->kind == ZERO1 ? 1 : r->kind == ZERO3 ? 3 : 0;
    o.layout.micro = r->kind == PIPE ? MICRO : 1;
    o.layout.schedule = DT_PIPE_1F1B;
    o.servers = r->kind == STORE ? 2 : 0;
    o.beside = r->kind == STORE;
    dt_scale_prediction *p = dt_scale_predict(&o);
    double               step = p ? p->step : -1;
    if (!p) fprintf(stderr, "bench_plan: %s: %s\n", r->name, dt_plan_error());
    dt_scale_prediction_free(p);
    return step;
}
static int table(const char *out)
{
    double error[256];
    int    n = 0;
    char   net[64], name[64], path[1024];
    double step;
    snprintf(path, sizeof path, "%s/rows", out);
    FILE *f = fopen(path, "r");
    if (!f) return perror(path), 1;
    printf("| net | row | measured | predicted | error |\n|---|---|--:|--:|--:|\n");
    while (fscanf(f, "%63s %63s %lf", net, name, &step) == 3) {
        const row      *r = row_of(name);
        size_t          np = 0, nm = 0;
        char           *profile = slurp(out, net, ".profile", &np), *machine = slurp(out, net, ".machine", &nm);
        calibration     c;
        dt_scale_model *m = profile ? dt_scale_profile_parse(net, profile, np) : NULL;
        const char     *peak = profile ? strstr(profile, "# peak ") : NULL;
        if (!r || !m || !peak || !machine || !read_machine(machine, &c))
            return fprintf(stderr, "bench_plan: %s %s: no profile or calibration: %s\n", net, name, m ? "" : dt_plan_error()), 1;
        bool   scored = r->kind != ONE && r->ranks <= 2;
        double guess = r->kind == ONE ? m->step : predict(r, m, &c, atof(peak + 7));
        double e = guess / step - 1;
        if (scored) error[n++] = fabs(e);
        printf("| %s | %s | %.2f ms | %.2f ms | %+.0f %%%s |\n", net, name, 1e3 * step, 1e3 * guess, 100 * e,
               r->kind == ONE ? " (its profile)" : scored ? "" : " (not scored)");
        dt_scale_model_free(m);
        free(profile);
        free(machine);
    }
    fclose(f);
    if (!n) return 1;
    qsort(error, (size_t)n, sizeof *error, by_value);
    printf("\n%d rows: median error %.1f %% (goal: 10), 90th percentile %.1f %% (goal: 25)\n", n, 100 * (n % 2 ? error[n / 2] : (error[n / 2 - 1] + error[n / 2]) / 2),
           100 * error[(int)ceil(0.9 * n) - 1]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--side")) return side_main(argv[2], argv[3]);
    const char *out = option(argc, argv, "--out", "build/plan"), *net = option(argc, argv, "--part", "");
    int         rounds = atoi(option(argc, argv, "--rounds", "7"));
    if (argc > 1 && !strcmp(argv[1], "--table")) return table(out);
    if (!work_of(net) || rounds < 1 || rounds >= MAX_ROUNDS)
        return fprintf(stderr, "bench_plan: --part convnet, resnet20, mlp16 or gpt, or --table; --rounds 1 to %d\n", MAX_ROUNDS - 1), 2;
    signal(SIGPIPE, SIG_IGN);
    setenv("DT_LOG", "error", 0);
    mkdir(out, 0777);
    return part(argv[0], net, out, rounds, option(argc, argv, "--rows", ""));
}
