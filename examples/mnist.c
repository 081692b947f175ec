/* A convolutional network on MNIST or Fashion-MNIST or, if neither is installed, the digits in data/digits.

   Build: cc -O2 -I.. mnist.c -o mnist -lm -lpthread        Run: ./mnist --epochs 5 --opt-level O2
   On 4 processes of this machine: ./mnist --nproc 4; or dtrun -n 4 ./mnist, mpirun -n 4 ./mnist
   On two machines with 4 processes each: set MASTER_ADDR, MASTER_PORT and DT_TOKEN_FILE on both, then run
   ./mnist --nodes 2 --nproc 4 --nr 0 on the first and --nr 1 on the second
   On processes that may die, and others join: dtrun --min 2 --max 4 -n 4 ./mnist --elastic (docs/elastic.md) */
#define DT_IMPLEMENTATION
#include "dt_data.h"
#include "dt_dist.h"
#include "dt_elastic.h"
#include "dt_mpi.h"
#include "dt_nccl.h"
#include "dt_plot.h"
#include "example_data.h"

static const char *const mnist_help =
    "mnist [options]: a conv net on MNIST, Fashion-MNIST or the digits in data/digits\n"
    "    --data DIR          a directory with MNIST's four IDX files (gzipped ones: build with -DDT_USE_ZLIB and -lz), or with the\n"
    "                        digits; default: the first of data/fashion, data/mnist, data/digits that exists\n"
    "    --epochs N          5                        --batch N     100 for each process\n"
    "    --lr X              0.01                     --seed N      1\n"
    "    --warmup N          epochs in which the rate rises from nearly 0; default 0     --lars        LARS instead of SGD\n"
    "    --workers N         2 loader threads         --sync-bn     batch norm statistics over all processes\n"
    "    --opt-level LEVEL   O0 to O3: mixed precision; default: f32 only     --dtype TYPE   f16 (default) or bf16\n"
    "    --device D          cpu (default); cuda: one GPU for each process of a machine; cuda:N: GPU N (docs/gpu.md)\n"
    "    --steps N           stop after N steps; default: after --epochs\n"
    "    --checkpoint DIR    save every epoch and at SIGTERM or Ctrl-C; resume from the newest checkpoint\n"
    "    --csv FILE          a log of every step      --svg FILE    the loss curve\n"
    "    --elastic           go on when processes die, and take new ones: under dtrun --min 1 --max 4 -n 4; on CPUs\n"
    "    --slots N           with --elastic: N batches a step, whoever computes them; 0 (default): one of each process\n"
    "    --nproc N           processes on this machine (--gpus N is the same); without it: as the launcher says, or one\n"
    "    --nodes N           machines                 --nr N        the number of this one, from 0\n";

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_conv2d(m, "conv2", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn2", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}

/* Opens the training and test images of dir, or if it is NULL of the first default directory that has some; returns the
   directory. */
static const char *open_images(const char *dir, bool say, dt_dataset **train, dt_dataset **test)
{
    static const char *const known[] = { "data/fashion", "data/mnist", "../data/fashion", "../data/mnist" };
    for (int i = 0; i < 4 && !dir; i++)
        if (example_has(known[i], "train-images-idx3-ubyte")) dir = known[i];
    if (!dir) {
        dir = example_has_digits("../data/digits") ? "../data/digits" : "data/digits";
        if (say) fprintf(stderr, "no images in data/fashion or data/mnist (make data downloads some): using %s\n", dir);
        example_digits(dir, 1, 28, 3, train, test);
    } else if (example_has_digits(dir)) {
        example_digits(dir, 1, 28, 3, train, test);
    } else {
        *train = dt_mnist_open(dir, DT_TRAIN);
        *test = dt_mnist_open(dir, DT_TEST);
    }
    return dir;
}

static double accuracy(dt_model *m, dt_ddp *ddp, dt_loader *in) /* over the test images of all ranks; ddp NULL: of this one */
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        dt_tensor *hit = dt_eq(dt_argmax(net(m, b.x), .dims = DT_DIM(1)), b.y);
        right += dt_item(dt_sum(dt_cast(hit, DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_model_train(m);
    return ddp ? dt_ddp_mean(ddp, n > 0 ? right / n : 0, n) : right / n;
}

static dt_progress *display(int argc, char **argv, int rank, int64_t epochs, int64_t steps, int64_t start)
{
    return dt_progress_new(.epochs = (int)epochs, .steps = steps, .unit = "images", .quiet = rank > 0,
                           .csv = rank ? NULL : example_option(argc, argv, "--csv", NULL),
                           .svg = rank ? NULL : example_option(argc, argv, "--svg", NULL), .start_step = start);
}
static int trainer(void *args)
{
    int         argc = ((example_args *)args)->argc;
    char      **argv = ((example_args *)args)->argv;
    example_team t;
    memset(&t, 0, sizeof t);
    t.elastic = example_flag(argc, argv, "--elastic");
    dt_comm    *comm = t.comm = t.elastic ? NULL : example_comm(argc, argv);
    int         rank = comm ? dt_comm_rank(comm) : 0, world = comm ? dt_comm_size(comm) : 1;
    if (!comm && !t.elastic) return 1;
    dt_device  *dev = example_device(argc, argv, rank, comm ? dt_comm_local_rank(comm) : 0);
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL);
    int64_t     epochs = atoi(example_option(argc, argv, "--epochs", "5")),
            steps = atoi(example_option(argc, argv, "--steps", "0")),
            size = atoi(example_option(argc, argv, "--batch", "100")), epoch = 0, step = 0;
    uint64_t    seed = (uint64_t)atoi(example_option(argc, argv, "--seed", "1"));
    int         workers = atoi(example_option(argc, argv, "--workers", "2")), stop = 0;
    bool        bf16 = !strcmp(example_option(argc, argv, "--dtype", "f16"), "bf16");
    int         slots = t.elastic ? atoi(example_option(argc, argv, "--slots", "0")) : 0;
    double      mean = 0, std = 1;
    dt_dataset *train = NULL, *test = NULL;
    const char *from = open_images(example_option(argc, argv, "--data", NULL), rank == 0, &train, &test);
    dt_dataset_mean_std(train, &mean, &std, 1);
    dt_loader *in = dt_loader_new(train, .batch = size, .shuffle = true, .seed = seed, .rank = rank, .world = world,
                                  .workers = workers, .mean = { mean }, .std = { std }, .device = dev);
    dt_loader *exam = dt_loader_new(test, .batch = 500, .rank = rank, .world = world, .no_pad = true,
                                    .workers = workers, .mean = { mean }, .std = { std }, .device = dev);

    dt_model      *m = dt_model_new(.seed = seed, .device = dev);
    double         lr = atof(example_option(argc, argv, "--lr", "0.01")),
                   warm = atof(example_option(argc, argv, "--warmup", "0")) * (double)dt_loader_batches(in);
    dt_optimizer  *opt = example_flag(argc, argv, "--lars") ? dt_lars(m, .lr = lr, .momentum = 0.9) :
                                                              dt_sgd(m, .lr = lr, .momentum = 0.9);
    dt_amp        *amp = level ? dt_amp_new(m, .level = level, .dtype = bf16 ? DT_BF16 : DT_F16) : NULL;
    dt_checkpoint *c = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .amp = amp, .every_epochs = 1,
                                               .signals = !t.elastic) : NULL;
    if (c) dt_loader_checkpoint(in, c); /* the position in the data is saved and restored too */
    t.opt = opt, t.in = in;
    dt_elastic_opts o = { .checkpoint = c };
    o.ddp.sync_batchnorm = example_flag(argc, argv, "--sync-bn");
    o.ddp.slots = slots;
    if (!t.elastic) example_team_begin(&t, m, o);
    if (c && !getenv("DT_ELASTIC_JOIN") && dt_checkpoint_resume(c, &epoch, &step) > 0 && rank == 0)
        fprintf(stderr, "resuming from step %lld in %s\n", (long long)step, dir);
    if (t.elastic) example_team_begin(&t, m, o), step = 0; /* from the position that was resumed; it counts its own steps */
    dt_progress *p = t.elastic ? NULL : display(argc, argv, rank, epochs, dt_loader_batches(in), step);

    while (example_epoch(&t) < epochs && !stop)
        for (dt_batch b; !stop && example_next(&t, &b); ) {
            if ((double)step < warm) dt_optimizer_set_lr(opt, -1, lr * (double)(step + 1) / warm);
            dt_tensor *loss = dt_cross_entropy(net(m, b.x), b.y);
            double     value = dt_item(loss);
            if (amp)
                dt_amp_backward(amp, loss);
            else
                dt_backward(loss);
            if (!example_step(&t)) continue;
            step = t.elastic ? dt_elastic_steps(t.e) : step + 1;
            rank = example_rank(&t), world = example_size(&t); /* elastic: another process may be the first one now */
            if (!p && rank == 0) /* elastic: also the one that leads after the first has died */
                p = display(argc, argv, rank, epochs, 0, step - 1);
            dt_progress_step(p, value, .items = (double)(b.n * (slots ? slots : world)), .lr = dt_optimizer_lr(opt, 0),
                             .scale = amp ? dt_amp_scale(amp, 0) : 0);
            if (example_epoch(&t) > b.epoch) { /* this was the last batch of the epoch */
                if (!t.elastic || rank == 0) dt_progress_result(p, "test accuracy", accuracy(m, t.ddp, exam));
                dt_progress_epoch(p);
            }
            if (c) stop = dt_checkpoint_tick(c, example_epoch(&t), step);
            if (step == steps) stop = 1;
        }
    if (c) dt_checkpoint_finish(c, example_epoch(&t), step);
    dt_progress_free(p);
    char line[256];
    if (!dt_error() && rank == 0 && dt_loader_report(in, 0, line, sizeof line)) fprintf(stderr, "%s\n", line);
    double right = t.elastic && rank ? 0 : accuracy(m, t.ddp, exam);
    if (!dt_error() && rank == 0)
        printf("test accuracy %.2f %% after %lld steps of %d process%s on %s\n", 100 * right, (long long)step, world,
               world > 1 ? "es" : "", from);

    example_team_end(&t);
    dt_checkpoint_free(c);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(comm);
    return dt_check("mnist");
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, mnist_help);
    return done >= 0 ? done : example_start(argc, argv, trainer);
}
