/* strangers.h - connections without the token, as many as a process can make, and a proxy that delays what the ranks say
   Contents: >>flood >>proxy. Include it behind dt_comm.h, as jobs.h. */
#ifndef DT_TEST_STRANGERS_H_INCLUDED
#define DT_TEST_STRANGERS_H_INCLUDED

#include "jobs.h"

#include <errno.h>

static DT_TEST_UNUSED double seconds(int64_t since) { return 1e-9 * (double)(dt_test_ns() - since); }
static DT_TEST_UNUSED job *job_proxy(job *j) /* all ranks but rank 0 dial the proxy */
{
    j->proxy_fd = job_listen(&j->proxy_port);
    return j;
}

/* ==================================================================================================== >>flood */
/* how many connections a flood keeps open; MUCH: more than fit the queue of a listener */
enum { HELD = 1500, MUCH = 9000, SILENT = 0, SPEAKING };
static DT_TEST_UNUSED void flood(job *j, int port, int end) /* until the flag is set */
{
    static int    fd[MUCH];
    int           held = j->held ? j->held : HELD;
    struct linger reset = { 1, 0 }; /* or the ports would be used up */
    dt__addr      a;
    dt__addr_loopback(&a, port);
    for (int i = 0; i < held; i++) fd[i] = -1;
    for (int64_t i = 0; !flag_get(j, end); i++) {
        int *at = &fd[i % held];
        if (*at >= 0) close(*at);
        *at = dt__connect(&a);
        if (*at < 0) {
            poll(NULL, 0, 1);
            continue;
        }
        setsockopt(*at, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        int *before = &fd[(i + held - 8) % held]; /* this one is connected by now */
        if (i % 2 == SPEAKING && *before >= 0 && send(*before, "DTK1\2\0\0\0", 8, MSG_NOSIGNAL) < 0) errno = 0;
        __atomic_add_fetch(&j->made, 1, __ATOMIC_SEQ_CST);
    }
}
/* A thousand connections that each send a byte now and then, as the beginning of a handshake would; whoever is closed comes
   again. */
static DT_TEST_UNUSED void flood_slowly(job *j, int port, int end)
{
    enum { SLOW = 1000, TURN = 20 /* ms */ };
    static int      fd[SLOW];
    static unsigned said[SLOW];
    static const uint8_t hello[] = { 'D', 'T', 'K', '1', DT__SHAKE_VERSION };
    struct linger   reset = { 1, 0 };
    char            trash[256];
    dt__addr        a;
    dt__addr_loopback(&a, port);
    for (int i = 0; i < SLOW; i++) fd[i] = -1;
    for (int turn = 0; !flag_get(j, end); turn++) {
        for (int i = 0; i < SLOW; i++) {
            ssize_t n = 1;
            while (fd[i] >= 0 && (n = recv(fd[i], trash, sizeof trash, MSG_DONTWAIT)) > 0) {}
            if (fd[i] >= 0 && (n == 0 || (errno != EAGAIN && errno != EINTR && errno != ENOTCONN))) close(fd[i]), fd[i] = -1;
            if (fd[i] < 0) {
                said[i] = 0;
                if ((fd[i] = dt__connect(&a)) < 0) continue;
                setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
                __atomic_add_fetch(&j->made, 1, __ATOMIC_SEQ_CST);
            } else if (i % 10 == turn % 10 && send(fd[i], &hello[said[i]], 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
                said[i] = said[i] < 4 ? said[i] + 1 : 4;
        }
        if (turn == 0) __atomic_add_fetch(&j->made, HELD - SLOW, __ATOMIC_SEQ_CST); /* all are there */
        poll(NULL, 0, TURN);
    }
    for (int i = 0; i < SLOW; i++)
        if (fd[i] >= 0) close(fd[i]);
}
static DT_TEST_UNUSED void flood_runs(job *j) /* it has filled every table */
{
    while (__atomic_load_n(&j->made, __ATOMIC_SEQ_CST) < (j->held ? j->held : HELD)) poll(NULL, 0, 1);
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
static DT_TEST_UNUSED void proxy(job *j, int end)
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

#endif /* DT_TEST_STRANGERS_H_INCLUDED */
