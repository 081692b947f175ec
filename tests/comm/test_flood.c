/* test_flood.c - connections without the token, as many as a process can make: ranks join and the control tree heals all
   the same, also over 20 ms of delay each way. Without DT_TEST_QUICK there are more rounds.
   Contents: >>job >>strangers >>proxy >>pending >>joining >>healing
   run: alone, long, asan-later */
#define DT_IMPLEMENTATION
#include "ranks.h"

#include "dt_comm.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

UTEST_MAIN()

/* ==================================================================================================== >>job */
enum { MOST = 24 };
typedef struct job { /* in memory that all processes of a test share */
    int     n, listen_fd, port;       /* rank 0 listens there */
    int     proxy_fd, proxy_port;     /* the proxy */
    double  delay;                    /* seconds, of the proxy, each way */
    double  strange;                  /* seconds: for so long the proxy answers itself, and wrongly */
    char    token[64];                /* a file */
    int     flag[8];
    int     fds;                      /* the limit of rank 0's descriptors; 0: as it is */
    int64_t made;                     /* connections of strangers */
    double  took[MOST];
    int64_t pid[MOST];
} job;
static int job_listen(int *port)
{
    dt__addr a;
    dt__addr_loopback(&a, 0);
    int fd = dt__listen(&a);
    getsockname(fd, &a.u.any, &a.n);
    *port = dt__addr_port(&a);
    return fd;
}
static job *job_new(int n)
{
    job    *j = (job *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint8_t token[32];
    memset(j, 0, sizeof *j);
    j->n = n;
    j->listen_fd = job_listen(&j->port);
    j->proxy_fd = job_listen(&j->proxy_port);
    snprintf(j->token, sizeof j->token, "/tmp/dt_flood_XXXXXX");
    int fd = mkstemp(j->token);
    dt__comm_random(token, 32);
    if (write(fd, token, 32) != 32) abort();
    close(fd);
    return j;
}
static void job_free(job *j)
{
    close(j->listen_fd);
    close(j->proxy_fd);
    unlink(j->token);
    munmap(j, sizeof *j);
}
static dt_comm_opts job_opts(const job *j, int rank)
{
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    o.rank = rank;
    o.world = j->n;
    o.addr = "127.0.0.1";
    o.port = rank ? j->proxy_port : j->port;
    if (rank == 0) o.listen_fd = j->listen_fd;
    o.join_timeout = o.timeout = 20 * dt_test_slow();
    o.token_file = j->token;
    return o;
}
static void flag_set(job *j, int i) { __atomic_add_fetch(&j->flag[i], 1, __ATOMIC_SEQ_CST); }
static int  flag_get(job *j, int i) { return __atomic_load_n(&j->flag[i], __ATOMIC_SEQ_CST); }
static void flag_wait(job *j, int i, int n)
{
    while (flag_get(j, i) < n) poll(NULL, 0, 1);
}
static double seconds(int64_t since) { return 1e-9 * (double)(dt_test_ns() - since); }

/* ==================================================================================================== >>strangers */
enum { HELD = 1500, SILENT = 0, SPEAKING }; /* how many connections a flood keeps open */
static void flood(job *j, int port, int end) /* until the flag is set */
{
    static int    fd[HELD];
    struct linger reset = { 1, 0 }; /* or the ports would be used up */
    dt__addr      a;
    dt__addr_loopback(&a, port);
    for (int i = 0; i < HELD; i++) fd[i] = -1;
    for (int64_t i = 0; !flag_get(j, end); i++) {
        int *at = &fd[i % HELD];
        if (*at >= 0) close(*at);
        *at = dt__connect(&a);
        if (*at < 0) {
            poll(NULL, 0, 1);
            continue;
        }
        setsockopt(*at, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        int *before = &fd[(i + HELD - 8) % HELD]; /* this one is connected by now */
        if (i % 2 == SPEAKING && *before >= 0 && send(*before, "DTK1\2\0\0\0", 8, MSG_NOSIGNAL) < 0) errno = 0;
        __atomic_add_fetch(&j->made, 1, __ATOMIC_SEQ_CST);
    }
}
static void flood_runs(job *j) /* it has filled every table */
{
    while (__atomic_load_n(&j->made, __ATOMIC_SEQ_CST) < HELD) poll(NULL, 0, 1);
}

/* ==================================================================================================== >>proxy
   Passes bytes on, j->delay later. Bytes of size 0 are the end of the stream. */
typedef struct chunk {
    struct chunk *next;
    int64_t       due;
    size_t        n, done;
    char          bytes[];
} chunk;
typedef struct side { /* what goes to fd */
    int    fd;
    bool   end;
    chunk *first, **last;
} side;
typedef struct tunnel {
    struct tunnel *next;
    side           s[2]; /* the client, rank 0 */
} tunnel;
static bool tunnel_read(tunnel *t, int from, double delay) /* false: there was nothing */
{
    char    buf[65536];
    side   *to = &t->s[!from];
    ssize_t n = to->end ? -1 : recv(t->s[from].fd, buf, sizeof buf, MSG_DONTWAIT);
    if (to->end || (n < 0 && (errno == EAGAIN || errno == EINTR))) return false;
    size_t m = n > 0 ? (size_t)n : 0;
    chunk *c = (chunk *)malloc(sizeof *c + m);
    c->next = NULL;
    c->due = dt_test_ns() + (int64_t)(delay * 1e9);
    c->n = m;
    c->done = 0;
    memcpy(c->bytes, buf, m);
    *to->last = c;
    to->last = &c->next;
    to->end = m == 0;
    return true;
}
static void tunnel_write(side *s)
{
    while (s->first && s->first->due <= dt_test_ns()) {
        chunk *c = s->first;
        if (c->n == 0) shutdown(s->fd, SHUT_WR);
        while (c->done < c->n) {
            ssize_t n = send(s->fd, c->bytes + c->done, c->n - c->done, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN) return;
            c->done = n < 0 ? c->n : c->done + (size_t)n;
        }
        s->first = c->next;
        if (!s->first) s->last = &s->first;
        free(c);
    }
}
/* What answers at the port of rank 0 is not rank 0. */
static void impostor(int fd, int i)
{
    struct linger reset = { 1, 0 };
    dt__hello_s s;
    dt__hello_r r;
    memset(&s, 0, sizeof s);
    memset(&r, 0, sizeof r);
    s.magic = r.magic = DT__SHAKE_MAGIC;
    s.version = i % 4 == 0 ? 9 : DT__SHAKE_VERSION;
    r.status = i % 8 == 2 ? DT_COMM_ERR_JOIN : 0;
    snprintf(r.text, sizeof r.text, "go away");
    if (i % 4 == 3) send(fd, "HTTP/1.1 400 Bad Request\r\n", 26, MSG_NOSIGNAL);
    else send(fd, &s, sizeof s, MSG_NOSIGNAL);
    if (i % 4 == 2) send(fd, &r, sizeof r, MSG_NOSIGNAL);
    dt__wait_fd(fd, POLLIN, dt_test_ns() + 20000000);
    if (i % 8 > 3) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}
static void proxy(job *j, int end)
{
    static struct pollfd p[1000];
    tunnel              *all = NULL;
    dt__addr             a;
    int64_t              begin = 0;
    int                  strangers = 0;
    dt__addr_loopback(&a, j->port);
    while (!flag_get(j, end)) {
        int n = 1, fd;
        p[0].fd = j->proxy_fd;
        for (tunnel *t = all; t; t = t->next)
            for (int i = 0; i < 2 && n < 1000; i++, n++) p[n].fd = t->s[!i].end ? -1 : t->s[i].fd;
        for (int i = 0; i < n; i++) p[i].events = POLLIN;
        poll(p, (nfds_t)n, 1);
        while ((fd = accept4(j->proxy_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
            if (!begin) begin = dt_test_ns();
            if (seconds(begin) < j->strange) {
                impostor(fd, strangers++);
                continue;
            }
            tunnel *t = (tunnel *)calloc(1, sizeof *t);
            t->s[0].fd = fd;
            t->s[1].fd = dt__connect(&a);
            dt__wait_fd(t->s[1].fd, POLLOUT, dt_test_ns() + 1000000000);
            for (int i = 0; i < 2; i++) t->s[i].last = &t->s[i].first;
            t->next = all;
            all = t;
        }
        for (tunnel **at = &all; *at;) {
            tunnel *t = *at;
            for (int i = 0; i < 2; i++) {
                while (tunnel_read(t, i, j->delay)) {}
                tunnel_write(&t->s[i]);
            }
            bool over = t->s[0].end && t->s[1].end && !t->s[0].first && !t->s[1].first;
            if (!over) {
                at = &t->next;
                continue;
            }
            *at = t->next;
            close(t->s[0].fd);
            close(t->s[1].fd);
            free(t);
        }
    }
    if (strangers) printf("    %d wrong answers\n", strangers);
}

/* ==================================================================================================== >>pending
   Which of the connections without the token is closed. */
UTEST(pending, the_address_with_the_most_connections_loses_one_of_them_at_random)
{
    enum { CROWD = 100, FEW = 20, DRAWS = 4000 };
    static dt__world w;
    dt__conn        *k[CROWD + FEW + 2];
    int              hits[CROWD + FEW + 2] = { 0 }, least = DRAWS, most = 0, wrong = 0;
    w.size = 2;
    w.ticket_fd = -1;
    ASSERT_EQ(dt__control_new(&w), 0);
    for (int i = 0; i < CROWD + FEW + 2; i++) {
        k[i] = dt__conn_new(&w, -1, 0, -1);
        k[i]->state = DT__CONN_HANDSHAKE;
        k[i]->shake.server = true;
        k[i]->source = (uint8_t)(i < CROWD ? 7 : 8);
    }
    k[CROWD + FEW]->source = 7; /* it has proved that it has the token */
    k[CROWD + FEW]->shake.state = DT__SHAKE_AT_R;
    k[CROWD + FEW + 1]->source = 7; /* dialed, not accepted */
    k[CROWD + FEW + 1]->shake.server = false;
    for (int i = 0; i < DRAWS; i++) {
        dt__conn *x = dt__pending_pick(&w, INT64_MAX);
        for (int m = 0; m < CROWD + FEW + 2; m++) hits[m] += k[m] == x;
    }
    for (int i = 0; i < CROWD; i++) {
        least = hits[i] < least ? hits[i] : least;
        most = hits[i] > most ? hits[i] : most;
    }
    for (int i = CROWD; i < CROWD + FEW + 2; i++) wrong += hits[i];
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(least, 10); /* 40 each, with a deviation of 6 */
    EXPECT_LT(most, 80);
    EXPECT_TRUE(dt__pending_pick(&w, k[0]->since) == NULL); /* all are too young */
    dt__control_free(&w);
}

/* ==================================================================================================== >>joining */
static int join_role(int rank, void *arg)
{
    job *j = (job *)arg;
    if (rank == j->n) return proxy(j, 1), 0;
    if (rank == j->n + 1) return j->strange > 0 ? 0 : (flood(j, j->port, 1), 0);
    if (rank && !(j->strange > 0)) flood_runs(j);
    struct rlimit few = { (rlim_t)j->fds, (rlim_t)j->fds };
    if (rank == 0 && j->fds && setrlimit(RLIMIT_NOFILE, &few)) return 1;
    dt_comm_opts o = job_opts(j, rank);
    int64_t      begin = dt_test_ns();
    dt__world   *w = dt__world_join(&o, &dt__comm_client);
    j->took[rank] = seconds(begin);
    if (!w) printf("    rank %d after %.2f s: %s\n", rank, j->took[rank], dt__said.text);
    int rc = w ? dt__world_meet(w, 1, NULL, NULL) : 1;
    flag_set(j, 0);
    flag_wait(j, 0, j->n);
    if (w) dt__world_unref(w);
    flag_set(j, 2);
    if (rank == 0) flag_wait(j, 2, j->n), flag_set(j, 1);
    return rc != 0;
}
UTEST(joining, while_a_flood_lasts_and_with_20_ms_of_delay)
{
    for (int round = 0; round < (dt_test_quick() ? 2 : 10); round++) {
        job *j = job_new(4);
        j->delay = round % 2 ? 0.02 : 0;
        if (round % 3 == 1) j->fds = 80;
        int64_t begin = dt_test_ns();
        EXPECT_EQ(dt_test_ranks(j->n + 2, 30, join_role, j), 0);
        double worst = 0;
        for (int r = 1; r < j->n; r++) worst = j->took[r] > worst ? j->took[r] : worst;
        printf("    delay %.0f ms, %d descriptors: joined after %.2f s; %.0f connections/s of strangers\n", j->delay * 1e3, j->fds, worst,
               (double)j->made / seconds(begin));
        EXPECT_LT(worst, 5 * dt_test_slow());
        job_free(j);
    }
}
UTEST(joining, what_a_stranger_says_is_no_verdict)
{
    job *j = job_new(2);
    j->strange = 2; /* another version, no answer, wrong proofs, another protocol; then rank 0 */
    EXPECT_EQ(dt_test_ranks(j->n + 2, 30, join_role, j), 0);
    EXPECT_GT(j->took[1], 1.5);
    job_free(j);
}

/* ==================================================================================================== >>healing
   Rank 1 dies; the ranks below it dial rank 0, which is flooded. A communicator without rank 1 loses nobody. */
static int heal_role(int rank, void *arg)
{
    job *j = (job *)arg;
    if (rank == j->n) return proxy(j, 1), 0;
    if (rank == j->n + 1) return flag_wait(j, 3, j->n), flood(j, j->port, 1), 0;
    dt_comm_opts o = job_opts(j, rank);
    int          rest[MOST], n = 0, bad = 0;
    dt_comm      c;
    o.port = j->port;
    dt__world *w = dt__world_join(&o, &dt__comm_client);
    if (!w) return printf("    rank %d: %s\n", rank, dt__said.text);
    for (int r = 0; r < j->n; r++)
        if (r != 1) rest[n++] = r;
    memset(&c, 0, sizeof c);
    c.world = w;
    c.id = 9;
    c.size = n;
    c.member = rest;
    c.failed_rank = c.wake_fd = -1;
    if (rank != 1) dt__world_add(w, &c);
    pthread_mutex_lock(&w->lock);
    dt__addr a;
    dt__addr_take(&a, w->member[0].addr, w->member[0].addr_len);
    dt__addr_set_port(&a, j->proxy_port);
    if (rank > DT__TREE) memcpy(w->member[0].addr, &a.u, a.n);
    pthread_mutex_unlock(&w->lock);
    flag_set(j, 3);
    flood_runs(j);
    if (rank == 1) _exit(0);
    int64_t begin = dt_test_ns();
    for (bool whole = false; !whole && seconds(begin) < 15 * dt_test_slow(); poll(NULL, 0, 1)) {
        pthread_mutex_lock(&w->lock);
        whole = w->control->gone[1] && (rank == 0 || w->control->parent);
        pthread_mutex_unlock(&w->lock);
    }
    j->took[rank] = seconds(begin);
    flag_set(j, 0);
    flag_wait(j, 0, j->n - 1);
    pthread_mutex_lock(&w->lock); /* whoever is declared dead would be here now, or in the text of c */
    for (int r = 0; r < j->n; r++) bad += (w->control->gone[r] != 0) != (r == 1);
    bad += w->control->expelled;
    pthread_mutex_unlock(&w->lock);
    if (bad || !dt__comm_ok(&c)) bad = printf("    rank %d: %d wrong, status %d: %s\n", rank, bad, c.status, c.text);
    dt__world_remove(w, &c);
    flag_set(j, 4);
    flag_wait(j, 4, j->n - 1);
    if (rank == 0) flag_set(j, 1); /* the flood ends */
    dt__world_unref(w);
    return bad != 0;
}
UTEST(healing, while_a_flood_lasts_nobody_is_declared_dead)
{
    for (int round = 0; round < (dt_test_quick() ? 2 : 6); round++) {
        job *j = job_new(20);
        j->delay = round % 2 ? 0 : 0.02;
        j->strange = round % 2 ? 2 : 0; /* longer than a handshake may last */
        EXPECT_EQ(dt_test_ranks(j->n + 2, 40, heal_role, j), 0);
        double worst = 0;
        for (int r = 0; r < j->n; r++) worst = j->took[r] > worst ? j->took[r] : worst;
        printf("    delay %.0f ms: the tree was whole after %.2f s\n", j->delay * 1e3, worst);
        EXPECT_LT(worst, 10 * dt_test_slow());
        job_free(j);
    }
}
UTEST(healing, a_message_names_ranks_of_the_world)
{
    static dt__member m[4];
    dt__world         w;
    dt_comm           c;
    int               member[2] = { 1, 2 };
    char              text[200];
    memset(&w, 0, sizeof w);
    memset(&c, 0, sizeof c);
    w.member = m;
    snprintf(m[2].host_name, sizeof m[2].host_name, "b");
    m[2].pid = 7;
    c.world = &w;
    c.member = member;
    EXPECT_STREQ(dt__comm_who(&c, 1, true, text, sizeof text), "rank 2 (b, pid 7) [rank 1 of this communicator]");
    EXPECT_STREQ(dt__comm_who(&c, 0, false, text, sizeof text), "rank 1 [rank 0 of this communicator]");
    member[0] = 0;
    EXPECT_STREQ(dt__comm_who(&c, 0, true, text, sizeof text), "rank 0");
    c.member = NULL;
    EXPECT_STREQ(dt__comm_who(&c, 3, false, text, sizeof text), "rank 3");
}
