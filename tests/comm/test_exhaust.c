/* test_exhaust.c - socket, accept, connect, mmap and pthread_create fail, one call after the other, once or from then on, on
   one of two ranks, while they join and reduce: the right result, or an error with a message on both ranks, in time. No
   descriptor is left.
   run: alone, long, asan-later */
#define DT_IMPLEMENTATION
#include "ranks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/futex.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

UTEST_MAIN()

enum { SOCKET, ACCEPT, CONNECT, MMAP, THREAD, KINDS };
static const char *const kind_name[KINDS] = { "socket", "accept", "connect", "mmap", "pthread_create" };
static struct {
    int  kind, at; /* at -1: none */
    bool ever;     /* all later ones fail, too */
    int  calls[KINDS];
} faulty = { 0, -1, false, { 0 } };
static bool fails(int kind)
{
    int i = __atomic_fetch_add(&faulty.calls[kind], 1, __ATOMIC_RELAXED);
    return kind == faulty.kind && faulty.at >= 0 && (i == faulty.at || (faulty.ever && i > faulty.at));
}
#define socket(a, b, c) (fails(SOCKET) ? (errno = EMFILE, -1) : (socket)(a, b, c))
#define connect(a, b, c) (fails(CONNECT) ? (errno = ENETUNREACH, -1) : (connect)(a, b, c))
#define mmap(a, b, c, d, e, f) (fails(MMAP) ? (errno = ENOMEM, MAP_FAILED) : (mmap)(a, b, c, d, e, f))
#define pthread_create(a, b, c, d) (fails(THREAD) ? EAGAIN : (pthread_create)(a, b, c, d))
#define syscall(nr, ...) ((nr) == SYS_accept4 && fails(ACCEPT) ? (errno = EMFILE, -1L) : (syscall)(nr, __VA_ARGS__))
#include "dt_comm.h"
#undef mmap

enum { MOST = 128 };
typedef struct job {
    int    kind, at, victim, listen_fd, port;
    bool   ever;
    int    reached, rc[2], left[2];
    double took[2];
    char   text[2][200];
} job;
typedef struct jobs {
    int n;
    job j[MOST];
} jobs;
static double limit(void) { return 2 * dt_test_slow(); }
static int    open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int  n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
static int exhaust_rank(int process, void *arg)
{
    job         *j = &((jobs *)arg)->j[process / 2];
    int          rank = process % 2, fds = open_fds();
    float        x[3000];
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    o.rank = rank;
    o.world = 2;
    o.addr = "127.0.0.1";
    o.port = j->port;
    if (rank == 0) o.listen_fd = j->listen_fd;
    o.timeout = o.join_timeout = limit();
    o.transport = j->kind == MMAP ? "shm" : "tcp";
    for (int i = 0; i < 3000; i++) x[i] = (float)(rank + 1);
    memset(&faulty, 0, sizeof faulty); /* the parent has made sockets */
    faulty.at = -1;
    faulty.kind = j->kind;
    faulty.ever = j->ever;
    if (rank == j->victim) faulty.at = j->at;
    int64_t  begin = dt_test_ns();
    dt_comm *c = dt_comm_init_with(o);
    j->rc[rank] = c ? dt_comm_allreduce(c, x, 3000, DT_COMM_F32, DT_COMM_SUM) : dt_comm_get_status(NULL);
    j->took[rank] = 1e-9 * (double)(dt_test_ns() - begin);
    const char *text = dt_comm_error(c);
    snprintf(j->text[rank], sizeof j->text[rank], "%s", text ? text : "");
    bool bad = !c && j->rc[rank] == 0;
    for (int i = 0; i < 3000 && j->rc[rank] == 0; i++) bad = bad || x[i] != 3;
    if (rank == j->victim) j->reached = __atomic_load_n(&faulty.calls[j->kind], __ATOMIC_RELAXED) > j->at;
    faulty.at = -1;
    dt_comm_free(c);
    for (int i = 0; i < 500 && open_fds() > fds; i++) poll(NULL, 0, 2);
    j->left[rank] = open_fds() - fds;
    return bad;
}
static void exhaust(int *utest_result, bool ever)
{
    jobs *all = (jobs *)mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int   counts[KINDS][2] = { { 0 } }, wrong = 0, indices = dt_test_quick() ? 5 : 12;
    for (int kind = 0; kind < KINDS; kind++)
        for (int victim = 0; victim < 2; victim++)
            for (int at = 0; at < indices; at++) {
                job     *j = &all->j[all->n++];
                dt__addr a;
                dt__addr_loopback(&a, 0);
                j->kind = kind;
                j->victim = victim;
                j->at = at;
                j->ever = ever;
                j->listen_fd = dt__listen(&a);
                ASSERT_EQ(getsockname(j->listen_fd, &a.u.any, &a.n), 0);
                j->port = dt__addr_port(&a);
            }
    EXPECT_EQ(dt_test_ranks(2 * all->n, 50, exhaust_rank, all), 0);
    for (int i = 0; i < all->n; i++) {
        job *j = &all->j[i];
        close(j->listen_fd);
        counts[j->kind][j->victim] += j->reached;
        bool bad = (j->rc[0] == 0) != (j->rc[1] == 0) || (!j->reached && j->rc[0]) || j->left[0] > 0 || j->left[1] > 0;
        for (int r = 0; r < 2; r++) bad = bad || (j->rc[r] && !j->text[r][0]) || j->took[r] > 2 * limit() + 2 * dt_test_slow();
        wrong += bad;
        if (!bad) continue;
        printf("    %s %d of rank %d fails%s%s:\n", kind_name[j->kind], j->at, j->victim, ever ? ", and all later ones" : "",
               j->reached ? "" : " (not reached)");
        for (int r = 0; r < 2; r++)
            printf("      rank %d after %.2f s, %d descriptors left: %d: %s\n", r, j->took[r], j->left[r], j->rc[r], j->text[r]);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        printf("    %s: %d calls of rank 0 and %d of rank 1 failed\n", kind_name[kind], counts[kind][0], counts[kind][1]);
        EXPECT_GT(counts[kind][0] + counts[kind][1], 0); /* the hook is there */
    }
    EXPECT_EQ(wrong, 0);
    munmap(all, sizeof *all);
}
UTEST(exhaust, one_call_fails) { exhaust(utest_result, false); }
UTEST(exhaust, all_calls_fail_from_some_on) { exhaust(utest_result, true); }
