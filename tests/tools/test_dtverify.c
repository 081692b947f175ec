/* test_dtverify.c: dtverify tells trainings that depend on the number of ranks from those that do not. This program is
   also the one it runs: test_dtverify train KIND BATCH
   run: alone, asan-later */
#include "dt_test.h"

#include "dt_dist.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* kind: 0 a plain mean, 1 slots, 2 a learning rate by rank count (a mistake), 3 no ddp, 4 fails */
static int train(int kind, int batch)
{
    dt_comm *c = dt_comm_init();
    if (!c) return printf("%s\n", dt_comm_error(NULL)) > 0;
    int           rank = dt_comm_rank(c), world = dt_comm_size(c), first = rank, own = 1;
    dt_model     *m = dt_model_new(.seed = 3);
    dt_optimizer *opt = dt_sgd(m, .lr = kind == 2 ? 0.05 * world : 0.05, .momentum = 0.9);
    dt_ddp       *d = kind == 3 ? NULL : dt_ddp_new(m, c, .slots = kind == 1 ? 4 : 0);
    if (kind == 1) dt_ddp_slots(d, &first, &own);
    for (int s = 0; s < 20; s++) {
        for (int k = first; k < first + own; k++) {
            float   x[64 * 4];
            int64_t y[64];
            int     n = kind == 1 ? batch * world / 4 : batch;
            for (int i = 0; i < n * 4; i++) {
                uint32_t r[4];
                dt_philox(1, (uint64_t)((s * 64 + k * n) * 4 + i), r);
                x[i] = (float)r[0] / 4294967296.0f - 0.5f;
                y[i / 4] = (int64_t)(r[1] % 3);
            }
            dt_tensor *in = dt_from(x, DT_SHAPE(n, 4));
            in = dt_linear(m, "b", dt_linear(m, "a", in, .out = 16, .act = DT_ACT_RELU), .out = 3);
            dt_backward(dt_cross_entropy(in, dt_from(y, DT_SHAPE(n), .dtype = DT_I64)));
        }
        dt_step(opt);
        if (kind == 4 && s == 5 && world == 2) exit(3);
    }
    dt_ddp_free(d);
    dt_optimizer_free(opt);
    dt_model_free(m);
    dt_comm_free(c);
    return dt_check("train");
}
static char self[4096];
static int  verify(int kind, const char *more, char *out, size_t nbytes)
{
    char command[9000];
    snprintf(command, sizeof command, "build/tools/dtverify --quiet %s %s train %d {24/world} 2>&1", more, self, kind);
    FILE  *p = popen(command, "r");
    size_t n = p ? fread(out, 1, nbytes - 1, p) : 0;
    out[n] = 0;
    int status = p ? pclose(p) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
UTEST(verify, tells_what_depends_on_the_number_of_ranks)
{
    char out[8192];
    if (access("build/tools/dtverify", X_OK) || access("build/tools/dtrun", X_OK))
        UTEST_SKIP("build/tools is not built");
    EXPECT_EQ(0, verify(0, "--workers 1,2,4", out, sizeof out));
    EXPECT_TRUE(strstr(out, "1 and 2 ranks: the same to rounding in 20 steps") &&
                strstr(out, "1 and 4 ranks: the same"));
    EXPECT_EQ(0, verify(1, "--workers 1,2,4", out, sizeof out));
    EXPECT_TRUE(strstr(out, "1 and 2 ranks: the same bits") && strstr(out, "1 and 4 ranks: the same bits"));
    EXPECT_EQ(1, verify(2, "--workers 1,2", out, sizeof out));
    EXPECT_TRUE(strstr(out, "NOT THE SAME") && strstr(out, "the number of ranks changes what is trained"));
    EXPECT_EQ(1, verify(3, "--workers 1,2", out, sizeof out));
    EXPECT_TRUE(strstr(out, "does it use dt_ddp_new?") != NULL);
    EXPECT_EQ(1, verify(4, "--workers 1,2", out, sizeof out));
    EXPECT_TRUE(strstr(out, "the program failed with 2 ranks (status 3)") != NULL);
    EXPECT_EQ(2, verify(0, "--workers 1,5", out, sizeof out));
    EXPECT_TRUE(strstr(out, "24 is not divisible by 5 ranks") != NULL);
    EXPECT_EQ(2, verify(0, "--workers 1,x", out, sizeof out));
    EXPECT_EQ(2, verify(0, "--tolerance 0", out, sizeof out));
}
UTEST_STATE();
int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "train")) return train(atoi(argv[2]), atoi(argv[3]));
    snprintf(self, sizeof self, "%s", argv[0]);
    return utest_main(argc, (const char *const *)argv);
}
