/* The Open MPI ranks of bench_p2p.c: mpirun -n 2 peer_p2p_mpi SOCKET NAME */
#include "p2p.h"

#include <mpi.h>

static float *the_buffer;
static size_t the_nbytes;
static float *buffer(rank_side *s, size_t nbytes)
{
    (void)s;
    if (nbytes > the_nbytes) {
        free(the_buffer);
        the_buffer = (float *)malloc(nbytes * P2P_WINDOW);
        the_nbytes = the_buffer ? nbytes : 0;
    }
    return the_buffer;
}
static int use(rank_side *s, const char *word)
{
    ((p2p *)s->self)->window = !strcmp(word, "window");
    return 0;
}
static int pong(rank_side *s, p2p *p, char *x, int n)
{
    int bad = 0;
    if (s->rank == 0) bad = MPI_Send(x, n, MPI_BYTE, 1, P2P_TAG, MPI_COMM_WORLD);
    if (!bad) bad = MPI_Recv(x + n, n, MPI_BYTE, 1 - s->rank, P2P_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!bad && s->rank == 1) bad = MPI_Send(x, n, MPI_BYTE, 0, P2P_TAG, MPI_COMM_WORLD);
    if (p->check) p2p_see(p, 1 - s->rank, 0, x + n, (size_t)n);
    return bad;
}
static int window(rank_side *s, p2p *p, char *x, int n)
{
    MPI_Request w[P2P_WINDOW];
    int         end = 0, bad = 0;
    for (int k = 0; k < P2P_WINDOW && !bad; k++) {
        char *at = x + (size_t)k * (size_t)n;
        bad = s->rank ? MPI_Irecv(at, n, MPI_BYTE, 0, P2P_TAG, MPI_COMM_WORLD, &w[k])
                      : MPI_Isend(at, n, MPI_BYTE, 1, P2P_TAG, MPI_COMM_WORLD, &w[k]);
    }
    if (!bad) bad = MPI_Waitall(P2P_WINDOW, w, MPI_STATUSES_IGNORE);
    if (!bad && s->rank) bad = MPI_Send(&end, 1, MPI_INT, 0, P2P_TAG, MPI_COMM_WORLD);
    else if (!bad) bad = MPI_Recv(&end, 1, MPI_INT, 1, P2P_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int k = 0; p->check && s->rank && k < P2P_WINDOW; k++) p2p_see(p, 0, k, x + (size_t)k * (size_t)n, (size_t)n);
    return bad;
}
static int call(rank_side *s, float *x, size_t n)
{
    p2p *p = (p2p *)s->self;
    return (p->window ? window : pong)(s, p, (char *)x, (int)(n * sizeof *x)) != MPI_SUCCESS;
}
int main(int argc, char **argv)
{
    p2p       p = { 0, 0, 0 };
    rank_side s = { 0, 0, use, buffer, call, NULL, p2p_check, &p };
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS || argc < 3) return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.world);
    int bad = rank_serve(&s, argv[1], argv[2]);
    free(the_buffer);
    if (bad) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
