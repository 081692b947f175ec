/* launchers.h - programs that start ranks, as far as they are installed, for tests that run under them

       launchers_forget()                   takes the variables of every launcher out of the environment
       launchers_mpirun(n, buf, nbytes)     the command, to be followed by a program; NULL: not installed
       launchers_torchrun(n, buf, nbytes)   the same */
#ifndef DT_TEST_LAUNCHERS_H_INCLUDED
#define DT_TEST_LAUNCHERS_H_INCLUDED

#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static DT_TEST_UNUSED void launchers_forget(void)
{
    static const char *const name[] = { "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "DT_ADDR",
                                        "DT_PORT",
                                        "DMLC_ROLE",
                                        "DMLC_NUM_WORKER",
                                        "DMLC_NUM_SERVER",
                                        "DMLC_PS_ROOT_URI",
                                        "DMLC_PS_ROOT_PORT",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_NNODES",
                                        "SLURM_STEP_NUM_NODES",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "DT_TOKEN_FD",
                                        "DT_TOKEN_FILE",
                                        "DT_LISTEN_FD",
                                        "DT_COMM_TRANSPORT",
                                        "DT_COMM_ALGO",
                                        "DT_COMM_COSTS",
                                        "DT_INSECURE" };
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) unsetenv(name[i]);
}
static DT_TEST_UNUSED const char *launchers_mpirun(int n, char *buf, size_t nbytes)
{
    if (system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") != 0) return NULL;
    snprintf(buf, nbytes, "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n %d",
             n);
    return buf;
}
static DT_TEST_UNUSED const char *launchers_torchrun(int n, char *buf, size_t nbytes)
{
    const char *run =
        access("build/venv/bin/torchrun", X_OK) == 0 ? "build/venv/bin/torchrun" : getenv("DT_TEST_TORCHRUN");
    char find[1024];
    if (!run) run = "torchrun";
    snprintf(find, sizeof find, "command -v '%s' >/dev/null", run);
    if (system(find) != 0) return NULL;
    snprintf(buf, nbytes, "'%s' --no-python --standalone --nproc-per-node %d", run, n);
    return buf;
}
#endif /* DT_TEST_LAUNCHERS_H_INCLUDED */
