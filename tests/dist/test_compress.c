/* test_compress.c: .compress of dt_ddp_new: all ranks keep the same bits; what is sent and what is kept; steps that do not count;
   checkpoints; what auto decides; options
   Contents: >>tools >>same >>kept >>random >>powersgd >>dgc >>overflow >>failures >>checkpoints >>auto >>options
   run: alone, long, -O1 */
#define DT_DIST_IMPLEMENTATION
#include "dt_dist.h"

#include "dt_test.h"
#include "mlp.h"
#include "temp_files.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

UTEST_MAIN()

/* ==================================================================================================== >>tools */
static dt_compress method(const char *kind)
{
    dt_compress c;
    memset(&c, 0, sizeof c);
    c.kind = kind;
    c.ratio = 0.1;
    c.rank = 2;
    c.start = -1;
    c.min_rate = 1e-9; /* every matrix is compressed */
    c.seed = 5;
    if (!strcmp(kind, "qsgd")) c.bucket = 64;
    return c;
}
static const char *const methods[] = { "f16", "bf16", "topk", "randomk", "dgc", "sign", "onebit", "qsgd", "powersgd" };
enum { METHODS = 9 };

/* Ranks that are threads of this process. */
typedef struct thread_rank {
    crew      k;
    pthread_t id;
} thread_rank;
static void *thread_rank_run(void *arg)
{
    crew *k = &((thread_rank *)arg)->k;
    k->fn(k);
    crew_check(k, dt_error_code() == DT_OK, "an error at the end");
    dt_error_clear();
    dt_comm_free(k->c);
    return NULL;
}
static int thread_ranks(int n, void (*fn)(crew *k), void *arg)
{
    dt_comm     *c[8];
    thread_rank  r[8];
    crew_box    *box = crew_box_new();
    dt_comm_opts o;
    memset((void *)&o, 0, sizeof o);
    o.timeout = 20;
    if (dt_comm_threads_with(n, c, o)) return 1000;
    for (int i = 0; i < n; i++) {
        memset((void *)&r[i], 0, sizeof r[i]);
        r[i].k.c = c[i];
        r[i].k.rank = i;
        r[i].k.world = n;
        r[i].k.how = "threads";
        r[i].k.fn = fn;
        r[i].k.arg = arg;
        r[i].k.box = box;
        pthread_create(&r[i].id, NULL, thread_rank_run, &r[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(r[i].id, NULL);
    int failed = box->failed;
    munmap(box, sizeof *box);
    return failed;
}
static int run(const char *how, int n, void (*fn)(crew *k), void *arg)
{
    return strcmp(how, "threads") ? crew_run(how, n, fn, arg) : thread_ranks(n, fn, arg);
}
static float uniform(uint64_t seed, uint64_t i) /* -1 to 1 */
{
    uint32_t r[4];
    dt_philox(seed, i, r);
    return (float)r[0] / 2147483648.0f - 1;
}

/* A model whose gradients the test chooses: the loss is the sum of parameter * wish. */
enum { ROWS = 12, COLUMNS = 10, THIRD = 5, VECTOR = 7, WISHES = ROWS * COLUMNS + THIRD * 6 + VECTOR };
static const int wish_at[3] = { 0, ROWS *COLUMNS, ROWS *COLUMNS + THIRD * 6 },
                 wish_n[3] = { ROWS * COLUMNS, THIRD * 6, VECTOR };
typedef struct wished {
    dt_model     *m;
    dt_ddp       *d;
    dt_optimizer *opt;
    dt_amp       *amp;
    dt_tensor    *p[3];
} wished;
static void wished_new(wished *w, crew *k, dt_compress c, double bucket_mb, const char *level)
{
    memset(w, 0, sizeof *w);
    w->m = dt_model_new(.seed = 3);
    w->opt = dt_sgd(w->m, .lr = 1e-3);
    w->amp = level ? dt_amp_new(w->m, .level = level, .loss_scale = DT_DYNAMIC, .init_scale = 64) : NULL;
    dt_ddp_opts o;
    memset((void *)&o, 0, sizeof o);
    o.bucket_mb = o.first_bucket_mb = bucket_mb;
    o.compress = c;
    w->d = dt_ddp_new_with(w->m, k->c, o);
}
static void wished_free(wished *w)
{
    dt_ddp_free(w->d);
    dt_amp_free(w->amp);
    dt_optimizer_free(w->opt);
    dt_model_free(w->m);
}
/* wish: this rank's gradient; got: the mean that all ranks have; one step */
static void wished_step(wished *w, const float *wish, float *got)
{
    dt_tensor *loss = NULL;
    w->p[0] = dt_parameter(w->m, "matrix", DT_SHAPE(ROWS, COLUMNS), .init = DT_INIT_CONST, .a = 0);
    w->p[1] = dt_parameter(w->m, "kernel", DT_SHAPE(THIRD, 3, 2), .init = DT_INIT_CONST, .a = 0);
    w->p[2] = dt_parameter(w->m, "vector", DT_SHAPE(VECTOR), .init = DT_INIT_CONST, .a = 0);
    for (int i = 0; i < 3; i++) {
        dt_tensor *g = dt_from(wish + wish_at[i], dt_shape_of(w->p[i])), *part = dt_sum(dt_mul(w->p[i], g));
        loss = loss ? dt_add(loss, part) : part;
    }
    if (w->amp) dt_amp_backward(w->amp, loss);
    else dt_backward(loss);
    for (int i = 0; i < 3 && got && dt_error_code() == DT_OK; i++)
        dt_copy_out(dt_grad(w->p[i]), got + wish_at[i], (size_t)wish_n[i] * 4);
    if (dt_error_code() == DT_OK) dt_step(w->opt);
    else dt_end();
}
/* An array of a bucket's state, in the order of wishes, without the loss scale. which: 0 rest, 1 velocity; of the current ones */
static void kept(const wished *w, int which, float *out)
{
    memset(out, 0, WISHES * sizeof *out);
    for (int i = 0; i < w->d->nbuckets; i++) {
        const dt_ddp_bucket *b = &w->d->bucket[i].pub;
        const dt__squeezed  *s = (const dt__squeezed *)b->state;
        const float *x = s ? (which ? s->velocity : s->rest)[s->now] : NULL, unscale = s ? (float)(1 / s->scale) : 1;
        for (int j = 0; j < b->parts && x; j++)
            for (int p = 0; p < 3; p++)
                if (!strcmp(b->part[j].name, p == 0 ? "matrix" : p == 1 ? "kernel" : "vector"))
                    for (int e = 0; e < wish_n[p]; e++) out[wish_at[p] + e] = unscale * x[b->part[j].offset + e];
    }
}
static void wishes(float *out, int rank, int step)
{
    for (int i = 0; i < WISHES; i++) out[i] = uniform(9 + (uint64_t)rank, (uint64_t)(step * WISHES + i));
}
static void all_same(crew *k, const float *x, int n, const char *what)
{
    memcpy(k->box->x[k->rank], x, (size_t)n * 4);
    dt_comm_barrier(k->c);
    for (int r = 0; r < k->world; r++) crew_check(k, !memcmp(k->box->x[0], k->box->x[r], (size_t)n * 4), what);
    dt_comm_barrier(k->c);
}
/* sum[i]: over all ranks of x[i] */
static void over_ranks(crew *k, const float *x, double *sum)
{
    memcpy(k->box->x[k->rank], x, WISHES * 4);
    dt_comm_barrier(k->c);
    for (int i = 0; i < WISHES; i++) {
        sum[i] = 0;
        for (int r = 0; r < k->world; r++) sum[i] += (double)k->box->x[r][i];
    }
    dt_comm_barrier(k->c);
}

/* ==================================================================================================== >>same */
static void trains(crew *k)
{
    dt_compress   c = method((const char *)k->arg);
    double        first = 0, last = 0;
    char          text[4096];
    dt_model     *m = dt_model_new(.seed = 3 + (uint64_t)k->rank);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05);
    c.momentum = 0.5;
    dt_ddp *d = dt_ddp_new(m, k->c, .first_bucket_mb = 3e-4, .bucket_mb = 3e-4, .compress = c);
    for (int s = 0; s < 12; s++) {
        int        mine = s == 3 ? 2 + 3 * k->rank : 8;
        bool       skips = s == 5 && k->rank == 0;
        dt_tensor *y, *x = batch(8 * k->rank, mine, &y), *loss = dt_cross_entropy(mlp(m, x), y);
        double     l = dt_ddp_mean(d, dt_item(loss), mine);
        if (s == 0) first = l;
        if (s != 3) last = l;
        if (s == 3) dt_ddp_samples(d, mine);
        dt_ddp_no_sync(d, s == 7);
        if (skips) dt_ddp_skip(d);
        else dt_backward(loss);
        if (s != 7) dt_step(opt);
        if (s == 8) dt_model_freeze(m, "b.bias"); /* new buckets */
        if (s != 7) same_bits(k, m);
    }
    dt_ddp_compress_report(d, text, sizeof text);
    crew_check(k, strstr(text, "bucket 0, ") && strstr(text, c.kind) && strstr(text, "ratio") && strstr(text, "error"),
               "report");
    crew_check(k, last < first && isfinite(last), "it learns");
    if (getenv("DT_TEST_VERBOSE") && k->rank == 0) printf("    loss %.3f to %.3f\n%s", first, last, text);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(same, bits_on_all_ranks_after_every_step)
{
    static const char *const how[] = { "threads", "shm", "tcp" };
    for (int i = 0; i < METHODS; i++)
        for (int t = 0; t < 3; t++)
            for (int n = 2; n <= 4; n++)
                if (!dt_test_quick() || (i + t + n) % 5 == 0)
                    EXPECT_EQ(0, run(how[t], n, trains, (void *)(uintptr_t)methods[i]));
}
static void on_two_devices(crew *k) /* of this rank, in the memory of the host: a layer is on the second one */
{
    mlp_second = dt_device_new(dt_device_backend(dt_cpu()), 1, NULL);
    trains(k);
    dt_end();
    dt_empty_cache();
    crew_check(k, dt_device_free(mlp_second) == DT_OK, "tensors are left on the device");
    mlp_second = NULL;
}
UTEST(same, bits_with_two_devices_on_each_rank)
{
    for (int i = 0; i < METHODS; i += 4) EXPECT_EQ(0, crew_run("shm", 2, on_two_devices, (void *)(uintptr_t)methods[i]));
}
static void mixed(crew *k) /* half gradients and loss scales that change */
{
    dt_compress c = method((const char *)k->arg);
    for (int level = 1; level <= 2; level++) {
        dt_model     *m = dt_model_new(.seed = 3);
        dt_optimizer *opt = dt_sgd(m, .lr = 0.05);
        dt_amp *amp = dt_amp_new(m, .level = level == 1 ? "O1" : "O2", .loss_scale = DT_DYNAMIC, .init_scale = 256,
                                 .growth_interval = 2);
        dt_ddp *d = dt_ddp_new(m, k->c, .first_bucket_mb = 3e-4, .bucket_mb = 3e-4, .compress = c);
        double  first = 0, last = 0;
        for (int s = 0; s < 10; s++) {
            dt_tensor *y, *x = batch(8 * k->rank, 8, &y), *loss = dt_cross_entropy(mlp(m, x), y);
            last = dt_item(loss);
            if (!s) first = last;
            if (s == 5 && k->rank == 1) loss = dt_mul_scalar(loss, INFINITY);
            dt_amp_backward(amp, loss);
            dt_step(opt);
            same_bits(k, m);
        }
        crew_check(k, dt_amp_overflows(amp) == 1, "an overflow");
        crew_check(k, last < first, "it learns");
        dt_ddp_free(d);
        dt_amp_free(amp);
        dt_optimizer_free(opt);
        dt_model_free(m);
    }
}
UTEST(same, bits_with_mixed_precision)
{
    for (int i = 0; i < METHODS; i++) EXPECT_EQ(0, crew_run("shm", 2 + i % 2, mixed, (void *)(uintptr_t)methods[i]));
}

/* ==================================================================================================== >>kept */
static float ulp(float x)
{
    float a = fabsf(x) > 1e-30f ? fabsf(x) : 1e-30f;
    return nextafterf(a, INFINITY) - a;
}
/* What a step sends and keeps is what was there, element by element. */
static void adds_up(crew *k)
{
    const char  *kind = (const char *)k->arg;
    dt_compress  c = method(kind);
    wished       w;
    static float g[WISHES], p[WISHES], before[WISHES], after[WISHES], got[WISHES], sent[WISHES];
    double       all[WISHES];
    bool         exact = !strcmp(kind, "topk") || !strcmp(kind, "randomk"),
         feedback = strcmp(kind, "f16") && strcmp(kind, "bf16") && strcmp(kind, "qsgd");
    wished_new(&w, k, c, 5, NULL);
    memset(before, 0, sizeof before);
    for (int s = 0; s < 6; s++) {
        wishes(g, k->rank, s);
        wished_step(&w, g, got);
        kept(&w, 0, after);
        int zeros = 0, whole = 0;
        for (int i = 0; i < WISHES; i++) {
            p[i] = before[i] + g[i] * (1.0f / (float)k->world);
            sent[i] = p[i] - after[i];
            zeros += after[i] == 0;
            whole += after[i] == p[i];
            if (exact) crew_check(k, after[i] == 0 || after[i] == p[i], "an element is sent or kept");
            if (!strcmp(kind, "f16")) sent[i] = dt__f16_to_f32(dt__f32_to_f16(g[i] * (1.0f / (float)k->world)));
        }
        if (exact)
            crew_check(k, zeros >= (*kind == 't' ? 16 : 8) && zeros <= 18 && zeros + whole == WISHES,
                       "so many are sent");
        if (!feedback) crew_check(k, zeros == WISHES, "nothing is kept");
        if (!strcmp(kind, "sign") || !strcmp(kind, "onebit")) { /* the message of this rank, decoded */
            const dt_ddp_bucket *b = &w.d->bucket[0].pub;
            const dt__squeezed  *q = (const dt__squeezed *)b->state;
            for (int j = 0; j < b->parts; j++) {
                dt_codec cc = dt__squeeze_codec(w.d->squeeze, b, q->kind, j);
                float    x[WISHES];
                int at = wish_at[!strcmp(b->part[j].name, "matrix") ? 0 : !strcmp(b->part[j].name, "kernel") ? 1 : 2];
                int bad = dt_codec_decode(&cc, q->wire + q->each * b->rank + q->at[j], q->at[j + 1] - q->at[j], x,
                                          b->part[j].numel, false);
                crew_check(k, !bad, "message");
                for (int64_t i = 0; i < b->part[j].numel; i++)
                    crew_check(k, fabsf(x[i] + after[at + i] - p[at + i]) <= ulp(p[at + i]) + ulp(x[i]),
                               "sent and kept is what was there");
            }
        }
        over_ranks(k, sent, all);
        for (int i = 0; i < WISHES && (feedback || !strcmp(kind, "f16")); i++)
            crew_check(k, fabs((double)got[i] - all[i]) <= (strcmp(kind, "f16") ? 1e-6 : 1e-3),
                       "the mean is the sum of what was sent");
        all_same(k, got, WISHES, "other bits");
        memcpy(before, after, sizeof before);
    }
    wished_free(&w);
}
UTEST(kept, and_sent_is_what_was_there)
{
    for (int i = 0; i < METHODS; i++)
        if (strcmp(methods[i], "dgc") && strcmp(methods[i], "powersgd"))
            EXPECT_EQ(0, crew_run(i % 2 ? "shm" : "tcp", 2 + 2 * (i % 2), adds_up, (void *)(uintptr_t)methods[i]));
}
static void halves(crew *k) /* f16 and bf16: rounded, and summed in f32 */
{
    const char  *kind = (const char *)k->arg;
    bool         bf = !strcmp(kind, "bf16");
    wished       w;
    static float g[2][WISHES], got[WISHES];
    wished_new(&w, k, method(kind), 5, NULL);
    for (int s = 0; s < 3; s++) {
        for (int r = 0; r < 2; r++) wishes(g[r], r, s);
        wished_step(&w, g[k->rank], got);
        for (int i = 0; i < WISHES; i++) {
            float x[2];
            for (int r = 0; r < 2; r++) {
                float    half = 0.5f * g[r][i];
                uint32_t u = (uint32_t)dt__f32_to_bf16(half) << 16;
                if (bf) memcpy(&x[r], &u, 4);
                else x[r] = dt__f16_to_f32(dt__f32_to_f16(half));
            }
            float    sum = x[0] + x[1], want = dt__f16_to_f32(dt__f32_to_f16(sum));
            uint32_t u = (uint32_t)dt__f32_to_bf16(sum) << 16;
            if (bf) memcpy(&want, &u, 4);
            crew_check(k, got[i] == want, "another sum");
        }
    }
    dt_ddp_stats t = dt_ddp_get_stats(w.d);
    crew_check(k, t.sent * 2 == t.bytes, "half of the bytes");
    wished_free(&w);
}
UTEST(kept, halves_are_rounded_once_and_summed)
{
    EXPECT_EQ(0, crew_run("shm", 2, halves, (void *)(uintptr_t) "f16"));
    EXPECT_EQ(0, crew_run("tcp", 2, halves, (void *)(uintptr_t) "bf16"));
}

/* ==================================================================================================== >>random */
static void unbiased(crew *k)
{
    enum { TURNS = 600 };
    dt_compress   c = method((const char *)k->arg);
    wished        w;
    static float  g[WISHES], got[WISHES];
    static double mean[WISHES], want[WISHES];
    double        worst = 0;
    c.seed = 3;
    c.levels = 4;
    c.ratio = 0.25;
    c.feedback = -1;
    wished_new(&w, k, c, 5, NULL);
    wishes(g, k->rank, 0);
    memset(mean, 0, sizeof mean);
    for (int s = 0; s < TURNS; s++) {
        wished_step(&w, g, got);
        for (int i = 0; i < WISHES; i++) mean[i] += (double)got[i] / TURNS;
    }
    float  share[WISHES], square[WISHES];
    double norm[WISHES];
    for (int i = 0; i < WISHES; i++) share[i] = g[i] / (float)k->world;
    over_ranks(k, share, want);
    for (int p = 0; p < 3; p++) /* the variance of an element: at most (norm / levels)^2 / 4 of each rank */
        for (int i = 0; i < wish_n[p]; i++) {
            double sum = 0;
            int    from = i / 64 * 64, to = from + 64 < wish_n[p] ? from + 64 : wish_n[p];
            for (int j = from; j < to; j++) sum += (double)share[wish_at[p] + j] * (double)share[wish_at[p] + j];
            square[wish_at[p] + i] =
                (float)(strcmp(c.kind, "qsgd") ? 3 * share[wish_at[p] + i] * share[wish_at[p] + i] : sum / 16 / 4);
        }
    over_ranks(k, square, norm);
    for (int i = 0; i < WISHES; i++) {
        /* random-k sends an element on all ranks or on none: the deviations add up */
        double sigma = sqrt((strcmp(c.kind, "qsgd") ? 3 * want[i] * want[i] : norm[i]) / TURNS),
               off = fabs(mean[i] - want[i]) / (sigma + 1e-9);
        if (off > worst) worst = off;
    }
    crew_check(k, worst < 4 && worst > 0.5, "biased");
    if ((getenv("DT_TEST_VERBOSE") || worst >= 4) && k->rank == 0)
        printf("    %s: at most %.2f sigma\n", c.kind, worst);
    wished_free(&w);
}
UTEST(random, qsgd_and_randomk_without_feedback_are_unbiased)
{
    EXPECT_EQ(0, crew_run("shm", 3, unbiased, (void *)(uintptr_t) "qsgd"));
    EXPECT_EQ(0, crew_run("shm", 2, unbiased, (void *)(uintptr_t) "randomk"));
}

/* ==================================================================================================== >>powersgd */
/* The mean of matrices of rank 1 on n ranks has rank n: rank n reproduces it. */
static void low_rank(crew *k)
{
    dt_compress  c = method("powersgd");
    wished       w;
    static float g[WISHES], got[WISHES], rest[WISHES];
    double       want[WISHES], left[WISHES], worst = 0;
    int          more = *(int *)k->arg;
    c.rank = k->world + more;
    wished_new(&w, k, c, 5, NULL);
    for (int s = 0; s < 5; s++) {
        wishes(g, k->rank, s);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            g[i] = uniform(77, (uint64_t)(1000 * k->rank + i / COLUMNS)) *
                   uniform(78, (uint64_t)(1000 * k->rank + i % COLUMNS));
        for (int i = 0; i < THIRD * 6; i++)
            g[wish_at[1] + i] =
                k->rank ? 0 : uniform(79, (uint64_t)(s * 100 + i / 6)) * uniform(80, (uint64_t)(s * 100 + i % 6));
        wished_step(&w, g, got);
        for (int i = 0; i < WISHES; i++) g[i] /= (float)k->world;
        over_ranks(k, g, want);
        kept(&w, 0, rest);
        over_ranks(k, rest, left);
        for (int i = 0; i < WISHES; i++) {
            crew_check(k, fabs((double)got[i] - want[i]) < 5e-6, "not the mean");
            crew_check(k, fabs(left[i]) < 5e-6 && (i >= wish_at[1] || fabsf(rest[i]) < 5e-6f), "something was kept");
            worst = fmax(worst, fmax(fabs(left[i]), fabs((double)got[i] - want[i])));
        }
        all_same(k, got, WISHES, "other bits");
    }
    if (getenv("DT_TEST_VERBOSE") && k->rank == 0) printf("    at most %.2g\n", worst);
    wished_free(&w);
}
UTEST(powersgd, of_the_true_rank_is_exact)
{
    for (int more = 0; more < 3; more++) {
        EXPECT_EQ(0, crew_run("shm", 2, low_rank, &more));
        EXPECT_EQ(0, crew_run("tcp", 3, low_rank, &more));
    }
}
/* What all ranks keep and what came is what there was; with a warm start the same matrix comes nearer in each step. */
static void power(crew *k)
{
    dt_compress  c = method("powersgd");
    wished       w;
    static float g[WISHES], got[WISHES], before[WISHES], after[WISHES], p[WISHES];
    double       want[WISHES], left[WISHES], off[6];
    c.start = 2;
    c.rank = 1;
    wished_new(&w, k, c, 5, NULL);
    memset(before, 0, sizeof before);
    wishes(g, k->rank, 0);
    for (int s = 0; s < 6; s++) {
        wished_step(&w, g, got);
        kept(&w, 0, after);
        for (int i = 0; i < WISHES; i++) p[i] = g[i] / (float)k->world + before[i];
        over_ranks(k, p, want);
        over_ranks(k, after, left);
        off[s] = 0;
        for (int i = 0; i < WISHES; i++) {
            crew_check(k, fabs(want[i] - left[i] - (double)got[i]) < 1e-5, "lost");
            if (i < wish_at[1]) off[s] += left[i] * left[i];
            if (i >= wish_at[2]) crew_check(k, left[i] == 0, "vectors go whole");
        }
        crew_check(k, s < 2 ? off[s] == 0 : off[s] > 0, "from step 2 on");
        all_same(k, got, WISHES, "other bits");
        memcpy(before, after, sizeof before);
    }
    crew_check(k, w.d->way.stages == 2, "stages");
    wished_free(&w);
}
UTEST(powersgd, keeps_what_it_does_not_send) { EXPECT_EQ(0, crew_run("shm", 2, power, NULL)); }
static void rates(crew *k)
{
    dt_compress  c = method("powersgd");
    wished       w;
    static float g[WISHES], got[WISHES];
    c.min_rate = 2; /* (12 + 10) 2 < 120 / 2, but not (5 + 6) 2 < 30 / 2 */
    wished_new(&w, k, c, 5, NULL);
    wishes(g, k->rank, 0);
    wished_step(&w, g, got);
    const dt_ddp_bucket *b = &w.d->bucket[0].pub;
    const dt__squeezed  *s = (const dt__squeezed *)b->state;
    for (int i = 0; i < b->parts; i++)
        crew_check(k, (s->matrix[i].rows > 0) == !strcmp(b->part[i].name, "matrix"), "which are compressed");
    crew_check(k, s->np == 2 * ROWS + THIRD * 6 + VECTOR && s->nq == 2 * COLUMNS, "lengths");
    crew_check(k, b->sent == 4 * (s->np + s->nq), "bytes");
    wished_free(&w);
}
UTEST(powersgd, leaves_what_is_not_worth_it) { EXPECT_EQ(0, crew_run("shm", 2, rates, NULL)); }
UTEST(powersgd, makes_orthonormal_vectors)
{
    enum { N = 37, R = 6 };
    float    x[R * N];
    uint64_t seed = 3;
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < R * N; i++) x[i] = 1e3f * uniform(4, (uint64_t)i);
        for (int i = 0; i < N; i++) x[3 * N + i] = x[i] + 2 * x[N + i]; /* depends on the others */
        for (int i = 0; i < N; i++) x[4 * N + i] = 0;
        dt__squeeze_orthonormal(x, N, R, kind ? &seed : NULL);
        for (int a = 0; a < R; a++)
            for (int b = 0; b <= a; b++) {
                double want = a == b && (kind || (a != 3 && a != 4));
                EXPECT_NEAR(want, dt__squeeze_inner(x + a * N, x + b * N, N), 1e-6);
            }
    }
}

/* ==================================================================================================== >>dgc */
static void velocities(crew *k)
{
    dt_compress  c = method("dgc");
    wished       w;
    static float g[WISHES], u[WISHES], v[WISHES], u1[WISHES], v1[WISHES], got[WISHES], sent[WISHES];
    double       all[WISHES];
    bool         clips = *(int *)k->arg != 0;
    c.momentum = 0.5;
    c.clip = clips ? 1.5 : 0;
    wished_new(&w, k, c, 5, NULL);
    memset(u, 0, sizeof u);
    memset(v, 0, sizeof v);
    for (int s = 0; s < 6; s++) {
        int masked = 0;
        wishes(g, k->rank, s);
        wished_step(&w, g, got);
        kept(&w, 1, u1);
        kept(&w, 0, v1);
        for (int p = 0; p < 3; p++) {
            double norm = 0, scale = 1;
            for (int i = wish_at[p]; i < wish_at[p] + wish_n[p]; i++) norm += (double)g[i] * (double)g[i];
            if (clips && sqrt(norm) > 1.5 / sqrt(k->world)) scale = 1.5 / sqrt(k->world) / sqrt(norm);
            for (int i = wish_at[p]; i < wish_at[p] + wish_n[p]; i++) {
                float un = (float)(0.5 * (double)u[i] + scale * (double)(g[i] * (1.0f / (float)k->world)));
                float vn = p == 2 ? un : v[i] + un;
                bool  gone = v1[i] == 0;
                masked += gone;
                crew_check(k, fabsf(v1[i] - (gone ? 0 : vn)) <= 4 * ulp(vn), "what is kept");
                crew_check(k, fabsf(u1[i] - (gone && p < 2 ? 0 : un)) <= 4 * ulp(un), "velocity");
                crew_check(k, p < 2 || gone, "vectors go whole");
                sent[i] = vn - v1[i];
            }
        }
        crew_check(k, masked == 12 + 3 + VECTOR, "so many are sent");
        over_ranks(k, sent, all);
        for (int i = 0; i < WISHES; i++)
            crew_check(k, fabs((double)got[i] - all[i]) < 1e-6, "the sum of what was sent");
        all_same(k, got, WISHES, "other bits");
        memcpy(u, u1, sizeof u);
        memcpy(v, v1, sizeof v);
    }
    wished_free(&w);
}
UTEST(dgc, accumulates_masks_and_clips)
{
    for (int clips = 0; clips < 2; clips++) EXPECT_EQ(0, crew_run("shm", 2, velocities, &clips));
}
UTEST(dgc, warms_up)
{
    dt__squeeze         z;
    dt_ddp_bucket       b;
    dt_ddp_part         part;
    static const double want[] = {
        0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.00390625, 0.00390625, 0.001, 0.001
    };
    memset((void *)&z, 0, sizeof z);
    memset(&b, 0, sizeof b);
    memset(&part, 0, sizeof part);
    part.shape.ndim = 2;
    b.part = &part;
    b.parts = 1;
    z.o.kind = "dgc";
    z.o.warmup = 8;
    EXPECT_EQ(0, dt__squeeze_options("test", &z));
    for (b.step = 0; b.step < 10; b.step++) EXPECT_EQ(want[b.step], dt__squeeze_codec(&z, &b, DT__SQ_DGC, 0).ratio);
    part.shape.ndim = 1;
    EXPECT_EQ(1.0, dt__squeeze_codec(&z, &b, DT__SQ_DGC, 0).ratio);
}

/* ==================================================================================================== >>overflow */
typedef struct overflow {
    const char *kind, *level;
} overflow;
/* A step that is not finite on one rank leaves the state of all ranks as it was, bit for bit. */
static void as_before(crew *k)
{
    const overflow *o = (const overflow *)k->arg;
    wished          w;
    static float    g[WISHES], rest[2][WISHES], speed[2][WISHES];
    wished_new(&w, k, method(o->kind), 5, o->level);
    for (int s = 0; s < 6; s++) {
        bool bad = s == 3 || s == 4;
        wishes(g, k->rank, s);
        if (bad && k->rank == 1) g[17] = s == 3 ? INFINITY : NAN;
        if (bad) kept(&w, 0, rest[0]), kept(&w, 1, speed[0]);
        wished_step(&w, g, NULL);
        if (!bad) continue;
        if (!o->level) {
            crew_check(k, dt_error_code() == DT_ERR_NUMERIC && strstr(dt_error(), "'matrix'"), "an error");
            dt_error_clear();
        }
        kept(&w, 0, rest[1]);
        kept(&w, 1, speed[1]);
        crew_check(k, !memcmp(rest[0], rest[1], sizeof rest[0]) && !memcmp(speed[0], speed[1], sizeof speed[0]),
                   "state has changed");
    }
    kept(&w, 0, rest[1]);
    for (int i = 0; i < WISHES; i++) crew_check(k, isfinite(rest[1][i]), "not finite");
    if (o->level) crew_check(k, dt_amp_overflows(w.amp) == 2, "overflows");
    wished_free(&w);
}
UTEST(overflow, leaves_the_state_as_it_was)
{
    static const char *const level[] = { NULL, "O0", "O2" };
    for (int i = 0; i < METHODS; i++)
        for (int l = 0; l < 3; l++) {
            overflow o;
            o.kind = methods[i];
            o.level = level[l];
            if (!dt_test_quick() || (i + l) % 3 == 0) EXPECT_EQ(0, crew_run("shm", 2, as_before, &o));
        }
}
/* f16 cannot hold 65520: finite on this rank, but it cannot be sent. */
static void too_large(crew *k)
{
    wished       w;
    static float g[WISHES], got[WISHES];
    wished_new(&w, k, method((const char *)k->arg), 5, NULL);
    wishes(g, k->rank, 0);
    if (k->rank == 1) g[20] = 3e5f;
    wished_step(&w, g, got);
    bool f16 = !strcmp((const char *)k->arg, "f16");
    crew_check(k, dt_error_code() == (f16 ? DT_ERR_NUMERIC : DT_OK), "f16 cannot send it");
    if (f16) crew_check(k, strstr(dt_error(), "cannot send bucket 0") && strstr(dt_error(), "of rank 1"), "message");
    dt_error_clear();
    g[20] = 1;
    wished_step(&w, g, got);
    crew_check(k, dt_error_code() == DT_OK && isfinite(got[20]), "it goes on");
    wished_free(&w);
}
UTEST(overflow, of_f16_ends_the_step)
{
    EXPECT_EQ(0, crew_run("shm", 2, too_large, (void *)(uintptr_t) "f16"));
    EXPECT_EQ(0, crew_run("shm", 2, too_large, (void *)(uintptr_t) "bf16"));
}

/* ==================================================================================================== >>failures */
static void dies(crew *k)
{
    static float g[WISHES];
    wished       w;
    wished_new(&w, k, method("powersgd"), 1e-4, NULL);
    for (int s = 0; s < 1000 && dt_error_code() == DT_OK; s++) {
        if (s == 7 && k->rank == 1) raise(SIGKILL);
        wishes(g, k->rank, s);
        wished_step(&w, g, NULL);
    }
    crew_check(k, dt_error_code() == DT_ERR_COMM && strstr(dt_error(), "rank 1"), "the dead rank is named");
    k->box->number[k->rank] = 1;
    dt_end();
    dt_ddp_free(w.d);
    w.d = NULL;
    dt_error_clear();
    wished_free(&w);
}
UTEST(failures, a_rank_that_dies_between_two_collectives_is_named)
{
    for (int i = 0; i < 2; i++) {
        crew_box *box = crew_box_new();
        EXPECT_EQ(100, crew_run_in(box, i ? "tcp" : "shm", 3, dies, NULL));
        EXPECT_TRUE(box->number[0] && box->number[2]);
        munmap(box, sizeof *box);
    }
}
/* One allocation of rank 1 fails: an error on both ranks, or all is well, and nothing stays behind. */
typedef struct shortage {
    const char *kind;
    int         left, failed;
} shortage;
static void runs_short(crew *k)
{
    static float    g[WISHES];
    const shortage *t = (const shortage *)k->arg;
    dt_test_budget  b;
    wished          w;
    crew_check(k, dt_test_budget_set(&b, -1) == DT_OK, "budget");
    wished_new(&w, k, method(t->kind), 5, NULL);
    wishes(g, k->rank, 0);
    dt_parameter(w.m, "matrix", DT_SHAPE(ROWS, COLUMNS), .init = DT_INIT_CONST, .a = 0);
    dt_end();
    if (k->rank == 1) __atomic_store_n(&b.left, t->left, __ATOMIC_RELAXED);
    for (int s = 0; s < 2 && dt_error_code() == DT_OK; s++) wished_step(&w, g, NULL);
    int code = dt_error_code();
    crew_check(k, code == DT_OK || code == (k->rank == 1 ? DT_ERR_MEMORY : DT_ERR_COMM), "another error");
    k->box->number[k->rank] = code != DT_OK;
    dt_end();
    __atomic_store_n(&b.left, -1, __ATOMIC_RELAXED);
    dt_ddp_free(w.d); /* the last step's error may come here */
    w.d = NULL;
    k->box->number[k->rank + 8] = dt_error_code() != DT_OK;
    dt_error_clear();
    wished_free(&w);
    dt_empty_cache();
    crew_check(k, dt_set_allocator(NULL) == DT_OK && b.live == 0, "something stays behind");
}
UTEST(failures, without_memory_are_told_to_all)
{
    static const char *const kinds[] = { "powersgd", "dgc", "bf16" };
    for (int i = 0; i < 3; i++) {
        int failed = 0;
        for (int n = 0; n < 60; n += dt_test_quick() ? 7 : 1) {
            shortage  t = { kinds[i], n, 0 };
            crew_box *box = crew_box_new();
            EXPECT_EQ(0, crew_run_in(box, "shm", 2, runs_short, &t));
            EXPECT_EQ(box->number[8], box->number[9]);
            failed += box->number[1];
            munmap(box, sizeof *box);
        }
        EXPECT_GT(failed, dt_test_quick() ? 1 : 20);
    }
}

/* ==================================================================================================== >>checkpoints */
typedef struct stay {
    const char *kind, *dir;
    int         steps, save_at, resumed;
    double      bucket_mb;
} stay;
static void stays(crew *k)
{
    const stay   *t = (const stay *)k->arg;
    dt_compress   c = method(t->kind);
    dt_model     *m = dt_model_new(.seed = 3 + (uint64_t)k->rank);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.05);
    c.start = 2;
    c.feedback = !strcmp(t->kind, "f16");
    dt_ddp        *d = dt_ddp_new(m, k->c, .first_bucket_mb = t->bucket_mb, .bucket_mb = t->bucket_mb, .compress = c);
    dt_checkpoint *p = t->dir ? dt_checkpoint_new(t->dir, .model = m, .optimizer = opt) : NULL;
    int64_t        epoch = 0, step = 0;
    if (p) crew_check(k, dt_checkpoint_resume(p, &epoch, &step) == (t->resumed > 0) && step == t->resumed, "resume");
    for (; step < t->steps && dt_error_code() == DT_OK; step++) {
        dt_tensor *y, *x = batch((int)step * 64 + 8 * k->rank, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
        if (p && step + 1 == t->save_at) dt_checkpoint_save(p, 0, step + 1);
    }
    same_bits(k, m);
    if (t->resumed) { /* back once more, with a sealed model and states in use */
        static float once[8192], again[8192];
        int          n = weights(m, once);
        crew_check(k, dt_checkpoint_resume(p, &epoch, &step) == 1 && step == t->resumed, "resume again");
        for (; step < t->steps && dt_error_code() == DT_OK; step++) {
            dt_tensor *y, *x = batch((int)step * 64 + 8 * k->rank, 8, &y);
            dt_backward(dt_cross_entropy(mlp(m, x), y));
            dt_step(opt);
        }
        crew_check(k, weights(m, again) == n && !memcmp(once, again, (size_t)n * sizeof *once), "other bits");
    }
    dt_checkpoint_free(p);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(checkpoints, have_the_state)
{
    for (int i = 0; i < METHODS; i++) {
        stay      t;
        crew_box *calm = crew_box_new(), *box = crew_box_new();
        memset(&t, 0, sizeof t);
        t.kind = methods[i];
        t.steps = 8;
        t.bucket_mb = 3e-4;
        EXPECT_EQ(0, crew_run_in(calm, "shm", 2, stays, &t));
        t.dir = temp_dir();
        t.steps = t.save_at = 5;
        EXPECT_EQ(0, crew_run_in(box, "shm", 2, stays, &t));
        t.resumed = 5;
        t.steps = 8;
        t.save_at = 0;
        EXPECT_EQ(0, crew_run_in(box, "shm", 2, stays, &t));
        EXPECT_TRUE(!memcmp(calm->x[0], box->x[0], sizeof box->x[0]));
        EXPECT_EQ(0, crew_run_in(box, "shm", 3, stays, &t)); /* another world goes on */
        temp_remove((char *)(uintptr_t)t.dir);
        munmap(calm, sizeof *calm);
        munmap(box, sizeof *box);
    }
}

/* ==================================================================================================== >>auto */
static void decides(crew *k)
{
    static float g[WISHES];
    dt_compress  c;
    wished       w;
    char         text[2048];
    bool         any = false;
    memset(&c, 0, sizeof c);
    c.kind = "auto";
    c.every = 4;
    wished_new(&w, k, c, 1e-4, NULL);
    dt__squeeze *z = w.d->squeeze;
    for (int s = 0; s < DT__SQ_WARM + 2 * DT__SQ_TURNS; s++) { /* WARM, BUCKETS */
        wishes(g, k->rank, s);
        crew_check(k, z->phase == (s < DT__SQ_WARM ? DT__AUTO_WARM : DT__AUTO_BUCKETS), "phase");
        wished_step(&w, g, NULL);
    }
    crew_check(k, w.d->nbuckets == 3 && z->ncandidates == 2, "buckets");
    z->turns = DT__SQ_TURNS;
    for (int i = 0; i < 3;
         i++) { /* bucket 0 gains 10 %, bucket 1 4 %, bucket 2 loses; one rank is slow, one sample is wild */
        dt__squeezed *s = (dt__squeezed *)w.d->bucket[i].pub.state;
        for (int t = 0; t < DT__SQ_TURNS; t++) {
            s->cost[0][t] = k->rank ? 1e-3 : 1e-4;
            s->cost[1][t] = (i == 0 ? 0.9e-3 : i == 1 ? 0.96e-3 : 1.5e-3) * (k->rank ? 1 : 1.0 / 16);
        }
        s->cost[1][3] = 5;
        s->cost[0][1] = 0;
    }
    crew_check(k, !dt__auto_buckets(z, &any) && any, "some gain");
    for (int i = 0; i < 3; i++)
        crew_check(k, ((dt__squeezed *)w.d->bucket[i].pub.state)->chosen == (i == 0 ? DT__SQ_BF16 : DT__SQ_NONE),
                   "which buckets");
    for (int won = 0; won < 2; won++) {
        for (int t = 0; t < DT__SQ_TURNS; t++) {
            z->period[0][t] = k->rank ? 1e-2 : 1e-3;
            z->period[1][t] = k->rank ? (won ? 0.97e-2 : 0.98e-2) : 1e-4;
        }
        crew_check(k, !dt__auto_steps(z) && z->won == won, "whole steps");
    }
    dt__auto_phase(z, DT__AUTO_HOLD);
    dt_ddp_compress_report(w.d, text, sizeof text);
    crew_check(k,
               strstr(text, "measured: none 1.000 ms, bf16 0.900 ms") && strstr(text, "none is 5 % faster") &&
                   strstr(text, "10.000 ms without compression, 9.700 ms with it: it is on"),
               text);
    int64_t before = dt_ddp_get_stats(w.d).sent;
    for (int s = 0; s < 4; s++) { /* HOLD */
        wishes(g, k->rank, s);
        wished_step(&w, g, NULL);
    }
    int64_t sent = dt_ddp_get_stats(w.d).sent - before, whole = 0;
    for (int i = 0; i < 3; i++) whole += w.d->bucket[i].length * (i ? 4 : 2);
    crew_check(k, sent == 4 * whole, "one bucket is compressed");
    crew_check(k, z->phase == DT__AUTO_BUCKETS && z->turns == DT__SQ_AGAIN, "it measures again, with fewer turns");
    for (int s = 0; s < 40; s++) { /* as measured: all ranks do the same, whatever that is */
        wishes(g, k->rank, s);
        wished_step(&w, g, k->box->x[k->rank]);
        dt_comm_barrier(k->c);
        crew_check(k, !memcmp(k->box->x[0], k->box->x[k->rank], WISHES * 4), "other bits");
        dt_comm_barrier(k->c);
    }
    wished_free(&w);
}
UTEST(automatic, decides_alike_on_all_ranks)
{
    EXPECT_EQ(0, crew_run("shm", 2, decides, NULL));
    EXPECT_EQ(0, crew_run("tcp", 3, decides, NULL));
}
/* Methods take turns: what one keeps the next one sends, and Q waits for powersgd's next turn. */
static void turns(crew *k)
{
    static float g[WISHES], got[WISHES], rest[WISHES], share[WISHES];
    double       part[WISHES], was[WISHES] = { 0 }, came[WISHES] = { 0 };
    dt_compress  c = method("auto");
    wished       w;
    float        q[64] = { 0 };
    c.rank = 1;
    wished_new(&w, k, c, 5, NULL);
    for (int s = 0; s < DT__SQ_WARM + 9; s++) { /* none, bf16, powersgd, ... */
        wishes(g, k->rank, s);
        wished_step(&w, g, got);
        const dt__squeezed *b = (const dt__squeezed *)w.d->bucket[0].pub.state;
        for (int i = 0; i < WISHES; i++) share[i] = g[i] / (float)k->world;
        over_ranks(k, share, part);
        for (int i = 0; i < WISHES; i++) was[i] += part[i], came[i] += (double)got[i];
        int turn = (s - DT__SQ_WARM) % 3;
        if (s < DT__SQ_WARM + 2) continue;
        crew_check(k, b->kind == (turn == 0 ? DT__SQ_NONE : turn == 1 ? DT__SQ_BF16 : DT__SQ_POWERSGD), "in turn");
        if (turn == 2) memcpy(q, b->q[b->now], (size_t)b->nq * sizeof *q);
        crew_check(k, b->nq <= 64 && q[0] != 0 && !memcmp(q, b->q[b->now], (size_t)b->nq * sizeof *q), "Q is another one");
    }
    kept(&w, 0, rest);
    over_ranks(k, rest, part);
    for (int i = 0; i < WISHES; i++) crew_check(k, fabs(came[i] + part[i] - was[i]) < 0.015, "something was lost"); /* sums of bf16 are rounded */
    wished_free(&w);
}
UTEST(automatic, methods_take_turns_and_lose_nothing) { EXPECT_EQ(0, crew_run("shm", 2, turns, NULL)); }
static void resumes(crew *k)
{
    static float g[WISHES];
    const char  *dir = (const char *)k->arg;
    dt_compress  c;
    wished       w;
    memset(&c, 0, sizeof c);
    c.kind = "auto";
    c.rank = 1;
    c.every = 50;
    for (int turn = 0; turn < 2; turn++) {
        int64_t epoch = 0, step = 0;
        wished_new(&w, k, c, 1e-4, NULL);
        dt_checkpoint *p = dt_checkpoint_new(dir, .model = w.m, .optimizer = w.opt);
        crew_check(k, dt_checkpoint_resume(p, &epoch, &step) == turn, "resume");
        dt__squeeze *z = w.d->squeeze;
        for (int s = 0; s < (turn ? 1 : 30); s++) {
            wishes(g, k->rank, s);
            wished_step(&w, g, NULL);
        }
        dt__squeezed *s = (dt__squeezed *)w.d->bucket[0].pub.state;
        if (turn)
            crew_check(k, z->phase == DT__AUTO_HOLD && z->at == 12 && z->won && s->chosen == DT__SQ_POWERSGD,
                       "as decided before");
        dt__auto_phase(z, DT__AUTO_HOLD);
        z->at = 11;
        z->won = true;
        s->chosen = DT__SQ_POWERSGD;
        if (!turn) dt_checkpoint_save(p, 0, 1);
        dt_checkpoint_free(p);
        wished_free(&w);
    }
}
UTEST(automatic, goes_on_as_decided_after_a_resume)
{
    char *dir = temp_dir();
    EXPECT_EQ(0, crew_run("shm", 2, resumes, dir));
    temp_remove(dir);
}

/* ==================================================================================================== >>options */
static void refuses(crew *k)
{
    static const struct {
        dt_compress c;
        const char *says;
    } bad[] = {
        { { .kind = "zip" }, "'zip', expected none, f16" }, { { .kind = "topk", .ratio = 2 }, ".ratio" },
        { { .kind = "qsgd", .levels = -1 }, ".levels" },    { { .kind = "powersgd", .rank = 65 }, ".rank" },
        { { .kind = "dgc", .momentum = 1 }, ".momentum" },  { { .kind = "dgc", .clip = -1 }, ".clip" },
        { { .kind = "auto", .margin = 1 }, ".margin" },     { { .kind = "f16", .feedback = 2 }, ".feedback" },
        { { .kind = "powersgd", .start = -2 }, ".start" },  { { .kind = "qsgd", .bucket = -3 }, ".bucket" },
    };
    dt_model *m = dt_model_new(.seed = 3);
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        crew_check(k,
                   !dt_ddp_new(m, k->c, .compress = bad[i].c) && dt_error_code() == DT_ERR_ARG &&
                       strstr(dt_error(), bad[i].says),
                   bad[i].says);
        dt_error_clear();
    }
    crew_check(k, !dt_ddp_new(m, k->c, .compress = { "f16" }, .slots = 2) && strstr(dt_error(), "dt_ddp_new: .slots"), "slots");
    dt_error_clear();
    dt_ddp *d = dt_ddp_new(m, k->c, .compress = { "none" });
    char    text[8] = "x";
    crew_check(k, d && dt_ddp_compress_report(d, text, sizeof text) == 0 && !text[0], "no report");
    dt_ddp_free(d);
    d = dt_ddp_new(m, k->c, .compress = { .kind = "topk", .ratio = k->rank ? 0.5 : 0.25 });
    dt_tensor *y, *x = batch(0, 8, &y);
    dt_backward(dt_cross_entropy(mlp(m, x), y));
    crew_check(k,
               dt_error() && strstr(dt_error(), "'compress topk with feedback, from step 0, ratio 0.25'") &&
                   strstr(dt_error(), "ratio 0.5'"),
               "other options");
    dt_ddp_free(d);
    dt_error_clear();
    dt_model_free(m);
}
UTEST(options, are_checked) { EXPECT_EQ(0, crew_run("shm", 2, refuses, NULL)); }
UTEST(options, do_nothing_alone)
{
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *d = dt_ddp_new(m, NULL, .compress = { "auto" });
    for (int s = 0; s < 3; s++) {
        dt_tensor *y, *x = batch(8 * s, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    EXPECT_EQ(DT_OK, dt_error_code());
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
