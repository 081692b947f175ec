/* test_restart.c: a job under dtrun whose ranks are killed at any time goes on from its checkpoints, and ends with the
   bits of a calm run; a job goes on with another number of ranks. This program is also the one that is run:
   test_restart train DIR KIND SEED STEPS
   run: alone, long, asan-later */
#include "dt_test.h"

#include "dt_data.h"
#include "dt_dist.h"
#include "ranks.h"
#include "temp_files.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N = 96, IN = 12, CLASSES = 3, SLOTS = 12 };
static dt_tensor *net(dt_model *m, dt_tensor *x)
{
    return dt_linear(m, "b", dt_linear(m, "a", x, .out = 24, .act = DT_ACT_RELU), .out = CLASSES);
}
static int finish(const char *dir, dt_model *m, dt_comm *c, int64_t step) /* rank 0 writes what came out */
{
    char      text[65] = "", path[4200];
    dt_sha256 s;
    uint8_t   sum[32];
    dt_sha256_begin(&s);
    for (int i = 0; i < dt_model_count(m); i++) {
        static float  x[4096];
        dt_parameter_info p;
        dt_model_get(m, i, &p);
        dt_copy_out(p.value, x, dt_nbytes(p.value));
        dt_sha256_add(&s, x, dt_nbytes(p.value));
    }
    dt_sha256_end(&s, sum);
    for (int i = 0; i < 32; i++) snprintf(text + 2 * i, 3, "%02x", sum[i]);
    if (dt_comm_rank(c) || dt_error()) return 0;
    snprintf(path, sizeof path, "%s/result", dir);
    FILE *f = fopen(path, "w");
    if (!f) return 1;
    fprintf(f, "%lld %s\n", (long long)step, text);
    return fclose(f);
}
/* kind 0: calm, 1: ranks are killed, 2: slots, from where the last run stopped */
static int train(const char *dir, int kind, int seed, int steps)
{
    dt_comm *c = dt_comm_init();
    if (!c) return printf("%s\n", dt_comm_error(NULL)) > 0;
    int      rank = dt_comm_rank(c), world = dt_comm_size(c), first = rank, own = 1, stop = 0;
    uint32_t r[4];
    int      restart = getenv("DT_RESTART") ? atoi(getenv("DT_RESTART")) : 0;
    dt_philox((uint64_t)seed, (uint64_t)restart, r);
    if (kind == 1 && restart < 2 && (int)(r[0] % (uint32_t)world) == rank) dt_test_signal_in(r[1] % (dt_test_quick() ? 15000 : 40000), SIGKILL);
    static float   x[N][IN];
    static uint8_t y[N];
    for (int i = 0; i < N * IN; i++) {
        dt_philox(9, (uint64_t)i, r);
        x[i / IN][i % IN] = (float)r[0] / 4294967296.0f - 0.5f;
        y[i / IN] = (uint8_t)(r[1] % CLASSES);
    }
    dt_dataset    *set = dt_arrays(x, N, .x_shape = DT_SHAPE(IN), .y = y, .y_dtype = DT_U8, .classes = CLASSES);
    dt_model      *m = dt_model_new(.seed = 3);
    dt_optimizer  *opt = dt_adam(m, .lr = 0.01);
    dt_ddp        *d = dt_ddp_new(m, c, .slots = kind == 2 ? SLOTS : 0);
    dt_checkpoint *k = dt_checkpoint_new(dir, .model = m, .optimizer = opt, .every_steps = 4, .signals = true);
    dt_loader     *in[SLOTS];
    int64_t        epoch = 0, step = 0;
    if (kind == 2) dt_ddp_slots(d, &first, &own);
    for (int i = 0; i < own; i++)
        in[i] =
            dt_loader_new(set, .batch = kind == 2 ? 2 : 24 / world, .shuffle = true,
                          .rank = kind == 2 ? first + i : rank, .world = kind == 2 ? SLOTS : world, .drop_last = true);
    dt_loader_checkpoint(in[0], k);
    if (dt_checkpoint_resume(k, &epoch, &step) > 0)
        for (int i = 1; i < own; i++) *dt_loader_cursor(in[i]) = *dt_loader_cursor(in[0]);
    while (step < steps && !stop && dt_error_code() == DT_OK) {
        for (int i = 0; i < own; i++) {
            dt_batch b;
            if (!dt_loader_next(in[i], &b) && !dt_loader_next(in[i], &b)) break; /* the next epoch */
            dt_backward(dt_cross_entropy(net(m, b.x), b.y));
        }
        dt_step(opt);
        stop = dt_checkpoint_tick(k, dt_loader_epoch(in[0]), ++step);
    }
    if (kind == 2) dt_checkpoint_finish(k, dt_loader_epoch(in[0]), step);
    if (!dt_model_count(m)) { /* killed behind the last checkpoint: a forward makes the layers, with the file's values */
        net(m, dt_zeros(DT_SHAPE(1, IN)));
        dt_end();
    }
    int bad = dt_error() ? 0 : finish(dir, m, c, step);
    dt_checkpoint_free(k);
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
    for (int i = 0; i < own; i++) dt_loader_free(in[i]);
    dt_dataset_free(set);
    dt_comm_free(c);
    return dt_check("train") || bad;
}
static char self[4096];
static int  job(int world, const char *dir, int kind, int seed, int steps, char *result)
{
    char  command[9000], path[4200];
    FILE *f;
    snprintf(command, sizeof command,
             "build/tools/dtrun -n %d --max-restarts 3 %s train %s %d %d %d > %s/log 2>&1 < /dev/null", world, self,
             dir, kind, seed, steps, dir);
    int status = system(command);
    snprintf(path, sizeof path, "%s/result", dir);
    result[0] = 0;
    if ((f = fopen(path, "r")) != NULL) {
        if (!fgets(result, 128, f)) result[0] = 0;
        fclose(f);
        unlink(path);
    }
    if (status) {
        snprintf(command, sizeof command, "tail -n 30 %s/log", dir);
        if (system(command)) printf("    no log\n");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static bool tools(void) { return !access("build/tools/dtrun", X_OK); }
/* jobs first .. first + 49, or two of them */
static void killed_jobs(int *utest_result, int first)
{
    char want[128], got[128], *dir = temp_dir();
    int  killed = 0, trials = dt_test_quick() ? 2 : 50, world = 2 + first / 50 % 2;
    EXPECT_EQ(0, job(world, dir, 0, 0, 120, want));
    EXPECT_TRUE(!strncmp(want, "120 ", 4));
    temp_remove(dir);
    for (int i = first; i < first + trials; i++) {
        dir = temp_dir();
        EXPECT_EQ(0, job(world, dir, 1, i, 120, got));
        EXPECT_STREQ(want, got);
        char  line[512];
        FILE *f = fopen(temp_in(dir, "log"), "r");
        while (f && fgets(line, sizeof line, f)) killed += strstr(line, "SIGKILL") != NULL;
        if (f) fclose(f);
        temp_remove(dir);
    }
    printf("    %d jobs, %d kills\n", trials, killed);
    EXPECT_GE(killed, trials / 2); /* some end before they are killed */
}
UTEST(restart, of_ranks_that_are_killed_ends_with_the_bits_of_a_calm_run_1)
{
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    killed_jobs(utest_result, 0);
}
UTEST(restart, of_ranks_that_are_killed_ends_with_the_bits_of_a_calm_run_2)
{
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    killed_jobs(utest_result, 50);
}
UTEST(restart, of_ranks_that_are_killed_ends_with_the_bits_of_a_calm_run_3)
{
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    killed_jobs(utest_result, 100);
}
UTEST(restart, of_ranks_that_are_killed_ends_with_the_bits_of_a_calm_run_4)
{
    if (!tools()) UTEST_SKIP("build/tools/dtrun is not built");
    killed_jobs(utest_result, 150);
}
UTEST(restart, with_another_number_of_ranks_goes_on_with_the_same_bits)
{
    static const int from[] = { 4, 2, 4, 1 }, to[] = { 2, 4, 1, 3 };
    char             want[128], got[128], *dir = temp_dir();
    if (!tools()) {
        temp_remove(dir);
        UTEST_SKIP("build/tools/dtrun is not built");
    }
    EXPECT_EQ(0, job(1, dir, 2, 0, 11, want));
    temp_remove(dir);
    for (int i = 0; i < 4; i++) {
        dir = temp_dir();
        EXPECT_EQ(0, job(from[i], dir, 2, 0, 6, got));
        EXPECT_TRUE(!strncmp(got, "6 ", 2));
        EXPECT_EQ(0, job(to[i], dir, 2, 0, 11, got));
        EXPECT_STREQ(want, got);
        temp_remove(dir);
    }
}
UTEST_STATE();
int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "train")) return train(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    snprintf(self, sizeof self, "%s", argv[0]);
    return utest_main(argc, (const char *const *)argv);
}
