/* test_join.c - dt_comm.h: finding the world, the handshake, joining, the control tree
   run: alone, long, asan-later */
#define DT_IMPLEMENTATION
#include "harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* the n-th allocation of this process fails, once; -1: none */
static int   fail_at = -1, allocations;
static bool  fail_now(void) { return __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED) == fail_at; }
static void *test_malloc(size_t n) { return fail_now() ? NULL : malloc(n); }
static void *test_realloc(void *p, size_t n) { return fail_now() ? NULL : realloc(p, n); }
#define DT_COMM_MALLOC(n) test_malloc(n)
#define DT_COMM_REALLOC(p, n) test_realloc(p, n)
#define DT_COMM_FREE(p) free(p)
/* a name service: slow.dt.test has no answer for 3 s, own.dt.test is what Debian makes of a machine's own name */
#include <netdb.h>
static int test_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    if (strcmp(name, "slow.dt.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) poll(NULL, 0, 3000);
    if (strcmp(name, "own.dt.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) name = "127.0.1.1";
    return getaddrinfo(name, service, hints, out);
}
#define DT__GETADDRINFO test_getaddrinfo
#include "dt_comm.h"
#include "jobs.h"

/* ==================================================================================================== >>shared */
static job *job_victim(job *j, int victim)
{
    j->victim = victim;
    return j;
}
/* Jobs that mostly wait run at the same time. */
typedef struct errand {
    job *j;
    int  processes;
    int (*fn)(int rank, void *arg);
} errand;
static int errand_run(int i, void *arg)
{
    const errand *e = &((const errand *)arg)[i];
    int           failed = dt_test_ranks(e->processes, 30, e->fn, e->j);
    if (failed) printf("   job %d of those that ran at the same time failed\n", i);
    return failed;
}
static int errands(errand *e, int n) /* then the jobs are gone; 0: all is well */
{
    int failed = dt_test_ranks(n, 40, errand_run, e);
    for (int i = 0; i < n; i++) job_free(e[i].j);
    return failed;
}
static dt__world *join_with(const dt_comm_opts *o)
{
    dt__world *w = dt__world_join(o, &dt__comm_client);
    if (!w) printf("   rank %d: %s\n", o->rank, dt__said.text);
    return w;
}
static dt__world *job_join(const job *j, int rank)
{
    dt_comm_opts o = job_opts(j, rank);
    return join_with(&o);
}
/* It must fail with this in its message, in so many seconds. 0: it does. */
static int join_fails(const dt_comm_opts *o, const char *why, double least, double most)
{
    int64_t    begin = dt__comm_now();
    dt__world *w = dt__world_join(o, &dt__comm_client);
    double     took = (double)(dt__comm_now() - begin) * 1e-9;
    if (!w && strstr(dt__said.text, why) && took >= least && took <= most * dt_test_slow()) return 0;
    return printf("   rank %d after %.1f s: %s\n", o->rank, took, dt__said.text);
}
static void comm_make(dt_comm *c, dt__world *w, uint64_t id, const int *member, int n)
{
    memset(c, 0, sizeof *c);
    c->world = w;
    c->id = id;
    c->size = n;
    c->timeout = 2;
    c->member = (int *)calloc((size_t)n, sizeof *c->member);
    for (int i = 0; i < n; i++) {
        c->member[i] = member ? member[i] : i;
        if (c->member[i] == w->rank) c->rank = i;
    }
    c->failed_rank = -1;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    dt__world_add(w, c);
}
static void comm_drop(dt_comm *c)
{
    dt__world_remove(c->world, c);
    close(c->wake_fd);
    free(c->member);
}
/* One communicator of all ranks of a job: begin, and at the end of a rank's function. */
static dt__world *comm_begin(const job *j, int rank, dt_comm *c)
{
    dt__world *w = job_join(j, rank);
    if (w) comm_make(c, w, 9, NULL, j->n);
    return w;
}
static int comm_end(dt_comm *c, int failed)
{
    dt__world *w = c->world;
    comm_drop(c);
    dt__world_unref(w);
    return failed;
}
static void comm_does(dt_comm *c, dt_coll coll, uint64_t seq, uint64_t done)
{
    __atomic_store_n(&c->doing, (uint32_t)coll + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&c->seq, seq, __ATOMIC_RELEASE);
    __atomic_store_n(&c->done, done, __ATOMIC_RELEASE);
}
static int comm_wait(dt_comm *c, double seconds) /* until it fails */
{
    int64_t deadline = dt__comm_now() + (int64_t)(seconds * dt_test_slow() * 1e9);
    while (dt__comm_ok(c) && dt__comm_now() < deadline) dt__wait_fd(c->wake_fd, POLLIN, deadline);
    return dt__comm_ok(c) ? 0 : __atomic_load_n(&c->status, __ATOMIC_ACQUIRE);
}
static void used(int out[2]) { out[0] = count_in("/proc/self/fd"), out[1] = count_in("/proc/self/task"); }
static int  used_more(const int was[2]) /* 0: nothing was left */
{
    int now[2];
    used(now);
    if (now[0] == was[0] && now[1] == was[1]) return 0;
    return printf("   %d descriptors, were %d; %d threads, were %d\n", now[0], was[0], now[1], was[1]);
}
static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* ==================================================================================================== >>sha */
static const char *hex(const uint8_t *p, size_t n)
{
    static char buf[65];
    for (size_t i = 0; i < n && i < 32; i++) snprintf(buf + 2 * i, 3, "%02x", p[i]);
    return buf;
}
static const char *sha_of(const void *p, size_t n, int times)
{
    dt_sha256 s;
    uint8_t      out[32];
    dt_sha256_begin(&s);
    for (int i = 0; i < times; i++) dt_sha256_add(&s, p, n);
    dt_sha256_end(&s, out);
    return hex(out, 32);
}
static const char *hmac_of(const void *key, size_t nkey, const void *p, size_t n)
{
    dt__hmac m;
    uint8_t       out[32];
    dt__hmac_begin(&m, key, nkey);
    dt__hmac_add(&m, p, n / 2);
    dt__hmac_add(&m, (const char *)p + n / 2, n - n / 2);
    dt__hmac_end(&m, out);
    return hex(out, 32);
}
UTEST(sha, fips_180_vectors)
{
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    EXPECT_STREQ(sha_of("", 0, 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_STREQ(sha_of("abc", 3, 1), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_STREQ(sha_of(two, strlen(two), 1), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_STREQ(sha_of("aaaaaaaaaa", 10, 100000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
UTEST(sha, rfc_4231_vectors)
{
    uint8_t     key[131], data[50];
    const char *big =
        "This is a test using a larger than block-size key and a larger than block-size data. The key needs to "
        "be hashed before being used by the HMAC algorithm.";
    memset(key, 0x0b, sizeof key);
    EXPECT_STREQ(hmac_of(key, 20, "Hi There", 8), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    EXPECT_STREQ(hmac_of("Jefe", 4, "what do ya want for nothing?", 28),
                 "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    EXPECT_STREQ(hmac_of(key, 20, data, 50), "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (int i = 0; i < 25; i++) key[i] = (uint8_t)(i + 1);
    memset(data, 0xcd, sizeof data);
    EXPECT_STREQ(hmac_of(key, 25, data, 50), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    memset(key, 0xaa, sizeof key);
    EXPECT_STREQ(hmac_of(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54),
                 "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    EXPECT_STREQ(hmac_of(key, 131, big, strlen(big)),
                 "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}
UTEST(sha, same_looks_at_every_byte)
{
    uint8_t a[32] = { 0 }, b[32] = { 0 };
    EXPECT_TRUE(dt__same_secret(a, b, 32));
    for (int i = 0; i < 32; i++) {
        b[i] = 0x80;
        EXPECT_FALSE(dt__same_secret(a, b, 32));
        b[i] = 0;
    }
}

/* Does the time of a comparison tell where the first wrong byte is? Two classes, the first byte wrong or the last, in random
   order; Welch's t of the faster samples (the slow ones were interrupted). Above 4.5 they differ. */
static bool early_exit(const uint8_t *a, const uint8_t *b, size_t n) /* the mistake that must be found */
{
    for (size_t i = 0; i < n; i++)
        if (((volatile const uint8_t *)a)[i] != b[i]) return false;
    return true;
}
static bool by_dt(const uint8_t *a, const uint8_t *b, size_t n) { return dt__same_secret(a, b, n); }
static double timing_t(bool (*same)(const uint8_t *, const uint8_t *, size_t), int samples)
{
    enum { EACH = 32 };
    int64_t *took = (int64_t *)calloc((size_t)samples * 2, sizeof *took), *sorted = took + samples;
    uint8_t *of = (uint8_t *)calloc((size_t)samples, 1), a[32], b[2][32];
    double   n[2] = { 0 }, mean[2] = { 0 }, m2[2] = { 0 };
    unsigned seed = 1;
    volatile int hits = 0;
    memset(a, 7, 32);
    memset(b, 7, sizeof b);
    b[0][0] = b[1][31] = 8;
    for (int i = 0; i < samples; i++) {
        of[i] = (uint8_t)(rand_r(&seed) >> 4 & 1);
        int64_t begin = dt__comm_now();
        for (int k = 0; k < EACH; k++) hits += same(a, b[of[i]], 32);
        sorted[i] = took[i] = dt__comm_now() - begin;
    }
    qsort(sorted, (size_t)samples, sizeof *sorted, by_size);
    for (int i = 0; i < samples; i++) {
        if (took[i] > sorted[samples / 10 * 9]) continue;
        int    c = of[i];
        double d = (double)took[i] - mean[c];
        n[c]++;
        mean[c] += d / n[c];
        m2[c] += d * ((double)took[i] - mean[c]);
    }
    double t = fabs(mean[0] - mean[1]) / sqrt(m2[0] / (n[0] - 1) / n[0] + m2[1] / (n[1] - 1) / n[1] + 1e-12);
    free(took);
    free(of);
    return t;
}
UTEST(sha, the_time_of_a_comparison_tells_nothing)
{
    double least = 1e9;
    if (dt_test_quick()) UTEST_SKIP("a statistic of 100,000 samples: not in quick runs");
    for (int i = 0; i < 3 && least >= 4.5; i++) { /* a neighbour's load may shift some samples, not three times */
        double t = timing_t(by_dt, 100000);
        least = t < least ? t : least;
    }
    printf("   t is %.2f; of a comparison that stops early %.0f\n", least, timing_t(early_exit, 100000));
    EXPECT_LT(least, 4.5);
    EXPECT_GT(timing_t(early_exit, 100000), 4.5);
}

/* ==================================================================================================== >>environment */
static char log_text[512];
static int  log_level;
static void log_take(void *user, int level, const char *text)
{
    (void)user;
    log_level = level;
    snprintf(log_text, sizeof log_text, "%s", text);
}
static const char *const variables[] = { "RANK",
                                         "WORLD_SIZE",
                                         "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "DT_ADDR",
                                         "DT_PORT",
                                         "DT_BIND",
                                         "DMLC_ROLE",
                                         "DMLC_NUM_WORKER",
                                         "DMLC_NUM_SERVER",
                                         "DMLC_PS_ROOT_URI",
                                         "DMLC_PS_ROOT_PORT",
                                         "OMPI_COMM_WORLD_RANK",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "OMPI_COMM_WORLD_LOCAL_RANK",
                                         "OMPI_COMM_WORLD_LOCAL_SIZE",
                                         "PMI_RANK",
                                         "PMI_SIZE",
                                         "MPI_LOCALRANKID",
                                         "MPI_LOCALNRANKS",
                                         "PMIX_RANK",
                                         "PMIX_NAMESPACE",
                                         "SLURM_PROCID",
                                         "SLURM_NTASKS",
                                         "SLURM_LOCALID",
                                         "SLURM_NNODES",
                                         "SLURM_STEP_NUM_NODES",
                                         "SLURM_JOB_ID",
                                         "SLURM_STEP_ID",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "DT_INSECURE",
                                         "DT_TOKEN_FD",
                                         "DT_TOKEN_FILE",
                                         "DT_LISTEN_FD",
                                         "DT_REPORT_FD",
                                         "DT_COMM_TIMEOUT",
                                         "DT_RESTART" };
static void              env_set(const char *text) /* "A=1 B=2": these and no other */
{
    char buf[1024], *save = NULL;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    snprintf(buf, sizeof buf, "%s", text);
    for (char *p = strtok_r(buf, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(p, '=');
        *eq = 0;
        setenv(p, eq + 1, 1);
    }
}
static int config(dt__config *f, const char *env)
{
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    env_set(env);
    dt__said.text[0] = 0;
    return dt__config_read(f, &o);
}
#define DMLC(role, workers, servers)                                                                          \
    "DMLC_ROLE=" role " DMLC_NUM_WORKER=" workers " DMLC_NUM_SERVER=" servers " DMLC_PS_ROOT_URI=127.0.0.1 " \
    "DMLC_PS_ROOT_PORT=9000"
UTEST(environment, every_launcher)
{
    static const struct {
        const char *env, *where;
        int         rank, world, port, local, ticket;
    } rows[] = {
        { "", "no launcher: a world of one", 0, 1, 0, 0, 0 },
        { "RANK=0 WORLD_SIZE=1", "RANK and WORLD_SIZE", 0, 1, 0, 0, 0 },
        { "RANK=2 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=2950", "RANK and WORLD_SIZE", 2, 4, 2950, 1, 1 },
        { "RANK=2 WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=2950", "RANK and WORLD_SIZE", 2, 4, 2950, 1, 1 },
        { "RANK=2 WORLD_SIZE=4 MASTER_ADDR=::1 MASTER_PORT=2950", "RANK and WORLD_SIZE", 2, 4, 2950, 1, 1 },
        { "RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_PORT=65535", "RANK and WORLD_SIZE", 3, 4, 65535,
          1, 1 },
        { "RANK=3 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.1.2.3 MASTER_PORT=1", "RANK and WORLD_SIZE", 3, 4, 1,
          1, 1 },
        { "RANK=1 WORLD_SIZE=4 MASTER_ADDR=10.1.2.3 MASTER_PORT=2950 DT_INSECURE=1", "RANK and WORLD_SIZE", 1, 4, 2950,
          0, 0 },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=2950 TORCHELASTIC_USE_AGENT_STORE=True",
          "RANK and WORLD_SIZE", 1, 2, 2951, 1, 1 },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=2950 TORCHELASTIC_USE_AGENT_STORE=True DT_PORT=77",
          "RANK and WORLD_SIZE", 1, 2, 77, 1, 1 },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.1.2.3 DT_ADDR=127.0.0.1 MASTER_PORT=2950", "RANK and WORLD_SIZE", 1, 2,
          2950, 1, 1 },
        { "RANK=1 WORLD_SIZE=2 MASTER_PORT=9 MASTER_ADDR=127.0.0.1 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=9",
          "RANK and WORLD_SIZE", 1, 2, 9, 1, 1 },
        { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=3",
          "OMPI_COMM_WORLD_RANK", 1, 3, 0, 1, 1 },
        { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 DT_ADDR=127.0.0.1 DT_PORT=99", "OMPI_COMM_WORLD_RANK", 1, 3,
          99, 1, 1 },
        { "PMI_RANK=1 PMI_SIZE=3 MPI_LOCALNRANKS=3 MPI_LOCALRANKID=1", "PMI_RANK", 1, 3, 0, 1, 1 },
        { "PMIX_RANK=1 SLURM_NTASKS=3 SLURM_NNODES=1 SLURM_JOB_ID=5 SLURM_STEP_ID=0", "PMIX_RANK", 1, 3, 0, 1, 1 },
        { "SLURM_PROCID=1 SLURM_NTASKS=3 SLURM_LOCALID=1 SLURM_NNODES=1 SLURM_JOB_ID=5", "SLURM_PROCID", 1, 3, 0, 1,
          1 },
        { "SLURM_PROCID=1 SLURM_NTASKS=3 MASTER_ADDR=10.0.0.1 MASTER_PORT=5 DT_INSECURE=1", "SLURM_PROCID", 1, 3, 5, 0,
          0 },
        { "SLURM_NTASKS=3", "no launcher: a world of one", 0, 1, 0, 0, 0 },
        { DMLC("scheduler", "3", "2"), "DMLC_ROLE", 0, 6, 9000, 1, 1 },
        { DMLC("worker", "3", "0"), "DMLC_ROLE", DT__RANK_WORKER, 4, 9000, 1, 1 },
        { DMLC("server", "3", "2") " DT_PORT=77", "DMLC_ROLE", DT__RANK_SERVER, 6, 77, 1, 1 },
        { DMLC("server", "3", "2") " MASTER_ADDR=10.0.0.1 MASTER_PORT=5", "DMLC_ROLE", DT__RANK_SERVER, 6, 9000, 1, 1 },
        { DMLC("worker", "3", "2") " OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3", "DMLC_ROLE", DT__RANK_WORKER, 6, 9000, 1, 1 },
        { DMLC("worker", "3", "2") " SLURM_PROCID=1 SLURM_NTASKS=3", "DMLC_ROLE", DT__RANK_WORKER, 6, 9000, 1, 1 },
        { DMLC("worker", "3", "2") " RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5", "RANK and WORLD_SIZE", 1, 2, 5, 1, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dt__config f;
        EXPECT_EQ_MSG(config(&f, rows[i].env), 0, rows[i].env);
        EXPECT_STREQ_MSG(f.where, rows[i].where, rows[i].env);
        EXPECT_EQ_MSG(f.rank, rows[i].rank, rows[i].env);
        EXPECT_EQ_MSG(f.world, rows[i].world, rows[i].env);
        EXPECT_EQ_MSG(f.port, rows[i].port, rows[i].env);
        EXPECT_EQ_MSG((int)f.local, rows[i].local, rows[i].env);
        EXPECT_EQ_MSG((int)f.ticket, rows[i].ticket, rows[i].env);
        if (f.local && f.naddr) EXPECT_TRUE_MSG(dt__addr_is_loopback(&f.addr[0]), rows[i].env);
    }
    env_set("");
}
UTEST(environment, bad_values_are_named)
{
    static const char *const rows[][2] = {
        { "RANK=x WORLD_SIZE=4", "RANK is 'x', expected a number from 0 to 3" },
        { "RANK= WORLD_SIZE=4", "RANK is ''" },
        { "RANK=4 WORLD_SIZE=4", "RANK is '4'" },
        { "RANK=-1 WORLD_SIZE=4", "RANK is '-1'" },
        { "RANK=1x WORLD_SIZE=4", "RANK is '1x'" },
        { "RANK=99999999999999999999999 WORLD_SIZE=4", "RANK is '99999" },
        { "RANK=1 WORLD_SIZE=0", "WORLD_SIZE is '0'" },
        { "RANK=1 WORLD_SIZE=1000000", "WORLD_SIZE is '1000000'" },
        { "RANK=1", "WORLD_SIZE is not set, but RANK is" },
        { "WORLD_SIZE=2", "RANK is not set, but WORLD_SIZE is" },
        { "RANK=1 WORLD_SIZE=2 LOCAL_RANK=z", "LOCAL_RANK is 'z'" },
        { "RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE is '3'" },
        { "RANK=1 WORLD_SIZE=2", "MASTER_ADDR is not set" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", "MASTER_PORT is not set" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=70000", "MASTER_PORT is '70000'" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=-5", "MASTER_PORT is '-5'" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 DT_PORT=p", "DT_PORT is 'p'" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
          "set DT_PORT" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=300.0.0.1.2 MASTER_PORT=5", "MASTER_ADDR is '300.0.0.1.2'" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=5", "need a token" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 DT_TOKEN_FILE=/nowhere/token",
          "DT_TOKEN_FILE is '/nowhere/token'" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 DT_TOKEN_FD=x", "DT_TOKEN_FD is 'x'" },
        { "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 DT_TOKEN_FD=1023", "DT_TOKEN_FD is 1023" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 DT_LISTEN_FD=x", "DT_LISTEN_FD is 'x'" },
        { "RANK=0 WORLD_SIZE=1 DT_REPORT_FD=0", "DT_REPORT_FD is '0'" },
        { "RANK=0 WORLD_SIZE=1 DT_COMM_TIMEOUT=fast", "DT_COMM_TIMEOUT is 'fast'" },
        { "RANK=0 WORLD_SIZE=1 DT_COMM_TIMEOUT=0", "DT_COMM_TIMEOUT is '0'" },
        { "RANK=0 WORLD_SIZE=1 DT_RESTART=-1", "DT_RESTART is '-1'" },
        { "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not set" },
        { "OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is '7'" },
        { "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2", "MASTER_ADDR is not set" },
        { "PMI_RANK=1", "PMI_SIZE is not set" },
        { "PMIX_RANK=1", "SLURM_NTASKS is not set" },
        { "SLURM_PROCID=1 SLURM_NTASKS=two", "SLURM_NTASKS is 'two'" },
        { "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NNODES=2", "MASTER_ADDR is not set" },
        { DMLC("joint", "3", "2"), "DMLC_ROLE is 'joint', expected scheduler, server or worker" },
        { DMLC("", "3", "2"), "DMLC_ROLE is ''" },
        { "DMLC_NUM_WORKER=3", "DMLC_ROLE is not set, but DMLC_NUM_WORKER is" },
        { "DMLC_ROLE=worker DMLC_NUM_SERVER=1", "DMLC_NUM_WORKER is not set, but DMLC_ROLE is" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1", "DMLC_NUM_SERVER is not set, but DMLC_ROLE is" },
        { DMLC("worker", "0", "2"), "DMLC_NUM_WORKER is '0', expected a number from 1" },
        { DMLC("worker", "two", "2"), "DMLC_NUM_WORKER is 'two'" },
        { DMLC("worker", "1", "-1"), "DMLC_NUM_SERVER is '-1', expected a number from 0" },
        { DMLC("worker", "99999999999", "1"), "DMLC_NUM_WORKER is '99999999999'" },
        { DMLC("worker", "60000", "60000"), "with the scheduler there are 120001 ranks, expected at most 65536" },
        { DMLC("server", "3", "0"), "DMLC_ROLE is 'server', but DMLC_NUM_SERVER is 0" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1", "DMLC_PS_ROOT_URI is not set" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=5", "DMLC_PS_ROOT_URI is not set" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT is not set" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_PORT=0", "DMLC_PS_ROOT_PORT is '0', expected a number from 1 to 65535" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_PORT=9000 DMLC_PS_ROOT_URI=300.0.0.1.2", "DMLC_PS_ROOT_URI is '300.0.0.1.2'" },
        { "DMLC_ROLE=worker DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1 DMLC_PS_ROOT_PORT=9000 DMLC_PS_ROOT_URI=10.0.0.1", "need a token" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dt__config f;
        EXPECT_LT_MSG(config(&f, rows[i][0]), 0, rows[i][0]);
        EXPECT_TRUE_MSG(strstr(dt__said.text, rows[i][1]) != NULL, dt__said.text);
    }
    env_set("");
}
UTEST(environment, options_come_first)
{
    dt__config   f;
    dt_comm_opts o;
    env_set("RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=5 DT_RESTART=4 DT_COMM_TIMEOUT=7.5");
    memset(&o, 0, sizeof o);
    o.rank = 2;
    o.world = 3;
    o.addr = "127.0.0.1";
    o.port = 99;
    EXPECT_EQ(dt__config_read(&f, &o), 0);
    EXPECT_STREQ(f.where, "options");
    EXPECT_EQ(f.port, 99);
    EXPECT_EQ(f.epoch, 4);
    EXPECT_EQ(f.timeout, 7.5);
    EXPECT_TRUE(f.local);
    o.rank = 3;
    EXPECT_LT(dt__config_read(&f, &o), 0);
    EXPECT_TRUE(strstr(dt__said.text, ".rank is 3") != NULL);
    o.rank = 0;
    o.world = -3;
    EXPECT_LT(dt__config_read(&f, &o), 0);
    EXPECT_TRUE(strstr(dt__said.text, ".world is -3") != NULL);
    o.world = 3;
    o.port = 65536;
    EXPECT_LT(dt__config_read(&f, &o), 0);
    o.port = 0;
    o.addr = NULL;
    env_set("");
    EXPECT_LT(dt__config_read(&f, &o), 0);
    EXPECT_TRUE(strstr(dt__said.text, ".addr and .port") != NULL);
}
UTEST(environment, token_files)
{
    char    dir[] = "/tmp/dt_join_XXXXXX", path[64], link_path[64];
    uint8_t token[32], want[32], text[100];
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/token", dir);
    snprintf(link_path, sizeof link_path, "%s/link", dir);
    static const struct {
        int         n, mode;
        const char *why; /* NULL: good */
    } rows[] = { { 32, 0600, NULL },
                 { 64, 0600, NULL },
                 { 65, 0600, NULL },
                 { 64, 0400, NULL },
                 { 0, 0600, "holds 0 bytes" },
                 { 31, 0600, "holds 31 bytes" },
                 { 63, 0600, "holds 63 bytes" },
                 { 32, 0644, "chmod 600" },
                 { 32, 0620, "chmod 600" },
                 { 66, 0600, NULL },
                 { 80, 0600, "bytes" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < 32; k++) want[k] = (uint8_t)(7 * k + 200);
        for (int k = 0; k < 32; k++) snprintf((char *)text + 2 * k, 3, k % 2 ? "%02x" : "%02X", want[k]);
        memset(text + 64, rows[i].n == 80 ? 'z' : '\n', sizeof text - 64);
        int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        ASSERT_EQ(write(fd, rows[i].n <= 32 ? want : text, (size_t)rows[i].n), rows[i].n);
        fchmod(fd, (mode_t)rows[i].mode);
        close(fd);
        int got = dt__token_read_file(path, "DT_TOKEN_FILE", token);
        EXPECT_EQ(got, rows[i].why ? DT_COMM_ERR_ARG : 1);
        if (rows[i].why) EXPECT_TRUE_MSG(strstr(dt__said.text, rows[i].why) != NULL, dt__said.text);
        else EXPECT_TRUE(memcmp(token, want, 32) == 0);
        unlink(path);
    }
    ASSERT_EQ(mkfifo(path, 0600), 0); /* does not wait for a writer */
    EXPECT_LT(dt__token_read_file(path, "DT_TOKEN_FILE", token), 0);
    ASSERT_EQ(symlink(path, link_path), 0);
    EXPECT_LT(dt__token_read_file(link_path, "DT_TOKEN_FILE", token), 0);
    EXPECT_TRUE(strstr(dt__said.text, "symbolic link") != NULL);
    unlink(link_path);
    unlink(path);
    rmdir(dir);
    int tube[2];
    ASSERT_EQ(pipe(tube), 0);
    ASSERT_EQ(write(tube[1], want, 10), 10);
    close(tube[1]);
    EXPECT_LT(dt__token_read_fd(tube[0], "DT_TOKEN_FD", token), 0);
    EXPECT_TRUE(strstr(dt__said.text, "holds 10 bytes") != NULL);
    EXPECT_EQ(fcntl(tube[0], F_GETFD), -1);
}
UTEST(environment, tokens_by_descriptor)
{
    uint8_t token[32], want[32];
    char    hex[80], path[] = "/tmp/dt_join_XXXXXX";
    for (int k = 0; k < 32; k++) want[k] = (uint8_t)(5 * k + 130);
    for (int k = 0; k < 32; k++) snprintf(hex + 2 * k, 3, "%02x", want[k]);
    memset(hex + 64, '\n', sizeof hex - 64);
    for (int n = 0; n <= 80; n++) /* files of every length: raw bytes up to 33, then digits and newlines */
        for (int at = 0; at < 2; at++) {
            int fd = mkstemp(path);
            ASSERT_GE(fd, 0);
            unlink(path);
            memcpy(path + strlen(path) - 6, "XXXXXX", 6);
            uint8_t raw[34];
            for (int k = 0; k < 34; k++) raw[k] = want[k % 32];
            ASSERT_EQ(write(fd, n <= 33 ? (const char *)raw : hex, (size_t)n), n);
            if (at == 0) lseek(fd, 0, SEEK_SET); /* the offset means nothing */
            int  heir = dup(fd), got = dt__token_read_fd(fd, "DT_TOKEN_FD", token);
            bool good = n == 32 || n >= 64;
            EXPECT_EQ(good ? 1 : DT_COMM_ERR_ARG, got);
            if (good) EXPECT_TRUE(memcmp(token, want, 32) == 0);
            EXPECT_EQ(fcntl(fd, F_GETFD), -1);
            EXPECT_EQ((off_t)(at ? n : 0), lseek(heir, 0, SEEK_CUR)); /* as it was */
            close(heir);
        }
    for (int n = 0; n <= 32; n += 8) { /* a pipe, in two pieces; its writer may stay */
        int tube[2];
        ASSERT_EQ(pipe(tube), 0);
        ASSERT_EQ(write(tube[1], want, (size_t)n / 2), n / 2);
        ASSERT_EQ(write(tube[1], want + n / 2, (size_t)(n - n / 2)), n - n / 2);
        if (n < 32) close(tube[1]);
        EXPECT_EQ(n == 32 ? 1 : DT_COMM_ERR_ARG, dt__token_read_fd(tube[0], "DT_TOKEN_FD", token));
        EXPECT_EQ(fcntl(tube[0], F_GETFD), -1);
        if (n == 32) close(tube[1]);
    }
    int dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_GE(dir, 0);
    EXPECT_LT(dt__token_read_fd(dir, "DT_TOKEN_FD", token), 0); /* reading fails: it is closed all the same */
    EXPECT_EQ(fcntl(dir, F_GETFD), -1);
}
UTEST(environment, a_world_of_one_has_no_sockets_and_no_thread)
{
    dt_comm_opts o;
    int          fds = count_in("/proc/self/fd"), threads = count_in("/proc/self/task"), who = -1;
    int64_t      y = 0;
    memset(&o, 0, sizeof o);
    env_set("");
    dt__world *w = dt__world_join(&o, &dt__comm_client);
    ASSERT_TRUE(w != NULL);
    EXPECT_EQ(count_in("/proc/self/fd"), fds);
    EXPECT_EQ(count_in("/proc/self/task"), threads);
    EXPECT_EQ(dt__world_meet(w, 5, &y, &who), 0);
    EXPECT_EQ(y, (int64_t)5);
    EXPECT_EQ(who, 0);
    EXPECT_EQ(w->local_size, 1);
    EXPECT_EQ(w->nhosts, 1);
    dt__world_unref(w);
}
static int slow_name_rank(int rank, void *arg)
{
    dt_comm_opts o = job_opts((job *)arg, 0);
    (void)rank;
    o.addr = "slow.dt.test";
    o.listen_fd = 0;
    o.join_timeout = 0.5;
    if (join_fails(&o, "dt_comm_init: .addr is 'slow.dt.test': the name service gave no answer", 0.4, 1.5)) return 1;
    o.addr = "127.0.0.1";
    o.bind = "slow.dt.test"; /* also where to listen */
    return join_fails(&o, "the address to listen at is 'slow.dt.test': the name service gave no answer", 0.4, 1.5);
}
UTEST(environment, a_name_that_only_this_machine_resolves_to_loopback)
{
    dt__config f;
    dt_set_log(log_take, NULL);
    EXPECT_LT(config(&f, "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=own.dt.test MASTER_PORT=5 DT_INSECURE=1"), 0);
    EXPECT_TRUE_MSG(strstr(dt__said.text, "MASTER_ADDR is 'own.dt.test', which is 127.0.1.1:5 on this machine, a loopback address, but "
                                          "only 2 of the 4 ranks are here") != NULL, dt__said.text);
    EXPECT_TRUE_MSG(strstr(dt__said.text, "/etc/hosts") != NULL, dt__said.text);
    log_text[0] = 0; /* where the ranks are is not known: it may be meant so */
    EXPECT_EQ(config(&f, "RANK=0 WORLD_SIZE=4 MASTER_ADDR=own.dt.test MASTER_PORT=5 DT_INSECURE=1"), 0);
    EXPECT_TRUE_MSG(strstr(log_text, "ranks of other machines cannot reach it") != NULL, log_text);
    log_text[0] = 0; /* all are here */
    EXPECT_EQ(config(&f, "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=own.dt.test MASTER_PORT=5"), 0);
    EXPECT_EQ(config(&f, "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 DT_INSECURE=1"), 0);
    EXPECT_EQ(config(&f, "RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=5 DT_INSECURE=1"), 0);
    EXPECT_STREQ(log_text, "");
    dt_set_log(NULL, NULL);
    env_set("");
}
UTEST(environment, one_line_tells_where_the_world_came_from)
{
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    env_set("RANK=0 WORLD_SIZE=1");
    dt_set_log(log_take, NULL);
    dt__world *w = dt__world_join(&o, &dt__comm_client);
    dt_set_log(NULL, NULL);
    ASSERT_TRUE(w != NULL);
    EXPECT_EQ(log_level, 3);
    EXPECT_TRUE_MSG(strstr(log_text, "RANK and WORLD_SIZE") != NULL, log_text);
    dt__world_unref(w);
    env_set("");
}

/* ==================================================================================================== >>handshake
   Two ends and a wire between them that the test holds in its hands. */
typedef struct wire {
    int a[2], b[2];    /* client side, server side */
    int message, byte; /* flip this byte of this message */
    int seen;
} wire;
static void wire_open(wire *v)
{
    memset(v, 0, sizeof *v);
    v->message = -1;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, v->a) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, v->b))
        abort();
}
static void wire_close(wire *v)
{
    for (int i = 0; i < 2; i++) {
        if (v->a[i] >= 0) close(v->a[i]);
        if (v->b[i] >= 0) close(v->b[i]);
    }
}
static void wire_move(wire *v, int from, int to) /* each message comes whole here */
{
    uint8_t buf[512];
    ssize_t n = recv(from, buf, sizeof buf, 0);
    if (n <= 0) {
        if (n == 0) shutdown(to, SHUT_WR);
        return;
    }
    if (v->seen++ == v->message) buf[v->byte] ^= 1 << (v->byte % 8);
    if (send(to, buf, (size_t)n, MSG_NOSIGNAL) != n) return;
}
static void shake_run(wire *v, dt__shake *c, dt__shake *s, int *client, int *server)
{
    *client = *server = 0;
    for (int i = 0; i < 50 && (*client == 0 || *server == 0); i++) {
        if (*server == 0) {
            *server = dt__shake_step(s, v->b[1]);
            if (*server == DT__SHAKE_DECIDE) {
                dt__shake_reply(s, 0, "");
                *server = dt__shake_step(s, v->b[1]);
            }
            if (*server < 0) shutdown(v->b[1], SHUT_RDWR);
        }
        wire_move(v, v->b[0], v->a[0]);
        if (*client == 0) {
            *client = dt__shake_step(c, v->a[1]);
            if (*client < 0) shutdown(v->a[1], SHUT_RDWR);
        }
        wire_move(v, v->a[0], v->b[0]);
    }
}
typedef struct talk { /* a client (rank 2 of 4) and a server (rank 0), and what became of it */
    wire      v;
    dt__world ws, wc;
    dt__shake s, c;
    int       client, server;
} talk;
static void talk_begin(talk *t, uint8_t token, int kind) /* token: the client's; the server's is 1 */
{
    world_fake(&t->ws, 0, 4, 1);
    world_fake(&t->wc, 2, 4, token);
    wire_open(&t->v);
    dt__shake_server(&t->s, &t->ws);
    dt__shake_client(&t->c, &t->wc, 0, kind, 77, 5);
}
static void talk_run(talk *t)
{
    shake_run(&t->v, &t->c, &t->s, &t->client, &t->server);
    wire_close(&t->v);
}
UTEST(handshake, both_sides_agree)
{
    talk t;
    talk_begin(&t, 1, DT__KIND_LINK);
    talk_run(&t);
    EXPECT_EQ(t.client, DT__SHAKE_DONE);
    EXPECT_EQ(t.server, DT__SHAKE_DONE);
    EXPECT_EQ(t.s.c.comm, (uint64_t)77);
    EXPECT_EQ(t.s.c.stream, 5);
    EXPECT_EQ(t.s.c.rank, 2);
}
UTEST(handshake, every_flipped_byte_is_refused)
{
    static const int size[3] = { sizeof(dt__hello_s), sizeof(dt__hello_c), sizeof(dt__hello_r) };
    int              accepted = 0;
    for (int kind = DT__KIND_REGISTER; kind <= DT__KIND_LINK; kind += 2)
        for (int m = 0; m < 3; m++)
            for (int byte = 0; byte < size[m]; byte++) {
                talk t;
                talk_begin(&t, 1, kind);
                t.v.message = m;
                t.v.byte = byte;
                talk_run(&t);
                accepted += t.client >= 0 || (m < 2 && t.server >= 0);
            }
    EXPECT_EQ(accepted, 0);
}
UTEST(handshake, other_token_replay_and_reflection)
{
    talk        t;
    dt__hello_c old;
    talk_begin(&t, 2, DT__KIND_LINK); /* another token */
    talk_run(&t);
    EXPECT_EQ(t.server, DT__SHAKE_AUTH);
    EXPECT_EQ(t.client, DT__SHAKE_AUTH);
    /* a whole conversation, recorded and sent again */
    talk_begin(&t, 1, DT__KIND_LINK);
    talk_run(&t);
    old = t.s.c;
    talk_begin(&t, 1, DT__KIND_LINK);
    dt__shake_step(&t.s, t.v.b[1]);
    ASSERT_EQ(send(t.v.b[0], &old, sizeof old, 0), (ssize_t)sizeof old);
    EXPECT_EQ(dt__shake_step(&t.s, t.v.b[1]), DT__SHAKE_AUTH);
    wire_close(&t.v);
    /* the client's own proof comes back as the server's */
    talk_begin(&t, 1, DT__KIND_LINK);
    ASSERT_EQ(send(t.v.a[0], &t.s.s, sizeof t.s.s, 0), (ssize_t)sizeof t.s.s);
    EXPECT_EQ(dt__shake_step(&t.c, t.v.a[1]), DT__SHAKE_AGAIN);
    dt__hello_r r;
    memset(&r, 0, sizeof r);
    r.magic = DT__SHAKE_MAGIC;
    memcpy(r.mac, t.c.c.mac, 32);
    ASSERT_EQ(send(t.v.a[0], &r, sizeof r, 0), (ssize_t)sizeof r);
    EXPECT_EQ(dt__shake_step(&t.c, t.v.a[1]), DT__SHAKE_AUTH);
    wire_close(&t.v);
}
UTEST(handshake, what_is_not_dt_is_known_by_its_first_bytes)
{
    static const char *const rows[] = { "GET /metrics HTTP/1.1\r\n", "\x16\x03\x01\x02", "\x6d\x9c\x4b\xfc", "D",
                                        "DTK" };
    for (int i = 0; i < 5; i++) {
        talk t;
        talk_begin(&t, 1, DT__KIND_LINK);
        ASSERT_EQ(send(t.v.b[0], rows[i], strlen(rows[i]), 0), (ssize_t)strlen(rows[i]));
        EXPECT_EQ(dt__shake_step(&t.s, t.v.b[1]), i < 3 ? DT__SHAKE_NOT_DT : DT__SHAKE_AGAIN);
        wire_close(&t.v);
    }
}

/* ==================================================================================================== >>joining */
DT_TEST_RANK(join_rank)
{
    job    *j = (job *)arg;
    int64_t    begin = dt__comm_now();
    dt__world *w = job_join(j, rank);
    j->took[rank] = dt__comm_now() - begin;
    ASSERT_TRUE(w != NULL);
    dt_sha256 s;
    uint8_t      sum[32];
    dt_sha256_begin(&s);
    dt_sha256_add(&s, w->member, (size_t)w->size * sizeof *w->member);
    dt_sha256_add(&s, w->job, 16);
    dt_sha256_end(&s, sum);
    int64_t mine, most = 0; /* all have the same if the largest is this one's, and the largest of the negatives, too */
    memcpy(&mine, sum, sizeof mine);
    EXPECT_EQ(dt__world_meet(w, mine, &most, NULL), 0);
    EXPECT_EQ(most, mine);
    EXPECT_EQ(dt__world_meet(w, ~mine, &most, NULL), 0);
    EXPECT_EQ(most, ~mine);
    EXPECT_EQ(w->nhosts, 1);
    EXPECT_EQ(w->local_rank, rank);
    EXPECT_EQ(w->local_size, j->n);
    EXPECT_EQ(w->member[rank].pid, (int64_t)getpid());
    dt__world_unref(w);
}
UTEST(joining, all_ranks_have_the_same_table)
{
    static const int sizes[] = { 1, 2, 5, 17, 40, 64 };
    for (int i = 0; i < 6; i++) {
        job *j = job_new(sizes[i]);
        EXPECT_EQ(dt_test_ranks(sizes[i], 20, join_rank, j), 0);
        printf("   %d ranks joined in %.0f ms\n", sizes[i], job_worst(j) * 1e3);
        EXPECT_LT(job_worst(j), 2 * dt_test_slow());
        job_free(j);
    }
}
static int listener_rank(int rank, void *arg)
{
    job       *j = (job *)arg;
    dt__world *w = job_join(j, rank);
    char       line[512], path[64], name[64];
    int        failed = !w, found = 0;
    for (int six = 0; six < 2 && w; six++) {
        FILE *f = fopen(six ? "/proc/net/tcp6" : "/proc/net/tcp", "r");
        while (f && fgets(line, sizeof line, f)) {
            char          local[64];
            unsigned      state;
            unsigned long inode;
            if (sscanf(line, " %*d: %63s %*s %x %*s %*s %*s %*d %*d %lu", local, &state, &inode) != 3 || state != 10)
                continue;
            for (int fd = 0; fd < 64; fd++) {
                snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
                ssize_t n = readlink(path, name, sizeof name - 1);
                if (n < 0) continue;
                name[n] = 0;
                snprintf(path, sizeof path, "socket:[%lu]", inode);
                if (strcmp(name, path) != 0) continue;
                found++;
                if (strncmp(local, six ? "00000000000000000000000001000000:" : "0100007F:", six ? 33 : 9) != 0)
                    failed = printf("   rank %d listens at %s\n", rank, local) > 0;
            }
        }
        if (f) fclose(f);
    }
    if (w) dt__world_unref(w);
    return failed || found < 1;
}
UTEST(joining, a_local_job_listens_at_loopback_only)
{
    EXPECT_EQ(job_run(job_new(3), 3, 20, listener_rank), 0);
}
static int six_rank(int rank, void *arg)
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    o.addr = "::1";
    o.listen_fd = 0;
    dt__world *w = join_with(&o);
    if (!w) return 1;
    bool six = w->member[rank].addr_len == sizeof(struct sockaddr_in6);
    dt__world_unref(w);
    return six ? 0 : 1;
}
UTEST(joining, over_ipv6)
{
    job     *j = job_new(3);
    dt__addr a;
    memset(&a, 0, sizeof a);
    a.u.v6.sin6_family = AF_INET6;
    a.u.v6.sin6_addr = in6addr_loopback;
    a.n = sizeof a.u.v6;
    int fd = dt__listen(&a);
    if (fd < 0) {
        job_free(j);
        UTEST_SKIP("no IPv6 here");
    }
    close(fd);
    EXPECT_EQ(dt_test_ranks(3, 20, six_rank, j), 0);
    job_free(j);
}
static int ompi_rank(int rank, void *arg)
{
    char env[256];
    job *j = (job *)arg;
    snprintf(env, sizeof env, "OMPI_COMM_WORLD_RANK=%d OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=3", rank);
    env_set(env);
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    o.join_timeout = j->join_timeout;
    if (j->token_file[0]) o.token_file = j->token_file;
    dt__world *w = join_with(&o);
    if (!w) return 1;
    int failed = w->ticket_token != (rank == 0 && !o.token_file) || w->size != 3 || strcmp(w->where, "OMPI_COMM_WORLD_RANK") != 0;
    dt__world_unref(w);
    return failed;
}
UTEST(joining, ranks_of_one_parent_need_no_address)
{
    EXPECT_EQ(job_run(job_new(3), 3, 20, ompi_rank), 0);
    EXPECT_EQ(job_run(job_token(job_new(3)), 3, 20, ompi_rank), 0);
}
/* Another job of this user has the same socket name, or listens there: it gets no token and gives no address. */
UTEST(joining, a_ticket_belongs_to_its_token)
{
    dt__config   f[3];
    dt_comm_opts o;
    dt__world    w[3];
    dt__ticket   t;
    job         *j[2] = { job_token(job_new(2)), job_token(job_new(2)) };
    env_set("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2");
    for (int i = 0; i < 3; i++) { /* two tokens, and none */
        memset(&o, 0, sizeof o);
        if (i < 2) o.token_file = j[i]->token_file;
        ASSERT_EQ(dt__config_read(&f[i], &o), 0);
        ASSERT_TRUE(f[i].ticket);
        world_fake(&w[i], 1, 2, 0);
        memcpy(w[i].token, f[i].token, 32);
    }
    EXPECT_STRNE(f[0].name, f[1].name);
    EXPECT_STRNE(f[0].name, f[2].name);
    dt__addr a;
    dt__addr_loopback(&a, 7);
    memset(&t, 0, sizeof t);
    t.magic = DT__SHAKE_MAGIC;
    t.version = DT__SHAKE_VERSION;
    memcpy(t.addr, &a.u, a.n);
    t.addr_len = a.n;
    dt__ticket_mac(&t, w[0].token, t.mac);
    EXPECT_EQ(dt__ticket_read(&f[0], &w[0], &t), 1);
    EXPECT_EQ(dt__addr_port(&f[0].addr[0]), 7);
    EXPECT_EQ(dt__ticket_read(&f[1], &w[1], &t), 0);
    EXPECT_EQ(f[1].naddr, 0);
    t.addr[3] ^= 1; /* another port */
    EXPECT_EQ(dt__ticket_read(&f[0], &w[0], &t), 0);
    env_set("");
    job_free(j[0]);
    job_free(j[1]);
}
static bool outside(dt__addr *a)
{
    dt__addr far;
    dt__addr_loopback(&far, 9);
    far.u.v4.sin_addr.s_addr = htonl(0xc6336401); /* 198.51.100.1: nothing is sent, the route is looked up */
    return dt__addr_route(&far, a) && !dt__addr_is_loopback(a);
}
static int outside_rank(int rank, void *arg) /* at the address of a network card: all listen there and nowhere else */
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    char         host[INET_ADDRSTRLEN];
    dt__addr     a;
    outside(&a);
    inet_ntop(AF_INET, &a.u.v4.sin_addr, host, sizeof host);
    o.addr = host;
    o.listen_fd = 0;
    o.token_file = NULL;
    if (dt__world_join(&o, &dt__comm_client) || !strstr(dt__said.text, "need a token")) return printf("   %s\n", dt__said.text);
    o.token_file = j->victim ? NULL : j->token_file;
    o.insecure = j->victim == 1;
    dt__world *w = join_with(&o);
    if (!w) return 1;
    dt__addr at;
    int      failed = 0;
    for (int r = 0; r < 3; r++) {
        dt__addr_take(&at, w->member[r].addr, w->member[r].addr_len);
        failed |= at.u.v4.sin_addr.s_addr != a.u.v4.sin_addr.s_addr;
    }
    at.n = sizeof at.u;
    getsockname(w->listen_fd, &at.u.any, &at.n);
    failed |= at.u.v4.sin_addr.s_addr != a.u.v4.sin_addr.s_addr;
    dt__world_unref(w);
    return failed;
}
UTEST(joining, ranks_of_several_machines_need_a_token)
{
    dt__addr a;
    if (!outside(&a)) UTEST_SKIP("no network card with a route");
    for (int i = 0; i < 2; i++) /* a token; .insecure */
        EXPECT_EQ(job_run(job_victim(job_token(job_new(3)), i), 3, 20, outside_rank), 0);
}
UTEST(joining, machines_are_numbered_in_the_order_of_ranks)
{
    static const int id[7] = { 5, 9, 5, 1, 9, 9, 5 }, host[7] = { 0, 1, 0, 2, 1, 1, 0 },
                     local[7] = { 0, 0, 1, 0, 1, 2, 2 };
    dt__member m[7];
    dt__world  w;
    memset(m, 0, sizeof m);
    world_fake(&w, 4, 7, 0);
    w.member = m;
    for (int r = 0; r < 7; r++) m[r].host_id[15] = (uint8_t)id[r];
    dt__table_finish(&w);
    for (int r = 0; r < 7; r++) {
        EXPECT_EQ(m[r].host, host[r]);
        EXPECT_EQ(m[r].local, local[r]);
    }
    EXPECT_EQ(w.nhosts, 3);
    EXPECT_EQ(w.local_rank, 1);
    EXPECT_EQ(w.local_size, 3);
}
static int missing_rank(int rank, void *arg)
{
    dt_comm_opts o = job_opts((job *)arg, rank);
    o.join_timeout = 1;
    return join_fails(&o, "missing: ranks 2, 4", 0.9, 2);
}
static int missing_some(int rank, void *arg) { return missing_rank(rank == 2 ? 3 : rank, arg); }
static int stalled_rank(int rank, void *arg) /* rank 1 has shown the token, and then sends nothing; rank 3 does not come */
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    if (rank != 1) {
        o.join_timeout = 1.2;
        int failed = join_fails(&o, "rank 1 connected and then sent nothing (stopped, or large packets get lost); missing: "
                                    "rank 3 (2 of 4 are", 1.1, 2);
        flag_set(j, 0);
        return failed;
    }
    dt__world w;
    dt__addr  a;
    char      text[256];
    world_fake(&w, 1, 4, 0);
    dt__token_read_file(j->token_file, "", w.token);
    dt__addr_loopback(&a, j->port);
    if (dt__dial_until(&w, &a, 1, 0, DT__KIND_REGISTER, 0, 0, dt__comm_now() + 5000000000, NULL, text, sizeof text) < 0) return 1;
    flag_wait(j, 0, 2);
    return 0;
}
static int nobody_rank(int rank, void *arg)
{
    dt_comm_opts o = job_opts((job *)arg, rank + 1);
    o.join_timeout = 0.3;
    return join_fails(&o, "rank 0", 0, 9);
}
static char refusals[4096];
static void refusals_take(void *user, int level, const char *text)
{
    if (level == 4 && strncmp(text, "rank 1 (", 8) == 0) flag_set((job *)user, 0);
    if (level == 2) snprintf(refusals + strlen(refusals), sizeof refusals - strlen(refusals), "%s\n", text);
}
static void token_of(job *j, dt__world *w) { dt__token_read_file(j->token_file, "", w->token); }
static int  dies_rank(int rank, void *arg)
{
    job *j = (job *)arg;
    if (rank == 2) { /* registers, and is gone */
        dt__world  w;
        dt__member m;
        dt__addr   a;
        char       text[256];
        flag_wait(j, 0, 1); /* rank 1 is registered */
        world_fake(&w, 2, 4, 0);
        token_of(j, &w);
        dt__addr_loopback(&a, j->port);
        int fd =
            dt__dial_until(&w, &a, 1, 0, DT__KIND_REGISTER, 0, 0, dt__comm_now() + 5000000000, NULL, text, sizeof text);
        memset(&m, 0, sizeof m);
        m.pid = 4711;
        return dt__cframe_send(fd, DT__C_MEMBER, 2, &m, sizeof m, dt__comm_now() + 5000000000) != 1;
    }
    dt_comm_opts o = job_opts(j, rank);
    if (rank == 0) dt_set_log(refusals_take, j);
    return join_fails(&o, "rank 2 (, pid 4711) left while joining", 0, 2);
}
UTEST(joining, a_rank_that_dies_while_joining_is_named)
{
    EXPECT_EQ(job_run(job_token(job_new(4)), 3, 10, dies_rank), 0);
}
/* Somebody with the token who is wrong in one thing: refused with a sentence, and the job goes on. */
static int wrong_dial(job *j, int rank, int size, int64_t epoch, int to, int version, const char *want)
{
    dt__world w;
    dt__shake h;
    dt__addr  a;
    char      text[256] = "";
    world_fake(&w, rank, size, 0);
    token_of(j, &w);
    w.epoch = epoch;
    dt__addr_loopback(&a, j->port);
    int64_t begin = dt__comm_now();
    int     fd = dt__connect(&a), got;
    dt__shake_client(&h, &w, to, DT__KIND_REGISTER, 0, 0);
    h.c.version = (uint32_t)version;
    while ((got = dt__shake_step(&h, fd)) == DT__SHAKE_AGAIN &&
           dt__wait_fd(fd, dt__shake_events(&h), begin + 4000000000)) {}
    int e = errno;
    close(fd);
    dt__dial_text(got, e, &h, text, sizeof text);
    if (!strstr(text, want) || dt__comm_now() - begin > (int64_t)(2e9 * dt_test_slow()))
        return printf("   wanted '%s', got '%s'\n", want, text);
    return 0;
}
DT_TEST_RANK(wrong_rank)
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    o.epoch = 5;
    if (rank == 3) {
        flag_wait(j, 0, 1); /* rank 1 is registered */
        EXPECT_EQ(0, wrong_dial(j, 1, 3, 5, 0, DT__SHAKE_VERSION, "there is a rank 1 already"));
        EXPECT_EQ(0, wrong_dial(j, 2, 3, 4, 0, DT__SHAKE_VERSION, "rank 2 is of start 4 of the job, rank 0 of start 5"));
        EXPECT_EQ(0, wrong_dial(j, 2, 4, 5, 0, DT__SHAKE_VERSION, "rank 2 says the world has 4 ranks, rank 0 says 3"));
        EXPECT_EQ(0, wrong_dial(j, 3, 3, 5, 0, DT__SHAKE_VERSION, "rank 3 is out of range"));
        EXPECT_EQ(0, wrong_dial(j, -1, 3, 5, 0, DT__SHAKE_VERSION, "rank -1 is out of range"));
        EXPECT_EQ(0, wrong_dial(j, 0, 3, 5, 0, DT__SHAKE_VERSION, "there is a rank 0 already"));
        EXPECT_EQ(0, wrong_dial(j, 2, 3, 5, 1, DT__SHAKE_VERSION, "wants rank 1, this is rank 0"));
        EXPECT_EQ(0, wrong_dial(j, 2, 3, 5, 0, 9, "rank 2 has version 9 of the protocol"));
        flag_set(j, 1);
        flag_wait(j, 2, 3);
        EXPECT_EQ(0, wrong_dial(j, 2, 3, 5, 0, DT__SHAKE_VERSION, "there is a rank 2 already: the world is complete"));
        flag_set(j, 3);
        return;
    }
    if (rank == 2) flag_wait(j, 1, 1);
    if (rank == 0) dt_set_log(refusals_take, j);
    dt__world *w = join_with(&o);
    ASSERT_TRUE(w != NULL);
    flag_set(j, 2);
    flag_wait(j, 3, 1);
    EXPECT_EQ(dt__world_meet(w, 0, NULL, NULL), 0);
    if (rank == 0) {
        EXPECT_TRUE_MSG(strstr(refusals, "rank 2 is of start 4") != NULL, refusals);
        EXPECT_TRUE(strstr(refusals, "rank 2 says the world has 4 ranks") != NULL);
        EXPECT_TRUE(strstr(refusals, "rank 2 has version 9") != NULL);
        EXPECT_TRUE(strstr(refusals, "there is a rank 1 already") != NULL);
    }
    dt__world_unref(w);
}
UTEST(joining, who_is_wrong_is_told_why)
{
    EXPECT_EQ(job_run(job_token(job_new(3)), 4, 20, wrong_rank), 0);
}
static int token_rank(int rank, void *arg)
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank == 2 ? 1 : rank);
    char         other[] = "/tmp/dt_join_XXXXXX";
    if (rank == 2) { /* another token: a line in the log says so soon, the error comes at the deadline */
        int     fd = mkstemp(other), failed;
        dt_set_log(log_take, NULL);
        uint8_t zero[32] = { 0 };
        if (write(fd, zero, 32) != 32) return 1;
        close(fd);
        o.token_file = other;
        o.join_timeout = 3 * dt_test_slow();
        failed = join_fails(&o, "probably it has another token", 2.9, 4);
        if (log_level != 2 || !strstr(log_text, "rank 1 cannot join yet: rank 0 at 127.0.0.1:") || !strstr(log_text, "another token"))
            failed = printf("   level %d: %s\n", log_level, log_text);
        unlink(other);
        flag_set(j, 0);
        return failed;
    }
    if (rank == 1) flag_wait(j, 0, 1);
    dt__world *w = join_with(&o);
    if (!w) return 1;
    dt__world_unref(w);
    return 0;
}
static int tokens_rank(int rank, void *arg) /* rank 1 never comes with the right one: rank 0 tells what it has seen */
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    dt__world    w;
    dt__shake    h;
    dt__addr     a;
    if (rank == 0) {
        o.join_timeout = 1.5;
        return join_fails(&o, "missing: rank 1 (1 of 2 are there); 2 connections had another token, the last one from 127.0.0.1:", 1.4, 2);
    }
    world_fake(&w, 1, 2, 99);
    dt__addr_loopback(&a, j->port);
    for (int i = 0; i < 2; i++)
        if (dt__dial(&w, &a, 0, DT__KIND_REGISTER, 0, 0, dt__comm_now() + 1000000000, NULL, &h) != DT__SHAKE_AUTH) return 1;
    return 0;
}
static job *job_deaf(job *j) /* nobody listens at its port */
{
    close(j->listen_fd);
    j->listen_fd = -1;
    return j;
}
UTEST(joining, what_is_wrong_is_told_at_the_end_of_the_time_to_join)
{
    errand e[] = { { job_new(2), 1, slow_name_rank },              /* a name service that does not answer holds nobody up */
                   { job_new(5), 3, missing_some },                /* who is missing is named to all who came */
                   { job_token(job_new(4)), 3, stalled_rank },     /* a rank that stalls is named */
                   { job_deaf(job_new(2)), 1, nobody_rank },       /* rank 0 that does not come is named: there is no ticket */
                   { job_token(job_deaf(job_new(2))), 1, nobody_rank }, /* and nobody is at the port */
                   { job_token(job_new(2)), 3, token_rank },       /* another token is refused, and the job goes on */
                   { job_token(job_new(2)), 2, tokens_rank } };    /* rank 0 tells of other tokens */
    EXPECT_EQ(errands(e, (int)(sizeof e / sizeof *e)), 0);
}

/* ==================================================================================================== >>strangers */
static void stranger(int port, int i, unsigned *seed)
{
    dt__addr      a;
    uint8_t       junk[256];
    struct linger now = { 1, 0 };
    dt__addr_loopback(&a, port);
    int fd = dt__connect(&a);
    if (fd < 0) return;
    dt__wait_fd(fd, POLLOUT, dt__comm_now() + 1000000000);
    for (size_t k = 0; k < sizeof junk; k++) junk[k] = (uint8_t)rand_r(seed);
    const char *get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", *tls = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    if (i % 5 == 0) send(fd, junk, sizeof junk, MSG_NOSIGNAL);
    else if (i % 5 == 1) send(fd, get, strlen(get), MSG_NOSIGNAL);
    else if (i % 5 == 2) send(fd, tls, 11, MSG_NOSIGNAL);
    else if (i % 5 == 3) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* a reset */
    else send(fd, "DTK1", 4, MSG_NOSIGNAL);
    close(fd);
}
DT_TEST_RANK(garbage_rank)
{
    job *j = (job *)arg;
    int  each = dt_test_quick() ? 200 : 1000;
    if (rank == 3) {
        unsigned seed = 1;
        for (int i = 0; i < each; i++) {
            stranger(j->port, i, &seed);
            if (i == each / 2) flag_set(j, 0);
        }
        flag_wait(j, 1, 3);
        for (int i = 0; i < each; i++) stranger(j->port, i, &seed);
        flag_set(j, 2);
        return;
    }
    if (rank == 2) flag_wait(j, 0, 1);
    dt_comm    c;
    dt__world *w = comm_begin(j, rank, &c);
    ASSERT_TRUE(w != NULL);
    flag_set(j, 1);
    flag_wait(j, 2, 1);
    EXPECT_EQ(dt__world_meet(w, 0, NULL, NULL), 0);
    EXPECT_TRUE(dt__comm_ok(&c));
    while (count_in("/proc/self/fd") > 40) poll(NULL, 0, 5); /* the strangers are forgotten */
    EXPECT_EQ(dt__world_meet(w, 0, NULL, NULL), 0);
    comm_end(&c, 0);
}
UTEST(strangers, garbage_during_and_after_joining)
{
    EXPECT_EQ(job_run(job_new(3), 4, 30, garbage_rank), 0);
}
static int loris_rank(int rank, void *arg)
{
    job *j = (job *)arg;
    if (rank == 4) {
        int fd[700];
        for (int i = 0; i < 700; i++) {
            dt__addr a;
            dt__addr_loopback(&a, j->port);
            fd[i] = dt__connect(&a);
            dt__wait_fd(fd[i], POLLOUT, dt__comm_now() + 1000000000);
            if (send(fd[i], "D", 1, MSG_NOSIGNAL) < 0) errno = 0;
            if (i == 600) flag_set(j, 0); /* rank 0 has room for 516 of them */
        }
        flag_set(j, 2);
        flag_wait(j, 1, 4);
        for (int i = 0; i < 700; i++) close(fd[i]);
        return 0;
    }
    flag_wait(j, 0, 1);
    int64_t    begin = dt__comm_now();
    dt__world *w = job_join(j, rank);
    double     took = (double)(dt__comm_now() - begin) * 1e-9;
    flag_wait(j, 2, 1);
    bool few = count_in("/proc/self/fd") < DT__PENDING + 40;
    flag_set(j, 1);
    if (!w || !few) return printf("   rank %d keeps too many\n", rank);
    dt__world_unref(w);
    return took < 2 * dt_test_slow() ? 0 : printf("   joined after %.1f s\n", took);
}
UTEST(strangers, many_that_say_nothing)
{
    EXPECT_EQ(job_run(job_new(4), 5, 30, loris_rank), 0);
}

/* ==================================================================================================== >>deaths */
static void world_ready(job *j, dt__world *w) /* all have made their communicators */
{
    if (dt__world_meet(w, 0, NULL, NULL) != 0) printf("   rank %d: %s\n", w->rank, dt__said.text);
    flag_set(j, 0);
}
static int death_body(int rank, job *j)
{
    dt_comm    c;
    dt__world *w = comm_begin(j, rank, &c);
    char       want[32];
    if (!w) return 1;
    world_ready(j, w);
    int status = comm_wait(&c, 5), failed = 0;
    j->took[rank] = dt__comm_now() - j->begin;
    snprintf(want, sizeof want, "rank %d (", c.failed_rank);
    if (status != DT_COMM_ERR_PEER || !(j->victim >> c.failed_rank & 1) || !strstr(c.text, want) ||
        !strstr(c.text, "pid "))
        failed = printf("   rank %d: %d, rank %d: %s\n", rank, status, c.failed_rank, c.text);
    return comm_end(&c, failed);
}
static int death_rank(int rank, void *arg)
{
    job *j = (job *)arg;
    if (!(j->victim >> rank & 1)) return death_body(rank, j);
    pid_t parent = getpid(), pid = fork(); /* the rank is a child, so that this process can end well */
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        _exit(death_body(rank, j));
    }
    flag_wait(j, 0, j->n);
    int64_t zero = 0;
    __atomic_compare_exchange_n(&j->begin, &zero, dt__comm_now(), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}
UTEST(deaths, every_survivor_gets_the_right_rank)
{
    static const struct {
        int n, victims;
    } rows[] = { { 2, 1 << 0 },  { 2, 1 << 1 },   { 3, 1 << 0 },           { 3, 1 << 2 },
                 { 8, 1 << 3 },  { 8, 1 << 0 },   { 8, 1 << 7 },           { 20, 1 << 1 },
                 { 20, 1 << 0 }, { 20, 1 << 18 }, { 20, 1 << 1 | 1 << 0 }, { 20, 1 << 17 | 1 << 2 | 1 << 1 },
                 { 5, 0x1e },    { 5, 0x0f } };
    int64_t all[400];
    int     n = 0;
    for (int round = 0; round < (dt_test_quick() ? 1 : 2); round++)
        /* some leave a second later: five at a time */
        for (int i = 0, many = (int)(sizeof rows / sizeof *rows); i < many; i += 5) {
            errand e[5];
            int    some = many - i < 5 ? many - i : 5;
            for (int k = 0; k < some; k++) {
                errand one = { job_victim(job_new(rows[i + k].n), rows[i + k].victims), rows[i + k].n, death_rank };
                e[k] = one;
            }
            EXPECT_EQ(dt_test_ranks(some, 30, errand_run, e), 0);
            for (int k = 0; k < some; k++) {
                for (int r = 0; r < e[k].j->n && n < 400; r++)
                    if (!(e[k].j->victim >> r & 1)) all[n++] = e[k].j->took[r];
                job_free(e[k].j);
            }
        }
    qsort(all, (size_t)n, sizeof *all, by_size);
    printf("   deaths: %d survivors heard after %.2f ms (p50), %.2f ms (worst)\n", n, (double)all[n / 2] * 1e-6,
           (double)all[n - 1] * 1e-6);
    EXPECT_LT((double)all[n - 1] * 1e-9, 1 * dt_test_slow());
}
static int note_rank(int rank, void *arg)
{
    job       *j = (job *)arg;
    dt_comm    c;
    dt__world *w = comm_begin(j, rank, &c);
    if (!w) return 1;
    comm_does(&c, DT_COLL_ALLREDUCE, 17, j->victim ? 17 : 16);
    world_ready(j, w);
    if (rank == 1) {
        flag_wait(j, 1, 1); /* rank 0 has a note of it */
        _exit(0);
    }
    for (bool noted = false; !noted;) {
        pthread_mutex_lock(&w->lock);
        for (dt__conn *k = w->control->conns; k; k = k->next) noted = noted || k->note.seq == 17;
        pthread_mutex_unlock(&w->lock);
        poll(NULL, 0, 5);
    }
    flag_set(j, 1);
    comm_wait(&c, 5);
    int ok = strstr(c.text, j->victim ? "in its program after allreduce #17" : "in allreduce #17") != NULL;
    if (!ok) printf("   %s\n", c.text);
    return comm_end(&c, !ok);
}
/* After inner ranks have died the tree is one again: a second death is heard by all, an orderly leave is none. */
DT_TEST_RANK(twice_rank)
{
    job       *j = (job *)arg;
    dt__world *w = job_join(j, rank);
    dt_comm    a, b;
    int        rest[JOB_RANKS], n = 0;
    ASSERT_TRUE(w != NULL);
    for (int r = 0; r < j->n; r++)
        if (r > 1) rest[n++] = r;
    comm_make(&a, w, 1, NULL, j->n);
    world_ready(j, w);
    if (rank < 2) {
        flag_wait(j, 0, j->n);
        _exit(0);
    }
    EXPECT_EQ(comm_wait(&a, 5), DT_COMM_ERR_PEER);
    comm_make(&b, w, 2, rest, n);
    for (;;) { /* until the tree is whole: this rank has a parent, or is the lowest */
        pthread_mutex_lock(&w->lock);
        bool whole = w->control->gone[0] && w->control->gone[1] && (rank == 2 || w->control->parent);
        int  kids = 0;
        for (dt__conn *k = w->control->conns; k; k = k->next) kids += dt__conn_in_tree(k);
        pthread_mutex_unlock(&w->lock);
        if (whole && (rank != 2 || kids == j->n - 3)) break;
        poll(NULL, 0, 2);
    }
    flag_set(j, 1);
    flag_wait(j, 1, j->n - 2);
    if (rank == j->n - 1) _exit(0);
    EXPECT_EQ(comm_wait(&b, 5), DT_COMM_ERR_PEER);
    EXPECT_EQ(b.failed_rank, n - 1);
    EXPECT_TRUE_MSG(strstr(b.text, "of this communicator") != NULL, b.text);
    comm_drop(&a);
    comm_drop(&b);
    dt__world_unref(w);
}
DT_TEST_RANK(leave_rank)
{
    job    *j = (job *)arg;
    dt_comm c;
    j->timeout = 0.3 * dt_test_slow(); /* the first ones to leave do not wait for long */
    dt__world *w = comm_begin(j, rank, &c);
    ASSERT_TRUE(w != NULL);
    world_ready(j, w);
    flag_wait(j, 0, j->n);
    if (rank < 2) { /* rank 0 and an inner one go: that is no failure */
        comm_end(&c, 0);
        flag_set(j, 1);
        return;
    }
    flag_wait(j, 1, 2);
    while (dt__world_gone(w, 0) == 0 || dt__world_gone(w, 1) == 0) poll(NULL, 0, 2);
    EXPECT_TRUE(dt__comm_ok(&c));
    EXPECT_EQ(dt__world_gone(w, 0), DT__LEFT);
    EXPECT_EQ(dt__world_gone(w, 1), DT__LEFT);
    comm_drop(&c);
    flag_set(j, 2);
    flag_wait(j, 2, j->n - 2);
    dt__world_unref(w);
}
UTEST(deaths, the_tree_heals_and_leaving_is_not_dying)
{
    errand e[] = { { job_new(20), 20, twice_rank }, { job_new(19), 19, leave_rank },
                   /* what the rank did is told */
                   { job_victim(job_new(2), 0), 2, note_rank }, { job_victim(job_new(2), 1), 2, note_rank } };
    EXPECT_EQ(errands(e, 4), 0);
}

DT_TEST_RANK(broken_rank)
{
    static const uint32_t rows[][3] = { /* magic (0: right), kind, nbytes */
                                        { 1, DT__C_NOTE, 0 },
                                        { 0, DT__C_NOTE, 0x80000000u },
                                        { 0, DT__C_NOTE, 0xffffffffu },
                                        { 0, DT__C_NOTE, DT__CFRAME_MAX + 1 },
                                        { 0, DT__C_NOTE, 3 },
                                        { 0, 999, 0 },
                                        { 0, DT__C_MEMBER, sizeof(dt__member) },
                                        { 0, DT__C_ABORT, 0 },
                                        { 0, DT__C_DEATH, sizeof(dt__cdeath) },
                                        { 0, DT__C_MEET_UP, 1 },
                                        { 0, DT__C_ASK, sizeof(dt__cask) },
                                        { 0, DT__C_PONG, 0 },
                                        { 0, DT__C_LEAVE_UP, 4 },
                                        { 0, DT__C_LEAVE_DOWN, 0 }
    };
    job       *j = (job *)arg;
    dt_comm    c;
    dt__world *w = comm_begin(j, rank, &c);
    ASSERT_TRUE(w != NULL);
    world_ready(j, w);
    if (rank == 2) {
        uint8_t   junk[512];
        dt__chead h;
        flag_wait(j, 0, 3);
        memset(junk, 0xff, sizeof junk);
        h.magic = rows[j->victim][0] ? 1 : DT__CFRAME_MAGIC;
        h.kind = rows[j->victim][1];
        h.nbytes = rows[j->victim][2];
        h.rank = 2;
        pthread_mutex_lock(&w->lock);
        send(w->control->parent->fd, &h, sizeof h, MSG_NOSIGNAL);
        send(w->control->parent->fd, junk, h.nbytes < sizeof junk ? h.nbytes : sizeof junk, MSG_NOSIGNAL);
        pthread_mutex_unlock(&w->lock);
        comm_wait(&c, 5);
        _exit(0);
    }
    EXPECT_EQ(comm_wait(&c, 5), DT_COMM_ERR_PEER);
    EXPECT_EQ(c.failed_rank, 2);
    EXPECT_TRUE_MSG(strstr(c.text, "it sent a broken frame") != NULL, c.text);
    if (rank == 0) flag_set(j, sizeof rows / sizeof *rows == (size_t)j->victim + 1 ? 3 : 4);
    comm_end(&c, 0);
}
UTEST(deaths, a_rank_that_sends_nonsense_is_out)
{
    for (int i = 0, last = 0; !last; i++) {
        job *j = job_new(3);
        j->victim = i;
        int failed = dt_test_ranks(3, 20, broken_rank, j);
        last = j->flag[3] || failed;
        job_free(j);
        EXPECT_EQ(failed, 0);
    }
}

/* ==================================================================================================== >>aborts */
DT_TEST_RANK(abort_rank)
{
    job       *j = (job *)arg;
    dt__world *w = job_join(j, rank);
    dt_comm    a, b, late;
    ASSERT_TRUE(w != NULL);
    comm_make(&a, w, 1, NULL, j->n);
    comm_make(&b, w, 2, NULL, j->n);
    world_ready(j, w);
    if (rank == j->n - 1) {
        dt__world_abort(w, &a, DT_COMM_ERR_MISMATCH, 1, "ranks called different things");
        late = b; /* an id that nobody knows yet */
        late.id = 3;
        late.failing = 0;
        late.status = 0;
        late.wake_fd = -1;
        dt__world_abort(w, &late, DT_COMM_ERR_ABORT, rank, "stop it");
    }
    EXPECT_EQ(comm_wait(&a, 5), DT_COMM_ERR_MISMATCH);
    EXPECT_EQ(a.failed_rank, 1);
    EXPECT_STREQ(a.text, "ranks called different things");
    EXPECT_TRUE(dt__comm_ok(&b));
    comm_make(&late, w, 3, NULL, j->n);
    EXPECT_EQ(comm_wait(&late, 5), DT_COMM_ERR_ABORT);
    EXPECT_STREQ(late.text, "stop it");
    EXPECT_EQ(dt__world_meet(w, 0, NULL, NULL), 0); /* the world lives on */
    comm_drop(&a);
    comm_drop(&b);
    comm_drop(&late);
    dt__world_unref(w);
}
UTEST(aborts, reach_every_rank_and_later_communicators)
{
    EXPECT_EQ(job_run(job_new(20), 20, 20, abort_rank), 0);
}

/* ==================================================================================================== >>inquiries */
static int stopped_rank(int rank, void *arg)
{
    job       *j = (job *)arg;
    dt_comm    c;
    dt__world *w = comm_begin(j, rank, &c);
    int        failed = 0;
    char       want[32];
    if (!w) return 1;
    comm_does(&c, DT_COLL_ALLREDUCE, 17, 16);
    world_ready(j, w);
    flag_wait(j, 0, j->n);
    if (rank == j->victim) {
        __atomic_store_n(&j->pid, (int)getpid(), __ATOMIC_SEQ_CST);
        raise(SIGSTOP);
    } else {
        while (__atomic_load_n(&j->pid, __ATOMIC_SEQ_CST) == 0 || !dt_test_is_stopped(j->pid)) poll(NULL, 0, 1);
        int64_t begin = dt__comm_now();
        if (j->flag[5] == 0 || rank == j->flag[5]) dt__world_ask(w, &c, 17, j->victim == 2 ? 1 : -1, 0, 0);
        comm_wait(&c, 5);
        j->took[rank] = dt__comm_now() - begin;
        flag_set(j, 1);
        if (flag_get(j, 1) == j->n - 1) kill(j->pid, SIGCONT);
    }
    int status = comm_wait(&c, 5); /* the stopped one gets it, too */
    snprintf(want, sizeof want, "rank %d (", j->victim);
    if (status != DT_COMM_ERR_TIMEOUT || c.failed_rank != j->victim || !strstr(c.text, want) ||
        !strstr(c.text, "allreduce #17"))
        failed = printf("   rank %d: %d, rank %d: %s\n", rank, status, c.failed_rank, c.text);
    return comm_end(&c, failed);
}
UTEST(inquiries, a_stopped_rank_is_named)
{
    static const struct {
        int n, victim, asker; /* asker 0: all */
    } rows[] = { { 4, 2, 0 },  { 4, 0, 0 },  { 4, 3, 1 },    { 20, 1, 0 },
                 { 20, 1, 5 }, { 20, 1, 0 }, { 20, 18, 19 }, { 20, 0, 0 } };
    errand e[8];
    int    n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += dt_test_quick() ? 3 : 1, n++) {
        errand one = { job_victim(job_new(rows[i].n), rows[i].victim), rows[i].n, stopped_rank };
        one.j->flag[5] = rows[i].asker;
        e[n] = one;
    }
    EXPECT_EQ(dt_test_ranks(n, 30, errand_run, e), 0);
    for (int i = 0; i < n; i++) {
        printf("   %d ranks, rank %d stopped: known after %.0f ms\n", e[i].j->n, e[i].j->victim, job_worst(e[i].j) * 1e3);
        EXPECT_LT(job_worst(e[i].j), 1 * dt_test_slow());
        job_free(e[i].j);
    }
}
DT_TEST_RANK(late_rank)
{
    job       *j = (job *)arg;
    dt_comm    c;
    dt__world *w = comm_begin(j, rank, &c);
    int        late = rank == 2 && j->victim;
    ASSERT_TRUE(w != NULL);
    __atomic_store_n(&c.since, dt__comm_now(), __ATOMIC_RELEASE);
    comm_does(&c, late ? DT_COLL_BROADCAST : DT_COLL_ALLREDUCE, late ? 16 : 17, 16);
    world_ready(j, w);
    flag_wait(j, 0, j->n);
    int64_t begin = dt__comm_now();
    if (rank == 1) dt__world_ask(w, &c, 17, 3, 0, 0);
    EXPECT_EQ(comm_wait(&c, 5), DT_COMM_ERR_TIMEOUT);
    EXPECT_LT((double)(dt__comm_now() - begin) * 1e-9, 1 * dt_test_slow());
    EXPECT_EQ(c.failed_rank, j->victim ? 2 : 3);
    EXPECT_TRUE_MSG(strstr(c.text, j->victim ? "has not called it (last: broadcast #16"
                                             : "rank 1 receives nothing from rank 3") != NULL,
                    c.text);
    comm_end(&c, 0);
}
UTEST(inquiries, a_late_rank_or_a_blocked_way_is_named)
{
    for (int i = 0; i < 2; i++) EXPECT_EQ(job_run(job_victim(job_new(5), i), 5, 20, late_rank), 0);
}

/* ==================================================================================================== >>links */
DT_TEST_RANK(link_rank)
{
    job       *j = (job *)arg;
    dt__world *w = job_join(j, rank);
    dt_comm    c[2];
    int        fd[2][4][2];
    ASSERT_TRUE(w != NULL);
    if (rank == 3) flag_wait(j, 1, 1); /* rank 0 has dialed for communicators that are not there yet */
    for (int i = 0; i < 2; i++) comm_make(&c[i], w, 100 + (uint64_t)i, NULL, 4);
    for (int i = 1; i >= 0; i--)
        for (int r = 3; r >= 0; r--)
            for (int s = 0; s < 2 && r != rank; s++) {
                while ((fd[i][r][s] = dt__world_link(w, &c[i], r, s)) == -1) poll(NULL, 0, 1);
                EXPECT_GE(fd[i][r][s], 0);
                if (rank == 0 && r == 3) flag_set(j, 1);
            }
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < 4; r++)
            for (int s = 0; s < 2 && r != rank; s++) {
                int    mine[4] = { i, rank, r, s }, theirs[4] = { 0 };
                size_t done = 0;
                EXPECT_EQ(send(fd[i][r][s], mine, sizeof mine, MSG_NOSIGNAL), (ssize_t)sizeof mine);
                while (dt__recv_some(fd[i][r][s], theirs, sizeof theirs, &done) == 0)
                    dt__wait_fd(fd[i][r][s], POLLIN, dt__comm_now() + 1000000000);
                EXPECT_EQ(theirs[0], i);
                EXPECT_EQ(theirs[1], r);
                EXPECT_EQ(theirs[2], rank);
                EXPECT_EQ(theirs[3], s);
                EXPECT_TRUE(fcntl(fd[i][r][s], F_GETFL) & O_NONBLOCK);
                EXPECT_EQ(fcntl(fd[i][r][s], F_GETFD), FD_CLOEXEC);
            }
    EXPECT_EQ(dt__world_meet(w, 0, NULL, NULL), 0);
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < 4; r++)
            for (int s = 0; s < 2 && r != rank; s++) close(fd[i][r][s]);
    for (int i = 0; i < 2; i++) comm_drop(&c[i]);
    dt__world_unref(w);
}
UTEST(links, every_pair_communicator_and_stream)
{
    EXPECT_EQ(job_run(job_new(4), 4, 20, link_rank), 0);
}
DT_TEST_RANK(pass_rank)
{
    job       *j = (job *)arg;
    dt__world *w = job_join(j, rank);
    int        member[5];
    ASSERT_TRUE(w != NULL);
    for (int round = 0; round < 5; round++)
        for (int n = 2; n <= 5; n++) {
            int in = -1;
            for (int i = 0; i < n; i++) {
                member[i] = (i + round) % 5;
                if (member[i] == rank) in = i;
            }
            if (in < 0) continue;
            int      fd = in == 0 ? memfd_create("test", MFD_CLOEXEC) : -1;
            uint64_t want = (uint64_t)(round * 100 + n), got = 0;
            if (in == 0) EXPECT_EQ(write(fd, &want, sizeof want), (ssize_t)sizeof want);
            fd = dt__world_pass_fd(w, (uint64_t)n, member, n, fd);
            EXPECT_GE_MSG(fd, 0, dt__said.text);
            EXPECT_EQ(pread(fd, &got, sizeof got, 0), (ssize_t)sizeof got);
            EXPECT_EQ(got, want);
            EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
            close(fd);
        }
    dt__world_unref(w);
}
UTEST(links, a_descriptor_is_passed)
{
    EXPECT_EQ(job_run(job_new(5), 5, 20, pass_rank), 0);
}
DT_TEST_RANK(meet_rank)
{
    job       *j = (job *)arg;
    dt__world *w = job_join(j, rank);
    ASSERT_TRUE(w != NULL);
    for (int i = 0; i < 20; i++) {
        int64_t most = 0;
        int     who = -1, first = i % j->n; /* who gives the largest, and the rank after it the same */
        EXPECT_EQ_MSG(dt__world_meet(w, rank == first || rank == first + 1 ? INT64_MAX - i : -rank, &most, &who), 0, dt__said.text);
        EXPECT_EQ(most, INT64_MAX - i);
        EXPECT_EQ(who, first);
    }
    dt__world_unref(w);
}
UTEST(links, all_ranks_learn_the_largest_number_and_who_gave_it)
{
    static const int sizes[] = { 2, 5, 20 };
    for (int i = 0; i < 3; i++) EXPECT_EQ(job_run(job_new(sizes[i]), sizes[i], 30, meet_rank), 0);
}

/* ==================================================================================================== >>again */
static int cycle_rank(int rank, void *arg)
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    int          n = dt_test_quick() ? 100 : 1000, was[2];
    o.listen_fd = 0; /* binds the same port each time */
    for (int i = 0; i < n; i++) {
        dt__world *w = dt__world_join(&o, &dt__comm_client);
        if (!w) return printf("   rank %d, job %d: %s\n", rank, i, dt__said.text);
        dt_comm c;
        comm_make(&c, w, 1, NULL, 2);
        if (rank == 0) close(dt__world_link(w, &c, 1, 0)); /* nobody takes it */
        comm_drop(&c);
        dt__world_unref(w);
        if (i == 0) used(was);
    }
    return used_more(was);
}
UTEST(again, many_jobs_on_one_port_leak_nothing)
{
    job *j = job_new(2);
    close(j->listen_fd);
    int64_t begin = dt__comm_now();
    EXPECT_EQ(dt_test_ranks(2, 50, cycle_rank, j), 0);
    printf("   %.1f s\n", (double)(dt__comm_now() - begin) * 1e-9);
    j->listen_fd = -1;
    job_free(j);
}
static int failed_join_rank(int rank, void *arg)
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, 0);
    int          was[2];
    (void)rank;
    o.join_timeout = 0.02;
    for (int i = 0; i < 20; i++) {
        if (dt__world_join(&o, &dt__comm_client)) return 1;
        if (i == 0) used(was);
    }
    return used_more(was);
}
UTEST(again, failed_joins_leak_nothing)
{
    EXPECT_EQ(job_run(job_new(2), 1, 20, failed_join_rank), 0);
}

/* An allocation fails, at any place: an error on both ranks or on none, and nothing hangs. */
static int memory_rank(int rank, void *arg)
{
    job         *j = (job *)arg;
    dt_comm_opts o = job_opts(j, rank);
    o.join_timeout = o.timeout = 0.2;
    if (rank == j->victim) fail_at = j->pid;
    dt__world *w = dt__world_join(&o, &dt__comm_client);
    if (w) {
        dt__world_meet(w, 1, NULL, NULL);
        dt__world_unref(w);
    } else if (!strstr(dt__said.text, "dt_comm_init: ")) return printf("   no message: %s\n", dt__said.text);
    bool memory = dt__said.why == DT_COMM_ERR_MEMORY; /* what the control thread has to say breaks a connection instead */
    if (!w && rank == j->victim && !memory && (j->pid < 6 || dt__said.why == DT_COMM_ERR_ARG))
        return printf("   allocation %d: %d: %s\n", j->pid, dt__said.why, dt__said.text);
    if (rank == j->victim && allocations <= j->pid) flag_set(j, 0); /* it was not reached */
    return 0;
}
UTEST(again, an_allocation_that_fails_is_an_error)
{
    enum { EACH = 6 }; /* at the same time */
    for (int victim = 0; victim < 2; victim++)
        for (int i = 0, by = dt_test_quick() ? 6 : 1, end = 0; i < 100 && !end; i += EACH * by) {
            errand e[EACH];
            for (int k = 0; k < EACH; k++) {
                errand one = { job_victim(job_new(2), victim), 2, memory_rank };
                one.j->pid = i + k * by;
                e[k] = one;
            }
            int failed = dt_test_ranks(EACH, 20, errand_run, e);
            for (int k = EACH - 1; k >= 0; k--) {
                if (e[k].j->flag[0]) end = e[k].j->pid; /* the first that was not reached */
                job_free(e[k].j);
            }
            ASSERT_EQ(failed, 0);
            if (end) printf("   %d allocations of rank %d\n", end, victim);
        }
}

/* ==================================================================================================== >>spawn */
static int spawn_rank(void *arg)
{
    dt_comm_opts o;
    int          what = *(int *)arg;
    memset(&o, 0, sizeof o);
    for (int i = 0; i < 2; i++) { /* a second world, with the same descriptors */
        dt__world *w = dt__world_join(&o, &dt__comm_client);
        if (!w) return printf("   %s\n", dt__said.text) > 0;
        int rank = w->rank;
        if (w->size != 4 || strcmp(w->where, "RANK and WORLD_SIZE") != 0) return 2;
        dt__world_unref(w);
        if (rank == 2 && what == 1) return 7;
        if (rank == 1 && what == 2) raise(SIGKILL);
        if (what == 1 || what == 2) return 0;
    }
    return what == 3 ? -5 : 0;
}
UTEST(spawn, returns_the_first_status_that_is_not_0)
{
    static const int want[4] = { 0, 7, 128 + SIGKILL, 1 };
    env_set("");
    for (int i = 0; i < 4; i++) EXPECT_EQ(dt_spawn(4, spawn_rank, &i), want[i]);
    EXPECT_EQ(dt_spawn(0, spawn_rank, NULL), DT_COMM_ERR_ARG);
    EXPECT_EQ(dt_spawn(2, NULL, NULL), DT_COMM_ERR_ARG);
}
/* two "machines" of this one, each with two of four ranks; a port that was free a moment ago */
UTEST(spawn, out_of_memory)
{
    int what = 0;
    fail_at = allocations;
    EXPECT_EQ((int)DT_COMM_ERR_MEMORY, dt_spawn(4, spawn_rank, &what));
    fail_at = -1;
    EXPECT_TRUE(strstr(dt_comm_error(NULL), "dt_spawn: out of memory for 4 ranks") != NULL);
}
UTEST(spawn, of_several_machines)
{
    dt__addr a;
    int      what = 0, status;
    char     env[160];
    dt__addr_loopback(&a, 0);
    int fd = dt__listen(&a);
    ASSERT_TRUE(fd >= 0 && getsockname(fd, &a.u.any, &a.n) == 0);
    close(fd);
    env_set("");
    EXPECT_EQ(dt_spawn_nodes(2, 0, 2, spawn_rank, &what), DT_COMM_ERR_ARG); /* where is rank 0? */
    snprintf(env, sizeof env, "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d DT_INSECURE=1", dt__addr_port(&a));
    env_set(env);
    pid_t other = fork();
    if (other == 0) _exit(dt_spawn_nodes(2, 1, 2, spawn_rank, &what));
    EXPECT_EQ(dt_spawn_nodes(2, 0, 2, spawn_rank, &what), 0);
    EXPECT_EQ(waitpid(other, &status, 0), other);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(dt_spawn_nodes(2, 2, 2, spawn_rank, &what), DT_COMM_ERR_ARG);
    env_set("");
}
UTEST(spawn, who_does_not_end_is_ended)
{
    pid_t pid[3], parent = getpid();
    int   first = 0;
    for (int i = 0; i < 3; i++) {
        if ((pid[i] = fork()) != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent || i == 0) _exit(3);
        if (i == 1) signal(SIGTERM, SIG_IGN); /* only SIGKILL ends it */
        for (;;) pause();
    }
    int64_t begin = dt__comm_now();
    dt__spawn_signals none;
    memset(&none, 0, sizeof none);
    none.fd = -1;
    dt__spawn_wait(pid, 3, &first, &none, 100000000, 100000000);
    EXPECT_EQ(first, 3);
    EXPECT_LT((double)(dt__comm_now() - begin) * 1e-9, 2 * dt_test_slow());
    for (int i = 0; i < 3; i++) EXPECT_EQ(pid[i], 0);
}

UTEST_MAIN()
