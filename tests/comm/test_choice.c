/* test_choice.c: which algorithm a communicator takes, and why: tables of costs in files, rank 0's for all, what is
   explained, what is forced; parameters that must be equal on all ranks.
   Contents: >>files >>ranks >>explained >>tuned
   run: alone, asan-later */
#define DT_COMM_IMPLEMENTATION
#include "dt_comm.h"
#include "harness.h"
#include "temp_files.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_MAIN()

static char dir[] = "/tmp/dt_choice.XXXXXX", table[64], other[64];
static void clean_up(void)
{
    unlink(table);
    unlink(other);
    if (rmdir(dir)) printf("    %s is left over\n", dir);
}
static bool set_up(void)
{
    static bool done;
    if (done) return true;
    if (!mkdtemp(dir)) return false;
    snprintf(table, sizeof table, "%s/costs", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    return done = atexit(clean_up) == 0;
}
static bool put(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool  ok = f && fwrite(text, 1, n, f) == n;
    return f && !fclose(f) && ok;
}

/* ==================================================================================================== >>files */
UTEST(files, what_is_written_is_read)
{
    ASSERT_TRUE(set_up());
    dt_costs d = dt_costs_default(), a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    ASSERT_EQ(0, dt_costs_save(&d, table));
    ASSERT_EQ(0, dt_costs_load(&a, table));
    for (int i = 0; i < DT_LINK_COUNT; i++) {
        EXPECT_NEAR(d.alpha[i], a.alpha[i], 1e-12);
        EXPECT_NEAR(d.beta[i], a.beta[i], 1e-15);
    }
    EXPECT_NEAR(d.gamma, a.gamma, 1e-15);
    ASSERT_EQ(0, dt_costs_save(&a, table));
    ASSERT_EQ(0, dt_costs_load(&b, table));
    EXPECT_EQ(0, memcmp(&a, &b, sizeof a));
    const char *by_hand = "# mine\ndt costs 1\r\n\nnetwork 30000000 8333333 # slow\n thread 1 2\nshm 3 4\n"
                          "loopback 5 6\nreducing 1000000000\nend\n# over\n";
    ASSERT_TRUE(put(table, by_hand, strlen(by_hand)));
    ASSERT_EQ(0, dt_costs_load(&b, table));
    EXPECT_TRUE(b.alpha[DT_LINK_NET] == 30e-6 && b.beta[DT_LINK_SHM] == 4e-15 && b.gamma == 1e-6);
    d.beta[1] = NAN;
    EXPECT_TRUE(dt_costs_save(&d, table) < 0 && dt_costs_load(&a, table) == 0); /* the old one is there */
    EXPECT_TRUE(dt_costs_save(&a, "/nowhere/at/all") < 0 && strstr(dt_comm_error(NULL), "/nowhere/at/all"));
    char *traps = temp_dir(), part[64];
    snprintf(part, sizeof part, "costs.%d.part", (int)getpid());
    for (int kind = 0; kind < TEMP_TRAPS; kind++) {
        if (temp_trap(traps, part, kind)) {
            EXPECT_LT(dt_costs_save(&a, temp_in(traps, "costs")), 0);
            EXPECT_TRUE(temp_trap_end(traps, part));
        }
        if (temp_trap(traps, "costs", kind)) { /* the name itself is taken over, what a link leads to stays */
            EXPECT_EQ(0, dt_costs_save(&a, temp_in(traps, "costs")));
            EXPECT_EQ(0, unlink(temp_in(traps, "costs")));
            EXPECT_TRUE(temp_trap_end(traps, "costs"));
        }
    }
    temp_put(traps, part, "left by a process that had this number", 38);
    EXPECT_EQ(0, dt_costs_save(&a, temp_in(traps, "costs")));
    EXPECT_TRUE(dt_costs_load(&a, temp_in(traps, "costs")) == 0);
    temp_remove(traps);
}
#define GOOD "dt costs 1\nthread 1 2\nshm 3 4\nloopback 5 6\nnetwork 7 8\nreducing 9\nend\n"
UTEST(files, others_are_refused_by_line)
{
    static const struct {
        const char *text, *say;
    } rows[] = {
        { "", "line 1: found 'the end of the file', expected 'dt costs 1'" },
        { "dt costs 2\n", "line 1: found 'dt costs 2', expected 'dt costs 1'" },
        { "dt costs 11\n", "line 1: found 'dt costs 11'" },
        { "\x7f" "ELF\x02\x01", "line 1: found '?ELF?" },
        { "dt costs 1\nthread 1 2\nshm nan 4\n", "line 3: found 'shm nan 4', expected a link, picoseconds" },
        { "dt costs 1\nthread -1 2\n", "line 2: found 'thread -1 2'" },
        { "dt costs 1\nthread 1e3 2\n", "line 2: found 'thread 1e3 2'" },
        { "dt costs 1\nthread 1.5 2\n", "line 2: found 'thread 1.5 2'" },
        { "dt costs 1\nthread 10000000000001 2\n", "line 2: found 'thread 10000000000001 2'" },
        { "dt costs 1\nthread 99999999999999999999999999999999 2\n", "line 2: found 'thread 9999" },
        { "dt costs 1\nthread 1 1000000001\n", "line 2: found 'thread 1 1000000001'" },
        { "dt costs 1\nthread 1\n", "line 2: found 'thread 1'" },
        { "dt costs 1\nthread 1 2 3\n", "line 2: found 'thread 1 2 3'" },
        { "dt costs 1\nthread 1 2\nthread 1 2\n", "line 3: found 'thread 1 2', expected each link" },
        { "dt costs 1\nreducing inf\n", "expected 'reducing' and femtoseconds" },
        { "dt costs 1\nwires 1 2\n", "line 2: found 'wires 1 2', expected thread, shm" },
        { "dt costs 1\nthread 1 2\nend\n", "line 3: found 'end', expected a line for each" },
        { GOOD "shm 3 4\n", "line 8: found 'shm 3 4', expected no more lines after 'end'" },
    };
    dt_costs keep = dt_costs_default(), t = keep;
    ASSERT_TRUE(set_up());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ASSERT_TRUE(put(table, rows[i].text, strlen(rows[i].text)));
        EXPECT_TRUE_MSG(dt_costs_load(&t, table) < 0, rows[i].text);
        EXPECT_TRUE_MSG(strstr(dt_comm_error(NULL), rows[i].say) != NULL, dt_comm_error(NULL));
    }
    for (size_t n = 0; n + 1 < sizeof GOOD; n++) { /* torn anywhere; the last newline alone is not missed */
        ASSERT_TRUE(put(table, GOOD, n));
        EXPECT_EQ(n == sizeof GOOD - 2, dt_costs_load(&t, table) == 0);
        if (n < sizeof GOOD - 2) EXPECT_TRUE(memcmp(&t, &keep, sizeof t) == 0);
    }
    EXPECT_TRUE(dt_costs_load(&t, dir) < 0 && dt_costs_load(&t, "/dev/zero") < 0);
    EXPECT_TRUE(dt_costs_load(&t, "/nowhere") < 0 && strstr(dt_comm_error(NULL), "/nowhere"));
    EXPECT_STREQ(dt_comm_error(NULL), dt_plan_error());
}

/* ==================================================================================================== >>ranks */
static const char *where_of(int rank) { return rank == 0 ? table : other; }
static int by_rank_0(void *arg) /* each rank names another file; not all of them are good */
{
    int      rank = atoi(getenv("RANK"));
    dt_comm *c = dt_comm_init(.costs = where_of(rank), .transport = (const char *)arg, .join_timeout = 20), *d = NULL;
    dt_costs want;
    char     text[4096];
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    dt_costs_load(&want, table);
    int bad = memcmp(&c->engine->costs, &want, sizeof want) != 0;
    dt_comm_explain(c, text, sizeof text);
    bad += !strstr(text, "costs: rank 0's table");
    bad += dt_comm_dup(c, &d) || memcmp(&d->engine->costs, &want, sizeof want) != 0;
    return bad + (dt_comm_free(d) != 0) + (dt_comm_free(c) != 0);
}
static int not_of_others(void *arg)
{
    dt_comm *c = dt_comm_init(.costs = atoi(getenv("RANK")) ? table : NULL, .join_timeout = 20);
    dt_costs fixed = dt_costs_default();
    (void)arg;
    return !c || memcmp(&c->engine->costs, &fixed, sizeof fixed) != 0 || dt_comm_free(c);
}
static int refused(void *arg)
{
    dt_comm *c = dt_comm_init(.join_timeout = 20); /* by DT_COMM_COSTS */
    (void)arg;
    return c || !strstr(dt_comm_error(NULL), "line 2: found 'shm 1'");
}
UTEST(ranks, have_the_table_of_rank_0)
{
    ASSERT_TRUE(set_up());
    ASSERT_TRUE(put(table, GOOD, sizeof GOOD - 1) && put(other, "what?", 5));
    EXPECT_EQ(0, dt_spawn(4, by_rank_0, (void *)(uintptr_t) "shm"));
    EXPECT_EQ(0, dt_spawn(3, by_rank_0, (void *)(uintptr_t) "tcp"));
    EXPECT_EQ(0, dt_spawn(3, not_of_others, NULL));
}
static int slowed(void *arg) /* only rank 0's counts: the choice must be the same */
{
    dt_comm *c = dt_comm_init(.transport = "tcp", .bandwidth = atoi(getenv("RANK")) ? 0 : 4e6, .latency = 0.001);
    int64_t  segment;
    double   net = dt_costs_default().alpha[DT_LINK_NET];
    (void)arg;
    if (!c) return 1;
    const dt_costs *t = &c->engine->costs;
    bool ok = t->beta[DT_LINK_LOOP] == 1 / 4e6 && t->beta[DT_LINK_NET] == 1 / 4e6 && /* a default is faster */
              fabs(t->alpha[DT_LINK_NET] - net - 0.001) < 1e-9 &&
              t->beta[DT_LINK_SHM] == dt_costs_default().beta[DT_LINK_SHM];
    dt_algo a = dt__choose(c, DT_COLL_ALLREDUCE, 1 << 16, 4, &segment); /* each byte crosses once, both ways at a time */
    if (a == DT_ALGO_TREE || a == DT_ALGO_DIRECT || a == DT_ALGO_LEADER) ok = false;
    if (!ok) printf("    rank %d: %s\n", dt_comm_rank(c), dt_algo_name(a));
    return !ok + (dt_comm_free(c) != 0);
}
UTEST(ranks, choose_by_the_network_that_rank_0_keeps_to)
{
    EXPECT_EQ(0, dt_spawn(2, slowed, NULL));
}
UTEST(ranks, all_hear_what_is_wrong_with_it)
{
    dt_comm *c[2];
    ASSERT_TRUE(set_up());
    ASSERT_TRUE(put(table, "dt costs 1\nshm 1\n", 17));
    setenv("DT_COMM_COSTS", table, 1);
    EXPECT_EQ(0, dt_spawn(3, refused, NULL));
    EXPECT_EQ(0, refused(NULL)); /* a world of one */
    EXPECT_TRUE(dt_comm_threads(2, c, .streams = 1) < 0 && strstr(dt_comm_error(NULL), "line 2"));
    unsetenv("DT_COMM_COSTS");
}
static int streams(void *arg)
{
    int      rank = atoi(getenv("RANK"));
    dt_comm *c = dt_comm_init(.streams = rank ? 3 : 0, .join_timeout = 1);
    (void)arg;
    return c || !strstr(dt_comm_error(NULL), "rank 1 has .streams 3, rank 0 has 1: all ranks need the same");
}
UTEST(ranks, have_as_many_streams)
{
    EXPECT_EQ(0, dt_spawn(2, streams, NULL));
}

/* ==================================================================================================== >>explained */
/* The line of a collective says what dt_plan_choose says, below, at and above each size at which it changes. */
static int agrees(const char *text, const dt_costs *t, dt_coll coll, int world, const int *host, int link)
{
    char        name[32], algo[32];
    const char *p = text;
    int         bad = 0, changes = 0;
    long long   from;
    snprintf(name, sizeof name, "\n%-15s ", dt_coll_name(coll));
    if (!(p = strstr(text, name))) return 1;
    p += strlen(name);
    dt_algo last = DT_ALGO_COUNT;
    for (int n = 0; sscanf(p, "%lld %31[a-z_]%n", &from, algo, &n) == 2; p += 2) {
        dt_algo now = dt_algo_find(algo);
        bad += dt_plan_choose(t, coll, world, host, link, from, NULL) != now;
        if (last != DT_ALGO_COUNT) bad += dt_plan_choose(t, coll, world, host, link, from - 1, NULL) != last;
        last = now;
        changes++;
        p += n;
        if (*p != ',') break;
    }
    return bad + (*p != '\n') + (coll == DT_COLL_ALLREDUCE && changes < 2);
}
static int explained(void *arg)
{
    char        text[8192], little[40];
    const char *how = (const char *)arg;
    dt_comm    *c = dt_comm_init(.transport = how, .costs = table, .join_timeout = 20);
    int         bad = 0;
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    size_t n = dt_comm_explain(c, text, sizeof text);
    bad += n != strlen(text) || dt_comm_explain(c, little, sizeof little) != n || strlen(little) != sizeof little - 1;
    bad += dt_comm_explain(c, NULL, 0) != n || dt_comm_explain(NULL, little, sizeof little) != 0;
    bad += !strstr(text, how) && !strstr(text, "shared memory");
    bool shm = !strcmp(how, "shm");
    bad += !strstr(text, shm ? "shm " : "loopback ") || !strstr(text, "<- used");
    for (int i = 0; i < DT_COLL_SEND; i++) {
        if (shm && (i == DT_COLL_ALLREDUCE || i == DT_COLL_BARRIER)) {
            bad += !strstr(text, "\nallreduce       0 shared\n");
            continue;
        }
        bad += agrees(text, &c->engine->costs, (dt_coll)i, dt_comm_size(c), NULL, shm ? DT_LINK_SHM : DT_LINK_LOOP);
    }
    float x[64] = { 0 }; /* and it is what runs */
    char  past[8192], want[64];
    int64_t segment;
    dt_comm_broadcast(c, x, 64, DT_COMM_F32, 0);
    dt_comm_history(c, past, sizeof past);
    snprintf(want, sizeof want, "root 0, %s,",
             dt_algo_name(dt__choose(c, DT_COLL_BROADCAST, 64, 4, &segment)));
    bad += !strstr(past, want);
    if (bad) printf("%s", text);
    return bad + (dt_comm_free(c) != 0);
}
UTEST(explained, as_it_is_chosen)
{
    ASSERT_TRUE(set_up());
    dt_costs d = dt_costs_default();
    d.alpha[DT_LINK_LOOP] *= 3; /* not the fixed one */
    d.beta[DT_LINK_SHM] *= 2;
    ASSERT_EQ(0, dt_costs_save(&d, table));
    EXPECT_EQ(0, dt_spawn(4, explained, (void *)(uintptr_t) "tcp"));
    EXPECT_EQ(0, dt_spawn(3, explained, (void *)(uintptr_t) "shm"));
}
static int forced(void *arg) /* "option env": the option wins */
{
    char        text[8192], option[32], env[32], want[64];
    const char *how = getenv("DT_TEST_HOW");
    if (sscanf((const char *)arg, "%31s %31s", option, env) != 2) return 1;
    if (*env != '-') setenv("DT_COMM_ALGO", env, 1);
    dt_comm *c = dt_comm_init(.transport = how, .algo = *option == '-' ? NULL : option, .join_timeout = 20);
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    const char *algo = *option == '-' ? env : option;
    float       x[5] = { 1, 1, 1, 1, 1 };
    bool        takes = strcmp(algo, "shared") || !strcmp(how, "shm"); /* else there is no shared memory */
    int         bad = dt_comm_allreduce(c, x, 5, DT_COMM_F32, DT_COMM_SUM) || x[0] != (float)dt_comm_size(c);
    dt_comm_history(c, text, sizeof text);
    snprintf(want, sizeof want, "root 0, %s,", algo);
    bad += takes != (strstr(text, want) != NULL);
    dt_comm_explain(c, text, sizeof text);
    snprintf(want, sizeof want, "\nallreduce       0 %s\n", algo);
    bad += takes && !strstr(text, want);
    bad += dt_comm_barrier(c) || dt_comm_broadcast(c, x, 5, DT_COMM_F32, 1); /* those that have none go by cost */
    return bad + (dt_comm_free(c) != 0);
}
UTEST(explained, forced_by_option_and_environment)
{
    static const char *const rows[] = { "ring -", "- tree", "halving ring", "shared -", "- blocks" };
    for (int h = 0; h < 2; h++) {
        setenv("DT_TEST_HOW", h ? "tcp" : "shm", 1);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            EXPECT_EQ_MSG(0, dt_spawn(3, forced, (void *)(uintptr_t)rows[i]), rows[i]);
    }
    unsetenv("DT_TEST_HOW");
}

/* ==================================================================================================== >>tuned */
static int tunes(void *arg)
{
    const char *how = (const char *)arg;
    int         rank = atoi(getenv("RANK")), bad = 0, link = !strcmp(how, "tcp") ? DT_LINK_LOOP : DT_LINK_SHM;
    dt_comm    *c = dt_comm_init(.transport = how, .join_timeout = 20), *d;
    dt_costs    fixed = dt_costs_default(), got = fixed, used;
    if (!c) return printf("    %s\n", dt_comm_error(NULL)), 1;
    bad += dt_comm_tune(c, rank ? NULL : table) != 0;
    used = c->engine->costs;
    bad += memcmp(&used, &fixed, sizeof used) != 0; /* nothing has changed here */
    bad += dt_costs_load(&got, table) != 0;         /* it is there when the call returns, on every rank */
    for (int i = 0; i < DT_LINK_COUNT; i++)
        if (i != link) bad += fabs(got.alpha[i] - fixed.alpha[i]) > 1e-12 || fabs(got.beta[i] - fixed.beta[i]) > 1e-15;
    bad += got.alpha[link] == fixed.alpha[link] || got.beta[link] == fixed.beta[link] || got.gamma == fixed.gamma;
    bad += !(got.alpha[link] > 1e-8 && got.alpha[link] < 0.5) || !(got.gamma > 1e-12 && got.gamma < 1e-7);
    if (!rank)
        printf("    %s: %.2f us a message, %.0f MB/s, reducing %.0f MB/s\n", how, got.alpha[link] * 1e6,
               1e-6 / got.beta[link], 1e-6 / got.gamma);
    bad += dt_comm_tune(c, "/nowhere/at/all") >= 0; /* an error on all ranks, and the communicator goes on */
    bad += !strstr(dt_comm_error(NULL), rank ? "rank 0 could not write" : "/nowhere/at/all");
    bad += dt_comm_barrier(c) != 0 || dt_comm_free(c) != 0;
    setenv("DT_COMM_COSTS", table, 1);
    d = dt_comm_init(.transport = how, .join_timeout = 20);
    bad += !d || memcmp(&d->engine->costs, &got, sizeof got) != 0;
    return bad + (dt_comm_free(d) != 0);
}
UTEST(tuned, the_links_there_are)
{
    ASSERT_TRUE(set_up());
    EXPECT_EQ(0, dt_spawn(3, tunes, (void *)(uintptr_t) "shm"));
    EXPECT_EQ(0, dt_spawn(2, tunes, (void *)(uintptr_t) "tcp"));
}
