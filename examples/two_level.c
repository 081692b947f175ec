/* Two levels: add inside each machine first, then across machines. How much that saves, by the plans themselves, for clusters
   that you describe; and on the ranks that there are, if a launcher has started some on several machines.

   Build: cc -O2 -I.. two_level.c -o two_level -lm -lpthread
   Run:   ./two_level --per-machine 8 --gbit 10
          dtrun --hosts a,b -n 4 ./two_level --measure */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include "options.h"
#include <math.h>

enum { MACHINES = 64, MOST = 1024 };
static const char *const two_help = "two_level [options]: an allreduce in one level and in two\n"
                                    "    --per-machine N    4: ranks of a machine\n"
                                    "    --gbit X           10: network of a machine, in Gbit/s\n"
                                    "    --mb X             100: megabytes of gradients, f32\n"
                                    "    --measure          measure on the ranks that a launcher has started\n";

static double predicted(const char *algo, const dt_plan_opts *o, const dt_cluster *k)
{
    dt_plan_prediction p;
    const char        *why = "";
    return dt_plan_predict(&p, DT_COLL_ALLREDUCE, dt_algo_find(algo), o, k, &why) ? NAN : p.seconds;
}
static int measure(double mb)
{
    static const char *const algos[] = { "ring", "halving", "two_level" };
    for (int i = 0; i < 3; i++) {
        dt_comm *c = dt_comm_init(.algo = algos[i]);
        if (!c) return fprintf(stderr, "two_level: %s\n", dt_comm_error(NULL)), 1;
        int64_t n = (int64_t)(mb * 1e6 / 4);
        float  *x = (float *)calloc((size_t)n, sizeof *x);
        double  best = 1e9;
        int     rc = x ? 0 : 1;
        for (int turn = 0; turn < 5 && !rc; turn++) {
            rc = dt_comm_barrier(c);
            double t = dt_comm_get_stats(c).busy;
            if (!rc) rc = dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM);
            t = dt_comm_get_stats(c).busy - t;
            if (t < best) best = t;
        }
        if (rc) fprintf(stderr, "two_level: %s: %s\n", algos[i], x ? dt_comm_error(c) : "out of memory");
        else if (dt_comm_rank(c) == 0) printf("%-10s %8.2f ms on %d ranks\n", algos[i], 1e3 * best, dt_comm_size(c));
        free(x);
        if (dt_comm_free(c) || rc) return 1;
    }
    return 0;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, two_help);
    if (done >= 0) return done;
    int    per = atoi(example_option(argc, argv, "--per-machine", "4")), host[MOST];
    double gbit = atof(example_option(argc, argv, "--gbit", "10")), mb = atof(example_option(argc, argv, "--mb", "100"));
    if (per < 1 || per > MOST / MACHINES || !(gbit > 0) || !(mb > 0) || mb > 1e5) {
        fprintf(stderr, "two_level: --per-machine takes 1 to %d, --gbit and --mb more than 0\n", MOST / MACHINES);
        return 2;
    }
    if (example_flag(argc, argv, "--measure")) return measure(mb);
    printf("allreduce of %g MB, %d ranks a machine, %g Gbit/s a machine\n%10s %12s %12s %12s %8s\n", mb, per, gbit, "machines", "ring", "halving",
           "two levels", "gain");
    for (int machines = 2; machines <= MACHINES; machines *= 2) {
        dt_cluster   k;
        dt_plan_opts o;
        memset(&k, 0, sizeof k);
        memset(&o, 0, sizeof o);
        k.nic = 8e-9 / gbit; /* seconds a byte; the ranks of a machine share it */
        o.world = machines * per;
        o.count = (int64_t)(mb * 1e6 / 4);
        o.host = host;
        for (int i = 0; i < o.world; i++) host[i] = i % machines; /* ranks are dealt out: neighbours are on different machines */
        double ring = predicted("ring", &o, &k), halving = predicted("halving", &o, &k), two = predicted("two_level", &o, &k);
        printf("%10d %9.1f ms %9.1f ms %9.1f ms %7.1fx\n", machines, 1e3 * ring, 1e3 * halving, 1e3 * two, ring / two);
        if (!(two <= ring * 1.001)) return 1;
    }
    return 0;
}
