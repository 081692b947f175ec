/* test_gpu_pipe.c: a model over several GPUs. Values go by NCCL, or through pinned memory: the same bits both ways, and the
   losses and weights of ranks on the CPU within the rounding of the format. Copies between GPU and host are counted. Ranks are
   threads or processes with a GPU each. Runs on the emulated libraries (lazy or random streams) and on real GPUs alike. */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_nccl.h"
#include "dt_pipe.h"
#include "counted.h"
#include "pipe/models.h"
#include "rank_threads.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    setenv("DT_EMU_DEVICES", "4", 0);
    setenv("DT_CUDA_DETERMINISTIC", "1", 1);
    return utest_main(argc, argv);
}

/* ==================================================================================================== >>same_values */
enum { BATCH = 8, MICRO = 4, STEPS = 2, MOST = 1 << 14 };
enum { ON_CPU, BY_NCCL, BY_PINNED, WAYS };
typedef struct recipe {
    int         model, ranks, schedule, chunks;
    const char *level; /* of mixed precision, or NULL */
    bool        recompute;
} recipe;
static recipe the; /* set before the ranks are started */
static int    way;
static struct { /* of each way */
    double   loss[STEPS], value; /* value: of an evaluation */
    float    weight[4][MOST];    /* of each rank */
    int      nweights[4];
    int      copies[3];          /* while it trained: pageable, pinned; waits for a stream or device */
} got[WAYS];
static void weights(rank_arg *a, dt_model *m)
{
    dt_parameter_info p;
    int              *n = &got[way].nweights[a->rank];
    *n = 0;
    for (int i = 0; dt_model_get(m, i, &p); i++) {
        if (!strcmp(dt_device_name(dt_device_of(p.value)), "elsewhere")) continue;
        dt_tensor *f = dt_cast(p.value, DT_F32);
        MUST(*n + dt_numel(p.value) <= MOST);
        MUST(!dt_copy_out(f, &got[way].weight[a->rank][*n], (size_t)dt_numel(f) * sizeof(float)));
        *n += (int)dt_numel(p.value);
    }
}
static void count(int rank, int sign)
{
    static const int what[] = { EMU_PAGEABLE, EMU_PINNED, EMU_WAITS };
    for (int i = 0; i < 3 && !rank; i++) got[way].copies[i] = got[way].copies[i] * (sign > 0) + sign * (int)counted(what[i]);
}
static void train(rank_arg *a)
{
    if (way == ON_CPU) dt_set_default_device(NULL);
    dt_model     *m = dt_model_new(.seed = 3, .device = dt_default_device());
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05f, .momentum = 0.9f, .clip_norm = 1);
    dt_amp       *amp = the.level ? dt_amp_new(m, .level = the.level, .dtype = DT_F16, .init_scale = 1024) : NULL;
    dt_pipeline  *p = dt_pipeline_new(m, a->c, .micro = MICRO, .schedule = (dt_pipe_kind)the.schedule, .chunks = the.chunks,
                                      .recompute = the.recompute, .amp = amp);
    dt_tensor *x[STEPS + 1], *y[STEPS + 1];
    double     value = 0;
    MUST(p != NULL);
    dt_manual_seed(11);
    for (int i = 0; i <= STEPS; i++) {
        batch(the.model, BATCH, &x[i], &y[i]);
        dt_keep(x[i]), dt_keep(y[i]);
    }
    for (int i = 0; i < STEPS && !a->failed; i++) {
        MUST(!dt_pipeline_backward(p, models[the.model], NULL, x[i], y[i], &got[way].loss[i])); /* equal on all ranks */
        dt_step(opt);
        if (i) continue;
        dt_synchronize(NULL);
        MUST(!dt_comm_barrier(a->c)); /* the first step makes the plan, buffers, communicators */
        count(a->rank, -1);
        MUST(!dt_comm_barrier(a->c));
    }
    MUST(!dt_comm_barrier(a->c));
    count(a->rank, 1);
    MUST(!dt_comm_barrier(a->c));
    dt_model_eval(m);
    MUST(!dt_pipeline_forward(p, models[the.model], NULL, x[STEPS], y[STEPS], &value));
    if (a->rank == 0) got[way].value = value;
    weights(a, m);
    for (int i = 0; i <= STEPS; i++) dt_free(x[i]), dt_free(y[i]);
    dt_end();
    MUST(!dt_error());
    dt_pipeline_free(p);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    MUST(!dt_error() && !dt_comm_free(a->c));
}
DT_TEST_RANK(pipe_main)
{
    (void)arg;
    stages = the.ranks * (the.chunks ? the.chunks : 1);
    blocks = 3;
    for (way = ON_CPU; way < WAYS; way++) {
        host_only = way != BY_NCCL;
        run_threads_here(utest_result, the.ranks, 30, train);
    }
    double eps = the.level ? 0x1p-10 : 0x1p-23, worst = 0;
    EXPECT_EQ(0, memcmp(got[BY_NCCL].loss, got[BY_PINNED].loss, sizeof got[0].loss));
    EXPECT_EQ(got[BY_NCCL].value, got[BY_PINNED].value);
    for (int r = 0; r < the.ranks; r++) {
        EXPECT_EQ(got[BY_NCCL].nweights[r], got[BY_PINNED].nweights[r]);
        EXPECT_EQ(got[BY_NCCL].nweights[r], got[ON_CPU].nweights[r]);
        EXPECT_EQ(0, memcmp(got[BY_NCCL].weight[r], got[BY_PINNED].weight[r], sizeof got[0].weight[r]));
        for (int i = 0; i < got[ON_CPU].nweights[r]; i++) {
            double w = (double)got[ON_CPU].weight[r][i], v = (double)got[BY_NCCL].weight[r][i];
            double e = fabs(w - v) / (eps * (1 + fabs(w)));
            if (!(e <= worst)) worst = e;
        }
    }
    for (int i = 0; i < STEPS; i++) {
        double l = got[ON_CPU].loss[i], e = fabs(l - got[BY_NCCL].loss[i]) / (eps * (1 + fabs(l)));
        if (!(e <= worst)) worst = e;
        EXPECT_TRUE(isfinite(l) && l != 0);
    }
    EXPECT_LT(worst, 40.0);
    /* In a step the losses are read once, by mixed precision the verdicts of each rank, for clipping the norm of each rank and
       that of a table that has been counted twice; its coefficient is written on each rank. Nothing for a micro-batch. */
    int most = 1 + the.ranks * (the.level ? 2 : 1) + (the.model == WORDS);
    int *nccl = got[BY_NCCL].copies, *not = got[BY_PINNED].copies;
    EXPECT_LE(nccl[0], most);
    EXPECT_LE(nccl[1], the.ranks);
    EXPECT_EQ(nccl[0], not[0]);
    if (nccl[0]) EXPECT_GT(not[1], MICRO * 4 - 1);
    EXPECT_LE(nccl[2], most);
    EXPECT_LE(not[2], most + (the.model == WORDS ? 2 : 0)); /* the gradients of a table are sent by both that have it */
    printf("    %s, %d ranks%s%s: loss %.5f, %.1f steps of the format apart; NCCL: %d copies and %d pinned, %d waits; without "
           "it %d, %d, %d\n",
           dt_pipe_kind_name((dt_pipe_kind)the.schedule), the.ranks, the.level ? ", " : "", the.level ? the.level : "",
           got[BY_NCCL].loss[STEPS - 1], worst, nccl[0], nccl[1], nccl[2], not[0], not[1], not[2]);
}
static void compare(int *utest_result, int model, int ranks, int schedule, const char *level, bool recompute)
{
    recipe r = { model, ranks, schedule, schedule == DT_PIPE_INTERLEAVED ? 2 : 1, level, recompute };
    the = r;
    EXPECT_EQ(0, dt_test_ranks(1, 50, pipe_main, NULL));
}
static const int schedules[] = { DT_PIPE_GPIPE, DT_PIPE_1F1B, DT_PIPE_INTERLEAVED, DT_PIPE_ZB_H1 };
UTEST(pipe, skip_connections)
{
    for (int i = 0; i < 4; i++) {
        bool four = schedules[i] == DT_PIPE_ZB_H1 || schedules[i] == DT_PIPE_GPIPE;
        if (!four || !dt_test_quick()) compare(utest_result, MLP, 2, schedules[i], NULL, false);
        if (four || !dt_test_quick()) compare(utest_result, MLP, 4, schedules[i], NULL, false);
    }
}
UTEST(pipe, a_table_on_two_ranks)
{
    compare(utest_result, WORDS, 2, DT_PIPE_1F1B, NULL, false);
    for (int i = 0; i < 4 && !dt_test_quick(); i++) compare(utest_result, WORDS, i % 2 ? 2 : 4, schedules[i], NULL, false);
}
UTEST(pipe, images)
{
    compare(utest_result, CONV, 4, DT_PIPE_ZB_H1, NULL, true);
    if (!dt_test_quick()) compare(utest_result, CONV, 2, DT_PIPE_1F1B, NULL, false);
}
UTEST(pipe, mixed_precision)
{
    compare(utest_result, MLP, 2, DT_PIPE_1F1B, "O1", false);
    compare(utest_result, MLP, 2, DT_PIPE_INTERLEAVED, "O2", false);
    if (!dt_test_quick()) compare(utest_result, WORDS, 4, DT_PIPE_ZB_H1, "O2", true);
}

/* ==================================================================================================== >>faults */
/* A rank is killed in step 1: the others name it within the timeout. */
static struct box {
    int survivors[4];
} *box;
static void killed(rank_arg *a)
{
    stages = a->world;
    dt_model     *m = dt_model_new(.seed = 3, .device = a->gpu);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05f);
    dt_pipeline  *p = dt_pipeline_new(m, a->c, .micro = MICRO);
    int64_t       begin = 0;
    for (int i = 0; i < 50 && !dt_error(); i++) {
        dt_tensor *x, *y;
        batch(MLP, BATCH, &x, &y);
        if (a->rank == 1 && i == 1) raise(SIGKILL);
        begin = dt_test_ns();
        dt_pipeline_backward(p, mlp, NULL, x, y, NULL);
        dt_step(opt);
    }
    MUST(dt_error() && strstr(dt_error(), "rank 1"));
    MUST((double)(dt_test_ns() - begin) * 1e-9 < 10 * dt_test_slow());
    dt_error_clear();
    dt_pipeline_free(p);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_error_clear();
    dt_comm_free(a->c);
    if (!a->failed) box->survivors[a->rank] = 1;
}
static int process_main(void *arg)
{
    rank_arg a;
    memset(&a, 0, sizeof a);
    a.c = dt_comm_init(.backend = host_only ? 0 : DT_NCCL, .timeout = 4 * dt_test_slow());
    if (!a.c) return 3;
    a.rank = dt_comm_rank(a.c);
    a.world = dt_comm_size(a.c);
    a.body = (void (*)(rank_arg *))(uintptr_t)arg;
    rank_thread(&a);
    if (a.failed) printf("    %s\n", a.why);
    return a.failed != 0;
}
UTEST(faults, a_dead_rank_is_named)
{
    box = (struct box *)mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(box != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        memset(box, 0, sizeof *box);
        host_only = i > 0;
        EXPECT_NE(0, dt_spawn(3, process_main, (void *)(uintptr_t)killed));
        EXPECT_TRUE(box->survivors[0] && box->survivors[2]);
    }
    host_only = false;
    munmap(box, sizeof *box);
}
/* Messages of GPU memory: any tag, in the order in which they are sent. Another order is an error of both, at once. */
static void in_order(rank_arg *a)
{
    float v[4];
    for (int i = 0; i < 4; i++) {
        dt_tensor *x = dt_full(a->rank ? 0 : i + 1, DT_SHAPE(4));
        int        rc = a->rank ? dt_comm_recv(a->c, dt_data_ptr(x), 4, DT_COMM_F32, 0, .tag = 7 - i)
                                : dt_comm_send(a->c, dt_data_ptr(x), 4, DT_COMM_F32, 1, .tag = 7 - i);
        MUST(!rc && !dt_copy_out(x, v, sizeof v) && v[3] == (float)(i + 1));
    }
    dt_tensor *x = dt_full(5, DT_SHAPE(4)), *y = dt_full(6, DT_SHAPE(4));
    dt_work   *w[2];
    for (int i = 0; i < 2; i++)
        w[i] = a->rank ? dt_comm_recv_start(a->c, dt_data_ptr(i ? y : x), 4, DT_COMM_F32, 0, .tag = 1 - i)
                       : dt_comm_send_start(a->c, dt_data_ptr(i ? y : x), 4, DT_COMM_F32, 1, .tag = i);
    for (int i = 0; i < 2; i++)
        if (w[i]) dt_work_wait(w[i]);
    int64_t t0 = dt_test_ns();
    while (!dt_comm_get_status(a->c) && (double)(dt_test_ns() - t0) < 10e9 * dt_test_slow()) dt_comm_barrier(a->c);
    MUST(dt_comm_get_status(a->c) == DT_COMM_ERR_MISMATCH);
    MUST(strstr(dt_comm_error(a->c), "in the order in which they are sent"));
    dt_end();
    dt_comm_free(a->c);
}
UTEST(faults, receives_in_another_order) { run_threads(utest_result, 2, 20, in_order); }
/* A message that is given up leaves a gap: the communicator fails, and nobody waits for ever. */
static void given_up(rank_arg *a)
{
    dt_tensor *x = dt_full(5, DT_SHAPE(4));
    int        rc = a->rank ? dt_comm_recv(a->c, dt_data_ptr(x), 4, DT_COMM_F32, 0, .tag = 7, .timeout = 0.05) : 0;
    int64_t    t0 = dt_test_ns();
    while (!dt_comm_get_status(a->c) && (double)(dt_test_ns() - t0) < 10e9 * dt_test_slow()) dt_comm_barrier(a->c);
    MUST(!a->rank || rc == DT_COMM_ERR_TIMEOUT);
    MUST(dt_comm_get_status(a->c) == DT_COMM_ERR_TIMEOUT && strstr(dt_comm_error(a->c), "was given up"));
    dt_end();
    dt_comm_free(a->c);
}
UTEST(faults, a_message_that_is_given_up) { run_threads(utest_result, 2, 20, given_up); }
