/* Two spirals: an MLP learns which of two interleaved spirals a point is on. The program generates the data.
   Build: cc -O2 -I.. spirals.c -o spirals -lm -lpthread      Run: ./spirals --steps 1000 */
#define DT_IMPLEMENTATION
#include "dt.h"
#include "options.h"
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const spirals_help =
    "spirals [options]: an MLP learns which of two spirals a point is on\n"
    "    --steps N      3000           --threads N   one for each core\n";

enum { BATCH = 256, HIDDEN = 64, NPARAMS = 6 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n points: the radius grows with the angle; the second spiral is the first, rotated by half a turn */
static void make_batch(int64_t n, dt_tensor **x, dt_tensor **y)
{
    static float   point[4096][2];
    static int64_t label[4096];
    float          u[4096], noise[4096][2];
    dt_rng_uniform(dt_rng_default(), u, n, 0, 1);
    dt_rng_normal(dt_rng_default(), &noise[0][0], 2 * n, 0, 0.02);
    for (int64_t i = 0; i < n; i++) {
        double a = 0.5 + 9 * (double)u[i], r = a / 10;
        label[i] = i % 2;
        double turn = a + (label[i] ? 3.14159265358979 : 0);
        point[i][0] = (float)(r * __builtin_cos(turn)) + noise[i][0];
        point[i][1] = (float)(r * __builtin_sin(turn)) + noise[i][1];
    }
    *x = dt_from(point, DT_SHAPE(n, 2));
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
}

static dt_tensor *net(dt_tensor **p, dt_tensor *x)
{
    x = dt_op_linear(x, p[0], p[1], .act = DT_ACT_TANH);
    x = dt_op_linear(x, p[2], p[3], .act = DT_ACT_TANH);
    return dt_op_linear(x, p[4], p[5]);
}

static double accuracy(dt_tensor **p)
{
    dt_tensor *x, *y;
    dt_no_grad_begin();
    make_batch(4096, &x, &y);
    double right = dt_item(dt_mean(dt_cast(dt_eq(dt_argmax(net(p, x), .dims = DT_DIM(1)), y), DT_F32)));
    dt_no_grad_end();
    dt_end();
    return right;
}

static void progress(int step, int steps, double loss, double start)
{
    double t = now() - start, rate = step / t, left = (steps - step) / rate;
    if (!isatty(1)) {
        if (step % (steps / 10 ? steps / 10 : 1) == 0)
            printf("step %5d/%d  loss %.4f  %.0f points/s  %.1f s left\n", step, steps, loss, rate * (double)BATCH, left);
        return;
    }
    char bar[31];
    for (int i = 0; i < 30; i++) bar[i] = i < 30 * step / steps ? '#' : '.';
    bar[30] = 0;
    printf("\r[%s] step %d/%d  loss %.4f  %.0f points/s  %.1f s left ", bar, step, steps, loss, rate * (double)BATCH, left);
    if (step == steps) printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int         done = example_options(argc, argv, spirals_help), steps = atoi(example_option(argc, argv, "--steps", "3000"));
    const char *threads = example_option(argc, argv, "--threads", NULL);
    if (done >= 0) return done;
    if (threads) dt_set_num_threads(atoi(threads));
    if (steps < 1) {
        fprintf(stderr, "spirals: --steps must be 1 or more\n");
        return 2;
    }
    dt_manual_seed(1);
    int64_t    size[4] = { 2, HIDDEN, HIDDEN, 2 };
    dt_tensor *p[NPARAMS];
    for (int i = 0; i < 3; i++) {
        double bound = 1 / __builtin_sqrt((double)size[i]);
        p[2 * i] = dt_set_requires_grad(dt_uniform(-bound, bound, DT_SHAPE(size[i + 1], size[i])));
        p[2 * i + 1] = dt_set_requires_grad(dt_uniform(-bound, bound, DT_SHAPE(size[i + 1])));
    }
    dt_block all;
    dt_pack(&all, p, NPARAMS);
    dt_tensor *velocity = dt_keep(dt_zeros(dt_shape_of(all.value)));

    printf("two spirals, MLP 2-%d-%d-2, batch %d, SGD with momentum, %s kernels on %d threads\n", HIDDEN, HIDDEN, BATCH,
           dt_cpu_isa(), dt_get_num_threads());
    double start = now(), loss = 0;
    for (int step = 1; step <= steps && !dt_error(); step++) {
        dt_tensor *x, *y;
        make_batch(BATCH, &x, &y);
        dt_tensor *l = dt_cross_entropy(net(p, x), y);
        dt_backward(l);
        dt_copy(velocity, dt_mul_scalar(velocity, 0.9)); /* v = 0.9 v + g;  w -= lr v */
        dt_add_to(velocity, all.grad, 1);
        dt_add_to(all.value, velocity, -0.1);
        dt_block_zero_grad(&all);
        if (step % 20 == 0 || step == steps) {
            loss = dt_item(l);
            progress(step, steps, loss, start);
        }
        dt_end();
    }
    double right = accuracy(p);
    if (!dt_error()) printf("%.2f s, loss %.4f, %.1f %% of 4096 new points right\n", now() - start, loss, 100 * right);

    for (int i = 0; i < NPARAMS; i++) dt_free(p[i]);
    dt_free(velocity);
    dt_block_free(&all);
    return dt_check("spirals") || (steps >= 3000 && right < 0.95);
}
