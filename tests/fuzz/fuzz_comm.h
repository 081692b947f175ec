/* fuzz_comm.h - what the fuzzing targets of dt_comm.h share: the implementation, over sockets that are bytes in memory,
   and an allocator that counts. Define DT_IMPLEMENTATION first.

       fuzz_wire_is(0, p, n, how)   what the socket FUZZ_FD + 0 will bring; how: the pieces, and how it ends
       fuzz_begin(); fuzz_end();    between them nothing is left, and no allocation is larger than a frame */
#ifndef FUZZ_COMM_H_INCLUDED
#define FUZZ_COMM_H_INCLUDED

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct dt_comm;
struct dt__world;
static ssize_t fuzz_send(int fd, size_t n);
static ssize_t fuzz_recv(int fd, void *ptr, size_t n);
static ssize_t fuzz_sendmsg(int fd, const struct msghdr *m);
static ssize_t fuzz_recvmsg(int fd, struct msghdr *m);
static int     fuzz_connect(void);
static int     fuzz_link(struct dt__world *w, struct dt_comm *c, int peer, int stream);
static void   *fuzz_alloc(void *p, size_t n);
static void    fuzz_free(void *p);
#define DT__SEND_BYTES(fd, ptr, n) ((void)(ptr), fuzz_send(fd, n))
#define DT__RECV_BYTES(fd, ptr, n) fuzz_recv(fd, ptr, n)
#define DT__SEND(fd, m, flags) fuzz_sendmsg(fd, m)
#define DT__RECV(fd, m, flags) fuzz_recvmsg(fd, m)
#define DT__WORLD_LINK fuzz_link
#define DT__WORLD_ABORT dt__world_abort
#define DT__WORLD_ASK dt__world_ask
#define DT_COMM_MALLOC(n) fuzz_alloc(NULL, n)
#define DT_COMM_REALLOC(p, n) fuzz_alloc(p, n)
#define DT_COMM_FREE(p) fuzz_free(p)
/* an address of the input is dialed nowhere */
#define socket(family, type, protocol) ((void)(family), fuzz_connect())
#define connect(fd, addr, n) ((void)(fd), 0)
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dt_comm.h"
#undef socket
#undef connect

/* ---- memory */
enum { FUZZ_FRAME = (64 << 10) + 256 }; /* the largest frame, and what lies before it in a queue */
static size_t fuzz_most = FUZZ_FRAME;   /* that one allocation may have, or one read */
static long   fuzz_live, fuzz_allocs;
static size_t fuzz_bytes; /* that are allocated now */
static void  *fuzz_alloc(void *p, size_t n)
{
    if (n > fuzz_most) abort();
    fuzz_live += !p;
    fuzz_allocs++;
    fuzz_bytes -= malloc_usable_size(p);
    p = realloc(p, n + !n);
    fuzz_bytes += malloc_usable_size(p);
    return p;
}
static void fuzz_free(void *p)
{
    fuzz_live -= p != NULL;
    fuzz_bytes -= malloc_usable_size(p);
    free(p);
}
static void fuzz_begin(void) { fuzz_live = fuzz_allocs = 0; }
static void fuzz_end(void)
{
    if (fuzz_live) abort();
}

/* ---- sockets */
enum { FUZZ_FD = 1 << 24, FUZZ_WIRES = 8 }; /* numbers that no descriptor has */
enum { FUZZ_PIECES = 1, FUZZ_AGAIN = 2, FUZZ_CLOSED = 4, FUZZ_RESET = 8, FUZZ_FULL = 256 };
typedef struct fuzz_wire {
    const uint8_t *in;
    size_t         n, at, sent;
    int            how;
    uint32_t       calls;
} fuzz_wire;
static fuzz_wire fuzz_wires[FUZZ_WIRES];
static int       fuzz_dials; /* connections that may still be made */
/* how: PIECES: it comes in pieces of 1 to 16 bytes. At the end: CLOSED, RESET, or nothing more is there. AGAIN: now and
   then nothing is there, or there is no room to send. FULL: there never is. */
static void fuzz_wire_is(int i, const uint8_t *in, size_t n, int how)
{
    memset(&fuzz_wires[i], 0, sizeof fuzz_wires[i]);
    fuzz_wires[i].in = in;
    fuzz_wires[i].n = n;
    fuzz_wires[i].how = how;
}
static ssize_t fuzz_fails(int e)
{
    errno = e;
    return -1;
}
static fuzz_wire *fuzz_wire_of(int fd)
{
    return fd >= FUZZ_FD && fd < FUZZ_FD + FUZZ_WIRES ? &fuzz_wires[fd - FUZZ_FD] : NULL;
}
static bool fuzz_later(fuzz_wire *w) { return (w->how & FUZZ_AGAIN) && ++w->calls % 3 == 1; }
static ssize_t fuzz_send(int fd, size_t n)
{
    fuzz_wire *w = fuzz_wire_of(fd);
    if (!w || (w->how & FUZZ_FULL)) return fuzz_fails(EAGAIN);
    if (fuzz_later(w)) return fuzz_fails(w->calls % 2 ? EAGAIN : EINTR);
    w->sent += n;
    return (ssize_t)n;
}
static ssize_t fuzz_recv(int fd, void *ptr, size_t n)
{
    fuzz_wire *w = fuzz_wire_of(fd);
    if (n > fuzz_most) abort(); /* no frame is so long */
    if (!w || fuzz_later(w)) return fuzz_fails(EAGAIN);
    if (w->at == w->n) return w->how & FUZZ_CLOSED ? 0 : fuzz_fails(w->how & FUZZ_RESET ? ECONNRESET : EAGAIN);
    size_t piece = w->how & FUZZ_PIECES ? 1 + ++w->calls * 7 % 16 : n;
    if (piece > n) piece = n;
    if (piece > w->n - w->at) piece = w->n - w->at;
    memcpy(ptr, w->in + w->at, piece);
    w->at += piece;
    return (ssize_t)piece;
}
static ssize_t fuzz_sendmsg(int fd, const struct msghdr *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->msg_iovlen; i++) n += m->msg_iov[i].iov_len;
    return fuzz_send(fd, n);
}
static ssize_t fuzz_recvmsg(int fd, struct msghdr *m)
{
    ssize_t all = 0;
    m->msg_controllen = 0;
    for (size_t i = 0; i < m->msg_iovlen; i++) {
        ssize_t n = m->msg_iov[i].iov_len ? fuzz_recv(fd, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len) : 0;
        if (n <= 0 && m->msg_iov[i].iov_len) return all ? all : n;
        all += n;
        if ((size_t)n < m->msg_iov[i].iov_len) break;
    }
    return all;
}
static int fuzz_connect(void) { return fuzz_dials > 0 ? FUZZ_FD + FUZZ_WIRES + fuzz_dials-- : (int)fuzz_fails(EMFILE); }
static int fuzz_link(struct dt__world *w, struct dt_comm *c, int peer, int stream)
{
    (void)w, (void)c, (void)peer;
    return FUZZ_FD + stream;
}

/* Kinds of control frames have numbers of their own here, so that seeds stay what they are. */
static uint32_t fuzz_kind(uint8_t k)
{
    static const uint32_t kind[] = { 0, DT__C_MEMBER, DT__C_TABLE, DT__C_REFUSED, DT__C_MISSING, DT__C_SYNC,
                                     DT__C_MEET_UP, DT__C_MEET_DOWN, DT__C_MEET_FAIL, DT__C_ABORT, DT__C_DEATH,
                                     DT__C_ASK, DT__C_PING, DT__C_PONG, DT__C_HOP_PING, DT__C_HOP_PONG, DT__C_NOTE,
                                     DT__C_LEAVE_UP, DT__C_LEAVE_DOWN, DT__C_BYE, DT__C_COSTS, DT__C_WATCH,
                                     DT__C_AGREE_STATE, DT__C_AGREE_ORDER, DT__C_RELAY, DT__C_UNREGISTER };
    return k < sizeof kind / sizeof *kind ? kind[k] : k;
}

/* ---- a world that has not begun */
static void fuzz_world(dt__world *w, int rank, int size)
{
    memset(w, 0, sizeof *w);
    w->refs = 1;
    w->client = &dt__comm_client;
    w->rank = rank;
    w->size = w->start = w->room = size;
    w->streams = 1;
    w->epoch = 3;
    w->timeout = 30;
    w->join_timeout = 120;
    w->listen_fd = w->unix_fd = w->ticket_fd = -1;
    memset(w->token, 0x5a, sizeof w->token);
    memset(w->job, 0x6a, sizeof w->job);
    w->member = (dt__member *)fuzz_alloc(NULL, (size_t)size * sizeof *w->member);
    memset(w->member, 0, (size_t)size * sizeof *w->member);
    pthread_mutex_init(&w->lock, NULL);
}
static void fuzz_world_end(dt__world *w)
{
    if (w->control) dt__control_free(w);
    pthread_mutex_destroy(&w->lock);
    fuzz_free(w->member);
}

#endif /* FUZZ_COMM_H_INCLUDED */
