/* test_pack.c: parameters in blocks begin at multiples of 64 bytes in every array, gaps are zero and stay so, and
   nothing else differs from blocks without gaps: trainings, files, digests, counts. Sees private functions: links alone.
   Contents: >>blocks >>alignment >>gaps >>bits >>ranks >>files >>counts
   run: asan-later */
#define _GNU_SOURCE
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int pack_bytes = 64; /* 1: without gaps */
#define DT__PACK_BYTES pack_bytes
static void *dirty(size_t nbytes) /* memory that is not zero */
{
    void *p = malloc(nbytes);
    if (p) memset(p, 0xff, nbytes);
    return p;
}
#define DT_MALLOC(nbytes) dirty(nbytes)
#define DT_FREE(ptr) free(ptr)
#define DT_IMPLEMENTATION
#include "dt_dist.h"

#include "dt_test.h"

#include "crew.h"
#include "pack_runs.h"
#include "temp_files.h"

UTEST_MAIN()

enum { STEPS_RUN = 20 };
static const char *const levels[] = { NULL, "O0", "O1", "O2", "O3" };
enum { LEVELS = 5 };

/* the arrays of a block; NULL: absent */
enum { ARRAYS = 4 + DT__MAX_STATES };
static const char *array_of(const dt__mblock *b, int k, dt_tensor **t)
{
    static const char *const name[] = { "value", "gradient", "master", "f32 gradient", "state" };
    dt_tensor *const         at[] = { b->b.value, b->b.grad, b->master, b->mgrad };
    *t = k < 4 ? at[k] : b->state[k - 4];
    return name[k < 4 ? k : 4];
}
static const char *start_of(const dt_tensor *t, int64_t at)
{
    return (const char *)t->st->ptr + (t->offset + at) * (int64_t)dt__dtype_size[t->dtype];
}
/* how many elements of gaps are not zero; how many gaps there are */
static int gaps_of(const dt_model *m, int *ngaps, const char **where)
{
    int bad = 0;
    *ngaps = 0;
    for (int i = 0; i < m->nblocks; i++)
        for (int k = 0; k < ARRAYS; k++) {
            const dt__mblock *b = &m->block[i];
            dt_tensor        *t;
            const char       *name = array_of(b, k, &t);
            for (int j = 0; t && j < b->n; j++) {
                const dt__param *p = m->order[b->first + j];
                int64_t end = j + 1 < b->n ? m->order[b->first + j + 1]->offset : t->numel, at = p->offset + p->t->numel;
                *ngaps += at < end;
                for (; at < end; at++)
                    if (!(dt__element(start_of(t, 0), t->dtype, at) == 0)) bad++, *where = name;
            }
        }
    return bad;
}
/* how many parameters begin at other addresses, or are not where their window is; how many were looked at */
static int crooked_of(const dt_model *m, int *seen, const char **where)
{
    int bad = 0;
    for (int i = 0; i < m->nblocks; i++)
        for (int k = 0; k < ARRAYS; k++) {
            const dt__mblock *b = &m->block[i];
            dt_tensor        *t;
            const char       *name = array_of(b, k, &t);
            for (int j = 0; t && j < b->n; j++) {
                const dt__param *p = m->order[b->first + j];
                const char      *at = start_of(t, p->offset);
                (*seen)++;
                if ((uintptr_t)at % 64 || (k == 0 && at != start_of(p->t, 0)) ||
                    (k == 1 && at != start_of(p->t->grad, 0)))
                    bad++, *where = name;
            }
        }
    return bad;
}

/* ==================================================================================================== >>blocks */
UTEST(blocks, tell_where_parameters_are)
{
    static const dt_dtype kind[] = { DT_F32, DT_F16, DT_BF16 };
    for (int d = 0; d < 3; d++) {
        int64_t    each = 64 / (int64_t)dt__dtype_size[kind[d]];
        dt_tensor *p[4];
        dt_block   b;
        for (int i = 0; i < 4; i++) p[i] = dt_set_requires_grad(dt_full(i + 1, DT_SHAPE(i == 1 ? 2 * each : 10 + i), .dtype = kind[d]));
        ASSERT_EQ(DT_OK, dt_pack(&b, p, 4));
        EXPECT_EQ(4, b.n);
        EXPECT_EQ(0, (int)b.offset[0]);
        EXPECT_EQ((int)each, (int)b.offset[1]); /* behind 10 elements and a gap */
        EXPECT_EQ((int)(3 * each), (int)b.offset[2]); /* no gap behind two lines */
        EXPECT_EQ((int)(4 * each), (int)b.offset[3]);
        EXPECT_EQ((int)(4 * each + 13), (int)dt_numel(b.value)); /* none behind the last */
        EXPECT_EQ((int)(4 * each + 13), (int)dt_numel(b.grad));
        for (int64_t at = 0; at < dt_numel(b.value); at++) {
            double want = 0;
            for (int i = 0; i < 4; i++)
                if (at >= b.offset[i] && at < b.offset[i] + dt_numel(p[i])) want = i + 1;
            EXPECT_EQ(want, dt__element(start_of(b.value, 0), kind[d], at));
            EXPECT_EQ(0.0, dt__element(start_of(b.grad, 0), kind[d], at));
        }
        dt_backward(dt_sum(dt_cast(dt_cat(p, 4, 0), DT_F32)));
        for (int64_t at = 0; at < dt_numel(b.value); at++)
            EXPECT_EQ(dt__element(start_of(b.value, 0), kind[d], at) != 0 ? 1.0 : 0.0,
                      dt__element(start_of(b.grad, 0), kind[d], at));
        for (int i = 0; i < 4; i++) {
            EXPECT_TRUE((uintptr_t)dt_data_ptr(p[i]) % 64 == 0);
            EXPECT_TRUE((uintptr_t)dt_data_ptr(dt_grad(p[i])) % 64 == 0);
            dt_free(p[i]);
        }
        dt_block_free(&b);
        EXPECT_TRUE(b.offset == NULL && b.n == 0);
        dt_end();
    }
}

/* ==================================================================================================== >>alignment */
UTEST(alignment, of_every_array)
{
    static const dt_dtype kind[] = { DT_F32, DT_F16, DT_BF16 };
    for (int l = 0; l < LEVELS; l++)
        for (int d = l ? 1 : 0; d < 3; d++)
            for (int groups = 1; groups <= 2; groups++) {
                run         r = { .how = &ways[6], .level = levels[l], .dtype = kind[d], .many = 2, .groups = groups };
                int         seen = 0;
                const char *where = "";
                run_open(&r, NULL);
                for (int s = 0; s < 2; s++) run_step(&r, s);
                EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
                EXPECT_EQ_MSG(0, crooked_of(r.m, &seen, &where), where);
                EXPECT_GE(seen, 8 * 5); /* value, gradient, three states */
                if (l == 3) EXPECT_GE(seen, 8 * 7); /* master and its gradient */
                run_close(&r);
            }
}

/* ==================================================================================================== >>gaps */
UTEST(gaps, stay_zero_in_every_training)
{
    for (int i = 0; i < WAYS; i++)
        for (int l = 0; l < LEVELS; l++)
            for (int half = 0; half < 2; half++) {
                run r = { .how = &ways[i], .level = levels[l], .dtype = half ? DT_BF16 : l ? DT_F16 : DT_F32,
                          .many = 1 + (i + l) % 2, .groups = 1 + (l + half) % 2 };
                int         ngaps = 0;
                const char *where = "";
                run_open(&r, NULL);
                for (int s = 0; s < STEPS_RUN && !dt_error(); s++) {
                    run_step(&r, s);
                    if (gaps_of(r.m, &ngaps, &where) == 0) continue;
                    printf("    %s, %s, step %d: %s\n", r.how->name, r.level ? r.level : "plain", s, where);
                    EXPECT_TRUE_MSG(false, "a gap is not zero");
                    break;
                }
                EXPECT_GE(ngaps, 6);
                if (ways[i].o.eps == 0) EXPECT_TRUE_MSG(dt_error() == NULL, dt_error()); /* else 0/0 is for a gradient 0 */
                dt_error_clear();
                run_close(&r);
            }
}
UTEST(gaps, of_gradients_stay_zero_when_gradients_are_not_finite)
{
    static const float worst[] = { NAN, INFINITY, -INFINITY };
    for (int i = 0; i < 3; i++) {
        run         r = { .how = &ways[0], .dtype = DT_F32 };
        int         ngaps;
        const char *where = "";
        run_open(&r, NULL);
        dt_backward(dt_mul(run_loss(&r, r.m, data_of(r.net, 0)), dt_full(worst[i], DT_SCALAR)));
        dt_clip_grad_norm(r.opt, 1);
        EXPECT_EQ_MSG(0, gaps_of(r.m, &ngaps, &where), where);
        dt_clip_grad_value(r.opt, 1);
        EXPECT_EQ_MSG(0, gaps_of(r.m, &ngaps, &where), where);
        EXPECT_GE(ngaps, 6);
        dt_error_clear();
        run_close(&r);
    }
}
/* Parameters that come and go, and other blocks for the same ones. */
UTEST(gaps, of_blocks_made_anew)
{
    run         r = { .how = &ways[6], .level = "O2", .dtype = DT_BF16, .many = 2 };
    int         ngaps, seen = 0;
    const char *where = "";
    run_open(&r, NULL);
    for (int s = 0; s < 6; s++) {
        if (s == 2) dt_model_freeze(r.m, "b.*");
        if (s == 3) dt_optimizer_add_group(r.opt, "c.*", .lr = 0.02);
        if (s == 4) dt_model_unfreeze(r.m, "b.*");
        run_step(&r, s);
        EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
        EXPECT_EQ_MSG(0, gaps_of(r.m, &ngaps, &where), where);
        EXPECT_EQ_MSG(0, crooked_of(r.m, &seen, &where), where);
    }
    run_close(&r);
}

/* ==================================================================================================== >>bits */
static uint64_t hash_with(int bytes, run r, int steps)
{
    pack_bytes = bytes;
    uint64_t h = run_hash(r, NULL, steps);
    pack_bytes = 64;
    dt_error_clear();
    return h;
}
UTEST(bits, are_those_of_blocks_without_gaps)
{
    for (int i = 0; i < WAYS; i++)
        for (int l = 0; l < LEVELS; l++)
            for (int half = 0; half < 2; half++) {
                run r = { .how = &ways[i], .level = levels[l], .dtype = half ? DT_BF16 : l ? DT_F16 : DT_F32,
                          .many = 1 + (i + l) % 2, .groups = 1 + (i + half) % 2 };
                EXPECT_EQ_MSG(hash_with(1, r, STEPS_RUN), hash_with(64, r, STEPS_RUN), r.how->name);
            }
}
UTEST(bits, of_nets)
{
    static const int which[] = { 2, 7, 17, 19 }; /* sgd, adam clipped, lars, lamb */
    for (int t = 0; t < 3; t++)
        for (int i = dt_test_quick() ? t : 0; i < 4; i += dt_test_quick() ? 3 : 1)
            for (int half = 0; half < 2; half++) {
                run      r = { .how = &ways[which[i]], .net = &trainers[t], .dtype = half ? DT_BF16 : DT_F32 };
                uint64_t want = hash_with(1, r, STEPS_RUN);
                EXPECT_NE_MSG((uint64_t)0, want, r.net->name);
                EXPECT_EQ_MSG(want, hash_with(64, r, STEPS_RUN), r.net->name);
            }
}

/* ==================================================================================================== >>ranks */
typedef struct team {
    run      r;
    int      slots, bytes;
    uint64_t hash; /* what it should be; 0: unknown */
} team;
static void team_rank(crew *k)
{
    team       *t = (team *)k->arg;
    run         r = t->r;
    int         ngaps = 0, seen = 0, bad = 0, first = 0, own = 1;
    const char *where = "";
    pack_bytes = t->bytes;
    run_open(&r, t->slots ? NULL : k->c);
    if (t->slots) {
        r.d = dt_ddp_new(r.m, k->c, .slots = t->slots);
        dt_ddp_slots(r.d, &first, &own);
    }
    for (int s = 0; s < 6; s++) {
        for (int i = 0; i < own && t->slots; i++) dt_backward(run_loss(&r, r.m, data_of(r.net, s * 4 + first + i)));
        if (t->slots) dt_step(r.opt);
        else run_step(&r, s);
        bad += gaps_of(r.m, &ngaps, &where) + crooked_of(r.m, &seen, &where);
    }
    if (pack_bytes == 64) crew_check(k, !bad && ngaps >= 6 && seen > 0, where);
    uint64_t h = hash_of(r.m);
    if (t->hash) crew_check(k, h == t->hash, "other bits than without gaps");
    if (!k->rank) memcpy(k->box->text[0], &h, sizeof h);
    run_close(&r);
}
UTEST(ranks, two_have_the_bits_of_blocks_without_gaps)
{
    static const int which[] = { 2, 9, 17, 19 };
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < 4; l++) {
            team t;
            memset(&t, 0, sizeof t);
            t.r.how = &ways[which[i]];
            t.r.level = l == 2 ? "O1" : l == 3 ? "O2" : NULL;
            t.r.dtype = l ? DT_BF16 : DT_F32;
            t.r.many = 1 + (i + l) % 2;
            crew_box *box = crew_box_new();
            t.bytes = 1;
            EXPECT_EQ(0, crew_run_in(box, "shm", 2, team_rank, &t));
            t.bytes = 64;
            memcpy(&t.hash, box->text[0], sizeof t.hash);
            EXPECT_NE((uint64_t)0, t.hash);
            EXPECT_EQ(0, crew_run_in(box, "shm", 2, team_rank, &t));
            EXPECT_EQ(0, crew_run_in(box, i ? "shm" : "tcp", 2, team_rank, &t));
            munmap(box, sizeof *box);
        }
}
UTEST(ranks, slots_have_the_bits_of_blocks_without_gaps)
{
    team t;
    memset(&t, 0, sizeof t);
    t.r.how = &ways[2];
    t.r.groups = 2;
    t.slots = 4;
    crew_box *box = crew_box_new();
    t.bytes = 1;
    EXPECT_EQ(0, crew_run_in(box, "shm", 2, team_rank, &t));
    t.bytes = 64;
    memcpy(&t.hash, box->text[0], sizeof t.hash);
    EXPECT_NE((uint64_t)0, t.hash);
    EXPECT_EQ(0, crew_run_in(box, "shm", 2, team_rank, &t));
    EXPECT_EQ(0, crew_run_in(box, "shm", 4, team_rank, &t));
    munmap(box, sizeof *box);
}
static dt_tensor *part_loss(dt_model *m, dt_tensor *x, dt_tensor *y, void *user)
{
    (void)y;
    return run_loss((run *)user, m, x);
}
static void parallel_hash(int *utest_result, int bytes, int devices, uint64_t *hash)
{
    run         r = { .how = &ways[6], .dtype = DT_F32 };
    int         ngaps = 0;
    const char *where = "";
    double      loss;
    pack_bytes = bytes;
    run_open(&r, NULL);
    dt_parallel *p = dt_parallel_new(r.m, .devices = devices);
    for (int s = 0; s < 6; s++) {
        dt_tensor *x = data_of(r.net, s);
        dt_parallel_backward(p, part_loss, &r, x, NULL, &loss);
        EXPECT_EQ_MSG(0, gaps_of(r.m, &ngaps, &where), where);
        dt_step(r.opt);
        EXPECT_EQ_MSG(0, gaps_of(r.m, &ngaps, &where), where);
    }
    *hash = hash_of(r.m);
    EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
    dt_parallel_free(p);
    run_close(&r);
    pack_bytes = 64;
}
UTEST(ranks, replicas_have_the_bits_of_blocks_without_gaps)
{
    for (int devices = 2; devices <= 3; devices++) {
        uint64_t want = 0, got = 0;
        parallel_hash(utest_result, 1, devices, &want);
        parallel_hash(utest_result, 64, devices, &got);
        EXPECT_NE((uint64_t)0, want);
        EXPECT_EQ(want, got);
    }
}
/* What DT_VERIFY writes. */
static char *file_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = (char *)calloc(1, 1 << 20);
    *n = f && p ? fread(p, 1, (1 << 20) - 1, f) : 0;
    if (f) fclose(f);
    return p;
}
UTEST(ranks, digests_are_of_parameters_alone)
{
    char  *dir = temp_dir(), *text[2];
    size_t n[2];
    for (int k = 0; k < 2; k++) {
        run r = { .how = &ways[2], .dtype = DT_BF16 };
        pack_bytes = k ? 64 : 1;
        setenv("DT_VERIFY", temp_in(dir, k ? "b" : "a"), 1);
        run_open(&r, NULL);
        r.d = dt_ddp_new(r.m, NULL);
        for (int s = 0; s < 4; s++) run_step(&r, s);
        EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
        run_close(&r);
        unsetenv("DT_VERIFY");
        text[k] = file_read(temp_in(dir, k ? "b" : "a"), &n[k]);
    }
    pack_bytes = 64;
    EXPECT_GT(n[0], (size_t)4 * 64);
    EXPECT_EQ(n[0], n[1]);
    EXPECT_EQ(0, memcmp(text[0], text[1], n[0]));
    free(text[0]);
    free(text[1]);
    for (int kind = 0; kind < TEMP_TRAPS; kind++) { /* the file is not written through what others left at its name */
        run r = { .how = &ways[2], .dtype = DT_BF16 };
        if (!temp_trap(dir, "trap", kind)) continue;
        setenv("DT_VERIFY", temp_in(dir, "trap"), 1);
        run_open(&r, NULL);
        EXPECT_ERROR(r.d = dt_ddp_new(r.m, NULL), "DT_VERIFY: cannot write");
        run_close(&r);
        unsetenv("DT_VERIFY");
        EXPECT_TRUE(temp_trap_end(dir, "trap"));
    }
    temp_remove(dir);
}

/* ==================================================================================================== >>files */
/* The training of golden/packed.safetensors: exact on every machine, for there is no sum and no root: values, masters
   and momenta of 10, 7, 33 and 3 elements after three steps, a checkpoint as it was written before there were gaps. */
static void exact_step(dt_model *m, dt_optimizer *opt, dt_amp *amp, int s)
{
    static const int64_t n[] = { 10, 7, 33, 3 };
    dt_tensor           *loss = NULL;
    float                g[33];
    char                 name[] = "p0";
    dt_forward_begin(m);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 33; k++) g[k] = (float)((k * 7 + i * 3 + s * 5) % 16 - 8) / 16;
        name[1] = (char)('0' + i);
        dt_tensor *p = dt_parameter(m, name, DT_SHAPE(n[i]));
        dt_tensor *l = dt_sum(dt_mul(dt_cast(p, DT_F32), dt_from(g, DT_SHAPE(n[i]))));
        loss = loss ? dt_add(loss, l) : l;
    }
    dt_amp_backward(amp, loss);
    dt_step(opt);
}
static dt_model *exact_open(dt_optimizer **opt, dt_amp **amp)
{
    dt_model *m = dt_model_new(.seed = 3);
    dt_manual_seed(0);
    *opt = dt_sgd(m, .lr = 0.125, .momentum = 0.5, .weight_decay = 0.25);
    *amp = dt_amp_new(m, .level = "O2", .dtype = DT_BF16, .loss_scale = 8);
    return m;
}
static void exact_close(dt_model *m, dt_optimizer *opt, dt_amp *amp)
{
    dt_amp_free(amp);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_end();
}
#define GOLDEN "tests/golden/packed.safetensors"
UTEST(files, are_those_written_before_there_were_gaps)
{
    char          *dir = temp_dir(), *want, *got;
    size_t         nwant, ngot;
    dt_optimizer  *opt;
    dt_amp        *amp;
    dt_model      *m = exact_open(&opt, &amp);
    dt_checkpoint *c = dt_checkpoint_new(dir, .model = m);
    for (int s = 0; s < 3; s++) exact_step(m, opt, amp, s);
    dt_checkpoint_save(c, 0, 3);
    EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
    got = file_read(temp_in(dir, "ckpt-00000003.safetensors"), &ngot);
    want = file_read(GOLDEN, &nwant);
    EXPECT_GT(nwant, (size_t)(10 + 7 + 33 + 3) * 8);
    EXPECT_EQ(nwant, ngot);
    EXPECT_EQ(0, memcmp(want, got, nwant));
    for (int s = 3; s < 6; s++) exact_step(m, opt, amp, s);
    uint64_t straight = hash_of(m);
    dt_checkpoint_free(c);
    exact_close(m, opt, amp);

    /* a resume from the old file goes on with the same bits */
    temp_remove(dir);
    dir = temp_dir();
    temp_put(dir, "ckpt-00000003.safetensors", want, nwant);
    int64_t epoch = 0, step = 0;
    m = exact_open(&opt, &amp);
    c = dt_checkpoint_new(dir, .model = m);
    EXPECT_EQ(1, dt_checkpoint_resume(c, &epoch, &step));
    EXPECT_EQ(3, (int)step);
    int         ngaps = 0;
    const char *where = "";
    for (int s = (int)step; s < 6; s++) {
        exact_step(m, opt, amp, s);
        EXPECT_EQ_MSG(0, gaps_of(m, &ngaps, &where), where);
    }
    EXPECT_GE(ngaps, 3);
    EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
    EXPECT_EQ(straight, hash_of(m));
    dt_checkpoint_free(c);
    exact_close(m, opt, amp);
    free(want);
    free(got);
    temp_remove(dir);
}
UTEST(files, have_no_gaps)
{
    char *dir = temp_dir();
    for (int i = 0; i < WAYS; i += 3)
        for (int l = 0; l < LEVELS; l++) {
            char  *text[2];
            size_t n[2];
            for (int k = 0; k < 2; k++) {
                run r = { .how = &ways[i], .level = levels[l], .dtype = l ? DT_BF16 : DT_F32, .groups = 2 };
                pack_bytes = k ? 64 : 1;
                run_open(&r, NULL);
                for (int s = 0; s < 3; s++) run_step(&r, s);
                dt_checkpoint *c = dt_checkpoint_new(dir, .model = r.m, .name = k ? "b" : "a", .allow_nonfinite = true);
                dt_checkpoint_save(c, 0, 1);
                EXPECT_TRUE_MSG(dt_error() == NULL, dt_error());
                dt_error_clear();
                dt_checkpoint_free(c);
                run_close(&r);
                text[k] = file_read(temp_in(dir, k ? "b-00000001.safetensors" : "a-00000001.safetensors"), &n[k]);
            }
            pack_bytes = 64;
            EXPECT_GT(n[0], (size_t)186 * 4);
            EXPECT_EQ(n[0], n[1]);
            EXPECT_EQ_MSG(0, memcmp(text[0], text[1], n[0]), ways[i].name);
            free(text[0]);
            free(text[1]);
        }
    temp_remove(dir);
}

/* ==================================================================================================== >>counts */
UTEST(counts, are_of_parameters)
{
    char text[2][8192];
    for (int k = 0; k < 2; k++) {
        run r = { .how = &ways[6], .level = "O2", .dtype = DT_BF16 };
        pack_bytes = k ? 64 : 1;
        run_open(&r, NULL);
        run_step(&r, 0);
        EXPECT_EQ(35 + 5 + 65 + 13 + 13 + 13 + 39 + 3, (int)dt_model_numel(r.m, false));
        EXPECT_EQ(35 + 5 + 65 + 13 + 13 + 13 + 39 + 3, (int)dt_model_numel(r.m, true));
        dt_model_summary(r.m, text[k], sizeof text[k]);
        run_close(&r);
    }
    pack_bytes = 64;
    EXPECT_STREQ(text[0], text[1]);
    EXPECT_TRUE(strstr(text[0], "186") != NULL);
}

/* Parameters of known nets, in order of creation. */
typedef struct sizes {
    int64_t each[200], numel;
    int     n;
} sizes;
static void size_add(sizes *s, int64_t numel)
{
    s->each[s->n++] = numel;
    s->numel += numel;
}
static void conv_add(sizes *s, int64_t out, int64_t in, int64_t k) /* and its batch norm */
{
    size_add(s, out * in * k * k);
    size_add(s, out);
    size_add(s, out);
}
static void resnet_50_sizes(sizes *s)
{
    static const int64_t depth[] = { 3, 4, 6, 3 };
    int64_t              in = 64;
    conv_add(s, 64, 3, 7);
    for (int i = 0; i < 4; i++)
        for (int64_t k = 0, w = 64 << i; k < depth[i]; k++) {
            conv_add(s, w, in, 1);
            conv_add(s, w, w, 3);
            conv_add(s, 4 * w, w, 1);
            if (!k) conv_add(s, 4 * w, in, 1);
            in = 4 * w;
        }
    size_add(s, 1000 * 2048);
    size_add(s, 1000);
}
static void gpt_2_sizes(sizes *s)
{
    int64_t d = 768;
    size_add(s, 50257 * d);
    size_add(s, 1024 * d);
    for (int i = 0; i < 12; i++) {
        int64_t shape[] = { d, d, d * 3 * d, 3 * d, d * d, d, d, d, d * 4 * d, 4 * d, 4 * d * d, d };
        for (int k = 0; k < 12; k++) size_add(s, shape[k]);
    }
    size_add(s, d);
    size_add(s, d);
}
UTEST(counts, gaps_are_less_than_a_thousandth)
{
    for (int d = 0; d < 2; d++)
        for (int net = 0; net < 2; net++) {
            sizes   s;
            int     dtype = d ? DT_BF16 : DT_F32;
            int64_t at = 0;
            memset(&s, 0, sizeof s);
            if (net) gpt_2_sizes(&s);
            else resnet_50_sizes(&s);
            EXPECT_EQ(net ? 148 : 161, s.n);
            EXPECT_EQ(net ? 124439808 : 25557032, (int)s.numel);
            for (int i = s.n - 1; i >= 0; i--) at = dt__pack_next(at, dtype) + s.each[i]; /* as blocks are made */
            EXPECT_LE((double)(at - s.numel), 1e-3 * (double)s.numel);
            EXPECT_EQ(net ? 0 : d ? 24 : 8, (int)(at - s.numel)); /* behind the 1000 biases */
        }
}
