/* pack_runs.h: trainings with parameters of odd sizes, for tests of where parameters are in memory. Public calls only.
       run r = { .ways = &ways[i], .level = "O2", .dtype = DT_BF16, .net = &trainers[0] };
       run_open(&r, comm or NULL);  run_step(&r, s) ...;  hash_of(r.m);  run_close(&r);
   Include after dt_dist.h and a test harness. */
#ifndef PACK_RUNS_H
#define PACK_RUNS_H

#include "gpu/nets.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- optimisers: each formula, with and without each of its terms */
typedef dt_optimizer *(*optim_make)(dt_model *m, dt_optimizer_opts o);
typedef struct way {
    const char   *name;
    optim_make    make;
    dt_optimizer_opts o;
} way;
/* RMSprop as a rule of the program */
static dt_status rms_update(dt_rule_call *u, void *user)
{
    (void)user;
    dt_copy(u->state[0], dt_add(dt_mul_scalar(u->state[0], 0.9), dt_mul_scalar(dt_mul(u->grad, u->grad), 0.1)));
    dt_add_to(u->value, dt_div(u->grad, dt_add_scalar(dt_sqrt(u->state[0]), u->o->eps)), -u->o->lr);
    return dt_error_code();
}
static __attribute__((unused)) dt_optimizer *rule_with(dt_model *m, dt_optimizer_opts o)
{
    static const dt_rule rms = { "rms", { "square_avg" }, false, rms_update, NULL, { .eps = 1e-8 } };
    return dt_optimizer_new_with(m, &rms, o);
}
static const way ways[] = {
    { "sgd", dt_sgd_with, { .lr = 0.05 } },
    { "sgd, decay", dt_sgd_with, { .lr = 0.05, .weight_decay = 0.1 } },
    { "sgd, nesterov", dt_sgd_with, { .lr = 0.02, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01 } },
    { "sgd, damped, up", dt_sgd_with, { .lr = 0.001, .momentum = 0.9, .dampening = 0.3, .maximize = true } },
    { "sgd, clipped by value", dt_sgd_with, { .lr = 0.05, .momentum = 0.5, .clip_value = 0.01 } },
    { "adam", dt_adam_with, { .lr = 0.01 } },
    { "adam, amsgrad, decay", dt_adam_with, { .lr = 0.01, .amsgrad = true, .weight_decay = 0.1 } },
    { "adam, clipped", dt_adam_with, { .lr = 0.01, .clip_norm = 0.2 } },
    { "adam, no eps", dt_adam_with, { .lr = 0.001, .eps = DT_ZERO } },
    { "adamw", dt_adamw_with, { .lr = 0.01, .weight_decay = 0.3, .clip_norm = 0.1, .clip_value = 0.02 } },
    { "adamw, up", dt_adamw_with, { .lr = 0.001, .maximize = true } },
    { "rmsprop", dt_rmsprop_with, { .lr = 0.001, .weight_decay = 0.1 } },
    { "rmsprop, centred", dt_rmsprop_with, { .lr = 0.001, .centered = true, .momentum = 0.5, .clip_norm = 0.3 } },
    { "rmsprop, eps vanishes in f32", dt_rmsprop_with, { .lr = 0.001, .momentum = 0.5, .eps = 1e-60 } },
    { "adagrad", dt_adagrad_with, { .lr = 0.01, .lr_decay = 0.1, .weight_decay = 0.01 } },
    { "adagrad, begun", dt_adagrad_with, { .lr = 0.01, .initial_accumulator_value = 0.5, .clip_norm = 1 } },
    { "adagrad, no eps", dt_adagrad_with, { .lr = 0.01, .eps = DT_ZERO } },
    { "lars", dt_lars_with, { .lr = 0.5, .trust_coefficient = 0.02, .weight_decay = 0.01 } },
    { "lars, nesterov, clipped", dt_lars_with, { .lr = 0.5, .trust_coefficient = 0.02, .nesterov = true, .clip_norm = 0.5 } },
    { "lamb", dt_lamb_with, { .lr = 0.01 } },
    { "lion", dt_lion_with, { .lr = 0.001, .weight_decay = 0.1, .clip_norm = 0.3 } },
    { "lamb, up", dt_lamb_with, { .lr = 0.001, .maximize = true, .clip_norm = DT_ZERO } },
    { "lamb, no trust", dt_lamb_with, { .lr = 0.01, .no_trust_ratio = true } },
    { "lamb, no eps", dt_lamb_with, { .lr = 0.001, .eps = DT_ZERO } },
    { "rule", rule_with, { .lr = 0.001, .clip_norm = 0.3 } },
    { "adafactor", dt_adafactor_with, { .lr = 0.01, .weight_decay = 0.1, .clip_norm = 0.3 } },
};
enum { WAYS = (int)(sizeof ways / sizeof *ways) };

/* ---- a net without dead units, so that gradients are not zero: parameters of 35, 5, 65, 13, 13, 13, 39 and 3 elements */
static dt_tensor *odd_net(dt_model *m, dt_tensor *x)
{
    x = dt_tanh(dt_linear(m, "a", x, .out = 5));
    x = dt_tanh(dt_layernorm(m, "norm", dt_linear(m, "b", x, .out = 13)));
    return dt_linear(m, "c", x, .out = 3);
}
static const trainer odd = { "odd net", odd_net, { 2, { 6, 7 } }, 0 };

typedef struct run {
    const way     *how;
    const trainer *net;    /* default: odd */
    const char    *level;  /* of mixed precision; NULL: none */
    dt_dtype       dtype;  /* of the model, or of mixed precision */
    int            many;   /* backwards in a step */
    int            groups; /* of parameters: 1 or 2 */
    dt_model      *m;
    dt_optimizer  *opt;
    dt_amp        *amp;
    dt_ddp        *d;
    int            rank;
} run;
static void run_open(run *r, dt_comm *c)
{
    if (!r->net) r->net = &odd;
    dt_manual_seed(11);
    r->rank = dt_comm_rank(c);
    r->m = dt_model_new(.seed = 3, .dtype = r->level ? DT_F32 : r->dtype);
    r->opt = r->how->make(r->m, r->how->o);
    if (r->groups > 1) dt_optimizer_add_group(r->opt, "*.bias", .lr = 2 * r->how->o.lr);
    if (r->level) r->amp = dt_amp_new(r->m, .level = r->level, .dtype = r->dtype, .loss_scale = 8);
    if (c) r->d = dt_ddp_new(r->m, c, .bucket_mb = 1e-4, .first_bucket_mb = 1e-4);
}
static dt_tensor *run_loss(run *r, dt_model *m, dt_tensor *x)
{
    int64_t    n = dt_size(x, 0), label[16];
    dt_tensor *y = r->net->net(m, r->level || r->net->tokens ? x : dt_cast(x, r->dtype));
    for (int i = 0; i < n; i++) label[i] = i % dt_size(y, 1);
    return dt_cross_entropy(dt_cast(y, DT_F32), dt_from(label, DT_SHAPE(n), .dtype = DT_I64));
}
static void run_step(run *r, int s)
{
    int many = r->many ? r->many : 1;
    for (int k = 0; k < many; k++) {
        dt_tensor *loss = run_loss(r, r->m, data_of(r->net, (s * many + k) * 7 + r->rank));
        if (r->d) dt_ddp_no_sync(r->d, k + 1 < many);
        if (r->amp) dt_amp_backward(r->amp, loss);
        else dt_backward(loss);
    }
    dt_step(r->opt);
}
static void run_close(run *r)
{
    dt_ddp_free(r->d);
    dt_amp_free(r->amp);
    dt_optimizer_free(r->opt);
    dt_model_free(r->m);
    dt_end();
}
static uint64_t hash_add(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211ull;
    return h;
}
static uint64_t hash_of(dt_model *m) /* of parameters and buffers; 0: there is an error */
{
    static char   byte[1 << 16];
    uint64_t      h = 1469598103934665603ull;
    dt_parameter_info p;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        dt_copy_out(p.value, byte, dt_nbytes(p.value));
        h = hash_add(h, byte, dt_nbytes(p.value));
    }
    return dt_error() || !h ? 0 : h;
}
static uint64_t run_hash(run r, dt_comm *c, int steps)
{
    run_open(&r, c);
    for (int s = 0; s < steps; s++) run_step(&r, s);
    uint64_t h = hash_of(r.m);
    run_close(&r);
    return h;
}
#endif
