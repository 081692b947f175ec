/* Computes pi by the Monte Carlo method on any number of processes; needs only dt_comm.h.

   Build: cc -O2 -I.. allreduce.c -o allreduce -lm -lpthread
   Run:   ./allreduce 4          starts four ranks on this machine
          ./allreduce            under torchrun --no-python, mpirun or srun: dt_comm_init reads rank and world size */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include "options.h"

static int rank_main(void *arg)
{
    dt_comm *c = dt_comm_init();
    uint64_t x = 88172645463325252u + (uint64_t)dt_comm_rank(c) * 1000003u;
    double   hits[2] = { 0, 0 }; /* points inside the circle; all points */
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
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, "allreduce [N]: pi by the Monte Carlo method on N ranks; without N as the launcher says\n");
    return done >= 0 ? done : argc > 1 ? dt_spawn(atoi(argv[1]), rank_main, NULL) : rank_main(NULL);
}
