/* The Open MPI ranks of bench_allreduce.c: mpirun -n 2 peer_allreduce_mpi SOCKET NAME */
#include "allreduce.h"

#include <mpi.h>

static float *the_buffer;
static size_t the_nbytes;
static float *buffer(rank_side *s, size_t nbytes)
{
    (void)s;
    if (nbytes > the_nbytes) {
        free(the_buffer);
        the_buffer = (float *)aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
        the_nbytes = the_buffer ? nbytes : 0;
    }
    return the_buffer;
}
static int call(rank_side *s, float *x, size_t n)
{
    (void)s;
    return MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS;
}
int main(int argc, char **argv)
{
    rank_side s = { 0, 0, NULL, buffer, call, sums_write, sums_check, NULL };
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS || argc < 3) return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &s.world);
    int bad = rank_serve(&s, argv[1], argv[2]);
    free(the_buffer);
    if (bad) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
