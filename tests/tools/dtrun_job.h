/* dtrun_job.h - tests of dtrun start it, read what it says, and look for what outlives it

       job_run(&j, "-n 2 RANK sum")          runs this program as dtrun: RANK stands for this program as a rank, EXE for itself
       job_start(&j, args), job_wait(&j)     the same in two steps; the exit status, or -1: it did not end
       job_until(&j, stream, text, times)    reads until stdout (0) or stderr (1) has the text so many times
       EXPECT_SAYS(&j, stream, text)
       marked(), until_none_marked(s)        processes of the jobs of this program that run
       fake_ssh(dir)                         dir/ssh runs the command here, in a shell as sshd does, and notes its arguments

   Include it behind tools/dtrun.c. Set exe and mark first. */
#ifndef DTRUN_JOB_H_INCLUDED
#define DTRUN_JOB_H_INCLUDED

typedef struct text {
    char  *p;
    size_t n, cap;
} text;
typedef struct dtjob {
    pid_t pid;
    int   fd[2]; /* its stdout, stderr */
    int   in;    /* what it reads, or -1 */
    text  said[2];
    int   status;
    bool  ended, late;
} dtjob;
static char        exe[4096], mark[64];
static const char *job_dir; /* where the next ones run */
static bool        job_no_pidfd, job_no_out; /* job_no_out: stdout is /dev/null */

static void text_add(text *t, const char *p, size_t n)
{
    if (t->n + n + 1 > t->cap) t->p = (char *)realloc(t->p, t->cap = 2 * (t->n + n) + 4096);
    if (!t->p) abort();
    memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
}
static void forbid_pidfd(void)
{
    struct sock_filter f[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog  prog;
    prog.len = 4;
    prog.filter = f;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0) _exit(125);
}
/* args: words with blanks between them; "RANK" stands for this program as a rank, "EXE" for this program. */
static void job_argv(const char *args, char **argv, char *room)
{
    int n = 0;
    argv[n++] = exe;
    argv[n++] = (char *)(uintptr_t) "--as-dtrun";
    char *save = NULL;
    for (char *p = strtok_r(strcpy(room, args), " ", &save); p && n < 60; p = strtok_r(NULL, " ", &save)) {
        if (strcmp(p, "RANK") == 0) {
            argv[n++] = exe;
            argv[n++] = (char *)(uintptr_t) "--as-rank";
        } else argv[n++] = strcmp(p, "EXE") == 0 ? exe : p;
    }
    argv[n] = NULL;
}
static void job_exec(dtjob *j, char **argv, int in)
{
    int   out[2], err[2];
    pid_t parent = getpid();
    memset(j, 0, sizeof *j);
    j->in = -1;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) abort();
    fflush(NULL);
    j->pid = fork();
    if (j->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(126);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(in >= 0 ? in : null, 0);
        dup2(job_no_out ? null : out[1], 1);
        dup2(err[1], 2);
        if (job_dir && chdir(job_dir) != 0) _exit(125);
        setenv("DT_TEST_MARK", mark, 1);
        if (job_no_pidfd) forbid_pidfd();
        execv(exe, argv);
        _exit(125);
    }
    close(out[1]);
    close(err[1]);
    j->fd[0] = out[0];
    j->fd[1] = err[0];
}
static void job_start(dtjob *j, const char *args)
{
    char *argv[64], room[2048];
    job_argv(args, argv, room);
    job_exec(j, argv, -1);
}
static int64_t seconds_from_now(double s) { return dt_test_ns() + (int64_t)(s * dt_test_slow() * 1e9); }
/* Reads until the text is there so many times (in stdout if stream is 0, stderr 1), or both are closed: then false. */
static int count_of(const text *t, const char *what)
{
    int n = 0;
    for (const char *p = t->p; p; p++) {
        p = (const char *)memmem(p, t->n - (size_t)(p - t->p), what, strlen(what));
        if (!p) break;
        n++;
    }
    return n;
}
static bool job_until(dtjob *j, int stream, const char *what, int times)
{
    int64_t limit = seconds_from_now(40);
    char    buf[65536];
    while (!(what && count_of(&j->said[stream], what) >= times)) {
        struct pollfd p[2];
        int64_t       left = (limit - dt_test_ns()) / 1000000;
        for (int i = 0; i < 2; i++) {
            p[i].fd = j->fd[i];
            p[i].events = POLLIN;
            p[i].revents = 0;
        }
        if (j->fd[0] < 0 && j->fd[1] < 0) return false;
        if (left <= 0 || (poll(p, 2, (int)left) <= 0 && errno != EINTR)) {
            j->late = true;
            return false;
        }
        for (int i = 0; i < 2; i++) {
            if (!p[i].revents) continue;
            ssize_t n = read(p[i].fd, buf, sizeof buf);
            if (n > 0) text_add(&j->said[i], buf, (size_t)n);
            else dt__close(&j->fd[i]);
        }
    }
    return true;
}
/* Waits for its end; the exit status as a shell has it, or -1: it did not end. */
static int job_wait(dtjob *j)
{
    job_until(j, 0, NULL, 0);
    if (j->late) kill(j->pid, SIGKILL);
    while (waitpid(j->pid, &j->status, 0) < 0 && errno == EINTR) {}
    for (int i = 0; i < 2; i++) {
        dt__close(&j->fd[i]);
        text_add(&j->said[i], "", 0);
    }
    dt__close(&j->in);
    j->ended = true;
    if (j->late) return -1;
    return WIFSIGNALED(j->status) ? 128 + WTERMSIG(j->status) : WEXITSTATUS(j->status);
}
static void job_free(dtjob *j)
{
    if (!j->ended) {
        kill(j->pid, SIGKILL);
        j->late = true;
        for (int i = 0; i < 2; i++) dt__close(&j->fd[i]);
        job_wait(j);
    }
    free(j->said[0].p);
    free(j->said[1].p);
}
static int job_run(dtjob *j, const char *args)
{
    job_start(j, args);
    return job_wait(j);
}
static bool has(const dtjob *j, int stream, const char *what) { return count_of(&j->said[stream], what) > 0; }
/* Processes that carry the mark in their environment: dtrun, its guard, ranks, what they started. */
static int marked(void)
{
    DIR           *d = opendir("/proc");
    struct dirent *e;
    char           path[300], *env = (char *)malloc(1 << 20);
    int            n = 0;
    while (d && env && (e = readdir(d))) {
        if (e->d_name[0] < '0' || e->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t got = read(fd, env, 1 << 20);
        close(fd);
        n += got > 0 && memmem(env, (size_t)got, mark, strlen(mark)) != NULL;
    }
    if (d) closedir(d);
    free(env);
    return n;
}
static double until_none_marked(double limit) /* seconds; negative: some are left */
{
    int64_t begin = dt_test_ns(), end = seconds_from_now(limit);
    while (marked() > 0) {
        if (dt_test_ns() > end) return -1;
        poll(NULL, 0, 2);
    }
    return (double)(dt_test_ns() - begin) * 1e-9;
}
static DT_TEST_UNUSED int free_port(void)
{
    dt__addr a;
    dt__addr_loopback(&a, 0);
    int fd = dt__listen(&a);
    if (fd < 0 || getsockname(fd, &a.u.any, &a.n) != 0) abort();
    close(fd);
    return dt__addr_port(&a);
}
static DT_TEST_UNUSED void fake_ssh(char *dir) /* runs it here, in a shell as sshd does; notes its arguments */
{
    char script[5000];
    snprintf(script, sizeof script, "#!/bin/sh\necho \"$@\" >> '%s/calls'\nshift\nexec sh -c \"$1\"\n", dir);
    chmod(temp_put(dir, "ssh", script, strlen(script)), 0700);
}
#define EXPECT_SAYS(j, stream, what)                                                \
    do {                                                                            \
        if (!has(j, stream, what)) printf("   it says: %s\n", (j)->said[stream].p); \
        EXPECT_TRUE_MSG(has(j, stream, what), what);                                \
    } while (0)

static char state_of(int pid) /* 'Z', 'T', ...; 0: gone */
{
    char  path[64], buf[256] = "";
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!(f = fopen(path, "r"))) return 0;
    size_t n = fread(buf, 1, sizeof buf - 1, f);
    fclose(f);
    buf[n] = 0;
    char *p = strrchr(buf, ')');
    return p ? p[2] : 0;
}
static bool state_becomes(int pid, char want)
{
    int64_t limit = seconds_from_now(20);
    while (state_of(pid) != want)
        if (dt_test_ns() > limit) return false;
        else poll(NULL, 0, 1);
    return true;
}
static int pid_of(const dtjob *j, int rank) /* "ready RANK PID" */
{
    char what[32];
    snprintf(what, sizeof what, "ready %d ", rank);
    const char *p = j->said[0].p ? strstr(j->said[0].p, what) : NULL;
    return p ? atoi(p + strlen(what)) : 0;
}

#endif /* DTRUN_JOB_H_INCLUDED */
