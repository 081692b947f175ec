/* Autograd: gradients of any expression, checked against differences, and a curve that is fitted by hand.

   Build: cc -O2 -I.. autograd.c -o autograd -lm -lpthread */
#define DT_IMPLEMENTATION
#include "dt_ops.h"
#include "options.h"

static const char *const autograd_help = "autograd [options]: fits a sine by gradient descent\n"
                                         "    --steps N     600\n";

static dt_tensor *wave(dt_tensor *const *p, int n, void *user) /* a sin(b x + c) */
{
    (void)n;
    return dt_mul(p[0], dt_sin(dt_add(dt_mul(p[1], (dt_tensor *)user), p[2])));
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, autograd_help);
    if (done >= 0) return done;
    int        steps = atoi(example_option(argc, argv, "--steps", "600"));
    double     start[3] = { 0.5, 1.6, 0.5 };
    dt_tensor *p[3], *x = dt_keep(dt_linspace(-3, 3, 100));
    dt_tensor *y = dt_keep(dt_mul_scalar(dt_sin(dt_add_scalar(dt_mul_scalar(x, 2), 1)), 1.5)); /* 1.5 sin(2x + 1) */
    for (int i = 0; i < 3; i++) p[i] = dt_set_requires_grad(dt_full(start[i], DT_SHAPE(1)));

    printf("gradients agree with differences: %s\n", dt_gradcheck(wave, x, p, 3) == DT_OK ? "yes" : dt_error());
    double first = 0, loss = 0;
    for (int step = 0; step < steps && !dt_error(); step++) {
        dt_tensor *l = dt_mse_loss(wave(p, 3, x), y);
        dt_backward(l);
        loss = dt_item(l);
        if (!step) first = loss;
        for (int i = 0; i < 3; i++) {
            dt_add_to(p[i], dt_grad(p[i]), -0.05); /* in place; not recorded */
            dt_zero_grad(p[i]);
        }
        dt_end();
    }
    printf("loss %.4f -> %.6f; y = %.2f sin(%.2f x + %.2f), made with 1.5 sin(2 x + 1)\n", first, loss, dt_item(p[0]), dt_item(p[1]), dt_item(p[2]));
    int worse = !(loss < first);
    for (int i = 0; i < 3; i++) dt_free(p[i]);
    dt_free(x);
    dt_free(y);
    return dt_check("autograd") || worse;
}
