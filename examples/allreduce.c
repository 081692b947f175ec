/* pi by throwing darts, on any number of processes; needs dt_comm.h alone.

   Build: cc -O2 -I.. allreduce.c -o allreduce -lm -lpthread
   Run:   ./allreduce 4          four ranks of this machine
          or under torchrun --no-python, mpirun, srun: ./allreduce (dt_comm_init finds the world) */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include <stdio.h>
#include <stdlib.h>

static int rank_main(void *arg)
{
    dt_comm *c = dt_comm_init();
    uint64_t x = 88172645463325252u + (uint64_t)dt_comm_rank(c) * 1000003u;
    double   hits[2] = { 0, 0 }; /* inside the circle; thrown */
    for (; hits[1] < 5e6; hits[1]++) {
        double at[2];
        for (int i = 0; i < 2; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            at[i] = (double)(x >> 11) * 0x1p-53;
        }
        hits[0] += at[0] * at[0] + at[1] * at[1] < 1;
    }
    dt_comm_allreduce(c, hits, 2, DT_COMM_F64, DT_COMM_SUM);
    const char *error = c ? dt_comm_error(c) : dt_comm_error(NULL);
    if (error) fprintf(stderr, "allreduce: %s\n", error);
    else if (dt_comm_rank(c) == 0) printf("pi is about %.5f, by %d ranks\n", 4 * hits[0] / hits[1], dt_comm_size(c));
    (void)arg;
    return dt_comm_free(c) || error;
}
int main(int argc, char **argv) { return argc > 1 ? dt_spawn(atoi(argv[1]), rank_main, NULL) : rank_main(NULL); }
