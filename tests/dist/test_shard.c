/* test_shard.c: a sharded model (.shard = 1, 2, 3) trains to the bits of DDP, for every optimiser and level of mixed precision, with
   accumulation, several groups, frozen, unused and shared parameters, skipped batches; its memory; its checkpoints; what is refused
   run: alone, asan-later, long */
#include "dt_test.h"

#define DT__NORM_PART 32     /* small parameters have several parts */
#define DT_IO_IMPLEMENTATION /* for dt__fs */
#define DT_NN_IMPLEMENTATION
#define DT_DIST_IMPLEMENTATION
#include "dt_dist.h"
#include "dt_scale.h"
#include "checkpoints.h"
#include "mlp.h"
#include "temp_files.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

UTEST_MAIN()

typedef struct run {
    int         kind;  /* of the optimiser */
    const char *level; /* of mixed precision; NULL: without */
    dt_dtype    dtype;
    int         steps, every; /* backwards of a step: every - 1 of them under dt_ddp_no_sync */
    int         sync;         /* these backwards are synchronised, too */
    int         late, write, apart, groups, frozen, branch, shared, clip, weighted, two, skip, syncnorm, eval;
    int         overflow;
    bool        ordered;
    const char *compress;
    bool        whole; /* one bucket: .shard = 3 cuts others than DDP, and some methods depend on them */
} run;
static dt_status rms_update(dt_rule_call *u, void *user) /* a rule of the program: it gets this rank's ranges */
{
    (void)user;
    dt_copy(u->state[0], dt_add(dt_mul_scalar(u->state[0], 0.9), dt_mul_scalar(dt_mul(u->grad, u->grad), 0.1)));
    dt_add_to(u->value, dt_div(u->grad, dt_add_scalar(dt_sqrt(u->state[0]), u->o->eps)), -u->o->lr);
    return dt_error_code();
}
static const dt_rule rms = { "rms", { "square_avg" }, false, rms_update, NULL, { .lr = 0.01, .eps = 1e-8 } };
static const dt_rule rms_each = { "rms", { "square_avg" }, true, rms_update, NULL, { .lr = 0.01, .eps = 1e-8 } };
static dt_optimizer *optimizer(dt_model *m, const run *p, const char *params)
{
    switch (p->kind) {
    case 0: return dt_sgd(m, .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true, .params = params);
    case 1: return dt_adam(m, .lr = 0.01, .clip_norm = 0.05, .amsgrad = true, .params = params);
    case 2: return dt_adamw(m, .lr = 0.01, .clip_value = 0.005, .params = params);
    case 3: return dt_rmsprop(m, .lr = 0.01, .momentum = 0.5, .centered = true, .params = params);
    case 4: return dt_lars(m, .lr = 0.5, .trust_coefficient = 0.02, .clip_norm = 0.1, .params = params);
    case 5: return dt_lamb(m, .lr = 0.01, .params = params);
    case 6: return dt_adagrad(m, .lr = 0.05, .initial_accumulator_value = 0.1, .params = params);
    case 8: return dt_optimizer_new(m, &rms, .clip_norm = 0.05, .params = params);
    default: return dt_sgd(m, .lr = 0.1, .params = params);
    }
}
static dt_tensor *net(dt_model *m, const run *p, dt_tensor *x, int step)
{
    x = dt_linear(m, "a", x, .out = 16, .act = DT_ACT_RELU);
    x = dt_batchnorm1d(m, "bn", x);
    if (p->shared)
        x = dt_linear(m, "square", dt_linear(m, "square", x, .out = 16, .act = DT_ACT_RELU, .shared = true), .out = 16,
                      .shared = true);
    if (!p->branch || (p->apart ? step / 8 % 2 == 0 : step % 3 == 0)) x = dt_add(x, dt_linear(m, "side", x, .out = 16));
    x = dt_linear(m, "b", x, .out = 21, .act = DT_ACT_RELU);
    x = dt_layernorm(m, "ln", x);
    return dt_linear(m, "c", x, .out = OUT);
}
static void backward(crew *k, dt_ddp *d, dt_amp *amp, dt_model *m, const run *p, int step, int turn)
{
    int        n = 4 + (p->weighted ? k->rank : 0);
    dt_tensor *y, *x = batch((step * 16 + turn * 4 + k->rank) % 300, n, &y);
    /* apart: in the first backward of the model all ranks use all layers, later they differ */
    int        at = p->apart && step + turn ? 8 * (step + turn + k->rank) : step;
    dt_tensor *loss = dt_cross_entropy(net(m, p, x, at), y);
    if (p->weighted) dt_ddp_samples(d, n);
    if (p->overflow == 1 && step == 1 && k->rank == 1) loss = dt_mul_scalar(loss, 1e30);
    if (p->overflow == 2 && step == 1) { /* one element overflows, which one rank has */
        dt_tensor *w = dt_model_find(m, "a.weight");
        loss = dt_add(dt_cast(loss, DT_F32), dt_mul_scalar(dt_cast(dt_sum(dt_narrow(dt_narrow(w, 0, 0, 1), 1, 0, 1)), DT_F32), 3e38));
    }
    if (amp) dt_amp_backward(amp, loss);
    else dt_backward(loss);
}
static run base(int kind)
{
    run p;
    memset(&p, 0, sizeof p);
    p.kind = kind;
    p.steps = 4;
    return p;
}
/* trains, and returns the number of weights in out */
static int train(crew *k, const run *p, int shard, float *out)
{
    dt_model *m = dt_model_new(.seed = 3);
    if (p->frozen) dt_model_freeze(m, "b.bias");
    dt_amp       *amp = p->level ? dt_amp_new(m, .level = p->level, .dtype = p->dtype, .init_scale = 1024) : NULL;
    dt_optimizer *opt = optimizer(m, p, p->two ? "a*" : NULL), *rest = p->two ? dt_adam(m, .lr = 0.02) : NULL;
    if (p->groups) dt_optimizer_add_group(opt, "*bias|bn*", .lr = 0.003, .weight_decay = DT_ZERO);
    if (p->late) { /* a step of a model that is not sharded yet, the same on all ranks */
        dt_tensor *y, *x = batch(40, 4, &y), *loss = dt_cross_entropy(net(m, p, x, 0), y);
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        dt_step(opt);
    }
    dt_ddp *d = dt_ddp_new(m, k->c, .shard = shard, .first_bucket_mb = p->whole ? 5 : 0.0003, .bucket_mb = 0.001,
                           .sync_batchnorm = p->syncnorm != 0,
                           .compress = { .kind = p->compress, .ratio = 0.2, .rank = 2, .start = 1, .min_rate = 1e-9,
                                         .bucket = 64, .momentum = 0.5, .every = 2 });
    for (int s = 0; s < p->steps; s++) {
        bool skips = p->skip && s > 1 && (s + p->skip) % 3 && k->rank == 1 + (s + k->world) % (k->world - 1);
        for (int t = 0; t < (p->every ? p->every : 1); t++) {
            if (p->every && !p->sync) dt_ddp_no_sync(d, t + 1 < p->every);
            if (!skips || t < p->every / 2) backward(k, d, amp, m, p, s, t); /* or it has data for a part of the step */
            else if (t + 1 >= p->every) dt_ddp_skip(d);
        }
        if (p->clip) dt_clip_grad_norm(opt, 0.02);
        if (p->two) dt_update(rest);
        dt_step(opt);
        if (p->frozen && s == 1) dt_model_unfreeze(m, "b.bias");
        if (p->frozen && s == 2) dt_model_freeze(m, "a.weight");
        if (p->write && s == 2) { /* the program changes values */
            dt_parameter_info a;
            for (int i = 0; i < dt_model_count(m); i++)
                if (dt_model_get(m, i, &a) && !a.buffer && i % 3 == 0) dt_copy(a.value, dt_mul_scalar(a.value, 0.5));
            dt_end();
        }
        if (p->eval && s % 2) {
            dt_tensor *y, *x = batch(200, 5, &y);
            dt_no_grad_begin();
            dt_model_eval(m);
            dt_item(dt_cross_entropy(net(m, p, x, 0), y));
            dt_model_train(m);
            dt_no_grad_end();
            dt_end();
        }
    }
    int n = weights(m, out);
    dt_ddp_free(d);
    float again[8192];
    int   n2 = weights(m, again);
    crew_check(k, n == n2 && !memcmp(again, out, (size_t)n * sizeof *out), "other values after dt_ddp_free");
    if (shard && p->kind == 1 && !p->level && !p->two) { /* alone, without states; then with new ones */
        run alone = base(0);
        backward(k, NULL, NULL, m, &alone, 0, 0);
        crew_check(k, dt_step(opt) == DT_ERR_STATE && strstr(dt_error(), "make a new optimiser"), "a step without states");
        dt_error_clear();
        dt_optimizer_free(opt);
        opt = dt_sgd(m, .lr = 0.1, .momentum = 0.5);
        backward(k, NULL, NULL, m, &alone, 1, 0);
        crew_check(k, dt_step(opt) == DT_OK, "a step with a new optimiser");
    }
    dt_optimizer_free(opt);
    dt_optimizer_free(rest);
    dt_amp_free(amp);
    dt_model_free(m);
    return n;
}
static void compare(crew *k)
{
    const run *p = (const run *)k->arg;
    float      want[8192], got[8192];
    char       what[200];
    int        n = train(k, p, 0, want);
    for (int shard = 1; shard <= 3 && dt_error_code() == DT_OK; shard++) {
        if (p->apart && shard == 3) continue;
        int n2 = train(k, p, shard, got), first = 0;
        while (first < n && !memcmp(&want[first], &got[first], sizeof *got)) first++;
        snprintf(what, sizeof what, "shard %d, optimiser %d, level %s: element %d of %d differs: %g, %g", shard,
                 p->kind, p->level ? p->level : "none", first, n, first < n ? (double)want[first] : 0,
                 first < n ? (double)got[first] : 0);
        if (!crew_check(k, n == n2 && first == n, what)) break;
    }
}
UTEST(shard, every_optimiser_has_the_bits_of_ddp)
{
    for (int kind = 0; kind < 9; kind++)
        for (int world = 2; world <= (dt_test_quick() ? 3 : 4); world++) {
            run p = base(kind);
            if (dt_test_quick() && world == 3 && kind % 3) continue;
            EXPECT_EQ(0, crew_run("shm", world, compare, &p));
        }
}
UTEST(shard, mixed_precision_has_the_bits_of_ddp)
{
    static const char *const level[4] = { "O0", "O1", "O2", "O3" };
    for (int l = 0; l < 4; l++)
        for (int kind = 0; kind < 7; kind++) {
            run p = base(kind);
            if (dt_test_quick() && (kind + l) % 3) continue;
            p.level = level[l];
            p.dtype = kind % 2 ? DT_BF16 : DT_F16;
            p.overflow = l == 1 || l == 2 ? kind % 3 : 0; /* the others have a constant scale */
            EXPECT_EQ(0, crew_run("shm", 2 + (kind + l) % 2, compare, &p));
        }
}
UTEST(shard, accumulation_has_the_bits_of_ddp)
{
    for (int l = 0; l < 4; l++)
        for (int sync = 0; sync < 2; sync++) {
            run p = base(l + 1);
            p.every = 3;
            p.sync = sync;
            p.level = l == 1 ? "O1" : l == 2 ? "O2" : l == 3 ? "O3" : NULL;
            EXPECT_EQ(0, crew_run("shm", 2 + l % 2, compare, &p));
        }
}
UTEST(shard, over_sockets_it_has_the_bits_of_ddp)
{
    for (int kind = 1; kind < 6; kind += 4) {
        run p = base(kind);
        EXPECT_EQ(0, crew_run("tcp", 2, compare, &p)); /* two ranks: every order of a sum is the same */
        setenv("DT_COMM_ORDERED", "1", 1);
        p.level = "O2";
        EXPECT_EQ(0, crew_run("tcp", 3, compare, &p));
        EXPECT_EQ(0, crew_run("shm", 3, compare, &p));
        unsetenv("DT_COMM_ORDERED");
    }
}
/* reduce_scatter on one machine sums in the order of ranks, as allreduce does, from shared memory */
static void scatter_as_all(crew *k)
{
    static const int dtype[3] = { DT_COMM_F32, DT_COMM_F16, DT_COMM_BF16 };
    uint64_t         seed = 5, mine;
    enum { MOST = 40000 };
    for (int turn = 0; turn < 24; turn++) {
        int     t = dtype[turn % 3], size = t ? 2 : 4;
        int64_t n = 1 + (int64_t)(dt_test_random(&seed) % MOST), count[4] = { 0 }, left = n, at = 0;
        for (int r = 0; r < k->world; r++) {
            count[r] = r + 1 < k->world ? (int64_t)(dt_test_random(&seed) % (uint64_t)(left + 1)) : left;
            left -= count[r];
            if (r < k->rank) at += count[r];
        }
        bool shared = turn % 4 != 3,
             all_shared = turn % 4 != 2 || k->rank; /* of one rank not: then by messages, in another order */
        char *x = (char *)(shared && all_shared ? dt_comm_alloc(k->c, MOST * 4) : malloc(MOST * 4)),
             *y = (char *)dt_comm_alloc(k->c, MOST * 4);
        char *out = (char *)malloc(MOST * 4 + 1);
        mine = seed + (uint64_t)k->rank;
        for (int64_t i = 0; i < n; i++) {
            float f = (float)(dt_test_random(&mine) % 20001) / 10000 - 1;
            if (t == DT_COMM_F32) ((float *)(void *)x)[i] = f;
            else
                ((uint16_t *)(void *)x)[i] = (uint16_t)(t == DT_COMM_F16 ? 0x3800 + (dt_test_random(&mine) & 0x83ff)
                                                                         : 0x3f00 + (dt_test_random(&mine) & 0x807f));
        }
        memcpy(y, x, (size_t)(n * size));
        bool in_place = turn % 5 == 1;
        dt_comm_allreduce(k->c, y, n, t, DT_COMM_SUM);
        dt_comm_reduce_scatter(k->c, x, in_place ? x + at * size : out, 0, count, t, DT_COMM_SUM);
        if (turn % 4 < 2 || k->world == 2)
            crew_check(k, !memcmp(in_place ? x + at * size : out, y + at * size, (size_t)(count[k->rank] * size)),
                       "reduce_scatter has other bits");
        dt_comm_barrier(k->c);
        if (shared && all_shared) dt_comm_dealloc(k->c, x);
        else free(x);
        dt_comm_dealloc(k->c, y);
        free(out);
        crew_check(k, !dt_comm_get_status(k->c), "the communicator failed");
    }
}
UTEST(shard, reduce_scatter_has_the_bits_of_allreduce)
{
    for (int world = 2; world <= 4; world++) EXPECT_EQ(0, crew_run("shm", world, scatter_as_all, NULL));
}
UTEST(shard, a_rank_without_data_repeats_its_last_step)
{
    static const char *const kind[4] = { NULL, "powersgd", "bf16", "topk" };
    for (int what = 0; what < 8; what++) {
        run p = base(what % 3);
        if (dt_test_quick() && what % 2) continue;
        p.steps = 9;
        p.skip = 1 + what % 2;
        p.level = what == 1 ? "O1" : what == 2 ? "O2" : NULL;
        p.syncnorm = what == 3 || what == 4;
        p.eval = what == 4 || what == 5;
        p.write = what == 5;
        p.shared = what == 6;
        p.frozen = 0;
        p.every = what == 7 ? 4 : 0;
        p.compress = kind[what % 4];
        p.whole = what % 4 == 1;
        p.clip = what == 0;
        EXPECT_EQ(0, crew_run(what == 1 ? "tcp" : "shm", what == 1 ? 2 : 3, compare, &p));
    }
}
UTEST(shard, the_rest_of_training_has_the_bits_of_ddp)
{
    for (int what = 0; what < 18; what++)
        for (int kind = 1; kind < 6; kind += 4) {
            if (dt_test_quick() && (what + kind / 4) % 2) continue;
            run p = base(kind);
            p.steps = 6;
            p.groups = what == 0;
            p.frozen = what == 1;
            p.branch = what == 2;
            p.shared = what == 3;
            p.clip = what == 4;
            p.weighted = what == 5;
            p.two = what == 6;
            p.skip = what == 7 ? 1 + kind / 4 : 0;
            p.syncnorm = what == 8;
            p.eval = what == 9;
            p.groups = p.groups || what == 10;
                p.frozen = p.frozen || what == 11;
            p.write = what == 12;
            p.late = what >= 16;
            if (what == 17) p.level = "O2";
            if (what >= 14) p.branch = p.apart = 1, p.every = what == 14 ? 0 : 3, p.sync = 1;
            p.shared = p.shared || what == 13;
            p.eval = p.eval || what == 13;
            if (what == 10 || what == 11) p.level = "O2", p.every = 2;
            int bad = crew_run("shm", 3, compare, &p);
            if (bad) dt_test_say("    case %d, optimiser %d\n", what, kind);
            EXPECT_EQ(0, bad);
        }
}

/* ---------------------------------------------------------------------------------------------------- memory */
typedef struct big {
    int         shard, kind;
    const char *level, *dir;
} big;
static dt_tensor *wide(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "in", x, .out = 300, .act = DT_ACT_RELU);
    for (int i = 0; i < 4; i++) {
        dt_scope_begin(m, "layer%d", i);
        x = dt_linear(m, "mid", x, .out = 300, .act = DT_ACT_RELU);
        dt_scope_end(m);
    }
    return dt_linear(m, "out", x, .out = OUT);
}
static bool near5(int64_t a, int64_t b) { return (double)a > 0.95 * (double)b && (double)a < 1.05 * (double)b; }
static void measure(crew *k)
{
    const big      *p = (const big *)k->arg;
    dt_model       *m = dt_model_new(.seed = 1);
    dt_amp         *amp = p->level ? dt_amp_new(m, .level = p->level) : NULL;
    dt_memory_stats before = dt_stats();
    dt_optimizer   *opt = p->kind ? dt_sgd(m, .lr = 0.1, .momentum = 0.9) : dt_adam(m, .lr = 1e-3);
    dt_ddp *d = dt_ddp_new(m, k->c, .shard = p->shard, .first_bucket_mb = 0.1, .bucket_mb = 0.2, .state_dir = p->dir);
    for (int s = 0; s < 3; s++) {
        dt_tensor *y, *x = batch(s * 16 + k->rank * 4, 4, &y), *loss = dt_cross_entropy(wide(m, x), y);
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        dt_step(opt);
    }
    dt_ddp_memory u = dt_ddp_get_memory(d);
    double        P = (double)dt_model_numel(m, true), N = p->shard ? k->world : 1, g = p->shard > 1 ? N : 1,
           v = p->shard > 2 ? N : 1;
    double  states = p->kind ? 4 : 8, half = amp ? 2 : 4, f = P * (half / v + half / g + (states + (amp ? 8 : 0)) / N);
    int64_t sum = u.parameters + u.gradients + u.masters + u.states,
            live = (int64_t)(dt_stats().live_bytes - before.live_bytes);
    char what[300];
    snprintf(what, sizeof what,
             "shard %d: %lld parameters, %lld gradients, %lld masters, %lld states, %lld buckets, live %lld; formula "
             "%lld, expected %.0f",
             p->shard, (long long)u.parameters, (long long)u.gradients, (long long)u.masters, (long long)u.states,
             (long long)u.buckets, (long long)live, (long long)u.formula, f);
    crew_check(k, near5(u.formula, (int64_t)f), what);
    dt_scale_layer   one; /* the planner knows the same formula */
    dt_scale_model   plan;
    dt_scale_cluster machine;
    dt_scale_opts    ask;
    memset(&one, 0, sizeof one);
    memset(&plan, 0, sizeof plan);
    memset(&ask, 0, sizeof ask);
    dt_scale_cluster_default(&machine);
    machine.per_machine = k->world;
    one.params = (int64_t)P;
    one.flops = one.flops_back = 1;
    plan.nlayers = 1;
    plan.layer = &one;
    ask.model = &plan;
    ask.cluster = &machine;
    ask.layout.zero = p->shard;
    ask.precision = amp ? DT_SCALE_O2 : DT_SCALE_F32;
    ask.states = p->kind ? 1 : 2;
    dt_scale_prediction *q = dt_scale_predict(&ask);
    crew_check(k, q && near5((int64_t)(q->memory.parameters + q->memory.gradients + q->memory.states), u.formula), "the planner's formula");
    dt_scale_prediction_free(q);
    crew_check(k, near5(sum, u.formula), what);
    live -= u.buckets; /* what dt_stats has beside buckets: the same, but for states in files, and small things */
    /* without .shard the size classes of the allocator add up to an eighth */
    crew_check(k, !p->shard || near5(live + (p->dir ? u.states : 0), sum + 20000), what);
    crew_check(k, u.buckets < 2500000 && (p->shard > 1) == (u.buckets > 0), what);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_amp_free(amp);
    dt_model_free(m);
}
UTEST(shard, states_in_files)
{
    char *dir = temp_dir();
    for (int shard = 1; shard <= 3; shard++) {
        big p = { shard, 0, shard == 2 ? "O2" : NULL, dir };
        EXPECT_EQ(0, crew_run("shm", 2, measure, &p));
    }
    EXPECT_EQ(0, rmdir(dir)); /* nothing is left in it */
    free(dir);
}
UTEST(shard, memory_is_that_of_the_formula)
{
    for (int shard = 0; shard <= 3; shard++)
        for (int what = 0; what < 4; what++) {
            big p = { shard, what & 1, what > 1 ? "O2" : NULL, NULL };
            if (dt_test_quick() && (shard + what) % 2) continue;
            EXPECT_EQ(0, crew_run("shm", 2 + (shard + what) % 3, measure, &p));
        }
}
/* ---------------------------------------------------------------------------------------------------- checkpoints */
static dt_tensor *odd(dt_model *m, dt_tensor *x) /* parameters of 1 and 5 elements among others */
{
    x = dt_linear(m, "a", x, .out = 5, .act = DT_ACT_RELU);
    x = dt_batchnorm1d(m, "bn", x);
    x = dt_mul(x, dt_parameter(m, "one", DT_SHAPE(1), .init = DT_INIT_CONST, .a = 0.7));
    return dt_linear(m, "c", dt_linear(m, "b", x, .out = 37), .out = OUT);
}
typedef struct layouts {
    const char *dir;
    const char *level;
    int         shard;
} layouts;
static void place(char *path, size_t n, const layouts *p, const char *what, int world, int shard)
{
    snprintf(path, n, "%s/%s-%d-%d-%s", p->dir, what, world, shard, p->level ? p->level : "f32");
}
typedef struct trainee {
    dt_model      *m;
    dt_amp        *amp;
    dt_optimizer  *opt;
    dt_scheduler  *sched;
    dt_ddp        *d;
    dt_checkpoint *c;
} trainee;
static trainee trainee_new(crew *k, const char *dir, const char *level, int shard, int seed)
{
    trainee t;
    t.m = dt_model_new(.seed = (uint64_t)seed);
    t.amp = level ? dt_amp_new(t.m, .level = level) : NULL;
    t.opt = dt_adam(t.m, .lr = 0.01);
    dt_optimizer_add_group(t.opt, "*bias", .lr = 0.02);
    t.sched = dt_step_lr(t.opt, .step_size = 2);
    t.d = dt_ddp_new(t.m, k->c, .shard = shard, .first_bucket_mb = 0.0003, .bucket_mb = 0.0006);
    t.c = dt_checkpoint_new(dir, .model = t.m, .scheduler = t.sched);
    return t;
}
static void trainee_step(crew *k, trainee *t, int s)
{
    dt_tensor *y, *x = batch(s * 16 + k->rank * 4, 4, &y), *loss = dt_cross_entropy(odd(t->m, x), y);
    if (t->amp) dt_amp_backward(t->amp, loss);
    else dt_backward(loss);
    dt_step(t->opt);
    dt_scheduler_step(t->sched);
}
static void trainee_free(trainee *t)
{
    dt_checkpoint_free(t->c);
    dt_ddp_free(t->d);
    dt_scheduler_free(t->sched);
    dt_optimizer_free(t->opt);
    dt_amp_free(t->amp);
    dt_model_free(t->m);
}
static void save_all(crew *k) /* every .shard of this world writes a checkpoint */
{
    const layouts *p = (const layouts *)k->arg;
    char           dir[200];
    for (int shard = 0; shard <= 3; shard++) {
        place(dir, sizeof dir, p, "from", k->world, shard);
        trainee t = trainee_new(k, dir, p->level, shard, 5);
        for (int s = 0; s < 3; s++) trainee_step(k, &t, s);
        dt_checkpoint_save(t.c, 1, 3);
        trainee_free(&t);
    }
}
static void load_all(crew *k) /* and reads those of all worlds; what it writes then is the same */
{
    const layouts *p = (const layouts *)k->arg;
    char           from[200], to[200], what[600];
    for (int world = 1; world <= 4; world++)
        for (int shard = 0; shard <= 3; shard++)
            for (int mine = 0; mine <= 3; mine++) {
                if (dt_test_quick() && (world + shard + mine + k->world) % 4) continue;
                int64_t epoch = 0, step = 0;
                place(from, sizeof from, p, "from", world, shard);
                place(to, sizeof to, p, "to", k->world, mine);
                trainee t = trainee_new(k, from, p->level, mine, 9);
                bool    before = (world + shard + mine) % 2; /* a sealed model, which has trained */
                if (before) trainee_step(k, &t, 7);
                crew_check(k, dt_checkpoint_resume(t.c, &epoch, &step) == 1 && epoch == 1 && step == 3, "resume");
                if (!before) {
                    dt_tensor *y, *x = batch(0, 2, &y);
                    dt_model_eval(t.m);
                    odd(t.m, x);
                    dt_model_train(t.m);
                    dt_end();
                    dt_model_seal(t.m);
                }
                dt_checkpoint *out = dt_checkpoint_new(to, .model = t.m, .scheduler = t.sched, .keep = 1);
                dt_checkpoint_save(out, epoch, step);
                dt_checkpoint_free(out);
                if (k->rank == 0) crew_check(k, same_files(from, to, what, sizeof what), what);
                trainee_free(&t);
                if (dt_error_code()) return;
            }
}
UTEST(shard, every_layout_reads_the_checkpoints_of_every_other)
{
    char *dir = temp_dir();
    for (int l = 0; l < 2; l++) {
        layouts p = { dir, l ? "O2" : NULL, 0 };
        for (int world = 1; world <= 4; world++) EXPECT_EQ(0, crew_run("shm", world, save_all, &p));
        for (int world = 1; world <= 4; world++) EXPECT_EQ(0, crew_run("shm", world, load_all, &p));
    }
    temp_remove(dir);
}

static void save_and_resume(crew *k) /* 4 steps; 2 steps, saved, and 2 more in a new model */
{
    const layouts *p = (const layouts *)k->arg;
    float          want[8192], got[8192];
    char           dir[200];
    for (int shard = 0; shard <= 3; shard++) {
        place(dir, sizeof dir, p, "resume", k->world, shard);
        int     n = 0;
        int64_t epoch = 0, step = 0;
        for (int part = 0; part < 2; part++) {
            trainee t = trainee_new(k, dir, p->level, shard, 5 + part);
            if (part) crew_check(k, dt_checkpoint_resume(t.c, &epoch, &step) == 1, "resume");
            for (int s = part ? 2 : 0; s < 4; s++) {
                trainee_step(k, &t, s);
                if (!part && s == 1) dt_checkpoint_save(t.c, 0, 2);
            }
            n = weights(t.m, part ? got : want);
            if (part) { /* the model alone, into a model without ddp */
                char path[300], what[100];
                snprintf(path, sizeof path, "%s/model.safetensors", dir);
                dt_model_save(t.m, path);
                dt_model  *m = dt_model_new(.seed = 77);
                dt_amp    *amp = p->level ? dt_amp_new(m, .level = p->level) : NULL;
                dt_tensor *y, *x = batch(0, 2, &y);
                dt_model_load(m, path);
                odd(m, x);
                dt_end();
                float alone[8192];
                int   n2 = weights(m, alone);
                snprintf(what, sizeof what, "shard %d: dt_model_save", shard);
                crew_check(k, n == n2 && (p->level || !memcmp(alone, got, (size_t)n * sizeof *got)), what);
                dt_amp_free(amp);
                dt_model_free(m);
                dt_model_load(t.m, path); /* into itself: nothing changes */
                n2 = weights(t.m, alone);
                crew_check(k, n == n2 && !memcmp(alone, got, (size_t)n * sizeof *got), "dt_model_load");
            }
            trainee_free(&t);
        }
        crew_check(k, !memcmp(want, got, (size_t)n * sizeof *got), "a resumed training");
    }
}
UTEST(shard, a_resumed_training_has_the_bits_of_one_that_went_on)
{
    char *dir = temp_dir();
    for (int l = 0; l < 2; l++) {
        layouts p = { dir, l ? "O2" : NULL, 0 };
        EXPECT_EQ(0, crew_run("shm", 3 - l, save_and_resume, &p));
    }
    temp_remove(dir);
}

/* A checkpoint of Adam, a training with SGD: all ranks are told why, and go on as they were */
static void other_optimiser(crew *k)
{
    const layouts *p = (const layouts *)k->arg;
    int64_t        epoch = 0, step = 0;
    trainee        t = trainee_new(k, p->dir, NULL, 3, 5);
    for (int s = 0; s < 2; s++) trainee_step(k, &t, s);
    dt_checkpoint_save(t.c, 0, 2);
    trainee_free(&t);
    dt_model      *m = dt_model_new(.seed = 6);
    dt_optimizer  *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_ddp        *d = dt_ddp_new(m, k->c, .shard = 2);
    dt_checkpoint *c = dt_checkpoint_new(p->dir, .model = m, .optimizer = opt);
    crew_check(k, dt_checkpoint_resume(c, &epoch, &step) < 1 && dt_error() && strstr(dt_error(), "optimi"), "another optimiser");
    dt_error_clear();
    dt_checkpoint_free(c);
    dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(shard, a_checkpoint_of_another_optimiser_is_refused_on_all_ranks)
{
    char   *dir = temp_dir();
    layouts p = { dir, NULL, 0 };
    EXPECT_EQ(0, crew_run("shm", 2, other_optimiser, &p));
    temp_remove(dir);
}

/* ---------------------------------------------------------------------------------------------------- what goes wrong */
typedef struct wrong {
    int         what;
    const char *says[2], *dir; /* what every rank's error has in it */
    int         world;
} wrong;
static void must_say(crew *k, const wrong *p)
{
    const char *e = dt_error() ? dt_error() : "(no error)";
    for (int i = 0; i < 2 && p->says[i]; i++) {
        if (p->what == 0 && i && k->rank) continue; /* it waits for something else itself */
        char what[300];
        snprintf(what, sizeof what, "case %d: '%s' is not in the error", p->what, p->says[i]);
        crew_check(k, strstr(e, p->says[i]) != NULL, what);
    }
}
static void step_of(dt_model *m, dt_optimizer *opt, const run *p, crew *k, int s)
{
    backward(k, NULL, NULL, m, p, s, 0);
    dt_step(opt);
}
static void go_wrong(crew *k)
{
    const wrong  *p = (const wrong *)k->arg;
    run           r = base(0);
    r.branch = p->what == 13;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_adam(m, .lr = 0.01);
    int         shard = p->what == 3 ? (k->rank ? 2 : 1) : p->what == 4 ? 4 : p->what == 5 ? -1 : p->what == 10 ? 1 : 3;
    const char *dir = p->what == 6 ? "/proc/self/nothing" : p->what == 10 ? p->dir : NULL;
    dt_ddp     *d = dt_ddp_new(m, k->c, .shard = shard, .first_bucket_mb = 0.0003, .bucket_mb = 0.001, .state_dir = dir,
                               .slots = p->what == 9 ? 4 : 0);
    if (p->what == 10) { /* a disk that is full */
        struct rlimit l = { 64, 64 };
        signal(SIGXFSZ, SIG_IGN);
        if (k->rank == 1) setrlimit(RLIMIT_FSIZE, &l);
    }
    for (int s = 0; s < 3 && dt_error_code() == DT_OK; s++) {
        if (p->what == 0 && s == 2 && k->rank == 1) { /* no forward: on to the next thing */
            dt_ddp_mean(d, 1, 1);
            break;
        }
        if (p->what == 1 && s == 2) { /* other layers, of one size */
            if (k->rank) dt_copy_out(dt_model_find(m, "b.weight"), (float[21 * 21]){ 0 }, 21 * 16 * 4);
            else dt_copy_out(dt_model_find(m, "c.weight"), (float[OUT * 21]){ 0 }, OUT * 21 * 4);
        }
        if (p->what == 2 && s == 2 && k->rank == 1) break; /* ends its training */
        if (p->what == 7 && s == 1 && k->rank) dt_ddp_skip(d); /* the first whole step */
        if (p->what == 12 && s == 2) {
            dt_ddp_skip(d);
            break;
        }
        if (p->what == 13 && s == 2 && k->rank) { /* the others use one layer more */
            dt_ddp_skip(d);
            break;
        }
        if (p->what == 8 && s == 2 && k->rank == 1) {
            dt_tensor *y, *x = batch(0, 4, &y);
            dt_backward(dt_mul_scalar(dt_cross_entropy(net(m, &r, x, s), y), INFINITY));
            dt_step(opt);
            continue;
        }
        if (p->what == 11 && s == 2) dt_ddp_broadcast(d);
        step_of(m, opt, &r, k, r.branch && s == 2 ? 3 : s);
    }
    if (p->what == 2 && k->rank == 1) {
        dt_ddp_free(d);
        d = NULL;
    }
    must_say(k, p);
    dt_error_clear();
    dt_ddp_free(d);
    dt_error_clear();
    if (d && p->what < 3) { /* values that cannot be had any more */
        float x[16 * IN];
        dt_copy_out(dt_model_find(m, "a.weight"), x, sizeof x);
        crew_check(k, dt_error_code() != DT_OK, "values of a model whose ranks have gone");
        dt_error_clear();
        dt_step(opt);
        crew_check(k, dt_error_code() == DT_ERR_STATE, "a step without the other ranks");
        dt_error_clear();
    }
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_error_clear();
}
UTEST(shard, ranks_that_differ_are_named)
{
    char       *dir = temp_dir();
    const wrong cases[] = {
        { 0, { "rank", "gathers the parameters" }, NULL, 2 },
        { 1, { "'c.weight' to 'c.bias'", "'b.weight' to 'ln.bias'" }, NULL, 2 },
        { 2, { "ended its training", NULL }, NULL, 2 },
        { 3, { ".shard", "rank 1" }, NULL, 2 },
        { 4, { ".shard is 4", "it must be 1" }, NULL, 2 },
        { 5, { ".shard is -1", NULL }, NULL, 2 },
        { 6, { ".state_dir /proc/self/nothing", "cannot make a file" }, NULL, 2 },
        { 7, { "dt_ddp_skip", "the first two steps" }, NULL, 2 },
        { 8, { "rank 1", "is not finite" }, NULL, 3 },
        { 9, { ".slots", NULL }, NULL, 2 },
        { 10, { "rank 1", "bytes for optimiser states" }, dir, 2 },
        { 11, { "dt_ddp_broadcast", "sharded" }, NULL, 2 },
        { 12, { "all ranks skip this step", NULL }, NULL, 2 },
        { 13, { "uses the parameters", "the same layers" }, NULL, 3 },
    };
    double before = crew_timeout;
    crew_timeout = 2 * dt_test_slow();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wrong p = cases[i];
        EXPECT_EQ(0, crew_run("shm", p.world, go_wrong, &p));
    }
    crew_timeout = before;
    temp_remove(dir);
}

/* ---------------------------------------------------------------------------------------------------- a save that is cut off */
static struct {
    int  left;  /* file operations until it happens; 0: never */
    bool crash; /* the process ends; else the operation fails */
} plight;
static bool strikes(void)
{
    if (!plight.left || --plight.left) return false;
    if (plight.crash) _exit(9);
    errno = ENOSPC;
    return true;
}
static ssize_t bad_write(int fd, const void *p, size_t n) { return strikes() ? -1 : write(fd, p, n); }
static ssize_t bad_pwrite(int fd, const void *p, size_t n, off_t at) { return strikes() ? -1 : pwrite(fd, p, n, at); }
static int     bad_fsync(int fd) { return strikes() ? -1 : fsync(fd); }
static int     bad_rename(const char *a, const char *b) { return strikes() ? -1 : rename(a, b); }
static int     bad_open(const char *path, int flags, unsigned mode)
{
    return strikes() ? -1 : open(path, flags, (mode_t)mode);
}
typedef struct cut_off {
    const char *dir;
    int         rank, at;
    bool        crash, happened;
} cut_off;
static void save_cut_off(crew *k)
{
    const cut_off *p = (const cut_off *)k->arg;
    trainee        t = trainee_new(k, p->dir, NULL, 2, 5);
    for (int s = 0; s < 2; s++) {
        trainee_step(k, &t, s);
        if (s == 1 && k->rank == p->rank) {
            plight.left = p->at;
            plight.crash = p->crash;
            dt__fs.write = bad_write;
            dt__fs.pwrite = bad_pwrite;
            dt__fs.fsync = bad_fsync;
            dt__fs.rename = bad_rename;
            dt__fs.open = bad_open;
        }
        dt_checkpoint_save(t.c, 0, s + 1);
    }
    bool struck = k->rank == p->rank && !plight.left;
    if (struck) k->box->number[0] = 1;
    plight.left = 0;
    if (dt_error_code() != DT_OK && p->rank == 1) { /* rank 0 has not given the file its name */
        char path[300];
        snprintf(path, sizeof path, "%s/ckpt-00000002.safetensors", p->dir);
        crew_check(k, access(path, F_OK) != 0, "a checkpoint of which a part is missing has its name");
    }
    if (dt_error_code() == DT_OK) crew_check(k, !struck, "a save that failed on another rank only");
    else crew_check(k, strstr(dt_error(), "space") || p->crash, "another error");
    dt_error_clear();
    trainee_free(&t);
    dt_error_clear();
}
static void resume_one(crew *k)
{
    const cut_off *p = (const cut_off *)k->arg;
    int64_t        epoch = 0, step = 0;
    trainee        t = trainee_new(k, p->dir, NULL, 3, 9);
    int            got = dt_checkpoint_resume(t.c, &epoch, &step);
    crew_check(k, got == 1 && (step == 1 || step == 2), "no whole checkpoint");
    trainee_step(k, &t, 0);
    trainee_free(&t);
}
UTEST(shard, a_save_that_fails_or_is_cut_off_leaves_a_whole_checkpoint)
{
    double before = crew_timeout;
    crew_timeout = 3 * dt_test_slow();
    for (int mode = 0; mode < 4; mode++)
        for (int at = 1;; at += dt_test_quick() ? 17 : 1) {
            char     *dir = temp_dir();
            crew_box *box = crew_box_new();
            cut_off   p = { dir, mode & 1, at, mode > 1, false };
            crew_run_in(box, "shm", 2, save_cut_off, &p);
            bool over = p.crash ? !box->status : !box->number[0]; /* fewer operations than that */
            EXPECT_EQ(0, box->failed);
            EXPECT_EQ(0, crew_run("shm", 3, resume_one, &p));
            munmap(box, sizeof *box);
            temp_remove(dir);
            if (over) {
                EXPECT_GT(at, 10);
                break;
            }
        }
    crew_timeout = before;
}

/* ---------------------------------------------------------------------------------------------------- memory of loading and saving */
enum { LARGE = 1440 };
static dt_tensor *large(dt_model *m, dt_tensor *x)
{
    char name[8];
    x = dt_linear(m, "in", x, .out = LARGE);
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "m%d", i);
        x = dt_linear(m, name, x, .out = LARGE);
    }
    return dt_linear(m, "out", x, .out = OUT);
}
static void stream(crew *k)
{
    const layouts *p = (const layouts *)k->arg;
    int64_t        epoch, step;
    for (int turn = 0; turn < 2; turn++) { /* save with 2 and load with 3 */
        dt_model      *m = dt_model_new(.seed = 1);
        dt_optimizer  *opt = dt_adam(m, .lr = 1e-4);
        dt_ddp        *d = dt_ddp_new(m, k->c, .shard = turn ? 3 : 2, .bucket_mb = 8);
        dt_checkpoint *c = dt_checkpoint_new(p->dir, .model = m);
        char           what[200];
        dt_tensor     *y, *x = batch(k->rank, 2, &y), *loss = dt_cross_entropy(large(m, x), y);
        if (!turn) dt_backward(loss);
        else dt_model_seal(m);
        if (turn) dt_end();
        else dt_step(opt);
        dt_empty_cache();
        bool    known = peak_begin();
        int64_t before = status_kib("VmRSS:"), states = dt_ddp_get_memory(d).states;
        if (turn) crew_check(k, dt_checkpoint_resume(c, &epoch, &step) == 1, "resume");
        else dt_checkpoint_save(c, 0, 1);
        int64_t more = status_kib("VmHWM:") - before, grew = (dt_ddp_get_memory(d).states - states) >> 10;
        snprintf(what, sizeof what, "%s: %lld KiB more, of which %lld are states", turn ? "resume" : "save",
                 (long long)more, (long long)grew);
        crew_check(k, !known || more < grew + 65536, what);
        if (getenv("SHOW_MEMORY")) printf("    %s\n", what);
        dt_checkpoint_free(c);
        dt_ddp_free(d);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
}
UTEST(shard, loading_and_saving_need_64_mib_at_most)
{
    char   *dir = temp_dir();
    layouts p = { dir, NULL, 0 };
    if (dt_test_quick()) {
        temp_remove(dir);
        UTEST_SKIP("it needs a model of more than 64 MiB, and takes seconds");
    }
    EXPECT_EQ(0, crew_run("shm", 2, stream, &p));
    temp_remove(dir);
}

/* ---------------------------------------------------------------------------------------------------- compression, hooks */
UTEST(shard, compressed_gradients_have_the_bits_of_ddp)
{
    static const char *const kind[] = { "f16", "bf16", "topk", "dgc", "sign", "onebit", "randomk", "qsgd", "powersgd" };
    for (int i = 0; i < 9; i++)
        for (int l = 0; l < 3; l++) {
            if (dt_test_quick() && (i + l) % 3) continue;
            run p = base(i % 2 ? 1 : 0);
            p.compress = kind[i];
            p.whole = i > 5;
            p.level = l == 1 ? "O1" : l == 2 ? "O2" : NULL;
            p.overflow = l ? i % 3 : 0;
            p.every = l ? 0 : 2;
            p.weighted = l == 0;
            EXPECT_EQ(0, crew_run(l == 1 ? "tcp" : "shm", l == 1 ? 2 : 3, compare, &p));
        }
}
/* Several collectives of a bucket, and gathers of .shard = 3 between them */
static void stages(crew *k)
{
    const run *p = (const run *)k->arg;
    float     *mine = k->box->x[k->rank];
    for (int shard = 1; shard <= 3; shard++) {
        int n = train(k, p, shard, mine);
        dt_comm_barrier(k->c);
        for (int r = 0; r < k->world; r++) crew_check(k, !memcmp(mine, k->box->x[r], (size_t)n * sizeof *mine), "other weights");
        dt_comm_barrier(k->c);
    }
}
UTEST(shard, collectives_that_depend_on_each_other_do_not_wait_for_gathers)
{
    static const char *const kind[] = { "powersgd", "randomk", "auto" };
    for (int i = 0; i < 3; i++) {
        run p = base(0);
        p.compress = kind[i];
        p.steps = 24;
        p.skip = 1;
        EXPECT_EQ(0, crew_run(i ? "shm" : "tcp", 3, stages, &p));
    }
}
/* f16: a sum that no rank's own value tells is too large, in the range of one rank */
static void too_large(crew *k)
{
    int           shard = *(const int *)k->arg;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 1e-9);
    dt_ddp       *d = dt_ddp_new(m, k->c, .shard = shard, .compress = { "f16" });
    for (int s = 0; s < 3 && dt_error_code() == DT_OK; s++) {
        dt_tensor *w = dt_parameter(m, "w", DT_SHAPE(300), .init = DT_INIT_CONST, .a = 1);
        double     scale = s < 2 ? 1 : 60000.0 * k->world;
        dt_backward(dt_mul_scalar(dt_sum(dt_narrow(w, 0, s < 2 ? 0 : 299, 1)), scale));
        if (dt_error_code() == DT_OK) dt_step(opt);
    }
    crew_check(k, dt_error_code() == DT_ERR_NUMERIC && strstr(dt_error(), "cannot send") && strstr(dt_error(), "all ranks"),
               "a sum that f16 cannot hold");
    dt_error_clear();
    dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(shard, a_sum_that_f16_cannot_hold_is_an_error_on_all_ranks)
{
    for (int shard = 0; shard <= 3; shard++) EXPECT_EQ(0, crew_run("shm", 2, too_large, &shard));
}
/* optimisers that need whole parameters */
static void whole_only(crew *k)
{
    int           shard = *(const int *)k->arg;
    for (int kind = 0; kind < 3; kind++) {
        dt_model     *m = dt_model_new(.seed = 3);
        dt_optimizer *opt = kind == 0 ? dt_adafactor(m) : kind == 1 ? dt_optimizer_new(m, &rms_each) : dt_muon(m);
        dt_ddp       *d = dt_ddp_new(m, k->c, .shard = shard);
        dt_tensor    *w = dt_parameter(m, "w", DT_SHAPE(30, 20), .init = DT_INIT_CONST, .a = 1);
        dt_backward(dt_sum(dt_mul(w, w)));
        dt_step(opt);
        /* a rank may learn it from the other one first */
        crew_check(k, (dt_error_code() == DT_ERR_STATE || dt_error_code() == DT_ERR_COMM) && strstr(dt_error(), kind == 0 ? "dt_adafactor: it needs whole parameters" :
                   kind == 1 ? "rms: it takes each parameter whole (.each)" : "dt_muon: it needs whole matrices"), "not refused");
        dt_error_clear();
        dt_end();
        dt_ddp_free(d);
        dt_error_clear();
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
}
UTEST(shard, optimisers_that_need_whole_parameters_are_refused)
{
    for (int shard = 1; shard <= 3; shard++) EXPECT_EQ(0, crew_run("shm", 2, whole_only, &shard));
}
static int hook_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    (void)user;
    if (!b->state) b->state = calloc((size_t)b->n, sizeof(float));
    if (!b->state) return -1;
    ((float *)b->state)[0] += (float)(b->rank + 1);
    if (dt_numel(b->grad) != b->n || dt_data_ptr(b->grad) != b->data) return dt_fail(DT_ERR_STATE, ".grad is not .data");
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
    return *work ? 0 : -1;
}
static int hook_saved(dt_ddp_bucket *b, dt_ddp_state *s, void *user)
{
    (void)user;
    if (!b->state) b->state = calloc((size_t)b->n, sizeof(float));
    return !b->state ? -1 : dt_ddp_state_array(s, "count", -1, (float *)b->state, b->n, DT_DDP_OWN);
}
static void hook_gone(dt_ddp_bucket *b, void *user)
{
    (void)user;
    free(b->state);
}
static void hooked(crew *k)
{
    const layouts *p = (const layouts *)k->arg;
    float          want[8192], got[8192];
    int64_t        epoch, step;
    char           dir[300];
    snprintf(dir, sizeof dir, "%s/%d", p->dir, p->shard);
    for (int part = 0; part < 3; part++) { /* DDP; .shard; resumed */
        trainee t = trainee_new(k, dir, NULL, part ? p->shard : 0, 5);
        dt_ddp_set_hook(t.d, .name = "sum", .start = hook_start, .saved = hook_saved, .gone = hook_gone, .sums = true);
        if (part == 2) crew_check(k, dt_checkpoint_resume(t.c, &epoch, &step) == 1, "resume");
        for (int s = part == 2 ? 2 : 0; s < 4; s++) {
            trainee_step(k, &t, s);
            if (part == 1 && s == 1) dt_checkpoint_save(t.c, 0, 2);
        }
        int n = weights(t.m, part ? got : want);
        if (part) crew_check(k, !memcmp(want, got, (size_t)n * sizeof *got), "with a hook");
        trainee_free(&t);
    }
    char        path[400], name[64];
    dt_archive *a = dt_checkpoint_latest(dir, NULL, path, sizeof path) ? dt_archive_open(path) : NULL;
    for (int r = 0; r < k->world; r++) { /* the state of every rank is in the file */
        snprintf(name, sizeof name, "ddp.count.c.bias.%d", r);
        crew_check(k, dt_archive_find(a, name) >= 0, name);
    }
    dt_archive_free(a);
}
UTEST(shard, hooks_have_whole_buckets)
{
    char *dir = temp_dir();
    for (int shard = 1; shard <= 3; shard++) {
        layouts p = { dir, NULL, shard };
        EXPECT_EQ(0, crew_run("shm", 3, hooked, &p));
    }
    temp_remove(dir);
}

/* A hook with two collectives, one after the other. When the second one of a bucket begins: how many buckets have started. */
typedef struct two_ways {
    bool  fast; /* the first collective of this rank is over when start returns */
    int   started, nplaces, place[64];
    float one[64];
} two_ways;
static int two_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    two_ways *t = (two_ways *)user;
    t->started++;
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
    if (!*work || !t->fast) return *work ? 0 : -1;
    dt_work *w = *work;
    *work = NULL;
    return dt_work_wait(w);
}
static int two_finish(dt_ddp_bucket *b, dt_work **work, void *user)
{
    two_ways *t = (two_ways *)user;
    if (b->stage > 1) return 0;
    if (t->nplaces < 64) t->place[t->nplaces++] = t->started;
    *work = dt_comm_allreduce_start(b->comm, &t->one[b->index % 64], 1, DT_COMM_F32, DT_COMM_SUM);
    return *work ? 0 : -1;
}
/* From the second step on `a` is used twice: its gradient is the first of the two to begin, and complete after those of b1 and b2,
   whose parameters are gathered in between. */
static dt_tensor *woven(dt_model *m, dt_tensor *x, int step)
{
    static const char *const name[] = { "b1", "b2", "a", "c1", "c2" };
    x = dt_linear(m, "in", x, .out = 16, .act = DT_ACT_RELU);
    if (step) x = dt_linear(m, "a", x, .out = 16, .shared = true);
    for (int i = 0; i < 5; i++) x = dt_linear(m, name[i], x, .out = 16, .act = DT_ACT_RELU, .shared = i == 2);
    return dt_linear(m, "d", x, .out = OUT);
}
static void weave(crew *k)
{
    bool      skips = *(const int *)k->arg;
    float     got[2][8192];
    int       n = 0, failed = 0;
    for (int turn = 0; turn < 2; turn++) {
        two_ways t;
        memset((void *)&t, 0, sizeof t);
        t.fast = k->rank == 0 && !skips;
        dt_model     *m = dt_model_new(.seed = 3);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
        dt_ddp       *d = dt_ddp_new(m, k->c, .shard = turn ? 3 : 0, .first_bucket_mb = 0.0003, .bucket_mb = 0.0006);
        dt_ddp_set_hook(d, .name = "two", .start = two_start, .finish = two_finish, .user = &t, .stages = 2, .sums = true);
        for (int s = 0; s < 5; s++) {
            t.started = t.nplaces = 0;
            dt_tensor *y, *x = batch(s * 16 + k->rank * 4, 4, &y);
            if (skips && s > 2 && k->rank == s % 2) dt_ddp_skip(d), dt_end();
            else dt_backward(dt_cross_entropy(woven(m, x, s), y));
            dt_step(opt);
            /* a bucket waits for the next one to start, however fast its collective was */
            for (int i = 0; turn && i < t.nplaces; i++) failed += t.place[i] <= i + 1 && i + 1 < t.nplaces;
            failed += dt_error_code() == DT_OK && (t.nplaces < 6 || t.nplaces != t.started);
        }
        n = weights(m, got[turn]);
        dt_ddp_free(d);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    crew_check(k, !failed, "the second collective of a bucket began at another place");
    crew_check(k, n > 1000 && !memcmp(got[0], got[1], (size_t)n * sizeof *got[0]), "other weights than without .shard");
}
UTEST(shard, later_collectives_begin_at_the_same_places_on_all_ranks)
{
    int skips = 0;
    EXPECT_EQ(0, crew_run("shm", 2, weave, &skips));
}
UTEST(shard, a_rank_that_skips_takes_the_memory_of_gradients_where_it_did_in_its_last_step)
{
    int skips = 1;
    EXPECT_EQ(0, crew_run("shm", 2, weave, &skips));
}
