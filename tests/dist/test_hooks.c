/* test_hooks.c: a bucket's way is a struct of functions: what they see, several stages, state and its checkpoints, values that are
   not finite, accumulation and skipped batches, hooks that fail or differ between ranks
   run: alone */
#include "dt_test.h"

#include "dt_dist.h"
#include "mlp.h"
#include "temp_files.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

UTEST_MAIN()

enum { STEPS = 6, MOST = 64 };
typedef struct probe { /* a hook's user: what it saw, and what it shall do */
    crew   *k;
    int     starts, finishes, ends, kept, gone; /* calls; ends that count */
    int     fail_at, fail_rank, how;            /* the step; 0: never */
    float  *tmp[MOST];
    int64_t ntmp[MOST];
    dt_ddp *d;
    dt_work *first;                       /* of the last bucket with an even number */
    int64_t count;                        /* of bucket 0 at its last start, and how much it kept */
    double  kept_sum;
    void   *state; /* of bucket 0, when it was saved or loaded */
} probe;

/* ---- hooks */
static int plain_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    p->starts++;
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
    return *work ? 0 : -1;
}
/* The allreduce in two dependent collectives: each rank sums its part, then all gather the parts. */
static int two_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe  *p = (probe *)user;
    int64_t each = (b->n + b->world - 1) / b->world, all = each * b->world;
    int     i = b->index;
    p->starts++;
    if (p->ntmp[i] != 2 * all) {
        free(p->tmp[i]);
        p->tmp[i] = (float *)malloc((size_t)(2 * all) * sizeof(float));
        p->ntmp[i] = 2 * all;
    }
    memset(p->tmp[i], 0, (size_t)(2 * all) * sizeof(float));
    memcpy(p->tmp[i], b->data, (size_t)b->n * sizeof(float));
    *work = dt_comm_reduce_scatter_start(b->comm, p->tmp[i], p->tmp[i] + all + each * b->rank, each, NULL, b->dtype,
                                         DT_COMM_SUM);
    return *work ? 0 : -1;
}
static int two_finish(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe  *p = (probe *)user;
    int64_t each = (b->n + b->world - 1) / b->world, all = each * b->world;
    float  *x = p->tmp[b->index];
    p->finishes++;
    if (b->stage == 1) {
        *work = dt_comm_allgather_start(b->comm, NULL, x + all, each, NULL, b->dtype);
        return *work ? 0 : -1;
    }
    memcpy(b->data, x + all, (size_t)b->n * sizeof(float));
    return 0;
}
/* Odd buckets have no first collective. They must not overtake even ones, whose first collective may be done on some ranks only: on
   rank 1 it is done before the odd bucket starts. */
static int odd_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    if (b->index % 2) {
        p->starts++;
        while (b->rank == 1 && !dt_work_test(p->first)) {}
        return 0;
    }
    int rc = two_start(b, work, user);
    p->first = *work;
    return rc;
}
static int odd_finish(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    if (b->index % 2 == 0) {
        p->first = NULL; /* waited for */
        return two_finish(b, work, user);
    }
    p->finishes++;
    if (b->stage > 1) return 0;
    *work = dt_comm_allreduce_start(b->comm, b->data, b->n, b->dtype, DT_COMM_SUM);
    return *work ? 0 : -1;
}
static void probe_free(probe *p)
{
    for (int i = 0; i < MOST; i++) free(p->tmp[i]);
}
static void none(dt_ddp_bucket *b, dt_work **work) /* a way that loses all */
{
    (void)work;
    memset(b->data, 0, (size_t)b->n * sizeof(float));
}

/* ---------------------------------------------------------------------------------------------------- the same sums */
/* Weights after some steps, in all the situations of a training loop; kind: 0 no hook, 1 an allreduce, 2 two stages, 3 two stages of
   which some buckets have one */
static void loop(crew *k, int kind, float *out, int *n)
{
    probe         p;
    dt_model     *m = dt_model_new(.seed = 3 + (uint64_t)k->rank);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = 2e-4, .bucket_mb = 2e-4);
    memset(&p, 0, sizeof p);
    if (kind == 1) dt_ddp_set_hook(d, .name = "plain", .start = plain_start, .user = &p, .sums = true);
    if (kind == 2) dt_ddp_set_hook(d, .name = "two", .start = two_start, .finish = two_finish, .user = &p, .stages = 2);
    if (kind == 3) dt_ddp_set_hook(d, .name = "odd", .start = odd_start, .finish = odd_finish, .user = &p, .stages = 2);
    for (int s = 0; s < 8; s++) {
        int        mine = s == 3 ? 2 + 3 * k->rank : 8;
        bool       skips = s == 4 && k->rank == 0;
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, mine, &y);
        if (s == 2) { /* two backwards in one step */
            dt_ddp_no_sync(d, true);
            dt_backward(dt_cross_entropy(mlp(m, x), y));
            dt_ddp_no_sync(d, false);
            x = batch(30 * k->rank + 200, 8, &y);
        }
        if (s == 3) dt_ddp_samples(d, mine);
        if (s == 6) dt_model_freeze(m, "b.*"); /* new buckets */
        if (skips) dt_ddp_skip(d);
        else dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    int buckets = dt_ddp_get_stats(d).buckets;
    crew_check(k, buckets >= 2, "several buckets");
    if (kind) crew_check(k, p.starts > 8 && p.starts >= 8 * buckets, "all buckets go the hook's way");
    if (kind > 1) crew_check(k, p.finishes == 2 * p.starts, "finish after each stage");
    same_bits(k, m);
    *n = weights(m, out);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
    probe_free(&p);
}
static void same_sums(crew *k)
{
    static float want[8192], got[8192];
    int          n = 0, again = 0;
    loop(k, 0, want, &n);
    loop(k, 1, got, &again);
    crew_check(k, n > 100 && n == again && !memcmp(want, got, (size_t)n * sizeof *want),
               "a hook with an allreduce: other bits");
    loop(k, 2, got, &again);
    crew_check(k, n == again && far(got, want, n) < 1e-4, "two stages: other weights");
    loop(k, 3, got, &again);
    crew_check(k, n == again && far(got, want, n) < 1e-4, "one or two stages: other weights");
}
UTEST(hooks, give_the_sums_of_the_allreduce)
{
    EXPECT_EQ(0, crew_run("shm", 2, same_sums, NULL));
    EXPECT_EQ(0, crew_run("tcp", 3, same_sums, NULL));
    if (!dt_test_quick()) EXPECT_EQ(0, crew_run("shm", 4, same_sums, NULL));
}
static int crew_no_thread(crew *k) /* a communicator that the waiting calls drive */
{
    k->o.no_thread = true;
    return 0;
}
UTEST(hooks, work_without_a_progress_thread)
{
    crew      k;
    crew_box *box = crew_box_new();
    memset((void *)&k, 0, sizeof k);
    k.how = "tcp";
    k.fn = same_sums;
    k.box = box;
    crew_no_thread(&k);
    EXPECT_EQ(0, dt_spawn(3, crew_rank, &k));
    EXPECT_EQ(0, box->failed);
    munmap(box, sizeof *box);
}

/* ---------------------------------------------------------------------------------------------------- what hooks see */
static int look_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe        *p = (probe *)user;
    crew         *k = p->k;
    const int64_t at = b->n;
    int64_t       n = 0;
    crew_check(k, b->index == p->starts % b->buckets && b->last == (b->index == b->buckets - 1), "index");
    crew_check(k, b->rank == k->rank && b->world == k->world && b->comm && b->step == p->starts / b->buckets,
               "rank, world, step");
    crew_check(k, b->share == 1.0 / k->world && b->loss_scale == 1 && b->stage == 0 && b->dtype == DT_F32, "share");
    crew_check(k, b->grad && dt_numel(b->grad) == b->n && dt_data_ptr(b->grad) == b->data, "grad");
    for (int i = 0; i < b->parts; i++) {
        const dt_ddp_part *t = &b->part[i];
        crew_check(k, strchr("abc", t->name[0]) && t->offset >= n && t->numel > 0 && t->offset + t->numel <= at,
                   "parts");
        for (int64_t j = n; j < t->offset; j++) crew_check(k, ((float *)b->data)[j] == 0, "zeros between parameters");
        n = t->offset + t->numel;
        int64_t numel = 1;
        for (int j = 0; j < t->shape.ndim; j++) numel *= t->shape.dim[j];
        crew_check(k, numel == t->numel, "shape");
    }
    crew_check(k, n == b->n, "the last parameter ends the bucket");
    if (b->index == 0)
        crew_check(k, !strcmp(b->part[b->parts - 1].name, "c.weight") || !strcmp(b->part[0].name, "c.bias"), "names");
    b->sent = 100;
    return plain_start(b, work, user);
}
static void looks(crew *k)
{
    probe         p;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = 2e-4, .bucket_mb = 2e-4);
    memset(&p, 0, sizeof p);
    p.k = k;
    dt_ddp_set_hook(d, .start = look_start, .user = &p);
    for (int s = 0; s < 3; s++) {
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    dt_ddp_stats t = dt_ddp_get_stats(d);
    crew_check(k, t.sent == 300 * t.buckets && t.bytes > t.sent && t.hook > 0, "statistics");
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(hooks, see_the_bucket) { EXPECT_EQ(0, crew_run("shm", 3, looks, NULL)); }

/* ---------------------------------------------------------------------------------------------------- errors */
static int bad_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    bool   now = b->rank == p->fail_rank && b->step == p->fail_at && b->index == 1;
    if (now && p->how == 0) return dt_fail(DT_ERR_ARG, "the teapot is empty");
    if (now && p->how == 1) return -7;
    if (now && p->how == 2) {
        int rc = plain_start(b, work, user);
        b->n--;
        return rc;
    }
    if (now && p->how == 3) { /* another length than the other ranks */
        *work = dt_comm_allreduce_start(b->comm, b->data, b->n - 1, b->dtype, DT_COMM_SUM);
        return *work ? 0 : -1;
    }
    return plain_start(b, work, user);
}
static int bad_finish(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    bool   now = b->rank == p->fail_rank && b->step == p->fail_at && b->index == 1;
    if (now && p->how == 4) return dt_fail(DT_ERR_ARG, "the teapot is empty");
    if (now && p->how == 5) { /* more collectives than it said */
        *work = dt_comm_allreduce_start(dt_ddp_comm(p->d), b->data, 1, b->dtype, DT_COMM_SUM);
    }
    return 0;
}
static void fails(crew *k)
{
    static const char *const says[] = { "the teapot is empty",   "it returned -7",
                                        "it changed the bucket", "started different collectives",
                                        "the teapot is empty",   "it started collective number 2, .stages is 1" };
    probe                    p;
    dt_model                *m = dt_model_new(.seed = 3);
    dt_optimizer            *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp                  *d = dt_ddp_new(m, k->c, .first_bucket_mb = 2e-4, .bucket_mb = 2e-4);
    memset(&p, 0, sizeof p);
    p.how = *(int *)k->arg;
    p.fail_at = 2;
    p.fail_rank = 1;
    p.d = d;
    dt_ddp_set_hook(d, .name = "kitchen", .start = bad_start, .finish = bad_finish, .user = &p);
    int s = 0;
    for (; s < 5 && dt_error_code() == DT_OK; s++) {
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
    }
    const char *e = dt_error() ? dt_error() : "";
    char        bucket[64];
    snprintf(bucket, sizeof bucket, "bucket 1 of %d", dt_ddp_get_stats(d).buckets);
    crew_check(k, (s == 3 || s == 4) && strstr(e, says[p.how]) && strstr(e, "kitchen") && strstr(e, "'b.weight'"),
               "the message");
    crew_check(k, strstr(e, bucket) && strstr(e, "rank 1"), "the message has bucket and rank");
    dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(hooks, that_fail_are_named_on_all_ranks)
{
    for (int how = 0; how < 6; how++) {
        EXPECT_EQ(0, crew_run("shm", 3, fails, &how));
        if (!dt_test_quick()) EXPECT_EQ(0, crew_run("tcp", 2, fails, &how));
    }
}
static void differ(crew *k)
{
    int           how = *(int *)k->arg;
    probe         p;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_ddp       *d = dt_ddp_new(m, k->c);
    memset(&p, 0, sizeof p);
    if (how == 0 && k->rank == 2) dt_ddp_set_hook(d, .name = "rank 4", .start = plain_start, .user = &p);
    if (how == 0 && k->rank != 2) dt_ddp_set_hook(d, .name = "rank 2", .start = plain_start, .user = &p);
    if (how == 1 && k->rank == 2) dt_ddp_set_hook(d, .name = "rank 4", .start = plain_start, .user = &p);
    dt_tensor *y, *x = batch(30 * k->rank, 8, &y);
    dt_backward(dt_cross_entropy(mlp(m, x), y));
    const char *e = dt_error() ? dt_error() : "";
    crew_check(k,
               strstr(e, "different hooks") && strstr(e, "rank 2 has 'rank 4'") &&
                   strstr(e, how ? "rank 0 has no hook" : "rank 0 has 'rank 2'"),
               "names both");
    crew_check(k, p.starts == 0, "no hook was called");
    dt_ddp_free(d);
    dt_error_clear();
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(hooks, that_differ_are_named_on_all_ranks)
{
    for (int how = 0; how < 2; how++) EXPECT_EQ(0, crew_run("shm", 3, differ, &how));
}
static void refused(crew *k)
{
    probe     p;
    dt_model *m = dt_model_new(.seed = 3);
    dt_ddp   *d = dt_ddp_new(m, k->c, .slots = 2);
    memset(&p, 0, sizeof p);
    crew_check(k, dt_ddp_set_hook(d, .start = plain_start, .user = &p) == DT_ERR_STATE && strstr(dt_error(), ".slots"),
               "slots");
    dt_error_clear();
    dt_ddp_free(d);
    d = dt_ddp_new(m, k->c, .no_check = true);
    crew_check(k, dt_ddp_set_hook(d, .start = plain_start) == DT_ERR_STATE && strstr(dt_error(), ".no_check"),
               "no_check");
    dt_error_clear();
    dt_ddp_free(d);
    d = dt_ddp_new(m, k->c);
    crew_check(k, dt_ddp_set_hook(NULL, .start = plain_start) == DT_ERR_ARG, "NULL");
    dt_error_clear();
    crew_check(k, dt_ddp_set_hook(d, .name = "x") == DT_ERR_ARG && strstr(dt_error(), ".start is NULL"), "no start");
    dt_error_clear();
    crew_check(k, dt_ddp_set_hook(d, .start = plain_start, .stages = 9) == DT_ERR_ARG && strstr(dt_error(), "stages"),
               "stages");
    dt_error_clear();
    crew_check(k, dt_ddp_set_hook(d, .name = "one", .start = plain_start, .user = &p) == DT_OK, "set");
    crew_check(k,
               dt_ddp_set_hook(d, .start = plain_start) == DT_ERR_STATE && strstr(dt_error(), "the hook 'one' already"),
               "twice");
    dt_error_clear();
    dt_ddp_free(d);
    d = dt_ddp_new(m, k->c);
    dt_tensor *y, *x = batch(0, 8, &y);
    dt_backward(dt_cross_entropy(mlp(m, x), y));
    crew_check(k, dt_ddp_set_hook(d, .start = plain_start) == DT_ERR_STATE && strstr(dt_error(), "first backward"),
               "late");
    dt_error_clear();
    dt_end();
    dt_ddp_free(d);
    dt_model_free(m);
}
UTEST(hooks, are_set_once_and_before_the_first_backward) { EXPECT_EQ(0, crew_run("shm", 2, refused, NULL)); }

/* ---------------------------------------------------------------------------------------------------- state */
/* A hook with state: what it did not send, and how often it ran. Half of each contribution stays. */
typedef struct half_state {
    float  *rest, *before;
    int64_t n, count, mark;
} half_state;
static half_state *half_get(dt_ddp_bucket *b)
{
    half_state *h = (half_state *)b->state;
    if (h) return h;
    h = (half_state *)calloc(1, sizeof *h);
    h->n = b->n;
    h->rest = (float *)calloc((size_t)b->n, sizeof(float));
    h->before = (float *)calloc((size_t)b->n, sizeof(float));
    b->state = h;
    return h;
}
static int half_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    half_state *h = half_get(b);
    float      *x = (float *)b->data;
    probe      *p = (probe *)user;
    memcpy(h->before, h->rest, (size_t)b->n * sizeof(float));
    if (b->index == 0) p->count = h->count + 1;
    if (b->index == 0) p->kept_sum = 0;
    for (int64_t i = 0; i < b->n && b->index == 0; i++) p->kept_sum += fabs((double)h->rest[i]);
    for (int64_t i = 0; i < b->n; i++) {
        float all = x[i] / (float)b->loss_scale + h->rest[i];
        h->rest[i] = all - 0.5f * all;
        x[i] = 0.5f * all * (float)b->loss_scale;
        if (!(x[i] - x[i] == 0)) p->fail_at = 1; /* hooks never see what is not finite */
    }
    h->count++;
    return plain_start(b, work, user);
}
static void half_end(dt_ddp_bucket *b, bool counts, void *user)
{
    half_state *h = half_get(b);
    probe      *p = (probe *)user;
    p->ends++;
    p->kept += counts;
    if (counts) return;
    memcpy(h->rest, h->before, (size_t)b->n * sizeof(float));
    h->count--;
}
static int half_saved(dt_ddp_bucket *b, dt_ddp_state *s, void *user)
{
    half_state *h = half_get(b);
    if (b->index == 0) ((probe *)user)->state = h;
    int rc = dt_ddp_state_integer(s, "count", &h->count);
    if (!rc) rc = dt_ddp_state_array(s, "rest", -1, h->rest, b->n, DT_DDP_OWN);
    if (!rc) rc = dt_ddp_state_array(s, "same", 0, h->before, 1, DT_DDP_SAME);
    return rc;
}
static void half_gone(dt_ddp_bucket *b, void *user)
{
    half_state *h = (half_state *)b->state;
    ((probe *)user)->gone++;
    if (h) {
        free(h->rest);
        free(h->before);
        free(h);
    }
}
typedef struct half_run {
    char       *dir;
    int         steps, save_at, resumed; /* 0: never; the step that a resume must find */
    int         nan_at;                  /* a step whose loss is not finite on rank 1; 0: none */
    double      bucket_mb;
    int         freeze_at;
    const char *level; /* of mixed precision, or NULL */
    const char *name;
} half_run;
static void half_ranks(crew *k)
{
    const half_run *r = (const half_run *)k->arg;
    probe           p;
    dt_model       *m = dt_model_new(.seed = 3 + (uint64_t)k->rank);
    dt_optimizer   *opt = dt_sgd(m, .lr = 0.1);
    dt_amp        *amp = r->level ? dt_amp_new(m, .level = r->level, .loss_scale = DT_DYNAMIC, .init_scale = 64) : NULL;
    dt_ddp        *d = dt_ddp_new(m, k->c, .first_bucket_mb = r->bucket_mb, .bucket_mb = r->bucket_mb);
    dt_checkpoint *c = r->dir ? dt_checkpoint_new(r->dir, .model = m, .optimizer = opt) : NULL;
    int64_t        epoch = 0, step = 0;
    memset(&p, 0, sizeof p);
    dt_ddp_set_hook(d, .name = r->name ? r->name : "half", .start = half_start, .end = half_end, .saved = half_saved,
                    .gone = half_gone, .user = &p);
    if (c) crew_check(k, dt_checkpoint_resume(c, &epoch, &step) == (r->resumed > 0) && step == r->resumed, "resume");
    for (; step < r->steps && dt_error_code() == DT_OK; step++) {
        bool       bad = r->nan_at && step == r->nan_at;
        dt_tensor *y, *x = batch((int)step * 64 + 8 * k->rank, 8, &y), *loss = dt_cross_entropy(mlp(m, x), y);
        if (bad && k->rank == 1) loss = dt_mul_scalar(loss, INFINITY);
        if (r->freeze_at && step == r->freeze_at) dt_model_freeze(m, "b.bias"); /* new buckets */
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        if (!r->nan_at && !r->name) crew_check(k, p.count == step + 1 && (p.kept_sum > 0) == (step > 0), "the state goes on");
        if (bad && !amp) {
            crew_check(k, dt_error_code() == DT_ERR_NUMERIC, "an error on all ranks");
            dt_error_clear();
            dt_end();
            continue;
        }
        dt_step(opt);
        if (c && r->save_at && step + 1 == r->save_at) dt_checkpoint_save(c, 0, step + 1);
    }
    crew_check(k, !p.fail_at, "a hook has seen a value that is not finite");
    int buckets = dt_ddp_get_stats(d).buckets;
    crew_check(k, p.ends == p.starts && p.kept == p.starts - (r->nan_at ? buckets : 0),
               "end is called once for each start");
    same_bits(k, m);
    dt_checkpoint_free(c);
    dt_ddp_free(d);
    crew_check(k, p.gone >= buckets, "states are freed");
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
static void half_in(int *utest_result, const half_run *r, const char *how, int ranks, crew_box *box)
{
    EXPECT_EQ(0, crew_run_in(box, how, ranks, half_ranks, (void *)(uintptr_t)r));
}
/* As if it had never stopped: also with other buckets, since arrays are saved by parameter. */
UTEST(state, is_in_checkpoints)
{
    half_run  r;
    crew_box *calm = crew_box_new(), *box = crew_box_new();
    memset(&r, 0, sizeof r);
    r.steps = 8;
    r.bucket_mb = 2e-4;
    half_in(utest_result, &r, "shm", 3, calm);
    r.dir = temp_dir();
    r.steps = r.save_at = 5;
    half_in(utest_result, &r, "tcp", 3, box);
    r.resumed = 5;
    r.steps = 8;
    r.save_at = 0;
    half_in(utest_result, &r, "shm", 3, box);
    EXPECT_TRUE(!memcmp(calm->x[0], box->x[0], sizeof box->x[0]));
    r.bucket_mb = 5;
    half_in(utest_result, &r, "shm", 3, box);
    EXPECT_TRUE(!memcmp(calm->x[0], box->x[0], sizeof box->x[0]));
    half_in(utest_result, &r, "shm", 2, box); /* another number of ranks: it goes on */
    r.name = "quarter";                       /* another hook: it begins without state, and says so */
    half_in(utest_result, &r, "shm", 3, box);
    EXPECT_TRUE(memcmp(calm->x[0], box->x[0], sizeof box->x[0]) != 0);
    temp_remove(r.dir);
    munmap(calm, sizeof *calm);
    munmap(box, sizeof *box);
}
/* With another number of ranks the sum of what was not sent stays the same. */
static void shares(crew *k)
{
    int            first = *(int *)k->arg;
    probe          p;
    dt_model      *m = dt_model_new(.seed = 3);
    dt_optimizer  *opt = dt_sgd(m, .lr = 0.0001);
    dt_ddp        *d = dt_ddp_new(m, k->c);
    char          *dir = k->box->text[0];
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m, .optimizer = opt);
    int64_t        epoch = 0, step = 0;
    memset(&p, 0, sizeof p);
    dt_ddp_set_hook(d, .name = "half", .start = half_start, .end = half_end, .saved = half_saved, .gone = half_gone,
                    .user = &p);
    crew_check(k, dt_checkpoint_resume(c, &epoch, &step) == !first, "resume");
    if (first) {
        dt_tensor *y, *x = batch(30 * k->rank, 8, &y);
        dt_backward(dt_cross_entropy(mlp(m, x), y));
        dt_step(opt);
        dt_checkpoint_save(c, 0, 1);
    } else {
        dt_tensor *y, *x = batch(30 * k->rank, 8, &y);
        mlp(m, x);
        dt_model_seal(m); /* the state is loaded */
        (void)y;
    }
    const half_state *h = (const half_state *)p.state;
    crew_check(k, h != NULL && h->count == 1, "state");
    for (int64_t i = 0; h && i < 50; i++) k->box->x[8 * !first + k->rank][i] = h->rest[i];
    dt_end();
    dt_checkpoint_free(c);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(state, of_ranks_is_shared_out_in_another_world)
{
    crew_box *box = crew_box_new();
    char     *dir = temp_dir();
    int       first = 1;
    snprintf(box->text[0], sizeof box->text[0], "%s", dir);
    EXPECT_EQ(0, crew_run_in(box, "shm", 3, shares, &first));
    first = 0;
    EXPECT_EQ(0, crew_run_in(box, "shm", 2, shares, &first));
    double worst = 0;
    for (int i = 0; i < 50; i++) {
        double was = (double)box->x[0][i] + box->x[1][i] + box->x[2][i], is = (double)box->x[8][i] + box->x[9][i];
        worst = fmax(worst, fabs(was - is) / (1e-9 + fabs(was)));
        EXPECT_EQ(box->x[8][i], box->x[9][i]);
    }
    EXPECT_LT(worst, 1e-5);
    temp_remove(dir);
    munmap(box, sizeof *box);
}
UTEST(state, goes_over_to_new_buckets)
{
    half_run  r;
    crew_box *one = crew_box_new(), *many = crew_box_new();
    memset(&r, 0, sizeof r);
    r.steps = 6;
    r.freeze_at = 3;
    r.bucket_mb = 5;
    half_in(utest_result, &r, "shm", 2, one);
    r.bucket_mb = 2e-4;
    half_in(utest_result, &r, "shm", 2, many);
    EXPECT_TRUE(!memcmp(one->x[0], many->x[0], sizeof one->x[0])); /* elementwise: buckets do not matter */
    munmap(one, sizeof *one);
    munmap(many, sizeof *many);
}
/* A step that is not finite leaves no trace: as a training without it. */
static void without_step(crew *k)
{
    static float want[8192];
    half_run     r = *(const half_run *)k->arg;
    crew         again = *k;
    again.arg = &r;
    int at = r.nan_at;
    half_ranks(&again);
    memcpy(want, k->box->x[k->rank], sizeof want);
    /* the same without the step */
    probe         p;
    dt_model     *m = dt_model_new(.seed = 3 + (uint64_t)k->rank);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_amp       *amp = r.level ? dt_amp_new(m, .level = r.level, .loss_scale = DT_DYNAMIC, .init_scale = 64) : NULL;
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = r.bucket_mb, .bucket_mb = r.bucket_mb);
    memset(&p, 0, sizeof p);
    dt_ddp_set_hook(d, .name = "half", .start = half_start, .end = half_end, .gone = half_gone, .user = &p);
    for (int step = 0; step < r.steps; step++) {
        dt_tensor *y, *x = batch(step * 64 + 8 * k->rank, 8, &y),
                      *loss = step == at ? NULL : dt_cross_entropy(mlp(m, x), y);
        if (step == at) continue;
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        dt_step(opt);
    }
    same_bits(k, m);
    crew_check(k, far(want, k->box->x[k->rank], k->box->number[k->rank]) < (amp ? 1e-2 : 1e-7),
               "other weights than without the step");
    dt_ddp_free(d);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(state, is_as_before_after_a_step_that_is_not_finite)
{
    static const char *const level[] = { NULL, "O0", "O1" };
    half_run                 r;
    memset(&r, 0, sizeof r);
    r.steps = 6;
    r.nan_at = 3;
    r.bucket_mb = 2e-4;
    for (int i = 0; i < 3; i++) {
        r.level = level[i];
        EXPECT_EQ(0, crew_run("shm", 2, without_step, &r));
    }
}
/* A hook that cannot send a value says so. */
static int narrow_start(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    if (b->rank == p->fail_rank && b->step == p->fail_at && b->index == 1) {
        b->nonfinite = true;
        none(b, work);
    }
    return plain_start(b, work, user);
}
static int narrow_finish(dt_ddp_bucket *b, dt_work **work, void *user)
{
    probe *p = (probe *)user;
    (void)work;
    if (p->fail_rank < 0 && b->step == p->fail_at && b->index == 1) b->nonfinite = true;
    return 0;
}
static void narrow(crew *k)
{
    static float  before[8192], after[8192];
    probe         p;
    bool          mixed = *(int *)k->arg > 1;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_amp       *amp = mixed ? dt_amp_new(m, .level = "O0", .loss_scale = DT_DYNAMIC, .init_scale = 64) : NULL;
    dt_ddp       *d = dt_ddp_new(m, k->c, .first_bucket_mb = 2e-4, .bucket_mb = 2e-4);
    memset(&p, 0, sizeof p);
    p.fail_at = 2;
    p.fail_rank = *(int *)k->arg % 2 ? 1 : -1;
    dt_ddp_set_hook(d, .name = "narrow", .start = narrow_start, .finish = narrow_finish, .user = &p);
    for (int s = 0; s < 4; s++) {
        int        n = s ? weights(m, before) : 0;
        dt_tensor *y, *x = batch(30 * k->rank + 8 * s, 8, &y), *loss = dt_cross_entropy(mlp(m, x), y);
        if (amp) dt_amp_backward(amp, loss);
        else dt_backward(loss);
        if (s == 2 && !amp) {
            const char *e = dt_error() ? dt_error() : "";
            crew_check(k,
                       dt_error_code() == DT_ERR_NUMERIC && strstr(e, "'narrow' cannot send bucket 1 of") &&
                           strstr(e, p.fail_rank < 0 ? "of all ranks" : "of rank 1"),
                       "message");
            dt_error_clear();
            dt_end();
        } else dt_step(opt);
        if (s == 2)
            crew_check(k, weights(m, after) == n && !memcmp(before, after, (size_t)n * sizeof *after),
                       "weights are unchanged");
    }
    if (amp) crew_check(k, dt_amp_overflows(amp) == 1, "an overflow");
    same_bits(k, m);
    dt_ddp_free(d);
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
}
UTEST(hooks, that_cannot_send_a_value_end_the_step)
{
    for (int kind = 0; kind < 4; kind++) EXPECT_EQ(0, crew_run("shm", 2, narrow, &kind));
}
