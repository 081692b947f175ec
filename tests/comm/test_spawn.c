/* dt_spawn and signals: ranks get the signal that asks the program to end, once, and can save before it ends.
   run: alone */
#define _GNU_SOURCE
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dt_comm.h"

enum { RANKS = 3 };
static int          out; /* where ranks write: 'r' ready, 's' saved */
static volatile int signals;
static void         count_it(int number) { (void)number, signals++; }

/* Waits for a signal, saves, and ends; one that is stubborn does not end. */
static int saves(void *stubborn)
{
    struct timespec  t = { 0, 10000000 };
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = count_it;
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    if (write(out, "r", 1) != 1) return 9;
    while (!signals) nanosleep(&t, NULL);
    for (int i = 0; i < 20; i++) nanosleep(&t, NULL); /* saving takes a while; a second signal would be seen */
    if (signals == 1 && write(out, "s", 1) != 1) return 9;
    while (stubborn) nanosleep(&t, NULL);
    return 0;
}
static int got(int fd, char what, int n) /* how many of n such bytes come within a minute */
{
    int  seen = 0;
    char c;
    for (struct pollfd p = { fd, POLLIN, 0 }; seen < n && poll(&p, 1, 60000) > 0 && read(fd, &c, 1) == 1;) seen += c == what;
    return seen;
}
static volatile int handled;
static void         handle(int number) { handled = number; }

/* A program with RANKS ranks; its pid, and what its ranks write at *fd. With a handler of its own it returns 77. */
static pid_t program(int *fd, void *stubborn, bool own_handler)
{
    int pipes[2];
    if (pipe(pipes)) return -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pipes[0]);
        out = pipes[1];
        if (own_handler) signal(SIGTERM, handle);
        int rc = dt_spawn(RANKS, saves, stubborn);
        _exit(handled == SIGTERM ? 77 : rc);
    }
    close(pipes[1]);
    *fd = pipes[0];
    return pid;
}

static int end_of(pid_t pid)
{
    int status = -1;
    return waitpid(pid, &status, 0) == pid ? status : -1;
}

UTEST(spawn, ranks_save_and_the_program_dies_of_the_signal)
{
    const int list[] = { SIGTERM, SIGINT };
    for (int i = 0; i < 2; i++) {
        int   fd = -1;
        pid_t pid = program(&fd, NULL, false);
        ASSERT_GT(pid, 0);
        EXPECT_EQ(RANKS, got(fd, 'r', RANKS));
        kill(pid, list[i]);
        EXPECT_EQ(RANKS, got(fd, 's', RANKS)); /* each rank got it once */
        int status = end_of(pid);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == list[i]);
        close(fd);
    }
}
UTEST(spawn, a_handler_of_the_program_runs_after_the_ranks_have_ended)
{
    int   fd = -1;
    pid_t pid = program(&fd, NULL, true);
    ASSERT_GT(pid, 0);
    EXPECT_EQ(RANKS, got(fd, 'r', RANKS));
    kill(pid, SIGTERM);
    EXPECT_EQ(RANKS, got(fd, 's', RANKS));
    int status = end_of(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77);
    close(fd);
}
UTEST(spawn, a_second_signal_ends_ranks_that_do_not)
{
    int   fd = -1, one = 1;
    char  c;
    pid_t pid = program(&fd, &one, false);
    ASSERT_GT(pid, 0);
    EXPECT_EQ(RANKS, got(fd, 'r', RANKS));
    kill(pid, SIGTERM);
    EXPECT_EQ(RANKS, got(fd, 's', RANKS));
    time_t began = time(NULL);
    kill(pid, SIGTERM);
    int status = end_of(pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    EXPECT_LT((long)(time(NULL) - began), 30L);
    EXPECT_EQ(0L, (long)read(fd, &c, 1)); /* nobody has the pipe any more: no orphan */
    close(fd);
}
UTEST(spawn, an_ignored_signal_stays_ignored)
{
    int   fd = -1;
    pid_t before = -1;
    signal(SIGHUP, SIG_IGN);
    before = program(&fd, NULL, false);
    signal(SIGHUP, SIG_DFL);
    ASSERT_GT(before, 0);
    EXPECT_EQ(RANKS, got(fd, 'r', RANKS));
    kill(before, SIGHUP);
    kill(before, SIGTERM);
    EXPECT_EQ(RANKS, got(fd, 's', RANKS));
    int status = end_of(before);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    close(fd);
}
UTEST_MAIN()
