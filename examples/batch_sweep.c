/* How large a batch? Larger batches use the machine better (images/s), and learn less from each image (epochs to an accuracy).
   Trains a conv net on the digits of data/digits over batch sizes, three times each, and draws both curves in one picture; the
   time to the accuracy, epochs x images / rate, is least in between.

   Build: cc -O2 -I.. batch_sweep.c -o batch_sweep -lm -lpthread       Run: ./batch_sweep --svg batch-sweep.svg

   The recipes: the same learning rate for all batches; the rate x batch/32, with a warm-up; LARS with its rate x sqrt(batch/32),
   with the same warm-up. What does not reach the accuracy has a gap. */
#define DT_IMPLEMENTATION
#include "dt_data.h"
#include "dt_nn.h"
#include "dt_plot.h"
#include "example_data.h"

#include <math.h>

static const char *const batch_sweep_help =
    "batch_sweep [options]: batch sizes against speed, and against the epochs to an accuracy\n"
    "    --data DIR          the digits: data/digits\n"
    "    --batches LIST      2,4,8,16,32,64,128,256,512\n"
    "    --target X          96: percent of the test images that must be right\n"
    "    --epochs N          40 at most               --seeds N     3: medians\n"
    "    --lr X              0.02: the same learning rate for all batches; the second recipe takes it x batch/32\n"
    "    --lars X            4: LARS takes it x sqrt(batch/32)\n"
    "    --warmup X          2: epochs in which the last two recipes raise the rate\n"
    "    --svg FILE          the picture: batch-sweep.svg\n";

enum { BATCHES = 16, RECIPES = 3, SEEDS = 9, SLICES = 4 };
static const char *const recipes[RECIPES] = { "the same learning rate", "rate x batch, warm-up", "LARS, warm-up" };
typedef struct sweep {
    dt_dataset *train, *test;
    double      target, lr, lars, warmup;
    int         epochs, seeds;
} sweep;

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_relu(dt_conv2d(m, "conv1", x, .out = 8, .kernel = 3, .pad = 1));
    x = dt_maxpool2d(dt_relu(dt_conv2d(m, "conv2", x, .out = 16, .kernel = 3, .pad = 1)), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}
static double accuracy(dt_model *m, dt_loader *exam)
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(exam, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y), DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_model_train(m);
    return n > 0 ? 100 * right / n : 0;
}
/* Trains until the accuracy is reached. Returns the epochs, or NaN; *rate: images/s of the steps. The accuracy is looked at four
   times an epoch, or after each step. */
static double train(const sweep *s, int recipe, int64_t batch, int seed, double *rate)
{
    dt_model     *m = dt_model_new(.seed = (uint64_t)seed);
    double        k = (double)batch / 32, full = recipe == 0 ? s->lr : recipe == 1 ? s->lr * k : s->lars * sqrt(k);
    dt_optimizer *opt = recipe == 2 ? dt_lars(m, .lr = full, .momentum = 0.9) : dt_sgd(m, .lr = full, .momentum = 0.9);
    dt_loader *in = dt_loader_new(s->train, .batch = batch, .shuffle = true, .drop_last = true, .seed = (uint64_t)seed);
    dt_loader *exam = dt_loader_new(s->test, .batch = 500);
    int64_t    each = dt_loader_batches(in), look = each / SLICES ? each / SLICES : 1, step = 0, images = 0;
    int64_t    rise = recipe ? (int64_t)(s->warmup * (double)each) : 0;
    double     found = NAN, seconds = 0;
    for (int epoch = 0; epoch < s->epochs && !(found > 0) && !dt_error(); epoch++)
        for (dt_batch b; !(found > 0) && dt_loader_next(in, &b);) {
            uint64_t t0 = dt_trace_now();
            if (rise)
                dt_optimizer_set_lr(opt, -1,
                                    step >= rise ? full : full / k + (full - full / k) * (double)step / (double)rise);
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
            dt_step(opt);
            if (step++) seconds += 1e-9 * (double)(dt_trace_now() - t0), images += b.n; /* the first one allocates */
            if (step % look == 0 && accuracy(m, exam) >= s->target) found = (double)step / (double)each;
        }
    *rate = seconds > 0 ? (double)images / seconds : 0;
    if (dt_error_code() == DT_ERR_NUMERIC)
        dt_error_clear(), dt_end(); /* the loss is not finite: this rate is too large */
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_optimizer_free(opt);
    dt_model_free(m);
    return found;
}
static int ascending(const void *a, const void *b) /* NaN last */
{
    double x = *(const double *)a, y = *(const double *)b;
    return isnan(x) || isnan(y) ? isnan(x) - isnan(y) : (x > y) - (x < y);
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ascending);
    return v[n / 2];
}
static int draw(const char *path, int n, const double *batch, const double *rate, double (*epochs)[BATCHES],
                const double *best)
{
    dt_series series[1 + RECIPES];
    memset((void *)series, 0, sizeof series);
    series[0].name = "images/s";
    series[0].x = batch, series[0].y = rate, series[0].n = n, series[0].dots = true;
    for (int r = 0; r < RECIPES; r++) {
        series[1 + r].name = recipes[r];
        series[1 + r].x = batch, series[1 + r].y = epochs[r], series[1 + r].n = n;
        series[1 + r].right = series[1 + r].dots = true;
    }
    dt_plot p = { .title = "the machine likes large batches, training small ones; line: the least time to the accuracy",
                  .x_label = "batch",
                  .y_label = "images/s",
                  .right_label = "epochs to the accuracy",
                  .series = series,
                  .nseries = 1 + RECIPES,
                  .mark = best,
                  .nmarks = best ? 1 : 0,
                  .log_x = true };
    return dt_svg_plot(path, &p);
}
int main(int argc, char **argv)
{
    static double batch[BATCHES], rate[BATCHES], epochs[RECIPES][BATCHES];
    sweep         s;
    int           n = 0, done = example_options(argc, argv, batch_sweep_help);
    double        least = INFINITY, best = 0;
    const char   *svg = example_option(argc, argv, "--svg", "batch-sweep.svg"),
               *list = example_option(argc, argv, "--batches", "2,4,8,16,32,64,128,256,512");
    if (done >= 0) return done;
    s.target = atof(example_option(argc, argv, "--target", "96"));
    s.epochs = atoi(example_option(argc, argv, "--epochs", "40"));
    s.seeds = atoi(example_option(argc, argv, "--seeds", "3"));
    s.lr = atof(example_option(argc, argv, "--lr", "0.02"));
    s.lars = atof(example_option(argc, argv, "--lars", "4"));
    s.warmup = atof(example_option(argc, argv, "--warmup", "2"));
    example_digits(
        example_option(argc, argv, "--data", example_has_digits("../data/digits") ? "../data/digits" : "data/digits"),
        1, 8, 1, &s.train, &s.test);
    if (dt_error()) return dt_check("batch_sweep");
    int64_t images = dt_dataset_len(s.train);
    for (const char *at = list; *at && n < BATCHES; n++) {
        char *end;
        batch[n] = (double)strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || batch[n] < 1 || batch[n] > (double)images)
            return fprintf(stderr, "batch_sweep: --batches %s: expected numbers from 1 to %lld, such as 16,64,256\n",
                           list, (long long)images),
                   1;
        at = *end ? end + 1 : end;
    }
    if (s.seeds < 1 || s.seeds > SEEDS || s.epochs < 1 || !(s.target > 0 && s.target <= 100))
        return fprintf(stderr, "batch_sweep: expected --seeds 1 to %d, --epochs 1 or more, --target in percent\n",
                       SEEDS),
               1;
    printf("%6s %10s", "batch", "images/s");
    for (int r = 0; r < RECIPES; r++) printf("  %-24s", recipes[r]);
    printf("\n%17s", "");
    for (int r = 0; r < RECIPES; r++) printf("  %-24s", "epochs   seconds");
    printf("\n");
    for (int i = 0; i < n && !dt_error(); i++) {
        double speed[RECIPES * SEEDS], found[SEEDS];
        for (int r = 0; r < RECIPES; r++) {
            for (int k = 0; k < s.seeds; k++)
                found[k] = train(&s, r, (int64_t)batch[i], k + 1, &speed[r * s.seeds + k]);
            epochs[r][i] = median(found, s.seeds);
        }
        rate[i] = median(speed, RECIPES * s.seeds);
        printf("%6.0f %10.0f", batch[i], rate[i]);
        for (int r = 0; r < RECIPES; r++) {
            double seconds = epochs[r][i] * (double)images / rate[i];
            if (seconds < least) least = seconds, best = batch[i];
            if (epochs[r][i] > 0) printf("  %6.2f   %7.3f        ", epochs[r][i], seconds);
            else printf("  %-24s", "not reached");
        }
        printf("\n");
        fflush(stdout);
    }
    if (least < INFINITY)
        printf("the least time to %g %% of the test images: batch %.0f, %.3f s\n", s.target, best, least);
    if (!dt_error() && !draw(svg, n, batch, rate, epochs, least < INFINITY ? &best : NULL))
        printf("the picture: %s\n", svg);
    dt_dataset_free(s.train);
    dt_dataset_free(s.test);
    return dt_check("batch_sweep");
}
