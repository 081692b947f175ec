/* teams.h - one function on several ranks of one communicator: threads, processes with shared memory, processes over TCP

       team t = team_of("shm", 3, 20, fn);   t.arg = ...;   failed = team_run(&t);
       team *t = team_new(3, "tcp");   pid = team_fork(t, newcomer, k);
       dt_spawn(3, first_ones, t);     failed = team_end(t, &pid, 1);

   The second form is for groups that others join: rank 0 calls team_start, a newcomer team_join. Include it after dt_comm.h. */
#ifndef DT_TEST_TEAMS_H_INCLUDED
#define DT_TEST_TEAMS_H_INCLUDED

#include "ranks.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TEAM_MOST = 8 }; /* threads */
typedef struct team {    /* in memory that all ranks see */
    const char  *how;    /* "shm", "tcp", "threads" */
    int          n, arg, arg2;
    dt_comm_opts o;      /* beside the transport */
    bool         frees;  /* the communicator is freed behind fn, and not by it */
    void       (*fn)(struct team *t, dt_comm *c, int rank);
    int          failed, done, flag[8]; /* atomic: checks that failed, ranks that came to their end, for the test */
    uint64_t     bits;   /* for the test */
    int32_t      pid[64];
    char         invitation[200];
    int          open;   /* atomic: the invitation is there */
} team;
static team    *team_of_threads;
static dt_comm *team_comm[TEAM_MOST];

/* what: the text of the check */
static DT_TEST_UNUSED void team_check(team *t, bool ok, const char *what, int line, int rank, dt_comm *c)
{
    if (ok) return;
    if (__atomic_add_fetch(&t->failed, 1, __ATOMIC_RELAXED) < 8)
        printf("    line %d: %s: %s, rank %d of %d, %d/%d: %s / %s\n", line, what, t->how, rank, t->n, t->arg, t->arg2,
               c && dt_comm_error(c) ? dt_comm_error(c) : "", dt_comm_error(NULL) ? dt_comm_error(NULL) : "");
    fflush(stdout);
}
static DT_TEST_UNUSED int  team_flag(const team *t, int k) { return __atomic_load_n(&t->flag[k], __ATOMIC_ACQUIRE); }
static DT_TEST_UNUSED void team_set(team *t, int k) { __atomic_add_fetch(&t->flag[k], 1, __ATOMIC_ACQ_REL); }
static DT_TEST_UNUSED void team_await(const team *t, int k, int n)
{
    while (team_flag(t, k) < n) usleep(200);
}

/* ---- one function on all ranks */
static DT_TEST_UNUSED team team_of(const char *how, int n, double timeout, void (*fn)(team *t, dt_comm *c, int rank))
{
    team t;
    memset(&t, 0, sizeof t);
    t.how = how;
    t.n = n;
    t.fn = fn;
    t.o.timeout = timeout * dt_test_slow();
    t.o.join_timeout = 60;
    return t;
}
static DT_TEST_UNUSED int team_process(void *arg)
{
    team        *t = (team *)arg;
    dt_comm_opts o = t->o;
    o.transport = t->how;
    dt_comm *c = dt_comm_init_with(o);
    team_check(t, c != NULL, "dt_comm_init", __LINE__, -1, NULL);
    if (!c) return 1;
    int rank = dt_comm_rank(c);
    t->pid[rank] = (int32_t)getpid();
    t->fn(t, c, rank);
    if (t->frees) team_check(t, !dt_comm_free(c), "dt_comm_free", __LINE__, rank, NULL);
    __atomic_add_fetch(&t->done, 1, __ATOMIC_RELAXED);
    return 0;
}
static DT_TEST_UNUSED void *team_thread(void *arg)
{
    team    *t = team_of_threads;
    dt_comm *c = *(dt_comm **)arg;
    t->fn(t, c, dt_comm_rank(c));
    if (t->frees) {
        dt_comm_error(c); /* so that a failure is not logged */
        dt_comm_free(c);
    }
    __atomic_add_fetch(&t->done, 1, __ATOMIC_RELAXED);
    return NULL;
}
static DT_TEST_UNUSED team *team_share(const team *of)
{
    team *t = (team *)mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED) abort();
    *t = *of;
    return t;
}
/* Runs fn on all ranks of *of, which then holds what they left. Returns how many checks failed. A rank that dies is no failure:
   the test says what must hold. */
static DT_TEST_UNUSED int team_run(team *of)
{
    team *t = team_share(of);
    if (strcmp(t->how, "threads")) dt_spawn(t->n, team_process, t);
    else {
        pthread_t thread[TEAM_MOST];
        int       made = dt_comm_threads_with(t->n, team_comm, t->o) ? 0 : t->n;
        team_of_threads = t;
        for (int i = 0; i < made; i++) pthread_create(&thread[i], NULL, team_thread, &team_comm[i]);
        for (int i = 0; i < made; i++) pthread_join(thread[i], NULL);
        if (!made) t->failed = 1000;
    }
    *of = *t;
    munmap(t, sizeof *t);
    return of->failed;
}

/* ---- groups that others join. Rank 0 writes the invitation to the shared memory; newcomers are processes that the test
   forks. */
static DT_TEST_UNUSED team *team_new(int n, const char *how)
{
    team t = team_of(how, n, 15, NULL);
    return team_share(&t);
}
static DT_TEST_UNUSED dt_comm *team_start(team *t, int room) /* in dt_spawn */
{
    dt_comm *c = dt_comm_init(.transport = t->how, .timeout = t->o.timeout, .join_timeout = 60, .tolerant = true, .room = room);
    int      rank = dt_comm_rank(c);
    team_check(t, c != NULL, "dt_comm_init", __LINE__, rank, NULL);
    if (!c) exit(1);
    t->pid[rank] = (int32_t)getpid();
    if (rank == 0) {
        team_check(t, !dt_comm_accept(c, .invitation = t->invitation), "dt_comm_accept", __LINE__, rank, c);
        __atomic_store_n(&t->open, 1, __ATOMIC_RELEASE);
    }
    return c;
}
static DT_TEST_UNUSED void team_await_open(const team *t)
{
    while (!__atomic_load_n(&t->open, __ATOMIC_ACQUIRE)) usleep(200);
}
static DT_TEST_UNUSED dt_comm *team_join(team *t, const char *name, int incarnation)
{
    team_await_open(t);
    return dt_comm_join(.invitation = t->invitation, .timeout = t->o.timeout, .join_timeout = 10 * dt_test_slow(), .name = name,
                        .incarnation = incarnation, .transport = t->how);
}
static DT_TEST_UNUSED pid_t team_fork(team *t, void (*fn)(team *t, int k), int k)
{
    fflush(stdout);
    pid_t parent = getpid(), pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    fn(t, k);
    fflush(stdout);
    _exit(0);
}
static DT_TEST_UNUSED int team_end(team *t, const pid_t *pid, int n) /* how many checks failed */
{
    for (int i = 0; i < n; i++) {
        int status = 0;
        waitpid(pid[i], &status, 0);
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) continue; /* by the test */
        if (status) t->failed++, printf("    newcomer %d ended with status %#x\n", i, (unsigned)status);
    }
    int failed = t->failed;
    munmap(t, sizeof *t);
    return failed;
}
/* The two send each other a small and a large message. */
static DT_TEST_UNUSED bool team_exchange(dt_comm *c, int rank, int peer, int n)
{
    bool ok = true;
    for (int k = 0; k < 2; k++) {
        int64_t  m = k ? n : 10;
        char    *out = (char *)malloc((size_t)m), *in = (char *)calloc(1, (size_t)m);
        memset(out, rank + 1, (size_t)m);
        dt_work *w = dt_comm_send_start(c, out, m, DT_COMM_U8, peer, .tag = 40 + k);
        ok = ok && w && !dt_comm_recv(c, in, m, DT_COMM_U8, peer, .tag = 40 + k) && in[m - 1] == (char)(peer + 1);
        ok = w && !dt_work_wait(w) && ok;
        free(out), free(in);
    }
    return ok;
}
/* The next event must be this one. */
static DT_TEST_UNUSED bool team_event(dt_comm *c, int kind, int rank, dt_comm_event *e)
{
    dt_comm_event own;
    memset(&own, 0, sizeof own);
    int rc = dt_comm_next_event(c, &own, .timeout = 20 * dt_test_slow());
    if (e) *e = own;
    if (rc == 1 && own.kind == kind && own.rank == rank && own.pid > 0 && own.when > 0 && own.why[0]) return true;
    printf("    rank %d: expected event %d of rank %d; %d: kind %d, rank %d, %s\n", dt_comm_rank(c), kind, rank, rc, own.kind,
           own.rank, own.why);
    return false;
}

#endif /* DT_TEST_TEAMS_H_INCLUDED */
