/* test_resume.c: a training that is stopped and resumed writes the same checkpoint, byte for byte, as one that was not:
   weights, masters, optimiser, schedule, loss scale, generators. For each optimiser at each level. */
#define _GNU_SOURCE
#include "dt_nn.h"
#include "dt_test.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

UTEST_MAIN()

enum { STEPS = 6, CUT = 3, KINDS = 15 };
static const char *const kinds[KINDS] = { "sgd",     "nesterov", "adam",    "amsgrad", "adamw",
                                          "rmsprop", "centred",  "adagrad", "lars",    "lamb",    "lion",    "muon",    "adafactor", "rule", "rule of parameters" };

/* RMSprop with momentum, as a rule of the program */
static dt_status rms_update(dt_rule_call *u, void *user)
{
    double a = u->o->alpha, m = u->o->momentum;
    (void)user;
    dt_copy(u->state[0], dt_add(dt_mul_scalar(u->state[0], a), dt_mul_scalar(dt_mul(u->grad, u->grad), 1 - a)));
    dt_tensor *step = dt_div(u->grad, dt_add_scalar(dt_sqrt(u->state[0]), u->o->eps));
    dt_copy(u->state[1], dt_add(dt_mul_scalar(u->state[1], m), step));
    dt_add_to(u->value, u->state[1], -u->o->lr);
    return dt_error_code();
}
static const dt_rule rms[2] = {
    { "rms", { "square_avg", "momentum_buffer" }, false, rms_update, NULL, { .lr = 0.01, .eps = 1e-8, .alpha = 0.99 } },
    { "rms_each", { "square_avg", "momentum_buffer" }, true, rms_update, NULL, { .lr = 0.01, .eps = 1e-8, .alpha = 0.99 } },
};
static dt_optimizer *make_optimizer(dt_model *m, int kind)
{
    switch (kind) {
    case 0: return dt_sgd(m, .lr = 0.05);
    case 1: return dt_sgd(m, .lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3);
    case 2: return dt_adam(m, .lr = 0.01);
    case 3: return dt_adam(m, .lr = 0.01, .amsgrad = true, .weight_decay = 1e-2);
    case 4: return dt_adamw(m, .lr = 0.01, .clip_norm = 0.5);
    case 5: return dt_rmsprop(m, .lr = 0.01);
    case 6: return dt_rmsprop(m, .lr = 0.01, .centered = true, .momentum = 0.9);
    case 7: return dt_adagrad(m, .lr = 0.02, .lr_decay = 0.1);
    case 8: return dt_lars(m, .lr = 1, .weight_decay = 1e-3);
    case 9: return dt_lamb(m, .lr = 0.02);
    case 10: return dt_lion(m, .lr = 0.001, .weight_decay = 0.1);
    case 11: return dt_muon(m, .params = "fc.weight", .lr = 0.02);
    case 12: return dt_adafactor(m, .lr = 0.02, .weight_decay = 1e-2);
    default: return dt_optimizer_new(m, &rms[kind - 13], .momentum = 0.5, .clip_norm = 0.5);
    }
}
typedef struct setting {
    int         kind;
    const char *level; /* NULL: none */
    dt_dtype    dtype;
} setting;
typedef struct trainer {
    dt_model      *m;
    dt_optimizer  *opt;
    dt_amp        *amp;
    dt_scheduler   *s;
    dt_checkpoint *c;
    int64_t        epoch, step;
} trainer;

static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_conv2d(m, "conv", x, .out = 4, .kernel = 3, .pad = 1);
    x = dt_batchnorm2d(m, "bn", x, .act = DT_ACT_RELU);
    x = dt_dropout(m, dt_flatten(x), 0.25);
    return dt_linear(m, "fc", x, .out = 3);
}
static void open_trainer(trainer *t, const char *dir, setting s)
{
    memset(t, 0, sizeof *t);
    t->m = dt_model_new(.seed = 3);
    t->opt = make_optimizer(t->m, s.kind);
    dt_optimizer_add_group(t->opt, "*.bias|bn.*", .lr = 0.003);
    if (s.level) t->amp = dt_amp_new(t->m, .level = s.level, .dtype = s.dtype, .growth_interval = 2);
    t->s = dt_exponential_lr(t->opt, .gamma = 0.9);
    t->c = dt_checkpoint_new(dir, .model = t->m, .optimizer = t->opt, .scheduler = t->s, .amp = t->amp, .keep = -1);
}
static void close_trainer(trainer *t)
{
    dt_checkpoint_free(t->c);
    dt_scheduler_free(t->s);
    dt_amp_free(t->amp);
    dt_optimizer_free(t->opt);
    dt_model_free(t->m);
    dt_end();
}
static void train(trainer *t, int until)
{
    for (; t->step < until && !dt_error(); t->step++) {
        int64_t    y[4] = { 0, 1, 2, 0 };
        dt_tensor *x = dt_normal(0, 1, DT_SHAPE(4, 2, 5, 5)); /* from the thread's generator, which is saved too */
        dt_tensor *l = dt_cross_entropy(net(t->m, x), dt_from(y, DT_SHAPE(4), .dtype = DT_I64));
        if (t->step == 1 && dt_amp_scale(t->amp, 0) > 1) l = dt_mul_scalar(l, 1e35); /* an overflow: the scale moves */
        if (t->amp)
            dt_amp_backward(t->amp, l);
        else
            dt_backward(l);
        dt_step(t->opt);
        dt_scheduler_step(t->s);
    }
}
static char *file_bytes(const char *dir, int step, size_t *n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/ckpt-%08d.safetensors", dir, step);
    FILE *f = fopen(path, "rb");
    char *b = (char *)malloc(1 << 20);
    *n = f ? fread(b, 1, 1 << 20, f) : 0;
    if (f) fclose(f);
    return b;
}
static void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    char path[800];
    for (struct dirent *e; d && (e = readdir(d)); ) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}
/* mode 0: resume before the first forward; 1: into a model that has trained something else already */
static void check(int *utest_result, setting s, int mode)
{
    char whole[64] = "/tmp/dt_resume_a.XXXXXX", cut[64] = "/tmp/dt_resume_b.XXXXXX", what[96];
    snprintf(what, sizeof what, "%s, %s %s, mode %d", kinds[s.kind], s.level ? s.level : "f32", dt_dtype_name(s.dtype),
             mode);
    if (!mkdtemp(whole) || !mkdtemp(cut)) {
        EXPECT_TRUE_MSG(false, "mkdtemp");
        return;
    }
    trainer t;
    dt_manual_seed(11);
    open_trainer(&t, whole, s);
    train(&t, STEPS);
    EXPECT_EQ_MSG(DT_OK, dt_checkpoint_save(t.c, 0, STEPS), what);
    close_trainer(&t);

    dt_manual_seed(11);
    open_trainer(&t, cut, s);
    train(&t, CUT);
    EXPECT_EQ_MSG(DT_OK, dt_checkpoint_save(t.c, 0, CUT), what);
    close_trainer(&t);

    dt_manual_seed(99);
    open_trainer(&t, cut, s);
    if (mode == 1) train(&t, 2);
    int found = dt_checkpoint_resume(t.c, &t.epoch, &t.step);
    EXPECT_EQ_MSG(1, found, dt_error() ? dt_error() : what);
    EXPECT_EQ_MSG((int64_t)CUT, t.step, what);
    train(&t, STEPS);
    EXPECT_EQ_MSG(DT_OK, dt_checkpoint_save(t.c, 0, STEPS), dt_error() ? dt_error() : what);
    close_trainer(&t);

    size_t na, nb;
    char  *a = file_bytes(whole, STEPS, &na), *b = file_bytes(cut, STEPS, &nb);
    EXPECT_TRUE_MSG(na > 1000 && na == nb && !memcmp(a, b, na), what);
    free(a);
    free(b);
    remove_dir(whole);
    remove_dir(cut);
    dt_error_clear();
}

UTEST(resume, f32_with_each_optimiser)
{
    for (int k = 0; k < KINDS; k++)
        for (int mode = 0; mode < 2; mode++) {
            setting s = { k, NULL, DT_F32 };
            check(utest_result, s, mode);
        }
}
UTEST(resume, each_level_with_each_optimiser)
{
    static const char *const levels[] = { "O0", "O1", "O2", "O3" };
    for (int k = 0; k < KINDS; k += dt_test_quick() ? 4 : 1)
        for (int l = 0; l < 4; l++)
            for (int h = 0; h < 2; h++) {
                setting s = { k, levels[l], h ? DT_BF16 : DT_F16 };
                check(utest_result, s, 0);
                if (k == 2) check(utest_result, s, 1);
            }
}
/* The comparison can fail: a resume that loses the optimiser's state ends elsewhere. */
UTEST(resume, without_the_state_is_not_the_same)
{
    char dir[64] = "/tmp/dt_resume_c.XXXXXX", path[128];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    setting s = { 2, NULL, DT_F32 };
    trainer t, u;
    dt_manual_seed(11);
    open_trainer(&t, dir, s);
    train(&t, CUT);
    ASSERT_EQ(DT_OK, dt_checkpoint_save(t.c, 0, CUT));
    snprintf(path, sizeof path, "%s/ckpt-%08d.safetensors", dir, CUT);
    open_trainer(&u, dir, s);
    EXPECT_EQ(0, dt_model_load(u.m, path)); /* the model alone; it waits for the first forward */
    dt_rng here = *dt_rng_default();
    u.step = CUT;
    train(&u, STEPS);
    *dt_rng_default() = here;
    train(&t, STEPS);
    size_t na, nb;
    dt_checkpoint_save(u.c, 0, STEPS);
    char *b = file_bytes(dir, STEPS, &nb);
    dt_checkpoint_save(t.c, 0, STEPS);
    char *a = file_bytes(dir, STEPS, &na);
    EXPECT_TRUE(na > 1000 && nb > 1000 && (na != nb || memcmp(a, b, na)));
    free(a);
    free(b);
    close_trainer(&u);
    close_trainer(&t);
    remove_dir(dir);
}
