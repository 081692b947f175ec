/* test_grid.c: ranks on three axes, hybrid training over them: places, samples, one norm, one verdict, one checkpoint, errors
   run: alone, asan-later */
#define DT__WANT_INSIDE
#include "dt_test.h"

#include "dt_data.h"
#include "dt_pipe.h"
#include "teams.h"
#include "temp_files.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()
#define CHECK(what) team_check(t, what, #what, __LINE__, rank, c)

/* ==================================================================================================== >>grid */
static void placed(team *t, dt_comm *c, int rank)
{
    (void)t;
    dt_grid *g = dt_grid_new(c, .data = 2, .pipe = 2, .tensor = 2);
    CHECK(g != NULL);
    int d = dt_grid_rank(g, DT_AXIS_DATA), p = dt_grid_rank(g, DT_AXIS_PIPE), x = dt_grid_rank(g, DT_AXIS_TENSOR);
    CHECK((d * 2 + p) * 2 + x == rank); /* the tensor axis is the innermost */
    for (int a = 0; a < DT_AXES; a++) {
        dt_comm *axis = dt_grid_comm(g, (dt_axis)a);
        int32_t  sum = rank;
        CHECK(dt_comm_size(axis) == 2 && dt_grid_size(g, (dt_axis)a) == 2 && dt_comm_rank(axis) == dt_grid_rank(g, (dt_axis)a));
        CHECK(!dt_comm_allreduce(axis, &sum, 1, DT_COMM_I32, DT_COMM_SUM));
        CHECK(sum == rank + dt_grid_at(g, a == DT_AXIS_DATA ? !d : d, a == DT_AXIS_PIPE ? !p : p, a == DT_AXIS_TENSOR ? !x : x));
    }
    CHECK(dt_grid_at(g, d, p, x) == rank && dt_grid_at(g, 2, 0, 0) == -1 && dt_grid_at(g, 0, -1, 0) == -1);
    char text[600];
    CHECK(dt_grid_describe(g, text, sizeof text) < sizeof text && strstr(text, "data 1, pipe 0, tensor 1: rank 5 on machine 0\n"));
    CHECK(!dt_grid_comm(g, (dt_axis)3) && dt_grid_size(g, (dt_axis)3) == 1 && !strcmp(dt_axis_name(DT_AXIS_PIPE), "pipe"));
    dt_grid_free(g);
    g = dt_grid_new(c, .pipe = 4); /* .data is what is left */
    CHECK(g && dt_grid_size(g, DT_AXIS_DATA) == 2 && dt_grid_size(g, DT_AXIS_TENSOR) == 1 && dt_comm_size(dt_grid_comm(g, DT_AXIS_TENSOR)) == 1);
    dt_grid_free(g);
    CHECK(!dt_error());
    CHECK(!dt_comm_free(c));
}
static int run(const char *how, int n, double timeout, void (*fn)(team *t, dt_comm *c, int rank), int arg, int arg2, int done)
{
    team t = team_of(how, n, timeout, fn);
    t.arg = arg;
    t.arg2 = arg2;
    int failed = team_run(&t);
    return failed + (t.done != done);
}
UTEST(grid, ranks_have_a_place_on_every_axis)
{
    EXPECT_EQ(0, run("shm", 8, 30, placed, 0, 0, 8));
    EXPECT_EQ(0, run("threads", 8, 30, placed, 0, 0, 8));
}
UTEST(grid, a_machine_has_the_inner_axes) /* ranks 0 3 6 on one machine, 1 4 on another, 2 5 7 on a third */
{
    const int host[] = { 0, 1, 2, 0, 1, 2, 0, 2 }, rank[] = { 0, 3, 6, 1, 4, 2, 5, 7 }, at[] = { 0, 0, 0, 1, 1, 2, 2, 2 };
    int       rank_at[8], host_at[8];
    dt__grid_order(host, 8, rank_at, host_at);
    for (int i = 0; i < 8; i++) EXPECT_TRUE(rank_at[i] == rank[i] && host_at[i] == at[i]);
}
enum { PRODUCT, INDIVISIBLE, NEGATIVE, UNEQUAL, HUGE_AXES, GRID_ERRORS };
static void misfits(team *t, dt_comm *c, int rank)
{
    static const char *const text[GRID_ERRORS] = {
        "dt_grid_new: data x pipe x tensor is 2 x 2 x 2, but there are 4 ranks; the product must be the number of ranks",
        "dt_grid_new: data x pipe x tensor is 3 x 1, which does not divide them, but there are 4 ranks",
        "dt_grid_new: .data is -1", "the ranks have different options: .pipe is", "65536 x 65536" };
    dt_grid_opts o[GRID_ERRORS] = { { .data = 2, .pipe = 2, .tensor = 2 }, { .pipe = 3 }, { .data = -1 }, { .pipe = rank == 2 ? 4 : 2 },
                                    { .data = 1, .pipe = 65536, .tensor = 65536 } };
    dt_grid *g = dt_grid_new_with(c, o[t->arg]);
    CHECK(!g && dt_error() && strstr(dt_error(), text[t->arg]));
    if (!dt_error() || !strstr(dt_error(), text[t->arg])) printf("    %s\n", dt_error() ? dt_error() : "no error");
    dt_error_clear();
    dt_comm_free(c);
}
UTEST(grid, a_product_that_does_not_match_is_a_clear_error)
{
    for (int k = 0; k < GRID_ERRORS; k++) EXPECT_EQ(0, run("shm", 4, 30, misfits, k, 0, 4));
    EXPECT_TRUE(dt_grid_new(NULL, .data = 1) == NULL && strstr(dt_error(), "the communicator is NULL"));
    dt_error_clear();
    dt_grid_free(NULL);
}

/* ==================================================================================================== >>training */
enum { WIDE = 12, EACH = 8 }; /* samples of a data rank */
static dt_tensor *net(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* four stages; user: how many of them are used */
{
    static const char *const names[] = { "second", "third", "fourth" };
    int stages = *(int *)user;
    for (int i = 0; i < 4; i++) {
        char name[2][16];
        snprintf(name[0], sizeof name[0], "fc%d", i);
        snprintf(name[1], sizeof name[1], "proj%d", i);
        dt_tensor *h = dt_tanh(dt_linear(m, name[0], x, .out = 16, .split = DT_SPLIT_OUT));
        x = dt_add(x, dt_dropout(m, dt_linear(m, name[1], h, .out = WIDE, .split = DT_SPLIT_IN), 0.1));
        if (i < 3 && (i + 1) * stages % 4 == 0) x = dt_stage(m, names[i], x);
    }
    return dt_mse_loss(dt_linear(m, "out", x, .out = 1), y);
}
typedef struct rig {
    dt_grid       *g;
    dt_model      *m;
    dt_optimizer  *opt;
    dt_amp        *amp;
    dt_pipeline   *p;
    int            stages;
} rig;
static rig rig_of(dt_comm *c, int data, int pipe, int tensor, const char *level)
{
    rig r;
    memset(&r, 0, sizeof r);
    r.g = dt_grid_new(c, .data = data, .pipe = pipe, .tensor = tensor);
    r.m = dt_model_new(.seed = 3);
    r.opt = dt_adamw(r.m, .lr = 0.01, .clip_norm = 0.05);
    r.amp = level ? dt_amp_new(r.m, .level = level, .dtype = DT_F16, .init_scale = 1024) : NULL;
    r.p = dt_hybrid_new(r.m, r.g, .micro = 2, .amp = r.amp);
    r.stages = pipe;
    return r;
}
static void rig_free(rig *r)
{
    dt_pipeline_free(r->p);
    dt_amp_free(r->amp);
    dt_optimizer_free(r->opt);
    dt_model_free(r->m);
    dt_grid_free(r->g);
}
static void batch(const rig *r, dt_tensor **x, dt_tensor **y) /* 2 * EACH samples for all; each data rank takes its part */
{
    int     at = dt_grid_rank(r->g, DT_AXIS_DATA), n = 2 * EACH / dt_grid_size(r->g, DT_AXIS_DATA);
    dt_tensor *all = dt_normal(0, 1, DT_SHAPE(2 * EACH, WIDE));
    *x = dt_narrow(all, 0, at * n, n);
    *y = dt_sum(*x, .dims = DT_DIM(1), .keepdim = true);
}
static double step(rig *r)
{
    dt_tensor *x, *y;
    double     loss = NAN;
    batch(r, &x, &y);
    dt_pipeline_backward(r->p, net, &r->stages, x, y, &loss);
    dt_step(r->opt);
    return loss;
}
/* Two steps on a grid, a checkpoint, two more on another grid of the same ranks: each near one rank that does all. arg: the grids. */
static char *files;
static const int grids[][3] = { { 1, 1, 1 }, { 2, 1, 1 }, { 1, 2, 1 }, { 1, 1, 2 }, { 2, 2, 1 }, { 2, 1, 2 }, { 1, 2, 2 }, { 1, 4, 1 }, { 1, 1, 4 }, { 2, 2, 2 } };
enum { GRIDS = sizeof grids / sizeof *grids };
static void phase(team *t, dt_comm *c, int rank) /* arg: the grid; arg2: 0: from the start, 1: resumes */
{
    const int *k = grids[t->arg];
    int64_t    epoch = 0, at = 0;
    rig        r = rig_of(c, k[0], k[1], k[2], NULL);
    dt_checkpoint *save = dt_checkpoint_new(files, .model = r.m, .optimizer = r.opt);
    dt_manual_seed(7);
    CHECK(dt_checkpoint_resume(save, &epoch, &at) == t->arg2);
    CHECK(at == 2 * t->arg2);
    double loss = 0;
    for (int i = 0; i < 2; i++) loss = step(&r);
    CHECK(!dt_checkpoint_save(save, 0, at + 2));
    if (rank == 0) memcpy(&t->bits, &loss, sizeof loss);
    double all[2] = { loss, -loss };
    CHECK(!dt_comm_allreduce(c, all, 2, DT_COMM_F64, DT_COMM_MAX) && all[0] == -all[1]); /* the same on all ranks */
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    dt_checkpoint_free(save);
    rig_free(&r);
    CHECK(!dt_comm_free(c));
}
static void two_phases(int *utest_result, int first, int second, char *keep, double *loss) /* the last one */
{
    *loss = NAN;
    files = temp_dir();
    for (int i = 0; i < 2; i++) {
        const int *k = grids[i ? second : first];
        team       t = team_of("shm", k[0] * k[1] * k[2], 30, phase);
        t.arg = i ? second : first;
        t.arg2 = i;
        EXPECT_EQ(0, team_run(&t));
        memcpy(loss, &t.bits, sizeof *loss);
    }
    snprintf(keep, 400, "%s", files);
    free(files);
}
static double differ(const char *a, const char *b) /* of the weights and states of two checkpoints */
{
    char path[2][500];
    snprintf(path[0], sizeof path[0], "%s/ckpt-%08d.safetensors", a, 4);
    snprintf(path[1], sizeof path[1], "%s/ckpt-%08d.safetensors", b, 4);
    dt_archive *x = dt_archive_open(path[0]), *y = dt_archive_open(path[1]);
    double      most = x && y && dt_archive_count(x) == dt_archive_count(y) ? 0 : -1;
    for (int64_t i = 0; most >= 0 && i < dt_archive_count(x); i++) {
        dt_archive_entry e, f;
        if (!dt_archive_info(x, i, &e) || !dt_archive_info(y, dt_archive_find(y, e.name), &f) || e.nbytes != f.nbytes) {
            printf("    '%s' is missing or differs\n", e.name);
            most = -1;
            break;
        }
        const float *p = (const float *)dt_archive_data(x, i), *q = (const float *)dt_archive_data(y, dt_archive_find(y, e.name));
        for (size_t n = 0; e.dtype == DT_F32 && n < e.nbytes / 4; n++) {
            double d = fabs((double)p[n] - (double)q[n]);
            if (!(d <= most)) most = d;
        }
    }
    dt_archive_free(x);
    dt_archive_free(y);
    return most;
}
UTEST(hybrid, any_grid_loads_any_checkpoint)
{
    char   whole[400], other[400];
    double loss, l;
    two_phases(utest_result, 0, 0, whole, &loss);
    for (int i = 0; i < GRIDS; i++)
        for (int k = 0; k < GRIDS; k++) {
            if (dt_test_quick() && (i * 3 + k) % 7) continue;
            two_phases(utest_result, i, k, other, &l);
            double d = differ(whole, other);
            /* dropout draws other numbers on each data rank, as it does with a ddp */
            bool same_draws = grids[i][0] == 1 && grids[k][0] == 1;
            if (same_draws) EXPECT_NEAR(loss, l, 1e-4);
            if (same_draws) EXPECT_TRUE(d >= 0 && d < 2e-3);
            EXPECT_GE(d, 0);
            if (same_draws && !(d >= 0 && d < 2e-3)) printf("    grids %d and %d: %g\n", i, k, d);
            temp_remove(strdup(other));
        }
    temp_remove(strdup(whole));
}
/* Ranks that differ only on the data axis have the same bits. */
static void same_on_data(team *t, dt_comm *c, int rank, const rig *r)
{
    dt_comm *data = dt_grid_comm(r->g, DT_AXIS_DATA);
    int      compared = 0;
    for (int i = 0; i < dt_model_count(r->m); i++) {
        dt_parameter_info p;
        dt_model_get(r->m, i, &p);
        if (!strcmp(dt_device_name(dt_device_of(p.value)), "elsewhere")) continue;
        size_t n = (size_t)dt_numel(p.value) * (size_t)dt_dtype_nbytes(dt_dtype_of(p.value));
        char  *mine = (char *)malloc(n + 1), *first = (char *)malloc(n + 1);
        dt_copy_out(p.value, mine, n);
        memcpy(first, mine, n);
        CHECK(!dt_comm_broadcast(data, first, (int64_t)n, DT_COMM_U8, 0));
        CHECK(!memcmp(first, mine, n));
        free(mine), free(first);
        compared++;
    }
    CHECK(compared > 3);
}
/* One data rank has an overflow: all ranks of the grid skip the step. arg: the level. */
static void overflows(team *t, dt_comm *c, int rank)
{
    rig        r = rig_of(c, 2, 2, t->n / 4, t->arg ? "O2" : "O1");
    dt_tensor *x, *y;
    double     scale;
    step(&r);
    scale = dt_amp_scale(r.amp, 0);
    batch(&r, &x, &y);
    if (dt_grid_rank(r.g, DT_AXIS_DATA) == 1) y = dt_mul_scalar(y, 3e18); /* only the last stage of these ranks sees it */
    CHECK(!dt_pipeline_backward(r.p, net, &r.stages, x, y, NULL));
    CHECK(!dt_step(r.opt));
    CHECK(dt_amp_scale(r.amp, 0) == scale / 2);
    for (int i = 0; i < 3; i++) step(&r);
    same_on_data(t, c, rank, &r);
    if (dt_error()) printf("    rank %d: %s\n", rank, dt_error());
    CHECK(!dt_error());
    rig_free(&r);
    CHECK(!dt_comm_free(c));
}
UTEST(hybrid, one_verdict_on_an_overflow)
{
    for (int level = 0; level < 2; level++) {
        EXPECT_EQ(0, run("shm", 4, 30, overflows, level, 0, 4));
        EXPECT_EQ(0, run("shm", 8, 30, overflows, level, 0, 8));
    }
}
/* Without mixed precision: an error on all ranks. */
static void not_finite(team *t, dt_comm *c, int rank)
{
    rig        r = rig_of(c, 2, 2, t->n / 4, NULL);
    dt_tensor *x, *y;
    step(&r);
    batch(&r, &x, &y);
    if (dt_grid_rank(r.g, DT_AXIS_DATA) == 1) y = dt_mul_scalar(y, INFINITY);
    dt_pipeline_backward(r.p, net, &r.stages, x, y, NULL);
    dt_step(r.opt);
    CHECK(dt_error() && strstr(dt_error(), "not finite"));
    if (dt_error() && !strstr(dt_error(), "not finite")) printf("    %s\n", dt_error());
    dt_error_clear();
    rig_free(&r);
    dt_comm_free(c);
}
UTEST(hybrid, one_verdict_on_gradients)
{
    EXPECT_EQ(0, run("shm", 4, 30, not_finite, 0, 0, 4));
    EXPECT_EQ(0, run("shm", 8, 30, not_finite, 0, 0, 8));
}
/* The loader takes the place on the data axis: ranks that differ only on the others see the same samples, by their SHA-256. */
static void samples(team *t, dt_comm *c, int rank)
{
    (void)t;
    dt_grid    *g = dt_grid_new(c, .data = 2, .pipe = 2, .tensor = 2);
    dt_dataset *set = dt_idx_open("data/digits/digits-images-idx3-ubyte", .labels = "data/digits/digits-labels-idx1-ubyte", .classes = 10);
    dt_loader  *in = dt_loader_new(set, .batch = 50, .shuffle = true, .seed = 4, .digest = true, .rank = dt_grid_rank(g, DT_AXIS_DATA),
                                   .world = dt_grid_size(g, DT_AXIS_DATA));
    int64_t     n = 0;
    for (dt_batch b; dt_loader_next(in, &b) && n < 10; dt_end(), n++) {
        char mine[65], *all = (char *)calloc(8, sizeof mine);
        memcpy(mine, b.sha256, sizeof mine);
        CHECK(strlen(mine) == 64);
        CHECK(!dt_comm_allgather(c, mine, all, (int64_t)sizeof mine, NULL, DT_COMM_U8));
        for (int r = 0; r < 8; r++) CHECK(!strcmp(all + r * (int)sizeof mine, mine) == (r / 4 == rank / 4));
        free(all);
    }
    CHECK(n == 10 && !dt_error());
    dt_loader_free(in);
    dt_dataset_free(set);
    dt_grid_free(g);
    CHECK(!dt_comm_free(c));
}
UTEST(hybrid, the_loader_takes_the_data_axis) { EXPECT_EQ(0, run("shm", 8, 30, samples, 0, 0, 8)); }

/* ==================================================================================================== >>errors */
enum { OTHER_SAMPLES_PIPE, OTHER_SAMPLES_TENSOR, OTHER_MICRO, OTHER_LAYER, LATE, TWICE, STAGES, FAILS_ALONE, HYBRID_ERRORS };
static dt_tensor *odd(dt_model *m, dt_tensor *x, dt_tensor *y, void *user) /* user: the width of one layer */
{
    dt_tensor *h = dt_linear(m, "fc", x, .out = *(int *)user);
    return dt_mse_loss(dt_linear(m, "out", dt_stage(m, "second", h), .out = 1), y);
}
static dt_tensor *fails(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    dt_tensor *l = net(m, x, y, user);
    if (user && dt_model_is_sealed(m) && ((int *)user)[1]) dt_fail(DT_ERR_ARG, "the program of this rank has failed");
    return l;
}
static void hybrid_errors(team *t, dt_comm *c, int rank)
{
    static const char *const text[HYBRID_ERRORS] = {
        "rank 1 of the pipe axis has other samples than rank 0 of it (their SHA-256 differs)",
        "rank 1 of the tensor axis has other samples than rank 0 of it",
        "dt_hybrid_new: the ranks have different options: .micro is between 2 and 4", "the models differ: number ",
        "dt_hybrid_new: the model has parameters already", "dt_hybrid_new: the model", "the forward has 4 stages (3 calls of dt_stage), expected 2",
        "the program of this rank has failed" };
    int      width = rank >= t->n / 2 ? 14 : 16, how[2] = { 2, rank == 3 };
    dt_grid *g = dt_grid_new(c, .data = 2, .pipe = t->arg == OTHER_SAMPLES_TENSOR ? 1 : 2, .tensor = t->arg == OTHER_SAMPLES_TENSOR ? 2 : 1);
    dt_model *m = dt_model_new(.seed = 3), *more = NULL;
    if (t->arg == LATE) dt_linear(m, "fc", dt_full(1, DT_SHAPE(2, 2)), .out = 2);
    dt_pipeline *p = dt_hybrid_new(m, g, .micro = t->arg == OTHER_MICRO && rank == 1 ? 4 : 2);
    dt_pipeline *q = t->arg == TWICE ? dt_hybrid_new(m, g, .micro = 2) : NULL;
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    CHECK(!q);
    dt_manual_seed(t->arg <= OTHER_SAMPLES_TENSOR ? (uint64_t)rank : 5);
    if (t->arg == STAGES) how[0] = 4;
    if (t->arg == OTHER_SAMPLES_TENSOR) how[0] = 1;
    for (int i = 0; i < 3 && !dt_error() && p; i++) {
        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(EACH, WIDE)), *y = dt_sum(x, .dims = DT_DIM(1), .keepdim = true);
        if (t->arg == OTHER_LAYER) dt_pipeline_backward(p, odd, &width, x, y, NULL);
        else dt_pipeline_backward(p, t->arg == FAILS_ALONE ? fails : net, how, x, y, NULL);
        dt_step(opt);
    }
    CHECK(dt_error() && strstr(dt_error(), text[t->arg]));
    if (!dt_error() || !strstr(dt_error(), text[t->arg])) printf("    rank %d, %d: %s\n", rank, t->arg, dt_error() ? dt_error() : "no error");
    dt_error_clear();
    dt_pipeline_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_model_free(more);
    dt_grid_free(g);
    dt_comm_free(c);
}
UTEST(errors, are_those_of_all_ranks)
{
    for (int k = 0; k < HYBRID_ERRORS; k++) EXPECT_EQ(0, run("shm", 4, 10, hybrid_errors, k, 0, 4));
}
/* arg 0: a rank dies; 1: it is stopped. All others end, with an error that names it. */
static void loses_a_rank(team *t, dt_comm *c, int rank)
{
    rig r = rig_of(c, 2, 2, 2, NULL);
    step(&r);
    if (rank == 6) raise(t->arg ? SIGSTOP : SIGKILL);
    for (int i = 0; i < 100000 && !dt_error(); i++) step(&r);
    CHECK(dt_error() && strstr(dt_error(), "rank 6 "));
    if (dt_error() && !strstr(dt_error(), "rank 6 ")) printf("    rank %d: %s\n", rank, dt_error());
    bool shares = rank == 2 || rank == 4 || rank == 7; /* an axis with it: data, pipe, tensor. The others repeat what they are told */
    if (shares && dt_error()) CHECK(strstr(dt_error(), "axis)"));
    if (shares && dt_error() && !strstr(dt_error(), "axis)")) printf("    rank %d: %s\n", rank, dt_error());
    team_set(t, 0);
    if (t->arg && rank == 0) {
        team_await(t, 0, 7);
        kill(t->pid[6], SIGKILL);
    }
    dt_error_clear();
    rig_free(&r);
    dt_comm_free(c);
}
UTEST(errors, a_rank_that_dies_or_stops_is_named_by_its_place)
{
    EXPECT_EQ(0, run("shm", 8, 1.5, loses_a_rank, 0, 0, 7));
    EXPECT_EQ(0, run("tcp", 8, 1.5, loses_a_rank, 1, 0, 7));
}
