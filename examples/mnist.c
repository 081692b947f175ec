/* The conv net on MNIST, Fashion-MNIST or, where neither is there, the digits in data/digits.

   Build: cc -O2 -I.. mnist.c -o mnist -lm -lpthread        Run: ./mnist --epochs 5 --opt-level O2

       --data DIR          a directory with MNIST's four IDX files, unpacked
       --epochs N          5                        --batch N     100
       --lr X              0.01                     --seed N      1
       --opt-level O0..O3  mixed precision; default: none         --dtype f16|bf16
       --checkpoint DIR    save there every epoch and at SIGTERM or Ctrl-C; go on from the newest one
       --csv FILE, --svg FILE   a log of every step, the loss curve                               */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "example_data.h"

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv1", x, .out = 16, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU), .kernel = 2);
    x = dt_conv2d(m, "conv2", x, .out = 32, .kernel = 5, .pad = 2);
    x = dt_maxpool2d(dt_batchnorm2d(m, "bn2", x, .act = DT_ACT_RELU), .kernel = 2);
    return dt_linear(m, "fc", dt_flatten(x), .out = 10);
}

static void batch(const example_set *s, const int64_t *index, int64_t n, dt_tensor **x, dt_tensor **y)
{
    static float   pixel[1024 * EXAMPLE_PIXELS];
    static int64_t label[1024];
    example_batch(s, index, n, pixel, label);
    *x = dt_from(pixel, DT_SHAPE(n, 1, EXAMPLE_SIDE, EXAMPLE_SIDE));
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
}

static double accuracy(dt_model *m, const example_set *s)
{
    int64_t index[500], right = 0;
    dt_eval(m);
    dt_no_grad_begin();
    for (int64_t at = 0; at < s->n && !dt_error(); at += 500) {
        int64_t    n = s->n - at < 500 ? s->n - at : 500;
        dt_tensor *x, *y;
        for (int64_t i = 0; i < n; i++) index[i] = at + i;
        batch(s, index, n, &x, &y);
        dt_tensor *hit = dt_eq(dt_argmax(net(m, x), .dims = DT_DIM(1)), y);
        right += (int64_t)dt_item(dt_sum(dt_cast(hit, DT_I64)));
        dt_end();
    }
    dt_no_grad_end();
    dt_train(m);
    return (double)right / (double)s->n;
}

int main(int argc, char **argv)
{
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL);
    int64_t     epochs = atoi(example_option(argc, argv, "--epochs", "5")),
            size = atoi(example_option(argc, argv, "--batch", "100"));
    int64_t     seed = atoi(example_option(argc, argv, "--seed", "1")), epoch = 0, step = 0;
    bool        bf16 = !strcmp(example_option(argc, argv, "--dtype", "f16"), "bf16");
    if (size < 1 || size > 1024) size = 100;
    example_data d;
    if (example_load(&d, example_option(argc, argv, "--data", NULL))) return dt_check("mnist");

    dt_model      *m = dt_model_new(.seed = (uint64_t)seed);
    dt_optimizer  *opt = dt_sgd(m, .lr = atof(example_option(argc, argv, "--lr", "0.01")), .momentum = 0.9);
    dt_amp        *amp = level ? dt_amp_new(m, .level = level, .dtype = bf16 ? DT_BF16 : DT_F16) : NULL;
    int64_t        steps = (d.train.n + size - 1) / size, *order = (int64_t *)malloc((size_t)d.train.n * sizeof *order);
    dt_checkpoint *c = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .amp = amp, .every_epochs = 1,
                                               .signals = true) : NULL;
    if (c && dt_checkpoint_resume(c, &epoch, &step) > 0)
        fprintf(stderr, "going on from step %lld in %s\n", (long long)step, dir);
    dt_progress *p = dt_progress_new(.epochs = epochs, .steps = steps, .unit = "images", .start_step = step,
                                     .csv = example_option(argc, argv, "--csv", NULL),
                                     .svg = example_option(argc, argv, "--svg", NULL));

    for (int stop = 0; step < epochs * steps && !stop && !dt_error(); ) {
        dt_rng r;
        epoch = step / steps;
        dt_rng_seed(&r, (uint64_t)(seed + epoch)); /* the order of an epoch depends on nothing else */
        dt_rng_randperm(&r, order, d.train.n);
        for (int64_t i = step % steps; i < steps && !stop && !dt_error(); i++) {
            int64_t    n = i < steps - 1 ? size : d.train.n - i * size;
            dt_tensor *x, *y;
            batch(&d.train, order + i * size, n, &x, &y);
            dt_tensor *loss = dt_cross_entropy(net(m, x), y);
            if (amp)
                dt_amp_backward(amp, loss);
            else
                dt_backward(loss);
            dt_progress_step(p, dt_item(loss), .items = n, .lr = dt_lr(opt, 0),
                             .scale = amp ? dt_amp_scale(amp, 0) : 0);
            dt_step(opt);
            step++;
            if (i == steps - 1) {
                dt_progress_result(p, "test accuracy", accuracy(m, &d.test));
                dt_progress_epoch(p);
            }
            if (c) stop = dt_checkpoint_tick(c, step / steps, step);
        }
    }
    if (c) dt_checkpoint_finish(c, step / steps, step);
    dt_progress_free(p);
    if (!dt_error()) printf("test accuracy %.2f %% after %lld steps on %s\n", 100 * accuracy(m, &d.test),
                            (long long)step, d.from);

    dt_checkpoint_free(c);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(order);
    example_free(&d);
    return dt_check("mnist");
}
