/* test_checkpoint.c: models and trainings that are saved and go on. A resume gives the same bits as never having
   stopped; whatever happens while a checkpoint is written, the newest whole one loads.
   Contents: >>text >>model >>resume >>damage >>crash >>faults >>rotation >>signals >>refusals >>memory
   run: asan-only */
#define DT_IO_IMPLEMENTATION /* to see private functions, and to make file calls fail */
#define DT_NN_IMPLEMENTATION
#include "dt_io.h"
#include "dt_nn.h"

#include "dt_test.h"
#include "fake_device.h"
#include "fault_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_MAIN()

static char log_text[1 << 16];
static void keep_log(void *user, int level, const char *text)
{
    size_t n = strlen(log_text);
    (void)user;
    snprintf(log_text + n, sizeof log_text - n, "%d %s\n", level, text);
}
static void log_begin(void)
{
    log_text[0] = 0;
    dt_set_log(keep_log, NULL);
}
static void log_end(void) { dt_set_log(NULL, NULL); }

/* ==================================================================================================== >>training
   A small training with all that has state: batch norm, dropout from the model's generator, data from the thread's. */
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", x, .out = 6);
    x = dt_relu(dt_batchnorm1d(m, "bn", x));
    x = dt_dropout(m, x, 0.25);
    return dt_linear(m, "fc2", x, .out = 2);
}
static void plain_update(dt_model *m) /* of a model without an optimiser */
{
    dt_no_grad_begin();
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        if (dt_grad(p.value)) dt_add_to(p.value, dt_grad(p.value), -0.1);
        dt_zero_grad(p.value);
    }
    dt_no_grad_end();
    dt_end();
}
static void train(dt_model *m, int steps)
{
    for (int i = 0; i < steps; i++) {
        dt_tensor *x = dt_uniform(-1, 1, DT_SHAPE(8, 4)), *y = dt_normal(0, 1, DT_SHAPE(8, 2));
        y = dt_add(y, dt_narrow(dt_normal(0, 1, DT_SHAPE(3)), 0, 0, 1)); /* an odd draw: its second half waits */
        dt_backward(dt_mse_loss(net(m, x), y));
        if (!m->nopts) plain_update(m);
        for (int k = 0; k < m->nopts; k++) dt_step(m->opt[k]);
    }
}
/* All values of a model, one after the other. */
typedef struct snapshot {
    char  *bytes;
    size_t nbytes;
} snapshot;
static snapshot take(dt_model *m)
{
    snapshot s = { NULL, 0 };
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        s.bytes = (char *)realloc(s.bytes, s.nbytes + dt_nbytes(p.value) + 1);
        dt_copy_out(p.value, s.bytes + s.nbytes, dt_nbytes(p.value));
        s.nbytes += dt_nbytes(p.value);
    }
    return s;
}
static int same(snapshot a, snapshot b)
{
    return a.nbytes && a.nbytes == b.nbytes && !memcmp(a.bytes, b.bytes, a.nbytes);
}
static int same_now(snapshot a, dt_model *m)
{
    snapshot b = take(m);
    int      yes = same(a, b);
    free(b.bytes);
    return yes;
}
#define EXPECT_STATE(snap, m) EXPECT_TRUE_MSG(same_now(snap, m), dt_error() ? dt_error() : "the values differ")

/* ==================================================================================================== >>text */
UTEST(text, numbers_are_exact)
{
    static const double some[] = { 0.0,
                                   -0.0,
                                   1,
                                   -1,
                                   0.1,
                                   1e308,
                                   -1.7976931348623157e308,
                                   2.2250738585072014e-308,
                                   5e-324,
                                   -4.9e-320,
                                   INFINITY,
                                   -INFINITY,
                                   3.141592653589793 };
    char                text[40];
    double              back;
    uint64_t            u = 88172645463325252u;
    for (size_t i = 0; i < 200000 + sizeof some / sizeof some[0]; i++) {
        double x;
        if (i < sizeof some / sizeof some[0]) x = some[i];
        else {
            u ^= u << 13, u ^= u >> 7, u ^= u << 17;
            memcpy(&x, &u, 8);
            if (isnan(x)) continue;
        }
        dt__number_text(text, sizeof text, x);
        ASSERT_EQ_MSG(0, dt__number_parse(text, &back), text);
        ASSERT_EQ_MSG(0, memcmp(&x, &back, 8), text);
        if (isfinite(x)) ASSERT_EQ_MSG(x, strtod(text, NULL), text); /* C and Python read it too */
    }
    dt__number_text(text, sizeof text, (double)NAN);
    ASSERT_EQ(0, dt__number_parse(text, &back));
    EXPECT_TRUE(isnan(back));
    dt__number_text(text, sizeof text, 0.1);
    EXPECT_STREQ("0x1.999999999999ap-4", text);
}

UTEST(text, anything_else_is_refused)
{
    static const char *const numbers[] = { "",
                                           "1",
                                           "0x",
                                           "0x1",
                                           "0x1.",
                                           "0x1.0p",
                                           "0x1.0p+",
                                           "0x1.0p+0 ",
                                           " 0x1.0p+0",
                                           "0x1.00p+0",
                                           "0x2.0p+0",
                                           "0x1.0p+1024",
                                           "0x1.0p+99999",
                                           "0x1.0P+0",
                                           "+0x1.0p+0",
                                           "0x1.0p0",
                                           "0x1.0p+00",
                                           "0x0.0p+0",
                                           "0x1.00000000000001p+0",
                                           "Inf",
                                           "infinity",
                                           "nan(1)",
                                           "0x1.Ap+0" };
    static const char *const integers[] = {
        "", "-", "+1", " 1", "1 ", "01", "-0", "1.0", "0x1", "9223372036854775808", "-9223372036854775809", "abc"
    };
    double  x = 7;
    int64_t n = 7;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        EXPECT_EQ_MSG(-1, dt__number_parse(numbers[i], &x), numbers[i]);
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++)
        EXPECT_EQ_MSG(-1, dt__integer_parse(integers[i], &n), integers[i]);
    EXPECT_EQ(0, dt__integer_parse("-9223372036854775808", &n));
    EXPECT_EQ(INT64_MIN, n);
}

/* ==================================================================================================== >>model */
UTEST(model, saved_and_loaded_before_and_after_its_parameters_exist)
{
    char     *dir = temp_dir();
    dt_model *m = dt_model_new(.seed = 1);
    train(m, 2);
    snapshot want = take(m);
    ASSERT_OK(dt_model_save(m, temp_in(dir, "m")));
    EXPECT_EQ(1, files_count(dir));

    dt_model *fresh = dt_model_new(.seed = 2); /* nothing is made yet: the values wait by name */
    dt_rng    before = fresh->rng;
    EXPECT_EQ(0, dt_model_load(fresh, temp_in(dir, "m")));
    dt_model_eval(fresh);
    net(fresh, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_EQ(0, memcmp(&before, &fresh->rng, sizeof before)); /* no random numbers were drawn */
    EXPECT_STATE(want, fresh);
    EXPECT_OK(dt_model_seal(fresh));
    EXPECT_TRUE(fresh->want == NULL && fresh->want_user == NULL);
    EXPECT_STATE(want, fresh);
    dt_model_free(fresh);

    fresh = dt_model_new(.seed = 3); /* made, not sealed */
    net(fresh, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_EQ(dt_model_count(m), dt_model_load(fresh, temp_in(dir, "m")));
    EXPECT_STATE(want, fresh);
    EXPECT_OK(dt_model_seal(fresh));
    EXPECT_STATE(want, fresh);
    dt_model_free(fresh);

    fresh = dt_model_new(.seed = 4); /* half of it is made */
    dt_linear(fresh, "fc1", dt_zeros(DT_SHAPE(8, 4)), .out = 6);
    EXPECT_EQ(2, dt_model_load(fresh, temp_in(dir, "m")));
    dt_end();
    dt_model_eval(fresh);
    net(fresh, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_OK(dt_model_seal(fresh));
    EXPECT_STATE(want, fresh);
    dt_model_free(fresh);

    fresh = dt_model_new(.seed = 5); /* sealed and trained */
    train(fresh, 1);
    EXPECT_EQ(dt_model_count(m), dt_model_load(fresh, temp_in(dir, "m")));
    EXPECT_STATE(want, fresh);
    dt_model_free(fresh);
    dt_model_free(m);
    free(want.bytes);
    dt_end();
    temp_remove(dir);
}

static dt_tensor *other_net(dt_model *m, dt_tensor *x)
{
    x = dt_linear(m, "fc1", x, .out = 7);
    return dt_linear(m, "head", x, .out = 2);
}

UTEST(model, what_does_not_fit_is_listed_and_changes_nothing)
{
    char     *dir = temp_dir();
    dt_model *m = dt_model_new(.seed = 1), *o = dt_model_new(.seed = 2);
    train(m, 1);
    ASSERT_OK(dt_model_save(m, temp_in(dir, "m")));
    other_net(o, dt_zeros(DT_SHAPE(8, 4)));
    ASSERT_OK(dt_model_seal(o));
    snapshot before = take(o);
    EXPECT_LT(dt_model_load(o, temp_in(dir, "m")), 0);
    const char *e = dt_error() ? dt_error() : "";
    EXPECT_TRUE_MSG(strstr(e, "2 missing in the file: 'head.weight', 'head.bias'") != NULL, e);
    EXPECT_TRUE_MSG(strstr(e, "7 only in the file: 'bn.") != NULL, e);
    EXPECT_TRUE_MSG(
        strstr(e, "2 of another shape or dtype: 'fc1.weight' is F32 (6, 4) in the file, (7, 4) in the model") != NULL, e);
    dt_error_clear();
    EXPECT_STATE(before, o);

    dt_model *late = dt_model_new(.seed = 3); /* not made yet: when the layer is made */
    EXPECT_EQ(0, dt_model_load(late, temp_in(dir, "m")));
    EXPECT_ERROR(other_net(late, dt_zeros(DT_SHAPE(8, 4))), "'fc1.weight' is F32 (6, 4) in the file, (7, 4) in the model");
    dt_model_free(late);

    late = dt_model_new(.seed = 3); /* half made: what is wrong already is said at once */
    dt_linear(late, "fc1", dt_zeros(DT_SHAPE(8, 4)), .out = 7);
    EXPECT_ERROR(dt_model_load(late, temp_in(dir, "m")), "2 of another shape or dtype");
    dt_model_free(late);

    dt_model *many = dt_model_new(.seed = 4); /* long lists are cut */
    for (int i = 0; i < 30; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", i);
        dt_linear(many, name, dt_zeros(DT_SHAPE(1, 1)), .out = 1);
    }
    ASSERT_OK(dt_model_seal(many));
    EXPECT_ERROR(
        dt_model_load(many, temp_in(dir, "m")),
        "60 missing in the file: 'layer0.weight', 'layer0.bias', 'layer1.weight', "
        "'layer1.bias', 'layer2.weight', 'layer2.bias', 'layer3.weight', 'layer3.bias', ...; 9 only in the file");
    dt_model_free(many);
    dt_model_free(m);
    dt_model_free(o);
    free(before.bytes);
    dt_end();
    temp_remove(dir);
}

UTEST(model, a_subset_takes_what_fits_and_logs_the_rest)
{
    char     *dir = temp_dir();
    dt_model *m = dt_model_new(.seed = 1), *o = dt_model_new(.seed = 2);
    train(m, 1);
    ASSERT_OK(dt_model_save(m, temp_in(dir, "m")));
    dt_linear(o, "fc2", dt_zeros(DT_SHAPE(8, 6)), .out = 2);
    other_net(o, dt_zeros(DT_SHAPE(8, 4)));
    ASSERT_OK(dt_model_seal(o));
    log_begin();
    EXPECT_EQ(2, dt_model_load(o, temp_in(dir, "m"), .no_strict = true));
    log_end();
    EXPECT_TRUE_MSG(strstr(log_text, "2 missing in the file: 'head.weight'") && strstr(log_text, "2 of another shape"),
                    log_text);
    EXPECT_SAME_BITS(dt_model_find(o, "fc2.weight"), dt_model_find(m, "fc2.weight"));
    dt_model_free(o);
    o = dt_model_new(.seed = 2);
    EXPECT_EQ(0, dt_model_load(o, temp_in(dir, "m"), .no_strict = true));
    dt_linear(o, "fc2", dt_zeros(DT_SHAPE(8, 6)), .out = 2);
    other_net(o, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_OK(dt_model_seal(o));
    EXPECT_SAME_BITS(dt_model_find(o, "fc2.weight"), dt_model_find(m, "fc2.weight"));
    dt_model_free(m);
    dt_model_free(o);
    dt_end();
    temp_remove(dir);
}

UTEST(model, files_of_others_prefixes_counters_and_dtypes)
{
    char       *dir = temp_dir();
    dt_archive *w = dt_archive_new();
    dt_manual_seed(5);
    dt_tensor *weight = dt_keep(dt_uniform(-1, 1, DT_SHAPE(2, 6), .dtype = DT_BF16));
    EXPECT_OK(dt_archive_add(w, "module.fc2.weight", weight));
    EXPECT_OK(dt_archive_add(w, "module.fc2.bias", dt_ones(DT_SHAPE(2), .dtype = DT_F16)));
    EXPECT_OK(dt_archive_add(w, "bn.weight", dt_full(3, DT_SHAPE(6))));
    EXPECT_OK(dt_archive_add(w, "bn.bias", dt_full(4, DT_SHAPE(6))));
    EXPECT_OK(dt_archive_add(w, "bn.running_mean", dt_full(5, DT_SHAPE(6))));
    EXPECT_OK(dt_archive_add(w, "bn.running_var", dt_full(6, DT_SHAPE(6)))); /* no num_batches_tracked */
    ASSERT_OK(dt_archive_write(w, temp_in(dir, "m")));
    dt_archive_free(w);
    for (int half = 0; half < 2; half++) {
        dt_model *m = dt_model_new(.dtype = half ? DT_F16 : DT_F32);
        EXPECT_EQ(0, dt_model_load(m, temp_in(dir, "m"), .strip = "module."));
        dt_model_eval(m);
        dt_linear(m, "fc2", dt_batchnorm1d(m, "bn", dt_zeros(DT_SHAPE(3, 6))), .out = 2);
        EXPECT_OK(dt_model_seal(m));
        EXPECT_SAME_BITS(dt_model_find(m, "fc2.weight"), dt_cast(weight, half ? DT_F16 : DT_F32));
        EXPECT_EQ(5.0, dt_item(dt_narrow(dt_model_find(m, "bn.running_mean"), 0, 0, 1)));
        dt_model_free(m);
        dt_end();
    }
    dt_model *m = dt_model_new(.seed = 1);
    EXPECT_EQ(0, dt_model_load(m, temp_in(dir, "m"))); /* without .strip */
    EXPECT_ERROR(dt_linear(m, "fc2", dt_batchnorm1d(m, "bn", dt_zeros(DT_SHAPE(3, 6))), .out = 2),
                 "names there begin with 'module.': pass .strip = \"module.\"");
    dt_model_free(m);
    dt_free(weight);
    dt_end();
    temp_remove(dir);
}

UTEST(model, the_later_of_two_loads_wins_and_loads_that_never_ran_leave_nothing)
{
    char *dir = temp_dir();
    dt_end();
    dt_empty_cache();
    dt_memory_stats before = dt_stats();
    dt_model       *a = dt_model_new(.seed = 1), *b = dt_model_new(.seed = 2), *m = dt_model_new(.seed = 3);
    dt_linear(a, "fc1", dt_zeros(DT_SHAPE(1, 4)), .out = 6);
    dt_linear(a, "fc2", dt_zeros(DT_SHAPE(1, 4)), .out = 6);
    dt_linear(b, "fc2", dt_zeros(DT_SHAPE(1, 4)), .out = 6);
    ASSERT_OK(dt_model_save(a, temp_in(dir, "a")));
    ASSERT_OK(dt_model_save(b, temp_in(dir, "b")));
    EXPECT_EQ(0, dt_model_load(m, temp_in(dir, "a")));
    EXPECT_EQ(0, dt_model_load(m, temp_in(dir, "b"), .no_strict = true));
    dt_linear(m, "fc1", dt_zeros(DT_SHAPE(1, 4)), .out = 6);
    dt_linear(m, "fc2", dt_zeros(DT_SHAPE(1, 4)), .out = 6);
    EXPECT_OK(dt_model_seal(m));
    EXPECT_SAME_BITS(dt_model_find(m, "fc1.weight"), dt_model_find(a, "fc1.weight"));
    EXPECT_SAME_BITS(dt_model_find(m, "fc2.weight"), dt_model_find(b, "fc2.weight"));
    dt_model_free(m);
    m = dt_model_new(.seed = 3);
    EXPECT_EQ(0, dt_model_load(m, temp_in(dir, "a")));
    EXPECT_EQ(0, dt_model_load(m, temp_in(dir, "b")));
    dt_model_free(m); /* before its seal */
    dt_model_free(a);
    dt_model_free(b);
    dt_end();
    dt_empty_cache();
    EXPECT_EQ(before.live_tensors, dt_stats().live_tensors);
    EXPECT_EQ(before.host_bytes, dt_stats().host_bytes);
    temp_remove(dir);
}

UTEST(model, of_mixed_precision_the_masters_are_saved_and_loaded)
{
    char         *dir = temp_dir();
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.01);
    dt_amp       *amp = dt_amp_new(m, .level = "O2", .dtype = DT_BF16);
    size_t        n1, n2;
    for (int i = 0; i < 2; i++) {
        dt_amp_backward(amp, dt_mean(net(m, dt_uniform(-1, 1, DT_SHAPE(8, 4)))));
        dt_step(opt);
    }
    ASSERT_OK(dt_model_save(m, temp_in(dir, "m")));
    char       *want = files_read(temp_in(dir, "m"), &n1);
    dt_archive *a = dt_archive_open(temp_in(dir, "m"));
    dt_tensor  *w = dt_archive_get(a, "fc1.weight");
    EXPECT_EQ(DT_F32, (int)dt_dtype_of(w));
    EXPECT_EQ(DT_BF16, (int)dt_dtype_of(dt_model_find(m, "fc1.weight")));
    EXPECT_SAME_BITS(dt_cast(w, DT_BF16), dt_model_find(m, "fc1.weight"));
    EXPECT_GT(dt_item(dt_sum(dt_abs(dt_sub(dt_cast(dt_cast(w, DT_BF16), DT_F32), w)))),
              0.0); /* more than halves hold */
    dt_archive_free(a);
    dt_end();
    for (int sealed = 0; sealed < 2; sealed++) {
        dt_model     *o = dt_model_new(.seed = 2);
        dt_optimizer *sgd = dt_sgd(o, .lr = 0.01);
        dt_amp       *other = dt_amp_new(o, .level = "O2", .dtype = DT_BF16);
        if (sealed) {
            dt_amp_backward(other, dt_mean(net(o, dt_uniform(-1, 1, DT_SHAPE(8, 4)))));
            dt_step(sgd);
        }
        EXPECT_EQ(sealed ? 9 : 0, dt_model_load(o, temp_in(dir, "m")));
        dt_model_eval(o);
        net(o, dt_zeros(DT_SHAPE(8, 4)));
        EXPECT_OK(dt_model_save(o, temp_in(dir, "again")));
        EXPECT_OK(dt_model_seal(o));
        EXPECT_SAME_BITS(dt_model_find(o, "fc2.weight"), dt_model_find(m, "fc2.weight"));
        for (int k = 0; k < 2; k++) { /* before and after the seal */
            char *got = files_read(temp_in(dir, "again"), &n2);
            EXPECT_TRUE(n1 == n2 && !memcmp(want, got, n1));
            free(got);
            EXPECT_OK(dt_model_save(o, temp_in(dir, "again")));
        }
        dt_end();
        dt_amp_free(other);
        dt_optimizer_free(sgd);
        dt_model_free(o);
    }
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    free(want);
    dt_end();
    temp_remove(dir);
}

/* ==================================================================================================== >>resume */
/* Six steps at once, and three and three with a stop between: the same values, and the same random numbers after. */
typedef struct outcome {
    snapshot values;
    double   lr;
    int64_t  steps;
    uint32_t next, next_model;
} outcome;
static outcome end_of(dt_model *m)
{
    outcome o;
    o.values = take(m);
    o.lr = m->nopts ? dt_optimizer_lr(m->opt[0], 0) : 0;
    o.steps = m->nopts ? dt_optimizer_steps(m->opt[0]) : 0;
    o.next = dt_rng_u32(NULL);
    o.next_model = dt_rng_u32(&m->rng);
    dt_end();
    return o;
}
#define EXPECT_OUTCOME(want, got, text)                           \
    do {                                                          \
        EXPECT_TRUE_MSG(same((want).values, (got).values), text); \
        EXPECT_EQ_MSG((want).lr, (got).lr, text);                 \
        EXPECT_EQ_MSG((want).steps, (got).steps, text);           \
        EXPECT_EQ_MSG((want).next, (got).next, text);             \
        EXPECT_EQ_MSG((want).next_model, (got).next_model, text); \
    } while (0)

/* The optimisers, each with all the state it can have. */
enum { KINDS = 13 };
static const char *const kinds[KINDS] = { "none",
                                          "SGD",
                                          "SGD momentum",
                                          "SGD dampening, nesterov in a group",
                                          "Adam",
                                          "Adam amsgrad",
                                          "AdamW groups",
                                          "RMSProp",
                                          "RMSProp centered momentum",
                                          "Adagrad",
                                          "LARS",
                                          "LAMB",
                                          "two optimisers, frozen parameters" };
static void              add_optimizers(dt_model *m, int kind)
{
    dt_optimizer *o;
    switch (kind) {
    case 1: dt_sgd(m, .lr = 0.1); break;
    case 2: dt_sgd(m, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01); break;
    case 3:
        o = dt_sgd(m, .lr = 0.1, .momentum = 0.9, .dampening = 0.5);
        dt_optimizer_add_group(o, "fc2.*", .nesterov = true, .dampening = DT_ZERO, .lr = 0.05);
        break;
    case 4: dt_adam(m, .lr = 0.01); break;
    case 5: dt_adam(m, .lr = 0.01, .amsgrad = true, .weight_decay = 0.1); break;
    case 6:
        o = dt_adamw(m, .lr = 0.01);
        dt_optimizer_add_group(o, "*.bias|bn.*", .weight_decay = DT_ZERO);
        break;
    case 7: dt_rmsprop(m, .lr = 0.01); break;
    case 8: dt_rmsprop(m, .lr = 0.01, .centered = true, .momentum = 0.9); break;
    case 9: dt_adagrad(m, .lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.1); break;
    case 10: dt_lars(m, .lr = 1); break;
    case 11: dt_lamb(m, .lr = 0.01); break;
    case 12:
        dt_model_freeze(m, "fc1.bias");
        dt_adam(m, .params = "fc1.*|bn.*", .lr = 0.01);
        dt_sgd(m, .lr = 0.1, .momentum = 0.9);
        break;
    case 13: /* another kind than 12 ... */
        dt_model_freeze(m, "fc1.bias");
        dt_adam(m, .params = "fc1.*|bn.*", .lr = 0.01);
        dt_adam(m, .lr = 0.1);
        break;
    case 14: /* ... and other owners */
        dt_model_freeze(m, "fc1.bias");
        dt_adam(m, .params = "fc2.*|bn.*", .lr = 0.01);
        dt_sgd(m, .lr = 0.1, .momentum = 0.9);
        break;
    default: break;
    }
}
static void free_run(dt_model *m, dt_checkpoint *c)
{
    dt_checkpoint_free(c);
    while (m->nopts) dt_optimizer_free(m->opt[m->nopts - 1]);
    dt_model_free(m);
    dt_end();
}
/* A run of 6 steps that is saved after 3, and goes on: in this process, or not. */
static outcome run_on(const char *dir, int kind, int resumed)
{
    dt_manual_seed(resumed ? 99 : 11);
    dt_model *m = dt_model_new(.seed = resumed ? 77 : 1);
    add_optimizers(m, kind);
    if (resumed == 2) train(m, 2); /* sealed, with other states */
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    int64_t        epoch = 0, step = 0;
    int            got = dt_checkpoint_resume(c, &epoch, &step);
    train(m, 3);
    if (!resumed) dt_checkpoint_save(c, 1, 3);
    if (!resumed) train(m, 3);
    outcome o = end_of(m);
    o.steps += got == (resumed != 0) && epoch == (resumed != 0) && step == 3 * (resumed != 0) ? 0 : 1000;
    free_run(m, c);
    return o;
}

UTEST(resume, three_and_three_steps_are_six)
{
    for (int kind = 0; kind < KINDS; kind++) {
        char   *dir = temp_dir();
        outcome want = run_on(dir, kind, 0);
        EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
        for (int how = 1; how <= 2; how++) { /* into a model that is not made yet; that has trained elsewhere */
            outcome got = run_on(dir, kind, how);
            EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
            dt_error_clear();
            EXPECT_OUTCOME(want, got, kinds[kind]);
            free(got.values.bytes);
        }
        free(want.values.bytes);
        temp_remove(dir);
    }
}

UTEST(resume, of_another_optimiser_is_an_error_and_changes_nothing)
{
    char          *dir = temp_dir();
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    add_optimizers(m, 12);
    train(m, 2);
    EXPECT_OK(dt_checkpoint_save(c, 0, 2));
    free_run(m, c);
    static const struct {
        int         kind;
        const char *message;
    } cases[] = { { 0, "with 2 optimisers, the program has 0" },
                  { 4, "with 2 optimisers, the program has 1" },
                  { 13, "is of dt_sgd, this is dt_adam" },
                  { 14, "has no 'optimizer.0.step.fc2" } };
    for (int i = 0; i < 4; i++)
        for (int sealed = 0; sealed < 2; sealed++) {
            dt_manual_seed(5);
            m = dt_model_new(.seed = 2);
            add_optimizers(m, cases[i].kind);
            if (sealed) train(m, 2);
            snapshot before = take(m);
            dt_rng   rng = m->rng;
            c = dt_checkpoint_new(dir, .model = m);
            int got = dt_checkpoint_resume(c, NULL, NULL);
            if (cases[i].kind == 14 && !sealed) { /* who owns what is known at the seal */
                EXPECT_EQ(1, got);
                dt_backward(dt_mean(net(m, dt_ones(DT_SHAPE(8, 4)))));
            } else {
                EXPECT_LT(got, 0);
            }
            EXPECT_TRUE_MSG(dt_error() && strstr(dt_error(), cases[i].message),
                            dt_error() ? dt_error() : cases[i].message);
            dt_error_clear();
            if (sealed) {
                EXPECT_STATE(before, m);
                EXPECT_EQ(0, memcmp(&rng, &m->rng, sizeof rng));
                train(m, 2); /* the states are what they were too */
                snapshot now = take(m);
                free_run(m, c);
                dt_manual_seed(5);
                m = dt_model_new(.seed = 2);
                add_optimizers(m, cases[i].kind);
                train(m, 4);
                EXPECT_STATE(now, m);
                free(now.bytes);
                c = NULL;
            }
            free(before.bytes);
            free_run(m, c);
        }
    temp_remove(dir);
}

/* Schedules go on where they were; a plateau remembers its best. */
enum { SCHEDULES = 5 };
static dt_scheduler *add_schedule(dt_optimizer *opt, int kind)
{
    dt_scheduler *s = NULL;
    if (kind == 0) s = dt_cosine_annealing_lr(opt, .t_max = 8);
    if (kind == 1) s = dt_one_cycle_lr(opt, .max_lr = 0.3, .total_steps = 10);
    if (kind == 2) s = dt_reduce_lr_on_plateau(opt, .patience = 1, .factor = 0.5);
    if (kind == 3) s = dt_cosine_annealing_warm_restarts(opt, .t_0 = 2, .t_mult = 2);
    if (kind == 4) s = dt_exponential_lr(opt, .gamma = 0.9);
    if (kind == 4) dt_warmup(s, .steps = 4);
    return s;
}
static outcome run_scheduled(const char *dir, int kind, int resumed, double *lrs)
{
    dt_manual_seed(resumed ? 99 : 11);
    dt_model      *m = dt_model_new(.seed = resumed ? 77 : 1);
    dt_optimizer  *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_scheduler   *s = add_schedule(opt, kind);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .scheduler = s);
    int64_t        step = 0;
    dt_checkpoint_resume(c, NULL, &step);
    for (; step < 6; step++) {
        train(m, 1);
        if (kind == 2) dt_scheduler_metric(s, step < 2 ? 1.0 - 0.25 * (double)step : 2.0);
        else dt_scheduler_step(s);
        lrs[step] = dt_optimizer_lr(opt, 0);
        if (step == 2) dt_checkpoint_save(c, 0, 3);
    }
    outcome o = end_of(m);
    dt_scheduler_free(s);
    free_run(m, c);
    return o;
}
UTEST(resume, schedules_go_on)
{
    for (int kind = 0; kind < SCHEDULES; kind++) {
        char   *dir = temp_dir(), text[32];
        double  lr[6] = { 0 }, again[6] = { 0 };
        outcome want = run_scheduled(dir, kind, 0, lr), got = run_scheduled(dir, kind, 1, again);
        snprintf(text, sizeof text, "schedule %d", kind);
        EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
        EXPECT_OUTCOME(want, got, text);
        EXPECT_EQ_MSG(0, memcmp(lr + 3, again + 3, 3 * sizeof *lr), text);
        EXPECT_TRUE_MSG(lr[5] != lr[0], text);
        free(want.values.bytes);
        free(got.values.bytes);
        temp_remove(dir);
    }
    char          *dir = temp_dir(); /* of another kind: an error before anything has changed */
    dt_model      *m = dt_model_new(.seed = 1);
    dt_optimizer  *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_scheduler   *s = add_schedule(opt, 0);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .schedulers = &s, .nschedulers = 1);
    train(m, 2);
    EXPECT_OK(dt_checkpoint_save(c, 0, 2));
    dt_checkpoint_free(c);
    dt_scheduler_free(s);
    train(m, 1);
    dt_optimizer_set_lr(opt, 0, 0.7);
    s = add_schedule(opt, 4);
    c = dt_checkpoint_new(dir, .model = m, .scheduler = s);
    snapshot before = take(m);
    double   lr = dt_optimizer_lr(opt, 0);
    EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL),
                 "what was saved is of dt_cosine_annealing_lr, this scheduler of dt_exponential_lr");
    EXPECT_STATE(before, m);
    EXPECT_EQ(lr, dt_optimizer_lr(opt, 0));
    EXPECT_EQ(3, (int)dt_optimizer_steps(opt));
    free(before.bytes);
    dt_scheduler_free(s);
    free_run(m, c);
    temp_remove(dir);
}

UTEST(resume, what_the_program_sets_after_it_stays)
{
    char          *dir = temp_dir();
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    add_optimizers(m, 4);
    train(m, 2);
    EXPECT_OK(dt_checkpoint_save(c, 0, 2));
    free_run(m, c);
    m = dt_model_new(.seed = 2);
    dt_optimizer *opt = dt_adam(m, .lr = 0.5);
    c = dt_checkpoint_new(dir, .model = m);
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    EXPECT_EQ(0.01, dt_optimizer_lr(opt, 0)); /* known before the first step */
    EXPECT_EQ(2, (int)dt_optimizer_steps(opt));
    EXPECT_OK(dt_optimizer_set_lr(opt, -1, 0.25));
    train(m, 1); /* the seal fills the states, and leaves this */
    EXPECT_EQ(0.25, dt_optimizer_lr(opt, 0));
    EXPECT_EQ(3, (int)dt_optimizer_steps(opt));
    free_run(m, c);
    temp_remove(dir);
}

UTEST(resume, the_user_s_values_come_back)
{
    char          *dir = temp_dir();
    dt_model      *m = dt_model_new(.seed = 1);
    int64_t        cursor = -5, step = 0;
    double         best = 0.1, worst = (double)INFINITY;
    dt_tensor     *ema = dt_keep(dt_full(3, DT_SHAPE(2, 2))), *three = dt_keep(dt_full(3, DT_SHAPE(2, 2)));
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    EXPECT_OK(dt_checkpoint_add_integer(c, "cursor", &cursor));
    EXPECT_OK(dt_checkpoint_add_number(c, "best", &best));
    EXPECT_OK(dt_checkpoint_add_number(c, "worst", &worst));
    EXPECT_OK(dt_checkpoint_add_tensor(c, "ema", ema));
    EXPECT_OK(dt_checkpoint_set_string(c, "note", "first"));
    EXPECT_OK(dt_checkpoint_set_string(c, "note", "second \"\n"));
    EXPECT_ERROR(dt_checkpoint_set_string(c, "ema", "x"), "the key 'ema' is taken");
    EXPECT_ERROR(dt_checkpoint_add_integer(c, "note", &cursor), "the key 'note' is taken");
    EXPECT_ERROR(dt_checkpoint_add_integer(c, "null", NULL), "the value is NULL");
    train(m, 1);
    cursor = INT64_MIN;
    EXPECT_OK(dt_checkpoint_save(c, 0, 1));
    cursor = 1, best = 2, worst = 3;
    dt_fill(ema, 9);
    EXPECT_OK(dt_checkpoint_set_string(c, "note", "third"));
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, &step));
    EXPECT_EQ(1, (int)step);
    EXPECT_EQ(INT64_MIN, cursor);
    EXPECT_EQ(0.1, best);
    EXPECT_TRUE(isinf(worst));
    EXPECT_SAME_BITS(ema, three);
    EXPECT_STREQ("second \"\n", dt_checkpoint_get_string(c, "note"));
    EXPECT_TRUE(dt_checkpoint_get_string(c, "cursor") == NULL && dt_checkpoint_get_string(c, "none") == NULL);
    dt_checkpoint_free(c);

    c = dt_checkpoint_new(dir, .model = m); /* strings need not be announced */
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    EXPECT_STREQ("second \"\n", dt_checkpoint_get_string(c, "note"));
    EXPECT_OK(dt_checkpoint_add_integer(c, "new", &cursor)); /* what was not saved cannot be resumed */
    snapshot before = take(m);
    train(m, 1);
    snapshot now = take(m);
    dt_rng   rng = m->rng;
    EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL), "has no 'user.new'");
    EXPECT_STATE(now, m);
    EXPECT_EQ(0, memcmp(&rng, &m->rng, sizeof rng));
    EXPECT_FALSE(same(before, now));
    dt_checkpoint_free(c);
    c = dt_checkpoint_new(dir, .model = m);
    dt_tensor *wrong = dt_keep(dt_zeros(DT_SHAPE(4)));
    EXPECT_OK(dt_checkpoint_add_tensor(c, "ema", wrong));
    EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL), "'user.ema' has shape (2, 2) there, (4) here");
    EXPECT_STATE(now, m);
    dt_checkpoint_free(c);
    dt_free(wrong);
    dt_free(ema);
    dt_free(three);
    free(before.bytes);
    free(now.bytes);
    dt_model_free(m);
    dt_end();
    temp_remove(dir);
}

/* Writes the archive again, intact, with another value of one key. */
static void set_key(const char *path, const char *key, const char *value)
{
    dt_archive *a = dt_archive_open(path), *b = dt_archive_new();
    for (int64_t i = 0; i < dt_archive_count(a); i++) {
        dt_archive_entry e;
        if (dt_archive_info(a, i, &e)) dt_archive_add_data(b, dt_archive_name(a, i), e.dtype, e.shape, dt_archive_data(a, i));
    }
    for (int64_t i = 0; dt_archive_key(a, i); i++) {
        const char *k = dt_archive_key(a, i);
        if (strcmp(k, "dt.version") && strcmp(k, "dt.crc32c")) dt_archive_set_string(b, k, dt_archive_get_string(a, k));
    }
    dt_archive_set_string(b, key, value);
    dt_archive_write(b, path);
    dt_archive_free(a);
    dt_archive_free(b);
}
UTEST(resume, of_a_generator_out_of_range_is_an_error_and_changes_nothing)
{
    static const struct {
        const char *key, *value;
        bool        good;
    } rows[] = { { "next", "0", true },        { "next", "624", true },           { "next", "625", false },
                 { "next", "-1", false },      { "next", "4294967296", false },   { "has_normal", "1", true },
                 { "has_normal", "2", false }, { "has_normal", "-1", false },     { "normal", "0x1.8p+1", true },
                 { "normal", "nan", false },   { "normal", "-inf", false },       { "normal", "0x1.0p+7", false },
                 { "seed", "-1", true },       { "next", "9223372036854775807", false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int which = 0; which < 2; which++) {
            char          *dir = temp_dir(), key[40], path[4400];
            dt_model      *m = dt_model_new(.seed = 1);
            dt_optimizer  *opt = dt_adam(m, .lr = 0.01f);
            int64_t        mine = 5;
            dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
            EXPECT_OK(dt_checkpoint_add_integer(c, "mine", &mine));
            train(m, 1);
            EXPECT_OK(dt_checkpoint_save(c, 0, 1));
            snprintf(path, sizeof path, "%s/ckpt-00000001.safetensors", dir);
            snprintf(key, sizeof key, "rng.%s.%s", which ? "default" : "model", rows[i].key);
            set_key(path, key, rows[i].value);
            ASSERT_OK(0);
            train(m, 1);
            mine = 6;
            snapshot now = take(m);
            dt_rng   rng = m->rng, other = *dt_rng_default();
            if (rows[i].good) EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
            else {
                EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL), key);
                EXPECT_STATE(now, m);
                EXPECT_EQ(0, memcmp(&rng, &m->rng, sizeof rng));
                EXPECT_EQ(0, memcmp(&other, dt_rng_default(), sizeof other));
                EXPECT_EQ(6, (int)mine);
            }
            free(now.bytes);
            dt_checkpoint_free(c);
            dt_optimizer_free(opt);
            dt_model_free(m);
            dt_end();
            temp_remove(dir);
        }
}
UTEST(resume, of_another_model_is_an_error_and_changes_nothing)
{
    char          *dir = temp_dir();
    dt_model      *m = dt_model_new(.seed = 1), *o = dt_model_new(.seed = 2);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    train(m, 1);
    EXPECT_OK(dt_checkpoint_save(c, 0, 1));
    dt_checkpoint_free(c);
    other_net(o, dt_zeros(DT_SHAPE(8, 4)));
    ASSERT_OK(dt_model_seal(o));
    snapshot before = take(o);
    dt_rng   rng = o->rng, mine = *dt_rng_default();
    c = dt_checkpoint_new(dir, .model = o);
    EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL), "does not fit the model: 2 missing in the file: 'head.weight'");
    EXPECT_STATE(before, o);
    EXPECT_EQ(0, memcmp(&rng, &o->rng, sizeof rng));
    EXPECT_EQ(0, memcmp(&mine, dt_rng_default(), sizeof mine));
    dt_checkpoint_free(c);
    dt_model_free(o);
    o = dt_model_new(.seed = 2); /* before it is made: an error when a layer is made that does not fit */
    c = dt_checkpoint_new(dir, .model = o);
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    EXPECT_LT((int)dt_backward(dt_mean(other_net(o, dt_zeros(DT_SHAPE(8, 4))))), 0);
    EXPECT_TRUE_MSG(dt_error() && strstr(dt_error(), "dt_checkpoint_resume") && strstr(dt_error(), "(7, 4) in the model"),
                    dt_error());
    dt_error_clear();
    dt_checkpoint_free(c);
    dt_model_free(o);
    EXPECT_EQ(0, dt_model_load((o = dt_model_new()),
                               temp_in(dir, "ckpt-00000001.safetensors"))); /* a model takes its part */
    net(o, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_OK(dt_model_seal(o));
    dt_model_free(o);
    dt_model_free(m);
    free(before.bytes);
    dt_end();
    temp_remove(dir);
}

UTEST(resume, and_nothing_else_saves_nothing)
{
    char          *dir = temp_dir();
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    EXPECT_ERROR(dt_checkpoint_save(c, 0, 0), "run its forward once first"); /* there is nothing yet */
    train(m, 1);
    EXPECT_OK(dt_checkpoint_save(c, 0, 1));
    dt_checkpoint_free(c);
    dt_model_free(m);
    size_t n1, n2;
    char  *before = files_read(temp_in(dir, "ckpt-00000001.safetensors"), &n1);
    m = dt_model_new(.seed = 9); /* a program that finds its work done */
    c = dt_checkpoint_new(dir, .model = m);
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    EXPECT_OK(dt_checkpoint_finish(c, 0, 1));
    EXPECT_OK(dt_checkpoint_finish(c, 0, 2));
    EXPECT_EQ(1, files_count(dir));
    char *now = files_read(temp_in(dir, "ckpt-00000001.safetensors"), &n2);
    EXPECT_TRUE(n1 == n2 && !memcmp(before, now, n1));
    dt_checkpoint_free(c); /* before the seal */
    net(m, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_OK(dt_model_seal(m));
    dt_model_free(m);
    free(before);
    free(now);
    dt_end();
    temp_remove(dir);
}

UTEST(resume, a_model_on_a_device)
{
    char        *dir = temp_dir();
    fake_device *f = fake_device_new(0);
    dt_model    *m = dt_model_new(.seed = 1, .device = f->dev);
    dt_set_default_device(f->dev);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    train(m, 2);
    EXPECT_OK(dt_checkpoint_save(c, 0, 2));
    snapshot want = take(m);
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_set_default_device(NULL);
    m = dt_model_new(.seed = 2); /* saved there, resumed here */
    c = dt_checkpoint_new(dir, .model = m);
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    dt_model_eval(m);
    net(m, dt_zeros(DT_SHAPE(8, 4)));
    EXPECT_STATE(want, m);
    dt_checkpoint_free(c);
    dt_model_free(m);
    m = dt_model_new(.seed = 2, .device = f->dev);
    c = dt_checkpoint_new(dir, .model = m);
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    dt_model_eval(m);
    net(m, dt_zeros(DT_SHAPE(8, 4), .device = f->dev));
    EXPECT_STATE(want, m);
    dt_checkpoint_free(c);
    dt_model_free(m);
    free(want.bytes);
    dt_end();
    dt_empty_cache();
    EXPECT_EQ(DT_OK, fake_device_free(f));
    temp_remove(dir);
}

/* ==================================================================================================== >>damage */
/* Two checkpoints, of steps 1 and 2; what of the values each holds. */
typedef struct pair {
    char    *dir, path[2][4300];
    snapshot at[2];
    char    *bytes; /* of the newer file */
    size_t   nbytes;
} pair;
static pair make_pair(void)
{
    pair           p;
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c;
    dt_manual_seed(4);
    p.dir = temp_dir();
    c = dt_checkpoint_new(p.dir, .model = m);
    for (int i = 0; i < 2; i++) {
        train(m, 1);
        dt_checkpoint_save(c, 0, i + 1);
        p.at[i] = take(m);
        snprintf(p.path[i], sizeof p.path[i], "%s/ckpt-%08d.safetensors", p.dir, i + 1);
    }
    p.bytes = files_read(p.path[1], &p.nbytes);
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_end();
    return p;
}
static void free_pair(pair *p)
{
    temp_remove(p->dir);
    free(p->at[0].bytes);
    free(p->at[1].bytes);
    free(p->bytes);
}
/* Which of the two a fresh model resumes from: 1 or 2; 0 none, negative: an error or other values. */
static int resumes(const pair *p, const char *dir)
{
    dt_model      *m = dt_model_new(.seed = 9);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    int64_t        step = 0;
    int            got = dt_checkpoint_resume(c, NULL, &step);
    if (got == 1) {
        dt_model_eval(m);
        net(m, dt_zeros(DT_SHAPE(8, 4)));
        dt_model_seal(m);
        got = !dt_error() && (step == 1 || step == 2) && same_now(p->at[step - 1], m) ? (int)step : -99;
    }
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_end();
    return got;
}

UTEST(damage, a_cut_checkpoint_is_passed_over_at_every_length)
{
    pair p = make_pair();
    char buf[4400];
    ASSERT_TRUE(p.bytes && p.nbytes > 4096);
    ASSERT_EQ(2, resumes(&p, p.dir));
    for (size_t cut = p.nbytes; cut-- > 0;) {
        if (dt_test_quick() && cut % 7) continue;
        ASSERT_EQ(0, truncate(p.path[1], (off_t)cut));
        const char *latest = dt_checkpoint_latest(p.dir, NULL, buf, sizeof buf);
        ASSERT_TRUE_MSG(latest && !strcmp(latest, p.path[0]), latest ? latest : dt_error() ? dt_error() : "none");
        if (cut % 131 == 0) ASSERT_EQ(1, resumes(&p, p.dir));
    }
    free_pair(&p);
}

UTEST(damage, every_flipped_bit_is_passed_over)
{
    pair    p = make_pair();
    char    buf[4400];
    int64_t found = 0, all = (int64_t)(8 * p.nbytes < 32768 ? 8 * p.nbytes : 32768), step = dt_test_quick() ? 7 : 1;
    int     fd = open(p.path[1], O_WRONLY);
    ASSERT_TRUE(fd >= 0 && all == 32768);
    for (int64_t bit = 0; bit < all; bit += step) { /* the whole header, and part of the data */
        uint8_t byte = (uint8_t)(p.bytes[bit / 8] ^ (1 << bit % 8));
        ASSERT_EQ(1, (int)pwrite(fd, &byte, 1, (off_t)(bit / 8)));
        const char *latest = dt_checkpoint_latest(p.dir, NULL, buf, sizeof buf);
        ASSERT_TRUE_MSG(latest && !strcmp(latest, p.path[0]), latest ? latest : dt_error() ? dt_error() : "none");
        if (bit % 331 == 0) ASSERT_EQ(1, resumes(&p, p.dir));
        ASSERT_EQ(1, (int)pwrite(fd, p.bytes + bit / 8, 1, (off_t)(bit / 8)));
        found++;
    }
    close(fd);
    ASSERT_EQ(2, resumes(&p, p.dir));
    printf("%lld flipped bits skipped\n", (long long)found);
    free_pair(&p);
}

UTEST(damage, the_log_says_why_and_none_whole_is_an_error)
{
    pair           p = make_pair();
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(p.dir, .model = m);
    char           buf[16];
    ASSERT_EQ(0, files_write(p.path[1], p.bytes, 100));
    log_begin();
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    log_end();
    EXPECT_TRUE_MSG(strstr(log_text, "ckpt-00000002.safetensors is skipped: a header of") != NULL, log_text);
    EXPECT_TRUE_MSG(log_text[0] == '0' + DT_LOG_WARN, log_text);
    EXPECT_ERROR(dt_checkpoint_latest(p.dir, NULL, buf, sizeof buf), "the path needs");
    ASSERT_EQ(0, files_write(p.path[0], "x", 1));
    EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL), "none of 2 checkpoints is intact: step 2 (a header of");
    EXPECT_ERROR(dt_checkpoint_latest(p.dir, NULL, buf, sizeof buf), "step 1 (1 bytes are too few");
    dt_archive *w = dt_archive_new(); /* whole, but of something else */
    ASSERT_OK(dt_archive_write(w, p.path[0]));
    dt_archive_free(w);
    EXPECT_ERROR(dt_checkpoint_resume(c, NULL, NULL), "not a checkpoint of dt");
    EXPECT_TRUE(dt_checkpoint_latest(p.dir, "other", buf, sizeof buf) == NULL && dt_error() == NULL);
    EXPECT_TRUE(dt_checkpoint_latest("/nonexistent", NULL, buf, sizeof buf) == NULL && dt_error() == NULL);
    dt_checkpoint_free(c);
    dt_model_free(m);
    free_pair(&p);
}

/* ==================================================================================================== >>crash
   A child saves step 2 and ends before call n of the file system, for every n; of a write, also after half of it. */
static int whole_ones(const char *dir)
{
    DIR *d = opendir(dir);
    int  n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        long pid;
        if (dt__checkpoint_step(e->d_name, "ckpt", &pid) < 0 || pid) continue;
        dt_archive *a = dt_archive_open(temp_in(dir, e->d_name));
        n += a != NULL;
        dt_archive_free(a);
        dt_error_clear();
    }
    if (d) closedir(d);
    return n;
}
typedef struct crash {
    const char *dir;
    int         mode, keep, n;
} crash;
static int save_until(void *arg) /* 0: it was saved before call n came */
{
    const crash *k = (const crash *)arg;
    dt_model    *m = dt_model_new(.seed = 1);
    dt_manual_seed(4);
    train(m, 2);
    dt_checkpoint *c = dt_checkpoint_new(k->dir, .model = m, .keep = k->keep);
    fault_arm(FAULT_ANY, k->n, k->mode, 0);
    return dt_checkpoint_save(c, 0, 2) == DT_OK ? 0 : 1;
}
static void crash_everywhere(int *utest_result, int mode, int keep, int older)
{
    pair p = make_pair();
    int  n = 1, last = 0, early = 0, late = 0;
    for (; !last && n < 200; n++) {
        char *dir = temp_dir();
        char  file[4400], text[64];
        snprintf(text, sizeof text, "the process ends at call %d", n);
        for (int k = 0; k < older; k++) { /* copies of step 1 under older steps would be rotated away */
            size_t nb;
            char  *b = files_read(p.path[0], &nb);
            snprintf(file, sizeof file, "%s/ckpt-%08d.safetensors", dir, k ? 0 : 1);
            ASSERT_EQ(0, files_write(file, b, nb));
            free(b);
        }
        crash k = { dir, mode, keep, n };
        int   got = files_child(save_until, &k);
        ASSERT_TRUE_MSG(got == 0 || got == FAULT_ENDED, text);
        last = got == 0;
        EXPECT_TRUE_MSG(whole_ones(dir) >= 1, text);
        int from = resumes(&p, dir);
        EXPECT_TRUE_MSG(last ? from == 2 : from == 1 || from == 2, text);
        early += from == 1;
        late += from == 2;
        EXPECT_EQ_MSG(whole_ones(dir), files_count(dir), text); /* the dead one's temporary went with the resume */
        temp_remove(dir);
        if (*utest_result) break;
    }
    EXPECT_TRUE(last);
    EXPECT_GT(early, 5); /* both sides of the rename were there */
    EXPECT_GT(late, 3);
    printf("%d places, %d before and %d after the rename\n", n - 1, early, late);
    free_pair(&p);
}
UTEST(crash, before_every_call) { crash_everywhere(utest_result, FAULT_EXIT, 3, 1); }
UTEST(crash, in_the_middle_of_every_write) { crash_everywhere(utest_result, FAULT_TORN, 3, 1); }
UTEST(crash, while_older_ones_are_removed) { crash_everywhere(utest_result, FAULT_EXIT, 1, 2); }

/* ==================================================================================================== >>faults */
UTEST(faults, every_call_that_fails_is_an_error_or_does_not_matter)
{
    static const int errors[] = { ENOSPC, EIO, EDQUOT, EROFS };
    pair             p = make_pair();
    int              n = 1, failures = 0;
    for (;; n++) {
        char  *dir = temp_dir(), file[4400], text[1200];
        size_t nb;
        char  *b = files_read(p.path[0], &nb);
        snprintf(file, sizeof file, "%s/ckpt-00000001.safetensors", dir);
        ASSERT_EQ(0, files_write(file, b, nb));
        free(b);
        dt_model      *m = dt_model_new(.seed = 1);
        dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
        dt_manual_seed(4);
        train(m, 2);
        fault_arm(FAULT_ANY, n, FAULT_FAIL, errors[n % 4]);
        dt_status st = dt_checkpoint_save(c, 0, 2);
        fault_disarm();
        snprintf(text, sizeof text, "call %d fails: %s", n, dt_error() ? dt_error() : "no error");
        EXPECT_TRUE_MSG(st == DT_OK || (strstr(dt_error(), "dt_checkpoint_save") && strstr(dt_error(), dir) &&
                                        strstr(dt_error(), strerror(errors[n % 4]))),
                        text);
        failures += st != DT_OK;
        int renamed = st == DT_OK || strstr(dt_error(), "written, but") != NULL;
        dt_error_clear();
        EXPECT_EQ_MSG(renamed ? 2 : 1, resumes(&p, dir), text);
        EXPECT_EQ_MSG(renamed ? 2 : 1, files_count(dir), text);
        EXPECT_FALSE_MSG(fault.retried, text);
        EXPECT_OK(dt_checkpoint_save(c, 0, 2)); /* and the next one works */
        EXPECT_EQ_MSG(2, resumes(&p, dir), text);
        int done = fault.calls < n;
        dt_checkpoint_free(c);
        dt_model_free(m);
        dt_end();
        temp_remove(dir);
        if (done || *utest_result) break;
    }
    EXPECT_GT(failures, 8);
    free_pair(&p);
}

static int no_permission(void *arg)
{
    int         failed = 0, *utest_result = &failed;
    const char *dir = (const char *)arg;
    dt_model   *m = dt_model_new(.seed = 1);
    if (geteuid() == 0 && setresuid(65534, 65534, 65534)) return 42;
    EXPECT_ERROR(dt_checkpoint_new(dir, .model = m), "Permission denied; the directory must be writable");
    EXPECT_ERROR(dt_checkpoint_new(temp_in(dir, "below"), .model = m), "mkdir: Permission denied");
    return failed;
}
UTEST(faults, a_directory_that_cannot_be_written_to_is_known_at_once)
{
    char     *dir = temp_dir();
    dt_model *m = dt_model_new(.seed = 1);
    ASSERT_EQ(0, chmod(dir, 0555));
    int got = files_child(no_permission, dir);
    chmod(dir, 0755);
    EXPECT_TRUE(got == 0 || got == 42); /* root that cannot become another user */
    fault_arm(FAULT_OPEN, 1, FAULT_FAIL, EROFS);
    EXPECT_ERROR(dt_checkpoint_new(dir, .model = m), "file system that is not read-only");
    fault_disarm();
    ASSERT_EQ(0, files_write(temp_in(dir, "file"), "", 0));
    EXPECT_ERROR(dt_checkpoint_new(temp_in(dir, "file"), .model = m), "is not a directory");
    EXPECT_ERROR(dt_checkpoint_new(temp_in(dir, "file/below"), .model = m), "Not a directory");
    EXPECT_EQ(1, files_count(dir)); /* the file made to try is gone */
    char deep[4400];
    snprintf(deep, sizeof deep, "%s/a/b/c", dir);
    dt_checkpoint *c = dt_checkpoint_new(deep, .model = m);
    EXPECT_OK(c);
    EXPECT_EQ(0, files_count(deep));
    dt_checkpoint_free(c);
    dt_model_free(m);
    temp_remove(dir);
}

/* ==================================================================================================== >>rotation */
UTEST(rotation, the_newest_stay)
{
    static const struct {
        int keep, left;
    } cases[] = { { 0, 3 }, { 1, 1 }, { 2, 2 }, { 5, 5 }, { -1, 7 } };
    for (int k = 0; k < 5; k++) {
        char          *dir = temp_dir();
        dt_model      *m = dt_model_new(.seed = 1);
        dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .keep = cases[k].keep, .name = "run-2");
        ASSERT_EQ(0, files_write(temp_in(dir, "run-2-1.safetensors"), "", 0)); /* not ours: another spelling */
        ASSERT_EQ(0, files_write(temp_in(dir, "ckpt-00000000.safetensors"), "", 0));
        train(m, 1);
        for (int step = 1; step <= 7; step++) EXPECT_OK(dt_checkpoint_save(c, 0, step));
        EXPECT_EQ(cases[k].left + 2, files_count(dir));
        char buf[4400];
        EXPECT_STREQ(temp_in(dir, "run-2-00000007.safetensors"), dt_checkpoint_latest(dir, "run-2", buf, sizeof buf));
        dt_checkpoint_free(c);
        dt_model_free(m);
        dt_end();
        temp_remove(dir);
    }
}

UTEST(rotation, later_steps_of_another_run_are_left_and_told)
{
    pair           p = make_pair();
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(p.dir, .model = m, .keep = 1);
    train(m, 1);
    log_begin();
    EXPECT_OK(dt_checkpoint_save(c, 0, 0)); /* a run that did not resume */
    log_end();
    EXPECT_TRUE_MSG(strstr(log_text, "holds a later step, 2, which a resume would take") != NULL, log_text);
    EXPECT_EQ(3, files_count(p.dir));
    EXPECT_OK(dt_checkpoint_save(c, 0, 2000000000000)); /* more digits than the name shows usually */
    EXPECT_EQ(1, files_count(p.dir));
    char buf[4400];
    EXPECT_STREQ(temp_in(p.dir, "ckpt-2000000000000.safetensors"), dt_checkpoint_latest(p.dir, NULL, buf, sizeof buf));
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_end();
    free_pair(&p);
}

static int flock_of_nfs(int fd, int how) /* a record lock: an exclusive one needs a descriptor that may write */
{
    if ((how & LOCK_EX) && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return errno = EBADF, -1;
    return flock(fd, how);
}
UTEST(rotation, temporaries_of_dead_processes_go_and_no_others)
{
    char *dir = temp_dir(), dead[4400], own[4400], alive[4400], locked[4400];
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    ASSERT_EQ(pid, waitpid(pid, NULL, 0));
    snprintf(dead, sizeof dead, "%s/ckpt-00000004.safetensors.tmp-%d-1", dir, (int)pid);
    snprintf(own, sizeof own, "%s/ckpt-00000005.safetensors.tmp-%d-77777", dir, (int)getpid());
    snprintf(locked, sizeof locked, "%s/ckpt-00000006.safetensors.tmp-%d-88888", dir, (int)getpid());
    snprintf(alive, sizeof alive, "%s/ckpt-00000004.safetensors.tmp-%d-1", dir, (int)getppid());
    const char *others[] = { "ckpt-00000004.safetensors.tmp-x-1", "ckpt-4.safetensors.tmp-99999999-1",
                             "notes.tmp-99999999-1", "ckpt-00000004.safetensors.tmp-99999999-1.txt",
                             "other-00000004.safetensors.tmp-99999999-1" };
    ASSERT_EQ(0, files_write(dead, "", 0));
    ASSERT_EQ(0, files_write(own, "", 0)); /* of a process that had this number before, in another container */
    ASSERT_EQ(0, files_write(alive, "", 0));
    ASSERT_EQ(0, files_write(locked, "", 0)); /* being written by another thread */
    for (int i = 0; i < 5; i++) ASSERT_EQ(0, files_write(temp_in(dir, others[i]), "", 0));
    int fd = open(locked, O_RDONLY);
    ASSERT_EQ(0, flock(fd, LOCK_EX));
    fault_arm(0, 0, 0, 0);
    dt__fs.flock = flock_of_nfs;
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    fault_disarm();
    EXPECT_EQ(-1, access(dead, F_OK));
    EXPECT_EQ(-1, access(own, F_OK));
    EXPECT_EQ(0, access(alive, F_OK));
    EXPECT_EQ(0, access(locked, F_OK));
    EXPECT_EQ(7, files_count(dir));
    close(fd);
    dt_checkpoint_free(c);
    dt_model_free(m);
    temp_remove(dir);
}

/* ==================================================================================================== >>signals */
static int64_t newest(const char *dir) /* the step, or -1 */
{
    char        buf[4400];
    const char *path = dt_checkpoint_latest(dir, NULL, buf, sizeof buf);
    return path ? atoll(strstr(path, "ckpt-") + 5) : -1;
}

UTEST(signals, save_and_go_on_or_stop)
{
    static const int stops[] = { SIGTERM, SIGINT };
    for (int k = 0; k < 2; k++) {
        char            *dir = temp_dir();
        struct sigaction before, mine, after;
        memset(&mine, 0, sizeof mine);
        mine.sa_handler = SIG_DFL;
        sigaction(SIGINT, &mine, &before); /* a test in the background ignores it */
        dt_model      *m = dt_model_new(.seed = 1);
        dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .signals = true);
        ASSERT_OK(c);
        EXPECT_ERROR(dt_checkpoint_new(dir, .model = m, .signals = true), "another checkpoint has .signals");
        train(m, 1);
        EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 1));
        EXPECT_EQ(-1, (int)newest(dir));
        raise(SIGUSR1);
        EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 2));
        EXPECT_EQ(2, (int)newest(dir));
        EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 3));
        EXPECT_EQ(2, (int)newest(dir)); /* once for a signal */
        raise(stops[k]);
        EXPECT_EQ(1, dt_checkpoint_tick(c, 0, 4));
        EXPECT_EQ(4, (int)newest(dir));
        EXPECT_EQ(1, dt_checkpoint_tick(c, 0, 5)); /* still to stop, saved already */
        EXPECT_EQ(4, (int)newest(dir));
        dt_checkpoint_free(c);
        sigaction(stops[k], NULL, &after);
        EXPECT_TRUE(after.sa_handler == SIG_DFL); /* as it was */
        sigaction(SIGINT, &before, NULL);
        dt_model_free(m);
        dt_end();
        temp_remove(dir);
    }
}

UTEST(signals, before_the_first_forward_and_ignored_ones)
{
    char            *dir = temp_dir();
    struct sigaction before, mine, now;
    memset(&mine, 0, sizeof mine);
    mine.sa_handler = SIG_IGN;
    sigaction(SIGINT, &mine, &before);
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .signals = true);
    sigaction(SIGINT, NULL, &now);
    EXPECT_TRUE(now.sa_handler == SIG_IGN); /* nohup stays nohup */
    raise(SIGTERM);
    EXPECT_EQ(1, dt_checkpoint_tick(c, 0, 0)); /* nothing to save is no error */
    EXPECT_EQ(0, files_count(dir));
    dt_checkpoint_free(c);
    c = dt_checkpoint_new(dir, .model = m, .signals = true); /* the next one starts afresh */
    EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 0));
    dt_checkpoint_free(c);
    sigaction(SIGINT, &before, NULL);
    dt_model_free(m);
    temp_remove(dir);
}

UTEST(signals, ticks_save_when_it_is_time)
{
    char     *dir = temp_dir();
    dt_model *m = dt_model_new(.seed = 1);
    train(m, 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .every_steps = 4, .keep = -1);
    for (int step = 1; step <= 13; step++) EXPECT_EQ(0, dt_checkpoint_tick(c, 0, step));
    EXPECT_EQ(3, files_count(dir));
    EXPECT_EQ(12, (int)newest(dir));
    EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 18)); /* over a multiple */
    EXPECT_EQ(18, (int)newest(dir));
    dt_checkpoint_free(c);
    temp_remove(dir);
    dir = temp_dir();
    c = dt_checkpoint_new(dir, .model = m, .every_epochs = 2, .keep = -1);
    for (int epoch = 0; epoch < 6; epoch++) {
        EXPECT_EQ(0, dt_checkpoint_tick(c, epoch, 10 * epoch + 5));
        EXPECT_EQ(0, dt_checkpoint_tick(c, epoch + 1, 10 * epoch + 10)); /* the epoch's end */
    }
    EXPECT_EQ(3, files_count(dir));
    EXPECT_EQ(60, (int)newest(dir));
    dt_checkpoint_free(c);
    c = dt_checkpoint_new(dir, .model = m, .every_epochs = 2, .keep = -1);
    EXPECT_EQ(1, dt_checkpoint_resume(c, NULL, NULL));
    EXPECT_EQ(0, dt_checkpoint_tick(c, 6, 61)); /* it goes on from the resumed one */
    EXPECT_EQ(60, (int)newest(dir));
    dt_checkpoint_free(c);
    temp_remove(dir);
    dir = temp_dir();
    c = dt_checkpoint_new(dir, .model = m, .every_minutes = 1e-9);
    EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 1));
    EXPECT_EQ(1, (int)newest(dir));
    dt_checkpoint_free(c);
    c = dt_checkpoint_new(dir, .model = m, .every_minutes = 1000);
    EXPECT_EQ(0, dt_checkpoint_tick(c, 0, 2));
    EXPECT_EQ(1, (int)newest(dir));
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_end();
    temp_remove(dir);
}

/* ==================================================================================================== >>refusals */
UTEST(refusals, a_model_that_is_not_finite_is_not_saved)
{
    static const double bad[] = { (double)NAN, (double)INFINITY };
    for (int k = 0; k < 4; k++) {
        char          *dir = temp_dir();
        dt_model      *m = dt_model_new(.seed = 1, .dtype = k < 2 ? DT_F32 : DT_BF16);
        dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .keep = 1);
        net(m, dt_zeros(DT_SHAPE(8, 4), .dtype = k < 2 ? DT_F32 : DT_BF16));
        EXPECT_OK(dt_checkpoint_save(c, 0, 1));
        dt_no_grad_begin();
        dt_fill(dt_narrow(dt_reshape(dt_model_find(m, "fc2.weight"), DT_SHAPE(-1)), 0, 7, 1), bad[k & 1]);
        dt_no_grad_end();
        EXPECT_ERROR(dt_checkpoint_save(c, 0, 2), "element 7 of 'fc2.weight' is not finite");
        EXPECT_EQ(1, (int)newest(dir));
        EXPECT_EQ(1, files_count(dir));
        dt_checkpoint_free(c);
        c = dt_checkpoint_new(dir, .model = m, .keep = 1, .allow_nonfinite = true);
        EXPECT_OK(dt_checkpoint_save(c, 0, 2));
        EXPECT_EQ(2, (int)newest(dir));
        dt_checkpoint_free(c);
        dt_model_free(m);
        dt_end();
        temp_remove(dir);
    }
}

UTEST(refusals, with_an_error_pending_nothing_is_saved_and_options_are_checked)
{
    char          *dir = temp_dir();
    dt_model      *m = dt_model_new(.seed = 1);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .every_steps = 1);
    train(m, 1);
    dt_fail(DT_ERR_STATE, "the loss is NaN");
    EXPECT_EQ(DT_ERR_STATE, (int)dt_checkpoint_save(c, 0, 1));
    EXPECT_EQ(DT_ERR_STATE, dt_checkpoint_tick(c, 0, 1));
    EXPECT_EQ(DT_ERR_STATE, (int)dt_checkpoint_finish(c, 0, 1));
    EXPECT_EQ(DT_ERR_STATE, dt_checkpoint_resume(c, NULL, NULL));
    EXPECT_EQ(DT_ERR_STATE, (int)dt_model_save(m, temp_in(dir, "m")));
    EXPECT_STREQ("the loss is NaN", dt_error());
    dt_error_clear();
    EXPECT_EQ(0, files_count(dir));
    EXPECT_ERROR(dt_checkpoint_save(c, -1, 0), "count from 0");
    EXPECT_ERROR(dt_checkpoint_tick(c, 0, -1), "count from 0");
    EXPECT_ERROR(dt_checkpoint_save(NULL, 0, 0), "the checkpoint is NULL");
    EXPECT_ERROR(dt_checkpoint_resume(NULL, NULL, NULL), "the checkpoint is NULL");
    EXPECT_ERROR(dt_checkpoint_new(NULL, .model = m), "no name");
    EXPECT_ERROR(dt_checkpoint_new(dir), ".model is NULL");
    EXPECT_ERROR(dt_checkpoint_new(dir, .model = m, .name = "a/b"), ".name");
    EXPECT_ERROR(dt_checkpoint_new(dir, .model = m, .keep = -2), ".keep");
    EXPECT_ERROR(dt_checkpoint_new(dir, .model = m, .every_steps = -1), ".every_");
    EXPECT_ERROR(dt_checkpoint_new(dir, .model = m, .noptimizers = 2), ".noptimizers");
    EXPECT_ERROR(dt_model_save(NULL, "x"), "the model is NULL");
    EXPECT_ERROR(dt_model_load(m, NULL), "path is NULL");
    EXPECT_ERROR(dt_model_load(m, temp_in(dir, "none")), "No such file");
    EXPECT_ERROR(dt_checkpoint_latest(NULL, NULL, dir, 1), "dir is NULL");
    dt_checkpoint_free(NULL);
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_end();
    temp_remove(dir);
}

/* ==================================================================================================== >>memory */
static int save_and_resume(const char *dir, dt_test_budget *b, int64_t fails, int sealed) /* 2, or an error is pending */
{
    dt_manual_seed(4);
    dt_model *m = dt_model_new(.seed = 1), *again = dt_model_new(.seed = 2);
    train(m, 1);
    if (sealed) train(again, 1);
    b->calls = 0;
    b->left = fails;
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .name = "run");
    int64_t        x = 3, step = 0;
    dt_checkpoint_add_integer(c, "x", &x);
    dt_checkpoint_set_string(c, "note", "text");
    dt_checkpoint_save(c, 0, 2);
    dt_checkpoint_free(c);
    c = dt_checkpoint_new(dir, .model = again, .name = "run");
    dt_checkpoint_add_integer(c, "x", &x);
    int got = dt_checkpoint_resume(c, NULL, &step);
    if (got == 1 && !sealed) {
        dt_model_eval(again);
        net(again, dt_zeros(DT_SHAPE(8, 4)));
        dt_model_seal(again);
    }
    b->left = -1;
    snapshot s = take(m);
    int      good = got == 1 && !dt_error() && same_now(s, again);
    free(s.bytes);
    dt_checkpoint_free(c);
    dt_model_free(m);
    dt_model_free(again);
    dt_end();
    dt_empty_cache();
    return good ? (int)step : -1;
}
UTEST(memory, every_failing_allocation_is_an_error_and_leaks_nothing)
{
    dt_test_budget b;
    dt_end();
    dt_empty_cache();
    ASSERT_OK(dt_test_budget_set(&b, -1));
    for (int sealed = 0; sealed < 2; sealed++) {
        int64_t total = 1;
        for (int64_t n = -1; n < total; n++) {
            char *dir = temp_dir(), text[1100], deep[4400];
            snprintf(deep, sizeof deep, "%s/runs/1", dir);
            int got = save_and_resume(deep, &b, n, sealed);
            if (n < 0) total = b.calls;
            snprintf(text, sizeof text, "allocation %lld: %s", (long long)n, dt_error() ? dt_error() : "no error");
            EXPECT_TRUE_MSG(dt_error() ? n >= 0 && dt_error_code() == DT_ERR_MEMORY : got == 2, text);
            dt_error_clear();
            EXPECT_EQ_MSG(0u, (unsigned)b.live, text);
            EXPECT_TRUE_MSG(files_count(deep) <= 1, text);
            temp_remove(dir);
            if (*utest_result) break;
        }
        printf("%lld allocations failed in turn\n", (long long)total);
    }
    EXPECT_OK(dt_set_allocator(NULL));
}
