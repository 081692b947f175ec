/* message_cases.h - situations of messages, one function each: every rank runs it, and it returns how many things were wrong.
   test_messages.c runs them on threads, over shared memory and over TCP, test_mpi.c over MPI. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(what) ((what) ? 0 : (printf("    rank %d, line %d: %s: %s\n", rank, __LINE__, #what, dt_comm_error(c) ? dt_comm_error(c) : ""), 1))
typedef int (*situation)(dt_comm *c, int rank);

static int tags_in_any_order(dt_comm *c, int rank)
{
    enum { N = 20, BIG = 300000 };
    int   bad = 0;
    char *big = (char *)malloc(BIG);
    memset(big, rank, BIG);
    if (rank == 0) {
        bad += CHECK(!dt_comm_send(c, big, 8, DT_COMM_U8, 1, .tag = 1000)); /* nobody receives it before the others */
        dt_work *w = dt_comm_send_start(c, big, BIG, DT_COMM_U8, 1, .tag = 1001);
        for (int i = 0; i < N; i++) bad += CHECK(!dt_comm_send(c, &i, 1, DT_COMM_I32, 1, .tag = i));
        bad += CHECK(!dt_work_wait(w));
    } else if (rank == 1) {
        dt_msg_info info;
        int         x = -1;
        for (int i = N - 1; i >= 0; i--) bad += CHECK(!dt_comm_recv(c, &x, 1, DT_COMM_I32, 0, .tag = i) && x == i);
        bad += CHECK(dt_comm_probe(c, &info, DT_ANY, .tag = DT_ANY) == 1 && info.tag == 1000 && info.n == 8 && info.from == 0);
        bad += CHECK(!dt_comm_recv(c, big, BIG, DT_COMM_U8, DT_ANY, .tag = 1001, .info = &info) && info.n == BIG && !big[BIG - 1]);
        bad += CHECK(!dt_comm_recv(c, big, BIG, DT_COMM_U8, DT_ANY, .tag = DT_ANY, .info = &info) && info.tag == 1000 && info.n == 8);
        bad += CHECK(dt_comm_probe(c, &info, DT_ANY, .tag = DT_ANY) == 0);
    }
    bad += CHECK(!dt_comm_barrier(c));
    free(big);
    return bad;
}
static int to_itself(dt_comm *c, int rank)
{
    enum { BIG = 200000 };
    int      bad = 0, x = 7, y = 0;
    char    *a = (char *)malloc(BIG), *b = (char *)calloc(1, BIG);
    memset(a, 5, BIG);
    bad += CHECK(!dt_comm_send(c, &x, 1, DT_COMM_I32, rank, .tag = 3));
    bad += CHECK(!dt_comm_recv(c, &y, 1, DT_COMM_I32, rank, .tag = 3) && y == 7);
    dt_work *s = dt_comm_send_start(c, a, BIG, DT_COMM_U8, rank), *r = dt_comm_recv_start(c, b, BIG, DT_COMM_U8, DT_ANY);
    bad += CHECK(!dt_work_wait(r) && !dt_work_wait(s) && !memcmp(a, b, BIG));
    r = dt_comm_recv_start(c, b, 10, DT_COMM_U8, rank);
    bad += CHECK(!dt_comm_send(c, a, 10, DT_COMM_U8, rank) && !dt_work_wait(r));
    free(a);
    free(b);
    return bad;
}
/* A receive that waits holds back nothing; large sends of both sides before their receives end. */
static int early(dt_comm *c, int rank)
{
    enum { MANY = 70, BIG = 100000 };
    static const int64_t n = BIG;
    int      bad = 0, last = 0, peer = rank ^ 1;
    dt_work *w[MANY], *s[MANY], *early_one = dt_comm_recv_start(c, &last, 1, DT_COMM_I32, peer, .tag = 99);
    int     *out = (int *)malloc(MANY * BIG * sizeof *out), *in = (int *)malloc(MANY * BIG * sizeof *in);
    for (int i = 0; i < MANY * BIG; i++) out[i] = i + rank;
    for (int i = 0; i < 3; i++) {
        float x = 1;
        bad += CHECK(!dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM) && x == 2);
    }
    for (int i = 0; i < MANY; i++) s[i] = dt_comm_send_start(c, out + i * BIG, n, DT_COMM_I32, peer);
    bad += CHECK(!dt_comm_barrier(c)); /* with all these pending */
    for (int i = 0; i < MANY; i++) w[i] = dt_comm_recv_start(c, in + i * BIG, n, DT_COMM_I32, peer);
    for (int i = MANY - 1; i >= 0; i--) bad += CHECK(!dt_work_wait(w[i]) && in[i * BIG + 1] == i * BIG + 1 + peer);
    for (int i = 0; i < MANY; i++) bad += CHECK(!dt_work_wait(s[i]));
    bad += CHECK(!dt_work_test(early_one) && !dt_comm_barrier(c));
    bad += CHECK(!dt_comm_send(c, &rank, 1, DT_COMM_I32, peer, .tag = 99) && !dt_work_wait(early_one) && last == peer);
    free(out);
    free(in);
    return bad;
}
static int own_deadlines(dt_comm *c, int rank)
{
    enum { BIG = 1 << 20 };
    int   bad = 0, x = 0, rc;
    char *big = (char *)calloc(1, BIG);
    bad += CHECK(!dt_comm_barrier(c));
    if (rank == 0) {
        rc = dt_comm_recv(c, &x, 1, DT_COMM_I32, 1, .tag = 5, .timeout = 0.05);
        bad += CHECK(rc == DT_COMM_ERR_TIMEOUT && !dt_comm_get_status(c));
        bad += CHECK(strstr(dt_comm_error(NULL), "dt_comm_recv from rank 1, tag 5") != NULL);
        rc = dt_comm_send(c, big, BIG, DT_COMM_U8, 1, .tag = 6, .timeout = 0.05); /* large: it waits for its receive */
        bad += CHECK(rc == DT_COMM_ERR_TIMEOUT && strstr(dt_comm_error(NULL), "dt_comm_send to rank 1, tag 6"));
        dt_work *r = dt_comm_recv_start(c, &x, 1, DT_COMM_I32, DT_ANY, .tag = DT_ANY, .timeout = DT_FOREVER);
        bad += CHECK(dt_work_cancel(r) && dt_work_wait(r) == DT_COMM_ERR_CANCELLED && !dt_work_cancel(NULL));
        dt_work *s = dt_comm_send_start(c, big, BIG, DT_COMM_U8, 1, .tag = 6);
        bad += CHECK(dt_work_cancel(s) && dt_work_wait(s) == DT_COMM_ERR_CANCELLED);
        bad += CHECK(!dt_comm_send(c, &rank, 1, DT_COMM_I32, 1, .tag = 5)); /* all is well */
    } else {
        dt_msg_info info;
        bad += CHECK(!dt_comm_recv(c, &x, 1, DT_COMM_I32, 0, .tag = 5) && x == 0);
        bad += CHECK(dt_comm_probe(c, &info, 0, .tag = 6) == 0); /* taken back */
        bad += CHECK(dt_comm_probe(c, &info, 0, .tag = 7, .timeout = 0.02) == 0);
    }
    bad += CHECK(!dt_comm_barrier(c));
    free(big);
    return bad;
}
static int views(dt_comm *c, int rank)
{
    enum { BIG = 1 << 20 };
    int         bad = 0;
    dt_msg_view v[3];
    if (rank == 0) {
        char *mine = (char *)dt_comm_alloc(c, BIG), *other = (char *)malloc(BIG);
        memset(mine, 1, BIG);
        memset(other, 2, BIG);
        dt_work *s[3] = { dt_comm_send_start(c, mine, BIG, DT_COMM_U8, 1), dt_comm_send_start(c, other, BIG, DT_COMM_U8, 1),
                          dt_comm_send_start(c, other, 100, DT_COMM_U8, 1) };
        for (int i = 2; i >= 0; i--) bad += CHECK(!dt_work_wait(s[i]));
        dt_comm_dealloc(c, mine);
        free(other);
    } else {
        for (int i = 0; i < 3; i++) bad += CHECK(!dt_comm_recv_view(c, &v[i], DT_COMM_U8, 0));
        for (int i = 0; i < 3; i++) {
            const char *p = (const char *)v[i].data;
            bad += CHECK(v[i].info.n == (i == 2 ? 100 : BIG) && p[0] == (i ? 2 : 1) && p[v[i].info.n - 1] == p[0]);
        }
        for (int i = 2; i >= 0; i--) dt_comm_view_free(c, &v[i]);
        dt_comm_view_free(c, &v[0]); /* twice: nothing */
    }
    bad += CHECK(!dt_comm_barrier(c));
    return bad;
}
enum { ADD = 1, KEEP = 2, REFUSE = 3, BIGGER = 4 };
static dt_request *kept;
static char        bigger[300000];
static int         given_back;
static void        give_back(void *user) { ++*(int *)user; }
static void        handler(dt_request *q)
{
    if (q->tag == REFUSE) dt_request_refuse(q, "not today");
    else if (q->tag == BIGGER) dt_request_reply(q, bigger, (int64_t)sizeof bigger, .done = give_back, .user = &given_back);
    else if (q->tag == KEEP && !kept) kept = q; /* answered by the next request */
    else {
        int64_t sum = 0, x;
        for (int64_t i = 0; i + 8 <= q->n; i += 8) memcpy(&x, (const char *)q->data + i, 8), sum += x;
        if (kept && q->tag == KEEP) {
            dt_request_reply(kept, &sum, 8);
            kept = NULL;
        }
        dt_request_reply(q, &sum, 8);
    }
}
static int client(dt_comm *c, int rank, int server)
{
    int     bad = 0;
    int64_t in[40000], out = 0, got = 0, want = 0;
    char   *much = (char *)malloc(sizeof bigger);
    for (int i = 0; i < 40000; i++) in[i] = i, want += i;
    bad += CHECK(!dt_comm_call(c, server, ADD, in, 3 * 8, &out, 8, &got) && out == 3 && got == 8);
    bad += CHECK(!dt_comm_call(c, server, ADD, in, (int64_t)sizeof in, &out, 8, NULL) && out == want); /* large */
    bad += CHECK(!dt_comm_call(c, server, ADD, NULL, 0, &out, 8, &got) && out == 0);
    bad += CHECK(dt_comm_call(c, server, REFUSE, in, 8, &out, 8, &got) == DT_COMM_ERR_REMOTE && strstr(dt_comm_error(NULL), "not today"));
    bad += CHECK(!dt_comm_call(c, server, BIGGER, NULL, 0, much, (int64_t)sizeof bigger, &got) && got == (int64_t)sizeof bigger && much[got - 1] == 9);
    bad += CHECK(dt_comm_call(c, server, 77, in, 8, &out, 8, &got, .timeout = 0.05) == DT_COMM_ERR_TIMEOUT); /* nobody serves it */
    dt_work *a = dt_comm_call_start(c, server, KEEP, in, 8, &out, 8), *b = dt_comm_call_start(c, server, KEEP, in, 16, &got, 8);
    bad += CHECK(!dt_work_wait(b) && !dt_work_wait(a) && out == 1 && got == 1); /* the first is answered by the second */
    free(much);
    return bad;
}
static int serve_next(dt_comm *c, int rank)
{
    int bad = 0, served = 0;
    if (rank == 1) {
        for (int tag = ADD; tag <= BIGGER; tag++) bad += CHECK(!dt_comm_serve(c, tag, handler));
        while (served < 7 && dt_comm_serve_next(c, 10 * dt_test_slow()) == 1) served++;
        bad += CHECK(served == 7 && dt_comm_serve_next(c, 0.01) == 0);
    } else if (rank == 0) bad += client(c, rank, 1);
    bad += CHECK(!dt_comm_barrier(c));
    return bad;
}
static int serve_at_once(dt_comm *c, int rank)
{
    int bad = 0;
    if (rank == 1)
        for (int tag = ADD; tag <= BIGGER; tag++) bad += CHECK(!dt_comm_serve(c, tag, handler, .at_once = true));
    bad += CHECK(!dt_comm_barrier(c));
    if (rank == 0) bad += client(c, rank, 1);
    struct timespec nap = { 0, 1000000 };
    char            end = 0;
    if (rank == 1) { /* computes, and serves meanwhile on the progress thread */
        dt_work *w = dt_comm_recv_start(c, &end, 1, DT_COMM_U8, 0, .tag = 5);
        while (!dt_work_test(w)) nanosleep(&nap, NULL);
        bad += CHECK(!dt_work_wait(w));
    } else bad += CHECK(!dt_comm_send(c, &end, 1, DT_COMM_U8, 1, .tag = 5));
    bad += CHECK(!dt_comm_barrier(c));
    return bad;
}
static int calls_itself(dt_comm *c, int rank)
{
    int     bad = 0;
    int64_t x = 5, y = 0;
    bad += CHECK(!dt_comm_serve(c, ADD, handler, .at_once = true));
    bad += CHECK(!dt_comm_call(c, rank, ADD, &x, 8, &y, 8, NULL) && y == 5);
    bad += CHECK(!dt_comm_call(c, 1 - rank, ADD, &x, 8, &y, 8, NULL) && y == 5);
    bad += CHECK(!dt_comm_barrier(c));
    bad += CHECK(!dt_comm_serve(c, ADD, NULL));
    return bad;
}
