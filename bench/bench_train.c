/* Compares training and inference with PyTorch in one run: make bench-train

       bench_train [--threads 1,2] [--rounds N] [--models mlp,convnet,...] [--work train,infer] [--python PATH]

   For each model three processes do the same steps on the same data: this program, PyTorch with default settings
   ("default") and PyTorch with its fastest settings ("best"). First the losses of five steps must agree. Then the
   processes take turns of half a second each; the result is the median of the ratios of the turns. */
#define DT_IMPLEMENTATION
#include "nets.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "sides.h"

/* ---- dt's side: follows the protocol of sides.h, as peer_train.py does */
static int run_worker(const work *w, int threads, int infer)
{
    worker k;
    char   line[64];
    dt_set_num_threads(threads);
    begin(&k, w, infer);
    printf("begin\n");
    fflush(stdout);
    for (int i = 0; i < LOSSES; i++) {
        double value = 0;
        if (infer) {
            dt_tensor *y = w->net(k.m, k.x);
            value = sqrt(dt_item(dt_sum(dt_mul(y, y))));
            dt_end();
        } else {
            value = one_step(&k);
        }
        printf("loss %.9g\n", value);
        fflush(stdout);
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        double t = now();
        int    n = 0;
        while (now() - t < 0.5) one_step(&k), n++;
        printf("rate %.9g\n", (double)n * (double)w->items / (now() - t));
        fflush(stdout);
    }
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    printf("memory %.3f\n", (double)u.ru_maxrss / 1024);
    return dt_check("bench_train");
}

/* ---- the driver */
static int compare(const work *w, int threads, int infer, int rounds, const char *self, const char *python)
{
    char         count[16], mode[3][16], peer[512];
    const char  *what = infer ? "infer" : "train";
    static side  side3[3];
    int          bad = 0, bf16 = !strcmp(w->mode, "bf16"), nsides = bf16 ? 2 : 3;
    snprintf(count, sizeof count, "%d", threads);
    snprintf(peer, sizeof peer, "bench/peer_train.py");
    snprintf(mode[1], sizeof mode[1], "%s", bf16 ? "bf16" : "default");
    snprintf(mode[2], sizeof mode[2], "best");
    memset(side3, 0, sizeof side3);
    for (int i = 0; i < nsides && !bad; i++) {
        char *ours[] = {
            (char *)self, (char *)"--worker", (char *)w->name, (char *)w->mode, count, (char *)what, NULL
        };
        char *theirs[] = { (char *)python, peer, (char *)w->name, count, mode[i], (char *)what, NULL };
        bad = start(&side3[i], i ? theirs : ours, i == 2);
        if (bad) fprintf(stderr, "bench_train: %s: side %d did not start\n", w->name, i);
    }
    for (int k = 0; k < LOSSES && !bad; k++)
        for (int i = 1; i < nsides && !bad; i++)
            if (!(fabs(side3[0].loss[k] - side3[i].loss[k]) <= (bf16 ? 3e-2 : 2e-4) * (1 + fabs(side3[i].loss[k])))) {
                fprintf(stderr, "bench_train: %s: step %d: dt %.9g, PyTorch %.9g: expected the same loss\n", w->name, k,
                        side3[0].loss[k], side3[i].loss[k]);
                bad = 1;
            }
    for (int r = 0; r < rounds + 1 && !bad; r++) /* the first round is a warm-up */
        for (int i = 0; i < nsides && !bad; i++) {
            struct timespec pause = { 0, 200 * NS_PER_MS }; /* the other sides' spinning threads go to sleep */
            nanosleep(&pause, NULL);
            bad = turn(&side3[(i + r) % nsides], r ? r - 1 : 0);
        }
    for (int i = 0; i < nsides; i++) finish(&side3[i]);
    if (bad) return 1;
    for (int i = 1; i < nsides; i++)
        printf("%s%s-%s-%dt: dt %.0f %s, PyTorch %s %.0f %s, ratio %.2f%s\n", w->name, bf16 ? "-bf16" : "", what,
               threads, middle(side3[0].rate, rounds), w->unit, mode[i], middle(side3[i].rate, rounds), w->unit,
               ratio_of(&side3[0], &side3[i], rounds),
               ratio_of(&side3[0], &side3[i], rounds) < w->least[i - 1] ? "  (below the target)" : "");
    printf("%s%s-%s-%dt: peak memory dt %.0f MiB, PyTorch %.0f MiB, ratio %.2f%s\n", w->name, bf16 ? "-bf16" : "", what,
           threads, side3[0].memory, side3[1].memory, side3[0].memory / side3[1].memory,
           side3[0].memory > 0.7 * side3[1].memory ? "  (above the target)" : "");
    printf("%s%s-%s-%dt: first step begins after dt %.0f ms, PyTorch %.0f ms%s; ends after %.0f ms, %.0f ms\n", w->name,
           bf16 ? "-bf16" : "", what, threads, 1e3 * side3[0].begin, 1e3 * side3[1].begin,
           side3[0].begin > 0.05 ? "  (above the target)" : "", 1e3 * side3[0].first, 1e3 * side3[1].first);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "--worker")) {
        for (int i = 0; i < NWORKS; i++)
            if (!strcmp(works[i].name, argv[2]) && !strcmp(works[i].mode, argv[3]))
                return run_worker(&works[i], atoi(argv[4]), !strcmp(argv[5], "infer"));
        return 1;
    }
    const char *threads = option(argc, argv, "--threads", "1,2"), *models = option(argc, argv, "--models", NULL);
    const char *kinds = option(argc, argv, "--work", "train,infer");
    int         rounds = atoi(option(argc, argv, "--rounds", "7")), failed = 0;
    if (rounds < 1 || rounds >= MAX_ROUNDS) rounds = 7;
    signal(SIGPIPE, SIG_IGN);
    for (int t = 1; t <= 2; t++)
        for (int infer = 0; infer < 2; infer++)
            for (int i = 0; i < NWORKS; i++) {
                char name[32];
                snprintf(name, sizeof name, "%s%s", works[i].name, strcmp(works[i].mode, "bf16") ? "" : "-bf16");
                if (!strchr(threads, '0' + t) || !strstr(kinds, infer ? "infer" : "train")) continue;
                if (models && !strstr(models, name)) continue;
                if (infer && !strcmp(works[i].mode, "bf16")) continue;
                failed |= compare(&works[i], t, infer, rounds, argv[0], option(argc, argv, "--python", "python3"));
            }
    return failed;
}
