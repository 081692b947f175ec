/* jobs.h - a job of dt_comm.h that a test builds by hand: a listening socket, a token file, and flags in memory that all its
   processes share. It uses functions of the implementation of dt_net.h: include it behind dt_comm.h with DT_IMPLEMENTATION or
   DT_NET_IMPLEMENTATION. */
#ifndef DT_TEST_JOBS_H_INCLUDED
#define DT_TEST_JOBS_H_INCLUDED

#include "ranks.h"

#include <dirent.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { JOB_RANKS = 80 };
typedef struct job {
    int     n, listen_fd, port;   /* rank 0 listens there */
    double  join_timeout, timeout;
    char    token_file[64];       /* "": none */
    int     flag[8];
    int     victim, pid;          /* for the test, as what follows */
    int64_t begin, took[JOB_RANKS]; /* ns */
    /* strangers.h */
    int     proxy_fd, proxy_port;
    double  delay;                /* seconds, of the proxy, each way */
    double  strange;              /* seconds: for so long the proxy answers itself, and wrongly */
    int     fds;                  /* the limit of rank 0's descriptors; 0: as it is */
    int     held;                 /* connections that a flood keeps open; 0: HELD */
    int64_t made;                 /* connections of strangers */
} job;

static DT_TEST_UNUSED int job_listen(int *port) /* a listening socket on a free port of loopback */
{
    dt__addr a;
    dt__addr_loopback(&a, 0);
    int fd = dt__listen(&a);
    if (fd < 0 || getsockname(fd, &a.u.any, &a.n)) abort();
    *port = dt__addr_port(&a);
    return fd;
}
static DT_TEST_UNUSED job *job_new(int n)
{
    job *j = (job *)mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j == MAP_FAILED) abort();
    j->n = n;
    j->listen_fd = job_listen(&j->port);
    j->proxy_fd = -1;
    j->join_timeout = j->timeout = 20 * dt_test_slow();
    return j;
}
static DT_TEST_UNUSED void job_free(job *j)
{
    if (j->listen_fd >= 0) close(j->listen_fd);
    if (j->proxy_fd >= 0) close(j->proxy_fd);
    if (j->token_file[0]) unlink(j->token_file);
    munmap(j, sizeof *j);
}
static DT_TEST_UNUSED void token_new(char path[64]) /* makes a file with a random token */
{
    uint8_t token[32];
    snprintf(path, 64, "/tmp/dt_token_XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0 || !dt__comm_random(token, 32) || write(fd, token, 32) != 32) abort();
    close(fd);
}
static DT_TEST_UNUSED job *job_token(job *j)
{
    token_new(j->token_file);
    return j;
}
static DT_TEST_UNUSED dt_comm_opts job_opts(const job *j, int rank)
{
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    o.rank = rank;
    o.world = j->n;
    o.addr = "127.0.0.1";
    o.port = rank && j->proxy_fd >= 0 ? j->proxy_port : j->port;
    if (rank == 0) o.listen_fd = j->listen_fd;
    o.join_timeout = j->join_timeout;
    o.timeout = j->timeout;
    if (j->token_file[0]) o.token_file = j->token_file;
    return o;
}
static DT_TEST_UNUSED double job_worst(const job *j) /* seconds */
{
    int64_t worst = 0;
    for (int r = 0; r < j->n; r++) worst = j->took[r] > worst ? j->took[r] : worst;
    return (double)worst * 1e-9;
}
/* Runs so many processes of it, and frees it; 0: all is well. */
static DT_TEST_UNUSED int job_run(job *j, int processes, double seconds, int (*fn)(int rank, void *arg))
{
    int failed = dt_test_ranks(processes, seconds, fn, j);
    job_free(j);
    return failed;
}
static DT_TEST_UNUSED void flag_set(job *j, int i) { __atomic_add_fetch(&j->flag[i], 1, __ATOMIC_SEQ_CST); }
static DT_TEST_UNUSED int  flag_get(const job *j, int i) { return __atomic_load_n(&j->flag[i], __ATOMIC_SEQ_CST); }
static DT_TEST_UNUSED void flag_wait(const job *j, int i, int n)
{
    while (flag_get(j, i) < n) poll(NULL, 0, 1);
}
static DT_TEST_UNUSED int count_in(const char *path) /* entries of a directory, such as /proc/self/fd */
{
    DIR *d = opendir(path);
    int  n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
/* A world without a control thread, for handshakes by hand. */
static DT_TEST_UNUSED void world_fake(dt__world *w, int rank, int size, uint8_t token)
{
    memset(w, 0, sizeof *w);
    w->rank = rank;
    w->size = w->start = w->room = size;
    memset(w->token, token, 32);
    memset(w->job, 3, 16);
}

#endif /* DT_TEST_JOBS_H_INCLUDED */
