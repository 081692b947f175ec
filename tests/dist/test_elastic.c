/* test_elastic.c: training goes on when members die at any time, and when others join; each sample counts once an epoch, all
   members have the same weights after each step
   run: alone, long, asan-later */
static void heal_sends(void);
#define DT__ON_SEND() heal_sends()
#define DT__ON_WORDS(w) heal_words(w, DT__EW_VERSION, DT__EW_STEP, DT__EW_POSITION)
#define DT_NET_IMPLEMENTATION
#define DT_ELASTIC_IMPLEMENTATION
#include "dt_test.h"
static void heal_words(int64_t *w, int version, int step, int position);

#include "dt_elastic.h"
#include "temp_files.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "heal.h"

UTEST_MAIN()

static void start_all(heal *j)
{
    for (int r = 0; r < j->world; r++) heal_start(j, r, r);
}
static double slow(double s) { return s * (getenv("DT_TEST_SLOW") ? atof(getenv("DT_TEST_SLOW")) : 1); }

/* ---------------------------------------------------------------------------------------------------- deaths */
UTEST(elastic, without_deaths_it_is_training)
{
    for (int n = 1; n <= 4; n++) {
        heal *j = heal_new(n);
        start_all(j);
        EXPECT_EQ(0, heal_wait(j, slow(30)));
        EXPECT_EQ(0, heal_check(j));
        EXPECT_EQ(n, j->size_at_end);
        heal_free(j);
    }
}
UTEST(elastic, each_rank_may_die_at_each_point_of_a_step)
{
    for (int how = HEAL_BEFORE; how <= HEAL_AFTER; how++)
        for (int rank = 0; rank < 3; rank += dt_test_quick() ? 2 : 1)
            for (int step = 0; step < 6; step += dt_test_quick() ? 4 : 1) {
                heal *j = heal_new(3);
                j->transport = (how + step) % 2 ? "tcp" : "auto";
                j->plan[rank].how = how;
                j->plan[rank].step = step;
                start_all(j);
                EXPECT_EQ(0, heal_wait(j, slow(30)));
                EXPECT_EQ(0, heal_check(j));
                EXPECT_EQ(2, j->size_at_end);
                if (j->bad) printf("    rank %d dies at point %d of step %d\n", rank, how, step);
                heal_free(j);
            }
}

/* ---------------------------------------------------------------------------------------------------- newcomers */
UTEST(elastic, a_dead_member_is_replaced)
{
    for (int rank = 0; rank < 3; rank++)
        for (int tcp = 0; tcp < 2; tcp++) {
            heal *j = heal_new(3);
            j->transport = tcp ? "tcp" : "auto";
            j->epochs = 40;
            j->seconds_of_step = 2;
            j->replace = 1;
            j->plan[rank].how = HEAL_BACKWARD;
            j->plan[rank].step = 4;
            start_all(j);
            EXPECT_EQ(0, heal_wait(j, slow(30)));
            EXPECT_EQ(0, heal_check(j));
            EXPECT_EQ(1, j->joined);
            EXPECT_EQ(3, j->size_at_end);
            heal_free(j);
        }
}

/* Two members make two steps of 24 of 50 samples. If a third one joins between them, 26 samples are no step of 36. */
UTEST(elastic, a_newcomer_makes_the_rest_of_the_epoch_too_short_for_a_step)
{
    for (int k = 0; k < 10; k++) {
        heal *j = heal_new(3);
        j->shard = k % 3;
        j->batch = 12;
        j->drop = 1;
        j->epochs = 30;
        j->seconds_of_step = 2 + k % 4;
        j->replace = 1;
        j->plan[2].how = HEAL_BACKWARD;
        j->plan[2].step = 2 + k % 2;
        start_all(j);
        EXPECT_EQ(0, heal_wait(j, slow(30)));
        EXPECT_EQ(0, heal_check(j));
        for (int i = 0; i < HEAL_ALL; i++) EXPECT_STREQ("", j->said[i]);
        EXPECT_EQ(2 + j->joined, j->size_at_end);
        heal_free(j);
    }
}
/* The others stand still until it answers. */
UTEST(elastic, a_newcomer_that_is_asked_already_does_not_wait)
{
    static dt__world   w;
    pthread_condattr_t a;
    w.control = (dt__control *)calloc(1, sizeof *w.control);
    ASSERT_TRUE(w.control != NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.control->cond, &a);
    w.size = 4;
    w.control->agreement[3].comm = 7;
    w.control->agreement[3].round = 2;
    int64_t begin = heal_ns();
    EXPECT_EQ(1, dt__world_asked(&w, 7, 2, 4.0));
    EXPECT_TRUE(heal_ns() - begin < 2000000000);
    w.control->agreement[3].decided = true; /* the others went on without it */
    EXPECT_EQ(0, dt__world_asked(&w, 7, 2, 0.01));
    w.control->ngone = 3;
    EXPECT_EQ(-1, dt__world_asked(&w, 7, 2, 4.0));
    EXPECT_TRUE(heal_ns() - begin < 4000000000);
    free(w.control);
}

/* ---------------------------------------------------------------------------------------------------- at any time */
static uint32_t draw(uint32_t seed, uint32_t k)
{
    uint32_t r[4];
    dt_philox(seed, k, r);
    return r[0];
}
/* Members die (or are stopped) at random times, also in the agreement, in a hand-over, and newcomers, too. */
static void random_plan(heal *j, uint32_t seed, int deaths, int64_t us)
{
    for (int i = 0; i < deaths; i++) {
        heal_plan *p = &j->plan[draw(seed, 10 * (uint32_t)i) % (uint32_t)(j->world + deaths)];
        p->how = HEAL_TIMER;
        p->us = draw(seed, 10 * (uint32_t)i + 1) % us;
    }
}
/* 1000 seeds in 20 tests; quick: a few in the first two. DT_HEAL_SEED=n: only this one. */
struct laws {
    int first, seeds;
};
UTEST_I_SETUP(laws) { memset(utest_fixture, 0, sizeof *utest_fixture); }
UTEST_I_TEARDOWN(laws) { EXPECT_TRUE(utest_fixture->seeds >= 0); }
static void seeds_of(struct laws *l, int index, int quick)
{
    const char *only = getenv("DT_HEAL_SEED");
    l->first = only ? atoi(only) : index * 50;
    l->seeds = only ? index == 0 : !dt_test_quick() ? 50 : index < 2 ? quick : 0;
}
UTEST_I(laws, members_die_and_others_join_at_any_time, 20)
{
    seeds_of(utest_fixture, (int)utest_index, 3);
    int first = utest_fixture->first, seeds = utest_fixture->seeds, worst = 0, joined = 0;
    for (int seed = first; seed < first + seeds && worst < 3; seed++) {
        heal *j = heal_new(2 + seed % 3);
        j->transport = seed & 1 ? "tcp" : "auto";
        j->epochs = 4 + seed % 5;
        j->seconds_of_step = seed % 4 < 2;
        j->replace = 3;
        j->adam = seed % 2;
        j->min = 1;
        random_plan(j, (uint32_t)seed, 1 + seed % 4, 60000);
        start_all(j);
        int  failed = heal_wait(j, slow(40));
        bool all_dead = failed == 0 && j->size_at_end == 0; /* nobody was left */
        if (failed || (!all_dead && heal_check(j))) {
            printf("    seed %d: %d failed\n", seed, failed);
            heal_check(j);
            worst++;
        }
        joined += j->joined;
        heal_free(j);
    }
    EXPECT_EQ(0, worst);
    if (seeds) printf("    %d jobs, %d newcomers\n", seeds, joined);
}

/* A member dies before its n-th message or control frame: in a step, in the agreement and what follows (two die, the second one while the
   others deal with the first), while a newcomer joins; and the newcomer itself. */
UTEST_I(laws, members_die_before_any_message, 20)
{
    seeds_of(utest_fixture, (int)utest_index, 5);
    int first = utest_fixture->first, seeds = utest_fixture->seeds, worst = 0, died = 0;
    for (int seed = first; seed < first + seeds && worst < 3; seed++) {
        uint32_t k = 5000 + (uint32_t)seed;
        int      world = 3 + seed % 2, kind = seed / 2 % 4, who = (int)(draw(k, 1) % (uint32_t)world);
        heal    *j = heal_new(world);
        j->transport = seed & 1 ? "tcp" : "auto";
        j->slots = seed % 5 == 0 ? 4 : 0;
        j->max = 4;
        j->epochs = kind < 2 ? 3 : 12;
        j->plan[who].how = HEAL_MESSAGE;
        j->plan[who].step = 2 + draw(k, 2) % 3;
        j->plan[who].us = draw(k, 3) % 60;
        heal_plan *p = &j->plan[kind == 3 ? world : (who + 1 + (int)(draw(k, 4) % (uint32_t)(world - 1))) % world];
        if (kind) *p = j->plan[who];
        if (kind) p->us = draw(k, 5) % 120;
        if (kind > 1) { /* a replacement comes */
            j->replace = 1;
            j->seconds_of_step = 3;
            p->how = HEAL_JOINING;
        }
        start_all(j);
        int failed = heal_wait(j, slow(40)), n = 0;
        if (failed || heal_check(j)) {
            printf("    seed %d: %d failed\n", seed, failed);
            setenv("DT_HEAL_SAY", "1", 1);
            heal_check(j);
            worst++;
        }
        for (int i = 0; i < j->next; i++) n += j->ended[i] == 0;
        died += n;
        heal_free(j);
    }
    EXPECT_EQ(0, worst);
    EXPECT_TRUE(seeds <= 1 || died > seeds / 2);
    if (seeds) printf("    %d jobs, %d members died\n", seeds, died);
}

/* ---------------------------------------------------------------------------------------------------- the same bits */
UTEST(elastic, with_slots_the_weights_are_those_of_a_calm_run)
{
    uint64_t calm = 0;
    for (int seed = -1; seed < (dt_test_quick() ? 6 : 60); seed++) {
        heal *j = heal_new(seed < 0 ? 1 : 2 + seed % 3);
        j->slots = 4;
        j->max = 4;
        j->adam = 1;
        j->epochs = 6;
        j->transport = seed & 1 ? "tcp" : "auto";
        j->replace = 2;
        j->seconds_of_step = seed % 4 == 3;
        if (seed >= 0) random_plan(j, 1000 + (uint32_t)seed, 1 + seed % 2, 60000);
        if (seed >= 0 && seed < 3) { /* rank 0, just before and behind an update */
            memset(j->plan, 0, sizeof j->plan);
            j->plan[0].how = seed == 0 ? HEAL_BACKWARD : HEAL_AFTER;
            j->plan[0].step = 3 + seed;
        }
        start_all(j);
        EXPECT_EQ(0, heal_wait(j, slow(40)));
        if (seed < 0) calm = j->last;
        else if (j->size_at_end) EXPECT_TRUE(j->last == calm);
        if (j->size_at_end && j->last != calm) printf("    seed %d: other weights\n", seed);
        heal_free(j);
    }
}
/* ---------------------------------------------------------------------------------------------------- kinds of training */
UTEST(elastic, with_mixed_precision_and_batch_norm)
{
    for (int amp = 0; amp < 3; amp++) {
        heal *j = heal_new(3);
        j->amp = amp;
        j->norm = 1;
        j->adam = 1;
        j->epochs = 40;
        j->seconds_of_step = 2;
        j->replace = 1;
        j->plan[amp].how = HEAL_BACKWARD;
        j->plan[amp].step = 3;
        start_all(j);
        EXPECT_EQ(0, heal_wait(j, slow(30)));
        EXPECT_EQ(0, heal_check(j));
        EXPECT_EQ(1, j->joined);
        heal_free(j);
    }
}
/* Each rank has a part of the state; its neighbour has a copy. */
UTEST(elastic, with_shards_one_death_loses_nothing)
{
    uint64_t last[3] = { 0 };
    for (int shard = 0; shard <= 3; shard++)
        for (int rank = 0; rank < 3; rank += dt_test_quick() ? 2 : 1)
            for (int how = HEAL_BEFORE; how <= HEAL_AFTER; how++) {
                heal *j = heal_new(3);
                j->shard = shard;
                j->adam = j->drop = 1;
                j->amp = rank == 2 ? 2 : 0;
                j->epochs = 4;
                j->transport =
                    rank == 1 && how != HEAL_BEFORE ? "tcp" : "auto"; /* in memory all sums are in the order of ranks */
                j->plan[rank].how = how;
                j->plan[rank].step = 3 + how;
                if (how == HEAL_AFTER) {
                    j->replace = 1;
                    j->epochs = 25;
                    j->seconds_of_step = 2;
                }
                start_all(j);
                EXPECT_EQ(0, heal_wait(j, slow(30)));
                EXPECT_EQ(0, heal_check(j));
                EXPECT_EQ(2 + j->joined, j->size_at_end);
                if (shard == 0 && how == HEAL_BEFORE)
                    last[rank] = j->last; /* nobody has committed this step: the same steps */
                else if (how == HEAL_BEFORE) EXPECT_TRUE(j->last == last[rank]);
                if (j->bad || !j->size_at_end) printf("    shard %d, rank %d dies at point %d\n", shard, rank, how);
                for (int i = 0; i < HEAL_ALL; i++)
                    if (j->said[i][0]) printf("    member %d says: %s\n", i, j->said[i]);
                heal_free(j);
            }
}
UTEST(elastic, with_shards_two_deaths_at_once)
{
    for (int far = 0; far < 2; far++) {
        heal *j = heal_new(4);
        j->shard = 1 + far;
        j->drop = 1;
        j->plan[1].how = HEAL_BACKWARD;
        j->plan[1].step = 3;
        j->plan[1].with = far ? 3 : 2;
        start_all(j);
        int failed = heal_wait(j, slow(30));
        if (far) {
            EXPECT_EQ(0, failed);
            EXPECT_EQ(0, heal_check(j));
            EXPECT_EQ(2, j->size_at_end);
        } else {
            EXPECT_EQ(2, failed);
            EXPECT_TRUE_MSG(strstr(j->said[0], "rank 1 and its neighbour, which had a copy") != NULL, j->said[0]);
            EXPECT_TRUE_MSG(strstr(j->said[3], "there is no .checkpoint to go on from; start again") != NULL, j->said[3]);
        }
        heal_free(j);
    }
}
/* The state is lost with them; a checkpoint has an older one. Also if the leader is one of the two. */
UTEST(elastic, two_neighbouring_shards_die_and_the_others_go_on_from_a_checkpoint)
{
    for (int k = 0; k < 4; k++) {
        char *dir = temp_dir();
        heal *j = heal_new(4);
        int   lead = k & 1;
        j->shard = 1 + k % 3;
        j->drop = j->adam = 1;
        j->amp = k == 1 ? 2 : 0;
        j->epochs = 4;
        j->dir = dir;
        j->every = k == 3 ? 50 : k == 2 ? 4 : 3; /* 50: none is there yet; 4: at the end of an epoch */
        j->bare = k == 2;
        j->plan[lead].how = HEAL_BACKWARD;
        j->plan[lead].step = 5;
        j->plan[lead].with = lead ? 2 : 1;
        start_all(j);
        int failed = heal_wait(j, slow(30));
        if (k < 3) {
            EXPECT_EQ(0, failed);
            EXPECT_EQ(0, heal_check(j));
            EXPECT_EQ(2, j->size_at_end);
            EXPECT_EQ(j->every, j->back);
            EXPECT_EQ(k == 2 ? 4 + 3 * 8 : 3 + 2 + 3 * 8, j->newest); /* two members: 8 steps an epoch */
            EXPECT_EQ(k == 2 ? 4 : 5, j->ends);                       /* that of epoch 0 once more */
            EXPECT_TRUE_MSG(strstr(j->heard, k == 2 ? "the others go on from step 4 of the newest checkpoint"
                                                    : "the others go on from step 3 of the newest checkpoint") != NULL,
                            j->heard);
        } else {
            EXPECT_EQ(2, failed);
            EXPECT_TRUE_MSG(strstr(j->said[0], "no checkpoint was saved yet") != NULL, j->said[0]);
        }
        heal_free(j);
        temp_remove(dir);
    }
}
/* ---------------------------------------------------------------------------------------------------- the launcher, the trace */
UTEST(elastic, when_the_launcher_dies_they_save_and_end)
{
    char *dir = temp_dir(), path[200];
    heal *j = heal_new(3);
    j->dir = dir;
    j->epochs = 80;
    j->seconds_of_step = 5;
    start_all(j);
    int64_t end = heal_ns() + (int64_t)(slow(30) * 1e9);
    while (j->newest < 4 && heal_ns() < end) usleep(1000);
    shutdown(j->report[0], SHUT_RDWR);
    close(j->report[0]);
    close(j->report[1]); /* only the members have it: their peer is gone */
    EXPECT_EQ(3, heal_wait(j, slow(30)));
    for (int i = 0; i < 3; i++) EXPECT_TRUE_MSG(strstr(j->said[i], "the launcher has died") != NULL, j->said[i]);
    EXPECT_TRUE(dt_checkpoint_latest(dir, NULL, path, sizeof path) != NULL);
    j->report[0] = j->report[1] = -1;
    heal_free(j);
    temp_remove(dir);
}
UTEST(elastic, a_trace_shows_death_agreement_and_hand_over)
{
    char *dir = temp_dir(), *text = (char *)calloc(1, 1 << 22);
    heal *j = heal_new(3);
    j->epochs = 25;
    j->seconds_of_step = 2;
    j->replace = 1;
    j->plan[1].how = HEAL_BACKWARD;
    j->plan[1].step = 4;
    snprintf(j->trace, sizeof j->trace, "%s/trace.json", dir);
    start_all(j);
    EXPECT_EQ(0, heal_wait(j, slow(30)));
    FILE *f = fopen(j->trace, "r");
    ASSERT_TRUE(f != NULL && fread(text, 1, (1 << 22) - 1, f) > 0);
    fclose(f);
    EXPECT_TRUE(strstr(text, "a member died") && strstr(text, "agreement") && strstr(text, "newcomers"));
    EXPECT_TRUE(!j->joined || strstr(text, "hand-over"));
    heal_free(j);
    temp_remove(dir);
    free(text);
}
/* ---------------------------------------------------------------------------------------------------- bad input */
UTEST(elastic, a_newcomer_with_another_model_is_refused)
{
    heal *j = heal_new(2);
    j->epochs = 25;
    j->seconds_of_step = 2;
    j->odd = 2;
    j->replace = 1;
    j->plan[1].how = HEAL_BACKWARD;
    j->plan[1].step = 3;
    start_all(j);
    EXPECT_EQ(1, heal_wait(j, slow(30)));
    EXPECT_EQ(0, heal_check(j));
    EXPECT_EQ(1, j->size_at_end);
    EXPECT_TRUE_MSG(
        strstr(j->said[2],
               "number 1 is parameter 'a.weight' f32 (16, 6) on rank 0, parameter 'a.weight' f32 (20, 6)") != NULL,
        j->said[2]);
    heal_free(j);
}
UTEST(elastic, a_newcomer_that_differs_is_refused_with_the_first_difference)
{
    static const struct {
        int         odd_in;
        const char *says;
    } kind[] = {
        { HEAL_VERSION, "its version of dt is 3000, that of the group is 2000" },
        { HEAL_LENGTH, "its number of items of the dataset is 49, that of the group is 50" },
        { HEAL_SEED, "its seed of the loader is 6, that of the group is 5" },
        { HEAL_BATCHES, "its batch of the loader is 4, that of the group is 3" },
        { HEAL_SLOTS, "its .ddp.slots is 8, that of the group is 0" },
        { HEAL_SHARD, "its .ddp.shard is 1, that of the group is 0" },
        { HEAL_OPTIMIZERS, "its number of optimisers is 2, that of the group is 1" },
        { HEAL_OPTIMIZER, "its optimiser is dt_adam, that of the group is dt_sgd" },
    };
    for (int k = 0; k < (int)(sizeof kind / sizeof *kind); k++) {
        heal *j = heal_new(3);
        j->epochs = 20;
        j->seconds_of_step = 2;
        j->transport = k % 2 ? "tcp" : "auto";
        j->odd = 3;
        j->odd_in = kind[k].odd_in;
        j->replace = 1;
        j->plan[k % 3].how = HEAL_BACKWARD;
        j->plan[k % 3].step = 3;
        start_all(j);
        EXPECT_EQ(1, heal_wait(j, slow(30)));
        EXPECT_EQ(0, heal_check(j));
        EXPECT_EQ(2, j->size_at_end);
        EXPECT_EQ(1, j->said_refused);
        EXPECT_TRUE_MSG(strstr(j->said[3], kind[k].says) != NULL, j->said[3]);
        heal_free(j);
    }
}
/* Without an error it would train on what others do not have. */
UTEST(elastic, a_member_that_disagrees_on_the_committed_step_leaves_and_the_others_go_on)
{
    for (int kind = HEAL_STEP; kind <= HEAL_POSITION; kind++)
        for (int odd = 0; odd <= 2; odd += 2) { /* also the leader */
            heal *j = heal_new(4);
            j->odd = odd;
            j->lies = 1;
            j->odd_in = kind;
            j->plan[1].how = HEAL_BACKWARD;
            j->plan[1].step = 5;
            start_all(j);
            EXPECT_EQ(1, heal_wait(j, slow(30)));
            EXPECT_EQ(0, heal_check(j));
            EXPECT_EQ(2, j->size_at_end);
            EXPECT_TRUE_MSG(strstr(j->said[odd], kind == HEAL_STEP ? " has committed 3 steps, rank " : "have both committed step 5, but are at items ") != NULL,
                            j->said[odd]);
            if (kind == HEAL_STEP) EXPECT_TRUE_MSG(strstr(j->said[odd], " 5: members are never more than one step apart") != NULL, j->said[odd]);
            heal_free(j);
        }
}
UTEST(elastic, a_part_of_a_state_with_wrong_lengths_is_refused)
{
    struct {
        dt__parcel p;
        int64_t    pair[4];
        uint8_t    header[16], data[24];
    } good, bad;
    memset(&good, 0, sizeof good);
    good.p.nbytes = sizeof good;
    good.p.head = 16;
    good.p.data = 100;
    good.p.nseg = 2;
    good.pair[0] = 0, good.pair[1] = 16, good.pair[2] = 92, good.pair[3] = 8;
    EXPECT_TRUE(dt__parcel_ok(&good.p, sizeof good));
    EXPECT_FALSE(dt__parcel_ok(&good.p, sizeof good - 1));
    EXPECT_FALSE(dt__parcel_ok(&good.p, 8));
    static const int64_t wrong[] = { -1, INT64_MIN, INT64_MAX, 101, 1 << 20 };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (int field = 0; field < 8; field++) {
            bad = good;
            int64_t *at[8] = { &bad.p.nbytes, &bad.p.head,  &bad.p.data,  &bad.p.nseg,
                               &bad.pair[0],  &bad.pair[1], &bad.pair[2], &bad.pair[3] };
            *at[field] = wrong[i];
            bool fine = field == 2 && wrong[i] >= 101 && wrong[i] <= 1 << 20; /* more data in other parts */
            EXPECT_EQ(fine, dt__parcel_ok(&bad.p, sizeof bad));
        }
}
UTEST(elastic, options_that_make_no_sense_are_errors)
{
    static float  x[8][2];
    dt_dataset   *set = dt_arrays(x, 8, .x_shape = DT_SHAPE(2));
    dt_loader    *in = dt_loader_new(set, .batch = 2), *part = dt_loader_new(set, .batch = 2, .rank = 1, .world = 2);
    dt_model     *m = dt_model_new();
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    EXPECT_ERROR(dt_elastic_new(m, opt, in, .min = 3, .max = 2), ".min is 3 and .max 2");
    EXPECT_ERROR(dt_elastic_new(m, opt, in, .min = -1), ".min is -1");
    EXPECT_ERROR(dt_elastic_new(m, opt, in, .max = 4, .room = 2), ".room is 2");
    EXPECT_ERROR(dt_elastic_new(m, opt, in, .max = 4, .ddp.slots = 2), ".max is 4, but .ddp.slots is 2");
    EXPECT_ERROR(dt_elastic_new(m, opt, in, .max = 4, .wait = -1), ".wait");
    EXPECT_ERROR(dt_elastic_new(m, opt, part, .max = 4), ".world");
    EXPECT_ERROR(dt_elastic_new(m, NULL, in, .max = 4), "optimiser");
    setenv("DT_ELASTIC", "2-8", 1);
    EXPECT_ERROR(dt_elastic_new(m, opt, in), "DT_ELASTIC is '2-8'");
    unsetenv("DT_ELASTIC");
    setenv("DT_ELASTIC_JOIN", "nowhere", 1);
    dt_elastic *e = dt_elastic_new(m, opt, in);
    dt_batch    b;
    ASSERT_TRUE(e != NULL && dt_elastic_next(e, &b));
    dt_backward(dt_mean(dt_linear(m, "a", b.x, .out = 1)));
    EXPECT_TRUE(!dt_elastic_step(e));
    EXPECT_ERROR(dt_elastic_next(e, &b) ? (void *)e : NULL, "'nowhere', expected HOST:PORT");
    unsetenv("DT_ELASTIC_JOIN");
    dt_elastic_free(e);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_loader_free(part);
    dt_dataset_free(set);
}
/* ---------------------------------------------------------------------------------------------------- below the minimum */
UTEST(elastic, below_the_minimum_it_waits_then_saves_and_ends)
{
    char *dir = temp_dir();
    heal *j = heal_new(3);
    j->dir = dir;
    j->min = 3;
    j->wait = 1;
    j->plan[1].how = HEAL_BACKWARD;
    j->plan[1].step = 3;
    start_all(j);
    EXPECT_EQ(2, heal_wait(j, slow(30)));
    EXPECT_TRUE_MSG(strstr(j->said[0], " of at least 3 members for 1 s") != NULL, j->said[0]);
    EXPECT_TRUE_MSG(strstr(j->said[2], "below the minimum: ") != NULL, j->said[2]);
    heal_free(j);
    char path[200];
    EXPECT_TRUE(dt_checkpoint_latest(dir, NULL, path, sizeof path) != NULL);
    j = heal_new(3); /* a replacement comes in time */
    j->min = 3;
    j->wait = 20;
    j->epochs = 10;
    j->replace = 1;
    j->plan[0].how = HEAL_BACKWARD;
    j->plan[0].step = 3;
    start_all(j);
    EXPECT_EQ(0, heal_wait(j, slow(30)));
    EXPECT_EQ(0, heal_check(j));
    EXPECT_EQ(3, j->size_at_end);
    EXPECT_TRUE(j->said_short == 1 && j->said_gone >= 1 && j->said_joined == 1 && j->said_done >= 1);
    heal_free(j);
    temp_remove(dir);
}
/* ---------------------------------------------------------------------------------------------------- slow and stopped */
UTEST(elastic, a_stopped_member_is_given_up_and_refused_by_name)
{
    heal *j = heal_new(3);
    j->timeout = slow(1);
    j->plan[1].how = HEAL_BACKWARD;
    j->plan[1].step = 4;
    j->plan[1].signal = SIGSTOP;
    start_all(j);
    int64_t end = heal_ns() + (int64_t)(slow(30) * 1e9);
    while ((!j->ended[0] || !j->ended[2]) && heal_ns() < end) usleep(1000);
    kill(j->pid[1], SIGCONT);
    EXPECT_EQ(1, heal_wait(j, slow(30)));
    EXPECT_EQ(0, heal_check(j));
    EXPECT_EQ(2, j->size_at_end);
    EXPECT_TRUE_MSG(strstr(j->said[1], "was given up at step 4") != NULL, j->said[1]);
    heal_free(j);
}
UTEST(elastic, a_slow_member_stays)
{
    heal *j = heal_new(3);
    j->timeout = slow(3);
    j->plan[1].how = HEAL_BACKWARD;
    j->plan[1].step = 4;
    j->plan[1].signal = SIGSTOP;
    start_all(j);
    int64_t end = heal_ns() + (int64_t)(slow(30) * 1e9);
    while (j->newest < 4 && heal_ns() < end) usleep(1000);
    usleep(1000000);
    kill(j->pid[1], SIGCONT);
    EXPECT_EQ(0, heal_wait(j, slow(30)));
    EXPECT_EQ(0, heal_check(j));
    EXPECT_EQ(3, j->size_at_end);
    heal_free(j);
}
