/* test_readers.c: one model, several threads that compute with it (dt_model_reader): equal bits, what is refused, lifetimes. */
#define _GNU_SOURCE
#include "dt_layers.h"
#include "dt_test.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

UTEST_MAIN()

enum { THREADS = 4, ROUNDS = 6, OUT = 5, IMAGES = 4 };

/* convolutions, norms, attention, a recurrent layer, dropout: what a layer may keep in its model */
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    dt_scope_begin(m, "body");
    x = dt_conv2d(m, "conv", x, .out = 16, .kernel = 3, .pad = 1);
    x = dt_batchnorm2d(m, "bn", x, .act = DT_ACT_RELU);
    x = dt_maxpool2d(x, .kernel = 2);
    x = dt_conv2d(m, "conv2", x, .out = 16, .kernel = 3, .pad = 1, .act = DT_ACT_RELU);
    dt_scope_end(m);
    x = dt_transpose(dt_reshape(x, DT_SHAPE(IMAGES, 16, 16)), 1, 2);
    x = dt_transformer_encoder_layer(m, "enc", x, .heads = 2, .ff = 32);
    x = dt_lstm(m, "lstm", x, .hidden = 8, .batch_first = true);
    return dt_linear(m, "fc", dt_dropout(m, dt_flatten(x), 0.5), .out = OUT);
}
static dt_tensor *image(int seed)
{
    dt_rng r;
    dt_rng_seed(&r, (uint64_t)seed);
    return dt_normal(0, 1, DT_SHAPE(IMAGES, 3, 8, 8), .rng = &r);
}
typedef struct trained {
    dt_model     *m;
    dt_optimizer *opt;
} trained;
static trained train(int *utest_result)
{
    trained t = { dt_model_new(.seed = 1), NULL };
    t.opt = dt_adamw(t.m, .lr = 0.01);
    for (int step = 0; step < 2; step++) {
        dt_tensor *y = net(t.m, image(step));
        EXPECT_OK(dt_backward(dt_mean(dt_mul(y, y))));
        EXPECT_OK(dt_step(t.opt));
    }
    dt_model_eval(t.m);
    return t;
}
static void trained_free(trained *t)
{
    dt_optimizer_free(t->opt);
    dt_model_free(t->m);
}
static bool computes(dt_model *m, int seed, float *out)
{
    dt_status rc = dt_copy_out(net(m, image(seed)), out, IMAGES * OUT * sizeof *out);
    dt_end();
    return rc == DT_OK;
}
typedef struct worker {
    pthread_t          thread;
    pthread_barrier_t *begin;
    dt_model          *reader;
    int                first, failed;
    float              out[ROUNDS][IMAGES * OUT];
} worker;
static void *work(void *arg)
{
    worker *w = (worker *)arg;
    pthread_barrier_wait(w->begin);
    for (int i = 0; i < ROUNDS; i++) w->failed += !computes(w->reader, w->first + i, w->out[i]);
    w->failed += dt_check("worker") != 0;
    return NULL;
}
UTEST(readers, several_threads_have_the_bits_of_one)
{
    static worker     w[THREADS];
    pthread_barrier_t begin;
    trained           t = train(utest_result);
    pthread_barrier_init(&begin, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        w[i].begin = &begin;
        w[i].first = 10 + i; /* most images are seen by several */
        w[i].reader = dt_model_reader(t.m);
        ASSERT_TRUE_MSG(w[i].reader != NULL, dt_error());
        ASSERT_EQ(0, pthread_create(&w[i].thread, NULL, work, &w[i]));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        EXPECT_EQ(0, w[i].failed);
        dt_model_free(w[i].reader);
    }
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < ROUNDS; k++) {
            float alone[IMAGES * OUT];
            ASSERT_TRUE(computes(t.m, w[i].first + k, alone));
            EXPECT_EQ(0, memcmp(alone, w[i].out[k], sizeof alone));
        }
    pthread_barrier_destroy(&begin);
    dt_model_train(t.m); /* nobody reads any more */
    EXPECT_OK(dt_backward(dt_mean(net(t.m, image(1)))));
    EXPECT_OK(dt_step(t.opt));
    trained_free(&t);
    EXPECT_EQ(0, dt_check("readers"));
}
UTEST(readers, have_no_gradients_and_the_values_of_their_model)
{
    trained   t = train(utest_result);
    dt_model *r = dt_model_reader(t.m);
    ASSERT_TRUE(r != NULL);
    EXPECT_EQ(dt_model_count(t.m), dt_model_count(r));
    EXPECT_TRUE(dt_data_ptr(dt_model_find(r, "fc.weight")) == dt_data_ptr(dt_model_find(t.m, "fc.weight")));
    dt_tensor *x = dt_set_requires_grad(image(3));
    EXPECT_OK(dt_backward(dt_sum(net(r, x)))); /* to the input, which is this thread's */
    EXPECT_TRUE(dt_grad(x) != NULL);
    EXPECT_TRUE(dt_grad(dt_model_find(r, "fc.weight")) == NULL);
    dt_end();
    dt_free(x);
    dt_model_free(r);
    trained_free(&t);
}
UTEST(readers, what_changes_a_model_is_refused)
{
    trained   t = train(utest_result);
    dt_model *r = dt_model_reader(t.m);
    ASSERT_TRUE(r != NULL);
    EXPECT_OK(dt_backward(dt_mean(net(t.m, image(1)))));
    EXPECT_ERROR(dt_step(t.opt) ? NULL : r, "dt_step: other threads may be computing with the model through 1 reader");
    EXPECT_ERROR((dt_model_train(t.m), dt_error_code() ? NULL : r), "dt_model_train: other threads");
    EXPECT_FALSE(dt_model_is_training(t.m));
    EXPECT_ERROR(dt_model_to(t.m, NULL) ? NULL : r, "dt_model_to: other threads");
    EXPECT_ERROR(dt_model_load(t.m, "nothing.safetensors") < 0 ? NULL : r, "dt_model_load: other threads");
    EXPECT_ERROR(dt_sgd(r), "dt_sgd: the model is a reader");
    EXPECT_ERROR(dt_amp_new(r), "dt_amp_new: the model is a reader");
    EXPECT_ERROR(dt_model_freeze(r, "*") < 0 ? NULL : r, "dt_model_freeze: the model is a reader");
    EXPECT_ERROR(dt_model_reader(r), "it is a reader itself");
    EXPECT_ERROR(dt_linear(r, "new", image(1), .out = 1), "a new name after the seal");
    dt_model_free(r);
    dt_model_train(t.m);
    EXPECT_TRUE(dt_model_is_training(t.m));
    EXPECT_ERROR(dt_model_reader(t.m), "it is in training mode");
    trained_free(&t);
    dt_model *open = dt_model_new();
    EXPECT_ERROR(dt_model_reader(open), "it is not sealed");
    dt_model_free(open);
    dt_end();
}
UTEST(readers, outlive_their_model)
{
    trained   t = train(utest_result);
    float     before[IMAGES * OUT], after[IMAGES * OUT];
    dt_model *r = dt_model_reader(t.m), *second = dt_model_reader(t.m);
    ASSERT_TRUE(computes(t.m, 7, before));
    trained_free(&t);
    ASSERT_TRUE(computes(r, 7, after));
    EXPECT_EQ(0, memcmp(before, after, sizeof before));
    dt_model_free(r);
    ASSERT_TRUE(computes(second, 7, after));
    EXPECT_EQ(0, memcmp(before, after, sizeof before));
    dt_model_free(second);
}
/* Two threads that train one model: the second one's call meets the first one's step. */
typedef struct meeting {
    dt_model         *m;
    pthread_barrier_t inside, done;
    char              error[200];
} meeting;
static void *second_trainer(void *arg)
{
    meeting *k = (meeting *)arg;
    pthread_barrier_wait(&k->inside);
    dt_linear(k->m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 2);
    snprintf(k->error, sizeof k->error, "%s", dt_error() ? dt_error() : "no error");
    dt_error_clear();
    dt_end();
    pthread_barrier_wait(&k->done);
    return NULL;
}
static dt_status slow_update(dt_rule_call *u, void *user)
{
    meeting *k = (meeting *)user;
    (void)u;
    pthread_barrier_wait(&k->inside);
    pthread_barrier_wait(&k->done);
    return DT_OK;
}
UTEST(readers, a_call_that_meets_a_step_of_another_thread_is_an_error)
{
    meeting k = { .m = dt_model_new(.seed = 1) };
    dt_rule rule = { .name = "slow", .update = slow_update, .user = &k };
    pthread_t other;
    pthread_barrier_init(&k.inside, NULL, 2);
    pthread_barrier_init(&k.done, NULL, 2);
    dt_optimizer *opt = dt_optimizer_new(k.m, &rule);
    EXPECT_OK(dt_backward(dt_sum(dt_linear(k.m, "fc", dt_ones(DT_SHAPE(2, 3)), .out = 2))));
    ASSERT_EQ(0, pthread_create(&other, NULL, second_trainer, &k));
    EXPECT_OK(dt_step(opt));
    pthread_join(other, NULL);
    EXPECT_TRUE_MSG(strstr(k.error, "dt_linear: another call uses the model at this moment") != NULL, k.error);
    dt_optimizer_free(opt);
    dt_model_free(k.m);
    pthread_barrier_destroy(&k.inside);
    pthread_barrier_destroy(&k.done);
}
