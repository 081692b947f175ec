/* A ResNet split over several ranks: each has some of the layers, and micro-batches go through them like through a pipeline.

   Build: cc -O2 -I.. pipeline.c -o pipeline -lm -lpthread     Run: ./pipeline --ranks 2 --schedule 1f1b --micro 8
   Or under a launcher, without --ranks: dtrun -n 4 ./pipeline */
#define DT_IMPLEMENTATION
#include "dt_data.h"
#include "dt_mpi.h"
#include "dt_pipe.h"
#include "dt_plot.h"
#include "example_data.h"

static const char *const pipeline_help =
    "pipeline [options]: a ResNet split over several ranks\n"
    "    --ranks N     2               --schedule S   1f1b, gpipe, interleaved (two stages on each rank) or zb_h1\n"
    "    --micro N     8: micro-batches of a batch    --batch N   64     --epochs N   1      --steps N   all\n"
    "    --depth N     20: 6n+2        --lr X   0.05\n"
    "    --estimate    cut by FLOPs and bytes instead of measured times: for models too large for one rank\n"
    "    --data DIR    the digits, default data/digits, enlarged to 32 x 32\n"
    "    --run FILE    a picture of the last batch as it ran; default pipeline-run.svg\n"
    "    --planned FILE  and as planned with the measured times; default pipeline-planned.svg\n";

static dt_tensor *residual(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = dt_batchnorm2d(m, "downsample.1", skip);
    }
    return dt_batchnorm2d(m, "bn2", y, .act = DT_ACT_RELU, .add = skip);
}
/* Nothing here says which rank computes what: .balance cuts it. */
static dt_tensor *class_scores(dt_model *m, dt_tensor *x, int depth)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int s = 0; s < 3; s++)
        for (int b = 0; b < (depth - 2) / 6; b++) {
            dt_scope_begin(m, "layer%d.%d", s + 1, b);
            x = residual(m, x, 16 << s, s && !b ? 2 : 1);
            dt_scope_end(m);
        }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
}
static dt_tensor *class_loss(dt_model *m, dt_tensor *x, dt_tensor *y, void *depth)
{
    return dt_cross_entropy(class_scores(m, x, *(int *)depth), y);
}
static dt_tensor *hits(dt_model *m, dt_tensor *x, dt_tensor *y, void *depth)
{
    return dt_mean(dt_cast(dt_eq(dt_argmax(class_scores(m, x, *(int *)depth), .dims = DT_DIM(1)), y), DT_F32));
}
static double right_part(dt_pipeline *p, dt_model *m, dt_loader *in, int *depth)
{
    double sum = 0, n = 0, part = 0;
    dt_model_eval(m);
    for (dt_batch b; dt_loader_next(in, &b); dt_end(), n++)
        if (!dt_pipeline_forward(p, hits, depth, b.x, b.y, &part)) sum += part;
    dt_model_train(m);
    return n > 0 ? sum / n : 0;
}
static void draw(dt_pipeline *p, int rank, const char *as_run, const char *as_planned)
{
    dt_pipe_timing *run = dt_pipeline_timing(p), *planned = dt_pipeline_planned(p, run); /* all ranks */
    if (run && planned && rank == 0) {
        if (dt_pipe_svg(as_run, dt_pipeline_schedule(p), run) || dt_pipe_svg(as_planned, dt_pipeline_schedule(p), planned))
            dt_fail(DT_ERR_FILE, "%s", dt_plan_error());
        printf("a batch took %.1f ms, %.0f %% idle; planned with the measured times: %.1f ms, %.0f %% idle\n", 1e3 * run->seconds,
               100 * run->bubble, 1e3 * planned->seconds, 100 * planned->bubble);
    }
    dt_pipe_timing_free(run);
    dt_pipe_timing_free(planned);
}

static int stage_main(void *args)
{
    int          argc = ((example_args *)args)->argc;
    char       **argv = ((example_args *)args)->argv;
    const char  *name = example_option(argc, argv, "--schedule", "1f1b");
    dt_pipe_kind kind = dt_pipe_kind_find(name);
    int          depth = atoi(example_option(argc, argv, "--depth", "20")), micro = atoi(example_option(argc, argv, "--micro", "8"));
    int64_t      batch = atoi(example_option(argc, argv, "--batch", "64")), step = 0;
    int64_t      epochs = atoi(example_option(argc, argv, "--epochs", "1")), limit = atoi(example_option(argc, argv, "--steps", "0"));
    if (kind == DT_PIPE_KIND_COUNT || depth < 8 || (depth - 2) % 6) {
        fprintf(stderr, "pipeline: --schedule must be 1f1b, gpipe, interleaved or zb_h1, --depth 6n+2: 8, 14, 20, 32 ...\n");
        return 1;
    }
    dt_comm *comm = example_comm(argc, argv);
    if (!comm) return 1;
    int         rank = dt_comm_rank(comm);
    dt_dataset *train, *test;
    example_digits(example_option(argc, argv, "--data", "data/digits"), 3, 32, 4, &train, &test);
    /* every rank reads the same batches: only the first stage uses x, only the last one y */
    dt_loader    *in = dt_loader_new(train, .batch = batch, .shuffle = true, .drop_last = true, .seed = 1);
    dt_loader    *exam = dt_loader_new(test, .batch = batch, .drop_last = true);
    int64_t       steps = dt_loader_batches(in);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = atof(example_option(argc, argv, "--lr", "0.05")), .weight_decay = 5e-4, .momentum = 0.9);
    dt_pipeline  *p = dt_pipeline_new(m, comm, .micro = micro, .schedule = kind,
                                      .balance = example_flag(argc, argv, "--estimate") ? DT_BALANCE_ESTIMATED : DT_BALANCE_MEASURED);
    dt_progress  *bar = dt_progress_new(.epochs = (int)epochs, .steps = limit && limit < steps ? limit : steps, .unit = "images", .quiet = rank > 0);
    for (int stop = 0; dt_loader_epoch(in) < epochs && !stop && !dt_error();)
        for (dt_batch b; !stop && dt_loader_next(in, &b);) {
            double loss = 0;
            dt_pipeline_backward(p, class_loss, &depth, b.x, b.y, &loss);
            dt_step(opt);
            if (++step == 1 && rank == 0 && !dt_error()) { /* the cuts are known */
                char text[8192];
                dt_pipeline_describe(p, text, sizeof text);
                fputs(text, stdout);
                fflush(stdout);
            }
            dt_progress_step(bar, loss, .items = (double)b.n, .lr = dt_optimizer_lr(opt, 0));
            stop = step == limit || dt_error() != NULL;
        }
    if (!dt_error()) draw(p, rank, example_option(argc, argv, "--run", "pipeline-run.svg"), example_option(argc, argv, "--planned", "pipeline-planned.svg"));
    double right = dt_error() ? 0 : right_part(p, m, exam, &depth);
    dt_progress_free(bar);
    if (!dt_error() && rank == 0)
        printf("ResNet-%d in %d stages on %d ranks, %s, %d micro-batches: test accuracy %.2f %% after %lld steps\n", depth,
               dt_pipeline_stages(p), dt_comm_size(comm), dt_pipe_kind_name(kind), micro, 100 * right, (long long)step);
    int rc = dt_check("pipeline");
    dt_pipeline_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(comm);
    return rc;
}
int main(int argc, char **argv)
{
    example_args a = { argc, argv, NULL };
    int          done = example_options(argc, argv, pipeline_help);
    const char  *ranks = example_option(argc, argv, "--ranks", getenv("RANK") || getenv("OMPI_COMM_WORLD_RANK") ? "0" : "2");
    if (done >= 0) return done;
    int          rc = atoi(ranks) > 0 ? dt_spawn(atoi(ranks), stage_main, &a) : stage_main(&a);
    if (rc < 0) fprintf(stderr, "%s: %s\n", argv[0], dt_comm_error(NULL));
    return rc != 0;
}
