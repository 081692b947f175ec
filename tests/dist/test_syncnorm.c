/* test_syncnorm.c: batch norm over all ranks is batch norm of the whole batch: equal and unequal parts, none on a rank,
   ranks that skip, mixed precision, fused relu and add, mistakes
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_dist.h"
#include "crew.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

UTEST_MAIN()

enum { CH = 3, HW = 4, OUT = 3, PIX = CH * HW * HW };
static void sample(int i, float *x, int64_t *y)
{
    uint32_t r[4] = { 0, 0, 0, 0 };
    for (int k = 0; k < PIX; k++) {
        dt_philox(11, (uint64_t)i * PIX + (uint64_t)k, r);
        x[k] = (float)r[0] / 4294967296.0f * 2 + (float)(k % CH) * 3; /* means far from 0 */
    }
    *y = (int64_t)(r[1] % OUT);
}
static dt_tensor *batch(int first, int n, dt_tensor **y)
{
    static float x[64 * PIX];
    int64_t      label[64];
    for (int i = 0; i < n; i++) sample(first + i, x + i * PIX, label + i);
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
    return dt_from(x, DT_SHAPE(n, CH, HW, HW));
}
/* 4-d with relu and with a residual, 3-d, 2-d without weights, cumulative */
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    dt_tensor *h = dt_batchnorm2d(m, "first", x), *s;
    h = dt_batchnorm2d(m, "bn1", dt_conv2d(m, "conv1", h, .out = 6, .kernel = 3, .pad = 1), .act = DT_ACT_RELU);
    s = dt_conv2d(m, "conv2", h, .out = 6, .kernel = 3, .pad = 1, .no_bias = true);
    h = dt_batchnorm2d(m, "bn2", s, .act = DT_ACT_RELU, .add = h, .momentum = 0.3, .eps = 1e-3);
    h = dt_batchnorm1d(m, "bn3", dt_reshape(h, DT_SHAPE(dt_size(h, 0), 6, HW * HW)), .cumulative = true);
    h = dt_linear(m, "fc", dt_flatten(h), .out = 8);
    h = dt_batchnorm1d(m, "bn4", h, .no_affine = true);
    return dt_linear(m, "out", h, .out = OUT);
}
/* parameters (1), buffers (2) or gradients (3), one behind the other */
static int values(dt_model *m, int what, float *out)
{
    int           n = 0;
    dt_parameter_info p;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        dt_tensor *t = what == 3 ? dt_grad(p.value) : p.value;
        if (p.buffer != (what == 2) || !t || dt_dtype_of(t) == DT_I64) continue;
        t = dt_cast(t, DT_F32);
        dt_copy_out(t, out + n, dt_nbytes(t));
        n += (int)dt_numel(t);
    }
    return n;
}
static double far(const float *a, const float *b, int n)
{
    double worst = n ? 0 : INFINITY;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]) / (1e-2 + fabs((double)b[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}
static void same_bits(crew *k, dt_model *m, int what, const char *text)
{
    float *x = k->box->x[k->rank];
    int    n = values(m, what, x);
    k->box->number[k->rank] = n;
    dt_comm_barrier(k->c);
    for (int r = 0; r < k->world; r++)
        crew_check(k, n > 0 && k->box->number[r] == n && !memcmp(x, k->box->x[r], (size_t)n * sizeof *x), text);
    dt_comm_barrier(k->c);
}
static void alike(crew *k, dt_model *m, dt_model *whole, int what, double tolerance, const char *text)
{
    static float a[8192], b[8192];
    int          n = values(m, what, a), w = values(whole, what, b);
    double       d = far(a, b, n);
    if (!crew_check(k, n == w && d < tolerance, text)) printf("    %d, %d values, apart by %g\n", n, w, d);
}

/* ---------------------------------------------------------------------------------------------------- whole batch */
/* how many samples rank r has, and where in the step's global batch they begin */
static int part(int how, int r, int world, int *first)
{
    int n[8], at = 0;
    for (int i = 0; i < world; i++) n[i] = how == 0 ? 4 : how == 1 ? 2 + 3 * i : i == 1 ? 0 : 5 + i;
    for (int i = 0; i < r; i++) at += n[i];
    *first = at;
    return n[r];
}
typedef struct plan {
    int how, steps;
} plan;
static void whole_batch(crew *k)
{
    const plan   *p = (const plan *)k->arg;
    dt_model     *m = dt_model_new(.seed = 3 + (uint64_t)k->rank), *whole = dt_model_new(.seed = 3);
    dt_ddp       *d = dt_ddp_new(m, k->c, .sync_batchnorm = true, .bucket_mb = 1e-4, .first_bucket_mb = 1e-4);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9), *ref = dt_sgd(whole, .lr = 0.05, .momentum = 0.9);
    int           first, n = part(p->how, k->rank, k->world, &first), all, unused;
    static float  mine[64 * OUT], theirs[64 * OUT];
    all = part(p->how, k->world - 1, k->world, &unused) + unused;
    for (int s = 0; s < p->steps; s++) {
        dt_tensor *y, *x = batch(s * all + first, n, &y), *h = net(m, x);
        if (p->how) dt_ddp_samples(d, n);
        dt_copy_out(h, mine, (size_t)n * OUT * sizeof(float));
        dt_backward(dt_div_scalar(dt_cross_entropy(h, y, .reduction = DT_SUM), n ? n : 1));
        x = batch(s * all, all, &y);
        h = net(whole, x);
        dt_copy_out(h, theirs, (size_t)all * OUT * sizeof(float));
        dt_backward(dt_cross_entropy(h, y));
        double tolerance = s < 5 ? 2e-3 : 5e-2;
        if (n) crew_check(k, far(mine, theirs + first * OUT, n * OUT) < tolerance, "outputs");
        alike(k, m, whole, 3, tolerance, "gradients");
        alike(k, m, whole, 2, tolerance, "running statistics");
        dt_step(opt);
        dt_step(ref);
    }
    alike(k, m, whole, 1, 5e-2, "weights");
    same_bits(k, m, 1, "weights of other bits");
    same_bits(k, m, 2, "running statistics of other bits");
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_optimizer_free(ref);
    dt_model_free(m);
    dt_model_free(whole);
}
UTEST(syncnorm, is_batch_norm_of_the_whole_batch)
{
    plan p = { 0, 50 };
    for (int n = 2; n <= 4; n++) EXPECT_EQ(0, crew_run(n == 3 ? "tcp" : "shm", n, whole_batch, &p));
}
UTEST(syncnorm, counts_samples_of_unequal_parts)
{
    plan p = { 1, 20 };
    EXPECT_EQ(0, crew_run("shm", 2, whole_batch, &p));
    EXPECT_EQ(0, crew_run("shm", 3, whole_batch, &p));
    p.how = 2; /* one rank has none */
    EXPECT_EQ(0, crew_run("shm", 2, whole_batch, &p));
    EXPECT_EQ(0, crew_run("shm", 3, whole_batch, &p));
}
/* rank r has 2 + r batches; the reference has those there are as one batch */
static void run_out(crew *k)
{
    int           weighted = *(int *)k->arg;
    dt_model     *m = dt_model_new(.seed = 3), *whole = dt_model_new(.seed = 3);
    dt_ddp       *d = dt_ddp_new(m, k->c, .sync_batchnorm = true, .bucket_mb = 1e-4, .first_bucket_mb = 1e-4);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05), *ref = dt_sgd(whole, .lr = 0.05);
    dt_tensor    *x, *y;
    int           steps = 0;
    for (;; steps++) {
        bool have = steps < 2 + k->rank;
        if (!dt_ddp_more(d, have)) break;
        if (have) {
            x = batch(100 * steps + 4 * k->rank, 4, &y);
            if (weighted) dt_ddp_samples(d, 4);
            dt_tensor *loss = dt_cross_entropy(net(m, x), y);
            /* a parameter that some ranks reach: their bitmaps differ in the middle of the backward */
            dt_tensor *rare = dt_parameter(m, "rare", DT_SHAPE(4), .init = DT_INIT_CONST, .a = 1);
            if (k->rank == k->world - 1 && steps % 2) loss = dt_add(loss, dt_sum(rare));
            dt_backward(loss);
        } else {
            dt_ddp_skip(d);
        }
        int first = steps < 2 ? 0 : steps - 1; /* the ranks from here on have data */
        x = batch(100 * steps + 4 * first, 4 * (k->world - first), &y);
        dt_parameter(whole, "rare", DT_SHAPE(4), .init = DT_INIT_CONST, .a = 1);
        dt_backward(dt_cross_entropy(net(whole, x), y));
        alike(k, m, whole, 2, 5e-3, "running statistics");
        dt_step(opt);
        dt_step(ref);
    }
    crew_check(k, steps == 1 + k->world, "steps");
    same_bits(k, m, 1, "weights of other bits");
    same_bits(k, m, 2, "running statistics of other bits");
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_optimizer_free(ref);
    dt_model_free(m);
    dt_model_free(whole);
}
UTEST(syncnorm, goes_on_without_ranks_that_have_no_data)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        EXPECT_EQ(0, crew_run("shm", 3, run_out, &weighted));
        EXPECT_EQ(0, crew_run("tcp", 2, run_out, &weighted));
    }
}

/* ---------------------------------------------------------------------------------------------------- modes */
static void modes(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3), *plain = dt_model_new(.seed = 3);
    dt_ddp       *d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
    dt_tensor    *y, *x;
    float         a[4 * OUT], b[4 * OUT];
    net(m, batch(4 * k->rank, 4, &y));
    net(plain, batch(0, 4, &y));
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        dt_copy(dt_model_find(plain, p.name), p.value);
    }
    dt_end();
    dt_model_eval(m);
    dt_model_eval(plain);
    for (int i = 0; i <= k->rank; i++) { /* a rank evaluates alone, and as often as it likes */
        x = batch(40 + 4 * k->rank, 4, &y);
        dt_copy_out(net(m, x), a, sizeof a);
        dt_copy_out(net(plain, x), b, sizeof b);
        crew_check(k, !memcmp(a, b, sizeof a), "evaluation");
        dt_end();
    }
    dt_ddp_free(d);
    dt_model_free(m);
    dt_model_free(plain);
}
UTEST(syncnorm, leaves_evaluation_alone) { EXPECT_EQ(0, crew_run("shm", 3, modes, NULL)); }
static void mixed(crew *k)
{
    const char   *level = (const char *)k->arg;
    dt_model     *m = dt_model_new(.seed = 3), *whole = dt_model_new(.seed = 3);
    dt_amp       *amp = dt_amp_new(m, .level = level, .init_scale = 256);
    dt_ddp       *d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01), *ref = dt_sgd(whole, .lr = 0.01);
    for (int s = 0; s < 6; s++) {
        dt_tensor *y, *x = batch(16 * s + 8 * k->rank, 8, &y);
        dt_amp_backward(amp, dt_cross_entropy(net(m, x), y));
        dt_step(opt);
        x = batch(16 * s, 16, &y);
        dt_backward(dt_cross_entropy(net(whole, x), y));
        dt_step(ref);
    }
    bool half = strcmp(level, "O0") != 0;
    alike(k, m, whole, 2, half ? 0.1 : 1e-3, "running statistics");
    alike(k, m, whole, 1, half ? 0.5 : 1e-3, "weights");
    same_bits(k, m, 1, "weights of other bits");
    same_bits(k, m, 2, "running statistics of other bits");
    crew_check(k, dt_amp_overflows(amp) == 0, "overflows");
    dt_ddp_free(d);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_optimizer_free(ref);
    dt_model_free(m);
    dt_model_free(whole);
}
UTEST(syncnorm, takes_halves)
{
    static char levels[4][4] = { "O0", "O1", "O2", "O3" };
    for (int i = 0; i < 4; i++) EXPECT_EQ(0, crew_run("shm", 2, mixed, levels[i]));
}

/* ---------------------------------------------------------------------------------------------------- mistakes */
static void other_channels(crew *k)
{
    dt_model  *m = dt_model_new(.seed = 3);
    dt_ddp    *d = NULL;
    dt_tensor *x = dt_ones(DT_SHAPE(4, k->rank ? 6 : 5));
    int        kind = *(int *)k->arg;
    if (kind == 0) { /* channels */
        d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
        dt_batchnorm1d(m, "bn", x, .no_affine = true, .no_track = true);
        crew_check(k, dt_error_code() == DT_ERR_COMM && strstr(dt_error(), "ranks call different things"), "channels");
    } else if (kind == 1) { /* one rank has the option */
        d = dt_ddp_new(m, k->c, .sync_batchnorm = k->rank == 1);
        crew_check(k, !d && strstr(dt_error(), "rank 1 has .sync_batchnorm, rank 0 has not"), "option");
    } else if (kind == 2) { /* one value */
        d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
        dt_batchnorm1d(m, "bn", dt_ones(DT_SHAPE(k->rank == 1, 3)));
        crew_check(k, dt_error_code() != DT_OK && strstr(dt_error(), "one value per channel"), "one value");
    } else if (kind == 3) { /* freed too early */
        d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
        dt_tensor *y, *h = net(m, batch(0, 4, &y));
        dt_ddp_free(d);
        d = NULL;
        dt_backward(dt_cross_entropy(h, y));
        crew_check(k, dt_error_code() == DT_ERR_STATE && strstr(dt_error(), "dt_ddp_free was called before the backward"),
                   "freed");
    } else { /* an error of one rank between the forward of a batch norm and the backward */
        d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
        dt_optimizer *opt = dt_sgd(m);
        dt_tensor *y, *h = dt_batchnorm2d(m, "first", batch(0, 4, &y));
        if (k->rank == 1) h = dt_matmul(h, y);
        dt_batchnorm2d(m, "second", h);
        dt_step(opt);
        crew_check(k, dt_error_code() == (k->rank == 1 ? DT_ERR_DTYPE : DT_ERR_COMM) && strstr(dt_error(), "dt_matmul"),
                   "told");
        dt_error_clear();
        dt_optimizer_free(opt);
    }
    dt_ddp_free(d);
    dt_error_clear();
    dt_model_free(m);
}
UTEST(mistakes, are_errors_on_all_ranks)
{
    for (int kind = 0; kind < 5; kind++) EXPECT_EQ(0, crew_run(kind == 0 ? "tcp" : "shm", 3, other_channels, &kind));
    dt_model *m = dt_model_new();
    EXPECT_TRUE(dt_ddp_new(m, NULL, .sync_batchnorm = true, .slots = 2) == NULL);
    EXPECT_TRUE(strstr(dt_error(), ".slots cannot be used with .sync_batchnorm") != NULL);
    dt_error_clear();
    dt_ddp *d = dt_ddp_new(m, NULL, .sync_batchnorm = true); /* alone: as without */
    dt_tensor *y;
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(net(m, batch(0, 4, &y)))));
    dt_ddp_free(d);
    dt_end();
    dt_model_free(m);
}
static void left_out(crew *k)
{
    dt_model  *m = dt_model_new(.seed = 3);
    dt_ddp    *d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
    dt_tensor *h = dt_linear(m, "fc", dt_ones(DT_SHAPE(4, 3)), .out = 3);
    if (k->rank == 0) h = dt_batchnorm1d(m, "bn", h, .no_affine = true, .no_track = true);
    dt_backward(dt_sum(h));
    crew_check(k, dt_error_code() == DT_ERR_COMM, "a batch norm that others leave out");
    dt_ddp_free(d);
    dt_error_clear();
    dt_model_free(m);
}
UTEST(mistakes, a_batch_norm_that_one_rank_leaves_out_does_not_hang)
{
    crew_timeout = dt_test_slow();
    EXPECT_EQ(0, crew_run("shm", 2, left_out, NULL));
    EXPECT_EQ(0, crew_run("tcp", 3, left_out, NULL));
    crew_timeout = 20;
}
