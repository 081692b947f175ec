/* An op of the program: its forward, its own backward, and a check of the gradients. Used in a net like any other op.

   The op is softsign, x / (1 + |x|), whose gradient is 1 / (1 + |x|)^2.

   Build: cc -O2 -I.. custom_op.c -o custom_op -lm -lpthread */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "dt_ops.h"
#include "options.h"

static const char *const custom_help = "custom_op [options]: a net with an op of its own\n"
                                       "    --steps N     300\n";

static dt_status softsign_forward(dt_fn_call *c)
{
    dt_tensor *x = dt_fn_in(c, 0), *scale = dt_add_scalar(dt_abs(x), 1);
    dt_fn_out(c, 0, dt_div(x, scale));
    dt_fn_save(c, 0, scale); /* for the backward */
    return DT_OK;
}
static dt_status softsign_backward(dt_fn_call *c)
{
    dt_tensor *scale = dt_fn_saved(c, 0);
    dt_fn_give(c, 0, dt_div(dt_fn_grad(c, 0), dt_mul(scale, scale)));
    return DT_OK;
}
static const dt_function softsign_op = { "softsign", softsign_forward, softsign_backward };
static dt_tensor *softsign(dt_tensor *x) { return dt_function_apply(&softsign_op, &x, 1, NULL, 0); }
static dt_tensor *checked(dt_tensor *const *in, int n, void *user)
{
    (void)n, (void)user;
    return softsign(in[0]);
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, custom_help);
    if (done >= 0) return done;
    int        steps = atoi(example_option(argc, argv, "--steps", "300"));
    double     first = 0, loss = 0;
    dt_tensor *x = dt_set_requires_grad(dt_normal(0, 2, DT_SHAPE(20)));
    printf("gradients agree with differences: %s\n", dt_gradcheck(checked, NULL, &x, 1) == DT_OK ? "yes" : dt_error());
    dt_free(x);

    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    for (int step = 0; step < steps && !dt_error(); step++) {
        dt_tensor *in = dt_uniform(-1, 1, DT_SHAPE(64, 2)), *want = dt_mul(dt_narrow(in, 1, 0, 1), dt_narrow(in, 1, 1, 1));
        dt_tensor *h = softsign(dt_linear(m, "fc1", in, .out = 32));
        dt_tensor *l = dt_mse_loss(dt_linear(m, "fc2", h, .out = 1), want);
        dt_backward(l);
        loss = dt_item(l);
        if (!step) first = loss;
        dt_step(opt);
    }
    printf("the product of two numbers: loss %.4f -> %.4f\n", first, loss);
    dt_optimizer_free(opt);
    dt_model_free(m);
    return dt_check("custom_op") || !(loss < first);
}
