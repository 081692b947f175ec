/* A model on a grid of ranks: data x pipeline x tensor parallel, with one trainer. Any grid learns the same.

   Build: cc -O2 -I.. hybrid.c -o hybrid -lm -lpthread
   Run:   ./hybrid                        four processes: pipe 2 x tensor 2; then one process, for comparison
          ./hybrid --data 2 --pipe 2 --tensor 2 */
#define DT_IMPLEMENTATION
#include "dt_pipe.h"
#include "example_data.h"
#include <math.h>
#include <sys/mman.h>

static const char *const hybrid_help = "hybrid [options]: data x pipeline x tensor parallel\n"
                                       "    --digits DIR    data/digits\n"
                                       "    --data N        1\n"
                                       "    --pipe N        2\n"
                                       "    --tensor N      2\n"
                                       "    --epochs N      2\n";
static double *losses; /* shared by the processes: the last loss of each run */

static dt_tensor *loss_of(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    x = dt_linear(m, "fc1", dt_flatten(x), .out = 64, .split = DT_SPLIT_OUT);    /* half of the columns on each rank of the tensor axis */
    x = dt_linear(m, "fc2", dt_relu(x), .out = 64, .split = DT_SPLIT_IN);        /* half of the rows; their sum is whole again */
    x = dt_stage(m, "second", x);                                                /* from here on: the next rank of the pipe axis */
    x = dt_linear(m, "fc3", dt_relu(x), .out = 64, .split = DT_SPLIT_OUT);
    x = dt_linear(m, "fc4", dt_relu(x), .out = 10, .split = DT_SPLIT_IN);
    return dt_cross_entropy(x, y);
}
typedef struct layout {
    const example_args *a;
    int                 data, pipe, tensor, run;
} layout;
static int trainer(void *arg)
{
    const layout *l = (const layout *)arg;
    int           epochs = atoi(example_option(l->a->argc, l->a->argv, "--epochs", "2"));
    dt_dataset   *train, *test;
    dt_comm      *c = example_comm(l->a->argc, l->a->argv);
    if (!c) return 1;
    example_digits(example_option(l->a->argc, l->a->argv, "--digits", "data/digits"), 1, 8, 1, &train, &test);
    dt_grid      *g = dt_grid_new(c, .data = l->data, .pipe = l->pipe, .tensor = l->tensor);
    int           part = dt_grid_rank(g, DT_AXIS_DATA);
    dt_loader    *in = dt_loader_new(train, .batch = 64 / l->data, .shuffle = true, .drop_last = true, .seed = 1, .rank = part, .world = l->data);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_pipeline  *p = dt_hybrid_new(m, g, .micro = 4);
    double        loss = 0;
    while (dt_loader_epoch(in) < epochs && !dt_error())
        for (dt_batch b; dt_loader_next(in, &b);) {
            dt_pipeline_backward(p, loss_of, NULL, b.x, b.y, &loss);
            dt_step(opt);
        }
    if (dt_comm_rank(c) == 0 && !dt_error()) {
        char text[4000] = "";
        dt_grid_describe(g, text, sizeof text);
        printf("data %d x pipe %d x tensor %d: loss %.4f\n%s", l->data, l->pipe, l->tensor, loss, text);
        fflush(stdout);
        losses[l->run] = loss;
    }
    dt_pipeline_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_grid_free(g);
    dt_loader_free(in);
    dt_dataset_free(train);
    dt_dataset_free(test);
    dt_comm_free(c);
    return dt_check("hybrid");
}
int main(int argc, char **argv)
{
    int          done = example_options(argc, argv, hybrid_help);
    example_args a = { argc, argv, NULL };
    layout       l = { &a, atoi(example_option(argc, argv, "--data", "1")), atoi(example_option(argc, argv, "--pipe", "2")),
                       atoi(example_option(argc, argv, "--tensor", "2")), 0 };
    layout       one = { &a, 1, 1, 1, 1 };
    if (done >= 0) return done;
    if (l.data < 1 || l.pipe < 1 || l.tensor < 1 || l.data * l.pipe * l.tensor > 64 || 64 % l.data)
        return fprintf(stderr, "hybrid: --data, --pipe and --tensor take 1 and more, at most 64 ranks; --data divides the batch of 64\n"), 2;
    losses = (double *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (losses == MAP_FAILED) return perror("hybrid"), 1;
    int rc = dt_spawn(l.data * l.pipe * l.tensor, trainer, &l);
    if (!rc) rc = dt_spawn(1, trainer, &one);
    if (!rc) printf("difference of the losses: %.1e\n", fabs(losses[0] - losses[1]));
    return rc || !(fabs(losses[0] - losses[1]) < 1e-2);
}
