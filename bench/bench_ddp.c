/* Compares data parallel training of dt with PyTorch's DDP over gloo in one run: make bench-ddp

       bench_ddp [--rounds N] [--models convnet,resnet20] [--python PATH] [--dtrun PATH]
                 [--parts start,rate,overlap]

   Start: the time from the start of dtrun to the first step.

   Rate: four sides: one rank of dt, two ranks of dt, two ranks of PyTorch, and two processes of dt that do not
   communicate (the most that the machine can give). Each rank has one thread and the same batches on all sides. First
   the losses of five steps of rank 0 must agree between dt and PyTorch; then the sides take turns of about half a
   second. The result is the median of the ratios of the turns.

   Overlap: two ranks of dt over TCP, whose bandwidth is limited so that communication takes as long as computing.
   Printed: the duration of a step, the bound t_forward + max(t_backward, t_ready + T2), and the duration without
   overlap. */
#define DT_IMPLEMENTATION
#include "../dt_dist.h"
#include "nets.h"

#include <math.h>
#include <signal.h>
#include <sys/mman.h>

#include "sides.h"

/* an MLP whose gradients are 4 MiB */
static dt_tensor *mlp4(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "0", x, .out = 784, .act = DT_ACT_RELU);
    x = dt_linear(m, "2", x, .out = 544, .act = DT_ACT_RELU);
    return dt_linear(m, "4", x, .out = 10);
}
static const work  wide = { "mlp4", "images/s", mlp4, { 2, { 128, 784 } }, 128, "default", { 0, 0 } };
static const work *work_of(const char *name)
{
    for (int i = 0; i < NWORKS; i++)
        if (!strcmp(works[i].name, name)) return &works[i];
    return !strcmp(name, wide.name) ? &wide : NULL;
}

/* ---- dt's ranks: rank 0 follows the protocol of sides.h, as peer_ddp.py does */
static void rank_data(worker *k, int rank) /* different images on each rank */
{
    dt_rng  r;
    int64_t label[4096];
    dt_rng_seed(&r, 2 + (uint64_t)rank);
    for (int64_t i = 0; i < k->w->items; i++) label[i] = i % 10;
    k->x = dt_keep(dt_normal(0, 1, k->w->shape, .rng = &r));
    k->y = dt_keep(dt_from(label, DT_SHAPE(k->w->items), .dtype = DT_I64));
}
static void begin_rank(worker *k, const work *w, int rank)
{
    memset(k, 0, sizeof *k);
    k->w = w;
    k->m = dt_model_new(.seed = 1);
    k->opt = dt_sgd(k->m, .lr = 0.01, .momentum = 0.9);
    rank_data(k, rank);
}
static bool apart; /* the ranks do not communicate */
static int  serve(void *arg)
{
    const work *w = (const work *)arg;
    dt_comm    *c = dt_comm_init();
    int         rank = dt_comm_rank(c), world = dt_comm_size(c);
    worker      k;
    char        line[64];
    dt_set_num_threads(1);
    begin_rank(&k, w, rank);
    dt_ddp *d = apart ? NULL : dt_ddp_new(k.m, c);
    if (rank == 0) printf("begin\n"), fflush(stdout);
    double each = 0;
    for (int i = 0; i < LOSSES; i++) {
        each = now();
        double loss = one_step(&k);
        each = now() - each;
        if (rank == 0) printf("loss %.9g\n", loss), fflush(stdout);
    }
    if (rank == 0) printf("ready\n"), fflush(stdout);
    for (;;) {
        int64_t n = rank == 0 && fgets(line, sizeof line, stdin) ? (int64_t)(0.5 / each) + 1 : 0;
        dt_comm_broadcast(c, &n, 1, DT_COMM_I64, 0);
        if (n <= 0 || dt_error()) break;
        double t = now();
        for (int64_t i = 0; i < n; i++) one_step(&k);
        dt_comm_barrier(c);
        if (rank == 0) printf("rate %.9g\n", (double)(n * w->items * world) / (now() - t)), fflush(stdout);
    }
    if (rank == 0) printf("memory 0\n");
    dt_ddp_free(d);
    dt_comm_free(c);
    return dt_check("bench_ddp");
}

static int rate(const work *w, double least, int rounds, const char *self, const char *python)
{
    enum { SIDES = 4 };
    static side s[SIDES];
    const char *who[SIDES] = { "dt-1", "dt-2", "torch-2", "dt-apart" };
    int         bad = 0;
    memset(s, 0, sizeof s);
    for (int i = 0; i < SIDES && !bad; i++) {
        char *ours[] = { (char *)self, (char *)(i == 3 ? "--apart" : "--worker"), (char *)w->name,
                         (char *)(i ? "2" : "1"), NULL };
        char *theirs[] = { (char *)python, (char *)"bench/peer_ddp.py", (char *)w->name, (char *)"2", NULL };
        bad = start(&s[i], i == 2 ? theirs : ours, 0);
        if (bad) fprintf(stderr, "bench_ddp: %s: %s did not start\n", w->name, who[i]);
    }
    for (int k = 0; k < LOSSES && !bad; k++)
        if (!(fabs(s[1].loss[k] - s[2].loss[k]) <= 2e-4 * (1 + fabs(s[2].loss[k])))) {
            fprintf(stderr, "bench_ddp: %s: step %d: dt %.9g, PyTorch %.9g: expected the same loss\n", w->name, k,
                    s[1].loss[k], s[2].loss[k]);
            bad = 1;
        }
    for (int r = 0; r < rounds + 1 && !bad; r++) /* the first round is a warm-up */
        for (int i = 0; i < SIDES && !bad; i++) {
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other sides' spinning threads go to sleep */
            nanosleep(&pause, NULL);
            bad = turn(&s[(i + r) % SIDES], r ? r - 1 : 0);
        }
    for (int i = 0; i < SIDES; i++) finish(&s[i]);
    if (bad) return 1;
    double ratio = ratio_of(&s[1], &s[2], rounds), scale = ratio_of(&s[1], &s[0], rounds) / 2;
    printf("%s-ddp-2: dt %.0f images/s, PyTorch DDP+gloo %.0f images/s, ratio %.2f%s\n", w->name,
           middle(s[1].rate, rounds), middle(s[2].rate, rounds), ratio,
           ratio < least ? "  (below the target)" : "");
    printf("%s-ddp-scaling: dt 1 rank %.0f images/s, 2 ranks %.0f images/s, efficiency %.2f%s\n", w->name,
           middle(s[0].rate, rounds), middle(s[1].rate, rounds), scale,
           scale < 0.92 ? "  (below the target)" : "");
    printf("%s-ddp-apart: two processes that do not communicate %.0f images/s, %.2f of twice one; DDP reaches %.2f "
           "of them\n",
           w->name, middle(s[3].rate, rounds), ratio_of(&s[3], &s[0], rounds) / 2, ratio_of(&s[1], &s[3], rounds));
    printf("%s-ddp-start: first step begins after dt %.0f ms, PyTorch %.0f ms\n", w->name, 1e3 * s[1].begin,
           1e3 * s[2].begin);
    fflush(stdout);
    return 0;
}

/* ---- start: time from the start of the launcher to the first step */
static int launched(const char *self, const char *dtrun)
{
    enum { TIMES = 5 };
    double begin[TIMES], step[TIMES];
    for (int i = 0; i < TIMES; i++) {
        char   command[600], line[256];
        double t = now();
        begin[i] = step[i] = -1;
        snprintf(command, sizeof command, "exec '%s' -n 2 '%s' --launched convnet </dev/null 2>&1", dtrun, self);
        FILE *f = popen(command, "r");
        while (f && fgets(line, sizeof line, f)) {
            if (begin[i] < 0 && strstr(line, "begin")) begin[i] = now() - t;
            if (step[i] < 0 && strstr(line, "loss ")) step[i] = now() - t;
        }
        if (!f || pclose(f) || step[i] < 0) return fprintf(stderr, "bench_ddp: %s did not run\n", command), 1;
    }
    printf("convnet-dtrun: from the start of dtrun to the first step of 2 ranks %.0f ms, to its end %.0f ms%s\n",
           1e3 * middle(begin, TIMES), 1e3 * middle(step, TIMES),
           middle(begin, TIMES) > 0.3 ? "  (above the target)" : "");
    return 0;
}

/* ---- overlap */
typedef struct slow {
    const work *w;
    double      bandwidth; /* bytes/s */
    double      result[6]; /* forward, backward, ready, T2, step, step without a network */
} slow;
static double middle_step(worker *k, int n)
{
    double each[64];
    for (int i = 0; i < n; i++) {
        each[i] = -now();
        one_step(k);
        each[i] += now();
    }
    return middle(each, n);
}
static int slowed(void *arg)
{
    slow        *s = (slow *)arg;
    dt_comm_opts o;
    worker       k;
    memset((void *)&o, 0, sizeof o);
    o.transport = "tcp";
    o.bandwidth = s->bandwidth;
    dt_comm *c = dt_comm_init_with(o);
    int      n = 15;
    dt_set_num_threads(1);
    begin_rank(&k, s->w, dt_comm_rank(c));
    dt_ddp *d = dt_ddp_new(k.m, c, .first_bucket_mb = 0.05, .bucket_mb = 0.25);
    middle_step(&k, 3);
    double forward[64], back[64], f, b;
    dt_ddp_no_sync(d, true); /* computing without communication */
    for (int i = 0; i < n; i++) {
        double     t = now();
        dt_tensor *l = dt_cross_entropy(s->w->net(k.m, k.x), k.y);
        forward[i] = now() - t;
        dt_backward(l);
        back[i] = now() - t - forward[i];
        dt_optimizer_zero_grad(k.opt);
        dt_end();
    }
    f = middle(forward, n);
    b = middle(back, n);
    dt_ddp_no_sync(d, false);
    int64_t nbytes = dt_model_numel(k.m, true) * 4;
    float  *x = (float *)dt_comm_alloc(c, (size_t)nbytes);
    memset(x, 0, (size_t)nbytes);
    dt_comm_barrier(c);
    double t2 = now();
    for (int i = 0; i < 5; i++) dt_comm_allreduce(c, x, nbytes / 4, DT_COMM_F32, DT_COMM_SUM);
    t2 = (now() - t2) / 5;
    dt_ddp_stats before = dt_ddp_get_stats(d);
    double       step = middle_step(&k, n);
    dt_ddp_stats after = dt_ddp_get_stats(d);
    s->result[0] = f;
    s->result[1] = b;
    s->result[2] = (after.ready - before.ready) / n;
    s->result[3] = t2;
    s->result[4] = step;
    s->result[5] = f + b;
    dt_comm_dealloc(c, x);
    dt_ddp_free(d);
    dt_comm_free(c);
    return dt_check("bench_ddp");
}
static int overlap(const work *w, slow *s)
{
    s->w = w;
    s->bandwidth = 0;
    if (dt_spawn(2, slowed, s)) return 1;
    double nbytes = 0, t1 = s->result[5];
    {
        worker k;
        begin_rank(&k, w, 0);
        one_step(&k);
        nbytes = 4.0 * (double)dt_model_numel(k.m, true);
    }
    s->bandwidth = nbytes / t1; /* with two ranks a ring sends each byte once */
    if (dt_spawn(2, slowed, s)) return 1;
    double f = s->result[0], b = s->result[1], ready = s->result[2], t2 = s->result[3], step = s->result[4];
    double bound = f + (b > ready + t2 ? b : ready + t2);
    printf("%s-overlap: T1 %.2f ms (forward %.2f, backward %.2f), T2 %.2f ms, first bucket ready after %.2f ms\n",
           w->name, 1e3 * (f + b), 1e3 * f, 1e3 * b, 1e3 * t2, 1e3 * ready);
    printf("%s-overlap: step dt %.2f ms, bound %.2f ms, ratio %.2f%s; without overlap %.2f ms\n", w->name, 1e3 * step,
           1e3 * bound, step / bound, step > 1.1 * bound ? "  (above the target)" : "", 1e3 * (f + b + t2));
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && (!strcmp(argv[1], "--worker") || !strcmp(argv[1], "--apart"))) {
        apart = !strcmp(argv[1], "--apart");
        const work *w = work_of(argv[2]);
        return w ? dt_spawn(atoi(argv[3]), serve, (void *)(size_t)w) : 1;
    }
    if (argc == 3 && !strcmp(argv[1], "--launched")) return serve((void *)(size_t)work_of(argv[2]));
    const char *models = option(argc, argv, "--models", "convnet,resnet20,mlp4");
    const char *parts = option(argc, argv, "--parts", "start,rate,overlap");
    int         rounds = atoi(option(argc, argv, "--rounds", "7")), failed = 0;
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 7;
    signal(SIGPIPE, SIG_IGN);
    if (strstr(parts, "start")) failed |= launched(argv[0], option(argc, argv, "--dtrun", "build/tools/dtrun"));
    if (strstr(parts, "rate") && strstr(models, "convnet"))
        failed |= rate(work_of("convnet"), 1.5, rounds, argv[0], option(argc, argv, "--python", "python3"));
    if (strstr(parts, "rate") && strstr(models, "resnet20"))
        failed |= rate(work_of("resnet20"), 1.2, rounds, argv[0], option(argc, argv, "--python", "python3"));
    slow *s = (slow *)mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) return 1;
    if (strstr(parts, "overlap") && strstr(models, "resnet20")) failed |= overlap(work_of("resnet20"), s);
    if (strstr(parts, "overlap") && strstr(models, "mlp4")) failed |= overlap(&wide, s);
    return failed;
}
