/* p2p.h - the messages of bench_p2p.c's ranks, of dt and of Open MPI: rank 0 sends to rank 1

   pong     one message there and one back
   window   64 messages from rank 0 to rank 1, all in flight at once; then one of 4 bytes back, which ends the window

   Each message of a window has its own memory. The ranks' buffers are P2P_WINDOW messages long: a pong sends the first and
   receives into the second. */
#ifndef BENCH_P2P_H_INCLUDED
#define BENCH_P2P_H_INCLUDED

#include "rank_side.h"

enum { P2P_WINDOW = 64, P2P_TAG = 7 };
typedef struct p2p { /* rank_side.self begins with it */
    int window; /* a window, else a pong */
    int check;  /* this call is not measured */
    int wrong;  /* messages with wrong bytes in it */
} p2p;

static inline unsigned char p2p_byte(int from, int k, size_t i) { return (unsigned char)(i * 31 + i / 251 + (size_t)(k * 17 + from * 7)); }
/* Message k of a rank, as it must have arrived. */
static inline void p2p_see(p2p *p, int from, int k, const char *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)got[i] != p2p_byte(from, k, i)) {
            p->wrong++;
            return;
        }
}
static inline int p2p_check(rank_side *s, float *x, size_t n)
{
    p2p   *p = (p2p *)s->self;
    char  *area = (char *)x;
    size_t nbytes = n * sizeof *x;
    for (int k = 0; k < P2P_WINDOW; k++)
        for (size_t i = 0; i < nbytes; i++)
            area[(size_t)k * nbytes + i] = p->window && s->rank ? 0 : (char)p2p_byte(s->rank, k, i);
    p->check = 1;
    p->wrong = 0;
    int bad = s->call(s, x, n);
    p->check = 0;
    return bad || p->wrong;
}

#endif /* BENCH_P2P_H_INCLUDED */
