/* cases.h: tests that run in a process of their own, with their own settings of the emulation (emu.h), because failed
   checks are sticky and end in an exit status. A case is a function; the program starts itself again to run one:

       main:    int status = case_main(cases);         cases: a table of names and functions, ended by NULL
                if (status >= 0) return status;
       a test:  case_run("name", "NAME=VALUE NAME=VALUE", 40, said, sizeof said) */
#ifndef DT_GPU_CASES_H
#define DT_GPU_CASES_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

/* The case that this process was started for: its exit status if it returns; -1: it was started for none. */
static int case_main(const test_case *cases)
{
    const char *name = getenv("DT_TEST_CASE");
    if (!name) return -1;
    for (const test_case *c = cases; c->name; c++)
        if (!strcmp(c->name, name)) {
            c->run();
            return 0;
        }
    fprintf(stderr, "no case %s\n", name);
    return 1;
}
/* Runs a case with these settings beside DT_EMU_STRICT=1, for at most so many seconds. Its exit status, or 1000 + the
   signal; said gets what it writes to stderr, unless it is NULL. */
static int case_run(const char *name, const char *settings, double seconds, char *said, size_t nbytes)
{
    int    fd[2] = { -1, -1 }, status = 0;
    size_t n = 0;
    if (said && pipe(fd)) return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        char  copy[512];
        char *save = NULL;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm((unsigned)seconds);
        if (said) dup2(fd[1], 2), close(fd[0]), close(fd[1]);
        snprintf(copy, sizeof copy, "%s", settings);
        unsetenv("CUDA_VISIBLE_DEVICES");
        unsetenv("DT_EMU");
        setenv("DT_EMU_STRICT", "1", 1);
        setenv("DT_TEST_CASE", name, 1);
        for (char *s = strtok_r(copy, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
            char *eq = strchr(s, '=');
            *eq = 0;
            setenv(s, eq + 1, 1);
        }
        execl("/proc/self/exe", "a case", (char *)NULL);
        _exit(126);
    }
    if (said) {
        close(fd[1]);
        for (ssize_t k; (k = read(fd[0], said + n, nbytes - 1 - n)) > 0 && n < nbytes - 1; n += (size_t)k) {}
        said[n] = 0;
        close(fd[0]);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#endif /* DT_GPU_CASES_H */
