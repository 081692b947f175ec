/* Compares the two-level allreduce with the flat ring, on two "machines" with a slow link: make bench-twolevel

       bench_twolevel [--mbit 200] [--rounds 7]

   The machines are two network namespaces with two ranks each, connected by a veth pair that tbf limits to --mbit
   Mbit/s: shared memory inside, TCP between them. Ranks are placed block-wise (0 and 1, 2 and 3) and round-robin (0 and
   2, 1 and 3). First the sums of every algorithm are checked; then the algorithms take turns. A result is the median of
   the rounds, a ratio the median of the rounds' ratios. The duration of a call is from the time the last rank enters to
   the time the last rank leaves. Also printed: the algorithm that dt chooses (auto), and the bytes that one call sends
   over the link. */
#define DT_COMM_IMPLEMENTATION
#include "../tests/ranks.h"

#include "../dt_comm.h"
#include "../tests/lab.h"

#include "bench.h"

UTEST_STATE();

enum { MOST = 32 };
static int           the_rounds = 7, the_mbit = 200;
static const int64_t sizes[] = { 64 << 10, 1 << 20, 8 << 20 };
static const dt_algo algos[] = { DT_ALGO_RING, DT_ALGO_HALVING, DT_ALGO_TWO_LEVEL, DT_ALGO_LEADER, DT_ALGO_AUTO };
enum { SIZES = (int)(sizeof sizes / sizeof *sizes), ALGOS = (int)(sizeof algos / sizeof *algos) };

static int64_t cable_bytes(int machine) /* bytes that the machine has sent; -1 if unknown */
{
    char    path[80];
    int64_t n = -1;
    snprintf(path, sizeof path, "ip -s -o link show cable%d | sed 's/.*TX:[^\\\\]*\\\\ *\\([0-9]*\\).*/\\1/'", machine);
    FILE *f = popen(path, "r");
    if (f && fscanf(f, "%" SCNd64, &n) != 1) n = -1;
    if (f) pclose(f);
    return n;
}
/* Seconds of one call: the longest of any rank, after a barrier */
static double one_call(dt_comm *c, float *x, int64_t n)
{
    double t[2];
    dt_comm_barrier(c);
    t[0] = now();
    if (dt_comm_allreduce(c, x, n, DT_COMM_F32, DT_COMM_SUM)) return -1;
    t[0] = now() - t[0];
    if (dt_comm_allreduce(c, t, 1, DT_COMM_F64, DT_COMM_MAX)) return -1;
    return t[0];
}
static void judge(const lab *l, dt_comm *c, int64_t nbytes, double took[ALGOS][MOST])
{
    double  mib = (double)nbytes / (1 << 20), ratio[MOST], middle[ALGOS];
    int64_t segment;
    c->engine->algo = DT_ALGO_AUTO;
    for (int r = 0; r < the_rounds; r++) ratio[r] = took[0][r] / took[2][r];
    for (int a = 0; a < ALGOS; a++) middle[a] = median(took[a], the_rounds);
    printf("%.4g MiB:", mib);
    for (int a = 0; a < ALGOS; a++) printf("%s %s %.2f ms", a ? "," : "", dt_algo_name(algos[a]), 1e3 * middle[a]);
    printf(" (which is %s)\n", dt_algo_name(dt__choose(c, DT_COLL_ALLREDUCE, nbytes / 4, 4, &segment)));
    double m = median(ratio, the_rounds);
    printf("two-level%s-%.4gMiB: dt two_level %.2f ms, flat ring %.2f ms, ratio %.2f%s\n",
           l->in_turn ? "-in-turn" : "", mib, 1e3 * middle[2], 1e3 * middle[0], m,
           m < 1.5 ? "  (below the target)" : "");
    fflush(stdout);
}
static int bench_rank(lab *l, int rank)
{
    int machine = lab_machine(l, rank);
    if ((l->in_turn ? rank < 2 : rank % 2 == 0) &&
        sh("tc qdisc add dev cable%d root tbf rate %dmbit burst 64kb latency 100ms", machine, the_mbit))
        return NOT_HERE;
    dt_comm *c = lab_join(l, rank);
    float   *x = (float *)calloc((size_t)sizes[SIZES - 1] / 4, sizeof *x);
    if (!c || !x) return 1;
    for (int k = 0; k < SIZES; k++) {
        double  took[ALGOS][MOST];
        int64_t n = sizes[k] / 4;
        for (int a = 0; a < ALGOS; a++) { /* check the sums, and count the bytes sent */
            c->engine->algo = (int)algos[a];
            for (int64_t i = 0; i < n; i++) x[i] = (float)((rank + i) % 7);
            dt_comm_barrier(c);
            int64_t sent = rank == 0 ? cable_bytes(0) : 0;
            if (one_call(c, x, n) < 0) return printf("rank %d: %s\n", rank, dt_comm_error(c)), 1;
            dt_comm_barrier(c);
            if (rank == 0 && k == SIZES - 1)
                printf("%s: %.2f of the vector left the first machine\n", dt_algo_name(algos[a]),
                       (double)(cable_bytes(0) - sent) / (double)sizes[k]);
            for (int64_t i = 0; i < n; i++) {
                float sum = 0;
                for (int r = 0; r < l->ranks; r++) sum += (float)((r + i) % 7);
                if (x[i] != sum)
                    return printf("%s: element %" PRId64 " is %g\n", dt_algo_name(algos[a]), i, (double)x[i]), 1;
            }
        }
        for (int r = 0; r < the_rounds; r++)
            for (int a = 0; a < ALGOS; a++) {
                c->engine->algo = (int)algos[(a + r) % ALGOS];
                took[(a + r) % ALGOS][r] = one_call(c, x, n);
                if (took[(a + r) % ALGOS][r] < 0) return printf("rank %d: %s\n", rank, dt_comm_error(c)), 1;
            }
        if (rank == 0) judge(l, c, sizes[k], took);
    }
    free(x);
    return dt_comm_free(c);
}
int main(int argc, char **argv)
{
    the_mbit = atoi(option(argc, argv, "--mbit", "200"));
    the_rounds = atoi(option(argc, argv, "--rounds", "7"));
    if (the_rounds < 1 || the_rounds > MOST || the_mbit < 1)
        return fprintf(stderr, "bench_twolevel: --rounds must be 1 to %d, --mbit 1 or more\n", MOST), 2;
    int rc = 0;
    for (int turn = 0; turn < 2 && !rc; turn++) {
        lab l = lab_of(bench_rank, 4);
        l.in_turn = turn != 0;
        printf("two machines of two ranks (%s), %d Mbit/s between them\n",
               turn ? "0 and 2, 1 and 3" : "0 and 1, 2 and 3", the_mbit);
        fflush(stdout);
        rc = lab_run(&l);
        if (rc)
            printf("two-level: not measured: namespaces or veth are not permitted, ip or tc is not installed, or a rank "
                   "failed\n");
    }
    return rc != 0;
}
