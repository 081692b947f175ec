/* test_launch.c: one program, unchanged, under torchrun, under mpirun, and with the variables of srun and of PMI. As a
   rank it says who told it so, and the sum of all ranks. A launcher that is not installed is skipped.
   Contents: >>rank >>launchers >>variables
   run: alone, asan-later */
#define DT_NET_IMPLEMENTATION
#include "dt_comm.h"
#include "launchers.h"
#include "ranks.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

UTEST_STATE();

/* ==================================================================================================== >>rank */
static const char *as_rank(char *text, size_t nbytes)
{
    dt_comm *c = dt_comm_init(.join_timeout = 30);
    int32_t  x[20000];
    if (!c) {
        snprintf(text, nbytes, "%s", dt_comm_error(NULL));
        return text;
    }
    for (int i = 0; i < 20000; i++) x[i] = dt_comm_rank(c) + i;
    int rc = dt_comm_allreduce(c, x, 20000, DT_COMM_I32, DT_COMM_SUM), n = dt_comm_size(c);
    for (int i = 0; !rc && i < 20000; i++)
        if (x[i] != n * (n - 1) / 2 + n * i) rc = 1;
    snprintf(text, nbytes, "rank %d of %d by %s, %s, %s", dt_comm_rank(c), n, dt_comm_launcher(c),
             dt_comm_get_stats(c).bytes_net ? "sockets" : "memory", rc ? "WRONG" : "right");
    if (dt_comm_free(c)) snprintf(text, nbytes, "free: it failed");
    return text;
}
int main(int argc, char **argv)
{
    char text[1024];
    if (argc > 1 && !strcmp(argv[1], "rank")) {
        puts(as_rank(text, sizeof text));
        return 0;
    }
    launchers_forget();
    return utest_main(argc, (const char *const *)argv);
}

/* ==================================================================================================== >>launchers */
/* 'command' with this program behind it: do three ranks say 'what'? */
static bool launched(const char *command, const char *what)
{
    char exe[512], text[2048], said[4096], want[128];
    snprintf(exe, sizeof exe, "/proc/%d/exe", (int)getpid());
    ssize_t len = readlink(exe, text, sizeof exe - 1);
    text[len > 0 ? len : 0] = 0;
    memcpy(exe, text, strlen(text) + 1);
    snprintf(text, sizeof text, "timeout -k 5 %.0f %s '%s' rank 2>&1", 50 * dt_test_slow(), command, exe);
    bool ok = false;
    for (int turn = 0; turn < 3; turn++) { /* torchrun names a port that it does not hold: another program may take it meanwhile */
        FILE  *f = popen(text, "r");
        size_t n = f ? fread(said, 1, sizeof said - 1, f) : 0;
        said[n] = 0;
        ok = f && pclose(f) == 0;
        if (!strstr(said, "Address already in use")) break;
    }
    for (int r = 0; r < 3; r++) {
        snprintf(want, sizeof want, "rank %d of 3 by %s, right", r, what);
        ok = ok && strstr(said, want);
    }
    if (!ok) printf("    %s: expected \"%s\" from 3 ranks, got:\n%s\n", text, what, said);
    return ok;
}
UTEST(launcher, mpirun)
{
    char run[256], text[512];
    if (!launchers_mpirun(3, run, sizeof run)) UTEST_SKIP("Open MPI's mpirun is not installed");
    EXPECT_TRUE(launched(run, "OMPI_COMM_WORLD_RANK, memory"));
    snprintf(text, sizeof text, "%s -x DT_COMM_TRANSPORT=tcp", run);
    EXPECT_TRUE(launched(text, "OMPI_COMM_WORLD_RANK, sockets"));
}
UTEST(launcher, torchrun)
{
    char run[1024], text[1100];
    if (!launchers_torchrun(3, run, sizeof run)) UTEST_SKIP("torchrun (PyTorch) is not installed");
    EXPECT_TRUE(launched(run, "RANK and WORLD_SIZE, memory"));
    snprintf(text, sizeof text, "env DT_COMM_TRANSPORT=tcp %s", run);
    if (!dt_test_quick()) EXPECT_TRUE(launched(text, "RANK and WORLD_SIZE, sockets"));
}

/* ==================================================================================================== >>variables
   Ranks that are started here, with "A=1 B=%": % is the rank. */
typedef struct job {
    const char *env, *where;
} job;
static int started(int rank, void *arg)
{
    const job *j = (const job *)arg;
    char       env[1024], *save = NULL, want[256], said[1024];
    size_t     n = 0;
    for (const char *p = j->env; *p && n + 2 < sizeof env; p++) env[n++] = (char)(*p == '%' ? '0' + rank : *p);
    env[n] = 0;
    for (char *p = strtok_r(env, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(p, '=');
        *eq = 0;
        setenv(p, eq + 1, 1);
    }
    snprintf(want, sizeof want, "rank %d of 3 by %s, right", rank, j->where);
    if (!strcmp(as_rank(said, sizeof said), want)) return 0;
    printf("    %s: expected \"%s\", got \"%s\"\n", j->env, want, said);
    return 1;
}
static int job_number(void) { return 100000 + (int)getpid(); } /* two runs of this test at once are two jobs */
static int with(const char *where, const char *format, const char *more)
{
    char env[1024], head[512];
    job  j = { env, where };
    snprintf(head, sizeof head, "%s", format);
    snprintf(env, sizeof env, "%s SLURM_JOB_ID=%d SLURM_STEP_ID=0 %s", head, job_number(), more);
    return dt_test_ranks(3, 40, started, &j);
}
static const char srun[] = "SLURM_PROCID=% SLURM_NTASKS=3 SLURM_LOCALID=% SLURM_NODEID=0";
UTEST(variables, of_srun_on_one_machine)
{
    EXPECT_EQ(0, with("SLURM_PROCID, memory", srun, "SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=node07"));
    EXPECT_EQ(0, with("SLURM_PROCID, sockets", srun, "SLURM_NNODES=1 DT_COMM_TRANSPORT=tcp"));
}
/* Two machines are said; both are this one, whose name is the first of the list. */
UTEST(variables, of_srun_on_several_machines)
{
    char path[] = "/tmp/dt_launch.XXXXXX", more[256];
    int  fd = mkstemp(path);
    ASSERT_TRUE(fd >= 0 && write(fd, "0123456789abcdef0123456789abcdef", 32) == 32);
    close(fd);
    snprintf(more, sizeof more, "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=127.0.0.[1-2] DT_TOKEN_FILE=%s", path);
    EXPECT_EQ(0, with("SLURM_PROCID, memory", srun, more));
    unlink(path);
}
UTEST(variables, of_pmi)
{
    const char *pmi = "PMI_RANK=% PMI_SIZE=3 MPI_LOCALRANKID=% MPI_LOCALNRANKS=3";
    const char *pmix = "PMIX_RANK=% SLURM_NTASKS=3";
    EXPECT_EQ(0, with("PMI_RANK, memory", pmi, ""));
    EXPECT_EQ(0, with("PMIX_RANK, memory", pmix, "SLURM_NNODES=1"));
}
UTEST(variables, the_first_of_a_list_of_machines)
{
    static const char *const rows[][2] = { { "node07", "node07" },          { "a,b", "a" },
                                           { "n[07-12,20]-ib,login", "n07-ib" }, { "n[3],x", "n3" },
                                           { "r[1-2]n[04-09]", "r1n04" },   { "10.0.0.[7-9]", "10.0.0.7" } };
    char                     name[16];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EXPECT_TRUE(dt__slurm_first(rows[i][0], name, sizeof name));
        EXPECT_STREQ(rows[i][1], name);
    }
    EXPECT_FALSE(dt__slurm_first("", name, sizeof name));
    EXPECT_FALSE(dt__slurm_first("n[1-2", name, sizeof name));
    EXPECT_FALSE(dt__slurm_first("a-name-that-is-too-long", name, sizeof name));
}
