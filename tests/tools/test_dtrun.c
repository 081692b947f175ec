/* test_dtrun.c: the launcher: worlds, variables, output, failures and who is blamed, restarts, signals, several
   machines over TCP and over a made-up ssh, and that nothing outlives it.

   This program is the tests, dtrun (--as-dtrun, and --agent, as dtrun starts itself), and the ranks (--as-rank).
   run: alone, long, asan-later */
#define _GNU_SOURCE
#define DT_STATIC
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include "ranks.h"
#include "temp_files.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define main dtrun_main
#include "tools/dtrun.c"
#undef main

#include <linux/filter.h>
#include <sys/ioctl.h>
#include <linux/seccomp.h>

UTEST_STATE();
#ifdef __SANITIZE_THREAD__
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; } /* else each rank takes a second to end */
#endif

/* ==================================================================================================== ranks */
static int env_number(const char *name) { return getenv(name) ? atoi(getenv(name)) : -1; }
/* Says that it is ready, then what it got; a handler could not print. */
static int rank_signal(int rank, const char *what)
{
    sigset_t set;
    int      sig = 0;
    sigemptyset(&set);
    if (strcmp(what, "user") == 0) sigaddset(&set, SIGUSR1);
    else {
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGTERM);
    }
    sigprocmask(SIG_BLOCK, &set, NULL);
    dprintf(1, "ready %d %d\n", rank, (int)getpid());
    sigwait(&set, &sig);
    dprintf(1, "stopped by %s\n", signal_name(sig));
    return 0;
}
/* joins, and adds until somebody is gone; the victim goes after some steps */
static int rank_loop(int victim, const char *how)
{
    dt_comm *c = dt_comm_init();
    float    x = 1;
    if (!c) {
        fprintf(stderr, "%s\n", dt_comm_error(NULL));
        return 1;
    }
    for (int step = 0;; step++) {
        if (dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_MEAN)) {
            fprintf(stderr, "lost: %s\n", dt_comm_error(c));
            return 1;
        }
        if (step == 0) dprintf(1, "first step %lld\n", (long long)dt_test_ns());
        if (step != 20 || dt_comm_rank(c) != victim) continue;
        dprintf(2, "rank %d has bad luck\n", victim);
        if (strcmp(how, "segv") == 0) {
            signal(SIGSEGV, SIG_DFL); /* sanitizers have a handler */
            raise(SIGSEGV);
        } else if (strcmp(how, "kill") == 0) raise(SIGKILL);
        else _exit(atoi(how));
    }
}
/* Rank 0 receives from rank 1, which computes; rank 2 computes, too. Rank 1 ends last, or not by itself. */
static int rank_silent(const char *transport, const char *how)
{
    dt_comm *c = dt_comm_init(.transport = transport, .timeout = 1);
    float    x = 1;
    if (!c) return fprintf(stderr, "%s\n", dt_comm_error(NULL)), 1;
    int rank = dt_comm_rank(c), silent = rank == 1;
    if (rank == 0) dt_comm_recv(c, &x, 1, DT_COMM_F32, 1, .tag = 3);
    while (!dt_comm_get_status(c) || (silent && strcmp(how, "stays") == 0)) poll(NULL, 0, 10);
    dt_comm_free(c); /* all ranks know why before the first process ends */
    if (silent) poll(NULL, 0, 200); /* the others end first, usually; the blame is the same if they do not */
    return silent ? 5 : 1;
}
static int rank_main(int argc, char **argv)
{
    const char *what = argv[0];
    int         rank = env_number("RANK");
    if (strcmp(what, "sum") == 0) {
        dt_comm *c = dt_comm_init();
        float    x = (float)(rank + 1);
        if (!c) return fprintf(stderr, "%s\n", dt_comm_error(NULL)), 1;
        dt_comm_allreduce(c, &x, 1, DT_COMM_F32, DT_COMM_SUM);
        printf("rank %d of %d, here %d of %d, sum %g, restart %d\n", dt_comm_rank(c), dt_comm_size(c),
               env_number("LOCAL_RANK"), env_number("LOCAL_WORLD_SIZE"), (double)x, env_number("DT_RESTART"));
        return dt_comm_free(c);
    }
    if (strcmp(what, "role") == 0) { /* says it when the world has met; fails before restart argv[1] if it is rank argv[2] */
        dt_comm *c = dt_comm_init();
        if (!c || dt_comm_barrier(c)) return fprintf(stderr, "%s\n", dt_comm_error(c)), 1;
        printf("restart %d: rank %d of %d, here %d of %d, is %s %d of %d: %s; %d workers, %d servers\n", env_number("DT_RESTART"),
               dt_comm_rank(c), dt_comm_size(c), env_number("LOCAL_RANK"), env_number("LOCAL_WORLD_SIZE"), getenv("DT_ROLE"),
               env_number("ROLE_RANK"), env_number("ROLE_WORLD_SIZE"), getenv("ROLE_NAME"), env_number("DT_WORKERS"),
               env_number("DT_SERVERS"));
        if (argc > 2 && env_number("DT_RESTART") < atoi(argv[1]) && rank == atoi(argv[2])) return 9;
        return dt_comm_free(c);
    }
    if (strcmp(what, "env") == 0) {
        for (int i = 1; i < argc; i++) printf("%s=%s\n", argv[i], getenv(argv[i]) ? getenv(argv[i]) : "(unset)");
        return 0;
    }
    if (strcmp(what, "args") == 0) {
        for (int i = 1; i < argc; i++) printf("<%s>\n", argv[i]);
        return 0;
    }
    if (strcmp(what, "loop") == 0) return rank_loop(atoi(argv[1]), argv[2]);
    if (strcmp(what, "abort") == 0) { /* rank 1 is at fault, and the last to go */
        dt_comm *c = dt_comm_init();
        if (rank == 1) dt_comm_abort(c, "the data are wrong");
        int status = dt_comm_barrier(c);
        if (rank == 1) poll(NULL, 0, 100);
        return rank == 1 ? 4 : status ? 1 : 0;
    }
    if (strcmp(what, "silent") == 0) return rank_silent(argv[1], argv[2]);
    if (strcmp(what, "exit") == 0) return rank == atoi(argv[1]) ? atoi(argv[2]) : 0;
    if (strcmp(what, "until") == 0) { /* fails before this restart */
        if (env_number("DT_RESTART") < atoi(argv[1]) && rank == 1) return 9;
        return rank_main(1, (char *[]){ (char *)(uintptr_t) "sum", NULL });
    }
    if (strcmp(what, "stop") == 0 || strcmp(what, "user") == 0) return rank_signal(rank, what);
    if (strcmp(what, "ignore") == 0) {
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        if (argc > 1 && !dt_comm_init()) return 1; /* all ignore them by now */
        if (argc > 1 && rank == atoi(argv[1])) return 5;
    } else if (strcmp(what, "tree") == 0) {
        if (fork() == 0 || fork() == 0) /* its children are not told of anything */
            for (;;) pause();
    } else if (strcmp(what, "lines") == 0) { /* at once, then failing */
        size_t n = 1 << 20;
        char  *text = (char *)malloc(n);
        for (size_t i = 0; i < n; i++) text[i] = i % 64 == 63 ? '\n' : (char)('a' + rank);
        for (size_t done = 0; done < n;) {
            ssize_t k = write(1, text + done, n - done);
            if (k > 0) done += (size_t)k;
        }
        free(text);
        return 0;
    } else if (strcmp(what, "odd") == 0) {
        char *text = (char *)malloc(300001);
        memset(text, 'x', 300000);
        text[300000] = '\n';
        fwrite(text, 1, 300001, stdout);
        fwrite("nul \0 and \xff\x01 bytes\n", 1, 19, stdout);
        fputs("no newline", stdout);
        fflush(stdout);
        fputs("error text", stderr);
        free(text);
        return 0;
    } else if (strcmp(what, "cat") == 0) {
        int ch;
        while ((ch = getchar()) != EOF) putchar(ch);
        return 0;
    } else if (strcmp(what, "flood") == 0 && rank == 0) { /* rank 1 fails when nobody reads any more */
        char line[4096];
        memset(line, 'f', sizeof line);
        line[4095] = '\n';
        for (;;)
            if (write(1, line, sizeof line) < 0) return 1;
    } else if (strcmp(what, "flood") == 0) {
        while (access(argv[1], F_OK) != 0) usleep(1000);
        return 6;
    } else if (strcmp(what, "noisy") == 0 && rank != 1) { /* it ends; what it started writes on, in its process group or not */
        char line[4096]; /* empty lines: dtrun takes longer over them than they take to be written */
        memset(line, '\n', sizeof line);
        for (int i = 0; i < 3; i++)
            if (fork() == 0) {
                if (strcmp(argv[1], "session") == 0) setsid();
                for (;;)
                    if (write(1, line, sizeof line) < 0) _exit(0);
            }
        for (int full = 0, n = 0; full < 20; usleep(1000)) full += ioctl(1, FIONREAD, &n) == 0 && n > 60000;
        dprintf(2, "ready %d %d\n", rank, (int)getpid());
        return 0;
    } else if (strcmp(what, "pause") != 0 && strcmp(what, "noisy") != 0) return 99;
    dprintf(1, "ready %d %d\n", rank, (int)getpid());
    for (;;) pause();
}

/* ==================================================================================================== running it */
#include "dtrun_job.h"

/* ==================================================================================================== one machine */
UTEST(dtrun, worlds_of_1_to_8_ranks_add_up)
{
    for (int n = 1; n <= 8; n += dt_test_quick() && n == 3 ? 5 : 1) {
        dtjob j;
        char  args[200], want[200];
        snprintf(args, sizeof args, "-n %d RANK sum", n);
        EXPECT_EQ(0, job_run(&j, args));
        for (int r = 0; r < n; r++) {
            snprintf(want, sizeof want, "[%d] rank %d of %d, here %d of %d, sum %d, restart 0\n", r, r, n, r, n,
                     n * (n + 1) / 2);
            EXPECT_SAYS(&j, 0, want);
        }
        EXPECT_STREQ("", j.said[1].p);
        job_free(&j);
    }
}
UTEST(dtrun, ranks_find_the_variables_of_torchrun)
{
    dtjob j;
    char  want[64];
    EXPECT_EQ(0,
              job_run(&j, "--nproc_per_node=2 --no-python --max_restarts 3 --rdzv_id=trial -x EXTRA=a=b -- RANK env "
                          "RANK WORLD_SIZE LOCAL_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME "
                          "MASTER_ADDR DT_RESTART TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
                          "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE DT_LISTEN_FD EXTRA DT_TOKEN_FILE"));
    static const char *const both[] = { "WORLD_SIZE=2",
                                        "GROUP_RANK=0",
                                        "GROUP_WORLD_SIZE=1",
                                        "ROLE_WORLD_SIZE=2",
                                        "ROLE_NAME=default",
                                        "MASTER_ADDR=127.0.0.1",
                                        "DT_RESTART=0",
                                        "TORCHELASTIC_RESTART_COUNT=0",
                                        "TORCHELASTIC_MAX_RESTARTS=3",
                                        "TORCHELASTIC_RUN_ID=trial",
                                        "TORCHELASTIC_USE_AGENT_STORE=(unset)",
                                        "EXTRA=a=b",
                                        "DT_TOKEN_FILE=(unset)" };
    for (int r = 0; r < 2; r++) {
        for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
            snprintf(want, sizeof want, "[%d] %s\n", r, both[i]);
            EXPECT_SAYS(&j, 0, want);
        }
        snprintf(want, sizeof want, "[%d] LOCAL_RANK=%d\n", r, r);
        EXPECT_SAYS(&j, 0, want);
    }
    EXPECT_SAYS(&j, 0, "[1] DT_LISTEN_FD=(unset)\n"); /* it is rank 0's alone */
    EXPECT_FALSE(has(&j, 0, "[0] DT_LISTEN_FD=(unset)\n"));
    job_free(&j);
}
UTEST(dtrun, the_last_ranks_are_servers)
{
    dtjob j;
    char  want[200];
    EXPECT_EQ(0, job_run(&j, "-n 3 --servers 2 RANK role"));
    for (int r = 0; r < 5; r++) {
        const char *role = r < 3 ? "worker" : "server";
        snprintf(want, sizeof want, "[%d %s] restart 0: rank %d of 5, here %d of 5, is %s %d of %d: %s; 3 workers, 2 servers\n", r,
                 role, r, r, role, r < 3 ? r : r - 3, r < 3 ? 3 : 2, role);
        EXPECT_SAYS(&j, 0, want);
    }
    EXPECT_STREQ("", j.said[1].p);
    job_free(&j);
    for (int r = 1; r < 3; r++) { /* a worker fails, then a server; after the restart all have their roles again */
        char args[100];
        snprintf(args, sizeof args, "-n 2 --servers 1 --max-restarts 1 RANK role 1 %d", r);
        EXPECT_EQ(0, job_run(&j, args));
        snprintf(want, sizeof want, "rank %d (%s) failed first: exit code 9", r, r < 2 ? "worker" : "server");
        EXPECT_SAYS(&j, 1, want);
        EXPECT_SAYS(&j, 0, "[1 worker] restart 1: rank 1 of 3, here 1 of 3, is worker 1 of 2: worker; 2 workers, 1 servers\n");
        EXPECT_SAYS(&j, 0, "[2 server] restart 1: rank 2 of 3, here 2 of 3, is server 0 of 1: server; 2 workers, 1 servers\n");
        job_free(&j);
    }
}
UTEST(dtrun, without_servers_there_are_no_roles)
{
    dtjob j;
    setenv("DT_ROLE", "server", 1); /* of a job that starts this one */
    setenv("DT_SERVERS", "7", 1);
    setenv("DT_WORKERS", "7", 1);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(0, job_run(&j, i ? "-n 2 --servers 0 RANK env DT_ROLE DT_SERVERS DT_WORKERS ROLE_NAME"
                                   : "-n 2 RANK env DT_ROLE DT_SERVERS DT_WORKERS ROLE_NAME"));
        for (int r = 0; r < 2; r++) {
            char want[128];
            snprintf(want, sizeof want, "[%d] DT_ROLE=(unset)\n[%d] DT_SERVERS=(unset)\n[%d] DT_WORKERS=(unset)\n[%d] ROLE_NAME=default\n",
                     r, r, r, r);
            EXPECT_SAYS(&j, 0, want);
        }
        job_free(&j);
    }
    unsetenv("DT_ROLE");
    unsetenv("DT_SERVERS");
    unsetenv("DT_WORKERS");
}
UTEST(dtrun, threads_are_shared_out_unless_the_user_says)
{
    dtjob j;
    char  want[64];
    snprintf(want, sizeof want, "[0] OMP_NUM_THREADS=%d\n[0] DT_NUM_THREADS=%d\n", cores(), cores());
    EXPECT_EQ(0, job_run(&j, "RANK env OMP_NUM_THREADS DT_NUM_THREADS"));
    EXPECT_SAYS(&j, 0, want);
    job_free(&j);
    EXPECT_EQ(0, job_run(&j, "-n 64 RANK env DT_NUM_THREADS"));
    EXPECT_EQ(64, count_of(&j.said[0], "DT_NUM_THREADS=1\n") + (cores() >= 128 ? 64 : 0));
    job_free(&j);
    EXPECT_EQ(0, job_run(&j, "-n2 -x OMP_NUM_THREADS=7 RANK env OMP_NUM_THREADS"));
    EXPECT_EQ(2, count_of(&j.said[0], "OMP_NUM_THREADS=7\n"));
    job_free(&j);
}
UTEST(dtrun, a_wrong_command_line_is_refused_with_a_sentence)
{
    static const struct {
        const char *args, *says;
        int         status;
    } all[] = {
        { "", "no program to run", 2 },
        { "--foo RANK", "there is no option '--foo'", 2 },
        { "-n 0 RANK", "-n is '0', expected a number from 1 to 4096, auto or cpu", 2 },
        { "--nproc-per-node=gpu RANK", "is 'gpu', expected a number", 2 },
        { "-n 99999999999999999999 RANK", "expected a number", 2 },
        { "--servers", "--servers needs a value", 2 },
        { "--servers -1 RANK", "--servers is '-1', expected a number from 0 to 4095", 2 },
        { "--servers 4096 RANK", "--servers is '4096', expected a number from 0 to 4095", 2 },
        { "--servers=two RANK", "--servers is 'two', expected a number", 2 },
        { "-n 4000 --servers 97 RANK", "-n is 4000 and --servers is 97: that is 4097 ranks on this machine, expected at most 4096", 2 },
        { "--nnodes", "--nnodes needs a value", 2 },
        { "--nnodes 1:4 RANK", "grows and shrinks", 2 },
        { "--nnodes 2 RANK", "--master-addr is missing", 2 },
        { "--nnodes 2 --master-addr localhost RANK", "need a secret", 2 },
        { "--node-rank 1 RANK", "--node-rank is 1, expected 0 to 0", 2 },
        { "--standalone --hosts a RANK", "standalone is one machine", 2 },
        { "--standalone=1 RANK", "takes no value", 2 },
        { "--hosts a --nnodes 2 RANK", "the hosts are the machines", 2 },
        { "--hosts -oProxyCommand=x,b RANK", "--hosts has '-oProxyCommand=x'", 2 },
        { "--hosts , RANK", "--hosts is ','", 2 },
        { "--master-port 70000 RANK", "from 0 to 65535", 2 },
        { "--grace soon RANK", "expected seconds", 2 },
        { "--log-dir /proc/nowhere RANK", "--log-dir is '/proc/nowhere'", 2 },
        { "-m torch RANK", "python3 -m", 2 },
        { "-x =1 RANK", "expected NAME", 2 },
        { "./no-such-program", "cannot run './no-such-program': no such file", 127 },
        { "no-such-program", "it is in no directory of PATH", 127 },
        { "/etc/passwd", "not executable", 126 },
        { "/tmp", "is a directory", 126 },
    };
    dtjob j;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        EXPECT_EQ_MSG(all[i].status, job_run(&j, all[i].args), all[i].args);
        EXPECT_SAYS(&j, 1, all[i].says);
        EXPECT_EQ(0, strncmp(j.said[1].p, "dtrun: ", 7));
        EXPECT_STREQ("", j.said[0].p);
        job_free(&j);
    }
    EXPECT_EQ(0, job_run(&j, "--help"));
    EXPECT_SAYS(&j, 0, "--max-restarts N");
    job_free(&j);
    EXPECT_EQ(0, job_run(&j, "--version"));
    EXPECT_STREQ("dtrun " DT_VERSION "\n", j.said[0].p);
    job_free(&j);
}
UTEST(dtrun, a_port_that_is_taken_is_named)
{
    dtjob    j;
    dt__addr a;
    char     args[100], want[100];
    dt__addr_loopback(&a, 0);
    int fd = dt__listen(&a);
    getsockname(fd, &a.u.any, &a.n);
    snprintf(args, sizeof args, "-n 2 --master-port %d RANK sum", dt__addr_port(&a));
    snprintf(want, sizeof want, "cannot listen at 127.0.0.1:%d: Address already in use", dt__addr_port(&a));
    EXPECT_EQ(1, job_run(&j, args));
    EXPECT_SAYS(&j, 1, want);
    job_free(&j);
    close(fd);
    EXPECT_EQ(0, job_run(&j, args)); /* now it is free */
    job_free(&j);
}
static int few_descriptors(int rank, void *arg)
{
    struct rlimit r = { 64, 64 };
    dtjob         j;
    (void)rank, (void)arg;
    if (setrlimit(RLIMIT_NOFILE, &r)) return 1;
    int status = job_run(&j, "-n 100 RANK sum");
    bool ok = has(&j, 1, "a job of 100 ranks on this machine needs 3") &&
              has(&j, 1, "file descriptors, but the limit of this process is 64: raise it (ulimit -n 3");
    if (!ok) printf("   %s\n", j.said[1].p);
    job_free(&j);
    return status != 1 || !ok;
}
UTEST(dtrun, too_few_descriptors_are_named_at_once) { EXPECT_EQ(0, dt_test_ranks(1, 20, few_descriptors, NULL)); }
UTEST(dtrun, a_script_may_run_two_programs_of_the_job)
{
    char *dir = temp_dir(), script[9000];
    snprintf(script, sizeof script, "#!/bin/sh\n'%s' --as-rank sum && exec '%s' --as-rank sum\n", exe, exe);
    chmod(temp_put(dir, "both.sh", script, strlen(script)), 0700);
    dtjob j;
    job_dir = dir;
    EXPECT_EQ(0, job_run(&j, "-n 3 ./both.sh"));
    job_dir = NULL;
    EXPECT_EQ(6, count_of(&j.said[0], "of 3, sum 6"));
    job_free(&j);
    temp_remove(dir);
}
UTEST(dtrun, rank_0_gets_the_input)
{
    dtjob j;
    int   tube[2];
    char *argv[64], room[200];
    ASSERT_EQ(0, pipe2(tube, O_CLOEXEC));
    ASSERT_EQ(6, write(tube[1], "a\nb\nc", 5) + 1);
    close(tube[1]);
    job_argv("-n 3 RANK cat", argv, room);
    job_exec(&j, argv, tube[0]);
    close(tube[0]);
    EXPECT_EQ(0, job_wait(&j));
    EXPECT_STREQ("[0] a\n[0] b\n[0] c\n", j.said[0].p);
    job_free(&j);
}

/* ==================================================================================================== output */
UTEST(dtrun, lines_stay_whole_whatever_is_in_them)
{
    dtjob j;
    EXPECT_EQ(0, job_run(&j, "-n 2 RANK odd"));
    EXPECT_EQ((size_t)2 * (4 + 300001 + 4 + 19 + 4 + 11), j.said[0].n);
    for (int r = 0; r < 2; r++) {
        char prefix[20], want[64];
        int  n = snprintf(want, sizeof want, "[%d] nul ", r);
        snprintf(prefix, sizeof prefix, "[%d] xx", r);
        const char *p = (const char *)memmem(j.said[0].p, j.said[0].n, prefix, 6);
        ASSERT_TRUE(p != NULL);
        EXPECT_EQ((size_t)300000, strspn(p + 4, "x"));
        EXPECT_EQ('\n', p[4 + 300000]);
        memcpy(want + n, "\0 and \xff\x01 bytes\n", 16);
        EXPECT_TRUE(memmem(j.said[0].p, j.said[0].n, want, (size_t)n + 15) != NULL);
        snprintf(want, sizeof want, "[%d] no newline\n", r);
        EXPECT_SAYS(&j, 0, want);
        snprintf(want, sizeof want, "[%d] error text\n", r);
        EXPECT_SAYS(&j, 1, want);
    }
    job_free(&j);
}
UTEST(dtrun, a_megabyte_at_once_from_each_rank)
{
    dtjob j;
    EXPECT_EQ(0, job_run(&j, "-n 3 RANK lines"));
    EXPECT_EQ((size_t)3 * (1 << 14) * 68, j.said[0].n);
    int bad = 0;
    for (size_t at = 0; at + 68 <= j.said[0].n; at += 68) {
        const char *p = j.said[0].p + at;
        bad += p[0] != '[' || p[67] != '\n' || p[4] != 'a' + (p[1] - '0') || p[66] != p[4] || memcmp(p + 4, p + 5, 62);
    }
    EXPECT_EQ(0, bad);
    job_free(&j);
}
UTEST(dtrun, files_of_each_rank)
{
    char *dir = temp_dir(), *text_of[2], args[5000];
    dtjob j;
    for (int tee = 0; tee < 2; tee++) {
        snprintf(args, sizeof args, "-n 2 --log-dir %s/a/b %s RANK odd", dir, tee ? "--tee 3" : "");
        EXPECT_EQ(0, job_run(&j, args));
        EXPECT_EQ(tee ? (size_t)2 * 300043 : 0, j.said[0].n);
        job_free(&j);
        for (int r = 0; r < 2; r++) {
            static const char *const kinds[2] = { "out", "err" };
            size_t                   n[2];
            for (int k = 0; k < 2; k++) {
                char name[40];
                snprintf(name, sizeof name, "a/b/rank%d.%s", r, kinds[k]);
                FILE *f = fopen(temp_in(dir, name), "rb");
                ASSERT_TRUE(f != NULL);
                text_of[k] = (char *)calloc(1, 400000);
                n[k] = fread(text_of[k], 1, 400000, f);
                fclose(f);
            }
            EXPECT_EQ((size_t)(300001 + 19 + 10), n[0]); /* as it came: no prefix, no newline added */
            EXPECT_EQ(0, memcmp(text_of[0] + 300001, "nul \0 and \xff\x01 bytes\nno newline", 29));
            EXPECT_STREQ("error text", text_of[1]);
            free(text_of[0]);
            free(text_of[1]);
        }
    }
    snprintf(args, sizeof args, "-n 2 --log-dir %s/c --max-restarts 1 RANK loop 1 4", dir);
    EXPECT_EQ(4, job_run(&j, args)); /* the last lines are told all the same, each start has its files */
    EXPECT_SAYS(&j, 1, "| rank 1 has bad luck");
    EXPECT_EQ(0, access(temp_in(dir, "c/rank1.restart1.err"), F_OK));
    job_free(&j);
    temp_remove(dir);
}
UTEST(dtrun, logs_follow_no_links_and_wait_for_no_pipes)
{
    static const char *const says[TEMP_TRAPS] = { "symbolic link", "symbolic link", "pipe", "hard link", "another user" };
    char *dir = temp_dir(), args[5000], want[100];
    dtjob j;
    for (int kind = 0; kind < TEMP_TRAPS; kind++) {
        if (!temp_trap(dir, "rank0.out", kind)) continue;
        snprintf(args, sizeof args, "-n 2 --log-dir %s RANK args x", dir);
        EXPECT_EQ(0, job_run(&j, args));
        snprintf(want, sizeof want, "rank0.out': it ");
        EXPECT_SAYS(&j, 1, want);
        EXPECT_SAYS(&j, 1, says[kind]);
        EXPECT_SAYS(&j, 0, "[0] <x>"); /* its output is not lost */
        job_free(&j);
        EXPECT_TRUE(temp_trap_end(dir, "rank0.out"));
        FILE *f = fopen(temp_in(dir, "rank1.out"), "r"); /* the user's own file of the run before: emptied */
        char  line[40] = "";
        EXPECT_TRUE(f && fread(line, 1, 39, f) == 4);
        if (f) fclose(f);
    }
    /* the directory */
    snprintf(args, sizeof args, "-n 1 --log-dir %s/open RANK args x", dir);
    mkdir(temp_in(dir, "open"), 0777);
    chmod(temp_in(dir, "open"), 0777);
    EXPECT_EQ(2, job_run(&j, args));
    EXPECT_SAYS(&j, 1, "chmod o-w");
    job_free(&j);
    chmod(temp_in(dir, "open"), 01777);
    EXPECT_EQ(0, job_run(&j, args));
    job_free(&j);
    symlink("open", temp_in(dir, "mine"));
    snprintf(args, sizeof args, "-n 1 --log-dir %s/mine// RANK args x", dir);
    EXPECT_EQ(0, job_run(&j, args)); /* a link of this user */
    job_free(&j);
    if (geteuid() == 0) {
        EXPECT_EQ(0, lchown(temp_in(dir, "mine"), 12345, 12345));
        EXPECT_EQ(2, job_run(&j, args));
        EXPECT_SAYS(&j, 1, "symbolic link of another user (uid 12345)");
        job_free(&j);
        EXPECT_EQ(0, lchown(temp_in(dir, "mine"), 0, 0));
        EXPECT_EQ(0, chown(temp_in(dir, "open"), 12345, 12345));
        EXPECT_EQ(2, job_run(&j, args));
        EXPECT_SAYS(&j, 1, "it belongs to another user (uid 12345)");
        job_free(&j);
    }
    temp_remove(dir);
}
UTEST(dtrun, colour_on_a_terminal_only)
{
    for (int plain = 0; plain < 2; plain++) {
        int   tty = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;
        char *argv[64], room[200], buf[4096], all[8192] = "";
        if (tty < 0 || grantpt(tty) != 0 || unlockpt(tty) != 0) UTEST_SKIP("no terminals here");
        slave = open(ptsname(tty), O_RDWR | O_NOCTTY | O_CLOEXEC);
        job_argv("-n 1 RANK sum", argv, room);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            dup2(slave, 1);
            setenv("TERM", "xterm", 1);
            unsetenv("NO_COLOR");
            if (plain) setenv("NO_COLOR", "1", 1);
            execv(exe, argv);
            _exit(125);
        }
        close(slave);
        for (ssize_t n; (n = read(tty, buf, sizeof buf - 1)) > 0;) {
            buf[n] = 0;
            strncat(all, buf, sizeof all - strlen(all) - 1);
        }
        int status;
        waitpid(pid, &status, 0);
        close(tty);
        EXPECT_EQ(0, status);
        EXPECT_TRUE(plain == (strstr(all, "\033[36m[0]\033[0m rank 0") == NULL));
        EXPECT_EQ(plain, strncmp(all, "[0] rank 0", 10) == 0);
    }
}
UTEST(dtrun, the_job_goes_on_when_its_stdout_goes_away)
{
    char *dir = temp_dir(), args[5000];
    dtjob j;
    snprintf(args, sizeof args, "-n 2 RANK lines");
    job_start(&j, args);
    dt__close(&j.fd[0]);
    EXPECT_EQ(0, job_wait(&j));
    EXPECT_SAYS(&j, 1, "stdout is gone (Broken pipe)");
    EXPECT_EQ(1, count_of(&j.said[1], "stdout is gone"));
    job_free(&j);
    /* nobody reads: a failure is noticed all the same */
    snprintf(args, sizeof args, "-n 2 RANK flood %s/now", dir);
    job_start(&j, args);
    int held = j.fd[0], one = 0;
    while (ioctl(held, FIONREAD, &one) == 0 && one < 30000) poll(NULL, 0, 1);
    j.fd[0] = -1;
    temp_put(dir, "now", "", 0);
    EXPECT_TRUE(job_until(&j, 1, "rank 1 failed first: exit code 6", 1));
    j.fd[0] = held;
    EXPECT_EQ(6, job_wait(&j));
    job_free(&j);
    temp_remove(dir);
}

/* ==================================================================================================== failures */
UTEST(dtrun, the_rank_that_failed_first_is_named)
{
    static const struct {
        const char *how, *says;
        int         status;
    } all[] = { { "3", "exit code 3", 3 },
                { "segv", "killed by SIGSEGV", 128 + SIGSEGV },
                { "kill", "killed by SIGKILL, which dtrun did not send", 128 + SIGKILL } };
    for (int trial = 0; trial < (dt_test_quick() ? 6 : 30); trial++) {
        int   victim = trial % 4, k = trial % 3;
        char  args[100], want[160];
        dtjob j;
        snprintf(args, sizeof args, "-n 4 RANK loop %d %s", victim, all[k].how);
        EXPECT_EQ(all[k].status, job_run(&j, args));
        snprintf(want, sizeof want, "dtrun: rank %d failed first: %s", victim, all[k].says);
        EXPECT_SAYS(&j, 1, want);
        snprintf(want, sizeof want, "dtrun:     | rank %d has bad luck\n", victim);
        EXPECT_SAYS(&j, 1, want);
        EXPECT_EQ(1, count_of(&j.said[1], "failed first"));
        job_free(&j);
    }
}
UTEST(dtrun, the_order_of_deaths_is_the_kernels_however_late_dtrun_looks)
{
    for (int trial = 0; trial < (dt_test_quick() ? 3 : 12); trial++) {
        int   order[4] = { trial % 4, (trial + 3) % 4, (trial + 1) % 4, (trial + 2) % 4 };
        char  want[100];
        dtjob j;
        job_start(&j, "-n 4 RANK pause");
        ASSERT_TRUE(job_until(&j, 0, "ready", 4));
        kill(j.pid, SIGSTOP);
        EXPECT_TRUE(state_becomes(j.pid, 'T'));
        for (int i = 0; i < 4; i++) {
            kill(pid_of(&j, order[i]), SIGKILL);
            EXPECT_TRUE(state_becomes(pid_of(&j, order[i]), 'Z'));
        }
        kill(j.pid, SIGCONT);
        EXPECT_EQ(128 + SIGKILL, job_wait(&j));
        snprintf(want, sizeof want, "rank %d failed first", order[0]);
        EXPECT_SAYS(&j, 1, want);
        job_free(&j);
    }
}
UTEST(dtrun, who_lost_another_rank_is_not_blamed)
{
    dtjob j;
    EXPECT_EQ(4, job_run(&j, "-n 3 RANK abort")); /* dt_comm.h of the others tells dtrun */
    EXPECT_SAYS(&j, 1, "rank 1 failed first: exit code 4");
    EXPECT_SAYS(&j, 1, "after it: exit code 1; it had lost rank 1");
    job_free(&j);
}
UTEST(dtrun, blame_follows_a_message_that_timed_out)
{
    static const char *const transport[] = { "shm", "tcp" };
    for (int i = 0; i < 4; i++) {
        char  args[100];
        bool  stays = i / 2 == 1;
        dtjob j;
        snprintf(args, sizeof args, "-n 3 RANK silent %s %s", transport[i % 2], stays ? "stays" : "ends");
        EXPECT_EQ(stays ? 1 : 5, job_run(&j, args));
        if (stays) { /* nobody but the others can tell what it did */
            EXPECT_SAYS(&j, 1, "it had lost rank 1, which was still running: rank 0: dt_comm_recv from rank 1");
        } else EXPECT_SAYS(&j, 1, "rank 1 failed first: exit code 5");
        EXPECT_EQ(1, count_of(&j.said[1], "failed first"));
        job_free(&j);
    }
}
UTEST(dtrun, blame_follows_what_ranks_report)
{
    exited e;
    memset(&e, 0, sizeof e);
    world = 3;
    nnodes = 1;
    nodes = (node *)calloc(1, sizeof *nodes);
    nodes[0].nproc = nodes[0].alive = 3;
    nodes[0].link.gone = true;
    ends = (ending *)calloc(3, sizeof *ends);
    opt.grace = 5;
    state = RUNNING;
    blamed = -1;
    e.how = 'x';
    e.value = 1;
    e.lost = 1;
    controller_exited(2, &e, "", 0);
    EXPECT_EQ(SETTLING, state); /* rank 1 is waited for */
    EXPECT_EQ(-1, blamed);
    e.lost = 0;
    controller_exited(1, &e, "", 0);
    EXPECT_EQ(SETTLING, state);
    e.lost = -1;
    e.value = 8;
    controller_exited(0, &e, "", 0);
    EXPECT_EQ(0, blamed);
    EXPECT_EQ(STOPPING, state);
    /* the lost one still runs, or ended well: the first one to fail is told */
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 3; i++) free(ends[i].tail);
        memset(ends, 0, 3 * sizeof *ends);
        state = RUNNING;
        blamed = -1;
        e.lost = 1;
        e.value = 1;
        if (k) {
            exited well;
            memset(&well, 0, sizeof well);
            well.how = 'x';
            well.lost = -1;
            controller_exited(1, &well, "", 0);
        }
        controller_exited(2, &e, "", 0);
        if (!k) find_first_failure(true);
        EXPECT_EQ(2, blamed);
    }
    /* two that name each other: the second saw that the first had ended */
    for (int i = 0; i < 3; i++) free(ends[i].tail);
    memset(ends, 0, 3 * sizeof *ends);
    state = RUNNING;
    blamed = -1;
    world = 2;
    e.value = 1;
    e.lost = 1;
    controller_exited(0, &e, "", 0);
    e.lost = 0;
    controller_exited(1, &e, "", 0);
    EXPECT_EQ(1, blamed);
    for (int i = 0; i < 3; i++) free(ends[i].tail);
    free(ends);
    free(nodes);
    ends = NULL;
    nodes = NULL;
    nnodes = world = 0;
    state = GATHERING;
    blamed = -1;
}
UTEST(dtrun, ranks_that_ignore_sigterm_are_killed_after_the_grace_time)
{
    dtjob j;
    EXPECT_EQ(5, job_run(&j, "-n 3 --grace 0.2 RANK ignore 1"));
    EXPECT_SAYS(&j, 1, "killing the ranks that did not end");
    EXPECT_SAYS(&j, 1, "rank 1 failed first: exit code 5");
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
}
UTEST(dtrun, what_a_rank_leaves_behind_ends_with_the_job)
{
    char *dir = temp_dir();
    chmod(temp_put(dir, "leave.sh", "#!/bin/sh\nsleep 1000 &\nexit 0\n", 30), 0700);
    dtjob j;
    job_dir = dir;
    EXPECT_EQ(0, job_run(&j, "-n 2 ./leave.sh"));
    job_dir = NULL;
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    temp_remove(dir);
}
UTEST(dtrun, all_is_the_same_without_pidfds)
{
    dtjob j;
    job_no_pidfd = true;
    EXPECT_EQ(0, job_run(&j, "-n 3 RANK sum"));
    EXPECT_EQ(3, count_of(&j.said[0], "sum 6"));
    job_free(&j);
    EXPECT_EQ(3, job_run(&j, "-n 3 --max-restarts 1 RANK exit 2 3"));
    job_no_pidfd = false;
    EXPECT_EQ(2, count_of(&j.said[1], "rank 2 failed first: exit code 3"));
    job_free(&j);
}
UTEST(dtrun, what_writes_without_end_keeps_no_signal_out)
{
    dtjob j;
    job_no_out = true;
    job_start(&j, "-n 2 RANK noisy group");
    job_no_out = false;
    ASSERT_TRUE(job_until(&j, 1, "ready 0 ", 1));
    pid_t gone = (pid_t)atoi(strstr(j.said[1].p, "ready 0 ") + 8);
    ASSERT_TRUE(state_becomes(gone, 'Z')); /* dtrun reads what it left; rank 1 runs on */
    kill(j.pid, SIGTERM);
    EXPECT_EQ(128 + SIGTERM, job_wait(&j));
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
}
UTEST(dtrun, what_left_the_group_and_writes_without_end_does_not_keep_it)
{
    dtjob j;
    job_no_out = true;
    EXPECT_EQ(0, job_run(&j, "-n 1 RANK noisy session"));
    job_no_out = false;
    EXPECT_GE(until_none_marked(1), 0); /* its pipe is closed */
    job_free(&j);
}
UTEST(dtrun, a_stdout_that_cannot_be_opened_again_does_not_block_it)
{
    static const int most[2] = { PIPE_BUF, 256 };
    for (int tty = 0; tty < 2; tty++) {
        int  fd[2], one = 0;
        char buf[4096];
        sink s;
        memset(&s, 0, sizeof s);
        ASSERT_EQ(0, pipe2(fd, O_CLOEXEC));
        s.fd = fd[1];
        s.blocking = most[tty];
        for (int i = 0; i < 100; i++) bytes_add(&s.q, buf, sizeof buf);
        sink_flush(&s); /* it fills the pipe and returns */
        ASSERT_EQ(0, ioctl(fd[0], FIONREAD, &one));
        EXPECT_EQ(100 * sizeof buf, s.q.n + (size_t)one);
        EXPECT_GT(one, 0);
        EXPECT_GT(s.q.n, (size_t)0);
        for (size_t got = 0; got < 100 * sizeof buf;) {
            ssize_t n = read(fd[0], buf, sizeof buf);
            ASSERT_GT(n, 0);
            got += (size_t)n;
            sink_flush(&s);
        }
        EXPECT_EQ((size_t)0, s.q.n);
        close(fd[0]);
        close(fd[1]);
        free(s.q.p);
    }
}
UTEST(dtrun, a_signal_ends_it_although_nobody_reads)
{
    char *dir = temp_dir(), args[5000];
    fake_ssh(dir);
    for (int ssh = 0; ssh < 2; ssh++) {
        dtjob j;
        int   one = 0;
        snprintf(args, sizeof args, "-n 1 --ssh %s/ssh %s RANK flood x", dir, ssh ? "--hosts 127.0.0.1" : "");
        setenv("DT_TEST_WAIT", "0.1", 1);
        job_start(&j, args);
        unsetenv("DT_TEST_WAIT");
        int held = j.fd[0];
        while (ioctl(held, FIONREAD, &one) == 0 && one < 30000) poll(NULL, 0, 1);
        j.fd[0] = -1;
        kill(j.pid, SIGTERM);
        EXPECT_EQ(128 + SIGTERM, job_wait(&j));
        EXPECT_SAYS(&j, 1, "stdout takes no more text: ");
        EXPECT_GE(until_none_marked(1), 0);
        close(held);
        job_free(&j);
    }
    temp_remove(dir);
}

/* ==================================================================================================== restarts */
UTEST(dtrun, restarts_until_it_works)
{
    dtjob j;
    EXPECT_EQ(0, job_run(&j, "-n 3 --max-restarts 5 RANK until 2"));
    EXPECT_EQ(3, count_of(&j.said[0], "sum 6, restart 2"));
    EXPECT_EQ(2, count_of(&j.said[1], "rank 1 failed first: exit code 9"));
    EXPECT_SAYS(&j, 1, "restarting all ranks (restart 2 of 5)");
    job_free(&j);
}
UTEST(dtrun, gives_up_with_the_ranks_code)
{
    double slowest = 0;
    for (int trial = 0; trial < (dt_test_quick() ? 5 : 20); trial++) {
        dtjob j;
        char  args[100];
        snprintf(args, sizeof args, "-n 2 --max-restarts 3 RANK loop %d %s", trial % 2, trial % 4 < 2 ? "11" : "kill");
        int want = trial % 4 < 2 ? 11 : 128 + SIGKILL;
        EXPECT_EQ(want, job_run(&j, args));
        snprintf(args, sizeof args, "[%d] rank %d has bad luck\n", trial % 2, trial % 2);
        EXPECT_EQ(4, count_of(&j.said[1], args));
        EXPECT_EQ(8, count_of(&j.said[0], "first step"));
        EXPECT_SAYS(&j, 1, "giving up after 3 restarts");
        /* from the failure to the first step of the next start is less than from first step to first step */
        int64_t last = 0;
        for (const char *p = j.said[0].p; (p = strstr(p, "first step ")); p++) {
            int64_t at = atoll(p + 11);
            if (last && (double)(at - last) * 1e-9 > slowest) slowest = (double)(at - last) * 1e-9;
            last = at;
        }
        job_free(&j);
    }
    EXPECT_LT(slowest, 2 * dt_test_slow());
    printf("   slowest restart: %.3f s\n", slowest);
}

/* ==================================================================================================== signals */
UTEST(dtrun, ctrl_c_once_is_an_orderly_stop)
{
    static const int sigs[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    for (int i = 0; i < 4; i++) {
        dtjob j;
        char  want[40];
        job_start(&j, "-n 3 --max-restarts 3 RANK stop");
        ASSERT_TRUE(job_until(&j, 0, "ready", 3));
        kill(j.pid, sigs[i]);
        EXPECT_EQ(128 + sigs[i], job_wait(&j));
        snprintf(want, sizeof want, "stopped by %s\n", i == 0 ? "SIGINT" : "SIGTERM");
        EXPECT_EQ(3, count_of(&j.said[0], want));
        EXPECT_FALSE(has(&j, 1, "failed first"));
        job_free(&j);
    }
}
UTEST(dtrun, ctrl_c_twice_ends_at_once)
{
    dtjob j;
    job_start(&j, "-n 3 RANK ignore");
    ASSERT_TRUE(job_until(&j, 0, "ready", 3));
    int64_t begin = dt_test_ns();
    kill(j.pid, SIGINT);
    ASSERT_TRUE(job_until(&j, 1, "a second signal ends them at once", 1));
    kill(j.pid, SIGINT);
    EXPECT_EQ(128 + SIGINT, job_wait(&j));
    EXPECT_LT((double)(dt_test_ns() - begin) * 1e-9, 10 * dt_test_slow()); /* the grace time is 30 s */
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
}
UTEST(dtrun, other_signals_are_passed_on)
{
    dtjob j;
    job_start(&j, "-n 2 RANK user");
    ASSERT_TRUE(job_until(&j, 0, "ready", 2));
    kill(j.pid, SIGUSR1);
    EXPECT_EQ(0, job_wait(&j));
    EXPECT_EQ(2, count_of(&j.said[0], "stopped by SIGUSR1\n"));
    job_free(&j);
}
UTEST(dtrun, stops_and_goes_on_with_its_ranks)
{
    dtjob j;
    job_start(&j, "-n 2 RANK stop");
    ASSERT_TRUE(job_until(&j, 0, "ready", 2));
    kill(j.pid, SIGTSTP);
    EXPECT_TRUE(state_becomes(j.pid, 'T'));
    EXPECT_TRUE(state_becomes(pid_of(&j, 0), 'T'));
    EXPECT_TRUE(state_becomes(pid_of(&j, 1), 'T'));
    kill(j.pid, SIGCONT);
    EXPECT_TRUE(state_becomes(pid_of(&j, 0), 'S'));
    kill(j.pid, SIGTERM);
    EXPECT_EQ(128 + SIGTERM, job_wait(&j));
    EXPECT_EQ(2, count_of(&j.said[0], "stopped by SIGTERM"));
    job_free(&j);
}

/* ==================================================================================================== kill -9 */
UTEST(dtrun, nothing_outlives_kill_9)
{
    char    *dir = temp_dir(), over_ssh[5000];
    double   slowest = 0;
    uint64_t seed = (uint64_t)dt_test_ns();
    int      started = 0;
    fake_ssh(dir);
    snprintf(over_ssh, sizeof over_ssh, "-n 2 --ssh %s/ssh --hosts 127.0.0.1,127.0.0.2 RANK tree", dir);
    printf("   seed %llu\n", (unsigned long long)seed);
    for (int trial = 0; trial < (dt_test_quick() ? 10 : 50); trial++) {
        dtjob j;
        bool  ssh = trial % 5 == 4;
        job_start(&j, ssh ? over_ssh : "-n 3 RANK tree");
        if (trial % 2) ASSERT_TRUE(job_until(&j, 0, "ready", ssh ? 4 : 3)); /* else: while it starts */
        poll(NULL, 0, (int)(dt_test_random(&seed) % 20));
        started += marked();
        kill(j.pid, SIGKILL);
        double t = until_none_marked(1);
        EXPECT_GE(t, 0);
        if (t > slowest) slowest = t;
        job_free(&j);
    }
    EXPECT_GT(started, 20);
    printf("   slowest end: %.3f s\n", slowest);
    temp_remove(dir);
}

/* ==================================================================================================== machines */
typedef struct pair {
    dtjob j[2];
    char *dir;
} pair;
static void pair_start(pair *p, int n0, int n1, const char *more, const char *rest)
{
    char args[6000];
    int  port = free_port();
    p->dir = temp_dir();
    for (int i = 1; i >= 0; i--) { /* the second machine is there first */
        snprintf(args, sizeof args,
                 "--nnodes 2 --node-rank %d -n %d --master-addr 127.0.0.1 --master-port %d --token-file %s/token "
                 "--join-timeout 30 %s RANK %s",
                 i, i ? n1 : n0, port, p->dir, i ? "" : more, rest);
        job_start(&p->j[i], args);
    }
}
static void pair_free(pair *p)
{
    job_free(&p->j[0]);
    job_free(&p->j[1]);
    temp_remove(p->dir);
}
UTEST(machines, two_add_up_and_may_differ_in_size)
{
    pair        p;
    struct stat st;
    pair_start(&p, 1, 3, "", "sum");
    EXPECT_EQ(0, job_wait(&p.j[0]));
    EXPECT_EQ(0, job_wait(&p.j[1]));
    EXPECT_SAYS(&p.j[0], 0, "[0] rank 0 of 4, here 0 of 1, sum 10");
    EXPECT_SAYS(&p.j[1], 0, "[1] rank 1 of 4, here 0 of 3, sum 10");
    EXPECT_SAYS(&p.j[1], 0, "[3] rank 3 of 4, here 2 of 3, sum 10");
    EXPECT_EQ(0, stat(temp_in(p.dir, "token"), &st));
    EXPECT_EQ(0600, (int)(st.st_mode & 07777));
    pair_free(&p);
}
UTEST(machines, each_has_its_servers)
{
    pair p;
    pair_start(&p, 2, 1, "--servers 2 --max-restarts 1", "role 1 4"); /* machine 1 has none */
    EXPECT_EQ(0, job_wait(&p.j[0]));
    EXPECT_EQ(0, job_wait(&p.j[1]));
    EXPECT_SAYS(&p.j[0], 1, "rank 4 (worker) failed first: exit code 9");
    static const char *const want[5] = {
        "[0 worker] restart 1: rank 0 of 5, here 0 of 4, is worker 0 of 3: worker; 3 workers, 2 servers\n",
        "[1 worker] restart 1: rank 1 of 5, here 1 of 4, is worker 1 of 3: worker; 3 workers, 2 servers\n",
        "[2 server] restart 1: rank 2 of 5, here 2 of 4, is server 0 of 2: server; 3 workers, 2 servers\n",
        "[3 server] restart 1: rank 3 of 5, here 3 of 4, is server 1 of 2: server; 3 workers, 2 servers\n",
        "[4 worker] restart 1: rank 4 of 5, here 0 of 1, is worker 2 of 3: worker; 3 workers, 2 servers\n"
    };
    for (int r = 0; r < 5; r++) EXPECT_SAYS(&p.j[r == 4], 0, want[r]);
    pair_free(&p);
}
UTEST(machines, a_rank_of_the_other_machine_fails_and_all_start_again)
{
    pair p;
    pair_start(&p, 2, 2, "--max-restarts 2", "loop 3 12");
    EXPECT_EQ(12, job_wait(&p.j[0]));
    EXPECT_EQ(12, job_wait(&p.j[1]));
    EXPECT_EQ(3, count_of(&p.j[0].said[1], "rank 3 failed first: exit code 12"));
    EXPECT_EQ(3, count_of(&p.j[0].said[1], "| rank 3 has bad luck"));
    EXPECT_SAYS(&p.j[0], 1, "machine 1 (");
    EXPECT_EQ(6, count_of(&p.j[1].said[0], "first step"));
    pair_free(&p);
}
UTEST(machines, ctrl_c_on_either_stops_both)
{
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_start(&p, 2, 1, "", "stop");
        ASSERT_TRUE(job_until(&p.j[0], 0, "ready", 2) && job_until(&p.j[1], 0, "ready", 1));
        kill(p.j[i].pid, SIGINT);
        EXPECT_EQ(128 + SIGINT, job_wait(&p.j[0]));
        EXPECT_EQ(128 + SIGINT, job_wait(&p.j[1]));
        EXPECT_EQ(2, count_of(&p.j[0].said[0], "stopped by SIGINT"));
        EXPECT_EQ(1, count_of(&p.j[1].said[0], "stopped by SIGINT"));
        pair_free(&p);
    }
}
UTEST(machines, a_signal_to_each_is_one_orderly_stop)
{
    pair p;
    pair_start(&p, 1, 1, "", "stop");
    ASSERT_TRUE(job_until(&p.j[0], 0, "ready", 1) && job_until(&p.j[1], 0, "ready", 1));
    for (int i = 0; i < 2; i++) kill(p.j[i].pid, SIGTERM);
    for (int i = 0; i < 2; i++) EXPECT_EQ(128 + SIGTERM, job_wait(&p.j[i]));
    for (int i = 0; i < 2; i++) EXPECT_EQ(1, count_of(&p.j[i].said[0], "stopped by SIGTERM"));
    pair_free(&p);
}
UTEST(machines, one_dies_and_the_other_ends)
{
    for (int i = 0; i < 2; i++) {
        pair p;
        pair_start(&p, 1, 1, "", "tree");
        ASSERT_TRUE(job_until(&p.j[0], 0, "ready", 1) && job_until(&p.j[1], 0, "ready", 1));
        kill(p.j[i].pid, SIGKILL);
        EXPECT_EQ(1, job_wait(&p.j[!i]));
        EXPECT_SAYS(&p.j[!i], 1, i ? "its dtrun is gone" : "machine 0's dtrun is gone");
        EXPECT_GE(until_none_marked(1), 0);
        pair_free(&p);
    }
}
UTEST(machines, a_stopped_dtrun_does_not_keep_the_other)
{
    for (int i = 0; i < 2; i++) { /* the one that is stopped */
        pair p;
        setenv("DT_TEST_WAIT", "0.2", 1);
        pair_start(&p, 1, 1, "--grace 0.1", "ignore");
        unsetenv("DT_TEST_WAIT");
        ASSERT_TRUE(job_until(&p.j[0], 0, "ready", 1) && job_until(&p.j[1], 0, "ready", 1));
        kill(p.j[i].pid, SIGSTOP);
        ASSERT_TRUE(state_becomes(p.j[i].pid, 'T'));
        kill(p.j[!i].pid, i ? SIGTERM : SIGINT); /* the ranks ignore it */
        if (i == 0) { /* without machine 0: the second ends the ranks here, the third ends it */
            kill(p.j[1].pid, SIGTERM);
            EXPECT_TRUE(state_becomes(pid_of(&p.j[1], 1), 0));
            kill(p.j[1].pid, SIGHUP);
        }
        EXPECT_EQ(128 + (i ? SIGTERM : SIGHUP), job_wait(&p.j[!i]));
        if (i) EXPECT_SAYS(&p.j[0], 1, "does not answer after SIGKILL");
        kill(p.j[i].pid, SIGCONT);
        int want = i ? 1 : 128 + SIGINT; /* machine 0 finds that it was asked to stop */
        EXPECT_EQ(want, job_wait(&p.j[i]));
        EXPECT_GE(until_none_marked(1), 0);
        pair_free(&p);
    }
}
UTEST(machines, another_token_or_shape_is_refused)
{
    char  args[6000], *dir = temp_dir();
    dtjob a, b;
    int   port = free_port();
    temp_put(dir, "other", "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", 64);
    chmod(temp_in(dir, "other"), 0600);
    snprintf(args, sizeof args, "--nnodes 2 --master-addr 127.0.0.1 --master-port %d --token-file %s/token RANK sum",
             port, dir);
    job_start(&a, args);
    snprintf(args, sizeof args,
             "--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port %d --join-timeout 3 --token-file %s/other RANK sum",
             port, dir);
    EXPECT_EQ(1, job_run(&b, args));
    EXPECT_SAYS(&b, 1, "it has another token");
    job_free(&b);
    snprintf(args, sizeof args,
             "--nnodes 3 --node-rank 2 --master-addr 127.0.0.1 --master-port %d --token-file %s/token RANK sum", port,
             dir);
    EXPECT_EQ(1, job_run(&b, args));
    EXPECT_SAYS(&b, 1, "--nnodes is 2 here and 3 there");
    job_free(&b);
    chmod(temp_in(dir, "other"), 0644);
    snprintf(args, sizeof args,
             "--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port %d --token-file %s/other RANK sum", port,
             dir);
    EXPECT_EQ(2, job_run(&b, args));
    EXPECT_SAYS(&b, 1, "chmod 600");
    job_free(&b);
    for (int i = 0; i < 2; i++) { /* a link that leads nowhere */
        unlink(temp_in(dir, "other"));
        ASSERT_EQ(0, symlink("nowhere", temp_in(dir, "other")));
        snprintf(args, sizeof args,
                 "--nnodes 2 --node-rank %d --master-addr 127.0.0.1 --master-port %d --token-file %s/other RANK sum", i, port,
                 dir);
        EXPECT_EQ(2, job_run(&b, args));
        EXPECT_SAYS(&b, 1, "symbolic link");
        EXPECT_NE(0, access(temp_in(dir, "nowhere"), F_OK));
        job_free(&b);
    }
    kill(a.pid, SIGTERM); /* still waiting for machine 1 */
    EXPECT_EQ(128 + SIGTERM, job_wait(&a));
    job_free(&a);
    temp_remove(dir);
}
static int dial_from(const char *source, int port) /* a connection to dtrun's port; waits until dtrun is there */
{
    struct sockaddr_in a, me;
    memset(&a, 0, sizeof a);
    memset(&me, 0, sizeof me);
    a.sin_family = me.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    me.sin_addr.s_addr = inet_addr(source);
    for (int64_t limit = seconds_from_now(20); dt_test_ns() < limit; poll(NULL, 0, 1)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) return -1;
        if (bind(fd, (struct sockaddr *)&me, sizeof me) == 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
        close(fd);
    }
    return -1;
}
static int shake_until_done(dt__shake *h, int fd) /* the descriptor blocks */
{
    int got = DT__SHAKE_AGAIN;
    for (int64_t limit = seconds_from_now(20); got == DT__SHAKE_AGAIN && dt_test_ns() < limit;) got = dt__shake_step(h, fd);
    return got;
}
/* Strangers without the token hold every place that they get, from one address or another. An agent that is slower than they
   are keeps its place. */
UTEST(machines, strangers_at_the_port_keep_no_agent_out)
{
    enum { STRANGERS = 2500 };
    for (int own = 0; own < 2; own++) { /* 1: from the agent's own address, as many as there are places but the agent's */
        char          args[6000], *dir = temp_dir();
        static int    fd[STRANGERS];
        int           port = free_port(), n = own ? CLIENTS - 1 : STRANGERS, bad = 0;
        uint8_t       first[4];
        struct rlimit files, before;
        dt__world     w;
        dt__shake     h;
        dtjob         j;
        getrlimit(RLIMIT_NOFILE, &before);
        files = before;
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
        if (files.rlim_cur < STRANGERS + 200) UTEST_SKIP("too few descriptors");
        temp_put(dir, "token", "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff", 64);
        chmod(temp_in(dir, "token"), 0600);
        snprintf(args, sizeof args, "--nnodes 2 --master-addr 127.0.0.1 --master-port %d --token-file %s/token RANK sum",
                 port, dir);
        job_start(&j, args);
        memset(&w, 0, sizeof w);
        memset(w.token, 0xff, 32);
        w.rank = 1;
        w.size = 2;
        int agent = dial_from("127.0.0.1", port);
        ASSERT_GE(agent, 0);
        ASSERT_TRUE(dt__shake_client(&h, &w, 0, KIND_NODE, 0, 0));
        ASSERT_EQ((ssize_t)4, recv(agent, first, 4, MSG_PEEK | MSG_WAITALL)); /* it has its place */
        for (int i = 0; i < n; i++) {
            fd[i] = dial_from(own ? "127.0.0.1" : "127.0.0.2", port);
            bad += fd[i] < 0 || recv(fd[i], first, 4, MSG_PEEK | MSG_WAITALL) != 4; /* so has this one */
        }
        EXPECT_EQ(0, bad);
        EXPECT_EQ(DT__SHAKE_DONE, shake_until_done(&h, agent));
        for (int i = 0; i < n; i++) close(fd[i]);
        kill(j.pid, SIGTERM);
        EXPECT_EQ(128 + SIGTERM, job_wait(&j));
        close(agent);
        job_free(&j);
        temp_remove(dir);
        setrlimit(RLIMIT_NOFILE, &before);
    }
}
/* The same without end, while the job joins and runs: connections that say nothing, that say something else, that are reset. */
static void flood(int port, int kind)
{
    struct linger reset = { 1, 0 };
    int           fd[64];
    uint64_t      seed = (uint64_t)(kind + 1);
    memset(fd, -1, sizeof fd);
    signal(SIGPIPE, SIG_IGN);
    for (uint32_t i = 0;; i++) {
        char noise[200];
        int  k = (int)(i % 64);
        if (fd[k] >= 0 && kind == 2) setsockopt(fd[k], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        if (fd[k] >= 0) close(fd[k]);
        fd[k] = dial_from("127.0.0.1", port);
        for (size_t b = 0; b < sizeof noise; b++) noise[b] = (char)dt_test_random(&seed);
        if (i % 2) memcpy(noise, "DTSH", 4);
        if (fd[k] >= 0 && kind == 1 && send(fd[k], noise, sizeof noise, MSG_NOSIGNAL) < 0) continue;
    }
}
UTEST(machines, join_during_a_flood_without_end)
{
    char  args[6000];
    pair  p;
    pid_t pid[3];
    int   port = free_port();
    p.dir = temp_dir();
    for (int k = 0; k < 3; k++) {
        fflush(NULL);
        pid[k] = fork();
        if (pid[k] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) flood(port, k);
        }
    }
    for (int i = 0; i < 2; i++) {
        snprintf(args, sizeof args,
                 "--nnodes 2 --node-rank %d -n 1 --master-addr 127.0.0.1 --master-port %d --token-file %s/token RANK stop", i,
                 port, p.dir);
        job_start(&p.j[i], args);
        if (i) continue;
        int fd = dial_from("127.0.0.1", port); /* the port is there; from here on the flood is, too */
        EXPECT_GE(fd, 0);
        close(fd);
    }
    EXPECT_TRUE(job_until(&p.j[0], 0, "ready", 1) && job_until(&p.j[1], 0, "ready", 1));
    kill(p.j[0].pid, SIGTERM); /* signals are served as well */
    EXPECT_EQ(128 + SIGTERM, job_wait(&p.j[0]));
    EXPECT_EQ(128 + SIGTERM, job_wait(&p.j[1]));
    for (int k = 0; k < 3; k++) {
        kill(pid[k], SIGKILL);
        while (waitpid(pid[k], NULL, 0) < 0 && errno == EINTR) {}
    }
    pair_free(&p);
}
UTEST(machines, one_that_does_not_come_is_named)
{
    char  args[6000], *dir = temp_dir();
    dtjob j;
    snprintf(args, sizeof args,
             "--nnodes 2 --master-addr 127.0.0.1 --master-port %d --token-file %s/t --join-timeout 0.1 RANK sum",
             free_port(), dir);
    EXPECT_EQ(1, job_run(&j, args));
    EXPECT_SAYS(&j, 1, "machine 1 did not join within 0.1 s");
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, over_ssh)
{
    char *dir = temp_dir(), args[8000], path[4600];
    dtjob j;
    fake_ssh(dir);
    snprintf(path, sizeof path, "%s/it's $HOME", dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/it's $HOME/dtrun", dir);
    ASSERT_EQ(0, symlink(exe, path));
    char *argv[64], room[4000], odd[] = "$HOME `x` \"y\"", none[] = "";
    snprintf(args, sizeof args, "-n 2 --hosts 127.0.0.1,127.0.0.2 --ssh %s/ssh --dtrun PATH RANK args it's ODD NONE",
             dir);
    job_argv(args, argv, room);
    for (int i = 0; argv[i]; i++) { /* what has blanks in it, or nothing */
        if (strcmp(argv[i], "PATH") == 0) argv[i] = path;
        else if (strcmp(argv[i], "ODD") == 0) argv[i] = odd;
        else if (strcmp(argv[i], "NONE") == 0) argv[i] = none;
    }
    job_exec(&j, argv, -1);
    EXPECT_EQ(0, job_wait(&j));
    EXPECT_EQ(4, count_of(&j.said[0], "<it's>\n"));
    EXPECT_EQ(4, count_of(&j.said[0], "<$HOME `x` \"y\">\n"));
    EXPECT_EQ(4, count_of(&j.said[0], "<>\n"));
    job_free(&j);
    /* nothing but the path goes over the command line */
    char  calls[8192] = "", want[5000];
    FILE *f = fopen(temp_in(dir, "calls"), "r");
    ASSERT_TRUE(f != NULL);
    EXPECT_GT(fread(calls, 1, sizeof calls - 1, f), (size_t)0);
    fclose(f);
    snprintf(want, sizeof want, "exec '%s/it'\\''s $HOME/dtrun' --agent\n", dir);
    EXPECT_TRUE(strstr(calls, want) != NULL);
    EXPECT_TRUE(strstr(calls, "as-rank") == NULL);

    setenv("DT_TEST_PASSED_ON", "yes", 1);
    snprintf(args, sizeof args, "-n 2 --ssh %s/ssh --hosts 127.0.0.1,127.0.0.2 RANK env DT_TEST_PASSED_ON RANK", dir);
    EXPECT_EQ(0, job_run(&j, args));
    unsetenv("DT_TEST_PASSED_ON");
    EXPECT_EQ(4, count_of(&j.said[0], "DT_TEST_PASSED_ON=yes\n"));
    job_free(&j);
    snprintf(args, sizeof args, "-n 2 --servers 1 --ssh %s/ssh --hosts 127.0.0.1,127.0.0.2 RANK role", dir);
    EXPECT_EQ(0, job_run(&j, args));
    for (int r = 0; r < 6; r++) {
        const char *name = r % 3 < 2 ? "worker" : "server";
        char        role[200];
        snprintf(role, sizeof role, "[%d %s] restart 0: rank %d of 6, here %d of 3, is %s %d of %d: %s; 4 workers, 2 servers\n", r, name,
                 r, r % 3, name, r % 3 < 2 ? r / 3 * 2 + r % 3 : r / 3, r % 3 < 2 ? 4 : 2, name);
        EXPECT_SAYS(&j, 0, role);
    }
    job_free(&j);
    snprintf(args, sizeof args, "-n 2 --ssh %s/ssh --hosts 127.0.0.1,localhost RANK sum", dir);
    EXPECT_EQ(0, job_run(&j, args));
    EXPECT_EQ(4, count_of(&j.said[0], "sum 10"));
    job_free(&j);
    snprintf(args, sizeof args,
             "-n 2 --ssh %s/ssh --hosts 127.0.0.1,127.0.0.2 --max-restarts 1 --log-dir %s/log RANK "
             "loop 3 kill",
             dir, dir);
    EXPECT_EQ(128 + SIGKILL, job_run(&j, args));
    EXPECT_EQ(2, count_of(&j.said[1], "rank 3 failed first: killed by SIGKILL"));
    EXPECT_EQ(2, count_of(&j.said[1], "| rank 3 has bad luck"));
    EXPECT_EQ(0, access(temp_in(dir, "log/rank3.restart1.err"), F_OK)); /* all files are here */
    job_free(&j);
    temp_remove(dir);
}
UTEST(machines, what_ssh_says_is_told)
{
    char *dir = temp_dir(), args[5000];
    dtjob j;
    chmod(temp_put(dir, "ssh", "#!/bin/sh\necho \"$1: no way\" >&2\nexit 255\n", 41), 0700);
    snprintf(args, sizeof args, "--ssh %s/ssh --hosts a.test,b.test RANK sum", dir);
    EXPECT_EQ(1, job_run(&j, args));
    EXPECT_SAYS(&j, 1, ".test: no way");
    EXPECT_SAYS(&j, 1, "ssh ended (exit code 255)");
    job_free(&j);
    chmod(temp_put(dir, "ssh", "#!/bin/sh\necho welcome to this machine\ncat\n", 43), 0700);
    EXPECT_EQ(1, job_run(&j, args));
    EXPECT_SAYS(&j, 1, "something other than dtrun answers there");
    job_free(&j);
    chmod(temp_put(dir, "ssh", "#!/bin/sh\nexec 1>&-\nexec sleep 1000\n", 37), 0700); /* the connection hangs */
    EXPECT_EQ(1, job_run(&j, args));
    EXPECT_SAYS(&j, 1, "dtrun did not start there");
    EXPECT_GE(until_none_marked(1), 0);
    job_free(&j);
    fake_ssh(dir);
    snprintf(args, sizeof args, "--ssh %s/ssh --hosts 127.0.0.1,127.0.0.2 ./no-such-program", dir);
    EXPECT_EQ(127, job_run(&j, args));
    EXPECT_SAYS(&j, 1, "cannot run './no-such-program': no such file");
    job_free(&j);
    temp_remove(dir);
}

/* ==================================================================================================== */
UTEST(zz, no_process_is_left) { EXPECT_GE(until_none_marked(1), 0); }

int main(int argc, char **argv)
{
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return 1;
    if (getenv("DT_TEST_WAIT")) kill_wait = flush_wait = atof(getenv("DT_TEST_WAIT"));
    if (argc > 2 && strcmp(argv[1], "--as-rank") == 0) return rank_main(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], "--agent") == 0) return dtrun_main(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--as-dtrun") == 0) return dtrun_main(argc - 1, argv + 1);
    snprintf(mark, sizeof mark, "dtrun-test-%d-%lld", (int)getpid(), (long long)dt_test_ns());
    return utest_main(argc, (const char *const *)argv);
}
