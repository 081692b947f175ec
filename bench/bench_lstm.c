/* Compares the training of a recurrent layer with PyTorch in one run: make bench-lstm

       bench_lstm [--threads 1,2] [--rounds N] [--cells lstm,gru] [--hidden 64,128,...] [--python PATH]

   For each size two processes do the same steps on the same data: 32 sequences of 32 time steps, as many inputs as units, forward,
   backward and SGD. First the losses of five steps must agree. Then the processes take turns of half a second each; the result is
   the median of the ratios of the turns. */
#define DT_IMPLEMENTATION
#include "dt_layers.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "sides.h"

enum { BATCH = 32, STEPS = 32 };

static double one_step(dt_model *m, dt_optimizer *opt, dt_tensor *x, int gru, int64_t hidden)
{
    dt_tensor *y = gru ? dt_gru(m, "r", x, .hidden = hidden) : dt_lstm(m, "r", x, .hidden = hidden);
    dt_tensor *l = dt_mean(dt_mul(y, y));
    dt_backward(l);
    double loss = dt_item(l);
    dt_step(opt);
    return loss;
}
static int run_worker(int gru, int64_t hidden, int threads)
{
    dt_rng r;
    char   line[64];
    dt_set_num_threads(threads);
    dt_rng_seed(&r, 2);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_tensor    *x = dt_keep(dt_normal(0, 1, DT_SHAPE(STEPS, BATCH, hidden), .rng = &r));
    printf("begin\n");
    fflush(stdout);
    for (int i = 0; i < LOSSES; i++) {
        printf("loss %.9g\n", one_step(m, opt, x, gru, hidden));
        fflush(stdout);
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double t = now();
        int    n = 0;
        while (now() - t < 0.5) one_step(m, opt, x, gru, hidden), n++;
        printf("rate %.9g\n", (double)n * BATCH / (now() - t));
        fflush(stdout);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("memory %.3f\n", (double)u.ru_maxrss / 1024);
    return dt_check("bench_lstm");
}
static int compare(const char *cell, const char *hidden, const char *threads, int rounds, const char *self, const char *python)
{
    char         batch[16], steps[16], peer[] = "bench/peer_lstm.py";
    static side  two[2];
    int          bad = 0;
    snprintf(batch, sizeof batch, "%d", BATCH);
    snprintf(steps, sizeof steps, "%d", STEPS);
    memset(two, 0, sizeof two);
    char *ours[] = { (char *)self, (char *)"--worker", (char *)cell, (char *)hidden, (char *)threads, NULL };
    char *theirs[] = { (char *)python, peer, (char *)cell, (char *)hidden, batch, steps, (char *)threads, NULL };
    for (int i = 0; i < 2 && !bad; i++) {
        bad = start(&two[i], i ? theirs : ours, 0);
        if (bad) fprintf(stderr, "bench_lstm: %s %s: side %d did not start\n", cell, hidden, i);
    }
    for (int k = 0; k < LOSSES && !bad; k++)
        if (!(fabs(two[0].loss[k] - two[1].loss[k]) <= 2e-5 * (1 + fabs(two[1].loss[k])))) {
            fprintf(stderr, "bench_lstm: %s %s: step %d: dt %.9g, PyTorch %.9g: expected the same loss\n", cell, hidden, k, two[0].loss[k],
                    two[1].loss[k]);
            bad = 1;
        }
    for (int r = 0; r < rounds + 1 && !bad; r++) /* the first round is a warm-up */
        for (int i = 0; i < 2 && !bad; i++) {
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other side's spinning threads go to sleep */
            nanosleep(&pause, NULL);
            bad = turn(&two[(i + r) % 2], r ? r - 1 : 0);
        }
    for (int i = 0; i < 2; i++) finish(&two[i]);
    if (bad) return 1;
    double ratio = ratio_of(&two[0], &two[1], rounds), least = atoi(hidden) <= 256 ? 1.2 : 1.0;
    printf("%s-%s-%st: dt %.0f sequences/s, PyTorch %.0f sequences/s, ratio %.2f%s\n", cell, hidden, threads, middle(two[0].rate, rounds),
           middle(two[1].rate, rounds), ratio, ratio < least ? "  (below the target)" : "");
    fflush(stdout);
    return 0;
}
int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--worker")) return run_worker(!strcmp(argv[2], "gru"), atoi(argv[3]), atoi(argv[4]));
    static const char *const cells[] = { "lstm", "gru" }, *const sizes[] = { "64", "128", "256", "512", "1024" }, *const counts[] = { "1", "2" };
    const char *threads = option(argc, argv, "--threads", "1,2"), *cell = option(argc, argv, "--cells", "lstm,gru");
    const char *hidden = option(argc, argv, "--hidden", "64,128,256,512,1024");
    int         rounds = atoi(option(argc, argv, "--rounds", "5")), failed = 0;
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 5;
    signal(SIGPIPE, SIG_IGN);
    for (int t = 0; t < 2; t++)
        for (int c = 0; c < 2; c++)
            for (int s = 0; s < 5; s++)
                if (strstr(threads, counts[t]) && strstr(cell, cells[c]) && strstr(hidden, sizes[s]))
                    failed |= compare(cells[c], sizes[s], counts[t], rounds, argv[0], option(argc, argv, "--python", "python3"));
    return failed;
}
