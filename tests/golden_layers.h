/* golden_layers.h: checks a layer against PyTorch's initial parameters, outputs and gradients. Include it after a golden file of
   tests/golden/make_nn.py. */
#ifndef GOLDEN_LAYERS_H
#define GOLDEN_LAYERS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t fnv(dt_tensor *t)
{
    size_t         n = dt_nbytes(t);
    unsigned char *b = (unsigned char *)malloc(n + 1);
    uint64_t       h = 0xcbf29ce484222325ull;
    if (dt_copy_out(t, b, n) == DT_OK)
        for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3ull;
    free(b);
    return h;
}
typedef dt_tensor *(*layer_fn)(dt_model *m, dt_tensor *x);
static void check_layer(int *utest_result, const char *what, layer_fn fn, dt_shape shape, int integers,
                        const nn_param *want, double dx, const float *y, int ny)
{
    dt_rng r;
    dt_rng_seed(&r, 2);
    dt_model  *m = dt_model_new(.seed = 1);
    dt_tensor *x = dt_normal(0, 1, shape, .rng = &r);
    if (integers) {
        int64_t n = dt_numel(x);
        float  *v = (float *)malloc((size_t)n * 4);
        int32_t *ix = (int32_t *)malloc((size_t)n * 4);
        dt_copy_out(x, v, (size_t)n * 4);
        for (int64_t i = 0; i < n; i++) ix[i] = (int32_t)floorf(fabsf(v[i] * 1000)) % integers;
        x = dt_from(ix, shape, .dtype = DT_I32);
        free(v);
        free(ix);
    } else {
        dt_set_requires_grad(x);
    }
    /* once without a gradient, to see the parameters as they start */
    dt_model_eval(m);
    if (!strstr(what, "cumulative")) {
        dt_no_grad_begin();
        fn(m, x);
        dt_no_grad_end();
        dt_forward_begin(m);
        for (int i = 0; want[i].name; i++) {
            char name[64];
            snprintf(name, sizeof name, "l.%s", want[i].name);
            dt_tensor *t = dt_model_find(m, name);
            EXPECT_TRUE_MSG(t != NULL, name);
            EXPECT_TRUE_MSG(t && fnv(t) == want[i].hash, name);
        }
    }
    dt_model_train(m);
    dt_tensor *got = fn(m, x);
    EXPECT_CLOSE(got, y, ny, 2e-6, 2e-5);
    EXPECT_EQ(DT_OK, dt_backward(dt_sum(dt_mul(got, got))));
    for (int i = 0; want[i].name; i++) {
        char name[64];
        snprintf(name, sizeof name, "l.%s", want[i].name);
        dt_tensor *t = dt_model_find(m, name), *g = dt_grad(t);
        if (want[i].grad_norm < 0) {
            EXPECT_TRUE_MSG(g == NULL, name);
            continue;
        }
        EXPECT_TRUE_MSG(g != NULL, name);
        double norm = g ? sqrt(dt_item(dt_sum(dt_mul(g, g)))) : -1;
        EXPECT_TRUE_MSG(fabs(norm - want[i].grad_norm) <= 1e-5 + 2e-5 * want[i].grad_norm, name);
    }
    if (!integers) {
        dt_tensor *g = dt_grad(x);
        double     norm = g ? sqrt(dt_item(dt_sum(dt_mul(g, g)))) : -1;
        EXPECT_TRUE_MSG(fabs(norm - dx) <= 1e-5 + 2e-5 * dx, "the gradient of x");
    }
    EXPECT_TRUE_MSG(dt_error() == NULL, what);
    dt_error_clear();
    dt_end();
    if (!integers) dt_free(x);
    dt_model_free(m);
}
#define LAYER(name, shape, integers, call)                                                                             \
    static dt_tensor *layer_##name(dt_model *m, dt_tensor *x) { return call; }                                         \
    UTEST(layers, name)                                                                                                \
    {                                                                                                                  \
        check_layer(utest_result, #name, layer_##name, shape, integers, nn_##name##_params, nn_##name##_dx,            \
                    nn_##name##_y, (int)(sizeof nn_##name##_y / sizeof(float)));                                       \
    }

#endif /* GOLDEN_LAYERS_H */
