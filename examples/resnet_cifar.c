/* ResNets on CIFAR-10 and CIFAR-100: depth 20, 32, 44, 56, 110 (He et al., 16-32-64 channels) or 18 (64-128-256-512).

   Build: cc -O2 -I.. resnet_cifar.c -o resnet_cifar -lm -lpthread     Run: ./resnet_cifar --depth 20 --epochs 10
   On several processes: ./resnet_cifar --nproc 2 --scale-lr --warmup 1; or dtrun -n 2, mpirun -n 2 (see mnist.c) */
#define DT_IMPLEMENTATION
#include "dt_data.h"
#include "dt_dist.h"
#include "dt_mpi.h"
#include "dt_nccl.h"
#include "dt_plot.h"
#include "example_data.h"

#include <sys/mman.h>
#include <unistd.h>

static const char *const resnet_cifar_help =
    "resnet_cifar [options]: ResNets on CIFAR-10 and CIFAR-100\n"
    "    --data DIR    CIFAR-10's binary files (data_batch_1.bin ...); default data/cifar-10-batches-bin, for CIFAR-100\n"
    "                  (train.bin, test.bin) data/cifar-100-binary. If the default does not exist: the digits in\n"
    "                  data/digits, enlarged four times, in grey\n"
    "    --classes N   10; CIFAR-100: 100, or 20 for the coarse classes\n"
    "    --depth N     20              --epochs N   10           --batch N   128 each    --lr X   0.1\n"
    "    --scale-lr    multiply the learning rate by the number of processes, as their batches form one large batch\n"
    "    --warmup X    0: epochs in which the learning rate rises linearly to its full value\n"
    "    --lars        for large batches                         --workers N  2 loader threads\n"
    "    --cutout N    0: side in pixels of a square of each image that is set to 0\n"
    "    --sync-bn     batch norm statistics over all processes\n"
    "    --device D    cpu (default); cuda: one GPU for each process of a machine; cuda:N: GPU N (docs/gpu.md)\n"
    "    --steps N     stop after N steps; default: after --epochs\n"
    "    --compare N   train with one process, then with N (batch and learning rate times N, one epoch of warm-up), and print\n"
    "                  both results side by side\n"
    "    --opt-level LEVEL   O0 to O3: mixed precision           --checkpoint DIR   save every epoch, resume\n"
    "    --csv FILE    a log of every step     --svg FILE   the loss curve     --summary   print the layers\n"
    "    --nproc N     processes on this machine (--gpus N is the same)    --nodes N   machines    --nr N   number of this one\n";

static dt_tensor *block(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1 || dt_size(x, 1) != out) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = dt_batchnorm2d(m, "downsample.1", skip);
    }
    return dt_batchnorm2d(m, "bn2", y, .act = DT_ACT_RELU, .add = skip);
}
static dt_tensor *resnet(dt_model *m, dt_tensor *x, int depth, int64_t classes)
{
    int stages = depth == 18 ? 4 : 3, blocks = depth == 18 ? 2 : (depth - 2) / 6, width = depth == 18 ? 64 : 16;
    x = dt_conv2d(m, "conv1", x, .out = width, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int s = 0; s < stages; s++)
        for (int b = 0; b < blocks; b++) {
            dt_scope_begin(m, "layer%d.%d", s + 1, b);
            x = block(m, x, width << s, s && !b ? 2 : 1);
            dt_scope_end(m);
        }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = classes);
}

static double accuracy(dt_model *m, dt_ddp *ddp, dt_loader *in, int depth, int64_t classes)
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        dt_tensor *hit = dt_eq(dt_argmax(resnet(m, b.x, depth, classes), .dims = DT_DIM(1)), b.y);
        right += dt_item(dt_sum(dt_cast(hit, DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    dt_model_train(m);
    return dt_ddp_mean(ddp, n > 0 ? right / n : 0, n);
}

typedef struct outcome { /* result of a training run, for --compare */
    int64_t batch;
    double  lr, seconds, right; /* seconds of an epoch; fraction of the test images that are classified correctly */
} outcome;

static int trainer(void *args)
{
    int         argc = ((example_args *)args)->argc;
    char      **argv = ((example_args *)args)->argv;
    outcome    *out = (outcome *)((example_args *)args)->user;
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL),
               *data = example_option(argc, argv, "--data", NULL);
    int     depth = atoi(example_option(argc, argv, "--depth", "20")), stop = 0;
    int64_t classes = atoi(example_option(argc, argv, "--classes", "10"));
    int64_t epochs = atoi(example_option(argc, argv, "--epochs", "10")), epoch = 0, step = 0;
    int64_t limit = atoi(example_option(argc, argv, "--steps", "0"));
    if (depth != 18 && (depth < 8 || (depth - 2) % 6)) {
        fprintf(stderr, "resnet_cifar: --depth must be 18 or 6n+2: 20, 32, 44, 56, 110\n");
        return 1;
    }
    if (classes != 10 && classes != 20 && classes != 100) {
        fprintf(stderr, "resnet_cifar: --classes must be 10, 20 or 100\n");
        return 1;
    }
    dt_comm *comm = example_comm(argc, argv);
    int      rank = dt_comm_rank(comm), world = dt_comm_size(comm);
    if (!comm) return 1;
    dt_device *dev = example_device(argc, argv, rank, dt_comm_local_rank(comm));
    if (!data) {
        data = classes == 10 ? "data/cifar-10-batches-bin" : "data/cifar-100-binary";
        if (!example_has(data, classes == 10 ? "test_batch.bin" : "test.bin")) {
            if (!rank) fprintf(stderr, "no CIFAR files in %s: using the digits of data/digits\n", data);
            data = "data/digits";
        }
    }
    bool           digits = example_has_digits(data);
    dt_dataset    *train = NULL, *test = NULL;
    dt_loader_opts o = { .batch = 250,
                         .workers = atoi(example_option(argc, argv, "--workers", "2")),
                         .mean = { 0.4914, 0.4822, 0.4465 },
                         .std = { 0.247, 0.243, 0.261 } };
    if (digits) {
        example_digits(data, 3, 32, 4, &train, &test);
        classes = 10;
    } else {
        train = classes == 10 ? dt_cifar10_open(data, DT_TRAIN) : dt_cifar100_open(data, DT_TRAIN, classes == 20);
        test = classes == 10 ? dt_cifar10_open(data, DT_TEST) : dt_cifar100_open(data, DT_TEST, classes == 20);
    }
    if (digits || classes != 10) dt_dataset_mean_std(train, o.mean, o.std, 3); /* the values above are those of CIFAR-10 */
    o.rank = rank;
    o.world = world;
    o.device = dev;
    o.no_pad = true;
    dt_loader *exam = dt_loader_new_with(test, o);
    o.no_pad = false;
    o.batch = atoi(example_option(argc, argv, "--batch", "128"));
    o.shuffle = true;
    o.drop_last = true;      /* shuffling puts other items at the end of the next epoch */
    o.crop = digits ? 0 : 4; /* digits are centred, and a mirrored digit is not a digit */
    o.flip = !digits;
    o.cutout = atoi(example_option(argc, argv, "--cutout", "0"));
    dt_loader *in = dt_loader_new_with(train, o);
    int64_t    steps = dt_loader_batches(in);
    if (in && !steps) dt_fail(DT_ERR_ARG, "--batch %lld is more than the number of training images", (long long)o.batch);

    dt_model   *m = dt_model_new(.seed = 1, .device = dev);
    double      lr = atof(example_option(argc, argv, "--lr", "0.1")), began = 1e-9 * (double)dt_trace_now();
    const char *rise = example_option(argc, argv, "--warmup", !out ? "0" : epochs > 1 ? "1" : "0.5");
    int64_t     warmup = (int64_t)(atof(rise) * (double)steps);
    if (warmup && warmup >= epochs * steps)
        dt_fail(DT_ERR_ARG, "--warmup %s must be less than --epochs %lld", rise, (long long)epochs);
    if (out || example_flag(argc, argv, "--scale-lr")) lr *= world;
    dt_optimizer *opt = example_flag(argc, argv, "--lars")
                            ? dt_lars(m, .lr = lr, .weight_decay = 5e-4, .momentum = 0.9)
                            : dt_sgd(m, .lr = lr, .weight_decay = 5e-4, .momentum = 0.9, .nesterov = true);
    dt_optimizer_add_group(opt, "*.bias|*bn?.*|*downsample.1.*", .weight_decay = DT_ZERO,
                   .no_trust_ratio = example_flag(argc, argv, "--lars"));
    dt_amp      *amp = level ? dt_amp_new(m, .level = level) : NULL;
    dt_scheduler *s = dt_cosine_annealing_lr(opt, .t_max = epochs * steps - warmup);
    if (warmup) dt_warmup(s, .steps = warmup, .start = lr > 0 && world > 1 ? 1.0 / world : 0);
    dt_ddp        *ddp = dt_ddp_new(m, comm, .sync_batchnorm = example_flag(argc, argv, "--sync-bn"));
    dt_checkpoint *c = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .scheduler = s, .amp = amp,
                                               .every_epochs = 1, .signals = true)
                           : NULL;
    if (c) dt_loader_checkpoint(in, c);
    if (c && dt_checkpoint_resume(c, &epoch, &step) > 0 && rank == 0)
        fprintf(stderr, "resuming from step %lld in %s\n", (long long)step, dir);
    dt_progress *p = dt_progress_new(.epochs = (int)epochs, .steps = steps, .unit = "images",
                                     .quiet = rank > 0, .csv = rank ? NULL : example_option(argc, argv, "--csv", NULL),
                                     .svg = rank ? NULL : example_option(argc, argv, "--svg", NULL),
                                     .start_step = step);

    while (dt_loader_epoch(in) < epochs && !stop)
        for (dt_batch b; !stop && dt_loader_next(in, &b);) {
            dt_tensor *loss = dt_cross_entropy(resnet(m, b.x, depth, classes), b.y);
            if (amp) dt_amp_backward(amp, loss);
            else dt_backward(loss);
            dt_progress_step(p, dt_item(loss), .items = (double)(b.n * world), .lr = dt_optimizer_lr(opt, 0),
                             .scale = amp ? dt_amp_scale(amp, 0) : 0);
            dt_step(opt);
            dt_scheduler_step(s);
            step++;
            if (dt_loader_epoch(in) > b.epoch) { /* this was the last batch of the epoch */
                dt_progress_result(p, "test accuracy", accuracy(m, ddp, exam, depth, classes));
                dt_progress_epoch(p);
            }
            if (c) stop = dt_checkpoint_tick(c, dt_loader_epoch(in), step);
            if (step == limit) stop = 1;
        }
    if (c) dt_checkpoint_finish(c, dt_loader_epoch(in), step);
    dt_progress_free(p);
    char line[256];
    if (!dt_error() && !rank && dt_loader_report(in, 0, line, sizeof line)) fprintf(stderr, "%s\n", line);
    if (example_flag(argc, argv, "--summary") && rank == 0) {
        static char text[65536];
        dt_model_summary(m, text, sizeof text);
        fputs(text, stdout);
    }
    double took = 1e-9 * (double)dt_trace_now() - began;
    double right = accuracy(m, ddp, exam, depth, classes);
    took /= (double)(epochs > 0 ? epochs : 1);
    if (!dt_error() && rank == 0)
        printf("ResNet-%d, %lld parameters, %d process%s: %.1f s an epoch, test accuracy %.2f %%\n", depth,
               (long long)dt_model_numel(m, false), world, world > 1 ? "es" : "", took, 100 * right);
    if (out && rank == 0) {
        out->batch = o.batch * world;
        out->lr = lr;
        out->seconds = took;
        out->right = right;
    }

    dt_checkpoint_free(c);
    dt_ddp_free(ddp);
    dt_scheduler_free(s);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(comm);
    return dt_check("resnet_cifar");
}

/* Each process, also the single one, uses 1/n of the cores, as if it had its own machine. */
static int compare(int argc, char **argv, int n)
{
    example_args a = { argc, argv, NULL };
    outcome *out = (outcome *)mmap(NULL, 2 * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char     threads[32];
    long     each = sysconf(_SC_NPROCESSORS_ONLN) / (n > 0 ? n : 1);
    if (n < 2 || out == MAP_FAILED) return fprintf(stderr, "resnet_cifar: --compare takes 2 or more processes\n") > 0;
    snprintf(threads, sizeof threads, "%ld", each > 1 ? each : 1);
    setenv("DT_NUM_THREADS", threads, 0);
    for (int i = 0; i < 2; i++) {
        a.user = &out[i];
        int rc = dt_spawn(i ? n : 1, trainer, &a); /* ranks write their result to memory shared with this process */
        if (rc < 0) fprintf(stderr, "resnet_cifar: %s\n", dt_comm_error(NULL));
        if (rc) return 1;
    }
    printf("\nprocesses      %12d %12d\nbatch          %12lld %12lld\nlearning rate  %12g %12g\n", 1, n,
           (long long)out[0].batch, (long long)out[1].batch, out[0].lr, out[1].lr);
    printf("an epoch       %10.2f s %10.2f s   %.2f times as fast, %.0f %% of %d\n", out[0].seconds, out[1].seconds,
           out[0].seconds / out[1].seconds, 100 * out[0].seconds / out[1].seconds / n, n);
    printf("test accuracy  %10.2f %% %10.2f %%   %+.2f\n", 100 * out[0].right, 100 * out[1].right,
           100 * (out[1].right - out[0].right));
    munmap(out, 2 * sizeof *out);
    return 0;
}
int main(int argc, char **argv)
{
    int         done = example_options(argc, argv, resnet_cifar_help);
    const char *n = example_option(argc, argv, "--compare", NULL);
    if (done >= 0) return done;
    return n ? compare(argc, argv, atoi(n)) : example_start(argc, argv, trainer);
}
