/* test_mpi.c: messages and native collectives through MPI. Without DT_USE_MPI this program compiles itself with it and
   runs that under mpirun with 2 and 4 ranks; without Open MPI it skips.
   Contents: >>launch >>messages >>native >>world */
#define DT_IMPLEMENTATION /* linked alone */
#ifndef DT_USE_MPI
#include "utest.h"

#include <sys/wait.h>

UTEST_MAIN()

/* ==================================================================================================== >>launch */
static bool have(const char *command) { return system(command) == 0; }
static bool run(const char *dir, int ranks, const char *how) /* the ranks' own output tells what is wrong */
{
    char text[1024];
    snprintf(text, sizeof text,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none "
             "OMPI_MCA_mpi_yield_when_idle=1 TMPDIR=%s timeout -k 5 %.0f mpirun --oversubscribe -n %d %s/test %s 2>&1",
             dir, 20 * utest_slow(), ranks, dir, how);
    return have(text);
}
UTEST(mpi, messages_and_native_collectives)
{
    char dir[] = "/tmp/dt_mpi.XXXXXX", text[1024];
    if (!have("mpirun --version 2>/dev/null | grep -q 'Open MPI'") || !have("command -v mpicc >/dev/null"))
        UTEST_SKIP("Open MPI (mpicc, mpirun) is not installed");
    ASSERT_TRUE(mkdtemp(dir) != NULL);
    snprintf(text, sizeof text, "mpicc -O1 -g -std=c11 -DDT_USE_MPI -DDT_NO_AVX2 '%s' -o %s/test -lm -lpthread", __FILE__,
             dir);
    if (have(text)) {
        EXPECT_TRUE(run(dir, 2, ""));
        EXPECT_TRUE(run(dir, 2, "own")); /* in a program that has started MPI itself */
        if (!getenv("DT_TEST_QUICK")) EXPECT_TRUE(run(dir, 4, ""));
    } else EXPECT_TRUE_MSG(false, text);
    snprintf(text, sizeof text, "rm -rf %s", dir);
    EXPECT_TRUE(have(text));
}

#else
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define DT__WORLD_LINK test_link
#define DT__WORLD_ABORT test_abort
#define DT__WORLD_ASK test_ask
#define DT__FRAME_OK test_frame_ok
#include <stdbool.h>
#include <stdint.h>
struct dt_comm;
struct dt__world;
struct dt__frame;
static int  test_link(struct dt__world *w, struct dt_comm *c, int peer, int stream);
static void test_abort(struct dt__world *w, struct dt_comm *c, int status, int rank, const char *text);
static void test_ask(struct dt__world *w, struct dt_comm *c, uint64_t seq, int peer);
static bool test_frame_ok(struct dt_comm *c, int peer, const struct dt__frame *want, const struct dt__frame *got);
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../dt_comm.h"

#include <sys/eventfd.h>

static int test_link(dt__world *w, dt_comm *c, int peer, int stream) /* no sockets here */
{
    (void)w, (void)c, (void)peer, (void)stream;
    return -2;
}
static void test_abort(dt__world *w, dt_comm *c, int status, int rank, const char *text)
{
    (void)w, (void)c, (void)status, (void)rank, (void)text;
}
static void test_ask(dt__world *w, dt_comm *c, uint64_t seq, int peer) { (void)w, (void)c, (void)seq, (void)peer; }
static bool test_frame_ok(dt_comm *c, int peer, const dt__frame *want, const dt__frame *got)
{
    if (got->seq == want->seq && got->coll == want->coll) return true;
    dt__comm_failed(c, DT_COMM_ERR_MISMATCH, peer, "the headers differ");
    return false;
}
static dt__world world;
static int       failures;
#define CHECK(x)                                                                                      \
    do {                                                                                              \
        if (!(x)) failures++, printf("rank %d, line %d: %s\n", world.rank, __LINE__, #x);             \
    } while (0)

static uint32_t next(uint64_t *s)
{
    *s ^= *s >> 12;
    *s ^= *s << 25;
    *s ^= *s >> 27;
    return (uint32_t)((*s * 0x2545F4914F6CDD1Du) >> 32);
}
static void start(dt_comm *c, uint64_t id, int n, int *member) /* this rank is one of them */
{
    memset(c, 0, sizeof *c);
    c->world = &world;
    c->id = id;
    c->size = n;
    c->member = member;
    c->timeout = 30;
    c->failed_rank = -1;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (int i = 0; i < n; i++)
        if (member[i] == world.rank) c->rank = i;
    c->across = &dt__transport_mpi;
    CHECK(dt__mpi_open(c, true) == 0);
}
static void stop(dt_comm *c)
{
    c->across->close(c);
    close(c->wake_fd);
}

/* ==================================================================================================== >>messages */
static dt__msg draw_message(int a, int b, int k, uint64_t *rng)
{
    static const size_t sizes[] = { 0, 8, 4096, 4104, 524288, 524296, 2097152, 5000000 };
    uint64_t            s = (uint64_t)(a * 64 + b) * 7919u + (uint64_t)k * 104729u + 1;
    dt__msg             m;
    for (int i = 0; i < 4; i++) next(&s);
    memset(&m, 0, sizeof m);
    m.n = next(&s) % 2 ? sizes[next(&s) % 8] : (size_t)(next(&s) >> (next(&s) % 32)) % 3000000 / 8 * 8;
    m.head.seq = (uint64_t)k;
    m.head.nbytes = m.n;
    m.dtype = (int)(next(&s) % DT_COMM_DTYPES);
    m.op = next(&s) % 2 ? DT_COMM_SUM : DT_COMM_MAX;
    m.fold = next(&s) % 2;
    m.left = next(&s) % 2;
    *rng = s;
    return m;
}
static char *payload(size_t n, uint64_t s)
{
    char *p = (char *)malloc(n + 4);
    for (size_t i = 0; i < n; i += 4) {
        uint32_t x = next(&s);
        memcpy(p + i, &x, 4);
    }
    return p;
}
/* Everybody to everybody else, each pair in its own order. */
static void messages(dt_comm *c, int count)
{
    dt__msg *out = (dt__msg *)calloc((size_t)c->size, sizeof *out);
    dt__msg *in = (dt__msg *)calloc((size_t)c->size, sizeof *in);
    char   **want = (char **)calloc((size_t)c->size, sizeof *want);
    int     *nout = (int *)calloc((size_t)c->size, sizeof *nout), *nin = (int *)calloc((size_t)c->size, sizeof *nin);
    int      left = 2 * (c->size - 1) * count;
    uint64_t s, sent = 0;
    while (left && dt__comm_ok(c)) {
        int before = left;
        for (int p = 0; p < c->size; p++) {
            if (p == c->rank) continue;
            if (nout[p] < count) {
                if (!out[p].ptr) {
                    out[p] = draw_message(c->rank, p, nout[p], &s);
                    out[p].ptr = payload(out[p].n, s);
                }
                if (c->across->send(c, p, &out[p]) > 0) {
                    sent += sizeof(dt__frame) + out[p].n;
                    free(out[p].ptr);
                    out[p].ptr = NULL;
                    nout[p]++, left--;
                }
            }
            if (nin[p] < count) {
                if (!in[p].ptr) {
                    in[p] = draw_message(p, c->rank, nin[p], &s);
                    in[p].ptr = payload(in[p].n, s ^ 3);
                    want[p] = payload(in[p].n, s);
                    if (in[p].fold) {
                        char   *both = payload(in[p].n, s ^ 3);
                        int64_t n = (int64_t)(in[p].n / dt__comm_size_of(in[p].dtype));
                        dt__fold(in[p].dtype, in[p].op, both, want[p], n, in[p].left);
                        free(want[p]);
                        want[p] = both;
                    }
                }
                if (c->across->recv(c, p, &in[p]) > 0) {
                    CHECK(memcmp(in[p].ptr, want[p], in[p].n) == 0);
                    free(in[p].ptr);
                    free(want[p]);
                    in[p].ptr = NULL;
                    nin[p]++, left--;
                }
            }
        }
        if (left == before) c->across->wait(c, 1);
    }
    CHECK(left == 0);
    CHECK(dt__mpi_bytes(c) >= sent);
    free(out), free(in), free(want), free(nout), free(nin);
}

/* ==================================================================================================== >>native
   Small integers in every dtype: sums are exact, whatever the order. */
static void put(int d, void *p, int64_t i, int v)
{
    static const uint16_t f16[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800 };
    float                 f = (float)v;
    uint32_t              u;
    memcpy(&u, &f, 4);
    if (d == DT_COMM_F32) ((float *)p)[i] = f;
    if (d == DT_COMM_F64) ((double *)p)[i] = v;
    if (d == DT_COMM_I32) ((int32_t *)p)[i] = v;
    if (d == DT_COMM_I64) ((int64_t *)p)[i] = v;
    if (d == DT_COMM_U8) ((uint8_t *)p)[i] = (uint8_t)v;
    if (d == DT_COMM_BF16) ((uint16_t *)p)[i] = (uint16_t)(u >> 16);
    if (d == DT_COMM_F16) ((uint16_t *)p)[i] = f16[v];
}
static int value(int rank, int64_t i) { return (int)((rank + i) % 2 + 1); } /* 1 or 2: of four ranks at most 8 */
static int reduced(int op, int n, int64_t i)
{
    int v = value(0, i);
    for (int r = 1; r < n; r++) {
        int x = value(r, i);
        if (op == DT_COMM_SUM || op == DT_COMM_MEAN) v += x;
        if (op == DT_COMM_PROD) v *= x;
        if (op == DT_COMM_MIN && x < v) v = x;
        if (op == DT_COMM_MAX && x > v) v = x;
        if (op == DT_COMM_OR) v |= x;
    }
    return v;
}
static void native(dt_comm *c, int64_t count)
{
    int     n = c->size, root = n - 1;
    int64_t counts[16], total = 0, at[17];
    for (int r = 0; r < n; r++) {
        counts[r] = count + r * 3;
        at[r] = total;
        total += counts[r];
    }
    at[n] = total;
    for (int d = 0; d < DT_COMM_DTYPES; d++) {
        size_t size = dt__comm_size_of(d);
        char  *buf = (char *)malloc((size_t)total * size + 8), *want = (char *)malloc((size_t)total * size + 8);
        for (int op = 0; op < DT_COMM_OPS; op++) {
            if (!dt__reduce_can(d, op)) {
                CHECK(dt__mpi_native(c, DT_COLL_ALLREDUCE, buf, count, d, op, 0) == 1);
                continue;
            }
            for (int64_t i = 0; i < total; i++) put(d, buf, i, value(c->rank, i));
            for (int64_t i = 0; i < total; i++) put(d, want, i, reduced(op, n, i));
            CHECK(dt__mpi_native(c, DT_COLL_ALLREDUCE, buf, total, d, op, 0) == 0);
            CHECK(memcmp(buf, want, (size_t)total * size) == 0);
            for (int64_t i = 0; i < total; i++) put(d, buf, i, value(c->rank, i));
            CHECK(dt__mpi_native(c, DT_COLL_REDUCE, buf, total, d, op, root) == 0);
            if (c->rank != root)
                for (int64_t i = 0; i < total; i++) put(d, want, i, value(c->rank, i)); /* as it was */
            CHECK(memcmp(buf, want, (size_t)total * size) == 0);
            for (int64_t i = 0; i < total; i++) put(d, buf, i, value(c->rank, i));
            for (int64_t i = 0; i < total; i++) put(d, want, i, reduced(op, n, i));
            CHECK(dt__mpi_native_v(c, DT_COLL_REDUCE_SCATTER, buf, 0, counts, d, op, 0) == 0);
            CHECK(memcmp(buf + (size_t)at[c->rank] * size, want + (size_t)at[c->rank] * size,
                         (size_t)counts[c->rank] * size) == 0);
        }
        memset(buf, 0, (size_t)total * size);
        for (int64_t i = at[c->rank]; i < at[c->rank + 1]; i++) put(d, buf, i, (int)(i % 7));
        for (int64_t i = 0; i < total; i++) put(d, want, i, (int)(i % 7));
        CHECK(dt__mpi_native_v(c, DT_COLL_ALLGATHER, buf, 0, counts, d, 0, 0) == 0);
        CHECK(memcmp(buf, want, (size_t)total * size) == 0);
        if (c->rank != root) memset(buf, 0, (size_t)total * size);
        CHECK(dt__mpi_native(c, DT_COLL_BROADCAST, buf, total, d, 0, root) == 0);
        CHECK(memcmp(buf, want, (size_t)total * size) == 0);
        free(buf);
        free(want);
    }
    CHECK(dt__mpi_native(c, DT_COLL_BARRIER, NULL, 0, 0, 0, 0) == 0);
    CHECK(dt__mpi_native(c, DT_COLL_ALLTOALL, NULL, 0, 0, 0, 0) == 1); /* has none */
    float x = c->rank == 0 ? NAN : 1; /* as everywhere: NaN wins */
    CHECK(dt__mpi_native(c, DT_COLL_ALLREDUCE, &x, 1, DT_COMM_F32, DT_COMM_MAX, 0) == 0);
    CHECK(isnan(x));
}
/* A rank that does not come is a timeout, not a hang. */
static void late(dt_comm *c)
{
    int64_t begin = dt__comm_now();
    c->timeout = 0.2;
    if (c->rank == 0) {
        CHECK(dt__mpi_native(c, DT_COLL_BARRIER, NULL, 0, 0, 0, 0) == DT_COMM_ERR_TIMEOUT);
        CHECK(dt__comm_now() - begin >= 200000000);
        CHECK(strstr(c->text, "did not come") != NULL);
    }
}
static void mismatch(dt_comm *c)
{
    uint64_t s;
    dt__msg  m = draw_message(0, 1, 1, &s);
    char     x[8], y[16];
    memset(x, 1, sizeof x);
    memset(y, 0, sizeof y);
    m.ptr = c->rank == 0 ? x : y;
    m.n = c->rank == 0 ? sizeof x : sizeof y;
    m.head.nbytes = m.n;
    if (c->rank == 0)
        while (c->across->send(c, 1, &m) == 0) c->across->wait(c, 1);
    if (c->rank == 1) {
        int r;
        while ((r = c->across->recv(c, 0, &m)) == 0) c->across->wait(c, 1);
        CHECK(r == DT_COMM_ERR_MISMATCH);
        CHECK(strstr(c->text, "rank 0 sends 8 bytes") != NULL);
        for (size_t i = 0; i < sizeof y; i++) CHECK(y[i] == 0);
    }
}

/* ==================================================================================================== >>world */
int main(int argc, char **argv)
{
    dt_comm all, some, broken;
    int     member[16], flipped[16], got = 0;
    bool    own = argc > 1 && strcmp(argv[1], "own") == 0;
    if (own) MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &got);
    if (dt__mpi_world(&world)) {
        printf("dt__mpi_world: %s\n", dt__comm_text);
        return 1;
    }
    CHECK(world.size >= 2 && world.size <= 4 && world.rank >= 0 && world.rank < world.size);
    CHECK(world.nhosts == 1 && world.local_rank == world.rank && world.local_size == world.size);
    CHECK(world.member[world.rank].pid == (int64_t)getpid());
    CHECK(world.member[world.rank].host_name[0] != 0);
    uint8_t tokens[16 * 32];
    CHECK(dt__mpi_allgather(world.token, 32, tokens) == 0);
    for (int i = 0; i < world.size; i++) CHECK(memcmp(tokens + 32 * i, world.token, 32) == 0);
    uint8_t zero[32] = { 0 };
    CHECK(memcmp(world.token, zero, 32) != 0);

    for (int i = 0; i < world.size; i++) {
        member[i] = i;
        flipped[i] = world.size - 1 - i;
    }
    start(&all, 1, world.size, member);
    messages(&all, 12);
    native(&all, 0);
    native(&all, 1000);
    /* the others of it, in another order, while the first one stays */
    if (world.rank > 0) {
        start(&some, 2, world.size - 1, flipped);
        CHECK(some.rank == world.size - 1 - world.rank);
        messages(&some, 4);
        native(&some, 5);
        stop(&some);
    }
    messages(&all, 2);
    for (uint64_t id = 3; id < 5; id++) {
        start(&broken, id, world.size, member);
        if (id == 3) mismatch(&broken);
        else late(&broken);
        dt__comm_failed(&broken, DT_COMM_ERR_ABORT, -1, "over"); /* it does not wait for others to close it */
        CHECK(dt__mpi_native(&all, DT_COLL_BARRIER, NULL, 0, 0, 0, 0) == 0);
        stop(&broken);
    }
    /* without threads there is no progress thread */
    int level = dt__mpi_job.level;
    dt__mpi_job.level = MPI_THREAD_FUNNELED;
    CHECK(dt__mpi_open(&broken, true) == DT_COMM_ERR_STATE && strstr(dt__comm_text, "MPI_THREAD_SERIALIZED"));
    dt__mpi_job.level = level;
    stop(&all);
    free(world.member);
    if (world.rank == 0 && !failures) printf("%d ranks, thread level %d: ok\n", world.size, level);
    dt__mpi_end();
    int over = 0;
    MPI_Finalized(&over);
    CHECK(over == !own);
    if (own) MPI_Finalize();
    return failures != 0;
}
#endif
