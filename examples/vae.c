/* A variational autoencoder of the digits: two models with an optimiser each, trained by one loss, and a sheet of digits that
   the decoder makes from random numbers.

   Build: cc -O2 -I.. vae.c -o vae -lm -lpthread
   Run:   ./vae --data ../data/digits       writes vae.pgm */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "dt_data.h"
#include "dt_ops.h"
#include "example_data.h"

enum { CODE = 8, SHEET = 8 };
static const char *const vae_help = "vae [options]: a variational autoencoder of the digits\n"
                                    "    --data DIR      data/digits\n"
                                    "    --epochs N      30\n"
                                    "    --out FILE      vae.pgm: 64 digits that it has made up\n";

static dt_tensor *decode(dt_model *m, dt_tensor *z) /* logits of 64 pixels */
{
    return dt_linear(m, "fc2", dt_linear(m, "fc1", z, .out = 64, .act = DT_ACT_RELU), .out = 64);
}
static int write_sheet(const char *path, dt_model *decoder)
{
    float      pixel[SHEET * SHEET * 64];
    dt_no_grad_begin();
    dt_tensor *x = dt_sigmoid(decode(decoder, dt_normal(0, 1, DT_SHAPE(SHEET * SHEET, CODE))));
    int        bad = dt_copy_out(x, pixel, sizeof pixel) != DT_OK;
    dt_no_grad_end();
    dt_end();
    FILE *f = bad ? NULL : fopen(path, "wb");
    if (!f) return bad ? 1 : (perror(path), 1);
    fprintf(f, "P5\n%d %d\n255\n", 8 * SHEET, 8 * SHEET);
    for (int r = 0; r < 8 * SHEET; r++)
        for (int c = 0; c < 8 * SHEET; c++) fputc((int)(255 * pixel[(r / 8 * SHEET + c / 8) * 64 + r % 8 * 8 + c % 8]), f);
    if (fclose(f)) return perror(path), 1;
    return 0;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, vae_help);
    if (done >= 0) return done;
    dt_dataset *train, *test;
    int         epochs = atoi(example_option(argc, argv, "--epochs", "30"));
    example_digits(example_option(argc, argv, "--data", "data/digits"), 1, 8, 1, &train, &test);
    dt_loader    *in = dt_loader_new(train, .batch = 64, .shuffle = true, .seed = 1);
    dt_model     *encoder = dt_model_new(.seed = 1), *decoder = dt_model_new(.seed = 2);
    dt_optimizer *eopt = dt_adam(encoder, .lr = 2e-3), *dopt = dt_adam(decoder, .lr = 2e-3);
    dt_progress  *p = dt_progress_new(.epochs = epochs, .steps = dt_loader_batches(in), .unit = "images");
    double        first = 0, last = 0;
    while (dt_loader_epoch(in) < epochs && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_tensor *x = dt_flatten(b.x), *h = dt_linear(encoder, "fc1", x, .out = 64, .act = DT_ACT_RELU);
            dt_tensor *mean = dt_linear(encoder, "mean", h, .out = CODE), *logvar = dt_linear(encoder, "logvar", h, .out = CODE);
            dt_tensor *noise = dt_normal(0, 1, DT_SHAPE(b.n, CODE));
            dt_tensor *z = dt_add(mean, dt_mul(dt_exp(dt_mul_scalar(logvar, 0.5)), noise)); /* a draw that gradients pass through */
            dt_tensor *picture = dt_bce_with_logits(decode(decoder, z), x, .reduction = DT_SUM);
            dt_tensor *kl = dt_mul_scalar(dt_sum(dt_sub(dt_sub(dt_add_scalar(logvar, 1), dt_mul(mean, mean)), dt_exp(logvar))), -0.5);
            dt_tensor *loss = dt_div_scalar(dt_add(picture, kl), (double)b.n);
            dt_backward(loss);
            last = dt_item(loss);
            if (first == 0) first = last;
            dt_progress_step(p, last, .items = (double)b.n);
            dt_update(eopt); /* dt_step would end the step: the decoder's gradients are still needed */
            dt_step(dopt);
        }
    dt_progress_free(p);
    printf("loss an image %.2f -> %.2f\n", first, last);
    const char *out = example_option(argc, argv, "--out", "vae.pgm");
    int         bad = dt_error() ? 1 : write_sheet(out, decoder);
    if (!bad) printf("64 digits that it has made up: %s\n", out);
    dt_optimizer_free(eopt);
    dt_optimizer_free(dopt);
    dt_model_free(encoder);
    dt_model_free(decoder);
    dt_loader_free(in);
    dt_dataset_free(train);
    dt_dataset_free(test);
    return dt_check("vae") || bad || !(last < first);
}
