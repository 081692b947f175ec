/* test_ddp.c: data parallel training is the same as one rank with the whole batch; accumulation, unequal batches,
   parameters that are not reached, mixed precision, gradients that are not finite, models that differ, failing ranks
   run: alone */
#include "dt_test.h"

#include "dt_dist.h"
#include "fake_device.h"
#include "mlp.h"
#include "temp_files.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

UTEST_MAIN()

/* ---------------------------------------------------------------------------------------------------- one big batch */
typedef struct plan {
    int    steps, batch; /* of the whole world */
    int    kind;         /* of the optimiser */
    int    slots;
    double bucket_mb;
    float  want[8192];
    int    n;
} plan;
static dt_optimizer *optimizer(dt_model *m, int kind)
{
    switch (kind) {
    case 0: return dt_sgd(m, .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3);
    case 1: return dt_adam(m, .lr = 0.01, .clip_norm = 0.5);
    case 2: return dt_adamw(m, .lr = 0.01, .clip_value = 0.05);
    case 3: return dt_rmsprop(m, .lr = 0.01, .momentum = 0.5);
    case 4: return dt_lars(m, .lr = 0.5, .trust_coefficient = 0.02);
    default: return dt_lamb(m, .lr = 0.01);
    }
}
static void train(const plan *p, dt_model *m, dt_comm *c, dt_ddp *d)
{
    dt_optimizer *opt = optimizer(m, p->kind);
    int rank = dt_comm_rank(c), world = dt_comm_size(c), micro = p->slots ? p->slots : world, first = rank, own = 1;
    if (p->slots) dt_ddp_slots(d, &first, &own);
    for (int s = 0; s < p->steps; s++) {
        int each = p->batch / micro;
        for (int k = first; k < first + own; k++) {
            dt_tensor *y, *x = batch(s * p->batch + k * each, each, &y);
            dt_backward(dt_cross_entropy(mlp(m, x), y));
        }
        dt_step(opt);
    }
    dt_optimizer_free(opt);
}
static void one_rank(plan *p) /* with the whole batch */
{
    dt_model *m = dt_model_new(.seed = 3);
    dt_ddp   *d = p->slots ? dt_ddp_new(m, NULL, .slots = p->slots) : NULL;
    train(p, m, NULL, d);
    p->n = weights(m, p->want);
    dt_ddp_free(d);
    dt_model_free(m);
}
static void many_ranks(crew *k)
{
    plan     *p = (plan *)k->arg;
    dt_model *m = dt_model_new(.seed = 3 + (uint64_t)k->rank); /* rank 0's values count */
    dt_ddp   *d = dt_ddp_new(m, k->c, .slots = p->slots, .bucket_mb = p->bucket_mb, .first_bucket_mb = p->bucket_mb);
    train(p, m, k->c, d);
    same_bits(k, m);
    float *x = k->box->x[k->rank];
    if (p->slots) crew_check(k, !memcmp(x, p->want, (size_t)p->n * sizeof *x), "other bits than one rank");
    else crew_check(k, far(x, p->want, p->n) < 2e-3, "other weights than one rank");
    if (!p->slots) crew_check(k, dt_ddp_get_stats(d).steps == p->steps, "steps");
    if (!p->slots && p->bucket_mb) crew_check(k, dt_ddp_get_stats(d).buckets > 2, "buckets");
    dt_ddp_free(d);
    dt_model_free(m);
}
UTEST(ddp, equals_one_rank_with_the_whole_batch)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.steps = 50;
    p.batch = 12;
    one_rank(&p);
    for (int n = 2; n <= 4; n++) {
        p.bucket_mb = n % 2 ? 0 : 1e-4;
        EXPECT_EQ(0, crew_run("shm", n, many_ranks, &p));
        if (n < 4) EXPECT_EQ(0, crew_run("tcp", n, many_ranks, &p));
    }
}
UTEST(ddp, every_optimizer_clips_and_steps_alike)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.steps = 20;
    p.batch = 12;
    for (p.kind = 1; p.kind < 6; p.kind++) {
        one_rank(&p);
        EXPECT_EQ(0, crew_run("shm", 2, many_ranks, &p));
    }
}
/* The model of a rank is on two devices, whose memory is the host's. */
static void two_devices(crew *k)
{
    plan *p = (plan *)k->arg;
    if (!p->slots) mlp_second = dt_device_new(dt_device_backend(dt_cpu()), 1, NULL);
    many_ranks(k);
    if (!mlp_second) mlp_second = dt_device_new(dt_device_backend(dt_cpu()), 1, NULL);
    if (p->slots) many_ranks(k);
    mlp_norm = true;
    float *x[2] = { k->box->x[k->rank] + 4096, k->box->x[k->rank] };
    for (int i = 0; i < 2 && !p->slots; i++) { /* batch norm over all ranks: the bits of one device */
        dt_device *other = mlp_second;
        if (!i) mlp_second = NULL;
        dt_model *m = dt_model_new(.seed = 3);
        dt_ddp   *d = dt_ddp_new(m, k->c, .sync_batchnorm = true);
        plan      q = *p;
        q.kind = 0;
        train(&q, m, k->c, d);
        dt_tensor *y, *in = batch(k->rank * 4, 4, &y);
        crew_check(k, dt_backward(dt_cross_entropy(mlp(m, in), y)) == DT_OK, "a backward");
        dt_device *there = dt_device_of(dt_grad(dt_model_find(m, "b.weight")));
        crew_check(k, there == (i ? mlp_second : dt_cpu()), "gradients are where their parameters are");
        dt_end();
        mlp_second = other;
        crew_check(k, !i || dt_device_of(dt_model_find(m, "bn.running_var")) == mlp_second, "the second device");
        int n = weights(m, x[i]);
        crew_check(k, dt_copy_out(dt_model_find(m, "bn.running_var"), x[i] + n, 64) == DT_OK, "a buffer");
        crew_check(k, !i || k->world > 2 || !memcmp(x[0], x[1], (size_t)n * sizeof(float) + 64), "other bits than one device");
        dt_ddp_free(d);
        dt_model_free(m);
    }
    dt_end();
    crew_check(k, dt_device_free(mlp_second) == DT_OK, "tensors are left on the device");
}
UTEST(ddp, takes_models_on_several_devices_of_the_host)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.steps = 20;
    p.batch = 12;
    p.bucket_mb = 1e-4;
    for (p.kind = 0; p.kind < 2; p.kind++) {
        one_rank(&p);
        for (int n = 2; n <= 3; n++) EXPECT_EQ(0, crew_run(n == 2 ? "shm" : "tcp", n, two_devices, &p));
    }
    p.kind = 0;
    p.slots = 4;
    one_rank(&p);
    EXPECT_EQ(0, crew_run("shm", 2, two_devices, &p));
}
static void a_device_of_its_own(crew *k) /* before or after the ddp */
{
    for (int late = 0; late < 2; late++) {
        fake_device *f = fake_device_new(0);
        dt_model    *m = dt_model_new();
        dt_tensor   *y, *x = batch(0, 4, &y);
        dt_ddp      *d = NULL;
        mlp_second = f->dev;
        if (late) d = dt_ddp_new(m, k->c);
        dt_no_grad_begin();
        mlp(m, x);
        dt_no_grad_end();
        if (!late) crew_check(k, dt_ddp_new(m, k->c) == NULL, "a ddp");
        crew_check(k, dt_error() && strstr(dt_error(), "'b.weight' is on fake:0, whose memory this communicator cannot read"),
                   "no error");
        dt_end();
        dt_ddp_free(d);
        dt_model_free(m);
        if (!late) dt_error_clear();
    }
    dt_error_clear();
    mlp_second = NULL;
}
UTEST(ddp, refuses_devices_whose_memory_it_cannot_read)
{
    fake_device_use_all();
    EXPECT_EQ(0, crew_run("shm", 2, a_device_of_its_own, NULL));
}
UTEST(slots, give_the_same_bits_in_every_world)
{
    plan p;
    memset(&p, 0, sizeof p);
    p.steps = 50;
    p.batch = 24;
    for (p.slots = 4; p.slots <= 12; p.slots += 8) {
        one_rank(&p);
        for (int n = 2; n <= 4; n++)
            EXPECT_EQ(0, crew_run(n == 2 ? "tcp" : "shm", n, many_ranks, &p));
    }
    dt_model *m = dt_model_new();
    EXPECT_TRUE(dt_ddp_new(m, NULL, .slots = -1) == NULL);
    dt_error_clear();
    dt_model_free(m);
}

/* -------------------------------------------------------------------------------------------- batches */
/* Each rank's gradients after some backwards, against those of one rank with the same samples. */
static int gradients(dt_model *m, float *out)
{
    int           n = 0;
    dt_parameter_info p;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        if (p.buffer || !dt_grad(p.value)) continue;
        dt_copy_out(dt_grad(p.value), out + n, dt_nbytes(p.value));
        n += (int)dt_numel(p.value);
    }
    return n;
}
static void unequal(crew *k)
{
    dt_model    *m = dt_model_new(.seed = 3), *whole = dt_model_new(.seed = 3);
    dt_ddp      *d = dt_ddp_new(m, k->c);
    static float a[8192], b[8192];
    dt_tensor   *x, *y;
    for (int mode = 0; mode < 3; mode++) {
        int weighted = mode == 1, accumulate = mode == 2, mine = weighted ? 2 + 3 * k->rank : 4, first = 0, all = 0;
        for (int r = 0; r < k->world; r++) {
            if (r < k->rank) first += weighted ? 2 + 3 * r : 4;
            all += weighted ? 2 + 3 * r : 4;
        }
        dt_ddp_no_sync(d, accumulate);
        for (int i = 0; i <= accumulate; i++) {
            if (i) dt_ddp_no_sync(d, false);
            x = batch(first + 40 * i, mine, &y);
            if (weighted) dt_ddp_samples(d, mine);
            dt_backward(dt_cross_entropy(mlp(m, x), y));
            x = batch(40 * i, all, &y);
            dt_backward(dt_cross_entropy(mlp(whole, x), y));
        }
        int n = gradients(m, a), w = gradients(whole, b);
        crew_check(k, n > 0 && n == w && far(a, b, n) < 1e-4,
                   mode == 0  ? "mean"
                   : weighted ? "weighted"
                              : "accumulated");
        for (int i = 0; i < dt_model_count(m); i++) {
            dt_parameter_info p, q;
            dt_model_get(m, i, &p);
            dt_model_get(whole, i, &q);
            dt_zero_grad(p.value);
            dt_zero_grad(q.value);
        }
        dt_end();
    }
    double mean = dt_ddp_mean(d, k->rank, 1 + k->rank), sum = 0, weight = 0;
    for (int r = 0; r < k->world; r++) {
        sum += r * (1 + r);
        weight += 1 + r;
    }
    crew_check(k, mean == sum / weight, "dt_ddp_mean");
    dt_ddp_free(d);
    dt_model_free(m);
    dt_model_free(whole);
}
UTEST(batches, of_other_sizes_and_in_parts_count_as_they_should)
{
    EXPECT_EQ(0, crew_run("shm", 2, unequal, NULL));
    EXPECT_EQ(0, crew_run("tcp", 3, unequal, NULL));
}
/* rank r has 2 + 2 r batches of 4; the reference takes those there are as one batch */
static void run_out(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3), *whole = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01), *ref = dt_adam(whole, .lr = 0.01);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    int           steps = 0, weighted = *(int *)k->arg;
    dt_tensor    *x, *y;
    for (;; steps++) {
        bool have = steps < 2 + 2 * k->rank;
        if (!dt_ddp_more(d, have)) break;
        if (have) {
            if (weighted) dt_ddp_samples(d, 4);
            x = batch(100 * k->rank + 4 * steps, 4, &y);
            dt_backward(dt_cross_entropy(mlp(m, x), y));
        } else {
            dt_ddp_skip(d);
        }
        dt_step(opt);
        int active = 0;
        for (int r = 0; r < k->world; r++) active += steps < 2 + 2 * r;
        for (int r = 0; r < k->world; r++)
            if (steps < 2 + 2 * r) {
                x = batch(100 * r + 4 * steps, 4, &y);
                dt_backward(dt_mul_scalar(dt_cross_entropy(mlp(whole, x), y), 1.0 / active));
            }
        dt_step(ref);
    }
    crew_check(k, steps == 2 * k->world, "all go on while one has data");
    same_bits(k, m);
    static float b[8192];
    int          n = weights(whole, b);
    crew_check(k, far(k->box->x[k->rank], b, n) < 1e-3, "weights");
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_optimizer_free(ref);
    dt_model_free(m);
    dt_model_free(whole);
}
UTEST(batches, may_run_out_on_some_ranks_first)
{
    for (int weighted = 0; weighted < 2; weighted++)
        for (int n = 2; n <= 3; n++) EXPECT_EQ(0, crew_run("shm", n, run_out, &weighted));
}

/* -------------------------------------------------------------------------------------------- reach */
static void partly(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .weight_decay = 0.1);
    dt_ddp       *d = dt_ddp_new(m, k->c, .bucket_mb = 1e-4, .first_bucket_mb = 1e-4);
    dt_tensor    *y, *x;
    float         before[4], after[4], last[4];
    char          names[256];
    for (int s = 0; s < 3; s++) {
        x = batch(8 * k->rank, 4, &y);
        dt_tensor *rare = dt_parameter(m, "rare", DT_SHAPE(4), .init = DT_INIT_CONST, .a = 1);
        dt_tensor *never = dt_parameter(m, "never", DT_SHAPE(4), .init = DT_INIT_CONST, .a = 1);
        if (!s) dt_copy_out(never, before, sizeof before);
        dt_tensor *loss = dt_cross_entropy(mlp(m, x), y);
        if (k->rank == k->world - 1 && s > 0) loss = dt_add(loss, dt_sum(rare)); /* one rank, from the second step on */
        dt_backward(loss);
        size_t n = dt_ddp_unused(d, names, sizeof names);
        bool   named = strstr(names, "never\n") != NULL, rare_named = strstr(names, "rare\n") != NULL;
        crew_check(k, n == strlen(names) && named && rare_named == (s == 0), "names of what was not reached");
        dt_step(opt);
        dt_copy_out(dt_model_find(m, "rare"), last, sizeof last);
        double want = s == 0 ? 1 : s == 1 ? 1 - 0.1 * (1.0 / k->world + 0.1) : last[0];
        crew_check(k, fabs(last[0] - want) < 1e-6, "a parameter that one rank reached");
    }
    dt_copy_out(dt_model_find(m, "never"), after, sizeof after);
    crew_check(k, !memcmp(before, after, sizeof before), "a parameter that no rank reached");
    same_bits(k, m);
    dt_model_freeze(m, "a.*"); /* the blocks are made anew, and so are the buckets */
    for (int s = 0; s < 2; s++) {
        x = batch(8 * k->rank, 4, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    same_bits(k, m);
    dt_ddp_free(d); /* the model goes on alone */
    x = batch(8 * k->rank, 4, &y);
    dt_backward(dt_cross_entropy(mlp(m, x), y));
    dt_step(opt);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(parameters, that_are_not_reached_do_not_hold_up_the_others)
{
    EXPECT_EQ(0, crew_run("shm", 2, partly, NULL));
    EXPECT_EQ(0, crew_run("tcp", 3, partly, NULL));
}
static void buffers(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    float        *mean = k->box->x[k->rank];
    for (int s = 0; s < 3; s++) {
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, 8, &y);
        dt_backward(dt_cross_entropy(dt_linear(m, "out", dt_batchnorm1d(m, "bn", x), .out = OUT), y));
        dt_step(opt);
    }
    dt_copy_out(dt_model_find(m, "bn.running_mean"), mean, IN * sizeof *mean);
    dt_comm_barrier(k->c);
    crew_check(k, mean[0] != 0 && !memcmp(mean, k->box->x[0], IN * sizeof *mean), "running statistics are rank 0's");
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(parameters, and_buffers_are_those_of_rank_0) { EXPECT_EQ(0, crew_run("shm", 3, buffers, NULL)); }

/* ---------------------------------------------------------------------------------------------------- numbers */
static void infinite(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    int           kind = *(int *)k->arg;
    static float  before[8192], after[8192];
    for (int s = 0; s < 4; s++) {
        dt_tensor *y, *x = batch(8 * k->rank + 16 * s, 8, &y);
        int        n = s ? weights(m, before) : 0;
        dt_tensor *loss = dt_cross_entropy(mlp(m, x), y);
        if (s == 2 && k->rank == 1) {
            float big[OUT] = { INFINITY, 1, 1 };
            if (kind == 0) loss = dt_mul_scalar(loss, NAN); /* the loss and every gradient */
            else
                loss =
                    dt_add(loss, dt_mul_scalar(dt_sum(dt_mul(dt_model_find(m, "c.bias"), dt_from(big, DT_SHAPE(OUT)))),
                                               0.0)); /* one gradient: 0 * inf */
        }
        dt_backward(loss);
        if (s == 2) {
            crew_check(k, dt_error_code() == DT_ERR_NUMERIC && strstr(dt_error(), "on rank 1 the gradient of 'c."),
                       "named on all ranks");
            dt_step(opt);
            dt_error_clear();
            int same = weights(m, after);
            crew_check(k, n == same && !memcmp(before, after, (size_t)n * sizeof *before), "weights are as before");
        } else {
            dt_step(opt);
        }
    }
    crew_check(k, dt_optimizer_steps(opt) == 3, "steps");
    same_bits(k, m);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(numbers, that_are_not_finite_stop_the_step_on_all_ranks)
{
    for (int kind = 0; kind < 2; kind++) EXPECT_EQ(0, crew_run("shm", 3, infinite, &kind));
}
static void mixed(crew *k)
{
    const char   *level = (const char *)k->arg;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9);
    dt_amp       *amp = dt_amp_new(m, .level = level, .loss_scale = DT_DYNAMIC, .init_scale = 1024);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    for (int s = 0; s < 6; s++) {
        dt_tensor *y, *x = batch(8 * k->rank + 32 * s, 8, &y);
        dt_tensor *loss = dt_cross_entropy(mlp(m, x), y);
        if (s == 2 && k->rank == 1) loss = dt_mul_scalar(loss, INFINITY);
        if (s == 4 && k->rank == 0) { /* out of data */
            dt_ddp_skip(d);
        } else {
            dt_amp_backward(amp, loss);
        }
        dt_step(opt);
    }
    crew_check(k, dt_amp_overflows(amp) == 1 && dt_amp_scale(amp, 0) == 512, "one overflow, seen by all");
    same_bits(k, m);
    dt_ddp_free(d);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(numbers, of_mixed_precision_overflow_on_all_ranks_at_once)
{
    static char levels[4][4] = { "O0", "O1", "O2", "O3" };
    for (int i = 0; i < 4; i++) EXPECT_EQ(0, crew_run("shm", 2, mixed, levels[i]));
}
static void mixed_parts(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_amp       *amp = dt_amp_new(m, .level = "O2", .init_scale = 256);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < 2; i++) {
            dt_tensor *y, *x = batch(8 * k->rank + 64 * s + 32 * i, 8, &y);
            dt_ddp_no_sync(d, i == 0);
            dt_amp_backward(amp, dt_mul_scalar(dt_cross_entropy(mlp(m, x), y), 0.5));
        }
        dt_step(opt);
    }
    same_bits(k, m);
    dt_ddp_free(d);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(numbers, of_mixed_precision_accumulate) { EXPECT_EQ(0, crew_run("shm", 2, mixed_parts, NULL)); }

/* ---------------------------------------------------------------------------------------------------- mistakes */
static void other_model(crew *k)
{
    int         kind = *(int *)k->arg, odd = k->rank == k->world - 1;
    dt_model   *m = dt_model_new(.seed = 3);
    dt_ddp     *d = kind < 4 ? dt_ddp_new(m, k->c) : NULL;
    dt_tensor  *y, *x = batch(0, 4, &y), *h;
    const char *want;
    switch (kind & 3) {
    case 0:
        h = dt_linear(m, odd ? "other" : "a", x, .out = OUT);
        want = "'a.weight' f32 (3, 6) on rank 0";
        break;
    case 1:
        h = dt_narrow(dt_linear(m, "a", x, .out = odd ? OUT + 1 : OUT), 1, 0, OUT);
        want = "parameter 'a.weight' f32 (4, 6)";
        break;
    case 2:
        h = dt_linear(m, "a", x, .out = OUT, .no_bias = odd);
        want = NULL; /* the others broadcast another value, which the communicator sees */
        break;
    default:
        h = dt_linear(m, "a", x, .out = OUT);
        if (odd) dt_parameter(m, "more", DT_SHAPE(3));
        want = NULL;
    }
    if (kind >= 4) {
        d = dt_ddp_new(m, k->c); /* all is made: the lists are compared */
        want = (kind & 3) == 0 ? "number 1 is parameter 'a.weight' f32 (3, 6) on rank 0, parameter 'other.weight'"
               : (kind & 3) == 1
                   ? "number 1 is parameter 'a.weight' f32 (3, 6) on rank 0, parameter 'a.weight' f32 (4, 6)"
               : (kind & 3) == 2 ? "number 2 is parameter 'a.bias' f32 (3) on rank 0, nothing on rank"
                                 : "number 3 is nothing on rank 0, parameter 'more' f32 (3) on rank";
        crew_check(k, d == NULL, "no ddp");
    } else {
        if (dt_error_code() == DT_OK) dt_backward(dt_cross_entropy(h, y));
    }
    crew_check(k, dt_error_code() == DT_ERR_COMM && (!want || strstr(dt_error(), want)), "the difference is named");
    dt_ddp_free(d);
    dt_error_clear();
    dt_model_free(m);
}
UTEST(mistakes, models_that_differ_are_named)
{
    for (int n = 2; n <= 3; n++)
        for (int kind = 0; kind < 8; kind++) {
            int failed = crew_run("shm", n, other_model, &kind);
            EXPECT_EQ(0, failed);
            if (failed) printf("    kind %d, %d ranks\n", kind, n);
        }
}
static void own_error(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    int           kind = *(int *)k->arg;
    for (int s = 0; s < 5 && dt_error_code() == DT_OK; s++) {
        dt_tensor *y, *x = batch(0, 4, &y);
        if (s == 2 && k->rank == 1) {
            if (kind == 0) x = dt_matmul(x, x);     /* a shape that does not fit */
            if (kind == 1) dt_ddp_samples(d, 4);    /* alone */
            if (kind == 2) dt_ddp_no_sync(d, true); /* and then a step */
        }
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    const char *want = kind == 0   ? "dt_matmul"
                       : kind == 1 ? "dt_ddp_samples: rank 1 called it before this backward, rank 0 did not"
                                   : "dt_ddp_no_sync";
    crew_check(k, dt_error_code() != DT_OK && strstr(dt_error(), want), "one rank's error is everyone's");
    crew_check(k, k->rank == 1 || dt_error_code() == DT_ERR_COMM, "status");
    dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(mistakes, of_one_rank_are_told_to_all)
{
    for (int kind = 0; kind < 3; kind++) EXPECT_EQ(0, crew_run(kind ? "shm" : "tcp", 3, own_error, &kind));
}
static void dies(crew *k)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m);
    dt_ddp       *d = dt_ddp_new(m, k->c, .bucket_mb = 1e-4, .first_bucket_mb = 1e-4);
    for (int s = 0; s < 1000 && dt_error_code() == DT_OK; s++) {
        if (s == 7 && k->rank == 1) raise(SIGKILL);
        dt_tensor *y, *x = batch(0, 4, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    crew_check(k, dt_error_code() == DT_ERR_COMM && strstr(dt_error(), "rank 1"), "the dead rank is named");
    k->box->number[k->rank] = 1;
    dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(mistakes, a_rank_that_dies_is_named_by_the_others)
{
    for (int i = 0; i < 2; i++) {
        crew_box *box = crew_box_new();
        ASSERT_TRUE(box != NULL);
        EXPECT_EQ(100, crew_run_in(box, i ? "tcp" : "shm", 3, dies, NULL));
        EXPECT_EQ(128 + SIGKILL, box->status);
        EXPECT_TRUE(box->number[0] && box->number[2]);
        munmap(box, sizeof *box);
    }
}
/* rank 1 has 3 batches, the others 5. Kind 0: rank 1 frees its ddp, 1: it goes on to a mean, 2: as 0 with batch norms over
   all ranks */
static void loops_differ(crew *k)
{
    int           kind = *(int *)k->arg;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m);
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = 1e-4, .bucket_mb = 1e-4, .sync_batchnorm = kind == 2);
    for (int s = 0; s < (k->rank == 1 ? 3 : 5) && dt_error_code() == DT_OK; s++) {
        dt_tensor *y, *x = batch(4 * s, 4, &y);
        if (kind == 2) x = dt_batchnorm1d(m, "bn", x);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    if (kind == 1) dt_ddp_mean(d, 1, 1);
    else if (k->rank == 1) crew_check(k, dt_error_code() == DT_OK, "three steps");
    bool ended = k->rank == 1 && kind != 1;
    if (ended) dt_ddp_free(d);
    const char *why = dt_error() ? dt_error() : "", *want[4] = { "", "", "", "" };
    if (ended) {
        want[0] = "dt_ddp_free: this rank (1) has ended its training after step 3, but other ranks continue";
    } else if (kind != 1) {
        want[0] = kind ? "batch norm: rank 1 has ended its training" : "dt_backward: rank 1 has ended its training";
        want[1] = "(it has no more batches), but this rank (0) is in step 4";
    } else {
        want[0] = k->rank ? "dt_ddp_mean: this rank (1) is in step 4" : "dt_backward: this rank (0) is in step 4";
        want[1] = "another rank is elsewhere in its training. All ranks must make the same calls of DDP";
        want[2] = "rank 1 allreduce #";
    }
    if (kind != 1) {
        want[2] = "Give all loaders the same number";
        want[3] = "loop with dt_ddp_more and dt_ddp_skip (";
    }
    if (ended) want[2] = "different numbers of batches. Give all loaders the same number";
    crew_check(k, dt_error_code() == DT_ERR_COMM, "status");
    for (int i = 0; i < 4; i++) crew_check(k, strstr(why, want[i]) != NULL, want[i]);
    crew_check(k, kind == 1 || strstr(why, "rank 1 left with dt_comm_free (its call #"), "the communicator's words");
    crew_check(k, kind == 1 || !strstr(why, "barrier"), "no words of the protocol");
    if (!ended) dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(mistakes, loops_of_different_length_are_told_in_words_of_the_training)
{
    for (int kind = 0; kind < 3; kind++) {
        EXPECT_EQ(0, crew_run("shm", 2, loops_differ, &kind));
        EXPECT_EQ(0, crew_run("tcp", 2, loops_differ, &kind));
    }
}
UTEST(mistakes, are_refused_at_once)
{
    dt_model *m = dt_model_new();
    dt_ddp   *d = dt_ddp_new(m, NULL);
    ASSERT_TRUE(d != NULL);
    EXPECT_TRUE(dt_ddp_new(m, NULL) == NULL);
    EXPECT_TRUE(strstr(dt_error(), "has a ddp already") != NULL);
    dt_error_clear();
    EXPECT_EQ(DT_ERR_STATE, dt_ddp_skip(d));
    dt_error_clear();
    EXPECT_EQ(DT_ERR_ARG, dt_ddp_samples(d, -1));
    dt_error_clear();
    EXPECT_TRUE(dt_ddp_more(d, true) && !dt_ddp_more(d, false));
    EXPECT_EQ(4.0, dt_ddp_mean(d, 4, 2));
    dt_ddp_free(d);
    EXPECT_TRUE(dt_ddp_new(m, NULL, .bucket_mb = -1) == NULL);
    dt_error_clear();
    dt_model_free(m);
    dt_ddp_free(NULL);
}

/* ---------------------------------------------------------------------------------------------------- checkpoints */
typedef struct stay {
    char *dir;
    int   steps, stop_at; /* one rank gets SIGTERM then; 0: none */
    int   resumed;        /* the step a resume must find */
    int   other;          /* a rank looks into another directory */
} stay;
static void saves(crew *k)
{
    const stay   *t = (const stay *)k->arg;
    char          dir[4200];
    dt_model     *m = dt_model_new(.seed = 3 + (uint64_t)k->rank);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    int64_t       epoch = 0, step = 0;
    int           stop = 0;
    snprintf(dir, sizeof dir, "%s%s", t->dir, t->other && k->rank == 1 ? "/empty" : "");
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .optimizer = opt, .every_steps = 4, .signals = true);
    int            found = dt_checkpoint_resume(c, &epoch, &step);
    if (t->other) {
        crew_check(k, found == DT_ERR_COMM && strstr(dt_error(), "is 8 on rank 0, -1 on rank 1"), "other files");
        dt_error_clear();
    } else {
        crew_check(k, found == (t->resumed > 0) && step == t->resumed, "resume");
    }
    while (!t->other && step < t->steps && !stop && dt_error_code() == DT_OK) {
        dt_tensor *y, *x = batch((int)step * 16 + 4 * k->rank, 4, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
        if (t->stop_at && step + 1 == t->stop_at && k->rank == 1) raise(SIGTERM);
        stop = dt_checkpoint_tick(c, 0, ++step);
    }
    crew_check(k, t->other || (step == (t->stop_at ? t->stop_at : t->steps) && stop == (t->stop_at > 0)),
               "all stop at once");
    if (!t->other) same_bits(k, m);
    dt_checkpoint_free(c);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(checkpoints, are_written_by_rank_0_and_taken_up_by_all)
{
    stay      t;
    crew_box *calm = crew_box_new(), *box = crew_box_new();
    memset(&t, 0, sizeof t);
    t.steps = 9;
    t.dir = temp_dir();
    EXPECT_EQ(0, crew_run_in(calm, "shm", 2, saves, &t));
    temp_remove(t.dir);
    t.dir = temp_dir();
    t.stop_at = 5;
    EXPECT_EQ(0, crew_run_in(box, "shm", 2, saves, &t));
    t.stop_at = 0;
    t.resumed = 5;
    EXPECT_EQ(0, crew_run_in(box, "shm", 2, saves, &t));
    EXPECT_TRUE(!memcmp(calm->x[0], box->x[0], sizeof box->x[0])); /* as if it had never stopped */
    t.other = 1;
    EXPECT_EQ(0, crew_run_in(box, "shm", 2, saves, &t));
    temp_remove(t.dir);
    munmap(calm, sizeof *calm);
    munmap(box, sizeof *box);
}

/* A trace shows each bucket's sum, one after the other, and what was waited for. */
static void traced(crew *k)
{
    enum { TURNS = 3 };
    char          line[1024], path[64];
    double        last = 0;
    int           buckets = 0, waits = 0;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = 1e-4, .bucket_mb = 1e-4);
    snprintf(path, sizeof path, "rank%d.json", k->rank);
    const char *file = temp_in((const char *)k->arg, path);
    dt_trace_start(file);
    for (int s = 0; s < TURNS; s++) {
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    dt_trace_stop();
    int   n = dt_ddp_get_stats(d).buckets;
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *ts = strstr(line, "\"ts\":"), *dur = strstr(line, "\"dur\":");
        waits += strstr(line, "\"exposed\"") != NULL;
        if (!strstr(line, "\"bucket ") || !ts || !dur) continue;
        crew_check(k, atof(ts + 5) >= last, "buckets overlap each other");
        last = atof(ts + 5) + atof(dur + 6);
        buckets++;
    }
    crew_check(k, f && n > 2 && buckets == TURNS * n && waits >= TURNS, "not all buckets are in the trace");
    if (f) fclose(f);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(watching, a_trace_shows_when_each_bucket_was_summed)
{
    char *dir = temp_dir();
    EXPECT_EQ(0, crew_run("shm", 2, traced, dir));
    temp_remove(dir);
}

/* ---------------------------------------------------------------------------------------------------- threads */
static void *frees_ddp(void *arg)
{
    dt_ddp_free((dt_ddp *)arg);
    return dt_error() ? arg : NULL;
}
static void on_another_thread(crew *k)
{
    dt_model *m = dt_model_new(.seed = 3);
    for (int i = 0; i < 40; i++) { /* more than a thread has hooks */
        dt_ddp    *d = dt_ddp_new(m, k && i % 8 == 0 ? k->c : NULL);
        dt_tensor *y, *x = batch(8 * i, 8, &y);
        pthread_t  id;
        void      *bad = d;
        if (k) crew_check(k, d != NULL, "dt_ddp_new");
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_end();
        if (!d || pthread_create(&id, NULL, frees_ddp, d)) break;
        pthread_join(id, &bad);
        if (k) crew_check(k, !bad, "dt_ddp_free on another thread");
        x = batch(8 * i, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y)); /* this thread's hook finds no ddp */
        dt_end();
    }
    dt_model_free(m);
}
UTEST(threads, a_ddp_is_freed_on_another_thread_than_it_was_made_on)
{
    on_another_thread(NULL);
    EXPECT_TRUE(dt_error() == NULL);
    dt_error_clear();
    EXPECT_EQ(0, crew_run("shm", 2, on_another_thread, NULL));
}
typedef struct elsewhere {
    crew         *k;
    dt_model     *m;
    dt_optimizer *opt;
} elsewhere;
static void *steps_elsewhere(void *arg)
{
    elsewhere *e = (elsewhere *)arg;
    dt_tensor *y, *x = batch(0, 8, &y);
    dt_backward(dt_cross_entropy(mlp(e->m, x), y));
    dt_step(e->opt);
    crew_check(e->k, dt_error_code() == DT_ERR_STATE && strstr(dt_error(), "another thread than that of dt_ddp_new"), "message");
    dt_error_clear();
    dt_end();
    return NULL;
}
static void trains_elsewhere(crew *k)
{
    elsewhere e;
    pthread_t id;
    e.k = k;
    e.m = dt_model_new(.seed = 3);
    e.opt = dt_sgd(e.m, .lr = 0.1);
    dt_ddp    *d = dt_ddp_new(e.m, k->c);
    dt_tensor *y, *x = batch(0, 8, &y);
    dt_backward(dt_cross_entropy(mlp(e.m, x), y));
    dt_step(e.opt);
    crew_check(k, !pthread_create(&id, NULL, steps_elsewhere, &e) && !pthread_join(id, NULL), "thread");
    dt_ddp_free(d);
    dt_error_clear(); /* the ranks told each other of the error */
    dt_optimizer_free(e.opt);
    dt_model_free(e.m);
}
UTEST(threads, training_on_another_thread_than_the_ddp_is_an_error) { EXPECT_EQ(0, crew_run("shm", 2, trains_elsewhere, NULL)); }

/* Rank 1 is slow: the others wait for it, which is not communication. */
static void one_is_slow(crew *k)
{
    enum { TURNS = 5 };
    char          line[1024], path[64];
    int           waits = 0;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = 1e-4, .bucket_mb = 1e-4);
    snprintf(path, sizeof path, "rank%d.json", k->rank);
    const char *file = temp_in((const char *)k->arg, path);
    dt_trace_start(file);
    for (int s = 0; s < TURNS; s++) {
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, 8, &y), *loss = dt_cross_entropy(mlp(m, x), y);
        if (k->rank == 1) usleep(300000); /* it computes for longer */
        dt_backward(loss);
        dt_step(opt);
    }
    dt_trace_stop();
    dt_ddp_stats t = dt_ddp_get_stats(d);
    dt_ddp_report(d, line, sizeof line);
    bool ok = k->rank == 1 ? t.waited < 0.5 * dt_test_slow() : t.waited > 1;
    crew_check(k, t.steps == TURNS && ok && t.exposed >= 0 && t.exposed < 0.5 * dt_test_slow(), "waited and exposed");
    crew_check(k, t.backward < 0.5 * dt_test_slow() && t.comm < 0.5 * dt_test_slow(), "the rest of the time");
    crew_check(k, strstr(line, "ms waiting for slower ranks") != NULL, "report");
    if (getenv("DT_TEST_VERBOSE") || k->box->failed) printf("    rank %d over %s: %s\n", k->rank, k->how, line);
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f)) waits += strstr(line, "\"waits for rank 1\"") != NULL;
    crew_check(k, f && (k->rank == 1 ? !waits : waits >= TURNS - 1), "the trace names the slow rank");
    if (f) fclose(f);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(watching, waiting_for_a_slow_rank_is_not_exposed_communication)
{
    char *dir = temp_dir();
    EXPECT_EQ(0, crew_run("shm", 2, one_is_slow, dir));
    if (!dt_test_quick()) EXPECT_EQ(0, crew_run("tcp", 3, one_is_slow, dir));
    temp_remove(dir);
}
