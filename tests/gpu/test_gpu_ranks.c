/* test_gpu_ranks.c: communicators on memory of GPUs, by NCCL: every collective beside the same one on the host, order
   with what is queued before and after, wrong calls, deaths; and data parallel training over them. Ranks are threads or
   processes with a GPU each. Runs on the emulated libraries (lazy or random streams, DT_EMU_DEVICES=4 unless told) and
   on real GPUs alike. */
#define _GNU_SOURCE
#include "dt_test.h"

#include "dt_dist.h"
#include "dt_nccl.h"
#include "counted.h"
#include "lab.h"
#include "nets.h"
#include "rank_threads.h"
#include "temp_files.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_STATE();
int main(int argc, const char *const argv[])
{
    setenv("DT_EMU_DEVICES", "4", 0);
    return utest_main(argc, argv);
}

/* ---- collectives */
enum { LEN = 1003 };
static double value(int rank, int64_t i) { return (double)((rank * 7 + i * 3) % 11) - 4; }
static dt_tensor *make(rank_arg *a, dt_dtype dtype, int64_t n, int64_t from)
{
    float *x = (float *)malloc((size_t)n * sizeof *x + 4);
    for (int64_t i = 0; i < n; i++) x[i] = (float)value(a->rank, from + i);
    dt_tensor *t = dt_cast(dt_from(x, DT_SHAPE(n)), dtype);
    free(x);
    return t;
}
static void *at(dt_tensor *t) { return dt_data_ptr(t); }
static double reduced(int world, int64_t i, int op)
{
    double y = value(0, i);
    for (int r = 1; r < world; r++) {
        double x = value(r, i);
        y = op == DT_COMM_MIN ? fmin(x, y) : op == DT_COMM_MAX ? fmax(x, y) : op == DT_COMM_PROD ? x * y : x + y;
    }
    return op == DT_COMM_MEAN ? y / world : y;
}
static void all_collectives(rank_arg *a)
{
    static const dt_dtype dtype[] = { DT_F32, DT_F16, DT_BF16, DT_I32, DT_I64 };
    int                   w = a->world;
    for (int d = 0; d < 5; d++)
        for (int op = DT_COMM_SUM; op <= DT_COMM_PROD; op++) {
            bool whole = d > 2;
            if (whole && op == DT_COMM_MEAN) continue;
            dt_tensor *x = dt_mul(make(a, dtype[d], LEN, 0), dt_full(1, DT_SHAPE(1), .dtype = dtype[d]));
            MUST(!dt_comm_allreduce(a->c, at(x), LEN, (int)dtype[d], op)); /* behind the product, before the next */
            dt_tensor *y = dt_cast(x, DT_F32);
            float      got[LEN];
            MUST(!dt_copy_out(y, got, sizeof got));
            for (int64_t i = 0; i < LEN && !a->failed; i++) {
                double want = reduced(w, i, op);
                MUST(fabs(got[i] - want) <= (op == DT_COMM_MEAN ? 0.02 : 0) * (1 + fabs(want)));
            }
            dt_end();
        }
}
static void parts(rank_arg *a)
{
    int        w = a->world;
    int64_t    counts[8], total = 0, mine_at = 0;
    float      got[8 * LEN];
    for (int i = 0; i < w; i++) {
        if (i == a->rank) mine_at = total;
        counts[i] = i == 1 ? 0 : 100 + 37 * i;
        total += counts[i];
    }
    for (int equal = 0; equal < 2; equal++) {
        int64_t *cs = equal ? NULL : counts, n = equal ? 111 : counts[a->rank], all = equal ? 111 * w : total;
        int64_t  from = equal ? 111 * a->rank : mine_at;
        dt_tensor *x = make(a, DT_F32, all, 0), *y = dt_zeros(DT_SHAPE(n + 1)), *z = dt_zeros(DT_SHAPE(all));
        MUST(!dt_comm_reduce_scatter(a->c, at(x), at(y), n, cs, DT_COMM_F32, DT_COMM_SUM));
        MUST(!dt_copy_out(y, got, (size_t)(n + 1) * 4));
        for (int64_t i = 0; i < n; i++) MUST(got[i] == (float)reduced(w, from + i, DT_COMM_SUM));
        MUST(got[n] == 0);
        MUST(!dt_comm_allgather(a->c, at(y), at(z), n, cs, DT_COMM_F32));
        MUST(!dt_copy_out(z, got, (size_t)all * 4));
        for (int64_t i = 0; i < all; i++) MUST(got[i] == (float)reduced(w, i, DT_COMM_SUM));
        dt_tensor *in_place = dt_zeros(DT_SHAPE(all)); /* the own part is there already */
        dt_copy(dt_narrow(in_place, 0, from, n), dt_narrow(y, 0, 0, n));
        MUST(!dt_comm_allgather(a->c, NULL, at(in_place), n, cs, DT_COMM_F32));
        MUST(!dt_copy_out(in_place, got, (size_t)all * 4));
        for (int64_t i = 0; i < all; i++) MUST(got[i] == (float)reduced(w, i, DT_COMM_SUM));
        dt_end();
    }
    for (int root = 0; root < w; root++) {
        dt_tensor *x = make(a, DT_F32, LEN, 0), *y = make(a, DT_F32, LEN, 0);
        MUST(!dt_comm_broadcast(a->c, at(x), LEN, DT_COMM_F32, root));
        MUST(!dt_copy_out(x, got, LEN * 4));
        for (int64_t i = 0; i < LEN; i++) MUST(got[i] == (float)value(root, i));
        MUST(!dt_comm_reduce(a->c, at(y), LEN, DT_COMM_F32, DT_COMM_SUM, root));
        MUST(!dt_copy_out(y, got, LEN * 4));
        for (int64_t i = 0; i < LEN; i++)
            MUST(got[i] == (float)(a->rank == root ? reduced(w, i, DT_COMM_SUM) : value(a->rank, i)));
        dt_end();
    }
}
static void messages(rank_arg *a)
{
    int   w = a->world, next = (a->rank + 1) % w, last = (a->rank + w - 1) % w;
    float got[LEN];
    for (int turn = 0; turn < 3; turn++) { /* everyone sends both ways before anyone receives */
        dt_tensor *x = make(a, DT_F32, LEN, 0), *from_last = dt_zeros(DT_SHAPE(LEN)), *from_next = dt_zeros(DT_SHAPE(LEN));
        dt_work *k[4] = { dt_comm_send_start(a->c, at(x), LEN, DT_COMM_F32, next),
                          dt_comm_send_start(a->c, at(x), LEN - turn, DT_COMM_F32, last),
                          dt_comm_recv_start(a->c, at(from_last), LEN, DT_COMM_F32, last),
                          dt_comm_recv_start(a->c, at(from_next), LEN - turn, DT_COMM_F32, next) };
        for (int i = 0; i < 4; i++) MUST(k[i] && !dt_work_wait(k[i]));
        MUST(!dt_copy_out(from_last, got, sizeof got));
        for (int64_t i = 0; i < LEN; i++) MUST(got[i] == (float)value(last, i));
        MUST(!dt_copy_out(from_next, got, sizeof got));
        for (int64_t i = 0; i < LEN - turn; i++) MUST(got[i] == (float)value(next, i));
        dt_end();
    }
}
static void in_turn(rank_arg *a) /* work that is started, queued kernels between; the host's memory as ever */
{
    dt_work   *k[3];
    dt_tensor *x[3];
    float      got[LEN];
    int64_t    host = a->rank + 1;
    for (int i = 0; i < 3; i++) {
        x[i] = dt_mul(make(a, DT_F32, LEN, i), dt_full(2, DT_SHAPE(1)));
        k[i] = dt_comm_allreduce_start(a->c, at(x[i]), LEN, DT_COMM_F32, DT_COMM_SUM);
        MUST(k[i] != NULL);
        if (i == 1) MUST(!dt_comm_allreduce(a->c, &host, 1, DT_COMM_I64, DT_COMM_SUM));
    }
    MUST(host == a->world * (a->world + 1) / 2);
    for (int i = 2; i >= 0; i--) {
        MUST(!dt_work_wait(k[i]));
        dt_tensor *y = dt_mul(x[i], dt_full(0.5, DT_SHAPE(1)));
        MUST(!dt_copy_out(y, got, sizeof got));
        for (int64_t n = 0; n < LEN; n++) MUST(got[n] == (float)reduced(a->world, i + n, DT_COMM_SUM));
    }
    dt_end();
}
static void everything(rank_arg *a)
{
    all_collectives(a);
    parts(a);
    messages(a);
    in_turn(a);
    dt_comm *dup = NULL, *half = NULL;
    MUST(!dt_comm_dup(a->c, &dup) && !dt_comm_split(a->c, a->rank % 2, a->rank, &half));
    dt_tensor *x = dt_full(a->rank + 1, DT_SHAPE(5)), *y = dt_full(a->rank + 1, DT_SHAPE(5));
    MUST(!dt_comm_allreduce(dup, at(x), 5, DT_COMM_F32, DT_COMM_SUM));
    MUST(!dt_comm_allreduce(half, at(y), 5, DT_COMM_F32, DT_COMM_SUM));
    int sum = 0;
    for (int r = a->rank % 2; r < a->world; r += 2) sum += r + 1;
    MUST(dt_item(dt_amax(x)) == a->world * (a->world + 1) / 2);
    MUST(dt_item(dt_amax(y)) == sum);
    MUST(!dt_comm_free(dup) && !dt_comm_free(half) && !dt_comm_free(a->c));
}
UTEST(nccl, every_collective_on_two_threads) { run_threads(utest_result, 2, 20, everything); }
UTEST(nccl, every_collective_on_four_threads) { run_threads(utest_result, 4, 20, everything); }

/* ---- two communicators, where a GPU has room for the kernel of one collective */
static void two_communicators(rank_arg *a)
{
    dt_comm *c[2] = { a->c, NULL };
    float    got[LEN];
    MUST(!dt_comm_dup(a->c, &c[1]));
    for (int turn = 0; turn < 20 && !a->failed; turn++) {
        dt_tensor *x[2];
        dt_work   *k[2];
        for (int i = 0; i < 2; i++) {
            x[i] = make(a, DT_F32, LEN, i);
            k[i] = dt_comm_allreduce_start(c[i], at(x[i]), LEN, DT_COMM_F32, DT_COMM_SUM);
            MUST(k[i] != NULL);
        }
        for (int i = 0; i < 2; i++) { /* rank 0 needs the first one first, the others the second */
            int z = i ^ (a->rank != 0);
            MUST(!dt_work_wait(k[z]) && !dt_copy_out(x[z], got, sizeof got));
            for (int64_t n = 0; n < LEN; n++) MUST(got[n] == (float)reduced(a->world, z + n, DT_COMM_SUM));
        }
        dt_end();
    }
    MUST(!dt_comm_free(c[1]) && !dt_comm_free(a->c));
}
static void little_room(int *utest_result, const char *version)
{
    setenv("DT_EMU_NCCL_ROOM", "1", 1);
    if (version) setenv("DT_EMU_NCCL_VERSION", version, 1);
    run_threads(utest_result, 4, 20, two_communicators);
    unsetenv("DT_EMU_NCCL_ROOM");
    unsetenv("DT_EMU_NCCL_VERSION");
}
UTEST(nccl, two_communicators_with_room_for_one_kernel) { little_room(utest_result, NULL); }
UTEST(nccl, two_communicators_of_a_nccl_that_keeps_no_order) { little_room(utest_result, "22500"); }
static void loaded_before(rank_arg *a) /* nothing is loaded behind a collective: that could wait for it */
{
    dt_model     *m = dt_model_new(.seed = 1, .device = a->gpu);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *ddp = dt_ddp_new(m, a->c);
    dt_backward(dt_sum(dt_linear(m, "fc1", dt_ones(DT_SHAPE(3, 4)), .out = 8)));
    MUST(!dt_step(opt) && counted(EMU_LOADS) == 0);
    dt_end();
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_free(a->c);
}
UTEST(nccl, nothing_is_loaded_behind_a_collective)
{
    setenv("DT_EMU_LOADING", "1", 1);
    run_threads(utest_result, 2, 20, loaded_before);
    unsetenv("DT_EMU_LOADING");
}

/* ---- wrong calls: the same error on all ranks, and nobody waits for long */
static void must_fail(rank_arg *a, int rc, int status, const char *text)
{
    MUST(rc == status && dt_comm_get_status(a->c) == status);
    MUST(dt_comm_error(a->c) && strstr(dt_comm_error(a->c), text));
    if (!a->failed && !strstr(dt_comm_error(a->c), text)) snprintf(a->why, sizeof a->why, "%s", dt_comm_error(a->c));
    dt_comm_free(a->c);
}
static void other_count(rank_arg *a)
{
    dt_tensor *x = dt_ones(DT_SHAPE(10));
    int        rc = dt_comm_allreduce(a->c, at(x), 10, DT_COMM_F32, DT_COMM_SUM);
    if (!rc) rc = dt_comm_allreduce(a->c, at(x), 10 - (a->rank == 1), DT_COMM_F32, DT_COMM_SUM);
    must_fail(a, rc, DT_COMM_ERR_MISMATCH, "ranks call different things");
}
static void other_place(rank_arg *a) /* the host's memory on one rank */
{
    dt_tensor *x = dt_ones(DT_SHAPE(10));
    float      host[10] = { 0 };
    must_fail(a, dt_comm_allreduce(a->c, a->rank ? at(x) : host, 10, DT_COMM_F32, DT_COMM_SUM), DT_COMM_ERR_MISMATCH,
              "native");
}
static void both_places(rank_arg *a)
{
    dt_tensor *x = dt_ones(DT_SHAPE(10));
    float      host[40] = { 0 };
    must_fail(a, dt_comm_allgather(a->c, at(x), host, 10, NULL, DT_COMM_F32), DT_COMM_ERR_ARG,
              "one buffer is in host memory, the other in GPU memory");
}
static void not_there(rank_arg *a)
{
    dt_tensor *x = dt_zeros(DT_SHAPE(10), .dtype = DT_U8);
    must_fail(a, dt_comm_allreduce(a->c, at(x), 10, DT_COMM_U8, DT_COMM_OR), DT_COMM_ERR_ARG, "DT_COMM_OR is not supported for GPU memory");
}
static void two_gpus(rank_arg *a)
{
    dt_tensor *x = dt_ones(DT_SHAPE(10)), *y = dt_ones(DT_SHAPE(10), .device = dt_cuda(a->world + a->rank));
    int rc = dt_comm_allreduce(a->c, at(x), 10, DT_COMM_F32, DT_COMM_SUM); /* another rank may be further already */
    if (!rc) rc = dt_comm_allreduce(a->c, at(y), 10, DT_COMM_F32, DT_COMM_SUM);
    must_fail(a, rc, DT_COMM_ERR_ARG, "where the first buffer of this communicator was");
}
static void one_stays_away(rank_arg *a)
{
    dt_tensor *x = dt_ones(DT_SHAPE(10));
    MUST(!dt_comm_allreduce(a->c, at(x), 10, DT_COMM_F32, DT_COMM_SUM));
    if (a->rank == 1) {
        while (!dt_comm_get_status(a->c)) usleep(1000);
        must_fail(a, dt_comm_get_status(a->c), DT_COMM_ERR_TIMEOUT, "ranks that have not called it: 1");
    } else
        must_fail(a, dt_comm_allreduce(a->c, at(x), 10, DT_COMM_F32, DT_COMM_SUM), DT_COMM_ERR_TIMEOUT,
                  "ranks that have not called it: 1");
}
static void aborted_in_flight(rank_arg *a) /* it is queued; then a rank gives up: all get on, and their works end */
{
    dt_tensor *x = dt_ones(DT_SHAPE(10));
    dt_work   *w = dt_comm_allreduce_start(a->c, at(x), 10, DT_COMM_F32, DT_COMM_SUM);
    MUST(w != NULL);
    if (a->rank == 0) dt_comm_abort(a->c, "enough");
    int rc = dt_work_wait(w);
    MUST(rc == 0 || rc == DT_COMM_ERR_ABORT);
    while (!dt_comm_get_status(a->c)) usleep(1000);
    must_fail(a, dt_comm_allreduce(a->c, at(x), 10, DT_COMM_F32, DT_COMM_SUM), DT_COMM_ERR_ABORT, "enough");
}
UTEST(refused, another_count) { run_threads(utest_result, 2, 20, other_count); }
UTEST(refused, the_hosts_memory_on_one_rank) { run_threads(utest_result, 2, 20, other_place); }
UTEST(refused, one_buffer_here_one_there) { run_threads(utest_result, 2, 20, both_places); }
UTEST(refused, what_nccl_has_not) { run_threads(utest_result, 2, 20, not_there); }
UTEST(refused, another_gpu_than_before) { run_threads(utest_result, 2, 20, two_gpus); }
/* The GPU of rank 1 does not get on with what was queued, or NCCL reports an error there (DT_EMU_NCCL). */
static void goes_wrong(rank_arg *a)
{
    dt_tensor *x = dt_ones(DT_SHAPE(1000));
    int64_t    t0 = dt_test_ns();
    int        rc = 0;
    for (int i = 0; i < 4 && !rc; i++) rc = dt_comm_allreduce(a->c, at(x), 1000, DT_COMM_F32, DT_COMM_SUM);
    dt_synchronize(a->gpu); /* ends with the communicator */
    while (!dt_comm_get_status(a->c) && (double)(dt_test_ns() - t0) < 20e9 * dt_test_slow()) usleep(1000);
    MUST((double)(dt_test_ns() - t0) < 8e9 * dt_test_slow());
    bool fails = strstr(getenv("DT_EMU_NCCL"), "fail") != NULL; /* it is seen at #3, or when #4 is called */
    MUST(!fails || dt_comm_failed_rank(a->c) == 1);
    must_fail(a, dt_comm_get_status(a->c), fails ? DT_COMM_ERR_NET : DT_COMM_ERR_TIMEOUT,
              fails ? ": NCCL: " : "allreduce #3 of 1000 f32 was not done");
}
static void told(int *utest_result, const char *what)
{
    setenv("DT_EMU_NCCL", what, 1);
    run_threads(utest_result, 2, 1, goes_wrong);
    unsetenv("DT_EMU_NCCL");
}
UTEST(faults, a_collective_that_hangs_on_a_gpu) { told(utest_result, "hang:1:2"); }
UTEST(faults, an_asynchronous_error) { told(utest_result, "fail:1:2"); }
UTEST(faults, a_rank_that_does_not_come) { run_threads(utest_result, 2, 1, one_stays_away); }
UTEST(faults, an_abort_beside_queued_work) { run_threads(utest_result, 4, 20, aborted_in_flight); }

/* ---- data parallel training: the losses of ranks on GPUs beside those of ranks on the CPU */
typedef struct recipe {
    int         net;
    const char *level;
    dt_dtype    dtype;
    bool        sync_batchnorm, weighted, accumulate, uneven, slots;
    const char *compress; /* of dt_ddp_new, or NULL */
    int         shard;
    double      clip;
    bool        staged; /* a hook with three collectives for a bucket */
    bool        early;  /* rank 1 has data in the first step only */
} recipe;
static recipe the; /* set before the ranks are started */
static double loss_of[2][8][STEPS], norm_of[2][8], buffers_of[2][8];
static double buffers_sum(dt_model *m) /* running statistics: those of rank 0 on all */
{
    double        sum = 0;
    dt_parameter_info p;
    for (int i = 0; dt_model_get(m, i, &p); i++)
        if (p.buffer) sum += dt_item(dt_sum(dt_cast(p.value, DT_F32)));
    return sum;
}
static double weights_norm(dt_model *m)
{
    double        sum = 0;
    dt_parameter_info p;
    for (int i = 0; dt_model_get(m, i, &p); i++)
        if (!p.buffer) sum += dt_item(dt_sum(dt_mul(p.value, p.value)));
    return sum;
}
static dt_tensor *loss_for(dt_model *m, const trainer *t, int step, int rank)
{
    int64_t label[16];
    for (int64_t i = 0; i < t->x.dim[0]; i++) label[i] = (i + rank) % CLASSES;
    dt_tensor *y = dt_from(label, DT_SHAPE(t->x.dim[0]), .dtype = DT_I64);
    return dt_cross_entropy(t->net(m, data_of(t, step * 8 + rank)), y);
}
static int sum_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    (void)user;
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
    return *work ? 0 : -1;
}
static int same_again(dt_ddp_bucket *b, dt_work **work, void *user) /* the greatest of equal values, twice */
{
    (void)user;
    if (!b->comm) return 0;
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_MAX);
    return *work ? 0 : -1;
}
static void train_rank(rank_arg *a)
{
    const trainer *t = &trainers[the.net];
    int            gpu = dt_default_device() != dt_cpu();
    dt_manual_seed(7);
    dt_model     *m = dt_model_new(.seed = 1 + (uint64_t)a->rank, .device = dt_default_device()); /* rank 0's counts */
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05, .momentum = 0.9, .clip_norm = the.clip);
    dt_amp       *amp = the.level ? dt_amp_new(m, .level = the.level, .dtype = the.dtype) : NULL;
    dt_ddp       *ddp = dt_ddp_new(m, a->c, .first_bucket_mb = 0.002, .bucket_mb = 0.004,
                                   .sync_batchnorm = the.sync_batchnorm, .slots = the.slots ? a->world : 0,
                                   .compress = { .kind = the.compress }, .shard = the.shard);
    MUST(ddp != NULL);
    if (the.staged) MUST(!dt_ddp_set_hook(ddp, .name = "staged", .start = sum_start, .finish = same_again, .stages = 3));
    for (int i = 0; i < STEPS && !a->failed; i++) {
        bool have = !the.uneven || i < (the.early ? 1 : STEPS - 1) || a->rank != 1;
        if (the.uneven && !dt_ddp_more(ddp, i < STEPS)) break;
        for (int k = the.accumulate ? 1 : 0; k >= 0 && have; k--) {
            dt_tensor *l = loss_for(m, t, i + k, a->rank);
            if (the.weighted) dt_ddp_samples(ddp, 1 + a->rank);
            dt_ddp_no_sync(ddp, k > 0);
            loss_of[gpu][a->rank][i] = dt_item(l);
            if (amp) dt_amp_backward(amp, l);
            else dt_backward(l);
        }
        if (!have) dt_ddp_skip(ddp);
        dt_step(opt);
        MUST(!dt_error());
    }
    norm_of[gpu][a->rank] = a->failed ? NAN : weights_norm(m);
    buffers_of[gpu][a->rank] = a->failed ? NAN : buffers_sum(m);
    if (the.shard && !a->failed) { /* each element is on one rank (small parameters are not cut, so ranks have different shares) */
        dt_ddp_memory k = dt_ddp_get_memory(ddp);
        int64_t       all = dt_model_numel(m, true) * 4, sum[3] = { k.parameters, k.gradients, k.states };
        MUST(!dt_comm_allreduce(a->c, sum, 3, DT_COMM_I64, DT_COMM_SUM));
        MUST(the.shard < 3 || sum[0] < all * 11 / 10);
        MUST(the.shard < 2 || sum[1] < all * 11 / 10);
        MUST(sum[2] < all * 11 / 10);
    }
    if (gpu && ddp && !the.slots) MUST(the.net == 2 || dt_ddp_get_stats(ddp).buckets > 2); /* they overlap */
    dt_end();
    dt_ddp_free(ddp);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    MUST(!dt_error() && !dt_comm_free(a->c));
}
static void on_cpu(rank_arg *a)
{
    dt_set_default_device(NULL);
    train_rank(a);
}
DT_TEST_RANK(ddp_main)
{
    int n = *(int *)arg;
    run_threads_here(utest_result, n, 20, on_cpu);
    run_threads_here(utest_result, n, 20, train_rank);
    double eps = !the.level ? 0x1p-23 : the.dtype == DT_F16 ? 0x1p-10 : 0x1p-7, worst = 0;
    if (the.compress) eps = !strcmp(the.compress, "f16") ? 0x1p-10 : 0x1p-7;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < STEPS; i++) {
            double e = fabs(loss_of[0][r][i] - loss_of[1][r][i]) / (eps * (1 + fabs(loss_of[0][r][i])));
            if (!(e <= worst)) worst = e;
        }
        EXPECT_EQ(norm_of[1][0], norm_of[1][r]); /* the same bits on all ranks */
        if (!the.slots) EXPECT_EQ(buffers_of[1][0], buffers_of[1][r]);
    }
    printf("    %s, %d ranks, %s: loss %.5f to %.5f, %.1f steps of the format apart\n", trainers[the.net].name, n,
           the.level ? the.level : "f32", loss_of[0][0][0], loss_of[0][0][STEPS - 1], worst);
    EXPECT_LT(worst, 40.0);
    EXPECT_NE(loss_of[1][0][0], loss_of[1][1][0]);
}
static void compare(int *utest_result, int n, recipe r)
{
    the = r;
    EXPECT_EQ(0, dt_test_ranks(1, 50, ddp_main, &n));
}
UTEST(ddp, conv_net_on_two) { compare(utest_result, 2, (recipe){ .net = 0 }); }
UTEST(ddp, conv_net_on_four) { compare(utest_result, 4, (recipe){ .net = 0 }); }
UTEST(ddp, resnet_20_with_batch_norms_over_all_ranks) { compare(utest_result, 2, (recipe){ .net = 1, .sync_batchnorm = true }); }
UTEST(ddp, gpt) { compare(utest_result, 2, (recipe){ .net = 2 }); }
/* sharded: the same losses as on the CPU, where tests/dist/test_shard.c shows that they have the bits of DDP */
UTEST(sharded, stage_1) { compare(utest_result, 2, (recipe){ .net = 0, .shard = 1 }); }
UTEST(sharded, stage_2_in_bf16) { compare(utest_result, 2, (recipe){ .net = 0, .shard = 2, .level = "O2", .dtype = DT_BF16 }); }
UTEST(sharded, stage_3_on_four_where_a_rank_runs_out)
{
    compare(utest_result, 4, (recipe){ .net = 0, .shard = 3, .uneven = true, .sync_batchnorm = true });
}
UTEST(sharded, stage_3_accumulated_and_clipped)
{
    compare(utest_result, 2, (recipe){ .net = 2, .shard = 3, .clip = 0.5, .accumulate = true, .level = "O1", .dtype = DT_F16 });
}
UTEST(sharded, stages_with_room_for_one_kernel) /* gathers and sums have a communicator each */
{
    setenv("DT_EMU_NCCL_ROOM", "1", 1);
    compare(utest_result, 4, (recipe){ .net = 0, .shard = 3, .sync_batchnorm = true });
    compare(utest_result, 2, (recipe){ .net = 2, .shard = 2 });
    unsetenv("DT_EMU_NCCL_ROOM");
}
UTEST(sharded, stage_3_compressed) { compare(utest_result, 2, (recipe){ .net = 0, .shard = 3, .compress = "bf16" }); }
UTEST(ddp, weighted) { compare(utest_result, 2, (recipe){ .net = 2, .weighted = true }); }
UTEST(ddp, accumulated) { compare(utest_result, 2, (recipe){ .net = 2, .accumulate = true }); }
UTEST(ddp, a_rank_that_runs_out) { compare(utest_result, 2, (recipe){ .net = 0, .uneven = true, .sync_batchnorm = true }); }
UTEST(ddp, a_rank_that_runs_out_with_room_for_one_kernel) /* it begins the collectives of all communicators where the others do */
{
    setenv("DT_EMU_NCCL_ROOM", "1", 1);
    compare(utest_result, 2, (recipe){ .net = 0, .uneven = true, .sync_batchnorm = true });
    if (!dt_test_quick()) compare(utest_result, 2, (recipe){ .net = 0, .shard = 2, .uneven = true, .sync_batchnorm = true });
    compare(utest_result, 2, (recipe){ .net = 0, .shard = 3, .uneven = true, .sync_batchnorm = true });
    unsetenv("DT_EMU_NCCL_ROOM");
}
UTEST(ddp, a_rank_that_runs_out_after_one_step)
{
    compare(utest_result, 2, (recipe){ .net = 0, .early = true, .uneven = true, .sync_batchnorm = true });
    if (dt_test_quick()) return;
    compare(utest_result, 2, (recipe){ .net = 0, .shard = 2, .early = true, .uneven = true, .sync_batchnorm = true });
    compare(utest_result, 2, (recipe){ .net = 1, .early = true, .uneven = true, .sync_batchnorm = true });
}
static void skips_after_a_freeze(rank_arg *a) /* where its batch norms would be is not known */
{
    dt_model *m = dt_model_new(.seed = 1, .device = a->gpu);
    dt_ddp   *ddp = dt_ddp_new(m, a->c, .sync_batchnorm = true);
    int       both = 1;
    dt_backward(loss_for(m, &trainers[0], 0, a->rank));
    MUST(!dt_error() && dt_model_freeze(m, "*.bias") > 0);
    MUST(!dt_comm_allreduce(a->c, &both, 1, DT_COMM_I32, DT_COMM_SUM)); /* the error comes after the first step of both */
    if (a->rank == 1) {
        dt_ddp_skip(ddp);
        MUST(dt_error() && strstr(dt_error(), "give every rank data in the step after that"));
    } else {
        dt_backward(loss_for(m, &trainers[0], 1, a->rank));
        MUST(dt_error() && strstr(dt_error(), "give every rank data in the step after that"));
    }
    dt_error_clear();
    dt_end();
    dt_ddp_free(ddp);
    dt_model_free(m);
    dt_comm_free(a->c);
}
UTEST(ddp, a_rank_cannot_skip_the_step_after_a_freeze) { run_threads(utest_result, 2, 20, skips_after_a_freeze); }
UTEST(ddp, a_hook_of_three_stages_with_room_for_one_kernel)
{
    setenv("DT_EMU_NCCL_ROOM", "1", 1);
    compare(utest_result, 2, (recipe){ .net = 0, .staged = true, .uneven = true, .sync_batchnorm = true });
    compare(utest_result, 2, (recipe){ .net = 0, .shard = 2, .staged = true, .uneven = true, .sync_batchnorm = true });
    unsetenv("DT_EMU_NCCL_ROOM");
}
UTEST(ddp, weighted_with_batch_norms_over_all_ranks)
{
    compare(utest_result, 2, (recipe){ .net = 0, .weighted = true, .sync_batchnorm = true });
}
UTEST(ddp, slots) { compare(utest_result, 2, (recipe){ .net = 2, .slots = true }); }
UTEST(ddp, compressed_as_f16) { compare(utest_result, 2, (recipe){ .net = 2, .compress = "f16" }); }
UTEST(ddp, compressed_as_bf16) { compare(utest_result, 2, (recipe){ .net = 0, .compress = "bf16", .weighted = true }); }
UTEST(ddp, mixed_precision_in_f16) { compare(utest_result, 2, (recipe){ .net = 2, .level = "O1", .dtype = DT_F16 }); }
UTEST(ddp, mixed_precision_of_a_conv_net_in_f16)
{
    compare(utest_result, 2, (recipe){ .net = 0, .level = "O1", .dtype = DT_F16 });
}
UTEST(ddp, mixed_precision_in_bf16) { compare(utest_result, 2, (recipe){ .net = 0, .level = "O2", .dtype = DT_BF16 }); }

static void one_is_not_finite(rank_arg *a)
{
    dt_model     *m = dt_model_new(.seed = 1, .device = a->gpu);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *ddp = dt_ddp_new(m, a->c, .first_bucket_mb = 1e-4, .bucket_mb = 1e-4, .shard = the.shard);
    double        before = 0;
    for (int i = 0; i < 2; i++) {
        dt_tensor *x = dt_full(1, DT_SHAPE(3, 4)), *bad = dt_full(i && a->rank == 1 ? INFINITY : 1, DT_SHAPE(3, 4));
        dt_tensor *y = dt_linear(m, "fc1", bad, .out = 8), *z = dt_linear(m, "fc2", x, .out = 8);
        dt_backward(dt_sum(dt_add(y, z)));
        if (!i) {
            dt_step(opt);
            before = weights_norm(m);
        }
    }
    dt_step(opt);
    MUST(dt_error_code() == DT_ERR_NUMERIC);
    MUST(dt_error() && strstr(dt_error(), "on rank 1 the gradient of 'fc1.weight' is not finite"));
    dt_error_clear();
    MUST(before == weights_norm(m));
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_free(a->c);
}
UTEST(ddp, a_gradient_that_is_not_finite_is_named_by_all)
{
    for (the.shard = 0; the.shard <= 3; the.shard++) run_threads(utest_result, 2, 20, one_is_not_finite);
    the.shard = 0;
}
static char *checkpoints;
static void resumes(rank_arg *a) /* 4 steps; 2 steps, saved, and 2 more in a new model; in another way of sharding, too */
{
    double want = 0;
    for (int turn = 0; turn < 4; turn++) {
        dt_model      *m = dt_model_new(.seed = 1 + (uint64_t)turn, .device = a->gpu);
        dt_optimizer  *opt = dt_adam(m, .lr = 0.01);
        dt_ddp        *ddp = dt_ddp_new(m, a->c, .first_bucket_mb = 1e-4, .bucket_mb = 1e-4, .shard = turn < 2 ? 3 : turn - 2);
        dt_checkpoint *c = dt_checkpoint_new(checkpoints, .model = m, .optimizer = opt);
        int64_t        epoch = 0, step = 0;
        if (turn) MUST(dt_checkpoint_resume(c, &epoch, &step) == 1 && step == 2);
        for (; step < 4 && !a->failed; step++) {
            dt_tensor *x = dt_full((double)(step + 1 + a->rank) / 8, DT_SHAPE(3, 4));
            dt_backward(dt_mse_loss(dt_linear(m, "fc2", dt_linear(m, "fc1", x, .out = 8), .out = 5), dt_ones(DT_SHAPE(3, 5))));
            MUST(!dt_step(opt));
            if (!turn && step == 1) MUST(!dt_checkpoint_save(c, 0, 2));
        }
        double norm = weights_norm(m);
        if (!turn) want = norm;
        MUST(norm == want);
        dt_end();
        dt_checkpoint_free(c);
        dt_ddp_free(ddp);
        MUST(turn || weights_norm(m) == want); /* whole again */
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
    dt_model *m = dt_model_new(.seed = 1, .device = a->gpu);
    MUST(!dt_ddp_new(m, a->c, .shard = 1, .state_dir = checkpoints) && strstr(dt_error(), ".state_dir"));
    dt_error_clear();
    dt_model_free(m);
    dt_comm_free(a->c);
}
UTEST(sharded, a_resumed_training_has_the_bits_of_one_that_went_on)
{
    checkpoints = temp_dir();
    run_threads(utest_result, 2, 20, resumes);
    temp_remove(checkpoints);
}
static void compressed(rank_arg *a) /* f16 cannot hold it; what computes on the CPU is refused */
{
    dt_model     *m = dt_model_new(.seed = 1, .device = a->gpu);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    MUST(!dt_ddp_new(m, a->c, .compress = { "topk" }) && strstr(dt_error(), "use f16 or bf16"));
    dt_error_clear();
    dt_ddp *ddp = dt_ddp_new(m, a->c, .compress = { "f16" });
    for (int i = 0; i < 2; i++) {
        dt_tensor *x = dt_full(i && a->rank == 1 ? 3e5f : 1, DT_SHAPE(3, 4));
        dt_backward(dt_sum(dt_linear(m, "fc1", x, .out = 8)));
        if (!i) dt_step(opt);
    }
    MUST(dt_error_code() == DT_ERR_NUMERIC && strstr(dt_error(), "cannot send"));
    dt_error_clear();
    dt_end();
    dt_ddp_free(ddp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_free(a->c);
}
UTEST(ddp, a_gradient_that_f16_cannot_hold_is_an_error) { run_threads(utest_result, 2, 20, compressed); }
static void no_backend(rank_arg *a)
{
    dt_comm *plain[1];
    MUST(!dt_comm_threads(1, plain, .timeout = 20));
    dt_model *m = dt_model_new(.seed = 1, .device = a->gpu);
    MUST(!dt_ddp_new(m, a->c) && strstr(dt_error(), ".backend = DT_NCCL"));
    dt_error_clear();
    dt_ddp *alone = dt_ddp_new(m, plain[0]);
    MUST(alone != NULL);
    dt_ddp_free(alone);
    dt_model_free(m);
    dt_comm_free(plain[0]);
    dt_comm_free(a->c);
}
static void two_devices(rank_arg *a)
{
    dt_model *m = dt_model_new(.seed = 1, .device = a->gpu);
    dt_ddp   *ddp = dt_ddp_new(m, a->c);
    MUST(isfinite(dt_item(dt_sum(dt_linear(m, "here", dt_ones(DT_SHAPE(2, 4), .device = a->gpu), .out = 2)))));
    MUST(!dt_comm_barrier(a->c)); /* then the error is of the next layer on both ranks, own or the other's */
    dt_device_begin(m, dt_cpu());
    MUST(!dt_linear(m, "there", dt_ones(DT_SHAPE(2, 4), .device = dt_cpu()), .out = 2));
    dt_device_end(m);
    MUST(dt_error() && strstr(dt_error(), "'there.weight' is on cpu and the model on cuda:"));
    MUST(strstr(dt_error(), "over NCCL a rank uses one device"));
    dt_end();
    dt_ddp_free(ddp);
    dt_error_clear();
    dt_model_free(m);
    dt_comm_free(a->c);
}
UTEST(ddp, a_rank_has_one_device) { run_threads(utest_result, 2, 20, two_devices); }
UTEST(ddp, a_communicator_of_the_host_is_refused)
{
    host_only = true;
    run_threads(utest_result, 2, 20, no_backend);
    host_only = false;
}

/* ---- ranks that are processes */
static int process_main(void *arg)
{
    rank_arg a;
    memset(&a, 0, sizeof a);
    a.c = dt_comm_init(.backend = DT_NCCL, .timeout = 20 * dt_test_slow());
    if (!a.c) {
        fprintf(stderr, "%s\n", dt_comm_error(NULL));
        return 3;
    }
    a.rank = dt_comm_rank(a.c);
    a.world = dt_comm_size(a.c);
    a.body = (void (*)(rank_arg *))(uintptr_t)arg;
    rank_thread(&a);
    if (a.failed) fprintf(stderr, "%s\n", a.why);
    return a.failed != 0;
}
UTEST(processes, every_collective) { EXPECT_EQ(0, dt_spawn(3, process_main, (void *)(uintptr_t)everything)); }
static struct box {
    int survivors[8];
} *box;
/* One is killed while the others wait for it: they name it, within a second or so. */
static void killed(rank_arg *a)
{
    dt_tensor *x = dt_ones(DT_SHAPE(1000));
    for (int i = 0; i < 5; i++) MUST(!dt_comm_allreduce(a->c, at(x), 1000, DT_COMM_F32, DT_COMM_SUM));
    MUST(dt_item(dt_amax(x)) == 243);
    if (a->rank == 1) raise(SIGKILL);
    int64_t t0 = dt_test_ns();
    int     rc = 0;
    float   got[1000];
    while (!rc) {
        rc = dt_comm_allreduce(a->c, at(x), 1000, DT_COMM_F32, DT_COMM_SUM);
        dt_copy_out(x, got, sizeof got);
    }
    MUST((double)(dt_test_ns() - t0) < 3e9 * dt_test_slow());
    MUST(dt_comm_failed_rank(a->c) == 1);
    must_fail(a, rc, DT_COMM_ERR_PEER, "rank 1");
    if (!a->failed) box->survivors[a->rank] = 1;
}
UTEST(processes, a_dead_rank_is_named_by_all)
{
    box = (struct box *)mmap(NULL, sizeof *box, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(box != MAP_FAILED);
    EXPECT_NE(0, dt_spawn(3, process_main, (void *)(uintptr_t)killed));
    EXPECT_TRUE(box->survivors[0] && box->survivors[2]);
    munmap(box, sizeof *box);
}

/* ---- two machines (lab.h): NCCL inside each, the network of dt_comm.h across */
enum { WIDE = 100003 };
static int levels_rank(lab *l, int rank)
{
    static const struct { dt_dtype dtype; int op; } cases[] = { { DT_F32, DT_COMM_SUM }, { DT_F32, DT_COMM_MEAN },
                                                                { DT_F32, DT_COMM_MAX }, { DT_F16, DT_COMM_SUM },
                                                                { DT_I64, DT_COMM_SUM } };
    static float got[WIDE];
    rank_arg     box_of, *a = &box_of;
    dt_comm_opts o = lab_opts(l, rank);
    memset(a, 0, sizeof *a);
    o.backend = DT_NCCL;
    a->rank = rank;
    a->world = l->ranks;
    a->c = dt_comm_init_with(o);
    MUST(a->c && dt_cuda(rank));
    dt_set_default_device(dt_cuda(rank));
    for (int64_t k = 0; k < 5 && !a->failed; k++)
        for (int64_t n = 1; n <= WIDE && !a->failed; n = n == 1 ? 7 : n == 7 ? LEN : n == LEN ? WIDE : WIDE + 1) {
            dt_tensor *x = make(a, cases[k].dtype, n, 0);
            MUST(!dt_comm_barrier(a->c));
            int64_t before = cable_sent();
            MUST(!dt_comm_barrier(a->c));
            MUST(!dt_comm_allreduce(a->c, at(x), n, (int)cases[k].dtype, cases[k].op));
            MUST(!dt_copy_out(dt_cast(x, DT_F32), got, (size_t)n * 4));
            for (int64_t i = 0; i < n; i++) MUST(got[i] == (float)reduced(a->world, i, cases[k].op));
            MUST(!dt_comm_barrier(a->c));
            if (rank == 0 && n == WIDE && k == 0) l->sent = cable_sent() - before;
            dt_end();
        }
    if (a->c) MUST(!dt_comm_free(a->c));
    if (a->failed) printf("    %s\n", a->why);
    return a->failed != 0;
}
static void two_machines(int *utest_result, int ranks, const char *algo, double least, double most)
{
    lab l = lab_of(levels_rank, ranks);
    l.algo = algo;
    int rc = lab_run(&l);
    if (rc == NOT_HERE) UTEST_SKIP("network namespaces with veth are not permitted, or ip is missing");
    EXPECT_EQ(0, rc);
    printf("    %d ranks, %s: %.3f of the vector crosses\n", ranks, algo ? algo : "NCCL alone", (double)l.sent / (WIDE * 4.0));
    EXPECT_GE((double)l.sent, least * WIDE * 4);
    EXPECT_LE((double)l.sent, most * WIDE * 4);
}
UTEST(levels, of_two_machines_with_two_each) { two_machines(utest_result, 4, "two_level", 1, 1.2); }
UTEST(levels, of_machines_with_one_and_two) { two_machines(utest_result, 3, "two_level", 1, 1.2); }
UTEST(levels, only_if_asked_for) { two_machines(utest_result, 4, NULL, 0, 0.2); }
