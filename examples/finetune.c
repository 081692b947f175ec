/* Fine-tuning: a ResNet with the weights of a PyTorch state_dict learns other classes. The file's last layer has its own number of
   classes, so it is left out: the new one begins at random. The rest goes on from the file, or stays as it is with --freeze.

   Build: cc -O2 -I.. finetune.c -o finetune -lm -lpthread
   Run:   ./finetune --load resnet18.safetensors               a file made in Python:
              safetensors.torch.save_file(torchvision.models.resnet18(weights="DEFAULT").state_dict(), "resnet18.safetensors")
          ./finetune --make small.safetensors && ./finetune --load small.safetensors --width 0.25
   The second line needs no PyTorch: --make trains a small net on the digits turned by 90 degrees and saves it. */
#define DT_IMPLEMENTATION
#include "dt_cuda.h"
#include "dt_data.h"
#include "dt_layers.h"
#include "dt_ops.h"
#include "dt_plot.h"
#include "example_data.h"
#include "models.h"

static const char *const finetune_help =
    "finetune [options]: a ResNet with the weights of a PyTorch state_dict learns the digits of data/digits\n"
    "    --load FILE    safetensors with the names of torchvision's resnet; default: random weights\n"
    "    --data DIR     data/digits, or another directory with files of MNIST or Fashion-MNIST\n"
    "    --depth N      18: the net: 18, 34, 50, 101, 152      --width X      1: its channels are the original's times this\n"
    "    --head NAME    fc: the layer that is not taken from the file\n"
    "    --strip TEXT   a prefix that the names in the file have: module.\n"
    "    --freeze       only the new layer learns: without gradients and with the running statistics of the file\n"
    "    --epochs N     3        --steps N   as many as --epochs needs        --batch N   32        --lr X   0.01\n"
    "    --side N       64: images are enlarged to this size, 16 or more      --device D  cpu; cuda or cuda:N (docs/gpu.md)\n"
    "    --save FILE    the weights at the end: PyTorch reads them, too\n"
    "    --make FILE    makes a file to begin with: a net that has learned the digits turned by 90 degrees\n";

typedef struct recipe {
    int    depth, side, turn; /* turn: images are turned by 90 degrees */
    double width;
    bool   freeze;
} recipe;

/* (n, 1, h, w) in 0 .. 1 -> (n, 3, side, side), as PyTorch's nets for colour images take them */
static dt_tensor *images(dt_tensor *x, const recipe *r)
{
    static const float mean[3] = { 0.485f, 0.456f, 0.406f }, std[3] = { 0.229f, 0.224f, 0.225f };
    dt_no_grad_begin();
    if (r->turn) x = dt_flip(dt_transpose(x, 2, 3), DT_DIM(3));
    x = dt_interpolate(x, .size = r->side, .mode = DT_BILINEAR);
    x = dt_sub(x, dt_from(mean, DT_SHAPE(1, 3, 1, 1), .device = dt_device_of(x)));
    x = dt_div(x, dt_from(std, DT_SHAPE(1, 3, 1, 1), .device = dt_device_of(x)));
    dt_no_grad_end();
    return x;
}
static dt_tensor *classify(dt_model *m, dt_tensor *x, const recipe *r)
{
    return resnet(m, images(x, r), r->depth, NET_OPTS(.classes = 10, .width = r->width));
}
static double accuracy(dt_model *m, dt_loader *in, const recipe *r)
{
    double right = 0, n = 0;
    dt_model_eval(m);
    dt_no_grad_begin();
    for (dt_batch b; dt_loader_next(in, &b); dt_end()) {
        right += dt_item(dt_sum(dt_cast(dt_eq(dt_argmax(classify(m, b.x, r), .dims = DT_DIM(1)), b.y), DT_I64)));
        n += (double)b.n;
    }
    dt_no_grad_end();
    return n > 0 ? right / n : 0;
}
/* Reads all parameters from a file but those of the layer `head`: what the file has beside it must fit strictly. */
static void load_without(dt_model *m, const char *path, const char *head, const char *strip)
{
    char        pattern[256], name[512];
    size_t      prefix = strlen(strip);
    dt_archive *a = dt_archive_open(path);
    int64_t     kept = 0, n = dt_archive_count(a), filled = 0;
    snprintf(pattern, sizeof pattern, "%s.*", head);
    for (int i = 0; i < dt_model_count(m) && !dt_error(); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        if (dt_name_matches(pattern, p.name)) continue;
        snprintf(name, sizeof name, "%s%s", strip, p.name);
        if (dt_archive_find(a, name) < 0)
            dt_fail(DT_ERR_FILE,
                    "%.200s has no tensor '%s': it is not a state_dict of this net; see --depth, --head and --strip", path,
                    name);
        else if (dt_archive_read(a, name, p.value) == DT_OK) filled++; /* shapes must be equal: see --width */
    }
    for (int64_t i = 0; i < n; i++) {
        const char *have = dt_archive_name(a, i);
        kept += strncmp(have, strip, prefix) != 0 || !dt_name_matches(pattern, have + prefix);
    }
    if (!dt_error() && kept != filled)
        dt_fail(DT_ERR_FILE, "%.200s has %lld tensors beside the head, the net %lld", path, (long long)kept, (long long)filled);
    if (!dt_error()) printf("%lld tensors of %s; the layer '%s' is new\n", (long long)filled, path, head);
    dt_archive_free(a);
}

int main(int argc, char **argv)
{
    int done = example_options(argc, argv, finetune_help);
    if (done >= 0) return done;
    const char *load = example_option(argc, argv, "--load", NULL), *make = example_option(argc, argv, "--make", NULL);
    const char *save = example_option(argc, argv, "--save", make), *data = example_option(argc, argv, "--data", "data/digits");
    const char *head = example_option(argc, argv, "--head", "fc");
    int64_t     size = atoi(example_option(argc, argv, "--batch", "32")),
            epochs = atoi(example_option(argc, argv, "--epochs", "3")), step = 0;
    int64_t     limit = atoi(example_option(argc, argv, "--steps", "0"));
    double      lr = atof(example_option(argc, argv, "--lr", "0.01")), first = 0, last = 0;
    recipe      r = { .depth = atoi(example_option(argc, argv, "--depth", "18")),
                      .side = atoi(example_option(argc, argv, "--side", "64")),
                      .turn = make != NULL,
                      .width = atof(example_option(argc, argv, "--width", make ? "0.25" : "1")),
                      .freeze = example_flag(argc, argv, "--freeze") };
    if (r.side < 16 || r.side > 1024 || !(r.width > 0 && r.width <= 4) || size < 2 || epochs < 1 || (make && load) ||
        (r.freeze && !load)) {
        fprintf(stderr, "finetune: --side must be 16 to 1024, --width above 0 and at most 4, --batch 2 or more, --epochs 1 or "
                        "more; --freeze needs --load, "
                        "--make is without it\n");
        return 1;
    }
    dt_device  *dev = example_device(argc, argv, 0, 0);
    dt_dataset *train = NULL, *test = NULL;
    if (example_has_digits(data)) example_digits(data, 1, 8, 1, &train, &test);
    else train = dt_mnist_open(data, DT_TRAIN), test = dt_mnist_open(data, DT_TEST);
    dt_loader *in = dt_loader_new(train, .batch = size, .shuffle = true, .drop_last = true, .seed = 1, .device = dev);
    dt_loader *exam = dt_loader_new(test, .batch = 256, .device = dev);
    int64_t    steps = dt_loader_batches(in) * epochs;
    if (limit > 0 && limit < steps) steps = limit;

    dt_model *m = dt_model_new(.seed = 1, .device = dev);
    double    before = accuracy(m, exam, &r); /* makes the parameters */
    if (load) {
        load_without(m, load, head, example_option(argc, argv, "--strip", ""));
        before = dt_error() ? 0 : accuracy(m, exam, &r);
    }
    if (r.freeze) {
        char name[64], all[8] = "*";
        snprintf(name, sizeof name, "%s.*", head);
        dt_model_freeze(m, all);
        dt_model_unfreeze(m, name);
    }
    if (!dt_error())
        printf("test accuracy %.2f %% before, %lld parameters, %lld of them learn\n", 100 * before,
               (long long)dt_model_numel(m, false), (long long)dt_model_numel(m, true));
    dt_optimizer *opt = dt_sgd(m, .lr = lr, .weight_decay = 1e-4, .momentum = 0.9);
    dt_scheduler *s = dt_cosine_annealing_lr(opt, .t_max = steps > 0 ? steps : 1);
    dt_progress  *p = dt_progress_new(.epochs = 1, .steps = steps, .unit = "images");
    while (step < steps && !dt_error()) {
        if (r.freeze) dt_model_eval(m); /* batch norms keep the statistics of the file */
        else dt_model_train(m);
        for (dt_batch b; step < steps && dt_loader_next(in, &b); step++) {
            dt_tensor *loss = dt_cross_entropy(classify(m, b.x, &r), b.y);
            dt_backward(loss);
            last = step == 0 ? dt_item(loss) : 0.9 * last + 0.1 * dt_item(loss);
            if (step == 0) first = last;
            dt_progress_step(p, dt_item(loss), .items = (double)b.n, .lr = dt_optimizer_lr(opt, 0));
            dt_step(opt);
            dt_scheduler_step(s);
        }
    }
    dt_progress_free(p);
    double after = accuracy(m, exam, &r);
    if (!dt_error())
        printf("test accuracy %.2f %% after %lld steps, loss %.3f at the start, %.3f at the end\n", 100 * after,
               (long long)step, first, last);
    if (save && !dt_error() && dt_model_save(m, save) == DT_OK) printf("saved as %s\n", save);

    dt_scheduler_free(s);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(exam);
    dt_dataset_free(train);
    dt_dataset_free(test);
    return dt_check("finetune");
}
