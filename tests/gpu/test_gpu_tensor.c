/* test_gpu_tensor.c: layers split over GPUs, and a grid of GPUs: NCCL, or through host memory; the losses and weights of ranks on the
   CPU with the same layout. Ranks are threads with a GPU each. Runs on the emulated libraries and on real GPUs alike. */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_nccl.h"
#include "dt_pipe.h"
#include "rank_threads.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    setenv("DT_EMU_DEVICES", "4", 0);
    setenv("DT_CUDA_DETERMINISTIC", "1", 1);
    return utest_main(argc, argv);
}
enum { N = 4, T = 4, E = 8, VOCAB = 16, STEPS = 3, MOST = 4096 };
enum { ON_CPU, BY_NCCL, BY_HOST, WAYS };
static int way, pipes, tensors, ranks; /* of this process */
static const char *level;
static struct {
    double loss[STEPS];
    float  weight[4][MOST];
    int    nweights[4];
} got[WAYS];
static dt_tensor *net(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)user;
    dt_tensor *h = dt_embedding(m, "wte", x, .num = VOCAB, .dim = E, .split = DT_SPLIT_IN);
    h = dt_add(h, dt_multihead_attention(m, "attn", dt_layernorm(m, "ln", h), .heads = 2, .causal = true, .split = DT_SPLIT_HEADS));
    if (pipes > 1) h = dt_stage(m, "second", h);
    dt_tensor *a = dt_gelu(dt_linear(m, "fc", h, .out = 4 * E, .split = DT_SPLIT_OUT));
    h = dt_add(h, dt_linear(m, "proj", dt_dropout_parts(m, a, 0.1, -1), .out = E, .split = DT_SPLIT_IN));
    dt_tensor *logits = dt_linear(m, "head", dt_reshape(h, DT_SHAPE(-1, E)), .out = VOCAB, .no_bias = true, .split = DT_SPLIT_OUT);
    return dt_cross_entropy_parts(m, logits, dt_reshape(y, DT_SHAPE(-1)), .label_smoothing = 0.1);
}
static void train(rank_arg *a)
{
    if (way == ON_CPU) dt_set_default_device(NULL);
    dt_grid      *g = dt_grid_new(a->c, .pipe = pipes, .tensor = tensors);
    dt_model     *m = dt_model_new(.seed = 3, .device = dt_default_device());
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1f, .momentum = 0.9f, .clip_norm = 0.5f);
    dt_amp       *amp = level ? dt_amp_new(m, .level = level, .dtype = DT_F16, .init_scale = 64) : NULL;
    dt_pipeline  *p = g ? dt_hybrid_new(m, g, .micro = 2, .amp = amp) : NULL;
    MUST(p != NULL);
    dt_manual_seed(11 + (uint64_t)dt_grid_rank(g, DT_AXIS_DATA));
    for (int i = 0; i < STEPS && !a->failed; i++) {
        dt_tensor *x = dt_cast(dt_uniform(0, VOCAB - 0.01, DT_SHAPE(N, T)), DT_I64), *y = dt_clone(x);
        MUST(!dt_pipeline_backward(p, net, NULL, x, y, &got[way].loss[i]));
        dt_step(opt);
    }
    dt_parameter_info q;
    int              *n = &got[way].nweights[a->rank];
    *n = 0;
    for (int i = 0; dt_model_get(m, i, &q) && !a->failed; i++) {
        if (!strcmp(dt_device_name(dt_device_of(q.value)), "elsewhere")) continue;
        dt_tensor *f = dt_cast(q.value, DT_F32);
        MUST(*n + dt_numel(q.value) <= MOST);
        MUST(!dt_copy_out(f, &got[way].weight[a->rank][*n], (size_t)dt_numel(f) * sizeof(float)));
        *n += (int)dt_numel(q.value);
    }
    dt_end();
    MUST(!dt_error());
    dt_pipeline_free(p);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_grid_free(g);
    MUST(!dt_error() && !dt_comm_free(a->c));
}
DT_TEST_RANK(grid_main)
{
    (void)arg;
    double eps = level ? 0x1p-10 : 0x1p-23, worst = 0;
    int    most = ranks / pipes / tensors > 1 ? (int)BY_NCCL : (int)BY_HOST; /* a ddp on GPUs needs NCCL */
    for (way = ON_CPU; way <= most; way++) {
        host_only = way != BY_NCCL;
        run_threads_here(utest_result, ranks, 30, train);
        for (int r = 0; r < ranks; r++) {
            EXPECT_EQ(got[way].nweights[r], got[ON_CPU].nweights[r]);
            EXPECT_GT(got[way].nweights[r], 50);
            for (int i = 0; i < got[ON_CPU].nweights[r]; i++) {
                double w = (double)got[ON_CPU].weight[r][i], e = fabs(w - (double)got[way].weight[r][i]) / (eps * (1 + fabs(w)));
                if (!(e <= worst)) worst = e;
            }
        }
        for (int i = 0; i < STEPS; i++) {
            double l = got[ON_CPU].loss[i], e = fabs(l - got[way].loss[i]) / (eps * (1 + fabs(l)));
            if (!(e <= worst)) worst = e;
            EXPECT_TRUE(isfinite(l) && l > 0.1);
        }
    }
    EXPECT_LT(worst, 60.0);
    printf("    pipe %d, tensor %d of %d%s%s: loss %.5f, %.1f steps of the format apart\n", pipes, tensors, ranks, level ? ", " : "",
           level ? level : "", got[BY_NCCL].loss[STEPS - 1], worst);
}
static void compare(int *utest_result, int pipe, int tensor, int all, const char *amp)
{
    pipes = pipe;
    tensors = tensor;
    ranks = all;
    level = amp;
    EXPECT_EQ(0, dt_test_ranks(1, 50, grid_main, NULL));
}
UTEST(grid, tensor_parallel)
{
    compare(utest_result, 1, 2, 2, NULL);
    compare(utest_result, 1, 2, 2, "O1");
    if (!dt_test_quick()) compare(utest_result, 1, 2, 2, "O2");
}
UTEST(grid, two_axes)
{
    compare(utest_result, 1, 2, 4, NULL); /* with data */
    compare(utest_result, 2, 2, 4, NULL);
    if (!dt_test_quick()) compare(utest_result, 2, 1, 4, "O2");
}
