/* Compares training with .shard = 1, 2 and 3 with DDP, and with PyTorch's FSDP2 over gloo, in one run: make bench-shard

       bench_shard [--rounds N] [--width N] [--python PATH, or "" for none]

   Two ranks of one thread each, the same batches on all sides: an MLP of six layers of --width, Adam. The losses of five steps of
   rank 0 must be equal, bit for bit, with every .shard, and agree with PyTorch's. Then the sides take turns of about half a second.
   The result is the median of the ratios of the turns. "apart" is DDP once more: how far two equal sides are from 1. */
#define DT_IMPLEMENTATION
#include "../dt_dist.h"
#include "nets.h"

#include <math.h>
#include <signal.h>

#include "sides.h"

static int        width = 1024;
static dt_tensor *mlp6(dt_model *m, dt_tensor *x)
{
    char name[8];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "%d", 2 * i);
        x = dt_linear(m, name, x, .out = width, .act = DT_ACT_RELU);
    }
    return dt_linear(m, "10", x, .out = 10);
}
static const work wide = { "mlp6", "samples/s", mlp6, { 2, { 64, 784 } }, 64, "default", { 0, 0 } };

static int sharded;         /* .shard of this process */
static int serve(void *arg) /* rank 0 follows the protocol of sides.h */
{
    dt_comm *c = dt_comm_init();
    int      rank = dt_comm_rank(c), world = dt_comm_size(c);
    worker   k;
    dt_rng   r;
    int64_t  label[64];
    char     line[64];
    (void)arg;
    dt_set_num_threads(1);
    memset(&k, 0, sizeof k);
    k.w = &wide;
    k.m = dt_model_new(.seed = 1);
    k.opt = dt_adam(k.m, .lr = 1e-3);
    dt_rng_seed(&r, 2 + (uint64_t)rank);
    for (int i = 0; i < 64; i++) label[i] = i % 10;
    k.x = dt_keep(dt_normal(0, 1, wide.shape, .rng = &r));
    k.y = dt_keep(dt_from(label, DT_SHAPE(64), .dtype = DT_I64));
    dt_ddp *d = dt_ddp_new(k.m, c, .shard = sharded, .bucket_mb = 4);
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
        if (rank == 0) printf("rate %.9g\n", (double)(n * wide.items * world) / (now() - t)), fflush(stdout);
    }
    dt_ddp_memory u = dt_ddp_get_memory(d);
    if (rank == 0) printf("memory %lld\n", (long long)(u.parameters + u.gradients + u.masters + u.states + u.buckets));
    dt_ddp_free(d);
    dt_comm_free(c);
    return dt_check("bench_shard");
}
int main(int argc, char **argv)
{
    enum { SIDES = 6 };
    static side         s[SIDES];
    static const char  *who[SIDES] = { "ddp", "shard1", "shard2", "shard3", "fsdp2", "apart" };
    static const double least[SIDES] = { 0, 0.95, 0.95, 0.75, 0, 0 };
    if (argc == 4 && !strcmp(argv[1], "--worker")) {
        sharded = atoi(argv[2]);
        width = atoi(argv[3]);
        return dt_spawn(2, serve, NULL);
    }
    const char *python = option(argc, argv, "--python", "python3"), *size = option(argc, argv, "--width", "1024");
    int         rounds = atoi(option(argc, argv, "--rounds", "20")), bad = 0;
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 20;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < SIDES && !bad; i++) {
        char shard[4];
        snprintf(shard, sizeof shard, "%d", i < 4 ? i : 0);
        char *ours[] = { argv[0], (char *)"--worker", shard, (char *)size, NULL };
        char *theirs[] = { (char *)python, (char *)"bench/peer_shard.py", (char *)size, NULL };
        if (i == 4 && !*python) continue;
        bad = start(&s[i], i == 4 ? theirs : ours, 0);
        if (bad) fprintf(stderr, "bench_shard: %s did not start\n", who[i]);
    }
    for (int i = 1; i < SIDES && !bad; i++)
        for (int k = 0; k < LOSSES && !bad && s[i].pid; k++)
            if (i == 4 ? !(fabs(s[4].loss[k] - s[0].loss[k]) <= 2e-3 * (1 + fabs(s[0].loss[k])))
                       : s[i].loss[k] != s[0].loss[k]) {
                fprintf(stderr, "bench_shard: step %d: %s has the loss %.9g, ddp %.9g: expected the same\n", k, who[i],
                        s[i].loss[k], s[0].loss[k]);
                bad = 1;
            }
    for (int r = 0; r < rounds + 1 && !bad; r++) /* the first round is a warm-up */
        for (int i = 0; i < SIDES && !bad; i++) {
            side           *one = &s[(i + r) % SIDES];
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other sides' spinning threads go to sleep */
            if (!one->pid) continue;
            nanosleep(&pause, NULL);
            bad = turn(one, r ? r - 1 : 0);
        }
    for (int i = 0; i < SIDES; i++) finish(&s[i]);
    if (bad) return 1;
    for (int i = 1; i < SIDES; i++) {
        if (!s[i].pid) continue;
        double ratio = ratio_of(&s[i], &s[0], rounds);
        if (i == 4)
            for (int k = 0; k < 4; k++) {
                double x = ratio_of(&s[k], &s[4], rounds);
                printf("%s-fsdp2: dt %.0f samples/s, PyTorch FSDP2+gloo %.0f samples/s, ratio %.2f%s\n", who[k],
                       middle(s[k].rate, rounds), middle(s[4].rate, rounds), x,
                       k == 3 && x < 2 ? "  (below the target)" : "");
            }
        else
            printf("%s: dt %.0f samples/s, DDP %.0f samples/s, ratio %.2f%s; memory of a rank %.1f MiB, with DDP %.1f "
                   "MiB\n",
                   who[i], middle(s[i].rate, rounds), middle(s[0].rate, rounds), ratio,
                   ratio < least[i] ? "  (below the target)" : "", s[i].memory / 1048576, s[0].memory / 1048576);
    }
    return 0;
}
