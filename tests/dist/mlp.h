/* mlp.h - a small network and its data, for tests of training on several ranks; after crew.h and dt_nn.h
       batch(first, n, &y)     samples first .. first + n - 1 of a set that every rank can make
       mlp(m, x)               three linear layers
       weights(m, out)         all parameters, one behind the other; how many
       same_bits(k, m)         checks that all ranks have the same weights
       far(a, b, n)            the largest difference, relative */
#ifndef MLP_H
#define MLP_H
#include "crew.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { IN = 6, OUT = 3 };
/* sample i of a set that every rank can make */
static DT_TEST_UNUSED void sample(int i, float *x, int64_t *y)
{
    uint32_t r[4];
    for (int k = 0; k < IN; k++) {
        dt_philox(7, (uint64_t)i * IN + (uint64_t)k, r);
        x[k] = (float)r[0] / 4294967296.0f * 2 - 1;
    }
    *y = (int64_t)(r[1] % OUT);
}
static DT_TEST_UNUSED dt_tensor *batch(int first, int n, dt_tensor **y)
{
    float   x[64 * IN];
    int64_t label[64];
    for (int i = 0; i < n; i++) sample(first + i, x + i * IN, label + i);
    *y = dt_from(label, DT_SHAPE(n), .dtype = DT_I64);
    return dt_from(x, DT_SHAPE(n, IN));
}
static DT_TEST_UNUSED dt_device *mlp_second; /* where the layer b is; NULL: on the model's device */
static DT_TEST_UNUSED bool       mlp_norm;   /* with a batch norm in it */
static DT_TEST_UNUSED dt_tensor *mlp(dt_model *m, dt_tensor *x)
{
    dt_device *first = dt_device_of(x), *dev = mlp_second ? mlp_second : first;
    x = dt_linear(m, "a", x, .out = 16, .act = DT_ACT_RELU);
    dt_device_begin(m, dev);
    if (mlp_norm) x = dt_batchnorm1d(m, "bn", dt_to(x, dev));
    x = dt_linear(m, "b", dt_to(x, dev), .out = 8, .act = DT_ACT_RELU);
    dt_device_end(m);
    return dt_linear(m, "c", dt_to(x, first), .out = OUT);
}
static DT_TEST_UNUSED int weights(dt_model *m, float *out) /* all parameters, one behind the other */
{
    int               n = 0;
    dt_parameter_info p;
    for (int i = 0; i < dt_model_count(m); i++) {
        dt_model_get(m, i, &p);
        if (p.buffer) continue;
        dt_copy_out(p.value, out + n, dt_nbytes(p.value));
        n += (int)dt_numel(p.value);
    }
    return n;
}
/* all ranks have the same bits in box->x[rank] */
static DT_TEST_UNUSED void same_bits(crew *k, dt_model *m)
{
    float *x = k->box->x[k->rank];
    int    n = weights(m, x);
    k->box->number[k->rank] = n;
    dt_comm_barrier(k->c);
    for (int r = 0; r < k->world; r++)
        crew_check(k, k->box->number[r] == n && !memcmp(x, k->box->x[r], (size_t)n * sizeof *x), "other weights");
    dt_comm_barrier(k->c);
}
static DT_TEST_UNUSED double far(const float *a, const float *b, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]) / (1e-3 + fabs((double)b[i]));
        if (!(d <= worst)) worst = d;
    }
    return worst;
}
#endif
