/* lab.h - two "machines": network namespaces with a cable (veth) between them, half of the ranks on each. Needs
   iproute2 and the right to make namespaces (root, or user namespaces). The namespaces belong to processes of their
   own and go with them. */
#ifndef DT_TEST_LAB_H_INCLUDED
#define DT_TEST_LAB_H_INCLUDED

#include "harness.h"
#include "ranks.h"

#include "dt_comm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct lab {
    /* of the test */
    int (*rank)(struct lab *l, int rank); /* what each rank does; 0: right */
    int         ranks, six, tcp;          /* six: over IPv6 */
    const char *addr, *algo;              /* NULL: the address of the first machine */
    const char *token;                    /* file; NULL: none */
    bool        insecure, hosts;          /* hosts: names in /etc/hosts */
    bool        in_turn;                  /* ranks go to the machines in turn, not the first half to the first */
    double      timeout, seconds;         /* seconds: the deadline of all ranks; 0: 40 */
    const char *pull; /* a command on the first machine */
    /* of the lab */
    int     machine[2]; /* the namespaces */
    int     flag[4];
    int64_t when, sent;
    double  stats[8];
} lab;
enum { NOT_HERE = 77 };
static void flag_add(lab *l, int i) { __atomic_add_fetch(&l->flag[i], 1, __ATOMIC_SEQ_CST); }
static DT_TEST_UNUSED void flag_wait(lab *l, int i, int n)
{
    while (__atomic_load_n(&l->flag[i], __ATOMIC_SEQ_CST) < n) poll(NULL, 0, 1);
}
static int sh(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int sh(const char *format, ...)
{
    char    text[512];
    va_list a;
    va_start(a, format);
    vsnprintf(text, sizeof text, format, a);
    va_end(a);
    return system(text);
}
static bool put(const char *path, const char *format, int v)
{
    FILE *f = fopen(path, "w");
    if (f) fprintf(f, format, v);
    return f && fclose(f) == 0;
}
/* Makes this process root of its own network; false: it may not. */
static bool lab_begin(lab *l)
{
    bool  root = geteuid() == 0 && unshare(CLONE_NEWNET | CLONE_NEWNS) == 0;
    pid_t holder;
    int   tube[2], status = 0;
    char  path[64], byte;
    if (!root) {
        int uid = (int)geteuid(), gid = (int)getegid();
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) != 0) return false;
        put("/proc/self/setgroups", "deny", 0);
        if (!put("/proc/self/uid_map", "0 %d 1\n", uid) || !put("/proc/self/gid_map", "0 %d 1\n", gid)) return false;
    }
    if (sh("command -v ip >/dev/null 2>&1") != 0 || pipe(tube) != 0) return false;
    l->machine[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    holder = fork();
    if (holder < 0) return false;
    if (holder == 0) { /* the other machine; it waits until the cable is there */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(tube[1]);
        if (unshare(CLONE_NEWNET) != 0) _exit(1);
        flag_add(l, 3);
        _exit(read(tube[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(tube[0]);
    for (int i = 0; i < 5000 && __atomic_load_n(&l->flag[3], __ATOMIC_SEQ_CST) == 0; i++) {
        if (waitpid(holder, &status, WNOHANG) == holder) return false;
        poll(NULL, 0, 1);
    }
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)holder);
    l->machine[1] = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = l->machine[0] >= 0 && l->machine[1] >= 0 &&
              sh("ip link set lo up && ip link add cable0 type veth peer name cable1 && "
                 "ip link set cable1 netns %d && ip addr add 10.77.0.1/24 dev cable0 && "
                 "ip -6 addr add fd77::1/64 dev cable0 nodad && ip link set cable0 up && "
                 "ip link add other0 type veth peer name other1 && ip addr add 10.88.0.1/24 dev other0 && "
                 "ip link set other0 up",
                 (int)holder) == 0 &&
              setns(l->machine[1], CLONE_NEWNET) == 0 &&
              sh("ip link set lo up && ip addr add 10.77.0.2/24 dev cable1 && "
                 "ip -6 addr add fd77::2/64 dev cable1 nodad && ip link set cable1 up") == 0 &&
              setns(l->machine[0], CLONE_NEWNET) == 0;
    close(tube[1]);
    waitpid(holder, &status, 0); /* the descriptors keep its network */
    return ok;
}
static int lab_hosts(void) /* a name for the first machine, for this process and its children */
{
    char path[] = "/tmp/dt_net_XXXXXX", text[] = "127.0.0.1 localhost\n10.77.0.1 first.dt.test\n";
    int  fd = mkstemp(path), rc = -1;
    if (fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1 &&
        mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0)
        rc = mount(path, "/etc/hosts", "none", MS_BIND, NULL);
    close(fd);
    unlink(path);
    return rc;
}
static int lab_machine(const lab *l, int rank) { return l->in_turn ? rank % 2 : rank >= l->ranks / 2; }
static int lab_child(int rank, void *arg)
{
    lab *l = (lab *)arg;
    if (setns(l->machine[lab_machine(l, rank)], CLONE_NEWNET) != 0) return 1;
    return l->rank(l, rank);
}
static int lab_main(int one, void *arg)
{
    lab *l = (lab *)arg;
    (void)one;
    if (!lab_begin(l)) return NOT_HERE;
    if (l->hosts && lab_hosts() != 0) return NOT_HERE;
    return dt_test_ranks(l->ranks, l->seconds > 0 ? l->seconds : 40, lab_child, l) ? 1 : 0;
}
/* 0, or how many were wrong; NOT_HERE: it cannot be done */
static int lab_run(lab *t)
{
    int    status = 0;
    pid_t  child, parent = getpid();
    lab   *l = (lab *)mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *l = *t;
    fflush(NULL);
    child = fork(); /* namespaces are for it alone */
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(126);
        status = lab_main(0, l);
        fflush(NULL);
        _exit(status);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    *t = *l;
    munmap(l, sizeof *l);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}
static lab lab_of(int (*rank)(lab *l, int rank), int ranks)
{
    lab l;
    memset(&l, 0, sizeof l);
    l.rank = rank;
    l.ranks = ranks;
    l.insecure = true;
    l.timeout = 20 * dt_test_slow();
    return l;
}
static dt_comm_opts lab_opts(const lab *l, int rank)
{
    dt_comm_opts o;
    memset(&o, 0, sizeof o);
    o.rank = rank;
    o.world = l->ranks;
    o.addr = l->addr ? l->addr : l->six ? "fd77::1" : "10.77.0.1";
    o.port = 29477;
    o.insecure = l->insecure;
    o.token_file = l->token;
    o.algo = l->algo;
    o.timeout = l->timeout;
    o.join_timeout = 20 * dt_test_slow();
    if (l->tcp) o.transport = "tcp";
    return o;
}
static DT_TEST_UNUSED dt_comm *lab_join(const lab *l, int rank)
{
    dt_comm *c = dt_comm_init_with(lab_opts(l, rank));
    if (!c) printf("    rank %d: %s\n", rank, dt_comm_error(NULL));
    return c;
}

static DT_TEST_UNUSED int64_t cable_sent(void) /* bytes that this machine sent over it */
{
    char      line[512];
    long long sent = -1;
    FILE     *f = fopen("/proc/self/net/dev", "r"); /* of this namespace; /sys may be another one's */
    while (f && fgets(line, sizeof line, f)) {
        char *p = strstr(line, "cable");
        if (p && (p = strchr(p, ':')) != NULL && sscanf(p + 1, "%*d %*d %*d %*d %*d %*d %*d %*d %lld", &sent) != 1)
            sent = -1;
    }
    if (f) fclose(f);
    return sent;
}

#endif /* DT_TEST_LAB_H_INCLUDED */
