/* ResNets on CIFAR-10: depth 20, 32, 44, 56, 110 (He et al., 16-32-64 channels) or 18 (64-128-256-512 channels).

   Build: cc -O2 -I.. resnet_cifar.c -o resnet_cifar -lm -lpthread     Run: ./resnet_cifar --depth 20 --epochs 10

       --data DIR    CIFAR-10's binary files (data_batch_1.bin ...); default data/cifar-10-batches-bin. Where they are
                     not, the digits in data/digits, four times as wide, in grey
       --depth N     20              --epochs N   10           --batch N   128         --lr X   0.1
       --opt-level O0..O3            --checkpoint DIR          --svg FILE              --summary        */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "example_data.h"

enum { SIDE = 32, PIXELS = 3 * SIDE * SIDE, MAX_BATCH = 512 };

static dt_tensor *block(dt_model *m, dt_tensor *x, int out, int stride)
{
    dt_tensor *skip = x, *y;
    y = dt_conv2d(m, "conv1", x, .out = out, .kernel = 3, .stride = stride, .pad = 1, .no_bias = true);
    y = dt_batchnorm2d(m, "bn1", y, .act = DT_ACT_RELU);
    y = dt_conv2d(m, "conv2", y, .out = out, .kernel = 3, .pad = 1, .no_bias = true);
    if (stride != 1 || dt_dim(x, 1) != out) {
        skip = dt_conv2d(m, "downsample.0", x, .out = out, .kernel = 1, .stride = stride, .no_bias = true);
        skip = dt_batchnorm2d(m, "downsample.1", skip);
    }
    return dt_batchnorm2d(m, "bn2", y, .add = skip, .act = DT_ACT_RELU);
}
static dt_tensor *resnet(dt_model *m, dt_tensor *x, int depth)
{
    int stages = depth == 18 ? 4 : 3, blocks = depth == 18 ? 2 : (depth - 2) / 6, width = depth == 18 ? 64 : 16;
    x = dt_conv2d(m, "conv1", x, .out = width, .kernel = 3, .pad = 1, .no_bias = true);
    x = dt_batchnorm2d(m, "bn1", x, .act = DT_ACT_RELU);
    for (int s = 0; s < stages; s++)
        for (int b = 0; b < blocks; b++) {
            dt_scope(m, "layer%d.%d", s + 1, b);
            x = block(m, x, width << s, s && !b ? 2 : 1);
            dt_scope_end(m);
        }
    return dt_linear(m, "fc", dt_flatten(dt_adaptive_avgpool2d(x, 1, 1)), .out = 10);
}

/* ---- data: n images of 3x32x32 bytes and their labels */
typedef struct images {
    int64_t        n;
    unsigned char *pixel, *label;
} images;
static int cifar_file(images *s, const char *dir, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE          *f = fopen(path, "rb");
    unsigned char  record[PIXELS + 1];
    unsigned char *pixel = (unsigned char *)realloc(s->pixel, (size_t)(s->n + 10000) * PIXELS);
    if (pixel) s->pixel = pixel;
    unsigned char *label = (unsigned char *)realloc(s->label, (size_t)(s->n + 10000));
    if (label) s->label = label;
    if (!f || !pixel || !label) {
        if (f) fclose(f);
        return f ? dt_fail(DT_ERR_MEMORY, "cifar: out of memory") : dt_fail(DT_ERR_ARG, "cifar: cannot open %s", path);
    }
    int64_t n = 0;
    size_t  got;
    while ((got = fread(record, 1, sizeof record, f)) == sizeof record && n < 10000 && record[0] < 10) {
        s->label[s->n] = record[0];
        memcpy(s->pixel + s->n++ * PIXELS, record + 1, PIXELS);
        n++;
    }
    fclose(f);
    return n == 10000 && got == 0
               ? 0
               : dt_fail(DT_ERR_ARG, "cifar: %s is not 10000 records of 3073 bytes with labels 0..9", path);
}
static int load(images *train, images *test, const char *dir)
{
    char path[1024], name[32];
    int  rc = 0;
    snprintf(path, sizeof path, "%s/test_batch.bin", dir);
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
        for (int i = 1; i <= 5 && !rc; i++) {
            snprintf(name, sizeof name, "data_batch_%d.bin", i);
            rc = cifar_file(train, dir, name);
        }
        return rc ? rc : cifar_file(test, dir, "test_batch.bin");
    }
    example_data d;
    fprintf(stderr, "no CIFAR-10 in %s: digits in its place\n", dir);
    if ((rc = example_load(&d, "data/digits"))) return rc;
    for (int k = 0; k < 2 && !rc; k++) {
        images            *s = k ? test : train;
        const example_set *from = k ? &d.test : &d.train;
        s->n = from->n;
        s->pixel = (unsigned char *)malloc((size_t)s->n * PIXELS);
        s->label = (unsigned char *)malloc((size_t)s->n);
        if (!s->pixel || !s->label) rc = dt_fail(DT_ERR_MEMORY, "digits: out of memory");
        for (int64_t i = 0; i < s->n && !rc; i++) {
            s->label[i] = from->label[i];
            for (int q = 0; q < PIXELS; q++)
                s->pixel[i * PIXELS + q] =
                    (unsigned char)(from->pixel[i * 64 + q / SIDE % SIDE / 4 * 8 + q % SIDE / 4] * 255 / 16);
        }
    }
    example_free(&d);
    return rc;
}
static void batch(const images *s, const int64_t *index, int64_t n, dt_tensor **x, dt_tensor **y)
{
    static float   pixel[MAX_BATCH * PIXELS];
    static int64_t label[MAX_BATCH];
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < PIXELS; k++)
            pixel[i * PIXELS + k] = ((float)s->pixel[index[i] * PIXELS + k] - 127.5f) / 63.75f;
        label[i] = s->label[index[i]];
    }
    *x = dt_from(pixel, DT_SHAPE(n, 3, SIDE, SIDE));
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
}

static double accuracy(dt_model *m, const images *s, int depth)
{
    int64_t index[MAX_BATCH], right = 0;
    dt_eval(m);
    dt_no_grad_begin();
    for (int64_t at = 0; at < s->n && !dt_error(); at += 250) {
        int64_t    n = s->n - at < 250 ? s->n - at : 250;
        dt_tensor *x, *y;
        for (int64_t i = 0; i < n; i++) index[i] = at + i;
        batch(s, index, n, &x, &y);
        dt_tensor *hit = dt_eq(dt_argmax(resnet(m, x, depth), .dims = DT_DIM(1)), y);
        right += (int64_t)dt_item(dt_sum(dt_cast(hit, DT_I64)));
        dt_end();
    }
    dt_no_grad_end();
    dt_train(m);
    return s->n ? (double)right / (double)s->n : 0;
}
int main(int argc, char **argv)
{
    const char *level = example_option(argc, argv, "--opt-level", NULL),
               *dir = example_option(argc, argv, "--checkpoint", NULL);
    int         depth = atoi(example_option(argc, argv, "--depth", "20"));
    int64_t     epochs = atoi(example_option(argc, argv, "--epochs", "10")),
            size = atoi(example_option(argc, argv, "--batch", "128"));
    int64_t     epoch = 0, step = 0;
    images      train = { 0, NULL, NULL }, test = { 0, NULL, NULL };
    if (depth != 18 && (depth < 8 || (depth - 2) % 6)) {
        fprintf(stderr, "resnet_cifar: --depth is 18, or 6n+2: 20, 32, 44, 56, 110\n");
        return 1;
    }
    if (size < 1 || size > MAX_BATCH) size = 128;
    if (load(&train, &test, example_option(argc, argv, "--data", "data/cifar-10-batches-bin")))
        return dt_check("resnet_cifar");

    int64_t       steps = train.n / size; /* the rest of an epoch is dropped: it comes another time */
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = atof(example_option(argc, argv, "--lr", "0.1")), .momentum = 0.9,
                               .nesterov = true, .weight_decay = 5e-4);
    dt_optim_group(opt, "*.bias|*bn?.*|*downsample.1.*", .weight_decay = DT_ZERO);
    dt_amp        *amp = level ? dt_amp_new(m, .level = level) : NULL;
    dt_schedule   *s = dt_cosine_lr(opt, .t_max = epochs * steps);
    dt_checkpoint *c = dir ? dt_checkpoint_new(dir, .model = m, .optimizer = opt, .schedule = s, .amp = amp,
                                               .every_epochs = 1, .signals = true) : NULL;
    if (c && dt_checkpoint_resume(c, &epoch, &step) > 0)
        fprintf(stderr, "going on from step %lld in %s\n", (long long)step, dir);
    dt_progress *p = dt_progress_new(.epochs = epochs, .steps = steps, .unit = "images", .start_step = step,
                                     .svg = example_option(argc, argv, "--svg", NULL));
    int64_t     *order = (int64_t *)malloc((size_t)(train.n + 1) * sizeof *order);

    for (int stop = 0; step < epochs * steps && !stop && !dt_error(); ) {
        dt_rng r;
        dt_rng_seed(&r, (uint64_t)(step / steps));
        dt_rng_randperm(&r, order, train.n);
        for (int64_t i = step % steps; i < steps && !stop && !dt_error(); i++) {
            dt_tensor *x, *y;
            batch(&train, order + i * size, size, &x, &y);
            dt_tensor *loss = dt_cross_entropy(resnet(m, x, depth), y);
            if (amp)
                dt_amp_backward(amp, loss);
            else
                dt_backward(loss);
            dt_progress_step(p, dt_item(loss), .items = size, .lr = dt_lr(opt, 0),
                             .scale = amp ? dt_amp_scale(amp, 0) : 0);
            dt_step(opt);
            dt_schedule_step(s);
            step++;
            if (i == steps - 1) {
                dt_progress_result(p, "test accuracy", accuracy(m, &test, depth));
                dt_progress_epoch(p);
            }
            if (c) stop = dt_checkpoint_tick(c, step / steps, step);
        }
    }
    if (c) dt_checkpoint_finish(c, step / steps, step);
    dt_progress_free(p);
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--summary")) {
            static char text[65536];
            dt_model_summary(m, text, sizeof text);
            fputs(text, stdout);
        }
    if (!dt_error())
        printf("ResNet-%d, %lld parameters: test accuracy %.2f %%\n", depth, (long long)dt_model_numel(m, false),
               100 * accuracy(m, &test, depth));

    dt_checkpoint_free(c);
    dt_schedule_free(s);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(order);
    free(train.pixel);
    free(train.label);
    free(test.pixel);
    free(test.label);
    return dt_check("resnet_cifar");
}
