/* A parameter server under six disciplines, with one worker that is 4 times slower than the others: what do they cost, and what do
   they gain? Trains a conv net on the digits of data/digits with 4 workers and 1 server, once for each discipline, and draws the
   loss over time of all runs in one picture.

   Build: cc -O2 -I.. param_server.c -o param_server -lm -lpthread        Run: ./param_server --svg disciplines.svg */
#define DT_IMPLEMENTATION
#include "dt_data.h"
#include "dt_serve.h"
#include "dt_plot.h"
#include "example_data.h"
#include <sys/mman.h>
#include <time.h>

static const char *const param_server_help =
    "param_server [options]: six disciplines of a parameter server, with one slow worker\n"
    "    --data DIR      data/digits            --batches N   500 for each run           --lr X    0.1\n"
    "    --wait X        15: a batch takes at least so many ms, on the slow worker 4 times as long. Waits, so that the number of\n"
    "                    cores does not matter\n"
    "    --svg FILE      the picture; default param_server.svg\n";

enum { WORKERS = 4, MODES = 6, POINTS = 20000 };
static const struct { const char *name; int mode; } runs[MODES] = {
    { "sync", DT_PS_SYNC }, { "3-sync", DT_PS_K_SYNC }, { "3-batch-sync", DT_PS_K_BATCH_SYNC },
    { "3-async", DT_PS_K_ASYNC }, { "3-batch-async", DT_PS_K_BATCH_ASYNC }, { "async", DT_PS_ASYNC }
};
typedef struct result { /* of a run; all ranks write to it */
    int64_t     begin, end; /* ns */
    int         n;          /* points */
    double      time[POINTS], loss[POINTS], accuracy;
    dt_ps_stats stats;
} result;
typedef struct shared { int run; result of[MODES]; } shared;
static shared *all;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_maxpool2d(dt_relu(dt_conv2d(m, "conv1", x, .out = 8, .kernel = 3, .pad = 1)), .kernel = 2);
    x = dt_maxpool2d(dt_relu(dt_conv2d(m, "conv2", x, .out = 16, .kernel = 3, .pad = 1)), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}
static double accuracy(dt_model *m, dt_dataset *test)
{
    dt_loader *exam = dt_loader_new(test, .batch = 500, .workers = 0);
    double     right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(exam, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y), DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_loader_free(exam);
    return n > 0 ? right / n : 0;
}
static int rank_main(void *args)
{
    int           argc = ((example_args *)args)->argc;
    char        **argv = ((example_args *)args)->argv;
    result       *r = &all->of[all->run];
    dt_comm      *c = dt_comm_init();
    dt_ps        *store = dt_ps_new(c, .servers = 1);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = atof(example_option(argc, argv, "--lr", "0.1")));
    dt_ps_model  *pm = dt_ps_attach(m, opt, store, .mode = runs[all->run].mode, .k = 3,
                                    .batches = atoi(example_option(argc, argv, "--batches", "500")));
    int           worker = dt_ps_worker(store);
    double        wait = 1e6 * atof(example_option(argc, argv, "--wait", "15")) * (worker == WORKERS - 1 ? 4 : 1);
    dt_dataset   *train = NULL, *test = NULL;
    dt_set_num_threads(1);
    if (worker < 0) dt_ps_serve(store);
    else {
        example_digits(example_option(argc, argv, "--data", example_has_digits("../data/digits") ? "../data/digits" : "data/digits"), 1, 28, 3,
                       &train, &test);
        dt_loader *in = dt_loader_new(train, .batch = 32, .shuffle = true, .workers = 0);
        dt_progress *p = dt_progress_new(.unit = "images", .quiet = true, .title = runs[all->run].name); /* for DT_REPORT=ps-%p.html */
        dt_ps_barrier(store);
        if (!worker) r->begin = now();
        for (int64_t n; (n = dt_ps_next_batch(pm)) >= 0;) {
            dt_batch   b;
            int64_t    start = now();
            if (!dt_loader_get(in, n, &b)) break;
            dt_tensor *loss = dt_cross_entropy(net(m, b.x), b.y);
            double     x = dt_item(loss);
            for (struct timespec ms = { 0, 1000000 }; (double)(now() - start) < wait && !dt_ps_model_cancelled(pm);) nanosleep(&ms, NULL);
            dt_backward(loss); /* if others have made the update meanwhile, it stops */
            dt_step(opt);
            int verdict = dt_ps_model_info(pm).verdict, k = verdict == DT_PS_USED || verdict == DT_PS_KEPT ? __atomic_fetch_add(&r->n, 1, __ATOMIC_RELAXED) : POINTS;
            dt_progress_step(p, x, .items = (double)b.n);
            if (k < POINTS) r->time[k] = 1e-9 * (double)(now() - r->begin), r->loss[k] = x;
        }
        dt_ps_collect(pm);
        dt_progress_free(p);
        if (!worker) {
            dt_ps_model_stats(pm, &r->stats);
            r->end = now();
            r->accuracy = accuracy(m, test);
        }
        dt_loader_free(in);
    }
    int bad = dt_check("param_server");
    dt_ps_detach(pm);
    bad |= dt_ps_free(store) != 0;
    dt_optimizer_free(opt);
    dt_model_free(m);
    return dt_comm_free(c) || bad;
}
enum { WINDOW = 50 };
static int draw(const char *path) /* the mean loss of the last WINDOW batches, over time */
{
    static double x[MODES][POINTS], y[MODES][POINTS];
    static dt_series s[MODES];
    for (int i = 0; i < MODES; i++) {
        result *r = &all->of[i];
        int     n = r->n < POINTS ? r->n : POINTS;
        for (int k = 1; k < n; k++) /* the workers wrote them nearly in order */
            for (int j = k; j > 0 && r->time[j] < r->time[j - 1]; j--) {
                double t = r->time[j], l = r->loss[j];
                r->time[j] = r->time[j - 1], r->loss[j] = r->loss[j - 1];
                r->time[j - 1] = t, r->loss[j - 1] = l;
            }
        for (int k = 0; k < n; k++) {
            int from = k < WINDOW ? 0 : k - WINDOW + 1;
            for (int j = from; j <= k; j++) y[i][k] += r->loss[j] / (k - from + 1);
            x[i][k] = r->time[k];
        }
        s[i].name = runs[i].name;
        s[i].x = x[i];
        s[i].y = y[i];
        s[i].n = n;
    }
    dt_plot p = { .title = "4 workers, one of them 4 times slower: the loss of six disciplines", .x_label = "seconds", .y_label = "loss",
                  .series = s, .nseries = MODES, .log_y = DT_YES };
    return dt_svg_plot(path, &p) ? dt_check("param_server") : 0;
}
int main(int argc, char **argv)
{
    example_args a = { argc, argv, NULL };
    int          done = example_options(argc, argv, param_server_help);
    if (done >= 0) return done;
    all = (shared *)mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return perror("param_server"), 1;
    printf("discipline      updates/s  gradients/s  staleness  wasted  accuracy\n");
    for (all->run = 0; all->run < MODES; all->run++) {
        result *r = &all->of[all->run];
        if (dt_spawn(WORKERS + 1, rank_main, &a)) return 1;
        double s = 1e-9 * (double)(r->end - r->begin), used = (double)r->stats.used;
        printf("%-15s %9.1f %12.1f %10.2f %7lld %8.1f %%\n", runs[all->run].name, (double)r->stats.version / s, used / s,
               used > 0 ? (double)r->stats.staleness / used : 0, (long long)(r->stats.cancelled + r->stats.stale), 100 * r->accuracy);
        fflush(stdout);
    }
    const char *svg = example_option(argc, argv, "--svg", "param_server.svg");
    if (draw(svg)) return 1;
    printf("the picture: %s\n", svg);
    return 0;
}
