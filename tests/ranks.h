/* ranks.h - tests that need several processes; no header of dt is needed

       dt_test_ranks(n, seconds, fn, arg)          n forked processes with a deadline
       dt_test_is_stopped(pid)                     has SIGSTOP stopped it?
       dt_test_signal_in(us, signo)                sends this process a signal, so many microseconds from now

   A function whose checks count for the rank is written
       DT_TEST_RANK(name) { ... }                  it has the parameters utest_result, rank and arg, and returns nothing */
#ifndef DT_TEST_RANKS_H_INCLUDED
#define DT_TEST_RANKS_H_INCLUDED

#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static DT_TEST_UNUSED void dt_test_signal_in(int64_t us, int signo)
{
    struct sigevent   e;
    struct itimerspec t;
    timer_t           id;
    memset(&e, 0, sizeof e);
    memset(&t, 0, sizeof t);
    e.sigev_notify = SIGEV_SIGNAL;
    e.sigev_signo = signo;
    t.it_value.tv_sec = us / 1000000;
    t.it_value.tv_nsec = us % 1000000 * 1000 + 1;
    if (!timer_create(CLOCK_MONOTONIC, &e, &id)) timer_settime(id, 0, &t, NULL);
}
/* Each rank is a process that runs fn(rank, arg) and exits with what it returns. They die with the process that started
   them. One pipe, held open by all of them, tells when the last has gone. Call it from the thread that runs the
   test. */
static DT_TEST_UNUSED void dt_test_rank_child(int rank, pid_t parent, int (*fn)(int rank, void *arg), void *arg)
{
    int status;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    status = fn(rank, arg);
    fflush(stdout);
    fflush(stderr);
    _exit(status == 0 ? 0 : status > 0 && status < 125 ? status : 1);
}

/* Waits until nobody holds the pipe; 0, or -1 at the deadline. */
static DT_TEST_UNUSED int dt_test_ranks_wait(int fd, int64_t deadline)
{
    for (;;) {
        struct pollfd p;
        int64_t       left = (deadline - dt_test_ns()) / 1000000;
        p.fd = fd;
        p.events = POLLIN;
        p.revents = 0;
        if (left <= 0) return -1;
        int n = poll(&p, 1, left > 1000000 ? 1000000 : (int)left + 1);
        if (n > 0) return 0;
        if (n < 0 && errno != EINTR) return -1;
    }
}

static DT_TEST_UNUSED int dt_test_rank_report(int rank, int n, int status, int late, double seconds)
{
    if (!late && WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    if (late) dt_test_say("   Rank %d of %d did not end within %.3g s and was killed\n", rank, n, seconds);
    else if (WIFSIGNALED(status))
        dt_test_say("   Rank %d of %d was killed by signal %d (%s)\n", rank, n, WTERMSIG(status),
                  strsignal(WTERMSIG(status)));
    else dt_test_say("   Rank %d of %d failed: exit status %d\n", rank, n, WEXITSTATUS(status));
    return 1;
}

static DT_TEST_UNUSED int dt_test_is_stopped(int pid) /* by SIGSTOP */
{
    char  path[64], state = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    f = fopen(path, "r");
    if (f && fscanf(f, "%*d %*s %c", &state) != 1) state = 0;
    if (f) fclose(f);
    return state == 'T';
}

#define DT_TEST_RANK(name)                                                                                     \
    static void name##_checks(int *utest_result, int rank, void *arg);                                         \
    static int  name(int rank, void *arg)                                                                      \
    {                                                                                                          \
        int failed = 0;                                                                                        \
        name##_checks(&failed, rank, arg);                                                                     \
        return failed;                                                                                         \
    }                                                                                                          \
    static void name##_checks(int *utest_result DT_TEST_UNUSED, int rank DT_TEST_UNUSED, void *arg DT_TEST_UNUSED)

static DT_TEST_UNUSED int dt_test_ranks(int n, double seconds, int (*fn)(int rank, void *arg), void *arg)
{
    pid_t  *pid = (pid_t *)calloc((size_t)(n > 0 ? n : 1), sizeof *pid);
    pid_t   parent = getpid();
    int     fd[2], started = 0, failed = 0, late;
    int64_t deadline;
    seconds *= dt_test_slow();
    deadline = dt_test_ns() + (int64_t)(seconds * 1e9);
    if (!pid || pipe(fd) != 0) {
        free(pid);
        return 1;
    }
    fflush(NULL);
    for (; started < n; started++) {
        pid_t child = fork();
        if (child == 0) {
            free(pid);
            close(fd[0]); /* fd[1] stays open until the process ends */
            dt_test_rank_child(started, parent, fn, arg);
        }
        if (child < 0) break;
        pid[started] = child;
    }
    close(fd[1]);
    late = started < n || dt_test_ranks_wait(fd[0], deadline) != 0;
    if (started < n) failed = 1, printf("   Rank %d of %d: fork: %s\n", started, n, strerror(errno));
    for (int i = 0; i < started; i++) {
        int   status = 0;
        pid_t got = waitpid(pid[i], &status, late ? WNOHANG : 0);
        int   killed = got == 0;
        if (killed) {
            kill(pid[i], SIGKILL);
            while (waitpid(pid[i], &status, 0) < 0 && errno == EINTR) {}
        }
        failed |= dt_test_rank_report(i, n, status, killed, seconds);
    }
    close(fd[0]);
    free(pid);
    return failed;
}

#endif /* DT_TEST_RANKS_H_INCLUDED */
