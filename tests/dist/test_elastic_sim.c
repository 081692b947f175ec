/* test_elastic_sim.c: the laws of elastic training in virtual time: deaths and newcomers at every packet, reproducible by seed
   run: long, asan-later */
#define DT__WANT_INSIDE
#include "dt_test.h"

#include "dt_elastic.h"
#include "dt_sim.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "heal.h"

UTEST_MAIN()

/* One job: members of the start, and newcomers. Its ranks run one at a time, so nothing here needs a lock. */
enum { WORLD = 3, ROOM = 16, SECONDS = 30, SLOTS = 5 };
typedef struct totals {               /* of several jobs; of the last one: what its members committed, all events */
    int      jobs, died, born, taken; /* taken: newcomers that became members */
    uint64_t log, hash;
} totals;
typedef struct job {
    heal    *j;
    dt_sim  *s;
    uint64_t seed;
    bool     ran[ROOM], gone[ROOM];      /* members that ended with an error though they live */
    int64_t  sent[ROOM][HEAL_STEPS + 1]; /* packets of each member before each step */
    int      born, spoiled;              /* spoiled: two neighbouring shards died at once */
    uint64_t log;
} job;
static float   item[HEAL_ITEMS][HEAL_IN];
static uint8_t label[HEAL_ITEMS];

static void job_log(job *b, uint64_t x) { b->log = (b->log ^ x) * UINT64_C(0x9e3779b97f4a7c15) + 1; }
static void job_steps(job *b, int me, const dt_elastic *e)
{
    if (!dt_sim_dead(b->s, me)) heal_steps(b->j, dt_elastic_steps(e));
}
static void member(dt_comm *c, void *user)
{
    job        *b = (job *)user;
    heal       *j = b->j;
    int         me = dt_comm_rank(c), size = 0, generation = 0;
    dt_dataset *set =
        dt_arrays(item, HEAL_ITEMS, .x_shape = DT_SHAPE(HEAL_IN), .y = label, .y_dtype = DT_U8, .classes = HEAL_OUT);
    dt_loader *in =
        dt_loader_new(set, .batch = j->batch ? j->batch : HEAL_BATCH, .shuffle = true, .seed = 5, .drop_last = j->drop);
    dt_model       *m = dt_model_new(.seed = 3 + (uint64_t)(j->slots || j->drop ? 0 : me));
    dt_optimizer   *opt = j->adam ? dt_adam(m, .lr = 0.01) : dt_sgd(m, .lr = 0.1, .momentum = 0.9);
    dt_elastic_opts o;
    b->ran[me] = true;
    memset(&o, 0, sizeof o);
    o.base = c;
    o.min = 1;
    o.max = j->max;
    o.wait = 20;
    o.ddp.slots = j->slots;
    o.ddp.shard = j->shard;
    dt_elastic *e = dt_elastic_new_with(m, opt, in, o);
    while (dt_elastic_epoch(e) < j->epochs)
        for (dt_batch x; dt_elastic_next(e, &x);) {
            int64_t step = dt_elastic_steps(e);
            bool    in_group = dt_elastic_ddp(e) != NULL;
            if (dt_sim_dead(b->s, me)) break;
            job_steps(b, me, e);
            generation = (int)dt_elastic_get_stats(e).generation;
            size = dt_elastic_size(e);
            if (in_group) heal_note(j, me, e, &x, step, generation);
            if (in_group) j->mine[me] = generation;
            if (in_group && step < HEAL_STEPS && !b->sent[me][step]) b->sent[me][step] = dt_sim_sent(b->s, me);
            dt_backward(dt_cross_entropy(heal_net(j, m, x.x, false), x.y));
            bool done = dt_elastic_step(e);
            if (!done || dt_sim_dead(b->s, me)) continue; /* what a dead member does counts no more */
            heal_committed(j, me, e, m, step, generation);
            job_log(b, j->hash[step][generation % HEAL_TRIES]);
            job_log(b, (uint64_t)me << 32 | (uint64_t)step);
        }
    job_steps(b, me, e);
    snprintf(j->said[me], sizeof j->said[me], "%s", !dt_sim_dead(b->s, me) && dt_error() ? dt_error() : "");
    b->gone[me] = j->said[me][0] != 0;
    dt_error_clear();
    uint64_t h = b->gone[me] ? 0 : heal_hash(m);
    dt_elastic_free(e);
    if (!dt_sim_dead(b->s, me) && !b->gone[me]) {
        if (j->last && j->last != h) heal_wrong(j, me, j->newest, "it ends with other weights than another member");
        j->last = h;
        j->size_at_end = size;
        j->ended[me] = 1;
    }
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(set);
}
static void newborn(dt_comm *c, void *user)
{
    job *b = (job *)user;
    b->born++;
    dt_sim_start(b->s, dt_comm_rank(c), dt_sim_now(b->s), member, b);
}
static void knocks(dt_comm *c, void *user)
{
    job *b = (job *)user;
    (void)c;
    dt_sim_join(b->s, dt_sim_now(b->s), NULL, 0, newborn, b);
}

static job *job_new(uint64_t seed)
{
    job *b = (job *)calloc(1, sizeof *b);
    b->j = (heal *)mmap(NULL, sizeof *b->j, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < HEAL_ITEMS * HEAL_IN; i++) {
        uint32_t r[4];
        dt_philox(9, (uint64_t)i, r);
        item[i / HEAL_IN][i % HEAL_IN] = (float)r[0] / 4294967296.0f - 0.5f;
        label[i / HEAL_IN] = (uint8_t)(r[1] % HEAL_OUT);
    }
    b->seed = seed;
    b->j->world = b->j->next = WORLD;
    b->j->max = 8;
    b->j->epochs = 2;
    return b;
}
static void job_begin(job *b)
{
    b->s = dt_sim_new(.world = b->j->world, .seed = b->seed, .tolerant = true, .room = ROOM, .timeout = SECONDS);
    for (int i = 0; i < b->j->world; i++) dt_sim_start(b->s, i, 0, member, b);
}
static void job_free(job *b)
{
    dt_sim_free(b->s);
    munmap(b->j, sizeof *b->j);
    free(b);
}
/* The laws. How many are broken. */
static int job_end(job *b, const char *what)
{
    heal *j = b->j;
    int   running = dt_sim_run(b->s, 10 * SECONDS), ended = 0, bad = 0, died = 0, left = 0;
    for (int i = 0; i < ROOM; i++) {
        ended += j->ended[i];
        b->gone[i] = b->gone[i] && !dt_sim_dead(b->s, i);
        left += b->ran[i] && !j->ended[i] && !b->gone[i] && !dt_sim_dead(b->s, i);
        died += dt_sim_dead(b->s, i) && !j->ended[i] && !b->gone[i];
        b->spoiled += b->gone[i] && j->shard && strstr(j->said[i], "its neighbour, which had a copy") != NULL;
    }
    if (b->spoiled && died < 2) b->spoiled = 0;
#define LAW(holds, text) \
    if (!(holds)) bad++, printf("    %s, seed %d: %s\n", what, (int)b->seed, text)
    char text[80];
    LAW(running == 0, "a member waits without end");
    snprintf(text, sizeof text, "a member waited for the timeout: it ended at %.3f s", dt_sim_now(b->s));
    LAW(dt_sim_now(b->s) < SECONDS, text);
    bool nobody = !ended && !left && died > 0; /* those who had the state died; newcomers are told so */
    LAW(ended || nobody || b->spoiled, "nobody has finished");
    for (int i = 0; i < ROOM && !b->spoiled; i++) {
        /* a newcomer may come when its leader dies, or when the training is over */
        bool late = i >= j->world && (strstr(j->said[i], "joined the group") || strstr(j->said[i], "join again") ||
                                      strstr(j->said[i], "the group is full"));
        LAW(!b->gone[i] || late, j->said[i]);
    }
    if (!b->spoiled && !nobody) LAW(heal_check(j) == 0, "see above");
#undef LAW
    return bad;
}
static uint32_t draw(uint64_t seed, uint32_t k)
{
    uint32_t r[4];
    dt_philox(seed, k, r);
    return r[0];
}
static void no_log(void *user, int level, const char *text) { (void)user, (void)level, (void)text; }
static void quietly(bool yes)
{
    if (!getenv("DT_LOG")) dt_set_log(yes ? no_log : NULL, NULL);
}

UTEST(simulated, a_calm_job)
{
    job *b = job_new(1);
    job_begin(b);
    EXPECT_EQ(0, job_end(b, "calm"));
    EXPECT_EQ(3, b->j->size_at_end);
    printf("    %d steps, %d packets of rank 0, %g s of virtual time\n", (int)b->j->newest, (int)dt_sim_sent(b->s, 0),
           dt_sim_now(b->s));
    job_free(b);
}

/* With .slots the weights are those of a calm run, whatever died when. */
static uint64_t calm_weights(int adam)
{
    static uint64_t weights[2];
    if (weights[adam]) return weights[adam];
    job *b = job_new(1);
    b->j->slots = b->j->max = SLOTS;
    b->j->adam = adam;
    job_begin(b);
    if (!job_end(b, "calm")) weights[adam] = b->j->last;
    job_free(b);
    return weights[adam];
}
static int job_done(job *b, const char *what, totals *t) /* 1: it has broken a law */
{
    int bad = job_end(b, what);
    if (b->j->slots && b->j->last && b->j->last != calm_weights(b->j->adam))
        bad++, printf("    %s, seed %d: not the weights of a calm run\n", what, (int)b->seed);
    t->jobs++;
    t->born += b->born;
    for (int i = b->j->world; i < ROOM; i++) t->taken += b->j->mine[i] > 0;
    for (int i = 0; i < ROOM; i++) t->died += dt_sim_dead(b->s, i) && !b->j->ended[i] && !b->gone[i];
    t->log = b->log;
    t->hash = dt_sim_hash(b->s, NULL);
    job_free(b);
    return bad != 0;
}
/* kind 0: each member has all, 1: .slots, 2: .shard 2, 3: an epoch of one or two steps, the rest is dropped */
static void job_kind(job *b, int kind)
{
    b->j->slots = kind == 1 ? SLOTS : 0;
    b->j->max = kind == 1 ? SLOTS : 8;
    b->j->shard = kind == 2 ? 2 : 0;
    b->j->drop = kind >= 2;
    if (kind == 3) b->j->batch = 12, b->j->max = 4, b->j->epochs = 8; /* 50 samples: 4 members make one step of 48 */
}
/* What happens is drawn from the seed: up to three deaths and up to three newcomers, each before any packet of a member, in the
   agreements and hand-overs of others, too. Newcomers may die as well. */
static int law_run(int seed, totals *t)
{
    job     *b = job_new((uint64_t)seed);
    uint32_t k = 100;
    int      deaths = (int)(draw(b->seed, 1) % 4), joins = (int)(draw(b->seed, 2) % 4);
    b->j->world = 2 + (int)(draw(b->seed, 3) % 3);
    b->j->adam = (int)(draw(b->seed, 4) % 2);
    job_kind(b, seed % 4);
    job_begin(b);
    for (int i = 0; i < deaths && (i + 1 < b->j->world || joins > i); i++, k += 2)
        dt_sim_before(b->s, (int)(draw(b->seed, k) % (uint32_t)(b->j->world + (i ? joins : 0))),
                      1 + draw(b->seed, k + 1) % 180, NULL, NULL);
    for (int i = 0; i < joins; i++, k += 2)
        dt_sim_before(b->s, (int)(draw(b->seed, k) % (uint32_t)b->j->world), 1 + draw(b->seed, k + 1) % 150, knocks, b);
    int bad = job_done(b, "random", t);
    if (bad)
        printf("    again: DT_TEST_SEED=%d DT_TEST_SEEDS=%d DT_LOG=info build/normal/test_elastic_sim "
               "--filter=*any_packet\n",
               seed, seed);
    return bad;
}
UTEST(simulated, deaths_and_joins_at_any_packet)
{
    int    first = getenv("DT_TEST_SEED") ? atoi(getenv("DT_TEST_SEED")) : 1, bad = 0;
    int    last = getenv("DT_TEST_SEEDS") ? atoi(getenv("DT_TEST_SEEDS")) : dt_test_quick() ? 60 : 1000;
    totals t, again;
    memset(&t, 0, sizeof t);
    quietly(true);
    for (int seed = first; seed <= last && bad < 5; seed++) {
        bad += law_run(seed, &t);
        if (seed % 20) continue;
        bad += law_run(seed, &again);
        EXPECT_EQ(t.log, again.log);
        EXPECT_EQ(t.hash, again.hash);
    }
    quietly(false);
    printf("    %d jobs, %d deaths, %d newcomers, %d of them became members\n", t.jobs, t.died, t.born, t.taken);
    EXPECT_EQ(0, bad);
    EXPECT_TRUE(first != 1 || last < 60 || (t.died > last / 3 && t.born > last / 3 && t.taken > t.born / 3));
}

/* Each packet that each member sends in one step, from its beginning to that of the next one: the member dies before it, or
   another one joins, or both. The packets of a step are those of the calm job: until then nothing differs. step LAST: the last one
   and what follows it. */
enum { LAST = -1 };
static int each_packet(int kind, int64_t step, int every, totals *t)
{
    int  bad = 0;
    job *calm = job_new(7);
    job_kind(calm, kind);
    job_begin(calm);
    bad += job_end(calm, "calm");
    if (step == LAST)
        for (int r = 0; r < WORLD; r++) calm->sent[r][calm->j->newest] = dt_sim_sent(calm->s, r);
    if (step == LAST) step = calm->j->newest - 1;
    for (int r = 0; r < WORLD; r++)
        for (int64_t n = calm->sent[r][step] + 1; n <= calm->sent[r][step + 1] && bad < 5; n += every)
            for (int what = 0; what < 3 && bad < 5; what++) {
                char name[120];
                job *b = job_new(7);
                job_kind(b, kind);
                snprintf(name, sizeof name, "kind %d, step %d, before packet %d of member %d: %s", kind, (int)step,
                         (int)n, r,
                         what == 0   ? "death"
                         : what == 1 ? "join"
                                     : "both");
                job_begin(b);
                if (what != 0)
                    dt_sim_before(b->s, what == 2 ? (r + 1) % WORLD : r,
                                  what == 2 ? calm->sent[(r + 1) % WORLD][step] + 1 : n, knocks, b);
                if (what != 1) dt_sim_before(b->s, r, n, NULL, NULL);
                bad += job_done(b, name, t);
            }
    job_free(calm);
    return bad;
}
UTEST(simulated, deaths_and_joins_at_each_packet_of_a_step)
{
    int    bad = 0, quick = dt_test_quick();
    totals t;
    memset(&t, 0, sizeof t);
    quietly(true);
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t step = kind == 2 ? 0 : 2; step < (quick ? (kind == 2 ? 1 : 3) : 4); step++)
            bad += each_packet(kind, step, quick ? 6 : 1, &t);
        if (kind != 1) bad += each_packet(kind, LAST, quick ? 4 : 1, &t);
    }
    quietly(false);
    printf("    %d jobs, %d deaths, %d newcomers, %d of them became members\n", t.jobs, t.died, t.born, t.taken);
    EXPECT_EQ(0, bad);
    EXPECT_TRUE(t.died > t.jobs / 2 && t.born > t.jobs / 3 && t.taken > t.born / 3);
}

static void wrong_base(dt_comm *c, void *user)
{
    static float  x[8][2];
    int          *bad = (int *)user;
    dt_dataset   *set = dt_arrays(x, 8, .x_shape = DT_SHAPE(2));
    dt_loader    *in = dt_loader_new(set, .batch = 2);
    dt_model     *m = dt_model_new(.seed = 1);
    dt_optimizer *opt = dt_sgd(m, .lr = 0.1);
    dt_comm      *copy = NULL;
    *bad += dt_comm_dup(c, &copy) || dt_elastic_new(m, opt, in, .max = 4, .base = copy) != NULL || !dt_error() ||
            strstr(dt_error(), ".base is not tolerant or has no .room") == NULL;
    dt_error_clear();
    *bad += dt_elastic_new(m, opt, in, .max = 4, .wait = -1, .base = c) != NULL || !dt_error() ||
            strstr(dt_error(), ".wait") == NULL;
    dt_error_clear();
    *bad += dt_comm_get_status(copy) || dt_comm_get_status(c); /* both are the caller's still */
    dt_comm_free(copy);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_loader_free(in);
    dt_dataset_free(set);
}
UTEST(simulated, a_communicator_that_does_not_suit)
{
    int     bad = 0;
    dt_sim *s = dt_sim_new(.world = 2, .tolerant = true, .room = 4);
    for (int i = 0; i < 2; i++) dt_sim_start(s, i, 0, wrong_base, &bad);
    quietly(true);
    EXPECT_EQ(0, dt_sim_run(s, 100));
    quietly(false);
    EXPECT_EQ(0, bad);
    dt_sim_free(s);
}
