/* Tensors: making, shapes, broadcasting, views, reductions, and errors as values.

   Build: cc -O2 -I.. tensors.c -o tensors -lm -lpthread */
#define DT_IMPLEMENTATION
#include "dt.h"
#include "options.h"

static const char *const tensors_help = "tensors: prints what operations on tensors give: shapes, views, sums, an error\n";

static void show(const char *what, dt_tensor *t)
{
    char text[1000];
    dt_to_string(t, text, sizeof text);
    printf("%-28s %s\n", what, text);
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, tensors_help);
    if (done >= 0) return done;
    float      v[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } };
    dt_tensor *x = dt_from(v, DT_SHAPE(2, 3)), *row = dt_arange(10, 40, 10);
    show("x", x);
    show("x + (10, 20, 30)", dt_add(x, row));                       /* broadcast over the rows */
    show("x times its transpose", dt_matmul(x, dt_transpose(x, 0, 1)));
    show("sums of columns", dt_sum(x, .dims = DT_DIM(0)));
    show("the mean", dt_mean(x));                                   /* no .dims: all dimensions */
    show("columns 1 and 2", dt_narrow(x, 1, 1, 2));                 /* a view: nothing is copied */
    show("where x > 2, else 0", dt_where(dt_gt(x, dt_full(2, DT_SCALAR)), x, dt_full(0, DT_SCALAR)));
    show("as bf16", dt_cast(dt_div_scalar(x, 3), DT_BF16));
    dt_manual_seed(1);
    show("PyTorch's randn, seed 1", dt_normal(0, 1, DT_SHAPE(4)));

    dt_tensor *bad = dt_sum(dt_matmul(x, x));                       /* fails; later calls do nothing */
    printf("%-28s %s\n", bad ? "?" : "an error is a value:", dt_error());
    dt_error_clear();
    dt_end();                                                       /* all tensors of this step are gone */
    return dt_check("tensors");
}
